/* small_dtypes.h -- number formats of block-scaled tensors, and conversions of one number: e2m1 for 4-bit elements, and
 * e8m0 and ue4m3 for the scale of a block.
 *
 * Do this:
 *     uint8_t code = te_e2m1_of_float(x);        // 0 to 15; x rounded to nearest even and saturated to +-6
 *     uint8_t scale = te_e8m0_of_float_up(amax / 448);   // the smallest power of two that is not below the argument
 *
 *   e2m1    sign, 2 bits of exponent, 1 of fraction: 0, 0.5, 1, 1.5, 2, 3, 4, 6; no infinity and no NaN
 *   e8m0    8 bits of exponent, a power of two: 2^-127 (0x00) to 2^127 (0xfe); 0xff is NaN; neither zero nor a sign
 *   ue4m3   e4m3 (dtype.h) without its sign: 0 to 448 (0x7e); 0x7f is NaN
 *
 * e2m1 and e8m0 are formats of the OCP Microscaling Formats (MX) Specification 1.0; ue4m3 is the format of the scales
 * of NVFP4 (CUDA's CUDA_R_8F_UE4M3). All conversions use integer instructions and additions of floats, so the results
 * are bitwise identical on the host and on every GPU. The results equal the results of PTX's cvt to .e2m1x2 and
 * .ue8m0x2 with .satfinite: a NaN becomes 6 in e2m1. The header also has functions for the largest magnitude of a
 * vector, ignoring NaNs, from which a block's scale is computed. te/te.h does not include this header, because only
 * microscaling.h needs it.
 */
#ifndef TE_SMALL_DTYPES_H
#define TE_SMALL_DTYPES_H

#include "dtype.h" /* te__fp8_of_float_stochastic, te_float_of_e4m3 */

#define TE_E2M1_MAX 6.0f /* the largest number of e2m1 */

/* ---- e2m1 -------------------------------------------------------------------------------------------------------- */

/* Convert f, which must not be NaN, to the nearest e2m1 number, ties to the even code. */
TE_BOTH uint32_t te__e2m1_of_number(float f) {
    const uint32_t u = te_bits_of_float(f), six = te_bits_of_float(TE_E2M1_MAX), one = 127u << 23;
    const uint32_t magnitude = u & 0x7fffffffu, a = magnitude < six ? magnitude : six;
    /* `step` is a float whose unit in the last place is the distance between the e2m1 numbers around a: 0.5 if a is
     * below 2, else 1 or 2. Adding `step` to a rounds a to a multiple of this distance. */
    const uint32_t exponent = (a > one ? a : one) & 0x7f800000u, step = exponent + (22u << 23);
    const uint32_t rounded = te_bits_of_float(te_float_of_bits(a) + te_float_of_bits(step)) - step;
    return (u >> 28 & 8u) | (rounded + (exponent >> 22) - (one >> 22));
}
/* Convert f to the nearest e2m1 number, ties to the even code. An infinity becomes +-6, and a NaN becomes 6; -0 stays
 * -0. */
TE_BOTH uint8_t te_e2m1_of_float(float f) { return (uint8_t)(f == f ? te__e2m1_of_number(f) : 7u); }
/* Convert f, which must not be NaN, to e2m1 by stochastic rounding (te_e2m1_of_float_stochastic). */
TE_BOTH uint32_t te__e2m1_of_number_stochastic(float f, uint32_t random) {
    const uint32_t u = te_bits_of_float(f), six = te_bits_of_float(TE_E2M1_MAX), one = 127u << 23;
    const uint32_t magnitude = u & 0x7fffffffu, a = magnitude < six ? magnitude : six;
    /* `position` is a code number with 22 fraction bits, which says where a lies among the e2m1 codes. From 1 on, the
     * distance between codes is 2^22 units of the float's bits, so `position` is the bits of a minus a constant. Below
     * 1, the distance between codes is 0.5, which is 2^22 units of the bits of (a + 1), so `position` is the bits of (a
     * + 1) minus the bits of 1. */
    const uint32_t below_one = te_bits_of_float(te_float_of_bits(a) + 1.0f) - one, above = a - (one - (1u << 23));
    const uint32_t position = a < one ? below_one : above;
    return (u >> 28 & 8u) | (position + 0x3fffffu - (random << 6)) >> 22; /* rounds up by one code if the fractional
                                                                           * part of `position` exceeds random / 2^16 */
}
/* Convert f to e2m1 by stochastic rounding, with the probabilities of te__fp8_of_float_stochastic: the expected value
 * is f, up to 2^-16 of the distance between neighbouring numbers. `random` has 16 random bits. */
