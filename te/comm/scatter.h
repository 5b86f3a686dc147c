/* scatter.h -- a linear's product and the reduce_scatter behind it, or in backward a linear's data gradient and that of
 * the all_gather before it, as one kernel whose epilogue sends and adds up (te/gemm/gemm_hopper_ranks.h).
 *
 * In 16 bits, and in FP8 with scales of tensors: then the sums of the product stay in the tensor cores. Where it cannot
 * be, the product and the group's reduce_scatter one after the other.
 */
#ifndef TE_COMM_SCATTER_H
#define TE_COMM_SCATTER_H

#include "../fuse/linear_ranks.h" /* te_leaves_product */
#include "../plan/check.h"        /* te_run, te_output, te_gradient */
#include "peers.h"                /* te_peers_check */

#if TE_OVERLAPS
template <te_dtype T>
TE_FN void te_scatter_epilogue(const void *arg, const uint32_t w[4], const uint32_t *ahead, int row, int col,
                               te_epilogue_lane *own) {
    te__scatter_epilogue((const te_scatter *)arg, w, ahead, row, col, T);
    (void)own;
}
/* Of operands in 16 bits, and of those in FP8. */
typedef struct te_scatter_kernels { te_hopper_kernel many, fp8; } te_scatter_kernels;
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
                                         {(const void *)te_scatter_many_if<T, A, B, 1, fp8>(), 0, 0}};
    return &kernels;
}
#define TE_SCATTER_KERNELS(model, dtype, forward)                                                                    \
    te_scatter_kernels_of<TE_##dtype, (te_dtype)(!TE_IS_BY_TENSOR(model##_recipe) ? (int)TE_##dtype                  \
                                                 : (forward)                      ? (int)TE_e4m3                     \
                                                                                  : (int)model##_gradients), forward>()

/* Whether there is room for what the others send, and a word for each of their tiles. */
TE_API int te__scatter_fits(const te_gemm *g, const te_rank_memory *m) {
    const int64_t tiles = g->m / m->ranks / TE_TILE_M * te_ceil_div(g->n, TE_TILE_N);
    return (size_t)(g->m * g->n) * 2 <= m->room && tiles * TE_RANK_WARPS <= TE_RANK_TILES;
}
/* y[m / ranks, n]: this rank's rows of the sum over the ranks of g. */
TE_API te_status te__scatter_run(te_hopper_kernel *kernel, void *y, const te_gemm *of, te_rank_memory *m,
                                 const te_group *group, te_context *ctx) {
    const int64_t own = m->rank * (of->m / m->ranks * of->n * 2);
    te_gemm g = *of;
    te_gemm_ranks ranks;
    te_scatter a;
    memset(&a, 0, sizeof a);
    memset(&ranks, 0, sizeof ranks);
    ranks.group = group, ranks.memory = m, g.ranks = &ranks;
    a.y = y, a.ranks = m->ranks, a.slots = te__rank_room(m, m->rank);
    a.words = te__rank_words(m, m->rank) + TE_WORDS_TILES, a.turn = te__rank_words(m, m->rank) + TE_WORDS_TURN;
    for (int r = 0; r < m->ranks; r++)
        a.to[r] = te__rank_room(m, r) + own,
        a.told[r] = te__rank_words(m, r) + TE_WORDS_TILES + m->rank * TE_RANK_TILES;
    TE_TRY(te__ranks_meet_now(m, ctx));
    m->scattered++;
    return te__hopper_run(kernel->kernel, &a, sizeof a, &a.many, &g, ctx);
}
/* The product that the step before has left, and the sum over the ranks: *takes, if one kernel does both. Else the
 * product, to now. */
TE_API te_status te__late_product(int *takes, te_run *r, te_value y, te_scatter_kernels *kernels) {
    const te_group *group = r->tensor;
    te_rank_memory *m = group->memory;
    te_gemm g = r->late.product;
    te_hopper_kernel *kernel = te_gemm_is_fp8(&g) ? &kernels->fp8 : &kernels->many;
    te_gemm_ranks order; /* for tests: the tiles in the order of that kernel */
    g.fast |= te_gemm_is_fp8(&g); /* in FP8 the kernel has no other sums */
    const int one = te_gemm_overlaps(kernel, &g, group, r->ctx) && te__scatter_fits(&g, m) && !r->watch &&
                    (uintptr_t)y.p % TE_ACCESS == 0;
    if (!one) g = r->late.product;
    *takes = one && !m->serial;
    te_set_late(r, TE_LATE_nothing, te_no_value());
    if (*takes && !r->dry) TE_TRY(te_peers_check(group, r->ctx));
    if (*takes) return r->dry ? TE_OK : te__scatter_run(kernel, y.p, &g, m, group, r->ctx);
    memset(&order, 0, sizeof order);
    order.group = group, order.memory = m;
    if (one) g.ranks = &order;
    return te__linear_gemm(r, &g, TE_ROWS_OF_m, r->late.bare);
}
#else
typedef struct te_scatter_kernels te_scatter_kernels;
#define TE_SCATTER_KERNELS(model, dtype, forward) 0
TE_API te_status te__late_product(int *takes, te_run *r, te_value y, te_scatter_kernels *kernels) {
    return (void)r, (void)y, (void)kernels, *takes = 0, TE_OK;
}
#endif

#endif
