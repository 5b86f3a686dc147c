/* peers.c -- collectives of random kinds, formats and sizes, checked element by element on the device, while ranks are
 * delayed at random. On CUDA most of them go through symmetric memory (te/comm/impl/symmetric_memory.h).
 *
 *     mpirun -n 4 peers COUNT [peers [patterns]]  rank 0 prints how many values were compared; with `peers` it is an
  *                                                 error if the ranks have no symmetric memory; `patterns`: compares
  *                                                 fused collective patterns bit for bit with the unfused list
 *
 * Exit code 0: all is right; 1: not; 3: another rank has failed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "te/te.h"
#include "te/comm/impl/symmetric_memory.h"

enum { THREADS = TE_CUDA ? 256 : 1, BLOCKS = TE_CUDA ? 32 : 1, MAX_COUNT = TE_CUDA ? 3 << 19 : 3 << 18, SHIFT = 8 /* elements */ };
static te_context here;
static te_comm comm;

/* Element i of a rank's x. Elements have both signs and several magnitudes. */
TE_BOTH uint32_t mixed(uint32_t a) {
    a = (a ^ (a >> 16)) * 0x7feb352du, a = (a ^ (a >> 15)) * 0x846ca68bu;
    return a ^ (a >> 16);
}
TE_BOTH float value_of(uint32_t seed, int rank, int64_t i, te_dtype dtype) {
    const uint32_t u = mixed(mixed((uint32_t)i * 8u + (uint32_t)rank) + seed);
    return te_round_to(((float)(u >> 8 & 0xffff) / 65536.0f - 0.5f) * (u % 8 ? 1.0f : 100.0f), dtype);
}
typedef struct task {
    void *x, *y;
    int64_t *wrong; /* [BLOCKS * THREADS] */
    int64_t count;  /* elements of a rank */
    int kind, rank, ranks;
    te_dtype dtype;
    uint32_t seed, delay; /* nanoseconds */
} task;

/* Fused collective patterns: an all_reduce behind a fork and behind a linear, and reduce_scatter .. all_gather. */
enum { WIDE = TE_CUDA ? 8192 : 64, NARROW = TE_CUDA ? 512 : 48, INNER = TE_CUDA ? 1024 : 32,
       ROWS = TE_CUDA ? 128 : 70 /* no more rows than multiprocessors, because norms of more rows sum in another order */ };
#define REDUCED_LIST                                                                                                  \
    (fork, x1), (scale, s, 0.5f), (all_reduce, r), (add, x1), (fork, x2), (rmsnorm, n, WIDE), (add, x2)
#define LINEAR_LIST                                                                                                  \
    (fork, x1), (copy_to_group, c), (linear, in, NARROW, INNER, (shard, columns)),                                    \
    (linear, out, INNER, NARROW, (shard, rows)), (all_reduce, r), (bias, b, NARROW), (add, x1), (fork, x2),           \
    (layernorm, n, NARROW), (add, x2)
#define BOUNDARY_LIST                                                                                                     \
    (fork, x1), (all_gather, g), (linear, in, NARROW, INNER, (shard, columns)),                                       \
    (linear, out, INNER, NARROW, (shard, rows)), (reduce_scatter, s), (bias, b, NARROW), (add, x1), (fork, x2),       \
    (rmsnorm, n, NARROW), (all_gather, g2), (linear, in2, NARROW, INNER, (shard, columns)),                           \
    (linear, out2, INNER, NARROW, (shard, rows)), (reduce_scatter, s2), (add, x2)
/* The end of a block whose list also has the norm of the next block: the extra output `sum` is the residual, which the
 * list gets as the extra input `before`. */
#define OUTPUT_LIST                                                                                                   \
    (input, before, NARROW), (copy_to_group, c), (linear, in, NARROW, INNER, (shard, columns)),                       \
    (linear, out, INNER, NARROW, (shard, rows)), (all_reduce, r), (add, before), (output, sum), (rmsnorm, n, NARROW)
