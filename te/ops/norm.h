/* norm.h -- normalisation of each row, or of some columns of it. x and y are [rows, width], gamma (`weight`) and beta
 * (`bias`) are [width]; option (eps, 1e-5f). With (columns, n) only n columns, from column (first, 0) on, are
 * normalised: the norm applies to x[first .. first + n - 1] as if this were the row, gamma and beta are [n], and in all
 * other columns y is x. first and n are multiples of eight.
 *
 *   (layernorm, name, width)   y = (x - mean) rstd gamma + beta, rstd = (mean((x - mean)^2) + eps)^-1/2  Ba et al. 2016
 *   (rmsnorm, name, width)     y = x rstd gamma,                 rstd = (mean(x^2) + eps)^-1/2    Zhang & Sennrich 2019
 *   (l2norm, name, width)      y = x rnorm,                      rnorm = (sum(x^2) + eps)^-1/2
 *   (layernorm1p, ..), (rmsnorm1p, ..)   the same with 1 + gamma in the place of gamma (zero-centred gamma)
 *   (layernorm_no_bias, ..)              layernorm without beta: nn.LayerNorm(bias=False)
 *   (layernorm_no_affine, ..), (rmsnorm_no_affine, ..)   without parameters: elementwise_affine=False
 *
 * Do this:
 *     (fork, x1), (rmsnorm, norm1, 4096, (eps, 1e-6f)), (linear, qkv, 4096, 6144)
 *     (rmsnorm, q_norm, 6144, (columns, 4096)), (rmsnorm, k_norm, 6144, (first, 4096), (columns, 1024))    // OLMo 2
 *
 * Forward saves x and, in f32, the statistics of each row: for layernorm mean and rstd, otherwise only rstd (l2norm:
 * rnorm). Backward computes dx, dgamma and dbeta. Each column of dgamma and dbeta is a sum over all rows. This header
 * contains the formulas; the kernels, which run a norm alone or fused with elementwise ops, are in te/pointwise.
 */
#ifndef TE_OPS_NORM_H
#define TE_OPS_NORM_H

#include "elementwise.h" /* te_stage, te_place */

/* The list of norms, X(kind, number of parameters) for each. The tests and benchmarks expand this list. */
#define TE_NORMS(X) X(layernorm, 2) X(rmsnorm, 1) X(l2norm, 0) X(layernorm1p, 2) X(rmsnorm1p, 1) \
    X(layernorm_no_bias, 1) X(layernorm_no_affine, 0) X(rmsnorm_no_affine, 0)

/* The code of a norm: code & 3 selects the formula; the bit TE_NORM_zero_centred means that the stored gamma is
 * zero-centred. Of the other two bits, one means that the norm has no beta, the other that it has neither gamma nor
 * beta. */
enum {
    TE_NORM_layernorm = 0,
    TE_NORM_rmsnorm = 1,
    TE_NORM_l2norm = 2,
    TE_NORM_zero_centred = 4,
    TE_NORM_layernorm1p = TE_NORM_layernorm | TE_NORM_zero_centred,
    TE_NORM_rmsnorm1p = TE_NORM_rmsnorm | TE_NORM_zero_centred,
    TE_NORM_no_beta = 8,
    TE_NORM_no_gamma = 16,
    TE_NORM_layernorm_no_bias = TE_NORM_layernorm | TE_NORM_no_beta,
    TE_NORM_layernorm_no_affine = TE_NORM_layernorm | TE_NORM_no_beta | TE_NORM_no_gamma,
    TE_NORM_rmsnorm_no_affine = TE_NORM_rmsnorm | TE_NORM_no_gamma
};
TE_BOTH int te_norm_has_mean(int code) { return (code & 3) == TE_NORM_layernorm; }
TE_BOTH int te_norm_has_gamma(int code) { return (code & 3) != TE_NORM_l2norm && !(code & TE_NORM_no_gamma); }
TE_BOTH int te_norm_has_beta(int code) { return te_norm_has_mean(code) && !(code & TE_NORM_no_beta); }

#define TE_OP_layernorm (norm, norm)
#define TE_OP_rmsnorm (norm, norm)
#define TE_OP_l2norm (norm, norm)
#define TE_OP_layernorm1p (norm, norm)
#define TE_OP_rmsnorm1p (norm, norm)
#define TE_OP_layernorm_no_bias (norm, norm)
#define TE_OP_layernorm_no_affine (norm, norm)
#define TE_OP_rmsnorm_no_affine (norm, norm)
#define TE_SHAPES_norm(op) (1)
#define TE_NORM_CODE(op) (int)TE_JOIN1(TE_NORM_, TE_KIND(op))
#define TE_IN_norm(op) (TE_ARG1(op, 0))
#define TE_LAYOUT_FITS_norm(op, in) ((int)(in) == (int)TE_LAYOUT_replicated)
#define TE_FLAGS_norm(op) (TE_SAVES_INPUT)
#define TE_STATS_norm(op) ((TE_NORM_CODE(op) & 3) == (int)TE_NORM_layernorm ? 2 : 1) /* number of floats that forward
                                                                                      * saves for each row: mean and
                                                                                      * rstd, or only rstd */
