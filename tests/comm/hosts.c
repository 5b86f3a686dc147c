/* hosts.c -- ranks on several hosts: what the groups know about them, sums over the data group in two levels, a link between hosts that is cut, and one that is slow.
 * tests/hosts.sh runs it between two network namespaces; `layout` and `sums` also run on one machine, where each letter of LAYOUT is the name of a rank's host.
 *
 *     mpirun -n 4 hosts layout                     the hosts of all groups, and tensor groups that would span hosts
 *     mpirun -n N hosts sums [LAYOUT]              all-reduces of random sizes, in place and not, against sums in f64; of 4 ranks in two levels
 *     mpirun -n 4 hosts speed MIB [LAYOUT]         the time of an all-reduce in one level and in two
 *     mpirun -n 4 hosts cut SECONDS                sums until a rank cannot be reached, with this timeout; prints how long the failing call has taken
 *     hosts address RANK SIZE HOST:PORT SECONDS    one process of a start by an address, without MPI
 *
 * With CUDA, RANKS_FILE or RANKS_ADDRESS is config.file or config.address.
 */
#include <stdlib.h>
#include <unistd.h>

#include "te/te.h"
#include "te/comm/impl/comm_address.h"

static te_context ctx;
static te_comm comm;
static int rank, size, failed;

static void expect(int ok, const char *what) {
    if (ok) return;
    printf("FAIL rank %d: %s: %s\n", rank, what, te_last_error(&ctx));
    failed = 1;
}
/* Creates a communicator; layout: null, or a letter for each rank, the name of its host. */
static te_status create(te_comm_config config, const char *layout) {
    char host[2] = "";
    config.file = getenv("RANKS_FILE"), config.address = getenv("RANKS_ADDRESS");
    if (layout) host[0] = layout[rank], config.host = host;
    return te_comm_create(&comm, &config, &ctx);
}

/* ---- layout ------------------------------------------------------------------------------------------------------ */

