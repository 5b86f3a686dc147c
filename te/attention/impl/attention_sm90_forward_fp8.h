/* attention_sm90_forward_fp8.h -- attention forward in FP8 (attention_fp8.h) for compute capability 9.0 (sm_90a).
 *
 * The roles of the warps and the pipelines are those of attention_sm90_forward.h. The operands of the products are
 * e4m3, which halves the time of the products. TMA and the swizzle treat two e4m3 numbers as one element of 16 bits.
 *
 * S is accumulated in f16, and P is f16 before it is rounded to e4m3. A register thus holds two numbers, which leaves
 * enough registers for three warpgroups, and an instruction processes two numbers. f16 is accurate enough: S then has
 * 11 significant bits, while Q and K have only 4. P is 2^(scale * s + offset), where the scale and the exponent also
 * have 11 bits, and the offset, an integer, is exact.
 *
 * The number that is subtracted from a row's logits (row_max) is at first the maximum of the first tile of keys,
 * rounded up to an integer. When the sum of a lane's elements of P in a tile exceeds 448, the largest e4m3, row_max is
 * raised by an integer n: P (while it is still f16), O and the softmax sums are divided by 2^n. If the sum is so large
 * that P may have overflowed f16, S of that tile is recomputed instead, and P is computed in f32. P becomes an A
 * operand without a shuffle between lanes, because the keys of V are permuted (te__attn_fp8_byte_of_key): of 32 keys,
 * the accumulators of a lane have columns 2 * t and 2 * t + 1 (t = lane % 4) of each of four groups of eight, but
 * operand A has columns 4 * t to 4 * t + 3 of each of two groups of sixteen.
 *
 * Lower bounds: 4 * batch * heads * seq^2 * head_dim flops in FP8 (half of that if causal). Each head also needs seq^2
 * exponentials, of which a multiprocessor computes 16 in a clock; at head size 128 the exponentials take as long as the
 * products. Memory traffic: 1 byte read for each element of q, k and v, 2 bytes written for each element of the output.
 * Measurements: docs/notes/attention_sm90.md.
 */
/* target: cuda */
#ifndef TE_ATTENTION_SM90_FORWARD_FP8_H
#define TE_ATTENTION_SM90_FORWARD_FP8_H

#include "attention_cuda.h"      /* TE__ATTENTION_SHELL */
#include "attention_fp8.h"       /* te_attention_fp8_operands */
#include "attention_sm90_forward.h" /* te__attn_fwd_pipelines, scheduler, softmax, epilogue */

/* ---- constants and arguments ----------------------------------------------------------------------------------- */

/* Constants that were tuned for head size D: the number of consumer warpgroups (GROUPS, with 64 queries each), and the
 * numbers of stages of Q, K and V in shared memory. EXP2_POLY_EVERY: one of every EXP2_POLY_EVERY pairs of P is
 * computed by a polynomial instead of by the special function unit, which would otherwise be the bottleneck. */
template <int D> struct te__attn_fp8_config;
template <> struct te__attn_fp8_config<64> {
    static constexpr int GROUPS = 3, Q_STAGES = 2, K_STAGES = 4, V_STAGES = 3, EXP2_POLY_EVERY = 2;
};
template <> struct te__attn_fp8_config<128> {
    static constexpr int GROUPS = 3, Q_STAGES = 2, K_STAGES = 4, V_STAGES = 3, EXP2_POLY_EVERY = 8;
};
template <> struct te__attn_fp8_config<256> {
    static constexpr int GROUPS = 2, Q_STAGES = 1, K_STAGES = 3, V_STAGES = 2, EXP2_POLY_EVERY = 4;
};

/* The constants of te__attn_fp8_config, and the sizes that follow from them. A tile of V is one box [D, 128 keys]. */
template <int D_> struct te__attn_fp8_traits {
    typedef te__attn_fp8_config<D_> config;
    static constexpr int D = D_, V = D, KEYS = 128, GROUPS = config::GROUPS, PINGPONG = 0;
    static constexpr int EXP2_POLY_EVERY = config::EXP2_POLY_EVERY;
    static constexpr int Q_STAGES = config::Q_STAGES, K_STAGES = config::K_STAGES, V_STAGES = config::V_STAGES;
    static constexpr int ROWS = 64 * GROUPS, THREADS = 128 * (GROUPS + 1), BOXES = (D + 127) / 128;
    /* the number of 16-bit elements of a row of q or k, with two e4m3 numbers in each */
    static constexpr int PAIRS = D / 2;
    /* how many registers of a thread hold P in e4m3, with four numbers in each */
    static constexpr int PACKED = KEYS / 8;
    typedef uint32_t scores[KEYS / 4];      /* S, or P, as pairs of f16 */
    static constexpr int PRODUCER_REGISTERS = GROUPS == 2 ? 24 : 32, CONSUMER_REGISTERS = GROUPS == 2 ? 240 : 160;
    static constexpr int Q_GROUP_BYTES = BOXES * 64 * 128, Q_BYTES = GROUPS * Q_GROUP_BYTES;
    static constexpr int K_BYTES = BOXES * KEYS * 128, V_BYTES = D * KEYS;
    static constexpr int SHARED = Q_STAGES * Q_BYTES + K_STAGES * K_BYTES + V_STAGES * V_BYTES + 1024;
    static_assert(SHARED <= 227 * 1024 - 512, "te: attention: the tiles exceed shared memory");
    static_assert(KEYS == 128 && ROWS - 64 <= KEYS, "te: attention: a box of V, te__attn_skip_k expect it");
};

