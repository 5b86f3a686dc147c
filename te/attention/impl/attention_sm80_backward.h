/* attention_sm80_backward.h -- attention backward on tensor cores, bf16 and f16. Two kernels run algorithm 2 of
 * FlashAttention-2 (Dao 2023). A block of the dq kernel computes the rows of dQ of a tile of queries, and a block of
 * the dkdv kernel computes the rows of dK and dV of a tile of keys, so that no atomic additions are needed. This file
 * also computes the gradient of a score bias.
 *
 *     forward:       S = Q K^T * scale, P = exp(S - lse), O = P V
 *     dq kernel:     delta = rowsum(dO * O), dP = dO V^T, dS = P * (dP - delta), dQ = scale * dS K
 *     dkdv kernel:   dV = P^T dO, dK = scale * dS^T Q, both summed over all query heads that share the KV head
 *
 * Lower bound of the work: 6 * n flops for the products S, dP and dQ of the dq kernel, and 8 * n flops for S, dP, dV
 * and dK of the dkdv kernel, where n = batch * heads * seq^2 * head_dim, or half of that if causal. An algorithm that
 * computes S and dP only once needs 10 * n flops. If the head size of v is not head_dim, it takes the place of head_dim
 * in the flops of dP and dV. P and dS are rounded to the dtype for their products. Measurements:
 * docs/notes/attention.md.
 */
/* target: cuda */
#ifndef TE_ATTENTION_SM80_BACKWARD_H
#define TE_ATTENTION_SM80_BACKWARD_H

#include "attention_sm80_tiles.h" /* fragments, products, options of scores */

/* ---- dQ ---------------------------------------------------------------------------------------------------------- */

/* Constants of the dq kernel, for the head size D of q and k, and V of v. A warp has the same number of rows (M * 16)
 * in the dq kernel and in the dkdv kernel, because in both each warp stores the column sums over its rows in
 * te_attention_args.sum. */
template <int D, int V = D, int LIMIT = TE__ATTN_SHARED> struct te__attn_dq_shape {
    typedef te__attn_dq_shape<D, V, TE__ATTN_SHARED_SMALL> small;
    static constexpr int MAX_DIM = D > V ? D : V;
    static constexpr int M = MAX_DIM <= 128 ? 2 : 1, BLOCKS = MAX_DIM <= 64 ? 3 : MAX_DIM <= 128 ? 2 : 1;
    static constexpr int bytes(int rows, int tile) {
        return te__attn_tile_bytes<D>(rows + 2 * tile) + te__attn_tile_bytes<V>(rows + 2 * tile);
    }
    /* WARPS: how many groups of M * 16 rows a block has. SLICES: the number of slices into which the columns of dQ are
     * divided. Each warp computes one slice of one group of rows. */
    static constexpr int WARPS = bytes(4 * M * 16, 16) <= LIMIT ? 4 : bytes(2 * M * 16, 16) <= LIMIT ? 2 : 1;
    static constexpr int SLICES = te__attn_slices<D>(), ROWS = WARPS * M * 16, THREADS = WARPS * SLICES * 32;
    static constexpr int TILE = bytes(ROWS, 32) <= LIMIT ? 32 : 16, BYTES = bytes(ROWS, TILE);
    /* the distance between the rows of dQ in the shared memory through which each warp stores its slice of dQ */
    static constexpr uint32_t STORE_ROW = te__attn_row_bytes<te__attn_slice<D>()>();
};

/* Returns the address in te_attention_args.sum at which a warp stores the sum of column `column` over the warp's ROWS
 * rows, which begin at row `row`; null if te_attention_args.sum is null. */
template <int64_t WIDTH, int ROWS>
TE_FN float *te__attn_sum(const te_attention_args *a, int batch, int row, int column) {
    return a->sum ? a->sum + ((int64_t)batch * ((a->seq + ROWS - 1) / ROWS) + row / ROWS) * WIDTH + column : nullptr;
}

