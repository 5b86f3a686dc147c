/* scale.h -- (scale, name, factor): y = factor x. */
#ifndef TE_OPS_SCALE_H
#define TE_OPS_SCALE_H

#include "../fuse/chain.h" /* te_stage, te_at */

#define TE_OP_scale (scale, 0, map)
#define TE_IN_scale(op) 0
#define TE_OUT_scale(op, in) in
#define TE_FLAGS_scale(op) 0
#define TE_TRAITS_scale(model, op, in, out) 0, -1, {(float)(TE_ARG1(op, 1.0f)), 0}, TE_NO_PARAMS
#define TE_FIELDS_scale(op)
#define TE_DECLARE_scale(model, op)

TE_FN void te_scale_forward(float v[8], const te_stage *s, te_at at, int code) {
    (void)at, (void)code;
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] *= s->value[0];
}
TE_FN void te_scale_backward(float v[8], float sum[8], const te_stage *s, te_at at, int code) {
    (void)sum;
    te_scale_forward(v, s, at, code); /* y = factor x */
}

#endif
