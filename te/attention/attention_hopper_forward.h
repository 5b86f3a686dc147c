/* attention_hopper_forward.h -- attention forward for compute capability 9.0 (sm_90a), bf16 and f16.
 *
 * A block takes tile after tile of queries, 64 rows for each of its two or three warpgroups. One more warp brings Q, K
 * and V by the copy engine (TMA), K and V in rings of stages. A warpgroup's step, for the next tile of keys:
 *
 *     issue S' = Q K'^T and, behind it, O += P V of the tile before: both run on the tensor cores
 *     when S' is there, P' = exp(S' - what is kept for the row), while P V runs (attention_hopper_rows.h)
 *     when O is there, pack P'
 *
 * While one warpgroup is busy with exponentials the tensor cores work for the others. The steps of a block never stop: the
 * first S of a tile of queries is issued together with the last P V of the tile before, and while O is divided by its
 * sums and stored, the tensor cores work for the other warpgroup. Issuing S ahead of P V in each warpgroup, and turns
 * between them, are from FlashAttention-3 (Shah et al. 2024).
 *
 * Floor: 4 * batch * heads * seq^2 * head_dim flops (half of it if causal) and 2 * batch * seq * (2 * heads +
 * 2 * kv_heads) * head_dim bytes: from some hundred tokens on arithmetic is the limit. Beside the products, seq^2
 * exponentials at 16 a clock and multiprocessor: at head_dim 64 they take as long as the products.
 *
 * Measured on an H200, bf16, in turns with cuDNN 9.19, on a chip that its power limits to 1.6 GHz (TFLOP/s, causal work
 * counted once; and cuDNN's time over ours):
 *     batch 4, seq 2048, 32 heads of 128: causal 548, 1.23; full 659, 1.12
 *     batch 2, seq 8192, 16 heads of 128: causal 689, 1.36; full 695, 1.23
 *     batch 1, seq 16384, 64 and 8 heads of 128, causal: 715, 1.35
 *     batch 2, causal: seq 8192, 32 heads of 64: 546, 1.30; seq 4096, 16 heads of 256: 658, 1.27
 * The tensor cores are busy for 86% of the cycles at head_dim 128 and 256, 65% at 64. With the maximum of each tile taken
 * and O rescaled when it grows, as is usual, it was 79% at 128. What did not pay: Q in registers (0 to 1% at 128), tiles of
 * 160 and 176 keys without a mask, turns at head_dim 128 and 256 (1 to 3% slower; at 64 3% faster).
 */
/* target: cuda */
#ifndef TE_ATTENTION_HOPPER_FORWARD_H
#define TE_ATTENTION_HOPPER_FORWARD_H

#include "attention_hopper_rows.h" /* softmax and the way out; attention_hopper.h: products, tiles */

/* KEYS: of a tile. GROUPS: warpgroups of 64 queries. TURNS: they take turns to issue their products. K has a stage more
 * than V: it is kept until P is found to be good. */
template <int D_, int KEYS_, int GROUPS_, int Q_STAGES_, int K_STAGES_, int V_STAGES_, int TURNS_> struct te__attn_hopper_shape {
    static constexpr int D = D_, KEYS = KEYS_, GROUPS = GROUPS_, TURNS = TURNS_;
    static constexpr int Q_STAGES = Q_STAGES_, K_STAGES = K_STAGES_, V_STAGES = V_STAGES_;
    static constexpr int ROWS = 64 * GROUPS, THREADS = 128 * (GROUPS + 1), BOXES = (D + 63) / 64;
    /* registers of a thread that loads, and of one that multiplies: no more than the block was launched with */
    static constexpr int LOADS = GROUPS == 2 ? 40 : 32, MULTIPLIES = GROUPS == 2 ? 232 : 160;
    static constexpr int Q_PART = BOXES * 64 * 128; /* bytes of a warpgroup's tile of Q */
    static constexpr int Q_BYTES = GROUPS * Q_PART, KV_BYTES = BOXES * KEYS * 128;
    static constexpr int SHARED = Q_STAGES * Q_BYTES + (K_STAGES + V_STAGES) * KV_BYTES + 1024;
    static_assert(SHARED <= 227 * 1024 - 512, "te: attention: the tiles exceed shared memory");
};
template <int D> struct te__attn_hopper_forward_shape;
template <> struct te__attn_hopper_forward_shape<64> : te__attn_hopper_shape<64, 128, 3, 2, 4, 3, 1> {};
template <> struct te__attn_hopper_forward_shape<96> : te__attn_hopper_shape<96, 128, 2, 2, 3, 2, 0> {};
template <> struct te__attn_hopper_forward_shape<128> : te__attn_hopper_shape<128, 128, 2, 2, 3, 2, 0> {};
template <> struct te__attn_hopper_forward_shape<192> : te__attn_hopper_shape<192, 80, 2, 1, 3, 2, 0> {};
template <> struct te__attn_hopper_forward_shape<256> : te__attn_hopper_shape<256, 64, 2, 1, 3, 2, 0> {};