/* If the sum of a lane's elements of P exceeds this limit or is NaN, an element, or the sum itself, may have exceeded
 * 65504, the largest f16, so that S must be recomputed. */
#define TE__ATTN_FP8_F16_LIMIT 32768.0f

typedef struct te__attn_fp8_params {
    /* The arguments that this kernel has in common with the forward kernel in 16 bits. common.q and common.kv are the
     * tensor maps of q and k in e4m3. */
    te__attn_fwd_params common;
    CUtensorMap v;         /* the tensor map of the transposed v in e4m3, [batch, kv_heads, head_dim, keys] */
    /* [heads + 2 * kv_heads]: the amax of each head of q, then of each head of k, then of each head of v */
    const float *amax;
} te__attn_fp8_params;

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- GEMMs ------------------------------------------------------------------------------------------------------ */

#define TE__WGMMA_E4M3_RS(n, list, a0, a1, a2, a3, b_, add_, ...)                                                 \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add_ ", 0;\n"                                          \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" list                                \
                 "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_ ", add, 1, 1;\n}"                           \
                 : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

/* One wgmma instruction in e4m3, which a warpgroup executes: D[64, N] = A[64, 32] B[N, 32]^T, or D += A B^T if `add` is
 * 1. A is in registers, B in shared memory, passed as a matrix descriptor. */
template <int N> struct te__wgmma_e4m3_atom;
#define TE__WGMMA_E4M3_ATOM(n, list, r0, r1, r2, r3, r4, r5, r6, ...)                                                  \
    template <> struct te__wgmma_e4m3_atom<n> {                                                                        \
        static __device__ __forceinline__ void rs(float (&d)[n / 2], const uint32_t *a, uint64_t b, int add) {    \
            TE__WGMMA_E4M3_RS(n, list, r0, r1, r2, r3, r4, r5, __VA_ARGS__);                                      \
        }                                                                                                         \
    };
TE__WGMMA_ATOM_SIZES(TE__WGMMA_E4M3_ATOM)

/* One wgmma instruction in e4m3 with accumulators in f16: D[64, 128] = A[64, 32] B[128, 32]^T, or D += A B^T if `add`
 * is 1. A and B are in shared memory, passed as matrix descriptors. A register holds two columns of a row of D. */
#define TE__D8_F16X2(i) TE__D4_F16X2(i), TE__D4_F16X2((i) + 4)
#define TE__D4_F16X2(i) "+r"(d[i]), "+r"(d[(i) + 1]), "+r"(d[(i) + 2]), "+r"(d[(i) + 3])
TE_FN void te__wgmma_e4m3_f16(uint32_t (&d)[32], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f16.e4m3.e4m3 {" TE__L64 "}, %32, %33, add, 1, 1;\n}"
                 : TE__D8_F16X2(0), TE__D8_F16X2(8), TE__D8_F16X2(16), TE__D8_F16X2(24)
                 : "l"(a), "l"(b), "r"(add));
}

/* Issues the product S of the current tile of keys in e4m3. Each wgmma sums over 32 columns, which are two 16-byte
 * chunks of a row of 128 bytes. */
template <class C> TE_FN void te__attn_fp8_issue_s(te__attn_fwd_fragments<C> &r, const te__attn_fwd_pipelines<C> &a) {
    const uint64_t k = te__attn_tile_descriptor(a.k_tiles + a.k.stage * C::K_BYTES, C::KEYS);
    const uint64_t q = te__attn_tile_descriptor(a.q, 64);
    TE_UNROLL for (int i = 0; i < C::D / 32; i++)
        te__wgmma_e4m3_f16(r.s, q + i / 4 * (64 * 8) + i % 4 * 2, k + i / 4 * (C::KEYS * 8) + i % 4 * 2, i);
    te__wgmma_commit();
}
/* Issues O += P V of the previous tile of keys, in e4m3; if add is 0, O = P V. */
template <class C>
TE_FN void te__attn_fp8_issue_o(te__attn_fwd_fragments<C> &r, const te__attn_fwd_pipelines<C> &a, int add) {
    const uint64_t v = te__attn_tile_descriptor(a.v_tiles + a.v.stage * C::V_BYTES, C::D);
    TE_UNROLL for (int i = 0; i < C::KEYS / 32; i++)
        te__wgmma_e4m3_atom<C::D>::rs(r.o, r.p + 4 * i, v + i / 4 * (C::D * 8) + i % 4 * 2, add || i);
    te__wgmma_commit();
}
/* Issues the product S of the current tile of keys, and O += P V of the previous tile, in e4m3. has_k: 0 if there is no
 * current tile; has_v: 0 if there is no previous tile. If add is 0, O = P V is computed. (The FP8 version of
 * te__attn_fwd_issue_gemms.) */
