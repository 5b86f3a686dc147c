/* attention_top.h -- the largest logit of each head, over all sequences and queries and the keys that they see: scores
 * as softmax gets them, with scale, softcap and biases, without sinks. It is what QK-clip reads (MuonClip; Kimi K2,
 * arXiv 2507.20534). Forward leaves the largest one of each row, and a kernel here takes the largest of those: a
 * maximum is the same in any order.
 *
 * Do this, at file scope, then call te__attention_top behind a forward that has left row_top:
 *     TE_ATTENTION_TOP(block_attn_top, 12)                           // name, heads
 *
 * Bytes: 4 for each row and head, twice; a block for each head, so some 10 us at 32768 rows.
 */
#ifndef TE_ATTENTION_TOP_H
#define TE_ATTENTION_TOP_H

#include "attention_args.h" /* te_attention_args */

enum { TE_TOP_THREADS = TE_CUDA ? 1024 : 1 };

typedef struct te_attention_top {
    const float *row_top;
    float *top;  /* out: [heads]; -inf for one that sees nothing */
    te_sequences of;
    int by_head; /* row_top is [heads, rows]; 0: [sequences, heads, longest] */
} te_attention_top;
typedef te_status (*te_attention_top_fn)(te_context *ctx, te_grid grid, const te_attention_top *a);

/* Grid: (heads). */
TE_FN void te__attention_top_body(const te_attention_top *a, te_block b, int heads) {
    int group;
    te_lanes g = te_lanes_here(TE_TOP_THREADS, &group);
    const int head = b.x, rows = te_sequence_first(&a->of, a->of.count), longest = a->of.longest;
    float top = -INFINITY;
    for (int row = g.id; row < rows; row += g.count) {
        const int64_t at = a->by_head ? (int64_t)head * a->of.rows + row
                                      : ((int64_t)(row / longest) * heads + head) * longest + row % longest;
        top = fmaxf(top, a->row_top[at]);
    }
    te_lanes_max(&top, &g);
    if (g.id == 0) a->top[head] = top;
}
#define TE_ATTENTION_TOP(name, heads) \
    TE_KERNEL(name, TE_TOP_THREADS, te_attention_top, te__attention_top_body(te_args, te_at, heads))

/* top[heads] of a forward that has run with these arguments. varlen: its kernels take cu_seqlens. */
TE_API te_status te__attention_top(te_context *ctx, te_attention_top_fn launch, const te_attention_args *a, float *top,
                                   int heads, int varlen) {
    te_attention_top t;
    memset(&t, 0, sizeof t);
    t.row_top = a->row_top, t.top = top, t.of = te__attn_sequences(a);
    t.by_head = a->cu_seqlens || (TE_CUDA && varlen);
    return launch(ctx, te_grid_of(heads, 1), &t);
}

#endif
