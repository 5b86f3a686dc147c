/* symmetric_memory_cuda.h -- allocates and maps the symmetric memory of a group on CUDA. Each rank allocates its own
 * buffers, and maps the buffers of the other ranks by their CUDA IPC handles, which an all-gather of NCCL exchanges.
 * Either all ranks of a group get symmetric memory or none does. No rank gets symmetric memory if the group spans hosts
 * (te_group.hosts), several ranks are in one process, or the devices cannot access each other; NCCL then does all
 * collectives.
 *
 *   te_peer_memory       packet buffers for small collectives (symmetric_memory.h), by te__peer_memory_open
 *   te__overlap_memory   flags and slots for GEMMs that overlap collectives (te/gemm/impl/gemm_comm_overlap.h) and for
 *                        reductions by DMA engines (bucket_reduce.h), by te__overlap_memory_open; and the blocks that
 *                        te_comm_allocate returns
 */
/* target: cuda */
#ifndef TE_SYMMETRIC_MEMORY_CUDA_H
#define TE_SYMMETRIC_MEMORY_CUDA_H

#include "../../gemm/impl/gemm_comm_overlap.h" /* te__overlap_memory, te__stream_flag_fn */
#include "comm_start.h"                /* te__seconds, te__sleep_1ms */
#include "symmetric_collectives.h"     /* te_peer_memory, te__peer_memory_size */

#ifdef TE_COMM
#include <cuda.h>
#include <nccl.h>
#include <pthread.h>
#include <stddef.h> /* offsetof */
#include <unistd.h> /* getpid */

static_assert((int)TE_MAX_RANKS == (int)TE_PEER_MAX_RANKS, "both kinds of symmetric memory have the same limit");

/* ---- calls and waits that end ------------------------------------------------------------------------------------ */

TE_API te_status te__nccl_status(const te_group *g, ncclResult_t e, const char *what, te_context *ctx) {
    if (e == ncclSuccess || e == ncclInProgress) return TE_OK;
    (void)te_fail(ctx, TE_ERROR_COMM, "%s of the %s group, rank %d of %d: %s; %s", what, g->name, g->rank, g->size,
                  ncclGetErrorString(e), ncclGetLastError((ncclComm_t)g->handle));
    return g->comm ? te__comm_failed(g->comm, ctx) : TE_ERROR_COMM;
}

/* The kinds of operations that NCCL runs: its collectives, and the messages of te_group_exchange. */
typedef enum te__nccl_kind {
    TE__NCCL_all_reduce = TE_PEER_all_reduce,
    TE__NCCL_reduce_scatter = TE_PEER_reduce_scatter,
    TE__NCCL_all_gather = TE_PEER_all_gather,
    TE__NCCL_exchange
} te__nccl_kind;
typedef struct te__nccl_op {
    te__nccl_kind kind;
    ncclDataType_t type;
    void *y;
    const void *x;
    int64_t count;                          /* number of elements or, for an exchange, of messages */
    te_transfer transfers[TE_EXCHANGE_MAX]; /* [count] for an exchange, else unused. A copy of this struct is cut off
                                             * after te__nccl_op_bytes bytes */
} te__nccl_op;

TE_API size_t te__nccl_op_bytes(const te__nccl_op *op) {
    return offsetof(te__nccl_op, transfers) +
           (op->kind == TE__NCCL_exchange ? (size_t)op->count * sizeof op->transfers[0] : 0);
}

