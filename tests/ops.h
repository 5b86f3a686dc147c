// ops.h -- every op, alone and in typical lists, against the reference. A template by inclusion; its input:
//     OPS_DTYPE      f32, bf16, f16
// A new op gets a line in one of the three tables OPS_* here, and its formulas in reference.cc.
#ifndef OPS_DTYPE
#error "ops.h needs OPS_DTYPE"
#endif
#include "harness.h"
#include "te/ops/activation.h"
#include "te/ops/attention.h"
#include "te/ops/elementwise.h"
#include "te/ops/cross_entropy.h"
#include "te/ops/dropout.h"
#include "te/ops/embedding.h"
#include "te/ops/head_norm.h"
#include "te/ops/join.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/residual.h"
#include "te/ops/rope.h"

#define OPS_GPT(H, F, HEADS)                                                                                                 \
    (fork, x1), (layernorm, ln1, H), (linear, qkv, H, 3 * H), (bias, qkv_b, 3 * H), (attention, attn, HEADS, HEADS, H / HEADS), \
        (linear, proj, H, H), (bias, proj_b, H), (dropout, drop1, 0.1f), (add, x1), (fork, x2), (layernorm, ln2, H),         \
        (linear, fc1, H, F), (bias, fc1_b, F), (gelu, act), (linear, fc2, F, H), (bias, fc2_b, H), (dropout, drop2, 0.1f), (add, x2)
#define OPS_LLAMA(H, F, HEADS, KV, D)                                                                                        \
    (fork, x1), (rmsnorm, n1, H), (linear, qkv, H, (HEADS + 2 * KV) * D), (rope, rot, HEADS, KV, D),                         \
        (attention, attn, HEADS, KV, D), (linear, proj, HEADS * D, H), (add, x1), (fork, x2), (rmsnorm, n2, H),              \
        (linear, fc1, H, 2 * F), (swiglu, act), (linear, fc2, F, H), (add, x2)

