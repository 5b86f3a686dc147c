/* products.c -- products that overlap a collective (te/linear/impl/linear_comm_overlap.h) against the same list with product and
 * collective one after the other, bit for bit: inference, forward and backward of random numbers of rows, by ranks that
 * come at random times; every fourth backward one that te_buckets watches.
 *
 *     mpirun -n 2 products COUNT [must [leave]]      rank 0 prints how much was compared; with `must` it is an error if
 *                                                   products that can overlap have not: on CUDA, with mapped memory;
 *                                                   `leave`: the last rank ends after COUNT, the others must notice
 *
 * Exit code 0: all is right; 1: not; 3: another rank has failed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "te/te.h"

/* Sums over k in one part, whatever the order of the tiles; and, on 132 multiprocessors, some of them in two. */
enum { NARROW = TE_CUDA ? 512 : 16, INNER = TE_CUDA ? 768 : 48, HEAD = INNER / 6, WIDE = TE_CUDA ? 2560 : 32,
       MOST = TE_CUDA ? 4096 : 64 };
#define NARROW_LIST                                                                                                   \
    (all_gather, g), (linear, fc1, NARROW, INNER, (shard, columns)), (bias, fc1_b, INNER), (gelu, a),                 \
    (linear, fc2, INNER, NARROW, (shard, rows)), (reduce_scatter, s), (bias, fc2_b, NARROW)
#define WIDE_LIST                                                                                                     \
    (fork, x1), (rmsnorm, n, WIDE), (all_gather, g), (linear, fc1, WIDE, WIDE, (shard, columns)), (relu, a),          \
    (scale, by, 0.5f), (linear, fc2, WIDE, WIDE, (shard, rows)), (reduce_scatter, s), (add, x1)
TE_SEQUENTIAL(narrow, (bf16, (rows, shard)), NARROW_LIST)
#define TURNED_LIST                                                                                                   \
    (rmsnorm, n, NARROW), (all_gather, g), (linear, qk, NARROW, INNER, (shard, columns)), (rope, at, 2, 2, HEAD),     \
    (linear, out, INNER, NARROW, (shard, rows)), (reduce_scatter, s)
TE_SEQUENTIAL(turned, (bf16, (rows, shard)), TURNED_LIST)
TE_SEQUENTIAL(wide, (f16, (rows, shard)), WIDE_LIST)
TE_SEQUENTIAL(narrow_fp8, (bf16, (rows, shard), (recipe, fp8_delayed)), NARROW_LIST)
TE_SEQUENTIAL(wide_fp8, (bf16, (rows, shard), (recipe, fp8_delayed), (gradients, e4m3)), WIDE_LIST)
TE_SEQUENTIAL(current, (bf16, (rows, shard), (recipe, fp8_current)), NARROW_LIST) /* whose rows are not gathered in FP8 */
TE_SEQUENTIAL(remade, (bf16, (rows, shard), (recipe, fp8_delayed)),
              (fork, x1), (recompute, r), (rmsnorm, n, NARROW), (all_gather, g), (frozen_linear, fc1, NARROW, INNER, (shard, columns)),
              (gelu, a), (linear, fc2, INNER, NARROW, (shard, rows)), (reduce_scatter, s), (end_recompute, r), (add, x1))
/* In backward the gradient of fc3's weight waits for the rows of s1's. */
#define TWICE_LIST                                                                                                    \
    NARROW_LIST, (rmsnorm, n, NARROW), (all_gather, g2), (linear, fc3, NARROW, INNER, (shard, columns)), (relu, a2),  \
    (linear, fc4, INNER, NARROW, (shard, rows)), (reduce_scatter, s2)
TE_SEQUENTIAL(twice, (bf16, (rows, shard)), TWICE_LIST)
TE_SEQUENTIAL(twice_fp8, (bf16, (rows, shard), (recipe, fp8_delayed)), TWICE_LIST)
enum { LAYERS = 9 };
static int is_twice(const te_plan *p) { return p == twice_plan() || p == twice_fp8_plan(); }

static te_context here;
static te_comm comm;
static void *pool_memory;

