/* attention_host_tiles.h -- the building blocks of attention_host.h: vectors, tiles of 64 rows in memory, one small
 * matrix product, and the mask and the options on a tile of scores.
 *
 * A tile of scores is stored as s[key][query] or s[query][key], in rows of TE__ATTN_TILE floats. Scores are in base 2,
 * that is, multiplied by log2(e), because softmax uses exp2.
 */
/* target: host */
#ifndef TE_ATTENTION_HOST_TILES_H
#define TE_ATTENTION_HOST_TILES_H

#include "../../core/lanes.h"      /* te_amax_atomic_max */
#include "../attention_options.h" /* te_attention_args, te__attn_variant, the mask */

#if defined(__FMA__)
#include <immintrin.h> /* fused multiply-add: with -std=c11 compilers do not form it from a * b + c */
#endif

/* ---- vectors ----------------------------------------------------------------------------------------------------- */

/* te__attn_vector is a vector of TE__ATTN_LANES floats, declared with the vector extension of GCC and Clang.
 * TE__ATTN_MULTIPLY_ADD computes c += a * b, for vectors c and b and a number a. */
#if defined(__AVX512F__)
#define TE__ATTN_LANES 16
#define TE__ATTN_MULTIPLY_ADD(c, a, b) c = (te__attn_vector)_mm512_fmadd_ps(_mm512_set1_ps(a), (__m512)(b), (__m512)(c))
#elif defined(__FMA__)
#define TE__ATTN_LANES 8
#define TE__ATTN_MULTIPLY_ADD(c, a, b) c = (te__attn_vector)_mm256_fmadd_ps(_mm256_set1_ps(a), (__m256)(b), (__m256)(c))
#else
#define TE__ATTN_LANES 4
#define TE__ATTN_MULTIPLY_ADD(c, a, b) c += (a) * (b)
#endif
typedef float te__attn_vector __attribute__((vector_size(TE__ATTN_LANES * 4)));
typedef int32_t te__attn_vector_bits __attribute__((vector_size(TE__ATTN_LANES * 4)));
typedef uint32_t te__attn_vector_words __attribute__((vector_size(TE__ATTN_LANES * 4)));

/* the number of queries, and of keys, in a tile; also the row length, in floats, of each tile of scores and of each
 * transposed tile */
enum { TE__ATTN_TILE = 64 };
#define TE__ATTN_LOG2E 1.4426950408889634f
#define TE__ATTN_LN2 0.6931471805599453f
/* TE__ATTN_PADDED: the row length of a tile of q, k or v: the head size, rounded up to a multiple of 32.
 * TE__ATTENTION_FLOATS: the number of floats of a block's scratch memory. This memory is enough for every kernel; the
 * dkdv kernel needs the most, namely three tiles with rows of head_dim numbers, three with rows of value_dim numbers,
 * and two tiles of scores. */
#define TE__ATTN_PADDED(head_dim) (((head_dim) + 31) / 32 * 32)
#define TE__ATTENTION_FLOATS(head_dim, value_dim) \
    (TE__ATTN_TILE * (3 * TE__ATTN_PADDED(head_dim) + 3 * TE__ATTN_PADDED(value_dim) + 2 * TE__ATTN_TILE + 5))

/* Functions take vectors by pointer, because the calling convention for passing vectors by value depends on compiler
 * flags. */
TE_FN void te__attn_get(te__attn_vector *v, const float *p) { memcpy(v, p, sizeof *v); }
TE_FN void te__attn_put(float *p, const te__attn_vector *v) { memcpy(p, v, sizeof *v); }

/* Replaces x by 2^x, with an error of up to 2 units in the last place. Results below 2^-126 become 0, and NaN stays
 * NaN. The function needs no branch and no table. */
