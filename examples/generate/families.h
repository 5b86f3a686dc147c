/* families.h -- the lists of Llama, Mistral, Mixtral, Qwen 2 and 3, Gemma 2 and 3, GPT-2 and others, for inference with a
 * key-value cache, and the names of their tensors in the files of Hugging Face and in GGUF files.
 *
 * Do this:
 *     examples/generate/configure.py FOLDER|FILE.gguf >model.h     sizes, and which family: MODEL_FAMILY and others
 *     cc -DMODEL_CONFIG='"model.h"' ..
 *
 * A model is these lists: embed; full, a block whose attention sees all tokens; sliding, a block with a window;
 * unrotated, a block without rope; dense, a block with an MLP in a model whose other blocks have experts (a model has
 * blocks of one or more of these kinds); last, the norm of each sequence's
 * last token; head, its logits; choose, the next token.
 * BLOCK_<family>(KIND) is a block of the kind full, sliding, unrotated or dense. To add a family: BLOCK_, EMBED_, LAST_, TENSORS_ and
 * NAMES_ of its name here, and its model_type and defaults in configure.py; for GGUF files, GGUF_ here and its
 * architecture in gguf_config.py.
 */
#ifndef FAMILIES_H
#define FAMILIES_H

#include MODEL_CONFIG           /* MODEL_FAMILY, MODEL_HIDDEN, .. */
#include "te/infer.h"           /* TE_INFERENCE */
#include "te/io/gguf_weights.h" /* te_gguf_bind */
#include "te/io/packed.h"       /* te_packed */
#if MODEL_EXPERTS
#include "te/moe.h" /* router, expert_linear, combine */
#endif

#include "part.h" /* END; behind the library, whose functions have variables with the name of this type */

/* The dtype of weights, keys and values; the residual stream and the logits are f32. */
#ifndef MODEL_DTYPE
#define MODEL_DTYPE TE_JOIN1(MODEL_DTYPE_, TE_CUDA)
#define MODEL_DTYPE_0 f32
#define MODEL_DTYPE_1 bf16
#endif

/* The format of keys and values in the cache: 1 (as MODEL_DTYPE), int8 or e4m3. */
#ifndef MODEL_CACHE
#define MODEL_CACHE 1
#endif

/* MODEL_WEIGHTS: the format of the weights of linears, as in a list's option `weights`; the files' weights in floats are
 * cast to it. MODEL_HEAD_WEIGHTS: that of the embedding and the head. A GGUF file, and a folder of GPTQ or AWQ
 * (MODEL_QUANTIZED), have weights in few bits, each tensor in another format; MODEL_DEQUANTIZE converts them to
 * MODEL_DTYPE. gpt-oss has the weights of its experts in MXFP4, which a GPU needs converted. */
#if (MODEL_GGUF || MODEL_QUANTIZED || (MODEL_MXFP4_EXPERTS && !TE_CUDA)) && !defined MODEL_WEIGHTS
#define MODEL_WEIGHTS quantized
#endif
#if defined MODEL_WEIGHTS && !defined MODEL_HEAD_WEIGHTS
#define MODEL_HEAD_WEIGHTS MODEL_WEIGHTS
#endif
#if defined MODEL_WEIGHTS && !defined MODEL_DEQUANTIZE
#define LIST_FORMAT(...) (MODEL_DTYPE, (weights, MODEL_WEIGHTS), __VA_ARGS__)
#define HEAD_FORMAT(...) (MODEL_DTYPE, (weights, MODEL_HEAD_WEIGHTS), __VA_ARGS__)
#else
#define LIST_FORMAT(...) (MODEL_DTYPE, __VA_ARGS__)
#define HEAD_FORMAT LIST_FORMAT
#endif

/* ---- parts of the lists ------------------------------------------------------------------------------------------ */

#define MODEL_Q_ROWS (MODEL_HEADS * MODEL_HEAD_DIM)
#define MODEL_KV_ROWS (MODEL_KV_HEADS * MODEL_HEAD_DIM)
#define MODEL_QKV_ROWS (MODEL_Q_ROWS + 2 * MODEL_KV_ROWS)

