/* attention_sm90_backward_mainloop.h -- the consumer warpgroups of attention_sm90_backward.h for head sizes up to 128.
 * attention_sm90_backward_2cta.h uses some of these functions for larger head sizes, too.
 *
 * A block holds 128 keys, their values, and their dK and dV; each of its two consumer warpgroups works on 64 of the
 * keys. A step processes a tile of queries of one head:
 *
 *     S^T = K Q^T, P^T = exp(S^T - lse), dV += P^T dO. P^T is an A operand in registers.
 *     dP^T = V dO^T, dS^T = P^T * (dP^T - delta), dK += dS^T Q. dS^T is an A operand in registers.
 *     dQ = dS K of the previous step. For this, dS of both warpgroups (128 keys) is stored in shared memory.
 *
 * Because dQ is computed one step later, no warpgroup waits for the dS of the other warpgroup; and while one warpgroup
 * computes P or dS, the tensor cores run the products of the other one. Above head size 64 a warpgroup computes the
 * dQ of all queries in every other step; up to head size 64 it computes the dQ of half of the queries in every step. dQ
 * is stored to shared memory, from which the producer adds it to global memory (attention_sm90_backward_producer.h).
 */
/* target: cuda */
#ifndef TE_ATTENTION_SM90_BACKWARD_MAINLOOP_H
#define TE_ATTENTION_SM90_BACKWARD_MAINLOOP_H

#include "attention_sm80_tiles.h"                 /* te__attn_softcapped, te__attn_alibi_at */
#include "attention_sm90_backward_producer.h" /* the kernel's arguments, constants and tile scheduler */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* Wait until the other consumer warpgroup has called te__attn_bwd_pingpong_pass, so that the two warpgroups issue their
 * products in turn (ping-pong scheduling). */
TE_FN void te__attn_bwd_pingpong_wait(int group) {
    if (group) asm volatile("bar.sync 4, 256;" ::: "memory");
    else asm volatile("bar.sync 3, 256;" ::: "memory");
}
/* Let the other consumer warpgroup return from te__attn_bwd_pingpong_wait, so that it may issue its products (ping-pong
 * scheduling). */
TE_FN void te__attn_bwd_pingpong_pass(int group) {
    if (group) asm volatile("bar.arrive 3, 256;" ::: "memory");
    else asm volatile("bar.arrive 4, 256;" ::: "memory");
}

/* ---- epilogue of dK and dV --------------------------------------------------------------------------------------- */

/* Transposes a 4 x 4 matrix that is distributed over the four lanes of a quad: v[s] of lane t moves to v[t] of lane s.
 * Afterwards each lane has 16 consecutive bytes of a row of dK or dV. */
TE_FN void te__attn_transpose_quad(uint32_t (&v)[4], int t) {
    const uint32_t a = __shfl_xor_sync(~0u, t & 2 ? v[0] : v[2], 2), b = __shfl_xor_sync(~0u, t & 2 ? v[1] : v[3], 2);
    if (t & 2) v[0] = a, v[1] = b;
    else v[2] = a, v[3] = b;
    const uint32_t c = __shfl_xor_sync(~0u, t & 1 ? v[0] : v[1], 1), d = __shfl_xor_sync(~0u, t & 1 ? v[2] : v[3], 1);
    if (t & 1) v[0] = c, v[2] = d;
    else v[1] = c, v[3] = d;
}
/* Where and how a warpgroup stores its 64 rows of dK or dV. */
struct te__attn_bwd_output {
    uint16_t *to;       /* the address of row 0, column 0 */
    int64_t width;      /* the distance, in elements, from one row to the next in `to` and in `sum` */
    int valid;          /* how many of the 64 rows lie in the sequence; only these are stored */
    float factor;       /* the factor by which the accumulators are multiplied before they are stored */
    /* Receives the column sums: for each column of the stored numbers, one sum over each group of SUM_ROWS rows. If
     * `sum` is null, the sums are not computed. */
    float *sum;
    /* [2, 16] floats of shared memory that belong to this warpgroup; one warp passes column sums to another warp in
     * this memory */
    float (*part)[16];
    int group;          /* the number of the warpgroup, 0 or 1 */
    float *amax;        /* receives the amax of the stored numbers (te_attention_args.amax), unless null */
};
/* Stores to `sum`, for each of `columns` columns (at most 64), one sum over each group of SUM_ROWS rows. u: this lane's
 * elements of these columns, already rounded to 16 bits. */
