/* attention_fp8.h -- attention forward in FP8, for both targets: q, k and v are rounded to e4m3 with a scale for each
 * head, from amax, the largest |x| of that head over all rows of the call: 448 / amax for v, 15 / amax for k, and for q
 * a number up to 15 / amax that makes what a score counts a power of two.
 *
 * Do this, at file scope, then call name##_launch with name##_scratch_bytes(ctx, rows) bytes of scratch:
 *     TE_ATTENTION_FORWARD_FP8(block_attn, bf16, 16, 4, 128, TE__ATTENTION_PLAIN(1)) // name, dtype, heads, kv_heads,
 *                                                                                       head_dim, options
 *     args.scratch = scratch;
 *     TE_TRY(block_attn_launch(ctx, &args));
 *
 * Of the options of attention_form.h it takes left and right. head_dim is 64, 128 or 256, dtype bf16 or f16, and a call
 * has up to TE_ATTENTION_FP8_SEQUENCES sequences. On CUDA it is for compute capability 9.0 (sm_90a) alone.
 *
 * Products are of e4m3, their sums float, on CUDA those of a score f16. P = 2^(score - top + 4), in e4m3 too, where top
 * is a whole number that is not below the largest score (in powers of two): so the fraction of P is rounded alike
 * whichever tiles have been seen, and what is 2^-14 of the largest or less becomes 0. The sum under the softmax, and
 * lse, are those of P before it was rounded to e4m3. An infinity in a head makes NaN of all that reads that head.
 *
 * Two passes come first. amax: reads qkv, 2 bytes an element. cast: reads it again and writes e4m3, 3 bytes an element:
 * q and k by rows, v transposed, so that all operands of wgmma lie along the axis that is summed over.
 */
#ifndef TE_ATTENTION_FP8_H
#define TE_ATTENTION_FP8_H

#include "../core/amax.h"    /* te_amax_raise */
#include "../core/fp8_vec.h" /* te__fp8_word */
#include "attention_args.h"  /* te_attention_args */

enum {
    TE_ATTENTION_FP8_SEQUENCES = 1024, /* of a call: each may take up to 15 keys more in the transposed v */
    TE__ATTN_FP8_THREADS = TE_CUDA ? 256 : 1,
    TE__ATTN_FP8_ROWS = 128, /* of a block of the two passes */
    TE__ATTN_FP8_KEYS = 16,  /* of which the transposed v has a permutation */
    /* P of the largest score is 8 to 16; e4m3 ends at 448 and 2^-9. More keeps smaller P, but more scores outgrow what
     * was the largest, and then the CUDA kernel rescales. */
    TE__ATTN_FP8_RAISE = 4,
    /* The largest of q and k: a score, of up to 256 products, then stays below 65504, where f16 ends. What is 2^-9 of
     * it is a normal number still. */
    TE__ATTN_FP8_MOST = 15
};

/* What the scratch memory holds. */
typedef struct te_attention_fp8 {
    float *amax;        /* [heads + 2 kv_heads] */
    uint8_t *q, *k, *v; /* [rows, heads, d], [rows, kv_heads, d], [batch, kv_heads, d, keys] */
    int64_t keys;       /* seq, rounded up to 16; what is more than seq is 0 */
} te_attention_fp8;