typedef struct te_attn_hopper {
    CUtensorMap q, kv;
    void *out;                     /* [batch * seq, heads * D] */
    float *lse;                    /* [batch, heads, seq], or null */
    uint32_t *tickets;             /* tiles that were taken after each block's first; 0 before and after. Null: none */
    int heads, seq;                /* heads: of all sequences */
    int tiles, rows, last;         /* tiles of queries: in all, in a sequence, and those of them that come last */
    int together, together_last;   /* heads that are worked on at a time, so that their K and V stay in the L2 */
    float scale;
} te_attn_hopper;

/* A tile of queries: the first of them and their head, counted over all sequences; -1: there are no more. */
typedef struct te_attn_work { int query, head; } te_attn_work;

typedef struct te_attn_barriers {
    uint64_t q_full[2], q_empty[2], k_full[4], k_empty[4], v_full[4], v_empty[4];
    te_attn_work work[2]; /* what the Q of a stage is */
} te_attn_barriers;

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- the warp that loads --------------------------------------------------------------------------------------- */

/* Tiles in the order in which blocks take them: some heads at a time, of these the longest rows first. Causal: the short
 * rows of all heads come last, so that all blocks end at about the same time. */
template <int ROWS, int CAUSAL> TE_FN te_attn_work te__attn_work_of(const te_attn_hopper *p, int tile) {
    te_attn_work w = {0, -1};
    if (tile >= p->tiles) return w;
    const int early = p->heads * (p->rows - p->last), is_last = tile >= early, at = is_last ? tile - early : tile;
    const int rows = is_last ? p->last : p->rows - p->last, together = is_last ? p->together_last : p->together;
    const int first = at / (together * rows) * together, in = at - first * rows;
    const int heads = p->heads - first < together ? p->heads - first : together, row = in / heads;
    w.query = (CAUSAL ? (is_last ? p->last : p->rows) - 1 - row : row) * ROWS, w.head = first + in - row * heads;
    return w;
}

/* K or V: their barriers, stages and place. */
template <int STAGES> struct te__attn_loader {
    uint32_t full, empty, tiles;
    te__attn_ring<STAGES> at;
};
template <class C, int STAGES>
TE_FN void te__attn_bring(te__attn_loader<STAGES> &l, const CUtensorMap *from, int head, int key, int batch) {
    const uint32_t bar = l.full + 8 * l.at.stage, to = l.tiles + l.at.stage * C::KV_BYTES;
    te__barrier_wait(l.empty + 8 * l.at.stage, l.at.phase ^ 1);
    te__barrier_expect(bar, C::KV_BYTES);
    TE_UNROLL for (int b = 0; b < C::BOXES; b++) te__attn_load(to + b * C::KEYS * 128, from, 64 * b, head, key, batch, bar);
    te__attn_advance(l.at);
}