// X(name, how, dtype, ops...). Ops that treat each row alone: they are tested with 1, 7 and 131 rows.
#define OPS_BY_ROW(X)                                                                                       \
    X(linear_37, MODEL, OPS_DTYPE, (linear, l, 37, 53))                                                     \
    X(linear_64, MODEL, OPS_DTYPE, (linear, l, 64, 96))                                                     \
    X(linear_1, MODEL, OPS_DTYPE, (linear, l, 1, 3), (linear, m, 3, 1))                                     \
    X(linear_8, MODEL, OPS_DTYPE, (linear, l, 8, 200))                                                      \
    X(linear_deep, MODEL, OPS_DTYPE, (linear, l, 520, 24))                                                  \
    X(bias_37, MODEL, OPS_DTYPE, (bias, b, 37))                                                             \
    X(bias_520, MODEL, OPS_DTYPE, (bias, b, 520))                                                           \
    X(bias_4, MODEL, OPS_DTYPE, (bias, b, 4))                                                               \
    X(mul_param_37, MODEL, OPS_DTYPE, (mul_param, m, 37))                                                   \
    X(mul_param_520, MODEL, OPS_DTYPE, (gelu, g), (mul_param, m, 520), (bias, b, 520))                      \
    X(mul_param_one, MODEL, OPS_DTYPE, (bias, b, 53), (mul_param, m, 1), (mul_param, k, 1))                 \
    X(mul_param_of_one, MODEL, OPS_DTYPE, (linear, l, 3, 1), (mul_param, m, 1), (linear, k, 1, 5))          \
    X(mul_param_gated, MODEL, OPS_DTYPE, (linear, l, 40, 64), (mul_param, m, 64), (swiglu, g), (mul_param, k, 1)) \
    X(layernorm_5, MODEL, OPS_DTYPE, (layernorm, n, 5))                                                     \
    X(layernorm_96, MODEL, OPS_DTYPE, (layernorm, n, 96, (eps, 1e-3f)))                                            \
    X(rmsnorm_37, MODEL, OPS_DTYPE, (rmsnorm, n, 37, (eps, 1e-2f)))                                                \
    X(rmsnorm_96, MODEL, OPS_DTYPE, (rmsnorm, n, 96))                                                       \
    X(l2norm_53, MODEL, OPS_DTYPE, (l2norm, n, 53, (eps, 0.1f)))                                                   \
    X(l2norm_64, MODEL, OPS_DTYPE, (l2norm, n, 64))                                                         \
    X(layernorm1p_64, MODEL, OPS_DTYPE, (layernorm1p, n, 64, (eps, 1e-6f)))                                        \
    X(rmsnorm1p_53, MODEL, OPS_DTYPE, (rmsnorm1p, n, 53))                                                   \
    X(layernorm_1100, MODEL, OPS_DTYPE, (layernorm, n, 1100))                                               \
    X(rmsnorm_2051, MODEL, OPS_DTYPE, (rmsnorm, n, 2051))                                                   \
    X(dropout_0, MODEL, OPS_DTYPE, (bias, b, 37), (dropout, d, 0.0f))                                       \
    X(dropout_5, MODEL, OPS_DTYPE, (dropout, d), (bias, b, 53))                                             \
    X(dropout_9, MODEL, OPS_DTYPE, (dropout, d, 0.9f), (bias, b, 64), (dropout, e, 0.1f))                   \
    X(scale_1, MODEL, OPS_DTYPE, (bias, b, 37), (scale, s), (scale, t, -2.5f))                              \
    X(softcap_53, MODEL, OPS_DTYPE, (bias, b, 53), (softcap, s, 0.7f))                                      \
    X(softcap_64, MODEL, OPS_DTYPE, (linear, l, 37, 64), (bias, b, 64), (softcap, s, 30.0f), (gelu, g))     \
    X(dyt_37, MODEL, OPS_DTYPE, (dyt, n, 37), (linear, l, 37, 53), (dyt, m, 53))                            \
    X(dyt_520, MODEL, OPS_DTYPE, (bias, b, 520), (dyt, n, 520))                                             \
    X(dyt_1, MODEL, OPS_DTYPE, (dyt, n, 1))                                                                 \
    X(tanh_37, MODEL, OPS_DTYPE, (bias, b, 37), (tanh, t), (linear, l, 37, 53), (sigmoid, s))                \
    X(xielu_37, MODEL, OPS_DTYPE, (bias, b, 37), (xielu, a), (linear, l, 37, 53), (xielu, c, (beta, 0.25f)))  \
    X(xielu_520, MODEL, OPS_DTYPE, (linear, l, 37, 520), (xielu, a), (linear, m, 520, 8), (xielu, c))         \
    X(layernorm_no_bias_53, MODEL, OPS_DTYPE, (layernorm_no_bias, n, 53, (eps, 1e-3f)))                      \
    X(layernorm_no_bias_1100, MODEL, OPS_DTYPE, (fork, x), (layernorm_no_bias, n, 1100), (add, x))           \
    X(layernorm_no_affine_64, MODEL, OPS_DTYPE, (linear, l, 37, 64), (fork, x), (layernorm_no_affine, n, 64), (bias, b, 64), (add, x)) \
    X(layernorm_no_affine_2051, MODEL, OPS_DTYPE, (layernorm_no_affine, n, 2051))                            \
    X(rmsnorm_no_affine_53, MODEL, OPS_DTYPE, (bias, b, 53), (rmsnorm_no_affine, n, 53, (eps, 1e-6f)))       \
    X(norm_part_64, MODEL, OPS_DTYPE, (bias, b, 64), (rmsnorm, n, 64, (columns, 24)), (layernorm, m, 64, (first, 16), (columns, 40))) \
    X(norm_part_odd, MODEL, OPS_DTYPE, (linear, l, 37, 53), (fork, x), (layernorm, n, 53, (first, 8), (columns, 32), (eps, 1e-3f)), (add, x), (l2norm, m, 53, (columns, 48))) \
    X(norm_part_2112, MODEL, OPS_DTYPE, (rmsnorm1p, n, 2112, (columns, 1536)), (rmsnorm, m, 2112, (first, 1536), (columns, 512))) \
    X(norm_part_5136, MODEL, OPS_DTYPE, (layernorm_no_bias, n, 5136, (first, 16), (columns, 4096)))          \
    X(norm_part_bare, MODEL, OPS_DTYPE, (fork, x), (rmsnorm_no_affine, n, 96, (first, 88), (columns, 8)), (add, x), (layernorm_no_affine, m, 96, (columns, 96))) \
    X(slice_64, MODEL, OPS_DTYPE, (linear, l, 37, 64), (slice, s, 16, 24), (bias, b, 24), (slice, t, 3, 17)) \
    X(slice_first, MODEL, (OPS_DTYPE, (width, 53)), (slice, s, 11, 42))                                      \
    X(concat_64, MODEL, OPS_DTYPE, (fork, x), (linear, l, 64, 40), (gelu, g), (concat, c, x, 64), (bias, b, 104)) \
    X(concat_odd, MODEL, OPS_DTYPE, (linear, k, 53, 37), (fork, x), (bias, b, 37), (concat, c, x, 37, (front, 1)), (concat, d, x, 37, (heads, 2)), (linear, l, 148, 8)) \
    X(concat_heads, MODEL, OPS_DTYPE, (linear, a, 37, 16), (fork, x), (silu, s), (fork, z), (linear, l, 16, 3 * 24), (concat, c, x, 16, (heads, 3)), (concat, d, z, 16, (heads, 3), (front, 1))) \
    X(concat_input, MODEL, OPS_DTYPE, (input, i, 24), (linear, l, 64, 40), (concat, c, i, 24), (concat, d, i, 24, (heads, 4), (front, 1)), (scale, s, 2.0f)) \
    X(concat_alone, MODEL, (OPS_DTYPE, (width, 40)), (input, i, 9), (concat, c, i, 9))                       \
    X(clamped_swiglu_37, MODEL, OPS_DTYPE, (bias, b, 2 * 37), (clamped_swiglu, g))                          \
    X(clamped_swiglu_64, MODEL, OPS_DTYPE, (linear, l, 40, 2 * 64), (bias, b, 2 * 64), (clamped_swiglu, g, (alpha, 1.1f), (limit, 0.9f)), (scale, s, 2.0f)) \
    X(one_edge, MODEL, OPS_DTYPE, (input, i, 64), (linear, l, 64, 64), (add, i))                            \
    X(edges, MODEL, OPS_DTYPE, (input, i, 53), (linear, l, 37, 53), (output, o), (fork, f), (gelu, a), (add, f), (output, p), (add, i)) \
    X(edge_first, MODEL, OPS_DTYPE, (output, o), (bias, b, 37), (output, p))                                \
    X(edge_gated, MODEL, OPS_DTYPE, (bias, b, 2 * 37), (output, o), (swiglu, g), (output, p), (input, i, 37), (add, i)) \
    X(forked, MODEL, OPS_DTYPE, (fork, a), (fork, b), (scale, s, 0.5f), (add, a), (gelu, g), (add, b), (layernorm, n, 37)) \
    X(crossed, MODEL, OPS_DTYPE, (fork, a), (linear, l, 64, 64), (fork, b), (add, a), (fork, c), (rmsnorm, n, 64), (add, b), (add, c)) \
    X(nested, UNFUSED, OPS_DTYPE, (fork, a), (linear, l, 40, 40), (fork, b), (silu, f), (fork, c), (bias, d, 40), (add, c), (add, b), (add, a)) \
    X(gated_in_gated, MODEL, OPS_DTYPE, (bias, b, 4 * 24), (swiglu, g), (glu, h), (bias, c, 24))