TE_FN void te__attn_exp2(te__attn_vector *x) {
    TE__SUMS_AS_WRITTEN
    /* Adding 12582912 = 1.5 * 2^23 leaves the integer nearest to x in the last bits of the sum. */
    const te__attn_vector shifted = *x + 12582912.0f;
    const te__attn_vector f = *x - (shifted - 12582912.0f);
    /* y is a polynomial for 2^f, interpolated at the Chebyshev points of [-1/2, 1/2]. */
    te__attn_vector y = f * 1.546144469646172e-4f + 1.3400428177419153e-3f;
    y = y * f + 9.61805667852609e-3f, y = y * f + 5.550327226670944e-2f, y = y * f + 2.4022650922288827e-1f;
    y = y * f + 6.931472067028321e-1f, y = y * f + 1.0f;
    const te__attn_vector_bits scaled =
        (te__attn_vector_bits)((te__attn_vector_words)y + ((te__attn_vector_words)shifted << 23));
    *x = (te__attn_vector)((scaled & (*x > -126.0f)) | ((te__attn_vector_bits)*x & (*x != *x)));
}
/* Replaces x by tanh(x * ln(2) / 2) = 1 - 2 / (1 + 2^x), with an error of 2e-7. Below -60 and above 60, where the
 * result rounds to -1 or 1, x is first replaced by -60 or 60. */
TE_FN void te__attn_tanh(te__attn_vector *x) {
    const te__attn_vector_bits high = *x > 60.0f, low = *x < -60.0f, between = ~(high | low);
    const te__attn_vector zero = *x - *x, bound = zero + 60.0f;
    *x = (te__attn_vector)(((te__attn_vector_bits)*x & between) | ((te__attn_vector_bits)bound & high) |
                           ((te__attn_vector_bits)(-bound) & low));
    te__attn_exp2(x);
    *x = 1.0f - 2.0f / (1.0f + *x);
}
/* m = max(m, x) */
TE_FN void te__attn_vector_max(te__attn_vector *m, const te__attn_vector *x) {
    const te__attn_vector_bits above = *x > *m;
    *m = (te__attn_vector)(((te__attn_vector_bits)*x & above) | ((te__attn_vector_bits)*m & ~above));
}

TE_FN int te__attn_min(int a, int b) { return a < b ? a : b; }

/* ---- the matrix product ------------------------------------------------------------------------------------------ */

/* Says which elements of a matrix product are needed, or which terms each sum of the product has. All values except
 * TE__ATTN_ALL are for a tile of scores that lies on the diagonal of a causal mask. te__attn_product may compute more
 * elements than are needed. */
enum te__attn_region {
    TE__ATTN_ALL,
    TE__ATTN_COLUMNS_FROM_ROW, /* only the elements of the product in row i and column j >= i are needed */
    TE__ATTN_COLUMNS_TO_ROW,   /* only the elements of the product in row i and column j <= i are needed */
    TE__ATTN_DEPTH_FROM_ROW,   /* all elements are needed; each sum in row i has only the terms k >= i */
    TE__ATTN_DEPTH_TO_ROW      /* all elements are needed; each sum in row i has only the terms k <= i */
};

/* The arguments of a matrix product c[m][n] = a[m][depth] b[depth][n], or c += a b if `add` is 1. Element (i, k) of a
 * is a[i * a_row + k * a_step]; ldb and ldc are the row lengths of b and c. n must be a multiple of 32. If m is not a
 * multiple of 4, the rows up to the next multiple must exist in a and in c; te__attn_product overwrites those of c. */
typedef struct te__attn_matmul {
    float *c;
    const float *a, *b;
    int ldc, a_row, a_step, ldb, m, n, depth, add;
    enum te__attn_region region;
} te__attn_matmul;

