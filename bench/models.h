// models.h -- the two parts of a GPT block, and the blocks of GPT, Llama 3 8B and Qwen3 8B. block.cu times them by themselves, turns.cu
// alternately with PyTorch's.
#ifndef BENCH_MODELS_H
#define BENCH_MODELS_H

#include "te/te.h"

#define ATTENTION_PART(H, HEADS, P)                                                                                    \
    (fork, x1), (layernorm, ln1, H), (linear, qkv, H, 3 * (H)), (bias, qkv_b, 3 * (H)),                                \
    (attention, attn, HEADS, HEADS, (H) / (HEADS)), (linear, proj, H, H), (bias, proj_b, H), (dropout, drop1, P), (add, x1)
#define MLP_PART(H, F, P)                                                                                              \
    (fork, x2), (layernorm, ln2, H), (linear, fc1, H, F), (bias, fc1_b, F), (gelu, act), (linear, fc2, F, H),          \
    (bias, fc2_b, H), (dropout, drop2, P), (add, x2)

#define GPT_4096 ATTENTION_PART(4096, 32, 0.1f), MLP_PART(4096, 16384, 0.1f)
#define LLAMA_4096 TE_LLAMA_BLOCK(b, 4096, 14336, 32, 8, 128, 500000.0f)
#define QWEN3_4096 TE_QWEN3_BLOCK(b, 4096, 12288, 32, 8, 128, 1000000.0f)

TE_SEQUENTIAL(gpt4096, bf16, GPT_4096)

#endif
