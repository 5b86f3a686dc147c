/* context.c -- context parallelism (te/context_parallel.h): attention with (context, gather), ring and all_to_all on
 * the ranks of a context group against the same list on whole sequences, which each rank also computes: y, dx, the
 * gradients of all parameters; the same bits in a second run; documents packed in a sequence; what is refused.
 * tests/comm.sh runs it as 2 and 4 processes.
 *
 *     mpirun -n 4 context 4          context groups of 4 ranks; with 2: two replicas, which have the same sequences
 *
 * Exit code 0: all is right; 1: not; 3: another rank has failed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "te/te.h"
#include "te/infer.h"
#include "te/context_parallel.h"
#include "rank_test.h"

enum { WIDTH = 48, BATCH = 2, SEQ = 528, ROWS = BATCH * SEQ, COUNT = ROWS * WIDTH };

/* X(name, dtype, heads, kv_heads, head_dim, value_dim, options of attention). Chunks have 132 and 66 rows, so windows
 * of 30 and 70 keys begin in a query's own chunk, in the one before, and in the one before that. */
#ifndef MODELS /* define it to test others, on a GPU fewer; ring, ring_varlen and heads_varlen must be among them */
#define MODELS(X)                                                                        \
    X(gather, f32, 4, 4, 12, 12, (context, gather))                                      \
    X(gather_gqa, f32, 4, 2, 12, 12, (context, gather), (sinks, 1), (softcap, 5.0f))     \
    X(gather_window, f32, 4, 2, 12, 12, (context, gather), (window_left, 70))            \
    X(gather_small, f32, 4, 1, 12, 12, (context, gather), (window_left, 30), (sinks, 1)) \
    X(gather_alibi, f32, 4, 2, 12, 12, (context, gather), (alibi, 1), (scale, 0.4f))     \
    X(gather_both, f32, 4, 2, 12, 12, (context, gather), (causal, 0), (sinks, 1))        \
    X(gather_value, f32, 4, 2, 12, 20, (context, gather), (value_dim, 20))               \
    X(gather_bf16, bf16, 4, 2, 64, 64, (context, gather), (sinks, 1))                    \
    X(ring, f32, 4, 4, 12, 12, (context, ring))                                          \
    X(ring_gqa, f32, 4, 2, 12, 12, (context, ring), (sinks, 1), (softcap, 5.0f))         \
    X(ring_varlen, f32, 4, 1, 12, 12, (context, ring), (varlen, 1), (cache, 1))          \
    X(ring_both, f32, 4, 2, 12, 12, (context, ring), (causal, 0), (sinks, 1))            \
    X(ring_value, f32, 4, 2, 12, 20, (context, ring), (value_dim, 20))                   \
    X(ring_bf16, bf16, 4, 2, 64, 64, (context, ring), (sinks, 1), (softcap, 20.0f))      \
    X(ring_window, f32, 4, 2, 12, 12, (context, ring), (window_left, 70), (sinks, 1))    \
    X(ring_window_exact, f32, 4, 2, 12, 20, (context, ring), (window_left, 132), (softcap, 5.0f), (value_dim, 20)) \
    X(ring_window_far, f32, 4, 4, 12, 12, (context, ring), (window_left, 333))           \
    X(ring_window_all, f32, 4, 2, 12, 12, (context, ring), (window_left, 5000))          \
    X(ring_window_own, f32, 4, 2, 12, 12, (context, ring), (window_left, 0))             \
    X(ring_window_bf16, bf16, 4, 2, 64, 64, (context, ring), (window_left, 70))          \
    X(heads, f32, 4, 4, 12, 12, (context, all_to_all))                                   \
    X(heads_gqa, f32, 8, 4, 12, 12, (context, all_to_all), (sinks, 1), (softcap, 5.0f), (window_left, 70)) \
    X(heads_alibi, f32, 8, 4, 12, 12, (context, all_to_all), (alibi, 1), (causal, 0))    \
    X(heads_value, f32, 8, 8, 12, 20, (context, all_to_all), (value_dim, 20), (causal, 0), (window_right, 9)) \
    X(heads_varlen, f32, 8, 4, 12, 12, (context, all_to_all), (varlen, 1), (sinks, 1))   \
    X(heads_bf16, bf16, 8, 4, 64, 64, (context, all_to_all), (sinks, 1))
