/* gemm_back_end_cuda.h -- te__gemm_state: which back end has the products that no kernel of a list takes. cuBLASLt, or
 * in a build with TE_NO_CUBLASLT, for which nothing is included and nothing need be linked, gemm_plain.h. */
/* target: cuda */
#ifndef TE_GEMM_BACK_END_CUDA_H
#define TE_GEMM_BACK_END_CUDA_H

#ifdef TE_NO_CUBLASLT
#include "gemm_plain_cuda.h" /* te__gemm_state: a workspace */
enum { TE_HAS_CUBLASLT = 0 };
#else
#include "gemm_cuda.h" /* te__gemm_state: a workspace, cuBLASLt's plans */
enum { TE_HAS_CUBLASLT = 1 };
#endif

/* The splits that were timed, and how many. */
TE_API te_gemm_choice *te__gemm_choices(int **count, te_context *ctx) {
    te__gemm_state *s = te__gemm_state_of(ctx);
    *count = s ? &s->choices : 0;
    return s ? s->choice : 0;
}
/* What a tuning file is for: the device, `name` in printable characters, and the library's version (0: none). */
TE_API te_status te__gemm_identify(char *name, size_t bytes, size_t *version, te_context *ctx) {
    struct cudaDeviceProp device;
    TE_TRY(te__cuda_status(ctx, cudaGetDeviceProperties(&device, ctx->device), "device"));
    snprintf(name, bytes, "%d %s", ctx->processors, device.name);
    *version = te__gemm_library_version();
    return TE_OK;
}

#endif
