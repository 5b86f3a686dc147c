/* attention_hopper_warps_backward.h -- the warps beside the warpgroups of attention_hopper_backward.h: they hand out
 * key tiles, bring what is needed, and add dQ when it is their turn. */
/* target: cuda */
#ifndef TE_ATTENTION_HOPPER_WARPS_BACKWARD_H
#define TE_ATTENTION_HOPPER_WARPS_BACKWARD_H

#include "attention_hopper_order_backward.h" /* te_attn_back, te__attn_walk */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* The next item, for the warps that do not hand them out; 0: there is none. */
template <class F, class S> TE_FN int te__attn_item_take(int4 *item, te_sequence *rows, S *sh, int r) {
    te__barrier_wait(te__shared_address(&sh->item_full[r & 1]), r >> 1 & 1);
    const int4 v = sh->item[r & 1];
    *item = make_int4(__shfl_sync(~0u, v.x, 0), __shfl_sync(~0u, v.y, 0), __shfl_sync(~0u, v.z, 0),
                      __shfl_sync(~0u, v.w, 0)); /* the compiler sees that lanes agree */
    if constexpr (F::VARLEN) {
        const te_sequence u = sh->rows[r & 1];
        rows->first = __shfl_sync(~0u, u.first, 0), rows->count = __shfl_sync(~0u, u.count, 0);
    }
    if (threadIdx.x % 32 < TE_ATTN_ARRIVING) te__barrier_arrive(te__shared_address(&sh->item_empty[r & 1]));
    return item->y >= 0;
}

/* Which sequence, for the copy engine. */
template <int KV_HEADS, class F> TE_FN auto te__attn_box_of(const int4 &item, const te_sequence &rows) {
    if constexpr (F::VARLEN) return rows;
    else return item.x / KV_HEADS;
}
/* One thread hands out items and brings K, V, Q and dO. */
template <int HEADS, int KV_HEADS, int D, class F, class C>
TE_FN void te__attn_back_load(const te_attn_back *p, typename C::shared *sh, uint32_t base) {
    constexpr int V = te__attn_value_dim<D, F>();
    int i = 0;
    te_sequence_walk walk;
    if constexpr (F::VARLEN) walk = te_sequence_walk_of(&p->of, C::KEYS);
    for (int r = 0;; r++) {
        const int s = r & 1;
        int4 item; /* not sooner: others wait for who has it */
        do item = te__attn_item_of<HEADS, KV_HEADS, F, C>(p, (int)atomicAdd(p->ticket, 1u), &walk);
        while (F::VARLEN && item.y == -2);
        te__barrier_wait(te__shared_address(&sh->item_empty[s]), (r >> 1 & 1) ^ 1);
        sh->item[s] = item;
        te_sequence rows = {0, 0};
        if constexpr (F::VARLEN) sh->rows[s] = rows = walk.at;
        te__barrier_arrive(te__shared_address(&sh->item_full[s]));
        if (item.y < 0) return;

        const auto batch = te__attn_box_of<KV_HEADS, F>(item, rows);
        TE_UNROLL for (int k = 1; k >= 0; k--) { /* V, which is free first, then K */
            const int x = te__attn_column<HEADS, KV_HEADS, D, F>(k, item.x % KV_HEADS);
            const uint32_t full = te__shared_address(k ? &sh->v_full : &sh->k_full);
            te__barrier_wait(te__shared_address(k ? &sh->v_empty : &sh->k_empty), (r & 1) ^ 1);
            te__barrier_expect(full, k ? C::V_BYTES : C::K_BYTES);
            constexpr int HIGH = C::KEYS / 64;
            TE_UNROLL for (int b = 0; b < (k ? C::V_BOXES : C::BOXES) * HIGH; b++) /* 64 keys, 64 columns */
                te__attn_box_load(base + k * C::K_BYTES + b * 8192, &p->qkv, x + b / HIGH * 64,
                                  item.y * C::KEYS + b % HIGH * 64, batch, full);
        }
        te__attn_walk w = te__attn_walk_of<C, HEADS, KV_HEADS, F>(p, item, rows);
        do {
            const int st = i & 1, again = (i >> 1 & 1) ^ 1, ost = C::do_stage(i);
            constexpr int BOXES = D > 64 ? C::BOXES : 2; /* of 64 columns, or of 64 queries */
            constexpr int DO_BOXES = D > 64 ? C::V_BOXES : 2;
            const uint32_t q = base + C::Q_AT + st * C::Q_PITCH, o = base + C::DO_AT + ost * C::Q_PITCH;
            const uint32_t qf = te__shared_address(&sh->q_full[st]), of = te__shared_address(&sh->do_full[ost]);
            te__barrier_wait(te__shared_address(&sh->q_empty[st]), again);
            te__barrier_expect(qf, C::Q_BYTES);
            TE_UNROLL for (int b = 0; b < BOXES; b++)
                te__attn_box_load(q + b * 8192, &p->qkv, w.head * D + (D > 64 ? b * 64 : 0),
                                  w.tile * C::QUERIES + (D > 64 ? 0 : b * 64), batch, qf);
            te__barrier_wait(te__shared_address(&sh->do_empty[ost]), C::do_phase(i) ^ 1);
            te__barrier_expect(of, C::DO_BYTES);
            TE_UNROLL for (int b = 0; b < DO_BOXES; b++)
                te__attn_box_load(o + b * 8192, &p->dout, w.head * V + (D > 64 ? b * 64 : 0),
                                  w.tile * C::QUERIES + (D > 64 ? 0 : b * 64), batch, of);
            i++;
        } while (te__attn_walk_on<HEADS, KV_HEADS, F>(&w));
    }
}

