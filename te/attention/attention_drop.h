/* attention_drop.h -- which probabilities dropout drops: Philox of (seed, draw, op; sequence, head, query, key), so
 * that every kernel of every target drops the same, backward makes the mask again, and nothing is stored.
 *
 * The words of a counter are for eight pairs: queries q and q + 8 of 16, and keys k, k + 8, k + 16 and k + 24 of 32. In
 * accumulators of the tensor cores, be they queries by keys or keys by queries, these are numbers of one thread.
 *
 * Do this, where scores are queries by keys:
 *     head = te__attn_head_of_all(whole, batch * heads + head, heads);
 *     te__attn_draw(word, rng, id, te__attn_draw_row(head, query, seq), query, key);
 *     if (te__attn_drops(word[key / 8 % 4], query / 8 % 2, limit)) p = 0;
 */
#ifndef TE_ATTENTION_DROP_H
#define TE_ATTENTION_DROP_H

#include "../core/philox.h" /* te_philox, TE_DROPOUT_LIMIT */

/* Where several ranks have heads or sequences of one computation: a call's heads among those of all, counted over the
 * sequences. Its first one is number `first`, and each sequence has `more` heads than the call has of it. */
typedef struct te_attn_whole { int first, more; } te_attn_whole;

/* head: counted over the sequences of a call, in which each has `heads`. Returns it counted over those of all ranks. */
TE_BOTH int te__attn_head_of_all(te_attn_whole w, int head, int heads) {
    return head + w.first + head / heads * w.more;
}
/* Which 16 queries of all heads a query is of. */
TE_BOTH uint32_t te__attn_draw_row(int head, int query, int seq) {
    return (uint32_t)head * ((uint32_t)(seq + 15) / 16) + (uint32_t)query / 16;
}
TE_BOTH void te__attn_draw(uint32_t word[4], te_rng rng, uint32_t id, uint32_t row, int query, int key) {
    const uint32_t in_row = (uint32_t)key / 32 * 64 + (uint32_t)query % 8 * 8 + (uint32_t)key % 8;
    te_philox(word, rng.seed, (uint64_t)row << 32 | in_row, id, rng.offset);
}
/* Whether 16 bits of a word are below the limit, 65536 p. */
TE_BOTH int te__attn_drops(uint32_t word, int high, uint32_t limit) {
    return (high ? word : word << 16) < limit << 16; /* the half in question is on top */
}
/* The same for one pair. */
TE_BOTH int te__attn_dropped(te_rng rng, uint32_t id, int head, int query, int key, int seq, uint32_t limit) {
    uint32_t word[4];
    te__attn_draw(word, rng, id, te__attn_draw_row(head, query, seq), query, key);
    const int w = key / 8 % 4;
    return te__attn_drops(w == 0 ? word[0] : w == 1 ? word[1] : w == 2 ? word[2] : word[3], query / 8 % 2, limit);
}

#endif
