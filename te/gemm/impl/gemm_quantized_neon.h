/* gemm_quantized_neon.h -- multiplies a quantized weight (te/quant/block_formats.h) by activations that are rounded to
 * 8 bits, on 64-bit ARM: one row of the weight by 1, 2 or 4 rows of activations at a time. A dot product instruction
 * (-march=armv8.2-a+dotprod; all cores since Cortex-A75 and A55 have it) computes and adds up 16 products; without it
 * 16 products take three instructions.
 *
 * The codes, the integers that a format stores, are unpacked to signed numbers of 8 bits, with the zero point
 * subtracted. The products of a group of codes are added up as integers, so they are exact.
 *
 * Lower bound of the time: the time in which memory delivers the weight's bytes.
 */
#ifndef TE_GEMM_QUANTIZED_NEON_H
#define TE_GEMM_QUANTIZED_NEON_H

#include "quantized_activations.h" /* te__activations */

#if !TE_CUDA && defined __aarch64__ && defined __ARM_NEON
#define TE__QUANTIZED_NEON 1
#include <arm_neon.h> /* vdotq_s32 */
#else
#define TE__QUANTIZED_NEON 0
#endif

#if TE__QUANTIZED_NEON

enum { TE__NEON_AHEAD = 1024 }; /* how many bytes ahead of its use the weight is prefetched into the cache */

typedef struct te__neon_codes {
    int8x16_t first, second;
} te__neon_codes; /* 32 signed codes */

/* Returns sum plus the 16 products u[i] * v[i] of 8-bit numbers; each lane adds four products. Which four products a
 * lane adds is not defined. */
TE_FN int32x4_t te__neon_dot16(int32x4_t sum, int8x16_t u, int8x16_t v) {
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(sum, u, v);
#else
    /* The magnitude of an activation is at most 127, so the sum of two products fits into 16 bits. */
    return vpadalq_s16(sum, vmlal_high_s8(vmull_s8(vget_low_s8(u), vget_low_s8(v)), u, v));
#endif
}
/* Returns sum plus the products of 32 codes and the 32 activations at y. */
TE_FN int32x4_t te__neon_dot(int32x4_t sum, te__neon_codes q, const int8_t *y) {
    return te__neon_dot16(te__neon_dot16(sum, q.first, vld1q_s8(y)), q.second, vld1q_s8(y + 16));
}

/* ---- blocks of 32 to 128 values ---------------------------------------------------------------------------------- */

TE_FN te__neon_codes te__neon_subtract(uint8x16_t first, uint8x16_t second, int zero) {
    te__neon_codes q;
    q.first = vsubq_s8(vreinterpretq_s8_u8(first), vdupq_n_s8((int8_t)zero));
    q.second = vsubq_s8(vreinterpretq_s8_u8(second), vdupq_n_s8((int8_t)zero));
    return q;
}
/* Returns 16 bytes: byte i is 16 if bit i of the 16 bits at p is set, else 0. */
TE_FN uint8x16_t te__neon_fifth_bits(const uint8_t *p) {
    static const uint8_t bit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t bits = vcombine_u8(vdup_n_u8(p[0]), vdup_n_u8(p[1]));
    return vandq_u8(vtstq_u8(bits, vld1q_u8(bit)), vdupq_n_u8(16));
}
/* Returns the 32 codes of a group, in a format with blocks of 32, 64 or 128 values; in mxfp4 a code is twice the E2M1
 * number. */
TE_FN te__neon_codes te__neon_unpack(te__weight_group g, te_block_format f) {
    te__neon_codes q;
    if (f == TE_BLOCK_q8_0 || f == TE_BLOCK_int8) {
        q.first = vld1q_s8((const int8_t *)g.codes), q.second = vld1q_s8((const int8_t *)g.codes + 16);
        return q;
    }
    const uint8x16_t x = vld1q_u8(g.codes);
    uint8x16_t first = vandq_u8(x, vdupq_n_u8(15)), second = vshrq_n_u8(x, 4);
    if (f == TE_BLOCK_mxfp4) {
        const int8x16_t table = vld1q_s8(te__e2m1_twice());
        q.first = vqtbl1q_s8(table, first), q.second = vqtbl1q_s8(table, second);
        return q;
    }
    if (f == TE_BLOCK_q5_0 || f == TE_BLOCK_q5_1) {
        const uint8_t *bits = g.codes - 4;
        first = vorrq_u8(first, te__neon_fifth_bits(bits)), second = vorrq_u8(second, te__neon_fifth_bits(bits + 2));
    }
    const int zero = f == TE_BLOCK_q4_1 || f == TE_BLOCK_q5_1 ? 0
                     : f == TE_BLOCK_q5_0                     ? 16
                     : te__block_has_zero_point(f)            ? g.block[2]
                                                              : 8;
    return te__neon_subtract(first, second, zero);
}
/* Returns the f16 numbers at the offset `at` of the four groups' blocks, as floats. */
TE_FN float32x4_t te__neon_f16(const te__weight_group g[4], int at) {
    uint16_t h[4];
    for (int i = 0; i < 4; i++) memcpy(&h[i], g[i].block + at, sizeof h[i]);
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h)));
}
/* Returns the scales of the four groups, by which their codes are multiplied. In int8, which has one scale per row of
 * the weight instead, the four scales are 1. */
