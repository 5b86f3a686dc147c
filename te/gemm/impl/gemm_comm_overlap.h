/* gemm_comm_overlap.h -- matrix products that overlap a collective of the tensor group, on Hopper: the memory that all
 * ranks map, the flags by which one rank signals to another that it has written data, the handshake, and the copies of
 * a gather. The kernel is in gemm_sm90.h. Each of the N ranks owns rank_rows = m / N of the m rows of A (gather) or of
 * D (scatter).
 *
 *   gather       all_gather, then the product. DMA copies, which occupy no multiprocessor, write a rank's rows of A,
 *                chunk by chunk, to the memory of all other ranks; a flag is set after each chunk. The kernel computes
 *                the tiles of its own rows first, then those of the rows of rank + 1, rank + 2, ..; its producer thread
 *                waits for the flag of each chunk. Elements that a rank sends over its link: rank_rows * k * (N - 1).
 *   scatter      the product, then reduce_scatter. The epilogue stores its sums for rows that another rank owns,
 *                rounded to 16 bits, in a slot of that rank's memory (one slot per sender), and sets flags after each
 *                tile. A rank computes the tiles of its own rows last: by then the other ranks' sums have arrived, and
 *                the epilogue adds the sums of all ranks in f32, in the order of the ranks. Elements that a rank sends
 *                over its link: rank_rows * n * (N - 1); the receiving ranks also read them once from memory.
 *   two kernels  a scatter in two kernels, for short k (te__overlap_memory.two_kernel_bytes). The epilogue takes 30 us
 *                to add the ranks' sums for one tile, whatever k is, but the shorter k is, the shorter is the mainloop
 *                behind which this time can be hidden. So with two kernels the epilogue only stores its sums (also the
 *                sums for this rank's own rows) in slots; the tiles alternate between the rows of all ranks, so that a
 *                rank sends at an even rate; and a second kernel adds up all slots (te/comm/impl/collective_step.h).
 *                Compared with a scatter in one kernel, a rank writes and reads rank_rows * n more elements.
 *
 * Lower bound of the time: the time of the product alone or, if longer, the time to send the bytes over the link at 450
 * GB/s. With large products the overlapped kernel takes 0.98 to 1.02 times as long as the product alone. Measurements,
 * and variants that were slower: docs/notes/gemm_comm_overlap.md.
 */
#ifndef TE_GEMM_COMM_OVERLAP_H
#define TE_GEMM_COMM_OVERLAP_H

#include "../../core/rank_group.h"  /* te_group, TE_HAS_COMM_OVERLAP */
#include "../../core/target.h" /* TE_TRY, te_launch, TE_KERNEL */
#if TE_CUDA
#include <cuda.h> /* CUdeviceptr, CUresult; libcuda is not linked: its functions are looked up at run time */

#include "../../core/impl/peer_packet.h" /* te_nanoseconds, te_flag_load */
#endif

