/* attention_options.h -- the options of an attention, which are constants of its kernels, and the arguments of a call.
 * The kernels have no code for options that are not used.
 *
 * Do this, with TE_ATTENTION_FORWARD_OF and TE_ATTENTION_BACKWARD_OF of attention_kernels.h:
 *     (left, right, softcap, dropout, varlen, alibi, sinks, only, cross, bias, bias_dim0, bias_dim1, max_logit, value,
 *      fp8_output, cached, values_in_keys)          // options left out at the end are 0
 *
 *     left, right    query i sees keys i - left to i + right; TE_ATTENTION_ALL: no bound on this side
 *     softcap        scores become softcap * tanh(score / softcap) before the mask; 0: unchanged
 *     dropout        after the softmax, each element of P becomes 0 with this probability, else it is multiplied by
 *                    TE_DROPOUT_FACTOR; lse does not depend on dropout
 *     varlen         1: the kernels support te_attention_args.cu_seqlens
 *     alibi          1: linear biases by distance (te__attn_alibi_slope)
 *     sinks          1: the softmax of each head includes an extra logit, te_attention_args.sinks
 *     only           which CUDA kernels are compiled. 0: all; TE_ATTENTION_SM90_ONLY: only those for sm_90a, if there
 *                    are any; TE_ATTENTION_NO_SM90: all except those for sm_90a
 *     cross          1: cross-attention: the keys and values are in te_attention_args.kv. Excludes varlen
 *     bias           TE_BIAS_heads, _shared, _relative: te_attention_args.bias is added to the scores. bias_dim0: the
 *                    queries of a table, or the buckets; bias_dim1: the keys of a table, or max_distance
 *     max_logit      1: forward stores each row's largest score in te_attention_args.row_max_logit
 *     value          head size of v and of the output; 0: head_dim, as for q and k
 *     fp8_output     1: forward supports te_attention_args.out_scale and amax; backward (bf16, f16) supports amax
 *     cached         a te_cache_format: forward reads keys and values from te_attention_args.cache. Excludes cross
 *     values_in_keys 1: qkv and cache have no v: a value is the first `value` elements of its key. Forward only
 */
#ifndef TE_ATTENTION_OPTIONS_H
#define TE_ATTENTION_OPTIONS_H

#include "../core/dtype.h"       /* te_dtype, te__fp8_word */
#include "../core/philox.h"      /* te_philox, TE_DROPOUT_LIMIT */
#include "../core/tensor.h"   /* te_sequences */
#include "../core/target.h"      /* te_context, TE_KERNEL */
#include "impl/attention_mask.h" /* TE_ATTENTION_ALL, TE_ATTENTION_MAX_SEQ */

/* ---- ALiBi -------------------------------------------------------------------------------------------------------
 * Linear biases instead of position embeddings (Press, Smith & Lewis 2022, arXiv 2108.12409): slope * |i - j| is
 * subtracted from the score of query i and key j, after softcap and before the mask. Slopes are constants. If the
 * number of heads n is a power of two, head h = 0, 1, .. has the slope 2^(-8 * (h + 1) / n). Otherwise let p be the
 * next lower power of two: the first p heads have the slopes that p heads would have, and the remaining heads have
 * every second one of the slopes that 2 * p heads would have, beginning with the first. Backward recomputes the bias
 * when it recomputes the probabilities; slopes have no gradient. */
TE_BOTH float te__attn_alibi_slope(int head, int heads) {
    int n = 1;
    while (2 * n <= heads) n *= 2;
    return exp2f(head < n ? -8.0f * (float)(head + 1) / (float)n : -4.0f * (float)(2 * (head - n) + 1) / (float)n);
}

/* ---- score bias --------------------------------------------------------------------------------------------------
 * A learnt bias that is added to the score of each pair of a query and a key before the mask. Two layouts:
 *
 *     a table     [heads, queries, keys] (TE_BIAS_heads), or [queries, keys] for all heads (TE_BIAS_shared)
 *     relative    [buckets, heads] (TE_BIAS_relative): key - query selects the bucket, as in T5 (Raffel et al. 2020)
 *
 *     forward:  S = softcap(scale * Q K^T) + B, P = exp(S - lse)
 *     backward: dS = P * (dP - delta) as without a bias, dB = sum of dS over sequences (for TE_BIAS_shared also
 *     over heads)
 *
 * Queries and keys are counted from the beginning of their sequence, even if a batch packs sequences of different
 * lengths: a sequence that is shorter than the table uses the upper left corner of the table. For a relative bias, a
 * query's position is its position among the keys (see `shift` in attention_mask.h). An element of a table may be -inf:
 * then that pair of query and key is masked. The output of a query whose keys are all masked is 0.
 *
 * Like ALiBi, the bias is added after softcap, so that the gradient of the bias does not pass through the tanh.
 * FlashAttention 2 and vLLM do the same. (Pax applies the softcap to the sum of score and bias instead.)
 *
 * A separate kernel (TE_ATTENTION_DBIAS) computes the gradient of the bias: each block computes a tile of the gradient,
 * and loops over the sequences in order, so that no tensor of [sequences, heads, queries, keys] is stored and the order
 * of summation is fixed. */
enum { TE_BIAS_none, TE_BIAS_heads, TE_BIAS_shared, TE_BIAS_relative, TE_BIAS_MAX_DISTANCE = 1 << 16 };