TE_FN float32x4_t te__neon_scales(const te__weight_group g[4], te_block_format f) {
    float d[4];
    if (f == TE_BLOCK_int8) return vdupq_n_f32(1.0f);
    if (f != TE_BLOCK_mxfp4) return te__neon_f16(g, 0);
    for (int i = 0; i < 4; i++) d[i] = te__half_of_e8m0(g[i].block[0]);
    return vld1q_f32(d);
}
/* For formats with blocks of 32, 64 or 128 values, four groups of 32 values at a time: sets out[i] to the dot product
 * of the weight's row at w and row row[i] of the activations, for i < count. count: 1, 2 or 4, a compile-time
 * constant. */
TE_FN void te__neon_columns_32(float *out, const uint8_t *w, const te__activations *a, const int64_t *row, int count,
                               te_block_format f) {
    const int64_t groups = a->k / TE__GROUP;
    const int has_offset = te__block_has_offset(f), bytes = 4 * TE__GROUP * te__group_bytes(f) / te__group_values(f);
    const int32x4_t zero = vdupq_n_s32(0);
    float32x4_t sum[TE__SKINNY_COLUMNS];
    for (int r = 0; r < count; r++) sum[r] = vdupq_n_f32(0.0f);
    for (int64_t b = 0; b < groups; b += 4) {
        /* In place of each group beyond the end of the row, the last group is multiplied again, by a scale of 0. */
        const int there = (int)te_min(4, groups - b);
        const int64_t at[4] = {0, te_min(1, there - 1), te_min(2, there - 1), te_min(3, there - 1)};
        const te__weight_group g[4] = {te__group_at(w, b, f), te__group_at(w, b + at[1], f),
                                       te__group_at(w, b + at[2], f), te__group_at(w, b + at[3], f)};
        const te__neon_codes q0 = te__neon_unpack(g[0], f), q1 = te__neon_unpack(g[1], f),
                             q2 = te__neon_unpack(g[2], f), q3 = te__neon_unpack(g[3], f);
        const float32x4_t d = te__neon_scales(g, f), m = has_offset ? te__neon_f16(g, 2) : d;
        for (int i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)g[0].block + TE__NEON_AHEAD + i);
        for (int r = 0; r < count; r++) {
            const int64_t first = row[r] * groups + b;
            const int8_t *y = a->q + first * TE__GROUP;
            const int32x4_t d01 = vpaddq_s32(te__neon_dot(zero, q0, y), te__neon_dot(zero, q1, y + at[1] * TE__GROUP));
            const int32x4_t d23 = vpaddq_s32(te__neon_dot(zero, q2, y + at[2] * TE__GROUP),
                                             te__neon_dot(zero, q3, y + at[3] * TE__GROUP));
            float scale[4] = {0, 0, 0, 0}, scaled_sum[4] = {0, 0, 0, 0};
            memcpy(scale, a->scale + first, (size_t)there * sizeof *scale);
            sum[r] = vfmaq_f32(sum[r], vcvtq_f32_s32(vpaddq_s32(d01, d23)), vmulq_f32(d, vld1q_f32(scale)));
            if (has_offset) {
                memcpy(scaled_sum, a->scaled_sum + first, (size_t)there * sizeof *scaled_sum);
                sum[r] = vfmaq_f32(sum[r], m, vld1q_f32(scaled_sum));
            }
        }
    }
    for (int r = 0; r < count; r++) out[r] = vaddvq_f32(sum[r]);
}

/* ---- k-quants ---------------------------------------------------------------------------------------------------- */

/* Returns the 32 codes of group g (0 to 7) of the block at b, which is in q4_k, q5_k or q6_k. */
TE_FN te__neon_codes te__neon_codes_k(const uint8_t *b, int g, te_block_format f) {
    const uint8x16_t low4 = vdupq_n_u8(15);
    if (f == TE_BLOCK_q6_k) { /* each half of the block holds the codes of four groups of 32 */
        const int half = g / 4, row = g % 4;
        const uint8_t *low = b + half * 64 + row % 2 * 32, *high = b + 128 + half * 32;
        uint8x16_t first = vld1q_u8(low), second = vld1q_u8(low + 16);
        const int8x16_t right = vdupq_n_s8((int8_t)(-2 * row)); /* a shift by -n is a shift by n to the right */
        const uint8x16_t two = vdupq_n_u8(3);
        first = row / 2 ? vshrq_n_u8(first, 4) : vandq_u8(first, low4);
        second = row / 2 ? vshrq_n_u8(second, 4) : vandq_u8(second, low4);
        first = vorrq_u8(first, vshlq_n_u8(vandq_u8(vshlq_u8(vld1q_u8(high), right), two), 4));
        second = vorrq_u8(second, vshlq_n_u8(vandq_u8(vshlq_u8(vld1q_u8(high + 16), right), two), 4));
        return te__neon_subtract(first, second, 32);
    }
    const uint8_t *low = b + (f == TE_BLOCK_q5_k ? 48 : 16) + g / 2 * 32;
    uint8x16_t first = vld1q_u8(low), second = vld1q_u8(low + 16);
    first = g % 2 ? vshrq_n_u8(first, 4) : vandq_u8(first, low4);
    second = g % 2 ? vshrq_n_u8(second, 4) : vandq_u8(second, low4);
    if (f == TE_BLOCK_q5_k) { /* bit g of byte i is the fifth bit of code i of group g */
        const uint8x16_t bit = vdupq_n_u8((uint8_t)(1 << g)), fifth = vdupq_n_u8(16);
        first = vorrq_u8(first, vandq_u8(vtstq_u8(vld1q_u8(b + 16), bit), fifth));
        second = vorrq_u8(second, vandq_u8(vtstq_u8(vld1q_u8(b + 32), bit), fifth));
    }
    return te__neon_subtract(first, second, 0);
}
/* Adds to dot the products of the codes q of group g and the activations at y, multiplied by the group's scale or, in
 * q6_k, by the scales of the group's two halves. */
