/* graph.h -- CUDA graphs: record once the work that a function enqueues (a forward, a backward, a whole step), and
 * replay it with one launch. A replay takes inputs by name or position, and checks their shapes and dtypes.
 *
 * Do this:
 *     te_status step(const te_graph *g, const void *arg, te_context *ctx) {    // may only enqueue on ctx->stream
 *         const trainer *t = (const trainer *)arg;
 *         te_batch batch = t->batch;
 *         batch.tokens = (const int32_t *)te_graph_input(g, "tokens").data;
 *         TE_TRY(gpt_forward(te_graph_output(g, "loss"), t->saved, te_none(), t->m, &batch, ctx));
 *         TE_TRY(gpt_backward(te_none(), te_none(), t->saved, t->m, &batch, ctx));
 *         return te_adamw_step(t->opt, ctx);
 *     }
 *     TE_TRY(te_graph_pool_init(&pool, memory, bytes, &ctx));
 *     te_named in[] = {te_named_ints("tokens", 0, rows)};
 *     te_named out[] = {te_named_tensor("loss", te_matrix(0, TE_f32, rows, 1))};
 *     te_graph_spec spec = te_graph_spec_of("step", step, t, 0, in, 1, out, 1);
 *     TE_TRY(te_graph_capture(&g, &spec, &pool, &ctx));    // only records; an eager step before it loads the kernels
 *     ...
 *     in[0] = te_named_ints("tokens", next, rows);
 *     TE_TRY(te_graph_replay(&g, in, 1, &ctx));            // copies `next` to the graph's own tokens and launches
 *
 * On the host target, a replay calls the function, with the same checks and results as on CUDA. A capture on the host
 * does not call the function, so an error in the function appears only at the first replay, when a part of the function
 * may already have run.
 */
#ifndef TE_GRAPH_H
#define TE_GRAPH_H

#include "../core/target.h" /* te_context, te__check_target */

/* ---- the pool: memory that graphs share ---------------------------------------------------------------------------
 * One block of memory that several graphs share. It holds their static inputs and outputs, and the te_saved of their
 * forward passes.
 *
 * Do this:
 *     TE_TRY(te_graph_pool_init(&pool, 0, 0, &ctx));             // measure: go through the schedule once,
 *     ... te_graph_capture(&g, &spec, &pool, &ctx), te_graph_pool_acquire, te_graph_pool_release, te_graph_retire ...
 *     TE_TRY(te_allocate(&ctx, &memory, bytes = pool.high));     // destroy those graphs, allocate,
 *     TE_TRY(te_graph_pool_init(&pool, memory, bytes, &ctx));    // and go through it again
 *     saved.bytes = block_saved_bytes(rows);
 *     TE_TRY(te_graph_pool_acquire(&pool, &saved.memory, saved.bytes, "saved of micro-batch 1", &ctx));
 */

/* the largest number of pieces of a pool that may be in use at a time. A pipeline of 16 micro-batches and 8 blocks of a
 * model needs about 700 pieces */
enum { TE_GRAPH_BLOCKS = 1024 };

/* A first-fit allocator for the memory of graphs. The struct may not be copied or moved, and must outlive the graphs
 * that use it. */
typedef struct te_graph_pool {
    uintptr_t base;
    /* bytes: the size of the pool; used: the number of bytes in use now; high: the size that the pool has needed so
     * far, i.e. the highest end of a piece */
    size_t bytes, used, high;
    int measures;             /* 1: the pool has no memory, and only computes in `high` how many bytes it would need */
    int count, next_id;
    struct { size_t at, bytes; int id; } block[TE_GRAPH_BLOCKS]; /* [count]: the pieces of the pool that are in use,
                                                                  * sorted by address */
} te_graph_pool;

/* Initialise a pool. `memory` points to `bytes` bytes of target memory, aligned to TE_ALIGN. The caller owns this
 * memory, and must free it only after the graphs are destroyed. If `memory` is null, the pool only measures how many
 * bytes are needed. Errors: TE_ERROR_NULL, TE_ERROR_ALIGNMENT. */
