/* attention_simt_f32.h -- attention forward and backward in f32 (not TF32), on CUDA cores, for any head sizes up to
 * 512 (te/attention/attention_options.h).
 *
 * A block of 16 x 16 threads works on tiles of T rows (16, 32 or 64) in shared memory. Thread (y, x) computes elements
 * in the rows y, y + 16, y + 32 and so on. In a tile of scores, these are the elements in columns x, x + 16 and so on;
 * in an output, these are groups of four columns, which begin at columns 4 * x, 4 * (x + 16) and so on. A product reads
 * 4 columns of both operands at a time: if T is 64, a thread loads 8 vectors of 16 bytes for 64 multiply-adds.
 *
 * Lower bound of the run time: the flops stated in attention_sm80_forward.h and attention_sm80_backward.h, divided by
 * the f32 rate of the CUDA cores.
 */
/* target: cuda */
#ifndef TE_ATTENTION_SIMT_F32_H
#define TE_ATTENTION_SIMT_F32_H

#include "attention_sm80_tiles.h" /* te__attn_head, te__attention_shared, options of scores */

/* ---- tiles and products ------------------------------------------------------------------------------------------ */

/* Constants of tiles of T rows of D columns. R: how many rows of a tile a thread computes, and in a tile of scores also
 * how many columns. COLS: how many groups of 4 columns of an output a thread computes. PAD: D rounded up to a multiple
 * of 4. LD: the row length in shared memory, in floats; it is an odd number of 16-byte units, to avoid bank conflicts.
 * LP: the row length of a tile of scores, in floats. */
template <int D, int SIZE> struct te__attn_f32_shape {
    static constexpr int T = SIZE, R = T / 16, PAD = (D + 3) / 4 * 4, LD = PAD / 4 % 2 ? PAD : PAD + 4, LP = T + 4;
    static constexpr int COLS = (PAD / 4 + 15) / 16;
    static constexpr int ROWS = T, THREADS = 256, BLOCKS = 1;
};
/* The row length of a tile with max(D, V) columns. */
template <int D, int V> constexpr int te__attn_f32_max_ld(void) { return te__attn_f32_shape<D < V ? V : D, 16>::LD; }
/* The bytes of shared memory of three tiles with T rows each: a tile of Q, a tile of K (later V), and a tile of P. A
 * row of P has T + 4 floats. */
template <int D, int V> constexpr int te__attn_f32_forward_bytes(int T) {
    return T * (te__attn_f32_shape<D, 16>::LD + te__attn_f32_max_ld<D, V>() + T + 4) * 4;
}
template <int D, int V> constexpr int te__attn_f32_forward_rows(int limit) {
    return D <= 128 && V <= 128 ? 64 : te__attn_f32_forward_bytes<D, V>(32) <= limit ? 32 : 16;
}
/* Constants of the forward kernel, for the head size D of q and k, and V of v. qk: the shape of tiles of q and k;
 * value: the shape of tiles of v. */
template <int D, int V = D, int LIMIT = TE__ATTN_SHARED>
struct te__attn_f32_forward_shape : te__attn_f32_shape<D, te__attn_f32_forward_rows<D, V>(LIMIT)> {
    typedef te__attn_f32_forward_shape<D, V, TE__ATTN_SHARED_SMALL> small;
    typedef te__attn_f32_shape<D, te__attn_f32_forward_rows<D, V>(LIMIT)> qk;
    typedef te__attn_f32_shape<V, qk::T> value;
    static constexpr int KV_LD = te__attn_f32_max_ld<D, V>(), BYTES = te__attn_f32_forward_bytes<D, V>(qk::T);
};
/* The bytes of shared memory of five tiles with T rows each: Q, dO, K, V and dS. A row of dS has T + 4 floats, rows of
 * the other tiles have LD (te__attn_f32_shape). three: 1 if two of the four tiles Q, dO, K and V use the same memory
 * (te__attn_f32_reloads). */
template <int D, int V> constexpr int te__attn_f32_dq_bytes(int T, int three) {
    constexpr int BOTH = te__attn_f32_shape<D, 16>::LD + te__attn_f32_shape<V, 16>::LD;
    return T * (BOTH + (three ? te__attn_f32_max_ld<D, V>() : BOTH) + T + 4) * 4;
}
/* Returns whether two of the four tiles Q, dO, K and V use the same memory, because all four do not fit even with only
 * 16 rows each. The two tiles are K and V in the dq kernel, and Q and dO in the dkdv kernel. In each step the kernel
 * then loads one of the two tiles twice. */
