/* comm.h -- communicators. A communicator has the groups of ranks to which this rank belongs: the world group, which
 * contains all ranks, the tensor, the data, the context and the pipeline group (te/core/rank_group.h). Collectives use
 * NCCL on CUDA and MPI on the host. Compile with -DTE_COMM, and link -lnccl (CUDA) or the flags that `mpicc
 * -showme` prints (host).
 *
 * Do this, in each of the processes that `mpirun -n 4` starts:
 *     te_comm_config config = te_comm_defaults();     // rank and size: from the launcher's environment
 *     config.tensor = 2;                              // 2 replicas of 2 ranks each
 *     config.file = "/shared/run-17";                 // CUDA: for NCCL's unique id; or config.address
 *     TE_TRY(te_context_create(&ctx, device, seed));  // the same seed on all ranks
 *     TE_TRY(te_comm_create(&comm, &config, &ctx));   // before models are bound and optimizers made
 *     ... each step: forward, backward, te_reduce_gradients, te_adamw_step
 *     te_comm_destroy(&comm);                         // after te_graph_destroy, before te_context_destroy
 *
 * A call that waits for other ranks returns TE_ERROR_COMM if a rank of its group has failed, or after `timeout`
 * seconds. On the host every collective waits for other ranks, so every collective can return this error. On CUDA
 * collectives are only enqueued, and te_comm_synchronize, which waits for them, returns the error. There is one
 * exception: the first collective of each kind and size connects the ranks, so this collective may wait for other ranks
 * and return the error itself. After TE_ERROR_COMM the communicator cannot be used: the process should save its state
 * and exit.
 */
#ifndef TE_COMM_COMM_H
#define TE_COMM_COMM_H

#include <stdlib.h> /* getenv */

#include "../core/rank_group.h"  /* te_comm, te_group */
#include "../core/target.h" /* te__check_target */

typedef struct te_comm_config {
    /* rank: the number of this process, from 0; size: the number of all processes. If rank is -1 or size is 0, the
     * launcher's environment variables give the value (te_comm_rank_from_env) */
    int rank, size;
    int tensor;       /* the number of ranks in a tensor group; `size` must be a multiple of `tensor` * `context` *
                       * `pipeline` */
    int copies;       /* the number of consecutive ranks of a tensor group that hold the same heads of k and v. The
                       * number is 1 or, if a model has fewer kv heads than `tensor`, `tensor` / kv heads. The number
                       * must equal the option (copies, ..) of the model's linears (docs/ranks.md) */
    int context;      /* the number of ranks in a context group, over which each sequence is split
                       * (te/context_parallel.h); 1 if sequences are not split */
    int pipeline;     /* the number of stages of a pipeline (te/comm/pipeline.h), or 1 if each rank runs whole models.
                       * The first size / pipeline ranks form the first stage */
    /* CUDA: the path of the file by which rank 0 passes NCCL's unique id to the other ranks; the file system must be
     * shared by all ranks. Rank 0 makes the file, readable only for this user, and removes it after all ranks have read
     * it. No file of this name may exist, except one that an earlier run of this user made longer than `timeout` ago. A
     * symbolic link is not followed */
    const char *file;
    /* CUDA, instead of `file`: "host:port", an address of rank 0's host. Rank 0 listens there until all ranks have
     * connected, and passes them NCCL's unique id. If `address` is null, rank 0 does not listen. Each rank must prove
     * that it knows the secret, which has at least 16 characters and is the same on all ranks; if `secret` is null, the
     * environment variable TE_COMM_SECRET is used (te/comm/impl/comm_address.h) */
    const char *address, *secret;
    /* the name of this rank's host; null stands for the system's host name. Two ranks count as being on one host if
     * their hosts have the same name and the same boot id. Set `host` if the containers of one machine have different
     * names but can map each other's memory */
    const char *host;
    /* 1 allows the ranks of a tensor group to be on different hosts, which is slow; with 0 that is an error */
    int tensor_across_hosts;
    /* with 1, all-reduces of 1 MiB and more over a data group that spans hosts, with several ranks on each host, sum
     * within each host first (te__group_reduce_levels). The default is 1 with MPI, and 0 on CUDA, where NCCL chooses
     * its algorithm by the topology */
    int hierarchical;
    /* the longest time, in seconds, that a call, such as te_comm_create, waits for other ranks */
    double timeout;
    /* CUDA: collectives on tensors of up to peer_bytes bytes go through symmetric memory, collectives on larger tensors
     * through NCCL. With 0 all collectives go through NCCL. A group gets symmetric memory if it has 2 to 8 ranks, if
     * these ranks are processes on one host, and if their devices can access each other. On each device, the tensor
     * group and the data group then take 4 * peer_bytes bytes each, and the world group at most 64 MiB. */
    int64_t peer_bytes;
    te_all_reduce_algorithm all_reduce; /* CUDA: the algorithm of all-reduces; must be the same on all ranks */
    /* CUDA, Hopper: an all-gather or a reduce-scatter of a tensor of up to overlap_bytes bytes (the rows of all ranks)
     * may overlap a GEMM (te/gemm/impl/gemm_comm_overlap.h). With 0, the default, nothing overlaps. The overlap needs
     * symmetric memory in the tensor group (peer_bytes > 0), and takes overlap_bytes bytes of each device. */
    int64_t overlap_bytes;
} te_comm_config;

