/* context.h -- where work runs: a target, a stream, a workspace, random state, and the text of the last error.
 *
 * Do this:
 *     te_context ctx;
 *     TE_TRY(te_context_create(&ctx, 0, seed));               // CUDA under nvcc, the host elsewhere
 *     TE_TRY(te_context_reserve(&ctx, block_workspace_bytes(&b, rows, &ctx)));   // once; or set ctx.workspace yourself
 *     ...
 *     te_context_destroy(&ctx);
 *
 * Everything is ordered on ctx.stream. A context serves one thread at a time, and stays where it was created: a copy is
 * refused. A file compiled as plain C can use a context that a .cu created (<model>_context_create): all calls but the
 * creation go through ctx.target.
 */
#ifndef TE_CONTEXT_H
#define TE_CONTEXT_H

#include <stdarg.h> /* va_list, for te_fail */
#include <stdio.h>  /* vsnprintf, for te_fail */

#include "philox.h" /* te_rng */
#include "status.h" /* te_status */
#include "tensor.h" /* te_tensor */

struct te_context;

/* What a target can do with memory. Addresses called dst and src in `copy` may lie on either side. */
typedef struct te_target {
    const char *name; /* "cuda" or "host" */
    te_status (*allocate)(struct te_context *ctx, void **p, size_t bytes);
    void (*release)(struct te_context *ctx, void *p);
    te_status (*copy)(struct te_context *ctx, void *dst, const void *src, size_t bytes);
    te_status (*fill)(struct te_context *ctx, void *dst, int byte, size_t bytes);
    te_status (*synchronize)(struct te_context *ctx);
    void (*close)(struct te_context *ctx);
} te_target;

typedef struct te_context {
    const te_target *target;
    void *stream; /* cudaStream_t; null is the default stream. On the host unused. May be set by the caller; what a
                   * context has enqueued, graphs too, shares its memory, and must not run on two streams at once */
    void *workspace;
    size_t workspace_bytes;
    te_rng *rng;         /* target memory */
    uint32_t *tickets;   /* CUDA: a count by which the blocks of a kernel share out its work; 0 before and after each */
    void *gemm;          /* the GEMM back end's own state, made on first use; null: not yet */
    void (*gemm_close)(struct te_context *ctx);
    int gemm_tune;       /* time the back end's candidates once for each product (te/gemm/gemm_tune.h); off: 0 */
    int gemm_own;        /* CUDA: matrix products, and rows that begin with one, as kernels of our own: 0 never, 1 where
                          * they should pay (the default), 2 wherever they can (te/gemm/gemm_choose.h) */
    int attention_unrepeatable; /* CUDA, compute capability 9.0: attention's backward adds dQ in whatever order blocks
                                 * come to it. The same inputs then need not give the same bits. 0 (the default): in one
                                 * order, always the same */
    int overlap;         /* CUDA: a kernel is set up while the one before it ends (te_kernel_begin): 0 never, 1 from
                          * compute capability 9.0 on (the default) */
    void *launches;      /* CUDA: what a pass writes down, and its graphs (te/core/launch_cuda.h) */
    int replay; /* CUDA: a pass is launched as one graph, of which so many are kept at most; 0: kernel by kernel */
    void (*encode)(
        void); /* CUDA: the driver's function that makes tensor maps (te/core/hopper_cuda.h); null: none here */
    int encode_known;
    int device, processors; /* CUDA: the device's number and its multiprocessors; host: 0 and 1 */
    int capability;         /* CUDA: compute capability, 900 for 9.0 */
    int owns_workspace;
    struct te_comm *comm; /* the groups of ranks that this one belongs to (group.h); null: it is alone */
    const struct te_context *at; /* where it was created */
    char error[320];
} te_context;

/* Note a text about what went wrong and return `status`. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
TE_API te_status te_fail(te_context *ctx, te_status status, const char *text, ...) {
    if (ctx) {
        va_list args;
        va_start(args, text);
        vsnprintf(ctx->error, sizeof ctx->error, text, args);
        va_end(args);
    }
    return status;
}
/* The text of the last call that failed on this context; "" if none has. */
TE_API const char *te_last_error(const te_context *ctx) { return ctx ? ctx->error : "the context is null"; }

/* A context that te_context_create has made, that has not been destroyed, and that lies where it did then: two copies
 * would both own what is made on first use. */
