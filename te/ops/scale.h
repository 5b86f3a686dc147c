/* scale.h -- (scale, name, factor): y = factor x. */
#ifndef TE_OPS_SCALE_H
#define TE_OPS_SCALE_H

#include "map.h" /* te_stage, te_place */

#define TE_OP_scale (scale, map)
#define TE_SHAPES_scale(op) (1)
#define TE_FLAGS_scale(op) (TE_EPILOGUE_OF_SCALE)
#define TE_OPTIONS_scale(op) (te_scale_options, (float)(TE_ARG1(op, 1.0f)))

typedef struct te_scale_options { float factor; } te_scale_options;

TE_CALLBACK void te_scale_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    const float factor = ((const te_scale_options *)options)->factor;
    (void)s, (void)at;
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] *= factor;
}
TE_CALLBACK void te_scale_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options) {
    (void)sum;
    te_scale_forward(v, s, at, options); /* y = factor x */
}

#endif
