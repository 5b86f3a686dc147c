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
 *   us                      16 KiB  64 KiB  256 KiB  1 MiB  2 MiB  4 MiB  8 MiB  16 MiB
 *   2 ranks: floor          1.3     1.4     1.8      3.6    5.9    10.6   19.9   38.5
 *   all_reduce, two H200s   2.8     3.0     3.6      5.8    8.8    15.3   27.0   51.6
 *   all_gather              3.3     3.0     3.7      5.9    8.9    14.8   26.8   50.4
 *   4 ranks: floor          1.4     1.7     3.1      6.1    9.6    16.6   30.6   58.5
 *   all_reduce, four H200s  5.0     5.3     6.7      9.0    14.8   23.9   41.7   79.7
 *   all_gather              3.7     3.8     4.9      9.3    13.8   23.1   42.4   79.2
 *
 * A thread sends what it has next before it waits for what it has now: without that the link waits with it, and a sum
 * of 16 MiB takes 65.6 us. Units in flight: 512 threads with four each take 61.8, with two 57.1, with one 54.7; 1024
 * threads with one, in blocks of 512 so that small tensors begin as early, 51.6. Each rank sends to the one behind it
 * first: where all began with rank 0, four took 45.6 and 86.2 us for sums of 8 and 16 MiB.
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

/* Load and send the i-th unit of 16 bytes. */
TE_FN void te__one_shot_send(te_words *x, const te_peer_args *a, uint32_t *turn, int units, int i, const int most,
                             const int whole) {
    const int64_t at = (int64_t)i * TE_WORDS;
    te_words_load(x, a->x, at, (int)te_min(TE_WORDS, a->bytes - at), whole);
    te__peer_turn_now(turn);
    te_words_mark(x);
    TE_UNROLL for (int k = 1; k < most; k++)
        if (te__peer_is(a, k, most))
            te_words_send(te__peer_slot(a->at[te__peer_next(a, k)], a, *turn, a->rank, units, i), x);
}
/* `whole`: the same as a->whole, if 1. */
TE_FN void te__one_shot(const te_peer_args *a, te_block b, uint32_t turn, const int most, const int whole) {
    const int units = (int)te_ceil_div(a->bytes, TE_WORDS), first = te__peer_thread(b), stride = te__peer_stride(b);
    te_words x, next, sum;
    if (first < units) te__one_shot_send(&x, a, &turn, units, first, most, whole);
    for (int i = first; i < units; i += stride) {
        const int64_t at = (int64_t)i * TE_WORDS;
        if (i + stride < units) te__one_shot_send(&next, a, &turn, units, i + stride, most, whole);
        if (!te__peer_sum(&sum, &x, a, turn, units, i, most)) return;
        te_words_store(a->y, at, &sum, (int)te_min(TE_WORDS, a->bytes - at), whole);
        x = next;
    }
}
/* Send the others their parts of x, which begin every `pitch` bytes and have at most `bytes` bytes; x ends at byte
 * `end`. The part of this rank stays: *own. */
TE_FN void te__peer_scatter(te_words *own, const te_peer_args *a, uint32_t *turn, int units, int i,
                            int64_t pitch, int64_t bytes, int64_t end, const int most, const int whole) {
    const int64_t unit = (int64_t)i * TE_WORDS, left = te_min(TE_WORDS, bytes - unit), mine = a->rank * pitch + unit;
    te_words v[TE_PEERS];
    TE_UNROLL for (int k = 1; k < most; k++) {
        const int64_t at = te__peer_next(a, k) * pitch + unit;
        if (te__peer_is(a, k, most)) te_words_load(&v[k], a->x, at, (int)te_min(left, end - at), whole);
    }
    te_words_load(own, a->x, mine, (int)te_min(left, end - mine), whole);
    te__peer_turn_now(turn);
    TE_UNROLL for (int k = 1; k < most; k++) {
        const int to = te__peer_next(a, k);
        if (!te__peer_is(a, k, most) || to * pitch + unit >= end) continue;
        te_words_mark(&v[k]);
        te_words_send(te__peer_slot(a->at[to], a, *turn, a->rank, units, i), &v[k]);
    }
}
/* The two-shot form's parts: rank r adds up units r * part to (r + 1) * part. The sums come behind what was sent to be
 * added up. */
