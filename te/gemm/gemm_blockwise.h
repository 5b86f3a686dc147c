/* gemm_blockwise.h -- FP8 GEMM with blockwise scaling (1 x 128 and 128 x 128) for any number of rows. cuBLASLt and the
 * kernel for Hopper (gemm_sm90_blockwise.h) require the number of rows to be a multiple of four; a kernel in this file
 * computes the remaining one to three rows.
 *
 * Do this:
 *     TE_GEMM_BLOCKWISE(my)                            // defines the kernel, my_run and my_takes_bias
 *     te_gemm g = te_gemm_of(rows, out, in);           // y[rows, out] = x[rows, in] w[out, in]^T
 *     g.a = x, g.b = w, g.trans_b = 1, g.d = y, g.dtype = g.out = TE_bf16;
 *     g.a_fp8.scaling = TE_SCALING_BLOCKWISE_1D, g.a_fp8.dtype = TE_e4m3, g.a_fp8.inverse = scales_of_x;
 *     g.b_fp8.scaling = TE_SCALING_BLOCKWISE_2D, g.b_fp8.dtype = TE_e4m3, g.b_fp8.inverse = scales_of_w;
 *     TE_TRY(my_run(&g, ctx));
 *
 * scales_of_x has one inverse scale for each row and each 128 columns (along k). scales_of_w has one inverse scale for
 * each block of 128 x 128 elements. te_scale_at defines the layout of both. my_takes_bias returns whether my_run can
 * also add a bias (g.epilogue), which cuBLASLt cannot. my_run returns an error if A's scaling is not
 * TE_SCALING_BLOCKWISE_1D, or if te__gemm_check_run finds an invalid argument.
 *
 * The kernel for the last one to three rows of D: each warp computes one column of these rows. To compute column j, a
 * warp reads row j of B, 16 bytes per lane at a time, and the last rows of A. Lower bound of its time: B is read once,
 * n * k bytes, at the memory bandwidth.
 */
#ifndef TE_GEMM_BLOCKWISE_H
#define TE_GEMM_BLOCKWISE_H

#include "../core/dtype.h" /* te_load8_fp8 */
#include "gemm.h"            /* te_gemm_run */
#if TE_CUDA && !defined(TE_KEEP_CALLS)
#include "impl/gemm_sm90_blockwise.h" /* te__gemm_blockwise_run, te__gemm_blockwise_takes_bias */
#else
TE_IF_USED TE_API te_status te__gemm_blockwise_run(const te_gemm *g, te_context *ctx) { return te_gemm_run(g, ctx); }
TE_IF_USED TE_API int te__gemm_blockwise_takes_bias(const te_gemm *g, te_context *ctx) {
    return (void)g, (void)ctx, 0;
}
#endif

enum {
    TE_GEMM_TAIL_ROWS = 3,
    TE_GEMM_TAIL_LANES = TE_CUDA ? 32 : 1,
    TE_GEMM_TAIL_THREADS = TE_CUDA ? 256 : 1,
    TE_GEMM_TAIL_WARPS = TE_GEMM_TAIL_THREADS / TE_GEMM_TAIL_LANES,
    /* number of elements along k that a lane loads at a time; all of them have the same scale */
    TE_GEMM_TAIL_VECTOR = 16
};

TE_FN void te__gemm_tail_load(float v[TE_GEMM_TAIL_VECTOR], const void *p, int64_t at, te_dtype t) {
    te_load8_fp8(v, p, at, 8, 1, t), te_load8_fp8(v + 8, p, at + 8, 8, 1, t);
}
/* Compute the last m % 4 rows of D. Each block computes TE_GEMM_TAIL_WARPS columns of these rows, one column per
 * warp. */
