/* attention_mma_forward.h -- attention forward on tensor cores, bf16 and f16, where attention_hopper_forward.h is not
 * for: other devices than sm_90a, other sizes of heads. Dao 2023, FlashAttention-2, algorithm 1.
 *
 * A block has WARPS * M * 16 queries of one head, a warp M * 16 of them; keys and values come in tiles of TILE, two
 * stages deep. A warp of 32 rows uses each B fragment for two products: at 16 rows shared memory, not the tensor
 * cores, would be the limit.
 *
 * Floor: 4 * batch * heads * seq^2 * head_dim flops (half of it if causal), and 2 * batch * seq * (2 * heads +
 * 2 * kv_heads) * head_dim bytes. At seq 1024, head_dim 64, that is 500 flops a byte: arithmetic is the limit. Where a
 * head of v has another size, V, 2 * head_dim of it is head_dim + V, in either.
 * Beside the products, seq^2 exponentials at 16 a clock: at head_dim 64 two thirds of the time of the products.
 * Measured on an H200, bf16, causal: 221 TFLOP/s at seq 1024 and head_dim 64, 302 at seq 2048 and head_dim 128; issuing
 * the next tile's Q K^T before this tile's softmax was slower.
 */
/* target: cuda */
#ifndef TE_ATTENTION_MMA_FORWARD_H
#define TE_ATTENTION_MMA_FORWARD_H

#include "attention_mma.h"   /* te__attn_product_nt, te__attn_product_nn, tiles */
#include "attention_table.h" /* te__attn_add_table */

/* Which head of which sequence a block works on, and where its rows lie. Elements are 16 bits. */
struct te__attn_head {
    int batch, head, kv_head;
    int seq, keys;          /* queries of the sequence, and keys */
    int64_t width, q;       /* of qkv: row length, and the offset of this head's first row */
    int64_t kv_width, k, v; /* of te__attn_kv: the same */
    int64_t out_width, out; /* of out and dout */
    int64_t row, rows;      /* of lse and delta, and from head to head */
};
template <int HEADS, int KV_HEADS, int D, class F> struct te__attn_widths { /* row lengths */
    static constexpr int V = te__attn_value_dim<D, F>();                    /* the size of a head of v */
    static constexpr int64_t OUT = HEADS * V;                               /* of out and dout */
    static constexpr int64_t Q = HEADS * D, ROW_KV = KV_HEADS * (D + V);
    static constexpr int64_t QKV = F::CROSS ? Q : Q + ROW_KV, KV = F::CROSS ? ROW_KV : QKV;
};
/* The first column of a head of k (value == 0) or of v where keys and values lie, which is behind the queries unless
 * they have a place of their own. */
template <int HEADS, int KV_HEADS, int D, class F> TE_FN int te__attn_column(int value, int kv_head) {
    constexpr int V = te__attn_value_dim<D, F>(), BEFORE = F::CROSS ? 0 : HEADS;
    if (V == D) return (BEFORE + (value ? KV_HEADS : 0) + kv_head) * D;
    return value ? (BEFORE + KV_HEADS) * D + kv_head * V : (BEFORE + kv_head) * D;
}
/* Where keys and values lie, and their gradients. */
template <class F> TE_FN const void *te__attn_kv(const te_attention_args *a) { return F::CROSS ? a->kv : a->qkv; }
template <class F> TE_FN void *te__attn_dkv(const te_attention_args *a) { return F::CROSS ? a->dkv : a->dqkv; }
template <int HEADS, int KV_HEADS, int D, class F>
TE_FN te__attn_head te__attn_head_of(const te_attention_args *a, int batch, int head) {
    te__attn_head h;
    const int seq = a->seq;
    int64_t first = (int64_t)batch * seq;
    h.seq = h.rows = seq, h.row = ((int64_t)batch * HEADS + head) * seq;
    if constexpr (F::VARLEN) {
        const te_sequences s = te__attn_sequences(a);
        const te_sequence own = te_sequence_rows(&s, batch);
        first = own.first, h.seq = own.count, h.rows = s.rows, h.row = head * h.rows + first;
    }
    h.batch = batch, h.head = head, h.kv_head = head / (HEADS / KV_HEADS);
    constexpr int V = te__attn_value_dim<D, F>();
    h.width = te__attn_widths<HEADS, KV_HEADS, D, F>::QKV, h.out_width = HEADS * V;
    h.q = first * h.width + head * D;
    h.keys = h.seq, h.kv_width = h.width, h.k = first * h.width + (HEADS + h.kv_head) * D;
    if constexpr (F::CROSS) {
        h.keys = a->kv_seq, h.kv_width = te__attn_widths<HEADS, KV_HEADS, D, F>::KV;
        h.k = (int64_t)batch * h.keys * h.kv_width + h.kv_head * D;
    }
    h.v = h.k + KV_HEADS * D + h.kv_head * (V - D);
    h.out = first * h.out_width + head * V;
    return h;
}
template <class F> TE_FN te__attn_mask te__attn_mask_at(const te__attn_head &h) {
    if constexpr (F::CROSS) return te__attn_mask_between(h.seq, h.keys, F::LEFT, F::RIGHT);
    else return te__attn_mask_of(h.seq, F::LEFT, F::RIGHT);
}
/* Queries that see no key, or keys that no query sees: the copies that were begun end before their memory is used. */
template <class F> TE_FN void te__attn_nothing_seen(int steps) {
    if constexpr (F::CROSS)
        if (steps <= 0) te__attn_copies_done(), __syncthreads();
}

