/* attention.h -- (attention, name, heads, kv_heads, head_dim); options with defaults (causal, 1), (scale, 1 /
 * sqrt(head_dim)), (window_left, -1), (window_right, -1), (softcap, 0), (dropout, 0), (varlen, 0), (alibi, 0), (sinks,
 * 0), (fp8, 0), (value_dim, head_dim), (values_in_keys, 0), (context, 0), and those of score_bias.h: (bias, heads) or
 * (bias, shared), (relative_bias, buckets), (max_logit, 0)
 *
 * Computes softmax(scale q k^T) v on packed rows [q of all heads, k of all kv_heads, v of all kv_heads], which have
 * (heads + 2 * kv_heads) * head_dim columns; a row of the output has heads * head_dim columns. kv_heads must divide
 * heads; if it is smaller than heads, this is grouped-query attention. te_batch passes the number of sequences (batch)
 * and their length (seq). The softmax is computed online (Milakov & Gimelshein 2018; Dao 2023): the matrix of scores is
 * never stored, so the memory grows only linearly with the number of rows. For backward, forward saves the op's input,
 * its output, and the log-sum-exp of each row and head.
 *
 * Do this:
 *     (linear, qkv, 768, 3 * 768), (attention, attn, 12, 12, 64), (linear, proj, 768, 768), ...
 *     (attention, attn, 32, 8, 128, (window_left, 4095), (softcap, 50.0f))
 * The options are described below. The kernels are in te/attention/attention_kernels.h.
 */
#ifndef TE_OPS_ATTENTION_H
#define TE_OPS_ATTENTION_H

#include "../cache/impl/cache_tables.h" /* te_cache, te__cache_layer_of */
#include "../attention/attention_kernels.h" /* TE_ATTENTION_FORWARD, TE_ATTENTION_BACKWARD, TE_ATTENTION_FORWARD_FP8 */
#include "../plan/impl/gradients.h"              /* te_defer_column_sum */
#include "../plan/impl/storage.h"                    /* te__output_of, te__finds_amax, te__policy */
#include "../plan/impl/executor_state.h"              /* te__scratch */
#include "residual.h"                           /* te__load_add */
#include "score_bias.h"                     /* te_attention_options, te_score_bias_kernels */

/* ---- options -----------------------------------------------------------------------------------------------------
 * window_left, window_right: query i sees the keys from i - window_left to i + window_right; -1 means that there is no
 * bound on that side. Causal attention has a window_right of 0. A sliding window of W tokens (Beltagy et al. 2020;
 * Jiang et al. 2023, Mistral) is (window_left, W - 1). The kernels compute tiles of queries by tiles of keys. Forward
 * and backward skip a tile if none of its queries sees any of its keys, so a smaller window takes less time.
 *
 * softcap: a score s = scale q k^T becomes softcap * tanh(s / softcap) before the mask (Gemma 2, Gemma Team 2024);
 * 0 switches this off. The option costs two more instructions per score on the special function unit, which also
 * computes the exponentials.
 *
 * dropout: after the softmax, each attention weight becomes 0 with this probability, else it is divided by 1 - dropout
 * (Srivastava et al. 2014; Vaswani et al. 2017), as in te/ops/dropout.h. Philox generates the mask from (seed, draw,
 * op; sequence, head, query, key), so backward can recompute it. The mask does not depend on the number of ranks,
 * because `head` is the head's index among the heads of all ranks of the tensor group, and `sequence` is the sequence's
 * index among those of all replicas. There is one exception: with sequences of different lengths (te_batch.cu_seqlens)
 * each replica draws its own mask. Inference drops nothing.
 *
 * (alibi, 1): slope * |i - j| is subtracted from the score of query i and key j, after softcap; each head has a
 * constant slope (Press, Smith & Lewis 2022; te/attention/attention_options.h). The option costs two instructions per
 * score.
 *
 * (sinks, 1): the op has a parameter `sinks`, one learnt logit for each head. The exponential of the logit is added to
 * the denominator of the softmax; no value vector belongs to it (gpt-oss, OpenAI 2025;
 * te/attention/attention_kernels.h). te_model_randomize sets `sinks` to 0.
 *
 * value_dim: the head size of v if it differs from the head size of q and k. It may be 1 to 512; on CUDA in bf16 and
 * f16 it must be a multiple of 8. DeepSeek-V2 and V3 (DeepSeek-AI 2024, MLA) have a head_dim of 192 and a value_dim of
 * 128. With value_dim, a packed row has (heads + kv_heads) * head_dim + kv_heads * value_dim columns, and a row of the
 * output heads * value_dim. rope also has this option; head_norm does not have it and requires heads of one size.
 * Attention whose heads are split over a tensor group does not accept the option, because the parts q, k and v that the
 * GEMM in front computes would have different sizes.
 *
 * (values_in_keys, 1): a packed row has no v. The value of a token is the first value_dim columns of its key, so the
 * cache holds only keys. This is multi-head latent attention in its absorbed form (head_linear.h), with one kv head
 * whose key is the latent vector followed by the part that rope rotates (head_dim 576, value_dim 512). The head size
 * may be up to 1024, on CUDA up to 640. The option exists only for inference.
 *
 * (varlen, 1): te_batch.cu_seqlens, the boundaries of sequences of different lengths, may be given; each sequence then
 * attends only to itself. The option is fixed at compile time, because the kernels without it, which support only
 * sequences of equal length, are smaller and a little faster.
 *
 * (cache, 1): in inference, te_batch.cache may be given, which holds the keys and values of earlier tokens (te_cache).
 * With (cache, int8) or (cache, e4m3) the cache holds keys and values rounded to 8 bits, with a scale in f32 for each
 * row and head.
 *
 * (fp8, 1): forward and inference round q, k and v to e4m3, with a scale for each head, and also round the attention
 * weights to e4m3 (te/attention/impl/attention_fp8.h). Backward uses the unrounded q, k and v, which are in bf16 or
 * f16, the dtype of the op list. head_dim must be 64, 128 or 256, a call may have up to 1024 sequences, and the only
 * other options allowed are causal, scale and the window. On CUDA the option needs compute capability 9.0 (sm_90a); on
 * other GPUs a call returns an error. At most sizes FP8 attention, including the two passes that quantize q, k and v,
 * takes longer than attention in bf16 (attention_sm90_forward_fp8.h). */

