/* gemm_dispatch.h -- decides which kernel runs a GEMM.
 *
 * Custom kernels, on compute capability 9.0:
 *   m <= 8     gemm_skinny.h    16 bits, FP8 of any scaling; forward only
 *   m <= 128   gemm_small_m.h   16 bits, FP8 tensorwise or rowwise; forward only
 *   any m      gemm_sm90.h    16 bits, FP8 tensorwise with fast accumulation; persistent
 *              gemm_sm90_blockwise.h   FP8 blockwise, without pointwise epilogue; persistent
 * For all other GEMMs, te_gemm_run:
 *   cuBLASLt (gemm_cublaslt.h; gemm_autotune.h times its candidates); gemm_fallback.h in a build with TE_NO_CUBLASLT;
 *   gemm_host.h on a CPU
 *
 * The kernels of gemm_skinny.h, gemm_small_m.h and gemm_sm90.h run pointwise ops as their epilogue, so a fused pattern
 * that begins with a GEMM may be one kernel. For all other patterns te/linear/impl/linear_strategy.h decides which ops
 * cuBLASLt's epilogue does (te_gemm_strategy). In a build without cuBLASLt the rules below select the custom kernels
 * for many more sizes.
 *
 * te_context.gemm_custom decides when a custom kernel runs. With 0 it never runs; with 1 it runs if the rules below
 * expect it to be faster; with 2 it runs whenever it supports the GEMM. Functions with "can" in their name return
 * whether a kernel supports a GEMM; functions with "pays" in their name return whether the kernel is expected to be
 * faster than the alternative.
 */
#ifndef TE_GEMM_DISPATCH_H
#define TE_GEMM_DISPATCH_H

#include "gemm_autotune.h" /* the library's GEMM, te__autotune */

/* ---- the library's GEMM ------------------------------------------------------------------------------------------ */

#if TE_CUDA && !defined(TE_NO_CUBLASLT)
/* Computes D = alpha op(A) op(B) + beta C, followed by g's epilogue. With te_context.gemm_tune on, the first call for a
 * product times the algorithms that cuBLASLt proposes for this product, unless the stream is being captured. */
TE_IF_USED TE_API te_status te_gemm_run(const te_gemm *g, te_context *ctx) {
    TE_TRY(te__gemm_check_run(g, "te_gemm_run", ctx));
    TE_TRY(te__gemm_check_blockwise(g, ctx));
    TE_TRY(te__gemm_open(ctx));
    te__gemm_plan *p = te__gemm_find_plan(g, ctx);
    TE_REQUIRE(p, ctx, TE_ERROR_MEMORY, "no memory for what a context remembers of matrix products");
    TE_REQUIRE(p->found, ctx, TE_ERROR_BLAS, "cuBLASLt has no algorithm for the %s product %lld x %lld x %lld",
               te_dtype_name(te__gemm_a_dtype(g)), (long long)g->m, (long long)g->n, (long long)g->k);
#if TE_HAS_AUTOTUNE
    if (ctx->gemm_tune && !p->timed) {
        const int open = te__launch_is_recording(ctx);
        TE_TRY(te__launch_record_end(ctx, TE_OK));
        TE_TRY(te__gemm_tune_plan(p, ctx));
        if (open) te__launch_record_begin(ctx);
    }
#endif
    return te__gemm_launch(g, p, ctx);
}
/* The function that a model, a list of ops, calls to run its GEMMs. gemm_fallback.h defines this macro differently,
 * because its functions depend on T (the dtype of the list of ops) and on trains (1 if the GEMMs of backward are also
 * needed). */
#define TE_GEMM_RUN_OF(T, trains) te_gemm_run
#endif

/* ---- the custom kernels ------------------------------------------------------------------------------------------ */

#if TE_CUDA && !defined(TE_KEEP_CALLS) /* With TE_KEEP_CALLS, which prevents inlining, the custom kernels are left out:
                                        * their accumulators would not stay in registers. */
#include "../../core/tensor_kernels.h"    /* te_fill_normal */
#include "gemm_sm90.h" /* te__sm90_gemm_supports */
#include "gemm_skinny.h"        /* te__skinny_can */
#include "gemm_small_m.h"       /* te__small_m_can */

