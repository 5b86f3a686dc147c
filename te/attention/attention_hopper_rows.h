/* attention_hopper_rows.h -- what a warpgroup of attention_hopper_forward.h does with its 64 rows of scores and of
 * outputs: softmax, and the way out.
 *
 * Softmax takes some number off the scores of a row before it exponentiates, the same for the whole row. That it be the
 * maximum is only needed so that P neither overflows nor vanishes. So the maximum of the first tile of keys is kept
 * until a lane's sum of P over a tile exceeds te__attn_most: a tile costs no maximum, no shuffle and no rescaling of O,
 * and P = exp2(scale * S - kept) begins as soon as S is there. When a sum does exceed it, P is thrown away: the warp
 * computes S of this tile once more from Q and K, which are still in shared memory, takes the maximum and rescales what
 * it has summed up.
 */
/* target: cuda */
#ifndef TE_ATTENTION_HOPPER_ROWS_H
#define TE_ATTENTION_HOPPER_ROWS_H

#include "../core/math.h"     /* te_exp2 */
#include "attention_hopper.h" /* tiles and products of a warpgroup */
#include "impl/attention_mask.h"   /* which keys a query sees */
#include "impl/attention_sm80_tiles.h"    /* te__attn_ldmatrix */

/* What a thread holds of two rows, e = 0 and 1, the second eight below the first. Four lanes share a row. */
template <class C> struct te__attn_rows {
    typename C::scores s;    /* scores, then P */
    uint32_t p[C::PACKED];   /* P packed, the A operand of P V */
    float o[C::V / 2];       /* sums of P V */
    float top[2], sum[2];    /* what is taken off the scores; this lane's share of the sums of P */
};

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* Score i becomes -inf: one of floats, or of pairs of f16. */
template <int N> TE_FN void te__attn_hide_score(float (&s)[N], int i) { s[i] = -INFINITY; }
template <int N> TE_FN void te__attn_hide_score(uint32_t (&s)[N], int i) {
    s[i / 2] = i % 2 ? (s[i / 2] & 0xffffu) | 0xfc000000u : (s[i / 2] & 0xffff0000u) | 0xfc00u;
}
/* Scores of keys that a query does not see become -inf. query: of this thread's first row; key: of its first column. */
template <class C> TE_FN void te__attn_apply_mask(te__attn_rows<C> &r, te__attn_mask m, int query, int key) {
    TE_UNROLL for (int i = 0; i < C::KEYS / 2; i++)
        if (!te__attn_sees(m, query + i / 2 % 2 * 8, key + i / 4 * 8 + i % 2)) te__attn_hide_score(r.s, i);
}
template <class F, class C> TE_FN void te__attn_apply_softcap(te__attn_rows<C> &r, float scale) {
    if constexpr (F::SOFTCAP > 0)
        TE_UNROLL for (int i = 0; i < C::KEYS / 2; i++) r.s[i] = te__attn_softcapped<F>(r.s[i], scale);
}
/* ALiBi. head: of all sequences; query, key: the first of the warpgroup's. */
template <int HEADS, class F, class C>
TE_FN void te__attn_bias_rows(te__attn_rows<C> &r, float scale, int head, int query, int key) {
    if constexpr (F::ALIBI) {
        int thread = (int)threadIdx.x;
        asm volatile("" : "+r"(thread), "+r"(query), "+r"(key));
        const int distance = query + thread / 32 % 4 * 16 + thread % 32 / 4 - key - thread % 4 * 2;
        const te__attn_alibi_bias b = te__attn_alibi_at<HEADS, F>(head % HEADS, scale, distance);
        TE_UNROLL for (int i = 0; i < C::KEYS / 2; i++)
            r.s[i] = te__attn_with_alibi<F>(r.s[i], b, i / 2 % 2 * 8 - i / 4 * 8 - i % 2);
    }
}
/* P becomes 0 where dropout drops it. p: the kernel's arguments; head: of all sequences; query, key: the first of the
 * warpgroup's. The random state is read again each time, too. */
template <int HEADS, class F, class C, class P>
TE_FN void te__attn_drop_rows(te__attn_rows<C> &r, const P *p, int head, int query, int key) {
    int thread = (int)threadIdx.x;
    asm volatile("" : "+r"(thread), "+r"(query), "+r"(key));
    key += thread % 4 * 2, query += thread / 32 % 4 * 16 + thread % 32 / 4;
    const uint32_t row = te__attn_draw_row(te__attn_global_head(p->whole, head, HEADS), query, p->seq);
    te_rng rng;
    asm volatile("ld.global.nc.v2.u64 {%0, %1}, [%2];" : "=l"(rng.seed), "=l"(rng.offset) : "l"(p->rng));
    TE_UNROLL for (int j = 0; j < C::KEYS / 8; j += 4)
        TE_UNROLL for (int i = 0; i < 2; i++) {
            uint32_t word[4];
            te__attn_draw(word, rng, p->id, row, query, key + j * 8 + i);
            TE_UNROLL for (int k = 0; k < 4; k++)
                TE_UNROLL for (int e = 0; e < 2; e++)
                    if (te__attn_drops(word[k], e, F::DROP)) r.s[4 * (j + k) + 2 * e + i] = 0;
        }
}
/* Whether the first tile of keys may be hidden from some queries, and whether others than the first may be cut. */
template <class F> TE_FN constexpr int te__attn_is_ahead(void) { return F::RIGHT > 0 || (F::CROSS && F::RIGHT == 0); }
template <class F> TE_FN constexpr int te__attn_is_window(void) { return F::LEFT >= 0 || te__attn_is_ahead<F>(); }
/* For a window, by one comparison a score. query, key: the first of the warpgroup's. Rows that do not exist are
 * not hidden. What it needs is found again each time, for there are no registers to keep it in. */
