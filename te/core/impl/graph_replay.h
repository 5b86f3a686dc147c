/* graph_replay.h -- enqueues work on CUDA: records the launches of a pass (forward, inference or backward), and replays
 * them as one CUDA graph.
 *
 * Launching a kernel takes the host about 3 us, while launching a graph of thirty kernels takes only 2 us in all.
 * Therefore a pass of a model records its launches (te__launch_or_record): kernels with the bytes of their arguments,
 * cuBLASLt calls, and fills. At the end of the pass, te_launch_flush takes the first of these ways that is possible:
 *   1. If a cached graph has exactly these launches, launch that graph.
 *   2. If fewer than ctx->replay graphs are cached, capture a graph, cache it and launch it. Capturing takes 10 us for
 *      each kernel, once, and 0.1 MB of device memory for each pass.
 *   3. If a cached graph has the same kernels with other arguments, give it the new arguments (1 us for each kernel)
 *      and launch it. If several graphs have the same kernels, take the least recently used one.
 *   4. Enqueue the launches one by one. This is also done whenever the stream is being captured.
 * In each case the kernels run in the order in which they were recorded, so the results are bitwise identical.
 *
 * Small fills inside a graph become kernels, because a graph launches faster if all its nodes are kernels.
 * Measurements: docs/notes/core.md.
 */
/* target: cuda */
#ifndef TE_GRAPH_REPLAY_H
#define TE_GRAPH_REPLAY_H

#include <stdint.h> /* uint32_t */
#include <stdlib.h> /* calloc, malloc */
#include <string.h> /* memset */

#include "../base.h"    /* TE_API */
#include "../context.h" /* te_context */

/* ---- small fills become kernels ---------------------------------------------------------------------------------- */

enum {
    TE_SMALL_FILL_MAX_BYTES = 1024, /* the largest fill, in bytes, that is replaced by a kernel; the kernel has only one
                                     * warp, which would be slow for larger fills */
    TE_SMALL_FILL_MAX_EDGES = 4     /* a fill is replaced only if it depends on at most this many graph nodes, and at
                                     * most this many nodes depend on it */
};
/* The argument of the kernel that replaces a fill. For each i < count, the kernel sets bytes[i] to byte (i % element)
 * of `value`; `element` is the size in bytes of an element of the fill. */
typedef struct te_small_fill { uint8_t *bytes; uint32_t value; int element, count; } te_small_fill;

/* If `before` is 1, get the nodes on which `node` depends; if `before` is 0, get the nodes that depend on `node`.
 * Returns the number of these nodes. Returns -1 if there are more than TE_SMALL_FILL_MAX_EDGES such nodes, or if an
 * edge to one of them is not a plain dependency (e.g. an edge of programmatic dependent launch). */
TE_API int te__graph_neighbors(cudaGraphNode_t *neighbors, cudaGraphNode_t node, int before) {
    size_t n = TE_SMALL_FILL_MAX_EDGES + 1;
    cudaGraphNode_t all[TE_SMALL_FILL_MAX_EDGES + 1];
#if CUDART_VERSION >= 13000
    cudaGraphEdgeData edge[TE_SMALL_FILL_MAX_EDGES + 1] = {};
    const cudaError_t e = before ? cudaGraphNodeGetDependencies(node, all, edge, &n)
                                 : cudaGraphNodeGetDependentNodes(node, all, edge, &n);
    for (size_t i = 0; e == cudaSuccess && i < n; i++)
        if (edge[i].from_port || edge[i].to_port || edge[i].type) return -1;
#else
    const cudaError_t e =
        before ? cudaGraphNodeGetDependencies(node, all, &n) : cudaGraphNodeGetDependentNodes(node, all, &n);
#endif
    if (e != cudaSuccess || n > TE_SMALL_FILL_MAX_EDGES) return (void)cudaGetLastError(), -1;
    for (size_t i = 0; i < n; i++) neighbors[i] = all[i];
    return (int)n;
}
/* Add `count` edges to a graph, such that each of the nodes then[0] to then[count - 1] depends on the node `first`. */
TE_API cudaError_t te__graph_add_dependents(cudaGraph_t graph, cudaGraphNode_t first, const cudaGraphNode_t *then,
                                            int count) {
    cudaError_t e = cudaSuccess;
    for (int i = 0; i < count && e == cudaSuccess; i++)
#if CUDART_VERSION >= 13000
        e = cudaGraphAddDependencies(graph, &first, &then[i], 0, 1);
#else
        e = cudaGraphAddDependencies(graph, &first, &then[i], 1);
#endif
    return e;
}
/* Replace the graph node `fill` by `kernel` if the fill is small and one-dimensional; otherwise leave the fill as it
 * is. */
