/* attention_cuda.h -- the kernels of attention_kernels.h on CUDA, and which of them runs where: wgmma for bf16 and f16
 * on compute capability 9.0, mma.sync elsewhere, CUDA cores for f32.
 */
#ifndef TE_ATTENTION_CUDA_H
#define TE_ATTENTION_CUDA_H

#include "attention_args.h"            /* te_attention_args */
#include "attention_f32.h"             /* f32 */
#include "attention_hopper_backward.h" /* bf16 and f16 on compute capability 9.0, backward, where there is scratch */
#include "attention_hopper_forward.h"  /* and forward */
#include "attention_mma_backward.h"    /* bf16 and f16 elsewhere, backward */
#include "attention_mma_forward.h"     /* and forward */

/* The kernels for compute capability 9.0, of which there are none for f32, for scores with a bias, and where the
 * largest score of a row is to be left: mma.sync does that, there, too. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
using te__attn_wgmma_forward = te__attn_hopper_forward<F::BIAS || F::TOP ? TE_f32 : T, HEADS, KV_HEADS, D, F>;
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
using te__attn_wgmma_backward = te__attn_hopper_backward<F::BIAS ? TE_f32 : T, HEADS, KV_HEADS, D, F>;

/* ---- kernels ------------------------------------------------------------------------------------------------------
 * A type says all of a kernel but its name: THREADS, BLOCKS on a multiprocessor at least, args, and body. These three
 * have ROWS of a sequence in a block and BYTES of shared memory, too. */

/* Whether kernels are left out because there are those for compute capability 9.0, H (attention_form.h: only). */
template <class H, class F> TE_BOTH constexpr bool te__attn_left_out(void) {
    return H::EXISTS && F::ONLY == TE_ATTENTION_HOPPER && !F::CROSS;
}
/* The same of a forward where the code is for sm_90a: there the other kernel would never run. */
template <class H, class F> TE_BOTH constexpr bool te__attn_replaced(void) {
    return H::EXISTS && TE_HOPPER_ALONE && !F::CROSS;
}
/* Whether each query sees a key, without which the kernels for compute capability 9.0 do not run: with as many queries
 * as keys it does. */
template <class F> TE_API int te__attn_all_see(const te_attention_args *a) {
    return !F::CROSS || (F::LEFT < 0 && F::RIGHT < 0) || a->seq <= a->kv_seq;
}
template <class H, class F> TE_API te_status te__attn_check_only(te_context *ctx, const char *name) {
    TE_REQUIRE((!te__attn_left_out<H, F>()), ctx, TE_ERROR_DEVICE,
               "%s: it has kernels for compute capability 9.0 alone (sm_90a), which need scratch in backward", name);
    return TE_OK;
}

/* Of a forward that was compiled for sm_90a and has no other kernel there. Elsewhere nothing is asked of the driver. */
template <class H, class F>
TE_API te_status te__attn_check_replaced(te_context *ctx, const te_hopper_kernel *k, const char *name) {
    struct cudaFuncAttributes is;
    const int replaced = te__attn_replaced<H, F>() && ctx->capability == 900 && te__hopper_compiled(k, &is);
    TE_REQUIRE(!replaced, ctx, TE_ERROR_DEVICE,
               "%s: it was compiled for sm_90a, and its kernel does not run: the driver is older than CUDA 12, or nvcc "
               "did not inline (then define TE_KEEP_CALLS)", name);
    return TE_OK;
}

template <te_dtype T, class MMA, class F32> struct te__attn_shape_of : MMA {};
template <class MMA, class F32> struct te__attn_shape_of<TE_f32, MMA, F32> : F32 {};

