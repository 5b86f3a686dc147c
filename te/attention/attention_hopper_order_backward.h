/* attention_hopper_order_backward.h -- attention_hopper_backward.h without its warpgroups: the order in which key tiles
 * are handed out and add their dQ, the warps that bring tiles and add dQ, and the kernels before and after.
 *
 * The sums are in a fixed order. Each tile of queries of a head has a number: how many key tiles have added their dQ of
 * it. A block adds when the number says that it is its turn, waits until what it added is in memory, not only read from
 * shared memory, and counts on. The first one stores instead of adding, so that nothing has to be zeroed. With
 * any_order a block waits for the first one alone; then the same inputs need not give the same bits.
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
 * later one of its band; a band is no larger than the number of blocks, so that one of them is free to take it, or has
 * it.
 */
/* target: cuda */
#ifndef TE_ATTENTION_HOPPER_ORDER_BACKWARD_H
#define TE_ATTENTION_HOPPER_ORDER_BACKWARD_H

#include "attention_args.h"                  /* te_attention_args */
#include "attention_mask.h"                  /* which queries see which keys */
#include "attention_hopper_tools_backward.h" /* te__attn_box_load, te__attn_bulk_add */
#include "attention_mma_forward.h"           /* te__attn_widths */

enum {
    TE_ATTN_KEYS = 128, TE_ATTN_BACK_THREADS = 384,
    TE_ATTN_STAGES = 2,          /* of Q, dO, dS, dQ */
    TE_ATTN_DQ_BYTES = 64 * 256, /* of a warpgroup: 64 queries by 64 columns of f32 */
    TE_ATTN_SUM_ROWS = 32,       /* <name>_sum_rows */
    TE_ATTN_BAND = 16,           /* key tiles of a head that are handed out together, at least. 4: 2 to 4% slower */
    TE_ATTN_DELTA_THREADS = 256, TE_ATTN_ROUND_THREADS = 256
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
    te_attention_args a;
    float *dq;              /* [heads, head_dim / 64, batch * seq, 64], see te__attn_back_dq_at */
    uint32_t *ticket;       /* key tiles that were handed out; 0 before the second kernel */
    uint32_t *turn; /* [batch, heads, query_tiles]: key tiles that have added their dQ; 0 before the second kernel */
    int key_tiles, query_tiles;
    int items, band; /* key tiles of all heads; so many of a head are handed out together */
    int any_order;   /* te_context.attention_unrepeatable */
} te_attn_back;

template <int QUERIES> struct te__attn_back_shared {
    float lse[TE_ATTN_STAGES][QUERIES], delta[TE_ATTN_STAGES][QUERIES]; /* lse in powers of 2 */
    float part[2][2][16];
    int4 item[TE_ATTN_STAGES];
    uint64_t item_full[TE_ATTN_STAGES], item_empty[TE_ATTN_STAGES], v_full, v_empty, k_full, k_empty;
    uint64_t q_full[TE_ATTN_STAGES], q_empty[TE_ATTN_STAGES], do_full[TE_ATTN_STAGES], do_empty[TE_ATTN_STAGES];
    uint64_t ds_full[TE_ATTN_STAGES], ds_empty[TE_ATTN_STAGES];
    uint64_t dq_full[TE_ATTN_STAGES], dq_empty[TE_ATTN_STAGES];
};

/* The sizes that follow from head_dim: a step of 16 KB of Q. */
template <int D> struct te__attn_back_shape {
    static constexpr int QUERIES = D <= 64 ? 128 : 64;
    static constexpr int AHEAD = QUERIES <= 64; /* there are registers to load lse and delta ahead of their use */
    static constexpr int KV_BYTES = TE_ATTN_KEYS * D * 2, Q_BYTES = QUERIES * D * 2;
    static constexpr int DS_BYTES = TE_ATTN_KEYS * QUERIES * 2;
    /* K, V, then Q and dO of each stage, dS, dQ */
    static constexpr int Q_AT = 2 * KV_BYTES, DS_AT = Q_AT + TE_ATTN_STAGES * 2 * Q_BYTES;
    static constexpr int DQ_AT = DS_AT + TE_ATTN_STAGES * DS_BYTES;
    static constexpr int BYTES = DQ_AT + TE_ATTN_STAGES * 2 * TE_ATTN_DQ_BYTES;
    /* The warpgroups issue their products in turns, so that one exponentiates while the other multiplies. Measured on
     * an H200: at head_dim 64 1.11 times as fast, at 128, where shared memory is as busy as the tensor cores, 0.96. */
    static constexpr int IN_TURNS = D <= 64;
    typedef te__attn_back_shared<QUERIES> shared;
};

