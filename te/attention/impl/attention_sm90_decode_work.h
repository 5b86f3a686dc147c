/* attention_sm90_decode_work.h -- the work list of the decoding kernels (attention_sm90_decode.h): which keys each
 * sequence of a batch has, into which splits they are divided, and which block processes which splits.
 *
 * The queries of all query heads that share one KV head form tiles of 8 or 16 rows; each row is one query of one of
 * these heads. A group is such a tile together with the keys that it sees. These keys are divided into splits
 * (te__cache_split_shift). The items of the work list are the splits of all groups, ordered by sequence, then KV head,
 * then tile. Each block processes a contiguous range of the list; all ranges have about the same number of stages of 64
 * keys. (The kernels for caches of 8 bits and for latent vectors copy 128 or 32 keys at a time, but the list counts
 * stages of 64 keys for them, too.) Only the device knows the lengths of the sequences, so each block computes its
 * range itself.
 */
/* target: cuda */
#ifndef TE_ATTENTION_SM90_DECODE_WORK_H
#define TE_ATTENTION_SM90_DECODE_WORK_H

#include "../attention_options.h" /* te_attention_args, te__cache_split_shift */
#include "attention_mask.h"       /* te__attn_keys_of */
#include "attention_sm80_tiles.h" /* te__attn_widths, te__attn_kv_column */

enum {
    TE__DECODE_KEYS_SHIFT = 6,
    TE__DECODE_KEYS = 1 << TE__DECODE_KEYS_SHIFT, /* the number of keys of a stage in the work list */
    /* the largest number of sequences in a batch; it is limited because each block holds their lengths in shared
     * memory */
    TE__DECODE_MAX_SEQUENCES = 512,
    /* the size in bytes of the shared memory for the arrays of a te__decode_batch */
    TE__DECODE_BATCH_BYTES = (5 * (TE__DECODE_MAX_SEQUENCES + 1) + 32) * 4,
    /* TE__DECODE_WARPS: the number of consumer warps of a block; TE__DECODE_LATENT_WARPS: this number with the option
     * values_in_keys */
    TE__DECODE_WARPS = 4,
    TE__DECODE_LATENT_WARPS = 8
};
template <class F> TE_BOTH constexpr int te__decode_warps(void) {
    return F::VALUES_IN_KEYS ? (int)TE__DECODE_LATENT_WARPS : (int)TE__DECODE_WARPS;
}
/* Waits until all consumer warps of the block have called this function. */
template <int WARPS = TE__DECODE_WARPS> TE_FN void te__decode_consumers_sync(void) {
    asm volatile("bar.sync 1, %0;" ::"n"(WARPS * 32) : "memory");
}

/* The keys that at least one query of a range of consecutive queries of a sequence sees, and the splits that contain
 * these keys. A split is a range of 1 << shift keys, the unit of work of a block. */
struct te__decode_keys {
    int keys;  /* the number of keys of the sequence, including those of the new rows */
    int shift; /* a split has 1 << shift keys */
    te__attn_mask mask;
    te__attn_range seen;
    /* first: the index of the first split with a key that is seen; splits: the number of splits from this first split
     * to the last split with a key that is seen. If no key is seen, `splits` is 1, and this split is empty. */
    int first, splits;
};
/* Returns the keys that the `count` queries from `query` on see. queries: the number of new rows of the sequence; past:
 * how many tokens of the sequence were in the cache before the new rows, or -1 if the sequence does not fit in the
 * cache (te_attention_cache). */
template <class F>
TE_FN te__decode_keys te__decode_keys_of(int queries, int past, int query, int count) {
    te__decode_keys w;
    w.keys = past < 0 ? 0 : past + queries;
    w.mask = te__attn_mask_between(queries, w.keys, F::LEFT, F::RIGHT);
    w.seen = te__attn_keys_of(w.mask, query, count);
    if (w.seen.end > w.keys) w.seen.end = w.keys;
    w.shift = te__cache_split_shift(w.keys, F::VALUES_IN_KEYS);
    w.first = w.seen.first >> w.shift;
    w.splits = w.seen.end > w.seen.first ? ((w.seen.end - 1) >> w.shift) + 1 - w.first : 1;
    return w;
}

/* The sequences of a batch; the arrays are in the block's shared memory. A group of sequence i is a tile of queries of
 * one KV head, with its keys. All groups of sequence i have the same splits, namely the first_split[i + 1] -
 * first_split[i] splits that contain a key that at least one query of the sequence sees. These splits have
 * first_stage[i + 1] - first_stage[i] stages (of 64 keys). */
