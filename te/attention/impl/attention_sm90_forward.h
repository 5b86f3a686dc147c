/* attention_sm90_forward.h -- attention forward for compute capability 9.0 (sm_90a), bf16 and f16.
 *
 * A persistent block processes one tile of queries after another, 64 queries for each of its two or three consumer
 * warpgroups. One thread of the producer warpgroup loads Q, K and V by TMA, where K and V each have a pipeline of
 * several stages. A consumer processes the tiles of keys from the last one that its queries see to the first. For each
 * tile of keys K' it
 *
 *     issues S' = Q K'^T and then O += P V, where P and V belong to the previous tile of keys;
 *     computes P' = exp(S' - row_max) as soon as S' is complete, while P V still runs;
 *     packs P' to 16 bits as soon as O is complete.
 *
 * While one warpgroup computes exponentials, the tensor cores work for the others. The last P V of a tile of queries is
 * issued together with the first S of the next one, so that the tensor cores also work during the epilogue. This order
 * of S and P V, and the ping-pong of warpgroups at small head sizes, are those of FlashAttention-3 (Shah et al. 2024).
 *
 * Softmax rescales conditionally (as in FlashAttention-4): row_max, the number that is subtracted from a row's scores,
 * stays the maximum of the first tile of keys until P becomes too large (te__attn_rescale_threshold). As a result, most
 * tiles of keys need no maximum, no shuffle and no rescaling of O.
 *
 * Lower bounds: 4 * batch * heads * seq^2 * head_dim flops (half of that if causal; if the head size V of v differs,
 * replace 4 * head_dim by 2 * (head_dim + V)), and 2 * batch * seq * (2 * heads + 2 * kv_heads) * head_dim bytes, so
 * that from some hundred tokens on the flops, not the bytes, limit the speed. Each head also needs seq^2 exponentials,
 * of which a multiprocessor computes 16 in a clock; at head size 64 the exponentials take as long as the products.
 * Measurements: docs/notes/attention_sm90.md.
 */
/* target: cuda */
#ifndef TE_ATTENTION_SM90_FORWARD_H
#define TE_ATTENTION_SM90_FORWARD_H

#include "attention_mask.h"        /* which keys a query sees */
#include "attention_sm80_forward.h" /* te__attn_widths */
#include "attention_sm90_softmax.h"   /* a consumer's masks, softmax and epilogue */
#include "attention_sm90_wgmma.h"     /* tiles, GEMMs and pipelines of a warpgroup */

/* ---- constants ------------------------------------------------------------------------------------------------- */

/* Constants that were tuned for the head size D of q and k and the head size V of v. KEYS: the number of keys of a
 * tile. GROUPS: the number of consumer warpgroups, with 64 queries each. K has one stage more than V if shared memory
 * suffices, because a tile of K is kept until P is known to be small enough: if P is too large, S is recomputed from
 * this tile. PINGPONG: if 1, the warpgroups issue their products one after the other, in a fixed order. */
template <int D, int V = D> struct te__attn_fwd_config;
template <> struct te__attn_fwd_config<64> {
    static constexpr int KEYS = 128, GROUPS = 3, Q_STAGES = 2, K_STAGES = 4, V_STAGES = 3, PINGPONG = 1;
};
template <> struct te__attn_fwd_config<96> {
    static constexpr int KEYS = 128, GROUPS = 2, Q_STAGES = 2, K_STAGES = 3, V_STAGES = 2, PINGPONG = 1;
};
template <> struct te__attn_fwd_config<128> {
    static constexpr int KEYS = 128, GROUPS = 2, Q_STAGES = 2, K_STAGES = 3, V_STAGES = 2, PINGPONG = 0;
};
template <> struct te__attn_fwd_config<192> {
    static constexpr int KEYS = 64, GROUPS = 2, Q_STAGES = 2, K_STAGES = 3, V_STAGES = 2, PINGPONG = 0;
};
template <> struct te__attn_fwd_config<256> {
    static constexpr int KEYS = 64, GROUPS = 2, Q_STAGES = 1, K_STAGES = 3, V_STAGES = 2, PINGPONG = 0;
};
template <> struct te__attn_fwd_config<192, 128> {
    static constexpr int KEYS = 128, GROUPS = 2, Q_STAGES = 1, K_STAGES = 2, V_STAGES = 2, PINGPONG = 0;
};

/* The constants of te__attn_fwd_config, and the sizes that follow from them. */
template <int D_, int V_ = D_> struct te__attn_fwd_traits {
    typedef te__attn_fwd_config<D_, V_> config;
    static constexpr int D = D_, V = V_, KEYS = config::KEYS, GROUPS = config::GROUPS, PINGPONG = config::PINGPONG;
    static constexpr int Q_STAGES = config::Q_STAGES, K_STAGES = config::K_STAGES, V_STAGES = config::V_STAGES;
    static constexpr int ROWS = 64 * GROUPS; /* the number of queries in a block's tile */
    static constexpr int THREADS = 128 * (GROUPS + 1), BOXES = (D + 63) / 64;
    /* how many registers of a thread hold P, with two numbers of 16 bits in each */
    static constexpr int PACKED = KEYS / 4;
    typedef float scores[KEYS / 2];
    /* Registers of a producer thread, and of a consumer thread. All threads of the block together may have at most as
     * many registers as the block was launched with. */
    static constexpr int PRODUCER_REGISTERS = GROUPS == 2 ? 40 : 32, CONSUMER_REGISTERS = GROUPS == 2 ? 232 : 160;
    /* The sizes in bytes of one stage of Q, of K and of V. Q_GROUP_BYTES: the bytes of one warpgroup's rows in a stage
     * of Q. */
    static constexpr int Q_GROUP_BYTES = BOXES * 64 * 128, Q_BYTES = GROUPS * Q_GROUP_BYTES;
    static constexpr int K_BYTES = BOXES * KEYS * 128, V_BYTES = (V + 63) / 64 * KEYS * 128;
    /* The distances in bytes, in a tile of K or V, between boxes of 64 columns and between groups of eight rows. */
    static constexpr int KV_BOX = KEYS * 128, K_ROWS8 = 1024, V_ROWS8 = 1024;
    static constexpr int SHARED = Q_STAGES * Q_BYTES + K_STAGES * K_BYTES + V_STAGES * V_BYTES + 1024;
    static_assert(SHARED <= 227 * 1024 - 512, "te: attention: the tiles exceed shared memory");
    static_assert(KEYS % 64 == 0 && ROWS - 64 <= KEYS, "te: attention: te__attn_fwd_step, te__attn_skip_k expect it");
};

