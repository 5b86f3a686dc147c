/* layers.h -- ready-made lists of ops: blocks of known models, and the modules of TransformerEngine.
 *
 * Do this:
 *     #include "te/te.h"
 *     TE_SEQUENTIAL(block, bf16, TE_LLAMA_BLOCK(b0, 4096, 14336, 32, 8, 128, 500000.0f))
 *     ... block.b0_qkv.weight ...
 *     TE_SEQUENTIAL(gpt, bf16, (embedding, tokens, V, H), (positions, at, T, H),
 *                   TE_GPT_BLOCK(b0, H, 4 * H, 12, 0.1f), TE_GPT_BLOCK(b1, H, 4 * H, 12, 0.1f),
 *                   TE_LAYERNORM_LINEAR_NO_BIAS(head, H, V), (cross_entropy, loss, V))
 *
 * Each macro expands to a list of ops and to nothing else. If you need a different list, copy the macro from here and
 * change it. `b` is the prefix of the names of the macro's ops, so a list can hold several blocks. H: hidden size, F:
 * inner size of the MLP, HEADS: number of q heads, KV: number of k heads, and also of v heads (grouped-query
 * attention), D: head_dim, P: dropout probability. NORM, ACT and GATED are kinds of ops, such as layernorm, gelu and
 * swiglu.
 *
 * Names of the ops in a block (not every block has all of these ops): b_x1, b_norm1, b_qkv, b_qkv_bias, b_rope,
 * b_attention, b_proj, b_proj_bias, b_drop1, b_x2, b_norm2, b_fc1, b_fc1_bias, b_act, b_fc2, b_fc2_bias, b_drop2.
 */
#ifndef TE_LAYERS_H
#define TE_LAYERS_H

/* ---- parts ------------------------------------------------------------------------------------------------------- */

/* A norm, a linear and (without _NO_BIAS) a bias; the names of the ops are b_norm, b_linear, b_bias. */
#define TE_LAYERNORM_LINEAR(b, IN, OUT) TE_LAYERNORM_LINEAR_NO_BIAS(b, IN, OUT), (bias, b##_bias, OUT)
#define TE_LAYERNORM_LINEAR_NO_BIAS(b, IN, OUT) (layernorm, b##_norm, IN), (linear, b##_linear, IN, OUT)
#define TE_RMSNORM_LINEAR(b, IN, OUT) (rmsnorm, b##_norm, IN), (linear, b##_linear, IN, OUT)

/* A norm and an MLP; the names of the ops are b_norm, b_fc1, b_fc1_bias, b_act, b_fc2, b_fc2_bias. In a gated MLP, the
 * output of b_fc1 has 2 * F columns. */
