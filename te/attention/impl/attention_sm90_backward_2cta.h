/* attention_sm90_backward_2cta.h -- the consumer warpgroups of attention_sm90_backward.h above head size 128.
 *
 * Above head size 128, dK and dV of 128 keys do not fit into the registers of two warpgroups. So two blocks (CTAs) of a
 * cluster process a key tile, 64 keys each, with the same tiles of queries. In a block the warpgroups divide the work
 * by gradient instead of by keys:
 *
 *     first warpgroup    S^T = K Q^T, P^T = exp(S^T - lse), dV += P^T dO. It stores P^T in shared memory.
 *     second warpgroup   dP^T = V dO^T, dS^T = P^T * (dP^T - delta), dK += dS^T Q. It overwrites P^T there with dS^T.
 *
 * dQ is a sum over all 128 keys. Therefore each block copies its dS to the shared memory of the other block, and
 * computes half of the columns of dQ, for the keys of both blocks; for this it also holds these columns of the other
 * block's K. (docs/notes/attention_sm90.md says why the work is divided in this way.) In step i the first warpgroup
 * waits until its S is complete, and the second one until its dP is complete. Then the warpgroup
 *
 *     computes P or dS from it, and stores it; before P is stored, both blocks must have read the dS of step i - 2;
 *     issues the product for dV or dK, and then the product for its columns of the dQ of step i - 1;
 *     issues S or dP of step i + 1 when dV or dK is complete, and stores dQ to shared memory for the producer.
 *
 * Lower bound of the work: 10 * n flops, n = batch * heads * seq^2 * head_dim (if the head size V of values differs:
 * 6 * n flops, plus 4 * n with V in place of head_dim). At head size 256 a step of 64 keys by 64 queries takes 2560
 * cycles of the tensor cores and 3392 cycles of shared memory, at 128 bytes a cycle: 512 for each of the products S, dP
 * and dQ; 512 for writing dQ and reading it again; 512 for writing Q and dO; 256 for each of dV and dK; 320 for P and
 * dS. A step reads 64 KB from the L2, and adds 32 KB of dQ there. At head size 192 with values of size 128 a step takes
 * 1664 cycles of the tensor cores and 2112 of shared memory.
 */
/* target: cuda */
#ifndef TE_ATTENTION_SM90_BACKWARD_2CTA_H
#define TE_ATTENTION_SM90_BACKWARD_2CTA_H

#include "attention_sm90_backward_mainloop.h" /* te__attn_bwd_softmax, te__attn_bwd_ds and the GEMMs */

/* Registers of a thread: head_dim / 2 for dV or dK of 64 keys, 32 for S or dP, 32 for a box of dQ (64 columns), and 16
 * for P or dS in 16 bits. If enough registers are left, K or V is held in registers, too.
 * Shared memory at head size 256: 64 KB for K and V, 16 KB for two boxes (64 columns each) of the other block's K, 64
 * KB for Q (two stages), 32 KB for dO, 32 KB for dS, and 16 KB for dQ; together 224 of 227 KB. dO has only one stage,
 * because dO of a step is needed only from the product for dP to the product for dV of this step. */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* ---- P and dS in shared memory ----------------------------------------------------------------------------------- */

/* Returns the shared-memory address of this block's dS of the current step. P is stored at the same address first, and
 * dS overwrites P after P has been read. */
template <class C> TE_FN uint32_t te__attn_2cta_ds_at(const te__attn_bwd_warpgroup<C> *g) {
    return g->base + C::DS_AT + (g->i & 1) * C::DS_BYTES + g->rank * 8192;
}
/* Return the shared-memory address of the first 16 bytes of P that this lane stores or reads in the current step. */
template <class C> TE_FN uint32_t te__attn_2cta_p_at(const te__attn_bwd_warpgroup<C> *g) {
    return te__attn_2cta_ds_at(g) + (g->warp * 32 + te__attn_rematerialize(g->lane)) * 16;
}
/* Called by the first warpgroup: stores P, rounded to 16 bits, to shared memory. Each lane of the second warpgroup
 * later reads the numbers that the lane with the same index in the first warpgroup has stored. */
