/* gemm_types.h -- a matrix product as data, and what tuning remembers of it (gemm.h). */
#ifndef TE_GEMM_TYPES_H
#define TE_GEMM_TYPES_H

#include "../core/target.h"      /* te_context, te_check_target */
#include "../fp8/fp8_scaling.h"  /* te_scaling */
#include "gemm_ranks.h"          /* te_gemm_ranks */

/* X(name, text): what a product can do at its end. */
#define TE_EPILOGUES(X)                                                                  \
    X(NONE, "none")                                                                      \
    X(BIAS, "bias")           /* + bias[n] */                                            \
    X(GELU_BIAS, "gelu_bias") /* gelu_tanh(. + bias[n]) */                               \
    X(GELU_AUX_BIAS, "gelu_aux_bias") /* the same, and aux[m, n] gets what went into the gelu */
#define TE_EPILOGUE_ENUM(name, text) TE_EPILOGUE_##name,
typedef enum te_epilogue { TE_EPILOGUES(TE_EPILOGUE_ENUM) TE_EPILOGUE_COUNT } te_epilogue;
#undef TE_EPILOGUE_ENUM

TE_API const char *te_epilogue_name(te_epilogue e) {
#define TE_EPILOGUE_TEXT(name, text) text,
    static const char *const names[] = {TE_EPILOGUES(TE_EPILOGUE_TEXT)};
#undef TE_EPILOGUE_TEXT
    return (unsigned)e < (unsigned)TE_EPILOGUE_COUNT ? names[e] : "unknown epilogue";
}

/* An operand's own format. */
typedef struct te_gemm_fp8 {
    te_scaling scaling;
    te_dtype dtype;       /* e4m3 or e5m2 */
    const float *inverse; /* 1 / scale, as `scaling` says; target memory, at a multiple of TE_ACCESS bytes; null: 1, of
                           * a tensor */
} te_gemm_fp8;

typedef struct te_gemm {
    int64_t m, n, k;      /* D is [m, n] */
    int trans_a, trans_b; /* A is stored [m, k], or [k, m] if trans_a; B [k, n], or [n, k] if trans_b */
    te_dtype dtype, out;  /* of A and B if they are not in FP8, of bias and aux; of C and D: dtype, or f32 */
    te_gemm_fp8 a_fp8, b_fp8; /* both or neither: A is then [m, k], B [n, k], and D = alpha inverse_a inverse_b A B^T */
    int fast; /* FP8: sums stay in the tensor cores, which keep 14 bits of them (fast accumulation), else in float; with
               * scales of tiles each 128 of k are added up in float, whatever this says */
    const void *a, *b, *c;
    void *d;
    float alpha, beta; /* C may be D; C is not read if beta is 0 */
    te_epilogue epilogue;
    const void *bias;
    void *aux;
    float *scratch; /* host: te_gemm_scratch() floats; target memory of the workspace */
    const struct te_gemm_ranks *ranks; /* a kernel of our own overlaps a collective (gemm_ranks.h); null: none does */
} te_gemm;

TE_API te_gemm te_gemm_of(int64_t m, int64_t n, int64_t k) {
    te_gemm g;
    memset(&g, 0, sizeof g);
    g.m = m, g.n = n, g.k = k, g.alpha = 1.0f;
    return g;
}

TE_API int te_gemm_is_fp8(const te_gemm *g) {
    return g->a_fp8.scaling != TE_SCALING_NONE || g->b_fp8.scaling != TE_SCALING_NONE;
}
/* Whether its scales are finer than of a tensor: of rows, tiles or blocks. */
TE_API int te_gemm_is_fine_grained(const te_gemm *g) {
    return g->a_fp8.scaling > TE_SCALING_TENSOR || g->b_fp8.scaling > TE_SCALING_TENSOR;
}
TE_API te_dtype te__gemm_a(const te_gemm *g) { return g->a_fp8.scaling != TE_SCALING_NONE ? g->a_fp8.dtype : g->dtype; }
TE_API te_dtype te__gemm_b(const te_gemm *g) { return g->b_fp8.scaling != TE_SCALING_NONE ? g->b_fp8.dtype : g->dtype; }

