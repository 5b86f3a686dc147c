/* attention_sm90_softmax.h -- the work of a consumer warpgroup of attention_sm90_forward.h on the 64 rows of its tile
 * of scores: masks, softcap, ALiBi and dropout; softmax; and the epilogue, which stores O.
 *
 * Softmax subtracts the same number, row_max, from all scores of a row before it exponentiates. This number need not be
 * the row's maximum, as long as P neither overflows nor underflows. So row_max stays the maximum of the first tile of
 * keys until, in some later tile, the sum of a lane's elements of P in one row exceeds te__attn_rescale_threshold. Then
 * P of that tile is discarded: the warp recomputes S of the tile from Q and K, which are still in shared memory,
 * updates row_max, and rescales O and the rows' sums of P (the conditional rescale of FlashAttention-4). So most tiles
 * of keys need no maximum, no shuffle and no rescaling of O, and their exponentials begin as soon as S is complete.
 */
/* target: cuda */
#ifndef TE_ATTENTION_SM90_SOFTMAX_H
#define TE_ATTENTION_SM90_SOFTMAX_H

#include "../../core/math.h"      /* te_exp2 */
#include "attention_mask.h"    /* which keys a query sees */
#include "attention_sm80_tiles.h"     /* te__attn_ldmatrix, te__attn_softcapped, te__attn_alibi_at */
#include "attention_sm90_wgmma.h" /* te__attn_chunk_address */

/* The part of a warpgroup's tile that one thread has in registers: elements of two rows, e = 0 and e = 1. Row e = 1 is
 * eight rows below row e = 0. Four lanes share each row. */
template <class C> struct te__attn_fwd_fragments {
    typename C::scores s;         /* S; P later replaces it */
    uint32_t p[C::PACKED];        /* P in 16 bits, two numbers in each register: the A operand of the product P V */
    float o[C::V / 2];            /* O, the output, not yet divided by the rows' sums of P */
    /* Two numbers for each of the thread's rows. row_max: the number that is subtracted from the row's scores; row_sum:
     * the sum of this lane's elements of P in the row. */
    float row_max[2], row_sum[2];
};

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* The position of a warpgroup's tile of scores. mask: the mask of the sequence; head: the head, counted over all
 * sequences; query, key: the first query and the first key of the tile. */
struct te__attn_score_tile {
    te__attn_mask mask;
    int head, query, key;
};

/* Sets element i of this thread's scores to -inf. The scores are floats, or pairs of f16 in a uint32_t. */
template <int N> TE_FN void te__attn_mask_score(float (&s)[N], int i) { s[i] = -INFINITY; }
template <int N> TE_FN void te__attn_mask_score(uint32_t (&s)[N], int i) {
    s[i / 2] = i % 2 ? (s[i / 2] & 0xffffu) | 0xfc000000u : (s[i / 2] & 0xffff0000u) | 0xfc00u;
}
/* Sets to -inf each score whose query does not see its key. query: the query of this thread's first row of scores; key:
 * the key of this thread's first column. */
template <class C> TE_FN void te__attn_mask_scores(te__attn_fwd_fragments<C> &r, te__attn_mask m, int query, int key) {
    TE_UNROLL for (int i = 0; i < C::KEYS / 2; i++)
        if (!te__attn_sees(m, query + i / 2 % 2 * 8, key + i / 4 * 8 + i % 2)) te__attn_mask_score(r.s, i);
}

/* Returns whether all keys of the first tile of keys that is processed for a query may be masked. Without a cache, this
 * can happen only if the mask has a bound on the right, and not in causal self-attention, where the first tile contains
 * the query's own key. With a cache, it can happen with every mask, because a sequence that does not fit in the cache
 * has no keys. */
template <class F> TE_FN constexpr int te__attn_may_start_hidden(void) {
    return F::RIGHT > 0 || F::CACHED || (F::CROSS && F::RIGHT == 0);
}
/* Returns whether tiles of keys after the first one may be partly masked, too. */
template <class F> TE_FN constexpr int te__attn_masks_later_tiles(void) {
    return F::LEFT >= 0 || te__attn_may_start_hidden<F>();
}