typedef struct te_peer_parts { int units, part, sums; } te_peer_parts;
TE_FN void te__two_shot_send(te_words *own, const te_peer_args *a, uint32_t *turn, te_peer_parts p, int i,
                             const int most, const int whole) {
    const int64_t each = (int64_t)p.part * TE_WORDS;
    te__peer_scatter(own, a, turn, p.part, i, each, each, a->bytes, most, whole);
}
/* Add up this rank's i-th unit, and send the sum to all. */
TE_FN int te__two_shot_sum(const te_words *own, const te_peer_args *a, uint32_t turn, te_peer_parts p, int i,
                           const int most, const int whole) {
    const int64_t at = (int64_t)(a->rank * p.part + i) * TE_WORDS;
    te_words sum;
    if (a->rank * p.part + i >= p.units) return 1;
    if (!te__peer_sum(&sum, own, a, turn, p.part, i, most)) return 0;
    te_words_mark(&sum);
    TE_UNROLL for (int k = 1; k < most; k++)
        if (te__peer_is(a, k, most))
            te_words_send(te__peer_slot(a->at[te__peer_next(a, k)], a, turn, a->rank, p.part, p.sums + i), &sum);
    te_words_store(a->y, at, &sum, (int)te_min(TE_WORDS, a->bytes - at), whole);
    return 1;
}
/* The i-th sum of each other rank. */
TE_FN int te__two_shot_receive(const te_peer_args *a, uint32_t turn, te_peer_parts p, int i, const int most,
                               const int whole) {
    uint32_t missing = te__peer_others(a);
    te_words v[TE_PEERS];
    TE_UNROLL for (int r = 0; r < most; r++) if (r * p.part + i >= p.units) missing &= ~(1u << r);
    if (!te__peer_wait(v, a, turn, p.part, p.sums + i, missing, most, 0)) return 0;
    TE_UNROLL for (int r = 0; r < most; r++) {
        const int64_t at = (int64_t)(r * p.part + i) * TE_WORDS;
        if (missing >> r & 1) te_words_store(a->y, at, &v[r], (int)te_min(TE_WORDS, a->bytes - at), whole);
    }
    return 1;
}
/* A thread waits for the sums of one unit behind those that it adds up. */
TE_FN void te__two_shot(const te_peer_args *a, te_block b, uint32_t turn, const int most, const int whole) {
    const int units = (int)te_ceil_div(a->bytes, TE_WORDS), part = (int)te_ceil_div(units, a->ranks);
    const te_peer_parts p = {units, part, a->ranks * part};
    const int first = te__peer_thread(b), stride = te__peer_stride(b);
    te_words own, next;
    int i = first;
    if (first < part) te__two_shot_send(&own, a, &turn, p, first, most, whole);
    for (; i < part; i += stride) {
        if (i + stride < part) te__two_shot_send(&next, a, &turn, p, i + stride, most, whole);
        if (!te__two_shot_sum(&own, a, turn, p, i, most, whole)) return;
        if (i > first && !te__two_shot_receive(a, turn, p, i - stride, most, whole)) return;
        own = next;
    }
    if (i > first) te__two_shot_receive(a, turn, p, i - stride, most, whole);
}
TE_FN void te__reduce_scatter(const te_peer_args *a, te_block b, uint32_t turn, const int most, const int whole) {
    const int units = (int)te_ceil_div(a->bytes, TE_WORDS), first = te__peer_thread(b), stride = te__peer_stride(b);
    const int64_t all = a->ranks * a->bytes;
    te_words own, next, sum;
    if (first < units) te__peer_scatter(&own, a, &turn, units, first, a->bytes, a->bytes, all, most, whole);
    for (int i = first; i < units; i += stride) {
        const int64_t at = (int64_t)i * TE_WORDS;
        const int then = i + stride;
        if (then < units) te__peer_scatter(&next, a, &turn, units, then, a->bytes, a->bytes, all, most, whole);
        if (!te__peer_sum(&sum, &own, a, turn, units, i, most)) return;
        te_words_store(a->y, at, &sum, (int)te_min(TE_WORDS, a->bytes - at), whole);
        own = next;
    }
}
/* Eight bytes at a time, in packets of two words and two marks. */
enum { TE_PEER_PACKET = TE_WORDS / 2 };
TE_FN void te__gather_send(te_words *packet, const te_peer_args *a, uint32_t *turn, int packets, int i,
                           const int most, const int whole) {
    const int64_t at = (int64_t)i * TE_PEER_PACKET;
    te_words own;
    te_words_load8(&own, a->x, at, (int)te_min(TE_PEER_PACKET, a->bytes - at), whole);
    te__peer_turn_now(turn);
    packet->w[0] = own.w[0], packet->w[2] = own.w[1], packet->w[1] = packet->w[3] = 0;
    TE_UNROLL for (int k = 1; k < most; k++)
        if (te__peer_is(a, k, most))
            te_words_send(te__peer_slot(a->at[te__peer_next(a, k)], a, *turn, a->rank, packets, i), packet);
}
TE_FN void te__all_gather(const te_peer_args *a, te_block b, uint32_t turn, const int most, const int whole) {
    const int packets = (int)te_ceil_div(a->bytes, TE_PEER_PACKET), first = te__peer_thread(b);
    const int stride = te__peer_stride(b);
    te_words v[TE_PEERS], own, packet, next;
    if (first < packets) te__gather_send(&packet, a, &turn, packets, first, most, whole);
    for (int i = first; i < packets; i += stride) {
        const int n = (int)te_min(TE_PEER_PACKET, a->bytes - (int64_t)i * TE_PEER_PACKET);
        if (i + stride < packets) te__gather_send(&next, a, &turn, packets, i + stride, most, whole);
        if (!te__peer_wait(v, a, turn, packets, i, te__peer_others(a), most, 1)) return;
        TE_UNROLL for (int r = 0; r < most; r++) {
            if (r != a->rank) own.w[0] = v[r].w[0], own.w[1] = v[r].w[2];
            else own.w[0] = packet.w[0], own.w[1] = packet.w[2];
            const int64_t at = r * a->bytes + (int64_t)i * TE_PEER_PACKET;
            if (te__peer_is(a, r, most)) te_words_store8(a->y, at, &own, n, whole);
        }
        packet = next;
    }
}

