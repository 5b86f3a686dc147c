/* attention_hopper_step_backward.h -- one step of attention_hopper_backward.h's warpgroups: 128 keys by a tile of
 * queries; and its parts, most of which attention_hopper_wide_backward.h has, too. */
/* target: cuda */
#ifndef TE_ATTENTION_HOPPER_STEP_BACKWARD_H
#define TE_ATTENTION_HOPPER_STEP_BACKWARD_H

#include "attention_hopper_warps_backward.h" /* the warps beside the warpgroups; te_attn_back, te__attn_walk */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- the warpgroups ---------------------------------------------------------------------------------------------- */

/* What a warpgroup works with. */
template <class C> struct te__attn_back_group {
    uint32_t base, at;     /* of the tiles, of the rest */
    int group, warp, lane; /* warp: of the group */
    int rank;              /* wide: of this block in its cluster */
    int i;                 /* steps so far, of all items */
    int seq;               /* varlen: of the item */
};

/* This group's first key of a tile. */
template <class C> TE_FN int te__attn_back_own(const te__attn_back_group<C> *g) { return C::WIDE ? 0 : g->group * 64; }
/* What follows from it is computed again rather than kept: there are no registers for it. */
TE_FN int te__attn_found_again(int lane) {
    asm volatile("" : "+r"(lane));
    return lane;
}
/* The address of what a block shares; index: of a barrier. */
#define TE__AT(g, name, index) ((g)->at + (uint32_t)(offsetof(typename C::shared, name) + 8 * (index)))
template <class C> TE_FN void te__attn_back_arrive(const te__attn_back_group<C> *g, uint32_t bar) {
    if (g->lane < TE_ATTN_ARRIVING) te__barrier_arrive(bar);
}
/* s = A B^T, this group's 64 keys by the queries: rows of K or V at `keys`, of Q or dO at `queries`. Added: s begins
 * with their -lse / scale (which: 0) or -delta (1), see te__attn_back_terms_at. */
template <te_dtype T, int D, class C>
TE_FN void te__attn_back_scores(float (&s)[C::QUERIES / 2], uint32_t keys, uint32_t queries,
                                const te__attn_back_group<C> *g, const int which) {
    if constexpr (C::ADDED) {
        const int quad = te__attn_found_again(g->lane) % 4; /* this lane's columns: 2 quad and the next, and 8 more */
        const uint32_t ones = quad / 2 != which ? 0 : quad % 2 ? 0x3f80 : 0x3f803f80, a[4] = {ones, ones, 0, 0};
        te__wgmma_of<C::QUERIES>::template rs<T, 0>(
            s, a, te__attn_back_terms_at(TE__AT(g, lse, 0) + (g->i & 1) * C::QUERIES * 16), 0);
    }
    TE_UNROLL for (int x = 0; x < D / 16; x++)
        te__wgmma_of<C::QUERIES>::template ss<T, 0>(
            s, te__wgmma_descriptor(keys + x / 4 * C::BLOCK_KEYS * 128, 0) + 2 * (x % 4),
            te__wgmma_descriptor(queries + x / 4 * C::QUERIES * 128, 0) + 2 * (x % 4), C::ADDED || x > 0);
}
/* d += A B, A in registers: this group's 64 keys by the queries; B: rows of dO or Q. */
template <te_dtype T, int D, class C>
TE_FN void te__attn_back_gradient(float (&d)[D / 2], const uint32_t (&a)[C::QUERIES / 16][4], uint32_t queries,
                                  const int first) {
    TE_UNROLL for (int x = 0; x < C::QUERIES / 16; x++)
        te__wgmma_of<D>::template rs<T, 1>(d, a[x], te__wgmma_descriptor(queries, 1) + 128 * x, !first || x > 0);
}
/* dQ of a step, 64 queries by 2 N columns: all of it, or half of the queries. */
template <te_dtype T, int D, class C, int N>
TE_FN void te__attn_back_dq(float (&dq)[N], const te__attn_back_group<C> *g, int stage) {
    const uint32_t ds = g->base + C::DS_AT + stage * C::DS_BYTES + (D > 64 ? 0 : g->group * 8192);
    const uint64_t k = te__attn_tile_at(g->base, C::KEYS);
    TE_UNROLL for (int x = 0; x < C::KEYS / 16; x++)
        te__wgmma_of<2 * N>::template ss<T, 1>(dq, te__wgmma_descriptor(ds + x / 4 * C::QUERIES * 128, 0) + 2 * (x % 4),
                                               k + 128 * x, x > 0);
}
/* Part of dQ goes to shared memory, from where it is added up once it is published: to `to`, which is `empty` when that
 * barrier has done a phase of this parity. left: queries from its first row on. */
