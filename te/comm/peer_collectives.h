/* peer_collectives.h -- collectives of the ranks of one host through memory that they map (peers.h), each one kernel.
 *
 * Which form runs is decided here, in te_peer_form. N ranks, S bytes; bytes that a rank sends over its link, and the
 * floor on H200s, where a link takes 450 GB/s each way (NVLink 4) and a store is seen by a peer after 1 to 1.5 us:
 *
 *   one-shot all_reduce    (N - 1) S          each sends all it has to all, each adds up all: one way over the link
 *   two-shot all_reduce    2 S (N - 1) / N    each adds up its part and sends the sum to all: two ways
 *   reduce_scatter         S (N - 1) / N      one way; S bytes of x
 *   all_gather             2 S (N - 1) / N    one way; S bytes of y. Any bits must pass, so half of a packet says that
 *                                             the other half has come
 *
 *   us, 2 ranks            16 KiB  64 KiB  256 KiB  1 MiB  2 MiB  4 MiB  8 MiB  16 MiB
 *   one-shot all_reduce    1.3     1.4     1.8      3.6    5.9    10.6   19.9   38.5
 */
#ifndef TE_COMM_PEER_COLLECTIVES_H
#define TE_COMM_PEER_COLLECTIVES_H

#include "peers.h" /* te_peers, te__peer_wait */

/* From some 1 MiB on that a rank of more than two sends, a second way over the link (2 us, 0.9 MB) costs less than what
 * the two-shot form saves. Of two ranks both forms send the same. */
#define TE_PEER_ONE_SHOT ((int64_t)1 << 20)

