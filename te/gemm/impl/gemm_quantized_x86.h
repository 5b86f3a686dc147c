/* gemm_quantized_x86.h -- products of weights in few bits on x86: with AVX2, and with the VNNI instructions of AVX-512
 * or AVX-VNNI where the compiler may use them (-march=native).
 *
 * Roles:
 *     te__x86_skinny   1 to 8 rows of A, whose time is that of reading the weight: 32 codes at a time are unpacked to a
 *                      register and multiplied by one row of A, or by four. Codes are unsigned there, and a format's
 *                      zero is subtracted as zero times the sum of the activations.
 *     te__x86_tile     more rows, with AVX-512 VNNI: the codes of 16 rows of the weight are unpacked once, transposed so
 *                      that a register has four values of k of each of the 16 rows, and multiplied by up to 512 rows.
 *
 * Floor of the skinny kernels: the weight's bytes at the memory's read rate. Their instructions take less: some 9 for 34
 * bytes of q8_0, 70 for 144 bytes of q4_k.
 */
#ifndef TE_GEMM_QUANTIZED_X86_H
#define TE_GEMM_QUANTIZED_X86_H

#include "quantized_activations.h" /* te__activations */

#if !TE_CUDA && defined __AVX2__ && defined __FMA__ && defined __F16C__
#define TE__QUANTIZED_X86 1
#include <immintrin.h> /* _mm256_dpbusd_epi32 */
#else
#define TE__QUANTIZED_X86 0
#endif

#if TE__QUANTIZED_X86

#if defined __AVX512VNNI__ && defined __AVX512VL__
#define TE__DPBUSD _mm256_dpbusd_epi32
#define TE__DPWSSD _mm256_dpwssd_epi32
#elif defined __AVXVNNI__
#define TE__DPBUSD _mm256_dpbusd_avx_epi32
#define TE__DPWSSD _mm256_dpwssd_avx_epi32
#endif

enum {
    TE__X86_ROWS = 16,  /* rows of the weight that are multiplied by all rows of A, before the next ones are read */
    TE__X86_COLUMNS = 4 /* rows of A that are multiplied at a time */
};

/* sum + u v, for 16 pairs of neighbouring numbers of 16 bits. */
TE_FN __m256i te__x86_add_pairs(__m256i sum, __m256i u, __m256i v) {
#ifdef TE__DPWSSD
    return TE__DPWSSD(sum, u, v);
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(u, v));
#endif
}
/* Eight sums of u v, each over four numbers of 8 bits: u is unsigned and at most 63, or 255 with VNNI; v is signed. */
TE_FN __m256i te__x86_dot(__m256i sum, __m256i u, __m256i v) {
#ifdef TE__DPBUSD
    return TE__DPBUSD(sum, u, v);
#else
    return te__x86_add_pairs(sum, _mm256_maddubs_epi16(u, v), _mm256_set1_epi16(1));
#endif
}
TE_FN float te__x86_total(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
TE_FN __m256i te__x86_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
/* The f16 at p, in all lanes. */
TE_FN __m256 te__x86_f16(const uint8_t *p) {
    int16_t h;
    memcpy(&h, p, sizeof h);
    return _mm256_cvtph_ps(_mm_set1_epi16(h));
}
TE_FN __m256 te__x86_first(float v) { return _mm256_zextps128_ps256(_mm_set_ss(v)); } /* v, 0, 0, ... */

/* ---- skinny: blocks of 32 values --------------------------------------------------------------------------------- */

typedef struct te__x86_block { __m256i q; __m256 d, m; } te__x86_block;

TE_FN int te__x86_bytes_32(te_block_format f) {
    return f == TE_BLOCK_q8_0 ? 34 : f == TE_BLOCK_q4_0 ? 18 : f == TE_BLOCK_q4_1 ? 20 : f == TE_BLOCK_q5_0 ? 22 : 24;
}
/* Which power of two is subtracted from the unsigned codes; -1: none, the format has m. */
TE_FN int te__x86_zero_bits(te_block_format f) {
    return f == TE_BLOCK_q8_0 ? 7 : f == TE_BLOCK_q4_0 ? 3 : f == TE_BLOCK_q5_0 ? 4 : -1;
}
TE_FN __m256i te__x86_nibbles(const uint8_t *p) {
    const __m128i x = _mm_loadu_si128((const __m128i *)p);
    const __m256i v = _mm256_inserti128_si256(_mm256_castsi128_si256(x), _mm_srli_epi16(x, 4), 1);
    return _mm256_and_si256(v, _mm256_set1_epi8(15));
}
/* Adds 16 to each code whose bit is set. */
TE_FN __m256i te__x86_fifth_bits(__m256i q, const uint8_t *p) {
    uint32_t bits;
    memcpy(&bits, p, sizeof bits);
#if defined __AVX512BW__ && defined __AVX512VL__
    return _mm256_mask_add_epi8(q, bits, q, _mm256_set1_epi8(16));
#else
    const __m256i byte = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i x = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), byte), bit);
    return _mm256_or_si256(q, _mm256_and_si256(_mm256_cmpeq_epi8(x, bit), _mm256_set1_epi8(16)));
