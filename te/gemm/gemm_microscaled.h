/* gemm_microscaled.h -- GEMMs of two operands in MXFP8 or NVFP4, with the elements and scales that their casts store.
 *
 * Do this:
 *     TE_GEMM_MICROSCALED(my)                            // defines kernels and my_run
 *     te_gemm_microscaled g = te_gemm_microscaled_of(TE_MXFP8, rows, out, in);     // y[rows, out] = x w^T
 *     g.a.data = x_data, g.a.scales = x_scales, g.b.data = w_data, g.b.scales = w_scales, g.d = y, g.out = TE_bf16;
 *     TE_TRY(my_run(&g, &ctx));                          // the scales are swizzled (te_quantize_microscaled.swizzled)
 *
 * On compute capability 10.x and 12.x cuBLASLt runs the GEMM, on tensor cores of these formats. CI compiles this call
 * of cuBLASLt, but it has never run. On other GPUs and on the host a slow plain kernel computes each element of D by a
 * loop over k. This kernel reads operands in the layout that cuBLASLt requires, so that a test can check this layout
 * without such a GPU (tests/microscaled_test.cc). The training recipes (te/optim/recipes.h) do not use this header:
 * they emulate both formats with GEMMs in 16 bits or f32 (te/linear/impl/linear_microscaled.h).
 */
#ifndef TE_GEMM_MICROSCALED_H
#define TE_GEMM_MICROSCALED_H

#include "../fp8/microscaled.h" /* te_microscaled_shape */
#include "gemm.h"               /* te_context.gemm */

/* An operand: a matrix [lines, k]. Each block of elements that share a scale lies within one line, i.e. along k. */
typedef struct te_microscaled_operand {
    const uint8_t *data, *scales; /* the elements, and the swizzled scales */
    const float *amax; /* for NVFP4: points to the largest |x| of the tensor, namely to te_quantize_microscaled.amax[0]
                        * if the operand is rowwise, to amax[1] if it is columnwise. Null for MXFP8 */
    int columnwise;    /* 1 if `data` is the columnwise output (te_quantize_microscaled.yt) of the cast of a matrix
                        * [k, lines]; 0 if `data` is the rowwise output (y) of the cast of a matrix [lines, k] */
} te_microscaled_operand;

/* A GEMM: D = A B^T or, if `adds` is 1, D = D + A B^T. A is m x k, B is n x k, D is [m, n] in row-major order. */
typedef struct te_gemm_microscaled {
    te_microscaling format;
    int64_t m, n, k;
    te_microscaled_operand a, b;
    void *d;
    te_dtype out; /* the dtype of D: f32, bf16 or f16 */
    int adds;
    float *factors; /* [2], for NVFP4: scratch memory on the device, into which a kernel stores the alpha and beta of
                     * the GEMM */
} te_gemm_microscaled;

TE_API te_gemm_microscaled te_gemm_microscaled_of(te_microscaling format, int64_t m, int64_t n, int64_t k) {
    te_gemm_microscaled g;
    memset(&g, 0, sizeof g);
    g.format = format, g.m = m, g.n = n, g.k = k, g.out = TE_bf16;
    return g;
}

/* ---- the plain kernel -------------------------------------------------------------------------------------------- */

enum { TE_GEMM_MICROSCALED_THREADS = TE_CUDA ? 256 : 1, TE_GEMM_MICROSCALED_COLS = TE_CUDA ? 1 : 64 };

/* Returns the sizes and the layout (te_microscaled_shape) in which a cast has stored this operand. */
TE_BOTH te_microscaled_shape te__operand_shape(te_microscaling format, const te_microscaled_operand *o, int64_t lines,
                                               int64_t k) {
    return te_microscaled_shape_of(format, o->columnwise ? k : lines, o->columnwise ? lines : k, o->columnwise, 1);
}
/* Returns the operand's element at [line, k], before the multiplication by the scale of its block. */
TE_FN float te__operand_element(te_microscaling format, const te_microscaled_operand *o, const te_microscaled_shape *s,
                                int64_t line, int64_t k) {
    if (format == TE_NVFP4) return te_float_of_e2m1((uint8_t)(o->data[line * s->pitch + k / 2] >> k % 2 * 4 & 0xf));
    return te_float_of_e4m3(o->data[o->columnwise ? k * s->pitch + line : line * s->pitch + k]);
}
TE_FN float te__operand_scale(te_microscaling format, const te_microscaled_operand *o, const te_microscaled_shape *s,
                              int64_t line, int64_t block) {
    const uint8_t code = o->scales[te_swizzled_scale_at(s->blocks, line, block)];
    return format == TE_NVFP4 ? te_float_of_ue4m3(code) : te_float_of_e8m0(code);
}
/* Returns the number by which each sum over k is multiplied: for NVFP4 the product of the two operands' tensorwise
 * scales; for MXFP8, which has no tensorwise scales, 1. */
