/* gemm.h -- one matrix product: D = alpha * op(A) op(B) + beta * C, with what the back end can do at its end.
 *
 * Do this:
 *     te_gemm g = te_gemm_of(rows, out, in);                  // y[rows, out] = x[rows, in] w[out, in]^T
 *     g.a = x, g.b = w, g.trans_b = 1, g.d = y, g.dtype = TE_bf16, g.out = TE_bf16;
 *     TE_TRY(te_gemm_run(&g, ctx));
 *
 * Row-major throughout. Accumulates in float. On CUDA cuBLASLt, with a plan cached per shape in the context, its first
 * candidate or, if asked for, its fastest (gemm_tune.h); on the host CBLAS (compile with -DTE_CBLAS and link one) or a
 * blocked loop. Where TE_NO_CUBLASLT is defined gemm_plain.h takes the place of cuBLASLt, of which nothing is then
 * included or linked. Each back end has TE_GEMM_RUN_OF(T, trains), what runs a list's products, which are of dtype T;
 * trains: those of backward as well. The kernels of our own for a list, and when they take the place of these:
 * gemm_choose.h.
 */
#ifndef TE_GEMM_H
#define TE_GEMM_H

#include "gemm_types.h" /* te_gemm */
#if TE_CUDA && defined(TE_NO_CUBLASLT)
#include "gemm_run_plain.h" /* te_gemm_run, te_gemm_supports by a kernel of our own */
#elif TE_CUDA
#include "gemm_run_cuda.h" /* the same through cuBLASLt */
#else
#include "gemm_host.h" /* the same through CBLAS or a loop */
#endif

/* ---- the splits that were chosen; none on the host --------------------------------------------------------------- */

TE_API int te__gemm_same_choice(const te_gemm_choice *a, const te_gemm_choice *b) {
    return a->m == b->m && a->n == b->n && a->k == b->k && a->dtype == b->dtype && a->training == b->training &&
           a->kept == b->kept && !strcmp(a->row, b->row);
}
/* The choice for this step; null if there is none. */
TE_API te_gemm_choice *te__gemm_find_choice(const te_gemm_choice *step, te_context *ctx) {
    int *count = 0;
    te_gemm_choice *all = te__gemm_choices(&count, ctx);
    for (int i = 0; count && i < *count; i++)
        if (te__gemm_same_choice(&all[i], step)) return &all[i];
    return 0;
}
/* Remember it, in the place of an earlier one. Where there is no room the step stays with its default. */
TE_API void te__gemm_keep_choice(const te_gemm_choice *step, te_context *ctx) {
    int *count = 0;
    te_gemm_choice *all = te__gemm_choices(&count, ctx), *found = te__gemm_find_choice(step, ctx);
    if (found) *found = *step;
    else if (count && *count < TE_GEMM_CHOICES) all[(*count)++] = *step;
}

#endif
