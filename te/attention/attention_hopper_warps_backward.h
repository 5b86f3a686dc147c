/* attention_hopper_warps_backward.h -- the warps beside the warpgroups of attention_hopper_backward.h: they hand out
 * key tiles, bring what is needed, and add dQ when it is their turn. */
/* target: cuda */
#ifndef TE_ATTENTION_HOPPER_WARPS_BACKWARD_H
#define TE_ATTENTION_HOPPER_WARPS_BACKWARD_H

#include "attention_hopper_order_backward.h" /* te_attn_back, te__attn_walk */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* An item of a cluster lies in the shared memory of both blocks: the first one's thread that hands it out writes it
 * there, and waits until all of both have taken the one before. */
TE_FN void te__attn_item_store(uint32_t to, uint32_t full, int4 v, te_sequence rows, uint32_t rows_to) {
    asm volatile("{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, 1;\n"
                 "st.shared::cluster.v4.s32 [at], {%1, %2, %3, %4};\n"
                 "mapa.shared::cluster.u32 at, %5, 1;\nst.shared::cluster.v2.s32 [at], {%6, %7};\n"
                 "mapa.shared::cluster.u32 at, %8, 1;\nmbarrier.arrive.release.cluster.shared::cluster.b64 _, [at];\n}"
                 ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(rows_to), "r"(rows.first), "r"(rows.count),
                 "r"(full)
                 : "memory");
}
template <class C> TE_FN void te__attn_item_wait(uint32_t bar, int phase) {
    if constexpr (C::WIDE) te__barrier_wait_acquire_cluster(bar, phase);
    else te__barrier_wait(bar, phase);
}
template <class C> TE_FN void te__attn_item_taken(uint32_t bar) {
    if constexpr (C::WIDE) te__barrier_arrive_remote_release(bar, 0);
    else te__barrier_arrive(bar);
}
/* The next item, for the warps that do not hand them out; 0: there is none. */
template <class F, class C> TE_FN int te__attn_item_take(int4 *item, te_sequence *rows, typename C::shared *sh, int r) {
    te__attn_item_wait<C>(te__shared_address(&sh->item_full[r & 1]), r >> 1 & 1);
    const int4 v = sh->item[r & 1];
    *item = make_int4(__shfl_sync(~0u, v.x, 0), __shfl_sync(~0u, v.y, 0), __shfl_sync(~0u, v.z, 0),
                      __shfl_sync(~0u, v.w, 0)); /* the compiler sees that lanes agree */
    if constexpr (F::VARLEN) {
        const te_sequence u = sh->rows[r & 1];
        rows->first = __shfl_sync(~0u, u.first, 0), rows->count = __shfl_sync(~0u, u.count, 0);
    }
    if (threadIdx.x % 32 < TE_ATTN_ARRIVING) te__attn_item_taken<C>(te__shared_address(&sh->item_empty[r & 1]));
    return item->y >= 0;
}

/* Which sequence, for the copy engine. */
template <int KV_HEADS, class F> TE_FN auto te__attn_box_of(const int4 &item, const te_sequence &rows) {
    if constexpr (F::VARLEN) return rows;
    else return item.x / KV_HEADS;
}
/* Full attention, before a block asks for its next item, its last one being number i with the last two steps w: if that
 * may be of the same band, all that the block has to add has been added. Each of two warps adds every other step. */
