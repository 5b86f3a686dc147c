/* products.c -- GEMMs that overlap a collective (te/linear/impl/linear_comm_overlap.h) against the same list with GEMM and collective
 * one after the other, bit for bit: inference, forward and backward of random numbers of rows, while ranks are delayed
 * at random; every fourth backward is one that te_buckets watches.
 *
 *     mpirun -n 2 products COUNT [must [leave]]      rank 0 prints how much was compared; with `must` it is an error if
 *                                                   GEMMs that can overlap have not (CUDA, symmetric memory); `leave`:
 *                                                   the last rank ends after COUNT, and the others must notice
 *
 * Exit code 0: all is right; 1: not; 3: another rank has failed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "te/te.h"

/* With the width NARROW no GEMM is split over k. With WIDE some tiles are, on 132 multiprocessors. */
enum { NARROW = TE_CUDA ? 512 : 16, INNER = TE_CUDA ? 768 : 48, HEAD = INNER / 6, WIDE = TE_CUDA ? 2560 : 32,
       MAX_ROWS = TE_CUDA ? 4096 : 64 };
#define NARROW_LIST                                                                                                   \
    (all_gather, g), (linear, fc1, NARROW, INNER, (shard, columns)), (bias, fc1_b, INNER), (gelu, a),                 \
    (linear, fc2, INNER, NARROW, (shard, rows)), (reduce_scatter, s), (bias, fc2_b, NARROW)
#define WIDE_LIST                                                                                                     \
    (fork, x1), (rmsnorm, n, WIDE), (all_gather, g), (linear, fc1, WIDE, WIDE, (shard, columns)), (relu, a),          \
    (scale, by, 0.5f), (linear, fc2, WIDE, WIDE, (shard, rows)), (reduce_scatter, s), (add, x1)
TE_SEQUENTIAL(narrow, (bf16, (rows, shard)), NARROW_LIST)
#define ROPE_LIST                                                                                                   \
    (rmsnorm, n, NARROW), (all_gather, g), (linear, qk, NARROW, INNER, (shard, columns)), (rope, at, 2, 2, HEAD),     \
    (linear, out, INNER, NARROW, (shard, rows)), (reduce_scatter, s)
TE_SEQUENTIAL(with_rope, (bf16, (rows, shard)), ROPE_LIST)
TE_SEQUENTIAL(wide, (f16, (rows, shard)), WIDE_LIST)
TE_SEQUENTIAL(narrow_fp8, (bf16, (rows, shard), (recipe, fp8_delayed)), NARROW_LIST)
TE_SEQUENTIAL(wide_fp8, (bf16, (rows, shard), (recipe, fp8_delayed), (gradients, e4m3)), WIDE_LIST)
TE_SEQUENTIAL(current, (bf16, (rows, shard), (recipe, fp8_current)), NARROW_LIST) /* all_gather sends bf16 rows */
TE_SEQUENTIAL(recomputed, (bf16, (rows, shard), (recipe, fp8_delayed)),
              (fork, x1), (recompute, r), (rmsnorm, n, NARROW), (all_gather, g), (frozen_linear, fc1, NARROW, INNER, (shard, columns)),
              (gelu, a), (linear, fc2, INNER, NARROW, (shard, rows)), (reduce_scatter, s), (end_recompute, r), (add, x1))
/* In backward fc3's weight gradient is deferred, to overlap the all_gather of s's gradient. */
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

typedef struct delay_args { int64_t nanoseconds; } delay_args;
TE_FN void delay_body(const delay_args *a) {
    const uint64_t start = te_nanoseconds();
    while (te_nanoseconds() - start < (uint64_t)a->nanoseconds) {}
}
TE_KERNEL(delay_kernel, 1, delay_args, delay_body(te_args); (void)te_at)

static uint32_t mixed(uint32_t a) {
    a = (a ^ (a >> 16)) * 0x7feb352du, a = (a ^ (a >> 15)) * 0x846ca68bu;
    return a ^ (a >> 16);
}
/* Delays a rank by up to 0.4 ms, every second time. */
static te_status delay(uint32_t *random) {
    delay_args a;
    *random = mixed(*random + 1);
    a.nanoseconds = *random % 2 ? 0 : *random / 2 % 400000;
    return delay_kernel_launch(&here, te__grid_of(1, 1), &a);
}

/* A list with its tensors. */
typedef struct layer {
    const te_plan *plan;
    te_model model;
    te_param param[8];
    te_recipes recipes;
    te_model *models[1]; /* for the recipes and the buckets */
    te_buckets buckets;
    int watched; /* whether te_buckets watches this iteration */
    int width;
    size_t workspace; /* te_plan_workspace_bytes */
    void *params, *scales, *x, *dy, *y, *dx, *inferred, *saved[2]; /* saved: from te_comm_allocate and from te_allocate */
    float *grads;
} layer;

