/* attention_hopper_backward.h -- attention backward for compute capability 9.0, bf16 and f16, head_dim 64, 96,
 * 128, 192 and 256, and 192 with values of 128.
 *
 *     forward: S = Q K^T * scale, P = exp(S - lse), O = P V
 *     delta = rowsum(dO * O), dP = dO V^T, dS = P * (dP - delta)
 *     dV = P^T dO, dK = scale * dS^T Q, dQ = scale * dS K
 *
 * Three kernels. The first makes delta. In the second a block keeps 128 keys and their values in shared memory, walks
 * the tiles of queries that see them, and has dK and dV in registers; of a group of query heads it takes all. One warp
 * brings tiles by the copy engine (TMA), one brings lse and delta, and two warpgroups have 64 keys each. They multiply
 * K by Q^T, so that P^T and dS^T come out as keys by queries and are, in registers, the A of the products for dV and
 * dK. dS goes to shared memory too, where a warpgroup finds all 128 keys of it for dQ: above head_dim 64 they make dQ
 * in turns, all of a step, else half of it each. They make it one step later: then neither has to wait for the other's
 * dS, and what one does between its products is covered by products of the other. dQ leaves through shared memory, and
 * two warps have the copy engine add it up in f32 in global memory. The third kernel scales and rounds it.
 * attention_hopper_order_backward.h says in which order dQ is added. Above head_dim 128 two blocks share the 128 keys,
 * and their warpgroups divide the work in another way: attention_hopper_wide_backward.h.
 *
 * Floor: 10 n flops, n = batch * heads * seq^2 * head_dim, half of it if causal. A step of 128 keys by 64 queries at
 * head_dim 128 is 2688 cycles of the tensor cores, 128 of them for lse and delta, and 2880 of shared memory's 128
 * bytes: 544 each for S and dP, whose both operands lie there, and lse or delta; 384 for dQ; 512 for dV and dK; 512 for
 * dQ on its way out; 384 for Q, dO and dS on their way in. It takes some 3400, at a clock that the limit of power sets.
 * When each warp loaded lse and delta for itself, 256 cycles, and each warpgroup made half of dQ, 512, it took 3660.
 *
 * Measured on an H200, bf16, TFLOP/s in turns with cuDNN's (PyTorch 2.11) and those of the package flash-attn-4
 * (4.0.0b36): in a fixed order / any order / cuDNN / flash-attn-4 in a fixed order / any order
 *     batch 4, seq  2048, 32 heads of 128, causal   447 450 382 411 450    full   548 546 468 496 532
 *     batch 2, seq  8192, 16 heads of 128, causal   578 556 442 506 541    full   587 568 485 573 591
 *     batch 1, seq 16384, 64 of 128, 8 of K, causal 559 553 500 543 562
 *     batch 2, seq  8192, 32 heads of  64, causal   522 520 360 492 483
 * (in full attention both orders are the same kernel: what ran before it makes up to 4%), and before, with cuDNN alone:
 *     batch 2, seq  4096, 16 heads of  96, causal   417 419 333
 *     batch 4, seq  2048, 32 heads of  64                                  full   472 496 396
 * The kernels of mma.sync: 223 at the first, 212 at the last but one. What did not pay at head_dim 128: dQ added from
 * registers (red.global.add.v4.f32), 0.45 us a step, by way of shared memory 0.33; dS stored across (as fast); dQ in
 * the step itself (0.92 of the speed); a key tile taken from the counter ahead of time, so that others wait for a tile
 * that has not begun (0.6). Not possible: V kept in registers, as above head_dim 128. 202 of 232 are in use, but with
 * four more the compiler no longer finds places for the operands of products, and runs them one by one (0.86).
 */
/* target: cuda */
#ifndef TE_ATTENTION_HOPPER_BACKWARD_H
#define TE_ATTENTION_HOPPER_BACKWARD_H

#include "attention_hopper_ends_backward.h" /* te__attn_back_delta, te__attn_back_round */
#include "attention_hopper_step_backward.h" /* te__attn_back_step */
#include "attention_hopper_wide_backward.h" /* te__attn_wide_multiply: head_dim above 128 */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

