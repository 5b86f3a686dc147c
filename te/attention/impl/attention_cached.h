/* attention_cached.h -- attention over a key-value cache (the option cached), on both targets: the kernel that stores
 * new keys and values in the cache, the choice of the kernels that a call runs, and the macro that declares these
 * kernels. te/te.h leaves this file out, because training uses no cache; te/cache/cache.h and te/infer.h include it.
 *
 *     CUDA    On compute capability 9.0, in bf16 and f16: attention_sm90_decode.h for a few new rows (conditions:
 *             te__decode_exists), and attention_sm90_prefill.h for more new rows, unless the cache has 8 bits (further
 *             conditions: attention_cuda.h). In all other cases, one kernel stores the new rows in the cache, then the
 *             forward kernel for sm_80 or, in f32, that of attention_simt_f32.h runs.
 *     host    The forward kernel of attention_host.h, which reads the cache.
 */
#ifndef TE_ATTENTION_CACHED_H
#define TE_ATTENTION_CACHED_H

#include "../attention_kernels.h" /* TE_ATTENTION_FORWARD_OF, te_attention_args */
#if TE_CUDA
#include "attention_sm90_decode.h"  /* bf16 and f16 on compute capability 9.0: decoding, a few new rows over a cache */
#include "attention_sm90_prefill.h" /* bf16 and f16 on compute capability 9.0: many new rows over a cache */
#endif

/* ---- storing keys and values in a cache --------------------------------------------------------------------------
 * This kernel copies the keys and values of the batch's rows to the pages of the cache; in the formats of 8 bits, it
 * rounds them. Memory traffic: for each row, kv_heads * (head_dim + value_dim) elements are read, and as many written.
 *
 * Do this, at file scope, then call name##_launch before the attention that reads the cache:
 *     // name, dtype, heads, kv_heads, head_dim, value_dim (0: values are parts of keys), te_cache_format
 *     TE_ATTENTION_CACHE_STORE(block_attn_store, bf16, 12, 12, 64, 64, TE_CACHE_FORMAT_list) */
/* Sizes of the kernel that stores keys and values in a cache. A block has TE_CACHE_STORE_THREADS threads. A thread
 * copies the same vector (of up to 8 elements) of TE_CACHE_STORE_AHEAD consecutive rows, so that it has several loads
 * in flight, and computes the vector's place in a row only once. A block copies TE_CACHE_STORE_VECTORS such vectors. In
 * the formats of 8 bits, TE_CACHE_STORE_LANES lanes together round one row (the key or the value of one head), and a
 * block rounds TE_CACHE_STORE_ROWS such rows. */
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
/* Where the key or the value of one head of a new row is stored. key: the index of the key in its sequence, or -1 if
 * this key and its value are not to be stored; from: the offset of the key or value in qkv; to: the offset of its copy
 * from the start of the cache's pages; swizzle: the number that is XORed with the indices of its 16-byte chunks
 * (te__cache_swizzle). */
typedef struct te__cache_place { int64_t from, to; int key, swizzle; } te__cache_place;
/* Returns how many rows of zeros follow the value of a sequence's last token. key: the index of this token. */
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
/* Returns the number of vectors into which the keys and values of one row of qkv are divided. A vector has at most 8
 * elements. The vectors of each head's key come first, then those of each head's value. */
TE_BOTH int te__cache_store_vectors(const te__cache_store_shape k) {
    return k.kv_heads * ((k.d + 7) / 8 + (k.dv + 7) / 8);
}
/* A vector of up to 8 elements of a key or a value. head: the KV head; at: the index of the vector's first element
 * within the key or value; n: the number of elements of the vector; d: the number of elements of the key or value. */
