/* symmetric_memory.h -- symmetric memory: each rank of a group has a buffer that all ranks of the group map, and
 * kernels exchange packets through these buffers.
 *
 * Collectives push: a rank stores data directly into the buffer of the peer that needs it, 16 bytes at a time, and the
 * peer polls its own buffer until the data has arrived. A packet needs no separate flag, because a slot without a
 * packet holds a reserved bit pattern (core/impl/peer_packet.h; NCCL's LL protocol and Lamport flags are similar). The
 * latency is therefore only that of one store over the link: there is no fence between data and flag, and no load from
 * another rank's memory.
 *
 * Each collective is an epoch. The buffer has two halves, one for even and one for odd epochs. No barrier is needed
 * before a half is written again: a rank writes to a peer's half in epoch e + 2 only after it has received, in epoch e
 * + 1, data that the peer sent after emptying this half. Each thread block counts epochs in device memory, so that a
 * CUDA graph can be replayed.
 *
 * Thread i of a rank waits only for thread i of its peers, which sends before it waits, and all ranks launch the same
 * number of threads. Therefore no deadlock is possible, however few blocks are resident, as long as blocks with lower
 * indices start first.
 *
 * The buffer is allocated and mapped in symmetric_memory_cuda.h. Users: symmetric_collectives.h (all-reduce,
 * reduce-scatter, all-gather), fused_collective_norm.h, collective_step.h (GEMM + all-reduce).
 */
#ifndef TE_COMM_SYMMETRIC_MEMORY_H
#define TE_COMM_SYMMETRIC_MEMORY_H

#include "../../core/rank_group.h"  /* te_group */
#include "../../core/target.h" /* TE_KERNEL */
#include "../../core/impl/peer_packet.h"  /* te_packet */

#define TE_PEER_MAX_BYTES ((int64_t)1 << 30) /* 1 GiB, the largest size of a tensor. Up to this size an int can count
                                              * the packets of all ranks */
enum {
    TE_PEER_MAX_RANKS = 8,                          /* the largest number of ranks in a group */
    TE_PEER_THREADS = TE_CUDA ? 512 : 1,            /* the number of threads in a block */
    TE_PEER_MAX_BLOCKS = 512,                       /* the largest number of blocks in a kernel that exchanges
                                                     * packets */
    /* a waiting thread reads the clock (for its timeout) once every this many polls of its buffer */
    TE_PEER_POLLS_PER_CLOCK = TE_CUDA ? 1024 : 256,
};

typedef enum te_peer_kind { TE_PEER_all_reduce, TE_PEER_reduce_scatter, TE_PEER_all_gather } te_peer_kind;
typedef enum te_peer_algorithm { TE_PEER_none, TE_PEER_one_shot, TE_PEER_two_shot } te_peer_algorithm;

/* The state of the exchange on one rank, which lies in the memory of the rank's own device. */
typedef struct te_peer_state {
    /* the number of collectives so far. Each block reads and advances a counter of its own; between kernels all
     * counters are equal */
    uint32_t epoch[TE_PEER_MAX_BLOCKS];
    uint32_t failed;                    /* 0 if there was no timeout; r + 1 if this rank has waited too long for rank r,
                                         * after which the group can no longer be used */
} te_peer_state;

/* The buffers of a group, in the address space of one of its ranks. */
typedef struct te_peer_memory {
    char *buffer[TE_PEER_MAX_RANKS]; /* the buffer of each rank, mapped into this process */
    te_peer_state *state;
    uint32_t *failed;       /* a copy of state->failed in pinned host memory, which the host can read at any time */
    int64_t half_bytes;     /* the size of each half of a buffer */
    /* the size in bytes of the largest tensor that is exchanged through the buffers; larger tensors go through NCCL */
    int64_t max_bytes;
    /* reduce_bytes: the size in bytes of the largest tensor whose all-reduce goes through the buffers, or 0 if all
     * all-reduces go through NCCL. one_shot_bytes: the size of the largest tensor whose all-reduce uses the one-shot
     * algorithm */
    int64_t reduce_bytes, one_shot_bytes;
    /* The smallest number of multiprocessors of the ranks' devices, but at most TE_PEER_MAX_BLOCKS. All ranks launch a
     * kernel with the same number of blocks: at most max_blocks times the blocks that fit on a multiprocessor. */
    int max_blocks;
    /* Statistics: how many kernels of each kind were launched. collectives: all kernels that contain a collective;
     * fused: kernels of fused patterns (fused_collective_norm.h); fused_fp8: kernels of fused patterns that gathered
     * FP8; gemms: GEMMs whose epilogue sent packets to a fused pattern (collective_step.h). */
    int64_t collectives, fused, fused_fp8, gemms;
} te_peer_memory;

