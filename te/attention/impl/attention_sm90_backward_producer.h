/* attention_sm90_backward_producer.h -- the tile scheduler of attention_sm90_backward.h, and its producer warps: one
 * thread schedules key tiles and loads K, V, Q and dO; a warp loads lse and delta; two warps add dQ to global memory.
 *
 * dQ is summed in a fixed order. Each tile of queries of a head has a semaphore, which counts the key tiles that have
 * added their dQ to it. A block waits until the key tiles before its own have added their dQ, adds its own, waits until
 * the sum is in memory, and increments the semaphore. The first key tile stores its dQ instead of adding it, so nothing
 * has to be zeroed. If any_order (te__attn_bwd_params) is set, a block waits only for the first key tile, and the last
 * bits of dQ may vary.
 * Key tiles are scheduled in bands of neighbouring tiles: the first band of every head, then the next band of every
 * head. Bands whose keys are seen by more queries come first. The key tiles of a band add their dQ to a tile of queries
 * in the order in which they reach this tile of queries (DASH, arXiv 2601.21824):
 *   - causal mask or sliding window: the last key tile of a band is scheduled first. Each key tile begins with the
 *     first tile of queries that sees it, and goes on to the last one.
 *   - full attention (no mask): the last key tile of a band is scheduled first. The key tiles begin at different
 *     tiles of queries, and each continues with the first tile of queries after the last one.
 *   - causal mask and grouped query heads: the first key tile of a band is scheduled first. All key tiles of a head go
 *     from the last tile of queries to the first, so that at any time Q and dO of eight heads stay in the L2.
 * Waiting for the dQ of other key tiles cannot deadlock. With a mask, a block waits only for key tiles that were
 * scheduled before its own. In full attention it may also wait for a key tile of the same band that is scheduled later.
 * Some block takes that key tile: a band has no more key tiles than there are blocks, and no block takes its next key
 * tile before it has added every dQ for which other key tiles of its band may wait.
 * With varlen each sequence has its own bands. Some indices of the schedule belong to no key tile (te_sequence_tiles);
 * blocks skip them. All blocks derive the same key tiles from cu_seqlens, even if its values are invalid.
 */
/* target: cuda */
#ifndef TE_ATTENTION_SM90_BACKWARD_PRODUCER_H
#define TE_ATTENTION_SM90_BACKWARD_PRODUCER_H

#include "../attention_options.h"        /* te_attention_args */
#include "attention_mask.h"        /* which queries see which keys */
#include "attention_sm80_forward.h" /* te__attn_widths */
#include "attention_sm90_wgmma.h"     /* te__attn_tma_load_box, te__attn_bulk_add */

/* ---- constants, arguments and shared memory -------------------------------------------------------------------- */

enum {
    TE__ATTN_BWD_THREADS = 384,
    /* the number of stages (buffers in shared memory) for Q and for dS, and for dO too if there is enough
     * shared memory */
    TE__ATTN_BWD_STAGES = 2,
    TE__ATTN_BWD_DQ_BOX_BYTES = 64 * 256,  /* size in bytes of a box of dQ: 64 queries by 64 columns of f32 */
    /* the smallest number of key tiles of a band (neighbouring key tiles that are scheduled together), unless a
     * sequence has fewer key tiles or fewer clusters run at the same time */
    TE__ATTN_BWD_MIN_BAND = 16,
    TE__ATTN_BWD_PRE_THREADS = 256
};

/* How many lanes of a warp arrive at an mbarrier. One lane is enough, because the warp is converged when it arrives.
 * But the racecheck of compute-sanitizer takes a lane's accesses as ordered only if that lane itself arrives. For
 * racecheck, compile with TE_RACECHECK: then all lanes arrive, which is slower. */
#ifdef TE_RACECHECK
enum { TE__ATTN_BWD_ARRIVING_LANES = 32 };
#else
enum { TE__ATTN_BWD_ARRIVING_LANES = 1 };
#endif

typedef struct te__attn_bwd_params {
    /* the tensor maps of qkv and of dout, which are [batch, seq, width] or, with varlen, [rows, width] */
    CUtensorMap qkv, dout;
    CUtensorMap kv;        /* for cross-attention: the tensor map of keys and values, a tensor [batch, kv_seq, width] */
    te_attention_args a;
    /* the sums of dQ over all key tiles, in f32: [heads, ceil(head_dim / 64), batch * seq, 64]; te__attn_bwd_dq_at
     * describes the order of the elements */
    float *dq;
    /* The ticket: the index of the next item (a key tile of one head) that no block has taken yet. The preprocess
     * kernel sets the ticket and the semaphores to 0. */
    uint32_t *ticket;
    /* For each tile of queries of a head, the number of key tiles that have added their dQ to it: [batch, heads,
     * query_tiles, blocks of a cluster], with varlen [heads, query_tiles, blocks of a cluster]. Each block of a cluster
     * adds different columns of dQ, and has a semaphore of its own. */
    uint32_t *dq_semaphores;
    int semaphores;             /* the number of semaphores */
    /* the number of key tiles and of tiles of queries: of each sequence or, with varlen, of all sequences together
     * (te_sequence_tiles) */
    int key_tiles, query_tiles;
    /* items: the number of work items of the whole call, i.e. of key tiles of all heads of K and V; band: the number of
     * key tiles of a band, i.e. of neighbouring key tiles that are scheduled together */
    int items, band;
    /* 1 if dQ may be added in any order (te_context.attention_nondeterministic). Without a mask, the kernel uses the
     * fixed order even then, because it is faster. */
    int any_order;
    te_sequences sequences;     /* varlen: the packed sequences */
} te__attn_bwd_params;

/* An item, i.e. the unit of a block's work: a key tile of one head of K and V. */
struct te__attn_bwd_item {
    int head;                  /* the head of K and V, counted over all sequences: batch * kv_heads + kv_head */
    int key_tile;              /* the index of the key tile, or TE__ATTN_BWD_ITEM_END or TE__ATTN_BWD_ITEM_INVALID */
    /* the first and the last key tile of the item's band, i.e. of the neighbouring key tiles that are scheduled
     * together */
    int band_first, band_last;
};
/* Special values of te__attn_bwd_item.key_tile. END: there are no more items. INVALID: with varlen, the ticket (the
 * item's index in the schedule) belongs to no key tile; blocks skip such an item. */
enum { TE__ATTN_BWD_ITEM_END = -1, TE__ATTN_BWD_ITEM_INVALID = -2 };

/* The part of a block's shared memory that holds everything except tiles. FOLDED: lse and delta are operands of the
 * products for S and dP (te__attn_bwd_folds_stats); then the array lse holds both lse and delta, in 16 bytes for each
 * query, and the array delta is not used. */
