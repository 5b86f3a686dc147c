/* attention_hopper_wide_backward.h -- the warpgroups of attention_hopper_backward.h where head_dim is above 128.
 *
 * dK and dV of 128 keys no longer fit into the registers of two warpgroups. So two blocks of a cluster share a key
 * tile, 64 keys each, and walk the same tiles of queries. In a block the warpgroups divide the work by gradients
 * instead of by keys:
 *
 *     the first     S = K Q^T, P = exp(S - lse), which goes to shared memory, dV += P dO
 *     the second    dP = V dO^T, dS = P (dP - delta), which goes there in the place of P, dK += dS Q
 *
 * all of keys by queries. dQ is a sum over keys. If each block added up its own part of it, that would be twice the
 * bytes a flop of head_dim 128, and the L2 adds f32 at 3.9 TB/s at most. So each block sends its dS to the other one's
 * shared memory, and makes half of the columns of dQ, of all 128 keys; for that it has the other one's K of these
 * columns, too. Of three boxes of 64 columns the blocks share the one in the middle. A gradient of 64 keys by head_dim
 * takes head_dim / 2 registers of a thread, S or dP takes 32, a piece of dQ (64 columns) 32, and P or dS in 16 bits 16.
 * Where that leaves enough of them, K or V stays in registers, too. P is read as it was written, by the same lanes.
 *
 * A step of a warpgroup, for S or dP of step i, which is there:
 *     make P or dS of it, which goes to shared memory once neither block reads dS of step i - 2 any more
 *     issue the gradient's product, then the piece of dQ of step i - 1
 *     when the gradient is there, issue S or dP of step i + 1; the piece of dQ leaves
 *
 * Floor: 10 n flops, as at smaller head_dim. A step of 64 keys by 64 queries at head_dim 256 is 2560 cycles of the
 * tensor cores, and 3392 of shared memory's 128 bytes: 512 each for S, dP and dQ, 256 each for dV and dK, 512 for dQ on
 * its way out, 512 for Q and dO on their way in, 320 for P and dS. From the L2 come 64 KB, and 32 KB are added there.
 *
 * Shared memory at 256, in KB: K and V 32 each, 16 of the other block's K, Q 2 x 32, dO 32 (it is used from dP to dV
 * only), dS of both blocks 2 x 16, dQ 16 on its way out: 224 of 227.
 *
 * Where a head of v has 128 columns and one of q and k 192, V, dO and dV are smaller, and all else is as it is: 6 n_qk
 * + 4 n_v flops, n of each head size. Its step is 1664 cycles of the tensor cores and 2112 of shared memory.
 *
 * Measured on an H200, bf16, TFLOP/s in turns, one run, in a fixed order / cuDNN (PyTorch 2.11) / before blocks shared
 * key tiles:
 *     batch 2, seq 4096, 16 heads of 256, causal                    473 324 325
 *     batch 2, seq 4096, 32 heads of 256, causal                    469 329 324
 *     batch 2, seq 4096, 16 heads of 192, causal                    475 273 300
 *     batch 2, seq 4096, 32 heads of 192, values of 128, causal     490 384 273    full   549 279 284
 * Of the gain, two warps that add dQ in turns, where one used to wait until each sum was in memory, brought 330 to 364
 * at 256 and 278 to 343 at 192 with values of 128; halves of dQ brought 474 and 450; K and V in registers, which reads
 * 320 cycles less of shared memory every step at 192 and 128, 490. What the adding still costs: without it 1.03 to 1.06
 * times as fast. What did not pay: dQ of the step before issued ahead of the exponentials (0.95); Q and dO brought once
 * for both blocks (multicast), which ties each block's stages to the other's progress (0.97 to 1.01).
 */
/* target: cuda */
#ifndef TE_ATTENTION_HOPPER_WIDE_BACKWARD_H
#define TE_ATTENTION_HOPPER_WIDE_BACKWARD_H

