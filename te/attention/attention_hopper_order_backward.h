/* attention_hopper_order_backward.h -- the order in which attention_hopper_backward.h hands out key tiles, and in which
 * they add their dQ.
 *
 * The sums are in a fixed order. Each tile of queries of a head has a number: how many key tiles have added their dQ of
 * it. A block adds when the number says that it is its turn, waits until what it added is in memory, not only read from
 * shared memory, and counts on. The first one stores instead of adding, so that nothing has to be zeroed. With
 * any_order a block waits for the first one alone; then the same inputs need not give the same bits. In full attention
 * it waits for its turn in any case: that is up to 5% faster than blocks that add to the same tile at once. Where two
 * blocks of a cluster share a key tile, each adds its own half of the columns, which has numbers of its own; what is
 * said of blocks below is then said of clusters.
 *
 * Key tiles are handed out in bands of neighbours, one band of each head after the other, the longest first. Who comes
 * to a tile of queries sooner has its turn sooner (as in DASH, arXiv 2601.21824):
 *     causal: the last of a band is handed out first. It begins the furthest on, and the others follow two tiles of
 *     queries or one behind each other.
 *     full: the same, and who has come to the end goes on at the first tile of queries.
 *     windows: as causal, from the first tile of queries that sees the key tile.
 *     causal, grouped: from the last tile of queries down, the first of a band first. So all of a head begin at the
 *     same tile and stay together, and what they read, eight heads at a time, stays in the L2.
 * A causal block waits only for key tiles that were handed out before its own. In full attention it may wait for a
 * later one of its band. It takes none of these itself while it waits, for its warps add in order; and a band is no
 * larger than the number of blocks, so that another one is free to take it, or has it.
 *
 * Sequences that differ in length come one after the other, each with bands of its own, no larger than above. Numbers
 * of key tiles that do not exist are handed out, too: who gets one asks for the next. Nobody waits for them, since
 * turns count the key tiles that the sequence has. All blocks walk the sequences alike (core/tensor.h), whatever
 * cu_seqlens says: each key tile that turns count is handed out once.
 */
/* target: cuda */
#ifndef TE_ATTENTION_HOPPER_ORDER_BACKWARD_H
#define TE_ATTENTION_HOPPER_ORDER_BACKWARD_H

#include "attention_options.h"                  /* te_attention_args */
#include "impl/attention_mask.h"                  /* which queries see which keys */
#include "attention_hopper_tools_backward.h" /* te__attn_box_load, te__attn_bulk_add */
#include "impl/attention_sm80_forward.h"           /* te__attn_widths */

enum {
    TE_ATTN_BACK_THREADS = 384,
    TE_ATTN_STAGES = 2,          /* of Q, dS, and mostly dO */
    TE_ATTN_DQ_BYTES = 64 * 256, /* a piece of dQ: 64 queries by 64 columns of f32 */
    TE_ATTN_BAND = 16,           /* key tiles of a head that are handed out together, at least. 4: 2 to 4% slower */
    TE_ATTN_DELTA_THREADS = 256
};

/* Lanes of a warp that arrive at a barrier. One is enough, for the lanes of a warp are together where it does. To
 * compute-sanitizer's racecheck only what the arriving lanes did is ordered: compile with TE_RACECHECK for it, and all
 * arrive (up to 6% slower at head_dim 128). */
#ifdef TE_RACECHECK
enum { TE_ATTN_ARRIVING = 32 };
#else
enum { TE_ATTN_ARRIVING = 1 };
#endif

typedef struct te_attn_back {
    CUtensorMap qkv, dout; /* [batch, seq, width] */
    CUtensorMap kv;        /* cross: [batch, kv_seq, width] */
    te_attention_args a;
    float *dq;              /* [heads, ceil(head_dim / 64), batch * seq, 64], see te__attn_back_dq_at */
    uint32_t *ticket;       /* key tiles that were handed out; 0 before the second kernel */
    uint32_t *turn; /* [batch, heads, query_tiles, blocks of a cluster]: key tiles that have added their dQ, of which
                       each block of a cluster has its part; 0 before the second kernel */
    int turns;      /* how many of these */
    int key_tiles, query_tiles;
    int items, band; /* key tiles of all heads; so many of a head are handed out together */
    int any_order;   /* te_context.attention_nondeterministic */
    te_sequences of; /* varlen: the sequences; dout and qkv are [rows, width] then, turn is [heads, query_tiles], */
} te_attn_back;      /* and query_tiles and key_tiles count those of te_sequence_tiles */

