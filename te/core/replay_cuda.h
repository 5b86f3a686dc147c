/* replay_cuda.h -- what a pass of a model would launch, as data, and as a CUDA graph (launch_cuda.h). */
/* target: cuda */
#ifndef TE_REPLAY_CUDA_H
#define TE_REPLAY_CUDA_H

#include <stdlib.h> /* malloc */

#include "context.h"    /* te_context */
#include "fills_cuda.h" /* te_fills_become */

typedef struct te_grid { int x, y; } te_grid;

enum {
    TE_LAUNCH_BYTES = 96 << 10, /* that are written down at a time */
    TE_LAUNCH_LEAST = 4,        /* fewer go one by one */
    TE_LAUNCH_GRAPHS = 256      /* kept by a context, at most */
};

/* Enqueues something on ctx->stream by other means than a kernel of ours. */
typedef te_status (*te_call_fn)(const void *args, te_context *ctx);

/* What was written down, or is about to be: a kernel or a call. `bytes` of arguments follow it, up to `size` bytes from
 * its beginning. */
typedef struct te_launch {
    const void *kernel;
    te_call_fn call;
    const char *name;
    te_grid grid;
    int threads, cluster, overlap, shared; /* cluster: blocks along x that go together, 1: each by itself */
    int bytes, size;
} te_launch;

/* A graph, and what it launches. */
typedef struct te_replay {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    uint64_t last; /* when it was launched */
    int count, bytes;
    char *record;          /* [bytes] */
    cudaGraphNode_t *node; /* [count]; null: of a call */
} te_replay;

typedef struct te_launches {
    int open, count, bytes, replays, next; /* next: the graph that is looked at first */
    int behind_kernel;                     /* what was written down last is a kernel */
    int racing; /* whatever is launched comes behind a kernel that writes no weight (te/gemm/gemm_race_cuda.h) */
    uint64_t clock;
    int64_t made, set, replayed; /* graphs that were made, that got new arguments, that were launched */
    cudaStream_t stream;         /* where they are captured */
    const void *fill;            /* the kernel in the place of small fills; null: they stay */
    te_replay *replay[TE_LAUNCH_GRAPHS];
    char record[TE_LAUNCH_BYTES];
} te_launches;

TE_API te_status te__cuda_status(te_context *ctx, cudaError_t e, const char *what) {
    return e == cudaSuccess ? TE_OK : te_fail(ctx, TE_ERROR_CUDA, "%s: %s", what, cudaGetErrorString(e));
}
/* Whether work on this stream is being recorded. An error means that another one is, which forbids the default
 * stream. */
TE_API int te__cuda_capturing(te_context *ctx) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing((cudaStream_t)ctx->stream, &status) == cudaSuccess)
        return status != cudaStreamCaptureStatusNone;
    (void)cudaGetLastError();
    return 1;
}
/* Whether the kernels of this file, as they run on the context's device, wait in te_kernel_begin. */
TE_API int te__cuda_overlaps(const te_context *ctx) {
#ifdef __CUDA_ARCH_LIST__
    static const int compiled[] = {__CUDA_ARCH_LIST__};
    int runs = 0;
    for (size_t i = 0; i < sizeof compiled / sizeof compiled[0]; i++)
        if (compiled[i] <= ctx->capability && compiled[i] > runs) runs = compiled[i];
    return ctx->overlap && runs >= 900;
#else
    return (void)ctx, 0;
#endif
}

/* ---- one by one -------------------------------------------------------------------------------------------------- */

