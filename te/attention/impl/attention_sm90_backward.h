/* attention_sm90_backward.h -- attention backward for compute capability 9.0, bf16 and f16, head sizes 64, 96, 128, 192
 * and 256, and head size 192 with values of size 128.
 *
 *     forward: S = Q K^T * scale, P = exp(S - lse), O = P V
 *     delta = rowsum(dO * O), dP = dO V^T, dS = P * (dP - delta)
 *     dV = P^T dO, dK = scale * dS^T Q, dQ = scale * dS K
 *
 * Three kernels: preprocess computes delta; the main kernel computes dK and dV, and sums dQ in f32 in global memory;
 * postprocess scales dQ and rounds it. In the main kernel a block holds 128 keys and their values in shared memory, and
 * processes the tiles of queries that see these keys, for each query head that shares this head of K and V. The roles
 * of a block's warps:
 *
 *     producer     One thread schedules key tiles and loads by TMA, a warp loads lse and delta, two warps add dQ to
 *                  global memory, in an order that attention_sm90_backward_producer.h describes.
 *     consumers    Two warpgroups of 64 keys each (attention_sm90_backward_mainloop.h). Above head size 128 a cluster
 *                  of two blocks holds the 128 keys, 64 in each block, and the warpgroups divide the work differently
 *                  (attention_sm90_backward_2cta.h).
 *
 * Lower bound of the work: 10 * n flops, where n = batch * heads * seq^2 * head_dim; half as many if causal. At head
 * size 128 a step of 128 keys by 64 queries takes 2688 cycles of the tensor cores (128 of them for the columns of lse
 * and delta, te__attn_bwd_folds_stats) and 2880 cycles of shared memory, at 128 bytes a cycle: 544 for each of the
 * products S and dP, whose operands, and lse or delta, are all read from shared memory; 384 for the product dQ; 512 for
 * dV and dK together; 512 to write dQ and to read it again when it is added to global memory; 384 to write Q, dO and
 * dS. Measurements: docs/notes/attention_sm90.md.
 */
/* target: cuda */
#ifndef TE_ATTENTION_SM90_BACKWARD_H
#define TE_ATTENTION_SM90_BACKWARD_H

#include "attention_sm90_backward_2cta.h"     /* te__attn_2cta_consumer: head_dim above 128 */
#include "attention_sm90_backward_mainloop.h" /* te__attn_bwd_consumer; the kernel's arguments and constants */

/* ---- preprocess and postprocess ---------------------------------------------------------------------------------- */

/* Returns the number of lanes that together compute the delta of one row of a head; each lane sums over 8 columns. */
TE_BOTH constexpr int te__attn_bwd_pre_lanes(int value_dim) { return value_dim <= 64 ? 8 : value_dim <= 128 ? 16 : 32; }
/* Computes delta, with te__attn_bwd_pre_lanes lanes for each row of a head. Also sets the main kernel's ticket (the
 * index of its next work item) and semaphores (which order the additions to dQ) to 0. The kernel reads dout and out
 * once, and its time is bound by memory. */
template <te_dtype T, int HEADS, int V, class F> TE_FN void te__attn_bwd_preprocess(const te__attn_bwd_params *p) {
    constexpr int LANES = te__attn_bwd_pre_lanes(V);
    const te_attention_args *a = &p->a;
    const int64_t thread = (int64_t)blockIdx.x * TE__ATTN_BWD_PRE_THREADS + threadIdx.x, row = thread / LANES / HEADS;
    const int head = (int)(thread / LANES % HEADS), d = (int)threadIdx.x % LANES * 8, seq = F::VARLEN ? 1 : a->seq;
    const int64_t rows = F::VARLEN ? p->sequences.rows : (int64_t)a->batch * seq;
    float v = 0;
    for (int64_t n = thread; n <= p->semaphores; n += (int64_t)gridDim.x * TE__ATTN_BWD_PRE_THREADS)
        /* p->ticket[0] is the ticket, p->ticket[1] and the following elements are the semaphores */
        p->ticket[n] = 0;
    if (row < rows && d < V) {
        float x[8], y[8];
        te_load8(x, a->dout, (row * HEADS + head) * V + d, 8, 1, T);
        te_load8(y, a->out, (row * HEADS + head) * V + d, 8, 1, T);
        TE_UNROLL for (int e = 0; e < 8; e++) v += x[e] * y[e];
    }
    TE_UNROLL for (int l = 1; l < LANES; l *= 2) v += __shfl_xor_sync(~0u, v, l);
    if (d == 0 && row < rows)
        a->delta[F::VARLEN ? head * rows + row : (row / seq * HEADS + head) * seq + row % seq] = v;
}