/* Computes a matrix product, one block of c at a time: four rows by two vectors, which stay in registers. */
TE_FN void te__attn_product(const te__attn_matmul *p) {
    enum { V = TE__ATTN_LANES, W = sizeof(te__attn_vector) };
    const int m = p->m, n = p->n, depth = p->depth, ldc = p->ldc, ldb = p->ldb, row = p->a_row, step = p->a_step;
    const int add = p->add;
    const enum te__attn_region region = p->region;
    for (int j = 0; j < n; j += 2 * V)
        for (int i = 0; i < m; i += 4) {
            const int first = region == TE__ATTN_DEPTH_FROM_ROW ? i : 0;
            const int last = region == TE__ATTN_DEPTH_TO_ROW ? te__attn_min(depth, i + 4) : depth;
            const float *pa = p->a + (int64_t)i * row + (int64_t)first * step, *pb = p->b + (int64_t)first * ldb + j;
            float *pc = p->c + (int64_t)i * ldc + j;
            if (region == TE__ATTN_COLUMNS_FROM_ROW && j + 2 * V <= i) continue;
            if (region == TE__ATTN_COLUMNS_TO_ROW && j >= i + 4) continue;
            te__attn_vector c00 = {0}, c01 = {0}, c10 = {0}, c11 = {0}, c20 = {0}, c21 = {0}, c30 = {0}, c31 = {0};
            if (add) {
                memcpy(&c00, pc, W), memcpy(&c01, pc + V, W), memcpy(&c10, pc + ldc, W), memcpy(&c11, pc + ldc + V, W);
                memcpy(&c20, pc + 2 * ldc, W), memcpy(&c21, pc + 2 * ldc + V, W);
                memcpy(&c30, pc + 3 * ldc, W), memcpy(&c31, pc + 3 * ldc + V, W);
            }
            for (int k = first; k < last; k++, pa += step, pb += ldb) {
                te__attn_vector b0, b1;
                memcpy(&b0, pb, W), memcpy(&b1, pb + V, W);
                TE__ATTN_MULTIPLY_ADD(c00, pa[0], b0), TE__ATTN_MULTIPLY_ADD(c01, pa[0], b1);
                TE__ATTN_MULTIPLY_ADD(c10, pa[row], b0), TE__ATTN_MULTIPLY_ADD(c11, pa[row], b1);
                TE__ATTN_MULTIPLY_ADD(c20, pa[2 * row], b0), TE__ATTN_MULTIPLY_ADD(c21, pa[2 * row], b1);
                TE__ATTN_MULTIPLY_ADD(c30, pa[3 * row], b0), TE__ATTN_MULTIPLY_ADD(c31, pa[3 * row], b1);
            }
            memcpy(pc, &c00, W), memcpy(pc + V, &c01, W), memcpy(pc + ldc, &c10, W), memcpy(pc + ldc + V, &c11, W);
            memcpy(pc + 2 * ldc, &c20, W), memcpy(pc + 2 * ldc + V, &c21, W);
            memcpy(pc + 3 * ldc, &c30, W), memcpy(pc + 3 * ldc + V, &c31, W);
        }
}
/* Computes a tile of scores: scores[m][TE__ATTN_TILE] = rows[m][d] columns[d][TE__ATTN_TILE], of which only the first n
 * columns are computed. ld: the row length of `rows`. */
TE_FN void te__attn_scores(float *scores, const float *rows, int ld, const float *columns, int m, int n, int d,
                           enum te__attn_region region) {
    te__attn_matmul p;
    p.c = scores, p.a = rows, p.b = columns, p.ldc = p.ldb = TE__ATTN_TILE, p.a_row = ld, p.a_step = 1;
    p.m = m, p.n = n, p.depth = d, p.add = 0, p.region = region;
    te__attn_product(&p);
}
/* Adds to out[m][ld] the product of the transpose of scores[depth][TE__ATTN_TILE] with the first ld columns of
 * rows[depth][ld_rows]. */
TE_FN void te__attn_accumulate_part(float *out, int ld, const float *scores, const float *rows, int ld_rows, int m,
                                    int depth, enum te__attn_region region) {
    te__attn_matmul p;
    p.c = out, p.a = scores, p.b = rows, p.ldc = p.n = ld, p.ldb = ld_rows, p.a_row = 1, p.a_step = TE__ATTN_TILE;
    p.m = m, p.depth = depth, p.add = 1, p.region = region;
    te__attn_product(&p);
}
TE_FN void te__attn_accumulate(float *out, int ld, const float *scores, const float *rows, int m, int depth,
                               enum te__attn_region region) {
    te__attn_accumulate_part(out, ld, scores, rows, ld, m, depth, region);
}

