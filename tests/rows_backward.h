// rows_backward.h -- lists that exercise every row of the backward fusion list, for tests (rows.h) and benches. A template by inclusion; its
// inputs:
//     ROW_CASE(name, row, step, ops...)    what becomes of a list
//     ROW_SPACE              the namespace that the models go into
//     ROW_DTYPE              f32, bf16, f16; stays defined
//     ROW_IN, ROW_OUT        widths
//     ROW_ALL                1: every activation and norm; 0: one of each
// A row of TE_BACKWARD_PATTERNS that has no ROW_OF_<row> here does not compile.
#if !defined ROW_CASE || !defined ROW_SPACE || !defined ROW_DTYPE || !defined ROW_IN || !defined ROW_OUT || !defined ROW_ALL
#error "rows_backward.h needs ROW_CASE, ROW_SPACE, ROW_DTYPE, ROW_IN, ROW_OUT, ROW_ALL"
#endif

#ifndef TESTS_ROWS_BACKWARD_H
#define TESTS_ROWS_BACKWARD_H

// Each stands inside a list, so that a gradient comes in from behind and goes on to something before.
#define ROW_OF_act_bias ROW_ACTIVATIONS(ROW_act_bias)
#define ROW_act_bias(kind) \
    ROW_CASE(kind##_bias, "act_bias", #kind "_bias", (linear, p, ROW_OUT, ROW_IN), (bias, b, ROW_IN), (kind, a), (scale, s, 0.75f))

#define ROW_OF_gated_bias ROW_GATED_ACTIVATIONS(ROW_gated_bias)
#define ROW_gated_bias(kind, etc) \
    ROW_CASE(kind##_bias, "gated_bias", #kind "_bias", (linear, p, ROW_IN, 2 * ROW_OUT), (bias, b, 2 * ROW_OUT), (kind, a), (scale, s, 0.75f))

#define ROW_OF_dropout_bias \
    ROW_CASE(dropout_bias, "dropout_bias", "dropout_bias", (linear, p, ROW_OUT, ROW_IN), (bias, b, ROW_IN), (dropout, d, 0.2f), (scale, s, 0.75f))

#define ROW_OF_add_bias                                     \
    ROW_CASE(add_bias, "add_bias", "add_bias",              \
             (fork, x), (linear, p, ROW_IN, ROW_IN), (bias, b, ROW_IN), (add, x), (scale, s, 0.75f))

#define ROW_OF_add_dropout_bias                                           \
    ROW_CASE(add_dropout_bias, "add_dropout_bias", "add_dropout_bias",    \
             (fork, x), (linear, p, ROW_IN, ROW_IN), (bias, b, ROW_IN), (dropout, d, 0.3f), (add, x), (scale, s, 0.75f))

#define ROW_OF_norm_fork ROW_NORMS(ROW_norm_fork)
#define ROW_norm_fork(kind, etc)                              \
    ROW_CASE(kind##_fork, "norm_fork", #kind "_fork",       \
             (linear, p, ROW_OUT, ROW_IN), (fork, x), (kind, n, ROW_IN), (linear, q, ROW_IN, ROW_IN), (add, x))

#define ROW_OF_norm_fork_add_bias ROW_NORMS(ROW_norm_fork_add_bias)
#define ROW_norm_fork_add_bias(kind, etc)                                               \
    ROW_CASE(kind##_fork_add_bias, "norm_fork_add_bias", #kind "_fork_add_bias",      \
             (fork, x), (linear, p, ROW_IN, ROW_IN), (bias, b, ROW_IN), (add, x), (fork, z), (kind, n, ROW_IN), (scale, s, 0.75f), (add, z))

#define ROW_OF_norm_fork_add_dropout ROW_NORMS(ROW_norm_fork_add_dropout)
#define ROW_norm_fork_add_dropout(kind, etc)                                                     \
    ROW_CASE(kind##_fork_add_dropout, "norm_fork_add_dropout", #kind "_fork_add_dropout",      \
             (fork, x), (linear, p, ROW_IN, ROW_IN), (dropout, d, 0.4f), (add, x), (fork, z), (kind, n, ROW_IN), (scale, s, 0.75f), (add, z))

#define ROW_OF_norm_fork_add_dropout_bias ROW_NORMS(ROW_norm_fork_add_dropout_bias)
#define ROW_norm_fork_add_dropout_bias(kind, etc)                                                              \
    ROW_CASE(kind##_fork_add_dropout_bias, "norm_fork_add_dropout_bias", #kind "_fork_add_dropout_bias",     \
             (fork, x), (linear, p, ROW_OUT, ROW_OUT), (bias, b, ROW_OUT), (dropout, d, 0.1f), (add, x), (fork, z), (kind, n, ROW_OUT), \
             (scale, s, 0.75f), (add, z))

#define ROW_OF_linear_fork \
    ROW_CASE(linear_fork, "linear_fork", "linear_fork", (scale, s, 0.75f), (fork, x), (linear, l, ROW_IN, ROW_IN), (add, x), (scale, t, 1.5f))

#define ROW_OF_linear_act_bias ROW_ACTIVATIONS(ROW_linear_act_bias)
#define ROW_linear_act_bias(kind) \
    ROW_CASE(linear_##kind##_bias, "linear_act_bias", "linear_" #kind "_bias", (linear, p, ROW_OUT, ROW_IN), (bias, b, ROW_IN), (kind, a), (linear, q, ROW_IN, ROW_OUT))

#define ROW_OF_linear_gated ROW_GATED_ACTIVATIONS(ROW_linear_gated)
#define ROW_linear_gated(kind, etc) \
    ROW_CASE(linear_##kind, "linear_gated", "linear_" #kind, (linear, p, ROW_OUT, 2 * ROW_IN), (kind, a), (linear, q, ROW_IN, ROW_OUT))

#define ROW_OF_linear_gated_bias ROW_GATED_ACTIVATIONS(ROW_linear_gated_bias)
#define ROW_linear_gated_bias(kind, etc) \
    ROW_CASE(linear_##kind##_bias, "linear_gated_bias", "linear_" #kind "_bias", (linear, p, ROW_OUT, 2 * ROW_IN), (bias, b, 2 * ROW_IN), (kind, a), \
             (linear, q, ROW_IN, ROW_OUT))

#define ROW_OF_attention_bias \
    ROW_CASE(attention_bias, "attention_bias", "attention_bias", (linear, p, ROW_IN, 8 * 16), (bias, b, 8 * 16), (attention, a, 4, 2, 16), (linear, q, 4 * 16, ROW_OUT))

#define ROW_OF_norm_fork_add_add_bias ROW_NORMS(ROW_norm_fork_add_add_bias)
#define ROW_norm_fork_add_add_bias(kind, etc)                                                   \
    ROW_CASE(kind##_fork_add_add_bias, "norm_fork_add_add_bias", #kind "_fork_add_add_bias",  \
             (fork, x), (scale, r, 0.5f), (fork, a), (linear, p, ROW_IN, ROW_IN), (bias, b, ROW_IN), (add, a), (add, x), (fork, z), (kind, n, ROW_IN), \
             (scale, s, 0.75f), (add, z))

#define ROW_OF_mul_bias \
    ROW_CASE(mul_bias, "mul_bias", "mul_bias", (fork, x), (linear, p, ROW_IN, ROW_IN), (bias, b, ROW_IN), (mul, x), (scale, s, 0.75f))

#define ROW_OF_norm_fork_add_mul_param ROW_NORMS(ROW_norm_fork_add_mul_param)
#define ROW_norm_fork_add_mul_param(kind, etc)                                                    \
    ROW_CASE(kind##_fork_add_mul_param, "norm_fork_add_mul_param", #kind "_fork_add_mul_param", \
             (fork, x), (linear, p, ROW_IN, ROW_IN), (mul_param, m, ROW_IN), (add, x), (fork, z), (kind, n, ROW_IN), (scale, s, 0.75f), (add, z))

#define ROW_OF_dyt_fork \
    ROW_CASE(dyt_fork, "dyt_fork", "dyt_fork", (linear, p, ROW_OUT, ROW_IN), (fork, x), (dyt, n, ROW_IN), (linear, q, ROW_IN, ROW_IN), (add, x))

#define ROW_OF_rope_head_norm \
    ROW_CASE(rope_head_norm, "rope_head_norm", "rope_head_norm1p", (linear, p, ROW_IN, 8 * 128), (head_norm1p, n, 4, 2, 128), (rope, r, 4, 2, 128), (linear, q, 8 * 128, ROW_OUT))

#define ROW_OF(row) ROW_OF_##row

#endif

#if ROW_ALL
#define ROW_ACTIVATIONS TE_ACTIVATIONS
#define ROW_GATED_ACTIVATIONS TE_GATED_ACTIVATIONS
#define ROW_NORMS TE_NORMS
#else
#define ROW_ACTIVATIONS(X) X(gelu)
#define ROW_GATED_ACTIVATIONS(X) X(swiglu, silu)
#define ROW_NORMS(X) X(layernorm, 2)
#endif

namespace ROW_SPACE {
TE_BACKWARD_PATTERNS(ROW_OF)
}

#undef ROW_SPACE
#undef ROW_HOW
#undef ROW_IN
#undef ROW_OUT
#undef ROW_ALL
#undef ROW_ACTIVATIONS
#undef ROW_GATED_ACTIVATIONS
#undef ROW_NORMS