/* The options (context, gather), (context, ring) and (context, all_to_all): each sequence is split over several ranks
 * (context parallelism). A program with one of these options must include te/context_parallel.h. */

#define TE_OP_attention (attention, custom)
#define TE_SHAPES_attention(op) (3)
#define TE_IN_attention(op)                                                    \
    (((int)(TE_ARG1(op, 0)) + (int)(TE_ARG2(op, 0))) * (int)(TE_ARG3(op, 0)) + \
        (int)(TE_ARG2(op, 0)) * (int)TE__STORED_VALUE_DIM(op, TE_ARG3(op, 0)))
#define TE_OUT_attention(op, in) ((int)(TE_ARG1(op, 0)) * (int)TE__VALUE_DIM(op, TE_ARG3(op, 0)))
#define TE__VALUE_DIM(op, head_dim) (TE_OPTION(op, value_dim, head_dim))
#define TE__VALUES_IN_KEYS(op) (TE_OPTION(op, values_in_keys, 0))
#define TE__STORED_VALUE_DIM(op, head_dim) (TE__VALUES_IN_KEYS(op) ? 0 : (int)TE__VALUE_DIM(op, head_dim))
#define TE_FLAGS_attention(op) (TE_SAVES_INPUT | TE_SAVES_OUTPUT | (TE_HAS_OPTION(op, dropout) ? TE_DRAWS : 0) | \
    (TE__VARLEN(op) ? TE_VARLEN : 0) | (TE__MAX_LOGIT(op) ? TE_OUTPUTS_MAX_LOGIT : 0) |                          \
    (TE__FP8(op) ? TE_ATTENDS_IN_FP8 : 0) | ((int)TE__CACHE_FORMAT(op) << TE_CACHE_FORMAT_SHIFT))
/* 1 if the op accepts an input with the layout `in`, else 0. A layout says how the ranks of a tensor group divide a
 * tensor. The heads cannot be split over a tensor group if the op has a score bias, because each rank would need the
 * part of the bias for its own heads. Nor can the heads be split if the op has value_dim: k and v then have different
 * widths, but the linear that computes them can split only parts of equal width (its option `parts`). */
#define TE_LAYOUT_FITS_attention(op, in)                                                             \
    ((int)(in) == (int)TE_LAYOUT_columns ? !TE_HAS_OPTION(op, value_dim) &&                          \
                                              TE__IF_SCORE_BIAS(op, 0, 1)                           \
                                        : (int)(in) == (int)TE_LAYOUT_replicated ||                        \
                                              ((int)(in) != (int)TE_LAYOUT_partial_sum && !TE__SINKS(op) && \
                                               TE__IF_SCORE_BIAS(op, 0, 1)))
#define TE_STATS_attention(op) (TE_ARG1(op, 0)) /* number of floats that forward saves for each row: the log-sum-exp of
                                                 * every head */
#define TE_TAKES_attention_alibi TE_INTEGER
#define TE_TAKES_attention_bias TE_TOKEN
#define TE_TAKES_attention_bias_keys TE_INTEGER
#define TE_TAKES_attention_bias_queries TE_INTEGER
#define TE_TAKES_attention_max_distance TE_INTEGER
#define TE_TAKES_attention_max_logit TE_INTEGER
#define TE_TAKES_attention_relative_bias TE_INTEGER
#define TE_TAKES_attention_tied TE_INTEGER
#define TE_TAKES_attention_cache TE_TOKEN
#define TE_TAKES_attention_causal TE_INTEGER
#define TE_TAKES_attention_context TE_TOKEN
#define TE_TAKES_attention_scale TE_NUMBER
#define TE_TAKES_attention_dropout TE_NUMBER
#define TE_TAKES_attention_fp8 TE_INTEGER
#define TE_TAKES_attention_sinks TE_INTEGER
#define TE_TAKES_attention_softcap TE_NUMBER
#define TE_TAKES_attention_value_dim TE_INTEGER
#define TE_TAKES_attention_values_in_keys TE_INTEGER
#define TE_SAME_values_in_keys_values_in_keys ,
#define TE_TAKES_attention_varlen TE_INTEGER
#define TE_TAKES_attention_window_left TE_INTEGER
#define TE_TAKES_attention_window_right TE_INTEGER
#define TE__CAUSAL(op) TE_OPTION(op, causal, TE_JOIN1(TE__CAUSAL_OF_, TE_FAMILY(op)))
#define TE__CAUSAL_OF_attention 1
#define TE__VARLEN(op) (TE_OPTION(op, varlen, 0))
#define TE__ALIBI(op) (TE_OPTION(op, alibi, 0))
/* Expands to `yes` if the op has (sinks, 1), else to `no`. The preprocessor must decide this, because sinks add a
 * parameter to the model's struct. */
#define TE__IF_SINKS(op, yes, no) TE_IF_MARKED(TE_JOIN1(TE__ENABLED_, TE_OPTION(op, sinks, 0)), yes, no)
#define TE__ENABLED_1 ,
#define TE__SINKS(op) TE__IF_SINKS(op, 1, 0)
/* Expands to `yes` if the op has (cache, 1), (cache, int8) or (cache, e4m3), and therefore has kernels that read keys
 * and values from a cache, else to `no`. */
#define TE__IF_CACHED(op, yes, no) TE_IF_MARKED(TE_JOIN1(TE__CACHE_IN_, TE_OPTION(op, cache, 0)), yes, no)
#define TE__CACHE_IN_1 ,
#define TE__CACHE_IN_int8 ,
#define TE__CACHE_IN_e4m3 ,
#define TE__CACHED(op) TE__IF_CACHED(op, 1, 0)
/* The op's te_cache_format. */
#define TE__CACHE_FORMAT(op) TE__IF_CACHED(op, TE_JOIN1(TE__CACHE_FORMAT_OF_, TE_OPTION(op, cache, 0)), \
                                           TE_CACHE_FORMAT_none)