template <class C, int N>
TE_FN void te__attn_back_leave(const float (&dq)[N], const te__attn_back_group<C> *g, uint32_t to, uint32_t empty,
                               int phase, int left) {
    constexpr int PITCH = N * 8; /* bytes of a row of 2 N columns */
    const int lane = te__attn_found_again(g->lane);
    te__barrier_wait(empty, phase);
    if (left >= 64) {
        TE_UNROLL for (int n = 0; n < N / 4; n++)
            te__attn_store4(to + (g->warp * 32 + lane) * 16 + n * 2048, dq + 4 * n);
    } else {
        const uint32_t row = to + (g->warp * 16 + lane / 4) * PITCH + lane % 4 * 8;
        TE_UNROLL for (int n = 0; n < N / 4; n++)
            te__attn_store2(row + n * 32, dq + 4 * n), te__attn_store2(row + 8 * PITCH + n * 32, dq + 4 * n + 2);
    }
}
/* That of step j: each stage has two slots, of a warpgroup each, or both of one. */
template <class C>
TE_FN void te__attn_back_leave(const float (&dq)[C::DQ_PIECE], const te__attn_back_group<C> *g, int j, int left) {
    const uint32_t to = g->base + C::DQ_AT + (j & 1) * 2 * TE_ATTN_DQ_BYTES, empty = TE__AT(g, dq_empty, j & 1);
    const int slot = C::DQ_BY_ONE ? 0 : g->group;
    TE_UNROLL for (int n = 0; n < C::DQ_PIECE / 32; n++) {
        float part[32];
        TE_UNROLL for (int i = 0; i < 32; i++) part[i] = dq[32 * n + i];
        te__attn_back_leave(part, g, to + (slot + n) * TE_ATTN_DQ_BYTES, empty, (j >> 1 & 1) ^ 1, left);
    }
}
/* lse or delta of this lane's columns. */
template <class C>
TE_FN void te__attn_back_ahead(float2 (&rows)[C::AHEAD ? C::QUERIES / 8 : 1], uint32_t from,
                               const te__attn_back_group<C> *g) {
    if (C::AHEAD) {
        TE_UNROLL for (int n = 0; n < C::QUERIES / 8; n++) rows[n] = te__attn_load2(from + 32 * n + g->lane % 4 * 8);
    }
}
template <class C>
TE_FN float2 te__attn_back_row(const float2 (&rows)[C::AHEAD ? C::QUERIES / 8 : 1], uint32_t from, int n,
                               const te__attn_back_group<C> *g) {
    return C::AHEAD ? rows[C::AHEAD ? n : 0] : te__attn_load2(from + 32 * n + g->lane % 4 * 8);
}
/* What dropout drops of this lane's scores of a step: a bit each. head: of all sequences. It is drawn before they are
 * there, while the products of the other warpgroup run. */
