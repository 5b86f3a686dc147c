/* gemm_hopper_run.h -- the host's side of gemm_hopper.h: which products its kernel takes, how their tiles are shared
 * out, the launch. */
/* target: cuda */
#ifndef TE_GEMM_HOPPER_RUN_H
#define TE_GEMM_HOPPER_RUN_H

#include "gemm_back_end_cuda.h" /* te__gemm_state */
#include "gemm_hopper.h"        /* te_hopper */

/* k in 16 bits: the copy engine and the ring take FP8 in pairs. */
TE_API int64_t te__hopper_k(const te_gemm *g) { return te_gemm_is_fp8(g) ? g->k / 2 : g->k; }
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
    TE_HOPPER_LEAST_ALONE = 32  /* where a cluster helps with several tiles, one after the other */
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
    if (p->ahead) TE_TRY(te__hopper_map(&p->c, encode, p->ahead, g->m, g->n, TE_TILE_M, g->dtype, ctx));
    const te_grid grid = te_grid_of((p->helpers ? clusters : te_min(clusters, tiles)) * TE_CLUSTER, 1);
    return te__cuda_launch(ctx, kernel, grid, TE_HOPPER_THREADS, TE_HOPPER_SHARED, TE_CLUSTER, args, bytes,
                           "matrix product");
}

#endif