#define TE__CACHE_FORMAT_OF_1 TE_CACHE_FORMAT_list
#define TE__CACHE_FORMAT_OF_int8 TE_CACHE_FORMAT_int8
#define TE__CACHE_FORMAT_OF_e4m3 TE_CACHE_FORMAT_e4m3
/* Expands to `yes` if the value of the option cache is valid (0, 1, int8 or e4m3), else to `no`. */
#define TE__IF_CACHE_KNOWN(op, yes, no) \
    TE__IF_CACHED(op, yes, TE_IF_MARKED(TE_JOIN1(TE__DISABLED_, TE_OPTION(op, cache, 0)), yes, no))
#define TE__DISABLED_0 ,
/* Expands to `yes` if the op has the option context (gather, ring or all_to_all) and te/context_parallel.h is included,
 * else to `no`. */
#define TE__IF_CP(op, yes, no) TE_IF_MARKED(TE__CP_HEADER, TE__IF_CP_OPTION, TE__IF_CP_NEVER)(op, yes, no)
#define TE__IF_CP_OPTION(op, yes, no) TE_IF_MARKED(TE_JOIN1(TE__CP_IN_, TE_OPTION(op, context, 0)), yes, no)
#define TE__IF_CP_NEVER(op, yes, no) no
#define TE__CP_IN_gather ,
#define TE__CP_IN_ring ,
#define TE__CP_IN_all_to_all ,
/* The op's te_cp_form. */
#define TE_CONTEXT_attention(op) (TE__CP_FORM(op))
#define TE__CP_FORM(op) TE__IF_CP_OPTION(op, TE_JOIN1(TE_CP_, TE_OPTION(op, context, none)), TE_CP_none)
#define TE__CP_CHECK(model, op)                                                                                      \
     static_assert(TE__IF_CP(op, 1, 0) == TE__IF_CP_OPTION(op, 1, 0),                                                \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": context needs te/context_parallel.h");              \
     static_assert(TE__IF_CP_OPTION(op, 1, TE_IF_MARKED(TE_JOIN1(TE__DISABLED_, TE_OPTION(op, context, 0)), 1, 0)),  \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": context must be 0, gather, ring or all_to_all");    \
     TE__IF_CP(op, TE__CP_CHECK_OPTIONS, TE_NOTHING)(model, op)
#define TE_PARAMS_attention(op, in, out) TE__ATTENTION_PARAMS(op, TE_ARG1(op, 0))
#define TE__WINDOW_LEFT(op) TE_OPTION(op, window_left, TE_ATTENTION_ALL)
#define TE__WINDOW_RIGHT(op) ((TE__CAUSAL(op)) ? 0 : (TE_OPTION(op, window_right, TE_ATTENTION_ALL)))
#define TE__SOFTCAP(op) ((float)(TE_OPTION(op, softcap, 0)))
#define TE__ATTENTION_DROPOUT(op) ((float)(TE_OPTION(op, dropout, 0)))
#define TE__IS_WINDOW(op, side) ((TE_OPTION(op, side, -1)) >= -1 && (TE_OPTION(op, side, -1)) <= TE_ATTENTION_MAX_SEQ)
#define TE_OPTIONS_attention(op) TE__OPTIONS_ATTENTION(op, TE_ARG1(op, 0), TE_ARG2(op, 0), TE_ARG3(op, 0))
#define TE__OPTIONS_ATTENTION(op, heads, kv_heads, head_dim)                                            \
    (te_attention_options, heads, kv_heads, head_dim, TE__CAUSAL(op), (float)(TE_OPTION(op, scale, 0)), \
        TE__WINDOW_LEFT(op), TE__WINDOW_RIGHT(op), TE__SOFTCAP(op), TE__ALIBI(op), TE__SINKS(op),       \
        TE__BIAS_VARIANT(op), TE__VALUE_DIM(op, head_dim), TE__STORED_VALUE_DIM(op, head_dim))
#define TE_CHECK_attention(model, op)                                                                                \
    (static_assert(TE__VARLEN(op) == 0 || TE__VARLEN(op) == 1,                                                       \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": varlen must be 0 or 1");                            \
     TE__CHECK_FP8(model, op, TE_ARG3(op, 0))                                                                        \
     TE__CHECK_CACHED(model, op)                                                                                     \
     TE__CP_CHECK(model, op)                                                                                         \
     TE__CHECK_VALUES_IN_KEYS(model, op)                                                                             \
     TE__CHECK_ATTENTION(model, op, TE_ARG1(op, 0), TE_ARG2(op, 0)))
#define TE__CHECK_VALUES_IN_KEYS(model, op)                                                                          \
     static_assert(TE__VALUES_IN_KEYS(op) == 0 || TE__VALUES_IN_KEYS(op) == 1,                                       \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": values_in_keys must be 0 or 1");                    \
     static_assert(!TE__VALUES_IN_KEYS(op) || (TE__VALUE_DIM(op, TE_ARG3(op, 0)) <= (TE_ARG3(op, 0)) &&              \
                                               (TE_ARG3(op, 0)) <= (int)TE_ATTENTION_MAX_LATENT_DIM),                \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                                        \
                       ": with values_in_keys head_dim is at most 1024 (CUDA: 640), value_dim at most head_dim");    \
     static_assert(!TE__VALUES_IN_KEYS(op) || TE_HAS_OPTION(op, scale),                                              \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                                        \
                       ": values_in_keys needs (scale, ..), that of the heads before the absorption");               \
     static_assert(!TE__VALUES_IN_KEYS(op) || !TE__IF_CP_OPTION(op, 1, 0),                                           \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": values_in_keys does not go with context");
#define TE__CHECK_CACHED(model, op)                                                                                  \
     static_assert(TE__IF_CACHE_KNOWN(op, 1, 0),                                                                     \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": cache must be 0, 1, int8 or e4m3");                 \
     static_assert(!TE__CACHED(op) || !TE__FP8(op),                                                                  \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": cache does not go with fp8");                       \
     static_assert(!TE__CACHED(op) || !TE_HAS_OPTION(op, bias),                                                      \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                                        \
                       ": cache does not go with a table of biases, whose queries are counted from the batch's first");
