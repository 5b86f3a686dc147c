// patterns_user_test.cc -- patterns of kinds that the library's fusion list does not have, and that a user may add. patterns_random.sh tests
// random ones.
#include "harness.h"
#include "te/ops/activation.h"
#include "te/ops/elementwise.h"
#include "te/ops/dropout.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/residual.h"

#define USER_FORWARD_bias_fork_act_add TE_FUSED
#define USER_FORWARD_scale_fork_dropout_add_norm TE_FUSED
#define USER_FORWARD_linear_fork_act_add TE_FUSED
#define USER_FORWARD_linear_fork_act TE_FUSED
#define USER_FORWARD_linear_fork TE_FUSED
#define USER_FORWARD_norm_bias_fork_scale_add TE_FUSED
#define USER_FORWARD_bias_bias TE_FUSED
#define USER_FORWARD_bias_bias_act_bias TE_FUSED
#define USER_FORWARD_linear_bias_bias TE_FUSED
#define USER_FORWARD_linear_bias_act_bias_add TE_FUSED
#define USER_FORWARD_bias_norm_bias TE_FUSED
#define USER_BACKWARD_bias_gated TE_FUSED
#define USER_BACKWARD_bias_dropout_gated TE_FUSED
#define USER_BACKWARD_add_act_fork_bias TE_FUSED
#define USER_BACKWARD_act_add_scale_fork TE_FUSED
#define USER_BACKWARD_norm_add_dropout_fork TE_FUSED
#define USER_BACKWARD_linear_act_add_scale_fork TE_FUSED
#define USER_BACKWARD_linear_add_act_fork TE_FUSED
#define USER_BACKWARD_linear_add TE_FUSED
#define USER_BACKWARD_linear_bias TE_FUSED
#define USER(name, dtype, ...) MODEL_WITH(USER_FORWARD_, USER_BACKWARD_, name, dtype, __VA_ARGS__)

// X(name, dtype, ops...)
#define LISTS(X)                                                                                                       \
    X(sum_of_half, f32, (linear, l, 40, 80), (swiglu, g), (bias, b, 40))                                               \
    X(sum_of_half_bf16, bf16, (linear, l, 64, 128), (geglu, g), (dropout, d, 0.1f), (bias, b, 64))                     \
    X(sum_of_half_odd, f16, (linear, l, 37, 74), (reglu, g), (bias, b, 37), (linear, m, 37, 24))                       \
    X(fork_inside, f32, (bias, b, 64), (fork, x), (gelu, a), (add, x))                                                    \
    X(fork_inside_bf16, bf16, (bias, b, 64), (fork, x), (gelu, a), (add, x), (linear, l, 64, 64))                         \
    X(fork_inside_norm, bf16, (linear, l, 64, 64), (scale, s, 0.5f), (fork, x), (dropout, d, 0.1f), (add, x), (rmsnorm, n, 64)) \
    X(fork_inside_behind_norm, f16, (layernorm, n, 64), (bias, b, 64), (fork, x), (scale, s, 0.5f), (add, x), (silu, a), (linear, m, 64, 256)) \
    X(fork_inside_gemm, bf16, (linear, l, 256, 264), (fork, x), (silu, a), (add, x), (linear, m, 264, 256))         \
    X(fork_of_gemm, bf16, (linear, l, 200, 208), (fork, x), (silu, a), (linear, m, 208, 208), (add, x), (linear, n, 208, 200)) \
    X(fork_of_gemm_alone, f16, (linear, l, 264, 208), (fork, x), (linear, m, 208, 208), (add, x))                   \
    X(nothing_but_sums, bf16, (linear, l, 264, 256), (bias, b, 256), (linear, m, 256, 200))                            \
    X(two_biases, f32, (bias, b, 37), (bias, c, 37))                                                                   \
    X(three_biases, bf16, (bias, b, 64), (bias, c, 64), (gelu, a), (bias, d, 64))                                      \
    X(two_biases_of_gemm, f32, (linear, l, 40, 56), (bias, b, 56), (bias, c, 56))                                   \
    X(two_biases_of_gemm_bf16, bf16, (linear, l, 264, 256), (bias, b, 256), (bias, c, 256))                         \
    X(biases_around_act, bf16, (fork, x), (linear, l, 264, 264), (bias, b, 264), (silu, a), (bias, c, 264), (add, x))  \
    X(biases_around_norm, f16, (bias, b, 40), (layernorm, n, 40), (bias, c, 40))                                       \
    X(fork_inside_odd, bf16, (bias, b, 37), (fork, x), (gelu, a), (add, x))
LISTS(USER)

static_assert((int)two_biases_forward_steps == 1, "bias_bias");
static_assert((int)three_biases_forward_steps == 1, "bias_bias_act_bias");
static_assert((int)two_biases_of_gemm_forward_steps == 1, "linear_bias_bias");
static_assert((int)biases_around_norm_forward_steps == 1, "bias_norm_bias");

#define REF(name, ...) &name##_subject,
static const subject *const lists[] = {LISTS(REF)};

TEST_CASE("patterns that a user adds", "[patterns_user]") {
    for (const subject *s : lists)
        for (const shape &at : {shape(1, 1), shape(2, 33), shape(1, 300)})
            if (!brief() || at.seq < 300) check(*s, at);
}
TEST_CASE("patterns that a user adds, with the library's GEMM and its epilogue as one kernel", "[patterns_user]") {
    const custom_gemms on;
    for (const subject *s : {&fork_inside_gemm_subject, &fork_of_gemm_subject, &fork_of_gemm_alone_subject, &nothing_but_sums_subject,
                             &fork_inside_behind_norm_subject, &two_biases_of_gemm_bf16_subject, &biases_around_act_subject})
        for (const shape &at : {shape(1, 5), shape(2, 150)})
            if (!brief() || at.seq < 150) check(*s, at);
}