template <class C> TE_FN void te__attn_2cta_p_store(const uint32_t (&p)[4][4], const te__attn_bwd_warpgroup<C> *g) {
    const uint32_t to = te__attn_2cta_p_at(g);
    te__barrier_wait(TE__ATTN_BWD_AT(g, ds_empty, g->i & 1), (g->i >> 1 & 1) ^ 1);
    TE_UNROLL for (int x = 0; x < 4; x++)
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to + x * 2048), "r"(p[x][0]), "r"(p[x][1]),
                     "r"(p[x][2]), "r"(p[x][3])
                     : "memory");
    __syncwarp();
    te__attn_bwd_arrive(g, TE__ATTN_BWD_AT(g, p_full, g->i & 1));
}
/* Called by the second warpgroup: computes dS from P and dP. P is loaded from shared memory for 16 queries at a time,
 * because there are no registers for all of P. */
template <te_dtype T, class F, class C>
TE_FN void te__attn_2cta_ds_of_p(uint32_t (&ds)[4][4], const float (&dp)[32], const te__attn_bwd_warpgroup<C> *g) {
    const uint32_t from = te__attn_2cta_p_at(g);
    const float2 none[1] = {};
    te__barrier_wait(TE__ATTN_BWD_AT(g, p_full, g->i & 1), g->i >> 1 & 1);
    TE_UNROLL for (int x = 0; x < 4; x++) {
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(ds[x][0]), "=r"(ds[x][1]), "=r"(ds[x][2]), "=r"(ds[x][3])
                     : "r"(from + x * 2048)
                     : "memory");
        te__attn_bwd_ds<T, F, C>(ds, ds, dp, none, g, 2 * x, 2 * x + 2);
    }
}
/* Called by the second warpgroup: waits until all its threads have read P, and stores dS at the same address. Then one
 * thread sends dS to the other block. When the mbarrier ds_full completes its phase, the dS of both blocks is in shared
 * memory. The memory is free in both blocks: before the first warpgroup stored P, it waited until both blocks had read
 * the dS of step i - 2. */
