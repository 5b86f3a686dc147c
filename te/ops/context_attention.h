/* context_attention.h -- attention with the option (context, gather), (context, ring) or (context, all_to_all), which
 * splits each sequence over the ranks of a context group; and te_cp_take, which selects a rank's tokens. A program
 * includes te/context_parallel.h, which explains context parallelism.
 *
 * Do this:
 *     (attention, at, 32, 8, 128, (context, ring))
 */
#ifndef TE_OPS_CONTEXT_ATTENTION_H
#define TE_OPS_CONTEXT_ATTENTION_H

#include "impl/attention_cp_heads.h" /* te__cp_gather_run, te__cp_ring_run, te__cp_all_to_all_run */

/* Copies this rank's part of each sequence of tokens or labels, on the host. to: [batch, seq / ranks]; from: [batch,
 * seq]; seq: the length of a whole sequence; g: te_cp_group(&ctx). If seq is no multiple of 2 * ranks, writes nothing
 * and returns TE_ERROR_SHAPE. */
TE_API te_status te_cp_take(int32_t *to, const int32_t *from, int batch, int seq, const te_group *g, te_context *ctx) {
    TE_REQUIRE(to && from && g, ctx, TE_ERROR_NULL, "te_cp_take: a pointer is null");
    TE_REQUIRE(batch > 0 && seq > 0 && (g->size == 1 || seq % (2 * g->size) == 0), ctx, TE_ERROR_SHAPE,
               "te_cp_take: %d sequences of %d tokens are not shared out among %d ranks, each of which has two chunks",
               batch, seq, g->size);
    const te_cp_shard shard = {g->rank, g->size};
    const int rows = seq / g->size;
    for (int i = 0; i < batch; i++)
        for (int row = 0; row < rows; row++)
            to[(int64_t)i * rows + row] = from[(int64_t)i * seq + te_cp_position(shard, row, rows)];
    return TE_OK;
}

/* ---- the option of attention ------------------------------------------------------------------------------------- */

#define TE__CP_HEADER , /* a marker by which other headers see that this header is included */

#define TE__CP_WITHOUT(model, op, option)                                                                             \
    static_assert(!TE_HAS_OPTION(op, option),                                                                        \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) ": context does not go with " #option);
#define TE__CP_CHECK_OPTIONS(model, op)                                                                              \
    TE__CP_WITHOUT(model, op, dropout) TE__CP_WITHOUT(model, op, fp8) TE__CP_WITHOUT(model, op, bias)                \
    TE__CP_WITHOUT(model, op, relative_bias) TE__CP_WITHOUT(model, op, max_logit)                                    \
    static_assert((TE_ARG3(op, 0)) <= 256 && TE__VALUE_DIM(op, 1) <= 256,                                            \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) ": with context head_dim and value_dim are at most 256"); \
    static_assert((int)TE__CP_FORM(op) != (int)TE_CP_ring || TE__ALIBI(op) == 0,                                     \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) ": alibi needs (context, gather) or all_to_all");       \
    static_assert((int)TE__CP_FORM(op) == (int)TE_CP_all_to_all || (TE__CAUSAL(op)) ||                               \
                      (TE__WINDOW_LEFT(op) < 0 && TE__WINDOW_RIGHT(op) < 0 && TE__ALIBI(op) == 0),                   \
                  "te: " TE_STRING(model) ": " TE_CALLED(op)                                                         \
                      ": with (context, gather) or ring a window or alibi needs (causal, 1)");

/* TE__CP_KERNELS_<form>(direction, name, dtype, op) declares the kernels of a form (gather, ring, all_to_all);
 * te_cp_kernels says what the kernels first, rest and edge are for. The kernel `first` has the op's mask and sinks. The
 * kernels `rest` and `edge` lack the op's mask. They also lack the sinks, because the sinks of a query must be counted
 * only once. The kernel of all_to_all has a single kv head (te/ops/impl/attention_cp_heads.h). */