/* hosts: of the world, tensor, data, context and pipeline groups; has_levels: whether the data group has the groups of two levels. */
static void layout_is(const char *layout, int tensor, int context, int pipeline, const int hosts[5], int has_levels) {
    te_comm_config config = te_comm_defaults();
    config.tensor = tensor, config.context = context, config.pipeline = pipeline;
    if (create(config, layout) != TE_OK) return expect(0, layout);
    const te_group *groups[5] = {&comm.world, &comm.tensor, &comm.data, &comm.context, &comm.pipeline};
    char what[80];
    for (int i = 0; i < 5; i++) {
        snprintf(what, sizeof what, "%s, tensor %d: the %s group has %d hosts instead of %d", layout, tensor, groups[i]->name, groups[i]->hosts, hosts[i]);
        expect(groups[i]->hosts == hosts[i], what);
    }
    snprintf(what, sizeof what, "%s, tensor %d: two levels", layout, tensor);
    expect((comm.data.in_host != 0) == has_levels && (comm.data.across_hosts != 0) == has_levels, what);
    if (has_levels) {
        expect(comm.in_host.hosts == 1 && comm.across_hosts.hosts == comm.data.hosts, what);
        expect(comm.in_host.size * comm.across_hosts.size == comm.data.size, what);
    }
    expect(layout[rank] == layout[0] ? comm.host == 0 : comm.host > 0, "the number of the host");
    te_comm_destroy(&comm);
}
static void refused(const char *layout, int tensor, const char *words) {
    te_comm_config config = te_comm_defaults();
    config.tensor = tensor;
    expect(create(config, layout) == TE_ERROR_VALUE && strstr(te_last_error(&ctx), words), layout);
    config.tensor_across_hosts = 1;
    const int first = rank / tensor * tensor;
    int spans = 0;
    for (int r = first; r < first + tensor; r++) spans |= layout[r] != layout[first];
    expect(create(config, layout) == TE_OK && comm.tensor.hosts == 1 + spans, "tensor_across_hosts");
    te_comm_destroy(&comm);
}
static void layouts(void) {
    const int one[5] = {1, 1, 1, 1, 1}, two[5] = {2, 1, 2, 1, 1}, four[5] = {4, 1, 4, 1, 1}, shards[5] = {2, 1, 1, 1, 2}, stages[5] = {2, 1, 1, 1, 2};
    const int apart[5] = {2, 1, 2, 2, 1};
    layout_is("aaaa", 1, 1, 1, one, 0);
    layout_is("aabb", 1, 1, 1, two, 1);
    layout_is("abab", 1, 1, 1, two, 1); /* ranks by turns on both hosts */
    layout_is("abba", 1, 1, 1, two, 1);
    layout_is("aabb", 2, 1, 1, two, 0); /* one rank of each data group on a host */
    layout_is("abcd", 1, 1, 1, four, 0);
    layout_is("aaab", 1, 1, 1, two, 0);
    layout_is("aabb", 1, 1, 2, stages, 0);
    layout_is("aabb", 2, 1, 2, shards, 0);
    layout_is("aabb", 1, 4, 1, apart, 1);
    layout_is("abab", 1, 2, 1, apart, 1);
    layout_is("aabb", 1, 2, 1, two, 1);
    refused("abab", 2, "ranks 0 and 1 share a replica (config.tensor is 2), but run on a and b; start the ranks of a host one after the other");
    refused("aaab", 2, "ranks 2 and 3 share a replica (config.tensor is 2), but run on a and b");
    refused("aabb", 4, "ranks 0 and 2 share a replica (config.tensor is 4), but run on a and b");
    te_comm_config config = te_comm_defaults();
    config.hierarchical = rank < 2;
    expect(create(config, "aabb") == TE_ERROR_VALUE && strstr(te_last_error(&ctx), "config.hierarchical is 1 on rank 0, and 0 on rank 2"), "other configs");
    config.hierarchical = 0;
    expect(create(config, "aabb") == TE_OK && !comm.data.in_host && comm.data.hosts == 2, "one level");
    te_comm_destroy(&comm);
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* The value of element i on rank r: a random number of 24 bits, below 1. */
static float value_of(int r, int64_t i, uint64_t seed) {
    uint64_t x = seed * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xbf58476d1ce4e5b9u + (uint64_t)r * 0x94d049bb133111ebu;
    x ^= x >> 31, x *= 0xd6e8feb86659fd93u, x ^= x >> 32;
    return (float)(x & 0xffffff) / 0x1p24f - 0.5f;
}
enum { MAX = 1 << 19, GUARD = 64 };
static float *x, *y, host[MAX + GUARD]; /* x and y: [MAX + GUARD] in the memory of the target */

static void copy(float *to, const float *from, int64_t count) {
    expect(te_copy(&ctx, to, from, (size_t)count * sizeof *to) == TE_OK && te_synchronize(&ctx) == TE_OK, "copy");
}
/* Sums `count` elements of x into y or, in place, into x, and returns a hash of the sums. The elements behind the tensor must stay. */
static uint64_t sum(const te_group *g, int in_place, int64_t count, uint64_t seed) {
    uint64_t hash = 1469598103934665603u;
    double worst = 0;
    int changed = 0;
    for (int64_t i = 0; i < count + GUARD; i++) host[i] = i < count ? value_of(g->rank, i, seed) : 17;
    copy(x, host, count + GUARD);
    for (int64_t i = 0; i < count; i++) host[i] = NAN;
    copy(y, host, count + GUARD);
    expect(te_group_all_reduce(g, in_place ? x : y, x, count, TE_f32, &ctx) == TE_OK && te_comm_synchronize(&ctx) == TE_OK, "all_reduce");
    copy(host, in_place ? x : y, count + GUARD);
    for (int64_t i = 0; i < count; i++) {
        double exact = 0, bound = 0;
        for (int r = 0; r < g->size; r++) exact += value_of(r, i, seed), bound += fabs((double)value_of(r, i, seed));
        const double off = fabs(host[i] - exact) / (bound * g->size * 0x1p-24);
        worst = off > worst || off != off ? off : worst;
    }
    expect(worst <= 1, "a sum is wrong");
    for (int i = 0; i < GUARD; i++) changed |= host[count + i] != 17;
    for (const uint8_t *b = (const uint8_t *)host, *end = (const uint8_t *)(host + count); b < end; b++) hash = (hash ^ *b) * 1099511628211u;
    if (!in_place) copy(host, x, count);
    for (int64_t i = 0; i < count && !in_place; i++) changed |= host[i] != value_of(g->rank, i, seed);
    expect(!changed, "x, or an element behind the tensor, has changed");
    return hash;
}
static void sums(const char *layout) {
    const char *text = getenv("TE_SEED");
    const uint64_t seed = text ? strtoull(text, 0, 10) : 1;
    const int64_t least = TE__LEVELS_MIN_BYTES / (int64_t)sizeof(float), counts[] = {1, 255, least - 1, least, least + 1, 65537, MAX};
    te_comm_config config = te_comm_defaults();
    config.timeout = 20, config.hierarchical = 1;
    if (create(config, layout) != TE_OK) return expect(0, "create");
    const te_group *g = te_data_group(&ctx);
    expect((g->in_host != 0) == (size == 4), "two levels, or not");
    expect(!TE_CUDA || (g->peers != 0) == (g->hosts == 1), "symmetric memory is for the ranks of one host");
    for (uint64_t i = 0; i < 20 && !failed; i++) {
        const uint64_t s = seed * 100 + i;
        const int64_t count = i < 7 ? counts[i] : 1 + (int64_t)((double)(value_of(0, 0, s) + 0.5f) * (MAX - 1));
        const uint64_t hash = sum(g, 0, count, s);
        expect(sum(g, 0, count, s) == hash, "another sum of the same numbers has other bits");
        expect(sum(g, 1, count, s) == hash, "in place the sum has other bits");
        te_setting same[2];
        same[0] = te_setting_of("the hash", (double)(hash >> 32)), same[1] = te_setting_of("the hash", (double)(hash & 0xffffffffu));
        expect(te_group_compare(g, same, 2, &ctx) == TE_OK, "the ranks have other bits");
    }
    te_comm_destroy(&comm);
}
/* The number of bytes that this host has sent so far through all network interfaces but the loopback. */
static double sent_bytes(void) {
    char line[512], name[64];
    double sent = 0, out;
    FILE *f = fopen("/proc/net/dev", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, " %63[^:]: %*s %*s %*s %*s %*s %*s %*s %*s %lf", name, &out) == 2 && strcmp(name, "lo")) sent += out;
    if (f) fclose(f);
    return sent;
}
/* Prints the mean time of an all-reduce, and the bytes that the host of rank 0 sends in it. */
static void speed(double mib, const char *layout) {
    const int64_t count = (int64_t)(mib * 1024 * 1024 / sizeof(float));
    float *big = 0;
    double took[2] = {0, 0}, sent[2];
    enum { REPEATS = 4 };
    expect(te_allocate(&ctx, (void **)&big, (size_t)count * sizeof *big) == TE_OK && te_fill(&ctx, big, 0, (size_t)count * sizeof *big) == TE_OK, "memory");
    for (int levels = 0; levels < 2 && !failed; levels++) {
        te_comm_config config = te_comm_defaults();
        config.hierarchical = levels;
        if (create(config, layout) != TE_OK) return expect(0, "create");
        const double before = sent_bytes();
        for (int i = 0; i < REPEATS; i++) {
            expect(te_group_all_reduce(&comm.world, x, x, 1, TE_f32, &ctx) == TE_OK && te_comm_synchronize(&ctx) == TE_OK, "all_reduce");
            const double start = te__seconds();
            expect(te_group_all_reduce(&comm.data, big, big, count, TE_f32, &ctx) == TE_OK && te_comm_synchronize(&ctx) == TE_OK, "all_reduce");
            took[levels] += (te__seconds() - start) / REPEATS;
        }
        sent[levels] = (sent_bytes() - before) / (1 << 20) / REPEATS;
        te_comm_destroy(&comm);
    }
    te_release(&ctx, big);
    if (!rank) printf("%g MiB: one level %.3f ms and %.2f MiB between hosts, two levels %.3f ms and %.2f MiB\n", mib, 1e3 * took[0], sent[0], 1e3 * took[1], sent[1]);
}

