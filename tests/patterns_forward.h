// patterns_forward.h -- for each pattern of the forward fusion list a list of ops that uses it, for tests (patterns.h) and benches. A template by
// inclusion; its inputs:
//     PATTERN_CASE(name, pattern, step, ops...)    a macro that is expanded for each list
//     PATTERN_SPACE              the namespace of the models
//     PATTERN_DTYPE              f32, bf16, f16; stays defined
//     PATTERN_IN, PATTERN_OUT    the widths of the lists
//     PATTERN_ALL                1: every activation and norm; 0: one of each
// If a pattern of TE_FORWARD_PATTERNS has no PATTERN_OF_<pattern> here, this does not compile.
#if !defined PATTERN_CASE || !defined PATTERN_SPACE || !defined PATTERN_DTYPE || !defined PATTERN_IN || !defined PATTERN_OUT || !defined PATTERN_ALL
#error "patterns_forward.h needs PATTERN_CASE, PATTERN_SPACE, PATTERN_DTYPE, PATTERN_IN, PATTERN_OUT, PATTERN_ALL"
#endif

#ifndef TESTS_PATTERNS_FORWARD_H
#define TESTS_PATTERNS_FORWARD_H

#define PATTERN_OF_linear_bias PATTERN_CASE(linear_bias, "linear_bias", "linear_bias", (linear, l, PATTERN_IN, PATTERN_OUT), (bias, b, PATTERN_OUT))

#define PATTERN_OF_linear_act PATTERN_ACTIVATIONS(PATTERN_linear_act)
#define PATTERN_linear_act(kind) PATTERN_CASE(linear_##kind, "linear_act", "linear_" #kind, (linear, l, PATTERN_IN, PATTERN_OUT), (kind, a))

#define PATTERN_OF_linear_gated PATTERN_GATED_ACTIVATIONS(PATTERN_linear_gated)
#define PATTERN_linear_gated(kind, etc) PATTERN_CASE(linear_##kind, "linear_gated", "linear_" #kind, (linear, l, PATTERN_IN, 2 * PATTERN_OUT), (kind, a))