/* The first query (row) and the first key (column) of this thread's part of a warpgroup's tile. The asm hides from the
 * compiler how these numbers were computed. So the compiler recomputes values derived from them, instead of holding
 * them in registers, of which none are left. */
struct te__attn_lane_origin { int query, key; };
TE_FN te__attn_lane_origin te__attn_lane_origin_of(int query, int key) {
    int thread = (int)threadIdx.x;
    asm volatile("" : "+r"(thread), "+r"(query), "+r"(key));
    return {query + thread / 32 % 4 * 16 + thread % 32 / 4, key + thread % 4 * 2};
}
/* Sets to -inf each score whose key lies outside the window of its query, by one comparison for each score. query, key:
 * the first query and the first key of the warpgroup's tile. Rows past the end of the sequence are not masked; they are
 * not stored either. */
template <class C>
TE_FN void te__attn_mask_window(te__attn_fwd_fragments<C> &r, te__attn_mask m, int query, int key) {
    const te__attn_lane_origin at = te__attn_lane_origin_of(query, key);
    TE_UNROLL for (int e = 0; e < 2; e++) {
        const int first = te__attn_keys_first(m, at.query + 8 * e);
        const int count = te__attn_keys_end(m, at.query + 8 * e) - first;
        TE_UNROLL for (int j = 0; j < C::KEYS / 8; j++)
            TE_UNROLL for (int i = 0; i < 2; i++)
                if ((uint32_t)(at.key - first + j * 8 + i) >= (uint32_t)count)
                    te__attn_mask_score(r.s, 4 * j + 2 * e + i);
    }
}
template <class F, class C> TE_FN void te__attn_softcap_scores(te__attn_fwd_fragments<C> &r, float scale) {
    if constexpr (F::SOFTCAP > 0)
        TE_UNROLL for (int i = 0; i < C::KEYS / 2; i++) r.s[i] = te__attn_softcapped<F>(r.s[i], scale);
}
template <int HEADS, class F, class C>
TE_FN void te__attn_alibi_scores(te__attn_fwd_fragments<C> &r, te_attention_shard whole, float scale,
                                 const te__attn_score_tile &t) {
    if constexpr (F::ALIBI) {
        const te__attn_lane_origin at = te__attn_lane_origin_of(t.query + t.mask.shift, t.key);
        const te__attn_alibi_bias b = te__attn_alibi_at<HEADS, F>(whole, t.head % HEADS, scale, at.query - at.key);
        TE_UNROLL for (int i = 0; i < C::KEYS / 2; i++)
            r.s[i] = te__attn_with_alibi<F>(r.s[i], b, i / 2 % 2 * 8 - i / 4 * 8 - i % 2);
    }
}
/* Sets to 0 those elements of P that dropout drops. p: the kernel's arguments. The random state is loaded from global
 * memory at each call, because no registers are left to hold it. */
template <int HEADS, class F, class C, class P>
TE_FN void te__attn_dropout_p(te__attn_fwd_fragments<C> &r, const P *p, const te__attn_score_tile &t) {
    const te__attn_lane_origin at = te__attn_lane_origin_of(t.query, t.key);
    const uint32_t row = te__attn_draw_row(te__attn_global_head(p->whole, t.head, HEADS), at.query, p->seq);
    te_rng rng;
    asm volatile("ld.global.nc.v2.u64 {%0, %1}, [%2];" : "=l"(rng.seed), "=l"(rng.offset) : "l"(p->rng));
    TE_UNROLL for (int j = 0; j < C::KEYS / 8; j += 4)
        TE_UNROLL for (int i = 0; i < 2; i++) {
            uint32_t word[4];
            te__attn_draw(word, rng, p->id, row, at.query, at.key + j * 8 + i);
            TE_UNROLL for (int k = 0; k < 4; k++)
                TE_UNROLL for (int e = 0; e < 2; e++)
                    if (te__attn_drops(word[k], e, F::DROP)) r.s[4 * (j + k) + 2 * e + i] = 0;
        }
}

