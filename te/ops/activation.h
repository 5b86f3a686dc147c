/* activation.h -- activations y = f(x), where x and y are [rows, width], and gated linear units (GLU) y = f(a) b, where
 * each row of the input x is [a, b].
 *
 *   gelu      x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))   Hendrycks & Gimpel 2016, tanh approximation
 *   gelu_erf  x / 2 * (1 + erf(x / sqrt(2)))                            gelu without the approximation
 *   qgelu     x * sigmoid(1.702 * x)
 *   relu      max(x, 0)
 *   srelu     max(x, 0)^2                                               squared ReLU, So et al. 2021
 *   silu      x * sigmoid(x);  sigmoid, tanh: these functions themselves
 *   glu       sigmoid(a) * b;  geglu, qgeglu, reglu, sreglu, swiglu: f(a) * b with f = gelu, .., silu   Shazeer 2020
 *   clamped_swiglu  c * sigmoid(alpha * c) * (d + 1), c = min(a, limit), d = b clamped to +-limit: gpt-oss (OpenAI
 *             2025); options with defaults (limit, 7.0f), (alpha, 1.702f). gpt-oss checkpoints interleave a and b in
 *             a row; here the first half of a row is a, the second half b
 *   xielu     with two learnt numbers, at the end of this file
 *
 * Do this:
 *     (linear, fc1, H, F), (gelu, act), (linear, fc2, F, H)                // an activation has no arguments
 *     (linear, fc1, H, 2 * F), (swiglu, act), (linear, fc2, F, H)          // a gated one halves the width
 *
 * The input of a gated activation is [rows, 2 * width]; a is the first half of each row, as in TransformerEngine (in
 * torch.nn.functional.glu the first half is b). The output is [rows, width]. Backward reads the saved input and
 * recomputes f and its derivative.
 */
#ifndef TE_OPS_ACTIVATION_H
#define TE_OPS_ACTIVATION_H

#include "../core/math.h" /* te_sigmoid, te_exp */
#include "elementwise.h"  /* te_stage, te_place */

/* TE_ACTIVATIONS lists the activations as X(kind). TE_GATED_ACTIVATIONS lists the gated activations as X(kind, f),
 * where f is the activation of the row's first half. The tests and benchmarks expand both lists, so a new entry is
 * tested and timed automatically. */
#define TE_ACTIVATIONS(X) X(gelu) X(gelu_erf) X(qgelu) X(relu) X(srelu) X(silu) X(sigmoid) X(tanh)
#define TE_GATED_ACTIVATIONS(X) X(glu, sigmoid) X(geglu, gelu) X(qgeglu, qgelu) X(reglu, relu) X(sreglu, srelu) \
    X(swiglu, silu)

#define TE_ACT_ENUM(kind) TE_ACT_##kind,
#define TE_GATE_ENUM(kind, of) TE_GATE_##kind = TE_ACT_##of,
enum { TE_ACTIVATIONS(TE_ACT_ENUM) TE_ACT_COUNT };
enum { TE_GATED_ACTIVATIONS(TE_GATE_ENUM) TE_GATE_clamped_swiglu = TE_ACT_sigmoid + 1 };
#undef TE_ACT_ENUM
#undef TE_GATE_ENUM

#define TE_OP_gelu (act, map)
#define TE_OP_gelu_erf (act, map)
#define TE_OP_qgelu (act, map)
#define TE_OP_relu (act, map)
#define TE_OP_srelu (act, map)
#define TE_OP_silu (act, map)
#define TE_OP_sigmoid (act, map)
#define TE_OP_tanh (act, map)
#define TE_SHAPES_act(op) (0)
#define TE__ACT_OF(op) (int)TE_JOIN1(TE_ACT_, TE_KIND(op))
#define TE_FLAGS_act(op) (TE_SAVES_INPUT | (TE__ACT_OF(op) == (int)TE_ACT_gelu ? TE_EPILOGUE_OF_GELU : 0))
#define TE_OPTIONS_act(op) (te_act_options, TE__ACT_OF(op))