template <int QUERIES, bool FOLDED> struct te__attn_bwd_shared {
    /* lse times log2(e), one float for each query; or, if FOLDED is set, both lse and delta in 16 bytes for each
     * query */
    alignas(16) float lse[TE__ATTN_BWD_STAGES][FOLDED ? 4 * QUERIES : QUERIES];
    float delta[TE__ATTN_BWD_STAGES][FOLDED ? 1 : QUERIES];
    /* for each of the two warpgroups, [2, 16] floats, through which one warp of the warpgroup passes column sums of dK
     * or dV to another warp */
    float part[2][2][16];
    /* the current item and the next one, aligned so that one instruction copies an item */
    alignas(16) te__attn_bwd_item item[TE__ATTN_BWD_STAGES];
    uint64_t item_full[TE__ATTN_BWD_STAGES], item_empty[TE__ATTN_BWD_STAGES], v_full, v_empty, k_full, k_empty;
    uint64_t q_full[TE__ATTN_BWD_STAGES], q_empty[TE__ATTN_BWD_STAGES];
    uint64_t do_full[TE__ATTN_BWD_STAGES], do_empty[TE__ATTN_BWD_STAGES];
    uint64_t ds_full[TE__ATTN_BWD_STAGES], ds_empty[TE__ATTN_BWD_STAGES];
    /* Signal that the dQ of a step is in shared memory (dq_full), or that its shared memory is free again (dq_empty).
     * With clusters of two blocks (TWO_CTA), each warpgroup has two mbarriers dq_full and two mbarriers dq_empty. */
    uint64_t dq_full[2 * TE__ATTN_BWD_STAGES], dq_empty[2 * TE__ATTN_BWD_STAGES];
    /* varlen: the first row and the number of rows of the sequence of each item */
    te_sequence rows[TE__ATTN_BWD_STAGES];
    /* with clusters of two blocks (TWO_CTA): signals that P is in shared memory */
    uint64_t p_full[TE__ATTN_BWD_STAGES];
};

/* Constants that follow from two head sizes: D of q and k, and V of v and dO. D and V differ only if TWO_CTA is 1.
 * TWO_CTA: the kernel is that of attention_sm90_backward_2cta.h, where a cluster of two blocks processes a key tile, 64
 * keys in each block. In shared memory a tile consists of boxes of 64 columns. If head_dim is not a multiple of 64, the
 * last box also contains columns of the next head; the results for these columns are not used. */
template <int D, int V = D, bool FOLDED_STATS = false> struct te__attn_bwd_traits {
    static_assert(V == D || (D > 128 && V % 64 == 0), "te: attention: the kernel of one block has one head size");
    static constexpr int TWO_CTA = D > 128, CLUSTER = TWO_CTA ? 2 : 1, QUERIES = D <= 64 ? 128 : 64;
    static constexpr int KEYS = 128, BLOCK_KEYS = KEYS / CLUSTER;
    static constexpr int BOXES = (D + 63) / 64, V_BOXES = (V + 63) / 64;
    static constexpr int DO_STAGES = D > 192 ? 1 : TE__ATTN_BWD_STAGES;
    /* the number of rows of dK or dV whose sum is one row of te_attention_args.sum; one warp computes 16 of these
     * rows */
    static constexpr int SUM_ROWS = TWO_CTA ? 16 : 32;
    /* PREFETCH: 1 if a lane loads lse and delta from shared memory to registers before S or dP is complete. The other
     * kernels do not have enough registers for this, or do not need it (FOLDED). */
    static constexpr int FOLDED = FOLDED_STATS, PREFETCH = !TWO_CTA && QUERIES <= 64 && !FOLDED;
    /* DQ_ALTERNATES: if it is 1, a warpgroup computes the whole dQ of every other step (tile of queries), so that only
     * one warpgroup reads the dS of a step; if 0, each warpgroup computes half of the dQ of every step. DQ_REGISTERS:
     * the number of a thread's accumulators of dQ. */
    static constexpr int DQ_ALTERNATES = !TWO_CTA && D > 64, DQ_REGISTERS = DQ_ALTERNATES ? 64 : 32;
    /* PINGPONG: if it is 1, the two warpgroups take turns to issue their products, so that one of them computes
     * exponentials while the products of the other one run. */
    static constexpr int PINGPONG = D <= 64;
    static constexpr int K_BYTES = BLOCK_KEYS * BOXES * 128, V_BYTES = BLOCK_KEYS * V_BOXES * 128;
    static constexpr int Q_BYTES = QUERIES * BOXES * 128, DO_BYTES = QUERIES * V_BOXES * 128;
    static constexpr int DS_BYTES = KEYS * QUERIES * 2;
    /* Offsets in bytes of the contents of shared memory, in this order: K; V; Q and dO of each stage (if dO has only
     * one stage: Q of each stage, then dO); dS of each stage; dQ, which waits here until it is added to global memory,
     * DQ_BYTES bytes; and, if TWO_CTA is 1, two boxes of the other block's K. */
    static constexpr int Q_AT = K_BYTES + V_BYTES;
    static constexpr int DO_AT = Q_AT + (DO_STAGES > 1 ? 1 : TE__ATTN_BWD_STAGES) * Q_BYTES;
    /* distance in bytes from one stage of Q to the next */
    static constexpr int Q_PITCH = Q_BYTES + (DO_STAGES > 1 ? DO_BYTES : 0);
    static constexpr int DS_AT = Q_AT + TE__ATTN_BWD_STAGES * Q_BYTES + DO_STAGES * DO_BYTES;
    static constexpr int DQ_AT = DS_AT + TE__ATTN_BWD_STAGES * DS_BYTES;
    /* With clusters of two blocks (TWO_CTA), a block computes half of the columns of dQ, and each of its warpgroups
     * computes one box of 64 columns. But if dQ has three boxes, the first warpgroup of each block computes only half
     * of the middle box: it gets the smaller part, because it also computes the exponentials. A slot is the shared
     * memory for the columns of one warpgroup. Each warpgroup has SLOTS slots, but if dQ has four boxes (SHARED_SLOT),
     * the two warpgroups use one slot alternately. */
    static constexpr int SHARED_SLOT = BOXES == 4, SLOTS = BOXES + V_BOXES <= 5 ? 2 : 1;
    static constexpr int FIRST_DQ_BYTES = BOXES == 3 ? TE__ATTN_BWD_DQ_BOX_BYTES / 2 : TE__ATTN_BWD_DQ_BOX_BYTES;
    static constexpr int DQ_BYTES = !TWO_CTA      ? TE__ATTN_BWD_STAGES * 2 * TE__ATTN_BWD_DQ_BOX_BYTES
                                    : SHARED_SLOT ? TE__ATTN_BWD_DQ_BOX_BYTES
                                                  : SLOTS * (TE__ATTN_BWD_DQ_BOX_BYTES + FIRST_DQ_BYTES);
    static constexpr int PEER_K_AT = DQ_AT + DQ_BYTES, BYTES = PEER_K_AT + (TWO_CTA ? 2 * 8192 : 0);

    /* With clusters of two blocks (TWO_CTA): return how many columns of dQ warpgroup `group` of a block computes. */
    static __device__ __forceinline__ constexpr int dq_columns(int group) { return !group && BOXES == 3 ? 32 : 64; }
    /* With clusters of two blocks (TWO_CTA): return the box of dQ (64 columns) that warpgroup `group` of block `rank`
     * computes. If dq_columns is 32, the warpgroup computes only half of the columns of this box. */
    static __device__ __forceinline__ constexpr int dq_box(int rank, int group) {
        return BOXES == 4 ? 2 * rank + group : group ? 2 * rank : 1;
    }
    /* With clusters of two blocks (TWO_CTA): return the offset in bytes of the slot of shared memory into which
     * warpgroup `group` stores its dQ of step i. */
    static __device__ __forceinline__ int dq_slot_at(int group, int i) {
        if (SHARED_SLOT) return DQ_AT;
        const int slot = SLOTS == 2 ? i & 1 : 0;
        return DQ_AT + (group ? slot * TE__ATTN_BWD_DQ_BOX_BYTES
                              : SLOTS * TE__ATTN_BWD_DQ_BOX_BYTES + slot * FIRST_DQ_BYTES);
    }
    /* Return the index in dq_empty of the mbarrier on which warpgroup `group` waits until the slot of shared memory for
     * its dQ of step i (dq_slot_at) is free. */
    static __device__ __forceinline__ int dq_slot_barrier(int group, int i) {
        return 2 * group + (!SHARED_SLOT && SLOTS == 2 ? i & 1 : 0);
    }
    /* Return the parity of the mbarrier phase that must be complete before warpgroup `group` may store its dQ of step
     * i. dq_slot_barrier returns the index of this mbarrier. */
    static __device__ __forceinline__ int dq_slot_phase(int group, int i) {
        return ((SHARED_SLOT ? i + group : SLOTS == 2 ? i >> 1 : i) & 1) ^ 1;
    }
    /* Return the index in dq_empty of the mbarrier at which the producer arrives after it has read the dQ that
     * warpgroup `group` stored in step i, so that the slot is free again. */
    static __device__ __forceinline__ int dq_freed_barrier(int group, int i) {
        /* If the two warpgroups share a slot, the producer arrives at the mbarrier of the other warpgroup, because that
         * warpgroup uses the slot next. */
        return dq_slot_barrier(SHARED_SLOT ? group ^ 1 : group, i);
    }
    /* do_stage: the stage that holds dO of step i. do_phase: the phase parity, in step i, of the mbarriers of that
     * stage. */
    static __device__ __forceinline__ int do_stage(int i) { return DO_STAGES > 1 ? i & 1 : 0; }
    static __device__ __forceinline__ int do_phase(int i) { return DO_STAGES > 1 ? i >> 1 & 1 : i & 1; }
    typedef te__attn_bwd_shared<QUERIES, FOLDED_STATS> shared;
};