template <int QUERIES, bool ADDED> struct te__attn_back_shared {
    /* lse in powers of 2. If added both are in lse: 16 bytes of each query, which te__attn_back_terms_at describes */
    alignas(16) float lse[TE_ATTN_STAGES][ADDED ? 4 * QUERIES : QUERIES], delta[TE_ATTN_STAGES][ADDED ? 1 : QUERIES];
    float part[2][2][16];
    int4 item[TE_ATTN_STAGES];
    uint64_t item_full[TE_ATTN_STAGES], item_empty[TE_ATTN_STAGES], v_full, v_empty, k_full, k_empty;
    uint64_t q_full[TE_ATTN_STAGES], q_empty[TE_ATTN_STAGES], do_full[TE_ATTN_STAGES], do_empty[TE_ATTN_STAGES];
    uint64_t ds_full[TE_ATTN_STAGES], ds_empty[TE_ATTN_STAGES];
    uint64_t dq_full[2 * TE_ATTN_STAGES], dq_empty[2 * TE_ATTN_STAGES]; /* wide: of two warpgroups */
    te_sequence rows[TE_ATTN_STAGES]; /* varlen: the item's */
    uint64_t p_full[TE_ATTN_STAGES];  /* wide */
};

/* The sizes that follow from head_dim, and V, the size of a head of v, which dO has, too: another one where it is WIDE
 * alone. WIDE: the kernel of attention_hopper_wide_backward.h, where a key tile is of a cluster of two blocks, which
 * have 64 keys each. In shared memory a tile has whole boxes of 64 columns; those past head_dim are of the next head,
 * and what comes of them is not used. */