TE_BOTH uint8_t te_e2m1_of_float_stochastic(float f, uint32_t random) {
    return (uint8_t)(f == f ? te__e2m1_of_number_stochastic(f, random) : 7u);
}
#if TE_CUDA
/* Return the signs of eight numbers: bit 4 * k + 3 is 1 if number k is negative; all other bits are 0. */
TE_FN uint32_t te__signs_of_vec8(const te_vec8 *e, te_dtype t) {
    uint32_t signs = 0, low, high;
    if (t == TE_f32) {
        TE_UNROLL for (int k = 0; k < 8; k++) signs |= (e->w[k] & 0x80000000u) >> (28 - 4 * k);
        return signs;
    }
    low = __byte_perm(e->w[0], e->w[1], 0x7531), high = __byte_perm(e->w[2], e->w[3], 0x7531); /* the upper bytes */
    return (__byte_perm(low, high, 0x6420) >> 4 & 0x08080808u) | (__byte_perm(low, high, 0x7531) & 0x80808080u);
}
#endif
/* Multiply eight numbers by `factor`, which must not be negative, and convert the products to the nearest e2m1 numbers,
 * ties to the even code. The code of number k is in bits 4 * k to 4 * k + 3 of the result; the code of a NaN is
 * arbitrary. */
TE_FN uint32_t te__e2m1_of_vec8(const te_vec8 *e, float factor, te_dtype t) {
    float v[8];
    uint32_t codes = 0;
    te_vec8_floats(v, e, t);
#if defined __CUDA_ARCH_FEAT_SM100_ALL || defined __CUDA_ARCH_FEAT_SM120_ALL
    TE_UNROLL for (int k = 0; k < 8; k += 2) {
        uint32_t pair;
        asm("{ .reg .b8 pair;\n cvt.rn.satfinite.e2m1x2.f32 pair, %1, %2;\n cvt.u32.u8 %0, pair; }"
            : "=r"(pair) : "f"(v[k + 1] * factor), "f"(v[k] * factor));
        codes |= pair << 4 * k;
    }
    return codes;
#elif TE_CUDA
    /* The code of a magnitude a, before rounding, is 2 * a if a is at most 2, a + 2 if a is between 2 and 4, and a / 2
     * + 4 above; in each case the code is the smallest of these three numbers. Each of the three is multiplied by
     * 2^-24, the distance between floats just below 1, and added to 1 - 2^-21. The addition rounds the number to an
     * integer, which lies in the last bits of the sum. The minimum of the rounded numbers equals the rounded minimum.
     * `above` is saturated to 1, which stands for code 8. */
    const float unit = 1.0f / 16777216.0f, zero = 1.0f - 8.0f * unit;
    TE_UNROLL for (int k = 0; k < 8; k++) {
        const float a = fabsf(v[k]) * factor, up_to_2 = fmaf(a, 2.0f * unit, zero);
        const float up_to_4 = fmaf(a, unit, zero + 2.0f * unit);
        float above;
        asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(above) : "f"(a), "f"(0.5f * unit), "f"(zero + 4.0f * unit));
        const int least = min(min(__float_as_int(up_to_2), __float_as_int(up_to_4)), __float_as_int(above));
        codes += (uint32_t)least << 4 * k;
    }
    codes -= 0x3f7ffff8u * 0x11111111u;           /* subtract the bits of `zero` from each of the eight codes */
    codes -= (codes & 0x88888888u) >> 3;          /* turn code 8 into 7, the largest code */
    return codes | te__signs_of_vec8(e, t);
#else
    for (int k = 0; k < 8; k++) codes |= te__e2m1_of_number(v[k] * factor) << 4 * k;
    return codes;
