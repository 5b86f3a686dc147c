/* dtype.h -- the number formats, and functions that convert, load and store one element or eight elements (te_vec8).
 *
 * Do this:
 *     float v[8];
 *     te_load8(v, x, index, 8, 1, TE_bf16);    // eight elements, one load of 16 bytes
 *     te_store8(y, index, v, 3, 0, TE_bf16);   // the first three only
 *     uint8_t byte = te_e4m3_of_float(x);      // round to nearest even, saturate to +-448; NaN becomes 0x7f
 *
 * Lists name formats by the tokens `f32`, `bf16`, `f16`, `e4m3` and `e5m2`; with TE_ in front, as in TE_bf16, a token
 * is an enumerator. Conversions round to nearest, ties to even, and their results are bitwise identical on CUDA and on
 * the host. Conversions to FP8 saturate and apply no scale.
 *
 * e4m3 (4 bits of exponent, 3 of fraction, no infinities) and e5m2 are the formats of Micikevicius et al. 2022, "FP8
 * formats for deep learning", and of OCP's 8-bit floating point specification. Devices of compute capability 8.9 and
 * above have an instruction for the conversion (cvt.rn.satfinite); on older devices and on the host, integer code
 * computes bitwise identical results.
 */
#ifndef TE_DTYPE_H
#define TE_DTYPE_H

#include "base.h" /* TE_BOTH */
#if TE_CUDA
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#elif defined(__F16C__)
/* g++ 12 warns of variables that its own immintrin.h leaves uninitialised on purpose (GCC bug 105593). */
#ifndef __clang__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#ifndef __clang__
#pragma GCC diagnostic pop
#endif
#endif

/* ---- formats ----------------------------------------------------------------------------------------------------- */

/* The list of number formats: X(token, bytes of an element, name in a safetensors file) for each format. */
#define TE_DTYPES(X) \
    X(f32, 4, F32) \
    X(bf16, 2, BF16) \
    X(f16, 2, F16) \
    X(e4m3, 1, F8_E4M3) \
    X(e5m2, 1, F8_E5M2)

#define TE_DTYPE_ENUM(token, bytes, name) TE_##token,
typedef enum te_dtype { TE_DTYPES(TE_DTYPE_ENUM) TE_DTYPE_COUNT } te_dtype;
#undef TE_DTYPE_ENUM

/* The list of block formats, in which quantized weights are stored (te/quant/block_formats.h): X(token, values of a
 * block, bytes of a block) for each format. The option (weights, ..) of a list takes the tokens. In f32, f16 and bf16 a
 * block is a single value, so a row may have any number of values. The comments list the bytes of a block: d is the
 * block's scale, m the block's minimum, dmin the scale of the minima of the block's groups, and q a quantized value. */
#define TE_BLOCK_FORMATS(X)                                                                                           \
    X(none, 1, 0)                                                                                                     \
    X(f32, 1, 4)                                                                                                      \
    X(f16, 1, 2)                                                                                                      \
    X(bf16, 1, 2)                                                                                                     \
    X(q8_0, 32, 34) /* f16 d; int8 q[32] */                                                                           \
    X(q4_0, 32, 18) /* f16 d; 16 bytes with q + 8: value i in the low half of byte i, value i + 16 in the high half */ \
    X(q4_1, 32, 20) /* f16 d, m; 16 bytes with q, as in q4_0 */                                                       \
    X(q5_0, 32, 22) /* f16 d; 4 bytes: bit i is bit 4 of (q[i] + 16); 16 bytes with the low 4 bits, as in q4_0 */     \
    X(q5_1, 32, 24) /* f16 d, m; 20 bytes as in q5_0, but with q in place of q + 16 */                                \
    X(q4_k, 256, 144)  /* f16 d, dmin; 12 bytes: scale and min of 8 groups; for each 2 groups 32 bytes with their q */ \
    X(q5_k, 256, 176)  /* f16 d, dmin; 12 bytes as in q4_k; 32 bytes with bit 4 of each q; 128 bytes as in q4_k */    \
    X(q6_k, 256, 210)  /* 128 bytes with the low 4 bits of q + 32; 64 with the high 2 bits; int8 scales[16]; f16 d */ \
    X(mxfp4, 32, 17)   /* E8M0 scale 2^(e - 127); 16 bytes with E2M1 numbers, in the order of q4_0 */                 \
    X(int4_64, 64, 34) /* f16 d; for each 32 values 16 bytes as in q4_0 */                                            \
    X(int4_128, 128, 66)                                                                                              \
    X(int4z_32, 32, 20) /* f16 d; u8 zero point <= 16; u8 0; for each 32 values 16 bytes with q, ordered as in q4_0 */ \
    X(int4z_64, 64, 36)                                                                                               \
    X(int4z_128, 128, 68)                                                                                             \
    X(int8, 32, 32) /* int8 q[32]; the blocks of a row are followed by the row's scale in f32 (TE_BLOCK_ROW_SCALE
                     * bytes) */

