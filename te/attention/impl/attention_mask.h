/* attention_mask.h -- the attention mask: which keys a query sees. All attention kernels of all targets, forward and
 * backward, use these functions.
 *
 * Query i sees key j if i - left <= j <= i + right: the sliding window of Beltagy et al. 2020 (Longformer) and Jiang et
 * al. 2023 (Mistral); a causal mask has right = 0. Hence the keys that a query sees are one contiguous range, and from
 * one query to the next neither end of this range decreases. The queries that see a key are a contiguous range, too.
 * The ends of these ranges define the mask completely.
 *
 * If queries and keys differ in number (cross-attention), the last query is at the position of the last key: query i
 * has the position i + shift among the keys, where shift = keys - queries, and sees key j if
 * i + shift - left <= j <= i + shift + right. With more queries than keys the first queries may see no key: their range
 * is empty.
 *
 * Do this, in a kernel that owns `rows` queries and loops over tiles of keys (a kernel that owns keys and loops over
 * queries uses te__attn_queries_of and te__attn_seen instead):
 *     const te__attn_mask m = te__attn_mask_of(seq, LEFT, RIGHT); // constants fold
 *     const te__attn_range keys = te__attn_keys_of(m, query, rows), tiles = te__attn_in_tiles(keys, TILE);
 *     for (int i = tiles.first; i < tiles.end; i++)
 *         if (te__attn_needs_mask(keys, i * TILE, TILE)) ... score = te__attn_sees(m, query, key) ? score : -INFINITY
 *
 * The last tile may extend past the end of the sequence. No query sees keys past the end, and te__attn_seen must not be
 * called for such keys. Queries past the end do see keys: the kernel must discard their results.
 */
#ifndef TE_ATTENTION_MASK_H
#define TE_ATTENTION_MASK_H

#include "../../core/base.h" /* TE_BOTH */

enum {
    TE_ATTENTION_ALL = -1, /* as `left` or `right` of a mask: no bound in this direction */
    TE_ATTENTION_MAX_SEQ = 1 << 20
};
typedef struct te__attn_mask {
    int queries, keys;
    /* how many keys before (left) and after (right) its own position a query sees, or TE_ATTENTION_ALL */
    int left, right;
    /* the number of keys minus the number of queries; in self-attention the constant 0, so that the compiler removes
     * the additions of `shift` */
    int shift;
} te__attn_mask;

/* Two ranges of tokens. For a block of queries: the keys that at least one of the queries sees, and the keys that all
 * of the queries see. For a block of keys: the queries that see at least one of the keys, and the queries that see all
 * of the keys. */
typedef struct te__attn_range {
    /* The tokens from `first` to `end` (exclusive): the keys that at least one query of the block sees or, for a block
     * of keys, the queries that see at least one of them. Kernels skip tiles outside this range. */
    int first, end;
    /* The tokens from `all_first` to `all_end` (exclusive): the keys that all queries of the block see or, for a block
     * of keys, the queries that see all of them. Tiles inside this range need no mask. The range is empty if
     * all_end <= all_first. */
    int all_first, all_end;
} te__attn_range;

/* Return the mask of a self-attention over `seq` tokens. */
TE_BOTH te__attn_mask te__attn_mask_of(int seq, int left, int right) {
    te__attn_mask m;
    m.queries = m.keys = seq, m.left = left, m.right = right, m.shift = 0;
    return m;
}
/* Return the mask of an attention whose queries and keys may differ in number. */
TE_BOTH te__attn_mask te__attn_mask_between(int queries, int keys, int left, int right) {
    te__attn_mask m;
    m.queries = queries, m.keys = keys, m.left = left, m.right = right, m.shift = keys - queries;
    return m;
}
/* Return whether later queries see more keys than earlier queries (with a bound on the left, this holds until the
 * window is full). If so, kernels process the last queries first: the blocks with the least work then run last, and all
 * multiprocessors finish at about the same time. */
TE_BOTH int te__attn_keys_grow(te__attn_mask m) { return m.right >= 0; }

/* Return whether the mask hides any key from any query. If not, every query sees every key. */
TE_BOTH int te__attn_has_mask(te__attn_mask m) { return m.left >= 0 || m.right >= 0; }

/* Returns the first of the `count` tokens before `token`, but at least 0. Returns 0 if count < 0 (no bound). */
TE_BOTH int te__attn_range_first(int token, int count) {
    return count < 0 || token - count < 0 ? 0 : token - count;
}
/* Returns one more than the index of the last of the `count` tokens after `token`, but at most seq. Returns seq if
 * count < 0 (no bound). If the mask has a shift, `token` may lie before the sequence, and the result may be negative;
 * te__attn_clamp_end replaces a negative result by 0. */