/* ---- a link that is cut ------------------------------------------------------------------------------------------ */

static void cut(double timeout) {
    te_comm_config config = te_comm_defaults();
    config.timeout = timeout;
    if (create(config, 0) != TE_OK) return expect(0, "create");
    if (!rank) puts("the ranks have met"), fflush(stdout);
    for (const double begin = te__seconds(); te__seconds() - begin < 30;) {
        const double start = te__seconds();
        const te_status status = te_group_all_reduce(te_data_group(&ctx), x, x, 1 << 16, TE_f32, &ctx);
        if (status == TE_OK) continue;
        printf("rank %d: after %.1f s: %s: %s\n", rank, te__seconds() - start, te_status_string(status), te_last_error(&ctx));
        fflush(stdout);
        _exit(0); /* MPI would wait for the ranks that cannot be reached */
    }
    expect(0, "no error within 30 seconds");
}

/* ---- a start by an address, without MPI -------------------------------------------------------------------------- */

static int start_by_address(char **argv) {
    uint32_t id[32];
    te__comm_start start;
    start.rank = atoi(argv[2]), start.size = atoi(argv[3]), start.address = argv[4], start.timeout = atof(argv[5]);
    start.file = 0, start.secret = getenv("TE_COMM_SECRET");
    for (uint32_t i = 0; i < 32; i++) id[i] = start.rank ? 0 : i * 2654435761u + (uint32_t)getpid();
    const double begin = te__seconds();
    const te_status status = te__address_pass(id, sizeof id, &start, &ctx);
    if (status == TE_OK) printf("rank %d: id %08x%08x\n", start.rank, id[1], id[31]);
    else printf("rank %d: after %.1f s: %s\n", start.rank, te__seconds() - begin, te_last_error(&ctx));
    return status != TE_OK;
}
int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "", *layout = argc > 2 ? argv[argc - 1] : 0;
    alarm(100); /* a rank that waits for ever fails the test */
    if (!strcmp(mode, "address")) return argc > 5 ? start_by_address(argv) : 2;
    te_comm_rank_from_env(&rank, &size);
    if (te_context_create(&ctx, TE_CUDA ? te_comm_local_rank_from_env() : 0, 1) != TE_OK) return puts(te_last_error(&ctx)), 1;
    if (te_allocate(&ctx, (void **)&x, sizeof host) != TE_OK || te_allocate(&ctx, (void **)&y, sizeof host) != TE_OK) return 1;
#if !TE_CUDA
    MPI_Init(0, 0); /* so that several communicators can be made, one after the other */
#endif
    if (!strcmp(mode, "layout") && size == 4) layouts();
    else if (!strcmp(mode, "sums")) sums(layout);
    else if (!strcmp(mode, "speed") && argc > 2) speed(atof(argv[2]), argc > 3 ? layout : 0);
    else if (!strcmp(mode, "cut") && argc > 2) cut(atof(argv[2]));
    else return puts("hosts: another mode, or 4 ranks"), 2;
    if (!failed && !rank) printf("%s%s%s: ok\n", mode, layout ? " " : "", layout ? layout : "");
#if !TE_CUDA
    MPI_Finalize();
#endif
    te_release(&ctx, x), te_release(&ctx, y);
    te_context_destroy(&ctx);
    return failed;
}