TE_API te_status te__launch_one(const te_launch *l, const void *args, te_context *ctx) {
    if (l->call) return l->call(args, ctx);
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t launch = {};
    void *arg[1] = {(void *)(uintptr_t)args};
    launch.gridDim = dim3((unsigned)l->grid.x, (unsigned)l->grid.y), launch.blockDim = dim3((unsigned)l->threads),
    launch.dynamicSmemBytes = (size_t)l->shared;
    launch.stream = (cudaStream_t)ctx->stream, launch.attrs = attributes;
    if (l->overlap) {
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
/* What is written down at *at, which moves behind it. */
TE_API const te_launch *te__launch_at(const char *record, int *at) {
    const te_launch *l = (const te_launch *)(const void *)(record + *at);
    *at += l->size;
    return l;
}
TE_API te_status te__launch_each(const char *record, int count, te_context *ctx) {
    for (int at = 0; count; count--) {
        const te_launch *l = te__launch_at(record, &at);
        TE_TRY(te__launch_one(l, l + 1, ctx));
    }
    return TE_OK;
}

/* ---- as a graph -------------------------------------------------------------------------------------------------- */

TE_API void te__replay_release(te_replay *r) {
    if (r->exec) (void)cudaGraphExecDestroy(r->exec);
    if (r->graph) (void)cudaGraphDestroy(r->graph);
    free(r->record), free(r->node), free(r);
}
/* Forget graph i. */
TE_API void te__replay_forget(te_launches *s, int i) {
    te__replay_release(s->replay[i]);
    s->replay[i] = s->replay[--s->replays];
}

/* The node that was captured last; null where the toolkit cannot say. */
TE_API cudaGraphNode_t te__captured(cudaStream_t stream) {
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
/* A graph of what was written down; null: none could be made. */
TE_API te_replay *te__replay_make(te_launches *s, te_context *ctx) {
    void *const stream = ctx->stream;
    char error[sizeof ctx->error];
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed; /* no matter what is captured elsewhere */
    te_replay *r = (te_replay *)calloc(1, sizeof *r);
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
            const te_launch *l = te__launch_at(s->record, &at);
            ok = te__launch_one(l, l + 1, ctx) == TE_OK;
            if (l->kernel) r->node[i] = te__captured(s->stream);
        }
        ctx->stream = stream;
        ok &= cudaStreamEndCapture(s->stream, &r->graph) == cudaSuccess;
    }
    if (ok) te_fills_become(s->fill, r->graph);
    ok = ok && cudaGraphInstantiateWithFlags(&r->exec, r->graph, 0) == cudaSuccess;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    if (ok) return memcpy(r->record, s->record, (size_t)s->bytes), r;
    (void)cudaGetLastError();
    memcpy(ctx->error, error, sizeof error);
    te__replay_release(r);
    return 0;
}

/* Whether graph r can launch what was written down, once its kernels have these arguments. */
TE_API int te__replay_fits(const te_replay *r, const te_launches *s) {
    if (r->count != s->count || r->bytes != s->bytes) return 0;
    for (int i = 0, at = 0, same = 0; i < s->count; i++) {
        const te_launch *a = te__launch_at(r->record, &same), *b = te__launch_at(s->record, &at);
        if (a->kernel != b->kernel || a->call != b->call || a->cluster != b->cluster || a->overlap != b->overlap ||
            a->size != b->size)
            return 0;
        if (!r->node[i] && memcmp(a, b, (size_t)a->size)) return 0;
    }
    return 1;
}
/* Give it them. */
TE_API int te__replay_set(te_replay *r, const te_launches *s) {
    for (int i = 0, at = 0, same = 0; i < s->count; i++) {
        const te_launch *old = te__launch_at(r->record, &same), *l = te__launch_at(s->record, &at);
        if (!memcmp(old, l, (size_t)l->size)) continue;
        void *arg[1] = {(void *)(uintptr_t)(l + 1)};
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
/* The graph that launches what was written down; null: none does. */
TE_API te_replay *te__replay_of(te_launches *s, te_context *ctx) {
    int oldest = -1;
    for (int k = 0; k < s->replays; k++) {
        const int i = (s->next + k) % s->replays;
        te_replay *r = s->replay[i];
        if (r->count == s->count && r->bytes == s->bytes && !memcmp(r->record, s->record, (size_t)s->bytes))
            return s->next = i + 1, r;
    }
    if (s->replays < te_min(ctx->replay, TE_LAUNCH_GRAPHS)) {
        te_replay *r = te__replay_make(s, ctx);
        if (r) s->replay[s->replays++] = r, s->next = s->replays, s->made++;
        else ctx->replay = 0; /* it would cost as much the next time */
        return r;
    }
    for (int i = 0; i < s->replays; i++)
        if ((oldest < 0 || s->replay[i]->last < s->replay[oldest]->last) && te__replay_fits(s->replay[i], s))
            oldest = i;
    if (oldest < 0) return 0;
    if (te__replay_set(s->replay[oldest], s)) return s->set++, s->replay[oldest];
    te__replay_forget(s, oldest);
    return 0;
}

#endif
