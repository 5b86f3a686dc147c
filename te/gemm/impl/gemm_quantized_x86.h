/* gemm_quantized_x86.h -- multiplies a quantized weight (te/quant/block_formats.h) by activations that are rounded to 8
 * bits, on x86 with AVX2, and with AVX-VNNI if the compiler may use it: one row of the weight by 1, 2 or 4 rows of
 * activations at a time. gemm_quantized_avx512.h has the kernels for AVX-512.
 *
 * A code is the integer that a format stores for a value. 32 codes at a time are unpacked to a register, as unsigned
 * numbers, because the instructions multiply unsigned by signed numbers. In a format with a zero point (value =
 * d * (code - zero)) the kernel computes the sum of code * activation, and subtracts zero times the sum of the
 * activations.
 */
#ifndef TE_GEMM_QUANTIZED_X86_H
#define TE_GEMM_QUANTIZED_X86_H

#include "quantized_activations.h" /* te__activations */

#if !TE_CUDA && (TE__DISPATCH || (defined __AVX2__ && defined __FMA__ && defined __F16C__))
#define TE__QUANTIZED_X86 1
/* immintrin.h of gcc 12 leaves variables uninitialised on purpose, and gcc warns of them (GCC bug 105593). */
#ifndef __clang__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h> /* _mm256_dpbusd_epi32 */
#ifndef __clang__
#pragma GCC diagnostic pop
#endif
#else
#define TE__QUANTIZED_X86 0
#endif

#if TE__QUANTIZED_X86

/* Declares a function that may use AVX2 instructions even if the program is compiled for CPUs without them (te_isa). */
#define TE__AVX2_FN TE__TARGET_AVX2 TE_FN

#if defined __AVX512VNNI__ && defined __AVX512VL__
#define TE__DPBUSD _mm256_dpbusd_epi32
#define TE__DPWSSD _mm256_dpwssd_epi32
#elif defined __AVXVNNI__
#define TE__DPBUSD _mm256_dpbusd_avx_epi32
#define TE__DPWSSD _mm256_dpwssd_avx_epi32
#endif

enum {
    /* How many bytes ahead of its use the weight is prefetched into the cache. Without prefetching, one Zen 5 core read
     * a weight in q8_0 at 0.77 of the rate of a plain read; with 2 KB ahead at 0.76, with 8 KB at 0.90 and with 24 KB
     * at 0.91. */
    TE__X86_AHEAD = 8192
};

/* Multiplies 16 pairs of 16-bit numbers. Returns eight sums of 32 bits:
 * sum[i] + u[2 * i] * v[2 * i] + u[2 * i + 1] * v[2 * i + 1]. */
TE__AVX2_FN __m256i te__x86_add_pairs(__m256i sum, __m256i u, __m256i v) {
#ifdef TE__DPWSSD
    return TE__DPWSSD(sum, u, v);
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(u, v));
#endif
}
/* Multiplies 32 pairs of 8-bit numbers. Returns eight sums of 32 bits: sum[i] plus the products u[j] * v[j] for j =
 * 4 * i to 4 * i + 3. v is signed. u is unsigned: up to 255 with VNNI; without VNNI at most 128, so that the sum of two
 * products fits into 16 bits. */
