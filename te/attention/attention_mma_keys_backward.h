/* attention_mma_keys_backward.h -- the kernel by keys of attention_mma_backward.h, which makes dK and dV. */
/* target: cuda */
#ifndef TE_ATTENTION_MMA_KEYS_BACKWARD_H
#define TE_ATTENTION_MMA_KEYS_BACKWARD_H

#include "attention_mma_forward.h"       /* te__attn_head, the mma tools */
#include "attention_mma_probabilities.h" /* te__attn_probabilities */

/* Where the sums of a warp's ROWS rows from `row` on go, from this column on. */
template <int64_t WIDTH, int ROWS>
TE_FN float *te__attn_sum(const te_attention_args *a, int batch, int row, int column) {
    return a->sum ? a->sum + ((int64_t)batch * ((a->seq + ROWS - 1) / ROWS) + row / ROWS) * WIDTH + column : nullptr;
}

/* Two warps share M * 16 keys. One makes S^T and P^T = exp(S^T - lse), and from it dV; it hands P^T over in fragments,
 * and the other, which has made dP^T meanwhile, makes dS^T and from it dK. So each has one accumulator of M * 16 rows:
 * with both in one warp, registers would allow 16 rows at head_dim 128, and shared memory would be the limit. */
template <int D, int V = D> struct te__attn_dkdv_shape {
    static constexpr int bytes(int rows, int tile) {
        return te__attn_tile_bytes<D>(rows + 2 * tile) + te__attn_tile_bytes<V>(rows + 2 * tile);
    }
    /* WIDE: 128 keys by 64 queries in a block; else half of each, so that three blocks share a multiprocessor. */
    static constexpr int MOST = D > V ? D : V, wide_bytes = bytes(128, 64) + 128 * 64 * 2 + 4 * 64 * 4;
    static constexpr int WIDE = MOST > 64 && MOST <= 128 && wide_bytes <= TE_SHARED_BYTES,
                         TILE = WIDE ? 64 : 32; /* queries */
    static constexpr int PAIRS = WIDE || MOST > 128 ? 4 : 2, M = MOST <= 128 ? 2 : 1, HELD = MOST <= 64 && D == V;
    static constexpr int BLOCKS = MOST <= 64 ? 3 : PAIRS == 2 ? 2 : 1;
    static constexpr int ROWS = PAIRS * M * 16, THREADS = PAIRS * 64; /* keys */
    static constexpr int TILES_BYTES = bytes(ROWS, TILE);
    static constexpr int BYTES = TILES_BYTES + ROWS * TILE * 2 + 4 * TILE * 4;
};

/* Start copying queries q0 to q0 + TILE of the head that is `member` heads after h: Q, dO, lse, delta. */
template <int D, int V, int64_t QKV, int64_t OUT, class C>
TE_FN void te__attn_queries_load(uint32_t q_tile, uint32_t lse, const te_attention_args *a, const te__attn_head &h,
                                int member, int q0) {
    const int valid = h.seq - q0, r = (int)threadIdx.x % C::TILE;
    te__attn_tile_load<C::TILE, D, QKV, C::THREADS>(q_tile, (const uint16_t *)a->qkv + (h.q + member * D + q0 * QKV),
                                                    valid);
    te__attn_tile_load<C::TILE, V, OUT, C::THREADS>(q_tile + C::TILE * (D + TE__ATTN_PAD) * 2,
                                               (const uint16_t *)a->dout + (h.out + member * V + q0 * OUT), valid);
    const float *p = (threadIdx.x < C::TILE ? a->lse : a->delta) + (h.row + (int64_t)member * h.rows + q0);
    if (threadIdx.x < 2 * C::TILE) te__attn_copy4(lse + threadIdx.x * 4, r < valid ? p + r : p, r < valid);
}

/* Where a pair's rows of K (which == 0) or V begin. */
template <int D, int V> TE_FN uint32_t te__attn_pair_rows(int which, int row, int rows) {
    constexpr uint32_t ROW = (D + TE__ATTN_PAD) * 2, V_ROW = (V + TE__ATTN_PAD) * 2;
    if (V == D) return (uint32_t)(which * rows + row) * ROW;
    return which ? rows * ROW + row * V_ROW : row * ROW;
}
/* An accumulator of N columns, in registers that have room for the larger one. */
template <int N, int M, int MOST> TE_FN float (&te__attn_part(float (&sum)[M][MOST][4]))[M][N / 8][4] {
    return *(float (*)[M][N / 8][4])(void *)&sum[0][0][0];
}