/* The arguments of a kernel that exchanges packets. */
typedef struct te_peer_args {
    void *y;
    const void *x;
    int64_t bytes; /* size in bytes of x in an all_reduce or an all_gather, of y in a reduce_scatter */
    te_dtype dtype;
    int rank, ranks, aligned; /* rank: the index of this rank; ranks: the number of ranks; aligned: 1 if x and y are
                               * aligned to 16 bytes and `bytes` is a multiple of 16 */
    char *buffer[TE_PEER_MAX_RANKS], *local; /* local: the buffer of this rank */
    te_peer_state *state;
    uint32_t *failed;
    int64_t half_bytes;
    te_peer_kind kind;
    te_peer_algorithm algorithm;
    uint64_t timeout; /* nanoseconds */
} te_peer_args;

/* ---- device: epochs, slots, waiting ------------------------------------------------------------------------------ */

/* Index of this thread in the grid. */
TE_FN int te__peer_thread(te_block b) {
    int group;
    return b.x * TE_PEER_THREADS + te_lanes_here(TE_PEER_THREADS, &group).id;
}
/* The number of threads in the grid. */
TE_FN int te__peer_stride(te_block b) { return b.nx * TE_PEER_THREADS; }

/* The epoch of this collective. */
TE_FN uint32_t te__peer_epoch(const te_peer_args *a, te_block b) { return te_flag_load(&a->state->epoch[b.x]); }
/* Call this function after the loads of x and before the first use of the epoch, which is loaded from memory as well.
 * Without this call the compiler would make the thread wait for the epoch before it issues the loads of x. */
TE_FN void te__peer_epoch_use(uint32_t *epoch) {
#if TE_CUDA
    asm volatile("" : "+r"(*epoch));
#else
    (void)epoch;
#endif
}
/* Ends the epoch: sets the epoch counter of this block to epoch + 1. There are TE_PEER_MAX_BLOCKS counters, one for
 * each block of the largest grid. The blocks of a smaller grid also set the counters that are left over, so that all
 * counters stay equal. threads: the number of threads in the block. */
TE_FN void te__peer_epoch_advance(const te_peer_args *a, te_block b, uint32_t epoch, const int threads) {
    int group;
    const int id = te_lanes_here(threads, &group).id;
    te_block_sync(); /* after this barrier all threads of the block have read the epoch, so the epoch may be changed */
    TE_UNROLL_1 for (int k = b.x + id * b.nx; k < TE_PEER_MAX_BLOCKS; k += threads * b.nx)
        a->state->epoch[k] = epoch + 1;
}
/* Returns the address, within `buffer`, of the slot (16 bytes) that receives packet i from rank `from`, if each rank
 * sends `count` packets. */
TE_FN char *te__peer_slot(char *buffer, const te_peer_args *a, uint32_t epoch, int from, int count, int i) {
    return buffer + (epoch & 1) * a->half_bytes + (int64_t)(from * count + i) * TE_PACKET_BYTES;
}
/* Returns whether a wait must end because this thread or another thread of this rank has reached the timeout. missing:
 * bit mask of the ranks that the thread waits for; after a timeout the lowest of these ranks is reported as failed.
 * *since: the time when the wait began; *since must be 0 at the first call. */
TE_FN int te__peer_timed_out(const te_peer_args *a, uint64_t *since, uint32_t missing) {
    const uint64_t now = te_nanoseconds();
    uint32_t rank = 0;
    if (te_flag_load(&a->state->failed)) return 1;
    if (!*since) *since = now;
    if (now - *since < a->timeout) return 0;
    while (!(missing >> rank & 1)) rank++;
    te_flag_store(&a->state->failed, rank + 1), te_flag_store(a->failed, rank + 1);
    return 1;
}
/* Waits for packet i from each rank in the bit mask `missing`, stores the packets to v[rank], and sets the slots in
 * which they arrived to empty. count: the number of packets that each rank sends. Returns 0 after a timeout. flagged: 1
 * for the packets of an all_gather (te__peer_all_gather), whose words 1 and 3 are flags. */
