/* comm_mpi.h -- communicators on the host, with MPI. comm.h calls the functions of this file; comm_nccl.h defines the
 * same functions for CUDA. A collective returns when it is complete, or with an error after the communicator's
 * timeout. */
/* target: host */
#ifndef TE_COMM_HOST_H
#define TE_COMM_HOST_H

#include "../../core/rank_group.h" /* te_comm, te_group */
#include "comm_start.h"            /* te__comm_start, te__comm_says */

#ifdef TE_COMM
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1 /* leaves out the C++ bindings of MPI, which are not used here and would need -lmpi_cxx */
#endif
#if defined __has_include
#if !__has_include(<mpi.h>)
#error "te: -DTE_COMM needs MPI (mpi.h): compile by mpicc (Debian: apt install libopenmpi-dev), or by nvcc for NCCL"
#include <te_stops_here.h> /* this file does not exist, so the compiler stops here */
#endif
#endif
#include <mpi.h>
#include <pthread.h>
#include <sched.h>  /* sched_yield */
#include <stdlib.h> /* malloc */

typedef MPI_Comm te__comm_native;

/* The MPI state of a group; te_group.handle points to this struct. */
typedef struct te__mpi {
    MPI_Comm comm;
    /* sum operations for bf16 and f16; MPI itself has no sums of these formats */
    MPI_Op sum_bf16, sum_f16;
    int is_owned;             /* 1 if the library has made the MPI communicator, and must free it */
} te__mpi;

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

TE_API te_status te__mpi_status(const te_group *g, int error, const char *what, te_context *ctx) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (error == MPI_SUCCESS) return TE_OK;
    (void)MPI_Error_string(error, text, &length);
    (void)te_fail(ctx, TE_ERROR_COMM, "%s of the %s group, rank %d of %d: %s", what, g->name, g->rank, g->size, text);
    return g->comm ? te__comm_failed(g->comm, ctx) : TE_ERROR_COMM;
}
/* Returns the te_status for the error code of MPI that a collective of `count` elements has returned. If the ranks pass
 * different counts or call different collectives, MPI's text says only that a message was too long, or "unknown error".
 * Therefore the text of this error names differing calls as a possible cause. */
TE_API te_status te__mpi_collective_status(const te_group *g, int error, const char *what, int64_t count,
                                           te_context *ctx) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0, kind = MPI_ERR_OTHER;
    if (error == MPI_SUCCESS) return TE_OK;
    (void)MPI_Error_string(error, text, &length), (void)MPI_Error_class(error, &kind);
    const int may_differ = kind == MPI_ERR_TRUNCATE || kind == MPI_ERR_OTHER || kind == MPI_ERR_COUNT;
    const char *const hint = may_differ ? "; another rank may have another count, or another collective" : "";
    (void)te_fail(ctx, TE_ERROR_COMM, "%s of the %s group, rank %d of %d: %.80s%s, with %lld elements here", what,
                  g->name, g->rank, g->size, text, hint, (long long)count);
    return te__comm_failed(g->comm, ctx);
}
/* Waits until the request is complete, or returns an error after the timeout. While waiting, the function yields the
 * processor, because there may be more ranks than processors. result: receives MPI's status of the message;
 * MPI_STATUS_IGNORE if the status is not wanted. count: the number of elements that this rank passes. */
TE_API te_status te__mpi_wait_result(const te_group *g, MPI_Request *request, MPI_Status *result, const char *what,
                                     int64_t count, te_context *ctx) {
    const double start = MPI_Wtime(), timeout = g->comm->timeout;
    enum { POLLS_PER_YIELD = 64 };
    int done = 0;
    for (int64_t polls = 0;; polls++) {
        TE_TRY(te__mpi_collective_status(g, MPI_Test(request, &done, result), what, count, ctx));
        if (done) return TE_OK;
        if (polls % POLLS_PER_YIELD == POLLS_PER_YIELD - 1) (void)sched_yield();
        if (MPI_Wtime() - start < timeout) continue;
        (void)te_fail(ctx, TE_ERROR_COMM,
                      "%s of the %s group, rank %d of %d: another rank has not come within %g seconds", what, g->name,
                      g->rank, g->size, timeout);
        return te__comm_failed(g->comm, ctx);
    }
}
/* Like te__mpi_wait_result, but without MPI's status. error: the return value of the MPI call that started the
 * request. */
