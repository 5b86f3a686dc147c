/* elementwise.h -- the interface of elementwise ops, and the smallest of them. x and y are [rows, width].
 *
 *   (bias, name, width)        y = x + bias[width]
 *   (scale, name, factor)      y = factor * x, a constant factor
 *   (mul_param, name, width)   y = x * weight[width] (layer scale, Touvron et al. 2021, arXiv 2103.17239);
 *   (mul_param, name, 1)       y = x * weight[1], one learnt factor
 *   (softcap, name, cap)       y = cap * tanh(x / cap), so |y| <= cap (logits of Gemma 2, arXiv 2408.00118: cap 30)
 *   (dyt, name, width)         y = weight * tanh(alpha * x) + bias, in place of a norm
 *
 * Do this:
 *     TE_SEQUENTIAL(layer, bf16, (linear, fc, 768, 3072), (bias, fc_b, 3072), (gelu, act), (mul_param, ls, 3072))
 *
 * mul_param and softcap save x for backward; bias and scale save nothing. The gradients of bias and of weight are sums
 * over all rows, one for each column. te_model_randomize sets bias to 0 and weight to 1.
 *
 * An elementwise op (class `map`) is two functions, found by name; CONTRIBUTING.md shows how to add one:
 *     te_<family>_forward(float v[8], const te_stage *s, te_place at, const void *options)
 *     te_<family>_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options)
 * v holds eight neighbouring elements of a row in registers: in forward x on entry and y on return, in backward dy on
 * entry and dx on return. Elements from index at.n on lie outside the row: results for these elements are never stored,
 * but computing such results must not trap. `options` points to the op's te_<family>_options, whose members are
 * constants. `sum` is for ops with the flag TE_SUMS: add to `sum` the contribution of these eight elements to the
 * gradient of the op's first parameter.
 */
#ifndef TE_OPS_ELEMENTWISE_H
#define TE_OPS_ELEMENTWISE_H

#include "../core/dtype.h"  /* te_load8, te_vec8 */
#include "../core/philox.h" /* te_rng */
#include "../plan/model.h"  /* TE_MAX_PARAMS */

/* ---- the interface ----------------------------------------------------------------------------------------------- */

/* The number formats that the operands of an op have in memory. */
typedef struct te_formats {
    te_dtype in, out; /* the op's input and output in forward */
    te_dtype edge;    /* the value of the op's fork */
    te_dtype weight;  /* the op's parameters */
    /* 1 if the fork's value (in backward, the sum of the gradients from the fork's uses) is stored by the same kernel
     * that runs this op. The kernel must then neither prefetch the value nor load it through a non-coherent cache */
    int local_fork;
    int stores_fork_grad; /* 1 if in backward the op's own function stores the gradient of its fork's value, so that the
                           * kernel need not store it */
} te_formats;

TE_BOTH te_formats te_formats_of(int in, int out, int edge, int weight) {
    te_formats f;
    f.in = (te_dtype)in, f.out = (te_dtype)out, f.edge = (te_dtype)edge, f.weight = (te_dtype)weight;
    f.local_fork = f.stores_fork_grad = 0;
    return f;
}

/* Where eight neighbouring elements lie: their row, columns and formats. */
typedef struct te_place {
    int64_t row;
    int col, n;        /* col: the column of the first of the eight elements; n: the number of elements that lie in the
                        * row: 8, or fewer at the row's end */
    /* a row has width * halves elements; halves: 2 for the input [a, b] of a gated activation, else 1 */
    int width, halves;
    int aligned;       /* 1 if the width is a multiple of eight, so that vector loads are allowed */
    te_formats format;
    /* the op whose operand (its saved input or its fork's value) has been prefetched to `ahead`; null if none has been
     * prefetched */
    const struct te_stage *ahead_of;
    /* ahead: the eight 16-bit elements that have been prefetched for the op ahead_of; ahead_second: if halves is 2, the
     * eight elements that have been prefetched from the second half of the row */
    te_vec8 ahead, ahead_second;
} te_place;
/* Returns the index of the first of the place's eight elements in a tensor whose rows have width * halves elements. */
TE_FN int64_t te_index(te_place at) { return at.row * ((int64_t)at.width * at.halves) + at.col; }