#define TE_OP_glu (gated, gated)
#define TE_OP_geglu (gated, gated)
#define TE_OP_qgeglu (gated, gated)
#define TE_OP_reglu (gated, gated)
#define TE_OP_sreglu (gated, gated)
#define TE_OP_swiglu (gated, gated)
#define TE_OP_clamped_swiglu (gated, gated)
#define TE_SHAPES_gated(op) (0)
#define TE_TAKES_gated_limit TE_NUMBER
#define TE_TAKES_gated_alpha TE_NUMBER
#define TE__GATE_OF(op) (int)TE_JOIN1(TE_GATE_, TE_KIND(op))
#define TE__KIND_IS_CLAMPED_clamped_swiglu ,
#define TE__IF_CLAMPED(op, yes, no) TE_IF_MARKED(TE_JOIN1(TE__KIND_IS_CLAMPED_, TE_KIND(op)), yes, no)
#define TE_CHECK_gated(model, op)                                                                                    \
    (static_assert(TE__IF_CLAMPED(op, 1, 0) || !TE_HAS_OPTION(op, limit),                                            \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) " takes no option limit");                             \
     static_assert(TE__IF_CLAMPED(op, 1, 0) || !TE_HAS_OPTION(op, alpha),                                            \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) " takes no option alpha");                             \
     TE_ASSERT_NUMBER((TE_OPTION(op, limit, 7.0f)) > 0, "te: " TE_STRING(model) ": " TE_CALLED(op)                   \
         ": the limit must be above 0");)
#define TE_OUT_gated(op, in) ((in) % 2 ? 0 : (in) / 2)
#define TE_FLAGS_gated(op) (TE_SAVES_INPUT)
#define TE_OPTIONS_gated(op) TE__IF_CLAMPED(op, TE__CLAMPED_OPTIONS, TE__GATED_OPTIONS)(op)
#define TE__GATED_OPTIONS(op) (te_act_options, TE__GATE_OF(op))
#define TE__CLAMPED_OPTIONS(op) \
    (te_clamped_options, TE__GATE_OF(op), (float)(TE_OPTION(op, limit, 7.0f)), (float)(TE_OPTION(op, alpha, 1.702f)))

/* code: TE_ACT_gelu, TE_ACT_relu, .., which names the activation or, in a gated activation y = f(a) b, the function
 * f. */
typedef struct te_act_options { int code; } te_act_options;

typedef struct te_clamped_options { int code; float limit, alpha; } te_clamped_options;

/* Returns f(x) and stores f'(x) in *slope. `code` must be a compile-time constant, so that the compiler removes the
 * branches on `code`. */
TE_FN float te_act(float *slope, float x, int code) {
    if (code == TE_ACT_gelu) {
        /* Because (1 + tanh(u)) / 2 = sigmoid(2 * u), gelu is x times a sigmoid. A sigmoid takes one exponential and,
         * unlike 1 + tanh(u), has no cancellation if x is negative and large in absolute value. */
        const float k = 1.5957691216057308f, c = 0.044715f, e = -1.4426950408889634f; /* 2 sqrt(2 / pi); -log2(e) */
        const float square = x * x, t = te_reciprocal(1.0f + te_exp2(x * (k * e + k * c * e * square))), y = x * t;
        /* x^2, limited to 1e30. With x^2 = infinity, the slope would contain 0 times infinity, which is NaN */
        const float finite = square < 1e30f ? square : 1e30f;
        *slope = t + (y - y * t) * (k + 3.0f * c * k * finite);
        return y;
    }
    if (code == TE_ACT_gelu_erf) {
        /* tail = erfc(|x| / sqrt 2) / 2 with an error below 1.5e-7 (Abramowitz & Stegun 7.1.26). The exponential in
         * this formula, e = exp(-x^2 / 2), is also a factor of gelu's derivative. */
        const float t = te_reciprocal(1.0f + 0.23164189f * fabsf(x)), e = te_exp2(-0.7213475204f * x * x);
        const float tail =
            e * t *
            (0.127414796f + t * (-0.142248368f + t * (0.7107068705f + t * (-0.7265760135f + t * 0.5307027145f))));
        *slope = (x < 0 ? tail : 1.0f - tail) + x * 0.3989422804014327f * e; /* 0.3989.. is 1 / sqrt(2 pi) */
        return (x > 0 ? x : 0.0f) - fabsf(x) * tail;
    }
    if (code == TE_ACT_relu) {
        *slope = x <= 0 ? 0.0f : 1.0f; /* written so that NaN propagates */
        return x <= 0 ? 0.0f : x;
    }
    if (code == TE_ACT_srelu) {
        *slope = x <= 0 ? 0.0f : 2.0f * x;
        return x <= 0 ? 0.0f : x * x;
    }
    if (code == TE_ACT_tanh) {
        const float t = tanhf(x);
        *slope = 1.0f - t * t;
        return t;
    }
    const float a = code == TE_ACT_qgelu ? 1.702f : 1.0f, s = te_sigmoid(a * x);
    if (code == TE_ACT_sigmoid) {
        *slope = s * (1.0f - s);
        return s;
    }
    *slope = s + x * s * (1.0f - s) * a; /* silu and qgelu: y = x sigmoid(a x) */
    return x * s;
}

