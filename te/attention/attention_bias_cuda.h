/* attention_bias_cuda.h -- the gradient of attention's bias (attention_bias.h) on CUDA, on tensor cores and in f32.
 *
 * A block owns a tile of ROWS queries by TILE keys of one head, or of all heads that share the table, and adds up dS
 * of its pairs in registers, sequence after sequence. Of a relative bias it owns a row of such tiles: the sums of a
 * tile's diagonals, then of the diagonals of each bucket, become one part of the gradient.
 *
 * Floor: the products S and dP, 4 * batch * heads * queries * keys * head_dim flops (half of it if causal), beside the
 * 14 that the rest of backward takes; and the gradient once, 4 bytes for each pair. Measured on an H200, bf16, causal,
 * 8 x 1024 tokens of 12 heads of 64: none, [heads, q, k], relative: forward 63, 104, 75 us, dq and dkdv 184, 415, 208,
 * this 0, 145, 355. What a table costs there are its loads, in the kernel by keys one number at a time.
 */
/* target: cuda */
#ifndef TE_ATTENTION_BIAS_CUDA_H
#define TE_ATTENTION_BIAS_CUDA_H

#include "attention_cuda.h" /* te__attn_enqueue, the tools of the other kernels */

/* Whether a tile has a pair that is seen, in any of the sequences, which agree where queries and keys are as many. */
template <class F> TE_FN int te__attn_tile_seen(te__attn_mask m, int q0, int rows, int k0, int keys) {
    if (q0 >= m.queries || k0 >= m.keys) return 0;
    return !te__attn_differs(m) || te__attn_meets(te__attn_keys_of(m, q0, rows), k0, keys);
}

/* ---- a tile's sum of dS, in two makes: add(), for one head, and each(f(row, column, sum)) ------------------------ */