TE_API void te__small_fill_to_kernel(const void *kernel, cudaGraph_t graph, cudaGraphNode_t fill) {
    cudaGraphNode_t before[TE_SMALL_FILL_MAX_EDGES], after[TE_SMALL_FILL_MAX_EDGES], node = 0;
    cudaMemsetParams of = {};
    if (cudaGraphMemsetNodeGetParams(fill, &of) != cudaSuccess) return (void)cudaGetLastError();
    const size_t bytes = of.width * of.elementSize;
    const int ins = te__graph_neighbors(before, fill, 1), outs = te__graph_neighbors(after, fill, 0);
    if (of.height != 1 || bytes > TE_SMALL_FILL_MAX_BYTES || ins < 0 || outs < 0) return;
    te_small_fill args = {(uint8_t *)of.dst, of.value, (int)of.elementSize, (int)bytes};
    int early = 0;
    void *arg[2] = {&args, &early};
    struct cudaKernelNodeParams p = {};
    p.func = (void *)(uintptr_t)kernel, p.gridDim = dim3(1), p.blockDim = dim3(32), p.kernelParams = arg;
    if (cudaGraphAddKernelNode(&node, graph, before, (size_t)ins, &p) != cudaSuccess) return (void)cudaGetLastError();
    if (te__graph_add_dependents(graph, node, after, outs) == cudaSuccess) (void)cudaGraphDestroyNode(fill);
    else (void)cudaGetLastError(), (void)cudaGraphDestroyNode(node);
}
/* Replace all small fills of a graph. `kernel` takes a te_small_fill, and is launched as one block of 32 threads. If
 * `kernel` is null, no fill is replaced. */
TE_API void te_small_fills_to_kernels(const void *kernel, cudaGraph_t graph) {
    size_t count = 0;
    if (!kernel || cudaGraphGetNodes(graph, 0, &count) != cudaSuccess || !count) return;
    cudaGraphNode_t *node = (cudaGraphNode_t *)calloc(count, sizeof *node);
    if (node && cudaGraphGetNodes(graph, node, &count) == cudaSuccess)
        for (size_t i = 0; i < count; i++) {
            cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
            if (cudaGraphNodeGetType(node[i], &type) == cudaSuccess && type == cudaGraphNodeTypeMemset)
                te__small_fill_to_kernel(kernel, graph, node[i]);
        }
    free(node);
}

/* ---- recorded launches ------------------------------------------------------------------------------------------- */

typedef struct te_grid { int x, y; } te_grid;

enum {
    TE_LAUNCH_RECORD_BYTES = 96 << 10, /* the size of a context's record of launches, in bytes; when the record is full,
                                        * the recorded launches are enqueued */
    TE_LAUNCH_MIN_GRAPH = 4,           /* the smallest number of launches for which a graph is used; the launches of a
                                        * shorter pass are enqueued one by one */
    TE_LAUNCH_MAX_GRAPHS = 256         /* the largest number of cached graphs of a context */
};

/* The type of a function that enqueues work on ctx->stream itself (cuBLASLt, cudaMemsetAsync). Calls of such a function
 * can be recorded in the same way as launches. */
typedef te_status (*te_call_fn)(const void *args, te_context *ctx);

/* A recorded launch of a kernel (then `call` is null), or a recorded call of a function (then `kernel` is null). In a
 * record, the struct is followed by `bytes` bytes of arguments, and the next launch of the record begins `size` bytes
 * behind the beginning of this struct. */
typedef struct te_launch {
    const void *kernel;
    te_call_fn call;
    const char *name;
    te_grid grid;
    int threads, cluster, pdl, shared; /* threads: the number of threads per block; cluster: the number of thread blocks
                                        * in a cluster, all along x; pdl: 1 if the kernel is launched with programmatic
                                        * dependent launch; shared: the bytes of dynamic shared memory per block */
    /* the second argument of a kernel that TE_KERNEL or a similar macro defines (other kernels have no such argument).
     * 1: this kernel lets the next kernel start before this kernel has waited for the preceding one */
    int early;
    int bytes, size;
} te_launch;

