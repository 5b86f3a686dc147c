/* rank_group.h -- groups of ranks that work together, and the collectives of these groups.
 *
 * Do this:
 *     const te_group *g = te_tensor_group(&ctx);      // a group of one rank if the context has no communicator
 *     TE_TRY(te_group_all_reduce(g, sum, part, count, TE_f32, &ctx));
 *
 * A rank is a process with a context of its own. Ranks form a grid. The ranks of a tensor group split one replica of a
 * model (tensor and sequence parallelism). The ranks of a data group hold the same part of the model's parameters, and
 * the gradients of all these ranks are summed. World rank d * tensor.size + t is rank t of its tensor group and rank d
 * of its data group. With context parallelism (te/context_parallel.h), c consecutive ranks of a data group form a
 * context group: the ranks of this group split the sequences of one batch, so a data group has size / c replicas. If a
 * model has fewer kv heads than a tensor group has ranks, c consecutive ranks of the tensor group form a copies group:
 * the ranks of this group hold the same k and v. With pipeline parallelism (te/comm/pipeline.h) each stage has such a
 * grid of its own, and a pipeline group has one rank of each stage. te_comm_create (te/comm/comm.h) creates the groups
 * with NCCL or MPI.
 */
#ifndef TE_RANK_GROUP_H
#define TE_RANK_GROUP_H

#include "context.h" /* te_context, te_status */
#include "dtype.h" /* te_dtype_bytes */

/* Whether the program contains GEMMs that overlap with collectives (te/gemm/impl/gemm_comm_overlap.h). */
#if TE_CUDA && defined(TE_COMM) && !defined(TE_KEEP_CALLS)
#define TE_HAS_COMM_OVERLAP 1
#else
#define TE_HAS_COMM_OVERLAP 0
#endif

struct te_group;

/* A message of te_group_exchange, which this rank sends to rank `peer` of the group, or receives from rank `peer`.
 * `bytes` is the size of the message, at most INT32_MAX. */
typedef struct te_transfer {
    void *data;
    int64_t bytes;
    int peer, is_received; /* is_received: 0 if `data` is sent, 1 if `data` is overwritten by the message that
                            * arrives */
} te_transfer;
/* the largest number of messages of one call of te_group_exchange */
enum { TE_EXCHANGE_MAX = 64 };
/* the largest context group, and the largest pipeline group */
enum { TE_CP_MAX_RANKS = 16, TE_PIPELINE_MAX_STAGES = 64 };
/* the number of entries of te_comm.connected, which lists NCCL operations whose connections between ranks exist already
 * (te__nccl_signature) */
enum { TE_COMM_CONNECTED = 128 };

/* The functions of a communication library. Collectives are enqueued on ctx->stream, and all ranks of a group must call
 * the collectives in the same order. `count` is the number of elements that each rank contributes or, in
 * reduce_scatter, receives. y and x must not overlap, with three exceptions, which work in place: all_reduce with y ==
 * x; all_gather with x == y + rank * count; reduce_scatter with y == x + rank * count, which leaves the rest of x
 * unchanged. In all_reduce and reduce_scatter of 16-bit numbers, NCCL and MPI round to 16 bits after each addition. */
typedef struct te_transport {
    const char *name; /* "nccl" or "mpi" */
    /* y is [size, count], where `size` is the number of ranks: row r of y becomes the vector x[count] of rank r. */
    te_status (*all_gather)(const struct te_group *g, void *y, const void *x, int64_t count, te_dtype dtype,
                            te_context *ctx);
    /* x is [size, count] on each rank, where `size` is the number of ranks. y[count] becomes row `rank` of the sum of
     * all ranks' x, where `rank` is this rank's index. */
    te_status (*reduce_scatter)(const struct te_group *g, void *y, const void *x, int64_t count, te_dtype dtype,
                                te_context *ctx);
    /* y[count] becomes the sum of x[count] over all ranks. */
    te_status (*all_reduce)(const struct te_group *g, void *y, const void *x, int64_t count, te_dtype dtype,
                            te_context *ctx);
    /* Send and receive the messages of `transfers`. Several messages from one rank to another are matched in the order
     * in which both ranks list them. */
    te_status (*exchange)(const struct te_group *g, const te_transfer *transfers, int count, te_context *ctx);
    void (*close)(struct te_group *g);
} te_transport;

/* Algorithms of an all-reduce. On CUDA, one_shot and two_shot run on symmetric memory
 * (te/comm/impl/symmetric_collectives.h). With one_shot, each rank sends its whole tensor to every other rank. With
 * two_shot, each rank adds up a part of the tensor, and sends this part of the sum to the others. */
