/* gemm_types.h -- te_gemm, a struct that describes a matrix product (GEMM); the checks of its members; and the results
 * of tuning that a context holds.
 *
 * Do this:
 *     te_gemm g = te_gemm_of(rows, out, in);                  // y[rows, out] = x[rows, in] w[out, in]^T
 *     g.a = x, g.b = w, g.trans_b = 1, g.d = y, g.dtype = g.out = TE_bf16;
 *
 * The functions of gemm.h run a te_gemm. The second half of this file is shared by the kernels in impl/: it has the
 * types of the functions that these kernels call as their epilogue, and allocates the workspace for the partial sums of
 * GEMMs whose k is split.
 */
#ifndef TE_GEMM_TYPES_H
#define TE_GEMM_TYPES_H

#include "../core/target.h"      /* te_context, te__check_target */
#include "../fp8/scales.h"  /* te_scaling */
#include "impl/gemm_comm_overlap.h"          /* te__gemm_overlap */

/* The epilogues of te_gemm_run, i.e. the operations on D before it is stored: X(name, text) for each. */
#define TE_EPILOGUES(X)                                                                  \
    X(NONE, "none")                                                                      \
    X(BIAS, "bias")           /* adds bias[n] to each row of D */                        \
    X(GELU_BIAS, "gelu_bias") /* adds bias[n] to each row of D, then applies gelu_tanh */ \
    X(GELU_AUX_BIAS, "gelu_aux_bias") /* adds bias[n] to D, stores the sum in aux[m, n], applies gelu_tanh */
#define TE_EPILOGUE_ENUM(name, text) TE_EPILOGUE_##name,
typedef enum te_epilogue { TE_EPILOGUES(TE_EPILOGUE_ENUM) TE_EPILOGUE_COUNT } te_epilogue;
#undef TE_EPILOGUE_ENUM

TE_API const char *te__epilogue_name(te_epilogue e) {
#define TE_EPILOGUE_TEXT(name, text) text,
    static const char *const names[] = {TE_EPILOGUES(TE_EPILOGUE_TEXT)};
#undef TE_EPILOGUE_TEXT
    return (unsigned)e < (unsigned)TE_EPILOGUE_COUNT ? names[e] : "unknown epilogue";
}

/* The format of an FP8 operand. */
typedef struct te_gemm_fp8 {
    te_scaling scaling;
    te_dtype dtype;       /* e4m3 or e5m2 */
    const float *inverse; /* 1 / scale: one number or an array, depending on `scaling`, in the memory of the target (the
                           * GPU or the host), aligned to TE_ACCESS bytes. With tensorwise scaling it may be null, which
                           * stands for a scale of 1 */
} te_gemm_fp8;

/* A GEMM: D = alpha op(A) op(B) + beta C, followed by an epilogue. op(A) is A, or A^T if trans_a is set; op(B) is B, or
 * B^T if trans_b is set. All matrices are row-major. */
