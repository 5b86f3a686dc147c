// layers_test.cc -- the ready-made blocks of te/layers.h against the reference, and the steps of their plans.
#include "harness.h"
#include "te/te.h"

// X(name, dtype, ops...)
#define LAYERS(X)                                                                                        \
    X(layernorm_linear, f32, TE_LAYERNORM_LINEAR(a, 64, 96))                                             \
    X(layernorm_linear_no_bias, f32, TE_LAYERNORM_LINEAR_NO_BIAS(a, 37, 53))                             \
    X(rmsnorm_linear, f32, TE_RMSNORM_LINEAR(a, 64, 40))                                                 \
    X(layernorm_mlp, f32, TE_LAYERNORM_MLP(a, gelu, 64, 96))                                             \
    X(layernorm_mlp_no_bias, f32, TE_LAYERNORM_MLP_NO_BIAS(a, relu, 37, 53))                             \
    X(layernorm_gated_mlp, f32, TE_LAYERNORM_GATED_MLP(a, geglu, 64, 40))                                \
    X(rmsnorm_gated_mlp, f32, TE_RMSNORM_GATED_MLP(a, swiglu, 64, 40 + 8))                               \
    X(layer, f32, TE_TRANSFORMER_LAYER(a, layernorm, gelu, 64, 96, 4, 2, 16, 0.1f))                      \
    X(layer_no_bias, f32, TE_TRANSFORMER_LAYER_NO_BIAS(a, rmsnorm, silu, 40, 96, 2, 1, 32, 0.2f))        \
    X(layer_gated, f32, TE_TRANSFORMER_LAYER_GATED(a, layernorm, swiglu, 64, 40, 4, 4, 16, 0.1f))        \
    X(layer_gated_no_bias, f32, TE_TRANSFORMER_LAYER_GATED_NO_BIAS(a, rmsnorm, geglu, 64, 40, 2, 2, 32, 0.1f)) \
    X(layer_rope, f32, TE_TRANSFORMER_LAYER_ROPE(a, layernorm, gelu, 64, 96, 4, 2, 16, 0.1f))            \
    X(layer_rope_no_bias, f32, TE_TRANSFORMER_LAYER_ROPE_NO_BIAS(a, layernorm1p, srelu, 64, 96, 4, 1, 16, 0.1f)) \
    X(layer_rope_gated, f32, TE_TRANSFORMER_LAYER_ROPE_GATED(a, rmsnorm, swiglu, 64, 40, 4, 2, 16, 0.1f)) \
    X(layer_rope_gated_no_bias, f32, TE_TRANSFORMER_LAYER_ROPE_GATED_NO_BIAS(a, rmsnorm, clamped_swiglu, 64, 40, 4, 2, 16, 0.1f)) \
    X(gpt_block, f32, TE_GPT_BLOCK(a, 64, 256, 4, 0.1f))                                                 \
    X(llama_block, f32, TE_LLAMA_BLOCK(a, 64, 88, 4, 2, 16, 500000.0f))                                  \
    X(qwen2_block, f32, TE_QWEN2_BLOCK(a, 64, 88, 4, 2, 16, 1000000.0f))                                 \
    X(qwen3_block, f32, TE_QWEN3_BLOCK(a, 64, 88, 4, 2, 24, 1000000.0f))                                 \
    X(gemma2_block, f32, TE_GEMMA2_BLOCK(a, 64, 40, 4, 2, 16, 0.2f, 4))                                  \
    X(gptj_block, f32, TE_GPTJ_BLOCK(a, 64, 256, 2, 16))                                                 \
    X(vit_block, f32, TE_VIT_BLOCK(a, 64, 96, 4))                                                        \
    X(bert_block, f32, TE_BERT_BLOCK(a, 64, 96, 4, 0.1f, 1e-12f))                                        \
    X(bert_blocks_16, bf16, TE_BERT_BLOCK(a, 64, 96, 4, 0.1f, 1e-5f), TE_BERT_BLOCK(b, 64, 96, 2, 0.1f, 1e-5f)) \
    X(gpt_block_16, bf16, TE_GPT_BLOCK(a, 64, 256, 2, 0.1f))                                             \
    X(llama31_block_16, bf16, TE_LLAMA31_BLOCK(a, 64, 88, 4, 2, 16, (scaling, llama3), (factor, 8), (original_length, 64))) \
    X(gptj_block_16, bf16, TE_GPTJ_BLOCK(a, 64, 256, 2, 16))                                             \
    X(vit_block_16, f16, TE_VIT_BLOCK(a, 64, 96, 4))                                                     \
    X(two_blocks, f32, (embedding, tokens, 61, 64), TE_GPTJ_BLOCK(b0, 64, 96, 2, 16), TE_LLAMA_BLOCK(b1, 64, 40, 2, 1, 32, 10000.0f), \
        TE_LAYERNORM_LINEAR_NO_BIAS(head, 64, 61), (cross_entropy, loss, 61))