typedef struct late_args { int64_t nanoseconds; } late_args;
TE_FN void be_late(const late_args *a) {
    const uint64_t start = te_words_clock();
    while (te_words_clock() - start < (uint64_t)a->nanoseconds) {}
}
TE_KERNEL(late_kernel, 1, late_args, be_late(te_args); (void)te_at)

static uint32_t mixed(uint32_t a) {
    a = (a ^ (a >> 16)) * 0x7feb352du, a = (a ^ (a >> 15)) * 0x846ca68bu;
    return a ^ (a >> 16);
}
/* Every second time a rank is late by up to 0.4 ms. */
static te_status late(uint32_t *random) {
    late_args a;
    *random = mixed(*random + 1);
    a.nanoseconds = *random % 2 ? 0 : *random / 2 % 400000;
    return late_kernel_launch(&here, te_grid_of(1, 1), &a);
}

/* A list, and what it makes of x and dy. */
typedef struct layer {
    const te_plan *plan;
    te_model model;
    te_param param[8];
    te_recipes recipes;
    te_model *models[1]; /* of the recipes, and of the buckets */
    te_buckets buckets;
    int watched; /* by them, in this turn */
    int width;
    size_t workspace; /* that is asked for, before there are scales */
    void *params, *scales, *x, *dy, *y, *dx, *inferred, *saved[2]; /* saved: of te_comm_allocate, of te_allocate */
    float *grads;
} layer;

