/* attention_kernels.h -- attention over packed queries, keys and values, forward and backward, for both targets. The
 * [seq, seq] matrix of scores is never stored: softmax runs online, and backward recomputes the scores from `lse`.
 * Milakov and Gimelshein 2018 (online softmax); Dao 2023 (FlashAttention-2); Ainslie et al. 2023 (grouped queries).
 *
 * Do this, at file scope, then call name##_launch:
 *     // name, dtype, heads, kv_heads, head_dim, causal
 *     TE_ATTENTION_FORWARD(block_attn, bf16, 12, 12, 64, 1)
 *     TE_ATTENTION_BACKWARD(block_attn_backward, bf16, 12, 12, 64, 1)
 *     ... TE_TRY(block_attn_launch(ctx, &args));                    // te_attention_args
 *
 * TE_ATTENTION_FORWARD_OF and TE_ATTENTION_BACKWARD_OF take the options of attention_options.h in place of `causal`;
 * TE_ATTENTION_FORWARD_FP8 (impl/attention_fp8.h) computes in e4m3. The macros for backward also define
 *     size_t <name>_scratch_bytes(ctx, rows)    bytes of scratch memory for the faster kernels (compute capability 9.0)
 *     <name>_sum_rows                           each row of te_attention_args.sum is the sum of this many rows of dqkv;
 *                                               0 if `sum` is not supported (on the host, in f32, with varlen)
 *
 * Any batch, seq >= 1 and head_dim <= 512 are supported; on CUDA in bf16 and f16 head_dim must be a multiple of 8.
 * Pointers must be aligned to TE_ACCESS bytes. Sums are computed in float and in a fixed order, so that equal inputs
 * lead to bitwise identical results, unless te_context.attention_nondeterministic is set.
 *
 * This header also has small kernels that run before or after forward and backward: TE_ATTENTION_RELATIVE_BIAS,
 * TE_ATTENTION_SINKS_GRAD and TE_ATTENTION_MAX_LOGIT. TE_ATTENTION_DBIAS, in impl/attention_cuda.h and
 * impl/attention_host.h, computes the gradient of a score bias. Attention over a key-value cache,
 * TE_ATTENTION_CACHED_OF, is in impl/attention_cached.h.
 */
#ifndef TE_ATTENTION_KERNELS_H
#define TE_ATTENTION_KERNELS_H

#include "../core/lanes.h"     /* te_lanes, te_amax_bits8 */
#include "../core/math.h"      /* te_exp */
#include "attention_options.h" /* te_attention_args, the options */

#if TE_CUDA
#include "impl/attention_cuda.h"  /* TE_ATTENTION_FORWARD_OF, _BACKWARD_OF, TE_ATTENTION_DBIAS */
#include "impl/attention_sm90_forward_fp8.h" /* TE_ATTENTION_FORWARD_FP8 */
#else
#include "impl/attention_host.h" /* the same in plain C */
#endif

#define TE_ATTENTION_FORWARD(name, dtype, heads, kv_heads, head_dim, causal)                              \
    static_assert((causal) == 0 || (causal) == 1, "te: attention: causal must be 0 or 1");                \
    TE_ATTENTION_FORWARD_OF(name, dtype, heads, kv_heads, head_dim, TE__ATTENTION_PLAIN(causal))
#define TE_ATTENTION_BACKWARD(name, dtype, heads, kv_heads, head_dim, causal)                             \
    static_assert((causal) == 0 || (causal) == 1, "te: attention: causal must be 0 or 1");                \
    TE_ATTENTION_BACKWARD_OF(name, dtype, heads, kv_heads, head_dim, TE__ATTENTION_PLAIN(causal))

/* ---- a relative bias by distance ---------------------------------------------------------------------------------
 * This kernel expands the biases of the buckets of a relative bias, [buckets, heads], to
 * te_attention_args.bias_by_distance, [heads, 2 * max_distance + 1]: the bias of each distance from -max_distance to
 * max_distance. The attention kernels clamp key - query to that range, and read the bias of the clamped distance.
 * Clamping changes no bias, because all larger distances are in the same bucket as max_distance, and all smaller ones
 * in the same bucket as -max_distance.
 *
 * Do this, at file scope, then call te__attention_relative_bias before each forward and backward:
 *     TE_ATTENTION_RELATIVE_BIAS(block_attn_relative, bf16)                  // name, dtype
 *
 * The kernel writes 4 bytes for each head and distance, a few KB in all, so its time is hardly more than that of the
 * launch. */
