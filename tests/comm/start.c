/* start.c -- te_comm_create on CUDA where ranks do not come: each call ends by the timeout, with an error that says why, and the id file goes. On one GPU.
 *
 *     start alone      one rank of one: a communicator, collectives and a captured pass; twice
 *     start missing    rank 0 of two, whose rank 1 does not come
 *     start no_file    rank 1 of two, whose rank 0 does not come
 *     start dead       rank 1 of two, with the id of a rank 0 that was killed
 *     start address    rank 0 of two by an address, whose rank 1 does not come; then rank 1, whose rank 0 does not come
 *     start same       two ranks by an address, on one GPU: they meet, and NCCL, which wants a GPU for each, refuses them
 */
#include <arpa/inet.h>
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
/* A port of this machine on which nobody listens. */
static void free_address(char address[32]) {
    struct sockaddr_in at;
    socklen_t length = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET, at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) || getsockname(fd, (struct sockaddr *)&at, &length)) exit(2);
    (void)close(fd);
    snprintf(address, 32, "127.0.0.1:%d", ntohs(at.sin_port));
}
static te_comm_config by_address(int rank, const char *address) {
    te_comm_config c = config_of(rank, 2);
    c.file = 0, c.address = address, c.secret = "a secret of this test";
    return c;
}
static int not_by_address(const char *address) {
    const te_comm_config first = by_address(0, address), second = by_address(1, address);
    return ends(&first, "rank 1 has not come to rank 0 within 4 seconds", 1) || ends(&second, "rank 0 has not listened at config.address", 1);
}
/* child: the process of rank 1. Both must come as far as NCCL, whose error, if any, is not the library's of a start by an address. */
static int same_device(const char *address, pid_t child) {
    const te_comm_config config = by_address(child ? 0 : 1, address);
    const te_status status = te_comm_create(&comm, &config, &ctx);
    printf("rank %d: %s: %s\n", config.rank, te_status_string(status), status == TE_OK ? "" : te_last_error(&ctx));
    fflush(stdout);
    if (status != TE_OK && !strstr(te_last_error(&ctx), "ncclCommInitRankConfig") && !strstr(te_last_error(&ctx), "rank 0 of 2: ") &&
        !strstr(te_last_error(&ctx), "rank 1 of 2: ")) return fails("they have not met");
    int ended = 0;
    return child && (waitpid(child, &ended, 0) != child || ended);
}
int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    const int fd = mkstemp(file);
    if (fd < 0 || close(fd) || remove(file)) return 2;
    if (!strcmp(mode, "dead") && make_dead_file()) return puts("FAIL: no id"), 1;
    char address[32];
    free_address(address);
    const pid_t child = strcmp(mode, "same") ? 1 : fork(); /* before CUDA is initialised */
    if (te_context_create(&ctx, 0, 1) != TE_OK) return puts(te_last_error(&ctx)), 77;
    int failed = 2;
    const te_comm_config first = config_of(0, 2), second = config_of(1, 2);
    alarm(60);
    if (!strcmp(mode, "alone")) failed = alone();
    else if (!strcmp(mode, "missing")) failed = ends(&first, "another rank has not come within 4 seconds", 2 * TIMEOUT);
    else if (!strcmp(mode, "no_file")) failed = ends(&second, "rank 0 has not made it", 1);
    else if (!strcmp(mode, "dead")) failed = ends(&second, "te_comm_create", 2 * TIMEOUT);
    else if (!strcmp(mode, "address")) failed = not_by_address(address);
    else if (!strcmp(mode, "same")) failed = same_device(address, child);
    (void)remove(file);
    if (!failed) printf("ok: %s\n", mode);
    fflush(stdout);
    _exit(failed); /* NCCL's exit handlers may wait for what was aborted */
}
#endif
