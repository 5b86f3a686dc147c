/* fsdp.c -- sharded weights and gradients (te/optim/fsdp.h) against plain data parallel, which has all weights and
 * gradients on each rank. tests/comm.sh runs it as several processes.
 *
 *     mpirun -n 4 fsdp steps FILE                  losses, gradient norms and weights of some steps, with several
 *         micro-batches, slots and formats; both runs write the same checkpoint FILE, and go on from it alike
 *     mpirun -n 2 fsdp refuse                      wrong calls and their error texts; also with one rank
 *     mpirun -n 3 fsdp leave                       the last rank ends between two steps: the others must notice
 *
 * Without -DTE_COMM it is a program for one rank, which a GPU runs without NCCL.
 *
 * Exit code 0: all is right; 1: not; 3: another rank has failed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "te/te.h"
#include "rank_test.h"

/* ---- lists ------------------------------------------------------------------------------------------------------- */

enum { VOCABULARY = 61, HIDDEN = 24, FFN = 40, HEADS = 3, LENGTH = 8, SEQUENCES = 2, ROWS = LENGTH * SEQUENCES };

/* Sizes that no number of ranks divides, a list of two heights, and one that is smaller than a shard's rounding. */
#define BLOCK                                                                                                         \
    (fork, x1), (layernorm, n1, HIDDEN), (linear, qkv, HIDDEN, 3 * HIDDEN), (bias, qkv_b, 3 * HIDDEN),                \
    (attention, mix, HEADS, HEADS, HIDDEN / HEADS), (linear, proj, HIDDEN, HIDDEN), (bias, proj_b, HIDDEN), (add, x1)
#define MLP                                                                                                           \
    (fork, x2), (rmsnorm, n2, HIDDEN), (linear, up, HIDDEN, FFN), (bias, up_b, FFN), (gelu, act),                     \
    (linear, down, FFN, HIDDEN), (add, x2)