TE_API te_status te_graph_pool_init(te_graph_pool *p, void *memory, size_t bytes, te_context *ctx) {
    TE_REQUIRE(p, ctx, TE_ERROR_NULL, "graph pool: the struct is null");
    TE_REQUIRE((uintptr_t)memory % TE_ALIGN == 0, ctx, TE_ERROR_ALIGNMENT,
               "graph pool: memory must be aligned to %d bytes", (int)TE_ALIGN);
    memset(p, 0, sizeof *p);
    p->measures = !memory, p->base = memory ? (uintptr_t)memory : (uintptr_t)TE_ALIGN,
    p->bytes = memory ? bytes : SIZE_MAX / 4;
    return TE_OK;
}

/* Allocate a piece of the pool. *id becomes a number that identifies the piece. `who` and `what` are two parts of the
 * error text, which say what the piece is for. */
TE_API te_status te__graph_pool_allocate(te_graph_pool *p, void **memory, int *id, size_t bytes, const char *who,
                                         const char *what, te_context *ctx) {
    const size_t need = bytes > SIZE_MAX / 4 ? bytes : (bytes / TE_ALIGN + (bytes % TE_ALIGN != 0)) * TE_ALIGN;
    size_t at = 0, gap, largest = 0;
    int i = 0;
    for (;; at = p->block[i].at + p->block[i].bytes, i++) {
        gap = (i < p->count ? p->block[i].at : p->bytes) - at;
        if (gap > largest) largest = gap;
        if (gap >= need || i == p->count) break;
    }
    TE_REQUIRE(gap >= need, ctx, TE_ERROR_MEMORY,
               "graph pool: %s%s needs %zu bytes; of %zu bytes %zu are available, at most %zu in one piece", who, what,
               need, p->bytes, p->bytes - p->used, largest);
    TE_REQUIRE(p->count < TE_GRAPH_BLOCKS, ctx, TE_ERROR_MEMORY, "graph pool: %s%s would be piece %d, it holds %d", who,
               what, p->count + 1, (int)TE_GRAPH_BLOCKS);
    memmove(&p->block[i + 1], &p->block[i], (size_t)(p->count - i) * sizeof p->block[0]);
    p->block[i].at = at, p->block[i].bytes = need, p->block[i].id = *id = ++p->next_id, p->count++;
    p->used += need;
    if (at + need > p->high) p->high = at + need;
    *memory = (void *)(p->base + at);
    return TE_OK;
}
TE_API void te__graph_pool_free(te_graph_pool *p, int i) {
    p->used -= p->block[i].bytes, p->count--;
    memmove(&p->block[i], &p->block[i + 1], (size_t)(p->count - i) * sizeof p->block[0]);
}

/* Allocate a piece of the pool, aligned to TE_ALIGN. `what` is a text for error messages that says what the piece is
 * for, such as "saved of micro-batch 1". Errors: TE_ERROR_NULL; TE_ERROR_SHAPE for 0 bytes; TE_ERROR_MEMORY if no gap
 * between the pieces is large enough. */
TE_API te_status te_graph_pool_acquire(te_graph_pool *p, void **memory, size_t bytes, const char *what,
                                       te_context *ctx) {
    int id;
    TE_REQUIRE(p && p->base && memory, ctx, TE_ERROR_NULL,
               "graph pool: not initialised, or there is no place for the address");
    TE_REQUIRE(bytes, ctx, TE_ERROR_SHAPE, "graph pool: 0 bytes are wanted for %s", what ? what : "a piece");
    return te__graph_pool_allocate(p, memory, &id, bytes, "", what ? what : "a piece", ctx);
}
/* Return the piece that begins at address `memory` to the pool. Errors: TE_ERROR_NULL; TE_ERROR_VALUE if no piece
 * begins at this address. */
TE_API te_status te_graph_pool_release(te_graph_pool *p, const void *memory, te_context *ctx) {
    TE_REQUIRE(p, ctx, TE_ERROR_NULL, "graph pool: the pool is null");
    for (int i = 0; i < p->count; i++)
        if (p->base + p->block[i].at == (uintptr_t)memory) return te__graph_pool_free(p, i), TE_OK;
    return te_fail(ctx, TE_ERROR_VALUE, "graph pool: no piece begins at %p", memory);
}