/* The operands of one of the ops that a kernel computes. */
typedef struct te_stage {
    /* the op's parameters; null for a bias that the epilogue of the preceding GEMM has already added. In backward of
     * the op `mul`, w[0] is the fork's value, by which forward has multiplied */
    const void *w[TE_MAX_PARAMS];
    /* for add and mul in forward: the fork's value. For add, mul and fork in backward: the sum of the gradients from
     * those uses of the fork that backward has already processed; null if there is no such use */
    const void *edge;
    const void *saved;            /* for backward: the op's input, which forward has saved, [rows, width of the
                                   * input] */
    /* where the op stores a tensor in addition to the kernel's result, or null: in forward the op's output; in
     * backward, if the op uses a fork, the gradient of the fork's value */
    void *out;
    float *stats;                 /* for norms: the statistics of each row, such as rstd, [rows, statistics] */
    /* for backward: partial sums of the gradient of each parameter of the op; each is [blocks, width], one row for each
     * block of the kernel */
    float *sum[TE_MAX_PARAMS];
    const te_rng *rng;            /* the random state (seed and offset) from which dropout draws its masks */
    int64_t first;                /* for dropout: the index of this rank's first element within the tensor of all
                                   * ranks */
    uint32_t id;                  /* the op's index in the op list; it selects the Philox stream from which the op draws
                                   * random numbers */
} te_stage;

/* Loads eight elements of p, which is either s->saved (format: at.format.in) or s->edge (format: at.format.edge). If
 * the eight elements have been prefetched, the function takes them from registers, else from memory. */
TE_FN void te_read8(float v[8], const void *p, te_dtype dtype, const te_stage *s, te_place at) {
    if (s == at.ahead_of) te_vec8_floats(v, &at.ahead, dtype);
    else if (at.format.local_fork && p == s->edge) te_load8_coherent(v, p, te_index(at), at.n, at.aligned, dtype);
    else te_load8(v, p, te_index(at), at.n, at.aligned, dtype);
}
/* The input of a gated activation has rows [a, b] of two halves. Given the place of eight elements of a, returns the
 * place of the matching eight elements of b. */
TE_FN te_place te_second_half(te_place at) {
    at.col += at.width, at.ahead = at.ahead_second;
    return at;
}

/* ---- (bias, name, width) ----------------------------------------------------------------------------------------- */

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
    /* y = x + bias, so dx = dy, and dbias is the sum of dy over the rows */
    TE_UNROLL for (int i = 0; i < 8; i++) sum[i] += v[i];
}

/* ---- (scale, name, factor) --------------------------------------------------------------------------------------- */

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
    te_scale_forward(v, s, at, options); /* y = factor x, so dx = factor dy */
}

/* ---- (mul_param, name, width), (mul_param, name, 1) -------------------------------------------------------------- */

/* Backward of y = x * weight: dx = dy * weight; dweight is the sum of dy * x over all rows, for each column. If the op
 * has only one learnt factor, dweight is the total of these sums, added in the order of the columns. */
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

typedef struct te_mul_param_options { int is_one; } te_mul_param_options; /* is_one is 1 if all columns have the same
                                                                           * learnt factor */

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
    /* y = x * weight, so dx = dy * weight, and dweight is the sum of dy * x over the rows */
    TE_UNROLL for (int i = 0; i < 8; i++) sum[i] += v[i] * x[i], v[i] *= w[i];
}

/* ---- (softcap, name, cap) ---------------------------------------------------------------------------------------- */

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
        v[i] *= 1.0f - t * t; /* y = cap * tanh(x / cap), so dx = dy * (1 - tanh(x / cap)^2) */
    }
}

/* ---- (dyt, name, width) ------------------------------------------------------------------------------------------ */

/* Dynamic tanh, y = weight * tanh(alpha * x) + bias, used in place of a norm (Zhu et al. 2025, arXiv 2503.10622).
 * weight and bias are [width]; alpha is one number. Unlike a norm, dyt needs no statistics of the row, so it is
 * elementwise and may be fused into the epilogue of a GEMM. Backward reads the saved x and computes, with t =
 * tanh(alpha * x):
 *     dx = dy * weight * (1 - t^2) * alpha,   dalpha = the sum of dy * weight * (1 - t^2) * x over rows and columns,
 *     dweight = the sum of dy * t over the rows, for each column,  dbias = the sum of dy over the rows, for each column
 * te_model_randomize sets alpha to 0.5, weight to 1 and bias to 0. */
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
        sum[i] += d * x[i], sum[8 + i] += v[i] * t, sum[16 + i] += v[i]; /* terms of dalpha, dweight and dbias */
        v[i] = d * alpha;
    }
}

#endif
