/* philox.h -- Philox4x32-7, a counter-based random number generator, whose results are bitwise identical on CUDA and on
 * the host. The header also has the threshold and the factor of dropout.
 *
 * Do this:
 *     uint32_t r[4];
 *     te_philox(r, seed, index, stream, offset);     // four random words of this index, no state
 *
 * Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Philox4x32-7 has seven rounds, the smallest
 * number with which it passes the statistical tests of BigCrush.
 */
#ifndef TE_PHILOX_H
#define TE_PHILOX_H

#include "base.h" /* TE_BOTH */

/* The random state, in target memory: a seed and an offset. Each forward pass that needs random numbers reads the
 * offset and then increments it, so that every pass draws other numbers. */
typedef struct te_rng {
    uint64_t seed, offset;
} te_rng;

/* Compute four random 32-bit words, `out`, from a counter and a key. The counter is (index, stream, low half of
 * offset); the key is the seed xor the high half of the offset. index: the position in a tensor. stream: a number that
 * differs between tensors. offset: a number that differs between passes (te_rng). */
TE_BOTH void te_philox(uint32_t out[4], uint64_t seed, uint64_t index, uint32_t stream, uint64_t offset) {
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = stream, c3 = (uint32_t)offset;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32) ^ (uint32_t)(offset >> 32);
    TE_UNROLL for (int round = 0; round < 7; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, c1 = (uint32_t)p1, c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1, c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* Dropout with probability p draws a 16-bit integer for each element. The element is dropped if this integer is below
 * TE_DROPOUT_LIMIT(p), else multiplied by TE_DROPOUT_FACTOR(p). The limit is p in units of 2^-16, rounded, and at most
 * 65535. The factor is 1 / (1 - p) for this rounded p. */
#define TE_DROPOUT_LIMIT(p) ((p) * 65536.0f + 0.5f < 65535.0f ? (uint32_t)((p) * 65536.0f + 0.5f) : 65535u)
#define TE_DROPOUT_FACTOR(p) (65536.0f / (65536.0f - (float)TE_DROPOUT_LIMIT(p)))

/* Convert 32 random bits to a number that is uniform in (0, 1), both ends excluded. Only 23 of the bits are used: with
 * 24 bits, the largest integer plus 0.5 would be rounded up, and the result would be 1. */
TE_BOTH float te_uniform(uint32_t u) { return ((float)(u >> 9) + 0.5f) * (1.0f / 8388608.0f); }

#endif
