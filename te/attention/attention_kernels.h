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
 *                                               0: `sum` is not supported (on the host, in f32 and with varlen)
 *
 * Any batch, seq >= 1 and head_dim <= 256 are supported; on CUDA in bf16 and f16 head_dim must be a multiple of 8.
 * Pointers must be aligned to TE_ACCESS bytes. Sums are computed in float and in a fixed order, so that equal inputs
 * lead to bitwise identical results, unless te_context.attention_nondeterministic is set.
 *
 * This header also has small kernels that run before or after forward and backward: TE_ATTENTION_RELATIVE_BIAS,
 * TE_ATTENTION_CACHE_STORE, TE_ATTENTION_SINKS_GRAD and TE_ATTENTION_MAX_LOGIT. TE_ATTENTION_DBIAS, in
 * impl/attention_cuda.h and impl/attention_host.h, computes the gradient of a score bias.
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
 * te_attention_args.bias_by_distance, [heads, 2 max_distance + 1]: the bias of each distance from -max_distance to
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
    float *bias_by_distance; /* output, [heads, 2 max_distance + 1]: the bias of each head and distance */
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

/* ---- storing keys and values in a cache --------------------------------------------------------------------------
 * This kernel copies the keys and values of the batch's rows to the pages of the cache; in the formats of 8 bits, it
 * rounds them. Memory traffic: for each row, kv_heads * (head_dim + value_dim) elements are read, and as many written.
 *
 * Do this, at file scope, then call name##_launch before the attention that reads the cache:
 *     // name, dtype, heads, kv_heads, head_dim, value_dim (0: values are parts of keys), te_cache_format
 *     TE_ATTENTION_CACHE_STORE(block_attn_store, bf16, 12, 12, 64, 64, TE_CACHE_FORMAT_list) */
/* Sizes of the kernel that stores keys and values in a cache. TE_CACHE_STORE_THREADS: the threads of a block;
 * TE_CACHE_STORE_AHEAD: the number of consecutive rows of which a thread copies the same vector (of up to 8 elements),
 * so that it has several loads in flight and computes the vector's place in a row once; TE_CACHE_STORE_VECTORS: how
 * many such vectors a block copies. In the formats of 8 bits, TE_CACHE_STORE_LANES lanes together round one row (the
 * key or the value of one head), and a block rounds TE_CACHE_STORE_ROWS such rows. */
enum {
    TE_CACHE_STORE_THREADS = TE_CUDA ? 128 : 1,
    TE_CACHE_STORE_AHEAD = 4,
    TE_CACHE_STORE_VECTORS = TE_CUDA ? (int)TE_CACHE_STORE_THREADS : 1 << 14,
    TE_CACHE_STORE_LANES = TE_CUDA ? 32 : 1,
    TE_CACHE_STORE_ROWS = TE_CUDA ? 8 : 1 << 12
};

typedef struct te__cache_store_shape { int heads, kv_heads, d, dv, format; te_dtype dtype; } te__cache_store_shape;
TE_BOTH te__cache_store_shape te__cache_store_shape_of(int heads, int kv_heads, int d, int dv, te_dtype dtype,
                                                       int format) {
    te__cache_store_shape k;
    k.heads = heads, k.kv_heads = kv_heads, k.d = d, k.dv = dv, k.format = format, k.dtype = dtype;
    return k;
}
/* Where the key or the value of one head of a new row is stored. key: the index of the key in its sequence, or -1 if it
 * is not to be stored; from: the offset of the key or value in qkv; to: its offset from the start of the cache's pages;
 * swizzle: the number with which the indices of its 16-byte chunks are XORed (te__cache_swizzle). */
typedef struct te__cache_place { int64_t from, to; int key, swizzle; } te__cache_place;
/* Returns how many rows of zeros follow the value of the last token of a sequence, whose index is `key`. */
TE_FN int te__cache_zeros_behind(const te_attention_cache *c, int key) {
    if (!c->zero_rows) return 0;
    const int in_tile = key % c->zero_rows, in_page = (int)((unsigned)key & ((1u << c->page_shift) - 1));
    const int of_tile = c->zero_rows - 1 - in_tile, of_page = c->page_rows - 1 - in_page;
    return of_tile < of_page ? of_tile : of_page;
}
/* Returns the offset, in qkv, of the key or the value of one head of a row. */
TE_FN int64_t te__cache_source(int row, int is_value, int head, const te__cache_store_shape k) {
    const int64_t width = (int64_t)(k.heads + k.kv_heads) * k.d + (int64_t)k.kv_heads * k.dv;
    return row * width + (int64_t)(k.heads + (is_value ? k.kv_heads : head)) * k.d +
           (is_value ? (int64_t)head * k.dv : 0);
}
TE_FN te__cache_place te__cache_place_of(const te_attention_args *a, const te_sequences *s, int row, int is_value,
                                         int head, const te__cache_store_shape k) {
    const int i = te_sequence_of(s, row, 0), past = a->cache.past[i], d = is_value ? k.dv : k.d;
    const te_sequence rows = te_sequence_rows(s, i);
    te__cache_place p;
    p.key = past < 0 || row - rows.first >= rows.count ? -1 : past + row - rows.first;
    p.from = te__cache_source(row, is_value, head, k);
    if (p.key < 0) return p.to = 0, p.swizzle = 0, p;
    p.to = te__cache_row(&a->cache, te__cache_pages(&a->cache, i),
                         te__cache_head_rows(&a->cache, is_value, head, k.kv_heads, k.d, k.dv, k.format), p.key, d,
                         k.format);
    p.swizzle = te__cache_swizzle(p.key, d, k.dtype, k.format);
    return p;
}
/* Return the number of vectors into which the keys and values of one row of qkv are divided. A vector has at most 8
 * elements. The vectors of each head's key come first, then those of each head's value. */