#define LISTS(T)                                                                                                      \
    TE_SEQUENTIAL(embed_##T, T, (embedding, wte, VOCABULARY, HIDDEN), (positions, at, LENGTH, HIDDEN))                \
    TE_SEQUENTIAL(block_##T, T, BLOCK)                                                                                \
    TE_SEQUENTIAL(mlp_##T, T, MLP)                                                                                    \
    TE_SEQUENTIAL(shift_##T, T, (bias, b, HIDDEN))                                                                    \
    TE_SEQUENTIAL(head_##T, T, (rmsnorm, last, HIDDEN), (tied_linear, lm, HIDDEN, VOCABULARY),                        \
                  (cross_entropy, loss, VOCABULARY))
LISTS(f32)
LISTS(bf16)

enum { MODELS = 8, BLOCKS = MODELS - 2, PARAMS = 64 };
/* A model with or without fsdp, the embedding and the head without. */
typedef struct net {
    te_model model[MODELS], *all[MODELS];
    te_param param[PARAMS];
    te_saved saved[MODELS];
    te_fsdp fsdp;
    te_adamw opt;
    void *x[MODELS], *dx[2], *weights[MODELS], *grads[MODELS], *sharded, *state;
    int32_t *tokens, *labels;
    size_t bytes, slot_bytes; /* of weights, gradients and optimizer states; of the slots */
    te_dtype dtype;
} net;

static te_param *param_of(te_model *m, const char *op) {
    for (int i = 0; i < m->param_count; i++)
        if (!strcmp(m->param[i].op, op)) return &m->param[i];
    return 0;
}
static const te_plan *plan_of(te_dtype dtype, int i) {
    const te_plan *const plans[2][5] = {
        {embed_f32_plan(), block_f32_plan(), mlp_f32_plan(), shift_f32_plan(), head_f32_plan()},
        {embed_bf16_plan(), block_bf16_plan(), mlp_bf16_plan(), shift_bf16_plan(), head_bf16_plan()}};
    static const int kinds[MODELS] = {0, 1, 2, 1, 3, 2, 1, 4};
    return plans[dtype == TE_bf16][kinds[i]];
}
static te_status allocate(net *n, void **p, size_t bytes) {
    n->bytes += bytes;
    TE_TRY(te_allocate(&ctx, p, bytes + 1));
    return te_fill(&ctx, *p, 0xff, bytes);
}
static te_status randomize(net *n, int i) {
    if (n->all[i]->shards) TE_TRY(te_fsdp_gather(&n->fsdp, n->all[i], &ctx));
    TE_TRY(te_model_randomize(n->all[i], 0.2f, 5, 100 * (uint32_t)i, &ctx));
    return n->all[i]->shards ? te_fsdp_keep(&n->fsdp, n->all[i], &ctx) : TE_OK;
}
/* config: null: without fsdp. */
static te_status make(net *n, te_dtype dtype, const te_fsdp_config *config, const te_adamw_config *with) {
    size_t workspace = 0;
    te_param *next = n->param;
    memset(n, 0, sizeof *n);
    n->dtype = dtype;
    for (int i = 0; i < MODELS; i++, next += n->all[i - 1]->param_count) {
        const te_plan *plan = plan_of(dtype, i);
        int count = 0;
        for (int k = 0; k < plan->op_count; k++) count += plan->op[k].params;
        n->all[i] = &n->model[i];
        if (config && i && i + 1 < MODELS) {
            TE_TRY(te_model_describe(n->all[i], plan, next, count, &ctx));
            continue;
        }
        TE_TRY(allocate(n, &n->weights[i], te_plan_param_bytes(plan)));
        TE_TRY(allocate(n, &n->grads[i], te_plan_grad_bytes(plan)));
        TE_TRY(te_fill(&ctx, n->weights[i], 0, te_plan_param_bytes(plan)));
        TE_TRY(te_model_bind(n->all[i], plan, next, count, n->weights[i], (float *)n->grads[i], &ctx));
    }
    if (config) {
        /* [init] */
        const size_t bytes = te_fsdp_bytes(n->all + 1, BLOCKS, config, &ctx);
        TE_TRY(allocate(n, &n->sharded, bytes));
        TE_TRY(te_fsdp_init(&n->fsdp, n->sharded, bytes, n->all + 1, BLOCKS, config, &ctx));
        /* [init] */
        n->slot_bytes = te__fsdp_layout_of(n->all + 1, BLOCKS, config).bytes;
    }
    for (int i = 0; i < MODELS; i++) TE_TRY(randomize(n, i));
    TE_TRY(te_tie(param_of(n->all[MODELS - 1], "lm"), param_of(n->all[0], "wte"), &ctx));
    TE_TRY(te_freeze(n->all[2], "n2", "weight", &ctx));
    for (int i = 0; i < MODELS; i++) {
        const size_t need = te_plan_workspace_bytes(n->all[i]->plan, n->all[i], ROWS, &ctx);
        workspace = need > workspace ? need : workspace;
        n->saved[i].bytes = te_plan_saved_bytes(n->all[i]->plan, ROWS);
        TE_TRY(te_allocate(&ctx, &n->saved[i].memory, n->saved[i].bytes + 1));
        TE_TRY(te_allocate(&ctx, &n->x[i], ROWS * HIDDEN * sizeof(float)));
    }
    for (int i = 0; i < 2; i++) TE_TRY(te_allocate(&ctx, &n->dx[i], ROWS * HIDDEN * sizeof(float)));
    TE_TRY(te_allocate(&ctx, (void **)&n->tokens, ROWS * sizeof(int32_t)));
    TE_TRY(te_allocate(&ctx, (void **)&n->labels, ROWS * sizeof(int32_t)));
    TE_TRY(te_context_reserve(&ctx, workspace));
    const size_t bytes = te_adamw_bytes_of(n->all, MODELS, with);
    TE_TRY(allocate(n, &n->state, bytes));
    return te_adamw_init(&n->opt, n->state, bytes, n->all, MODELS, with, &ctx);
}
static void drop(net *n) {
    te_fsdp_destroy(&n->fsdp);
    for (int i = 0; i < MODELS; i++) {
        te_release(&ctx, n->saved[i].memory), te_release(&ctx, n->x[i]);
        te_release(&ctx, n->weights[i]), te_release(&ctx, n->grads[i]);
    }
    te_release(&ctx, n->dx[0]), te_release(&ctx, n->dx[1]), te_release(&ctx, n->tokens), te_release(&ctx, n->labels);
    te_release(&ctx, n->sharded), te_release(&ctx, n->state);
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

static te_batch batch_of(const net *n) {
    te_batch b;
    memset(&b, 0, sizeof b);
    b.batch = SEQUENCES, b.seq = LENGTH, b.ignore_index = -1, b.tokens = n->tokens, b.labels = n->labels;
    return b;
}
static te_tensor value(const net *n, void *data) { return te_matrix(data, n->dtype, ROWS, HIDDEN); }
static te_status take_batch(net *n, int number) {
    int32_t host[2 * ROWS];
    for (int i = 0; i < 2 * ROWS; i++) {
        uint32_t u[4];
        te_philox(u, 17, (uint64_t)i, (uint64_t)number, (uint64_t)te_data_group(&ctx)->rank);
        host[i] = (int32_t)(u[0] % VOCABULARY);
    }
    TE_TRY(te_copy(&ctx, n->tokens, host, ROWS * sizeof(int32_t)));
    TE_TRY(te_copy(&ctx, n->labels, host + ROWS, ROWS * sizeof(int32_t)));
    return te_synchronize(&ctx);
}
/* Runs all models; the loss of each row is then in x[MODELS - 1]. */
static te_status forward(net *n, int train) {
    const te_batch b = batch_of(n);
    for (int i = 0; i < MODELS; i++) {
        const te_tensor y = i + 1 < MODELS ? value(n, n->x[i]) : te_matrix(n->x[i], TE_f32, ROWS, 1);
        TE_TRY(te_plan_forward(y, train ? &n->saved[i] : 0, i ? value(n, n->x[i - 1]) : te_none(), n->all[i]->plan,
                               n->all[i], &b, &ctx));
    }
    return TE_OK;
}
static te_status backward(net *n, int accumulate, float scale, int first, int last) {
    te_batch b = batch_of(n);
    b.accumulate = accumulate, b.loss_scale = scale;
    for (int i = last; i >= first; i--)
        TE_TRY(te_plan_backward(i ? value(n, n->dx[i & 1]) : te_none(),
                                i + 1 < MODELS ? value(n, n->dx[(i + 1) & 1]) : te_none(), &n->saved[i],
                                n->all[i]->plan, n->all[i], &b, &ctx));
    return TE_OK;
}
static te_status update(net *n) {
    /* [step] */
    if (n->slot_bytes) TE_TRY(te_fsdp_finish(&n->fsdp, &ctx));
    TE_TRY(te_adamw_reduce(&n->opt, &ctx));
    return te_adamw_step(&n->opt, &ctx);
    /* [step] */
}
/* A te_graph_fn: a step with one micro-batch. */
static te_status enqueue_step(const te_graph *g, const void *arg, te_context *c) {
    net *n = *(net *const *)arg;
    (void)g, (void)c;
    TE_TRY(forward(n, 1));
    TE_TRY(backward(n, 0, 1.0f / (float)(ROWS * te_data_group(&ctx)->size), 0, MODELS - 1));
    return update(n);
}
/* A step: *loss becomes the sum of this rank's losses. */
static te_status step(net *n, int number, int micro, double *loss) {
    const float scale = 1.0f / (float)(ROWS * micro * te_data_group(&ctx)->size);
    *loss = 0;
    if (n->slot_bytes) TE_TRY(te_fill(&ctx, n->sharded, 0xff, n->slot_bytes)); /* NaN until they are gathered */
    for (int m = 0; m < micro; m++) {
        float host[ROWS];
        TE_TRY(take_batch(n, number * micro + m));
        TE_TRY(forward(n, 1));
        TE_TRY(te_copy(&ctx, host, n->x[MODELS - 1], sizeof host));
        TE_TRY(te_comm_synchronize(&ctx));
        for (int i = 0; i < ROWS; i++) *loss += host[i];
        TE_TRY(backward(n, m > 0, scale, 0, MODELS - 1));
    }
    return update(n);
}

/* ---- comparisons ------------------------------------------------------------------------------------------------- */

static void compare(const char *name, int64_t at, double got, double want, double off) {
    compared++;
    if (fabs(got - want) <= off) return; /* NaN is not */
    if (wrong++ < 4) printf("rank %d: %s: value %lld is %.9g, should be %.9g\n", comm.world.rank, name, (long long)at, got, want);
}
static te_status compare_nets(const char *name, net *got, const net *want, double off) {
    static char a[FFN * 4 * VOCABULARY * 4], b[FFN * 4 * VOCABULARY * 4];
    for (int i = 0; i < MODELS; i++) {
        if (got->all[i]->shards) TE_TRY(te_fsdp_gather(&got->fsdp, got->all[i], &ctx));
        for (int k = 0; k < got->all[i]->param_count; k++) {
            const te_param *g = &got->all[i]->param[k], *w = &want->all[i]->param[k];
            const int64_t n = g->rows * g->cols;
            TE_TRY(te_copy(&ctx, a, g->data, (size_t)n * te_dtype_bytes(g->dtype)));
            TE_TRY(te_copy(&ctx, b, w->data, (size_t)n * te_dtype_bytes(w->dtype)));
            TE_TRY(te_comm_synchronize(&ctx));
            for (int64_t e = 0; e < n; e++) compare(name, e, te_load(a, e, g->dtype), te_load(b, e, w->dtype), off);
        }
    }
    te_adamw_state is, was;
    TE_TRY(te_adamw_get(&is, &got->opt, &ctx));
    TE_TRY(te_adamw_get(&was, &want->opt, &ctx));
    compare("norm", 0, is.norm, was.norm, 1e-6 * (double)was.norm + 10 * off);
    wrong += is.step != was.step || is.skipped;
    return TE_OK;
}
static te_checkpoint checkpoint_of(net *n, te_named_model named[MODELS]) {
    static const char *const names[MODELS] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    te_checkpoint c;
    memset(&c, 0, sizeof c);
    for (int i = 0; i < MODELS; i++) named[i].name = names[i], named[i].model = n->all[i];
    c.models = named, c.count = MODELS, c.optimizer = &n->opt, c.random = 1;
    return c;
}
/* Both write a file; if their weights are the same, so are the files. Then the shards are overwritten, and loaded. */
static te_status through_file(net *sharded, net *plain, const char *path, int same) {
    te_named_model named[2][MODELS];
    te_checkpoint first = checkpoint_of(sharded, named[0]), second = checkpoint_of(plain, named[1]);
    te_safetensors file;
    char *a = 0, *b = 0;
    TE_TRY(te_checkpoint_save(path, &first, &ctx));
    const int64_t n = comm.world.rank ? 0 : bytes_of(&a, path);
    TE_TRY(te_checkpoint_save(path, &second, &ctx));
    const int64_t m = comm.world.rank ? 0 : bytes_of(&b, path);
    if (n < 0 || n != m || (same && n && memcmp(a, b, (size_t)n))) wrong++, printf("the files differ\n");
    free(a), free(b);
    TE_TRY(te_fill(&ctx, sharded->opt.m, 0xff, (size_t)sharded->opt.m_elements * te_dtype_bytes(sharded->opt.moments)));
    for (int i = 1; i + 1 < MODELS; i++) {
        const te_model_shards *s = sharded->all[i]->shards;
        const size_t elements = s->has_weights ? (size_t)s->elements : (size_t)sharded->all[i]->elements;
        TE_TRY(te_fill(&ctx, s->params, 0xff, elements * te_dtype_bytes(sharded->dtype)));
    }
    TE_TRY(te_safetensors_open(&file, path, &ctx));
    te_status status = te_checkpoint_load(&first, &file, &ctx);
    if (status == TE_OK) status = te_checkpoint_load(&second, &file, &ctx); /* plain has the same rounding errors now */
    te_safetensors_close(&file);
    return status;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Three steps that are replays of a graph, against steps that are not. */
static te_status steps_of_graph(net *sharded, net *plain) {
    te_graph graph;
    net *const arg = sharded, *const other = plain;
    const te_graph_spec spec = te_graph_spec_of("a step", enqueue_step, &arg, sizeof arg, 0, 0, 0, 0);
    TE_TRY(te_graph_capture(&graph, &spec, 0, &ctx));
    for (int i = 4; i < 7; i++) {
        TE_TRY(te_fill(&ctx, sharded->sharded, 0xff, sharded->slot_bytes));
        TE_TRY(take_batch(sharded, i));
        TE_TRY(take_batch(plain, i));
        TE_TRY(te_graph_replay(&graph, 0, 0, &ctx));
        TE_TRY(enqueue_step(0, &other, &ctx));
    }
    TE_TRY(te_comm_synchronize(&ctx));
    te_graph_destroy(&graph);
    return TE_OK;
}

typedef struct kind { int zero, micro, slots, is_bf16, sends_bf16, clips; } kind;
static te_status steps_of(kind k, const char *path) {
    static net plain, sharded;
    const int ranks = te_data_group(&ctx)->size, same = ranks <= 2 && k.micro == 1 && !k.sends_bf16 && !k.clips;
    const te_dtype dtype = k.is_bf16 ? TE_bf16 : TE_f32;
    /* a weight in bf16 may be rounded to the next number; gradients that are sent in bf16 change a step of AdamW */
    const double off = same ? 0 : k.sends_bf16 ? 2e-2 : k.is_bf16 ? 1.0 / 64 : 2e-6;
    te_adamw_config with = te_adamw_defaults(1e-2f);
    te_fsdp_config config = te_fsdp_defaults();
    char name[96];
    config.zero = k.zero, config.slots = k.slots, config.dtype = k.sends_bf16 ? TE_bf16 : TE_f32;
    with.skip_nonfinite = 1, with.max_norm = k.clips ? 0.3f : 0, with.weight_decay = 0.1f, with.eps = 1e-4f;
    TE_TRY(make(&plain, dtype, 0, &with));
    with.shards = ranks;
    TE_TRY(make(&sharded, dtype, &config, &with));
    snprintf(name, sizeof name, "zero %d, %s, %d slots, %d micro-batches%s%s", k.zero, te_dtype_name(dtype), k.slots, k.micro,
             k.sends_bf16 ? ", sums in bf16" : "", k.clips ? ", clipped" : "");
    for (int i = 0; i < 4; i++) {
        double got, want;
        for (int m = 0; i == 1 && m < MODELS; m++) { /* the next step begins with these weights, not with the master weights */
            TE_TRY(randomize(&plain, m));
            TE_TRY(randomize(&sharded, m));
        }
        if (i == 2) TE_TRY(through_file(&sharded, &plain, path, same));
        TE_TRY(step(&plain, i, k.micro, &want));
        TE_TRY(step(&sharded, i, k.micro, &got));
        compare(name, -1, got, want, same ? 0 : k.is_bf16 || k.sends_bf16 ? 2e-3 * want : 1e-6 * want);
        TE_TRY(compare_nets(name, &sharded, &plain, off));
    }
    TE_TRY(steps_of_graph(&sharded, &plain));
    TE_TRY(compare_nets("graph", &sharded, &plain, off));
    float got[ROWS], want[ROWS]; /* inference */
    TE_TRY(te_fill(&ctx, sharded.sharded, 0xff, sharded.slot_bytes));
    TE_TRY(take_batch(&sharded, 99));
    TE_TRY(take_batch(&plain, 99));
    TE_TRY(forward(&sharded, 0));
    TE_TRY(forward(&plain, 0));
    TE_TRY(te_copy(&ctx, got, sharded.x[MODELS - 1], sizeof got));
    TE_TRY(te_copy(&ctx, want, plain.x[MODELS - 1], sizeof want));
    TE_TRY(te_comm_synchronize(&ctx));
    for (int i = 0; i < ROWS; i++) compare("inference", i, got[i], want[i], same ? 0 : k.is_bf16 || k.sends_bf16 ? 0.05 : 1e-5);
    if (!comm.world.rank)
        printf("fsdp on %d: %s: %zu bytes a rank, %zu of them slots; %zu without\n", ranks, name, sharded.bytes,
               sharded.slot_bytes, plain.bytes);
    fflush(stdout);
    drop(&plain), drop(&sharded);
    return TE_OK;
}
static te_status run_steps(const char *path) {
    static const kind kinds[] = {{3, 1, 2, 0, 0, 0}, {3, 3, 2, 0, 0, 1}, {3, 2, 3, 1, 0, 0}, {3, 1, 8, 1, 0, 0},
                                 {3, 2, 2, 0, 1, 0}, {2, 1, 2, 0, 0, 0}, {2, 3, 3, 1, 0, 1}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) TE_TRY(steps_of(kinds[i], path));
    return TE_OK;
}

/* ---- a rank that ends -------------------------------------------------------------------------------------------- */

static te_status run_leave(void) {
    static net n;
    double loss;
    const te_fsdp_config config = te_fsdp_defaults();
    te_adamw_config with = te_adamw_defaults(1e-2f);
    with.shards = te_data_group(&ctx)->size;
    TE_TRY(make(&n, TE_f32, &config, &with));
    TE_TRY(step(&n, 0, 1, &loss));
    TE_TRY(te_comm_synchronize(&ctx));
    if (comm.world.rank == comm.world.size - 1) _exit(0);
    const te_status status = step(&n, 1, 1, &loss);
    wrong += status == TE_OK;
    return status;
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

TE_SEQUENTIAL(fp8, (bf16, (recipe, fp8_delayed)), (linear, w, 64, 64))
TE_SEQUENTIAL(fp8_f32, (bf16, (recipe, fp8_delayed), (weights, f32)), (linear, w, 64, 64))
TE_SEQUENTIAL(copied, bf16, (linear, w, 64, 96, (shard, columns), (parts, 3), (copies, 2)))
static te_status run_refuse(void) {
    static net n;
    static copied held;
    static fp8 f;
    static fp8_f32 wide;
    te_fsdp other;
    te_adamw opt;
    te_grad_norm norm;
    te_recipes recipes;
    te_fsdp_config c = te_fsdp_defaults();
    te_adamw_config with = te_adamw_defaults(0.01f);
    te_model *models[2] = {&f.model, &wide.model};
    char *memory;
    const size_t bytes = 1 << 20;
    const int ranks = te_data_group(&ctx)->size;
    with.shards = ranks;
    memset(&other, 0, sizeof other);
    TE_TRY(te_allocate(&ctx, (void **)&memory, bytes));
    refuses(te_fsdp_init(&other, memory, bytes, models, 1, &c, &ctx), TE_ERROR_STATE, "te_model_describe comes first");
    TE_TRY(te_model_describe(&f.model, fp8_plan(), &f.w.weight, 1, &ctx));
    TE_TRY(te_model_describe(&wide.model, fp8_f32_plan(), &wide.w.weight, 1, &ctx));
    refuses(te_fsdp_init(&other, memory, bytes, models, 2, &c, &ctx), TE_ERROR_DTYPE, "model 1 (fp8_f32) has weights in another format");
    TE_TRY(te_model_describe(&held.model, copied_plan(), &held.w.weight, 1, &ctx));
    models[1] = &held.model;
    refuses(te_fsdp_init(&other, memory, bytes, models, 2, &c, &ctx), TE_ERROR_STATE, "2 ranks hold the same k and v of w.weight");
    models[1] = &f.model;
    refuses(te_fsdp_init(&other, memory, bytes, models, 2, &c, &ctx), TE_ERROR_VALUE, "is model 0 again");
    refuses(te_fsdp_init(&other, memory, bytes, models, 1, 0, &ctx), TE_ERROR_NULL, "the config");
    refuses(te_fsdp_init(0, memory, bytes, models, 1, &c, &ctx), TE_ERROR_NULL, "the struct is null");
    refuses(te_fsdp_init(&other, memory, 256, models, 1, &c, &ctx), TE_ERROR_MEMORY, "memory has 256 bytes");
    c.zero = 1;
    refuses(te_fsdp_init(&other, memory, bytes, models, 1, &c, &ctx), TE_ERROR_VALUE, "zero 1, which is 2 or 3");
    c.zero = 3, c.slots = 1;
    refuses(te_fsdp_init(&other, memory, bytes, models, 1, &c, &ctx), TE_ERROR_VALUE, "1 slots");
    wrong += te_fsdp_bytes(models, 1, &c, &ctx) != 0;
    c.slots = 2, c.dtype = TE_f16;
    refuses(te_fsdp_init(&other, memory, bytes, models, 1, &c, &ctx), TE_ERROR_DTYPE, "not in f16");
    c.dtype = TE_f32;
    TE_TRY(te_fsdp_init(&other, memory, bytes, models, 1, &c, &ctx));
    refuses(te_model_randomize(&f.model, 1, 2, 3, &ctx), TE_ERROR_STATE, "te_fsdp_gather");
    refuses(te_fsdp_keep(&other, &f.model, &ctx), TE_ERROR_STATE, "te_fsdp_gather");
    refuses(te_fsdp_gather(&other, &wide.model, &ctx), TE_ERROR_STATE, "not one of te_fsdp_init");
    refuses(te_bind_trained_grads(&f.model, (float *)(void *)memory, &ctx), TE_ERROR_STATE, "its gradients are sharded");
    te_recipes_config scales = te_recipes_defaults();
    refuses(te_recipes_init(&recipes, memory, bytes, models, 1, &scales, &ctx), TE_ERROR_STATE,
            "recipes: the weights of model 0 (fp8) are sharded");
    te_fsdp_destroy(&other);
    refuses(te_fsdp_finish(&other, &ctx), TE_ERROR_NULL, "not initialised");

    c.zero = 2; /* weights are not sharded, but the errors below concern gradients, too */
    TE_TRY(make(&n, TE_f32, &c, &with));
    const size_t need = te_adamw_bytes(n.all, MODELS);
    void *state;
    TE_TRY(te_allocate(&ctx, &state, need + te_grad_norm_bytes(n.all, MODELS)));
    const te_adamw_config plain = te_adamw_defaults(0.01f), muon = te_muon_defaults(0.01f);
    if (ranks > 1) {
        te_adamw_config sharded_muon = muon;
        sharded_muon.shards = ranks;
        void *big;
        const size_t muon_bytes = te_adamw_bytes_of(n.all, MODELS, &sharded_muon);
        TE_TRY(te_allocate(&ctx, &big, muon_bytes));
        refuses(te_adamw_init(&opt, state, need, n.all, MODELS, &plain, &ctx), TE_ERROR_STATE, "are in 2 shards");
        refuses(te_adamw_init(&opt, big, muon_bytes, n.all, MODELS, &sharded_muon, &ctx), TE_ERROR_STATE, "muon needs whole matrices");
        refuses(te_grad_norm_init(&norm, state, te_grad_norm_bytes(n.all, MODELS), n.all, MODELS, &ctx), TE_ERROR_STATE,
                "gradient norm: the gradients of model 1 (block_f32) are in 2 shards");
        te_release(&ctx, big);
    }
    TE_TRY(take_batch(&n, 0));
    TE_TRY(forward(&n, 1));
    TE_TRY(backward(&n, 0, 1, 1, MODELS - 1));
    refuses(te_adamw_step(&n.opt, &ctx), TE_ERROR_STATE, "te_fsdp_finish comes first");
    refuses(te_adamw_reduce(&n.opt, &ctx), TE_ERROR_STATE, "te_fsdp_finish comes first");
    TE_TRY(te_fsdp_finish(&n.fsdp, &ctx));
    TE_TRY(backward(&n, 0, 1, 0, 0));
    TE_TRY(te_adamw_reduce(&n.opt, &ctx));
    TE_TRY(te_adamw_step(&n.opt, &ctx));
    te_param *const lm = param_of(n.all[MODELS - 1], "lm");
    lm->with = 0; /* as if it had not been tied yet */
    te_model *const block = n.all[1];
    te_param *const qkv = param_of(block, "qkv");
    refuses(te_tie(lm, qkv, &ctx), TE_ERROR_STATE, "leave it out of te_fsdp_init");
    TE_TRY(te_model_bind(block, block->plan, block->param, block->param_count, (void *)(uintptr_t)block->params, 0, &ctx));
    refuses(te_fsdp_gather(&n.fsdp, block, &ctx), TE_ERROR_STATE, "was bound again");
    drop(&n), te_release(&ctx, memory), te_release(&ctx, state);
    return TE_OK;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "refuse", *local = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    int rank, size;
    te_comm_rank_from_env(&rank, &size);
#ifdef TE_COMM
    te_comm_config config = te_comm_defaults();
    config.file = getenv("RANKS_FILE");
    if (getenv("RANKS_TIMEOUT")) config.timeout = atof(getenv("RANKS_TIMEOUT"));
#endif
    te_status status = te_context_create(&ctx, TE_CUDA ? (local ? atoi(local) : rank) : 0, 3);
#ifdef TE_COMM
    if (status == TE_OK) status = te_comm_create(&comm, &config, &ctx);
#endif
    if (status == TE_OK) status = !strcmp(mode, "steps") && argc > 2 ? run_steps(argv[2])
                                         : !strcmp(mode, "leave") ? run_leave() : run_refuse();
    if (status != TE_OK) printf("rank %d: %s: %s\n", rank, te_status_string(status), te_last_error(&ctx));
    else if (compared && !rank) printf("fsdp, %s: %lld values of %d ranks\n", mode, (long long)compared, size);
    fflush(stdout);
#ifdef TE_COMM
    te_comm_destroy(&comm); /* does not wait for ranks that have failed */
#endif
    te_context_destroy(&ctx);
    if (status == TE_ERROR_COMM) _exit(3); /* exit handlers of MPI would wait */
    return status != TE_OK || wrong;
}
