/* attention_cuda.h -- the kernels of attention_kernels.h on CUDA: tensor cores for bf16 and f16, CUDA cores for f32. */
#ifndef TE_ATTENTION_CUDA_H
#define TE_ATTENTION_CUDA_H

#include "attention_args.h"            /* te_attention_args */
#include "attention_f32.h"             /* f32 */
#include "attention_hopper_backward.h" /* bf16 and f16 on compute capability 9.0, backward, where there is scratch */
#include "attention_hopper_forward.h"  /* and forward */
#include "attention_mma_backward.h"    /* bf16 and f16 elsewhere, backward */
#include "attention_mma_forward.h"     /* and forward */

/* A kernel's shape (THREADS, BLOCKS, BYTES of shared memory, ROWS of a block) and its body, by dtype. */
#define TE__ATTENTION_KIND(kind)                                                                  \
    template <te_dtype T, int HEADS, int KV_HEADS, int D, int CAUSAL> struct te__attn_##kind      \
        : te__attn_##kind##_shape<D> {                                                            \
        static __device__ __forceinline__ void body(const te_attention_args *a) {                 \
            te__attention_##kind##_mma<T, HEADS, KV_HEADS, D, CAUSAL>(a);                         \
        }                                                                                         \
    };                                                                                            \
    template <int HEADS, int KV_HEADS, int D, int CAUSAL>                                         \
    struct te__attn_##kind<TE_f32, HEADS, KV_HEADS, D, CAUSAL> : te__attn_f32_##kind##_shape<D> { \
        static __device__ __forceinline__ void body(const te_attention_args *a) {                 \
            te__attention_##kind##_f32<HEADS, KV_HEADS, D, CAUSAL>(a);                            \
        }                                                                                         \
    };
TE__ATTENTION_KIND(forward)
TE__ATTENTION_KIND(dq)
TE__ATTENTION_KIND(dkdv)

/* Put a kernel on the stream. More than 48 KB of shared memory has to be asked for, once on each device: `asked` has a
 * bit for each (and from the 64th on it is asked again each time, which does no harm). Not a stream operation, so it is
 * legal while the stream is being captured. */
template <class K>
TE_API te_status te__attention_enqueue(te_context *ctx, void (*kernel)(te_attention_args), uint64_t *asked,
                                       int batch_heads, const te_attention_args *a, const char *name) {
    static_assert(K::BYTES <= TE_SHARED_BYTES, "te: attention: the tiles of this head_dim exceed TE_SHARED_BYTES");
    const uint64_t bit = ctx->device < 64 ? (uint64_t)1 << ctx->device : 0;
    if (K::BYTES > 48 * 1024 && !(__atomic_load_n(asked, __ATOMIC_ACQUIRE) & bit)) {
        const cudaError_t e =
            cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, K::BYTES);
        TE_TRY(te__cuda_status(ctx, e, name));
        (void)__atomic_fetch_or(asked, bit, __ATOMIC_RELEASE);
    }
    return te__cuda_launch(ctx, (const void *)kernel, te_grid_of(batch_heads, te_ceil_div(a->seq, K::ROWS)), K::THREADS,
                           K::BYTES, 1, a, sizeof *a, name);
}

/* The shell `name` of kernel type K, and name##_enqueue. */
#define TE__ATTENTION_SHELL(name, K)                                                                         \
    TE_UNUSED static __global__ void __launch_bounds__(K::THREADS, K::BLOCKS)                                \
        name(const __grid_constant__ te_attention_args te_arg_) {                                            \
        te_kernel_begin();                                                                                   \
        K::body(&te_arg_);                                                                                   \
    }                                                                                                        \
    TE_API te_status name##_enqueue(te_context *ctx, int batch_heads, const te_attention_args *a) {          \
        static uint64_t asked;                                                                               \
        return te__attention_enqueue<K>(ctx, name, &asked, batch_heads, a, #name);                           \
    }
