/* gemm_room_cuda.h -- the memory that the products of a context share: sums of parts of k, and counts. */
/* target: cuda */
#ifndef TE_GEMM_ROOM_CUDA_H
#define TE_GEMM_ROOM_CUDA_H

#include "../core/target.h" /* te__cuda_status, te_allocate */

enum {
    TE_GEMM_WORKSPACE = 32 << 20, /* bytes; what cuBLASLt asks for on Hopper */
    /* Tiles that gemm_hopper.h shares out, at most; behind the workspace are 16 counts for each, 0. */
    TE_GEMM_LEFT = 256
};

/* Legal while a stream is being captured, of which nothing here becomes a part. */
TE_API te_status te__gemm_allocate(void **workspace, te_context *ctx) {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaStream_t stream = 0;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    te_status status = te_allocate(ctx, workspace, TE_GEMM_WORKSPACE + TE_GEMM_LEFT * 64);
    if (status == TE_OK)
        status = te__cuda_status(ctx, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    if (status == TE_OK) {
        const cudaError_t e = cudaMemsetAsync((char *)*workspace + TE_GEMM_WORKSPACE, 0, TE_GEMM_LEFT * 64, stream);
        status = te__cuda_status(ctx, e == cudaSuccess ? cudaStreamSynchronize(stream) : e, "fill");
    }
    if (stream) (void)cudaStreamDestroy(stream);
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    return status;
}

#endif