TE_API te__nccl_op te__nccl_op_of(te__nccl_kind kind, void *y, const void *x, int64_t count, ncclDataType_t type) {
    te__nccl_op op;
    memset(&op, 0, sizeof op);
    op.kind = kind, op.type = type, op.y = y, op.x = x, op.count = count;
    return op;
}
TE_API ncclResult_t te__nccl_exchange_now(const te__nccl_op *op, ncclComm_t nccl, cudaStream_t stream) {
    ncclResult_t e = ncclGroupStart();
    for (int64_t i = 0; i < op->count && e == ncclSuccess; i++) {
        const te_transfer *t = &op->transfers[i];
        const size_t bytes = (size_t)t->bytes;
        e = t->is_received ? ncclRecv(t->data, bytes, ncclInt8, t->peer, nccl, stream)
                           : ncclSend(t->data, bytes, ncclInt8, t->peer, nccl, stream);
    }
    const ncclResult_t ended = ncclGroupEnd();
    return e == ncclSuccess ? ended : e;
}
/* All reductions are sums. The type ncclUint32 is used only for barriers, whose result is not read. */
TE_API ncclResult_t te__nccl_enqueue_now(const te__nccl_op *op, ncclComm_t nccl, cudaStream_t stream) {
    const size_t count = (size_t)op->count;
    switch (op->kind) {
    case TE__NCCL_all_gather: return ncclAllGather(op->x, op->y, count, op->type, nccl, stream);
    case TE__NCCL_reduce_scatter: return ncclReduceScatter(op->x, op->y, count, op->type, ncclSum, nccl, stream);
    case TE__NCCL_exchange: return te__nccl_exchange_now(op, nccl, stream);
    default: return ncclAllReduce(op->x, op->y, count, op->type, ncclSum, nccl, stream);
    }
}
/* Returns a hash of those properties of an operation that determine to which ranks NCCL connects. For a collective, the
 * hash covers the number of elements, rounded down to a power of two, because NCCL chooses its algorithm by the size.
 * For an exchange, the hash covers the ranks of the messages. The hash is never 0. */
TE_API uint64_t te__nccl_signature(const te__nccl_op *op, ncclComm_t nccl) {
    uint64_t word[4] = {(uint64_t)(uintptr_t)nccl, (uint64_t)op->kind, (uint64_t)op->type, (uint64_t)op->count};
    while (op->kind != TE__NCCL_exchange && word[3] & (word[3] - 1)) word[3] &= word[3] - 1;
    uint64_t hash = 1469598103934665603u; /* FNV-1a, by words */
    for (int i = 0; i < 4; i++) hash = (hash ^ word[i]) * 1099511628211u;
    for (int64_t i = 0; op->kind == TE__NCCL_exchange && i < op->count; i++) {
        const te_transfer *t = &op->transfers[i];
        hash = (hash ^ (uint64_t)(2 * t->peer + t->is_received)) * 1099511628211u;
    }
    return hash ? hash : 1;
}
/* A call of NCCL in a separate thread. done: 1 when the call has returned. */
typedef struct te__nccl_thread {
    te__nccl_op op;
    ncclComm_t nccl;
    cudaStream_t stream;
    int device, done;
    ncclResult_t result;
} te__nccl_thread;
TE_API void *te__nccl_thread_run(void *p) {
    te__nccl_thread *t = (te__nccl_thread *)p;
    t->result = cudaSetDevice(t->device) == cudaSuccess ? te__nccl_enqueue_now(&t->op, t->nccl, t->stream)
                                                        : ncclUnhandledCudaError;
    __atomic_store_n(&t->done, 1, __ATOMIC_RELEASE);
    return 0;
}
/* Let a thread enqueue the operation, and wait for the thread at most g->comm->timeout seconds. After an error the
 * thread's memory is not freed, because the thread may still wait inside NCCL; te_comm_destroy ends that wait by
 * aborting the communicator. */
TE_API te_status te__nccl_run_by_thread(ncclResult_t *result, const te_group *g, const te__nccl_op *op,
                                        const char *what, te_context *ctx) {
    const double since = te__seconds();
    pthread_t thread;
    te__nccl_thread *t = (te__nccl_thread *)calloc(1, sizeof *t);
    TE_REQUIRE(t, ctx, TE_ERROR_MEMORY, "%s: cannot allocate %zu bytes", what, sizeof *t);
    memcpy((void *)&t->op, op, te__nccl_op_bytes(op));
    t->nccl = (ncclComm_t)g->handle, t->stream = (cudaStream_t)ctx->stream, t->device = ctx->device;
    if (pthread_create(&thread, 0, te__nccl_thread_run, t)) {
        free(t);
        return te_fail(ctx, TE_ERROR_MEMORY, "%s: cannot create a thread", what);
    }
    while (!__atomic_load_n(&t->done, __ATOMIC_ACQUIRE)) {
        if (te__seconds() - since >= g->comm->timeout) {
            (void)pthread_detach(thread);
            (void)te_fail(ctx, TE_ERROR_COMM, "%s of the %s group, rank %d of %d: another rank has not come within %g "
                          "seconds", what, g->name, g->rank, g->size, g->comm->timeout);
            return te__comm_failed(g->comm, ctx);
        }
        te__sleep_1ms();
    }
    (void)pthread_join(thread, 0);
    *result = t->result;
    free(t);
    return TE_OK;
}
/* Enqueues an operation. NCCL connects two ranks only when an operation first needs the connection (for collectives
 * unless NCCL_RUNTIME_CONNECT is 0, for sends and receives always). The groups' communicators are blocking, so NCCL
 * connects inside this call and waits for the other rank without a limit; a rank that hangs or has died would block the
 * host. Therefore the first operation of each signature is enqueued by another thread, with a time limit. Later
 * operations with the same signature use existing connections, and do not wait for other ranks. */
