/* peers.c -- collectives of a group, of random kinds, formats and sizes, checked element by element where they lie;
 * ranks come at random times. On CUDA most of them go through memory that the ranks map (te/comm/peers.h).
 *
 *     mpirun -n 4 peers COUNT [peers]      rank 0 prints how many values were compared; with `peers` it is an error if
 *                                          the ranks cannot map each other's memory
 *
 * Exit code 0: all is right; 1: not; 3: another rank has failed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "te/te.h"
#include "te/comm/peers.h"

enum { THREADS = TE_CUDA ? 256 : 1, BLOCKS = TE_CUDA ? 32 : 1, MOST = 3 << 18, SHIFT = 8 /* elements */ };
static te_context here;
static te_comm comm;

/* What a rank has at i: both signs, of several magnitudes. */
TE_BOTH uint32_t mixed(uint32_t a) {
    a = (a ^ (a >> 16)) * 0x7feb352du, a = (a ^ (a >> 15)) * 0x846ca68bu;
    return a ^ (a >> 16);
}
TE_BOTH float value_of(uint32_t turn, int rank, int64_t i, te_dtype dtype) {
    const uint32_t u = mixed(mixed((uint32_t)i * 8u + (uint32_t)rank) + turn);
    return te_round_to(((float)(u >> 8 & 0xffff) / 65536.0f - 0.5f) * (u % 8 ? 1.0f : 100.0f), dtype);
}
typedef struct task {
    void *x, *y;
    int64_t *wrong; /* [BLOCKS * THREADS] */
    int64_t count;  /* that a rank has */
    int kind, rank, ranks;
    te_dtype dtype;
    uint32_t turn, late; /* nanoseconds */
} task;

/* x of this rank, after a while. */
TE_FN void fill(const task *t, te_block b) {
    int group;
    const int id = te_lanes_here(THREADS, &group).id;
    const int64_t all = t->count * (t->kind == 1 ? t->ranks : 1);
    const uint64_t start = te_words_clock();
    while (t->late && te_words_clock() - start < t->late) {}
    for (int64_t i = (int64_t)b.x * THREADS + id; i < all; i += (int64_t)b.nx * THREADS)
        te_store(t->x, i, value_of(t->turn, t->rank, i, t->dtype), t->dtype);
}
TE_KERNEL(fill_kernel, THREADS, task, fill(te_args, te_at))

/* The same bits as the sum in f32, in the order of the ranks, rounded once. */
TE_FN void compare(const task *t, te_block b) {
    int group;
    const int id = te_lanes_here(THREADS, &group).id;
    const int64_t all = t->count * (t->kind == 2 ? t->ranks : 1), slot = (int64_t)b.x * THREADS + id;
    for (int64_t i = slot; i < all; i += (int64_t)b.nx * THREADS) {
        float want = 0;
        if (t->kind == 2) want = value_of(t->turn, (int)(i / t->count), i % t->count, t->dtype);
        else
            for (int r = 0; r < t->ranks; r++) {
                const float one = value_of(t->turn, r, t->kind == 1 ? t->rank * t->count + i : i, t->dtype);
                want = r ? want + one : one;
            }
        t->wrong[slot] += te_load(t->y, i, t->dtype) != te_round_to(want, t->dtype);
        te_store(t->y, i, -1.0f, t->dtype); /* what is not written the next time is seen */
    }
}
TE_KERNEL(compare_kernel, THREADS, task, compare(te_args, te_at))

