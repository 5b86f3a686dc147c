/* attention_mma_backward.h -- attention backward on tensor cores, bf16 and f16. Dao 2023, FlashAttention-2, algorithm
 * 2, in two kernels that each own what they write, so that nothing is added atomically:
 *
 *     forward: S = Q K^T * scale, P = exp(S - lse), O = P V
 *     dq kernel, by queries:    delta = rowsum(dO * O), dP = dO V^T, dS = P * (dP - delta), dQ = scale * dS K
 *     dkdv kernel, by keys:     dV = P^T dO, dK = scale * dS^T Q, both over all query heads of the group
 *
 * Floor: the products S, dP, dQ (6 * n flops) and S, dP, dV, dK (8 * n), n = batch * heads * seq^2 * head_dim, half of
 * it if causal; the 5 products that are needed at least take 10 * n. P and dS are rounded to the dtype for their
 * products. Measured on an H200, bf16, causal: of the 10 * n flops 174 TFLOP/s at seq 1024 and head_dim 64, 225 at 2048
 * and 128.
 */
/* target: cuda */
#ifndef TE_ATTENTION_MMA_BACKWARD_H
#define TE_ATTENTION_MMA_BACKWARD_H

#include "attention_mma_forward.h"       /* te__attn_head, the mma tools */
#include "attention_mma_probabilities.h" /* te__attn_probabilities */

template <int D> struct te__attn_dq_shape {
    static constexpr int WARPS = 4, M = D <= 128 ? 2 : 1, BLOCKS = D <= 64 ? 3 : D <= 128 ? 2 : 1;
    static constexpr int ROWS = WARPS * M * 16, THREADS = WARPS * 32;
    static constexpr int bytes(int tile) { return te__attn_tile_bytes<D>(2 * ROWS + 4 * tile); }
    static constexpr int TILE = bytes(32) <= TE_SHARED_BYTES ? 32 : 16, BYTES = bytes(TILE);
};

/* Where the sums of a warp's ROWS rows from `row` on go, from this column on. */
template <int64_t WIDTH, int ROWS>
TE_FN float *te__attn_sum(const te_attention_args *a, int batch, int row, int column) {
    return a->sum ? a->sum + ((int64_t)batch * ((a->seq + ROWS - 1) / ROWS) + row / ROWS) * WIDTH + column : nullptr;
}
/* Grid: (batch * heads, query tiles). Shared memory: Q, dO, then K and V of stage 0, K and V of stage 1. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F, class C = te__attn_dq_shape<D>>
TE_FN void te__attention_dq_mma(const te_attention_args *a) {
    constexpr int M = C::M, TILE = C::TILE, N = TILE / 8;
    constexpr uint32_t ROW = (D + TE__ATTN_PAD) * 2, KV_BYTES = TILE * ROW;
    typedef te__attn_widths<HEADS, KV_HEADS, D, F> widths;
    constexpr int64_t QKV = widths::QKV, KV = widths::KV, OUT = widths::OUT;
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
    const uint32_t kv_tile = do_tile + C::ROWS * ROW, a_lane = (uint32_t)warp * M * 16 * ROW + te__attn_lane_a<D>(lane);
    const float c = te__attn_unit<F>(a->scale) * TE__ATTN_LOG2E;

    te__attn_tile_load<C::ROWS, D, QKV, C::THREADS>(q_tile, qkv + h.q + q0 * QKV, seq - q0);
    te__attn_tile_load<C::ROWS, D, OUT, C::THREADS>(do_tile, dout + q0 * OUT, seq - q0);
    te__attn_tile_load<TILE, D, KV, C::THREADS>(kv_tile, kv + h.k + begin, h.keys - tiles.first * TILE);
    te__attn_tile_load<TILE, D, KV, C::THREADS>(kv_tile + KV_BYTES, kv + h.v + begin, h.keys - tiles.first * TILE);

    float dq[M][D / 8][4] = {}, lse[M][2], minus_delta[M][2]; /* lse in powers of 2 */
    TE_UNROLL for (int m = 0; m < M; m++)
        TE_UNROLL for (int e = 0; e < 2; e++) {
            const int row = row0 + m * 16 + g + e * 8;
            float v = 0;
            if (row < seq)
                for (int d = t * 8; d < D; d += 32) {
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
        const uint32_t k_tile = kv_tile + stage * 2 * KV_BYTES;
        te__attn_copies_done();
        __syncthreads();
        if (i + 1 < tiles.end) {
            const uint32_t next = kv_tile + (stage ^ 1) * 2 * KV_BYTES;
            const int64_t at = (k0 + TILE) * KV;
            te__attn_tile_load<TILE, D, KV, C::THREADS>(next, kv + h.k + at, h.keys - k0 - TILE);
            te__attn_tile_load<TILE, D, KV, C::THREADS>(next + KV_BYTES, kv + h.v + at, h.keys - k0 - TILE);
        }
        if (te__attn_differs(mask) && !te__attn_meets(own, i, 1)) continue;

        const uint32_t none[M][1][4] = {};
        float s[M][N][4] = {}, dp[M][N][4];
        if constexpr (F::DROP != 0) memset(dp, 0, sizeof dp);
        else te__attn_start<M, N>(dp, minus_delta);
        te__attn_product_nt<T, M, N, D, 0>(s, none, q_tile + a_lane, k_tile + te__attn_lane_b<D>(lane));
        te__attn_product_nt<T, M, N, D, 0>(dp, none, do_tile + a_lane, k_tile + KV_BYTES + te__attn_lane_b<D>(lane));
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
        te__attn_sum<QKV, M * 16>(a, (int)blockIdx.x / HEADS, row0, (int)blockIdx.x % HEADS * D));
}

