/* words.h -- 16 bytes at a time between devices: stored into memory that another rank has mapped, and polled until they
 * are there.
 *
 * Memory that nothing has come to is idle: each of its bits is 1. So data is its own signal, and needs no flag and no
 * fence behind it: words that are no longer idle have come. The reader makes them idle again.
 *
 * Do this:
 *     te_words_send(there, &v);             // te_words_mark first, if a word of v may have all its bits set
 *     do te_words_peek(&v, here); while (!te_words_came(&v));
 *     te_words_idle(here);
 */
#ifndef TE_WORDS_H
#define TE_WORDS_H

#include "dtype.h" /* te_dtype, te_pair_of_floats */
#if !TE_CUDA
#include <sched.h> /* sched_yield */
#include <time.h>  /* timespec_get */
#endif

typedef struct te_words { uint32_t w[4]; } te_words;
enum { TE_WORDS = 16 }; /* bytes */
#define TE_WORD_IDLE 0xffffffffu

/* ---- memory that others write, too ------------------------------------------------------------------------------- */

/* Two stores, and two loads, of eight bytes, each of them whole; to and from the memory itself, past all caches of one
 * device alone (PTX ISA, relaxed at the scope of the system). */
TE_FN void te_words_send(void *to, const te_words *v) {
    const uint64_t low = v->w[0] | (uint64_t)v->w[1] << 32, high = v->w[2] | (uint64_t)v->w[3] << 32;
#if TE_CUDA
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(low), "l"(high));
#else
    __atomic_store_n((uint64_t *)to, low, __ATOMIC_RELEASE);
    __atomic_store_n((uint64_t *)to + 1, high, __ATOMIC_RELEASE);
#endif
}
TE_FN void te_words_peek(te_words *v, const void *from) {
    uint64_t low, high;
#if TE_CUDA
    asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(from));
#else
    low = __atomic_load_n((const uint64_t *)from, __ATOMIC_ACQUIRE);
    high = __atomic_load_n((const uint64_t *)from + 1, __ATOMIC_ACQUIRE);
#endif
    v->w[0] = (uint32_t)low, v->w[1] = (uint32_t)(low >> 32);
    v->w[2] = (uint32_t)high, v->w[3] = (uint32_t)(high >> 32);
}
TE_FN void te_words_idle(void *at) {
    const te_words idle = {{TE_WORD_IDLE, TE_WORD_IDLE, TE_WORD_IDLE, TE_WORD_IDLE}};
    te_words_send(at, &idle);
}
/* The same with the first eight bytes. */
TE_FN void te_words_send8(void *to, const te_words *v) {
    const uint64_t low = v->w[0] | (uint64_t)v->w[1] << 32;
#if TE_CUDA
    asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(to), "l"(low));
#else
    __atomic_store_n((uint64_t *)to, low, __ATOMIC_RELEASE);
#endif
}
TE_FN void te_words_peek8(te_words *v, const void *from) {
    uint64_t low;
#if TE_CUDA
    asm volatile("ld.relaxed.sys.global.b64 %0, [%1];" : "=l"(low) : "l"(from));
#else
    low = __atomic_load_n((const uint64_t *)from, __ATOMIC_ACQUIRE);
#endif
    v->w[0] = (uint32_t)low, v->w[1] = (uint32_t)(low >> 32), v->w[2] = v->w[3] = 0;
}
/* One word that others write, too. */
TE_FN uint32_t te_word_peek(const uint32_t *from) {
#if TE_CUDA
    return *(const volatile uint32_t *)from;
#else
    return __atomic_load_n(from, __ATOMIC_RELAXED);
#endif
}
TE_FN void te_word_send(uint32_t *to, uint32_t v) {
#if TE_CUDA
    *(volatile uint32_t *)to = v;
#else
    __atomic_store_n(to, v, __ATOMIC_RELAXED);
#endif
}
TE_API uint32_t te_word_read(const uint32_t *from) { return __atomic_load_n(from, __ATOMIC_RELAXED); } /* the host */
/* Nanoseconds, of a clock that goes on while this one waits; lets others run. */
TE_FN uint64_t te_words_clock(void) {
    uint64_t now;
#if TE_CUDA
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
#else
    struct timespec t;
    (void)timespec_get(&t, TIME_UTC);
    (void)sched_yield();
    now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
#endif
    return now;
}

/* ---- numbers: any word but the idle one -------------------------------------------------------------------------- */

/* In each of the formats a word of set bits is NaNs. They become others. */
TE_FN void te_words_mark(te_words *v) {
    TE_UNROLL for (int i = 0; i < 4; i++) if (v->w[i] == TE_WORD_IDLE) v->w[i] = 0xfffefffeu;
}
/* Of e4m3, where they are NaNs as well. */
TE_FN void te_words_mark_fp8(te_words *v) {
    TE_UNROLL for (int i = 0; i < 2; i++) if (v->w[i] == TE_WORD_IDLE) v->w[i] = 0x7f7f7f7fu;
}
TE_FN int te_words_came(const te_words *v) {
    return (v->w[0] != TE_WORD_IDLE) & (v->w[1] != TE_WORD_IDLE) & (v->w[2] != TE_WORD_IDLE) &
           (v->w[3] != TE_WORD_IDLE);
}
TE_BOTH int te_words_elements(te_dtype t) { return t == TE_f32 ? 4 : 8; }

