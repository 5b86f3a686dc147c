/* attention_hopper_fp8_rows.h -- what a warpgroup of attention_hopper_fp8.h does with its 64 rows of scores and of
 * outputs: products of e4m3, softmax, and the step that goes with a tile of keys. As attention_hopper_rows.h.
 *
 * What is kept of a row is a whole number not below the maximum of its first tile of keys, until a lane's sum of P over
 * a tile exceeds 448, where e4m3 ends. P, which is still float, and what has been summed up are then divided by a power
 * of two. Only where float may have ended as well, S of that tile is computed once more. An accumulator becomes an
 * operand without a shuffle: of 32 keys a lane has the columns 2 t, 2 t + 1 of four eights, and the operand has 4 t to
 * 4 t + 3 of two sixteens; V's keys are permuted for that (te__attn_fp8_column).
 */
/* target: cuda */
#ifndef TE_ATTENTION_HOPPER_FP8_ROWS_H
#define TE_ATTENTION_HOPPER_FP8_ROWS_H

#include "attention_fp8.h"            /* te_attention_fp8 */
#include "attention_hopper_forward.h" /* te__attn_place */

/* As te__attn_hopper_shape. PAIRS: of a row of q or k. A tile of V is boxes of [D, 128 keys]. */
template <int D_, int KEYS_, int GROUPS_, int Q_STAGES_, int K_STAGES_, int V_STAGES_, int TURNS_>
struct te__attn_fp8_shape {
    static constexpr int D = D_, V = D, KEYS = KEYS_, GROUPS = GROUPS_, TURNS = TURNS_;
    static constexpr int Q_STAGES = Q_STAGES_, K_STAGES = K_STAGES_, V_STAGES = V_STAGES_;
    static constexpr int ROWS = 64 * GROUPS, THREADS = 128 * (GROUPS + 1), BOXES = (D + 127) / 128;
    static constexpr int PAIRS = D / 2, PACKED = KEYS / 8;
    static constexpr int LOADS = GROUPS == 2 ? 24 : 32, MULTIPLIES = GROUPS == 2 ? 240 : 160;
    static constexpr int Q_PART = BOXES * 64 * 128, Q_BYTES = GROUPS * Q_PART;
    static constexpr int K_BYTES = BOXES * KEYS * 128, V_BYTES = D * KEYS;
    static constexpr int SHARED = Q_STAGES * Q_BYTES + K_STAGES * K_BYTES + V_STAGES * V_BYTES + 1024;
    static_assert(SHARED <= 227 * 1024 - 512, "te: attention: the tiles exceed shared memory");
    static_assert(KEYS % 128 == 0 && ROWS - 64 <= KEYS, "te: attention: a box of V, te__attn_keys_skip expect it");
};
template <int D> struct te__attn_hopper_fp8_shape;
template <> struct te__attn_hopper_fp8_shape<64> : te__attn_fp8_shape<64, 128, 3, 2, 4, 3, 1> {};
template <> struct te__attn_hopper_fp8_shape<128> : te__attn_fp8_shape<128, 128, 2, 2, 4, 3, 0> {};
template <> struct te__attn_hopper_fp8_shape<256> : te__attn_fp8_shape<256, 128, 2, 1, 3, 2, 0> {};

#define TE__ATTN_FP8_LOST 1e30f /* a sum of P from which on float may have ended: exponentials end at 2^128 */

typedef struct te_attn_hopper_fp8 {
    te_attn_hopper common; /* q and kv: those of e4m3; kv has keys alone */
    CUtensorMap v;         /* [batch, kv_heads, d, keys] */
    const float *amax;     /* [heads + 2 kv_heads] */
} te_attn_hopper_fp8;

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- products ---------------------------------------------------------------------------------------------------- */

#define TE__WGMMA_E4M3_SS(n, list, a_, b_, add_, ...)                                                             \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add_ ", 0;\n"                                          \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" list                                \
                 "}, %" #a_ ", %" #b_ ", add, 1, 1;\n}"                                                           \
                 : __VA_ARGS__ : "l"(a), "l"(b), "r"(add))
#define TE__WGMMA_E4M3_RS(n, list, a0, a1, a2, a3, b_, add_, ...)                                                 \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add_ ", 0;\n"                                          \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" list                                \
                 "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_ ", add, 1, 1;\n}"                           \
                 : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

/* D[64, N] (+)= A[64, 32] B[N, 32]^T by a warpgroup, as te__wgmma_of. */
template <int N> struct te__wgmma_e4m3;
#define TE__WGMMA_E4M3(n, list, r0, r1, r2, r3, r4, r5, r6, ...)                                                  \
    template <> struct te__wgmma_e4m3<n> {                                                                        \
        static __device__ __forceinline__ void ss(float (&d)[n / 2], uint64_t a, uint64_t b, int add) {           \
            TE__WGMMA_E4M3_SS(n, list, r0, r1, r2, __VA_ARGS__);                                                  \
        }                                                                                                         \
        static __device__ __forceinline__ void rs(float (&d)[n / 2], const uint32_t *a, uint64_t b, int add) {    \
            TE__WGMMA_E4M3_RS(n, list, r0, r1, r2, r3, r4, r5, __VA_ARGS__);                                      \
        }                                                                                                         \
    };