/* Returns the number of threads of a block of the postprocess kernel: 256, or 192 if head_dim is 96 or 192. In one
 * pass a warp processes 32 columns of 16 rows, and all warps of the block together process all columns of up to four
 * groups of 16 rows. */
TE_BOTH constexpr int te__attn_bwd_post_threads(int head_dim) { return head_dim % 64 || head_dim == 192 ? 192 : 256; }
/* The postprocess kernel: multiplies the f32 sums of dQ by scale and stores them in 16 bits. Unless p->a.sum is null,
 * it also stores column sums of the rounded numbers, one for each column and each group of SUM_ROWS rows. A block
 * processes 64 tokens of a head; a thread processes 8 columns of two tokens at a time. For each element the kernel
 * reads 4 bytes and writes 2, and its time is bound by memory. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__attn_bwd_postprocess(const te__attn_bwd_params *p) {
    constexpr int64_t QKV = te__attn_widths<HEADS, KV_HEADS, D, F>::QKV;
    /* number of groups of 16 rows that a block processes at a time */
    constexpr int GROUPS = te__attn_bwd_post_threads(D) / D;
    /* for each of the tile's four groups of 16 rows, the sum of each column over these rows */
    __shared__ float part[4][D];
    const int tiles = (p->a.seq + 63) / 64, head = (int)blockIdx.x % HEADS;
    int tile = (int)blockIdx.x / HEADS, batch = 0, left = 0;
    int64_t row = 0; /* the index of the tile's first row, counted over all sequences */
    if constexpr (F::VARLEN) {
        const int i = te_sequence_of(&p->sequences, tile, 64);
        const te_sequence rows = te_sequence_rows(&p->sequences, i);
        tile -= rows.first / 64 + i, left = rows.count - tile * 64, row = rows.first + tile * 64;
        if (tile < 0 || left <= 0) return;
    } else {
        batch = tile / tiles, tile %= tiles, left = p->a.seq - tile * 64;
        row = (int64_t)batch * p->a.seq + tile * 64;
    }
    const int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 8;
    const int x = warp % (D / 32) * 32 + (int)threadIdx.x / 8 % 4 * 8; /* this lane's first column */
    const float *from = te__attn_bwd_dq_at<D>(p, head, x / 64, row);
    /* In each iteration this thread processes two rows of the tile, 16 * w + g and 16 * w + g + 8. */
    TE_UNROLL for (int n = 0; n < 4 / GROUPS; n++) {
        const int w = n * GROUPS + warp / (D / 32);
        float4 v[4];
        float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        /* v[t].x and v[t].y belong to row 16 * w + g, v[t].z and v[t].w to row 16 * w + g + 8 */
        TE_UNROLL for (int t = 0; t < 4; t++) {
            const float *const at = from + (16 * w + g) * 64 + x % 64 + 2 * t;
            float2 low = make_float2(0, 0), high = low;
            if (left < 64 && 16 * w + g < left) low = *(const float2 *)at;
            if (left < 64 && 16 * w + g + 8 < left) high = *(const float2 *)(at + 8 * 64);
            v[t] = make_float4(low.x, low.y, high.x, high.y);
            if (left >= 64) v[t] = *(const float4 *)(from + (x % 64 / 8 * 128 + w * 32 + g * 4 + t) * 4);
        }
        TE_UNROLL for (int h = 0; h < 2; h++) {
            uint32_t u[4];
            TE_UNROLL for (int t = 0; t < 4; t++) {
                u[t] = te_pair_of_floats((h ? v[t].z : v[t].x) * p->a.scale, (h ? v[t].w : v[t].y) * p->a.scale, T);
                const float2 y = te_floats_of_pair(u[t], T);
                /* rows past the end of the sequence may be added, because they are zeros */
                sum[2 * t] += y.x, sum[2 * t + 1] += y.y;
            }
            if (16 * w + g + 8 * h < left)
                *(uint4 *)((uint16_t *)p->a.dqkv + (row + 16 * w + g + 8 * h) * QKV + head * D + x) =
                    make_uint4(u[0], u[1], u[2], u[3]);
        }
        if (!p->a.sum) continue;
        TE_UNROLL for (int e = 0; e < 8; e++) {
            TE_UNROLL for (int l = 1; l < 8; l *= 2) sum[e] += __shfl_xor_sync(~0u, sum[e], l);
            if (g == 0) part[w][x + e] = sum[e];
        }
    }
    /* The amax is computed after the loop, from the stored numbers, because the loop has no registers left for it. */
    if (F::FP8_OUTPUT && p->a.amax) {
        const uint16_t *to = (const uint16_t *)p->a.dqkv + row * QKV + head * D + x;
        uint32_t amax = 0;
        for (int first = warp / (D / 32) * 16 + g; first < 64 && first < left; first += 16 * GROUPS)
            for (int at = first; at <= first + 8 && at < left; at += 8)
                te__attn_track_amax(&amax, *(const uint4 *)(to + at * QKV));
        te__attn_raise_amax<T>(p->a.amax, amax);
    }
    if (!p->a.sum) return;
    __syncthreads();
    constexpr int SUM_ROWS = te__attn_bwd_traits<D>::SUM_ROWS;
    const int c = (int)threadIdx.x % D;
    /* For each column, store one sum over each group of SUM_ROWS of the tile's 64 rows. */
    TE_UNROLL for (int s = 0; s < 64 / SUM_ROWS; s += GROUPS) {
        const int n = s + (int)threadIdx.x / D;
        if (n >= 64 / SUM_ROWS || n * SUM_ROWS >= left) return;
        const int64_t to = (int64_t)batch * ((p->a.seq + SUM_ROWS - 1) / SUM_ROWS) + tile * (64 / SUM_ROWS) + n;
        p->a.sum[to * QKV + head * D + c] =
            SUM_ROWS == 32 ? part[2 * n][c] + part[2 * n + 1][c] : part[n][c]; /* each part is a sum over 16 rows */
    }
}

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- main kernel ------------------------------------------------------------------------------------------------- */