/* sum (+)= v */
TE_FN void te_words_add(float sum[8], const te_words *v, te_dtype t, int add) {
    TE_UNROLL for (int i = 0; i < 4; i++) {
        const uint32_t w = v->w[i];
        if (t == TE_f32) {
            sum[i] = add ? sum[i] + te_float_of_bits(w) : te_float_of_bits(w);
        } else {
            const float low = t == TE_bf16 ? te_float_of_bits(w << 16) : te_float_of_f16((uint16_t)w),
                        high = t == TE_bf16 ? te_float_of_bits(w & 0xffff0000u) : te_float_of_f16((uint16_t)(w >> 16));
            sum[2 * i] = add ? sum[2 * i] + low : low, sum[2 * i + 1] = add ? sum[2 * i + 1] + high : high;
        }
    }
}
TE_FN void te_words_of(te_words *v, const float x[8], te_dtype t) {
    TE_UNROLL for (int i = 0; i < 4; i++) {
#if TE_CUDA
        v->w[i] = t == TE_f32 ? te_bits_of_float(x[i]) : te_pair_of_floats(x[2 * i], x[2 * i + 1], t);
#else
        const float low = x[2 * i], high = x[2 * i + 1];
        if (t == TE_f32) v->w[i] = te_bits_of_float(x[i]);
        else if (t == TE_bf16) v->w[i] = te_bf16_of_float(low) | (uint32_t)te_bf16_of_float(high) << 16;
        else v->w[i] = te_f16_of_float(low) | (uint32_t)te_f16_of_float(high) << 16;
#endif
    }
}

/* ---- bytes of a tensor ------------------------------------------------------------------------------------------- */

/* 16 bytes from byte `at` on, of which n exist; the rest reads as 0. n and the address are even. `whole`: n is 16, and
 * the address a multiple of it. */
TE_FN void te_words_load(te_words *v, const void *p, int64_t at, int n, int whole) {
    const char *from = (const char *)p + at;
#if TE_CUDA
    if (whole || (n == TE_WORDS && (uintptr_t)from % TE_WORDS == 0)) {
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v->w[0]), "=r"(v->w[1]), "=r"(v->w[2]), "=r"(v->w[3])
                     : "l"(from));
        return;
    }
#endif
    (void)whole;
    TE_UNROLL for (int i = 0; i < 4; i++) {
        uint16_t low = 0, high = 0;
        if (4 * i < n) memcpy(&low, from + 4 * i, 2);
        if (4 * i + 2 < n) memcpy(&high, from + 4 * i + 2, 2);
        v->w[i] = low | (uint32_t)high << 16;
    }
}
TE_FN void te_words_store(void *p, int64_t at, const te_words *v, int n, int whole) {
    char *to = (char *)p + at;
#if TE_CUDA
    if (whole || (n == TE_WORDS && (uintptr_t)to % TE_WORDS == 0)) {
        *(uint4 *)to = make_uint4(v->w[0], v->w[1], v->w[2], v->w[3]);
        return;
    }
#endif
    (void)whole;
    TE_UNROLL for (int i = 0; i < 4; i++) {
        const uint16_t low = (uint16_t)v->w[i], high = (uint16_t)(v->w[i] >> 16);
        if (4 * i < n) memcpy(to + 4 * i, &low, 2);
        if (4 * i + 2 < n) memcpy(to + 4 * i + 2, &high, 2);
    }
}

/* The same with the first eight bytes. */
TE_FN void te_words_load8(te_words *v, const void *p, int64_t at, int n, int whole) {
    const char *from = (const char *)p + at;
    v->w[0] = v->w[1] = 0;
#if TE_CUDA
    if (whole || (n == 8 && (uintptr_t)from % 8 == 0)) {
        asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v->w[0]), "=r"(v->w[1]) : "l"(from));
        return;
    }
#endif
    (void)whole;
    TE_UNROLL for (int i = 0; i < 4; i++) {
        uint16_t h = 0;
        if (2 * i < n) memcpy(&h, from + 2 * i, 2);
        v->w[i / 2] |= (uint32_t)h << 16 * (i % 2);
    }
}
TE_FN void te_words_store8(void *p, int64_t at, const te_words *v, int n, int whole) {
    char *to = (char *)p + at;
#if TE_CUDA
    if (whole || (n == 8 && (uintptr_t)to % 8 == 0)) {
        *(uint2 *)to = make_uint2(v->w[0], v->w[1]);
        return;
    }
#endif
    (void)whole;
    TE_UNROLL for (int i = 0; i < 4; i++) {
        const uint16_t h = (uint16_t)(v->w[i / 2] >> 16 * (i % 2));
        if (2 * i < n) memcpy(to + 2 * i, &h, 2);
    }
}

#endif