template <class C>
TE_FN void te__attn_fp8_issue_gemms(te__attn_fwd_fragments<C> &r, const te__attn_fwd_pipelines<C> &a, int has_k,
                                    int has_v, int add) {
    if (has_k) te__barrier_wait(a.k_full + 8 * a.k.stage, a.k.phase);
    if (C::PINGPONG) te__attn_pingpong_wait(a);
    te__wgmma_fence_operand(r.s), te__wgmma_fence_operand(r.o), te__wgmma_fence_operand(r.p);
    te__wgmma_fence();
    te__attn_fp8_issue_s(r, a);
    if (has_v) te__barrier_wait(a.v_full + 8 * a.v.stage, a.v.phase);
    te__wgmma_fence();
    te__attn_fp8_issue_o(r, a, add);
    if (C::PINGPONG) te__attn_pingpong_pass(a);
    te__wgmma_wait_1();
    te__wgmma_fence_operand(r.s);
}
/* Computes c[16, 8] += a[16, 32] b[32, 8] with the 32 lanes of a warp, where a and b are e4m3. */
TE_FN void te__mma_e4m3(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* The FP8 version of te__attn_recompute_scores: recomputes S of a warp's 16 rows by mma.sync. */
template <class C> TE_FN void te__attn_fp8_recompute_scores(te__attn_fwd_fragments<C> &r, uint32_t q, uint32_t k) {
    int lane = (int)threadIdx.x % 32;
    asm volatile("" : "+r"(lane));
    const int q_row = (int)threadIdx.x / 32 % 4 * 16 + lane % 16, k_row = lane / 16 * 8 + lane % 8;
    TE_UNROLL for (int j = 0; j < C::KEYS / 16; j++) {
        float s[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll 1
        for (int d = 0; d < C::PAIRS; d += 16) {
            const int chunk = d % 64 / 8, box = d / 64;
            uint32_t x[4], y[4];
            te__attn_ldmatrix(x, te__attn_chunk_address(q + box * 8192, q_row, chunk + lane / 16));
            te__attn_ldmatrix(y,
                              te__attn_chunk_address(k + box * (C::KEYS * 128), 16 * j + k_row, chunk + lane / 8 % 2));
            te__mma_e4m3(s, x, y[0], y[1]), te__mma_e4m3(s + 4, x, y[2], y[3]);
        }
        TE_UNROLL for (int i = 0; i < 4; i++) r.s[4 * j + i] = te_pair_of_floats(s[2 * i], s[2 * i + 1], TE_f16);
    }
}

/* ---- softmax ----------------------------------------------------------------------------------------------------- */

/* Returns the lower f16 of a pair, as float. */
TE_FN float te__attn_f16x2_low(uint32_t w) { return te_float_of_f16((uint16_t)w); }
/* Returns the upper f16 of a pair, as float. */
TE_FN float te__attn_f16x2_high(uint32_t w) { return te_float_of_f16((uint16_t)(w >> 16)); }
/* Returns a pair of two equal f16, x rounded. */
TE_FN uint32_t te__attn_f16x2(float x) { return te_pair_of_floats(x, x, TE_f16); }

/* The constants of P = 2^(scale * s + offset[e]), in f16; offset[e] belongs to row e, and is
 * TE__ATTN_FP8_P_EXPONENT - row_max. The scale and each offset are stored as pairs of two equal numbers. If f16 cannot
 * represent the scale or an offset, TE__ATTN_FP8_NAN is stored instead, so that P becomes NaN; te__attn_fp8_exp_row_f32
 * then computes P in f32. */
struct te__attn_fp8_exponent { uint32_t scale, offset[2]; };
#define TE__ATTN_FP8_NAN 0x7fff7fffu

/* Returns the scale as a pair of two equal f16. A scale below 2^-24 becomes 2^-24; it must not become 0, because 0
 * times a masked score of -inf would be NaN. The replacement changes the exponent scale * s by less than 2^-8, because
 * finite f16 scores are below 2^16. */
TE_FN uint32_t te__attn_fp8_exponent_scale(float scale) {
    return scale >= 0 && scale <= 32768.0f ? te__attn_f16x2(fmaxf(scale, 1.0f / (1 << 24))) : TE__ATTN_FP8_NAN;
}
/* Returns the offset of a row as a pair of two equal f16, or TE__ATTN_FP8_NAN if f16 cannot represent it exactly. */
TE_FN uint32_t te__attn_fp8_exponent_offset(float row_max) {
    const float offset = (float)TE__ATTN_FP8_P_EXPONENT - row_max;
    const uint32_t w = te__attn_f16x2(offset);
    return te__attn_f16x2_low(w) == offset ? w : TE__ATTN_FP8_NAN;
}
/* Computes 2^x for a pair of f16, without the special function unit: a polynomial approximates 2^fraction, and the
 * integer part of x is added to the exponent bits of the result. The relative error of the result is at most 2^-8.8.
 * Results below 2^-14 become 0, and results from 2^16 on become infinity. */
TE_FN uint32_t te__attn_fp8_exp2_poly(uint32_t x) {
    const uint32_t lowest = 0xcb00cb00u, highest = 0x4c004c00u;           /* -14, 16 */
    /* `magic` is a pair of the number 1536. Adding 1536 rounds to an integer, because all f16 numbers from 1024 to 2048
     * are integers. */
    const uint32_t magic = 0x66006600u, minus = 0xe600e600u;
    const uint32_t one = 0x3c003c00u, c1 = 0x39a039a0u, c2 = 0x33ae33aeu; /* 1, 0.703, 0.24 */
    uint32_t whole, fraction, y;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(x) : "r"(x), "r"(lowest));
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(x) : "r"(x), "r"(highest));
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(whole) : "r"(x), "r"(magic));
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(fraction) : "r"(whole), "r"(minus));
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(fraction) : "r"(x), "r"(fraction));
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(fraction), "r"(c2), "r"(c1));
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(y), "r"(fraction), "r"(one));
    /* a carry out of the lower number of the pair only changes the last bit of the upper one */
    y += (whole & 0x003f003fu) << 10;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(y), "r"(0x84008400u)); /* -2^-14 */
    return y;
}
/* Replaces S by P in row e, one of this thread's two rows. Returns the sum of this lane's elements of P in the row. The
 * even and the odd columns are first summed separately in f16, and the two sums are added in f32. */
