/* cross_attention.h -- (cross_attention, name, kv, heads, kv_heads, head_dim); options with defaults (causal, 0),
 * (scale, 1 / sqrt(head_dim)), (window_left, -1), (window_right, -1), (softcap, 0), (dropout, 0), (alibi, 0), (sinks,
 * 0), (value_dim, head_dim), and those of score_bias.h: (bias, heads) or (bias, shared), (relative_bias, buckets),
 * (max_logit, 0)
 *
 * Computes softmax(scale q k^T) v. The queries of all heads are the op's input, [rows, heads * head_dim]. The keys and
 * values are the value of the fork or input `kv`, whose rows are [k of all kv_heads, v of all kv_heads]. The fork or
 * input may have another number of rows than the queries, as with the output of an encoder (Vaswani et al. 2017; Raffel
 * et al. 2020, T5). A row of the output has heads * head_dim columns. With the option value_dim, the head size of v, a
 * row of `kv` has kv_heads * (head_dim + value_dim) columns, and a row of the output has heads * value_dim.
 *
 * Do this: compute the queries, then keys and values from the encoder's output, and continue with the queries:
 *     (input, enc, 512, (rows, memory)), ...
 *     (linear, q, 512, 512), (fork, queries),
 *     (load, enc), (linear, kv, 512, 2 * 512), (fork, keys), (load, queries),
 *     (cross_attention, cross, keys, 8, 8, 64), ...
 * Each sequence of the batch attends to its own te_batch.memory_seq rows of the memory, which is here the encoder's
 * output. Backward stores the gradient of the memory in te_edge.grad. If the keys and values were computed beforehand,
 * pass them as (input, keys, 2 * 512, (rows, memory)), and leave out `enc` and the ops that compute the keys.
 *
 * The last query is at the position of the last key: with q queries and k keys, the causal mask and windows treat query
 * i as if it were at position i + k - q among the keys, and ALiBi counts distances from that position. A causal query
 * whose position is before the first key sees no key: its output is 0, and it has no gradient. The other options are
 * those of attention.h. Kernels: te/attention/impl/attention_cuda.h; on Hopper attention_sm90_forward.h, .._backward.h.
 */
#ifndef TE_OPS_CROSS_ATTENTION_H
#define TE_OPS_CROSS_ATTENTION_H

#include "attention.h" /* te__attention_forward, te__attention_backward */

#define TE_OP_cross_attention (cross_attention, custom)
#define TE_SHAPES_cross_attention(op) (4)
#define TE_IN_cross_attention(op) ((int)(TE_ARG2(op, 0)) * (int)(TE_ARG4(op, 0)))
#define TE_OUT_cross_attention(op, in) ((int)(TE_ARG2(op, 0)) * (int)TE__VALUE_DIM(op, TE_ARG4(op, 0)))
#define TE_FLAGS_cross_attention(op)                                                                \
    (TE_SAVES_INPUT | TE_SAVES_OUTPUT | TE_IS_CROSS | (TE_HAS_OPTION(op, dropout) ? TE_DRAWS : 0) | \
     (TE__MAX_LOGIT(op) ? TE_OUTPUTS_MAX_LOGIT : 0))
#define TE_LAYOUT_FITS_cross_attention(op, in) TE_LAYOUT_FITS_attention(op, in)
#define TE_STATS_cross_attention(op) (TE_ARG2(op, 0)) /* number of floats that forward saves for each row: the
                                                       * log-sum-exp of every head */
#define TE_PARAMS_cross_attention(op, in, out) TE__ATTENTION_PARAMS(op, TE_ARG2(op, 0))
#define TE_TAKES_cross_attention_alibi TE_INTEGER
#define TE_TAKES_cross_attention_bias TE_TOKEN
#define TE_TAKES_cross_attention_bias_keys TE_INTEGER
#define TE_TAKES_cross_attention_bias_queries TE_INTEGER
#define TE_TAKES_cross_attention_max_distance TE_INTEGER
#define TE_TAKES_cross_attention_max_logit TE_INTEGER
#define TE_TAKES_cross_attention_relative_bias TE_INTEGER
#define TE_TAKES_cross_attention_tied TE_INTEGER
#define TE_TAKES_cross_attention_causal TE_INTEGER
#define TE_TAKES_cross_attention_scale TE_NUMBER
#define TE_TAKES_cross_attention_dropout TE_NUMBER
#define TE_TAKES_cross_attention_sinks TE_INTEGER
#define TE_TAKES_cross_attention_softcap TE_NUMBER
#define TE_TAKES_cross_attention_value_dim TE_INTEGER
#define TE_TAKES_cross_attention_window_left TE_INTEGER
#define TE_TAKES_cross_attention_window_right TE_INTEGER
#define TE__CAUSAL_OF_cross_attention 0
#define TE_OPTIONS_cross_attention(op) TE__OPTIONS_ATTENTION(op, TE_ARG2(op, 0), TE_ARG3(op, 0), TE_ARG4(op, 0))
#define TE_EDGE_cross_attention(model, op) \
    (TE_FORK_INDEX(model, add, TE_FORK_OF(op)), TE_FORK_DTYPE(model, TE_FORK_OF(op)))
