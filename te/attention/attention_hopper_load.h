/* attention_hopper_load.h -- the forward's shapes on Hopper, the order of its tiles, and the warp that loads them. */
/* target: cuda */
#ifndef TE_ATTENTION_HOPPER_LOAD_H
#define TE_ATTENTION_HOPPER_LOAD_H

#include "attention_hopper_rows.h" /* softmax and the way out; attention_hopper.h: products, tiles */

/* KEYS: of a tile. GROUPS: warpgroups of 64 queries. TURNS: they take turns to issue their products. K has a stage more
 * than V, where there is room: it is kept until P is found to be good. V: the size of a head of v. */
template <int D_, int KEYS_, int GROUPS_, int Q_STAGES_, int K_STAGES_, int V_STAGES_, int TURNS_, int V_ = D_>
struct te__attn_hopper_shape {
    static constexpr int D = D_, V = V_, KEYS = KEYS_, GROUPS = GROUPS_, TURNS = TURNS_;
    static constexpr int Q_STAGES = Q_STAGES_, K_STAGES = K_STAGES_, V_STAGES = V_STAGES_;
    static constexpr int ROWS = 64 * GROUPS, THREADS = 128 * (GROUPS + 1), BOXES = (D + 63) / 64;
    static constexpr int PACKED = KEYS / 4; /* words of P in a thread */
    typedef float scores[KEYS / 2];
    /* registers of a thread that loads, and of one that multiplies: no more than the block was launched with */
    static constexpr int LOADS = GROUPS == 2 ? 40 : 32, MULTIPLIES = GROUPS == 2 ? 232 : 160;
    static constexpr int Q_PART = BOXES * 64 * 128; /* bytes of a warpgroup's tile of Q */
    static constexpr int Q_BYTES = GROUPS * Q_PART;
    static constexpr int K_BYTES = BOXES * KEYS * 128, V_BYTES = (V + 63) / 64 * KEYS * 128;
    static constexpr int SHARED = Q_STAGES * Q_BYTES + K_STAGES * K_BYTES + V_STAGES * V_BYTES + 1024;
    static_assert(SHARED <= 227 * 1024 - 512, "te: attention: the tiles exceed shared memory");
    static_assert(KEYS % 64 == 0 && ROWS - 64 <= KEYS, "te: attention: te__attn_step, te__attn_keys_skip expect it");
};
template <int D, int V = D> struct te__attn_hopper_forward_shape;
template <> struct te__attn_hopper_forward_shape<64> : te__attn_hopper_shape<64, 128, 3, 2, 4, 3, 1> {};
template <> struct te__attn_hopper_forward_shape<96> : te__attn_hopper_shape<96, 128, 2, 2, 3, 2, 1> {};
template <> struct te__attn_hopper_forward_shape<128> : te__attn_hopper_shape<128, 128, 2, 2, 3, 2, 0> {};
template <> struct te__attn_hopper_forward_shape<192> : te__attn_hopper_shape<192, 64, 2, 2, 3, 2, 0> {};
template <> struct te__attn_hopper_forward_shape<256> : te__attn_hopper_shape<256, 64, 2, 1, 3, 2, 0> {};
template <>
struct te__attn_hopper_forward_shape<192, 128> : te__attn_hopper_shape<192, 128, 2, 1, 2, 2, 0, 128> {};

typedef struct te_attn_hopper {
    CUtensorMap q, kv;
    void *out;                   /* [batch * seq, heads * V] */
    const float *out_scale;      /* as te_attention_args has them */
    float *amax;
    float *lse;                  /* [batch, heads, seq], or null */
    uint32_t *tickets;           /* tiles that were taken after each block's first; 0 before and after. Null: none */
    int heads, seq;              /* heads: of all sequences */
    int tiles, rows, last;       /* tiles of queries: in all, in a sequence, and those of these that come last */
    int together, together_last; /* heads that are worked on at a time, so that their K and V stay in the L2 */
    float scale;
    const void *sinks; /* with sinks: [heads of one sequence] */
    const te_rng *rng; /* with dropout, or null */
    uint32_t id;
    te_attention_shard whole;
    te_sequences of; /* varlen: the sequences; seq is then the longest, tiles counts those of te_sequence_tiles, */
    int slots;       /* so many for a head, and together counts heads of one sequence */
    int kv_seq;      /* cross: keys of a sequence, and kv is a tensor of its own */
} te_attn_hopper;
/* With the option value: kv has keys alone, and v the values. */
typedef struct te_attn_hopper_value {
    te_attn_hopper common;
    CUtensorMap v;
} te_attn_hopper_value;
template <int VALUE> struct te__attn_hopper_args_of { typedef te_attn_hopper_value type; };
template <> struct te__attn_hopper_args_of<0> { typedef te_attn_hopper type; };
template <class F> using te__attn_hopper_args = typename te__attn_hopper_args_of<F::VALUE>::type;

