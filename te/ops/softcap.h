/* softcap.h -- (softcap, name, cap): y = cap tanh(x / cap), so |y| <= cap. Gemma 2 bounds its final logits so, with
 * a cap of 30 (Gemma Team 2024, arXiv 2408.00118).
 */
#ifndef TE_OPS_SOFTCAP_H
#define TE_OPS_SOFTCAP_H

#include "map.h" /* te_stage, te_place */

#define TE_OP_softcap (softcap, map)
#define TE_SHAPES_softcap(op) (1)
#define TE_FLAGS_softcap(op) (TE_SAVES_INPUT)
#define TE_OPTIONS_softcap(op) (te_softcap_options, (float)(TE_ARG1(op, 0.0f)))
#define TE_CHECK_softcap(model, op)                                                                            \
    (TE_ASSERT_NUMBER((TE_ARG1(op, 0.0f)) > 0 && (TE_ARG1(op, 0.0f)) < 3e38f, "te: " TE_STRING(model) ": "     \
        TE_CALLED(op) ": the cap must be a finite number above 0");)

typedef struct te_softcap_options { float cap; } te_softcap_options;

TE_CALLBACK void te_softcap_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    const float cap = ((const te_softcap_options *)options)->cap;
    (void)s, (void)at;
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] = cap * tanhf(v[i] / cap);
}
TE_CALLBACK void te_softcap_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options) {
    const float cap = ((const te_softcap_options *)options)->cap;
    float x[8];
    (void)sum;
    te_read8(x, s->saved, at.format.in, s, at);
    TE_UNROLL for (int i = 0; i < 8; i++) {
        const float t = tanhf(x[i] / cap);
        v[i] *= 1.0f - t * t; /* y = cap tanh(x / cap) */
    }
}

#endif