template <int D, int V = D, bool LINES_ADDED = false> struct te__attn_back_shape {
    static_assert(V == D || (D > 128 && V % 64 == 0), "te: attention: the kernel of one block has one head size");
    static constexpr int WIDE = D > 128, CLUSTER = WIDE ? 2 : 1, QUERIES = D <= 64 ? 128 : 64;
    static constexpr int KEYS = 128, BLOCK_KEYS = KEYS / CLUSTER;
    static constexpr int BOXES = (D + 63) / 64, V_BOXES = (V + 63) / 64;
    static constexpr int DO_STAGES = D > 192 ? 1 : TE_ATTN_STAGES;
    static constexpr int SUM_ROWS = WIDE ? 16 : 32; /* <name>_sum_rows */
    /* lse and delta are added by the products; or there are registers to load them ahead of use */
    static constexpr int ADDED = LINES_ADDED, AHEAD = !WIDE && QUERIES <= 64 && !ADDED;
    /* The warpgroups make dQ in turns, all of a step: dS is read once for it, not twice. */
    static constexpr int DQ_BY_ONE = !WIDE && D > 64, DQ_PIECE = DQ_BY_ONE ? 64 : 32; /* elements of a lane */
    static constexpr int K_BYTES = BLOCK_KEYS * BOXES * 128, V_BYTES = BLOCK_KEYS * V_BOXES * 128;
    static constexpr int Q_BYTES = QUERIES * BOXES * 128, DO_BYTES = QUERIES * V_BOXES * 128;
    static constexpr int DS_BYTES = KEYS * QUERIES * 2;
    /* K, V, then Q and dO of each stage (of dO there may be one only), dS, dQ: of each warpgroup a piece of each stage;
     * if wide two boxes of the other block's K, and dQ as below */
    static constexpr int Q_AT = K_BYTES + V_BYTES, DO_AT = Q_AT + (DO_STAGES > 1 ? 1 : TE_ATTN_STAGES) * Q_BYTES;
    static constexpr int Q_PITCH = Q_BYTES + (DO_STAGES > 1 ? DO_BYTES : 0); /* from a stage to the next */
    static constexpr int DS_AT = Q_AT + TE_ATTN_STAGES * Q_BYTES + DO_STAGES * DO_BYTES;
    static constexpr int DQ_AT = DS_AT + TE_ATTN_STAGES * DS_BYTES;
    /* If wide a block makes half of the columns of dQ. Each warpgroup has a piece of them, a box of 64 columns; but of
     * three boxes the one in the middle is shared by the blocks, and the first warpgroup has half of that, for it has
     * the exponentials. On its way out a piece has one slot of memory, or two in turns; of four boxes both warpgroups
     * share a slot, in turns. */
    static constexpr int SHARE_SLOT = BOXES == 4, SLOTS = BOXES + V_BOXES <= 5 ? 2 : 1;
    static constexpr int FIRST_BYTES = BOXES == 3 ? TE_ATTN_DQ_BYTES / 2 : TE_ATTN_DQ_BYTES;
    static constexpr int DQ_BYTES = !WIDE ? TE_ATTN_STAGES * 2 * TE_ATTN_DQ_BYTES
                                          : SHARE_SLOT ? TE_ATTN_DQ_BYTES : SLOTS * (TE_ATTN_DQ_BYTES + FIRST_BYTES);
    static constexpr int OTHER_AT = DQ_AT + DQ_BYTES, BYTES = OTHER_AT + (WIDE ? 2 * 8192 : 0);
    static __device__ __forceinline__ constexpr int piece_columns(int group) { return !group && BOXES == 3 ? 32 : 64; }
    static __device__ __forceinline__ constexpr int piece_box(int rank, int group) {
        return BOXES == 4 ? 2 * rank + group : group ? 2 * rank : 1;
    }
    /* Of a warpgroup's piece in step i: where it lies; the barrier dq_empty whose phase of this parity says that what
     * was there before is gone, and the barrier that is told when this piece is. */
    static __device__ __forceinline__ int piece_at(int group, int i) {
        if (SHARE_SLOT) return DQ_AT;
        const int slot = SLOTS == 2 ? i & 1 : 0;
        return DQ_AT + (group ? slot * TE_ATTN_DQ_BYTES : SLOTS * TE_ATTN_DQ_BYTES + slot * FIRST_BYTES);
    }
    static __device__ __forceinline__ int piece_empty(int group, int i) {
        return 2 * group + (!SHARE_SLOT && SLOTS == 2 ? i & 1 : 0);
    }
    static __device__ __forceinline__ int piece_phase(int group, int i) {
        return ((SHARE_SLOT ? i + group : SLOTS == 2 ? i >> 1 : i) & 1) ^ 1;
    }
    static __device__ __forceinline__ int piece_gone(int group, int i) {
        return piece_empty(SHARE_SLOT ? group ^ 1 : group, i); /* a slot for both: now it is the other's turn */
    }
    /* The stage of dO in step i, and the parity of its barriers. */
    static __device__ __forceinline__ int do_stage(int i) { return DO_STAGES > 1 ? i & 1 : 0; }
    static __device__ __forceinline__ int do_phase(int i) { return DO_STAGES > 1 ? i >> 1 & 1 : i & 1; }
    /* The warpgroups issue their products in turns, so that one exponentiates while the other multiplies. Measured on
     * an H200: at head_dim 64 1.11 times as fast, at 128, where shared memory is as busy as the tensor cores, 0.96. */
    static constexpr int IN_TURNS = D <= 64;
    typedef te__attn_back_shared<QUERIES, LINES_ADDED> shared;
};

/* Whether the products for S and dP begin with -lse / scale and -delta: sixteen columns more of K and V, ones, by as
 * many of Q and dO, in which a query has its number as three terms of bf16. That is every bit of it, takes 128 cycles
 * of the tensor cores a step, and saves 192 of shared memory, which is busier: each of the eight warps would load all
 * numbers of a tile for itself. Other forms of scores need S as it is, and f16 has not the range. */
template <te_dtype T, int D, class F> TE_FN constexpr bool te__attn_lines_added(void) {
    return T == TE_bf16 && D > 64 && D <= 128 && !F::SEPARATE_DS && !F::ALIBI && F::BIAS == TE_BIAS_none;
}
template <te_dtype T, int D, class F>
using te__attn_back_of = te__attn_back_shape<D, te__attn_value_dim<D, F>(), te__attn_lines_added<T, D, F>()>;

/* ---- the order --------------------------------------------------------------------------------------------------- */