/* A cached graph, and the recorded launches from which it was captured. */
typedef struct te_replay_graph {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    uint64_t last_launch; /* the value of te_launches.clock when the graph was launched last; this value is used to find
                           * the least recently used graph */
    int count, bytes;
    char *record;          /* [bytes]: a copy of the recorded launches from which the graph was captured */
    cudaGraphNode_t *node; /* [count]: for each launch, its node in the graph, or null if the launch is a call of a
                            * function */
} te_replay_graph;

typedef struct te_launches {
    int recording, count, bytes; /* recording: 1 while launches are being recorded; count: the number of launches in
                                  * `record`; bytes: the bytes that these launches take */
    int replays, next;           /* replays: the number of cached graphs; next: the index of the cached graph with which
                                  * the next pass is compared first */
    int last_is_kernel;          /* 1: the last work that the library enqueued on the stream is a kernel of a pass. 0:
                                  * that work is a call of a function, or work outside passes */
    int autotuning;              /* 1: the autotuner is timing candidate kernels for a GEMM. The autotuner launches a
                                  * small kernel before each candidate, so that the candidate starts as it would behind
                                  * another kernel of a pass */
    uint64_t clock;
    int64_t made, updated, replayed; /* how often a graph was captured (made), was given new arguments (updated), and
                                      * was launched (replayed) */
    cudaStream_t stream;             /* the stream on which graphs are captured */
    const void *small_fill_kernel;   /* the kernel that replaces small fills, or null if fills are not replaced */
    te_replay_graph *replay[TE_LAUNCH_MAX_GRAPHS];
    char record[TE_LAUNCH_RECORD_BYTES];
} te_launches;

/* Turn a CUDA error into TE_ERROR_CUDA with a text that begins with `what`. */
TE_API te_status te__cuda_status(te_context *ctx, cudaError_t e, const char *what) {
    return e == cudaSuccess ? TE_OK : te_fail(ctx, TE_ERROR_CUDA, "%s: %s", what, cudaGetErrorString(e));
}
/* Return whether the context's stream is being captured. Also returns 1 if the query fails, which happens if the
 * context's stream is the default stream and some other stream is being captured. */
TE_API int te__cuda_capturing(te_context *ctx) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing((cudaStream_t)ctx->stream, &status) == cudaSuccess)
        return status != cudaStreamCaptureStatusNone;
    (void)cudaGetLastError();
    return 1;
}
/* Return whether kernels are launched with programmatic dependent launch (PDL). PDL is used only if ctx->pdl is not 0
 * and the context's device runs code that was compiled for compute capability 9.0 or higher, because only such code
 * contains the wait in te_kernel_begin. */
TE_API int te__cuda_uses_pdl(const te_context *ctx) {
#ifdef __CUDA_ARCH_LIST__
    static const int compiled[] = {__CUDA_ARCH_LIST__};
    int runs = 0;
    for (size_t i = 0; i < sizeof compiled / sizeof compiled[0]; i++)
        if (compiled[i] <= ctx->capability && compiled[i] > runs) runs = compiled[i];
    return ctx->pdl && runs >= 900;
#else
    return (void)ctx, 0;
#endif
}

/* ---- one by one -------------------------------------------------------------------------------------------------- */

TE_API te_status te__launch_now(const te_launch *l, const void *args, te_context *ctx) {
    if (l->call) return l->call(args, ctx);
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t launch = {};
    void *arg[2] = {(void *)(uintptr_t)args, (void *)(uintptr_t)&l->early};
    launch.gridDim = dim3((unsigned)l->grid.x, (unsigned)l->grid.y), launch.blockDim = dim3((unsigned)l->threads),
    launch.dynamicSmemBytes = (size_t)l->shared;
    launch.stream = (cudaStream_t)ctx->stream, launch.attrs = attributes;
    if (l->pdl) {
        cudaLaunchAttribute *a = &attributes[launch.numAttrs++];
        a->id = cudaLaunchAttributeProgrammaticStreamSerialization, a->val.programmaticStreamSerializationAllowed = 1;
    }
    if (l->cluster > 1) {
        cudaLaunchAttribute *a = &attributes[launch.numAttrs++];
        a->id = cudaLaunchAttributeClusterDimension, a->val.clusterDim.x = (unsigned)l->cluster,
        a->val.clusterDim.y = a->val.clusterDim.z = 1;
    }
    return te__cuda_status(ctx, cudaLaunchKernelExC(&launch, l->kernel, arg), l->name);
}
/* Return the launch that begins at byte *at of a record, and advance *at to the next launch. */
TE_API const te_launch *te__launch_next(const char *record, int *at) {
    const te_launch *l = (const te_launch *)(const void *)(record + *at);
    *at += l->size;
    return l;
}
TE_API te_status te__launch_all(const char *record, int count, te_context *ctx) {
    for (int at = 0; count; count--) {
        const te_launch *l = te__launch_next(record, &at);
        TE_TRY(te__launch_now(l, l + 1, ctx));
    }
    return TE_OK;
}