#define TE__ATTENTION_CUDA_ASSERT(dtype, heads, kv_heads, head_dim, causal)                                  \
    TE__ATTENTION_ASSERT(heads, kv_heads, head_dim, causal)                                                  \
    static_assert(TE_##dtype == TE_f32 || (head_dim) % 16 == 0,                                              \
                  "te: attention: head_dim must be a multiple of 16 in bf16 and f16 on CUDA");

/* name##_hopper_ready: non-null where the kernel of attention_hopper_forward.h exists for these constants and runs on
 * the context's device: compiled for sm_90a. Elsewhere it is empty, and mma.sync does the work. */
#define TE_ATTENTION_FORWARD(name, dtype, heads, kv_heads, head_dim, causal)                                 \
    TE__ATTENTION_CUDA_ASSERT(dtype, heads, kv_heads, head_dim, causal)                                      \
    typedef te__attn_forward<TE_##dtype, (heads), (kv_heads), (head_dim), (causal)> name##_kernel;                \
    TE__ATTENTION_SHELL(name, name##_kernel)                                                                 \
    typedef te__attn_hopper_forward<TE_##dtype, (heads), (kv_heads), (head_dim), (causal)> name##_hopper_kernel;  \
    TE_UNUSED static __global__ void __launch_bounds__(name##_hopper_kernel::THREADS, 1)                     \
        name##_hopper(const __grid_constant__ te_attn_hopper te_arg_) {                                      \
        name##_hopper_kernel::body(&te_arg_);                                                                \
    }                                                                                                        \
    TE_API te__encode_fn name##_hopper_ready(te_context *ctx) {                                              \
        static te_hopper_kernel kernel = {(const void *)name##_hopper, 0, 0};                                \
        typedef name##_hopper_kernel K;                                                                      \
        const te__encode_fn encode = K::EXISTS ? te__encode_of(ctx) : 0;                                     \
        return encode && te__hopper_ready(&kernel, K::SHARED, ctx->device) ? encode : 0;                     \
    }                                                                                                        \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                            \
        TE_TRY(te__attention_check(ctx, a, heads, #name));                                                   \
        const te__encode_fn encode = name##_hopper_ready(ctx);                                               \
        return encode ? name##_hopper_kernel::launch(ctx, (const void *)name##_hopper, encode, a, #name)     \
                      : name##_enqueue(ctx, a->batch * (heads), a);                                          \
    }

#define TE_ATTENTION_BACKWARD(name, dtype, heads, kv_heads, head_dim, causal)                                     \
    TE__ATTENTION_CUDA_ASSERT(dtype, heads, kv_heads, head_dim, causal)                                           \
    typedef te__attn_dq<TE_##dtype, (heads), (kv_heads), (head_dim), (causal)> name##_dq_kernel;                  \
    typedef te__attn_dkdv<TE_##dtype, (heads), (kv_heads), (head_dim), (causal)> name##_dkdv_kernel;              \
    enum { name##_sum_rows = TE_##dtype == TE_f32 ? 0 : (head_dim) <= 128 ? 32 : 16 }; /* a warp's */             \
    TE__ATTENTION_HOPPER_BACKWARD(name##_hopper, TE_##dtype, (heads), (kv_heads), (head_dim), (causal))           \
    TE__ATTENTION_SHELL(name##_dq, name##_dq_kernel)                                                              \
    TE__ATTENTION_SHELL(name##_dkdv, name##_dkdv_kernel)                                                          \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                                 \
        int done = 0;                                                                                             \
        TE_TRY(te__attention_check(ctx, a, heads, #name));                                                        \
        TE_TRY(name##_hopper_run(&done, a, ctx));                                                                 \
        if (done) return TE_OK;                                                                                   \
        TE_TRY(name##_dq_enqueue(ctx, a->batch * (heads), a)); /* writes delta, which dkdv reads */               \
        return name##_dkdv_enqueue(ctx, a->batch * (kv_heads), a);                                                \
    }                                                                                                             \
    TE_API size_t name##_scratch_bytes(const te_context *ctx, int64_t rows) {                                     \
        return name##_hopper_bytes(ctx, rows);                                                                    \
    }

#endif