typedef enum te_all_reduce_algorithm {
    TE_ALL_REDUCE_auto,     /* the algorithm that is expected to be the fastest: one_shot for small tensors, two_shot
                             * for larger ones, transport for tensors that do not fit into the symmetric memory */
    TE_ALL_REDUCE_one_shot, /* one_shot; tensors that are too large for one_shot use two_shot */
    TE_ALL_REDUCE_two_shot, /* two_shot; tensors that are too large for two_shot use transport */
    TE_ALL_REDUCE_transport /* NCCL on CUDA, MPI on the host */
} te_all_reduce_algorithm;

struct te_comm;
struct te_peer_memory;
struct te__overlap_memory;
typedef struct te_group {
    const char *name; /* "world", "tensor", "copies", "data", "context", "pipeline", "embedding" */
    int rank, size;
    int hosts;                     /* the number of hosts on which the ranks of the group run */
    const te_transport *transport; /* null for a group of one rank */
    void *handle;                  /* the transport's communicator */
    /* CUDA: symmetric memory, i.e. memory that all ranks of the group have mapped (te/comm/impl/symmetric_memory.h);
     * null if the group has none */
    struct te_peer_memory *peers;
    /* CUDA: memory for GEMMs that overlap with collectives (te/gemm/impl/gemm_comm_overlap.h); null if the group has
     * none */
    struct te__overlap_memory *memory;
    /* Both pointers are set for a data group that spans several hosts if config.hierarchical is set; otherwise they are
     * null. in_host: the ranks of the data group that run on this rank's host. across_hosts: one rank of each host,
     * namely the rank whose index in its in_host group equals this rank's index (te__group_reduce_levels) */
    const struct te_group *in_host, *across_hosts;
    struct te_comm *comm;
} te_group;

/* The groups to which a rank belongs. The struct must not move in memory, because the groups point to it. */
typedef struct te_comm {
    /* pipeline: one rank of each stage; all ranks of the group have the same index in their tensor groups, and the same
     * index in their data groups. embedding: the ranks of this pipeline that are in the first or in the last stage; on
     * a rank of another stage, the group contains only that rank */
    te_group world, tensor, copies, data, context, pipeline, embedding;
    te_group in_host, across_hosts; /* te_group.in_host and te_group.across_hosts of the data group */
    int host;       /* the number of this rank's host. Hosts are numbered from 0 to world.hosts - 1, in the order of the
                     * lowest world rank on each host */
    int *host_of;   /* [world.size]: the number of each rank's host */
    double timeout; /* how many seconds a rank waits for other ranks until it returns an error */
    int failed;     /* 1: a collective has failed, and the groups can no longer be used */
    char cause[192]; /* the error text of the collective that failed; errors of later calls contain it */
    int closes;     /* CUDA: 1: te_comm_destroy also frees the world group's NCCL communicator */
    void *mpi;      /* host: the thread that has initialised MPI, a te__mpi_thread; null: the caller has */
    te_context *ctx;
    void *cp_side;  /* the second stream of the context group, a te_side_stream; null if the context group has one
                     * rank */
    /* CUDA. connected: hashes of the last NCCL operations that have established the connections between their ranks
     * (te__nccl_run); an unused entry is 0. connected_at: how many such operations there have been */
    uint64_t connected[TE_COMM_CONNECTED];
    unsigned connected_at;
    void *meeting;  /* CUDA: the NCCL communicator of all ranks, from which te_comm_create splits the communicators of
                     * the groups; set only while te_comm_create runs */
} te_comm;

TE_API const te_group *te__group_of_one(void) {
    static const te_group alone = {"one rank", 0, 1, 1, 0, 0, 0, 0, 0, 0, 0};
    return &alone;
}
TE_API const te_group *te_tensor_group(const te_context *ctx) {
    return ctx && ctx->comm ? &ctx->comm->tensor : te__group_of_one();
}
/* Return the group of ranks of a tensor group that hold the same heads of k and v (te_comm_config.copies). */
TE_API const te_group *te__copies_group(const te_context *ctx) {
    return ctx && ctx->comm ? &ctx->comm->copies : te__group_of_one();
}
TE_API const te_group *te_world_group(const te_context *ctx) {
    return ctx && ctx->comm ? &ctx->comm->world : te__group_of_one();
}
TE_API const te_group *te_data_group(const te_context *ctx) {
    return ctx && ctx->comm ? &ctx->comm->data : te__group_of_one();
}
/* Return the group of ranks that split the sequences of a batch (context parallelism, te/context_parallel.h). */
TE_API const te_group *te_cp_group(const te_context *ctx) {
    return ctx && ctx->comm ? &ctx->comm->context : te__group_of_one();
}