#endif
}
TE_FN te__x86_block te__x86_unpack(const uint8_t *b, te_block_format f) {
    te__x86_block u;
    u.d = te__x86_f16(b), u.m = u.d;
    if (te__x86_zero_bits(f) < 0) u.m = te__x86_f16(b + 2);
    if (f == TE_BLOCK_q8_0) u.q = te__x86_load(b + 2);
    else if (f == TE_BLOCK_q4_0) u.q = te__x86_nibbles(b + 2);
    else if (f == TE_BLOCK_q4_1) u.q = te__x86_nibbles(b + 4);
    else if (f == TE_BLOCK_q5_0) u.q = te__x86_fifth_bits(te__x86_nibbles(b + 6), b + 2);
    else u.q = te__x86_fifth_bits(te__x86_nibbles(b + 8), b + 4);
    return u;
}
/* sum + the product of block u and group `at` of the activations. */
TE_FN __m256 te__x86_step(__m256 sum, te__x86_block u, const te__activations *a, int64_t at, te_block_format f) {
    const __m256i y = te__x86_load(a->q + at * TE__GROUP);
    const __m256 scale = _mm256_mul_ps(u.d, _mm256_set1_ps(a->scale[at]));
    const int bits = te__x86_zero_bits(f);
    __m256i dot = _mm256_setzero_si256();
#ifndef TE__DPBUSD
    if (f == TE_BLOCK_q8_0)
        dot = te__x86_dot(dot, _mm256_abs_epi8(u.q), _mm256_sign_epi8(y, u.q));
    else
#endif
    {
        if (bits >= 0)
            dot = _mm256_zextsi128_si256(_mm_slli_epi32(_mm_cvtsi32_si128(a->minus_sum[at]), bits >= 0 ? bits : 0));
        if (f == TE_BLOCK_q8_0) u.q = _mm256_xor_si256(u.q, _mm256_set1_epi8(-128));
        dot = te__x86_dot(dot, u.q, y);
    }
    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sum);
    return bits < 0 ? _mm256_fmadd_ps(u.m, te__x86_first(a->scaled_sum[at]), sum) : sum;
}
/* The products of the weight's row w and of the rows row[0] .. row[count - 1] of the activations. `count` is a constant,
 * 1, 2 or 4. Blocks with even and with odd numbers have sums of their own, because each sum waits for the one before. */
TE_FN void te__x86_columns_32(float *out, const uint8_t *w, const te__activations *a, const int64_t *row, int count,
                              te_block_format f) {
    const int64_t blocks = a->k / TE__GROUP;
    const int bytes = te__x86_bytes_32(f);
    __m256 even[TE__X86_COLUMNS], odd[TE__X86_COLUMNS];
    for (int r = 0; r < count; r++) even[r] = odd[r] = _mm256_setzero_ps();
    for (int64_t b = 0; b + 1 < blocks; b += 2, w += 2 * bytes) {
        const te__x86_block u = te__x86_unpack(w, f), v = te__x86_unpack(w + bytes, f);
        for (int r = 0; r < count; r++) even[r] = te__x86_step(even[r], u, a, row[r] * blocks + b, f);
        for (int r = 0; r < count; r++) odd[r] = te__x86_step(odd[r], v, a, row[r] * blocks + b + 1, f);
    }
    if (blocks % 2) {
        const te__x86_block u = te__x86_unpack(w, f);
        for (int r = 0; r < count; r++) even[r] = te__x86_step(even[r], u, a, row[r] * blocks + blocks - 1, f);
    }
    for (int r = 0; r < count; r++) out[r] = te__x86_total(_mm256_add_ps(even[r], odd[r]));
}

