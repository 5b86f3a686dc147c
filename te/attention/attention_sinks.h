/* attention_sinks.h -- the gradient of sinks: a learnt logit for each head that joins the sum under the softmax and
 * brings no value (gpt-oss, OpenAI 2025, arXiv 2508.10925). So the probabilities of a row's keys sum up to less than 1:
 * a head that finds nothing can stay silent.
 *
 *     forward:  lse = log(exp(sink) + sum_j exp(S_j)), P_j = exp(S_j - lse), p = exp(sink - lse), O = sum_j P_j V_j
 *     backward: dP_j / dsink = -P_j p, hence dsink = -sum over rows of p sum_j P_j (dO V_j)
 *               = -sum over rows of p delta, delta = rowsum(dO * O) as without; dropout drops no sink
 *
 * All else of backward follows from lse. Where the rows of a sequence lie in lse and delta, te_attention_args says.
 *
 * Do this, at file scope, then call te__attention_sinks behind the backward that has left delta:
 *     TE_ATTENTION_SINKS(block_attn_sinks, bf16, 12)        // name, dtype, heads
 *
 * Bytes: lse and delta once, 8 for each row and head, at the rate of memory.
 */
#ifndef TE_ATTENTION_SINKS_H
#define TE_ATTENTION_SINKS_H

#include "../core/math.h"   /* te_exp */
#include "attention_args.h" /* te_attention_args */

enum { TE_SINKS_THREADS = TE_CUDA ? 256 : 1, TE_SINKS_ROWS = 1024 /* of one block */ };

typedef struct te_attention_sinks {
    const void *sinks;       /* [heads], of the list's dtype */
    const float *lse, *delta;
    float *sum;              /* out: [blocks.x, heads], parts of the gradient */
    te_sequences of;
    int by_head;             /* lse and delta are [heads, rows]; 0: [sequences, heads, longest] */
} te_attention_sinks;
typedef te_status (*te_attention_sinks_fn)(te_context *ctx, te_grid grid, const te_attention_sinks *a);

/* Grid: (blocks of TE_SINKS_ROWS rows, heads). */
TE_FN void te__attention_sinks_body(const te_attention_sinks *a, te_block b, te_dtype dtype, int heads) {
    int group;
    te_lanes g = te_lanes_here(TE_SINKS_THREADS, &group);
    const int head = b.y, first = b.x * TE_SINKS_ROWS, rows = te_sequence_first(&a->of, a->of.count);
    const int end = rows - first < TE_SINKS_ROWS ? rows : first + TE_SINKS_ROWS;
    const float sink = te_load(a->sinks, head, dtype);
    float sum = 0;
    for (int row = first + g.id; row < end; row += g.count) {
        const int in = row % a->of.longest;
        const int64_t at = a->by_head ? (int64_t)head * a->of.rows + row
                                      : ((int64_t)(row / a->of.longest) * heads + head) * a->of.longest + in;
        sum -= te_exp(sink - a->lse[at]) * a->delta[at];
    }
    te_lanes_sum(&sum, 1, &g);
    if (g.id == 0) a->sum[(int64_t)b.x * heads + head] = sum;
}
#define TE_ATTENTION_SINKS(name, dtype, heads)             \
    TE_KERNEL(name, TE_SINKS_THREADS, te_attention_sinks,  \
        te__attention_sinks_body(te_args, te_at, TE_##dtype, heads))

/* Blocks that so many rows take. */
TE_API int te__attention_sinks_blocks(int64_t rows) { return (int)te_ceil_div(rows, TE_SINKS_ROWS); }
/* sum[blocks, heads] of a backward that has run with these arguments. varlen: its kernels take cu_seqlens. */
TE_API te_status te__attention_sinks(te_context *ctx, te_attention_sinks_fn launch, const te_attention_args *a,
                                     float *sum, int heads, int varlen) {
    te_attention_sinks s;
    memset(&s, 0, sizeof s);
    s.sinks = a->sinks, s.lse = a->lse, s.delta = a->delta, s.sum = sum, s.of = te__attn_sequences(a);
    s.by_head = a->cu_seqlens || (TE_CUDA && varlen);
    return launch(ctx, te_grid_of(te__attention_sinks_blocks(s.of.rows), heads), &s);
}

#endif