TE_BOTH int te__cache_store_vectors(const te__cache_store_shape k) {
    return k.kv_heads * ((k.d + 7) / 8 + (k.dv + 7) / 8);
}
/* A vector of up to 8 elements of a key or a value. head: its KV head; at, n: its first element in the row of this
 * head, and the number of its elements; d: the number of elements of the row. */
typedef struct te__cache_vector { int is_value, head, at, n, d; } te__cache_vector;
/* Returns the vector that has the number `vector` within its row of qkv, in the order of te__cache_store_vectors. */
TE_FN te__cache_vector te__cache_vector_of(int vector, const te__cache_store_shape k) {
    const int key_vectors = k.kv_heads * ((k.d + 7) / 8);
    te__cache_vector v;
    v.is_value = vector >= key_vectors, v.d = v.is_value ? k.dv : k.d;
    const int of = v.is_value ? vector - key_vectors : vector, in_head = (v.d + 7) / 8;
    v.head = of / in_head, v.at = of % in_head * 8, v.n = v.d - v.at < 8 ? v.d - v.at : 8;
    return v;
}
/* A sequence of the batch: its rows, how many of its tokens are in the cache, or -1, and its page numbers. */
typedef struct te__cache_sequence {
    te_sequence rows;
    int past;
    const int32_t *pages;
} te__cache_sequence;
TE_FN te__cache_sequence te__cache_sequence_of(const te_attention_args *a, const te_sequences *s, int row) {
    const int i = te_sequence_of(s, row, 0);
    te__cache_sequence q;
    q.rows = te_sequence_rows(s, i), q.past = a->cache.past[i], q.pages = te__cache_pages(&a->cache, i);
    return q;
}
/* Stores a vector of n elements of dtype t at p[i]. (For te_store8, whose vectors are floats, nvcc 13 splits the store
 * of 16 bytes here into four.) */
TE_FN void te__cache_store8(void *p, int64_t i, const te_vec8 *e, int n, int aligned, te_dtype t) {
    float v[8];
#if TE_CUDA
    if (aligned && t != TE_f32) {
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"((uint16_t *)p + i), "r"(e->w[0]), "r"(e->w[1]),
                     "r"(e->w[2]), "r"(e->w[3])
                     : "memory");
        return;
    }
#endif
    te_vec8_floats(v, e, t);
    te_store8(p, i, v, n, aligned, t);
}
/* Copies one vector of TE_CACHE_STORE_AHEAD rows of qkv, from row `row` on, to the cache. Behind the value of the last
 * row of a sequence, also stores zeros (te_attention_cache.zero_rows). */
TE_FN void te__cache_store_vector(const te_attention_args *a, const te_sequences *s, int row, te__cache_vector v,
                                  const te__cache_store_shape k) {
    const int aligned = k.d % 8 == 0 && k.dv % 8 == 0;
    const te_vec8 zeros = {{0, 0, 0, 0, 0, 0, 0, 0}};
    te_vec8 e[TE_CACHE_STORE_AHEAD];
    TE_UNROLL for (int u = 0; u < TE_CACHE_STORE_AHEAD; u++)
        if (row + u < s->rows)
            te_vec8_load(&e[u], a->qkv, te__cache_source(row + u, v.is_value, v.head, k) + v.at, v.n, aligned, k.dtype);
    const int64_t rows = te__cache_head_rows(&a->cache, v.is_value, v.head, k.kv_heads, k.d, k.dv, k.format);
    te__cache_sequence q = te__cache_sequence_of(a, s, row);
    TE_UNROLL for (int u = 0; u < TE_CACHE_STORE_AHEAD; u++) {
        if (row + u >= s->rows) return;
        if (row + u - q.rows.first >= q.rows.count) q = te__cache_sequence_of(a, s, row + u);
        const int in = row + u - q.rows.first, key = q.past + in;
        if (q.past < 0 || in >= q.rows.count) continue;
        const int64_t to = te__cache_row(&a->cache, q.pages, rows, key, v.d, k.format);
        const int swizzle = te__cache_swizzle(key, v.d, k.dtype, k.format);
        te__cache_store8(a->cache.pages, to + (v.at ^ swizzle * 8), &e[u], v.n, aligned, k.dtype);
        const int count = v.is_value && in == q.rows.count - 1 ? te__cache_zeros_behind(&a->cache, key) : 0;
        for (int j = 1; j <= count; j++)
            te__cache_store8(a->cache.pages, to + (int64_t)j * v.d + v.at, &zeros, v.n, aligned, k.dtype);
    }
}
/* Rounds the key or the value of one row and one KV head to 8 bits, and stores it in the cache. of: the KV head for a
 * key, or kv_heads + the KV head for a value. g: the lanes that together process it. */
