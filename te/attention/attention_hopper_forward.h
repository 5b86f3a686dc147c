/* attention_hopper_forward.h -- attention forward for compute capability 9.0 (sm_90a), bf16 and f16.
 *
 * A block takes tile after tile of queries, 64 rows for each of its two or three warpgroups. One more warp brings Q, K
 * and V by the copy engine (TMA), K and V in rings of stages. A warpgroup's step, for the next tile of keys:
 *
 *     issue S' = Q K'^T and, behind it, O += P V of the tile before: both run on the tensor cores
 *     when S' is there, P' = exp(S' - what is kept for the row), while P V runs (attention_hopper_rows.h)
 *     when O is there, pack P'
 *
 * While one warpgroup is busy with exponentials the tensor cores work for the others. The steps of a block never stop:
 * the first S of a tile of queries is issued together with the last P V of the tile before, and while O is divided by
 * its sums and stored, the tensor cores work for the other warpgroups. Issuing S ahead of P V in each warpgroup, and
 * turns between them, are from FlashAttention-3 (Shah et al. 2024).
 *
 * With a window the tiles of keys are those of the window. A warpgroup walks those of its own 64 queries, and skips one
 * of the block's at either end at most. Only where a window cuts a tile are scores hidden. With keys of their own
 * number (cross) each query has to see one. Options change S and P while P V of the tile before runs.
 *
 * Floor: 4 * batch * heads * seq^2 * head_dim flops (half of it if causal) and 2 * batch * seq * (2 * heads +
 * 2 * kv_heads) * head_dim bytes: from some hundred tokens on arithmetic is the limit. Where a head of v has another
 * size, V, 2 * head_dim of both is head_dim + V. Beside the products, seq^2 exponentials at 16 a clock and
 * multiprocessor: at head_dim 64 they take as long as the products.
 *
 * Measured on an H200, bf16, in turns with cuDNN 9.19, on a warm chip that its power limits to some 1.6 GHz: TFLOP/s,
 * causal work counted once; cuDNN's time over ours; and, in another run, cuDNN's time over FlashAttention 4's:
 *     batch 4, seq  2048, 32 heads of 128, causal   584  1.22  1.08      full   722  1.09  1.02
 *     batch 2, seq  8192, 16 heads of 128, causal   688  1.35  1.20      full   718  1.20  1.11
 *     batch 1, seq 16384, 64 of 128, 8 of K, causal 738  1.32  1.18
 *     batch 2, seq  8192, 32 heads of  64, causal   575  1.37  1.19
 *     batch 2, seq  4096, 16 heads of 256, causal   686  1.33  1.24
 *     batch 32, seq 1024, 12 heads of  64, causal   399  1.21
 * On an H100, one run: batch 2, seq 4096, 32 heads of 192 with values of 128, causal 695 (cuDNN 516), full 772 (617).
 * The tensor cores are busy for 86% of the cycles at head_dim 128. With the maximum of each tile taken, as is usual, it
 * was 79%, and 1.06 where there is 1.20 now. If scores grow so that every tile of keys outgrows the maxima of the one
 * before, it takes twice the time. What did not pay: Q in registers (0 to 1%), 160 and 176 keys in a tile, turns at
 * head_dim 128 (1% faster to 3% slower; at 64 and 96 they gain 3%).
 */
/* target: cuda */
#ifndef TE_ATTENTION_HOPPER_FORWARD_H
#define TE_ATTENTION_HOPPER_FORWARD_H

#include "attention_hopper_load.h" /* te__attn_forward_load */
#include "impl/attention_sm80_forward.h" /* te__attn_widths */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- a warpgroup that multiplies ------------------------------------------------------------------------------- */

/* Where it stands. q: its tile of Q, and the barrier that says it is no longer read; c: what a score counts, in powers
 * of two. */