/* Whether key tiles walk from the last tile of queries to the first. */
template <class F> TE_FN constexpr int te__attn_downwards(int heads, int kv_heads) {
    return F::RIGHT == 0 && kv_heads < heads;
}
/* Whether they go on at the first tile of queries when they have done the last: all of them walk all tiles. */
template <class F> TE_FN constexpr int te__attn_wraps(void) { return F::LEFT < 0 && F::RIGHT < 0; }
/* Item i of so many heads: x: batch * kv_heads + kv_head, y: its key tile, z and w: the first and the last one of its
 * band. */
template <int HEADS, int KV_HEADS, class F>
TE_FN int4 te__attn_item(int i, int heads, int key_tiles, int band) {
    const int whole = key_tiles / band * band; /* in whole bands */
    const int first = i / (band * heads) * band;
    const int high = first < whole ? band : key_tiles - whole, at = i - first * heads, n = at % high;
    return make_int4(at / high, te__attn_downwards<F>(HEADS, KV_HEADS) ? first + n : first + high - 1 - n, first,
                     first + high - 1);
}
/* The item of ticket i; y: -1: there are no more. Varlen: -2: it does not exist. walk: stands at its sequence then. */
template <int HEADS, int KV_HEADS, class F, class C>
TE_FN int4 te__attn_item_of(const te_attn_back *p, int i, te_sequence_cursor *walk) {
    int4 item = make_int4(0, -1, 0, 0);
    if (i >= p->items) return item;
    if constexpr (!F::VARLEN) {
        item = te__attn_item<HEADS, KV_HEADS, F>(i, p->a.batch * KV_HEADS, p->key_tiles, p->band);
    } else {
        te_sequence_cursor_seek(walk, &p->of, i / KV_HEADS, C::KEYS);
        const int tiles = (walk->at.count + C::KEYS - 1) / C::KEYS, in = i - walk->tile * KV_HEADS;
        item.y = -2;
        if (in >= tiles * KV_HEADS) return item;
        item = te__attn_item<HEADS, KV_HEADS, F>(in, KV_HEADS, tiles, tiles < p->band ? tiles : p->band);
        item.x += walk->index * KV_HEADS;
    }
    return item;
}
/* What the item's sequence is, and the numbers that follow from it. Without varlen they lie in the arguments. */
template <class F> TE_FN int te__attn_seq(const te_attn_back *p, const te_sequence &rows) {
    return F::VARLEN ? rows.count : p->a.seq;
}
template <class F> TE_FN int te__attn_keys(const te_attn_back *p, const te_sequence &rows) {
    return F::CROSS ? p->a.kv_seq : te__attn_seq<F>(p, rows);
}
template <class F> TE_FN te__attn_mask te__attn_back_mask(const te_attn_back *p, int seq) {
    if constexpr (F::CROSS) return te__attn_mask_between(p->a.seq, p->a.kv_seq, F::LEFT, F::RIGHT);
    else return te__attn_mask_of(seq, F::LEFT, F::RIGHT);
}
/* Its first row, counted over all sequences. */
template <class F> TE_FN int64_t te__attn_first(const te_attn_back *p, const te_sequence &rows, int batch) {
    return F::VARLEN ? rows.first : (int64_t)batch * p->a.seq;
}
/* Where lse and delta of a head's query 0 are. */
template <int HEADS, class F>
TE_FN int64_t te__attn_rows_at(const te_attn_back *p, const te_sequence &rows, int batch, int head) {
    if (F::VARLEN) return (int64_t)head * p->of.rows + rows.first;
    return ((int64_t)batch * HEADS + head) * p->a.seq;
}
/* The number of a head's tile of queries, of this block of the cluster. */
template <int HEADS, class C, class F>
TE_FN uint32_t *te__attn_turn_at(const te_attn_back *p, const te_sequence &rows, int batch, int head, int tile,
                                 int rank) {
    if (F::VARLEN) tile += head * p->query_tiles + rows.first / C::QUERIES + batch;
    else tile += (batch * HEADS + head) * p->query_tiles;
    return p->turn + tile * C::CLUSTER + rank;
}
/* Full attention: the tile of queries at which number n of a band begins; and its steps before it comes to a tile. */
template <class C> TE_FN int te__attn_begins(const te_attn_back *p, int n) {
    return n * C::KEYS / C::QUERIES % p->query_tiles;
}
template <class C> TE_FN int te__attn_steps(const te_attn_back *p, int n, int tile) {
    const int steps = tile - te__attn_begins<C>(p, n);
    return steps < 0 ? steps + p->query_tiles : steps;
}
/* How many key tiles add their dQ of this tile of queries before this one does: those that come to it sooner. In full
 * attention the last of a band is the first to be handed out, begins the furthest on, and goes on at the first tile of
 * queries when it has done the last. With keys of their own these may be more than queries, and begin at each tile more
 * than once; then they are counted, by LANES lanes of a warp, the later key tile first of those that come together. */
