/* target.h -- the target (CUDA or host) for which the including file is compiled: how a kernel is defined and launched,
 * how one launch works on several tensors, and how work runs on a second stream.
 *
 * Do this, to make a kernel of a body function:
 *     typedef struct { float *y; const float *x; int64_t n; } my_args;
 *     TE_FN void my_body(const my_args *a, te_block b, int threads) { ... }
 *     TE_KERNEL(my_kernel, 256, my_args, my_body(te_args, te_at, 256))
 *     ... TE_TRY(my_kernel_launch(ctx, te__grid_of(blocks, 1), &args));
 *
 * On CUDA, TE_KERNEL defines a __global__ function; on the host, TE_KERNEL defines a function for one thread block,
 * which a loop over the blocks of the grid calls, with OpenMP on several threads. In the call of the body, `te_args`
 * points to the kernel's arguments, and `te_at` is the te_block of the current block.
 */
#ifndef TE_TARGET_H
#define TE_TARGET_H

#include "context.h" /* te_context, te_target, TE_CUDA */

#if TE_CUDA
#include "impl/target_cuda.h" /* TE_KERNEL, te_context_create, te_launch_flush */
#else
#include "impl/target_host.h" /* the same */
#endif

/* Return an error if the context's target (CUDA or host) is not the one that this file was compiled for, because a
 * function that launches kernels can run only on the target that it was compiled for. `who` is the caller's name, for
 * the error text. */
TE_API te_status te__check_target(te_context *ctx, const char *who) {
    const char *here = TE_CUDA ? "cuda" : "host";
    TE_TRY(te__check_context(ctx, who));
    TE_REQUIRE(ctx->target->name[0] == here[0], ctx, TE_ERROR_DEVICE,
               "%s: this file was compiled for the %s target, the context is of the %s target", who, here,
               ctx->target->name);
    return TE_OK;
}

/* The arguments of a kernel that runs once in each pass that draws random numbers. The kernel copies the random state
 * *state to *taken, which the pass reads, and advances *state for the next pass. */
typedef struct te_rng_args { te_rng *taken, *state; } te_rng_args;
TE_FN void te_rng_take_body(const te_rng_args *a) {
    *a->taken = *a->state;
    a->state->offset++;
}
TE_KERNEL_IF_USED(te_rng_take, 1, 1, te_rng_args, te_rng_take_body(te_args))

/* ---- several tensors in one launch ------------------------------------------------------------------------------- */

/* One launch can work on all tensors of a table in target memory. Each tensor is cut into chunks, and each block of the
 * grid works on one chunk. */

/* Return the index of the tensor to which a chunk belongs: the largest t with first[t] <= chunk. first[t] is the number
 * of chunks of the tensors 0 to t - 1 together; first[count] is the number of all chunks. */
TE_BOTH int te_chunk_tensor(const int32_t *first, int count, int32_t chunk) {
    int low = 0, high = count;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (first[middle] <= chunk) low = middle;
        else high = middle;
    }
    return low;
}

/* Consecutive tensors of a table, on which one launch works. Each tensor is cut into chunks, which are numbered through
 * the whole table. The table may have other tensors in front of these; first[0] is the number of chunks of those other
 * tensors. */
typedef struct te_multi_tensor {
    const void *tensor;   /* [count]: for each tensor, the struct of arguments with which the kernel works on it */
    const int32_t *first; /* [count + 1]: the index of each tensor's first chunk (te_chunk_tensor) */
    int count, chunks;    /* count: the number of tensors; chunks: the number of chunks of these tensors, which is also
                           * the number of blocks of the launch */
} te_multi_tensor;

/* Return the index of the tensor that thread block *b works on, and set b->x to the index of the block's chunk within
 * this tensor. The block can then continue as if the launch were for this tensor alone. */
TE_BOTH int te_multi_tensor_find(const te_multi_tensor *t, te_block *b) {
    const int32_t chunk = b->x + t->first[0];
    const int n = te_chunk_tensor(t->first, t->count, chunk);
    b->x = chunk - t->first[n];
    return n;
}

/* ---- a second stream --------------------------------------------------------------------------------------------- */

