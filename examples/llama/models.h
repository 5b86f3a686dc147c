/* models.h -- the model families that llama.c supports: their lists, and the names of their tensors in a checkpoint.
 *
 * A model is an embedding, blocks and a head, each of them a list. All sizes are constants: the kernels are compiled
 * for one model of each family, by default for the one named below; a macro such as QWEN3 that is defined before this
 * header (-include) chooses another. `sizes.py FOLDER` prints the macros for a folder. The program compares the sizes
 * with config.json, and says which differ.
 */
#ifndef EXAMPLES_LLAMA_MODELS_H
#define EXAMPLES_LLAMA_MODELS_H

#include <math.h> /* NAN */

#include "te/te.h"

/* The dtype of the weights; the residual stream and the logits are f32. */
#ifndef MODEL_DTYPE
#define MODEL_DTYPE TE_JOIN1(MODEL_DTYPE_, TE_CUDA)
#define MODEL_DTYPE_0 f32
#define MODEL_DTYPE_1 bf16
#endif

/* (hidden, ffn, vocabulary, heads, kv_heads, head_dim, base of the rotation) */
#ifndef LLAMA
#define LLAMA (4096, 14336, 128256, 32, 8, 128, 500000.0f) /* Llama 3 8B */
#endif
/* (.., factor, low_freq_factor, high_freq_factor, original_max_position_embeddings): the rope scaling of Llama 3.1 */
#ifndef LLAMA31
#define LLAMA31 (4096, 14336, 128256, 32, 8, 128, 500000.0f, 8.0f, 1.0f, 4.0f, 8192) /* Llama 3.1 8B */
#endif
/* The eps of the norms of Llama and Llama 3.1 */
#ifndef LLAMA_EPS
#define LLAMA_EPS 1e-5f
#endif
#ifndef QWEN2
#define QWEN2 (3584, 18944, 152064, 28, 4, 128, 1000000.0f) /* Qwen2.5 7B */
#endif
#ifndef QWEN3
#define QWEN3 (4096, 12288, 151936, 32, 8, 128, 1000000.0f) /* Qwen3 8B */
#endif
/* (hidden, ffn, vocabulary, heads, kv_heads, head_dim, query_pre_attn_scalar^-1/2, hidden^1/2, sliding_window) */
#ifndef GEMMA2
#define GEMMA2 (3584, 14336, 256000, 16, 8, 256, 0.0625f, 59.86651819f, 4096) /* Gemma 2 9B */
#endif
/* (hidden, ffn, vocabulary, heads, positions) */
#ifndef GPT2
#define GPT2 (768, 3072, 50257, 12, 1024) /* the smallest */
#endif

/* ---- the lists: the values between them are f32, because the residual stream passes from list to list ------------ */

#define APPLY(M, sizes) M sizes
#define EMBED(name, ...) TE_SEQUENTIAL(name##_embed, (MODEL_DTYPE, (out, f32)), __VA_ARGS__)
#define BLOCK(name, ...) TE_SEQUENTIAL(name, (MODEL_DTYPE, (in, f32), (residual, f32), (out, f32)), __VA_ARGS__)
#define HEAD(name, ...) TE_SEQUENTIAL(name##_head, (MODEL_DTYPE, (in, f32), (out, f32)), __VA_ARGS__)

/* The ops of TE_LLAMA31_BLOCK, with an eps; the arguments after D are options of rope. */
#define LLAMA_OPS(H, F, HEADS, KV, D, ...)                                                                           \
    (fork, b_x1), (rmsnorm, b_norm1, H, (eps, LLAMA_EPS)), (linear, b_qkv, H, ((HEADS) + 2 * (KV)) * (D)),            \
    (rope, b_rope, HEADS, KV, D, __VA_ARGS__), (attention, b_attention, HEADS, KV, D),                               \
    (linear, b_proj, (HEADS) * (D), H), (add, b_x1),                                                                 \
    (fork, b_x2), (rmsnorm, b_norm2, H, (eps, LLAMA_EPS)), (linear, b_fc1, H, 2 * (F)), (swiglu, b_act),              \
    (linear, b_fc2, F, H), (add, b_x2)