#define TE_BLOCK_ENUM(token, values, bytes) TE_BLOCK_##token,
typedef enum te_block_format {
    TE_BLOCK_FORMATS(TE_BLOCK_ENUM) TE_BLOCK_COUNT,
    TE_BLOCK_quantized = TE_BLOCK_COUNT /* in the option (weights, quantized): any of these formats */
} te_block_format;
#undef TE_BLOCK_ENUM

typedef float te_f32;
typedef struct te_bf16_bits { uint16_t bits; } te_bf16_bits;
typedef struct te_f16_bits { uint16_t bits; } te_f16_bits;
typedef struct te_e4m3_bits { uint8_t bits; } te_e4m3_bits;
typedef struct te_e5m2_bits { uint8_t bits; } te_e5m2_bits;

TE_BOTH int te_is_fp8(te_dtype t) { return t == TE_e4m3 || t == TE_e5m2; }
TE_BOTH size_t te_dtype_bytes(te_dtype t) { return t == TE_f32 ? 4 : te_is_fp8(t) ? 1 : 2; }

TE_API const char *te_dtype_name(te_dtype t) {
#define TE_DTYPE_NAME(token, bytes, name) #token,
    static const char *const names[] = {TE_DTYPES(TE_DTYPE_NAME)};
#undef TE_DTYPE_NAME
    return (unsigned)t < (unsigned)TE_DTYPE_COUNT ? names[t] : "unknown";
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

TE_BOTH float te_float_of_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
TE_BOTH uint32_t te_bits_of_float(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

/* Transpose a matrix of 4 x 4 bytes: byte i of t[j] = byte j of r[i]. */
TE_FN void te_transpose_bytes_4x4(uint32_t t[4], const uint32_t r[4]) {
#if TE_CUDA
    const uint32_t low01 = __byte_perm(r[0], r[1], 0x5140), high01 = __byte_perm(r[0], r[1], 0x7362),
                   low23 = __byte_perm(r[2], r[3], 0x5140), high23 = __byte_perm(r[2], r[3], 0x7362);
    t[0] = __byte_perm(low01, low23, 0x5410), t[1] = __byte_perm(low01, low23, 0x7632);
    t[2] = __byte_perm(high01, high23, 0x5410), t[3] = __byte_perm(high01, high23, 0x7632);
#else
    for (int j = 0; j < 4; j++) {
        t[j] = 0;
        for (int i = 0; i < 4; i++) t[j] |= (r[i] >> 8 * j & 0xffu) << 8 * i;
    }
#endif
}

/* ---- one number of FP8 ------------------------------------------------------------------------------------------- */

#define TE_E4M3_MAX 448.0f   /* the largest finite number of e4m3 */
#define TE_E5M2_MAX 57344.0f

#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 890
#define TE__FP8_HARDWARE 1
#else
#define TE__FP8_HARDWARE 0
#endif

/* Convert f to the FP8 format that has `fraction` fraction bits, the exponent bias `bias` and the largest finite number
 * `max`, rounding to nearest even. Infinities, and numbers whose magnitude exceeds `max`, saturate to +-max. All
 * arguments except f are compile-time constants. */
TE_BOTH uint8_t te__fp8_of_float(float f, int fraction, int bias, float max) {
    const int dropped = 23 - fraction;
    const uint32_t u = te_bits_of_float(f), sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
    const uint32_t largest = te_bits_of_float(max), rebias = (uint32_t)(127 - bias) << 23;
    if (a > 0x7f800000u) return 0x7f;
    if (a >= largest) return (uint8_t)(sign | ((largest - rebias) >> dropped));
    /* Here f is subnormal in FP8. The float `step` is so large that its unit in the last place is the distance between
     * neighbouring FP8 subnormals. Therefore adding `step` to |f| rounds |f| to a multiple of this distance. */
    if (a < rebias + (1u << 23)) {
        const uint32_t step = (uint32_t)(127 + 1 - bias - fraction + 23) << 23;
        return (uint8_t)(sign | (te_bits_of_float(te_float_of_bits(a) + te_float_of_bits(step)) - step));
    }
    return (uint8_t)(sign | ((a - rebias + (1u << (dropped - 1)) - 1u + ((a >> dropped) & 1u)) >> dropped));
}

/* Express a finite magnitude, given as the bits `a` of a float, in units of the distance between neighbouring FP8
 * numbers of this magnitude. The result is a fixed-point number with 23 - fraction bits behind the point, which the
 * caller drops by rounding. The FP8 byte of the magnitude, rounded down, is *first + (result >> (23 - fraction)). The
 * function uses only integer instructions, because conversions between integers and floats run at an eighth of the rate
 * of integer instructions. */
TE_BOTH uint32_t te__fp8_units(uint32_t *first, uint32_t a, int fraction, int bias) {
    const uint32_t least = (uint32_t)(128 - bias), exponent = a >> 23; /* least: the exponent field of the smallest
                                                                        * float that is a normal number in FP8 */
    const uint32_t e = exponent > least ? exponent : least;
    const uint32_t mantissa = (a & 0x7fffffu) | (exponent ? 0x800000u : 0u);
    *first = (e - least) << fraction;
    return e - exponent < 24u ? mantissa >> (e - exponent) : 0u;
}
/* Convert f to FP8 by stochastic rounding: the result is the FP8 number below or above f, with probabilities such that
 * the expected value is f, up to 2^-16 of the distance between the two numbers. `random` has 16 random bits. Saturation
 * and NaN are handled as in te__fp8_of_float. Croci et al., "Stochastic rounding: implementation, error analysis and
 * applications", 2022. */
TE_BOTH uint8_t te__fp8_of_float_stochastic(float f, uint32_t random, int fraction, int bias, float max) {
    const int dropped = 23 - fraction;
    const uint32_t u = te_bits_of_float(f), a = u & 0x7fffffffu, largest = te_bits_of_float(max);
    uint32_t first;
    const uint32_t units = te__fp8_units(&first, a < largest ? a : largest, fraction, bias);
    const uint32_t up = (units & ((1u << dropped) - 1u)) > random << (dropped - 16);
    return a > 0x7f800000u ? 0x7f : (uint8_t)((u >> 24 & 0x80u) | (first + (units >> dropped) + up));
}

#if TE__FP8_HARDWARE
/* Convert two floats to two e4m3 numbers in one 16-bit word, with `low` in the low byte. */
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
/* Convert two FP8 numbers to f16, which represents all numbers of both FP8 formats exactly. `e4m3` is a compile-time
 * constant: 1 if the format is e4m3, 0 if it is e5m2. */
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
    return te__fp8_of_float(f, 3, 7, TE_E4M3_MAX);
#endif
}
TE_BOTH uint8_t te_e5m2_of_float(float f) {
#if TE__FP8_HARDWARE
    return (uint8_t)te__e5m2_pair(f, 0.0f);
#else
    return te__fp8_of_float(f, 2, 15, TE_E5M2_MAX);
#endif
}

/* Convert an FP8 number to float, exactly. Let e be the number's exponent field and m its fraction field. If e is not
 * 0, the magnitude is 2^(e - bias) * (1 + m / 2^fraction); if e is 0, the magnitude is m times the distance between
 * neighbouring subnormals. `a` is the byte without its sign bit. */
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

/* Return x * scale, which the caller casts to FP8. The cast saturates, so it would turn an infinite x into a finite
 * number, and training would go on with wrong gradients. Therefore the result for an infinite x is NaN, which the cast
 * preserves. For a finite x, the added x * 0 is a zero of the same sign, so the result is bitwise equal to x * scale.
 * `scale` must be finite and above 0. */
TE_BOTH float te_fp8_scaled(float x, float scale) { return x * scale + x * 0.0f; }

/* Convert four floats to four FP8 numbers in one word, v[0] in the lowest byte. `e4m3` is a compile-time constant: 1 if
 * the format is e4m3, 0 if it is e5m2. */
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

/* ---- one number of any format ------------------------------------------------------------------------------------ */

TE_BOTH float te_float_of_bf16(uint16_t h) { return te_float_of_bits((uint32_t)h << 16); }
TE_BOTH uint16_t te_bf16_of_float(float f) {
#if TE_CUDA && defined(__CUDA_ARCH__)
    return __bfloat16_as_ushort(__float2bfloat16_rn(f));
#else
    const uint32_t u = te_bits_of_float(f);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded);
#endif
}