/* A tile of queries: the first of them and their head, counted over all sequences. */
typedef struct te_attn_work { int query, head; } te_attn_work;
enum { TE__ATTN_NO_MORE = -1, TE__ATTN_NO_TILE = -2 }; /* head: no more tiles; varlen: this one does not exist */

typedef struct te_attn_barriers {
    uint64_t q_full[2], q_empty[2], k_full[4], k_empty[4], v_full[4], v_empty[4];
    te_attn_work work[2]; /* what the Q of a stage is */
    te_sequence rows[2];  /* varlen: and its sequence */
} te_attn_barriers;

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* The first thread of a block calls this. */
template <class C> TE_FN void te__attn_barriers_begin(te_attn_barriers *bars) {
    const uint64_t *full[3] = {bars->q_full, bars->k_full, bars->v_full};
    const uint64_t *empty[3] = {bars->q_empty, bars->k_empty, bars->v_empty};
    const int stages[3] = {C::Q_STAGES, C::K_STAGES, C::V_STAGES};
    TE_UNROLL for (int ring = 0; ring < 3; ring++)
        TE_UNROLL for (int s = 0; s < stages[ring]; s++) {
            te__barrier_init(te__shared_address(full[ring] + s), 1);
            te__barrier_init(te__shared_address(empty[ring] + s), (ring ? 4 : 128) * C::GROUPS); /* warps; lanes */
        }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* ---- the warp that loads --------------------------------------------------------------------------------------- */

/* Tiles in the order in which blocks take them: some heads at a time. Causal: of these the longest rows first, and the
 * short rows of all heads last, so that all blocks end at about the same time. Causal tiles count from the end of the
 * sequence: the one that is not full is the one with the fewest keys, its first queries lie before the sequence. */
template <int ROWS, class F> TE_FN te_attn_work te__attn_work_of(const te_attn_hopper *p, int tile) {
    te_attn_work w = {0, TE__ATTN_NO_MORE};
    if (tile >= p->tiles) return w;
    const int early = p->heads * (p->rows - p->last), is_last = tile >= early, at = is_last ? tile - early : tile;
    const int rows = is_last ? p->last : p->rows - p->last, together = is_last ? p->together_last : p->together;
    const int first = at / (together * rows) * together, in = at - first * rows;
    const int heads = p->heads - first < together ? p->heads - first : together, row = in / heads;
    w.query = row * ROWS, w.head = first + in - row * heads;
    if (F::RIGHT == 0) w.query = (p->seq + 63) / 64 * 64 - ROWS - (is_last ? row + p->rows - p->last : row) * ROWS;
    return w;
}

/* The same where sequences differ in length: all sequences for some heads, then for the next; of each the longest rows
 * first. at: walks along. */
template <int ROWS, int HEADS, class F>
TE_FN te_attn_work te__attn_work_of(const te_attn_hopper *p, int tile, te_sequence_cursor *at) {
    te_attn_work w = {0, TE__ATTN_NO_MORE};
    if (tile >= p->tiles) return w;
    const int first = tile / (p->slots * p->together) * p->together, in = tile - first * p->slots;
    const int heads = HEADS - first < p->together ? HEADS - first : p->together, slot = in / heads;
    te_sequence_cursor_seek(at, &p->of, slot, ROWS);
    const int row = (slot - at->tile) * ROWS;
    w.head = row < at->at.count ? at->index * HEADS + first + in - slot * heads : TE__ATTN_NO_TILE;
    w.query = F::RIGHT == 0 ? (at->at.count + 63) / 64 * 64 - ROWS - row : row;
    return w;
}

/* The tiles of keys that go with `count` queries from `query` on; one at least, for queries before the sequence or
 * behind it. */
template <class C> TE_FN te__attn_range te__attn_tiles_of(te__attn_mask m, int query, int count) {
    te__attn_range t = te__attn_in_tiles(te__attn_keys_of(m, query, count), C::KEYS);
    if (t.end < 1) t.end = 1;
    if (m.left >= 0 && t.first >= t.end) t.first = t.end - 1;
    return t;
}
/* Of a sequence of so many queries. */
template <class F> TE_FN te__attn_mask te__attn_forward_mask(const te_attn_hopper *p, int seq) {
    if constexpr (F::CROSS) return te__attn_mask_between(seq, p->kv_seq, F::LEFT, F::RIGHT);
    else return te__attn_mask_of(seq, F::LEFT, F::RIGHT);
}
/* Of the sequence whose Q is in this stage. */
template <class F>
TE_FN te_sequence te__attn_rows_of(const te_attn_hopper *p, const te_attn_barriers *bars, int stage) {
    te_sequence all = {0, p->seq};
    if constexpr (F::VARLEN) all = bars->rows[stage];
    return all;
}
/* Which sequence K and V are of. Q is taken from all rows: those that are of another sequence come to nothing, and they
 * lie on either side. */
template <int HEADS, class F> TE_FN auto te__attn_whose(te_attn_work w, const te_sequence_cursor &walk) {
    if constexpr (F::VARLEN) return walk.at;
    else return w.head / HEADS;
}
/* The values, and which of its heads are those of this head of q. */
template <class F> TE_FN const CUtensorMap *te__attn_values(const te_attn_hopper *p) {
    return F::VALUE ? &((const te_attn_hopper_value *)(const void *)p)->v : &p->kv;
}
template <int KV_HEADS, class F> TE_FN int te__attn_values_head(int kv_head, int k_head) {
    return F::VALUE ? kv_head : k_head + KV_HEADS;
}
/* A ticket is taken when a tile is done, not ahead, so that blocks end together; the count wraps to 0 with the last. */
TE_FN int te__attn_next(const te_attn_hopper *p, int tile) {
    return (int)gridDim.x + (p->tickets ? (int)atomicInc(p->tickets, (uint32_t)p->tiles - 1) : tile);
}
/* One thread brings all tiles, in the order in which they are used: keys from the last that a query sees to the first.
 * tiles: where those of Q, K and V begin in shared memory. */
template <class C, int HEADS, int KV_HEADS, class F>
TE_FN void te__attn_forward_load(const te_attn_hopper *p, te_attn_barriers *bars, const uint32_t tiles[3]) {
    const uint32_t k_full = te__shared_address(bars->k_full), k_empty = te__shared_address(bars->k_empty);
    const uint32_t v_full = te__shared_address(bars->v_full), v_empty = te__shared_address(bars->v_empty);
    te__attn_loader<C::K_STAGES> k = {k_full, k_empty, tiles[1], {0, 0}};
    te__attn_loader<C::V_STAGES> v = {v_full, v_empty, tiles[2], {0, 0}};
    te__attn_ring<C::Q_STAGES> q = {0, 0};
    te_sequence_cursor walk;
    if constexpr (F::VARLEN) walk = te_sequence_cursor_begin(&p->of, C::ROWS);
#pragma unroll 1
    for (int tile = (int)blockIdx.x;;) {
        te_attn_work w;
        if constexpr (F::VARLEN) {
            w = te__attn_work_of<C::ROWS, HEADS, F>(p, tile, &walk);
            if (w.head == TE__ATTN_NO_TILE) {
                tile = te__attn_next(p, tile);
                continue;
            }
        } else w = te__attn_work_of<C::ROWS, F>(p, tile);
        const int seq = F::VARLEN ? walk.at.count : p->seq, from = F::VARLEN ? walk.at.first : 0; /* Q: of all rows */
        const te__attn_range t = te__attn_tiles_of<C>(te__attn_forward_mask<F>(p, seq), w.query, C::ROWS);
        const uint32_t bar = te__shared_address(&bars->q_full[q.stage]), to = tiles[0] + q.stage * C::Q_BYTES;
        const auto batch = te__attn_whose<HEADS, F>(w, walk);
        const int head = w.head % HEADS;
        const int kv_head = head / (HEADS / KV_HEADS), k_head = (F::CROSS ? 0 : HEADS) + kv_head;
        const int v_head = te__attn_values_head<KV_HEADS, F>(kv_head, k_head);
        if (w.head >= 0) te__attn_bring<C::D, C::KEYS>(k, &p->kv, k_head, (t.end - 1) * C::KEYS, batch);
        te__barrier_wait(te__shared_address(&bars->q_empty[q.stage]), q.phase ^ 1);
        bars->work[q.stage] = w;
        if constexpr (F::VARLEN) bars->rows[q.stage] = walk.at;
        if (w.head < 0) return te__barrier_arrive(bar);
        te__barrier_arrive_expect_tx(bar, C::Q_BYTES);
        TE_UNROLL for (int g = 0; g < C::GROUPS; g++)
            TE_UNROLL for (int b = 0; b < C::BOXES; b++)
                te__attn_load(to + g * C::Q_PART + b * 8192, &p->q, 64 * b, head, from + w.query + 64 * g,
                              F::VARLEN ? 0 : w.head / HEADS, bar);
        te__attn_advance(q);
#pragma unroll 1
        for (int j = t.end - 2; j >= t.first; j--) {
            te__attn_bring<C::D, C::KEYS>(k, &p->kv, k_head, j * C::KEYS, batch);
            te__attn_bring<C::V, C::KEYS>(v, te__attn_values<F>(p), v_head, (j + 1) * C::KEYS, batch);
        }
        te__attn_bring<C::V, C::KEYS>(v, te__attn_values<F>(p), v_head, t.first * C::KEYS, batch);
        tile = te__attn_next(p, tile);
    }
}
#endif

#endif
