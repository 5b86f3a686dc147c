/* attention_sm80_forward.h -- attention forward on tensor cores, bf16 and f16, for the cases that
 * attention_sm90_forward.h does not support: devices other than sm_90a, and other head sizes. The kernel runs algorithm
 * 1 of FlashAttention-2 (Dao 2023).
 *
 * A block processes WARPS * M * 16 queries of one head; each warp processes M * 16 of them. If the columns of the
 * output are divided into two slices, two warps process the same queries, one for each slice. Keys and values are
 * loaded in tiles of TILE keys, in two stages. A warp with 32 queries (M = 2) uses each B fragment that it loads from
 * shared memory for two products; with 16 queries, the bandwidth of shared memory would be the limit instead of the
 * tensor cores.
 *
 * Lower bounds: 4 * batch * heads * seq^2 * head_dim flops (half of that if causal), and memory traffic of
 * 2 * (2 * heads + 2 * kv_heads) * batch * seq * head_dim bytes; if the head size V of v differs from head_dim, replace
 * 2 * head_dim by head_dim + V in both formulas. At seq 1024 and head_dim 64 there are 500 flops for each byte, so the
 * kernel is compute-bound. In addition there are seq^2 exponentials for each head; a multiprocessor computes 16 of them
 * in a clock, so at head_dim 64 the exponentials take two thirds of the time of the products. Measurements:
 * docs/notes/attention.md.
 */
/* target: cuda */
#ifndef TE_ATTENTION_SM80_FORWARD_H
#define TE_ATTENTION_SM80_FORWARD_H

#include "attention_sm80_tiles.h" /* fragments, products, options of scores */

/* Constants of the forward kernel for the head size D of q and k, and V of v and O. The constants are tuned: the
 * accumulators of O take most of the registers; at head_dim 64, more warps with 16 rows each are faster than fewer
 * warps with 32 rows each, and at head_dim 128 the opposite. */
template <int D, int V = D, bool VALUES_IN_KEYS = false, int LIMIT = TE__ATTN_SHARED> struct te__attn_forward_shape {
    typedef te__attn_forward_shape<D, V, VALUES_IN_KEYS, TE__ATTN_SHARED_SMALL> small;
    static constexpr int M = V > 64 && V <= 128 && D <= 256 ? 2 : 1;
    static constexpr int HELD = D <= 64 && M == 1; /* 1 if the fragments of Q stay in registers */
    /* how many blocks run on a multiprocessor */
    static constexpr int BLOCKS = D <= 64 && V <= 64 ? 4 : D <= 256 && V <= 128 ? 2 : 1;
    static constexpr int bytes(int rows, int tile) {
        return te__attn_tile_bytes<D>(rows + 2 * tile) + (VALUES_IN_KEYS ? 0 : te__attn_tile_bytes<V>(2 * tile));
    }
    /* WARPS: how many groups of M * 16 rows a block has. SLICES: the number of slices into which the columns of O are
     * divided. Each warp computes one slice of one group of rows. */
    static constexpr int WARPS = bytes(4 * M * 16, 16) <= LIMIT ? 4 : 2, SLICES = te__attn_slices<V>();
    static constexpr int ROWS = WARPS * M * 16, THREADS = WARPS * SLICES * 32;
    static constexpr int TILE = D <= 128 && bytes(ROWS, 64) <= LIMIT ? 64 : bytes(ROWS, 32) <= LIMIT ? 32 : 16;
    static constexpr int BYTES = bytes(ROWS, TILE);
    /* the distance between the rows of O in the shared memory through which each warp stores its slice of O */
    static constexpr uint32_t STORE_ROW = V > D || SLICES > 1 ? te__attn_row_bytes<te__attn_slice<V>()>()
                                                              : te__attn_row_bytes<D>();
    static_assert(ROWS * SLICES * STORE_ROW <= BYTES, "te: attention: O leaves through shared memory");
};