struct te__decode_batch {
    /* first_split: element i is the number of splits of one group of sequence 0, plus that of sequence 1, and so on up
     * to sequence i - 1; first_stage: the same for stages; first_row: the first row of a sequence; past: how many
     * tokens of a sequence were in the cache before its new rows; slot: the index of a sequence among those of the
     * cache. The first three arrays have count + 1 elements, the others count. */
    const int *first_split, *first_stage, *first_row, *past, *slot;
    /* count: the number of sequences; heads: the number of groups of a sequence, i.e. the number of KV heads times
     * `tiles` */
    int count, heads;
    /* tiles: the number of tiles of queries that one KV head of a sequence has; items: the number of splits of all
     * groups, i.e. the length of the work list */
    int tiles, items;
    /* longest: the largest number of new rows of a sequence that this kernel processes. beyond: how many rows this
     * kernel processes of a sequence with more new rows: `longest`, or 0 if another kernel processes such a sequence
     * (te_attention_cache.short_rows). */
    int longest, beyond;
    int values_in_keys; /* whether the attention has the option of this name, which changes the size of the splits */
    __device__ __forceinline__ int rows(int i) const {
        const int n = first_row[i + 1] - first_row[i];
        return n <= longest ? n : beyond;
    }
    /* Returns the sequence to which element `at` of a list belongs. The list is ordered by sequence, and the elements
     * of sequence i begin at heads * first[i]. */
    __device__ __forceinline__ int sequence_of(const int *first, int at) const {
        int low = 0, high = count;
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (first[middle] * heads <= at)
                low = middle;
            else
                high = middle;
        }
        return low;
    }
    /* Returns the number of the first item of block b in the work list (an item is one split of one group); the last
     * item of block b is begin(b + 1) - 1. The stages of all items are divided evenly among the blocks, and an item is
     * processed by the block that has the item's first stage. */
    __device__ __forceinline__ int begin(int b, int blocks) const {
        if (b == blocks) return items;
        const int all = first_stage[count] * heads, stage = all / blocks * b + all % blocks * b / blocks;
        const int i = sequence_of(first_stage, stage), in_sequence = stage - first_stage[i] * heads;
        const int stages = first_stage[i + 1] - first_stage[i], splits = first_split[i + 1] - first_split[i];
        if (stages <= 0) return first_split[i] * heads;
        const int keys = (past[i] < 0 ? 0 : past[i]) + rows(i);
        const int shift = te__cache_split_shift(keys, values_in_keys) - TE__DECODE_KEYS_SHIFT;
        const int head = in_sequence / stages, split = (in_sequence - head * stages + (1 << shift) - 1) >> shift;
        return first_split[i] * heads + head * splits + (split < splits ? split : splits);
    }
};
/* Fills the arrays of the batch at `memory`, TE__DECODE_BATCH_BYTES bytes of shared memory, and returns the batch.
 * Called by all threads of the block, possibly before te_kernel_wait: the function reads only data that te_cache_begin
 * has read or written, and that te_cache_begin has made visible (te__cache_begin). The function's loads bypass the L1,
 * because the L1 may still hold data of an earlier batch. */