template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
struct te__attn_forward : te__attn_shape_of<T, te__attn_forward_shape<D, te__attn_value_dim<D, F>()>,
                                            te__attn_f32_forward_shape<D, te__attn_value_dim<D, F>()>> {
    typedef te_attention_args args;
    static __device__ __forceinline__ void body(const args *a) {
        te_kernel_begin();
        typedef te__attn_wgmma_forward<T, HEADS, KV_HEADS, D, F> hopper;
        if constexpr (T == TE_f32) te__attention_forward_f32<HEADS, KV_HEADS, D, F>(a);
        else if constexpr (!te__attn_left_out<hopper, F>() && !te__attn_replaced<hopper, F>())
            te__attention_forward_mma<T, HEADS, KV_HEADS, D, F>(a);
    }
};
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
struct te__attn_dq : te__attn_shape_of<T, te__attn_dq_shape<D, te__attn_value_dim<D, F>()>,
                                       te__attn_f32_dq_shape<D, te__attn_value_dim<D, F>()>> {
    typedef te_attention_args args;
    static __device__ __forceinline__ void body(const args *a) {
        te_kernel_begin();
        if constexpr (T == TE_f32) te__attention_dq_f32<HEADS, KV_HEADS, D, F>(a);
        else if constexpr (!te__attn_left_out<te__attn_wgmma_backward<T, HEADS, KV_HEADS, D, F>, F>())
            te__attention_dq_mma<T, HEADS, KV_HEADS, D, F>(a);
    }
};
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
struct te__attn_dkdv : te__attn_shape_of<T, te__attn_dkdv_shape<D, te__attn_value_dim<D, F>()>,
                                         te__attn_f32_dkdv_shape<D, te__attn_value_dim<D, F>()>> {
    typedef te_attention_args args;
    static __device__ __forceinline__ void body(const args *a) {
        te_kernel_begin();
        if constexpr (T == TE_f32) te__attention_dkdv_f32<HEADS, KV_HEADS, D, F>(a);
        else if constexpr (!te__attn_left_out<te__attn_wgmma_backward<T, HEADS, KV_HEADS, D, F>, F>())
            te__attention_dkdv_mma<T, HEADS, KV_HEADS, D, F>(a);
    }
};

/* A kernel, and the devices (bit d: device d) on which its shared memory was asked for. */
typedef struct te__attn_plain { const void *kernel; uint64_t asked; } te__attn_plain;

/* Put a kernel made of K on the stream, for so many rows of each sequence. More than 48 KB of shared memory has to be
 * asked for, once on each device (from the 64th on it is asked again each time, which does no harm). Not a stream
 * operation, so it is legal while the stream is being captured. */
template <class K>
TE_API te_status te__attn_enqueue(te_context *ctx, te__attn_plain *k, int batch_heads, int rows,
                                  const te_attention_args *a, const char *name) {
    static_assert(K::BYTES <= TE_SHARED_BYTES, "te: attention: the tiles of this head_dim exceed TE_SHARED_BYTES");
    const uint64_t bit = ctx->device < 64 ? (uint64_t)1 << ctx->device : 0;
    if (K::BYTES > 48 * 1024 && !(__atomic_load_n(&k->asked, __ATOMIC_ACQUIRE) & bit)) {
        const cudaError_t e = cudaFuncSetAttribute(k->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, K::BYTES);
        TE_TRY(te__cuda_status(ctx, e, name));
        (void)__atomic_fetch_or(&k->asked, bit, __ATOMIC_RELEASE);
    }
    return te__cuda_launch(ctx, k->kernel, te_grid_of(batch_heads, te_ceil_div(rows, K::ROWS)), K::THREADS, K::BYTES,
                           1, a, sizeof *a, name);
}

/* ---- which of them runs ------------------------------------------------------------------------------------------ */

typedef struct te__attn_forward_kernels {
    te__attn_plain plain;
    te_hopper_kernel hopper;
} te__attn_forward_kernels;

