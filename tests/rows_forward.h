// rows_forward.h -- lists that exercise every row of the forward fusion list, for tests (rows.h) and benches. A template by inclusion; its
// inputs:
//     ROW_CASE(name, row, step, ops...)    what becomes of a list
//     ROW_SPACE              the namespace that the models go into
//     ROW_DTYPE              f32, bf16, f16; stays defined
//     ROW_IN, ROW_OUT        widths
//     ROW_ALL                1: every activation and norm; 0: one of each
// A row of TE_FORWARD_PATTERNS that has no ROW_OF_<row> here does not compile.
#if !defined ROW_CASE || !defined ROW_SPACE || !defined ROW_DTYPE || !defined ROW_IN || !defined ROW_OUT || !defined ROW_ALL
#error "rows_forward.h needs ROW_CASE, ROW_SPACE, ROW_DTYPE, ROW_IN, ROW_OUT, ROW_ALL"
#endif

#ifndef TESTS_ROWS_FORWARD_H
#define TESTS_ROWS_FORWARD_H

#define ROW_OF_linear_bias ROW_CASE(linear_bias, "linear_bias", "linear_bias", (linear, l, ROW_IN, ROW_OUT), (bias, b, ROW_OUT))

#define ROW_OF_linear_act ROW_ACTIVATIONS(ROW_linear_act)
#define ROW_linear_act(kind) ROW_CASE(linear_##kind, "linear_act", "linear_" #kind, (linear, l, ROW_IN, ROW_OUT), (kind, a))

#define ROW_OF_linear_gated ROW_GATED_ACTIVATIONS(ROW_linear_gated)
#define ROW_linear_gated(kind, etc) ROW_CASE(linear_##kind, "linear_gated", "linear_" #kind, (linear, l, ROW_IN, 2 * ROW_OUT), (kind, a))

