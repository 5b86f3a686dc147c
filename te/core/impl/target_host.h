/* target_host.h -- the host target: TE_KERNEL as a loop over blocks, memory functions, and the creation of a context.
 * Included by target.h. */
#ifndef TE_TARGET_HOST_H
#define TE_TARGET_HOST_H

#include <stdlib.h> /* aligned_alloc */
#ifdef _OPENMP
#include <omp.h> /* omp_get_max_threads, omp_get_thread_num */
#endif
#include "../context.h" /* te_context, te_target */
#include "../lanes.h" /* te_block */

/* ---- instruction sets -------------------------------------------------------------------------------------------- */

/* The instruction sets for which a kernel of TE_KERNEL_ISA is compiled. TE_ISA_COMPILED: the instructions that the
 * compiler's options allow, on any CPU. TE_ISA_AVX2: in addition AVX2, FMA and F16C. TE_ISA_AVX512: in addition AVX-512
 * F, BW, DQ, VL and VNNI. */
typedef enum te_isa { TE_ISA_COMPILED, TE_ISA_AVX2, TE_ISA_AVX512 } te_isa;

/* A program for x86 contains each kernel of TE_KERNEL_ISA once for each te_isa, and te_context_create chooses one
 * version by the CPU on which the program runs. The program contains only one version of each kernel if it is compiled
 * with -DTE_NO_DISPATCH, or if the compiler's options allow AVX-512 already. */
#if defined __x86_64__ && defined __GNUC__ && !defined TE_NO_DISPATCH && \
    !(defined __AVX512VNNI__ && defined __AVX512VL__ && defined __AVX512BW__ && defined __AVX512DQ__)
#define TE__DISPATCH 1
#define TE__TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define TE__TARGET_AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#else
#define TE__DISPATCH 0
#define TE__TARGET_AVX2
#define TE__TARGET_AVX512
#endif

/* Return the best te_isa that this CPU and this program support. The function does not ask for F16C, whose name clang
 * 14 does not know, because CPUs with AVX2 and FMA also have F16C. */
TE_API te_isa te__isa_of_cpu(void) {
#if TE__DISPATCH
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return TE_ISA_COMPILED;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("avx512vnni") ? TE_ISA_AVX512 : TE_ISA_AVX2;
#else
    return TE_ISA_COMPILED;
#endif
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

typedef struct te_grid { int x, y; } te_grid;
TE_API te_grid te__grid_of(int64_t x, int64_t y) {
    te_grid g;
    g.x = (int)x, g.y = (int)y;
    return g;
}

#define TE_KERNEL_RESIDENT(name, threads, blocks, type, ...) TE_KERNEL(name, threads, type, __VA_ARGS__)
#define TE_KERNEL(name, threads, type, ...) TE_KERNEL_MEMORY(name, type, 0, __VA_ARGS__)
/* Define a kernel (host only) in which each thread block gets `bytes` bytes of memory, te_memory, for its tiles. The
 * tiles do not lie on the stack, because a thread's stack may have only 128 KB (musl). The context owns the memory, one
 * part for each thread that runs thread blocks. */
#define TE_KERNEL_MEMORY(name, type, bytes, ...)                                                   \
    TE__HOST_KERNEL void name(const void *te_arg_, te_block te_at, void *te_memory) {              \
        const type *te_args = (const type *)te_arg_;                                               \
        (void)te_args, (void)te_at, (void)te_memory;                                               \
        __VA_ARGS__;                                                                               \
    }                                                                                              \
    TE_API te_status name##_launch(te_context *ctx, te_grid grid, const type *args) {              \
        return te__host_launch(ctx, name, grid, args, bytes);                                      \
    }

/* Define a kernel as TE_KERNEL_MEMORY does, compiled once for each te_isa. In the body, te_isa_ is the te_isa of the
 * version, as a constant. Every function that the body calls must be a TE_FN, so that this function is compiled for the
 * same instructions. */
#if TE__DISPATCH
#define TE__KERNEL_OF_ISA(name, isa, attribute, type, ...)                                          \
    attribute TE__HOST_KERNEL void name(const void *te_arg_, te_block te_at, void *te_memory) {     \
        const type *te_args = (const type *)te_arg_;                                                \
        const te_isa te_isa_ = isa;                                                                 \
        (void)te_args, (void)te_at, (void)te_memory, (void)te_isa_;                                 \
        __VA_ARGS__;                                                                                \
    }