/* Returns the maximum of v over the four lanes that together hold a row. */
TE_FN float te__attn_quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
    return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
}
/* Returns the sum of v over the four lanes that together hold a row. */
TE_FN float te__attn_quad_sum(float v) {
    v += __shfl_xor_sync(~0u, v, 1);
    v += __shfl_xor_sync(~0u, v, 2);
    return v;
}
/* One step of the online softmax for a warp's rows. For each m, this lane has elements of two of 16 rows: rows
 * 16 * m + g (s[m][n][0] and [1]) and 16 * m + g + 8 ([2] and [3]), where g = lane / 4. s becomes exp(s - row_max).
 * row_max (in the unit of te__attn_score_unit) and sum (over this lane's elements) are updated. rescale becomes the
 * factor by which the O of the previous steps must be multiplied. c: te__attn_score_unit times log2(e). Returns whether
 * the maximum of any of these rows has changed. */
template <class F, int M, int N>
TE_FN int te__attn_softmax_step(float (&s)[M][N][4], float (&row_max)[M][2], float (&sum)[M][2], float (&rescale)[M][2],
                                float c) {
    int changed = 0;
    TE_UNROLL for (int m = 0; m < M; m++)
        TE_UNROLL for (int e = 0; e < 2; e++) {
            float v = row_max[m][e];
            TE_UNROLL for (int n = 0; n < N; n++) v = fmaxf(v, fmaxf(s[m][n][2 * e], s[m][n][2 * e + 1]));
            v = te__attn_quad_max(v);
            changed |= v != row_max[m][e];
            const float offset = te__attn_softmax_offset<F>(v);
            rescale[m][e] = te_exp2((row_max[m][e] - offset) * c);
            row_max[m][e] = v;
            const float offset_c = offset * c;
            float add = 0;
            TE_UNROLL for (int n = 0; n < N; n++) {
                s[m][n][2 * e] = te_exp2(s[m][n][2 * e] * c - offset_c);
                s[m][n][2 * e + 1] = te_exp2(s[m][n][2 * e + 1] * c - offset_c);
                add += s[m][n][2 * e] + s[m][n][2 * e + 1];
            }
            sum[m][e] = sum[m][e] * rescale[m][e] + add;
        }
    return changed;
}

/* Starts to load keys key to key + TILE - 1 to shared memory at `tile` and, behind these keys, the values of the same
 * tokens. With values_in_keys there are no separate values to load. */
template <te_dtype T, class F, int D, int V, int64_t KV, class C>
TE_FN void te__attn_stage_load(uint32_t tile, const te_attention_args *a, const te__attn_head &h, int key) {
    te__attn_keys_load<T, F, C::TILE, D, KV, C::THREADS>(tile, a, h, 0, key);
    if constexpr (!F::VALUES_IN_KEYS)
        te__attn_keys_load<T, F, C::TILE, V, KV, C::THREADS>(tile + C::TILE * te__attn_row_bytes<D>(), a, h, 1, key);
}