/* Says whether the small-m kernels in 16 bits are compiled. By default a build with cuBLASLt does not have them: they
 * would make the code of a GPT block a quarter larger and would hardly ever be faster than cuBLASLt. A test, or a
 * program that wants them as candidates of autotuning, defines TE_SMALL_M_16BIT as 1. */
#ifndef TE_SMALL_M_16BIT
#define TE_SMALL_M_16BIT (!TE_HAS_CUBLASLT)
#endif

/* The library's own kernels for a fused pattern, or for a GEMM that is not part of a pattern. The pointer to a kernel
 * that does not exist is null. */
typedef struct te_product_kernels {
    te_sm90_kernel persistent, skinny, persistent_fp8, skinny_fp8;
    te_gemm_operands skinny_fp8_operands;
    te_sm90_kernel small_m, small_m_fp8; /* the small-m kernels for 16-bit operands (small_m), and for FP8 with
                                          * tensorwise or rowwise scales (small_m_fp8) */
    int is_random;                         /* 1 if the pattern draws random numbers for dropout, which makes its
                                            * epilogue slower */
} te_product_kernels;

/* Limits that decide which kernel runs a GEMM. A wave is one tile on every multiprocessor. */
enum {
    /* the largest size of the weight W, in 16-bit elements, for which the launch of the skinny kernel takes longer than
     * reading W */
    TE_SKINNY_LAUNCH_BOUND = 1 << 22,
    /* the smallest k for which the persistent kernel is used; with a smaller k, the prologue of a tile would take too
     * large a share of the time */
    TE_PERSISTENT_MIN_K = 1024,
    TE_PERSISTENT_MIN_WAVES = 4,
    /* the smallest number of waves with which a custom kernel is expected to be faster than cuBLASLt in FP8 */
    TE_FP8_MIN_WAVES = 5,
    /* the smallest number of waves with which a custom kernel is expected to be faster than cuBLASLt in FP8, for a
     * fused pattern that draws random numbers (dropout) */
    TE_FP8_RANDOM_MIN_WAVES = 9,
    TE_OVERLAP_MIN_K = 256,             /* the smallest k for which a GEMM overlaps with a collective */
    TE_OVERLAP_MIN_WAVES = 1,           /* the smallest number of waves of tiles of a GEMM that overlaps with a
                                         * collective */
    /* the largest number of rows for which the small-m kernel is faster than cuBLASLt in FP8 with rowwise scales */
    TE_SMALL_M_PAYING_ROWS = 64,
    TE_PERSISTENT_MIN_K_NO_CUBLASLT = 512
};

/* ---- for which sizes a custom kernel is faster ------------------------------------------------------------------- */

TE_API int64_t te__persistent_tiles(const te_gemm *g) {
    return te_ceil_div(g->m, TE_TILE_M) * te_ceil_div(g->n, TE_TILE_N);
}
/* Returns whether the skinny kernel is expected to be faster than the alternative. The kernel pads k to a multiple of
 * its step (TE_SKINNY_STEP). The skinny kernel is faster if at most 1/8 of the padded k is padding, or if W is so small
 * that the launch dominates the time. In a build without cuBLASLt the skinny kernel always runs where it can. */
TE_API int te__skinny_pays(const te_gemm *g) {
    if (!TE_HAS_CUBLASLT) return te__skinny_can(g);
    const int64_t k = te__skinny_k(g);
    return te__skinny_can(g) && (8 * k >= 7 * te_round_up(k, TE_SKINNY_STEP) || g->n * k <= TE_SKINNY_LAUNCH_BOUND);
}
/* Returns whether the persistent kernel is expected to be faster than the alternative. The persistent kernel is faster
 * if there are enough waves and if k is large enough to amortise a tile's prologue. In FP8 an element of k takes half
 * the time that it takes in 16 bits, so the smallest k for which the kernel is faster is twice as large. In a build
 * without cuBLASLt the alternative is gemm_fallback.h, whose kernels use mma.sync and take nearly twice as long: in
 * such a build half a wave is enough, if D has more rows than one tile. gemm_fallback.h has no kernels for FP8, so in
 * such a build this function returns 1 for every FP8 GEMM. */