TE_CALLBACK void te_act_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    const int code = ((const te_act_options *)options)->code;
    float slope;
    (void)s, (void)at;
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] = te_act(&slope, v[i], code);
}
TE_CALLBACK void te_act_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options) {
    const int code = ((const te_act_options *)options)->code;
    float x[8], slope;
    (void)sum;
    te_read8(x, s->saved, at.format.in, s, at);
    TE_UNROLL for (int i = 0; i < 8; i++) (void)te_act(&slope, x[i], code), v[i] *= slope; /* dx = dy f'(x) */
}
/* Returns y = f(min(a, limit)) * (1 + clamp(b)), where f(x) = x * sigmoid(alpha * x) and clamp limits b to [-limit,
 * limit]. Stores dy/da in *da and dy/db in *db. NaN propagates. */
TE_FN float te_clamped_swiglu(float *da, float *db, float a, float b, const void *options) {
    const te_clamped_options *o = (const te_clamped_options *)options;
    const float x = a > o->limit ? o->limit : a, up = b > o->limit ? o->limit : b < -o->limit ? -o->limit : b;
    const float s = te_sigmoid(o->alpha * x), f = x * s;
    *da = a > o->limit ? 0.0f : (s + f * (1.0f - s) * o->alpha) * (up + 1.0f);
    *db = b > o->limit || b < -o->limit ? 0.0f : f;
    return f * (up + 1.0f);
}
TE_CALLBACK void te_gated_forward(float v[8], const float g[8], const te_stage *s, te_place at, const void *options) {
    const int code = ((const te_act_options *)options)->code;
    float slope, db;
    (void)s, (void)at;
    TE_UNROLL for (int i = 0; i < 8; i++)
        v[i] = code == TE_GATE_clamped_swiglu ? te_clamped_swiglu(&slope, &db, v[i], g[i], options)
                                              : te_act(&slope, v[i], code) * g[i];
}
/* Computes the gradient of a gated activation y = f(a) b. On entry v holds dy; on return v holds the gradient of a, and
 * g the gradient of b. */
TE_CALLBACK void te_gated_backward(float v[8], float g[8], const te_stage *s, te_place at, const void *options) {
    const int code = ((const te_act_options *)options)->code;
    float a[8], b[8], slope;
    te_read8(a, s->saved, at.format.in, s, at);
    te_read8(b, s->saved, at.format.in, s, te_second_half(at));
    TE_UNROLL for (int i = 0; i < 8; i++) {
        float f; /* f: dy/db of y = f(a) b; slope: dy/da */
        if (code == TE_GATE_clamped_swiglu) (void)te_clamped_swiglu(&slope, &f, a[i], b[i], options);
        else f = te_act(&slope, a[i], code), slope *= b[i];
        g[i] = v[i] * f;
        v[i] *= slope;
    }
}

/* ---- (xielu, name) ----------------------------------------------------------------------------------------------- */