typedef struct te_gemm {
    int64_t m, n, k;      /* D is [m, n] */
    /* 1 if the operand is stored transposed: A is stored as [m, k], or as [k, m] if trans_a is 1; B is stored as
     * [k, n], or as [n, k] if trans_b is 1 */
    int trans_a, trans_b;
    /* dtype: the number format of bias and aux, and of A and B unless these are in FP8. out: the number format of C and
     * D, which is either `dtype` or f32 */
    te_dtype dtype, out;
    /* formats and scales of A and B if the GEMM is in FP8, else zeros. In FP8 A must be stored as [m, k] and B as
     * [n, k]. The GEMM then multiplies each element of A and of B by the inverse of its scale */
    te_gemm_fp8 a_fp8, b_fp8;
    /* used in FP8 only. If 1 (fast accumulation), the tensor cores hold the sums over all of k, with 14 bits of
     * mantissa; if 0, the tensor cores' sums are added, at intervals along k, to sums in float. With blockwise scaling
     * `fast` has no effect: the tensor cores' sums over each 128 elements of k are always added up in float */
    int fast;
    const void *a, *b, *c;
    void *d;
    /* used on CUDA only. 1 if an earlier kernel of the same forward or backward pass writes B, so that this GEMM must
     * not load B before that kernel has ended; 0 if B is a weight, which no kernel of the pass writes, so that B may be
     * loaded before the previous kernel has ended */
    int b_is_new;
    /* if not null, B is this quantized weight [n, k], trans_b is 1, and b is not read. impl/gemm_quantized.h or
     * impl/gemm_quantized_cuda.h runs such a GEMM; te_gemm_run returns an error for it */
    const struct te_quantized_weight *b_quantized;
    float alpha, beta; /* factors of the product A B and of C. If beta is 0, C is not read. c and d may point to the
                        * same matrix; cuBLASLt may then round the product to D's format before it adds C, so the last
                        * bits may differ from those of a call with separate C and D */
    te_epilogue epilogue;
    const void *bias;
    void *aux;
    float *scratch; /* memory in the workspace, used on the host (te__gemm_scratch floats) and for a quantized B
                     * (te__quantized_scratch bytes) */
    const struct te__gemm_overlap *ranks; /* describes the collective with which the library's own GEMM kernel overlaps
                                           * this GEMM; null if there is no overlap */
} te_gemm;

/* Returns a GEMM whose D is [m, n], with inner dimension k and alpha 1. All other members are zero: all dtypes are f32,
 * nothing is transposed, and the pointers to the operands must still be set. */
TE_API te_gemm te_gemm_of(int64_t m, int64_t n, int64_t k) {
    te_gemm g;
    memset(&g, 0, sizeof g);
    g.m = m, g.n = n, g.k = k, g.alpha = 1.0f;
    return g;
}

TE_API int te__gemm_is_fp8(const te_gemm *g) {
    return g->a_fp8.scaling != TE_SCALING_NONE || g->b_fp8.scaling != TE_SCALING_NONE;
}
/* Returns whether an operand has an array of scales (rowwise or blockwise), rather than one scale (tensorwise). */
TE_API int te__gemm_has_scale_arrays(const te_gemm *g) {
    return g->a_fp8.scaling > TE_SCALING_TENSORWISE || g->b_fp8.scaling > TE_SCALING_TENSORWISE;
}
TE_API te_dtype te__gemm_a_dtype(const te_gemm *g) {
    return g->a_fp8.scaling != TE_SCALING_NONE ? g->a_fp8.dtype : g->dtype;
}
TE_API te_dtype te__gemm_b_dtype(const te_gemm *g) {
    return g->b_fp8.scaling != TE_SCALING_NONE ? g->b_fp8.dtype : g->dtype;
}

/* ---- grouped GEMMs --------------------------------------------------------------------------------------------- */

/* The kinds of grouped GEMMs (gemm_grouped.h). The rows of a matrix are divided into groups, and each group has a
 * weight of its own. One launch runs the GEMMs of all groups. */
typedef enum te_grouped_kind { TE_GROUPED_FORWARD, TE_GROUPED_DGRAD, TE_GROUPED_WGRAD } te_grouped_kind;