/* Return whether -lse / scale and -delta are folded into the products for S and dP. If so, all operands get sixteen
 * more columns. The additional columns of Q and dO hold -lse / scale or -delta of each query, split into three terms in
 * bf16 whose sum has all bits of the f32 value. The additional columns of K and V hold ones where Q or dO has such a
 * term, and zeros elsewhere. For each tile of queries the additional columns take 128 more cycles of the tensor cores:
 * both warpgroups run one more wgmma for S and one for dP, of 32 cycles each. But the loads of lse and delta take 192
 * fewer cycles of shared memory, and shared memory is the bottleneck. Nothing is folded if an option needs S before lse
 * is subtracted, nor in f16, whose range is too small. */
template <te_dtype T, int D, class F> TE_FN constexpr bool te__attn_bwd_folds_stats(void) {
    return T == TE_bf16 && D > 64 && D <= 128 && !F::SEPARATE_DS && !F::ALIBI && F::BIAS == TE_BIAS_none;
}
template <te_dtype T, int D, class F>
using te__attn_bwd_traits_of = te__attn_bwd_traits<D, te__attn_value_dim<D, F>(), te__attn_bwd_folds_stats<T, D, F>()>;

/* ---- tile scheduler -------------------------------------------------------------------------------------------- */

/* Return whether a block processes the tiles of queries of its key tile in descending order, from the last one to the
 * first one that sees the keys. This is the order with a causal mask and grouped query heads; it keeps Q and dO in the
 * L2. */
template <class F> TE_FN constexpr int te__attn_bwd_descends(int heads, int kv_heads) {
    return F::RIGHT == 0 && kv_heads < heads;
}
/* Return whether a key tile that has processed the last tile of queries continues with the first one. This is so in
 * full attention (no mask), where each key tile processes all queries. */
template <class F> TE_FN constexpr int te__attn_bwd_wraps(void) { return F::LEFT < 0 && F::RIGHT < 0; }
/* Returns the item (a key tile of one head) at position i of the schedule, which orders the items of `heads` heads of K
 * and V. band: the number of key tiles of a band, i.e. of neighbouring key tiles that are scheduled together. */
template <int HEADS, int KV_HEADS, class F>
TE_FN te__attn_bwd_item te__attn_bwd_item_at(int i, int heads, int key_tiles, int band) {
    /* the number of key tiles in complete bands; the last band may be smaller, and is then not counted */
    const int whole = key_tiles / band * band;
    const int first = i / (band * heads) * band;
    const int count = first < whole ? band : key_tiles - whole; /* the number of key tiles of this band */
    const int at = i - first * heads, n = at % count;
    return {at / count, te__attn_bwd_descends<F>(HEADS, KV_HEADS) ? first + n : first + count - 1 - n, first,
            first + count - 1};
}
/* Returns the item (a key tile of one head) that has ticket i, its index in the schedule. With varlen, also moves
 * `walk`, a cursor over the sequences, to the item's sequence. */