TE_API int te__persistent_pays(const te_gemm *g, const te_context *ctx) {
    const int64_t tiles = te__persistent_tiles(g);
    if (!TE_HAS_CUBLASLT)
        return te__gemm_is_fp8(g) || (te__sm90_gemm_k(g) >= TE_PERSISTENT_MIN_K_NO_CUBLASLT && g->m > TE_TILE_M &&
                                     2 * tiles >= ctx->processors);
    return te__sm90_gemm_k(g) >= TE_PERSISTENT_MIN_K && tiles >= TE_PERSISTENT_MIN_WAVES * ctx->processors;
}
/* Returns whether the persistent kernel is expected to be faster for a fused pattern than the alternative. The epilogue
 * is hidden behind the mainloop of the next tile, which in FP8 takes half the time that it takes in 16 bits. So in FP8
 * a fused pattern needs more waves than a GEMM alone, and a pattern that draws random numbers needs still more
 * (docs/notes/gemm.md, "Dispatch"). */
TE_API int te__persistent_fused_pays(te_product_kernels *kernels, const te_gemm *g, const te_context *ctx) {
    const int waves = kernels->is_random ? TE_FP8_RANDOM_MIN_WAVES : TE_FP8_MIN_WAVES;
    return te__persistent_pays(g, ctx) &&
           (!TE_HAS_CUBLASLT || !te__gemm_is_fp8(g) || te__persistent_tiles(g) >= (int64_t)waves * ctx->processors);
}

/* ---- dispatch of a fused pattern, or of a GEMM alone ------------------------------------------------------------- */

TE_API te_sm90_kernel *te__gemm_persistent_of(te_product_kernels *kernels, const te_gemm *g) {
    return te__gemm_is_fp8(g) ? &kernels->persistent_fp8 : &kernels->persistent;
}
TE_API te_sm90_kernel *te__gemm_skinny_of(te_product_kernels *kernels, const te_gemm *g) {
    return te__gemm_is_fp8(g) ? &kernels->skinny_fp8 : &kernels->skinny;
}
TE_API te_sm90_kernel *te__gemm_small_m_of(te_product_kernels *kernels, const te_gemm *g) {
    return te__gemm_is_fp8(g) ? &kernels->small_m_fp8 : &kernels->small_m;
}
/* Returns whether the skinny kernel is available for the GEMM. If so, te__gemm_run_custom launches this kernel. */
TE_API int te__gemm_is_skinny(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    if (!te__skinny_can(g)) return 0;
    if (te__gemm_is_fp8(g) && te__skinny_operands_of(g) != kernels->skinny_fp8_operands) return 0;
    return te__sm90_kernel_ready(te__gemm_skinny_of(kernels, g), TE_SKINNY_SHARED, ctx->device);
}
/* Returns whether the small-m kernel is available for the GEMM. If so, and if the skinny kernel is not available,
 * te__gemm_run_custom launches the small-m kernel. */
TE_API int te__gemm_is_small_m(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    return te__small_m_can(g) && te__tensor_map_encoder(ctx) && te__gemm_state_of(ctx) &&
           te__sm90_kernel_ready(te__gemm_small_m_of(kernels, g), TE_SMALL_M_SHARED, ctx->device);
}
/* Returns whether the skinny or the small-m kernel is available for the GEMM. Neither kernel prefetches the tensors
 * that the epilogue reads, so the epilogue loads them itself. */
TE_API int te__gemm_is_skinny_or_small_m(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    return te__gemm_is_skinny(kernels, g, ctx) || te__gemm_is_small_m(kernels, g, ctx);
}
/* Returns whether the small-m kernel is expected to be faster than cuBLASLt's fastest algorithm. The small-m kernel is
 * faster only with rowwise scales (times: docs/notes/gemm.md). This rule is not used when patterns are autotuned: the
 * small-m kernel is then one of the candidates that are timed (te/linear/impl/linear_autotune.h). */
TE_API int te__small_m_pays(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    return te__gemm_is_small_m(kernels, g, ctx) &&
           (!TE_HAS_CUBLASLT || (g->a_fp8.scaling == TE_SCALING_ROWWISE && g->m <= TE_SMALL_M_PAYING_ROWS));
}
TE_API int te__skinny_or_small_m_pays(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    return (te__gemm_is_skinny(kernels, g, ctx) && te__skinny_pays(g)) || te__small_m_pays(kernels, g, ctx);
}
/* Returns whether one of `kernels` can run the GEMM on this device, with the epilogue for which the kernels were
 * compiled. */