/* Returns T5's bucket for distance = key - query. bidirectional: if 1, half of the buckets are for keys after the
 * query; if 0, keys after the query are treated as distance 0. Of the buckets for one direction, the first half have
 * one distance each. Each of the others has a range of distances; these ranges grow geometrically up to max_distance.
 * The last bucket also has all larger distances. The function computes in double, so that the result is the same on
 * both targets and in all kernels. */
TE_BOTH int te__attn_bucket(int distance, int buckets, int max_distance, int bidirectional) {
    const int side = bidirectional ? buckets / 2 : buckets, exact = side / 2;
    const int first = bidirectional && distance > 0 ? side : 0;
    const int n = distance < 0 ? -distance : bidirectional ? distance : 0;
    if (n < exact) return first + n;
    const double fraction = log((double)n / exact) / log((double)max_distance / exact);
    const int bucket = exact + (int)(fraction * (side - exact) + 1e-9);
    return first + (bucket < side - 1 ? bucket : side - 1);
}

/* ---- dropout -----------------------------------------------------------------------------------------------------
 * The dropout mask consists of random numbers that Philox computes from (seed, draw, op; sequence, head, query, key).
 * Therefore every kernel of every target drops the same elements of P, and backward recomputes the mask instead of
 * loading it.
 *
 * One Philox counter yields the random bits of eight pairs of query and key: of queries q and q + 8 of a block of 16
 * queries, each with keys k, k + 8, k + 16 and k + 24 of a block of 32 keys. In the accumulators of the tensor cores,
 * these eight pairs belong to one thread, whether the rows are queries or keys.
 *
 * Do this, if the rows of scores are queries:
 *     head = te__attn_global_head(args->whole, batch * heads + head, heads);
 *     te__attn_draw(word, rng, id, te__attn_draw_row(head, query, seq), query, key);
 *     if (te__attn_drops(word[key / 8 % 4], query / 8 % 2, limit)) p = 0; */

/* The numbers by which te__attn_global_head converts the index of a head on one rank to its index over all ranks. Over
 * all ranks, the heads of the first sequence come first, then the heads of the second sequence, and so on. first: the
 * index, within a sequence, of this rank's first head; more: how many heads of each sequence are on other ranks. Both
 * are 0 if there is only one rank. */
typedef struct te_attention_shard { int first, more; } te_attention_shard;

/* Returns the index, over all ranks, of a head of this call. head: the index of the head in the call, which is
 * sequence * heads + (index of the head in its sequence). */
TE_BOTH int te__attn_global_head(te_attention_shard s, int head, int heads) {
    return head + s.first + head / heads * s.more;
}
/* Returns the ALiBi slope of a head. The slope depends on the index of the head among the heads of all ranks. head: the
 * index of the head among the heads of this rank. */
TE_BOTH float te__attn_alibi_slope_of(te_attention_shard s, int head, int heads) {
    const int all = heads + s.more;
    return s.more ? te__attn_alibi_slope((s.first + head) % all, all) : te__attn_alibi_slope(head, heads);
}
/* Returns the index of the block of 16 queries to which the query belongs, counted over all heads and sequences. This
 * index selects the random numbers of dropout. head: the index of the head over all ranks (te__attn_global_head). */
TE_BOTH uint32_t te__attn_draw_row(int head, int query, int seq) {
    return (uint32_t)head * ((uint32_t)(seq + 15) / 16) + (uint32_t)query / 16;
}
/* Computes the random bits of the pair (query, key) and of seven other pairs. word: output, the four 32-bit words of
 * one call of Philox, which have 16 bits for each of the eight pairs. row: the index of the query's block of 16 queries
 * (te__attn_draw_row). */
TE_BOTH void te__attn_draw(uint32_t word[4], te_rng rng, uint32_t id, uint32_t row, int query, int key) {
    const uint32_t in_row = (uint32_t)key / 32 * 64 + (uint32_t)query % 8 * 8 + (uint32_t)key % 8;
    te_philox(word, rng.seed, (uint64_t)row << 32 | in_row, id, rng.offset);
}
/* Returns whether dropout drops a pair. Each pair has 16 random bits: the high half of `word` if `high` is 1, else the
 * low half. The pair is dropped if the 16 bits, as an integer, are below `limit`, which is 65536 times the dropout
 * probability. */
TE_BOTH int te__attn_drops(uint32_t word, int high, uint32_t limit) {
    /* limit << 16 has zeros in its lower half, so that the comparison depends only on the upper halves of both
     * operands */
    return (high ? word : word << 16) < limit << 16;
}
/* Returns whether dropout drops the pair (query, key). head: the index of the head over all ranks
 * (te__attn_global_head). */
TE_BOTH int te__attn_dropped(te_rng rng, uint32_t id, int head, int query, int key, int seq, uint32_t limit) {
    uint32_t word[4];
    te__attn_draw(word, rng, id, te__attn_draw_row(head, query, seq), query, key);
    const int w = key / 8 % 4;
    return te__attn_drops(w == 0 ? word[0] : w == 1 ? word[1] : w == 2 ? word[2] : word[3], query / 8 % 2, limit);
}

/* The largest supported head sizes: TE_ATTENTION_MAX_LATENT_DIM with the option values_in_keys,
 * TE_ATTENTION_MAX_HEAD_DIM without it. On CUDA the tiles of larger heads would take more shared memory than a block
 * may have. */