#define LLAMA_EMBED(H, F, V, HEADS, KV, D, BASE) EMBED(llama, (embedding, tokens, V, H))
#define LLAMA_BLOCK(H, F, V, HEADS, KV, D, BASE) BLOCK(llama_block, LLAMA_OPS(H, F, HEADS, KV, D, (base, BASE)))
#define LLAMA_HEAD(H, F, V, HEADS, KV, D, BASE) HEAD(llama, (rmsnorm, last, H, (eps, LLAMA_EPS)), (linear, head, H, V))
APPLY(LLAMA_EMBED, LLAMA)
APPLY(LLAMA_BLOCK, LLAMA)
APPLY(LLAMA_HEAD, LLAMA)

#define LLAMA31_EMBED(H, F, V, HEADS, KV, D, BASE, FACTOR, LOW, HIGH, LENGTH) EMBED(llama31, (embedding, tokens, V, H))
#define LLAMA31_BLOCK(H, F, V, HEADS, KV, D, BASE, FACTOR, LOW, HIGH, LENGTH)                                  \
    BLOCK(llama31_block,                                                                                       \
          LLAMA_OPS(H, F, HEADS, KV, D, (base, BASE), (scaling, llama3), (factor, FACTOR),                     \
                    (low_freq_factor, LOW), (high_freq_factor, HIGH), (original_length, LENGTH)))
#define LLAMA31_HEAD(H, F, V, HEADS, KV, D, BASE, FACTOR, LOW, HIGH, LENGTH) \
    HEAD(llama31, (rmsnorm, last, H, (eps, LLAMA_EPS)), (linear, head, H, V))
APPLY(LLAMA31_EMBED, LLAMA31)
APPLY(LLAMA31_BLOCK, LLAMA31)
APPLY(LLAMA31_HEAD, LLAMA31)

#define QWEN2_EMBED(H, F, V, HEADS, KV, D, BASE) EMBED(qwen2, (embedding, tokens, V, H))
#define QWEN2_BLOCK(H, F, V, HEADS, KV, D, BASE) BLOCK(qwen2_block, TE_QWEN2_BLOCK(b, H, F, HEADS, KV, D, BASE))
#define QWEN2_HEAD(H, F, V, HEADS, KV, D, BASE) HEAD(qwen2, (rmsnorm, last, H, (eps, 1e-6f)), (linear, head, H, V))
APPLY(QWEN2_EMBED, QWEN2)
APPLY(QWEN2_BLOCK, QWEN2)
APPLY(QWEN2_HEAD, QWEN2)

#define QWEN3_EMBED(H, F, V, HEADS, KV, D, BASE) EMBED(qwen3, (embedding, tokens, V, H))
#define QWEN3_BLOCK(H, F, V, HEADS, KV, D, BASE) BLOCK(qwen3_block, TE_QWEN3_BLOCK(b, H, F, HEADS, KV, D, BASE))
#define QWEN3_HEAD(H, F, V, HEADS, KV, D, BASE) HEAD(qwen3, (rmsnorm, last, H, (eps, 1e-6f)), (linear, head, H, V))
APPLY(QWEN3_EMBED, QWEN3)
APPLY(QWEN3_BLOCK, QWEN3)
APPLY(QWEN3_HEAD, QWEN3)

/* Every second block attends to all tokens, the others to a sliding window. */
#define GEMMA2_EMBED(H, F, V, HEADS, KV, D, SCALE, ROOT, WINDOW) \
    EMBED(gemma2, (embedding, tokens, V, H), (scale, root, ROOT))
#define GEMMA2_LOCAL(H, F, V, HEADS, KV, D, SCALE, ROOT, WINDOW) \
    BLOCK(gemma2_local, TE_GEMMA2_BLOCK(b, H, F, HEADS, KV, D, SCALE, (WINDOW) - 1))