static te_status make(layer *l, const te_plan *plan, int width) {
    int params = 0;
    const size_t bytes = (size_t)MOST * (size_t)width * 2, saved = te_plan_saved_bytes_of_rank(plan, MOST, &here);
    void **const of[5] = {&l->x, &l->dy, &l->y, &l->dx, &l->inferred};
    l->plan = plan, l->width = width;
    for (int i = 0; i < plan->op_count; i++) params += plan->op[i].params;
    TE_TRY(te_allocate(&here, &l->params, te_plan_param_bytes(plan)));
    TE_TRY(te_allocate(&here, (void **)&l->grads, te_plan_grad_bytes(plan)));
    for (int i = 0; i < 5; i++) TE_TRY(te_allocate(&here, of[i], bytes));
    /* [saved] */
    TE_TRY(te_comm_allocate(&comm, &l->saved[0], saved, &here)); /* of te_plan_saved_bytes_of_rank */
    /* [saved] */
    TE_TRY(te_allocate(&here, &l->saved[1], saved));
    TE_TRY(te_model_bind(&l->model, plan, l->param, params, l->params, l->grads, &here));
    TE_TRY(te_model_randomize(&l->model, 0.05f, 7, 100, &here));
    const te_buckets_config buckets = te_buckets_defaults();
    l->models[0] = &l->model;
    TE_TRY(te_buckets_init(&l->buckets, l->models, 1, &buckets, &here));
    l->workspace = te_plan_workspace_bytes(plan, &l->model, MOST, &here);
    if (plan->fp8) {
        te_recipes_config config = te_recipes_defaults();
        if (plan != current_plan()) config.ranks = comm.world.size;
        const size_t room = te_recipes_bytes(l->models, 1, &config);
        TE_TRY(te_allocate(&here, &l->scales, room));
        TE_TRY(te_recipes_init(&l->recipes, l->scales, room, l->models, 1, &config, &here));
    }
    return te_context_reserve(&here, l->workspace);
}
static te_status drop(layer *l) {
    void *const memory[9] = {l->params, l->grads, l->x, l->dy, l->y, l->dx, l->inferred, l->saved[1], l->scales};
    for (int i = 0; i < 9; i++) te_release(&here, memory[i]);
    te_buckets_destroy(&l->buckets);
    return te_comm_release(&comm, l->saved[0], &here);
}
/* All passes of so many rows, with saved[which]. */
typedef struct task {
    layer *l;
    int rows, which;
    uint32_t random;
} task;
static te_status passes_of(const task *t, te_context *ctx) {
    layer *l = t->l;
    const te_dtype dtype = l->plan->dtype;
    const int own = t->rows / comm.tensor.size;
    uint32_t random = t->random;
    te_batch batch;
    te_saved saved;
    memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved);
    batch.batch = 1, batch.seq = t->rows;
    saved.memory = l->saved[t->which], saved.bytes = te_plan_saved_bytes_of_rank(l->plan, MOST, ctx);
    TE_TRY(late(&random));
    TE_TRY(te_plan_infer(te_matrix(l->inferred, dtype, own, l->width), te_matrix(l->x, dtype, own, l->width), l->plan,
                         &l->model, &batch, ctx));
    TE_TRY(late(&random));
    TE_TRY(te_plan_forward(te_matrix(l->y, dtype, own, l->width), &saved, te_matrix(l->x, dtype, own, l->width),
                           l->plan, &l->model, &batch, ctx));
    TE_TRY(late(&random));
    if (l->watched) TE_TRY(te_buckets_begin(&l->buckets, ctx));
    const te_status status =
        te_plan_backward(te_matrix(l->dx, dtype, own, l->width), te_matrix(l->dy, dtype, own, l->width), &saved,
                         l->plan, &l->model, &batch, ctx);
    return status == TE_OK && l->watched ? te_buckets_finish(&l->buckets, ctx) : status;
}
/* The same, with no more workspace than was asked for. */
static te_status passes(const te_graph *g, const void *arg, te_context *ctx) {
    const task *t = (const task *)arg;
    const size_t bytes = ctx->workspace_bytes;
    ctx->workspace_bytes = t->l->workspace;
    const te_status status = passes_of(t, ctx);
    ctx->workspace_bytes = bytes;
    return (void)g, status;
}
/* What they make, to `out`; captured: as a graph that is replayed three times. */
static te_status make_all(const task *t, int captured, char *out) {
    layer *l = t->l;
    const size_t bytes = (size_t)(t->rows / comm.tensor.size) * (size_t)l->width * 2;
    const size_t grads = te_plan_grad_bytes(l->plan);
    void *const made[4] = {l->inferred, l->y, l->dx, l->grads};
    te_graph_pool pool;
    te_graph graph;
    for (int i = 0; i < 4; i++) TE_TRY(te_fill(&here, made[i], i == 3 ? 0 : 0xff, i == 3 ? grads : bytes));
    if (captured) {
        const te_graph_spec spec = te_graph_spec_of("passes", passes, t, 0, 0, 0, 0, 0);
        TE_TRY(te_graph_pool_init(&pool, pool_memory, 1 << 16, &here));
        TE_TRY(te_graph_capture(&graph, &spec, &pool, &here));
        for (int i = 0; i < 3; i++) TE_TRY(te_graph_replay(&graph, 0, 0, &here));
        TE_TRY(te_comm_synchronize(&here));
        te_graph_destroy(&graph);
    } else TE_TRY(passes(0, t, &here));
    for (int i = 0; i < 4; i++) {
        const size_t n = i == 3 ? grads : bytes;
        TE_TRY(te_copy(&here, out, made[i], n));
        out += n;
    }
    return te_comm_synchronize(&here);
}
/* Numbers that differ, of two calls' results. */
static int64_t differ(const layer *l, int rows, const char *a, const char *b, int turn) {
    static const char *const names[4] = {"inference", "forward", "dx", "gradients"};
    const size_t bytes = (size_t)(rows / comm.tensor.size) * (size_t)l->width * 2;
    int64_t wrong = 0;
    for (int i = 0; i < 4; i++) {
        const size_t n = i == 3 ? te_plan_grad_bytes(l->plan) : bytes, one = i == 3 ? 4 : 2;
        int64_t off = 0, first = -1;
        for (size_t k = 0; k < n; k += one)
            if (memcmp(a + k, b + k, one)) {
                if (first < 0) first = (int64_t)(k / one);
                off++;
            }
        if (off)
            printf("rank %d: turn %d, %s, %d rows: %s: %lld of %lld numbers differ, the first is %lld\n",
                   comm.tensor.rank, turn, l->plan->name, rows, names[i], (long long)off, (long long)(n / one),
                   (long long)first);
        a += n, b += n, wrong += off;
    }
    return wrong;
}
/* Random x and dy, others for each i. */
static te_status draw(layer *l, int i) {
    const int64_t count = (int64_t)MOST * l->width;
    const uint32_t own = (uint32_t)(2 * comm.tensor.rank);
    TE_TRY(te_fill_normal(l->x, l->plan->dtype, count, 0.0f, 1.0f, 100 + (uint64_t)i, own, &here));
    return te_fill_normal(l->dy, l->plan->dtype, count, 0.0f, 1.0f, 100 + (uint64_t)i, own + 1, &here);
}
/* A first step, behind which the scales of fp8_delayed are known. */
static te_status first_step(layer *l) {
    const task t = {l, MOST, 0, 0};
    TE_TRY(draw(l, -1));
    TE_TRY(passes(0, &t, &here));
    return te_recipes_step(&l->recipes, &here);
}
/* Whether rows of products in FP8 are gathered so: where all ranks are said to have their scales. */
static void gather_in_fp8(layer *l, int common) {
    for (int i = 0; i < (int)(sizeof l->param / sizeof l->param[0]); i++)
        if (l->param[i].fp8.scales) l->param[i].fp8.common = common;
}
static te_status turn(layer *l, int i, char *out[2], int64_t *compared, int64_t *wrong, int must) {
    te_rank_memory *const memory = comm.tensor.memory;
    const uint32_t u = mixed((uint32_t)i + 11);
    const int size = comm.tensor.size, tile = TE_CUDA ? 256 * size : size, is_wide = l->width == WIDE;
    const int odd = u % 8 == 0, which = (int)(u / 8 % 4 == 0);
    const int rows = odd ? (int)(1 + u / 64 % (MOST / (uint32_t)size)) * size : (int)(1 + u / 64 % (uint32_t)(MOST / tile)) * tile;
    const int64_t before[3] = {memory ? memory->gathered : 0, memory ? memory->scattered : 0, memory ? memory->beside : 0};
    const task t = {l, rows, which, mixed(u + 77 + (uint32_t)comm.tensor.rank)};
    TE_TRY(draw(l, i));
    l->watched = u / 1024 % 4 == 0;
    if (memory) memory->apart = u / 4096 % 2 ? 0 : INT64_MAX; /* added up in the epilogue, or apart */
    for (int again = 0; again < 2; again++) TE_TRY(make_all(&t, again && i % 5 == 4, out[0]));
    if (memory) {
        const int can = rows % tile == 0, two = is_twice(l->plan);
        const int64_t gathered = memory->gathered - before[0], scattered = memory->scattered - before[1],
                      beside = memory->beside - before[2];
        /* of three passes each has one, but forward's is kept; remade keeps none, and gathers x again in backward */
        const int each = l->plan == current_plan() ? 0 : l->plan == remade_plan() ? 4 : 3 - which, gathers = can ? (2 * each) << two : 0;
        if (must && (gathered != gathers || scattered != (can ? 6 << two : 0) || beside != (can && two && !l->watched ? 2 : 0)))
            *wrong += 1 + printf("rank %d: turn %d, %s, %d rows: %lld gathers, %lld of them with a weight's gradient beside them, and "
                                 "%lld scatters overlapped\n", comm.tensor.rank, i, l->plan->name, rows, (long long)gathered,
                                 (long long)beside, (long long)scattered);
        /* a product of FP8 that sends has the sums of the tensor cores: one that does not, in backward, others */
        if (is_wide || l->plan->fp8 || u / 32 % 2) memory->serial = 1;
        else comm.tensor.memory = 0;
    }
    const int in_fp8 = l->recipes.config.ranks == size;
    /* On CUDA sums of such a product are others. What a chain gives is rounded once where it is gathered in FP8, and to
     * the list's format before that where it is not: these rows come from the caller. */
    if (!TE_CUDA && l->plan == narrow_fp8_plan() && u / 512 % 2) gather_in_fp8(l, 0);
    const te_status status = make_all(&t, 0, out[1]);
    gather_in_fp8(l, in_fp8);
    comm.tensor.memory = memory;
    if (memory) memory->serial = 0;
    TE_TRY(status);
    *wrong += differ(l, rows, out[0], out[1], i);
    *compared += 3 * (int64_t)(rows / size) * l->width + (int64_t)(te_plan_grad_bytes(l->plan) / 4);
    return TE_OK;
}
static te_status run(int turns, int64_t *compared, int64_t *wrong, int must, int leave) {
    layer layers[LAYERS];
    const size_t most = 3 * (size_t)MOST * WIDE * 2 + te_plan_grad_bytes(wide_plan()) + te_plan_grad_bytes(narrow_plan());
    char *out[2] = {(char *)malloc(most), (char *)malloc(most)};
    memset(layers, 0, sizeof layers);
    TE_REQUIRE(out[0] && out[1], &here, TE_ERROR_MEMORY, "no memory");
    *wrong += te_comm_allocate(&comm, 0, 16, &here) != TE_ERROR_NULL;
    *wrong += te_comm_release(0, 0, &here) != TE_ERROR_NULL;
    TE_TRY(te_allocate(&here, &pool_memory, 1 << 16));
    TE_TRY(make(&layers[0], narrow_plan(), NARROW));
    TE_TRY(make(&layers[1], turned_plan(), NARROW));
    TE_TRY(make(&layers[2], wide_plan(), WIDE));
    TE_TRY(make(&layers[3], narrow_fp8_plan(), NARROW));
    TE_TRY(make(&layers[4], wide_fp8_plan(), WIDE));
    TE_TRY(make(&layers[5], current_plan(), NARROW));
    TE_TRY(make(&layers[6], remade_plan(), NARROW));
    TE_TRY(make(&layers[7], twice_plan(), NARROW));
    TE_TRY(make(&layers[8], twice_fp8_plan(), NARROW));
    for (int i = 0; i < LAYERS; i++)
        if (layers[i].plan->fp8) TE_TRY(first_step(&layers[i]));
    for (int i = 0; i < turns; i++) TE_TRY(turn(&layers[i % LAYERS], i, out, compared, wrong, must));
    if (leave && comm.tensor.rank == comm.tensor.size - 1) _exit(0);
    if (leave) TE_TRY(turn(&layers[0], turns, out, compared, wrong, 0));
    for (int i = 0; i < LAYERS; i++) TE_TRY(drop(&layers[i]));
    te_release(&here, pool_memory), free(out[0]), free(out[1]);
    return TE_OK;
}

