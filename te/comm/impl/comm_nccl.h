/* comm_nccl.h -- communicators on CUDA, with NCCL 2.18 or later. comm.h calls the functions of this file; comm_mpi.h
 * defines the same functions for the host. If the ranks of a group can map each other's memory, small tensors go
 * through symmetric memory instead of NCCL (symmetric_collectives.h). Collectives are enqueued on the context's stream,
 * so a pass with collectives can be recorded as a graph and replayed like any other pass.
 */
/* target: cuda */
#ifndef TE_COMM_CUDA_H
#define TE_COMM_CUDA_H

#include "../../core/rank_group.h"       /* te_comm, te_group */
#include "../../core/target.h"      /* te__cuda_call */
#include "comm_address.h"          /* te__address_pass */
#include "comm_start.h"            /* te__id_file_write, te__id_file_read, te__comm_says */
#include "symmetric_memory_cuda.h" /* te__peer_memory_open, te__overlap_memory_open, te__comm_wait_stream */

#ifdef TE_COMM
#if defined __has_include
#if !__has_include(<nccl.h>)
#error "te: -DTE_COMM needs NCCL under nvcc: pass -I with the folder of nccl.h, and link -lnccl"
#include <te_stops_here.h> /* this file does not exist, so the compiler stops here */
#endif
#endif
#include <nccl.h>
#include <pthread.h>

typedef ncclComm_t te__comm_native;

/* ---- collectives (te_transport) ---------------------------------------------------------------------------------- */

/* The arguments of an enqueued operation. A recorded pass stores only the first te__nccl_args_bytes bytes of these
 * arguments. */
typedef struct te__nccl_args { const te_group *group; te__nccl_op op; } te__nccl_args;

TE_API size_t te__nccl_args_bytes(const te__nccl_args *a) {
    return offsetof(te__nccl_args, op) + te__nccl_op_bytes(&a->op);
}

TE_API te_status te__nccl_call(const void *args, te_context *ctx) {
    const te__nccl_args *a = (const te__nccl_args *)args;
    return te__nccl_run(a->group, &a->op, ctx);
}
TE_IF_USED TE_API te_status te__nccl_enqueue(const te_group *g, void *y, const void *x, int64_t count, te_dtype dtype,
                                             te_peer_kind kind, te_context *ctx) {
    te__nccl_args a;
    /* 1 if the collective was enqueued as a kernel of symmetric_collectives.h, so that NCCL is not called */
    int taken = 0;
    TE_REQUIRE(dtype == TE_f32 || dtype == TE_bf16 || dtype == TE_f16, ctx, TE_ERROR_DTYPE, "no collectives of %s",
               te_dtype_name(dtype));
    if (g->peers) TE_TRY(te__peer_collective(&taken, g, kind, y, x, count, dtype, ctx));
    if (taken) return TE_OK;
    memset(&a, 0, sizeof a); /* sets the padding to 0 as well, because recorded passes compare arguments byte by byte */
    const ncclDataType_t type = dtype == TE_f32 ? ncclFloat32 : dtype == TE_bf16 ? ncclBfloat16 : ncclFloat16;
    a.group = g, a.op = te__nccl_op_of((te__nccl_kind)kind, y, x, count, type);
    return te__cuda_call(ctx, te__nccl_call, &a, te__nccl_args_bytes(&a));
}
TE_IF_USED TE_API te_status te__nccl_all_gather(const te_group *g, void *y, const void *x, int64_t count,
                                                te_dtype dtype, te_context *ctx) {
    return te__nccl_enqueue(g, y, x, count, dtype, TE_PEER_all_gather, ctx);
}
TE_IF_USED TE_API te_status te__nccl_reduce_scatter(const te_group *g, void *y, const void *x, int64_t count,
                                                    te_dtype dtype, te_context *ctx) {
    return te__nccl_enqueue(g, y, x, count, dtype, TE_PEER_reduce_scatter, ctx);
}
TE_IF_USED TE_API te_status te__nccl_all_reduce(const te_group *g, void *y, const void *x, int64_t count,
                                                te_dtype dtype, te_context *ctx) {
    return te__nccl_enqueue(g, y, x, count, dtype, TE_PEER_all_reduce, ctx);
}