template <int HEADS, int KV_HEADS, class F, class C>
TE_FN void te__attn_back_await(const te_attn_back *p, const int4 &item, const te_sequence &rows, int i,
                               const te__attn_walk (&w)[2]) {
    const int seq = te__attn_seq<F>(p, rows);
    if ((int)te__attn_acquire(p->ticket) > i + item.y - item.z) return;
    for (int n = 0; n < 2 * C::CLUSTER; n++) {
        const te__attn_walk &of = w[n / C::CLUSTER];
        const int turn = te__attn_turn<C, HEADS, KV_HEADS, F, 1>(p, item, of.tile, seq);
        const uint32_t *const number =
            te__attn_turn_at<HEADS, C, F>(p, rows, item.x / KV_HEADS, of.head, of.tile, n % C::CLUSTER);
        while ((int)te__attn_acquire(number) <= turn) {}
    }
}
/* One thread hands out items and brings K, V, Q and dO. */
template <int HEADS, int KV_HEADS, int D, class F, class C>
TE_FN void te__attn_back_load(const te_attn_back *p, typename C::shared *sh, uint32_t base) {
    constexpr int V = te__attn_value_dim<D, F>();
    const int rank = C::WIDE ? te__cluster_rank() : 0;
    int i = 0, number = 0;
    int4 item;
    te_sequence rows;
    te__attn_walk done[2]; /* the last two steps */
    te_sequence_cursor walk;
    if constexpr (F::VARLEN) walk = te_sequence_cursor_begin(&p->of, C::KEYS);
    for (int r = 0;; r++) {
        const int s = r & 1;
        const uint32_t full = te__shared_address(&sh->item_full[s]), empty = te__shared_address(&sh->item_empty[s]);
        if (rank == 0) {
            if (te__attn_wraps<F>() && r) te__attn_back_await<HEADS, KV_HEADS, F, C>(p, item, rows, number, done);
            rows.first = rows.count = 0;
            do
                number = (int)atomicAdd(p->ticket, 1u),
                item = te__attn_item_of<HEADS, KV_HEADS, F, C>(p, number, &walk);
            while (F::VARLEN && item.y == -2); /* not sooner: others wait for who has it */
            te__attn_item_wait<C>(empty, (r >> 1 & 1) ^ 1);
            sh->item[s] = item;
            if constexpr (F::VARLEN) sh->rows[s] = rows = walk.at;
            te__barrier_arrive(full);
            if constexpr (C::WIDE)
                te__attn_item_store(te__shared_address(&sh->item[s]), full, item, rows,
                                    te__shared_address(&sh->rows[s]));
        } else {
            te__attn_item_wait<C>(full, r >> 1 & 1);
            item = sh->item[s], rows = sh->rows[s];
            te__attn_item_taken<C>(empty);
        }
        if (item.y < 0) return;

        const auto batch = te__attn_box_of<KV_HEADS, F>(item, rows);
        TE_UNROLL for (int k = 1; k >= 0; k--) { /* V, which is free first, then K */
            const int x = te__attn_kv_column<HEADS, KV_HEADS, D, F>(k, item.x % KV_HEADS);
            const uint32_t there = te__shared_address(k ? &sh->v_full : &sh->k_full);
            te__barrier_wait(te__shared_address(k ? &sh->v_empty : &sh->k_empty), (r & 1) ^ 1);
            te__barrier_arrive_expect_tx(there, k ? C::V_BYTES : C::K_BYTES + (C::WIDE ? 2 * 8192 : 0));
            constexpr int HIGH = C::BLOCK_KEYS / 64;
            TE_UNROLL for (int b = 0; b < (k ? C::V_BOXES : C::BOXES) * HIGH; b++) /* 64 keys, 64 columns */
                te__attn_box_load(base + k * C::K_BYTES + b * 8192, F::CROSS ? &p->kv : &p->qkv, x + b / HIGH * 64,
                                  item.y * C::KEYS + rank * C::BLOCK_KEYS + b % HIGH * 64, batch, there);
            TE_UNROLL for (int g = 0; g < 2 && C::WIDE && !k; g++) /* the other block's K, for dQ */
                te__attn_box_load(base + C::OTHER_AT + g * 8192, &p->qkv, x + C::piece_box(rank, g) * 64,
                                  item.y * C::KEYS + (rank ^ 1) * C::BLOCK_KEYS, batch, there);
        }
        te__attn_walk w = te__attn_walk_of<C, HEADS, KV_HEADS, F>(p, item, rows);
        done[1] = w;
        do {
            done[0] = done[1], done[1] = w;
            const int st = i & 1, again = (i >> 1 & 1) ^ 1, ost = C::do_stage(i);
            constexpr int BOXES = D > 64 ? C::BOXES : 2; /* of 64 columns, or of 64 queries */
            constexpr int DO_BOXES = D > 64 ? C::V_BOXES : 2;
            const uint32_t q = base + C::Q_AT + st * C::Q_PITCH, o = base + C::DO_AT + ost * C::Q_PITCH;
            const uint32_t qf = te__shared_address(&sh->q_full[st]), of = te__shared_address(&sh->do_full[ost]);
            te__barrier_wait(te__shared_address(&sh->q_empty[st]), again);
            te__barrier_arrive_expect_tx(qf, C::Q_BYTES);
            TE_UNROLL for (int b = 0; b < BOXES; b++)
                te__attn_box_load(q + b * 8192, &p->qkv, w.head * D + (D > 64 ? b * 64 : 0),
                                  w.tile * C::QUERIES + (D > 64 ? 0 : b * 64), batch, qf);
            te__barrier_wait(te__shared_address(&sh->do_empty[ost]), C::do_phase(i) ^ 1);
            te__barrier_arrive_expect_tx(of, C::DO_BYTES);
            TE_UNROLL for (int b = 0; b < DO_BOXES; b++)
                te__attn_box_load(o + b * 8192, &p->dout, w.head * V + (D > 64 ? b * 64 : 0),
                                  w.tile * C::QUERIES + (D > 64 ? 0 : b * 64), batch, of);
            i++;
        } while (te__attn_walk_on<HEADS, KV_HEADS, F>(&w));
    }
}

