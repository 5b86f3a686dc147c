/* gemm_quantized_avx512.h -- multiplies a quantized weight (te/quant/block_formats.h) by activations on x86: the
 * kernels for AVX-512 with VNNI.
 *
 * Roles:
 *     te__avx512_columns_32, te__avx512_columns_k
 *                      for up to 24 rows of A: multiply one row of the weight by 1, 2 or 4 rows of A at a time. A
 *                      register holds 64 codes, the integers that the weight's format stores. With a few rows of A the
 *                      time is that of reading the weight.
 *     te__x86_tile     for more rows of A: unpacks the codes of 16 rows of the weight once, and
 *                      multiplies them by up to 512 rows of A. The codes are transposed, so that a register has four
 *                      consecutive codes of each of the 16 rows.
 *
 * Lower bound of the skinny kernels' time: the time in which memory delivers the weight's bytes.
 */
#ifndef TE_GEMM_QUANTIZED_AVX512_H
#define TE_GEMM_QUANTIZED_AVX512_H

#include "gemm_quantized_x86.h" /* te__x86_columns_32, te__x86_codes_k */

#if TE__QUANTIZED_X86 && (TE__DISPATCH || (defined __AVX512VNNI__ && defined __AVX512VL__ && defined __AVX512BW__))
#define TE__QUANTIZED_AVX512 1
/* Declares a function that may use AVX-512 instructions even if the program is compiled for CPUs without them
 * (te_isa). */
#define TE__AVX512_FN TE__TARGET_AVX512 TE_FN

/* ---- skinny: blocks of 32 to 128 values, four groups at a time --------------------------------------------------- */

TE__AVX512_FN __m512i te__avx512_load(const void *p) { return _mm512_loadu_si512(p); }
/* Returns the 512-bit register whose lower half is `low`, and whose upper half is `high`. */
TE__AVX512_FN __m512i te__avx512_pair(__m256i low, __m256i high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
/* Returns the 64 unsigned codes of two groups of 32 values, in q8_0 or int8. */
TE__AVX512_FN __m512i te__avx512_bytes(te__weight_group a, te__weight_group b) {
    return _mm512_xor_si512(te__avx512_pair(te__x86_load(a.codes), te__x86_load(b.codes)), _mm512_set1_epi8(-128));
}
/* Returns the fifth bits of 64 codes of q5_0 or q5_1: from each of four groups the first 16 codes (if `at` is 0) or the
 * last 16 codes (if `at` is 2). */
TE__AVX512_FN __mmask64 te__avx512_fifth_bits(const te__weight_group b[4], int at) {
    uint64_t bits = 0;
    for (int i = 0; i < 4; i++) bits |= (uint64_t)te__read_u16(b[i].codes - 4 + at) << 16 * i;
    return (__mmask64)bits;
}
/* Unpacks the 128 unsigned codes of four groups, in a format with codes of 4 or 5 bits. q[0] gets the first 16 codes of
 * each group: bytes 16 * i to 16 * i + 15 come from group i. q[1] gets the last 16 codes of each group, in the same
 * order. */
TE__AVX512_FN void te__avx512_nibbles(__m512i q[2], const te__weight_group b[4], te_block_format f) {
    const __m512i low4 = _mm512_set1_epi8(15);
    __m512i x;
    if (te__group_values(f) == 128)
        x = te__avx512_load(b[0].codes);
    else {
        const __m128i *const p[4] = {(const __m128i *)b[0].codes, (const __m128i *)b[1].codes,
                                     (const __m128i *)b[2].codes, (const __m128i *)b[3].codes};
        x = te__avx512_pair(
            _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(p[0])), _mm_loadu_si128(p[1]), 1),
            _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(p[2])), _mm_loadu_si128(p[3]), 1));
    }
    q[0] = _mm512_and_si512(x, low4), q[1] = _mm512_and_si512(_mm512_srli_epi16(x, 4), low4);
    if (f == TE_BLOCK_mxfp4) {
        const __m512i table = _mm512_broadcast_i32x4(
            _mm_setr_epi8(16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4));
        q[0] = _mm512_shuffle_epi8(table, q[0]), q[1] = _mm512_shuffle_epi8(table, q[1]);
    } else if (te__block_has_zero_point(f)) {
        const __m512i zero =
            te__group_values(f) == 128
                ? _mm512_set1_epi8((char)(16 - b[0].block[2]))
                : _mm512_shuffle_epi8(_mm512_setr_epi32(16 - b[0].block[2], 0, 0, 0, 16 - b[1].block[2], 0, 0, 0,
                                                        16 - b[2].block[2], 0, 0, 0, 16 - b[3].block[2], 0, 0, 0),
                                      _mm512_setzero_si512());
        q[0] = _mm512_add_epi8(q[0], zero), q[1] = _mm512_add_epi8(q[1], zero);
    } else if (f == TE_BLOCK_q5_0 || f == TE_BLOCK_q5_1) {
        const __m512i sixteen = _mm512_set1_epi8(16);
        q[0] = _mm512_mask_add_epi8(q[0], te__avx512_fifth_bits(b, 0), q[0], sixteen);
        q[1] = _mm512_mask_add_epi8(q[1], te__avx512_fifth_bits(b, 2), q[1], sixteen);
    }
}
/* Returns, as floats, the scales d of the four groups b[0] to b[3]: d0, d1, d2, d3. If the format has offsets m,
 * returns the groups' scales and offsets: d0, m0, d1, m1, d2, m2, d3, m3. */
