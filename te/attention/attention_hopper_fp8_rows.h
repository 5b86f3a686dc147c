/* attention_hopper_fp8_rows.h -- what a warpgroup of attention_hopper_fp8.h does with its 64 rows of scores and of
 * outputs: products of e4m3, softmax, and the step that goes with a tile of keys. As attention_hopper_rows.h.
 *
 * S is summed up in f16, and P is f16 before it is e4m3: two numbers to a register, so that three warpgroups have room,
 * and to an instruction. That is exact enough by far: S has the 11 bits of f16 of numbers that had 4, and the whole
 * number that is taken off it, c, and the sum of both are exact or have 11 bits.
 *
 * What is kept of a row is a whole number not below the maximum of its first tile of keys, until a lane's sum of P over
 * a tile exceeds 448, where e4m3 ends. P, which is still f16, and what has been summed up are then divided by a power
 * of two. Only where f16 may have ended as well, S of that tile is computed once more, and P in float. An accumulator
 * becomes an operand without a shuffle: of 32 keys a lane has the columns 2 t, 2 t + 1 of four eights, and the operand
 * has 4 t to 4 t + 3 of two sixteens; V's keys are permuted for that (te__attn_fp8_byte_of_key).
 */
/* target: cuda */
#ifndef TE_ATTENTION_HOPPER_FP8_ROWS_H
#define TE_ATTENTION_HOPPER_FP8_ROWS_H

#include "impl/attention_fp8.h"            /* te_attention_fp8_operands */
#include "attention_hopper_forward.h" /* te__attn_place */

/* As te__attn_hopper_shape. SHARE: of so many words of P one is computed by arithmetic. PAIRS: of a row of q or k. A
 * tile of V is a box of [D, 128 keys]. */
template <int D_, int KEYS_, int GROUPS_, int Q_STAGES_, int K_STAGES_, int V_STAGES_, int TURNS_, int SHARE_>
struct te__attn_fp8_shape {
    static constexpr int D = D_, V = D, KEYS = KEYS_, GROUPS = GROUPS_, TURNS = TURNS_, SHARE = SHARE_;
    static constexpr int Q_STAGES = Q_STAGES_, K_STAGES = K_STAGES_, V_STAGES = V_STAGES_;
    static constexpr int ROWS = 64 * GROUPS, THREADS = 128 * (GROUPS + 1), BOXES = (D + 127) / 128;
    static constexpr int PAIRS = D / 2, PACKED = KEYS / 8;
    typedef uint32_t scores[KEYS / 4]; /* two of f16 in a word */
    static constexpr int LOADS = GROUPS == 2 ? 24 : 32, MULTIPLIES = GROUPS == 2 ? 240 : 160;
    static constexpr int Q_PART = BOXES * 64 * 128, Q_BYTES = GROUPS * Q_PART;
    static constexpr int K_BYTES = BOXES * KEYS * 128, V_BYTES = D * KEYS;
    static constexpr int SHARED = Q_STAGES * Q_BYTES + K_STAGES * K_BYTES + V_STAGES * V_BYTES + 1024;
    static_assert(SHARED <= 227 * 1024 - 512, "te: attention: the tiles exceed shared memory");
    static_assert(KEYS == 128 && ROWS - 64 <= KEYS, "te: attention: a box of V, te__attn_keys_skip expect it");
};
template <int D> struct te__attn_hopper_fp8_shape;
template <> struct te__attn_hopper_fp8_shape<64> : te__attn_fp8_shape<64, 128, 3, 2, 4, 3, 0, 2> {};
template <> struct te__attn_hopper_fp8_shape<128> : te__attn_fp8_shape<128, 128, 3, 2, 4, 3, 0, 8> {};
template <> struct te__attn_hopper_fp8_shape<256> : te__attn_fp8_shape<256, 128, 2, 1, 3, 2, 0, 4> {};

/* A lane's sum of P from which on one of them may have been more than f16 has, which ends at 65504, or no number. */
#define TE__ATTN_FP8_LOST 32768.0f

typedef struct te_attn_hopper_fp8 {
    te_attn_hopper common; /* q and kv: those of e4m3; kv has keys alone */
    CUtensorMap v;         /* [batch, kv_heads, d, keys] */
    const float *amax;     /* [heads + 2 kv_heads] */
} te_attn_hopper_fp8;

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- products ---------------------------------------------------------------------------------------------------- */