/* One thread brings all tiles, in the order in which they are used: keys from the last that a query sees to the first. */
template <class C, int HEADS, int KV_HEADS, int CAUSAL>
TE_FN void te__attn_forward_load(const te_attn_hopper *p, te_attn_barriers *bars, uint32_t q_tiles, uint32_t k_tiles, uint32_t v_tiles) {
    te__attn_loader<C::K_STAGES> k = {te__shared_address(bars->k_full), te__shared_address(bars->k_empty), k_tiles, {0, 0}};
    te__attn_loader<C::V_STAGES> v = {te__shared_address(bars->v_full), te__shared_address(bars->v_empty), v_tiles, {0, 0}};
    te__attn_ring<C::Q_STAGES> q = {0, 0};
#pragma unroll 1
    for (int tile = (int)blockIdx.x;;) {
        const te_attn_work w = te__attn_work_of<C::ROWS, CAUSAL>(p, tile);
        const te__attn_tiles t = te__attn_tiles_of<CAUSAL, C::KEYS>(w.query, C::ROWS, p->seq);
        const uint32_t bar = te__shared_address(&bars->q_full[q.stage]), to = q_tiles + q.stage * C::Q_BYTES;
        const int batch = w.head / HEADS, head = w.head % HEADS;
        const int k_head = HEADS + head / (HEADS / KV_HEADS), v_head = k_head + KV_HEADS;
        if (w.head >= 0) te__attn_bring<C>(k, &p->kv, k_head, (t.end - 1) * C::KEYS, batch);
        te__barrier_wait(te__shared_address(&bars->q_empty[q.stage]), q.phase ^ 1);
        bars->work[q.stage] = w;
        if (w.head < 0) return te__barrier_arrive(bar);
        te__barrier_expect(bar, C::Q_BYTES);
        TE_UNROLL for (int g = 0; g < C::GROUPS; g++)
            TE_UNROLL for (int b = 0; b < C::BOXES; b++)
                te__attn_load(to + g * C::Q_PART + b * 8192, &p->q, 64 * b, head, w.query + 64 * g, batch, bar);
        te__attn_advance(q);
#pragma unroll 1
        for (int j = t.end - 2; j >= t.first; j--) {
            te__attn_bring<C>(k, &p->kv, k_head, j * C::KEYS, batch);
            te__attn_bring<C>(v, &p->kv, v_head, (j + 1) * C::KEYS, batch);
        }
        te__attn_bring<C>(v, &p->kv, v_head, t.first * C::KEYS, batch);
        /* a ticket is taken now, not ahead, so that blocks end together; the count wraps to 0 with the last of them */
        tile = (int)gridDim.x + (p->tickets ? (int)atomicInc(p->tickets, (uint32_t)p->tiles - 1) : tile);
    }
}

/* ---- a warpgroup that multiplies ------------------------------------------------------------------------------- */

/* Where it stands. q: its tile of Q, and the barrier that says it is no longer read; query: of this thread's first row;
 * column: this thread's first one; c: the scale, in powers of two. */
template <class C> struct te__attn_place {
    uint32_t k_full, k_empty, v_full, v_empty, k_tiles, v_tiles, q, q_empty;
    te__attn_ring<C::K_STAGES> k;
    te__attn_ring<C::V_STAGES> v;
    int group, lane, column, query, seq;
    float c;
};
enum { TE__ATTN_TURN = 1 }; /* the first of the named barriers by which warpgroups take turns */

/* Issue S of the tile of keys at hand and O += P V of the one before; on return S is there. k_there, v_there: 0: nothing
 * was brought, and what comes of it is not used. add: 0: O begins. */