TE__AVX512_FN __m256 te__avx512_scales(const te__weight_group b[4], te_block_format f) {
    uint32_t w[4];
    uint16_t h[4];
    if (f == TE_BLOCK_int8) return _mm256_set1_ps(1.0f);
    if (f == TE_BLOCK_mxfp4) {
        const __m128i e = _mm_setr_epi32(b[0].block[0], b[1].block[0], b[2].block[0], b[3].block[0]);
        __m128i half = _mm_slli_epi32(_mm_sub_epi32(e, _mm_set1_epi32(1)), 23); /* as te__half_of_e8m0 */
        half = _mm_mask_sllv_epi32(half, _mm_cmplt_epi32_mask(e, _mm_set1_epi32(2)), _mm_set1_epi32(0x00200000), e);
        half = _mm_mask_mov_epi32(half, _mm_cmpeq_epi32_mask(e, _mm_set1_epi32(255)), _mm_set1_epi32(0x7fc00000));
        return _mm256_castps128_ps256(_mm_castsi128_ps(half));
    }
    for (int i = 0; i < 4; i++) memcpy(&w[i], b[i].block, 4), memcpy(&h[i], b[i].block, 2);
    if (te__x86_zero_bits(f) < 0) return _mm256_cvtph_ps(_mm_setr_epi32((int)w[0], (int)w[1], (int)w[2], (int)w[3]));
    return _mm256_castps128_ps256(
        _mm_cvtph_ps(_mm_setr_epi16((short)h[0], (short)h[1], (short)h[2], (short)h[3], 0, 0, 0, 0)));
}
/* Returns v[lanes[i]] in lane i. */
TE__AVX512_FN __m512 te__avx512_spread(__m256 v, __m512i lanes) {
    return _mm512_permutexvar_ps(lanes, _mm512_castps256_ps512(v));
}
typedef struct te__avx512_four {
    __m512i q[2]; /* the codes. In q8_0 and int8 each register holds two groups; in the other formats the codes are
                   * in the order of te__avx512_nibbles */
    __m256 d;
} te__avx512_four; /* four groups */
/* Unpacks `count` (1 to 4) groups from w, the start of a block. In place of groups `count` to 3 the last group is
 * unpacked again, and te__avx512_step multiplies these copies by 0. */
TE__AVX512_FN te__avx512_four te__avx512_unpack(const uint8_t *w, int count, te_block_format f) {
    te__weight_group b[4];
    te__avx512_four u;
    for (int i = 0; i < 4; i++) b[i] = te__group_at(w, i < count ? i : count - 1, f);
    if (te__x86_zero_bits(f) == 7)
        u.q[0] = te__avx512_bytes(b[0], b[1]), u.q[1] = te__avx512_bytes(b[2], b[3]);
    else
        te__avx512_nibbles(u.q, b, f);
    u.d = te__group_values(f) == 128 ? te__x86_f16(w) : te__avx512_scales(b, f);
    return u;
}
typedef struct te__avx512_sums {
    __m512 even, odd;
    __m256 m;
} te__avx512_sums;
/* Adds to s the dot products of the first `count` of the four groups in u with `count` groups of activations, from
 * group `at` on. If count < 4, the code still computes four products, but the scales of the groups from `count` on are
 * set to 0, because memory behind the last group of activations is undefined. */