#define TE__WGMMA_E4M3_RS(n, list, a0, a1, a2, a3, b_, add_, ...)                                                 \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add_ ", 0;\n"                                          \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" list                                \
                 "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_ ", add, 1, 1;\n}"                           \
                 : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

/* D[64, N] (+)= A[64, 32] B[N, 32]^T by a warpgroup, as te__wgmma_of, with A in registers. */
template <int N> struct te__wgmma_e4m3;
#define TE__WGMMA_E4M3(n, list, r0, r1, r2, r3, r4, r5, r6, ...)                                                  \
    template <> struct te__wgmma_e4m3<n> {                                                                        \
        static __device__ __forceinline__ void rs(float (&d)[n / 2], const uint32_t *a, uint64_t b, int add) {    \
            TE__WGMMA_E4M3_RS(n, list, r0, r1, r2, r3, r4, r5, __VA_ARGS__);                                      \
        }                                                                                                         \
    };
TE__WGMMA_SIZES(TE__WGMMA_E4M3)

/* The same with A in shared memory, for 128 columns of D, summed up in f16: a word has two columns of a row. */
#define TE__H8(i) TE__H4(i), TE__H4((i) + 4)
#define TE__H4(i) "+r"(d[i]), "+r"(d[(i) + 1]), "+r"(d[(i) + 2]), "+r"(d[(i) + 3])
TE_FN void te__wgmma_e4m3_halves(uint32_t (&d)[32], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f16.e4m3.e4m3 {" TE__L64 "}, %32, %33, add, 1, 1;\n}"
                 : TE__H8(0), TE__H8(8), TE__H8(16), TE__H8(24)
                 : "l"(a), "l"(b), "r"(add));
}

/* S of the tile of keys at hand, and O += P V of the one before. 32 bytes of k are two 16-byte pieces of a row of 128
 * bytes. */
