/* attention_product_host.h -- vectors, tiles in memory and the small matrix product of attention_host.h. */
#ifndef TE_ATTENTION_PRODUCT_HOST_H
#define TE_ATTENTION_PRODUCT_HOST_H

#include "../core/amax.h"   /* te_amax_raise */
#include "attention_args.h" /* te_attention_args */
#include "attention_mask.h" /* te__attn_mask */
#if defined(__FMA__)
#include <immintrin.h> /* fused multiply-add, which -std=c11 does not contract to by itself */
#endif

/* A vector register, as GCC and Clang spell it. */
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

enum { TE__ATTN_TILE = 64 }; /* queries, and keys; the row length of every [.][TE__ATTN_TILE] below */
#define TE__ATTN_LOG2E 1.4426950408889634f
#define TE__ATTN_LN2 0.6931471805599453f
/* Tile rows are padded to 32 numbers. Scratch in floats: of all kernels dkdv takes the most, three tiles of each head
 * size. */
#define TE__ATTN_PADDED(head_dim) (((head_dim) + 31) / 32 * 32)
#define TE__ATTENTION_FLOATS(head_dim, value_dim) \
    (TE__ATTN_TILE * (3 * TE__ATTN_PADDED(head_dim) + 3 * TE__ATTN_PADDED(value_dim) + 2 * TE__ATTN_TILE + 5))

/* Vectors are loaded, stored and passed through pointers: by value their calling convention would depend on flags. */
TE_FN void te__attn_get(te__attn_vector *v, const float *p) { memcpy(v, p, sizeof *v); }
TE_FN void te__attn_put(float *p, const te__attn_vector *v) { memcpy(p, v, sizeof *v); }

/* x = 2^x to 2 units in the last place; 0 below 2^-126, NaN for NaN. No branch, no table. */
TE_FN void te__attn_exp2(te__attn_vector *x) {
    const te__attn_vector shifted = *x + 12582912.0f; /* 1.5 * 2^23: the nearest integer is in the last bits */
    const te__attn_vector f = *x - (shifted - 12582912.0f);
    te__attn_vector y =
        f * 1.546144469646172e-4f + 1.3400428177419153e-3f; /* 2^f at the Chebyshev points of [-1/2, 1/2] */
    y = y * f + 9.61805667852609e-3f, y = y * f + 5.550327226670944e-2f, y = y * f + 2.4022650922288827e-1f;
    y = y * f + 6.931472067028321e-1f, y = y * f + 1.0f;
    const te__attn_vector_bits scaled =
        (te__attn_vector_bits)((te__attn_vector_words)y + ((te__attn_vector_words)shifted << 23));
    *x = (te__attn_vector)((scaled & (*x > -126.0f)) | ((te__attn_vector_bits)*x & (*x != *x)));
}
/* x = tanh(x / 2 ln 2) = 1 - 2 / (1 + 2^x), off by 2e-7. From 60 on either side it is 1 in float. */
TE_FN void te__attn_tanh(te__attn_vector *x) {
    const te__attn_vector_bits high = *x > 60.0f, low = *x < -60.0f, between = ~(high | low);
    const te__attn_vector zero = *x - *x, bound = zero + 60.0f;
    *x = (te__attn_vector)(((te__attn_vector_bits)*x & between) | ((te__attn_vector_bits)bound & high) |
                           ((te__attn_vector_bits)(-bound) & low));
    te__attn_exp2(x);
    *x = 1.0f - 2.0f / (1.0f + *x);
}
TE_FN void te__attn_raise(te__attn_vector *top, const te__attn_vector *x) { /* top = max(top, x) */
    const te__attn_vector_bits above = *x > *top;
    *top = (te__attn_vector)(((te__attn_vector_bits)*x & above) | ((te__attn_vector_bits)*top & ~above));
}

TE_FN int te__attn_least(int a, int b) { return a < b ? a : b; }

/* Which part of a product is wanted, in the tile that a causal mask cuts along its diagonal; more may be done. */
enum te__attn_part {
    TE__ATTN_ALL,
    TE__ATTN_COLUMNS_FROM_ROW,
    TE__ATTN_COLUMNS_TO_ROW,
    TE__ATTN_DEPTH_FROM_ROW,
    TE__ATTN_DEPTH_TO_ROW
};

