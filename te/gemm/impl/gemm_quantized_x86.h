/* gemm_quantized_x86.h -- products of weights in few bits on x86 with AVX2, and with AVX-VNNI where the compiler may
 * use it: one row of a weight times 1, 2 or 4 rows of activations. gemm_quantized_avx512.h has the kernels for AVX-512.
 *
 * 32 codes at a time are unpacked to a register. They are unsigned, and a format's zero is subtracted as zero times the
 * sum of the activations, because the instructions multiply unsigned by signed numbers.
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
    TE__X86_ROWS = 16,   /* rows of the weight that are multiplied by all rows of A, before the next ones are read */
    TE__X86_COLUMNS = 4, /* rows of A that are multiplied at a time */
    /* How many bytes ahead of the codes the weight is fetched into the cache. One Zen 5 core read q8_0 at 0.77 of the
     * rate of a plain read without it, at 0.76 with 2 KB, 0.90 with 8 KB and 0.91 with 24 KB. */
    TE__X86_AHEAD = 8192
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
/* Fetches into the cache the `bytes` bytes that lie TE__X86_AHEAD bytes behind w. */
TE_FN void te__x86_prefetch(const uint8_t *w, int bytes) {
    for (int i = 0; i < bytes; i += 64) _mm_prefetch((const char *)w + TE__X86_AHEAD + i, _MM_HINT_T0);
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

typedef struct te__x86_block {
    __m256i q;
    __m256 d, m;
} te__x86_block;

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
    if (f == TE_BLOCK_q8_0)
        u.q = te__x86_load(b + 2);
    else if (f == TE_BLOCK_q4_0)
        u.q = te__x86_nibbles(b + 2);
    else if (f == TE_BLOCK_q4_1)
        u.q = te__x86_nibbles(b + 4);
    else if (f == TE_BLOCK_q5_0)
        u.q = te__x86_fifth_bits(te__x86_nibbles(b + 6), b + 2);
    else
        u.q = te__x86_fifth_bits(te__x86_nibbles(b + 8), b + 4);
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
/* The products of the weight's row w and of the rows row[0] .. row[count - 1] of the activations. `count` is a
 * constant, 1, 2 or 4. Blocks with even and with odd numbers have sums of their own, because each sum waits for the one
 * before. */
TE_FN void te__x86_columns_32(float *out, const uint8_t *w, const te__activations *a, const int64_t *row, int count,
                              te_block_format f) {
    const int64_t blocks = a->k / TE__GROUP;
    const int bytes = te__x86_bytes_32(f);
    __m256 even[TE__X86_COLUMNS], odd[TE__X86_COLUMNS];
    for (int r = 0; r < count; r++) even[r] = odd[r] = _mm256_setzero_ps();
    for (int64_t b = 0; b + 1 < blocks; b += 2, w += 2 * bytes) {
        const te__x86_block u = te__x86_unpack(w, f), v = te__x86_unpack(w + bytes, f);
        te__x86_prefetch(w, 2 * bytes);
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

/* The codes of group g of 32 values of a block of q4_k, q5_k or q6_k: without the zero of q6_k, so they are unsigned.
 */
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
    const __m128i x = _mm_loadu_si128((const __m128i *)(b + 4)); /* see te__scales_k */
    const __m128i low = _mm_shuffle_epi8(x, _mm_setr_epi8(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 8, 9, 10, 11));
    const __m128i high = _mm_shuffle_epi8(x, _mm_setr_epi8(-1, -1, -1, -1, 0, 1, 2, 3, -1, -1, -1, -1, 4, 5, 6, 7));
    const __m128i low_mask = _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f);
    const __m128i low_bits = _mm_and_si128(_mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 0, 4)), low_mask);
    const __m128i all = _mm_or_si128(low_bits, _mm_and_si128(_mm_srli_epi16(high, 2), _mm_set1_epi8(48)));
    return _mm256_cvtepu8_epi16(all);
}
/* The scales of the two halves of group g, each in the lanes of its half. */
TE_FN __m256i te__x86_scale_of_group(const int16_t scale[16], int g, te_block_format f) {
    if (f != TE_BLOCK_q6_k) return _mm256_set1_epi16(scale[g]);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_set1_epi16(scale[2 * g])),
                                   _mm_set1_epi16(scale[2 * g + 1]), 1);
}
/* The products of the weight's row w and of the rows row[0] .. row[count - 1] of the activations. `count` is a
 * constant, 1, 2 or 4. */
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
            if (f == TE_BLOCK_q6_k) /* the zero of the codes is 32 */
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

#endif
#endif