TE_IF_USED TE_API te_status te__nccl_exchange(const te_group *g, const te_transfer *transfers, int count,
                                              te_context *ctx) {
    te__nccl_args a;
    memset(&a, 0, sizeof a); /* sets the padding to 0 as well, because recorded passes compare arguments byte by byte */
    a.group = g, a.op = te__nccl_op_of(TE__NCCL_exchange, 0, 0, count, ncclInt8);
    memcpy(a.op.transfers, transfers, (size_t)count * sizeof *transfers);
    return te__cuda_call(ctx, te__nccl_call, &a, te__nccl_args_bytes(&a));
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

/* Returns whether this library made the group's NCCL communicator, and so must free it. In a te_comm that
 * te_comm_from_native has made, the NCCL communicator of the world group belongs to the caller. */
TE_API int te__comm_is_owned(const te_group *g) { return g != &g->comm->world || g->comm->closes; }
/* Frees the symmetric memory of a group. A rank may free its own memory only when all other ranks have unmapped it. The
 * all-reduce serves only as a barrier for this: each rank calls the all-reduce after it has unmapped the memory of the
 * other ranks, and waits until the all-reduce is complete, at most until the timeout. */
TE_API void te__peer_memory_close(te_group *g) {
    const te_comm *comm = g->comm;
    const cudaStream_t stream = (cudaStream_t)comm->ctx->stream;
    te_peer_memory *p = g->peers;
    if (!p) return;
    te__overlap_memory *m = g->memory;
    g->peers = 0, g->memory = 0;
    te__peer_memory_unmap(p, g->rank);
    if (m) te__overlap_memory_unmap(m);
    const te__nccl_op barrier = te__nccl_op_of(TE__NCCL_all_reduce, p->state, p->state, 1, ncclUint32);
    if (!comm->failed && te__nccl_run(g, &barrier, comm->ctx) == TE_OK) {
        const double start = te__seconds();
        while (cudaStreamQuery(stream) == cudaErrorNotReady && te__seconds() - start < comm->timeout) te__sleep_1ms();
    }
    te__peer_memory_free(p, g->rank);
    if (m) te__overlap_memory_free(m);
}
TE_API void te__nccl_close(te_group *g) {
    te__peer_memory_close(g);
    if (!g->comm->failed && te__comm_is_owned(g)) (void)ncclCommDestroy((ncclComm_t)g->handle);
    g->handle = 0;
}
TE_IF_USED TE_API const te_transport *te__comm_transport(void) {
    static const te_transport nccl = {"nccl", te__nccl_all_gather, te__nccl_reduce_scatter, te__nccl_all_reduce,
                                      te__nccl_exchange, te__nccl_close};
    return &nccl;
}

/* ---- the start ---------------------------------------------------------------------------------------------------
 *
 * A blocking ncclCommInitRank waits without a limit for a missing rank, and cannot be aborted. Therefore the ranks
 * first create comm->meeting, a non-blocking communicator, which this thread polls until config.timeout has passed. The
 * communicators of the groups are split from comm->meeting. They are blocking, because each collective of a
 * non-blocking communicator starts a thread, for which the host would have to wait before it enqueues the next kernel.
 */

/* Waits until the operations of a non-blocking NCCL communicator are complete, at most until comm->timeout seconds
 * after the time `since` (te__seconds). what: the name of the operation, for the error's text. */
TE_API te_status te__nccl_wait(const te_group *g, ncclComm_t nccl, double since, const char *what, te_context *ctx) {
    for (ncclResult_t e = ncclInProgress;; te__sleep_1ms()) {
        TE_TRY(te__nccl_status(g, ncclCommGetAsyncError(nccl, &e), "ncclCommGetAsyncError", ctx));
        if (e != ncclInProgress) return te__nccl_status(g, e, what, ctx);
        if (te__seconds() - since >= g->comm->timeout) break;
    }
    (void)te_fail(ctx, TE_ERROR_COMM, "%s, rank %d of %d: another rank has not come within %g seconds", what,
                  g->comm->world.rank, g->comm->world.size, g->comm->timeout);
    return te__comm_failed(g->comm, ctx);
}
/* Opens comm->meeting, the non-blocking communicator of all ranks. Returns an error if not all ranks have come within
 * comm->timeout seconds after the time `since`. */
TE_API te_status te__nccl_meet(te_comm *comm, ncclUniqueId id, double since, te_context *ctx) {
    const te_group *w = &comm->world;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    /* After an error this memory is not freed, because NCCL may still write the handle, from its own thread. */
    ncclComm_t *nccl = (ncclComm_t *)calloc(1, sizeof *nccl);
    TE_REQUIRE(nccl, ctx, TE_ERROR_MEMORY, "te_comm_create: cannot allocate %zu bytes", sizeof *nccl);
    config.blocking = 0;
    const ncclResult_t e = ncclCommInitRankConfig(nccl, w->size, id, w->rank, &config);
    comm->meeting = *nccl;
    TE_TRY(te__nccl_status(w, e, "ncclCommInitRankConfig", ctx));
    TE_TRY(te__nccl_wait(w, (ncclComm_t)comm->meeting, since, "te_comm_create", ctx));
    free(nccl);
    return TE_OK;
}
/* Opens g, a group that consists of those ranks of the group `of` that pass the same `color`, in the order of their
 * `key` (as MPI_Comm_split does). */
TE_API te_status te__comm_split(te_group *g, const te_group *of, int color, int key, te_context *ctx) {
    const double since = te__seconds();
    const ncclComm_t from = (ncclComm_t)(g->comm->meeting ? g->comm->meeting : of->handle);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    /* this memory is not freed after an error, because NCCL may still write the handle, from its own thread */
    ncclComm_t *part = (ncclComm_t *)calloc(1, sizeof *part);
    TE_REQUIRE(part, ctx, TE_ERROR_MEMORY, "te_comm_create: cannot allocate %zu bytes", sizeof *part);
    config.blocking = 1;
    TE_TRY(te__nccl_status(of, ncclCommSplit(from, color, key, part, &config), "ncclCommSplit", ctx));
    TE_TRY(te__nccl_wait(of, from, since, "ncclCommSplit", ctx));
    g->handle = *part;
    free(part);
    return TE_OK;
}
/* Passes the id of rank 0 to all ranks, through config.address or config.file. Sets *has_file to 1 if this rank has
 * made the file and therefore must remove the file. */
TE_API te_status te__nccl_pass_id(ncclUniqueId *id, int *has_file, const te_group *w, const te__comm_start *start,
                                  te_context *ctx) {
    if (!w->rank) TE_TRY(te__nccl_status(w, ncclGetUniqueId(id), "ncclGetUniqueId", ctx));
    if (w->size == 1) return TE_OK;
    if (start->address) return te__address_pass(id, sizeof *id, start, ctx);
    TE_REQUIRE(start->file, ctx, TE_ERROR_NULL, "te_comm_create: config.file and config.address are null, with %d "
               "ranks", w->size);
    if (w->rank) return te__id_file_read(id, sizeof *id, start->file, start->timeout, ctx);
    TE_TRY(te__id_file_write(id, sizeof *id, start->file, start->timeout, ctx));
    *has_file = 1;
    return TE_OK;
}
TE_API te_status te__comm_world(te_comm *comm, const te__comm_start *start, te_context *ctx) {
    te_group *w = &comm->world;
    ncclUniqueId id;
    int has_file = 0;
    const double since = te__seconds();
    TE_REQUIRE(w->rank >= 0 && w->rank < w->size, ctx, TE_ERROR_VALUE, "te_comm_create: rank %d of %d", w->rank,
               w->size);
    TE_TRY(te__nccl_pass_id(&id, &has_file, w, start, ctx));
    comm->closes = 1;
    const te_status status = te__nccl_meet(comm, id, since, ctx);
    /* the file can be removed now, because all ranks have read it or have given up */
    if (has_file) te__id_file_remove(&id, sizeof id, start->file);
    TE_TRY(status);
    return te__comm_split(w, w, 0, w->rank, ctx);
}
/* Gathers the replies of all ranks, says[size]; on entry this rank has filled in its own element. After an error the
 * device memory is not freed, because NCCL may still write to this memory. */
TE_API te_status te__comm_gather_says(te_comm *comm, te__comm_says *says, te_context *ctx) {
    const te_group *w = &comm->world;
    const ncclComm_t nccl = (ncclComm_t)(comm->meeting ? comm->meeting : w->handle);
    const cudaStream_t stream = (cudaStream_t)ctx->stream;
    const size_t bytes = (size_t)w->size * sizeof *says;
    void *on_device = 0;
    TE_TRY(te_allocate(ctx, &on_device, bytes));
    te__comm_says *const mine = (te__comm_says *)on_device + w->rank;
    TE_TRY(te__cuda_status(ctx, cudaMemcpyAsync(mine, &says[w->rank], sizeof *mine, cudaMemcpyHostToDevice, stream),
                           "te_comm_create"));
    TE_TRY(te__nccl_status(w, ncclAllGather(mine, on_device, sizeof *mine, ncclInt8, nccl, stream), "ncclAllGather",
                           ctx));
    TE_TRY(te__nccl_wait(w, nccl, te__seconds(), "te_comm_create", ctx));
    TE_TRY(te__comm_wait_stream(w, "te_comm_create", ctx));
    TE_TRY(te__cuda_status(ctx, cudaMemcpy(says, on_device, bytes, cudaMemcpyDeviceToHost), "te_comm_create"));
    te_release(ctx, on_device);
    return TE_OK;
}
/* Closes comm->meeting, after all groups have been split from it. */
TE_API te_status te__comm_end_start(te_comm *comm, te_context *ctx) {
    const ncclComm_t meeting = (ncclComm_t)comm->meeting;
    if (!meeting) return TE_OK;
    TE_TRY(te__nccl_status(&comm->world, ncclCommFinalize(meeting), "ncclCommFinalize", ctx));
    TE_TRY(te__nccl_wait(&comm->world, meeting, te__seconds(), "ncclCommFinalize", ctx));
    comm->meeting = 0;
    return te__nccl_status(&comm->world, ncclCommDestroy(meeting), "ncclCommDestroy", ctx);
}
TE_API te_status te__comm_adopt(te_comm *comm, ncclComm_t native, te_context *ctx) {
    te_group *w = &comm->world;
    w->handle = native;
    TE_TRY(te__nccl_status(w, ncclCommUserRank(native, &w->rank), "ncclCommUserRank", ctx));
    return te__nccl_status(w, ncclCommCount(native, &w->size), "ncclCommCount", ctx);
}
TE_API te_status te__comm_map_peer_memory(te_group *g, int64_t max_bytes, te_all_reduce_algorithm algorithm,
                                          te_context *ctx) {
    return te__peer_memory_open(g, max_bytes, algorithm, ctx);
}
TE_API te_status te__comm_map_overlap_memory(te_group *g, int64_t bytes, te_context *ctx) {
    return te__overlap_memory_open(g, bytes, ctx);
}
/* Drops all recorded passes (core/impl/graph_replay.h), because they may hold NCCL's kernels, which must not outlive
 * the communicator. */
TE_API void te__comm_forget_graphs(te_context *ctx) {
    te_launches *s = (te_launches *)ctx->launches;
    while (s && s->replays) te__replay_evict(s, s->replays - 1);
}
/* Aborts comm->meeting if it is still open. That is the case after an error in te_comm_create. If the communicator has
 * failed, te__comm_abort_all has already aborted comm->meeting. */
TE_API void te__comm_close(te_comm *comm) {
    if (comm->meeting && !comm->failed) (void)ncclCommAbort((ncclComm_t)comm->meeting);
    comm->meeting = 0;
}

/* ---- failure ----------------------------------------------------------------------------------------------------- */

/* The arguments of the thread that aborts a failed communicator. The thread ends NCCL's kernels, and then waits for the
 * device. */
typedef struct te__comm_abort {
    /* the NCCL communicators to abort: the communicators of the groups, and comm->meeting; an element may be null */
    ncclComm_t nccl[TE__COMM_GROUPS + 1];
    int device, done; /* device: the number of the CUDA device; done: 0 while the thread runs, then 1, or -1 after an
                       * error */
} te__comm_abort;
TE_API void *te__comm_abort_run(void *p) {
    te__comm_abort *a = (te__comm_abort *)p;
    int ok = cudaSetDevice(a->device) == cudaSuccess;
    for (int i = 0; i <= TE__COMM_GROUPS; i++)
        if (a->nccl[i]) ok &= ncclCommAbort(a->nccl[i]) == ncclSuccess;
    ok &= cudaDeviceSynchronize() == cudaSuccess;
    __atomic_store_n(&a->done, ok ? 1 : -1, __ATOMIC_RELEASE);
    return 0;
}
/* Releases streams that wait for flags of failed ranks (bucket_reduce.h), by writing the flags in place of these ranks.
 * The results of the released work are undefined, as always after a failure. stream: a stream that is used only for
 * these writes; if the writes of the previous call are still in progress, the function does nothing. */
TE_API void te__comm_release_waits(const te_group *g, cudaStream_t stream, te_context *ctx) {
    const te__overlap_memory *m = g->memory;
    if (!m || cudaStreamQuery(stream) != cudaSuccess) return;
    for (int r = 0; r < m->ranks; r++)
        for (int kind = 0; kind < 2 && r != m->rank; kind++)
            (void)te__stream_write_flag(m, te__gather_flag(m, m->rank, r, kind), 1, stream, ctx);
}
/* Aborts the work of a failed communicator on the device. Returns 0 if the device does not become idle within the
 * timeout; all memory of the communicator then stays allocated until the process ends. */
TE_API int te__comm_abort_all(te_comm *comm) {
    te__comm_abort *a = (te__comm_abort *)calloc(1, sizeof *a);
    cudaStream_t stream = 0;
    pthread_t thread;
    int done = 0, least = 0, greatest = 0;
    (void)cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (!a || cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest) != cudaSuccess)
        return free(a), 0;
    a->device = comm->ctx->device;
    for (int i = 0; i < TE__COMM_GROUPS; i++) {
        const te_group *g = te__comm_group_at(comm, i);
        a->nccl[i] = te__comm_is_owned(g) ? (ncclComm_t)g->handle : 0;
    }
    a->nccl[TE__COMM_GROUPS] = (ncclComm_t)comm->meeting;
    if (pthread_create(&thread, 0, te__comm_abort_run, a)) return free(a), 0;
    (void)pthread_detach(thread);
    for (const double start = te__seconds(); !done && te__seconds() - start < comm->timeout; te__sleep_1ms()) {
        te__comm_release_waits(&comm->data, stream, comm->ctx);
        done = __atomic_load_n(&a->done, __ATOMIC_ACQUIRE);
    }
    if (!done) return 0;
    (void)cudaStreamDestroy(stream), free(a);
    return done > 0;
}

