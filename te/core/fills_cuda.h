/* fills_cuda.h -- the small fills of a captured graph become kernels, so that it is a row of kernels alone.
 *
 * The driver launches such a row in 1.3 us, be they two or thirty (CUDA 12.6 and later); each fill among them cuts it:
 * 0.9 us more where launches queue up, 2 to 4 where they do not. On Hopper most of cuBLASLt's products fill four bytes,
 * a counter, before they begin. An H200's host, the graphs of a GPT block of hidden 4096, forward and backward: bf16,
 * with four such products, 9 to 14 us to launch, and 3 to 6 with kernels in the place of fills; fp8_delayed, with nine,
 * 15, and 3 to 5. The GPU takes as long for the one as for the other. What did not pay: a counter of its own for each
 * product of a pass and one kernel for all of them, so that the other fills are gone (training a GPT of 124M, 598k
 * tokens/s with and without, in FP8 677k).
 */
/* target: cuda */
#ifndef TE_FILLS_CUDA_H
#define TE_FILLS_CUDA_H

#include <stdint.h> /* uint32_t */
#include <stdlib.h> /* calloc */
#include <string.h> /* memset */

#include "base.h" /* TE_API */

enum {
    TE_FILL_MOST = 1024, /* bytes that the kernel's one warp fills */
    TE_FILL_EDGES = 4    /* of a fill, each way */
};
/* What the kernel gets: bytes[i] becomes byte i % element of the value. */
typedef struct te_fill_few { uint8_t *bytes; uint32_t value; int element, count; } te_fill_few;

/* Nodes that stand before this one, or behind it: how many; -1: more than TE_FILL_EDGES, or by an edge that says more
 * than their order, which toolkits before 13 refuse to leave out. */
TE_API int te__graph_beside(cudaGraphNode_t *beside, cudaGraphNode_t node, int before) {
    size_t n = TE_FILL_EDGES + 1;
    cudaGraphNode_t all[TE_FILL_EDGES + 1];
#if CUDART_VERSION >= 13000
    cudaGraphEdgeData edge[TE_FILL_EDGES + 1] = {};
    const cudaError_t e = before ? cudaGraphNodeGetDependencies(node, all, edge, &n)
                                 : cudaGraphNodeGetDependentNodes(node, all, edge, &n);
    for (size_t i = 0; e == cudaSuccess && i < n; i++)
        if (edge[i].from_port || edge[i].to_port || edge[i].type) return -1;
#else
    const cudaError_t e =
        before ? cudaGraphNodeGetDependencies(node, all, &n) : cudaGraphNodeGetDependentNodes(node, all, &n);
#endif
    if (e != cudaSuccess || n > TE_FILL_EDGES) return (void)cudaGetLastError(), -1;
    for (size_t i = 0; i < n; i++) beside[i] = all[i];
    return (int)n;
}
TE_API cudaError_t te__graph_order(cudaGraph_t graph, cudaGraphNode_t first, const cudaGraphNode_t *then, int count) {
    cudaError_t e = cudaSuccess;
    for (int i = 0; i < count && e == cudaSuccess; i++)
#if CUDART_VERSION >= 13000
        e = cudaGraphAddDependencies(graph, &first, &then[i], 0, 1);
#else
        e = cudaGraphAddDependencies(graph, &first, &then[i], 1);
#endif
    return e;
}
/* A fill becomes the kernel, or stays. */
TE_API void te__fill_becomes(const void *kernel, cudaGraph_t graph, cudaGraphNode_t fill) {
    cudaGraphNode_t before[TE_FILL_EDGES], behind[TE_FILL_EDGES], made = 0;
    cudaMemsetParams of = {};
    if (cudaGraphMemsetNodeGetParams(fill, &of) != cudaSuccess) return (void)cudaGetLastError();
    const size_t bytes = of.width * of.elementSize;
    const int ins = te__graph_beside(before, fill, 1), outs = te__graph_beside(behind, fill, 0);
    if (of.height != 1 || bytes > TE_FILL_MOST || ins < 0 || outs < 0) return;
    te_fill_few few = {(uint8_t *)of.dst, of.value, (int)of.elementSize, (int)bytes};
    void *arg[1] = {&few};
    struct cudaKernelNodeParams p = {};
    p.func = (void *)(uintptr_t)kernel, p.gridDim = dim3(1), p.blockDim = dim3(32), p.kernelParams = arg;
    if (cudaGraphAddKernelNode(&made, graph, before, (size_t)ins, &p) != cudaSuccess) return (void)cudaGetLastError();
    if (te__graph_order(graph, made, behind, outs) == cudaSuccess) (void)cudaGraphDestroyNode(fill);
    else (void)cudaGetLastError(), (void)cudaGraphDestroyNode(made);
}
/* kernel: takes a te_fill_few, one block of 32 threads; null: all fills stay. */
TE_API void te_fills_become(const void *kernel, cudaGraph_t graph) {
    size_t count = 0;
    if (!kernel || cudaGraphGetNodes(graph, 0, &count) != cudaSuccess || !count) return;
    cudaGraphNode_t *node = (cudaGraphNode_t *)calloc(count, sizeof *node);
    if (node && cudaGraphGetNodes(graph, node, &count) == cudaSuccess)
        for (size_t i = 0; i < count; i++) {
            cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
            if (cudaGraphNodeGetType(node[i], &type) == cudaSuccess && type == cudaGraphNodeTypeMemset)
                te__fill_becomes(kernel, graph, node[i]);
        }
    free(node);
}

#endif
