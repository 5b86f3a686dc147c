/* attention_fp8.h -- attention forward in FP8, for both targets: scaling, the layout of the operands, and the two
 * passes that quantize them; the kernels are in attention_host.h and attention_sm90_forward_fp8.h. q, k and v are
 * rounded to e4m3 with one scale per head. The scale depends on amax, the largest |x| of that head over all rows of the
 * call: it is 448 / amax for v, 15 / amax for k, and for q a number up to 15 / amax, chosen so that the factor that
 * converts q k^T of e4m3 numbers to a score is a power of two.
 *
 * Do this, at file scope, then call name##_launch with name##_scratch_bytes(ctx, rows) bytes of scratch:
 *     // name, dtype, heads, kv_heads, head_dim, options
 *     TE_ATTENTION_FORWARD_FP8(block_attn, bf16, 16, 4, 128, TE__ATTENTION_PLAIN(1))
 *     args.scratch = scratch;
 *     TE_TRY(block_attn_launch(ctx, &args));
 *
 * Of the options of attention_options.h, this attention supports only left and right. head_dim is 64, 128 or 256, dtype
 * bf16 or f16, and a call has up to TE_ATTENTION_FP8_MAX_SEQUENCES sequences. On CUDA it needs compute capability 9.0
 * (sm_90a).
 *
 * The operands of all products are e4m3; the accumulators are float (on CUDA f16 for the scores).
 * P = 2^(score - row_max + 4) is e4m3, too; row_max is the largest score in base 2, rounded up to an integer. Because
 * row_max is an integer, it changes only the exponent of P, and the rounding of the fraction of P does not depend on
 * the row_max of the previous tiles of keys. Probabilities below 2^-14 of the largest become 0. The softmax sum and lse
 * use P before it is rounded to e4m3. If a head has an infinity, all results that depend on that head are NaN.
 *
 * Memory traffic of the two passes: amax reads qkv, 2 bytes for each element; cast reads qkv and writes e4m3, 3 bytes.
 * v is written transposed, so that all operands of wgmma are contiguous along the axis of summation.
 */
#ifndef TE_ATTENTION_FP8_H
#define TE_ATTENTION_FP8_H

#include "../../core/lanes.h"        /* te_amax_atomic_max */
#include "../../core/dtype.h"     /* te__fp8_word */
#include "../attention_options.h"   /* te_attention_args */

enum {
    /* The largest number of sequences of a call. It is limited because the transposed v pads each sequence by up to 15
     * keys, and the size of the scratch memory must allow for that. */
    TE_ATTENTION_FP8_MAX_SEQUENCES = 1024,
    TE__ATTN_FP8_THREADS = TE_CUDA ? 256 : 1,
    /* the number of rows of a head that a block processes in either of the two passes, amax and cast */
    TE__ATTN_FP8_ROWS = 128,
    /* the transposed v permutes the keys within each group of this many keys */
    TE__ATTN_FP8_KEYS = 16,
    /* The summand 4 in P = 2^(score - row_max + 4): with it, P of the largest score is 8 to 16, while e4m3 ranges from
     * 2^-9 to 448. With a larger exponent fewer small probabilities would become 0, but P would exceed the range of
     * e4m3 more often, and the CUDA kernel would have to rescale more often. */
    TE__ATTN_FP8_P_EXPONENT = 4,
    /* The largest |q| and |k| in e4m3. With this limit a score, a sum of up to 256 products, stays below 65504, the
     * largest f16. Numbers down to 2^-9 of the limit are still normal e4m3 numbers. */
    TE__ATTN_FP8_QK_MAX = 15
};

/* The operands of an attention in FP8, which are laid out in the call's scratch memory: e4m3 numbers and their amax. */
typedef struct te_attention_fp8_operands {
    float *amax; /* [heads + 2 * kv_heads]: the amax of each head of q, of each head of k, then of each head of v */
    /* the operands in e4m3: q [rows, heads, d], k [rows, kv_heads, d], and v, transposed, [batch, kv_heads, d, keys] */
    uint8_t *q, *k, *v;
    /* the number of keys in a row of the transposed v: seq rounded up to TE__ATTN_FP8_KEYS; the padding is 0 */
    int64_t keys;
} te_attention_fp8_operands;