enum {
    TE_MAX_RANKS = 8,                     /* the largest number of ranks in a group */
    TE_OVERLAP_MAX_BLOCKS = 16,           /* the largest number of blocks of mapped memory of a group; the library
                                           * allocates block 0, the caller the other blocks (te_comm_allocate) */
    TE_GATHER_MAX_CHUNKS = 16,            /* the largest number of chunks into which the rows of one rank are divided
                                           * for a gather */
    /* the smallest size of a chunk, unless all rows of a rank have fewer bytes; smaller chunks would be copied at a
     * lower rate (te__gather_copies) */
    TE_GATHER_MIN_CHUNK_BYTES = 16 << 20,
    /* the largest number of flags for the tiles that one rank sends to one other rank in a scatter */
    TE_SCATTER_MAX_FLAGS = 1 << 15,
    TE_SCATTER_FLAGS_PER_TILE = 4,        /* one flag for each of the three warps of the epilogue that store parts of a
                                           * tile; the fourth flag is unused */
    /* the default of te__overlap_memory.two_kernel_bytes: a scatter runs as two kernels if a row of A has at most this
     * many bytes */
    TE_SCATTER_TWO_KERNEL_BYTES = 4096,
    /* Block 0 of each rank's memory begins with flags of 32 bits. A TE_FLAG_ constant is the index of the first flag of
     * one kind; its comment gives the shape of the array of these flags and their meaning. `rank` is the rank that
     * writes the flag. */
    /* one flag per rank: the last epoch (number of a handshake) in which rank `rank` has allowed the other ranks to
     * write to its memory */
    TE_FLAG_READY = 0,
    TE_FLAG_CHUNK = 64,   /* [rank][TE_GATHER_MAX_CHUNKS]: 1 once this chunk of `rank`'s rows has arrived */
    /* a single flag, written only by the rank in whose memory it lies: the number of handshakes so far, which is the
     * current epoch */
    TE_FLAG_EPOCH = 256,
    /* one flag per rank: set to 1 by a stream of rank `rank`, to test whether its streams can write to the memory in
     * which the flag lies */
    TE_FLAG_PROBE = 320,
    /* for a scatter, one flag per rank: the last epoch (number of a handshake) in which rank `rank` has stored all its
     * tiles in the memory in which the flag lies */
    TE_FLAG_SENT = 384,
    /* for a scatter, an array [rank][TE_SCATTER_MAX_FLAGS]: the last epoch in which one warp of rank `rank` has stored
     * its rows of one tile in the memory in which the flag lies */
    TE_FLAG_TILE = 1024,
    TE_FLAG_COUNT = TE_FLAG_TILE + TE_MAX_RANKS * TE_SCATTER_MAX_FLAGS
};

/* One allocation of mapped memory: each rank allocates a block of `bytes` bytes, and every rank maps the blocks of all
 * ranks. at[r]: the address at which this rank maps the block of rank r. */
typedef struct te__overlap_block {
    char *at[TE_MAX_RANKS];
    size_t bytes;
} te__overlap_block;

/* The mapped memory of a group. Block 0 has the flags, and behind them a workspace: for one gathered tensor, or for the
 * slots into which the ranks write their sums in a scatter. The caller allocates other blocks (te_comm_allocate). */
typedef struct te__overlap_memory {
    te__overlap_block block[TE_OVERLAP_MAX_BLOCKS];
    int blocks, rank, ranks;
    size_t capacity;      /* bytes of the workspace */
    /* two flags, one in device memory and one in host memory. Both are 0 at first, and are set to q + 1 if a wait for
     * rank q times out */
    uint32_t *failed[2];
    /* how many nanoseconds a kernel waits for another rank before it reports that rank as failed */
    uint64_t timeout;
    void *copy_stream, *event[2];       /* cudaStream_t and cudaEvent_t */
    void (*write)(void), (*wait)(void); /* the driver's functions cuStreamWriteValue32 (write) and cuStreamWaitValue32
                                         * (wait) */
    int64_t two_kernel_bytes; /* a scatter runs as two kernels if a row of A has at most this many bytes */
    /* used in tests. If 1, the GEMM and the collective run one after the other, with the tiles in the same order as in
     * an overlap, so that the times differ only by the overlap */
    int serial;
    int64_t gathered, scattered; /* statistics: the number of products that ran with a gather, and the number that ran
                                  * with a scatter */
    /* statistics: how many of the products in `gathered` also had other work to run during the copies
     * (te__gemm_overlap.overlapped) */
    int64_t gathered_beside;
} te__overlap_memory;