/* Return the group of ranks of a pipeline: rank s of the group runs stage s (te/comm/pipeline.h). */
TE_API const te_group *te_pipeline_group(const te_context *ctx) {
    return ctx && ctx->comm ? &ctx->comm->pipeline : te__group_of_one();
}
/* Return the group of ranks that hold a copy of the embedding's weight if the head is tied to the embedding: the ranks
 * of the first and the last stage of a pipeline. For a rank of another stage, return a group of this rank alone. */
TE_API const te_group *te_embedding_group(const te_context *ctx) {
    return ctx && ctx->comm ? &ctx->comm->embedding : te__group_of_one();
}

enum { TE__COMM_GROUPS = 9 };
/* Return group number i of the communicator, where i is 0 to TE__COMM_GROUPS - 1. The world group is the last one,
 * because the other groups are split from it. */
TE_API te_group *te__comm_group_at(te_comm *comm, int i) {
    te_group *const groups[TE__COMM_GROUPS] = {&comm->across_hosts, &comm->in_host, &comm->embedding,
                                               &comm->pipeline,     &comm->context, &comm->data,
                                               &comm->copies,       &comm->tensor,  &comm->world};
    return groups[i];
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

/* Each function te_group_<collective> below calls the function of te_transport with the same name. In a group of one
 * rank the function copies x to y instead. Errors: TE_ERROR_NULL, TE_ERROR_SHAPE, TE_ERROR_COMM. */

/* Mark the communicator as failed, and return TE_ERROR_COMM. Call this when a collective has failed and its error text
 * is in ctx. */
TE_API te_status te__comm_failed(te_comm *comm, const te_context *ctx) {
    if (!comm->failed) snprintf(comm->cause, sizeof comm->cause, "%.190s", ctx->error);
    comm->failed = 1;
    return TE_ERROR_COMM;
}
/* Return an error if an argument of a collective is not valid, or if a collective of this rank has failed before. */
TE_API te_status te__check_group(const te_group *g, const void *y, const void *x, int64_t count, const char *what,
                                 te_context *ctx) {
    TE_TRY(te__check_context(ctx, what));
    TE_REQUIRE(g, ctx, TE_ERROR_NULL, "%s: the group is null", what);
    TE_REQUIRE(count >= 0, ctx, TE_ERROR_SHAPE, "%s: %lld elements", what, (long long)count);
    TE_REQUIRE((y && x) || !count, ctx, TE_ERROR_NULL, "%s: a pointer is null", what);
    TE_REQUIRE(!g->comm || !g->comm->failed, ctx, TE_ERROR_COMM,
               "%s: a collective of rank %d has failed before; make the communicator anew. The cause: %s", what,
               g->comm->world.rank, g->comm->cause);
    return TE_OK;
}
/* Copy x to y, which is what every collective does in a group of one rank. */
TE_API te_status te__group_copy(void *y, const void *x, int64_t count, te_dtype dtype, te_context *ctx) {
    return y == x ? TE_OK : te_copy(ctx, y, x, (size_t)count * te_dtype_bytes(dtype));
}
TE_API te_status te_group_all_gather(const te_group *g, void *y, const void *x, int64_t count, te_dtype dtype,
                                     te_context *ctx) {
    TE_TRY(te__check_group(g, y, x, count, "all_gather", ctx));
    if (te_is_fp8(dtype)) { /* an all_gather only moves bytes, so two FP8 numbers are sent as one 16-bit number */
        TE_REQUIRE(count % 2 == 0, ctx, TE_ERROR_SHAPE, "all_gather: %lld numbers in FP8, which are no pairs",
                   (long long)count);
        count /= 2, dtype = TE_bf16;
    }
    if (!g->transport || !count) return te__group_copy(y, x, count, dtype, ctx);
    return g->transport->all_gather(g, y, x, count, dtype, ctx);
}
TE_API te_status te_group_reduce_scatter(const te_group *g, void *y, const void *x, int64_t count, te_dtype dtype,
                                         te_context *ctx) {
    TE_TRY(te__check_group(g, y, x, count, "reduce_scatter", ctx));
    if (!g->transport || !count) return te__group_copy(y, x, count, dtype, ctx);
    return g->transport->reduce_scatter(g, y, x, count, dtype, ctx);
}
/* An all-reduce in two levels, over a group whose N ranks run on H hosts, m ranks on each:
 *   1. A reduce-scatter sums x over the ranks of a host. Each rank then has the sums of 1 / m of the elements.
 *   2. An all-reduce over the ranks that have the same elements, one on each host, sums these elements over the hosts.
 *   3. An all-gather within the host distributes the sums.
 * Each element is first summed over the ranks of each host and then over the hosts, each time in the order in which the
 * transport sums over a group of this size. This order depends only on `count` and on which ranks are on which host, so
 * results are bitwise reproducible. A host sends 2 (H - 1) / H times the bytes of x to other hosts; in a ring of all
 * ranks it would send 2 (N - 1) / N times the bytes of x, and by recursive doubling m log2(H) times the bytes of x. The
 * last elements, fewer than TE__LEVELS_ALIGN for each rank of a host, are summed in one level. */
enum { TE__LEVELS_ALIGN = 128, TE__LEVELS_MAX_SHARD = 1 << 27 };
TE_API te_status te__group_reduce_levels(const te_group *g, void *y, const void *x, int64_t count, te_dtype dtype,
                                         te_context *ctx) {
    const te_group *in = g->in_host;
    const int64_t size = (int64_t)te_dtype_bytes(dtype), unit = in->size * TE__LEVELS_ALIGN;
    int64_t at = 0;
    for (int64_t shard; count - at >= unit; at += in->size * shard) {
        shard = te_min((count - at) / unit * TE__LEVELS_ALIGN, TE__LEVELS_MAX_SHARD);
        char *const sums = (char *)y + at * size, *const own = sums + in->rank * shard * size;
        TE_TRY(in->transport->reduce_scatter(in, own, (const char *)x + at * size, shard, dtype, ctx));
        TE_TRY(g->across_hosts->transport->all_reduce(g->across_hosts, own, own, shard, dtype, ctx));
        TE_TRY(in->transport->all_gather(in, sums, own, shard, dtype, ctx));
    }
    if (at == count) return TE_OK;
    return g->transport->all_reduce(g, (char *)y + at * size, (const char *)x + at * size, count - at, dtype, ctx);
}
/* Tensors with fewer bytes than TE__LEVELS_MIN_BYTES are summed in one level, because latency dominates the time of
 * such a small sum, and two levels take three collectives. */
enum { TE__LEVELS_MIN_BYTES = 1 << 20 };
TE_API te_status te_group_all_reduce(const te_group *g, void *y, const void *x, int64_t count, te_dtype dtype,
                                     te_context *ctx) {
    TE_TRY(te__check_group(g, y, x, count, "all_reduce", ctx));
    if (!g->transport || !count) return te__group_copy(y, x, count, dtype, ctx);
    if (g->in_host && count >= TE__LEVELS_MIN_BYTES / (int64_t)te_dtype_bytes(dtype))
        return te__group_reduce_levels(g, y, x, count, dtype, ctx);
    return g->transport->all_reduce(g, y, x, count, dtype, ctx);
}

/* Send and receive messages: each rank lists all messages that it sends to and receives from other ranks. A message
 * that one rank lists as sent must be listed as received, with the same size, by its peer. Each rank of the group that
 * sends or receives must call this function, at the same point in its sequence of collectives. A rank cannot send a
 * message to itself. Errors: those of the collectives, and TE_ERROR_VALUE for a peer outside the group. */
TE_API te_status te_group_exchange(const te_group *g, const te_transfer *transfers, int count, te_context *ctx) {
    TE_TRY(te__check_group(g, transfers, transfers, count, "exchange", ctx));
    TE_REQUIRE(count <= TE_EXCHANGE_MAX, ctx, TE_ERROR_OVERFLOW, "exchange: %d messages, %d at most", count,
               (int)TE_EXCHANGE_MAX);
    for (int i = 0; i < count; i++) {
        const te_transfer *t = &transfers[i];
        TE_REQUIRE(t->peer >= 0 && t->peer < g->size && t->peer != g->rank, ctx, TE_ERROR_VALUE,
                   "exchange: a message between ranks %d and %d of %d", g->rank, t->peer, g->size);
        TE_REQUIRE(t->data, ctx, TE_ERROR_NULL, "exchange: a pointer is null");
        TE_REQUIRE(t->bytes > 0 && t->bytes <= INT32_MAX, ctx, TE_ERROR_OVERFLOW, "exchange: a message of %lld bytes",
                   (long long)t->bytes);
    }
    return count ? g->transport->exchange(g, transfers, count, ctx) : TE_OK;
}

#endif
