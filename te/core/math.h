/* math.h -- fast exp2, exp, reciprocal and sigmoid for kernels on CUDA and on the host, and the upper half of a 64 x
 * 64-bit product. The relative error is about 2e-7; only the relative error of exp(x) is about 2e-7 + 1e-7 |x|. The
 * result for NaN is NaN.
 *
 * Do this:
 *     y = x * te_sigmoid(x);
 *
 * On CUDA each function uses at most one ex2.approx and one rcp.approx. On the host the functions are arithmetic
 * without branches, so that compilers vectorise loops that call them.
 */
#ifndef TE_MATH_H
#define TE_MATH_H

#include "dtype.h" /* te_float_of_bits */

/* 2^x; results below 2^-126 become 0. */
TE_FN float te_exp2(float x) {
#if TE_CUDA
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    /* Adding 1.5 * 2^23 rounds x to an integer, which then lies in the low bits of the sum. The remainder r, which is x
     * minus this integer, lies in [-0.5, 0.5]; 2^r is computed by the Taylor series of 2^r up to r^6 (relative error
     * 1.2e-7). Finally the integer is added to the exponent bits of 2^r, which yields 2^x. */
    TE__SUMS_AS_WRITTEN
    const float low = x < -126.0f ? -126.0f : x, clamped = low > 128.0f ? 128.0f : low;
    const float shifted = clamped + 12582912.0f, r = clamped - (shifted - 12582912.0f);
    float p = 1.5403530e-4f;
    p = p * r + 1.3333558e-3f, p = p * r + 9.6181291e-3f, p = p * r + 5.5504109e-2f;
    p = p * r + 2.4022651e-1f, p = p * r + 6.9314718e-1f, p = p * r + 1.0f;
    const float y = te_float_of_bits(te_bits_of_float(p) + (te_bits_of_float(shifted) << 23));
    return x != x ? x : x <= -126.0f ? 0.0f : x >= 128.0f ? INFINITY : y;
#endif
}
TE_FN float te_exp(float x) { return te_exp2(x * 1.4426950408889634f); }

/* 1 / x, for x >= 1 only. */
TE_FN float te_reciprocal(float x) {
#if TE_CUDA
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return 1.0f / x;
#endif
}
TE_FN float te_sigmoid(float x) { return te_reciprocal(1.0f + te_exp(-x)); }

/* Return the upper 64 bits of the 128-bit product a * b. */
TE_FN uint64_t te_mul_high(uint64_t a, uint64_t b) {
    const uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    const uint64_t low = a0 * b0, m = a1 * b0 + (low >> 32), n = a0 * b1 + (uint32_t)m;
    return a1 * b1 + (m >> 32) + (n >> 32);
}

#endif
