/* gemm_tiles.h -- FP8 products with scales of tiles, of any number of rows: cuBLASLt's, which takes multiples of four,
 * and a kernel for the rows that are left.
 *
 * Do this:
 *     TE_GEMM_TILES(tiles)                             // the kernel, and tiles_run
 *     te_gemm g = te_gemm_of(rows, out, in);           // y[rows, out] = x[rows, in] w[out, in]^T
 *     g.a = x, g.b = w, g.trans_b = 1, g.d = y, g.dtype = g.out = TE_bf16;
 *     g.a_fp8.scaling = TE_SCALING_TILES, g.a_fp8.dtype = TE_e4m3, g.a_fp8.inverse = scales_of_x;
 *     g.b_fp8.scaling = TE_SCALING_BLOCKS, g.b_fp8.dtype = TE_e4m3, g.b_fp8.inverse = scales_of_w;
 *     TE_TRY(tiles_run(&g, ctx));
 *
 * The kernel: a warp has a column of D, a row of B, whose 16 bytes a lane loads at a time; up to three rows of A.
 * Bytes: B once, n k; the floor is that over the rate of memory.
 *
 * On compute capability 9.0 kernels of our own take these products where they are faster than cuBLASLt's
 * (gemm_hopper_scaled_run.h). tiles_takes_bias says where they add a bias, too, which cuBLASLt does not.
 */
#ifndef TE_GEMM_TILES_H
#define TE_GEMM_TILES_H

#include "../core/fp8_vec.h" /* te_load8_fp8 */
#include "gemm.h"            /* te_gemm_run */
#if TE_CUDA && !defined(TE_KEEP_CALLS)
#include "gemm_hopper_scaled_run.h" /* te_gemm_scaled_run */
#else
TE_IF_USED TE_API te_status te_gemm_scaled_run(const te_gemm *g, te_context *ctx) { return te_gemm_run(g, ctx); }
TE_IF_USED TE_API int te_gemm_scaled_takes_bias(const te_gemm *g, te_context *ctx) { return (void)g, (void)ctx, 0; }
#endif

enum {
    TE_TAIL_ROWS = 3,
    TE_TAIL_LANES = TE_CUDA ? 32 : 1,
    TE_TAIL_THREADS = TE_CUDA ? 256 : 1,
    TE_TAIL_GROUPS = TE_TAIL_THREADS / TE_TAIL_LANES,
    TE_TAIL_PIECE = 16 /* elements of k that a lane takes at a time; they share a scale */
};

TE_FN void te__tail_load(float v[TE_TAIL_PIECE], const void *p, int64_t at, te_dtype t) {
    te_load8_fp8(v, p, at, 8, 1, t), te_load8_fp8(v + 8, p, at + 8, 8, 1, t);
}
TE_FN void te_tail_body(const te_gemm *g, te_block b) {
    int group;
    te_lanes l = te_lanes_here(TE_TAIL_LANES, &group);
    const int64_t col = (int64_t)b.x * TE_TAIL_GROUPS + group, first = te_tile_rows(g->m), rows = g->m - first;
    float sum[TE_TAIL_ROWS] = {0, 0, 0};
    if (col >= g->n) return;
    for (int64_t k = TE_TAIL_PIECE * l.id; k < g->k; k += TE_TAIL_PIECE * l.count) {
        float of_b[TE_TAIL_PIECE], of_a[TE_TAIL_PIECE];
        te__tail_load(of_b, g->b, col * g->k + k, g->b_fp8.dtype);
        const float scale = g->b_fp8.inverse[te_scale_at(g->b_fp8.scaling, g->n, g->k, col, k)];
        TE_UNROLL for (int r = 0; r < TE_TAIL_ROWS; r++) {
            float part = 0;
            if (r >= rows) continue;
            te__tail_load(of_a, g->a, (first + r) * g->k + k, g->a_fp8.dtype);
            TE_UNROLL for (int i = 0; i < TE_TAIL_PIECE; i++) part += of_a[i] * of_b[i];
            sum[r] += part * (g->a_fp8.inverse[te_scale_at(g->a_fp8.scaling, g->m, g->k, first + r, k)] * scale);
        }
    }
    te_lanes_sum(sum, TE_TAIL_ROWS, &l);
    if (l.id != 0) return;
    TE_UNROLL for (int r = 0; r < TE_TAIL_ROWS; r++) {
        if (r >= rows) continue;
        const int64_t at = (first + r) * g->n + col;
        const float c = g->beta != 0 ? g->beta * te__load_wide(g->c, at, g->out) : 0.0f;
        const float bias = g->epilogue == TE_EPILOGUE_BIAS ? te__load_wide(g->bias, col, g->dtype) : 0.0f;
        te__store_wide(g->d, at, g->alpha * sum[r] + c + bias, g->out);
    }
}

typedef te_status (*te__most_fn)(const te_gemm *g, te_context *ctx);
typedef te_status (*te__tail_fn)(te_context *ctx, te_grid grid, const te_gemm *g);
/* The rows that `run` takes, whose operands lie as those of a product of so many rows, and the others. */
TE_API te_status te__gemm_tiles(const te_gemm *g, te__most_fn run, te__tail_fn tail, const char *who, te_context *ctx) {
    te_gemm most = g ? *g : te_gemm_of(0, 0, 0);
    TE_TRY(te__gemm_check_run(g, who, ctx));
    TE_REQUIRE(g->a_fp8.scaling == TE_SCALING_TILES, ctx, TE_ERROR_VALUE,
               "%s: A has scales of %s; these products are of tiles", who, te_scaling_name(g->a_fp8.scaling));
    most.m = te_tile_rows(g->m);
    if (most.m) TE_TRY(run(&most, ctx));
    if (most.m == g->m || !g->n) return TE_OK;
    return tail(ctx, te_grid_of(te_ceil_div(g->n, TE_TAIL_GROUPS), 1), g);
}
#define TE_GEMM_TILES(name)                                                                                \
    TE_KERNEL(name##_tail, TE_TAIL_THREADS, te_gemm, te_tail_body(te_args, te_at))                         \
    TE_API te_status name##_run(const te_gemm *g, te_context *ctx) {                                       \
        return te__gemm_tiles(g, te_gemm_scaled_run, name##_tail_launch, #name, ctx);                      \
    }                                                                                                      \
    TE_API int name##_takes_bias(const te_gemm *g, te_context *ctx) { return te_gemm_scaled_takes_bias(g, ctx); }

#endif
