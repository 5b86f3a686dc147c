/* side.h -- a second stream beside the context's: what goes there runs while the context's own stream goes on. On the
 * host, which does everything at once, there is none.
 *
 * Do this:
 *     TE_TRY(te_side_open(&side, ctx));
 *     TE_TRY(te_side_enter(&side, ctx));    // what is enqueued from here on comes behind all that ctx->stream has so
 *     ... library calls ...                 // far, and goes to the second stream
 *     te_side_leave(&side, ctx);            // what follows goes to ctx->stream again, and does not wait for it
 *     TE_TRY(te_side_join(&side, ctx));     // but what comes behind this does
 *     te_side_close(&side);
 *
 * Within a capture of ctx->stream the second one is captured too, from enter on; it is joined within the same capture.
 */
#ifndef TE_SIDE_H
#define TE_SIDE_H

#include "target.h" /* te_context, te_enqueue_now */

typedef struct te_side {
    void *stream, *event; /* CUDA: cudaStream_t, cudaEvent_t */
    void *left;           /* ctx->stream, while it is the second one */
    int was_open;         /* a pass was being written down (launch_cuda.h) */
    int has_work;         /* that is not joined yet */
} te_side;

#if TE_CUDA
/* What goes there is urgent: others wait for it. */
TE_API te_status te_side_open(te_side *s, te_context *ctx) {
    int least = 0, greatest = 0;
    cudaStream_t stream = 0;
    cudaEvent_t event = 0;
    memset(s, 0, sizeof *s);
    TE_TRY(te__cuda_status(ctx, cudaDeviceGetStreamPriorityRange(&least, &greatest), "second stream"));
    TE_TRY(te__cuda_status(ctx, cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
                           "second stream"));
    s->stream = stream;
    TE_TRY(te__cuda_status(ctx, cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "second stream"));
    s->event = event;
    return TE_OK;
}
TE_API void te_side_close(te_side *s) {
    if (s->event) (void)cudaEventDestroy((cudaEvent_t)s->event);
    if (s->stream) (void)cudaStreamDestroy((cudaStream_t)s->stream);
    memset(s, 0, sizeof *s);
}
/* Let `later` go on when `earlier` is through with what it has now. */
TE_API te_status te__side_wait(const te_side *s, void *later, void *earlier, te_context *ctx) {
    const cudaEvent_t event = (cudaEvent_t)s->event;
    TE_TRY(te__cuda_status(ctx, cudaEventRecord(event, (cudaStream_t)earlier), "second stream"));
    return te__cuda_status(ctx, cudaStreamWaitEvent((cudaStream_t)later, event, 0), "second stream");
}
TE_API te_status te_side_enter(te_side *s, te_context *ctx) {
    te_launches *launches = (te_launches *)ctx->launches;
    TE_TRY(te_enqueue_now(ctx));
    TE_TRY(te__side_wait(s, s->stream, ctx->stream, ctx));
    s->left = ctx->stream, s->was_open = launches && launches->open, s->has_work = 1;
    if (launches) launches->open = 0;
    ctx->stream = s->stream;
    return TE_OK;
}
TE_API void te_side_leave(te_side *s, te_context *ctx) {
    te_launches *launches = (te_launches *)ctx->launches;
    if (launches) launches->open = s->was_open;
    ctx->stream = s->left;
}
TE_API te_status te_side_join(te_side *s, te_context *ctx) {
    if (!s->has_work) return TE_OK;
    s->has_work = 0;
    TE_TRY(te_enqueue_now(ctx));
    return te__side_wait(s, ctx->stream, s->stream, ctx);
}
#else
TE_API te_status te_side_open(te_side *s, te_context *ctx) { return (void)ctx, memset(s, 0, sizeof *s), TE_OK; }
TE_API void te_side_close(te_side *s) { memset(s, 0, sizeof *s); }
TE_API te_status te_side_enter(te_side *s, te_context *ctx) { return (void)s, (void)ctx, TE_OK; }
TE_API void te_side_leave(te_side *s, te_context *ctx) { (void)s, (void)ctx; }
TE_API te_status te_side_join(te_side *s, te_context *ctx) { return (void)s, (void)ctx, TE_OK; }
#endif

#endif
