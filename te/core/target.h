/* target.h -- the two targets: how a context is created, and how a kernel shell is launched.
 *
 * Do this, to make a kernel of a body function:
 *     typedef struct { float *y; const float *x; int64_t n; } my_args;
 *     TE_FN void my_body(const my_args *a, te_block b, int threads) { ... }
 *     TE_KERNEL(my_kernel, 256, my_args, my_body(te_args, te_at, 256))
 *     ... TE_TRY(my_kernel_launch(ctx, te_grid_of(blocks, 1), &args));
 *
 * A shell is a __global__ function on CUDA, and on the host a loop over the blocks of the grid, shared out to threads
 * (OpenMP, where the compiler has it switched on). Inside the call `te_args` points to the arguments and `te_at` is the block.
 */
#ifndef TE_TARGET_H
#define TE_TARGET_H

#include <stdlib.h> /* aligned_alloc */

#include "context.h" /* te_context, te_target */
#include "lanes.h"   /* te_block */

#if TE_CUDA
#include "launch_cuda.h" /* te__cuda_launch */
#else
typedef struct te_grid { int x, y; } te_grid;
#endif

TE_API te_grid te_grid_of(int64_t x, int64_t y) {
    te_grid g;
    g.x = (int)x, g.y = (int)y;
    return g;
}

#if TE_CUDA

#define TE_KERNEL(name, threads, type, ...) TE_KERNEL_RESIDENT(name, threads, 1, type, __VA_ARGS__)
/* `blocks` of them are to be resident on a multiprocessor: the compiler limits the registers so. */
#define TE_KERNEL_RESIDENT(name, threads, blocks, type, ...)                                                  \
    TE_UNUSED static __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ type te_arg_) { \
        const type *te_args = &te_arg_;                                                                       \
        const te_block te_at = te_block_here();                                                               \
        te_kernel_begin();                                                                                    \
        __VA_ARGS__;                                                                                          \
    }                                                                                                         \
    TE_API te_status name##_launch(te_context *ctx, te_grid grid, const type *args) {                         \
        return te__cuda_launch(ctx, (const void *)name, grid, threads, 0, 1, args, sizeof *args, #name);                    \
    }

/* Kernels run in the order of the stream, but from compute capability 9.0 on one may be set up while the one before it ends
 * (programmatic dependent launch, CUDA C++ Programming Guide). Every kernel calls this before it touches memory: it waits until
 * that one is done and what it wrote is there, and lets the next one be set up. In this order: when a kernel is set up, all before
 * the one ahead of it are done. */
TE_FN void te_kernel_wait(void) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
TE_FN void te_kernel_begin(void) {
    te_kernel_wait();
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

TE_API te_status te__cuda_allocate(te_context *ctx, void **p, size_t bytes) {
    const cudaError_t e = cudaMalloc(p, bytes ? bytes : 1);
    if (e == cudaSuccess) return TE_OK;
    *p = 0;
    (void)cudaGetLastError();
    return te_fail(ctx, TE_ERROR_MEMORY, "cannot allocate %zu bytes: %s", bytes, cudaGetErrorString(e));
}
TE_API void te__cuda_release(te_context *ctx, void *p) { (void)ctx, (void)cudaFree(p); }
TE_API te_status te__cuda_copy(te_context *ctx, void *dst, const void *src, size_t bytes) {
    TE_TRY(te_enqueue_now(ctx));
    return te__cuda_status(ctx, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, (cudaStream_t)ctx->stream), "copy");
}
typedef struct te__fill_args { void *dst; size_t bytes; int64_t byte; } te__fill_args;
TE_API te_status te__cuda_fill_call(const void *args, te_context *ctx) {
    const te__fill_args *a = (const te__fill_args *)args;
    return te__cuda_status(ctx, cudaMemsetAsync(a->dst, (int)a->byte, a->bytes, (cudaStream_t)ctx->stream), "fill");
}
TE_API te_status te__cuda_fill(te_context *ctx, void *dst, int byte, size_t bytes) {
    const te__fill_args a = {dst, bytes, byte};
    return te__cuda_call(ctx, te__cuda_fill_call, &a, sizeof a);
}
TE_API te_status te__cuda_synchronize(te_context *ctx) {
    TE_TRY(te_enqueue_now(ctx));
    return te__cuda_status(ctx, cudaStreamSynchronize((cudaStream_t)ctx->stream), "synchronize");
}

