/* attention_hopper_forward.h -- attention forward for compute capability 9.0 (sm_90a), bf16 and f16.
 *
 * A block takes tile after tile of queries, 64 rows for each of its two or three warpgroups. One more warp brings Q, and K and V in a ring of
 * stages, by the copy engine (TMA). A warpgroup's step, for the next tile of keys:
 *
 *     issue S' = Q K'^T, then O += P V of the tile before: both run on the tensor cores
 *     when S' is there: its maxima, P' = exp(S' - maximum)
 *     when O is there: rescale it if a maximum has grown, pack P'
 *
 * and while one warpgroup computes exponentials the tensor cores work for the other: they take turns to issue (as in FlashAttention-3, Shah et al. 2024).
 * The steps of a block never stop: the first S of a tile of queries is issued together with the last P V of the tile before, and while O
 * is divided by its sums and stored the tensor cores work for the other warpgroup.
 *
 * A maximum is kept as long as the true one is less than 2^8 away in terms of P (as in FlashAttention-4): any number will do that keeps
 * sums from overflowing, and O need not be rescaled.
 *
 * Floor: 4 * batch * heads * seq^2 * head_dim flops (half of it if causal), and 2 * batch * seq * (2 * heads + 2 * kv_heads) * head_dim bytes: from some
 * hundred tokens on arithmetic is the limit. Beside the products, seq^2 exponentials at 16 a clock: at head_dim 64 as long as the products.
 */
/* target: cuda */
#ifndef TE_ATTENTION_HOPPER_FORWARD_H
#define TE_ATTENTION_HOPPER_FORWARD_H

#include "attention_hopper.h" /* products, tiles, what a query sees */
#include "attention_mma.h"    /* te__attn_ldmatrix */

/* KEYS in a tile, GROUPS of 64 queries. */
template <int D_, int KEYS_, int GROUPS_, int Q_STAGES_, int K_STAGES_, int V_STAGES_, int TURNS_ = 1> struct te__attn_hopper_shape {
    static constexpr int D = D_, KEYS = KEYS_, GROUPS = GROUPS_, Q_STAGES = Q_STAGES_, K_STAGES = K_STAGES_, V_STAGES = V_STAGES_, TURNS = TURNS_;
    static constexpr int ROWS = 64 * GROUPS, THREADS = 128 * (GROUPS + 1), BOXES = (D + 63) / 64;
    static constexpr int LOADS = GROUPS == 2 ? 40 : 32, MULTIPLIES = GROUPS == 2 ? 232 : 160; /* registers of a thread */
    static constexpr int Q_BYTES = BOXES * ROWS * 128, KV_BYTES = BOXES * KEYS * 128;
    static constexpr int SHARED = Q_STAGES * Q_BYTES + (K_STAGES + V_STAGES) * KV_BYTES + 1024;
    static_assert(SHARED <= 231 * 1024 - 256, "te: attention: the tiles exceed shared memory");
};
template <int D> struct te__attn_hopper_forward_shape;
template <> struct te__attn_hopper_forward_shape<64> : te__attn_hopper_shape<64, 128, 3, 2, 4, 3> {};
template <> struct te__attn_hopper_forward_shape<96> : te__attn_hopper_shape<96, 128, 2, 2, 3, 2> {};
template <> struct te__attn_hopper_forward_shape<128> : te__attn_hopper_shape<128, 128, 2, 2, 3, 2> {};
template <> struct te__attn_hopper_forward_shape<192> : te__attn_hopper_shape<192, 80, 2, 1, 3, 2> {};
template <> struct te__attn_hopper_forward_shape<256> : te__attn_hopper_shape<256, 64, 2, 1, 3, 2> {};

typedef struct te_attn_hopper {
    CUtensorMap q, kv;
    void *out;         /* [batch * seq, heads * D] */
    float *lse;        /* [batch, heads, seq], or null */
    uint32_t *tickets; /* tiles that were taken beyond each block's first; 0 before and after */
    int batch, seq;
    int rows, tiles;   /* tiles of queries in a sequence, and in all */
    int last;          /* of them the short ones, which come last */
    int together, together_last; /* heads that are worked on at a time: their K and V stay in the L2 */
    float scale;
} te_attn_hopper;