enum { TE_ATTENTION_MAX_HEAD_DIM = 512, TE_ATTENTION_MAX_LATENT_DIM = TE_CUDA ? 640 : 1024 };
#define TE__ATTENTION_MAX_DIM(values_in_keys) \
    ((values_in_keys) ? (int)TE_ATTENTION_MAX_LATENT_DIM : (int)TE_ATTENTION_MAX_HEAD_DIM)

/* ---- the variant: all options as constants -----------------------------------------------------------------------
 * With softcap, the kernels hold a score as the tanh t, in [-1, 1], and its logit is softcap times t. Without softcap,
 * they hold the product q k^T, and its logit is scale times q k^T. The derivative of tanh is 1 - t^2; hence, with
 * P = exp(softcap * t - lse), the gradient of q k^T is scale * P * (1 - t^2) * (dP - delta). So with softcap,
 * P * (1 - t^2) replaces P in dS. With dropout, O = (m * P) V and dP = m * (dO V^T), where m is 0 for a dropped pair,
 * else TE_DROPOUT_FACTOR, and delta = rowsum(dO * O) as without dropout. So dV needs m * P, and dS needs both P and m.
 * (For a dropped pair the kernels pass -P instead of P to the computation of dS, so that the sign says whether m is
 * 0.) */
enum { TE_ATTENTION_SM90_ONLY = 1, TE_ATTENTION_NO_SM90 = 2 };

/* The options of an attention that has no option except causal. */
#define TE__ATTENTION_PLAIN(causal) (TE_ATTENTION_ALL, (causal) ? 0 : TE_ATTENTION_ALL)
#define TE__ATTENTION_STRIP(...) __VA_ARGS__
/* Defines name##_variant, through which the kernels read the options. On CUDA it is a type, which the kernels take as
 * the template argument F; on the host it is a function that returns a te__attn_variant. */
#define TE__ATTENTION_VARIANT(name, options) \
    TE__ATTENTION_VARIANT_(name, TE__ATTENTION_STRIP options, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ~)
#define TE__ATTENTION_VARIANT_(...) TE__ATTENTION_VARIANT__(__VA_ARGS__)

#if TE_CUDA
/* The member `type` is A if `first` is true, else B. */
template <bool first, class A, class B> struct te__choose_type { typedef A type; };
template <class A, class B> struct te__choose_type<false, A, B> { typedef B type; };

#define TE__ATTENTION_VARIANT__(name, left, right, softcap, dropout, varlen, alibi, sinks, only, cross, bias,        \
                                bias_dim0, bias_dim1, max_logit, value, fp8_output, cached, values_in_keys, ...)     \
    struct name##_variant {                                                                                          \
        static constexpr int LEFT = left, RIGHT = right;                                                             \
        static constexpr float SOFTCAP = (float)(softcap);                                                           \
        static constexpr uint32_t DROP = TE_DROPOUT_LIMIT((float)(dropout)); /* 0: no dropout */                     \
        static constexpr float FACTOR = TE_DROPOUT_FACTOR((float)(dropout));                                         \
        static constexpr bool SEPARATE_DS = SOFTCAP > 0 || DROP; /* dS needs another P than dV */                    \
        static constexpr bool VARLEN = (varlen) != 0, ALIBI = (alibi) != 0, SINKS = (sinks) != 0;                    \
        static constexpr bool CROSS = (cross) != 0, MAX_LOGIT = (max_logit) != 0, CACHED = (cached) != 0;            \
        static constexpr int CACHE_FORMAT = (int)(cached);                                                           \
        static constexpr bool SHIFTED = CROSS || CACHED; /* queries and keys may differ in number */                 \
        static constexpr int BIAS = bias;                                                                            \
        static constexpr int BIAS_QUERIES = bias_dim0, BIAS_KEYS = bias_dim1;         /* of a bias table */          \
        static constexpr int BIAS_BUCKETS = bias_dim0, BIAS_MAX_DISTANCE = bias_dim1; /* of a relative bias */       \
        static constexpr int VALUE = value;                                                                          \
        static constexpr bool FP8_OUTPUT = (fp8_output) != 0, VALUES_IN_KEYS = (values_in_keys) != 0;                \
        static constexpr int ONLY = only;                                                                            \
        TE__ATTENTION_VARIANT_ASSERT(LEFT, RIGHT, VARLEN && CROSS, VALUE, 0)                                         \
    };
/* The head size of v. */
template <int D, class F> TE_BOTH constexpr int te__attn_value_dim(void) { return F::VALUE ? F::VALUE : D; }
/* Returns how many elements qkv and the cache store for the value of a token and head: 0 if values are parts of
 * keys. */
template <int D, class F> TE_BOTH constexpr int te__attn_stored_value_dim(void) {
    return F::VALUES_IN_KEYS ? 0 : te__attn_value_dim<D, F>();
}
#else
typedef struct te__attn_variant {
    int left, right;
    float softcap;
    uint32_t drop; /* the limit for te__attn_drops; 0: no dropout */
    float factor;
    int varlen, alibi, sinks, cross, bias, max_logit, value, fp8_output, cached;
    int cache_format;                    /* a te_cache_format */
    int values_in_keys;
    /* 1 if queries and keys may differ in number, because of the option cross or cached */
    int shifted;
    int bias_queries, bias_keys;         /* the sizes of a bias table */
    int bias_buckets, bias_max_distance; /* the sizes of a relative bias */
} te__attn_variant;

