/* performance.c -- one Transformer layer, forward and backward, by each technique of large-scale training. It prints
 * each variant's time beside the plain layer's, and checks that all variants compute the same numbers.
 *
 *     1  the plain layer, the whole batch on one rank
 *     2  gradient accumulation: micro-batches, whose weight gradients the wgrad GEMMs add up in f32
 *     3  GEMMs in FP8, weights cast for each micro-batch
 *     4  GEMMs in FP8, weights cast once a step and cached
 *     5  data parallel: each rank has a part of the batch; gradients are summed in buckets while backward runs
 *     6  tensor parallel: each rank has a part of the heads and columns
 *     7  tensor and sequence parallel: between the sharded GEMMs each rank has a part of the rows, too
 *     8  all together: replicas of tensor groups, sequence parallel, micro-batches, FP8 with cached weights
 *
 * 5 to 8 run on RANKS processes (4; -DRANKS=2 or 8 chooses another number) and need -DTE_COMM. On a GPU the layer has
 * 4096 columns and 8192 tokens. On the host it is small, and the ranks share the processors.
 *
 *     cc    -O3 -march=native -I. examples/performance/performance.c -o performance -lm && ./performance
 *     mpicc -O3 -march=native -DTE_COMM -I. examples/performance/performance.c -o performance -lm
 *     nvcc  -O3 -DTE_COMM -gencode arch=compute_90a,code=sm_90a -I. -x cu examples/performance/performance.c \
 *           -o performance -lcublasLt -lnccl
 *     mpirun -n 4 ./performance /tmp/run    (GPU: ranks find each other by new files whose names begin with /tmp/run)
 *
 * Rank 0 prints. Exit code 1: a call failed, or the numbers differ on a rank.
 */
#include "te/te.h"

#include <math.h>   /* sqrt */
#include <stdio.h>
#include <stdlib.h> /* malloc */
#include <time.h>   /* timespec_get */

#ifndef RANKS
#define RANKS 4
#endif
enum { BATCH = RANKS > 4 ? RANKS : 4, MICRO_BATCHES = 2, TENSOR = RANKS / 2, PARAMS = 12 };
#ifdef __CUDACC__
#define DTYPE bf16
enum { HIDDEN = 4096, FFN = 16384, HEADS = 32, SEQ = 8192 / BATCH, ROUNDS = 20 };
#else
#define DTYPE f32
enum { HIDDEN = 128, FFN = 256, HEADS = 8, SEQ = 64 / BATCH, ROUNDS = 3 };
#endif
enum { ROWS = BATCH * SEQ };
static_assert(RANKS % 2 == 0 && BATCH % RANKS == 0 && SEQ % RANKS == 0 && HEADS % RANKS == 0, "2, 4 or 8 ranks");

/* [lists] */
#define PLAIN(H, F)                                                                                                   \
    (fork, x1), (layernorm, ln1, H), (linear, qkv, H, 3 * (H)), (bias, qkv_b, 3 * (H)),                               \
    (attention, attn, HEADS, HEADS, (H) / HEADS), (linear, proj, H, H), (bias, proj_b, H), (add, x1),                 \
    (fork, x2), (layernorm, ln2, H), (linear, fc1, H, F), (bias, fc1_b, F), (gelu, act),                              \
    (linear, fc2, F, H), (bias, fc2_b, H), (add, x2)
/* The same on N ranks. ENTER and LEAVE: the collectives in front of and behind each sharded part. */
#define SHARDED(H, F, N, ENTER, LEAVE)                                                                                 \
    (fork, x1), (layernorm, ln1, H), (ENTER, e1), (linear, qkv, H, 3 * (H) / N, (shard, columns), (parts, 3)),        \
    (bias, qkv_b, 3 * (H) / N), (attention, attn, HEADS / N, HEADS / N, (H) / HEADS),                                 \
    (linear, proj, (H) / N, H, (shard, rows)), (LEAVE, l1), (bias, proj_b, H), (add, x1),                             \
    (fork, x2), (layernorm, ln2, H), (ENTER, e2), (linear, fc1, H, (F) / N, (shard, columns)), (bias, fc1_b, (F) / N), \
    (gelu, act), (linear, fc2, (F) / N, H, (shard, rows)), (LEAVE, l2), (bias, fc2_b, H), (add, x2)