#define GEMMA2_BLOCK(H, F, V, HEADS, KV, D, SCALE, ROOT, WINDOW) \
    BLOCK(gemma2_block, TE_GEMMA2_BLOCK(b, H, F, HEADS, KV, D, SCALE, -1))
#define GEMMA2_HEAD(H, F, V, HEADS, KV, D, SCALE, ROOT, WINDOW) \
    HEAD(gemma2, (rmsnorm1p, last, H, (eps, 1e-6f)), (linear, head, H, V), (softcap, cap, 30.0f))
APPLY(GEMMA2_EMBED, GEMMA2)
APPLY(GEMMA2_LOCAL, GEMMA2)
APPLY(GEMMA2_BLOCK, GEMMA2)
APPLY(GEMMA2_HEAD, GEMMA2)

#define GPT2_EMBED(H, F, V, HEADS, LENGTH) EMBED(gpt2, (embedding, tokens, V, H), (positions, at, LENGTH, H))
#define GPT2_BLOCK(H, F, V, HEADS, LENGTH) BLOCK(gpt2_block, TE_GPT_BLOCK(b, H, F, HEADS, 0.1f))
#define GPT2_HEAD(H, F, V, HEADS, LENGTH) HEAD(gpt2, (layernorm, last, H), (linear, head, H, V))
APPLY(GPT2_EMBED, GPT2)
APPLY(GPT2_BLOCK, GPT2)
APPLY(GPT2_HEAD, GPT2)

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

/* The tensors of the files that each parameter is packed from (te/io/packed.h): q, k, v become one weight, and gate, up
 * another. */
#define END {0, 0, 0, 0, 0} /* the last entry of a table */

#define Q_ROWS(H, F, V, HEADS, KV, D, ...) (HEADS) * (D)
#define KV_ROWS(H, F, V, HEADS, KV, D, ...) (KV) * (D)
#define FFN(H, F, ...) F
#define HIDDEN(H, ...) H
#define VOCABULARY(H, F, V, ...) V
#define HEADS_OF(H, F, V, HEADS, ...) HEADS
#define KV_OF(H, F, V, HEADS, KV, ...) KV
#define LENGTH_OF(H, F, V, HEADS, LENGTH) LENGTH
#define DIM_OF(H, F, V, HEADS, KV, D, ...) D
#define SEVENTH(H, F, V, HEADS, KV, D, seventh, ...) seventh
#define BASE_OF(...) SEVENTH(__VA_ARGS__, ~)

/* The tensors that Llama, Qwen and Gemma have in common. */
#define OF_ATTENTION(sizes)                                                                      \
    {"input_layernorm.weight", "b_norm1", "weight", 0, 0},                                       \
    {"self_attn.q_proj.weight", "b_qkv", "weight", APPLY(Q_ROWS, sizes), 0},                     \
    {"self_attn.k_proj.weight", "b_qkv", "weight", APPLY(KV_ROWS, sizes), 0},                    \
    {"self_attn.v_proj.weight", "b_qkv", "weight", APPLY(KV_ROWS, sizes), 0},                    \
    {"self_attn.o_proj.weight", "b_proj", "weight", 0, 0}
#define OF_MLP(sizes)                                                                            \
    {"mlp.gate_proj.weight", "b_fc1", "weight", APPLY(FFN, sizes), 0},                           \
    {"mlp.up_proj.weight", "b_fc1", "weight", APPLY(FFN, sizes), 0},                             \
    {"mlp.down_proj.weight", "b_fc2", "weight", 0, 0}
#define OF_EMBED {"embed_tokens.weight", "tokens", "weight", 0, 0}

static const te_packed llama_embed_from[] = {OF_EMBED, END};
static const te_packed llama_from[] = {
    OF_ATTENTION(LLAMA), {"post_attention_layernorm.weight", "b_norm2", "weight", 0, 0}, OF_MLP(LLAMA), END};