#define TE__ATTENTION_VARIANT__(name, left_, right_, softcap_, dropout_, varlen_, alibi_, sinks_, only_, cross_,     \
                                bias_, bias_dim0_, bias_dim1_, max_logit_, value_, fp8_output_, cached_,             \
                                values_in_keys_, ...)                                                                \
    TE__ATTENTION_VARIANT_ASSERT(left_, right_, (varlen_) && (cross_), value_, values_in_keys_)                      \
    enum { name##_variant_value = value_, name##_variant_in_keys = values_in_keys_ };                                \
    TE_FN te__attn_variant name##_variant(void) {                                                                    \
        te__attn_variant f;                                                                                          \
        f.left = left_, f.right = right_, f.softcap = (float)(softcap_);                                             \
        f.drop = TE_DROPOUT_LIMIT((float)(dropout_)), f.factor = TE_DROPOUT_FACTOR((float)(dropout_));               \
        f.varlen = (varlen_) != 0, f.alibi = (alibi_) != 0, f.sinks = (sinks_) != 0, f.cross = (cross_) != 0;        \
        f.bias = bias_, f.bias_queries = f.bias_buckets = bias_dim0_;                                                \
        f.bias_keys = f.bias_max_distance = bias_dim1_;                                                              \
        f.max_logit = (max_logit_) != 0, f.value = value_, f.fp8_output = (fp8_output_) != 0;                        \
        f.cached = (cached_) != 0, f.cache_format = (int)(cached_), f.shifted = f.cross || f.cached;                 \
        f.values_in_keys = (values_in_keys_) != 0;                                                                   \
        return f;                                                                                                    \
    }
/* The head size of v. */
TE_FN int te__attn_value_dim(int head_dim, te__attn_variant f) { return f.value ? f.value : head_dim; }
/* Returns how many elements of each value are stored in qkv and in the cache: none if values are parts of keys
 * (values_in_keys). */
TE_FN int te__attn_stored_value_dim(int head_dim, te__attn_variant f) {
    return f.values_in_keys ? 0 : te__attn_value_dim(head_dim, f);
}
#endif
#define TE__ATTENTION_VARIANT_ASSERT(left, right, varlen_and_cross, value, values_in_keys)                           \
    static_assert((value) >= 0 && (value) <= TE__ATTENTION_MAX_DIM(values_in_keys),                                  \
                  "te: attention: value must be 1 to 512, or 0");                                                    \
    static_assert(!(varlen_and_cross), "te: attention: cross-attention does not go with varlen");                    \
    static_assert((left) >= TE_ATTENTION_ALL && (left) <= TE_ATTENTION_MAX_SEQ,                                      \
                  "te: attention: left must be 0 to 2^20, or TE_ATTENTION_ALL");                                     \
    static_assert((right) >= TE_ATTENTION_ALL && (right) <= TE_ATTENTION_MAX_SEQ,                                    \
                  "te: attention: right must be 0 to 2^20, or TE_ATTENTION_ALL");

/* The options of an attention or cross_attention op of an op list, as numbers. te_op.options points to this struct. */
typedef struct te_attention_options {
    int heads, kv_heads, head_dim, causal;
    float scale; /* the factor of q k^T, or 0 for 1 / sqrt(head_dim) */
    /* How many keys before (left) and after (right) its own position a query sees; -1 means no bound. With a causal
     * mask, window_right is 0. */
    int window_left, window_right;
    float softcap;                 /* scores become softcap * tanh(score / softcap), unless softcap is 0 */
    int alibi;                     /* 1 if there are linear biases by distance (te__attn_alibi_slope) */
    /* For the meaning of these members, see the options of the same names at the top of this file. */
    int sinks, bias, bias_dim0, bias_dim1, max_logit;
    int value_dim;                                    /* the head size of v */
    /* how many elements of each value are stored in a row of qkv and in a cache: value_dim, or 0 if values are parts of
     * keys (values_in_keys) */
    int stored_value_dim;
} te_attention_options;

/* ---- keys and values in a cache ---------------------------------------------------------------------------------- */

/* The format of keys and values in a cache. In the formats of 8 bits each row (a key or a value of one head) has a
 * scale, which is its largest magnitude divided by 127 (int8) or 448 (e4m3); the value of an element is the stored
 * 8-bit number times the scale. */
typedef enum te_cache_format {
    TE_CACHE_FORMAT_none, /* there is no cache */
    TE_CACHE_FORMAT_list, /* in the dtype of the op list */
    TE_CACHE_FORMAT_int8, /* integers of -127 to 127 */
    TE_CACHE_FORMAT_e4m3
} te_cache_format;

/* The keys and values of one attention in a te_cache (te/cache/cache.h), for the sequences of a batch. A page holds
 * `page_rows` tokens: the keys of each head, [kv_heads, page_rows, head_dim], then the values, [kv_heads, page_rows,
 * value_dim], unless values are parts of keys (values_in_keys). On CUDA, rows that are a multiple of 128 bytes long, in
 * a dtype of 16 bits, are swizzled: the 16-byte chunk c of row r is stored where chunk c ^ (r % 8) would be without
 * swizzling. A page can then be copied to shared memory unchanged, and can be read there without bank conflicts.
 *
 * In the formats of 8 bits, the rows of a head are divided into tiles of TE_CACHE_TILE rows: a tile holds the 8-bit
 * elements of its rows, [16, head_dim], then the scales of the rows, [16] in f32, so that one copy loads both. On CUDA,
 * if the op list has a dtype of 16 bits, rows that are a multiple of 64 bytes long are swizzled (te__cache_swizzle). */