/* ---- as a graph -------------------------------------------------------------------------------------------------- */

TE_API void te__replay_release(te_replay_graph *r) {
    if (r->exec) (void)cudaGraphExecDestroy(r->exec);
    if (r->graph) (void)cudaGraphDestroy(r->graph);
    free(r->record), free(r->node), free(r);
}
/* Remove graph i from the cache. */
TE_API void te__replay_evict(te_launches *s, int i) {
    te__replay_release(s->replay[i]);
    s->replay[i] = s->replay[--s->replays];
}

/* Return the graph node that was captured last. Returns null if CUDA is older than 12.3, where this node cannot be
 * queried. */
TE_API cudaGraphNode_t te__last_captured_node(cudaStream_t stream) {
    enum cudaStreamCaptureStatus status;
    const cudaGraphNode_t *node = 0;
    size_t nodes = 0;
#if CUDART_VERSION >= 12030
    const cudaGraphEdgeData *edge = 0;
#if CUDART_VERSION >= 13000
    const cudaError_t e = cudaStreamGetCaptureInfo(stream, &status, 0, 0, &node, &edge, &nodes);
#else
    const cudaError_t e = cudaStreamGetCaptureInfo_v3(stream, &status, 0, 0, &node, &edge, &nodes);
#endif
    if (e != cudaSuccess) nodes = 0;
#endif
    return nodes == 1 ? node[0] : 0;
}
/* Capture the recorded launches into a new graph. If this fails, return null and leave the context's error text
 * unchanged. */
TE_API te_replay_graph *te__replay_capture(te_launches *s, te_context *ctx) {
    void *const stream = ctx->stream;
    char error[sizeof ctx->error];
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed; /* relaxed, because other host threads may be capturing
                                                                * at the same time */
    te_replay_graph *r = (te_replay_graph *)calloc(1, sizeof *r);
    if (!r) return 0;
    memcpy(error, ctx->error, sizeof error);
    r->count = s->count, r->bytes = s->bytes, r->record = (char *)malloc((size_t)s->bytes),
    r->node = (cudaGraphNode_t *)calloc((size_t)s->count, sizeof *r->node);
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    int ok = r->record && r->node &&
             (s->stream || cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking) == cudaSuccess);
    if (ok && (ok = cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeRelaxed) == cudaSuccess)) {
        ctx->stream = s->stream;
        for (int i = 0, at = 0; ok && i < s->count; i++) {
            const te_launch *l = te__launch_next(s->record, &at);
            ok = te__launch_now(l, l + 1, ctx) == TE_OK;
            if (l->kernel) r->node[i] = te__last_captured_node(s->stream);
        }
        ctx->stream = stream;
        ok &= cudaStreamEndCapture(s->stream, &r->graph) == cudaSuccess;
    }
    if (ok) te_small_fills_to_kernels(s->small_fill_kernel, r->graph);
    ok = ok && cudaGraphInstantiateWithFlags(&r->exec, r->graph, 0) == cudaSuccess;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    if (ok) return memcpy(r->record, s->record, (size_t)s->bytes), r;
    (void)cudaGetLastError();
    memcpy(ctx->error, error, sizeof error);
    te__replay_release(r);
    return 0;
}

/* Return whether te__replay_update can make graph r equal to the recorded launches. te__replay_update can change only
 * the arguments, grids, block sizes and shared memory of kernels, so everything else must already be equal. */
TE_API int te__replay_matches(const te_replay_graph *r, const te_launches *s) {
    if (r->count != s->count || r->bytes != s->bytes) return 0;
    for (int i = 0, at = 0, same = 0; i < s->count; i++) {
        const te_launch *a = te__launch_next(r->record, &same), *b = te__launch_next(s->record, &at);
        if (a->kernel != b->kernel || a->call != b->call || a->cluster != b->cluster || a->pdl != b->pdl ||
            a->size != b->size)
            return 0;
        if (!r->node[i] && memcmp(a, b, (size_t)a->size)) return 0;
    }
    return 1;
}
/* Set the arguments, grids, block sizes and shared memory of the kernels in graph r to those of the recorded launches.
 * Returns 0 on failure. */