#define TE_LAYERNORM_MLP(b, ACT, H, F) \
    (layernorm, b##_norm, H), (linear, b##_fc1, H, F), (bias, b##_fc1_bias, F), (ACT, b##_act), TE__LAYERS_OUT(b, H, F)
#define TE_LAYERNORM_MLP_NO_BIAS(b, ACT, H, F) \
    (layernorm, b##_norm, H), (linear, b##_fc1, H, F), (ACT, b##_act), (linear, b##_fc2, F, H)
#define TE_LAYERNORM_GATED_MLP(b, GATED, H, F)                                                        \
    (layernorm, b##_norm, H), (linear, b##_fc1, H, 2 * (F)), (bias, b##_fc1_bias, 2 * (F)), (GATED, b##_act), \
    TE__LAYERS_OUT(b, H, F)
#define TE_RMSNORM_GATED_MLP(b, GATED, H, F) \
    (rmsnorm, b##_norm, H), (linear, b##_fc1, H, 2 * (F)), (GATED, b##_act), (linear, b##_fc2, F, H)
#define TE__LAYERS_OUT(b, H, F) (linear, b##_fc2, F, H), (bias, b##_fc2_bias, H)

/* Multi-head latent attention, MLA (DeepSeek-V2, DeepSeek-AI 2024), of a normed input. Keys and values are computed
 * from a latent vector of KV columns, and all heads share the R rotated columns of the keys. SIZES: (HEADS, Q, KV, N,
 * R, V). A head of q and k has N columns followed by R rotated columns, a head of v has V columns, and Q is the width
 * of the compressed q. QUERY: TE_MLA_QUERY_LORA or, for models that do not compress q, TE_MLA_QUERY; with TE_MLA_QUERY,
 * Q is 0. ROPE: the options of rope, in parentheses; DeepSeek's checkpoints need (interleaved, 1). The arguments after
 * ROPE are options of attention. Names of the ops with parameters: b_q_a, b_q_norm (not with TE_MLA_QUERY), b_q_b,
 * b_kv_a, b_kv_norm, b_k_b, b_v_b, b_proj. This form computes keys and values of all heads from the latent vector.
 *     TE_MLA(b0, TE_MLA_QUERY_LORA, 7168, (128, 1536, 512, 128, 64, 128), ((base, 10000.0f), (interleaved, 1)),
 *            (causal, 1)) */
#define TE_MLA(b, QUERY, H, SIZES, ROPE, ...) TE__LAYERS_MLA(b, QUERY, H, ROPE, (__VA_ARGS__), TE_STRIP SIZES)
/* Computes the same as TE_MLA, with the same parameters, in the absorbed form, which is for inference (te/moe.h): q is
 * multiplied by b_k_b, and the attention's output by b_v_b. So the cache has only KV + R columns for each token: the
 * latent vector and the rotated part of the key. The options of attention must include (scale, (N + R)^(-1/2)). */
#define TE_MLA_ABSORBED(b, QUERY, H, SIZES, ROPE, ...) \
    TE__LAYERS_MLA_ABSORBED(b, QUERY, H, ROPE, (__VA_ARGS__), TE_STRIP SIZES)
#define TE_MLA_QUERY(b, H, Q, OUT) (linear, b##_q_b, H, OUT)
#define TE_MLA_QUERY_LORA(b, H, Q, OUT) \
    (linear, b##_q_a, H, Q), (rmsnorm, b##_q_norm, Q, (eps, 1e-6f)), (linear, b##_q_b, Q, OUT)

/* ---- pre-norm layers: h = x + attention(norm(x)), y = h + mlp(norm(h)) ------------------------------------------- */

/* A layer with causal attention and an MLP, each of which is followed by dropout. KV = HEADS is multi-head attention.
 * Suffixes of the variants: ROPE: rotary position embedding with base 10000; GATED: a gated activation in the MLP;
 * NO_BIAS: no linear is followed by a bias. */
#define TE_TRANSFORMER_LAYER(b, NORM, ACT, H, F, HEADS, KV, D, P) \
    TE__LAYERS_LAYER(b, NORM, ACT, H, F, F, HEADS, KV, D, P, TE__LAYERS_NONE, TE__LAYERS_BIAS)
#define TE_TRANSFORMER_LAYER_NO_BIAS(b, NORM, ACT, H, F, HEADS, KV, D, P) \
    TE__LAYERS_LAYER(b, NORM, ACT, H, F, F, HEADS, KV, D, P, TE__LAYERS_NONE, TE__LAYERS_NONE)
#define TE_TRANSFORMER_LAYER_GATED(b, NORM, GATED, H, F, HEADS, KV, D, P) \
    TE__LAYERS_LAYER(b, NORM, GATED, H, F, 2 * (F), HEADS, KV, D, P, TE__LAYERS_NONE, TE__LAYERS_BIAS)
#define TE_TRANSFORMER_LAYER_GATED_NO_BIAS(b, NORM, GATED, H, F, HEADS, KV, D, P) \
    TE__LAYERS_LAYER(b, NORM, GATED, H, F, 2 * (F), HEADS, KV, D, P, TE__LAYERS_NONE, TE__LAYERS_NONE)
#define TE_TRANSFORMER_LAYER_ROPE(b, NORM, ACT, H, F, HEADS, KV, D, P) \
    TE__LAYERS_LAYER(b, NORM, ACT, H, F, F, HEADS, KV, D, P, TE__LAYERS_ROPE, TE__LAYERS_BIAS)
#define TE_TRANSFORMER_LAYER_ROPE_NO_BIAS(b, NORM, ACT, H, F, HEADS, KV, D, P) \
    TE__LAYERS_LAYER(b, NORM, ACT, H, F, F, HEADS, KV, D, P, TE__LAYERS_ROPE, TE__LAYERS_NONE)
#define TE_TRANSFORMER_LAYER_ROPE_GATED(b, NORM, GATED, H, F, HEADS, KV, D, P) \
    TE__LAYERS_LAYER(b, NORM, GATED, H, F, 2 * (F), HEADS, KV, D, P, TE__LAYERS_ROPE, TE__LAYERS_BIAS)
#define TE_TRANSFORMER_LAYER_ROPE_GATED_NO_BIAS(b, NORM, GATED, H, F, HEADS, KV, D, P) \
    TE__LAYERS_LAYER(b, NORM, GATED, H, F, 2 * (F), HEADS, KV, D, P, TE__LAYERS_ROPE, TE__LAYERS_NONE)

/* ---- blocks of known models -------------------------------------------------------------------------------------- */

/* GPT-2 (Radford et al. 2019). */
#define TE_GPT_BLOCK(b, H, F, HEADS, P) \
    TE_TRANSFORMER_LAYER(b, layernorm, gelu, H, F, HEADS, HEADS, (H) / (HEADS), P)

/* Llama 3.1 (Grattafiori et al. 2024), in which rope is scaled to a longer context than the one that the model was
 * first trained with. The arguments after D are options of rope: (base, 500000.0f), (scaling, llama3), (factor, 8.0f),
 * (original_length, 8192). */
#define TE_LLAMA31_BLOCK(b, H, F, HEADS, KV, D, ...)                                                                 \
    (fork, b##_x1), (rmsnorm, b##_norm1, H), (linear, b##_qkv, H, ((HEADS) + 2 * (KV)) * (D)),                       \
    (rope, b##_rope, HEADS, KV, D, __VA_ARGS__), (attention, b##_attention, HEADS, KV, D),                           \
    (linear, b##_proj, (HEADS) * (D), H), (add, b##_x1),                                                             \
    (fork, b##_x2), (rmsnorm, b##_norm2, H), TE__LAYERS_MLP(b, swiglu, H, F, 2 * (F), TE__LAYERS_NONE, (add, b##_x2))
/* Llama 2 and 3 (Touvron et al. 2023, Grattafiori et al. 2024): BASE, the base of rope, is 10000.0f for Llama 2 and
 * 500000.0f for Llama 3. */
#define TE_LLAMA_BLOCK(b, H, F, HEADS, KV, D, BASE) TE_LLAMA31_BLOCK(b, H, F, HEADS, KV, D, (base, BASE))

/* Qwen2 and 2.5 (Yang et al. 2024): Llama's block with a bias added to q, k and v (b_qkv_bias). BASE is 1000000.0f for
 * these models. */
#define TE_QWEN2_BLOCK(b, H, F, HEADS, KV, D, BASE)                                                                  \
    (fork, b##_x1), (rmsnorm, b##_norm1, H, (eps, 1e-6f)), (linear, b##_qkv, H, ((HEADS) + 2 * (KV)) * (D)),         \
    (bias, b##_qkv_bias, ((HEADS) + 2 * (KV)) * (D)), (rope, b##_rope, HEADS, KV, D, (base, BASE)),                  \
    (attention, b##_attention, HEADS, KV, D), (linear, b##_proj, (HEADS) * (D), H), (add, b##_x1),                   \
    (fork, b##_x2), (rmsnorm, b##_norm2, H, (eps, 1e-6f)),                                                           \
    TE__LAYERS_MLP(b, swiglu, H, F, 2 * (F), TE__LAYERS_NONE, (add, b##_x2))

/* Qwen3 (Yang et al. 2025): Llama's block with a norm over each head of q and k (b_heads); BASE is 1000000.0f. */
#define TE_QWEN3_BLOCK(b, H, F, HEADS, KV, D, BASE)                                                                  \
    (fork, b##_x1), (rmsnorm, b##_norm1, H, (eps, 1e-6f)), (linear, b##_qkv, H, ((HEADS) + 2 * (KV)) * (D)),         \
    (head_norm, b##_heads, HEADS, KV, D, (eps, 1e-6f)), (rope, b##_rope, HEADS, KV, D, (base, BASE)),                \
    (attention, b##_attention, HEADS, KV, D), (linear, b##_proj, (HEADS) * (D), H), (add, b##_x1),                   \
    (fork, b##_x2), (rmsnorm, b##_norm2, H, (eps, 1e-6f)),                                                           \
    TE__LAYERS_MLP(b, swiglu, H, F, 2 * (F), TE__LAYERS_NONE, (add, b##_x2))

/* Mixtral (Jiang et al. 2024): Llama's block with E experts in place of the MLP. The router chooses TOP_K experts for
 * each token. F: the inner size of an expert. Ops in place of the MLP's: b_router, b_fc1, b_act, b_fc2. BASE is
 * 1000000.0f. */
#define TE_MIXTRAL_BLOCK(b, H, F, HEADS, KV, D, BASE, E, TOP_K)                                                      \
    (fork, b##_x1), (rmsnorm, b##_norm1, H), (linear, b##_qkv, H, ((HEADS) + 2 * (KV)) * (D)),                       \
    (rope, b##_rope, HEADS, KV, D, (base, BASE)), (attention, b##_attention, HEADS, KV, D),                          \
    (linear, b##_proj, (HEADS) * (D), H), (add, b##_x1),                                                             \
    (fork, b##_x2), (rmsnorm, b##_norm2, H), TE__LAYERS_EXPERTS(b, H, F, E, TOP_K), (add, b##_x2)
/* Qwen3-MoE (Yang et al. 2025): TE_QWEN3_BLOCK with experts in place of the MLP. */
#define TE_QWEN3_MOE_BLOCK(b, H, F, HEADS, KV, D, BASE, E, TOP_K)                                                    \
    (fork, b##_x1), (rmsnorm, b##_norm1, H, (eps, 1e-6f)), (linear, b##_qkv, H, ((HEADS) + 2 * (KV)) * (D)),         \
    (head_norm, b##_heads, HEADS, KV, D, (eps, 1e-6f)), (rope, b##_rope, HEADS, KV, D, (base, BASE)),                \
    (attention, b##_attention, HEADS, KV, D), (linear, b##_proj, (HEADS) * (D), H), (add, b##_x1),                   \
    (fork, b##_x2), (rmsnorm, b##_norm2, H, (eps, 1e-6f)), TE__LAYERS_EXPERTS(b, H, F, E, TOP_K), (add, b##_x2)

/* DeepSeek-V3 (DeepSeek-AI 2024, arXiv 2412.19437): latent attention (TE_MLA), E experts, and an MLP for all tokens
 * (the shared experts). The router chooses the experts of a token by sigmoid scores plus a learnt bias. F: the inner
 * size of an expert; SHARED: the inner size of the shared experts together. The arguments after E are options of the
 * router:
 *     TE_DEEPSEEK_BLOCK(b0, 7168, (128, 1536, 512, 128, 64, 128), ((base, 10000.0f), (interleaved, 1)), 2048, 2048,
 *                       256, (top_k, 8), (groups, 8), (groups_kept, 4), (factor, 2.5f))
 * Ops in place of the MLP's: b_router, b_fc1, b_act, b_fc2, b_shared_fc1, b_shared_act, b_shared_fc2. */
#define TE_DEEPSEEK_BLOCK(b, H, SIZES, ROPE, F, SHARED, E, ...)                                                      \
    (fork, b##_x1), (rmsnorm, b##_norm1, H, (eps, 1e-6f)),                                                           \
    TE_MLA(b, TE_MLA_QUERY_LORA, H, SIZES, ROPE, (causal, 1)), (add, b##_x1),                                        \
    (fork, b##_x2), (rmsnorm, b##_norm2, H, (eps, 1e-6f)), (fork, b##_h),                                            \
    (router, b##_router, H, E, (score, sigmoid), (choice_bias, 1), (renormalise, 1), __VA_ARGS__),                   \
    TE__LAYERS_EXPERT_MLP(b, H, F, E), (fork, b##_routed), (load, b##_h),                                            \
    (linear, b##_shared_fc1, H, 2 * (SHARED)), (swiglu, b##_shared_act), (linear, b##_shared_fc2, SHARED, H),        \
    (add, b##_routed), (add, b##_x2)

/* gpt-oss (OpenAI 2025): all projections have biases, the softmax of each head includes a learnt logit (attention
 * sinks), the router has a bias, and the experts have a clamped swiglu. LEFT: the sliding window as in TE_GEMMA2_BLOCK;
 * LEFT is 127 in the first, third, .. block and -1 in the second, fourth, .. block. The arguments after TOP_K are
 * options of rope: (base, 150000.0f), (scaling, yarn), (factor, 32.0f), (original_length, 4096), (truncate, 0). Ops in
 * place of the MLP's: b_router, b_fc1, b_fc1_bias, b_act, b_fc2, b_fc2_bias; a row of the output of b_fc1 contains an
 * expert's gate, then its up projection. */
#define TE_GPT_OSS_BLOCK(b, H, F, HEADS, KV, D, LEFT, E, TOP_K, ...)                                                 \
    (fork, b##_x1), (rmsnorm, b##_norm1, H), (linear, b##_qkv, H, ((HEADS) + 2 * (KV)) * (D)),                       \
    (bias, b##_qkv_bias, ((HEADS) + 2 * (KV)) * (D)), (rope, b##_rope, HEADS, KV, D, __VA_ARGS__),                   \
    (attention, b##_attention, HEADS, KV, D, (window_left, LEFT), (sinks, 1)), (linear, b##_proj, (HEADS) * (D), H), \
    (bias, b##_proj_bias, H), (add, b##_x1), (fork, b##_x2), (rmsnorm, b##_norm2, H),                                \
    (router, b##_router, H, E, (top_k, TOP_K), (score, softmax_of_chosen), (bias, 1)),                               \
    (expert_linear, b##_fc1, H, 2 * (F), E), (expert_bias, b##_fc1_bias, 2 * (F), E), (clamped_swiglu, b##_act),     \
    (expert_linear, b##_fc2, F, H, E), (expert_bias, b##_fc2_bias, H, E), (combine, b##_router), (add, b##_x2)

/* Llama 4 (Meta AI 2025), a block with experts. The input of the chosen expert is multiplied by the router's weight,
 * which is the sigmoid of the expert's logit. A shared expert of the same inner size F processes every token. Rope
 * rotates pairs of neighbours. Each head of q and k has a norm (b_heads). In Llama 4 this norm has no weights; here it
 * has weights, which are 1 initially and stay 1 if they are frozen by te_freeze. The arguments after TOP_K are options
 * of rope. _NO_ROPE: a block without rope and without b_heads; in Llama 4, every fourth block is such a block.
 * Attention sees all earlier tokens. Llama 4 does the same for sequences of at most 8191 tokens; in longer sequences,
 * its blocks with rope see only chunks of 8192 tokens, and its blocks without rope multiply q by a factor that grows
 * with the position. Further ops: b_n2, b_router, b_routed, b_shared1, b_shared_act, b_shared2. */
#define TE_LLAMA4_BLOCK(b, H, F, HEADS, KV, D, E, TOP_K, ...)                                                        \
    TE__LAYERS_LLAMA4(b, H, F, HEADS, KV, D, E, TOP_K, TE__LAYERS_LLAMA4_ROPE, ((interleaved, 1), __VA_ARGS__))
#define TE_LLAMA4_BLOCK_NO_ROPE(b, H, F, HEADS, KV, D, E, TOP_K) \
    TE__LAYERS_LLAMA4(b, H, F, HEADS, KV, D, E, TOP_K, TE__LAYERS_NONE, ())

/* Gemma 2 (Gemma Team 2024): the block has a norm before and a norm after attention (b_norm1, b_norm1_after), and
 * before and after the MLP (b_norm2, b_norm2_after). Gamma is zero-centred; attention scores are softcapped at 50.
 * SCALE: the softmax scale, query_pre_attn_scalar^(-1/2). LEFT: the sliding window, that is, how many tokens before its
 * own token a query attends to; -1 means all of them. In Gemma 2 every second block has LEFT -1. */
#define TE_GEMMA2_BLOCK(b, H, F, HEADS, KV, D, SCALE, LEFT)                                                          \
    (fork, b##_x1), (rmsnorm1p, b##_norm1, H, (eps, 1e-6f)), (linear, b##_qkv, H, ((HEADS) + 2 * (KV)) * (D)),       \
    (rope, b##_rope, HEADS, KV, D),                                                                                  \
    (attention, b##_attention, HEADS, KV, D, (scale, SCALE), (softcap, 50.0f), (window_left, LEFT)),                 \
    (linear, b##_proj, (HEADS) * (D), H), (rmsnorm1p, b##_norm1_after, H, (eps, 1e-6f)), (add, b##_x1),              \
    (fork, b##_x2), (rmsnorm1p, b##_norm2, H, (eps, 1e-6f)),                                                         \
    TE__LAYERS_MLP(b, geglu, H, F, 2 * (F), TE__LAYERS_NONE, (rmsnorm1p, b##_norm2_after, H, (eps, 1e-6f))),         \
    (add, b##_x2)

/* GPT-J (Wang & Komatsuzaki 2021): attention and MLP run in parallel on the output of one norm. Rope is interleaved and
 * rotates only the first ROTARY columns of each head. Forks: b_x, the block's input; b_n, the norm's output; b_a, the
 * output of attention. */
#define TE_GPTJ_BLOCK(b, H, F, HEADS, ROTARY)                                                                        \
    (fork, b##_x), (layernorm, b##_norm, H), (fork, b##_n), (linear, b##_qkv, H, 3 * (H)),                           \
    (rope, b##_rope, HEADS, HEADS, (H) / (HEADS), (rotary_dim, ROTARY), (interleaved, 1)),                           \
    (attention, b##_attention, HEADS, HEADS, (H) / (HEADS)), (linear, b##_proj, H, H),                               \
    (fork, b##_a), (load, b##_n), TE__LAYERS_MLP(b, gelu, H, F, F, TE__LAYERS_BIAS, (add, b##_a)), (add, b##_x)

/* The block of ViT (Dosovitskiy et al. 2021), with bidirectional attention, i.e. without a causal mask. */
#define TE_VIT_BLOCK(b, H, F, HEADS)                                                                                 \
    (fork, b##_x1), (layernorm, b##_norm1, H, (eps, 1e-6f)), (linear, b##_qkv, H, 3 * (H)),                          \
    (bias, b##_qkv_bias, 3 * (H)), (attention, b##_attention, HEADS, HEADS, (H) / (HEADS), (causal, 0)),             \
    (linear, b##_proj, H, H), (bias, b##_proj_bias, H), (add, b##_x1),                                               \
    (fork, b##_x2), (layernorm, b##_norm2, H, (eps, 1e-6f)),                                                         \
    TE__LAYERS_MLP(b, gelu_erf, H, F, F, TE__LAYERS_BIAS, (add, b##_x2))

/* The encoder block of BERT (Devlin et al. 2019), with bidirectional attention. It is post-norm: h = norm(x +
 * attention(x)), y = norm(h + mlp(h)), so that each norm (b_norm1, b_norm2) follows an add and is fused with it.
 * Attention takes packed sequences (te_batch.cu_seqlens), too. EPS: eps of the norms; 1e-12f for BERT, 1e-5f for
 * RoBERTa. */
#define TE_BERT_BLOCK(b, H, F, HEADS, P, EPS)                                                                        \
    (fork, b##_x1), (linear, b##_qkv, H, 3 * (H)), (bias, b##_qkv_bias, 3 * (H)),                                    \
    (attention, b##_attention, HEADS, HEADS, (H) / (HEADS), (causal, 0), (varlen, 1)), (linear, b##_proj, H, H),     \
    (bias, b##_proj_bias, H), (dropout, b##_drop1, P), (add, b##_x1), (layernorm, b##_norm1, H, (eps, EPS)),         \
    (fork, b##_x2), TE__LAYERS_MLP(b, gelu_erf, H, F, F, TE__LAYERS_BIAS, (dropout, b##_drop2, P)), (add, b##_x2),   \
    (layernorm, b##_norm2, H, (eps, EPS))

/* T5's decoder block (Raffel et al. 2020): self-attention, cross-attention to the encoder's output, and an MLP with
 * relu, each of which ends in dropout with probability P. Attention scores are not scaled, and no linear has a bias.
 * ENC: the name of the encoder's output, which has M columns and is declared earlier in the list as (input, ENC, M,
 * (rows, memory)). _GATED: the block of T5 1.1, with geglu in the MLP. Positions enter through
 * b_attention.relative_bias, a relative position bias with 32 buckets for distances up to 128. In T5, all blocks share
 * the relative_bias of the first block: use _TIED for the other blocks, and call te_tie(&m.b1_attention.relative_bias,
 * &m.b0_attention.relative_bias, ctx) for each of them. Further ops: b_q, b_queries, b_memory, b_kv, b_keys, b_back,
 * b_cross, b_cross_proj, b_drop3, b_x3, b_norm3. */
#define TE_T5_DECODER_BLOCK(b, H, F, HEADS, D, P, M, ENC) TE__LAYERS_T5(b, relu, H, F, F, HEADS, D, P, M, ENC, 0)
#define TE_T5_DECODER_BLOCK_TIED(b, H, F, HEADS, D, P, M, ENC) TE__LAYERS_T5(b, relu, H, F, F, HEADS, D, P, M, ENC, 1)
#define TE_T5_DECODER_BLOCK_GATED(b, H, F, HEADS, D, P, M, ENC) \
    TE__LAYERS_T5(b, geglu, H, F, 2 * (F), HEADS, D, P, M, ENC, 0)
#define TE_T5_DECODER_BLOCK_GATED_TIED(b, H, F, HEADS, D, P, M, ENC) \
    TE__LAYERS_T5(b, geglu, H, F, 2 * (F), HEADS, D, P, M, ENC, 1)

/* ---- tensor-parallel layers, for a tensor group of N ranks ------------------------------------------------------- */

/* Tensor parallelism (Shoeybi et al. 2019): the attention heads and the inner columns of the MLP are divided among N
 * ranks; N must divide HEADS and F. Also, N must divide KV or KV must divide N. If N is larger than KV, each head of k
 * and v is held by N / KV ranks, and te_comm_config.copies must be N / KV. In layers with _TP, every rank has all rows.
 * Layers with _SP (sequence parallelism, Korthikanti et al. 2022) are for lists with the option (rows, shard): outside
 * of attention and MLP each rank has only its own rows. The sizes that the macros take are those of the whole model.
 * Both kinds of layers have four additional ops, the collectives b_enter1, b_leave1, b_enter2 and b_leave2. */
#define TE_TRANSFORMER_LAYER_TP(b, NORM, ACT, H, F, HEADS, KV, D, P, N) \
    TE__LAYERS_BIASED(TE__LAYERS_TP, ~, b, NORM, ACT, H, F, HEADS, KV, D, P, N)
#define TE_TRANSFORMER_LAYER_SP(b, NORM, ACT, H, F, HEADS, KV, D, P, N) \
    TE__LAYERS_BIASED(TE__LAYERS_SP, ~, b, NORM, ACT, H, F, HEADS, KV, D, P, N)
#define TE_GPT_BLOCK_TP(b, H, F, HEADS, P, N) \
    TE_TRANSFORMER_LAYER_TP(b, layernorm, gelu, H, F, HEADS, HEADS, (H) / (HEADS), P, N)
#define TE_GPT_BLOCK_SP(b, H, F, HEADS, P, N) \
    TE_TRANSFORMER_LAYER_SP(b, layernorm, gelu, H, F, HEADS, HEADS, (H) / (HEADS), P, N)
/* Like TE_LLAMA31_BLOCK, for a tensor group of N ranks. The arguments after N are options of rope: (base, 500000.0f),
 * (scaling, llama3), .. */
#define TE_LLAMA31_BLOCK_TP(b, H, F, HEADS, KV, D, N, ...) \
    TE__LAYERS_LLAMA(TE__LAYERS_TP, ~, b, H, F, HEADS, KV, D, (__VA_ARGS__), N)
#define TE_LLAMA31_BLOCK_SP(b, H, F, HEADS, KV, D, N, ...) \
    TE__LAYERS_LLAMA(TE__LAYERS_SP, ~, b, H, F, HEADS, KV, D, (__VA_ARGS__), N)
#define TE_LLAMA_BLOCK_TP(b, H, F, HEADS, KV, D, BASE, N) TE_LLAMA31_BLOCK_TP(b, H, F, HEADS, KV, D, N, (base, BASE))
#define TE_LLAMA_BLOCK_SP(b, H, F, HEADS, KV, D, BASE, N) TE_LLAMA31_BLOCK_SP(b, H, F, HEADS, KV, D, N, (base, BASE))
#define TE_QWEN2_BLOCK_TP(b, H, F, HEADS, KV, D, BASE, N) \
    TE__LAYERS_QWEN2(TE__LAYERS_TP, ~, b, H, F, HEADS, KV, D, BASE, N)
#define TE_QWEN2_BLOCK_SP(b, H, F, HEADS, KV, D, BASE, N) \
    TE__LAYERS_QWEN2(TE__LAYERS_SP, ~, b, H, F, HEADS, KV, D, BASE, N)
#define TE_QWEN3_BLOCK_TP(b, H, F, HEADS, KV, D, BASE, N) \
    TE__LAYERS_QWEN3(TE__LAYERS_TP, ~, b, H, F, HEADS, KV, D, BASE, N)
#define TE_QWEN3_BLOCK_SP(b, H, F, HEADS, KV, D, BASE, N) \
    TE__LAYERS_QWEN3(TE__LAYERS_SP, ~, b, H, F, HEADS, KV, D, BASE, N)
/* Like TE_MIXTRAL_BLOCK and TE_QWEN3_MOE_BLOCK, for a tensor group of N ranks. Each rank has E / N whole experts
 * (expert parallelism); N must divide E, and need not divide F. With _SP, all rows are gathered on each rank before the
 * experts, and the experts' results are summed over the ranks. With _EP, the router sends each row only to the ranks of
 * its experts: (dispatch, all_to_all). Like _SP, _EP is for lists with the option (rows, shard). */
#define TE_MIXTRAL_BLOCK_TP(b, H, F, HEADS, KV, D, BASE, E, TOP_K, N) \
    TE__LAYERS_MIXTRAL(TE__LAYERS_TP, b, H, F, HEADS, KV, D, BASE, E, TOP_K, N)
#define TE_MIXTRAL_BLOCK_SP(b, H, F, HEADS, KV, D, BASE, E, TOP_K, N) \
    TE__LAYERS_MIXTRAL(TE__LAYERS_SP, b, H, F, HEADS, KV, D, BASE, E, TOP_K, N)
#define TE_MIXTRAL_BLOCK_EP(b, H, F, HEADS, KV, D, BASE, E, TOP_K, N) \
    TE__LAYERS_MIXTRAL(TE__LAYERS_EP, b, H, F, HEADS, KV, D, BASE, E, TOP_K, N)
#define TE_QWEN3_MOE_BLOCK_TP(b, H, F, HEADS, KV, D, BASE, E, TOP_K, N) \
    TE__LAYERS_QWEN3_MOE(TE__LAYERS_TP, b, H, F, HEADS, KV, D, BASE, E, TOP_K, N)
#define TE_QWEN3_MOE_BLOCK_SP(b, H, F, HEADS, KV, D, BASE, E, TOP_K, N) \
    TE__LAYERS_QWEN3_MOE(TE__LAYERS_SP, b, H, F, HEADS, KV, D, BASE, E, TOP_K, N)
#define TE_QWEN3_MOE_BLOCK_EP(b, H, F, HEADS, KV, D, BASE, E, TOP_K, N) \
    TE__LAYERS_QWEN3_MOE(TE__LAYERS_EP, b, H, F, HEADS, KV, D, BASE, E, TOP_K, N)
#define TE_GEMMA2_BLOCK_TP(b, H, F, HEADS, KV, D, SCALE, LEFT, N) \
    TE__LAYERS_GEMMA2(b, H, F, HEADS, KV, D, SCALE, LEFT, copy_to_group, all_reduce, N)
#define TE_GEMMA2_BLOCK_SP(b, H, F, HEADS, KV, D, SCALE, LEFT, N) \
    TE__LAYERS_GEMMA2(b, H, F, HEADS, KV, D, SCALE, LEFT, all_gather, reduce_scatter, N)

/* Variants of these blocks for models in which each block is a list of its own. In the forms above, the all_reduce at
 * the end of a list cannot be fused with the norm that follows, because that norm is in the next list. Here the list of
 * a block therefore ends with the norm that follows the block, for example the first norm of the next block. NEXT is
 * the name of this norm. The list does not begin with b_norm1: its input x is already the output of a norm. The
 * residual is the extra input b_x1 and the extra output b_y (te_batch.edges). The list before the first block must end
 * in (output, x), (NORM, NEXT, H). With _SP, the first list and the lists of blocks have (all_gather, NEXT_gather)
 * after the last norm, the input x of a block has the rows of all ranks, and the list of a block must not have the
 * option (rows, shard).
 *     TE_SEQUENTIAL(first, bf16, (embedding, tokens, V, H), (output, x), (rmsnorm, next, H))
 *     TE_SEQUENTIAL(block, bf16, TE_LLAMA_BLOCK_TP_NORM_LAST(b, next, H, F, HEADS, KV, D, 500000.0f, 2))
 *     TE_SEQUENTIAL(head, bf16, (linear, logits, H, V))
 * Blocks with a norm directly after the collective (TE_GEMMA2_BLOCK_TP) have no such variant, because in these blocks
 * the all_reduce is already fused with a norm and the add, and the next block's norm is a separate kernel in any case.
 * Under an FP8 recipe the forms above are faster, because b_norm1 can store FP8 for b_qkv only if both ops are in the
 * same list. */
#define TE_TRANSFORMER_LAYER_TP_NORM_LAST(b, NEXT, NORM, ACT, H, F, HEADS, KV, D, P, N) \
    TE__LAYERS_BIASED(TE__LAYERS_TP_NORM_LAST, NEXT, b, NORM, ACT, H, F, HEADS, KV, D, P, N)
#define TE_TRANSFORMER_LAYER_SP_NORM_LAST(b, NEXT, NORM, ACT, H, F, HEADS, KV, D, P, N) \
    TE__LAYERS_BIASED(TE__LAYERS_SP_NORM_LAST, NEXT, b, NORM, ACT, H, F, HEADS, KV, D, P, N)
#define TE_GPT_BLOCK_TP_NORM_LAST(b, NEXT, H, F, HEADS, P, N) \
    TE_TRANSFORMER_LAYER_TP_NORM_LAST(b, NEXT, layernorm, gelu, H, F, HEADS, HEADS, (H) / (HEADS), P, N)
#define TE_GPT_BLOCK_SP_NORM_LAST(b, NEXT, H, F, HEADS, P, N) \
    TE_TRANSFORMER_LAYER_SP_NORM_LAST(b, NEXT, layernorm, gelu, H, F, HEADS, HEADS, (H) / (HEADS), P, N)
#define TE_LLAMA31_BLOCK_TP_NORM_LAST(b, NEXT, H, F, HEADS, KV, D, N, ...) \
    TE__LAYERS_LLAMA(TE__LAYERS_TP_NORM_LAST, NEXT, b, H, F, HEADS, KV, D, (__VA_ARGS__), N)
#define TE_LLAMA31_BLOCK_SP_NORM_LAST(b, NEXT, H, F, HEADS, KV, D, N, ...) \
    TE__LAYERS_LLAMA(TE__LAYERS_SP_NORM_LAST, NEXT, b, H, F, HEADS, KV, D, (__VA_ARGS__), N)
#define TE_LLAMA_BLOCK_TP_NORM_LAST(b, NEXT, H, F, HEADS, KV, D, BASE, N) \
    TE_LLAMA31_BLOCK_TP_NORM_LAST(b, NEXT, H, F, HEADS, KV, D, N, (base, BASE))
#define TE_LLAMA_BLOCK_SP_NORM_LAST(b, NEXT, H, F, HEADS, KV, D, BASE, N) \
    TE_LLAMA31_BLOCK_SP_NORM_LAST(b, NEXT, H, F, HEADS, KV, D, N, (base, BASE))
#define TE_QWEN2_BLOCK_TP_NORM_LAST(b, NEXT, H, F, HEADS, KV, D, BASE, N) \
    TE__LAYERS_QWEN2(TE__LAYERS_TP_NORM_LAST, NEXT, b, H, F, HEADS, KV, D, BASE, N)
#define TE_QWEN2_BLOCK_SP_NORM_LAST(b, NEXT, H, F, HEADS, KV, D, BASE, N) \
    TE__LAYERS_QWEN2(TE__LAYERS_SP_NORM_LAST, NEXT, b, H, F, HEADS, KV, D, BASE, N)
#define TE_QWEN3_BLOCK_TP_NORM_LAST(b, NEXT, H, F, HEADS, KV, D, BASE, N) \
    TE__LAYERS_QWEN3(TE__LAYERS_TP_NORM_LAST, NEXT, b, H, F, HEADS, KV, D, BASE, N)
#define TE_QWEN3_BLOCK_SP_NORM_LAST(b, NEXT, H, F, HEADS, KV, D, BASE, N) \
    TE__LAYERS_QWEN3(TE__LAYERS_SP_NORM_LAST, NEXT, b, H, F, HEADS, KV, D, BASE, N)

/* ---- building blocks: each ends in a comma or is empty ----------------------------------------------------------- */

#define TE__LAYERS_NONE(...)
#define TE__LAYERS_BIAS(name, width) (bias, name, width),
#define TE__LAYERS_ROPE(name, HEADS, KV, D) (rope, name, HEADS, KV, D),
/* The ops of an MLP, followed by LAST, which are the remaining ops (without a comma behind the last one). FC1_OUT: the
 * number of output columns of the first linear. */
#define TE__LAYERS_MLP(b, ACT, H, F, FC1_OUT, BIAS, LAST)                                               \
    (linear, b##_fc1, H, FC1_OUT), BIAS(b##_fc1_bias, FC1_OUT) (ACT, b##_act), (linear, b##_fc2, F, H), \
    BIAS(b##_fc2_bias, H) LAST
/* The experts of a gated MLP, and their router. */
#define TE__LAYERS_EXPERTS(b, H, F, E, TOP_K)                                                                        \
    (router, b##_router, H, E, (top_k, TOP_K), (renormalise, 1)), TE__LAYERS_EXPERT_MLP(b, H, F, E)
#define TE__LAYERS_EXPERT_MLP(b, H, F, E)                                                                            \
    (expert_linear, b##_fc1, H, 2 * (F), E), (swiglu, b##_act), (expert_linear, b##_fc2, F, H, E),                   \
    (combine, b##_router)
/* Latent attention, with the sizes of TE_MLA as arguments. */
#define TE__LAYERS_MLA(...) TE__LAYERS_MLA2(__VA_ARGS__)
#define TE__LAYERS_MLA2(b, QUERY, H, ROPE, OPTIONS, HEADS, Q, KV, N, R, V)                                           \
    (fork, b##_n), QUERY(b, H, Q, (HEADS) * ((N) + (R))), (fork, b##_q), (load, b##_n),                              \
    TE__LAYERS_MLA_LATENT(b, H, KV, R), (fork, b##_c),                                                               \
    (slice, b##_k_r, KV, R), (fork, b##_k_rope), (load, b##_c), (slice, b##_c_kv, 0, KV), (fork, b##_kv),            \
    (linear, b##_k_b, KV, (HEADS) * (N)), (concat, b##_k_all, b##_k_rope, R, (heads, HEADS)), (fork, b##_k),         \
    (load, b##_kv), (linear, b##_v_b, KV, (HEADS) * (V)), (fork, b##_v), (load, b##_q),                              \
    (concat, b##_qk, b##_k, (HEADS) * ((N) + (R))), (concat, b##_qkv, b##_v, (HEADS) * (V)),                         \
    (rope, b##_rope, HEADS, HEADS, (N) + (R), (first, N), (value_dim, V), TE_STRIP ROPE),                            \
    (attention, b##_attention, HEADS, HEADS, (N) + (R), (value_dim, V), TE_STRIP OPTIONS),                           \
    (linear, b##_proj, (HEADS) * (V), H)
#define TE__LAYERS_MLA_LATENT(b, H, KV, R) \
    (linear, b##_kv_a, H, (KV) + (R)), (rmsnorm, b##_kv_norm, (KV) + (R), (columns, KV), (eps, 1e-6f))
#define TE__LAYERS_MLA_ABSORBED(...) TE__LAYERS_MLA_ABSORBED2(__VA_ARGS__)
#define TE__LAYERS_MLA_ABSORBED2(b, QUERY, H, ROPE, OPTIONS, HEADS, Q, KV, N, R, V)                                  \
    (fork, b##_n), TE__LAYERS_MLA_LATENT(b, H, KV, R), (fork, b##_kv), (load, b##_n),                                \
    QUERY(b, H, Q, (HEADS) * ((N) + (R))), (head_linear, b##_k_b, HEADS, N, KV, (keep, R), (transposed, 1)),         \
    (concat, b##_qk, b##_kv, (KV) + (R)), (rope, b##_rope, (HEADS) + 1, 0, (KV) + (R), (first, KV), TE_STRIP ROPE),  \
    (attention, b##_attention, HEADS, 1, (KV) + (R), (value_dim, KV), (values_in_keys, 1), TE_STRIP OPTIONS),        \
    (head_linear, b##_v_b, HEADS, KV, V), (linear, b##_proj, (HEADS) * (V), H)
#define TE__LAYERS_LLAMA4_ROPE(b, HEADS, KV, D, OPTIONS) \
    (head_norm, b##_heads, HEADS, KV, D, (eps, 1e-5f)), TE__LAYERS_ROPE_WITH(b, HEADS, KV, D, OPTIONS)
#define TE__LAYERS_LLAMA4(b, H, F, HEADS, KV, D, E, TOP_K, ROPE, OPTIONS)                                            \
    (fork, b##_x1), (rmsnorm, b##_norm1, H), (linear, b##_qkv, H, ((HEADS) + 2 * (KV)) * (D)),                       \
    ROPE(b, HEADS, KV, D, OPTIONS) (attention, b##_attention, HEADS, KV, D), (linear, b##_proj, (HEADS) * (D), H),   \
    (add, b##_x1), (fork, b##_x2), (rmsnorm, b##_norm2, H), (fork, b##_n2),                                          \
    (router, b##_router, H, E, (top_k, TOP_K), (score, sigmoid), (weigh, input)),                                    \
    TE__LAYERS_EXPERT_MLP(b, H, F, E), (fork, b##_routed), (load, b##_n2), (linear, b##_shared1, H, 2 * (F)),        \
    (swiglu, b##_shared_act), (linear, b##_shared2, F, H), (add, b##_routed), (add, b##_x2)
#define TE__LAYERS_LAYER(b, NORM, ACT, H, F, FC1_OUT, HEADS, KV, D, P, ROPE, BIAS)                  \
    (fork, b##_x1), (NORM, b##_norm1, H), (linear, b##_qkv, H, ((HEADS) + 2 * (KV)) * (D)),         \
    BIAS(b##_qkv_bias, ((HEADS) + 2 * (KV)) * (D)) ROPE(b##_rope, HEADS, KV, D)                     \
    (attention, b##_attention, HEADS, KV, D), (linear, b##_proj, (HEADS) * (D), H),                 \
    BIAS(b##_proj_bias, H) (dropout, b##_drop1, P), (add, b##_x1), (fork, b##_x2),                  \
    (NORM, b##_norm2, H), TE__LAYERS_MLP(b, ACT, H, F, FC1_OUT, BIAS, (dropout, b##_drop2, P)), (add, b##_x2)
#define TE__LAYERS_ROPE_WITH(b, HEADS, KV, D, OPTIONS) (rope, b##_rope, HEADS, KV, D, TE_STRIP OPTIONS),
#define TE__LAYERS_HEAD_NORM_ROPE(b, HEADS, KV, D, OPTIONS) \
    (head_norm, b##_heads, HEADS, KV, D, (eps, 1e-6f)), TE__LAYERS_ROPE_WITH(b, HEADS, KV, D, OPTIONS)
#define TE__LAYERS_DROP(name, P) (dropout, name, P),
#define TE__LAYERS_PART(WIDTH, N) ((WIDTH) % (N) ? 0 : (WIDTH) / (N)) /* WIDTH / N; or 0, which does not compile as a
                                                                       * width, if N does not divide WIDTH */
/* The number of kv heads on each rank: KV / N. If there are fewer kv heads than ranks, the number is 1, and N / KV
 * ranks have the same head (TE__LAYERS_COPIES). The number is 0, which does not compile, if neither of KV and N divides
 * the other. */
#define TE__LAYERS_KV(KV, N) ((KV) % (N) == 0 ? (KV) / (N) : (N) % (KV) == 0 ? 1 : 0)
#define TE__LAYERS_COPIES(KV, N) ((KV) % (N) != 0 && (N) % (KV) == 0 ? (N) / (KV) : 1)
/* The number of columns of q, k and v together on a rank. */
#define TE__LAYERS_QKV_COLUMNS(HEADS, KV, D, N) \
    (TE__LAYERS_KV(KV, N) ? (TE__LAYERS_PART(HEADS, N) + 2 * TE__LAYERS_KV(KV, N)) * (D) : 0)
/* The linear for q, k and v of a tensor-parallel layer; its output columns are divided among the ranks. */
#define TE__LAYERS_QKV(b, H, HEADS, KV, D, N)                                                                       \
    (linear, b##_qkv, H, TE__LAYERS_QKV_COLUMNS(HEADS, KV, D, N), (shard, columns), (parts, 3),                     \
     (first_part, (HEADS) / (N) / (TE__LAYERS_KV(KV, N) ? TE__LAYERS_KV(KV, N) : 1)),                               \
     (copies, TE__LAYERS_COPIES(KV, N)))
/* The first linear of a tensor-parallel MLP; its output columns are divided among the ranks. HALVES: 2 if the MLP is
 * gated, because this linear then produces two matrices; else 1. */
#define TE__LAYERS_FC1(b, H, F, HALVES, N) \
    (linear, b##_fc1, H, (HALVES) * TE__LAYERS_PART(F, N), (shard, columns), (parts, HALVES))
/* The forms of a block for N ranks: the ops with which its list begins and ends, and the collectives before and after a
 * tensor-parallel part (attention or the MLP). A layer macro takes the name of a form, such as TE__LAYERS_TP, as its
 * argument FORM; for example, FORM(begin, ..) expands to the ops with which the list begins. */
#define TE__LAYERS_TP(WHAT, ...) TE__LAYERS_TP_##WHAT(__VA_ARGS__)
#define TE__LAYERS_TP_begin(b, NORM, H, EPS) \
    (fork, b##_x1), (NORM, b##_norm1, H, (eps, EPS)), (copy_to_group, b##_enter1)
#define TE__LAYERS_TP_enter(name) (copy_to_group, name)
#define TE__LAYERS_TP_leave(name) (all_reduce, name)
#define TE__LAYERS_TP_end(b, NEXT, NORM, H, EPS)
#define TE__LAYERS_TP_to_experts(name) (copy_to_group, name),
#define TE__LAYERS_TP_router_option(none)
#define TE__LAYERS_TP_from_experts(name) (all_reduce, name),
#define TE__LAYERS_SP(WHAT, ...) TE__LAYERS_SP_##WHAT(__VA_ARGS__)
#define TE__LAYERS_SP_begin(b, NORM, H, EPS) \
    (fork, b##_x1), (NORM, b##_norm1, H, (eps, EPS)), (all_gather, b##_enter1)
#define TE__LAYERS_SP_enter(name) (all_gather, name)
#define TE__LAYERS_SP_leave(name) (reduce_scatter, name)
#define TE__LAYERS_SP_end(b, NEXT, NORM, H, EPS)
#define TE__LAYERS_SP_to_experts(name) (all_gather, name),
#define TE__LAYERS_SP_router_option(none)
#define TE__LAYERS_SP_from_experts(name) (reduce_scatter, name),
#define TE__LAYERS_EP(WHAT, ...) TE__LAYERS_EP_##WHAT(__VA_ARGS__)
#define TE__LAYERS_EP_begin TE__LAYERS_SP_begin
#define TE__LAYERS_EP_leave TE__LAYERS_SP_leave
#define TE__LAYERS_EP_to_experts(name)
#define TE__LAYERS_EP_router_option(none) , (dispatch, all_to_all)
#define TE__LAYERS_EP_from_experts(name)
#define TE__LAYERS_TP_NORM_LAST(WHAT, ...) TE__LAYERS_TP_NORM_LAST_##WHAT(__VA_ARGS__)
#define TE__LAYERS_TP_NORM_LAST_begin(b, NORM, H, EPS) (copy_to_group, b##_enter1), (input, b##_x1, H)
#define TE__LAYERS_TP_NORM_LAST_enter TE__LAYERS_TP_enter
#define TE__LAYERS_TP_NORM_LAST_leave TE__LAYERS_TP_leave
#define TE__LAYERS_TP_NORM_LAST_end(b, NEXT, NORM, H, EPS) , (output, b##_y), (NORM, NEXT, H, (eps, EPS))
#define TE__LAYERS_SP_NORM_LAST(WHAT, ...) TE__LAYERS_SP_NORM_LAST_##WHAT(__VA_ARGS__)
#define TE__LAYERS_SP_NORM_LAST_begin(b, NORM, H, EPS) (input, b##_x1, H)
#define TE__LAYERS_SP_NORM_LAST_enter TE__LAYERS_SP_enter
#define TE__LAYERS_SP_NORM_LAST_leave TE__LAYERS_SP_leave
#define TE__LAYERS_SP_NORM_LAST_end(b, NEXT, NORM, H, EPS) \
    , (output, b##_y), (NORM, NEXT, H, (eps, EPS)), (all_gather, NEXT##_gather)
/* The ops of a block for N ranks. OPTIONS: the options of rope, in parentheses. FORM: one of the macros TE__LAYERS_TP,
 * .. above. NEXT: the name of the norm with which the list ends, or ~ if it does not end with a norm. */
#define TE__LAYERS_RANKS(FORM, NEXT, b, NORM, EPS, ACT, H, F, HALVES, HEADS, KV, D, P, OPTIONS, ROPE, QKV_BIAS, BIAS,  \
                         DROP, N)                                                                                      \
    FORM(begin, b, NORM, H, EPS), TE__LAYERS_QKV(b, H, HEADS, KV, D, N),                                               \
    QKV_BIAS(b##_qkv_bias, TE__LAYERS_QKV_COLUMNS(HEADS, KV, D, N))                                                    \
    ROPE(b, TE__LAYERS_PART(HEADS, N), TE__LAYERS_KV(KV, N), D, OPTIONS)                                               \
    (attention, b##_attention, TE__LAYERS_PART(HEADS, N), TE__LAYERS_KV(KV, N), D),                                    \
    (linear, b##_proj, TE__LAYERS_PART((HEADS) * (D), N), H, (shard, rows)), FORM(leave, b##_leave1),                  \
    BIAS(b##_proj_bias, H) DROP(b##_drop1, P) (add, b##_x1),                                                           \
    (fork, b##_x2), (NORM, b##_norm2, H, (eps, EPS)), FORM(enter, b##_enter2), TE__LAYERS_FC1(b, H, F, HALVES, N),     \
    BIAS(b##_fc1_bias, (HALVES) * TE__LAYERS_PART(F, N)) (ACT, b##_act),                                               \
    (linear, b##_fc2, TE__LAYERS_PART(F, N), H, (shard, rows)), FORM(leave, b##_leave2), BIAS(b##_fc2_bias, H)         \
    DROP(b##_drop2, P) (add, b##_x2) FORM(end, b, NEXT, NORM, H, EPS)
#define TE__LAYERS_BIASED(FORM, NEXT, b, NORM, ACT, H, F, HEADS, KV, D, P, N)                                          \
    TE__LAYERS_RANKS(FORM, NEXT, b, NORM, 1e-5f, ACT, H, F, 1, HEADS, KV, D, P, (), TE__LAYERS_NONE, TE__LAYERS_BIAS,  \
                     TE__LAYERS_BIAS, TE__LAYERS_DROP, N)
#define TE__LAYERS_GATED(FORM, NEXT, b, EPS, H, F, HEADS, KV, D, OPTIONS, ROPE, QKV_BIAS, N)                           \
    TE__LAYERS_RANKS(FORM, NEXT, b, rmsnorm, EPS, swiglu, H, F, 2, HEADS, KV, D, 0, OPTIONS, ROPE, QKV_BIAS,           \
                     TE__LAYERS_NONE, TE__LAYERS_NONE, N)
#define TE__LAYERS_LLAMA(FORM, NEXT, b, H, F, HEADS, KV, D, OPTIONS, N)                                                \
    TE__LAYERS_GATED(FORM, NEXT, b, 1e-5f, H, F, HEADS, KV, D, OPTIONS, TE__LAYERS_ROPE_WITH, TE__LAYERS_NONE, N)
#define TE__LAYERS_QWEN2(FORM, NEXT, b, H, F, HEADS, KV, D, BASE, N)                                                   \
    TE__LAYERS_GATED(FORM, NEXT, b, 1e-6f, H, F, HEADS, KV, D, ((base, BASE)), TE__LAYERS_ROPE_WITH, TE__LAYERS_BIAS, N)
#define TE__LAYERS_QWEN3(FORM, NEXT, b, H, F, HEADS, KV, D, BASE, N)                                                   \
    TE__LAYERS_GATED(FORM, NEXT, b, 1e-6f, H, F, HEADS, KV, D, ((base, BASE)), TE__LAYERS_HEAD_NORM_ROPE,              \
                     TE__LAYERS_NONE, N)
#define TE__LAYERS_EXPERT_RANKS(FORM, b, EPS, H, F, HEADS, KV, D, BASE, ROPE, E, TOP_K, N)                          \
    FORM(begin, b, rmsnorm, H, EPS), TE__LAYERS_QKV(b, H, HEADS, KV, D, N),                                            \
    ROPE(b, TE__LAYERS_PART(HEADS, N), TE__LAYERS_KV(KV, N), D, ((base, BASE)))                                        \
    (attention, b##_attention, TE__LAYERS_PART(HEADS, N), TE__LAYERS_KV(KV, N), D),                                    \
    (linear, b##_proj, TE__LAYERS_PART((HEADS) * (D), N), H, (shard, rows)), FORM(leave, b##_leave1), (add, b##_x1),   \
    (fork, b##_x2), (rmsnorm, b##_norm2, H, (eps, EPS)), FORM(to_experts, b##_enter2)                                  \
    (router, b##_router, H, E, (top_k, TOP_K), (renormalise, 1), (ranks, N) FORM(router_option, ~)),                   \
    TE__LAYERS_EXPERT_MLP(b, H, F, TE__LAYERS_PART(E, N)), FORM(from_experts, b##_leave2) (add, b##_x2)
#define TE__LAYERS_MIXTRAL(FORM, b, H, F, HEADS, KV, D, BASE, E, TOP_K, N)                                             \
    TE__LAYERS_EXPERT_RANKS(FORM, b, 1e-5f, H, F, HEADS, KV, D, BASE, TE__LAYERS_ROPE_WITH, E, TOP_K, N)
#define TE__LAYERS_QWEN3_MOE(FORM, b, H, F, HEADS, KV, D, BASE, E, TOP_K, N)                                           \
    TE__LAYERS_EXPERT_RANKS(FORM, b, 1e-6f, H, F, HEADS, KV, D, BASE, TE__LAYERS_HEAD_NORM_ROPE, E, TOP_K, N)
#define TE__LAYERS_GEMMA2(b, H, F, HEADS, KV, D, SCALE, LEFT, ENTER, LEAVE, N)                                      \
    (fork, b##_x1), (rmsnorm1p, b##_norm1, H, (eps, 1e-6f)), (ENTER, b##_enter1),                                   \
    TE__LAYERS_QKV(b, H, HEADS, KV, D, N),                                                                          \
    (rope, b##_rope, TE__LAYERS_PART(HEADS, N), TE__LAYERS_KV(KV, N), D),                                           \
    (attention, b##_attention, TE__LAYERS_PART(HEADS, N), TE__LAYERS_KV(KV, N), D, (scale, SCALE),                  \
     (softcap, 50.0f), (window_left, LEFT)),                                                                        \
    (linear, b##_proj, TE__LAYERS_PART((HEADS) * (D), N), H, (shard, rows)), (LEAVE, b##_leave1),                   \
    (rmsnorm1p, b##_norm1_after, H, (eps, 1e-6f)), (add, b##_x1),                                                   \
    (fork, b##_x2), (rmsnorm1p, b##_norm2, H, (eps, 1e-6f)), (ENTER, b##_enter2), TE__LAYERS_FC1(b, H, F, 2, N),    \
    (geglu, b##_act), (linear, b##_fc2, TE__LAYERS_PART(F, N), H, (shard, rows)), (LEAVE, b##_leave2),              \
    (rmsnorm1p, b##_norm2_after, H, (eps, 1e-6f)), (add, b##_x2)
#define TE__LAYERS_T5(b, ACT, H, F, FC1_OUT, HEADS, D, P, M, ENC, TIED)                                             \
    (fork, b##_x1), (rmsnorm, b##_norm1, H, (eps, 1e-6f)), (linear, b##_qkv, H, 3 * (HEADS) * (D)),                 \
    (attention, b##_attention, HEADS, HEADS, D, (scale, 1.0f), (relative_bias, 32), (tied, TIED)),                  \
    (linear, b##_proj, (HEADS) * (D), H),                                                                           \
    (dropout, b##_drop1, P), (add, b##_x1), (fork, b##_x2), (rmsnorm, b##_norm2, H, (eps, 1e-6f)),                  \
    (linear, b##_q, H, (HEADS) * (D)), (fork, b##_queries), (load, b##_memory, ENC),                                \
    (linear, b##_kv, M, 2 * (HEADS) * (D)), (fork, b##_keys), (load, b##_back, b##_queries),                        \
    (cross_attention, b##_cross, b##_keys, HEADS, HEADS, D, (scale, 1.0f)),                                         \
    (linear, b##_cross_proj, (HEADS) * (D), H), (dropout, b##_drop2, P), (add, b##_x2), (fork, b##_x3),             \
    (rmsnorm, b##_norm3, H, (eps, 1e-6f)),                                                                          \
    TE__LAYERS_MLP(b, ACT, H, F, FC1_OUT, TE__LAYERS_NONE, (dropout, b##_drop3, P)), (add, b##_x3)

#endif