/* Waits for the enqueued work, as te_synchronize does, but returns TE_ERROR_COMM if a rank of a group has failed, or
 * if the work is not complete after the communicator's timeout. */
TE_API te_status te_comm_synchronize(te_context *ctx) {
    TE_TRY(te__check_target(ctx, "te_comm_synchronize"));
    TE_TRY(te_launch_flush(ctx));
    te_comm *comm = ctx->comm;
    if (!comm) return te_synchronize(ctx);
    const double start = te__seconds();
    for (cudaError_t e; (e = cudaStreamQuery((cudaStream_t)ctx->stream)) != cudaSuccess;) {
        if (e != cudaErrorNotReady) return te__cuda_status(ctx, e, "te_comm_synchronize");
        for (int i = 0; i < TE__COMM_GROUPS; i++) {
            const te_group *g = te__comm_group_at(comm, i);
            ncclResult_t async = ncclSuccess;
            if (!g->handle) continue; /* a group of one rank */
            TE_TRY(te__peers_check(g, ctx));
            TE_TRY(te__nccl_status(g, ncclCommGetAsyncError((ncclComm_t)g->handle, &async), "ncclCommGetAsyncError",
                                   ctx));
            TE_TRY(te__nccl_status(g, async, "a collective", ctx));
        }
        if (te__seconds() - start < comm->timeout) continue;
        (void)te_fail(ctx, TE_ERROR_COMM, "rank %d of %d: what was enqueued is not through within %g seconds",
                      comm->world.rank, comm->world.size, comm->timeout);
        return te__comm_failed(ctx->comm, ctx);
    }
    for (int i = 0; i < TE__COMM_GROUPS; i++) TE_TRY(te__peers_check(te__comm_group_at(comm, i), ctx));
    return TE_OK;
}
#endif

#endif