TE_BOTH te_attention_fp8_operands te__attn_fp8_operands_of(const te_attention_args *a, int heads, int kv_heads, int d) {
    const int64_t rows = (int64_t)a->batch * a->seq;
    te_attention_fp8_operands p;
    p.amax = (float *)a->scratch;
    p.q = (uint8_t *)a->scratch + te_round_up((heads + 2 * kv_heads) * (int64_t)sizeof(float), TE_ALIGN);
    p.k = p.q + te_round_up(rows * heads * d, TE_ALIGN), p.v = p.k + te_round_up(rows * kv_heads * d, TE_ALIGN);
    p.keys = te_round_up(a->seq, TE__ATTN_FP8_KEYS);
    return p;
}
TE_API size_t te__attn_fp8_bytes(int64_t rows, int heads, int kv_heads, int d) {
    const int64_t sequences = te_min(rows, TE_ATTENTION_FP8_MAX_SEQUENCES);
    const int64_t keys = rows + sequences * (TE__ATTN_FP8_KEYS - 1);
    const int64_t elements = ((heads + kv_heads) * rows + kv_heads * keys) * d;
    return (size_t)((heads + 2 * kv_heads) * (int64_t)sizeof(float) + elements + 4 * TE_ALIGN);
}
/* Returns the byte at which a key is stored in a row of the transposed v. In the accumulators of the scores, lane t of
 * a quad has the keys 2 * t, 2 * t + 1, 2 * t + 8 and 2 * t + 9 of sixteen keys; in the e4m3 operand P the lane needs
 * four adjacent bytes, 4 * t to 4 * t + 3. Permuting the keys of v in the same way avoids shuffles between lanes. */
TE_BOTH int te__attn_fp8_byte_of_key(int key) {
    return (key & ~15) | (key & 6) << 1 | (key & 8) >> 2 | (key & 1);
}
TE_BOTH int te__attn_fp8_key_of_byte(int column) {
    return (column & ~15) | (column & 12) >> 1 | (column & 2) << 2 | (column & 1);
}
/* te__attn_fp8_scale returns the scale of a head, limit / amax, which maps the head's amax to `limit`;
 * te__attn_fp8_inverse returns amax / limit. If the head is not scaled (te__attn_fp8_is_scaled returns 0), because it
 * has only zeros or numbers so small that limit / amax would overflow, both return 1. */
TE_FN int te__attn_fp8_is_scaled(float amax) { return amax > 1e-30f; }
TE_FN float te__attn_fp8_scale(float amax, float limit) { return te__attn_fp8_is_scaled(amax) ? limit / amax : 1.0f; }
TE_FN float te__attn_fp8_inverse(float amax, float limit) { return te__attn_fp8_is_scaled(amax) ? amax / limit : 1.0f; }
/* Returns the factor by which q k^T, computed from e4m3 numbers, must be multiplied to yield the score times log2(e),
 * if q and k are both scaled such that their amax becomes TE__ATTN_FP8_QK_MAX. The kernels use this factor rounded to a
 * power of two (te__attn_fp8_score_unit). q, k: the amax of the head of q and of the head of k. */
TE_FN float te__attn_fp8_raw_score_unit(float q, float k, float scale) {
    const float limit = (float)TE__ATTN_FP8_QK_MAX, log2e = 1.44269504088896341f;
    return te__attn_fp8_inverse(q, limit) * te__attn_fp8_inverse(k, limit) * scale * log2e;
}
/* Returns the factor that the kernels use to convert q k^T of e4m3 numbers to the score times log2(e):
 * te__attn_fp8_raw_score_unit, rounded up to a power of two, so that f16 represents it exactly. Extremely large or
 * small factors are not rounded. */
TE_FN float te__attn_fp8_score_unit(float q, float k, float scale) {
    const float raw = te__attn_fp8_raw_score_unit(q, k, scale);
    if (!(raw > 1e-30f && raw < 1e30f)) return raw;
    return te_float_of_bits((te_bits_of_float(raw) + 0x7fffffu) & 0x7f800000u);
}
/* Returns the scale of q. Rounding has increased te__attn_fp8_score_unit by the factor unit / raw; to compensate for
 * this, the scale of q is smaller than TE__ATTN_FP8_QK_MAX / amax by the same factor. */
TE_FN float te__attn_fp8_scale_of_q(float q, float k, float scale) {
    const float raw = te__attn_fp8_raw_score_unit(q, k, scale), unit = te__attn_fp8_score_unit(q, k, scale);
    return te__attn_fp8_scale(q, (float)TE__ATTN_FP8_QK_MAX) * (unit != raw ? raw / unit : 1.0f);
}

/* ---- the two passes ---------------------------------------------------------------------------------------------- */

/* The rows of one head that a block of the amax or the cast pass processes. Grid: (batch * all heads of q, k and v,
 * tiles of rows). */