/* The dq kernel. Grid: (batch * heads, tiles of queries). Contents of shared memory: Q, dO, then K and V of stage 0, K
 * and V of stage 1. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F,
          class C = te__attn_dq_shape<D, te__attn_value_dim<D, F>()>>
TE_FN void te__attention_dq_sm80(const te_attention_args *a) {
    typedef te__attn_widths<HEADS, KV_HEADS, D, F> widths;
    constexpr int64_t QKV = widths::QKV, KV = widths::KV, OUT = widths::OUT;
    constexpr int M = C::M, TILE = C::TILE, N = TILE / 8, V = widths::V;
    constexpr uint32_t ROW = te__attn_row_bytes<D>(), OUT_ROW = te__attn_row_bytes<V>();
    constexpr uint32_t K_BYTES = TILE * ROW, STAGE_BYTES = TILE * (ROW + OUT_ROW);

    /* The work of this block and this warp. warp: the index, within the block, of the group of M * 16 queries that this
     * warp processes; slice: the index of the slice of dQ that this warp computes; q0: the first query of the block;
     * row0: the first query of the warp; tiles: the tiles of keys that the block's queries see; warp_tiles: the tiles
     * of keys that the warp's queries see. */
    const int lane = (int)threadIdx.x % 32, slice = C::SLICES > 1 ? (int)threadIdx.x / 32 / C::WARPS : 0;
    const int warp = (int)threadIdx.x / 32 - slice * C::WARPS, g = lane / 4, t = lane % 4;
    const te__attn_head h =
        te__attn_head_of<HEADS, KV_HEADS, D, F>(a, (int)blockIdx.x / HEADS, (int)blockIdx.x % HEADS);
    const int seq = h.seq;
    const te__attn_mask mask = te__attn_mask_at<F>(h);
    const int q0 = (int)(te__attn_keys_grow(mask) ? gridDim.y - 1 - blockIdx.y : blockIdx.y) * C::ROWS;
    const int row0 = q0 + warp * M * 16;
    if (F::VARLEN && q0 >= seq) return;
    const te__attn_range tiles = te__attn_in_tiles(te__attn_keys_of(mask, q0, C::ROWS), TILE);
    const te__attn_range warp_tiles = te__attn_in_tiles(te__attn_keys_of(mask, row0, M * 16), TILE);
    const int64_t begin = tiles.first * TILE * KV;
    const uint16_t *qkv = (const uint16_t *)a->qkv, *dout = (const uint16_t *)a->dout + h.out;
    const uint16_t *kv = (const uint16_t *)te__attn_kv<F>(a), *out = (const uint16_t *)a->out + h.out;
    const uint32_t q_tile = te__shared_address(te__attention_shared), do_tile = q_tile + C::ROWS * ROW;
    const uint32_t kv_tile = do_tile + C::ROWS * OUT_ROW;
    const uint32_t q_lane = (uint32_t)warp * M * 16 * ROW + te__attn_lane_a<D>(lane);
    const uint32_t do_lane = (uint32_t)warp * M * 16 * OUT_ROW + te__attn_lane_a<V>(lane);
    const float c = te__attn_score_unit<F>(a->scale) * TE__ATTN_LOG2E;

    te__attn_tile_load<C::ROWS, D, QKV, C::THREADS>(q_tile, qkv + h.q + q0 * QKV, seq - q0);
    te__attn_tile_load<C::ROWS, V, OUT, C::THREADS>(do_tile, dout + q0 * OUT, seq - q0);
    te__attn_tile_load<TILE, D, KV, C::THREADS>(kv_tile, kv + h.k + begin, h.keys - tiles.first * TILE);
    te__attn_tile_load<TILE, V, KV, C::THREADS>(kv_tile + K_BYTES, kv + h.v + begin, h.keys - tiles.first * TILE);

    /* the array lse holds lse * log2(e), because the exponentials are in base 2 */
    float dq[M][te__attn_slice<D>() / 8][4] = {}, lse[M][2], minus_delta[M][2];
    TE_UNROLL for (int m = 0; m < M; m++)
        TE_UNROLL for (int e = 0; e < 2; e++) {
            const int row = row0 + m * 16 + g + e * 8;
            /* the sum of this lane's terms of rowsum(dO * O): four lanes share a row, and each lane adds up 8 of every
             * 32 numbers */
            float delta = 0;
            if (row < seq)
                for (int d = t * 8; d < V; d += 32) {
                    float x[8], y[8];
                    te_load8(x, dout, row * h.out_width + d, 8, 1, T), te_load8(y, out, row * h.out_width + d, 8, 1, T);
                    TE_UNROLL for (int j = 0; j < 8; j++) delta += x[j] * y[j];
                }
            delta += __shfl_xor_sync(~0u, delta, 1);
            delta += __shfl_xor_sync(~0u, delta, 2);
            minus_delta[m][e] = -delta, lse[m][e] = row < seq ? a->lse[h.row + row] * TE__ATTN_LOG2E : INFINITY;
            if (t == 0 && slice == 0 && row < seq) a->delta[h.row + row] = delta;
        }
    for (int i = tiles.first; i < tiles.end; i++) {
        /* Wait for tile i of the keys and values, then start to load the next one. */
        const int k0 = i * TILE, stage = (i - tiles.first) & 1;
        const uint32_t k_tile = kv_tile + stage * STAGE_BYTES;
        te__attn_wait_copies();
        /* after this barrier, tile i is in shared memory, and all warps have finished reading the other stage */
        __syncthreads();
        if (i + 1 < tiles.end) {
            const uint32_t next = kv_tile + (stage ^ 1) * STAGE_BYTES;
            const int64_t at = (k0 + TILE) * KV;
            te__attn_tile_load<TILE, D, KV, C::THREADS>(next, kv + h.k + at, h.keys - k0 - TILE);
            te__attn_tile_load<TILE, V, KV, C::THREADS>(next + K_BYTES, kv + h.v + at, h.keys - k0 - TILE);
        }
        /* Skip this tile of keys if no query of the warp sees any of its keys. */
        if (te__attn_has_mask(mask) && !te__attn_intersects(warp_tiles, i, 1)) continue;

        /* Compute S = Q K^T, and dP - delta, where dP = dO V^T. Without dropout the accumulators of dP start from
         * -delta. */
        const uint32_t none[M][1][4] = {};
        float s[M][N][4] = {}, dp[M][N][4];
        if constexpr (F::DROP != 0) memset(dp, 0, sizeof dp);
        else te__attn_init_rows<M, N>(dp, minus_delta);
        te__attn_product_nt<T, M, N, D, 0>(s, none, q_tile + q_lane, k_tile + te__attn_lane_b<D>(lane));
        te__attn_product_nt<T, M, N, V, 0>(dp, none, do_tile + do_lane, k_tile + K_BYTES + te__attn_lane_b<V>(lane));
        if constexpr (F::DROP != 0)
            te__attn_apply_dropout<F, M, N>(
                a, te__attn_draw_row_of<HEADS>(a, (int)blockIdx.x, row0), g, k0 + t * 2,
                [&](int m, int n, int e, int drops) {
                    dp[m][n][e] = (drops ? 0 : dp[m][n][e] * F::FACTOR) + minus_delta[m][e / 2];
                });

        /* Compute dS = P * (dP - delta) in the registers of S. */
        te__attn_apply_softcap<F, M, N>(s, a->scale);
        if (te__attn_needs_mask(warp_tiles, i, 1)) te__attn_apply_mask<M, N>(s, mask, row0 + g, k0 + t * 2);
        const te__attn_alibi_bias alibi =
            te__attn_alibi_at<HEADS, F>(a->whole, h.head, a->scale, row0 + g + mask.shift - k0 - t * 2);
        const te__attn_score_bias bias = te__attn_score_bias_at<T, F>(a, h.head, row0 + g, k0 + t * 2, mask.shift);
        TE_UNROLL for (int m = 0; m < M; m++)
            TE_UNROLL for (int n = 0; n < N; n++)
                TE_UNROLL for (int e = 0; e < 4; e++) {
                    float p = te__attn_with_alibi<F>(s[m][n][e], alibi, m * 16 + e / 2 * 8 - n * 8 - e % 2);
                    p = te__attn_with_score_bias<T, F>(p, bias, m * 16 + e / 2 * 8, n * 8 + e % 2);
                    p = te_exp2(p * c - lse[m][e / 2]);
                    s[m][n][e] = p * te__attn_softcap_grad<F>(s[m][n][e]) * dp[m][n][e];
                }

        /* dQ += dS K */
        uint32_t ds[M][N / 2][4];
        te__attn_pack_all<T, M, N>(ds, s);
        te__attn_product_nn<T, M, N / 2, D>(
            dq, ds, k_tile + te__attn_lane_a<D>(lane) + (uint32_t)(slice * te__attn_slice<D>() * 2));
    }
    te__attn_drain_copies<F>(tiles.end - tiles.first);
    float factor[M][2];
    TE_UNROLL for (int m = 0; m < M; m++) factor[m][0] = factor[m][1] = a->scale;
    const te__attn_destination to = {
        (uint16_t *)a->dqkv + h.q + row0 * h.width, h.width, seq - row0,
        te__attn_sum<QKV, M * 16>(a, (int)blockIdx.x / HEADS, row0, (int)blockIdx.x % HEADS * D), nullptr,
        te__attn_amax_output<F>(a)};
    if (C::SLICES > 1) __syncthreads(); /* all warps have finished reading Q */
    te__attn_rows_store<T, M, D>(to, dq, factor,
                                 te__attention_shared + (slice * C::WARPS + warp) * M * 16 * C::STORE_ROW, slice);
}

