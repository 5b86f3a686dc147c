/* gemm_fp8.h -- a product in FP8 by itself, by whoever is fastest: a kernel of our own (gemm_hopper.h) or cuBLASLt.
 *
 * Do this:
 *     te_gemm g = te_gemm_of(rows, out, in);                  // y[rows, out] = x[rows, in] w[out, in]^T
 *     g.a = x, g.b = w, g.trans_b = 1, g.d = y, g.dtype = g.out = TE_bf16, g.fast = 1;
 *     g.a_fp8.scaling = g.b_fp8.scaling = TE_SCALING_TENSOR, g.a_fp8.dtype = g.b_fp8.dtype = TE_e4m3;
 *     g.a_fp8.inverse = te_scales_inverse(&scales, i), g.b_fp8.inverse = te_scales_inverse(&scales, j);
 *     TE_TRY(te_gemm_fp8_run(&g, ctx));
 *
 * Flops: 2 m n k; the floor is that over the tensor cores' rate, some 1.3e15 a second of an H200 at its power limit.
 */
#ifndef TE_GEMM_FP8_H
#define TE_GEMM_FP8_H

#include "gemm_choose.h" /* te_product_kernels, te__gemm_run_own */

#if TE_CUDA && !defined(TE_KEEP_CALLS)

typedef struct te_fp8_bare {
    te_hopper many;
    void *d;
    const void *bias, *c; /* added before and after D is rounded; null: nothing */
    int n;
} te_fp8_bare;

template <te_dtype T>
TE_FN void te_fp8_bare_epilogue(const void *arg, const uint32_t w[4], const uint32_t *ahead, int row, int col,
                                float sum[8]) {
    const te_fp8_bare *p = (const te_fp8_bare *)arg;
    const int64_t at = (int64_t)row * p->n + col;
    float v[8], more[8];
    te_vec8 e;
    TE_UNROLL for (int i = 0; i < 4; i++) e.w[i] = w[i];
    te_vec8_floats(v, &e, T);
    if (p->bias) {
        te_load8(more, p->bias, col, 8, 1, T);
        TE_UNROLL for (int i = 0; i < 8; i++) v[i] += more[i];
    }
    if (p->c) {
        TE_UNROLL for (int i = 0; i < 4; i++) e.w[i] = ahead[i];
        te_vec8_floats(more, &e, T);
        TE_UNROLL for (int i = 0; i < 8; i++) v[i] += more[i];
    }
    te_store8(p->d, at, v, 8, 1, T);
    (void)sum;
}
template <te_dtype T, te_dtype A, te_dtype B>
TE_HOPPER_KERNEL_OF(te_fp8_bare_many, te_fp8_bare, T, A, B, 1, te_fp8_bare_epilogue<T>, 1)
template <te_dtype T, te_dtype A, te_dtype B> TE_API te_product_kernels *te__fp8_kernels(void) {
    static te_product_kernels kernels = {{(const void *)te_fp8_bare_many<T, A, B>, 0, 0}, {0, 0, 0}};
    return &kernels;
}
template <te_dtype T> TE_API te_product_kernels *te__fp8_kernels_to(const te_gemm *g) {
    if (g->a_fp8.dtype == TE_e5m2) return te__fp8_kernels<T, TE_e5m2, TE_e4m3>();
    return g->b_fp8.dtype == TE_e5m2 ? te__fp8_kernels<T, TE_e4m3, TE_e5m2>() : te__fp8_kernels<T, TE_e4m3, TE_e4m3>();
}
TE_API te_product_kernels *te_gemm_fp8_kernels(const te_gemm *g) {
    return g->dtype == TE_bf16 ? te__fp8_kernels_to<TE_bf16>(g) : te__fp8_kernels_to<TE_f16>(g);
}

/* The product as the kernel sees it: a bias is its epilogue's, and beta is 0 or 1. */
TE_API te_gemm te__fp8_bare_of(const te_gemm *g) {
    te_gemm bare = *g;
    if (g->epilogue == TE_EPILOGUE_BIAS) bare.epilogue = TE_EPILOGUE_NONE;
    return bare;
}
/* Whether a kernel of our own takes the product here. */
TE_API int te_gemm_fp8_is_own(const te_gemm *g, te_context *ctx) {
    const te_gemm bare = te__fp8_bare_of(g);
    if (!te_gemm_is_fp8(g) || !te__hopper_can(&bare) || (g->beta != 0 && g->beta != 1)) return 0;
    if (!te_gemm_can_row(te_gemm_fp8_kernels(g), &bare, ctx)) return 0;
    return ctx->gemm_own > 1 || te__hopper_pays(&bare, ctx);
}
TE_API te_status te_gemm_fp8_run(const te_gemm *g, te_context *ctx) {
    TE_TRY(te_gemm_check(g, "te_gemm_fp8_run", ctx));
    if (!te_gemm_fp8_is_own(g, ctx)) return te_gemm_run(g, ctx);
    const te_gemm bare = te__fp8_bare_of(g);
    te_fp8_bare p;
    memset(&p, 0, sizeof p);
    p.d = g->d, p.n = (int)g->n, p.c = p.many.ahead = g->beta != 0 ? g->c : 0;
    p.bias = g->epilogue == TE_EPILOGUE_BIAS ? g->bias : 0;
    return te__hopper_run(te_gemm_fp8_kernels(g)->many.kernel, &p, sizeof p, &p.many, &bare, ctx);
}

#else /* none of our own */
TE_API int te_gemm_fp8_is_own(const te_gemm *g, te_context *ctx) { return (void)g, (void)ctx, 0; }
TE_API te_status te_gemm_fp8_run(const te_gemm *g, te_context *ctx) { return te_gemm_run(g, ctx); }
#endif

#endif