TE_API te_status te__nccl_run(const te_group *g, const te__nccl_op *op, te_context *ctx) {
    static const char *const names[] = {"all_reduce", "reduce_scatter", "all_gather", "exchange"}; /* te__nccl_kind */
    const char *what = names[op->kind];
    const ncclComm_t nccl = (ncclComm_t)g->handle;
    te_comm *comm = g->comm;
    const uint64_t signature = te__nccl_signature(op, nccl);
    ncclResult_t e = ncclSuccess;
    for (int i = 0; i < TE_COMM_CONNECTED; i++)
        if (comm->connected[i] == signature)
            return te__nccl_status(g, te__nccl_enqueue_now(op, nccl, (cudaStream_t)ctx->stream), what, ctx);
    TE_TRY(te__nccl_run_by_thread(&e, g, op, what, ctx));
    TE_TRY(te__nccl_status(g, e, what, ctx));
    comm->connected[comm->connected_at++ % TE_COMM_CONNECTED] = signature;
    return TE_OK;
}

/* Waits until the context's stream is idle, at most g->comm->timeout seconds; cudaStreamSynchronize would wait for
 * ever for a rank that has died. If the result is TE_ERROR_COMM, the communicator has failed, and the caller must not
 * free any device memory, because cudaFree would wait for the stream. */
TE_API te_status te__comm_wait_stream(const te_group *g, const char *what, te_context *ctx) {
    const double since = te__seconds();
    for (cudaError_t e; (e = cudaStreamQuery((cudaStream_t)ctx->stream)) != cudaSuccess; te__sleep_1ms()) {
        if (e != cudaErrorNotReady) return te__cuda_status(ctx, e, what);
        if (te__seconds() - since < g->comm->timeout) continue;
        (void)te_fail(ctx, TE_ERROR_COMM, "%s of the %s group, rank %d of %d: another rank has not come within %g "
                      "seconds", what, g->name, g->rank, g->size, g->comm->timeout);
        return te__comm_failed(g->comm, ctx);
    }
    return TE_OK;
}

/* ---- handles, which the ranks exchange --------------------------------------------------------------------------- */

/* Data about a rank that the ranks exchange before they map each other's memory. */
typedef struct te_peer_info {
    /* in the first exchange of these structs: whether the rank has allocated its memory; in the second exchange:
     * whether the rank has mapped the memory of all other ranks */
    int32_t is_ready;
    int32_t process, processors;
    int64_t max_bytes, one_shot_bytes, reduce_bytes; /* copies of the members of the rank's te_peer_memory; these values
                                                      * must be the same on all ranks */
    cudaIpcMemHandle_t memory;
} te_peer_info;

/* Exchanges info[size]: each rank has filled in info[its rank], and receives the elements of all other ranks. Waits for
 * all ranks. Returns whether the exchange succeeded; if a rank is missing after the timeout, the communicator has
 * failed, and no device memory may be freed. staging: device memory for te_peer_info[size]. */