/* ---- dK and dV ---------------------------------------------------------------------------------------------------
 * Two warps, a pair, process the same M * 16 keys:
 *     the dV warp    S^T = K Q^T, P^T = exp(S^T - lse), dV += P^T dO; it passes P^T to the dK warp through shared
 *                    memory
 *     the dK warp    dP^T = V dO^T while the dV warp computes P^T, then dS^T = P^T * (dP^T - delta), dK += dS^T Q
 * So each warp accumulates only dV or only dK, for M * 16 rows. If one warp accumulated both, it would have registers
 * for only 16 rows at head_dim 128, and the bandwidth of shared memory would be the limit. Both warps compute two
 * products of the same form (A B^T, then P B), with different operands. With two slices, two dV warps and two dK warps
 * process the same keys; each accumulates half the columns. */
template <int D, int V = D, int LIMIT = TE__ATTN_SHARED> struct te__attn_dkdv_shape {
    typedef te__attn_dkdv_shape<D, V, TE__ATTN_SHARED_SMALL> small;
    static constexpr int bytes(int rows, int tile) {
        return te__attn_tile_bytes<D>(rows + 2 * tile) + te__attn_tile_bytes<V>(rows + 2 * tile);
    }
    /* WIDE: 1 if a block processes 128 keys, and 64 queries at a time. Up to head size 64, WIDE is 0: a block then
     * processes 64 keys, and 32 queries at a time, so that up to three blocks run on a multiprocessor. */
    static constexpr int MAX_DIM = D > V ? D : V, wide_bytes = bytes(128, 64) + 128 * 64 * 2 + 4 * 64 * 4;
    static constexpr int WIDE = MAX_DIM > 64 && MAX_DIM <= 128 && wide_bytes <= LIMIT;
    static constexpr int M = MAX_DIM <= 128 ? 2 : 1;
    static constexpr int all_bytes(int pairs, int tile) {
        return bytes(pairs * M * 16, tile) + pairs * M * 16 * tile * 2 + 4 * tile * 4;
    }
    static constexpr int SLICES = te__attn_slices<MAX_DIM>();
    static constexpr int PAIRS = WIDE || (MAX_DIM > 128 && SLICES == 1 && all_bytes(4, 32) <= LIMIT) ? 4
                                 : all_bytes(2, 16) <= LIMIT                                         ? 2
                                                                                                     : 1;
    /* the number of queries in a tile */
    static constexpr int TILE = WIDE ? 64 : all_bytes(PAIRS, 32) <= LIMIT ? 32 : 16;
    /* 1 if the fragments of K or V stay in registers for all tiles of queries */
    static constexpr int HELD = MAX_DIM <= 64 && D == V;
    static constexpr int BLOCKS = MAX_DIM <= 64 ? 3 : PAIRS == 2 && SLICES == 1 ? 2 : 1;
    /* ROWS: the number of keys that a block processes */
    static constexpr int ROWS = PAIRS * M * 16, THREADS = PAIRS * SLICES * 64;
    /* the largest number of columns of dV or dK that a warp accumulates */
    static constexpr int MAX_SLICE = te__attn_slice<D>() > te__attn_slice<V>() ? te__attn_slice<D>()
                                                                               : te__attn_slice<V>();
    static constexpr int TILES_BYTES = bytes(ROWS, TILE), BYTES = all_bytes(PAIRS, TILE);
};