typedef struct te__attn_fp8_tile {
    const te_attention_args *a;
    te_dtype dtype;
    int all, d;             /* all: the number of heads of q, k and v together; d: head_dim */
    /* head: the index of the head among all heads of q, k and v; batch: the sequence; first: the tile's first row
     * within the sequence */
    int head, batch, first;
    /* the index in qkv of the first element of this head and sequence */
    int64_t from;
} te__attn_fp8_tile;
TE_FN te__attn_fp8_tile te__attn_fp8_tile_of(const te_attention_args *a, te_block at, te_dtype dtype, int all, int d) {
    te__attn_fp8_tile t;
    t.a = a, t.dtype = dtype, t.all = all, t.d = d;
    t.batch = at.x / all, t.head = at.x - t.batch * all, t.first = at.y * TE__ATTN_FP8_ROWS;
    t.from = ((int64_t)t.batch * a->seq * all + t.head) * d;
    return t;
}
/* Reads sixteen numbers of a row, from dimension `dim` on. For a row past the end of the sequence, reads the last row
 * of the sequence instead, which does not change the amax. */
TE_FN void te__attn_fp8_read(float v[16], const te__attn_fp8_tile *t, int row, int dim) {
    const int64_t from = t->from + (int64_t)(row < t->a->seq ? row : t->a->seq - 1) * t->all * t->d + dim;
    te_load8(v, t->a->qkv, from, 8, 1, t->dtype), te_load8(v + 8, t->a->qkv, from + 8, 8, 1, t->dtype);
}

TE_FN void te__attn_fp8_amax(const te_attention_args *a, te_block b, te_dtype dtype, int all, int d) {
    const te__attn_fp8_tile t = te__attn_fp8_tile_of(a, b, dtype, all, d);
    int group;
    const te_lanes g = te_lanes_here(TE__ATTN_FP8_THREADS, &group);
    uint32_t amax = 0;
    TE_UNROLL_8 for (int i = g.id; i < TE__ATTN_FP8_ROWS * (d / 16); i += TE__ATTN_FP8_THREADS) {
        float v[16];
        te__attn_fp8_read(v, &t, t.first + i / (d / 16), i % (d / 16) * 16);
        amax = te_amax_bits8(te_amax_bits8(amax, v), v + 8);
    }
    te_amax_atomic_max((float *)a->scratch + t.head, amax, g);
}

/* Casts a tile of q or k to e4m3, sixteen bytes at a time: element (row, dim) is stored at to[row * width + dim]. */
TE_FN void te__attn_fp8_cast_rows(const te__attn_fp8_tile *t, uint8_t *to, int64_t width, float scale, te_lanes g) {
    const int units = t->d / 16; /* the number of units of sixteen elements in a row */
    TE_UNROLL_8 for (int i = g.id; i < TE__ATTN_FP8_ROWS * units; i += TE__ATTN_FP8_THREADS) {
        const int row = t->first + i / units, dim = i % units * 16;
        te_vec8 e;
        float v[16];
        te__attn_fp8_read(v, t, row, dim);
        for (int k = 0; k < 16; k++) v[k] = te_fp8_scaled(v[k], scale);
        TE_UNROLL for (int k = 0; k < 4; k++) e.w[k] = te__fp8_word(v + 4 * k, 1);
        if (row < t->a->seq) memcpy(__builtin_assume_aligned(to + row * width + dim, 16), e.w, 16);
    }
}
/* Casts a tile of v to e4m3 and transposes it: element (key, dim) is stored at
 * to[dim * keys + te__attn_fp8_byte_of_key(key)]. A thread stores four keys of sixteen dimensions, and the next thread
 * stores the next four keys of the same dimensions. */
