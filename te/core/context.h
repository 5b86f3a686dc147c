/* context.h -- te_context, which says where work runs: a target (CUDA or host), a stream and a workspace. A te_context
 * also has the random state and the text of the last error.
 *
 * Do this:
 *     te_context ctx;
 *     TE_TRY(te_context_create(&ctx, 0, seed));               // CUDA under nvcc, the host elsewhere
 *     TE_TRY(te_context_reserve(&ctx, block_workspace_bytes(&b, rows, &ctx)));   // once; or set ctx.workspace yourself
 *     ...
 *     te_context_destroy(&ctx);
 *
 * All work is ordered on ctx.stream. Only one thread at a time may use a context. A context must stay at its address: a
 * call that gets a copy of the context returns an error. A file compiled as plain C can use a context that a .cu file
 * created (<model>_context_create), because all calls except the creation go through function pointers in ctx.target.
 */
#ifndef TE_CONTEXT_H
#define TE_CONTEXT_H

#include <stdarg.h> /* va_list, for te_fail */
#include <stdio.h>  /* vsnprintf, for te_fail */
#include "philox.h" /* te_rng */
#include "base.h" /* te_status */
#include "tensor.h" /* te_tensor */

struct te_context;

/* A target's memory functions. Each of the two addresses that `copy` takes may lie in host memory or in target
 * memory. */
typedef struct te_target {
    const char *name; /* "cuda" or "host" */
    te_status (*allocate)(struct te_context *ctx, void **p, size_t bytes);
    void (*release)(struct te_context *ctx, void *p);
    te_status (*copy)(struct te_context *ctx, void *dst, const void *src, size_t bytes);
    te_status (*copy_rows)(struct te_context *ctx, te_tensor dst, te_tensor src); /* copies between tensors of the same
                                                                                   * shape and dtype */
    te_status (*fill)(struct te_context *ctx, void *dst, int byte, size_t bytes);
    te_status (*synchronize)(struct te_context *ctx);
    void (*close)(struct te_context *ctx);
} te_target;

typedef struct te_context {
    const te_target *target;
    void *stream; /* a cudaStream_t, which the caller may set; null: the default stream; unused on the host. All work of
                   * a context, including its graphs, uses the context's one workspace; therefore a context's work must
                   * not run on two streams at once */
    void *workspace;
    size_t workspace_bytes;
    te_rng *rng;       /* the random state, in target memory */
    uint32_t *tickets; /* CUDA: an atomic counter from which the thread blocks of a kernel draw the numbers of their
                        * work items (tiles). The counter is 0 before and after each kernel */
    void *gemm;        /* the state that GEMMs need, such as cuBLASLt's handle. The state is created on first use; until
                        * then the pointer is null */
    void (*gemm_close)(struct te_context *ctx);
    int gemm_tune;     /* 1: time the candidate kernels of each GEMM when this GEMM is used first (te/gemm/gemm.h); 0
                        * (default): no timing */
    int gemm_custom;   /* CUDA: which GEMMs, and which fusion patterns that begin with a GEMM, run on this library's
                        * kernels instead of cuBLASLt. 0: none; 1 (default): the GEMMs and patterns for which the
                        * library's kernel is expected to be faster; 2: all GEMMs and patterns that the library's
                        * kernels support (te/gemm/impl/gemm_dispatch.h) */
    int attention_nondeterministic; /* CUDA, compute capability 9.0. 1: attention's backward accumulates dQ in the order
                                     * in which thread blocks finish, so results may differ between runs; 0 (default):
                                     * attention's backward accumulates dQ in a fixed order, so results are bitwise
                                     * reproducible */
    int pdl;           /* CUDA: where programmatic dependent launch (PDL, te_kernel_begin) is used. 0: never; 1
                        * (default): within a pass, from compute capability 9.0 on; 2: also from one pass to the next,
                        * so a pass may load weights before the previous pass has ended. With 2, the caller promises
                        * that only calls of this library enqueue work on the stream between two passes */
    void *launches;    /* CUDA: a te_launches, which holds the recorded launches of a pass and the cached graphs
                        * (graph_replay.h) */
    int replay;        /* CUDA: how many graphs of passes may be cached. With 0, no graphs are used, and kernels are
                        * launched one by one */
    void (*tensor_map_encode)(void); /* CUDA: the address of the driver's function cuTensorMapEncodeTiled; null if the
                                      * function is not available or was not looked up yet */
    int tensor_map_encode_known;     /* 1: tensor_map_encode has been looked up */
    int device, processors; /* device: the device's number (0 on the host); processors: how many SMs it has (1 on the
                             * host) */
    int capability;         /* CUDA: the device's compute capability as a number, e.g. 900 for 9.0 */
    int shared_bytes;       /* CUDA: how many bytes of shared memory a block may have on the device */
    int isa;                /* host: the instruction set that GEMMs use (te_isa in te/core/impl/target_host.h). The
                             * default is the best instruction set that the CPU and the program support; a caller may
                             * set a lower value of te_isa */
    void *kernel_memory;         /* host: memory for the tiles of kernels, one part for each thread that runs thread
                                  * blocks (te__host_kernel_memory) */
    size_t kernel_memory_bytes;
    int owns_workspace;
    uint64_t generation;         /* the largest write count that te__count_write has assigned to a parameter */
    uint64_t loaded;             /* a counter that te_safetensors_load changes when it writes to memory that may belong
                                  * to a parameter. Copies of weights (f32 master weights, FP8 weights) are renewed if
                                  * the counter has changed after the copies were made */
    struct te_comm *comm;        /* the groups of ranks to which this context belongs (rank_group.h); null if the
                                  * context is the only rank */
    const struct te_context *at; /* the address at which this context was created, by which a copy of the context is
                                  * recognised */
    char error[320];
} te_context;