template <int KV_HEADS, int GROUP, class F>
TE_FN te__decode_batch te__decode_batch_of(const te_attention_args *a, int *memory) {
    constexpr int LENGTH = TE__DECODE_MAX_SEQUENCES + 1;
    int *const first_split = memory, *const first_stage = memory + LENGTH, *const past = memory + 2 * LENGTH;
    int *const first_row = memory + 3 * LENGTH, *const slot = memory + 4 * LENGTH;
    /* for the prefix sum over the threads: the sums of each warp, [2, warps] */
    int *const warp_sums = memory + 5 * LENGTH;
    const int thread = (int)threadIdx.x, threads = (int)blockDim.x, lane = thread % 32, warp = thread / 32;
    const te_sequences s = te__attn_sequences(a);
    const int tiles = te__decode_tiles(a->seq, GROUP);
    const int heads = KV_HEADS * tiles;
    te__decode_batch n = {first_split, first_stage, first_row, past,   slot,
                          a->batch,    heads,       tiles,     0,      a->seq,
                          a->cache.short_rows ? 0 : a->seq,  F::VALUES_IN_KEYS};
    for (int i = thread; i <= n.count; i += threads) {
        const int row = !i ? 0 : s.first ? __ldcg(s.first + i) : i * s.max_seqlen;
        first_row[i] = row < 0 ? 0 : row > s.rows ? s.rows : row;
        if (i < n.count) past[i] = __ldcg(a->cache.past + i), slot[i] = __ldcg(a->cache.slot + i);
    }
    __syncthreads();
    const auto add = [&](int i, int(&sum)[2]) { /* adds the numbers of splits and stages of sequence i to sum */
                                                const int rows = n.rows(i);
                                                if (rows <= 0) return;
                                                const te__decode_keys w = te__decode_keys_of<F>(rows, past[i], 0, rows);
                                                const int first = w.first << (w.shift - TE__DECODE_KEYS_SHIFT);
                                                const int end = (w.seen.end + TE__DECODE_KEYS - 1) / TE__DECODE_KEYS;
                                                sum[0] += w.splits, sum[1] += end > first ? end - first : 1;
    };
    /* Each thread adds up the numbers of splits and of stages of consecutive sequences; a prefix sum over the threads
     * follows. */
    const int each = (n.count + threads - 1) / threads, from = thread * each;
    const int to = from + each < n.count ? from + each : n.count;
    int sum[2] = {0, 0}, before[2], total[2] = {0, 0};
    for (int i = from; i < to; i++) add(i, sum);
    TE_UNROLL for (int k = 0; k < 2; k++) {
        before[k] = sum[k];
        TE_UNROLL for (int o = 1; o < 32; o *= 2) {
            const int other = __shfl_up_sync(~0u, before[k], o);
            if (lane >= o) before[k] += other;
        }
        if (lane == 31) warp_sums[k * 16 + warp] = before[k];
        before[k] -= sum[k];
    }
    __syncthreads();
    for (int w = 0; w < threads / 32; w++) TE_UNROLL for (int k = 0; k < 2; k++) {
        if (w < warp) before[k] += warp_sums[k * 16 + w];
        total[k] += warp_sums[k * 16 + w];
    }
    for (int i = from; i < to; i++) first_split[i] = before[0], first_stage[i] = before[1], add(i, before);
    if (thread == 0) first_split[n.count] = total[0], first_stage[n.count] = total[1];
    __syncthreads();
    n.items = total[0] * n.heads;
    return n;
}

/* A group, i.e. a tile of queries of one KV head with the keys that it sees, and the range of its splits (ranges of
 * consecutive keys) that this block processes. */
struct te__decode_group : te__decode_keys {
    /* the indices of the sequence, of the KV head, and of the tile among the tiles of the KV head */
    int i, kv_head, tile;
    /* item: the index, in the work list, of the group's first item; count: the number of the group's items. The items
     * of the group are the splits first_split to first_split + count - 1 of the sequence. */
    int item, count;
    int first_split;
    /* first_row: the first row of the sequence among the rows of the batch; rows: the number of rows of the tile,
     * possibly 0 */
    int first_row, rows;
    /* the block processes the group's splits `from` to `to` - 1, counted from the group's first split */
    int from, to;
    int is_last;         /* 1 if this is the last group of the block */
    /* the index of the memory for the group's partial results (te__decode_slot_of) */
    int slot;
    const int32_t *pages; /* the page numbers of the sequence */
    /* Returns the first key to process in split number `at` of the group: the first key of the split or, if it is
     * larger, the first key that the tile's queries see, rounded down to a multiple of TE__DECODE_KEYS. */
    __device__ __forceinline__ int begin(int at) const {
        const int of_split = (first_split + at) << shift, of_tile = seen.first & -TE__DECODE_KEYS;
        return of_split > of_tile ? of_split : of_tile;
    }
    /* Returns the end of the keys to process in split number `at` of the group: the end of the split or, if it is
     * smaller, one more than the last key that the tile's queries see; 0 if the tile has no rows. */
    __device__ __forceinline__ int end(int at) const {
        const int of_split = (first_split + at + 1) << shift;
        return !rows ? 0 : seen.end < of_split ? seen.end : of_split;
    }
};
/* Completes a group whose members i, kv_head, tile and item are set: computes its keys, count, first_split, first_row
 * and rows. */