TE_BOTH float te_float_of_f16(uint16_t h) {
#if TE_CUDA && defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(h));
#elif !TE_CUDA && defined(__F16C__)
    return _cvtsh_ss(h);
#else
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3ffu;
    if (e == 31) return te_float_of_bits(sign | 0x7f800000u | (m << 13));
    if (e) return te_float_of_bits(sign | ((e + 112) << 23) | (m << 13));
    const float sub = (float)m * 5.9604644775390625e-8f; /* m times 2^-24 */
    return sign ? -sub : sub;
#endif
}
TE_BOTH uint16_t te_f16_of_float(float f) {
#if TE_CUDA && defined(__CUDA_ARCH__)
    return __half_as_ushort(__float2half_rn(f));
#elif !TE_CUDA && defined(__F16C__)
    return (uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(f), 0));
#else
    const uint32_t u = te_bits_of_float(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above become infinity */
    /* Here the magnitude is below 2^-14, i.e. subnormal in f16, where neighbouring numbers are 2^-24 apart. */
    if (a < 0x38800000u) {
        /* Adding 0.5 rounds the magnitude to a multiple of 2^-24, because the unit in the last place of 0.5f is
         * 2^-24. */
        const float shifted = te_float_of_bits(a) + 0.5f;
        return (uint16_t)(sign | (te_bits_of_float(shifted) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
#endif
}

/* Convert an FP8 number to float. `t` is the number's format, TE_e4m3 or TE_e5m2. */
TE_BOTH float te_float_of_fp8(uint8_t h, te_dtype t) {
    return t == TE_e4m3 ? te_float_of_e4m3(h) : te_float_of_e5m2(h);
}
TE_BOTH uint8_t te_fp8_of_float(float f, te_dtype t) {
    return t == TE_e4m3 ? te_e4m3_of_float(f) : te_e5m2_of_float(f);
}
/* Return the largest finite number of an FP8 format. */
TE_BOTH float te_fp8_max(te_dtype t) { return t == TE_e4m3 ? TE_E4M3_MAX : TE_E5M2_MAX; }

/* Load element i of p, in f32, bf16 or f16. te_load8 calls this function rather than te_load, which also supports FP8.
 * te_load8 is inlined in many places, and in each of them a branch for FP8 would cost compile time. */
TE_BOTH float te__load_wide(const void *p, int64_t i, te_dtype t) {
    if (t == TE_f32) return ((const float *)p)[i];
    return t == TE_bf16 ? te_float_of_bf16(((const uint16_t *)p)[i]) : te_float_of_f16(((const uint16_t *)p)[i]);
}
/* Store v to element i of p, in f32, bf16 or f16. te_store8 calls this function rather than te_store, which also
 * supports FP8, to save the compile time of a branch for FP8. */
TE_BOTH void te__store_wide(void *p, int64_t i, float v, te_dtype t) {
    if (t == TE_f32) ((float *)p)[i] = v;
    else ((uint16_t *)p)[i] = t == TE_bf16 ? te_bf16_of_float(v) : te_f16_of_float(v);
}
TE_BOTH float te__round_wide(float v, te_dtype t) {
    if (t == TE_f32) return v;
    return t == TE_bf16 ? te_float_of_bf16(te_bf16_of_float(v)) : te_float_of_f16(te_f16_of_float(v));
}
/* Load element i of p, in any format, as a float. */
TE_BOTH float te_load(const void *p, int64_t i, te_dtype t) {
    return te_is_fp8(t) ? te_float_of_fp8(((const uint8_t *)p)[i], t) : te__load_wide(p, i, t);
}
/* Store v to element i of p, in any format. */
TE_BOTH void te_store(void *p, int64_t i, float v, te_dtype t) {
    if (te_is_fp8(t)) ((uint8_t *)p)[i] = te_fp8_of_float(v, t);
    else te__store_wide(p, i, v, t);
}
/* Return v rounded to format t and converted back to float. */
TE_BOTH float te_round_to(float v, te_dtype t) {
    return te_is_fp8(t) ? te_float_of_fp8(te_fp8_of_float(v, t), t) : te__round_wide(v, t);
}

/* ---- eight elements of f32, bf16 or f16 -------------------------------------------------------------------------- */

/* Load elements i to i + 7 of p as floats. Only the first n elements are read; the others are set to 0. `aligned` must
 * be 1 if n is 8 and the address is a multiple of 16 bytes, else 0. Here and below, `aligned` and `t` should be
 * compile-time constants. */
TE_FN void te_load8(float v[8], const void *p, int64_t i, int n, int aligned, te_dtype t) {
    if (!aligned) {
        TE_UNROLL for (int k = 0; k < 8; k++) v[k] = k < n ? te__load_wide(p, i + k, t) : 0.0f;
        return;
    }
#if TE_CUDA
    /* __ldg requires that no thread writes these bytes while the kernel runs; the callers of te_load8 guarantee this.
     * With __ldg, the compiler may move the loads of later rows ahead of the stores of earlier rows. */
    if (t == TE_f32) {
        const float4 a = __ldg((const float4 *)((const float *)p + i)),
                     b = __ldg((const float4 *)((const float *)p + i + 4));
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        return;
    }
    const uint4 u = __ldg((const uint4 *)((const uint16_t *)p + i));
    const uint32_t w[4] = {u.x, u.y, u.z, u.w};
    TE_UNROLL for (int k = 0; k < 4; k++) {
        v[2 * k] = t == TE_bf16 ? te_float_of_bits(w[k] << 16) : te_float_of_f16((uint16_t)w[k]);
        v[2 * k + 1] = t == TE_bf16 ? te_float_of_bits(w[k] & 0xffff0000u) : te_float_of_f16((uint16_t)(w[k] >> 16));
    }
#else
    for (int k = 0; k < 8; k++) v[k] = te__load_wide(p, i + k, t);
#endif
}
/* Prefetch the cache line of element i of p into the L2. On the host the function does nothing. */
TE_FN void te_prefetch(const void *p, int64_t i, te_dtype t) {
#if TE_CUDA
    asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)p + i * (int64_t)te_dtype_bytes(t)));
#else
    (void)p, (void)i, (void)t;
#endif
}