template <te_dtype T, int SUM_ROWS>
TE_FN void te__attn_bwd_column_sums(float *sum, const te__attn_bwd_output &o, const uint32_t (&u)[8][2], int columns) {
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int warp = (int)threadIdx.x / 32 % 4, row = warp * 16 + g;
    TE_UNROLL for (int x = 0; x < 4; x++) {
        if (16 * x >= columns) continue;
        float2 s[2];
        TE_UNROLL for (int j = 0; j < 2; j++) {
            s[j] = make_float2(0, 0);
            TE_UNROLL for (int h = 0; h < 2; h++) {
                const float2 v = te_floats_of_pair(u[2 * x + j][h], T);
                if (row + 8 * h < o.valid) s[j].x += v.x, s[j].y += v.y;
            }
            TE_UNROLL for (int l = 4; l < 32; l *= 2)
                s[j].x += __shfl_xor_sync(~0u, s[j].x, l), s[j].y += __shfl_xor_sync(~0u, s[j].y, l);
            if (SUM_ROWS == 32 && warp % 2 && g == 0) *(float2 *)&o.part[warp / 2][8 * j + 2 * t] = s[j];
            if (SUM_ROWS == 16 && g == 0 && warp * 16 < o.valid)
                *(float2 *)(sum + warp * o.width + 16 * x + 8 * j + 2 * t) = s[j];
        }
        /* with SUM_ROWS 16, the sum over the 16 rows of one warp is already complete */
        if (SUM_ROWS == 16) continue;
        te__attn_warpgroup_sync(o.group);
        if (warp % 2 == 0 && g == 0 && warp * 16 < o.valid) TE_UNROLL for (int j = 0; j < 2; j++) {
            const float2 v = *(const float2 *)&o.part[warp / 2][8 * j + 2 * t];
            *(float2 *)(sum + warp / 2 * o.width + 16 * x + 8 * j + 2 * t) = make_float2(s[j].x + v.x, s[j].y + v.y);
        }
        te__attn_warpgroup_sync(o.group);
    }
}
/* Multiplies d, a warpgroup's 64 rows of D columns, by o.factor, and stores the results in 16 bits. Also stores the
 * column sums of the rounded numbers unless o.sum is null, and updates the amax unless o.amax is null. */
template <te_dtype T, int D, int SUM_ROWS>
TE_FN void te__attn_bwd_epilogue(const float (&d)[D / 2], const te__attn_bwd_output &o) {
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int warp = (int)threadIdx.x / 32 % 4, row = warp * 16 + g;
    /* The loop processes 64 columns at a time, because few registers are left. */
    TE_UNROLL for (int x = 0; x < D; x += 64) {
        uint32_t u[8][2];
        TE_UNROLL for (int j = 0; j < 8; j++)
            TE_UNROLL for (int h = 0; h < 2; h++) {
                if (x + 8 * j >= D) continue;
                const float *pair = d + x / 2 + 4 * j + 2 * h;
                u[j][h] = te_pair_of_floats(pair[0] * o.factor, pair[1] * o.factor, T);
            }
        if (o.sum) te__attn_bwd_column_sums<T, SUM_ROWS>(o.sum + x, o, u, D - x);
        TE_UNROLL for (int j = 0; j < 8; j += 4)
            TE_UNROLL for (int h = 0; h < 2; h++) {
                if (x + 8 * j >= D) continue;
                uint32_t v[4] = {u[j][h], u[j + 1][h], u[j + 2][h], u[j + 3][h]};
                te__attn_transpose_quad(v, t);
                if (row + 8 * h < o.valid)
                    *(uint4 *)(o.to + (row + 8 * h) * o.width + x + 8 * (j + t)) = make_uint4(v[0], v[1], v[2], v[3]);
            }
    }
    if (!o.amax) return;
    /* The amax is computed after the loop, from the stored numbers, because no registers are left for it while d is in
     * use. */
    uint32_t amax = 0;
    for (int stored = row; stored <= row + 8 && stored < o.valid; stored += 8)
        for (int x = 8 * t; x < D; x += 32) te__attn_track_amax(&amax, *(const uint4 *)(o.to + stored * o.width + x));
    te__attn_raise_amax<T>(o.amax, amax);
}

/* ---- parts of a step --------------------------------------------------------------------------------------------- */

/* The state of a consumer warpgroup. */
template <class C> struct te__attn_bwd_warpgroup {
    /* addresses in shared memory. base: the address of the tiles; at: the address of the struct te__attn_bwd_shared */
    uint32_t base, at;
    int group, warp, lane; /* group: the number of the warpgroup, 0 or 1; warp: the warp's index within the warpgroup */
    int rank;              /* with TWO_CTA (clusters of two blocks): the rank of this block in its cluster */
    int i;                 /* the number of the current step, counted over all key tiles that the block processes */
    int seq;               /* the number of queries of the sequence to which the current key tile belongs */
};

/* Return the index of this warpgroup's first key within the block's tile of keys. */
template <class C>
TE_FN int te__attn_bwd_key_offset(const te__attn_bwd_warpgroup<C> *g) {
    return C::TWO_CTA ? 0 : g->group * 64;
}
/* Returns `lane` with its origin hidden from the compiler, so that values derived from it are recomputed rather than
 * held in registers. */
TE_FN int te__attn_rematerialize(int lane) {
    asm volatile("" : "+r"(lane));
    return lane;
}
/* The shared-memory address of member `name` of te__attn_bwd_shared. index: the index of an mbarrier in an array of
 * mbarriers; 0 for all other members. */
#define TE__ATTN_BWD_AT(g, name, index) ((g)->at + (uint32_t)(offsetof(typename C::shared, name) + 8 * (index)))
template <class C> TE_FN void te__attn_bwd_arrive(const te__attn_bwd_warpgroup<C> *g, uint32_t bar) {
    if (g->lane < TE__ATTN_BWD_ARRIVING_LANES) te__barrier_arrive(bar);
}
/* Issues the product S^T = K Q^T (which = 0) or dP^T = V dO^T (which = 1) for this warpgroup's 64 keys and the queries
 * of the step. keys: the address of these 64 rows of K or V; queries: the address of the tile of Q or dO. If C::FOLDED
 * is 1, the accumulation begins with a wgmma that adds -lse / scale or -delta of each query
 * (te__attn_bwd_stats_descriptor). */
