/* peer_bulk.h -- collectives of larger tensors through mapped memory (peers.h): data without marks, and a flag behind
 * each chunk of it.
 *
 * Two H200s, 2 ranks: by words that are polled (peer_collectives.h) each further MiB takes 3.9 to 4.4 us from 1 MiB on,
 * 240 to 270 GB/s of the link's 450. That is no lack of bytes on their way: 450 GB/s for 1.5 us are 0.7 MB, and 67,584
 * threads have 1.1 MB on their way with one unit each; reduce_scatter, with one unit a thread, and all_reduce, with
 * four, both do 265 to 275. So the rate is bounded by what each 16 bytes cost, one or more of: a store that must be
 * seen whole, polls of the line that it goes to, a store that empties the slot. The rows `push` of `bench/comm.py ..
 * tune` are to tell them apart. Here none of the three is left:
 *
 *   - stores are of no order, so that the link carries lines of 128 bytes;
 *   - a warp polls one flag for a chunk of TE_BULK_UNITS units a lane, and nobody looks at data that has not come;
 *   - slots are not emptied: flags count collectives, and stay.
 *
 * A byte of x is read twice, the second time from the L2, sent, received, read, and a byte of y is written: three reads
 * and two writes of the device's own memory, all at a fifth of the link's time. A flag costs 1.5 to 2 us more than a
 * word that is its own signal: it waits until the data has arrived. So a warp sends TE_BULK_AHEAD chunks more before it
 * waits for one: with 132 blocks of 16 warps 4.3 MB a round, for which the link takes longer than that.
 *
 * Bytes that each of N ranks sends, and the floor: them over 450 GB/s, and 2.9 us for each way.
 *
 *                                            us, 2 ranks    4 MiB   8 MiB   16 MiB
 *   one-shot all_reduce    (N - 1) S                        12.2    21.5    40.2
 *   two-shot all_reduce    2 S (N - 1) / N                  15.1    24.4    43.1
 *   reduce_scatter         S (N - 1) / N                    7.6     12.2    21.5
 *   all_gather             S (N - 1) / N                    7.6     12.2    21.5
 */
#ifndef TE_COMM_PEER_BULK_H
#define TE_COMM_PEER_BULK_H

#include "peers.h" /* te_peer_args */

/* bench/comm.py races other values: -DTE_BULK_UNITS=8. */
#ifndef TE_BULK_UNITS
#define TE_BULK_UNITS 4 /* of 16 bytes, a lane's of a chunk: what it has in registers */
#endif
#ifndef TE_BULK_AHEAD
#define TE_BULK_AHEAD 1 /* chunks that a warp has sent beyond the one that it waits for */
#endif
enum { TE_BULK_CHUNK = TE_WARP * TE_BULK_UNITS }; /* units */

/* What a rank sends each peer, a part of the whole tensor or all it has. */
typedef struct te_bulk {
    int units, chunks;           /* of a part */
    int64_t pitch, bytes, total; /* part r begins at r * pitch, and has `bytes` bytes, or less where `total` ends */
    int sums, returns;           /* parts are summed; sums go to the peers */
} te_bulk;