/* A tile of queries: its first one, and its head, counted over all sequences; -1: there is none. */
typedef struct te_attn_work { int query, head; } te_attn_work;

typedef struct te_attn_barriers {
    uint64_t q_full[2], q_empty[2], k_full[4], k_empty[4], v_full[4], v_empty[4];
    te_attn_work work[2];
} te_attn_barriers;

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- the warp that loads -------------------------------------------------------------------------------------------------- */

/* Tiles in the order in which blocks take them: some heads at a time, of these the longest rows first. Causal: what is short of all heads comes
 * last, so that all blocks end at about the same time. */
template <int HEADS, int ROWS, int CAUSAL> TE_FN te_attn_work te__attn_work_of(const te_attn_hopper *p, int tile) {
    if (tile >= p->tiles) return te_attn_work{0, -1};
    te_attn_work w;
    const int all = p->batch * HEADS, is_last = tile >= all * (p->rows - p->last);
    const int rows = is_last ? p->last : p->rows - p->last, together = is_last ? p->together_last : p->together;
    if (is_last) tile -= all * (p->rows - p->last);
    const int set = tile / (together * rows), first = set * together, in = tile - first * rows;
    const int heads = all - first < together ? all - first : together, row = in / heads, head = first + in - row * heads;
    w.query = (CAUSAL ? rows - 1 - row + (is_last ? 0 : p->last) : row) * ROWS, w.head = head;
    return w;
}

template <int STAGES> struct te__attn_loader {
    uint32_t full, empty, tiles; /* of the ring */
    te__attn_ring<STAGES> at;
};
template <class C, int STAGES> TE_FN void te__attn_bring(te__attn_loader<STAGES> &l, const CUtensorMap *from, int head, int y, int batch) {
    const uint32_t bar = l.full + 8 * l.at.stage, to = l.tiles + l.at.stage * C::KV_BYTES;
    te__barrier_wait(l.empty + 8 * l.at.stage, l.at.phase ^ 1);
    te__barrier_expect(bar, C::KV_BYTES);
    TE_UNROLL for (int b = 0; b < C::BOXES; b++) te__attn_load(to + b * C::KEYS * 128, from, 64 * b, head, y, batch, bar);
    te__attn_advance(l.at);
}

/* One thread brings all tiles, in the order in which they are used. */
template <class C, int HEADS, int KV_HEADS, int CAUSAL>
TE_FN void te__attn_forward_load(const te_attn_hopper *p, te_attn_barriers *bars, uint32_t q_tiles, uint32_t k_tiles, uint32_t v_tiles) {
    te__attn_loader<C::K_STAGES> k = {te__shared_address(bars->k_full), te__shared_address(bars->k_empty), k_tiles, {0, 0}};
    te__attn_loader<C::V_STAGES> v = {te__shared_address(bars->v_full), te__shared_address(bars->v_empty), v_tiles, {0, 0}};
    te__attn_ring<C::Q_STAGES> q = {0, 0};
#pragma unroll 1
    for (int tile = (int)blockIdx.x;;) {
        const te_attn_work w = te__attn_work_of<HEADS, C::ROWS, CAUSAL>(p, tile);
        const te__attn_tiles t = te__attn_tiles_of<CAUSAL, C::KEYS>(w.query, C::ROWS, p->seq);
        const uint32_t bar = te__shared_address(&bars->q_full[q.stage]), to = q_tiles + q.stage * C::Q_BYTES;
        const int batch = w.head / HEADS, head = w.head % HEADS, k_head = HEADS + head / (HEADS / KV_HEADS), v_head = k_head + KV_HEADS;
        if (w.head >= 0) te__attn_bring<C>(k, &p->kv, k_head, (t.end - 1) * C::KEYS, batch);
        te__barrier_wait(te__shared_address(&bars->q_empty[q.stage]), q.phase ^ 1);
        bars->work[q.stage] = w;
        if (w.head < 0) return te__barrier_arrive(bar);
        te__barrier_expect(bar, C::Q_BYTES);
        TE_UNROLL for (int g = 0; g < C::GROUPS; g++)
            TE_UNROLL for (int b = 0; b < C::BOXES; b++)
                te__attn_load(to + (g * C::BOXES + b) * 8192, &p->q, 64 * b, head, w.query + 64 * g, batch, bar);
        te__attn_advance(q);
#pragma unroll 1
        for (int j = t.end - 2; j >= t.first; j--) {
            te__attn_bring<C>(k, &p->kv, k_head, j * C::KEYS, batch);
            te__attn_bring<C>(v, &p->kv, v_head, (j + 1) * C::KEYS, batch);
        }
        te__attn_bring<C>(v, &p->kv, v_head, t.first * C::KEYS, batch);
        /* it wraps to 0 when each block has come for a tile in vain */
        tile = (int)(gridDim.x + (p->tickets ? atomicInc(p->tickets, (uint32_t)p->tiles - 1) : (uint32_t)tile));
    }
}

