/* create.c -- communicators that cannot be made, and ranks that were started with other settings than each other: every rank returns an error that names the cause, and no
 * rank waits for ever.
 *
 *     mpirun -n 2 create late          rank 1 does not come
 *     mpirun -n 2 create refused       rank 1's config is wrong
 *     mpirun -n 2 create tensor        the ranks have other tensor groups
 *     mpirun -n 2 create divides       config.copies does not divide config.tensor
 *     mpirun -n 2 create copies        a list has k and v on other ranks than config.copies says
 *     mpirun -n 2 create native        MPI_COMM_NULL, and a communicator before MPI_Init and after MPI_Finalize
 *     mpirun -n 2 create settings      te_group_compare and te_buckets_init
 *     mpirun -n 2 create counts        the ranks call a collective with other counts
 */
#include <unistd.h>

#include "te/te.h"

TE_SEQUENTIAL(small, f32, (linear, fc, 64, 64))
TE_SEQUENTIAL(one_kv, f32, (copy_to_group, g),
              (linear, qkv, 64, 64, (shard, columns), (parts, 3), (first_part, 2), (copies, 2)),
              (attention, mix, 2, 1, 16), (linear, proj, 32, 64, (shard, rows)), (all_reduce, s))

static te_context ctx;
static te_comm comm;
static int rank, failed;