/* Whether the program has the code that times matrix products (te_context.gemm_tune): not with -DTE_NO_TUNE, and not
 * by te/infer.h unless TE_TUNE is defined. */
#ifdef TE_NO_TUNE
#define TE_TUNES 0
#else
#define TE_TUNES 1
#endif
TE_API te_status te__check_context(te_context *ctx, const char *who) {
    if (!ctx) return TE_ERROR_NULL;
    TE_REQUIRE(ctx->target, ctx, TE_ERROR_NULL, "%s: the context has not been created; te_context_create does", who);
    TE_REQUIRE(ctx->at == ctx, ctx, TE_ERROR_STATE, "%s: the context is a copy; use it where it was created",
               who);
    TE_REQUIRE(TE_TUNES || !ctx->gemm_tune, ctx, TE_ERROR_STATE,
               "%s: ctx.gemm_tune is on in a program without the code for it: define TE_TUNE before te/infer.h, or "
               "load what another program has found (te_gemm_load)", who);
    return TE_OK;
}

/* Memory of the context's target, aligned to TE_ALIGN bytes. */
TE_API te_status te_allocate(te_context *ctx, void **p, size_t bytes) {
    TE_TRY(te__check_context(ctx, "te_allocate"));
    TE_REQUIRE(p, ctx, TE_ERROR_NULL, "te_allocate: there is no pointer to set");
    return ctx->target->allocate(ctx, p, bytes);
}
TE_API void te_release(te_context *ctx, void *p) {
    if (ctx && ctx->target && p) ctx->target->release(ctx, p);
}
/* Copy between any two places, in stream order. A copy to or from host memory may return before it is done:
 * te_synchronize before the host reads or reuses it. */
TE_API te_status te_copy(te_context *ctx, void *dst, const void *src, size_t bytes) {
    TE_TRY(te__check_context(ctx, "te_copy"));
    TE_REQUIRE((dst && src) || !bytes, ctx, TE_ERROR_NULL, "te_copy: a pointer is null");
    return bytes ? ctx->target->copy(ctx, dst, src, bytes) : TE_OK;
}
TE_API te_status te_fill(te_context *ctx, void *dst, int byte, size_t bytes) {
    TE_TRY(te__check_context(ctx, "te_fill"));
    TE_REQUIRE(dst || !bytes, ctx, TE_ERROR_NULL, "te_fill: the pointer is null");
    return bytes ? ctx->target->fill(ctx, dst, byte, bytes) : TE_OK;
}
TE_API te_status te_synchronize(te_context *ctx) {
    TE_TRY(te__check_context(ctx, "te_synchronize"));
    return ctx->target->synchronize(ctx);
}

/* Make the workspace at least this large. The one place beside creation where the library allocates: call it after
 * the models are bound and before the first step. Waits for the stream if it has to grow. */
TE_API te_status te_context_reserve(te_context *ctx, size_t bytes) {
    void *p = 0;
    TE_TRY(te__check_context(ctx, "te_context_reserve"));
    if (bytes <= ctx->workspace_bytes) return TE_OK;
    TE_TRY(te_synchronize(ctx));
    TE_TRY(te_allocate(ctx, &p, bytes));
    if (ctx->owns_workspace) te_release(ctx, ctx->workspace);
    ctx->workspace = p, ctx->workspace_bytes = bytes, ctx->owns_workspace = 1;
    return TE_OK;
}

/* Nothing happens to a copy. */
TE_API void te_context_destroy(te_context *ctx) {
    if (!ctx || !ctx->target || ctx->at != ctx) return;
    (void)te_synchronize(ctx);
    if (ctx->owns_workspace) te_release(ctx, ctx->workspace);
    te_release(ctx, ctx->rng);
    ctx->target->close(ctx);
    memset(ctx, 0, sizeof *ctx);
}

/* Random state, for a checkpoint. Waits for the stream. */
TE_API te_status te_rng_get(te_rng *rng, te_context *ctx) {
    TE_TRY(te__check_context(ctx, "te_rng_get"));
    TE_TRY(te_copy(ctx, rng, ctx->rng, sizeof *rng));
    return te_synchronize(ctx);
}
TE_API te_status te_rng_set(const te_rng *rng, te_context *ctx) {
    TE_TRY(te__check_context(ctx, "te_rng_set"));
    TE_TRY(te_copy(ctx, ctx->rng, rng, sizeof *rng));
    return te_synchronize(ctx);
}

#endif