template <te_dtype T, class C>
TE_FN void te__attn_products(te__attn_rows<C> &r, const te__attn_place<C> &a, int k_there, int v_there, int add) {
    const uint64_t k = te__attn_tile_at(a.k_tiles + a.k.stage * C::KV_BYTES, C::KEYS);
    const uint64_t v = te__attn_tile_at(a.v_tiles + a.v.stage * C::KV_BYTES, C::KEYS);
    if (k_there) te__barrier_wait(a.k_full + 8 * a.k.stage, a.k.phase);
    if (C::TURNS) te__named_wait(TE__ATTN_TURN + a.group, 256);
    te__wgmma_touch(r.s), te__wgmma_touch(r.o), te__wgmma_touch(r.p);
    te__wgmma_fence();
    te__attn_product_ss<T, C::KEYS, C::D>(r.s, te__attn_tile_at(a.q, 64), k);
    te__wgmma_commit();
    if (v_there) te__barrier_wait(a.v_full + 8 * a.v.stage, a.v.phase);
    te__wgmma_fence();
    te__attn_product_rs<T, C::KEYS, C::D>(r.o, r.p, v, add);
    te__wgmma_commit();
    if (C::TURNS) te__named_arrive(TE__ATTN_TURN + (a.group + 1) % C::GROUPS, 256);
    te__wgmma_wait_1();
    te__wgmma_touch(r.s);
}
/* V is no longer read. */
template <class C> TE_FN void te__attn_values_free(te__attn_place<C> &a) {
    if (a.lane == 0) te__barrier_arrive(a.v_empty + 8 * a.v.stage);
    te__attn_advance(a.v);
}
/* O is there. */
template <class C> TE_FN void te__attn_products_wait(te__attn_rows<C> &r, te__attn_place<C> &a, int v_there) {
    te__wgmma_wait_0();
    te__wgmma_touch(r.o), te__wgmma_touch(r.p);
    if (v_there) te__attn_values_free(a);
}
/* K is no longer read; nor is Q, if this was its last tile of keys. */
template <class C> TE_FN void te__attn_keys_free(te__attn_place<C> &a, int last) {
    __syncwarp();
    if (a.lane == 0) te__barrier_arrive(a.k_empty + 8 * a.k.stage);
    if (a.lane == 0 && last) te__barrier_arrive(a.q_empty);
    te__attn_advance(a.k);
}

/* The tile of keys at hand: none of these queries sees any of it. Its turn is over, and its V comes up later. */
template <class C> TE_FN void te__attn_keys_skip(te__attn_place<C> &a) {
    te__barrier_wait(a.k_full + 8 * a.k.stage, a.k.phase);
    if (C::TURNS) te__named_wait(TE__ATTN_TURN + a.group, 256), te__named_arrive(TE__ATTN_TURN + (a.group + 1) % C::GROUPS, 256);
    te__attn_keys_free(a, 0);
}
template <class C> TE_FN void te__attn_values_skip(te__attn_place<C> &a) {
    te__barrier_wait(a.v_full + 8 * a.v.stage, a.v.phase);
    te__attn_values_free(a);
}
/* A tile of keys, from `key` on, that is not the first of these queries. HIDES: some of them may not see all of it. */
template <te_dtype T, class C, int CAUSAL, int HIDES>
TE_FN void te__attn_step(te__attn_rows<C> &r, te__attn_place<C> &a, int add, int key, int last) {
    float sum[2];
    te__attn_products<T>(r, a, 1, 1, add);
    if (HIDES) te__attn_hide<C, CAUSAL>(r, a.query, key + a.column, a.seq);
    TE_UNROLL for (int e = 0; e < 2; e++) sum[e] = te__attn_exp(r, e, r.top[e], a.c);
    te__attn_products_wait(r, a, 1);
    te__attn_pack<T>(r);
    if (te__attn_outgrown<T>(sum)) {
        te__attn_scores_again<T>(r, a.q, a.k_tiles + a.k.stage * C::KV_BYTES);
        if (HIDES) te__attn_hide<C, CAUSAL>(r, a.query, key + a.column, a.seq);
        te__attn_raise<T>(r, a.c, sum);
    }
    te__attn_keys_free(a, last);
    r.sum[0] += sum[0], r.sum[1] += sum[1];
}