#include "attention_hopper_step_backward.h" /* te__attn_back_scores, te__attn_back_exp */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* P, packed, from the first warpgroup to the same lanes of the second, through the place of dS. */
template <class C> TE_FN uint32_t te__attn_wide_ds(const te__attn_back_group<C> *g) {
    return g->base + C::DS_AT + (g->i & 1) * C::DS_BYTES + g->rank * 8192;
}
template <class C> TE_FN uint32_t te__attn_wide_p(const te__attn_back_group<C> *g) {
    return te__attn_wide_ds(g) + (g->warp * 32 + te__attn_found_again(g->lane)) * 16;
}
template <class C> TE_FN void te__attn_wide_give(const uint32_t (&p)[4][4], const te__attn_back_group<C> *g) {
    const uint32_t to = te__attn_wide_p(g);
    te__barrier_wait(TE__AT(g, ds_empty, g->i & 1), (g->i >> 1 & 1) ^ 1);
    TE_UNROLL for (int x = 0; x < 4; x++)
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to + x * 2048), "r"(p[x][0]), "r"(p[x][1]),
                     "r"(p[x][2]), "r"(p[x][3])
                     : "memory");
    __syncwarp();
    te__attn_back_arrive(g, TE__AT(g, p_full, g->i & 1));
}
/* The second warpgroup makes dS of it: of 16 queries after the others, for there are no registers for all of P. */
template <te_dtype T, class F, class C>
TE_FN void te__attn_wide_take(uint32_t (&ds)[4][4], const float (&dp)[32], const te__attn_back_group<C> *g) {
    const uint32_t from = te__attn_wide_p(g);
    const float2 none[1] = {};
    te__barrier_wait(TE__AT(g, p_full, g->i & 1), g->i >> 1 & 1);
    TE_UNROLL for (int x = 0; x < 4; x++) {
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(ds[x][0]), "=r"(ds[x][1]), "=r"(ds[x][2]), "=r"(ds[x][3])
                     : "r"(from + x * 2048)
                     : "memory");
        te__attn_back_ds<T, F, C>(ds, ds, dp, none, g, 2 * x, 2 * x + 2);
    }
}
/* When all of it has read P, it leaves dS there, and one thread sends it to the other block, too. Whoever waits for
 * ds_full has both blocks' dS. That there is room in the other block the first warpgroup has waited for. */
template <class C> TE_FN void te__attn_wide_send(const uint32_t (&ds)[4][4], const te__attn_back_group<C> *g) {
    const uint32_t full = TE__AT(g, ds_full, g->i & 1);
    te__attn_group_sync(1);
    te__attn_back_ds_store<C>(ds, g);
    te__attn_publish();
    te__attn_group_sync(1);
    if (g->warp == 0 && g->lane == 0) {
        te__barrier_arrive_expect_tx(full, 8192);
        te__attn_bulk_copy(te__attn_wide_ds(g), 8192, full, g->rank ^ 1);
    }
    __syncwarp();
}

/* Q (of == 0) or dO of step i: where it is, and its barriers. */
template <class C> TE_FN uint32_t te__attn_wide_tile(const te__attn_back_group<C> *g, int of, int i) {
    return g->base + (of ? C::DO_AT + C::do_stage(i) * C::Q_PITCH : C::Q_AT + (i & 1) * C::Q_PITCH);
}
template <class C> TE_FN void te__attn_wide_wait(const te__attn_back_group<C> *g, int of, int i) {
    if (of) te__barrier_wait(TE__AT(g, do_full, C::do_stage(i)), C::do_phase(i));
    else te__barrier_wait(TE__AT(g, q_full, i & 1), i >> 1 & 1);
}
template <class C> TE_FN void te__attn_wide_free(const te__attn_back_group<C> *g, int of, int i) {
    te__attn_back_arrive(g, of ? TE__AT(g, do_empty, C::do_stage(i)) : TE__AT(g, q_empty, i & 1));
}
/* K or V as A of the products for S or dP, in registers where there are any left: then only Q or dO is read from
 * shared memory. */
