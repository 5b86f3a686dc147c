/* gemm_choose.h -- who runs a matrix product: the one place where that is decided.
 *
 * There are cuBLASLt (gemm_cuda.h; what of its candidates is fastest is gemm_tune.h's), and on compute capability 9.0
 * three kernels of our own: gemm_few.h up to eight rows of a tensor, for 16 bits and FP8; gemm_narrow.h for 9 to 128 in
 * a forward, for 16 bits and FP8 with scales of tensors or of rows; gemm_hopper.h for any number of rows, for 16 bits
 * and FP8 with scales of tensors and fast accumulation. All run a chain of maps as their epilogue. Products with scales
 * of tiles have two without one (gemm_hopper_scaled_run.h). What cuBLASLt and a kernel behind it may share of a row
 * (te_split) is fuse/linear_split.h's. In a build without cuBLASLt (TE_NO_CUBLASLT) gemm_plain.h is in its place, and
 * ours pay much sooner. ctx->gemm_own: 0 never ours, 1 where the rules below say that it pays, 2 wherever it can be.
 */
#ifndef TE_GEMM_CHOOSE_H
#define TE_GEMM_CHOOSE_H

#include "gemm.h" /* te_gemm_run */

#if TE_CUDA && !defined(TE_KEEP_CALLS) /* sums of our kernels stay in registers only where all is inlined */
#include "gemm_few.h"        /* te__few_can */
#include "gemm_hopper_run.h" /* te__hopper_can */
#include "gemm_narrow_run.h" /* te__narrow_can */

/* Whether there are kernels for 9 to 128 rows in 16 bits. Beside cuBLASLt they would cost a GPT block a quarter more
 * code and hardly ever win; a program that wants them raced, or a test, says 1. */
#ifndef TE_NARROW_SIXTEEN
#define TE_NARROW_SIXTEEN (!TE_HAS_CUBLASLT)
#endif

/* The kernels of a row, or of a product by itself. */
typedef struct te_product_kernels {
    te_hopper_kernel many, few, fp8, few_fp8; /* the last two: with operands in FP8 */
    te_few_form few_form;                     /* of few_fp8 */
    te_hopper_kernel narrow, narrow_fp8;      /* the last: with scales of tensors or of rows */
    int draws;                                /* the row draws random numbers */
} te_product_kernels;

enum {
    TE_FEW_SMALL = 1 << 22,       /* elements of 16 bits of a weight so small that the launch is what counts */
    TE_HOPPER_LEAST_K = 1024,     /* worth the start of a tile */
    TE_HOPPER_LEAST_ROUNDS = 4,   /* of tiles on all multiprocessors */
    TE_FP8_LEAST_ROUNDS = 5,      /* the same for a row with operands in FP8, */
    TE_FP8_LEAST_DRAWING = 9,     /* and one that draws random numbers */
    TE_OVERLAP_LEAST_K = 256,     /* beside a collective: */
    TE_OVERLAP_LEAST_ROUNDS = 1,
    TE_NARROW_MOST_ROWS = 64,     /* beside cuBLASLt, with scales of rows */
    TE_PLAIN_LEAST_K = 512        /* beside gemm_plain.h, with tiles for half of the multiprocessors */
};

/* ---- what pays --------------------------------------------------------------------------------------------------- */

/* Few rows: no steps of k that are half empty, or so little to read that the launch is what counts. */
TE_API int te__few_pays(const te_gemm *g) {
    if (!TE_HAS_CUBLASLT) return te__few_can(g);
    const int64_t k = te__few_k(g);
    return te__few_can(g) && (8 * k >= 7 * te_round_up(k, TE_FEW_STEP) || g->n * k <= TE_FEW_SMALL);
}
/* Many rows: tiles for four rounds of all multiprocessors, and a k that is worth the start; in FP8, which takes half
 * the time, twice that k. Beside gemm_plain.h, whose tensor cores take nearly twice as long, tiles for half of the
 * multiprocessors, and more rows than one tile has; in FP8 there is nobody else. */
TE_API int te__hopper_pays(const te_gemm *g, const te_context *ctx) {
    const int64_t tiles = te_ceil_div(g->m, TE_TILE_M) * te_ceil_div(g->n, TE_TILE_N);
    if (!TE_HAS_CUBLASLT)
        return te_gemm_is_fp8(g) ||
               (te__hopper_k(g) >= TE_PLAIN_LEAST_K && g->m > TE_TILE_M && 2 * tiles >= ctx->processors);
    return te__hopper_k(g) >= TE_HOPPER_LEAST_K && tiles >= TE_HOPPER_LEAST_ROUNDS * ctx->processors;
}