template <class C> TE_FN void te__attn_hide_outside(te__attn_rows<C> &r, te__attn_mask m, int query, int key) {
    int thread = (int)threadIdx.x;
    asm volatile("" : "+r"(thread), "+r"(query), "+r"(key));
    key += thread % 4 * 2, query += thread / 32 % 4 * 16 + thread % 32 / 4;
    TE_UNROLL for (int e = 0; e < 2; e++) {
        const int first = te__attn_keys_first(m, query + 8 * e), count = te__attn_keys_end(m, query + 8 * e) - first;
        TE_UNROLL for (int j = 0; j < C::KEYS / 8; j++)
            TE_UNROLL for (int i = 0; i < 2; i++)
                if ((uint32_t)(key - first + j * 8 + i) >= (uint32_t)count) te__attn_hide_score(r.s, 4 * j + 2 * e + i);
    }
}
/* The largest score of row e. */
template <class C> TE_FN float te__attn_top(const te__attn_rows<C> &r, int e) {
    float v[2] = {r.s[2 * e], r.s[2 * e + 1]};
    TE_UNROLL for (int j = 1; j < C::KEYS / 8; j++)
        TE_UNROLL for (int i = 0; i < 2; i++) v[i] = fmaxf(v[i], r.s[4 * j + 2 * e + i]);
    v[0] = fmaxf(v[0], v[1]);
    v[0] = fmaxf(v[0], __shfl_xor_sync(~0u, v[0], 1));
    return fmaxf(v[0], __shfl_xor_sync(~0u, v[0], 2));
}
/* s becomes P in row e; returns its sum. c: the scale, in powers of two. */
template <class C> TE_FN float te__attn_exp(te__attn_rows<C> &r, int e, float top, float c) {
    const float off = top * c;
    float sum[2] = {0, 0};
    TE_UNROLL for (int j = 0; j < C::KEYS / 8; j++)
        TE_UNROLL for (int i = 0; i < 2; i++)
            sum[i] += r.s[4 * j + 2 * e + i] = te_exp2(r.s[4 * j + 2 * e + i] * c - off);
    return sum[0] + sum[1];
}
template <te_dtype T, class C> TE_FN void te__attn_pack(te__attn_rows<C> &r) {
    TE_UNROLL for (int i = 0; i < C::KEYS / 4; i++) r.p[i] = te_pair_of_floats(r.s[2 * i], r.s[2 * i + 1], T);
}
/* The sum of P over the columns of a tile that a lane has in a row, at most. Each P is below it too: f16 ends at 65504.
 * bf16 ends where float does, and the products of P and V are to stay far from there. */
template <te_dtype T> TE_FN float te__attn_most(void) { return T == TE_bf16 ? 1024.0f * 1024 * 1024 * 1024 : 16384.0f; }
/* Whether a row of this warp has outgrown its maximum. */
template <te_dtype T> TE_FN int te__attn_outgrown(const float sum[2]) {
    return __any_sync(~0u, !(sum[0] <= te__attn_most<T>() && sum[1] <= te__attn_most<T>()));
}

/* S of a warp's 16 rows once more, by mma.sync. q: the tile of Q of its warpgroup; k: the tile of K. */
template <te_dtype T, class C> TE_FN void te__attn_scores_again(te__attn_rows<C> &r, uint32_t q, uint32_t k) {
    int lane = (int)threadIdx.x % 32;
    asm volatile("" : "+r"(lane)); /* addresses are found again rather than kept: there are no registers for them */
    const int q_row = (int)threadIdx.x / 32 % 4 * 16 + lane % 16, k_row = lane / 16 * 8 + lane % 8;
    TE_UNROLL for (int i = 0; i < C::KEYS / 2; i++) r.s[i] = 0;
#pragma unroll 1
    for (int d = 0; d < C::D; d += 16) {
        const int piece = d % 64 / 8, box = d / 64;
        uint32_t x[4], y[4];
        te__attn_ldmatrix(x, te__attn_piece_at(q + box * 8192, q_row, piece + lane / 16));
        TE_UNROLL for (int j = 0; j < C::KEYS / 16; j++) {
            te__attn_ldmatrix(y, te__attn_piece_at(k + box * (C::KEYS * 128), 16 * j + k_row, piece + lane / 8 % 2));
            te__mma_sync(r.s + 8 * j, x, y[0], y[1], T), te__mma_sync(r.s + 8 * j + 4, x, y[2], y[3], T);
        }
    }
}
/* A row whose keys all lie before the first tile that is taken has a maximum of -inf until it sees one: P of it is 0
 * then, and the first key that it sees outgrows that maximum. It takes a bound on the right; the first tile of causal
 * rows has the query's own key, if there are as many keys as queries. */
