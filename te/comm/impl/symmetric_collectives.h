/* symmetric_collectives.h -- all-reduce, reduce-scatter and all-gather through symmetric memory (symmetric_memory.h).
 * Each collective is one kernel. te__peer_algorithm_of chooses between one-shot and two-shot all-reduce.
 *
 * Bytes that a rank sends over its link, for N ranks and a tensor of S bytes:
 *
 *   one-shot all_reduce  (N - 1) * S          Each rank sends all of x to all others and computes the whole sum.
 *                                             Latency: data crosses the link once.
 *   two-shot all_reduce  2 * S * (N - 1) / N  Each rank sums its shard, and sends the sum to all others. Latency: data
 *                                             crosses the link twice.
 *   reduce_scatter       S * (N - 1) / N      S: the size of x. Data crosses the link once.
 *   all_gather           2 * S * (N - 1) / N  S: the size of y. Data crosses the link once. An all-gather must preserve
 *                                             all bit patterns, so no bit pattern is left to say that a packet has not
 *                                             arrived. Therefore half of each packet is flags, as in NCCL's LL
 *                                             protocol.
 *
 * Lower bound of the time on H200s: these bytes at 450 GB/s (NVLink 4, in each direction), plus 1 to 1.5 us until a
 * peer sees a store. docs/notes/comm.md compares measured times with this bound, and says how many packets should be in
 * flight.
 */
#ifndef TE_COMM_SYMMETRIC_COLLECTIVES_H
#define TE_COMM_SYMMETRIC_COLLECTIVES_H

#include "symmetric_memory.h" /* te_peer_memory, te__peer_wait */

/* With TE_ALL_REDUCE_auto an all-reduce is one-shot if each rank then sends at most this number of bytes. Above this
 * limit two-shot is faster, because two-shot sends fewer bytes. Below this limit one-shot is faster: in two-shot, data
 * crosses the link twice, and the second crossing takes 2 us, in which the link could move 0.9 MB. With two ranks
 * one-shot is always used, because both algorithms send the same number of bytes. */
#define TE_PEER_ONE_SHOT_BYTES ((int64_t)1 << 20)

/* Returns the algorithm of a collective. bytes: the size of x or y, whichever is larger. The result is TE_PEER_none if
 * a tensor of this size does not fit into the symmetric memory, if the group has no symmetric memory, or if
 * te_comm_config.all_reduce chooses NCCL for all-reduces. */