TE_FN int te__peer_wait(te_packet v[TE_PEER_MAX_RANKS], const te_peer_args *a, uint32_t epoch, int count, int i,
                        uint32_t missing, const int ranks, const int flagged) {
    const uint32_t expected = missing;
    uint64_t since = 0;
    for (uint32_t polls = 1; missing; polls++) {
        TE_UNROLL for (int r = 0; r < ranks; r++)
            if (missing >> r & 1) te_packet_poll(&v[r], te__peer_slot(a->local, a, epoch, r, count, i));
        TE_UNROLL for (int r = 0; r < ranks; r++) {
            if (!(missing >> r & 1)) continue;
            const int has_flags = (v[r].w[1] != TE_PACKET_EMPTY) & (v[r].w[3] != TE_PACKET_EMPTY);
            if (flagged ? has_flags : te_packet_arrived(&v[r])) missing &= ~(1u << r);
        }
        if (missing && polls % TE_PEER_POLLS_PER_CLOCK == 0 && te__peer_timed_out(a, &since, missing)) return 0;
    }
    TE_UNROLL for (int r = 0; r < ranks; r++)
        if (expected >> r & 1) te_packet_clear(te__peer_slot(a->local, a, epoch, r, count, i));
    return 1;
}
/* Returns the rank that comes i places after this one, in a ring of all ranks. Each rank sends to the other ranks in
 * this order, so that not all ranks send to the same rank at once. */
TE_FN int te__peer_next(const te_peer_args *a, int i) {
    return a->rank + i < a->ranks ? a->rank + i : a->rank + i - a->ranks;
}
/* Returns whether rank r exists. ranks: a->ranks if the kernel is compiled for this number of ranks, else
 * TE_PEER_MAX_RANKS. */
TE_FN int te__peer_exists(const te_peer_args *a, int r, const int ranks) {
    return ranks < TE_PEER_MAX_RANKS || r < a->ranks;
}
/* Bit mask of all ranks but this one. */
TE_FN uint32_t te__peer_others_mask(const te_peer_args *a) { return ((1u << a->ranks) - 1) & ~(1u << a->rank); }

/* Sets *sum to the sum of the packets i of all ranks. local: this rank's packet i. All ranks add in f32 in the order of
 * the ranks, so their sums are bitwise identical. A caller that sends the sum must first call te_packet_escape, because
 * the sum may have the bit pattern that marks an empty slot. Returns 0 after a timeout. */
TE_FN int te__peer_sum(te_packet *sum, const te_packet *local, const te_peer_args *a, uint32_t epoch, int count, int i,
                       const int ranks) {
    te_packet v[TE_PEER_MAX_RANKS];
    float s[8];
    if (!te__peer_wait(v, a, epoch, count, i, te__peer_others_mask(a), ranks, 0)) return 0;
    TE_UNROLL for (int r = 0; r < ranks; r++) {
        te_packet one;
        TE_UNROLL for (int k = 0; k < 4; k++) one.w[k] = r == a->rank ? local->w[k] : v[r].w[k];
        if (te__peer_exists(a, r, ranks)) te_packet_add(s, &one, a->dtype, r > 0);
    }
    te_packet_of_floats(sum, s, a->dtype);
    return 1;
}

/* Waits for packet i of rank r, stores the packet to *v, and empties the packet's slot. count: the number of packets
 * that each rank sends. Returns 0 after a timeout. */
TE_FN int te__peer_wait_rank(te_packet *v, const te_peer_args *a, uint32_t epoch, int count, int i, int r) {
    char *const slot = te__peer_slot(a->local, a, epoch, r, count, i);
    uint64_t since = 0;
    for (uint32_t polls = 1;; polls++) {
        te_packet_poll(v, slot);
        if (te_packet_arrived(v)) break;
        if (polls % TE_PEER_POLLS_PER_CLOCK == 0 && te__peer_timed_out(a, &since, 1u << r)) return 0;
    }
    te_packet_clear(slot);
    return 1;
}
/* Waits for one packet of eight bytes from rank r in `slot`, stores it to *v, and empties the slot. Returns 0 after a
 * timeout. */