/* ---- arguments and shared memory ------------------------------------------------------------------------------- */

typedef struct te__attn_fwd_params {
    CUtensorMap q, kv;
    void *out;              /* [batch * seq, heads * V] */
    const float *out_scale; /* with fp8_output: the factor by which out is multiplied (te_attention_args.out_scale) */
    float *amax;            /* with the option fp8_output, receives the amax of out (te_attention_args.amax) */
    float *lse;        /* the log-sum-exp, [batch, heads, seq] (with varlen [heads, rows]), or null */
    uint32_t
        /* A counter of the tiles that blocks have taken in addition to the first tile of each block. The counter is 0
         * before and after a launch. If tickets is null, blocks take tiles in a fixed order. */
        *tickets;
    int all_heads;     /* the number of query heads of all sequences together */
    int seq;           /* the number of queries of a sequence; with varlen: of the longest sequence */
    /* without varlen: the number of tiles of queries of all heads; with varlen: the number of tile indices, some of
     * which belong to no tile (te_sequence_tiles) */
    int tiles;
    int head_tiles;    /* the number of tiles of queries of one head */
    /* With a causal mask: how many tiles of queries of each head are processed at the end, after all other tiles of all
     * heads. These are the tiles that see the fewest keys. */
    int last_tiles;
    /* heads_at_once: how many heads are processed at the same time. The number is so small that K and V of these heads
     * stay in the L2. heads_at_once_last: the same for the tiles of queries that are processed at the end
     * (last_tiles). */
    int heads_at_once, heads_at_once_last;
    float scale;
    const void *sinks; /* attention sinks: [heads], one logit for each head */
    const te_rng *rng; /* the random state for dropout (te_attention_args.rng), or null */
    uint32_t id;
    te_attention_shard whole;
    te_sequences sequences; /* varlen: the sequences of the batch */
    int slots;              /* with varlen: how many tile indices (te_sequence_tiles) a head has, over all sequences */
    /* for cross-attention: the number of keys of a sequence. (The tensor map kv then describes a separate tensor of
     * keys and values.) */
    int kv_seq;
} te__attn_fwd_params;
/* The arguments of the kernel if k and v have different head sizes. common.kv is then the tensor map of the keys, and
 * `v` is the tensor map of the values. */
typedef struct te__attn_fwd_value_params {
    te__attn_fwd_params common;
    CUtensorMap v;
} te__attn_fwd_value_params;
template <int VALUE> struct te__attn_fwd_params_select { typedef te__attn_fwd_value_params type; };
template <> struct te__attn_fwd_params_select<0> { typedef te__attn_fwd_params type; };
template <class F> using te__attn_fwd_params_of = typename te__attn_fwd_params_select<F::VALUE>::type;

/* A tile of queries. query: its first query; head: its head, counted over all sequences: sequence * HEADS + (index of
 * the head in the sequence). */
typedef struct te__attn_work_tile { int query, head; } te__attn_work_tile;
/* Special values of te__attn_work_tile.head. END: there are no more tiles. INVALID: with varlen, this tile index
 * belongs to no tile (te_sequence_tiles), and the block skips it. */
enum { TE__ATTN_WORK_END = -1, TE__ATTN_WORK_INVALID = -2 };