#define LAYERS_MODEL(name, dtype, ...) MODEL(name, dtype, __VA_ARGS__)
#define LAYERS_SUBJECT(name, ...) &name##_subject,
LAYERS(LAYERS_MODEL)

TEST_CASE("ready-made blocks match the reference", "[layers]") {
    for (const subject *s : {LAYERS(LAYERS_SUBJECT)}) {
        check(*s, shape(1, 1));
        check(*s, shape(3, 7));
        if (s->plan()->dtype == TE_f32) check_gradients_of_reference(*s, shape(2, 3));
    }
}

static_assert((int)gpt_block_forward_steps == 6 && (int)gpt_block_infer_steps == 6 && (int)gpt_block_backward_steps == 8, "as in README.md");
static_assert((int)bert_block_forward_steps == 7 && (int)bert_block_infer_steps == 7 && (int)bert_block_backward_steps == 7,
              "each norm is in one step with the add before it, in backward, too; two steps are forks without a kernel");
static_assert((int)vit_block_forward_steps == 6, "no dropout, as many steps");
static_assert((int)qwen3_block_forward_steps == (int)llama_block_forward_steps + 1, "the heads' norm and rope are one step; without a norm rope is the linear's");
static_assert((int)qwen3_block_backward_steps == (int)llama_block_backward_steps, "in backward, too");

TEST_CASE("the ops of ready-made blocks have the names that te/layers.h documents", "[layers]") {
    gpt_block m;
    llama_block l;
    gptj_block j;
    CHECK(sizeof m.a_qkv.weight == sizeof l.a_norm2.weight);
    CHECK(sizeof m.a_fc2_bias.bias == sizeof j.a_norm.bias);
    std::vector<std::string> names;
    for (int i = 0; i < gpt_block_plan()->op_count; i++) names.push_back(gpt_block_plan()->op[i].name);
    CHECK(names == std::vector<std::string>{"a_x1", "a_norm1", "a_qkv", "a_qkv_bias", "a_attention", "a_proj", "a_proj_bias", "a_drop1", "a_x1",
                                            "a_x2", "a_norm2", "a_fc1", "a_fc1_bias", "a_act", "a_fc2", "a_fc2_bias", "a_drop2", "a_x2"});
}

MODEL(fresh, f32, (dyt, n, 64), (mul_param, s, 1), (mul_param, w, 64))

TEST_CASE("parameters have the initial values that their ops define", "[layers]") {
    context ctx_owner;
    instance m(fresh_subject, &ctx_owner.c);
    REQUIRE(te_model_randomize(m.model(), 0.02f, 1, 0, &ctx_owner.c) == TE_OK);
    const double begin[5] = {0.5, 1, 0, 1, 1}; // alpha, weight, bias; the factor; the vector
    for (int i = 0; i < 5; i++) {
        const size_t from = (size_t)((float *)m.model()->param[i].data - (float *)m.params.data());
        CHECK(m.params.read(TE_f32, from, m.elements(i)) == reference::vec(m.elements(i), begin[i]));
    }
}
