/* attention_cuda.h -- the dispatch of attention on CUDA. This file decides which kernels are compiled for an attention
 * and which kernels a call runs, and has the macros that declare the kernels. This file also computes the gradient of a
 * score bias.
 *
 *     f32              attention_simt_f32.h, on CUDA cores.
 *     bf16 and f16     On compute capability 9.0 attention_sm90_forward.h and attention_sm90_backward.h (wgmma), if all
 *                      of these are true: te__attn_sm90_supports accepts the head size; there is no score bias;
 *                      forward has neither max_logit nor values_in_keys; in cross-attention, each query
 *                      sees a key; in backward, there is scratch memory. Else attention_sm80_forward.h and
 *                      attention_sm80_backward.h (mma.sync).
 *     over a cache     attention_cached.h
 */
/* target: cuda */
#ifndef TE_ATTENTION_CUDA_H
#define TE_ATTENTION_CUDA_H

#include "attention_sm90_backward.h" /* bf16 and f16 on compute capability 9.0: backward, which needs scratch memory */
#include "attention_sm90_forward.h"  /* bf16 and f16 on compute capability 9.0: forward */
#include "attention_simt_f32.h"      /* f32 on every device */
#include "attention_sm80_backward.h" /* bf16 and f16 in all other cases: backward */
#include "attention_sm80_forward.h"  /* bf16 and f16 in all other cases: forward */

/* The forward kernel over a cache, for many new rows; defined in attention_cached.h. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F> struct te__attn_sm90_cached;

/* The types of the kernels for compute capability 9.0. These kernels do not support a score bias. Nor do the forward
 * kernels support max_logit and values_in_keys. If one of these options is set, the type is made for f32 instead of the
 * dtype, because for f32 no such kernel exists (EXISTS is 0). */
template <te_dtype T, class F>
inline constexpr te_dtype te__attn_wgmma_dtype = F::BIAS || F::MAX_LOGIT || F::VALUES_IN_KEYS ? TE_f32 : T;
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
using te__attn_wgmma_forward = typename te__choose_type<
    F::CACHED, te__attn_sm90_cached<te__attn_wgmma_dtype<T, F>, HEADS, KV_HEADS, D, F>,
    te__attn_sm90_forward<te__attn_wgmma_dtype<T, F>, HEADS, KV_HEADS, D, F>>::type;
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
using te__attn_wgmma_backward = te__attn_sm90_backward<F::BIAS ? TE_f32 : T, HEADS, KV_HEADS, D, F>;

/* ---- which kernels have code -------------------------------------------------------------------------------------
 * An instantiation that would never run is compiled without a body, to save compile time and code. In the functions
 * below, the template parameter H is the type of the kernel for compute capability 9.0, and F has the options.
 * Cross-attention needs both the kernel H and the kernel for sm_80, because the sizes of a call decide which one
 * runs. */

/* Return whether all kernels except the kernels for compute capability 9.0 are compiled without a body, because the
 * option `only` is TE_ATTENTION_SM90_ONLY. */
template <class H, class F> TE_BOTH constexpr bool te__attn_only_sm90(void) {
    return H::EXISTS && F::ONLY == TE_ATTENTION_SM90_ONLY && !F::CROSS;
}
/* Return whether the forward kernel for sm_80 is compiled without a body. This is so if the code is compiled only for
 * sm_90a, where the kernel H always runs instead. */
template <class H, class F> TE_BOTH constexpr bool te__attn_replaced_by_sm90(void) {
    return H::EXISTS && TE_SM90_ONLY && !F::CROSS;
}
/* Return whether each query sees at least one key in this call, as the kernels for compute capability 9.0 require. In
 * self-attention each query sees at least its own key. */
template <class F> TE_API int te__attn_every_query_sees_a_key(const te_attention_args *a) {
    return !F::CROSS || (F::LEFT < 0 && F::RIGHT < 0) || a->seq <= a->kv_seq;
}
/* Called when the kernel for compute capability 9.0 cannot run. Returns an error if te__attn_only_sm90 is true, because
 * the other kernels then have no body. */