TE_FN te_bulk te__bulk_of(const te_peer_args *a) {
    const int two_shot = a->form == TE_PEER_two_shot;
    te_bulk k;
    k.units = (int)te_ceil_div(a->bytes, TE_WORDS);
    if (two_shot) k.units = (int)te_ceil_div(k.units, a->ranks);
    k.bytes = two_shot ? (int64_t)k.units * TE_WORDS : a->bytes;
    k.total = a->kind == TE_PEER_all_reduce ? a->bytes : a->ranks * a->bytes;
    k.pitch = a->kind == TE_PEER_all_reduce && !two_shot ? 0 : k.bytes;
    k.chunks = (int)te_ceil_div(k.units, TE_BULK_CHUNK);
    k.sums = a->kind != TE_PEER_all_gather, k.returns = two_shot;
    return k;
}
/* Which unit of a part the u-th of this lane's is, and how many bytes of it there are in part r. */
TE_FN int te__bulk_unit(te_lanes g, int chunk, int u) { return chunk * TE_BULK_CHUNK + u * TE_WARP + g.id; }
TE_FN int te__bulk_bytes(const te_bulk *k, int r, int unit) {
    const int64_t left = te_min(k->bytes, k->total - r * k->pitch) - (int64_t)unit * TE_WORDS;
    return (int)te_max(0, te_min(TE_WORDS, left));
}
/* stage: 0, what all ranks have; 1, sums. */
TE_FN char *te__bulk_slot(char *at, const te_peer_args *a, const te_bulk *k, uint32_t turn, int stage, int from,
                          int unit) {
    const int64_t slot = (int64_t)(stage * a->ranks + from) * k->units + unit;
    return at + a->bulk_at + (turn & 1) * a->bulk + slot * TE_WORDS;
}
TE_FN uint32_t *te__bulk_flag(char *at, const te_peer_args *a, int stage, int from, int chunk) {
    return (uint32_t *)(void *)(at + a->flags_at) + ((int64_t)(stage * TE_PEERS + from) * a->flags + chunk);
}
/* Of a warp: this chunk has gone to all peers. */
TE_FN void te__bulk_sent(const te_peer_args *a, te_lanes g, uint32_t turn, int stage, int chunk) {
    te_warp_sync();
    for (int r = g.id; r < a->ranks; r += g.count)
        if (r != a->rank) te_flag_release(te__bulk_flag(a->at[r], a, stage, a->rank, chunk), turn + 1);
}
/* Wait for this chunk of all peers. 0: one has not come in time. A peer that has all it needs may have begun the next
 * collective, and no more. */
TE_FN int te__bulk_wait(const te_peer_args *a, te_lanes g, uint32_t turn, int stage, int chunk, const int ranks) {
    uint32_t missing = g.id ? 0 : te__peer_others(a); /* one lane looks */
    uint64_t since = 0;
    int come = 1;
    for (uint32_t looks = 1; missing && come; looks++) {
        TE_UNROLL for (int r = 0; r < ranks; r++)
            if (missing >> r & 1 && te_flag_acquire(te__bulk_flag(a->own, a, stage, r, chunk)) - (turn + 1) < 2u)
                missing &= ~(1u << r);
        if (missing && looks % TE_PEER_PATIENCE == 0 && te__peer_gives_up(a, &since, missing)) come = 0;
    }
    te_warp_sync(); /* what it has seen, all see */
    return te_warp_first(come);
}

/* ---- a chunk ----------------------------------------------------------------------------------------------------- */

