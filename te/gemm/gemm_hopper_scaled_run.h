/* gemm_hopper_scaled_run.h -- the host's side of gemm_hopper_scaled.h: which products it takes, and whether it does.
 *
 * Do this:
 *     TE_TRY(te_gemm_scaled_run(&g, ctx));             // as te_gemm_run, of scales of tiles
 *
 * With ctx->gemm_tune on both it and cuBLASLt are timed at a product's first run, and the choice goes into the tuning
 * file (te_split: bare is cuBLASLt, own is ours); else a rule decides.
 */
/* target: cuda */
#ifndef TE_GEMM_HOPPER_SCALED_RUN_H
#define TE_GEMM_HOPPER_SCALED_RUN_H

#include "gemm_fp8.h"           /* te__fp8_tune */
#include "gemm_hopper_scaled.h" /* te_fine_many */

enum { TE_FINE_LEAST_K = (int)TE_FINE_STEPS * TE_FP8_BLOCK };

/* Whether it is a weight's gradient: D in f32, and B with a scale for each row, too. */
TE_API int te__fine_has_columns(const te_gemm *g) { return g->b_fp8.scaling == TE_SCALING_TILES; }
/* Whether a kernel takes such a product. Nothing is added to it but a bias: for more the registers do not suffice. */
TE_API int te__fine_can(const te_gemm *g) {
    const int64_t most = 1 << 30;
    const te_gemm_fp8 *a = &g->a_fp8, *b = &g->b_fp8;
    const int fits = te__fine_has_columns(g) ? g->out == TE_f32
                                             : b->scaling == TE_SCALING_BLOCKS && g->out == g->dtype &&
                                                   g->dtype != TE_f32;
    return a->scaling == TE_SCALING_TILES && fits && a->dtype == TE_e4m3 && b->dtype == TE_e4m3 && g->beta == 0 &&
           !g->trans_a && g->trans_b && g->k >= TE_FINE_LEAST_K &&
           (g->epilogue == TE_EPILOGUE_NONE || (g->epilogue == TE_EPILOGUE_BIAS && !te__fine_has_columns(g))) &&
           g->k % 16 == 0 && g->n % 16 == 0 && g->m == te_tile_rows(g->m) && g->m > 0 && g->n > 0 && g->m < most &&
           g->n < most && g->k < most;
}
/* How the copy engine sees scales: rows of `cols` floats, in boxes of high x wide. */
TE_API te_status te__fine_map(CUtensorMap *map, te__encode_fn encode, const float *scales, int64_t rows, int64_t cols,
                              int high, int wide, te_context *ctx) {
    const cuuint64_t size[2] = {(cuuint64_t)cols, (cuuint64_t)rows}, pitch[1] = {(cuuint64_t)cols * 4};
    const cuuint32_t box[2] = {(cuuint32_t)wide, (cuuint32_t)high}, step[2] = {1, 1};
    const CUresult e = encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, (void *)(uintptr_t)scales, size, pitch, box,
                              step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    TE_REQUIRE(e == CUDA_SUCCESS, ctx, TE_ERROR_CUDA, "cuTensorMapEncodeTiled: error %d", (int)e);
    return TE_OK;
}
TE_IF_USED TE_API te_hopper_kernel *te__fine_kernel(const te_gemm *g) {
    static te_hopper_kernel kernels[2] = {{(const void *)te_fine_many<0>, 0, 0}, {(const void *)te_fine_many<1>, 0, 0}};
    return &kernels[te__fine_has_columns(g)];
}
/* An operand of `rows` rows, and its scales of 1 x 128. */
TE_API te_status te__fine_operand(CUtensorMap *map, CUtensorMap *scales, const void *data, const te_gemm_fp8 *is,
                                  int64_t rows, int wide, const te_gemm *g, te_context *ctx) {
    const te__encode_fn encode = te__encode_of(ctx);
    TE_TRY(te__hopper_map(map, encode, data, rows, g->k / 2, TE_TILE_M, g->dtype, ctx));
    if (is->scaling == TE_SCALING_TILES)
        return te__fine_map(scales, encode, is->inverse, te_fp8_blocks(g->k), rows, 1, wide, ctx);
    return te__fine_map(scales, encode, is->inverse, te_fp8_blocks(rows), te_block_scales(g->k), 2, 4, ctx);
}
TE_IF_USED TE_API te_status te__fine_run(const te_gemm *g, te_context *ctx) {
    const int columns = te__fine_has_columns(g);
    const int64_t tiles = te__hopper_tiles(g);
    te_fine p;
    memset(&p, 0, sizeof p);
    p.many.m = (int)(columns ? g->n : g->m), p.many.n = (int)(columns ? g->m : g->n), p.many.k = (int)(g->k / 2);
    p.many.alpha = g->alpha, p.many.tiles = (int)tiles, p.d = g->d, p.dtype = g->out;
    p.bias = g->epilogue == TE_EPILOGUE_BIAS ? g->bias : 0;
    TE_TRY(te__fine_operand(columns ? &p.many.b : &p.many.a, columns ? &p.wide : &p.narrow, g->a, &g->a_fp8, g->m,
                            columns ? TE_TILE_N : TE_TILE_M, g, ctx));
    TE_TRY(te__fine_operand(columns ? &p.many.a : &p.many.b, columns ? &p.narrow : &p.wide, g->b, &g->b_fp8, g->n,
                            TE_TILE_M, g, ctx));
    const te_grid grid = te_grid_of(te_min(ctx->processors / TE_CLUSTER, tiles) * TE_CLUSTER, 1);
    return te__cuda_launch(ctx, te__fine_kernel(g)->kernel, grid, TE_HOPPER_THREADS, TE_FINE_SHARED, TE_CLUSTER, &p,
                           sizeof p, "matrix product");
}

/* ---- who runs it ------------------------------------------------------------------------------------------------- */

TE_IF_USED TE_API int te__fine_is_there(const te_gemm *g, te_context *ctx) {
    return ctx->gemm_own && te__fine_can(g) && te__encode_of(ctx) &&
           te__hopper_ready(te__fine_kernel(g), TE_FINE_SHARED, ctx->device);
}
TE_IF_USED TE_API int te__fine_chosen(const te_gemm *g, te_context *ctx) {
    const int chosen = te__fp8_chosen(g, ctx);
    return chosen < 0 ? te__hopper_pays(g, ctx) : chosen;
}
/* Whether a product that may take a bias along does: where our kernel is the faster one without. */
TE_IF_USED TE_API int te_gemm_scaled_takes_bias(const te_gemm *g, te_context *ctx) {
    te_gemm bare = *g;
    bare.m = te_tile_rows(g->m), bare.epilogue = TE_EPILOGUE_NONE;
    return g->beta == 0 && te__fine_is_there(&bare, ctx) && te__fp8_tune(&bare, te__fine_run<>, ctx) == TE_OK &&
           te__fine_chosen(&bare, ctx);
}
TE_IF_USED TE_API te_status te_gemm_scaled_run(const te_gemm *g, te_context *ctx) {
    if (!te__fine_is_there(g, ctx)) return te_gemm_run(g, ctx);
    if (g->epilogue == TE_EPILOGUE_BIAS) return te__fine_run(g, ctx);
    TE_TRY(te__fp8_tune(g, te__fine_run<>, ctx));
    return te__fine_chosen(g, ctx) ? te__fine_run(g, ctx) : te_gemm_run(g, ctx);
}

#endif