template <int GROUP, class F>
TE_FN void te__decode_complete(te__decode_group &g, const te__decode_batch &n) {
    constexpr int ROWS = TE__DECODE_TILE_ROWS(GROUP);
    const int queries = n.rows(g.i), row = g.tile * ROWS, left = queries * GROUP - row, past = n.past[g.i];
    g.count = n.first_split[g.i + 1] - n.first_split[g.i], g.first_row = n.first_row[g.i];
    g.rows = left < 0 ? 0 : left < ROWS ? left : ROWS;
    static_cast<te__decode_keys &>(g) = te__decode_keys_of<F>(queries, past, 0, queries);
    g.first_split = g.first;
    if (n.tiles == 1) return;
    const int query = row / GROUP, last = (row + (g.rows ? g.rows : 1) - 1) / GROUP;
    static_cast<te__decode_keys &>(g) = te__decode_keys_of<F>(queries, past, query, last - query + 1);
}
/* Returns the group (tile of queries with its keys) that has item number `item` (a split) of the work list. */
template <int GROUP, class F>
TE_FN te__decode_group te__decode_group_of(const te__decode_batch &n, int item) {
    te__decode_group g;
    g.i = n.sequence_of(n.first_split, item);
    const int before = n.first_split[g.i], count = n.first_split[g.i + 1] - before;
    const int head = (item - before * n.heads) / count;
    g.kv_head = head / n.tiles, g.tile = head - g.kv_head * n.tiles, g.item = before * n.heads + head * count;
    te__decode_complete<GROUP, F>(g, n);
    return g;
}
/* Advances g to the next group (tile of queries with its keys) of the work list. g must not be the last group of the
 * batch. */
template <int KV_HEADS, int GROUP, class F>
TE_FN void te__decode_next(te__decode_group &g, const te__decode_batch &n) {
    g.item += g.count;
    if (++g.tile == n.tiles) g.tile = 0, g.kv_head++;
    if (g.kv_head == KV_HEADS) {
        g.kv_head = 0;
        do g.i++;
        while (n.first_split[g.i + 1] == n.first_split[g.i]);
    }
    te__decode_complete<GROUP, F>(g, n);
}

/* ---- a stage in shared memory ------------------------------------------------------------------------------------ */

/* Returns the address of 16-byte chunk `chunk` (0 to 7) of row `row` of a matrix [rows, D] of 16-bit elements in shared
 * memory. The matrix is swizzled in the same way as rows of the cache (te_attention_cache). */
template <int D>
TE_FN uint32_t te__decode_row_at(uint32_t matrix, int row, int chunk) {
    return matrix + (uint32_t)(row * D * 2 + (chunk ^ row % 8) * 16);
}
/* Returns the address of chunk k + c of a row. A chunk has 16 bytes, and row_at is the address of chunk k of the same
 * row. No bit may be set in both k and c, so that an exclusive or adds c to the swizzled k. The length of a row must be
 * a multiple of 128 bytes. */
TE_FN uint32_t te__decode_chunk(uint32_t row_at, int c) {
    return (row_at ^ (uint32_t)(c % 8 * 16)) + (uint32_t)(c / 8 * 128);
}

/* ---- new rows ---------------------------------------------------------------------------------------------------- */

/* Returns the address in qkv of elements 8 chunk to 8 chunk + 7 of the key (value 0) or of the value (value 1) of new
 * row `row`. The keys and values of new rows are read from qkv, because they are not in the cache yet. */
template <int HEADS, int KV_HEADS, int D, class F>
TE_FN const uint4 *te__decode_new(const te_attention_args *a, const te__decode_group &w, int value, int row,
                                  int chunk) {
    constexpr int64_t QKV = te__attn_widths<HEADS, KV_HEADS, D, F>::QKV;
    const int64_t column = te__attn_kv_column<HEADS, KV_HEADS, D, F>(value, w.kv_head);
    return (const uint4 *)((const uint16_t *)a->qkv + (w.first_row + row) * QKV + column + chunk * 8);
}

/* Writes the keys (value 0) or values (value 1) of new rows (tokens of this call) to a stage in shared memory, if the
 * new rows lie in the range of keys of this stage. The producer could not copy the new rows, because they are not in
 * the cache yet. The chunks of the rows are swizzled as in the cache. key: the first key of the stage; stop: one more
 * than the split's last key. Called by all consumers. */
template <int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__decode_stage_new(const te_attention_args *a, const te__decode_group &w, int end, int value,
                                uint32_t stage, int key) {
    constexpr int V = te__attn_value_dim<D, F>(), WARPS = te__decode_warps<F>();
    const int past = w.keys - w.mask.queries, d = value ? V : D, chunks = d / 8, first = past > key ? past : key;
    for (int j = (int)threadIdx.x; j < (end - first) * chunks; j += WARPS * 32) {
        const int k = first + j / chunks, chunk = j % chunks;
        const uint4 v = *te__decode_new<HEADS, KV_HEADS, D, F>(a, w, value, k - past, chunk);
        const uint32_t to = stage + (uint32_t)((k - key) * d * 2 + (chunk ^ (k % 8)) * 16);
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                     : "memory");
    }
    /* order these stores before the producer's next copy to the stage, which uses the async proxy (TMA) */
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    te__decode_consumers_sync<WARPS>();
}
/* Stores the keys and values of new rows in the cache. Called by all consumers, once for each tile. A new row has one
 * query for each query head that shares the KV head; these queries may lie in several tiles, and the tile with the
 * first of these heads stores the row. page: the index of the page of the first new row. */