template <te_dtype T, int D, class C>
TE_FN void te__attn_bwd_gemm_scores(float (&s)[C::QUERIES / 2], uint32_t keys, uint32_t queries,
                                const te__attn_bwd_warpgroup<C> *g, const int which) {
    if constexpr (C::FOLDED) {
        /* This wgmma multiplies the sixteen columns that are appended to both operands (te__attn_bwd_folds_stats). A is
         * 1 in the columns where B has the three bf16 terms of -lse / scale (in the product for dP: of -delta), else 0.
         * A lane holds columns 2 * quad, 2 * quad + 1, 2 * quad + 8 and 2 * quad + 9 of the sixteen. */
        const int quad = te__attn_rematerialize(g->lane) % 4;
        const uint32_t ones = quad / 2 != which ? 0 : quad % 2 ? 0x3f80 : 0x3f803f80, a[4] = {ones, ones, 0, 0};
        te__wgmma_atom<C::QUERIES>::template rs<T, 0>(
            s, a, te__attn_bwd_stats_descriptor(TE__ATTN_BWD_AT(g, lse, 0) + (g->i & 1) * C::QUERIES * 16), 0);
    }
    TE_UNROLL for (int x = 0; x < D / 16; x++)
        te__wgmma_atom<C::QUERIES>::template ss<T, 0>(
            s, te__wgmma_descriptor(keys + x / 4 * C::BLOCK_KEYS * 128, 0) + 2 * (x % 4),
            te__wgmma_descriptor(queries + x / 4 * C::QUERIES * 128, 0) + 2 * (x % 4), C::FOLDED || x > 0);
}
/* Issues the product dV += P^T dO or dK += dS^T Q. a: P^T or dS^T in registers, 64 rows (this warpgroup's keys) by
 * QUERIES columns; queries: the address of the tile of dO or Q. If first is 1, the product overwrites d instead of
 * adding to it. */
template <te_dtype T, int D, class C>
TE_FN void te__attn_bwd_gemm_gradient(float (&d)[D / 2], const uint32_t (&a)[C::QUERIES / 16][4], uint32_t queries,
                                  const int first) {
    TE_UNROLL for (int x = 0; x < C::QUERIES / 16; x++)
        te__wgmma_atom<D>::template rs<T, 1>(d, a[x], te__wgmma_descriptor(queries, 1) + 128 * x, !first || x > 0);
}
/* Issues the product dQ = dS K for 64 queries and 2 * N columns; N is the number of a thread's accumulators. Above head
 * size 64, a step has 64 queries, and this warpgroup computes dQ of all of them; up to head size 64, a step has 128
 * queries, of which this warpgroup computes 64. stage: the stage that holds the step's dS. */
template <te_dtype T, int D, class C, int N>
TE_FN void te__attn_bwd_gemm_dq(float (&dq)[N], const te__attn_bwd_warpgroup<C> *g, int stage) {
    const uint32_t ds = g->base + C::DS_AT + stage * C::DS_BYTES + (D > 64 ? 0 : g->group * 8192);
    const uint64_t k = te__attn_tile_descriptor(g->base, C::KEYS);
    TE_UNROLL for (int x = 0; x < C::KEYS / 16; x++)
        te__wgmma_atom<2 * N>::template ss<T, 1>(
            dq, te__wgmma_descriptor(ds + x / 4 * C::QUERIES * 128, 0) + 2 * (x % 4), k + 128 * x, x > 0);
}
/* Waits until the mbarrier `empty` has completed its phase of parity `phase`, then stores dQ of 64 queries by 2 * N
 * columns to shared memory, at address `to`. left: the number of queries from the first of these 64 to the end of the
 * sequence. The layout depends on whether `left` is 64 or more; te__attn_bwd_dq_at describes both layouts. */
template <class C, int N>
TE_FN void te__attn_bwd_dq_to_shared(const float (&dq)[N], const te__attn_bwd_warpgroup<C> *g, uint32_t to,
                                     uint32_t empty, int phase, int left) {
    constexpr int PITCH = N * 8; /* number of bytes of a row, which has 2 * N columns of f32 */
    const int lane = te__attn_rematerialize(g->lane);
    te__barrier_wait(empty, phase);
    if (left >= 64) {
        TE_UNROLL for (int n = 0; n < N / 4; n++)
            te__attn_shared_store4(to + (g->warp * 32 + lane) * 16 + n * 2048, dq + 4 * n);
    } else {
        const uint32_t row = to + (g->warp * 16 + lane / 4) * PITCH + lane % 4 * 8;
        TE_UNROLL for (int n = 0; n < N / 4; n++)
            te__attn_shared_store2(row + n * 32, dq + 4 * n),
                te__attn_shared_store2(row + 8 * PITCH + n * 32, dq + 4 * n + 2);
    }
}
/* Stores this warpgroup's dQ of step j to shared memory. Each stage has memory for two boxes of 64 x 64 floats. If one
 * warpgroup computes the whole dQ of a step (DQ_ALTERNATES), it stores both boxes; else each warpgroup stores one. */