TE_API int te__gemm_can_fuse(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    if (!ctx->gemm_custom || !kernels || g->b_quantized) return 0;
    if (te__gemm_is_skinny_or_small_m(kernels, g, ctx)) return 1;
    return te__sm90_gemm_supports(g) && te__tensor_map_encoder(ctx) && te__gemm_state_of(ctx) &&
           te__sm90_kernel_ready(te__gemm_persistent_of(kernels, g), TE_SM90_GEMM_SMEM_BYTES, ctx->device);
}
/* Returns whether the rules select one custom kernel for a GEMM and the pointwise ops that follow it. */
TE_API int te__gemm_is_fused(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    if (!te__gemm_can_fuse(kernels, g, ctx)) return 0;
    return ctx->gemm_custom > 1 || te__skinny_or_small_m_pays(kernels, g, ctx) ||
           te__persistent_fused_pays(kernels, g, ctx);
}
/* Returns whether a GEMM without pointwise ops is to run as a custom kernel. In 16 bits the persistent kernel is as
 * fast as cuBLASLt's fastest algorithm if B is not transposed and the last wave of tiles has work for all
 * multiprocessors. Otherwise it is only as fast as cuBLASLt's default algorithm (its first proposal), so it is selected
 * only if cuBLASLt's algorithms are not timed and the default would run. In FP8 this rule selects the persistent kernel
 * only for GEMMs that overlap with a collective (g->ranks), and leaves all other GEMMs to cuBLASLt. Times:
 * docs/notes/gemm.md. */
TE_API int te_gemm_is_custom(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    if (!te__gemm_can_fuse(kernels, g, ctx)) return 0;
    if (ctx->gemm_custom > 1 || te__skinny_or_small_m_pays(kernels, g, ctx) || g->ranks) return 1;
    if (!te__persistent_pays(g, ctx) || te__gemm_is_fp8(g)) return 0;
    return (!g->trans_b && te__sm90_gemm_last_wave_is_even(g, ctx)) || !te__gemm_is_timed(g, ctx);
}
/* Returns whether `kernel` is to overlap the GEMM with a collective of this group (gemm_comm_overlap.h). The answer is
 * 1 even for GEMMs that cuBLASLt runs faster, because a collective that is not overlapped costs more time than cuBLASLt
 * saves. But the answer is 0 if D has too few tiles for all multiprocessors. */
TE_API int te__gemm_kernel_overlaps(te_sm90_kernel *kernel, const te_gemm *g, const te_group *group, te_context *ctx) {
    return ctx->gemm_custom && te__sm90_gemm_can_overlap(g, group) && te__tensor_map_encoder(ctx) &&
           te__gemm_state_of(ctx) && te__sm90_kernel_ready(kernel, TE_SM90_GEMM_SMEM_BYTES, ctx->device) &&
           (ctx->gemm_custom > 1 ||
            (te__sm90_gemm_k(g) >= TE_OVERLAP_MIN_K &&
             TE_CLUSTER * te__sm90_gemm_cluster_tiles(g) >= TE_OVERLAP_MIN_WAVES * ctx->processors));
}
TE_API int te__gemm_persistent_overlaps(te_product_kernels *kernels, const te_gemm *g, const te_group *group,
                                       te_context *ctx) {
    return kernels && te__gemm_kernel_overlaps(te__gemm_persistent_of(kernels, g), g, group, ctx);
}
/* Launches a custom kernel for a GEMM for which te__gemm_can_fuse has returned 1. args: the kernel's arguments, of
 * `bytes` bytes, which begin with a union of the parameters of the three kernels. skinny, small_m, persistent: the
 * members of this union; the member for the launched kernel is filled in. */
TE_API te_status te__gemm_run_custom(te_product_kernels *kernels, const void *args, size_t bytes, te_skinny *skinny,
                                     te_small_m *small_m, te__sm90_gemm_params *persistent, const te_gemm *g,
                                     te_context *ctx) {
    if (te__gemm_is_skinny(kernels, g, ctx))
        return te__skinny_run(te__gemm_skinny_of(kernels, g)->kernel, args, bytes, skinny, g, ctx);
    if (te__gemm_is_small_m(kernels, g, ctx))
        return te__small_m_run(te__gemm_small_m_of(kernels, g)->kernel, args, bytes, small_m, g, ctx);
    return te__sm90_gemm_run(te__gemm_persistent_of(kernels, g)->kernel, args, bytes, persistent, g, ctx);
}
/* Returns an error if this build has no kernel for an FP8 GEMM: a build without cuBLASLt can run only those FP8 GEMMs
 * that a custom kernel supports. Called by the dry run of a plan. */