template <class C, int N> TE_FN void te__attn_wide_keep(uint32_t (&a)[N][4], const te__attn_back_group<C> *g) {
    const int lane = te__attn_found_again(g->lane), row = g->warp * 16 + lane / 8 % 2 * 8 + lane % 8;
    if (N == 1) return;
    TE_UNROLL for (int x = 0; x < N; x++)
        te__attn_ldmatrix(a[x], te__attn_piece_at(g->base + g->group * C::K_BYTES + x / 4 * 8192, row,
                                                  2 * (x % 4) + lane / 16));
}
/* S or dP of step i, of warpgroup G; D: columns of what it multiplies. */
template <te_dtype T, int D, class C, int G, int N>
TE_FN void te__attn_wide_begin(float (&s)[32], const uint32_t (&a)[N][4], const te__attn_back_group<C> *g, int i) {
    const uint32_t tile = te__attn_wide_tile(g, G, i);
    te__attn_wide_wait(g, G, i);
    te__wgmma_fence();
    if constexpr (N == 1) te__attn_back_scores<T, D, C>(s, g->base + G * C::K_BYTES, tile, g, 0);
    else
        TE_UNROLL for (int x = 0; x < N; x++)
            te__wgmma_of<64>::template rs<T, 0>(s, a[x], te__wgmma_descriptor(tile + x / 4 * 8192, 0) + 2 * (x % 4), x > 0);
    te__wgmma_commit();
}
/* A warpgroup's piece of dQ of step j, when dS of it is there: of both blocks' keys, 64 each. */
template <te_dtype T, class C, int G, int N>
TE_FN void te__attn_wide_dq_begin(float (&dq)[N], const te__attn_back_group<C> *g, int j) {
    const uint32_t own = g->base + C::piece_box(g->rank, G) * 8192, other = g->base + C::OTHER_AT + G * 8192;
    const uint32_t ds = g->base + C::DS_AT + (j & 1) * C::DS_BYTES, column = N < 32 ? g->rank * 64 : 0;
    te__barrier_wait(TE__AT(g, ds_full, j & 1), j >> 1 & 1);
    te__wgmma_fence();
    TE_UNROLL for (int x = 0; x < 8; x++)
        te__wgmma_of<2 * N>::template ss<T, 1>(
            dq, te__wgmma_descriptor(ds + x / 4 * 8192, 0) + 2 * (x % 4),
            te__wgmma_descriptor((x / 4 == g->rank ? own : other) + column, 1) + 128 * (x % 4), x > 0);
    te__wgmma_commit();
}
/* It leaves. Neither block reads dS of step j any more, as far as this warpgroup goes. */
template <class C, int G, int N>
TE_FN void te__attn_wide_leave(const float (&dq)[N], const te__attn_back_group<C> *g, int j, int whole) {
    te__attn_back_arrive(g, TE__AT(g, ds_empty, j & 1));
    if (g->lane < TE_ATTN_ARRIVING) te__barrier_arrive_remote(TE__AT(g, ds_empty, j & 1), g->rank ^ 1);
    te__attn_back_leave(dq, g, g->base + C::piece_at(G, j), TE__AT(g, dq_empty, C::piece_empty(G, j)),
                        C::piece_phase(G, j), whole ? 64 : 0);
    te__attn_publish();
    __syncwarp();
    te__attn_back_arrive(g, TE__AT(g, dq_full, 2 * (j & 1) + G));
}
/* Both, at the end of a key tile: nothing else is left to be multiplied. */
template <te_dtype T, class C, int G, int N>
TE_FN void te__attn_wide_dq(float (&dq)[N], const te__attn_back_group<C> *g, int j, int whole) {
    te__attn_wide_dq_begin<T, C, G>(dq, g, j);
    te__attn_wgmma_wait<0>();
    te__attn_hold_back(dq);
    te__attn_wide_leave<C, G>(dq, g, j, whole);
}