TE__AVX512_FN void te__avx512_step(te__avx512_sums *s, const te__avx512_four *u, const te__activations *a, int64_t at,
                                   int count, te_block_format f) {
    const __mmask8 there = (__mmask8)((1 << count) - 1);
    const int bits = te__x86_zero_bits(f);
    const __m128 scale = _mm_maskz_loadu_ps(there, a->scale + at);
    const int8_t *y = a->q + at * TE__GROUP;
    const __m512i y0 = te__avx512_load(y), y1 = te__avx512_load(y + 64);
    __m512i sums = _mm512_setzero_si512(); /* in the first four lanes */
    __m256 d;
    if (bits < 0) { /* d0 * scale0, m0 * sum0, d1 * scale1, ... */
        const __m128 sum = _mm_maskz_loadu_ps(there, a->scaled_sum + at);
        d = _mm256_mul_ps(u->d, _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_unpacklo_ps(scale, sum)),
                                                     _mm_unpackhi_ps(scale, sum), 1));
        s->m = _mm256_add_ps(s->m, d);
    } else {
        d = _mm256_castps128_ps256(_mm_mul_ps(_mm256_castps256_ps128(u->d), scale));
        sums = _mm512_castsi128_si512(
            _mm_slli_epi32(_mm_loadu_si128((const __m128i *)(a->minus_sum + at)), bits < 0 ? 0 : bits));
    }
    if (bits == 7) {
        const __m512i first = te__avx512_pair(_mm256_setzero_si256(), _mm256_set1_epi32(1)),
                      second = te__avx512_pair(_mm256_set1_epi32(2), _mm256_set1_epi32(3));
        const __m512i even =
            _mm512_dpbusd_epi32(_mm512_maskz_permutexvar_epi32(0x0101, first, sums), u->q[0], y0);
        const __m512i odd =
            _mm512_dpbusd_epi32(_mm512_maskz_permutexvar_epi32(0x0101, second, sums), u->q[1], y1);
        s->even = _mm512_fmadd_ps(_mm512_cvtepi32_ps(even), te__avx512_spread(d, first), s->even);
        s->odd = _mm512_fmadd_ps(_mm512_cvtepi32_ps(odd), te__avx512_spread(d, second), s->odd);
        return;
    }
    /* The codes of group i lie in the i-th 128 bits of the register, so the activations of group i are moved to the
     * same bits. */
    const int step = bits < 0 ? 2 : 1;
    const __m512i lanes = te__avx512_pair(_mm256_setr_epi32(0, 0, 0, 0, step, step, step, step),
                                          _mm256_setr_epi32(2 * step, 2 * step, 2 * step, 2 * step, 3 * step, 3 * step,
                                                            3 * step, 3 * step));
    __m512i dot = bits < 0 ? sums : _mm512_maskz_permutexvar_epi32(0x1111, lanes, sums);
    dot = _mm512_dpbusd_epi32(dot, u->q[0], _mm512_shuffle_i64x2(y0, y1, 0x88));
    dot = _mm512_dpbusd_epi32(dot, u->q[1], _mm512_shuffle_i64x2(y0, y1, 0xdd));
    s->even = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), te__avx512_spread(d, lanes), s->even);
}
/* For formats with blocks of 32, 64 or 128 values, four groups at a time: sets out[i] to the dot product of the
 * weight's row at w and row row[i] of the activations, for i < count. count: 1, 2 or 4, a compile-time constant. */
