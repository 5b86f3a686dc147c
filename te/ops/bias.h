/* bias.h -- (bias, name, width): y = x + bias[width]. Backward: dbias = column sums of dy. */
#ifndef TE_OPS_BIAS_H
#define TE_OPS_BIAS_H

#include "map.h" /* te_stage, te_place */

#define TE_OP_bias (bias, map)
#define TE_SHAPES_bias(op) (1)
#define TE_IN_bias(op) (TE_ARG1(op, 0))
#define TE_FLAGS_bias(op) (TE_SUMS | TE_GRAD_UNCHANGED | TE_EPILOGUE_OF_BIAS)
#define TE_LAYOUT_FITS_bias(op, in) ((int)(in) == (int)TE_LAYOUT_replicated || (int)(in) == (int)TE_LAYOUT_columns)
#define TE_PARAMS_bias(op, in, out) ((bias, 1, out, zero))

TE_CALLBACK void te_bias_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    float w[8];
    (void)options;
    if (!s->w[0]) return;
    te_load8(w, s->w[0], at.col, at.n, at.aligned, at.format.weight);
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] += w[i];
}
TE_CALLBACK void te_bias_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options) {
    (void)s, (void)at, (void)options;
    TE_UNROLL for (int i = 0; i < 8; i++) sum[i] += v[i]; /* y = x + bias */
}

#endif
