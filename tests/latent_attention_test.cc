// latent_attention_test.cc -- multi-head latent attention (MLA): (head_linear, ..) against the reference.
#include "harness.h"
#include "te/layers.h"
#include "te/moe.h"
#include "te/ops/activation.h"
#include "te/ops/attention.h"
#include "te/ops/elementwise.h"
#include "te/ops/join.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/rope.h"

#define HEAD_LISTS(X, dtype)                                                                                                 \
    X(head_alone_##dtype, dtype, (head_linear, h, 3, 16, 24))                                                                \
    X(head_transposed_##dtype, dtype, (linear, l, 40, 4 * 24), (head_linear, h, 4, 16, 40, (keep, 8), (transposed, 1)))      \
    X(head_kept_##dtype, dtype, (bias, b, 80), (head_linear, h, 2, 24, 8, (keep, 16)), (bias, c, 48))                        \
    X(head_one_##dtype, dtype, (head_linear, h, 1, 72, 136, (transposed, 1)), (head_linear, i, 17, 8, 8))

#define HEAD_MODEL(name, dtype, ...) MODEL(name, dtype, __VA_ARGS__)
#define HEAD_SUBJECT(name, ...) &name##_subject,
HEAD_LISTS(HEAD_MODEL, f32)
HEAD_LISTS(HEAD_MODEL, bf16)
HEAD_LISTS(HEAD_MODEL, f16)

TEST_CASE("a linear for each head", "[latent_attention]") {
    for (const subject *s : {HEAD_LISTS(HEAD_SUBJECT, f32) HEAD_LISTS(HEAD_SUBJECT, bf16) HEAD_LISTS(HEAD_SUBJECT, f16)}) {
        check(*s, shape(1, 1));
        check(*s, shape(1, 7));
        check(*s, shape(2, 33));
        check_gradients_of_reference(*s, shape(1, 3));
    }
}

// ---- whole blocks, and the absorbed form ----

// heads, q_lora, kv_lora, unrotated, rotated, value
#define SMALL_SIZES (2, 24, 32, 16, 8, 24)
#define SMALL_ROPE ((base, 1000.0f), (interleaved, 1))
MODEL(deepseek, f32, TE_DEEPSEEK_BLOCK(b, 40, SMALL_SIZES, SMALL_ROPE, 16, 32, 8, (top_k, 3), (groups, 4), (groups_kept, 2), (factor, 2.5f)))
MODEL(deepseek_bf16, bf16, TE_DEEPSEEK_BLOCK(b, 40, SMALL_SIZES, SMALL_ROPE, 16, 32, 8, (top_k, 3), (groups, 4), (groups_kept, 2), (factor, 2.5f)))

TEST_CASE("a block of DeepSeek", "[latent_attention]") {
    for (const subject *s : {&deepseek_subject, &deepseek_bf16_subject}) {
        check(*s, shape(1, 1));
        shape at(2, 7);
        at.position = 5;
        check(*s, at);
        check_gradients_of_reference(*s, shape(1, 3));
    }
}
