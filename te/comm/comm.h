/* comm.h -- communicators: which ranks there are, and the groups that they form (te/core/group.h), by NCCL on CUDA and
 * by MPI on the host. Compile with -DTE_COMM and link -lnccl, or what `mpicc -showme` says.
 *
 * Do this, in each of the processes that `mpirun -n 4` starts:
 *     te_comm_config config = te_comm_defaults();     // rank and size: of the launcher's environment
 *     config.tensor = 2;                              // 2 ranks share each replica of the model: 2 x 2
 *     config.file = "/tmp/run-17";                    // CUDA: where rank 0 leaves NCCL's unique id; not there yet
 *     TE_TRY(te_context_create(&ctx, device, seed));  // the same seed on all ranks
 *     TE_TRY(te_comm_create(&comm, &config, &ctx));   // before models are bound and optimizers made
 *     ... each step: forward, backward, te_reduce_gradients, te_adamw_step
 *     te_comm_destroy(&comm);                         // before te_context_destroy, behind te_graph_destroy
 *
 * A call that waits for other ranks gives up after `timeout` seconds with TE_ERROR_COMM; so does one in whose group a
 * rank has failed. On the host that is each collective, on CUDA te_comm_synchronize. Then the communicator is of no use
 * any more: the process saves what it has and ends.
 */
#ifndef TE_COMM_COMM_H
#define TE_COMM_COMM_H

#include <stdlib.h> /* getenv */

#include "../core/group.h"  /* te_comm, te_group */
#include "../core/target.h" /* te_check_target */

typedef struct te_comm_config {
    int rank, size;   /* of all processes; -1 and 0: what the launcher says (mpirun, srun, torchrun) */
    int tensor;       /* ranks of a tensor group; size is a multiple of it */
    const char *file; /* CUDA: a path that all ranks see, and that does not exist when the first one comes */
    double timeout;   /* seconds */
    /* CUDA: bytes of the largest tensor whose collectives go through memory that the ranks of a group map; 0: all go by
     * NCCL. Each group of 2 to 8 ranks takes four times as much of the device, that of all ranks 64 MiB at most, if all
     * of them can map it: processes of one host that see each other's devices. */
    int64_t peer_bytes;
    /* CUDA, Hopper: bytes of the largest tensor that a product gathers or scatters while it runs
     * (te/gemm/gemm_ranks.h); 0, the default: none does. Where the ranks of a tensor group map each other's memory
     * (peer_bytes is not 0) each takes as much of its device. */
    int64_t overlap_bytes;
} te_comm_config;

enum { TE_PEER_BYTES = 16 << 20 }; /* on two H200s no more than NCCL takes */

/* All ranks replicas of each other, 60 seconds. */
TE_API te_comm_config te_comm_defaults(void) {
    te_comm_config c;
    c.rank = -1, c.size = 0, c.tensor = 1, c.file = 0, c.timeout = 60.0, c.peer_bytes = TE_PEER_BYTES;
    c.overlap_bytes = 0;
    return c;
}
TE_API int te__env_number(const char *const *names, int otherwise) {
    for (; *names; names++) {
        const char *text = getenv(*names);
        if (text && *text) return (int)strtol(text, 0, 10);
    }
    return otherwise;
}
/* Rank and size as the launcher has put them into the environment: Open MPI, MPICH, Slurm, torchrun; else 0 of 1. A
 * process picks its device by them. */
TE_API void te_comm_launched(int *rank, int *size) {
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK", 0},
                             *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "WORLD_SIZE", 0};
    *rank = te__env_number(ranks, 0), *size = te__env_number(sizes, 1);
}

#ifdef TE_COMM
#if TE_CUDA
#include "comm_cuda.h" /* te__comm_world, te__comm_split */
#else
#include "comm_host.h" /* the same */
#endif

/* Say which group a communicator is, without its handle. */
TE_IF_USED TE_API void te__comm_group(te_group *g, te_comm *comm, const char *name, int rank, int size) {
    g->name = name, g->rank = rank, g->size = size, g->transport = te__comm_transport(), g->handle = 0, g->comm = comm;
    g->peers = 0, g->memory = 0;
}
/* Let all that has been enqueued run, forget graphs that hold collectives, and free the groups. Of a communicator that
 * has failed what was enqueued ends with any result; on CUDA, where the device has not come to rest within the timeout,
 * its groups and their memory stay until the process ends. */