template <te_dtype T, int HEADS, int KV_HEADS, int D, class F, class C>
TE_FN void te__attn_back_multiply(const te_attn_back *p, typename C::shared *sh, uint32_t base) {
    constexpr int64_t KV = te__attn_widths<HEADS, KV_HEADS, D, F>::KV;
    te__attn_back_group<C> all, *const g = &all;
    g->base = base, g->at = __shfl_sync(~0u, te__shared_address(sh), 0), g->i = 0, g->lane = (int)threadIdx.x % 32;
    g->group = __shfl_sync(~0u, (int)threadIdx.x / 128 - 1, 0);
    g->warp = __shfl_sync(~0u, (int)threadIdx.x / 32 % 4, 0);
    int4 item;
    te_sequence rows_of = {0, 0};
    if (C::IN_TURNS && g->group) te__attn_turn_give(1); /* the first group begins */
    for (int r = 0; te__attn_item_take<F, C>(&item, &rows_of, sh, r); r++) {
        const int k0 = item.y * C::KEYS, seq = te__attn_seq<F>(p, rows_of);
        g->seq = seq;
        const int own = D > 64 ? 0 : g->group * 64; /* the first query of a tile whose dQ is this group's */
        float dk[D / 2], dv[D / 2], s[C::QUERIES / 2];
        float2 rows[C::AHEAD ? C::QUERIES / 8 : 1];
        te__attn_walk w = te__attn_walk_of<C, HEADS, KV_HEADS, F>(p, item, rows_of);
        te__barrier_wait(TE__AT(g, v_full, 0), r & 1);
        te__barrier_wait(TE__AT(g, k_full, 0), r & 1);
        if (C::IN_TURNS) te__attn_turn_take(g->group);
        te__attn_back_begin<T, D, C>(s, g);
        te__attn_back_ahead<C>(rows, TE__AT(g, lse, 0) + (g->i & 1) * C::QUERIES * 4, g);
        int n = 0;                 /* steps before, of this item */
        int left = 0, left_before; /* queries from this group's first on: of the last step, and of the one before */
#pragma unroll 1
        for (;; n++) {
            te__attn_back_step<T, HEADS, D, F, C>(dk, dv, s, rows, p, g, w.tile * C::QUERIES, k0,
                                              item.x / KV_HEADS * HEADS + w.head, n > 1, n == 0);
            left_before = left, left = seq - w.tile * C::QUERIES - own;
            if (!te__attn_walk_on<HEADS, KV_HEADS, F>(&w)) break;
            const int st = g->i & 1; /* of the step before the last one, whose dQ it is, and of the step to come */
            if constexpr (C::DQ_BY_ONE) {
                te__attn_wgmma_wait<0>(); /* dK: dQ has the registers of dS, and S those of dQ */
                te__attn_back_arrive(g, TE__AT(g, q_empty, st ^ 1));
                if (n && te__attn_back_makes(g, g->i)) te__attn_back_make<T, D, C>(g, g->i - 2, left_before);
                te__attn_back_begin<T, D, C>(s, g);
                te__attn_back_ahead<C>(rows, TE__AT(g, lse, 0) + st * C::QUERIES * 4, g);
            } else { /* there is no such step behind the first, and what comes out is not used */
                float dq[C::DQ_PIECE];
                te__attn_back_dq_begin<T, D, C>(dq, g, g->i - 2);
                te__attn_wgmma_wait<1>(); /* dK */
                te__attn_back_arrive(g, TE__AT(g, q_empty, st ^ 1));
                te__attn_back_begin<T, D, C>(s, g);
                te__attn_wgmma_wait<1>(); /* dQ */
                te__attn_hold_back(dq);
                te__attn_back_ahead<C>(rows, TE__AT(g, lse, 0) + st * C::QUERIES * 4, g);
                if (n) {
                    te__attn_back_arrive(g, TE__AT(g, ds_empty, st));
                    te__attn_back_leave<C>(dq, g, g->i - 2, left_before);
                }
            }
        }
        te__attn_wgmma_wait<0>();
        te__attn_hold_back(dk), te__attn_hold_back(dv);
        te__attn_back_arrive(g, TE__AT(g, v_empty, 0));
        te__attn_back_arrive(g, TE__AT(g, q_empty, (g->i - 1) & 1));
        if (n && te__attn_back_makes(g, g->i)) {
            te__attn_back_make<T, D, C>(g, g->i - 2, left_before);
            te__attn_back_made(g, g->i);
        }
        if (C::IN_TURNS) te__attn_turn_give(g->group);
        if (te__attn_back_makes(g, g->i - 1)) {
            te__attn_back_make<T, D, C>(g, g->i - 1, left);
            te__attn_back_made(g, g->i - 1);
        }
        te__attn_back_arrive(g, TE__AT(g, k_empty, 0));

        if (F::CROSS && !p->a.dkv) continue;
        const int batch = item.x / KV_HEADS, key = k0 + g->group * 64, left_keys = te__attn_keys<F>(p, rows_of) - key;
        const int x = te__attn_kv_column<HEADS, KV_HEADS, D, F>(0, item.x % KV_HEADS);
        const int64_t at = F::CROSS ? (int64_t)batch * p->a.kv_seq : te__attn_first<F>(p, rows_of, batch);
        uint16_t *to = (uint16_t *)te__attn_dkv<F>(&p->a) + (at + key) * KV + x;
        const int64_t sums = (seq + C::SUM_ROWS - 1) / C::SUM_ROWS;
        float *sum = nullptr, *const amax = te__attn_dkv_amax_output<F>(&p->a);
        if (p->a.sum && !F::VARLEN && !F::CROSS) sum = p->a.sum + (batch * sums + key / C::SUM_ROWS) * KV + x;
        te__attn_group_store<T, D, C::SUM_ROWS>(to + KV_HEADS * D, KV, left_keys, dv, F::FACTOR,
                                                sum ? sum + KV_HEADS * D : sum, sh->part[g->group], g->group, amax);
        te__attn_group_store<T, D, C::SUM_ROWS>(to, KV, left_keys, dk, p->a.scale, sum, sh->part[g->group], g->group,
                                                amax);
    }
}

