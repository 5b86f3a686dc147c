/* attention_mma.h -- what the tensor-core attention kernels share: fragments, tiles in shared memory, two products.
 * sm_80 and up: mma.sync m16n8k16, ldmatrix, cp.async. Fragment layouts: PTX ISA, "Matrix fragments for mma.m16n8k16".
 *
 * Do this, in each warp, for M * 16 rows of A [., D] against N * 8 rows of B [., D], both tiles in shared memory:
 *     te__attn_product_nt<T, M, N, D, 0>(s, none, a, b);   // s[M][N][4] += A B^T
 *     te__attn_pack_all<T, M, N>(p, s);
 *     te__attn_product_nn<T, M, N / 2, D>(o, p, v);        // o[M][D / 8][4] += P V for V [N * 8, D]
 *
 * A tile's row is padded by 16 bytes. D is a multiple of 16, so a row is an odd number of 16-byte units and the 8 rows
 * that an ldmatrix reads lie in different banks; unlike a swizzle, every address is one register plus a constant.
 *
 * In an accumulator, lane l has rows g = l / 4 (elements 0, 1) and g + 8 (elements 2, 3), columns 2 * (l % 4) and the
 * next.
 */
/* target: cuda */
#ifndef TE_ATTENTION_MMA_H
#define TE_ATTENTION_MMA_H

#include "../core/math.h"     /* te_exp2 */
#include "../core/mma_cuda.h" /* te__mma, te__shared_address */
#include "attention_alibi.h"  /* te__attn_alibi_slope */
#include "attention_args.h"   /* te_attention_args, TE_BIAS_heads */
#include "attention_gives_cuda.h" /* te__attn_out_at, te__attn_in_e4m3, te__attn_larger, te__attn_amax */
#include "attention_mask.h"   /* te__attn_sees, te__attn_seen */

/* Shared memory that a block may have: 163 KB on sm_80; 99 KB on sm_86 and sm_89, define it so for them. */
#ifndef TE_SHARED_BYTES
#define TE_SHARED_BYTES (163 * 1024)
#endif
enum { TE__ATTN_PAD = 8 }; /* elements */
#define TE__ATTN_LOG2E 1.4426950408889634f
#define TE__ATTN_LN2 0.6931471805599453f

extern __shared__ __align__(128) unsigned char te__attention_shared[];

/* 16 bytes, or 4, from global to shared memory without passing through registers; zeros where ok is 0. */
TE_FN void te__attn_copy16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
TE_FN void te__attn_copy16_or_zero(uint32_t to, const void *from, int ok) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(ok ? 16 : 0) : "memory");
}
TE_FN void te__attn_copy4(uint32_t to, const void *from, int ok) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(ok ? 4 : 0) : "memory");
}
TE_FN void te__attn_copies_done(void) { asm volatile("cp.async.wait_all;" ::: "memory"); }

