/* gemm.h -- one matrix product: D = alpha * op(A) op(B) + beta * C, with what the back end can do at its end.
 *
 * Do this:
 *     te_gemm g = te_gemm_of(rows, out, in);                  // y[rows, out] = x[rows, in] w[out, in]^T
 *     g.a = x, g.b = w, g.trans_b = 1, g.d = y, g.dtype = TE_bf16, g.out = TE_bf16;
 *     TE_TRY(te_gemm_run(&g, ctx));
 *
 * Row-major throughout. Accumulates in float. On CUDA cuBLASLt, with a plan cached per shape in the context; on the
 * host CBLAS (compile with -DTE_CBLAS and link one) or a blocked loop.
 */
#ifndef TE_GEMM_H
#define TE_GEMM_H

#include "context.h" /* te_context */

typedef enum te_epilogue {
    TE_EPILOGUE_NONE,
    TE_EPILOGUE_BIAS,         /* + bias[n] */
    TE_EPILOGUE_GELU_BIAS,    /* gelu_tanh(. + bias[n]) */
    TE_EPILOGUE_GELU_AUX_BIAS /* the same, and aux[m, n] gets what went into the gelu */
} te_epilogue;

typedef struct te_gemm {
    int64_t m, n, k;      /* D is [m, n] */
    int trans_a, trans_b; /* A is stored [m, k], or [k, m] if trans_a; B [k, n], or [n, k] if trans_b */
    te_dtype dtype, out;  /* of A and B (and bias, aux); of C and D: dtype, or f32 */
    const void *a, *b, *c;
    void *d;
    float alpha, beta; /* C may be D; C is not read if beta is 0 */
    te_epilogue epilogue;
    const void *bias;
    void *aux;
    float *scratch; /* host: te_gemm_scratch() floats; target memory of the workspace */
} te_gemm;

TE_API te_gemm te_gemm_of(int64_t m, int64_t n, int64_t k) {
    te_gemm g;
    memset(&g, 0, sizeof g);
    g.m = m, g.n = n, g.k = k, g.alpha = 1.0f;
    return g;
}

#if TE_CUDA
#include "gemm_cuda.h" /* te_gemm_run, te_gemm_supports through cuBLASLt */
#else
#include "gemm_host.h" /* the same through CBLAS or a loop */
#endif

#endif