TE_API int te__replay_update(te_replay_graph *r, const te_launches *s) {
    for (int i = 0, at = 0, same = 0; i < s->count; i++) {
        const te_launch *old = te__launch_next(r->record, &same), *l = te__launch_next(s->record, &at);
        if (!memcmp(old, l, (size_t)l->size)) continue;
        void *arg[2] = {(void *)(uintptr_t)(l + 1), (void *)(uintptr_t)&l->early};
        struct cudaKernelNodeParams p = {};
        p.func = (void *)(uintptr_t)l->kernel, p.gridDim = dim3((unsigned)l->grid.x, (unsigned)l->grid.y),
        p.blockDim = dim3((unsigned)l->threads);
        p.sharedMemBytes = (unsigned)l->shared, p.kernelParams = arg;
        if (cudaGraphExecKernelNodeSetParams(r->exec, r->node[i], &p) != cudaSuccess)
            return (void)cudaGetLastError(), 0;
    }
    memcpy(r->record, s->record, (size_t)s->bytes);
    return 1;
}
/* Return a graph for the recorded launches: a cached one, a newly captured one, or a cached one with new arguments.
 * Returns null if the launches must be enqueued one by one. */
TE_API te_replay_graph *te__replay_find(te_launches *s, te_context *ctx) {
    int oldest = -1;
    for (int k = 0; k < s->replays; k++) {
        const int i = (s->next + k) % s->replays;
        te_replay_graph *r = s->replay[i];
        if (r->count == s->count && r->bytes == s->bytes && !memcmp(r->record, s->record, (size_t)s->bytes))
            return s->next = i + 1, r;
    }
    if (s->replays < te_min(ctx->replay, TE_LAUNCH_MAX_GRAPHS)) {
        te_replay_graph *r = te__replay_capture(s, ctx);
        if (r) s->replay[s->replays++] = r, s->next = s->replays, s->made++;
        else ctx->replay = 0; /* capturing has failed, so no later pass of this context shall try to capture a graph */
        return r;
    }
    for (int i = 0; i < s->replays; i++)
        if ((oldest < 0 || s->replay[i]->last_launch < s->replay[oldest]->last_launch) &&
            te__replay_matches(s->replay[i], s))
            oldest = i;
    if (oldest < 0) return 0;
    if (te__replay_update(s->replay[oldest], s)) return s->updated++, s->replay[oldest];
    te__replay_evict(s, oldest);
    return 0;
}

/* ---- recording a pass -------------------------------------------------------------------------------------------- */

/* Enqueue all recorded launches. Code that enqueues work on ctx->stream by itself must call this function first, so
 * that its work comes after the launches that are recorded but not enqueued yet. */
TE_API te_status te_launch_flush(te_context *ctx) {
    te_launches *s = (te_launches *)ctx->launches;
    if (s) s->last_is_kernel = 0;
    if (!s || !s->count) return TE_OK;
    te_replay_graph *r =
        ctx->replay > 0 && s->count >= TE_LAUNCH_MIN_GRAPH && !te__cuda_capturing(ctx) ? te__replay_find(s, ctx) : 0;
    const int count = s->count;
    s->count = s->bytes = 0;
    if (!r) return te__launch_all(s->record, count, ctx);
    r->last_launch = ++s->clock, s->replayed++;
    return te__cuda_status(ctx, cudaGraphLaunch(r->exec, (cudaStream_t)ctx->stream), "graph of a pass");
}
/* From now on record launches instead of enqueuing them, if ctx->replay allows graphs. */
TE_API void te__launch_record_begin(te_context *ctx) {
    te_launches *s = (te_launches *)ctx->launches;
    if (s) s->recording = ctx->replay > 0;
}
/* Return whether the next launch directly follows a kernel of the same pass or, if ctx->pdl is 2, a kernel of the
 * previous pass. If so, the next kernel may read memory that passes do not write, such as weights, before it calls
 * te_kernel_wait: only kernels of passes may still run when the next kernel starts, because the first kernel of the
 * pass has waited for all other work. A recorded call, such as a cuBLASLt GEMM, does not count as a kernel here: the
 * kernels that such a call launches may let the next kernel start before earlier work has ended. */