TE__AVX512_FN void te__avx512_columns_32(float *out, const uint8_t *w, const te__activations *a, const int64_t *row,
                                         int count, te_block_format f) {
    const int64_t groups = a->k / TE__GROUP;
    const int bytes = 4 * TE__GROUP * te__group_bytes(f) / te__group_values(f);
    te__avx512_sums s[TE__SKINNY_COLUMNS];
    int64_t at[TE__SKINNY_COLUMNS], b = 0;
    for (int r = 0; r < count; r++) {
        s[r].even = s[r].odd = _mm512_setzero_ps(), s[r].m = _mm256_setzero_ps();
        at[r] = row[r] * groups;
    }
    for (; b + 3 < groups; b += 4, w += bytes) {
        const te__avx512_four u = te__avx512_unpack(w, 4, f);
        te__x86_prefetch(w, bytes);
        for (int r = 0; r < count; r++) te__avx512_step(&s[r], &u, a, at[r] + b, 4, f);
    }
    if (b < groups) {
        const int rest = (int)(groups - b);
        const te__avx512_four u = te__avx512_unpack(w, rest, f);
        for (int r = 0; r < count; r++) te__avx512_step(&s[r], &u, a, at[r] + b, rest, f);
    }
    for (int r = 0; r < count; r++) {
        const __m512 sum = _mm512_add_ps(s[r].even, s[r].odd);
        const __m256 m = _mm256_blend_ps(_mm256_setzero_ps(), s[r].m, 0xaa); /* m * sum lies in the odd lanes */
        const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
        out[r] = te__x86_total(te__x86_zero_bits(f) < 0 ? _mm256_add_ps(half, m) : half);
    }
}

/* ---- skinny: k-quants, 64 codes at a time ------------------------------------------------------------------------ */

/* Unpacks the 256 unsigned codes of the block at b, which is in q4_k, q5_k or q6_k. q[i] gets codes 64 * i to
 * 64 * i + 63. */
TE__AVX512_FN void te__avx512_codes_k(__m512i q[4], const uint8_t *b, te_block_format f) {
    const __m512i low4 = _mm512_set1_epi8(15);
    if (f == TE_BLOCK_q6_k) { /* each half of the block holds 128 codes (te__codes_q6_k) */
        const __m512i bits45 = _mm512_set1_epi8(48);
        for (int half = 0; half < 2; half++) {
            const __m512i low = te__avx512_load(b + 64 * half);
            const __m512i high = _mm512_broadcast_i64x4(te__x86_load(b + 128 + 32 * half));
            const __m512i first = _mm512_sllv_epi64(high, _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2)),
                          second = _mm512_srlv_epi64(high, _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2));
            const __m512i upper = _mm512_and_si512(_mm512_srli_epi16(low, 4), low4);
            q[2 * half] = _mm512_ternarylogic_epi64(_mm512_and_si512(low, low4), first, bits45, 0xf8); /* x | y & z */
            q[2 * half + 1] = _mm512_ternarylogic_epi64(upper, second, bits45, 0xf8);
        }
        return;
    }
    const __m512i shift = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
    const __m512i high = _mm512_broadcast_i64x4(te__x86_load(b + 16)); /* of q5_k */
#define TE__AVX512_PAIR(i) /* unpacks groups 2 * i and 2 * i + 1 of 32 codes; `high` holds the fifth bits of q5_k */ \
    {                                                                                                            \
        const __m512i low = _mm512_broadcast_i64x4(te__x86_load(b + (f == TE_BLOCK_q5_k ? 48 : 16) + 32 * (i))); \
        q[i] = _mm512_and_si512(_mm512_srlv_epi64(low, shift), low4);                                            \
        if (f == TE_BLOCK_q5_k)                                                                                  \
            q[i] = _mm512_ternarylogic_epi64(                                                                    \
                q[i],                                                                                            \
                _mm512_rolv_epi64(high, te__avx512_pair(_mm256_set1_epi64x((68 - 2 * (i)) % 64),                 \
                                                        _mm256_set1_epi64x((67 - 2 * (i)) % 64))),               \
                _mm512_set1_epi8(16), 0xf8);                                                                     \
    }
    TE__AVX512_PAIR(0) TE__AVX512_PAIR(1) TE__AVX512_PAIR(2) TE__AVX512_PAIR(3)
#undef TE__AVX512_PAIR
}
/* Returns the scales of codes 64 * i to 64 * i + 63 as 32 numbers of 16 bits: number j is the scale of codes
 * 64 * i + 2 * j and 64 * i + 2 * j + 1. scales: the integer scales of the block, from te__x86_scales_k. */
TE__AVX512_FN __m512i te__avx512_scale(__m256i scales, int i, te_block_format f) {
    const __m512i lanes =
        f == TE_BLOCK_q6_k
            ? _mm512_add_epi16(_mm512_set1_epi16((short)(4 * i)),
                               _mm512_setr_epi32(0, 0, 0, 0, 0x10001, 0x10001, 0x10001, 0x10001, 0x20002, 0x20002,
                                                 0x20002, 0x20002, 0x30003, 0x30003, 0x30003, 0x30003))
            : te__avx512_pair(_mm256_set1_epi16((short)(2 * i)), _mm256_set1_epi16((short)(2 * i + 1)));
    return _mm512_permutexvar_epi16(lanes, _mm512_castsi256_si512(scales));
}
/* For q4_k, q5_k and q6_k, 64 codes at a time: sets out[i] to the dot product of the weight's row at w and row row[i]
 * of the activations, for i < count. count: 1, 2 or 4, a compile-time constant. */