/* ---- rows and tiles in memory ------------------------------------------------------------------------------------ */

/* Copies elements at to at + n - 1 of the array `from` to the array `to`, and converts them to float. */
TE_FN void te__attn_row_read(float *__restrict to, const void *__restrict from, int64_t at, int n, te_dtype t) {
    if (t == TE_f32) memcpy(to, (const float *)from + at, (size_t)n * sizeof(float));
    else for (int c = 0; c < n; c++) to[c] = te_load(from, at + c, t);
}
/* Reads a matrix [rows, d] into to[TE__ATTN_TILE][ld]. at: the index of the matrix's first element in `from`; width:
 * the distance between two rows. `to` is padded with zeros to ld columns and to a multiple of 4 rows. */
TE_FN void te__attn_tile_read(float *to, int ld, const void *from, int64_t at, int64_t width, int rows, int d,
                              te_dtype t) {
    for (int r = 0; r < rows; r++) {
        te__attn_row_read(to + r * ld, from, at + r * width, d, t);
        for (int c = d; c < ld; c++) to[r * ld + c] = 0;
    }
    memset(to + rows * ld, 0, (size_t)((-rows & 3) * ld) * sizeof(float));
}
/* Reads a row of d numbers from a cache of 8 bits, and multiplies them by the row's scale. Columns d to ld - 1 of `to`
 * become zeros. */
TE_FN void te__attn_row_dequantize(float *to, int ld, const uint8_t *from, int d, float scale, int format) {
    if (format == (int)TE_CACHE_FORMAT_int8)
        for (int c = 0; c < d; c++) to[c] = (float)(int8_t)from[c] * scale;
    else
        for (int c = 0; c < d; c++) to[c] = te_float_of_e4m3(from[c]) * scale;
    for (int c = d; c < ld; c++) to[c] = 0;
}
/* Reads a matrix [rows, d], multiplies its elements by `factor`, and stores the transpose in to[d][TE__ATTN_TILE], as
 * floats. at: the index of the matrix's first element in `from`; width: the distance between two rows. The columns of
 * `to` from column `rows` on become zeros. */
TE_FN void te__attn_tile_read_transposed(float *to, const void *from, int64_t at, int64_t width, int rows, int d,
                                              float factor, te_dtype t) {
    float row[TE_ATTENTION_MAX_LATENT_DIM];
    if (rows < TE__ATTN_TILE) memset(to, 0, (size_t)d * TE__ATTN_TILE * sizeof(float));
    for (int r = 0; r < rows; r++) {
        te__attn_row_read(row, from, at + r * width, d, t);
        for (int c = 0; c < d; c++) to[c * TE__ATTN_TILE + r] = factor * row[c];
    }
}
/* Multiplies a row of d numbers by `factor`, and stores the results in `to`, beginning at index `at`. If amax is not
 * null, *amax becomes the maximum of itself and the largest stored magnitude. */
TE_FN void te__attn_row_write(void *to, int64_t at, const float *from, int d, float factor, te_dtype t, float *amax) {
    int group;
    uint32_t largest = 0;
    for (int c = 0; c < d; c++) te_store(to, at + c, factor * from[c], t);
    if (!amax) return;
    for (int c = 0; c < d; c++) {
        const uint32_t bits = te_amax_bits(te_load(to, at + c, t));
        largest = bits > largest ? bits : largest;
    }
    te_amax_atomic_max(amax, largest, te_lanes_here(1, &group));
}
/* Multiplies a row of d numbers by `factor`, and stores the results in a->out, beginning at index `at`. If a->out_scale
 * is not null, each result is rounded to the dtype t, multiplied by *out_scale and stored in e4m3; otherwise it is
 * stored by te__attn_row_write. */