typedef struct te_attention_cache {
    void *pages;          /* the pages of the cache, [pages, page_elements], or null if there is no cache */
    const int32_t *table; /* [sequences of the cache, table_width]: for each sequence, the indices of its pages */
    const int32_t *slot;  /* [batch]: for each sequence of the batch, its index among the sequences of the cache */
    /* [batch]: how many tokens of each sequence were in the cache before this batch. -1 means that the sequence does
     * not fit in the cache, and that its new rows are not stored. */
    const int32_t *past;
    /* the distance from one page to the next, in elements or, in the formats of 8 bits, in bytes */
    int64_t page_elements;
    /* page_rows: the number of tokens (rows) of a page; page_shift: its base-2 logarithm, or 31 if each sequence has a
     * single page */
    int page_rows, page_shift;
    int page_count; /* the number of pages of the cache */
    int table_width;
    /* Only for decoding: memory for partial results. A group is a tile of queries together with all keys that these
     * queries see, and its keys are divided into splits. The memory is enough for TE__DECODE_MAX_BLOCKS groups. Each
     * split of a group needs TE__DECODE_PARTIAL_FLOATS floats. */
    float *partials;
    /* only for decoding: the largest number of new rows of a sequence for which the memory `partials` suffices */
    int decode_rows;
    /* Only for decoding: the number of stages of the kernel's ring buffer in shared memory. A stage holds
     * te__decode_traits.KEYS keys or values. Set when the kernel is launched. */
    int decode_stages;
    /* Only for decoding: the number of thread blocks of a cluster, or 0 if there are no clusters. Clusters are used in
     * small batches; a cluster processes one tile of queries. Set when the kernel is launched. */
    int decode_cluster;
    int capacity;      /* the largest number of tokens that a sequence may have in the cache */
    /* Only for storing new rows: behind the last value of each sequence of the batch, rows of zeros are stored until
     * the sequence has a multiple of zero_rows rows, or until the page is full. If zero_rows is 0, no rows of zeros are
     * stored. Set when the kernels are launched. */
    int zero_rows;
    /* If two kernels process a batch together, the kernel for decoding processes the sequences with at most short_rows
     * new rows, and the other kernel processes the sequences with more. If short_rows is 0, one kernel processes all
     * sequences. Set when the kernels are launched. */
    int short_rows;
} te_attention_cache;

enum {
    TE_CACHE_MIN_PAGE = 16, /* the smallest possible page_rows */
    TE_CACHE_TILE = 16,     /* the number of rows of a tile in the formats of 8 bits */
    /* Decoding (impl/attention_sm90_decode.h) divides the keys of a sequence into splits. A split has 256 keys; in
     * sequences of more than 4096 keys, a split has up to 1024 keys, because each split costs a partial result. With
     * the option values_in_keys a split has at least 512 keys, because there a partial result has 512 columns for each
     * row. */
    TE_CACHE_SPLIT_SHIFT = 8,
    TE_CACHE_MAX_SPLIT_SHIFT = 10,
    /* a sequence has at most this many splits of the smallest size; a longer sequence has larger splits */
    TE_CACHE_SMALL_SPLITS = 16,
    /* the largest number of thread blocks of the decoding kernel; at most two of these blocks run on a
     * multiprocessor */
    TE__DECODE_MAX_BLOCKS = 320,
    /* the largest number of query tiles of a sequence in decoding; it is small, because each query tile reads all
     * keys */
    TE__DECODE_MAX_TILES = 4,
    /* the same number with the option values_in_keys: there all query heads, of which there may be 128, share one KV
     * head. If there are more tiles, the forward kernel runs, which reads all keys once for each query head */
    TE__DECODE_MAX_LATENT_TILES = 32
};
/* Returns the largest number of query tiles of a sequence in decoding. values_in_keys: whether the attention has the
 * option of this name. */
TE_BOTH int te__decode_max_tiles(int values_in_keys) {
    return values_in_keys ? (int)TE__DECODE_MAX_LATENT_TILES : (int)TE__DECODE_MAX_TILES;
}
/* Returns the base-2 logarithm of the number of keys of a split, in a sequence of `keys` keys. values_in_keys: whether
 * the attention has the option of this name. The result does not depend on the batch, so that a sequence has bitwise
 * identical results in every batch. */
TE_BOTH int te__cache_split_shift(int keys, int values_in_keys) {
    int shift = TE_CACHE_SPLIT_SHIFT + (values_in_keys != 0);
    while (shift < TE_CACHE_MAX_SPLIT_SHIFT && keys > TE_CACHE_SMALL_SPLITS << shift) shift++;
    return shift;
}
/* Returns the largest number of splits into which a sequence of at most `capacity` keys can be divided. */
TE_BOTH int te__cache_max_splits(int capacity, int values_in_keys) {
    const int shift = te__cache_split_shift(capacity, values_in_keys);
    const int shortest = te__cache_split_shift(1, values_in_keys);
    const int splits = (capacity + (1 << shift) - 1) >> shift;
    return shift > shortest && splits < TE_CACHE_SMALL_SPLITS ? TE_CACHE_SMALL_SPLITS : splits;
}
/* The number of rows of a query tile in decoding, where a row is one query of one head. The rows of a tile belong to
 * query heads that share a KV head. group: the number of these heads. */