#else /* host */

#define TE_KERNEL_RESIDENT(name, threads, blocks, type, ...) TE_KERNEL(name, threads, type, __VA_ARGS__)
#define TE_KERNEL(name, threads, type, ...)                                                        \
    TE_API void name(const void *te_arg_, te_block te_at) {                                        \
        const type *te_args = (const type *)te_arg_;                                               \
        (void)te_args, (void)te_at;                                                                \
        __VA_ARGS__;                                                                               \
    }                                                                                              \
    TE_API te_status name##_launch(te_context *ctx, te_grid grid, const type *args) {              \
        (void)ctx;                                                                                 \
        te__host_launch(name, grid, args);                                                         \
        return TE_OK;                                                                              \
    }

TE_API void te__host_launch(void (*kernel)(const void *, te_block), te_grid grid, const void *args) {
    const int n = grid.x * grid.y;
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic) if (n > 1)
#endif
    for (int i = 0; i < n; i++) {
        te_block b;
        b.x = i % grid.x, b.y = i / grid.x, b.nx = grid.x, b.ny = grid.y;
        kernel(args, b);
    }
}
TE_API te_status te__host_allocate(te_context *ctx, void **p, size_t bytes) {
    if (bytes > SIZE_MAX - TE_ALIGN) return te_fail(ctx, TE_ERROR_OVERFLOW, "cannot allocate %zu bytes", bytes);
    *p = aligned_alloc(TE_ALIGN, (bytes / TE_ALIGN + 1) * TE_ALIGN);
    return *p ? TE_OK : te_fail(ctx, TE_ERROR_MEMORY, "cannot allocate %zu bytes", bytes);
}
TE_API void te__host_release(te_context *ctx, void *p) { (void)ctx, free(p); }
TE_API te_status te__host_copy(te_context *ctx, void *dst, const void *src, size_t bytes) {
    (void)ctx, memmove(dst, src, bytes);
    return TE_OK;
}
TE_API te_status te__host_fill(te_context *ctx, void *dst, int byte, size_t bytes) {
    (void)ctx, memset(dst, byte, bytes);
    return TE_OK;
}
TE_API te_status te__host_synchronize(te_context *ctx) {
    (void)ctx;
    return TE_OK;
}
TE_API void te__host_close(te_context *ctx) { (void)ctx; }

/* launch_cuda.h; here all is done at once */
TE_API te_status te_enqueue_now(te_context *ctx) { return (void)ctx, TE_OK; }
TE_API void te_enqueue_open(te_context *ctx) { (void)ctx; }
TE_API te_status te_enqueue_close(te_context *ctx, te_status status) { return (void)ctx, status; }
#endif

/* Functions that launch kernels run on the target they were compiled for: a context of the other one is refused. */
TE_API te_status te_check_target(te_context *ctx, const char *who) {
    const char *here = TE_CUDA ? "cuda" : "host";
    if (!ctx || !ctx->target) return TE_ERROR_NULL;
    TE_REQUIRE(ctx->target->name[0] == here[0], ctx, TE_ERROR_DEVICE, "%s: this file was compiled for the %s target, the context is of the %s target", who, here,
               ctx->target->name);
    return TE_OK;
}

/* Advance the random state by one draw and keep the state that was taken. */
typedef struct te_rng_args { te_rng *taken, *state; } te_rng_args;
TE_FN void te_rng_take_body(const te_rng_args *a) {
    *a->taken = *a->state;
    a->state->offset++;
}
TE_KERNEL(te_rng_take, 1, te_rng_args, te_rng_take_body(te_args))

#endif