TE_BOTH te_attention_fp8 te__attn_fp8_of(const te_attention_args *a, int heads, int kv_heads, int d) {
    const int64_t rows = (int64_t)a->batch * a->seq;
    te_attention_fp8 p;
    p.amax = (float *)a->scratch;
    p.q = (uint8_t *)a->scratch + te_round_up((heads + 2 * kv_heads) * (int64_t)sizeof(float), TE_ALIGN);
    p.k = p.q + te_round_up(rows * heads * d, TE_ALIGN), p.v = p.k + te_round_up(rows * kv_heads * d, TE_ALIGN);
    p.keys = te_round_up(a->seq, TE__ATTN_FP8_KEYS);
    return p;
}
TE_API size_t te__attn_fp8_bytes(int64_t rows, int heads, int kv_heads, int d) {
    const int64_t sequences = te_min(rows, TE_ATTENTION_FP8_SEQUENCES);
    const int64_t keys = rows + sequences * (TE__ATTN_FP8_KEYS - 1);
    const int64_t elements = ((heads + kv_heads) * rows + kv_heads * keys) * d;
    return (size_t)((heads + 2 * kv_heads) * (int64_t)sizeof(float) + elements + 4 * TE_ALIGN);
}
/* The byte of a key in a row of the transposed v. A thread that has computed scores has them of the keys 2 t, 2 t + 1,
 * 2 t + 8, 2 t + 9 of sixteen, and needs four bytes in a row of P: these are the bytes 4 t to 4 t + 3. */
TE_BOTH int te__attn_fp8_column(int key) {
    return (key & ~15) | (key & 6) << 1 | (key & 8) >> 2 | (key & 1);
}
/* The key of a byte. */
TE_BOTH int te__attn_fp8_key(int column) {
    return (column & ~15) | (column & 12) >> 1 | (column & 2) << 2 | (column & 1);
}
/* The scale of k and of v, whose largest becomes `most`, and what a number then counts. A head of zeros, or of numbers
 * that most / amax is too large for, has the scale 1. */
TE_FN int te__attn_fp8_is_scaled(float amax) { return amax > 1e-30f; }
TE_FN float te__attn_fp8_scale(float amax, float most) { return te__attn_fp8_is_scaled(amax) ? most / amax : 1.0f; }
TE_FN float te__attn_fp8_inverse(float amax, float most) { return te__attn_fp8_is_scaled(amax) ? amax / most : 1.0f; }
/* What a score would count in powers of two if the largest of q became TE__ATTN_FP8_MOST, too. */
TE_FN float te__attn_fp8_count(float q, float k, float scale) {
    const float most = (float)TE__ATTN_FP8_MOST;
    return te__attn_fp8_inverse(q, most) * te__attn_fp8_inverse(k, most) * scale * 1.44269504088896341f;
}
/* What it counts: a power of two, the next one up, so that f16 has it exactly. (Unless it is out of all proportion.) */
TE_FN float te__attn_fp8_unit(float q, float k, float scale) {
    const float count = te__attn_fp8_count(q, k, scale);
    if (!(count > 1e-30f && count < 1e30f)) return count;
    return te_float_of_bits((te_bits_of_float(count) + 0x7fffffu) & 0x7f800000u);
}
/* The scale of q makes up for it. */
TE_FN float te__attn_fp8_scale_of_q(float q, float k, float scale) {
    const float count = te__attn_fp8_count(q, k, scale), unit = te__attn_fp8_unit(q, k, scale);
    return te__attn_fp8_scale(q, (float)TE__ATTN_FP8_MOST) * (unit != count ? count / unit : 1.0f);
}

/* ---- the passes before it ---------------------------------------------------------------------------------------- */

/* Grid: (batch * all heads of q, k and v, tiles of rows). */
typedef struct te__attn_fp8_tile {
    int head, batch, first; /* head: of q, k and v together */
    int64_t from;           /* the first element of the head in the first row of the sequence */
} te__attn_fp8_tile;
TE_FN te__attn_fp8_tile te__attn_fp8_tile_of(const te_attention_args *a, te_block at, int all, int d) {
    te__attn_fp8_tile t;
    t.batch = at.x / all, t.head = at.x - t.batch * all, t.first = at.y * TE__ATTN_FP8_ROWS;
    t.from = ((int64_t)t.batch * a->seq * all + t.head) * d;
    return t;
}
/* Sixteen numbers of a row; behind the sequence those of its last row. */
TE_FN void te__attn_fp8_read(float v[16], const te_attention_args *a, te__attn_fp8_tile at, int row, int dim, int all,
                             int d, te_dtype t) {
    const int64_t from = at.from + (int64_t)(row < a->seq ? row : a->seq - 1) * all * d + dim;
    te_load8(v, a->qkv, from, 8, 1, t), te_load8(v + 8, a->qkv, from + 8, 8, 1, t);
}