#define TE__DECODE_TILE_ROWS(group) ((group) <= 8 ? 8 : 16)
/* Returns the number of query tiles in decoding, for one KV head of a sequence with `rows` new tokens. group: the
 * number of query heads that share a KV head. */
TE_BOTH int te__decode_tiles(int rows, int group) {
    return (int)te_ceil_div(rows * group, TE__DECODE_TILE_ROWS(group));
}
/* The number of floats of a partial result in decoding. A partial result belongs to one query tile and one split of the
 * keys; it consists of O, not yet divided by the sums of the softmax, and of the maximum and the sum of each row. */
#define TE__DECODE_PARTIAL_FLOATS(tile_rows, value_dim) ((tile_rows) * ((value_dim) + 2))

/* A constant expression: 1 for the formats of 8 bits, in which each row has a scale, else 0. */
#define TE__CACHE_HAS_SCALES(format) ((int)(format) >= (int)TE_CACHE_FORMAT_int8)
/* Returns the size of a row of d numbers: in elements or, in the formats of 8 bits, in bytes, with the scale. */
TE_BOTH int te__cache_row_size(int d, int format) { return TE__CACHE_HAS_SCALES(format) ? d + (int)sizeof(float) : d; }
/* Returns a number s that describes the swizzle of a row: chunk c (16 bytes) of the row is stored where chunk c ^ s
 * would be without a swizzle. If s is 0, the row is not swizzled. key: the index of the row's token; d: the number of
 * elements of the row; t: the dtype of the op list. */
TE_BOTH int te__cache_swizzle(int key, int d, te_dtype t, int format) {
    if (!TE_CUDA || t == TE_f32 || d % 64) return 0;
    return TE__CACHE_HAS_SCALES(format) && d % 128 ? key / 2 % 4 : key % 8;
}
/* Does the same as te__cache_row (below), for a caller that already knows `page`, the index of the page that holds the
 * token. */
TE_BOTH int64_t te__cache_row_in(const te_attention_cache *c, int page, int64_t head_rows, int key, int d, int format) {
    const int in_page = (int)((unsigned)key & ((1u << c->page_shift) - 1)), in_tile = in_page % TE_CACHE_TILE;
    const int64_t head = page * c->page_elements + head_rows;
    if (!TE__CACHE_HAS_SCALES(format)) return head + (int64_t)in_page * d;
    return head + (int64_t)(in_page - in_tile) * te__cache_row_size(d, format) + in_tile * d;
}
/* Returns the offset, from the start of the cache's pages, of the row of one key or value: in elements or, in the
 * formats of 8 bits, in bytes. pages: the indices of the pages of the sequence; head_rows: where the rows of the head
 * begin in a page (te__cache_head_rows); key: the index of the row's token; d: the number of elements of the row. */
TE_BOTH int64_t te__cache_row(const te_attention_cache *c, const int32_t *pages, int64_t head_rows, int key, int d,
                              int format) {
    return te__cache_row_in(c, pages[(unsigned)key >> c->page_shift], head_rows, key, d, format);
}
/* Returns the address of the scale of a row, in the formats of 8 bits. row: the offset of this row in the cache
 * (te__cache_row); key: the index of the row's token. */
TE_BOTH float *te__cache_scale(const te_attention_cache *c, int64_t row, int key, int d) {
    const int in_tile = key % TE_CACHE_TILE;
    return (float *)(void *)((char *)c->pages + row + (TE_CACHE_TILE - in_tile) * d) + in_tile;
}
/* Returns the array of the page indices of sequence i of the batch. */
TE_BOTH const int32_t *te__cache_pages(const te_attention_cache *c, int i) {
    return c->table + (int64_t)c->slot[i] * c->table_width;
}
/* Returns the offset, from the start of a page, of the keys (value 0) or the values (value 1) of a KV head: in elements
 * or, in the formats of 8 bits, in bytes. d, dv: the head sizes of keys and values. */
TE_BOTH int64_t te__cache_head_rows(const te_attention_cache *c, int value, int kv_head, int kv_heads, int d, int dv,
                                    int format) {
    const int64_t rows = c->page_rows, key = te__cache_row_size(d, format), of_value = te__cache_row_size(dv, format);
    return value ? rows * (kv_heads * key + kv_head * of_value) : rows * kv_head * key;
}

/* ---- rounding of keys and values to 8 bits -----------------------------------------------------------------------
 * A row x of amax a = max |x_i| becomes the scale s = a / m, where m is 127 (int8) or 448 (e4m3), and the numbers
 * n_i = round(x_i * (m / a)), to nearest, ties to even. All operations are in f32, and their results are bitwise
 * identical on both targets. A row with an infinity or a NaN gets the scale NaN, so that all results that depend on the
 * row are NaN; a row of magnitudes below 2^-110, for which m / a may be infinite, becomes zeros. */
#define TE__CACHE_SMALLEST_AMAX 7.7037197775489434e-34f /* 2^-110 */

/* scale: the scale of a row of the cache; inverse: the factor by which the row's elements are multiplied before they
 * are rounded */