TE_FN float te__microscaled_alpha(const te_gemm_microscaled *g) {
    if (g->format == TE_MXFP8) return 1.0f;
    return *g->a.amax / (TE_E2M1_MAX * TE_E4M3_MAX) * (*g->b.amax / (TE_E2M1_MAX * TE_E4M3_MAX));
}
TE_FN void te__microscaled_element_of_d(const te_gemm_microscaled *g, const te_microscaled_shape *a,
                                        const te_microscaled_shape *b, int64_t row, int64_t col) {
    const int block = g->format == TE_MXFP8 ? TE_MXFP8_BLOCK : TE_NVFP4_BLOCK;
    float sum = 0.0f;
    for (int64_t i = 0; i < a->blocks; i++) {
        float part = 0.0f;
        for (int64_t k = i * block; k < te_min((i + 1) * block, g->k); k++)
            part += te__operand_element(g->format, &g->a, a, row, k) * te__operand_element(g->format, &g->b, b, col, k);
        sum += part * te__operand_scale(g->format, &g->a, a, row, i) * te__operand_scale(g->format, &g->b, b, col, i);
    }
    const int64_t at = row * g->n + col;
    const float before = g->adds ? te__load_wide(g->d, at, g->out) : 0.0f;
    te__store_wide(g->d, at, sum * te__microscaled_alpha(g) + before, g->out);
}
TE_FN void te_gemm_microscaled_body(const te_gemm_microscaled *g, te_block b) {
    int group;
    const te_lanes l = te_lanes_here(TE_GEMM_MICROSCALED_THREADS, &group);
    const te_microscaled_shape of_a = te__operand_shape(g->format, &g->a, g->m, g->k),
                               of_b = te__operand_shape(g->format, &g->b, g->n, g->k);
    const int64_t first = ((int64_t)b.x * l.count + l.id) * TE_GEMM_MICROSCALED_COLS;
    for (int64_t i = first; i < te_min(first + TE_GEMM_MICROSCALED_COLS, g->m * g->n); i++)
        te__microscaled_element_of_d(g, &of_a, &of_b, i / g->n, i % g->n);
}
/* Stores alpha and beta in device memory, from where cuBLASLt's GEMM reads them. */
TE_FN void te_microscaled_factors_body(const te_gemm_microscaled *g) {
    int group;
    if (te_lanes_here(32, &group).id) return;
    g->factors[0] = te__microscaled_alpha(g), g->factors[1] = g->adds ? 1.0f : 0.0f;
}

/* ---- cuBLASLt ---------------------------------------------------------------------------------------------------- */

typedef te_status (*te__gemm_microscaled_fn)(te_context *ctx, te_grid grid, const te_gemm_microscaled *g);
#if TE_CUDA && !defined(TE_NO_CUBLASLT)
/* Sets *layout to cuBLASLt's layout of an operand of `lines` x k; cuBLASLt's matrices are column-major. Returns the
 * transpose operation with which cuBLASLt reads the operand as a matrix k x lines. */
TE_API cublasOperation_t te__microscaled_layout(cublasLtMatrixLayoutOpaque_t *layout, const te_gemm_microscaled *g,
                                                const te_microscaled_operand *o, int64_t lines) {
    /* NVFP4's columnwise data is transposed, so that the elements of a line are contiguous, as in rowwise data */
    const int along_k = g->format == TE_NVFP4 || !o->columnwise;
    const int64_t first = along_k ? g->k : lines, second = along_k ? lines : g->k;
    (void)cublasLtMatrixLayoutInit(layout, g->format == TE_NVFP4 ? CUDA_R_4F_E2M1 : CUDA_R_8F_E4M3, (uint64_t)first,
                                   (uint64_t)second, first);
    return along_k ? CUBLAS_OP_N : CUBLAS_OP_T;
}
/* Fill in the plan's descriptor and layouts. What cuBLASLt calls A is this library's B, because cuBLASLt's matrices are
 * column-major (gemm_cublaslt.h). */