/* Starts to load Q, dO, lse and delta of one query head to shared memory, for the TILE queries from q0 on. member: the
 * index of the query head among the query heads that share the KV head, of which h.head is the first. */
template <int D, int V, int64_t QKV, int64_t OUT, class C>
TE_FN void te__attn_queries_load(uint32_t q_tile, uint32_t lse, const te_attention_args *a, const te__attn_head &h,
                                 int member, int q0) {
    const int valid = h.seq - q0, r = (int)threadIdx.x % C::TILE;
    te__attn_tile_load<C::TILE, D, QKV, C::THREADS>(q_tile, (const uint16_t *)a->qkv + (h.q + member * D + q0 * QKV),
                                                    valid);
    te__attn_tile_load<C::TILE, V, OUT, C::THREADS>(q_tile + C::TILE * te__attn_row_bytes<D>(),
                                                    (const uint16_t *)a->dout + (h.out + member * V + q0 * OUT), valid);
    const float *p = (threadIdx.x < C::TILE ? a->lse : a->delta) + (h.row + (int64_t)member * h.rows + q0);
    if (threadIdx.x < 2 * C::TILE) te__attn_copy4(lse + threadIdx.x * 4, r < valid ? p + r : p, r < valid);
}
/* Returns the offset, in bytes, from the tile of K in shared memory to the rows of V (is_v = 1) or K (is_v = 0) that
 * belong to a pair of warps. row: the first row of the pair of warps, counted from the block's first key; rows: the
 * number of keys of the block. */
template <int D, int V> TE_FN uint32_t te__attn_pair_rows(int is_v, int row, int rows) {
    constexpr uint32_t ROW = te__attn_row_bytes<D>(), V_ROW = te__attn_row_bytes<V>();
    if (V == D) return (uint32_t)(is_v * rows + row) * ROW;
    return is_v ? rows * ROW + row * V_ROW : row * ROW;
}
/* Returns the array `sum` as the accumulators of one slice of a head of size N, where N is head_dim or V. `sum` is
 * large enough for the larger of these sizes. No data is moved. */
template <int N, int M, int MAX_TILES>
TE_FN float (&te__attn_accumulator_view(float (&sum)[M][MAX_TILES][4]))[M][te__attn_slice<N>() / 8][4] {
    return *(float (*)[M][te__attn_slice<N>() / 8][4])(void *)&sum[0][0][0];
}

/* The constants of one step of the dkdv kernel for a pair of warps: the pair's keys, and a tile of queries of one query
 * head. */
struct te__attn_dkdv_step {
    const te_attention_args *a;
    te__attn_mask mask;
    te__attn_range warp_tiles; /* the tiles of queries that see at least one key of this pair of warps */
    int tile;                  /* the index of the step's tile of queries */
    int batch, head;
    int key, query;            /* the key and the query to which this lane's score s[0][0][0] belongs */
    float unit, c;             /* unit: the unit of scores (te__attn_score_unit); c: the unit times log2(e) */
    /* The lse (in the dK warp: the delta) of this lane's queries. Of columns 8 * n to 8 * n + 7 of the tile of scores,
     * the lane has two columns, i.e. queries; column[4 * n] has the two numbers. */
    const float2 *column;
    /* the address in shared memory at which this lane stores (in the dV warp), or loads (in the dK warp), its elements
     * of P^T */
    uint4 *exchange;
};

/* Initialises the accumulators s of S^T (or of dP^T, if makes_dk is 1). S^T starts from -lse / unit, and dP^T from
 * -delta, so that the products yield S - lse and dP - delta. There are two exceptions: with softcap S^T starts from 0,
 * because lse is subtracted after the tanh; and with dropout dP^T starts from 0, because delta is subtracted after the
 * dropout mask is applied. */
template <class F, int M, int N>
TE_FN void te__attn_dkdv_init(float (&s)[M][N][4], const float2 *column, int makes_dk, float unit) {
    const int is_zero = makes_dk ? F::DROP != 0 : F::SOFTCAP > 0;
    const float factor = makes_dk ? -1.0f : -1.0f / unit;
    TE_UNROLL for (int n = 0; n < N; n++) {
        const float2 x = column[n * 4];
        TE_UNROLL for (int m = 0; m < M; m++)
            TE_UNROLL for (int e = 0; e < 4; e++) s[m][n][e] = is_zero ? 0.0f : (e % 2 ? x.y : x.x) * factor;
    }
}

/* Used with softcap or dropout: replaces s = S^T by P^T, with dropout applied. ds_factor: output, the factor of
 * dP^T - delta in dS^T. This factor is P * (1 - t^2), where t is the tanh of the softcap, or P without softcap; it has
 * a negative sign if the pair of query and key was dropped. */