/* How a product (GEMM) overlaps a collective; te_gemm.ranks points to this struct. */
typedef struct te__gemm_overlap {
    const te_group *group;
    te__overlap_memory *memory;
    const void *own;        /* for a gather: this rank's rows of A, which are sent to all other ranks. Null for a
                             * scatter */
    /* for a gather: to[q] is the address, within the A of rank q, to which this rank's rows of A are copied; it points
     * to memory of rank q that this rank has mapped */
    char *to[TE_MAX_RANKS];
    /* used for a gather. If 1, this rank's rows are also copied into its own gathered A, so that the gathered A has all
     * rows. The GEMM does not need this copy: it reads this rank's rows from `own` */
    int keep;
    /* used for a scatter. If 1, consecutive tiles belong to different ranks by turns. If 0, the tiles are computed rank
     * by rank: first all tiles in the rows of the next rank, and at last all tiles in this rank's own rows */
    int interleave;
    /* for a gather: a function that enqueues other work, which runs before the GEMM, while other ranks' rows arrive;
     * null if there is no such work */
    te_status (*overlapped)(void *arg);
    void *overlapped_arg;
} te__gemm_overlap;

TE_API uint32_t *te__rank_flags(const te__overlap_memory *m, int rank) {
    return (uint32_t *)(void *)m->block[0].at[rank];
}
TE_API char *te__overlap_workspace(const te__overlap_memory *m, int rank) {
    return m->block[0].at[rank] + TE_FLAG_COUNT * sizeof(uint32_t);
}
/* Returns the number of rows in a chunk, the unit in which a gather copies a rank's rows: a multiple of `tile`, or all
 * rank_rows. The number is so large that there are at most TE_GATHER_MAX_CHUNKS chunks. */
TE_API int te__gather_chunk_rows(int64_t rank_rows, int64_t row_bytes, int tile) {
    const int64_t rows = te_max(te_ceil_div(TE_GATHER_MIN_CHUNK_BYTES, row_bytes),
                                te_ceil_div(rank_rows, TE_GATHER_MAX_CHUNKS));
    return (int)te_min(rank_rows, te_round_up(rows, tile));
}
/* Returns which of the blocks that the caller has allocated (te_comm_allocate) contains the memory from p to
 * p + bytes, or -1 if no block contains all of this memory. */
TE_API int te__overlap_block_of(const te__overlap_memory *m, const void *p, size_t bytes) {
    for (int i = 1; m && p && i < m->blocks; i++) {
        const char *own = m->block[i].at[m->rank];
        if (own && (const char *)p >= own && (const char *)p + bytes <= own + m->block[i].bytes) return i;
    }
    return -1;
}

/* The timeout of a kernel that waits for another rank, and the flags by which the kernel reports that it has timed
 * out. */
typedef struct te__peer_timeout {
    uint32_t *failed[2];
    uint64_t timeout; /* nanoseconds */
} te__peer_timeout;

#if TE_CUDA

/* ---- flags in a kernel ------------------------------------------------------------------------------------------- */

enum { TE_FLAG_POLLS_PER_CLOCK = 4096 /* a waiting thread reads the clock once in this many loads of a flag */ };

TE_FN uint32_t te__flag_load(const uint32_t *flag) {
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");
    return v;
}
/* Sets a flag with release order: a thread that reads this value also sees everything that the calling warp has written
 * before, and everything that its block has written before the last barrier of the block. */
TE_FN void te__flag_signal(uint32_t *flag, uint32_t v) {
    __threadfence_system();
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(v) : "memory");
}
/* Waits until the flag, which rank `of` writes, has the value v. After the timeout, reports rank `of` as failed
 * (te__overlap_memory.failed) and returns, so that the kernel ends. Also returns, at the next check of the clock, if a
 * failure has already been reported. */
TE_FN void te__flag_wait(const uint32_t *flag, uint32_t v, int of, const te__peer_timeout *w) {
    uint64_t since = 0;
    for (uint32_t polls = 1; te__flag_load(flag) != v; polls++) {
        if (polls % TE_FLAG_POLLS_PER_CLOCK) continue;
        const uint64_t now = te_nanoseconds();
        if (te_flag_load(w->failed[0])) return;
        if (!since) since = now;
        if (now - since < w->timeout) continue;
        te_flag_store(w->failed[0], (uint32_t)of + 1), te_flag_store(w->failed[1], (uint32_t)of + 1);
        return;
    }
}

/* ---- flags in the order of a stream ------------------------------------------------------------------------------ */

