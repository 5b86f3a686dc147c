// launches.h -- counts the kernels that a function launches, by capturing it in a CUDA graph. CUDA only.
#ifndef TESTS_LAUNCHES_H
#define TESTS_LAUNCHES_H

#include "harness.h"

#if TE_CUDA
namespace {

// The number of kernels that `run` launches and for which is(function) is true. Kernels of cuBLASLt, which the runtime does not know, do not count.
template <class F, class G> int launches_where(te_context *ctx, F run, G is) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphNode_t nodes[256];
    size_t count = 256;
    int found = 0;
    REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    ctx->stream = stream;
    const te_status status = run();
    ctx->stream = nullptr;
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    REQUIRE(status == TE_OK);
    REQUIRE(cudaGraphGetNodes(graph, nodes, &count) == cudaSuccess);
    for (size_t i = 0; i < count; i++) {
        cudaGraphNodeType type;
        cudaKernelNodeParams p;
        if (cudaGraphNodeGetType(nodes[i], &type) != cudaSuccess || type != cudaGraphNodeTypeKernel) continue;
        const cudaError_t known = cudaGraphKernelNodeGetParams(nodes[i], &p);
        if (known == cudaErrorInvalidDeviceFunction) {
            (void)cudaGetLastError();
            continue;
        }
        REQUIRE(known == cudaSuccess);
        found += is((const void *)p.func);
    }
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    return found;
}

// The number of kernels that `run` launches and whose name contains `part`.
template <class F> int launches_like(const char *part, te_context *ctx, F run) {
    return launches_where(ctx, run, [=](const void *f) {
        const char *name = nullptr;
        if (cudaFuncGetName(&name, f) == cudaSuccess) return strstr(name, part) != nullptr;
        (void)cudaGetLastError();
        return false;
    });
}

} // namespace
#endif

#endif