/* The same for a row. In FP8 an epilogue has half the time beside a tile's product, so a row that draws random numbers
 * needs more rounds. As one kernel and as a product with a chain behind it, us on an H200 with 8192 rows: 4096 to 12288
 * (23 rounds) linear_bias 651 and 668; 4096 to 4096 (7.8 rounds) linear_bias_dropout_add 337 and 268. In a GPT's layer
 * of four ranks, on H100s: 4096 to 3072 (5.8 rounds) linear_bias 151 and 155; 4096 to 4096 linear_bias_gelu 205 and
 * 243, its backward with the transpose 239 and 292. */
TE_API int te__hopper_row_pays(te_product_kernels *kernels, const te_gemm *g, const te_context *ctx) {
    const int64_t tiles = te_ceil_div(g->m, TE_TILE_M) * te_ceil_div(g->n, TE_TILE_N);
    const int least = kernels->draws ? TE_FP8_LEAST_DRAWING : TE_FP8_LEAST_ROUNDS;
    return te__hopper_pays(g, ctx) &&
           (!TE_HAS_CUBLASLT || !te_gemm_is_fp8(g) || tiles >= (int64_t)least * ctx->processors);
}

/* ---- what can be, and is ----------------------------------------------------------------------------------------- */

TE_API te_hopper_kernel *te__gemm_many(te_product_kernels *kernels, const te_gemm *g) {
    return te_gemm_is_fp8(g) ? &kernels->fp8 : &kernels->many;
}
TE_API te_hopper_kernel *te__gemm_few(te_product_kernels *kernels, const te_gemm *g) {
    return te_gemm_is_fp8(g) ? &kernels->few_fp8 : &kernels->few;
}
TE_API int te__gemm_is_few(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    if (!te__few_can(g) || (te_gemm_is_fp8(g) && te__few_form_of(g) != kernels->few_form)) return 0;
    return te__hopper_ready(te__gemm_few(kernels, g), TE_FEW_SHARED, ctx->device);
}
TE_API te_hopper_kernel *te__gemm_narrow(te_product_kernels *kernels, const te_gemm *g) {
    return te_gemm_is_fp8(g) ? &kernels->narrow_fp8 : &kernels->narrow;
}
TE_API int te__gemm_is_narrow(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    return te__narrow_can(g) && te__encode_of(ctx) && te__gemm_state_of(ctx) &&
           te__hopper_ready(te__gemm_narrow(kernels, g), TE_NARROW_SHARED, ctx->device);
}
/* Whether the kernel that takes it is one whose epilogue loads what it reads. */
TE_API int te__gemm_is_light(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    return te__gemm_is_few(kernels, g, ctx) || te__gemm_is_narrow(kernels, g, ctx);
}
/* Whether the kernel for 9 to 128 rows pays. Beside cuBLASLt's fastest candidate only in FP8 with scales of rows
 * (gemm_narrow.h has both times); where rows are tuned it is timed with the others (fuse/linear_choose.h). */
TE_API int te__narrow_pays(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    return te__gemm_is_narrow(kernels, g, ctx) &&
           (!TE_HAS_CUBLASLT || (g->a_fp8.scaling == TE_SCALING_ROW && g->m <= TE_NARROW_MOST_ROWS));
}
/* Whether there is one of these kernels for it, and pays. */
TE_API int te__light_pays(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    return (te__gemm_is_few(kernels, g, ctx) && te__few_pays(g)) || te__narrow_pays(kernels, g, ctx);
}
/* Whether one of the kernels takes the product here. */
TE_API int te_gemm_can_row(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    if (!ctx->gemm_own || !kernels) return 0;
    if (te__gemm_is_light(kernels, g, ctx)) return 1;
    return te__hopper_can(g) && te__encode_of(ctx) && te__gemm_state_of(ctx) &&
           te__hopper_ready(te__gemm_many(kernels, g), TE_HOPPER_SHARED, ctx->device);
}
/* Whether a product and the maps behind it are one kernel of ours. */
TE_API int te_gemm_is_own_row(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    if (!te_gemm_can_row(kernels, g, ctx)) return 0;
    return ctx->gemm_own > 1 || te__light_pays(kernels, g, ctx) || te__hopper_row_pays(kernels, g, ctx);
}
/* Whether a product by itself is a kernel of ours. Of many rows with B across and an even last round, in turns with
 * PyTorch's, 0.92 to 0.99 of its time, and 0.99 to 1.02 of cuBLASLt's fastest candidate's (1.00 of both where it is not
 * even: 8192 x 4096 x 4096); with B as it lies the same as the first candidate, but 1.00 to 1.05 of the fastest. In FP8
 * ours is there to overlap a collective (g->ranks): by itself such a product is cuBLASLt's. */