typedef struct te__cache_scales { float scale, inverse; } te__cache_scales;
/* Returns the scale of a row and its inverse. amax: the row's largest magnitude, as the bits of a float. */
TE_BOTH te__cache_scales te__cache_scales_of(uint32_t amax, int format) {
    const float largest = format == (int)TE_CACHE_FORMAT_int8 ? 127.0f : TE_E4M3_MAX, a = te_float_of_bits(amax);
    te__cache_scales s;
    const int is_finite = amax < 0x7f800000u, is_zero = a < TE__CACHE_SMALLEST_AMAX;
    s.scale = !is_finite ? te_float_of_bits(0x7fffffffu) : is_zero ? 0.0f : a / largest;
    s.inverse = !is_finite || is_zero ? 0.0f : largest / a;
    return s;
}
/* Rounds eight elements of a row to 8 bits each, in the bytes of w. inverse: te__cache_scales.inverse. */
TE_FN void te__cache_quantize8(uint32_t w[2], const float v[8], float inverse, int format) {
    float x[8];
    TE_UNROLL for (int k = 0; k < 8; k++) x[k] = inverse > 0 ? v[k] * inverse : 0.0f;
    if (format == (int)TE_CACHE_FORMAT_e4m3) {
        w[0] = te__fp8_word(x, 1), w[1] = te__fp8_word(x + 4, 1);
        return;
    }
    w[0] = w[1] = 0;
    TE_UNROLL for (int k = 0; k < 8; k++) w[k / 4] |= ((uint32_t)(int)rintf(x[k]) & 0xffu) << k % 4 * 8;
}
/* Converts eight numbers of 8 bits, in the bytes of w, to float, and multiplies them by the row's scale. */
TE_FN void te__cache_dequantize8(float v[8], const uint32_t w[2], float scale, int format) {
    if (format == (int)TE_CACHE_FORMAT_e4m3) te__floats_of_fp8(v, w[0], 1), te__floats_of_fp8(v + 4, w[1], 1);
    else TE_UNROLL for (int k = 0; k < 8; k++) v[k] = (float)(int8_t)(uint8_t)(w[k / 4] >> k % 4 * 8);
    TE_UNROLL for (int k = 0; k < 8; k++) v[k] *= scale;
}

/* ---- the arguments of a call ------------------------------------------------------------------------------------- */

/* The arguments of an attention kernel. All tensors are in target memory; those declared as void * have the kernels'
 * dtype. In the shapes below, `rows` is batch * seq or, with cu_seqlens, the member `rows`; value_dim is the option
 * `value` or, if this option is 0, head_dim. */
typedef struct te_attention_args {
    /* the output, [rows, heads * value_dim]; forward writes it, backward reads it */
    void *out;
    /* With the option fp8_output: forward multiplies the output by *out_scale and stores it in e4m3. If out_scale is
     * null, the output is stored in the kernels' dtype. */
    const float *out_scale;
    /* The log-sum-exp, [batch, heads, seq]: for each row, the natural logarithm of the sum of exp(score), sinks
     * included. Forward writes lse unless the pointer is null; backward reads it. */
    float *lse;
    /* With the option fp8_output: *amax becomes max(*amax, m), where m is in forward the largest |out| before the
     * multiplication by *out_scale, and in backward the largest |dqkv|. If amax is null, no amax is computed. */
    float *amax;
    const void *sinks;      /* with the option sinks: [heads], one logit for each head */
    /* [rows, heads * head_dim + kv_heads * (head_dim + value_dim)]: a row consists of q of all heads, then k, then v.
     * With the option cross a row has only q: [rows, heads * head_dim]. */
    const void *qkv;
    /* backward: output, the gradient of qkv, of the same shape; every element is written */
    void *dqkv;
    const void *dout;       /* backward: input, the gradient of out, of the same shape */
    /* backward: scratch memory for rowsum(dout * out), of the same shape as lse */
    float *delta;
    /* Backward: output, [batch * ceil(seq / <name>_sum_rows), columns of qkv], or null. Each row contains, for each
     * column, the sum over <name>_sum_rows rows of dqkv. The sum over all rows of `sum` is the gradient of a bias that
     * is added to qkv. */
    float *sum;
    /* Backward: scratch memory of <name>_scratch_bytes(ctx, rows) bytes. If scratch is null, slower kernels run, which
     * need no scratch memory. */
    void *scratch;
    /* batch: the number of sequences; seq: the number of tokens of each sequence, or with cu_seqlens an upper bound */
    int batch, seq;
    /* the scores are scale * q k^T; scale is often 1 / sqrt(head_dim) */
    float scale;
    /* The arguments of dropout. rng: the random state of this forward pass, in target memory; if null, nothing is
     * dropped, as in inference. id: the index of the op, so that ops drop different elements. whole: which of the heads
     * of all ranks are on this rank. */
    const te_rng *rng;
    uint32_t id;
    te_attention_shard whole;
    /* With the option varlen: [batch + 1], or null. Sequence i has rows cu_seqlens[i] to cu_seqlens[i + 1] - 1, and
     * `rows` is the number of rows of all sequences. lse and delta are then [heads, rows]. (On CUDA, a kernel with the
     * option varlen uses this layout also if cu_seqlens is null.) Dropout drops the same pairs as if the call had
     * `batch` sequences of `seq` tokens each. */
    const int32_t *cu_seqlens;
    int rows;
    /* The arguments of cross-attention are kv, dkv and kv_seq. The last query is at the position of the last key
     * (attention_mask.h). */
    /* the keys and values, [batch * kv_seq, kv_heads * (head_dim + value_dim)]: a row consists of k of all heads, then
     * v */
    const void *kv;
    /* backward: output, the gradient of kv, of the same shape. Every element is written. If dkv is null, the gradient
     * is not computed. */
    void *dkv;
    int kv_seq;
    /* The arguments of a score bias. bias: the table, or the biases of the buckets. bias_by_distance: for a relative
     * bias, scratch memory of [heads, 2 * max_distance + 1], which te__attention_relative_bias has filled. dbias:
     * output, the gradient of the bias. For a table, dbias is overwritten, or added to if `accumulate` is 1; for a
     * relative bias, dbias receives partial sums, [<name>_parts(seq), buckets, heads], whose sum over the first axis is
     * the gradient. */
    const void *bias;
    float *bias_by_distance, *dbias;
    int accumulate;
    /* forward with the option max_logit: output, shaped like lse: the largest score of each row, or null */
    float *row_max_logit;
    /* With the option cached: the cache with the keys and values. The last query is at the position of the last key. */
    te_attention_cache cache;
} te_attention_args;