/* the default of peer_bytes. On two H200s, symmetric memory is at least as fast as NCCL for tensors of up to 16 MiB */
enum { TE_PEER_DEFAULT_BYTES = 16 << 20 };

/* Returns the default config: all ranks are replicas of each other (tensor groups of one rank), and the timeout is 60
 * seconds. */
TE_API te_comm_config te_comm_defaults(void) {
    te_comm_config c;
    memset(&c, 0, sizeof c);
    c.rank = -1, c.tensor = c.copies = c.context = c.pipeline = 1, c.hierarchical = !TE_CUDA, c.timeout = 60.0;
    c.peer_bytes = TE_PEER_DEFAULT_BYTES, c.all_reduce = TE_ALL_REDUCE_auto;
    return c;
}
/* A launcher, and the environment variables that it sets. A process was started by this launcher if the three variables
 * `rank`, `size` and `also` are set. If rank and size suffice to recognise a launcher, `also` repeats `rank` or `size`.
 * local: the variable with the number of the process among the processes on its host. */
typedef struct te__launcher { const char *name, *rank, *size, *also, *local; } te__launcher;

/* Returns the launcher that has started this process, or null if there is none. Launchers are often nested (srun starts
 * torchrun, sbatch starts mpirun), and a process inherits the variables of all of them. Therefore the launchers are
 * listed from the innermost to the outermost, and the first launcher whose variables are set is taken. srun is
 * recognised by SLURM_STEP_NUM_TASKS, not by SLURM_NTASKS, which is also set in a batch script that runs as one
 * process. */