/* A side stream is a second CUDA stream, whose work runs concurrently with the work on the context's own stream. The
 * host target has no streams; on the host each call does its work before it returns.
 *
 * Do this:
 *     TE_TRY(te_side_stream_open(&side, ctx));
 *     TE_TRY(te_side_stream_enter(&side, ctx));  // library calls go to the side stream, after all earlier work
 *     ... library calls ...
 *     te_side_stream_leave(&side, ctx);          // calls go to the context's own stream again, which does not wait
 *     TE_TRY(te_side_stream_join(&side, ctx));   // work after this waits for the side stream
 *     te_side_stream_close(&side);
 *
 * While ctx->stream is being captured, the side stream is part of the same capture from te_side_stream_enter on, and
 * te_side_stream_join must be called before the capture ends. */
typedef struct te_side_stream {
    void *stream, *event; /* CUDA: cudaStream_t, cudaEvent_t */
    void *main_stream;    /* the context's own stream, while ctx->stream is the side stream (between
                           * te_side_stream_enter and te_side_stream_leave) */
    int was_recording;    /* 1: launches were being recorded (graph_replay.h) when te_side_stream_enter was called */
    int has_work;         /* 1: work was enqueued on the side stream since the last te_side_stream_join */
} te_side_stream;

#if TE_CUDA
/* Create the side stream, with the highest priority, because work on the context's own stream waits for the work on the
 * side stream. */
TE_API te_status te_side_stream_open(te_side_stream *s, te_context *ctx) {
    int least = 0, greatest = 0;
    cudaStream_t stream = 0;
    cudaEvent_t event = 0;
    memset(s, 0, sizeof *s);
    TE_TRY(te__cuda_status(ctx, cudaDeviceGetStreamPriorityRange(&least, &greatest), "side stream"));
    TE_TRY(te__cuda_status(ctx, cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
                           "side stream"));
    s->stream = stream;
    TE_TRY(te__cuda_status(ctx, cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "side stream"));
    s->event = event;
    return TE_OK;
}
TE_API void te_side_stream_close(te_side_stream *s) {
    if (s->event) (void)cudaEventDestroy((cudaEvent_t)s->event);
    if (s->stream) (void)cudaStreamDestroy((cudaStream_t)s->stream);
    memset(s, 0, sizeof *s);
}
/* Make stream `later` wait for all work that has been enqueued on stream `earlier` so far. */
TE_API te_status te__side_stream_wait(const te_side_stream *s, void *later, void *earlier, te_context *ctx) {
    const cudaEvent_t event = (cudaEvent_t)s->event;
    TE_TRY(te__cuda_status(ctx, cudaEventRecord(event, (cudaStream_t)earlier), "side stream"));
    return te__cuda_status(ctx, cudaStreamWaitEvent((cudaStream_t)later, event, 0), "side stream");
}
TE_API te_status te_side_stream_enter(te_side_stream *s, te_context *ctx) {
    te_launches *launches = (te_launches *)ctx->launches;
    TE_TRY(te_launch_flush(ctx));
    TE_TRY(te__side_stream_wait(s, s->stream, ctx->stream, ctx));
    s->main_stream = ctx->stream, s->was_recording = launches && launches->recording, s->has_work = 1;
    if (launches) launches->recording = 0;
    ctx->stream = s->stream;
    return TE_OK;
}
TE_API void te_side_stream_leave(te_side_stream *s, te_context *ctx) {
    te_launches *launches = (te_launches *)ctx->launches;
    if (launches) launches->recording = s->was_recording;
    ctx->stream = s->main_stream;
}
TE_API te_status te_side_stream_join(te_side_stream *s, te_context *ctx) {
    if (!s->has_work) return TE_OK;
    s->has_work = 0;
    TE_TRY(te_launch_flush(ctx));
    return te__side_stream_wait(s, ctx->stream, s->stream, ctx);
}
#else
TE_API te_status te_side_stream_open(te_side_stream *s, te_context *ctx) {
    (void)ctx, memset(s, 0, sizeof *s);
    return TE_OK;
}
TE_API void te_side_stream_close(te_side_stream *s) { memset(s, 0, sizeof *s); }
TE_API te_status te_side_stream_enter(te_side_stream *s, te_context *ctx) { return (void)s, (void)ctx, TE_OK; }
TE_API void te_side_stream_leave(te_side_stream *s, te_context *ctx) { (void)s, (void)ctx; }
TE_API te_status te_side_stream_join(te_side_stream *s, te_context *ctx) { return (void)s, (void)ctx, TE_OK; }
#endif

#endif
