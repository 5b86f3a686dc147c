/* gemm_run_plain.h -- te_gemm_run in a build without cuBLASLt: the host's side of gemm_plain.h. */
/* target: cuda */
#ifndef TE_GEMM_RUN_PLAIN_H
#define TE_GEMM_RUN_PLAIN_H

#include "gemm_plain.h"     /* te_plain */
#include "gemm_race_cuda.h" /* te__gemm_state, te__race for a step's splits */

enum {
    TE_PLAIN_RESIDENT = 2,    /* blocks on a multiprocessor */
    TE_PLAIN_LEAST_STEPS = 4, /* of k in a part, or the sums cost more than the product */
    TE_PLAIN_MOST_PARTS = 16
};

/* The kernel for products of dtype T whose operands lie so, and its number; few: up to TE_PLAIN_FEW rows, of an A that
 * does not lie across. Null: the program has none. Without TRAINS it has those of inference, which multiplies by the
 * transpose of a weight. */
template <te_dtype T, int TRAINS> TE_API const void *te__plain_kernel(const te_plain *p, int few, int *number) {
    *number = (T == TE_f16) << 3 | few << 2 | p->trans_a << 1 | p->trans_b;
    if constexpr (T == TE_f32) return (const void *)te_plain_32<>;
    else {
        if constexpr (TRAINS) {
            if (p->trans_a)
                return p->trans_b ? (const void *)te_plain_16<T, 1, 1, 128> : (const void *)te_plain_16<T, 1, 0, 128>;
            if (!p->trans_b)
                return few ? (const void *)te_plain_16<T, 0, 0, TE_PLAIN_FEW> : (const void *)te_plain_16<T, 0, 0, 128>;
        }
        if (p->trans_a || !p->trans_b) return 0;
        return few ? (const void *)te_plain_16<T, 0, 1, TE_PLAIN_FEW> : (const void *)te_plain_16<T, 0, 1, 128>;
    }
}
/* As many parts of k as fill the device, whose sums fit into the workspace. */
TE_API void te__plain_share(te_plain *p, te__gemm_state *s, te_context *ctx) {
    const int64_t steps = te_max(1, te_ceil_div(p->k, TE_PLAIN_STEP)), tiles = (int64_t)p->rows * p->columns;
    const int64_t fit = (int64_t)TE_GEMM_WORKSPACE / ((int64_t)p->m * p->n * 4);
    int64_t parts = te_min(TE_PLAIN_RESIDENT * ctx->processors / tiles, steps / TE_PLAIN_LEAST_STEPS);
    parts = te_max(1, te_min(te_min(parts, fit), TE_PLAIN_MOST_PARTS));
    const int64_t each = te_ceil_div(steps, parts);
    p->each = (int)te_min(each * TE_PLAIN_STEP, te_max(p->k, 1)), p->parts = (int)te_ceil_div(steps, each);
    p->sums = p->parts > 1 ? (float *)s->workspace : 0;
}
/* number: of te__plain_kernel. */
TE_API te_status te__plain_ready(const void *kernel, int number, te_context *ctx) {
    static uint64_t ready[16]; /* bit d: on device d the kernel may have its shared memory */
    const uint64_t bit = 1ull << (ctx->device & 63);
    if (__atomic_load_n(&ready[number], __ATOMIC_ACQUIRE) & bit) return TE_OK;
    TE_TRY(te__cuda_status(ctx, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                     TE_PLAIN_SHARED), "shared memory of a matrix product"));
    (void)__atomic_fetch_or(&ready[number], bit, __ATOMIC_RELEASE);
    return TE_OK;
}
/* te_gemm_run for products of dtype T (TE_GEMM_RUN_OF). */
template <te_dtype T, int TRAINS> TE_API te_status te__plain_run(const te_gemm *g, te_context *ctx) {
    TE_TRY(te__gemm_check_run(g, "te_gemm_run", ctx));
    TE_REQUIRE(!te_gemm_is_fp8(g), ctx, TE_ERROR_BLAS,
               "te_gemm_run: an FP8 product %lld x %lld x %lld in a build without cuBLASLt (TE_NO_CUBLASLT)",
               (long long)g->m, (long long)g->n, (long long)g->k);
    TE_REQUIRE(te_gemm_supports(g, ctx), ctx, TE_ERROR_VALUE,
               "te_gemm_run: epilogue %s in a build without cuBLASLt (TE_NO_CUBLASLT)", te_epilogue_name(g->epilogue));
    TE_TRY(te__gemm_open(ctx));
    if (!g->m || !g->n) return TE_OK;
    te__gemm_state *s = (te__gemm_state *)ctx->gemm;
    const int few = T != TE_f32 && !g->trans_a && g->m <= TE_PLAIN_FEW;
    te_plain p;
    memset(&p, 0, sizeof p);
    p.a = g->a, p.b = g->b, p.c = g->c, p.d = g->d, p.bias = g->epilogue == TE_EPILOGUE_BIAS ? g->bias : 0;
    p.alpha = g->alpha, p.beta = g->beta, p.m = (int)g->m, p.n = (int)g->n, p.k = (int)g->k;
    p.trans_a = g->trans_a != 0, p.trans_b = g->trans_b != 0, p.dtype = T, p.out = g->out;
    p.rows = (int)te_ceil_div(g->m, few ? TE_PLAIN_FEW : 128), p.columns = (int)te_ceil_div(g->n, TE_PLAIN_COLUMNS);
    te__plain_share(&p, s, ctx);
    int number;
    const void *kernel = te__plain_kernel<T, TRAINS>(&p, few, &number);
    const int shared = T == TE_f32 ? 0 : TE_PLAIN_SHARED;
    TE_REQUIRE(kernel && g->dtype == T, ctx, TE_ERROR_BLAS,
               "te_gemm_run: a product in %s of A%s B%s in a list of %s for inference alone", te_dtype_name(g->dtype),
               p.trans_a ? "^T" : "", p.trans_b ? "^T" : "", te_dtype_name(T));
    if (shared) TE_TRY(te__plain_ready(kernel, number, ctx));
    const int64_t tiles = (int64_t)p.rows * p.columns;
    TE_REQUIRE(tiles <= INT32_MAX, ctx, TE_ERROR_OVERFLOW, "te_gemm_run: a product %lld x %lld x %lld", (long long)g->m,
               (long long)g->n, (long long)g->k);
    TE_TRY(te__cuda_launch(ctx, kernel, te_grid_of(tiles, p.parts), TE_PLAIN_THREADS, shared, 1, &p, sizeof p,
                           "matrix product"));
    if (p.parts == 1) return TE_OK;
    return te__plain_add_launch(ctx, te_grid_of(te_ceil_div(g->m * g->n, TE_PLAIN_THREADS), 1), &p);
}
#define TE_GEMM_RUN_OF(T, trains) te__plain_run<T, trains>
/* Products of any dtype: a program that calls this has the kernels of all. */
TE_IF_USED TE_API te_status te_gemm_run(const te_gemm *g, te_context *ctx) {
    if (g && g->dtype == TE_f16) return te__plain_run<TE_f16, 1>(g, ctx);
    if (g && g->dtype == TE_bf16) return te__plain_run<TE_bf16, 1>(g, ctx);
    return te__plain_run<TE_f32, 1>(g, ctx);
}

#endif
