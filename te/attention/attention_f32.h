/* attention_f32.h -- attention forward and backward in true f32, on CUDA cores; any head sizes up to 256.
 *
 * A block of 16 x 16 threads works on tiles of T rows in shared memory; thread (y, x) has rows y + 16 i and, of scores,
 * columns x + 16 j, of outputs the 4 columns from 4 * (x + 16 j). Sums of 4 columns at a time: 8 loads of 16 bytes for
 * 64 multiply-adds at T = 64.
 *
 * Floor: the flops of attention_mma_forward.h and attention_mma_backward.h, at the f32 rate of the CUDA cores.
 */
/* target: cuda */
#ifndef TE_ATTENTION_F32_H
#define TE_ATTENTION_F32_H

#include "attention_f32_tiles.h"   /* tiles in shared memory and their products */
#include "attention_mma_forward.h" /* te__attn_head, te__attention_shared */

/* Whether dropout drops a probability. */
template <int HEADS, class F>
TE_FN int te__attn_drops_pair(const te_attention_args *a, const te__attn_head &h, int query, int key) {
    const int head = te__attn_head_of_all(a->whole, h.batch * HEADS + h.head, HEADS);
    return te__attn_dropped(*a->rng, a->id, head, query, key, a->seq, F::DROP);
}

/* Grid: (batch * heads, query tiles). */
template <int HEADS, int KV_HEADS, int D, class F> TE_FN void te__attention_forward_f32(const te_attention_args *a) {
    constexpr int V = te__attn_value_dim<D, F>(), ALIGNED = D % 4 == 0 && V % 4 == 0;
    typedef te__attn_f32_forward_shape<D, V> C;
    typedef typename C::value CV;
    const int y = (int)threadIdx.x / 16, x = (int)threadIdx.x % 16;
    const te__attn_head h =
        te__attn_head_of<HEADS, KV_HEADS, D, F>(a, (int)blockIdx.x / HEADS, (int)blockIdx.x % HEADS);
    const int seq = h.seq;
    const te__attn_mask m = te__attn_mask_at<F>(h);
    const int q0 = (int)(te__attn_grows(m) ? gridDim.y - 1 - blockIdx.y : blockIdx.y) * C::T;
    if (F::VARLEN && q0 >= seq) return;
    const te__attn_span keys = te__attn_keys_of(m, q0, C::T);
    float *q = (float *)te__attention_shared, *kv = q + C::T * C::LD, *p = kv + C::T * C::KV_LD;
    const float *qkv = (const float *)a->qkv, *from = (const float *)te__attn_kv<F>(a);
    const float c = te__attn_unit<F>(a->scale) * TE__ATTN_LOG2E;
    float o[C::R][CV::COLS][4], top[C::R], sum[C::R], most[C::R]; /* most: for row_top */
    te__attn_f32_clear<CV>(o);
    const float sink = te__attn_sink<TE_f32, F>(a, h.head);
    TE_UNROLL for (int i = 0; i < C::R; i++) {
        top[i] = sink, sum[i] = F::SINKS && x == 0 ? 1.0f : 0.0f, most[i] = -INFINITY;
    }
    te__attn_f32_load<C, D, ALIGNED>(q, qkv + h.q + q0 * h.width, h.width, seq - q0);
    for (int k0 = keys.first / C::T * C::T; k0 < keys.end; k0 += C::T) {
        float s[C::R][C::R];
        __syncthreads();
        te__attn_f32_load<C, D, ALIGNED>(kv, from + h.k + k0 * h.kv_width, h.kv_width, h.keys - k0);
        __syncthreads();
        te__attn_f32_product_nt<C>(s, q, kv);
        const te__attn_bias bias = te__attn_bias_at<HEADS, F>(h.head, a->scale, q0 + y + m.shift - k0 - x);
        const te__attn_table table = te__attn_table_at<TE_f32, F>(a, h.head, q0 + y, k0 + x, m.shift);
        TE_UNROLL for (int i = 0; i < C::R; i++) {
            float v = top[i], add = 0;
            TE_UNROLL for (int j = 0; j < C::R; j++) {
                const int row = q0 + y + 16 * i, key = k0 + x + 16 * j;
                s[i][j] = te__attn_biased<F>(te__attn_capped<F>(s[i][j], a->scale), bias, 16 * (i - j));
                s[i][j] = te__attn_added<TE_f32, F>(s[i][j], table, 16 * i, 16 * j);
                if (!te__attn_sees(m, row, key)) s[i][j] = -INFINITY;
                if (F::TOP) most[i] = fmaxf(most[i], s[i][j]);
                v = fmaxf(v, s[i][j]);
            }
            v = te__attn_f32_row_max(v);
            const float off = te__attn_off<F>(v), shrink = exp2f((top[i] - off) * c);
            top[i] = v;
            TE_UNROLL for (int j = 0; j < C::R; j++) s[i][j] = exp2f((s[i][j] - off) * c), add += s[i][j];
            if (F::DROP && a->rng)
                TE_UNROLL for (int j = 0; j < C::R; j++)
                    if (te__attn_drops_pair<HEADS, F>(a, h, q0 + y + 16 * i, k0 + x + 16 * j)) s[i][j] = 0;
            sum[i] = sum[i] * shrink + add;
            TE_UNROLL for (int j = 0; j < CV::COLS; j++) TE_UNROLL for (int n = 0; n < 4; n++) o[i][j][n] *= shrink;
        }
        te__attn_f32_put<C>(p, s);
        __syncthreads();
        te__attn_f32_load<CV, V, ALIGNED>(kv, from + h.v + k0 * h.kv_width, h.kv_width, h.keys - k0);
        __syncthreads();
        te__attn_f32_product_nn<CV>(o, p, kv);
    }
    TE_UNROLL for (int i = 0; i < C::R; i++) {
        const int row = q0 + y + 16 * i;
        sum[i] = te__attn_f32_row_sum(sum[i]);
        const int blind = te__attn_blind<F>(sum[i]);
        if (a->lse && x == 0 && row < seq)
            a->lse[h.row + row] = blind ? INFINITY : top[i] * te__attn_unit<F>(a->scale) + logf(sum[i]);
        if (F::TOP) {
            most[i] = te__attn_f32_row_max(most[i]);
            if (a->row_top && x == 0 && row < seq) a->row_top[h.row + row] = most[i] * te__attn_unit<F>(a->scale);
        }
        sum[i] = (F::DROP && a->rng ? F::FACTOR : 1.0f) / sum[i];
        if (blind) sum[i] = 0;
    }
    te__attn_f32_store<CV, V>((float *)a->out + h.out + q0 * h.out_width, h.out_width, seq - q0, o, sum);
}