/* What goes which way, by the bytes of the whole tensor. Of the ranks p->one_shot knows. */
TE_API te_peer_form te_peer_form_of(const te_peers *p, te_peer_kind kind, int64_t bytes) {
    if (!p || bytes > p->largest) return TE_PEER_none;
    return kind == TE_PEER_all_reduce && bytes > p->one_shot ? TE_PEER_two_shot : TE_PEER_one_shot;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* `whole`: the same as a->whole, if 1. A thread has `batch`
 * units of 16 bytes on their way at a time. */
TE_FN void te__one_shot(const te_peer_args *a, te_block b, uint32_t turn, const int most, const int whole,
                        const int batch) {
    const int units = (int)te_ceil_div(a->bytes, TE_WORDS), stride = te__peer_stride(b);
    for (int from = te__peer_thread(b); from < units; from += batch * stride) {
        te_words x[4];
        TE_UNROLL for (int j = 0; j < batch; j++) {
            const int i = from + j * stride;
            const int64_t at = (int64_t)i * TE_WORDS;
            if (i < units) te_words_load(&x[j], a->x, at, (int)te_min(TE_WORDS, a->bytes - at), whole);
        }
        te__peer_turn_now(&turn);
        TE_UNROLL for (int j = 0; j < batch; j++) {
            const int i = from + j * stride;
            te_words_mark(&x[j]);
            TE_UNROLL for (int r = 0; r < most; r++)
                if (i < units && te__peer_is(a, r, most) && r != a->rank)
                    te_words_send(te__peer_slot(a->at[r], a, turn, a->rank, units, i), &x[j]);
        }
        TE_UNROLL for (int j = 0; j < batch; j++) {
            const int i = from + j * stride;
            const int64_t at = (int64_t)i * TE_WORDS;
            te_words sum;
            if (i >= units) continue;
            if (!te__peer_sum(&sum, &x[j], a, turn, units, i, most)) return;
            te_words_store(a->y, at, &sum, (int)te_min(TE_WORDS, a->bytes - at), whole);
        }
    }
}
/* Send the others their parts of x, which begin every `pitch` bytes and have at most `bytes` bytes; x ends at byte
 * `end`. The part of this rank stays: *own. */
TE_FN void te__peer_scatter(te_words *own, const te_peer_args *a, uint32_t *turn, int units, int i,
                            int64_t pitch, int64_t bytes, int64_t end, const int most, const int whole) {
    const int64_t unit = (int64_t)i * TE_WORDS, left = te_min(TE_WORDS, bytes - unit), mine = a->rank * pitch + unit;
    te_words v[TE_PEERS];
    TE_UNROLL for (int r = 0; r < most; r++) {
        const int64_t at = r * pitch + unit;
        if (te__peer_is(a, r, most) && r != a->rank) te_words_load(&v[r], a->x, at, (int)te_min(left, end - at), whole);
    }
    te_words_load(own, a->x, mine, (int)te_min(left, end - mine), whole);
    te__peer_turn_now(turn);
    TE_UNROLL for (int r = 0; r < most; r++) {
        if (!te__peer_is(a, r, most) || r == a->rank || r * pitch + unit >= end) continue;
        te_words_mark(&v[r]);
        te_words_send(te__peer_slot(a->at[r], a, *turn, a->rank, units, i), &v[r]);
    }
}
/* Rank r adds up units r * part to (r + 1) * part. The sums come behind what was sent to be added up. */
TE_FN void te__two_shot(const te_peer_args *a, te_block b, uint32_t turn, const int most, const int whole) {
    const int units = (int)te_ceil_div(a->bytes, TE_WORDS), part = (int)te_ceil_div(units, a->ranks),
              sums = a->ranks * part;
    for (int i = te__peer_thread(b); i < part; i += te__peer_stride(b)) {
        const int mine = a->rank * part + i;
        const int64_t each = (int64_t)part * TE_WORDS;
        uint32_t missing = te__peer_others(a);
        te_words v[TE_PEERS], own, sum;
        te__peer_scatter(&own, a, &turn, part, i, each, each, a->bytes, most, whole);
        if (mine < units) {
            if (!te__peer_sum(&sum, &own, a, turn, part, i, most)) return;
            TE_UNROLL for (int r = 0; r < most; r++)
                if (te__peer_is(a, r, most) && r != a->rank)
                    te_words_send(te__peer_slot(a->at[r], a, turn, a->rank, part, sums + i), &sum);
            const int64_t at = (int64_t)mine * TE_WORDS;
            te_words_store(a->y, at, &sum, (int)te_min(TE_WORDS, a->bytes - at), whole);
        }
        TE_UNROLL for (int r = 0; r < most; r++) if (r * part + i >= units) missing &= ~(1u << r);
        if (!te__peer_wait(v, a, turn, part, sums + i, missing, most, 0)) return;
        TE_UNROLL for (int r = 0; r < most; r++) {
            const int64_t at = (int64_t)(r * part + i) * TE_WORDS;
            if (missing >> r & 1) te_words_store(a->y, at, &v[r], (int)te_min(TE_WORDS, a->bytes - at), whole);
        }
    }
}
TE_FN void te__reduce_scatter(const te_peer_args *a, te_block b, uint32_t turn, const int most, const int whole) {
    const int units = (int)te_ceil_div(a->bytes, TE_WORDS);
    for (int i = te__peer_thread(b); i < units; i += te__peer_stride(b)) {
        const int64_t at = (int64_t)i * TE_WORDS;
        te_words own, sum;
        te__peer_scatter(&own, a, &turn, units, i, a->bytes, a->bytes, a->ranks * a->bytes, most, whole);
        if (!te__peer_sum(&sum, &own, a, turn, units, i, most)) return;
        te_words_store(a->y, at, &sum, (int)te_min(TE_WORDS, a->bytes - at), whole);
    }
}
/* Eight bytes at a time, in packets of two words and two marks. */
TE_FN void te__all_gather(const te_peer_args *a, te_block b, uint32_t turn, const int most, const int whole) {
    enum { HALF = TE_WORDS / 2 };
    const int packets = (int)te_ceil_div(a->bytes, HALF);
    for (int i = te__peer_thread(b); i < packets; i += te__peer_stride(b)) {
        const int n = (int)te_min(HALF, a->bytes - (int64_t)i * HALF);
        te_words v[TE_PEERS], own, packet;
        te_words_load8(&own, a->x, (int64_t)i * HALF, n, whole);
        te__peer_turn_now(&turn);
        packet.w[0] = own.w[0], packet.w[2] = own.w[1], packet.w[1] = packet.w[3] = 0;
        TE_UNROLL for (int r = 0; r < most; r++)
            if (te__peer_is(a, r, most) && r != a->rank)
                te_words_send(te__peer_slot(a->at[r], a, turn, a->rank, packets, i), &packet);
        if (!te__peer_wait(v, a, turn, packets, i, te__peer_others(a), most, 1)) return;
        TE_UNROLL for (int r = 0; r < most; r++) {
            if (r != a->rank) own.w[0] = v[r].w[0], own.w[1] = v[r].w[2];
            else own.w[0] = packet.w[0], own.w[1] = packet.w[2];
            if (te__peer_is(a, r, most)) te_words_store8(a->y, r * a->bytes + (int64_t)i * HALF, &own, n, whole);
        }
    }
}

#define TE__PEER_KERNEL(name, call)                             \
    TE_FN void name##_body(const te_peer_args *a, te_block b) { \
        const uint32_t turn = te__peer_turn(a, b);              \
        call;                                                   \
        te__peer_done(a, b, turn, TE_PEER_THREADS);             \
    }                                                           \
    TE_KERNEL_IF_USED(name, TE_PEER_THREADS, 1, te_peer_args, name##_body(te_args, te_at))
TE__PEER_KERNEL(te_peer_one_shot_2, te__one_shot(a, b, turn, 2, 1, 4))
TE__PEER_KERNEL(te_peer_one_shot, te__one_shot(a, b, turn, TE_PEERS, a->whole, 1))
TE__PEER_KERNEL(te_peer_two_shot_4, te__two_shot(a, b, turn, 4, 1))
TE__PEER_KERNEL(te_peer_two_shot, te__two_shot(a, b, turn, TE_PEERS, a->whole))
TE__PEER_KERNEL(te_peer_reduce_scatter_2, te__reduce_scatter(a, b, turn, 2, 1))
TE__PEER_KERNEL(te_peer_reduce_scatter, te__reduce_scatter(a, b, turn, TE_PEERS, a->whole))
TE__PEER_KERNEL(te_peer_all_gather, te__all_gather(a, b, turn, TE_PEERS, a->whole))

/* ---- on the host ------------------------------------------------------------------------------------------------- */

/* Bytes of each half, and of each rank's memory: what a two-shot sum of `largest` bytes takes, where parts are rounded
 * up, and what packets of as many take; a one-shot sum of N ranks takes N times its bytes. */
TE_API void te_peers_size(te_peers *p, int64_t largest, int ranks) {
    p->largest = te_min(largest, TE_PEER_MOST);
    p->half = te_round_up(2 * p->largest + 2 * ranks * (ranks + 1) * TE_WORDS, TE_ALIGN);
    p->one_shot = ranks == 2 ? p->largest : te_min(p->largest, TE_PEER_ONE_SHOT) / (ranks - 1);
}
/* Blocks that run at a time on a device of so many multiprocessors. */
TE_API int te_peer_blocks(int processors) { return (int)te_min(TE_PEER_BLOCKS, processors); }
TE_API size_t te_peers_bytes(const te_peers *p) { return 2 * (size_t)p->half; }

TE_IF_USED TE_API te_status te__peer_launch(const te_peer_args *a, int blocks, te_context *ctx) {
    const int two = a->whole && a->ranks == 2, four = a->whole && a->ranks == 4;
    const int gathers = a->kind == TE_PEER_all_gather;
    const int64_t units = te_ceil_div(a->bytes, gathers ? TE_WORDS / 2 : TE_WORDS);
    const int64_t threads = a->form == TE_PEER_two_shot ? te_ceil_div(units, a->ranks) : units;
    const te_grid grid = te_grid_of(te_min(te_ceil_div(threads, TE_PEER_THREADS), blocks), 1);
    if (gathers) return te_peer_all_gather_launch(ctx, grid, a);
    if (a->kind == TE_PEER_reduce_scatter && two) return te_peer_reduce_scatter_2_launch(ctx, grid, a);
    if (a->kind == TE_PEER_reduce_scatter) return te_peer_reduce_scatter_launch(ctx, grid, a);
    if (a->form == TE_PEER_one_shot && two) return te_peer_one_shot_2_launch(ctx, grid, a);
    if (a->form == TE_PEER_one_shot) return te_peer_one_shot_launch(ctx, grid, a);
    return four ? te_peer_two_shot_4_launch(ctx, grid, a) : te_peer_two_shot_launch(ctx, grid, a);
}
/* Enqueue the collective, if it goes this way: *takes. count: elements that one rank has, as in te_transport. */
TE_IF_USED TE_API te_status te_peer_collective(int *takes, const te_group *g, te_peer_kind kind, void *y, const void *x,
                                               int64_t count, te_dtype dtype, te_context *ctx) {
    te_peers *p = g->peers;
    const int64_t bytes = count * (int64_t)te_dtype_bytes(dtype);
    const te_peer_form form = te_peer_form_of(p, kind, kind == TE_PEER_all_reduce ? bytes : bytes * g->size);
    TE_TRY(te_peers_check(g, ctx));
    if (!(*takes = form != TE_PEER_none)) return TE_OK;
    te_peer_args a = te__peer_args_of(g, kind, form, bytes, dtype);
    a.y = y, a.x = x, a.whole = ((uintptr_t)x | (uintptr_t)y | (uintptr_t)bytes) % TE_WORDS == 0;
    p->collectives++;
    return te__peer_launch(&a, p->blocks, ctx);
}

#endif