// Ops that depend on the sequence: they are tested with 1, 2 and 3 sequences of 1, 7 and 33 rows, also from positions above 0.
#define OPS_BY_SEQUENCE(X)                                                                                  \
    X(rope_16, MODEL, OPS_DTYPE, (rope, r, 4, 2, 16, (scaling, linear), (factor, 4)))                                                       \
    X(rope_partial, MODEL, OPS_DTYPE, (rope, r, 2, 2, 64, (rotary_dim, 32), (interleaved, 0), (scaling, yarn), (factor, 4.0f), (original_length, 64), (beta_fast, 4)))                                \
    X(rope_interleaved, MODEL, OPS_DTYPE, (rope, r, 2, 1, 32, (interleaved, 1), (base, 500000.0f), (scaling, llama3), (factor, 8), (original_length, 8192)))          \
    X(rope_interleaved_partial, MODEL, OPS_DTYPE, (rope, r, 3, 1, 64, (interleaved, 1), (rotary_dim, 24), (scaling, llama3), (factor, 32), (original_length, 96), (low_freq_factor, 0.5f), (high_freq_factor, 3)))             \
    X(rope_last, MODEL, OPS_DTYPE, (rope, r, 2, 1, 48, (first, 32), (base, 500))) \
    X(rope_between, MODEL, OPS_DTYPE, (rope, r, 2, 1, 64, (first, 8), (rotary_dim, 24), (interleaved, 1), (value_dim, 64))) \
    X(rope_last_odd, MODEL, OPS_DTYPE, (linear, l, 37, 33), (rope, r, 3, 0, 11, (first, 3), (rotary_dim, 6))) \
    X(rope_odd, MODEL, OPS_DTYPE, (linear, l, 37, 30), (rope, r, 3, 1, 6, (rotary_dim, 4)))                               \
    X(rope_odd_interleaved, MODEL, OPS_DTYPE, (linear, l, 37, 30), (rope, r, 3, 1, 6, (rotary_dim, 4), (interleaved, 1)), (bias, b, 30)) \
    X(head_norm_16, MODEL, OPS_DTYPE, (bias, b, 128), (head_norm, n, 4, 2, 16, (eps, 1e-3f)))                 \
    X(head_norm_odd, MODEL, OPS_DTYPE, (linear, l, 37, 35), (head_norm1p, n, 3, 1, 7))                      \
    X(head_norm_rope_128, MODEL, OPS_DTYPE, (head_norm, n, 3, 1, 128), (rope, r, 3, 1, 128, (base, 150000), (scaling, yarn), (factor, 32), (original_length, 4096), (truncate, 0), (attention_factor, 1.5f)), (attention, a, 3, 1, 128)) \
    X(head_norm_partial, MODEL, OPS_DTYPE, (head_norm1p, n, 1, 1, 64), (rope, r, 1, 1, 64, (rotary_dim, 32)), (bias, b, 192)) \
    X(head_norm_interleaved, MODEL, OPS_DTYPE, (head_norm, n, 5, 2, 16, (eps, 0)), (rope, r, 5, 2, 16, (interleaved, 1), (rotary_dim, 12), (scaling, llama3), (factor, 8), (original_length, 32))) \
    X(head_norm_rope_odd, MODEL, OPS_DTYPE, (linear, l, 37, 57), (head_norm, n, 1, 1, 19), (rope, r, 1, 1, 19, (rotary_dim, 10))) \
    X(head_norm_rope_512, MODEL, OPS_DTYPE, (head_norm, n, 2, 1, 512), (rope, r, 2, 1, 512, (rotary_dim, 496))) \
    X(head_norm_500, MODEL, OPS_DTYPE, (linear, l, 37, 1500), (head_norm1p, n, 1, 1, 500)) \
    X(olmo2, MODEL, OPS_DTYPE, (linear, l, 40, 128), (rmsnorm, q, 128, (columns, 64)), (rmsnorm, k, 128, (first, 64), (columns, 32)), (rope, r, 4, 2, 16), (attention, a, 4, 2, 16), (linear, o, 64, 40)) \
    X(mla, MODEL, OPS_DTYPE, (fork, x), (linear, q_a, 48, 32), (rmsnorm, q_n, 32), (linear, q_b, 32, 2 * 48), (fork, q), (load, x), (linear, kv_a, 48, 40), \
        (rmsnorm, kv_n, 40, (columns, 24)), (fork, c), (slice, k_r, 24, 16), (fork, k_rope), (load, c), (slice, c_kv, 0, 24), (fork, kv), (linear, k_b, 24, 2 * 32), \
        (concat, k_all, k_rope, 16, (heads, 2), (front, 1)), (fork, k), (load, kv), (linear, v_b, 24, 2 * 32), (fork, v), (load, q), (concat, qk, k, 96), (concat, qkv, v, 64), \
        (rope, r, 2, 2, 48, (rotary_dim, 16), (value_dim, 32)), (attention, a, 2, 2, 48, (value_dim, 32)), (linear, o, 64, 40)) \
    X(gate_one, MODEL, OPS_DTYPE, (fork, x), (linear, g, 37, 1), (sigmoid, s), (fork, one), (load, x), (linear, l, 37, 53), (gate, by, one), (silu, a), (gate, again, one)) \
    X(gate_input, MODEL, OPS_DTYPE, (input, i, 1), (linear, l, 37, 40), (gate, by, i), (rmsnorm, n, 40))     \
    X(modulate_64, MODEL, OPS_DTYPE, (input, c, 2 * 64, (rows, sequences)), (layernorm_no_affine, n, 64), (modulate, m, c), (linear, l, 64, 40)) \
    X(dit, MODEL, (OPS_DTYPE, (width, 40)), (input, c, 24, (rows, sequences)), (fork, x), (load, c), (silu, a), (linear, ada, 24, 3 * 40 + 16), (bias, ada_b, 136), (fork, mod), (load, x), \
        (layernorm_no_affine, n, 40, (eps, 1e-6f)), (modulate, m, mod, (first, 8)), (linear, f1, 40, 64), (gelu, g), (linear, f2, 64, 40), (gate, by, mod, (first, 96)), (gate, again, mod), (add, x)) \
    X(modulate_wide, MODEL, OPS_DTYPE, (linear, l, 37, 520), (input, c, 1048, (rows, sequences)), (modulate, m, c, (first, 8))) \
    X(attention_64, MODEL, OPS_DTYPE, (attention, a, 2, 2, 64))                                             \
    X(attention_72, MODEL, OPS_DTYPE, (linear, l, 40, 4 * 72), (bias, b, 4 * 72), (rope, r, 2, 1, 72), (attention, a, 2, 1, 72), (linear, p, 144, 40)) \
    X(attention_72_all, MODEL, OPS_DTYPE, (attention, a, 2, 2, 72, (causal, 0), (dropout, 0.3f), (window_right, 9), (softcap, 1.1f), (alibi, 1), (sinks, 1))) \
    X(attention_8, MODEL, OPS_DTYPE, (attention, a, 4, 1, 8, (window_left, 9), (bias, heads), (bias_queries, 48))) \
    X(attention_136, MODEL, OPS_DTYPE, (linear, l, 40, 4 * 136), (attention, a, 2, 1, 136, (dropout, 0.2f)))  \
    X(attention_248, MODEL, OPS_DTYPE, (attention, a, 1, 1, 248, (causal, 0)))                               \
    X(attention_value_56, MODEL, OPS_DTYPE, (linear, l, 40, 3 * 24 + 56), (bias, b, 128), (attention, a, 2, 1, 24, (value_dim, 56), (softcap, 2.0f))) \
    X(attention_full, MODEL, OPS_DTYPE, (attention, a, 4, 2, 64, (causal, 0)))                                  \
    X(attention_128, MODEL, OPS_DTYPE, (linear, l, 64, 5 * 128), (attention, a, 3, 1, 128, (scale, 0.05f), (causal, 1)), (linear, p, 384, 40)) \
    X(attention_window, MODEL, OPS_DTYPE, (attention, a, 2, 1, 32, (window_left, 9), (alibi, 1)))                       \
    X(attention_band, MODEL, OPS_DTYPE, (linear, l, 64, 3 * 64), (attention, a, 1, 1, 64, (window_right, 5), (causal, 0), (window_left, 3))) \
    X(attention_softcap, MODEL, OPS_DTYPE, (linear, l, 64, 4 * 32), (attention, a, 2, 1, 32, (softcap, 0.8f), (window_left, 20)), (bias, b, 64)) \
    X(attention_dropout, MODEL, OPS_DTYPE, (bias, b, 4 * 32), (attention, a, 2, 1, 32, (dropout, 0.2f), (sinks, 1)), (bias, b2, 64), (dropout, d, 0.1f)) \
    X(attention_all, MODEL, OPS_DTYPE, (attention, a, 2, 2, 64, (causal, 0), (dropout, 0.3f), (window_right, 9), (softcap, 1.1f), (alibi, 1), (sinks, 1))) \
    X(attention_value, MODEL, OPS_DTYPE, (linear, l, 40, 3 * 32 + 48), (bias, b, 3 * 32 + 48), (attention, a, 2, 1, 32, (value_dim, 48), (dropout, 0.2f)), (linear, p, 96, 40)) \
    X(rope_value, MODEL, OPS_DTYPE, (linear, l, 40, 3 * 48 + 80), (rope, r, 2, 1, 48, (value_dim, 80), (rotary_dim, 32)), (attention, a, 2, 1, 48, (value_dim, 80))) \
    X(rope_attention, MODEL, OPS_DTYPE, (linear, l, TE_CUDA ? 264 : 64, 4 * 64), (rope, r, 2, 1, 64), (attention, a, 2, 1, 64)) \
    X(positions_53, MODEL, OPS_DTYPE, (bias, b, 53), (positions, p, 40, 53), (gelu, a))                     \
    X(positions_first, MODEL, OPS_DTYPE, (positions, p, 38, 64), (bias, b, 64))                             \
    X(positions_alone, MODEL, OPS_DTYPE, (positions, p, 64, 37))                                            \
    X(embedding_53, MODEL, OPS_DTYPE, (embedding, e, 11, 53))                                               \
    X(embedding_padding, MODEL, OPS_DTYPE, (embedding, e, 5, 40, (padding_idx, 3)), (bias, b, 40))           \
    X(embedding_tied_padding, MODEL, OPS_DTYPE, (embedding, e, 2, 24, (padding_idx, 0)), (rmsnorm, n, 24), (tied_linear, h, 24, 2), (cross_entropy, c, 2)) \
    X(embedding_64, MODEL, OPS_DTYPE, (embedding, e, 3, 64), (bias, b, 64))                                 \
    X(embedding_520, MODEL, OPS_DTYPE, (embedding, e, 1000, 520), (rmsnorm, n, 520))                        \
    X(cross_entropy_51, MODEL, OPS_DTYPE, (cross_entropy, c, 51))                                           \
    X(cross_entropy_64, MODEL, OPS_DTYPE, (linear, l, 37, 64), (cross_entropy, c, 64))                      \
    X(cross_entropy_2500, MODEL, OPS_DTYPE, (cross_entropy, c, 2500))                                       \
    X(smoothed_51, MODEL, OPS_DTYPE, (cross_entropy, c, 51, (label_smoothing, 0.1f)))                       \
    X(smoothed_2500, MODEL, OPS_DTYPE, (cross_entropy, c, 2500, (label_smoothing, 1)))                      \
    X(z_loss_64, MODEL, OPS_DTYPE, (linear, l, 37, 64), (cross_entropy, c, 64, (z_loss, 0.01f)))            \
    X(z_loss_smoothed_77, MODEL, OPS_DTYPE, (cross_entropy, c, 77, (z_loss, 1e-4f), (label_smoothing, 0.3f))) \
    X(tied, MODEL, OPS_DTYPE, (embedding, e, 61, 32), (positions, p, 48, 32), (layernorm, n, 32), (tied_linear, h, 32, 61), (cross_entropy, c, 61)) \
    X(gpt, MODEL, OPS_DTYPE, OPS_GPT(128, 512, 2))                                                          \
    X(gpt_unfused, UNFUSED, OPS_DTYPE, OPS_GPT(128, 512, 2))                                                \
    X(llama, MODEL, OPS_DTYPE, OPS_LLAMA(128, 344, 4, 2, 32))                                               \
    X(llama_unfused, UNFUSED, OPS_DTYPE, OPS_LLAMA(128, 344, 4, 2, 32))