/* The type of the functions cuStreamWriteValue32 and cuStreamWaitValue32. A thread that reads a value written by
 * cuStreamWriteValue32 also sees everything that the same stream has written before this value. */
typedef CUresult (*te__stream_flag_fn)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

/* Returns the address of the flag of a chunk that rank `from` sends to rank `to`. The flag lies in the memory of rank
 * `to`. */
TE_API uint32_t *te__gather_flag(const te__overlap_memory *m, int to, int from, int chunk) {
    return te__rank_flags(m, to) + TE_FLAG_CHUNK + from * TE_GATHER_MAX_CHUNKS + chunk;
}
TE_API te_status te__stream_write_flag(const te__overlap_memory *m, uint32_t *flag, uint32_t v, cudaStream_t stream,
                                       te_context *ctx) {
    const CUresult e = ((te__stream_flag_fn)m->write)((CUstream)stream, (CUdeviceptr)(uintptr_t)flag, v, 0);
    TE_REQUIRE(e == CUDA_SUCCESS, ctx, TE_ERROR_CUDA, "a flag for another rank: cuStreamWriteValue32 failed (%d)",
               (int)e);
    return TE_OK;
}
/* Makes all work that is enqueued on the stream after this call wait until the flag has the value `v`. */
TE_API te_status te__stream_wait_flag(const te__overlap_memory *m, uint32_t *flag, uint32_t v, cudaStream_t stream,
                                      te_context *ctx) {
    const CUresult e = ((te__stream_flag_fn)m->wait)((CUstream)stream, (CUdeviceptr)(uintptr_t)flag, v,
                                                     CU_STREAM_WAIT_VALUE_EQ);
    TE_REQUIRE(e == CUDA_SUCCESS, ctx, TE_ERROR_CUDA, "a flag of another rank: cuStreamWaitValue32 failed (%d)",
               (int)e);
    return TE_OK;
}

#if TE_HAS_COMM_OVERLAP

/* ---- the handshake ----------------------------------------------------------------------------------------------- */

/* Each product that overlaps a collective begins with a handshake: a kernel of one block signals to all other ranks
 * that this rank is ready, and waits until all of them are ready.
 *
 * Why one copy of each buffer suffices. Kernels of a stream run one after the other, so a rank that is ready has
 * finished all earlier work of its stream: none of its kernels still reads or writes the memory that the other ranks
 * write next. A rank's product ends only after all rows of A, or all sums for its rows, have arrived, so no other rank
 * writes into this rank's memory after the product has ended. When a rank has filled a slot in another rank's memory,
 * that other rank reads the slot before it signals that it is ready for the next product.
 *
 * Flags. READY, SENT and TILE are set to the epoch, which is the number of this handshake. The epoch is the same on all
 * ranks, and each rank counts it on its device, so that the count is right even if a captured graph is replayed. CHUNK
 * is set to 1, because it is written by a stream, which does not know the epoch; the rank in whose memory a CHUNK flag
 * lies resets the flag to 0 in the next handshake, before it signals that it is ready. No rank reaches its next
 * handshake before all other ranks have passed this one, because the product between the two handshakes needs data of
 * all ranks. So no flag can already hold a later epoch, and it is safe to wait until a flag equals the epoch.
 *
 * There is no deadlock. In a gather, copies wait for nothing but a handshake. In a scatter, a rank that computes a tile
 * in its own rows waits for the other ranks' sums for this tile. Each rank begins with the rows of the rank after it,
 * and computes the tiles in its own rows last (te__sm90_gemm_locate_tile). So each block has stored all its sums for
 * other ranks before it waits for the first time. But all blocks of a scattering kernel must get a multiprocessor
 * eventually, so no kernel that waits for another rank (NCCL's, on a second stream) may run at the same time. During a
 * backward pass te_buckets may reduce gradients on a second stream; then all scatters run as two kernels: the product
 * does not wait for other ranks, and the kernel that adds up the slots waits only for products. */