/* c[m][n] = a b, or += if `add`. a's element (i, k) lies at a[i * row + k * step]. m is rounded up to 4 (what
 * lies there is read and written), n is a multiple of 32. */
TE_FN void te__attn_product(float *c, int ldc, const float *a, int row, int step, const float *b, int ldb, int m, int n,
                            int depth, int add, enum te__attn_part part) {
    enum { V = TE__ATTN_LANES, W = sizeof(te__attn_vector) };
    for (int j = 0; j < n; j += 2 * V)
        for (int i = 0; i < m; i += 4) {
            const int first = part == TE__ATTN_DEPTH_FROM_ROW ? i : 0;
            const int last = part == TE__ATTN_DEPTH_TO_ROW ? te__attn_least(depth, i + 4) : depth;
            const float *pa = a + (int64_t)i * row + (int64_t)first * step, *pb = b + (int64_t)first * ldb + j;
            float *pc = c + (int64_t)i * ldc + j;
            if (part == TE__ATTN_COLUMNS_FROM_ROW && j + 2 * V <= i) continue;
            if (part == TE__ATTN_COLUMNS_TO_ROW && j >= i + 4) continue;
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

/* ---- rows and tiles in memory ------------------------------------------------------------------------------------ */

/* to[0..n) = n numbers from index `at` */
TE_FN void te__attn_row_read(float *__restrict to, const void *__restrict from, int64_t at, int n, te_dtype t) {
    if (t == TE_f32) memcpy(to, (const float *)from + at, (size_t)n * sizeof(float));
    else for (int c = 0; c < n; c++) to[c] = te_load(from, at + c, t);
}
/* to[TE__ATTN_TILE][ld] = the rows x d numbers from index `at`, `width` apart; zeros up to ld and to a multiple of 4
 * rows. */
TE_FN void te__attn_tile_read(float *to, int ld, const void *from, int64_t at, int64_t width, int rows, int d,
                              te_dtype t) {
    for (int r = 0; r < rows; r++) {
        te__attn_row_read(to + r * ld, from, at + r * width, d, t);
        for (int c = d; c < ld; c++) to[r * ld + c] = 0;
    }
    memset(to + rows * ld, 0, (size_t)((-rows & 3) * ld) * sizeof(float));
}
/* to[d][TE__ATTN_TILE] = its transpose times `factor`, with zeros from `rows` on. */
TE_FN void te__attn_tile_read_transposed(float *to, const void *from, int64_t at, int64_t width, int rows, int d,
                                              float factor, te_dtype t) {
    float row[TE_ATTENTION_MAX_HEAD_DIM];
    if (rows < TE__ATTN_TILE) memset(to, 0, (size_t)d * TE__ATTN_TILE * sizeof(float));
    for (int r = 0; r < rows; r++) {
        te__attn_row_read(row, from, at + r * width, d, t);
        for (int c = 0; c < d; c++) to[c * TE__ATTN_TILE + r] = factor * row[c];
    }
}
/* amax: as te_attention_args.amax. */
TE_FN void te__attn_row_write(void *to, int64_t at, const float *from, int d, float factor, te_dtype t, float *amax) {
    int group;
    uint32_t most = 0;
    for (int c = 0; c < d; c++) te_store(to, at + c, factor * from[c], t);
    if (!amax) return;
    for (int c = 0; c < d; c++) {
        const uint32_t bits = te_amax_bits(te_load(to, at + c, t));
        most = bits > most ? bits : most;
    }
    te_amax_raise(amax, most, te_lanes_here(1, &group));
}
/* To out, as te_attention_args.out_scale says. */
TE_FN void te__attn_out_write(const te_attention_args *a, int64_t at, const float *from, int d, float factor,
                              te_dtype t) {
    if (!a->out_scale) te__attn_row_write(a->out, at, from, d, factor, t, a->amax);
    else for (int c = 0; c < d; c++) {
        uint32_t rounded = 0;
        te_store(&rounded, 0, factor * from[c], t);
        ((uint8_t *)a->out)[at + c] = te_e4m3_of_float(te_load(&rounded, 0, t) * *a->out_scale);
    }
}

#endif
