/* peer_packet.h -- packets: messages of 16 bytes that a rank stores directly into the memory of another rank, the
 * receiver. The receiver polls its own memory until the packet has arrived.
 *
 * As long as no packet has arrived, all bits of a packet's memory are set. A 32-bit word with any other value is data,
 * so a packet needs no flag and no fence. (NCCL's LL protocol and Lamport's flags use the same idea; here a sentinel
 * value takes the place of the flag.) After reading a packet, the receiver sets all bits of the packet's memory, to
 * prepare it for the next packet.
 *
 * Do this:
 *     te_packet_send(there, &v);            // te_packet_escape first, if a word of v may have all bits set
 *     do te_packet_poll(&v, here); while (!te_packet_arrived(&v));
 *     te_packet_clear(here);
 */
#ifndef TE_PEER_PACKET_H
#define TE_PEER_PACKET_H

#include "../dtype.h" /* te_dtype, te_pair_of_floats */

#if !TE_CUDA
#include <sched.h> /* sched_yield */
#include <time.h>  /* timespec_get */
#endif

typedef struct te_packet { uint32_t w[4]; } te_packet;
enum { TE_PACKET_BYTES = 16 };
#define TE_PACKET_EMPTY 0xffffffffu /* the value that each 32-bit word of a packet's memory has while no data has
                                     * arrived */

/* ---- memory that other ranks write ------------------------------------------------------------------------------- */

/* Store a packet to memory of another rank. Each half of eight bytes is stored atomically, but the whole packet is not.
 * On CUDA the stores are relaxed at system scope (PTX ISA), so the stores are coherent between devices. */
TE_FN void te_packet_send(void *to, const te_packet *v) {
    const uint64_t low = v->w[0] | (uint64_t)v->w[1] << 32, high = v->w[2] | (uint64_t)v->w[3] << 32;
#if TE_CUDA
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(low), "l"(high));
#else
    __atomic_store_n((uint64_t *)to, low, __ATOMIC_RELEASE);
    __atomic_store_n((uint64_t *)to + 1, high, __ATOMIC_RELEASE);
#endif
}
/* Load a packet from memory that another rank writes. Each half of eight bytes is loaded atomically. On CUDA the loads
 * are relaxed at system scope. */