#define QKV (linear, qkv, MODEL_HIDDEN, MODEL_QKV_ROWS)
/* ROPE_<kind> ends in a comma, or is empty. */
#define ROPE_full (rope, rotate, MODEL_HEADS, MODEL_KV_HEADS, MODEL_HEAD_DIM, MODEL_ROPE_full),
#define ROPE_sliding (rope, rotate, MODEL_HEADS, MODEL_KV_HEADS, MODEL_HEAD_DIM, MODEL_ROPE_sliding),
#define ROPE_unrotated
#define ATTENTION(KIND) (attention, attend, ATTENTION_OF(KIND))
#define ATTENTION_OF(KIND)                                                                                           \
    MODEL_HEADS, MODEL_KV_HEADS, MODEL_HEAD_DIM, (scale, MODEL_ATTENTION_SCALE), (softcap, MODEL_ATTENTION_SOFTCAP), \
        (window_left, MODEL_LEFT_##KIND), (varlen, 1), (cache, MODEL_CACHE)
#define PROJ (linear, proj, MODEL_Q_ROWS, MODEL_HIDDEN)
#define NORM(kind, name) (kind, name, MODEL_HIDDEN, (eps, MODEL_EPS))
#define HEAD_NORM(kind) (kind, heads, MODEL_HEADS, MODEL_KV_HEADS, MODEL_HEAD_DIM, (eps, MODEL_EPS))
#define GATED_MLP(GATED)                                                                                             \
    (linear, fc1, MODEL_HIDDEN, 2 * MODEL_FFN), (GATED, act), (linear, fc2, MODEL_FFN, MODEL_HIDDEN)
#define ATTENTION_PART(KIND) ROPE_##KIND ATTENTION(KIND), PROJ
/* MODEL_EXPERTS experts in place of the MLP, of which each token has MODEL_TOP_K. */
#define EXPERTS                                                                                                      \
    (router, route, MODEL_HIDDEN, MODEL_EXPERTS, (top_k, MODEL_TOP_K), (renormalise, MODEL_RENORMALISE)), EXPERT_MLP
#define EXPERT_MLP                                                                                                   \
    (expert_linear, fc1, MODEL_HIDDEN, 2 * MODEL_FFN, MODEL_EXPERTS), (swiglu, act),                                 \
    (expert_linear, fc2, MODEL_FFN, MODEL_HIDDEN, MODEL_EXPERTS), (combine, route)

/* ---- blocks: h = x + attention(norm(x)), y = h + mlp(norm(h)) ---------------------------------------------------- */

#define BLOCK_LLAMA(KIND)                                                                                            \
    (fork, x1), NORM(rmsnorm, norm1), QKV, ATTENTION_PART(KIND), (add, x1),                                          \
    (fork, x2), NORM(rmsnorm, norm2), GATED_MLP(swiglu), (add, x2)

#define BLOCK_MISTRAL(KIND) BLOCK_LLAMA(KIND)

#define BLOCK_MIXTRAL(KIND)                                                                                          \
    (fork, x1), NORM(rmsnorm, norm1), QKV, ATTENTION_PART(KIND), (add, x1),                                          \
    (fork, x2), NORM(rmsnorm, norm2), EXPERTS, (add, x2)

/* Phi-3: rope may rotate a part of each head; the files have q, k and v, and gate and up, in one tensor each. */
#define BLOCK_PHI3(KIND) BLOCK_LLAMA(KIND)

/* SmolLM3: some layers have no rope. */
#define BLOCK_SMOLLM3(KIND) BLOCK_LLAMA(KIND)

/* Qwen 2 and 2.5: a bias is added to q, k and v. */
#define BLOCK_QWEN2(KIND)                                                                                            \
    (fork, x1), NORM(rmsnorm, norm1), QKV, (bias, qkv_bias, MODEL_QKV_ROWS), ATTENTION_PART(KIND), (add, x1),        \
    (fork, x2), NORM(rmsnorm, norm2), GATED_MLP(swiglu), (add, x2)

/* Qwen 3: each head of q and k has a norm. */
#define BLOCK_QWEN3(KIND)                                                                                            \
    (fork, x1), NORM(rmsnorm, norm1), QKV, HEAD_NORM(head_norm), ATTENTION_PART(KIND), (add, x1),                    \
    (fork, x2), NORM(rmsnorm, norm2), GATED_MLP(swiglu), (add, x2)

/* Qwen 3 with experts, such as Qwen3-30B-A3B. */
#define BLOCK_QWEN3_MOE(KIND)                                                                                        \
    (fork, x1), NORM(rmsnorm, norm1), QKV, HEAD_NORM(head_norm), ATTENTION_PART(KIND), (add, x1),                    \
    (fork, x2), NORM(rmsnorm, norm2), EXPERTS, (add, x2)

/* DeepSeek-V2 and V3: keys and values are computed from a latent vector. On the host the cache has this vector and the
 * rotated part of the keys (the absorbed form); on CUDA, and with MODEL_LATENT_EXPANDED, the keys and values of all
 * heads. Beside the experts there is an MLP for all tokens; the first blocks have an MLP alone. */
#if MODEL_Q_LORA
#define DEEPSEEK_QUERY TE_MLA_QUERY_LORA
#else
#define DEEPSEEK_QUERY TE_MLA_QUERY
#endif
#if TE_CUDA || defined MODEL_LATENT_EXPANDED
#define DEEPSEEK_MLA TE_MLA
#else
#define DEEPSEEK_MLA TE_MLA_ABSORBED
#endif
#define DEEPSEEK_ATTENTION                                                                                           \
    DEEPSEEK_MLA(attn, DEEPSEEK_QUERY, MODEL_HIDDEN,                                                                 \
                 (MODEL_HEADS, MODEL_Q_LORA, MODEL_LATENT, MODEL_UNROTATED_DIM, MODEL_ROTARY_DIM, MODEL_VALUE_DIM),  \
                 (MODEL_ROPE_full), (scale, MODEL_ATTENTION_SCALE), (varlen, 1), (cache, MODEL_CACHE))
#define DEEPSEEK_MLP_full                                                                                            \
    (fork, h), (router, route, MODEL_HIDDEN, MODEL_EXPERTS, (top_k, MODEL_TOP_K), (renormalise, MODEL_RENORMALISE),  \
     MODEL_ROUTER), EXPERT_MLP, (fork, routed), (load, h), (linear, shared_fc1, MODEL_HIDDEN, 2 * MODEL_SHARED_FFN), \
    (swiglu, shared_act), (linear, shared_fc2, MODEL_SHARED_FFN, MODEL_HIDDEN), (add, routed)
#define DEEPSEEK_MLP_dense                                                                                           \
    (linear, fc1, MODEL_HIDDEN, 2 * MODEL_DENSE_FFN), (swiglu, act), (linear, fc2, MODEL_DENSE_FFN, MODEL_HIDDEN)
#define BLOCK_DEEPSEEK_V3(KIND)                                                                                      \
    (fork, x1), NORM(rmsnorm, norm1), DEEPSEEK_ATTENTION, (add, x1),                                                 \
    (fork, x2), NORM(rmsnorm, norm2), DEEPSEEK_MLP_##KIND, (add, x2)
#define BLOCK_DEEPSEEK_V2(KIND) BLOCK_DEEPSEEK_V3(KIND)

/* gpt-oss: biases everywhere, attention sinks, and experts with a clamped swiglu. */
/* [gpt_oss] */
#define BLOCK_GPT_OSS(KIND)                                                                                          \
    (fork, x1), NORM(rmsnorm, norm1), QKV, (bias, qkv_bias, MODEL_QKV_ROWS),                                         \
    ROPE_##KIND (attention, attend, ATTENTION_OF(KIND), (sinks, 1)), PROJ, (bias, proj_bias, MODEL_HIDDEN),          \
    (add, x1), (fork, x2), NORM(rmsnorm, norm2),                                                                     \
    (router, route, MODEL_HIDDEN, MODEL_EXPERTS, (top_k, MODEL_TOP_K), (score, softmax_of_chosen), (bias, 1)),       \
    (expert_linear, fc1, MODEL_HIDDEN, 2 * MODEL_FFN, MODEL_EXPERTS),                                                \
    (expert_bias, fc1_bias, 2 * MODEL_FFN, MODEL_EXPERTS),                                                           \
    (clamped_swiglu, act, (alpha, MODEL_SWIGLU_ALPHA), (limit, MODEL_SWIGLU_LIMIT)),                                 \
    (expert_linear, fc2, MODEL_FFN, MODEL_HIDDEN, MODEL_EXPERTS),                                                    \
    (expert_bias, fc2_bias, MODEL_HIDDEN, MODEL_EXPERTS), (combine, route), (add, x2)
/* [gpt_oss] */

/* Llama 4: the router's weight multiplies the input of an expert, and a shared expert sees every token. In layers with
 * rope the heads of q and k may have a norm, without a weight: that of the list is 0, beside the 1 that the op adds. */
#if MODEL_QK_NORM
#define QK_NORM_full HEAD_NORM(head_norm1p),
#else
#define QK_NORM_full
#endif
#define QK_NORM_unrotated
#define BLOCK_LLAMA4(KIND)                                                                                           \
    (fork, x1), NORM(rmsnorm, norm1), QKV, QK_NORM_##KIND ATTENTION_PART(KIND), (add, x1),                           \
    (fork, x2), NORM(rmsnorm, norm2), (fork, n2),                                                                    \
    (router, route, MODEL_HIDDEN, MODEL_EXPERTS, (top_k, MODEL_TOP_K), (score, sigmoid), (weigh, input)),            \
    (expert_linear, fc1, MODEL_HIDDEN, 2 * MODEL_FFN, MODEL_EXPERTS), (swiglu, act),                                 \
    (expert_linear, fc2, MODEL_FFN, MODEL_HIDDEN, MODEL_EXPERTS), (combine, route), (fork, routed), (load, n2),      \
    (linear, shared1, MODEL_HIDDEN, 2 * MODEL_FFN), (swiglu, shared_act), (linear, shared2, MODEL_FFN, MODEL_HIDDEN), \
    (add, routed), (add, x2)

/* OLMo 2: norms behind attention and MLP alone, and of q and of k over the widths of all their heads. */
#define PART_NORM(name, ...) (rmsnorm, name, MODEL_QKV_ROWS, __VA_ARGS__, (eps, MODEL_EPS))
#define BLOCK_OLMO2(KIND)                                                                                            \
    (fork, x1), QKV, PART_NORM(q_norm, (columns, MODEL_Q_ROWS)),                                                     \
    PART_NORM(k_norm, (first, MODEL_Q_ROWS), (columns, MODEL_KV_ROWS)), ATTENTION_PART(KIND),                        \
    NORM(rmsnorm, norm1_after), (add, x1),                                                                           \
    (fork, x2), GATED_MLP(swiglu), NORM(rmsnorm, norm2_after), (add, x2)

/* Gemma's norms have 1 + weight; the weights of a GGUF file have the 1 in them. */
#if MODEL_GGUF
#define GEMMA_NORM rmsnorm
#define GEMMA_HEAD_NORM head_norm
#else
#define GEMMA_NORM rmsnorm1p
#define GEMMA_HEAD_NORM head_norm1p
#endif

/* Gemma 2: norms behind attention and MLP as well; scores and logits are softcapped. */
#define BLOCK_GEMMA2(KIND)                                                                                           \
    (fork, x1), NORM(GEMMA_NORM, norm1), QKV, ATTENTION_PART(KIND), NORM(GEMMA_NORM, norm1_after), (add, x1),          \
    (fork, x2), NORM(GEMMA_NORM, norm2), GATED_MLP(geglu), NORM(GEMMA_NORM, norm2_after), (add, x2)

/* Gemma 3: norms of the heads of q and k instead of softcaps; rope has another base in blocks with a window. */
#define BLOCK_GEMMA3(KIND)                                                                                           \
    (fork, x1), NORM(GEMMA_NORM, norm1), QKV, HEAD_NORM(GEMMA_HEAD_NORM), ATTENTION_PART(KIND),                      \
    NORM(GEMMA_NORM, norm1_after), (add, x1),                                                                         \
    (fork, x2), NORM(GEMMA_NORM, norm2), GATED_MLP(geglu), NORM(GEMMA_NORM, norm2_after), (add, x2)

#define BLOCK_GPT2(KIND)                                                                                             \
    (fork, x1), NORM(layernorm, norm1), QKV, (bias, qkv_bias, MODEL_QKV_ROWS), ATTENTION(KIND), PROJ,                \
    (bias, proj_bias, MODEL_HIDDEN), (add, x1),                                                                      \
    (fork, x2), NORM(layernorm, norm2), (linear, fc1, MODEL_HIDDEN, MODEL_FFN), (bias, fc1_bias, MODEL_FFN),         \
    (gelu, act), (linear, fc2, MODEL_FFN, MODEL_HIDDEN), (bias, fc2_bias, MODEL_HIDDEN), (add, x2)

/* GPT-NeoX and Pythia: y = x + attention(norm1(x)) + mlp(norm2(x)) or, in few models, one behind the other; rope
 * rotates a part of each head. */
#define NEOX_ATTENTION(KIND)                                                                                         \
    NORM(layernorm, norm1), QKV, (bias, qkv_bias, MODEL_QKV_ROWS), ATTENTION_PART(KIND), (bias, proj_bias, MODEL_HIDDEN)
#define NEOX_MLP                                                                                                     \
    NORM(layernorm, norm2), (linear, fc1, MODEL_HIDDEN, MODEL_FFN), (bias, fc1_bias, MODEL_FFN), (MODEL_ACT, act),   \
    (linear, fc2, MODEL_FFN, MODEL_HIDDEN), (bias, fc2_bias, MODEL_HIDDEN)
#if MODEL_PARALLEL
#define BLOCK_GPT_NEOX(KIND) (fork, x), NEOX_ATTENTION(KIND), (fork, a), (load, x), NEOX_MLP, (add, a), (add, x)
#else
#define BLOCK_GPT_NEOX(KIND) (fork, x1), NEOX_ATTENTION(KIND), (add, x1), (fork, x2), NEOX_MLP, (add, x2)
#endif

/* ---- embeddings, norms and heads --------------------------------------------------------------------------------- */

/* The ops have the names of the files' tensors, so that te_weights_use finds the table: the largest tensor of many
 * models is then used where the file is mapped. */
#define EMBED_TOKENS (embedding, embed_tokens, MODEL_VOCABULARY, MODEL_HIDDEN)
#define EMBED_LLAMA EMBED_TOKENS
#define EMBED_MISTRAL EMBED_TOKENS
#define EMBED_MIXTRAL EMBED_TOKENS
#define EMBED_PHI3 EMBED_TOKENS
#define EMBED_SMOLLM3 EMBED_TOKENS
#define EMBED_OLMO2 EMBED_TOKENS
#define EMBED_QWEN2 EMBED_TOKENS
#define EMBED_QWEN3 EMBED_TOKENS
#define EMBED_QWEN3_MOE EMBED_TOKENS
#define EMBED_DEEPSEEK_V2 EMBED_TOKENS
#define EMBED_DEEPSEEK_V3 EMBED_TOKENS
#define EMBED_GPT_OSS EMBED_TOKENS
#define EMBED_LLAMA4 EMBED_TOKENS
#define EMBED_GEMMA2 EMBED_TOKENS, (scale, root, TE_JOIN1(MODEL_EMBEDDING_SCALE_, MODEL_DTYPE))
#define EMBED_GEMMA3 EMBED_GEMMA2
#define EMBED_GPT_NEOX (embedding, embed_in, MODEL_VOCABULARY, MODEL_HIDDEN)
#define EMBED_GPT2                                                                                                   \
    (embedding, wte, MODEL_VOCABULARY, MODEL_HIDDEN), (positions, wpe, MODEL_POSITIONS, MODEL_HIDDEN)

#define LAST_LLAMA NORM(rmsnorm, norm)
#define LAST_MISTRAL NORM(rmsnorm, norm)
#define LAST_MIXTRAL NORM(rmsnorm, norm)
#define LAST_PHI3 NORM(rmsnorm, norm)
#define LAST_SMOLLM3 NORM(rmsnorm, norm)
#define LAST_OLMO2 NORM(rmsnorm, norm)
#define LAST_QWEN2 NORM(rmsnorm, norm)
#define LAST_QWEN3 NORM(rmsnorm, norm)
#define LAST_QWEN3_MOE NORM(rmsnorm, norm)
#define LAST_DEEPSEEK_V2 NORM(rmsnorm, norm)
#define LAST_DEEPSEEK_V3 NORM(rmsnorm, norm)
#define LAST_GPT_OSS NORM(rmsnorm, norm)
#define LAST_LLAMA4 NORM(rmsnorm, norm)
#define LAST_GEMMA2 NORM(GEMMA_NORM, norm)
#define LAST_GEMMA3 NORM(GEMMA_NORM, norm)
#define LAST_GPT2 NORM(layernorm, norm)
#define LAST_GPT_NEOX NORM(layernorm, norm)

#if MODEL_TIED
#define LM_HEAD (tied_linear, lm_head, MODEL_HIDDEN, MODEL_VOCABULARY)
#else
#define LM_HEAD (linear, lm_head, MODEL_HIDDEN, MODEL_VOCABULARY)
#endif
#define SAMPLE (sample, next, MODEL_VOCABULARY)
#ifdef MODEL_LOGIT_SOFTCAP
#define CHOOSE (softcap, cap, MODEL_LOGIT_SOFTCAP), SAMPLE
#else
#define CHOOSE SAMPLE
#endif

/* ---- the lists of this model ------------------------------------------------------------------------------------- */

#define OF_FAMILY(prefix) FAMILY_JOIN(prefix, MODEL_FAMILY) /* not TE_JOIN1, which the lists use in turn */
#define FAMILY_JOIN(a, b) FAMILY_JOIN2(a, b)
#define FAMILY_JOIN2(a, b) a##b

TE_INFERENCE(embed, HEAD_FORMAT((out, f32)), OF_FAMILY(EMBED_))
#if MODEL_HAS_full
TE_INFERENCE(full, LIST_FORMAT((in, f32), (residual, f32), (out, f32)), OF_FAMILY(BLOCK_)(full))
#endif
#if MODEL_HAS_sliding
TE_INFERENCE(sliding, LIST_FORMAT((in, f32), (residual, f32), (out, f32)), OF_FAMILY(BLOCK_)(sliding))
#endif
#if MODEL_HAS_unrotated
TE_INFERENCE(unrotated, LIST_FORMAT((in, f32), (residual, f32), (out, f32)), OF_FAMILY(BLOCK_)(unrotated))
#endif
#if MODEL_HAS_dense
TE_INFERENCE(dense, LIST_FORMAT((in, f32), (residual, f32), (out, f32)), OF_FAMILY(BLOCK_)(dense))
#endif
/* The rest is three lists. A row that `last` reads is a token of a prompt, of which there are many, and a row of `head`
 * is a sequence: so the workspace is for logits of sequences alone. `choose` is a list in f32, for logits in f32. */
TE_INFERENCE(last, (MODEL_DTYPE, (in, f32)), (last_token, end), OF_FAMILY(LAST_))
TE_INFERENCE(head, HEAD_FORMAT((out, f32)), LM_HEAD)
TE_INFERENCE(choose, f32, CHOOSE)

/* ---- tensors of the files ---------------------------------------------------------------------------------------- */

#define TENSORS_PROJECTIONS                                                                                          \
    {"self_attn.q_proj.weight", "qkv", "weight", MODEL_Q_ROWS, 0},                                                   \
    {"self_attn.k_proj.weight", "qkv", "weight", MODEL_KV_ROWS, 0},                                                  \
    {"self_attn.v_proj.weight", "qkv", "weight", MODEL_KV_ROWS, 0},                                                  \
    {"self_attn.o_proj.weight", "proj", "weight", 0, 0}
#define TENSORS_ATTENTION {"input_layernorm.weight", "norm1", "weight", 0, 0}, TENSORS_PROJECTIONS
#define TENSORS_MLP                                                                                                  \
    {"mlp.gate_proj.weight", "fc1", "weight", MODEL_FFN, 0},                                                         \
    {"mlp.up_proj.weight", "fc1", "weight", MODEL_FFN, 0},                                                           \
    {"mlp.down_proj.weight", "fc2", "weight", 0, 0}
#define TENSORS_HEAD_NORM                                                                                            \
    {"self_attn.q_norm.weight", "heads", "q_weight", 0, 0}, {"self_attn.k_norm.weight", "heads", "k_weight", 0, 0}

#define TENSORS_LLAMA TENSORS_ATTENTION, {"post_attention_layernorm.weight", "norm2", "weight", 0, 0}, TENSORS_MLP
#define TENSORS_MISTRAL TENSORS_LLAMA
#define TENSORS_SMOLLM3 TENSORS_LLAMA
#define TENSORS_PHI3                                                                                                 \
    {"input_layernorm.weight", "norm1", "weight", 0, 0}, {"self_attn.qkv_proj.weight", "qkv", "weight", 0, 0},       \
    {"self_attn.o_proj.weight", "proj", "weight", 0, 0},                                                             \
    {"post_attention_layernorm.weight", "norm2", "weight", 0, 0},                                                    \
    {"mlp.gate_up_proj.weight", "fc1", "weight", 0, 0}, {"mlp.down_proj.weight", "fc2", "weight", 0, 0}
#define TENSORS_QWEN2                                                                                                \
    TENSORS_LLAMA, {"self_attn.q_proj.bias", "qkv_bias", "bias", MODEL_Q_ROWS, 0},                                   \
    {"self_attn.k_proj.bias", "qkv_bias", "bias", MODEL_KV_ROWS, 0},                                                 \
    {"self_attn.v_proj.bias", "qkv_bias", "bias", MODEL_KV_ROWS, 0}
#define TENSORS_QWEN3 TENSORS_LLAMA, TENSORS_HEAD_NORM
/* Models with experts. EXPERT_NAMES_: the names of gate, up and down of an expert, whose number stands for %d. Of
 * families whose files have one tensor for all experts, EXPERT_TENSORS_ is a table of these instead. */
#define TENSORS_MIXTRAL                                                                                              \
    TENSORS_ATTENTION, {"post_attention_layernorm.weight", "norm2", "weight", 0, 0},                                 \
    {"block_sparse_moe.gate.weight", "route", "weight", 0, 0}
#define EXPERT_NAMES_MIXTRAL                                                                                         \
    "block_sparse_moe.experts.%d.w1.weight", "block_sparse_moe.experts.%d.w3.weight",                                \
    "block_sparse_moe.experts.%d.w2.weight"
#define TENSORS_QWEN3_MOE                                                                                            \
    TENSORS_ATTENTION, {"post_attention_layernorm.weight", "norm2", "weight", 0, 0}, TENSORS_HEAD_NORM,              \
    {"mlp.gate.weight", "route", "weight", 0, 0}
#define EXPERT_NAMES_QWEN3_MOE                                                                                       \
    "mlp.experts.%d.gate_proj.weight", "mlp.experts.%d.up_proj.weight", "mlp.experts.%d.down_proj.weight"
#define TENSORS_DEEPSEEK                                                                                             \
    {"input_layernorm.weight", "norm1", "weight", 0, 0}, TENSORS_DEEPSEEK_QUERY,                                     \
    {"self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a", "weight", 0, 0},                                            \
    {"self_attn.kv_a_layernorm.weight", "attn_kv_norm", "weight", 0, 0},                                             \
    {"self_attn.o_proj.weight", "attn_proj", "weight", 0, 0},                                                        \
    {"post_attention_layernorm.weight", "norm2", "weight", 0, 0}
#if MODEL_Q_LORA
#define TENSORS_DEEPSEEK_QUERY                                                                                       \
    {"self_attn.q_a_proj.weight", "attn_q_a", "weight", 0, 0},                                                       \
    {"self_attn.q_a_layernorm.weight", "attn_q_norm", "weight", 0, 0},                                               \
    {"self_attn.q_b_proj.weight", "attn_q_b", "weight", 0, 0}
#else
#define TENSORS_DEEPSEEK_QUERY {"self_attn.q_proj.weight", "attn_q_b", "weight", 0, 0}
#endif
#define TENSORS_DEEPSEEK_V2                                                                                          \
    TENSORS_DEEPSEEK, {"mlp.gate.weight", "route", "weight", 0, 0},                                                  \
    {"mlp.shared_experts.gate_proj.weight", "shared_fc1", "weight", MODEL_SHARED_FFN, 0},                            \
    {"mlp.shared_experts.up_proj.weight", "shared_fc1", "weight", MODEL_SHARED_FFN, 0},                              \
    {"mlp.shared_experts.down_proj.weight", "shared_fc2", "weight", 0, 0}
#define TENSORS_DEEPSEEK_V3 TENSORS_DEEPSEEK_V2, {"mlp.gate.e_score_correction_bias", "route", "choice_bias", 0, 0}
#define EXPERT_NAMES_DEEPSEEK_V2 EXPERT_NAMES_QWEN3_MOE
#define EXPERT_NAMES_DEEPSEEK_V3 EXPERT_NAMES_QWEN3_MOE
#define TENSORS_GPT_OSS                                                                                              \
    TENSORS_ATTENTION, {"self_attn.q_proj.bias", "qkv_bias", "bias", MODEL_Q_ROWS, 0},                               \
    {"self_attn.k_proj.bias", "qkv_bias", "bias", MODEL_KV_ROWS, 0},                                                 \
    {"self_attn.v_proj.bias", "qkv_bias", "bias", MODEL_KV_ROWS, 0},                                                 \
    {"self_attn.o_proj.bias", "proj_bias", "bias", 0, 0}, {"self_attn.sinks", "attend", "sinks", 0, 0},              \
    {"post_attention_layernorm.weight", "norm2", "weight", 0, 0},                                                    \
    {"mlp.router.weight", "route", "weight", 0, 0}, {"mlp.router.bias", "route", "bias", 0, 0},                      \
    {"mlp.experts.gate_up_proj_bias", "fc1_bias", "bias", 0, TE_PACKED_EXPERTS | TE_PACKED_INTERLEAVED},             \
    {"mlp.experts.down_proj_bias", "fc2_bias", "bias", 0, TE_PACKED_EXPERTS}
#define EXPERT_TENSORS_GPT_OSS                                                                                       \
    {"mlp.experts.gate_up_proj", "fc1", "weight", 0,                                                                 \
     TE_PACKED_TRANSPOSED | TE_PACKED_EXPERTS | TE_PACKED_INTERLEAVED},                                              \
    {"mlp.experts.down_proj", "fc2", "weight", 0, TE_PACKED_TRANSPOSED | TE_PACKED_EXPERTS}
#define TENSORS_LLAMA4                                                                                               \
    TENSORS_ATTENTION, {"post_attention_layernorm.weight", "norm2", "weight", 0, 0},                                 \
    {"feed_forward.router.weight", "route", "weight", 0, 0},                                                         \
    {"feed_forward.shared_expert.gate_proj.weight", "shared1", "weight", MODEL_FFN, 0},                              \
    {"feed_forward.shared_expert.up_proj.weight", "shared1", "weight", MODEL_FFN, 0},                                \
    {"feed_forward.shared_expert.down_proj.weight", "shared2", "weight", 0, 0}
#define EXPERT_TENSORS_LLAMA4                                                                                        \
    {"feed_forward.experts.gate_up_proj", "fc1", "weight", 0, TE_PACKED_TRANSPOSED | TE_PACKED_EXPERTS},             \
    {"feed_forward.experts.down_proj", "fc2", "weight", 0, TE_PACKED_TRANSPOSED | TE_PACKED_EXPERTS}
#define TENSORS_GEMMA2                                                                                               \
    TENSORS_ATTENTION, {"post_attention_layernorm.weight", "norm1_after", "weight", 0, 0},                           \
    {"pre_feedforward_layernorm.weight", "norm2", "weight", 0, 0}, TENSORS_MLP,                                      \
    {"post_feedforward_layernorm.weight", "norm2_after", "weight", 0, 0}
#define TENSORS_GEMMA3 TENSORS_GEMMA2, TENSORS_HEAD_NORM
#define TENSORS_OLMO2                                                                                                \
    TENSORS_PROJECTIONS, {"self_attn.q_norm.weight", "q_norm", "weight", 0, 0},                                      \
    {"self_attn.k_norm.weight", "k_norm", "weight", 0, 0},                                                           \
    {"post_attention_layernorm.weight", "norm1_after", "weight", 0, 0}, TENSORS_MLP,                                 \
    {"post_feedforward_layernorm.weight", "norm2_after", "weight", 0, 0}
#define TENSORS_GPT2                                                                                                 \
    {"ln_1.weight", "norm1", "weight", 0, 0}, {"ln_1.bias", "norm1", "bias", 0, 0},                                  \
    {"attn.c_attn.weight", "qkv", "weight", 0, 1}, {"attn.c_attn.bias", "qkv_bias", "bias", 0, 0},                   \
    {"attn.c_proj.weight", "proj", "weight", 0, 1}, {"attn.c_proj.bias", "proj_bias", "bias", 0, 0},                 \
    {"ln_2.weight", "norm2", "weight", 0, 0}, {"ln_2.bias", "norm2", "bias", 0, 0},                                  \
    {"mlp.c_fc.weight", "fc1", "weight", 0, 1}, {"mlp.c_fc.bias", "fc1_bias", "bias", 0, 0},                         \
    {"mlp.c_proj.weight", "fc2", "weight", 0, 1}, {"mlp.c_proj.bias", "fc2_bias", "bias", 0, 0}

#define TENSORS_GPT_NEOX                                                                                             \
    {"input_layernorm.weight", "norm1", "weight", 0, 0}, {"input_layernorm.bias", "norm1", "bias", 0, 0},            \
    {"attention.dense.weight", "proj", "weight", 0, 0}, {"attention.dense.bias", "proj_bias", "bias", 0, 0},         \
    {"post_attention_layernorm.weight", "norm2", "weight", 0, 0},                                                    \
    {"post_attention_layernorm.bias", "norm2", "bias", 0, 0},                                                        \
    {"mlp.dense_h_to_4h.weight", "fc1", "weight", 0, 0}, {"mlp.dense_h_to_4h.bias", "fc1_bias", "bias", 0, 0},       \
    {"mlp.dense_4h_to_h.weight", "fc2", "weight", 0, 0}, {"mlp.dense_4h_to_h.bias", "fc2_bias", "bias", 0, 0}
/* The tensors that have q, k and v head by head. */
#define HEADS_GPT_NEOX                                                                                               \
    {"attention.query_key_value.weight", "qkv", "weight", MODEL_HEADS, MODEL_HEADS},                                 \
    {"attention.query_key_value.bias", "qkv_bias", "bias", MODEL_HEADS, MODEL_HEADS},

/* The names in GGUF files. */
#define GGUF_LLAMA                                                                                                   \
    {"attn_norm.weight", "norm1", "weight", 0, 0}, {"attn_q.weight", "qkv", "weight", MODEL_Q_ROWS, 0},              \
    {"attn_k.weight", "qkv", "weight", MODEL_KV_ROWS, 0}, {"attn_v.weight", "qkv", "weight", MODEL_KV_ROWS, 0},      \
    {"attn_output.weight", "proj", "weight", 0, 0}, {"ffn_norm.weight", "norm2", "weight", 0, 0},                    \
    {"ffn_gate.weight", "fc1", "weight", MODEL_FFN, 0}, {"ffn_up.weight", "fc1", "weight", MODEL_FFN, 0},            \
    {"ffn_down.weight", "fc2", "weight", 0, 0}
#define GGUF_QWEN2                                                                                                   \
    GGUF_LLAMA, {"attn_q.bias", "qkv_bias", "bias", MODEL_Q_ROWS, 0},                                                \
    {"attn_k.bias", "qkv_bias", "bias", MODEL_KV_ROWS, 0}, {"attn_v.bias", "qkv_bias", "bias", MODEL_KV_ROWS, 0}
#define GGUF_HEAD_NORM                                                                                               \
    {"attn_q_norm.weight", "heads", "q_weight", 0, 0}, {"attn_k_norm.weight", "heads", "k_weight", 0, 0}
#define GGUF_QWEN3 GGUF_LLAMA, GGUF_HEAD_NORM
#define GGUF_GEMMA2                                                                                                  \
    GGUF_LLAMA, {"post_attention_norm.weight", "norm1_after", "weight", 0, 0},                                       \
    {"post_ffw_norm.weight", "norm2_after", "weight", 0, 0}
#define GGUF_GEMMA3 GGUF_GEMMA2, GGUF_HEAD_NORM
#define GGUF_GPT2                                                                                                    \
    {"attn_norm.weight", "norm1", "weight", 0, 0}, {"attn_norm.bias", "norm1", "bias", 0, 0},                        \
    {"attn_qkv.weight", "qkv", "weight", 0, 0}, {"attn_qkv.bias", "qkv_bias", "bias", 0, 0},                         \
    {"attn_output.weight", "proj", "weight", 0, 0}, {"attn_output.bias", "proj_bias", "bias", 0, 0},                 \
    {"ffn_norm.weight", "norm2", "weight", 0, 0}, {"ffn_norm.bias", "norm2", "bias", 0, 0},                          \
    {"ffn_up.weight", "fc1", "weight", 0, 0}, {"ffn_up.bias", "fc1_bias", "bias", 0, 0},                             \
    {"ffn_down.weight", "fc2", "weight", 0, 0}, {"ffn_down.bias", "fc2_bias", "bias", 0, 0}

/* In which the families differ: names of the embedding's and the last norm's tensors, and of the layers. */
#define NAMES_LLAMA 0
#define NAMES_MISTRAL 0
#define NAMES_MIXTRAL 0 /* The weights of models with experts are read from folders only. */
#define NAMES_PHI3 0
#define NAMES_SMOLLM3 0
#define NAMES_OLMO2 0
#define NAMES_QWEN2 0
#define NAMES_QWEN3 0
#define NAMES_QWEN3_MOE 0
#define NAMES_DEEPSEEK_V2 0
#define NAMES_DEEPSEEK_V3 0
#define NAMES_GPT_OSS 0
#define NAMES_LLAMA4 0
#define NAMES_GEMMA2 0
#define NAMES_GEMMA3 0
#define NAMES_GPT2 1
#define NAMES_GPT_NEOX 2 /* Its weights are read from folders only. */
#if MODEL_GGUF
#define TABLE_OF_BLOCK OF_FAMILY(GGUF_)
#if OF_FAMILY(NAMES_)
static const te_packed embed_tensors[] = {{"token_embd.weight", "wte", "weight", 0, 0},
                                          {"position_embd.weight", "wpe", "weight", 0, 0}, END};
static const te_packed last_tensors[] = {{"output_norm.weight", "norm", "weight", 0, 0},
                                         {"output_norm.bias", "norm", "bias", 0, 0}, END};
#else
static const te_packed embed_tensors[] = {{"token_embd.weight", "embed_tokens", "weight", 0, 0}, END};
static const te_packed last_tensors[] = {{"output_norm.weight", "norm", "weight", 0, 0}, END};
#endif
static const te_packed head_tensors[] = {{"output.weight", "lm_head", "weight", 0, 0}, END};
static const char *const layer_prefix = "blk.%d.";
#else
#define TABLE_OF_BLOCK OF_FAMILY(TENSORS_)
/* Files of different versions of transformers differ: name_prefixes are what may stand in front of all names but the
 * head's, and head_tensors are names of which a file has one. */
#if OF_FAMILY(NAMES_) == 2
static const te_packed embed_tensors[] = {{"embed_in.weight", "embed_in", "weight", 0, 0}, END};
static const te_packed last_tensors[] = {{"final_layer_norm.weight", "norm", "weight", 0, 0},
                                         {"final_layer_norm.bias", "norm", "bias", 0, 0}, END};
static const te_packed head_tensors[] = {{"embed_out.weight", "lm_head", "weight", 0, 0},
                                         {"lm_head.weight", "lm_head", "weight", 0, 0}, END};
static const te_packed_heads block_heads[] = {HEADS_GPT_NEOX END};
static const char *const layer_prefix = "layers.%d.";
static const char *const name_prefixes[] = {"gpt_neox.", ""};
#else
static const te_packed head_tensors[] = {{"lm_head.weight", "lm_head", "weight", 0, 0}, END};
static const te_packed_heads block_heads[] = {END};
#if OF_FAMILY(NAMES_) == 1
static const te_packed embed_tensors[] = {{"wte.weight", "wte", "weight", 0, 0}, {"wpe.weight", "wpe", "weight", 0, 0},
                                          END};
static const te_packed last_tensors[] = {{"ln_f.weight", "norm", "weight", 0, 0}, {"ln_f.bias", "norm", "bias", 0, 0},
                                         END};
static const char *const layer_prefix = "h.%d.";
static const char *const name_prefixes[] = {"transformer.", ""};
#else
static const te_packed embed_tensors[] = {{"embed_tokens.weight", "embed_tokens", "weight", 0, 0}, END};
static const te_packed last_tensors[] = {{"norm.weight", "norm", "weight", 0, 0}, END};
static const char *const layer_prefix = "layers.%d.";
static const char *const name_prefixes[] = {"model.", "language_model.model.", "model.language_model.", ""};
#endif
#endif
#endif
static const te_packed block_tensors[] = {TABLE_OF_BLOCK, END};
#if MODEL_HAS_dense
static const te_packed dense_tensors[] = {
    TENSORS_DEEPSEEK, {"mlp.gate_proj.weight", "fc1", "weight", MODEL_DENSE_FFN, 0},
    {"mlp.up_proj.weight", "fc1", "weight", MODEL_DENSE_FFN, 0}, {"mlp.down_proj.weight", "fc2", "weight", 0, 0}, END};
#else
#define dense_tensors block_tensors
#endif
#if MODEL_LATENT
/* [kv_b] */
/* The tensor that has, for each head, the rows for k and then those for v. */
#define LATENT_ROWS MODEL_UNROTATED_DIM + MODEL_VALUE_DIM
static const te_packed_head_rows latent_tensors[] = {
    {"self_attn.kv_b_proj.weight", "attn_k_b", "weight", MODEL_HEADS, LATENT_ROWS, 0, MODEL_UNROTATED_DIM},
    {"self_attn.kv_b_proj.weight", "attn_v_b", "weight", MODEL_HEADS, LATENT_ROWS, MODEL_UNROTATED_DIM,
     MODEL_VALUE_DIM}};
/* [kv_b] */
#endif
#ifdef MODEL_EXPERTS_IN_ONE
static const te_packed expert_tensors[] = {OF_FAMILY(EXPERT_TENSORS_), END};
#elif MODEL_EXPERTS
static const char *const expert_names[3] = {OF_FAMILY(EXPERT_NAMES_)};
#endif

#endif