TE__AVX512_FN void te__avx512_columns_k(float *out, const uint8_t *w, const te__activations *a, const int64_t *row,
                                        int count, te_block_format f) {
    const int bytes = f == TE_BLOCK_q4_k ? 144 : f == TE_BLOCK_q5_k ? 176 : 210;
    __m512 sum[TE__SKINNY_COLUMNS];
    __m128 of_mins[TE__SKINNY_COLUMNS];
    for (int r = 0; r < count; r++) sum[r] = _mm512_setzero_ps(), of_mins[r] = _mm_setzero_ps();
    for (int64_t k = 0; k < a->k; k += TE_BLOCK_MAX_VALUES, w += bytes) {
        const __m256i scales = te__x86_scales_k(w, f);
        const float d = _cvtsh_ss(te__read_u16(w + (f == TE_BLOCK_q6_k ? 208 : 0))),
                    dmin = _cvtsh_ss(te__read_u16(w + 2));
        __m512i q[4];
        te__avx512_codes_k(q, w, f);
        te__x86_prefetch(w, bytes);
        const __m512i s0 = te__avx512_scale(scales, 0, f), s1 = te__avx512_scale(scales, 1, f),
                      s2 = te__avx512_scale(scales, 2, f), s3 = te__avx512_scale(scales, 3, f);
        for (int r = 0; r < count; r++) {
            const int64_t at = row[r] * a->k + k, group = at / TE__GROUP;
            const int8_t *y = a->q + at;
            const float scale = a->scale[group];
            __m512i dot = _mm512_setzero_si512(), odd = dot;
            if (f == TE_BLOCK_q6_k) /* the zero of the codes is 32 */
                dot = _mm512_zextsi256_si512(
                    _mm256_slli_epi32(_mm256_sub_epi32(_mm256_setzero_si256(),
                                                       _mm256_madd_epi16(scales, te__x86_load(a->sums + 2 * group))),
                                      5));
            dot = _mm512_dpwssd_epi32(dot, _mm512_maddubs_epi16(q[0], te__avx512_load(y)), s0);
            odd = _mm512_dpwssd_epi32(odd, _mm512_maddubs_epi16(q[1], te__avx512_load(y + 64)), s1);
            dot = _mm512_dpwssd_epi32(dot, _mm512_maddubs_epi16(q[2], te__avx512_load(y + 128)), s2);
            odd = _mm512_dpwssd_epi32(odd, _mm512_maddubs_epi16(q[3], te__avx512_load(y + 192)), s3);
            dot = _mm512_add_epi32(dot, odd);
            sum[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_set1_ps(d * scale), sum[r]);
            if (f != TE_BLOCK_q6_k) {
                const __m128i mins = _mm_madd_epi16(_mm256_extracti128_si256(scales, 1),
                                                    _mm_loadu_si128((const __m128i *)(a->group_sums + group)));
                of_mins[r] = _mm_fnmadd_ps(_mm_cvtepi32_ps(mins), _mm_set1_ps(dmin * scale), of_mins[r]);
            }
        }
    }
    for (int r = 0; r < count; r++) {
        const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sum[r]), _mm512_extractf32x8_ps(sum[r], 1));
        out[r] = te__x86_total(_mm256_add_ps(half, _mm256_zextps128_ps256(of_mins[r])));
    }
}

TE__AVX512_FN void te__avx512_columns(float *out, const uint8_t *w, const te__activations *a, const int64_t *row,
                                      int count, te_block_format f) {
    if (f == TE_BLOCK_q4_k || f == TE_BLOCK_q5_k || f == TE_BLOCK_q6_k)
        te__avx512_columns_k(out, w, a, row, count, f);
    else
        te__avx512_columns_32(out, w, a, row, count, f);
}
#define TE__AVX512_KERNELS(f) TE__COLUMNS_KERNELS(avx512, TE__TARGET_AVX512, f)
#define TE__AVX512_CASE(f) TE__COLUMNS_CASE(avx512, f)
TE__INTEGER_FORMATS(TE__AVX512_KERNELS)
/* Returns the kernel for format f and 1, 2 or 4 rows of A. */
TE_API te__columns_kernel *te__avx512_kernel(te_block_format f, int count) {
    switch ((int)f) { TE__INTEGER_FORMATS(TE__AVX512_CASE) }
    return 0;
}

