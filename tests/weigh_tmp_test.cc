// Mixture of experts: (router, ..), (expert_linear, ..), (expert_bias, ..) and (combine, ..) against the reference, with any routing: experts
// without rows, ties, NaN in the logits.
#include "folder.h"
#include "harness.h"
#include "te/layers.h"
#include "te/ops/activation.h"
#include "te/ops/attention.h"
#include "te/ops/cross_entropy.h"
#include "te/ops/embedding.h"
#include "te/io/packed.h"
#include "te/moe.h"
#include "te/ops/head_norm.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/recompute.h"
#include "te/ops/rope.h"
#include "te/plan/freeze.h"

MODEL(gpt_oss_block, f32, TE_GPT_OSS_BLOCK(b0, 32, 16, 2, 1, 16, 3, 5, 2, (base, 10000.0f), (scaling, yarn), (factor, 4.0f),                      \
      (original_length, 16), (truncate, 0)))
MODEL(weighs_input, f32, (router, r, 24, 5, (top_k, 2), (score, sigmoid), (weigh, input)), (expert_linear, up, 24, 16, 5), (gelu, a),            \
      (expert_linear, down, 16, 24, 5), (combine, r), (bias, b, 24))
MODEL(weighs_input_alone, f32, (linear, l, 20, 20), (router, r, 20, 4, (top_k, 2), (renormalise, 1), (weigh, input)), (gelu, a), (combine, r))
MODEL(weighs_one_product, f32, (fork, x), (router, r, 16, 4, (top_k, 2), (score, softmax_of_chosen), (weigh, input)),                            \
      (expert_linear, up, 16, 16, 4), (combine, r), (add, x))
MODEL(llama4_block, f32, TE_LLAMA4_BLOCK(b0, 32, 16, 2, 1, 16, 4, 1, (base, 10000.0f)))
MODEL(llama4_block_no_rope, f32, TE_LLAMA4_BLOCK_NO_ROPE(b0, 32, 16, 2, 1, 16, 4, 2))
TEST_CASE("weigh") {
  for (const subject *s : {&weighs_input_subject, &weighs_input_alone_subject, &weighs_one_product_subject, &llama4_block_subject, &llama4_block_no_rope_subject, &gpt_oss_block_subject}) { check(*s, shape(1, 1)); check(*s, shape(2, 9)); check(*s, shape(1, 70)); check_gradients_of_reference(*s, shape(1, 3)); } }