/* Eight elements in their storage format: f32 uses 8 words of w, a 16-bit format uses 4, and FP8 uses 2. A kernel can
 * load elements into a te_vec8 long before it uses them, and convert them to float only when it uses them. Until then
 * the elements occupy fewer registers than floats would. */
typedef struct te_vec8 { uint32_t w[8]; } te_vec8;
#if TE_CUDA
/* Load 16 bytes through the read-only cache. The asm is volatile so that the compiler does not delay the load until the
 * first use of its result. */
TE_FN void te__load16_readonly(uint32_t w[4], const void *p) {
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "l"(p));
}
/* Load 16 bytes of memory to which this thread may have stored. The read-only cache may still hold the old values of
 * such bytes, so this load does not use that cache. */
TE_FN void te__load16_coherent(uint32_t w[4], const void *p) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "l"(p) : "memory");
}
/* Load 16 bytes from shared memory. */
TE_FN void te__load16_shared(uint32_t w[4], const void *p) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(at));
}
#endif
/* Load eight elements as te_load8 does, but without converting them to float. Only the first n elements are read; the
 * others are set to 0. */
TE_FN void te_vec8_load(te_vec8 *e, const void *p, int64_t i, int n, int aligned, te_dtype t) {
#if TE_CUDA
    if (aligned) {
        const char *q = (const char *)p + i * (int64_t)te_dtype_bytes(t);
        te__load16_readonly(e->w, q);
        if (t == TE_f32) te__load16_readonly(e->w + 4, q + 16);
        return;
    }
#endif
    (void)aligned;
    TE_UNROLL for (int k = 0; k < 8; k++) {
        if (t == TE_f32) e->w[k] = k < n ? ((const uint32_t *)p)[i + k] : 0;
        else if (k % 2 == 0)
            e->w[k / 2] = (k < n ? ((const uint16_t *)p)[i + k] : 0u) |
                          (uint32_t)(k + 1 < n ? ((const uint16_t *)p)[i + k + 1] : 0u) << 16;
    }
}
TE_FN void te_vec8_floats(float v[8], const te_vec8 *e, te_dtype t) {
    TE_UNROLL for (int k = 0; k < 8; k++) {
        if (t == TE_f32) v[k] = te_float_of_bits(e->w[k]);
        else if (t == TE_bf16) v[k] = te_float_of_bits(k % 2 ? e->w[k / 2] & 0xffff0000u : e->w[k / 2] << 16);
        else v[k] = te_float_of_f16((uint16_t)(k % 2 ? e->w[k / 2] >> 16 : e->w[k / 2]));
    }
}
/* Load eight elements as te_load8 does, but from memory to which this thread may have stored in this kernel. */
TE_FN void te_load8_coherent(float v[8], const void *p, int64_t i, int n, int aligned, te_dtype t) {
#if TE_CUDA
    if (aligned) {
        const char *q = (const char *)p + i * (int64_t)te_dtype_bytes(t);
        te_vec8 e;
        te__load16_coherent(e.w, q);
        if (t == TE_f32) te__load16_coherent(e.w + 4, q + 16);
        te_vec8_floats(v, &e, t);
        return;
    }
#endif
    te_load8(v, p, i, n, aligned, t);
}
/* Hide the value of *e from the compiler's optimizer. The compiler must then convert *e to floats a second time after
 * this call, so the floats of an earlier conversion need not stay in registers. */