template <te_dtype T, int HEADS, class F, int M, int N>
TE_FN void te__attn_p_and_ds_factor(uint32_t (&ds_factor)[M][N / 2][4], float (&s)[M][N][4],
                                    const te__attn_dkdv_step &x, te__attn_alibi_bias alibi, te__attn_score_bias bias) {
    te_rng rng = {0, 0};
    uint32_t word[2][4];
    if (F::DROP) rng = *x.a->rng;
    TE_UNROLL for (int n = 0; n < N; n++) {
        const float2 lse = x.column[n * 4];
        if (F::DROP && n % 2 == 0)
            TE_UNROLL for (int i = 0; i < 2; i++)
                te__attn_draw(word[i], rng, x.a->id,
                              te__attn_draw_row_of<HEADS>(x.a, x.batch * HEADS + x.head, x.query + n * 8), x.query + i,
                              x.key);
        TE_UNROLL for (int m = 0; m < M; m++)
            TE_UNROLL for (int h = 0; h < 2; h++) {
                float *v = &s[m][n][2 * h], factor[2];
                TE_UNROLL for (int e = 0; e < 2; e++) {
                    factor[e] = te__attn_softcap_grad<F>(v[e]);
                    v[e] = te__attn_with_alibi<F>(v[e], alibi, n * 8 + e - m * 16 - h * 8);
                    v[e] = te__attn_with_score_bias<T, F>(v[e], bias, n * 8 + e, m * 16 + h * 8);
                    v[e] = te_exp2((F::SOFTCAP > 0 ? v[e] - (e ? lse.y : lse.x) / x.unit : v[e]) * x.c);
                }
                if (F::DROP)
                    TE_UNROLL for (int e = 0; e < 2; e++) {
                        const uint32_t *u = word[e], one = M == 1 && x.key / 16 % 2 ? u[2 + h] : u[2 * m + h];
                        if (te__attn_drops(one, n % 2, F::DROP)) factor[e] = -factor[e] * v[e], v[e] = 0;
                        else factor[e] *= v[e];
                    }
                else factor[0] *= v[0], factor[1] *= v[1];
                ds_factor[m][n / 2][n % 2 * 2 + h] = te_pair_of_floats(factor[0], factor[1], T);
            }
    }
}

/* Called by the dV warp of a pair: computes p = P^T from s = S^T - lse, as the A operand of the product for dV, and
 * passes P^T (with softcap or dropout: ds_factor) to the dK warp through shared memory if `passes` is 1. */
template <te_dtype T, int HEADS, class F, int M, int N>
TE_FN void te__attn_make_p(uint32_t (&p)[M][N / 2][4], float (&s)[M][N][4], const te__attn_dkdv_step &x, int passes) {
    uint32_t ds_factor[M][N / 2][4];
    const te__attn_alibi_bias alibi =
        te__attn_alibi_at<HEADS, F>(x.a->whole, x.head, x.a->scale, x.query + x.mask.shift - x.key);
    const te__attn_score_bias bias = te__attn_score_bias_at<T, F>(x.a, x.head, x.query, x.key, x.mask.shift);
    te__attn_apply_softcap<F, M, N>(s, x.a->scale);
    if (te__attn_needs_mask(x.warp_tiles, x.tile, 1)) te__attn_apply_mask_transposed<M, N>(s, x.mask, x.key, x.query);
    if constexpr (F::SEPARATE_DS) te__attn_p_and_ds_factor<T, HEADS, F, M, N>(ds_factor, s, x, alibi, bias);
    else {
        TE_UNROLL for (int m = 0; m < M; m++)
            TE_UNROLL for (int n = 0; n < N; n++)
                TE_UNROLL for (int e = 0; e < 4; e++) {
                    const int query = n * 8 + e % 2, key = m * 16 + e / 2 * 8;
                    const float score = te__attn_with_alibi<F>(s[m][n][e], alibi, query - key);
                    s[m][n][e] = te_exp2(te__attn_with_score_bias<T, F>(score, bias, query, key) * x.c);
                }
    }
    te__attn_pack_all<T, M, N>(p, s);
    if (!passes) return;
    TE_UNROLL for (int m = 0; m < M; m++)
        TE_UNROLL for (int k = 0; k < N / 2; k++) {
            const uint32_t *u = F::SEPARATE_DS ? ds_factor[m][k] : p[m][k];
            x.exchange[(m * N / 2 + k) * 32] = make_uint4(u[0], u[1], u[2], u[3]);
        }
}

/* Called by the dK warp of a pair: computes ds = dS^T = P^T * (dP^T - delta), as the A operand of the product for dK,
 * from s = dP^T - delta and the P^T that the dV warp has stored. With dropout s is dP^T without delta, and a negative
 * sign of the stored P^T says that the pair of query and key was dropped. */
template <te_dtype T, class F, int M, int N>
TE_FN void te__attn_make_ds(uint32_t (&ds)[M][N / 2][4], float (&s)[M][N][4], const te__attn_dkdv_step &x) {
    TE_UNROLL for (int m = 0; m < M; m++)
        TE_UNROLL for (int k = 0; k < N / 2; k++) {
            const uint4 u = x.exchange[(m * N / 2 + k) * 32];
            const uint32_t w[4] = {u.x, u.y, u.z, u.w};
            TE_UNROLL for (int j = 0; j < 4; j++) {
                float *v = &s[m][2 * k + j / 2][j % 2 * 2];
                float2 p = te_floats_of_pair(w[j], T);
                if (F::DROP) {
                    const float2 delta = x.column[(2 * k + j / 2) * 4];
                    v[0] = (p.x < 0 ? 0 : v[0] * F::FACTOR) - delta.x, p.x = fabsf(p.x);
                    v[1] = (p.y < 0 ? 0 : v[1] * F::FACTOR) - delta.y, p.y = fabsf(p.y);
                }
                v[0] *= p.x, v[1] *= p.y;
            }
        }
    te__attn_pack_all<T, M, N>(ds, s);
}