/* Two warps share M * 16 keys. One makes S^T and P^T = exp(S^T - lse), and from it dV; it hands P^T over in fragments,
 * and the other, which has made dP^T meanwhile, makes dS^T and from it dK. So each has one accumulator of M * 16 rows:
 * with both in one warp, registers would allow 16 rows at head_dim 128, and shared memory would be the limit. */
template <int D> struct te__attn_dkdv_shape {
    /* WIDE: 128 keys by 64 queries in a block; else half of each, so that three blocks share a multiprocessor. */
    static constexpr int wide_bytes = te__attn_tile_bytes<D>(2 * 128 + 4 * 64) + 128 * 64 * 2 + 4 * 64 * 4;
    static constexpr int WIDE = D > 64 && D <= 128 && wide_bytes <= TE_SHARED_BYTES,
                         TILE = WIDE ? 64 : 32; /* queries */
    static constexpr int PAIRS = WIDE || D > 128 ? 4 : 2, M = D <= 128 ? 2 : 1, HELD = D <= 64;
    static constexpr int BLOCKS = D <= 64 ? 3 : PAIRS == 2 ? 2 : 1;
    static constexpr int ROWS = PAIRS * M * 16, THREADS = PAIRS * 64; /* keys */
    static constexpr int TILES_BYTES = te__attn_tile_bytes<D>(2 * ROWS + 4 * TILE);
    static constexpr int BYTES = TILES_BYTES + ROWS * TILE * 2 + 4 * TILE * 4;
};

/* Start copying queries q0 to q0 + TILE of the head that is `member` heads after h: Q, dO, lse, delta. */
template <int D, int64_t QKV, int64_t OUT, class C>
TE_FN void te__attn_queries_load(uint32_t q_tile, uint32_t lse, const te_attention_args *a, const te__attn_head &h,
                                int member, int q0) {
    const int valid = h.seq - q0, r = (int)threadIdx.x % C::TILE;
    te__attn_tile_load<C::TILE, D, QKV, C::THREADS>(q_tile, (const uint16_t *)a->qkv + (h.q + member * D + q0 * QKV),
                                                    valid);
    te__attn_tile_load<C::TILE, D, OUT, C::THREADS>(q_tile + C::TILE * (D + TE__ATTN_PAD) * 2,
                                               (const uint16_t *)a->dout + (h.out + member * D + q0 * OUT), valid);
    const float *p = (threadIdx.x < C::TILE ? a->lse : a->delta) + (h.row + (int64_t)member * h.rows + q0);
    if (threadIdx.x < 2 * C::TILE) te__attn_copy4(lse + threadIdx.x * 4, r < valid ? p + r : p, r < valid);
}