/* The scales of A and of B that go together: (tensor, tensor), (row, row), (1x128, 128x128), (1x128, 1x128). */
TE_API int te__scalings_fit(te_scaling a, te_scaling b) {
    return a == b ? a == TE_SCALING_TENSOR || a == TE_SCALING_ROW || a == TE_SCALING_TILES
                  : a == TE_SCALING_TILES && b == TE_SCALING_BLOCKS;
}
/* Refuses scales of rows, tiles and blocks that no back end has. */
TE_API te_status te__gemm_check_scaling(const te_gemm *g, const char *who, te_context *ctx) {
    const te_scaling a = g->a_fp8.scaling, b = g->b_fp8.scaling;
    TE_REQUIRE(te__scalings_fit(a, b), ctx, TE_ERROR_VALUE,
               "%s: an FP8 product with scales of %s and %s; there are tensor by tensor, row by row, 1x128 by 128x128 "
               "and 1x128 by 1x128", who, te_scaling_name(a), te_scaling_name(b));
    TE_REQUIRE(!te_gemm_is_fine_grained(g) || g->epilogue == TE_EPILOGUE_NONE ||
                   (g->epilogue == TE_EPILOGUE_BIAS && b == TE_SCALING_BLOCKS), ctx, TE_ERROR_VALUE,
               "%s: an FP8 product with scales of %s takes no epilogue %s along", who, te_scaling_name(a),
               te_epilogue_name(g->epilogue));
    TE_REQUIRE(!TE_CUDA || !te_gemm_is_fine_grained(g) || ctx->capability == 900, ctx, TE_ERROR_DEVICE,
               "%s: FP8 products with scales of %s need compute capability 9.0; device %d has %d.%d", who,
               te_scaling_name(a), ctx->device, ctx->capability / 100, ctx->capability / 10 % 10);
    return TE_OK;
}

/* Refuses products in FP8 that no back end has; the others pass. For the dry walk; te_gemm_run calls it, too. who: the
 * op or the call, for the text. */
TE_API te_status te_gemm_check(const te_gemm *g, const char *who, te_context *ctx) {
    const te_dtype a = te__gemm_a(g), b = te__gemm_b(g);
    TE_REQUIRE((unsigned)g->dtype <= (unsigned)TE_f16 && (g->out == g->dtype || g->out == TE_f32), ctx, TE_ERROR_DTYPE,
               "%s: a product of %s to %s; an operand in FP8 says so in a_fp8 or b_fp8", who, te_dtype_name(g->dtype),
               te_dtype_name(g->out));
    if (!te_gemm_is_fp8(g)) return TE_OK;
    TE_REQUIRE(te_is_fp8(a) && te_is_fp8(b) && !(a == TE_e5m2 && b == TE_e5m2), ctx, TE_ERROR_DTYPE,
               "%s: a product of %s and %s; both must be in FP8, and one of them e4m3", who, te_dtype_name(a),
               te_dtype_name(b));
    TE_REQUIRE(!g->trans_a && g->trans_b, ctx, TE_ERROR_SHAPE,
               "%s: a product in FP8 takes A as [m, k] and B as [n, k]; store the transposed operand", who);
    TE_REQUIRE(g->n % 16 == 0 && g->k % 16 == 0, ctx, TE_ERROR_SHAPE,
               "%s: an FP8 product %lld x %lld x %lld; n and k, the last two, must be multiples of 16", who,
               (long long)g->m, (long long)g->n, (long long)g->k);
    TE_REQUIRE((uintptr_t)g->a_fp8.inverse % TE_ACCESS == 0 && (uintptr_t)g->b_fp8.inverse % TE_ACCESS == 0, ctx,
               TE_ERROR_ALIGNMENT, "%s: a scale of an FP8 product does not lie at a multiple of %d bytes", who,
               (int)TE_ACCESS);
    TE_REQUIRE(!TE_CUDA || ctx->capability >= 890, ctx, TE_ERROR_DEVICE,
               "%s: FP8 products need compute capability 8.9; device %d has %d.%d", who, ctx->device,
               ctx->capability / 100, ctx->capability / 10 % 10);
    return te__gemm_check_scaling(g, who, ctx);
}