TE_FN void te__cache_store_quantized(const te_attention_args *a, const te_sequences *s, int row, int of,
                                     const te__cache_store_shape k, te_lanes *g) {
    const int is_value = of >= k.kv_heads, head = is_value ? of - k.kv_heads : of, d = is_value ? k.dv : k.d;
    const int aligned = k.d % 8 == 0 && k.dv % 8 == 0;
    const te__cache_place p = te__cache_place_of(a, s, row, is_value, head, k);
    uint32_t bits = 0, w[2];
    float v[8];
    if (p.key < 0) return;
    for (int at = g->id * 8; at < d; at += g->count * 8) {
        te_load8(v, a->qkv, p.from + at, d - at < 8 ? d - at : 8, aligned, k.dtype);
        bits = te_amax_bits8(bits, v);
    }
    /* NaN becomes infinity here, because te_lanes_max ignores NaN */
    float amax = te_float_of_bits(bits < 0x7f800000u ? bits : 0x7f800000u);
    te_lanes_max(&amax, g);
    const te__cache_scales c = te__cache_scales_of(te_bits_of_float(amax), k.format);
    if (g->id == 0) *te__cache_scale(&a->cache, p.to, p.key, d) = c.scale;
    for (int at = g->id * 8; at < d; at += g->count * 8) {
        const int n = d - at < 8 ? d - at : 8;
        uint8_t *to = (uint8_t *)a->cache.pages + p.to + (at ^ p.swizzle * 16);
        te_load8(v, a->qkv, p.from + at, n, aligned, k.dtype);
        te__cache_quantize8(w, v, c.inverse, k.format);
        if (aligned) ((uint32_t *)(void *)to)[0] = w[0], ((uint32_t *)(void *)to)[1] = w[1];
        else for (int j = 0; j < n; j++) to[j] = (uint8_t)(w[j / 4] >> j % 4 * 8);
    }
}
/* How the work of the kernel is divided. in_row: how many units `rows` rows of qkv have, where a unit is the key or the
 * value of one head of one row (8 bits), or the same vector of TE_CACHE_STORE_AHEAD rows (other formats); in_block: how
 * many units a block stores. */
typedef struct te__cache_store_work { int rows, in_row, in_block; } te__cache_store_work;
TE_BOTH te__cache_store_work te__cache_store_work_of(const te__cache_store_shape k) {
    te__cache_store_work w;
    const int has_scales = TE__CACHE_HAS_SCALES(k.format);
    w.rows = has_scales ? 1 : (int)TE_CACHE_STORE_AHEAD;
    w.in_row = has_scales ? (k.dv ? 2 : 1) * k.kv_heads : te__cache_store_vectors(k);
    w.in_block = has_scales ? (int)TE_CACHE_STORE_ROWS : (int)TE_CACHE_STORE_VECTORS;
    return w;
}
/* The body of the kernel that stores keys and values in a cache. Grid: one block for every
 * te__cache_store_work.in_block units, which are numbered row after row. */