/* ---- skinny: k-quants -------------------------------------------------------------------------------------------- */

/* The codes of group g of 32 values of a block of q4_k, q5_k or q6_k: without the zero of q6_k, so they are unsigned. */
TE_FN __m256i te__x86_codes_k(const uint8_t *b, int g, te_block_format f) {
    const __m256i low4 = _mm256_set1_epi8(15);
    if (f == TE_BLOCK_q6_k) { /* a half of the block has 4 groups */
        const int half = g / 4, row = g % 4;
        __m256i low = te__x86_load(b + half * 64 + row % 2 * 32), high = te__x86_load(b + 128 + half * 32);
        if (row / 2) low = _mm256_srli_epi16(low, 4);
        high = row == 0   ? _mm256_slli_epi16(high, 4)
               : row == 1 ? _mm256_slli_epi16(high, 2)
               : row == 2 ? high
                          : _mm256_srli_epi16(high, 2);
        return _mm256_or_si256(_mm256_and_si256(low, low4), _mm256_and_si256(high, _mm256_set1_epi8(48)));
    }
    __m256i low = te__x86_load(b + (f == TE_BLOCK_q5_k ? 48 : 16) + g / 2 * 32);
    if (g % 2) low = _mm256_srli_epi16(low, 4);
    low = _mm256_and_si256(low, low4);
    if (f == TE_BLOCK_q4_k) return low;
    __m256i high = te__x86_load(b + 16); /* bit g of each byte moves to bit 4 */
    high = g < 4 ? _mm256_slli_epi16(high, g < 4 ? 4 - g : 0) : _mm256_srli_epi16(high, g < 4 ? 0 : g - 4);
    return _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(16)));
}
/* The integer scales of a block: of q4_k and q5_k eight scales, then eight mins; of q6_k sixteen scales. */
TE_FN __m256i te__x86_scales_k(const uint8_t *b, te_block_format f) {
    if (f == TE_BLOCK_q6_k) return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(b + 192)));
    uint32_t w[3];
    memcpy(w, b + 4, sizeof w);
    const uint32_t low6 = 0x3f3f3f3f, low4 = 0x0f0f0f0f, top2 = 0x30303030; /* see te__scales_k */
    const __m128i all = _mm_set_epi32((int)((w[2] >> 4 & low4) | (w[1] >> 2 & top2)), (int)(w[1] & low6),
                                      (int)((w[2] & low4) | (w[0] >> 2 & top2)), (int)(w[0] & low6));
    return _mm256_cvtepu8_epi16(all);
}
/* The scales of the two halves of group g, each in the lanes of its half. */
TE_FN __m256i te__x86_scale_of_group(const int16_t scale[16], int g, te_block_format f) {
    if (f != TE_BLOCK_q6_k) return _mm256_set1_epi16(scale[g]);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_set1_epi16(scale[2 * g])),
                                   _mm_set1_epi16(scale[2 * g + 1]), 1);
}
/* The products of the weight's row w and of the rows row[0] .. row[count - 1] of the activations. `count` is a constant,
 * 1, 2 or 4. */