/* Set the context's error text, given as a printf format and its arguments, and return `status`. */
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
/* Return the error text of the last call that failed on this context, or "" if no call has failed. */
TE_API const char *te_last_error(const te_context *ctx) { return ctx ? ctx->error : "the context is null"; }

/* Whether the program contains the code that times GEMMs (te_context.gemm_tune). The program does not contain this code
 * if it is compiled with -DTE_NO_TUNE, or if it includes te/infer.h without TE_TUNE defined. */
#ifdef TE_NO_TUNE
#define TE_HAS_AUTOTUNE 0
#else
#define TE_HAS_AUTOTUNE 1
#endif
/* Return an error if the context was not created, was destroyed, or is a copy. Copies are refused because a copy and
 * the original would both own the state that is created on first use. `who` is the caller's name, for the error
 * text. */
TE_API te_status te__check_context(te_context *ctx, const char *who) {
    if (!ctx) return TE_ERROR_NULL;
    TE_REQUIRE(ctx->target, ctx, TE_ERROR_NULL, "%s: the context has not been created; te_context_create does", who);
    TE_REQUIRE(ctx->at == ctx, ctx, TE_ERROR_STATE, "%s: the context is a copy; use it where it was created",
               who);
    TE_REQUIRE(TE_HAS_AUTOTUNE || !ctx->gemm_tune, ctx, TE_ERROR_STATE,
               "%s: ctx.gemm_tune is on in a program without the code for it: define TE_TUNE before te/infer.h, or "
               "load what another program has found (te_gemm_load)", who);
    return TE_OK;
}

/* Allocate memory of the context's target, aligned to TE_ALIGN bytes. Errors: TE_ERROR_MEMORY, TE_ERROR_OVERFLOW. */
TE_API te_status te_allocate(te_context *ctx, void **p, size_t bytes) {
    TE_TRY(te__check_context(ctx, "te_allocate"));
    TE_REQUIRE(p, ctx, TE_ERROR_NULL, "te_allocate: there is no pointer to set");
    return ctx->target->allocate(ctx, p, bytes);
}
TE_API void te_release(te_context *ctx, void *p) {
    if (ctx && ctx->target && p) ctx->target->release(ctx, p);
}
/* Copy bytes in stream order; each of the two addresses may be in host or in target memory. A call that copies to or
 * from host memory may return before the copy is done: call te_synchronize before the host reads or reuses that
 * memory. */
TE_API te_status te_copy(te_context *ctx, void *dst, const void *src, size_t bytes) {
    TE_TRY(te__check_context(ctx, "te_copy"));
    TE_REQUIRE((dst && src) || !bytes, ctx, TE_ERROR_NULL, "te_copy: a pointer is null");
    return bytes ? ctx->target->copy(ctx, dst, src, bytes) : TE_OK;
}
/* Set `bytes` bytes, starting at dst, to the value `byte`, in stream order. */
TE_API te_status te_fill(te_context *ctx, void *dst, int byte, size_t bytes) {
    TE_TRY(te__check_context(ctx, "te_fill"));
    TE_REQUIRE(dst || !bytes, ctx, TE_ERROR_NULL, "te_fill: the pointer is null");
    return bytes ? ctx->target->fill(ctx, dst, byte, bytes) : TE_OK;
}
/* Wait for all work on the context's stream. */
TE_API te_status te_synchronize(te_context *ctx) {
    TE_TRY(te__check_context(ctx, "te_synchronize"));
    return ctx->target->synchronize(ctx);
}

/* Count a write to a parameter: set *written, the parameter's write count, to a number that this count has never had
 * before. Code that makes a copy of the parameter in another format records the write count at this time, and makes a
 * new copy when the write count has changed. */
TE_API void te__count_write(uint64_t *written, te_context *ctx) {
    ctx->generation = (ctx->generation > *written ? ctx->generation : *written) + 1;
    *written = ctx->generation;
}

/* Grow the workspace to at least `bytes` bytes; if it has to grow, wait for the stream. Call this after the models are
 * bound and before the first forward or inference. On CUDA only this call and the creation of a context allocate a
 * buffer; but each graph of a pass takes some 0.1 MB of device memory when the pass first runs (te_context.replay
 * limits the number of graphs). On the host, kernels with large tiles use memory of the context (kernel_memory), which
 * grows at the first launch that needs more. Errors: TE_ERROR_MEMORY, TE_ERROR_OVERFLOW. */
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

/* Wait for the stream and free the memory that the context owns. If ctx is a copy of a context, the function does
 * nothing. */
TE_API void te_context_destroy(te_context *ctx) {
    if (!ctx || !ctx->target || ctx->at != ctx) return;
    (void)te_synchronize(ctx);
    if (ctx->owns_workspace) te_release(ctx, ctx->workspace);
    te_release(ctx, ctx->rng);
    ctx->target->close(ctx);
    memset(ctx, 0, sizeof *ctx);
}

/* Read the random state, for a checkpoint. Waits for the stream. */
TE_API te_status te_rng_get(te_rng *rng, te_context *ctx) {
    TE_TRY(te__check_context(ctx, "te_rng_get"));
    TE_TRY(te_copy(ctx, rng, ctx->rng, sizeof *rng));
    return te_synchronize(ctx);
}
/* Write the random state, from a checkpoint. Waits for the stream. */
TE_API te_status te_rng_set(const te_rng *rng, te_context *ctx) {
    TE_TRY(te__check_context(ctx, "te_rng_set"));
    TE_TRY(te_copy(ctx, ctx->rng, rng, sizeof *rng));
    return te_synchronize(ctx);
}

#endif