TE_FN void te__attn_fp8_amax(const te_attention_args *a, te_block b, te_dtype t, int all, int d) {
    const te__attn_fp8_tile at = te__attn_fp8_tile_of(a, b, all, d);
    int group;
    const te_lanes g = te_lanes_here(TE__ATTN_FP8_THREADS, &group);
    uint32_t most = 0;
    TE_UNROLL_8 for (int i = g.id; i < TE__ATTN_FP8_ROWS * (d / 16); i += TE__ATTN_FP8_THREADS) {
        float v[16];
        te__attn_fp8_read(v, a, at, at.first + i / (d / 16), i % (d / 16) * 16, all, d, t);
        most = te_amax_bits8(te_amax_bits8(most, v), v + 8);
    }
    te_amax_raise((float *)a->scratch + at.head, most, g);
}

/* q and k. Sixteen bytes at a time. */
TE_FN void te__attn_fp8_cast_rows(const te_attention_args *a, te__attn_fp8_tile at, uint8_t *to, int64_t width,
                                  float scale, te_lanes g, te_dtype t, int all, int d) {
    TE_UNROLL_8 for (int i = g.id; i < TE__ATTN_FP8_ROWS * (d / 16); i += TE__ATTN_FP8_THREADS) {
        const int row = at.first + i / (d / 16), dim = i % (d / 16) * 16;
        te_vec8 e;
        float v[16];
        te__attn_fp8_read(v, a, at, row, dim, all, d, t);
        for (int k = 0; k < 16; k++) v[k] *= scale;
        TE_UNROLL for (int k = 0; k < 4; k++) e.w[k] = te__fp8_word(v + 4 * k, 1);
        if (row < a->seq) memcpy(__builtin_assume_aligned(to + row * width + dim, 16), e.w, 16);
    }
}
/* v, transposed: sixteen rows of four keys by a thread, whose neighbours have the next keys. */
TE_FN void te__attn_fp8_cast_keys(const te_attention_args *a, te__attn_fp8_tile at, uint8_t *to, int64_t keys,
                                  float scale, te_lanes g, te_dtype t, int all, int d) {
    for (int i = g.id; i < TE__ATTN_FP8_ROWS / 4 * (d / 16); i += TE__ATTN_FP8_THREADS) {
        const int column = at.first + i % (TE__ATTN_FP8_ROWS / 4) * 4, dim = i / (TE__ATTN_FP8_ROWS / 4) * 16;
        float v[4][16];
        if (column >= keys) continue;
        TE_UNROLL for (int k = 0; k < 4; k++) {
            const int key = te__attn_fp8_key(column + k);
            te__attn_fp8_read(v[k], a, at, key, dim, all, d, t);
            TE_UNROLL for (int c = 0; c < 16; c++) v[k][c] = key < a->seq ? v[k][c] * scale : 0;
        }
        TE_UNROLL for (int c = 0; c < 16; c++) {
            const float four[4] = {v[0][c], v[1][c], v[2][c], v[3][c]};
            const uint32_t word = te__fp8_word(four, 1);
            memcpy(__builtin_assume_aligned(to + (dim + c) * keys + column, 4), &word, 4);
        }
    }
}
TE_FN void te__attn_fp8_cast(const te_attention_args *a, te_block b, te_dtype t, int heads, int kv_heads, int d) {
    const int all = heads + 2 * kv_heads;
    b.y = b.ny - 1 - b.y; /* the rows that amax has read last are still in the L2 */
    const te__attn_fp8_tile at = te__attn_fp8_tile_of(a, b, all, d);
    const te_attention_fp8 p = te__attn_fp8_of(a, heads, kv_heads, d);
    int group;
    const te_lanes g = te_lanes_here(TE__ATTN_FP8_THREADS, &group);
    const int64_t first = (int64_t)at.batch * a->seq, k = at.head - heads, v = k - kv_heads;
    const float most = v >= 0 ? TE_E4M3_MOST : (float)TE__ATTN_FP8_MOST, amax = p.amax[at.head];
    const float scale = k >= 0 ? te__attn_fp8_scale(amax, most)
                               : te__attn_fp8_scale_of_q(amax, p.amax[heads + at.head / (heads / kv_heads)], a->scale);
    if (v >= 0)
        te__attn_fp8_cast_keys(a, at, p.v + (at.batch * kv_heads + v) * d * p.keys, p.keys, scale, g, t, all, d);
    else if (k >= 0)
        te__attn_fp8_cast_rows(a, at, p.k + (first * kv_heads + k) * d, kv_heads * d, scale, g, t, all, d);
    else te__attn_fp8_cast_rows(a, at, p.q + (first * heads + at.head) * d, heads * d, scale, g, t, all, d);
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

TE_API te_status te__attention_check_fp8(te_context *ctx, const te_attention_args *a, int heads, const char *name) {
    TE_TRY(te__attention_check(ctx, a, heads, 0, 0, name));
    TE_REQUIRE(a->batch <= TE_ATTENTION_FP8_SEQUENCES, ctx, TE_ERROR_SHAPE,
               "%s: %d sequences, in FP8 it takes up to %d", name, a->batch, (int)TE_ATTENTION_FP8_SEQUENCES);
    return TE_OK;
}
#define TE__ATTENTION_FP8_ASSERT(dtype, head_dim)                                                            \
    static_assert((head_dim) == 64 || (head_dim) == 128 || (head_dim) == 256,                                \
                  "te: attention: head_dim must be 64, 128 or 256 in FP8");                                  \
    static_assert(TE_##dtype == TE_bf16 || TE_##dtype == TE_f16, "te: attention: FP8 is for bf16 and f16");

/* The two passes, and name_cast, which launches them; and the size of the scratch memory. */
#define TE__ATTENTION_FP8_PASSES(name, dtype, heads, kv_heads, head_dim)                                     \
    TE_KERNEL(name##_amax, TE__ATTN_FP8_THREADS, te_attention_args,                                          \
              te__attn_fp8_amax(te_args, te_at, TE_##dtype, (heads) + 2 * (kv_heads), head_dim))             \
    TE_KERNEL(name##_e4m3, TE__ATTN_FP8_THREADS, te_attention_args,                                          \
              te__attn_fp8_cast(te_args, te_at, TE_##dtype, heads, kv_heads, head_dim))                      \
    TE_API te_status name##_cast(te_context *ctx, const te_attention_args *a) {                              \
        return te__attention_fp8_cast(ctx, a, (heads) + 2 * (kv_heads), name##_amax_launch, name##_e4m3_launch); \
    }                                                                                                        \
    TE_API size_t name##_scratch_bytes(te_context *ctx, int64_t rows) {                                      \
        return (void)ctx, te__attn_fp8_bytes(rows, heads, kv_heads, head_dim);                               \
    }
typedef te_status (*te__attention_pass_fn)(te_context *ctx, te_grid grid, const te_attention_args *a);
TE_API te_status te__attention_fp8_cast(te_context *ctx, const te_attention_args *a, int all,
                                        te__attention_pass_fn amax, te__attention_pass_fn cast) {
    const te_grid grid = te_grid_of((int64_t)a->batch * all, te_ceil_div(a->seq, TE__ATTN_FP8_ROWS));
    TE_REQUIRE(a->scratch, ctx, TE_ERROR_NULL, "te__attention_fp8_cast: scratch is null");
    TE_TRY(te_fill(ctx, a->scratch, 0, (size_t)all * sizeof(float)));
    TE_TRY(amax(ctx, grid, a));
    return cast(ctx, grid, a);
}

#endif