/* A warp brings lse and delta. Queries that do not exist get an lse that makes P zero. */
template <int HEADS, int KV_HEADS, class F, class C>
TE_FN void te__attn_back_rows(const te_attn_back *p, typename C::shared *sh) {
    constexpr int EACH = C::QUERIES / 32;
    const int lane = (int)threadIdx.x % 32;
    int i = 0;
    int4 item;
    te_sequence rows = {0, 0};
    for (int r = 0; te__attn_item_take<F>(&item, &rows, sh, r); r++) {
        const int seq = te__attn_seq<F>(p, rows);
        te__attn_walk w = te__attn_walk_of<C, HEADS, KV_HEADS, F>(p, item, rows);
        do {
            const int st = i & 1, again = (i >> 1 & 1) ^ 1, q = w.tile * C::QUERIES + lane;
            const int64_t at = te__attn_rows_at<HEADS, F>(p, rows, item.x / KV_HEADS, w.head) + q;
            float lse[EACH], delta[EACH];
            TE_UNROLL for (int e = 0; e < EACH; e++) {
                lse[e] = INFINITY, delta[e] = 0;
                if (q + 32 * e < seq)
                    lse[e] = p->a.lse[at + 32 * e] * TE__ATTN_LOG2E, delta[e] = p->a.delta[at + 32 * e];
            }
            te__barrier_wait(te__shared_address(&sh->q_empty[st]), again);
            TE_UNROLL for (int e = 0; e < EACH; e++) sh->lse[st][lane + 32 * e] = lse[e];
            __syncwarp();
            if (lane < TE_ATTN_ARRIVING) te__barrier_arrive(te__shared_address(&sh->q_full[st]));
            te__barrier_wait(te__shared_address(&sh->do_empty[C::do_stage(i)]), C::do_phase(i) ^ 1);
            TE_UNROLL for (int e = 0; e < EACH; e++) sh->delta[st][lane + 32 * e] = delta[e];
            __syncwarp();
            if (lane < TE_ATTN_ARRIVING) te__barrier_arrive(te__shared_address(&sh->do_full[C::do_stage(i)]));
            i++;
        } while (te__attn_walk_on<HEADS, KV_HEADS, F>(&w));
    }
}

/* A warp adds the dQ of every other step when it is this block's turn; then it is the next one's. If wide, it adds that
 * of warpgroup `stage` in every step, piece after piece, and two warps count for a turn. */
template <int HEADS, int KV_HEADS, int D, class F, class C>
TE_FN void te__attn_back_turns(const te_attn_back *p, typename C::shared *sh, uint32_t base, int stage) {
    const int lane = (int)threadIdx.x % 32;
    const uint32_t from = base + C::DQ_AT + stage * (C::WIDE ? 1 : 2) * TE_ATTN_DQ_BYTES,
                   full = te__shared_address(&sh->dq_full[stage]), empty = te__shared_address(&sh->dq_empty[stage]);
    int n = 0; /* steps */
    int4 item;
    te_sequence rows = {0, 0};
    for (int r = 0; te__attn_item_take<F>(&item, &rows, sh, r); r++) {
        const int batch = item.x / KV_HEADS, seq = te__attn_seq<F>(p, rows);
        te__attn_walk w = te__attn_walk_of<C, HEADS, KV_HEADS, F>(p, item, rows);
        do {
            if (!C::WIDE && (n++ & 1) != stage) continue;
            const int q = w.tile * C::QUERIES;
            uint32_t *turn = te__attn_turns_at<HEADS, C, F>(p, rows, batch, w.head) + w.tile;
            int wanted = te__attn_turn<C, HEADS, KV_HEADS, F>(item, w.tile, seq);
            const int first = !wanted;
            if (p->any_order && wanted > 1) wanted = 1;
            if (C::WIDE) wanted *= 2;
            while (wanted && (int)te__attn_acquire(turn) < wanted) {}
            if constexpr (C::WIDE) {
                for (int x = stage * C::PIECES; x < (stage ? C::BOXES : C::PIECES); x++, n++) {
                    te__barrier_wait(full, n & 1);
                    const int left = seq - q, bytes = (left < 64 ? left : 64) * 256;
                    float *to = te__attn_back_dq_at<D>(p, w.head, x, te__attn_first<F>(p, rows, batch) + q);
                    if (lane == 0) {
                        if (first) te__attn_bulk_store(to, from, bytes);
                        else te__attn_bulk_add(to, from, bytes);
                        te__attn_bulk_read();
                        te__barrier_arrive(empty);
                    }
                    __syncwarp();
                }
                if (lane == 0) te__attn_bulk_done(), te__attn_release_add(turn);
                __syncwarp();
                continue;
            }
            te__barrier_wait(full, (n - 1) >> 1 & 1);
            TE_UNROLL for (int group = 0; group < 2 && lane == 0; group++) {
                const int left = seq - q - (D > 64 ? 0 : group * 64), count = left < 64 ? left : 64;
                float *to = te__attn_back_dq_at<D>(p, w.head, D > 64 ? group : 0,
                                                   te__attn_first<F>(p, rows, batch) + q + (D > 64 ? 0 : group * 64));
                if (count > 0 && first) te__attn_bulk_store(to, from + group * TE_ATTN_DQ_BYTES, count * 256);
                else if (count > 0) te__attn_bulk_add(to, from + group * TE_ATTN_DQ_BYTES, count * 256);
            }
            if (lane == 0) {
                te__attn_bulk_read();
                te__barrier_arrive(empty);
                te__attn_bulk_done(); /* not only read: added */
                te__attn_release_add(turn);
            }
            __syncwarp(); /* the lanes stay together: some that wait by themselves would hold up the one that works */
        } while (te__attn_walk_on<HEADS, KV_HEADS, F>(&w));
    }
}
#endif

#endif
