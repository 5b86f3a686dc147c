/* dtype.h -- the number formats, and loads and stores that convert to and from float.
 *
 * Do this:
 *     float v[8];
 *     te_load8(v, x, index, 8, 1, TE_bf16);    // 16 bytes at once
 *     te_store8(y, index, v, 3, 0, TE_bf16);   // the first three only
 *
 * `f32`, `bf16`, `f16`, `e4m3` and `e5m2` are tokens: TE_##dtype is the enumerator, te_##dtype the storage type, the
 * same bits on both targets. Conversions round to nearest even; those to FP8 saturate (fp8.h) and apply no scale.
 */
#ifndef TE_DTYPE_H
#define TE_DTYPE_H

#include "fp8.h" /* te_e4m3_of_float, te_float_of_bits */
#if TE_CUDA
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#elif defined(__F16C__)
#include <immintrin.h>
#endif

/* X(token, bytes, safetensors name) */
#define TE_DTYPES(X) \
    X(f32, 4, F32) \
    X(bf16, 2, BF16) \
    X(f16, 2, F16) \
    X(e4m3, 1, F8_E4M3) \
    X(e5m2, 1, F8_E5M2)

#define TE_DTYPE_ENUM(token, bytes, name) TE_##token,
typedef enum te_dtype { TE_DTYPES(TE_DTYPE_ENUM) TE_DTYPE_COUNT } te_dtype;
#undef TE_DTYPE_ENUM

typedef float te_f32;
typedef struct te_bf16_bits { uint16_t bits; } te_bf16_bits;
typedef struct te_f16_bits { uint16_t bits; } te_f16_bits;

TE_BOTH int te_is_fp8(te_dtype t) { return t == TE_e4m3 || t == TE_e5m2; }
TE_BOTH size_t te_dtype_bytes(te_dtype t) { return t == TE_f32 ? 4 : te_is_fp8(t) ? 1 : 2; }

TE_API const char *te_dtype_name(te_dtype t) {
#define TE_DTYPE_NAME(token, bytes, name) #token,
    static const char *const names[] = {TE_DTYPES(TE_DTYPE_NAME)};
#undef TE_DTYPE_NAME
    return (unsigned)t < (unsigned)TE_DTYPE_COUNT ? names[t] : "unknown";
}

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
    const float sub = (float)m * 5.9604644775390625e-8f; /* 2^-24 */
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
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above: infinity */
    if (a < 0x38800000u) {                                   /* below 2^-14: the adder rounds to a multiple of 2^-24 */
        const float shifted = te_float_of_bits(a) + 0.5f;    /* 0.5 has its last bit at 2^-24 */
        return (uint16_t)(sign | (te_bits_of_float(shifted) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
#endif
}

/* Either FP8 format. */
TE_BOTH float te_float_of_fp8(uint8_t h, te_dtype t) {
    return t == TE_e4m3 ? te_float_of_e4m3(h) : te_float_of_e5m2(h);
}
TE_BOTH uint8_t te_fp8_of_float(float f, te_dtype t) {
    return t == TE_e4m3 ? te_e4m3_of_float(f) : te_e5m2_of_float(f);
}
/* The largest number of an FP8 format. */
TE_BOTH float te_fp8_most(te_dtype t) { return t == TE_e4m3 ? TE_E4M3_MOST : TE_E5M2_MOST; }

/* One element at index i, of 32 or 16 bits: what te_load8 and the like are made of, for where many are compiled a
 * branch for FP8 costs time (fp8_vec.h has FP8). */
TE_BOTH float te__load_wide(const void *p, int64_t i, te_dtype t) {
    if (t == TE_f32) return ((const float *)p)[i];
    return t == TE_bf16 ? te_float_of_bf16(((const uint16_t *)p)[i]) : te_float_of_f16(((const uint16_t *)p)[i]);
}
TE_BOTH void te__store_wide(void *p, int64_t i, float v, te_dtype t) {
    if (t == TE_f32) ((float *)p)[i] = v;
    else ((uint16_t *)p)[i] = t == TE_bf16 ? te_bf16_of_float(v) : te_f16_of_float(v);
}
TE_BOTH float te__round_wide(float v, te_dtype t) {
    if (t == TE_f32) return v;
    return t == TE_bf16 ? te_float_of_bf16(te_bf16_of_float(v)) : te_float_of_f16(te_f16_of_float(v));
}
/* One element at index i, of any format. */
TE_BOTH float te_load(const void *p, int64_t i, te_dtype t) {
    return te_is_fp8(t) ? te_float_of_fp8(((const uint8_t *)p)[i], t) : te__load_wide(p, i, t);
}
TE_BOTH void te_store(void *p, int64_t i, float v, te_dtype t) {
    if (te_is_fp8(t)) ((uint8_t *)p)[i] = te_fp8_of_float(v, t);
    else te__store_wide(p, i, v, t);
}
/* What v becomes when it is stored as t and read again. */
TE_BOTH float te_round_to(float v, te_dtype t) {
    return te_is_fp8(t) ? te_float_of_fp8(te_fp8_of_float(v, t), t) : te__round_wide(v, t);
}

/* Eight elements from index i; n of them exist, the rest read as 0. `aligned`: n is 8 and the address a multiple of 16.
 * `aligned` and `t` are meant to be constants. */
TE_FN void te_load8(float v[8], const void *p, int64_t i, int n, int aligned, te_dtype t) {
    if (!aligned) {
        TE_UNROLL for (int k = 0; k < 8; k++) v[k] = k < n ? te__load_wide(p, i + k, t) : 0.0f;
        return;
    }
#if TE_CUDA
    /* __ldg: what is loaded here nobody else writes meanwhile, so loads of later rows may pass stores of earlier
     * ones */
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
/* Bring what lies there into the cache. A hint; nothing on the host. */
TE_FN void te_prefetch(const void *p, int64_t i, te_dtype t) {
#if TE_CUDA
    asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)p + i * (int64_t)te_dtype_bytes(t)));
#else
    (void)p, (void)i, (void)t;
#endif
}