TE_API int te_gemm_is_bare(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    if (!te_gemm_can_row(kernels, g, ctx)) return 0;
    if (ctx->gemm_own > 1 || te__light_pays(kernels, g, ctx) || g->ranks) return 1;
    if (!te__hopper_pays(g, ctx) || te_gemm_is_fp8(g)) return 0;
    return (!g->trans_b && te__hopper_is_even(g, ctx)) || !te__gemm_is_timed(g, ctx);
}
/* Whether `kernel` runs the product beside a collective of this group (gemm_ranks.h). It need not be the fastest one: a
 * collective by itself costs more than what cuBLASLt is ahead. Not where there are no tiles for all multiprocessors. */
TE_API int te_gemm_overlaps(te_hopper_kernel *kernel, const te_gemm *g, const te_group *group, te_context *ctx) {
    return ctx->gemm_own && te__hopper_can_overlap(g, group) && te__encode_of(ctx) && te__gemm_state_of(ctx) &&
           te__hopper_ready(kernel, TE_HOPPER_SHARED, ctx->device) &&
           (ctx->gemm_own > 1 || (te__hopper_k(g) >= TE_OVERLAP_LEAST_K &&
                                  TE_CLUSTER * te__hopper_tiles(g) >= TE_OVERLAP_LEAST_ROUNDS * ctx->processors));
}
TE_API int te_gemm_many_overlaps(te_product_kernels *bare, const te_gemm *g, const te_group *group, te_context *ctx) {
    return bare && te_gemm_overlaps(te__gemm_many(bare, g), g, group, ctx);
}
/* Launch it; `args` begin with `few`, `narrow` or `many`. */
TE_API te_status te__gemm_run_own(te_product_kernels *kernels, const void *args, size_t bytes, te_few *few,
                                  te_narrow *narrow, te_hopper *many, const te_gemm *g, te_context *ctx) {
    if (te__gemm_is_few(kernels, g, ctx))
        return te__few_run(te__gemm_few(kernels, g)->kernel, args, bytes, few, g, ctx);
    if (te__gemm_is_narrow(kernels, g, ctx))
        return te__narrow_run(te__gemm_narrow(kernels, g)->kernel, args, bytes, narrow, g, ctx);
    return te__hopper_run(te__gemm_many(kernels, g)->kernel, args, bytes, many, g, ctx);
}
/* Whether somebody takes this product in FP8: without cuBLASLt, the kernel of our own. For the dry walk. */
TE_API te_status te_gemm_check_fp8(const te_gemm *g, const char *who, te_context *ctx) {
    te_gemm bare = *g;
    if (g->epilogue == TE_EPILOGUE_BIAS) bare.epilogue = TE_EPILOGUE_NONE;
    const int can = te__hopper_can(&bare) || te__few_can(&bare) || te__narrow_can(&bare);
    const int own = ctx->gemm_own && ctx->capability == 900 && can && (g->beta == 0 || g->beta == 1);
    TE_REQUIRE(TE_HAS_CUBLASLT || !te_gemm_is_fp8(g) || own, ctx, TE_ERROR_BLAS,
               "%s: an FP8 product %lld x %lld x %lld to %s in a build without cuBLASLt (TE_NO_CUBLASLT), which has "
               "those with scales of tensors and fast accumulation to 16 bits, of a k above %d, and forward those of "
               "%d rows, with scales of tensors or of rows those of %d, on compute capability 9.0", who,
               (long long)g->m, (long long)g->n, (long long)g->k, te_dtype_name(g->out), 6 * TE_TILE_K, TE_FEW_ROWS,
               TE_NARROW_ROWS);
    return TE_OK;
}

#else /* there are none of our own */
typedef struct te_product_kernels te_product_kernels;
TE_API int te_gemm_can_row(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    return (void)kernels, (void)g, (void)ctx, 0;
}
TE_API int te_gemm_is_own_row(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    return te_gemm_can_row(kernels, g, ctx);
}
TE_API int te_gemm_is_bare(te_product_kernels *kernels, const te_gemm *g, te_context *ctx) {
    return te_gemm_can_row(kernels, g, ctx);
}
TE_API int te_gemm_many_overlaps(te_product_kernels *bare, const te_gemm *g, const te_group *group, te_context *ctx) {
    return (void)bare, (void)g, (void)group, (void)ctx, 0;
}
TE_API te_status te_gemm_check_fp8(const te_gemm *g, const char *who, te_context *ctx) {
#ifdef TE_NO_CUBLASLT
    TE_REQUIRE(!TE_CUDA || !te_gemm_is_fp8(g), ctx, TE_ERROR_BLAS,
               "%s: an FP8 product %lld x %lld x %lld in a build with neither cuBLASLt nor kernels of our own", who,
               (long long)g->m, (long long)g->n, (long long)g->k);
#endif
    return (void)g, (void)who, (void)ctx, TE_OK;
}
#endif

#endif