template <class C>
TE_FN float te__attn_fp8_exp_row(te__attn_fwd_fragments<C> &r, int e, const te__attn_fp8_exponent &x) {
    constexpr int EVERY = C::EXP2_POLY_EVERY;
    uint32_t sum = 0;
    TE_UNROLL for (int j = 0; j < C::KEYS / 8; j++) {
        uint32_t &s = r.s[2 * j + e];
        asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(s) : "r"(x.scale), "r"(x.offset[e]));
        if ((j + EVERY / 2 * e) % EVERY == EVERY - 1) s = te__attn_fp8_exp2_poly(s);
        else asm("ex2.approx.f16x2 %0, %0;" : "+r"(s));
        if (j) asm("add.f16x2 %0, %0, %1;" : "+r"(sum) : "r"(s));
        else sum = s;
    }
    return te__attn_f16x2_low(sum) + te__attn_f16x2_high(sum);
}
/* Replaces S by P in row e, computed in f32, which works for any scale and row_max (te__attn_fp8_exp_row computes in
 * f16). Returns the sum of this lane's elements of P in the row. */
template <class C> TE_FN float te__attn_fp8_exp_row_f32(te__attn_fwd_fragments<C> &r, int e, float row_max,
                                      float scale) {
    const float offset = (float)TE__ATTN_FP8_P_EXPONENT - row_max;
    float sum[2] = {0, 0};
    TE_UNROLL for (int j = 0; j < C::KEYS / 8; j++) {
        const uint32_t s = r.s[2 * j + e];
        const float low = te_exp2(te__attn_f16x2_low(s) * scale + offset);
        const float high = te_exp2(te__attn_f16x2_high(s) * scale + offset);
        sum[0] += low, sum[1] += high, r.s[2 * j + e] = te_pair_of_floats(low, high, TE_f16);
    }
    return sum[0] + sum[1];
}
/* Packs P to e4m3, as the A operand of P V: a register holds four columns of a row, namely two columns of each of two
 * groups of eight columns. */
template <class C> TE_FN void te__attn_fp8_pack_p(te__attn_fwd_fragments<C> &r) {
    TE_UNROLL for (int i = 0; i < C::PACKED; i++) {
        const int at = i / 2 * 4 + i % 2;
        asm("{\n.reg .b16 x, y;\ncvt.rn.satfinite.e4m3x2.f16x2 x, %1;\ncvt.rn.satfinite.e4m3x2.f16x2 y, %2;\n"
            "mov.b32 %0, {x, y};\n}" : "=r"(r.p[i]) : "r"(r.s[at]), "r"(r.s[at + 2]));
    }
}
/* Returns the maximum of row e in this tile, of S or of P, whichever r.s holds. */
template <class C> TE_FN float te__attn_fp8_max(const te__attn_fwd_fragments<C> &r, int e) {
    uint32_t w = r.s[e];
    TE_UNROLL for (int j = 1; j < C::KEYS / 8; j++) asm("max.f16x2 %0, %0, %1;" : "+r"(w) : "r"(r.s[2 * j + e]));
    float largest = fmaxf(te__attn_f16x2_low(w), te__attn_f16x2_high(w));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    return fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
}
/* Returns whether in any lane of this warp the sum of P exceeds `limit`, or is NaN, in one of the lane's two rows. sum:
 * this lane's two sums. */
TE_FN int te__attn_fp8_exceeds(const float sum[2], float limit) {
    return __any_sync(~0u, !(sum[0] <= limit && sum[1] <= limit));
}
/* Divides P, O and the softmax sums by 2^n, in each row in which the sum of a lane's elements of P exceeds the largest
 * e4m3, and raises row_max by n. n is the smallest integer, not less than 1, that makes P at most 16. */
template <class C>
TE_FN void te__attn_fp8_rescale_p(te__attn_fwd_fragments<C> &r, te__attn_fp8_exponent &x, float sum[2]) {
    float factor[2];
    TE_UNROLL for (int e = 0; e < 2; e++) {
        float row_sum = fmaxf(sum[e], __shfl_xor_sync(~0u, sum[e], 1)); /* the largest sum of the row's four lanes */
        row_sum = fmaxf(row_sum, __shfl_xor_sync(~0u, row_sum, 2));
        /* the base-2 logarithm of the largest P of the row, rounded up */
        const int power = (int)((__float_as_uint(te__attn_fp8_max(r, e)) + 0x7fffffu) >> 23) - 127;
        const int shift = row_sum > TE_E4M3_MAX ? te_max(power - TE__ATTN_FP8_P_EXPONENT, 1) : 0;
        factor[e] = __uint_as_float((uint32_t)(127 - shift) << 23);
        r.row_max[e] += (float)shift, sum[e] *= factor[e], r.row_sum[e] *= factor[e];
        x.offset[e] = te__attn_fp8_exponent_offset(r.row_max[e]);
        const uint32_t both = te__attn_f16x2(factor[e]);
        TE_UNROLL for (int j = 0; j < C::KEYS / 8; j++) asm("mul.f16x2 %0, %0, %1;" : "+r"(r.s[2 * j + e]) : "r"(both));
    }
    TE_UNROLL for (int i = 0; i < C::D / 2; i++) r.o[i] *= factor[i / 2 % 2];
}
/* Returns the row_max of row e for this tile: the maximum of its logits (scores times c), rounded up to an integer;
 * -inf if the row sees no key of the tile (te__attn_finite_max). */
template <class C> TE_FN float te__attn_fp8_integer_max(const te__attn_fwd_fragments<C> &r, int e, float c) {
    return ceilf(te__attn_fp8_max(r, e) * c);
}
/* The FP8 version of te__attn_rescale: updates row_max after S was recomputed, computes P in f32, and rescales O and
 * row_sum. */
