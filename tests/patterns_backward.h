// patterns_backward.h -- for each pattern of the backward fusion list a list of ops that uses it, for tests (patterns.h) and benches. A template by
// inclusion; its inputs:
//     PATTERN_CASE(name, pattern, step, ops...)    a macro that is expanded for each list
//     PATTERN_SPACE              the namespace of the models
//     PATTERN_DTYPE              f32, bf16, f16; stays defined
//     PATTERN_IN, PATTERN_OUT    the widths of the lists
//     PATTERN_ALL                1: every activation and norm; 0: one of each
// If a pattern of TE_BACKWARD_PATTERNS has no PATTERN_OF_<pattern> here, this does not compile.
#if !defined PATTERN_CASE || !defined PATTERN_SPACE || !defined PATTERN_DTYPE || !defined PATTERN_IN || !defined PATTERN_OUT || !defined PATTERN_ALL
#error "patterns_backward.h needs PATTERN_CASE, PATTERN_SPACE, PATTERN_DTYPE, PATTERN_IN, PATTERN_OUT, PATTERN_ALL"
#endif

#ifndef TESTS_PATTERNS_BACKWARD_H
#define TESTS_PATTERNS_BACKWARD_H

// Each list has ops behind and in front of the pattern, so that the pattern reads a gradient and passes one on.
#define PATTERN_OF_act_bias PATTERN_ACTIVATIONS(PATTERN_act_bias)
#define PATTERN_act_bias(kind) \
    PATTERN_CASE(kind##_bias, "act_bias", #kind "_bias", (linear, p, PATTERN_OUT, PATTERN_IN), (bias, b, PATTERN_IN), (kind, a), (scale, s, 0.75f))

#define PATTERN_OF_gated_bias PATTERN_GATED_ACTIVATIONS(PATTERN_gated_bias)
#define PATTERN_gated_bias(kind, etc) \
    PATTERN_CASE(kind##_bias, "gated_bias", #kind "_bias", (linear, p, PATTERN_IN, 2 * PATTERN_OUT), (bias, b, 2 * PATTERN_OUT), (kind, a), (scale, s, 0.75f))

#define PATTERN_OF_dropout_bias \
    PATTERN_CASE(dropout_bias, "dropout_bias", "dropout_bias", (linear, p, PATTERN_OUT, PATTERN_IN), (bias, b, PATTERN_IN), (dropout, d, 0.2f), (scale, s, 0.75f))

#define PATTERN_OF_add_bias                                     \
    PATTERN_CASE(add_bias, "add_bias", "add_bias",              \
             (fork, x), (linear, p, PATTERN_IN, PATTERN_IN), (bias, b, PATTERN_IN), (add, x), (scale, s, 0.75f))

#define PATTERN_OF_add_dropout_bias                                           \
    PATTERN_CASE(add_dropout_bias, "add_dropout_bias", "add_dropout_bias",    \
             (fork, x), (linear, p, PATTERN_IN, PATTERN_IN), (bias, b, PATTERN_IN), (dropout, d, 0.3f), (add, x), (scale, s, 0.75f))

#define PATTERN_OF_norm_fork PATTERN_NORMS(PATTERN_norm_fork)
#define PATTERN_norm_fork(kind, etc)                              \
    PATTERN_CASE(kind##_fork, "norm_fork", #kind "_fork",       \
             (linear, p, PATTERN_OUT, PATTERN_IN), (fork, x), (kind, n, PATTERN_IN), (linear, q, PATTERN_IN, PATTERN_IN), (add, x))

#define PATTERN_OF_norm_fork_add_bias PATTERN_NORMS(PATTERN_norm_fork_add_bias)
#define PATTERN_norm_fork_add_bias(kind, etc)                                               \
    PATTERN_CASE(kind##_fork_add_bias, "norm_fork_add_bias", #kind "_fork_add_bias",      \
             (fork, x), (linear, p, PATTERN_IN, PATTERN_IN), (bias, b, PATTERN_IN), (add, x), (fork, z), (kind, n, PATTERN_IN), (scale, s, 0.75f), (add, z))

#define PATTERN_OF_norm_fork_add_dropout PATTERN_NORMS(PATTERN_norm_fork_add_dropout)
#define PATTERN_norm_fork_add_dropout(kind, etc)                                                     \
    PATTERN_CASE(kind##_fork_add_dropout, "norm_fork_add_dropout", #kind "_fork_add_dropout",      \
             (fork, x), (linear, p, PATTERN_IN, PATTERN_IN), (dropout, d, 0.4f), (add, x), (fork, z), (kind, n, PATTERN_IN), (scale, s, 0.75f), (add, z))

#define PATTERN_OF_norm_fork_add_dropout_bias PATTERN_NORMS(PATTERN_norm_fork_add_dropout_bias)
#define PATTERN_norm_fork_add_dropout_bias(kind, etc)                                                              \
    PATTERN_CASE(kind##_fork_add_dropout_bias, "norm_fork_add_dropout_bias", #kind "_fork_add_dropout_bias",     \
             (fork, x), (linear, p, PATTERN_OUT, PATTERN_OUT), (bias, b, PATTERN_OUT), (dropout, d, 0.1f), (add, x), (fork, z), (kind, n, PATTERN_OUT), \
             (scale, s, 0.75f), (add, z))

#define PATTERN_OF_norm_output PATTERN_NORMS(PATTERN_norm_output)
#define PATTERN_norm_output(kind, etc)                              \
    PATTERN_CASE(kind##_output, "norm_output", #kind "_output",     \
             (linear, p, PATTERN_OUT, PATTERN_IN), (output, o), (kind, n, PATTERN_IN), (linear, q, PATTERN_IN, PATTERN_IN))

#define PATTERN_OF_norm_output_add_bias PATTERN_NORMS(PATTERN_norm_output_add_bias)
#define PATTERN_norm_output_add_bias(kind, etc)                                                 \
    PATTERN_CASE(kind##_output_add_bias, "norm_output_add_bias", #kind "_output_add_bias",      \
             (fork, x), (linear, p, PATTERN_IN, PATTERN_IN), (bias, b, PATTERN_IN), (add, x), (output, o), (kind, n, PATTERN_IN), (scale, s, 0.75f))

#define PATTERN_OF_norm_output_add_dropout PATTERN_NORMS(PATTERN_norm_output_add_dropout)
#define PATTERN_norm_output_add_dropout(kind, etc)                                                       \
    PATTERN_CASE(kind##_output_add_dropout, "norm_output_add_dropout", #kind "_output_add_dropout",      \
             (fork, x), (linear, p, PATTERN_IN, PATTERN_IN), (dropout, d, 0.4f), (add, x), (output, o), (kind, n, PATTERN_IN), (scale, s, 0.75f))

#define PATTERN_OF_norm_output_add_dropout_bias PATTERN_NORMS(PATTERN_norm_output_add_dropout_bias)
#define PATTERN_norm_output_add_dropout_bias(kind, etc)                                                                \
    PATTERN_CASE(kind##_output_add_dropout_bias, "norm_output_add_dropout_bias", #kind "_output_add_dropout_bias",     \
             (fork, x), (linear, p, PATTERN_OUT, PATTERN_OUT), (bias, b, PATTERN_OUT), (dropout, d, 0.1f), (add, x), (output, o), (kind, n, PATTERN_OUT), \
             (scale, s, 0.75f))

#define PATTERN_OF_norm_add_bias PATTERN_NORMS(PATTERN_norm_add_bias)
#define PATTERN_norm_add_bias(kind, etc)                              \
    PATTERN_CASE(kind##_add_bias, "norm_add_bias", #kind "_add_bias", \
             (fork, x), (linear, p, PATTERN_IN, PATTERN_IN), (bias, b, PATTERN_IN), (add, x), (kind, n, PATTERN_IN), (scale, s, 0.75f))

#define PATTERN_OF_norm_add_dropout_bias PATTERN_NORMS(PATTERN_norm_add_dropout_bias)
#define PATTERN_norm_add_dropout_bias(kind, etc)                                              \
    PATTERN_CASE(kind##_add_dropout_bias, "norm_add_dropout_bias", #kind "_add_dropout_bias", \
             (fork, x), (linear, p, PATTERN_OUT, PATTERN_OUT), (bias, b, PATTERN_OUT), (dropout, d, 0.1f), (add, x), (kind, n, PATTERN_OUT), (scale, s, 0.75f))

#define PATTERN_OF_linear_fork \
    PATTERN_CASE(linear_fork, "linear_fork", "linear_fork", (scale, s, 0.75f), (fork, x), (linear, l, PATTERN_IN, PATTERN_IN), (add, x), (scale, t, 1.5f))

#define PATTERN_OF_linear_act_bias PATTERN_ACTIVATIONS(PATTERN_linear_act_bias)
#define PATTERN_linear_act_bias(kind) \
    PATTERN_CASE(linear_##kind##_bias, "linear_act_bias", "linear_" #kind "_bias", (linear, p, PATTERN_OUT, PATTERN_IN), (bias, b, PATTERN_IN), (kind, a), (linear, q, PATTERN_IN, PATTERN_OUT))

#define PATTERN_OF_linear_gated PATTERN_GATED_ACTIVATIONS(PATTERN_linear_gated)
#define PATTERN_linear_gated(kind, etc) \
    PATTERN_CASE(linear_##kind, "linear_gated", "linear_" #kind, (linear, p, PATTERN_OUT, 2 * PATTERN_IN), (kind, a), (linear, q, PATTERN_IN, PATTERN_OUT))

#define PATTERN_OF_linear_gated_bias PATTERN_GATED_ACTIVATIONS(PATTERN_linear_gated_bias)
#define PATTERN_linear_gated_bias(kind, etc) \
    PATTERN_CASE(linear_##kind##_bias, "linear_gated_bias", "linear_" #kind "_bias", (linear, p, PATTERN_OUT, 2 * PATTERN_IN), (bias, b, 2 * PATTERN_IN), (kind, a), \
             (linear, q, PATTERN_IN, PATTERN_OUT))

#define PATTERN_OF_attention_bias \
    PATTERN_CASE(attention_bias, "attention_bias", "attention_bias", (linear, p, PATTERN_IN, 8 * 16), (bias, b, 8 * 16), (attention, a, 4, 2, 16), (linear, q, 4 * 16, PATTERN_OUT))

#define PATTERN_OF_norm_fork_add_add_bias PATTERN_NORMS(PATTERN_norm_fork_add_add_bias)
#define PATTERN_norm_fork_add_add_bias(kind, etc)                                                   \
    PATTERN_CASE(kind##_fork_add_add_bias, "norm_fork_add_add_bias", #kind "_fork_add_add_bias",  \
             (fork, x), (scale, r, 0.5f), (fork, a), (linear, p, PATTERN_IN, PATTERN_IN), (bias, b, PATTERN_IN), (add, a), (add, x), (fork, z), (kind, n, PATTERN_IN), \
             (scale, s, 0.75f), (add, z))

#define PATTERN_OF_mul_bias \
    PATTERN_CASE(mul_bias, "mul_bias", "mul_bias", (fork, x), (linear, p, PATTERN_IN, PATTERN_IN), (bias, b, PATTERN_IN), (mul, x), (scale, s, 0.75f))

#define PATTERN_OF_norm_fork_add_mul_param PATTERN_NORMS(PATTERN_norm_fork_add_mul_param)
#define PATTERN_norm_fork_add_mul_param(kind, etc)                                                    \
    PATTERN_CASE(kind##_fork_add_mul_param, "norm_fork_add_mul_param", #kind "_fork_add_mul_param", \
             (fork, x), (linear, p, PATTERN_IN, PATTERN_IN), (mul_param, m, PATTERN_IN), (add, x), (fork, z), (kind, n, PATTERN_IN), (scale, s, 0.75f), (add, z))

#define PATTERN_OF_dyt_fork \
    PATTERN_CASE(dyt_fork, "dyt_fork", "dyt_fork", (linear, p, PATTERN_OUT, PATTERN_IN), (fork, x), (dyt, n, PATTERN_IN), (linear, q, PATTERN_IN, PATTERN_IN), (add, x))

#define PATTERN_OF_combine_expert_linear \
    PATTERN_CASE(combine_expert_linear, "combine_expert_linear", "combine_expert_linear", (linear, p, PATTERN_IN, 40), (router, r, 40, 5, (top_k, 2)), (tanh, t), (expert_linear, down, 40, 24, 5), (combine, r), (linear, q, 24, PATTERN_OUT))
#define PATTERN_OF_rope_head_norm \
    PATTERN_CASE(rope_head_norm, "rope_head_norm", "rope_head_norm1p", (linear, p, PATTERN_IN, 8 * 128), (head_norm1p, n, 4, 2, 128), (rope, r, 4, 2, 128), (linear, q, 8 * 128, PATTERN_OUT))

#define PATTERN_OF(pattern) PATTERN_OF_##pattern

#endif

#if PATTERN_ALL
#define PATTERN_ACTIVATIONS TE_ACTIVATIONS
#define PATTERN_GATED_ACTIVATIONS TE_GATED_ACTIVATIONS
#define PATTERN_NORMS TE_NORMS
#else
#define PATTERN_ACTIVATIONS(X) X(gelu)
#define PATTERN_GATED_ACTIVATIONS(X) X(swiglu, silu)
#define PATTERN_NORMS(X) X(layernorm, 2)
#endif

namespace PATTERN_SPACE {
TE_BACKWARD_PATTERNS(PATTERN_OF)
}

#undef PATTERN_SPACE
#undef PATTERN_HOW
#undef PATTERN_IN
#undef PATTERN_OUT
#undef PATTERN_ALL
#undef PATTERN_ACTIVATIONS
#undef PATTERN_GATED_ACTIVATIONS
#undef PATTERN_NORMS