/* ---- a warpgroup's 64 rows --------------------------------------------------------------------------------------------------- */

/* What a thread holds: two rows of each, four lanes share a row. */
template <class C> struct te__attn_rows {
    float s[C::KEYS / 2], o[C::D / 2]; /* scores, then P before it is packed; sums of P V */
    uint32_t p[C::KEYS / 4];           /* P */
    float top[2], sum[2];              /* what is taken off the scores; this lane's share of the sums of P */
};
/* Where it stands in the rings. */
template <class C> struct te__attn_at {
    uint32_t k_full, k_empty, v_full, v_empty, k_tiles, v_tiles;
    te__attn_ring<C::K_STAGES> k;
    te__attn_ring<C::V_STAGES> v;
    int group, lane;
};
#define TE__ATTN_SUMS 4096.0f /* of a thread's P in a row of a tile, at most: f16 has it, and each of them */
#define TE__ATTN_TURN 1 /* the first of the named barriers by which warpgroups take turns */

/* Issue S of the tile of keys at hand and O += P V of the one before; S is there on return. k_there, v_there: 0: nothing has been brought, what the
 * product makes of it is not used. add: 0: O begins. */
template <te_dtype T, class C> TE_FN void te__attn_products(te__attn_rows<C> &r, te__attn_at<C> &a, uint64_t q, int k_there, int v_there, int add) {
    const int next = a.group + 1 == C::GROUPS ? 0 : a.group + 1;
    if (k_there) te__barrier_wait(a.k_full + 8 * a.k.stage, a.k.phase);
    if (C::TURNS) te__named_wait(TE__ATTN_TURN + a.group, 256);
    te__wgmma_touch(r.s), te__wgmma_touch(r.o), te__wgmma_touch(r.p);
    te__wgmma_fence();
    te__attn_product_ss<T, C::KEYS, C::D>(r.s, q, te__attn_tile_at(a.k_tiles + a.k.stage * C::KV_BYTES, C::KEYS));
    te__wgmma_commit();
    if (v_there) te__barrier_wait(a.v_full + 8 * a.v.stage, a.v.phase);
    te__wgmma_fence();
    te__attn_product_rs<T, C::KEYS, C::D>(r.o, r.p, te__attn_tile_at(a.v_tiles + a.v.stage * C::KV_BYTES, C::KEYS), add);
    te__wgmma_commit();
    if (C::TURNS) te__named_arrive(TE__ATTN_TURN + next, 256);
    te__wgmma_wait_1();
    te__wgmma_touch(r.s);
}
/* The tile of keys is not read any more; nor is Q, if it was the last. */
template <class C> TE_FN void te__attn_keys_free(te__attn_at<C> &a, int last, uint32_t q_empty) {
    __syncwarp();
    if (a.lane == 0) te__barrier_arrive(a.k_empty + 8 * a.k.stage);
    if (a.lane == 0 && last) te__barrier_arrive(q_empty);
    te__attn_advance(a.k);
}
/* O is there. */
template <class C> TE_FN void te__attn_products_wait(te__attn_rows<C> &r, te__attn_at<C> &a, int v_there) {
    te__wgmma_wait_0();
    te__wgmma_touch(r.o), te__wgmma_touch(r.p);
    if (v_there) {
        if (a.lane == 0) te__barrier_arrive(a.v_empty + 8 * a.v.stage);
        te__attn_advance(a.v);
    }
}