TE_FN void te_packet_poll(te_packet *v, const void *from) {
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
/* Set all bits of the packet's memory, so that the next packet can arrive there. */
TE_FN void te_packet_clear(void *at) {
    const te_packet empty = {{TE_PACKET_EMPTY, TE_PACKET_EMPTY, TE_PACKET_EMPTY, TE_PACKET_EMPTY}};
    te_packet_send(at, &empty);
}
/* Store a packet as te_packet_send does, but only its first eight bytes, for a packet that uses no other bytes. */
TE_FN void te_packet_send8(void *to, const te_packet *v) {
    const uint64_t low = v->w[0] | (uint64_t)v->w[1] << 32;
#if TE_CUDA
    asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(to), "l"(low));
#else
    __atomic_store_n((uint64_t *)to, low, __ATOMIC_RELEASE);
#endif
}
/* Load a packet as te_packet_poll does, but only its first eight bytes, for a packet that uses no other bytes. */
TE_FN void te_packet_poll8(te_packet *v, const void *from) {
    uint64_t low;
#if TE_CUDA
    asm volatile("ld.relaxed.sys.global.b64 %0, [%1];" : "=l"(low) : "l"(from));
#else
    low = __atomic_load_n((const uint64_t *)from, __ATOMIC_ACQUIRE);
#endif
    v->w[0] = (uint32_t)low, v->w[1] = (uint32_t)(low >> 32), v->w[2] = v->w[3] = 0;
}
/* Load a 32-bit word that other threads or ranks may store at the same time (te_flag_store). */
TE_FN uint32_t te_flag_load(const uint32_t *from) {
#if TE_CUDA
    return *(const volatile uint32_t *)from;
#else
    return __atomic_load_n(from, __ATOMIC_RELAXED);
#endif
}
TE_FN void te_flag_store(uint32_t *to, uint32_t v) {
#if TE_CUDA
    *(volatile uint32_t *)to = v;
#else
    __atomic_store_n(to, v, __ATOMIC_RELAXED);
#endif
}
/* Load a 32-bit word as te_flag_load does, but in host code, from memory that the host can read. */
TE_API uint32_t te__flag_load_on_host(const uint32_t *from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
/* Return the time in nanoseconds, for timeouts. On the host the function also yields the processor to other threads,
 * because te_nanoseconds is called in loops that wait. */
TE_FN uint64_t te_nanoseconds(void) {
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

/* ---- packets of numbers ------------------------------------------------------------------------------------------ */

/* Replace each word of the packet's data that equals TE_PACKET_EMPTY by another value, because a receiver would take
 * the word for missing data. Such a word is one NaN in f32, or two NaNs in bf16 or f16; the value that replaces it also
 * consists of NaNs. */
TE_FN void te_packet_escape(te_packet *v) {
    TE_UNROLL for (int i = 0; i < 4; i++) if (v->w[i] == TE_PACKET_EMPTY) v->w[i] = 0xfffefffeu;
}
/* Replace words that equal TE_PACKET_EMPTY as te_packet_escape does, for a packet of eight e4m3 numbers. In e4m3, such
 * a word is four NaNs. */
TE_FN void te_packet_escape_fp8(te_packet *v) {
    TE_UNROLL for (int i = 0; i < 2; i++) if (v->w[i] == TE_PACKET_EMPTY) v->w[i] = 0x7f7f7f7fu;
}
TE_FN int te_packet_arrived(const te_packet *v) {
    return (v->w[0] != TE_PACKET_EMPTY) & (v->w[1] != TE_PACKET_EMPTY) & (v->w[2] != TE_PACKET_EMPTY) &
           (v->w[3] != TE_PACKET_EMPTY);
}
/* Return how many numbers of format t (f32, bf16 or f16) a packet holds. */
TE_BOTH int te_packet_elements(te_dtype t) { return t == TE_f32 ? 4 : 8; }

/* If `add` is 1, add the numbers in packet *v to `sum`; if `add` is 0, store them in `sum`. `t` is the format of the
 * numbers. */
TE_FN void te_packet_add(float sum[8], const te_packet *v, te_dtype t, int add) {
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
/* Make a packet of four numbers in f32, or of eight numbers in bf16 or f16. */
TE_FN void te_packet_of_floats(te_packet *v, const float x[8], te_dtype t) {
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

/* ---- packets to and from a tensor -------------------------------------------------------------------------------- */

/* Load n bytes, at most 16, from byte offset `at` of p into the first n bytes of *v, and set the other bytes of *v to
 * 0. n and the address must be even. `aligned` must be 1 if n is 16 and the address is a multiple of 16, else 0. */
TE_FN void te_packet_load(te_packet *v, const void *p, int64_t at, int n, int aligned) {
    const char *from = (const char *)p + at;
#if TE_CUDA
    if (aligned || (n == TE_PACKET_BYTES && (uintptr_t)from % TE_PACKET_BYTES == 0)) {
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v->w[0]), "=r"(v->w[1]), "=r"(v->w[2]), "=r"(v->w[3])
                     : "l"(from));
        return;
    }
#endif
    (void)aligned;
    TE_UNROLL for (int i = 0; i < 4; i++) {
        uint16_t low = 0, high = 0;
        if (4 * i < n) memcpy(&low, from + 4 * i, 2);
        if (4 * i + 2 < n) memcpy(&high, from + 4 * i + 2, 2);
        v->w[i] = low | (uint32_t)high << 16;
    }
}
/* Store the first n bytes of *v to byte offset `at` of p. n and the address must be even. `aligned` must be 1 if n is
 * 16 and the address is a multiple of 16, else 0. */
TE_FN void te_packet_store(void *p, int64_t at, const te_packet *v, int n, int aligned) {
    char *to = (char *)p + at;
#if TE_CUDA
    if (aligned || (n == TE_PACKET_BYTES && (uintptr_t)to % TE_PACKET_BYTES == 0)) {
        *(uint4 *)to = make_uint4(v->w[0], v->w[1], v->w[2], v->w[3]);
        return;
    }
#endif
    (void)aligned;
    TE_UNROLL for (int i = 0; i < 4; i++) {
        const uint16_t low = (uint16_t)v->w[i], high = (uint16_t)(v->w[i] >> 16);
        if (4 * i < n) memcpy(to + 4 * i, &low, 2);
        if (4 * i + 2 < n) memcpy(to + 4 * i + 2, &high, 2);
    }
}

/* Load a packet as te_packet_load does, for a packet that uses only its first eight bytes. `aligned` must be 1 if n is
 * 8 and the address is a multiple of 8, else 0. */
TE_FN void te_packet_load8(te_packet *v, const void *p, int64_t at, int n, int aligned) {
    const char *from = (const char *)p + at;
    v->w[0] = v->w[1] = 0;
#if TE_CUDA
    if (aligned || (n == 8 && (uintptr_t)from % 8 == 0)) {
        asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v->w[0]), "=r"(v->w[1]) : "l"(from));
        return;
    }
#endif
    (void)aligned;
    TE_UNROLL for (int i = 0; i < 4; i++) {
        uint16_t h = 0;
        if (2 * i < n) memcpy(&h, from + 2 * i, 2);
        v->w[i / 2] |= (uint32_t)h << 16 * (i % 2);
    }
}
/* Store a packet as te_packet_store does, for a packet that uses only its first eight bytes. */
TE_FN void te_packet_store8(void *p, int64_t at, const te_packet *v, int n, int aligned) {
    char *to = (char *)p + at;
#if TE_CUDA
    if (aligned || (n == 8 && (uintptr_t)to % 8 == 0)) {
        *(uint2 *)to = make_uint2(v->w[0], v->w[1]);
        return;
    }
#endif
    (void)aligned;
    TE_UNROLL for (int i = 0; i < 4; i++) {
        const uint16_t h = (uint16_t)(v->w[i / 2] >> 16 * (i % 2));
        if (2 * i < n) memcpy(to + 2 * i, &h, 2);
    }
}

#endif