template <class F, class C>
TE_FN void te__attn_fp8_rescale(te__attn_fwd_fragments<C> &r, te__attn_fp8_exponent &x, float scale, float sum[2]) {
    float factor[2];
    TE_UNROLL for (int e = 0; e < 2; e++) {
        const float old = r.row_max[e], row_max = fmaxf(old, te__attn_fp8_integer_max(r, e, scale));
        factor[e] = row_max == old ? 1.0f : te_exp2(old - row_max);
        sum[e] = te__attn_fp8_exp_row_f32(r, e, te__attn_finite_max<F>(row_max), scale);
        r.row_max[e] = row_max, r.row_sum[e] *= factor[e];
        x.offset[e] = te__attn_fp8_exponent_offset(row_max);
    }
    TE_UNROLL for (int i = 0; i < C::D / 2; i++) r.o[i] *= factor[i / 2 % 2];
}
/* Processes the scores of the first tile of keys: computes the scale, the offsets, and for each of the two rows
 * row_max, P and the sum of this lane's elements of P. */
template <class F, class C>
TE_FN void te__attn_fp8_softmax_first(te__attn_fwd_fragments<C> &r, te__attn_fp8_exponent &x, float row_max[2],
                                      float row_sum[2], float scale) {
    x.scale = te__attn_fp8_exponent_scale(scale);
    TE_UNROLL for (int e = 0; e < 2; e++) {
        row_max[e] = te__attn_fp8_integer_max(r, e, scale);
        x.offset[e] = te__attn_fp8_exponent_offset(te__attn_finite_max<F>(row_max[e]));
    }
    const uint32_t nan = TE__ATTN_FP8_NAN;
    if (__any_sync(~0u, x.scale == nan || x.offset[0] == nan || x.offset[1] == nan))
        TE_UNROLL for (int e = 0; e < 2; e++)
            row_sum[e] = te__attn_fp8_exp_row_f32(r, e, te__attn_finite_max<F>(row_max[e]), scale);
    else TE_UNROLL for (int e = 0; e < 2; e++) row_sum[e] = te__attn_fp8_exp_row(r, e, x);
    TE_UNROLL for (int e = 0; e < 2; e++) x.offset[e] = te__attn_fp8_exponent_offset(row_max[e]);
}

/* ---- consumer: mainloop ---------------------------------------------------------------------------------------- */

/* The FP8 version of te__attn_fwd_step: processes a tile of keys that is not the first tile processed. */
template <class F, class C>
TE_FN void te__attn_fp8_step(te__attn_fwd_fragments<C> &r, te__attn_fp8_exponent &x, te__attn_fwd_pipelines<C> &a,
                             const te__attn_score_tile &t, int needs_mask, int add, int is_last) {
    float sum[2];
    te__attn_fp8_issue_gemms(r, a, 1, 1, add);
    if (needs_mask) te__attn_mask_window(r, t.mask, t.query, t.key);
    TE_UNROLL for (int e = 0; e < 2; e++) sum[e] = te__attn_fp8_exp_row(r, e, x);
    te__attn_fwd_wait_o(r, a, 1);
    if (te__attn_fp8_exceeds(sum, TE_E4M3_MAX)) {
        if (te__attn_fp8_exceeds(sum, TE__ATTN_FP8_F16_LIMIT)) {
            te__attn_fp8_recompute_scores(r, a.q, a.k_tiles + a.k.stage * C::K_BYTES);
            if (needs_mask) te__attn_mask_window(r, t.mask, t.query, t.key);
            te__attn_fp8_rescale<F>(r, x, a.scale_log2, sum);
        } else te__attn_fp8_rescale_p(r, x, sum);
    }
    te__attn_fp8_pack_p(r);
    te__attn_release_k(a, is_last);
    r.row_sum[0] += sum[0], r.row_sum[1] += sum[1];
}
/* The dequantization factors of a head. score: the factor that turns a product q k^T of e4m3 numbers into a logit in
 * base 2; value: the factor that turns an e4m3 element of v into the value. */
struct te__attn_fp8_head_units { float score, value; };
template <int HEADS, int KV_HEADS>
TE_FN te__attn_fp8_head_units te__attn_fp8_head_units_of(const te__attn_fp8_params *p, int head) {
    const int q = head % HEADS, k = HEADS + q / (HEADS / KV_HEADS);
    return {te__attn_fp8_score_unit(p->amax[q], p->amax[k], p->common.scale),
            te__attn_fp8_inverse(p->amax[k + KV_HEADS], TE_E4M3_MAX)};
}
/* The FP8 version of te__attn_fwd_output_of: returns where the output of a work tile is stored. value: the
 * dequantization factor of v. */
template <int HEADS, class F, class C>
TE_FN te__attn_fwd_output te__attn_fp8_output_of(const te__attn_fwd_params *p, const te__attn_work_tile &w, int row,
                                                 float value) {
    const int64_t first = ((int64_t)(w.head / HEADS) * p->seq * HEADS + w.head % HEADS) * C::D;
    te__attn_fwd_output to;
    to.scale = te__attn_out_scale<F>(p);
    to.out = te__attn_out_at(p->out, first, to.scale), to.width = HEADS * C::D;
    to.lse = p->lse ? p->lse + (int64_t)w.head * p->seq : 0;
    to.query = w.query + row, to.seq = p->seq;
    to.score_unit = TE__ATTN_LN2, to.factor = value, to.amax = te__attn_amax_output<F>(p);
    return to;
}