/* The dkdv kernel. Grid: (batch * kv_heads, tiles of keys). Contents of shared memory: K, V, then Q and dO of stage 0,
 * Q and dO of stage 1, P^T of each pair of warps, and lse and delta of both stages. With a causal mask the blocks with
 * the most work start first: the first blocks have the first keys, which the most queries see. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F,
          class C = te__attn_dkdv_shape<D, te__attn_value_dim<D, F>()>>
TE_FN void te__attention_dkdv_sm80(const te_attention_args *a) {
    typedef te__attn_widths<HEADS, KV_HEADS, D, F> widths;
    constexpr int64_t QKV = widths::QKV, KV = widths::KV, OUT = widths::OUT;
    constexpr int M = C::M, TILE = C::TILE, N = TILE / 8, GROUP = HEADS / KV_HEADS, HELD = C::HELD, V = widths::V;
    constexpr uint32_t ROW = te__attn_row_bytes<D>(), V_ROW = te__attn_row_bytes<V>(), Q_BYTES = TILE * ROW;
    constexpr uint32_t STAGE_BYTES = TILE * (ROW + V_ROW), V_AT = C::ROWS * ROW;
    static_assert(2 * TILE <= C::THREADS, "te: attention: one thread copies one lse or delta");

    /* The work of this block and this warp. makes_dk: 1 if the warp accumulates dK, 0 if dV; slice: which slice of dK
     * or dV it accumulates. A warp is idle if its slice does not exist, because dV may have one slice and dK two, or
     * the opposite. k0: the first key of the block; key0: the first key of this pair of warps; tiles: the tiles of
     * queries that see the block's keys; warp_tiles: the tiles of queries that see the pair's keys. */
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int pair = warp % C::PAIRS, makes_dk = warp / C::PAIRS / C::SLICES, slice = warp / C::PAIRS % C::SLICES;
    const int is_idle = slice >= (makes_dk ? te__attn_slices<D>() : te__attn_slices<V>());
    const int batch = (int)blockIdx.x / KV_HEADS, head0 = (int)blockIdx.x % KV_HEADS * GROUP;
    const te__attn_head h = te__attn_head_of<HEADS, KV_HEADS, D, F>(a, batch, head0);
    const int k0 = (int)blockIdx.y * C::ROWS, key0 = k0 + pair * M * 16, seq = h.seq;
    if (F::VARLEN && k0 >= seq) return;
    const te__attn_mask mask = te__attn_mask_at<F>(h);
    const te__attn_range tiles = te__attn_in_tiles(te__attn_queries_of(mask, k0, C::ROWS), TILE);
    const te__attn_range warp_tiles = te__attn_in_tiles(te__attn_queries_of(mask, key0, M * 16), TILE);
    const int steps = (tiles.end - tiles.first) * GROUP;

    /* Addresses in shared memory. rows: the offset from k_tile, in bytes, of the rows of K (in the dK warp: of V) that
     * this pair of warps multiplies; lse_delta: for each stage, the lse of its queries, then their delta. */
    const uint16_t *kv = (const uint16_t *)te__attn_kv<F>(a);
    const uint32_t k_tile = te__shared_address(te__attention_shared), q_tile = k_tile + C::ROWS * (ROW + V_ROW);
    const uint32_t rows = te__attn_pair_rows<D, V>(makes_dk, pair * M * 16, C::ROWS);
    uint4 *exchange = (uint4 *)(te__attention_shared + C::TILES_BYTES) + pair * M * N / 2 * 32 + lane;
    float *lse_delta = (float *)(te__attention_shared + C::TILES_BYTES + C::ROWS * TILE * 2); /* [stage][2][TILE] */
    const float unit = te__attn_score_unit<F>(a->scale), c = unit * TE__ATTN_LOG2E;

    te__attn_tile_load<C::ROWS, D, KV, C::THREADS>(k_tile, kv + h.k + k0 * KV, h.keys - k0);
    te__attn_tile_load<C::ROWS, V, KV, C::THREADS>(k_tile + V_AT, kv + h.v + k0 * KV, h.keys - k0);
    te__attn_queries_load<D, V, QKV, OUT, C>(q_tile, te__shared_address(lse_delta), a, h, 0, tiles.first * TILE);

    uint32_t held[M][HELD ? te__attn_columns<D>() / 16 : 1][4];
    float sum[M][C::MAX_SLICE / 8][4] = {}; /* the accumulators of dV; in the dK warp, of dK */
    for (int i = 0, tile = tiles.first, member = 0; i < steps; i++) {
        /* Wait for this tile of queries, then start to load the next tile, which belongs to the same query head or to
         * the next query head that shares the KV head. */
        const int tile_now = tile, head = head0 + member;
        te__attn_wait_copies();
        /* After this barrier, the tile is in shared memory, and all warps have finished reading the other stage and the
         * P^T of the previous step. */
        __syncthreads();
        if (i + 1 < steps) {
            const int next = (i + 1) & 1;
            if (++tile == tiles.end) tile = tiles.first, member++;
            te__attn_queries_load<D, V, QKV, OUT, C>(q_tile + next * STAGE_BYTES,
                                                     te__shared_address(lse_delta + next * 2 * TILE), a, h, member,
                                                     tile * TILE);
        }
        if constexpr (HELD != 0)
            if (i == 0) te__attn_load_fragments<M, D>(held, k_tile + rows + te__attn_lane_a<D>(lane));
        if (is_idle || (te__attn_has_mask(mask) && !te__attn_intersects(warp_tiles, tile_now, 1))) {
            /* No query of the tile sees a key of this pair of warps, or this warp is idle: the warp only takes part in
             * the barrier that other warps need to exchange P^T. */
            __syncthreads();
            continue;
        }

        /* Compute S^T - lse = K Q^T - lse or, in the dK warp, dP^T - delta = V dO^T - delta. */
        const uint32_t stage = q_tile + (i & 1) * STAGE_BYTES;
        /* The addresses of operand B of the warp's two products. b_nt: Q for S^T or, in the dK warp, dO for dP^T. b_nn:
         * dO for dV or, in the dK warp, Q for dK. */
        const uint32_t slice_bytes = slice * 2 * (makes_dk ? te__attn_slice<D>() : te__attn_slice<V>());
        const uint32_t b_nt = stage + makes_dk * Q_BYTES, b_nn = stage + (1 - makes_dk) * Q_BYTES + slice_bytes;
        const float2 *column = (const float2 *)(lse_delta + (i & 1) * 2 * TILE + makes_dk * TILE) + t;
        const te__attn_dkdv_step step = {
            a, mask, warp_tiles, tile_now, batch, head, key0 + g, tile_now * TILE + t * 2, unit, c, column, exchange};
        float s[M][N][4];
        te__attn_dkdv_init<F, M, N>(s, column, makes_dk, unit);
        if (V != D && makes_dk)
            te__attn_product_nt<T, M, N, V, HELD>(s, held, k_tile + rows + te__attn_lane_a<V>(lane),
                                                  b_nt + te__attn_lane_b<V>(lane));
        else
            te__attn_product_nt<T, M, N, D, HELD>(s, held, k_tile + rows + te__attn_lane_a<D>(lane),
                                                  b_nt + te__attn_lane_b<D>(lane));

        /* In the dV warp, p becomes P^T; in the dK warp, p becomes dS^T, for which the dV warp must first have stored
         * P^T. In each step every warp calls exactly one of three __syncthreads: the first below in the dV warp, the
         * second below in the dK warp, or the one above if the warp skips the tile. All three are the same barrier of
         * the block, and a warp may call any of them, because its lanes do not diverge. A barrier for only the two
         * warps of a pair was not faster. */
        uint32_t p[M][N / 2][4];
        if (!makes_dk) {
            te__attn_make_p<T, HEADS, F, M, N>(p, s, step, C::SLICES == 1 || slice == 0);
            __syncthreads();
        } else {
            __syncthreads();
            te__attn_make_ds<T, F, M, N>(p, s, step);
        }

        /* Add dV += P^T dO or, in the dK warp, dK += dS^T Q. */
        if (V != D && makes_dk)
            te__attn_product_nn<T, M, N / 2, D>(te__attn_accumulator_view<D>(sum), p, b_nn + te__attn_lane_a<D>(lane));
        else
            te__attn_product_nn<T, M, N / 2, V>(te__attn_accumulator_view<V>(sum), p, b_nn + te__attn_lane_a<V>(lane));
    }
    te__attn_drain_copies<F>(steps);

    /* Store dV, multiplied by dropout's F::FACTOR (in the dK warp: dK, multiplied by scale), through shared memory. */
    float factor[M][2];
    TE_UNROLL for (int m = 0; m < M; m++) factor[m][0] = factor[m][1] = makes_dk ? a->scale : F::FACTOR;
    uint16_t *const dkv = (uint16_t *)te__attn_dkv<F>(a);
    float *const amax = te__attn_dkv_amax_output<F>(a);
    const int64_t first = (makes_dk ? h.k : h.v) + key0 * h.kv_width;
    const int kv_head = (int)blockIdx.x % KV_HEADS;
    const int dk_column = (HEADS + kv_head) * D, dv_column = (HEADS + KV_HEADS) * D + kv_head * V;
    float *const sums = te__attn_sum<QKV, M * 16>(a, batch, key0, makes_dk ? dk_column : dv_column);
    const te__attn_destination to = {dkv + first, h.kv_width, h.keys - key0, sums, nullptr, amax};
    /* dK and dV are stored to global memory through shared memory: dK through the memory that held the pair's rows of
     * K, dV through that of the pair's rows of V. With two slices the results do not fit there. In this case all warps
     * first finish reading shared memory, and then each warp uses an equal part of it. */
    if constexpr (V != D || C::SLICES > 1) {
        constexpr uint32_t STORE_BYTES = M * 16 * te__attn_row_bytes<C::MAX_SLICE>();
        static_assert(C::SLICES == 1 || C::THREADS / 32 * STORE_BYTES <= C::BYTES,
                      "te: attention: dK leaves through shared memory");
        if (C::SLICES > 1) __syncthreads();
        if (is_idle) return;
        unsigned char *const through =
            te__attention_shared + (C::SLICES > 1 ? warp * STORE_BYTES
                                                  : te__attn_pair_rows<D, V>(!makes_dk, pair * M * 16, C::ROWS));
        if (makes_dk) te__attn_rows_store<T, M, D>(to, te__attn_accumulator_view<D>(sum), factor, through, slice);
        else te__attn_rows_store<T, M, V>(to, te__attn_accumulator_view<V>(sum), factor, through, slice);
    } else {
        te__attn_rows_store<T, M, D>(to, sum, factor, te__attention_shared + rows, 0);
    }
}