TE_API int te__gemm_apart(const te_gemm *g, const void *operand, int64_t elements, te_dtype dtype) {
    const uintptr_t d = (uintptr_t)g->d, p = (uintptr_t)operand;
    return d + (size_t)(g->m * g->n) * te_dtype_bytes(g->out) <= p ||
           p + (size_t)elements * te_dtype_bytes(dtype) <= d;
}
/* What a caller can have got wrong beside: te_gemm_run and te_gemm_fp8_run begin with it. */
TE_API te_status te__gemm_check_run(const te_gemm *g, const char *who, te_context *ctx) {
    TE_TRY(te_check_target(ctx, who));
    TE_REQUIRE(g, ctx, TE_ERROR_NULL, "%s: the product is null", who);
    TE_REQUIRE((unsigned)g->epilogue < (unsigned)TE_EPILOGUE_COUNT, ctx, TE_ERROR_VALUE, "%s: epilogue %d", who,
               (int)g->epilogue);
    TE_REQUIRE(g->a && g->b && g->d && (g->c || g->beta == 0) && (g->bias || g->epilogue == TE_EPILOGUE_NONE) &&
                   (g->aux || g->epilogue != TE_EPILOGUE_GELU_AUX_BIAS), ctx, TE_ERROR_NULL,
               "%s: an operand of the product is null", who);
    TE_REQUIRE(g->m >= 0 && g->n >= 0 && g->k >= 0, ctx, TE_ERROR_SHAPE, "%s: a product %lld x %lld x %lld", who,
               (long long)g->m, (long long)g->n, (long long)g->k);
    TE_REQUIRE(g->m <= INT32_MAX && g->n <= INT32_MAX && g->k <= INT32_MAX, ctx, TE_ERROR_OVERFLOW,
               "%s: a product %lld x %lld x %lld", who, (long long)g->m, (long long)g->n, (long long)g->k);
    TE_TRY(te_gemm_check(g, who, ctx));
    TE_REQUIRE(!te_gemm_is_fine_grained(g) || (g->a_fp8.inverse && g->b_fp8.inverse), ctx, TE_ERROR_NULL,
               "%s: an FP8 product with scales of %s has none", who, te_scaling_name(g->a_fp8.scaling));
    TE_REQUIRE(((uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->c | (uintptr_t)g->d) % TE_ACCESS == 0, ctx,
               TE_ERROR_ALIGNMENT, "%s: a matrix does not start at a multiple of %d bytes", who, (int)TE_ACCESS);
    TE_REQUIRE(te__gemm_apart(g, g->a, g->m * g->k, te__gemm_a(g)) &&
                   te__gemm_apart(g, g->b, g->k * g->n, te__gemm_b(g)), ctx, TE_ERROR_VALUE,
               "%s: D overlaps A or B", who);
    return TE_OK;
}

/* te_gemm_run has rows with scales of tiles as cuBLASLt takes them, without a bias; gemm_tiles.h has the others. */
TE_API te_status te__gemm_check_tiles(const te_gemm *g, te_context *ctx) {
    TE_REQUIRE(g->a_fp8.scaling != TE_SCALING_TILES || g->m == te_tile_rows(g->m), ctx, TE_ERROR_SHAPE,
               "te_gemm_run: %lld rows with scales of 1x128; it takes multiples of four", (long long)g->m);
    TE_REQUIRE(!te_gemm_is_fine_grained(g) || g->epilogue == TE_EPILOGUE_NONE, ctx, TE_ERROR_VALUE,
               "te_gemm_run: a product with scales of %s; it takes no bias along", te_scaling_name(g->a_fp8.scaling));
    return TE_OK;
}

/* What a kernel for few rows (gemm_few.h) reads. */
typedef enum te_few_form {
    TE_FEW_SIXTEEN, /* 16 bits */
    TE_FEW_SCALED,  /* e4m3 with scales of tensors, or of rows of both operands */
    TE_FEW_TILED    /* e4m3 with scales of 1x128 and 128x128 */
} te_few_form;

/* What a thread carries from one call of its epilogue to the next. */
/* Whether the arguments of an epilogue are what its row has in training, where it stores all that it can, or where it
 * stores its result alone, as in inference. What of them is null is known then, so the epilogue has no branches, and
 * the compiler lets several pieces of eight go through it side by side. */
typedef enum te_usual { TE_USUAL_not, TE_USUAL_all, TE_USUAL_result } te_usual;
typedef struct te_epilogue_lane {
    float sum[8];  /* what the epilogue adds to it is summed over the rows */
    uint32_t most; /* the bits of the largest magnitude that it has stored in FP8; 0 at first (core/amax.h) */
    uint32_t fp8[2]; /* the eight elements of this call in FP8, for the transpose; 0 before */
    te_usual usual; /* a constant */
} te_epilogue_lane;
/* Kernels of our own (gemm_hopper.h, gemm_few.h) hand what they have done to a function: eight elements of row `row`
 * from column `col` on, as 16 bits each. ahead: the same eight of the tensor that the kernel was asked to load ahead,
 * of one with two halves (te_hopper_kind.twice) those of the second behind them; null: none. */
typedef void (*te_epilogue_fn)(const void *arg, const uint32_t w[4], const uint32_t *ahead, int row, int col,
                               te_epilogue_lane *lane);
/* Sixteen elements of a row: eight from column `col` on, and the eight from `other_col` on that belong to them. Of the
 * lane `most` alone is of use. */
typedef void (*te_couple_fn)(const void *arg, const uint32_t w[4], const uint32_t other[4], int row, int col,
                             int other_col, te_epilogue_lane *lane);

/* ---- what tuning found, kept in the context ---------------------------------------------------------------------- */

enum {
    TE_GEMM_PLANS = 512,  /* distinct products a context remembers at a time; a power of two */
    TE_GEMM_CHOICES = 128 /* distinct steps whose split it can remember */
};

/* A product that was timed. Tensors are contiguous and at multiples of TE_ACCESS, so sizes and transposes say all. */
typedef struct te_gemm_tuned {
    int64_t m, n, k;
    int trans_a, trans_b;
    te_dtype a, b, dtype, out; /* of A, of B, of bias and aux, of D */
    te_scaling a_scaling, b_scaling;
    int fast;
    te_epilogue epilogue;
    int beta;                  /* whether C is added */
    int candidates;            /* that were timed */
    int64_t first_ns, best_ns; /* medians: of the heuristic's first candidate, and of the one that is used */
    uint64_t algo[8];          /* cublasLtMatmulAlgo_t */
} te_gemm_tuned;

/* The product, not yet timed. */
TE_API te_gemm_tuned te__gemm_tuned_of(const te_gemm *g) {
    te_gemm_tuned t;
    memset(&t, 0, sizeof t);
    t.m = g->m, t.n = g->n, t.k = g->k, t.trans_a = g->trans_a != 0, t.trans_b = g->trans_b != 0;
    t.a = te__gemm_a(g), t.b = te__gemm_b(g), t.dtype = g->dtype, t.out = g->out;
    t.a_scaling = g->a_fp8.scaling, t.b_scaling = g->b_fp8.scaling;
    t.fast = g->fast && te_is_fp8(t.a) && t.a_scaling != TE_SCALING_TILES;
    t.epilogue = g->epilogue, t.beta = g->beta != 0;
    return t;
}
TE_API int te__gemm_same_product(const te_gemm_tuned *t, const te_gemm_tuned *u) {
    return u->m == t->m && u->n == t->n && u->k == t->k && u->trans_a == t->trans_a && u->trans_b == t->trans_b &&
           u->a == t->a && u->b == t->b && u->dtype == t->dtype && u->out == t->out && u->fast == t->fast &&
           u->a_scaling == t->a_scaling && u->b_scaling == t->b_scaling &&
           u->epilogue == t->epilogue && u->beta == t->beta;
}

/* What a product's operands are: "bf16", or in FP8 "e4m3*e5m2.bf16", with the dtype of bias and aux, and ".fast", and
 * where scales are not of tensors those: ".1x128*128x128". */
typedef struct te__operands_text { char text[64]; } te__operands_text;
TE_API te__operands_text te__operands_text_of(const te_gemm_tuned *t) {
    te__operands_text s;
    const char *a = te_dtype_name(t->a), *b = te_dtype_name(t->b), *dtype = te_dtype_name(t->dtype);
    const int fine = te_is_fp8(t->a) && t->a_scaling > TE_SCALING_TENSOR;
    if (te_is_fp8(t->a)) snprintf(s.text, sizeof s.text, "%s*%s.%s%s%s%s%s%s", a, b, dtype, t->fast ? ".fast" : "",
                                  fine ? "." : "", fine ? te_scaling_name(t->a_scaling) : "", fine ? "*" : "",
                                  fine ? te_scaling_name(t->b_scaling) : "");
    else snprintf(s.text, sizeof s.text, "%s", dtype);
    return s;
}

/* How a row that begins with a matrix product is split into the product and the kernel behind it. */
typedef enum te_split {
    TE_SPLIT_BARE, /* the bare product; the kernel does all of the rest */
    TE_SPLIT_BIAS, /* the product takes the bias along */
    TE_SPLIT_WHOLE, /* the product's epilogue does all; no kernel behind it */
    TE_SPLIT_OWN,   /* one kernel of our own (fuse/product.h) */
    TE_SPLIT_COUNT
} te_split;

/* A step whose splits were timed. */
typedef struct te_gemm_choice {
    char row[96];   /* "linear_bias_gelu" */
    int64_t m, n, k;
    te_dtype dtype;
    int training;   /* a forward that saves for backward; 0: inference */
    unsigned kept;  /* bit j: the output of the row's op j lies in memory */
    te_split split; /* the fastest */
    int64_t ns[TE_SPLIT_COUNT]; /* medians; 0: not possible */
} te_gemm_choice;

#endif
