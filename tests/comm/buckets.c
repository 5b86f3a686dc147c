/* buckets.c -- gradients reduced while backward runs (te/comm/buckets.h) against those that te_reduce_gradients sums after
 * it. tests/comm.sh runs it as several processes.
 *
 *     mpirun -n 4 buckets sums TENSOR              lists that share a parameter, several micro-batches, some frozen
 *     mpirun -n 2 buckets refuse                   wrong calls and their error texts; also with one rank
 *     mpirun -n 4 buckets leave                    the last rank ends within a step: the others must notice
 *
 * Exit code 0: all is right; 1: not; 3: another rank has failed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "te/te.h"
#include "rank_test.h"

/* ---- lists ------------------------------------------------------------------------------------------------------- */

enum { VOCABULARY = 61, HIDDEN = 32, FFN = 64, HEADS = 4, LENGTH = 8, SEQUENCES = 2, ROWS = LENGTH * SEQUENCES };

/* One kv head, of which each tensor rank has a copy. The deep one has 21 vector parameters, more column sums than a backward defers at a time. */
#define QKV(N) ((HEADS / N + 2) * (HIDDEN / HEADS))
#define BLOCK(N)                                                                                                      \
    (fork, x1), (layernorm, n1, HIDDEN), (all_gather, g1),                                                            \
    (linear, qkv, HIDDEN, QKV(N), (shard, columns), (parts, 3), (first_part, HEADS / N), (copies, N)),                \
    (bias, qkv_b, QKV(N)), (attention, mix, HEADS / N, 1, HIDDEN / HEADS), (linear, proj, HIDDEN / N, HIDDEN, (shard, rows)),        \
    (reduce_scatter, s1), (bias, proj_b, HIDDEN), (add, x1)