TE_FN void te_vec8_opaque(te_vec8 *e, te_dtype t) {
#if TE_CUDA
    TE_UNROLL for (int k = 0; k < (t == TE_f32 ? 8 : 4); k++) asm volatile("" : "+r"(e->w[k]));
#else
    (void)e, (void)t;
#endif
}
/* Set *e to eight floats, converted to the storage format t. */
TE_FN void te_vec8_of(te_vec8 *e, const float v[8], te_dtype t) {
    TE_UNROLL for (int k = 0; k < 8; k++) {
        if (t == TE_f32) e->w[k] = te_bits_of_float(v[k]);
        else if (k % 2 == 0) {
            /* te_pair_of_floats is not used here, because ptxas would then spill registers in kernels that hold a row
             * in registers and apply dropout (docs/notes/core.md). */
            const uint32_t low = t == TE_bf16 ? te_bf16_of_float(v[k]) : te_f16_of_float(v[k]);
            const uint32_t high = t == TE_bf16 ? te_bf16_of_float(v[k + 1]) : te_f16_of_float(v[k + 1]);
            e->w[k / 2] = low | high << 16;
        }
    }
}
#if TE_CUDA
/* Convert two floats to 16-bit elements in one word, `low` in the low half. */
TE_FN uint32_t te_pair_of_floats(float low, float high, te_dtype t) {
    uint32_t w;
    if (t == TE_bf16) {
        const __nv_bfloat162 h = __floats2bfloat162_rn(low, high);
        memcpy(&w, &h, 4);
    } else {
        const __half2 h = __floats2half2_rn(low, high);
        memcpy(&w, &h, 4);
    }
    return w;
}
TE_FN float2 te_floats_of_pair(uint32_t w, te_dtype t) {
    __half2 h;
    if (t == TE_bf16) return make_float2(te_float_of_bits(w << 16), te_float_of_bits(w & 0xffff0000u));
    memcpy(&h, &w, 4);
    return __half22float2(h);
}
#endif
/* Convert eight floats to the storage format t as te_vec8_of does, but with instructions that convert two numbers at a
 * time. Instructions that convert one number run at an eighth of the rate of other arithmetic. */