TE__WGMMA_SIZES(TE__WGMMA_E4M3)

/* S of the tile of keys at hand, and O += P V of the one before. 32 bytes of k are two 16-byte pieces of a row of 128
 * bytes. */
template <class C> TE_FN void te__attn_fp8_scores(te__attn_rows<C> &r, const te__attn_place<C> &a) {
    const uint64_t k = te__attn_tile_at(a.k_tiles + a.k.stage * C::K_BYTES, C::KEYS), q = te__attn_tile_at(a.q, 64);
    TE_UNROLL for (int i = 0; i < C::D / 32; i++)
        te__wgmma_e4m3<C::KEYS>::ss(r.s, q + i / 4 * (64 * 8) + i % 4 * 2, k + i / 4 * (C::KEYS * 8) + i % 4 * 2, i);
    te__wgmma_commit();
}
template <class C> TE_FN void te__attn_fp8_values(te__attn_rows<C> &r, const te__attn_place<C> &a, int add) {
    const uint64_t v = te__attn_tile_at(a.v_tiles + a.v.stage * C::V_BYTES, C::D);
    TE_UNROLL for (int i = 0; i < C::KEYS / 32; i++)
        te__wgmma_e4m3<C::D>::rs(r.o, r.p + 4 * i, v + i / 4 * (C::D * 8) + i % 4 * 2, add || i);
    te__wgmma_commit();
}
/* As te__attn_products. */
template <class C>
TE_FN void te__attn_fp8_products(te__attn_rows<C> &r, const te__attn_place<C> &a, int k_there, int v_there, int add) {
    if (k_there) te__barrier_wait(a.k_full + 8 * a.k.stage, a.k.phase);
    if (C::TURNS) te__attn_turn_wait(a);
    te__wgmma_touch(r.s), te__wgmma_touch(r.o), te__wgmma_touch(r.p);
    te__wgmma_fence();
    te__attn_fp8_scores(r, a);
    if (v_there) te__barrier_wait(a.v_full + 8 * a.v.stage, a.v.phase);
    te__wgmma_fence();
    te__attn_fp8_values(r, a, add);
    if (C::TURNS) te__attn_turn_pass(a);
    te__wgmma_wait_1();
    te__wgmma_touch(r.s);
}
/* c += a b for a 16 x 32 and b 32 x 8 of e4m3, by a warp. */
TE_FN void te__mma_e4m3(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* As te__attn_scores_again. */
template <class C> TE_FN void te__attn_fp8_scores_again(te__attn_rows<C> &r, uint32_t q, uint32_t k) {
    int lane = (int)threadIdx.x % 32;
    asm volatile("" : "+r"(lane));
    const int q_row = (int)threadIdx.x / 32 % 4 * 16 + lane % 16, k_row = lane / 16 * 8 + lane % 8;
    TE_UNROLL for (int i = 0; i < C::KEYS / 2; i++) r.s[i] = 0;
#pragma unroll 1
    for (int d = 0; d < C::PAIRS; d += 16) {
        const int piece = d % 64 / 8, box = d / 64;
        uint32_t x[4], y[4];
        te__attn_ldmatrix(x, te__attn_piece_at(q + box * 8192, q_row, piece + lane / 16));
        TE_UNROLL for (int j = 0; j < C::KEYS / 16; j++) {
            te__attn_ldmatrix(y, te__attn_piece_at(k + box * (C::KEYS * 128), 16 * j + k_row, piece + lane / 8 % 2));
            te__mma_e4m3(r.s + 8 * j, x, y[0], y[1]), te__mma_e4m3(r.s + 8 * j + 4, x, y[2], y[3]);
        }
    }
}

/* ---- softmax ----------------------------------------------------------------------------------------------------- */

/* s becomes P in row e; returns its sum. top: what is kept, in powers of two; c: what a score counts, likewise. */
template <class C> TE_FN float te__attn_fp8_exp(te__attn_rows<C> &r, int e, float top, float c) {
    const float off = top - TE__ATTN_FP8_RAISE;
    float sum[2] = {0, 0};
    TE_UNROLL for (int j = 0; j < C::KEYS / 8; j++)
        TE_UNROLL for (int i = 0; i < 2; i++)
            sum[i] += r.s[4 * j + 2 * e + i] = te_exp2(r.s[4 * j + 2 * e + i] * c - off);
    return sum[0] + sum[1];
}
/* A operands of P V: each word four columns of a row, of two eights. */
template <class C> TE_FN void te__attn_fp8_pack(te__attn_rows<C> &r) {
    TE_UNROLL for (int i = 0; i < C::PACKED; i++) {
        const int at = i / 2 * 8 + i % 2 * 2;
        const float four[4] = {r.s[at], r.s[at + 1], r.s[at + 4], r.s[at + 5]};
        r.p[i] = te__fp8_word(four, 1);
    }
}
/* Whether a row of this warp has outgrown what is kept: `most` is exceeded by a lane's sum, or by what is no number. */
TE_FN int te__attn_fp8_outgrown(const float sum[2], float most) {
    return __any_sync(~0u, !(sum[0] <= most && sum[1] <= most));
}
/* P of rows that have outgrown e4m3 becomes 16 at most; where it is that already, half of it. */
template <class C> TE_FN void te__attn_fp8_lift(te__attn_rows<C> &r, float sum[2]) {
    float shrink[2];
    TE_UNROLL for (int e = 0; e < 2; e++) {
        float most = fmaxf(sum[e], __shfl_xor_sync(~0u, sum[e], 1)); /* of the row's four lanes */
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        const int power = (int)((__float_as_uint(te__attn_top(r, e)) + 0x7fffffu) >> 23) - 127; /* rounded up */
        const int up = most > TE_E4M3_MOST ? te_max(power - TE__ATTN_FP8_RAISE, 1) : 0;
        shrink[e] = __uint_as_float((uint32_t)(127 - up) << 23);
        r.top[e] += (float)up, sum[e] *= shrink[e], r.sum[e] *= shrink[e];
    }
    TE_UNROLL for (int i = 0; i < C::KEYS / 2; i++) r.s[i] *= shrink[i / 2 % 2];
    TE_UNROLL for (int i = 0; i < C::D / 2; i++) r.o[i] *= shrink[i / 2 % 2];
}
/* What is kept of a row that has this maximum: -inf where it has seen no key, as te__attn_kept has it. */
template <class C> TE_FN float te__attn_fp8_top(const te__attn_rows<C> &r, int e, float c) {
    return ceilf(te__attn_top(r, e) * c);
}
/* As te__attn_raise. */
template <class F, class C> TE_FN void te__attn_fp8_raise(te__attn_rows<C> &r, float c, float sum[2]) {
    float shrink[2];
    TE_UNROLL for (int e = 0; e < 2; e++) {
        const float old = r.top[e], top = fmaxf(old, te__attn_fp8_top(r, e, c));
        shrink[e] = top == old ? 1.0f : te_exp2(old - top);
        sum[e] = te__attn_fp8_exp(r, e, te__attn_kept<F>(top), c), r.top[e] = top, r.sum[e] *= shrink[e];
    }
    TE_UNROLL for (int i = 0; i < C::D / 2; i++) r.o[i] *= shrink[i / 2 % 2];
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* As te__attn_step. */
template <class F, class C>
TE_FN void te__attn_fp8_step(te__attn_rows<C> &r, te__attn_place<C> &a, te__attn_mask m, int cut, int query, int key,
                             int add, int last) {
    float sum[2];
    te__attn_fp8_products(r, a, 1, 1, add);
    if (cut) te__attn_hide_outside(r, m, query, key);
    TE_UNROLL for (int e = 0; e < 2; e++) sum[e] = te__attn_fp8_exp(r, e, r.top[e], a.c);
    te__attn_products_wait(r, a, 1);
    if (te__attn_fp8_outgrown(sum, TE_E4M3_MOST)) {
        if (te__attn_fp8_outgrown(sum, TE__ATTN_FP8_LOST)) {
            te__attn_fp8_scores_again(r, a.q, a.k_tiles + a.k.stage * C::K_BYTES);
            if (cut) te__attn_hide_outside(r, m, query, key);
            te__attn_fp8_raise<F>(r, a.c, sum);
        } else te__attn_fp8_lift(r, sum);
    }
    te__attn_fp8_pack(r);
    te__attn_keys_free(a, last);
    r.sum[0] += sum[0], r.sum[1] += sum[1];
}
/* What products of a head's q and k count in powers of two, and its v. */
struct te__attn_fp8_units { float score, value; };
template <int HEADS, int KV_HEADS>
TE_FN te__attn_fp8_units te__attn_fp8_units_of(const te_attn_hopper_fp8 *p, int head) {
    const int q = head % HEADS, k = HEADS + q / (HEADS / KV_HEADS);
    const float score = te__attn_fp8_inverse(p->amax[q]) * te__attn_fp8_inverse(p->amax[k]);
    return {score * p->common.scale * TE__ATTN_LOG2E, te__attn_fp8_inverse(p->amax[k + KV_HEADS])};
}
#endif

#endif
