/* attention_args.h -- the arguments of the attention kernels, and what is checked of them. See attention_kernels.h. */
#ifndef TE_ATTENTION_ARGS_H
#define TE_ATTENTION_ARGS_H

#include "../core/sequences.h" /* te_sequences */
#include "../core/target.h"    /* te_context, TE_KERNEL */
#include "attention_form.h"    /* TE_ATTENTION_MAX_SEQ, TE__ATTENTION_FORM */

typedef struct te_attention_args {
    void *out;       /* forward: out, backward: in. [batch * seq, heads * head_dim] */
    const float *out_scale; /* forward, with the option gives: out is in e4m3, times this, target memory; null: it is
                               not */
    float *lse;      /* [batch, heads, seq], natural log of the sum of exp of the scaled scores. forward: out or null;
                        backward: in */
    float *amax; /* with the option gives: raised to the largest magnitude of what is stored, out or dqkv
                    (te_amax_raise), not of what out_scale makes of it; null: not wanted */
    const void *sinks; /* [heads], of the kernels' dtype: with the option sinks; lse has them in it */
    const void *qkv; /* [batch * seq, (heads + 2 * kv_heads) * head_dim]: all query heads, then keys, then values */
    void *dqkv;      /* backward: out, every element written */
    const void *dout; /* backward: in, like out */
    float *delta;    /* backward: scratch, [batch, heads, seq]: the row sums of dout * out */
    float *sum; /* backward: out, [batch * ceil(seq / <name>_sum_rows), width of qkv]: the sums of so many rows of dqkv;
                   or null */
    /* backward: <name>_scratch_bytes(ctx, batch * seq) bytes, or null: then slower kernels run that need none */
    void *scratch;
    int batch, seq;
    float scale; /* of the scores, often 1 / sqrt(head_dim) */
    /* With dropout: the random state of this forward, in target memory, or null for inference, which drops nothing; and
     * the op that draws. */
    const te_rng *rng;
    uint32_t id;
    te_attn_whole whole; /* what dropout counts by, on several ranks */
    /* Sequences that differ in length, for kernels with the option varlen: batch is how many they are, seq a bound of
     * their lengths, and instead of batch * seq there are `rows` rows, of which sequence i has cu_seqlens[i] to
     * cu_seqlens[i + 1]. lse and delta are [heads, rows] then, on CUDA by all kernels with
     * varlen. Dropout draws as for batch sequences of seq tokens. */
    const int32_t *cu_seqlens;
    int rows;
    /* Keys and values of their own, for kernels with the option cross: qkv and dqkv are the queries and their gradient
     * alone, [batch * seq, heads * head_dim], and the last query stands beside the last key (attention_mask.h). */
    const void *kv; /* [batch * kv_seq, 2 * kv_heads * head_dim]: all keys, then values */
    void *dkv;      /* backward: out, like kv, every element written; or null, if nobody wants it */
    int kv_seq;
    /* With the option bias (attention_bias.h): the table, of the kernels' dtype, and for a relative one scratch,
     * [heads, 2 max_distance + 1], in which te__attention_bias_line has put it. dbias is the table's gradient, written,
     * or added to if `accumulate`; of a relative one it is [<name>_parts(seq), buckets, heads], to be added up. */
    const void *bias;
    float *line, *dbias;
    int accumulate;
    float *row_top; /* forward, with the option top: out, like lse, the largest score of each row; or null */
} te_attention_args;

TE_BOTH te_sequences te__attn_sequences(const te_attention_args *a) {
    te_sequences s;
    s.first = a->cu_seqlens, s.count = a->batch, s.longest = a->seq;
    s.rows = a->cu_seqlens ? a->rows : a->batch * a->seq;
    return s;
}

enum { TE_ATTENTION_MAX_HEAD_DIM = 256 };

/* What can be wrong with the constants, for both targets. */
#define TE__ATTENTION_ASSERT(heads, kv_heads, head_dim)                         \
    static_assert((heads) >= 1 && (kv_heads) >= 1 && (heads) % (kv_heads) == 0, \
        "te: attention: kv_heads must divide heads");                           \
    static_assert((head_dim) >= 1 && (head_dim) <= TE_ATTENTION_MAX_HEAD_DIM,   \
        "te: attention: head_dim must be 1 to 256");