/* lse (WHICH 0, in powers of 2) or delta of a query. */
template <int WHICH, class F, class C>
TE_FN void te__attn_back_line_store(const te_attn_back *p, typename C::shared *sh, int stage, int query, float x) {
    if constexpr (C::ADDED) {
        /* what is infinite becomes a number that is large enough: zeros of A meet it too */
        x = WHICH ? -x : x / (-te__attn_score_unit<F>(p->a.scale) * TE__ATTN_LOG2E);
        if (x < -3e38f) x = -3e38f;
        const uint2 terms = te__attn_back_terms(x);
        uint4 *const to = (uint4 *)(void *)sh->lse[stage] + query;
        /* with lse delta's place is zero: S meets it, times 0, and what lay there need not be a number */
        if (WHICH) *((uint2 *)to + 1) = terms;
        else *to = make_uint4(terms.x, terms.y, 0, 0);
        te__attn_publish();
    } else if (WHICH) {
        sh->delta[stage][query] = x;
    } else {
        sh->lse[stage][query] = x;
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
    for (int r = 0; te__attn_item_take<F, C>(&item, &rows, sh, r); r++) {
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
            TE_UNROLL for (int e = 0; e < EACH; e++)
                te__attn_back_line_store<0, F, C>(p, sh, st, lane + 32 * e, lse[e]);
            __syncwarp();
            if (lane < TE_ATTN_ARRIVING) te__barrier_arrive(te__shared_address(&sh->q_full[st]));
            te__barrier_wait(te__shared_address(&sh->do_empty[C::do_stage(i)]), C::do_phase(i) ^ 1);
            TE_UNROLL for (int e = 0; e < EACH; e++)
                te__attn_back_line_store<1, F, C>(p, sh, st, lane + 32 * e, delta[e]);
            __syncwarp();
            if (lane < TE_ATTN_ARRIVING) te__barrier_arrive(te__shared_address(&sh->do_full[C::do_stage(i)]));
            i++;
        } while (te__attn_walk_on<HEADS, KV_HEADS, F>(&w));
    }
}

