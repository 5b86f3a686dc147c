/* bias.h -- (bias, name, width): y = x + bias[width]. Backward: dbias = column sums of dy. */
#ifndef TE_OPS_BIAS_H
#define TE_OPS_BIAS_H

#include "../fuse/chain.h" /* te_stage, te_at */

#define TE_OP_bias (bias, 0, map)
#define TE_IN_bias(op) TE_ARG1(op, 0)
#define TE_OUT_bias(op, in) in
#define TE_FLAGS_bias(op) (TE_SUMS | TE_KEEPS_GRAD)
#define TE_TRAITS_bias(model, op, in, out) 0, -1, {0, 0}, 1, {{"bias", 1, out, TE_INIT_zero, 0}, TE_NO_PARAM}
#define TE_FIELDS_bias(op) struct { te_param bias; } TE_NAME(op);
#define TE_DECLARE_bias(model, op)

TE_FN void te_bias_forward(float v[8], const te_stage *s, te_at at, int code) {
    float w[8];
    (void)code;
    if (!s->w[0]) return;
    te_load8(w, s->w[0], at.col, at.n, at.aligned, at.dtype);
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] += w[i];
}
TE_FN void te_bias_backward(float v[8], float sum[8], const te_stage *s, te_at at, int code) {
    (void)s, (void)at, (void)code;
    TE_UNROLL for (int i = 0; i < 8; i++) sum[i] += v[i]; /* y = x + bias */
}

#endif
