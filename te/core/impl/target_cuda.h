/* target_cuda.h -- the CUDA target: macros that define kernels, memory functions, and the creation of a context.
 * Included by target.h. */
#ifndef TE_TARGET_CUDA_H
#define TE_TARGET_CUDA_H

#include <stdlib.h> /* calloc */

#include "../lanes.h"     /* te_block */
#include "graph_replay.h" /* te__cuda_launch */

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

TE_API te_grid te__grid_of(int64_t x, int64_t y) {
    te_grid g;
    g.x = (int)x, g.y = (int)y;
    return g;
}

/* Define a kernel `name` with `threads` threads per block. The kernel gets its arguments as a struct of type `type`.
 * The kernel's body is `...`; in the body, te_args points to this struct, and te_at is the te_block of the current
 * block. The macro also defines the kernel's launch function, te_status name_launch(ctx, grid, args). */
#define TE_KERNEL(name, threads, type, ...) TE_KERNEL_RESIDENT(name, threads, 1, type, __VA_ARGS__)
/* Define a kernel as TE_KERNEL does, but limit the registers of a thread so that `blocks` thread blocks fit on an
 * SM. */
#define TE_KERNEL_RESIDENT(name, threads, blocks, type, ...) \
    TE__KERNEL_OF(TE_UNUSED, , te__kernel_begin_early, name, name, threads, blocks, type, __VA_ARGS__)
/* nvcc compiles every kernel of a file, even if it is unused, but compiles a template only if it is instantiated.
 * Therefore a kernel that not every program needs is defined as a template, by TE_KERNEL_IF_USED, and every function
 * between the user's call and the kernel's launch is also a template, by TE_IF_USED. A program then contains these
 * kernels only if it calls them, which tests/unused_kernels.sh checks. Where many functions would have to be templates,
 * these functions call through a pointer in the model's plan instead (te_plan.convert, te_fp8_ops). */
#define TE_IF_USED template <int = 0>
#define TE_KERNEL_IF_USED(name, threads, blocks, type, ...) \
    TE__KERNEL_OF(TE_IF_USED, TE_IF_USED, te__kernel_begin_early, name, name<0>, threads, blocks, type, __VA_ARGS__)
/* Define a kernel as TE_KERNEL_IF_USED does, but let no later kernel start before this kernel has ended. Later kernels
 * may therefore read memory that this kernel has stored even before they call te_kernel_wait. */
#define TE_KERNEL_IF_USED_NO_OVERLAP(name, threads, blocks, type, ...) \
    TE__KERNEL_OF(TE_IF_USED, TE_IF_USED, te__kernel_begin_no_overlap, name, name<0>, threads, blocks, type,         \
                  __VA_ARGS__;                                                                                       \
                  __threadfence())
/* For a kernel template `name`, define the function name_if<..>(). If the constant `exists` is not 0, the function
 * returns the kernel; otherwise the function returns null without instantiating the template. */
#define TE_KERNEL_IF(exists, parameters, name, arguments, type)                                 \
    template <TE__PLAIN parameters> constexpr auto name##_if(void) -> void (*)(type) {          \
        if constexpr ((exists) != 0) return name<TE__PLAIN arguments>;                          \
        else return nullptr;                                                                    \
    }
#define TE__PLAIN(...) __VA_ARGS__
/* Define a kernel and its launch function. link: a prefix of the kernel's definition, e.g. TE_IF_USED; launch_link: a
 * prefix of the launch function's definition; begin: the function that the kernel calls first; symbol: the expression
 * that names the kernel in the launch. The kernel's second argument te_early_ is te_launch.early. */
#define TE__KERNEL_OF(link, launch_link, begin, name, symbol, threads, blocks, type, ...)                            \
    link static __global__ void __launch_bounds__(threads, blocks)                                                   \
        name(const __grid_constant__ type te_arg_, const int te_early_) {                                            \
        const type *te_args = &te_arg_;                                                                              \
        const te_block te_at = te_block_here();                                                                      \
        begin(te_early_);                                                                                            \
        __VA_ARGS__;                                                                                                 \
    }                                                                                                                \
    launch_link TE_API te_status name##_launch(te_context *ctx, te_grid grid, const type *args) {                    \
        return te__cuda_launch_plain(ctx, (const void *)symbol, #name, grid, threads, args, sizeof *args);           \
    }

/* Define a kernel whose body is body(args, block, registers, shared). `registers` points to a struct that each thread
 * has in registers; `shared` points to a struct in shared memory. */
#define TE_KERNEL_WITH(name, threads, blocks, type, registers_type, shared_type, body)                               \
    TE_KERNEL_WITH_PREFETCH(name, threads, blocks, type, registers_type, shared_type, TE__NO_PREFETCH, body)