template <te_dtype T, int HEADS, int KV_HEADS, int D, class F> struct te__attn_forward_of {
    typedef te__attn_forward<T, HEADS, KV_HEADS, D, F> plain;
    typedef te__attn_wgmma_forward<T, HEADS, KV_HEADS, D, F> hopper;

    /* Non-null where the kernel for compute capability 9.0 exists for these constants and runs on the context's device:
     * it was compiled for sm_90a. */
    static te__encode_fn ready(te_context *ctx, te__attn_forward_kernels *k) {
        const te__encode_fn encode = hopper::EXISTS ? te__encode_of(ctx) : 0;
        return encode && te__hopper_ready(&k->hopper, hopper::SHARED, ctx->device) ? encode : 0;
    }
    static te_status launch(te_context *ctx, te__attn_forward_kernels *k, const te_attention_args *a,
                            const char *name) {
        TE_TRY(te__attention_check(ctx, a, HEADS, F::VARLEN, F::SINKS, name));
        TE_TRY(te__attention_check_gives(ctx, a, F::GIVES, name));
        TE_TRY(te__attention_check_cross(ctx, a, HEADS, F::CROSS, name));
        TE_TRY(te__attention_check_bias(ctx, a, F::CROSS, F::BIAS, F::BIAS_FIRST, F::BIAS_SECOND, name));
        const te__encode_fn encode = te__attn_all_see<F>(a) ? ready(ctx, k) : 0;
        if (encode) return hopper::launch(ctx, k->hopper.kernel, encode, a, name);
        TE_TRY((te__attn_check_only<hopper, F>(ctx, name)));
        TE_TRY((te__attn_check_replaced<hopper, F>(ctx, &k->hopper, name)));
        return te__attn_enqueue<plain>(ctx, &k->plain, a->batch * HEADS, a->seq, a, name);
    }
};

typedef struct te__attn_backward_kernels {
    te__attn_plain dq, dkdv;
    te_hopper_kernel wgmma;
    const void *delta, *round; /* before it, and after */
} te__attn_backward_kernels;

template <te_dtype T, int HEADS, int KV_HEADS, int D, class F> struct te__attn_backward_of {
    typedef te__attn_dq<T, HEADS, KV_HEADS, D, F> dq;
    typedef te__attn_dkdv<T, HEADS, KV_HEADS, D, F> dkdv;
    typedef te__attn_wgmma_backward<T, HEADS, KV_HEADS, D, F> hopper;
    typedef typename hopper::delta delta;
    typedef typename hopper::wgmma wgmma;
    typedef typename hopper::round round;
    static constexpr int V = te__attn_value_dim<D, F>();
    static constexpr int SUM_ROWS = T == TE_f32 || F::VARLEN ? 0 : te__attn_dq_shape<D, V>::M * 16; /* a warp's */

    /* As above. */
    static te__encode_fn ready(te_context *ctx, te__attn_backward_kernels *k) {
        const te__encode_fn encode = hopper::EXISTS && ctx ? te__encode_of(ctx) : 0;
        return encode && te__hopper_ready(&k->wgmma, wgmma::SHARED, ctx->device) ? encode : 0;
    }
    static size_t scratch_bytes(te_context *ctx, te__attn_backward_kernels *k, int64_t rows) {
        return ready(ctx, k) ? hopper::scratch_bytes(rows) : 0;
    }
    static te_status launch(te_context *ctx, te__attn_backward_kernels *k, const te_attention_args *a,
                            const char *name) {
        TE_TRY(te__attention_check(ctx, a, HEADS, F::VARLEN, F::SINKS, name));
        TE_TRY(te__attention_check_gives(ctx, a, F::GIVES, name));
        TE_TRY(te__attention_check_cross(ctx, a, HEADS, F::CROSS, name));
        TE_TRY(te__attention_check_bias(ctx, a, F::CROSS, F::BIAS, F::BIAS_FIRST, F::BIAS_SECOND, name));
        const te__encode_fn encode = a->scratch && te__attn_all_see<F>(a) && hopper::pays(a) ? ready(ctx, k) : 0;
        if (encode) return hopper::launch(ctx, k->delta, k->wgmma.kernel, k->round, encode, a, name);
        TE_TRY((te__attn_check_only<hopper, F>(ctx, name)));
        TE_TRY(te__attn_enqueue<dq>(ctx, &k->dq, a->batch * HEADS, a->seq, a, name)); /* delta, which dkdv reads */
        if (F::CROSS && !a->dkv) return TE_OK;
        return te__attn_enqueue<dkdv>(ctx, &k->dkdv, a->batch * KV_HEADS, F::CROSS ? a->kv_seq : a->seq, a, name);
    }
};