#endif
}
/* Convert the e2m1 number in the low four bits of `code` to float, exactly. */
TE_BOTH float te_float_of_e2m1(uint8_t code) {
    const uint32_t a = code & 7u, exponent = a >> 1, sign = (uint32_t)(code & 8u) << 28;
    const uint32_t normal = (exponent + 126u) << 23 | (a & 1u) << 22, subnormal = a ? 126u << 23 : 0u;
    return te_float_of_bits(sign | (exponent ? normal : subnormal));
}
/* Convert eight e2m1 numbers to floats. The first number is in the lowest four bits of `codes`. */
TE_FN void te__floats_of_e2m1(float v[8], uint32_t codes) {
#if TE_CUDA
    /* Bytes 2 and 3 of a float hold all bits of an e2m1 number. __byte_perm looks these bytes up, for four numbers at a
     * time. */
    TE_UNROLL for (int half = 0; half < 2; half++) {
        const uint32_t four = codes >> 16 * half, select = four & 0x7777u;
        const uint32_t low = __byte_perm(0xc0800000u, 0xc0804000u, select); /* byte 2 of the floats 0, 0.5, 1, 1.5; 2,
                                                                             * 3, 4, 6 */
        const uint32_t high = __byte_perm(0x3f3f3f00u, 0x40404040u, select); /* byte 3 */
        TE_UNROLL for (int k = 0; k < 4; k++) {
            const uint32_t u = __byte_perm(__byte_perm(low, high, (uint32_t)(k | (k + 4) << 4)), 0, 0x1044u);
            v[4 * half + k] = te_float_of_bits(u | (four << (28 - 4 * k) & 0x80000000u));
        }
    }
#else
    for (int k = 0; k < 8; k++) v[k] = te_float_of_e2m1((uint8_t)(codes >> 4 * k));
#endif
}

/* ---- ue4m3 ------------------------------------------------------------------------------------------------------- */

/* Convert f to the nearest ue4m3 number, ties to even. A number above 448 becomes 448, a number below 0 becomes 0, and
 * a NaN becomes 0x7f. */
TE_BOTH uint8_t te_ue4m3_of_float(float f) {
    const uint8_t byte = te_e4m3_of_float(f);
    return (uint8_t)((byte & 0x7fu) == 0x7fu ? 0x7fu : byte & 0x80u ? 0u : byte);
}
/* Convert f to ue4m3 by stochastic rounding. `random` has 16 random bits. */
TE_BOTH uint8_t te_ue4m3_of_float_stochastic(float f, uint32_t random) {
    const uint8_t byte = te__fp8_of_float_stochastic(f, random, 3, 7, TE_E4M3_MAX);
    return (uint8_t)((byte & 0x7fu) == 0x7fu ? 0x7fu : byte & 0x80u ? 0u : byte);
}
TE_BOTH float te_float_of_ue4m3(uint8_t byte) { return te_float_of_e4m3((uint8_t)(byte & 0x7fu)); }

/* ---- e8m0 -------------------------------------------------------------------------------------------------------- */

/* The conversions below take a number and return a power of two as an e8m0 number. Zero and negative numbers become
 * 0x00, which is 2^-127; infinity becomes 0xfe, the largest; a NaN becomes 0xff. */

/* Return the e8m0 code for the numbers that every conversion treats alike: NaN, zero, negative numbers, and numbers
 * from 2^127 on. Return -1 for all other numbers. u: the bits of the number. */
TE_BOTH int te__e8m0_special(uint32_t u) {
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0xff;
    return u >> 31 || u == 0 ? 0 : u >= 0x7f000000u ? 0xfe : -1; /* 0x7f000000: 2^127 */
}
/* Round the float f with the bits u, above 0 and below 2^127, down to a power of two P, and return P as an e8m0 code.
 * *part becomes (f / P - 1) * 2^23. If f lies below 2^-127, P is 2^-127 and *part is 0. */
TE_BOTH uint32_t te__e8m0_floor(uint32_t *part, uint32_t u) {
    const uint32_t exponent = u >> 23, mantissa = u & 0x7fffffu;
    *part = exponent ? mantissa : mantissa > 0x400000u ? (mantissa - 0x400000u) << 1 : 0u; /* 0x400000: 2^-127 */
    return exponent;
}
/* Convert f to the nearest power of two, ties to the even code. */
TE_BOTH uint8_t te_e8m0_of_float(float f) {
    const uint32_t u = te_bits_of_float(f);
    const int special = te__e8m0_special(u);
    uint32_t part;
    if (special >= 0) return (uint8_t)special;
    const uint32_t code = te__e8m0_floor(&part, u);
    return (uint8_t)(code + (part > 0x400000u || (part == 0x400000u && code % 2 == 1)));
}
/* Convert f to the smallest power of two that is not below f. The scale of a block is rounded in this way. */
TE_BOTH uint8_t te_e8m0_of_float_up(float f) {
    const uint32_t u = te_bits_of_float(f);
    const int special = te__e8m0_special(u);
    uint32_t part;
    if (special >= 0) return (uint8_t)special;
    const uint32_t code = te__e8m0_floor(&part, u);
    return (uint8_t)(code + (part > 0u));
}
/* Convert f by stochastic rounding to the power of two below or above f. The expected value is f, up to 2^-16 of the
 * distance between the two. `random` has 16 random bits. */