TE_API te_status te__gemm_check_fp8(const te_gemm *g, const char *who, te_context *ctx) {
    te_gemm bare = *g;
    if (g->epilogue == TE_EPILOGUE_BIAS) bare.epilogue = TE_EPILOGUE_NONE;
    const int can = te__sm90_gemm_supports(&bare) || te__skinny_can(&bare) || te__small_m_can(&bare);
    const int custom = ctx->gemm_custom && ctx->capability == 900 && can && (g->beta == 0 || g->beta == 1);
    TE_REQUIRE(TE_HAS_CUBLASLT || !te__gemm_is_fp8(g) || custom, ctx, TE_ERROR_BLAS,
               "%s: an FP8 product %lld x %lld x %lld to %s in a build without cuBLASLt (TE_NO_CUBLASLT), which has "
               "those with scales of tensors and fast accumulation to 16 bits, of a k above %d, and forward those of "
               "%d rows, with scales of tensors or of rows those of %d, on compute capability 9.0", who,
               (long long)g->m, (long long)g->n, (long long)g->k, te_dtype_name(g->out), 6 * TE_TILE_K, TE_SKINNY_ROWS,
               TE_SMALL_M_ROWS);
    return TE_OK;
}

/* ---- an FP8 GEMM alone: the custom kernel with bias and C -------------------------------------------------------- */

typedef struct te_fp8_gemm {
    te__sm90_gemm_params persistent;
    void *d;
    const void *bias, *c; /* bias [n] and c [m, n] are added to the rounded product A B^T; null if there is no bias or
                           * no C */
    int n;
} te_fp8_gemm;

template <te_dtype T>
TE_FN void te_fp8_gemm_epilogue(const void *arg, const uint32_t w[4], const uint32_t *ahead, int row, int col,
                                te_epilogue_state *state) {
    const te_fp8_gemm *p = (const te_fp8_gemm *)arg;
    const int64_t at = (int64_t)row * p->n + col;
    float v[8], more[8];
    te_vec8 e;
    TE_UNROLL for (int i = 0; i < 4; i++) e.w[i] = w[i];
    te_vec8_floats(v, &e, T);
    if (p->bias) {
        te_load8(more, p->bias, col, 8, 1, T);
        TE_UNROLL for (int i = 0; i < 8; i++) v[i] += more[i];
    }
    if (p->c) {
        TE_UNROLL for (int i = 0; i < 4; i++) e.w[i] = ahead[i];
        te_vec8_floats(more, &e, T);
        TE_UNROLL for (int i = 0; i < 8; i++) v[i] += more[i];
    }
    te_store8(p->d, at, v, 8, 1, T);
    (void)state;
}
template <te_dtype T, te_dtype A, te_dtype B>
TE_SM90_GEMM_KERNEL_FP8(te_fp8_gemm_persistent, te_fp8_gemm, T, A, B, 1, te_fp8_gemm_epilogue<T>, 1)
template <te_dtype T, te_dtype A, te_dtype B> TE_API te_product_kernels *te__fp8_kernels(void) {
    static te_product_kernels kernels = {
        {0, 0, 0}, {0, 0, 0}, {(const void *)te_fp8_gemm_persistent<T, A, B>, 0, 0}, 0};
    return &kernels;
}
template <te_dtype T> TE_API te_product_kernels *te__fp8_kernels_to(const te_gemm *g) {
    if (g->a_fp8.dtype == TE_e5m2) return te__fp8_kernels<T, TE_e5m2, TE_e4m3>();
    return g->b_fp8.dtype == TE_e5m2 ? te__fp8_kernels<T, TE_e4m3, TE_e5m2>() : te__fp8_kernels<T, TE_e4m3, TE_e4m3>();
}
/* Returns the custom kernels for an FP8 GEMM of g's dtypes. TE_IF_USED turns this function into a template, so that a
 * program that does not call this function does not contain these kernels. */