/* What softmax takes off the scores of a row: the largest so far, or 0 while the row has seen no key. Where keys come
 * in their order only a bound on the left, fewer keys than queries, or a bias of -inf brings that about. */
template <class F> TE_FN float te__attn_off(float top) {
    return (F::LEFT >= 0 || F::CROSS || F::BIAS) && top == -INFINITY ? 0.0f : top;
}
/* Whether a row has seen no key at all, sum being that of its exponentials: it is 0, and so are, by a log-sum-exp of
 * infinity, all its probabilities in backward. */
template <class F> TE_FN int te__attn_blind(float sum) {
    return (F::CROSS || F::BIAS) && !(sum > 0);
}

/* Measured on an H200: at head_dim 64 more warps beat wider ones, at 128 32 rows a warp beat 16. V: the size of a head
 * of v, and so of O, which takes most of the registers. */
template <int D, int V = D> struct te__attn_forward_shape {
    static constexpr int WARPS = 4, M = V > 64 && V <= 128 ? 2 : 1;
    static constexpr int HELD = D <= 64 && M == 1;                           /* Q stays in registers */
    static constexpr int BLOCKS = D <= 64 && V <= 64 ? 4 : V <= 128 ? 2 : 1; /* on a multiprocessor */
    static constexpr int ROWS = WARPS * M * 16, THREADS = WARPS * 32;
    static constexpr int bytes(int tile) {
        return te__attn_tile_bytes<D>(ROWS + 2 * tile) + te__attn_tile_bytes<V>(2 * tile);
    }
    static constexpr int TILE = D <= 128 && bytes(64) <= TE_SHARED_BYTES ? 64 : 32, BYTES = bytes(TILE);
    static_assert(te__attn_tile_bytes<V>(ROWS) <= BYTES, "te: attention: O leaves through shared memory");
};

