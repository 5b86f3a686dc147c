/* graph.h -- CUDA graphs: record once what a function enqueues (a forward, a backward, a whole step), replay it with
 * one launch. The inputs of a replay go by name or place and are checked like arguments.
 *
 * Do this:
 *     te_status step(const te_graph *g, const void *arg, te_context *ctx) {       // enqueues on ctx->stream, nothing
 *     else
 *         const trainer *t = (const trainer *)arg;
 *         te_batch batch = t->batch;
 *         batch.tokens = (const int32_t *)te_graph_input(g, "tokens").data;
 *         TE_TRY(gpt_forward(te_graph_output(g, "loss"), t->saved, te_none(), t->m, &batch, ctx));
 *         TE_TRY(gpt_backward(te_none(), te_none(), t->saved, t->m, &batch, ctx));
 *         return te_adamw_step(t->opt, ctx);
 *     }
 *     TE_TRY(te_graph_pool_init(&pool, memory, bytes, &ctx));
 *     te_named in[] = {te_named_ints("tokens", 0, rows)}, out[] = {te_named_tensor("loss", te_matrix(0, TE_f32, rows,
 *     1))};
 *     te_graph_spec spec = te_graph_spec_of("step", step, t, 0, in, 1, out, 1);
 *     TE_TRY(te_graph_capture(&g, &spec, &pool, &ctx));    // after one eager step, which loads kernels; runs nothing
 *     ...
 *     in[0] = te_named_ints("tokens", next, rows);
 *     TE_TRY(te_graph_replay(&g, in, 1, &ctx));            // copies `next` to the graph's own tokens and launches
 *
 * Static tensors. A graph reads and writes the same addresses at every replay. A tensor of the spec that has memory is
 * used where it lies (the y of one graph as the x of the next: then the replay copies nothing); one without (data null)
 * gets its memory from the pool. What te_saved keeps is acquired from the pool by the caller: te_graph_pool_acquire.
 *
 * The pool. Its memory is acquired and released in the order of these calls, which stands for the order of the replays.
 * te_graph_retire says that from here on nobody needs a graph's own inputs and outputs: captures that follow may lie
 * there, and the graph can still be replayed at its place in the order. For a pipeline (F0 F1 B0 F2 ...): capture in
 * the order of the schedule; after B0 retire F0 and release its saved memory. A pool without memory measures: the same
 * calls acquire and release, record nothing, and pool.high is then the bytes to reserve.
 *
 * Random numbers: the random state moves on in target memory, so each replay draws anew, the same as an eager run
 * would.
 *
 * What is fixed at the capture is all that the host hands to a kernel: addresses, sizes, batch.accumulate, an
 * optimizer's config. What `arg` points to, the models and the context's workspace must stay as they are as long as the
 * graph lives.
 *
 * On the host there is nothing to record: a replay calls the function again, with the same checks and the same results.
 * What the function itself does wrong is there found by the first replay, which may have run a part of it.
 */
#ifndef TE_GRAPH_H
#define TE_GRAPH_H

#include "graph_record.h" /* te_graph, te__graph_record */

/* Tensor i of the spec becomes static. */
TE_API te_status te__static_take(te_graph *g, int i, const te_named *n, char *name, te_context *ctx) {
    const int from = i < g->in_count ? 0 : g->in_count;
    const char *kind = from || !g->in_count ? "output" : "input";
    te__static *s = &g->tensor[i];
    if (n->name) strcpy(name, n->name);
    else snprintf(name, TE__GRAPH_PLACE, "#%d", i - from);
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
    if (t.data) return TE_OK;
    TE_REQUIRE(g->pool && g->pool->base, ctx, TE_ERROR_NULL,
               "graph %s: %s %s has no memory, and there is no pool for it", g->name, kind, name);
    char who[64];
    snprintf(who, sizeof who, "%s %.32s of graph ", kind, name);
    return te__graph_pool_take(g->pool, &s->tensor.data, &s->id, te__tensor_bytes(t), who, g->name, ctx);
}