TE_API int te__launch_follows_kernel(const te_context *ctx) {
    const te_launches *s = (const te_launches *)ctx->launches;
    return s && (s->autotuning || (s->recording && s->last_is_kernel && (s->count || ctx->pdl > 1)));
}
TE_API int te__launch_is_recording(const te_context *ctx) {
    return ctx->launches && ((const te_launches *)ctx->launches)->recording;
}
/* End the recording of a pass. If `status`, the result of the pass, is TE_OK, enqueue the recorded launches and return
 * the result of enqueuing them; otherwise discard the recorded launches and return `status`. */
TE_API te_status te__launch_record_end(te_context *ctx, te_status status) {
    te_launches *s = (te_launches *)ctx->launches;
    if (s && status != TE_OK) s->count = s->bytes = 0;
    const int last_is_kernel = s && s->last_is_kernel;
    if (s) s->recording = 0;
    if (status == TE_OK) status = te_launch_flush(ctx);
    if (s) s->last_is_kernel = last_is_kernel && status == TE_OK;
    return status;
}
/* While the launches of a pass are being recorded, record the launch *l; otherwise enqueue it. `args` points to the
 * arguments of the launch, which have `bytes` bytes. */
TE_API te_status te__launch_or_record(te_launch *l, const void *args, int bytes, te_context *ctx) {
    te_launches *s = (te_launches *)ctx->launches;
    l->bytes = bytes, l->size = (int)(sizeof *l + (size_t)te_round_up(bytes, 16));
    if (s && !s->recording) s->last_is_kernel = 0;
    if (!s || !s->recording) return te__launch_now(l, args, ctx);
    if (s->bytes + l->size > TE_LAUNCH_RECORD_BYTES) TE_TRY(te_launch_flush(ctx));
    if (l->size > TE_LAUNCH_RECORD_BYTES) return te__launch_now(l, args, ctx);
    char *to = s->record + s->bytes;
    memset(to + l->size - 16, 0, 16); /* set the padding behind the arguments to zero, because records are compared
                                       * including their padding */
    memcpy(to, l, sizeof *l), memcpy(to + sizeof *l, args, (size_t)bytes);
    s->count++, s->bytes += l->size, s->last_is_kernel = l->kernel != 0;
    return TE_OK;
}
/* Make the te_launch that describes a launch of a kernel. name: the kernel's name, for error texts; shared: the bytes
 * of dynamic shared memory; cluster: the number of blocks in a cluster, all along x. */
TE_API te_launch te__launch_of(const void *kernel, const char *name, te_grid grid, int threads, int shared,
                               int cluster) {
    te_launch l;
    memset(&l, 0, sizeof l);
    l.kernel = kernel, l.name = name, l.grid = grid, l.threads = threads, l.shared = shared, l.cluster = cluster;
    return l;
}
/* Launch a kernel, or record its launch. `args` is the kernel's first argument, which has `bytes` bytes; the kernel's
 * second argument is te_launch.early. A kernel with at most one block per SM lets the next kernel start early, so that
 * the next kernel loads weights while this kernel runs. A larger kernel does not, because blocks of the next kernel
 * would take resources of the SMs from the larger kernel. */
TE_API te_status te__cuda_launch(te_context *ctx, te_launch launch, const void *args, size_t bytes) {
    launch.pdl = te__cuda_uses_pdl(ctx);
    launch.early = launch.pdl && te__launch_is_recording(ctx) && te__launch_follows_kernel(ctx) &&
                   launch.grid.x * launch.grid.y <= ctx->processors;
    return te__launch_or_record(&launch, args, (int)bytes, ctx);
}
/* Launch a kernel as te__cuda_launch does, without clusters and without dynamic shared memory. */
TE_API te_status te__cuda_launch_plain(te_context *ctx, const void *kernel, const char *name, te_grid grid, int threads,
                                       const void *args, size_t bytes) {
    return te__cuda_launch(ctx, te__launch_of(kernel, name, grid, threads, 0, 1), args, bytes);
}
TE_API te_status te__cuda_call(te_context *ctx, te_call_fn call, const void *args, size_t bytes) {
    te_launch l;
    memset(&l, 0, sizeof l);
    l.call = call;
    return te__launch_or_record(&l, args, (int)bytes, ctx);
}
TE_API void te__launches_close(te_context *ctx) {
    te_launches *s = (te_launches *)ctx->launches;
    if (!s) return;
    while (s->replays) te__replay_evict(s, s->replays - 1);
    if (s->stream) (void)cudaStreamDestroy(s->stream);
    free(s);
}

#endif