#define OUTPUT_BIAS_LIST                                                                                              \
    (input, before, WIDE), (scale, s, 0.5f), (all_reduce, r), (bias, b, WIDE), (add, before), (output, sum),          \
    (layernorm, n, WIDE)
#define OUTPUT_BOUNDARY_LIST                                                                                          \
    (fork, x1), (all_gather, g), (linear, in, NARROW, INNER, (shard, columns)),                                       \
    (linear, out, INNER, NARROW, (shard, rows)), (reduce_scatter, s), (bias, b, NARROW), (add, x1), (output, sum),    \
    (rmsnorm, n, NARROW), (all_gather, g2), (linear, in2, NARROW, INNER, (shard, columns)),                           \
    (linear, out2, INNER, NARROW, (shard, rows)), (reduce_scatter, s2)
/* The post-norm of Gemma 2, whose input backward reads. */
#define POST_NORM_LIST                                                                                                \
    (fork, x1), (copy_to_group, c), (linear, in, NARROW, INNER, (shard, columns)),                                    \
    (linear, out, INNER, NARROW, (shard, rows)), (all_reduce, r), (rmsnorm1p, n, NARROW), (add, x1)
TE_SEQUENTIAL(reduced, bf16, REDUCED_LIST)
TE_SEQUENTIAL(linear_reduced, f16, LINEAR_LIST)
TE_SEQUENTIAL(boundary, (bf16, (rows, shard)), BOUNDARY_LIST)
TE_SEQUENTIAL(boundary_fp8, (bf16, (rows, shard), (recipe, fp8_delayed)), BOUNDARY_LIST)
TE_SEQUENTIAL(output, bf16, OUTPUT_LIST)
TE_SEQUENTIAL(output_bias, f16, OUTPUT_BIAS_LIST)
TE_SEQUENTIAL(post_norm, bf16, POST_NORM_LIST)
TE_SEQUENTIAL(output_boundary, (bf16, (rows, shard)), OUTPUT_BOUNDARY_LIST)
#undef TE_FORWARD_all_reduce_add_output_norm
#undef TE_FORWARD_all_reduce_bias_add_output_norm
#undef TE_FORWARD_all_reduce_norm_add
#undef TE_FORWARD_reduce_scatter_bias_add_output_norm_all_gather
#undef TE_FORWARD_all_reduce_add_fork_norm
#undef TE_FORWARD_all_reduce_bias_add_fork_norm
#undef TE_FORWARD_reduce_scatter_bias_add_fork_norm_all_gather
TE_SEQUENTIAL(reduced_unfused, bf16, REDUCED_LIST)
TE_SEQUENTIAL(linear_reduced_unfused, f16, LINEAR_LIST)
TE_SEQUENTIAL(boundary_unfused, (bf16, (rows, shard)), BOUNDARY_LIST)
TE_SEQUENTIAL(boundary_fp8_unfused, (bf16, (rows, shard), (recipe, fp8_delayed)), BOUNDARY_LIST)
TE_SEQUENTIAL(output_unfused, bf16, OUTPUT_LIST)
TE_SEQUENTIAL(output_bias_unfused, f16, OUTPUT_BIAS_LIST)
TE_SEQUENTIAL(post_norm_unfused, bf16, POST_NORM_LIST)
TE_SEQUENTIAL(output_boundary_unfused, (bf16, (rows, shard)), OUTPUT_BOUNDARY_LIST)
static_assert((int)output_infer_steps == 5 && (int)output_forward_steps == 5, "input, copy_to_group, two GEMMs, all_reduce .. norm");
static_assert((int)output_unfused_infer_steps == 6, "input, copy_to_group, two GEMMs, all_reduce, add .. norm");
static_assert((int)post_norm_infer_steps + 1 == (int)post_norm_unfused_infer_steps, "all_reduce, norm_add");
static_assert((int)output_boundary_infer_steps + 3 == (int)output_boundary_unfused_infer_steps, "as boundary");
static_assert((int)boundary_infer_steps + 3 == (int)boundary_unfused_infer_steps, "reduce_scatter, two pointwise kernels, all_gather");