static void expect(te_status got, te_status status, const char *words, const char *what) {
    if (got == status && (got == TE_OK || strstr(te_last_error(&ctx), words))) return;
    printf("FAIL rank %d: %s: %s: %s\n", rank, what, te_status_string(got), got == TE_OK ? "" : te_last_error(&ctx));
    failed = 1;
}
static void native(void) {
    expect(te_comm_from_native(&comm, MPI_COMM_WORLD, 1, &ctx), TE_ERROR_STATE, "not initialised", "before MPI_Init");
    MPI_Init(0, 0);
    expect(te_comm_from_native(&comm, MPI_COMM_NULL, 1, &ctx), TE_ERROR_NULL, "MPI_COMM_NULL", "no communicator");
    expect(te_comm_from_native(&comm, MPI_COMM_WORLD, 1, &ctx), TE_OK, "", "MPI_COMM_WORLD");
    te_comm_destroy(&comm);
    MPI_Finalize();
    te_comm_config config = te_comm_defaults();
    expect(te_comm_create(&comm, &config, &ctx), TE_ERROR_STATE, "finalized", "te_comm_create after MPI_Finalize");
}
/* A list whose k and v two ranks hold, with a communicator that has no groups of two ranks for them. */
static void copies(void) {
    static one_kv m;
    void *params = 0;
    te_comm_config config = te_comm_defaults();
    config.tensor = 2;
    expect(te_comm_create(&comm, &config, &ctx), TE_OK, "", "te_comm_create");
    expect(te_allocate(&ctx, &params, one_kv_param_bytes()), TE_OK, "", "memory");
    expect(one_kv_bind(&m, params, 0, &ctx), TE_ERROR_STATE, "and te_comm_config.copies is 1", "bind");
    te_comm_destroy(&comm);
    te_release(&ctx, params);
}
static void settings(void) {
    static small m;
    te_model *models[1];
    te_buckets buckets;
    void *params = 0, *grads = 0;
    te_comm_config config = te_comm_defaults();
    te_buckets_config c = te_buckets_defaults();
    expect(te_comm_create(&comm, &config, &ctx), TE_OK, "", "te_comm_create");
    te_setting s[2];
    s[0] = te_setting_of("first", -0.125), s[1] = te_setting_of("second", 1e300 + rank);
    expect(te_group_compare(te_world_group(&ctx), s, 2, &ctx), TE_OK, "", "the same settings");
    s[1] = te_setting_of("second", rank ? 1.0 : 1.0 + 1e-15);
    expect(te_group_compare(te_world_group(&ctx), s, 2, &ctx), TE_ERROR_VALUE, "second is not the same on rank 0 and rank 1", "another setting");
    expect(te_allocate(&ctx, &params, small_param_bytes()), TE_OK, "", "memory");
    expect(te_allocate(&ctx, &grads, small_grad_bytes()), TE_OK, "", "memory");
    expect(small_bind(&m, params, (float *)grads, &ctx), TE_OK, "", "bind");
    models[0] = &m.model;
    c.shards = rank ? 2 : 1;
    expect(te_buckets_init(&buckets, models, 1, &c, &ctx), TE_ERROR_VALUE, "te_buckets_init: shards", "shards of one rank alone");
    c.shards = 1, c.dtype = rank ? TE_bf16 : TE_f32;
    expect(te_buckets_init(&buckets, models, 1, &c, &ctx), TE_ERROR_VALUE, "te_buckets_init: dtype", "another dtype");
    c.dtype = TE_f32;
    expect(te_buckets_init(&buckets, models, 1, &c, &ctx), TE_OK, "", "the same buckets");
    te_buckets_destroy(&buckets);
    te_comm_destroy(&comm);
    te_release(&ctx, params), te_release(&ctx, grads);
}
/* What MPI says is an unknown error, or that a message was too long; the library's text names the count. */
static void counts(void) {
    static float x[4096];
    te_comm_config config = te_comm_defaults();
    config.timeout = 3;
    expect(te_comm_create(&comm, &config, &ctx), TE_OK, "", "create");
    const te_status status = te_group_all_reduce(te_world_group(&ctx), x, x, rank ? 16 : 4096, TE_f32, &ctx);
    const char *words = rank ? "16 elements here" : "4096 elements here";
    if (status != TE_OK) expect(status, TE_ERROR_COMM, strstr(te_last_error(&ctx), "another rank has not come") ? "" : words, "all_reduce");
    printf("rank %d: %s\n", rank, status == TE_OK ? "ok" : te_last_error(&ctx));
    fflush(stdout);
    te_comm_destroy(&comm);
    sleep(4); /* the other rank may still wait */
    _exit(failed);
}
int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    te_comm_config config = te_comm_defaults();
    int size;
    te_comm_rank_from_env(&rank, &size);
    if (te_context_create(&ctx, 0, 1) != TE_OK) return 1;
    alarm(60); /* a rank that waits for ever fails the test */
    config.timeout = 20;
    if (!strcmp(mode, "late")) {
        config.timeout = 2;
        if (rank) sleep(8);
        else expect(te_comm_create(&comm, &config, &ctx), TE_ERROR_COMM, "rank 0 of 2: another rank has not come within 2 seconds (MPI_Init)", mode);
        if (!rank) printf("%s: %s\n", mode, te_last_error(&ctx));
        if (!rank) expect(te_comm_create(&comm, &config, &ctx), TE_ERROR_STATE, "a process has one try", "a second call");
        if (!rank) fflush(stdout), _exit(3); /* exit handlers of MPI would wait */
    } else if (!strcmp(mode, "refused")) {
        if (rank) config.rank = 0;
        expect(te_comm_create(&comm, &config, &ctx), TE_ERROR_VALUE, rank ? "MPI says rank 1 of 2" : "rank 1 of 2 refuses its config", mode);
    } else if (!strcmp(mode, "tensor")) {
        config.tensor = 1 + rank;
        expect(te_comm_create(&comm, &config, &ctx), TE_ERROR_VALUE, "config.tensor is 1 on rank 0, and 2 on rank 1", mode);
    } else if (!strcmp(mode, "divides")) {
        config.copies = 2;
        expect(te_comm_create(&comm, &config, &ctx), TE_ERROR_SHAPE, "config.copies is 2", mode);
    } else if (!strcmp(mode, "copies")) copies();
    else if (!strcmp(mode, "native")) native();
    else if (!strcmp(mode, "settings")) settings();
    else if (!strcmp(mode, "counts")) counts();
    else return 2;
    te_context_destroy(&ctx);
    if (!failed) printf("rank %d: %s as it should be\n", rank, mode);
    return failed;
}