#define TE_KERNEL_ISA(name, type, bytes, ...)                                                       \
    TE__KERNEL_OF_ISA(name, TE_ISA_COMPILED, , type, __VA_ARGS__)                                   \
    TE__KERNEL_OF_ISA(name##_avx2, TE_ISA_AVX2, TE__TARGET_AVX2, type, __VA_ARGS__)                 \
    TE__KERNEL_OF_ISA(name##_avx512, TE_ISA_AVX512, TE__TARGET_AVX512, type, __VA_ARGS__)           \
    TE_API te_status name##_launch(te_context *ctx, te_grid grid, const type *args) {               \
        return te__host_launch(ctx, ctx->isa == TE_ISA_AVX512 ? name##_avx512                       \
                                    : ctx->isa == TE_ISA_AVX2 ? name##_avx2 : name, grid, args, bytes); \
    }
#else
#define TE_KERNEL_ISA(name, type, bytes, ...)                                                       \
    TE_KERNEL_MEMORY(name, type, bytes, const te_isa te_isa_ = TE_ISA_COMPILED; (void)te_isa_; __VA_ARGS__)
#endif

/* On CUDA these macros define templates, so that a program contains only the kernels that it uses. On the host they
 * define plain functions, because host compilers drop unused functions anyway (see target_cuda.h). */
#define TE_IF_USED
#define TE_KERNEL_IF_USED(name, threads, blocks, type, ...) TE_KERNEL(name, threads, type, __VA_ARGS__)
#define TE_KERNEL_IF_USED_NO_OVERLAP(name, threads, blocks, type, ...) TE_KERNEL(name, threads, type, __VA_ARGS__)

/* The size, in bytes, up to which the structs for a block's registers and shared memory lie on the stack. Larger
 * structs lie in te_memory. */
#ifndef TE__HOST_STACK_BYTES
#define TE__HOST_STACK_BYTES (16 * 1024)
#endif
#define TE_KERNEL_WITH(name, threads, blocks, type, registers_type, shared_type, body)              \
    typedef struct name##_locals { registers_type registers; shared_type shared; } name##_locals;   \
    TE__HOST_KERNEL void name(const void *te_arg_, te_block te_at_, void *te_memory) {              \
        registers_type te_registers_;                                                               \
        shared_type te_shared_;                                                                     \
        (void)te_memory;                                                                            \
        body((const type *)te_arg_, te_at_, &te_registers_, &te_shared_);                           \
    }                                                                                               \
    TE__HOST_KERNEL void name##_large(const void *te_arg_, te_block te_at_, void *te_memory) {      \
        name##_locals *const te_locals_ = (name##_locals *)te_memory;                               \
        body((const type *)te_arg_, te_at_, &te_locals_->registers, &te_locals_->shared);           \
    }                                                                                               \
    TE_API te_status name##_launch(te_context *ctx, te_grid grid, const type *args) {               \
        return sizeof(name##_locals) > TE__HOST_STACK_BYTES                                         \
                   ? te__host_launch(ctx, name##_large, grid, args, sizeof(name##_locals))          \
                   : te__host_launch(ctx, name, grid, args, 0);                                     \
    }
#define TE_KERNEL_WITH_PREFETCH(name, threads, blocks, type, registers_type, shared_type, prefetch, body) \
    TE_KERNEL_WITH(name, threads, blocks, type, registers_type, shared_type, body)
#define TE_KERNEL_WITH_IF_USED(name, threads, blocks, type, registers_type, shared_type, body) \
    TE_KERNEL_WITH(name, threads, blocks, type, registers_type, shared_type, body)

/* Set *memory to memory with `bytes` bytes for each of `threads` threads, in the order of the threads. The context owns
 * the memory and keeps it. Therefore a launch allocates memory only if it needs more than every earlier launch. */
TE_API te_status te__host_kernel_memory(char **memory, te_context *ctx, size_t bytes, int threads) {
    const size_t all = (size_t)threads * bytes;
    *memory = (char *)ctx->kernel_memory;
    if (all <= ctx->kernel_memory_bytes) return TE_OK;
    free(ctx->kernel_memory);
    ctx->kernel_memory = aligned_alloc(TE_ALIGN, all);
    ctx->kernel_memory_bytes = ctx->kernel_memory ? all : 0;
    *memory = (char *)ctx->kernel_memory;
    return *memory ? TE_OK : te_fail(ctx, TE_ERROR_MEMORY, "cannot allocate %zu bytes for the tiles of %d threads", all,
                                     threads);
}
/* Run all blocks of a kernel's grid, one after the other or, with OpenMP, on several threads. `bytes` is the size of
 * the memory (te_memory) that each block needs. */
TE_API te_status te__host_launch(te_context *ctx, void (*kernel)(const void *, te_block, void *), te_grid grid,
                                 const void *args, size_t bytes) {
    const int n = grid.x * grid.y;
    const size_t each = (bytes + TE_ALIGN - 1) / TE_ALIGN * TE_ALIGN;
    char *memory = 0;
#ifdef _OPENMP
    if (each) TE_TRY(te__host_kernel_memory(&memory, ctx, each, n > 1 ? omp_get_max_threads() : 1));
#pragma omp parallel if (n > 1)
    {
        void *const here = memory ? memory + (size_t)omp_get_thread_num() * each : 0;
#pragma omp for schedule(dynamic)
        for (int i = 0; i < n; i++) {
            te_block b;
            b.x = i % grid.x, b.y = i / grid.x, b.nx = grid.x, b.ny = grid.y;
            kernel(args, b, here);
        }
    }
#else
    if (each) TE_TRY(te__host_kernel_memory(&memory, ctx, each, 1));
    for (int i = 0; i < n; i++) {
        te_block b;
        b.x = i % grid.x, b.y = i / grid.x, b.nx = grid.x, b.ny = grid.y;
        kernel(args, b, memory);
    }
#endif
    return TE_OK;
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
TE_API te_status te__host_copy_rows(te_context *ctx, te_tensor dst, te_tensor src) {
    const size_t size = te_dtype_bytes(src.dtype), bytes = (size_t)src.cols * size;
    const size_t to = (size_t)(dst.stride ? dst.stride : dst.cols) * size;
    const size_t from = (size_t)(src.stride ? src.stride : src.cols) * size;
    for (int64_t r = 0; r < src.rows; r++)
        memcpy((char *)dst.data + (size_t)r * to, (const char *)src.data + (size_t)r * from, bytes);
    return (void)ctx, TE_OK;
}
TE_API te_status te__host_fill(te_context *ctx, void *dst, int byte, size_t bytes) {
    (void)ctx, memset(dst, byte, bytes);
    return TE_OK;
}
TE_API te_status te__host_synchronize(te_context *ctx) {
    (void)ctx;
    return TE_OK;
}
TE_API void te__host_close(te_context *ctx) {
    free(ctx->kernel_memory);
    ctx->kernel_memory = 0, ctx->kernel_memory_bytes = 0;
}

/* On CUDA these functions record launches (graph_replay.h). On the host they do nothing, because every launch on the
 * host runs at once. */
TE_API te_status te_launch_flush(te_context *ctx) { return (void)ctx, TE_OK; }
TE_API void te__launch_record_begin(te_context *ctx) { (void)ctx; }
TE_API te_status te__launch_record_end(te_context *ctx, te_status status) { return (void)ctx, status; }

/* Create a context of the host target, whose only device is 0. Errors: TE_ERROR_DEVICE, TE_ERROR_MEMORY. */
TE_API te_status te_context_create(te_context *ctx, int device, uint64_t seed) {
    static const te_target host = {"host",             te__host_allocate, te__host_release,     te__host_copy,
                                   te__host_copy_rows, te__host_fill,     te__host_synchronize, te__host_close};
    if (!ctx) return TE_ERROR_NULL;
    memset(ctx, 0, sizeof *ctx);
    TE_REQUIRE(device == 0, ctx, TE_ERROR_DEVICE, "the host target has one device, 0; %d was asked for", device);
    ctx->target = &host, ctx->at = ctx, ctx->processors = 1, ctx->isa = (int)te__isa_of_cpu();
    const te_status status = te_allocate(ctx, (void **)&ctx->rng, sizeof *ctx->rng);
    if (status != TE_OK) return ctx->target = 0, status;
    ctx->rng->seed = seed, ctx->rng->offset = 0;
    return TE_OK;
}

#endif