/* Fills x of this rank, after the delay. */
TE_FN void fill(const task *t, te_block b) {
    int group;
    const int id = te_lanes_here(THREADS, &group).id;
    const int64_t all = t->count * (t->kind == 1 ? t->ranks : 1);
    const uint64_t start = te_nanoseconds();
    while (t->delay && te_nanoseconds() - start < t->delay) {}
    for (int64_t i = (int64_t)b.x * THREADS + id; i < all; i += (int64_t)b.nx * THREADS)
        te_store(t->x, i, value_of(t->seed, t->rank, i, t->dtype), t->dtype);
}
TE_KERNEL(fill_kernel, THREADS, task, fill(te_args, te_at))

/* Checks y, which must have the bits of the f32 sum in the order of the ranks, rounded once. */
TE_FN void compare(const task *t, te_block b) {
    int group;
    const int id = te_lanes_here(THREADS, &group).id;
    const int64_t all = t->count * (t->kind == 2 ? t->ranks : 1), slot = (int64_t)b.x * THREADS + id;
    for (int64_t i = slot; i < all; i += (int64_t)b.nx * THREADS) {
        float want = 0;
        if (t->kind == 2) want = value_of(t->seed, (int)(i / t->count), i % t->count, t->dtype);
        else
            for (int r = 0; r < t->ranks; r++) {
                const float one = value_of(t->seed, r, t->kind == 1 ? t->rank * t->count + i : i, t->dtype);
                want = r ? want + one : one;
            }
        t->wrong[slot] += te_load(t->y, i, t->dtype) != te_round_to(want, t->dtype);
        te_store(t->y, i, -1.0f, t->dtype); /* so that the next comparison notices a missing store */
    }
}
TE_KERNEL(compare_kernel, THREADS, task, compare(te_args, te_at))