TE__AVX2_FN __m256i te__x86_dot(__m256i sum, __m256i u, __m256i v) {
#ifdef TE__DPBUSD
    return TE__DPBUSD(sum, u, v);
#else
    return te__x86_add_pairs(sum, _mm256_maddubs_epi16(u, v), _mm256_set1_epi16(1));
#endif
}
TE__AVX2_FN float te__x86_total(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
/* Prefetches into the cache the `bytes` bytes that begin TE__X86_AHEAD bytes after w. */
TE__AVX2_FN void te__x86_prefetch(const uint8_t *w, int bytes) {
    for (int i = 0; i < bytes; i += 64) _mm_prefetch((const char *)w + TE__X86_AHEAD + i, _MM_HINT_T0);
}
TE__AVX2_FN __m256i te__x86_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
/* Returns the f16 number at p, converted to float, in all eight lanes. */
TE__AVX2_FN __m256 te__x86_f16(const uint8_t *p) {
    int16_t h;
    memcpy(&h, p, sizeof h);
    return _mm256_cvtph_ps(_mm_set1_epi16(h));
}
TE__AVX2_FN __m256 te__x86_first(float v) { return _mm256_zextps128_ps256(_mm_set_ss(v)); } /* v, 0, 0, ... */

/* ---- skinny: blocks of 32 to 128 values -------------------------------------------------------------------------- */

typedef struct te__x86_block {
    __m256i q;
    __m256 d, m;
} te__x86_block;

/* Returns log2 of the zero point, the number that is subtracted from each unsigned code (value = d * (code - zero)): 7
 * for q8_0 and int8, 3 for q4_0 and int4, 4 for q5_0, int4z and mxfp4; -1 for formats without a zero point, which have
 * an offset m instead (value = d * code + m). When codes of int4z are unpacked, 16 minus the block's zero point is
 * added to them, so that their zero point becomes 16. Codes of mxfp4 are unpacked to twice the value plus 16. */
TE_FN int te__x86_zero_bits(te_block_format f) {
    return te__block_has_offset(f) || f == TE_BLOCK_q6_k                              ? -1
           : f == TE_BLOCK_q8_0 || f == TE_BLOCK_int8                                 ? 7
           : f == TE_BLOCK_q5_0 || f == TE_BLOCK_mxfp4 || te__block_has_zero_point(f) ? 4
                                                                                      : 3;
}
TE__AVX2_FN __m256i te__x86_nibbles(const uint8_t *p) {
    const __m128i x = _mm_loadu_si128((const __m128i *)p);
    const __m256i v = _mm256_inserti128_si256(_mm256_castsi128_si256(x), _mm_srli_epi16(x, 4), 1);
    return _mm256_and_si256(v, _mm256_set1_epi8(15));
}
/* Returns the 32 codes q with 16 added to each code whose bit is set in the 32 bits at p (the codes' fifth bits). */
TE__AVX2_FN __m256i te__x86_fifth_bits(__m256i q, const uint8_t *p) {
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
/* Returns, for each E2M1 number (a nibble) in q, twice its value plus 16. */
TE__AVX2_FN __m256i te__x86_e2m1(__m256i q) {
    const __m128i table = _mm_setr_epi8(16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), q);
}
/* Returns the 32 codes of a group. The codes of q8_0 and int8 are signed, all others unsigned. */
TE__AVX2_FN __m256i te__x86_codes_32(te__weight_group g, te_block_format f) {
    if (f == TE_BLOCK_q8_0 || f == TE_BLOCK_int8) return te__x86_load(g.codes);
    const __m256i q = te__x86_nibbles(g.codes);
    if (f == TE_BLOCK_q5_0 || f == TE_BLOCK_q5_1) return te__x86_fifth_bits(q, g.codes - 4);
    if (f == TE_BLOCK_mxfp4) return te__x86_e2m1(q);
    return te__block_has_zero_point(f) ? _mm256_add_epi8(q, _mm256_set1_epi8((char)(16 - g.block[2]))) : q;
}
TE__AVX2_FN te__x86_block te__x86_unpack(te__weight_group g, te_block_format f) {
    te__x86_block u;
    if (f == TE_BLOCK_int8)
        u.d = _mm256_set1_ps(1.0f);
    else if (f == TE_BLOCK_mxfp4)
        u.d = _mm256_set1_ps(te__half_of_e8m0(g.block[0]));
    else
        u.d = te__x86_f16(g.block);
    u.m = te__x86_zero_bits(f) < 0 ? te__x86_f16(g.block + 2) : u.d;
    u.q = te__x86_codes_32(g, f);
    return u;
}
/* Returns sum plus the dot product of block u, unpacked from a weight in format f, and group number `at` of the
 * activations. The products are distributed over the eight lanes of the sum. */
TE__AVX2_FN __m256 te__x86_step(__m256 sum, te__x86_block u, const te__activations *a, int64_t at, te_block_format f) {
    const __m256i y = te__x86_load(a->q + at * TE__GROUP);
    const __m256 scale = _mm256_mul_ps(u.d, _mm256_set1_ps(a->scale[at]));
    const int bits = te__x86_zero_bits(f);
    __m256i dot = _mm256_setzero_si256();
#ifndef TE__DPBUSD
    if (bits == 7)
        dot = te__x86_dot(dot, _mm256_abs_epi8(u.q), _mm256_sign_epi8(y, u.q));
    else
#endif
    {
        if (bits >= 0)
            dot = _mm256_zextsi128_si256(_mm_slli_epi32(_mm_cvtsi32_si128(a->minus_sum[at]), bits >= 0 ? bits : 0));
        if (bits == 7) u.q = _mm256_xor_si256(u.q, _mm256_set1_epi8(-128));
        dot = te__x86_dot(dot, u.q, y);
    }
    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sum);
    return bits < 0 ? _mm256_fmadd_ps(u.m, te__x86_first(a->scaled_sum[at]), sum) : sum;
}
/* For formats with blocks of 32, 64 or 128 values: sets out[i] to the dot product of the weight's row at w and row
 * row[i] of the activations, for i < count. count: 1, 2 or 4, a compile-time constant. Groups with even and with odd
 * numbers are added to separate sums, so that an addition to one sum need not wait for an addition to the other. */