TE_FN int32x4_t te__neon_group(int32x4_t dot, te__neon_codes q, const int8_t *y, const int8_t *scale, int g,
                               te_block_format f) {
    const int32x4_t zero = vdupq_n_s32(0);
    if (f != TE_BLOCK_q6_k) return vmlaq_n_s32(dot, te__neon_dot(zero, q, y), scale[g]);
    dot = vmlaq_n_s32(dot, te__neon_dot16(zero, q.first, vld1q_s8(y)), scale[2 * g]);
    return vmlaq_n_s32(dot, te__neon_dot16(zero, q.second, vld1q_s8(y + 16)), scale[2 * g + 1]);
}
/* For q4_k, q5_k and q6_k: sets out[i] to the dot product of the weight's row at w and row row[i] of the activations,
 * for i < count. count: 1, 2 or 4, a compile-time constant. */
TE_FN void te__neon_columns_k(float *out, const uint8_t *w, const te__activations *a, const int64_t *row, int count,
                              te_block_format f) {
    const int bytes = te_block_bytes(f);
    float32x4_t sum[TE__SKINNY_COLUMNS];
    for (int r = 0; r < count; r++) sum[r] = vdupq_n_f32(0.0f);
    for (int64_t k = 0; k < a->k; k += TE_BLOCK_MAX_VALUES, w += bytes) {
        const float d = te__read_f16(w + (f == TE_BLOCK_q6_k ? 208 : 0)), dmin = te__read_f16(w + 2);
        uint8_t of_group[8] = {0}, min[8] = {0};
        const int8_t *scale = (const int8_t *)(f == TE_BLOCK_q6_k ? w + 192 : of_group);
        int32x4_t dot[TE__SKINNY_COLUMNS];
        if (f != TE_BLOCK_q6_k) te__scales_k(of_group, min, w + 4); /* at most 63 */
        for (int i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)w + TE__NEON_AHEAD + i);
        for (int r = 0; r < count; r++) dot[r] = vdupq_n_s32(0);
        for (int g = 0; g < 8; g++) {
            const te__neon_codes q = te__neon_codes_k(w, g, f);
            for (int r = 0; r < count; r++)
                dot[r] = te__neon_group(dot[r], q, a->q + row[r] * a->k + k + g * TE__GROUP, scale, g, f);
        }
        const int16x8_t mins = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(min)));
        for (int r = 0; r < count; r++) {
            const int64_t at = (row[r] * a->k + k) / TE__GROUP;
            sum[r] = vfmaq_n_f32(sum[r], vcvtq_f32_s32(dot[r]), d * a->scale[at]);
            if (f != TE_BLOCK_q6_k) {
                const int16x8_t sums = vld1q_s16(a->group_sums + at);
                const int32x4_t of_mins = vmlal_high_s16(vmull_s16(vget_low_s16(mins), vget_low_s16(sums)), mins, sums);
                sum[r] = vfmaq_n_f32(sum[r], vcvtq_f32_s32(of_mins), -(dmin * a->scale[at]));
            }
        }
    }
    for (int r = 0; r < count; r++) out[r] = vaddvq_f32(sum[r]);
}

TE_FN void te__neon_columns(float *out, const uint8_t *w, const te__activations *a, const int64_t *row, int count,
                            te_block_format f) {
    if (f == TE_BLOCK_q4_k || f == TE_BLOCK_q5_k || f == TE_BLOCK_q6_k)
        te__neon_columns_k(out, w, a, row, count, f);
    else
        te__neon_columns_32(out, w, a, row, count, f);
}
#define TE__NEON_KERNELS(f) TE__COLUMNS_KERNELS(neon, , f)
#define TE__NEON_CASE(f) TE__COLUMNS_CASE(neon, f)
TE__INTEGER_FORMATS(TE__NEON_KERNELS)
/* Returns the kernel for format f and 1, 2 or 4 rows of A. */
TE_API te__columns_kernel *te__neon_kernel(te_block_format f, int count) {
    switch ((int)f) { TE__INTEGER_FORMATS(TE__NEON_CASE) }
    return 0;
}

#endif
#endif
