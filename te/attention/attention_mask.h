/* attention_mask.h -- which keys a query sees. Every attention kernel of every target, forward and backward, asks here
 * and nowhere else.
 *
 * The keys that a query sees are a run without gaps, and as the query moves on neither end of that run moves back. So
 * the queries that see a key are such a run too. te__attn_keys_end and te__attn_queries_first say what the mask is; all
 * else follows from them. A mask that also hides what lies far back adds where a query's keys begin and where a key's
 * queries end; the kernels read all four ends of a te__attn_span as it is.
 *
 * Do this, in a kernel that keeps `rows` queries and walks their keys in tiles (with te__attn_queries_of and
 * te__attn_seen the other way round):
 *     const te__attn_mask m = te__attn_mask_of(seq, CAUSAL); // a constant causal folds
 *     const te__attn_span keys = te__attn_keys_of(m, query, rows), tiles = te__attn_in_tiles(keys, TILE);
 *     for (int i = tiles.first; i < tiles.end; i++)
 *         if (te__attn_cuts(keys, i * TILE, TILE)) ... score = te__attn_sees(m, query, key) ? score : -INFINITY
 *
 * Tiles reach past the sequence. No query sees the keys there, and te__attn_seen is not to be asked about them. Queries
 * past the sequence see keys, and it is for the kernel to make nothing of them.
 */
#ifndef TE_ATTENTION_MASK_H
#define TE_ATTENTION_MASK_H

#include "../core/base.h" /* TE_BOTH */

typedef struct te__attn_mask {
    int seq;    /* queries, and keys */
    int causal; /* a query sees the keys up to its own position */
} te__attn_mask;

/* The tokens that go with a run of tokens of the other side. */
typedef struct te__attn_span {
    int first, end;         /* with one of the run at least: of all others nothing is seen */
    int all_first, all_end; /* with all of the run; empty if all_end <= all_first */
} te__attn_span;

TE_BOTH te__attn_mask te__attn_mask_of(int seq, int causal) {
    te__attn_mask m;
    m.seq = seq, m.causal = causal;
    return m;
}
/* Whether later queries see more keys. Then kernels take the last queries first, and the short rows fill the end. */
TE_BOTH int te__attn_grows(te__attn_mask m) { return m.causal; }

/* Whether queries differ in the keys that they see. If not, all tiles of keys go with all queries. */
TE_BOTH int te__attn_differs(te__attn_mask m) { return m.causal; }

/* Where the keys of a query end. */
TE_BOTH int te__attn_keys_end(te__attn_mask m, int query) {
    return m.causal && query + 1 < m.seq ? query + 1 : m.seq;
}
/* The first query that sees a key. */
TE_BOTH int te__attn_queries_first(te__attn_mask m, int key) { return m.causal ? key : 0; }

/* The keys that go with `count` queries from `query` on. */
TE_BOTH te__attn_span te__attn_keys_of(te__attn_mask m, int query, int count) {
    te__attn_span s;
    s.first = s.all_first = 0;
    s.end = te__attn_keys_end(m, query + count - 1), s.all_end = te__attn_keys_end(m, query);
    return s;
}
/* The queries that go with `count` keys from `key` on. */
TE_BOTH te__attn_span te__attn_queries_of(te__attn_mask m, int key, int count) {
    te__attn_span s;
    s.first = te__attn_queries_first(m, key), s.all_first = te__attn_queries_first(m, key + count - 1);
    s.end = s.all_end = m.seq;
    return s;
}
/* Tiles of `size` tokens: those with a token of the span, and those that lie in it as a whole. */
TE_BOTH te__attn_span te__attn_in_tiles(te__attn_span s, int size) {
    te__attn_span t;
    t.first = s.first / size, t.end = (s.end + size - 1) / size;
    t.all_first = (s.all_first + size - 1) / size, t.all_end = s.all_end / size;
    return t;
}
/* Tokens are not negative, and nothing is left of this where `first` is the constant 0. */
TE_BOTH int te__attn_is_from(int first, int at) { return first <= 0 || at >= first; }
/* Whether `count` tokens from `at` on have one of the span. */
TE_BOTH int te__attn_meets(te__attn_span s, int at, int count) {
    return at < s.end && te__attn_is_from(s.first, at + count - 1);
}
/* Whether some of them are hidden from some of the run: then each pair is asked about. */
TE_BOTH int te__attn_cuts(te__attn_span s, int at, int count) {
    return at + count > s.all_end || !te__attn_is_from(s.all_first, at);
}

/* Whether a query sees a key, where one thread has few queries and many keys. */
TE_BOTH int te__attn_sees(te__attn_mask m, int query, int key) { return key < te__attn_keys_end(m, query); }
/* The same for a key of the sequence, where one thread has few keys and many queries. */
TE_BOTH int te__attn_seen(te__attn_mask m, int key, int query) {
    return !te__attn_differs(m) || query >= te__attn_queries_first(m, key);
}

#endif