// Wide rows, tested with few of them.
#define OPS_WIDE(X)                                                                                         \
    X(layernorm_4096, MODEL, OPS_DTYPE, (layernorm, n, 4096))                                               \
    X(rmsnorm_4096, MODEL, OPS_DTYPE, (fork, x), (rmsnorm, n, 4096), (add, x))                              \
    X(layernorm_12288, MODEL, OPS_DTYPE, (layernorm1p, n, 12288))                                           \
    X(rmsnorm_12288, MODEL, OPS_DTYPE, (rmsnorm, n, 12288))                                                 \
    X(bias_12288, MODEL, OPS_DTYPE, (bias, b, 12288), (swiglu, g))                                          \
    X(cross_entropy_50257, MODEL, OPS_DTYPE, (cross_entropy, c, 50257))

#define OPS_MODEL(name, how, dtype, ...) how(name, dtype, __VA_ARGS__)
#define OPS_SUBJECT(name, ...) &name##_subject,
OPS_BY_ROW(OPS_MODEL)
OPS_BY_SEQUENCE(OPS_MODEL)
OPS_WIDE(OPS_MODEL)

TEST_CASE("ops that treat each row alone", "[ops]") {
    for (const subject *s : {OPS_BY_ROW(OPS_SUBJECT)}) {
        check(*s, shape(1, 1));
        if (!brief()) check(*s, shape(7, 1));
        check(*s, shape(1, brief() && !TE_CUDA ? 35 : 131));
        check_gradients_of_reference(*s, shape(1, 3));
    }
}
TEST_CASE("ops that depend on the sequence", "[ops]") {
    for (const subject *s : {OPS_BY_SEQUENCE(OPS_SUBJECT)}) {
        check(*s, shape(1, 1));
        shape at(2, 7);
        at.position = 5, at.loss_from_dy = true;
        check(*s, at);
        if (!brief()) check(*s, shape(3, 33));
        shape small(2, 3);
        small.position = 2;
        check_gradients_of_reference(*s, small);
    }
}
TEST_CASE("wide rows", "[ops]") {
    for (const subject *s : {OPS_WIDE(OPS_SUBJECT)}) {
        if (!brief()) check(*s, shape(1, 1));
        check(*s, shape(1, brief() ? 3 : 19));
    }
}