/* Static tensors. A graph reads and writes the same addresses at every replay. A tensor of the te_graph_spec that has
 * memory is used in place; therefore a replay copies nothing if one graph's output y and the next graph's input x have
 * the same memory. A tensor without memory (data null) gets memory from the pool. The caller acquires the memory of a
 * te_saved from the pool with te_graph_pool_acquire.
 *
 * The pool. Memory is acquired and released in the order of the captures. Released memory is reused, which is correct
 * only if replays come in the order of the captures. te_graph_retire declares that no later work needs the inputs and
 * outputs that the graph has in the pool, so that later captures may reuse their memory. The graph can still be
 * replayed at its position in the order of captures, where no later graph uses this memory yet. Example: for a pipeline
 * with the schedule F0 F1 B0 F2 ... (F0, B0: forward and backward of micro-batch 0), capture in this order; after B0,
 * retire F0 and release the memory that F0 saved for B0. A pool without memory only measures: run the same sequence of
 * calls with such a pool, which records no graph; afterwards pool.high is the number of bytes to allocate.
 *
 * Random numbers. The random state lies in target memory, and kernels advance it there. Therefore each replay draws new
 * numbers, the same numbers as an eager run would draw.
 *
 * A capture fixes everything that the host passes to a kernel: addresses, sizes, batch.accumulate, an optimizer's
 * config. The memory that `arg` points to, the models and the context's workspace must not change as long as the graph
 * lives. */

/* ---- named tensors ----------------------------------------------------------------------------------------------- */

/* A tensor with a name. If the name is null, the tensor is identified by its position in the array, counted from 0. */
typedef struct te_named { const char *name; te_tensor tensor; } te_named;

TE_API te_named te_named_tensor(const char *name, te_tensor t) {
    te_named n;
    n.name = name, n.tensor = t;
    return n;
}
/* Describe an array of tokens or labels. A graph copies inputs bit by bit, so the int32 numbers p[count] can be passed
 * as a tensor [count, 1] of f32. */