template <te_dtype T, class C, int HEADS, int CAUSAL>
TE_FN void te__attn_forward_multiply(const te_attn_hopper *p, te_attn_barriers *bars, uint32_t q_tiles, uint32_t k_tiles, uint32_t v_tiles) {
    /* whether a warpgroup's first tile of keys may not be the block's; whether tiles after it may be seen in part */
    constexpr int SKIPS = CAUSAL && (C::ROWS > C::KEYS || C::KEYS % C::ROWS), HIDES = CAUSAL && C::KEYS % 64;
    const int group = __shfl_sync(~0u, (int)threadIdx.x / 128 - 1, 0); /* so that the compiler sees that all lanes agree */
    const int lane = (int)threadIdx.x % 32, row = group * 64 + (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
    te__attn_rows<C> r;
    te__attn_place<C> a = {te__shared_address(bars->k_full), te__shared_address(bars->k_empty), te__shared_address(bars->v_full),
                           te__shared_address(bars->v_empty), k_tiles, v_tiles, 0, 0, {0, 0}, {0, 0}, group, lane, lane % 4 * 2, 0,
                           p->seq, p->scale * TE__ATTN_LOG2E};
    te__attn_ring<C::Q_STAGES> q = {0, 0};
    te_attn_work w = {0, -1};
    TE_UNROLL for (int i = 0; i < C::KEYS / 4; i++) r.p[i] = 0;
    if (C::TURNS && group == C::GROUPS - 1) te__named_arrive(TE__ATTN_TURN, 256);
    for (int add = 0;;) {
        te__barrier_wait(te__shared_address(&bars->q_full[q.stage]), q.phase);
        const te_attn_work next = bars->work[q.stage];
        const int more = next.head >= 0, have = w.head >= 0;
        const te__attn_tiles t = te__attn_tiles_of<CAUSAL, C::KEYS>(next.query + group * 64, 64, p->seq);
        const int skip = SKIPS && more ? te__attn_tiles_of<CAUSAL, C::KEYS>(next.query, C::ROWS, p->seq).end - t.end : 0;
        a.q = q_tiles + q.stage * C::Q_BYTES + group * C::Q_PART, a.q_empty = te__shared_address(&bars->q_empty[q.stage]);
        a.query = next.query + row;

        /* the first tile of keys, together with the last product of the queries before */
        float top[2], sum[2];
        if (SKIPS)
            for (int i = 0; i < skip; i++) te__attn_keys_skip(a);
        te__attn_products<T>(r, a, more, have, add);
        if (more) te__attn_keys_free(a, t.end - 1 == t.first);
        if (t.end > t.clear) te__attn_hide<C, CAUSAL>(r, a.query, (t.end - 1) * C::KEYS + a.column, p->seq);
        TE_UNROLL for (int e = 0; e < 2; e++) top[e] = te__attn_top(r, e), sum[e] = te__attn_exp_or_none(r, e, top[e], a.c);
        te__attn_products_wait(r, a, have);
        if (SKIPS)
            for (int i = 0; i < skip; i++) te__attn_values_skip(a);
        if (have) {
            uint16_t *out = (uint16_t *)p->out + ((int64_t)(w.head / HEADS) * p->seq * HEADS + w.head % HEADS) * C::D;
            te__attn_finish<T>(r, out, HEADS * C::D, p->lse ? p->lse + (int64_t)w.head * p->seq : 0, w.query + row, p->seq, p->scale);
        }
        if (!more) break;
        TE_UNROLL for (int e = 0; e < 2; e++) r.top[e] = top[e], r.sum[e] = sum[e];
        te__attn_pack<T>(r);

        int j = t.end - 2;
        w = next, add = 0;
        if (HIDES)
#pragma unroll 1
            for (; j >= te_max(t.clear, t.first); j--, add = 1) te__attn_step<T, C, CAUSAL, 1>(r, a, add, j * C::KEYS, j == t.first);
#pragma unroll 1
        for (; j >= t.first; j--, add = 1) te__attn_step<T, C, CAUSAL, 0>(r, a, add, j * C::KEYS, j == t.first);
        te__attn_advance(q);
    }
}

template <te_dtype T, class C, int HEADS, int KV_HEADS, int CAUSAL>
TE_FN void te__attn_forward_body(const te_attn_hopper *p, te_attn_barriers *bars) {
    const uint32_t q_tiles = (te__shared_address(te__attention_shared) + 1023) & ~1023u; /* where the swizzle begins */
    const uint32_t k_tiles = q_tiles + C::Q_STAGES * C::Q_BYTES, v_tiles = k_tiles + C::K_STAGES * C::KV_BYTES;
    if (threadIdx.x == 0) {
        const uint64_t *full[3] = {bars->q_full, bars->k_full, bars->v_full}, *empty[3] = {bars->q_empty, bars->k_empty, bars->v_empty};
        const int stages[3] = {C::Q_STAGES, C::K_STAGES, C::V_STAGES}, warps = 4 * C::GROUPS;
        TE_UNROLL for (int ring = 0; ring < 3; ring++)
            TE_UNROLL for (int s = 0; s < stages[ring]; s++)
                te__barrier_init(te__shared_address(full[ring] + s), 1), te__barrier_init(te__shared_address(empty[ring] + s), warps);
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
template <te_dtype T, class C, int HEADS, int KV_HEADS, int CAUSAL>
TE_FN void te__attn_forward_body(const te_attn_hopper *, te_attn_barriers *) {}
#endif

/* ---- the host's side ------------------------------------------------------------------------------------------- */

/* Launch `kernel`, made of C. K and V of the heads that are worked on together take 8 MB of the L2, or are those of one
 * head; 4 to 30 MB were within 2% of each other. */
template <te_dtype T, class C, int HEADS, int KV_HEADS, int CAUSAL>
TE_API te_status te__attn_forward_launch(te_context *ctx, const void *kernel, te__encode_fn encode, const te_attention_args *a, const char *name) {
    const int64_t head_bytes = (int64_t)a->seq * C::D * 4, l2 = 8 << 20;
    te_attn_hopper p;
    memset(&p, 0, sizeof p);
    TE_TRY(te__attn_map(&p.q, encode, a->qkv, C::D, HEADS + 2 * KV_HEADS, a->seq, a->batch, 64, T, ctx));
    TE_TRY(te__attn_map(&p.kv, encode, a->qkv, C::D, HEADS + 2 * KV_HEADS, a->seq, a->batch, C::KEYS, T, ctx));
    p.out = a->out, p.lse = a->lse, p.tickets = ctx->tickets, p.heads = a->batch * HEADS, p.seq = a->seq, p.scale = a->scale;
    p.rows = (int)te_ceil_div(a->seq, C::ROWS), p.tiles = p.heads * p.rows;
    p.together = (CAUSAL ? (int)te_max(1, te_min(l2 / head_bytes, a->batch * KV_HEADS)) : 1) * (HEADS / KV_HEADS);
    /* the last quarter of the rows reads a quarter of the keys, and ends with tiles of all lengths if it has many heads */
    p.last = CAUSAL ? p.rows / 4 : 0, p.together_last = (int)te_min(16 * (int64_t)p.together, p.heads);
    return te__cuda_launch(ctx, kernel, te_grid_of(te_min(ctx->processors, p.tiles), 1), C::THREADS, C::SHARED, 1, &p, sizeof p, name);
}

/* What TE_ATTENTION_FORWARD makes a kernel of. EXISTS: 0: there is none for this dtype and head_dim. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, int CAUSAL,
          bool = T != TE_f32 && (D == 64 || D == 96 || D == 128 || D == 192 || D == 256)>
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
template <te_dtype T, int HEADS, int KV_HEADS, int D, int CAUSAL>
struct te__attn_hopper_forward<T, HEADS, KV_HEADS, D, CAUSAL, false> {
    static constexpr int EXISTS = 0, THREADS = 32, SHARED = 0;
    static __device__ __forceinline__ void body(const te_attn_hopper *) {}
    static te_status launch(te_context *, const void *, te__encode_fn, const te_attention_args *, const char *) { return TE_OK; }
};

#endif