template <class C>
TE_FN void te__attn_bwd_dq_to_shared(const float (&dq)[C::DQ_REGISTERS], const te__attn_bwd_warpgroup<C> *g, int j,
                                     int left) {
    const uint32_t to = g->base + C::DQ_AT + (j & 1) * 2 * TE__ATTN_BWD_DQ_BOX_BYTES,
                   empty = TE__ATTN_BWD_AT(g, dq_empty, j & 1);
    const int slot = C::DQ_ALTERNATES ? 0 : g->group;
    TE_UNROLL for (int n = 0; n < C::DQ_REGISTERS / 32; n++) {
        float part[32];
        TE_UNROLL for (int i = 0; i < 32; i++) part[i] = dq[32 * n + i];
        te__attn_bwd_dq_to_shared(part, g, to + (slot + n) * TE__ATTN_BWD_DQ_BOX_BYTES, empty, (j >> 1 & 1) ^ 1, left);
    }
}
/* Loads the lse or the delta of this lane's columns of S^T, i.e. of its queries, to registers ahead of use, if there
 * are registers for it (C::PREFETCH). from: the address of the step's lse or delta in shared memory. */
template <class C>
TE_FN void te__attn_bwd_prefetch_stats(float2 (&stats)[C::PREFETCH ? C::QUERIES / 8 : 1], uint32_t from,
                               const te__attn_bwd_warpgroup<C> *g) {
    if (C::PREFETCH) {
        TE_UNROLL
        for (int n = 0; n < C::QUERIES / 8; n++) stats[n] = te__attn_shared_load2(from + 32 * n + g->lane % 4 * 8);
    }
}
/* Returns the lse or the delta of the two columns (queries) that this lane holds among columns 8 * n to 8 * n + 7 of
 * S^T: from `stats`, if te__attn_bwd_prefetch_stats has loaded it, else from shared memory at address `from`. */
template <class C>
TE_FN float2 te__attn_bwd_stat(const float2 (&stats)[C::PREFETCH ? C::QUERIES / 8 : 1], uint32_t from, int n,
                               const te__attn_bwd_warpgroup<C> *g) {
    return C::PREFETCH ? stats[C::PREFETCH ? n : 0] : te__attn_shared_load2(from + 32 * n + g->lane % 4 * 8);
}
/* A tile of scores. query: the tile's first query; key: the block's first key; head: the query head, counted over all
 * sequences. */
struct te__attn_bwd_tile { int query, key, head; };

/* Draws the dropout mask of this lane's scores of a step: one bit for each score, which is set if the score is dropped.
 * The mask is drawn before the scores are complete, while the products of the other warpgroup run. */
template <int HEADS, class F, class C>
TE_FN void te__attn_bwd_draw_dropout(uint32_t (&dropped)[C::QUERIES / 64], const te__attn_bwd_params *p,
                              const te__attn_bwd_warpgroup<C> *g, const te__attn_bwd_tile &t) {
    const int lane = te__attn_rematerialize(g->lane),
              key = t.key + te__attn_bwd_key_offset(g) + g->warp * 16 + lane / 4;
    const uint32_t row = te__attn_draw_row(te__attn_global_head(p->a.whole, t.head, HEADS), t.query, p->a.seq);
    te_rng rng;
    asm volatile("ld.global.nc.v2.u64 {%0, %1}, [%2];" : "=l"(rng.seed), "=l"(rng.offset) : "l"(p->a.rng));
    TE_UNROLL for (int n = 0; n < C::QUERIES / 8; n += 2) {
        if (n % 8 == 0) dropped[n / 8] = 0;
        TE_UNROLL for (int i = 0; i < 2; i++) {
            uint32_t word[4];
            te__attn_draw(word, rng, p->a.id, row + n / 2, lane % 4 * 2 + i, key);
            /* one call of the random number generator Philox serves 32 keys, of which this warp has 16 */
            TE_UNROLL for (int h = 0; h < 2; h++)
                TE_UNROLL for (int x = 0; x < 2; x++)
                    if (te__attn_drops(g->warp % 2 ? word[2 + h] : word[h], x, F::DROP))
                        dropped[n / 8] |= 1u << (4 * (n % 8 + x) + 2 * h + i);
        }
    }
    TE_UNROLL for (int i = 0; i < C::QUERIES / 64; i++) asm volatile("" : "+r"(dropped[i])::"memory");
}
/* Computes P from S. p16: output, P in 16 bits, the A operand of the product for dV. ds_factor: output if softcap or
 * dropout is used: the factor that replaces P in dS = P * (dP - delta) (attention_options.h). dropped: the dropout mask
 * from te__attn_bwd_draw_dropout. */