template <int HEADS, int KV_HEADS, class F, class C>
TE_FN te__attn_bwd_item te__attn_bwd_item_of_ticket(const te__attn_bwd_params *p, int i, te_sequence_cursor *walk) {
    te__attn_bwd_item item = {0, TE__ATTN_BWD_ITEM_END, 0, 0};
    if (i >= p->items) return item;
    if constexpr (!F::VARLEN) {
        item = te__attn_bwd_item_at<HEADS, KV_HEADS, F>(i, p->a.batch * KV_HEADS, p->key_tiles, p->band);
    } else {
        te_sequence_cursor_seek(walk, &p->sequences, i / KV_HEADS, C::KEYS);
        const int tiles = (walk->at.count + C::KEYS - 1) / C::KEYS, in = i - walk->tile * KV_HEADS;
        item.key_tile = TE__ATTN_BWD_ITEM_INVALID;
        if (in >= tiles * KV_HEADS) return item;
        item = te__attn_bwd_item_at<HEADS, KV_HEADS, F>(in, KV_HEADS, tiles, tiles < p->band ? tiles : p->band);
        item.head += walk->index * KV_HEADS;
    }
    return item;
}
/* Return the number of queries of an item's sequence. rows: with varlen, the rows of this sequence; else not used. */
template <class F> TE_FN int te__attn_bwd_seq(const te__attn_bwd_params *p, const te_sequence &rows) {
    return F::VARLEN ? rows.count : p->a.seq;
}
/* Return the number of keys of an item's sequence. rows: with varlen, the rows of this sequence; else not used. */
template <class F> TE_FN int te__attn_bwd_keys(const te__attn_bwd_params *p, const te_sequence &rows) {
    return F::CROSS ? p->a.kv_seq : te__attn_bwd_seq<F>(p, rows);
}
/* Return the mask of a sequence with `seq` queries. */
template <class F> TE_FN te__attn_mask te__attn_bwd_mask(const te__attn_bwd_params *p, int seq) {
    if constexpr (F::CROSS) return te__attn_mask_between(p->a.seq, p->a.kv_seq, F::LEFT, F::RIGHT);
    else return te__attn_mask_of(seq, F::LEFT, F::RIGHT);
}
/* Return the index of the first row of sequence `batch` among the rows of all sequences. */
template <class F>
TE_FN int64_t te__attn_bwd_first_row(const te__attn_bwd_params *p, const te_sequence &rows, int batch) {
    return F::VARLEN ? rows.first : (int64_t)batch * p->a.seq;
}
/* Return the index of the first query of a sequence and head within the arrays lse and delta. */
template <int HEADS, class F>
TE_FN int64_t te__attn_bwd_stats_at(const te__attn_bwd_params *p, const te_sequence &rows, int batch, int head) {
    if (F::VARLEN) return (int64_t)head * p->sequences.rows + rows.first;
    return ((int64_t)batch * HEADS + head) * p->a.seq;
}
/* Return the address of the semaphore of tile number `tile` of a head's queries, for block `rank` of the cluster. */
template <int HEADS, class C, class F>
TE_FN uint32_t *te__attn_bwd_semaphore_at(const te__attn_bwd_params *p, const te_sequence &rows, int batch, int head,
                                          int tile, int rank) {
    if (F::VARLEN) tile += head * p->query_tiles + rows.first / C::QUERIES + batch;
    else tile += (batch * HEADS + head) * p->query_tiles;
    return p->dq_semaphores + tile * C::CLUSTER + rank;
}
/* For full attention (no mask): return the index of the tile of queries with which key tile n of a band begins; n = 0
 * is the first key tile of the band. */
template <class C> TE_FN int te__attn_bwd_start_tile(const te__attn_bwd_params *p, int n) {
    return n * C::KEYS / C::QUERIES % p->query_tiles;
}
/* For full attention (no mask): return how many tiles of queries key tile n of a band processes before it reaches the
 * tile of queries `tile`; n = 0 is the first key tile of the band. */
template <class C> TE_FN int te__attn_bwd_steps_to(const te__attn_bwd_params *p, int n, int tile) {
    const int steps = tile - te__attn_bwd_start_tile<C>(p, n);
    return steps < 0 ? steps + p->query_tiles : steps;
}
/* Returns how many key tiles add their dQ to this tile of queries before `item` does. These are the key tiles of
 * earlier bands, and the key tiles of the same band that reach this tile of queries earlier than `item`. In
 * cross-attention there may be more key tiles than tiles of queries, so that several key tiles begin at the same tile
 * of queries; of these, the key tile with the larger index adds first. Without a mask, cross-attention has no formula
 * for the count: LANES lanes of a warp count the key tiles together. seq: the number of queries of the sequence. */
template <class C, int HEADS, int KV_HEADS, class F, int LANES>
TE_FN int te__attn_bwd_dq_rank(const te__attn_bwd_params *p, const te__attn_bwd_item &item, int tile, int seq) {
    if (!te__attn_bwd_wraps<F>()) {
        const te__attn_mask m = te__attn_bwd_mask<F>(p, seq);
        const te__attn_range t = te__attn_in_tiles(te__attn_keys_of(m, tile * C::QUERIES, C::QUERIES), C::KEYS);
        if (te__attn_bwd_descends<F>(HEADS, KV_HEADS)) return item.key_tile - t.first;
        const int last = t.end - 1;
        /* `before` is the number of key tiles of earlier bands that add their dQ to this tile of queries. The return
         * value also counts the key tiles of the item's own band with a larger index, because they are scheduled
         * first. */
        const int before = item.band_first > t.first ? item.band_first - t.first : 0;
        return before + (last < item.band_last ? last : item.band_last) - item.key_tile;
    }
    if constexpr (F::CROSS) {
        const int own_steps = te__attn_bwd_steps_to<C>(p, item.key_tile - item.band_first, tile);
        int sooner = 0;
        for (int other = item.band_first + (int)threadIdx.x % LANES; other <= item.band_last; other += LANES) {
            const int ahead = te__attn_bwd_steps_to<C>(p, other - item.band_first, tile) - own_steps;
            sooner += ahead < 0 || (ahead == 0 && other > item.key_tile);
        }
        return item.band_first + (LANES > 1 ? __reduce_add_sync(~0u, sooner) : sooner);
    }
    const int last = item.band_first + tile * C::QUERIES / C::KEYS;
    const int begun =
        /* the last of the band's key tiles that begin at this tile of queries or at an earlier tile of queries */
        last < item.band_last ? last : item.band_last;
    const int wrapped = item.key_tile <= begun ? 0 : item.band_last - item.band_first + 1;
    return item.band_first + begun - item.key_tile + wrapped;
}
/* Return the address of the sums of dQ (f32) of a head, in box `box` of 64 columns, from row `row` on. Each complete
 * group of 64 queries of a sequence is stored in the order of the wgmma accumulators: first 16 bytes of each of a
 * warpgroup's 128 threads, then the next 16 bytes of each thread, and so on, eight times in all. The remaining queries
 * of a sequence, fewer than 64, are stored as [queries, 64]. */
template <int D> TE_FN float *te__attn_bwd_dq_at(const te__attn_bwd_params *p, int head, int box, int64_t row) {
    return p->dq + (((int64_t)head * te__attn_bwd_traits<D>::BOXES + box) * p->sequences.rows + row) * 64;
}

/* The current step of an item (a key tile of one head of K and V). The steps are ordered by two loops: the outer one is
 * over the tiles of queries, the inner one over the query heads that share this head of K and V. */