template <int D, int V> constexpr int te__attn_f32_reloads(void) {
    return te__attn_f32_dq_bytes<D, V>(16, 0) > TE__ATTN_SHARED_SMALL;
}
template <int D, int V> constexpr int te__attn_f32_dq_rows(int limit) {
    return D <= 64 && V <= 64 ? 64 : te__attn_f32_dq_bytes<D, V>(32, te__attn_f32_reloads<D, V>()) <= limit ? 32 : 16;
}
template <int D, int V = D, int LIMIT = TE__ATTN_SHARED>
struct te__attn_f32_dq_shape : te__attn_f32_shape<D, te__attn_f32_dq_rows<D, V>(LIMIT)> {
    typedef te__attn_f32_dq_shape<D, V, TE__ATTN_SHARED_SMALL> small;
    typedef te__attn_f32_shape<D, te__attn_f32_dq_rows<D, V>(LIMIT)> qk;
    typedef te__attn_f32_shape<V, qk::T> value;
    static constexpr int RELOADS = te__attn_f32_reloads<D, V>(), BYTES = te__attn_f32_dq_bytes<D, V>(qk::T, RELOADS);
    /* with RELOADS: the size, in floats, of the memory that two tiles use in turn */
    static constexpr int MAX_TILE = qk::T * te__attn_f32_max_ld<D, V>();
};
template <int D, int V = D> struct te__attn_f32_dkdv_shape : te__attn_f32_dq_shape<D, V> {};

/* Loads T rows of D columns to shared memory. width: the distance between two rows in `from`, in elements. Rows from
 * `valid` on, and the padding, become zeros. ALIGNED: 1 if the head sizes are multiples of four, so that rows are
 * aligned to 16 bytes. */
template <class C, int D, int ALIGNED>
TE_FN void te__attn_f32_load(float *tile, const float *from, int64_t width, int valid) {
    for (int i = (int)threadIdx.x; i < C::T * (C::PAD / 4); i += C::THREADS) {
        const int r = i / (C::PAD / 4), d = i % (C::PAD / 4) * 4;
        float4 v = make_float4(0, 0, 0, 0);
        if (r < valid) {
            const float *p = from + r * width + d;
            if (ALIGNED) v = *(const float4 *)p;
            else v = make_float4(p[0], d + 1 < D ? p[1] : 0, d + 2 < D ? p[2] : 0, d + 3 < D ? p[3] : 0);
        }
        *(float4 *)(tile + r * C::LD + d) = v;
    }
}
/* Computes s = A B^T, for tiles A (a) and B (b) in shared memory. */
template <class C> TE_FN void te__attn_f32_product_nt(float (&s)[C::R][C::R], const float *a, const float *b) {
    const int y = (int)threadIdx.x / 16, x = (int)threadIdx.x % 16;
    TE_UNROLL for (int i = 0; i < C::R; i++) TE_UNROLL for (int j = 0; j < C::R; j++) s[i][j] = 0;
    for (int d = 0; d < C::PAD; d += 4) {
        float4 u[C::R], v[C::R];
        TE_UNROLL for (int i = 0; i < C::R; i++) u[i] = *(const float4 *)(a + (y + 16 * i) * C::LD + d);
        TE_UNROLL for (int j = 0; j < C::R; j++) v[j] = *(const float4 *)(b + (x + 16 * j) * C::LD + d);
        TE_UNROLL for (int i = 0; i < C::R; i++)
            TE_UNROLL for (int j = 0; j < C::R; j++)
                s[i][j] += u[i].x * v[j].x + u[i].y * v[j].y + u[i].z * v[j].z + u[i].w * v[j].w;
    }
}
/* Computes o += P B. P (p) [T, T] and B (b) [T, columns of o] are tiles in shared memory. LD: the distance in floats
 * between two rows of B. */