template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__attn_back_body(const te_attn_back *p, typename te__attn_back_of<T, D, F>::shared *sh) {
    typedef te__attn_back_of<T, D, F> C;
    extern __shared__ __align__(1024) unsigned char te__attn_tiles[];
    /* shuffled, so that it is kept and not found again each time */
    const uint32_t base = __shfl_sync(~0u, te__shared_address(te__attn_tiles), 0);
    if (threadIdx.x == 0) {
        enum { WARP = TE_ATTN_ARRIVING, GROUPS = 8 * WARP }; /* of both warpgroups */
        enum { ONE_MAKES = C::WIDE || C::DQ_BY_ONE ? 4 * WARP : GROUPS }; /* of a warpgroup, or both */
        enum { TAKERS = GROUPS + 3 * WARP };                  /* of items: who does not hand them out */
        TE_UNROLL for (int s = 0; s < TE_ATTN_STAGES; s++) {
            uint64_t *const twice[] = {&sh->q_full[s], &sh->do_full[s]}; /* the copy engine's, and lse or delta */
            TE_UNROLL for (int b = 0; b < 2; b++) te__barrier_init(te__shared_address(twice[b]), 1 + WARP);
            te__barrier_init(te__shared_address(&sh->q_empty[s]), GROUPS);
            te__barrier_init(te__shared_address(&sh->do_empty[s]), GROUPS);
            te__barrier_init(te__shared_address(&sh->ds_full[s]), C::WIDE ? 1 : GROUPS); /* and the other block's */
            te__barrier_init(te__shared_address(&sh->ds_empty[s]), C::DQ_BY_ONE ? ONE_MAKES : C::CLUSTER * GROUPS);
            if (C::WIDE) te__barrier_init(te__shared_address(&sh->p_full[s]), ONE_MAKES);
            te__barrier_init(te__shared_address(&sh->item_full[s]), 1);
            te__barrier_init(te__shared_address(&sh->item_empty[s]), C::WIDE ? 2 * TAKERS + 1 : TAKERS);
            TE_UNROLL for (int b = 2 * s; b < 2 * s + 2; b++)
                te__barrier_init(te__shared_address(&sh->dq_full[b]), ONE_MAKES),
                    te__barrier_init(te__shared_address(&sh->dq_empty[b]), 1);
        }
        te__barrier_init(te__shared_address(&sh->v_full), 1), te__barrier_init(te__shared_address(&sh->k_full), 1);
        te__barrier_init(te__shared_address(&sh->v_empty), GROUPS);
        te__barrier_init(te__shared_address(&sh->k_empty), GROUPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (C::WIDE) te__cluster_sync();
    else __syncthreads();
    te_kernel_begin();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) te__attn_back_load<HEADS, KV_HEADS, D, F, C>(p, sh, base);
        else if (threadIdx.x / 32 == 1) te__attn_back_rows<HEADS, KV_HEADS, F, C>(p, sh);
        else if (threadIdx.x >= 64)
            te__attn_back_turns<HEADS, KV_HEADS, D, F, C>(p, sh, base, (int)threadIdx.x / 32 - 2);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        if constexpr (!C::WIDE) te__attn_back_multiply<T, HEADS, KV_HEADS, D, F, C>(p, sh, base);
        else if (threadIdx.x < 256) te__attn_wide_multiply<T, HEADS, KV_HEADS, D, F, C, 0>(p, sh, base);
        else te__attn_wide_multiply<T, HEADS, KV_HEADS, D, F, C, 1>(p, sh, base);
    }
    if (C::WIDE) __syncwarp(), te__cluster_sync(); /* the other block writes to this one's shared memory no more */
}
#else
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__attn_back_body(const te_attn_back *p, typename te__attn_back_of<T, D, F>::shared *sh) {
    (void)p, (void)sh;
}
#endif