template <class C> struct te__attn_place {
    uint32_t k_full, k_empty, v_full, v_empty, k_tiles, v_tiles, q, q_empty;
    te__attn_ring<C::K_STAGES> k;
    te__attn_ring<C::V_STAGES> v;
    int group, lane;
    float c;
};
/* Named barriers 1 to GROUPS: whose turn it is to issue products. */
template <class C> TE_FN void te__attn_turn_wait(const te__attn_place<C> &a) { te__named_wait(1 + a.group, 256); }
template <class C> TE_FN void te__attn_turn_pass(const te__attn_place<C> &a) {
    te__named_arrive(1 + (a.group + 1) % C::GROUPS, 256);
}

/* Issue S of the tile of keys at hand and O += P V of the one before; on return S is there. k_there, v_there: 0: none
 * was brought, and what comes of it is not used. add: 0: O begins. */
template <te_dtype T, class C>
TE_FN void te__attn_products(te__attn_rows<C> &r, const te__attn_place<C> &a, int k_there, int v_there, int add) {
    const uint64_t k = te__attn_tile_at(a.k_tiles + a.k.stage * C::K_BYTES, C::KEYS);
    const uint64_t v = te__attn_tile_at(a.v_tiles + a.v.stage * C::V_BYTES, C::KEYS);
    if (k_there) te__barrier_wait(a.k_full + 8 * a.k.stage, a.k.phase);
    if (C::TURNS) te__attn_turn_wait(a);
    te__wgmma_touch(r.s), te__wgmma_touch(r.o), te__wgmma_touch(r.p);
    te__wgmma_fence();
    te__attn_product_ss<T, C::KEYS, C::D>(r.s, te__attn_tile_at(a.q, 64), k);
    te__wgmma_commit();
    if (v_there) te__barrier_wait(a.v_full + 8 * a.v.stage, a.v.phase);
    te__wgmma_fence();
    te__attn_product_rs<T, C::KEYS, C::V>(r.o, r.p, v, add);
    te__wgmma_commit();
    if (C::TURNS) te__attn_turn_pass(a);
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
/* K is no longer read; nor is Q, if this was its last tile of keys, nor what it is: each lane has read that. */
template <class C> TE_FN void te__attn_keys_free(te__attn_place<C> &a, int last) {
    __syncwarp();
    if (a.lane == 0) te__barrier_arrive(a.k_empty + 8 * a.k.stage);
    if (last) te__barrier_arrive(a.q_empty);
    te__attn_advance(a.k);
}

/* None of these queries sees any of the tile of keys at hand: pass its turn on. Its V comes up one product later. */
template <class C> TE_FN void te__attn_keys_skip(te__attn_place<C> &a) {
    te__barrier_wait(a.k_full + 8 * a.k.stage, a.k.phase);
    if (C::TURNS) te__attn_turn_wait(a), te__attn_turn_pass(a);
    te__attn_keys_free(a, 0);
}
template <class C> TE_FN void te__attn_values_skip(te__attn_place<C> &a) {
    te__barrier_wait(a.v_full + 8 * a.v.stage, a.v.phase);
    te__attn_values_free(a);
}
/* A tile of keys that is not the first of these queries. cut: some of its keys, `key` the first, are hidden from some
 * of them, `query` the first. Without a window none are: queries and tiles of keys begin at multiples of 64. last: it
 * is the last one. */
template <te_dtype T, int HEADS, class F, class C>
TE_FN void te__attn_step(te__attn_rows<C> &r, te__attn_place<C> &a, const te_attn_hopper *p, te__attn_mask m, int cut,
                         int head, int query, int key, int add, int last) {
    float sum[2];
    te__attn_products<T>(r, a, 1, 1, add);
    te__attn_apply_softcap<F>(r, p->scale);
    te__attn_bias_rows<HEADS, F>(r, p->scale, head, query + m.shift, key);
    if (cut) te__attn_hide_outside(r, m, query, key);
    TE_UNROLL for (int e = 0; e < 2; e++) sum[e] = te__attn_exp(r, e, r.top[e], a.c);
    if (F::DROP && p->rng) te__attn_drop_rows<HEADS, F>(r, p, head, query, key);
    te__attn_products_wait(r, a, 1);
    te__attn_pack<T>(r);
    if (te__attn_outgrown<T>(sum)) {
        te__attn_scores_again<T>(r, a.q, a.k_tiles + a.k.stage * C::K_BYTES);
        te__attn_apply_softcap<F>(r, p->scale);
        te__attn_bias_rows<HEADS, F>(r, p->scale, head, query + m.shift, key);
        if (cut) te__attn_hide_outside(r, m, query, key);
        te__attn_raise<T, F>(r, a.c, sum);
        if (F::DROP && p->rng) te__attn_drop_rows<HEADS, F>(r, p, head, query, key);
        te__attn_pack<T>(r);
    }
    te__attn_keys_free(a, last);
    r.sum[0] += sum[0], r.sum[1] += sum[1];
}

template <te_dtype T, class C, int HEADS, class F>
TE_FN void te__attn_forward_multiply(const te_attn_hopper *p, te_attn_barriers *bars, const uint32_t tiles[3]) {
    const int group = __shfl_sync(~0u, (int)threadIdx.x / 128 - 1, 0); /* so the compiler sees that all lanes agree */
    const int lane = (int)threadIdx.x % 32, row = group * 64 + (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
    te__attn_rows<C> r;
    te__attn_place<C> a = {te__shared_address(bars->k_full), te__shared_address(bars->k_empty),
                           te__shared_address(bars->v_full), te__shared_address(bars->v_empty),
                           tiles[1], tiles[2], 0, 0, {0, 0}, {0, 0}, group, lane,
                           te__attn_score_unit<F>(p->scale) * TE__ATTN_LOG2E};
    te__attn_ring<C::Q_STAGES> q = {0, 0};
    te_attn_work w = {0, TE__ATTN_NO_MORE};
    te_sequence rows = {0, 0};
    TE_UNROLL for (int i = 0; i < C::KEYS / 4; i++) r.p[i] = 0;
    if (C::TURNS && group == C::GROUPS - 1) te__attn_turn_pass(a);
    for (int add = 0, behind = 0;;) { /* behind: a tile of keys of the queries before was skipped at their end */
        te__barrier_wait(te__shared_address(&bars->q_full[q.stage]), q.phase);
        const te_attn_work next = bars->work[q.stage];
        const int more = next.head >= 0, have = w.head >= 0;
        const te_sequence next_rows = te__attn_rows_of<F>(p, bars, q.stage);
        const te__attn_mask m = te__attn_forward_mask<F>(p, next_rows.count);
        const te__attn_range t = te__attn_tiles_of<C>(m, next.query + group * 64, 64);
        const int skip = more ? te__attn_tiles_of<C>(m, next.query, C::ROWS).end - t.end : 0;
        a.q = tiles[0] + q.stage * C::Q_BYTES + group * C::Q_PART;
        a.q_empty = te__shared_address(&bars->q_empty[q.stage]);

        /* the first tile of keys, together with the last product of the queries before */
        float top[2] = {0, 0}, sum[2] = {0, 0};
        if (skip) te__attn_keys_skip(a);
        te__attn_products<T>(r, a, more, have, add);
        if (more) te__attn_keys_free(a, t.end - 1 == t.first);
        const int tile = (t.end - 1) * C::KEYS, key = tile + lane % 4 * 2; /* the first key of the tile, of this lane */
        if (more) {
            te__attn_apply_softcap<F>(r, p->scale);
            te__attn_bias_rows<HEADS, F>(r, p->scale, next.head, next.query + m.shift + group * 64, tile);
            if (te__attn_needs_mask(t, t.end - 1, 1)) {
                if (te__attn_is_window<F>()) te__attn_hide_outside(r, m, next.query + group * 64, tile);
                else te__attn_apply_mask(r, m, next.query + row, key);
            }
            if (F::SINKS) te__attn_sink_rows<T, HEADS, F>(r, top, sum, p->sinks, next.head, p->scale, a.c);
            else TE_UNROLL for (int e = 0; e < 2; e++)
                    top[e] = te__attn_top(r, e), sum[e] = te__attn_exp(r, e, te__attn_kept<F>(top[e]), a.c);
            if (F::DROP && p->rng)
                te__attn_drop_rows<HEADS, F>(r, p, next.head, next.query + group * 64, tile);
        }
        te__attn_products_wait(r, a, have);
        if (behind) te__attn_values_skip(a);
        if (skip) te__attn_values_skip(a);
        if (have) {
            const int64_t first = F::VARLEN ? rows.first : (int64_t)(w.head / HEADS) * p->seq;
            const float *const scale = te__attn_out_scale<F>(p);
            void *const out = te__attn_out_at(p->out, (first * HEADS + w.head % HEADS) * C::V, scale);
            float *lse = p->lse ? p->lse + (int64_t)w.head * p->seq : 0;
            if (F::VARLEN && lse) lse = p->lse + (int64_t)(w.head % HEADS) * p->of.rows + first;
            te__attn_finish<T>(r, out, scale, HEADS * C::V, lse, w.query + row, F::VARLEN ? rows.count : p->seq,
                               te__attn_score_unit<F>(p->scale), F::DROP && p->rng ? F::FACTOR : 1.0f,
                               te__attn_amax_output<F>(p));
        }
        if (!more) break;
        TE_UNROLL for (int e = 0; e < 2; e++) r.top[e] = top[e], r.sum[e] = sum[e];
        te__attn_pack<T>(r);

        w = next, rows = next_rows, add = 0;
#pragma unroll 1
        for (int j = t.end - 2; j >= t.first; j--, add = 1) {
            const int cut = te__attn_is_window<F>() && te__attn_needs_mask(t, j, 1);
            te__attn_step<T, HEADS, F>(r, a, p, m, cut, w.head, w.query + group * 64, j * C::KEYS, add, j == t.first);
        }
        behind = F::LEFT >= 0 && t.first > te__attn_tiles_of<C>(m, w.query, C::ROWS).first;
        if (behind) te__attn_keys_skip(a);
        te__attn_advance(q);
    }
}

template <te_dtype T, class C, int HEADS, int KV_HEADS, class F>
TE_FN void te__attn_forward_body(const te_attn_hopper *p, te_attn_barriers *bars) {
    const uint32_t q_tiles = (te__shared_address(te__attention_shared) + 1023) & ~1023u; /* where the swizzle begins */
    const uint32_t k_tiles = q_tiles + C::Q_STAGES * C::Q_BYTES, v_tiles = k_tiles + C::K_STAGES * C::K_BYTES;
    const uint32_t tiles[3] = {q_tiles, k_tiles, v_tiles};
    if (threadIdx.x == 0) te__attn_barriers_begin<C>(bars);
    if (threadIdx.x == 32) te__tma_prefetch_descriptor(&p->q), te__tma_prefetch_descriptor(&p->kv);
    __syncthreads();
    te_kernel_begin();
    if (threadIdx.x < 128) {
        te__registers_less<C::LOADS>();
        if (threadIdx.x == 0) te__attn_forward_load<C, HEADS, KV_HEADS, F>(p, bars, tiles);
    } else {
        te__registers_more<C::MULTIPLIES>();
        te__attn_forward_multiply<T, C, HEADS, F>(p, bars, tiles);
    }
}
#else
template <te_dtype T, class C, int HEADS, int KV_HEADS, class F>
TE_FN void te__attn_forward_body(const te_attn_hopper *, te_attn_barriers *) {}
#endif

/* ---- the host's side ------------------------------------------------------------------------------------------- */

/* Launch `kernel`, made of C. K and V of the heads that are worked on together take 8 MB of the L2, or are those of one
 * head; 4 to 30 MB were within 2% of each other. */
template <te_dtype T, class C, int HEADS, int KV_HEADS, class F>
TE_API te_status te__attn_forward_launch(te_context *ctx, const void *kernel, te__tensor_map_encode_fn encode,
                                         const te_attention_args *a, const char *name) {
    typedef te__attn_widths<HEADS, KV_HEADS, C::D, F> widths;
    const int64_t l2 = 8 << 20, head_bytes = (int64_t)(F::CROSS ? a->kv_seq : a->seq) * (C::D + C::V) * 2;
    te_attn_hopper_value all;
    te_attn_hopper &p = all.common;
    memset(&all, 0, sizeof all);
    p.of = te__attn_sequences(a), p.slots = te_sequence_tiles(&p.of, C::ROWS);
    const int seq = F::VARLEN ? p.of.rows : a->seq, batch = F::VARLEN ? 1 : a->batch;
    const int k_heads = (F::CROSS ? 0 : HEADS) + KV_HEADS; /* up to the last one of K */
    const int heads = k_heads + (F::VALUE ? 0 : KV_HEADS), kv_batch = F::VARLEN ? 0 : batch;
    const uint16_t *kv = (const uint16_t *)(F::CROSS ? a->kv : a->qkv);
    p.kv_seq = F::CROSS ? a->kv_seq : seq;
    TE_TRY(te__attn_heads_map(&p.q, encode, a->qkv, C::D, F::CROSS ? HEADS : heads, widths::QKV, seq, batch, 64, T,
                              ctx));
    TE_TRY(te__attn_heads_map(&p.kv, encode, kv, C::D, heads, widths::KV, p.kv_seq, kv_batch, C::KEYS, T, ctx));
    if (F::VALUE)
        TE_TRY(te__attn_heads_map(&all.v, encode, kv + k_heads * C::D, C::V, KV_HEADS, widths::KV, p.kv_seq, kv_batch,
                                  C::KEYS, T, ctx));
    p.out = a->out, p.out_scale = a->out_scale, p.amax = a->amax, p.lse = a->lse, p.tickets = ctx->tickets;
    p.heads = a->batch * HEADS, p.seq = a->seq, p.scale = a->scale;
    p.rng = a->rng, p.id = a->id, p.whole = a->whole, p.sinks = a->sinks;
    p.rows = (int)te_ceil_div(a->seq, C::ROWS), p.tiles = F::VARLEN ? p.slots * HEADS : p.heads * p.rows;
    const int64_t groups = F::VARLEN ? KV_HEADS : (int64_t)a->batch * KV_HEADS;
    p.together = F::RIGHT == 0 ? (int)te_max(1, te_min(l2 / head_bytes, groups)) : 1;
    p.together *= HEADS / KV_HEADS;
    /* a quarter of the rows: they read a quarter of the keys, so more heads fit */
    p.last = F::RIGHT == 0 ? p.rows / 4 : 0, p.together_last = (int)te_min(16 * (int64_t)p.together, p.heads);
    const te_grid grid = te_grid_of(te_min(ctx->processors, p.tiles), 1);
    return te__cuda_launch(ctx, kernel, grid, C::THREADS, C::SHARED, 1, &all, F::VALUE ? sizeof all : sizeof p,
                           name);
}

/* What attention_cuda.h makes a kernel of. EXISTS: 0: there is none for these constants. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F,
          bool = T != TE_f32 && F::ONLY != TE_ATTENTION_NO_SM90 && te__attn_hopper_has(D, te__attn_value_dim<D, F>())>
struct te__attn_hopper_forward : te__attn_hopper_forward_shape<D, te__attn_value_dim<D, F>()> {
    typedef te__attn_hopper_forward_shape<D, te__attn_value_dim<D, F>()> shape;
    typedef te__attn_hopper_args<F> args;
    static constexpr int EXISTS = 1, BLOCKS = 1;
    static __device__ __forceinline__ void body(const args *p) {
        __shared__ te_attn_barriers bars;
        te__attn_forward_body<T, shape, HEADS, KV_HEADS, F>((const te_attn_hopper *)p, &bars);
    }
    static te_status launch(te_context *ctx, const void *kernel, te__tensor_map_encode_fn encode, const te_attention_args *a,
                            const char *name) {
        return te__attn_forward_launch<T, shape, HEADS, KV_HEADS, F>(ctx, kernel, encode, a, name);
    }
};
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
struct te__attn_hopper_forward<T, HEADS, KV_HEADS, D, F, false> {
    typedef te_attn_hopper args;
    static constexpr int EXISTS = 0, THREADS = 32, BLOCKS = 1, SHARED = 0;
    static __device__ __forceinline__ void body(const args *) {}
    static te_status launch(te_context *, const void *, te__tensor_map_encode_fn, const te_attention_args *, const char *) {
        return TE_OK;
    }
};

#endif