template <te_dtype T, int HEADS, class F, class C>
TE_FN void te__attn_bwd_softmax(uint32_t (&p16)[C::QUERIES / 16][4], uint32_t (&ds_factor)[C::QUERIES / 16][4],
                                float (&s)[C::QUERIES / 2], const float2 (&stats)[C::PREFETCH ? C::QUERIES / 8 : 1],
                                const te__attn_bwd_params *p, const te__attn_bwd_warpgroup<C> *g,
                                const te__attn_bwd_tile &t, const uint32_t (&dropped)[C::QUERIES / 64]) {
    constexpr int N = C::QUERIES / 8;
    const int lane = te__attn_rematerialize(g->lane), key0 = t.key + te__attn_bwd_key_offset(g);
    const te__attn_mask m = te__attn_bwd_mask<F>(p, F::VARLEN ? g->seq : p->a.seq);
    const uint32_t lse = TE__ATTN_BWD_AT(g, lse, 0) + (g->i & 1) * C::QUERIES * 4;
    const float c = te__attn_score_unit<F>(p->a.scale) * TE__ATTN_LOG2E;
    if constexpr (F::SOFTCAP > 0)
        TE_UNROLL for (int i = 0; i < C::QUERIES / 2; i++) s[i] = te__attn_softcapped<F>(s[i], p->a.scale);
    if (te__attn_needs_mask(te__attn_keys_of(m, t.query, C::QUERIES), key0,
                      /* queries past the end of the sequence need no mask: their lse is infinite, so their P is 0 */
                      64)) {
        const int key = key0 + g->warp * 16 + lane / 4;
        TE_UNROLL for (int n = 0; n < N; n++)
            TE_UNROLL for (int e = 0; e < 4; e++) {
                const int query = t.query + 8 * n + lane % 4 * 2 + e % 2;
                const int at = key + e / 2 * 8;
                if (at >= m.keys || !te__attn_seen(m, at, query)) s[4 * n + e] = -INFINITY;
            }
    }
    const te__attn_alibi_bias bias = te__attn_alibi_at<HEADS, F>(
        p->a.whole, t.head % HEADS, p->a.scale, t.query + m.shift + lane % 4 * 2 - key0 - g->warp * 16 - lane / 4);
    TE_UNROLL for (int n = 0; n < N; n++) {
        float2 l = make_float2(0, 0);
        if (!C::FOLDED) l = te__attn_bwd_stat<C>(stats, lse, n, g);
        float slope[4];
        TE_UNROLL for (int e = 0; e < 4; e++) slope[e] = te__attn_softcap_grad<F>(s[4 * n + e]);
        TE_UNROLL for (int e = 0; e < 4; e++)
            s[4 * n + e] = te__attn_with_alibi<F>(s[4 * n + e], bias, 8 * n + e % 2 - e / 2 * 8);
        TE_UNROLL for (int e = 0; e < 4; e++) s[4 * n + e] = te_exp2(s[4 * n + e] * c - (e % 2 ? l.y : l.x));
        TE_UNROLL for (int e = 0; e < 4; e++) slope[e] *= s[4 * n + e];
        if (F::DROP)
            TE_UNROLL for (int e = 0; e < 4; e++)
                if (dropped[n / 8] >> (4 * (n % 8) + e) & 1) slope[e] = -slope[e], s[4 * n + e] = 0;
        if constexpr (F::SEPARATE_DS)
            TE_UNROLL for (int h = 0; h < 2; h++)
                ds_factor[n / 2][n % 2 * 2 + h] = te_pair_of_floats(slope[2 * h], slope[2 * h + 1], T);
        TE_UNROLL for (int h = 0; h < 2; h++)
            p16[n / 2][n % 2 * 2 + h] = te_pair_of_floats(s[4 * n + 2 * h], s[4 * n + 2 * h + 1], T);
    }
}
/* Computes dS = P * (dP - delta) in 16 bits. p16: P rounded to 16 bits, because no registers are left to keep the
 * unrounded P; or, if softcap or dropout is used, the ds_factor of te__attn_bwd_softmax, whose elements are negative
 * where dropout drops the score. ds may be the same array as p16. first, end: only queries 8 * first to 8 * end - 1 of
 * the tile are computed. */
template <te_dtype T, class F, class C>
TE_FN void te__attn_bwd_ds(uint32_t (&ds)[C::QUERIES / 16][4], const uint32_t (&p16)[C::QUERIES / 16][4],
                           const float (&dp)[C::QUERIES / 2],
                           const float2 (&stats)[C::PREFETCH ? C::QUERIES / 8 : 1],
                           const te__attn_bwd_warpgroup<C> *g, int first = 0, int end = C::QUERIES / 8) {
    const uint32_t delta = TE__ATTN_BWD_AT(g, delta, 0) + (g->i & 1) * C::QUERIES * 4;
    TE_UNROLL for (int n = first; n < end; n++) {
        float2 l = make_float2(0, 0);
        if (!C::FOLDED) l = te__attn_bwd_stat<C>(stats, delta, n, g);
        TE_UNROLL for (int h = 0; h < 2; h++) {
            const float2 x = te_floats_of_pair(p16[n / 2][n % 2 * 2 + h], T);
            float low = dp[4 * n + 2 * h], high = dp[4 * n + 2 * h + 1];
            if (F::DROP) low = x.x < 0 ? 0 : low * F::FACTOR, high = x.y < 0 ? 0 : high * F::FACTOR;
            low = (F::DROP ? fabsf(x.x) : x.x) * (low - l.x), high = (F::DROP ? fabsf(x.y) : x.y) * (high - l.y);
            ds[n / 2][n % 2 * 2 + h] = te_pair_of_floats(low, high, T);
        }
    }
}
/* Stores dS to shared memory as a tile [queries, keys] with the 128-byte swizzle (te__attn_chunk_address). */
template <class C>
TE_FN void te__attn_bwd_ds_store(const uint32_t (&ds)[C::QUERIES / 16][4], const te__attn_bwd_warpgroup<C> *g) {
    const int lane = te__attn_rematerialize(g->lane);
    const uint32_t to = g->base + C::DS_AT + (g->i & 1) * C::DS_BYTES +
                        (C::TWO_CTA ? g->rank * 64 : te__attn_bwd_key_offset(g)) * C::QUERIES * 2;
    TE_UNROLL for (int x = 0; x < C::QUERIES / 16; x++) {
        const int row = 16 * x + lane / 16 * 8 + lane % 8, chunk = 2 * g->warp + lane / 8 % 2;
        te__attn_stmatrix_transposed(to + row * 128 + ((chunk ^ (row & 7)) << 4), ds[x]);
    }
}

