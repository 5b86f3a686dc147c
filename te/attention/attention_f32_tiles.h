/* attention_f32_tiles.h -- tiles in shared memory, their products and their way out, for attention_f32.h. */
/* target: cuda */
#ifndef TE_ATTENTION_F32_TILES_H
#define TE_ATTENTION_F32_TILES_H

#include "attention_args.h" /* TE_FN, TE_UNROLL */

/* Tiles of T rows of D. PAD: D rounded up to 4. LD: its row in shared memory, an odd number of 16-byte units (no bank
 * conflicts). */
template <int D, int SIZE> struct te__attn_f32_shape {
    static constexpr int T = SIZE, R = T / 16, PAD = (D + 3) / 4 * 4, LD = PAD / 4 % 2 ? PAD : PAD + 4, LP = T + 4;
    static constexpr int COLS = (PAD / 4 + 15) / 16;
    static constexpr int ROWS = T, THREADS = 256, BLOCKS = 1;
};
/* V: the size of a head of v. value: the shape of tiles of it. */
template <int D, int V = D> struct te__attn_f32_forward_shape : te__attn_f32_shape<D, D <= 128 && V <= 128 ? 64 : 32> {
    typedef te__attn_f32_shape<D, D <= 128 && V <= 128 ? 64 : 32> own;
    typedef te__attn_f32_shape<V, own::T> value;
    static constexpr int KV_LD = V > D ? value::LD : own::LD;
    static constexpr int BYTES = own::T * (own::LD + KV_LD + own::LP) * 4; /* Q; K or V; and P */
};
template <int D, int V = D> struct te__attn_f32_dq_shape : te__attn_f32_shape<D, D <= 64 && V <= 64 ? 64 : 32> {
    typedef te__attn_f32_shape<D, D <= 64 && V <= 64 ? 64 : 32> own;
    typedef te__attn_f32_shape<V, own::T> value;
    static constexpr int BYTES = own::T * (2 * own::LD + 2 * value::LD + own::LP) * 4; /* Q, dO, K, V; and dS */
};
template <int D, int V = D> struct te__attn_f32_dkdv_shape : te__attn_f32_dq_shape<D, V> {};

/* T rows of D from `from`, `width` apart; rows from `valid` on and the padding become zeros. ALIGNED: the rows are, for
 * head sizes are multiples of four. */
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
/* s = A B^T */
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
/* o += P B for P [T, T] in shared memory */
template <class C> TE_FN void te__attn_f32_product_nn(float (&o)[C::R][C::COLS][4], const float *p, const float *b) {
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
                const float4 v = *(const float4 *)(b + (k + n) * C::LD + (x + 16 * j) * 4);
                TE_UNROLL for (int i = 0; i < C::R; i++) {
                    o[i][j][0] += w[i][n] * v.x, o[i][j][1] += w[i][n] * v.y;
                    o[i][j][2] += w[i][n] * v.z, o[i][j][3] += w[i][n] * v.w;
                }
            }
        }
    }
}
template <class C> TE_FN void te__attn_f32_put(float *p, const float (&s)[C::R][C::R]) {
    const int y = (int)threadIdx.x / 16, x = (int)threadIdx.x % 16;
    TE_UNROLL for (int i = 0; i < C::R; i++)
        TE_UNROLL for (int j = 0; j < C::R; j++) p[(y + 16 * i) * C::LP + x + 16 * j] = s[i][j];
}
template <class C> TE_FN void te__attn_f32_clear(float (&o)[C::R][C::COLS][4]) {
    TE_UNROLL for (int i = 0; i < C::R; i++)
        TE_UNROLL for (int j = 0; j < C::COLS; j++) o[i][j][0] = o[i][j][1] = o[i][j][2] = o[i][j][3] = 0;
}
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
/* Over the 16 threads of a row. */
TE_FN float te__attn_f32_row_max(float v) {
    TE_UNROLL for (int o = 8; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    return v;
}
TE_FN float te__attn_f32_row_sum(float v) {
    TE_UNROLL for (int o = 8; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    return v;
}

#endif