/* Grid: (batch * heads, query tiles). Shared memory: Q, then K and V of stage 0, K and V of stage 1. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F,
          class C = te__attn_forward_shape<D, te__attn_value_dim<D, F>()>>
TE_FN void te__attention_forward_mma(const te_attention_args *a) {
    constexpr int M = C::M, TILE = C::TILE, N = TILE / 8, HELD = C::HELD;
    typedef te__attn_widths<HEADS, KV_HEADS, D, F> widths;
    constexpr int64_t QKV = widths::QKV, KV = widths::KV;
    constexpr int V = widths::V;
    constexpr uint32_t ROW = (D + TE__ATTN_PAD) * 2, OUT_ROW = (V + TE__ATTN_PAD) * 2;
    constexpr uint32_t K_BYTES = TILE * ROW, STAGE_BYTES = TILE * (ROW + OUT_ROW);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const te__attn_head h =
        te__attn_head_of<HEADS, KV_HEADS, D, F>(a, (int)blockIdx.x / HEADS, (int)blockIdx.x % HEADS);
    const int seq = h.seq;
    /* causal: the longest rows first, so that the short ones fill the end */
    const te__attn_mask mask = te__attn_mask_at<F>(h);
    const int q0 = (int)(te__attn_grows(mask) ? gridDim.y - 1 - blockIdx.y : blockIdx.y) * C::ROWS;
    const int row0 = q0 + warp * M * 16;
    if (F::VARLEN && q0 >= seq) return;
    const te__attn_span tiles = te__attn_in_tiles(te__attn_keys_of(mask, q0, C::ROWS), TILE);
    const te__attn_span own = te__attn_in_tiles(te__attn_keys_of(mask, row0, M * 16), TILE); /* this warp's */
    const int64_t begin = tiles.first * TILE * KV;
    const uint16_t *qkv = (const uint16_t *)a->qkv, *kv = (const uint16_t *)te__attn_kv<F>(a);
    const uint32_t q_tile = te__shared_address(te__attention_shared), kv_tile = q_tile + C::ROWS * ROW;
    const uint32_t q_lane = q_tile + (uint32_t)warp * M * 16 * ROW + te__attn_lane_a<D>(lane);
    const float c = te__attn_unit<F>(a->scale) * TE__ATTN_LOG2E;

    te__attn_tile_load<C::ROWS, D, QKV, C::THREADS>(q_tile, qkv + h.q + q0 * QKV, seq - q0);
    te__attn_tile_load<TILE, D, KV, C::THREADS>(kv_tile, kv + h.k + begin, h.keys - tiles.first * TILE);
    te__attn_tile_load<TILE, V, KV, C::THREADS>(kv_tile + K_BYTES, kv + h.v + begin, h.keys - tiles.first * TILE);

    uint32_t held[M][HELD ? D / 16 : 1][4];
    float o[M][V / 8][4] = {}, top[M][2],
                   sum[M][2]; /* o: not yet divided; top: largest score; sum: this lane's share */
    const float sink = te__attn_sink<T, F>(a, h.head);
    TE_UNROLL for (int m = 0; m < M; m++) {
        top[m][0] = top[m][1] = sink, sum[m][0] = sum[m][1] = F::SINKS && t == 0 ? 1.0f : 0.0f;
    }
    float most[M][2]; /* the largest score that this lane has seen, for row_top */
    TE_UNROLL for (int m = 0; m < M; m++) most[m][0] = most[m][1] = -INFINITY;
    for (int i = tiles.first; i < tiles.end; i++) {
        const int k0 = i * TILE, stage = (i - tiles.first) & 1;
        const uint32_t k_tile = kv_tile + stage * STAGE_BYTES;
        te__attn_copies_done();
        __syncthreads(); /* the tile is there, and nobody reads the other stage any more */
        if (i + 1 < tiles.end) {
            const uint32_t next = kv_tile + (stage ^ 1) * STAGE_BYTES;
            const int64_t at = (k0 + TILE) * KV;
            te__attn_tile_load<TILE, D, KV, C::THREADS>(next, kv + h.k + at, h.keys - k0 - TILE);
            te__attn_tile_load<TILE, V, KV, C::THREADS>(next + K_BYTES, kv + h.v + at, h.keys - k0 - TILE);
        }
        if constexpr (HELD != 0) if (i == tiles.first) te__attn_hold<M, D>(held, q_lane);
        if (te__attn_differs(mask) && !te__attn_meets(own, i, 1)) continue; /* all masked for this warp */

        float s[M][N][4] = {};
        te__attn_product_nt<T, M, N, D, HELD>(s, held, q_lane, k_tile + te__attn_lane_b<D>(lane));
        te__attn_cap<F, M, N>(s, a->scale);
        te__attn_add_bias<F, M, N>(s, te__attn_bias_at<HEADS, F>(h.head, a->scale, row0 + g + mask.shift - k0 - t * 2));
        te__attn_add_table<T, F, M, N>(s, te__attn_table_at<T, F>(a, h.head, row0 + g, k0 + t * 2, mask.shift));
        if (te__attn_cuts(own, i, 1)) te__attn_hide<M, N>(s, mask, row0 + g, k0 + t * 2);
        if constexpr (F::TOP)
            TE_UNROLL for (int m = 0; m < M; m++)
                TE_UNROLL for (int n = 0; n < N; n++)
                    TE_UNROLL for (int e = 0; e < 4; e++) most[m][e / 2] = fmaxf(most[m][e / 2], s[m][n][e]);
        /* without a bound on the left key 0 is in the first tile and never masked: top is finite from there on */
        float shrink[M][2];
        int moved = 0;
        TE_UNROLL for (int m = 0; m < M; m++)
            TE_UNROLL for (int e = 0; e < 2; e++) {
                float v = top[m][e];
                TE_UNROLL for (int n = 0; n < N; n++) v = fmaxf(v, fmaxf(s[m][n][2 * e], s[m][n][2 * e + 1]));
                v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
                v = fmaxf(v, __shfl_xor_sync(~0u, v, 2));
                moved |= v != top[m][e];
                const float off = te__attn_off<F>(v);
                shrink[m][e] = te_exp2((top[m][e] - off) * c);
                top[m][e] = v;
                const float vc = off * c;
                float add = 0;
                TE_UNROLL for (int n = 0; n < N; n++) {
                    s[m][n][2 * e] = te_exp2(s[m][n][2 * e] * c - vc);
                    s[m][n][2 * e + 1] = te_exp2(s[m][n][2 * e + 1] * c - vc);
                    add += s[m][n][2 * e] + s[m][n][2 * e + 1];
                }
                sum[m][e] = sum[m][e] * shrink[m][e] + add;
            }
        if (__any_sync(~0u, moved)) /* else every factor is 1: after a few tiles that is the rule */
            TE_UNROLL for (int m = 0; m < M; m++)
                TE_UNROLL for (int n = 0; n < V / 8; n++)
                    TE_UNROLL for (int e = 0; e < 4; e++) o[m][n][e] *= shrink[m][e / 2];
        if (F::DROP && a->rng)
            te__attn_drop<F, M, N>(a, te__attn_drawn<HEADS>(a, (int)blockIdx.x, row0), g, k0 + t * 2,
                                   [&](int m, int n, int e, int drops) { if (drops) s[m][n][e] = 0; });
        uint32_t p[M][N / 2][4];
        te__attn_pack_all<T, M, N>(p, s);
        te__attn_product_nn<T, M, N / 2, V>(o, p, k_tile + K_BYTES + te__attn_lane_a<V>(lane));
    }
    te__attn_nothing_seen<F>(tiles.end - tiles.first);
    float inverse[M][2];
    TE_UNROLL for (int m = 0; m < M; m++)
        TE_UNROLL for (int e = 0; e < 2; e++) {
            sum[m][e] += __shfl_xor_sync(~0u, sum[m][e], 1);
            sum[m][e] += __shfl_xor_sync(~0u, sum[m][e], 2);
            inverse[m][e] = (F::DROP && a->rng ? F::FACTOR : 1.0f) / sum[m][e];
            const int row = row0 + m * 16 + g + e * 8, blind = te__attn_blind<F>(sum[m][e]);
            if (blind) inverse[m][e] = 0;
            if (a->lse && t == 0 && row < seq)
                a->lse[h.row + row] = blind ? INFINITY : top[m][e] * te__attn_unit<F>(a->scale) + logf(sum[m][e]);
            if constexpr (F::TOP) {
                most[m][e] = fmaxf(most[m][e], __shfl_xor_sync(~0u, most[m][e], 1));
                most[m][e] = fmaxf(most[m][e], __shfl_xor_sync(~0u, most[m][e], 2));
                if (a->row_top && t == 0 && row < seq)
                    a->row_top[h.row + row] = most[m][e] * te__attn_unit<F>(a->scale);
            }
        }
    if (V > D) __syncthreads(); /* a warp's rows of O are larger than those of Q: no other warp reads there any more */
    const float *const scale = te__attn_out_scale<F>(a);
    te__attn_rows_store<T, M, V>(te__attn_out_at(a->out, h.out + row0 * h.out_width, scale), h.out_width, seq - row0, o,
                                 inverse, te__attention_shared + warp * M * 16 * (V > D ? OUT_ROW : ROW), nullptr,
                                 scale, te__attn_amax_of<F>(a));
}

#endif