TE_FN void te__attn_fp8_cast_v(const te__attn_fp8_tile *t, uint8_t *to, int64_t keys, float scale, te_lanes g) {
    for (int i = g.id; i < TE__ATTN_FP8_ROWS / 4 * (t->d / 16); i += TE__ATTN_FP8_THREADS) {
        const int column = t->first + i % (TE__ATTN_FP8_ROWS / 4) * 4, dim = i / (TE__ATTN_FP8_ROWS / 4) * 16;
        float v[4][16];
        if (column >= keys) continue;
        TE_UNROLL for (int k = 0; k < 4; k++) {
            const int key = te__attn_fp8_key_of_byte(column + k);
            te__attn_fp8_read(v[k], t, key, dim);
            TE_UNROLL for (int c = 0; c < 16; c++) v[k][c] = key < t->a->seq ? te_fp8_scaled(v[k][c], scale) : 0;
        }
        TE_UNROLL for (int c = 0; c < 16; c++) {
            const float four[4] = {v[0][c], v[1][c], v[2][c], v[3][c]};
            const uint32_t word = te__fp8_word(four, 1);
            memcpy(__builtin_assume_aligned(to + (dim + c) * keys + column, 4), &word, 4);
        }
    }
}
TE_FN void te__attn_fp8_cast(const te_attention_args *a, te_block b, te_dtype dtype, int heads, int kv_heads, int d) {
    /* the blocks with the last rows run first, because the amax pass, which ran before, has left these rows in the
     * L2 */
    b.y = b.ny - 1 - b.y;
    const te__attn_fp8_tile t = te__attn_fp8_tile_of(a, b, dtype, heads + 2 * kv_heads, d);
    const te_attention_fp8_operands p = te__attn_fp8_operands_of(a, heads, kv_heads, d);
    int group;
    const te_lanes g = te_lanes_here(TE__ATTN_FP8_THREADS, &group);
    /* k: the index of the head, counted from the first head of k (negative for heads of q); v: its index counted from
     * the first head of v (negative for heads of q and k) */
    const int64_t first = (int64_t)t.batch * a->seq, k = t.head - heads, v = k - kv_heads;
    const float limit = v >= 0 ? TE_E4M3_MAX : (float)TE__ATTN_FP8_QK_MAX, amax = p.amax[t.head];
    const float scale = k >= 0 ? te__attn_fp8_scale(amax, limit)
                               : te__attn_fp8_scale_of_q(amax, p.amax[heads + t.head / (heads / kv_heads)], a->scale);
    if (v >= 0) te__attn_fp8_cast_v(&t, p.v + (t.batch * kv_heads + v) * d * p.keys, p.keys, scale, g);
    else if (k >= 0) te__attn_fp8_cast_rows(&t, p.k + (first * kv_heads + k) * d, kv_heads * d, scale, g);
    else te__attn_fp8_cast_rows(&t, p.q + (first * heads + t.head) * d, heads * d, scale, g);
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

TE_API te_status te__attention_check_fp8(te_context *ctx, const te_attention_args *a, int heads, const char *name) {
    TE_TRY(te__attention_check(ctx, a, heads, 0, 0, name));
    TE_REQUIRE(a->batch <= TE_ATTENTION_FP8_MAX_SEQUENCES, ctx, TE_ERROR_SHAPE,
               "%s: %d sequences, in FP8 it takes up to %d", name, a->batch, (int)TE_ATTENTION_FP8_MAX_SEQUENCES);
    return TE_OK;
}
#define TE__ATTENTION_FP8_ASSERT(dtype, head_dim)                                                            \
    static_assert((head_dim) == 64 || (head_dim) == 128 || (head_dim) == 256,                                \
                  "te: attention: head_dim must be 64, 128 or 256 in FP8");                                  \
    static_assert(TE_##dtype == TE_bf16 || TE_##dtype == TE_f16, "te: attention: FP8 is for bf16 and f16");

/* Defines the kernels of the two passes that quantize q, k and v; name##_cast, which launches both of them; and
 * name##_scratch_bytes, which returns the size of the scratch memory. */
#define TE__ATTENTION_FP8_PASSES(name, dtype, heads, kv_heads, head_dim)                                         \
    TE_KERNEL(name##_amax, TE__ATTN_FP8_THREADS, te_attention_args,                                              \
              te__attn_fp8_amax(te_args, te_at, TE_##dtype, (heads) + 2 * (kv_heads), head_dim))                 \
    TE_KERNEL(name##_e4m3, TE__ATTN_FP8_THREADS, te_attention_args,                                              \
              te__attn_fp8_cast(te_args, te_at, TE_##dtype, heads, kv_heads, head_dim))                          \
    TE_API te_status name##_cast(te_context *ctx, const te_attention_args *a) {                                  \
        return te__attention_fp8_cast(ctx, a, (heads) + 2 * (kv_heads), name##_amax_launch, name##_e4m3_launch); \
    }                                                                                                            \
    TE_API size_t name##_scratch_bytes(te_context *ctx, int64_t rows) {                                          \
        return (void)ctx, te__attn_fp8_bytes(rows, heads, kv_heads, head_dim);                                   \
    }
typedef te_status (*te__attention_pass_fn)(te_context *ctx, te_grid grid, const te_attention_args *a);
TE_API te_status te__attention_fp8_cast(te_context *ctx, const te_attention_args *a, int all,
                                        te__attention_pass_fn amax, te__attention_pass_fn cast) {
    const te_grid grid = te__grid_of((int64_t)a->batch * all, te_ceil_div(a->seq, TE__ATTN_FP8_ROWS));
    TE_REQUIRE(a->scratch, ctx, TE_ERROR_NULL, "te__attention_fp8_cast: scratch is null");
    TE_TRY(te_fill(ctx, a->scratch, 0, (size_t)all * sizeof(float)));
    TE_TRY(amax(ctx, grid, a));
    return cast(ctx, grid, a);
}

#endif