TE_API int te__peer_exchange_info(const te_group *g, te_peer_info *info, te_peer_info *staging, te_context *ctx) {
    const size_t one = sizeof *info, all = one * (size_t)g->size;
    const cudaStream_t stream = (cudaStream_t)ctx->stream;
    const te__nccl_op gather =
        te__nccl_op_of(TE__NCCL_all_gather, staging, staging + g->rank, (int64_t)one, ncclInt8);
    /* The last call, cudaMemcpy to the host, would wait for the all-gather without a time limit. Therefore
     * te__comm_wait_stream first waits for the all-gather, with a limit. */
    return cudaMemcpyAsync(staging + g->rank, info + g->rank, one, cudaMemcpyHostToDevice, stream) == cudaSuccess &&
           te__nccl_run(g, &gather, ctx) == TE_OK &&
           te__comm_wait_stream(g, "the exchange of addresses", ctx) == TE_OK &&
           cudaMemcpy(info, staging, all, cudaMemcpyDeviceToHost) == cudaSuccess;
}
/* Returns whether this rank can map the memory of the rank `other`, which is on the same host: `other` must be another
 * process, have a buffer of the same size, and choose the same algorithms. */
TE_API int te__peer_can_map(const te_peer_info *local, const te_peer_info *other) {
    return other->is_ready && other->process != local->process && other->max_bytes == local->max_bytes &&
           other->one_shot_bytes == local->one_shot_bytes && other->reduce_bytes == local->reduce_bytes;
}
/* Returns whether `ok` is true on all ranks. Every rank must call this function, which waits for all ranks. staging:
 * device memory for te_peer_info[size]. */
TE_API int te__peers_agree(int ok, const te_group *g, te_peer_info *staging, te_context *ctx) {
    te_peer_info info[TE_PEER_MAX_RANKS];
    memset(info, 0, sizeof info);
    info[g->rank].is_ready = ok;
    if (!te__peer_exchange_info(g, info, staging, ctx)) return 0;
    for (int r = 0; r < g->size; r++) ok &= info[r].is_ready;
    return ok;
}

/* ---- te_peer_memory: packet buffers ------------------------------------------------------------------------------ */

/* Allocates this rank's buffer, marks all slots as empty, and makes an IPC handle of the buffer. */
TE_API int te__peer_memory_allocate(te_peer_memory *p, te_peer_info *local, int rank) {
    const size_t bytes = te__peer_memory_bytes(p);
    return cudaMalloc((void **)&p->buffer[rank], bytes) == cudaSuccess &&
           cudaMemset(p->buffer[rank], 0xff, bytes) == cudaSuccess &&
           cudaMalloc((void **)&p->state, sizeof *p->state) == cudaSuccess &&
           cudaMemset(p->state, 0, sizeof *p->state) == cudaSuccess &&
           cudaHostAlloc((void **)&p->failed, sizeof *p->failed, cudaHostAllocMapped | cudaHostAllocPortable) ==
               cudaSuccess &&
           (*p->failed = 0, cudaIpcGetMemHandle(&local->memory, p->buffer[rank]) == cudaSuccess) &&
           cudaDeviceSynchronize() == cudaSuccess;
}
/* Unmaps the buffers of all other ranks. A rank may free its own buffer only when all other ranks have unmapped it. */
TE_API void te__peer_memory_unmap(te_peer_memory *p, int rank) {
    for (int r = 0; r < TE_PEER_MAX_RANKS; r++)
        if (r != rank && p->buffer[r]) (void)cudaIpcCloseMemHandle(p->buffer[r]), p->buffer[r] = 0;
}
TE_API void te__peer_memory_free(te_peer_memory *p, int rank) {
    te__peer_memory_unmap(p, rank);
    (void)cudaFree(p->buffer[rank]), (void)cudaFree(p->state), (void)cudaFreeHost(p->failed);
    (void)cudaGetLastError();
    free(p);
}
/* Allocates this rank's buffer and maps the buffers of all other ranks. Returns whether all ranks have mapped all
 * buffers. */
