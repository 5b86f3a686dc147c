/* attention_mask.h -- which keys a query sees. Every attention kernel of every target, forward and backward, asks here
 * and nowhere else.
 *
 * The keys that a query sees are a run without gaps, and as the query moves on neither end of that run moves back. So
 * the queries that see a key are such a run too. Query i sees key j if i - left <= j <= i + right, which
 * is the sliding window of Beltagy et al. 2020 (Longformer) and Jiang et al. 2023 (Mistral); causal is right = 0. Where
 * a query's keys and a key's queries begin and end is all that says what the mask is.
 *
 * Where queries and keys differ in number, the last query stands beside the last key: query i has the position
 * i + shift among the keys, shift = keys - queries, and sees key j if i + shift - left <= j <= i + shift + right. With
 * more queries than keys the first ones may see nothing: their run is empty.
 *
 * Do this, in a kernel that keeps `rows` queries and walks their keys in tiles (with te__attn_queries_of and
 * te__attn_seen the other way round):
 *     const te__attn_mask m = te__attn_mask_of(seq, LEFT, RIGHT); // constants fold
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

enum {
    TE_ATTENTION_ALL = -1, /* of left or right: no bound on this side */
    TE_ATTENTION_MAX_SEQ = 1 << 20
};
typedef struct te__attn_mask {
    int queries, keys;
    int left, right; /* a query sees so many keys before its own position, and behind it; or TE_ATTENTION_ALL */
    int shift;       /* keys - queries; the constant 0 where there are as many of both, of which nothing is left then */
} te__attn_mask;

/* The tokens that go with a run of tokens of the other side. */
typedef struct te__attn_span {
    int first, end;         /* with one of the run at least: of all others nothing is seen */
    int all_first, all_end; /* with all of the run; empty if all_end <= all_first */
} te__attn_span;

TE_BOTH te__attn_mask te__attn_mask_of(int seq, int left, int right) {
    te__attn_mask m;
    m.queries = m.keys = seq, m.left = left, m.right = right, m.shift = 0;
    return m;
}
TE_BOTH te__attn_mask te__attn_mask_between(int queries, int keys, int left, int right) {
    te__attn_mask m;
    m.queries = queries, m.keys = keys, m.left = left, m.right = right, m.shift = keys - queries;
    return m;
}
/* Whether later queries see more keys: no longer so once a window is full, but the first queries remain the shortest.
 * Then kernels take the last queries first, and the short rows fill the end. */
TE_BOTH int te__attn_grows(te__attn_mask m) { return m.right >= 0; }

/* Whether queries differ in the keys that they see. If not, all tiles of keys go with all queries. */
TE_BOTH int te__attn_differs(te__attn_mask m) { return m.left >= 0 || m.right >= 0; }

/* From a token so many back, but not before the first; and so many on, as the end of a run of `seq` tokens. Neither if
 * it is all. The token lies before the first or behind the last one where there is a shift. */
TE_BOTH int te__attn_back(int token, int count) {
    return count < 0 || token - count < 0 ? 0 : token - count;
}
TE_BOTH int te__attn_on(int token, int count, int seq) {
    return count >= 0 && token + count + 1 < seq ? token + count + 1 : seq;
}
TE_BOTH int te__attn_end(te__attn_mask m, int end) { return m.shift && end < 0 ? 0 : end; }
/* The first key that a query sees, and where its keys end. */
TE_BOTH int te__attn_keys_first(te__attn_mask m, int query) { return te__attn_back(query + m.shift, m.left); }
TE_BOTH int te__attn_keys_end(te__attn_mask m, int query) {
    return te__attn_end(m, te__attn_on(query + m.shift, m.right, m.keys));
}
/* The first query that sees a key, and where its queries end. A token is not negative, so nothing is left of the first
 * where right is 0. */
TE_BOTH int te__attn_queries_first(te__attn_mask m, int key) {
    return m.right || m.shift ? te__attn_back(key - m.shift, m.right) : key;
}
TE_BOTH int te__attn_queries_end(te__attn_mask m, int key) {
    return te__attn_end(m, te__attn_on(key - m.shift, m.left, m.queries));
}

/* The keys that go with `count` queries from `query` on. */
TE_BOTH te__attn_span te__attn_keys_of(te__attn_mask m, int query, int count) {
    te__attn_span s;
    s.first = te__attn_keys_first(m, query), s.all_first = te__attn_keys_first(m, query + count - 1);
    s.end = te__attn_keys_end(m, query + count - 1), s.all_end = te__attn_keys_end(m, query);
    return s;
}
/* The queries that go with `count` keys from `key` on. */
TE_BOTH te__attn_span te__attn_queries_of(te__attn_mask m, int key, int count) {
    te__attn_span s;
    s.first = te__attn_queries_first(m, key), s.all_first = te__attn_queries_first(m, key + count - 1);
    s.end = te__attn_queries_end(m, key + count - 1), s.all_end = te__attn_queries_end(m, key);
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
TE_BOTH int te__attn_sees(te__attn_mask m, int query, int key) {
    return key < te__attn_keys_end(m, query) && te__attn_is_from(te__attn_keys_first(m, query), key);
}
/* The same for a key of the sequence, where one thread has few keys and many queries. */
TE_BOTH int te__attn_seen(te__attn_mask m, int key, int query) {
    return (m.right < 0 || query >= te__attn_queries_first(m, key)) &&
           (m.left < 0 || query < te__attn_queries_end(m, key));
}

#endif