/* ---- softmax ----------------------------------------------------------------------------------------------------- */

/* Returns the largest score of row e in this tile of keys; all lanes of the row get it. */
template <class C> TE_FN float te__attn_row_max(const te__attn_fwd_fragments<C> &r, int e) {
    float v[2] = {r.s[2 * e], r.s[2 * e + 1]};
    TE_UNROLL for (int j = 1; j < C::KEYS / 8; j++)
        TE_UNROLL for (int i = 0; i < 2; i++) v[i] = fmaxf(v[i], r.s[4 * j + 2 * e + i]);
    v[0] = fmaxf(v[0], v[1]);
    v[0] = fmaxf(v[0], __shfl_xor_sync(~0u, v[0], 1));
    return fmaxf(v[0], __shfl_xor_sync(~0u, v[0], 2));
}
/* Replaces S by P = exp2((S - row_max) * scale_log2) in row e. Returns the sum of this lane's elements of P in the
 * row. */
template <class C>
TE_FN float te__attn_exp_row(te__attn_fwd_fragments<C> &r, int e, float row_max, float scale_log2) {
    const float offset = row_max * scale_log2;
    float sum[2] = {0, 0};
    TE_UNROLL for (int j = 0; j < C::KEYS / 8; j++)
        TE_UNROLL for (int i = 0; i < 2; i++)
            sum[i] += r.s[4 * j + 2 * e + i] = te_exp2(r.s[4 * j + 2 * e + i] * scale_log2 - offset);
    return sum[0] + sum[1];
}
template <te_dtype T, class C> TE_FN void te__attn_pack_p(te__attn_fwd_fragments<C> &r) {
    TE_UNROLL for (int i = 0; i < C::KEYS / 4; i++) r.p[i] = te_pair_of_floats(r.s[2 * i], r.s[2 * i + 1], T);
}
/* If the sum of a lane's elements of P in one row of a tile exceeds this threshold, row_max is updated. No element
 * exceeds the sum, because elements of P are not negative. The threshold for f16 leaves a factor of 4 to 65504, the
 * largest f16. bf16 has the range of float, but the product P V must stay far below the end of this range. */
template <te_dtype T> TE_FN float te__attn_rescale_threshold(void) {
    return T == TE_bf16 ? 1024.0f * 1024 * 1024 * 1024 : 16384.0f;
}
/* Returns whether in any lane of this warp the sum of P exceeds te__attn_rescale_threshold, or is NaN, in one of the
 * lane's two rows. sum: this lane's two sums. */
template <te_dtype T> TE_FN int te__attn_needs_rescale(const float sum[2]) {
    const float limit = te__attn_rescale_threshold<T>();
    return __any_sync(~0u, !(sum[0] <= limit && sum[1] <= limit));
}

/* Recomputes S of a warp's 16 rows by mma.sync, which a warp can execute alone, unlike wgmma. q, k: the shared-memory
 * addresses of the warpgroup's rows of Q and of the tile of K. */