/* Grid: (batch * kv_heads, key tiles). Shared memory: K, V, then Q and dO of stage 0, Q and dO of stage 1, P^T of each
 * pair, and lse and delta of both stages. Causal: the first keys, which most queries see, go first as they are. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F, class C = te__attn_dkdv_shape<D>>
TE_FN void te__attention_dkdv_mma(const te_attention_args *a) {
    constexpr int M = C::M, TILE = C::TILE, N = TILE / 8, GROUP = HEADS / KV_HEADS, HELD = C::HELD;
    constexpr uint32_t ROW = (D + TE__ATTN_PAD) * 2, Q_BYTES = TILE * ROW;
    typedef te__attn_widths<HEADS, KV_HEADS, D, F> widths;
    constexpr int64_t QKV = widths::QKV, KV = widths::KV, OUT = widths::OUT;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int pair = warp % C::PAIRS, second = warp / C::PAIRS; /* second: the warp that makes dK */
    const int batch = (int)blockIdx.x / KV_HEADS, head0 = (int)blockIdx.x % KV_HEADS * GROUP;
    const te__attn_head h = te__attn_head_of<HEADS, KV_HEADS, D, F>(a, batch, head0);
    const int k0 = (int)blockIdx.y * C::ROWS, key0 = k0 + pair * M * 16, seq = h.seq;
    if (F::VARLEN && k0 >= seq) return;
    const te__attn_mask mask = te__attn_mask_at<F>(h);
    const te__attn_span tiles = te__attn_in_tiles(te__attn_queries_of(mask, k0, C::ROWS), TILE);
    const te__attn_span own = te__attn_in_tiles(te__attn_queries_of(mask, key0, M * 16), TILE); /* this warp's */
    const int steps = (tiles.end - tiles.first) * GROUP;
    const uint16_t *kv = (const uint16_t *)te__attn_kv<F>(a);
    const uint32_t k_tile = te__shared_address(te__attention_shared), q_tile = k_tile + 2 * C::ROWS * ROW;
    const uint32_t kept = (uint32_t)(second * C::ROWS + pair * M * 16) * ROW; /* this warp's rows of K, or of V */
    uint4 *handed = (uint4 *)(te__attention_shared + C::TILES_BYTES) + pair * M * N / 2 * 32 + lane;
    float *rows = (float *)(te__attention_shared + C::TILES_BYTES + C::ROWS * TILE * 2); /* lse, delta; of stage 1 */
    const float unit = te__attn_unit<F>(a->scale), c = unit * TE__ATTN_LOG2E, start = second ? -1.0f : -1.0f / unit;
    static_assert(2 * TILE <= C::THREADS, "te: attention: one thread copies one lse or delta");

    te__attn_tile_load<C::ROWS, D, KV, C::THREADS>(k_tile, kv + h.k + k0 * KV, h.keys - k0);
    te__attn_tile_load<C::ROWS, D, KV, C::THREADS>(k_tile + C::ROWS * ROW, kv + h.v + k0 * KV, h.keys - k0);
    te__attn_queries_load<D, QKV, OUT, C>(q_tile, te__shared_address(rows), a, h, 0, tiles.first * TILE);

    uint32_t held[M][HELD ? D / 16 : 1][4];
    float sum[M][D / 8][4] = {}; /* dV, or dK */
    for (int i = 0, tile = tiles.first, member = 0; i < steps; i++) {
        const int at = tile, q0 = at * TILE, member_now = member;
        te__attn_copies_done();
        __syncthreads(); /* the tile is there; nobody reads the other stage or P^T of the last step any more */
        if (i + 1 < steps) {
            if (++tile == tiles.end) tile = tiles.first, member++;
            te__attn_queries_load<D, QKV, OUT, C>(q_tile + ((i + 1) & 1) * 2 * Q_BYTES,
                                                  te__shared_address(rows + ((i + 1) & 1) * 2 * TILE), a, h, member,
                                                  tile * TILE);
        }
        if constexpr (HELD != 0) if (i == 0) te__attn_hold<M, D>(held, k_tile + kept + te__attn_lane_a<D>(lane));
        if (te__attn_differs(mask) && !te__attn_meets(own, at, 1)) { /* both warps of the pair; others wait for P^T */
            __syncthreads();
            continue;
        }
        /* the first warp multiplies K by Q, and P by dO; the second V by dO, and dS by Q */
        const uint32_t stage = q_tile + (i & 1) * 2 * Q_BYTES;
        const uint32_t b_nt = stage + second * Q_BYTES, b_nn = stage + (1 - second) * Q_BYTES;
        const float2 *column = (const float2 *)(rows + (i & 1) * 2 * TILE + second * TILE) + t; /* lse, or delta */
        float s[M][N][4]; /* ends as S - lse / scale, with softcap as S, or as dP - delta, with dropout as dO V^T */
        uint32_t p[M][N / 2][4];
        TE_UNROLL for (int n = 0; n < N; n++) {
            const float2 x = column[n * 4];
            TE_UNROLL for (int m = 0; m < M; m++)
                TE_UNROLL for (int e = 0; e < 4; e++)
                    s[m][n][e] = (second ? F::DROP != 0 : F::SOFTCAP > 0) ? 0.0f : (e % 2 ? x.y : x.x) * start;
        }
        te__attn_product_nt<T, M, N, D, HELD>(s, held, k_tile + kept + te__attn_lane_a<D>(lane),
                                              b_nt + te__attn_lane_b<D>(lane));
        if (!second) {
            uint32_t other[M][N / 2][4]; /* what the second warp gets, where that is not P itself */
            const te__attn_bias bias =
                te__attn_bias_at<HEADS, F>(head0 + member_now, a->scale, q0 + mask.shift + t * 2 - key0 - g);
            const te__attn_table table =
                te__attn_table_at<T, F>(a, head0 + member_now, q0 + t * 2, key0 + g, mask.shift);
            te__attn_cap<F, M, N>(s, a->scale);
            if (te__attn_cuts(own, at, 1))
                te__attn_hide_transposed<M, N>(s, mask, key0 + g, q0 + t * 2);
            if constexpr (F::APART)
                te__attn_probabilities<T, HEADS, F, M, N>(other, s, column, c, unit, a,
                                                          batch * HEADS + head0 + member_now, key0 + g, q0 + t * 2,
                                                          bias, table);
            else
                TE_UNROLL for (int m = 0; m < M; m++)
                    TE_UNROLL for (int n = 0; n < N; n++)
                        TE_UNROLL for (int e = 0; e < 4; e++) {
                            const float v =
                                te__attn_biased<F>(s[m][n][e], bias, n * 8 + e % 2 - m * 16 - e / 2 * 8);
                            s[m][n][e] =
                                te_exp2(te__attn_added<T, F>(v, table, n * 8 + e % 2, m * 16 + e / 2 * 8) * c);
                        }
            te__attn_pack_all<T, M, N>(p, s);
            TE_UNROLL for (int m = 0; m < M; m++)
                TE_UNROLL for (int k = 0; k < N / 2; k++) {
                    const uint32_t *u = F::APART ? other[m][k] : p[m][k];
                    handed[(m * N / 2 + k) * 32] = make_uint4(u[0], u[1], u[2], u[3]);
                }
            __syncthreads(); /* P^T is there; whole warps meet here from three places. A barrier of two warps was no
                                faster */
        } else {
            __syncthreads();
            TE_UNROLL for (int m = 0; m < M; m++)
                TE_UNROLL for (int k = 0; k < N / 2; k++) {
                    const uint4 u = handed[(m * N / 2 + k) * 32];
                    const uint32_t w[4] = {u.x, u.y, u.z, u.w};
                    TE_UNROLL for (int j = 0; j < 4; j++) {
                        float2 x = te__attn_unpack<T>(w[j]);
                        if (F::DROP) {
                            float *v = &s[m][2 * k + j / 2][j % 2 * 2];
                            const float2 delta = column[(2 * k + j / 2) * 4];
                            v[0] = (x.x < 0 ? 0 : v[0] * F::FACTOR) - delta.x, x.x = fabsf(x.x);
                            v[1] = (x.y < 0 ? 0 : v[1] * F::FACTOR) - delta.y, x.y = fabsf(x.y);
                        }
                        s[m][2 * k + j / 2][j % 2 * 2] *= x.x, s[m][2 * k + j / 2][j % 2 * 2 + 1] *= x.y;
                    }
                }
            te__attn_pack_all<T, M, N>(p, s);
        }
        te__attn_product_nn<T, M, N / 2, D>(sum, p, b_nn + te__attn_lane_a<D>(lane));
    }
    te__attn_nothing_seen<F>(steps);
    float factor[M][2];
    TE_UNROLL for (int m = 0; m < M; m++) factor[m][0] = factor[m][1] = second ? a->scale : F::FACTOR;
    const int column = (HEADS + (int)blockIdx.x % KV_HEADS + (second ? 0 : KV_HEADS)) * D;
    te__attn_rows_store<T, M, D>((uint16_t *)te__attn_dkv<F>(a) + (second ? h.k : h.v) + key0 * h.kv_width, h.kv_width,
                                 h.keys - key0, sum, factor, te__attention_shared + kept,
                                 te__attn_sum<QKV, M * 16>(a, batch, key0, column));
}

#endif