/* Waits for the tile of Q of the current step, then issues the product S = Q K^T. */
template <te_dtype T, int D, class C>
TE_FN void te__attn_bwd_issue_s(float (&s)[C::QUERIES / 2], const te__attn_bwd_warpgroup<C> *g) {
    const int st = g->i & 1;
    te__barrier_wait(TE__ATTN_BWD_AT(g, q_full, st), g->i >> 1 & 1);
    te__wgmma_fence();
    te__attn_bwd_gemm_scores<T, D, C>(s, g->base + g->group * 8192, g->base + C::Q_AT + st * C::Q_PITCH, g, 0);
    te__wgmma_commit();
}
/* Waits until both warpgroups have stored their dS of step j, then issues the product for those elements of the dQ of
 * step j that this warpgroup computes. */
template <te_dtype T, int D, class C>
TE_FN void te__attn_bwd_issue_dq(float (&dq)[C::DQ_REGISTERS], const te__attn_bwd_warpgroup<C> *g, int j) {
    te__barrier_wait(TE__ATTN_BWD_AT(g, ds_full, j & 1), j >> 1 & 1);
    te__wgmma_fence();
    te__attn_bwd_gemm_dq<T, D, C>(dq, g, j & 1);
    te__wgmma_commit();
}
/* Returns whether this warpgroup computes dQ of step j. With DQ_ALTERNATES, it computes the dQ of all queries in every
 * other step; otherwise, the dQ of half of the queries in every step. */
template <class C> TE_FN int te__attn_bwd_computes_dq(const te__attn_bwd_warpgroup<C> *g, int j) {
    return !C::DQ_ALTERNATES || (j & 1) == g->group;
}
/* Computes this warpgroup's part of the dQ of step j (all queries of the step with DQ_ALTERNATES, else half of the
 * queries), and stores it in shared memory. left: the number of queries from the first query of this part to the end of
 * the sequence. */
template <te_dtype T, int D, class C>
TE_FN void te__attn_bwd_compute_dq(const te__attn_bwd_warpgroup<C> *g, int j, int left) {
    float dq[C::DQ_REGISTERS];
    te__attn_bwd_issue_dq<T, D, C>(dq, g, j);
    te__attn_wgmma_wait<0>();
    te__wgmma_fence_result(dq);
    te__attn_bwd_arrive(g, TE__ATTN_BWD_AT(g, ds_empty, j & 1));
    te__attn_bwd_dq_to_shared<C>(dq, g, j, left);
}
/* Signals to the warps that add dQ to global memory that this warpgroup's dQ of step j is in shared memory. */
template <class C> TE_FN void te__attn_bwd_publish_dq(const te__attn_bwd_warpgroup<C> *g, int j) {
    te__attn_fence_async_proxy();
    __syncwarp();
    te__attn_bwd_arrive(g, TE__ATTN_BWD_AT(g, dq_full, j & 1));
}
/* ---- mainloop ---------------------------------------------------------------------------------------------------- */

/* Runs step n of an item (a key tile of one head): processes one tile of queries. The caller has already issued the
 * product S of this step; when the function returns, the product for dK is still running. The item's first step (n = 0)
 * overwrites dK and dV instead of adding to them. If there was a step n - 2, the function also signals that the dQ of
 * that step is in shared memory, where the caller has stored it. */