TE_BOTH uint8_t te_e8m0_of_float_stochastic(float f, uint32_t random) {
    const uint32_t u = te_bits_of_float(f);
    const int special = te__e8m0_special(u);
    uint32_t part;
    if (special >= 0) return (uint8_t)special;
    const uint32_t code = te__e8m0_floor(&part, u);
    return (uint8_t)(code + (part > random << 7));
}
/* Convert an e8m0 number to float, exactly. */
TE_BOTH float te_float_of_e8m0(uint8_t code) {
    return te_float_of_bits(code == 0xffu ? 0x7fffffffu : code == 0u ? 0x400000u : (uint32_t)code << 23);
}
/* Return 1 / te_float_of_e8m0(code), exactly. */
TE_BOTH float te_inverse_of_e8m0(uint8_t code) {
    return te_float_of_bits(code == 0xffu   ? 0x7fffffffu
                            : code == 0xfeu ? 0x400000u
                                            : (uint32_t)(254 - code) << 23);
}

/* ---- the largest magnitude of a block ---------------------------------------------------------------------------- */

/* a and b each hold two magnitudes of the 16-bit format t. The result has the larger magnitude of the two low halves in
 * its low half, and the larger one of the two high halves in its high half. A NaN is ignored, unless both magnitudes
 * are NaN; the result is then a NaN. */
TE_FN uint32_t te__max_numbers_16x2(uint32_t a, uint32_t b, te_dtype t) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 800
    uint32_t m;
    if (t == TE_bf16) asm("max.bf16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
    else asm("max.f16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
    return m;
#else
    const uint32_t infinity = t == TE_bf16 ? 0x7f80u : 0x7c00u;
    uint32_t m = 0;
    for (int shift = 0; shift < 32; shift += 16) {
        const uint32_t x = a >> shift & 0xffffu, y = b >> shift & 0xffffu;
        m |= (x > infinity ? y : y > infinity || x > y ? x : y) << shift;
    }
    return m;
#endif
}
/* Replace each element of *max by the maximum of this element and the magnitude of the same element of *e, as
 * te_vec8_max_magnitudes does, but ignore NaNs. *max must be all zeros before the first call. */
TE_FN void te_vec8_max_numbers(te_vec8 *max, const te_vec8 *e, te_dtype t) {
    TE_UNROLL for (int k = 0; k < (t == TE_f32 ? 8 : 4); k++) {
        const float x = te_float_of_bits(e->w[k] & 0x7fffffffu), m = te_float_of_bits(max->w[k]);
        max->w[k] = t == TE_f32 ? te_bits_of_float(x > m ? x : m)
                                : te__max_numbers_16x2(max->w[k], e->w[k] & 0x7fff7fffu, t);
    }
}
/* Return the largest magnitude of all elements of n vectors, ignoring NaNs. */
TE_FN float te_vec8_largest(const te_vec8 *e, const int n, te_dtype t) {
    float v[8], m = 0.0f;
    te_vec8 pair;
    if (t == TE_f32) {
        TE_UNROLL for (int i = 0; i < n; i++)
            TE_UNROLL for (int k = 0; k < 8; k++) {
                const float a = fabsf(te_float_of_bits(e[i].w[k]));
                m = a > m ? a : m;
            }
        return m;
    }
    memset(&pair, 0, sizeof pair);
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 860
    /* the instruction compares magnitudes, and gives the result a sign, which is ignored here */
    uint32_t w = e[0].w[0];
    TE_UNROLL for (int k = 1; k < 4 * n; k++)
        if (t == TE_bf16) asm("max.xorsign.abs.bf16x2 %0, %0, %1;" : "+r"(w) : "r"(e[k / 4].w[k % 4]));
        else asm("max.xorsign.abs.f16x2 %0, %0, %1;" : "+r"(w) : "r"(e[k / 4].w[k % 4]));
    pair.w[0] = w;
    te_vec8_floats(v, &pair, t);
    return fmaxf(fabsf(v[0]), fabsf(v[1]));
#else
    TE_UNROLL for (int k = 0; k < 4 * n; k++)
        pair.w[0] = te__max_numbers_16x2(pair.w[0], e[k / 4].w[k % 4] & 0x7fff7fffu, t);
    te_vec8_floats(v, &pair, t);
    return v[0] > v[1] ? v[0] : v[1];
#endif
}

#endif