/* Initialises the mbarriers of a block. One thread of the block calls this. */
template <class C> TE_FN void te__attn_bwd_barriers_init(typename C::shared *sh) {
    /* WARP: how many lanes of a warp arrive at an mbarrier; CONSUMERS: how many lanes of both consumer warpgroups
     * together arrive */
    enum { WARP = TE__ATTN_BWD_ARRIVING_LANES, CONSUMERS = 8 * WARP };
    /* how many lanes arrive to signal that a tile of dQ is in shared memory. Either one warpgroup computes the whole
     * tile, and its lanes arrive, or each of the two warpgroups computes half of the tile, and the lanes of both
     * arrive. */
    enum { DQ_ARRIVALS = C::TWO_CTA || C::DQ_ALTERNATES ? 4 * WARP : CONSUMERS };
    /* How many lanes of a block arrive to signal that they have read a work item (the index of a key tile): lanes of
     * the eight consumer warps, and of the three producer warps that do not write the work items. */
    enum { RECEIVERS = CONSUMERS + 3 * WARP };
    TE_UNROLL for (int s = 0; s < TE__ATTN_BWD_STAGES; s++) {
        /* The arrivals at each of these mbarriers: 1 by the thread that issues the TMA load, and WARP by the warp that
         * loads lse or delta. */
        uint64_t *const with_stats[] = {&sh->q_full[s], &sh->do_full[s]};
        TE_UNROLL for (int b = 0; b < 2; b++) te__barrier_init(te__shared_address(with_stats[b]), 1 + WARP);
        te__barrier_init(te__shared_address(&sh->q_empty[s]), CONSUMERS);
        te__barrier_init(te__shared_address(&sh->do_empty[s]), CONSUMERS);
        /* ds_full: with clusters of two blocks (TWO_CTA), one thread arrives (arrive.expect_tx), and the phase
         * completes when the bytes of dS that the other block sends have arrived. Without clusters, all consumer warps
         * arrive when they have stored dS. ds_empty: each warp that has read dS arrives (in a cluster: the warps of
         * both blocks). */
        te__barrier_init(te__shared_address(&sh->ds_full[s]), C::TWO_CTA ? 1 : CONSUMERS);
        te__barrier_init(te__shared_address(&sh->ds_empty[s]), C::DQ_ALTERNATES ? DQ_ARRIVALS : C::CLUSTER * CONSUMERS);
        if (C::TWO_CTA) te__barrier_init(te__shared_address(&sh->p_full[s]), DQ_ARRIVALS);
        te__barrier_init(te__shared_address(&sh->item_full[s]), 1);
        te__barrier_init(te__shared_address(&sh->item_empty[s]), C::TWO_CTA ? 2 * RECEIVERS + 1 : RECEIVERS);
        TE_UNROLL for (int b = 2 * s; b < 2 * s + 2; b++)
            te__barrier_init(te__shared_address(&sh->dq_full[b]), DQ_ARRIVALS),
                te__barrier_init(te__shared_address(&sh->dq_empty[b]), 1);
    }
    te__barrier_init(te__shared_address(&sh->v_full), 1), te__barrier_init(te__shared_address(&sh->k_full), 1);
    te__barrier_init(te__shared_address(&sh->v_empty), CONSUMERS);
    te__barrier_init(te__shared_address(&sh->k_empty), CONSUMERS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

enum { TE__ATTN_BWD_PRODUCER_REGISTERS = 40, TE__ATTN_BWD_CONSUMER_REGISTERS = 232 };

template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__attn_bwd_kernel(const te__attn_bwd_params *p, typename te__attn_bwd_traits_of<T, D, F>::shared *sh) {
    typedef te__attn_bwd_traits_of<T, D, F> C;
    extern __shared__ __align__(1024) unsigned char te__attn_tiles[];
    /* The address of the tiles. Because of the shuffle, the compiler keeps this address in a register instead of
     * recomputing it at each use. */
    const uint32_t base = __shfl_sync(~0u, te__shared_address(te__attn_tiles), 0);
    if (threadIdx.x == 0) te__attn_bwd_barriers_init<C>(sh);
    if (C::TWO_CTA) te__cluster_sync();
    else __syncthreads();
    te_kernel_begin();
    if (threadIdx.x < 128) {
        te__warpgroup_reg_dealloc<TE__ATTN_BWD_PRODUCER_REGISTERS>();
        const int warp = (int)threadIdx.x / 32;
        if (threadIdx.x == 0) te__attn_bwd_producer<HEADS, KV_HEADS, D, F, C>(p, sh, base);
        else if (warp == 1) te__attn_bwd_stats_producer<HEADS, KV_HEADS, F, C>(p, sh);
        else if (warp >= 2) te__attn_bwd_dq_writer<HEADS, KV_HEADS, D, F, C>(p, sh, base, warp - 2);
    } else {
        te__warpgroup_reg_alloc<TE__ATTN_BWD_CONSUMER_REGISTERS>();
        if constexpr (!C::TWO_CTA) te__attn_bwd_consumer<T, HEADS, KV_HEADS, D, F, C>(p, sh, base);
        else if (threadIdx.x < 256) te__attn_2cta_consumer<T, HEADS, KV_HEADS, D, F, C, 0>(p, sh, base);
        else te__attn_2cta_consumer<T, HEADS, KV_HEADS, D, F, C, 1>(p, sh, base);
    }
    /* Before it exits, a block waits for the other block of the cluster, which may still write to this block's shared
     * memory. */
    if (C::TWO_CTA) __syncwarp(), te__cluster_sync();
}
#else
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__attn_bwd_kernel(const te__attn_bwd_params *p, typename te__attn_bwd_traits_of<T, D, F>::shared *sh) {
    (void)p, (void)sh;
}
#endif

/* ---- host -------------------------------------------------------------------------------------------------------- */

/* The three kernels of backward (preprocess, main kernel and postprocess) as types (attention_cuda.h, "kernels as
 * types"). EXISTS is 0 if there are no kernels for these template arguments. The kernels support cross-attention only
 * up to head_dim 128, and only if the mask has no bound on the left, because with such a bound there may be keys that
 * no query sees. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F,
          bool = T != TE_f32 && F::ONLY != TE_ATTENTION_NO_SM90 && (!F::CROSS || (D <= 128 && F::LEFT < 0)) &&
                 te__attn_sm90_supports(D, te__attn_value_dim<D, F>())>
struct te__attn_sm90_backward {
    typedef te__attn_bwd_traits_of<T, D, F> traits;
    static constexpr int EXISTS = 1, V = te__attn_value_dim<D, F>();
    struct delta {
        typedef te__attn_bwd_params args;
        static constexpr int THREADS = TE__ATTN_BWD_PRE_THREADS, BLOCKS = 1;
        static __device__ __forceinline__ void body(const args *p) {
            te_kernel_begin();
            te__attn_bwd_preprocess<T, HEADS, V, F>(p);
        }
    };
    struct wgmma {
        typedef te__attn_bwd_params args;
        static constexpr int THREADS = TE__ATTN_BWD_THREADS, BLOCKS = 1, SHARED = traits::BYTES;
        static __device__ __forceinline__ void body(const args *p) {
            __shared__ typename traits::shared shared;
            te__attn_bwd_kernel<T, HEADS, KV_HEADS, D, F>(p, &shared);
        }
    };
    struct round {
        typedef te__attn_bwd_params args;
        static constexpr int THREADS = te__attn_bwd_post_threads(D), BLOCKS = 1;
        static __device__ __forceinline__ void body(const args *p) {
            te_kernel_begin();
            te__attn_bwd_postprocess<T, HEADS, KV_HEADS, D, F>(p);
        }
    };

    /* Returns whether these kernels are faster than those of attention_sm80_backward.h, which use mma.sync. They are
     * slower only in cross-attention with many key tiles and few queries, because there the blocks spend much time
     * waiting for their turn to add dQ (measurements: docs/notes/attention_sm90.md). */
    static int pays(const te_attention_args *a) {
        return !F::CROSS || te_ceil_div(a->kv_seq, traits::KEYS) <= 2 * te_ceil_div(a->seq, traits::QUERIES);
    }
    /* Returns the size in bytes of the scratch memory for `rows` tokens, however they are divided into sequences (at
     * most one sequence for each token). The scratch memory holds dQ in f32, the ticket and the semaphores. */
    static size_t scratch_bytes(int64_t rows) {
        const int64_t semaphores = rows * HEADS * (F::VARLEN ? 2 : 1) * traits::CLUSTER;
        return (size_t)(rows * HEADS * traits::BOXES * 64) * sizeof(float) +
               (size_t)(semaphores + 1) * sizeof(uint32_t);
    }
    /* Computes the members of *p that the tile scheduler uses: the numbers of tiles, of work items, of semaphores, and
     * of key tiles in a band (neighbouring key tiles that are scheduled together). clusters: how many clusters run at
     * the same time (in a kernel without clusters: how many blocks). */
    static void schedule(te__attn_bwd_params *p, const te_attention_args *a, int clusters) {
        /* the number of heads of K and V whose bands (groups of neighbouring key tiles) are scheduled together */
        const int heads = F::VARLEN ? KV_HEADS : a->batch * KV_HEADS;
        p->key_tiles = (int)te_ceil_div(F::CROSS ? a->kv_seq : a->seq, traits::KEYS);
        p->query_tiles = (int)te_ceil_div(a->seq, traits::QUERIES);
        p->items = p->key_tiles * a->batch * KV_HEADS;
        /* Each band of a head (a group of neighbouring key tiles) adds its dQ after the earlier bands of the head. A
         * band should be so large that bands of all heads, one of each head, together occupy all multiprocessors: then
         * no two bands of a head run at the same time, and none has to wait. But a band has no more key tiles than can
         * run at the same time, because a key tile may wait for a key tile of its band that is scheduled later. Without
         * a mask each key tile of a band waits for another key tile of the band; then the bands of all heads must fit
         * on the multiprocessors together, and the size of a band is rounded down. */
        const int64_t fill = te__attn_bwd_wraps<F>() ? clusters / heads : te_ceil_div(clusters, heads);
        p->band = (int)te_min(te_min(p->key_tiles, clusters), te_max(TE__ATTN_BWD_MIN_BAND, fill));
        if (F::VARLEN) {
            p->key_tiles = te_sequence_tiles(&p->sequences, traits::KEYS), p->items = p->key_tiles * KV_HEADS;
            p->query_tiles = te_sequence_tiles(&p->sequences, traits::QUERIES);
        }
        p->semaphores = (F::VARLEN ? 1 : a->batch) * HEADS * p->query_tiles * traits::CLUSTER;
    }
    static te_status tensor_maps(te__attn_bwd_params *p, te__tensor_map_encode_fn encode, const te_attention_args *a,
                                 te_context *ctx) {
        typedef te__attn_widths<HEADS, KV_HEADS, D, F> widths;
        const int seq = F::VARLEN ? p->sequences.rows : a->seq, batch = F::VARLEN ? 0 : a->batch;
        TE_TRY(te__attn_rows_tensor_map(&p->qkv, encode, a->qkv, batch, seq, (int)widths::QKV, T, ctx));
        if (F::CROSS)
            TE_TRY(te__attn_rows_tensor_map(&p->kv, encode, a->kv, batch, a->kv_seq, (int)widths::KV, T, ctx));
        return te__attn_rows_tensor_map(&p->dout, encode, a->dout, batch, seq, (int)widths::OUT, T, ctx);
    }
    static te_status launch(te_context *ctx, const void *delta_kernel, const void *wgmma_kernel,
                            const void *round_kernel, te__tensor_map_encode_fn encode, const te_attention_args *a,
                            const char *name) {
        te__attn_bwd_params p;
        memset(&p, 0, sizeof p);
        p.sequences = te__attn_sequences(a);
        const int64_t rows = p.sequences.rows;
        const int clusters = ctx->processors / traits::CLUSTER;
        const int64_t items = te_ceil_div(F::CROSS ? a->kv_seq : a->seq, traits::KEYS) * a->batch * KV_HEADS;
        p.a = *a, p.dq = (float *)a->scratch, p.any_order = ctx->attention_nondeterministic;
        p.ticket = (uint32_t *)(void *)(p.dq + rows * HEADS * traits::BOXES * 64), p.dq_semaphores = p.ticket + 1;
        schedule(&p, a, clusters);
        TE_TRY(tensor_maps(&p, encode, a, ctx));
        const te_grid pre = te__grid_of(te_ceil_div(rows * HEADS * te__attn_bwd_pre_lanes(V), delta::THREADS), 1);
        const te_grid blocks = te__grid_of(te_min(items, clusters) * traits::CLUSTER, 1);
        const te_grid post = te__grid_of(F::VARLEN ? (int64_t)HEADS * te_sequence_tiles(&p.sequences, 64)
                                                  : a->batch * HEADS * te_ceil_div(a->seq, 64), 1);
        TE_TRY(te__cuda_launch(ctx, te__launch_of(delta_kernel, name, pre, delta::THREADS, 0, 1), &p, sizeof p));
        const te_launch launch = te__launch_of(wgmma_kernel, name, blocks, wgmma::THREADS, wgmma::SHARED,
                                               traits::CLUSTER);
        TE_TRY(te__cuda_launch(ctx, launch, &p, sizeof p));
        return te__cuda_launch(ctx, te__launch_of(round_kernel, name, post, round::THREADS, 0, 1), &p, sizeof p);
    }
};
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
struct te__attn_sm90_backward<T, HEADS, KV_HEADS, D, F, false> {
    static constexpr int EXISTS = 0;
    struct wgmma {
        typedef te__attn_bwd_params args;
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