typedef struct te__cache_vector { int is_value, head, at, n, d; } te__cache_vector;
/* Returns the vector with the index `vector` within a row of qkv, in the order of te__cache_store_vectors. */
TE_FN te__cache_vector te__cache_vector_of(int vector, const te__cache_store_shape k) {
    const int key_vectors = k.kv_heads * ((k.d + 7) / 8);
    te__cache_vector v;
    v.is_value = vector >= key_vectors, v.d = v.is_value ? k.dv : k.d;
    const int of = v.is_value ? vector - key_vectors : vector, in_head = (v.d + 7) / 8;
    v.head = of / in_head, v.at = of % in_head * 8, v.n = v.d - v.at < 8 ? v.d - v.at : 8;
    return v;
}
/* A sequence of the batch: its rows, how many of its tokens are already in the cache (-1 if the sequence does not fit),
 * and the indices of its pages. */
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
/* Stores a vector of n elements of dtype t at p[i]. This function exists because nvcc 13 splits the 16-byte store of
 * te_store8, which takes floats, into four stores. */
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
/* Copies the vector v, from each of TE_CACHE_STORE_AHEAD rows of qkv, to the cache. row: the first of these rows. After
 * the value of a sequence's last row, also stores rows of zeros (te_attention_cache.zero_rows). */
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
 * key, or kv_heads + the KV head for a value. g: the lanes that together process this row. */
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
    /* NaN is replaced by infinity here, because te_lanes_max ignores NaN */
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
/* How the work of the kernel is divided into units. In the formats of 8 bits, a unit is the key or the value of one
 * head of one row; in the other formats, it is one te__cache_vector in each of TE_CACHE_STORE_AHEAD consecutive rows.
 * rows: the number of rows of a unit; in_row: the number of units into which `rows` rows of qkv are divided; in_block:
 * the number of units that a thread block stores. */
typedef struct te__cache_store_work { int rows, in_row, in_block; } te__cache_store_work;
TE_BOTH te__cache_store_work te__cache_store_work_of(const te__cache_store_shape k) {
    te__cache_store_work w;
    const int has_scales = TE__CACHE_HAS_SCALES(k.format);
    w.rows = has_scales ? 1 : (int)TE_CACHE_STORE_AHEAD;
    w.in_row = has_scales ? (k.dv ? 2 : 1) * k.kv_heads : te__cache_store_vectors(k);
    w.in_block = has_scales ? (int)TE_CACHE_STORE_ROWS : (int)TE_CACHE_STORE_VECTORS;
    return w;
}
/* The body of the kernel that stores keys and values in a cache. Grid: one block for every in_block units of work
 * (te__cache_store_work). */
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

/* ---- the declaration of an attention over a cache ---------------------------------------------------------------- */

#undef TE__HAS_CACHED_ATTENTION
#define TE__HAS_CACHED_ATTENTION 1
#undef TE_ATTENTION_CACHED_OF
#if TE_CUDA
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
struct te__attn_sm90_cached : te__attn_sm90_prefill<T, HEADS, KV_HEADS, D, F> {};

/* The kernels of an attention over a cache. If each sequence has only a few new rows, a call runs `decode` and then
 * `merge` (attention_sm90_decode.h). Otherwise it runs `store` and then `prefill` (attention_sm90_prefill.h) or, where
 * that kernel does not exist or does not run, `fallback`, the forward kernel for sm_80 (in f32, the kernel of
 * attention_simt_f32.h). If only some sequences have few new rows, `decode` processes these sequences, and `prefill` or
 * `fallback` processes the others. Thus the choice of the kernel for one sequence does not depend on the other
 * sequences of the batch. */
typedef struct te__attn_cached_kernels {
    te__attn_kernel fallback;
    /* the kernel for decoding, which also stores the keys and values of the new rows in the cache */
    te_sm90_kernel decode;
    te_sm90_kernel prefill;
    const void *merge;
    /* stores the keys and values of the new rows in the cache; needed before `prefill` and `fallback` */
    te_status (*store)(te_context *ctx, const te_attention_args *a);
} te__attn_cached_kernels;