#define TE__NO_PREFETCH(args)
/* Define a kernel as TE_KERNEL_WITH does, but let it call prefetch(args) before it waits for the preceding kernel. The
 * function `prefetch` may only prefetch to the L2, which is correct even if another kernel still writes the memory. */
#define TE_KERNEL_WITH_PREFETCH(name, threads, blocks, type, registers_type, shared_type, prefetch, body)            \
    TE_UNUSED static __global__ void __launch_bounds__(threads, blocks)                                              \
        name(const __grid_constant__ type te_arg_, const int te_early_) {                                            \
        registers_type te_registers_;                                                                                \
        __shared__ shared_type te_shared_;                                                                           \
        const te_block te_at_ = te_block_here();                                                                     \
        prefetch(&te_arg_);                                                                                          \
        te__kernel_begin_early(te_early_);                                                                            \
        body(&te_arg_, te_at_, &te_registers_, &te_shared_);                                                         \
    }                                                                                                                \
    TE_API te_status name##_launch(te_context *ctx, te_grid grid, const type *args) {                                \
        return te__cuda_launch_plain(ctx, (const void *)name, #name, grid, threads, args, sizeof *args);             \
    }

/* Define a kernel as TE_KERNEL_WITH does, but one that a program contains only if the program uses it. */
#define TE_KERNEL_WITH_IF_USED(name, threads, blocks, type, registers_type, shared_type, body)                       \
    TE_KERNEL_IF_USED(name, threads, blocks, type, registers_type te_registers_; TE_SHARED shared_type te_shared_; \
                      body(te_args, te_at, &te_registers_, &te_shared_))

/* Programmatic dependent launch (PDL, CUDA C++ Programming Guide): from compute capability 9.0 on, a kernel's blocks
 * may start before the preceding kernel in the stream has ended. te_kernel_wait waits until the preceding kernel has
 * ended and its stores are visible; te_kernel_trigger lets the blocks of the next kernel start. Before a kernel touches
 * memory it calls te_kernel_begin, which first waits and then triggers. Therefore, when a kernel starts, all earlier
 * kernels except the preceding one have ended.
 *
 * There are two exceptions. First, a small kernel in the middle of a pass (te_launch.early) triggers first and then
 * waits. Second, attention_sm90_decode.h launches one kernel that decodes and one that merges its partial results, and
 * the merging kernel lets the next kernel start at once. In both cases a kernel may start while several earlier kernels
 * of the same pass still run. This does no harm: before a kernel has waited, it reads only weights, keys and values of
 * earlier passes, and data that te__cache_begin has stored. The kernels that may still run write none of these. Once a
 * kernel has waited, all earlier kernels have ended, because each kernel ends only after it has waited for the kernel
 * before it. */
TE_FN void te_kernel_wait(void) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
TE_FN void te_kernel_trigger(void) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
TE_FN void te_kernel_begin(void) {
    te_kernel_wait();
    te_kernel_trigger();
}
/* Do the work of te_kernel_begin. If `early` (te_launch.early) is 1, let the blocks of the next kernel start even
 * before this kernel waits. */