/* query: of this thread's upper row; key: of its first column. */
template <class C, int CAUSAL> TE_FN void te__attn_hide(te__attn_rows<C> &r, int query, int key, int seq) {
    TE_UNROLL for (int i = 0; i < C::KEYS / 2; i++)
        if (!te__attn_sees<CAUSAL>(query + i / 2 % 2 * 8, key + i / 4 * 8 + i % 2, seq)) r.s[i] = -INFINITY;
}
/* The largest score of row e. */
template <class C> TE_FN float te__attn_top(const te__attn_rows<C> &r, int e) {
    float v[2] = {r.s[2 * e], r.s[2 * e + 1]};
    TE_UNROLL for (int j = 1; j < C::KEYS / 8; j++) v[0] = fmaxf(v[0], r.s[4 * j + 2 * e]), v[1] = fmaxf(v[1], r.s[4 * j + 2 * e + 1]);
    v[0] = fmaxf(v[0], v[1]);
    v[0] = fmaxf(v[0], __shfl_xor_sync(~0u, v[0], 1));
    return fmaxf(v[0], __shfl_xor_sync(~0u, v[0], 2));
}
/* s becomes P, not yet packed; returns its sum. c: the scale, in powers of two. */
template <class C> TE_FN float te__attn_exp(te__attn_rows<C> &r, int e, float top, float c) {
    const float off = top * c;
    float sum[2] = {0, 0};
    TE_UNROLL for (int j = 0; j < C::KEYS / 8; j++)
        TE_UNROLL for (int i = 0; i < 2; i++) sum[i] += r.s[4 * j + 2 * e + i] = te_exp2(r.s[4 * j + 2 * e + i] * c - off);
    return sum[0] + sum[1];
}
template <te_dtype T, class C> TE_FN void te__attn_pack(te__attn_rows<C> &r) {
    TE_UNROLL for (int i = 0; i < C::KEYS / 4; i++) r.p[i] = te_pair_of_floats(r.s[2 * i], r.s[2 * i + 1], T);
}

/* S of this warp once more, by mma.sync: q and k are addresses in shared memory. */
template <te_dtype T, class C> TE_FN void te__attn_scores_again(te__attn_rows<C> &r, uint32_t q, uint32_t k, int warp, int lane) {
    asm volatile("" : "+r"(lane)); /* found again rather than kept: there are no registers for it */
    const int a_row = warp * 16 + lane % 16, b_row = lane / 16 * 8 + lane % 8;
    TE_UNROLL for (int i = 0; i < C::KEYS / 2; i++) r.s[i] = 0;
#pragma unroll 1
    for (int d = 0; d < C::D; d += 16) {
        const int piece = d % 64 / 8;
        uint32_t x[4], y[4];
        te__attn_ldmatrix(x, q + d / 64 * 8192 + a_row * 128 + (((piece + lane / 16) ^ (a_row % 8)) << 4));
        TE_UNROLL for (int j = 0; j < C::KEYS / 16; j++) {
            te__attn_ldmatrix(y, k + d / 64 * (C::KEYS * 128) + (16 * j + b_row) * 128 + (((piece + lane / 8 % 2) ^ (b_row % 8)) << 4));
            te__mma(r.s + 8 * j, x, y[0], y[1], T), te__mma(r.s + 8 * j + 4, x, y[2], y[3], T);
        }
    }
}
/* What a step needs to know beside r and a. q: the address of this warpgroup's tile of Q, warp: in it, query and key: of this thread's upper row and first
 * column, c: the scale, in powers of two. */