template <int HEADS, class F, class C>
TE_FN void te__attn_back_draw(uint32_t (&dropped)[C::QUERIES / 64], const te_attn_back *p,
                              const te__attn_back_group<C> *g, int q0, int k0, int head) {
    const int lane = te__attn_found_again(g->lane), key = k0 + te__attn_back_own(g) + g->warp * 16 + lane / 4;
    const uint32_t row = te__attn_draw_row(te__attn_global_head(p->a.whole, head, HEADS), q0, p->a.seq);
    te_rng rng;
    asm volatile("ld.global.nc.v2.u64 {%0, %1}, [%2];" : "=l"(rng.seed), "=l"(rng.offset) : "l"(p->a.rng));
    TE_UNROLL for (int n = 0; n < C::QUERIES / 8; n += 2) {
        if (n % 8 == 0) dropped[n / 8] = 0;
        TE_UNROLL for (int i = 0; i < 2; i++) {
            uint32_t word[4];
            te__attn_draw(word, rng, p->a.id, row + n / 2, lane % 4 * 2 + i, key);
            TE_UNROLL for (int h = 0; h < 2; h++) /* of a counter's 32 keys a warp has 16 */
                TE_UNROLL for (int x = 0; x < 2; x++)
                    if (te__attn_drops(g->warp % 2 ? word[2 + h] : word[h], x, F::DROP))
                        dropped[n / 8] |= 1u << (4 * (n % 8 + x) + 2 * h + i);
        }
    }
    TE_UNROLL for (int i = 0; i < C::QUERIES / 64; i++) asm volatile("" : "+r"(dropped[i])::"memory");
}
/* S becomes P, and in 16 bits the A of the product for dV. other: what dS has in the place of P, if that is not P.
 * head: of all sequences. */
template <te_dtype T, int HEADS, class F, class C>
TE_FN void te__attn_back_exp(uint32_t (&frag)[C::QUERIES / 16][4], uint32_t (&other)[C::QUERIES / 16][4],
                             float (&s)[C::QUERIES / 2],
                             const float2 (&rows)[C::AHEAD ? C::QUERIES / 8 : 1], const te_attn_back *p,
                             const te__attn_back_group<C> *g, int q0, int k0, int head,
                             const uint32_t (&dropped)[C::QUERIES / 64]) {
    constexpr int N = C::QUERIES / 8;
    const int lane = te__attn_found_again(g->lane), key0 = k0 + te__attn_back_own(g);
    const te__attn_mask m = te__attn_back_mask<F>(p, F::VARLEN ? g->seq : p->a.seq);
    const uint32_t lse = TE__AT(g, lse, 0) + (g->i & 1) * C::QUERIES * 4;
    const float c = te__attn_score_unit<F>(p->a.scale) * TE__ATTN_LOG2E;
    if constexpr (F::SOFTCAP > 0)
        TE_UNROLL for (int i = 0; i < C::QUERIES / 2; i++) s[i] = te__attn_softcapped<F>(s[i], p->a.scale);
    if (te__attn_needs_mask(te__attn_keys_of(m, q0, C::QUERIES), key0, 64)) { /* queries past the end have a P of 0 */
        const int key = key0 + g->warp * 16 + lane / 4;
        TE_UNROLL for (int n = 0; n < N; n++)
            TE_UNROLL for (int e = 0; e < 4; e++) {
                const int query = q0 + 8 * n + lane % 4 * 2 + e % 2;
                const int at = key + e / 2 * 8;
                if (at >= m.keys || !te__attn_seen(m, at, query)) s[4 * n + e] = -INFINITY;
            }
    }
    const te__attn_alibi_bias bias = te__attn_alibi_at<HEADS, F>(head % HEADS, p->a.scale,
                                                          q0 + m.shift + lane % 4 * 2 - key0 - g->warp * 16 - lane / 4);
    TE_UNROLL for (int n = 0; n < N; n++) {
        float2 l = make_float2(0, 0);
        if (!C::ADDED) l = te__attn_back_row<C>(rows, lse, n, g);
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
                other[n / 2][n % 2 * 2 + h] = te_pair_of_floats(slope[2 * h], slope[2 * h + 1], T);
        TE_UNROLL for (int h = 0; h < 2; h++)
            frag[n / 2][n % 2 * 2 + h] = te_pair_of_floats(s[4 * n + 2 * h], s[4 * n + 2 * h + 1], T);
    }
}
/* dS = P (dP - delta), in 16 bits. P is the rounded one: there are no registers for both. frag: P, or what dS has in
 * its place; that may be ds. first, end: of eights of queries. */
