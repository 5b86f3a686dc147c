/* fp8.h -- the two FP8 formats of Micikevicius et al. 2022, "FP8 formats for deep learning", as OCP's 8-bit floating
 * point specification has them: e4m3 (4 bits of exponent, 3 of fraction, no infinities) and e5m2.
 *
 * Do this:
 *     uint8_t byte = te_e4m3_of_float(x);     // nearest, ties to even; beyond 448, infinities too, +-448; NaN: 0x7f
 *     float back = te_float_of_e4m3(byte);    // exact
 *
 * These are the conversions of the hardware from compute capability 8.9 on (cvt.rn.satfinite), bit for bit; older
 * devices and the host compute them.
 */
#ifndef TE_FP8_H
#define TE_FP8_H

#include "bits.h" /* te_bits_of_float */
#if TE_CUDA
#include <cuda_fp16.h>
#endif

#define TE_E4M3_MOST 448.0f   /* the largest number of each format */
#define TE_E5M2_MOST 57344.0f

#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 890
#define TE__FP8_HARDWARE 1
#else
#define TE__FP8_HARDWARE 0
#endif

typedef struct te_e4m3_bits { uint8_t bits; } te_e4m3_bits;
typedef struct te_e5m2_bits { uint8_t bits; } te_e5m2_bits;

/* The nearest number with `fraction` bits of fraction and exponents from 1 - bias on. most: the largest one; infinite
 * and larger numbers become it. All constants but f. */
TE_BOTH uint8_t te__fp8_of_float(float f, int fraction, int bias, float most) {
    const int dropped = 23 - fraction;
    const uint32_t u = te_bits_of_float(f), sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
    const uint32_t largest = te_bits_of_float(most), rebias = (uint32_t)(127 - bias) << 23;
    if (a > 0x7f800000u) return 0x7f;
    if (a >= largest) return (uint8_t)(sign | ((largest - rebias) >> dropped));
    if (a < rebias + (1u << 23)) { /* below the smallest normal number: the adder rounds to a multiple of the step */
        const uint32_t step = (uint32_t)(127 + 1 - bias - fraction + 23) << 23; /* a float whose last bit is the step */
        return (uint8_t)(sign | (te_bits_of_float(te_float_of_bits(a) + te_float_of_bits(step)) - step));
    }
    return (uint8_t)(sign | ((a - rebias + (1u << (dropped - 1)) - 1u + ((a >> dropped) & 1u)) >> dropped));
}

/* The number of that format below a finite float, whose magnitude has the bits a: in units of the last place that the
 * format has there, and 23 - fraction bits more of what is above it. *first: what the format calls 0 such units, so
 * that *first + units is its byte. In integers, for conversions between them and floats run at an eighth of the rate of
 * all else. */
TE_BOTH uint32_t te__fp8_units(uint32_t *first, uint32_t a, int fraction, int bias) {
    const uint32_t least = (uint32_t)(128 - bias), exponent = a >> 23; /* below it are subnormals */
    const uint32_t e = exponent > least ? exponent : least;
    const uint32_t mantissa = (a & 0x7fffffu) | (exponent ? 0x800000u : 0u);
    *first = (e - least) << fraction;
    return e - exponent < 24u ? mantissa >> (e - exponent) : 0u;
}
/* The number of that format below f or above it, each the likelier the nearer it is: the mean is f, but for less than
 * 2^-16 of their distance. random: 16 bits. Beyond the largest, and NaN, as te__fp8_of_float. Croci et al., "Stochastic
 * rounding: implementation, error analysis and applications", 2022. */
TE_BOTH uint8_t te__fp8_by_chance(float f, uint32_t random, int fraction, int bias, float most) {
    const int behind = 23 - fraction;
    const uint32_t u = te_bits_of_float(f), a = u & 0x7fffffffu, largest = te_bits_of_float(most);
    uint32_t first;
    const uint32_t units = te__fp8_units(&first, a < largest ? a : largest, fraction, bias);
    const uint32_t up = (units & ((1u << behind) - 1u)) > random << (behind - 16);
    return a > 0x7f800000u ? 0x7f : (uint8_t)((u >> 24 & 0x80u) | (first + (units >> behind) + up));
}