TE__AVX2_FN void te__x86_columns_32(float *out, const uint8_t *w, const te__activations *a, const int64_t *row,
                                    int count, te_block_format f) {
    const int64_t groups = a->k / TE__GROUP;
    __m256 even[TE__SKINNY_COLUMNS], odd[TE__SKINNY_COLUMNS];
    for (int r = 0; r < count; r++) even[r] = odd[r] = _mm256_setzero_ps();
    for (int64_t b = 0; b + 1 < groups; b += 2) {
        const te__weight_group first = te__group_at(w, b, f), second = te__group_at(w, b + 1, f);
        const te__x86_block u = te__x86_unpack(first, f), v = te__x86_unpack(second, f);
        te__x86_prefetch(first.codes, 2 * TE__GROUP * te__group_bytes(f) / te__group_values(f));
        for (int r = 0; r < count; r++) even[r] = te__x86_step(even[r], u, a, row[r] * groups + b, f);
        for (int r = 0; r < count; r++) odd[r] = te__x86_step(odd[r], v, a, row[r] * groups + b + 1, f);
    }
    if (groups % 2) {
        const te__x86_block u = te__x86_unpack(te__group_at(w, groups - 1, f), f);
        for (int r = 0; r < count; r++) even[r] = te__x86_step(even[r], u, a, row[r] * groups + groups - 1, f);
    }
    for (int r = 0; r < count; r++) out[r] = te__x86_total(_mm256_add_ps(even[r], odd[r]));
}

/* ---- skinny: k-quants -------------------------------------------------------------------------------------------- */

/* Returns the 32 unsigned codes of group g (0 to 7) of the block at b, which is in q4_k, q5_k or q6_k. The zero point
 * of q6_k, 32, is not subtracted. */
TE__AVX2_FN __m256i te__x86_codes_k(const uint8_t *b, int g, te_block_format f) {
    const __m256i low4 = _mm256_set1_epi8(15);
    if (f == TE_BLOCK_q6_k) { /* each half of the block holds the codes of four groups of 32 */
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
    __m256i high = te__x86_load(b + 16); /* bit g of byte i is the fifth bit of code i of group g; shift it to bit 4 */
    high = g < 4 ? _mm256_slli_epi16(high, g < 4 ? 4 - g : 0) : _mm256_srli_epi16(high, g < 4 ? 0 : g - 4);
    return _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(16)));
}
/* Returns the integer scales of the block at b as 16 numbers of 16 bits: for q4_k and q5_k the scales of the eight
 * groups, then their eight mins; for q6_k sixteen scales, each for 16 values. */
TE__AVX2_FN __m256i te__x86_scales_k(const uint8_t *b, te_block_format f) {
    if (f == TE_BLOCK_q6_k) return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(b + 192)));
    /* the scales and mins, packed in 12 bytes; te__scales_k describes their layout */
    const __m128i x = _mm_loadu_si128((const __m128i *)(b + 4));
    const __m128i low = _mm_shuffle_epi8(x, _mm_setr_epi8(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 8, 9, 10, 11));
    const __m128i high = _mm_shuffle_epi8(x, _mm_setr_epi8(-1, -1, -1, -1, 0, 1, 2, 3, -1, -1, -1, -1, 4, 5, 6, 7));
    const __m128i low_mask = _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f);
    const __m128i low_bits = _mm_and_si128(_mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 0, 4)), low_mask);
    const __m128i all = _mm_or_si128(low_bits, _mm_and_si128(_mm_srli_epi16(high, 2), _mm_set1_epi8(48)));
    return _mm256_cvtepu8_epi16(all);
}
/* Returns the scales of the codes of group g as 16 numbers of 16 bits: number j is the scale of codes 2 * j and
 * 2 * j + 1. In q4_k and q5_k all 16 are equal, because a group has one scale; in q6_k the first eight are the scale of
 * the first half of the group, and the last eight the scale of the second half. */