TE_FN void te__x86_columns_k(float *out, const uint8_t *w, const te__activations *a, const int64_t *row, int count,
                             te_block_format f) {
    const int bytes = f == TE_BLOCK_q4_k ? 144 : f == TE_BLOCK_q5_k ? 176 : 210;
    __m256 sum[TE__X86_COLUMNS];
    for (int r = 0; r < count; r++) sum[r] = _mm256_setzero_ps();
    for (int64_t k = 0; k < a->k; k += TE_BLOCK_MAX_VALUES, w += bytes) {
        const __m256i scales = te__x86_scales_k(w, f);
        const __m256 d = te__x86_f16(w + (f == TE_BLOCK_q6_k ? 208 : 0)), dmin = te__x86_f16(w + 2);
        int16_t scale[16];
        __m256i dot[TE__X86_COLUMNS];
        _mm256_storeu_si256((__m256i *)scale, scales);
        for (int r = 0; r < count; r++) dot[r] = _mm256_setzero_si256();
#define TE__X86_GROUP(g)                                                                                           \
    {                                                                                                              \
        const __m256i q = te__x86_codes_k(w, g, f), s = te__x86_scale_of_group(scale, g, f);                       \
        for (int r = 0; r < count; r++)                                                                            \
            dot[r] = te__x86_add_pairs(                                                                            \
                dot[r], _mm256_maddubs_epi16(q, te__x86_load(a->q + row[r] * a->k + k + (g) * TE__GROUP)), s);     \
    }
        TE__X86_GROUP(0) TE__X86_GROUP(1) TE__X86_GROUP(2) TE__X86_GROUP(3)
        TE__X86_GROUP(4) TE__X86_GROUP(5) TE__X86_GROUP(6) TE__X86_GROUP(7)
#undef TE__X86_GROUP
        for (int r = 0; r < count; r++) {
            const int64_t at = (row[r] * a->k + k) / TE__GROUP;
            const __m256 scale_of_a = _mm256_set1_ps(a->scale[at]);
            const __m256i sums = te__x86_load(a->sums + 2 * at);
            if (f == TE_BLOCK_q6_k) /* the zero of the codes is 32 */
                dot[r] = _mm256_sub_epi32(dot[r], _mm256_slli_epi32(_mm256_madd_epi16(scales, sums), 5));
            else {
                const __m128i pairs = _mm_hadd_epi16(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
                const __m128i mins = _mm_madd_epi16(_mm256_extracti128_si256(scales, 1), pairs);
                const __m256 m = _mm256_zextps128_ps256(_mm_cvtepi32_ps(mins));
                sum[r] = _mm256_fnmadd_ps(_mm256_mul_ps(dmin, scale_of_a), m, sum[r]);
            }
            sum[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r]), _mm256_mul_ps(d, scale_of_a), sum[r]);
        }
    }
    for (int r = 0; r < count; r++) out[r] = te__x86_total(sum[r]);
}

/* ---- skinny: rows of a part -------------------------------------------------------------------------------------- */

/* f and count are constants. */
TE_FN void te__x86_columns(float *out, const uint8_t *w, const te__activations *a, const int64_t *row, int count,
                           te_block_format f) {
    if (f == TE_BLOCK_q4_k || f == TE_BLOCK_q5_k || f == TE_BLOCK_q6_k) te__x86_columns_k(out, w, a, row, count, f);
    else te__x86_columns_32(out, w, a, row, count, f);
}
/* out[i * TE__X86_ROWS + r] = the product of row i of the activations and the weight's row r, for `rows` rows from w on,
 * `stride` bytes apart. f is a constant. The order of a sum does not depend on the number of rows. */
TE_FN void te__x86_skinny_of(float *out, const uint8_t *w, size_t stride, int rows, const te__activations *a,
                             te_block_format f) {
    for (int64_t i = 0; i < a->m; i += TE__X86_COLUMNS) {
        const int64_t last = a->m - 1, row[4] = {i, te_min(i + 1, last), te_min(i + 2, last), te_min(i + 3, last)};
        const int count = (int)te_min(TE__X86_COLUMNS, a->m - i);
        for (int r = 0; r < rows; r++) {
            float v[TE__X86_COLUMNS];
            if (count == 1) te__x86_columns(v, w + (size_t)r * stride, a, row, 1, f);
            else if (count == 2) te__x86_columns(v, w + (size_t)r * stride, a, row, 2, f);
            else te__x86_columns(v, w + (size_t)r * stride, a, row, 4, f);
            for (int c = 0; c < count; c++) out[row[c] * TE__X86_ROWS + r] = v[c];
        }
    }
}
#define TE__X86_FORMATS(X) X(q8_0) X(q4_0) X(q4_1) X(q5_0) X(q5_1) X(q4_k) X(q5_k) X(q6_k)
#define TE__X86_CASE(f) \
    case TE_BLOCK_##f: te__x86_skinny_of(out, w, stride, rows, a, TE_BLOCK_##f); break;
TE_API void te__x86_skinny(float *out, const uint8_t *w, size_t stride, int rows, const te__activations *a,
                           te_block_format f) {
    switch ((int)f) { TE__X86_FORMATS(TE__X86_CASE) }
}
#undef TE__X86_CASE

/* ---- tile: more rows of A ---------------------------------------------------------------------------------------- */