#define TE__FORK_ROWS_ARE(model, op, rows) ((int)TE_FORK_ROWS(model, TE_FORK_OF(op)) == (int)(rows))
#define TE_CHECK_cross_attention(model, op)                                                                      \
    (typedef int TE_FORK_USED(model, TE_FORK_OF(op));                                                            \
     static_assert((int)TE_FORK_WIDTH(model, TE_FORK_OF(op)) ==                                                  \
                       (int)(TE_ARG3(op, 0)) * ((int)(TE_ARG4(op, 0)) + (int)TE__VALUE_DIM(op, TE_ARG4(op, 0))), \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                                    \
                       " reads k and v of kv_heads (head_dim + value_dim), or of 2 kv_heads head_dim");          \
     static_assert(TE__FORK_ROWS_ARE(model, op, -1) || TE__FORK_ROWS_ARE(model, op, TE_ROWS_tokens) ||           \
                       TE__FORK_ROWS_ARE(model, op, TE_ROWS_memory),                                             \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) " reads keys and values of tokens or of memory");  \
     static_assert((int)TE_FORK_LAYOUT(model, TE_FORK_OF(op)) == (int)TE_LAYOUT_any ||                           \
                       (int)TE_LAYOUT_OUT(model, op) == (int)TE_LAYOUT_any ||                                    \
                       (int)TE_FORK_LAYOUT(model, TE_FORK_OF(op)) == (int)TE_LAYOUT_OUT(model, op),              \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                                    \
                       " reads keys and values that are sharded over the ranks otherwise than its queries");     \
     TE__CHECK_ATTENTION(model, op, TE_ARG2(op, 0), TE_ARG3(op, 0)))

#define TE__CROSS_ATTENTION(direction, name, dtype, op, fp8_output)                                                 \
    TE_ATTENTION_##direction##_OF(name, dtype, (int)(TE_ARG2(op, 0)), (int)(TE_ARG3(op, 0)), (int)(TE_ARG4(op, 0)), \
        TE__ATTENTION_VARIANT_OF(op, 0, 1, fp8_output))
#define TE_CUSTOM_cross_attention_forward(name, model, dtype, op)                                                    \
    TE__CROSS_ATTENTION(FORWARD, name, dtype, op, TE__ATTENTION_FP8_OUTPUT_FORWARD(model))                           \
    TE__SCORE_BIAS_FORWARD(name, dtype, op, (int)(TE_ARG2(op, 0)))                                                   \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                       \
        return te__attention_forward(r, s, name##_launch, &name##_bias, 0, TE__ATTENTION_FP8_OUTPUT_FORWARD(model),  \
                                     0, 0);                                                                          \
    }
#define TE_CUSTOM_cross_attention_backward(name, model, dtype, op)                                                   \
    TE__CROSS_ATTENTION(BACKWARD, name, dtype, op, 0)                                                                \
    TE__IF_SINKS(op, TE_ATTENTION_SINKS_GRAD, TE_NOTHING)(name##_sinks, dtype, (int)(TE_ARG2(op, 0)))                \
    TE__SCORE_BIAS_BACKWARD(name, dtype, op, (int)(TE_ARG2(op, 0)), (int)(TE_ARG3(op, 0)), (int)(TE_ARG4(op, 0)),    \
        TE__ATTENTION_VARIANT_OF(op, 0, 1, 0))                                                                       \
    TE_KERNEL(name##_add, TE_LOAD_THREADS, te_load_args,                                                             \
              te_load_sum(te_args, te_at, (te_dtype)TE_FORK_DTYPE(model, TE_FORK_OF(op))))                           \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                       \
        const te__attention_backward_kernels kernels = {                                                             \
            TE_MEMBER(launch, name##_launch),                                                                        \
            TE_MEMBER(scratch_bytes, name##_scratch_bytes),                                                          \
            TE_MEMBER(sinks, TE__IF_SINKS(op, name##_sinks_launch, 0)),                                              \
            TE_MEMBER(score_bias, &name##_bias),                                                                     \
            TE_MEMBER(add, name##_add_launch),                                                                       \
            TE_MEMBER(fp8_output, 0),                                                                                \
            TE_MEMBER(cp, 0)};                                                                                       \
        return te__attention_backward(r, s, &kernels, 0);                                                            \
    }

#endif