template <te_dtype T, int HEADS, int KV_HEADS, int D, class F> struct te__attn_cached_dispatch {
    static_assert(F::CACHED, "te: attention: the option cached is missing");
    typedef te__attn_forward<T, HEADS, KV_HEADS, D, F> fallback;
    typedef te__attn_sm90_decode<T, HEADS, KV_HEADS, D, F> decode;
    typedef te__attn_wgmma_forward<T, HEADS, KV_HEADS, D, F> prefill;
    typedef typename decode::merge merge;
    static te_status launch(te_context *ctx, te__attn_cached_kernels *k, const te_attention_args *a, const char *name) {
        TE_TRY((te__attention_check_variant<HEADS, F>(ctx, a, name)));
        const int can_decode = decode::EXISTS && ctx->capability == 900 &&
                               te__sm90_kernel_ready(&k->decode, decode::SHARED, ctx->device);
        const int decode_rows = can_decode ? decode::rows(a) : 0;
        if (a->seq <= decode_rows) return decode::launch(ctx, k->decode.kernel, k->merge, a, name);
        const te__tensor_map_encode_fn encoder = prefill::EXISTS ? te__tensor_map_encoder(ctx) : 0;
        const te__tensor_map_encode_fn encode =
            encoder && te__sm90_kernel_ready(&k->prefill, prefill::SHARED, ctx->device) ? encoder : 0;
        if (!encode) TE_TRY((te__attn_check_replaced<prefill, F>(ctx, &k->prefill, name)));
        te_attention_args args = *a;
        /* Here a->seq > decode_rows. Without cu_seqlens, or with rows == batch * seq, each sequence has a->seq new
         * rows; these are too many for the decoding kernel, which then has nothing to do. */
        if (decode_rows && a->cu_seqlens && a->rows < (int64_t)a->batch * a->seq) {
            args.cache.short_rows = args.seq = decode_rows;
            TE_TRY(decode::launch(ctx, k->decode.kernel, k->merge, &args, name));
            args.seq = a->seq;
        }
        args.cache.zero_rows = encode ? prefill::KEYS : 0;
        TE_TRY(k->store(ctx, &args));
        if (encode) return prefill::launch(ctx, k->prefill.kernel, encode, &args, name);
        return te__attn_enqueue<fallback>(ctx, &k->fallback, a->batch * HEADS, a->seq, &args, name);
    }
};

#define TE_ATTENTION_CACHED_OF(name, dtype, heads, kv_heads, head_dim, options)                                      \
    TE__ATTENTION_CUDA_VARIANT(name, dtype, heads, kv_heads, head_dim, options)                                      \
    typedef te__attn_cached_dispatch<TE_##dtype, (heads), (kv_heads), (head_dim), name##_variant> name##_of;         \
    TE__ATTENTION_SHELL(name, name##_of::fallback)                                                                   \
    TE__ATTENTION_SHELL(name##_decode, name##_of::decode)                                                            \
    TE__ATTENTION_SHELL(name##_prefill, name##_of::prefill)                                                          \
    TE__ATTENTION_SHELL(name##_merge, name##_of::merge)                                                              \
    TE_ATTENTION_CACHE_STORE(name##_store, dtype, heads, kv_heads, head_dim,                                         \
                             (te__attn_stored_value_dim<(head_dim), name##_variant>()),                              \
                             name##_variant::CACHE_FORMAT)                                                           \
    TE_UNUSED static te__attn_cached_kernels name##_kernels = {/* fallback */ {(const void *)name, 0, 0},            \
                                                               /* decode */ {(const void *)name##_decode, 0, 0},     \
                                                               /* prefill */ {(const void *)name##_prefill, 0, 0},   \
                                                               /* merge */ (const void *)name##_merge,               \
                                                               /* store */ name##_store_launch};                     \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                                    \
        return name##_of::launch(ctx, &name##_kernels, a, #name);                                                    \
    }
#else
/* Defines name##_launch, which stores the new keys and values in the cache, then runs forward, which reads keys and
 * values from the cache. */
#define TE_ATTENTION_CACHED_OF(name, dtype, heads, kv_heads, head_dim, options)                                     \
    TE_ATTENTION_FORWARD_OF(name##_kernel, dtype, heads, kv_heads, head_dim, options)                               \
    TE_ATTENTION_CACHE_STORE(name##_store, dtype, heads, kv_heads, head_dim,                                        \
                             te__attn_stored_value_dim(head_dim, name##_kernel_variant()),                          \
                             name##_kernel_variant().cache_format)                                                  \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                                   \
        TE_TRY(name##_store_launch(ctx, a));                                                                        \
        return name##_kernel_launch(ctx, a);                                                                        \
    }
#endif

#endif