TE_FN void te__gemm_tail_body(const te_gemm *g, te_block b) {
    int group;
    te_lanes l = te_lanes_here(TE_GEMM_TAIL_LANES, &group);
    const int64_t col = (int64_t)b.x * TE_GEMM_TAIL_WARPS + group, first = te_blockwise_1d_aligned_rows(g->m),
                  rows = g->m - first;
    float sum[TE_GEMM_TAIL_ROWS] = {0, 0, 0};
    if (col >= g->n) return;
    for (int64_t k = TE_GEMM_TAIL_VECTOR * l.id; k < g->k; k += TE_GEMM_TAIL_VECTOR * l.count) {
        float of_b[TE_GEMM_TAIL_VECTOR], of_a[TE_GEMM_TAIL_VECTOR];
        te__gemm_tail_load(of_b, g->b, col * g->k + k, g->b_fp8.dtype);
        const float scale = g->b_fp8.inverse[te_scale_at(g->b_fp8.scaling, g->n, g->k, col, k)];
        TE_UNROLL for (int r = 0; r < TE_GEMM_TAIL_ROWS; r++) {
            float part = 0;
            if (r >= rows) continue;
            te__gemm_tail_load(of_a, g->a, (first + r) * g->k + k, g->a_fp8.dtype);
            TE_UNROLL for (int i = 0; i < TE_GEMM_TAIL_VECTOR; i++) part += of_a[i] * of_b[i];
            sum[r] += part * (g->a_fp8.inverse[te_scale_at(g->a_fp8.scaling, g->m, g->k, first + r, k)] * scale);
        }
    }
    te_lanes_sum(sum, TE_GEMM_TAIL_ROWS, &l);
    if (l.id != 0) return;
    TE_UNROLL for (int r = 0; r < TE_GEMM_TAIL_ROWS; r++) {
        if (r >= rows) continue;
        const int64_t at = (first + r) * g->n + col;
        const float c = g->beta != 0 ? g->beta * te__load_wide(g->c, at, g->out) : 0.0f;
        const float bias = g->epilogue == TE_EPILOGUE_BIAS ? te__load_wide(g->bias, col, g->dtype) : 0.0f;
        te__store_wide(g->d, at, g->alpha * sum[r] + c + bias, g->out);
    }
}

typedef te_status (*te__gemm_fn)(const te_gemm *g, te_context *ctx);
typedef te_status (*te__gemm_tail_fn)(te_context *ctx, te_grid grid, const te_gemm *g);
/* Runs the GEMM in two parts: `run` computes the first rows of D, whose number is a multiple of four, as a smaller GEMM
 * on the same matrices; `tail` computes the remaining one to three rows. who: the caller's name, for error texts. */
TE_API te_status te__gemm_blockwise(const te_gemm *g, te__gemm_fn run, te__gemm_tail_fn tail, const char *who,
                                    te_context *ctx) {
    te_gemm bulk = g ? *g : te_gemm_of(0, 0, 0);
    TE_TRY(te__gemm_check_run(g, who, ctx));
    TE_REQUIRE(g->a_fp8.scaling == TE_SCALING_BLOCKWISE_1D, ctx, TE_ERROR_VALUE,
               "%s: A has scales of %s; these products take 1x128", who, te_scaling_name(g->a_fp8.scaling));
    bulk.m = te_blockwise_1d_aligned_rows(g->m);
    if (bulk.m) TE_TRY(run(&bulk, ctx));
    if (bulk.m == g->m || !g->n) return TE_OK;
    return tail(ctx, te__grid_of(te_ceil_div(g->n, TE_GEMM_TAIL_WARPS), 1), g);
}
/* Defines te_status name_run(const te_gemm *, te_context *), int name_takes_bias(const te_gemm *, te_context *), and
 * the kernel name_tail, which computes the last rows. */
#define TE_GEMM_BLOCKWISE(name)                                                                                \
    TE_KERNEL(name##_tail, TE_GEMM_TAIL_THREADS, te_gemm, te__gemm_tail_body(te_args, te_at))                         \
    TE_API te_status name##_run(const te_gemm *g, te_context *ctx) {                                       \
        return te__gemm_blockwise(g, te__gemm_blockwise_run, name##_tail_launch, #name, ctx);                      \
    }                                                                                                      \
    TE_API int name##_takes_bias(const te_gemm *g, te_context *ctx) { return te__gemm_blockwise_takes_bias(g, ctx); }

#endif
