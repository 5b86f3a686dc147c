/* attention_bias_line.h -- a relative bias by distance: line[head][distance + most], distances from -most to most, of
 * the table [buckets, heads]. Kernels clamp a distance and read it there. What is further away is in the same bucket.
 *
 * Do this, at file scope, then call te__attention_bias_line in front of each forward and backward:
 *     TE_ATTENTION_BIAS_LINE(block_attn_line, bf16)                  // name, dtype
 *
 * Bytes: 4 for each head and distance, a few KB; the time is that of a launch.
 */
#ifndef TE_ATTENTION_BIAS_LINE_H
#define TE_ATTENTION_BIAS_LINE_H

#include "attention_args.h" /* te_attention_args */

enum { TE_BIAS_LINE_THREADS = TE_CUDA ? 128 : 1 };

typedef struct te_attention_line {
    const void *table;
    float *line;
    int heads, buckets, most, both;
} te_attention_line;
typedef te_status (*te_attention_line_fn)(te_context *ctx, te_grid grid, const te_attention_line *a);

/* Grid: (blocks of so many distances as there are threads, heads). */
TE_FN void te__attention_line_body(const te_attention_line *a, te_block b, te_dtype dtype) {
    int group;
    const te_lanes g = te_lanes_here(TE_BIAS_LINE_THREADS, &group);
    const int count = 2 * a->most + 1, at = b.x * TE_BIAS_LINE_THREADS + g.id, head = b.y;
    if (at >= count) return;
    const int bucket = te__attn_bucket(at - a->most, a->buckets, a->most, a->both);
    a->line[head * count + at] = te_load(a->table, (int64_t)bucket * a->heads + head, dtype);
}
#define TE_ATTENTION_BIAS_LINE(name, dtype)                   \
    TE_KERNEL(name, TE_BIAS_LINE_THREADS, te_attention_line,  \
        te__attention_line_body(te_args, te_at, TE_##dtype))

TE_API te_status te__attention_bias_line(te_context *ctx, te_attention_line_fn launch, const te_attention_args *a,
                                         int heads, int buckets, int most, int both) {
    te_attention_line l;
    memset(&l, 0, sizeof l);
    l.table = a->bias, l.line = a->line, l.heads = heads, l.buckets = buckets, l.most = most, l.both = both;
    return launch(ctx, te_grid_of(te_ceil_div(2 * most + 1, TE_BIAS_LINE_THREADS), heads), &l);
}

#endif