typedef struct te__attn_bwd_query_tiles {
    /* the query head, counted within one sequence, and the tile of queries of the current step */
    int head, tile;
    int left;       /* the number of steps that remain, including the current one */
    int tiles;      /* the number of tiles of queries that the sequence has */
} te__attn_bwd_query_tiles;
template <class C, int HEADS, int KV_HEADS, class F>
TE_FN te__attn_bwd_query_tiles te__attn_bwd_query_tiles_of(const te__attn_bwd_params *p, const te__attn_bwd_item &item,
                                                           const te_sequence &rows) {
    te__attn_bwd_query_tiles w;
    const te__attn_mask m = te__attn_bwd_mask<F>(p, te__attn_bwd_seq<F>(p, rows));
    const te__attn_range tiles =
        te__attn_in_tiles(te__attn_queries_of(m, item.key_tile * C::KEYS, C::KEYS), C::QUERIES);
    w.head = item.head % KV_HEADS * (HEADS / KV_HEADS), w.left = (tiles.end - tiles.first) * (HEADS / KV_HEADS);
    w.tile = te__attn_bwd_wraps<F>() ? (item.key_tile - item.band_first) * C::KEYS / C::QUERIES : tiles.first;
    if (F::CROSS && te__attn_bwd_wraps<F>())
        w.tile = te__attn_bwd_start_tile<C>(p, item.key_tile - item.band_first);
    if (te__attn_bwd_descends<F>(HEADS, KV_HEADS)) w.tile = tiles.end - 1;
    w.tiles = F::VARLEN ? tiles.end : p->query_tiles;
    return w;
}
/* Advances to the next step of the item (a key tile of one head of K and V), i.e. to the next query head or the next
 * tile of queries. Returns the number of steps that remain, including the new one; 0 if there is no further step. */
template <int HEADS, int KV_HEADS, class F> TE_FN int te__attn_bwd_next_query_tile(te__attn_bwd_query_tiles *w) {
    constexpr int GROUP = HEADS / KV_HEADS;
    if (GROUP == 1 || ++w->head % GROUP == 0) {
        if (GROUP > 1) w->head -= GROUP;
        w->tile += te__attn_bwd_descends<F>(HEADS, KV_HEADS) ? -1 : 1;
        if (te__attn_bwd_wraps<F>() && w->tile == w->tiles) w->tile = 0;
    }
    return --w->left;
}

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- passing items to the warps --------------------------------------------------------------------------------- */

/* Writes an item and its sequence to the shared memory of the cluster's second block, and arrives at that block's
 * mbarrier `full`. Called by the one thread of the first block that schedules the items of both blocks, when all warps
 * of both blocks have read the item that was there before. to, rows_to, full: the addresses of the item, of its
 * sequence and of the mbarrier; they are the same in both blocks. */
TE_FN void te__attn_bwd_item_send_to_peer(uint32_t to, uint32_t full, te__attn_bwd_item v,
                                           te_sequence rows, uint32_t rows_to) {
    asm volatile(
        "{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, 1;\n"
        "st.shared::cluster.v4.s32 [at], {%1, %2, %3, %4};\n"
        "mapa.shared::cluster.u32 at, %5, 1;\nst.shared::cluster.v2.s32 [at], {%6, %7};\n"
        "mapa.shared::cluster.u32 at, %8, 1;\nmbarrier.arrive.release.cluster.shared::cluster.b64 _, [at];\n}" ::"r"(
            to),
        "r"(v.head), "r"(v.key_tile), "r"(v.band_first), "r"(v.band_last), "r"(rows_to), "r"(rows.first),
        "r"(rows.count), "r"(full)
        : "memory");
}
template <class C> TE_FN void te__attn_bwd_item_wait(uint32_t bar, int phase) {
    if constexpr (C::TWO_CTA) te__barrier_wait_acquire_cluster(bar, phase);
    else te__barrier_wait(bar, phase);
}
template <class C> TE_FN void te__attn_bwd_item_release(uint32_t bar) {
    if constexpr (C::TWO_CTA) te__barrier_arrive_remote_release(bar, 0);
    else te__barrier_arrive(bar);
}
/* Waits for item number r of this block (a key tile of one head), and copies it to *item, and its sequence to *rows.
 * All warps call this, except the one that writes the items. Returns 0 if there are no more items. */
template <class F, class C>
TE_FN int te__attn_bwd_item_receive(te__attn_bwd_item *item, te_sequence *rows, typename C::shared *sh, int r) {
    te__attn_bwd_item_wait<C>(te__shared_address(&sh->item_full[r & 1]), r >> 1 & 1);
    const te__attn_bwd_item v = sh->item[r & 1];
    /* The shuffles tell the compiler that the values are the same in all lanes. */
    *item = {__shfl_sync(~0u, v.head, 0), __shfl_sync(~0u, v.key_tile, 0), __shfl_sync(~0u, v.band_first, 0),
             __shfl_sync(~0u, v.band_last, 0)};
    if constexpr (F::VARLEN) {
        const te_sequence u = sh->rows[r & 1];
        rows->first = __shfl_sync(~0u, u.first, 0), rows->count = __shfl_sync(~0u, u.count, 0);
    }
    if (threadIdx.x % 32 < TE__ATTN_BWD_ARRIVING_LANES)
        te__attn_bwd_item_release<C>(te__shared_address(&sh->item_empty[r & 1]));
    return item->key_tile >= 0;
}

/* Return the sequence of an item, in the form that te__attn_tma_load_box takes: the sequence's rows with varlen, else
 * the sequence's number. */
template <int KV_HEADS, class F>
TE_FN auto te__attn_bwd_box_batch(const te__attn_bwd_item &item, const te_sequence &rows) {
    if constexpr (F::VARLEN) return rows;
    else return item.head / KV_HEADS;
}
/* Called in full attention (no mask) before a block takes its next item. If the next item may belong to the same band
 * as the current one, the function waits until the block has added every dQ of the current item, because blocks that
 * process other key tiles of the band may be waiting for these additions. item, i: the current item (a key tile) and
 * its ticket, i.e. its index in the schedule. w: the last two steps of the item. Two warps add dQ, one in the even
 * steps and the other in the odd steps, each in order; so once the dQ of the last two steps has been added, the dQ of
 * all earlier steps has been added, too. */
template <int HEADS, int KV_HEADS, class F, class C>
TE_FN void te__attn_bwd_await_band(const te__attn_bwd_params *p, const te__attn_bwd_item &item,
                                   const te_sequence &rows, int i, const te__attn_bwd_query_tiles (&w)[2]) {
    const int seq = te__attn_bwd_seq<F>(p, rows);
    if ((int)te__attn_load_acquire(p->ticket) > i + item.key_tile - item.band_first) return;
    for (int n = 0; n < 2 * C::CLUSTER; n++) {
        const te__attn_bwd_query_tiles &of = w[n / C::CLUSTER];
        const int rank = te__attn_bwd_dq_rank<C, HEADS, KV_HEADS, F, 1>(p, item, of.tile, seq);
        const uint32_t *const semaphore = te__attn_bwd_semaphore_at<HEADS, C, F>(p, rows, item.head / KV_HEADS,
                                                                                 of.head, of.tile, n % C::CLUSTER);
        while ((int)te__attn_load_acquire(semaphore) <= rank) {}
    }
}