TE_API te_named te_named_ints(const char *name, const int32_t *p, int64_t count) {
    return te_named_tensor(name, te_matrix((void *)(uintptr_t)p, TE_f32, count, 1));
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

enum { TE__GRAPH_POSITION_BYTES = 16 }; /* the size, in bytes, of the name that is generated for a tensor without a
                                         * name, such as "#2" */

struct te_graph;
/* The function that a graph records. The function enqueues library calls on ctx->stream, which during a capture is a
 * stream that only the capture uses. The function may not allocate or release memory, wait, or copy from or to pageable
 * memory. The function may use another stream only if it joins that stream to ctx->stream by events. */
typedef te_status (*te_graph_fn)(const struct te_graph *g, const void *arg, te_context *ctx);

/* The description of a capture. te_graph_capture reads the description only during the call, and copies the names. */
typedef struct te_graph_spec {
    const char *name;         /* the graph's name, for error texts */
    te_graph_fn run;
    const void *arg;          /* the pointer that `run` gets as its `arg` */
    /* the number of bytes at `arg`. The capture copies these bytes, and `run` gets the copy. If the number is 0, `run`
     * gets `arg` itself */
    size_t arg_bytes;
    const te_named *in, *out; /* [in_count] and [out_count]: the inputs and outputs. A tensor whose data is null gets
                               * memory from the pool */
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
    const char *name;   /* the name of the tensor or, if the caller gave none, its position, such as "#2" */
    const void *source; /* the address from which a replay copies this input */
    int id;             /* identifies the piece of the pool that holds the tensor; 0 if the tensor is in the caller's
                         * memory */
} te__static;

typedef struct te_graph {
    te_context *ctx;
    te_graph_pool *pool;
    const char *name;
    te_graph_fn run;
    const void *arg;
    te__static *tensor; /* [in_count + out_count]: the static inputs, then the static outputs. One host allocation holds
                         * these tensors, the copy of `arg`, and the names */
    int in_count, out_count;
    void *exec, *workspace; /* exec: the executable graph, a cudaGraphExec_t; workspace: the address of the context's
                             * workspace at the time of the capture */
    size_t workspace_bytes;
    const struct te_graph *at; /* the address of this struct at the time of the capture. The struct must not move
                                * afterwards */
} te_graph;

/* Return the static input of a graph at position i, counted from 0, or te_none() if the graph has no such input. */
TE_API te_tensor te_graph_input_at(const te_graph *g, int i) {
    return g && i >= 0 && i < g->in_count ? g->tensor[i].tensor : te_none();
}
/* Return the static output of a graph at position i, counted from 0, or te_none() if the graph has no such output. */
TE_API te_tensor te_graph_output_at(const te_graph *g, int i) {
    return g && i >= 0 && i < g->out_count ? g->tensor[g->in_count + i].tensor : te_none();
}
/* Return the position, counted from 0, of the tensor called `name` among the tensors [from, to), or -1 if none of them
 * has this name. */
TE_API int te__static_find(const te__static *s, int from, int to, const char *name) {
    for (int i = from; name && i < to; i++)
        if (!strcmp(s[i].name, name)) return i - from;
    return -1;
}
/* Return the static input of a graph that has this name, or te_none() if the graph has no such input. */
TE_API te_tensor te_graph_input(const te_graph *g, const char *name) {
    return te_graph_input_at(g, !g ? -1 : te__static_find(g->tensor, 0, g->in_count, name));
}
/* Return the static output of a graph that has this name, or te_none() if the graph has no such output. */
TE_API te_tensor te_graph_output(const te_graph *g, const char *name) {
    return te_graph_output_at(g, !g ? -1 : te__static_find(g->tensor, g->in_count, g->in_count + g->out_count, name));
}
TE_API size_t te__tensor_bytes(te_tensor t) { return (size_t)t.rows * (size_t)t.cols * te_dtype_bytes(t.dtype); }

/* Return to the pool the memory that holds this graph's static inputs and outputs, so that later captures can use this
 * memory (see "The pool", above). */
TE_API void te_graph_retire(te_graph *g) {
    for (int i = 0; g && g->at == g && i < g->in_count + g->out_count; i++)
        for (int k = 0; g->tensor[i].id && k < g->pool->count; k++)
            if (g->pool->block[k].id == g->tensor[i].id) te__graph_pool_free(g->pool, k), g->tensor[i].id = 0;
}
/* Retire the graph and free it. The argument may also be a graph whose capture failed, or a struct of zeros. If the
 * argument is a copy of a graph, the function does nothing. */
TE_API void te_graph_destroy(te_graph *g) {
    if (!g || (g->at && g->at != g)) return;
    te_graph_retire(g);
#if TE_CUDA
    if (g->exec) (void)cudaGraphExecDestroy((cudaGraphExec_t)g->exec);
#endif
    free(g->tensor);
    memset(g, 0, sizeof *g);
}

/* ---- the call of the function ------------------------------------------------------------------------------------ */

/* A target that replaces the context's target while a graph's function runs. Its functions return an error for calls
 * that a graph cannot replay. */
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
/* Copy memory while a graph is captured. A copy from or to pageable memory is refused, because such memory is probably
 * a local variable of the graph's function, which no longer exists at the replay. */
TE_API te_status te__graph_copy(te_context *ctx, void *dst, const void *src, size_t bytes) {
    /* In the relaxed mode a thread may call cudaPointerGetAttributes during a capture. */
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaPointerAttributes d, s;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    const int known =
        cudaPointerGetAttributes(&d, dst) == cudaSuccess && cudaPointerGetAttributes(&s, src) == cudaSuccess;
    (void)cudaThreadExchangeStreamCaptureMode(&mode); /* restores the thread's earlier mode */
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

/* ---- capture ----------------------------------------------------------------------------------------------------- */

/* Capture g's function on a stream created for the capture, so that the context's stream is never in capture mode and
 * may be the default stream. The created stream is a blocking stream, so that it is an error if the function enqueues
 * work on the default stream by mistake. With a non-blocking stream, such work would run once during the capture and be
 * missing from the graph. */
TE_API te_status te__graph_record(te_graph *g, te_context *ctx) {
    te_status status = TE_OK;
#if TE_CUDA
    void *const stream = ctx->stream;
    cudaStream_t capture;
    cudaGraph_t graph = 0;
    cudaGraphExec_t exec = 0;
    TE_TRY(te__cuda_status(ctx, cudaStreamCreate(&capture), "graph: stream"));
    status = te__cuda_status(ctx, cudaStreamBeginCapture(capture, cudaStreamCaptureModeThreadLocal),
                             "graph: begin of the capture");
    if (status == TE_OK) {
        ctx->stream = capture;
        status = te__graph_call(g, ctx);
        ctx->stream = stream;
        const cudaError_t e = cudaStreamEndCapture(capture, &graph);
        if (status == TE_OK && e != cudaSuccess)
            status = te_fail(
                ctx, TE_ERROR_CUDA,
                "graph %s: its function did what cannot be captured (waited, allocated, used another stream): %s",
                g->name, cudaGetErrorString(e));
    }
    if (status == TE_OK && ctx->launches)
        te_small_fills_to_kernels(((const te_launches *)ctx->launches)->small_fill_kernel, graph);
    if (status == TE_OK)
        status = te__cuda_status(ctx, cudaGraphInstantiateWithFlags(&exec, graph, 0), "graph: instantiate");
    if (graph) (void)cudaGraphDestroy(graph);
    (void)cudaStreamDestroy(capture);
    /* clear CUDA's last error, which the next launch would otherwise report */
    if (status != TE_OK) (void)cudaGetLastError();
    else g->exec = exec;
#else
    (void)g, (void)ctx;
#endif
    return status;
}

/* Check tensor i of the spec and create the static tensor for this tensor. If the spec gives no memory, the static
 * tensor gets memory from the pool. `name` is the place where the tensor's name is stored. */
TE_API te_status te__static_init(te_graph *g, int i, const te_named *n, char *name, te_context *ctx) {
    const int from = i < g->in_count ? 0 : g->in_count;
    const char *kind = from || !g->in_count ? "output" : "input";
    te__static *s = &g->tensor[i];
    if (n->name) strcpy(name, n->name);
    else snprintf(name, TE__GRAPH_POSITION_BYTES, "#%d", i - from);
    s->name = name, s->tensor = n->tensor;
    const te_tensor t = s->tensor;
    TE_REQUIRE(te__static_find(g->tensor, from, i, name) < 0, ctx, TE_ERROR_VALUE, "graph %s: two %ss are named %s",
               g->name, kind, name);
    TE_REQUIRE((unsigned)t.dtype < (unsigned)TE_DTYPE_COUNT, ctx, TE_ERROR_DTYPE, "graph %s: %s %s has dtype %d",
               g->name, kind, name, (int)t.dtype);
    TE_REQUIRE(t.rows > 0 && t.cols > 0 && t.rows <= INT64_MAX / 16 / t.cols, ctx, TE_ERROR_SHAPE,
               "graph %s: %s %s is [%lld, %lld]", g->name, kind, name, (long long)t.rows, (long long)t.cols);
    TE_REQUIRE((uintptr_t)t.data % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
               "graph %s: %s %s lies at %p, which is no multiple of %d", g->name, kind, name, t.data, (int)TE_ACCESS);
    TE_REQUIRE(!te__is_strided(t), ctx, TE_ERROR_SHAPE, "graph %s: the rows of %s %s have a stride of %lld", g->name,
               kind, name, (long long)t.stride);
    if (t.data) return TE_OK;
    TE_REQUIRE(g->pool && g->pool->base, ctx, TE_ERROR_NULL,
               "graph %s: %s %s has no memory, and there is no pool for it", g->name, kind, name);
    char who[64];
    snprintf(who, sizeof who, "%s %.32s of graph ", kind, name);
    return te__graph_pool_allocate(g->pool, &s->tensor.data, &s->id, te__tensor_bytes(t), who, g->name, ctx);
}
TE_API te_status te__graph_check_spec(const te_graph_spec *spec, const char *name, te_context *ctx) {
    TE_REQUIRE(ctx->target->synchronize != te__graph_synchronize, ctx, TE_ERROR_STATE,
               "graph %s: captured within the function of another", name);
    TE_REQUIRE(spec->in_count >= 0 && spec->out_count >= 0, ctx, TE_ERROR_SHAPE, "graph %s: %d inputs, %d outputs",
               name, spec->in_count, spec->out_count);
    TE_REQUIRE((spec->in || !spec->in_count) && (spec->out || !spec->out_count) && (spec->arg || !spec->arg_bytes), ctx,
               TE_ERROR_NULL, "graph %s: the inputs, the outputs or the argument are null", name);
    return TE_OK;
}
TE_API const te_named *te__graph_spec_tensor(const te_graph_spec *spec, int i) {
    return i < spec->in_count ? &spec->in[i] : &spec->out[i - spec->in_count];
}

/* Record the work that the function enqueues; none of this work runs. *g must hold no graph yet. `pool` may be null if
 * all tensors of the spec have memory. During the call no other thread may use the device's default stream. If the
 * capture fails, all memory is returned to the pool, and *g is all zeros. Errors: an invalid spec; any error that the
 * function returns; TE_ERROR_STATE or TE_ERROR_CUDA for work that cannot be captured; TE_ERROR_MEMORY if the pool is
 * too small. */
TE_API te_status te_graph_capture(te_graph *g, const te_graph_spec *spec, te_graph_pool *pool, te_context *ctx) {
    TE_TRY(te__check_target(ctx, "graph"));
    TE_REQUIRE(g && spec && spec->run, ctx, TE_ERROR_NULL, "graph: the struct, the spec or its function is null");
    memset(g, 0, sizeof *g);
    const char *name = spec->name ? spec->name : "without a name";
    TE_TRY(te__graph_check_spec(spec, name, ctx));
    const int count = spec->in_count + spec->out_count;
    /* the copy of arg is aligned to 16 bytes, as memory from calloc is */
    const size_t arg_at = (size_t)te_round_up(count * (int64_t)sizeof(te__static), 16);
    size_t bytes = arg_at + spec->arg_bytes + strlen(name) + 1;
    for (int i = 0; i < count; i++) {
        const char *s = te__graph_spec_tensor(spec, i)->name;
        bytes += s ? strlen(s) + 1 : (size_t)TE__GRAPH_POSITION_BYTES;
    }
    char *memory = (char *)calloc(1, bytes);
    TE_REQUIRE(memory, ctx, TE_ERROR_MEMORY, "graph %s: cannot allocate %zu bytes", name, bytes);
    g->at = g;
    g->tensor = (te__static *)(void *)memory, g->arg = spec->arg, g->run = spec->run, g->pool = pool, g->ctx = ctx;
    g->workspace = ctx->workspace, g->workspace_bytes = ctx->workspace_bytes, g->in_count = spec->in_count;
    if (spec->arg_bytes) g->arg = memcpy(memory + arg_at, spec->arg, spec->arg_bytes);
    char *text = memory + arg_at + spec->arg_bytes;
    g->name = strcpy(text, name), text += strlen(text) + 1;
    te_status status = TE_OK;
    for (int i = 0; i < count && status == TE_OK; i++, text += strlen(text) + 1) {
        if (i >= g->in_count) g->out_count++; /* count only the outputs that are initialised, so that te_graph_destroy
                                               * releases these outputs if the initialisation of a later output fails */
        status = te__static_init(g, i, te__graph_spec_tensor(spec, i), text, ctx);
    }
    if (status == TE_OK && !(pool && pool->measures)) status = te__graph_record(g, ctx);
    if (status != TE_OK) te_graph_destroy(g);
    return status;
}

/* ---- replay ------------------------------------------------------------------------------------------------------ */

/* Find the input of the graph to which in[i] belongs, by name or position. Check in[i], and store the address of its
 * data as the source of the graph's input. */
TE_API te_status te__graph_bind_input(te_graph *g, const te_named *in, int i, te_context *ctx) {
    const te_tensor t = in[i].tensor;
    const int at = in[i].name ? te__static_find(g->tensor, 0, g->in_count, in[i].name) : i;
    TE_REQUIRE(at >= 0, ctx, TE_ERROR_VALUE, "graph %s: no input is named %s", g->name, in[i].name);
    TE_REQUIRE(at < g->in_count, ctx, TE_ERROR_VALUE, "graph %s: a tensor is given for place %d, it has %d inputs",
               g->name, at, g->in_count);
    te__static *s = &g->tensor[at];
    TE_REQUIRE(!s->source, ctx, TE_ERROR_VALUE, "graph %s: input %s is given twice", g->name, s->name);
    TE_REQUIRE(t.data, ctx, TE_ERROR_NULL, "graph %s: input %s is null", g->name, s->name);
    TE_REQUIRE(t.dtype == s->tensor.dtype, ctx, TE_ERROR_DTYPE,
               "graph %s: input %s is %s, the graph was captured with %s", g->name, s->name, te_dtype_name(t.dtype),
               te_dtype_name(s->tensor.dtype));
    TE_REQUIRE(t.rows == s->tensor.rows && t.cols == s->tensor.cols, ctx, TE_ERROR_SHAPE,
               "graph %s: input %s is [%lld, %lld], the graph was captured with [%lld, %lld]", g->name, s->name,
               (long long)t.rows, (long long)t.cols, (long long)s->tensor.rows, (long long)s->tensor.cols);
    TE_REQUIRE(!te__is_strided(t), ctx, TE_ERROR_SHAPE, "graph %s: the rows of input %s have a stride of %lld", g->name,
               s->name, (long long)t.stride);
    s->source = t.data;
    return TE_OK;
}
/* Check that each input has a source. Also check that no source overlaps the static memory of another input, because
 * copying that other input first would overwrite the source. */
TE_API te_status te__graph_check_sources(const te_graph *g, te_context *ctx) {
    const te__static *s = g->tensor;
    for (int i = 0; i < g->in_count; i++)
        TE_REQUIRE(s[i].source, ctx, TE_ERROR_NULL, "graph %s: input %s is missing", g->name, s[i].name);
    for (int i = 0; i < g->in_count; i++)
        for (int k = 0; k < g->in_count; k++) {
            const uintptr_t from = (uintptr_t)s[i].source, to = (uintptr_t)s[k].tensor.data;
            const int disjoint =
                from + te__tensor_bytes(s[i].tensor) <= to || to + te__tensor_bytes(s[k].tensor) <= from;
            const int copied = s[i].source != s[i].tensor.data && s[k].source != s[k].tensor.data;
            TE_REQUIRE(disjoint || !copied, ctx, TE_ERROR_VALUE,
                       "graph %s: the tensor for input %s overlaps the memory that this replay copies input %s to",
                       g->name, s[i].name, s[k].name);
        }
    return TE_OK;
}

/* Copy the inputs to the graph's static tensors, and enqueue the graph on ctx->stream. in[count] has each of the
 * graph's inputs once, in any order, in target or host memory; an input that is the static tensor itself is not copied.
 * If a check fails, nothing has been copied or enqueued. Errors: invalid inputs; TE_ERROR_STATE if the graph was moved
 * or belongs to another context, or if the context's workspace was replaced; on the host also any error that the
 * function returns. */
TE_API te_status te_graph_replay(te_graph *g, const te_named *in, int count, te_context *ctx) {
    TE_TRY(te__check_target(ctx, "graph"));
    TE_REQUIRE(g && g->run, ctx, TE_ERROR_STATE, "graph: nothing has been captured");
    TE_REQUIRE(g->at == g, ctx, TE_ERROR_STATE, "graph %s: it is a copy; replay it where it was captured", g->name);
    TE_REQUIRE(g->ctx == ctx, ctx, TE_ERROR_STATE, "graph %s: was captured with another context", g->name);
    TE_REQUIRE(ctx->target->synchronize != te__graph_synchronize, ctx, TE_ERROR_STATE,
               "graph %s: replayed within the function of a graph", g->name);
    TE_REQUIRE(!g->pool || !g->pool->measures, ctx, TE_ERROR_STATE,
               "graph %s: was captured on a pool that only measures", g->name);
    TE_REQUIRE(g->workspace == ctx->workspace && g->workspace_bytes <= ctx->workspace_bytes, ctx, TE_ERROR_STATE,
               "graph %s: the context's workspace has been replaced since the capture; reserve enough before it",
               g->name);
    TE_REQUIRE(count >= 0 && (in || !count), ctx, TE_ERROR_NULL, "graph %s: the list of %d inputs is null", g->name,
               count);
    te__static *s = g->tensor;
    for (int i = 0; i < g->in_count; i++) s[i].source = 0;
    for (int i = 0; i < count; i++) TE_TRY(te__graph_bind_input(g, in, i, ctx));
    TE_TRY(te__graph_check_sources(g, ctx));
    for (int i = 0; i < g->in_count; i++)
        if (s[i].source != s[i].tensor.data)
            TE_TRY(te_copy(ctx, s[i].tensor.data, s[i].source, te__tensor_bytes(s[i].tensor)));
#if TE_CUDA
    return te__cuda_status(ctx, cudaGraphLaunch((cudaGraphExec_t)g->exec, (cudaStream_t)ctx->stream), g->name);
#else
    return te__graph_call(g, ctx);
#endif
}

#endif