/* ---- the gradient of a score bias: a tile's sums of dS (see attention_cuda.h) ------------------------------------ */

template <te_dtype T, int HEADS, int KV_HEADS, int D, class F, int LIMIT> struct te__attn_dbias_sm80 {
    static constexpr int V = te__attn_value_dim<D, F>(), MAX_DIM = D > V ? D : V;
    static constexpr int bytes(int rows) { return te__attn_tile_bytes<D>(rows) + te__attn_tile_bytes<V>(rows); }
    static constexpr int WARPS = MAX_DIM <= 256 ? 4 : 2, ROWS = WARPS * 16, THREADS = WARPS * 32;
    static constexpr int BLOCKS = MAX_DIM <= 64 ? 3 : MAX_DIM <= 128 ? 2 : 1;
    static constexpr int fits(int tile) {
        return bytes(ROWS + tile) + te__attn_bucket_bytes<F>(ROWS, tile) <= LIMIT;
    }
    static constexpr int TILE = fits(64) ? 64 : fits(32) ? 32 : 16, N = TILE / 8;
    static constexpr int TILES_BYTES = bytes(ROWS + TILE);
    float sum[1][N][4];

    __device__ __forceinline__ void clear() { memset(sum, 0, sizeof sum); }
    /* Adds the dS of one tile of one head (the queries from q0 on, the keys from k0 on) to `sum`, for all sequences in
     * order. */
    __device__ __forceinline__ void add(const te_attention_args *a, int head, int q0, int k0) {
        for (int batch = 0; batch < a->batch; batch++) add(a, batch, head, q0, k0);
    }
    __device__ __forceinline__ void add(const te_attention_args *a, int batch, int head, int q0, int k0) {
        constexpr uint32_t ROW = te__attn_row_bytes<D>(), V_ROW = te__attn_row_bytes<V>();
        typedef te__attn_widths<HEADS, KV_HEADS, D, F> widths;
        constexpr int64_t QKV = widths::QKV, KV = widths::KV, OUT = widths::OUT;
        const te__attn_head h = te__attn_head_of<HEADS, KV_HEADS, D, F>(a, batch, head);
        const te__attn_mask mask = te__attn_mask_at<F>(h);
        if (!te__attn_tile_seen<F>(mask, q0, ROWS, k0, TILE)) return;
        const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
        const int row0 = q0 + warp * 16;
        const uint16_t *qkv = (const uint16_t *)a->qkv, *kv = (const uint16_t *)te__attn_kv<F>(a);
        const uint16_t *dout = (const uint16_t *)a->dout + h.out;
        const uint32_t q_tile = te__shared_address(te__attention_shared), do_tile = q_tile + ROWS * ROW;
        const uint32_t k_tile = do_tile + ROWS * V_ROW, v_tile = k_tile + TILE * ROW;
        const uint32_t q_lane = (uint32_t)warp * 16 * ROW + te__attn_lane_a<D>(lane);
        const uint32_t do_lane = (uint32_t)warp * 16 * V_ROW + te__attn_lane_a<V>(lane);
        __syncthreads(); /* after this barrier, all warps have finished reading the tiles of the previous sequence */
        te__attn_tile_load<ROWS, D, QKV, THREADS>(q_tile, qkv + h.q + q0 * QKV, h.seq - q0);
        te__attn_tile_load<ROWS, V, OUT, THREADS>(do_tile, dout + q0 * OUT, h.seq - q0);
        te__attn_tile_load<TILE, D, KV, THREADS>(k_tile, kv + h.k + k0 * KV, h.keys - k0);
        te__attn_tile_load<TILE, V, KV, THREADS>(v_tile, kv + h.v + k0 * KV, h.keys - k0);
        float lse[2], minus_delta[1][2]; /* the array lse holds lse * log2(e) */
        TE_UNROLL for (int e = 0; e < 2; e++) {
            const int row = row0 + g + e * 8;
            lse[e] = row < h.seq ? a->lse[h.row + row] * TE__ATTN_LOG2E : INFINITY;
            minus_delta[0][e] = row < h.seq ? -a->delta[h.row + row] : 0.0f;
        }
        te__attn_wait_copies();
        __syncthreads();

        /* Compute S = Q K^T, and dP - delta, where dP = dO V^T. */
        const uint32_t none[1][1][4] = {};
        const float c = te__attn_score_unit<F>(a->scale) * TE__ATTN_LOG2E;
        float s[1][N][4] = {}, dp[1][N][4];
        if constexpr (F::DROP != 0) memset(dp, 0, sizeof dp);
        else te__attn_init_rows<1, N>(dp, minus_delta);
        te__attn_product_nt<T, 1, N, D, 0>(s, none, q_tile + q_lane, k_tile + te__attn_lane_b<D>(lane));
        te__attn_product_nt<T, 1, N, V, 0>(dp, none, do_tile + do_lane, v_tile + te__attn_lane_b<V>(lane));
        if constexpr (F::DROP != 0)
            te__attn_apply_dropout<F, 1, N>(
                a, te__attn_draw_row_of<HEADS>(a, batch * HEADS + head, row0), g, k0 + t * 2,
                [&](int, int n, int e, int drops) {
                    dp[0][n][e] = (drops ? 0 : dp[0][n][e] * F::FACTOR) + minus_delta[0][e / 2];
                });
        te__attn_apply_softcap<F, 1, N>(s, a->scale);
        te__attn_add_alibi<F, 1, N>(
            s, te__attn_alibi_at<HEADS, F>(a->whole, head, a->scale, row0 + g + mask.shift - k0 - t * 2));
        te__attn_add_score_bias<T, F, 1, N>(
            s, te__attn_score_bias_at<T, F>(a, head, row0 + g, k0 + t * 2, mask.shift));
        te__attn_apply_mask<1, N>(s, mask, row0 + g, k0 + t * 2);
        TE_UNROLL for (int n = 0; n < N; n++)
            TE_UNROLL for (int e = 0; e < 4; e++) sum[0][n][e] += te_exp2(s[0][n][e] * c - lse[e / 2]) * dp[0][n][e];
    }
    /* Calls f(row, column, sum) for each element of the tile of sums that this thread holds. */
    template <class G> __device__ __forceinline__ void each(G f) const {
        const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
        TE_UNROLL for (int n = 0; n < N; n++)
            TE_UNROLL for (int e = 0; e < 4; e++)
                f(warp * 16 + lane / 4 + e / 2 * 8, n * 8 + lane % 4 * 2 + e % 2, sum[0][n][e]);
    }
};

#endif
