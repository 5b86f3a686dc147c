/* graph_record.h -- a graph, its named tensors, and the capture of what its function enqueues (graph.h). */
#ifndef TE_GRAPH_RECORD_H
#define TE_GRAPH_RECORD_H

#include "graph_pool.h"     /* te_graph_pool */
#include "../core/target.h" /* te_context, te_check_target, calloc */

/* ---- named tensors ---------------------------------------------------------------------------------------------- */

/* Name null: the tensor is meant by its place in the array, from 0. */
typedef struct te_named { const char *name; te_tensor tensor; } te_named;

TE_API te_named te_named_tensor(const char *name, te_tensor t) {
    te_named n;
    n.name = name, n.tensor = t;
    return n;
}
/* Tokens or labels. A graph copies bits, so that int32 numbers pass as f32: p[count] is the tensor [count, 1]. */
TE_API te_named te_named_ints(const char *name, const int32_t *p, int64_t count) {
    return te_named_tensor(name, te_matrix((void *)(uintptr_t)p, TE_f32, count, 1));
}

/* ---- graphs ----------------------------------------------------------------------------------------------------- */

enum { TE__GRAPH_PLACE = 16 }; /* bytes for the name of a tensor that was given none: "#2" */

struct te_graph;
/* Enqueues library calls on ctx->stream, which during a capture is a stream of the graph's. May not allocate or release
 * memory, wait, copy from or to pageable memory, or use another stream that it has not joined by events. */
typedef te_status (*te_graph_fn)(const struct te_graph *g, const void *arg, te_context *ctx);

/* What to capture. Read during the call only; names are copied. */
typedef struct te_graph_spec {
    const char *name;         /* for texts */
    te_graph_fn run;
    const void *arg;          /* for run */
    size_t arg_bytes;         /* so much of it is copied, and run gets the copy; 0: run gets `arg` itself */
    const te_named *in, *out; /* [in_count], [out_count]; data null: memory from the pool */
    int in_count, out_count;
} te_graph_spec;

TE_API te_graph_spec te_graph_spec_of(const char *name, te_graph_fn run, const void *arg, size_t arg_bytes,
                                      const te_named *in, int in_count, const te_named *out, int out_count) {
    te_graph_spec s;
    s.name = name, s.run = run, s.arg = arg, s.arg_bytes = arg_bytes, s.in = in, s.out = out, s.in_count = in_count,
    s.out_count = out_count;
    return s;
}

typedef struct te__static {
    te_tensor tensor;
    const char *name;   /* "#2" for the third, if it was given none */
    const void *source; /* of an input, during a replay */
    int id;             /* of its piece of the pool; 0: the caller's memory */
} te__static;

typedef struct te_graph {
    te_context *ctx;
    te_graph_pool *pool;
    const char *name;
    te_graph_fn run;
    const void *arg;
    te__static *tensor; /* [in_count + out_count]; one host allocation with the copies of arg and the names */
    int in_count, out_count;
    void *exec, *workspace; /* cudaGraphExec_t; the context's at the capture */
    size_t workspace_bytes;
    const struct te_graph *at; /* where it was captured: it stays there */
} te_graph;

/* A graph's static input or output by place or by name; te_none() if it has no such. */
TE_API te_tensor te_graph_input_at(const te_graph *g, int i) {
    return g && i >= 0 && i < g->in_count ? g->tensor[i].tensor : te_none();
}
TE_API te_tensor te_graph_output_at(const te_graph *g, int i) {
    return g && i >= 0 && i < g->out_count ? g->tensor[g->in_count + i].tensor : te_none();
}
TE_API int te__static_find(const te__static *s, int from, int to, const char *name) {
    for (int i = from; name && i < to; i++)
        if (!strcmp(s[i].name, name)) return i - from;
    return -1;
}
TE_API te_tensor te_graph_input(const te_graph *g, const char *name) {
    return te_graph_input_at(g, !g ? -1 : te__static_find(g->tensor, 0, g->in_count, name));
}
TE_API te_tensor te_graph_output(const te_graph *g, const char *name) {
    return te_graph_output_at(g, !g ? -1 : te__static_find(g->tensor, g->in_count, g->in_count + g->out_count, name));
}
TE_API size_t te__tensor_bytes(te_tensor t) { return (size_t)t.rows * (size_t)t.cols * te_dtype_bytes(t.dtype); }

/* Give the pool back what this graph's own inputs and outputs took. Captures that follow may lie there; see at the
 * top. */
TE_API void te_graph_retire(te_graph *g) {
    for (int i = 0; g && g->at == g && i < g->in_count + g->out_count; i++)
        for (int k = 0; g->tensor[i].id && k < g->pool->count; k++)
            if (g->pool->block[k].id == g->tensor[i].id) te__graph_pool_drop(g->pool, k), g->tensor[i].id = 0;
}
/* Retire, and free the graph. One that a capture refused, or all zeros, may be destroyed too; nothing happens to a
 * copy. */
