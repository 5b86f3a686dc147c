/* launch_cuda.h -- how work gets onto the stream: what a pass enqueues goes there at once, as a CUDA graph, where it
 * can. Included by target.h.
 *
 * To launch a kernel takes the host some 3 us, to launch a graph of thirty 2 us. So a pass of a model writes down what
 * it would launch: kernels with the bytes of their arguments, products of cuBLASLt, fills. If an earlier one wrote down
 * the very same, its graph is launched. If not, a graph is made (10 us a kernel, and 0.1 MB of the device for a pass;
 * once); where ctx->replay of them are there already, the one of the same kernels that was launched the longest ago
 * gets the new arguments (1 us a kernel); and if there is none, all is launched one by one, as it is while the stream
 * is being captured. The order is that of the plan each time, and so are the bits.
 *
 * Forward and backward of a GPT block, hidden 4096, on an H200's host: 13 to 21 us, kernel by kernel 96 to 103. With
 * fills among the kernels (fills_cuda.h) it was 20 to 36, and with other addresses each time 37.
 */
/* target: cuda */
#ifndef TE_LAUNCH_CUDA_H
#define TE_LAUNCH_CUDA_H

#include "replay_cuda.h" /* te_launch, te__replay_of */

/* ---- what a pass does -------------------------------------------------------------------------------------------- */

/* Enqueue what has been written down. Whoever enqueues on ctx->stream from within a step by means of his own calls this
 * first. */
TE_API te_status te_enqueue_now(te_context *ctx) {
    te_launches *s = (te_launches *)ctx->launches;
    if (!s || !s->count) return TE_OK;
    te_replay *r =
        ctx->replay > 0 && s->count >= TE_LAUNCH_LEAST && !te__cuda_capturing(ctx) ? te__replay_of(s, ctx) : 0;
    const int count = s->count;
    s->count = s->bytes = 0;
    if (!r) return te__launch_each(s->record, count, ctx);
    r->last = ++s->clock, s->replayed++;
    return te__cuda_status(ctx, cudaGraphLaunch(r->exec, (cudaStream_t)ctx->stream), "graph of a pass");
}
/* From here on launches are written down. */
TE_API void te_enqueue_open(te_context *ctx) {
    te_launches *s = (te_launches *)ctx->launches;
    if (s) s->open = ctx->replay > 0;
}
/* Whether what is launched next comes behind a kernel of the same pass (one with te_kernel_begin; a call may let others
 * begin before it waits itself). Then all that was enqueued before that pass is done when its kernel is set up, and
 * what the pass does not write, its weights, may be read ahead of te_kernel_wait. */
TE_API int te_enqueue_follows(const te_context *ctx) {
    const te_launches *s = (const te_launches *)ctx->launches;
    return s && (s->racing || (s->open && s->count && s->behind_kernel));
}
TE_API int te_enqueue_is_open(const te_context *ctx) {
    return ctx->launches && ((const te_launches *)ctx->launches)->open;
}
/* No longer: what has been is enqueued, or thrown away if the pass has failed. Returns `status`, or what went wrong. */
TE_API te_status te_enqueue_close(te_context *ctx, te_status status) {
    te_launches *s = (te_launches *)ctx->launches;
    if (s && status != TE_OK) s->count = s->bytes = 0;
    if (s) s->open = 0;
    return status == TE_OK ? te_enqueue_now(ctx) : status;
}
/* Launch it, or write it down. */
TE_API te_status te__launch(te_launch *l, const void *args, int bytes, te_context *ctx) {
    te_launches *s = (te_launches *)ctx->launches;
    l->bytes = bytes, l->size = (int)(sizeof *l + (size_t)te_round_up(bytes, 16));
    if (!s || !s->open) return te__launch_one(l, args, ctx);
    if (s->bytes + l->size > TE_LAUNCH_BYTES) TE_TRY(te_enqueue_now(ctx));
    if (l->size > TE_LAUNCH_BYTES) return te__launch_one(l, args, ctx);
    char *to = s->record + s->bytes;
    memset(to + l->size - 16, 0, 16); /* the bytes behind the arguments */
    memcpy(to, l, sizeof *l), memcpy(to + sizeof *l, args, (size_t)bytes);
    s->count++, s->bytes += l->size, s->behind_kernel = l->kernel != 0;
    return TE_OK;
}
/* `args`: the kernel's one parameter, of `bytes` bytes. */
TE_API te_status te__cuda_launch(te_context *ctx, const void *kernel, te_grid grid, int threads, int shared,
                                 int cluster, const void *args, size_t bytes, const char *name) {
    te_launch l;
    memset(&l, 0, sizeof l);
    l.kernel = kernel, l.name = name, l.grid = grid, l.threads = threads, l.shared = shared, l.cluster = cluster,
    l.overlap = te__cuda_overlaps(ctx);
    return te__launch(&l, args, (int)bytes, ctx);
}
TE_API te_status te__cuda_call(te_context *ctx, te_call_fn call, const void *args, size_t bytes) {
    te_launch l;
    memset(&l, 0, sizeof l);
    l.call = call;
    return te__launch(&l, args, (int)bytes, ctx);
}
TE_API void te__launches_close(te_context *ctx) {
    te_launches *s = (te_launches *)ctx->launches;
    if (!s) return;
    while (s->replays) te__replay_forget(s, s->replays - 1);
    if (s->stream) (void)cudaStreamDestroy(s->stream);
    free(s);
}

#endif