template <te_dtype T, int HEADS, int D, class F, class C>
TE_FN void te__attn_bwd_step(float (&dk)[D / 2], float (&dv)[D / 2], float (&s)[C::QUERIES / 2],
                             float2 (&stats)[C::PREFETCH ? C::QUERIES / 8 : 1], const te__attn_bwd_params *p,
                             te__attn_bwd_warpgroup<C> *g, const te__attn_bwd_tile &t, const int n) {
    const int st = g->i & 1, phase = g->i >> 1 & 1, has_dq = n > 1, first = n == 0;
    const uint32_t q = g->base + C::Q_AT + st * C::Q_PITCH;
    float dp[C::QUERIES / 2];
    uint32_t p16[C::QUERIES / 16][4], ds[C::QUERIES / 16][4];
    uint32_t dropped[C::QUERIES / 64];

    /* issue dP^T = V dO^T */
    te__barrier_wait(TE__ATTN_BWD_AT(g, do_full, st), phase);
    te__wgmma_fence();
    te__attn_bwd_gemm_scores<T, D, C>(dp, g->base + C::K_BYTES + g->group * 8192, q + C::Q_BYTES, g, 1);
    te__wgmma_commit();
    if (C::PINGPONG) te__attn_bwd_pingpong_pass(g->group);

    /* Compute P from S, and issue dV += P^T dO. */
    if constexpr (F::DROP != 0) te__attn_bwd_draw_dropout<HEADS, F, C>(dropped, p, g, t);
    te__attn_wgmma_wait<1>();
    te__wgmma_fence_result(s);
    te__attn_bwd_softmax<T, HEADS, F, C>(p16, ds, s, stats, p, g, t, dropped);
    te__wgmma_fence();
    te__attn_bwd_gemm_gradient<T, D, C>(dv, p16, q + C::Q_BYTES, first);
    te__wgmma_commit();

    /* Compute dS from P and dP, and store it to shared memory for the product dQ. */
    te__attn_bwd_prefetch_stats<C>(stats, TE__ATTN_BWD_AT(g, delta, 0) + st * C::QUERIES * 4, g);
    te__attn_wgmma_wait<1>();
    te__wgmma_fence_result(dp);
    te__attn_bwd_ds<T, F, C>(ds, F::SEPARATE_DS ? ds : p16, dp, stats, g);
    te__barrier_wait(TE__ATTN_BWD_AT(g, ds_empty, st), phase ^ 1);
    te__attn_bwd_ds_store<C>(ds, g);
    te__attn_fence_async_proxy();
    __syncwarp();
    te__attn_bwd_arrive(g, TE__ATTN_BWD_AT(g, ds_full, st));
    if (has_dq && te__attn_bwd_computes_dq(g, g->i)) te__attn_bwd_arrive(g, TE__ATTN_BWD_AT(g, dq_full, st));

    /* Issue dK += dS^T Q, and release dO once dV is complete. */
    if (C::PINGPONG) te__attn_bwd_pingpong_wait(g->group);
    te__wgmma_fence();
    te__attn_bwd_gemm_gradient<T, D, C>(dk, ds, q, first);
    te__wgmma_commit();
    te__attn_wgmma_wait<1>();
    te__attn_bwd_arrive(g, TE__ATTN_BWD_AT(g, do_empty, st));
    g->i++;
}

/* Called after step g->i - 1, while its product for dK is still running: issues S of the next step, g->i, and computes
 * dQ of step g->i - 2. n: the index of step g->i - 1 within its item, i.e. its key tile. left: the number of queries
 * from the first query of this warpgroup's dQ to the end of the sequence. */
template <te_dtype T, int D, class C>
TE_FN void te__attn_bwd_between_steps(float (&s)[C::QUERIES / 2], float2 (&stats)[C::PREFETCH ? C::QUERIES / 8 : 1],
                                      te__attn_bwd_warpgroup<C> *g, int n, int left) {
    const int st = g->i & 1; /* the stage of step g->i, which step g->i - 2 used as well */
    const uint32_t lse = TE__ATTN_BWD_AT(g, lse, 0) + st * C::QUERIES * 4;
    if constexpr (C::DQ_ALTERNATES) {
        /* Wait for the product for dK, because it reads dS from registers that the compiler uses again, first for dQ
         * and then for S. */
        te__attn_wgmma_wait<0>();
        te__attn_bwd_arrive(g, TE__ATTN_BWD_AT(g, q_empty, st ^ 1));
        if (n && te__attn_bwd_computes_dq(g, g->i)) te__attn_bwd_compute_dq<T, D, C>(g, g->i - 2, left);
        te__attn_bwd_issue_s<T, D, C>(s, g);
        te__attn_bwd_prefetch_stats<C>(stats, lse, g);
    } else {
        /* Between the first two steps of an item (n = 0), there is no dQ to compute. The product for dQ is issued
         * nevertheless, and its result is not used. */
        float dq[C::DQ_REGISTERS];
        te__attn_bwd_issue_dq<T, D, C>(dq, g, g->i - 2);
        te__attn_wgmma_wait<1>(); /* waits for dK */
        te__attn_bwd_arrive(g, TE__ATTN_BWD_AT(g, q_empty, st ^ 1));
        te__attn_bwd_issue_s<T, D, C>(s, g);
        te__attn_wgmma_wait<1>(); /* waits for dQ */
        te__wgmma_fence_result(dq);
        te__attn_bwd_prefetch_stats<C>(stats, lse, g);
        if (n) {
            te__attn_bwd_arrive(g, TE__ATTN_BWD_AT(g, ds_empty, st));
            te__attn_bwd_dq_to_shared<C>(dq, g, g->i - 2, left);
        }
    }
}