template <te_dtype T, int HEADS, int KV_HEADS, int D, class F> struct te__attn_dbias_mma {
    static constexpr int V = te__attn_value_dim<D, F>(), MOST = D > V ? D : V;
    static constexpr int bytes(int rows) { return te__attn_tile_bytes<D>(rows) + te__attn_tile_bytes<V>(rows); }
    static constexpr int WARPS = 4, ROWS = 64, THREADS = 128, BLOCKS = MOST <= 64 ? 3 : MOST <= 128 ? 2 : 1;
    static constexpr int TILE = bytes(2 * 64) <= TE_SHARED_BYTES ? 64 : 32, N = TILE / 8;
    static constexpr int TILES_BYTES = bytes(ROWS + TILE);
    float sum[1][N][4];

    __device__ __forceinline__ void clear() { memset(sum, 0, sizeof sum); }
    __device__ __forceinline__ void add(const te_attention_args *a, int head, int q0, int k0) {
        for (int batch = 0; batch < a->batch; batch++) add(a, batch, head, q0, k0);
    }
    __device__ __forceinline__ void add(const te_attention_args *a, int batch, int head, int q0, int k0) {
        constexpr uint32_t ROW = (D + TE__ATTN_PAD) * 2, V_ROW = (V + TE__ATTN_PAD) * 2;
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
        const uint32_t a_lane = (uint32_t)warp * 16 * ROW + te__attn_lane_a<D>(lane);
        const uint32_t do_lane = (uint32_t)warp * 16 * V_ROW + te__attn_lane_a<V>(lane);
        __syncthreads(); /* nobody reads the tiles of the sequence before */
        te__attn_tile_load<ROWS, D, QKV, THREADS>(q_tile, qkv + h.q + q0 * QKV, h.seq - q0);
        te__attn_tile_load<ROWS, V, OUT, THREADS>(do_tile, dout + q0 * OUT, h.seq - q0);
        te__attn_tile_load<TILE, D, KV, THREADS>(k_tile, kv + h.k + k0 * KV, h.keys - k0);
        te__attn_tile_load<TILE, V, KV, THREADS>(v_tile, kv + h.v + k0 * KV, h.keys - k0);
        float lse[2], minus_delta[1][2]; /* lse in powers of 2 */
        TE_UNROLL for (int e = 0; e < 2; e++) {
            const int row = row0 + g + e * 8;
            lse[e] = row < h.seq ? a->lse[h.row + row] * TE__ATTN_LOG2E : INFINITY;
            minus_delta[0][e] = row < h.seq ? -a->delta[h.row + row] : 0.0f;
        }
        te__attn_copies_done();
        __syncthreads();

        const uint32_t none[1][1][4] = {};
        const float c = te__attn_unit<F>(a->scale) * TE__ATTN_LOG2E;
        float s[1][N][4] = {}, dp[1][N][4];
        if constexpr (F::DROP != 0) memset(dp, 0, sizeof dp);
        else te__attn_start<1, N>(dp, minus_delta);
        te__attn_product_nt<T, 1, N, D, 0>(s, none, q_tile + a_lane, k_tile + te__attn_lane_b<D>(lane));
        te__attn_product_nt<T, 1, N, V, 0>(dp, none, do_tile + do_lane, v_tile + te__attn_lane_b<V>(lane));
        if constexpr (F::DROP != 0)
            te__attn_drop<F, 1, N>(a, te__attn_drawn<HEADS>(a, batch * HEADS + head, row0), g, k0 + t * 2,
                                   [&](int, int n, int e, int drops) {
                                       dp[0][n][e] = (drops ? 0 : dp[0][n][e] * F::FACTOR) + minus_delta[0][e / 2];
                                   });
        te__attn_cap<F, 1, N>(s, a->scale);
        te__attn_add_bias<F, 1, N>(s, te__attn_bias_at<HEADS, F>(head, a->scale, row0 + g + mask.shift - k0 - t * 2));
        te__attn_add_table<T, F, 1, N>(s, te__attn_table_at<T, F>(a, head, row0 + g, k0 + t * 2, mask.shift));
        te__attn_hide<1, N>(s, mask, row0 + g, k0 + t * 2);
        TE_UNROLL for (int n = 0; n < N; n++)
            TE_UNROLL for (int e = 0; e < 4; e++) sum[0][n][e] += te_exp2(s[0][n][e] * c - lse[e / 2]) * dp[0][n][e];
    }
    template <class G> __device__ __forceinline__ void each(G f) const {
        const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
        TE_UNROLL for (int n = 0; n < N; n++)
            TE_UNROLL for (int e = 0; e < 4; e++)
                f(warp * 16 + lane / 4 + e / 2 * 8, n * 8 + lane % 4 * 2 + e % 2, sum[0][n][e]);
    }
};