TE_FN void te__attn_ldmatrix(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
TE_FN void te__attn_ldmatrix_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
/* Where lane's row begins in ldmatrix.x4, from the first element of a 16x16 square: for A, and for B in product_nn ...
 * */
template <int D> TE_FN uint32_t te__attn_lane_a(int lane) {
    return (uint32_t)(((lane & 15) * (D + TE__ATTN_PAD) + (lane >> 4) * 8) * 2);
}
/* ... and for B in product_nt. */
template <int D> TE_FN uint32_t te__attn_lane_b(int lane) {
    return (uint32_t)((((lane & 7) + (lane >> 4) * 8) * (D + TE__ATTN_PAD) + ((lane >> 3) & 1) * 8) * 2);
}
template <int D> constexpr int te__attn_tile_bytes(int rows) { return rows * (D + TE__ATTN_PAD) * 2; }

/* Start copying ROWS rows of D elements, WIDTH elements apart, to a tile; rows from `valid` on become zeros. */
template <int ROWS, int D, int64_t WIDTH, int THREADS>
TE_FN void te__attn_tile_load(uint32_t tile, const uint16_t *from, int valid) {
    constexpr int CHUNKS = D / 8, STEP = THREADS / CHUNKS; /* 16 bytes each; rows at a time */
    constexpr uint32_t MOVE = STEP * (D + TE__ATTN_PAD) * 2;
    const int row = (int)threadIdx.x / CHUNKS, chunk = (int)threadIdx.x % CHUNKS;
    const uint32_t to = tile + (uint32_t)((row * (D + TE__ATTN_PAD) + chunk * 8) * 2);
    const uint16_t *p = from + row * WIDTH + chunk * 8;
    if (STEP * CHUNKS < THREADS && row >= STEP) return;
    if (valid >= ROWS) { /* the rule: every address is a register plus a constant */
        TE_UNROLL for (int i = 0; i < (ROWS + STEP - 1) / STEP; i++)
            if (ROWS % STEP == 0 || row + i * STEP < ROWS) te__attn_copy16(to + i * MOVE, p + i * STEP * WIDTH);
    } else {
        TE_UNROLL for (int i = 0; i < (ROWS + STEP - 1) / STEP; i++)
            if (ROWS % STEP == 0 || row + i * STEP < ROWS) {
                const int ok = row + i * STEP < valid;
                te__attn_copy16_or_zero(to + i * MOVE, ok ? p + i * STEP * WIDTH : from, ok);
            }
    }
}

/* The A fragments of M * 16 rows, for a tile that is used again and again. */
template <int M, int D> TE_FN void te__attn_hold(uint32_t (&f)[M][D / 16][4], uint32_t a) {
    TE_UNROLL for (int m = 0; m < M; m++)
        TE_UNROLL for (int k = 0; k < D / 16; k++)
            te__attn_ldmatrix(f[m][k], a + (uint32_t)((m * 16 * (D + TE__ATTN_PAD) + k * 16) * 2));
}

/* s += A B^T over D columns. a and b: addresses of this lane. HELD: the fragments of A are in registers, a is not used.
 * */
template <te_dtype T, int M, int N, int D, int HELD>
TE_FN void te__attn_product_nt(float (&s)[M][N][4], const uint32_t (&held)[M][HELD ? D / 16 : 1][4], uint32_t a,
                               uint32_t b) {
    TE_UNROLL for (int k = 0; k < D / 16; k++) {
        uint32_t fa[M][4], fb[4];
        TE_UNROLL for (int m = 0; m < M; m++) {
            if (HELD) memcpy(fa[m], held[m][HELD ? k : 0], 16);
            else te__attn_ldmatrix(fa[m], a + (uint32_t)((m * 16 * (D + TE__ATTN_PAD) + k * 16) * 2));
        }
        TE_UNROLL for (int n = 0; n < N; n += 2) {
            te__attn_ldmatrix(fb, b + (uint32_t)((n * 8 * (D + TE__ATTN_PAD) + k * 16) * 2));
            TE_UNROLL for (int m = 0; m < M; m++) {
                te__mma(s[m][n], fa[m], fb[0], fb[1], T);
                te__mma(s[m][n + 1], fa[m], fb[2], fb[3], T);
            }
        }
    }
}

/* o += P B for P of M * 16 rows and K * 16 columns, in fragments, and B of K * 16 rows of D. */
template <te_dtype T, int M, int K, int D>
TE_FN void te__attn_product_nn(float (&o)[M][D / 8][4], const uint32_t (&p)[M][K][4], uint32_t b) {
    TE_UNROLL for (int k = 0; k < K; k++)
        TE_UNROLL for (int n = 0; n < D / 8; n += 2) {
            uint32_t fb[4];
            te__attn_ldmatrix_transposed(fb, b + (uint32_t)((k * 16 * (D + TE__ATTN_PAD) + n * 8) * 2));
            TE_UNROLL for (int m = 0; m < M; m++) {
                te__mma(o[m][n], p[m][k], fb[0], fb[1], T);
                te__mma(o[m][n + 1], p[m][k], fb[2], fb[3], T);
            }
        }
}
/* Every accumulator of row g + 8 h of square m begins as start[m][h]. */
template <int M, int N> TE_FN void te__attn_start(float (&s)[M][N][4], const float (&start)[M][2]) {
    TE_UNROLL for (int m = 0; m < M; m++)
        TE_UNROLL for (int n = 0; n < N; n++)
            TE_UNROLL for (int e = 0; e < 4; e++) s[m][n][e] = start[m][e / 2];
}

/* Accumulators as the A fragments of the next product: the two layouts agree (FlashAttention-2, section 3.3). */
template <te_dtype T, int M, int N>
TE_FN void te__attn_pack_all(uint32_t (&p)[M][N / 2][4], const float (&s)[M][N][4]) {
    TE_UNROLL for (int m = 0; m < M; m++)
        TE_UNROLL for (int k = 0; k < N / 2; k++) {
            p[m][k][0] = te_pair_of_floats(s[m][2 * k][0], s[m][2 * k][1], T);
            p[m][k][1] = te_pair_of_floats(s[m][2 * k][2], s[m][2 * k][3], T);
            p[m][k][2] = te_pair_of_floats(s[m][2 * k + 1][0], s[m][2 * k + 1][1], T);
            p[m][k][3] = te_pair_of_floats(s[m][2 * k + 1][2], s[m][2 * k + 1][3], T);
        }
}

/* What a score of a kernel counts. */
template <class F> TE_FN float te__attn_unit(float scale) { return F::SOFTCAP > 0 ? F::SOFTCAP : scale; }
/* tanh(scale / softcap s), off by 2e-7, which softcap times is what scores may be off. The hardware's tanh is off by
 * 2^-11 of its value: at a softcap of 50 that is 1% of a probability, three times what bf16 rounds off. */
template <class F> TE_FN float te__attn_capped(float s, float scale) {
    if constexpr (!(F::SOFTCAP > 0)) return s;
    else return 1.0f - 2.0f * te_reciprocal(1.0f + te_exp2(s * (scale * (2 * TE__ATTN_LOG2E / F::SOFTCAP))));
}
/* The derivative of a tanh, 0 where the score is hidden. */
template <class F> TE_FN float te__attn_slope(float t) { return F::SOFTCAP > 0 ? fmaxf(1.0f - t * t, 0.0f) : 1.0f; }
template <class F, int M, int N> TE_FN void te__attn_cap(float (&s)[M][N][4], float scale) {
    if constexpr (F::SOFTCAP > 0)
        TE_UNROLL for (int m = 0; m < M; m++)
            TE_UNROLL for (int n = 0; n < N; n++)
                TE_UNROLL for (int e = 0; e < 4; e++) s[m][n][e] = te__attn_capped<F>(s[m][n][e], scale);
}

/* ALiBi, in the units of scores: of the pairs of a tile, the bias of one whose key lies `distance` tokens in front of
 * its query; te__attn_biased counts from there. */
struct te__attn_bias { float slope, at; };
template <int HEADS, class F> TE_FN te__attn_bias te__attn_bias_at(int head, float scale, int distance) {
    te__attn_bias b = {0, 0};
    if constexpr (F::ALIBI) {
        b.slope = te__attn_alibi_slope(head, HEADS) / te__attn_unit<F>(scale);
        b.at = b.slope * (float)distance;
    }
    return b;
}
/* further: so many tokens more lie between them, a constant. */
template <class F> TE_FN float te__attn_biased(float s, te__attn_bias b, int further) {
    return F::ALIBI ? s - fabsf(fmaf(b.slope, (float)further, b.at)) : s;
}
/* The same for all of s[M][N][4], queries by keys. */
template <class F, int M, int N> TE_FN void te__attn_add_bias(float (&s)[M][N][4], te__attn_bias b) {
    if constexpr (F::ALIBI)
        TE_UNROLL for (int m = 0; m < M; m++)
            TE_UNROLL for (int n = 0; n < N; n++)
                TE_UNROLL for (int e = 0; e < 4; e++)
                    s[m][n][e] = te__attn_biased<F>(s[m][n][e], b, m * 16 + e / 2 * 8 - n * 8 - e % 2);
}

/* For te__attn_draw: head: counted over the call's sequences. */
template <int HEADS> TE_FN uint32_t te__attn_drawn(const te_attention_args *a, int head, int query) {
    return te__attn_draw_row(te__attn_head_of_all(a->whole, head, HEADS), query, a->seq);
}
/* f(number of s, whether it is dropped), for all of s[M][N][4], which are queries by keys. row: that of query. */
template <class F, int M, int N, class G>
TE_FN void te__attn_drop(const te_attention_args *a, uint32_t row, int query, int key, G f) {
    const te_rng rng = *a->rng;
    TE_UNROLL for (int m = 0; m < M; m++) {
        uint32_t word[2][4];
        TE_UNROLL for (int n = 0; n < N; n++) {
            if (n % 4 == 0)
                TE_UNROLL for (int i = 0; i < 2; i++)
                    te__attn_draw(word[i], rng, a->id, row + m, query, key + n * 8 + i);
            const int w = N < 4 ? key / 8 % 4 + n : n % 4; /* tiles of 16 keys begin in the midst of a counter */
            TE_UNROLL for (int e = 0; e < 4; e++) {
                const uint32_t *u = word[e % 2];
                f(m, n, e, te__attn_drops(w == 0 ? u[0] : w == 1 ? u[1] : w == 2 ? u[2] : u[3], e / 2, F::DROP));
            }
        }
    }
}

/* The sink of a head, in the units of scores, is a row's largest score before it has seen a key, and its sum then is 1.
 * Without sinks there is none: -inf and 0. */
template <te_dtype T, class F> TE_FN float te__attn_sink(const te_attention_args *a, int head) {
    return F::SINKS ? te_load(a->sinks, head, T) / te__attn_unit<F>(a->scale) : -INFINITY;
}

/* Scores of keys that a query does not see become -inf. query, key: of s[0][0][0]. */
template <int M, int N> TE_FN void te__attn_hide(float (&s)[M][N][4], te__attn_mask mask, int query, int key) {
    TE_UNROLL for (int m = 0; m < M; m++)
        TE_UNROLL for (int n = 0; n < N; n++)
            TE_UNROLL for (int e = 0; e < 4; e++) {
                const int q = query + m * 16 + e / 2 * 8, k = key + n * 8 + e % 2;
                if (!te__attn_sees(mask, q, k)) s[m][n][e] = -INFINITY;
            }
}
/* The same for scores by keys, and those of queries past the sequence. */
template <int M, int N>
TE_FN void te__attn_hide_transposed(float (&s)[M][N][4], te__attn_mask mask, int key, int query) {
    TE_UNROLL for (int m = 0; m < M; m++)
        TE_UNROLL for (int n = 0; n < N; n++)
            TE_UNROLL for (int e = 0; e < 4; e++) {
                const int k = key + m * 16 + e / 2 * 8, q = query + n * 8 + e % 2;
                if (q >= mask.queries || !te__attn_seen(mask, k, q)) s[m][n][e] = -INFINITY;
            }
}

/* Write this warp's M * 16 rows, times factor[row], through its own rows of shared memory: 16 bytes a store. scale,
 * amax: as te_attention_args has them. */
template <te_dtype T, int M, int D>
TE_FN void te__attn_rows_store(void *to, int64_t width, int valid, const float (&o)[M][D / 8][4],
                               const float (&factor)[M][2], unsigned char *tile, float *sum, const float *scale,
                               float *amax) {
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    __syncwarp();
    TE_UNROLL for (int m = 0; m < M; m++)
        TE_UNROLL for (int n = 0; n < D / 8; n++)
            TE_UNROLL for (int h = 0; h < 2; h++)
                *(uint32_t *)(tile + ((m * 16 + g + h * 8) * (D + TE__ATTN_PAD) + n * 8 + t * 2) * 2) =
                    te_pair_of_floats(o[m][n][2 * h] * factor[m][h], o[m][n][2 * h + 1] * factor[m][h], T);
    __syncwarp();
    for (int col = 2 * lane; sum && valid > 0 && col < D; col += 64) {
        float2 s = make_float2(0, 0);
        for (int row = 0; row < M * 16 && row < valid; row++) {
            const float2 x = te_floats_of_pair(*(const uint32_t *)(tile + (row * (D + TE__ATTN_PAD) + col) * 2), T);
            s.x += x.x, s.y += x.y;
        }
        *(float2 *)(sum + col) = s;
    }
    uint32_t most = 0;
    for (int c = lane; c < M * 16 * (D / 8); c += 32) {
        const int row = c / (D / 8), chunk = c % (D / 8);
        const uint4 eight = *(const uint4 *)(tile + (row * (D + TE__ATTN_PAD) + chunk * 8) * 2);
        void *const at = te__attn_out_at(to, row * width + chunk * 8, scale);
        if (row < valid && scale) *(uint2 *)at = te__attn_in_e4m3<T>(eight, scale);
        else if (row < valid) *(uint4 *)at = eight;
        if (row < valid) te__attn_larger(&most, eight);
    }
    te__attn_amax<T>(amax, most);
}

#endif