/* Store dK and dV of an item (a key tile of one head of K and V) to global memory. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F, class C>
TE_FN void te__attn_bwd_store_dkv(const float (&dk)[D / 2], const float (&dv)[D / 2], const te__attn_bwd_params *p,
                                  typename C::shared *sh, const te__attn_bwd_item &item, const te_sequence &rows,
                                  int group) {
    constexpr int64_t KV = te__attn_widths<HEADS, KV_HEADS, D, F>::KV;
    const int batch = item.head / KV_HEADS, key = item.key_tile * C::KEYS + group * 64,
              seq = te__attn_bwd_seq<F>(p, rows);
    const int x = te__attn_kv_column<HEADS, KV_HEADS, D, F>(0, item.head % KV_HEADS);
    const int64_t at = F::CROSS ? (int64_t)batch * p->a.kv_seq : te__attn_bwd_first_row<F>(p, rows, batch);
    const int64_t sums = (seq + C::SUM_ROWS - 1) / C::SUM_ROWS;
    uint16_t *const to = (uint16_t *)te__attn_dkv<F>(&p->a) + (at + key) * KV + x;
    float *sum = nullptr;
    if (p->a.sum && !F::VARLEN && !F::CROSS) sum = p->a.sum + (batch * sums + key / C::SUM_ROWS) * KV + x;
    te__attn_bwd_output o;
    o.width = KV, o.valid = te__attn_bwd_keys<F>(p, rows) - key, o.part = sh->part[group], o.group = group;
    o.amax = te__attn_dkv_amax_output<F>(&p->a);
    o.to = to + KV_HEADS * D, o.factor = F::FACTOR, o.sum = sum ? sum + KV_HEADS * D : sum;
    te__attn_bwd_epilogue<T, D, C::SUM_ROWS>(dv, o);
    o.to = to, o.factor = p->a.scale, o.sum = sum;
    te__attn_bwd_epilogue<T, D, C::SUM_ROWS>(dk, o);
}

template <te_dtype T, int HEADS, int KV_HEADS, int D, class F, class C>
TE_FN void te__attn_bwd_consumer(const te__attn_bwd_params *p, typename C::shared *sh, uint32_t base) {
    te__attn_bwd_warpgroup<C> all, *const g = &all;
    g->base = base, g->at = __shfl_sync(~0u, te__shared_address(sh), 0), g->i = 0, g->lane = (int)threadIdx.x % 32;
    g->group = __shfl_sync(~0u, (int)threadIdx.x / 128 - 1, 0);
    g->warp = __shfl_sync(~0u, (int)threadIdx.x / 32 % 4, 0);
    te__attn_bwd_item item;
    te_sequence rows = {0, 0};
    /* with ping-pong scheduling, the second warpgroup gives the first one its first permission to issue products */
    if (C::PINGPONG && g->group) te__attn_bwd_pingpong_pass(1);
    for (int r = 0; te__attn_bwd_item_receive<F, C>(&item, &rows, sh, r); r++) {
        const int k0 = item.key_tile * C::KEYS, seq = te__attn_bwd_seq<F>(p, rows);
        g->seq = seq;
        /* the index, within a tile of queries, of the first query whose dQ this warpgroup computes */
        const int dq_query = D > 64 ? 0 : g->group * 64;
        float dk[D / 2], dv[D / 2], s[C::QUERIES / 2];
        /* the lse of the queries in this lane's columns of S^T, and later in the same step their delta */
        float2 stats[C::PREFETCH ? C::QUERIES / 8 : 1];
        te__attn_bwd_query_tiles w = te__attn_bwd_query_tiles_of<C, HEADS, KV_HEADS, F>(p, item, rows);
        te__barrier_wait(TE__ATTN_BWD_AT(g, v_full, 0), r & 1);
        te__barrier_wait(TE__ATTN_BWD_AT(g, k_full, 0), r & 1);
        if (C::PINGPONG) te__attn_bwd_pingpong_wait(g->group);
        te__attn_bwd_issue_s<T, D, C>(s, g);
        te__attn_bwd_prefetch_stats<C>(stats, TE__ATTN_BWD_AT(g, lse, 0) + (g->i & 1) * C::QUERIES * 4, g);
        int n = 0;                 /* the number of steps of this item so far */
        /* The number of queries from the first one whose dQ this warpgroup computes (dq_query) to the end of the
         * sequence. left: in the step that was just processed; left_before: in the step before that. */
        int left = 0, left_before;
#pragma unroll 1
        for (;; n++) {
            te__attn_bwd_step<T, HEADS, D, F, C>(
                dk, dv, s, stats, p, g, {w.tile * C::QUERIES, k0, item.head / KV_HEADS * HEADS + w.head}, n);
            left_before = left, left = seq - w.tile * C::QUERIES - dq_query;
            if (!te__attn_bwd_next_query_tile<HEADS, KV_HEADS, F>(&w)) break;
            te__attn_bwd_between_steps<T, D, C>(s, stats, g, n, left_before);
        }

        /* After the item's last step: wait for its dK and dV, and compute dQ of the last two steps. (In the loop, dQ of
         * step i is computed between steps i + 1 and i + 2.) */
        te__attn_wgmma_wait<0>();
        te__wgmma_fence_result(dk), te__wgmma_fence_result(dv);
        te__attn_bwd_arrive(g, TE__ATTN_BWD_AT(g, v_empty, 0));
        te__attn_bwd_arrive(g, TE__ATTN_BWD_AT(g, q_empty, (g->i - 1) & 1));
        if (n && te__attn_bwd_computes_dq(g, g->i)) {
            te__attn_bwd_compute_dq<T, D, C>(g, g->i - 2, left_before);
            te__attn_bwd_publish_dq(g, g->i);
        }
        if (C::PINGPONG) te__attn_bwd_pingpong_pass(g->group);
        if (te__attn_bwd_computes_dq(g, g->i - 1)) {
            te__attn_bwd_compute_dq<T, D, C>(g, g->i - 1, left);
            te__attn_bwd_publish_dq(g, g->i - 1);
        }
        te__attn_bwd_arrive(g, TE__ATTN_BWD_AT(g, k_empty, 0));

        if (F::CROSS && !p->a.dkv) continue;
        te__attn_bwd_store_dkv<T, HEADS, KV_HEADS, D, F, C>(dk, dv, p, sh, item, rows, g->group);
    }
}
#endif

#endif