/* Record what the function enqueues; nothing of it runs. `pool` may be null if all tensors of the spec have memory. A
 * capture that fails has acquired nothing and leaves *g all zeros. Errors: of the spec; the function's own;
 * TE_ERROR_STATE or TE_ERROR_CUDA for what cannot be captured; TE_ERROR_MEMORY if the pool is too small. *g must hold
 * no graph yet, and no other thread may use the device's default stream meanwhile. */
TE_API te_status te_graph_capture(te_graph *g, const te_graph_spec *spec, te_graph_pool *pool, te_context *ctx) {
    TE_TRY(te_check_target(ctx, "graph"));
    TE_REQUIRE(g && spec && spec->run, ctx, TE_ERROR_NULL, "graph: the struct, the spec or its function is null");
    memset(g, 0, sizeof *g);
    const char *name = spec->name ? spec->name : "without a name";
    TE_REQUIRE(ctx->target->synchronize != te__graph_synchronize, ctx, TE_ERROR_STATE,
               "graph %s: captured within the function of another", name);
    TE_REQUIRE(spec->in_count >= 0 && spec->out_count >= 0, ctx, TE_ERROR_SHAPE, "graph %s: %d inputs, %d outputs",
               name, spec->in_count, spec->out_count);
    TE_REQUIRE((spec->in || !spec->in_count) && (spec->out || !spec->out_count) && (spec->arg || !spec->arg_bytes), ctx,
               TE_ERROR_NULL, "graph %s: the inputs, the outputs or the argument are null", name);
    const int count = spec->in_count + spec->out_count;
    const size_t arg_at = (size_t)te_round_up(count * (int64_t)sizeof(te__static), 16); /* calloc's own alignment */
    size_t bytes = arg_at + spec->arg_bytes + strlen(name) + 1;
    for (int i = 0; i < count; i++) {
        const char *s = (i < spec->in_count ? &spec->in[i] : &spec->out[i - spec->in_count])->name;
        bytes += s ? strlen(s) + 1 : (size_t)TE__GRAPH_PLACE;
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
        if (i >= g->in_count) g->out_count++; /* as many as have been taken, for te_graph_destroy */
        status = te__static_take(g, i, i < g->in_count ? &spec->in[i] : &spec->out[i - g->in_count], text, ctx);
    }
    if (status == TE_OK && !(pool && pool->measures)) status = te__graph_record(g, ctx);
    if (status != TE_OK) te_graph_destroy(g);
    return status;
}

/* in[i] is given: find out for which input, and check it. */
TE_API te_status te__graph_give(te_graph *g, const te_named *in, int i, te_context *ctx) {
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
    s->source = t.data;
    return TE_OK;
}

/* Copy the inputs to where the graph reads them and enqueue it on ctx->stream. in[count]: each of the graph's inputs,
 * once, in any order, in target or host memory; one that is the static tensor itself is not copied. A replay that is
 * refused has copied and enqueued nothing. Errors: of the inputs; on the host also the function's own, see at the
 * top. */
TE_API te_status te_graph_replay(te_graph *g, const te_named *in, int count, te_context *ctx) {
    TE_TRY(te_check_target(ctx, "graph"));
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
    for (int i = 0; i < count; i++) TE_TRY(te__graph_give(g, in, i, ctx));
    for (int i = 0; i < g->in_count; i++)
        TE_REQUIRE(s[i].source, ctx, TE_ERROR_NULL, "graph %s: input %s is missing", g->name, s[i].name);
    for (int i = 0; i < g->in_count; i++)
        for (int k = 0; k < g->in_count; k++) {
            const uintptr_t from = (uintptr_t)s[i].source, to = (uintptr_t)s[k].tensor.data;
            const int apart = from + te__tensor_bytes(s[i].tensor) <= to || to + te__tensor_bytes(s[k].tensor) <= from;
            TE_REQUIRE(apart || s[i].source == s[i].tensor.data || s[k].source == s[k].tensor.data, ctx, TE_ERROR_VALUE,
                       "graph %s: what is given for input %s lies where this replay copies input %s to", g->name,
                       s[i].name, s[k].name);
        }
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