#if defined __AVX512VNNI__ && defined __AVX512VL__ && defined __AVX512BW__ && !defined TE_BATCH_INVARIANT
#define TE__QUANTIZED_TILE 1
enum {
    TE__PANEL_ROWS = 16,  /* rows of the weight, one for each lane of a register */
    TE__PANEL_K = 2048,   /* values of each row that are unpacked at a time; a multiple of TE_BLOCK_MAX_VALUES */
    TE__TILE_ROWS = 8,    /* rows of A that are multiplied at a time */
    TE__PANEL_M = 512     /* rows of A that a panel is multiplied by */
};
typedef struct te__x86_panel {
    uint8_t q[TE__PANEL_K / 4][TE__PANEL_ROWS][4]; /* unsigned codes */
    float scale[TE__PANEL_K / 16][TE__PANEL_ROWS];         /* of groups of 32 values, of q6_k 16 */
    float offset[TE__PANEL_K / TE__GROUP][TE__PANEL_ROWS]; /* only of formats with offsets */
    float sum[TE__PANEL_M][TE__PANEL_ROWS];
} te__x86_panel;

/* The number that is subtracted from the unsigned codes. */
TE_FN int te__x86_zero(te_block_format f) {
    const int bits = te__x86_zero_bits(f);
    return f == TE_BLOCK_q6_k ? 32 : bits < 0 ? 0 : 1 << (bits < 0 ? 0 : bits);
}
/* Unpack `kk` values from k0 on of a row of the weight to row r of the panel. w: the values' first block. f is a
 * constant. */
TE_FN void te__x86_panel_row(te__x86_panel *p, int r, const uint8_t *w, int kk, te_block_format f) {
    const int is_k = f == TE_BLOCK_q4_k || f == TE_BLOCK_q5_k || f == TE_BLOCK_q6_k;
    const int groups = is_k ? TE_BLOCK_MAX_VALUES / TE__GROUP : 1, bytes = te_block_bytes(f);
    for (int at = 0; at < kk; at += groups * TE__GROUP, w += bytes) {
        uint8_t scale[8], min[8];
        if (f == TE_BLOCK_q4_k || f == TE_BLOCK_q5_k) te__scales_k(scale, min, w + 4);
        const float d = te__read_f16(w + (f == TE_BLOCK_q6_k ? 208 : 0)), m = te__read_f16(w + 2);
        for (int g = 0; g < groups; g++) {
            const int group = at / TE__GROUP + g;
            uint32_t q[TE__GROUP / 4];
            const __m256i codes = is_k ? te__x86_codes_k(w, g, f) : te__x86_unpack(w, f).q;
            _mm256_storeu_si256((__m256i *)q,
                                f == TE_BLOCK_q8_0 ? _mm256_xor_si256(codes, _mm256_set1_epi8(-128)) : codes);
            for (int i = 0; i < TE__GROUP / 4; i++) memcpy(p->q[group * (TE__GROUP / 4) + i][r], &q[i], 4);
            if (f == TE_BLOCK_q6_k)
                for (int i = 0; i < 2; i++)
                    p->scale[2 * group + i][r] = d * (float)(int8_t)w[192 + 2 * g + i];
            else {
                p->scale[group][r] = is_k ? d * (float)scale[g] : d;
                p->offset[group][r] = is_k ? -(m * (float)min[g]) : m;
            }
        }
    }
}
/* Unpack 16 rows of a part. In place of rows beyond the part's last one, the last one is unpacked. */
#define TE__X86_CASE(f) \
    case TE_BLOCK_##f: te__x86_panel_row(p, r, w, kk, TE_BLOCK_##f); break;
TE_API void te__x86_panel_load(te__x86_panel *p, const te_weight_part *part, int64_t row, int64_t k, int64_t k0,
                               int kk) {
    for (int r = 0; r < TE__PANEL_ROWS; r++) {
        const uint8_t *w = (const uint8_t *)part->data + te_block_row_bytes(part->format, k0) +
                           (size_t)te_min(row + r, part->rows - 1) * te_block_row_bytes(part->format, k);
        switch ((int)part->format) { TE__X86_FORMATS(TE__X86_CASE) }
    }
}
#undef TE__X86_CASE
#define TE__X86_EACH(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7)
/* Adds to sum[row[r]] the products of the panel and rows row[0] .. row[7] of the activations, over `kk` values of k. f
 * is a constant: one of the format's kind. */