#define TE__PEER_KERNEL(name, resident, call)                   \
    TE_FN void name##_body(const te_peer_args *a, te_block b) { \
        const uint32_t turn = te__peer_turn(a, b);              \
        call;                                                   \
        te__peer_done(a, b, turn, TE_PEER_THREADS);             \
    }                                                           \
    TE_KERNEL_IF_USED(name, TE_PEER_THREADS, resident, te_peer_args, name##_body(te_args, te_at))
TE__PEER_KERNEL(te_peer_one_shot_2, 2, te__one_shot(a, b, turn, 2, 1))
TE__PEER_KERNEL(te_peer_one_shot_4, 2, te__one_shot(a, b, turn, 4, 1))
TE__PEER_KERNEL(te_peer_one_shot, 1, te__one_shot(a, b, turn, TE_PEERS, a->whole))
TE__PEER_KERNEL(te_peer_two_shot_4, 2, te__two_shot(a, b, turn, 4, 1))
TE__PEER_KERNEL(te_peer_two_shot, 1, te__two_shot(a, b, turn, TE_PEERS, a->whole))
TE__PEER_KERNEL(te_peer_reduce_scatter_2, 2, te__reduce_scatter(a, b, turn, 2, 1))
TE__PEER_KERNEL(te_peer_reduce_scatter_4, 2, te__reduce_scatter(a, b, turn, 4, 1))
TE__PEER_KERNEL(te_peer_reduce_scatter, 1, te__reduce_scatter(a, b, turn, TE_PEERS, a->whole))
TE__PEER_KERNEL(te_peer_all_gather_2, 2, te__all_gather(a, b, turn, 2, 1))
TE__PEER_KERNEL(te_peer_all_gather_4, 2, te__all_gather(a, b, turn, 4, 1))
TE__PEER_KERNEL(te_peer_all_gather, 1, te__all_gather(a, b, turn, TE_PEERS, a->whole))

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

/* A kernel that knows how many ranks there are has registers for 1024 threads on a multiprocessor. */
#define TE__PEER_LAUNCH(name, known)                                   \
    ((known) == 2   ? name##_2_launch(ctx, grid, a)                    \
     : (known) == 4 ? name##_4_launch(ctx, grid, a)                    \
                    : name##_launch(ctx, grid, a))
TE_IF_USED TE_API te_status te__peer_launch(const te_peer_args *a, int blocks, te_context *ctx) {
    const int one_shot = a->form == TE_PEER_one_shot, gathers = a->kind == TE_PEER_all_gather;
    const int known = a->whole && (a->ranks == 4 || (a->ranks == 2 && one_shot)) ? a->ranks : 0;
    const int64_t units = te_ceil_div(a->bytes, gathers ? (int)TE_PEER_PACKET : (int)TE_WORDS);
    const int64_t threads = one_shot ? units : te_ceil_div(units, a->ranks);
    const int64_t most = te_min(TE_PEER_BLOCKS, known ? 2 * blocks : blocks);
    const te_grid grid = te_grid_of(te_min(te_ceil_div(threads, TE_PEER_THREADS), most), 1);
    if (gathers) return TE__PEER_LAUNCH(te_peer_all_gather, known);
    if (a->kind == TE_PEER_reduce_scatter) return TE__PEER_LAUNCH(te_peer_reduce_scatter, known);
    if (one_shot) return TE__PEER_LAUNCH(te_peer_one_shot, known);
    return known ? te_peer_two_shot_4_launch(ctx, grid, a) : te_peer_two_shot_launch(ctx, grid, a);
}
#undef TE__PEER_LAUNCH
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