/* ---- producer: K, V, Q and dO ---------------------------------------------------------------------------------- */

/* The state of the producer thread, which schedules items and loads tiles. */
struct te__attn_bwd_producer_state {
    int round;                        /* how many items (key tiles) the block has taken before the current one */
    int step;                         /* how many tiles of queries the block has loaded, over all its items */
    int number;                       /* the ticket of the current item */
    te__attn_bwd_item item;
    te_sequence rows;                 /* varlen: the rows of the item's sequence */
    te__attn_bwd_query_tiles last[2]; /* the last two steps (tiles of queries) of the current item */
};

/* Advances to the next item, i.e. key tile: the first block of a cluster takes a ticket and passes the item to the
 * warps of both blocks; the other block receives the item. */
template <int HEADS, int KV_HEADS, class F, class C>
TE_FN void te__attn_bwd_next_item(te__attn_bwd_producer_state &at, const te__attn_bwd_params *p, typename C::shared *sh,
                                  te_sequence_cursor *walk, int rank) {
    const int s = at.round & 1, phase = at.round >> 1 & 1;
    const uint32_t full = te__shared_address(&sh->item_full[s]), empty = te__shared_address(&sh->item_empty[s]);
    if (rank == 0) {
        if (te__attn_bwd_wraps<F>() && at.round)
            te__attn_bwd_await_band<HEADS, KV_HEADS, F, C>(p, at.item, at.rows, at.number, at.last);
        at.rows.first = at.rows.count = 0;
        /* The ticket is taken only now, after the previous item is finished: once a block has taken a ticket, other
         * blocks may wait for its key tile. */
        do
            at.number = (int)atomicAdd(p->ticket, 1u),
            at.item = te__attn_bwd_item_of_ticket<HEADS, KV_HEADS, F, C>(p, at.number, walk);
        while (F::VARLEN && at.item.key_tile == TE__ATTN_BWD_ITEM_INVALID);
        te__attn_bwd_item_wait<C>(empty, phase ^ 1);
        sh->item[s] = at.item;
        if constexpr (F::VARLEN) sh->rows[s] = at.rows = walk->at;
        te__barrier_arrive(full);
        if constexpr (C::TWO_CTA)
            te__attn_bwd_item_send_to_peer(te__shared_address(&sh->item[s]), full, at.item, at.rows,
                                           te__shared_address(&sh->rows[s]));
    } else {
        te__attn_bwd_item_wait<C>(full, phase);
        at.item = sh->item[s], at.rows = sh->rows[s];
        te__attn_bwd_item_release<C>(empty);
    }
}
/* Loads V of an item, then K; V comes first, because the consumers release the memory of V before that of K. With
 * clusters of two blocks (TWO_CTA), also loads two boxes (64 columns each) of the other block's K: the boxes from which
 * this block computes its columns of dQ. These columns are sums over the keys of both blocks. */
template <int HEADS, int KV_HEADS, int D, class F, class C, class S>
TE_FN void te__attn_bwd_load_kv(const te__attn_bwd_producer_state &at, const te__attn_bwd_params *p,
                                typename C::shared *sh, uint32_t base, const S &batch, int rank) {
    constexpr int HALVES = C::BLOCK_KEYS / 64;
    TE_UNROLL for (int is_v = 1; is_v >= 0; is_v--) {
        const int x = te__attn_kv_column<HEADS, KV_HEADS, D, F>(is_v, at.item.head % KV_HEADS);
        const uint32_t full = te__shared_address(is_v ? &sh->v_full : &sh->k_full);
        te__barrier_wait(te__shared_address(is_v ? &sh->v_empty : &sh->k_empty), (at.round & 1) ^ 1);
        te__barrier_arrive_expect_tx(full, is_v ? C::V_BYTES : C::K_BYTES + (C::TWO_CTA ? 2 * 8192 : 0));
        TE_UNROLL for (int b = 0; b < (is_v ? C::V_BOXES : C::BOXES) * HALVES; b++) /* a box: 64 keys, 64 columns */
            te__attn_tma_load_box(base + is_v * C::K_BYTES + b * 8192, F::CROSS ? &p->kv : &p->qkv, x + b / HALVES * 64,
                                  at.item.key_tile * C::KEYS + rank * C::BLOCK_KEYS + b % HALVES * 64, batch, full);
        TE_UNROLL for (int g = 0; g < 2 && C::TWO_CTA && !is_v; g++)
            te__attn_tma_load_box(base + C::PEER_K_AT + g * 8192, &p->qkv, x + C::dq_box(rank, g) * 64,
                                  at.item.key_tile * C::KEYS + (rank ^ 1) * C::BLOCK_KEYS, batch, full);
    }
}
/* Loads Q and dO of a step: up to head size 64 as two boxes of 64 queries each, above that as boxes of 64 columns for
 * the same 64 queries. */
template <int D, class F, class C, class S>
TE_FN void te__attn_bwd_load_q_do(const te__attn_bwd_query_tiles &w, int i, const te__attn_bwd_params *p,
                                  typename C::shared *sh, uint32_t base, const S &batch) {
    constexpr int V = te__attn_value_dim<D, F>(), BOXES = D > 64 ? C::BOXES : 2, DO_BOXES = D > 64 ? C::V_BOXES : 2;
    const int stage = i & 1, do_stage = C::do_stage(i);
    const uint32_t q = base + C::Q_AT + stage * C::Q_PITCH, o = base + C::DO_AT + do_stage * C::Q_PITCH;
    const uint32_t q_full = te__shared_address(&sh->q_full[stage]);
    const uint32_t do_full = te__shared_address(&sh->do_full[do_stage]);
    te__barrier_wait(te__shared_address(&sh->q_empty[stage]), (i >> 1 & 1) ^ 1);
    te__barrier_arrive_expect_tx(q_full, C::Q_BYTES);
    TE_UNROLL for (int b = 0; b < BOXES; b++)
        te__attn_tma_load_box(q + b * 8192, &p->qkv, w.head * D + (D > 64 ? b * 64 : 0),
                              w.tile * C::QUERIES + (D > 64 ? 0 : b * 64), batch, q_full);
    te__barrier_wait(te__shared_address(&sh->do_empty[do_stage]), C::do_phase(i) ^ 1);
    te__barrier_arrive_expect_tx(do_full, C::DO_BYTES);
    TE_UNROLL for (int b = 0; b < DO_BOXES; b++)
        te__attn_tma_load_box(o + b * 8192, &p->dout, w.head * V + (D > 64 ? b * 64 : 0),
                              w.tile * C::QUERIES + (D > 64 ? 0 : b * 64), batch, do_full);
}
/* The body of the producer thread, which schedules items, and loads K and V of each item, then Q and dO of each of its
 * steps. base: the address of the tiles in shared memory. */