TE_API void te_comm_destroy(te_comm *comm) {
    if (!comm || !comm->ctx) return;
    te_group *const group[3] = {&comm->data, &comm->tensor, &comm->world};
    if (!comm->failed) (void)te_synchronize(comm->ctx);
    te__comm_forget(comm->ctx);
    const int rests = !comm->failed || te__comm_end(comm);
    for (int i = 0; rests && i < 3; i++)
        if (group[i]->handle) group[i]->transport->close(group[i]);
    te__comm_close(comm);
    comm->ctx->comm = 0;
    memset(comm, 0, sizeof *comm);
}
/* The grid of comm->world, whose handle is there. */
TE_IF_USED TE_API te_status te__comm_grid(te_comm *comm, const te_comm_config *config, te_context *ctx) {
    const int tensor = config->tensor;
    const int64_t peer_bytes = config->peer_bytes;
    te_group *w = &comm->world;
    TE_REQUIRE(tensor > 0 && w->size % tensor == 0, ctx, TE_ERROR_SHAPE,
               "te_comm_create: %d ranks are not shared out evenly among tensor groups of %d", w->size, tensor);
    te__comm_group(&comm->tensor, comm, "tensor", w->rank % tensor, tensor);
    te__comm_group(&comm->data, comm, "data", w->rank / tensor, w->size / tensor);
    TE_TRY(te__comm_split(&comm->tensor, w, w->rank / tensor, w->rank % tensor, ctx));
    TE_TRY(te__comm_split(&comm->data, w, w->rank % tensor, w->rank / tensor, ctx));
    TE_TRY(te__comm_map(w, te_min(peer_bytes, TE_PEER_BYTES), ctx)); /* numbers, and checkpoints */
    TE_TRY(te__comm_map(&comm->tensor, peer_bytes, ctx));
    TE_TRY(te__comm_map(&comm->data, peer_bytes, ctx));
    return te__comm_overlap(&comm->tensor, config->overlap_bytes, ctx);
}
TE_API te_status te__comm_begin(te_comm *comm, double timeout, te_context *ctx) {
    TE_TRY(te_check_target(ctx, "te_comm_create"));
    TE_REQUIRE(comm, ctx, TE_ERROR_NULL, "te_comm_create: the communicator is null");
    TE_REQUIRE(!ctx->comm, ctx, TE_ERROR_STATE, "te_comm_create: the context has a communicator; te_comm_destroy it");
    TE_REQUIRE(timeout > 0, ctx, TE_ERROR_VALUE, "te_comm_create: timeout is %g", timeout);
    memset(comm, 0, sizeof *comm);
    comm->ctx = ctx, comm->timeout = timeout;
    return TE_OK;
}
TE_API te_status te__comm_done(te_comm *comm, te_status status, te_context *ctx) {
    ctx->comm = comm;
    if (status != TE_OK) te_comm_destroy(comm);
    return status;
}

/* Of all processes that call it, at the same time. Waits for them. */
TE_IF_USED TE_API te_status te_comm_create(te_comm *comm, const te_comm_config *config, te_context *ctx) {
    int rank, size;
    TE_REQUIRE(config, ctx, TE_ERROR_NULL, "te_comm_create: the config is null");
    TE_TRY(te__comm_begin(comm, config->timeout, ctx));
    te_comm_launched(&rank, &size);
    if (config->rank >= 0) rank = config->rank;
    if (config->size > 0) size = config->size;
    te__comm_group(&comm->world, comm, "world", rank, size);
    te_status status = te__comm_world(comm, config->file, ctx);
    if (status == TE_OK) status = te__comm_grid(comm, config, ctx);
    return te__comm_done(comm, status, ctx);
}
/* Of a communicator of the caller's, which stays open: an ncclComm_t on the context's device, or an MPI_Comm. */
TE_IF_USED TE_API te_status te_comm_of(te_comm *comm, te__comm_native native, int tensor, te_context *ctx) {
    TE_TRY(te__comm_begin(comm, te_comm_defaults().timeout, ctx));
    te_comm_config config = te_comm_defaults();
    config.tensor = tensor;
    te__comm_group(&comm->world, comm, "world", 0, 1);
    te_status status = te__comm_take(comm, native, ctx);
    if (status == TE_OK) status = te__comm_grid(comm, &config, ctx);
    return te__comm_done(comm, status, ctx);
}

/* Memory for te_saved, so that what forward gathers into it and keeps overlaps a product (te/linear/impl/linear_comm_overlap.h): all
 * ranks of the tensor group call this with as many bytes, in the same order, and use it for the same. Where they cannot
 * map each other's memory, or have done so 15 times, it is memory like te_allocate's. Waits for the others. */
TE_API te_status te_comm_allocate(te_comm *comm, void **p, size_t bytes, te_context *ctx) {
    TE_TRY(te_check_target(ctx, "te_comm_allocate"));
    TE_REQUIRE(comm && p && comm->ctx == ctx, ctx, TE_ERROR_NULL,
               "te_comm_allocate: there is no pointer to set, or the communicator is not this context's");
    return te__comm_allocate(comm, p, bytes, ctx);
}
/* All ranks of the tensor group call it, before te_comm_destroy. Waits for what has been enqueued, and for them. */
TE_API te_status te_comm_release(te_comm *comm, void *p, te_context *ctx) {
    TE_TRY(te_check_target(ctx, "te_comm_release"));
    TE_REQUIRE(comm && comm->ctx == ctx, ctx, TE_ERROR_NULL, "te_comm_release: the communicator is not this context's");
    TE_TRY(te_comm_synchronize(ctx));
    return te__comm_release(comm, p, ctx);
}
#else
/* There are no other ranks to wait for. */
TE_API te_status te_comm_synchronize(te_context *ctx) { return te_synchronize(ctx); }
#endif

#endif
