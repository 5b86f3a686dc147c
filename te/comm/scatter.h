/* scatter.h -- a linear's product and the reduce_scatter behind it, or in backward a linear's data gradient and that of
 * the all_gather before it, as one kernel whose epilogue sends and adds up (te/gemm/gemm_hopper_ranks.h).
 *
 * Where it cannot be, the product and the group's reduce_scatter one after the other.
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
template <te_dtype T, int FORWARD>
TE_HOPPER_KERNEL_SCATTER(te_scatter_many, T, FORWARD, te_scatter_epilogue<T>, T != TE_f32)
/* In backward the weight lies as it does, in forward transposed. */
template <te_dtype T, int FORWARD> TE_API te_hopper_kernel *te_scatter_kernel(void) {
    static te_hopper_kernel kernel = {T != TE_f32 ? (const void *)te_scatter_many<T, FORWARD> : 0, 0, 0};
    return &kernel;
}
#define TE_SCATTER_KERNEL(dtype, forward) te_scatter_kernel<TE_##dtype, forward>()

/* Whether there is room for what the others send, and a word for each of their tiles. */
TE_API int te__scatter_fits(const te_gemm *g, const te_rank_memory *m) {
    const int64_t tiles = g->m / m->ranks / TE_TILE_M * te_ceil_div(g->n, TE_TILE_N);
    return (size_t)(g->m * g->n) * 2 <= m->room && tiles * TE_RANK_WARPS <= TE_RANK_TILES;
}
/* y[m / ranks, n]: this rank's rows of the sum over the ranks of g. */
TE_API te_status te__scatter_run(te_hopper_kernel *kernel, void *y, const te_gemm *of, te_rank_memory *m,
                                 const te_group *group, te_context *ctx) {
    const int64_t bytes = of->m / m->ranks * of->n * 2, own = m->rank * bytes;
    te_gemm g = *of;
    te_gemm_ranks ranks;
    te_scatter a;
    memset(&a, 0, sizeof a);
    memset(&ranks, 0, sizeof ranks);
    ranks.group = group, ranks.memory = m, g.ranks = &ranks;
    a.y = y, a.ranks = m->ranks, a.slots = te__rank_room(m, m->rank);
    a.words = te__rank_words(m, m->rank) + TE_WORDS_TILES, a.turn = te__rank_words(m, m->rank) + TE_WORDS_TURN;
    a.many.ahead = a.slots + (m->rank == 0) * bytes - own;
    for (int r = 0; r < m->ranks; r++)
        a.to[r] = te__rank_room(m, r) + own,
        a.told[r] = te__rank_words(m, r) + TE_WORDS_TILES + m->rank * TE_RANK_TILES;
    TE_TRY(te__ranks_meet_now(m, ctx));
    m->scattered++;
    return te__hopper_run(kernel->kernel, &a, sizeof a, &a.many, &g, ctx);
}
/* The product that the step before has left, and the sum over the ranks: *takes, if one kernel does both. Else the
 * product, to now. */
TE_API te_status te__late_product(int *takes, te_run *r, te_value y, te_hopper_kernel *kernel) {
    const te_group *group = r->tensor;
    te_rank_memory *m = group->memory;
    te_gemm g = r->late.product;
    te_gemm_ranks order; /* for tests: the tiles in the order of that kernel */
    const int one = te_gemm_overlaps(r->late.bare, &g, group, r->ctx) && te__scatter_fits(&g, m) && !r->watch &&
                    (uintptr_t)y.p % TE_ACCESS == 0 && te__hopper_ready(kernel, TE_HOPPER_SHARED, r->ctx->device);
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
typedef struct te_hopper_kernel te_hopper_kernel;
#define TE_SCATTER_KERNEL(dtype, forward) 0
TE_API te_status te__late_product(int *takes, te_run *r, te_value y, te_hopper_kernel *kernel) {
    return (void)r, (void)y, (void)kernel, *takes = 0, TE_OK;
}
#endif

#endif
