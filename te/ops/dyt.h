/* dyt.h -- (dyt, name, width): dynamic tanh, y = weight tanh(alpha x) + bias, used in place of a norm. x and y are
 * [rows, width], weight and bias [width]; alpha is one number. Zhu et al. 2025 (arXiv 2503.10622).
 *
 * Do this:
 *     (fork, x1), (dyt, norm1, H), (linear, qkv, H, 3 * H)
 *
 * Unlike a norm, dyt needs no statistics of the row, so it is elementwise and may be fused into the epilogue of a GEMM.
 * Backward reads the saved x and computes, with t = tanh(alpha x):
 *     dx = dy weight (1 - t^2) alpha,   dalpha = the sum of dy weight (1 - t^2) x over rows and columns,
 *     dweight = the sum of dy t over the rows, for each column,    dbias = the sum of dy over the rows, for each column
 * te_model_randomize sets alpha to 0.5, weight to 1 and bias to 0.
 */
#ifndef TE_OPS_DYT_H
#define TE_OPS_DYT_H

#include "elementwise.h" /* te_stage, te_place */

#define TE_OP_dyt (dyt, map)
#define TE_SHAPES_dyt(op) (1)
#define TE_IN_dyt(op) (TE_ARG1(op, 0))
#define TE_FLAGS_dyt(op) (TE_SUMS | TE_SAVES_INPUT)
#define TE_PARAMS_dyt(op, in, out) ((alpha, 1, 1, half), (weight, 1, out, one), (bias, 1, out, zero))

TE_CALLBACK void te_dyt_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    const float alpha = te_load(s->w[0], 0, at.format.weight);
    float w[8], b[8];
    (void)options;
    te_load8(w, s->w[1], at.col, at.n, at.aligned, at.format.weight);
    te_load8(b, s->w[2], at.col, at.n, at.aligned, at.format.weight);
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] = w[i] * tanhf(alpha * v[i]) + b[i];
}
TE_CALLBACK void te_dyt_backward(float v[8], float sum[24], const te_stage *s, te_place at, const void *options) {
    const float alpha = te_load(s->w[0], 0, at.format.weight);
    float w[8], x[8];
    (void)options;
    te_load8(w, s->w[1], at.col, at.n, at.aligned, at.format.weight);
    te_read8(x, s->saved, at.format.in, s, at);
    TE_UNROLL for (int i = 0; i < 8; i++) {
        const float t = tanhf(alpha * x[i]), d = v[i] * w[i] * (1.0f - t * t);
        sum[i] += d * x[i], sum[8 + i] += v[i] * t, sum[16 + i] += v[i]; /* for dalpha, dweight and dbias */
        v[i] = d * alpha;
    }
}

#endif