TE_FN void te__x86_tile_micro(te__x86_panel *p, const te__activations *a, const int row[TE__TILE_ROWS], int64_t k0,
                              int kk, te_block_format f) {
    const int group = te__block_group(f), zero = te__x86_zero(f);
#define TE__X86_OPEN(r)                                      \
    __m512 s##r = _mm512_loadu_ps(p->sum[row[r]]);           \
    const int64_t at##r = row[r] * a->k + k0;                \
    const int8_t *q##r = a->q + at##r;
#define TE__X86_INIT(r)                                                                                              \
    __m512i d##r = group == 16 ? _mm512_set1_epi32(-zero * a->sums[(at##r + k) / 16])                                \
                   : zero      ? _mm512_set1_epi32(zero * a->minus_sum[(at##r + k) / TE__GROUP])                     \
                               : _mm512_setzero_si512();
#define TE__X86_DOT(r)                                                      \
    memcpy(&four, q##r + k + i, 4), d##r = _mm512_dpbusd_epi32(d##r, w, _mm512_set1_epi32(four));
#define TE__X86_ADD(r)                                                                                            \
    s##r = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d##r),                                                              \
                           _mm512_mul_ps(scale, _mm512_set1_ps(a->scale[(at##r + k) / TE__GROUP])), s##r);        \
    if (!zero) s##r = _mm512_fmadd_ps(offset, _mm512_set1_ps(a->scaled_sum[(at##r + k) / TE__GROUP]), s##r);
#define TE__X86_CLOSE(r) _mm512_storeu_ps(p->sum[row[r]], s##r);
    TE__X86_EACH(TE__X86_OPEN)
    for (int k = 0; k < kk; k += group) {
        const __m512 scale = _mm512_loadu_ps(p->scale[k / group]), offset = _mm512_loadu_ps(p->offset[k / TE__GROUP]);
        TE__X86_EACH(TE__X86_INIT)
        for (int i = 0; i < group; i += 4) {
            const __m512i w = _mm512_loadu_si512(p->q[(k + i) / 4]);
            int32_t four;
            TE__X86_EACH(TE__X86_DOT)
        }
        TE__X86_EACH(TE__X86_ADD)
    }
    TE__X86_EACH(TE__X86_CLOSE)
#undef TE__X86_OPEN
#undef TE__X86_INIT
#undef TE__X86_DOT
#undef TE__X86_ADD
#undef TE__X86_CLOSE
}
#undef TE__X86_EACH
/* The kinds of formats differ in the size of their groups, and in whether they have offsets. */
TE_API void te__x86_tile_rows(te__x86_panel *p, const te__activations *a, int64_t k0, int kk, te_block_format f) {
    for (int i = 0; i < (int)a->m; i += TE__TILE_ROWS) {
        int row[TE__TILE_ROWS];
        for (int r = 0; r < TE__TILE_ROWS; r++) row[r] = (int)te_min(i + r, a->m - 1);
        if (te__block_has_offset(f)) te__x86_tile_micro(p, a, row, k0, kk, TE_BLOCK_q4_k);
        else if (f == TE_BLOCK_q8_0) te__x86_tile_micro(p, a, row, k0, kk, TE_BLOCK_q8_0);
        else if (f == TE_BLOCK_q6_k) te__x86_tile_micro(p, a, row, k0, kk, TE_BLOCK_q6_k);
        else if (f == TE_BLOCK_q5_0) te__x86_tile_micro(p, a, row, k0, kk, TE_BLOCK_q5_0);
        else te__x86_tile_micro(p, a, row, k0, kk, TE_BLOCK_q4_0);
    }
}
/* p->sum[i][r] = the product of row i of the activations and row `row` + r of the part, for up to TE__PANEL_M rows of
 * the activations. */
TE_API void te__x86_tile(te__x86_panel *p, const te__activations *a, const te_weight_part *part, int64_t row) {
    memset(p->sum, 0, (size_t)a->m * sizeof p->sum[0]);
    for (int64_t k0 = 0; k0 < a->k; k0 += TE__PANEL_K) {
        const int kk = (int)te_min(TE__PANEL_K, a->k - k0);
        te__x86_panel_load(p, part, row, a->k, k0, kk);
        te__x86_tile_rows(p, a, k0, kk, part->format);
    }
}
#endif

#endif
#endif
