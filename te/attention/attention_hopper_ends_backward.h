/* attention_hopper_ends_backward.h -- the kernels before and after attention_hopper_backward.h's: delta, and dQ
 * rounded. */
/* target: cuda */
#ifndef TE_ATTENTION_HOPPER_ENDS_BACKWARD_H
#define TE_ATTENTION_HOPPER_ENDS_BACKWARD_H

#include "attention_hopper_order_backward.h" /* te_attn_back, te__attn_back_dq_at */

/* ---- the kernels before and after -------------------------------------------------------------------------------- */

/* Lanes that add up a row's delta, 8 columns each. */
TE_BOTH constexpr int te__attn_back_lanes(int value_dim) { return value_dim <= 64 ? 8 : value_dim <= 128 ? 16 : 32; }
/* delta, by a few lanes for each row of a head; and numbers that begin at zero. Bytes: dout and out, at the rate of
 * memory. */
template <te_dtype T, int HEADS, int V, class F> TE_FN void te__attn_back_delta(const te_attn_back *p) {
    constexpr int LANES = te__attn_back_lanes(V);
    const te_attention_args *a = &p->a;
    const int64_t thread = (int64_t)blockIdx.x * TE_ATTN_DELTA_THREADS + threadIdx.x, row = thread / LANES / HEADS;
    const int head = (int)(thread / LANES % HEADS), d = (int)threadIdx.x % LANES * 8, seq = F::VARLEN ? 1 : a->seq;
    const int64_t rows = F::VARLEN ? p->of.rows : (int64_t)a->batch * seq;
    float v = 0;
    for (int64_t n = thread; n <= p->turns; n += (int64_t)gridDim.x * TE_ATTN_DELTA_THREADS)
        p->ticket[n] = 0; /* the turns lie behind it */
    if (row < rows && d < V) {
        float x[8], y[8];
        te_load8(x, a->dout, (row * HEADS + head) * V + d, 8, 1, T);
        te_load8(y, a->out, (row * HEADS + head) * V + d, 8, 1, T);
        TE_UNROLL for (int e = 0; e < 8; e++) v += x[e] * y[e];
    }
    TE_UNROLL for (int l = 1; l < LANES; l *= 2) v += __shfl_xor_sync(~0u, v, l);
    if (d == 0 && row < rows)
        a->delta[F::VARLEN ? head * rows + row : (row / seq * HEADS + head) * seq + row % seq] = v;
}

/* 32 columns for each warp, one or more times. */
TE_BOTH constexpr int te__attn_round_threads(int head_dim) { return head_dim % 64 || head_dim == 192 ? 192 : 256; }
/* dQ to 16 bits, 64 tokens of a head in a block, and the sums of what is stored. A thread has 8 columns of two tokens
 * at a time. Bytes: 4 read and 2 written an element, at the rate of memory. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F> TE_FN void te__attn_back_round(const te_attn_back *p) {
    constexpr int64_t QKV = te__attn_widths<HEADS, KV_HEADS, D, F>::QKV;
    constexpr int GROUPS = te__attn_round_threads(D) / D; /* a warp has 32 columns, of which so many at once */
    __shared__ float part[4][D];                          /* of 16 rows each */
    const int tiles = (p->a.seq + 63) / 64, head = (int)blockIdx.x % HEADS;
    int tile = (int)blockIdx.x / HEADS, batch = 0, left = 0;
    int64_t row = 0; /* the tile's first */
    if constexpr (F::VARLEN) {
        const int i = te_sequence_of(&p->of, tile, 64);
        const te_sequence own = te_sequence_rows(&p->of, i);
        tile -= own.first / 64 + i, left = own.count - tile * 64, row = own.first + tile * 64;
        if (tile < 0 || left <= 0) return;
    } else {
        batch = tile / tiles, tile %= tiles, left = p->a.seq - tile * 64;
        row = (int64_t)batch * p->a.seq + tile * 64;
    }
    const int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 8;
    const int x = warp % (D / 32) * 32 + (int)threadIdx.x / 8 % 4 * 8; /* the first column */
    const float *from = te__attn_back_dq_at<D>(p, head, x / 64, row);
    TE_UNROLL for (int n = 0; n < 4 / GROUPS; n++) { /* rows 16 w + g and eight further down */
        const int w = n * GROUPS + warp / (D / 32);
        float4 v[4];
        float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        TE_UNROLL for (int t = 0; t < 4; t++) { /* x, y: row g; z, w: eight further down */
            const float *own = from + (16 * w + g) * 64 + x % 64 + 2 * t;
            float2 low = make_float2(0, 0), high = low;
            if (left < 64 && 16 * w + g < left) low = *(const float2 *)own;
            if (left < 64 && 16 * w + g + 8 < left) high = *(const float2 *)(own + 8 * 64);
            v[t] = make_float4(low.x, low.y, high.x, high.y);
            if (left >= 64) v[t] = *(const float4 *)(from + (x % 64 / 8 * 128 + w * 32 + g * 4 + t) * 4);
        }
        TE_UNROLL for (int h = 0; h < 2; h++) {
            uint32_t u[4];
            TE_UNROLL for (int t = 0; t < 4; t++) {
                u[t] = te_pair_of_floats((h ? v[t].z : v[t].x) * p->a.scale, (h ? v[t].w : v[t].y) * p->a.scale, T);
                const float2 y = te_floats_of_pair(u[t], T);
                sum[2 * t] += y.x, sum[2 * t + 1] += y.y; /* zeros beyond the end */
            }
            if (16 * w + g + 8 * h < left)
                *(uint4 *)((uint16_t *)p->a.dqkv + (row + 16 * w + g + 8 * h) * QKV + head * D + x) =
                    make_uint4(u[0], u[1], u[2], u[3]);
        }
        if (!p->a.sum) continue;
        TE_UNROLL for (int e = 0; e < 8; e++) {
            TE_UNROLL for (int l = 1; l < 8; l *= 2) sum[e] += __shfl_xor_sync(~0u, sum[e], l);
            if (g == 0) part[w][x + e] = sum[e];
        }
    }
    if (F::FP8_OUTPUT && p->a.amax) { /* read back, so that fewer registers are in use until then */
        const uint16_t *to = (const uint16_t *)p->a.dqkv + row * QKV + head * D + x;
        uint32_t most = 0;
        for (int own = warp / (D / 32) * 16 + g; own < 64 && own < left; own += 16 * GROUPS)
            for (int at = own; at <= own + 8 && at < left; at += 8)
                te__attn_track_amax(&most, *(const uint4 *)(to + at * QKV));
        te__attn_raise_amax<T>(p->a.amax, most);
    }
    if (!p->a.sum) return;
    __syncthreads();
    constexpr int SUM_ROWS = te__attn_back_shape<D>::SUM_ROWS;
    const int c = (int)threadIdx.x % D;
    TE_UNROLL for (int s = 0; s < 64 / SUM_ROWS; s += GROUPS) { /* of the 64 rows */
        const int n = s + (int)threadIdx.x / D;
        if (n >= 64 / SUM_ROWS || n * SUM_ROWS >= left) return;
        const int64_t to = (int64_t)batch * ((p->a.seq + SUM_ROWS - 1) / SUM_ROWS) + tile * (64 / SUM_ROWS) + n;
        p->a.sum[to * QKV + head * D + c] =
            SUM_ROWS == 32 ? part[2 * n][c] + part[2 * n + 1][c] : part[n][c]; /* the sums of 16 rows each */
    }
}

#endif