/* ---- names ------------------------------------------------------------------------------------------------------- */

#define TE__ATTENTION_CUDA_ASSERT(dtype, heads, kv_heads, head_dim) \
    TE__ATTENTION_ASSERT(heads, kv_heads, head_dim)                 \
    static_assert(TE_##dtype == TE_f32 || (head_dim) % 16 == 0,     \
                  "te: attention: head_dim must be a multiple of 16 in bf16 and f16 on CUDA");
#define TE__ATTENTION_VALUE_ASSERT(name, dtype)                                \
    static_assert(TE_##dtype == TE_f32 || name##_form::VALUE % 16 == 0,        \
                  "te: attention: value must be a multiple of 16 in bf16 and f16 on CUDA");

#define TE__ATTENTION_SHELL(name, K)                                          \
    TE_UNUSED static __global__ void __launch_bounds__(K::THREADS, K::BLOCKS) \
        name(const __grid_constant__ K::args te_arg_) {                       \
        K::body(&te_arg_);                                                    \
    }

#define TE_ATTENTION_FORWARD_OF(name, dtype, heads, kv_heads, head_dim, options)                      \
    TE__ATTENTION_CUDA_ASSERT(dtype, heads, kv_heads, head_dim)                                       \
    TE__ATTENTION_FORM(name, options)                                                                 \
    TE__ATTENTION_VALUE_ASSERT(name, dtype)                                                           \
    typedef te__attn_forward_of<TE_##dtype, (heads), (kv_heads), (head_dim), name##_form> name##_of;  \
    TE__ATTENTION_SHELL(name, name##_of::plain)                                                       \
    TE__ATTENTION_SHELL(name##_hopper, name##_of::hopper)                                             \
    TE_UNUSED static te__attn_forward_kernels name##_kernels = {{(const void *)name, 0},              \
                                                                {(const void *)name##_hopper, 0, 0}}; \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                     \
        return name##_of::launch(ctx, &name##_kernels, a, #name);                                     \
    }

#define TE_ATTENTION_BACKWARD_OF(name, dtype, heads, kv_heads, head_dim, options)                         \
    TE__ATTENTION_CUDA_ASSERT(dtype, heads, kv_heads, head_dim)                                           \
    TE__ATTENTION_FORM(name, options)                                                                     \
    TE__ATTENTION_VALUE_ASSERT(name, dtype)                                                               \
    typedef te__attn_backward_of<TE_##dtype, (heads), (kv_heads), (head_dim), name##_form> name##_of;     \
    enum { name##_sum_rows = name##_of::SUM_ROWS };                                                       \
    TE__ATTENTION_SHELL(name##_dq, name##_of::dq)                                                         \
    TE__ATTENTION_SHELL(name##_dkdv, name##_of::dkdv)                                                     \
    TE__ATTENTION_SHELL(name##_delta, name##_of::delta)                                                   \
    TE__ATTENTION_SHELL(name##_wgmma, name##_of::wgmma)                                                   \
    TE__ATTENTION_SHELL(name##_round, name##_of::round)                                                   \
    TE_UNUSED static te__attn_backward_kernels name##_kernels = {                                         \
        {(const void *)name##_dq, 0}, {(const void *)name##_dkdv, 0}, {(const void *)name##_wgmma, 0, 0}, \
        (const void *)name##_delta, (const void *)name##_round};                                          \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                         \
        return name##_of::launch(ctx, &name##_kernels, a, #name);                                         \
    }                                                                                                     \
    TE_API size_t name##_scratch_bytes(te_context *ctx, int64_t rows) {                                   \
        return name##_of::scratch_bytes(ctx, &name##_kernels, rows);                                      \
    }

#endif
