/* attention_mma_backward.h -- attention backward on tensor cores, bf16 and f16. Dao 2023, FlashAttention-2, algorithm
 * 2, in two kernels that each own what they write, so that nothing is added atomically:
 *
 *     forward: S = Q K^T * scale, P = exp(S - lse), O = P V
 *     dq kernel, by queries:    delta = rowsum(dO * O), dP = dO V^T, dS = P * (dP - delta), dQ = scale * dS K
 *     dkdv kernel, by keys:     dV = P^T dO, dK = scale * dS^T Q, both over all query heads of the group
 *
 * Floor: the products S, dP, dQ (6 * n flops) and S, dP, dV, dK (8 * n), n = batch * heads * seq^2 * head_dim, half of
 * it if causal; the 5 products that are needed at least take 10 * n. Where a head of v has another size, dP and dV
 * have that, the others head_dim. P and dS are rounded to the dtype for their
 * products. Measured on an H200, bf16, causal: of the 10 * n flops 174 TFLOP/s at seq 1024 and head_dim 64, 225 at 2048
 * and 128.
 */
/* target: cuda */
#ifndef TE_ATTENTION_MMA_BACKWARD_H
#define TE_ATTENTION_MMA_BACKWARD_H

#include "attention_mma_forward.h"       /* te__attn_head, the mma tools */
#include "attention_mma_keys_backward.h" /* te__attention_dkdv_mma */

/* V: the size of a head of v. MOST: the larger one, of a warp's accumulator of keys; a warp has as many rows in both
 * kernels, for both sum up what they write. */
template <int D, int V = D> struct te__attn_dq_shape {
    static constexpr int MOST = D > V ? D : V;
    static constexpr int WARPS = 4, M = MOST <= 128 ? 2 : 1, BLOCKS = MOST <= 64 ? 3 : MOST <= 128 ? 2 : 1;
    static constexpr int ROWS = WARPS * M * 16, THREADS = WARPS * 32;
    static constexpr int bytes(int tile) {
        return te__attn_tile_bytes<D>(ROWS + 2 * tile) + te__attn_tile_bytes<V>(ROWS + 2 * tile);
    }
    static constexpr int TILE = bytes(32) <= TE_SHARED_BYTES ? 32 : 16, BYTES = bytes(TILE);
};