template <class H, class F> TE_API te_status te__attn_check_only_sm90(te_context *ctx, const char *name) {
    TE_REQUIRE((!te__attn_only_sm90<H, F>()), ctx, TE_ERROR_DEVICE,
               "%s: it has kernels for compute capability 9.0 alone (sm_90a), which need scratch in backward", name);
    return TE_OK;
}
/* Called when the kernel for sm_90a does not run on this device. Returns an error if the device has compute capability
 * 9.0, and the forward kernel for sm_80 has no body (te__attn_replaced_by_sm90), so that no kernel can run. */
template <class H, class F>
TE_API te_status te__attn_check_replaced(te_context *ctx, const te_sm90_kernel *k, const char *name) {
    struct cudaFuncAttributes is;
    const int replaced =
        te__attn_replaced_by_sm90<H, F>() && ctx->capability == 900 && te__sm90_kernel_compiled(k, &is);
    TE_REQUIRE(!replaced, ctx, TE_ERROR_DEVICE,
               "%s: it was compiled for sm_90a, and its kernel does not run: the driver is older than CUDA 12, or nvcc "
               "did not inline (then define TE_KEEP_CALLS)", name);
    return TE_OK;
}

/* ---- kernels as types --------------------------------------------------------------------------------------------
 * A kernel is described by a type, which has everything except the kernel's name: THREADS (the threads of a block),
 * BLOCKS (how many blocks must fit on a multiprocessor), args (the struct of the kernel's arguments) and body (the
 * kernel's code). The types te__attn_forward, te__attn_dq and te__attn_dkdv also have ROWS (how many rows of a sequence
 * a block processes), BYTES (the size of a block's shared memory), and `small` (the same for devices with 99 KB of
 * shared memory). */

template <te_dtype T, class SM80, class F32> struct te__attn_select_shape : SM80 {};
template <class SM80, class F32> struct te__attn_select_shape<TE_f32, SM80, F32> : F32 {};

template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
struct te__attn_forward : te__attn_select_shape<T, te__attn_forward_shape<D, te__attn_value_dim<D, F>(),
                                                                          F::VALUES_IN_KEYS>,
                                                te__attn_f32_forward_shape<D, te__attn_value_dim<D, F>()>> {
    typedef te_attention_args args;
    static __device__ __forceinline__ void body(const args *a) {
        te_kernel_begin();
        typedef te__attn_wgmma_forward<T, HEADS, KV_HEADS, D, F> sm90;
        if constexpr (T == TE_f32) te__attention_forward_f32<HEADS, KV_HEADS, D, F>(a);
        else if constexpr (!te__attn_only_sm90<sm90, F>() && !te__attn_replaced_by_sm90<sm90, F>())
            te__attention_forward_sm80<T, HEADS, KV_HEADS, D, F>(a);
    }
};
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
struct te__attn_dq : te__attn_select_shape<T, te__attn_dq_shape<D, te__attn_value_dim<D, F>()>,
                                           te__attn_f32_dq_shape<D, te__attn_value_dim<D, F>()>> {
    typedef te_attention_args args;
    static __device__ __forceinline__ void body(const args *a) {
        te_kernel_begin();
        if constexpr (T == TE_f32) te__attention_dq_f32<HEADS, KV_HEADS, D, F>(a);
        else if constexpr (!te__attn_only_sm90<te__attn_wgmma_backward<T, HEADS, KV_HEADS, D, F>, F>())
            te__attention_dq_sm80<T, HEADS, KV_HEADS, D, F>(a);
    }
};
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
struct te__attn_dkdv : te__attn_select_shape<T, te__attn_dkdv_shape<D, te__attn_value_dim<D, F>()>,
                                             te__attn_f32_dkdv_shape<D, te__attn_value_dim<D, F>()>> {
    typedef te_attention_args args;
    static __device__ __forceinline__ void body(const args *a) {
        te_kernel_begin();
        if constexpr (T == TE_f32) te__attention_dkdv_f32<HEADS, KV_HEADS, D, F>(a);
        else if constexpr (!te__attn_only_sm90<te__attn_wgmma_backward<T, HEADS, KV_HEADS, D, F>, F>())
            te__attention_dkdv_sm80<T, HEADS, KV_HEADS, D, F>(a);
    }
};

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* A kernel, and the devices on which it is configured. Bit d of `configured` is 1 if the kernel's size of shared memory
 * has been set on device d. If so, bit d of `small` is 1 if device d runs code with the smaller tiles, for 99 KB of
 * shared memory. */