/* ---- the host's side --------------------------------------------------------------------------------------------- */

/* What attention_cuda.h makes three kernels of. EXISTS: 0: there are none for these constants. Keys and values of their
 * own they take up to head_dim 128, and where each key is seen by a query. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F,
          bool = T != TE_f32 && F::ONLY != TE_ATTENTION_NO_SM90 && (!F::CROSS || (D <= 128 && F::LEFT < 0)) &&
                 te__attn_hopper_has(D, te__attn_value_dim<D, F>())>
struct te__attn_hopper_backward {
    typedef te__attn_back_of<T, D, F> shape;
    static constexpr int EXISTS = 1, V = te__attn_value_dim<D, F>();
    struct delta {
        typedef te_attn_back args;
        static constexpr int THREADS = TE_ATTN_DELTA_THREADS, BLOCKS = 1;
        static __device__ __forceinline__ void body(const args *p) {
            te_kernel_begin();
            te__attn_back_delta<T, HEADS, V, F>(p);
        }
    };
    struct wgmma {
        typedef te_attn_back args;
        static constexpr int THREADS = TE_ATTN_BACK_THREADS, BLOCKS = 1, SHARED = shape::BYTES;
        static __device__ __forceinline__ void body(const args *p) {
            __shared__ typename shape::shared shared;
            te__attn_back_body<T, HEADS, KV_HEADS, D, F>(p, &shared);
        }
    };
    struct round {
        typedef te_attn_back args;
        static constexpr int THREADS = te__attn_round_threads(D), BLOCKS = 1;
        static __device__ __forceinline__ void body(const args *p) {
            te_kernel_begin();
            te__attn_back_round<T, HEADS, KV_HEADS, D, F>(p);
        }
    };

    /* Whether it is faster than mma.sync, not only there: many key tiles of few queries wait for each other. Measured
     * with keys of their own, backward, us and those of mma.sync, batch 4, 32 heads of 128, queries by keys:
     *     2048 by 2048 1166, 2722    512 by 1024 259, 403    256 by 1024 201, 227
     *     1024 by 4096 1282, 2932    512 by 4096 1469, 1450  256 by 4096 2971, 804
     */
    static int pays(const te_attention_args *a) {
        return !F::CROSS || te_ceil_div(a->kv_seq, shape::KEYS) <= 2 * te_ceil_div(a->seq, shape::QUERIES);
    }
    /* For so many tokens, in any number of sequences: dq, then ticket and turns. Of sequences that differ in length
     * there are as many as tokens at most. */
    static size_t scratch_bytes(int64_t rows) {
        const int64_t turns = rows * HEADS * (F::VARLEN ? 2 : 1) * shape::CLUSTER;
        return (size_t)(rows * HEADS * shape::BOXES * 64) * sizeof(float) + (size_t)(turns + 1) * sizeof(uint32_t);
    }
    static te_status launch(te_context *ctx, const void *delta_kernel, const void *wgmma_kernel,
                            const void *round_kernel, te__tensor_map_encode_fn encode, const te_attention_args *a,
                            const char *name) {
        te_attn_back p;
        memset(&p, 0, sizeof p);
        p.of = te__attn_sequences(a);
        const int64_t rows = p.of.rows;
        const int seq = F::VARLEN ? p.of.rows : a->seq, batch = F::VARLEN ? 0 : a->batch;
        p.a = *a, p.dq = (float *)a->scratch, p.any_order = ctx->attention_nondeterministic;
        p.ticket = (uint32_t *)(void *)(p.dq + rows * HEADS * shape::BOXES * 64), p.turn = p.ticket + 1;
        p.key_tiles = (int)te_ceil_div(F::CROSS ? a->kv_seq : a->seq, shape::KEYS);
        p.query_tiles = (int)te_ceil_div(a->seq, shape::QUERIES);
        p.items = p.key_tiles * a->batch * KV_HEADS;
        const int clusters = ctx->processors / shape::CLUSTER; /* or blocks */
        const int heads = F::VARLEN ? KV_HEADS : a->batch * KV_HEADS; /* that bands are handed out of together */
        /* One band of all heads is enough for all multiprocessors: then no band waits for the one before it. No more
         * than that run at once: a key tile may wait for those of its band that begin later. */
        p.band = (int)te_min(te_min(p.key_tiles, clusters), te_max(TE_ATTN_BAND, te_ceil_div(clusters, heads)));
        const te_grid blocks = te_grid_of(te_min(p.items, clusters) * shape::CLUSTER, 1);
        if (F::VARLEN) {
            p.key_tiles = te_sequence_tiles(&p.of, shape::KEYS), p.items = p.key_tiles * KV_HEADS;
            p.query_tiles = te_sequence_tiles(&p.of, shape::QUERIES);
        }
        p.turns = (F::VARLEN ? 1 : a->batch) * HEADS * p.query_tiles * shape::CLUSTER;
        typedef te__attn_widths<HEADS, KV_HEADS, D, F> widths;
        TE_TRY(te__attn_map(&p.qkv, encode, a->qkv, batch, seq, (int)widths::QKV, T, ctx));
        if (F::CROSS) TE_TRY(te__attn_map(&p.kv, encode, a->kv, batch, a->kv_seq, (int)widths::KV, T, ctx));
        TE_TRY(te__attn_map(&p.dout, encode, a->dout, batch, seq, (int)widths::OUT, T, ctx));
        const te_grid rows_of_heads = te_grid_of(te_ceil_div(rows * HEADS * te__attn_back_lanes(V), delta::THREADS), 1);
        const te_grid tiles = te_grid_of(
            F::VARLEN ? (int64_t)HEADS * te_sequence_tiles(&p.of, 64) : a->batch * HEADS * te_ceil_div(a->seq, 64), 1);
        TE_TRY(te__cuda_launch(ctx, delta_kernel, rows_of_heads, delta::THREADS, 0, 1, &p, sizeof p, name));
        TE_TRY(te__cuda_launch(ctx, wgmma_kernel, blocks, wgmma::THREADS, wgmma::SHARED, shape::CLUSTER, &p, sizeof p,
                               name));
        return te__cuda_launch(ctx, round_kernel, tiles, round::THREADS, 0, 1, &p, sizeof p, name);
    }
};
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
struct te__attn_hopper_backward<T, HEADS, KV_HEADS, D, F, false> {
    static constexpr int EXISTS = 0;
    struct wgmma {
        typedef te_attn_back args;
        static constexpr int THREADS = 32, BLOCKS = 1, SHARED = 0;
        static __device__ __forceinline__ void body(const args *) {}
    };
    typedef wgmma delta, round;
    static int pays(const te_attention_args *) { return 0; }
    static size_t scratch_bytes(int64_t) { return 0; }
    static te_status launch(te_context *, const void *, const void *, const void *, te__tensor_map_encode_fn,
                            const te_attention_args *, const char *) {
        return TE_OK;
    }
};

#endif
