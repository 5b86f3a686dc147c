/* mul_param.h -- (mul_param, name, width): y = x * weight[width], element by element; (mul_param, name, 1): a learnt
 * factor. Layer scale: Touvron et al. 2021 (arXiv 2103.17239).
 *
 * Backward: dx = dy * weight, dweight = column sums of dy * x; the factor's is the sum of those, in the order of the
 * columns. te_model_randomize gives ones.
 */
#ifndef TE_OPS_MUL_PARAM_H
#define TE_OPS_MUL_PARAM_H

#include "map.h" /* te_stage, te_place */

#define TE_OP_mul_param (mul_param, map)
#define TE_SHAPES_mul_param(op) (1)
#define TE__MUL_PARAM_IS_ONE(op) ((TE_ARG1(op, 0)) == 1)
#define TE_IN_mul_param(op) (TE__MUL_PARAM_IS_ONE(op) ? 0 : (TE_ARG1(op, 0)))
#define TE_FLAGS_mul_param(op) (TE_SUMS | TE_SAVES_INPUT)
#define TE_LAYOUT_FITS_mul_param(op, in) \
    ((int)(in) == (int)TE_LAYOUT_replicated || ((int)(in) == (int)TE_LAYOUT_columns && !TE__MUL_PARAM_IS_ONE(op)))
#define TE_PARAMS_mul_param(op, in, out) ((weight, 1, TE__MUL_PARAM_IS_ONE(op) ? 1 : out, one))
#define TE_OPTIONS_mul_param(op) (te_mul_param_options, TE__MUL_PARAM_IS_ONE(op))
#define TE_CHECK_mul_param(model, op)                         \
    (static_assert((TE_ARG1(op, 0)) != 0, "te: " TE_STRING(model) ": " TE_CALLED(op) \
        " says how many numbers it learns: the width, or 1");)

typedef struct te_mul_param_options { int is_one; } te_mul_param_options; /* 1: one factor for all columns */

TE_FN void te__mul_param8(float w[8], const te_stage *s, te_place at, const void *options) {
    const int is_one = ((const te_mul_param_options *)options)->is_one;
    if (is_one) w[0] = te_load(s->w[0], 0, at.format.weight);
    else te_load8(w, s->w[0], at.col, at.n, at.aligned, at.format.weight);
    TE_UNROLL for (int i = 1; is_one && i < 8; i++) w[i] = w[0];
}
TE_CALLBACK void te_mul_param_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    float w[8];
    te__mul_param8(w, s, at, options);
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] *= w[i];
}
TE_CALLBACK void te_mul_param_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options) {
    float w[8], x[8];
    te__mul_param8(w, s, at, options);
    te_read8(x, s->saved, at.format.in, s, at);
    TE_UNROLL for (int i = 0; i < 8; i++) sum[i] += v[i] * x[i], v[i] *= w[i]; /* y = x weight */
}

#endif