static const te_packed llama_head_from[] = {{"norm.weight", "last", "weight", 0, 0}, END};

static const te_packed llama31_embed_from[] = {OF_EMBED, END};
static const te_packed llama31_from[] = {
    OF_ATTENTION(LLAMA31), {"post_attention_layernorm.weight", "b_norm2", "weight", 0, 0}, OF_MLP(LLAMA31), END};

static const te_packed qwen2_embed_from[] = {OF_EMBED, END};
static const te_packed qwen2_from[] = {
    OF_ATTENTION(QWEN2), {"self_attn.q_proj.bias", "b_qkv_bias", "bias", APPLY(Q_ROWS, QWEN2), 0},
    {"self_attn.k_proj.bias", "b_qkv_bias", "bias", APPLY(KV_ROWS, QWEN2), 0},
    {"self_attn.v_proj.bias", "b_qkv_bias", "bias", APPLY(KV_ROWS, QWEN2), 0},
    {"post_attention_layernorm.weight", "b_norm2", "weight", 0, 0}, OF_MLP(QWEN2), END};

static const te_packed qwen3_embed_from[] = {OF_EMBED, END};
static const te_packed qwen3_from[] = {
    OF_ATTENTION(QWEN3), {"self_attn.q_norm.weight", "b_heads", "q_weight", 0, 0},
    {"self_attn.k_norm.weight", "b_heads", "k_weight", 0, 0},
    {"post_attention_layernorm.weight", "b_norm2", "weight", 0, 0}, OF_MLP(QWEN3), END};

static const te_packed gemma2_embed_from[] = {OF_EMBED, END};
static const te_packed gemma2_from[] = {
    OF_ATTENTION(GEMMA2), {"post_attention_layernorm.weight", "b_norm1_after", "weight", 0, 0},
    {"pre_feedforward_layernorm.weight", "b_norm2", "weight", 0, 0}, OF_MLP(GEMMA2),
    {"post_feedforward_layernorm.weight", "b_norm2_after", "weight", 0, 0}, END};

static const te_packed gpt2_embed_from[] = {{"wte.weight", "tokens", "weight", 0, 0},
                                         {"wpe.weight", "at", "weight", 0, 0}, END};
static const te_packed gpt2_from[] = {
    {"ln_1.weight", "b_norm1", "weight", 0, 0}, {"ln_1.bias", "b_norm1", "bias", 0, 0},
    {"attn.c_attn.weight", "b_qkv", "weight", 0, 1},
    {"attn.c_attn.bias", "b_qkv_bias", "bias", 0, 0},
    {"attn.c_proj.weight", "b_proj", "weight", 0, 1}, {"attn.c_proj.bias", "b_proj_bias", "bias", 0, 0},
    {"ln_2.weight", "b_norm2", "weight", 0, 0}, {"ln_2.bias", "b_norm2", "bias", 0, 0},
    {"mlp.c_fc.weight", "b_fc1", "weight", 0, 1}, {"mlp.c_fc.bias", "b_fc1_bias", "bias", 0, 0},
    {"mlp.c_proj.weight", "b_fc2", "weight", 0, 1}, {"mlp.c_proj.bias", "b_fc2_bias", "bias", 0, 0},
    END};
static const te_packed gpt2_head_from[] = {{"ln_f.weight", "last", "weight", 0, 0}, {"ln_f.bias", "last", "bias", 0, 0}, END};

/* ---- required values of config.json ------------------------------------------------------------------------------- */

/* `key`, or its older name `old`, must have this number or text. A missing key counts as `otherwise`; NAN: it must not
 * be missing. */
typedef struct want { const char *key, *old; double number, otherwise; const char *text; } want;

