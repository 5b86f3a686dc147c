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
#include "symmetric_memory_cuda.h" /* te__peer_memory_open, te__overlap_memory_open, te__peer_collective */

#ifdef TE_COMM
#include <nccl.h>
#include <pthread.h>
#include <stdio.h> /* fopen */
#include <time.h>  /* time, nanosleep */

typedef ncclComm_t te__comm_native;

TE_API te_status te__nccl_status(const te_group *g, ncclResult_t e, const char *what, te_context *ctx) {
    if (e == ncclSuccess || e == ncclInProgress) return TE_OK;
    if (g->comm) g->comm->failed = 1;
    return te_fail(ctx, TE_ERROR_COMM, "%s of the %s group, rank %d of %d: %s; %s", what, g->name, g->rank, g->size,
                   ncclGetErrorString(e), ncclGetLastError((ncclComm_t)g->handle));
}
TE_API double te__seconds(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
TE_API void te__sleep_1ms(void) {
    const struct timespec moment = {0, 1000000};
    (void)nanosleep(&moment, 0);
}

/* ---- collectives (te_transport) ---------------------------------------------------------------------------------- */

typedef struct te__nccl_args {
    const te_group *group;
    void *y;
    const void *x;
    int64_t count;
    te_dtype dtype;
    te_peer_kind kind;
} te__nccl_args;

TE_API te_status te__nccl_call(const void *args, te_context *ctx) {
    static const char *const names[] = {"all_reduce", "reduce_scatter", "all_gather"}; /* indexed by te_peer_kind */
    const te__nccl_args *a = (const te__nccl_args *)args;
    const ncclDataType_t type = a->dtype == TE_f32 ? ncclFloat32 : a->dtype == TE_bf16 ? ncclBfloat16 : ncclFloat16;
    const cudaStream_t stream = (cudaStream_t)ctx->stream;
    const ncclComm_t comm = (ncclComm_t)a->group->handle;
    const size_t count = (size_t)a->count;
    ncclResult_t e;
    if (a->kind == TE_PEER_all_gather) e = ncclAllGather(a->x, a->y, count, type, comm, stream);
    else if (a->kind == TE_PEER_reduce_scatter) e = ncclReduceScatter(a->x, a->y, count, type, ncclSum, comm, stream);
    else e = ncclAllReduce(a->x, a->y, count, type, ncclSum, comm, stream);
    return te__nccl_status(a->group, e, names[a->kind], ctx);
}
TE_IF_USED TE_API te_status te__nccl_enqueue(const te_group *g, void *y, const void *x, int64_t count, te_dtype dtype,
                                             te_peer_kind kind, te_context *ctx) {
    te__nccl_args a;
    int taken = 0; /* 1: the collective was enqueued as a kernel of symmetric_collectives.h, and NCCL is not needed */
    TE_REQUIRE(dtype == TE_f32 || dtype == TE_bf16 || dtype == TE_f16, ctx, TE_ERROR_DTYPE, "no collectives of %s",
               te_dtype_name(dtype));
    if (g->peers) TE_TRY(te__peer_collective(&taken, g, kind, y, x, count, dtype, ctx));
    if (taken) return TE_OK;
    memset(&a, 0, sizeof a); /* the padding must be 0, too, because recorded passes compare arguments byte by byte */
    a.group = g, a.y = y, a.x = x, a.count = count, a.dtype = dtype, a.kind = kind;
    return te__cuda_call(ctx, te__nccl_call, &a, sizeof a);
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

/* ---- groups ------------------------------------------------------------------------------------------------------ */

/* Returns whether this library made the group's NCCL communicator, and so must free it. In a te_comm that
 * te_comm_from_native has made, the NCCL communicator of the world group belongs to the caller. */
TE_API int te__comm_is_owned(const te_group *g) { return g != &g->comm->world || g->comm->closes; }
/* Frees the symmetric memory of a group. A rank frees its own memory only when all other ranks have unmapped this
 * memory, or after the timeout. The all-reduce serves only as a barrier: it is complete once all ranks have unmapped
 * the memory of the other ranks. */
TE_API void te__peer_memory_close(te_group *g) {
    const te_comm *comm = g->comm;
    const cudaStream_t stream = (cudaStream_t)comm->ctx->stream;
    te_peer_memory *p = g->peers;
    if (!p) return;
    te__overlap_memory *m = g->memory;
    g->peers = 0, g->memory = 0;
    te__peer_memory_unmap(p, g->rank);
    if (m) te__overlap_memory_unmap(m);
    if (!comm->failed && ncclAllReduce(p->state, p->state, 1, ncclUint32, ncclMax, (ncclComm_t)g->handle, stream) ==
                             ncclSuccess) {
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
                                      te__nccl_close};
    return &nccl;
}
/* Writes NCCL's unique id, on rank 0. Writes the id to FILE.part first and then renames FILE.part to FILE, so that the
 * other ranks never read an incomplete id. */
TE_API te_status te__nccl_write_id(const ncclUniqueId *id, const char *file, te_context *ctx) {
    char part[1024];
    TE_REQUIRE(snprintf(part, sizeof part, "%s.part", file) < (int)sizeof part, ctx, TE_ERROR_VALUE,
               "te_comm_create: the name of the file is too long");
    FILE *f = fopen(part, "wb");
    TE_REQUIRE(f, ctx, TE_ERROR_IO, "te_comm_create: cannot write %s", part);
    const int is_written = fwrite(id, sizeof *id, 1, f) == 1, is_closed = fclose(f) == 0;
    TE_REQUIRE(is_written && is_closed && rename(part, file) == 0, ctx, TE_ERROR_IO, "te_comm_create: cannot write %s",
               file);
    return TE_OK;
}
TE_API te_status te__nccl_read_id(ncclUniqueId *id, const char *file, double timeout, te_context *ctx) {
    for (const double start = te__seconds(); te__seconds() - start < timeout; te__sleep_1ms()) {
        FILE *f = fopen(file, "rb");
        if (!f) continue;
        const int is_read = fread(id, sizeof *id, 1, f) == 1;
        (void)fclose(f);
        TE_REQUIRE(is_read, ctx, TE_ERROR_FORMAT, "te_comm_create: %s holds no unique id of NCCL", file);
        return TE_OK;
    }
    return te_fail(ctx, TE_ERROR_COMM, "te_comm_create: rank 0 has not written %s within %g seconds", file, timeout);
}
TE_API te_status te__comm_world(te_comm *comm, const char *file, te_context *ctx) {
    te_group *w = &comm->world;
    ncclComm_t nccl = 0;
    ncclUniqueId id;
    TE_REQUIRE(w->rank >= 0 && w->rank < w->size, ctx, TE_ERROR_VALUE, "te_comm_create: rank %d of %d", w->rank,
               w->size);
    TE_REQUIRE(file || w->size == 1, ctx, TE_ERROR_NULL, "te_comm_create: config.file is null, with %d ranks", w->size);
    if (!w->rank) {
        TE_TRY(te__nccl_status(w, ncclGetUniqueId(&id), "ncclGetUniqueId", ctx));
        if (w->size > 1) TE_TRY(te__nccl_write_id(&id, file, ctx));
    } else TE_TRY(te__nccl_read_id(&id, file, comm->timeout, ctx));
    TE_TRY(te__nccl_status(w, ncclCommInitRank(&nccl, w->size, id, w->rank), "ncclCommInitRank", ctx));
    w->handle = nccl, comm->closes = 1;
    if (!w->rank && w->size > 1) (void)remove(file); /* the file is no longer needed: ncclCommInitRank has waited until
                                                      * all ranks had read it */
    return TE_OK;
}
/* NCCL has no communicator before all ranks have come, so the ranks cannot exchange whether they accept their configs.
 */
TE_API te_status te__comm_agree(te_comm *comm, int tensor, te_status status, te_context *ctx) {
    return (void)comm, (void)tensor, (void)ctx, status;
}
TE_API te_status te__comm_adopt(te_comm *comm, ncclComm_t native, te_context *ctx) {
    te_group *w = &comm->world;
    w->handle = native;
    TE_TRY(te__nccl_status(w, ncclCommUserRank(native, &w->rank), "ncclCommUserRank", ctx));
    return te__nccl_status(w, ncclCommCount(native, &w->size), "ncclCommCount", ctx);
}
TE_API te_status te__comm_split(te_group *g, const te_group *of, int color, int key, te_context *ctx) {
    ncclComm_t part = 0;
    TE_TRY(te__nccl_status(of, ncclCommSplit((ncclComm_t)of->handle, color, key, &part, 0), "ncclCommSplit", ctx));
    g->handle = part;
    return TE_OK;
}
TE_API te_status te__comm_map_peer_memory(te_group *g, int64_t max_bytes, te_context *ctx) {
    return te__peer_memory_open(g, max_bytes, ctx);
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
TE_API void te__comm_close(te_comm *comm) { (void)comm; }

/* ---- failure ----------------------------------------------------------------------------------------------------- */

/* The arguments of the thread that aborts a failed communicator: it ends NCCL's kernels and then waits for the
 * device. */
typedef struct te__comm_abort {
    ncclComm_t nccl[3];
    int device, done; /* device: the number of the CUDA device; done: 0 while the thread runs, then 1, or -1 after an
                       * error */
} te__comm_abort;
TE_API void *te__comm_abort_run(void *p) {
    te__comm_abort *a = (te__comm_abort *)p;
    int ok = cudaSetDevice(a->device) == cudaSuccess;
    for (int i = 0; i < 3; i++)
        if (a->nccl[i]) ok &= ncclCommAbort(a->nccl[i]) == ncclSuccess;
    ok &= cudaDeviceSynchronize() == cudaSuccess;
    __atomic_store_n(&a->done, ok ? 1 : -1, __ATOMIC_RELEASE);
    return 0;
}
/* Releases streams that wait for flags of failed ranks (bucket_reduce.h), by writing the flags in place of these ranks.
 * The results of the released work are undefined, as always after a failure. stream: a stream that is used only for
 * these writes; a call does nothing while the writes of the previous call are in progress. */
TE_API void te__comm_release_waits(const te_group *g, cudaStream_t stream, te_context *ctx) {
    const te__overlap_memory *m = g->memory;
    if (!m || cudaStreamQuery(stream) != cudaSuccess) return;
    for (int r = 0; r < m->ranks; r++)
        for (int kind = 0; kind < 2 && r != m->rank; kind++)
            (void)te__stream_write_flag(m, te__gather_flag(m, m->rank, r, kind), 1, stream, ctx);
}
/* Aborts the work of a failed communicator on the device. Returns 0 if the device does not become idle within the
 * timeout; then all memory of the communicator stays allocated until the process ends. */
TE_API int te__comm_abort_all(te_comm *comm) {
    const te_group *const group[3] = {&comm->data, &comm->tensor, &comm->world};
    te__comm_abort *a = (te__comm_abort *)calloc(1, sizeof *a);
    cudaStream_t stream = 0;
    pthread_t thread;
    int done = 0, least = 0, greatest = 0;
    (void)cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (!a || cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest) != cudaSuccess)
        return free(a), 0;
    a->device = comm->ctx->device;
    for (int i = 0; i < 3; i++) a->nccl[i] = te__comm_is_owned(group[i]) ? (ncclComm_t)group[i]->handle : 0;
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

/* Do what te_synchronize does (wait for the enqueued work), but return TE_ERROR_COMM if a rank of a group has failed,
 * or when the communicator's timeout has passed. */
TE_API te_status te_comm_synchronize(te_context *ctx) {
    TE_TRY(te__check_target(ctx, "te_comm_synchronize"));
    TE_TRY(te_launch_flush(ctx));
    const te_comm *comm = ctx->comm;
    if (!comm) return te_synchronize(ctx);
    const double start = te__seconds();
    const te_group *const group[3] = {&comm->world, &comm->tensor, &comm->data};
    for (cudaError_t e; (e = cudaStreamQuery((cudaStream_t)ctx->stream)) != cudaSuccess;) {
        if (e != cudaErrorNotReady) return te__cuda_status(ctx, e, "te_comm_synchronize");
        for (int i = 0; i < 3; i++) {
            TE_TRY(te__peers_check(group[i], ctx));
            ncclResult_t async = ncclSuccess;
            TE_TRY(te__nccl_status(group[i], ncclCommGetAsyncError((ncclComm_t)group[i]->handle, &async),
                                   "ncclCommGetAsyncError", ctx));
            TE_TRY(te__nccl_status(group[i], async, "a collective", ctx));
        }
        if (te__seconds() - start < comm->timeout) continue;
        ctx->comm->failed = 1;
        return te_fail(ctx, TE_ERROR_COMM, "rank %d of %d: what was enqueued is not through within %g seconds",
                       comm->world.rank, comm->world.size, comm->timeout);
    }
    for (int i = 0; i < 3; i++) TE_TRY(te__peers_check(group[i], ctx));
    return TE_OK;
}
#endif

#endif