template <int HEADS, int KV_HEADS, int D, class F, class C>
TE_FN void te__attn_bwd_producer(const te__attn_bwd_params *p, typename C::shared *sh, uint32_t base) {
    const int rank = C::TWO_CTA ? te__cluster_rank() : 0;
    te__attn_bwd_producer_state at;
    te_sequence_cursor walk;
    at.step = 0, at.number = 0;
    if constexpr (F::VARLEN) walk = te_sequence_cursor_begin(&p->sequences, C::KEYS);
    for (at.round = 0;; at.round++) {
        te__attn_bwd_next_item<HEADS, KV_HEADS, F, C>(at, p, sh, &walk, rank);
        if (at.item.key_tile < 0) return;

        const auto batch = te__attn_bwd_box_batch<KV_HEADS, F>(at.item, at.rows);
        te__attn_bwd_load_kv<HEADS, KV_HEADS, D, F, C>(at, p, sh, base, batch, rank);
        te__attn_bwd_query_tiles w = te__attn_bwd_query_tiles_of<C, HEADS, KV_HEADS, F>(p, at.item, at.rows);
        at.last[1] = w;
        do {
            at.last[0] = at.last[1], at.last[1] = w;
            te__attn_bwd_load_q_do<D, F, C>(w, at.step++, p, sh, base, batch);
        } while (te__attn_bwd_next_query_tile<HEADS, KV_HEADS, F>(&w));
    }
}

/* ---- producer: lse and delta ------------------------------------------------------------------------------------ */

/* Returns the wgmma descriptor of the sixteen columns that te__attn_bwd_folds_stats appends to Q and dO (operand B).
 * Query q has eight bf16 numbers at byte 16 * q: three terms whose sum is -lse / scale, then 0, three terms whose sum
 * is -delta, then 0. The descriptor makes wgmma read these eight numbers twice, because it multiplies sixteen columns;
 * the second eight columns of operand A are zeros. */
TE_FN uint64_t te__attn_bwd_stats_descriptor(uint32_t address) {
    /* the stride between groups of eight rows is 128 bytes; the layout has no swizzle */
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(128 >> 4) << 32;
}
/* Splits x into three bf16 terms, followed by a zero. The three terms together have 24 bits of precision, as f32
 * has. */
TE_FN uint2 te__attn_bwd_split_bf16x3(float x) {
    const float high = __bfloat162float(__float2bfloat16_rn(x)), rest = x - high;
    const float middle = __bfloat162float(__float2bfloat16_rn(rest));
    return make_uint2(te_pair_of_floats(high, middle, TE_bf16), te_pair_of_floats(rest - middle, 0, TE_bf16));
}
/* Stores x, a number of one query, in a stage's shared memory: lse times log2(e) if WHICH is 0, delta if WHICH is 1. */
template <int WHICH, class F, class C>
TE_FN void te__attn_bwd_stat_store(const te__attn_bwd_params *p, typename C::shared *sh, int stage, int query,
                                   float x) {
    if constexpr (C::FOLDED) {
        /* -inf is replaced by a large finite number, because x becomes an element of operand B that is also multiplied
         * by zeros of operand A, and 0 times infinity is NaN. */
        x = WHICH ? -x : x / (-te__attn_score_unit<F>(p->a.scale) * TE__ATTN_LOG2E);
        if (x < -3e38f) x = -3e38f;
        const uint2 terms = te__attn_bwd_split_bf16x3(x);
        uint4 *const to = (uint4 *)(void *)sh->lse[stage] + query;
            /* lse is stored before delta. The product for S also reads the four numbers of delta, and multiplies them
             * by 0, which yields NaN if the uninitialised memory happens to hold a NaN. Therefore the store of lse also
             * sets the four numbers of delta to 0. */
        if (WHICH) *((uint2 *)to + 1) = terms;
        else *to = make_uint4(terms.x, terms.y, 0, 0);
        te__attn_fence_async_proxy();
    } else if (WHICH) {
        sh->delta[stage][query] = x;
    } else {
        sh->lse[stage][query] = x;
    }
}
/* The body of the warp that loads lse and delta of each step. For queries past the end of the sequence the warp stores
 * an infinite lse, so that P of these queries becomes 0. */
template <int HEADS, int KV_HEADS, class F, class C>
TE_FN void te__attn_bwd_stats_producer(const te__attn_bwd_params *p, typename C::shared *sh) {
    constexpr int EACH = C::QUERIES / 32;
    const int lane = (int)threadIdx.x % 32;
    int i = 0;
    te__attn_bwd_item item;
    te_sequence rows = {0, 0};
    for (int r = 0; te__attn_bwd_item_receive<F, C>(&item, &rows, sh, r); r++) {
        const int seq = te__attn_bwd_seq<F>(p, rows);
        te__attn_bwd_query_tiles w = te__attn_bwd_query_tiles_of<C, HEADS, KV_HEADS, F>(p, item, rows);
        do {
            const int st = i & 1, q = w.tile * C::QUERIES + lane;
            const int64_t at = te__attn_bwd_stats_at<HEADS, F>(p, rows, item.head / KV_HEADS, w.head) + q;
            float lse[EACH], delta[EACH];
            TE_UNROLL for (int e = 0; e < EACH; e++) {
                lse[e] = INFINITY, delta[e] = 0;
                if (q + 32 * e < seq)
                    lse[e] = p->a.lse[at + 32 * e] * TE__ATTN_LOG2E, delta[e] = p->a.delta[at + 32 * e];
            }
            te__barrier_wait(te__shared_address(&sh->q_empty[st]), (i >> 1 & 1) ^ 1);
            TE_UNROLL for (int e = 0; e < EACH; e++)
                te__attn_bwd_stat_store<0, F, C>(p, sh, st, lane + 32 * e, lse[e]);
            __syncwarp();
            if (lane < TE__ATTN_BWD_ARRIVING_LANES) te__barrier_arrive(te__shared_address(&sh->q_full[st]));
            te__barrier_wait(te__shared_address(&sh->do_empty[C::do_stage(i)]), C::do_phase(i) ^ 1);
            TE_UNROLL for (int e = 0; e < EACH; e++)
                te__attn_bwd_stat_store<1, F, C>(p, sh, st, lane + 32 * e, delta[e]);
            __syncwarp();
            if (lane < TE__ATTN_BWD_ARRIVING_LANES)
                te__barrier_arrive(te__shared_address(&sh->do_full[C::do_stage(i)]));
            i++;
        } while (te__attn_bwd_next_query_tile<HEADS, KV_HEADS, F>(&w));
    }
}

/* ---- producer: add dQ to global memory -------------------------------------------------------------------------- */

/* Adds `bytes` bytes of dQ (f32) from shared memory to global memory, by TMA. If first is 1, overwrites the sums in
 * global memory instead of adding to them. */