TE_FN void te__cache_store_body(const te_attention_args *a, te_block b, const te__cache_store_shape k) {
    int group;
    const te_sequences s = te__attn_sequences(a);
    if (TE__CACHE_HAS_SCALES(k.format)) {
        te_lanes g = te_lanes_here(TE_CACHE_STORE_LANES, &group);
        const int in_row = (k.dv ? 2 : 1) * k.kv_heads, groups = TE_CACHE_STORE_THREADS / TE_CACHE_STORE_LANES;
        const int64_t from = (int64_t)b.x * TE_CACHE_STORE_ROWS, all = (int64_t)s.rows * in_row;
        for (int64_t j = from + group; j < te_min(all, from + TE_CACHE_STORE_ROWS); j += groups)
            te__cache_store_quantized(a, &s, (int)(j / in_row), (int)(j % in_row), k, &g);
        return;
    }
    const te_lanes g = te_lanes_here(TE_CACHE_STORE_THREADS, &group);
    const int vectors = te__cache_store_vectors(k);
    const int64_t first = (int64_t)b.x * TE_CACHE_STORE_VECTORS, before = first / vectors;
    const int skipped = (int)(first - before * vectors);
    for (int j = skipped + g.id; j < skipped + TE_CACHE_STORE_VECTORS; j += g.count) {
        const int64_t row = (before + j / vectors) * TE_CACHE_STORE_AHEAD;
        if (row >= s.rows) return;
        te__cache_store_vector(a, &s, (int)row, te__cache_vector_of(j % vectors, k), k);
    }
}
#define TE_ATTENTION_CACHE_STORE(name, dtype, heads, kv_heads, head_dim, value_dim, format)                          \
    TE_KERNEL(name##_rows, TE_CACHE_STORE_THREADS, te_attention_args,                                                \
        te__cache_store_body(te_args, te_at,                                                                         \
                             te__cache_store_shape_of(heads, kv_heads, head_dim, value_dim, TE_##dtype, format)))    \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                                    \
        const te__cache_store_work w = te__cache_store_work_of(                                                      \
            te__cache_store_shape_of(heads, kv_heads, head_dim, value_dim, TE_##dtype, format));                     \
        const int64_t all = te_ceil_div(te__attn_sequences(a).rows, w.rows) * w.in_row;                              \
        return name##_rows_launch(ctx, te__grid_of(te_ceil_div(all, w.in_block), 1), a);                             \
    }

/* ---- rows of lse, delta and row_max_logit ------------------------------------------------------------------------ */

/* The layout of the arrays lse, delta and row_max_logit, which have one number for each row and head: [heads, rows] if
 * by_head is 1, else [sequences, heads, max_seqlen]. */
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
/* Return the layout of lse, delta and row_max_logit in a call. varlen: 1 if the call's kernels have the option
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
 *     backward: dP_j / dsink = -P_j p, hence dsink = -sum over rows of p sum_j P_j (dO V_j)
 *               = -sum over rows of p delta, where delta = rowsum(dO * O) as without sinks
 *
 * Dropout does not drop sinks. All other gradients are computed as without sinks, because they depend on the sinks only
 * through lse.
 *
 * Do this, at file scope, then call te__attention_sinks_grad after the backward, which has written delta:
 *     TE_ATTENTION_SINKS_GRAD(block_attn_sinks, bf16, 12)        // name, dtype, heads
 *
 * Memory traffic: lse and delta are read once, 8 bytes for each row and head. */
/* the number of rows that one block adds up */
enum { TE_SINKS_THREADS = TE_CUDA ? 256 : 1, TE_SINKS_ROWS = 1024 };

typedef struct te_sinks_grad_args {
    const void *sinks;        /* the learnt logits, [heads] */
    const float *lse, *delta;
    /* Output, [te__attention_sinks_grad_blocks(rows), heads]: partial sums. Their sum over the first axis is the
     * gradient of sinks. */
    float *sum;
    te_attention_rows layout; /* the layout of lse and delta */
} te_sinks_grad_args;
typedef te_status (*te_sinks_grad_fn)(te_context *ctx, te_grid grid, const te_sinks_grad_args *a);

/* The body of the kernel that computes partial sums of the gradient of sinks. Grid: (ceil(rows / TE_SINKS_ROWS),
 * heads). */
TE_FN void te__attention_sinks_grad_body(const te_sinks_grad_args *a, te_block b, te_dtype dtype, int heads) {
    int group;
    te_lanes g = te_lanes_here(TE_SINKS_THREADS, &group);
    const int head = b.y, first = b.x * TE_SINKS_ROWS, rows = te_sequence_first(&a->layout.of, a->layout.of.count);
    const int end = rows - first < TE_SINKS_ROWS ? rows : first + TE_SINKS_ROWS;
    const float sink = te_load(a->sinks, head, dtype);
    float sum = 0;
    for (int row = first + g.id; row < end; row += g.count) {
        const int64_t at = te__attn_row_index(&a->layout, head, heads, row);
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
 * sinks. sum: output (te_sinks_grad_args.sum). varlen: 1 if the backward that has run with the arguments `a` has the
 * option varlen. */
TE_API te_status te__attention_sinks_grad(te_context *ctx, te_sinks_grad_fn launch, const te_attention_args *a,
                                          float *sum, int heads, int varlen) {
    te_sinks_grad_args s;
    memset(&s, 0, sizeof s);
    s.sinks = a->sinks, s.lse = a->lse, s.delta = a->delta, s.sum = sum, s.layout = te__attn_fwd_sequence(a, varlen);
    return launch(ctx, te__grid_of(te__attention_sinks_grad_blocks(s.layout.of.rows), heads), &s);
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

#endif
