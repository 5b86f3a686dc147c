/* scatter.h -- a linear's product and the reduce_scatter behind it, or in backward a linear's data gradient and that of
 * the all_gather before it: a kernel whose epilogue sends (te/gemm/gemm_hopper_ranks.h), and adds up or leaves that to
 * another one (gemm_ranks.h, apart).
 *
 * That other kernel moves N + 1 times this rank's rows of the sum; its floor is a copy of as many bytes. Two H100s, of
 * 8192 x 4096, 100 MB: 40 to 44 us with its wait for the other rank, where a copy takes 33.
 *
 * In 16 bits, and in FP8 with scales of tensors: then the sums of the product stay in the tensor cores. Where it cannot
 * be, the product and the group's reduce_scatter one after the other.
 */
#ifndef TE_COMM_SCATTER_H
#define TE_COMM_SCATTER_H

#include "../linear/impl/linear_comm_overlap.h" /* te_defers_product */
#include "../plan/impl/call_checks.h"        /* te_run, te_output, te_gradient */
#include "peers.h"                /* te_peers_check */

#if TE_OVERLAPS
template <te_dtype T>
TE_FN void te_scatter_epilogue(const void *arg, const uint32_t w[4], const uint32_t *ahead, int row, int col,
                               te_epilogue_lane *own) {
    te__scatter_epilogue((const te_scatter *)arg, w, ahead, row, col, T);
    (void)own;
}

/* ---- the sum, where it is a kernel of its own -------------------------------------------------------------------- */

typedef struct te_scatter_add_args {
    void *y;                   /* [count]: the sum over the ranks, of a multiple of eight numbers */
    const char *slots;         /* [ranks, count] */
    uint32_t *words[TE_RANKS]; /* of each rank */
    int64_t count;
    int rank, ranks;
    te_rank_waits waits;
} te_scatter_add_args;

enum { TE_SCATTER_THREADS = 512, TE_SCATTER_RESIDENT = 2 };
/* Tell the others that this rank's product is done, wait for theirs. */
TE_FN void te__scatter_meet(const te_scatter_add_args *a) {
    uint32_t *const own = a->words[a->rank];
    const int id = (int)threadIdx.x;
    if (id < a->ranks && id != a->rank) {
        const uint32_t turn = own[TE_WORDS_TURN];
        if (blockIdx.x == 0) te__rank_tell(a->words[id] + TE_WORDS_SENT + a->rank, turn);
        te__rank_wait(own + TE_WORDS_SENT + id, turn, id, &a->waits);
    }
    __syncthreads();
}
/* In f32, in the order of the ranks, rounded once: as te__scatter_sum. */
TE_FN void te__scatter_add(const te_scatter_add_args *a, const te_dtype dtype) {
    const int64_t stride = 8 * (int64_t)gridDim.x * TE_SCATTER_THREADS;
    te__scatter_meet(a);
    for (int64_t i = 8 * ((int64_t)blockIdx.x * TE_SCATTER_THREADS + threadIdx.x); i < a->count; i += stride) {
        te_words one[TE_SCATTER_AHEAD + 1], more;
        float sum[8];
        TE_UNROLL for (int q = 0; q <= TE_SCATTER_AHEAD; q++)
            if (q < a->ranks) te__load_own(one[q].w, a->slots + (q * a->count + i) * 2);
        TE_UNROLL for (int q = 0; q <= TE_SCATTER_AHEAD; q++)
            if (q < a->ranks) te_words_add(sum, &one[q], dtype, q > 0);
        TE_UNROLL_1 for (int q = TE_SCATTER_AHEAD + 1; q < a->ranks; q++) {
            te__load_own(more.w, a->slots + (q * a->count + i) * 2);
            te_words_add(sum, &more, dtype, 1);
        }
        te_words_of(&more, sum, dtype);
        *(uint4 *)((char *)a->y + i * 2) = make_uint4(more.w[0], more.w[1], more.w[2], more.w[3]);
    }
}
template <te_dtype T>
TE_UNUSED static __global__ void __launch_bounds__(TE_SCATTER_THREADS, TE_SCATTER_RESIDENT)
te_scatter_add(const __grid_constant__ te_scatter_add_args a) {
    te_kernel_begin();
    te__scatter_add(&a, T);
}
TE_KERNEL_IF(T != TE_f32, (te_dtype T), te_scatter_add, (T), te_scatter_add_args)

/* ---- the product ------------------------------------------------------------------------------------------------- */

/* Of operands in 16 bits, and of those in FP8; and the sum by itself. */
typedef struct te_scatter_kernels {
    te_hopper_kernel many, fp8;
    const void *add;
} te_scatter_kernels;
template <te_dtype T, te_dtype A, te_dtype B, int TRANS_B>
TE_HOPPER_KERNEL_SCATTER(te_scatter_many, T, A, B, TRANS_B, te_scatter_epilogue<T>, 1)
TE_KERNEL_IF(EXISTS, (te_dtype T, te_dtype A, te_dtype B, int TRANS_B, int EXISTS), te_scatter_many,
             (T, A, B, TRANS_B), te_scatter)
/* In 16 bits the weight lies as it does in backward, and transposed in forward. A: what x or dy is in FP8; T: nothing
 * is. */
template <te_dtype T, te_dtype A, int FORWARD> TE_API te_scatter_kernels *te_scatter_kernels_of(void) {
    constexpr te_dtype B = A == T ? T : TE_e4m3;
    constexpr int half = T != TE_f32, fp8 = half && A != T;
    static te_scatter_kernels kernels = {{(const void *)te_scatter_many_if<T, T, T, FORWARD, half>(), 0, 0},
                                         {(const void *)te_scatter_many_if<T, A, B, 1, fp8>(), 0, 0},
                                         (const void *)te_scatter_add_if<T>()};
    return &kernels;
}
#define TE_SCATTER_KERNELS(model, dtype, forward)                                                                    \
    te_scatter_kernels_of<TE_##dtype, (te_dtype)(!TE_IS_TENSORWISE(model##_recipe) ? (int)TE_##dtype                  \
                                                 : (forward)                      ? (int)TE_e4m3                     \
                                                                                  : (int)model##_gradients), forward>()