template <class C> TE_FN void te__attn_fp8_scores(te__attn_rows<C> &r, const te__attn_place<C> &a) {
    const uint64_t k = te__attn_tile_at(a.k_tiles + a.k.stage * C::K_BYTES, C::KEYS), q = te__attn_tile_at(a.q, 64);
    TE_UNROLL for (int i = 0; i < C::D / 32; i++)
        te__wgmma_e4m3_halves(r.s, q + i / 4 * (64 * 8) + i % 4 * 2, k + i / 4 * (C::KEYS * 8) + i % 4 * 2, i);
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
    TE_UNROLL for (int j = 0; j < C::KEYS / 16; j++) {
        float s[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll 1
        for (int d = 0; d < C::PAIRS; d += 16) {
            const int piece = d % 64 / 8, box = d / 64;
            uint32_t x[4], y[4];
            te__attn_ldmatrix(x, te__attn_piece_at(q + box * 8192, q_row, piece + lane / 16));
            te__attn_ldmatrix(y, te__attn_piece_at(k + box * (C::KEYS * 128), 16 * j + k_row, piece + lane / 8 % 2));
            te__mma_e4m3(s, x, y[0], y[1]), te__mma_e4m3(s + 4, x, y[2], y[3]);
        }
        TE_UNROLL for (int i = 0; i < 4; i++) r.s[4 * j + i] = te_pair_of_floats(s[2 * i], s[2 * i + 1], TE_f16);
    }
}

/* ---- softmax ----------------------------------------------------------------------------------------------------- */

/* Of a word. */
TE_FN float te__attn_low(uint32_t w) { return te_float_of_f16((uint16_t)w); }
TE_FN float te__attn_high(uint32_t w) { return te_float_of_f16((uint16_t)(w >> 16)); }
TE_FN uint32_t te__attn_twice(float x) { return te_pair_of_floats(x, x, TE_f16); }

/* P = 2^(c s + raise[e]), in f16. raise: TE__ATTN_FP8_P_EXPONENT less what is kept of row e. Where f16 does not have one of
 * them it is NaN, and so is P: te__attn_fp8_exp_wide then computes it. */
struct te__attn_fp8_power { uint32_t c, raise[2]; };
#define TE__ATTN_FP8_NONE 0x7fff7fffu

/* Of scores that together make less than 2^-8 it is enough that they are above -inf. */
TE_FN uint32_t te__attn_fp8_c(float c) {
    return c >= 0 && c <= 32768.0f ? te__attn_twice(fmaxf(c, 1.0f / (1 << 24))) : TE__ATTN_FP8_NONE;
}
TE_FN uint32_t te__attn_fp8_raise_of(float top) {
    const float raise = (float)TE__ATTN_FP8_P_EXPONENT - top;
    const uint32_t w = te__attn_twice(raise);
    return te__attn_low(w) == raise ? w : TE__ATTN_FP8_NONE;
}
/* 2^x of two in f16 by arithmetic: whole numbers are added to the exponent of a polynomial of the fraction, which is
 * off by 2^-8.8 of itself at most. Below 2^-14 it is 0, from 2^16 on an infinity. */
TE_FN uint32_t te__attn_fp8_exp2(uint32_t x) {
    const uint32_t least = 0xcb00cb00u, most = 0x4c004c00u;               /* -14, 16 */
    const uint32_t magic = 0x66006600u, minus = 0xe600e600u;              /* 1536: from there on f16 has no fractions */
    const uint32_t one = 0x3c003c00u, c1 = 0x39a039a0u, c2 = 0x33ae33aeu; /* 1, 0.703, 0.24 */
    uint32_t whole, part, y;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(x) : "r"(x), "r"(least));
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(x) : "r"(x), "r"(most));
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(whole) : "r"(x), "r"(magic));
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(part) : "r"(whole), "r"(minus));
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(part) : "r"(x), "r"(part));
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(part), "r"(c2), "r"(c1));
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(y), "r"(part), "r"(one));
    y += (whole & 0x003f003fu) << 10; /* what the lower half carries is a last bit of the upper one */
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(y), "r"(0x84008400u)); /* -2^-14 */
    return y;
}
/* s becomes P in row e; returns its sum, of which a half of the columns is summed up in f16. */
template <class C> TE_FN float te__attn_fp8_exp(te__attn_rows<C> &r, int e, const te__attn_fp8_power &x) {
    uint32_t sum = 0;
    TE_UNROLL for (int j = 0; j < C::KEYS / 8; j++) {
        uint32_t &s = r.s[2 * j + e];
        asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(s) : "r"(x.c), "r"(x.raise[e]));
        if ((j + C::SHARE / 2 * e) % C::SHARE == C::SHARE - 1) s = te__attn_fp8_exp2(s);
        else asm("ex2.approx.f16x2 %0, %0;" : "+r"(s));
        if (j) asm("add.f16x2 %0, %0, %1;" : "+r"(sum) : "r"(s));
        else sum = s;
    }
    return te__attn_low(sum) + te__attn_high(sum);
}
/* The same in float, for any c and top. */
template <class C> TE_FN float te__attn_fp8_exp_wide(te__attn_rows<C> &r, int e, float top, float c) {
    const float raise = (float)TE__ATTN_FP8_P_EXPONENT - top;
    float sum[2] = {0, 0};
    TE_UNROLL for (int j = 0; j < C::KEYS / 8; j++) {
        const uint32_t s = r.s[2 * j + e];
        const float low = te_exp2(te__attn_low(s) * c + raise), high = te_exp2(te__attn_high(s) * c + raise);
        sum[0] += low, sum[1] += high, r.s[2 * j + e] = te_pair_of_floats(low, high, TE_f16);
    }
    return sum[0] + sum[1];
}
/* A operands of P V: each word four columns of a row, of two eights. */
template <class C> TE_FN void te__attn_fp8_pack(te__attn_rows<C> &r) {
    TE_UNROLL for (int i = 0; i < C::PACKED; i++) {
        const int at = i / 2 * 4 + i % 2;
        asm("{\n.reg .b16 x, y;\ncvt.rn.satfinite.e4m3x2.f16x2 x, %1;\ncvt.rn.satfinite.e4m3x2.f16x2 y, %2;\n"
            "mov.b32 %0, {x, y};\n}" : "=r"(r.p[i]) : "r"(r.s[at]), "r"(r.s[at + 2]));
    }
}
/* The largest number of row e. */
template <class C> TE_FN float te__attn_fp8_largest(const te__attn_rows<C> &r, int e) {
    uint32_t w = r.s[e];
    TE_UNROLL for (int j = 1; j < C::KEYS / 8; j++) asm("max.f16x2 %0, %0, %1;" : "+r"(w) : "r"(r.s[2 * j + e]));
    float most = fmaxf(te__attn_low(w), te__attn_high(w));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    return fmaxf(most, __shfl_xor_sync(~0u, most, 2));
}
/* Whether a row of this warp has outgrown what is kept: `most` is exceeded by a lane's sum, or by what is no number. */
TE_FN int te__attn_fp8_outgrown(const float sum[2], float most) {
    return __any_sync(~0u, !(sum[0] <= most && sum[1] <= most));
}
/* P of rows that have outgrown e4m3 becomes 16 at most; where it is that already, half of it. */
template <class C> TE_FN void te__attn_fp8_lift(te__attn_rows<C> &r, te__attn_fp8_power &x, float sum[2]) {
    float shrink[2];
    TE_UNROLL for (int e = 0; e < 2; e++) {
        float most = fmaxf(sum[e], __shfl_xor_sync(~0u, sum[e], 1)); /* of the row's four lanes */
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        const int power = (int)((__float_as_uint(te__attn_fp8_largest(r, e)) + 0x7fffffu) >> 23) - 127; /* rounded up */
        const int up = most > TE_E4M3_MAX ? te_max(power - TE__ATTN_FP8_P_EXPONENT, 1) : 0;
        shrink[e] = __uint_as_float((uint32_t)(127 - up) << 23);
        r.top[e] += (float)up, sum[e] *= shrink[e], r.sum[e] *= shrink[e];
        x.raise[e] = te__attn_fp8_raise_of(r.top[e]);
        const uint32_t by = te__attn_twice(shrink[e]);
        TE_UNROLL for (int j = 0; j < C::KEYS / 8; j++) asm("mul.f16x2 %0, %0, %1;" : "+r"(r.s[2 * j + e]) : "r"(by));
    }
    TE_UNROLL for (int i = 0; i < C::D / 2; i++) r.o[i] *= shrink[i / 2 % 2];
}
/* What is kept of a row that has this maximum: -inf where it has seen no key, as te__attn_kept has it. */
template <class C> TE_FN float te__attn_fp8_top(const te__attn_rows<C> &r, int e, float c) {
    return ceilf(te__attn_fp8_largest(r, e) * c);
}
/* As te__attn_raise. */
template <class F, class C>
TE_FN void te__attn_fp8_raise(te__attn_rows<C> &r, te__attn_fp8_power &x, float c, float sum[2]) {
    float shrink[2];
    TE_UNROLL for (int e = 0; e < 2; e++) {
        const float old = r.top[e], top = fmaxf(old, te__attn_fp8_top(r, e, c));
        shrink[e] = top == old ? 1.0f : te_exp2(old - top);
        sum[e] = te__attn_fp8_exp_wide(r, e, te__attn_kept<F>(top), c), r.top[e] = top, r.sum[e] *= shrink[e];
        x.raise[e] = te__attn_fp8_raise_of(top);
    }
    TE_UNROLL for (int i = 0; i < C::D / 2; i++) r.o[i] *= shrink[i / 2 % 2];
}
/* The first tile of keys: what is kept of its rows, P and its sums. */
template <class F, class C>
TE_FN void te__attn_fp8_first(te__attn_rows<C> &r, te__attn_fp8_power &x, float top[2], float sum[2], float c) {
    x.c = te__attn_fp8_c(c);
    TE_UNROLL for (int e = 0; e < 2; e++) {
        top[e] = te__attn_fp8_top(r, e, c);
        x.raise[e] = te__attn_fp8_raise_of(te__attn_kept<F>(top[e]));
    }
    const uint32_t none = TE__ATTN_FP8_NONE;
    if (__any_sync(~0u, x.c == none || x.raise[0] == none || x.raise[1] == none))
        TE_UNROLL for (int e = 0; e < 2; e++) sum[e] = te__attn_fp8_exp_wide(r, e, te__attn_kept<F>(top[e]), c);
    else TE_UNROLL for (int e = 0; e < 2; e++) sum[e] = te__attn_fp8_exp(r, e, x);
    TE_UNROLL for (int e = 0; e < 2; e++) x.raise[e] = te__attn_fp8_raise_of(top[e]);
}
#endif

#endif
