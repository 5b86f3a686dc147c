/* target_cuda.h -- the CUDA target: kernel shells, memory, creation of a context (target.h). */
#ifndef TE_TARGET_CUDA_H
#define TE_TARGET_CUDA_H

#include <stdlib.h> /* calloc */

#include "lanes.h"       /* te_block */
#include "launch_cuda.h" /* te__cuda_launch */

TE_API te_grid te_grid_of(int64_t x, int64_t y) {
    te_grid g;
    g.x = (int)x, g.y = (int)y;
    return g;
}

#define TE_KERNEL(name, threads, type, ...) TE_KERNEL_RESIDENT(name, threads, 1, type, __VA_ARGS__)
/* `blocks` of them are to be resident on a multiprocessor: the compiler limits the registers so. */
#define TE_KERNEL_RESIDENT(name, threads, blocks, type, ...) \
    TE__KERNEL_OF(TE_UNUSED, , name, name, threads, blocks, type, __VA_ARGS__)
/* nvcc compiles each kernel of a file, called or not, but of templates only those that something names. So a kernel of
 * the library, which no list makes, is a TE_KERNEL_IF_USED, and TE_IF_USED stands before each function on the way from
 * a user's call, or from what a list makes, to its launch: a program has them only if it calls them. Where that way is
 * long, a list names its beginning in its plan instead (te_plan.convert, te_fp8_ops). tests/unused_kernels.sh */
#define TE_IF_USED template <int = 0>
#define TE_KERNEL_IF_USED(name, threads, blocks, type, ...) \
    TE__KERNEL_OF(TE_IF_USED, TE_IF_USED, name, name<0>, threads, blocks, type, __VA_ARGS__)
/* Of a kernel that is a template, name_if<..>(): the kernel if it exists, else null, and then the program has none. */
#define TE_KERNEL_IF(exists, parameters, name, arguments, type)                                 \
    template <TE__PLAIN parameters> constexpr auto name##_if(void) -> void (*)(type) {          \
        if constexpr ((exists) != 0) return name<TE__PLAIN arguments>;                          \
        else return nullptr;                                                                    \
    }
#define TE__PLAIN(...) __VA_ARGS__
/* link, launch_link: what stands before the kernel and its launch; symbol: what the launch calls the kernel. */
#define TE__KERNEL_OF(link, launch_link, name, symbol, threads, blocks, type, ...)                                   \
    link static __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ type te_arg_) {      \
        const type *te_args = &te_arg_;                                                                              \
        const te_block te_at = te_block_here();                                                                      \
        te_kernel_begin();                                                                                           \
        __VA_ARGS__;                                                                                                 \
    }                                                                                                                \
    launch_link TE_API te_status name##_launch(te_context *ctx, te_grid grid, const type *args) {                    \
        return te__cuda_launch(ctx, (const void *)symbol, grid, threads, 0, 1, args, sizeof *args, #name);           \
    }

/* The same with body(args, at, registers, shared): a struct of this thread's, and one that the block shares. */
#define TE_KERNEL_WITH(name, threads, blocks, type, registers_type, shared_type, body)                               \
    TE_UNUSED static __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ type te_arg_) { \
        registers_type te_registers_;                                                                                \
        __shared__ shared_type te_shared_;                                                                           \
        const te_block te_at_ = te_block_here();                                                                     \
        te_kernel_begin();                                                                                           \
        body(&te_arg_, te_at_, &te_registers_, &te_shared_);                                                         \
    }                                                                                                                \
    TE_API te_status name##_launch(te_context *ctx, te_grid grid, const type *args) {                                \
        return te__cuda_launch(ctx, (const void *)name, grid, threads, 0, 1, args, sizeof *args, #name);             \
    }

/* Kernels run in the order of the stream, but from compute capability 9.0 on one may be set up while the one before it
 * ends (programmatic dependent launch, CUDA C++ Programming Guide). Every kernel calls this before it touches memory:
 * it waits until that one is done and what it wrote is there, and lets the next one be set up. In this order: when a
 * kernel is set up, all before the one ahead of it are done. */
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
TE_KERNEL_IF_USED(te_fill_kernel, 32, 1, te_fill_few, (void)te_at;
                  TE_UNROLL_1 for (int i = (int)threadIdx.x; i < te_args->count; i += 32)
                      te_args->bytes[i] = (uint8_t)(te_args->value >> 8 * (i & (te_args->element - 1))))
/* From here on small fills of graphs are kernels (fills_cuda.h): for who fills a few bytes in each pass. */
TE_IF_USED TE_API void te_fill_by_kernels(te_context *ctx) {
    if (ctx->launches) ((te_launches *)ctx->launches)->fill = (const void *)te_fill_kernel<0>;
}
TE_API te_status te__cuda_synchronize(te_context *ctx) {
    TE_TRY(te_enqueue_now(ctx));
    return te__cuda_status(ctx, cudaStreamSynchronize((cudaStream_t)ctx->stream), "synchronize");
}

TE_API void te__cuda_close(te_context *ctx) {
    if (ctx->gemm_close) ctx->gemm_close(ctx);
    te__launches_close(ctx);
    ctx->launches = 0;
}

/* The device's facts, the random state, room for what a pass writes down. */
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
    TE_TRY(te_allocate(ctx, (void **)&ctx->rng, 2 * TE_ALIGN)); /* and the tickets behind it */
    ctx->tickets = (uint32_t *)(void *)((char *)ctx->rng + TE_ALIGN);
    TE_TRY(te_fill(ctx, ctx->tickets, 0, TE_ALIGN));
    TE_TRY(te_rng_set(rng, ctx));
    ctx->launches = calloc(1, sizeof(te_launches)); /* without it, kernel by kernel */
    return TE_OK;
}
/* Create a context on a CUDA device (compute capability 8.0 or higher). Makes it the thread's current device. One that
 * could not be created holds nothing but the text of the error. */
TE_API te_status te_context_create(te_context *ctx, int device, uint64_t seed) {
    static const te_target cuda = {"cuda",        te__cuda_allocate,    te__cuda_release, te__cuda_copy,
                                   te__cuda_fill, te__cuda_synchronize, te__cuda_close};
    const te_rng rng = {seed, 0};
    if (!ctx) return TE_ERROR_NULL;
    memset(ctx, 0, sizeof *ctx);
    ctx->target = &cuda, ctx->at = ctx, ctx->device = device;
    ctx->gemm_own = 1, ctx->overlap = 1, ctx->replay = TE_LAUNCH_GRAPHS;
    const te_status status = te__cuda_open(ctx, &rng);
    if (status == TE_OK) return TE_OK;
    te_release(ctx, ctx->rng);
    ctx->rng = 0, ctx->target = 0;
    return status;
}

#endif