TE_API const te__launcher *te__launcher_found(void) {
    static const te__launcher launchers[] = {
        {"torchrun", "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "LOCAL_RANK"},
        {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE",
         "OMPI_COMM_WORLD_LOCAL_RANK"},
        {"MPICH", "PMI_RANK", "PMI_SIZE", "PMI_SIZE", "MPI_LOCALRANKID"},
        {"the environment", "RANK", "WORLD_SIZE", "WORLD_SIZE", "LOCAL_RANK"},
        {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"}};
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        const te__launcher *l = &launchers[i];
        const char *const set[3] = {getenv(l->rank), getenv(l->size), getenv(l->also)};
        if (set[0] && *set[0] && set[1] && *set[1] && set[2] && *set[2]) return l;
    }
    return 0;
}
/* Returns the number in an environment variable, or -1 if the variable is not a number from 0 to INT32_MAX. */
TE_API int te__env_number(const char *name) {
    const char *text = getenv(name);
    const size_t digits = text ? strspn(text, "0123456789") : 0;
    const long number = digits && digits < 11 && !text[digits] ? strtol(text, 0, 10) : -1;
    return number <= INT32_MAX ? (int)number : -1;
}
/* Reads rank and size from the environment variables that the launcher sets: torchrun, Open MPI, MPICH, others that
 * set RANK and WORLD_SIZE, srun. If variables of several launchers are set, the first one in this order is taken;
 * without a launcher rank is 0 and size is 1. If a variable is not a number, or the rank is not below the size, both
 * results are -1. Needs no context, so a process can call this first and choose the device of its context by its
 * rank. */
TE_API void te_comm_rank_from_env(int *rank, int *size) {
    const te__launcher *l = te__launcher_found();
    *rank = l ? te__env_number(l->rank) : 0, *size = l ? te__env_number(l->size) : 1;
    if (*rank < 0 || *rank >= *size) *rank = *size = -1;
}
/* Returns the number of this process among the processes on its host; if each process has its own device, this is also
 * the device's number. The number is the launcher's variable or, if the launcher has not set this variable, the rank.
 * Returns -1 if the variable is not a number. */
TE_API int te_comm_local_rank_from_env(void) {
    const te__launcher *l = te__launcher_found();
    const char *const local = l ? getenv(l->local) : 0;
    return l ? te__env_number(local && *local ? l->local : l->rank) : 0;
}

#ifdef TE_COMM
#if TE_CUDA
#include "impl/comm_nccl.h" /* te__comm_world, te__comm_split */
#else
#include "impl/comm_mpi.h" /* the same functions */
#endif

/* Fills in a group, but does not open it: its handle, which NCCL or MPI will provide, is still null. */
TE_IF_USED TE_API void te__comm_group(te_group *g, te_comm *comm, const char *name, int rank, int size) {
    g->name = name, g->rank = rank, g->size = size, g->transport = te__comm_transport(), g->handle = 0, g->comm = comm;
    g->peers = 0, g->memory = 0, g->in_host = g->across_hosts = 0, g->hosts = 1;
}
/* Waits for the enqueued work, drops all recorded passes, which may contain collectives, and frees the groups. If the
 * communicator has failed, the enqueued work is aborted instead, and the results of this work are undefined. If the
 * CUDA device does not become idle within the timeout after the abort, the groups and their memory stay allocated until
 * the process ends. */
TE_API void te_comm_destroy(te_comm *comm) {
    if (!comm || !comm->ctx) return;
    if (!comm->failed) (void)te_synchronize(comm->ctx);
    te__comm_forget_graphs(comm->ctx);
    const int is_idle = !comm->failed || te__comm_abort_all(comm);
    for (int i = 0; is_idle && i < TE__COMM_GROUPS; i++) {
        te_group *g = te__comm_group_at(comm, i);
        if (g->handle) g->transport->close(g);
    }
    if (comm->cp_side) te_side_stream_close((te_side_stream *)comm->cp_side);
    free(comm->cp_side);
    free(comm->host_of);
    te__comm_close(comm);
    comm->ctx->comm = 0;
    memset(comm, 0, sizeof *comm);
}
/* Opens the group of one kind (such as the tensor groups) to which this rank belongs. group_of: returns the number of
 * the group to which a rank belongs. */
TE_IF_USED TE_API te_status te__comm_open_group(te_group *g, const char *name, te__group_of_fn group_of,
                                                const te__grid *grid, te_comm *comm, te_context *ctx) {
    const int r = comm->world.rank;
    int size, hosts;
    const int rank = te__grid_group(&size, &hosts, group_of, grid, r);
    te__comm_group(g, comm, name, rank, size);
    g->hosts = hosts;
    return te__comm_split(g, &comm->world, group_of(grid, r), r, ctx);
}
/* Opens the pipeline and embedding groups. With one stage each of these groups has one rank. */
TE_IF_USED TE_API te_status te__comm_open_stages(te_comm *comm, const te__grid *grid, te_context *ctx) {
    te_group *p = &comm->pipeline, *e = &comm->embedding;
    if (grid->pipeline == 1) {
        te__comm_group(p, comm, "pipeline", 0, 1), te__comm_group(e, comm, "embedding", 0, 1);
        p->transport = e->transport = 0;
        return TE_OK;
    }
    TE_TRY(te__comm_open_group(p, "pipeline", te__pipeline_group_of, grid, comm, ctx));
    return te__comm_open_group(e, "embedding", te__embedding_group_of, grid, comm, ctx);
}
/* Opens the two groups of te__group_reduce_levels, comm->in_host and comm->across_hosts, if all data groups span hosts
 * and have several ranks on each host. hierarchical: config.hierarchical. */
TE_IF_USED TE_API te_status te__comm_open_levels(te_comm *comm, const te__grid *grid, int hierarchical,
                                                 te_context *ctx) {
    te__comm_group(&comm->in_host, comm, "data (on one host)", 0, 1);
    te__comm_group(&comm->across_hosts, comm, "data (across hosts)", 0, 1);
    if (!hierarchical || !te__grid_has_levels(grid)) return TE_OK;
    TE_TRY(te__comm_open_group(&comm->in_host, "data (on one host)", te__in_host_group_of, grid, comm, ctx));
    TE_TRY(te__comm_open_group(&comm->across_hosts, "data (across hosts)", te__across_hosts_group_of, grid, comm, ctx));
    comm->data.in_host = &comm->in_host, comm->data.across_hosts = &comm->across_hosts;
    return TE_OK;
}
/* Splits comm->world into the groups of the grid. */
TE_IF_USED TE_API te_status te__comm_open_groups(te_comm *comm, const te__grid *grid, int hierarchical,
                                                 te_context *ctx) {
    TE_TRY(te__comm_open_group(&comm->tensor, "tensor", te__tensor_group_of, grid, comm, ctx));
    TE_TRY(te__comm_open_group(&comm->data, "data", te__data_group_of, grid, comm, ctx));
    if (grid->copies > 1) TE_TRY(te__comm_open_group(&comm->copies, "copies", te__copies_group_of, grid, comm, ctx));
    else te__comm_group(&comm->copies, comm, "copies", 0, 1), comm->copies.transport = 0;
    TE_TRY(te__comm_open_group(&comm->context, "context", te__context_group_of, grid, comm, ctx));
    TE_TRY(te__comm_open_stages(comm, grid, ctx));
    return te__comm_open_levels(comm, grid, hierarchical, ctx);
}
/* Returns an error if the ranks of a tensor group are on different hosts. All ranks return the same result. */
TE_IF_USED TE_API te_status te__comm_check_hosts(const te_comm *comm, const te__comm_says *says, int tensor,
                                                 te_context *ctx) {
    for (int r = 0; r < comm->world.size; r++) {
        const int first = r / tensor * tensor;
        TE_REQUIRE(comm->host_of[r] == comm->host_of[first], ctx, TE_ERROR_VALUE,
                   "te_comm_create: ranks %d and %d share a replica (config.tensor is %d), but run on %s and %s; start "
                   "the ranks of a host one after the other (mpirun --map-by slot, srun --distribution=block), or set "
                   "config.tensor_across_hosts", first, r, tensor, says[first].name, says[r].name);
    }
    return TE_OK;
}
/* Compares the configs of all ranks; every rank that has opened the world group calls this function. status: whether
 * this rank accepts its config. If a rank does not accept its config, or if the numbers in its config differ from the
 * numbers in rank 0's config, all ranks return an error. Without this check, ranks would wait for each other in
 * collectives that some of them do not call. If there is no error, sets the hosts of all ranks. */
TE_IF_USED TE_API te_status te__comm_agree(te_comm *comm, const te_comm_config *config, te_status status,
                                           te_context *ctx) {
    te_group *w = &comm->world;
    if (!w->handle || comm->failed) return status;
    te__comm_says *says = (te__comm_says *)calloc((size_t)w->size, sizeof *says), *mine = says + w->rank;
    comm->host_of = (int *)calloc((size_t)w->size, sizeof *comm->host_of);
    if (!says || !comm->host_of) {
        free(says);
        return te_fail(ctx, TE_ERROR_MEMORY, "te_comm_create: cannot allocate for %d ranks", w->size);
    }
    const int numbers[TE__COMM_NUMBERS] = {config->tensor,   config->copies,              config->context,
                                           config->pipeline, config->tensor_across_hosts, config->hierarchical};
    for (int k = 0; k < TE__COMM_NUMBERS; k++) mine->numbers[k] = numbers[k];
    mine->accepts = status == TE_OK;
    te__says_host(mine, config->host);
    const te_status gathered = te__comm_gather_says(comm, says, ctx);
    /* the array `says` is not freed, because the failed collective may still write to the array */
    if (gathered != TE_OK) return status == TE_OK ? gathered : status;
    status = te__comm_compare(says, w->size, status, ctx);
    w->hosts = te__hosts_number(comm->host_of, says, w->size), comm->host = comm->host_of[w->rank];
    if (status == TE_OK && !config->tensor_across_hosts && config->tensor > 0)
        status = te__comm_check_hosts(comm, says, config->tensor, ctx);
    free(says);
    return status;
}
/* Splits comm->world, which must be open, into the other groups, and maps the symmetric memory of the world, tensor and
 * data groups. */
TE_IF_USED TE_API te_status te__comm_split_grid(te_comm *comm, const te_comm_config *config, te_context *ctx) {
    const int tensor = config->tensor, context = config->context, stages = config->pipeline;
    const int64_t peer_bytes = config->peer_bytes;
    te_group *w = &comm->world;
    TE_REQUIRE(stages > 0 && stages <= TE_PIPELINE_MAX_STAGES && w->size % stages == 0, ctx, TE_ERROR_SHAPE,
               "te_comm_create: config.pipeline is %d: it is 1 to %d and divides the number of ranks, %d", stages,
               (int)TE_PIPELINE_MAX_STAGES, w->size);
    const int ranks = w->size / stages; /* of a stage */
    TE_REQUIRE(tensor > 0 && ranks % tensor == 0, ctx, TE_ERROR_SHAPE,
               "te_comm_create: %d ranks%s cannot be divided into tensor groups of %d (config.tensor); start a "
               "multiple of it, as by mpirun -n %d", ranks, stages > 1 ? " of a stage" : "", tensor,
               stages * (tensor > 1 ? tensor : 1));
    const int copies = config->copies;
    TE_REQUIRE(copies > 0 && tensor % copies == 0, ctx, TE_ERROR_SHAPE,
               "te_comm_create: config.copies is %d: it is positive and divides config.tensor, %d", copies, tensor);
    TE_REQUIRE(context > 0 && context <= TE_CP_MAX_RANKS && ranks / tensor % context == 0, ctx, TE_ERROR_SHAPE,
               "te_comm_create: config.context is %d: it is 1 to %d and divides the ranks of a data group, %d", context,
               (int)TE_CP_MAX_RANKS, ranks / tensor);
    TE_REQUIRE(config->all_reduce >= TE_ALL_REDUCE_auto && config->all_reduce <= TE_ALL_REDUCE_transport, ctx,
               TE_ERROR_VALUE, "te_comm_create: all_reduce is %d, no algorithm", (int)config->all_reduce);
    te__grid grid;
    grid.tensor = tensor, grid.copies = copies, grid.context = context, grid.pipeline = stages, grid.size = w->size;
    grid.host_of = comm->host_of, grid.seen = (int *)calloc((size_t)w->size, sizeof *grid.seen);
    TE_REQUIRE(grid.seen, ctx, TE_ERROR_MEMORY, "te_comm_create: cannot allocate for %d ranks", w->size);
    const te_status status = te__comm_open_groups(comm, &grid, config->hierarchical, ctx);
    free(grid.seen);
    TE_TRY(status);
    TE_TRY(te__comm_end_start(comm, ctx));
    /* The size of the world group's memory is limited to the default, because the library uses the world group only
     * for the amaxes of FP8 recipes and for checkpoints. */
    TE_TRY(te__comm_map_peer_memory(w, te_min(peer_bytes, TE_PEER_DEFAULT_BYTES), config->all_reduce, ctx));
    TE_TRY(te__comm_map_peer_memory(&comm->tensor, peer_bytes, config->all_reduce, ctx));
    TE_TRY(te__comm_map_peer_memory(&comm->data, peer_bytes, config->all_reduce, ctx));
    TE_TRY(te__comm_map_overlap_memory(&comm->tensor, config->overlap_bytes, ctx));
    if (context == 1) return TE_OK;
    comm->cp_side = calloc(1, sizeof(te_side_stream));
    TE_REQUIRE(comm->cp_side, ctx, TE_ERROR_MEMORY, "te_comm_create: cannot allocate %zu bytes",
               sizeof(te_side_stream));
    return te_side_stream_open((te_side_stream *)comm->cp_side, ctx);
}
/* Checks the arguments that te_comm_create and te_comm_from_native have in common, and clears *comm. */
TE_API te_status te__comm_begin_create(te_comm *comm, double timeout, te_context *ctx) {
    TE_TRY(te__check_target(ctx, "te_comm_create"));
    TE_REQUIRE(comm, ctx, TE_ERROR_NULL, "te_comm_create: the communicator is null");
    TE_REQUIRE(!ctx->comm, ctx, TE_ERROR_STATE, "te_comm_create: the context has a communicator; te_comm_destroy it");
    TE_REQUIRE(timeout > 0, ctx, TE_ERROR_VALUE, "te_comm_create: timeout is %g", timeout);
    memset(comm, 0, sizeof *comm);
    comm->ctx = ctx, comm->timeout = timeout;
    return TE_OK;
}
TE_API te_status te__comm_finish_create(te_comm *comm, te_status status, te_context *ctx) {
    ctx->comm = comm;
    if (status != TE_OK) te_comm_destroy(comm);
    return status;
}

/* Creates a communicator. All processes must call this function at the same time, because each process waits for the
 * others. */
TE_IF_USED TE_API te_status te_comm_create(te_comm *comm, const te_comm_config *config, te_context *ctx) {
    int rank, size;
    TE_REQUIRE(config, ctx, TE_ERROR_NULL, "te_comm_create: the config is null");
    TE_TRY(te__comm_begin_create(comm, config->timeout, ctx));
    te_comm_rank_from_env(&rank, &size);
    const te__launcher *l = te__launcher_found();
    TE_REQUIRE(rank >= 0 || (config->rank >= 0 && config->size > 0), ctx, TE_ERROR_VALUE,
               "te_comm_create: %s has set %s to \"%.20s\" and %s to \"%.20s\"", l->name, l->rank, getenv(l->rank),
               l->size, getenv(l->size));
    if (config->rank >= 0) rank = config->rank;
    if (config->size > 0) size = config->size;
    te__comm_group(&comm->world, comm, "world", rank, size);
    te__comm_start start;
    start.file = config->file, start.address = config->address, start.timeout = config->timeout;
    start.secret = config->secret ? config->secret : getenv("TE_COMM_SECRET"), start.rank = rank, start.size = size;
    const te_status opened = te__comm_world(comm, &start, ctx);
    te_status status = te__comm_agree(comm, config, opened, ctx);
    if (status == TE_OK) status = te__comm_split_grid(comm, config, ctx);
    return te__comm_finish_create(comm, status, ctx);
}
/* Creates a communicator whose world group uses the caller's NCCL or MPI communicator `native`: an ncclComm_t on the
 * context's device, or an MPI_Comm. te_comm_destroy does not free the caller's communicator. tensor: the number of
 * ranks in a tensor group. */
TE_IF_USED TE_API te_status te_comm_from_native(te_comm *comm, te__comm_native native, int tensor, te_context *ctx) {
    TE_TRY(te__comm_begin_create(comm, te_comm_defaults().timeout, ctx));
    te_comm_config config = te_comm_defaults();
    config.tensor = tensor;
    te__comm_group(&comm->world, comm, "world", 0, 1);
    const te_status opened = te__comm_adopt(comm, native, ctx);
    te_status status = te__comm_agree(comm, &config, opened, ctx);
    if (status == TE_OK) status = te__comm_split_grid(comm, &config, ctx);
    return te__comm_finish_create(comm, status, ctx);
}

/* Allocates memory for te_saved.memory as a block of symmetric memory, which all ranks of the tensor group map. If
 * forward saves the result of an all_gather in such a block, the all_gather can overlap a GEMM
 * (te/linear/impl/linear_comm_overlap.h). All ranks of the group must make the same calls of this function in the same
 * order, with the same `bytes`, and use each block for the same purpose. Each call waits for the other ranks. If the
 * group has no symmetric memory, or 15 such blocks exist already, the result is ordinary memory, as from
 * te_allocate. */
TE_API te_status te_comm_allocate(te_comm *comm, void **p, size_t bytes, te_context *ctx) {
    TE_TRY(te__check_target(ctx, "te_comm_allocate"));
    TE_REQUIRE(comm && p && comm->ctx == ctx, ctx, TE_ERROR_NULL,
               "te_comm_allocate: p is null, or the communicator is not this context's");
    return te__comm_allocate(comm, p, bytes, ctx);
}
/* Frees memory that te_comm_allocate has allocated. All ranks of the tensor group must call this function, before
 * te_comm_destroy. Waits for the enqueued work and for the other ranks. */
TE_API te_status te_comm_release(te_comm *comm, void *p, te_context *ctx) {
    TE_TRY(te__check_target(ctx, "te_comm_release"));
    TE_REQUIRE(comm && comm->ctx == ctx, ctx, TE_ERROR_NULL, "te_comm_release: the communicator is not this context's");
    TE_TRY(te_comm_synchronize(ctx));
    return te__comm_release(comm, p, ctx);
}
/* Returns the algorithm of an all-reduce of `bytes` bytes over the group, on this build's target: one_shot, two_shot or
 * transport. Fused patterns with an all_reduce (te/comm/impl/fused_collective_norm.h) use the same algorithm; if the
 * result is transport, the ops of such a pattern run as separate steps. */
TE_API te_all_reduce_algorithm te_group_all_reduce_algorithm(const te_group *g, int64_t bytes) {
#if TE_CUDA
    const te_peer_algorithm a = te__peer_algorithm_of(g->peers, TE_PEER_all_reduce, bytes);
    if (a != TE_PEER_none) return a == TE_PEER_one_shot ? TE_ALL_REDUCE_one_shot : TE_ALL_REDUCE_two_shot;
#else
    (void)g, (void)bytes;
#endif
    return TE_ALL_REDUCE_transport;
}
#else
/* Without -DTE_COMM, a call of one of the functions below is a compile error, which says that the option is needed. */
#if defined __has_attribute
#if __has_attribute(unavailable)
#define TE__NEEDS_COMM_OPTION \
    __attribute__((unavailable("te: compile with -DTE_COMM, by mpicc or by nvcc .. -lnccl (docs/howto/processes.md)")))
te_status te_comm_create(te_comm *, const te_comm_config *, te_context *) TE__NEEDS_COMM_OPTION;
void te_comm_destroy(te_comm *) TE__NEEDS_COMM_OPTION;
#endif
#endif
/* Waits for all enqueued work. Without TE_COMM there is only one rank, so there are no other ranks to wait for. */
TE_API te_status te_comm_synchronize(te_context *ctx) { return te_synchronize(ctx); }
#endif

/* ---- comparing ranks --------------------------------------------------------------------------------------------- */

/* A setting that must be the same on all ranks. */
typedef struct te_setting { const char *name; double value; } te_setting;

TE_API te_setting te_setting_of(const char *name, double value) {
    te_setting s;
    s.name = name, s.value = value;
    return s;
}
/* Stores a double as four floats, each of which holds 16 bits of the double as a number from 0 to 65535. Every
 * transport copies such floats exactly. */
TE_API void te__setting_pack(float to[4], double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    for (int k = 0; k < 4; k++) to[k] = (float)(bits >> 16 * k & 0xffff);
}
/* Compares settings over the ranks of a group, by one all-gather; all ranks must pass the same number of settings. If a
 * setting differs, all ranks return TE_ERROR_VALUE, with a text that names the setting. Without this check, ranks with
 * different settings would compute different models, or call different collectives, which MPI and NCCL do not notice.
 * Waits for the other ranks. */
TE_IF_USED TE_API te_status te_group_compare(const te_group *g, const te_setting *setting, int count,
                                             te_context *ctx) {
    TE_TRY(te__check_target(ctx, "te_group_compare"));
    TE_REQUIRE(g && (setting || !count), ctx, TE_ERROR_NULL, "te_group_compare: the group or the settings are null");
    TE_REQUIRE(count >= 0 && count <= 1 << 20, ctx, TE_ERROR_SHAPE, "te_group_compare: %d settings", count);
    if (g->size == 1 || !count) return TE_OK;
    const size_t mine = 4 * (size_t)count, bytes = (size_t)g->size * mine * sizeof(float);
    float *all = (float *)calloc(1, bytes);
    void *there = 0;
    te_status status = all ? te_allocate(ctx, &there, bytes)
                           : te_fail(ctx, TE_ERROR_MEMORY, "te_group_compare: cannot allocate %zu bytes", bytes);
    float *const to = there ? (float *)there + (size_t)g->rank * mine : 0;
    for (int i = 0; status == TE_OK && i < count; i++) te__setting_pack(all + 4 * i, setting[i].value);
    if (status == TE_OK) status = te_copy(ctx, to, all, mine * sizeof(float));
    if (status == TE_OK) status = te_synchronize(ctx);
    if (status == TE_OK) status = te_group_all_gather(g, (float *)there, to, (int64_t)mine, TE_f32, ctx);
    if (status == TE_OK) status = te_comm_synchronize(ctx);
    if (status == TE_OK) status = te_copy(ctx, all, there, bytes);
    if (status == TE_OK) status = te_synchronize(ctx);
    for (int r = 1; status == TE_OK && r < g->size; r++)
        for (int i = 0; status == TE_OK && i < count; i++)
            if (memcmp(all + (size_t)r * mine + 4 * i, all + 4 * i, 4 * sizeof(float)))
                status = te_fail(ctx, TE_ERROR_VALUE, "%.60s is not the same on rank 0 and rank %d of the %s group",
                                 setting[i].name, r, g->name);
    /* after TE_ERROR_COMM this memory is not freed, because the failed collective may still write to this memory */
    if (there && status != TE_ERROR_COMM) te_release(ctx, there);
    free(all);
    return status;
}

#endif
