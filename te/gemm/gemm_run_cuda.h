/* gemm_run_cuda.h -- te_gemm_run through cuBLASLt. A call whose plan is cached looks it up, points the descriptor at
 * this call's bias and aux, and enqueues.
 */
/* target: cuda */
#ifndef TE_GEMM_RUN_CUDA_H
#define TE_GEMM_RUN_CUDA_H

#include "gemm_tune_cuda.h" /* te__gemm_tune */

typedef struct te__gemm_args { te_gemm g; cublasLtMatmulAlgo_t algo; } te__gemm_args;
TE_API te_status te__gemm_call(const void *args, te_context *ctx) {
    const te__gemm_args *a = (const te__gemm_args *)args;
    const te_gemm *g = &a->g;
    te__gemm_state *s = (te__gemm_state *)ctx->gemm;
    te__gemm_plan *p = te__gemm_find_plan(g, ctx);
    te__gemm_point(p, g->bias, g->aux);
    if (te_gemm_is_fp8(g)) te__gemm_scale(p, g->a_fp8.inverse, g->b_fp8.inverse);
    return te__blas_status(ctx,
                           cublasLtMatmul(s->handle, &p->operation, &g->alpha, g->b, &p->a, g->a, &p->b, &g->beta,
                                          g->beta != 0 ? g->c : g->d, &p->d, g->d, &p->d, &a->algo, s->workspace,
                                          TE_GEMM_WORKSPACE, (cudaStream_t)ctx->stream),
                           "cublasLtMatmul");
}
TE_IF_USED TE_API te_status te_gemm_run(const te_gemm *g, te_context *ctx) {
    TE_TRY(te__gemm_check_run(g, "te_gemm_run", ctx));
    TE_TRY(te__gemm_check_tiles(g, ctx));
    TE_TRY(te__gemm_open(ctx));
    te__gemm_plan *p = te__gemm_find_plan(g, ctx);
    TE_REQUIRE(p, ctx, TE_ERROR_MEMORY, "no memory for what a context remembers of matrix products");
    TE_REQUIRE(p->found, ctx, TE_ERROR_BLAS, "cuBLASLt has no algorithm for the %s product %lld x %lld x %lld",
               te_dtype_name(te__gemm_a(g)), (long long)g->m, (long long)g->n, (long long)g->k);
#if TE_TUNES
    if (ctx->gemm_tune && !p->timed) {
        const int open = te_enqueue_is_open(ctx);
        TE_TRY(te_enqueue_close(ctx, TE_OK));
        TE_TRY(te__gemm_tune(p, ctx));
        if (open) te_enqueue_open(ctx);
    }
#endif
    te__gemm_args a;
    memset(&a, 0, sizeof a);
    a.g = *g, a.algo = p->algo;
    te_fill_by_kernels(ctx);
    return te__cuda_call(ctx, te__gemm_call, &a, sizeof a);
}
#define TE_GEMM_RUN_OF(T, trains) te_gemm_run

#endif
