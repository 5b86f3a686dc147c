/* checksum.h -- a 64-bit checksum of bytes that come in parts, for checkpoints and for training data.
 *
 * Do this:
 *     te_checksum sum = te_checksum_begin();
 *     te_checksum_add(&sum, text, bytes);              // for each part; the sum does not depend on the parts' sizes
 *     uint64_t result = te_checksum_end(&sum);
 *
 * The input is a sequence of 8-byte words. Four 64-bit states, called lanes, take the words in turn: for each word, a
 * lane replaces its state x by rotate((x ^ word) * odd), where `odd` is an odd constant. Every step is invertible, and
 * so is the combination of the lanes at the end. Therefore two inputs of the same length that differ in only one word,
 * for instance by one bit, always have different sums. Any other two inputs have the same sum with a probability of
 * 2^-64. The checksum does not protect against somebody who deliberately constructs two inputs with the same sum.
 */
#ifndef TE_CHECKSUM_H
#define TE_CHECKSUM_H

#include "../core/base.h" /* TE_API, memcpy */

enum { TE_CHECKSUM_PART = 32 }; /* the number of bytes that the four lanes process at a time */

typedef struct te_checksum {
    uint64_t lane[4], bytes;
    unsigned char rest[TE_CHECKSUM_PART]; /* the last (bytes % 32) bytes of the input so far, which wait until there are
                                           * 32 */
} te_checksum;

/* Return the new state of one of the checksum's four lanes after an 8-byte word. x: the lane's state before the word.
 * The factor is an odd constant of xxHash64 (Collet), whose bits have no repeating pattern. */
TE_API uint64_t te__checksum_step(uint64_t x, uint64_t word) {
    x = (x ^ word) * UINT64_C(0x9E3779B185EBCA87);
    return x << 31 | x >> 33;
}
TE_API te_checksum te_checksum_begin(void) {
    te_checksum s;
    memset(&s, 0, sizeof s);
    for (int i = 0; i < 4; i++) s.lane[i] = (uint64_t)(i + 1) * UINT64_C(0xC2B2AE3D27D4EB4F);
    return s;
}
TE_API void te__checksum_parts(te_checksum *s, const unsigned char *p, size_t parts) {
    uint64_t a = s->lane[0], b = s->lane[1], c = s->lane[2], d = s->lane[3], w[4];
    for (; parts; parts--, p += TE_CHECKSUM_PART) {
        memcpy(w, p, sizeof w);
        a = te__checksum_step(a, w[0]), b = te__checksum_step(b, w[1]);
        c = te__checksum_step(c, w[2]), d = te__checksum_step(d, w[3]);
    }
    s->lane[0] = a, s->lane[1] = b, s->lane[2] = c, s->lane[3] = d;
}
TE_API void te_checksum_add(te_checksum *s, const void *bytes, size_t n) {
    const unsigned char *p = (const unsigned char *)bytes;
    const size_t had = (size_t)(s->bytes % TE_CHECKSUM_PART);
    s->bytes += n;
    if (had) {
        const size_t take = n < TE_CHECKSUM_PART - had ? n : TE_CHECKSUM_PART - had;
        memcpy(s->rest + had, p, take), p += take, n -= take;
        if (had + take < TE_CHECKSUM_PART) return;
        te__checksum_parts(s, s->rest, 1);
    }
    te__checksum_parts(s, p, n / TE_CHECKSUM_PART);
    if (n % TE_CHECKSUM_PART) memcpy(s->rest, p + n / TE_CHECKSUM_PART * TE_CHECKSUM_PART, n % TE_CHECKSUM_PART);
}
TE_API uint64_t te_checksum_end(const te_checksum *s) {
    te_checksum t = *s;
    const size_t had = (size_t)(t.bytes % TE_CHECKSUM_PART);
    uint64_t sum = t.bytes;
    if (had) memset(t.rest + had, 0, TE_CHECKSUM_PART - had), te__checksum_parts(&t, t.rest, 1);
    for (int i = 0; i < 4; i++) sum = te__checksum_step(sum, t.lane[i]);
    return sum ^ sum >> 29;
}

#endif