/* The forward kernel. Grid: (batch * heads, tiles of queries). Contents of shared memory: Q, then K and V of stage 0,
 * then K and V of stage 1. With values_in_keys a stage has only K, whose first V columns are the values. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F,
          class C = te__attn_forward_shape<D, te__attn_value_dim<D, F>(), F::VALUES_IN_KEYS>>
TE_FN void te__attention_forward_sm80(const te_attention_args *a) {
    constexpr int M = C::M, TILE = C::TILE, N = TILE / 8, HELD = C::HELD;
    typedef te__attn_widths<HEADS, KV_HEADS, D, F> widths;
    constexpr int64_t QKV = widths::QKV, KV = widths::KV;
    constexpr int V = widths::V;
    /* IN_ROW: the columns of a row of shared memory that contains a value; V_BYTES: the offset in bytes of the values
     * within a stage */
    constexpr int IN_ROW = F::VALUES_IN_KEYS ? D : V;
    constexpr uint32_t ROW = te__attn_row_bytes<D>(), V_BYTES = F::VALUES_IN_KEYS ? 0 : TILE * ROW;
    constexpr uint32_t STAGE_BYTES = V_BYTES + TILE * te__attn_row_bytes<IN_ROW>();

    /* The work of this block and this warp. warp: the index, within the block, of the group of M * 16 queries that this
     * warp processes; slice: the index of the slice of O that this warp computes; q0: the first query of the block;
     * row0: the first query of the warp; tiles: the tiles of keys that the block's queries see; warp_tiles: the tiles
     * of keys that the warp's queries see. */
    const int lane = (int)threadIdx.x % 32, slice = C::SLICES > 1 ? (int)threadIdx.x / 32 / C::WARPS : 0;
    const int warp = (int)threadIdx.x / 32 - slice * C::WARPS, g = lane / 4, t = lane % 4;
    const te__attn_head h =
        te__attn_head_of<HEADS, KV_HEADS, D, F>(a, (int)blockIdx.x / HEADS, (int)blockIdx.x % HEADS);
    const int seq = h.seq;
    const te__attn_mask mask = te__attn_mask_at<F>(h);
    /* With a causal mask, the first blocks process the queries that see the most keys, so that the blocks with the
     * least work come last. */
    const int q0 = (int)(te__attn_keys_grow(mask) ? gridDim.y - 1 - blockIdx.y : blockIdx.y) * C::ROWS;
    const int row0 = q0 + warp * M * 16;
    if (F::VARLEN && q0 >= seq) return;
    if (F::CACHED && seq <= a->cache.short_rows) return; /* the decoding kernel processes this sequence */
    const te__attn_range tiles = te__attn_in_tiles(te__attn_keys_of(mask, q0, C::ROWS), TILE);
    const te__attn_range warp_tiles = te__attn_in_tiles(te__attn_keys_of(mask, row0, M * 16), TILE);
    const uint16_t *qkv = (const uint16_t *)a->qkv;
    const uint32_t q_tile = te__shared_address(te__attention_shared), kv_tile = q_tile + C::ROWS * ROW;
    const uint32_t q_lane = q_tile + (uint32_t)warp * M * 16 * ROW + te__attn_lane_a<D>(lane);
    const float c = te__attn_score_unit<F>(a->scale) * TE__ATTN_LOG2E;

    te__attn_tile_load<C::ROWS, D, QKV, C::THREADS>(q_tile, qkv + h.q + q0 * QKV, seq - q0);
    te__attn_stage_load<T, F, D, V, KV, C>(kv_tile, a, h, tiles.first * TILE);

    uint32_t held[M][HELD ? te__attn_columns<D>() / 16 : 1][4];
    /* o: O before the division by the sum; sum: the sum of this lane's elements of P, for each row */
    float o[M][te__attn_slice<V>() / 8][4] = {}, row_max[M][2], sum[M][2];
    const float sink = te__attn_sink<T, F>(a, h.head);
    TE_UNROLL for (int m = 0; m < M; m++) {
        row_max[m][0] = row_max[m][1] = sink, sum[m][0] = sum[m][1] = F::SINKS && t == 0 ? 1.0f : 0.0f;
    }
    /* the largest of this lane's scores in each row; unlike row_max it does not include the attention sink */
    float max_logit[M][2];
    TE_UNROLL for (int m = 0; m < M; m++) max_logit[m][0] = max_logit[m][1] = -INFINITY;
    for (int i = tiles.first; i < tiles.end; i++) {
        /* Wait for tile i of the keys and values, then start to load the next one. */
        const int k0 = i * TILE, stage = (i - tiles.first) & 1;
        const uint32_t k_tile = kv_tile + stage * STAGE_BYTES;
        te__attn_wait_copies();
        /* after this barrier, tile i is in shared memory, and all warps have finished reading the other stage */
        __syncthreads();
        if (i + 1 < tiles.end)
            te__attn_stage_load<T, F, D, V, KV, C>(kv_tile + (stage ^ 1) * STAGE_BYTES, a, h, k0 + TILE);
        if constexpr (HELD != 0) if (i == tiles.first) te__attn_load_fragments<M, D>(held, q_lane);
        /* Skip this tile of keys if no query of the warp sees any of its keys. */
        if (te__attn_has_mask(mask) && !te__attn_intersects(warp_tiles, i, 1)) continue;

        /* compute S = Q K^T, and apply the options to it */
        float s[M][N][4] = {};
        te__attn_product_nt<T, M, N, D, HELD>(s, held, q_lane, k_tile + te__attn_lane_b<D>(lane));
        te__attn_apply_softcap<F, M, N>(s, a->scale);
        te__attn_add_alibi<F, M, N>(
            s, te__attn_alibi_at<HEADS, F>(a->whole, h.head, a->scale, row0 + g + mask.shift - k0 - t * 2));
        te__attn_add_score_bias<T, F, M, N>(
            s, te__attn_score_bias_at<T, F>(a, h.head, row0 + g, k0 + t * 2, mask.shift));
        if (te__attn_needs_mask(warp_tiles, i, 1)) te__attn_apply_mask<M, N>(s, mask, row0 + g, k0 + t * 2);
        if constexpr (F::MAX_LOGIT)
            TE_UNROLL for (int m = 0; m < M; m++)
                TE_UNROLL for (int n = 0; n < N; n++)
                    TE_UNROLL for (int e = 0; e < 4; e++)
                        max_logit[m][e / 2] = fmaxf(max_logit[m][e / 2], s[m][n][e]);

        /* Compute P = exp(S - row_max) and O = rescale * O + P V. row_max is finite from the first tile on if every
         * query sees key 0, which is in the first tile. If some query does not see key 0, te__attn_softmax_offset keeps
         * the subtraction from yielding NaN. */
        float rescale[M][2];
        const int changed = te__attn_softmax_step<F, M, N>(s, row_max, sum, rescale, c);
        /* O needs to be multiplied only if a maximum has changed; otherwise all factors are 1, as they usually are
         * after a few tiles */
        if (__any_sync(~0u, changed))
            TE_UNROLL for (int m = 0; m < M; m++)
                TE_UNROLL for (int n = 0; n < te__attn_slice<V>() / 8; n++)
                    TE_UNROLL for (int e = 0; e < 4; e++) o[m][n][e] *= rescale[m][e / 2];
        if (F::DROP && a->rng)
            te__attn_apply_dropout<F, M, N>(a, te__attn_draw_row_of<HEADS>(a, (int)blockIdx.x, row0), g, k0 + t * 2,
                                            [&](int m, int n, int e, int drops) { if (drops) s[m][n][e] = 0; });
        uint32_t p[M][N / 2][4];
        te__attn_pack_all<T, M, N>(p, s);
        te__attn_product_nn<T, M, N / 2, V, IN_ROW>(
            o, p, k_tile + V_BYTES + te__attn_lane_a<IN_ROW>(lane) + (uint32_t)(slice * te__attn_slice<V>() * 2));
    }
    te__attn_drain_copies<F>(tiles.end - tiles.first);

    /* Compute and store lse, and O divided by the sum. */
    float inverse[M][2];
    TE_UNROLL for (int m = 0; m < M; m++)
        TE_UNROLL for (int e = 0; e < 2; e++) {
            sum[m][e] = te__attn_quad_sum(sum[m][e]);
            inverse[m][e] = (F::DROP && a->rng ? F::FACTOR : 1.0f) / sum[m][e];
            const int row = row0 + m * 16 + g + e * 8, empty = te__attn_sees_no_key<F>(sum[m][e]);
            if (empty) inverse[m][e] = 0;
            if (a->lse && t == 0 && slice == 0 && row < seq)
                a->lse[h.row + row] =
                    empty ? INFINITY : row_max[m][e] * te__attn_score_unit<F>(a->scale) + logf(sum[m][e]);
            if constexpr (F::MAX_LOGIT) {
                max_logit[m][e] = te__attn_quad_max(max_logit[m][e]);
                if (a->row_max_logit && t == 0 && slice == 0 && row < seq)
                    a->row_max_logit[h.row + row] = max_logit[m][e] * te__attn_score_unit<F>(a->scale);
            }
        }
    /* If a warp's rows of O do not lie within its own rows of Q in shared memory, wait until all warps have finished
     * reading Q. */
    if (V > D || C::SLICES > 1) __syncthreads();
    const float *const scale = te__attn_out_scale<F>(a);
    const te__attn_destination out = {te__attn_out_at(a->out, h.out + row0 * h.out_width, scale), h.out_width,
                                      seq - row0, nullptr, scale, te__attn_amax_output<F>(a)};
    te__attn_rows_store<T, M, V>(out, o, inverse,
                                 te__attention_shared + (slice * C::WARPS + warp) * M * 16 * C::STORE_ROW, slice);
}

#endif