int main(int argc, char **argv) {
    const int turns = argc > 1 ? atoi(argv[1]) : 20, must = argc > 2, leave = argc > 3;
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    int64_t compared = 0, wrong = 0;
    int rank, size;
    te_comm_launched(&rank, &size);
    te_comm_config config = te_comm_defaults();
    config.file = getenv("RANKS_FILE"), config.tensor = size;
    /* [config] */
    config.overlap_bytes = (int64_t)MOST * WIDE * 2; /* tokens, columns, bytes */
    /* [config] */
    config.peer_bytes = config.overlap_bytes; /* sums of all sizes in the order of the ranks, as those beside a product */
    if (getenv("RANKS_TIMEOUT")) config.timeout = atof(getenv("RANKS_TIMEOUT"));
    te_status status = te_context_create(&here, TE_CUDA ? (local ? atoi(local) : rank) : 0, 3);
    if (status == TE_OK) status = te_comm_create(&comm, &config, &here);
    here.gemm_own = 2;
    if (status == TE_OK) status = run(turns, &compared, &wrong, must, leave);
    const te_rank_memory *memory = status == TE_OK ? comm.tensor.memory : 0;
    if (status != TE_OK) printf("rank %d: %s: %s\n", rank, te_status_string(status), te_last_error(&here));
    else if (must && size > 1 && !memory) wrong += printf("rank %d: the ranks cannot map each other's memory\n", rank);
    else if (!rank || wrong)
        printf("rank %d of %d: %lld numbers, %lld wrong; %lld gathers and %lld scatters beside a product\n", rank, size,
               (long long)compared, (long long)wrong, memory ? (long long)memory->gathered : 0LL,
               memory ? (long long)memory->scattered : 0LL);
    fflush(stdout);
    te_comm_destroy(&comm); /* does not wait for a rank that has failed */
    te_context_destroy(&here);
    if (status == TE_ERROR_COMM) _exit(3); /* MPI would */
    return status != TE_OK || wrong;
}