/* ---- the order --------------------------------------------------------------------------------------------------- */

/* Whether key tiles walk from the last tile of queries to the first. */
template <class F> TE_FN constexpr int te__attn_downwards(int heads, int kv_heads) {
    return F::RIGHT == 0 && kv_heads < heads;
}
/* Whether they go on at the first tile of queries when they have done the last: all of them walk all tiles. */
template <class F> TE_FN constexpr int te__attn_wraps(void) { return F::LEFT < 0 && F::RIGHT < 0; }
/* Item i: x: batch * kv_heads + kv_head, y: its key tile, z and w: the first and the last one of its band. */
template <int HEADS, int KV_HEADS, class F> TE_FN int4 te__attn_item(const te_attn_back *p, int i) {
    const int heads = p->a.batch * KV_HEADS, whole = p->key_tiles / p->band * p->band; /* whole: in whole bands */
    const int first = i / (p->band * heads) * p->band;
    const int high = first < whole ? p->band : p->key_tiles - whole, at = i - first * heads, n = at % high;
    return make_int4(at / high, te__attn_downwards<F>(HEADS, KV_HEADS) ? first + n : first + high - 1 - n, first,
                     first + high - 1);
}
/* How many key tiles add their dQ of this tile of queries before this one does: those that come to it sooner. In full
 * attention the last of a band is the first to be handed out, begins the furthest on, and goes on at the first tile of
 * queries when it has done the last. */
template <class C, int HEADS, int KV_HEADS, class F>
TE_FN int te__attn_turn(const int4 &item, int tile, int seq) {
    if (!te__attn_wraps<F>()) {
        const te__attn_mask m = te__attn_mask_of(seq, F::LEFT, F::RIGHT);
        const te__attn_span t = te__attn_in_tiles(te__attn_keys_of(m, tile * C::QUERIES, C::QUERIES), TE_ATTN_KEYS);
        if (te__attn_downwards<F>(HEADS, KV_HEADS)) return item.y - t.first;
        const int last = t.end - 1, before = item.z > t.first ? item.z - t.first : 0; /* of the bands before */
        return before + (last < item.w ? last : item.w) - item.y;
    }
    const int last = item.z + tile * C::QUERIES / TE_ATTN_KEYS;
    const int begun = last < item.w ? last : item.w; /* the last that begins at this tile, or before it */
    return item.z + begun - item.y + (item.y <= begun ? 0 : item.w - item.z + 1);
}
/* Where 64 columns of dQ are added up, from a query on. 64 queries of one sequence are as they leave the accumulators:
 * 16 bytes a lane, those of all 128 lanes of a warpgroup, eight times. What is left at the end of a sequence is
 * [queries, 64]. */
template <int D> TE_FN float *te__attn_back_dq_at(const te_attn_back *p, int head, int half, int64_t row) {
    return p->dq + (((int64_t)head * (D / 64) + half) * p->a.batch * p->a.seq + row) * 64;
}

/* The tiles of queries that an item walks, each for all query heads of the group. Towards lower ones if causal and
 * grouped: then all key tiles of a head begin at the same tile, and stay together. */