TE_FN void te__attn_bwd_dq_add(float *to, uint32_t from, int bytes, int first) {
    if (bytes <= 0) return;
    if (first) te__attn_bulk_store(to, from, bytes);
    else te__attn_bulk_add(to, from, bytes);
}
/* Adds COLUMNS columns and `left` rows (64 at most) of dQ from shared memory to global memory: to columns x to
 * x + COLUMNS - 1 of `box`. A box has 64 columns, so x must be 0 if COLUMNS is 64. If first is 1, the function
 * overwrites the sums in global memory instead of adding to them. */
template <int COLUMNS> TE_FN void te__attn_bwd_dq_add_piece(float *box, uint32_t from, int x, int left, int first) {
    if (COLUMNS == 64) return te__attn_bwd_dq_add(box, from, (left < 64 ? left : 64) * 256, first);
    if (left >= 64) return te__attn_bwd_dq_add(box + x * 64, from, COLUMNS * 256, first);
    for (int y = 0; y < left; y++)
        te__attn_bwd_dq_add(box + y * 64 + x, from + y * COLUMNS * 4, COLUMNS * 4, first);
}
/* A step whose dQ is to be added to global memory. i: the number of the step; row: the index of the step's first query
 * among the rows of all sequences; left: the number of queries from this first query to the end of the sequence; first:
 * whether this dQ is the first one that is added to its tile of queries. */
struct te__attn_bwd_dq_step {
    int i, head;
    int64_t row;
    int left, first;
};
/* Waits until the warpgroups have stored the dQ of a step in shared memory, then adds this dQ to the sums in global
 * memory. */
template <int D, class C>
TE_FN void te__attn_bwd_dq_add_step(const te__attn_bwd_params *p, typename C::shared *sh, uint32_t base,
                                    const te__attn_bwd_dq_step &s) {
    const int lane = (int)threadIdx.x % 32, stage = s.i & 1;
    te__barrier_wait(te__shared_address(&sh->dq_full[stage]), s.i >> 1 & 1);
    TE_UNROLL for (int group = 0; group < 2 && lane == 0; group++) {
        /* Each of the two warpgroups has stored a box of 64 queries by 64 columns. Above head size 64 the second box
         * holds the next 64 columns of the same queries; up to head size 64 it holds the next 64 queries (`later` is
         * then 64). */
        const int later = D > 64 ? 0 : group * 64, left = s.left - later;
        te__attn_bwd_dq_add(te__attn_bwd_dq_at<D>(p, s.head, D > 64 ? group : 0, s.row + later),
                            base + C::DQ_AT + (stage * 2 + group) * TE__ATTN_BWD_DQ_BOX_BYTES,
                            (left < 64 ? left : 64) * 256, s.first);
    }
    if (lane == 0) te__attn_bulk_wait_read(), te__barrier_arrive(te__shared_address(&sh->dq_empty[stage]));
}
/* For clusters of two blocks (TWO_CTA): waits until the warpgroups have stored the dQ of a step in shared memory, then
 * adds this block's columns of dQ to the sums in global memory: first the columns that the first warpgroup has
 * computed, then the columns of the second warpgroup. */
template <int D, class C>
TE_FN void te__attn_bwd_dq_add_step_2cta(const te__attn_bwd_params *p, typename C::shared *sh, uint32_t base,
                                         const te__attn_bwd_dq_step &s, int rank) {
    const int lane = (int)threadIdx.x % 32, stage = s.i & 1;
    TE_UNROLL for (int group = 0; group < 2; group++) {
        constexpr int COLUMNS[2] = {C::dq_columns(0), C::dq_columns(1)};
        te__barrier_wait(te__shared_address(&sh->dq_full[2 * stage + group]), s.i >> 1 & 1);
        float *const box = te__attn_bwd_dq_at<D>(p, s.head, C::dq_box(rank, group), s.row);
        const uint32_t from = base + C::dq_slot_at(group, s.i);
        if (lane == 0) {
            if (group) te__attn_bwd_dq_add_piece<COLUMNS[1]>(box, from, 0, s.left, s.first);
            else te__attn_bwd_dq_add_piece<COLUMNS[0]>(box, from, rank * 32, s.left, s.first);
            te__attn_bulk_wait_read();
            te__barrier_arrive(te__shared_address(&sh->dq_empty[C::dq_freed_barrier(group, s.i)]));
        }
        __syncwarp();
    }
}
/* The body of each of the two warps that add dQ to global memory. One warp takes the even steps, the other the odd
 * ones: while one warp waits until the dQ that it has added is in memory, the other one adds the dQ of the next step.
 * For each step a warp waits until the semaphore has reached the value at which this block may add, adds the dQ, and
 * increments the semaphore. stage: 0 or 1, the parity of the warp's steps. */
template <int HEADS, int KV_HEADS, int D, class F, class C>
TE_FN void te__attn_bwd_dq_writer(const te__attn_bwd_params *p, typename C::shared *sh, uint32_t base, int stage) {
    const int lane = (int)threadIdx.x % 32, rank = C::TWO_CTA ? te__cluster_rank() : 0;
    int n = 0; /* the number of steps (tiles of queries) so far, over all key tiles of this block */
    te__attn_bwd_item item;
    te_sequence rows = {0, 0};
    for (int r = 0; te__attn_bwd_item_receive<F, C>(&item, &rows, sh, r); r++) {
        const int batch = item.head / KV_HEADS, seq = te__attn_bwd_seq<F>(p, rows);
        te__attn_bwd_query_tiles w = te__attn_bwd_query_tiles_of<C, HEADS, KV_HEADS, F>(p, item, rows);
        do {
            const int i = n++;
            if ((i & 1) != stage) continue;
            const int q = w.tile * C::QUERIES;
            const int64_t row = te__attn_bwd_first_row<F>(p, rows, batch) + q;
            uint32_t *semaphore = te__attn_bwd_semaphore_at<HEADS, C, F>(p, rows, batch, w.head, w.tile, rank);
            int before = te__attn_bwd_dq_rank<C, HEADS, KV_HEADS, F, 32>(p, item, w.tile, seq);
            const te__attn_bwd_dq_step step = {i, w.head, row, seq - q, !before};
            if (p->any_order && !te__attn_bwd_wraps<F>() && before > 1) before = 1;
            while (before && (int)te__attn_load_acquire(semaphore) < before) {}
            if constexpr (C::TWO_CTA) te__attn_bwd_dq_add_step_2cta<D, C>(p, sh, base, step, rank);
            else te__attn_bwd_dq_add_step<D, C>(p, sh, base, step);
            /* Before the semaphore is incremented, the sums must be in global memory; it would not be enough that the
             * TMA has finished reading shared memory. */
            if (lane == 0) te__attn_bulk_wait(), te__attn_add_release(semaphore);
            /* Make the warp converge again after the polling loop: diverged lanes would slow down the lane that
             * adds. */
            __syncwarp();
        } while (te__attn_bwd_next_query_tile<HEADS, KV_HEADS, F>(&w));
    }
}
#endif

#endif