TE_API void te_graph_destroy(te_graph *g) {
    if (!g || (g->at && g->at != g)) return;
    te_graph_retire(g);
#if TE_CUDA
    if (g->exec) (void)cudaGraphExecDestroy((cudaGraphExec_t)g->exec);
#endif
    free(g->tensor);
    memset(g, 0, sizeof *g);
}

/* While the function runs, the context has a target that refuses what a graph cannot repeat. */
typedef struct te__graph_target {
    te_target target;
    const te_target *real;
    const char *name;
    int refused;
} te__graph_target;

TE_API te_status te__graph_refuse(te_context *ctx, const char *what) {
    te__graph_target *t = (te__graph_target *)(uintptr_t)ctx->target;
    t->refused = 1;
    return te_fail(ctx, TE_ERROR_STATE,
                   "graph %s: its function %s, which a graph cannot repeat; do that before the capture", t->name, what);
}
TE_API te_status te__graph_allocate(te_context *ctx, void **p, size_t bytes) {
    *p = 0, (void)bytes;
    return te__graph_refuse(ctx, "allocates memory");
}
TE_API void te__graph_release(te_context *ctx, void *p) { (void)p, (void)te__graph_refuse(ctx, "releases memory"); }
TE_API te_status te__graph_synchronize(te_context *ctx) { return te__graph_refuse(ctx, "waits for the stream"); }
#if TE_CUDA
/* Pageable memory is likely a local variable of the function, gone at the replay. */
TE_API te_status te__graph_copy(te_context *ctx, void *dst, const void *src, size_t bytes) {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed; /* asking about a pointer is safe */
    cudaPointerAttributes d, s;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    const int known =
        cudaPointerGetAttributes(&d, dst) == cudaSuccess && cudaPointerGetAttributes(&s, src) == cudaSuccess;
    (void)cudaThreadExchangeStreamCaptureMode(&mode); /* back */
    if (known && (d.type == cudaMemoryTypeUnregistered || s.type == cudaMemoryTypeUnregistered))
        return te__graph_refuse(ctx, "copies from or to pageable host memory");
    if (!known) (void)cudaGetLastError();
    return ((te__graph_target *)(uintptr_t)ctx->target)->real->copy(ctx, dst, src, bytes);
}
#endif

TE_API te_status te__graph_call(const te_graph *g, te_context *ctx) {
    te__graph_target t;
    t.target = *ctx->target, t.real = ctx->target, t.name = g->name, t.refused = 0;
    t.target.allocate = te__graph_allocate, t.target.release = te__graph_release,
    t.target.synchronize = te__graph_synchronize;
#if TE_CUDA
    t.target.copy = te__graph_copy;
#endif
    ctx->target = &t.target;
    const te_status status = g->run(g, g->arg, ctx);
    ctx->target = t.real;
    TE_REQUIRE(
        status != TE_OK || !t.refused, ctx, TE_ERROR_STATE,
        "graph %s: its function allocates, releases, waits or copies pageable memory, and ignored that it was refused",
        g->name);
    return status;
}

/* On a stream of its own, so that the context's never is in capture mode and may be the default one. Not a non-blocking
 * stream: work that the function puts on the default stream by mistake is then an error, instead of done once and
 * lost. */
TE_API te_status te__graph_record(te_graph *g, te_context *ctx) {
    te_status status = TE_OK;
#if TE_CUDA
    void *const stream = ctx->stream;
    cudaStream_t own;
    cudaGraph_t graph = 0;
    cudaGraphExec_t exec = 0;
    TE_TRY(te__cuda_status(ctx, cudaStreamCreate(&own), "graph: stream"));
    status = te__cuda_status(ctx, cudaStreamBeginCapture(own, cudaStreamCaptureModeThreadLocal),
                             "graph: begin of the capture");
    if (status == TE_OK) {
        ctx->stream = own;
        status = te__graph_call(g, ctx);
        ctx->stream = stream;
        const cudaError_t e = cudaStreamEndCapture(own, &graph);
        if (status == TE_OK && e != cudaSuccess)
            status = te_fail(
                ctx, TE_ERROR_CUDA,
                "graph %s: its function did what cannot be captured (waited, allocated, used another stream): %s",
                g->name, cudaGetErrorString(e));
    }
    if (status == TE_OK && ctx->launches) te_fills_become(((const te_launches *)ctx->launches)->fill, graph);
    if (status == TE_OK)
        status = te__cuda_status(ctx, cudaGraphInstantiateWithFlags(&exec, graph, 0), "graph: instantiate");
    if (graph) (void)cudaGraphDestroy(graph);
    (void)cudaStreamDestroy(own);
    if (status != TE_OK) (void)cudaGetLastError(); /* or the next launch would report it */
    else g->exec = exec;
#else
    (void)g, (void)ctx;
#endif
    return status;
}

#endif