/* Grid: (batch * heads, query tiles). Shared memory: Q, dO, then K and V of stage 0, K and V of stage 1. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F,
          class C = te__attn_dq_shape<D, te__attn_value_dim<D, F>()>>
TE_FN void te__attention_dq_mma(const te_attention_args *a) {
    typedef te__attn_widths<HEADS, KV_HEADS, D, F> widths;
    constexpr int64_t QKV = widths::QKV, KV = widths::KV, OUT = widths::OUT;
    constexpr int M = C::M, TILE = C::TILE, N = TILE / 8, V = widths::V;
    constexpr uint32_t ROW = (D + TE__ATTN_PAD) * 2, OUT_ROW = (V + TE__ATTN_PAD) * 2;
    constexpr uint32_t K_BYTES = TILE * ROW, STAGE_BYTES = TILE * (ROW + OUT_ROW);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const te__attn_head h =
        te__attn_head_of<HEADS, KV_HEADS, D, F>(a, (int)blockIdx.x / HEADS, (int)blockIdx.x % HEADS);
    const int seq = h.seq;
    const te__attn_mask mask = te__attn_mask_at<F>(h);
    const int q0 = (int)(te__attn_grows(mask) ? gridDim.y - 1 - blockIdx.y : blockIdx.y) * C::ROWS;
    const int row0 = q0 + warp * M * 16;
    if (F::VARLEN && q0 >= seq) return;
    const te__attn_span tiles = te__attn_in_tiles(te__attn_keys_of(mask, q0, C::ROWS), TILE);
    const te__attn_span own = te__attn_in_tiles(te__attn_keys_of(mask, row0, M * 16), TILE); /* this warp's */
    const int64_t begin = tiles.first * TILE * KV;
    const uint16_t *qkv = (const uint16_t *)a->qkv, *dout = (const uint16_t *)a->dout + h.out;
    const uint16_t *kv = (const uint16_t *)te__attn_kv<F>(a), *out = (const uint16_t *)a->out + h.out;
    const uint32_t q_tile = te__shared_address(te__attention_shared), do_tile = q_tile + C::ROWS * ROW;
    const uint32_t kv_tile = do_tile + C::ROWS * OUT_ROW;
    const uint32_t a_lane = (uint32_t)warp * M * 16 * ROW + te__attn_lane_a<D>(lane);
    const uint32_t do_lane = (uint32_t)warp * M * 16 * OUT_ROW + te__attn_lane_a<V>(lane);
    const float c = te__attn_unit<F>(a->scale) * TE__ATTN_LOG2E;

    te__attn_tile_load<C::ROWS, D, QKV, C::THREADS>(q_tile, qkv + h.q + q0 * QKV, seq - q0);
    te__attn_tile_load<C::ROWS, V, OUT, C::THREADS>(do_tile, dout + q0 * OUT, seq - q0);
    te__attn_tile_load<TILE, D, KV, C::THREADS>(kv_tile, kv + h.k + begin, h.keys - tiles.first * TILE);
    te__attn_tile_load<TILE, V, KV, C::THREADS>(kv_tile + K_BYTES, kv + h.v + begin, h.keys - tiles.first * TILE);

    float dq[M][D / 8][4] = {}, lse[M][2], minus_delta[M][2]; /* lse in powers of 2 */
    TE_UNROLL for (int m = 0; m < M; m++)
        TE_UNROLL for (int e = 0; e < 2; e++) {
            const int row = row0 + m * 16 + g + e * 8;
            float v = 0;
            if (row < seq)
                for (int d = t * 8; d < V; d += 32) {
                    float x[8], y[8];
                    te_load8(x, dout, row * h.out_width + d, 8, 1, T), te_load8(y, out, row * h.out_width + d, 8, 1, T);
                    TE_UNROLL for (int j = 0; j < 8; j++) v += x[j] * y[j];
                }
            v += __shfl_xor_sync(~0u, v, 1);
            v += __shfl_xor_sync(~0u, v, 2);
            minus_delta[m][e] = -v, lse[m][e] = row < seq ? a->lse[h.row + row] * TE__ATTN_LOG2E : INFINITY;
            if (t == 0 && row < seq) a->delta[h.row + row] = v;
        }
    for (int i = tiles.first; i < tiles.end; i++) {
        const int k0 = i * TILE, stage = (i - tiles.first) & 1;
        const uint32_t k_tile = kv_tile + stage * STAGE_BYTES;
        te__attn_copies_done();
        __syncthreads();
        if (i + 1 < tiles.end) {
            const uint32_t next = kv_tile + (stage ^ 1) * STAGE_BYTES;
            const int64_t at = (k0 + TILE) * KV;
            te__attn_tile_load<TILE, D, KV, C::THREADS>(next, kv + h.k + at, h.keys - k0 - TILE);
            te__attn_tile_load<TILE, V, KV, C::THREADS>(next + K_BYTES, kv + h.v + at, h.keys - k0 - TILE);
        }
        if (te__attn_differs(mask) && !te__attn_meets(own, i, 1)) continue;

        const uint32_t none[M][1][4] = {};
        float s[M][N][4] = {}, dp[M][N][4];
        if constexpr (F::DROP != 0) memset(dp, 0, sizeof dp);
        else te__attn_start<M, N>(dp, minus_delta);
        te__attn_product_nt<T, M, N, D, 0>(s, none, q_tile + a_lane, k_tile + te__attn_lane_b<D>(lane));
        te__attn_product_nt<T, M, N, V, 0>(dp, none, do_tile + do_lane, k_tile + K_BYTES + te__attn_lane_b<V>(lane));
        if constexpr (F::DROP != 0)
            te__attn_drop<F, M, N>(a, te__attn_drawn<HEADS>(a, (int)blockIdx.x, row0), g, k0 + t * 2,
                                   [&](int m, int n, int e, int drops) {
                                       dp[m][n][e] = (drops ? 0 : dp[m][n][e] * F::FACTOR) + minus_delta[m][e / 2];
                                   });
        te__attn_cap<F, M, N>(s, a->scale);
        if (te__attn_cuts(own, i, 1)) te__attn_hide<M, N>(s, mask, row0 + g, k0 + t * 2);
        const te__attn_bias bias = te__attn_bias_at<HEADS, F>(h.head, a->scale, row0 + g + mask.shift - k0 - t * 2);
        const te__attn_table table = te__attn_table_at<T, F>(a, h.head, row0 + g, k0 + t * 2, mask.shift);
        TE_UNROLL for (int m = 0; m < M; m++)
            TE_UNROLL
        for (int n = 0; n < N; n++) TE_UNROLL
        for (int e = 0; e < 4; e++) {
            const float biased = te__attn_biased<F>(s[m][n][e], bias, m * 16 + e / 2 * 8 - n * 8 - e % 2);
            const float added = te__attn_added<T, F>(biased, table, m * 16 + e / 2 * 8, n * 8 + e % 2);
            s[m][n][e] = te_exp2(added * c - lse[m][e / 2]) * te__attn_slope<F>(s[m][n][e]) * dp[m][n][e];
        }
        uint32_t ds[M][N / 2][4];
        te__attn_pack_all<T, M, N>(ds, s);
        te__attn_product_nn<T, M, N / 2, D>(dq, ds, k_tile + te__attn_lane_a<D>(lane));
    }
    te__attn_nothing_seen<F>(tiles.end - tiles.first);
    float factor[M][2];
    TE_UNROLL for (int m = 0; m < M; m++) factor[m][0] = factor[m][1] = a->scale;
    te__attn_rows_store<T, M, D>(
        (uint16_t *)a->dqkv + h.q + row0 * h.width, h.width, seq - row0, dq, factor,
        te__attention_shared + warp * M * 16 * ROW,
        te__attn_sum<QKV, M * 16>(a, (int)blockIdx.x / HEADS, row0, (int)blockIdx.x % HEADS * D), nullptr,
        te__attn_amax_of<F>(a));
}

#endif