#define WANT_SIZES(sizes)                                                                                           \
    {"hidden_size", 0, APPLY(HIDDEN, sizes), NAN, 0}, {"intermediate_size", 0, APPLY(FFN, sizes), NAN, 0},          \
    {"vocab_size", 0, APPLY(VOCABULARY, sizes), NAN, 0}, {"num_attention_heads", 0, APPLY(HEADS_OF, sizes), NAN, 0}, \
    {"num_key_value_heads", 0, APPLY(KV_OF, sizes), APPLY(HEADS_OF, sizes), 0},                                     \
    {"head_dim", 0, APPLY(DIM_OF, sizes), (double)(APPLY(HIDDEN, sizes)) / (APPLY(HEADS_OF, sizes)), 0},            \
    {"attention_bias", 0, 0, 0, 0}, {"mlp_bias", 0, 0, 0, 0}, {"use_sliding_window", 0, 0, 0, 0}
#define WANT_BASE(base)                                                                                             \
    {"rope_parameters.rope_type", "rope_scaling.rope_type", 0, 0, "default"},                                       \
    {"rope_scaling.type", 0, 0, 0, "default"}, {"rope_parameters.rope_theta", "rope_theta", base, 10000, 0}

static const want llama_wants[] = {WANT_SIZES(LLAMA), WANT_BASE(APPLY(BASE_OF, LLAMA)), {"hidden_act", 0, 0, NAN, "silu"},
                                   {"rms_norm_eps", 0, (double)LLAMA_EPS, NAN, 0}, END};
#define FACTOR_OF(H, F, V, HEADS, KV, D, BASE, FACTOR, LOW, HIGH, LENGTH) FACTOR
#define LOW_OF(H, F, V, HEADS, KV, D, BASE, FACTOR, LOW, HIGH, LENGTH) LOW
#define HIGH_OF(H, F, V, HEADS, KV, D, BASE, FACTOR, LOW, HIGH, LENGTH) HIGH
#define ORIGINAL_OF(H, F, V, HEADS, KV, D, BASE, FACTOR, LOW, HIGH, LENGTH) LENGTH
static const want llama31_wants[] = {
    WANT_SIZES(LLAMA31), {"rope_parameters.rope_type", "rope_scaling.rope_type", 0, NAN, "llama3"},
    {"rope_parameters.rope_theta", "rope_theta", APPLY(BASE_OF, LLAMA31), 10000, 0},
    {"rope_parameters.factor", "rope_scaling.factor", APPLY(FACTOR_OF, LLAMA31), NAN, 0},
    {"rope_parameters.low_freq_factor", "rope_scaling.low_freq_factor", APPLY(LOW_OF, LLAMA31), NAN, 0},
    {"rope_parameters.high_freq_factor", "rope_scaling.high_freq_factor", APPLY(HIGH_OF, LLAMA31), NAN, 0},
    {"rope_parameters.original_max_position_embeddings", "rope_scaling.original_max_position_embeddings",
     APPLY(ORIGINAL_OF, LLAMA31), NAN, 0},
    {"hidden_act", 0, 0, NAN, "silu"}, {"rms_norm_eps", 0, (double)LLAMA_EPS, NAN, 0}, END};
static const want qwen2_wants[] = {WANT_SIZES(QWEN2), WANT_BASE(APPLY(BASE_OF, QWEN2)), {"hidden_act", 0, 0, NAN, "silu"},
                                   {"rms_norm_eps", 0, 1e-6, NAN, 0}, END};
static const want qwen3_wants[] = {WANT_SIZES(QWEN3), WANT_BASE(APPLY(BASE_OF, QWEN3)), {"hidden_act", 0, 0, NAN, "silu"},
                                   {"rms_norm_eps", 0, 1e-6, NAN, 0}, END};