/* Compile-time checks of the options that both attention and cross_attention have. */
#define TE__CHECK_ATTENTION(model, op, heads, kv_heads)                                                              \
     TE__CHECK_SCORE_BIAS(model, op, heads)                                                                          \
     static_assert((heads) % (kv_heads) == 0,                                                                        \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": kv_heads does not divide heads");                   \
     static_assert(TE__VALUE_DIM(op, 1) >= 1 &&                                                                      \
                       TE__VALUE_DIM(op, 1) <= TE__ATTENTION_MAX_DIM(TE__VALUES_IN_KEYS(op)),                        \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": value_dim must be 1 to 512");                       \
     static_assert(!TE_CUDA || (int)model##_dtype == (int)TE_f32 || TE__VALUE_DIM(op, 8) % 8 == 0,                   \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                                        \
                       ": on CUDA in bf16 and f16 value_dim must be a multiple of 8");                               \
     static_assert((TE__CAUSAL(op)) == 0 || (TE__CAUSAL(op)) == 1,                                                   \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": causal must be 0 or 1");                            \
     static_assert(TE__ALIBI(op) == 0 || TE__ALIBI(op) == 1,                                                         \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": alibi must be 0 or 1");                             \
     static_assert((TE_OPTION(op, sinks, 0)) == TE__SINKS(op),                                                       \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": sinks must be 0 or 1");                             \
     static_assert(TE__IS_WINDOW(op, window_left) && TE__IS_WINDOW(op, window_right),                                \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": a window is 0 to 1048576 tokens, or -1 for all");   \
     static_assert(!(TE__CAUSAL(op)) || (TE_OPTION(op, window_right, -1)) <= 0,                                      \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": a window to the right needs (causal, 0)");          \
     TE_ASSERT_NUMBER(TE__SOFTCAP(op) >= 0 && TE__SOFTCAP(op) < 3e38f,                                               \
                      "te: " TE_STRING(model) ": " TE_CALLED(op) ": softcap must be a finite number of at least 0"); \
     TE_ASSERT_NUMBER(TE__ATTENTION_DROPOUT(op) >= 0 && TE__ATTENTION_DROPOUT(op) < 1,                               \
                      "te: " TE_STRING(model) ": " TE_CALLED(op) ": dropout must be at least 0 and less than 1");    \
     TE_ASSERT_NUMBER((TE_OPTION(op, scale, 1.0f)) > 0 && (TE_OPTION(op, scale, 1.0f)) < 3e38f,                      \
                      "te: " TE_STRING(model) ": " TE_CALLED(op) ": scale must be a finite positive number");        \
     static_assert((int)TE_ROWS_OUT(model, op) == (int)TE_ROWS_tokens,                                               \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) " needs a row for each token");                         \
     static_assert(!TE__CACHED(op) || TE__HAS_CACHED_ATTENTION,                                                      \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) ": (cache, ..) needs te/infer.h");