typedef struct te__attn_walk { int head, tile, left, tiles; } te__attn_walk;
template <class C, int HEADS, int KV_HEADS, class F>
TE_FN te__attn_walk te__attn_walk_of(const te_attn_back *p, const int4 &item) {
    te__attn_walk w;
    const te__attn_mask m = te__attn_mask_of(p->a.seq, F::LEFT, F::RIGHT);
    const te__attn_span tiles =
        te__attn_in_tiles(te__attn_queries_of(m, item.y * TE_ATTN_KEYS, TE_ATTN_KEYS), C::QUERIES);
    w.head = item.x % KV_HEADS * (HEADS / KV_HEADS), w.left = (tiles.end - tiles.first) * (HEADS / KV_HEADS);
    w.tile = te__attn_wraps<F>() ? (item.y - item.z) * TE_ATTN_KEYS / C::QUERIES : tiles.first;
    if (te__attn_downwards<F>(HEADS, KV_HEADS)) w.tile = tiles.end - 1;
    w.tiles = p->query_tiles;
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

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- the warps that bring what is needed ------------------------------------------------------------------------- */

/* The next item, for the warps that do not hand them out; 0: there is none. */
template <class S> TE_FN int te__attn_item_take(int4 *item, S *sh, int r) {
    te__barrier_wait(te__shared_address(&sh->item_full[r & 1]), r >> 1 & 1);
    const int4 v = sh->item[r & 1];
    *item = make_int4(__shfl_sync(~0u, v.x, 0), __shfl_sync(~0u, v.y, 0), __shfl_sync(~0u, v.z, 0),
                      __shfl_sync(~0u, v.w, 0)); /* the compiler sees that lanes agree */
    if (threadIdx.x % 32 < TE_ATTN_ARRIVING) te__barrier_arrive(te__shared_address(&sh->item_empty[r & 1]));
    return item->y >= 0;
}

/* One thread hands out items and brings K, V, Q and dO. */
template <int HEADS, int KV_HEADS, int D, class F, class C>
TE_FN void te__attn_back_load(const te_attn_back *p, typename C::shared *sh, uint32_t base) {
    int i = 0;
    for (int r = 0;; r++) {
        const int s = r & 1, now = (int)atomicAdd(p->ticket, 1u); /* not sooner: others wait for who has it */
        int4 item = make_int4(0, -1, 0, 0);
        if (now < p->items) item = te__attn_item<HEADS, KV_HEADS, F>(p, now);
        te__barrier_wait(te__shared_address(&sh->item_empty[s]), (r >> 1 & 1) ^ 1);
        sh->item[s] = item;
        te__barrier_arrive(te__shared_address(&sh->item_full[s]));
        if (item.y < 0) return;

        const int batch = item.x / KV_HEADS;
        TE_UNROLL for (int k = 1; k >= 0; k--) { /* V, which is free first, then K */
            const int x = (HEADS + (k ? KV_HEADS : 0) + item.x % KV_HEADS) * D;
            const uint32_t full = te__shared_address(k ? &sh->v_full : &sh->k_full);
            te__barrier_wait(te__shared_address(k ? &sh->v_empty : &sh->k_empty), (r & 1) ^ 1);
            te__barrier_expect(full, C::KV_BYTES);
            TE_UNROLL for (int b = 0; b < D / 64 * 2; b++) /* 64 keys, 64 columns */
                te__attn_box_load(base + k * C::KV_BYTES + b * 8192, &p->qkv, x + b / 2 * 64,
                                  item.y * TE_ATTN_KEYS + b % 2 * 64, batch, full);
        }
        te__attn_walk w = te__attn_walk_of<C, HEADS, KV_HEADS, F>(p, item);
        do {
            const int st = i & 1, again = (i >> 1 & 1) ^ 1;
            const uint32_t q = base + C::Q_AT + st * 2 * C::Q_BYTES, qf = te__shared_address(&sh->q_full[st]),
                           of = te__shared_address(&sh->do_full[st]);
            te__barrier_wait(te__shared_address(&sh->q_empty[st]), again);
            te__barrier_expect(qf, C::Q_BYTES);
            TE_UNROLL for (int b = 0; b < 2; b++) /* two boxes of 64 queries, or of 64 columns */
                te__attn_box_load(q + b * 8192, &p->qkv, w.head * D + (D > 64 ? b * 64 : 0),
                                  w.tile * C::QUERIES + (D > 64 ? 0 : b * 64), batch, qf);
            te__barrier_wait(te__shared_address(&sh->do_empty[st]), again);
            te__barrier_expect(of, C::Q_BYTES);
            TE_UNROLL for (int b = 0; b < 2; b++)
                te__attn_box_load(q + C::Q_BYTES + b * 8192, &p->dout, w.head * D + (D > 64 ? b * 64 : 0),
                                  w.tile * C::QUERIES + (D > 64 ? 0 : b * 64), batch, of);
            i++;
        } while (te__attn_walk_on<HEADS, KV_HEADS, F>(&w));
    }
}

/* A warp brings lse and delta. Queries that do not exist get an lse that makes P zero. */
template <int HEADS, int KV_HEADS, class F, class C>
TE_FN void te__attn_back_rows(const te_attn_back *p, typename C::shared *sh) {
    constexpr int EACH = C::QUERIES / 32;
    const int lane = (int)threadIdx.x % 32, seq = p->a.seq;
    int i = 0;
    int4 item;
    for (int r = 0; te__attn_item_take(&item, sh, r); r++) {
        te__attn_walk w = te__attn_walk_of<C, HEADS, KV_HEADS, F>(p, item);
        do {
            const int st = i & 1, again = (i >> 1 & 1) ^ 1, q = w.tile * C::QUERIES + lane;
            const int64_t at = ((int64_t)(item.x / KV_HEADS) * HEADS + w.head) * seq + q;
            float lse[EACH], delta[EACH];
            TE_UNROLL for (int e = 0; e < EACH; e++) {
                lse[e] = INFINITY, delta[e] = 0;
                if (q + 32 * e < seq)
                    lse[e] = p->a.lse[at + 32 * e] * TE__ATTN_LOG2E, delta[e] = p->a.delta[at + 32 * e];
            }
            te__barrier_wait(te__shared_address(&sh->q_empty[st]), again);
            TE_UNROLL for (int e = 0; e < EACH; e++) sh->lse[st][lane + 32 * e] = lse[e];
            __syncwarp();
            if (lane < TE_ATTN_ARRIVING) te__barrier_arrive(te__shared_address(&sh->q_full[st]));
            te__barrier_wait(te__shared_address(&sh->do_empty[st]), again);
            TE_UNROLL for (int e = 0; e < EACH; e++) sh->delta[st][lane + 32 * e] = delta[e];
            __syncwarp();
            if (lane < TE_ATTN_ARRIVING) te__barrier_arrive(te__shared_address(&sh->do_full[st]));
            i++;
        } while (te__attn_walk_on<HEADS, KV_HEADS, F>(&w));
    }
}

/* A warp adds the dQ of every other step when it is this block's turn; then it is the next one's. */
template <int HEADS, int KV_HEADS, int D, class F, class C>
TE_FN void te__attn_back_turns(const te_attn_back *p, typename C::shared *sh, uint32_t base, int stage) {
    const int lane = (int)threadIdx.x % 32, seq = p->a.seq;
    const uint32_t from = base + C::DQ_AT + stage * 2 * TE_ATTN_DQ_BYTES,
                   full = te__shared_address(&sh->dq_full[stage]), empty = te__shared_address(&sh->dq_empty[stage]);
    int n = 0; /* steps */
    int4 item;
    for (int r = 0; te__attn_item_take(&item, sh, r); r++) {
        const int batch = item.x / KV_HEADS;
        te__attn_walk w = te__attn_walk_of<C, HEADS, KV_HEADS, F>(p, item);
        do {
            if ((n++ & 1) != stage) continue;
            const int q = w.tile * C::QUERIES;
            uint32_t *turn = p->turn + (batch * HEADS + w.head) * p->query_tiles + w.tile;
            int wanted = te__attn_turn<C, HEADS, KV_HEADS, F>(item, w.tile, seq);
            const int first = !wanted;
            if (p->any_order && wanted > 1) wanted = 1;
            while (wanted && (int)te__attn_acquire(turn) < wanted) {}
            te__barrier_wait(full, (n - 1) >> 1 & 1);
            TE_UNROLL for (int group = 0; group < 2 && lane == 0; group++) {
                const int left = seq - q - (D > 64 ? 0 : group * 64), rows = left < 64 ? left : 64;
                float *to = te__attn_back_dq_at<D>(p, w.head, D > 64 ? group : 0,
                                                   (int64_t)batch * seq + q + (D > 64 ? 0 : group * 64));
                if (rows > 0 && first) te__attn_bulk_store(to, from + group * TE_ATTN_DQ_BYTES, rows * 256);
                else if (rows > 0) te__attn_bulk_add(to, from + group * TE_ATTN_DQ_BYTES, rows * 256);
            }
            if (lane == 0) {
                te__attn_bulk_read();
                te__barrier_arrive(empty);
                te__attn_bulk_done(); /* not only read: added */
                te__attn_release_add(turn);
            }
            __syncwarp(); /* the lanes stay together: some that wait by themselves would hold up the one that works */
        } while (te__attn_walk_on<HEADS, KV_HEADS, F>(&w));
    }
}
#endif

#endif