typedef struct te_grouped {
    const void *a;         /* forward: x; dgrad and wgrad: dy */
    const void *b;         /* forward and dgrad: weight; wgrad: x */
    void *d;               /* y, dx or dweight */
    const struct te_quantized_weight *quantized; /* for forward on the host: the quantized weight, which is used instead
                                                  * of b, or null if the weight is b */
    const int32_t *offset; /* [groups + 1], in the memory of the target: group e has rows offset[e] to offset[e + 1] -
                            * 1. offset[0] need not be 0 */
    const int32_t *slot;   /* for forward on CUDA: row i of the input is row slot[i] / top_k of x or, if `slot` is null,
                            * row i of x */
    /* 1 if a and b are in e4m3 with blockwise scales. In forward b is then the weight, [groups * out, in]; in dgrad b
     * is the transposed weight, [in, groups * out]. a_inverse and b_inverse are the arrays of the inverse scales. The
     * index in a_inverse follows from te__grouped_scale_at. The index in b_inverse is that of te_blockwise_2d_scale_at
     * for the whole matrix b */
    int in_fp8;
    const float *a_inverse, *b_inverse;
    float *scratch;        /* on the host: te__grouped_scratch(g) floats */
    int64_t rows;          /* an upper bound of the number of rows of all groups together: offset[groups] <= rows */
    te_grouped_kind kind;
    int out, in, groups, top_k;
    int ranks;             /* the number of ranks over which the experts are divided; each rank has `groups` experts.
                            * The member `rows` is then an upper bound of the number of rows of the groups of all
                            * ranks */
    int max_rows;          /* only the first max_rows rows of a group are computed */
    int accumulate;        /* for wgrad: 1 if the result is added to dweight, 0 if it overwrites dweight */
    te_dtype dtype, out_dtype; /* out_dtype: the dtype of d, which is `dtype` or f32 */
} te_grouped;

/* Returns the index of the last computed row of group e, plus 1. */
TE_BOTH int te__grouped_end(const te_grouped *g, int e) {
    return (int)te_min(g->offset[e + 1], (int64_t)g->offset[e] + g->max_rows);
}
TE_API te_grouped te__grouped_of(te_grouped_kind kind, int out, int in, int groups, int64_t rows) {
    te_grouped g;
    memset(&g, 0, sizeof g);
    g.kind = kind, g.out = out, g.in = in, g.groups = groups, g.rows = rows, g.top_k = g.ranks = 1;
    return g;
}
/* Where the inverse scales of a are. The inverse scale of row `row` (of group e) and columns 128 k to 128 k + 127 is
 * a_inverse[k te__grouped_scale_pitch + te__grouped_scale_at]. The scales of each group begin at a multiple of four
 * floats, because TMA can load the scales of a tile's rows only from such an index on. */
TE_BOTH int64_t te__grouped_scale_pitch(int64_t rows, int groups) { return te_round_up(rows, 4) + 4 * groups; }
TE_BOTH int64_t te__grouped_scale_at(const int32_t *offset, int e, int64_t row) { return row + 4 * e - offset[e] % 4; }

/* ---- checks of the arguments ------------------------------------------------------------------------------------- */

/* Returns whether A with scaling `a` can be multiplied by B with scaling `b`. Four combinations are supported: (tensor,
 * tensor), (row, row), (1x128, 128x128) and (1x128, 1x128). */
TE_API int te__scalings_match(te_scaling a, te_scaling b) {
    return a == b ? a == TE_SCALING_TENSORWISE || a == TE_SCALING_ROWWISE || a == TE_SCALING_BLOCKWISE_1D
                  : a == TE_SCALING_BLOCKWISE_1D && b == TE_SCALING_BLOCKWISE_2D;
}
/* For an FP8 GEMM: returns an error if no back end supports its combination of scalings. If the scales are rowwise or
 * blockwise, also returns an error if no back end supports the GEMM's epilogue, or if the device's compute capability
 * is not 9.0. */
TE_API te_status te__gemm_check_scaling(const te_gemm *g, const char *who, te_context *ctx) {
    const te_scaling a = g->a_fp8.scaling, b = g->b_fp8.scaling;
    TE_REQUIRE(te__scalings_match(a, b), ctx, TE_ERROR_VALUE,
               "%s: an FP8 product with scales of %s and %s; there are tensor by tensor, row by row, 1x128 by 128x128 "
               "and 1x128 by 1x128", who, te_scaling_name(a), te_scaling_name(b));
    TE_REQUIRE(!te__gemm_has_scale_arrays(g) || g->epilogue == TE_EPILOGUE_NONE ||
                   (g->epilogue == TE_EPILOGUE_BIAS && b == TE_SCALING_BLOCKWISE_2D), ctx, TE_ERROR_VALUE,
               "%s: an FP8 product with scales of %s takes no epilogue %s", who, te_scaling_name(a),
               te__epilogue_name(g->epilogue));
    TE_REQUIRE(!TE_CUDA || !te__gemm_has_scale_arrays(g) || ctx->capability == 900, ctx, TE_ERROR_DEVICE,
               "%s: FP8 products with scales of %s need compute capability 9.0; device %d has %d.%d", who,
               te_scaling_name(a), ctx->device, ctx->capability / 100, ctx->capability / 10 % 10);
    return TE_OK;
}