/* The body of a consumer warpgroup of the FP8 forward. The warpgroup computes O of 64 queries of one tile of queries
 * after another. */
template <te_dtype T, class C, int HEADS, int KV_HEADS, class F>
TE_FN void te__attn_fp8_consumer(const te__attn_fp8_params *all, te__attn_fwd_barriers *bars,
                                 const uint32_t tiles[3]) {
    const te__attn_fwd_params *p = &all->common;
    const int group = __shfl_sync(~0u, (int)threadIdx.x / 128 - 1, 0);
    const int lane = (int)threadIdx.x % 32, row = group * 64 + (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
    te__attn_fwd_fragments<C> r;
    te__attn_fp8_exponent x;
    te__attn_fwd_pipelines<C> a = {te__shared_address(bars->k_full), te__shared_address(bars->k_empty),
                                   te__shared_address(bars->v_full), te__shared_address(bars->v_empty),
                                   tiles[1], tiles[2], 0, 0, {0, 0}, {0, 0}, group, lane, 0};
    te__attn_pipeline_state<C::Q_STAGES> q = {0, 0};
    te__attn_work_tile w = {0, TE__ATTN_WORK_END};
    const te__attn_mask m = te__attn_fwd_mask<F>(p, p->seq);
    float value = 0; /* the dequantization factor of v in the head of tile w */
    TE_UNROLL for (int i = 0; i < C::PACKED; i++) r.p[i] = 0;
    if (C::PINGPONG && group == C::GROUPS - 1) te__attn_pingpong_pass(a);
    /* skipped_last: 1 if this warpgroup, in the previous tile of queries, skipped K of the last tile of keys. It must
     * then still skip V of that tile of keys. add: 1 if the next product P V is added to O, 0 if it overwrites O. */
    for (int add = 0, skipped_last = 0;;) {
        te__barrier_wait(te__shared_address(&bars->q_full[q.stage]), q.phase);
        const te__attn_work_tile next = bars->work[q.stage];
        const int has_next = next.head >= 0, has_output = w.head >= 0;
        const te__attn_range t = te__attn_fwd_key_tiles<C>(m, next.query + group * 64, 64);
        const int skip_first = has_next ? te__attn_fwd_key_tiles<C>(m, next.query, C::ROWS).end - t.end : 0;
        const te__attn_fp8_head_units units =
            te__attn_fp8_head_units_of<HEADS, KV_HEADS>(all, has_next ? next.head : 0);
        a.q = tiles[0] + q.stage * C::Q_BYTES + group * C::Q_GROUP_BYTES, a.scale_log2 = units.score;
        a.q_empty = te__shared_address(&bars->q_empty[q.stage]);

        /* Process the first tile of keys, and at the same time the last P V of the previous tile of queries. */
        float row_max[2], row_sum[2];
        if (skip_first) te__attn_skip_k(a);
        te__attn_fp8_issue_gemms(r, a, has_next, has_output, add);
        if (has_next) te__attn_release_k(a, t.end - 1 == t.first);
        const int tile = (t.end - 1) * C::KEYS;
        int key = tile + lane % 4 * 2; /* this lane's first key in the tile */
        /* this asm makes the compiler recompute the bounds that it derives from `key`, instead of holding them in
         * registers */
        asm volatile("" : "+r"(key));
        if (te__attn_needs_mask(t, t.end - 1, 1)) {
            if (te__attn_masks_later_tiles<F>()) te__attn_mask_window(r, m, next.query + group * 64, tile);
            else te__attn_mask_scores(r, m, next.query + row, key);
        }
        te__attn_fp8_softmax_first<F>(r, x, row_max, row_sum, a.scale_log2);
        te__attn_fwd_wait_o(r, a, has_output);
        if (skipped_last) te__attn_skip_v(a);
        if (skip_first) te__attn_skip_v(a);
        if (has_output) {
            TE_UNROLL for (int e = 0; e < 2; e++) r.row_max[e] -= TE__ATTN_FP8_P_EXPONENT;
            te__attn_fwd_epilogue<T>(r, te__attn_fp8_output_of<HEADS, F, C>(p, w, row, value));
        }
        if (!has_next) break;
        TE_UNROLL for (int e = 0; e < 2; e++) r.row_max[e] = row_max[e], r.row_sum[e] = row_sum[e];
        te__attn_fp8_pack_p(r);

        w = next, value = units.value, add = 0;
#pragma unroll 1
        for (int j = t.end - 2; j >= t.first; j--, add = 1) {
            const int needs_mask = te__attn_masks_later_tiles<F>() && te__attn_needs_mask(t, j, 1);
            te__attn_fp8_step<F>(r, x, a, {m, w.head, w.query + group * 64, j * C::KEYS}, needs_mask, add,
                                 j == t.first);
        }
        skipped_last = F::LEFT >= 0 && t.first > te__attn_fwd_key_tiles<C>(m, w.query, C::ROWS).first;
        if (skipped_last) te__attn_skip_k(a);
        te__attn_pipeline_advance(q);
    }
}

/* ---- producer -------------------------------------------------------------------------------------------------- */

/* Loads a tile of the transposed V, [D, C::KEYS]: the D dimensions of C::KEYS consecutive keys, beginning with
 * `key`. */
template <class C>
TE_FN void te__attn_fp8_produce_v(te__attn_tile_producer<C::V_STAGES> &p, const CUtensorMap *from, int head, int key,
                                  int batch) {
    const uint32_t bar = p.full + 8 * p.state.stage, to = p.tiles + p.state.stage * C::V_BYTES;
    te__barrier_wait(p.empty + 8 * p.state.stage, p.state.phase ^ 1);
    te__barrier_arrive_expect_tx(bar, C::V_BYTES);
    TE_UNROLL for (int b = 0; b < C::KEYS / 128; b++)
        te__attn_tma_load_head(to + b * (C::D * 128), from, key / 2 + 64 * b, 0, head, batch, bar);
    te__attn_pipeline_advance(p.state);
}
/* The body of the producer thread of the FP8 forward: loads all tiles of Q, K and V in the order in which the consumers
 * use them. */
template <class C, int HEADS, int KV_HEADS, class F>
TE_FN void te__attn_fp8_producer(const te__attn_fp8_params *all, te__attn_fwd_barriers *bars,
                                 const uint32_t tiles[3]) {
    const te__attn_fwd_params *p = &all->common;
    te__attn_tile_producer<C::K_STAGES> k = {te__shared_address(bars->k_full), te__shared_address(bars->k_empty),
                                             tiles[1], {0, 0}};
    te__attn_tile_producer<C::V_STAGES> v = {te__shared_address(bars->v_full), te__shared_address(bars->v_empty),
                                             tiles[2], {0, 0}};
    te__attn_pipeline_state<C::Q_STAGES> q = {0, 0};
#pragma unroll 1
    for (int tile = (int)blockIdx.x;; tile = te__attn_fwd_next_ticket(p, tile)) {
        const te__attn_work_tile w = te__attn_fwd_work_tile<C::ROWS, F>(p, tile);
        const te__attn_range t = te__attn_fwd_key_tiles<C>(te__attn_fwd_mask<F>(p, p->seq), w.query, C::ROWS);
        const uint32_t bar = te__shared_address(&bars->q_full[q.stage]), to = tiles[0] + q.stage * C::Q_BYTES;
        const int batch = w.head / HEADS, head = w.head % HEADS, kv_head = head / (HEADS / KV_HEADS);
        const CUtensorMap *const k_map = &p->kv;
        constexpr int WIDTH = C::BOXES * 64; /* the length of a row of a tile of K, in 16-bit elements */
        if (w.head >= 0) te__attn_produce_tile<WIDTH, C::KEYS>(k, k_map, kv_head, (t.end - 1) * C::KEYS, batch);
        te__barrier_wait(te__shared_address(&bars->q_empty[q.stage]), q.phase ^ 1);
        bars->work[q.stage] = w;
        if (w.head < 0) return te__barrier_arrive(bar);
        te__barrier_arrive_expect_tx(bar, C::Q_BYTES);
        TE_UNROLL for (int g = 0; g < C::GROUPS; g++)
            TE_UNROLL for (int b = 0; b < C::BOXES; b++)
                te__attn_tma_load_head(to + g * C::Q_GROUP_BYTES + b * 8192, &p->q, 64 * b, head, w.query + 64 * g,
                                       batch, bar);
        te__attn_pipeline_advance(q);
#pragma unroll 1
        for (int j = t.end - 2; j >= t.first; j--) {
            te__attn_produce_tile<WIDTH, C::KEYS>(k, k_map, kv_head, j * C::KEYS, batch);
            te__attn_fp8_produce_v<C>(v, &all->v, kv_head, (j + 1) * C::KEYS, batch);
        }
        te__attn_fp8_produce_v<C>(v, &all->v, kv_head, t.first * C::KEYS, batch);
    }
}

/* ---- kernel ---------------------------------------------------------------------------------------------------- */

template <te_dtype T, class C, int HEADS, int KV_HEADS, class F>
TE_FN void te__attn_fp8_kernel(const te__attn_fp8_params *p, te__attn_fwd_barriers *bars) {
    /* The address of the tiles is a multiple of 1024 bytes, because the swizzle repeats every 1024 bytes. */
    const uint32_t q_tiles = (te__shared_address(te__attention_shared) + 1023) & ~1023u;
    const uint32_t k_tiles = q_tiles + C::Q_STAGES * C::Q_BYTES, v_tiles = k_tiles + C::K_STAGES * C::K_BYTES;
    const uint32_t tiles[3] = {q_tiles, k_tiles, v_tiles};
    if (threadIdx.x == 0) te__attn_fwd_barriers_init<C>(bars);
    if (threadIdx.x == 32) te__tma_prefetch_descriptor(&p->common.q), te__tma_prefetch_descriptor(&p->common.kv);
    __syncthreads();
    te_kernel_begin();
    if (threadIdx.x < 128) {
        te__warpgroup_reg_dealloc<C::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) te__attn_fp8_producer<C, HEADS, KV_HEADS, F>(p, bars, tiles);
    } else {
        te__warpgroup_reg_alloc<C::CONSUMER_REGISTERS>();
        te__attn_fp8_consumer<T, C, HEADS, KV_HEADS, F>(p, bars, tiles);
    }
}
#else
template <te_dtype T, class C, int HEADS, int KV_HEADS, class F>
TE_FN void te__attn_fp8_kernel(const te__attn_fp8_params *, te__attn_fwd_barriers *) {}
#endif