struct te__attn_step_at {
    uint32_t q, q_empty;
    int warp, query, seq;
    float c;
};
/* The sums of P have outgrown SUMS: take off what the maxima are now. */
template <te_dtype T, class C, int CAUSAL, int HIDES>
TE_FN void te__attn_raise(te__attn_rows<C> &r, const te__attn_at<C> &a, const te__attn_step_at &at, int key, float add[2]) {
    float shrink[2];
    te__attn_scores_again<T, C>(r, at.q, a.k_tiles + a.k.stage * C::KV_BYTES, at.warp, a.lane);
    if (HIDES) te__attn_hide<C, CAUSAL>(r, at.query, key, at.seq);
    TE_UNROLL for (int e = 0; e < 2; e++) {
        const float old = r.top[e], top = fmaxf(old, te__attn_top(r, e));
        shrink[e] = top == old ? 1.0f : te_exp2((old - top) * at.c);
        add[e] = te__attn_exp(r, e, HIDES && top == -INFINITY ? 0.0f : top, at.c), r.top[e] = top, r.sum[e] *= shrink[e];
    }
    TE_UNROLL for (int i = 0; i < C::D / 2; i++) r.o[i] *= shrink[i / 2 % 2];
    te__attn_pack<T>(r);
}
/* A tile of keys that is not the first one. HIDES: some rows may not see all of its keys. last: Q is not needed after it. */
template <te_dtype T, class C, int CAUSAL, int HIDES>
TE_FN void te__attn_step(te__attn_rows<C> &r, te__attn_at<C> &a, const te__attn_step_at &at, int add, int key, int last) {
    te__attn_products<T, C>(r, a, te__attn_tile_at(at.q, 64), 1, 1, add);
    if (HIDES) te__attn_hide<C, CAUSAL>(r, at.query, key, at.seq);
    float sum[2];
    TE_UNROLL for (int e = 0; e < 2; e++) sum[e] = te__attn_exp(r, e, r.top[e], at.c);
    te__attn_products_wait(r, a, 1);
    te__attn_pack<T>(r);
    if (__any_sync(~0u, !(sum[0] <= TE__ATTN_SUMS && sum[1] <= TE__ATTN_SUMS))) te__attn_raise<T, C, CAUSAL, HIDES>(r, a, at, key, sum);
    te__attn_keys_free(a, last, at.q_empty);
    r.sum[0] += sum[0], r.sum[1] += sum[1];
}