TE_SEQUENTIAL(plain, DTYPE, PLAIN(HIDDEN, FFN))
TE_SEQUENTIAL(fp8, (DTYPE, (recipe, fp8_delayed)), PLAIN(HIDDEN, FFN))
#ifdef TE_COMM
TE_SEQUENTIAL(tensor, DTYPE, SHARDED(HIDDEN, FFN, RANKS, copy_to_group, all_reduce))
TE_SEQUENTIAL(sequence, (DTYPE, (rows, shard)), SHARDED(HIDDEN, FFN, RANKS, all_gather, reduce_scatter))
TE_SEQUENTIAL(together, (DTYPE, (rows, shard), (recipe, fp8_delayed)),
              SHARDED(HIDDEN, FFN, TENSOR, all_gather, reduce_scatter))
#endif
/* [lists] */

/* One variant. Its tensors have the rows of the whole batch; a rank reads and writes only its part of them. */
typedef struct variant {
    const char *name;
    const te_plan *plan;
    int micro_batches, casts_each; /* casts_each: cast the weights for each micro-batch */
    te_context *ctx;
    te_model model, *models[1];
    te_param param[PARAMS];
    te_saved saved;
    te_buckets buckets;
    te_recipes recipes;
    float *grads;
    char *x, *y, *dy, *dx;
} variant;

/* ---- a rank's rows, and its part of a gradient ------------------------------------------------------------------- */