TE_FN void te__bulk_send(const te_peer_args *a, const te_bulk *k, te_lanes g, uint32_t turn, int chunk, const int ranks,
                         const int whole) {
    const int64_t pitch = k->sums ? k->pitch : 0; /* all_gather: all get the same */
    te_words v[TE_BULK_UNITS];
    for (int next = 1; next < ranks; next++) { /* each begins with another peer */
        const int r = (a->rank + next) % ranks;
        if (pitch || next == 1)
            TE_UNROLL for (int u = 0; u < TE_BULK_UNITS; u++) {
                const int unit = te__bulk_unit(g, chunk, u), n = te__bulk_bytes(k, r, unit);
                if (n) te_words_load(&v[u], a->x, r * pitch + (int64_t)unit * TE_WORDS, n, whole);
            }
        TE_UNROLL for (int u = 0; u < TE_BULK_UNITS; u++) {
            const int unit = te__bulk_unit(g, chunk, u);
            if (te__bulk_bytes(k, r, unit)) te_words_push(te__bulk_slot(a->at[r], a, k, turn, 0, a->rank, unit), &v[u]);
        }
    }
    te__bulk_sent(a, g, turn, 0, chunk);
}
/* The sum of this rank's part, in f32 in the order of the ranks. */
TE_FN int te__bulk_sum(const te_peer_args *a, const te_bulk *k, te_lanes g, uint32_t turn, int chunk, const int ranks,
                       const int whole) {
    const int64_t from = a->rank * k->pitch, to = k->returns ? from : 0;
    float sum[TE_BULK_UNITS][8];
    if (!te__bulk_wait(a, g, turn, 0, chunk, ranks)) return 0;
    TE_UNROLL for (int r = 0; r < ranks; r++) {
        te_words v[TE_BULK_UNITS];
        TE_UNROLL for (int u = 0; u < TE_BULK_UNITS; u++) {
            const int unit = te__bulk_unit(g, chunk, u), n = te__bulk_bytes(k, a->rank, unit);
            if (n && r == a->rank) te_words_load(&v[u], a->x, from + (int64_t)unit * TE_WORDS, n, whole);
            else if (n) te_words_peek(&v[u], te__bulk_slot(a->own, a, k, turn, 0, r, unit));
        }
        TE_UNROLL for (int u = 0; u < TE_BULK_UNITS; u++)
            if (te__bulk_bytes(k, a->rank, te__bulk_unit(g, chunk, u))) te_words_add(sum[u], &v[u], a->dtype, r > 0);
    }
    TE_UNROLL for (int u = 0; u < TE_BULK_UNITS; u++) {
        const int unit = te__bulk_unit(g, chunk, u), n = te__bulk_bytes(k, a->rank, unit);
        te_words one;
        if (!n) continue;
        te_words_of(&one, sum[u], a->dtype);
        te_words_store(a->y, to + (int64_t)unit * TE_WORDS, &one, n, whole);
        for (int next = 1; k->returns && next < ranks; next++) {
            const int r = (a->rank + next) % ranks;
            te_words_push(te__bulk_slot(a->at[r], a, k, turn, 1, a->rank, unit), &one);
        }
    }
    if (k->returns) te__bulk_sent(a, g, turn, 1, chunk);
    return 1;
}
/* The peers' parts: sums, or what they have. */
TE_FN int te__bulk_gather(const te_peer_args *a, const te_bulk *k, te_lanes g, uint32_t turn, int chunk,
                          const int ranks, const int whole) {
    const int stage = k->sums;
    if (!te__bulk_wait(a, g, turn, stage, chunk, ranks)) return 0;
    TE_UNROLL for (int r = 0; r < ranks; r++) {
        te_words v[TE_BULK_UNITS];
        if (r == a->rank && k->sums) continue;
        TE_UNROLL for (int u = 0; u < TE_BULK_UNITS; u++) {
            const int unit = te__bulk_unit(g, chunk, u), n = te__bulk_bytes(k, r, unit);
            if (n && r == a->rank) te_words_load(&v[u], a->x, (int64_t)unit * TE_WORDS, n, whole);
            else if (n) te_words_peek(&v[u], te__bulk_slot(a->own, a, k, turn, stage, r, unit));
        }
        TE_UNROLL for (int u = 0; u < TE_BULK_UNITS; u++) {
            const int unit = te__bulk_unit(g, chunk, u), n = te__bulk_bytes(k, r, unit);
            if (n) te_words_store(a->y, r * k->pitch + (int64_t)unit * TE_WORDS, &v[u], n, whole);
        }
    }
    return 1;
}

/* Warp w takes chunks w, w + all warps, ..: it sends one, sums up one that it has sent before, and stores the sums of
 * one before that. So each waits for what its peers send before they wait. y may be x: a lane writes what it has sent
 * itself. */
TE_FN void te__bulk_collective(const te_peer_args *a, te_block b, uint32_t turn, const int most, const int whole) {
    int one;
    const te_bulk k = te__bulk_of(a);
    const te_lanes g = te_lanes_here(TE_WARP, &one);
    const int warps = te__peer_stride(b) / TE_WARP, first = te__peer_thread(b) / TE_WARP, lag = TE_BULK_AHEAD * warps;
    const int ranks = most < TE_PEERS ? most : a->ranks, gathers = k.returns || !k.sums, lags = k.sums + gathers;
    te__peer_turn_now(&turn);
    for (int c = first; c - lags * lag < k.chunks; c += warps) {
        const int summed = c - lag, gathered = c - lags * lag;
        if (c < k.chunks) te__bulk_send(a, &k, g, turn, c, ranks, whole);
        if (k.sums && summed >= 0 && summed < k.chunks && !te__bulk_sum(a, &k, g, turn, summed, ranks, whole)) return;
        if (gathers && gathered >= 0 && !te__bulk_gather(a, &k, g, turn, gathered, ranks, whole)) return;
    }
}

#endif