/* Whether there is room for what the others send, and a word for each of their tiles. */
TE_API int te__scatter_fits(const te_gemm *g, const te_rank_memory *m) {
    const int64_t tiles = g->m / m->ranks / TE_TILE_M * te_ceil_div(g->n, TE_TILE_N);
    return (size_t)(g->m * g->n) * 2 <= m->room && tiles * TE_RANK_WARPS <= TE_RANK_TILES;
}
/* Whether the sum is a kernel of its own: where the tiles of a product are short and, so that the product waits for no
 * other rank, where a backward is watched, beside which the sums of te_buckets take multiprocessors (gemm_ranks.h). */
TE_API int te__scatter_apart(const te_gemm *g, const te_run *r) {
    return r->watch || g->k * (int64_t)te_dtype_bytes(te__gemm_a(g)) <= r->tensor->memory->apart;
}
/* y[m / ranks, n]: the sum of the slots, of which the others have sent this rank theirs. */
TE_API te_status te__scatter_add_run(const void *kernel, void *y, const te_gemm *g, const te_rank_memory *m,
                                     te_context *ctx) {
    te_scatter_add_args a;
    memset(&a, 0, sizeof a);
    a.y = y, a.slots = te__rank_room(m, m->rank), a.count = g->m / m->ranks * g->n;
    a.rank = m->rank, a.ranks = m->ranks, a.waits = te__rank_waits_of(m);
    for (int r = 0; r < m->ranks; r++) a.words[r] = te__rank_words(m, r);
    const int64_t blocks = te_min(TE_SCATTER_RESIDENT * ctx->processors, te_ceil_div(a.count, 8 * TE_SCATTER_THREADS));
    return te__cuda_launch(ctx, kernel, te_grid_of(blocks, 1), TE_SCATTER_THREADS, 0, 1, &a, sizeof a,
                           "te_scatter_add");
}
/* y[m / ranks, n]: this rank's rows of the sum over the ranks of g. */
TE_API te_status te__scatter_run(te_scatter_kernels *kernels, void *y, const te_gemm *of, const te_run *r) {
    te_rank_memory *m = r->tensor->memory;
    const int64_t own = m->rank * (of->m / m->ranks * of->n * 2);
    te_hopper_kernel *kernel = te_gemm_is_fp8(of) ? &kernels->fp8 : &kernels->many;
    te_gemm g = *of;
    te_gemm_ranks ranks;
    te_scatter a;
    memset(&a, 0, sizeof a);
    memset(&ranks, 0, sizeof ranks);
    ranks.group = r->tensor, ranks.memory = m, ranks.turns = te__scatter_apart(of, r), g.ranks = &ranks;
    a.y = y, a.ranks = m->ranks, a.apart = ranks.turns, a.slots = te__rank_room(m, m->rank);
    a.words = te__rank_words(m, m->rank) + TE_WORDS_TILES, a.turn = te__rank_words(m, m->rank) + TE_WORDS_TURN;
    for (int k = 0; k < m->ranks; k++)
        a.to[k] = te__rank_room(m, k) + own,
        a.told[k] = te__rank_words(m, k) + TE_WORDS_TILES + m->rank * TE_RANK_TILES;
    TE_TRY(te__ranks_meet_now(m, r->ctx));
    m->scattered++;
    TE_TRY(te__hopper_run(kernel->kernel, &a, sizeof a, &a.many, &g, r->ctx));
    return a.apart ? te__scatter_add_run(kernels->add, y, of, m, r->ctx) : TE_OK;
}
/* The product that the step before has left, and the sum over the ranks: *takes, if they overlap. Else the product, to
 * now. */
TE_API te_status te__late_product(int *takes, te_run *r, te_value y, te_scatter_kernels *kernels) {
    const te_group *group = r->tensor;
    te_rank_memory *m = group->memory;
    te_gemm g = r->deferred.product;
    te_hopper_kernel *kernel = te_gemm_is_fp8(&g) ? &kernels->fp8 : &kernels->many;
    te_gemm_ranks order; /* for tests: the tiles in the order of that kernel */
    g.fast |= te_gemm_is_fp8(&g); /* in FP8 the kernel has no other sums */
    const int one = te_gemm_overlaps(kernel, &g, group, r->ctx) && te__scatter_fits(&g, m) &&
                    (uintptr_t)y.p % TE_ACCESS == 0;
    if (!one) g = r->deferred.product;
    *takes = one && !m->serial;
    te_finish_deferred(r);
    if (*takes && !r->dry) TE_TRY(te_peers_check(group, r->ctx));
    if (*takes) return r->dry ? TE_OK : te__scatter_run(kernels, y.p, &g, r);
    memset(&order, 0, sizeof order);
    order.group = group, order.memory = m, order.turns = one && te__scatter_apart(&g, r);
    if (one) g.ranks = &order;
    return te__linear_gemm(r, &g, TE_ROWS_OF_m, r->deferred.kernels);
}
#else
typedef struct te_scatter_kernels te_scatter_kernels;
#define TE_SCATTER_KERNELS(model, dtype, forward) 0
TE_API te_status te__late_product(int *takes, te_run *r, te_value y, te_scatter_kernels *kernels) {
    return (void)r, (void)y, (void)kernels, *takes = 0, TE_OK;
}
#endif

#endif
