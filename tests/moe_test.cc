// Mixture of experts: (router, ..), (expert_linear, ..), (expert_bias, ..) and (combine, ..) against the reference, with any routing: experts
// without rows, ties, NaN in the logits.
#include "harness.h"
#include "te/layers.h"
#include "te/ops/activation.h"
#include "te/ops/attention.h"
#include "te/ops/cross_entropy.h"
#include "te/ops/embedding.h"
#include "te/ops/expert_linear.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/recompute.h"
#include "te/ops/rope.h"

#define MOE_LISTS(X, dtype)                                                                                                                      \
    X(alone_##dtype, dtype, (router, r, 24, 5, (top_k, 2)), (combine, r))                                                                        \
    X(one_##dtype, dtype, (router, r, 37, 1), (combine, r))                                                                                       \
    X(all_##dtype, dtype, (router, r, 16, 4, (top_k, 4), (score, sigmoid)), (combine, r))                                                        \
    X(mixtral_##dtype, dtype, (fork, x), (rmsnorm, n, 32), (router, r, 32, 8, (top_k, 2), (renormalise, 1)), (expert_linear, up, 32, 2 * 24, 8), \
      (swiglu, act), (expert_linear, down, 24, 32, 8), (combine, r), (add, x))                                                                   \
    X(biased_##dtype, dtype, (router, r, 40, 3, (top_k, 1), (score, softmax_of_chosen)), (expert_linear, up, 40, 72, 3), (expert_bias, b, 72, 3), \
      (gelu, act), (expert_linear, down, 72, 40, 3), (expert_bias, c, 40, 3), (combine, r), (bias, d, 40))                                       \
    X(grouped_##dtype, dtype, (fork, x), (router, r, 16, 12, (top_k, 3), (score, sigmoid), (choice_bias, 1), (groups, 4), (groups_kept, 2),      \
      (renormalise, 1), (factor, 2.5f)), (expert_linear, up, 16, 16, 12), (silu, act), (combine, r), (add, x))                                   \
    X(losses_##dtype, dtype, (linear, l, 24, 24), (router, r, 24, 6, (top_k, 2), (aux_loss, 0.3f), (z_loss, 0.2f)), (expert_linear, up, 24, 8, 6), \
      (combine, r), (linear, h, 8, 16))                                                                                                          \
    X(chosen_##dtype, dtype, (router, r, 24, 70, (top_k, 6), (score, softmax_of_chosen), (factor, 0.5f)), (rmsnorm, n, 24), (fork, x),           \
      (expert_linear, up, 24, 24, 70), (tanh, t), (add, x), (combine, r))

#define MOE_MODEL(name, dtype, ...) MODEL(name, dtype, __VA_ARGS__)
#define MOE_SUBJECT(name, ...) &name##_subject,
MOE_LISTS(MOE_MODEL, f32)
MOE_LISTS(MOE_MODEL, bf16)
MOE_LISTS(MOE_MODEL, f16)

TEST_CASE("routers and experts", "[moe]") {
    for (const subject *s : {MOE_LISTS(MOE_SUBJECT, f32) MOE_LISTS(MOE_SUBJECT, bf16) MOE_LISTS(MOE_SUBJECT, f16)}) {
        check(*s, shape(1, 1));
        check(*s, shape(2, 5));
        const bool is_f32 = s->plan()->dtype == TE_f32;
        if (is_f32) check(*s, shape(1, 131)); // several chunks of the choice
        if (is_f32) check_gradients_of_reference(*s, shape(1, 3));
        if (is_f32) check_gradients_of_reference(*s, shape(2, 4));
    }
}