template <te_dtype T, class C>
TE_FN void te__attn_recompute_scores(te__attn_fwd_fragments<C> &r, uint32_t q, uint32_t k) {
    int lane = (int)threadIdx.x % 32;
    /* this makes the compiler recompute addresses, because no registers are left to hold them */
    asm volatile("" : "+r"(lane));
    const int q_row = (int)threadIdx.x / 32 % 4 * 16 + lane % 16;
    TE_UNROLL for (int i = 0; i < C::KEYS / 2; i++) r.s[i] = 0;
#pragma unroll 1
    for (int d = 0; d < C::D; d += 16) {
        const int chunk = d % 64 / 8, box = d / 64;
        uint32_t x[4], y[4];
        te__attn_ldmatrix(x, te__attn_chunk_address(q + box * 8192, q_row, chunk + lane / 16));
        TE_UNROLL for (int j = 0; j < C::KEYS / 16; j++) {
            const uint32_t rows = k + box * C::KV_BOX + (2 * j + lane / 16) * C::K_ROWS8; /* of eight rows */
            te__attn_ldmatrix(y, te__attn_chunk_address(rows, lane % 8, chunk + lane / 8 % 2));
            te__mma_sync(r.s + 8 * j, x, y[0], y[1], T), te__mma_sync(r.s + 8 * j + 4, x, y[2], y[3], T);
        }
    }
}
/* Returns the number to subtract from a row's scores if row_max is their maximum so far. This is row_max or, if all
 * keys so far were masked (row_max is -inf), 0, which makes P of the row 0. te__attn_fwd_step subtracts row_max itself:
 * if row_max is still -inf, P of a visible key becomes infinite, which exceeds te__attn_rescale_threshold, so that
 * te__attn_rescale updates row_max. */
template <class F> TE_FN float te__attn_finite_max(float row_max) {
    return te__attn_may_start_hidden<F>() && row_max == -INFINITY ? 0.0f : row_max;
}
/* Computes row_max, P and row_sum of the first tile of keys, with an attention sink: row_max includes the sink's logit,
 * and one of the row's lanes adds the sink's exponential to row_sum. sinks: one logit for each head of a sequence;
 * head: the tile's head, counted over all sequences. */
template <te_dtype T, int HEADS, class F, class C>
TE_FN void te__attn_init_sinks(te__attn_fwd_fragments<C> &r, float row_max[2], float row_sum[2],
                               const void *sinks, int head, float scale, float scale_log2) {
    const float sink = te_load(sinks, head % HEADS, T) / te__attn_score_unit<F>(scale);
    TE_UNROLL for (int e = 0; e < 2; e++) {
        row_max[e] = fmaxf(te__attn_row_max(r, e), sink);
        row_sum[e] = te__attn_exp_row(r, e, te__attn_finite_max<F>(row_max[e]), scale_log2);
        if (threadIdx.x % 4 == 0) row_sum[e] += te_exp2((sink - te__attn_finite_max<F>(row_max[e])) * scale_log2);
    }
}
/* Called when the sum of P has exceeded te__attn_rescale_threshold and S was recomputed: updates row_max, computes P,
 * and rescales O and row_sum. sum: output, for each of the thread's two rows, the sum of this lane's elements of P in
 * this tile. */
template <te_dtype T, class F, class C>
TE_FN void te__attn_rescale(te__attn_fwd_fragments<C> &r, float scale_log2, float sum[2]) {
    float factor[2];
    TE_UNROLL for (int e = 0; e < 2; e++) {
        const float old = r.row_max[e], row_max = fmaxf(old, te__attn_row_max(r, e));
        factor[e] = row_max == old ? 1.0f : te_exp2((old - row_max) * scale_log2);
        sum[e] = te__attn_exp_row(r, e, te__attn_finite_max<F>(row_max), scale_log2);
        r.row_max[e] = row_max, r.row_sum[e] *= factor[e];
    }
    TE_UNROLL for (int i = 0; i < C::V / 2; i++) r.o[i] *= factor[i / 2 % 2];
}

/* ---- epilogue ---------------------------------------------------------------------------------------------------- */

/* Transposes a 4 x 4 matrix that is distributed over four lanes: before the call, w of lane i is row i of the matrix;
 * after the call, w of lane i is column i. */