TE_API te_status te__mpi_wait(const te_group *g, int error, MPI_Request *request, const char *what, int64_t count,
                              te_context *ctx) {
    TE_TRY(te__mpi_collective_status(g, error, what, count, ctx));
    return te__mpi_wait_result(g, request, MPI_STATUS_IGNORE, what, count, ctx);
}

/* ---- collectives (te_transport) ---------------------------------------------------------------------------------- */

TE_API void te__mpi_add(void *in, void *inout, int *count, te_dtype dtype) {
    for (int i = 0; i < *count; i++) {
        const float sum = te_load(in, i, dtype) + te_load(inout, i, dtype);
        te_store(inout, i, sum, dtype);
    }
}
TE_API void te__mpi_add_bf16(void *in, void *inout, int *count, MPI_Datatype *type) {
    (void)type;
    te__mpi_add(in, inout, count, TE_bf16);
}
TE_API void te__mpi_add_f16(void *in, void *inout, int *count, MPI_Datatype *type) {
    (void)type;
    te__mpi_add(in, inout, count, TE_f16);
}
/* Sets *type and *op to MPI's type and MPI's sum operation for a dtype. 16-bit formats are sent as uint16 and summed by
 * a custom MPI_Op. */
TE_API te_status te__mpi_type(MPI_Datatype *type, MPI_Op *op, const te_group *g, te_dtype dtype, const char *what,
                              te_context *ctx) {
    const te__mpi *m = (const te__mpi *)g->handle;
    TE_REQUIRE(dtype == TE_f32 || dtype == TE_bf16 || dtype == TE_f16, ctx, TE_ERROR_DTYPE, "%s: no sums of %s", what,
               te_dtype_name(dtype));
    *type = dtype == TE_f32 ? MPI_FLOAT : MPI_UINT16_T;
    *op = dtype == TE_f32 ? MPI_SUM : dtype == TE_bf16 ? m->sum_bf16 : m->sum_f16;
    return TE_OK;
}
TE_API te_status te__mpi_count(int64_t count, const char *what, te_context *ctx) {
    TE_REQUIRE(count <= INT32_MAX, ctx, TE_ERROR_OVERFLOW, "%s: %lld elements", what, (long long)count);
    return TE_OK;
}
TE_API te_status te__mpi_all_gather(const te_group *g, void *y, const void *x, int64_t count, te_dtype dtype,
                                    te_context *ctx) {
    const int64_t bytes = count * (int64_t)te_dtype_bytes(dtype);
    const int in_place = x == (const char *)y + g->rank * bytes;
    MPI_Request request;
    TE_TRY(te__mpi_count(bytes, "all_gather", ctx));
    const int error = MPI_Iallgather(in_place ? MPI_IN_PLACE : x, (int)bytes, MPI_BYTE, y, (int)bytes, MPI_BYTE,
                                     ((const te__mpi *)g->handle)->comm, &request);
    return te__mpi_wait(g, error, &request, "all_gather", count, ctx);
}
TE_API te_status te__mpi_reduce_scatter(const te_group *g, void *y, const void *x, int64_t count, te_dtype dtype,
                                        te_context *ctx) {
    MPI_Datatype type = MPI_FLOAT;
    MPI_Op op = MPI_SUM;
    MPI_Request request;
    const size_t bytes = (size_t)count * te_dtype_bytes(dtype);
    /* 1 if y is this rank's part of x. MPI needs two distinct buffers, so in this case the result is received in a
     * temporary buffer and copied to y */
    const int in_place = y == (const char *)x + (size_t)g->rank * bytes;
    TE_TRY(te__mpi_count(count, "reduce_scatter", ctx));
    TE_TRY(te__mpi_type(&type, &op, g, dtype, "reduce_scatter", ctx));
    void *const to = in_place ? malloc(bytes) : y;
    TE_REQUIRE(to, ctx, TE_ERROR_MEMORY, "reduce_scatter: cannot allocate %zu bytes", bytes);
    const int error =
        MPI_Ireduce_scatter_block(x, to, (int)count, type, op, ((const te__mpi *)g->handle)->comm, &request);
    const te_status status = te__mpi_wait(g, error, &request, "reduce_scatter", count, ctx);
    if (!in_place) return status;
    /* after an error the buffer is not freed, because MPI may still write to the buffer */
    if (status == TE_OK) memcpy(y, to, bytes), free(to);
    return status;
}
TE_API te_status te__mpi_all_reduce(const te_group *g, void *y, const void *x, int64_t count, te_dtype dtype,
                                    te_context *ctx) {
    const size_t size = te_dtype_bytes(dtype);
    MPI_Datatype type = MPI_FLOAT;
    MPI_Op op = MPI_SUM;
    MPI_Request request;
    TE_TRY(te__mpi_type(&type, &op, g, dtype, "all_reduce", ctx));
    /* cut the transfer into pieces, because MPI's count is an int */
    for (int64_t at = 0, n; at < count; at += n) {
        n = te_min(count - at, 1 << 30);
        const int error = MPI_Iallreduce(x == y ? MPI_IN_PLACE : (const char *)x + (size_t)at * size,
                                         (char *)y + (size_t)at * size, (int)n, type, op,
                                         ((const te__mpi *)g->handle)->comm, &request);
        TE_TRY(te__mpi_wait(g, error, &request, "all_reduce", n, ctx));
    }
    return TE_OK;
}

