/* attention_kernels.h -- attention over packed queries, keys and values, forward and backward, for both targets.
 * The [seq, seq] matrix of scores is never stored: softmax runs online, and backward computes it again from `lse`.
 * Milakov and Gimelshein 2018 (online softmax); Dao 2023 (FlashAttention-2); Ainslie et al. 2023 (grouped queries).
 *
 * Do this, at file scope, then call name##_launch:
 *     TE_ATTENTION_FORWARD(block_attn, bf16, 12, 12, 64, 1)             // name, dtype, heads, kv_heads, head_dim,
 *                                                                         causal
 *     TE_ATTENTION_BACKWARD(block_attn_backward, bf16, 12, 12, 64, 1)
 *     ... TE_TRY(block_attn_launch(ctx, &args));
 *
 * TE_ATTENTION_FORWARD_OF and TE_ATTENTION_BACKWARD_OF take the options of attention_form.h in the place of causal.
 *
 * <name>_scratch_bytes(ctx, rows) of a backward: scratch memory with which faster kernels run on compute capability
 * 9.0. <name>_sum_rows of a backward: rows that it sums up for te_attention_args.sum; 0: it does not (on the host, and
 * in f32). Any batch, seq >= 1 and head_dim <= 256; on CUDA in bf16 and f16 head_dim is a multiple of 16. Sums are
 * float and in a fixed order, so the same inputs give the same bits (unless te_context.attention_unrepeatable says
 * otherwise). Pointers are aligned to TE_ACCESS bytes, scale is positive.
 */
#ifndef TE_ATTENTION_KERNELS_H
#define TE_ATTENTION_KERNELS_H

#include "attention_args.h"      /* te_attention_args */
#include "attention_bias_line.h" /* TE_ATTENTION_BIAS_LINE: a relative bias by distance */
#include "attention_sinks.h"     /* TE_ATTENTION_SINKS: the gradient of sinks */
#include "attention_top.h"       /* TE_ATTENTION_TOP: the largest logit of each head */

#if TE_CUDA
#include "attention_bias_cuda.h"  /* TE_ATTENTION_DBIAS: the gradient of a bias */
#include "attention_cuda.h"       /* TE_ATTENTION_FORWARD_OF, _BACKWARD_OF: tensor cores, or float on CUDA cores */
#include "attention_hopper_fp8.h" /* TE_ATTENTION_FORWARD_FP8 (attention_fp8.h) */
#else
#include "attention_bias_host.h" /* the same in plain C */
#include "attention_fp8_host.h"  /* the same in plain C */
#include "attention_host.h"      /* that of the other formats */
#endif

#define TE_ATTENTION_FORWARD(name, dtype, heads, kv_heads, head_dim, causal)                              \
    static_assert((causal) == 0 || (causal) == 1, "te: attention: causal must be 0 or 1");                \
    TE_ATTENTION_FORWARD_OF(name, dtype, heads, kv_heads, head_dim, TE__ATTENTION_PLAIN(causal))
#define TE_ATTENTION_BACKWARD(name, dtype, heads, kv_heads, head_dim, causal)                             \
    static_assert((causal) == 0 || (causal) == 1, "te: attention: causal must be 0 or 1");                \
    TE_ATTENTION_BACKWARD_OF(name, dtype, heads, kv_heads, head_dim, TE__ATTENTION_PLAIN(causal))

#endif