TE_API te_peer_algorithm te__peer_algorithm_of(const te_peer_memory *p, te_peer_kind kind, int64_t bytes) {
    if (!p || bytes > (kind == TE_PEER_all_reduce ? p->reduce_bytes : p->max_bytes)) return TE_PEER_none;
    return kind == TE_PEER_all_reduce && bytes > p->one_shot_bytes ? TE_PEER_two_shot : TE_PEER_one_shot;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* In all kernels a thread works on every stride-th packet, where stride is the number of threads of the grid. The
 * thread sends packet i + stride before it waits for the packets i of the other ranks, so that the link stays busy. The
 * arguments `ranks` and `aligned` are compile-time constants. ranks: the number of ranks for which the kernel is
 * compiled, or TE_PEER_MAX_RANKS if the kernel is compiled for any number. aligned: 1 if the kernel is only launched
 * where te_peer_args.aligned is 1. */

/* Loads packet i of the tensor a->x into *x, and sends the packet to all other ranks. packets: the number of packets of
 * the tensor. */
TE_FN void te__peer_one_shot_send(te_packet *x, const te_peer_args *a, uint32_t *epoch, int packets, int i,
                                  const int ranks, const int aligned) {
    const int64_t at = (int64_t)i * TE_PACKET_BYTES;
    te_packet_load(x, a->x, at, (int)te_min(TE_PACKET_BYTES, a->bytes - at), aligned);
    te__peer_epoch_use(epoch);
    te_packet_escape(x);
    TE_UNROLL for (int k = 1; k < ranks; k++)
        if (te__peer_exists(a, k, ranks))
            te_packet_send(te__peer_slot(a->buffer[te__peer_next(a, k)], a, *epoch, a->rank, packets, i), x);
}
TE_FN void te__peer_one_shot(const te_peer_args *a, te_block b, uint32_t epoch, const int ranks, const int aligned) {
    const int packets = (int)te_ceil_div(a->bytes, TE_PACKET_BYTES);
    const int first = te__peer_thread(b), stride = te__peer_stride(b);
    te_packet x, next, sum;
    if (first < packets) te__peer_one_shot_send(&x, a, &epoch, packets, first, ranks, aligned);
    for (int i = first; i < packets; i += stride) {
        const int64_t at = (int64_t)i * TE_PACKET_BYTES;
        if (i + stride < packets) te__peer_one_shot_send(&next, a, &epoch, packets, i + stride, ranks, aligned);
        if (!te__peer_sum(&sum, &x, a, epoch, packets, i, ranks)) return;
        te_packet_store(a->y, at, &sum, (int)te_min(TE_PACKET_BYTES, a->bytes - at), aligned);
        x = next;
    }
}
/* The division of x into one shard for each rank. A shard has `bytes` bytes, but the last shards may have fewer,
 * because x ends at byte `end`. */
typedef struct te_peer_shards {
    int packets; /* the number of packets in a shard */
    int64_t bytes, end;
} te_peer_shards;
/* Sends to each other rank packet i of that rank's shard of a->x, and loads packet i of this rank's shard into
 * *local. */
TE_FN void te__peer_scatter_send(te_packet *local, const te_peer_args *a, uint32_t *epoch, te_peer_shards s, int i,
                                 const int ranks, const int aligned) {
    const int64_t offset = (int64_t)i * TE_PACKET_BYTES, left = te_min(TE_PACKET_BYTES, s.bytes - offset),
                  local_at = a->rank * s.bytes + offset;
    te_packet v[TE_PEER_MAX_RANKS];
    TE_UNROLL for (int k = 1; k < ranks; k++) {
        const int64_t at = te__peer_next(a, k) * s.bytes + offset;
        if (te__peer_exists(a, k, ranks)) te_packet_load(&v[k], a->x, at, (int)te_min(left, s.end - at), aligned);
    }
    te_packet_load(local, a->x, local_at, (int)te_min(left, s.end - local_at), aligned);
    te__peer_epoch_use(epoch);
    TE_UNROLL for (int k = 1; k < ranks; k++) {
        const int to = te__peer_next(a, k);
        if (!te__peer_exists(a, k, ranks) || to * s.bytes + offset >= s.end) continue;
        te_packet_escape(&v[k]);
        te_packet_send(te__peer_slot(a->buffer[to], a, *epoch, a->rank, s.packets, i), &v[k]);
    }
}
/* The layout of a two-shot all-reduce. The tensor has `packets` packets; rank r sums packets r * shard to (r + 1) *
 * shard - 1. A rank's buffer has one half for even epochs and one for odd epochs; each half holds first the slots of
 * the packets to be summed and then, from index `sums` on, the slots of the sums. */
typedef struct te_two_shot_layout { int packets, shard, sums; } te_two_shot_layout;
TE_FN void te__peer_two_shot_send(te_packet *local, const te_peer_args *a, uint32_t *epoch, te_two_shot_layout p, int i,
                                  const int ranks, const int aligned) {
    const int64_t shard_bytes = (int64_t)p.shard * TE_PACKET_BYTES;
    const te_peer_shards shards = {p.shard, shard_bytes, a->bytes};
    te__peer_scatter_send(local, a, epoch, shards, i, ranks, aligned);
}
/* Sums packet i of this rank's shard over the ranks, stores the sum to a->y and sends it to all other ranks. Returns 0
 * after a timeout. */
TE_FN int te__peer_two_shot_sum(const te_packet *local, const te_peer_args *a, uint32_t epoch, te_two_shot_layout p,
                                int i, const int ranks, const int aligned) {
    const int64_t at = (int64_t)(a->rank * p.shard + i) * TE_PACKET_BYTES;
    te_packet sum;
    if (a->rank * p.shard + i >= p.packets) return 1;
    if (!te__peer_sum(&sum, local, a, epoch, p.shard, i, ranks)) return 0;
    te_packet_escape(&sum);
    TE_UNROLL for (int k = 1; k < ranks; k++)
        if (te__peer_exists(a, k, ranks))
            te_packet_send(te__peer_slot(a->buffer[te__peer_next(a, k)], a, epoch, a->rank, p.shard, p.sums + i), &sum);
    te_packet_store(a->y, at, &sum, (int)te_min(TE_PACKET_BYTES, a->bytes - at), aligned);
    return 1;
}
/* Receives from each other rank the sum of packet i of that rank's shard, and stores the sum to a->y. Returns 0 after a
 * timeout. */
TE_FN int te__peer_two_shot_receive(const te_peer_args *a, uint32_t epoch, te_two_shot_layout p, int i,
                                    const int ranks, const int aligned) {
    uint32_t missing = te__peer_others_mask(a);
    te_packet v[TE_PEER_MAX_RANKS];
    TE_UNROLL for (int r = 0; r < ranks; r++) if (r * p.shard + i >= p.packets) missing &= ~(1u << r);
    if (!te__peer_wait(v, a, epoch, p.shard, p.sums + i, missing, ranks, 0)) return 0;
    TE_UNROLL for (int r = 0; r < ranks; r++) {
        const int64_t at = (int64_t)(r * p.shard + i) * TE_PACKET_BYTES;
        if (missing >> r & 1) te_packet_store(a->y, at, &v[r], (int)te_min(TE_PACKET_BYTES, a->bytes - at), aligned);
    }
    return 1;
}
/* The body of a two-shot all-reduce. A thread works on every stride-th packet. The thread first computes and sends this
 * rank's sum for packet i. Only then it receives the other ranks' sums for packet i - stride, which had time to arrive
 * in the meantime. */
TE_FN void te__peer_two_shot(const te_peer_args *a, te_block b, uint32_t epoch, const int ranks, const int aligned) {
    const int packets = (int)te_ceil_div(a->bytes, TE_PACKET_BYTES), shard = (int)te_ceil_div(packets, a->ranks);
    const te_two_shot_layout p = {packets, shard, a->ranks * shard};
    const int first = te__peer_thread(b), stride = te__peer_stride(b);
    te_packet local, next;
    int i = first;
    if (first < shard) te__peer_two_shot_send(&local, a, &epoch, p, first, ranks, aligned);
    for (; i < shard; i += stride) {
        if (i + stride < shard) te__peer_two_shot_send(&next, a, &epoch, p, i + stride, ranks, aligned);
        if (!te__peer_two_shot_sum(&local, a, epoch, p, i, ranks, aligned)) return;
        if (i > first && !te__peer_two_shot_receive(a, epoch, p, i - stride, ranks, aligned)) return;
        local = next;
    }
    if (i > first) te__peer_two_shot_receive(a, epoch, p, i - stride, ranks, aligned);
}
TE_FN void te__peer_reduce_scatter(const te_peer_args *a, te_block b, uint32_t epoch, const int ranks,
                                   const int aligned) {
    const int packets = (int)te_ceil_div(a->bytes, TE_PACKET_BYTES);
    const int first = te__peer_thread(b), stride = te__peer_stride(b);
    const te_peer_shards shards = {packets, a->bytes, a->ranks * a->bytes};
    te_packet local, next, sum;
    if (first < packets)
        te__peer_scatter_send(&local, a, &epoch, shards, first, ranks, aligned);
    for (int i = first; i < packets; i += stride) {
        const int64_t at = (int64_t)i * TE_PACKET_BYTES;
        const int then = i + stride;
        if (then < packets)
            te__peer_scatter_send(&next, a, &epoch, shards, then, ranks, aligned);
        if (!te__peer_sum(&sum, &local, a, epoch, packets, i, ranks)) return;
        te_packet_store(a->y, at, &sum, (int)te_min(TE_PACKET_BYTES, a->bytes - at), aligned);
        local = next;
    }
}
/* A packet of an all_gather has four 32-bit words: words 0 and 2 are data, and words 1 and 3 are flags, which are 0
 * when the packet has arrived. All bit patterns of the data are allowed, so the data cannot be its own flag. */
enum { TE_PEER_LL_BYTES = TE_PACKET_BYTES / 2 /* the number of bytes of data in a packet */ };
TE_FN void te__peer_all_gather_send(te_packet *packet, const te_peer_args *a, uint32_t *epoch, int packets, int i,
                                    const int ranks, const int aligned) {
    const int64_t at = (int64_t)i * TE_PEER_LL_BYTES;
    te_packet data;
    te_packet_load8(&data, a->x, at, (int)te_min(TE_PEER_LL_BYTES, a->bytes - at), aligned);
    te__peer_epoch_use(epoch);
    packet->w[0] = data.w[0], packet->w[2] = data.w[1], packet->w[1] = packet->w[3] = 0;
    TE_UNROLL for (int k = 1; k < ranks; k++)
        if (te__peer_exists(a, k, ranks))
            te_packet_send(te__peer_slot(a->buffer[te__peer_next(a, k)], a, *epoch, a->rank, packets, i), packet);
}
TE_FN void te__peer_all_gather(const te_peer_args *a, te_block b, uint32_t epoch, const int ranks, const int aligned) {
    const int packets = (int)te_ceil_div(a->bytes, TE_PEER_LL_BYTES), first = te__peer_thread(b);
    const int stride = te__peer_stride(b);
    te_packet v[TE_PEER_MAX_RANKS], data, packet, next;
    if (first < packets) te__peer_all_gather_send(&packet, a, &epoch, packets, first, ranks, aligned);
    for (int i = first; i < packets; i += stride) {
        const int n = (int)te_min(TE_PEER_LL_BYTES, a->bytes - (int64_t)i * TE_PEER_LL_BYTES);
        if (i + stride < packets) te__peer_all_gather_send(&next, a, &epoch, packets, i + stride, ranks, aligned);
        if (!te__peer_wait(v, a, epoch, packets, i, te__peer_others_mask(a), ranks, 1)) return;
        TE_UNROLL for (int r = 0; r < ranks; r++) {
            if (r != a->rank) data.w[0] = v[r].w[0], data.w[1] = v[r].w[2];
            else data.w[0] = packet.w[0], data.w[1] = packet.w[2];
            const int64_t at = r * a->bytes + (int64_t)i * TE_PEER_LL_BYTES;
            if (te__peer_exists(a, r, ranks)) te_packet_store8(a->y, at, &data, n, aligned);
        }
        packet = next;
    }
}

#define TE__PEER_KERNEL(name, resident, call)                   \
    TE_FN void name##_body(const te_peer_args *a, te_block b) { \
        const uint32_t epoch = te__peer_epoch(a, b);            \
        call;                                                   \
        te__peer_epoch_advance(a, b, epoch, TE_PEER_THREADS);   \
    }                                                           \
    TE_KERNEL_IF_USED(name, TE_PEER_THREADS, resident, te_peer_args, name##_body(te_args, te_at))
TE__PEER_KERNEL(te_peer_one_shot_2, 2, te__peer_one_shot(a, b, epoch, 2, 1))
TE__PEER_KERNEL(te_peer_one_shot_4, 2, te__peer_one_shot(a, b, epoch, 4, 1))
TE__PEER_KERNEL(te_peer_one_shot, 1, te__peer_one_shot(a, b, epoch, TE_PEER_MAX_RANKS, a->aligned))
TE__PEER_KERNEL(te_peer_two_shot_4, 2, te__peer_two_shot(a, b, epoch, 4, 1))
TE__PEER_KERNEL(te_peer_two_shot, 1, te__peer_two_shot(a, b, epoch, TE_PEER_MAX_RANKS, a->aligned))
TE__PEER_KERNEL(te_peer_reduce_scatter_2, 2, te__peer_reduce_scatter(a, b, epoch, 2, 1))
TE__PEER_KERNEL(te_peer_reduce_scatter_4, 2, te__peer_reduce_scatter(a, b, epoch, 4, 1))
TE__PEER_KERNEL(te_peer_reduce_scatter, 1, te__peer_reduce_scatter(a, b, epoch, TE_PEER_MAX_RANKS, a->aligned))
TE__PEER_KERNEL(te_peer_all_gather_2, 2, te__peer_all_gather(a, b, epoch, 2, 1))
TE__PEER_KERNEL(te_peer_all_gather_4, 2, te__peer_all_gather(a, b, epoch, 4, 1))
TE__PEER_KERNEL(te_peer_all_gather, 1, te__peer_all_gather(a, b, epoch, TE_PEER_MAX_RANKS, a->aligned))

/* ---- host -------------------------------------------------------------------------------------------------------- */

/* Sets the sizes in *p for tensors of up to max_bytes. A rank's buffer has one half for even epochs and one for odd
 * epochs, and a half must hold the packets of any collective. A two-shot all-reduce needs 2 * max_bytes and a few bytes
 * more, because its shards are rounded up to whole packets. An all-gather needs 2 * max_bytes, because half of each
 * packet is flags. A one-shot all-reduce over N ranks needs N times the size of its tensor, which fits because such a
 * tensor has at most one_shot_bytes. algorithm: te_comm_config.all_reduce, the algorithm of all-reduces. */
TE_API void te__peer_memory_size(te_peer_memory *p, int64_t max_bytes, te_all_reduce_algorithm algorithm, int ranks) {
    p->max_bytes = te_min(max_bytes, TE_PEER_MAX_BYTES);
    p->half_bytes = te_round_up(2 * p->max_bytes + 2 * ranks * (ranks + 1) * TE_PACKET_BYTES, TE_ALIGN);
    p->reduce_bytes = algorithm == TE_ALL_REDUCE_transport ? 0 : p->max_bytes;
    p->one_shot_bytes = ranks == 2 ? p->max_bytes : te_min(p->max_bytes, TE_PEER_ONE_SHOT_BYTES) / (ranks - 1);
    if (algorithm == TE_ALL_REDUCE_one_shot) p->one_shot_bytes = p->max_bytes / (ranks - 1);
    if (algorithm == TE_ALL_REDUCE_two_shot || algorithm == TE_ALL_REDUCE_transport) p->one_shot_bytes = 0;
}
/* Returns te_peer_memory.max_blocks for a device with this number of multiprocessors. */
TE_API int te__peer_max_blocks(int processors) { return (int)te_min(TE_PEER_MAX_BLOCKS, processors); }
TE_API size_t te__peer_memory_bytes(const te_peer_memory *p) { return 2 * (size_t)p->half_bytes; }

/* Launches the variant of the kernel that is compiled for known_ranks ranks (2 or 4) or, if known_ranks is 0, the
 * variant for any number of ranks. The variants for 2 and 4 ranks need so few registers that two blocks, 1024 threads,
 * fit on a multiprocessor. */
#define TE__PEER_LAUNCH(name, known_ranks)                                   \
    ((known_ranks) == 2   ? name##_2_launch(ctx, grid, a)                    \
     : (known_ranks) == 4 ? name##_4_launch(ctx, grid, a)                    \
                          : name##_launch(ctx, grid, a))
TE_IF_USED TE_API te_status te__peer_launch(const te_peer_args *a, int max_blocks, te_context *ctx) {
    const int one_shot = a->algorithm == TE_PEER_one_shot, gathers = a->kind == TE_PEER_all_gather;
    const int known_ranks = a->aligned && (a->ranks == 4 || (a->ranks == 2 && one_shot)) ? a->ranks : 0;
    const int64_t packets = te_ceil_div(a->bytes, gathers ? (int)TE_PEER_LL_BYTES : (int)TE_PACKET_BYTES);
    const int64_t threads = one_shot ? packets : te_ceil_div(packets, a->ranks);
    const int64_t resident = te_min(TE_PEER_MAX_BLOCKS, known_ranks ? 2 * max_blocks : max_blocks);
    const te_grid grid = te__grid_of(te_min(te_ceil_div(threads, TE_PEER_THREADS), resident), 1);
    if (gathers) return TE__PEER_LAUNCH(te_peer_all_gather, known_ranks);
    if (a->kind == TE_PEER_reduce_scatter) return TE__PEER_LAUNCH(te_peer_reduce_scatter, known_ranks);
    if (one_shot) return TE__PEER_LAUNCH(te_peer_one_shot, known_ranks);
    return known_ranks ? te_peer_two_shot_4_launch(ctx, grid, a) : te_peer_two_shot_launch(ctx, grid, a);
}
#undef TE__PEER_LAUNCH
/* Enqueues the collective if its data fits into the symmetric memory. Sets *taken to 1 if the collective was enqueued;
 * otherwise the caller must use another transport, such as NCCL. count: the number of elements of x in an all_reduce or
 * an all_gather, of y in a reduce_scatter. */
TE_IF_USED TE_API te_status te__peer_collective(int *taken, const te_group *g, te_peer_kind kind, void *y,
                                                const void *x, int64_t count, te_dtype dtype, te_context *ctx) {
    te_peer_memory *p = g->peers;
    const int64_t bytes = count * (int64_t)te_dtype_bytes(dtype);
    const te_peer_algorithm algorithm =
        te__peer_algorithm_of(p, kind, kind == TE_PEER_all_reduce ? bytes : bytes * g->size);
    TE_TRY(te__peers_check(g, ctx));
    if (!(*taken = algorithm != TE_PEER_none)) return TE_OK;
    te_peer_args a = te__peer_args_of(g, kind, algorithm, bytes, dtype);
    a.y = y, a.x = x, a.aligned = ((uintptr_t)x | (uintptr_t)y | (uintptr_t)bytes) % TE_PACKET_BYTES == 0;
    p->collectives++;
    return te__peer_launch(&a, p->max_blocks, ctx);
}

#endif