#endif
#define LIST(name, dtype, H, KV, D, V, ...)                                                                          \
    TE_SEQUENTIAL(name, dtype, (positions, at, SEQ, WIDTH), (rmsnorm, n, WIDTH),                                     \
                  (linear, qkv, WIDTH, ((H) + (KV)) * (D) + (KV) * (V)), (bias, b, ((H) + (KV)) * (D) + (KV) * (V)), \
                  (rope, r, H, KV, D, (value_dim, V)), (attention, a, H, KV, D, __VA_ARGS__),                        \
                  (linear, out, (H) * (V), WIDTH))
MODELS(LIST)
#define PACKED "heads_varlen" /* the list that gets one sequence of documents, cu_seqlens */
static const int32_t documents[] = {0, 1, 1, 302, 830, 931, ROWS}; /* one is empty, one as long as `positions` holds */
enum { DOCUMENTS = sizeof documents / sizeof *documents - 1 };
TE_SEQUENTIAL(plain, f32, (linear, qkv, WIDTH, 3 * WIDTH), (attention, a, 4, 4, 12))
TE_SEQUENTIAL(few, f32, (linear, qkv, WIDTH, 72), (attention, a, 4, 1, 12, (context, all_to_all)))
TE_SEQUENTIAL(last, f32, (linear, qkv, WIDTH, WIDTH), (last_token, l))

static double largest;

/* A list and its results, on whole sequences or on this rank's part of them. */
typedef struct layer {
    te_model model;
    te_param param[16];
    char *params, *x, *y, *dy, *dx, *cu_seqlens;
    float *grads;
    te_saved saved;
    te_batch batch;
    int64_t rows;
    size_t size; /* of an element */
} layer;