#define TE_TAKES_norm_columns TE_INTEGER
#define TE_TAKES_norm_first TE_INTEGER
/* The number of columns that are normalised, where 0 stands for all, and the first of these columns. */
#define TE_NORM_COLUMNS(op) (TE_OPTION(op, columns, 0))
#define TE_NORM_FIRST(op) (TE_OPTION(op, first, 0))
#define TE_PARAMS_norm(op, in, out) TE_JOIN1(TE_PARAMS_OF_, TE_KIND(op))(TE_OPTION(op, columns, out))
#define TE_PARAMS_OF_layernorm(out) ((weight, 1, out, one), (bias, 1, out, zero))
#define TE_PARAMS_OF_layernorm1p(out) ((weight, 1, out, zero), (bias, 1, out, zero))
#define TE_PARAMS_OF_rmsnorm(out) ((weight, 1, out, one))
#define TE_PARAMS_OF_rmsnorm1p(out) ((weight, 1, out, zero))
#define TE_PARAMS_OF_layernorm_no_bias(out) ((weight, 1, out, one))
#define TE_TAKES_norm_eps TE_NUMBER
#define TE_NORM_EPS(op) (float)(TE_OPTION(op, eps, 1e-5f))
#define TE_CHECK_norm(model, op)                                                                           \
    (TE_ASSERT_NUMBER(TE_NORM_EPS(op) >= 0 && TE_NORM_EPS(op) < 3e38f, "te: " TE_STRING(model) ": "        \
        TE_CALLED(op) ": eps must be a finite number of at least 0");                                      \
     static_assert(!TE_HAS_OPTION(op, columns) ||                                                          \
                       (TE_NORM_COLUMNS(op) > 0 && TE_NORM_FIRST(op) >= 0 &&                               \
                        TE_NORM_COLUMNS(op) <= TE_ARG1(op, 0) - TE_NORM_FIRST(op)),                        \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                              \
                       ": the columns from first on must lie in a row of constant width");                 \
     static_assert(TE_NORM_COLUMNS(op) % 8 == 0 && TE_NORM_FIRST(op) % 8 == 0,                             \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                              \
                       ": columns and first must be multiples of eight");                                  \
     static_assert(TE_HAS_OPTION(op, columns) || !TE_HAS_OPTION(op, first),                                \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": (first, ..) goes with (columns, ..)");)
#define TE_OPTIONS_norm(op) TE_IF_HAS(op, columns, TE__NORM_PART_OPTIONS, TE__NORM_OPTIONS)(op)
#define TE__NORM_OPTIONS(op) (te_norm_options, TE_NORM_CODE(op), TE_NORM_EPS(op))
#define TE__NORM_PART_OPTIONS(op) \
    (te_norm_part_options, TE_NORM_CODE(op), TE_NORM_EPS(op), TE_NORM_COLUMNS(op), TE_NORM_FIRST(op))

typedef struct te_norm_options { int code; float eps; } te_norm_options;
typedef struct te_norm_part_options { int code; float eps; int columns, first; } te_norm_part_options;

/* Returns rstd, computed from `squares`, the sum of squares of a row of `count` elements (in layernorm, the squares of
 * x - mean). l2norm uses this sum itself; the other norms divide the sum by `count`. */
TE_FN float te_norm_rstd(float squares, float count, te_norm_options o) {
    return 1.0f / sqrtf(((o.code & 3) == TE_NORM_l2norm ? squares : squares / count) + o.eps);
}
/* Converts eight columns of gamma, which te_load_norm_param has loaded, to floats, and adds 1 if gamma is zero-centred.
 * If the norm has no gamma, all eight floats are 1. */
TE_FN void te_gamma8(float w[8], const te_vec8 *gamma, te_dtype dtype, int code) {
    if (!te_norm_has_gamma(code)) {
        TE_UNROLL for (int i = 0; i < 8; i++) w[i] = 1.0f;
        return;
    }
    te_vec8_floats(w, gamma, dtype);
    if (code & TE_NORM_zero_centred) TE_UNROLL for (int i = 0; i < 8; i++) w[i] += 1.0f;
}

#endif