/* ---- tile: more rows of A ---------------------------------------------------------------------------------------- */

#ifndef TE_BATCH_INVARIANT
#define TE__QUANTIZED_TILE 1
enum {
    TE__PANEL_ROWS = 16, /* number of rows of the weight in a panel, one for each lane of a register */
    /* number of values of each row that are unpacked at a time; a multiple of TE_BLOCK_MAX_VALUES */
    TE__PANEL_K = 2048,
    TE__TILE_ROWS = 8,   /* number of rows of A by which a panel is multiplied at a time */
    TE__PANEL_M = 512    /* the largest number of rows of A that are multiplied by a panel before it is unpacked anew */
};
typedef struct te__x86_panel {
    /* the unsigned codes; a register of 64 bytes holds four consecutive codes of each of the 16 rows */
    uint8_t q[TE__PANEL_K / 4][TE__PANEL_ROWS][4];
    /* the scale of each group of 32 values of each row (in q6_k: of each 16 values) */
    float scale[TE__PANEL_K / 16][TE__PANEL_ROWS];
    /* the offset of each group of 32 values of each row; only formats without a zero point have offsets */
    float offset[(int)TE__PANEL_K / (int)TE__GROUP][TE__PANEL_ROWS];
    float sum[TE__PANEL_M][TE__PANEL_ROWS];
} te__x86_panel;

/* Returns the format's zero point, which is subtracted from its unsigned codes; 0 for formats that have an offset
 * instead. */
TE_FN int te__x86_zero(te_block_format f) {
    const int bits = te__x86_zero_bits(f);
    return f == TE_BLOCK_q6_k ? 32 : bits < 0 ? 0 : 1 << (bits < 0 ? 0 : bits);
}
/* Unpack `kk` values of a row of the weight, from the block at w on, to row r of the panel (16 unpacked rows of the
 * weight). f: the weight's format, a compile-time constant. */
TE__AVX512_FN void te__x86_panel_row(te__x86_panel *p, int r, const uint8_t *w, int kk, te_block_format f) {
    const int is_k = f == TE_BLOCK_q4_k || f == TE_BLOCK_q5_k || f == TE_BLOCK_q6_k;
    const int groups = (is_k ? (int)TE_BLOCK_MAX_VALUES : te__group_values(f)) / (int)TE__GROUP;
    const int bytes = te_block_bytes(f), signed_codes = te__x86_zero_bits(f) == 7;
    for (int at = 0; at < kk; at += groups * TE__GROUP, w += bytes) {
        uint8_t scale[8], min[8];
        if (f == TE_BLOCK_q4_k || f == TE_BLOCK_q5_k) te__scales_k(scale, min, w + 4);
        const float d = f == TE_BLOCK_int8    ? 1.0f
                        : f == TE_BLOCK_mxfp4 ? te__half_of_e8m0(w[0])
                                              : te__read_f16(w + (f == TE_BLOCK_q6_k ? 208 : 0));
        const float m = te__read_f16(w + 2);
        for (int g = 0; g < groups; g++) {
            const int group = at / TE__GROUP + g;
            uint32_t q[TE__GROUP / 4];
            const __m256i codes = is_k ? te__x86_codes_k(w, g, f) : te__x86_codes_32(te__group_at(w, g, f), f);
            _mm256_storeu_si256((__m256i *)q, signed_codes ? _mm256_xor_si256(codes, _mm256_set1_epi8(-128)) : codes);
            for (int i = 0; i < TE__GROUP / 4; i++) memcpy(p->q[group * (TE__GROUP / 4) + i][r], &q[i], 4);
            if (f == TE_BLOCK_q6_k)
                for (int i = 0; i < 2; i++) p->scale[2 * group + i][r] = d * (float)(int8_t)w[192 + 2 * g + i];
            else {
                p->scale[group][r] = is_k ? d * (float)scale[g] : d;
                p->offset[group][r] = is_k ? -(m * (float)min[g]) : m;
            }
        }
    }
}
/* Unpack 16 rows of a part of the weight. In place of rows beyond the part's last row, the last row is unpacked. */
#define TE__X86_CASE(f) \
    case TE_BLOCK_##f: te__x86_panel_row(p, r, w, kk, TE_BLOCK_##f); break;
