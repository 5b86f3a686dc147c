/* gemm_plain_cuda.h -- what a context keeps for products in a build without cuBLASLt (TE_NO_CUBLASLT): the workspace,
 * and the splits that tuning chose. There are no candidates of one product to choose from. */
/* target: cuda */
#ifndef TE_GEMM_PLAIN_CUDA_H
#define TE_GEMM_PLAIN_CUDA_H

#include <stdlib.h> /* calloc */

#include "gemm_room_cuda.h" /* te__gemm_allocate */
#include "gemm_types.h"     /* te_gemm_choice */

typedef struct te__gemm_state {
    void *workspace;
    int choices;
    te_gemm_choice choice[TE_GEMM_CHOICES];
} te__gemm_state;

TE_API void te__gemm_close(te_context *ctx) {
    te__gemm_state *s = (te__gemm_state *)ctx->gemm;
    if (s) te_release(ctx, s->workspace);
    free(s);
    ctx->gemm = 0;
}
/* The state of the products of this context, made on first use: when a workspace is sized, that is before the first
 * step. */
TE_API te_status te__gemm_open(te_context *ctx) {
    if (ctx->gemm) return TE_OK;
    te__gemm_state *s = (te__gemm_state *)calloc(1, sizeof *s);
    TE_REQUIRE(s, ctx, TE_ERROR_MEMORY, "cannot allocate %zu bytes", sizeof *s);
    ctx->gemm = s, ctx->gemm_close = te__gemm_close;
    const te_status status = te__gemm_allocate(&s->workspace, ctx);
    if (status != TE_OK) te__gemm_close(ctx);
    return status;
}
/* Null: there was no memory for it. */
TE_API te__gemm_state *te__gemm_state_of(te_context *ctx) {
    return te__gemm_open(ctx) == TE_OK ? (te__gemm_state *)ctx->gemm : 0;
}
TE_API int te__gemm_is_timed(const te_gemm *g, te_context *ctx) { return (void)g, (void)ctx, 0; }
/* The gelu epilogues are left to the chain behind the product. */
TE_API int te_gemm_supports(const te_gemm *g, te_context *ctx) {
    return (void)ctx, !te_gemm_is_fp8(g) && g->epilogue <= TE_EPILOGUE_BIAS;
}
TE_API size_t te_gemm_scratch(const te_gemm *g) { return (void)g, (size_t)0; }

/* ---- for gemm_tune.h --------------------------------------------------------------------------------------------- */

TE_API size_t te__gemm_library_version(void) { return 0; }
TE_API const te_gemm_tuned *te__gemm_next_tuned(int *at, te_context *ctx) {
    return (void)at, (void)ctx, (const te_gemm_tuned *)0;
}
/* No line for a product is ever written, so none is right. */
TE_API int te__gemm_accepts(const te_gemm_tuned *t, int *added, te_context *ctx) {
    return (void)t, (void)ctx, *added = 1, 0;
}
TE_API void te__gemm_keep(const te_gemm_tuned *t, te_context *ctx) { (void)t, (void)ctx; }
TE_API int te__gemm_room(te_context *ctx) { return (void)ctx, (int)TE_GEMM_PLANS; }

#endif