TE_FN void te__attn_out_write(const te_attention_args *a, int64_t at, const float *from, int d, float factor,
                              te_dtype t) {
    if (!a->out_scale) te__attn_row_write(a->out, at, from, d, factor, t, a->amax);
    else for (int c = 0; c < d; c++) {
        uint32_t rounded = 0;
        te_store(&rounded, 0, factor * from[c], t);
        ((uint8_t *)a->out)[at + c] = te_e4m3_of_float(te_fp8_scaled(te_load(&rounded, 0, t), *a->out_scale));
    }
}

/* ---- mask and options on a tile of scores ------------------------------------------------------------------------ */

/* Sets the scores of a row that lie outside the range `seen` to -inf. at: the token (key or query) of column 0. */
TE_FN void te__attn_mask_row(float *row, te__attn_range seen, int at) {
    for (int c = 0; c < te__attn_min(TE__ATTN_TILE, seen.first - at); c++) row[c] = -INFINITY;
    for (int c = seen.end > at ? seen.end - at : 0; c < TE__ATTN_TILE; c++) row[c] = -INFINITY;
}
/* Sets the masked scores of a tile s[key][query] to -inf. */
TE_FN void te__attn_apply_mask_by_key(float *s, te__attn_mask m, int q0, int k0, int keys) {
    for (int k = 0; k < keys; k++) te__attn_mask_row(s + k * TE__ATTN_TILE, te__attn_queries_of(m, k0 + k, 1), q0);
}
/* Sets the masked scores of a tile s[query][key] to -inf. */
TE_FN void te__attn_apply_mask_by_query(float *s, te__attn_mask m, int q0, int k0, int queries) {
    for (int q = 0; q < queries; q++) te__attn_mask_row(s + q * TE__ATTN_TILE, te__attn_keys_of(m, q0 + q, 1), k0);
}
/* Returns whether, for each i, key k0 + i is hidden from all queries before q0 + i. All pairs on one side of the tile's
 * diagonal are then masked, and products need not compute them. The test of the last key suffices, because the first
 * query that sees a key advances by at most one from each key to the next. */
TE_FN int te__attn_is_triangle(te__attn_mask m, int q0, int k0, int keys) {
    return te__attn_queries_of(m, k0 + keys - 1, 1).first >= q0 + keys - 1;
}

/* Returns the factor by which q (or k) is multiplied before the product, so that q k^T is the score times log2(e). With
 * softcap, q k^T is 2 * log2(e) * score / softcap, from which te__attn_tanh computes tanh(score / softcap). */
TE_FN float te__attn_score_factor(float scale, te__attn_variant f) {
    return scale * TE__ATTN_LOG2E * (f.softcap > 0 ? 2 / f.softcap : 1);
}
/* Applies softcap to the first n columns of a tile: a score s becomes softcap * tanh(s / softcap), in base 2. */
TE_FN void te__attn_apply_softcap(float *s, int rows, int n, te__attn_variant f) {
    for (int i = 0; f.softcap > 0 && i < rows; i++)
        for (int j = i * TE__ATTN_TILE; j < i * TE__ATTN_TILE + n; j += TE__ATTN_LANES) {
            te__attn_vector e;
            te__attn_get(&e, s + j), te__attn_tanh(&e), e *= f.softcap * TE__ATTN_LOG2E, te__attn_put(s + j, &e);
        }
}
/* Multiplies x by the derivative of softcap. e: the scores after softcap; the derivative is 0 where the score is masked
 * (-inf). */
TE_FN void te__attn_softcap_backward(te__attn_vector *x, const te__attn_vector *e, te__attn_variant f) {
    if (f.softcap > 0) {
        const te__attn_vector t = *e * (1 / (f.softcap * TE__ATTN_LOG2E)), slope = 1 - t * t;
        te__attn_vector positive = *x - *x; /* 0 */
        te__attn_vector_max(&positive, &slope), *x *= positive;
    }
}