template <class F> TE_FN float te__attn_kept(float top) {
    return te__attn_is_ahead<F>() && top == -INFINITY ? 0.0f : top;
}
/* A row begins with its sink: its maximum then is not below the sink, and one of its lanes adds it up. sinks: of one
 * sequence; head: of all of them. */
template <te_dtype T, int HEADS, class F, class C>
TE_FN void te__attn_sink_rows(te__attn_rows<C> &r, float top[2], float sum[2], const void *sinks, int head,
                              float scale, float c) {
    const float sink = te_load(sinks, head % HEADS, T) / te__attn_score_unit<F>(scale);
    TE_UNROLL for (int e = 0; e < 2; e++) {
        top[e] = fmaxf(te__attn_top(r, e), sink);
        sum[e] = te__attn_exp(r, e, te__attn_kept<F>(top[e]), c);
        if (threadIdx.x % 4 == 0) sum[e] += te_exp2((sink - te__attn_kept<F>(top[e])) * c);
    }
}
/* Scores are there again: take the new maxima, and rescale what was summed up. sum: of P over this tile. */
template <te_dtype T, class F, class C> TE_FN void te__attn_raise(te__attn_rows<C> &r, float c, float sum[2]) {
    float shrink[2];
    TE_UNROLL for (int e = 0; e < 2; e++) {
        const float old = r.top[e], top = fmaxf(old, te__attn_top(r, e));
        shrink[e] = top == old ? 1.0f : te_exp2((old - top) * c);
        sum[e] = te__attn_exp(r, e, te__attn_kept<F>(top), c), r.top[e] = top, r.sum[e] *= shrink[e];
    }
    TE_UNROLL for (int i = 0; i < C::V / 2; i++) r.o[i] *= shrink[i / 2 % 2];
}

/* ---- the way out ----------------------------------------------------------------------------------------------- */

/* Of a 4 x 4 matrix each of four lanes has a row; then each has a column. */
TE_FN void te__attn_transpose(uint32_t w[4], int lane) {
    TE_UNROLL for (int step = 1; step < 4; step *= 2)
        TE_UNROLL for (int i = 0; i < 4; i++) {
            if (i & step) continue;
            const uint32_t give = lane & step ? w[i] : w[i + step], got = __shfl_xor_sync(~0u, give, step);
            if (lane & step) w[i] = got;
            else w[i + step] = got;
        }
}
/* Divide O by the sums and store it, a lane 16 bytes and four lanes 64 of a row at a time; and lse. out: row 0 of this
 * head and sequence, `width` numbers from row to row, as te_attention_args.out_scale says; lse: likewise, or null;
 * query: of this thread's first row; factor: of O, for dropout; amax: as te_attention_args.amax. */
template <te_dtype T, class C>
TE_FN void te__attn_finish(const te__attn_rows<C> &r, void *out, const float *out_scale, int64_t width, float *lse,
                           int query, int seq, float scale, float factor, float *amax) {
    const int lane = (int)threadIdx.x % 32;
    TE_UNROLL for (int e = 0; e < 2; e++) {
        const int row = query + 8 * e;
        float sum = r.sum[e] + __shfl_xor_sync(~0u, r.sum[e], 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const float inverse = factor * te_reciprocal(sum); /* the row's maximum alone is 1, or more */
        void *const to = te__attn_out_at(out, (int64_t)row * width + lane % 4 * 8, out_scale);
        TE_UNROLL for (int j = 0; j < C::V / 8; j += 4) {
            uint32_t w[4];
            TE_UNROLL for (int i = 0; i < 4; i++) {
                const float *o = r.o + 4 * (j + i) + 2 * e;
                w[i] = te_pair_of_floats(o[0] * inverse, o[1] * inverse, T);
            }
            te__attn_transpose(w, lane);
            const uint4 eight = make_uint4(w[0], w[1], w[2], w[3]);
            void *const at = te__attn_out_at(to, 8 * j, out_scale);
            if (row >= 0 && row < seq && out_scale) *(uint2 *)at = te__attn_to_e4m3<T>(eight, out_scale);
            else if (row >= 0 && row < seq) *(uint4 *)at = eight;
        }
        if (lse && lane % 4 == 0 && row >= 0 && row < seq) lse[row] = r.top[e] * scale + logf(sum);
    }
    if (!amax) return;
    uint32_t most = 0; /* read back, for no register is left while O lives */
    for (int row = query; row <= query + 8; row += 8) {
        const uint16_t *from = (const uint16_t *)out + (int64_t)row * width + lane % 4 * 8;
        for (int i = 0; row >= 0 && row < seq && i < C::V; i += 32) te__attn_track_amax(&most, *(const uint4 *)(from + i));
    }
    te__attn_raise_amax<T>(amax, most);
}
#endif

#endif