/* Grid: (batch * heads, query tiles). dQ = scale * dS K; delta = rowsum(dO * O) on the way. */
template <int HEADS, int KV_HEADS, int D, class F> TE_FN void te__attention_dq_f32(const te_attention_args *a) {
    constexpr int V = te__attn_value_dim<D, F>(), ALIGNED = D % 4 == 0 && V % 4 == 0;
    typedef te__attn_f32_dq_shape<D, V> C;
    typedef typename C::value CV;
    const int y = (int)threadIdx.x / 16, x = (int)threadIdx.x % 16;
    const te__attn_head h =
        te__attn_head_of<HEADS, KV_HEADS, D, F>(a, (int)blockIdx.x / HEADS, (int)blockIdx.x % HEADS);
    const int seq = h.seq;
    const te__attn_mask m = te__attn_mask_at<F>(h);
    const int q0 = (int)(te__attn_grows(m) ? gridDim.y - 1 - blockIdx.y : blockIdx.y) * C::T;
    if (F::VARLEN && q0 >= seq) return;
    const te__attn_span keys = te__attn_keys_of(m, q0, C::T);
    float *q = (float *)te__attention_shared, *dout = q + C::T * C::LD, *k = dout + C::T * CV::LD;
    float *v = k + C::T * C::LD, *ds = v + C::T * CV::LD;
    const float *qkv = (const float *)a->qkv, *kv = (const float *)te__attn_kv<F>(a);
    const float *out = (const float *)a->out + h.out;
    const float c = te__attn_unit<F>(a->scale) * TE__ATTN_LOG2E;
    float dq[C::R][C::COLS][4], lse[C::R], delta[C::R], factor[C::R];
    te__attn_f32_clear<C>(dq);
    te__attn_f32_load<C, D, ALIGNED>(q, qkv + h.q + q0 * h.width, h.width, seq - q0);
    te__attn_f32_load<CV, V, ALIGNED>(dout, (const float *)a->dout + h.out + q0 * h.out_width, h.out_width, seq - q0);
    __syncthreads();
    TE_UNROLL for (int i = 0; i < C::R; i++) {
        const int row = q0 + y + 16 * i;
        float sum = 0;
        if (row < seq)
            for (int d = x; d < V; d += 16) sum += dout[(y + 16 * i) * CV::LD + d] * out[row * h.out_width + d];
        delta[i] = te__attn_f32_row_sum(sum), lse[i] = row < seq ? a->lse[h.row + row] * TE__ATTN_LOG2E : INFINITY;
        if (x == 0 && row < seq) a->delta[h.row + row] = delta[i];
        factor[i] = a->scale;
    }
    for (int k0 = keys.first / C::T * C::T; k0 < keys.end; k0 += C::T) {
        float s[C::R][C::R], dp[C::R][C::R];
        __syncthreads();
        te__attn_f32_load<C, D, ALIGNED>(k, kv + h.k + k0 * h.kv_width, h.kv_width, h.keys - k0);
        te__attn_f32_load<CV, V, ALIGNED>(v, kv + h.v + k0 * h.kv_width, h.kv_width, h.keys - k0);
        __syncthreads();
        te__attn_f32_product_nt<C>(s, q, k);
        te__attn_f32_product_nt<CV>(dp, dout, v);
        const te__attn_bias bias = te__attn_bias_at<HEADS, F>(h.head, a->scale, q0 + y + m.shift - k0 - x);
        const te__attn_table table = te__attn_table_at<TE_f32, F>(a, h.head, q0 + y, k0 + x, m.shift);
        TE_UNROLL for (int i = 0; i < C::R; i++)
            TE_UNROLL for (int j = 0; j < C::R; j++) {
                const int row = q0 + y + 16 * i, key = k0 + x + 16 * j;
                s[i][j] = te__attn_capped<F>(s[i][j], a->scale);
                const float biased = te__attn_biased<F>(s[i][j], bias, 16 * (i - j));
                const float added = te__attn_added<TE_f32, F>(biased, table, 16 * i, 16 * j);
                const float p = te__attn_sees(m, row, key) ? exp2f(added * c - lse[i]) : 0;
                if (F::DROP) dp[i][j] = te__attn_drops_pair<HEADS, F>(a, h, row, key) ? 0 : dp[i][j] * F::FACTOR;
                s[i][j] = p * te__attn_slope<F>(s[i][j]) * (dp[i][j] - delta[i]);
            }
        te__attn_f32_put<C>(ds, s);
        __syncthreads();
        te__attn_f32_product_nn<C>(dq, ds, k);
    }
    te__attn_f32_store<C, D>((float *)a->dqkv + h.q + q0 * h.width, h.width, seq - q0, dq, factor);
}