TE__TARGET_AVX512 TE_API void te__x86_panel_load(te__x86_panel *p, const te_weight_part *part, int64_t row, int64_t k,
                                                 int64_t k0, int kk) {
    for (int r = 0; r < TE__PANEL_ROWS; r++) {
        const uint8_t *w = (const uint8_t *)part->data + te__blocks_bytes(part->format, k0) +
                           (size_t)te_min(row + r, part->rows - 1) * te_block_row_bytes(part->format, k);
        switch ((int)part->format) { TE__INTEGER_FORMATS(TE__X86_CASE) }
    }
}
#undef TE__X86_CASE
#define TE__X86_EACH(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7)
/* Adds to p->sum[row[r]], for r = 0 to 7, the dot products of the panel (16 unpacked rows of the weight) and row row[r]
 * of the activations, over the `kk` values from k0 on. f, a compile-time constant: the weight's format, or any other
 * format with the same group size and zero point. */
TE__AVX512_FN void te__x86_tile_micro(te__x86_panel *p, const te__activations *a, const int row[TE__TILE_ROWS],
                                      int64_t k0, int kk, te_block_format f) {
    const int group = te__block_group(f), zero = te__x86_zero(f);
#define TE__X86_OPEN(r)                            \
    __m512 s##r = _mm512_loadu_ps(p->sum[row[r]]); \
    const int64_t at##r = row[r] * a->k + k0;      \
    const int8_t *q##r = a->q + at##r;
#define TE__X86_INIT(r)                                                                          \
    __m512i d##r = group == 16 ? _mm512_set1_epi32(-zero * a->sums[(at##r + k) / 16])            \
                   : zero      ? _mm512_set1_epi32(zero * a->minus_sum[(at##r + k) / TE__GROUP]) \
                               : _mm512_setzero_si512();
#define TE__X86_DOT(r) memcpy(&four, q##r + k + i, 4), d##r = _mm512_dpbusd_epi32(d##r, w, _mm512_set1_epi32(four));
#define TE__X86_ADD(r)                                                                                     \
    s##r = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d##r),                                                       \
                           _mm512_mul_ps(scale, _mm512_set1_ps(a->scale[(at##r + k) / TE__GROUP])), s##r); \
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
/* Adds to p->sum the products of the panel (16 unpacked rows of the weight) and all rows of the activations, over the
 * `kk` values from k0 on. Of all formats with the same group size and zero point, only one is passed to
 * te__x86_tile_micro, so that these formats share its compiled code: te__x86_tile_micro depends on no other property of
 * the format. */
TE__TARGET_AVX512 TE_API void te__x86_tile_rows(te__x86_panel *p, const te__activations *a, int64_t k0, int kk,
                                                te_block_format f) {
    for (int i = 0; i < (int)a->m; i += TE__TILE_ROWS) {
        int row[TE__TILE_ROWS];
        for (int r = 0; r < TE__TILE_ROWS; r++) row[r] = (int)te_min(i + r, a->m - 1);
        if (te__block_has_offset(f))
            te__x86_tile_micro(p, a, row, k0, kk, TE_BLOCK_q4_k);
        else if (te__x86_zero_bits(f) == 7)
            te__x86_tile_micro(p, a, row, k0, kk, TE_BLOCK_q8_0);
        else if (f == TE_BLOCK_q6_k)
            te__x86_tile_micro(p, a, row, k0, kk, TE_BLOCK_q6_k);
        else if (te__x86_zero_bits(f) == 4)
            te__x86_tile_micro(p, a, row, k0, kk, TE_BLOCK_q5_0);
        else
            te__x86_tile_micro(p, a, row, k0, kk, TE_BLOCK_q4_0);
    }
}
/* Sets p->sum[i][r] to the dot product of row i of the activations and row `row` + r of the part of the weight, r = 0
 * to 15. The activations may have up to TE__PANEL_M rows. */
TE__TARGET_AVX512 TE_API void te__x86_tile(te__x86_panel *p, const te__activations *a, const te_weight_part *part,
                                           int64_t row) {
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