template <int HEADS, int KV_HEADS, int D, class F>
TE_FN void te__decode_append(const te_attention_args *a, const te__decode_group &w, int page) {
    constexpr int V = te__attn_stored_value_dim<D, F>(), GROUP = HEADS / KV_HEADS, CHUNKS = (D + V) / 8;
    constexpr int ROWS = TE__DECODE_TILE_ROWS(GROUP);
    const int past = w.keys - w.mask.queries, first = (w.tile * ROWS + GROUP - 1) / GROUP;
    const int shift = a->cache.page_shift;
    for (int j = (int)threadIdx.x; w.keys > 0; j += te__decode_warps<F>() * 32) {
        const int row = first + j / CHUNKS, in_row = j % CHUNKS, value = in_row >= D / 8, d = value ? V : D;
        if (row * GROUP >= (w.tile + 1) * ROWS || row >= w.mask.queries) break;
        const int k = past + row, chunk = value ? in_row - D / 8 : in_row;
        const int64_t rows = te__cache_head_rows(&a->cache, value, w.kv_head, KV_HEADS, D, V, F::CACHE_FORMAT);
        const bool is_first = (unsigned)k >> shift == (unsigned)past >> shift;
        const int64_t to = te__cache_row_in(&a->cache, is_first ? page : w.pages[(unsigned)k >> shift], rows, k, d,
                                            F::CACHE_FORMAT);
        *(uint4 *)((uint16_t *)a->cache.pages + to + (chunk ^ (k % 8)) * 8) =
            *te__decode_new<HEADS, KV_HEADS, D, F>(a, w, value, row, chunk);
    }
}
/* Prefetches the key and the value of the first new row into the L1. Without the prefetch, the loads in
 * te__decode_stage_new and te__decode_append would take microseconds while the memory is busy. Returns the index of the
 * page of the first new row. */
template <int HEADS, int KV_HEADS, int D, class F>
TE_FN int te__decode_prefetch_new(const te_attention_args *a, const te__decode_group &w) {
    constexpr int V = te__attn_stored_value_dim<D, F>();
    static_assert((D + V) / 8 <= te__decode_warps<F>() * 32, "te: attention: each thread loads one part of a new row");
    const int j = (int)threadIdx.x, value = j >= D / 8;
    uint32_t unused;
    if (j < (D + V) / 8)
        asm volatile("ld.global.u32 %0, [%1];"
                     : "=r"(unused)
                     : "l"(te__decode_new<HEADS, KV_HEADS, D, F>(a, w, value, 0, value ? j - D / 8 : j)));
    const int past = w.keys - w.mask.queries;
    return w.keys > 0 && w.mask.queries > 0 ? __ldcg(w.pages + ((unsigned)past >> a->cache.page_shift)) : 0;
}
/* ---- memory for partial results ---------------------------------------------------------------------------------- */

/* Returns the slot of memory for the partial results of a group (a tile of queries) whose splits are processed by more
 * than one block. There are TE__DECODE_MAX_BLOCKS slots. If the batch has at most so many groups, the slot is the index
 * of the group. Otherwise the slot is the index of the block that processes the group's first split. Even then no two
 * groups have the same slot, because only the last group of a block can extend into the next block. block: any block
 * that processes some of the group's splits. */
TE_FN int te__decode_slot_of(const te__decode_batch &n, const te__decode_group &g, int block, int blocks) {
    if (n.count * n.heads <= TE__DECODE_MAX_BLOCKS) return g.i * n.heads + g.kv_head * n.tiles + g.tile;
    while (n.begin(block, blocks) > g.item) block--;
    return block;
}
/* Returns the address of a slot. A slot holds the partial results of all splits of a group. floats: the size of a
 * partial result, in floats. */
template <class F> TE_FN float *te__decode_partials(const te_attention_args *a, int slot, int floats) {
    return a->cache.partials + (int64_t)slot * te__cache_max_splits(a->cache.capacity, F::VALUES_IN_KEYS) * floats;
}

#endif