TE_API int te__peer_memory_map(te_peer_memory *p, te_peer_info *info, te_peer_info *staging, const te_group *g,
                               te_context *ctx) {
    te_peer_info *local = &info[g->rank];
    int ok = te__peer_memory_allocate(p, local, g->rank);
    local->is_ready = ok, local->process = (int32_t)getpid();
    local->max_bytes = p->max_bytes, local->processors = ctx->processors;
    local->one_shot_bytes = p->one_shot_bytes, local->reduce_bytes = p->reduce_bytes;
    if (!te__peer_exchange_info(g, info, staging, ctx)) return 0;
    for (int r = 0; r < g->size; r++) ok &= r == g->rank || te__peer_can_map(local, &info[r]);
    for (int r = 0; ok && r < g->size; r++)
        ok = r == g->rank || cudaIpcOpenMemHandle((void **)&p->buffer[r], info[r].memory,
                                                  cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
    local->is_ready = ok;
    if (!te__peer_exchange_info(g, info, staging, ctx)) return 0;
    p->max_blocks = TE_PEER_MAX_BLOCKS;
    for (int r = 0; r < g->size; r++)
        ok &= info[r].is_ready, p->max_blocks = (int)te_min(p->max_blocks, te__peer_max_blocks(info[r].processors));
    return ok;
}
/* Creates g->peers, the packet buffers. All ranks of the group must call this function at the same time. If a rank
 * cannot map the buffers, g->peers stays null on all ranks, which is not an error: NCCL then does the collectives. */
TE_API te_status te__peer_memory_open(te_group *g, int64_t max_bytes, te_all_reduce_algorithm algorithm,
                                      te_context *ctx) {
    te_peer_info info[TE_PEER_MAX_RANKS], *staging = 0;
    if (max_bytes <= 0 || g->hosts > 1 || g->size < 2 || g->size > TE_PEER_MAX_RANKS) return TE_OK;
    te_peer_memory *p = (te_peer_memory *)calloc(1, sizeof *p);
    TE_REQUIRE(p, ctx, TE_ERROR_MEMORY, "te_comm_create: no memory");
    memset(info, 0, sizeof info);
    te__peer_memory_size(p, max_bytes, algorithm, g->size);
    const te_status status = te_allocate(ctx, (void **)&staging, sizeof info);
    const int ok = status == TE_OK && te__peer_memory_map(p, info, staging, g, ctx);
    if (g->comm->failed) return TE_ERROR_COMM;
    te_release(ctx, staging);
    if (ok) g->peers = p;
    else te__peer_memory_free(p, g->rank);
    (void)cudaGetLastError();
    return status;
}

/* ---- te__overlap_memory: flags, slots, and the blocks of te_comm_allocate ---------------------------------------- */

TE_API void te__overlap_block_unmap(te__overlap_block *b, int rank) {
    for (int r = 0; r < TE_MAX_RANKS; r++)
        if (r != rank && b->at[r]) (void)cudaIpcCloseMemHandle(b->at[r]), b->at[r] = 0;
}
/* Allocates a block of `bytes` bytes on each rank, sets its first zero_bytes bytes to 0, and maps the blocks of all
 * other ranks. Returns whether all ranks have mapped all blocks; if not, no block stays mapped. Waits for all ranks. */
TE_API int te__overlap_block_map(te__overlap_block *b, size_t bytes, size_t zero_bytes, const te_group *g,
                              te_peer_info *staging, te_context *ctx) {
    te_peer_info info[TE_PEER_MAX_RANKS], *local = &info[g->rank];
    memset(info, 0, sizeof info), memset(b, 0, sizeof *b);
    b->bytes = bytes;
    int ok = cudaMalloc((void **)&b->at[g->rank], bytes) == cudaSuccess &&
             cudaMemset(b->at[g->rank], 0, zero_bytes) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess &&
             cudaIpcGetMemHandle(&local->memory, b->at[g->rank]) == cudaSuccess;
    local->is_ready = ok, local->process = (int32_t)getpid();
    local->max_bytes = (int64_t)bytes;
    if (!te__peer_exchange_info(g, info, staging, ctx)) return 0;
    for (int r = 0; r < g->size; r++) ok &= r == g->rank || te__peer_can_map(local, &info[r]);
    for (int r = 0; ok && r < g->size; r++)
        ok = r == g->rank || cudaIpcOpenMemHandle((void **)&b->at[r], info[r].memory,
                                                  cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
    ok = te__peers_agree(ok, g, staging, ctx);
    if (!ok) te__overlap_block_unmap(b, g->rank);
    return ok;
}
/* Returns the address of the CUDA driver's function with this name, or null if the driver has no such function. */
TE_API void *te__driver_function(const char *name) {
    void *f = 0;
    cudaDriverEntryPointQueryResult found;
    return cudaGetDriverEntryPointByVersion(name, &f, 12000, cudaEnableDefault, &found) == cudaSuccess ? f : 0;
}
/* Creates the stream for copies (m->copy_stream) and its events, and looks up the driver's stream memory operations,
 * with which a stream writes a 32-bit word or waits until a word has a value. Returns whether all of this succeeded. */
TE_API int te__overlap_memory_streams(te__overlap_memory *m) {
    int least = 0, greatest = 0;
    const int ok = cudaDeviceGetStreamPriorityRange(&least, &greatest) == cudaSuccess &&
                   cudaStreamCreateWithPriority((cudaStream_t *)&m->copy_stream, cudaStreamNonBlocking, greatest) ==
                       cudaSuccess &&
                   cudaEventCreateWithFlags((cudaEvent_t *)&m->event[0], cudaEventDisableTiming) == cudaSuccess &&
                   cudaEventCreateWithFlags((cudaEvent_t *)&m->event[1], cudaEventDisableTiming) == cudaSuccess;
    m->write = (void (*)(void))te__driver_function("cuStreamWriteValue32");
    m->wait = (void (*)(void))te__driver_function("cuStreamWaitValue32");
    return ok && m->write && m->wait;
}
/* Returns whether stream memory operations work on mapped memory of other ranks. To find out, each rank writes a word
 * to the memory of each rank, waits for the word that it wrote to its own memory, and checks the words that the other
 * ranks wrote to its memory. All ranks must call this function. */
TE_API int te__overlap_memory_probe(const te__overlap_memory *m, const te_group *g, te_peer_info *staging,
                                    te_context *ctx) {
    const cudaStream_t side = (cudaStream_t)m->copy_stream;
    uint32_t probe[TE_MAX_RANKS];
    int ok = 1;
    for (int r = 0; r < m->ranks; r++)
        ok &= te__stream_write_flag(m, te__rank_flags(m, r) + TE_FLAG_PROBE + m->rank, 1, side, ctx) == TE_OK;
    ok = ok && te__stream_wait_flag(m, te__rank_flags(m, m->rank) + TE_FLAG_PROBE + m->rank, 1, side, ctx) == TE_OK;
    ok &= cudaStreamSynchronize(side) == cudaSuccess;
    if (!te__peers_agree(ok, g, staging, ctx)) return 0;
    ok = cudaMemcpy(probe, te__rank_flags(m, m->rank) + TE_FLAG_PROBE, sizeof probe, cudaMemcpyDeviceToHost) ==
         cudaSuccess;
    for (int r = 0; r < m->ranks; r++) ok &= probe[r] == 1;
    return te__peers_agree(ok, g, staging, ctx);
}
TE_API void te__overlap_memory_free(te__overlap_memory *m) {
    for (int i = 0; i < m->blocks; i++) (void)cudaFree(m->block[i].at[m->rank]);
    for (int i = 0; i < 2; i++)
        if (m->event[i]) (void)cudaEventDestroy((cudaEvent_t)m->event[i]);
    if (m->copy_stream) (void)cudaStreamDestroy((cudaStream_t)m->copy_stream);
    (void)cudaGetLastError();
    free(m);
}
/* Creates g->memory: the flags and slots of GEMMs that overlap collectives, and of reductions by DMA engines. All ranks
 * of the group must call this function at the same time. bytes: the size of all slots together. If a rank cannot map
 * the slots, g->memory stays null on all ranks, which is not an error: NCCL then does these collectives. */
TE_API te_status te__overlap_memory_open(te_group *g, int64_t bytes, te_context *ctx) {
    const size_t flag_bytes = TE_FLAG_COUNT * sizeof(uint32_t);
    te_peer_info *staging = 0;
    if (bytes <= 0 || !g->peers) return TE_OK;
    te__overlap_memory *m = (te__overlap_memory *)calloc(1, sizeof *m);
    TE_REQUIRE(m, ctx, TE_ERROR_MEMORY, "te_comm_create: no memory");
    m->rank = g->rank, m->ranks = g->size, m->capacity = (size_t)te_round_up(bytes, TE_ALIGN), m->blocks = 1;
    m->failed[0] = &g->peers->state->failed, m->failed[1] = g->peers->failed;
    m->timeout = (uint64_t)(0.9e9 * g->comm->timeout), m->two_kernel_bytes = TE_SCATTER_TWO_KERNEL_BYTES;
    const int has_streams = te__overlap_memory_streams(m);
    const te_status status = te_allocate(ctx, (void **)&staging, TE_PEER_MAX_RANKS * sizeof *staging);
    /* A rank that could not create its streams must still exchange its memory handle, because the other ranks wait for
     * the exchange. Such a rank allocates a smaller block. Since ranks do not map blocks whose size differs from that
     * of their own block (te__peer_can_map), no rank of the group then gets symmetric memory. */
    const size_t block_bytes = flag_bytes + (has_streams ? m->capacity : 0);
    int ok = status == TE_OK && te__overlap_block_map(&m->block[0], block_bytes, flag_bytes, g, staging, ctx);
    ok = ok && has_streams && te__overlap_memory_probe(m, g, staging, ctx);
    if (g->comm->failed) return TE_ERROR_COMM;
    te_release(ctx, staging);
    if (ok) g->memory = m;
    else te__overlap_block_unmap(&m->block[0], g->rank), te__overlap_memory_free(m);
    (void)cudaGetLastError();
    return status;
}
TE_API void te__overlap_memory_unmap(te__overlap_memory *m) {
    for (int i = 0; i < m->blocks; i++) te__overlap_block_unmap(&m->block[i], m->rank);
}

/* The body of te_comm_allocate: *p becomes a block of device memory that all ranks of the tensor group map. If the
 * ranks cannot map the block, or if the table of such blocks is full, *p is device memory that only this rank can
 * access. */
TE_API te_status te__comm_allocate(te_comm *comm, void **p, size_t bytes, te_context *ctx) {
    te__overlap_memory *m = comm->tensor.memory;
    te_peer_info *staging = 0;
    te__overlap_block *b = 0;
    for (int i = 1; m && i < TE_OVERLAP_MAX_BLOCKS && !b; i++)
        if (!m->block[i].at[m->rank]) b = &m->block[i], m->blocks = (int)te_max(m->blocks, i + 1);
    if (!b) return te_allocate(ctx, p, bytes);
    TE_TRY(te_allocate(ctx, (void **)&staging, TE_PEER_MAX_RANKS * sizeof *staging));
    const int ok = te__overlap_block_map(b, bytes ? bytes : 1, 0, &comm->tensor, staging, ctx);
    if (comm->failed) return TE_ERROR_COMM;
    te_release(ctx, staging);
    *p = b->at[m->rank];
    if (ok) return TE_OK;
    memset(b, 0, sizeof *b);
    (void)cudaGetLastError();
    return *p ? TE_OK : te_allocate(ctx, p, bytes);
}
/* The body of te_comm_release. All work that uses the memory p must have finished. Each rank unmaps the blocks of the
 * other ranks, waits until the others have done the same, and only then frees its own block. */
TE_API te_status te__comm_release(te_comm *comm, void *p, te_context *ctx) {
    te__overlap_memory *m = comm->tensor.memory;
    const int i = te__overlap_block_of(m, p, 1);
    te_peer_info *staging = 0;
    if (i > 0) {
        TE_TRY(te_allocate(ctx, (void **)&staging, TE_PEER_MAX_RANKS * sizeof *staging));
        te__overlap_block_unmap(&m->block[i], m->rank);
        const int ok = te__peers_agree(1, &comm->tensor, staging, ctx);
        if (comm->failed) return TE_ERROR_COMM;
        te_release(ctx, staging);
        memset(&m->block[i], 0, sizeof m->block[i]);
        if (!ok) return te_fail(ctx, TE_ERROR_COMM, "te_comm_release: the other ranks have not come");
    }
    te_release(ctx, p);
    return TE_OK;
}
#endif

#endif