template <te_dtype T, int HEADS, int KV_HEADS, int D, class F, class C, int G>
TE_FN void te__attn_wide_multiply(const te_attn_back *p, typename C::shared *sh, uint32_t base) {
    constexpr int64_t QKV = te__attn_widths<HEADS, KV_HEADS, D, F>::QKV;
    constexpr int V = te__attn_value_dim<D, F>();
    constexpr int FROM = G ? V : D, OWN = G ? D : V; /* columns that S or dP is a sum over, and those of dV or dK */
    te__attn_back_group<C> all, *const g = &all;
    g->base = base, g->at = __shfl_sync(~0u, te__shared_address(sh), 0), g->i = 0, g->lane = (int)threadIdx.x % 32;
    g->rank = te__cluster_rank(), g->group = G, g->warp = __shfl_sync(~0u, (int)threadIdx.x / 32 % 4, 0);
    int4 item;
    te_sequence rows_of = {0, 0};
    for (int r = 0; te__attn_item_take<F, C>(&item, &rows_of, sh, r); r++) {
        const int k0 = item.y * C::KEYS + g->rank * C::BLOCK_KEYS, seq = te__attn_seq<F>(p, rows_of);
        g->seq = seq;
        float d[OWN / 2], s[32], dq[C::piece_columns(G) / 2]; /* dV or dK, S or dP, a piece of dQ */
        float2 none[1];
        te__attn_walk w = te__attn_walk_of<C, HEADS, KV_HEADS, F>(p, item, rows_of);
        int whole = 0; /* bit i: the tile of queries of i steps before ends before the sequence does, or with it */
        if (G) te__barrier_wait(TE__AT(g, v_full, 0), r & 1);
        te__barrier_wait(TE__AT(g, k_full, 0), r & 1);
        /* The first warpgroup has registers left for 192 columns of K beside 192 of dV, the second one, whose piece of
         * dQ is larger, for 128 of V beside 192 of dK. 1: it stays in shared memory. */
        constexpr int KEPT = OWN + FROM <= (G ? 192 + 128 : 192 + 192) ? FROM / 16 : 1;
        uint32_t kept[KEPT][4];
        te__attn_wide_keep(kept, g);
        te__attn_wide_begin<T, FROM, C, G>(s, kept, g, g->i);
        te__attn_wgmma_wait<0>();
        te__attn_hold_back(s);
        int n = 0; /* steps before, of this item */
#pragma unroll 1
        for (;; n++) {
            uint32_t frag[4][4], other[4][4], dropped[1];
            const int q0 = w.tile * C::QUERIES, head = item.x / KV_HEADS * HEADS + w.head;
            whole = whole << 1 | (seq - q0 >= 64);
            if constexpr (G == 0) {
                if constexpr (F::DROP != 0) te__attn_back_draw<HEADS, F, C>(dropped, p, g, q0, k0, head);
                te__attn_back_exp<T, HEADS, F, C>(frag, other, s, none, p, g, q0, k0, head, dropped);
                te__attn_wide_give(F::SEPARATE_DS ? other : frag, g);
            } else {
                te__attn_wide_take<T, F>(frag, s, g);
                te__attn_wide_send(frag, g);
            }
            te__attn_wide_free(g, G, g->i);
            te__attn_wide_wait(g, !G, g->i);
            te__wgmma_fence();
            te__attn_back_gradient<T, OWN, C>(d, frag, te__attn_wide_tile(g, !G, g->i), n == 0);
            te__wgmma_commit();
            if (!te__attn_walk_on<HEADS, KV_HEADS, F>(&w)) break;
            /* dQ of the step before. There is none behind the first step, and what comes out is not used. */
            te__attn_wide_dq_begin<T, C, G>(dq, g, g->i - 1);
            te__attn_wgmma_wait<1>();
            te__attn_wide_free(g, !G, g->i);
            te__attn_wide_begin<T, FROM, C, G>(s, kept, g, g->i + 1);
            te__attn_wgmma_wait<1>();
            te__attn_hold_back(dq);
            if (n) te__attn_wide_leave<C, G>(dq, g, g->i - 1, whole & 2);
            te__attn_wgmma_wait<0>();
            te__attn_hold_back(s);
            g->i++;
        }
        te__attn_wgmma_wait<0>();
        te__attn_hold_back(d);
        te__attn_wide_free(g, !G, g->i);
        te__attn_back_arrive(g, TE__AT(g, v_empty, 0));
        if (n) te__attn_wide_dq<T, C, G>(dq, g, g->i - 1, whole & 2);
        te__attn_wide_dq<T, C, G>(dq, g, g->i, whole & 1);
        te__attn_back_arrive(g, TE__AT(g, k_empty, 0));
        g->i++;

        const int batch = item.x / KV_HEADS, x = te__attn_kv_column<HEADS, KV_HEADS, D, F>(!G, item.x % KV_HEADS);
        uint16_t *to = (uint16_t *)p->a.dqkv + (te__attn_first<F>(p, rows_of, batch) + k0) * QKV + x;
        const int64_t sums = (seq + C::SUM_ROWS - 1) / C::SUM_ROWS;
        float *sum = p->a.sum && !F::VARLEN ? p->a.sum + (batch * sums + k0 / C::SUM_ROWS) * QKV + x : nullptr;
        te__attn_group_store<T, OWN, C::SUM_ROWS>(to, QKV, seq - k0, d, G ? p->a.scale : F::FACTOR, sum, sh->part[G],
                                                  G, te__attn_amax_output<F>(&p->a));
    }
}
#endif

#endif