TE__AVX2_FN __m256i te__x86_scale_of_group(const int16_t scale[16], int g, te_block_format f) {
    if (f != TE_BLOCK_q6_k) return _mm256_set1_epi16(scale[g]);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_set1_epi16(scale[2 * g])),
                                   _mm_set1_epi16(scale[2 * g + 1]), 1);
}
/* For q4_k, q5_k and q6_k: sets out[i] to the dot product of the weight's row at w and row row[i] of the activations,
 * for i < count. count: 1, 2 or 4, a compile-time constant. */
TE__AVX2_FN void te__x86_columns_k(float *out, const uint8_t *w, const te__activations *a, const int64_t *row,
                                   int count, te_block_format f) {
    const int bytes = f == TE_BLOCK_q4_k ? 144 : f == TE_BLOCK_q5_k ? 176 : 210;
    __m256 sum[TE__SKINNY_COLUMNS];
    for (int r = 0; r < count; r++) sum[r] = _mm256_setzero_ps();
    for (int64_t k = 0; k < a->k; k += TE_BLOCK_MAX_VALUES, w += bytes) {
        const __m256i scales = te__x86_scales_k(w, f);
        const __m256 d = te__x86_f16(w + (f == TE_BLOCK_q6_k ? 208 : 0)), dmin = te__x86_f16(w + 2);
        int16_t scale[16];
        __m256i dot[TE__SKINNY_COLUMNS];
        te__x86_prefetch(w, bytes);
        _mm256_storeu_si256((__m256i *)scale, scales);
        for (int r = 0; r < count; r++) dot[r] = _mm256_setzero_si256();
#define TE__X86_GROUP(g)                                                                                     \
    {                                                                                                        \
        const __m256i q = te__x86_codes_k(w, g, f), s = te__x86_scale_of_group(scale, g, f);                 \
        for (int r = 0; r < count; r++)                                                                      \
            dot[r] = te__x86_add_pairs(                                                                      \
                dot[r], _mm256_maddubs_epi16(q, te__x86_load(a->q + row[r] * a->k + k + (g)*TE__GROUP)), s); \
    }
        TE__X86_GROUP(0)
        TE__X86_GROUP(1) TE__X86_GROUP(2) TE__X86_GROUP(3) TE__X86_GROUP(4) TE__X86_GROUP(5) TE__X86_GROUP(6)
            TE__X86_GROUP(7)
#undef TE__X86_GROUP
                for (int r = 0; r < count; r++) {
            const int64_t at = (row[r] * a->k + k) / TE__GROUP;
            const __m256 scale_of_a = _mm256_set1_ps(a->scale[at]);
            /* subtract 32 (the zero point of q6_k, 2^5) times the sums of each 16 activations, multiplied by the
             * weight's scales */
            if (f == TE_BLOCK_q6_k)
                dot[r] = _mm256_sub_epi32(
                    dot[r], _mm256_slli_epi32(_mm256_madd_epi16(scales, te__x86_load(a->sums + 2 * at)), 5));
            else {
                const __m128i sums = _mm_loadu_si128((const __m128i *)(a->group_sums + at));
                const __m128i mins = _mm_madd_epi16(_mm256_extracti128_si256(scales, 1), sums);
                const __m256 m = _mm256_zextps128_ps256(_mm_cvtepi32_ps(mins));
                sum[r] = _mm256_fnmadd_ps(_mm256_mul_ps(dmin, scale_of_a), m, sum[r]);
            }
            sum[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r]), _mm256_mul_ps(d, scale_of_a), sum[r]);
        }
    }
    for (int r = 0; r < count; r++) out[r] = te__x86_total(sum[r]);
}

TE__AVX2_FN void te__avx2_columns(float *out, const uint8_t *w, const te__activations *a, const int64_t *row, int count,
                                  te_block_format f) {
    if (f == TE_BLOCK_q4_k || f == TE_BLOCK_q5_k || f == TE_BLOCK_q6_k)
        te__x86_columns_k(out, w, a, row, count, f);
    else
        te__x86_columns_32(out, w, a, row, count, f);
}
#define TE__AVX2_KERNELS(f) TE__COLUMNS_KERNELS(avx2, TE__TARGET_AVX2, f)
#define TE__AVX2_CASE(f) TE__COLUMNS_CASE(avx2, f)
TE__INTEGER_FORMATS(TE__AVX2_KERNELS)
/* Returns the kernel for format f and 1, 2 or 4 rows of A. */
TE_API te__columns_kernel *te__avx2_kernel(te_block_format f, int count) {
    switch ((int)f) { TE__INTEGER_FORMATS(TE__AVX2_CASE) }
    return 0;
}

#endif
#endif