template <class C> TE_FN void te__attn_2cta_ds_send(const uint32_t (&ds)[4][4], const te__attn_bwd_warpgroup<C> *g) {
    const uint32_t full = TE__ATTN_BWD_AT(g, ds_full, g->i & 1);
    te__attn_warpgroup_sync(1);
    te__attn_bwd_ds_store<C>(ds, g);
    te__attn_fence_async_proxy();
    te__attn_warpgroup_sync(1);
    if (g->warp == 0 && g->lane == 0) {
        te__barrier_arrive_expect_tx(full, 8192);
        te__attn_bulk_copy_to_peer(te__attn_2cta_ds_at(g), 8192, full, g->rank ^ 1);
    }
    __syncwarp();
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Return the shared-memory address of the tile of Q (is_do: 0) or of dO (is_do: 1) of step i. */
template <class C> TE_FN uint32_t te__attn_2cta_tile_at(const te__attn_bwd_warpgroup<C> *g, int is_do, int i) {
    return g->base + (is_do ? C::DO_AT + C::do_stage(i) * C::Q_PITCH : C::Q_AT + (i & 1) * C::Q_PITCH);
}
/* Wait until the tile of Q (is_do: 0) or of dO (is_do: 1) of step i is loaded. */
template <class C> TE_FN void te__attn_2cta_tile_wait(const te__attn_bwd_warpgroup<C> *g, int is_do, int i) {
    if (is_do) te__barrier_wait(TE__ATTN_BWD_AT(g, do_full, C::do_stage(i)), C::do_phase(i));
    else te__barrier_wait(TE__ATTN_BWD_AT(g, q_full, i & 1), i >> 1 & 1);
}
/* Release the shared memory of the tile of Q (is_do: 0) or of dO (is_do: 1) of step i. */
template <class C> TE_FN void te__attn_2cta_tile_release(const te__attn_bwd_warpgroup<C> *g, int is_do, int i) {
    te__attn_bwd_arrive(g, is_do ? TE__ATTN_BWD_AT(g, do_empty, C::do_stage(i)) : TE__ATTN_BWD_AT(g, q_empty, i & 1));
}
/* Loads operand A of this warpgroup's product to registers, K for S or V for dP, so that the product reads only Q or dO
 * from shared memory. N: the number of groups of 16 columns of A. If there are not enough registers for A, N is 1, and
 * nothing is loaded: the product then reads A from shared memory, too. */
template <class C, int N> TE_FN void te__attn_2cta_load_a(uint32_t (&a)[N][4], const te__attn_bwd_warpgroup<C> *g) {
    const int lane = te__attn_rematerialize(g->lane), row = g->warp * 16 + lane / 8 % 2 * 8 + lane % 8;
    if (N == 1) return;
    TE_UNROLL for (int x = 0; x < N; x++)
        te__attn_ldmatrix(a[x], te__attn_chunk_address(g->base + g->group * C::K_BYTES + x / 4 * 8192, row,
                                                  2 * (x % 4) + lane / 16));
}
/* Waits for the tile of Q or dO of step i, then issues the product for S (warpgroup G = 0) or dP (G = 1) of that step.
 * D: the number of columns that the product sums over. */
template <te_dtype T, int D, class C, int G, int N>
TE_FN void te__attn_2cta_issue_scores(float (&s)[32], const uint32_t (&a)[N][4], const te__attn_bwd_warpgroup<C> *g,
                                      int i) {
    const uint32_t tile = te__attn_2cta_tile_at(g, G, i);
    te__attn_2cta_tile_wait(g, G, i);
    te__wgmma_fence();
    if constexpr (N == 1) te__attn_bwd_gemm_scores<T, D, C>(s, g->base + G * C::K_BYTES, tile, g, 0);
    else
        TE_UNROLL for (int x = 0; x < N; x++)
            te__wgmma_atom<64>::template rs<T, 0>(s, a[x], te__wgmma_descriptor(tile + x / 4 * 8192, 0) + 2 * (x % 4),
                                                  x > 0);
    te__wgmma_commit();
}
/* Waits until both blocks' dS of step j is in this block's shared memory, then issues the product for warpgroup G's
 * columns of dQ. This product sums over all 128 keys, 64 of each block. */
template <te_dtype T, class C, int G, int N>
TE_FN void te__attn_2cta_issue_dq(float (&dq)[N], const te__attn_bwd_warpgroup<C> *g, int j) {
    const uint32_t own = g->base + C::dq_box(g->rank, G) * 8192, other = g->base + C::PEER_K_AT + G * 8192;
    const uint32_t ds = g->base + C::DS_AT + (j & 1) * C::DS_BYTES, column = N < 32 ? g->rank * 64 : 0;
    te__barrier_wait(TE__ATTN_BWD_AT(g, ds_full, j & 1), j >> 1 & 1);
    te__wgmma_fence();
    TE_UNROLL for (int x = 0; x < 8; x++)
        te__wgmma_atom<2 * N>::template ss<T, 1>(
            dq, te__wgmma_descriptor(ds + x / 4 * 8192, 0) + 2 * (x % 4),
            te__wgmma_descriptor((x / 4 == g->rank ? own : other) + column, 1) + 128 * (x % 4), x > 0);
    te__wgmma_commit();
}
/* Stores dQ of step j to shared memory, and signals to both blocks that the memory of dS of step j is free, because dQ
 * has been computed from it. whole: nonzero if all 64 queries of the step lie in the sequence. */
template <class C, int G, int N>
TE_FN void te__attn_2cta_dq_to_shared(const float (&dq)[N], const te__attn_bwd_warpgroup<C> *g, int j, int whole) {
    te__attn_bwd_arrive(g, TE__ATTN_BWD_AT(g, ds_empty, j & 1));
    if (g->lane < TE__ATTN_BWD_ARRIVING_LANES)
        te__barrier_arrive_remote(TE__ATTN_BWD_AT(g, ds_empty, j & 1), g->rank ^ 1);
    te__attn_bwd_dq_to_shared(dq, g, g->base + C::dq_slot_at(G, j),
                              TE__ATTN_BWD_AT(g, dq_empty, C::dq_slot_barrier(G, j)), C::dq_slot_phase(G, j),
                              whole ? 64 : 0);
    te__attn_fence_async_proxy();
    __syncwarp();
    te__attn_bwd_arrive(g, TE__ATTN_BWD_AT(g, dq_full, 2 * (j & 1) + G));
}
/* Issues the product for dQ of step j, waits for the result and stores it to shared memory. Called at the end of a key
 * tile, where no other products are left that could run in the meantime. */
template <te_dtype T, class C, int G, int N>
TE_FN void te__attn_2cta_compute_dq(float (&dq)[N], const te__attn_bwd_warpgroup<C> *g, int j, int whole) {
    te__attn_2cta_issue_dq<T, C, G>(dq, g, j);
    te__attn_wgmma_wait<0>();
    te__wgmma_fence_result(dq);
    te__attn_2cta_dq_to_shared<C, G>(dq, g, j, whole);
}

/* ---- mainloop ---------------------------------------------------------------------------------------------------- */

/* Computes P (warpgroup G = 0) or dS (G = 1) of step g->i, returns it in p16, and stores it in shared memory. With
 * F::SEPARATE_DS the first warpgroup stores, instead of P, the factor that takes the place of P in dS. s: the complete
 * S (G = 0) or dP (G = 1) of the step. */
template <te_dtype T, int HEADS, class F, class C, int G>
TE_FN void te__attn_2cta_p_or_ds(uint32_t (&p16)[4][4], float (&s)[32], const te__attn_bwd_params *p,
                                 const te__attn_bwd_warpgroup<C> *g, const te__attn_bwd_tile &t) {
    if constexpr (G == 0) {
        uint32_t ds_factor[4][4], dropped[1];
        const float2 none[1] = {};
        if constexpr (F::DROP != 0) te__attn_bwd_draw_dropout<HEADS, F, C>(dropped, p, g, t);
        te__attn_bwd_softmax<T, HEADS, F, C>(p16, ds_factor, s, none, p, g, t, dropped);
        te__attn_2cta_p_store(F::SEPARATE_DS ? ds_factor : p16, g);
    } else {
        te__attn_2cta_ds_of_p<T, F>(p16, s, g);
        te__attn_2cta_ds_send(p16, g);
    }
}
/* Stores d, the dV (warpgroup G = 0) or dK (G = 1) of this block's 64 keys, to global memory. k0: the first of these
 * keys. */
template <te_dtype T, int HEADS, int KV_HEADS, int D, class F, class C, int G, int N>
TE_FN void te__attn_2cta_store(const float (&d)[N], const te__attn_bwd_params *p, typename C::shared *sh,
                               const te__attn_bwd_item &item, const te_sequence &rows, int k0) {
    constexpr int64_t QKV = te__attn_widths<HEADS, KV_HEADS, D, F>::QKV;
    const int batch = item.head / KV_HEADS, seq = te__attn_bwd_seq<F>(p, rows);
    const int x = te__attn_kv_column<HEADS, KV_HEADS, D, F>(!G, item.head % KV_HEADS);
    const int64_t sums = (seq + C::SUM_ROWS - 1) / C::SUM_ROWS;
    te__attn_bwd_output o;
    o.to = (uint16_t *)p->a.dqkv + (te__attn_bwd_first_row<F>(p, rows, batch) + k0) * QKV + x;
    o.width = QKV, o.valid = seq - k0, o.factor = G ? p->a.scale : F::FACTOR;
    o.sum = p->a.sum && !F::VARLEN ? p->a.sum + (batch * sums + k0 / C::SUM_ROWS) * QKV + x : nullptr;
    o.part = sh->part[G], o.group = G, o.amax = te__attn_amax_output<F>(&p->a);
    te__attn_bwd_epilogue<T, 2 * N, C::SUM_ROWS>(d, o);
}

template <te_dtype T, int HEADS, int KV_HEADS, int D, class F, class C, int G>
TE_FN void te__attn_2cta_consumer(const te__attn_bwd_params *p, typename C::shared *sh, uint32_t base) {
    constexpr int V = te__attn_value_dim<D, F>();
    /* the number of columns of both operands over which the product for S (G = 0) or dP (G = 1) sums */
    constexpr int SUMMED = G ? V : D;
    constexpr int OWN = G ? D : V;    /* the number of columns of dV or dK */
    /* A_STEPS: the number of groups of 16 columns of K (first warpgroup) or V (second) that are held in registers as
     * operand A, or 1 if K or V stays in shared memory. The first warpgroup has registers for 192 columns each of dV
     * and K; the second one, which computes more columns of dQ, for 192 columns of dK and 128 of V. */
    constexpr int A_STEPS = OWN + SUMMED <= (G ? 192 + 128 : 192 + 192) ? SUMMED / 16 : 1;
    te__attn_bwd_warpgroup<C> all, *const g = &all;
    g->base = base, g->at = __shfl_sync(~0u, te__shared_address(sh), 0), g->i = 0, g->lane = (int)threadIdx.x % 32;
    g->rank = te__cluster_rank(), g->group = G, g->warp = __shfl_sync(~0u, (int)threadIdx.x / 32 % 4, 0);
    te__attn_bwd_item item;
    te_sequence rows = {0, 0};
    for (int r = 0; te__attn_bwd_item_receive<F, C>(&item, &rows, sh, r); r++) {
        const int k0 = item.key_tile * C::KEYS + g->rank * C::BLOCK_KEYS, seq = te__attn_bwd_seq<F>(p, rows);
        g->seq = seq;
        /* The accumulators: d for dV or dK, s for S or dP, dq for this warpgroup's columns of dQ. */
        float d[OWN / 2], s[32], dq[C::dq_columns(G) / 2];
        te__attn_bwd_query_tiles w = te__attn_bwd_query_tiles_of<C, HEADS, KV_HEADS, F>(p, item, rows);
        /* a bit mask: bit i is set if all queries of the tile that was processed i steps ago lie in the sequence */
        int whole = 0;
        if (G) te__barrier_wait(TE__ATTN_BWD_AT(g, v_full, 0), r & 1);
        te__barrier_wait(TE__ATTN_BWD_AT(g, k_full, 0), r & 1);
        uint32_t a[A_STEPS][4]; /* fragments of K or V, unless K or V stays in shared memory */
        te__attn_2cta_load_a(a, g);
        te__attn_2cta_issue_scores<T, SUMMED, C, G>(s, a, g, g->i);
        te__attn_wgmma_wait<0>();
        te__wgmma_fence_result(s);
        int n = 0; /* the number of steps of this item so far */
#pragma unroll 1
        for (;; n++) {
            uint32_t p16[4][4]; /* P or dS */
            const int q0 = w.tile * C::QUERIES;
            whole = whole << 1 | (seq - q0 >= 64);
            te__attn_2cta_p_or_ds<T, HEADS, F, C, G>(p16, s, p, g, {q0, k0, item.head / KV_HEADS * HEADS + w.head});
            te__attn_2cta_tile_release(g, G, g->i);
            te__attn_2cta_tile_wait(g, !G, g->i);
            te__wgmma_fence();
            te__attn_bwd_gemm_gradient<T, OWN, C>(d, p16, te__attn_2cta_tile_at(g, !G, g->i), n == 0);
            te__wgmma_commit();
            if (!te__attn_bwd_next_query_tile<HEADS, KV_HEADS, F>(&w)) break;
            /* Issue the product for dQ of the previous step. In the first step of an item (key tile), which has no
             * previous step, the result is not used. */
            te__attn_2cta_issue_dq<T, C, G>(dq, g, g->i - 1);
            te__attn_wgmma_wait<1>(); /* waits for dV or dK */
            te__attn_2cta_tile_release(g, !G, g->i);
            te__attn_2cta_issue_scores<T, SUMMED, C, G>(s, a, g, g->i + 1);
            te__attn_wgmma_wait<1>(); /* waits for dQ */
            te__wgmma_fence_result(dq);
            if (n) te__attn_2cta_dq_to_shared<C, G>(dq, g, g->i - 1, whole & 2);
            te__attn_wgmma_wait<0>();
            te__wgmma_fence_result(s);
            g->i++;
        }

        /* After the loop: wait for dV or dK of the last step, and compute dQ of the last two steps. */
        te__attn_wgmma_wait<0>();
        te__wgmma_fence_result(d);
        te__attn_2cta_tile_release(g, !G, g->i);
        te__attn_bwd_arrive(g, TE__ATTN_BWD_AT(g, v_empty, 0));
        if (n) te__attn_2cta_compute_dq<T, C, G>(dq, g, g->i - 1, whole & 2);
        te__attn_2cta_compute_dq<T, C, G>(dq, g, g->i, whole & 1);
        te__attn_bwd_arrive(g, TE__ATTN_BWD_AT(g, k_empty, 0));
        g->i++;
        te__attn_2cta_store<T, HEADS, KV_HEADS, D, F, C, G>(d, p, sh, item, rows, k0);
    }
}
#endif

#endif