#define PATTERN_OF_linear_bias_act PATTERN_ACTIVATIONS(PATTERN_linear_bias_act)
#define PATTERN_linear_bias_act(kind) \
    PATTERN_CASE(linear_bias_##kind, "linear_bias_act", "linear_bias_" #kind, (linear, l, PATTERN_IN, PATTERN_OUT), (bias, b, PATTERN_OUT), (kind, a))

#define PATTERN_OF_linear_bias_gated PATTERN_GATED_ACTIVATIONS(PATTERN_linear_bias_gated)
#define PATTERN_linear_bias_gated(kind, etc) \
    PATTERN_CASE(linear_bias_##kind, "linear_bias_gated", "linear_bias_" #kind, (linear, l, PATTERN_IN, 2 * PATTERN_OUT), (bias, b, 2 * PATTERN_OUT), (kind, a))

#define PATTERN_OF_linear_add PATTERN_CASE(linear_add, "linear_add", "linear_add", (fork, x), (linear, l, PATTERN_IN, PATTERN_IN), (add, x))

#define PATTERN_OF_linear_bias_add \
    PATTERN_CASE(linear_bias_add, "linear_bias_add", "linear_bias_add", (fork, x), (linear, l, PATTERN_IN, PATTERN_IN), (bias, b, PATTERN_IN), (add, x))

#define PATTERN_OF_linear_scale_add \
    PATTERN_CASE(linear_scale_add, "linear_scale_add", "linear_scale_add", (fork, x), (linear, l, PATTERN_IN, PATTERN_IN), (scale, s, 0.3f), (add, x))

#define PATTERN_OF_linear_bias_dropout_add                                                   \
    PATTERN_CASE(linear_bias_dropout_add, "linear_bias_dropout_add", "linear_bias_dropout_add", \
             (fork, x), (linear, l, PATTERN_IN, PATTERN_IN), (bias, b, PATTERN_IN), (dropout, d, 0.2f), (add, x))

#define PATTERN_OF_linear_bias_add_norm PATTERN_NORMS(PATTERN_linear_bias_add_norm)
#define PATTERN_linear_bias_add_norm(kind, etc)                                         \
    PATTERN_CASE(linear_bias_add_##kind, "linear_bias_add_norm", "linear_bias_add_" #kind, \
             (fork, x), (linear, l, PATTERN_IN, PATTERN_IN), (bias, b, PATTERN_IN), (add, x), (kind, n, PATTERN_IN))

#define PATTERN_OF_linear_bias_dropout_add_norm PATTERN_NORMS(PATTERN_linear_bias_dropout_add_norm)
#define PATTERN_linear_bias_dropout_add_norm(kind, etc)                                                         \
    PATTERN_CASE(linear_bias_dropout_add_##kind, "linear_bias_dropout_add_norm", "linear_bias_dropout_add_" #kind, \
             (fork, x), (linear, l, PATTERN_OUT, PATTERN_OUT), (bias, b, PATTERN_OUT), (dropout, d, 0.1f), (add, x), (kind, n, PATTERN_OUT))

#define PATTERN_OF_linear_add_fork_norm PATTERN_NORMS(PATTERN_linear_add_fork_norm)
#define PATTERN_linear_add_fork_norm(kind, etc)                                                \
    PATTERN_CASE(linear_add_fork_##kind, "linear_add_fork_norm", "linear_add_fork_" #kind,   \
             (fork, x), (linear, l, PATTERN_IN, PATTERN_IN), (add, x), (fork, z), (kind, n, PATTERN_IN), (add, z))

#define PATTERN_OF_linear_bias_add_fork_norm PATTERN_NORMS(PATTERN_linear_bias_add_fork_norm)
#define PATTERN_linear_bias_add_fork_norm(kind, etc)                                                   \
    PATTERN_CASE(linear_bias_add_fork_##kind, "linear_bias_add_fork_norm", "linear_bias_add_fork_" #kind, \
             (fork, x), (linear, l, PATTERN_OUT, PATTERN_OUT), (bias, b, PATTERN_OUT), (add, x), (fork, z), (kind, n, PATTERN_OUT), (add, z))

#define PATTERN_OF_linear_bias_dropout_add_fork_norm PATTERN_NORMS(PATTERN_linear_bias_dropout_add_fork_norm)
#define PATTERN_linear_bias_dropout_add_fork_norm(kind, etc)                                                                      \
    PATTERN_CASE(linear_bias_dropout_add_fork_##kind, "linear_bias_dropout_add_fork_norm", "linear_bias_dropout_add_fork_" #kind, \
             (fork, x), (linear, l, PATTERN_IN, PATTERN_IN), (bias, b, PATTERN_IN), (dropout, d, 0.1f), (add, x), (fork, z), (kind, n, PATTERN_IN), \
             (linear, m, PATTERN_IN, PATTERN_IN), (add, z))

#define PATTERN_OF_bias_act PATTERN_ACTIVATIONS(PATTERN_bias_act)
#define PATTERN_bias_act(kind) PATTERN_CASE(bias_##kind, "bias_act", "bias_" #kind, (bias, b, PATTERN_IN), (kind, a))

#define PATTERN_OF_bias_gated PATTERN_GATED_ACTIVATIONS(PATTERN_bias_gated)
#define PATTERN_bias_gated(kind, etc) PATTERN_CASE(bias_##kind, "bias_gated", "bias_" #kind, (bias, b, 2 * PATTERN_OUT), (kind, a))

#define PATTERN_OF_bias_add PATTERN_CASE(bias_add, "bias_add", "bias_add", (fork, x), (bias, b, PATTERN_IN), (add, x))

#define PATTERN_OF_dropout_add PATTERN_CASE(dropout_add, "dropout_add", "dropout_add", (fork, x), (scale, s, 0.7f), (dropout, d, 0.4f), (add, x), (bias, b, PATTERN_IN))

#define PATTERN_OF_bias_dropout_add \
    PATTERN_CASE(bias_dropout_add, "bias_dropout_add", "bias_dropout_add", (fork, x), (bias, b, PATTERN_OUT), (dropout, d, 0.3f), (add, x))

#define PATTERN_OF_fork_norm PATTERN_NORMS(PATTERN_fork_norm)
#define PATTERN_fork_norm(kind, etc) PATTERN_CASE(fork_##kind, "fork_norm", "fork_" #kind, (fork, x), (kind, n, PATTERN_IN), (add, x))

#define PATTERN_OF_add_fork_norm PATTERN_NORMS(PATTERN_add_fork_norm)
#define PATTERN_add_fork_norm(kind, etc)                                              \
    PATTERN_CASE(add_fork_##kind, "add_fork_norm", "add_fork_" #kind,               \
             (fork, x), (scale, s, 0.5f), (add, x), (fork, z), (kind, n, PATTERN_OUT), (add, z))

#define PATTERN_OF_dropout_add_fork_norm PATTERN_NORMS(PATTERN_dropout_add_fork_norm)
#define PATTERN_dropout_add_fork_norm(kind, etc)                                                    \
    PATTERN_CASE(dropout_add_fork_##kind, "dropout_add_fork_norm", "dropout_add_fork_" #kind,     \
             (fork, x), (dropout, d, 0.25f), (add, x), (fork, z), (kind, n, PATTERN_IN), (add, z))

#define PATTERN_OF_bias_dropout_add_fork_norm PATTERN_NORMS(PATTERN_bias_dropout_add_fork_norm)
#define PATTERN_bias_dropout_add_fork_norm(kind, etc)                                                             \
    PATTERN_CASE(bias_dropout_add_fork_##kind, "bias_dropout_add_fork_norm", "bias_dropout_add_fork_" #kind,    \
             (fork, x), (bias, b, PATTERN_IN), (dropout, d, 0.5f), (add, x), (fork, z), (kind, n, PATTERN_IN), (add, z))

// An (output, ..) before the norm; behind the norm a linear reads it, or nothing.
#define PATTERN_OF_output_norm PATTERN_NORMS(PATTERN_output_norm)
#define PATTERN_output_norm(kind, etc) \
    PATTERN_CASE(output_##kind, "output_norm", "output_" #kind, (linear, l, PATTERN_OUT, PATTERN_IN), (output, o), (kind, n, PATTERN_IN), (linear, m, PATTERN_IN, PATTERN_OUT))

#define PATTERN_OF_add_output_norm PATTERN_NORMS(PATTERN_add_output_norm)
#define PATTERN_add_output_norm(kind, etc)                                              \
    PATTERN_CASE(add_output_##kind, "add_output_norm", "add_output_" #kind,             \
             (fork, x), (scale, s, 0.5f), (add, x), (output, o), (kind, n, PATTERN_OUT))

#define PATTERN_OF_dropout_add_output_norm PATTERN_NORMS(PATTERN_dropout_add_output_norm)
#define PATTERN_dropout_add_output_norm(kind, etc)                                                    \
    PATTERN_CASE(dropout_add_output_##kind, "dropout_add_output_norm", "dropout_add_output_" #kind,   \
             (fork, x), (dropout, d, 0.25f), (add, x), (output, o), (kind, n, PATTERN_IN), (linear, m, PATTERN_IN, PATTERN_OUT))

#define PATTERN_OF_bias_dropout_add_output_norm PATTERN_NORMS(PATTERN_bias_dropout_add_output_norm)
#define PATTERN_bias_dropout_add_output_norm(kind, etc)                                                             \
    PATTERN_CASE(bias_dropout_add_output_##kind, "bias_dropout_add_output_norm", "bias_dropout_add_output_" #kind,  \
             (fork, x), (bias, b, PATTERN_IN), (dropout, d, 0.5f), (add, x), (output, o), (kind, n, PATTERN_IN))

#define PATTERN_OF_linear_add_output_norm PATTERN_NORMS(PATTERN_linear_add_output_norm)
#define PATTERN_linear_add_output_norm(kind, etc)                                                \
    PATTERN_CASE(linear_add_output_##kind, "linear_add_output_norm", "linear_add_output_" #kind, \
             (fork, x), (linear, l, PATTERN_IN, PATTERN_IN), (add, x), (output, o), (kind, n, PATTERN_IN))

#define PATTERN_OF_linear_bias_add_output_norm PATTERN_NORMS(PATTERN_linear_bias_add_output_norm)
#define PATTERN_linear_bias_add_output_norm(kind, etc)                                                     \
    PATTERN_CASE(linear_bias_add_output_##kind, "linear_bias_add_output_norm", "linear_bias_add_output_" #kind, \
             (fork, x), (linear, l, PATTERN_OUT, PATTERN_OUT), (bias, b, PATTERN_OUT), (add, x), (output, o), (kind, n, PATTERN_OUT))

#define PATTERN_OF_linear_bias_dropout_add_output_norm PATTERN_NORMS(PATTERN_linear_bias_dropout_add_output_norm)
#define PATTERN_linear_bias_dropout_add_output_norm(kind, etc)                                                                        \
    PATTERN_CASE(linear_bias_dropout_add_output_##kind, "linear_bias_dropout_add_output_norm", "linear_bias_dropout_add_output_" #kind, \
             (fork, x), (linear, l, PATTERN_IN, PATTERN_IN), (bias, b, PATTERN_IN), (dropout, d, 0.1f), (add, x), (output, o), (kind, n, PATTERN_IN), \
             (linear, m, PATTERN_IN, PATTERN_OUT))

// A norm before the add, as the post-norms of Gemma 2.
#define PATTERN_OF_norm_add PATTERN_NORMS(PATTERN_norm_add)
#define PATTERN_norm_add(kind, etc) \
    PATTERN_CASE(kind##_add, "norm_add", #kind "_add", (fork, x), (scale, s, 0.5f), (kind, n, PATTERN_IN), (add, x), (linear, m, PATTERN_IN, PATTERN_OUT))

#define PATTERN_OF_linear_norm_add PATTERN_NORMS(PATTERN_linear_norm_add)
#define PATTERN_linear_norm_add(kind, etc) \
    PATTERN_CASE(linear_##kind##_add, "linear_norm_add", "linear_" #kind "_add", (fork, x), (linear, l, PATTERN_OUT, PATTERN_OUT), (kind, n, PATTERN_OUT), (add, x))

#define PATTERN_OF_linear_add_add \
    PATTERN_CASE(linear_add_add, "linear_add_add", "linear_add_add", (fork, x), (bias, b, PATTERN_IN), (fork, a), (linear, l, PATTERN_IN, PATTERN_IN), (add, a), (add, x))

#define PATTERN_OF_linear_bias_add_add                                              \
    PATTERN_CASE(linear_bias_add_add, "linear_bias_add_add", "linear_bias_add_add", \
             (fork, x), (bias, b, PATTERN_IN), (fork, a), (linear, l, PATTERN_IN, PATTERN_IN), (bias, c, PATTERN_IN), (add, a), (add, x))

#define PATTERN_OF_linear_bias_dropout_add_add                                                              \
    PATTERN_CASE(linear_bias_dropout_add_add, "linear_bias_dropout_add_add", "linear_bias_dropout_add_add", \
             (fork, x), (bias, b, PATTERN_IN), (fork, a), (linear, l, PATTERN_IN, PATTERN_IN), (bias, c, PATTERN_IN), (dropout, d, 0.3f), (add, a), (add, x))

#define PATTERN_OF_linear_mul PATTERN_CASE(linear_mul, "linear_mul", "linear_mul", (fork, x), (linear, l, PATTERN_IN, PATTERN_IN), (mul, x))

#define PATTERN_OF_linear_bias_mul \
    PATTERN_CASE(linear_bias_mul, "linear_bias_mul", "linear_bias_mul", (fork, x), (linear, l, PATTERN_IN, PATTERN_IN), (bias, b, PATTERN_IN), (mul, x))

#define PATTERN_OF_linear_add_add_fork_norm PATTERN_NORMS(PATTERN_linear_add_add_fork_norm)
#define PATTERN_linear_add_add_fork_norm(kind, etc)                                                      \
    PATTERN_CASE(linear_add_add_fork_##kind, "linear_add_add_fork_norm", "linear_add_add_fork_" #kind, \
             (fork, x), (bias, b, PATTERN_IN), (fork, a), (linear, l, PATTERN_IN, PATTERN_IN), (add, a), (add, x), (fork, z), (kind, n, PATTERN_IN), (add, z))

#define PATTERN_OF_linear_bias_add_add_fork_norm PATTERN_NORMS(PATTERN_linear_bias_add_add_fork_norm)
#define PATTERN_linear_bias_add_add_fork_norm(kind, etc)                                                                \
    PATTERN_CASE(linear_bias_add_add_fork_##kind, "linear_bias_add_add_fork_norm", "linear_bias_add_add_fork_" #kind, \
             (fork, x), (bias, b, PATTERN_IN), (fork, a), (linear, l, PATTERN_IN, PATTERN_IN), (bias, c, PATTERN_IN), (add, a), (add, x), (fork, z), (kind, n, PATTERN_IN), \
             (add, z))

#define PATTERN_OF_linear_mul_param_add                                                \
    PATTERN_CASE(linear_mul_param_add, "linear_mul_param_add", "linear_mul_param_add", \
             (fork, x), (linear, l, PATTERN_IN, PATTERN_IN), (mul_param, s, PATTERN_IN), (add, x))

#define PATTERN_OF_linear_bias_mul_param_add                                                          \
    PATTERN_CASE(linear_bias_mul_param_add, "linear_bias_mul_param_add", "linear_bias_mul_param_add", \
             (fork, x), (linear, l, PATTERN_IN, PATTERN_IN), (bias, b, PATTERN_IN), (mul_param, s, 1), (add, x))

#define PATTERN_OF_linear_bias_mul_param_add_fork_norm PATTERN_NORMS(PATTERN_linear_bias_mul_param_add_fork_norm)
#define PATTERN_linear_bias_mul_param_add_fork_norm(kind, etc)                                                                           \
    PATTERN_CASE(linear_bias_mul_param_add_fork_##kind, "linear_bias_mul_param_add_fork_norm", "linear_bias_mul_param_add_fork_" #kind, \
             (fork, x), (linear, l, PATTERN_IN, PATTERN_IN), (bias, b, PATTERN_IN), (mul_param, s, PATTERN_IN), (add, x), (fork, z), (kind, n, PATTERN_IN), (add, z))

#define PATTERN_OF_linear_softcap PATTERN_CASE(linear_softcap, "linear_softcap", "linear_softcap", (linear, l, PATTERN_IN, PATTERN_OUT), (softcap, c, 1.5f))

#define PATTERN_OF_linear_add_fork_dyt                                              \
    PATTERN_CASE(linear_add_fork_dyt, "linear_add_fork_dyt", "linear_add_fork_dyt", \
             (fork, x), (linear, l, PATTERN_IN, PATTERN_IN), (add, x), (fork, z), (dyt, n, PATTERN_IN), (add, z))

#define PATTERN_OF_linear_bias_add_fork_dyt                                                        \
    PATTERN_CASE(linear_bias_add_fork_dyt, "linear_bias_add_fork_dyt", "linear_bias_add_fork_dyt", \
             (fork, x), (linear, l, PATTERN_IN, PATTERN_IN), (bias, b, PATTERN_IN), (add, x), (fork, z), (dyt, n, PATTERN_IN), (add, z))

// Where a GEMM applies rope in its epilogue (CUDA), heads of 256 columns, which span several tiles, of 64 (interleaved), and of 128, of which 96 rotate.
#if TE_CUDA
#define PATTERN_HEAD(gpu, host) gpu
#else
#define PATTERN_HEAD(gpu, host) host
#endif
#define PATTERN_OF_linear_rope                                                                                                                           \
    PATTERN_CASE(linear_rope, "linear_rope", "linear_rope", (linear, l, PATTERN_IN, 3 * PATTERN_HEAD(256, 16)), (rope, r, 1, 1, PATTERN_HEAD(256, 16)))               \
    PATTERN_CASE(linear_rope_near, "linear_rope", "linear_rope", (linear, l, PATTERN_IN, 5 * 64), (rope, r, 3, 1, 64, (interleaved, 1), (rotary_dim, 24)))

#define PATTERN_OF_linear_bias_rope                                                                                            \
    PATTERN_CASE(linear_bias_rope, "linear_bias_rope", "linear_bias_rope", (linear, l, PATTERN_IN, 6 * PATTERN_HEAD(128, 32)),         \
             (bias, b, 6 * PATTERN_HEAD(128, 32)), (rope, r, 2, 2, PATTERN_HEAD(128, 32), (rotary_dim, PATTERN_HEAD(96, 16))))

#define PATTERN_OF_router_expert_linear \
    PATTERN_CASE(router_expert_linear, "router_expert_linear", "router_expert_linear", (linear, p, PATTERN_IN, 40), (router, r, 40, 5, (top_k, 2)), (expert_linear, up, 40, 24, 5), (combine, r), (linear, q, 24, PATTERN_OUT))
#define PATTERN_OF_head_norm_rope \
    PATTERN_CASE(head_norm_rope, "head_norm_rope", "head_norm_rope", (linear, p, PATTERN_IN, 8 * 128), (head_norm, n, 4, 2, 128), (rope, r, 4, 2, 128), (linear, q, 8 * 128, PATTERN_OUT))

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
TE_FORWARD_PATTERNS(PATTERN_OF)
}

#undef PATTERN_SPACE
#undef PATTERN_HOW
#undef PATTERN_IN
#undef PATTERN_OUT
#undef PATTERN_ALL
#undef PATTERN_ACTIVATIONS
#undef PATTERN_GATED_ACTIVATIONS
#undef PATTERN_NORMS