TE_IF_USED TE_API te_product_kernels *te__gemm_fp8_kernels(const te_gemm *g) {
    return g->dtype == TE_bf16 ? te__fp8_kernels_to<TE_bf16>(g) : te__fp8_kernels_to<TE_f16>(g);
}

/* Returns GEMM g without its bias, which te_fp8_gemm_epilogue adds. */
TE_API te_gemm te__fp8_without_bias(const te_gemm *g) {
    te_gemm bare = *g;
    if (g->epilogue == TE_EPILOGUE_BIAS) bare.epilogue = TE_EPILOGUE_NONE;
    return bare;
}
TE_IF_USED TE_API te_status te__fp8_run_custom(const te_gemm *g, te_context *ctx) {
    const te_gemm bare = te__fp8_without_bias(g);
    te_fp8_gemm p;
    memset(&p, 0, sizeof p);
    p.d = g->d, p.n = (int)g->n, p.c = p.persistent.source = g->beta != 0 ? g->c : 0;
    p.bias = g->epilogue == TE_EPILOGUE_BIAS ? g->bias : 0;
    return te__sm90_gemm_run(te__gemm_fp8_kernels(g)->persistent_fp8.kernel, &p, sizeof p, &p.persistent, &bare, ctx);
}

/* ---- an FP8 GEMM alone: dispatch --------------------------------------------------------------------------------- */

/* Returns whether the custom kernel supports this FP8 GEMM, including its bias and beta. */
TE_IF_USED TE_API int te__fp8_can(const te_gemm *g, te_context *ctx) {
    const te_gemm bare = te__fp8_without_bias(g);
    return te__gemm_is_fp8(g) && te__sm90_gemm_supports(&bare) && (g->beta == 0 || g->beta == 1) &&
           te__gemm_can_fuse(te__gemm_fp8_kernels(g), &bare, ctx);
}
/* Returns whether the custom kernel is expected to be faster than cuBLASLt for an FP8 GEMM that was not timed: with at
 * least TE_FP8_MIN_WAVES waves it is faster than the algorithm that cuBLASLt proposes first (times:
 * docs/notes/gemm.md). */
TE_API int te__fp8_pays(const te_gemm *g, te_context *ctx) {
    if (!TE_HAS_CUBLASLT) return 1;
    return g->k >= TE_PERSISTENT_MIN_K && !te__gemm_is_timed(g, ctx) &&
           te__sm90_gemm_cluster_tiles(g) >= (int64_t)TE_FP8_MIN_WAVES * (ctx->processors / TE_CLUSTER);
}
/* Return the key under which the choice of a kernel for this GEMM is stored in the context and in a tuning file. The
 * choice is stored as a strategy: TE_STRATEGY_BARE stands for cuBLASLt, TE_STRATEGY_CUSTOM for the custom kernel. */
TE_API te_gemm_choice te__fp8_choice_key(const te_gemm *g) {
    const te_gemm_tuned t = te__gemm_tuned_of(g);
    const te__operands_text text = te__operands_text_of(&t);
    te_gemm_choice c;
    memset(&c, 0, sizeof c);
    memcpy(c.pattern, text.text, strlen(text.text));
    c.m = g->m, c.n = g->n, c.k = g->k, c.dtype = g->dtype, c.strategy = TE_STRATEGY_BARE;
    c.stored_outputs = (unsigned)(g->beta != 0) | (unsigned)(g->epilogue == TE_EPILOGUE_BIAS) << 1;
    return c;
}
/* Returns which kernel runs an FP8 GEMM that the custom kernel supports: 1 for the custom kernel, 0 for cuBLASLt, -1 if
 * neither gemm_custom nor a timing decides this, so that a rule must decide. */
TE_API int te__fp8_choice(const te_gemm *g, te_context *ctx) {
    if (ctx->gemm_custom > 1) return 1;
    const te_gemm_choice c = te__fp8_choice_key(g), *found = te__gemm_find_choice(&c, ctx);
    return found ? found->strategy == TE_STRATEGY_CUSTOM : -1;
}
/* Returns whether te_gemm_fp8_run runs this GEMM by the custom kernel. */
TE_IF_USED TE_API int te__gemm_fp8_is_custom(const te_gemm *g, te_context *ctx) {
    const int can = te__fp8_can(g, ctx), choice = can ? te__fp8_choice(g, ctx) : 0;
    return choice < 0 ? te__fp8_pays(g, ctx) : choice;
}