typedef struct te__handshake_args {
    uint32_t *flags[TE_MAX_RANKS]; /* the flags in the memory of each rank */
    int rank, ranks;
    te__peer_timeout timeout;
} te__handshake_args;

enum { TE_HANDSHAKE_THREADS = 128 };
/* The body of the handshake kernel, one block on each rank: it begins a new epoch, tells all ranks that they may write
 * to this rank's memory, and waits until all ranks have told this rank that it may write to their memory. The kernel
 * takes 3 us if all ranks start it at the same time; 1 to 1.5 us of this time is the latency of a store to another
 * rank. */
TE_FN void te__handshake_body(const te__handshake_args *a) {
    uint32_t *own = a->flags[a->rank];
    const int id = (int)threadIdx.x;
    const uint32_t epoch = own[TE_FLAG_EPOCH] + 1;
    for (int i = id; i < TE_MAX_RANKS * TE_GATHER_MAX_CHUNKS; i += TE_HANDSHAKE_THREADS) own[TE_FLAG_CHUNK + i] = 0;
    __syncthreads();
    if (id == 0) own[TE_FLAG_EPOCH] = epoch;
    if (id >= a->ranks || id == a->rank) return;
    te__flag_signal(a->flags[id] + TE_FLAG_READY + a->rank, epoch);
    te__flag_wait(own + TE_FLAG_READY + id, epoch, id, &a->timeout);
}
TE_KERNEL(te__handshake, TE_HANDSHAKE_THREADS, te__handshake_args, te__handshake_body(te_args))

TE_API te__peer_timeout te__peer_timeout_of(const te__overlap_memory *m) {
    te__peer_timeout w;
    memset(&w, 0, sizeof w);
    w.failed[0] = m->failed[0], w.failed[1] = m->failed[1], w.timeout = m->timeout;
    return w;
}
TE_API te_status te__handshake_run(const te__overlap_memory *m, te_context *ctx) {
    te__handshake_args a;
    memset(&a, 0, sizeof a);
    for (int r = 0; r < m->ranks; r++) a.flags[r] = te__rank_flags(m, r);
    a.rank = m->rank, a.ranks = m->ranks, a.timeout = te__peer_timeout_of(m);
    return te__handshake_launch(ctx, te__grid_of(1, 1), &a);
}

/* ---- gather: copies that overlap a GEMM -------------------------------------------------------------------------- */

/* Arguments of te__gather_enqueue, a host function that enqueues the copies of a gather, the GEMM, or both. The copies
 * read this rank's rows at `own`, and store them at address to[q] on each rank q. If other work is to run between the
 * start of the copies and the GEMM, one call enqueues the copies and a later call the GEMM; otherwise one call enqueues
 * both. A graph replay repeats the calls with the same arguments. The arguments of the GEMM's kernel follow this struct
 * in memory. */
typedef struct te__gather_call {
    te__overlap_memory *memory;
    const char *own;
    char *to[TE_MAX_RANKS];
    /* rank_bytes: bytes of this rank's rows of A; chunk_bytes: bytes of one chunk of these rows */
    int64_t rank_bytes, chunk_bytes;
    int keep;
    int copies, product; /* copies: whether the call enqueues the copies; product: whether the call enqueues the GEMM */
    te_launch launch;    /* the launch of the product's kernel */
} te__gather_call;
enum { TE_GATHER_MAX_CALL_BYTES = 4096 };

/* Enqueues copies of all chunks of this rank's rows, in order: to rank - 1, which computes with these rows right after
 * its own, then to the other ranks in descending order (modulo the number of ranks). So at any time each rank sends to
 * one rank and receives from one rank. Chunks are large because each copy has a fixed cost: on four H200s a copy of 4
 * MB takes 18 us, of which 7 us pass before its first byte arrives, and the next copy begins 10 us after its end; this
 * yields only 150 GB/s. Copying small chunks by three streams at the same time is not faster, and the chunks that are
 * needed first arrive later. */