template <int HEADS, int KV_HEADS, int D, class F> struct te__attn_dbias_f32 {
    static constexpr int V = te__attn_value_dim<D, F>(), ALIGNED = D % 4 == 0 && V % 4 == 0;
    typedef te__attn_f32_dq_shape<D, V> C;
    typedef typename C::value CV;
    static constexpr int ROWS = C::T, TILE = C::T, THREADS = C::THREADS, BLOCKS = C::BLOCKS, TILES_BYTES = C::BYTES;
    float sum[C::R][C::R];

    __device__ __forceinline__ void clear() { memset(sum, 0, sizeof sum); }
    __device__ __forceinline__ void add(const te_attention_args *a, int head, int q0, int k0) {
        for (int batch = 0; batch < a->batch; batch++) add(a, batch, head, q0, k0);
    }
    __device__ __forceinline__ void add(const te_attention_args *a, int batch, int head, int q0, int k0) {
        const int y = (int)threadIdx.x / 16, x = (int)threadIdx.x % 16;
        const te__attn_head h = te__attn_head_of<HEADS, KV_HEADS, D, F>(a, batch, head);
        const te__attn_mask m = te__attn_mask_at<F>(h);
        if (!te__attn_tile_seen<F>(m, q0, C::T, k0, C::T)) return;
        float *q = (float *)te__attention_shared, *dout = q + C::T * C::LD;
        float *k = dout + C::T * CV::LD, *v = k + C::T * C::LD, s[C::R][C::R], dp[C::R][C::R];
        const float *qkv = (const float *)a->qkv, *kv = (const float *)te__attn_kv<F>(a);
        const float c = te__attn_unit<F>(a->scale) * TE__ATTN_LOG2E;
        __syncthreads(); /* nobody reads the tiles of the sequence before */
        te__attn_f32_load<C, D, ALIGNED>(q, qkv + h.q + q0 * h.width, h.width, h.seq - q0);
        te__attn_f32_load<CV, V, ALIGNED>(dout, (const float *)a->dout + h.out + q0 * h.out_width, h.out_width,
                                          h.seq - q0);
        te__attn_f32_load<C, D, ALIGNED>(k, kv + h.k + k0 * h.kv_width, h.kv_width, h.keys - k0);
        te__attn_f32_load<CV, V, ALIGNED>(v, kv + h.v + k0 * h.kv_width, h.kv_width, h.keys - k0);
        __syncthreads();
        te__attn_f32_product_nt<C>(s, q, k);
        te__attn_f32_product_nt<CV>(dp, dout, v);
        const te__attn_bias bias = te__attn_bias_at<HEADS, F>(head, a->scale, q0 + y + m.shift - k0 - x);
        const te__attn_table table = te__attn_table_at<TE_f32, F>(a, head, q0 + y, k0 + x, m.shift);
        TE_UNROLL for (int i = 0; i < C::R; i++) {
            const int row = q0 + y + 16 * i, ok = row < h.seq;
            const float lse = ok ? a->lse[h.row + row] * TE__ATTN_LOG2E : 0, delta = ok ? a->delta[h.row + row] : 0;
            TE_UNROLL for (int j = 0; j < C::R; j++) {
                const int key = k0 + x + 16 * j;
                const float score = te__attn_biased<F>(te__attn_capped<F>(s[i][j], a->scale), bias, 16 * (i - j));
                const float added = te__attn_added<TE_f32, F>(score, table, 16 * i, 16 * j);
                const float p = ok && te__attn_sees(m, row, key) ? exp2f(added * c - lse) : 0;
                if (F::DROP) dp[i][j] = te__attn_drops_pair<HEADS, F>(a, h, row, key) ? 0 : dp[i][j] * F::FACTOR;
                sum[i][j] += p * (dp[i][j] - delta);
            }
        }
    }
    template <class G> __device__ __forceinline__ void each(G f) const {
        const int y = (int)threadIdx.x / 16, x = (int)threadIdx.x % 16;
        TE_UNROLL for (int i = 0; i < C::R; i++)
            TE_UNROLL for (int j = 0; j < C::R; j++) f(y + 16 * i, x + 16 * j, sum[i][j]);
    }
};
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F>
struct te__attn_dbias_sums : te__attn_dbias_mma<T, HEADS, KV_HEADS, D, F> {};
template <int HEADS, int KV_HEADS, int D, class F>
struct te__attn_dbias_sums<TE_f32, HEADS, KV_HEADS, D, F> : te__attn_dbias_f32<HEADS, KV_HEADS, D, F> {};

/* ---- where they go ----------------------------------------------------------------------------------------------- */