#define LAYER(i)                                                                                                      \
    (layernorm, n##i, HIDDEN), (linear, l##i, HIDDEN, HIDDEN), (bias, b##i, HIDDEN), (gelu, g##i)
#define DEEP LAYER(0), LAYER(1), LAYER(2), LAYER(3), LAYER(4), LAYER(5), LAYER(6)
#define LISTS(N)                                                                                                      \
    TE_SEQUENTIAL(embed##N, (f32, (rows, shard)), (embedding, wte, VOCABULARY, HIDDEN), (positions, at, LENGTH, HIDDEN)) \
    TE_SEQUENTIAL(block##N, (f32, (rows, shard)), BLOCK(N))
LISTS(1)
LISTS(2)
TE_SEQUENTIAL(deep, (f32, (rows, shard)), DEEP)
TE_SEQUENTIAL(head, (f32, (rows, shard)), (rmsnorm, last, HIDDEN), (tied_linear, lm, HIDDEN, VOCABULARY),
              (cross_entropy, loss, VOCABULARY))

enum { MODELS = 5, PARAMS = 64 };
typedef struct net {
    te_model model[MODELS], *all[MODELS];
    te_param param[PARAMS];
    te_saved saved[MODELS];
    void *x[MODELS], *weights;
    float *grads;
    int64_t elements; /* of all gradients, which are adjacent */
    int32_t *tokens;
} net;

static te_param *param_of(te_model *m, const char *op) {
    for (int i = 0; i < m->param_count; i++)
        if (!strcmp(m->param[i].op, op)) return &m->param[i];
    return 0;
}
static te_status make(net *n) {
    const int two = te_tensor_group(&ctx)->size == 2;
    const te_plan *plans[MODELS] = {two ? embed2_plan() : embed1_plan(), two ? block2_plan() : block1_plan(),
                                    deep_plan(), two ? block2_plan() : block1_plan(), head_plan()};
    size_t workspace = 0;
    int64_t at = 0;
    te_param *next = n->param;
    memset(n, 0, sizeof *n);
    for (int i = 0; i < MODELS; i++) n->elements += te_plan_param_elements(plans[i]);
    TE_TRY(te_allocate(&ctx, &n->weights, (size_t)n->elements * sizeof(float)));
    TE_TRY(te_allocate(&ctx, (void **)&n->grads, (size_t)n->elements * sizeof(float)));
    for (int i = 0; i < MODELS; i++, next += n->all[i - 1]->param_count) {
        int count = 0;
        for (int k = 0; k < plans[i]->op_count; k++) count += plans[i]->op[k].params;
        n->all[i] = &n->model[i];
        TE_TRY(te_model_bind(n->all[i], plans[i], next, count, (float *)n->weights + at, n->grads + at, &ctx));
        TE_TRY(te_model_randomize(n->all[i], 0.2f, 5, 100 * (uint32_t)i, &ctx));
        at += te_plan_param_elements(plans[i]);
    }
    TE_TRY(te_tie(param_of(n->all[MODELS - 1], "lm"), param_of(n->all[0], "wte"), &ctx));
    for (int i = 0; i < MODELS; i++) {
        n->saved[i].bytes = te_plan_saved_bytes_of_rank(plans[i], ROWS, &ctx);
        TE_TRY(te_allocate(&ctx, &n->saved[i].memory, n->saved[i].bytes));
        TE_TRY(te_allocate(&ctx, &n->x[i], ROWS * HIDDEN * sizeof(float)));
        const size_t need = te_plan_workspace_bytes(plans[i], n->all[i], ROWS, &ctx);
        workspace = need > workspace ? need : workspace;
    }
    TE_TRY(te_allocate(&ctx, (void **)&n->tokens, (ROWS + 1) * sizeof(int32_t)));
    return te_context_reserve(&ctx, workspace);
}
static void drop(net *n) {
    for (int i = 0; i < MODELS; i++) te_release(&ctx, n->saved[i].memory), te_release(&ctx, n->x[i]);
    te_release(&ctx, n->weights), te_release(&ctx, n->grads), te_release(&ctx, n->tokens);
}
static te_batch batch_of(net *n, int micro_batch) {
    te_batch b;
    memset(&b, 0, sizeof b);
    b.batch = SEQUENCES, b.seq = LENGTH, b.tokens = n->tokens, b.labels = n->tokens + 1, b.loss_scale = 1.0f / ROWS;
    b.accumulate = micro_batch > 0;
    return b;
}
static te_tensor hidden(void *p) { return te_matrix(p, TE_f32, ROWS / te_tensor_group(&ctx)->size, HIDDEN); }
static te_status forward(net *n, int micro_batch) {
    const te_batch b = batch_of(n, micro_batch);
    int32_t text[ROWS + 1];
    for (int i = 0; i <= ROWS; i++)
        text[i] = (i * 7 + micro_batch * 13 + te_data_group(&ctx)->rank * 5) % VOCABULARY;
    TE_TRY(te_copy(&ctx, n->tokens, text, sizeof text));
    TE_TRY(te_synchronize(&ctx));
    for (int i = 0; i < MODELS; i++) {
        const te_tensor x = i ? hidden(n->x[i - 1]) : te_none();
        const te_tensor y = i + 1 < MODELS ? hidden(n->x[i]) : te_matrix(n->x[i], TE_f32, hidden(0).rows, 1);
        TE_TRY(te_plan_forward(y, &n->saved[i], x, n->all[i]->plan, n->all[i], &b, &ctx));
    }
    return TE_OK;
}
/* Runs the backwards of lists `to` down to `from`. dx: the gradients between the lists. */
static te_status backward(net *n, int micro_batch, int from, int to, void *const dx[2]) {
    const te_batch b = batch_of(n, micro_batch);
    for (int i = to; i >= from; i--)
        TE_TRY(te_plan_backward(i ? hidden(dx[i & 1]) : te_none(), i + 1 < MODELS ? hidden(dx[(i + 1) & 1]) : te_none(),
                                &n->saved[i], n->all[i]->plan, n->all[i], &b, &ctx));
    return TE_OK;
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* The argument of a captured function: the last backward of a step, with its buckets. */
typedef struct last_backward { net *n; te_buckets *buckets; void *const *dx; } last_backward;
static te_status run_last(const te_graph *g, const void *arg, te_context *c) {
    const last_backward *l = (const last_backward *)arg;
    (void)g;
    TE_TRY(te_buckets_begin(l->buckets, c));
    TE_TRY(backward(l->n, 1, 0, MODELS - 1, l->dx));
    return te_buckets_finish(l->buckets, c);
}
static te_status capture_last(const last_backward *l) {
    const te_graph_spec spec = te_graph_spec_of("last backward", run_last, l, 0, 0, 0, 0, 0);
    void *memory;
    te_graph_pool pool;
    te_graph graph;
    TE_TRY(te_allocate(&ctx, &memory, 1 << 16));
    TE_TRY(te_graph_pool_init(&pool, memory, 1 << 16, &ctx));
    TE_TRY(te_graph_capture(&graph, &spec, &pool, &ctx));
    TE_TRY(te_graph_replay(&graph, 0, 0, &ctx));
    TE_TRY(te_comm_synchronize(&ctx));
    te_graph_destroy(&graph);
    return te_release(&ctx, memory), TE_OK;
}
/* Computes the gradients of two micro-batches. buckets: null if the gradients are not reduced; else they begin with the
 * second one. captured: the backward of the second one is a graph. */
static te_status gradients(net *n, te_buckets *buckets, void *const dx[2], int captured) {
    const last_backward last = {n, buckets, dx};
    TE_TRY(te_fill(&ctx, n->grads, 0xff, (size_t)n->elements * sizeof(float)));
    if (captured) {
        TE_TRY(forward(n, 0));
        TE_TRY(backward(n, 0, 0, MODELS - 1, dx));
        TE_TRY(forward(n, 1));
        return capture_last(&last);
    }
    /* [buckets] */
    for (int micro_batch = 0; micro_batch < 2; micro_batch++) {
        TE_TRY(forward(n, micro_batch));
        if (buckets && micro_batch == 1) TE_TRY(te_buckets_begin(buckets, &ctx)); /* the last one */
        TE_TRY(backward(n, micro_batch, 0, MODELS - 1, dx));
    }
    if (buckets) TE_TRY(te_buckets_finish(buckets, &ctx));
    /* [buckets] */
    return TE_OK;
}
static te_status read_grads(const net *n, float *to) {
    TE_TRY(te_copy(&ctx, to, n->grads, (size_t)n->elements * sizeof(float)));
    return te_comm_synchronize(&ctx);
}
/* Compares the gradients of trained parameters; if shards > 1, only this rank's. bound: the largest difference, relative
 * to the sum of magnitudes `size`; 0: the bits must be the same. */
static void compare(const char *name, const net *n, const float *got, const float *want, const float *size, int shards,
                    double bound) {
    const int rank = te_data_group(&ctx)->rank;
    for (int m = 0; m < MODELS; m++)
        for (int k = 0; k < n->all[m]->param_count; k++) {
            const te_param *p = &n->all[m]->param[k];
            const int64_t at = p->grad - n->grads, in_model = p->grad - n->all[m]->grads;
            const int64_t shard = te__slice_elements(n->all[m]->elements, shards);
            if (p->tied || p->frozen) continue;
            for (int64_t i = 0; i < p->rows * p->cols; i++) {
                const int is_local = in_model + i >= shard * shards || (in_model + i) / shard == rank;
                const double off = fabs((double)got[at + i] - (double)want[at + i]);
                if (shards > 1 && !is_local) continue;
                compared++;
                if (bound > 0 ? off <= bound * (double)size[at + i] : !memcmp(&got[at + i], &want[at + i], 4)) continue;
                if (wrong++ < 4)
                    printf("rank %d: %s: %s.%s of list %d, element %d is %.9g, should be %.9g\n", comm.world.rank, name,
                           p->op, p->field, m, (int)i, (double)got[at + i], (double)want[at + i]);
            }
        }
}
static te_status sums_of(const char *name, net *n, int64_t bytes, int shards, te_dtype dtype, void *const dx[2]) {
    const size_t all = (size_t)n->elements * sizeof(float);
    float *got = (float *)malloc(all), *want = (float *)malloc(all), *same = (float *)malloc(all),
          *size = (float *)malloc(all);
    const te_group *d = te_data_group(&ctx), *t = te_tensor_group(&ctx);
    te_buckets buckets;
    te_buckets_config config = te_buckets_defaults();
    config.bytes = bytes, config.shards = shards, config.dtype = dtype;
    /* in bf16 each addend and each sum of two is rounded */
    const double f32 = d->size > 2 && (shards == 1 || TE_CUDA) ? (d->size - 1.0) / (1 << 23) : 0;
    const double bound = dtype == TE_f32 ? f32 : d->size > 1 ? d->size / 256.0 : 0;
    if (!got || !want || !same || !size) return TE_ERROR_MEMORY;
    /* the sums of magnitudes, for the bounds of sums whose order is not known */
    TE_TRY(gradients(n, 0, dx, 0));
    TE_TRY(read_grads(n, size));
    for (int64_t i = 0; i < n->elements; i++) size[i] = size[i] == size[i] ? fabsf(size[i]) : 0;
    TE_TRY(te_copy(&ctx, n->grads, size, all));
    TE_TRY(te_group_all_reduce(d, n->grads, n->grads, n->elements, TE_f32, &ctx));
    TE_TRY(te_group_all_reduce(t, n->grads, n->grads, n->elements, TE_f32, &ctx));
    TE_TRY(read_grads(n, size));
    /* the reference: summed after backward */
    TE_TRY(gradients(n, 0, dx, 0));
    TE_TRY(te__reduce_gradients(n->all, MODELS, shards, &ctx));
    TE_TRY(read_grads(n, want));
    TE_TRY(te_buckets_init(&buckets, n->all, MODELS, &config, &ctx));
    wrong += shards == 1 && bytes == 1 && buckets.count != buckets.grad_count;
    wrong += !strncmp(name, "one bucket", 10) && buckets.count != 1;
    /* the same buckets, summed after backward, have the same order of sums */
    TE_TRY(gradients(n, 0, dx, 0));
    for (int i = 0; i < buckets.count; i++) TE_TRY(te__bucket_reduce(&buckets, &buckets.bucket[i], &ctx));
    TE_TRY(te_side_stream_join(&buckets.side, &ctx));
    TE_TRY(read_grads(n, same));
    for (int run = 0; run < 3; run++) {
        TE_TRY(gradients(n, &buckets, dx, run == 2));
        TE_TRY(read_grads(n, got));
        compare(name, n, got, same, 0, shards, 0);
        compare(name, n, got, want, size, shards, bound);
    }
    te_buckets_destroy(&buckets);
    free(got), free(want), free(same), free(size);
    return TE_OK;
}
static te_status run_sums(void) {
    static net n;
    const int ranks = te_data_group(&ctx)->size;
    void *dx[2];
    TE_TRY(make(&n));
    for (int i = 0; i < 2; i++) TE_TRY(te_allocate(&ctx, &dx[i], ROWS * HIDDEN * sizeof(float)));
    TE_TRY(sums_of("a bucket for each", &n, 1, 1, TE_f32, dx));
    TE_TRY(sums_of("buckets of 8 KiB", &n, 8 << 10, 1, TE_f32, dx));
    TE_TRY(sums_of("one bucket", &n, TE_BUCKET_BYTES, 1, TE_f32, dx));
    TE_TRY(sums_of("in bf16", &n, 8 << 10, 1, TE_bf16, dx));
    TE_TRY(sums_of("one bucket in bf16", &n, TE_BUCKET_BYTES, 1, TE_bf16, dx));
    if (ranks > 1) TE_TRY(sums_of("shards", &n, TE_BUCKET_BYTES, ranks, TE_f32, dx));
    if (ranks > 1) TE_TRY(sums_of("shards in bf16", &n, 8 << 10, ranks, TE_bf16, dx));
    TE_TRY(te_freeze(n.all[1], "qkv", 0, &ctx));
    TE_TRY(te_freeze(n.all[2], "n3", "weight", &ctx));
    TE_TRY(te_freeze(n.all[0], "at", 0, &ctx));
    TE_TRY(te_freeze(n.all[3], 0, 0, &ctx));
    TE_TRY(sums_of("some frozen", &n, 8 << 10, 1, TE_f32, dx));
    drop(&n);
    for (int i = 0; i < 2; i++) te_release(&ctx, dx[i]);
    return TE_OK;
}

/* ---- a rank that ends -------------------------------------------------------------------------------------------- */

static te_status run_leave(void) {
    static net n;
    void *dx[2];
    te_buckets buckets;
    te_buckets_config config = te_buckets_defaults();
    config.bytes = 8 << 10;
    TE_TRY(make(&n));
    for (int i = 0; i < 2; i++) TE_TRY(te_allocate(&ctx, &dx[i], ROWS * HIDDEN * sizeof(float)));
    TE_TRY(te_buckets_init(&buckets, n.all, MODELS, &config, &ctx));
    te_status status = gradients(&n, &buckets, dx, 0);
    if (status == TE_OK) status = te_comm_synchronize(&ctx);
    if (status == TE_OK && comm.world.rank == comm.world.size - 1) _exit(0);
    if (status == TE_OK) status = gradients(&n, &buckets, dx, 0);
    if (status == TE_OK) status = te_comm_synchronize(&ctx);
    wrong += status == TE_OK;
    return status;
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static te_status run_refuse(void) {
    static net n;
    te_buckets b, other;
    te_adamw opt;
    te_buckets_config c = te_buckets_defaults();
    const te_adamw_config plain = te_adamw_defaults(0.01f);
    void *dx[2], *state;
    memset(&b, 0, sizeof b), memset(&other, 0, sizeof other), memset(&opt, 0, sizeof opt);
    TE_TRY(make(&n));
    for (int i = 0; i < 2; i++) TE_TRY(te_allocate(&ctx, &dx[i], ROWS * HIDDEN * sizeof(float)));
    TE_TRY(te_allocate(&ctx, &state, te_adamw_bytes(n.all, MODELS)));
    TE_TRY(te_adamw_init(&opt, state, te_adamw_bytes(n.all, MODELS), n.all, MODELS, &plain, &ctx));
    refuses(te_buckets_begin(&b, &ctx), TE_ERROR_NULL, "te_buckets_begin: not initialised");
    refuses(te_buckets_finish(&b, &ctx), TE_ERROR_NULL, "te_buckets_finish: not initialised");
    refuses(te_buckets_init(&b, 0, 1, &c, &ctx), TE_ERROR_NULL, "the list of models is null");
    refuses(te_buckets_init(&b, n.all, MODELS, 0, &ctx), TE_ERROR_NULL, "the config is null");
    c.bytes = 0;
    refuses(te_buckets_init(&b, n.all, MODELS, &c, &ctx), TE_ERROR_VALUE, "buckets of 0 bytes");
    c = te_buckets_defaults(), c.shards = 7;
    refuses(te_buckets_init(&b, n.all, MODELS, &c, &ctx), TE_ERROR_VALUE, "shards is 7, and the data group");
    c.shards = 1, c.bytes = 8 << 10, c.dtype = TE_f16;
    refuses(te_buckets_init(&b, n.all, MODELS, &c, &ctx), TE_ERROR_DTYPE, "in f32 or bf16, not in f16");
    c.dtype = TE_f32;
    te_model *twice[2] = {n.all[1], n.all[1]};
    refuses(te_buckets_init(&b, twice, 2, &c, &ctx), TE_ERROR_VALUE, "is model 0 again");
    TE_TRY(te_buckets_init(&b, n.all, MODELS, &c, &ctx));
    refuses(te_buckets_init(&other, n.all + 1, 1, &c, &ctx), TE_ERROR_STATE, "belongs to buckets already");
    refuses(te_buckets_finish(&b, &ctx), TE_ERROR_STATE, "te_buckets_begin comes first");
    TE_TRY(forward(&n, 0));
    TE_TRY(te_buckets_begin(&b, &ctx));
    refuses(te_buckets_begin(&b, &ctx), TE_ERROR_STATE, "begun already");
    refuses(te_adamw_step(&opt, &ctx), TE_ERROR_STATE, "te_buckets_finish comes first");
    refuses(te_reduce_gradients(n.all, MODELS, &ctx), TE_ERROR_STATE, "te_buckets_finish comes first");
    TE_TRY(backward(&n, 0, 1, MODELS - 1, dx));
    wrong += !b.bucket[0].started || b.bucket[b.count - 1].started; /* the embedding's gradient is not final yet */
    refuses(backward(&n, 0, 4, 4, dx), TE_ERROR_STATE, "head: a backward of it has run since te_buckets_begin");
    refuses(te_buckets_finish(&b, &ctx), TE_ERROR_STATE, "is not final: of 1 backwards that write its gradient 0 have");
    TE_TRY(backward(&n, 0, 0, 0, dx)); /* now all are final */
    TE_TRY(te_buckets_finish(&b, &ctx));
    TE_TRY(te_adamw_step(&opt, &ctx));
    if (comm.world.size > 1) { /* buckets that sum a shard, with an optimizer that needs all gradients */
        te_buckets_destroy(&b);
        c.shards = comm.world.size;
        TE_TRY(te_buckets_init(&b, n.all, MODELS, &c, &ctx));
        refuses(te_adamw_step(&opt, &ctx), TE_ERROR_STATE, "buckets sum a slice of 2 of the gradients of embed1");
        te_buckets_destroy(&b);
        c.shards = 1;
        TE_TRY(te_buckets_init(&b, n.all, MODELS, &c, &ctx));
    }
    TE_TRY(te_freeze(n.all[1], "qkv", 0, &ctx));
    refuses(te_buckets_begin(&b, &ctx), TE_ERROR_STATE, "others are frozen or tied, since te_buckets_init");
    TE_TRY(te_unfreeze(n.all[1], "qkv", 0, &ctx));
    te_model *const m = n.all[2];
    TE_TRY(te_model_bind(m, m->plan, m->param, m->param_count, (void *)(uintptr_t)m->params,
                         (float *)(uintptr_t)m->grads, &ctx));
    refuses(te_buckets_begin(&b, &ctx), TE_ERROR_STATE, "model 2 (deep) was bound again");
    te_buckets_destroy(&b);
    TE_TRY(te_buckets_init(&b, n.all, MODELS, &c, &ctx));
    te_buckets_destroy(&b);
    drop(&n);
    te_release(&ctx, dx[0]), te_release(&ctx, dx[1]), te_release(&ctx, state);
    return TE_OK;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "sums";
    int rank, size;
    te_comm_rank_from_env(&rank, &size);
    te_comm_config config = te_comm_defaults();
    config.file = getenv("RANKS_FILE");
    config.tensor = config.copies = argc > 2 ? atoi(argv[2]) : 1;
    if (getenv("RANKS_TIMEOUT")) config.timeout = atof(getenv("RANKS_TIMEOUT"));
    te_status status = te_context_create(&ctx, TE_CUDA ? te_comm_local_rank_from_env() : 0, 3);
    if (status == TE_OK) status = te_comm_create(&comm, &config, &ctx);
    if (status == TE_OK) status = !strcmp(mode, "sums") ? run_sums() : !strcmp(mode, "leave") ? run_leave() : run_refuse();
    if (status != TE_OK) printf("rank %d: %s: %s\n", rank, te_status_string(status), te_last_error(&ctx));
    else if (compared && !rank) printf("buckets, %s: %lld values of %d ranks, tensor groups of %d\n", mode,
                                       (long long)compared, size, config.tensor);
    fflush(stdout);
    te_comm_destroy(&comm); /* does not wait for ranks that have failed */
    te_context_destroy(&ctx);
    if (status == TE_ERROR_COMM) _exit(3); /* exit handlers of MPI would wait */
    return status != TE_OK || wrong;
}