typedef struct te__attn_kernel { const void *kernel; uint64_t configured, small; } te__attn_kernel;

/* The sizes of a kernel's launch: the rows and the threads of a block, and its bytes of shared memory. */
typedef struct te__attn_launch_shape { int rows, threads, bytes; } te__attn_launch_shape;
template <class K> te__attn_launch_shape te__attn_launch_shape_of() {
    const te__attn_launch_shape s = {K::ROWS, K::THREADS, K::BYTES};
    return s;
}
/* Sets the size of the kernel's shared memory on the context's device. *small: output, 1 if the code that the device
 * runs was compiled with the tiles for 99 KB of shared memory. The device alone does not decide this: a device with 99
 * KB can also run code for 8.0, whose tiles are larger. The driver is asked once for each device with an index up to
 * 63, and at each launch for other devices. Asking the driver is not a stream operation, so it is allowed while the
 * stream is captured. */
template <class K>
TE_API te_status te__attn_configure(int *small, te__attn_kernel *k, te_context *ctx, const char *name) {
    const uint64_t bit = ctx->device < 64 ? (uint64_t)1 << ctx->device : 0;
    if (__atomic_load_n(&k->configured, __ATOMIC_ACQUIRE) & bit)
        return *small = (__atomic_load_n(&k->small, __ATOMIC_RELAXED) & bit) != 0, TE_OK;
    struct cudaFuncAttributes is;
    TE_TRY(te__cuda_status(ctx, cudaFuncGetAttributes(&is, k->kernel), name));
#ifdef TE__ARCH_IS_SMALL
    *small = TE__ARCH_IS_SMALL(10 * is.ptxVersion);
#else
    *small = 0;
#endif
    const int bytes = *small ? K::small::BYTES : K::BYTES;
    TE_REQUIRE(bytes <= ctx->shared_bytes, ctx, TE_ERROR_DEVICE,
               "%s: a block of the code for compute capability %d.%d takes %d bytes of shared memory, device %d allows "
               "%d; compile for its capability, %d.%d", name, is.ptxVersion / 10, is.ptxVersion % 10, bytes,
               ctx->device, ctx->shared_bytes, ctx->capability / 100, ctx->capability / 10 % 10);
    TE_TRY(te__cuda_status(ctx, cudaFuncSetAttribute(k->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                           name));
    if (*small) (void)__atomic_fetch_or(&k->small, bit, __ATOMIC_RELAXED);
    (void)__atomic_fetch_or(&k->configured, bit, __ATOMIC_RELEASE);
    return TE_OK;
}
/* Launches a kernel of type K. The call has batch_heads heads with `rows` rows each; a block processes K::ROWS rows of
 * one head. A kernel with more than 48 KB of shared memory is configured first, because CUDA requires a function
 * attribute for it. */
template <class K>
TE_API te_status te__attn_enqueue(te_context *ctx, te__attn_kernel *k, int batch_heads, int rows,
                                  const te_attention_args *a, const char *name) {
    static_assert(K::small::BYTES <= TE__ATTN_SHARED_SMALL,
                  "te: attention: the tiles of this head_dim take more shared memory than a block may have");
    int small = 0;
    if (K::BYTES > 48 * 1024) TE_TRY(te__attn_configure<K>(&small, k, ctx, name));
    const te__attn_launch_shape s =
        small ? te__attn_launch_shape_of<typename K::small>() : te__attn_launch_shape_of<K>();
    const te_launch launch = te__launch_of(k->kernel, name, te__grid_of(batch_heads, te_ceil_div(rows, s.rows)),
                                           s.threads, s.bytes, 1);
    return te__cuda_launch(ctx, launch, a, sizeof *a);
}
template <int HEADS, class F>
TE_API te_status te__attention_check_variant(te_context *ctx, const te_attention_args *a, const char *name) {
    TE_TRY(te__attention_check(ctx, a, HEADS, F::VARLEN, F::SINKS, name));
    TE_TRY(te__attention_check_fp8_output(ctx, a, F::FP8_OUTPUT, name));
    TE_TRY(te__attention_check_cross(ctx, a, HEADS, F::CROSS, name));
    return te__attention_check_bias(ctx, a, F::CROSS, F::BIAS, F::BIAS_QUERIES, F::BIAS_KEYS, name);
}

typedef struct te__attn_forward_kernels {
    te__attn_kernel fallback;
    te_sm90_kernel sm90;
} te__attn_forward_kernels;

template <te_dtype T, int HEADS, int KV_HEADS, int D, class F> struct te__attn_forward_dispatch {
    typedef te__attn_forward<T, HEADS, KV_HEADS, D, F> fallback;
    typedef te__attn_wgmma_forward<T, HEADS, KV_HEADS, D, F> sm90;

    /* Returns the driver's function for making tensor maps if the kernel for compute capability 9.0 exists for these
     * constants and runs on the context's device, else null. */
    static te__tensor_map_encode_fn ready(te_context *ctx, te__attn_forward_kernels *k) {
        const te__tensor_map_encode_fn encode = sm90::EXISTS ? te__tensor_map_encoder(ctx) : 0;
        return encode && te__sm90_kernel_ready(&k->sm90, sm90::SHARED, ctx->device) ? encode : 0;
    }
    static te_status launch(te_context *ctx, te__attn_forward_kernels *k, const te_attention_args *a,
                            const char *name) {
        TE_TRY((te__attention_check_variant<HEADS, F>(ctx, a, name)));
        const te__tensor_map_encode_fn encode = te__attn_every_query_sees_a_key<F>(a) ? ready(ctx, k) : 0;
        if (encode) return sm90::launch(ctx, k->sm90.kernel, encode, a, name);
        TE_TRY((te__attn_check_only_sm90<sm90, F>(ctx, name)));
        TE_TRY((te__attn_check_replaced<sm90, F>(ctx, &k->sm90, name)));
        return te__attn_enqueue<fallback>(ctx, &k->fallback, a->batch * HEADS, a->seq, a, name);
    }
};

typedef struct te__attn_backward_kernels {
    te__attn_kernel dq, dkdv;
    te_sm90_kernel wgmma;
    /* the kernels that run before (delta) and after (round) the main kernel with wgmma */
    const void *delta, *round;
} te__attn_backward_kernels;

template <te_dtype T, int HEADS, int KV_HEADS, int D, class F> struct te__attn_backward_dispatch {
    typedef te__attn_dq<T, HEADS, KV_HEADS, D, F> dq;
    typedef te__attn_dkdv<T, HEADS, KV_HEADS, D, F> dkdv;
    typedef te__attn_wgmma_backward<T, HEADS, KV_HEADS, D, F> sm90;
    typedef typename sm90::delta delta;
    typedef typename sm90::wgmma wgmma;
    typedef typename sm90::round round;
    static constexpr int V = te__attn_value_dim<D, F>();
    /* Each row of te_attention_args.sum is the sum of this many rows of dqkv; in the kernels for sm_80, one warp
     * computes these rows. SUM_ROWS is 0 if the kernels cannot compute `sum`. */
    static constexpr int SUM_ROWS = T == TE_f32 || F::VARLEN ? 0 : te__attn_dq_shape<D, V>::M * 16;

    /* Return the driver's function for making tensor maps if the backward kernel for compute capability 9.0 exists for
     * these constants and runs on the context's device, else null. */
    static te__tensor_map_encode_fn ready(te_context *ctx, te__attn_backward_kernels *k) {
        const te__tensor_map_encode_fn encode = sm90::EXISTS && ctx ? te__tensor_map_encoder(ctx) : 0;
        return encode && te__sm90_kernel_ready(&k->wgmma, wgmma::SHARED, ctx->device) ? encode : 0;
    }
    static size_t scratch_bytes(te_context *ctx, te__attn_backward_kernels *k, int64_t rows) {
        return ready(ctx, k) ? sm90::scratch_bytes(rows) : 0;
    }
    static te_status launch(te_context *ctx, te__attn_backward_kernels *k, const te_attention_args *a,
                            const char *name) {
        TE_TRY((te__attention_check_variant<HEADS, F>(ctx, a, name)));
        const int can_use_sm90 = a->scratch && te__attn_every_query_sees_a_key<F>(a) && sm90::pays(a);
        const te__tensor_map_encode_fn encode = can_use_sm90 ? ready(ctx, k) : 0;
        if (encode) return sm90::launch(ctx, k->delta, k->wgmma.kernel, k->round, encode, a, name);
        TE_TRY((te__attn_check_only_sm90<sm90, F>(ctx, name)));
        /* The dq kernel runs first, because it also computes delta, which the dkdv kernel reads. */
        TE_TRY(te__attn_enqueue<dq>(ctx, &k->dq, a->batch * HEADS, a->seq, a, name));
        if (F::CROSS && !a->dkv) return TE_OK;
        return te__attn_enqueue<dkdv>(ctx, &k->dkdv, a->batch * KV_HEADS, F::CROSS ? a->kv_seq : a->seq, a, name);
    }
};

/* ---- the gradient of a score bias --------------------------------------------------------------------------------
 * If the bias is a table, a block computes a tile of its gradient, ROWS queries by TILE keys of one head, or of all
 * heads that share the table. In registers, it adds up the dS of each pair of a query and a key over all sequences. If
 * the bias is relative, a block processes ROWS queries of a head and all keys, tile by tile: it adds up dS along each
 * diagonal of a tile, where key - query is constant, then over all diagonals that belong to the same bucket, and stores
 * the sum of each bucket as a partial sum of the gradient.
 *
 * Lower bounds: the kernel recomputes the products S and dP, 4 * batch * heads * queries * keys * head_dim flops (half
 * of that if causal; for the dq and dkdv kernels together, the factor is 14 instead of 4), and writes the gradient
 * once, 4 bytes for each pair of query and key. Measurements: docs/notes/attention.md. */

/* The type that holds, for a tile of scores, the sums of the gradient dS. The type for f32 differs from that for bf16
 * and f16. Its functions: clear() sets the sums to 0, add(args, head, q0, k0) adds the dS of one head to the sums, and
 * each(f) calls f(row, column, sum) for each sum. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F, int LIMIT>
struct te__attn_dbias_sums : te__attn_dbias_sm80<T, HEADS, KV_HEADS, D, F, LIMIT> {};
template <int HEADS, int KV_HEADS, int D, class F, int LIMIT>
struct te__attn_dbias_sums<TE_f32, HEADS, KV_HEADS, D, F, LIMIT> : te__attn_dbias_f32<HEADS, KV_HEADS, D, F> {};

template <te_dtype T, int HEADS, int KV_HEADS, int D, class F, int LIMIT = TE__ATTN_SHARED> struct te__attn_dbias {
    static_assert(F::BIAS != TE_BIAS_none, "te: attention: no bias, no gradient of it");
    typedef te_attention_args args;
    typedef te__attn_dbias_sums<T, HEADS, KV_HEADS, D, F, LIMIT> sums;
    typedef te__attn_dbias<T, HEADS, KV_HEADS, D, F, TE__ATTN_SHARED_SMALL> small;
    static constexpr int ROWS = sums::ROWS, TILE = sums::TILE, THREADS = sums::THREADS, BLOCKS = sums::BLOCKS;
    static constexpr int RELATIVE = F::BIAS == TE_BIAS_relative;
    /* the distance in floats between two rows of the tile of sums in shared memory: TILE + 1, which avoids bank
     * conflicts */
    static constexpr int LD = TILE + 1;
    static constexpr int DIAGONALS = ROWS + TILE - 1;  /* the number of diagonals of a tile */
    /* The tile of sums overwrites the operand tiles of the products, after these tiles have been read. */
    static constexpr int TILES_BYTES =
        RELATIVE && ROWS * LD * 4 > sums::TILES_BYTES ? ROWS * LD * 4 : sums::TILES_BYTES;
    static constexpr int BYTES = TILES_BYTES + te__attn_bucket_bytes<F>(ROWS, TILE);
    static constexpr int TILES = (F::BIAS_KEYS + TILE - 1) / TILE; /* the number of tiles of keys of a bias table */

    /* Computes the gradient of a score bias that is a table. Grid: (tiles of keys * tables, tiles of queries). There is
     * one table for each head (TE_BIAS_heads), or one for all heads (TE_BIAS_shared). */
    static __device__ __forceinline__ void table(const args *a) {
        const int table = (int)blockIdx.x / TILES, k0 = (int)blockIdx.x % TILES * TILE, q0 = (int)blockIdx.y * ROWS;
        sums s;
        s.clear();
        for (int head = table; head < (F::BIAS == TE_BIAS_heads ? table + 1 : HEADS); head++) s.add(a, head, q0, k0);
        float *to = a->dbias + (int64_t)table * F::BIAS_QUERIES * F::BIAS_KEYS;
        s.each([&](int row, int column, float x) {
            const int query = q0 + row, key = k0 + column;
            if (query >= F::BIAS_QUERIES || key >= F::BIAS_KEYS) return;
            float *p = to + (int64_t)query * F::BIAS_KEYS + key;
            *p = (a->accumulate ? *p : 0.0f) + x;
        });
    }
    /* Computes partial sums of the gradient of a relative score bias. Grid: (heads, tiles of queries). Contents of
     * shared memory: the operand tiles of the products, later a tile of sums of dS in their place; the sum and the
     * bucket of each diagonal of the tile; and the sum of each bucket. */
    static __device__ __forceinline__ void buckets(const args *a) {
        constexpr int BUCKETS = F::BIAS_BUCKETS;
        float *tile = (float *)te__attention_shared, *diagonal = (float *)(te__attention_shared + TILES_BYTES);
        int *bucket = (int *)(diagonal + DIAGONALS);
        float *total = (float *)(bucket + DIAGONALS);
        const int head = (int)blockIdx.x, q0 = (int)blockIdx.y * ROWS, thread = (int)threadIdx.x;
        const int keys = F::CROSS ? a->kv_seq : a->seq;
        const te__attn_mask m = te__attn_mask_between(a->seq, keys, F::LEFT, F::RIGHT);
        for (int i = thread; i < BUCKETS; i += THREADS) total[i] = 0;
        for (int k0 = 0; k0 < keys; k0 += TILE) {
            if (!te__attn_tile_seen<F>(m, q0, ROWS, k0, TILE)) continue;
            sums s;
            s.clear();
            s.add(a, head, q0, k0);
            /* after this barrier, all threads have read the operand tiles of the products, so the memory of these tiles
             * may be overwritten */
            __syncthreads();
            s.each([&](int row, int column, float x) { tile[row * LD + column] = x; });
            __syncthreads();
            /* Add up each diagonal of the tile; on diagonal i, column - row is i - (ROWS - 1). */
            for (int i = thread; i < DIAGONALS; i += THREADS) {
                float sum = 0;
                for (int row = 0; row < ROWS; row++) {
                    const int column = i - (ROWS - 1) + row;
                    if (column >= 0 && column < TILE) sum += tile[row * LD + column];
                }
                diagonal[i] = sum;
                bucket[i] = te__attn_bucket(k0 - q0 - m.shift + i - (ROWS - 1), BUCKETS, F::BIAS_MAX_DISTANCE,
                                            F::RIGHT != 0);
            }
            __syncthreads();
            for (int i = thread; i < BUCKETS; i += THREADS)
                for (int j = 0; j < DIAGONALS; j++)
                    if (bucket[j] == i) total[i] += diagonal[j];
        }
        for (int i = thread; i < BUCKETS; i += THREADS)
            a->dbias[((int64_t)blockIdx.y * BUCKETS + i) * HEADS + head] = total[i];
    }
    static __device__ __forceinline__ void body(const args *a) {
        te_kernel_begin();
        if constexpr (RELATIVE) buckets(a);
        else table(a);
    }
    /* Launches the kernel that computes the gradient of a score bias. Call this after backward, which writes the delta
     * that this kernel reads. */
    static te_status launch(te_context *ctx, te__attn_kernel *k, const te_attention_args *a, const char *name) {
        const int tables = RELATIVE || F::BIAS == TE_BIAS_heads ? HEADS : 1;
        int is_small = 0;
        if (BYTES > 48 * 1024) TE_TRY(te__attn_configure<te__attn_dbias>(&is_small, k, ctx, name));
        const int tiles = is_small ? small::TILES : TILES;
        return te__attn_enqueue<te__attn_dbias>(ctx, k, tables * (RELATIVE ? 1 : tiles),
                                                RELATIVE ? a->seq : F::BIAS_QUERIES, a, name);
    }
};

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* Defines name##_variant, the type with the options, and checks it with the other constants of an attention. */
#define TE__ATTENTION_CUDA_VARIANT(name, dtype, heads, kv_heads, head_dim, options)                               \
    TE__ATTENTION_VARIANT(name, options)                                                                          \
    TE__ATTENTION_ASSERT(heads, kv_heads, head_dim, TE__ATTENTION_MAX_DIM(name##_variant::VALUES_IN_KEYS))        \
    static_assert(TE_##dtype == TE_f32 || (head_dim) % 8 == 0,                                                    \
                  "te: attention: head_dim must be a multiple of 8 in bf16 and f16 on CUDA");                     \
    static_assert(TE_##dtype == TE_f32 || name##_variant::VALUE % 8 == 0,                                         \
                  "te: attention: value must be a multiple of 8 in bf16 and f16 on CUDA");

/* Defines the __global__ function `name`, whose code, arguments and launch bounds the type K describes. */
#define TE__ATTENTION_SHELL(name, K)                                          \
    TE_UNUSED static __global__ void __launch_bounds__(K::THREADS, K::BLOCKS) \
        name(const __grid_constant__ K::args te_arg_) {                       \
        K::body(&te_arg_);                                                    \
    }

#define TE_ATTENTION_FORWARD_OF(name, dtype, heads, kv_heads, head_dim, options)                                     \
    TE__ATTENTION_CUDA_VARIANT(name, dtype, heads, kv_heads, head_dim, options)                                      \
    typedef te__attn_forward_dispatch<TE_##dtype, (heads), (kv_heads), (head_dim), name##_variant> name##_of;        \
    TE__ATTENTION_SHELL(name, name##_of::fallback)                                                                   \
    TE__ATTENTION_SHELL(name##_sm90, name##_of::sm90)                                                              \
    TE_UNUSED static te__attn_forward_kernels name##_kernels = {/* fallback */ {(const void *)name, 0, 0},           \
                                                                /* sm90 */ {(const void *)name##_sm90, 0, 0}};     \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                                    \
        return name##_of::launch(ctx, &name##_kernels, a, #name);                                                    \
    }

#define TE_ATTENTION_BACKWARD_OF(name, dtype, heads, kv_heads, head_dim, options)                                    \
    TE__ATTENTION_CUDA_VARIANT(name, dtype, heads, kv_heads, head_dim, options)                                      \
    typedef te__attn_backward_dispatch<TE_##dtype, (heads), (kv_heads), (head_dim), name##_variant> name##_of;       \
    enum { name##_sum_rows = name##_of::SUM_ROWS };                                                                  \
    TE__ATTENTION_SHELL(name##_dq, name##_of::dq)                                                                    \
    TE__ATTENTION_SHELL(name##_dkdv, name##_of::dkdv)                                                                \
    TE__ATTENTION_SHELL(name##_delta, name##_of::delta)                                                              \
    TE__ATTENTION_SHELL(name##_wgmma, name##_of::wgmma)                                                              \
    TE__ATTENTION_SHELL(name##_round, name##_of::round)                                                              \
    TE_UNUSED static te__attn_backward_kernels name##_kernels = {                                                    \
        /* dq */ {(const void *)name##_dq, 0, 0}, /* dkdv */ {(const void *)name##_dkdv, 0, 0},                      \
        /* wgmma */ {(const void *)name##_wgmma, 0, 0}, /* delta */ (const void *)name##_delta,                      \
        /* round */ (const void *)name##_round};                                                                     \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                                    \
        return name##_of::launch(ctx, &name##_kernels, a, #name);                                                    \
    }                                                                                                                \
    TE_API size_t name##_scratch_bytes(te_context *ctx, int64_t rows) {                                              \
        return name##_of::scratch_bytes(ctx, &name##_kernels, rows);                                                 \
    }

#define TE_ATTENTION_DBIAS(name, dtype, heads, kv_heads, head_dim, options)                                          \
    TE__ATTENTION_VARIANT(name, options)                                                                             \
    typedef te__attn_dbias<TE_##dtype, (heads), (kv_heads), (head_dim), name##_variant> name##_of;                   \
    TE__ATTENTION_SHELL(name, name##_of)                                                                             \
    TE_UNUSED static te__attn_kernel name##_kernel = {(const void *)name, 0, 0};                                     \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                                    \
        return name##_of::launch(ctx, &name##_kernel, a, #name);                                                     \
    }                                                                                                                \
    TE_API int64_t name##_parts(int64_t seq) { return te_ceil_div(seq, name##_of::ROWS); }

#endif