template <class C, int LD = C::LD>
TE_FN void te__attn_f32_product_nn(float (&o)[C::R][C::COLS][4], const float *p, const float *b) {
    const int y = (int)threadIdx.x / 16, x = (int)threadIdx.x % 16;
    for (int k = 0; k < C::T; k += 4) {
        float w[C::R][4];
        TE_UNROLL for (int i = 0; i < C::R; i++) {
            const float4 u = *(const float4 *)(p + (y + 16 * i) * C::LP + k);
            w[i][0] = u.x, w[i][1] = u.y, w[i][2] = u.z, w[i][3] = u.w;
        }
        TE_UNROLL for (int j = 0; j < C::COLS; j++) {
            if (C::PAD % 64 && x + 16 * j >= C::PAD / 4) continue;
            TE_UNROLL for (int n = 0; n < 4; n++) {
                const float4 v = *(const float4 *)(b + (k + n) * LD + (x + 16 * j) * 4);
                TE_UNROLL for (int i = 0; i < C::R; i++) {
                    o[i][j][0] += w[i][n] * v.x, o[i][j][1] += w[i][n] * v.y;
                    o[i][j][2] += w[i][n] * v.z, o[i][j][3] += w[i][n] * v.w;
                }
            }
        }
    }
}
/* Stores this thread's scores s to the tile p in shared memory. */
template <class C> TE_FN void te__attn_f32_put(float *p, const float (&s)[C::R][C::R]) {
    const int y = (int)threadIdx.x / 16, x = (int)threadIdx.x % 16;
    TE_UNROLL for (int i = 0; i < C::R; i++)
        TE_UNROLL for (int j = 0; j < C::R; j++) p[(y + 16 * i) * C::LP + x + 16 * j] = s[i][j];
}
template <class C> TE_FN void te__attn_f32_clear(float (&o)[C::R][C::COLS][4]) {
    TE_UNROLL for (int i = 0; i < C::R; i++)
        TE_UNROLL for (int j = 0; j < C::COLS; j++) o[i][j][0] = o[i][j][1] = o[i][j][2] = o[i][j][3] = 0;
}
/* Stores the first `valid` rows of o to global memory, each row multiplied by its element of `factor`. */
template <class C, int D>
TE_FN void te__attn_f32_store(float *to, int64_t width, int valid, const float (&o)[C::R][C::COLS][4],
                              const float (&factor)[C::R]) {
    const int y = (int)threadIdx.x / 16, x = (int)threadIdx.x % 16;
    TE_UNROLL for (int i = 0; i < C::R; i++)
        TE_UNROLL for (int j = 0; j < C::COLS; j++)
            TE_UNROLL for (int n = 0; n < 4; n++) {
                const int d = (x + 16 * j) * 4 + n;
                if (y + 16 * i < valid && d < D) to[(y + 16 * i) * width + d] = o[i][j][n] * factor[i];
            }
}
/* Returns the maximum of v over the 16 threads that share a row. */
TE_FN float te__attn_f32_row_max(float v) {
    TE_UNROLL for (int o = 8; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    return v;
}
/* Returns the sum of v over the 16 threads that share a row. */
TE_FN float te__attn_f32_row_sum(float v) {
    TE_UNROLL for (int o = 8; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    return v;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Returns whether dropout drops the probability of the pair (query, key). */
template <int HEADS, class F>
TE_FN int te__attn_drops_pair(const te_attention_args *a, const te__attn_head &h, int query, int key) {
    const int head = te__attn_global_head(a->whole, h.batch * HEADS + h.head, HEADS);
    return te__attn_dropped(*a->rng, a->id, head, query, key, a->seq, F::DROP);
}

/* Loads a tile of keys (value 0) or values (value 1), from token `key` on, to shared memory: from qkv or kv, or from
 * the pages of a cache. D: the head size of k or of v. */
template <class F, class C, int D, int ALIGNED>
TE_FN void te__attn_f32_keys_load(float *tile, const te_attention_args *a, const te__attn_head &h, int value, int key) {
    const int64_t at = value ? h.v : h.k;
    if constexpr (!F::CACHED) {
        const float *from = (const float *)te__attn_kv<F>(a);
        te__attn_f32_load<C, D, ALIGNED>(tile, from + at + key * h.kv_width, h.kv_width, h.keys - key);
    } else {
        for (int i = (int)threadIdx.x; i < C::T * C::PAD; i += C::THREADS) {
            const int row = i / C::PAD, d = i % C::PAD, ok = key + row < h.keys && d < D;
            const int64_t from = ok ? te__cache_row(&a->cache, h.pages, at, key + row, D, F::CACHE_FORMAT) : 0;
            float v = 0;
            if (ok && !TE__CACHE_HAS_SCALES(F::CACHE_FORMAT)) v = ((const float *)a->cache.pages)[from + d];
            if (ok && TE__CACHE_HAS_SCALES(F::CACHE_FORMAT)) {
                const uint8_t n = ((const uint8_t *)a->cache.pages)[from + d];
                v = F::CACHE_FORMAT == TE_CACHE_FORMAT_int8 ? (float)(int8_t)n : te_float_of_e4m3(n);
                v *= *te__cache_scale(&a->cache, from, key + row, D);
            }
            tile[row * C::LD + d] = v;
        }
    }
}

/* The forward kernel. Grid: (batch * heads, tiles of queries). Shared memory has three tiles, in this order: Q; K, and
 * later V in its place; P. */
template <int HEADS, int KV_HEADS, int D, class F> TE_FN void te__attention_forward_f32(const te_attention_args *a) {
    constexpr int V = te__attn_value_dim<D, F>(), ALIGNED = D % 4 == 0 && V % 4 == 0;
    typedef te__attn_f32_forward_shape<D, V> C;
    typedef typename C::value CV;
    const int y = (int)threadIdx.x / 16, x = (int)threadIdx.x % 16;
    const te__attn_head h =
        te__attn_head_of<HEADS, KV_HEADS, D, F>(a, (int)blockIdx.x / HEADS, (int)blockIdx.x % HEADS);
    const int seq = h.seq;
    const te__attn_mask m = te__attn_mask_at<F>(h);
    const int q0 = (int)(te__attn_keys_grow(m) ? gridDim.y - 1 - blockIdx.y : blockIdx.y) * C::T;
    if (F::VARLEN && q0 >= seq) return;
    const te__attn_range keys = te__attn_keys_of(m, q0, C::T);
    float *q = (float *)te__attention_shared, *kv = q + C::T * C::LD, *p = kv + C::T * C::KV_LD;
    const float *qkv = (const float *)a->qkv;
    const float c = te__attn_score_unit<F>(a->scale) * TE__ATTN_LOG2E;
    float o[C::R][CV::COLS][4], row_max[C::R], sum[C::R];
    /* the largest of this thread's scores in each row, without the attention sink, which row_max includes */
    float max_logit[C::R];
    te__attn_f32_clear<CV>(o);
    const float sink = te__attn_sink<TE_f32, F>(a, h.head);
    TE_UNROLL for (int i = 0; i < C::R; i++) {
        row_max[i] = sink, sum[i] = F::SINKS && x == 0 ? 1.0f : 0.0f, max_logit[i] = -INFINITY;
    }
    te__attn_f32_load<C, D, ALIGNED>(q, qkv + h.q + q0 * h.width, h.width, seq - q0);
    for (int k0 = keys.first / C::T * C::T; k0 < keys.end; k0 += C::T) {
        float s[C::R][C::R];
        __syncthreads();
        te__attn_f32_keys_load<F, C, D, ALIGNED>(kv, a, h, 0, k0);
        __syncthreads();
        te__attn_f32_product_nt<C>(s, q, kv);
        const te__attn_alibi_bias alibi =
            te__attn_alibi_at<HEADS, F>(a->whole, h.head, a->scale, q0 + y + m.shift - k0 - x);
        const te__attn_score_bias bias = te__attn_score_bias_at<TE_f32, F>(a, h.head, q0 + y, k0 + x, m.shift);
        TE_UNROLL for (int i = 0; i < C::R; i++) {
            float v = row_max[i], add = 0;
            TE_UNROLL for (int j = 0; j < C::R; j++) {
                const int row = q0 + y + 16 * i, key = k0 + x + 16 * j;
                s[i][j] = te__attn_with_alibi<F>(te__attn_softcapped<F>(s[i][j], a->scale), alibi, 16 * (i - j));
                s[i][j] = te__attn_with_score_bias<TE_f32, F>(s[i][j], bias, 16 * i, 16 * j);
                if (!te__attn_sees(m, row, key)) s[i][j] = -INFINITY;
                if (F::MAX_LOGIT) max_logit[i] = fmaxf(max_logit[i], s[i][j]);
                v = fmaxf(v, s[i][j]);
            }
            v = te__attn_f32_row_max(v);
            const float offset = te__attn_softmax_offset<F>(v), rescale = exp2f((row_max[i] - offset) * c);
            row_max[i] = v;
            TE_UNROLL for (int j = 0; j < C::R; j++) s[i][j] = exp2f((s[i][j] - offset) * c), add += s[i][j];
            if (F::DROP && a->rng)
                TE_UNROLL for (int j = 0; j < C::R; j++)
                    if (te__attn_drops_pair<HEADS, F>(a, h, q0 + y + 16 * i, k0 + x + 16 * j)) s[i][j] = 0;
            sum[i] = sum[i] * rescale + add;
            TE_UNROLL for (int j = 0; j < CV::COLS; j++) TE_UNROLL for (int n = 0; n < 4; n++) o[i][j][n] *= rescale;
        }
        te__attn_f32_put<C>(p, s);
        __syncthreads();
        if constexpr (F::VALUES_IN_KEYS) {
            te__attn_f32_product_nn<CV, C::LD>(o, p, kv);
            continue;
        }
        te__attn_f32_keys_load<F, CV, V, ALIGNED>(kv, a, h, 1, k0);
        __syncthreads();
        te__attn_f32_product_nn<CV>(o, p, kv);
    }
    TE_UNROLL for (int i = 0; i < C::R; i++) {
        const int row = q0 + y + 16 * i;
        sum[i] = te__attn_f32_row_sum(sum[i]);
        const int empty = te__attn_sees_no_key<F>(sum[i]);
        if (a->lse && x == 0 && row < seq)
            a->lse[h.row + row] = empty ? INFINITY : row_max[i] * te__attn_score_unit<F>(a->scale) + logf(sum[i]);
        if (F::MAX_LOGIT) {
            max_logit[i] = te__attn_f32_row_max(max_logit[i]);
            if (a->row_max_logit && x == 0 && row < seq)
                a->row_max_logit[h.row + row] = max_logit[i] * te__attn_score_unit<F>(a->scale);
        }
        sum[i] = (F::DROP && a->rng ? F::FACTOR : 1.0f) / sum[i];
        if (empty) sum[i] = 0; /* a query that sees no key has the output 0 */
    }
    te__attn_f32_store<CV, V>((float *)a->out + h.out + q0 * h.out_width, h.out_width, seq - q0, o, sum);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The tiles in shared memory of the dq kernel and of the kernel for the gradient of a score bias: Q, dO, K and V, then
 * another tile, `next`. With RELOADS, V uses the memory of K. */
struct te__attn_f32_tiles { float *q, *dout, *k, *v, *next; };
template <class C> TE_FN te__attn_f32_tiles te__attn_f32_tiles_of(void) {
    typedef typename C::value CV;
    te__attn_f32_tiles t;
    t.q = (float *)te__attention_shared, t.dout = t.q + C::T * C::LD, t.k = t.dout + C::T * CV::LD;
    t.v = C::RELOADS ? t.k : t.k + C::T * C::LD, t.next = C::RELOADS ? t.k + C::MAX_TILE : t.v + C::T * CV::LD;
    return t;
}
/* Loads tiles of K and V from key k0 on to shared memory, and computes s = Q K^T and dp = dO V^T, for the tiles of Q
 * and dO in shared memory. kv: the tensor of the keys and values. */
template <class C, int D, int V, int ALIGNED>
TE_FN void te__attn_f32_s_and_dp(float (&s)[C::R][C::R], float (&dp)[C::R][C::R], const te__attn_f32_tiles &t,
                                 const float *kv, const te__attn_head &h, int k0) {
    typedef typename C::value CV;
    te__attn_f32_load<C, D, ALIGNED>(t.k, kv + h.k + k0 * h.kv_width, h.kv_width, h.keys - k0);
    if (!C::RELOADS) te__attn_f32_load<CV, V, ALIGNED>(t.v, kv + h.v + k0 * h.kv_width, h.kv_width, h.keys - k0);
    __syncthreads();
    te__attn_f32_product_nt<C>(s, t.q, t.k);
    if (C::RELOADS) {
        __syncthreads();
        te__attn_f32_load<CV, V, ALIGNED>(t.v, kv + h.v + k0 * h.kv_width, h.kv_width, h.keys - k0);
        __syncthreads();
    }
    te__attn_f32_product_nt<CV>(dp, t.dout, t.v);
}

/* The dq kernel of backward: delta = rowsum(dO * O), dQ = scale * dS K. Grid: (batch * heads, tiles of queries). Shared
 * memory holds the tiles of te__attn_f32_tiles, of which `next` is dS. */
template <int HEADS, int KV_HEADS, int D, class F> TE_FN void te__attention_dq_f32(const te_attention_args *a) {
    constexpr int V = te__attn_value_dim<D, F>(), ALIGNED = D % 4 == 0 && V % 4 == 0;
    typedef te__attn_f32_dq_shape<D, V> C;
    typedef typename C::value CV;
    const int y = (int)threadIdx.x / 16, x = (int)threadIdx.x % 16;
    const te__attn_head h =
        te__attn_head_of<HEADS, KV_HEADS, D, F>(a, (int)blockIdx.x / HEADS, (int)blockIdx.x % HEADS);
    const int seq = h.seq;
    const te__attn_mask m = te__attn_mask_at<F>(h);
    const int q0 = (int)(te__attn_keys_grow(m) ? gridDim.y - 1 - blockIdx.y : blockIdx.y) * C::T;
    if (F::VARLEN && q0 >= seq) return;
    const te__attn_range keys = te__attn_keys_of(m, q0, C::T);
    const te__attn_f32_tiles tile = te__attn_f32_tiles_of<C>();
    const float *qkv = (const float *)a->qkv, *kv = (const float *)te__attn_kv<F>(a);
    const float *out = (const float *)a->out + h.out;
    const float c = te__attn_score_unit<F>(a->scale) * TE__ATTN_LOG2E;
    float dq[C::R][C::COLS][4], lse[C::R], delta[C::R], factor[C::R];
    te__attn_f32_clear<C>(dq);
    te__attn_f32_load<C, D, ALIGNED>(tile.q, qkv + h.q + q0 * h.width, h.width, seq - q0);
    te__attn_f32_load<CV, V, ALIGNED>(tile.dout, (const float *)a->dout + h.out + q0 * h.out_width, h.out_width,
                                      seq - q0);
    __syncthreads();
    TE_UNROLL for (int i = 0; i < C::R; i++) {
        const int row = q0 + y + 16 * i;
        float sum = 0;
        if (row < seq)
            for (int d = x; d < V; d += 16) sum += tile.dout[(y + 16 * i) * CV::LD + d] * out[row * h.out_width + d];
        delta[i] = te__attn_f32_row_sum(sum), lse[i] = row < seq ? a->lse[h.row + row] * TE__ATTN_LOG2E : INFINITY;
        if (x == 0 && row < seq) a->delta[h.row + row] = delta[i];
        factor[i] = a->scale;
    }
    for (int k0 = keys.first / C::T * C::T; k0 < keys.end; k0 += C::T) {
        float s[C::R][C::R], dp[C::R][C::R];
        __syncthreads();
        te__attn_f32_s_and_dp<C, D, V, ALIGNED>(s, dp, tile, kv, h, k0);
        const te__attn_alibi_bias alibi =
            te__attn_alibi_at<HEADS, F>(a->whole, h.head, a->scale, q0 + y + m.shift - k0 - x);
        const te__attn_score_bias bias = te__attn_score_bias_at<TE_f32, F>(a, h.head, q0 + y, k0 + x, m.shift);
        TE_UNROLL for (int i = 0; i < C::R; i++)
            TE_UNROLL for (int j = 0; j < C::R; j++) {
                const int row = q0 + y + 16 * i, key = k0 + x + 16 * j;
                s[i][j] = te__attn_softcapped<F>(s[i][j], a->scale);
                const float with_alibi = te__attn_with_alibi<F>(s[i][j], alibi, 16 * (i - j));
                const float score = te__attn_with_score_bias<TE_f32, F>(with_alibi, bias, 16 * i, 16 * j);
                const float p = te__attn_sees(m, row, key) ? exp2f(score * c - lse[i]) : 0;
                if (F::DROP) dp[i][j] = te__attn_drops_pair<HEADS, F>(a, h, row, key) ? 0 : dp[i][j] * F::FACTOR;
                s[i][j] = p * te__attn_softcap_grad<F>(s[i][j]) * (dp[i][j] - delta[i]);
            }
        te__attn_f32_put<C>(tile.next, s);
        if (C::RELOADS) {
            __syncthreads();
            te__attn_f32_load<C, D, ALIGNED>(tile.k, kv + h.k + k0 * h.kv_width, h.kv_width, h.keys - k0);
        }
        __syncthreads();
        te__attn_f32_product_nn<C>(dq, tile.next, tile.k);
    }
    te__attn_f32_store<C, D>((float *)a->dqkv + h.q + q0 * h.width, h.width, seq - q0, dq, factor);
}

/* The dkdv kernel of backward: dV = P^T dO, dK = scale * dS^T Q. Grid: (batch * kv_heads, tiles of keys). Shared memory
 * holds Q, dO, K, V and P; dS later overwrites P. With RELOADS, dO uses the memory of Q. */
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
    const te__attn_range queries = te__attn_queries_of(m, k0, C::T);
    float *q = (float *)te__attention_shared, *dout = C::RELOADS ? q : q + C::T * C::LD;
    float *k = C::RELOADS ? q + C::MAX_TILE : dout + C::T * CV::LD, *v = k + C::T * C::LD, *p = v + C::T * CV::LD;
    const float *qkv = (const float *)a->qkv, *kv = (const float *)te__attn_kv<F>(a);
    const float c = te__attn_score_unit<F>(a->scale) * TE__ATTN_LOG2E;
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
            const float *const rows = (const float *)a->dout + h.out + q0 * h.out_width;
            te__attn_f32_load<C, D, ALIGNED>(q, qkv + h.q + q0 * h.width, h.width, seq - q0);
            if (!C::RELOADS) te__attn_f32_load<CV, V, ALIGNED>(dout, rows, h.out_width, seq - q0);
            __syncthreads();
            te__attn_f32_product_nt<C>(s, k, q);
            if (C::RELOADS) {
                __syncthreads();
                te__attn_f32_load<CV, V, ALIGNED>(dout, rows, h.out_width, seq - q0);
                __syncthreads();
            }
            te__attn_f32_product_nt<CV>(dp, v, dout);
            const te__attn_alibi_bias alibi =
                te__attn_alibi_at<HEADS, F>(a->whole, head, a->scale, q0 + x + m.shift - k0 - y);
            const te__attn_score_bias bias = te__attn_score_bias_at<TE_f32, F>(a, head, q0 + x, k0 + y, m.shift);
            TE_UNROLL for (int j = 0; j < C::R; j++) {
                const int row = q0 + x + 16 * j, ok = row < seq;
                const float lse = ok ? a->lse[h.row + row] * TE__ATTN_LOG2E : 0, delta = ok ? a->delta[h.row + row] : 0;
                TE_UNROLL for (int i = 0; i < C::R; i++) {
                    const int key = k0 + y + 16 * i;
                    const float t = te__attn_softcapped<F>(s[i][j], a->scale);
                    const float with_alibi = te__attn_with_alibi<F>(t, alibi, 16 * (j - i));
                    const float score = te__attn_with_score_bias<TE_f32, F>(with_alibi, bias, 16 * j, 16 * i);
                    s[i][j] = ok && te__attn_seen(m, key, row) ? exp2f(score * c - lse) : 0;
                    const int drops = F::DROP && te__attn_drops_pair<HEADS, F>(a, h, row, key);
                    if (F::DROP) dp[i][j] = drops ? 0 : dp[i][j] * F::FACTOR;
                    dp[i][j] = s[i][j] * te__attn_softcap_grad<F>(t) * (dp[i][j] - delta);
                    if (drops) s[i][j] = 0;
                }
            }
            te__attn_f32_put<C>(p, s);
            __syncthreads();
            te__attn_f32_product_nn<CV>(dv, p, dout);
            __syncthreads();
            te__attn_f32_put<C>(p, dp);
            if (C::RELOADS) te__attn_f32_load<C, D, ALIGNED>(q, qkv + h.q + q0 * h.width, h.width, seq - q0);
            __syncthreads();
            te__attn_f32_product_nn<C>(dk, p, q);
        }
    }
    float *to = (float *)te__attn_dkv<F>(a);
    te__attn_f32_store<C, D>(to + h0.k + k0 * h0.kv_width, h0.kv_width, h0.keys - k0, dk, scale);
    te__attn_f32_store<CV, V>(to + h0.v + k0 * h0.kv_width, h0.kv_width, h0.keys - k0, dv, one);
}

/* ---- the gradient of a score bias: a tile's sums of dS (see attention_cuda.h) ------------------------------------ */

template <int HEADS, int KV_HEADS, int D, class F> struct te__attn_dbias_f32 {
    static constexpr int V = te__attn_value_dim<D, F>(), ALIGNED = D % 4 == 0 && V % 4 == 0;
    /* The tiles have the same shape on all devices, because the host must know the number of partial sums, which
     * depends on the shape, without asking the device. */
    typedef te__attn_f32_dq_shape<D, V, TE__ATTN_SHARED_SMALL - te__attn_bucket_bytes<F>(64, 64)> C;
    typedef typename C::value CV;
    static constexpr int ROWS = C::T, TILE = C::T, THREADS = C::THREADS, BLOCKS = C::BLOCKS, TILES_BYTES = C::BYTES;
    float sum[C::R][C::R];

    __device__ __forceinline__ void clear() { memset(sum, 0, sizeof sum); }
    /* Adds the dS of one tile of one head (the queries from q0 on, the keys from k0 on) to `sum`, for all sequences in
     * order. */
    __device__ __forceinline__ void add(const te_attention_args *a, int head, int q0, int k0) {
        for (int batch = 0; batch < a->batch; batch++) add(a, batch, head, q0, k0);
    }
    __device__ __forceinline__ void add(const te_attention_args *a, int batch, int head, int q0, int k0) {
        const int y = (int)threadIdx.x / 16, x = (int)threadIdx.x % 16;
        const te__attn_head h = te__attn_head_of<HEADS, KV_HEADS, D, F>(a, batch, head);
        const te__attn_mask m = te__attn_mask_at<F>(h);
        if (!te__attn_tile_seen<F>(m, q0, C::T, k0, C::T)) return;
        const te__attn_f32_tiles tile = te__attn_f32_tiles_of<C>();
        float s[C::R][C::R], dp[C::R][C::R];
        const float *qkv = (const float *)a->qkv, *kv = (const float *)te__attn_kv<F>(a);
        const float c = te__attn_score_unit<F>(a->scale) * TE__ATTN_LOG2E;
        /* after this barrier, all threads have read the tiles of the previous sequence, so the memory of these tiles
         * may be overwritten */
        __syncthreads();
        te__attn_f32_load<C, D, ALIGNED>(tile.q, qkv + h.q + q0 * h.width, h.width, h.seq - q0);
        te__attn_f32_load<CV, V, ALIGNED>(tile.dout, (const float *)a->dout + h.out + q0 * h.out_width, h.out_width,
                                          h.seq - q0);
        te__attn_f32_s_and_dp<C, D, V, ALIGNED>(s, dp, tile, kv, h, k0);
        const te__attn_alibi_bias alibi =
            te__attn_alibi_at<HEADS, F>(a->whole, head, a->scale, q0 + y + m.shift - k0 - x);
        const te__attn_score_bias bias = te__attn_score_bias_at<TE_f32, F>(a, head, q0 + y, k0 + x, m.shift);
        TE_UNROLL for (int i = 0; i < C::R; i++) {
            const int row = q0 + y + 16 * i, ok = row < h.seq;
            const float lse = ok ? a->lse[h.row + row] * TE__ATTN_LOG2E : 0, delta = ok ? a->delta[h.row + row] : 0;
            TE_UNROLL for (int j = 0; j < C::R; j++) {
                const int key = k0 + x + 16 * j;
                const float capped = te__attn_softcapped<F>(s[i][j], a->scale);
                const float with_alibi = te__attn_with_alibi<F>(capped, alibi, 16 * (i - j));
                const float score = te__attn_with_score_bias<TE_f32, F>(with_alibi, bias, 16 * i, 16 * j);
                const float p = ok && te__attn_sees(m, row, key) ? exp2f(score * c - lse) : 0;
                if (F::DROP) dp[i][j] = te__attn_drops_pair<HEADS, F>(a, h, row, key) ? 0 : dp[i][j] * F::FACTOR;
                sum[i][j] += p * (dp[i][j] - delta);
            }
        }
    }
    /* Calls f(row, column, sum) for each element of the tile of sums that this thread holds. */
    template <class G> __device__ __forceinline__ void each(G f) const {
        const int y = (int)threadIdx.x / 16, x = (int)threadIdx.x % 16;
        TE_UNROLL for (int i = 0; i < C::R; i++)
            TE_UNROLL for (int j = 0; j < C::R; j++) f(y + 16 * i, x + 16 * j, sum[i][j]);
    }
};

#endif