/* The copy engine adds `bytes` bytes of dQ from shared memory; whose turn is the first stores them. */
TE_FN void te__attn_back_add(float *to, uint32_t from, int bytes, int first) {
    if (bytes <= 0) return;
    if (first) te__attn_bulk_store(to, from, bytes);
    else te__attn_bulk_add(to, from, bytes);
}
/* A piece of up to 64 rows that is all of its box, or COLUMNS of it from column `x` on. */
template <int COLUMNS> TE_FN void te__attn_back_add_piece(float *box, uint32_t from, int x, int left, int first) {
    if (COLUMNS == 64) return te__attn_back_add(box, from, (left < 64 ? left : 64) * 256, first);
    if (left >= 64) return te__attn_back_add(box + x * 64, from, COLUMNS * 256, first);
    for (int y = 0; y < left; y++)
        te__attn_back_add(box + y * 64 + x, from + y * COLUMNS * 4, COLUMNS * 4, first);
}
/* A warp adds the dQ of every other step when it is this block's turn; then it is the next one's. While it waits for
 * what it added to be in memory, and says so, the other warp adds what comes next. */
template <int HEADS, int KV_HEADS, int D, class F, class C>
TE_FN void te__attn_back_turns(const te_attn_back *p, typename C::shared *sh, uint32_t base, int stage) {
    const int lane = (int)threadIdx.x % 32, rank = C::WIDE ? te__cluster_rank() : 0;
    int n = 0; /* steps */
    int4 item;
    te_sequence rows = {0, 0};
    for (int r = 0; te__attn_item_take<F, C>(&item, &rows, sh, r); r++) {
        const int batch = item.x / KV_HEADS, seq = te__attn_seq<F>(p, rows);
        te__attn_walk w = te__attn_walk_of<C, HEADS, KV_HEADS, F>(p, item, rows);
        do {
            const int i = n++;
            if ((i & 1) != stage) continue;
            const int q = w.tile * C::QUERIES;
            const int64_t row = te__attn_first<F>(p, rows, batch) + q;
            uint32_t *turn = te__attn_turn_at<HEADS, C, F>(p, rows, batch, w.head, w.tile, rank);
            int wanted = te__attn_turn<C, HEADS, KV_HEADS, F, 32>(p, item, w.tile, seq);
            const int first = !wanted;
            if (p->any_order && !te__attn_wraps<F>() && wanted > 1) wanted = 1;
            while (wanted && (int)te__attn_acquire(turn) < wanted) {}
            if constexpr (C::WIDE) {
                TE_UNROLL for (int group = 0; group < 2; group++) {
                    constexpr int COLUMNS[2] = {C::piece_columns(0), C::piece_columns(1)};
                    te__barrier_wait(te__shared_address(&sh->dq_full[2 * stage + group]), i >> 1 & 1);
                    float *const box = te__attn_back_dq_at<D>(p, w.head, C::piece_box(rank, group), row);
                    const uint32_t from = base + C::piece_at(group, i);
                    if (lane == 0) {
                        if (group) te__attn_back_add_piece<COLUMNS[1]>(box, from, 0, seq - q, first);
                        else te__attn_back_add_piece<COLUMNS[0]>(box, from, rank * 32, seq - q, first);
                        te__attn_bulk_read();
                        te__barrier_arrive(te__shared_address(&sh->dq_empty[C::piece_gone(group, i)]));
                    }
                    __syncwarp();
                }
            } else {
                te__barrier_wait(te__shared_address(&sh->dq_full[stage]), i >> 1 & 1);
                TE_UNROLL for (int group = 0; group < 2 && lane == 0; group++) {
                    const int later = D > 64 ? 0 : group * 64, left = seq - q - later;
                    te__attn_back_add(te__attn_back_dq_at<D>(p, w.head, D > 64 ? group : 0, row + later),
                                      base + C::DQ_AT + (stage * 2 + group) * TE_ATTN_DQ_BYTES,
                                      (left < 64 ? left : 64) * 256, first);
                }
                if (lane == 0) te__attn_bulk_read(), te__barrier_arrive(te__shared_address(&sh->dq_empty[stage]));
            }
            if (lane == 0) te__attn_bulk_done(), te__attn_release_add(turn); /* not only read: added */
            __syncwarp(); /* the lanes stay together: some that wait by themselves would hold up the one that works */
        } while (te__attn_walk_on<HEADS, KV_HEADS, F>(&w));
    }
}
#endif

#endif