TE_FN void te__kernel_begin_early(int early) {
    if (early) te_kernel_trigger();
    te_kernel_begin();
}
TE_FN void te__kernel_begin_no_overlap(int early) {
    (void)early;
    te_kernel_wait();
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

TE_API te_status te__cuda_allocate(te_context *ctx, void **p, size_t bytes) {
    const cudaError_t e = cudaMalloc(p, bytes ? bytes : 1);
    if (e == cudaSuccess) return TE_OK;
    *p = 0;
    (void)cudaGetLastError();
    return te_fail(ctx, TE_ERROR_MEMORY, "cannot allocate %zu bytes: %s", bytes, cudaGetErrorString(e));
}
TE_API void te__cuda_release(te_context *ctx, void *p) { (void)ctx, (void)cudaFree(p); }
TE_API te_status te__cuda_copy(te_context *ctx, void *dst, const void *src, size_t bytes) {
    TE_TRY(te_launch_flush(ctx));
    return te__cuda_status(ctx, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, (cudaStream_t)ctx->stream), "copy");
}
TE_API te_status te__cuda_copy_rows(te_context *ctx, te_tensor dst, te_tensor src) {
    const size_t size = te_dtype_bytes(src.dtype), bytes = (size_t)src.cols * size;
    const size_t to = (size_t)(dst.stride ? dst.stride : dst.cols) * size;
    const size_t from = (size_t)(src.stride ? src.stride : src.cols) * size;
    TE_TRY(te_launch_flush(ctx));
    return te__cuda_status(ctx, cudaMemcpy2DAsync(dst.data, to, src.data, from, bytes, (size_t)src.rows,
                                                  cudaMemcpyDeviceToDevice, (cudaStream_t)ctx->stream), "copy of rows");
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
TE_KERNEL_IF_USED(te_small_fill_kernel, 32, 1, te_small_fill, (void)te_at;
                  TE_UNROLL_1 for (int i = (int)threadIdx.x; i < te_args->count; i += 32)
                      te_args->bytes[i] = (uint8_t)(te_args->value >> 8 * (i & (te_args->element - 1))))
/* In the graphs that this context captures from now on, replace small fills by kernels (graph_replay.h). It must be
 * called by code that fills a few bytes of memory within a pass. */
TE_IF_USED TE_API void te__small_fills_by_kernels(te_context *ctx) {
    if (ctx->launches) ((te_launches *)ctx->launches)->small_fill_kernel = (const void *)te_small_fill_kernel<0>;
}
TE_API te_status te__cuda_synchronize(te_context *ctx) {
    TE_TRY(te_launch_flush(ctx));
    return te__cuda_status(ctx, cudaStreamSynchronize((cudaStream_t)ctx->stream), "synchronize");
}

/* ---- contexts ---------------------------------------------------------------------------------------------------- */

TE_API void te__cuda_close(te_context *ctx) {
    if (ctx->gemm_close) ctx->gemm_close(ctx);
    te__launches_close(ctx);
    ctx->launches = 0;
}

/* Query the device. Allocate the random state, the counter of work items (te_context.tickets) and the record of
 * launches of a new context. */
TE_API te_status te__cuda_open(te_context *ctx, const te_rng *rng) {
    int major = 0, minor = 0, devices = 0;
    TE_TRY(te__cuda_status(ctx, cudaGetDeviceCount(&devices), "cudaGetDeviceCount"));
    TE_REQUIRE(ctx->device >= 0 && ctx->device < devices, ctx, TE_ERROR_DEVICE,
               "there are %d devices, from 0 on; %d was asked for", devices, ctx->device);
    TE_TRY(te__cuda_status(ctx, cudaSetDevice(ctx->device), "cudaSetDevice"));
    TE_TRY(
        te__cuda_status(ctx, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ctx->device), "device"));
    TE_TRY(
        te__cuda_status(ctx, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ctx->device), "device"));
    TE_REQUIRE(major >= 8, ctx, TE_ERROR_DEVICE, "device %d has compute capability %d.%d; 8.0 or higher is needed",
               ctx->device, major, minor);
    ctx->capability = 100 * major + 10 * minor;
    TE_TRY(te__cuda_status(ctx, cudaDeviceGetAttribute(&ctx->processors, cudaDevAttrMultiProcessorCount, ctx->device),
                           "device"));
    TE_TRY(te__cuda_status(ctx, cudaDeviceGetAttribute(&ctx->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                                       ctx->device), "device"));
    TE_TRY(te_allocate(ctx, (void **)&ctx->rng, 2 * TE_ALIGN)); /* the tickets are in the second half */
    ctx->tickets = (uint32_t *)(void *)((char *)ctx->rng + TE_ALIGN);
    TE_TRY(te_fill(ctx, ctx->tickets, 0, TE_ALIGN));
    TE_TRY(te_rng_set(rng, ctx));
    ctx->launches = calloc(1, sizeof(te_launches)); /* null: launches are not recorded */
    return TE_OK;
}
/* Create a context on a CUDA device of compute capability 8.0 or higher, and make this device the thread's current
 * device. If this fails, only the context's error text is set. Errors: TE_ERROR_DEVICE, TE_ERROR_CUDA,
 * TE_ERROR_MEMORY. */
TE_API te_status te_context_create(te_context *ctx, int device, uint64_t seed) {
    static const te_target cuda = {"cuda",             te__cuda_allocate, te__cuda_release,     te__cuda_copy,
                                   te__cuda_copy_rows, te__cuda_fill,     te__cuda_synchronize, te__cuda_close};
    const te_rng rng = {seed, 0};
    if (!ctx) return TE_ERROR_NULL;
    memset(ctx, 0, sizeof *ctx);
    ctx->target = &cuda, ctx->at = ctx, ctx->device = device;
    ctx->gemm_custom = 1, ctx->pdl = 1, ctx->replay = TE_LAUNCH_MAX_GRAPHS;
    const te_status status = te__cuda_open(ctx, &rng);
    if (status == TE_OK) return TE_OK;
    te_release(ctx, ctx->rng);
    ctx->rng = 0, ctx->target = 0;
    return status;
}

#endif