TE_FN void te_vec8_of_pairs(te_vec8 *e, const float v[8], te_dtype t) {
#if TE_CUDA
    if (t != TE_f32) {
        TE_UNROLL for (int k = 0; k < 4; k++) e->w[k] = te_pair_of_floats(v[2 * k], v[2 * k + 1], t);
        return;
    }
#endif
    te_vec8_of(e, v, t);
}
/* Store the first n of eight floats to elements i to i + n - 1 of p. */
TE_FN void te_store8(void *p, int64_t i, const float v[8], int n, int aligned, te_dtype t) {
    if (!aligned) {
        TE_UNROLL for (int k = 0; k < 8; k++) if (k < n) te__store_wide(p, i + k, v[k], t);
        return;
    }
#if TE_CUDA
    if (t == TE_f32) {
        *(float4 *)((float *)p + i) = make_float4(v[0], v[1], v[2], v[3]);
        *(float4 *)((float *)p + i + 4) = make_float4(v[4], v[5], v[6], v[7]);
        return;
    }
    *(uint4 *)((uint16_t *)p + i) = make_uint4(te_pair_of_floats(v[0], v[1], t), te_pair_of_floats(v[2], v[3], t),
                                               te_pair_of_floats(v[4], v[5], t), te_pair_of_floats(v[6], v[7], t));
#else
    for (int k = 0; k < 8; k++) te__store_wide(p, i + k, v[k], t);
#endif
}
/* Store eight floats as te_store8 does, and also overwrite v with the stored values, that is, with v rounded to format
 * t. */