/* Eight elements as they lie in memory: for loads that run ahead of their use. n of them exist, the rest become 0. */
typedef struct te_vec8 { uint32_t w[8]; } te_vec8;
#if TE_CUDA
/* 16 bytes. volatile: the compiler leaves the load where it stands, far ahead of its use. */
TE_FN void te__load_now(uint32_t w[4], const void *p) {
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "l"(p));
}
/* The same of what this thread may have stored before: the read-only cache need not see that. */
TE_FN void te__load_own(uint32_t w[4], const void *p) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "l"(p) : "memory");
}
TE_FN void te__load_shared_now(uint32_t w[4], const void *p) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(at));
}
#endif
TE_FN void te_vec8_load(te_vec8 *e, const void *p, int64_t i, int n, int aligned, te_dtype t) {
#if TE_CUDA
    if (aligned) {
        const char *q = (const char *)p + i * (int64_t)te_dtype_bytes(t);
        te__load_now(e->w, q);
        if (t == TE_f32) te__load_now(e->w + 4, q + 16);
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
/* te_load8 of what this thread has stored in this kernel. */
TE_FN void te_load8_own(float v[8], const void *p, int64_t i, int n, int aligned, te_dtype t) {
#if TE_CUDA
    if (aligned) {
        const char *q = (const char *)p + i * (int64_t)te_dtype_bytes(t);
        te_vec8 e;
        te__load_own(e.w, q);
        if (t == TE_f32) te__load_own(e.w + 4, q + 16);
        te_vec8_floats(v, &e, t);
        return;
    }
#endif
    te_load8(v, p, i, n, aligned, t);
}
/* Makes the compiler unpack `e` again behind this, instead of keeping the floats in registers. */
TE_FN void te_vec8_forget(te_vec8 *e, te_dtype t) {
#if TE_CUDA
    TE_UNROLL for (int k = 0; k < (t == TE_f32 ? 8 : 4); k++) asm volatile("" : "+r"(e->w[k]));
#else
    (void)e, (void)t;
#endif
}
TE_FN void te_vec8_of(te_vec8 *e, const float v[8], te_dtype t) {
    TE_UNROLL for (int k = 0; k < 8; k++) {
        if (t == TE_f32) e->w[k] = te_bits_of_float(v[k]);
        else if (k % 2 == 0) { /* not as a pair: with that ptxas spills where a row is kept so and drawn for */
            const uint32_t low = t == TE_bf16 ? te_bf16_of_float(v[k]) : te_f16_of_float(v[k]);
            const uint32_t high = t == TE_bf16 ? te_bf16_of_float(v[k + 1]) : te_f16_of_float(v[k + 1]);
            e->w[k / 2] = low | high << 16;
        }
    }
}
#if TE_CUDA
/* Two elements of 16 bits, the first in the low half. */
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
/* te_vec8_of, with the conversion of two at a time where there is one: floats one by one take eight times as long. */
TE_FN void te_vec8_of_pairs(te_vec8 *e, const float v[8], te_dtype t) {
#if TE_CUDA
    if (t != TE_f32) {
        TE_UNROLL for (int k = 0; k < 4; k++) e->w[k] = te_pair_of_floats(v[2 * k], v[2 * k + 1], t);
        return;
    }
#endif
    te_vec8_of(e, v, t);
}
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
/* The same, and v becomes what was stored. */
TE_FN void te_store8_rounded(void *p, int64_t i, float v[8], int n, int aligned, te_dtype t) {
#if TE_CUDA
    /* in pairs: floats one by one go through a unit that takes eight times as long */
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

#endif