static te_status run(int iterations, int64_t *compared, int64_t *wrong) {
    const te_group *g = te_tensor_group(&here);
    const size_t bytes = (size_t)(MAX_COUNT * g->size + SHIFT) * sizeof(float), sums = BLOCKS * THREADS * sizeof(int64_t);
    static int64_t counts[BLOCKS * THREADS];
    const int per_algorithm = te_max(1, te_min(250, iterations / 4)); /* the number of collectives with each algorithm */
    void *x = 0, *y = 0;
    task t;
    memset(&t, 0, sizeof t);
    TE_TRY(te_allocate(&here, &x, bytes));
    TE_TRY(te_allocate(&here, &y, bytes));
    TE_TRY(te_allocate(&here, (void **)&t.wrong, sums));
    TE_TRY(te_fill(&here, t.wrong, 0, sums));
    t.rank = g->rank, t.ranks = g->size;
    for (int i = 0; i < iterations; i++) {
        const uint32_t u = mixed((uint32_t)i + 77), v = mixed(u), w = mixed(v + 5 + (uint32_t)g->rank); /* w: differs by rank */
        const te_dtype dtypes[3] = {TE_f32, TE_bf16, TE_f16};
        t.seed = u, t.dtype = dtypes[u % 3], t.kind = (int)(u / 3 % 3), t.delay = w % 4 ? 0 : w / 4 % 60000;
        t.count = 1 + v % (MAX_COUNT >> (v >> 24) % 19);
        if (v & 1 << 23) t.count = te_min(MAX_COUNT, te_round_up(t.count, 8)); /* a count of whole packets */
        const size_t shift = u & 1 << 20 ? 0 : (u >> 21) % SHIFT * te_dtype_bytes(t.dtype);
        t.x = (char *)x + shift, t.y = t.kind == 0 && u & 1 << 16 ? t.x : (char *)y + shift;
        if (t.kind == 1 && u & 1 << 16) /* in place */
            t.y = (char *)t.x + (size_t)(g->rank * t.count) * te_dtype_bytes(t.dtype);
        if (g->peers && i % per_algorithm == 0) /* changes between one-shot and two-shot */
            g->peers->one_shot_bytes = i / per_algorithm % 2 ? 0 : te_min(g->peers->max_bytes, 2 * g->peers->max_bytes / g->size);
        TE_TRY(fill_kernel_launch(&here, te__grid_of(BLOCKS, 1), &t));
        if (t.kind == 0) TE_TRY(te_group_all_reduce(g, t.y, t.x, t.count, t.dtype, &here));
        else if (t.kind == 1) TE_TRY(te_group_reduce_scatter(g, t.y, t.x, t.count, t.dtype, &here));
        else TE_TRY(te_group_all_gather(g, t.y, t.x, t.count, t.dtype, &here));
        /* NCCL and MPI may round partial sums of more than two ranks */
        const int64_t through = g->peers ? g->peers->collectives : 0;
        static int64_t before;
        if (t.kind == 2 || g->size <= 2 || through > before) {
            TE_TRY(compare_kernel_launch(&here, te__grid_of(BLOCKS, 1), &t));
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

/* ---- fused collective patterns ----------------------------------------------------------------------------------- */

/* Counts 16-bit elements that differ, and overwrites b, so that the next comparison notices a missing store. */
typedef struct comparison { const void *a; void *b; int64_t *wrong, count; } comparison;
TE_FN void differ(const comparison *t, te_block at) {
    int group;
    const int64_t slot = (int64_t)at.x * THREADS + te_lanes_here(THREADS, &group).id;
    for (int64_t i = slot; i < t->count; i += (int64_t)at.nx * THREADS) {
        uint16_t a, b;
        memcpy(&a, (const char *)t->a + 2 * i, 2), memcpy(&b, (const char *)t->b + 2 * i, 2);
        t->wrong[slot] += a != b;
        b = 0x7fff;
        memcpy((char *)t->b + 2 * i, &b, 2);
    }
}
TE_KERNEL(differ_kernel, THREADS, comparison, differ(te_args, te_at))

enum { RESULTS = 6 };
/* A list and the same without the fused pattern, with the same parameters. */
typedef struct fused_and_unfused {
    const te_plan *plan[2];
    te_model model[2];
    te_param param[2][8];
    te_recipes recipes[2]; /* of lists with an FP8 recipe */
    te_model *models[2][1];
    int width;
    /* results: y of inference and of forward, dx; of lists with extra inputs and outputs also `sum` of inference and of
     * forward, and the gradient of `before` */
    void *params, *scales[2], *grads[2], *saved[2], *results[2][RESULTS];
    int has_output, has_input;
} fused_and_unfused;
static te_status make(fused_and_unfused *t, const te_plan *fused, const te_plan *unfused, int width) {
    int params = 0;
    t->plan[0] = fused, t->plan[1] = unfused, t->width = width;
    for (int i = 0; i < fused->op_count; i++) {
        params += fused->op[i].params;
        t->has_output |= (fused->op[i].flags & TE_IS_OUTPUT) != 0, t->has_input |= (fused->op[i].flags & TE_IS_INPUT) != 0;
    }
    TE_TRY(te_allocate(&here, &t->params, te_plan_param_bytes(fused)));
    for (int k = 0; k < 2; k++) {
        TE_TRY(te_allocate(&here, &t->grads[k], te_plan_grad_bytes(fused)));
        TE_TRY(te_allocate(&here, &t->saved[k], te_plan_saved_bytes_of_rank(t->plan[k], ROWS, &here)));
        for (int i = 0; i < RESULTS; i++) TE_TRY(te_allocate(&here, &t->results[k][i], (size_t)ROWS * (size_t)width * 2));
        TE_TRY(te_model_bind(&t->model[k], t->plan[k], t->param[k], params, t->params, (float *)t->grads[k], &here));
        TE_TRY(te_context_reserve(&here, te_plan_workspace_bytes(t->plan[k], &t->model[k], ROWS, &here)));
    }
    TE_TRY(te_model_randomize(&t->model[0], 0.05f, 7, 100, &here)); /* shards differ by rank */
    for (int k = 0; k < 2 && fused->fp8; k++) {
        te_recipes_config config = te_recipes_defaults();
        config.ranks = te_world_group(&here)->size, t->models[k][0] = &t->model[k];
        const size_t bytes = te_recipes_bytes(t->models[k], 1, &config);
        TE_TRY(te_allocate(&here, &t->scales[k], bytes));
        TE_TRY(te_recipes_init(&t->recipes[k], t->scales[k], bytes, t->models[k], 1, &config, &here));
        TE_TRY(te_context_reserve(&here, te_plan_workspace_bytes(t->plan[k], &t->model[k], ROWS, &here)));
    }
    return TE_OK;
}
static te_status drop(fused_and_unfused *t) {
    te_release(&here, t->params);
    for (int k = 0; k < 2; k++) {
        te_release(&here, t->grads[k]), te_release(&here, t->saved[k]), te_release(&here, t->scales[k]);
        for (int i = 0; i < RESULTS; i++) te_release(&here, t->results[k][i]);
    }
    return TE_OK;
}
/* Inference, forward and, if asked, backward of one list; each rank is delayed at random. */
static te_status passes(fused_and_unfused *t, int k, int rows, int backward, void *const x[2], task *delay, uint32_t random) {
    const te_dtype dtype = t->plan[k]->dtype;
    const int local_rows = te__has_sharded_rows(t->plan[k]) ? rows / here.comm->tensor.size : rows;
    const te_tensor in = te_matrix(x[0], dtype, local_rows, t->width), dy = te_matrix(x[1], dtype, local_rows, t->width);
    te_batch batch;
    te_saved saved;
    memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved);
    batch.batch = 1, batch.seq = rows;
    te_edge edges[2]; /* the value of `before` is dy, and so is the gradient of `sum` */
    edges[0].name = "before", edges[0].value = dy, edges[0].grad = te_matrix(t->results[k][5], dtype, local_rows, t->width);
    edges[1].name = "sum", edges[1].value = te_matrix(t->results[k][3], dtype, local_rows, t->width), edges[1].grad = dy;
    batch.edges = edges, batch.edge_count = 2;
    saved.memory = t->saved[k], saved.bytes = te_plan_saved_bytes_of_rank(t->plan[k], ROWS, &here);
    TE_TRY(te_plan_infer(te_matrix(t->results[k][0], dtype, local_rows, t->width), in, t->plan[k], &t->model[k], &batch, &here));
    delay->delay = random % 4 ? 0 : random / 4 % 60000, delay->count = 0;
    TE_TRY(fill_kernel_launch(&here, te__grid_of(1, 1), delay));
    edges[1].value.data = t->results[k][4];
    TE_TRY(te_plan_forward(te_matrix(t->results[k][1], dtype, local_rows, t->width), &saved, in, t->plan[k], &t->model[k], &batch,
                           &here));
    if (!backward) return TE_OK;
    TE_TRY(te_fill(&here, t->grads[k], 0, te_plan_grad_bytes(t->plan[k])));
    TE_TRY(te_plan_backward(te_matrix(t->results[k][2], dtype, local_rows, t->width), dy, &saved, t->plan[k], &t->model[k],
                            &batch, &here));
    return t->plan[k]->fp8 ? te_recipes_step(&t->recipes[k], &here) : TE_OK;
}
static te_status run_patterns(int iterations, int64_t *compared, int64_t *wrong) {
    const te_group *g = te_tensor_group(&here);
    const size_t sums = BLOCKS * THREADS * sizeof(int64_t);
    static int64_t counts[BLOCKS * THREADS];
    void *x[2]; /* and dy */
    enum { BOUNDARY = 5, LISTS = 8 }; /* BOUNDARY: the first of the lists with reduce_scatter .. all_gather */
    static fused_and_unfused all[LISTS];
    const int blocks = g->peers ? g->peers->max_blocks : 0;
    const int64_t max_bytes = g->peers ? g->peers->max_bytes : 0;
    task t;
    memset(&t, 0, sizeof t);
    for (int i = 0; i < 2; i++) TE_TRY(te_allocate(&here, &x[i], (size_t)ROWS * WIDE * 2));
    t.x = x[0];
    TE_TRY(te_allocate(&here, (void **)&t.wrong, sums));
    TE_TRY(te_fill(&here, t.wrong, 0, sums));
    t.rank = g->rank, t.ranks = g->size, t.kind = 0;
    TE_TRY(make(&all[0], reduced_plan(), reduced_unfused_plan(), WIDE));
    TE_TRY(make(&all[1], linear_reduced_plan(), linear_reduced_unfused_plan(), NARROW));
    TE_TRY(make(&all[2], output_plan(), output_unfused_plan(), NARROW));
    TE_TRY(make(&all[3], output_bias_plan(), output_bias_unfused_plan(), WIDE));
    TE_TRY(make(&all[4], post_norm_plan(), post_norm_unfused_plan(), NARROW));
    TE_TRY(make(&all[BOUNDARY], boundary_plan(), boundary_unfused_plan(), NARROW));
    TE_TRY(make(&all[BOUNDARY + 1], boundary_fp8_plan(), boundary_fp8_unfused_plan(), NARROW));
    TE_TRY(make(&all[BOUNDARY + 2], output_boundary_plan(), output_boundary_unfused_plan(), NARROW));
    for (int i = 0; i < iterations; i++) {
        const uint32_t u = mixed((uint32_t)i + 77), v = mixed(u), w = mixed(v + 5 + (uint32_t)g->rank); /* w: differs by rank */
        fused_and_unfused *of = &all[mixed(u + 1) % LISTS];
        const int unit = of >= &all[BOUNDARY] ? g->size : 1, max_rows = (u / 4 % 2 ? 16 : ROWS) / unit;
        const int max_of = of == &all[0] || of == &all[3] ? max_rows : te_min(max_rows, 24); /* limits the number of distinct GEMM shapes */
        const int rows = (int)(1 + v % (uint32_t)max_of * (uint32_t)(max_rows / max_of)) * unit;
        const int local_rows = rows / unit, backward = u / 8 % 4 == 0;
        int64_t pieces = max_bytes;
        if (g->peers) { /* varies the rows of a block, the rows of a launch, and one-shot or two-shot */
            g->peers->max_blocks = u / 32 % 3 ? (int)(1 + v / 64 % 9) : blocks;
            if (u / 128 % 2 == 0 && !(backward && of->width == NARROW && of < &all[BOUNDARY])) /* its backward has a plain all_reduce */
                pieces = (int64_t)((uint32_t)g->size + v / 1024 % 50) * of->width * 2;
            g->peers->one_shot_bytes = u / 256 % 2 ? pieces : 0;
        }
        t.seed = u, t.dtype = of->plan[0]->dtype, t.delay = w % 4 ? 0 : w / 4 % 60000;
        t.count = (int64_t)local_rows * of->width;
        TE_TRY(fill_kernel_launch(&here, te__grid_of(BLOCKS, 1), &t));
        if (backward || of->has_input) TE_TRY(te_copy(&here, x[1], x[0], (size_t)t.count * 2));
        for (int k = 0; k < 2; k++) { /* only a pattern is split into several launches: a larger plain all_reduce would use NCCL */
            if (g->peers) g->peers->max_bytes = k && of < &all[BOUNDARY] ? max_bytes : pieces;
            TE_TRY(passes(of, k, rows, backward, x, &t, mixed(w + (uint32_t)k)));
        }
        for (int m = 0; m <= RESULTS; m++) { /* the last: the gradients of the parameters */
            const int has[RESULTS + 1] = {1, 1, backward, of->has_output, of->has_output, backward && of->has_input, backward};
            comparison a;
            if (!has[m]) continue;
            memset(&a, 0, sizeof a);
            a.a = m < RESULTS ? of->results[1][m] : of->grads[1], a.b = m < RESULTS ? of->results[0][m] : of->grads[0];
            a.wrong = t.wrong;
            a.count = m < RESULTS ? (int64_t)local_rows * of->width : (int64_t)(te_plan_grad_bytes(of->plan[0]) / 2);
            TE_TRY(differ_kernel_launch(&here, te__grid_of(BLOCKS, 1), &a));
            *compared += a.count;
        }
        if (i % 100 == 99) TE_TRY(te_comm_synchronize(&here));
    }
    TE_TRY(te_copy(&here, counts, t.wrong, sums));
    TE_TRY(te_comm_synchronize(&here));
    for (int i = 0; i < BLOCKS * THREADS; i++) *wrong += counts[i];
    for (int i = 0; i < LISTS; i++) TE_TRY(drop(&all[i]));
    te_release(&here, x[0]), te_release(&here, x[1]), te_release(&here, t.wrong);
    return TE_OK;
}

int main(int argc, char **argv) {
    const int iterations = argc > 1 ? atoi(argv[1]) : 200, required = argc > 2 && !strcmp(argv[2], "peers");
    const int patterns = argc > 3 && !strcmp(argv[3], "patterns");
    int64_t compared = 0, wrong = 0;
    int rank, size;
    te_comm_rank_from_env(&rank, &size);
    te_comm_config config = te_comm_defaults();
    config.file = getenv("RANKS_FILE"), config.tensor = size, config.peer_bytes = 8 << 20;
    if (getenv("RANKS_ALL_REDUCE")) config.all_reduce = (te_all_reduce_algorithm)atoi(getenv("RANKS_ALL_REDUCE"));
    if (getenv("RANKS_TIMEOUT")) config.timeout = atof(getenv("RANKS_TIMEOUT"));
    te_status status = te_context_create(&here, TE_CUDA ? te_comm_local_rank_from_env() : 0, 3);
    if (status == TE_OK) status = te_comm_create(&comm, &config, &here);
    here.gemm_custom = patterns && getenv("RANKS_GEMM_CUSTOM") ? atoi(getenv("RANKS_GEMM_CUSTOM")) : here.gemm_custom;
    if (status == TE_OK) status = patterns ? run_patterns(iterations, &compared, &wrong) : run(iterations, &compared, &wrong);
    const te_peer_memory *peers = status == TE_OK ? te_tensor_group(&here)->peers : 0;
    if (status != TE_OK) printf("rank %d: %s: %s\n", rank, te_status_string(status), te_last_error(&here));
    else if (required && size > 1 && !peers) wrong += printf("rank %d: the ranks have no symmetric memory\n", rank);
    else if (!rank || wrong)
        printf("rank %d of %d: %lld values, %lld wrong; %lld of %d collectives through symmetric memory\n", rank, size,
               (long long)compared, (long long)wrong, peers ? (long long)peers->collectives : 0LL, iterations);
    if (patterns && peers && !rank)
        printf("%lld fused patterns, %lld that gather FP8, %lld behind a GEMM that sends\n", (long long)peers->fused,
               (long long)peers->fused_fp8, (long long)peers->gemms);
    if (patterns && required && (!peers || peers->fused < iterations || !peers->fused_fp8 || !peers->gemms))
        wrong += printf("rank %d: the patterns were not fused\n", rank);
    fflush(stdout);
    te_comm_destroy(&comm); /* does not wait for ranks that have failed */
    te_context_destroy(&here);
    if (status == TE_ERROR_COMM) _exit(3); /* exit handlers of MPI would wait */
    return status != TE_OK || wrong;
}