/* Grid: (batch * kv_heads, key tiles). dV = P^T dO, dK = scale * dS^T Q. */
template <int HEADS, int KV_HEADS, int D, class F> TE_FN void te__attention_dkdv_f32(const te_attention_args *a) {
    constexpr int V = te__attn_value_dim<D, F>(), ALIGNED = D % 4 == 0 && V % 4 == 0;
    typedef te__attn_f32_dq_shape<D, V> C;
    typedef typename C::value CV;
    const int y = (int)threadIdx.x / 16, x = (int)threadIdx.x % 16, k0 = (int)blockIdx.y * C::T;
    const int batch = (int)blockIdx.x / KV_HEADS, head0 = (int)blockIdx.x % KV_HEADS * (HEADS / KV_HEADS);
    const te__attn_head h0 = te__attn_head_of<HEADS, KV_HEADS, D, F>(a, batch, head0);
    const int seq = h0.seq;
    if (F::VARLEN && k0 >= seq) return;
    const te__attn_mask m = te__attn_mask_at<F>(h0);
    const te__attn_span queries = te__attn_queries_of(m, k0, C::T);
    float *q = (float *)te__attention_shared, *dout = q + C::T * C::LD, *k = dout + C::T * CV::LD;
    float *v = k + C::T * C::LD, *p = v + C::T * CV::LD;
    const float *qkv = (const float *)a->qkv, *kv = (const float *)te__attn_kv<F>(a);
    const float c = te__attn_unit<F>(a->scale) * TE__ATTN_LOG2E;
    float dk[C::R][C::COLS][4], dv[C::R][CV::COLS][4], one[C::R], scale[C::R];
    te__attn_f32_clear<C>(dk), te__attn_f32_clear<CV>(dv);
    TE_UNROLL for (int i = 0; i < C::R; i++) one[i] = F::FACTOR, scale[i] = a->scale;
    te__attn_f32_load<C, D, ALIGNED>(k, kv + h0.k + k0 * h0.kv_width, h0.kv_width, h0.keys - k0);
    te__attn_f32_load<CV, V, ALIGNED>(v, kv + h0.v + k0 * h0.kv_width, h0.kv_width, h0.keys - k0);
    for (int head = head0; head < head0 + HEADS / KV_HEADS; head++) {
        const te__attn_head h = te__attn_head_of<HEADS, KV_HEADS, D, F>(a, batch, head);
        for (int q0 = queries.first / C::T * C::T; q0 < queries.end; q0 += C::T) {
            float s[C::R][C::R], dp[C::R][C::R];
            __syncthreads();
            te__attn_f32_load<C, D, ALIGNED>(q, qkv + h.q + q0 * h.width, h.width, seq - q0);
            te__attn_f32_load<CV, V, ALIGNED>(dout, (const float *)a->dout + h.out + q0 * h.out_width, h.out_width,
                                              seq - q0);
            __syncthreads();
            te__attn_f32_product_nt<C>(s, k, q);
            te__attn_f32_product_nt<CV>(dp, v, dout);
            const te__attn_bias bias = te__attn_bias_at<HEADS, F>(head, a->scale, q0 + x + m.shift - k0 - y);
            const te__attn_table table = te__attn_table_at<TE_f32, F>(a, head, q0 + x, k0 + y, m.shift);
            TE_UNROLL for (int j = 0; j < C::R; j++) {
                const int row = q0 + x + 16 * j, ok = row < seq;
                const float lse = ok ? a->lse[h.row + row] * TE__ATTN_LOG2E : 0, delta = ok ? a->delta[h.row + row] : 0;
                TE_UNROLL for (int i = 0; i < C::R; i++) {
                    const int key = k0 + y + 16 * i;
                    const float t = te__attn_capped<F>(s[i][j], a->scale);
                    const float biased = te__attn_biased<F>(t, bias, 16 * (j - i));
                    const float added = te__attn_added<TE_f32, F>(biased, table, 16 * j, 16 * i);
                    s[i][j] = ok && te__attn_seen(m, key, row) ? exp2f(added * c - lse) : 0;
                    const int drops = F::DROP && te__attn_drops_pair<HEADS, F>(a, h, row, key);
                    if (F::DROP) dp[i][j] = drops ? 0 : dp[i][j] * F::FACTOR;
                    dp[i][j] = s[i][j] * te__attn_slope<F>(t) * (dp[i][j] - delta);
                    if (drops) s[i][j] = 0;
                }
            }
            te__attn_f32_put<C>(p, s);
            __syncthreads();
            te__attn_f32_product_nn<CV>(dv, p, dout);
            __syncthreads();
            te__attn_f32_put<C>(p, dp);
            __syncthreads();
            te__attn_f32_product_nn<C>(dk, p, q);
        }
    }
    float *to = (float *)te__attn_dkv<F>(a);
    te__attn_f32_store<C, D>(to + h0.k + k0 * h0.kv_width, h0.kv_width, h0.keys - k0, dk, scale);
    te__attn_f32_store<CV, V>(to + h0.v + k0 * h0.kv_width, h0.kv_width, h0.keys - k0, dv, one);
}

#endif