/* Returns the ALiBi slope of a head, times log2(e); 0 if the option alibi is not set. */
TE_FN float te__attn_alibi(te_attention_shard whole, int head, int heads, te__attn_variant f) {
    return f.alibi ? te__attn_alibi_slope_of(whole, head % heads, heads) * TE__ATTN_LOG2E : 0;
}
/* Subtracts the ALiBi bias, slope * |query - key|, from a vector of scores. distance: query - key, or key - query, of
 * the vector's first score; it grows by one from each score to the next. */
TE_FN void te__attn_add_alibi(te__attn_vector *x, float slope, int distance, te__attn_variant f) {
    if (!f.alibi) return;
    float bias[TE__ATTN_LANES];
    for (int i = 0; i < TE__ATTN_LANES; i++) bias[i] = slope * fabsf((float)(distance + i));
    te__attn_vector b;
    te__attn_get(&b, bias), *x -= b;
}

/* The score bias of one head. head: the index of the head; shift: te__attn_mask.shift, the number of keys minus the
 * number of queries; dtype: the dtype of a bias table. */
typedef struct te__attn_score_bias {
    const te_attention_args *a;
    int head, shift;
    te_dtype dtype;
} te__attn_score_bias;
/* Adds the score bias, times log2(e), to a vector of scores. If by_key is 1, the vector has the scores of one query and
 * consecutive keys, beginning with `key`; if by_key is 0, the scores of one key and consecutive queries, beginning with
 * `query`. Pairs outside a bias table lie past the end of the sequence; 0 is added to their scores. */
TE_FN void te__attn_add_score_bias(te__attn_vector *x, const te__attn_score_bias *from, int query, int key, int by_key,
                                   te__attn_variant f) {
    const te_attention_args *const a = from->a;
    float bias[TE__ATTN_LANES];
    if (f.bias == TE_BIAS_none) return;
    for (int i = 0; i < TE__ATTN_LANES; i++) {
        const int q = by_key ? query : query + i, k = by_key ? key + i : key, distance = k - q - from->shift;
        if (f.bias == TE_BIAS_relative) {
            const int limit = f.bias_max_distance, at = distance < -limit ? -limit : te__attn_min(distance, limit);
            bias[i] = a->bias_by_distance[from->head * (2 * limit + 1) + limit + at];
        } else {
            const int64_t row = (int64_t)(f.bias == TE_BIAS_heads ? from->head : 0) * f.bias_queries + q;
            const int inside = q < f.bias_queries && k < f.bias_keys;
            bias[i] = inside ? te_load(a->bias, row * f.bias_keys + k, from->dtype) : 0;
        }
        bias[i] *= TE__ATTN_LOG2E;
    }
    te__attn_vector b;
    te__attn_get(&b, bias), *x += b;
}

/* Applies dropout to a tile, which is s[key][query] if by_key is 1, else s[query][key]: dropped elements become 0, the
 * others are multiplied by `factor`. head: the index of the head over all ranks (te__attn_global_head). q0, k0: the
 * first query and the first key of the tile, multiples of 64. */
TE_FN void te__attn_apply_dropout(float *s, int by_key, const te_attention_args *a, int head, int q0, int k0,
                                  float factor, te__attn_variant f) {
    /* the number of calls of Philox for a tile; each yields the random bits of eight pairs of a query and a key */
    const int counters = TE__ATTN_TILE * TE__ATTN_TILE / 8;
    for (int i = 0; f.drop && a->rng && i < counters; i++) {
        const int q = i / 128 * 16 + i / 8 % 8, k = i / 64 % 2 * 32 + i % 8;
        uint32_t word[4];
        te__attn_draw(word, *a->rng, a->id, te__attn_draw_row(head, q0 + q, a->seq), q0 + q, k0 + k);
        for (int e = 0; e < 8; e++) {
            const int query = q + e / 4 * 8, key = k + e % 4 * 8;
            float *one = s + (by_key ? key * TE__ATTN_TILE + query : query * TE__ATTN_TILE + key);
            *one = te__attn_drops(word[e % 4], e / 4, f.drop) ? 0 : *one * factor;
        }
    }
}

#endif