static te_status take(char **p, size_t bytes) {
    void *memory = 0;
    TE_TRY(te_allocate(&ctx, &memory, bytes));
    *p = (char *)memory;
    return te_fill(&ctx, memory, 0xff, bytes); /* NaN */
}
/* Copies this rank's rows of a tensor of whole sequences. b: this rank's batch. */
static te_status take_rows(char *to, const char *from, size_t row_bytes, const te_batch *b) {
    const te_cp_shard shard = {comm.context.rank, comm.context.size};
    const int seq = b->seq;
    for (int i = 0; i < b->batch; i++)
        for (int row = 0; row < seq; row++) {
            const int64_t at = (int64_t)i * seq * shard.ranks + te_cp_position(shard, row, seq);
            TE_TRY(te_copy(&ctx, to + ((size_t)i * (size_t)seq + (size_t)row) * row_bytes,
                           from + (size_t)at * row_bytes, row_bytes));
        }
    return TE_OK;
}
static te_tensor rows_of(const layer *l, char *data) { return te_matrix(data, l->model.plan->dtype, l->rows, WIDTH); }
static te_status run(layer *l) {
    const te_plan *plan = l->model.plan;
    te_model *models[1] = {&l->model};
    TE_TRY(te_plan_forward(rows_of(l, l->y), &l->saved, rows_of(l, l->x), plan, &l->model, &l->batch, &ctx));
    TE_TRY(te_plan_backward(rows_of(l, l->dx), rows_of(l, l->dy), &l->saved, plan, &l->model, &l->batch, &ctx));
    if (l->batch.context) TE_TRY(te_reduce_gradients(models, 1, &ctx));
    return te_comm_synchronize(&ctx);
}
/* whole: null, or the same list on whole sequences, of which this one gets its rows. */
static te_status make(layer *l, const te_plan *plan, const layer *whole) {
    const int ranks = whole ? comm.context.size : 1, is_packed = !strcmp(plan->name, PACKED);
    char *grads, *saved;
    int params = 0;
    for (int i = 0; i < plan->op_count; i++) params += plan->op[i].params;
    memset(l, 0, sizeof *l);
    l->batch.batch = is_packed ? 1 : BATCH, l->batch.seq = ROWS / l->batch.batch / ranks, l->batch.context = whole != 0;
    l->rows = (int64_t)l->batch.batch * l->batch.seq, l->size = te_dtype_bytes(plan->dtype);
    if (is_packed) {
        TE_TRY(take(&l->cu_seqlens, sizeof documents));
        TE_TRY(te_copy(&ctx, l->cu_seqlens, documents, sizeof documents));
        l->batch.cu_seqlens = (const int32_t *)(void *)l->cu_seqlens;
        l->batch.sequences = DOCUMENTS, l->batch.max_seqlen = SEQ;
    }
    char **const of[4] = {&l->x, &l->y, &l->dy, &l->dx};
    for (int i = 0; i < 4; i++) TE_TRY(take(of[i], (size_t)(l->rows * WIDTH) * l->size));
    TE_TRY(take(&l->params, te_plan_param_bytes(plan)));
    TE_TRY(take(&grads, te_plan_grad_bytes(plan)));
    l->grads = (float *)(void *)grads;
    if (!whole) TE_TRY(te_fill_normal(l->x, plan->dtype, l->rows * WIDTH, 0.0f, 1.0f, 7, 1, &ctx));
    if (!whole) TE_TRY(te_fill_normal(l->dy, plan->dtype, l->rows * WIDTH, 0.0f, 1.0f, 7, 2, &ctx));
    if (whole) TE_TRY(take_rows(l->x, whole->x, WIDTH * l->size, &l->batch));
    if (whole) TE_TRY(take_rows(l->dy, whole->dy, WIDTH * l->size, &l->batch));
    TE_TRY(te_model_bind(&l->model, plan, l->param, params, l->params, l->grads, &ctx));
    TE_TRY(te_model_randomize(&l->model, 0.2f, 7, 100, &ctx));
    for (int k = 0; k < l->model.param_count; k++) /* sinks begin as 0, biases too */
        if (l->param[k].cols == 1 || l->param[k].rows == 1)
            TE_TRY(te_param_normal(&l->param[k], 0.5f, 7, 200 + (uint32_t)k, &ctx));
    TE_TRY(take(&saved, l->saved.bytes = te_plan_saved_bytes_of_rank(plan, l->rows, &ctx)));
    l->saved.memory = saved;
    TE_TRY(te_context_reserve(&ctx, te_plan_workspace_bytes(plan, &l->model, l->rows, &ctx)));
    return te_synchronize(&ctx);
}
static void drop(layer *l) {
    void *const memory[8] = {l->params, l->grads, l->x, l->y, l->dy, l->dx, l->saved.memory, l->cu_seqlens};
    for (int i = 0; i < 8; i++) te_release(&ctx, memory[i]);
}

/* Compares the root mean squares of the difference and of the values. f32: a relative error of 4e-6, because sums over
 * ranks have another order. bf16: partial outputs and gradients are rounded, each by 2^-9 at most. */
