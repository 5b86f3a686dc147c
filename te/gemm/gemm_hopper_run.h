/* gemm_hopper_run.h -- the host's side of gemm_hopper.h: which products its kernel takes, how their tiles are shared
 * out, the launch. */
/* target: cuda */
#ifndef TE_GEMM_HOPPER_RUN_H
#define TE_GEMM_HOPPER_RUN_H

#include "gemm_back_end_cuda.h" /* te__gemm_state */
#include "gemm_hopper.h"        /* te_hopper */
#include "gemm_ranks_run.h"     /* te__gather_launch */

/* k in 16 bits: the copy engine and the ring take FP8 in pairs. */
TE_API int64_t te__hopper_k(const te_gemm *g) { return te_gemm_is_fp8(g) ? g->k / 2 : g->k; }
/* Bytes of a row of A. */
TE_API int64_t te__hopper_pitch(const te_gemm *g) { return 2 * te__hopper_k(g); }
/* Whether a kernel takes such a product: 16 bits, or FP8 with fast accumulation to 16 bits; rows of A, B and D that are
 * multiples of 16 bytes, k of more than three steps. */
TE_API int te__hopper_can(const te_gemm *g) {
    const int64_t most = 1 << 30, k = te__hopper_k(g);
    return g->dtype != TE_f32 && g->out == g->dtype && !g->trans_a && k > 3 * TE_TILE_K && k % 8 == 0 &&
           g->n % 8 == 0 && g->m < most && g->n < most && g->k < most && g->epilogue == TE_EPILOGUE_NONE &&
           (!te_gemm_is_fp8(g) || (g->fast && g->trans_b && g->k % 16 == 0 && !te_gemm_is_fine_grained(g)));
}
enum {
    TE_HOPPER_MOST_PARTS = 6,   /* of a tile's k, each of which is handed over in 4 us */
    TE_HOPPER_LEAST_STEPS = 8,  /* of k in a part */
    TE_HOPPER_LEAST_ALONE = 16  /* where a cluster helps with several tiles, one after the other: at 8192 x 6144 x 4096
                                 * with 24 for 42 left, 21 steps each, 645 us, not shared out 650 */
};

/* Parts of the last round's tiles for the clusters that have none in it: up to three for a tile, or one cluster for
 * several tiles. Not where a part is so short that handing it over, some 4 us, takes longer. */