TE_API te_status te__mpi_exchange(const te_group *g, const te_transfer *transfers, int count, te_context *ctx) {
    MPI_Request request[TE_EXCHANGE_MAX];
    MPI_Comm comm = ((const te__mpi *)g->handle)->comm;
    for (int i = 0; i < count; i++) {
        const te_transfer *t = &transfers[i];
        const int error = t->is_received ? MPI_Irecv(t->data, (int)t->bytes, MPI_BYTE, t->peer, 0, comm, &request[i])
                                         : MPI_Isend(t->data, (int)t->bytes, MPI_BYTE, t->peer, 0, comm, &request[i]);
        TE_TRY(te__mpi_collective_status(g, error, "exchange", t->bytes, ctx));
    }
    for (int i = 0; i < count; i++) {
        const te_transfer *t = &transfers[i];
        char what[48];
        MPI_Status result;
        int bytes = 0;
        snprintf(what, sizeof what, "exchange with rank %d", t->peer);
        TE_TRY(te__mpi_wait_result(g, &request[i], &result, what, t->bytes, ctx));
        if (!t->is_received) continue;
        TE_TRY(te__mpi_status(g, MPI_Get_count(&result, MPI_BYTE, &bytes), what, ctx));
        if (bytes == t->bytes) continue;
        (void)te_fail(ctx, TE_ERROR_COMM, "%s of the %s group, rank %d of %d: it has sent %d bytes, here are %lld",
                      what, g->name, g->rank, g->size, bytes, (long long)t->bytes);
        return te__comm_failed(g->comm, ctx);
    }
    return TE_OK;
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

TE_API void te__mpi_close(te_group *g) {
    te__mpi *m = (te__mpi *)g->handle;
    /* after a failure nothing is freed, because MPI would wait for the collective that failed */
    if (!g->comm->failed) {
        (void)MPI_Op_free(&m->sum_bf16);
        (void)MPI_Op_free(&m->sum_f16);
        if (m->is_owned) (void)MPI_Comm_free(&m->comm);
    }
    free(m);
    g->handle = 0;
}
TE_API const te_transport *te__comm_transport(void) {
    static const te_transport mpi = {"mpi", te__mpi_all_gather, te__mpi_reduce_scatter, te__mpi_all_reduce,
                                     te__mpi_exchange, te__mpi_close};
    return &mpi;
}
/* Opens g as the group of the ranks of `comm`, and sets comm's error handler such that MPI returns errors instead of
 * ending the process. is_owned: 1 if the library has made `comm`, which te__mpi_close then frees. */
TE_API te_status te__mpi_open(te_group *g, MPI_Comm comm, int is_owned, te_context *ctx) {
    te__mpi *m = (te__mpi *)calloc(1, sizeof *m);
    TE_REQUIRE(m, ctx, TE_ERROR_MEMORY, "te_comm_create: cannot allocate %zu bytes", sizeof *m);
    m->comm = comm, m->is_owned = is_owned, g->handle = m;
    TE_TRY(te__mpi_status(g, MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", ctx));
    TE_TRY(te__mpi_status(g, MPI_Op_create(te__mpi_add_bf16, 1, &m->sum_bf16), "MPI_Op_create", ctx));
    TE_TRY(te__mpi_status(g, MPI_Op_create(te__mpi_add_f16, 1, &m->sum_f16), "MPI_Op_create", ctx));
    TE_TRY(te__mpi_status(g, MPI_Comm_rank(comm, &g->rank), "MPI_Comm_rank", ctx));
    return te__mpi_status(g, MPI_Comm_size(comm, &g->size), "MPI_Comm_size", ctx);
}
/* The thread that calls MPI_Init_thread and, in the end, MPI_Finalize; MPI requires that the same thread calls both.
 * MPI_Init_thread waits for all ranks without a time limit. It runs in a thread of its own, so that te_comm_create can
 * stop waiting after config.timeout seconds. */
typedef struct te__mpi_thread {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wakes;
    int started;      /* 1 if MPI_Init_thread has returned */
    int ends;         /* 1: the thread is to call MPI_Finalize and end; the mutex protects this member */
    int error, level; /* error: what MPI_Init_thread returned; level: which threads may call MPI, such as
                       * MPI_THREAD_SERIALIZED */
} te__mpi_thread;
TE_API void *te__mpi_thread_run(void *p) {
    te__mpi_thread *t = (te__mpi_thread *)p;
    t->error = MPI_Init_thread(0, 0, MPI_THREAD_SERIALIZED, &t->level);
    __atomic_store_n(&t->started, 1, __ATOMIC_RELEASE);
    (void)pthread_mutex_lock(&t->mutex);
    while (!t->ends) (void)pthread_cond_wait(&t->wakes, &t->mutex);
    (void)pthread_mutex_unlock(&t->mutex);
    (void)MPI_Finalize();
    return 0;
}
/* Initialises MPI by a new thread, and waits at most comm->timeout seconds until all ranks have initialised it. After
 * an error because of this limit, the thread goes on waiting in MPI_Init_thread, perhaps for ever, so its
 * te__mpi_thread is not freed. */
TE_API te_status te__mpi_init(te_comm *comm, te_context *ctx) {
    static int gave_up; /* 1 if an earlier call ended because of the limit; its thread may still be in
                         * MPI_Init_thread */
    const double since = te__seconds();
    TE_REQUIRE(!gave_up, ctx, TE_ERROR_STATE, "te_comm_create: an earlier call has failed; a process has one try");
    te__mpi_thread *t = (te__mpi_thread *)calloc(1, sizeof *t);
    TE_REQUIRE(t, ctx, TE_ERROR_MEMORY, "te_comm_create: cannot allocate %zu bytes", sizeof *t);
    (void)pthread_mutex_init(&t->mutex, 0), (void)pthread_cond_init(&t->wakes, 0);
    if (pthread_create(&t->thread, 0, te__mpi_thread_run, t)) {
        free(t);
        return te_fail(ctx, TE_ERROR_MEMORY, "te_comm_create: cannot create a thread");
    }
    for (; !__atomic_load_n(&t->started, __ATOMIC_ACQUIRE); te__sleep_1ms()) {
        if (te__seconds() - since < comm->timeout) continue;
        (void)pthread_detach(t->thread), gave_up = 1;
        (void)te_fail(ctx, TE_ERROR_COMM, "te_comm_create, rank %d of %d: another rank has not come within %g seconds "
                      "(MPI_Init)", comm->world.rank, comm->world.size, comm->timeout);
        return te__comm_failed(comm, ctx);
    }
    comm->mpi = t;
    TE_TRY(te__mpi_status(&comm->world, t->error, "MPI_Init", ctx));
    TE_REQUIRE(t->level >= MPI_THREAD_SERIALIZED, ctx, TE_ERROR_STATE, "te_comm_create: this MPI has no "
               "MPI_THREAD_SERIALIZED; call MPI_Init before te_comm_create, which then has no time limit");
    return TE_OK;
}
/* Opens the world group, which consists of all processes that mpirun started. */
TE_API te_status te__comm_world(te_comm *comm, const te__comm_start *start, te_context *ctx) {
    int is_initialized = 0, is_finalized = 0;
    (void)start;
    (void)MPI_Finalized(&is_finalized);
    TE_REQUIRE(!is_finalized, ctx, TE_ERROR_STATE, "te_comm_create: MPI is finalized, and cannot be initialised again");
    TE_TRY(te__mpi_status(&comm->world, MPI_Initialized(&is_initialized), "MPI_Initialized", ctx));
    if (!is_initialized) TE_TRY(te__mpi_init(comm, ctx));
    const int rank = comm->world.rank, size = comm->world.size;
    TE_TRY(te__mpi_open(&comm->world, MPI_COMM_WORLD, 0, ctx));
    TE_REQUIRE(comm->world.rank == rank && comm->world.size == size, ctx, TE_ERROR_VALUE,
               "te_comm_create: MPI says rank %d of %d, the config or the environment rank %d of %d", comm->world.rank,
               comm->world.size, rank, size);
    return TE_OK;
}
/* Gathers the replies of all ranks, says[size]; on entry this rank has filled in its own element. */
TE_API te_status te__comm_gather_says(te_comm *comm, te__comm_says *says, te_context *ctx) {
    const te_group *w = &comm->world;
    MPI_Request request;
    const int error = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, says, (int)sizeof *says, MPI_BYTE,
                                     ((const te__mpi *)w->handle)->comm, &request);
    return te__mpi_wait(w, error, &request, "te_comm_create", (int64_t)sizeof *says, ctx);
}
/* Makes the caller's MPI communicator `native` the world group. MPI would end the process if MPI is not initialised or
 * if `native` is MPI_COMM_NULL, so both conditions are checked first. */
TE_API te_status te__comm_adopt(te_comm *comm, MPI_Comm native, te_context *ctx) {
    int is_initialized = 0, is_finalized = 0;
    (void)MPI_Initialized(&is_initialized), (void)MPI_Finalized(&is_finalized);
    TE_REQUIRE(is_initialized && !is_finalized, ctx, TE_ERROR_STATE, "te_comm_from_native: MPI %s",
               is_finalized ? "is finalized" : "is not initialised; call MPI_Init first");
    TE_REQUIRE(native != MPI_COMM_NULL, ctx, TE_ERROR_NULL, "te_comm_from_native: the communicator is MPI_COMM_NULL");
    return te__mpi_open(&comm->world, native, 0, ctx);
}
TE_API te_status te__comm_split(te_group *g, const te_group *of, int color, int key, te_context *ctx) {
    MPI_Comm part = MPI_COMM_NULL;
    TE_TRY(te__mpi_status(of, MPI_Comm_split(((const te__mpi *)of->handle)->comm, color, key, &part), "MPI_Comm_split",
                          ctx));
    return te__mpi_open(g, part, 1, ctx);
}
/* The host has no symmetric memory. */
TE_API te_status te__comm_map_peer_memory(te_group *g, int64_t max_bytes, te_all_reduce_algorithm algorithm,
                                          te_context *ctx) {
    return (void)g, (void)max_bytes, (void)algorithm, (void)ctx, TE_OK;
}
TE_API te_status te__comm_map_overlap_memory(te_group *g, int64_t bytes, te_context *ctx) {
    return (void)g, (void)bytes, (void)ctx, TE_OK;
}
TE_API te_status te__comm_allocate(te_comm *comm, void **p, size_t bytes, te_context *ctx) {
    return (void)comm, te_allocate(ctx, p, bytes);
}
TE_API te_status te__comm_release(te_comm *comm, void *p, te_context *ctx) {
    return (void)comm, te_release(ctx, p), TE_OK;
}
TE_API te_status te__comm_end_start(te_comm *comm, te_context *ctx) { return (void)comm, (void)ctx, TE_OK; }
TE_API void te__comm_forget_graphs(te_context *ctx) { (void)ctx; }
TE_API int te__comm_abort_all(te_comm *comm) { return (void)comm, 1; }
TE_API void te__comm_close(te_comm *comm) {
    int is_finalized = 0;
    te__mpi_thread *t = (te__mpi_thread *)comm->mpi;
    /* after a failure MPI is not finalized, because MPI_Finalize would wait for all other ranks */
    if (!t || comm->failed || MPI_Finalized(&is_finalized) != MPI_SUCCESS || is_finalized) return;
    (void)pthread_mutex_lock(&t->mutex);
    t->ends = 1;
    (void)pthread_cond_signal(&t->wakes), (void)pthread_mutex_unlock(&t->mutex);
    (void)pthread_join(t->thread, 0);
    (void)pthread_cond_destroy(&t->wakes), (void)pthread_mutex_destroy(&t->mutex);
    free(t);
}
/* Waits for all enqueued work. On the host each collective has already waited for the other ranks, so only
 * te_synchronize remains. */
TE_API te_status te_comm_synchronize(te_context *ctx) { return te_synchronize(ctx); }
#endif

#endif