/* What can be wrong with the sizes of a call. */
TE_API te_status te__attention_check(te_context *ctx, const te_attention_args *a, int heads, int varlen,
                                     int sinks, const char *name) {
    TE_REQUIRE(a->sinks || !sinks, ctx, TE_ERROR_NULL, "%s: sinks is null", name);
    TE_REQUIRE(!a->cu_seqlens || varlen, ctx, TE_ERROR_VALUE,
               "%s: cu_seqlens is given, and the attention was declared without (varlen, 1)", name);
    TE_REQUIRE(!a->cu_seqlens || (a->batch <= a->rows && !a->sum), ctx, TE_ERROR_SHAPE,
               "%s: %d sequences in %d rows, or sums of them", name, a->batch, a->rows);
    TE_REQUIRE(a->batch >= 1 && a->seq >= 1, ctx, TE_ERROR_SHAPE, "%s: batch %d and seq %d must be 1 or more", name,
               a->batch, a->seq);
    TE_REQUIRE((int64_t)a->batch * heads <= INT32_MAX / te_ceil_div(a->seq, 32), ctx, TE_ERROR_OVERFLOW,
               "%s: batch %d of %d heads and %d tokens is too much for one launch", name, a->batch, heads, a->seq);
    TE_REQUIRE(a->seq <= TE_ATTENTION_MAX_SEQ, ctx, TE_ERROR_OVERFLOW, "%s: seq %d is above %d", name, a->seq,
               (int)TE_ATTENTION_MAX_SEQ);
    TE_REQUIRE(a->scale > 0, ctx, TE_ERROR_VALUE, "%s: scale is %g, it must be positive", name, (double)a->scale);
    return TE_OK;
}
/* The same of what the option gives is for. */
TE_API te_status te__attention_check_gives(te_context *ctx, const te_attention_args *a, int gives, const char *name) {
    TE_REQUIRE(gives || !(a->out_scale || a->amax), ctx, TE_ERROR_VALUE,
               "%s: out_scale or amax is given, and the attention was declared without `gives`", name);
    return TE_OK;
}
/* The same of keys and values of their own. */
TE_API te_status te__attention_check_cross(te_context *ctx, const te_attention_args *a, int heads, int cross,
                                           const char *name) {
    if (!cross) return TE_OK;
    TE_REQUIRE(a->kv, ctx, TE_ERROR_NULL, "%s: kv is null", name);
    TE_REQUIRE(a->kv_seq >= 1, ctx, TE_ERROR_SHAPE, "%s: kv_seq %d must be 1 or more", name, a->kv_seq);
    TE_REQUIRE(a->kv_seq <= TE_ATTENTION_MAX_SEQ, ctx, TE_ERROR_OVERFLOW, "%s: kv_seq %d is above %d", name, a->kv_seq,
               (int)TE_ATTENTION_MAX_SEQ);
    TE_REQUIRE((int64_t)a->batch * heads <= INT32_MAX / te_ceil_div(a->kv_seq, 32), ctx, TE_ERROR_OVERFLOW,
               "%s: batch %d of %d heads and %d keys is too much for one launch", name, a->batch, heads, a->kv_seq);
    return TE_OK;
}
/* The same of a bias: `kind`, first and second as attention_form.h has them. */
TE_API te_status te__attention_check_bias(te_context *ctx, const te_attention_args *a, int cross, int kind, int first,
                                          int second, const char *name) {
    const int keys = cross ? a->kv_seq : a->seq, is_table = kind == TE_BIAS_heads || kind == TE_BIAS_shared;
    TE_REQUIRE(a->bias || !kind, ctx, TE_ERROR_NULL, "%s: bias is null", name);
    TE_REQUIRE(!is_table || a->seq <= first, ctx, TE_ERROR_SHAPE,
               "%s: sequences of %d queries, its bias was declared with bias_queries %d", name, a->seq, first);
    TE_REQUIRE(!is_table || keys <= second, ctx, TE_ERROR_SHAPE,
               "%s: sequences of %d keys, its bias was declared with bias_keys %d", name, keys, second);
    return TE_OK;
}

#endif