TE_API void te__hopper_share(te_hopper *p, int64_t tiles, int clusters, te__gemm_state *s) {
    const int left = (int)(tiles % clusters), helpers = clusters - left, steps = (p->k + TE_TILE_K - 1) / TE_TILE_K;
    const int each = left ? (int)te_max(1, te_min(3, helpers / left)) : 1,
              parts = each + (left ? (int)te_ceil_div(left, helpers) : 1);
    const size_t bytes = (size_t)(left * each) * TE_CLUSTER * TE_TILE_M * TE_TILE_N * sizeof(float);
    p->left = left, p->each = each, p->parts = parts, p->rounds = (int)(tiles / clusters), p->helpers = helpers;
    p->given = (float *)s->workspace, p->ready = (uint32_t *)(void *)((char *)s->workspace + TE_GEMM_WORKSPACE);
    const int fits = left <= TE_GEMM_LEFT && bytes <= TE_GEMM_WORKSPACE && parts <= TE_HOPPER_MOST_PARTS;
    const int least = left > helpers ? TE_HOPPER_LEAST_ALONE : TE_HOPPER_LEAST_STEPS;
    if (!left || !fits || steps < least * parts) p->helpers = 0, p->rounds = INT32_MAX; /* nothing is shared out */
}
TE_API int64_t te__hopper_tiles(const te_gemm *g) {
    return te_ceil_div(g->m, TE_CLUSTER * TE_TILE_M) * te_ceil_div(g->n, TE_TILE_N);
}
/* Whether the last round of this product is full, or shared out. */
TE_API int te__hopper_is_even(const te_gemm *g, te_context *ctx) {
    te_hopper p;
    p.k = (int)te__hopper_k(g);
    te__hopper_share(&p, te__hopper_tiles(g), ctx->processors / TE_CLUSTER, te__gemm_state_of(ctx));
    return !p.left || p.helpers > 0;
}
/* Whether a product of this many rows can overlap a collective of this group: whole tiles of each rank. */
TE_API int te__hopper_can_overlap(const te_gemm *g, const te_group *group) {
    const te_rank_memory *m = group->memory;
    return TE_OVERLAPS && m && te__hopper_can(g) && g->m > 0 &&
           g->m % (group->size * TE_CLUSTER * TE_TILE_M) == 0;
}
/* The order of its tiles: this rank's own rows first, or last where D is scattered; and what A is waited for by. */
TE_API te_status te__hopper_overlap(te_hopper *p, const te_gemm *g, te__encode_fn encode, te_context *ctx) {
    const te_gemm_ranks *ranks = g->ranks;
    const te_rank_memory *m = ranks->memory;
    const int rank = ranks->group->rank, size = ranks->group->size, each = (int)(g->m / size);
    const int high = each / (TE_CLUSTER * TE_TILE_M);
    te_hopper_ranks *r = &p->ranks;
    r->rank = rank, r->each = each, r->band = (int)te_min(TE_HOPPER_BAND, high);
    r->first = (ranks->own ? rank : (rank + 1) % size) * high, r->turns = ranks->turns ? size : 0;
#if TE_OVERLAPS
    r->waits = te__rank_waits_of(m);
#endif
    if (!ranks->own || m->serial) return TE_OK;
    r->piece = te__rank_piece(each, te__hopper_pitch(g), TE_CLUSTER * TE_TILE_M);
    r->owns = ranks->to[rank] != ranks->own;
    r->arrived = te__rank_words(m, rank) + TE_WORDS_ARRIVED;
    if (!r->owns) return TE_OK;
    return te__hopper_map(&p->own, encode, ranks->own, each, te__hopper_k(g), TE_TILE_M, g->dtype, ctx);
}
/* The rows of A that are not there yet, one after the other with the product: for tests. */
TE_API te_status te__hopper_gather(const te_gemm *g, te_context *ctx) {
    const te_gemm_ranks *ranks = g->ranks;
    return te_group_all_gather(ranks->group, (void *)(uintptr_t)g->a, ranks->own,
                               g->m / ranks->group->size * te__hopper_k(g), g->dtype, ctx);
}
TE_API te_status te__hopper_launch(const void *kernel, te_grid grid, const void *args, size_t bytes,
                                   const te_hopper *p, const te_gemm *g, te_context *ctx) {
#if TE_OVERLAPS
    if (p->ranks.arrived) {
        te_launch l;
        memset(&l, 0, sizeof l);
        l.kernel = kernel, l.name = "matrix product", l.grid = grid, l.threads = TE_HOPPER_THREADS,
        l.shared = TE_HOPPER_SHARED, l.cluster = TE_CLUSTER, l.overlap = te__cuda_overlaps(ctx), l.bytes = (int)bytes;
        return te__gather_launch(&l, args, g, te__hopper_pitch(g), p->ranks.piece, ctx);
    }
#endif
    (void)p; /* its arguments, which only such a launch looks at */
    if (g->ranks && g->ranks->own) TE_TRY(te__hopper_gather(g, ctx));
    return te__cuda_launch(ctx, kernel, grid, TE_HOPPER_THREADS, TE_HOPPER_SHARED, TE_CLUSTER, args, bytes,
                           "matrix product");
}
/* Fill in p for the product, and launch `kernel` on the `bytes` of `args`, of which p is the first member. */
TE_API te_status te__hopper_run(const void *kernel, const void *args, size_t bytes, te_hopper *p, const te_gemm *g,
                                te_context *ctx) {
    const te__encode_fn encode = te__encode_of(ctx);
    const int64_t tiles = te__hopper_tiles(g), k = te__hopper_k(g);
    const int clusters = ctx->processors / TE_CLUSTER;
    p->alpha = g->alpha, p->m = (int)g->m, p->n = (int)g->n, p->k = (int)k, p->tiles = (int)tiles;
    p->inverse_a = g->a_fp8.inverse, p->inverse_b = g->b_fp8.inverse;
    te__hopper_share(p, tiles, clusters, te__gemm_state_of(ctx));
    TE_TRY(te__hopper_map(&p->a, encode, g->a, g->m, k, TE_TILE_M, g->dtype, ctx));
    TE_TRY(te__hopper_map(&p->b, encode, g->b, g->trans_b ? g->n : k, g->trans_b ? k : g->n, 64, g->dtype, ctx));
    const int64_t wide = g->n << p->ahead_twice;
    if (p->ahead) TE_TRY(te__hopper_map(&p->c, encode, p->ahead, g->m, wide, TE_TILE_M, g->dtype, ctx));
    const te_grid grid = te_grid_of((p->helpers ? clusters : te_min(clusters, tiles)) * TE_CLUSTER, 1);
    if (g->ranks) TE_TRY(te__hopper_overlap(p, g, encode, ctx));
    return te__hopper_launch(kernel, grid, args, bytes, p, g, ctx);
}

#endif