/* xIELU, the activation of the Apertus models (Huang & Schlag 2024, arXiv 2411.13010), has two learnt numbers, alpha_p
 * and alpha_n.
 *     y = A_p x^2 + beta x               if x > 0
 *     y = A_n * (e^x - 1 - x) + beta x   otherwise
 * with A_p = softplus(alpha_p) and A_n = beta + softplus(alpha_n), where softplus(a) = log(1 + e^a). The parameters and
 * checkpoints hold alpha_p and alpha_n, each [1], to which the kernels apply softplus. The option (beta, 0.5f) is a
 * constant of at least 0.
 *
 * Backward reads the saved x and computes the following, where s is the sigmoid, the derivative of softplus:
 *     dx = dy * (2 A_p x + beta) if x > 0, else dy * (A_n * (e^x - 1) + beta)
 *     dalpha_p = s(alpha_p) times the sum of dy x^2 over all x > 0
 *     dalpha_n = s(alpha_n) times the sum of dy * (e^x - 1 - x) over all other x
 * te_model_randomize sets the parameters so that A_p and, if beta is 0.5, A_n are 0.8. If the columns of x are sharded
 * over ranks, each rank holds both parameters, and te_reduce_gradients adds up their gradients. */
#define TE_OP_xielu (xielu, map)
#define TE_SHAPES_xielu(op) (0)
#define TE_FLAGS_xielu(op) (TE_SUMS | TE_SAVES_INPUT | TE_PARAMS_REPLICATED)
#define TE_LAYOUT_FITS_xielu(op, in) ((int)(in) == (int)TE_LAYOUT_replicated || (int)(in) == (int)TE_LAYOUT_columns)
#define TE_PARAMS_xielu(op, in, out) ((alpha_p, 1, 1, xielu_p), (alpha_n, 1, 1, xielu_n))
#define TE_SAME_beta_beta ,
#define TE_TAKES_xielu_beta TE_NUMBER
#define TE__XIELU_BETA(op) (float)(TE_OPTION(op, beta, 0.5f))
#define TE_OPTIONS_xielu(op) (te_xielu_options, TE__XIELU_BETA(op))
#define TE_CHECK_xielu(model, op)                                                                                     \
    (TE_ASSERT_NUMBER(TE__XIELU_BETA(op) >= 0 && TE__XIELU_BETA(op) < 3e38f, "te: " TE_STRING(model) ": "             \
        TE_CALLED(op) ": beta must be a finite number of at least 0");)

typedef struct te_xielu_options { float beta; } te_xielu_options;

/* Returns the softplus of the op's parameter number k. As in PyTorch, a parameter a > 20 is returned unchanged. */
TE_FN float te__xielu_softplus(const te_stage *s, int k, te_dtype dtype) {
    const float a = te_load(s->w[k], 0, dtype);
    return a > 20.0f ? a : log1pf(expf(a));
}
TE_CALLBACK void te_xielu_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    const float beta = ((const te_xielu_options *)options)->beta;
    const float a_p = te__xielu_softplus(s, 0, at.format.weight), n = te__xielu_softplus(s, 1, at.format.weight);
    /* A_n * (e^x - 1 - x) + beta * x is computed as A_n * (e^x - 1) - n * x with n = A_n - beta. For x = -infinity the
     * first of these formulas would be infinity - infinity, which is NaN. */
    TE_UNROLL for (int i = 0; i < 8; i++)
        v[i] = v[i] > 0 ? v[i] * (a_p * v[i] + beta) : (beta + n) * expm1f(v[i]) - n * v[i];
}
TE_CALLBACK void te_xielu_backward(float v[8], float sum[16], const te_stage *s, te_place at, const void *options) {
    const float beta = ((const te_xielu_options *)options)->beta;
    const float a_p = te__xielu_softplus(s, 0, at.format.weight), n = te__xielu_softplus(s, 1, at.format.weight);
    const float slope_p = te_sigmoid(te_load(s->w[0], 0, at.format.weight));
    const float slope_n = te_sigmoid(te_load(s->w[1], 0, at.format.weight));
    float x[8];
    te_read8(x, s->saved, at.format.in, s, at);
    TE_UNROLL for (int i = 0; i < 8; i++) {
        const float e = expm1f(x[i]);
        if (x[i] > 0) sum[i] += v[i] * x[i] * x[i] * slope_p; /* y = A_p x^2 + beta x */
        else sum[8 + i] += v[i] * (e - x[i]) * slope_n;       /* y = A_n (e^x - 1 - x) + beta x */
        v[i] *= x[i] > 0 ? 2.0f * a_p * x[i] + beta : (beta + n) * e + beta;
    }
}

#endif