TE_FN void te_store8_rounded(void *p, int64_t i, float v[8], int n, int aligned, te_dtype t) {
#if TE_CUDA
    /* Convert two numbers per instruction, as te_vec8_of_pairs does. */
    if (aligned && t != TE_f32) {
        te_vec8 e;
        TE_UNROLL for (int k = 0; k < 4; k++) e.w[k] = te_pair_of_floats(v[2 * k], v[2 * k + 1], t);
        *(uint4 *)((uint16_t *)p + i) = make_uint4(e.w[0], e.w[1], e.w[2], e.w[3]);
        te_vec8_floats(v, &e, t);
        return;
    }
#endif
    te_store8(p, i, v, n, aligned, t);
    TE_UNROLL for (int k = 0; k < 8; k++) v[k] = te__round_wide(v[k], t);
}

/* ---- eight elements of FP8 --------------------------------------------------------------------------------------- */

/* The functions of this section load and store eight elements at a time in the FP8 formats TE_e4m3 and TE_e5m2. They
 * apply no scale. `aligned` must be 1 if n is 8 and the address is a multiple of 8 bytes, else 0. */

/* Load an FP8 scale from target memory. No kernel may write this scale while the current kernel runs; the load
 * therefore need not wait for earlier stores. */
TE_FN float te_load_scale(const float *scale) {
#if TE_CUDA
    return __ldg(scale);
#else
    return *scale;
#endif
}
/* Load eight FP8 elements in their storage format. Only the first n elements are read; the others are set to 0. */
TE_FN void te_vec8_load_fp8(te_vec8 *e, const void *p, int64_t i, int n, int aligned) {
#if TE_CUDA
    if (aligned) { /* the asm is volatile so that the compiler does not delay the load until its result is used */
        asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];"
                     : "=r"(e->w[0]), "=r"(e->w[1])
                     : "l"((const char *)p + i));
        return;
    }
#endif
    (void)aligned;
    e->w[0] = e->w[1] = 0;
    TE_UNROLL
    for (int k = 0; k < 8; k++) e->w[k / 4] |= (uint32_t)(k < n ? ((const uint8_t *)p)[i + k] : 0) << 8 * (k % 4);
}
TE_FN void te_vec8_floats_fp8(float v[8], const te_vec8 *e, te_dtype t) {
    te__floats_of_fp8(v, e->w[0], t == TE_e4m3), te__floats_of_fp8(v + 4, e->w[1], t == TE_e4m3);
}
TE_FN void te_vec8_of_fp8(te_vec8 *e, const float v[8], te_dtype t) {
    e->w[0] = te__fp8_word(v, t == TE_e4m3), e->w[1] = te__fp8_word(v + 4, t == TE_e4m3);
}
TE_FN void te_load8_fp8(float v[8], const void *p, int64_t i, int n, int aligned, te_dtype t) {
    te_vec8 e;
    te_vec8_load_fp8(&e, p, i, n, aligned);
    te_vec8_floats_fp8(v, &e, t);
}
TE_FN void te_store8_fp8(void *p, int64_t i, const float v[8], int n, int aligned, te_dtype t) {
    te_vec8 e;
    te_vec8_of_fp8(&e, v, t);
#if TE_CUDA
    if (aligned) {
        *(uint2 *)((uint8_t *)p + i) = make_uint2(e.w[0], e.w[1]);
        return;
    }
#endif
    (void)aligned;
    TE_UNROLL for (int k = 0; k < 8; k++) if (k < n) ((uint8_t *)p)[i + k] = (uint8_t)(e.w[k / 4] >> 8 * (k % 4));
}

#endif