TE_API void te__microscaled_describe(te__gemm_plan *p, const te_gemm_microscaled *g) {
    const cublasOperation_t of_a = te__microscaled_layout(&p->b, g, &g->a, g->m),
                            of_b = te__microscaled_layout(&p->a, g, &g->b, g->n) == CUBLAS_OP_N ? CUBLAS_OP_T
                                                                                                : CUBLAS_OP_N;
    const int32_t mode = g->format == TE_NVFP4 ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3
                                               : CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    const int32_t pointers = g->format == TE_NVFP4 ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST;
    (void)cublasLtMatrixLayoutInit(&p->d, te__cuda_type(g->out), (uint64_t)g->n, (uint64_t)g->m, g->n);
    (void)cublasLtMatmulDescInit(&p->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    te__gemm_set_attribute(p, CUBLASLT_MATMUL_DESC_TRANSA, &of_b, sizeof of_b);
    te__gemm_set_attribute(p, CUBLASLT_MATMUL_DESC_TRANSB, &of_a, sizeof of_a);
    te__gemm_set_attribute(p, CUBLASLT_MATMUL_DESC_POINTER_MODE, &pointers, sizeof pointers);
    te__gemm_set_attribute(p, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode);
    te__gemm_set_attribute(p, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode);
    te__gemm_set_attribute(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &g->b.scales, sizeof g->b.scales);
    te__gemm_set_attribute(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &g->a.scales, sizeof g->a.scales);
}
TE_API te_status te__gemm_microscaled_call(const void *args, te_context *ctx) {
    const te_gemm_microscaled *g = (const te_gemm_microscaled *)args;
    const float one = 1.0f, beta = g->adds ? 1.0f : 0.0f;
    const float *const alpha_at = g->format == TE_NVFP4 ? g->factors : &one;
    const float *const beta_at = g->format == TE_NVFP4 ? g->factors + 1 : &beta;
    te__gemm_state *s = te__gemm_state_of(ctx);
    TE_REQUIRE(s, ctx, TE_ERROR_BLAS, "cuBLASLt cannot be opened: %s", te_last_error(ctx));
    te__gemm_plan p;
    memset(&p, 0, sizeof p);
    te__microscaled_describe(&p, g);
    cublasLtMatmulHeuristicResult_t result;
    TE_REQUIRE(te__gemm_heuristic(&result, 1, &p, s), ctx, TE_ERROR_BLAS,
               "cuBLASLt has no algorithm for a GEMM of %lld x %lld x %lld in %s", (long long)g->m, (long long)g->n,
               (long long)g->k, g->format == TE_NVFP4 ? "nvfp4" : "mxfp8");
    return te__blas_status(ctx,
                           cublasLtMatmul(s->handle, &p.operation, alpha_at, g->b.data, &p.a, g->a.data, &p.b, beta_at,
                                          g->d, &p.d, g->d, &p.d, &result.algo, s->workspace, TE_GEMM_WORKSPACE,
                                          (cudaStream_t)ctx->stream),
                           "cublasLtMatmul");
}
TE_API int te__gemm_microscaled_is_supported(const te_context *ctx) { return ctx->capability >= 1000; }
TE_API te_status te__gemm_microscaled_by_cublaslt(const te_gemm_microscaled *g, te__gemm_microscaled_fn factors,
                                                  te_context *ctx) {
    if (g->format == TE_NVFP4) TE_TRY(factors(ctx, te__grid_of(1, 1), g));
    return te__cuda_call(ctx, te__gemm_microscaled_call, g, sizeof *g);
}
#else
TE_API int te__gemm_microscaled_is_supported(const te_context *ctx) { return (void)ctx, 0; }
TE_API te_status te__gemm_microscaled_by_cublaslt(const te_gemm_microscaled *g, te__gemm_microscaled_fn factors,
                                                  te_context *ctx) {
    return (void)factors, (void)g, te_fail(ctx, TE_ERROR_DEVICE, "this build has no cuBLASLt");
}
#endif

/* ---- checks ------------------------------------------------------------------------------------------------------ */

TE_API te_status te__microscaled_check_operand(const te_microscaled_operand *o, const te_gemm_microscaled *g,
                                               int64_t lines, const char *which, const char *who, te_context *ctx) {
    TE_REQUIRE(o->data && o->scales, ctx, TE_ERROR_NULL, "%s: %s.data or %s.scales is null", who, which, which);
    TE_REQUIRE(((uintptr_t)o->data | (uintptr_t)o->scales) % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: %s does not start at a multiple of %d bytes", who, which, (int)TE_ACCESS);
    TE_REQUIRE(g->format == TE_MXFP8 || o->amax, ctx, TE_ERROR_NULL, "%s: %s.amax is null, and nvfp4 has a scale for "
               "the tensor", who, which);
    TE_REQUIRE(g->format == TE_NVFP4 || !o->columnwise || lines % 16 == 0, ctx, TE_ERROR_SHAPE,
               "%s: %s is columnwise with %lld columns; it takes multiples of 16", who, which, (long long)lines);
    return TE_OK;
}
TE_API te_status te__gemm_microscaled_check(const te_gemm_microscaled *g, const char *who, te_context *ctx) {
    TE_TRY(te__check_target(ctx, who));
    TE_REQUIRE(g, ctx, TE_ERROR_NULL, "%s: the GEMM is null", who);
    TE_REQUIRE(g->m >= 0 && g->n >= 0 && g->k > 0 && g->k % 32 == 0 && g->n % 8 == 0, ctx, TE_ERROR_SHAPE,
               "%s: a GEMM of %lld x %lld x %lld; k must be a multiple of 32, and n of 8", who, (long long)g->m,
               (long long)g->n, (long long)g->k);
    TE_REQUIRE(g->m <= INT32_MAX && g->n <= INT32_MAX && g->k <= INT32_MAX && g->m * te_max(g->n, 1) / 64 <= INT32_MAX,
               ctx, TE_ERROR_OVERFLOW, "%s: a GEMM of %lld x %lld x %lld is too large", who, (long long)g->m,
               (long long)g->n, (long long)g->k);
    TE_REQUIRE((int)g->out < (int)TE_e4m3, ctx, TE_ERROR_DTYPE, "%s: D is f32, bf16 or f16", who);
    if (!g->m || !g->n) return TE_OK;
    TE_REQUIRE(g->d && (uintptr_t)g->d % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: D is null, or does not start at a multiple of %d bytes", who, (int)TE_ACCESS);
    TE_REQUIRE(g->format == TE_MXFP8 || g->factors, ctx, TE_ERROR_NULL, "%s: factors is null", who);
    TE_TRY(te__microscaled_check_operand(&g->a, g, g->m, "a", who, ctx));
    return te__microscaled_check_operand(&g->b, g, g->n, "b", who, ctx);
}
TE_API te_grid te__gemm_microscaled_grid(const te_gemm_microscaled *g) {
    return te__grid_of(te_ceil_div(g->m * g->n, TE_GEMM_MICROSCALED_THREADS * TE_GEMM_MICROSCALED_COLS), 1);
}
/* Defines two kernels and te_status name_run(const te_gemm_microscaled *g, te_context *ctx). Errors: TE_ERROR_NULL,
 * TE_ERROR_SHAPE, TE_ERROR_DTYPE, TE_ERROR_ALIGNMENT, TE_ERROR_OVERFLOW, TE_ERROR_BLAS. */
#define TE_GEMM_MICROSCALED(name)                                                                                  \
    TE_KERNEL(name##_plain, TE_GEMM_MICROSCALED_THREADS, te_gemm_microscaled,                                      \
              te_gemm_microscaled_body(te_args, te_at))                                                            \
    TE_KERNEL(name##_factors, 32, te_gemm_microscaled, (void)te_at; te_microscaled_factors_body(te_args))          \
    TE_API te_status name##_run(const te_gemm_microscaled *g, te_context *ctx) {                                   \
        TE_TRY(te__gemm_microscaled_check(g, #name, ctx));                                                         \
        if (!g->m || !g->n) return TE_OK;                                                                          \
        return te__gemm_microscaled_is_supported(ctx)                                                              \
                   ? te__gemm_microscaled_by_cublaslt(g, name##_factors_launch, ctx)                               \
                   : name##_plain_launch(ctx, te__gemm_microscaled_grid(g), g);                                    \
    }

#endif