static te_status run(int turns, int64_t *compared, int64_t *wrong) {
    const te_group *g = te_tensor_group(&here);
    const size_t bytes = (size_t)(MOST * g->size + SHIFT) * sizeof(float), sums = BLOCKS * THREADS * sizeof(int64_t);
    static int64_t counts[BLOCKS * THREADS];
    const int each = te_max(1, te_min(250, turns / 4)); /* collectives of a form */
    void *x = 0, *y = 0;
    task t;
    memset(&t, 0, sizeof t);
    TE_TRY(te_allocate(&here, &x, bytes));
    TE_TRY(te_allocate(&here, &y, bytes));
    TE_TRY(te_allocate(&here, (void **)&t.wrong, sums));
    TE_TRY(te_fill(&here, t.wrong, 0, sums));
    t.rank = g->rank, t.ranks = g->size;
    for (int i = 0; i < turns; i++) {
        const uint32_t u = mixed((uint32_t)i + 77), v = mixed(u), w = mixed(v + 5 + (uint32_t)g->rank); /* w: own */
        const te_dtype dtypes[3] = {TE_f32, TE_bf16, TE_f16};
        t.turn = u, t.dtype = dtypes[u % 3], t.kind = (int)(u / 3 % 3), t.late = w % 4 ? 0 : w / 4 % 60000;
        t.count = 1 + v % (MOST >> (v >> 24) % 19);
        if (v & 1 << 23) t.count = te_min(MOST, te_round_up(t.count, 8)); /* whole pieces of 16 bytes */
        const size_t shift = u & 1 << 20 ? 0 : (u >> 21) % SHIFT * te_dtype_bytes(t.dtype);
        t.x = (char *)x + shift, t.y = t.kind == 0 && u & 1 << 16 ? t.x : (char *)y + shift;
        if (t.kind == 1 && u & 1 << 16) /* where this rank's part is */
            t.y = (char *)t.x + (size_t)(g->rank * t.count) * te_dtype_bytes(t.dtype);
        if (g->peers && i % each == 0) /* both forms */
            g->peers->one_shot = i / each % 2 ? 0 : te_min(g->peers->largest, 2 * g->peers->largest / g->size);
        TE_TRY(fill_kernel_launch(&here, te_grid_of(BLOCKS, 1), &t));
        if (t.kind == 0) TE_TRY(te_group_all_reduce(g, t.y, t.x, t.count, t.dtype, &here));
        else if (t.kind == 1) TE_TRY(te_group_reduce_scatter(g, t.y, t.x, t.count, t.dtype, &here));
        else TE_TRY(te_group_all_gather(g, t.y, t.x, t.count, t.dtype, &here));
        /* sums that NCCL or MPI makes of more than two ranks may be rounded in between */
        const int64_t through = g->peers ? g->peers->collectives : 0;
        static int64_t before;
        if (t.kind == 2 || g->size <= 2 || through > before) {
            TE_TRY(compare_kernel_launch(&here, te_grid_of(BLOCKS, 1), &t));
            *compared += t.count * (t.kind == 2 ? g->size : 1);
        }
        before = through;
        if (i % 100 == 99) TE_TRY(te_comm_synchronize(&here));
    }
    TE_TRY(te_copy(&here, counts, t.wrong, sums));
    TE_TRY(te_comm_synchronize(&here));
    for (int i = 0; i < BLOCKS * THREADS; i++) *wrong += counts[i];
    void *const memory[3] = {x, y, t.wrong};
    for (int i = 0; i < 3; i++) te_release(&here, memory[i]);
    return TE_OK;
}

int main(int argc, char **argv) {
    const int turns = argc > 1 ? atoi(argv[1]) : 200, must = argc > 2;
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    int64_t compared = 0, wrong = 0;
    int rank, size;
    te_comm_launched(&rank, &size);
    te_comm_config config = te_comm_defaults();
    config.file = getenv("RANKS_FILE"), config.tensor = size, config.peer_bytes = 4 << 20;
    if (getenv("RANKS_TIMEOUT")) config.timeout = atof(getenv("RANKS_TIMEOUT"));
    te_status status = te_context_create(&here, TE_CUDA ? (local ? atoi(local) : rank) : 0, 3);
    if (status == TE_OK) status = te_comm_create(&comm, &config, &here);
    if (status == TE_OK) status = run(turns, &compared, &wrong);
    const te_peers *peers = status == TE_OK ? te_tensor_group(&here)->peers : 0;
    if (status != TE_OK) printf("rank %d: %s: %s\n", rank, te_status_string(status), te_last_error(&here));
    else if (must && size > 1 && !peers) wrong += printf("rank %d: the ranks cannot map each other's memory\n", rank);
    else if (!rank || wrong)
        printf("rank %d of %d: %lld values, %lld wrong; %lld of %d collectives through mapped memory\n", rank, size,
               (long long)compared, (long long)wrong, peers ? (long long)peers->collectives : 0LL, turns);
    fflush(stdout);
    if (status == TE_ERROR_COMM) _exit(3);
    te_comm_destroy(&comm);
    te_context_destroy(&here);
    return status != TE_OK || wrong;
}