TE_FN void te__attn_transpose_lanes(uint32_t w[4], int lane) {
    TE_UNROLL for (int step = 1; step < 4; step *= 2)
        TE_UNROLL for (int i = 0; i < 4; i++) {
            if (i & step) continue;
            const uint32_t send = lane & step ? w[i] : w[i + step], received = __shfl_xor_sync(~0u, send, step);
            if (lane & step) w[i] = received;
            else w[i + step] = received;
        }
}
/* Where and how one thread stores its elements of the output of a warpgroup's tile of queries. */
struct te__attn_fwd_output {
    /* The address of query 0 of this head and sequence in the output, which is in e4m3 if scale is not null. */
    void *out;
    const float *scale; /* null, or the factor of an output in e4m3 (te_attention_args.out_scale) */
    int64_t width;      /* the distance, in elements, from one row of the output to the next */
    float *lse;         /* the address of query 0 of this head and sequence in the array lse, or null */
    /* query: the query of this thread's first row; seq: the number of queries of the sequence. Rows outside 0 to
     * seq - 1 are not stored. */
    int query, seq;
    float score_unit;   /* lse = row_max * score_unit + log(sum) */
    /* a factor by which O is multiplied: the factor of dropout or, in FP8, the dequantization factor of V */
    float factor;
    float *amax;        /* receives the amax of the output (te_attention_args.amax), or null */
};
/* Divides O by the rows' sums of P and stores it. Each lane stores 16 bytes at a time, so that four lanes together
 * store 64 bytes of a row. Also stores lse, and updates amax, unless their pointers are null. MAY_BE_EMPTY: 1 if a row
 * may see no key; the output of such a row is 0, and its lse is infinity. */
template <te_dtype T, int MAY_BE_EMPTY = 0, class C>
TE_FN void te__attn_fwd_epilogue(const te__attn_fwd_fragments<C> &r, const te__attn_fwd_output &to) {
    const int lane = (int)threadIdx.x % 32;
    TE_UNROLL for (int e = 0; e < 2; e++) {
        const int row = to.query + 8 * e;
        float sum = r.row_sum[e] + __shfl_xor_sync(~0u, r.row_sum[e], 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        /* The sum is at least 1, because row_max is the score of one of the row's keys or of its sink, and P of that
         * key or sink is 1. (In FP8, where row_max is rounded up but P has the factor 16, P of that key is more than
         * 1.) */
        const int is_empty = MAY_BE_EMPTY && sum == 0;
        const float inverse = is_empty ? 0.0f : to.factor * te_reciprocal(sum);
        void *const first = te__attn_out_at(to.out, (int64_t)row * to.width + lane % 4 * 8, to.scale);
        TE_UNROLL for (int j = 0; j < C::V / 8; j += 4) {
            uint32_t w[4];
            TE_UNROLL for (int i = 0; i < 4; i++) {
                const float *o = r.o + 4 * (j + i) + 2 * e;
                w[i] = te_pair_of_floats(o[0] * inverse, o[1] * inverse, T);
            }
            te__attn_transpose_lanes(w, lane);
            const uint4 eight = make_uint4(w[0], w[1], w[2], w[3]);
            void *const at = te__attn_out_at(first, 8 * j, to.scale);
            if (row >= 0 && row < to.seq && to.scale) *(uint2 *)at = te__attn_to_e4m3<T>(eight, to.scale);
            else if (row >= 0 && row < to.seq) *(uint4 *)at = eight;
        }
        if (to.lse && lane % 4 == 0 && row >= 0 && row < to.seq)
            to.lse[row] = is_empty ? INFINITY : r.row_max[e] * to.score_unit + logf(sum);
    }
    if (!to.amax) return;
    /* The amax is computed after the loop, from the stored numbers, because no registers are left for it while O is in
     * use. */
    uint32_t amax = 0;
    for (int row = to.query; row <= to.query + 8; row += 8) {
        const uint16_t *from = (const uint16_t *)to.out + (int64_t)row * to.width + lane % 4 * 8;
        for (int i = 0; row >= 0 && row < to.seq && i < C::V; i += 32)
            te__attn_track_amax(&amax, *(const uint4 *)(from + i));
    }
    te__attn_raise_amax<T>(to.amax, amax);
}
#endif

#endif
