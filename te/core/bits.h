/* bits.h -- a float as its 32 bits, and back. */
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

#endif
