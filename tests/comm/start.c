/* start.c -- te_comm_create on CUDA where ranks do not come: each call ends by the timeout, with an error that says why, and the id file goes. On one GPU.
 *
 *     start alone      one rank of one: a communicator, collectives and a captured pass; twice
 *     start missing    rank 0 of two, whose rank 1 does not come
 *     start no_file    rank 1 of two, whose rank 0 does not come
 *     start dead       rank 1 of two, with the id of a rank 0 that was killed
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "te/te.h"

#if !TE_CUDA
int main(void) { return puts("for CUDA: MPI_Init itself waits for all ranks") < 0; }
#else

enum { TIMEOUT = 4, COUNT = 1000 };

static te_context ctx;
static te_comm comm;
static char file[] = "/tmp/te_start_XXXXXX";

static double seconds(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
static int fails(const char *what) {
    printf("FAIL %s: %s\n", what, te_last_error(&ctx));
    return 1;
}
static te_comm_config config_of(int rank, int size) {
    te_comm_config c = te_comm_defaults();
    c.rank = rank, c.size = size, c.timeout = TIMEOUT, c.file = file;
    return c;
}
/* A communicator of one rank, split from the one by which the ranks meet; its groups collect as they should. */
static int alone(void) {
    const te_comm_config config = config_of(0, 1);
    for (int round = 0; round < 2; round++) {
        float host[COUNT], *x = 0;
        double sum = 0;
        const double start = seconds();
        if (te_comm_create(&comm, &config, &ctx) != TE_OK) return fails("create");
        const double took = seconds() - start;
        for (int i = 0; i < COUNT; i++) host[i] = (float)i;
        if (te_allocate(&ctx, (void **)&x, sizeof host) != TE_OK || te_copy(&ctx, x, host, sizeof host) != TE_OK) return fails("memory");
        const te_group *const groups[] = {&comm.world, &comm.tensor, &comm.data};
        for (int i = 0; i < 9; i++)
            if (groups[i % 3]->transport->all_reduce(groups[i % 3], x, x, COUNT, TE_f32, &ctx) != TE_OK) return fails("all_reduce");
        if (te_comm_synchronize(&ctx) != TE_OK || te_copy(&ctx, host, x, sizeof host) != TE_OK || te_synchronize(&ctx) != TE_OK) return fails("synchronize");
        for (int i = 0; i < COUNT; i++) sum += host[i];
        te_release(&ctx, x);
        te_comm_destroy(&comm);
        if (sum != COUNT * (COUNT - 1) / 2) return fails("the sum");
        printf("ok: one rank, created in %.2f s, destroyed after %.2f s\n", took, seconds() - start);
    }
    return 0;
}
/* te_comm_create of `config`, which must end by the timeout. `late`: how much later the whole, with the abort of what NCCL waits for, may be. */
static int ends(const te_comm_config *config, const char *words, double late) {
    const double start = seconds();
    const te_status status = te_comm_create(&comm, config, &ctx);
    const double took = seconds() - start;
    printf("rank %d of %d after %.2f s: %s: %s\n", config->rank, config->size, took, te_status_string(status), te_last_error(&ctx));
    if (status != TE_ERROR_COMM || !strstr(te_last_error(&ctx), words)) return fails("another error is due");
    if (took > config->timeout + late) return fails("that was too late");
    if (access(file, F_OK) == 0 && !config->rank) return fails("the id file is still there");
    return 0;
}
/* Another process makes an id and its file, and is killed; then nobody listens at the id's address. */
static int make_dead_file(void) {
    const pid_t child = fork();
    int status = 0;
    if (child == 0) {
        ncclUniqueId id;
        te_context other;
        memset(&other, 0, sizeof other);
        if (ncclGetUniqueId(&id) != ncclSuccess || te__id_file_write(&id, sizeof id, file, TIMEOUT, &other) != TE_OK) _exit(2);
        (void)kill(getpid(), SIGKILL);
    }
    return child < 0 || waitpid(child, &status, 0) != child || !WIFSIGNALED(status);
}
int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    const int fd = mkstemp(file);
    if (fd < 0 || close(fd) || remove(file)) return 2;
    if (!strcmp(mode, "dead") && make_dead_file()) return puts("FAIL: no id"), 1;
    if (te_context_create(&ctx, 0, 1) != TE_OK) return puts(te_last_error(&ctx)), 77;
    int failed = 2;
    const te_comm_config first = config_of(0, 2), second = config_of(1, 2);
    alarm(60);
    if (!strcmp(mode, "alone")) failed = alone();
    else if (!strcmp(mode, "missing")) failed = ends(&first, "another rank has not come within 4 seconds", 2 * TIMEOUT);
    else if (!strcmp(mode, "no_file")) failed = ends(&second, "rank 0 has not made it", 1);
    else if (!strcmp(mode, "dead")) failed = ends(&second, "te_comm_create", 2 * TIMEOUT);
    (void)remove(file);
    if (!failed) printf("ok: %s\n", mode);
    fflush(stdout);
    _exit(failed); /* NCCL's exit handlers may wait for what was aborted */
}
#endif