/* ---- an FP8 GEMM alone: autotuning ------------------------------------------------------------------------------- */

/* The type of a function that runs an FP8 GEMM by a custom kernel. */
typedef te_status (*te__fp8_custom_fn)(const te_gemm *g, te_context *ctx);
/* The two candidates that are timed for an FP8 GEMM: number 0 is cuBLASLt, number 1 the custom kernel. */
typedef struct te__fp8_trial { te_gemm gemm; te__fp8_custom_fn custom; } te__fp8_trial;
TE_IF_USED TE_API te_status te__fp8_trial_run(void *arg, int candidate, int repeat, te_context *ctx) {
    const te__fp8_trial *t = (const te__fp8_trial *)arg;
    (void)repeat;
    return candidate ? t->custom(&t->gemm, ctx) : te_gemm_run(&t->gemm, ctx);
}
/* Points g's operands at scratch memory that begins at `base`. Returns the number of bytes that the operands take. */
TE_API size_t te__fp8_trial_layout(te_gemm *g, char *base) {
    const int arrays = te__gemm_has_scale_arrays(g);
    const int64_t scales_a = arrays ? te_scaling_count(g->a_fp8.scaling, g->m, g->k) : 0;
    const int64_t scales_b = arrays ? te_scaling_count(g->b_fp8.scaling, g->n, g->k) : 0;
    const int64_t at_b = te_round_up(g->m * g->k, TE_ALIGN), at_d = at_b + te_round_up(g->n * g->k, TE_ALIGN);
    const int64_t at_bias = at_d + te_round_up(g->m * g->n * (int64_t)te_dtype_bytes(g->out), TE_ALIGN);
    const int64_t at_a_scales = at_bias + te_round_up(g->n * (int64_t)te_dtype_bytes(g->dtype), TE_ALIGN);
    const int64_t at_b_scales = at_a_scales + te_round_up(scales_a * 4, TE_ALIGN);
    g->a = base, g->b = base + at_b, g->c = g->d = base + at_d, g->bias = base + at_bias;
    g->a_fp8.inverse = arrays ? (const float *)(void *)(base + at_a_scales) : 0;
    g->b_fp8.inverse = arrays ? (const float *)(void *)(base + at_b_scales) : 0;
    return (size_t)(at_b_scales + scales_b * 4);
}
TE_IF_USED TE_API te_status te__fp8_trial_fill(const te_gemm *g, size_t bytes, te_context *ctx) {
    const char *scales = (const char *)g->a_fp8.inverse, *end = (const char *)g->a + bytes;
    TE_TRY(te_fill_normal((void *)(uintptr_t)g->a, g->a_fp8.dtype, g->m * g->k, 0.0f, 1.0f, 1, 0, ctx));
    TE_TRY(te_fill_normal((void *)(uintptr_t)g->b, g->b_fp8.dtype, g->n * g->k, 0.0f, 1.0f, 1, 1, ctx));
    TE_TRY(te_fill_normal(g->d, g->out, g->m * g->n, 0.0f, 1.0f, 1, 2, ctx));
    TE_TRY(te_fill_normal((void *)(uintptr_t)g->bias, g->dtype, g->n, 0.0f, 1.0f, 1, 3, ctx));
    if (!scales) return TE_OK;
    return te_fill_normal((void *)(uintptr_t)scales, TE_f32, (end - scales) / 4, 1.0f, 0.1f, 1, 4, ctx);
}
/* Times cuBLASLt's fastest algorithm and the custom kernel on scratch memory, and stores in the context which of the
 * two is faster. */