template <te_dtype T, class F, class C>
TE_FN void te__attn_back_ds(uint32_t (&ds)[C::QUERIES / 16][4], const uint32_t (&frag)[C::QUERIES / 16][4],
                            const float (&dp)[C::QUERIES / 2], const float2 (&rows)[C::AHEAD ? C::QUERIES / 8 : 1],
                            const te__attn_back_group<C> *g, int first = 0, int end = C::QUERIES / 8) {
    const uint32_t delta = TE__AT(g, delta, 0) + (g->i & 1) * C::QUERIES * 4;
    TE_UNROLL for (int n = first; n < end; n++) {
        float2 l = make_float2(0, 0);
        if (!C::ADDED) l = te__attn_back_row<C>(rows, delta, n, g);
        TE_UNROLL for (int h = 0; h < 2; h++) {
            const float2 x = te_floats_of_pair(frag[n / 2][n % 2 * 2 + h], T);
            float low = dp[4 * n + 2 * h], high = dp[4 * n + 2 * h + 1];
            if (F::DROP) low = x.x < 0 ? 0 : low * F::FACTOR, high = x.y < 0 ? 0 : high * F::FACTOR;
            low = (F::DROP ? fabsf(x.x) : x.x) * (low - l.x), high = (F::DROP ? fabsf(x.y) : x.y) * (high - l.y);
            ds[n / 2][n % 2 * 2 + h] = te_pair_of_floats(low, high, T);
        }
    }
}
/* It goes to shared memory as queries by keys. */
template <class C>
TE_FN void te__attn_back_ds_store(const uint32_t (&ds)[C::QUERIES / 16][4], const te__attn_back_group<C> *g) {
    const int lane = te__attn_found_again(g->lane);
    const uint32_t to = g->base + C::DS_AT + (g->i & 1) * C::DS_BYTES +
                        (C::WIDE ? g->rank * 64 : te__attn_back_own(g)) * C::QUERIES * 2;
    TE_UNROLL for (int x = 0; x < C::QUERIES / 16; x++) {
        /* a piece is 16 bytes; the copy engine's permutation */
        const int row = 16 * x + lane / 16 * 8 + lane % 8, piece = 2 * g->warp + lane / 8 % 2;
        te__attn_store_transposed(to + row * 128 + ((piece ^ (row & 7)) << 4), ds[x]);
    }
}

/* S of the step at hand. */
template <te_dtype T, int D, class C>
TE_FN void te__attn_back_begin(float (&s)[C::QUERIES / 2], const te__attn_back_group<C> *g) {
    const int st = g->i & 1;
    te__barrier_wait(TE__AT(g, q_full, st), g->i >> 1 & 1);
    te__wgmma_fence();
    te__attn_back_scores<T, D, C>(s, g->base + g->group * 8192, g->base + C::Q_AT + st * C::Q_PITCH, g, 0);
    te__wgmma_commit();
}
/* The dQ of step j, whose dS is published, that this warpgroup makes. */
template <te_dtype T, int D, class C>
TE_FN void te__attn_back_dq_begin(float (&dq)[C::DQ_PIECE], const te__attn_back_group<C> *g, int j) {
    te__barrier_wait(TE__AT(g, ds_full, j & 1), j >> 1 & 1);
    te__wgmma_fence();
    te__attn_back_dq<T, D, C>(dq, g, j & 1);
    te__wgmma_commit();
}
/* Whether this warpgroup makes dQ of step j, or of one that is two before or after; does so, and leaves it; and says
 * that it has. */