#define ROW_OF_linear_bias_act ROW_ACTIVATIONS(ROW_linear_bias_act)
#define ROW_linear_bias_act(kind) \
    ROW_CASE(linear_bias_##kind, "linear_bias_act", "linear_bias_" #kind, (linear, l, ROW_IN, ROW_OUT), (bias, b, ROW_OUT), (kind, a))

#define ROW_OF_linear_bias_gated ROW_GATED_ACTIVATIONS(ROW_linear_bias_gated)
#define ROW_linear_bias_gated(kind, etc) \
    ROW_CASE(linear_bias_##kind, "linear_bias_gated", "linear_bias_" #kind, (linear, l, ROW_IN, 2 * ROW_OUT), (bias, b, 2 * ROW_OUT), (kind, a))

#define ROW_OF_linear_add ROW_CASE(linear_add, "linear_add", "linear_add", (fork, x), (linear, l, ROW_IN, ROW_IN), (add, x))

#define ROW_OF_linear_bias_add \
    ROW_CASE(linear_bias_add, "linear_bias_add", "linear_bias_add", (fork, x), (linear, l, ROW_IN, ROW_IN), (bias, b, ROW_IN), (add, x))

#define ROW_OF_linear_scale_add \
    ROW_CASE(linear_scale_add, "linear_scale_add", "linear_scale_add", (fork, x), (linear, l, ROW_IN, ROW_IN), (scale, s, 0.3f), (add, x))

#define ROW_OF_linear_bias_dropout_add                                                   \
    ROW_CASE(linear_bias_dropout_add, "linear_bias_dropout_add", "linear_bias_dropout_add", \
             (fork, x), (linear, l, ROW_IN, ROW_IN), (bias, b, ROW_IN), (dropout, d, 0.2f), (add, x))

#define ROW_OF_linear_add_fork_norm ROW_NORMS(ROW_linear_add_fork_norm)
#define ROW_linear_add_fork_norm(kind, etc)                                                \
    ROW_CASE(linear_add_fork_##kind, "linear_add_fork_norm", "linear_add_fork_" #kind,   \
             (fork, x), (linear, l, ROW_IN, ROW_IN), (add, x), (fork, z), (kind, n, ROW_IN), (add, z))

#define ROW_OF_linear_bias_add_fork_norm ROW_NORMS(ROW_linear_bias_add_fork_norm)
#define ROW_linear_bias_add_fork_norm(kind, etc)                                                   \
    ROW_CASE(linear_bias_add_fork_##kind, "linear_bias_add_fork_norm", "linear_bias_add_fork_" #kind, \
             (fork, x), (linear, l, ROW_OUT, ROW_OUT), (bias, b, ROW_OUT), (add, x), (fork, z), (kind, n, ROW_OUT), (add, z))

#define ROW_OF_linear_bias_dropout_add_fork_norm ROW_NORMS(ROW_linear_bias_dropout_add_fork_norm)
#define ROW_linear_bias_dropout_add_fork_norm(kind, etc)                                                                      \
    ROW_CASE(linear_bias_dropout_add_fork_##kind, "linear_bias_dropout_add_fork_norm", "linear_bias_dropout_add_fork_" #kind, \
             (fork, x), (linear, l, ROW_IN, ROW_IN), (bias, b, ROW_IN), (dropout, d, 0.1f), (add, x), (fork, z), (kind, n, ROW_IN), \
             (linear, m, ROW_IN, ROW_IN), (add, z))

#define ROW_OF_bias_act ROW_ACTIVATIONS(ROW_bias_act)
#define ROW_bias_act(kind) ROW_CASE(bias_##kind, "bias_act", "bias_" #kind, (bias, b, ROW_IN), (kind, a))

#define ROW_OF_bias_gated ROW_GATED_ACTIVATIONS(ROW_bias_gated)
#define ROW_bias_gated(kind, etc) ROW_CASE(bias_##kind, "bias_gated", "bias_" #kind, (bias, b, 2 * ROW_OUT), (kind, a))

#define ROW_OF_bias_add ROW_CASE(bias_add, "bias_add", "bias_add", (fork, x), (bias, b, ROW_IN), (add, x))

#define ROW_OF_dropout_add ROW_CASE(dropout_add, "dropout_add", "dropout_add", (fork, x), (scale, s, 0.7f), (dropout, d, 0.4f), (add, x), (bias, b, ROW_IN))

#define ROW_OF_bias_dropout_add \
    ROW_CASE(bias_dropout_add, "bias_dropout_add", "bias_dropout_add", (fork, x), (bias, b, ROW_OUT), (dropout, d, 0.3f), (add, x))

#define ROW_OF_fork_norm ROW_NORMS(ROW_fork_norm)
#define ROW_fork_norm(kind, etc) ROW_CASE(fork_##kind, "fork_norm", "fork_" #kind, (fork, x), (kind, n, ROW_IN), (add, x))

#define ROW_OF_add_fork_norm ROW_NORMS(ROW_add_fork_norm)
#define ROW_add_fork_norm(kind, etc)                                              \
    ROW_CASE(add_fork_##kind, "add_fork_norm", "add_fork_" #kind,               \
             (fork, x), (scale, s, 0.5f), (add, x), (fork, z), (kind, n, ROW_OUT), (add, z))

#define ROW_OF_dropout_add_fork_norm ROW_NORMS(ROW_dropout_add_fork_norm)
#define ROW_dropout_add_fork_norm(kind, etc)                                                    \
    ROW_CASE(dropout_add_fork_##kind, "dropout_add_fork_norm", "dropout_add_fork_" #kind,     \
             (fork, x), (dropout, d, 0.25f), (add, x), (fork, z), (kind, n, ROW_IN), (add, z))

#define ROW_OF_bias_dropout_add_fork_norm ROW_NORMS(ROW_bias_dropout_add_fork_norm)
#define ROW_bias_dropout_add_fork_norm(kind, etc)                                                             \
    ROW_CASE(bias_dropout_add_fork_##kind, "bias_dropout_add_fork_norm", "bias_dropout_add_fork_" #kind,    \
             (fork, x), (bias, b, ROW_IN), (dropout, d, 0.5f), (add, x), (fork, z), (kind, n, ROW_IN), (add, z))

#define ROW_OF_linear_add_add \
    ROW_CASE(linear_add_add, "linear_add_add", "linear_add_add", (fork, x), (bias, b, ROW_IN), (fork, a), (linear, l, ROW_IN, ROW_IN), (add, a), (add, x))

#define ROW_OF_linear_bias_add_add                                              \
    ROW_CASE(linear_bias_add_add, "linear_bias_add_add", "linear_bias_add_add", \
             (fork, x), (bias, b, ROW_IN), (fork, a), (linear, l, ROW_IN, ROW_IN), (bias, c, ROW_IN), (add, a), (add, x))

#define ROW_OF_linear_bias_dropout_add_add                                                              \
    ROW_CASE(linear_bias_dropout_add_add, "linear_bias_dropout_add_add", "linear_bias_dropout_add_add", \
             (fork, x), (bias, b, ROW_IN), (fork, a), (linear, l, ROW_IN, ROW_IN), (bias, c, ROW_IN), (dropout, d, 0.3f), (add, a), (add, x))

#define ROW_OF_linear_mul ROW_CASE(linear_mul, "linear_mul", "linear_mul", (fork, x), (linear, l, ROW_IN, ROW_IN), (mul, x))

#define ROW_OF_linear_bias_mul \
    ROW_CASE(linear_bias_mul, "linear_bias_mul", "linear_bias_mul", (fork, x), (linear, l, ROW_IN, ROW_IN), (bias, b, ROW_IN), (mul, x))

#define ROW_OF_linear_add_add_fork_norm ROW_NORMS(ROW_linear_add_add_fork_norm)
#define ROW_linear_add_add_fork_norm(kind, etc)                                                      \
    ROW_CASE(linear_add_add_fork_##kind, "linear_add_add_fork_norm", "linear_add_add_fork_" #kind, \
             (fork, x), (bias, b, ROW_IN), (fork, a), (linear, l, ROW_IN, ROW_IN), (add, a), (add, x), (fork, z), (kind, n, ROW_IN), (add, z))

#define ROW_OF_linear_bias_add_add_fork_norm ROW_NORMS(ROW_linear_bias_add_add_fork_norm)
#define ROW_linear_bias_add_add_fork_norm(kind, etc)                                                                \
    ROW_CASE(linear_bias_add_add_fork_##kind, "linear_bias_add_add_fork_norm", "linear_bias_add_add_fork_" #kind, \
             (fork, x), (bias, b, ROW_IN), (fork, a), (linear, l, ROW_IN, ROW_IN), (bias, c, ROW_IN), (add, a), (add, x), (fork, z), (kind, n, ROW_IN), \
             (add, z))

#define ROW_OF_linear_mul_param_add                                                \
    ROW_CASE(linear_mul_param_add, "linear_mul_param_add", "linear_mul_param_add", \
             (fork, x), (linear, l, ROW_IN, ROW_IN), (mul_param, s, ROW_IN), (add, x))

#define ROW_OF_linear_bias_mul_param_add                                                          \
    ROW_CASE(linear_bias_mul_param_add, "linear_bias_mul_param_add", "linear_bias_mul_param_add", \
             (fork, x), (linear, l, ROW_IN, ROW_IN), (bias, b, ROW_IN), (mul_param, s, 1), (add, x))

#define ROW_OF_linear_bias_mul_param_add_fork_norm ROW_NORMS(ROW_linear_bias_mul_param_add_fork_norm)
#define ROW_linear_bias_mul_param_add_fork_norm(kind, etc)                                                                           \
    ROW_CASE(linear_bias_mul_param_add_fork_##kind, "linear_bias_mul_param_add_fork_norm", "linear_bias_mul_param_add_fork_" #kind, \
             (fork, x), (linear, l, ROW_IN, ROW_IN), (bias, b, ROW_IN), (mul_param, s, ROW_IN), (add, x), (fork, z), (kind, n, ROW_IN), (add, z))

#define ROW_OF_linear_softcap ROW_CASE(linear_softcap, "linear_softcap", "linear_softcap", (linear, l, ROW_IN, ROW_OUT), (softcap, c, 1.5f))

#define ROW_OF_linear_add_fork_dyt                                              \
    ROW_CASE(linear_add_fork_dyt, "linear_add_fork_dyt", "linear_add_fork_dyt", \
             (fork, x), (linear, l, ROW_IN, ROW_IN), (add, x), (fork, z), (dyt, n, ROW_IN), (add, z))

#define ROW_OF_linear_bias_add_fork_dyt                                                        \
    ROW_CASE(linear_bias_add_fork_dyt, "linear_bias_add_fork_dyt", "linear_bias_add_fork_dyt", \
             (fork, x), (linear, l, ROW_IN, ROW_IN), (bias, b, ROW_IN), (add, x), (fork, z), (dyt, n, ROW_IN), (add, z))

// Where a product takes rope along, heads are of 256, which it crosses, of 64 interleaved, and of 128 of which 96 turn.
#if TE_CUDA
#define ROW_HEAD(gpu, host) gpu
#else
#define ROW_HEAD(gpu, host) host
#endif
#define ROW_OF_linear_rope                                                                                                                           \
    ROW_CASE(linear_rope, "linear_rope", "linear_rope", (linear, l, ROW_IN, 3 * ROW_HEAD(256, 16)), (rope, r, 1, 1, ROW_HEAD(256, 16)))               \
    ROW_CASE(linear_rope_near, "linear_rope", "linear_rope", (linear, l, ROW_IN, 5 * 64), (rope, r, 3, 1, 64, (interleaved, 1), (rotary_dim, 24)))

#define ROW_OF_linear_bias_rope                                                                                            \
    ROW_CASE(linear_bias_rope, "linear_bias_rope", "linear_bias_rope", (linear, l, ROW_IN, 6 * ROW_HEAD(128, 32)),         \
             (bias, b, 6 * ROW_HEAD(128, 32)), (rope, r, 2, 2, ROW_HEAD(128, 32), (rotary_dim, ROW_HEAD(96, 16))))

#define ROW_OF_head_norm_rope \
    ROW_CASE(head_norm_rope, "head_norm_rope", "head_norm_rope", (linear, p, ROW_IN, 8 * 128), (head_norm, n, 4, 2, 128), (rope, r, 4, 2, 128), (linear, q, 8 * 128, ROW_OUT))

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
TE_FORWARD_PATTERNS(ROW_OF)
}

#undef ROW_SPACE
#undef ROW_HOW
#undef ROW_IN
#undef ROW_OUT
#undef ROW_ALL
#undef ROW_ACTIVATIONS
#undef ROW_GATED_ACTIVATIONS
#undef ROW_NORMS