/* Grid: (batch * kv_heads, key tiles). Shared memory: K, V, then Q and dO of stage 0, Q and dO of stage 1, P^T of each
 * pair, and lse and delta of both stages. Causal: the first keys, which most queries see, go first as they are. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F,
          class C = te__attn_dkdv_shape<D, te__attn_value_dim<D, F>()>>
TE_FN void te__attention_dkdv_mma(const te_attention_args *a) {
    typedef te__attn_widths<HEADS, KV_HEADS, D, F> widths;
    constexpr int64_t QKV = widths::QKV, KV = widths::KV, OUT = widths::OUT;
    constexpr int M = C::M, TILE = C::TILE, N = TILE / 8, GROUP = HEADS / KV_HEADS, HELD = C::HELD, V = widths::V;
    constexpr uint32_t ROW = (D + TE__ATTN_PAD) * 2, V_ROW = (V + TE__ATTN_PAD) * 2, Q_BYTES = TILE * ROW;
    constexpr uint32_t STAGE_BYTES = TILE * (ROW + V_ROW), V_AT = C::ROWS * ROW;
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
    const uint32_t k_tile = te__shared_address(te__attention_shared), q_tile = k_tile + C::ROWS * (ROW + V_ROW);
    const uint32_t kept = te__attn_pair_rows<D, V>(second, pair * M * 16, C::ROWS); /* this warp's rows of K, or of V */
    uint4 *handed = (uint4 *)(te__attention_shared + C::TILES_BYTES) + pair * M * N / 2 * 32 + lane;
    float *rows = (float *)(te__attention_shared + C::TILES_BYTES + C::ROWS * TILE * 2); /* lse, delta; of stage 1 */
    const float unit = te__attn_unit<F>(a->scale), c = unit * TE__ATTN_LOG2E, start = second ? -1.0f : -1.0f / unit;
    static_assert(2 * TILE <= C::THREADS, "te: attention: one thread copies one lse or delta");

    te__attn_tile_load<C::ROWS, D, KV, C::THREADS>(k_tile, kv + h.k + k0 * KV, h.keys - k0);
    te__attn_tile_load<C::ROWS, V, KV, C::THREADS>(k_tile + V_AT, kv + h.v + k0 * KV, h.keys - k0);
    te__attn_queries_load<D, V, QKV, OUT, C>(q_tile, te__shared_address(rows), a, h, 0, tiles.first * TILE);

    uint32_t held[M][HELD ? D / 16 : 1][4];
    float sum[M][C::MOST / 8][4] = {}; /* dV, or dK */
    for (int i = 0, tile = tiles.first, member = 0; i < steps; i++) {
        const int at = tile, q0 = at * TILE, member_now = member;
        te__attn_copies_done();
        __syncthreads(); /* the tile is there; nobody reads the other stage or P^T of the last step any more */
        if (i + 1 < steps) {
            if (++tile == tiles.end) tile = tiles.first, member++;
            te__attn_queries_load<D, V, QKV, OUT, C>(q_tile + ((i + 1) & 1) * STAGE_BYTES,
                                                  te__shared_address(rows + ((i + 1) & 1) * 2 * TILE), a, h, member,
                                                  tile * TILE);
        }
        if constexpr (HELD != 0) if (i == 0) te__attn_hold<M, D>(held, k_tile + kept + te__attn_lane_a<D>(lane));
        if (te__attn_differs(mask) && !te__attn_meets(own, at, 1)) { /* both warps of the pair; others wait for P^T */
            __syncthreads();
            continue;
        }
        /* the first warp multiplies K by Q, and P by dO; the second V by dO, and dS by Q */
        const uint32_t stage = q_tile + (i & 1) * STAGE_BYTES;
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
        if (V != D && second)
            te__attn_product_nt<T, M, N, V, HELD>(s, held, k_tile + kept + te__attn_lane_a<V>(lane),
                                                  b_nt + te__attn_lane_b<V>(lane));
        else
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
                        float2 x = te_floats_of_pair(w[j], T);
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
        if (V != D && second)
            te__attn_product_nn<T, M, N / 2, D>(te__attn_part<D>(sum), p, b_nn + te__attn_lane_a<D>(lane));
        else
            te__attn_product_nn<T, M, N / 2, V>(te__attn_part<V>(sum), p, b_nn + te__attn_lane_a<V>(lane));
    }
    te__attn_nothing_seen<F>(steps);
    float factor[M][2];
    TE_UNROLL for (int m = 0; m < M; m++) factor[m][0] = factor[m][1] = second ? a->scale : F::FACTOR;
    if constexpr (V != D) { /* through the rows of the other tile, which have the size: nobody reads either any more */
        unsigned char *const to = te__attention_shared + te__attn_pair_rows<D, V>(!second, pair * M * 16, C::ROWS);
        const int kv_head = (int)blockIdx.x % KV_HEADS;
        uint16_t *const dkv = (uint16_t *)te__attn_dkv<F>(a);
        if (second)
            te__attn_rows_store<T, M, D>(dkv + h.k + key0 * h.kv_width, h.kv_width, h.keys - key0,
                                         te__attn_part<D>(sum), factor, to,
                                         te__attn_sum<QKV, M * 16>(a, batch, key0, (HEADS + kv_head) * D), nullptr,
                                         te__attn_amax_of_keys<F>(a));
        else
            te__attn_rows_store<T, M, V>(
                dkv + h.v + key0 * h.kv_width, h.kv_width, h.keys - key0, te__attn_part<V>(sum), factor, to,
                te__attn_sum<QKV, M * 16>(a, batch, key0, (HEADS + KV_HEADS) * D + kv_head * V), nullptr,
                te__attn_amax_of_keys<F>(a));
    } else {
        const int column = (HEADS + (int)blockIdx.x % KV_HEADS + (second ? 0 : KV_HEADS)) * D;
        te__attn_rows_store<T, M, D>((uint16_t *)te__attn_dkv<F>(a) + (second ? h.k : h.v) + key0 * h.kv_width,
                                     h.kv_width, h.keys - key0, sum, factor, te__attention_shared + kept,
                                     te__attn_sum<QKV, M * 16>(a, batch, key0, column), nullptr,
                                     te__attn_amax_of_keys<F>(a));
    }
}

#endif