static int replicas(const variant *w) { return te_data_group(w->ctx)->size; }
static int row_shards(const variant *w) { return te__has_sharded_rows(w->plan) ? te_tensor_group(w->ctx)->size : 1; }
static int local_rows(const variant *w) { return ROWS / replicas(w) / w->micro_batches / row_shards(w); }
static int first_row(const variant *w, int micro_batch) {
    const int batches = te_data_group(w->ctx)->rank * w->micro_batches + micro_batch;
    return (batches * row_shards(w) + (row_shards(w) > 1 ? te_tensor_group(w->ctx)->rank : 0)) * local_rows(w);
}
static te_tensor rows_of(const variant *w, char *data, int micro_batch) {
    const size_t row = HIDDEN * te_dtype_bytes(w->plan->dtype);
    return te_matrix(data + (size_t)first_row(w, micro_batch) * row, w->plan->dtype, local_rows(w), HIDDEN);
}
/* The index, in the unsharded parameter, of element i of a rank's shard. */
static int64_t whole_index(const variant *w, const te_param *p, int64_t i) {
    const te_shard_layout s = te_shard_layout_of(p, te_tensor_group(w->ctx));
    const te_shard_run r = te_shard_run_at(&s, te_shard_run_with(&s, i));
    return r.whole + i - r.at;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static te_status make(variant *w, const char *name, const te_plan *plan, int micro_batches, te_context *ctx) {
    void *params, *grads, *memory;
    char **const tensors[4] = {&w->x, &w->dy, &w->y, &w->dx};
    const te_buckets_config buckets = te_buckets_defaults();
    const int rows = ROWS / te_data_group(ctx)->size / micro_batches;
    w->name = name, w->plan = plan, w->micro_batches = micro_batches, w->ctx = ctx, w->models[0] = &w->model;
    TE_TRY(te_allocate(ctx, &params, te_plan_param_bytes(plan)));
    TE_TRY(te_allocate(ctx, &grads, te_plan_grad_bytes(plan)));
    w->grads = (float *)grads;
    TE_TRY(te_model_bind(&w->model, plan, w->param, PARAMS, params, w->grads, ctx));
    TE_TRY(te_model_randomize(&w->model, 0.05f, 1, 0, ctx)); /* a shard gets the values of the unsharded model */
    TE_TRY(te_allocate(ctx, &w->saved.memory, w->saved.bytes = te_plan_saved_bytes_of_rank(plan, rows, ctx)));
    TE_TRY(te_context_reserve(ctx, te_plan_workspace_bytes(plan, &w->model, rows, ctx)));
    TE_TRY(te_buckets_init(&w->buckets, w->models, 1, &buckets, ctx));
    for (uint32_t i = 0; i < 4; i++) {
        TE_TRY(te_allocate(ctx, &memory, (size_t)ROWS * HIDDEN * te_dtype_bytes(plan->dtype)));
        TE_TRY(te_fill_normal(memory, plan->dtype, (int64_t)ROWS * HIDDEN, 0.0f, 1.0f, 1, 100 + i, ctx));
        *tensors[i] = (char *)memory;
    }
    if (!plan->fp8) return TE_OK;
    te_recipes_config config = te_recipes_defaults();
    config.history = 16, config.ranks = te_world_group(ctx)->size; /* scales of unsharded tensors, equal on all ranks */
    const size_t bytes = te_recipes_bytes(w->models, 1, &config);
    TE_TRY(te_allocate(ctx, &memory, bytes));
    return te_recipes_init(&w->recipes, memory, bytes, w->models, 1, &config, ctx);
}
/* [step] */
static te_status step(variant *w) {
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = BATCH / replicas(w) / w->micro_batches, batch.seq = SEQ;
    for (int i = 0; i < w->micro_batches; i++) {
        const te_tensor x = rows_of(w, w->x, i), y = rows_of(w, w->y, i), dy = rows_of(w, w->dy, i),
                        dx = rows_of(w, w->dx, i);
        batch.accumulate = i > 0;
        if (w->casts_each) TE_TRY(te_recipes_cast_weights(&w->recipes, w->ctx));
        TE_TRY(te_plan_forward(y, &w->saved, x, w->plan, &w->model, &batch, w->ctx));
        if (i + 1 == w->micro_batches) TE_TRY(te_buckets_begin(&w->buckets, w->ctx));
        TE_TRY(te_plan_backward(dx, dy, &w->saved, w->plan, &w->model, &batch, w->ctx));
    }
    TE_TRY(te_buckets_finish(&w->buckets, w->ctx)); /* an optimizer step would follow here */
    return w->plan->fp8 ? te_recipes_step(&w->recipes, w->ctx) : TE_OK;
}
/* [step] */

/* ---- time and numbers -------------------------------------------------------------------------------------------- */

static double now(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Wait for the device. If another rank has failed, this ends with an error after a while. */
static te_status wait_for(te_context *ctx) {
#ifdef TE_COMM
    return te_comm_synchronize(ctx);
#else
    return te_synchronize(ctx);
#endif
}

/* The results of the plain layer, on the host. */
static struct { char *y, *dx; float *grads; const variant *of; double ms; } first;

typedef struct distance { double error, size; } distance;
static void add_distance(distance *d, double want, double got) {
    d->error += (want - got) * (want - got), d->size += want * want;
}
static te_status read_back(char **to, const void *from, size_t bytes, te_context *ctx) {
    *to = (char *)malloc(bytes);
    TE_REQUIRE(*to, ctx, TE_ERROR_MEMORY, "performance: no memory for %zu bytes", bytes);
    return te_copy(ctx, *to, from, bytes);
}
/* Compare y, dx and each gradient on this rank with the plain layer's. *worst: the largest relative difference, the
 * root mean square of the differences over that of the plain layer's numbers. */
static te_status compare(double *worst, const variant *w) {
    const size_t bytes = (size_t)ROWS * HIDDEN * te_dtype_bytes(w->plan->dtype);
    char *y, *dx, *grads;
    TE_TRY(read_back(&y, w->y, bytes, w->ctx));
    TE_TRY(read_back(&dx, w->dx, bytes, w->ctx));
    TE_TRY(read_back(&grads, w->grads, te_plan_grad_bytes(w->plan), w->ctx));
    TE_TRY(wait_for(w->ctx));
    if (!first.of) first.y = y, first.dx = dx, first.grads = (float *)(void *)grads, first.of = w;
    distance d[2 + PARAMS] = {{0, 0}};
    for (int k = 0; k < w->micro_batches; k++)
        for (int64_t i = 0, at = (int64_t)first_row(w, k) * HIDDEN; i < (int64_t)local_rows(w) * HIDDEN; i++, at++) {
            add_distance(&d[0], (double)te_load(first.y, at, w->plan->dtype), (double)te_load(y, at, w->plan->dtype));
            add_distance(&d[1], (double)te_load(first.dx, at, w->plan->dtype), (double)te_load(dx, at, w->plan->dtype));
        }
    for (int k = 0; k < PARAMS; k++) {
        const te_param *p = &w->param[k];
        const float *want = first.grads + (first.of->param[k].grad - first.of->grads),
                    *got = (float *)(void *)grads + (p->grad - w->grads);
        for (int64_t i = 0; i < p->rows * p->cols; i++)
            add_distance(&d[2 + k], (double)want[whole_index(w, p, i)], (double)got[i]);
    }
    *worst = 0;
    for (int k = 0; k < 2 + PARAMS; k++) {
        const double one = sqrt(d[k].error / d[k].size);
        if (!(one <= *worst)) *worst = one;
    }
    if (first.of != w) free(y), free(dx), free(grads);
    return TE_OK;
}
/* Overwrite the results with NaN, so that old results cannot pass for those of the next step. */
static te_status fill_with_nan(variant *w) {
    const size_t bytes = (size_t)ROWS * HIDDEN * te_dtype_bytes(w->plan->dtype);
    TE_TRY(te_fill(w->ctx, w->y, 0xff, bytes));
    TE_TRY(te_fill(w->ctx, w->dx, 0xff, bytes));
    return te_fill(w->ctx, w->grads, 0xff, te_plan_grad_bytes(w->plan));
}
/* The difference that is allowed: a few roundings of the dtype; in FP8 a rounding of dy to two bits of mantissa, and of
 * x and w to three bits. */
static double allowed(const variant *w) {
    if (w->plan->fp8) return 0x1p-3 + 2 * 0x1p-4;
    return w->plan->dtype == TE_f32 ? 1e-5 : 0x1p-7;
}
static te_status show(variant *w, int *same) {
    double worst = 0;
    TE_TRY(fill_with_nan(w));
    TE_TRY(step(w)); /* the first run also times the candidate kernels of its GEMMs */
    TE_TRY(wait_for(w->ctx));
    const double start = now();
    for (int i = 0; i < ROUNDS; i++) TE_TRY(step(w));
    TE_TRY(wait_for(w->ctx));
    const double ms = (now() - start) * 1e3 / ROUNDS;
    const int is_first = !first.of;
    TE_TRY(compare(&worst, w));
    if (is_first) first.ms = ms;
    *same &= worst <= allowed(w);
    printf("%-52s %9.3f ms  %5.2f of the plain layer's", w->name, ms, ms / first.ms);
    if (is_first) printf("\n");
    else if (worst == 0) printf("  the same bits\n");
    else printf("  %.1e apart, %s the %.1e of %s\n", worst, worst <= allowed(w) ? "within" : "MORE THAN", allowed(w),
                w->plan->fp8 ? "FP8" : te_dtype_name(w->plan->dtype));
    fflush(stdout);
    return TE_OK;
}
static te_status drop(variant *w) {
    void *const memory[7] = {(void *)(uintptr_t)w->model.params, w->grads, w->saved.memory, w->x, w->y, w->dy, w->dx};
    te_buckets_destroy(&w->buckets);
    for (int i = 0; i < 7; i++) te_release(w->ctx, memory[i]);
    te_release(w->ctx, w->recipes.scales.memory);
    return TE_OK;
}

/* ---- the variants ------------------------------------------------------------------------------------------------ */

static te_status alone(te_context *ctx, int *same) {
    static variant whole, accumulated, cast, cached;
    TE_TRY(make(&whole, "1  the plain layer", plain_plan(), 1, ctx));
    TE_TRY(show(&whole, same));
    TE_TRY(make(&accumulated, "2  gradient accumulation, 2 micro-batches", plain_plan(), MICRO_BATCHES, ctx));
    TE_TRY(show(&accumulated, same));
    TE_TRY(make(&cast, "3  FP8, weights cast for each micro-batch", fp8_plan(), MICRO_BATCHES, ctx));
    cast.casts_each = 1;
    TE_TRY(show(&cast, same));
    TE_TRY(make(&cached, "4  FP8, weights cast once a step", fp8_plan(), MICRO_BATCHES, ctx));
    TE_TRY(show(&cached, same));
    variant *const all[3] = {&accumulated, &cast, &cached};
    for (int i = 0; i < 3; i++) TE_TRY(drop(all[i]));
    return TE_OK;
}
#ifdef TE_COMM
/* Run a variant on ranks that form tensor groups of `group` ranks. Each variant has its own context and groups. */
static te_status on_ranks(const char *name, const te_plan *plan, int group, int micro_batches, const char *file,
                          te_context *ctx, te_comm *comm, int *same) {
    static variant w;
    char path[1024];
    te_comm_config config = te_comm_defaults();
    snprintf(path, sizeof path, "%s.%c", file, name[0]);
    config.tensor = group, config.file = path;
    TE_TRY(te_comm_create(comm, &config, ctx));
    memset(&w, 0, sizeof w);
    TE_TRY(make(&w, name, plan, micro_batches, ctx));
    TE_TRY(show(&w, same));
    return drop(&w);
}
static te_status ranks(te_context ctx[4], te_comm comm[4], const char *file, int *same) {
    TE_TRY(on_ranks("5  data parallel", plain_plan(), 1, 1, file, &ctx[0], &comm[0], same));
    TE_TRY(on_ranks("6  tensor parallel", tensor_plan(), RANKS, 1, file, &ctx[1], &comm[1], same));
    TE_TRY(on_ranks("7  tensor and sequence parallel", sequence_plan(), RANKS, 1, file, &ctx[2], &comm[2], same));
    return on_ranks("8  replicas of those, micro-batches, FP8", together_plan(), TENSOR, MICRO_BATCHES, file, &ctx[3],
                    &comm[3], same);
}
#endif

int main(int argc, char **argv) {
    static te_context one, ctx[4];
    static te_comm comm[4];
    int same = 1, rank, size;
    te_comm_rank_from_env(&rank, &size);
    te_context *failed = &one;
    te_status status = te_context_create(&one, TE_CUDA ? te_comm_local_rank_from_env() : 0, 1);
    one.gemm_tune = 1;
    if (rank && !freopen("/dev/null", "w", stdout)) return 1;
    printf("%d x %d tokens, hidden %d, ffn %d, %d heads, " TE_STRING(DTYPE) "; forward and backward:\n", BATCH, SEQ,
           HIDDEN, FFN, HEADS);
    if (status == TE_OK) status = alone(&one, &same);
#ifdef TE_COMM
    for (int i = 0; i < 4 && size == RANKS && status == TE_OK; i++) {
        status = te_context_create(failed = &ctx[i], TE_CUDA ? te_comm_local_rank_from_env() : 0, 1);
        ctx[i].gemm_tune = 1;
    }
    if (status == TE_OK && size == RANKS) status = ranks(ctx, comm, argc > 1 ? argv[1] : "performance", &same);
    for (int i = 0; i < 4; i++) failed = ctx[i].error[0] ? &ctx[i] : failed;
#else
    (void)argc, (void)argv, (void)comm;
#endif
    if (size != RANKS) printf("5 to 8 need %d processes, and here %s %d\n", RANKS, size == 1 ? "is" : "are", size);
    if (status != TE_OK) fprintf(stderr, "rank %d: %s: %s\n", rank, te_status_string(status), te_last_error(failed));
#ifdef TE_COMM
    for (int i = 3; i >= 0; i--) te_comm_destroy(&comm[i]); /* the first one initialised MPI, and finalises it last */
#endif
    for (int i = 3; i >= 0; i--) te_context_destroy(&ctx[i]);
    te_context_destroy(&one);
    return status != TE_OK || !same;
}