typedef struct te__attn_fwd_barriers {
    uint64_t q_full[2], q_empty[2], k_full[4], k_empty[4], v_full[4], v_empty[4];
    te__attn_work_tile work[2]; /* for each stage of Q, the tile of queries that it holds */
    /* with varlen, for each stage of Q: the rows of the sequence to which the tile of queries belongs */
    te_sequence rows[2];
    /* with a cache, for each stage of Q: the number of keys of the sequence to which the tile of queries belongs, or 0
     * if the sequence does not fit in the cache */
    int keys[2];
} te__attn_fwd_barriers;

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* Initialises the mbarriers of a block. One thread of the block calls this. */
template <class C> TE_FN void te__attn_fwd_barriers_init(te__attn_fwd_barriers *bars) {
    const uint64_t *full[3] = {bars->q_full, bars->k_full, bars->v_full};
    const uint64_t *empty[3] = {bars->q_empty, bars->k_empty, bars->v_empty};
    const int stages[3] = {C::Q_STAGES, C::K_STAGES, C::V_STAGES};
    TE_UNROLL for (int pipeline = 0; pipeline < 3; pipeline++)
        TE_UNROLL for (int s = 0; s < stages[pipeline]; s++) {
            te__barrier_init(te__shared_address(full[pipeline] + s), 1);
            /* All 128 threads of each consumer warpgroup arrive at the barriers `empty` of Q, but only one lane of each
             * warp arrives at the barriers `empty` of K and V. */
            te__barrier_init(te__shared_address(empty[pipeline] + s), (pipeline ? 4 : 128) * C::GROUPS);
        }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* ---- tile scheduler -------------------------------------------------------------------------------------------- */

/* Returns the tile of queries that has the given number; blocks take tiles in the order of the numbers. First come all
 * tiles of some heads (heads_at_once), then all tiles of the next heads, and so on. With a causal mask, the tiles of a
 * head are ordered by the number of keys that they see, the largest number first; and the last_tiles tiles of each head
 * that see the fewest keys come after all other tiles of all heads, so that all blocks end at about the same time.
 * Also, tiles are then aligned to the end of the sequence: if the number of queries is not a multiple of ROWS, the
 * first tile begins before the sequence. */
template <int ROWS, class F> TE_FN te__attn_work_tile te__attn_fwd_work_tile(const te__attn_fwd_params *p, int number) {
    te__attn_work_tile w = {0, TE__ATTN_WORK_END};
    if (number >= p->tiles) return w;
    const int early = p->all_heads * (p->head_tiles - p->last_tiles), is_last = number >= early;
    const int at = is_last ? number - early : number;
    const int rows = is_last ? p->last_tiles : p->head_tiles - p->last_tiles;
    const int at_once = is_last ? p->heads_at_once_last : p->heads_at_once;
    /* the first of the heads that are processed at the same time as the head of this tile */
    const int first = at / (at_once * rows) * at_once, in = at - first * rows;
    const int heads = p->all_heads - first < at_once ? p->all_heads - first : at_once, row = in / heads;
    w.query = row * ROWS, w.head = first + in - row * heads;
    if (F::RIGHT == 0)
        w.query = (p->seq + 63) / 64 * 64 - ROWS - (is_last ? row + p->head_tiles - p->last_tiles : row) * ROWS;
    return w;
}

/* Returns the tile that has the given number, for packed sequences. First come the tiles of all sequences for some
 * heads (heads_at_once), then those for the next heads. In each sequence, the tiles with the most keys come first. at:
 * a cursor, which is moved to the sequence of the tile. */
template <int ROWS, int HEADS, class F>
TE_FN te__attn_work_tile te__attn_fwd_work_tile(const te__attn_fwd_params *p, int number, te_sequence_cursor *at) {
    te__attn_work_tile w = {0, TE__ATTN_WORK_END};
    if (number >= p->tiles) return w;
    const int first = number / (p->slots * p->heads_at_once) * p->heads_at_once, in = number - first * p->slots;
    const int heads = HEADS - first < p->heads_at_once ? HEADS - first : p->heads_at_once, slot = in / heads;
    te_sequence_cursor_seek(at, &p->sequences, slot, ROWS);
    const int row = (slot - at->tile) * ROWS;
    w.head = row < at->at.count ? at->index * HEADS + first + in - slot * heads : TE__ATTN_WORK_INVALID;
    w.query = F::RIGHT == 0 ? (at->at.count + 63) / 64 * 64 - ROWS - row : row;
    return w;
}

/* Returns the number of this block's next tile. A block takes a number only when its current tile is done, not earlier,
 * so that all blocks end at about the same time. When the last number is taken, the counter *p->tickets wraps to 0, as
 * the next launch expects it. */
TE_FN int te__attn_fwd_next_ticket(const te__attn_fwd_params *p, int tile) {
    return (int)gridDim.x + (p->tickets ? (int)atomicInc(p->tickets, (uint32_t)p->tiles - 1) : tile);
}

/* Returns the range of tiles of keys that the `count` queries from `query` on see. The range has at least one tile,
 * even if these queries lie outside the sequence. */
template <class C> TE_FN te__attn_range te__attn_fwd_key_tiles(te__attn_mask m, int query, int count) {
    te__attn_range t = te__attn_in_tiles(te__attn_keys_of(m, query, count), C::KEYS);
    if (t.end < 1) t.end = 1;
    if (m.left >= 0 && t.first >= t.end) t.first = t.end - 1;
    return t;
}
/* Returns the mask of a sequence of `seq` queries. keys: with a cache, the number of the sequence's keys. */
template <class F> TE_FN te__attn_mask te__attn_fwd_mask(const te__attn_fwd_params *p, int seq, int keys = 0) {
    if constexpr (F::SHIFTED) return te__attn_mask_between(seq, F::CROSS ? p->kv_seq : keys, F::LEFT, F::RIGHT);
    else return te__attn_mask_of(seq, F::LEFT, F::RIGHT);
}
/* Returns the rows of the sequence to which the tile of queries in stage `stage` of Q belongs. */
template <class F>
TE_FN te_sequence te__attn_fwd_sequence(const te__attn_fwd_params *p, const te__attn_fwd_barriers *bars, int stage) {
    te_sequence all = {0, p->seq};
    if constexpr (F::VARLEN) all = bars->rows[stage];
    return all;
}

/* ---- producer -------------------------------------------------------------------------------------------------- */

/* Returns the sequence whose K and V are loaded: its index, or with varlen its rows. (With varlen a tile of Q may
 * contain rows of neighbouring sequences, too; the results for these rows are not stored.) */
template <int HEADS, class F> TE_FN auto te__attn_fwd_kv_batch(te__attn_work_tile w, const te_sequence_cursor &walk) {
    if constexpr (F::VARLEN) return walk.at;
    else return w.head / HEADS;
}
/* Returns the tensor map of the values. */
template <class F> TE_FN const CUtensorMap *te__attn_fwd_v_map(const te__attn_fwd_params *p) {
    return F::VALUE ? &((const te__attn_fwd_value_params *)(const void *)p)->v : &p->kv;
}
/* Returns the index, in the tensor map of te__attn_fwd_v_map, of the head of v that belongs to KV head kv_head. k_head:
 * the index of the KV head's k in the tensor map of the keys. If both have the same head size, k and v share a tensor
 * map, in which the KV_HEADS heads of v follow those of k. */
template <int KV_HEADS, class F> TE_FN int te__attn_fwd_v_head(int kv_head, int k_head) {
    return F::VALUE ? kv_head : k_head + KV_HEADS;
}

/* The body of the producer thread: loads all tiles in the order in which the consumers use them. tiles: the
 * shared-memory addresses of the first stage of Q, of K and of V. */
template <class C, int HEADS, int KV_HEADS, class F>
TE_FN void te__attn_fwd_producer(const te__attn_fwd_params *p, te__attn_fwd_barriers *bars, const uint32_t tiles[3]) {
    const uint32_t k_full = te__shared_address(bars->k_full), k_empty = te__shared_address(bars->k_empty);
    const uint32_t v_full = te__shared_address(bars->v_full), v_empty = te__shared_address(bars->v_empty);
    te__attn_tile_producer<C::K_STAGES> k = {k_full, k_empty, tiles[1], {0, 0}};
    te__attn_tile_producer<C::V_STAGES> v = {v_full, v_empty, tiles[2], {0, 0}};
    te__attn_pipeline_state<C::Q_STAGES> q = {0, 0};
    te_sequence_cursor walk;
    if constexpr (F::VARLEN) walk = te_sequence_cursor_begin(&p->sequences, C::ROWS);
#pragma unroll 1
    for (int tile = (int)blockIdx.x;;) {
        te__attn_work_tile w;
        if constexpr (F::VARLEN) {
            w = te__attn_fwd_work_tile<C::ROWS, HEADS, F>(p, tile, &walk);
            if (w.head == TE__ATTN_WORK_INVALID) {
                tile = te__attn_fwd_next_ticket(p, tile);
                continue;
            }
        } else w = te__attn_fwd_work_tile<C::ROWS, F>(p, tile);
        const int seq = F::VARLEN ? walk.at.count : p->seq, first_row = F::VARLEN ? walk.at.first : 0;
        const te__attn_range t = te__attn_fwd_key_tiles<C>(te__attn_fwd_mask<F>(p, seq), w.query, C::ROWS);
        const uint32_t bar = te__shared_address(&bars->q_full[q.stage]), to = tiles[0] + q.stage * C::Q_BYTES;
        const auto batch = te__attn_fwd_kv_batch<HEADS, F>(w, walk);
        const int head = w.head % HEADS;
        const int kv_head = head / (HEADS / KV_HEADS), k_head = (F::CROSS ? 0 : HEADS) + kv_head;
        const int v_head = te__attn_fwd_v_head<KV_HEADS, F>(kv_head, k_head);
        /* The first tile of K is loaded before Q, because the consumers may still be using the stage of Q. */
        if (w.head >= 0) te__attn_produce_tile<C::D, C::KEYS>(k, &p->kv, k_head, (t.end - 1) * C::KEYS, batch);
        te__barrier_wait(te__shared_address(&bars->q_empty[q.stage]), q.phase ^ 1);
        bars->work[q.stage] = w;
        if constexpr (F::VARLEN) bars->rows[q.stage] = walk.at;
        if (w.head < 0) return te__barrier_arrive(bar);
        te__barrier_arrive_expect_tx(bar, C::Q_BYTES);
        TE_UNROLL for (int g = 0; g < C::GROUPS; g++)
            TE_UNROLL for (int b = 0; b < C::BOXES; b++)
                te__attn_tma_load_head(to + g * C::Q_GROUP_BYTES + b * 8192, &p->q, 64 * b, head,
                                       first_row + w.query + 64 * g, F::VARLEN ? 0 : w.head / HEADS, bar);
        te__attn_pipeline_advance(q);
#pragma unroll 1
        /* V of a tile of keys is loaded one iteration after K of the tile, because the consumers use V one step later
         * than K. */
        for (int j = t.end - 2; j >= t.first; j--) {
            te__attn_produce_tile<C::D, C::KEYS>(k, &p->kv, k_head, j * C::KEYS, batch);
            te__attn_produce_tile<C::V, C::KEYS>(v, te__attn_fwd_v_map<F>(p), v_head, (j + 1) * C::KEYS, batch);
        }
        te__attn_produce_tile<C::V, C::KEYS>(v, te__attn_fwd_v_map<F>(p), v_head, t.first * C::KEYS, batch);
        tile = te__attn_fwd_next_ticket(p, tile);
    }
}

/* ---- consumer: mainloop ---------------------------------------------------------------------------------------- */

/* The view that a consumer has of the pipelines of K and V: the shared-memory addresses of the first stages and of
 * their mbarriers, and the consumer's current stages. */
template <class C> struct te__attn_fwd_pipelines {
    uint32_t k_full, k_empty, v_full, v_empty, k_tiles, v_tiles;
    /* q: the address of this warpgroup's rows of Q; q_empty: the address of the mbarrier at which the warpgroup arrives
     * when it has read these rows */
    uint32_t q, q_empty;
    te__attn_pipeline_state<C::K_STAGES> k;
    te__attn_pipeline_state<C::V_STAGES> v;
    int group, lane;
    float scale_log2; /* the factor that turns a score into an exponent of 2: te__attn_score_unit times log2(e) */
};
/* For ping-pong scheduling, in which the warpgroups take turns: waits until this warpgroup may issue its products.
 * Named barrier 1 + g is the signal to warpgroup g. */
template <class C> TE_FN void te__attn_pingpong_wait(const te__attn_fwd_pipelines<C> &a) {
    te__named_barrier_sync(1 + a.group, 256);
}
/* For ping-pong scheduling, in which the warpgroups take turns: signals to the next warpgroup that it may issue its
 * products. */
template <class C> TE_FN void te__attn_pingpong_pass(const te__attn_fwd_pipelines<C> &a) {
    te__named_barrier_arrive(1 + (a.group + 1) % C::GROUPS, 256);
}

/* Issues the product S of the current tile of keys, and O += P V of the previous tile (O = P V if add is 0). On return
 * S is complete, but P V may still run. has_k: 0 if there is no current tile of keys; has_v: 0 if there is no previous
 * tile. The product for a tile that does not exist is issued nevertheless, and the caller does not use its result. */
template <te_dtype T, class C>
TE_FN void te__attn_fwd_issue_gemms(te__attn_fwd_fragments<C> &r, const te__attn_fwd_pipelines<C> &a, int has_k,
                                    int has_v, int add) {
    const uint64_t k = te__attn_tile_descriptor(a.k_tiles + a.k.stage * C::K_BYTES, C::KV_BOX, C::K_ROWS8);
    const uint64_t v = te__attn_tile_descriptor(a.v_tiles + a.v.stage * C::V_BYTES, C::KV_BOX, C::V_ROWS8);
    if (has_k) te__barrier_wait(a.k_full + 8 * a.k.stage, a.k.phase);
    if (C::PINGPONG) te__attn_pingpong_wait(a);
    te__wgmma_fence_operand(r.s), te__wgmma_fence_operand(r.o), te__wgmma_fence_operand(r.p);
    te__wgmma_fence();
    te__attn_gemm_ss<T, C::KEYS, C::D, C::KV_BOX>(r.s, te__attn_tile_descriptor(a.q, 64), k);
    te__wgmma_commit();
    if (has_v) te__barrier_wait(a.v_full + 8 * a.v.stage, a.v.phase);
    te__wgmma_fence();
    te__attn_gemm_rs<T, C::KEYS, C::V, C::V_ROWS8>(r.o, r.p, v, add);
    te__wgmma_commit();
    if (C::PINGPONG) te__attn_pingpong_pass(a);
    te__wgmma_wait_1();
    te__wgmma_fence_operand(r.s);
}
/* Signals that this warp has read the current tile of V, and advances to the next stage of the pipeline. */
template <class C> TE_FN void te__attn_release_v(te__attn_fwd_pipelines<C> &a) {
    if (a.lane == 0) te__barrier_arrive(a.v_empty + 8 * a.v.stage);
    te__attn_pipeline_advance(a.v);
}
/* Waits until O += P V is complete, then releases the stage of V that it has read. has_v: 0 if there was no tile of V
 * for this product (te__attn_fwd_issue_gemms); then no stage is released. */
template <class C>
TE_FN void te__attn_fwd_wait_o(te__attn_fwd_fragments<C> &r, te__attn_fwd_pipelines<C> &a, int has_v) {
    te__wgmma_wait_0();
    te__wgmma_fence_operand(r.o), te__wgmma_fence_operand(r.p);
    if (has_v) te__attn_release_v(a);
}
/* Signals that this warp has read the current tile of K, and advances to the next stage. is_last: 1 if this was the
 * last tile of keys for the current queries; then each lane also releases the stage of Q, together with the stage's
 * entries in te__attn_fwd_barriers, which the lane has copied to registers. */
template <class C> TE_FN void te__attn_release_k(te__attn_fwd_pipelines<C> &a, int is_last) {
    __syncwarp();
    if (a.lane == 0) te__barrier_arrive(a.k_empty + 8 * a.k.stage);
    if (is_last) te__barrier_arrive(a.q_empty);
    te__attn_pipeline_advance(a.k);
}

/* Skips a tile of K. A block loads the tiles of keys that any of its warpgroups needs, and a warpgroup skips each tile
 * that none of its own queries sees. There is at most one such tile at the beginning of the range of keys, and one at
 * the end. The V of a tile is used one step later than its K, and so the V of the skipped tile is skipped one step
 * later (te__attn_skip_v). */
template <class C> TE_FN void te__attn_skip_k(te__attn_fwd_pipelines<C> &a) {
    te__barrier_wait(a.k_full + 8 * a.k.stage, a.k.phase);
    if (C::PINGPONG) te__attn_pingpong_wait(a), te__attn_pingpong_pass(a);
    te__attn_release_k(a, 0);
}
/* Skips a tile of V that was loaded for other warpgroups (te__attn_skip_k). */
template <class C> TE_FN void te__attn_skip_v(te__attn_fwd_pipelines<C> &a) {
    te__barrier_wait(a.v_full + 8 * a.v.stage, a.v.phase);
    te__attn_release_v(a);
}
/* Called if the warpgroup has no rows of the current tile of queries: skips all `tiles` tiles of keys that were loaded
 * for the tile of queries. For the first of these tiles of keys, te__attn_fwd_issue_gemms has already waited for this
 * warpgroup's turn in the ping-pong scheduling, and passed the turn on. */
template <class C> TE_FN void te__attn_skip_all(te__attn_fwd_pipelines<C> &a, int tiles) {
    te__barrier_wait(a.k_full + 8 * a.k.stage, a.k.phase);
    te__attn_release_k(a, tiles == 1);
    te__attn_skip_v(a);
#pragma unroll 1
    for (int j = 1; j < tiles; j++) {
        te__barrier_wait(a.k_full + 8 * a.k.stage, a.k.phase);
        if (C::PINGPONG) te__attn_pingpong_wait(a), te__attn_pingpong_pass(a);
        te__attn_release_k(a, j == tiles - 1);
        te__attn_skip_v(a);
    }
}

/* Applies the options that change scores (softcap, ALiBi), and the mask of a window if this tile of scores needs it. */
template <int HEADS, class F, class C>
TE_FN void te__attn_transform_scores(te__attn_fwd_fragments<C> &r, const te__attn_fwd_params *p,
                                     const te__attn_score_tile &t, int needs_mask) {
    te__attn_softcap_scores<F>(r, p->scale);
    te__attn_alibi_scores<HEADS, F>(r, p->whole, p->scale, t);
    if (needs_mask) te__attn_mask_window(r, t.mask, t.query, t.key);
}
/* Processes the scores of the first tile of keys: applies the mask, and computes row_max, P and row_sum. needs_mask: 1
 * if some queries do not see all keys of this tile. at: the query and the key of this thread's first row and column. */
template <te_dtype T, int HEADS, class F, class C>
TE_FN void te__attn_softmax_first(te__attn_fwd_fragments<C> &r, float row_max[2], float row_sum[2],
                                  const te__attn_fwd_params *p, const te__attn_score_tile &t, int needs_mask,
                                  const te__attn_lane_origin &at, float scale_log2) {
    te__attn_transform_scores<HEADS, F>(r, p, t, needs_mask && te__attn_masks_later_tiles<F>());
    if (needs_mask && !te__attn_masks_later_tiles<F>()) te__attn_mask_scores(r, t.mask, at.query, at.key);
    if (F::SINKS) te__attn_init_sinks<T, HEADS, F>(r, row_max, row_sum, p->sinks, t.head, p->scale, scale_log2);
    else
        TE_UNROLL for (int e = 0; e < 2; e++) {
            row_max[e] = te__attn_row_max(r, e);
            row_sum[e] = te__attn_exp_row(r, e, te__attn_finite_max<F>(row_max[e]), scale_log2);
        }
    if (F::DROP && p->rng) te__attn_dropout_p<HEADS, F>(r, p, t);
}
/* Processes a tile of keys that is not the first tile processed. needs_mask: 1 if some queries do not see all keys of
 * this tile, which is possible only with a window. With a causal mask alone, only the first tile processed, at the
 * diagonal, needs the mask, because the queries of a warpgroup and the tiles of keys begin at multiples of 64. add: 0
 * if O = P V is to be computed instead of O += P V. is_last: 1 if this is the last tile of keys. */
template <te_dtype T, int HEADS, class F, class C>
TE_FN void te__attn_fwd_step(te__attn_fwd_fragments<C> &r, te__attn_fwd_pipelines<C> &a, const te__attn_fwd_params *p,
                             const te__attn_score_tile &t, int needs_mask, int add, int is_last) {
    float sum[2];
    te__attn_fwd_issue_gemms<T>(r, a, 1, 1, add);
    te__attn_transform_scores<HEADS, F>(r, p, t, needs_mask);
    TE_UNROLL for (int e = 0; e < 2; e++) sum[e] = te__attn_exp_row(r, e, r.row_max[e], a.scale_log2);
    if (F::DROP && p->rng) te__attn_dropout_p<HEADS, F>(r, p, t);
    te__attn_fwd_wait_o(r, a, 1);
    te__attn_pack_p<T>(r);
    if (te__attn_needs_rescale<T>(sum)) {
        te__attn_recompute_scores<T>(r, a.q, a.k_tiles + a.k.stage * C::K_BYTES);
        te__attn_transform_scores<HEADS, F>(r, p, t, needs_mask);
        te__attn_rescale<T, F>(r, a.scale_log2, sum);
        if (F::DROP && p->rng) te__attn_dropout_p<HEADS, F>(r, p, t);
        te__attn_pack_p<T>(r);
    }
    te__attn_release_k(a, is_last);
    r.row_sum[0] += sum[0], r.row_sum[1] += sum[1];
}

/* Returns where the output of work tile w is stored. rows: with varlen, the rows of the tile's sequence. row: this
 * thread's first row, counted from the first query of the tile. */
template <int HEADS, class F, class C>
TE_FN te__attn_fwd_output te__attn_fwd_output_of(const te__attn_fwd_params *p, const te__attn_work_tile &w,
                                                 const te_sequence &rows, int row) {
    const int64_t first = F::VARLEN ? rows.first : (int64_t)(w.head / HEADS) * p->seq;
    te__attn_fwd_output to;
    to.scale = te__attn_out_scale<F>(p);
    to.out = te__attn_out_at(p->out, (first * HEADS + w.head % HEADS) * C::V, to.scale);
    to.width = HEADS * C::V;
    to.lse = p->lse ? p->lse + (int64_t)w.head * p->seq : 0;
    if (F::VARLEN && to.lse) to.lse = p->lse + (int64_t)(w.head % HEADS) * p->sequences.rows + first;
    to.query = w.query + row, to.seq = F::VARLEN ? rows.count : p->seq;
    to.score_unit = te__attn_score_unit<F>(p->scale), to.factor = F::DROP && p->rng ? F::FACTOR : 1.0f;
    to.amax = te__attn_amax_output<F>(p);
    return to;
}

template <te_dtype T, class C, int HEADS, class F>
TE_FN void te__attn_fwd_consumer(const te__attn_fwd_params *p, te__attn_fwd_barriers *bars, const uint32_t tiles[3]) {
    /* The number of this consumer warpgroup. The shuffle tells the compiler that this number is the same in all
     * lanes. */
    const int group = __shfl_sync(~0u, (int)threadIdx.x / 128 - 1, 0);
    const int lane = (int)threadIdx.x % 32, row = group * 64 + (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
    te__attn_fwd_fragments<C> r;
    te__attn_fwd_pipelines<C> a = {te__shared_address(bars->k_full), te__shared_address(bars->k_empty),
                                   te__shared_address(bars->v_full), te__shared_address(bars->v_empty),
                                   tiles[1], tiles[2], 0, 0, {0, 0}, {0, 0}, group, lane,
                                   te__attn_score_unit<F>(p->scale) * TE__ATTN_LOG2E};
    te__attn_pipeline_state<C::Q_STAGES> q = {0, 0};
    /* the tile of queries whose O this thread has in registers; head is TE__ATTN_WORK_END if there is none yet */
    te__attn_work_tile w = {0, TE__ATTN_WORK_END};
    te_sequence rows = {0, 0};
    TE_UNROLL for (int i = 0; i < C::KEYS / 4; i++) r.p[i] = 0;
    if (C::PINGPONG && group == C::GROUPS - 1) te__attn_pingpong_pass(a);
    /* skipped_last: 1 if this warpgroup, in the previous tile of queries, skipped K of the last tile of keys. It must
     * then still skip V of that tile of keys. add: 1 if the next product P V is added to O, 0 if it overwrites O. */
    for (int add = 0, skipped_last = 0;;) {
        te__barrier_wait(te__shared_address(&bars->q_full[q.stage]), q.phase);
        const te__attn_work_tile next = bars->work[q.stage];
        const te_sequence next_rows = te__attn_fwd_sequence<F>(p, bars, q.stage);
        /* With a cache, a warpgroup whose rows all lie outside the sequence skips the products. Without this, the
         * products would take time, because even a tile with few new rows may see many keys. */
        const int first_row = next.query + group * 64;
        const int is_idle = F::CACHED && next.head >= 0 && (first_row + 64 <= 0 || first_row >= next_rows.count);
        const int has_next = next.head >= 0 && !is_idle, has_output = w.head >= 0;
        const te__attn_mask m = te__attn_fwd_mask<F>(p, next_rows.count, F::CACHED ? bars->keys[q.stage] : 0);
        const te__attn_range t = te__attn_fwd_key_tiles<C>(m, next.query + group * 64, 64);
        const int skip_first = has_next ? te__attn_fwd_key_tiles<C>(m, next.query, C::ROWS).end - t.end : 0;
        a.q = tiles[0] + q.stage * C::Q_BYTES + group * C::Q_GROUP_BYTES;
        a.q_empty = te__shared_address(&bars->q_empty[q.stage]);

        /* Process the first tile of keys, and at the same time the last P V of the previous tile of queries. */
        float row_max[2] = {0, 0}, row_sum[2] = {0, 0};
        if (skip_first) te__attn_skip_k(a);
        te__attn_fwd_issue_gemms<T>(r, a, has_next, has_output, add);
        if (has_next) te__attn_release_k(a, t.end - 1 == t.first);
        const int tile = (t.end - 1) * C::KEYS;
        if (has_next)
            te__attn_softmax_first<T, HEADS, F>(r, row_max, row_sum, p, {m, next.head, next.query + group * 64, tile},
                                                te__attn_needs_mask(t, t.end - 1, 1),
                                                {next.query + row, tile + lane % 4 * 2}, a.scale_log2);
        te__attn_fwd_wait_o(r, a, has_output);
        if (skipped_last) te__attn_skip_v(a);
        if (skip_first) te__attn_skip_v(a);
        if (has_output) te__attn_fwd_epilogue<T, F::CACHED>(r, te__attn_fwd_output_of<HEADS, F, C>(p, w, rows, row));
        if (!has_next && !is_idle) break;
        if (F::CACHED && is_idle) {
            const te__attn_range all = te__attn_fwd_key_tiles<C>(m, next.query, C::ROWS);
            te__attn_skip_all(a, all.end - all.first);
            w.head = TE__ATTN_WORK_END, skipped_last = 0;
            te__attn_pipeline_advance(q);
            continue;
        }
        TE_UNROLL for (int e = 0; e < 2; e++) r.row_max[e] = row_max[e], r.row_sum[e] = row_sum[e];
        te__attn_pack_p<T>(r);

        w = next, rows = next_rows, add = 0;
        /* With a cache and no window, only the first two tiles may need the mask, because the positions of a
         * warpgroup's 64 queries lie in one or two tiles of keys. The second tile is processed here, so that the loop
         * has no code for masks. */
        constexpr int LOOP_MASKS = te__attn_masks_later_tiles<F>() && !(F::CACHED && F::LEFT < 0 && F::RIGHT <= 0);
        int j = t.end - 2;
        if (F::CACHED && !LOOP_MASKS && j >= t.first) {
            te__attn_fwd_step<T, HEADS, F>(r, a, p, {m, w.head, w.query + group * 64, j * C::KEYS},
                                           te__attn_needs_mask(t, j, 1), 0, j == t.first);
            j--, add = 1;
        }
#pragma unroll 1
        for (; j >= t.first; j--, add = 1) {
            const int needs_mask = LOOP_MASKS && te__attn_needs_mask(t, j, 1);
            te__attn_fwd_step<T, HEADS, F>(r, a, p, {m, w.head, w.query + group * 64, j * C::KEYS}, needs_mask,
                                           F::CACHED && !LOOP_MASKS ? 1 : add, j == t.first);
        }
        skipped_last = F::LEFT >= 0 && t.first > te__attn_fwd_key_tiles<C>(m, w.query, C::ROWS).first;
        if (skipped_last) te__attn_skip_k(a);
        te__attn_pipeline_advance(q);
    }
}

/* ---- kernel ---------------------------------------------------------------------------------------------------- */

template <te_dtype T, class C, int HEADS, int KV_HEADS, class F>
TE_FN void te__attn_fwd_kernel(const te__attn_fwd_params *p, te__attn_fwd_barriers *bars) {
    /* The address of the tiles is a multiple of 1024 bytes, because the swizzle repeats every 1024 bytes. */
    const uint32_t q_tiles = (te__shared_address(te__attention_shared) + 1023) & ~1023u;
    const uint32_t k_tiles = q_tiles + C::Q_STAGES * C::Q_BYTES, v_tiles = k_tiles + C::K_STAGES * C::K_BYTES;
    const uint32_t tiles[3] = {q_tiles, k_tiles, v_tiles};
    if (threadIdx.x == 0) te__attn_fwd_barriers_init<C>(bars);
    if (threadIdx.x == 32) te__tma_prefetch_descriptor(&p->q), te__tma_prefetch_descriptor(&p->kv);
    __syncthreads();
    te_kernel_begin();
    if (threadIdx.x < 128) {
        te__warpgroup_reg_dealloc<C::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) te__attn_fwd_producer<C, HEADS, KV_HEADS, F>(p, bars, tiles);
    } else {
        te__warpgroup_reg_alloc<C::CONSUMER_REGISTERS>();
        te__attn_fwd_consumer<T, C, HEADS, F>(p, bars, tiles);
    }
}
#else
template <te_dtype T, class C, int HEADS, int KV_HEADS, class F>
TE_FN void te__attn_fwd_kernel(const te__attn_fwd_params *, te__attn_fwd_barriers *) {}
#endif

/* ---- host ------------------------------------------------------------------------------------------------------ */

/* The largest number of bytes of the L2 that K and V of all heads that are processed at the same time should take
 * together. (K and V of a single head may take more.) */
enum { TE__ATTN_FWD_L2_BYTES = 8 << 20 };

/* Sets the arguments and the schedule of the tiles, for the forward kernel in 16 bits and the forward kernel in FP8.
 * kv_bytes: the size in bytes of K and V of one head. kv_heads: the number of KV heads of all sequences together; with
 * varlen: of one sequence. */
template <class C, int HEADS, int KV_HEADS, class F>
TE_API void te__attn_fwd_schedule(te__attn_fwd_params *p, const te_attention_args *a, uint32_t *tickets,
                                  int64_t kv_bytes, int64_t kv_heads) {
    p->out = a->out, p->out_scale = a->out_scale, p->amax = a->amax, p->lse = a->lse, p->tickets = tickets;
    p->all_heads = a->batch * HEADS, p->seq = a->seq, p->scale = a->scale;
    p->head_tiles = (int)te_ceil_div(a->seq, C::ROWS);
    p->tiles = F::VARLEN ? p->slots * HEADS : p->all_heads * p->head_tiles;
    p->heads_at_once = F::RIGHT == 0 ? (int)te_max(1, te_min(TE__ATTN_FWD_L2_BYTES / kv_bytes, kv_heads)) : 1;
    p->heads_at_once *= HEADS / KV_HEADS;
    /* With a causal mask, the quarter of a head's tiles of queries that see the fewest keys see only the first quarter
     * of the keys. Therefore, while these tiles are processed, the needed keys and values of more heads fit into the L2
     * at once. */
    p->last_tiles = F::RIGHT == 0 ? p->head_tiles / 4 : 0;
    p->heads_at_once_last = (int)te_min(16 * (int64_t)p->heads_at_once, p->all_heads);
}

template <te_dtype T, class C, int HEADS, int KV_HEADS, class F>
TE_API te_status te__attn_fwd_tensor_maps(te__attn_fwd_value_params *all, te__tensor_map_encode_fn encode,
                                          const te_attention_args *a, te_context *ctx) {
    typedef te__attn_widths<HEADS, KV_HEADS, C::D, F> widths;
    te__attn_fwd_params *const p = &all->common;
    const int seq = F::VARLEN ? p->sequences.rows : a->seq, batch = F::VARLEN ? 1 : a->batch;
    const int k_end = (F::CROSS ? 0 : HEADS) + KV_HEADS; /* the number of heads of q and k in a row */
    const int heads = k_end + (F::VALUE ? 0 : KV_HEADS), kv_batch = F::VARLEN ? 0 : batch;
    const uint16_t *kv_data = (const uint16_t *)(F::CROSS ? a->kv : a->qkv);
    te__attn_heads_tensor q, kv, v;
    p->kv_seq = F::CROSS ? a->kv_seq : seq;

    q.data = a->qkv, q.width = widths::QKV, q.dim = C::D, q.heads = F::CROSS ? HEADS : heads;
    q.seq = seq, q.batch = batch, q.box_rows = 64;
    kv.data = kv_data, kv.width = widths::KV, kv.dim = C::D, kv.heads = heads;
    kv.seq = p->kv_seq, kv.batch = kv_batch, kv.box_rows = C::KEYS;
    v = kv, v.data = kv_data + k_end * C::D, v.dim = C::V, v.heads = KV_HEADS;

    TE_TRY(te__attn_heads_tensor_map(&p->q, encode, &q, T, ctx));
    TE_TRY(te__attn_heads_tensor_map(&p->kv, encode, &kv, T, ctx));
    if (F::VALUE) TE_TRY(te__attn_heads_tensor_map(&all->v, encode, &v, T, ctx));
    return TE_OK;
}

/* Launches `kernel`, which is the instantiation for the sizes in the template argument C. */
template <te_dtype T, class C, int HEADS, int KV_HEADS, class F>
TE_API te_status te__attn_fwd_launch(te_context *ctx, const void *kernel, te__tensor_map_encode_fn encode,
                                     const te_attention_args *a, const char *name) {
    te__attn_fwd_value_params all;
    te__attn_fwd_params &p = all.common;
    memset(&all, 0, sizeof all);
    p.sequences = te__attn_sequences(a), p.slots = te_sequence_tiles(&p.sequences, C::ROWS);
    TE_TRY((te__attn_fwd_tensor_maps<T, C, HEADS, KV_HEADS, F>(&all, encode, a, ctx)));
    p.rng = a->rng, p.id = a->id, p.whole = a->whole, p.sinks = a->sinks;
    te__attn_fwd_schedule<C, HEADS, KV_HEADS, F>(&p, a, ctx->tickets,
                                                 (int64_t)(F::CROSS ? a->kv_seq : a->seq) * (C::D + C::V) * 2,
                                                 F::VARLEN ? KV_HEADS : (int64_t)a->batch * KV_HEADS);
    const te_grid grid = te__grid_of(te_min(ctx->processors, p.tiles), 1);
    const te_launch launch = te__launch_of(kernel, name, grid, C::THREADS, C::SHARED, 1);
    return te__cuda_launch(ctx, launch, &all, F::VALUE ? sizeof all : sizeof p);
}

/* The forward kernel as a type (attention_cuda.h, "kernels as types"). EXISTS is 0 if there is no kernel for these
 * template arguments. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F,
          bool = T != TE_f32 && F::ONLY != TE_ATTENTION_NO_SM90 &&
                  te__attn_sm90_supports(D, te__attn_value_dim<D, F>())>
struct te__attn_sm90_forward : te__attn_fwd_traits<D, te__attn_value_dim<D, F>()> {
    typedef te__attn_fwd_traits<D, te__attn_value_dim<D, F>()> traits;
    typedef te__attn_fwd_params_of<F> args;
    static constexpr int EXISTS = 1, BLOCKS = 1;
    static __device__ __forceinline__ void body(const args *p) {
        __shared__ te__attn_fwd_barriers bars;
        te__attn_fwd_kernel<T, traits, HEADS, KV_HEADS, F>((const te__attn_fwd_params *)p, &bars);
    }
    static te_status launch(te_context *ctx, const void *kernel, te__tensor_map_encode_fn encode,
                            const te_attention_args *a, const char *name) {
        return te__attn_fwd_launch<T, traits, HEADS, KV_HEADS, F>(ctx, kernel, encode, a, name);
    }
};
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
struct te__attn_sm90_forward<T, HEADS, KV_HEADS, D, F, false> {
    typedef te__attn_fwd_params args;
    static constexpr int EXISTS = 0, THREADS = 32, BLOCKS = 1, SHARED = 0;
    static __device__ __forceinline__ void body(const args *) {}
    static te_status launch(te_context *, const void *, te__tensor_map_encode_fn, const te_attention_args *,
                            const char *) {
        return TE_OK;
    }
};

#endif