#if TE__FP8_HARDWARE
/* Two numbers, the first in the low byte. */
TE_FN uint16_t te__e4m3_pair(float low, float high) {
    uint16_t w;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(w) : "f"(high), "f"(low));
    return w;
}
TE_FN uint16_t te__e5m2_pair(float low, float high) {
    uint16_t w;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(w) : "f"(high), "f"(low));
    return w;
}
/* Two numbers of f16, which has all of either format's. */
TE_FN uint32_t te__f16_pair_of_fp8(uint16_t w, const int e4m3) {
    uint32_t h;
    if (e4m3) asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"(w));
    else asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(h) : "h"(w));
    return h;
}
#endif

TE_BOTH uint8_t te_e4m3_of_float(float f) {
#if TE__FP8_HARDWARE
    return (uint8_t)te__e4m3_pair(f, 0.0f);
#else
    return te__fp8_of_float(f, 3, 7, TE_E4M3_MOST);
#endif
}
TE_BOTH uint8_t te_e5m2_of_float(float f) {
#if TE__FP8_HARDWARE
    return (uint8_t)te__e5m2_pair(f, 0.0f);
#else
    return te__fp8_of_float(f, 2, 15, TE_E5M2_MOST);
#endif
}

/* 2^(e - bias) (1 + m / 2^fraction), or below the smallest normal number m times the step. */
TE_BOTH float te__float_of_fp8(uint32_t sign, uint32_t a, int fraction, int bias) {
    const float step = te_float_of_bits((uint32_t)(127 + 1 - bias - fraction) << 23);
    const float v = a >> fraction ? te_float_of_bits((a << (23 - fraction)) + ((uint32_t)(127 - bias) << 23))
                                  : (float)a * step;
    return te_float_of_bits(te_bits_of_float(v) | sign << 24);
}
TE_BOTH float te_float_of_e4m3(uint8_t h) {
    const uint32_t a = h & 0x7fu, sign = h & 0x80u;
    return a == 0x7fu ? te_float_of_bits(0x7fffffffu) : te__float_of_fp8(sign, a, 3, 7);
}
TE_BOTH float te_float_of_e5m2(uint8_t h) {
    const uint32_t a = h & 0x7fu, sign = h & 0x80u;
    if (a > 0x7cu) return te_float_of_bits(0x7fffffffu);
    return a == 0x7cu ? te_float_of_bits(sign << 24 | 0x7f800000u) : te__float_of_fp8(sign, a, 2, 15);
}

/* Four numbers in a word, the first in the lowest byte. e4m3: a constant; 0 is e5m2. */
TE_FN uint32_t te__fp8_word(const float v[4], const int e4m3) {
#if TE__FP8_HARDWARE
    const uint32_t low = e4m3 ? te__e4m3_pair(v[0], v[1]) : te__e5m2_pair(v[0], v[1]);
    const uint32_t high = e4m3 ? te__e4m3_pair(v[2], v[3]) : te__e5m2_pair(v[2], v[3]);
    return low | high << 16;
#else
    uint32_t w = 0;
    TE_UNROLL
    for (int k = 0; k < 4; k++) w |= (uint32_t)(e4m3 ? te_e4m3_of_float(v[k]) : te_e5m2_of_float(v[k])) << 8 * k;
    return w;
#endif
}
TE_FN void te__floats_of_fp8(float v[4], uint32_t w, const int e4m3) {
#if TE__FP8_HARDWARE
    TE_UNROLL for (int k = 0; k < 4; k += 2) {
        float2 f;
        __half2 h;
        const uint32_t pair = te__f16_pair_of_fp8((uint16_t)(w >> 8 * k), e4m3);
        memcpy(&h, &pair, 4);
        f = __half22float2(h), v[k] = f.x, v[k + 1] = f.y;
    }
#else
    TE_UNROLL
    for (int k = 0; k < 4; k++) {
        const uint8_t byte = (uint8_t)(w >> 8 * k);
        v[k] = e4m3 ? te_float_of_e4m3(byte) : te_float_of_e5m2(byte);
    }
#endif
}

#endif