#define TE__ATTENTION(direction, name, model, dtype, op)                                                            \
    TE_ATTENTION_##direction##_OF(name, dtype, (int)(TE_ARG1(op, 0)), (int)(TE_ARG2(op, 0)), (int)(TE_ARG3(op, 0)), \
        TE__ATTENTION_VARIANT_OF(op, TE__VARLEN(op), 0, TE__ATTENTION_FP8_OUTPUT_##direction(model)))
/* Expands to the values of the op's options, for which the attention kernels are compiled. The order is that of
 * te/attention/attention_options.h. */
#define TE__ATTENTION_VARIANT_OF(op, varlen, cross, fp8_output)                                     \
    (TE__WINDOW_LEFT(op), TE__WINDOW_RIGHT(op), TE__SOFTCAP(op), TE__ATTENTION_DROPOUT(op), varlen, \
        TE__ALIBI(op), TE__SINKS(op), 0, cross, TE__BIAS_VARIANT(op), TE_OPTION(op, value_dim, 0), fp8_output, \
        0, TE__VALUES_IN_KEYS(op))
/* Declares the kernels that compute the gradients of an attention's parameters, namely of sinks and of the score
 * bias. */
#define TE__ATTENTION_PARAM_GRADS(name, dtype, op)                                                                \
    TE__ATTENTION_SINKS(name, dtype, op)                                                                          \
    TE__SCORE_BIAS_BACKWARD(name, dtype, op, (int)(TE_ARG1(op, 0)), (int)(TE_ARG2(op, 0)), (int)(TE_ARG3(op, 0)), \
        TE__ATTENTION_VARIANT_OF(op, TE__VARLEN(op), 0, 0))
#define TE__ATTENTION_SINKS(name, dtype, op) \
    TE__IF_SINKS(op, TE_ATTENTION_SINKS_GRAD, TE_NOTHING)(name##_sinks, dtype, (int)(TE_ARG1(op, 0)))
#define TE__ATTENTION_CACHED(name, model, dtype, op)                                                                \
    TE_ATTENTION_CACHED_OF(name##_cached, dtype, (int)(TE_ARG1(op, 0)), (int)(TE_ARG2(op, 0)),                     \
        (int)(TE_ARG3(op, 0)), TE__ATTENTION_CACHED_VARIANT(model, op))                                             \
/* Expands to the values of the options for the kernels that use a key-value cache: varlen is 1, dropout is 0, `cached`
 * is the format of the cache, and all other options are as in the op's declaration. The values are in the order of
 * te/attention/attention_options.h. */
#define TE__ATTENTION_CACHED_VARIANT(model, op)                                                                     \
    (TE__WINDOW_LEFT(op), TE__WINDOW_RIGHT(op), TE__SOFTCAP(op), 0, 1, TE__ALIBI(op), TE__SINKS(op), 0, 0,          \
        TE__BIAS_VARIANT(op), TE_OPTION(op, value_dim, 0), TE__ATTENTION_FP8_OUTPUT_FORWARD(model),         \
        TE__CACHE_FORMAT(op), TE__VALUES_IN_KEYS(op))
#define TE_CUSTOM_attention_forward(name, model, dtype, op)                                                \
    TE__IF_CACHED(op, TE__ATTENTION_CACHED, TE_NOTHING)(name, model, dtype, op)                         \
    TE__IF_FP8(op, TE__ATTENTION_FP8, TE__ATTENTION)(FORWARD, name, model, dtype, op)                   \
    TE__SCORE_BIAS_FORWARD(name, dtype, op, (int)(TE_ARG1(op, 0)))                                      \
    TE__IF_CP(op, TE__CP_FORWARD, TE_NOTHING)(name##_cp, dtype, op)                                     \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                          \
        return te__attention_forward(r, s, name##_launch, &name##_bias, TE__IF_FP8(op, &name##_fp8, 0), \
                                     TE__ATTENTION_FP8_OUTPUT_FORWARD(model),                           \
                                     TE__IF_CACHED(op, name##_cached_launch, 0),                        \
                                     TE__IF_CP(op, &name##_cp, 0));                                     \
    }
#define TE_CUSTOM_attention_backward(name, model, dtype, op)                                        \
    static_assert(!TE__VALUES_IN_KEYS(op), "te: " TE_STRING(model) ": " TE_CALLED(op)               \
                  ": values_in_keys is for inference: declare the list with TE_INFERENCE");        \
    TE__ATTENTION(BACKWARD, name, model, dtype, op)                                              \
    TE__ATTENTION_PARAM_GRADS(name, dtype, op)                                                   \
    TE__IF_CP(op, TE__CP_BACKWARD, TE_NOTHING)(name##_cp, dtype, op)                             \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                   \
        const te__attention_backward_kernels kernels = {                                         \
            TE_MEMBER(launch, name##_launch),                                                    \
            TE_MEMBER(scratch_bytes, name##_scratch_bytes),                                      \
            TE_MEMBER(sinks, TE__IF_SINKS(op, name##_sinks_launch, 0)),                          \
            TE_MEMBER(score_bias, &name##_bias),                                                 \
            TE_MEMBER(add, 0),                                                                   \
            TE_MEMBER(fp8_output, TE__ATTENTION_FP8_OUTPUT_BACKWARD(model)),                     \
            TE_MEMBER(cp, TE__IF_CP(op, &name##_cp, 0))};                                        \
        return te__attention_backward(r, s, &kernels, 0);                                        \
    }

/* ---- the option fp8 ---------------------------------------------------------------------------------------------- */

/* Expands to `yes` if the op has (fp8, 1), else to `no`. The preprocessor must decide this, because the option selects
 * other kernels. */
#define TE__IF_FP8(op, yes, no) TE_IF_MARKED(TE_JOIN1(TE__ENABLED_, TE_OPTION(op, fp8, 0)), yes, no)
#define TE__FP8(op) TE__IF_FP8(op, 1, 0)
#define TE__CHECK_FP8(model, op, head_dim)                                                                           \
     static_assert((TE_OPTION(op, fp8, 0)) == TE__FP8(op),                                                           \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": fp8 must be 0 or 1");                               \
     static_assert(!TE__FP8(op) || (head_dim) == 64 || (head_dim) == 128 || (head_dim) == 256,                       \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": with fp8 head_dim must be 64, 128 or 256");         \
     TE__FP8_WITHOUT(model, op, softcap) TE__FP8_WITHOUT(model, op, dropout) TE__FP8_WITHOUT(model, op, varlen)      \
     TE__FP8_WITHOUT(model, op, alibi) TE__FP8_WITHOUT(model, op, sinks) TE__FP8_WITHOUT(model, op, bias)            \
     TE__FP8_WITHOUT(model, op, relative_bias) TE__FP8_WITHOUT(model, op, max_logit)                                 \
     TE__FP8_WITHOUT(model, op, value_dim) TE__FP8_WITHOUT(model, op, values_in_keys)
#define TE__FP8_WITHOUT(model, op, option)                                                                           \
     static_assert(!TE__FP8(op) || !TE_HAS_OPTION(op, option),                                                       \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": fp8 does not go with " #option);
#define TE__ATTENTION_FP8(direction, name, model, dtype, op)                                  \
    TE_ATTENTION_##direction##_FP8(name, dtype, (int)(TE_ARG1(op, 0)), (int)(TE_ARG2(op, 0)), \
                                   (int)(TE_ARG3(op, 0)), TE__ATTENTION_VARIANT_OF(op, 0, 0,  \
                                       TE__ATTENTION_FP8_OUTPUT_##direction(model)))          \
    static const te_attention_fp8_kernels name##_fp8 = {name##_ready, name##_scratch_bytes};

typedef size_t (*te_attention_scratch_fn)(te_context *ctx, int64_t rows);

/* Functions for an attention with context parallelism, whose sequences are split over several ranks
 * (te/context_parallel.h). run: reserves workspace and, unless r->dry, computes the attention of this rank's rows of
 * all sequences of the batch (for the layout of lse and delta see te__cp_stats_layout). first, rest, edge: each
 * launches a kernel for one block of keys. The kernel `first` applies the op's mask. The kernel `rest` has no mask:
 * every query sees all keys of the block. The kernel `edge` is for as many keys as queries: query i sees the block's
 * keys i, i + 1, .. to the last. rest and edge are null if the op does not need these kernels. scratch_bytes: returns
 * the bytes of scratch memory that each of the three launches needs in backward. */
typedef struct te_cp_kernels {
    te_status (*run)(te_run *r, const te_op *op, const te_attention_args *a, const struct te_cp_kernels *k);
    te_attention_launch_fn first, rest, edge;
    te_attention_scratch_fn scratch_bytes;
} te_cp_kernels;
/* Returns whether the sequences of an attention with the kernels k are split over several ranks. A dry run that only
 * measures memory has no batch. In a dry run without a batch, sequences count as split if the context group has several
 * ranks, because split sequences need more workspace. */
TE_API int te__cp_splits(const te_run *r, const te_cp_kernels *k) {
    return k && te_cp_group(r->ctx)->size > 1 && (!r->batch || r->batch->context);
}
TE_API te_status te__cp_check(const te_run *r, const te_op *op, const te_cp_kernels *k) {
    const int ranks = te_cp_group(r->ctx)->size, kv_heads = ((const te_attention_options *)op->options)->kv_heads;
    if (!r->batch || !r->batch->context || ranks == 1) return TE_OK;
    TE_REQUIRE(k, r->ctx, TE_ERROR_STATE,
               "%s: batch.context is 1, and attention %s was declared without (context, gather), ring or all_to_all",
               r->plan->name, op->name);
    TE_REQUIRE(!r->batch->cu_seqlens || op->context == TE_CP_all_to_all, r->ctx, TE_ERROR_VALUE,
               "%s: batch.context does not go with batch.cu_seqlens, unless attention %s has (context, all_to_all)",
               r->plan->name, op->name);
    TE_REQUIRE(kv_heads % ranks == 0 || op->context != TE_CP_all_to_all, r->ctx, TE_ERROR_SHAPE,
               "%s: the %d kv_heads of attention %s are not shared out evenly among the %d ranks of a context group, "
               "as (context, all_to_all) needs; (context, ring) and gather do not", r->plan->name, kv_heads,
               op->name, ranks);
    return TE_OK;
}
/* In backward, te_cp_kernels.run stores lse and delta as [batch, heads, seq]. This function sets a->batch and a->seq to
 * the sizes of lse and delta, and returns which heads lse and delta contain. With all_to_all, a rank has some of the
 * heads for whole sequences. With gather or ring, a rank has all heads for two chunks of each sequence, and each chunk
 * counts as a sequence. */
TE_API te_attention_heads te__cp_stats_layout(te_attention_args *a, const te_run *r, const te_op *op) {
    const te_group *g = te_cp_group(r->ctx);
    te_attention_heads h = {0, op->stats, 1};
    if (op->context != TE_CP_all_to_all) return a->batch *= 2, a->seq /= 2, h;
    h.count = op->stats / g->size, h.first = g->rank * h.count, h.ranks = g->size;
    if (!a->cu_seqlens) a->seq *= g->size;
    return h;
}

/* The kernels that the backward of an attention launches. The kernels of the score bias are in a struct of their
 * own. */
typedef struct te__attention_backward_kernels {
    te_attention_launch_fn launch;
    te_attention_scratch_fn scratch_bytes; /* returns the bytes of scratch memory that `launch` needs for the given
                                            * number of rows */
    te_sinks_grad_fn sinks;                /* computes the gradient of the parameter `sinks`; null if the op has no
                                            * sinks */
    const te_score_bias_kernels *score_bias;
    /* launches the kernel that adds up the gradients of the keys and values of a cross_attention if several ops use the
     * same keys and values; null for attention */
    te__load_launch_fn add;
    int fp8_output;         /* 1 if the kernels that `launch` runs were declared with the option fp8_output */
    const te_cp_kernels *cp; /* null if the op has no option context */
} te__attention_backward_kernels;

/* Functions that belong to the kernels for (fp8, 1). ready: returns an error if the context's device cannot run these
 * kernels. scratch_bytes: returns the bytes of scratch memory that the kernels need for the given number of rows. */
typedef struct te_attention_fp8_kernels {
    te_status (*ready)(te_context *ctx);
    te_attention_scratch_fn scratch_bytes;
} te_attention_fp8_kernels;
TE_API te_status te__attention_fp8_begin(te_attention_args *a, te_run *r, const te_attention_fp8_kernels *fp8,
                                         int heads) {
    TE_TRY(te__scratch(r, &a->scratch, fp8->scratch_bytes(r->ctx, te__capacity_rows(r))));
    if (!r->dry || !r->batch) return TE_OK;
    TE_TRY(fp8->ready(r->ctx));
    return te__attention_check_fp8(r->ctx, a, heads, r->plan->name);
}

/* ---- FP8 recipes -------------------------------------------------------------------------------------------------
 * In a list of ops with an FP8 recipe the attention kernels do work that would otherwise take one more pass over a
 * tensor. In inference the kernels store their output in e4m3, as the operand of the next GEMM. In training, forward
 * computes the amax of the output, and backward computes the amax of dqkv. Each pass computes the amax only if the cast
 * of that tensor to FP8 needs it. */

/* 1 if attention's kernels are declared with the option fp8_output, with which the kernels can store their output in
 * FP8 or compute the output's amax. In backward this option makes the kernels 2 to 4% slower at some head sizes.
 * Therefore the backward kernels have the option only under fp8_current, the recipe that needs the amax of every
 * tensor. */
#define TE__ATTENTION_FP8_OUTPUT_FORWARD(model) ((int)model##_runs_fp8)
#define TE__ATTENTION_FP8_OUTPUT_BACKWARD(model) ((int)model##_recipe == (int)TE_RECIPE_fp8_current)

/* Returns whether the kernel of an attention stores its output in FP8. The kernel does so only in inference, and only
 * if the next GEMM is the only consumer of the output. */
TE_API int te__attention_stores_fp8(const te_run *r, const te_step *s, int fp8_output) {
    return fp8_output && r->pass == TE_INFER && r->plan->dtype != TE_f32 && !te__last_step(r, s) &&
           te__policy(r, s->op[0] + 1)->stored_by_producer;
}
TE_API te_status te__attention_fp8_output(te_value *y, te_attention_args *a, te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    const te_fp8_product *f = &r->param[i + 1]->fp8;
    TE_TRY(te__acquire(r, y, op->out_rows, op->out, TE_e4m3));
    if (f->scales) a->out_scale = f->scales->scale + f->x; /* in a dry run that only measures sizes, f->scales is
                                                            * null */
    return TE_OK;
}
/* Returns the address at which the kernel stores the amax of y, or null if the cast of y to FP8 does not need the amax.
 * y: the kernel's output, which is the operand of GEMM i. */
TE_API float *te__attention_amax(const te_run *r, const te_step *s, int i, te_value y, int fp8_output) {
    if (!fp8_output || r->dry || !y.data || r->plan->dtype == TE_f32 || te__last_step(r, s)) return 0;
    if (i < 0 || !te__finds_amax(r, i, y.dtype)) return 0;
    const te_fp8_product *f = &r->param[i]->fp8;
    return f->scales->amax + (r->pass == TE_BACKWARD ? f->dy : f->x);
}

/* ---- keys and values of cross_attention, which a fork or an input holds ------------------------------------------ */

/* If the op is a cross_attention, sets a->kv to the op's keys and values, and a->kv_seq to the number of keys of a
 * sequence. */
TE_API te_status te__attention_kv(te_attention_args *a, te_run *r, const te_op *op) {
    const te_attention_options *o = (const te_attention_options *)op->options;
    te_value kv;
    if (op->edge < 0) return TE_OK;
    TE_TRY(te__fork_value_of_width(&kv, r, op, o->kv_heads * (o->head_dim + o->value_dim)));
    TE_TRY(te__convert_value(&kv, r, r->plan->dtype));
    a->kv = kv.data, a->kv_seq = r->batch ? (int)(kv.rows / a->batch) : 0;
    return TE_OK;
}
/* The gradient of the keys and values of a cross_attention. computed: the gradient that this op's kernels write, in the
 * dtype of the op list. previous: the sum of the gradients from the uses of the same fork that are later in the op
 * list. target: computed + previous, which is stored in the caller's tensor or as the gradient of the fork. */
typedef struct te__attention_dkv { te_value target, computed, previous; } te__attention_dkv;
TE_API te_status te__attention_dkv_begin(te__attention_dkv *g, te_run *r, const te_op *op) {
    const te_attention_options *o = (const te_attention_options *)op->options;
    g->target = g->computed = g->previous = te__no_value();
    if (op->edge < 0) return TE_OK;
    const te_op *fork = &r->plan->op[op->edge];
    const int first = te__is_last_use(r->plan, (int)(op - r->plan->op)), is_input = (fork->flags & TE_IS_INPUT) != 0;
    const te_value like = te__fork_value_like(r, op, o->kv_heads * (o->head_dim + o->value_dim));
    if (is_input) TE_TRY(te__edge_tensor(&g->target, r, fork, like, 1));
    else TE_TRY(te__acquire(r, &g->target, fork->out_rows, like.cols, like.dtype));
    if (!g->target.data) return TE_OK; /* the caller does not want this gradient */
    if (!first) g->previous = is_input ? g->target : r->edge[op->edge];
    if (first) return te__begin_converted(&g->computed, &g->target, r, r->plan->dtype);
    g->computed = te__value_of(0, r->plan->dtype, like.rows, like.cols);
    return te__scratch(r, &g->computed.data,
                      (size_t)(te__capacity_rows(r) * like.cols) * te_dtype_bytes(g->computed.dtype));
}
TE_API te_status te__attention_dkv_end(te__attention_dkv *g, te_run *r, const te_op *op, te__load_launch_fn add) {
    if (!g->target.data) return TE_OK;
    if (!g->previous.data) TE_TRY(te__end_converted(&g->target, &g->computed, r));
    else {
        TE_TRY(te__convert_value(&g->computed, r, g->target.dtype));
        TE_TRY(te__load_add(r, g->target, g->previous.data, g->computed, add));
    }
    if (!(r->plan->op[op->edge].flags & TE_IS_INPUT)) te__set_edge(r, op->edge, g->target);
    return TE_OK;
}

/* ---- forward and backward ---------------------------------------------------------------------------------------- */

/* Sets the arguments of dropout and ALiBi: the random state, and, in a->whole, the position of this rank's heads among
 * the heads of all ranks and replicas. */
TE_API void te__attention_set_heads(te_attention_args *a, const te_run *r, const te_op *op) {
    const int ranks = op->layout == TE_LAYOUT_columns ? r->tensor->size : 1;
    const int varies = r->batch && r->batch->cu_seqlens, replica = r->data->rank;
    if (op->flags & TE_DRAWS)
        a->rng = r->rng, a->id = (uint32_t)(op - r->plan->op) + (varies ? (uint32_t)replica * TE_MAX_OPS : 0);
    a->whole.more = op->stats * (ranks - 1);
    a->whole.first = (varies ? 0 : (int)(replica * r->sequences) * op->stats * ranks) +
                     (ranks > 1 ? op->stats * r->tensor->rank : 0);
}
TE_API te_attention_args te__attention_args(const te_run *r, const te_op *op) {
    const te_attention_options *o = (const te_attention_options *)op->options;
    te_attention_args a;
    memset(&a, 0, sizeof a);
    a.scale = o->scale != 0 ? o->scale : 1.0f / sqrtf((float)o->head_dim);
    if (o->sinks) a.sinks = r->param[op - r->plan->op] ? r->param[op - r->plan->op]->data : 0;
    if ((op->flags & TE_DRAWS) || o->alibi) te__attention_set_heads(&a, r, op);
    if (r->batch) {
        const te_sequences s = te__sequences_of(r);
        a.cu_seqlens = s.first, a.batch = s.count, a.seq = s.max_seqlen, a.rows = s.rows;
    }
    return a;
}
/* Sets a->cache to the layer of the batch's key-value cache that belongs to op i. cached: the function that launches
 * the kernels for a cache; null if the op was declared without the option cache. */
TE_API te_status te__attention_set_cache(te_attention_args *a, const te_run *r, int i,
                                         te_attention_launch_fn cached) {
    const te_cache *c = r->batch->cache;
    const char *name = r->plan->name, *op = r->plan->op[i].name;
    TE_REQUIRE(cached, r->ctx, TE_ERROR_STATE,
               "%s: the batch has a cache, and attention %s was declared without (cache, 1)", name, op);
    TE_TRY(te__cache_check_ready(c, name, r->ctx));
    const int rows = te__sequences_of_batch(r->batch).rows;
    TE_REQUIRE(c->begun_rows == rows, r->ctx, TE_ERROR_STATE,
               "%s: the batch has %d rows, te_cache_begin was last called for %d; call it once for each batch, before "
               "the models",
               name, rows, c->begun_rows);
    const te_cache_layer *layer = te__cache_layer_of(c, r->model, i);
    TE_REQUIRE(layer, r->ctx, TE_ERROR_STATE, "%s: the batch's cache was made without this model's attention %s", name,
               op);
    TE_REQUIRE(a->batch <= c->t.sequences, r->ctx, TE_ERROR_SHAPE, "%s: %d sequences, the cache has %d", name, a->batch,
               c->t.sequences);
    a->cache = te__cache_of_layer(c, layer);
    return TE_OK;
}
/* Runs the forward of an attention. The kernels read and write tensors in the dtype of the op list, except that their
 * output may be in FP8. fp8_output: the value of the option fp8_output with which the kernels were declared. cached:
 * the function that launches the kernels for a key-value cache; null if the op has no option cache. cp: the kernels for
 * sequences that are split over several ranks; null if the op has no such kernels. */
TE_API te_status te__attention_forward(te_run *r, const te_step *s, te_attention_launch_fn launch,
                                       const te_score_bias_kernels *bias, const te_attention_fp8_kernels *fp8,
                                       int fp8_output, te_attention_launch_fn cached, const te_cp_kernels *cp) {
    const int splits = te__cp_splits(r, cp);
    const int i = s->op[0];
    const te_op *op = &r->plan->op[i];
    te_attention_args a = te__attention_args(r, op);
    te_value y, qkv = r->current, out;
    float *max_logit;
    TE_TRY(te__cp_check(r, op, cp));
    TE_TRY(te__convert_value(&qkv, r, r->plan->dtype));
    if (!splits && te__attention_stores_fp8(r, s, fp8_output)) {
        TE_TRY(te__attention_fp8_output(&y, &a, r, i));
        out = y;
    } else {
        TE_TRY(te__output(&y, r, s, i));
        TE_TRY(te__begin_converted(&out, &y, r, r->plan->dtype));
    }
    TE_TRY(te__attention_kv(&a, r, op));
    a.out = out.data, a.lse = r->stats[i], a.qkv = qkv.data;
    if (r->dry && r->batch) {
        const int sinks = ((const te_attention_options *)op->options)->sinks;
        const int varlen = (op->flags & TE_VARLEN) || r->batch->cache;
        TE_TRY(te__attention_check(r->ctx, &a, op->stats, varlen, sinks, r->plan->name));
        TE_TRY(te__attention_check_cross(r->ctx, &a, op->stats, op->edge >= 0, r->plan->name));
    }
    const int is_cached = r->batch && r->batch->cache && op->edge < 0;
    if (is_cached) TE_TRY(te__attention_set_cache(&a, r, i, cached));
    if (fp8) TE_TRY(te__attention_fp8_begin(&a, r, fp8, op->stats));
    a.amax = splits ? 0 : te__attention_amax(r, s, i + 1, y, fp8_output);
    TE_TRY(te__score_bias_prepare(&a, r, op, bias, s->kernels));
    TE_TRY(te__max_logit_begin(&a, &max_logit, r, op));
    if (splits) TE_TRY(cp->run(r, op, &a, cp));
    else if (!r->dry) TE_TRY((is_cached ? cached : launch)(r->ctx, &a));
    if (!r->dry && max_logit)
        TE_TRY(te__attention_max_logit(r->ctx, bias->max_logit, &a, max_logit, op->stats,
                                       (op->flags & TE_VARLEN) != 0));
    TE_TRY(te__end_converted(&y, &out, r));
    te__set_current(r, y);
    r->current.amax = a.amax;
    if (op->edge >= 0) te__release_fork(r, i);
    return TE_OK;
}
/* Runs the backward of an attention. sum: memory for partial sums of the columns of dqkv, from which the gradient of a
 * bias op in front of the attention is computed; null if no bias is in front. */
TE_IF_USED TE_API te_status te__attention_backward(te_run *r, const te_step *s,
                                                   const te__attention_backward_kernels *kernels, float *sum) {
    const int i = s->op[0];
    const te_op *op = &r->plan->op[i];
    const size_t bytes = r->ctx ? kernels->scratch_bytes(r->ctx, te__capacity_rows(r)) : 0;
    te_attention_args a = te__attention_args(r, op);
    te_value y, qkv = te__input_of(r, i), out = te__output_of(r, i), dout = r->current, dqkv;
    void *delta = 0;
    const int splits = te__cp_splits(r, kernels->cp);
    te__attention_dkv dkv;
    TE_TRY(te__gradient(&y, r, s, i));
    const int learns = op->params > 0; /* 1 if the op has parameters (sinks, bias). Their gradients are computed from
                                        * lse and from delta, the sum of dy * y for each row and head */
    /* the kernels must run even if the caller wants no dx, because these kernels also compute the gradients of the op's
     * parameters and of a bias op in front of the attention */
    if ((s->count > 1 || learns) && te__last_step(r, s)) {
        te_value own;
        TE_TRY(te__acquire(r, &own, op->in_rows, op->in, op->in_dtype));
        if (!y.data) y = own;
    }
    if (y.data) {
        TE_TRY(te__convert_value(&qkv, r, r->plan->dtype));
        TE_TRY(te__convert_value(&out, r, r->plan->dtype));
        TE_TRY(te__convert_value(&dout, r, r->plan->dtype));
        TE_TRY(te__begin_converted(&dqkv, &y, r, r->plan->dtype));
        TE_TRY(te__scratch(r, &delta, (size_t)(te__capacity_rows(r) * op->stats) * sizeof(float)));
        if (bytes) TE_TRY(te__scratch(r, &a.scratch, bytes));
        a.out = out.data, a.lse = r->stats[i], a.qkv = qkv.data;
        a.dqkv = dqkv.data, a.dout = dout.data, a.delta = (float *)delta, a.sum = sum;
        TE_TRY(te__attention_kv(&a, r, op));
        TE_TRY(te__attention_dkv_begin(&dkv, r, op));
        a.dkv = dkv.computed.data;
        a.amax = splits ? 0 : te__attention_amax(r, s, s->op[s->count - 1] - 1, y, kernels->fp8_output);
        TE_TRY(te__score_bias_prepare(&a, r, op, kernels->score_bias, s->kernels));
        if (splits) TE_TRY(kernels->cp->run(r, op, &a, kernels->cp));
        else if (!r->dry) TE_TRY(kernels->launch(r->ctx, &a));
        te_attention_heads heads = {0, op->stats, 1}; /* the heads in lse and delta, from which the gradient of sinks is
                                                       * computed */
        if (splits) heads = te__cp_stats_layout(&a, r, op);
        TE_TRY(te__score_bias_backward(&a, r, op, kernels->score_bias));
        if (kernels->sinks) {
            float *parts = 0;
            TE_TRY(te_defer_column_sum(r, &parts, r->param[i], op->stats, te__attention_sinks_grad_blocks(r->tokens),
                                te__attention_sinks_grad_blocks(te__capacity_rows(r))));
            if (!r->dry && te_is_trained(r->param[i]))
                TE_TRY(te__attention_sinks_grad(r->ctx, kernels->sinks, &a, parts, op->stats, heads,
                                                !splits && (op->flags & TE_VARLEN) != 0));
        }
        TE_TRY(te__attention_dkv_end(&dkv, r, op, kernels->add));
        TE_TRY(te__end_converted(&y, &dqkv, r));
    }
    te__set_current(r, y);
    r->current.amax = a.amax;
    return TE_OK;
}

#endif