#define SCALE_OF(H, F, V, HEADS, KV, D, SCALE, ROOT, WINDOW) 1.0 / ((double)(SCALE) * (double)(SCALE))
#define ROOT_OF(H, F, V, HEADS, KV, D, SCALE, ROOT, WINDOW) (double)(ROOT) * (double)(ROOT)
#define WINDOW_OF(H, F, V, HEADS, KV, D, SCALE, ROOT, WINDOW) WINDOW
static const want gemma2_wants[] = {
    WANT_SIZES(GEMMA2), WANT_BASE(10000), {"hidden_activation", "hidden_act", 0, NAN, "gelu_pytorch_tanh"},
    {"rms_norm_eps", 0, 1e-6, NAN, 0}, {"query_pre_attn_scalar", 0, APPLY(SCALE_OF, GEMMA2), NAN, 0},
    {"hidden_size", 0, APPLY(ROOT_OF, GEMMA2), NAN, 0}, {"sliding_window", 0, APPLY(WINDOW_OF, GEMMA2), NAN, 0},
    {"attn_logit_softcapping", 0, 50, NAN, 0}, {"final_logit_softcapping", 0, 30, NAN, 0}, END};
static const want gpt2_wants[] = {
    {"n_embd", 0, APPLY(HIDDEN, GPT2), NAN, 0}, {"n_inner", 0, APPLY(FFN, GPT2), 4.0 * APPLY(HIDDEN, GPT2), 0},
    {"vocab_size", 0, APPLY(VOCABULARY, GPT2), NAN, 0}, {"n_head", 0, APPLY(HEADS_OF, GPT2), NAN, 0},
    {"n_positions", 0, APPLY(LENGTH_OF, GPT2), NAN, 0}, {"activation_function", 0, 0, NAN, "gelu_new"},
    {"layer_norm_epsilon", 0, 1e-5, NAN, 0}, {"scale_attn_weights", 0, 1, 1, 0},
    {"scale_attn_by_inverse_layer_idx", 0, 0, 0, 0}, END};

/* ---- the families ------------------------------------------------------------------------------------------------ */

/* first: the block of layers 0, 2, ..; second: of layers 1, 3, ..; tied: whether the head shares the embedding's weight
 * if config.json does not say; rope: the family is of models whose rope scaling has this type, 0: of all others. */
typedef struct family {
    const char *type, *prefix, *layer, *layers, *sizes;
    const te_plan *(*embed)(void), *(*first)(void), *(*second)(void), *(*head)(void);
    const te_packed *embed_from, *block_from, *head_from;
    const want *wants;
    int tied;
    const char *rope;
} family;

static const family families[] = {
    {"llama", "model.", "layers", "num_hidden_layers", "LLAMA", llama_embed_plan, llama_block_plan, llama_block_plan,
     llama_head_plan, llama_embed_from, llama_from, llama_head_from, llama_wants, 0, 0},
    {"llama", "model.", "layers", "num_hidden_layers", "LLAMA31", llama31_embed_plan, llama31_block_plan,
     llama31_block_plan, llama31_head_plan, llama31_embed_from, llama31_from, llama_head_from, llama31_wants, 0, "llama3"},
    {"qwen2", "model.", "layers", "num_hidden_layers", "QWEN2", qwen2_embed_plan, qwen2_block_plan, qwen2_block_plan,
     qwen2_head_plan, qwen2_embed_from, qwen2_from, llama_head_from, qwen2_wants, 0, 0},
    {"qwen3", "model.", "layers", "num_hidden_layers", "QWEN3", qwen3_embed_plan, qwen3_block_plan, qwen3_block_plan,
     qwen3_head_plan, qwen3_embed_from, qwen3_from, llama_head_from, qwen3_wants, 0, 0},
    {"gemma2", "model.", "layers", "num_hidden_layers", "GEMMA2", gemma2_embed_plan, gemma2_local_plan, gemma2_block_plan,
     gemma2_head_plan, gemma2_embed_from, gemma2_from, llama_head_from, gemma2_wants, 1, 0},
    {"gpt2", "transformer.", "h", "n_layer", "GPT2", gpt2_embed_plan, gpt2_block_plan, gpt2_block_plan, gpt2_head_plan,
     gpt2_embed_from, gpt2_from, gpt2_head_from, gpt2_wants, 1, 0}};

#endif
