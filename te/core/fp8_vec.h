/* fp8_vec.h -- eight elements of FP8 at a time: what te_load8, te_store8 and te_vec8 (dtype.h) are to the wider
 * formats. No scale is applied. `aligned`: n is 8 and the address a multiple of 8. `aligned` and `t` are meant to be
 * constants.
 */
#ifndef TE_FP8_VEC_H
#define TE_FP8_VEC_H

#include "dtype.h" /* te_vec8, te__fp8_word */

/* A scale, which nobody writes meanwhile: a load that need not wait for stores. */
TE_FN float te_load_scale(const float *scale) {
#if TE_CUDA
    return __ldg(scale);
#else
    return *scale;
#endif
}
/* n of them exist, the rest become 0. */
TE_FN void te_vec8_load_fp8(te_vec8 *e, const void *p, int64_t i, int n, int aligned) {
#if TE_CUDA
    if (aligned) { /* volatile, as te__load_now is */
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