enum { TE_RELATIVE_BIAS_THREADS = TE_CUDA ? 128 : 1 };

typedef struct te_relative_bias_args {
    const void *table;       /* the learnt biases, [buckets, heads] */
    float *bias_by_distance; /* output, [heads, 2 * max_distance + 1]: the bias of each head and distance */
    int heads, buckets, max_distance, bidirectional;
} te_relative_bias_args;
typedef te_status (*te_relative_bias_fn)(te_context *ctx, te_grid grid, const te_relative_bias_args *a);

/* The body of the kernel that expands the biases of the buckets to one bias for each head and distance. Grid:
 * (ceil(distances / TE_RELATIVE_BIAS_THREADS), heads). */
TE_FN void te__attention_relative_bias_body(const te_relative_bias_args *a, te_block b, te_dtype dtype) {
    int group;
    const te_lanes g = te_lanes_here(TE_RELATIVE_BIAS_THREADS, &group);
    const int count = 2 * a->max_distance + 1, at = b.x * TE_RELATIVE_BIAS_THREADS + g.id, head = b.y;
    if (at >= count) return;
    const int bucket = te__attn_bucket(at - a->max_distance, a->buckets, a->max_distance, a->bidirectional);
    a->bias_by_distance[head * count + at] = te_load(a->table, (int64_t)bucket * a->heads + head, dtype);
}
#define TE_ATTENTION_RELATIVE_BIAS(name, dtype)                       \
    TE_KERNEL(name, TE_RELATIVE_BIAS_THREADS, te_relative_bias_args,  \
        te__attention_relative_bias_body(te_args, te_at, TE_##dtype))

TE_API te_status te__attention_relative_bias(te_context *ctx, te_relative_bias_fn launch, const te_attention_args *a,
                                             int heads, int buckets, int max_distance, int bidirectional) {
    te_relative_bias_args b;
    memset(&b, 0, sizeof b);
    b.table = a->bias, b.bias_by_distance = a->bias_by_distance;
    b.heads = heads, b.buckets = buckets, b.max_distance = max_distance, b.bidirectional = bidirectional;
    return launch(ctx, te__grid_of(te_ceil_div(2 * max_distance + 1, TE_RELATIVE_BIAS_THREADS), heads), &b);
}

/* ---- rows of lse, delta and row_max_logit ------------------------------------------------------------------------ */

/* The layout of the arrays lse, delta and row_max_logit, which have one number for each row and head. Their shape is
 * [heads, rows] if by_head is 1, else [sequences, heads, max_seqlen]. */
typedef struct te_attention_rows {
    te_sequences of;
    int by_head;
} te_attention_rows;
/* Returns the index of the number for one head and one row in an array with this layout. row: the index of the row,
 * counted over all sequences of the call. */
TE_FN int64_t te__attn_row_index(const te_attention_rows *l, int head, int heads, int row) {
    const int in = row % l->of.max_seqlen; /* the index of the row within its sequence */
    return l->by_head ? (int64_t)head * l->of.rows + row
                      : ((int64_t)(row / l->of.max_seqlen) * heads + head) * l->of.max_seqlen + in;
}
/* Returns the layout of lse, delta and row_max_logit in a call. varlen: 1 if the call's kernels have the option
 * varlen. */
TE_API te_attention_rows te__attn_fwd_sequence(const te_attention_args *a, int varlen) {
    te_attention_rows l;
    memset(&l, 0, sizeof l);
    l.of = te__attn_sequences(a), l.by_head = a->cu_seqlens || (TE_CUDA && varlen);
    return l;
}

/* ---- the gradient of sinks ---------------------------------------------------------------------------------------
 * Attention sinks: a learnt logit for each head, whose exponential is added to the denominator of the softmax, but
 * which has no value vector (gpt-oss, OpenAI 2025, arXiv 2508.10925). The probabilities of a row's keys then add up to
 * less than 1, so the output of a head that finds no relevant key can be close to 0.
 *
 *     forward:  lse = log(exp(sink) + sum_j exp(S_j)), P_j = exp(S_j - lse), p = exp(sink - lse), O = sum_j P_j V_j
 *     backward: dP_j / dsink = -P_j * p, hence dsink = -sum over rows of (p * sum_j P_j * (dO V_j))
 *               = -sum over rows of (p * delta), where delta = rowsum(dO * O) as without sinks
 *
 * Dropout does not drop sinks. All other gradients are computed as without sinks, because they depend on the sinks only
 * through lse.
 *
 * Do this, at file scope, then call te__attention_sinks_grad after the backward, which has written delta:
 *     TE_ATTENTION_SINKS_GRAD(block_attn_sinks, bf16, 12)        // name, dtype, heads
 *
 * Memory traffic: lse and delta are read once, 8 bytes for each row and head. */
/* TE_SINKS_ROWS: the number of rows that one thread block sums up */
enum { TE_SINKS_THREADS = TE_CUDA ? 256 : 1, TE_SINKS_ROWS = 1024 };

/* Describes lse and delta on one rank: they have `count` heads, beginning with head `first`, and the rows of `ranks`
 * ranks. Without the option (context, all_to_all) they have all heads of the op, and only the rows of this rank. */
typedef struct te_attention_heads { int first, count, ranks; } te_attention_heads;

typedef struct te_sinks_grad_args {
    const void *sinks;        /* the learnt logits, [heads] */
    const float *lse, *delta;
    /* Output, [te__attention_sinks_grad_blocks(rows), heads]: partial sums. Their sum over the first axis is the
     * gradient of sinks. */
    float *sum;
    te_attention_rows layout; /* the layout of lse and delta */
    te_attention_heads heads; /* the heads in lse and delta; the sums of other heads are 0 */
    int rows;                 /* the number of rows that one block adds up */
} te_sinks_grad_args;
typedef te_status (*te_sinks_grad_fn)(te_context *ctx, te_grid grid, const te_sinks_grad_args *a);

/* The body of the kernel that computes partial sums of the gradient of sinks. Grid: (ceil(rows / a->rows), heads). */
TE_FN void te__attention_sinks_grad_body(const te_sinks_grad_args *a, te_block b, te_dtype dtype, int heads) {
    int group;
    te_lanes g = te_lanes_here(TE_SINKS_THREADS, &group);
    const int head = b.y, first = b.x * a->rows, rows = te_sequence_first(&a->layout.of, a->layout.of.count);
    const int is_here = head >= a->heads.first && head < a->heads.first + a->heads.count;
    const int end = !is_here ? first : rows - first < a->rows ? rows : first + a->rows;
    const float sink = te_load(a->sinks, head, dtype);
    float sum = 0;
    for (int row = first + g.id; row < end; row += g.count) {
        const int64_t at = te__attn_row_index(&a->layout, head - a->heads.first, a->heads.count, row);
        sum -= te_exp(sink - a->lse[at]) * a->delta[at];
    }
    te_lanes_sum(&sum, 1, &g);
    if (g.id == 0) a->sum[(int64_t)b.x * heads + head] = sum;
}
#define TE_ATTENTION_SINKS_GRAD(name, dtype, heads)        \
    TE_KERNEL(name, TE_SINKS_THREADS, te_sinks_grad_args,  \
        te__attention_sinks_grad_body(te_args, te_at, TE_##dtype, heads))

TE_API int te__attention_sinks_grad_blocks(int64_t rows) { return (int)te_ceil_div(rows, TE_SINKS_ROWS); }
/* Launches the kernel `launch`, which TE_ATTENTION_SINKS_GRAD has defined, to compute partial sums of the gradient of
 * sinks. sum: output (te_sinks_grad_args.sum). heads: the number of heads of the op; here: the heads that are in lse
 * and delta. varlen: 1 if the backward that has run with the arguments `a` has the option varlen. */
TE_API te_status te__attention_sinks_grad(te_context *ctx, te_sinks_grad_fn launch, const te_attention_args *a,
                                          float *sum, int heads, te_attention_heads here, int varlen) {
    te_sinks_grad_args s;
    memset(&s, 0, sizeof s);
    s.sinks = a->sinks, s.lse = a->lse, s.delta = a->delta, s.sum = sum, s.layout = te__attn_fwd_sequence(a, varlen);
    s.heads = here, s.rows = TE_SINKS_ROWS * here.ranks;
    return launch(ctx, te__grid_of(te__attention_sinks_grad_blocks(s.layout.of.rows / here.ranks), heads), &s);
}

/* ---- the largest logit of each head ------------------------------------------------------------------------------
 * This kernel computes, for each head, the largest input of its softmax over all sequences, queries and visible keys.
 * The logits include scale, softcap and biases, but not sinks. QK-clip needs this maximum (MuonClip; Kimi K2, arXiv
 * 2507.20534). Forward stores the largest logit of each row and head, and the kernel computes the maximum over the
 * rows. The result is deterministic, because a maximum does not depend on the order in which numbers are compared.
 *
 * Do this, at file scope, then call te__attention_max_logit after a forward that was given row_max_logit:
 *     TE_ATTENTION_MAX_LOGIT(block_attn_max_logit, 12)                           // name, heads
 *
 * Memory traffic: 4 bytes for each row and head, which forward writes and this kernel reads. One block computes the
 * maximum of one head, which takes about 10 us at 32768 rows. */
enum { TE_MAX_LOGIT_THREADS = TE_CUDA ? 1024 : 1 };

typedef struct te_max_logit_args {
    const float *row_max_logit;
    float *max_logit;         /* output, [heads]: the largest logit of each head; -inf if no query sees a key */
    te_attention_rows layout; /* the layout of row_max_logit */
} te_max_logit_args;
typedef te_status (*te_max_logit_fn)(te_context *ctx, te_grid grid, const te_max_logit_args *a);

/* The body of the kernel that computes the largest logit of each head. Grid: (heads). */
TE_FN void te__attention_max_logit_body(const te_max_logit_args *a, te_block b, int heads) {
    int group;
    te_lanes g = te_lanes_here(TE_MAX_LOGIT_THREADS, &group);
    const int head = b.x, rows = te_sequence_first(&a->layout.of, a->layout.of.count);
    float max_logit = -INFINITY;
    for (int row = g.id; row < rows; row += g.count)
        max_logit = fmaxf(max_logit, a->row_max_logit[te__attn_row_index(&a->layout, head, heads, row)]);
    te_lanes_max(&max_logit, &g);
    if (g.id == 0) a->max_logit[head] = max_logit;
}
#define TE_ATTENTION_MAX_LOGIT(name, heads) \
    TE_KERNEL(name, TE_MAX_LOGIT_THREADS, te_max_logit_args, te__attention_max_logit_body(te_args, te_at, heads))

/* Launches the kernel `launch`, which TE_ATTENTION_MAX_LOGIT has defined, to compute the largest logit of each head.
 * max_logit: output, [heads]. varlen: 1 if the forward that has run with the arguments `a` has the option varlen. */
TE_API te_status te__attention_max_logit(te_context *ctx, te_max_logit_fn launch, const te_attention_args *a,
                                         float *max_logit, int heads, int varlen) {
    te_max_logit_args t;
    memset(&t, 0, sizeof t);
    t.row_max_logit = a->row_max_logit, t.max_logit = max_logit, t.layout = te__attn_fwd_sequence(a, varlen);
    return launch(ctx, te__grid_of(heads, 1), &t);
}

/* ---- attention over a key-value cache ----------------------------------------------------------------------------
 * The kernels are in impl/attention_cached.h, which te/infer.h includes and te/te.h does not. attention_cached.h
 * redefines the two macros below. Without attention_cached.h, an op list whose attention has the option cache fails to
 * compile, at an assertion in te/ops/attention.h; the macros below only prevent further error messages. */
#define TE__HAS_CACHED_ATTENTION 0
#define TE_ATTENTION_CACHED_OF(name, ...) \
    TE_UNUSED static te_status (*const name##_launch)(te_context *, const te_attention_args *) = 0;

#endif