TE_FN int te__peer_wait8(te_packet *v, const te_peer_args *a, char *slot, int r) {
    const te_packet idle = {{TE_PACKET_EMPTY, TE_PACKET_EMPTY, TE_PACKET_EMPTY, TE_PACKET_EMPTY}};
    uint64_t since = 0;
    for (uint32_t polls = 1;; polls++) {
        te_packet_poll8(v, slot);
        if (te_packet_arrived(v)) break;
        if (polls % TE_PEER_POLLS_PER_CLOCK == 0 && te__peer_timed_out(a, &since, 1u << r)) return 0;
    }
    te_packet_send8(slot, &idle);
    return 1;
}
/* Sets *sum to the sum of the packets i of all ranks, as te__peer_sum does, but waits for one rank after the other, so
 * that only one packet is held in registers, however many ranks there are. Unlike te__peer_sum, the function does not
 * report a timeout; after a timeout the sum is NaN. dtype: a->dtype as a compile-time constant. */
TE_FN void te__peer_sum_serial(te_packet *sum, const te_packet *local, const te_peer_args *a, uint32_t epoch, int count,
                               int i, const te_dtype dtype) {
    float s[8];
    /* start with -0, because -0 + x is bitwise identical to x for every x, while 0 + -0 is 0 */
    TE_UNROLL for (int k = 0; k < 8; k++) s[k] = -0.0f;
    TE_UNROLL_1 for (int r = 0; r < a->ranks; r++) {
        te_packet v = *local;
        if (r != a->rank) (void)te__peer_wait_rank(&v, a, epoch, count, i, r);
        te_packet_add(s, &v, dtype, 1);
    }
    te_packet_of_floats(sum, s, dtype);
}

/* ---- host -------------------------------------------------------------------------------------------------------- */

/* Returns an error if a rank timed out in an earlier collective of this group; the group can then no longer be used. */
TE_API te_status te__peers_check(const te_group *g, te_context *ctx) {
    const uint32_t failed = g->peers ? te__flag_load_on_host(g->peers->failed) : 0;
    if (!failed) return TE_OK;
    (void)te_fail(ctx, TE_ERROR_COMM,
                  "a collective of the %s group, rank %d of %d: rank %d has not come within %g seconds", g->name,
                  g->rank, g->size, (int)failed - 1, g->comm->timeout);
    return te__comm_failed(g->comm, ctx);
}
/* Returns the arguments of a kernel that exchanges packets, except y, x and `aligned`. bytes: the size of x in an
 * all_reduce or an all_gather, of y in a reduce_scatter. */
TE_API te_peer_args te__peer_args_of(const te_group *g, te_peer_kind kind, te_peer_algorithm algorithm, int64_t bytes,
                                     te_dtype dtype) {
    const te_peer_memory *p = g->peers;
    te_peer_args a;
    memset(&a, 0, sizeof a); /* sets the padding to 0 as well, because recorded passes compare arguments byte by byte */
    a.kind = kind, a.algorithm = algorithm, a.bytes = bytes, a.dtype = dtype, a.rank = g->rank, a.ranks = g->size;
    memcpy(a.buffer, p->buffer, sizeof a.buffer), a.local = p->buffer[g->rank];
    a.state = p->state, a.failed = p->failed, a.half_bytes = p->half_bytes;
    /* 0.9: the kernel should reach its timeout before the host does, because only the kernel can report which rank is
     * missing */
    a.timeout = (uint64_t)(0.9e9 * g->comm->timeout);
    return a;
}
/* Returns the arguments of the exchange in a fused pattern (fused_collective_norm.h) whose tensor has the given number
 * of rows, of row_bytes bytes each. A GEMM whose epilogue sends packets to the pattern has the same arguments. With
 * two-shot, a rank sends to each other rank only those rows that the receiving rank sums, so te_peer_args.bytes counts
 * only these rows. */
TE_API te_peer_args te__peer_args_of_rows(const te_group *g, int64_t rows, int64_t row_bytes, int two_shot,
                                          te_dtype dtype) {
    const int64_t sent_rows = two_shot ? te_ceil_div(rows, g->size) : rows;
    return te__peer_args_of(g, TE_PEER_all_reduce, two_shot ? TE_PEER_two_shot : TE_PEER_one_shot,
                            sent_rows * row_bytes, dtype);
}

#endif