template <class C> TE_FN int te__attn_back_makes(const te__attn_back_group<C> *g, int j) {
    return !C::DQ_BY_ONE || (j & 1) == g->group;
}
template <te_dtype T, int D, class C> TE_FN void te__attn_back_make(const te__attn_back_group<C> *g, int j, int left) {
    float dq[C::DQ_PIECE];
    te__attn_back_dq_begin<T, D, C>(dq, g, j);
    te__attn_wgmma_wait<0>();
    te__attn_hold_back(dq);
    te__attn_back_arrive(g, TE__AT(g, ds_empty, j & 1));
    te__attn_back_leave<C>(dq, g, j, left);
}
template <class C> TE_FN void te__attn_back_made(const te__attn_back_group<C> *g, int j) {
    te__attn_publish();
    __syncwarp();
    te__attn_back_arrive(g, TE__AT(g, dq_full, j & 1));
}
/* The rest of a step, S of which is on its way. Leaves the products for dK on their way. staged: dQ of two steps before
 * lies in shared memory. head: of all sequences. */
template <te_dtype T, int HEADS, int D, class F, class C>
TE_FN void te__attn_back_step(float (&dk)[D / 2], float (&dv)[D / 2], float (&s)[C::QUERIES / 2],
                              float2 (&rows)[C::AHEAD ? C::QUERIES / 8 : 1], const te_attn_back *p,
                              te__attn_back_group<C> *g, int q0, int k0, int head, int staged, const int first) {
    const int st = g->i & 1, phase = g->i >> 1 & 1;
    const uint32_t q = g->base + C::Q_AT + st * C::Q_PITCH;
    float dp[C::QUERIES / 2];
    uint32_t frag[C::QUERIES / 16][4], ds[C::QUERIES / 16][4];
    uint32_t dropped[C::QUERIES / 64];
    te__barrier_wait(TE__AT(g, do_full, st), phase);
    te__wgmma_fence();
    te__attn_back_scores<T, D, C>(dp, g->base + C::K_BYTES + g->group * 8192, q + C::Q_BYTES, g, 1);
    te__wgmma_commit();
    if (C::IN_TURNS) te__attn_turn_give(g->group);
    if constexpr (F::DROP != 0) te__attn_back_draw<HEADS, F, C>(dropped, p, g, q0, k0, head);
    te__attn_wgmma_wait<1>();
    te__attn_hold_back(s);
    te__attn_back_exp<T, HEADS, F, C>(frag, ds, s, rows, p, g, q0, k0, head, dropped);
    te__wgmma_fence();
    te__attn_back_gradient<T, D, C>(dv, frag, q + C::Q_BYTES, first);
    te__wgmma_commit();
    te__attn_back_ahead<C>(rows, TE__AT(g, delta, 0) + st * C::QUERIES * 4, g);
    te__attn_wgmma_wait<1>();
    te__attn_hold_back(dp);
    te__attn_back_ds<T, F, C>(ds, F::SEPARATE_DS ? ds : frag, dp, rows, g);
    te__barrier_wait(TE__AT(g, ds_empty, st), phase ^ 1);
    te__attn_back_ds_store<C>(ds, g);
    te__attn_publish();
    __syncwarp();
    te__attn_back_arrive(g, TE__AT(g, ds_full, st));
    if (staged && te__attn_back_makes(g, g->i)) te__attn_back_arrive(g, TE__AT(g, dq_full, st));
    if (C::IN_TURNS) te__attn_turn_take(g->group);
    te__wgmma_fence();
    te__attn_back_gradient<T, D, C>(dk, ds, q, first);
    te__wgmma_commit();
    te__attn_wgmma_wait<1>();
    te__attn_back_arrive(g, TE__AT(g, do_empty, st));
    g->i++;
}
#endif

#endif