/* Returns an error if no back end supports the GEMM's dtypes or, in FP8, its transposes, sizes, alignment, scalings or
 * device. Called by te_gemm_run, and by the dry run of a plan, which checks all ops before the first is launched. who:
 * the name of the op or of the called function, for the error's text. */
TE_API te_status te__gemm_check(const te_gemm *g, const char *who, te_context *ctx) {
    const te_dtype a = te__gemm_a_dtype(g), b = te__gemm_b_dtype(g);
    TE_REQUIRE((unsigned)g->dtype <= (unsigned)TE_f16 && (g->out == g->dtype || g->out == TE_f32), ctx, TE_ERROR_DTYPE,
               "%s: a product of %s to %s; an operand in FP8 says so in a_fp8 or b_fp8", who, te_dtype_name(g->dtype),
               te_dtype_name(g->out));
    if (!te__gemm_is_fp8(g)) return TE_OK;
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

/* Returns whether the memory of D and that of `operand`, a matrix with `elements` elements, do not overlap. */
TE_API int te__gemm_is_disjoint(const te_gemm *g, const void *operand, int64_t elements, te_dtype dtype) {
    const uintptr_t d = (uintptr_t)g->d, p = (uintptr_t)operand;
    return d + (size_t)(g->m * g->n) * te_dtype_bytes(g->out) <= p ||
           p + (size_t)elements * te_dtype_bytes(dtype) <= d;
}
/* Checks all arguments of a GEMM: pointers, sizes, dtypes, alignment, aliasing. te_gemm_run and te_gemm_fp8_run call
 * this function first. */
TE_API te_status te__gemm_check_run(const te_gemm *g, const char *who, te_context *ctx) {
    TE_TRY(te__check_target(ctx, who));
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
    TE_TRY(te__gemm_check(g, who, ctx));
    TE_REQUIRE(!te__gemm_has_scale_arrays(g) || (g->a_fp8.inverse && g->b_fp8.inverse), ctx, TE_ERROR_NULL,
               "%s: an FP8 product with scales of %s has none", who, te_scaling_name(g->a_fp8.scaling));
    TE_REQUIRE(((uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->c | (uintptr_t)g->d) % TE_ACCESS == 0, ctx,
               TE_ERROR_ALIGNMENT, "%s: a matrix does not start at a multiple of %d bytes", who, (int)TE_ACCESS);
    TE_REQUIRE(te__gemm_is_disjoint(g, g->a, g->m * g->k, te__gemm_a_dtype(g)) &&
                   te__gemm_is_disjoint(g, g->b, g->k * g->n, te__gemm_b_dtype(g)), ctx, TE_ERROR_VALUE,
               "%s: D overlaps A or B", who);
    return TE_OK;
}

/* Checks the restrictions of te_gemm_run, which are those of cuBLASLt: with blockwise scaling the number of rows must
 * be a multiple of four, and with rowwise or blockwise scaling no bias can be added. gemm_blockwise.h runs GEMMs with
 * blockwise scaling without these two restrictions. */
TE_API te_status te__gemm_check_blockwise(const te_gemm *g, te_context *ctx) {
    TE_REQUIRE(g->a_fp8.scaling != TE_SCALING_BLOCKWISE_1D || g->m == te_blockwise_1d_aligned_rows(g->m), ctx,
               TE_ERROR_SHAPE, "te_gemm_run: %lld rows with scales of 1x128; it takes multiples of four",
               (long long)g->m);
    TE_REQUIRE(!te__gemm_has_scale_arrays(g) || g->epilogue == TE_EPILOGUE_NONE, ctx, TE_ERROR_VALUE,
               "te_gemm_run: a product with scales of %s takes no bias", te_scaling_name(g->a_fp8.scaling));
    return TE_OK;
}

/* ---- results of tuning, kept in the context ---------------------------------------------------------------------- */

enum {
    TE_GEMM_MAX_PLANS = 512,  /* the largest number of distinct GEMMs whose plans (descriptors and algorithm) a context
                               * caches; a power of two */
    TE_GEMM_MAX_CHOICES = 128 /* the largest number of strategies that a context caches, one for each step of a model
                               * (a step is an op, or several fused ops) */
};

/* A GEMM whose candidates were timed, and the result of the timing. A GEMM that is timed has contiguous tensors aligned
 * to TE_ACCESS bytes, so leading dimensions and alignment are not stored: two GEMMs are the same if the members up to
 * `beta` are equal. */
typedef struct te_gemm_tuned {
    int64_t m, n, k;
    int trans_a, trans_b;
    te_dtype a, b, dtype, out; /* number formats. a: of A; b: of B; dtype: of bias and aux; out: of D */
    te_scaling a_scaling, b_scaling;
    int fast;
    te_epilogue epilogue;
    int beta;                  /* 1 if the GEMM's beta is not 0, so that the GEMM adds C; else 0 */
    int candidates;            /* the number of candidate algorithms that were timed */
    /* median times in ns. first_ns: of the candidate that cuBLASLt's heuristic proposes first; best_ns: of the fastest
     * candidate */
    int64_t first_ns, best_ns;
    uint64_t algo[8];          /* the bytes of the fastest candidate's algorithm, a cublasLtMatmulAlgo_t */
} te_gemm_tuned;

/* Return a te_gemm_tuned in which the members that identify GEMM g are set; the members for the result of the timing
 * are 0. */
TE_API te_gemm_tuned te__gemm_tuned_of(const te_gemm *g) {
    te_gemm_tuned t;
    memset(&t, 0, sizeof t);
    t.m = g->m, t.n = g->n, t.k = g->k, t.trans_a = g->trans_a != 0, t.trans_b = g->trans_b != 0;
    t.a = te__gemm_a_dtype(g), t.b = te__gemm_b_dtype(g), t.dtype = g->dtype, t.out = g->out;
    t.a_scaling = g->a_fp8.scaling, t.b_scaling = g->b_fp8.scaling;
    t.fast = g->fast && te_is_fp8(t.a) && t.a_scaling != TE_SCALING_BLOCKWISE_1D;
    t.epilogue = g->epilogue, t.beta = g->beta != 0;
    return t;
}
TE_API int te__gemm_same_product(const te_gemm_tuned *t, const te_gemm_tuned *u) {
    return u->m == t->m && u->n == t->n && u->k == t->k && u->trans_a == t->trans_a && u->trans_b == t->trans_b &&
           u->a == t->a && u->b == t->b && u->dtype == t->dtype && u->out == t->out && u->fast == t->fast &&
           u->a_scaling == t->a_scaling && u->b_scaling == t->b_scaling &&
           u->epilogue == t->epilogue && u->beta == t->beta;
}

/* The text that describes a GEMM's operands in a tuning file. For a GEMM in 16 bits or f32 it is the name of the dtype,
 * such as "bf16". For an FP8 GEMM it consists of the dtypes of A and B and the dtype of bias and aux, as in
 * "e4m3*e5m2.bf16"; then ".fast", if the GEMM has fast accumulation; then the two scalings, as in ".1x128*128x128",
 * unless they are tensorwise. */
typedef struct te__operands_text { char text[64]; } te__operands_text;
TE_API te__operands_text te__operands_text_of(const te_gemm_tuned *t) {
    te__operands_text s;
    const char *a = te_dtype_name(t->a), *b = te_dtype_name(t->b), *dtype = te_dtype_name(t->dtype);
    const int arrays = te_is_fp8(t->a) && t->a_scaling > TE_SCALING_TENSORWISE;
    if (te_is_fp8(t->a)) snprintf(s.text, sizeof s.text, "%s*%s.%s%s%s%s%s%s", a, b, dtype, t->fast ? ".fast" : "",
                                  arrays ? "." : "", arrays ? te_scaling_name(t->a_scaling) : "", arrays ? "*" : "",
                                  arrays ? te_scaling_name(t->b_scaling) : "");
    else snprintf(s.text, sizeof s.text, "%s", dtype);
    return s;
}

/* How a fused pattern that begins with a GEMM is divided between the GEMM's epilogue and a pointwise kernel that runs
 * after the GEMM. */
typedef enum te_gemm_strategy {
    TE_STRATEGY_BARE,     /* the GEMM has no epilogue; a pointwise kernel after it computes all other ops of the
                           * pattern */
    TE_STRATEGY_BIAS,     /* the epilogue of the GEMM adds the bias; a pointwise kernel after it computes the other ops
                           * of the pattern */
    TE_STRATEGY_EPILOGUE, /* te_gemm_run computes all ops of the pattern: the GEMM, and the other ops in its epilogue */
    TE_STRATEGY_CUSTOM,   /* a single kernel of this library, not of cuBLASLt, computes the GEMM and all other ops of
                           * the pattern */
    TE_STRATEGY_COUNT
} te_gemm_strategy;

/* The strategy that was chosen by timing, either for a fused pattern or for a single FP8 GEMM. For a single FP8 GEMM
 * TE_STRATEGY_BARE means that cuBLASLt runs the GEMM, and TE_STRATEGY_CUSTOM that a kernel of this library runs it. */
typedef struct te_gemm_choice {
    /* the pattern's name, such as "linear_bias_gelu"; in FP8 followed by the operands (te__operands_text), as in
     * "linear_bias_gelu:e4m3*e4m3.bf16.fast" */
    char pattern[96];
    int64_t m, n, k;
    te_dtype dtype;
    int training;            /* 1 if the strategies were timed in a forward pass that saves tensors for backward; 0 if
                              * they were timed in inference */
    /* for a pattern: bit 0 is 1 if the result is stored in FP8; bit j, for j > 0, is 1 if the output of the pattern's
     * op j is saved. For a single FP8 GEMM: bit 0 is 1 if beta is not 0, bit 1 is 1 if there is a bias */
    unsigned stored_outputs;
    te_gemm_strategy strategy;     /* the fastest strategy */
    int64_t ns[TE_STRATEGY_COUNT]; /* the median time of each strategy, in ns, or 0 if the strategy cannot run this
                                    * pattern */
} te_gemm_choice;

/* ---- epilogues of custom kernels --------------------------------------------------------------------------------- */

/* The formats of the operands that a kernel of gemm_skinny.h or gemm_small_m.h reads. */
typedef enum te_gemm_operands {
    TE_OPERANDS_16BIT,
    TE_OPERANDS_FP8,          /* e4m3; either both operands have tensorwise scales, or both have rowwise scales */
    TE_OPERANDS_FP8_BLOCKWISE /* e4m3, with one scale per 1 x 128 elements of x and per 128 x 128 elements of the weight
                               * W */
} te_gemm_operands;

/* Which outputs an epilogue stores. If a kernel passes TE_OUTPUTS_ALL or TE_OUTPUTS_RESULT as a compile-time constant,
 * the epilogue need not test its output pointers for null. Then the epilogue has no branches, and the compiler
 * interleaves the instructions for several vectors of eight elements. */
typedef enum te_epilogue_outputs {
    TE_OUTPUTS_ANY,   /* the outputs whose pointers are not null; the epilogue tests the pointers at run time */
    TE_OUTPUTS_ALL,   /* the epilogue stores all tensors that the pattern stores in training */
    TE_OUTPUTS_RESULT /* the epilogue stores only the pattern's result, which is what inference stores */
} te_epilogue_outputs;
/* The state that a thread of a GEMM kernel carries from one call of the epilogue to the next. */
typedef struct te_epilogue_state {
    /* partial sums of the gradient of a bias or a scale. All calls of a thread process the same eight columns; each
     * call adds the eight elements of its row to these sums, and the kernel then adds up the sums of all threads */
    float sum[8];
    /* the largest magnitude that this thread has stored in FP8, as the bit pattern of a float (core/lanes.h); 0 before
     * the first call */
    uint32_t amax_bits;
    /* the eight FP8 elements of this call: the epilogue sets them, and the kernel stores them in the transposed output;
     * 0 before the call */
    uint32_t fp8[2];
    te_epilogue_outputs outputs; /* which output tensors this call stores; a compile-time constant */
} te_epilogue_state;
/* The type of the function that custom kernels call as their epilogue, for eight elements of D at a time. w: these
 * elements, rounded to 16 bits; they lie in row `row`, in columns `col` to `col` + 7. ahead: the elements, in the same
 * row and columns, of the tensor that the kernel prefetched for the epilogue (params.source), or null if nothing was
 * prefetched. If the prefetched tensor has two halves, `ahead` holds eight elements of the first half, then eight of
 * the second half. arg: the kernel's arguments. */
typedef void (*te_epilogue_fn)(const void *arg, const uint32_t w[4], const uint32_t *ahead, int row, int col,
                               te_epilogue_state *state);
/* The type of the epilogue function for ops that combine two vectors of a row, namely rope and gated activations. w:
 * the eight elements from column `col` on; other: the eight elements from column `other_col` on, with which the
 * elements of w are paired. The only member of *state that is used is amax_bits. */
typedef void (*te_epilogue_pair_fn)(const void *arg, const uint32_t w[4], const uint32_t other[4], int row, int col,
                                    int other_col, te_epilogue_state *state);

/* ---- the workspace of a context's GEMMs -------------------------------------------------------------------------- */
#if TE_CUDA

enum {
    TE_GEMM_WORKSPACE = 32 << 20, /* size of the workspace in bytes, which is the size that cuBLASLt recommends for
                                   * Hopper */
    TE_GEMM_MAX_SPLIT_TILES = 256,      /* the largest number of tiles for which the library's own kernels split the sum
                                         * over k among several blocks */
    /* number of counters for each tile whose k is split; the counters of all tiles lie behind the workspace, and are 0
     * before and after each kernel */
    TE_GEMM_TILE_COUNTERS = 16,
    TE_GEMM_COUNTER_BYTES = TE_GEMM_MAX_SPLIT_TILES * TE_GEMM_TILE_COUNTERS * 4
};

/* Allocates the workspace for the partial sums of GEMMs whose k is split, and behind the workspace the counters, which
 * are set to 0. May be called while a stream is being captured: the allocation and the fill do not become part of the
 * capture. */
TE_API te_status te__gemm_allocate(void **workspace, te_context *ctx) {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaStream_t stream = 0;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    te_status status = te_allocate(ctx, workspace, TE_GEMM_WORKSPACE + TE_GEMM_COUNTER_BYTES);
    if (status == TE_OK)
        status = te__cuda_status(ctx, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    if (status == TE_OK) {
        const cudaError_t e =
            cudaMemsetAsync((char *)*workspace + TE_GEMM_WORKSPACE, 0, TE_GEMM_COUNTER_BYTES, stream);
        status = te__cuda_status(ctx, e == cudaSuccess ? cudaStreamSynchronize(stream) : e, "fill");
    }
    if (stream) (void)cudaStreamDestroy(stream);
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    return status;
}
#endif

#endif