TE_API te_status te__gather_copies(const te__gather_call *c, cudaStream_t stream, te_context *ctx) {
    const te__overlap_memory *m = c->memory;
    for (int k = 1; k < m->ranks; k++) {
        const int to = (m->rank + m->ranks - k) % m->ranks;
        uint32_t *flag = te__gather_flag(m, to, m->rank, 0);
        for (int64_t at = 0; at < c->rank_bytes; at += c->chunk_bytes, flag++) {
            const size_t bytes = (size_t)te_min(c->chunk_bytes, c->rank_bytes - at);
            TE_TRY(te__cuda_status(ctx, cudaMemcpyAsync(c->to[to] + at, c->own + at, bytes, cudaMemcpyDeviceToDevice,
                                                        stream), "rows to another rank"));
            TE_TRY(te__stream_write_flag(m, flag, 1, stream, ctx));
        }
    }
    if (!c->keep) return TE_OK;
    return te__cuda_status(ctx, cudaMemcpyAsync(c->to[m->rank], c->own, (size_t)c->rank_bytes,
                                                cudaMemcpyDeviceToDevice, stream), "rows of this rank");
}
TE_API te_status te__gather_enqueue(const void *args, te_context *ctx) {
    const te__gather_call *c = (const te__gather_call *)args;
    const te__overlap_memory *m = c->memory;
    const cudaStream_t main = (cudaStream_t)ctx->stream, side = (cudaStream_t)m->copy_stream;
    const cudaEvent_t forked = (cudaEvent_t)m->event[0], copied = (cudaEvent_t)m->event[1];
    if (c->copies) {
        TE_TRY(te__cuda_status(ctx, cudaEventRecord(forked, main), "second stream"));
        TE_TRY(te__cuda_status(ctx, cudaStreamWaitEvent(side, forked, 0), "second stream"));
        TE_TRY(te__gather_copies(c, side, ctx));
        TE_TRY(te__cuda_status(ctx, cudaEventRecord(copied, side), "second stream"));
    }
    if (!c->product) return TE_OK;
    TE_TRY(te__launch_now(&c->launch, (const char *)args + sizeof *c, ctx));
    return te__cuda_status(ctx, cudaStreamWaitEvent(main, copied, 0), "second stream");
}
/* Launches the product that `l` and `args` describe; meanwhile, copies this rank's rows of A (rank_bytes bytes) to the
 * other ranks. If o->overlapped is not null, the work that the function o->overlapped enqueues also runs during the
 * copies. */
TE_API te_status te__gather_launch(const te_launch *l, const void *args, const te__gemm_overlap *o,
                                   int64_t rank_bytes, int64_t chunk_bytes, te_context *ctx) {
    alignas(16) char call[TE_GATHER_MAX_CALL_BYTES];
    te__gather_call *c = (te__gather_call *)(void *)call;
    const size_t bytes = sizeof *c + (size_t)l->bytes;
    TE_REQUIRE(bytes <= sizeof call, ctx, TE_ERROR_OVERFLOW, "a product of %d bytes of arguments", l->bytes);
    memset(c, 0, sizeof *c); /* the padding within the struct must be 0, too, because graph replay compares arguments
                              * byte by byte */
    c->memory = o->memory, c->own = (const char *)o->own, c->launch = *l;
    c->rank_bytes = rank_bytes, c->chunk_bytes = chunk_bytes;
    c->keep = o->keep && o->to[o->memory->rank] != c->own;
    memcpy(c->to, o->to, sizeof c->to);
    memcpy(call + sizeof *c, args, (size_t)l->bytes);
    TE_TRY(te__handshake_run(o->memory, ctx));
    o->memory->gathered++;
    c->copies = 1, c->product = !o->overlapped;
    if (o->overlapped) {
        o->memory->gathered_beside++;
        TE_TRY(te__cuda_call(ctx, te__gather_enqueue, call, sizeof *c));
        TE_TRY(o->overlapped(o->overlapped_arg));
        c->copies = 0, c->product = 1;
    }
    return te__cuda_call(ctx, te__gather_enqueue, call, bytes);
}
#endif
#endif

#endif