TE_BOTH int te__attn_range_end(int token, int count, int seq) {
    return count >= 0 && token + count + 1 < seq ? token + count + 1 : seq;
}
TE_BOTH int te__attn_clamp_end(te__attn_mask m, int end) { return m.shift && end < 0 ? 0 : end; }
/* Returns the first key that a query sees. */
TE_BOTH int te__attn_keys_first(te__attn_mask m, int query) { return te__attn_range_first(query + m.shift, m.left); }
/* Return one more than the last key that a query sees. */
TE_BOTH int te__attn_keys_end(te__attn_mask m, int query) {
    return te__attn_clamp_end(m, te__attn_range_end(query + m.shift, m.right, m.keys));
}
/* Return the first query that sees a key. With a causal mask and no shift, the first query is `key` itself, and no
 * comparison is needed. */
TE_BOTH int te__attn_queries_first(te__attn_mask m, int key) {
    return m.right || m.shift ? te__attn_range_first(key - m.shift, m.right) : key;
}
/* Return one more than the last query that sees a key. */
TE_BOTH int te__attn_queries_end(te__attn_mask m, int key) {
    return te__attn_clamp_end(m, te__attn_range_end(key - m.shift, m.left, m.queries));
}

/* Return the ranges of keys for the `count` queries from `query` on: the keys that at least one of these queries sees
 * (first, end), and the keys that all of them see (all_first, all_end). */
TE_BOTH te__attn_range te__attn_keys_of(te__attn_mask m, int query, int count) {
    te__attn_range s;
    s.first = te__attn_keys_first(m, query), s.all_first = te__attn_keys_first(m, query + count - 1);
    s.end = te__attn_keys_end(m, query + count - 1), s.all_end = te__attn_keys_end(m, query);
    return s;
}
/* Return the ranges of queries for the `count` keys from `key` on: the queries that see at least one of these keys
 * (first, end), and the queries that see all of them (all_first, all_end). */
TE_BOTH te__attn_range te__attn_queries_of(te__attn_mask m, int key, int count) {
    te__attn_range s;
    s.first = te__attn_queries_first(m, key), s.all_first = te__attn_queries_first(m, key + count - 1);
    s.end = te__attn_queries_end(m, key + count - 1), s.all_end = te__attn_queries_end(m, key);
    return s;
}
/* Converts both ranges of s from tokens to tiles of `size` tokens. first, end: the tiles that intersect the first
 * range; all_first, all_end: the tiles that lie completely inside the second range. */
TE_BOTH te__attn_range te__attn_in_tiles(te__attn_range s, int size) {
    te__attn_range t;
    t.first = s.first / size, t.end = (s.end + size - 1) / size;
    t.all_first = (s.all_first + size - 1) / size, t.all_end = s.all_end / size;
    return t;
}
/* Return whether at >= first. The test first <= 0 does not change the result, because `at` is never negative; the test
 * lets the compiler replace the call by 1 if `first` is the constant 0. */
TE_BOTH int te__attn_reaches(int first, int at) { return first <= 0 || at >= first; }
/* Return whether at least one of the `count` tokens from `at` on is in the range from s.first to s.end (exclusive). */
TE_BOTH int te__attn_intersects(te__attn_range s, int at, int count) {
    return at < s.end && te__attn_reaches(s.first, at + count - 1);
}
/* Returns whether a tile of scores needs the mask, i.e. whether a pair of a query and a key of the tile is masked. If s
 * is the result of te__attn_keys_of for the tile's queries, the tile's keys are the `count` keys from `at` on. If s is
 * the result of te__attn_queries_of for the tile's keys, the tile's queries are the `count` queries from `at` on. If
 * te__attn_in_tiles has converted s to tiles, `at` and `count` are in tiles, too. */
TE_BOTH int te__attn_needs_mask(te__attn_range s, int at, int count) {
    return at + count > s.all_end || !te__attn_reaches(s.all_first, at);
}

/* Return whether a query sees a key. In a thread that has few queries and many keys, this function is cheaper than
 * te__attn_seen, because the compiler moves the computation for each query out of the loop over keys. */
TE_BOTH int te__attn_sees(te__attn_mask m, int query, int key) {
    return key < te__attn_keys_end(m, query) && te__attn_reaches(te__attn_keys_first(m, query), key);
}
/* Return whether a query sees a key. The key must lie inside the sequence. This function is cheaper than te__attn_sees
 * in a thread that has few keys and many queries, because the compiler moves the computation for each key out of the
 * loop over queries. */
TE_BOTH int te__attn_seen(te__attn_mask m, int key, int query) {
    return (m.right < 0 || query >= te__attn_queries_first(m, key)) &&
           (m.left < 0 || query < te__attn_queries_end(m, key));
}

#endif