/* ---- host ------------------------------------------------------------------------------------------------------ */

/* Makes the tensor map of the transposed v, [batch, kv_heads, dim, keys] in e4m3, for TMA; two neighbouring keys are
 * one element of 16 bits. */
TE_API te_status te__attn_fp8_v_tensor_map(CUtensorMap *map, te__tensor_map_encode_fn encode,
                                           const te_attention_fp8_operands *of, int dim, int kv_heads, int batch,
                                           te_context *ctx) {
    const cuuint64_t row = (cuuint64_t)of->keys, head = row * (cuuint64_t)dim;
    const te__tensor_shape shape = {4,
                                    {row / 2, (cuuint64_t)dim, (cuuint64_t)kv_heads, (cuuint64_t)batch},
                                    {row, head, head * (cuuint64_t)kv_heads},
                                    {64, (cuuint32_t)dim, 1, 1}};
    return te__tensor_map(map, encode, of->v, &shape, TE_bf16, ctx);
}
/* Describes the tensor of q or k in e4m3 for TMA; two neighbouring numbers are one element of 16 bits. */
TE_API te__attn_heads_tensor te__attn_fp8_heads_tensor(const void *data, int dim, int heads, int box_rows,
                                                       const te_attention_args *a) {
    te__attn_heads_tensor x;
    x.data = data, x.width = (int64_t)heads * dim / 2, x.dim = dim / 2, x.heads = heads;
    x.seq = a->seq, x.batch = a->batch, x.box_rows = box_rows;
    return x;
}