#define TE__CP_VARIANT_OF(op, left)                                                                                  \
    (left, TE_ATTENTION_ALL, TE__SOFTCAP(op), 0, 0, 0, 0, 0, 1, TE__BIAS_VARIANT(op), TE_OPTION(op, value_dim, 0), 0)
#define TE__CP_DEFINE(direction, name, dtype, op, variant)                                                           \
    TE_ATTENTION_##direction##_OF(name, dtype, (int)(TE_ARG1(op, 0)), (int)(TE_ARG2(op, 0)), (int)(TE_ARG3(op, 0)), \
                                  variant)
#define TE__CP_KERNELS_gather(direction, name, dtype, op) \
    TE__CP_DEFINE(direction, name##_first, dtype, op, TE__ATTENTION_VARIANT_OF(op, 0, 1, 0))
#define TE__CP_KERNELS_ring(direction, name, dtype, op)                                           \
    TE__CP_DEFINE(direction, name##_first, dtype, op, TE__ATTENTION_VARIANT_OF(op, 0, 1, 0))      \
    TE__CP_DEFINE(direction, name##_rest, dtype, op, TE__CP_VARIANT_OF(op, TE_ATTENTION_ALL))     \
    TE_IF_HAS(op, window_left, TE__CP_EDGE, TE_NOTHING)(direction, name, dtype, op)
#define TE__CP_EDGE(direction, name, dtype, op) \
    TE__CP_DEFINE(direction, name##_edge, dtype, op, TE__CP_VARIANT_OF(op, 0))
#define TE__CP_KERNELS_all_to_all(direction, name, dtype, op)                                                    \
    TE_ATTENTION_##direction##_OF(name##_first, dtype, (int)(TE_ARG1(op, 0)) / (int)(TE_ARG2(op, 0)), 1,         \
                                  (int)(TE_ARG3(op, 0)), TE__ATTENTION_VARIANT_OF(op, TE__VARLEN(op), 0, 0))
#define TE__CP_KERNELS(direction, name, dtype, op) \
    TE_JOIN1(TE__CP_KERNELS_, TE_OPTION(op, context, 0))(direction, name, dtype, op)

/* TE__CP_IF_RING expands to `yes` if the op has (context, ring), and TE__CP_IF_EDGE to `yes` if the op also has a
 * window; otherwise both expand to `no`. */
#define TE__CP_IF_RING(op, yes, no) TE_IF_MARKED(TE_JOIN1(TE__CP_RING_, TE_OPTION(op, context, 0)), yes, no)
#define TE__CP_RING_ring ,
#define TE__CP_IF_EDGE(op, yes, no) TE__CP_IF_RING(op, TE_IF_HAS(op, window_left, yes, no), no)
#define TE__CP_TABLE(name, op, scratch_bytes)                                                                       \
    static const te_cp_kernels name = {TE_JOIN2(te__cp_, TE_OPTION(op, context, 0), run), name##_first_launch,      \
                                       TE__CP_IF_RING(op, name##_rest_launch, 0),                                    \
                                       TE__CP_IF_EDGE(op, name##_edge_launch, 0), scratch_bytes};
#define TE__CP_FORWARD(name, dtype, op) TE__CP_KERNELS(FORWARD, name, dtype, op) TE__CP_TABLE(name, op, 0)
#define TE__CP_BACKWARD(name, dtype, op)                                                                             \
    TE__CP_KERNELS(BACKWARD, name, dtype, op)                                                                        \
    TE_API size_t name##_scratch_bytes(te_context *ctx, int64_t rows) {                                              \
        const size_t first = name##_first_scratch_bytes(ctx, rows);                                                  \
        const size_t rest = TE__CP_IF_RING(op, name##_rest_scratch_bytes(ctx, rows), 0);                             \
        const size_t edge = TE__CP_IF_EDGE(op, name##_edge_scratch_bytes(ctx, rows), 0);                             \
        return te_max(first, te_max(rest, edge));                                                                    \
    }                                                                                                                \
    TE__CP_TABLE(name, op, name##_scratch_bytes)

#endif
