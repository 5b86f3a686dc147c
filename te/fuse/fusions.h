/* fusions.h -- the fusion list: the patterns, that is, the sequences of ops that are fused into one step.
 *
 * A pattern names families of ops, not kinds: every activation is an `act`, every gated activation a `gated`, every
 * norm a `norm`; the other families are in te/ops. The families of a pattern are in the order in which the pass runs
 * the ops, so a backward pattern begins with the op that is last in the list.
 *
 * Do this, before TE_SEQUENTIAL:
 *     #define TE_FORWARD_linear_act_add TE_FUSED // adds a pattern
 *     #undef TE_BACKWARD_linear_gated            // removes one
 *
 * A new pattern needs no further code if it has one of the following forms, because its kernel is then generated from
 * its ops. (A part in brackets may be left out.) In forward: `[linear] maps [norm] maps`. In backward: `[linear] [norm]
 * maps`, `linear fork` and `attention bias`. The pattern of head_norm with rope has a custom kernel. Two patterns save
 * memory at the cost of time, and are therefore not in the list: in forward linear_cross_entropy, in backward
 * cross_entropy_linear (te/linear/impl/linear_cross_entropy.h).
 *
 * The X-lists at the end of this file repeat all patterns. With these lists, tests and benchmarks try each pattern on
 * every kind of op that it matches.
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
#define TE_FORWARD_linear_bias_add_norm TE_FUSED
#define TE_FORWARD_linear_bias_dropout_add_norm TE_FUSED
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
#define TE_FORWARD_output_norm TE_FUSED
#define TE_FORWARD_add_output_norm TE_FUSED
#define TE_FORWARD_dropout_add_output_norm TE_FUSED
#define TE_FORWARD_bias_dropout_add_output_norm TE_FUSED
#define TE_FORWARD_linear_add_output_norm TE_FUSED
#define TE_FORWARD_linear_bias_add_output_norm TE_FUSED
#define TE_FORWARD_linear_bias_dropout_add_output_norm TE_FUSED
#define TE_FORWARD_norm_add TE_FUSED
#define TE_FORWARD_linear_norm_add TE_FUSED
#define TE_FORWARD_head_norm_rope TE_FUSED
#define TE_FORWARD_router_expert_linear TE_FUSED

#define TE_BACKWARD_act_bias TE_FUSED
#define TE_BACKWARD_gated_bias TE_FUSED
#define TE_BACKWARD_dropout_bias TE_FUSED
#define TE_BACKWARD_add_bias TE_FUSED
#define TE_BACKWARD_add_dropout_bias TE_FUSED
#define TE_BACKWARD_norm_add_bias TE_FUSED
#define TE_BACKWARD_norm_add_dropout_bias TE_FUSED
#define TE_BACKWARD_norm_fork TE_FUSED
#define TE_BACKWARD_norm_fork_add_bias TE_FUSED
#define TE_BACKWARD_norm_fork_add_dropout TE_FUSED
#define TE_BACKWARD_norm_fork_add_dropout_bias TE_FUSED
#define TE_BACKWARD_norm_fork_add_add_bias TE_FUSED
#define TE_BACKWARD_norm_output TE_FUSED
#define TE_BACKWARD_norm_output_add_bias TE_FUSED
#define TE_BACKWARD_norm_output_add_dropout TE_FUSED
#define TE_BACKWARD_norm_output_add_dropout_bias TE_FUSED
#define TE_BACKWARD_mul_bias TE_FUSED
#define TE_BACKWARD_dyt_fork TE_FUSED
#define TE_BACKWARD_norm_fork_add_mul_param TE_FUSED
#define TE_BACKWARD_linear_fork TE_FUSED
#define TE_BACKWARD_linear_act_bias TE_FUSED
#define TE_BACKWARD_linear_gated TE_FUSED
#define TE_BACKWARD_linear_gated_bias TE_FUSED
#define TE_BACKWARD_attention_bias TE_FUSED
#define TE_BACKWARD_rope_head_norm TE_FUSED
#define TE_BACKWARD_combine_expert_linear TE_FUSED

/* X-lists that repeat all patterns above, for tests and benchmarks; tests/patterns_forward_test.cc fails if a pattern
 * is missing here. */
#define TE_FORWARD_PATTERNS(X)                                                                              \
    X(linear_bias) X(linear_act) X(linear_gated) X(linear_bias_act) X(linear_bias_gated) X(linear_add)      \
    X(linear_bias_add) X(linear_scale_add) X(linear_bias_dropout_add) X(linear_add_fork_norm)               \
    X(linear_bias_add_fork_norm) X(linear_bias_dropout_add_fork_norm) X(bias_act) X(bias_gated) X(bias_add) \
    X(dropout_add) X(bias_dropout_add) X(fork_norm) X(add_fork_norm) X(dropout_add_fork_norm)               \
    X(bias_dropout_add_fork_norm) X(linear_add_add) X(linear_bias_add_add) X(linear_bias_dropout_add_add)   \
    X(linear_mul) X(linear_bias_mul) X(linear_add_add_fork_norm) X(linear_bias_add_add_fork_norm)           \
    X(linear_mul_param_add) X(linear_bias_mul_param_add) X(linear_bias_mul_param_add_fork_norm)             \
    X(linear_softcap) X(linear_add_fork_dyt) X(linear_bias_add_fork_dyt) X(linear_rope)                     \
    X(linear_bias_rope) X(head_norm_rope) X(output_norm) X(add_output_norm) X(dropout_add_output_norm)      \
    X(bias_dropout_add_output_norm) X(linear_add_output_norm) X(linear_bias_add_output_norm)                \
    X(linear_bias_dropout_add_output_norm) X(norm_add) X(linear_norm_add) X(linear_bias_add_norm)            \
    X(linear_bias_dropout_add_norm) X(router_expert_linear)
#define TE_BACKWARD_PATTERNS(X)                                                                                      \
    X(act_bias) X(gated_bias) X(dropout_bias) X(add_bias) X(add_dropout_bias) X(norm_fork) X(norm_fork_add_bias) \
    X(norm_fork_add_dropout) X(norm_fork_add_dropout_bias) X(linear_fork) X(linear_act_bias) X(linear_gated)     \
    X(linear_gated_bias) X(attention_bias) X(norm_fork_add_add_bias) X(mul_bias) X(norm_fork_add_mul_param)       \
    X(dyt_fork) X(rope_head_norm) X(norm_output) X(norm_output_add_bias) X(norm_output_add_dropout)              \
    X(norm_output_add_dropout_bias) X(norm_add_bias) X(norm_add_dropout_bias) \
    X(combine_expert_linear)

#endif