/* The FP8 forward kernel, which TE_ATTENTION_FORWARD_FP8 defines, as a type (attention_cuda.h). */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F> struct te__attn_sm90_fp8 : te__attn_fp8_traits<D> {
    typedef te__attn_fp8_traits<D> C;
    typedef te__attn_fp8_params args;
    static constexpr int BLOCKS = 1;
    static __device__ __forceinline__ void body(const args *p) {
        __shared__ te__attn_fwd_barriers bars;
        te__attn_fp8_kernel<T, C, HEADS, KV_HEADS, F>(p, &bars);
    }
    /* Returns TE_ERROR_DEVICE if the context's device cannot run the kernel. */
    static te_status ready(te_context *ctx, te_sm90_kernel *k, const char *name) {
        TE_REQUIRE(te__tensor_map_encoder(ctx) && te__sm90_kernel_ready(k, C::SHARED, ctx->device), ctx,
                   TE_ERROR_DEVICE, "%s: attention in FP8 has a kernel for compute capability 9.0 alone (sm_90a)",
                   name);
        return TE_OK;
    }
    /* Launches the kernel. Its operands were stored in the scratch memory by the cast kernels (name##_cast). */
    static te_status launch(te_context *ctx, te_sm90_kernel *k, const te_attention_args *a, const char *name) {
        const te_attention_fp8_operands of = te__attn_fp8_operands_of(a, HEADS, KV_HEADS, D);
        const te__tensor_map_encode_fn encode = te__tensor_map_encoder(ctx);
        const te__attn_heads_tensor q = te__attn_fp8_heads_tensor(of.q, D, HEADS, 64, a);
        const te__attn_heads_tensor keys = te__attn_fp8_heads_tensor(of.k, D, KV_HEADS, C::KEYS, a);
        te__attn_fp8_params all;
        memset(&all, 0, sizeof all);
        te__attn_fwd_params *p = &all.common;
        TE_TRY(te__attn_heads_tensor_map(&p->q, encode, &q, TE_bf16, ctx));
        TE_TRY(te__attn_heads_tensor_map(&p->kv, encode, &keys, TE_bf16, ctx));
        TE_TRY(te__attn_fp8_v_tensor_map(&all.v, encode, &of, D, KV_HEADS, a->batch, ctx));
        all.amax = of.amax;
        te__attn_fwd_schedule<C, HEADS, KV_HEADS, F>(p, a, ctx->tickets, (int64_t)a->seq * D * 2,
                                                     (int64_t)a->batch * KV_HEADS);
        const te_launch launch = te__launch_of(k->kernel, name, te__grid_of(te_min(ctx->processors, p->tiles), 1),
                                               C::THREADS, C::SHARED, 1);
        return te__cuda_launch(ctx, launch, &all, sizeof all);
    }
    /* Checks the arguments, runs the cast kernels, then the attention kernel. */
    static te_status run(te_context *ctx, te_sm90_kernel *k, const te_attention_args *a,
                         te_status (*cast)(te_context *ctx, const te_attention_args *a), const char *name) {
        TE_TRY(te__attention_check_fp8(ctx, a, HEADS, name));
        TE_TRY(te__attention_check_fp8_output(ctx, a, F::FP8_OUTPUT, name));
        TE_TRY(ready(ctx, k, name));
        TE_TRY(cast(ctx, a));
        return launch(ctx, k, a, name);
    }
};

#define TE_ATTENTION_FORWARD_FP8(name, dtype, heads, kv_heads, head_dim, options)                               \
    TE__ATTENTION_CUDA_VARIANT(name, dtype, heads, kv_heads, head_dim, options)                                 \
    TE__ATTENTION_FP8_ASSERT(dtype, head_dim)                                                                   \
    TE__ATTENTION_FP8_PASSES(name, dtype, heads, kv_heads, head_dim)                                            \
    typedef te__attn_sm90_fp8<TE_##dtype, (heads), (kv_heads), (head_dim), name##_variant> name##_of;            \
    TE__ATTENTION_SHELL(name##_wgmma, name##_of)                                                                \
    TE_UNUSED static te_sm90_kernel name##_kernel = {(const void *)name##_wgmma, 0, 0};                       \
    TE_API te_status name##_ready(te_context *ctx) { return name##_of::ready(ctx, &name##_kernel, #name); }     \
    TE_API te_status name##_launch(te_context *ctx, const te_attention_args *a) {                               \
        return name##_of::run(ctx, &name##_kernel, a, name##_cast, #name);                                      \
    }

#endif
