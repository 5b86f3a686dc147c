/* amax.h -- the largest |x| of a tensor in target memory: exact, whatever the order in which it is raised, so the same
 * bits on both targets. An infinity gives infinity, a NaN gives NaN.
 */
#ifndef TE_AMAX_H
#define TE_AMAX_H

#include "dtype.h" /* te_vec8, te_bits_of_float */
#include "lanes.h" /* te_lanes */

/* The bits of |x|; those of larger numbers are larger, those of NaNs the largest. */
TE_FN uint32_t te_amax_bits(float x) { return te_bits_of_float(x) & 0x7fffffffu; }
/* The larger of m and the bits of eight |v|. */
TE_FN uint32_t te_amax_bits8(uint32_t m, const float v[8]) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 800
    float f = te_float_of_bits(m); /* the magnitude is a modifier of the instruction */
    TE_UNROLL for (int k = 0; k < 8; k++) asm("max.NaN.f32 %0, %0, %1;" : "+f"(f) : "f"(fabsf(v[k])));
    return te_bits_of_float(f);
#else
    TE_UNROLL for (int k = 0; k < 8; k++) m = te_amax_bits(v[k]) > m ? te_amax_bits(v[k]) : m;
    return m;
#endif
}
/* The larger of two 16-bit numbers in each half of a word. */
TE_FN uint32_t te__larger_halves(uint32_t a, uint32_t b) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    asm("max.u16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
    return a;
#else
    const uint32_t low = (a & 0xffffu) > (b & 0xffffu) ? a & 0xffffu : b & 0xffffu;
    return low | (a >> 16 > b >> 16 ? a & 0xffff0000u : b & 0xffff0000u);
#endif
}
/* Element by element the largest magnitudes so far, as they lie in memory, where larger numbers have larger bits; most
 * begins as zeros. */
TE_FN void te_vec8_raise(te_vec8 *most, const te_vec8 *e, te_dtype t) {
    TE_UNROLL for (int k = 0; k < (t == TE_f32 ? 8 : 4); k++) {
        const uint32_t w = e->w[k] & (t == TE_f32 ? 0x7fffffffu : 0x7fff7fffu);
        most->w[k] = t != TE_f32 ? te__larger_halves(most->w[k], w) : w > most->w[k] ? w : most->w[k];
    }
}
/* The bits, as those of a float, of a magnitude of 16 bits. */
TE_FN uint32_t te_amax_half(uint32_t m, te_dtype t) {
    return t == TE_bf16 ? m << 16 : te_bits_of_float(te_float_of_f16((uint16_t)m));
}
/* The same of the larger of the two in a word. */
TE_FN uint32_t te_amax_halves(uint32_t m, te_dtype t) {
    return te_amax_half(m >> 16 > (m & 0xffffu) ? m >> 16 : m & 0xffffu, t);
}
/* The larger magnitudes of eight elements of 16 bits, of those in low halves and of those in high ones. */
TE_FN uint32_t te__amax_pair(const te_vec8 *e) {
    uint32_t m = e->w[0] & 0x7fff7fffu;
    TE_UNROLL for (int k = 1; k < 4; k++) m = te__larger_halves(m, e->w[k] & 0x7fff7fffu);
    return m;
}
/* The largest magnitudes of eight elements of 16 bits, as it lies in memory, and of eight others: in the low half and
 * in the high one. */
TE_FN uint32_t te_amax_two_vec8(const te_vec8 *low, const te_vec8 *high) {
    const uint32_t a = te__amax_pair(low), b = te__amax_pair(high);
    return te__larger_halves((a & 0xffffu) | b << 16, a >> 16 | (b & 0xffff0000u));
}
/* The bits of the largest |v| of eight elements as they lie in memory. */
TE_FN uint32_t te_amax_vec8(const te_vec8 *e, te_dtype t) {
    float v[8];
    if (TE_CUDA && t != TE_f32) return te_amax_halves(te__amax_pair(e), t);
    te_vec8_floats(v, e, t);
    return te_amax_bits8(0, v);
}

/* Raise *amax, which is at least 0, to the largest of the lanes' bits. A read comes first: in a large tensor few blocks
 * find it too small. */
#if TE_CUDA
TE_FN void te_amax_raise(float *amax, uint32_t bits, te_lanes g) {
    bits = __reduce_max_sync(~0u, bits);
    if (g.count > 32) {
        __shared__ uint32_t te_shared[32];
        const int lane = (int)threadIdx.x % 32;
        __syncthreads(); /* an earlier raise of this block has read them */
        if (lane == 0) te_shared[threadIdx.x / 32] = bits;
        __syncthreads();
        bits = __reduce_max_sync(~0u, lane < g.count / 32 ? te_shared[lane] : 0u);
    }
    if (bits > 0x7f800000u) bits = 0x7fffffffu; /* one NaN for all */
    if (g.id == 0 && bits > *(const volatile uint32_t *)amax) (void)atomicMax((uint32_t *)amax, bits);
}
#else
TE_FN void te_amax_raise(float *amax, uint32_t bits, te_lanes g) {
    uint32_t *to = (uint32_t *)(void *)amax, now = __atomic_load_n(to, __ATOMIC_RELAXED);
    (void)g;
    if (bits > 0x7f800000u) bits = 0x7fffffffu;
    while (bits > now && !__atomic_compare_exchange_n(to, &now, bits, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}
#endif

#endif