static te_status compare(const char *list, const char *what, const void *got, const void *want, int64_t n, te_dtype t,
                         double times) {
    const size_t bytes = (size_t)n * te_dtype_bytes(t);
    char *a = (char *)malloc(bytes), *b = (char *)malloc(bytes);
    double off = 0, size = 0;
    TE_REQUIRE(a && b, &ctx, TE_ERROR_MEMORY, "compare");
    TE_TRY(te_copy(&ctx, a, got, bytes));
    TE_TRY(te_copy(&ctx, b, want, bytes));
    TE_TRY(te_comm_synchronize(&ctx));
    for (int64_t i = 0; i < n; i++) {
        const double is = te_load(a, i, t), should = times * (double)te_load(b, i, t);
        off += (is - should) * (is - should), size += should * should;
    }
    const int is_bf16 = t == TE_bf16 || strstr(list, "bf16") != 0;
    const double limit = is_bf16 ? 1.2e-2 : 4e-6;
    compared += n;
    if (!is_bf16 && size > 0 && sqrt(off / size) > largest && size > 1e-2 * (double)n) largest = sqrt(off / size);
    free(a), free(b);
    /* the gradient of k's bias is only rounding where there is neither rope nor softcap. False for a NaN. */
    if (off <= limit * limit * (size + (double)n)) return TE_OK;
    wrong++, printf("rank %d: %s: %s is off by %g, of %g\n", comm.world.rank, list, what, sqrt(off), sqrt(size));
    return TE_OK;
}
static te_status check(const te_plan *plan) {
    static char first[COUNT * 4], again[COUNT * 4];
    const int replicas = comm.data.size / comm.context.size;
    layer w, l;
    char *rows, *y;
    TE_TRY(make(&w, plan, 0));
    TE_TRY(run(&w));
    TE_TRY(make(&l, plan, &w));
    const size_t bytes = (size_t)(l.rows * WIDTH) * l.size;
    for (int k = 0; k < 2; k++) {
        TE_TRY(run(&l));
        TE_TRY(te_copy(&ctx, k ? again : first, l.dx, bytes));
        TE_TRY(te_synchronize(&ctx));
    }
    if (memcmp(first, again, bytes))
        wrong++, printf("rank %d: %s: another dx in a second run\n", comm.world.rank, plan->name);
    TE_TRY(take(&rows, bytes));
    TE_TRY(take_rows(rows, w.y, WIDTH * w.size, &l.batch));
    TE_TRY(compare(plan->name, "y", l.y, rows, l.rows * WIDTH, plan->dtype, 1));
    TE_TRY(take(&y, bytes));
    TE_TRY(te_plan_forward(rows_of(&l, y), 0, rows_of(&l, l.x), plan, &l.model, &l.batch, &ctx));
    TE_TRY(compare(plan->name, "y of inference", y, rows, l.rows * WIDTH, plan->dtype, 1));
    TE_TRY(take_rows(rows, w.dx, WIDTH * w.size, &l.batch));
    TE_TRY(compare(plan->name, "dx", l.dx, rows, l.rows * WIDTH, plan->dtype, 1));
    for (int k = 0; k < l.model.param_count; k++)
        TE_TRY(compare(plan->name, l.param[k].op, l.param[k].grad, w.param[k].grad, l.param[k].rows * l.param[k].cols,
                       TE_f32, replicas));
    te_release(&ctx, rows), te_release(&ctx, y), drop(&w), drop(&l);
    return TE_OK;
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static te_status forward(layer *l, const te_batch *b) {
    l->batch = *b, l->rows = (int64_t)b->batch * b->seq;
    return te_plan_forward(te_matrix(l->y, TE_f32, l->rows, l->model.plan->out), &l->saved, rows_of(l, l->x),
                           l->model.plan, &l->model, b, &ctx);
}
static te_status refusals(void) {
    layer w, l;
    int32_t tokens[8] = {0};
    TE_TRY(make(&w, plain_plan(), 0));
    te_batch b = w.batch;
    b.seq = 8, b.context = 1, b.batch = 1;
    refuses(forward(&w, &b), TE_ERROR_STATE, "attention a was declared without (context, gather), ring or");
    b.seq = 7;
    refuses(forward(&w, &b), TE_ERROR_SHAPE, "batch.seq is 7; with batch.context it must be even");
    b.seq = 8, b.context = 2;
    refuses(forward(&w, &b), TE_ERROR_VALUE, "batch.context is 2; it is 0 or 1");
    b.context = 1, b.position = 3;
    refuses(forward(&w, &b), TE_ERROR_VALUE, "batch.context does not go with batch.position");
    TE_TRY(make(&l, last_plan(), 0));
    b.position = 0;
    refuses(te_plan_forward(te_matrix(l.y, TE_f32, 1, WIDTH), &l.saved, te_matrix(l.x, TE_f32, 8, WIDTH), last_plan(),
                            &l.model, &b, &ctx),
            TE_ERROR_VALUE, "(last_token, l) needs whole sequences");
    drop(&l);
    drop(&w);
    TE_TRY(make(&l, few_plan(), 0));
    refuses(forward(&l, &b), TE_ERROR_SHAPE, "the 1 kv_heads of attention a are not shared out evenly among the");
    drop(&l);
    TE_TRY(make(&w, heads_varlen_plan(), 0));
    b = w.batch, b.seq = ROWS / comm.context.size - 2, b.context = 1;
    if (!TE_CUDA) /* cu_seqlens is in device memory, which the host does not read */
        refuses(forward(&w, &b), TE_ERROR_VALUE, "batch.cu_seqlens ends at 1056, the batch has");
    b.seq += 2, b.seq /= 2, b.batch = 2;
    refuses(forward(&w, &b), TE_ERROR_SHAPE, "batch.batch is 2; with batch.context and batch.cu_seqlens it is 1");
    TE_TRY(make(&l, ring_varlen_plan(), 0));
    b.seq *= 2, b.batch = 1;
    refuses(forward(&l, &b), TE_ERROR_VALUE, "batch.cu_seqlens, unless attention a has (context, all_to_all)");
    drop(&l);
    TE_TRY(make(&l, ring_plan(), 0));
    memset(&b, 0, sizeof b), b.batch = 1, b.context = 1;
    b.seq = SEQ / comm.context.size + 2;
    refuses(forward(&l, &b), TE_ERROR_SHAPE, "positions at holds 528");
    b.seq = SEQ / comm.context.size;
    const te_status status = forward(&l, &b);
    if (status != TE_OK) return status;
    l.batch.context = 0;
    refuses(te_plan_backward(rows_of(&l, l.dx), rows_of(&l, l.dy), &l.saved, l.model.plan, &l.model, &l.batch, &ctx),
            TE_ERROR_VALUE, "the forward had batch.context 1, this batch has 0");
    refuses(te_cp_take(tokens, tokens, 1, 7, te_cp_group(&ctx), &ctx), TE_ERROR_SHAPE, "are not shared out among");
    drop(&l), drop(&w);
    return TE_OK;
}

/* The printed plan says what a list exchanges. */
static te_status prints(const te_plan *plan, const char *words) {
    static char text[1 << 14];
    FILE *f = tmpfile();
    TE_REQUIRE(f, &ctx, TE_ERROR_IO, "tmpfile");
    te_plan_print(f, plan);
    rewind(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f), compared++;
    if (!strstr(text, words)) wrong++, printf("%s: the plan does not print: %s\n", plan->name, words);
    return TE_OK;
}

int main(int argc, char **argv) {
    int rank, size;
    if (argc != 2) return fprintf(stderr, "context RANKS\n"), 2;
    te_comm_rank_from_env(&rank, &size);
    te_comm_config config = te_comm_defaults();
    config.file = getenv("RANKS_FILE"), config.context = atoi(argv[1]);
    te_status status = te_context_create(&ctx, TE_CUDA ? te_comm_local_rank_from_env() : 0, 3);
    if (status == TE_OK) status = te_comm_create(&comm, &config, &ctx);
#define CHECK(name, ...) \
    if (status == TE_OK) status = check(name##_plan());
    MODELS(CHECK)
    if (status == TE_OK) status = refusals();
    if (status == TE_OK) status = prints(ring_plan(), "exchange dk, dv                                96 -> 96     f32");
    if (status == TE_OK) status = prints(heads_varlen_plan(), "exchange q, k, v, y, dy                       384 ->");
    if (status == TE_OK) status = prints(plain_plan(), "forward, 2 steps\n");
    if (status != TE_OK)
        printf("rank %d: %s: %s\n", rank, te_status_string(status), te_last_error(&ctx));
    else if (!rank)
        printf("context: %lld values of %d ranks, %d a context group; f32: %.2g off at most\n", (long long)compared,
               size, comm.context.size, largest);
    fflush(stdout);
    te_comm_destroy(&comm); /* does not wait for ranks that have failed */
    te_context_destroy(&ctx);
    if (status == TE_ERROR_COMM) _exit(3); /* exit handlers of MPI would wait */
    return status != TE_OK || wrong;
}