TE_BOTH te_sequences te__attn_sequences(const te_attention_args *a) {
    te_sequences s;
    s.first = a->cu_seqlens, s.count = a->batch, s.max_seqlen = a->seq;
    s.rows = a->cu_seqlens ? a->rows : a->batch * a->seq;
    return s;
}

/* Compile-time checks of the head counts and the head size of an attention; the same for both targets. */
#define TE__ATTENTION_ASSERT(heads, kv_heads, head_dim, max_dim)                \
    static_assert((heads) >= 1 && (kv_heads) >= 1 && (heads) % (kv_heads) == 0, \
        "te: attention: kv_heads must divide heads");                           \
    static_assert((head_dim) >= 1 && (head_dim) <= (max_dim),                   \
        "te: attention: head_dim must be 1 to 512, or with values_in_keys 1 to 1024");

/* Checks the sizes and pointers of a call of an attention kernel. sinks: 1 if the option sinks is set; name: the
 * kernel's name, for the error text. */
TE_API te_status te__attention_check(te_context *ctx, const te_attention_args *a, int heads, int varlen,
                                     int sinks, const char *name) {
    TE_REQUIRE(a->sinks || !sinks, ctx, TE_ERROR_NULL, "%s: sinks is null", name);
    TE_REQUIRE(!a->cu_seqlens || varlen, ctx, TE_ERROR_VALUE,
               "%s: cu_seqlens is given, and the attention was declared without (varlen, 1)", name);
    TE_REQUIRE(!a->cu_seqlens || (a->batch <= a->rows && !a->sum), ctx, TE_ERROR_SHAPE,
               "%s: %d sequences in %d rows, or sum is given", name, a->batch, a->rows);
    TE_REQUIRE(a->batch >= 1 && a->seq >= 1, ctx, TE_ERROR_SHAPE, "%s: batch %d and seq %d must be 1 or more", name,
               a->batch, a->seq);
    TE_REQUIRE((int64_t)a->batch * heads <= INT32_MAX / te_ceil_div(a->seq, 32), ctx, TE_ERROR_OVERFLOW,
               "%s: batch %d of %d heads and %d tokens is too much for one launch", name, a->batch, heads, a->seq);
    TE_REQUIRE(a->seq <= TE_ATTENTION_MAX_SEQ, ctx, TE_ERROR_OVERFLOW, "%s: seq %d is above %d", name, a->seq,
               (int)TE_ATTENTION_MAX_SEQ);
    TE_REQUIRE(a->scale > 0, ctx, TE_ERROR_VALUE, "%s: scale is %g, it must be positive", name, (double)a->scale);
    return TE_OK;
}
TE_API te_status te__attention_check_fp8_output(te_context *ctx, const te_attention_args *a, int fp8_output,
                                                const char *name) {
    TE_REQUIRE(fp8_output || !(a->out_scale || a->amax), ctx, TE_ERROR_VALUE,
               "%s: out_scale or amax is given, and the attention was declared without `fp8_output`", name);
    return TE_OK;
}
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
/* Checks the score bias of a call of an attention kernel. bias, bias_dim0, bias_dim1: the options of these names. */
TE_API te_status te__attention_check_bias(te_context *ctx, const te_attention_args *a, int cross, int bias,
                                          int bias_dim0, int bias_dim1, const char *name) {
    const int keys = cross ? a->kv_seq : a->seq, is_table = bias == TE_BIAS_heads || bias == TE_BIAS_shared;
    TE_REQUIRE(a->bias || !bias, ctx, TE_ERROR_NULL, "%s: bias is null", name);
    TE_REQUIRE(!is_table || a->seq <= bias_dim0, ctx, TE_ERROR_SHAPE,
               "%s: sequences of %d queries, its bias was declared with bias_queries %d", name, a->seq, bias_dim0);
    TE_REQUIRE(!is_table || keys <= bias_dim1, ctx, TE_ERROR_SHAPE,
               "%s: sequences of %d keys, its bias was declared with bias_keys %d", name, keys, bias_dim1);
    return TE_OK;
}

#endif
