/* bits.h -- a float as its 32 bits, and back; bytes of words turned. */
#ifndef TE_BITS_H
#define TE_BITS_H

#include "base.h" /* TE_BOTH */

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

/* 4 x 4 bytes: byte i of t[j] is byte j of r[i]. */
TE_FN void te_turn_bytes(uint32_t t[4], const uint32_t r[4]) {
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

#endif