template <class C, int HEADS, int KV_HEADS, class F, int LANES>
TE_FN int te__attn_turn(const te_attn_back *p, const int4 &item, int tile, int seq) {
    if (!te__attn_wraps<F>()) {
        const te__attn_mask m = te__attn_back_mask<F>(p, seq);
        const te__attn_range t = te__attn_in_tiles(te__attn_keys_of(m, tile * C::QUERIES, C::QUERIES), C::KEYS);
        if (te__attn_downwards<F>(HEADS, KV_HEADS)) return item.y - t.first;
        const int last = t.end - 1, before = item.z > t.first ? item.z - t.first : 0; /* of the bands before */
        return before + (last < item.w ? last : item.w) - item.y;
    }
    if constexpr (F::CROSS) {
        int sooner = 0;
        for (int other = item.z + (int)threadIdx.x % LANES; other <= item.w; other += LANES) {
            const int ahead = te__attn_steps<C>(p, other - item.z, tile) - te__attn_steps<C>(p, item.y - item.z, tile);
            sooner += ahead < 0 || (ahead == 0 && other > item.y);
        }
        return item.z + (LANES > 1 ? __reduce_add_sync(~0u, sooner) : sooner);
    }
    const int last = item.z + tile * C::QUERIES / C::KEYS;
    const int begun = last < item.w ? last : item.w; /* the last that begins at this tile, or before it */
    return item.z + begun - item.y + (item.y <= begun ? 0 : item.w - item.z + 1);
}
/* Where 64 columns of dQ are added up, from a query on. 64 queries of one sequence are as they leave the accumulators:
 * 16 bytes a lane, those of all 128 lanes of a warpgroup, eight times. What is left at the end of a sequence is
 * [queries, 64]. */
template <int D> TE_FN float *te__attn_back_dq_at(const te_attn_back *p, int head, int piece, int64_t row) {
    return p->dq + (((int64_t)head * te__attn_back_shape<D>::BOXES + piece) * p->of.rows + row) * 64;
}

/* The tiles of queries that an item walks, each for all query heads of the group. Towards lower ones if causal and
 * grouped: then all key tiles of a head begin at the same tile, and stay together. */
typedef struct te__attn_walk { int head, tile, left, tiles; } te__attn_walk;
template <class C, int HEADS, int KV_HEADS, class F>
TE_FN te__attn_walk te__attn_walk_of(const te_attn_back *p, const int4 &item, const te_sequence &rows) {
    te__attn_walk w;
    const te__attn_mask m = te__attn_back_mask<F>(p, te__attn_seq<F>(p, rows));
    const te__attn_range tiles =
        te__attn_in_tiles(te__attn_queries_of(m, item.y * C::KEYS, C::KEYS), C::QUERIES);
    w.head = item.x % KV_HEADS * (HEADS / KV_HEADS), w.left = (tiles.end - tiles.first) * (HEADS / KV_HEADS);
    w.tile = te__attn_wraps<F>() ? (item.y - item.z) * C::KEYS / C::QUERIES : tiles.first;
    if (F::CROSS && te__attn_wraps<F>()) w.tile = te__attn_begins<C>(p, item.y - item.z);
    if (te__attn_downwards<F>(HEADS, KV_HEADS)) w.tile = tiles.end - 1;
    w.tiles = F::VARLEN ? tiles.end : p->query_tiles;
    return w;
}
/* On to the next one; 0: there is none. */
template <int HEADS, int KV_HEADS, class F> TE_FN int te__attn_walk_on(te__attn_walk *w) {
    constexpr int GROUP = HEADS / KV_HEADS;
    if (GROUP == 1 || ++w->head % GROUP == 0) {
        if (GROUP > 1) w->head -= GROUP;
        w->tile += te__attn_downwards<F>(HEADS, KV_HEADS) ? -1 : 1;
        if (te__attn_wraps<F>() && w->tile == w->tiles) w->tile = 0;
    }
    return --w->left;
}

#endif