/* Words w[4] of each of four lanes become those of a 4 x 4 matrix's transpose. */
TE_FN void te__attn_transpose(uint32_t w[4], int lane) {
    TE_UNROLL for (int step = 1; step < 4; step *= 2)
        TE_UNROLL for (int i = 0; i < 4; i++) {
            if (i & step) continue;
            const uint32_t give = lane & step ? w[i] : w[i + step], got = __shfl_xor_sync(~0u, give, step);
            if (lane & step) w[i] = got;
            else w[i + step] = got;
        }
}
/* Divide O by the sums and store it, 16 bytes a lane, 64 a row at a time; and lse. */
template <te_dtype T, class C, int HEADS>
TE_FN void te__attn_finish(const te_attn_hopper *p, const te__attn_rows<C> &r, const te_attn_work &w, int query, int lane) {
    TE_UNROLL for (int e = 0; e < 2; e++) {
        float sum = r.sum[e] + __shfl_xor_sync(~0u, r.sum[e], 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const float inverse = sum > 0 ? te_reciprocal(sum) : 0.0f;
        const int row = query + 8 * e;
        uint16_t *to = (uint16_t *)p->out + (((int64_t)(w.head / HEADS) * p->seq + row) * HEADS + w.head % HEADS) * C::D + lane % 4 * 8;
        TE_UNROLL for (int j = 0; j < C::D / 8; j += 4) {
            uint32_t out[4];
            TE_UNROLL for (int i = 0; i < 4; i++) out[i] = te_pair_of_floats(r.o[4 * (j + i) + 2 * e] * inverse, r.o[4 * (j + i) + 2 * e + 1] * inverse, T);
            te__attn_transpose(out, lane);
            if (row < p->seq) *(uint4 *)(to + 8 * j) = make_uint4(out[0], out[1], out[2], out[3]);
        }
        if (p->lse && lane % 4 == 0 && row < p->seq) p->lse[(int64_t)w.head * p->seq + row] = r.top[e] * p->scale + logf(sum);
    }
}

template <te_dtype T, class C, int HEADS, int CAUSAL>
TE_FN void te__attn_forward_multiply(const te_attn_hopper *p, te_attn_barriers *bars, uint32_t q_tiles, uint32_t k_tiles, uint32_t v_tiles) {
    /* whether a tile of keys that is not the first may be hidden in part */
    constexpr int HIDES = CAUSAL && (C::ROWS > C::KEYS || C::KEYS % C::ROWS);
    const int lane = (int)threadIdx.x % 32, group = __shfl_sync(~0u, (int)threadIdx.x / 128 - 1, 0); /* the same in all lanes, for the compiler */
    const int row = group * 64 + (int)threadIdx.x / 32 % 4 * 16 + lane / 4, column = lane % 4 * 2;
    const float c = p->scale * 1.4426950408889634f;
    te__attn_rows<C> r;
    te__attn_at<C> a = {te__shared_address(bars->k_full), te__shared_address(bars->k_empty), te__shared_address(bars->v_full), te__shared_address(bars->v_empty),
                        k_tiles, v_tiles, {0, 0}, {0, 0}, group, lane};
    te__attn_ring<C::Q_STAGES> q = {0, 0};
    te_attn_work w = {0, -1}, next;
    TE_UNROLL for (int i = 0; i < C::KEYS / 4; i++) r.p[i] = 0;
    if (C::TURNS && group == C::GROUPS - 1) te__named_arrive(TE__ATTN_TURN, 256);
    for (int add = 0;;) {
        te__barrier_wait(te__shared_address(&bars->q_full[q.stage]), q.phase);
        next = bars->work[q.stage];
        const te__attn_step_at step = {q_tiles + q.stage * C::Q_BYTES + group * C::BOXES * 8192, te__shared_address(&bars->q_empty[q.stage]),
                                       (int)threadIdx.x / 32 % 4, next.query + row, p->seq, c};
        const te__attn_tiles t = te__attn_tiles_of<CAUSAL, C::KEYS>(next.query, C::ROWS, p->seq);
        const int clear = te__attn_tiles_of<CAUSAL, C::KEYS>(next.query + group * 64, 64, p->seq).clear;
        /* the last tile of keys comes first, together with the last product of the queries before */
        float top[2], sum[2];
        te__attn_products<T, C>(r, a, te__attn_tile_at(step.q, 64), next.head >= 0, w.head >= 0, add);
        if (next.head >= 0) te__attn_keys_free(a, t.end - 1 == t.first, step.q_empty);
        if (t.end > clear) te__attn_hide<C, CAUSAL>(r, step.query, (t.end - 1) * C::KEYS + column, p->seq);
        TE_UNROLL for (int e = 0; e < 2; e++) top[e] = te__attn_top(r, e), sum[e] = te__attn_exp(r, e, top[e] == -INFINITY ? 0.0f : top[e], c);
        te__attn_products_wait(r, a, w.head >= 0);
        if (w.head >= 0) te__attn_finish<T, C, HEADS>(p, r, w, w.query + row, lane);
        if (next.head < 0) break;
        TE_UNROLL for (int e = 0; e < 2; e++) r.top[e] = top[e], r.sum[e] = sum[e];
        te__attn_pack<T>(r);
        w = next, add = 0;
        int j = t.end - 2;
        if (HIDES)
#pragma unroll 1
            for (; j >= te_max(clear, t.first); j--, add = 1) te__attn_step<T, C, CAUSAL, 1>(r, a, step, add, j * C::KEYS + column, j == t.first);
#pragma unroll 1
        for (; j >= t.first; j--, add = 1) te__attn_step<T, C, CAUSAL, 0>(r, a, step, add, 0, j == t.first);
        te__attn_advance(q);
    }
}

template <te_dtype T, class C, int HEADS, int KV_HEADS, int CAUSAL> TE_FN void te__attn_forward_body(const te_attn_hopper *p, te_attn_barriers *bars) {
    const uint32_t q_tiles = (te__shared_address(te__attention_shared) + 1023) & ~1023u, k_tiles = q_tiles + C::Q_STAGES * C::Q_BYTES;
    const uint32_t v_tiles = k_tiles + C::K_STAGES * C::KV_BYTES;
    if (threadIdx.x == 0) {
        const int warps = 4 * C::GROUPS;
        TE_UNROLL for (int s = 0; s < C::Q_STAGES; s++)
            te__barrier_init(te__shared_address(&bars->q_full[s]), 1), te__barrier_init(te__shared_address(&bars->q_empty[s]), warps);
        TE_UNROLL for (int s = 0; s < C::K_STAGES; s++)
            te__barrier_init(te__shared_address(&bars->k_full[s]), 1), te__barrier_init(te__shared_address(&bars->k_empty[s]), warps);
        TE_UNROLL for (int s = 0; s < C::V_STAGES; s++)
            te__barrier_init(te__shared_address(&bars->v_full[s]), 1), te__barrier_init(te__shared_address(&bars->v_empty[s]), warps);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    te_kernel_begin();
    if (threadIdx.x < 128) {
        te__registers_less<C::LOADS>();
        if (threadIdx.x == 0) te__attn_forward_load<C, HEADS, KV_HEADS, CAUSAL>(p, bars, q_tiles, k_tiles, v_tiles);
    } else {
        te__registers_more<C::MULTIPLIES>();
        te__attn_forward_multiply<T, C, HEADS, CAUSAL>(p, bars, q_tiles, k_tiles, v_tiles);
    }
}
#else
template <te_dtype T, class C, int HEADS, int KV_HEADS, int CAUSAL> TE_FN void te__attn_forward_body(const te_attn_hopper *, te_attn_barriers *) {}
#endif

/* ---- the host's side ------------------------------------------------------------------------------------------------------ */

#ifndef TE__ATTN_L2
#define TE__ATTN_L2 (8 << 20)
#endif
// /* bytes of K and V that are to stay in the L2 */

/* Launch `kernel`, made of C. */
template <te_dtype T, class C, int HEADS, int KV_HEADS, int CAUSAL>
TE_API te_status te__attn_forward_launch(te_context *ctx, const void *kernel, te__encode_fn encode, const te_attention_args *a, const char *name) {
    te_attn_hopper p;
    memset(&p, 0, sizeof p);
    TE_TRY(te__attn_map(&p.q, encode, a->qkv, C::D, HEADS + 2 * KV_HEADS, a->seq, a->batch, 64, T, ctx));
    TE_TRY(te__attn_map(&p.kv, encode, a->qkv, C::D, HEADS + 2 * KV_HEADS, a->seq, a->batch, C::KEYS, T, ctx));
    p.out = a->out, p.lse = a->lse, p.tickets = ctx->tickets, p.batch = a->batch, p.seq = a->seq, p.scale = a->scale;
    p.rows = (int)te_ceil_div(a->seq, C::ROWS), p.tiles = a->batch * HEADS * p.rows;
    p.together = (int)te_max(1, TE__ATTN_L2 / ((int64_t)a->seq * C::D * 4)) * (HEADS / KV_HEADS);
#ifdef X_TICKETS
    if (!X_TICKETS) p.tickets = 0;
#endif
    if (!CAUSAL) p.together = HEADS / KV_HEADS;
    p.last = CAUSAL ? p.rows / 4 : 0, p.together_last = 16 * p.together;
    return te__cuda_launch(ctx, kernel, te_grid_of(te_min(ctx->processors, p.tiles), 1), C::THREADS, C::SHARED, 1, &p, sizeof p, name);
}

/* What TE_ATTENTION_FORWARD makes a kernel of: EXISTS is 0 where there is none for the dtype and head_dim. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, int CAUSAL, bool = T != TE_f32 && (D == 64 || D == 96 || D == 128 || D == 192 || D == 256)>
struct te__attn_hopper_forward : te__attn_hopper_forward_shape<D> {
    typedef te__attn_hopper_forward_shape<D> shape;
    static constexpr int EXISTS = 1;
    static __device__ __forceinline__ void body(const te_attn_hopper *p) {
        __shared__ te_attn_barriers bars;
        te__attn_forward_body<T, shape, HEADS, KV_HEADS, CAUSAL>(p, &bars);
    }
    static te_status launch(te_context *ctx, const void *kernel, te__encode_fn encode, const te_attention_args *a, const char *name) {
        return te__attn_forward_launch<T, shape, HEADS, KV_HEADS, CAUSAL>(ctx, kernel, encode, a, name);
    }
};
template <te_dtype T, int HEADS, int KV_HEADS, int D, int CAUSAL> struct te__attn_hopper_forward<T, HEADS, KV_HEADS, D, CAUSAL, false> {
    static constexpr int EXISTS = 0, THREADS = 32, SHARED = 0;
    static __device__ __forceinline__ void body(const te_attn_hopper *) {}
    static te_status launch(te_context *, const void *, te__encode_fn, const te_attention_args *, const char *) { return TE_OK; }
};

#endif