template <te_dtype T, int HEADS, int KV_HEADS, int D, class F> struct te__attn_dbias {
    static_assert(F::BIAS != TE_BIAS_none, "te: attention: no bias, no gradient of it");
    typedef te_attention_args args;
    typedef te__attn_dbias_sums<T, HEADS, KV_HEADS, D, F> sums;
    static constexpr int ROWS = sums::ROWS, TILE = sums::TILE, THREADS = sums::THREADS, BLOCKS = sums::BLOCKS;
    static constexpr int RELATIVE = F::BIAS == TE_BIAS_relative, FIRST = F::BIAS_FIRST, SECOND = F::BIAS_SECOND;
    static constexpr int LD = TILE + 1, LINE = ROWS + TILE - 1; /* no bank conflicts along a diagonal; diagonals */
    static constexpr int BYTES = sums::TILES_BYTES + (RELATIVE ? (ROWS * LD + 2 * LINE + FIRST) * 4 : 0);
    static constexpr int TILES = (SECOND + TILE - 1) / TILE; /* of keys in a table */

    /* Grid: (tiles of keys * heads that have tables, tiles of queries). */
    static __device__ __forceinline__ void table(const args *a) {
        const int own = (int)blockIdx.x / TILES, k0 = (int)blockIdx.x % TILES * TILE, q0 = (int)blockIdx.y * ROWS;
        sums s;
        s.clear();
        for (int head = own; head < (F::BIAS == TE_BIAS_heads ? own + 1 : HEADS); head++) s.add(a, head, q0, k0);
        float *to = a->dbias + (int64_t)own * FIRST * SECOND;
        s.each([&](int row, int column, float x) {
            const int query = q0 + row, key = k0 + column;
            if (query >= FIRST || key >= SECOND) return;
            float *p = to + (int64_t)query * SECOND + key;
            *p = (a->accumulate ? *p : 0.0f) + x;
        });
    }
    /* Grid: (heads, tiles of queries). Shared memory: the tiles, then a tile of sums, its diagonals' sums and buckets,
     * and the buckets' sums. */
    static __device__ __forceinline__ void buckets(const args *a) {
        float *tile = (float *)(te__attention_shared + sums::TILES_BYTES), *line = tile + ROWS * LD;
        int *bucket = (int *)(line + LINE);
        float *total = (float *)(bucket + LINE);
        const int head = (int)blockIdx.x, q0 = (int)blockIdx.y * ROWS, first = (int)threadIdx.x;
        const int keys = F::CROSS ? a->kv_seq : a->seq;
        const te__attn_mask m = te__attn_mask_between(a->seq, keys, F::LEFT, F::RIGHT);
        for (int i = first; i < FIRST; i += THREADS) total[i] = 0;
        for (int k0 = 0; k0 < keys; k0 += TILE) {
            if (!te__attn_tile_seen<F>(m, q0, ROWS, k0, TILE)) continue;
            sums s;
            s.clear();
            s.add(a, head, q0, k0);
            __syncthreads(); /* nobody reads the sums of the tile before */
            s.each([&](int row, int column, float x) { tile[row * LD + column] = x; });
            __syncthreads();
            for (int i = first; i < LINE; i += THREADS) { /* its keys are i - (ROWS - 1) behind their queries */
                float sum = 0;
                for (int row = 0; row < ROWS; row++) {
                    const int column = i - (ROWS - 1) + row;
                    if (column >= 0 && column < TILE) sum += tile[row * LD + column];
                }
                line[i] = sum;
                bucket[i] = te__attn_bucket(k0 - q0 - m.shift + i - (ROWS - 1), FIRST, SECOND, F::RIGHT != 0);
            }
            __syncthreads();
            for (int i = first; i < FIRST; i += THREADS)
                for (int j = 0; j < LINE; j++)
                    if (bucket[j] == i) total[i] += line[j];
        }
        for (int i = first; i < FIRST; i += THREADS)
            a->dbias[((int64_t)blockIdx.y * FIRST + i) * HEADS + head] = total[i];
    }
    static __device__ __forceinline__ void body(const args *a) {
        te_kernel_begin();
        if constexpr (RELATIVE) buckets(a);
        else table(a);
    }
    /* Behind the backward that has left delta. */
    static te_status launch(te_context *ctx, te__attn_plain *k, const te_attention_args *a, const char *name) {
        const int tables = RELATIVE || F::BIAS == TE_BIAS_heads ? HEADS : 1;
        return te__attn_enqueue<te__attn_dbias>(ctx, k, tables * (RELATIVE ? 1 : TILES), RELATIVE ? a->seq : FIRST, a,
                                                name);
    }
};

#define TE_ATTENTION_DBIAS(name, dtype, heads, kv_heads, head_dim, options)                                     \
    TE__ATTENTION_FORM(name, options)                                                                           \
    typedef te__attn_dbias<TE_##dtype, (heads), (kv_heads), (head_dim), name##_form> name##_of;                 \
    TE__ATTENTION_SHELL(name, name##_of)                                                                        \
    TE_UNUSED static te__attn_plain name##_kernel = {(const void *)name, 0};                                    \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                               \
        return name##_of::launch(ctx, &name##_kernel, a, #name);                                                \
    }                                                                                                           \
    TE_API int64_t name##_parts(int64_t seq) { return te_ceil_div(seq, name##_of::ROWS); }

#endif