static te_status make(layer *l, const te_plan *plan, int width) {
    int params = 0;
    const size_t bytes = (size_t)MAX_ROWS * (size_t)width * 2, saved = te_plan_saved_bytes_of_rank(plan, MAX_ROWS, &here);
    void **const of[5] = {&l->x, &l->dy, &l->y, &l->dx, &l->inferred};
    l->plan = plan, l->width = width;
    for (int i = 0; i < plan->op_count; i++) params += plan->op[i].params;
    TE_TRY(te_allocate(&here, &l->params, te_plan_param_bytes(plan)));
    TE_TRY(te_allocate(&here, (void **)&l->grads, te_plan_grad_bytes(plan)));
    for (int i = 0; i < 5; i++) TE_TRY(te_allocate(&here, of[i], bytes));
    /* [saved] */
    TE_TRY(te_comm_allocate(&comm, &l->saved[0], saved, &here)); /* te_plan_saved_bytes_of_rank */
    /* [saved] */
    TE_TRY(te_allocate(&here, &l->saved[1], saved));
    TE_TRY(te_model_bind(&l->model, plan, l->param, params, l->params, l->grads, &here));
    TE_TRY(te_model_randomize(&l->model, 0.05f, 7, 100, &here));
    const te_buckets_config buckets = te_buckets_defaults();
    l->models[0] = &l->model;
    TE_TRY(te_buckets_init(&l->buckets, l->models, 1, &buckets, &here));
    l->workspace = te_plan_workspace_bytes(plan, &l->model, MAX_ROWS, &here);
    if (plan->fp8) {
        te_recipes_config config = te_recipes_defaults();
        if (plan != current_plan()) config.ranks = comm.world.size;
        const size_t recipe_bytes = te_recipes_bytes(l->models, 1, &config);
        TE_TRY(te_allocate(&here, &l->scales, recipe_bytes));
        TE_TRY(te_recipes_init(&l->recipes, l->scales, recipe_bytes, l->models, 1, &config, &here));
    }
    return te_context_reserve(&here, l->workspace);
}
static te_status drop(layer *l) {
    void *const memory[9] = {l->params, l->grads, l->x, l->dy, l->y, l->dx, l->inferred, l->saved[1], l->scales};
    for (int i = 0; i < 9; i++) te_release(&here, memory[i]);
    te_buckets_destroy(&l->buckets);
    return te_comm_release(&comm, l->saved[0], &here);
}
/* Runs all passes on `rows` rows, with saved[which]. */
typedef struct task {
    layer *l;
    int rows, which;
    uint32_t random;
} task;
static te_status passes_of(const task *t, te_context *ctx) {
    layer *l = t->l;
    const te_dtype dtype = l->plan->dtype;
    const int local = t->rows / comm.tensor.size;
    uint32_t random = t->random;
    te_batch batch;
    te_saved saved;
    memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved);
    batch.batch = 1, batch.seq = t->rows;
    saved.memory = l->saved[t->which], saved.bytes = te_plan_saved_bytes_of_rank(l->plan, MAX_ROWS, ctx);
    TE_TRY(delay(&random));
    TE_TRY(te_plan_infer(te_matrix(l->inferred, dtype, local, l->width), te_matrix(l->x, dtype, local, l->width), l->plan,
                         &l->model, &batch, ctx));
    TE_TRY(delay(&random));
    TE_TRY(te_plan_forward(te_matrix(l->y, dtype, local, l->width), &saved, te_matrix(l->x, dtype, local, l->width),
                           l->plan, &l->model, &batch, ctx));
    TE_TRY(delay(&random));
    if (l->watched) TE_TRY(te_buckets_begin(&l->buckets, ctx));
    const te_status status =
        te_plan_backward(te_matrix(l->dx, dtype, local, l->width), te_matrix(l->dy, dtype, local, l->width), &saved,
                         l->plan, &l->model, &batch, ctx);
    return status == TE_OK && l->watched ? te_buckets_finish(&l->buckets, ctx) : status;
}
/* Runs all passes with a workspace of exactly te_plan_workspace_bytes. */
static te_status passes(const te_graph *g, const void *arg, te_context *ctx) {
    const task *t = (const task *)arg;
    const size_t bytes = ctx->workspace_bytes;
    ctx->workspace_bytes = t->l->workspace;
    const te_status status = passes_of(t, ctx);
    ctx->workspace_bytes = bytes;
    return (void)g, status;
}
/* Copies the results to `out`. captured: as a graph that is replayed three times. */
static te_status make_all(const task *t, int captured, char *out) {
    layer *l = t->l;
    const size_t bytes = (size_t)(t->rows / comm.tensor.size) * (size_t)l->width * 2;
    const size_t grads = te_plan_grad_bytes(l->plan);
    void *const results[4] = {l->inferred, l->y, l->dx, l->grads};
    te_graph_pool pool;
    te_graph graph;
    for (int i = 0; i < 4; i++) TE_TRY(te_fill(&here, results[i], i == 3 ? 0 : 0xff, i == 3 ? grads : bytes));
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
        TE_TRY(te_copy(&here, out, results[i], n));
        out += n;
    }
    return te_comm_synchronize(&here);
}
/* The number of elements in which two results differ. */
static int64_t differ(const layer *l, int rows, const char *a, const char *b, int iteration) {
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
            printf("rank %d: iteration %d, %s, %d rows: %s: %lld of %lld numbers differ, the first is %lld\n",
                   comm.tensor.rank, iteration, l->plan->name, rows, names[i], (long long)off, (long long)(n / one),
                   (long long)first);
        a += n, b += n, wrong += off;
    }
    return wrong;
}
/* Random x and dy, different for each i. */
static te_status draw(layer *l, int i) {
    const int64_t count = (int64_t)MAX_ROWS * l->width;
    const uint32_t local = (uint32_t)(2 * comm.tensor.rank);
    TE_TRY(te_fill_normal(l->x, l->plan->dtype, count, 0.0f, 1.0f, 100 + (uint64_t)i, local, &here));
    return te_fill_normal(l->dy, l->plan->dtype, count, 0.0f, 1.0f, 100 + (uint64_t)i, local + 1, &here);
}
/* Runs a first step, after which fp8_delayed has scales. */
static te_status first_step(layer *l) {
    const task t = {l, MAX_ROWS, 0, 0};
    TE_TRY(draw(l, -1));
    TE_TRY(passes(0, &t, &here));
    return te_recipes_step(&l->recipes, &here);
}
/* Selects whether rows are gathered in FP8, by marking the scales as common to all ranks or not. */
static void gather_in_fp8(layer *l, int common) {
    for (int i = 0; i < (int)(sizeof l->param / sizeof l->param[0]); i++)
        if (l->param[i].fp8.scales) l->param[i].fp8.common = common;
}
static te_status compare_once(layer *l, int i, char *out[2], int64_t *compared, int64_t *wrong, int must) {
    te__overlap_memory *const memory = comm.tensor.memory;
    const uint32_t u = mixed((uint32_t)i + 11);
    const int size = comm.tensor.size, tile = TE_CUDA ? 256 * size : size, is_wide = l->width == WIDE;
    const int odd = u % 8 == 0, which = (int)(u / 8 % 4 == 0);
    const int rows = odd ? (int)(1 + u / 64 % (MAX_ROWS / (uint32_t)size)) * size : (int)(1 + u / 64 % (uint32_t)(MAX_ROWS / tile)) * tile;
    const int64_t before[3] = {memory ? memory->gathered : 0, memory ? memory->scattered : 0, memory ? memory->gathered_beside : 0};
    const task t = {l, rows, which, mixed(u + 77 + (uint32_t)comm.tensor.rank)};
    TE_TRY(draw(l, i));
    l->watched = u / 1024 % 4 == 0;
    if (memory) memory->two_kernel_bytes = u / 4096 % 2 ? 0 : INT64_MAX; /* the sum is in the epilogue, or in a second kernel */
    for (int run = 0; run < 2; run++) TE_TRY(make_all(&t, run && i % 5 == 4, out[0]));
    if (memory) {
        const int can = rows % tile == 0, two = is_twice(l->plan);
        const int64_t gathered = memory->gathered - before[0], scattered = memory->scattered - before[1],
                      beside = memory->gathered_beside - before[2];
        /* one overlap in each of three passes. Forward's needs symmetric memory; `recomputed` saves no x and gathers it a second time in backward */
        const int each = l->plan == current_plan() ? 0 : l->plan == recomputed_plan() ? 4 : 3 - which, gathers = can ? (2 * each) << two : 0;
        if (must && (gathered != gathers || scattered != (can ? 6 << two : 0) || beside != (can && two && !l->watched ? 2 : 0)))
            *wrong += 1 + printf("rank %d: iteration %d, %s, %d rows: %lld gathers, %lld of them with a weight gradient beside them, and "
                                 "%lld scatters overlapped\n", comm.tensor.rank, i, l->plan->name, rows, (long long)gathered,
                                 (long long)beside, (long long)scattered);
        /* in FP8 the GEMM that scatters accumulates in the tensor cores only, and another kernel would not */
        if (is_wide || l->plan->fp8 || u / 32 % 2) memory->serial = 1;
        else comm.tensor.memory = 0;
    }
    const int in_fp8 = l->recipes.config.ranks == size;
    /* On the host: gathering FP8 rows and casting gathered rows give the same bits, since these rows are the caller's bf16.
     * (On CUDA these are different GEMM kernels.) */
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
static te_status run(int iterations, int64_t *compared, int64_t *wrong, int must, int leave) {
    layer layers[LAYERS];
    const size_t max_bytes = 3 * (size_t)MAX_ROWS * WIDE * 2 + te_plan_grad_bytes(wide_plan()) + te_plan_grad_bytes(narrow_plan());
    char *out[2] = {(char *)malloc(max_bytes), (char *)malloc(max_bytes)};
    memset(layers, 0, sizeof layers);
    TE_REQUIRE(out[0] && out[1], &here, TE_ERROR_MEMORY, "no memory");
    *wrong += te_comm_allocate(&comm, 0, 16, &here) != TE_ERROR_NULL;
    *wrong += te_comm_release(0, 0, &here) != TE_ERROR_NULL;
    TE_TRY(te_allocate(&here, &pool_memory, 1 << 16));
    TE_TRY(make(&layers[0], narrow_plan(), NARROW));
    TE_TRY(make(&layers[1], with_rope_plan(), NARROW));
    TE_TRY(make(&layers[2], wide_plan(), WIDE));
    TE_TRY(make(&layers[3], narrow_fp8_plan(), NARROW));
    TE_TRY(make(&layers[4], wide_fp8_plan(), WIDE));
    TE_TRY(make(&layers[5], current_plan(), NARROW));
    TE_TRY(make(&layers[6], recomputed_plan(), NARROW));
    TE_TRY(make(&layers[7], twice_plan(), NARROW));
    TE_TRY(make(&layers[8], twice_fp8_plan(), NARROW));
    for (int i = 0; i < LAYERS; i++)
        if (layers[i].plan->fp8) TE_TRY(first_step(&layers[i]));
    for (int i = 0; i < iterations; i++) TE_TRY(compare_once(&layers[i % LAYERS], i, out, compared, wrong, must));
    if (leave && comm.tensor.rank == comm.tensor.size - 1) _exit(0);
    if (leave) TE_TRY(compare_once(&layers[0], iterations, out, compared, wrong, 0));
    for (int i = 0; i < LAYERS; i++) TE_TRY(drop(&layers[i]));
    te_release(&here, pool_memory), free(out[0]), free(out[1]);
    return TE_OK;
}

int main(int argc, char **argv) {
    const int iterations = argc > 1 ? atoi(argv[1]) : 20, must = argc > 2, leave = argc > 3;
    int64_t compared = 0, wrong = 0;
    int rank, size;
    te_comm_rank_from_env(&rank, &size);
    te_comm_config config = te_comm_defaults();
    config.file = getenv("RANKS_FILE"), config.tensor = size;
    /* [config] */
    config.overlap_bytes = (int64_t)MAX_ROWS * WIDE * 2; /* tokens, columns, bytes */
    /* [config] */
    config.peer_bytes = config.overlap_bytes; /* so that all sums are in the order of the ranks, as overlapped ones are */
    if (getenv("RANKS_TIMEOUT")) config.timeout = atof(getenv("RANKS_TIMEOUT"));
    te_status status = te_context_create(&here, TE_CUDA ? te_comm_local_rank_from_env() : 0, 3);
    if (status == TE_OK) status = te_comm_create(&comm, &config, &here);
    here.gemm_custom = 2;
    if (status == TE_OK) status = run(iterations, &compared, &wrong, must, leave);
    const te__overlap_memory *memory = status == TE_OK ? comm.tensor.memory : 0;
    if (status != TE_OK) printf("rank %d: %s: %s\n", rank, te_status_string(status), te_last_error(&here));
    else if (must && size > 1 && !memory) wrong += printf("rank %d: the ranks have no symmetric memory\n", rank);
    else if (!rank || wrong)
        printf("rank %d of %d: %lld numbers, %lld wrong; %lld gathers and %lld scatters overlapped a GEMM\n", rank, size,
               (long long)compared, (long long)wrong, memory ? (long long)memory->gathered : 0LL,
               memory ? (long long)memory->scattered : 0LL);
    fflush(stdout);
    te_comm_destroy(&comm); /* does not wait for ranks that have failed */
    te_context_destroy(&here);
    if (status == TE_ERROR_COMM) _exit(3); /* exit handlers of MPI would wait */
    return status != TE_OK || wrong;
}
