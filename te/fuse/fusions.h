/* fusions.h -- the fusion list: which sequences of ops become one step. Nothing else.
 *
 * A row names families (te/ops: every activation is an `act`, every gated one `gated`, every norm `norm`), in the order
 * of the pass; the backward list reads the model from its end. Any row of the shape [linear] maps [norm] maps
 * (backward: [linear] [norm] maps, linear fork, or attention bias) works: write the name, and the kernel follows from
 * its ops; head_norm and rope have one of their own. Add your own the same way, before TE_SEQUENTIAL, or take one out
 * with #undef. Rows that take time to save memory are not here: linear_cross_entropy, in backward cross_entropy_linear
 * (linear_cross_entropy.h).
 *
 * The X-lists below are the same rows for the tests and benches, which try each on every kind that it matches.
 */
#ifndef TE_FUSIONS_H
#define TE_FUSIONS_H

#include "impl/matcher.h" /* TE_FUSED */

#define TE_FORWARD_linear_bias TE_FUSED
#define TE_FORWARD_linear_act TE_FUSED
#define TE_FORWARD_linear_gated TE_FUSED
#define TE_FORWARD_linear_bias_act TE_FUSED
#define TE_FORWARD_linear_bias_gated TE_FUSED
#define TE_FORWARD_linear_add TE_FUSED
#define TE_FORWARD_linear_bias_add TE_FUSED
#define TE_FORWARD_linear_scale_add TE_FUSED
#define TE_FORWARD_linear_bias_dropout_add TE_FUSED
#define TE_FORWARD_linear_add_add TE_FUSED
#define TE_FORWARD_linear_bias_add_add TE_FUSED
#define TE_FORWARD_linear_bias_dropout_add_add TE_FUSED
#define TE_FORWARD_linear_mul_param_add TE_FUSED
#define TE_FORWARD_linear_bias_mul_param_add TE_FUSED
#define TE_FORWARD_linear_bias_mul_param_add_fork_norm TE_FUSED
#define TE_FORWARD_linear_mul TE_FUSED
#define TE_FORWARD_linear_bias_mul TE_FUSED
#define TE_FORWARD_linear_add_fork_norm TE_FUSED
#define TE_FORWARD_linear_bias_add_fork_norm TE_FUSED
#define TE_FORWARD_linear_bias_dropout_add_fork_norm TE_FUSED
#define TE_FORWARD_linear_add_add_fork_norm TE_FUSED
#define TE_FORWARD_linear_bias_add_add_fork_norm TE_FUSED
#define TE_FORWARD_linear_softcap TE_FUSED
#define TE_FORWARD_linear_add_fork_dyt TE_FUSED
#define TE_FORWARD_linear_bias_add_fork_dyt TE_FUSED
#define TE_FORWARD_linear_rope TE_FUSED
#define TE_FORWARD_linear_bias_rope TE_FUSED
#define TE_FORWARD_bias_act TE_FUSED
#define TE_FORWARD_bias_gated TE_FUSED
#define TE_FORWARD_bias_add TE_FUSED
#define TE_FORWARD_dropout_add TE_FUSED
#define TE_FORWARD_bias_dropout_add TE_FUSED
#define TE_FORWARD_fork_norm TE_FUSED
#define TE_FORWARD_add_fork_norm TE_FUSED
#define TE_FORWARD_dropout_add_fork_norm TE_FUSED
#define TE_FORWARD_bias_dropout_add_fork_norm TE_FUSED
#define TE_FORWARD_head_norm_rope TE_FUSED

#define TE_BACKWARD_act_bias TE_FUSED
#define TE_BACKWARD_gated_bias TE_FUSED
#define TE_BACKWARD_dropout_bias TE_FUSED
#define TE_BACKWARD_add_bias TE_FUSED
#define TE_BACKWARD_add_dropout_bias TE_FUSED
#define TE_BACKWARD_norm_fork TE_FUSED
#define TE_BACKWARD_norm_fork_add_bias TE_FUSED
#define TE_BACKWARD_norm_fork_add_dropout TE_FUSED
#define TE_BACKWARD_norm_fork_add_dropout_bias TE_FUSED
#define TE_BACKWARD_norm_fork_add_add_bias TE_FUSED
#define TE_BACKWARD_mul_bias TE_FUSED
#define TE_BACKWARD_dyt_fork TE_FUSED
#define TE_BACKWARD_norm_fork_add_mul_param TE_FUSED
#define TE_BACKWARD_linear_fork TE_FUSED
#define TE_BACKWARD_linear_act_bias TE_FUSED
#define TE_BACKWARD_linear_gated TE_FUSED
#define TE_BACKWARD_linear_gated_bias TE_FUSED
#define TE_BACKWARD_attention_bias TE_FUSED
#define TE_BACKWARD_rope_head_norm TE_FUSED

/* X(row): the same rows; tests/patterns_forward_test.cc fails where one is missing. */
#define TE_FORWARD_PATTERNS(X)                                                                              \
    X(linear_bias) X(linear_act) X(linear_gated) X(linear_bias_act) X(linear_bias_gated) X(linear_add)      \
    X(linear_bias_add) X(linear_scale_add) X(linear_bias_dropout_add) X(linear_add_fork_norm)               \
    X(linear_bias_add_fork_norm) X(linear_bias_dropout_add_fork_norm) X(bias_act) X(bias_gated) X(bias_add) \
    X(dropout_add) X(bias_dropout_add) X(fork_norm) X(add_fork_norm) X(dropout_add_fork_norm)               \
    X(bias_dropout_add_fork_norm) X(linear_add_add) X(linear_bias_add_add) X(linear_bias_dropout_add_add)   \
    X(linear_mul) X(linear_bias_mul) X(linear_add_add_fork_norm) X(linear_bias_add_add_fork_norm)           \
    X(linear_mul_param_add) X(linear_bias_mul_param_add) X(linear_bias_mul_param_add_fork_norm)             \
    X(linear_softcap) X(linear_add_fork_dyt) X(linear_bias_add_fork_dyt) X(linear_rope)                     \
    X(linear_bias_rope) X(head_norm_rope)
#define TE_BACKWARD_PATTERNS(X)                                                                                      \
    X(act_bias) X(gated_bias) X(dropout_bias) X(add_bias) X(add_dropout_bias) X(norm_fork) X(norm_fork_add_bias) \
    X(norm_fork_add_dropout) X(norm_fork_add_dropout_bias) X(linear_fork) X(linear_act_bias) X(linear_gated)     \
    X(linear_gated_bias) X(attention_bias) X(norm_fork_add_add_bias) X(mul_bias) X(norm_fork_add_mul_param)       \
    X(dyt_fork) X(rope_head_norm)

#endif