TE_IF_USED TE_API te_status te__fp8_time(te_gemm_choice *c, const te_gemm *of, te__fp8_custom_fn custom,
                                         te_context *ctx) {
    te__fp8_trial t = {*of, custom};
    const size_t bytes = te__fp8_trial_layout(&t.gemm, (char *)(uintptr_t)TE_ALIGN);
    int64_t ns[2] = {0, 0};
    int winner = -1;
    void *memory = 0;
    char error[sizeof ctx->error];
    memcpy(error, ctx->error, sizeof error);
    te_status status = te_allocate(ctx, &memory, bytes);
    (void)te__fp8_trial_layout(&t.gemm, (char *)memory);
    if (status == TE_OK) status = te__fp8_trial_fill(&t.gemm, bytes, ctx);
    /* this first call makes cuBLASLt's plan time its algorithms and choose the fastest */
    if (status == TE_OK) status = te_gemm_run(&t.gemm, ctx);
    if (status == TE_OK)
        status = te__autotune(ns, &winner, 2, 1, TE__AUTOTUNE_ROUNDS, te__fp8_trial_run<>, &t, ctx);
    te_release(ctx, memory);
    if (status != TE_OK && status != TE_ERROR_MEMORY) return status;
    memcpy(ctx->error, error, sizeof error);
    c->strategy = winner == 1 ? TE_STRATEGY_CUSTOM : TE_STRATEGY_BARE;
    c->ns[TE_STRATEGY_BARE] = ns[0], c->ns[TE_STRATEGY_CUSTOM] = ns[1];
    te__gemm_store_choice(c, ctx);
    return TE_OK;
}
/* If tuning is on, times cuBLASLt and the custom kernel at the first call for a GEMM. Later calls find the choice in
 * the context, and time nothing. */
TE_IF_USED TE_API te_status te__fp8_tune(const te_gemm *g, te__fp8_custom_fn custom, te_context *ctx) {
#if TE_HAS_AUTOTUNE
    if (ctx->gemm_custom != 1 || !te__gemm_may_time(ctx)) return TE_OK;
    te_gemm_choice c = te__fp8_choice_key(g);
    if (te__gemm_find_choice(&c, ctx)) return TE_OK;
    const int open = te__launch_is_recording(ctx);
    TE_TRY(te__launch_record_end(ctx, TE_OK));
    TE_TRY(te__fp8_time(&c, g, custom, ctx));
    if (open) te__launch_record_begin(ctx);
    return TE_OK;
#else
    return (void)g, (void)custom, (void)ctx, TE_OK;
#endif
}
/* Runs an FP8 GEMM by cuBLASLt or by the custom kernel: by the faster one if both were timed, else by the one that a
 * rule expects to be faster (gemm.h). */
TE_IF_USED TE_API te_status te_gemm_fp8_run(const te_gemm *g, te_context *ctx) {
    TE_TRY(te__gemm_check_run(g, "te_gemm_fp8_run", ctx));
    TE_TRY(te__gemm_check_fp8(g, "te_gemm_fp8_run", ctx));
    if (te__fp8_can(g, ctx)) TE_TRY(te__fp8_tune(g, te__fp8_run_custom<>, ctx));
    return te__gemm_fp8_is_custom(g, ctx) ? te__fp8_run_custom(g, ctx) : te_gemm_run(g, ctx);
}

#else /* no custom kernels */
typedef struct te_product_kernels te_product_kernels;
TE_API int te__gemm_can_fuse(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    return (void)kernels, (void)g, (void)ctx, 0;
}
TE_API int te__gemm_is_fused(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    return te__gemm_can_fuse(kernels, g, ctx);
}
TE_API int te_gemm_is_custom(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    return te__gemm_can_fuse(kernels, g, ctx);
}
TE_API int te__gemm_persistent_overlaps(te_product_kernels *kernels, const te_gemm *g, const te_group *group,
                                       te_context *ctx) {
    return (void)kernels, (void)g, (void)group, (void)ctx, 0;
}
TE_API te_status te__gemm_check_fp8(const te_gemm *g, const char *who, te_context *ctx) {
#ifdef TE_NO_CUBLASLT
    TE_REQUIRE(!TE_CUDA || !te__gemm_is_fp8(g), ctx, TE_ERROR_BLAS,
               "%s: an FP8 product %lld x %lld x %lld in a build with neither cuBLASLt nor custom kernels", who,
               (long long)g->m, (long long)g->n, (long long)g->k);
#endif
    return (void)g, (void)who, (void)ctx, TE_OK;
}
TE_API int te__gemm_fp8_is_custom(const te_gemm *g, te_context *ctx) { return (void)g, (void)ctx, 0; }
TE_IF_USED TE_API te_status te_gemm_fp8_run(const te_gemm *g, te_context *ctx) { return te_gemm_run(g, ctx); }
#endif

#endif
