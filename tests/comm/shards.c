/* shards.c -- optimizer states, the vocabulary, checkpoints and FP8 scales of several ranks. tests/comm.sh runs it as
 * several processes.
 *
 *     mpirun -n 4 shards states TENSOR FILE        an optimizer with sharded states against one with all states; both
 *         write the same FILE
 *     mpirun -n 4 shards scales TENSOR FILE        FP8 scales follow the amax over all ranks; saved to FILE and loaded
 *         again, they lead to the same bits
 *     mpirun -n 4 shards vocabulary                vocabulary-parallel embedding and cross_entropy against one rank's
 *     mpirun -n 4 shards train TENSOR SHARDED FIRST LAST FROM TO
 *         rank 0 prints the losses of steps FIRST to LAST of a small GPT. SHARDED 1: with sharded optimizer states.
 *         Starts from the checkpoint FROM and writes the checkpoint TO; "-" is none
 *     mpirun -n 2 shards refuse                    wrong calls and their error texts
 *
 * Exit code 0: all is right; 1: not; 3: another rank has failed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "te/te.h"
#include "rank_test.h"

static te_status read_back(void *to, const void *from, size_t bytes) {
    TE_TRY(te_copy(&ctx, to, from, bytes));
    return te_comm_synchronize(&ctx);
}
static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
/* Checks that two values have the same bits, or differ by at most `off`. */
static void compare(const char *name, int64_t at, float got, float want, double off) {
    compared++;
    if (bits_of(got) == bits_of(want) || fabs((double)got - want) <= off) return;
    if (wrong++ < 4)
        printf("rank %d: %s: element %lld is %.9g, should be %.9g\n", comm.world.rank, name, (long long)at, got, want);
}


/* ---- optimizer states -------------------------------------------------------------------------------------------- */

/* Sizes that no number of ranks divides; a model smaller than a shard; one in bf16; one sharded over a tensor group. */
TE_SEQUENTIAL(odd, f32, (linear, a, 13, 37), (bias, a_b, 37), (linear, c, 37, 5))
TE_SEQUENTIAL(tiny, (f32, (width, 5)), (mul_param, s, 1))
TE_SEQUENTIAL(wide, bf16, (linear, a, 61, 67), (bias, a_b, 67), (linear, c, 67, 131))
TE_SEQUENTIAL(parts, f32, (copy_to_group, g), (linear, p, 13, 24, (shard, columns)), (gelu, act),
              (linear, q, 24, 13, (shard, rows)), (all_reduce, r), (bias, q_b, 13))

/* With the rule muon, AdamW updates this one, which is large enough to be sharded. */
TE_SEQUENTIAL(large, f32, (embedding, rows, 1031, 67))

enum { MODELS = 5, LARGEST = 1031 * 67 };
typedef struct replica {
    odd a;
    tiny b;
    wide c;
    parts d;
    large e;
    te_model *models[MODELS];
    te_adamw opt;
    void *memory[2 * MODELS + 1];
} replica;

static te_status bind_replica(replica *r, const te_adamw_config *config) {
    const size_t params[MODELS] = {odd_param_bytes(), tiny_param_bytes(), wide_param_bytes(), parts_param_bytes(),
                                   large_param_bytes()},
                 grads[MODELS] = {odd_grad_bytes(), tiny_grad_bytes(), wide_grad_bytes(), parts_grad_bytes(), large_grad_bytes()};
    for (int i = 0; i < MODELS; i++) {
        TE_TRY(te_allocate(&ctx, &r->memory[2 * i], params[i]));
        TE_TRY(te_allocate(&ctx, &r->memory[2 * i + 1], grads[i]));
        TE_TRY(te_fill(&ctx, r->memory[2 * i], 0, params[i]));
        TE_TRY(te_fill(&ctx, r->memory[2 * i + 1], 0, grads[i]));
    }
    TE_TRY(odd_bind(&r->a, r->memory[0], (float *)r->memory[1], &ctx));
    TE_TRY(tiny_bind(&r->b, r->memory[2], (float *)r->memory[3], &ctx));
    TE_TRY(wide_bind(&r->c, r->memory[4], (float *)r->memory[5], &ctx));
    TE_TRY(parts_bind(&r->d, r->memory[6], (float *)r->memory[7], &ctx));
    TE_TRY(large_bind(&r->e, r->memory[8], (float *)r->memory[9], &ctx));
    r->models[0] = &r->a.model, r->models[1] = &r->b.model, r->models[2] = &r->c.model, r->models[3] = &r->d.model,
    r->models[4] = &r->e.model;
    for (int i = 0; i < MODELS; i++) TE_TRY(te_model_randomize(r->models[i], 0.5f, 7, 100 * (uint32_t)i, &ctx));
    const size_t bytes = te_adamw_bytes_of(r->models, MODELS, config);
    TE_TRY(te_allocate(&ctx, &r->memory[2 * MODELS], bytes));
    TE_TRY(te_fill(&ctx, r->memory[2 * MODELS], 0xff, bytes));
    return te_adamw_init(&r->opt, r->memory[2 * MODELS], bytes, r->models, MODELS, config, &ctx);
}
/* Fills in gradients that are multiples of 1/8, whose sums are exact in any order. bad: one of them is infinite. */
static te_status fill_gradients(replica *r, int step, int bad) {
    static float v[LARGEST];
    const te_group *t = te_tensor_group(&ctx), *d = te_data_group(&ctx);
    te_param_iter w = te_params_of(r->models, MODELS);
    for (int k = 0; te_params_next(&w); k++) {
        const int64_t n = w.param->rows * w.param->cols;
        const uint32_t rank = (uint32_t)(d->rank * 64 + (w.param->shard == TE_SHARD_none ? 0 : t->rank));
        for (int64_t i = 0; i < n; i++) {
            uint32_t u[4];
            te_philox(u, 11, (uint64_t)i, rank, (uint64_t)(step * 64 + k));
            v[i] = (float)(int)(u[0] % 17) / 8 - 1;
        }
        if (bad && !k && d->rank == d->size - 1) v[n - 1] = INFINITY;
        TE_TRY(te_copy(&ctx, w.param->grad, v, (size_t)n * sizeof(float)));
        TE_TRY(te_synchronize(&ctx));
    }
    return TE_OK;
}
static te_status compare_replicas(const char *name, const replica *got, const replica *want, int clips) {
    static char a[LARGEST * 4], b[LARGEST * 4];
    te_param_iter g = te_params_of(got->models, MODELS), w = te_params_of(want->models, MODELS);
    while (te_params_next(&g) && te_params_next(&w)) {
        const int64_t n = g.param->rows * g.param->cols;
        const te_dtype dtype = g.param->dtype;
        /* another order of the norm's sum changes the clipping factor by a rounding: relative to lr, or to the format */
        const double off = !clips ? 0 : dtype == TE_f32 ? 1e-6 : 1.0 / 64;
        TE_TRY(read_back(a, g.param->data, (size_t)n * te_dtype_bytes(dtype)));
        TE_TRY(read_back(b, w.param->data, (size_t)n * te_dtype_bytes(dtype)));
        for (int64_t i = 0; i < n; i++) compare(name, i, te_load(a, i, dtype), te_load(b, i, dtype), off);
    }
    te_adamw_state is, was;
    TE_TRY(te_adamw_get(&is, &got->opt, &ctx));
    TE_TRY(te_adamw_get(&was, &want->opt, &ctx));
    compare(name, -1, is.norm, was.norm, 1e-6 * (double)was.norm);
    wrong += is.step != was.step || is.skipped != was.skipped;
    return TE_OK;
}
static te_status loaded(const te_checkpoint *all, const char *path) {
    te_safetensors file;
    TE_TRY(te_safetensors_open(&file, path, &ctx));
    const te_status status = te_checkpoint_load(all, &file, &ctx);
    te_safetensors_close(&file);
    return status;
}
/* Both replicas must save the same file. Then `sharded` is overwritten, and loads the file. */
static te_status through_file(const char *name, replica *sharded, replica *all, const char *path) {
    const te_named_model of_sharded[MODELS] = {{"a", &sharded->a.model}, {"b", &sharded->b.model}, {"c", &sharded->c.model},
                                           {"d", &sharded->d.model}, {"e", &sharded->e.model}},
                         of_all[MODELS] = {{"a", &all->a.model}, {"b", &all->b.model}, {"c", &all->c.model},
                                           {"d", &all->d.model}, {"e", &all->e.model}};
    const te_checkpoint first = {of_sharded, MODELS, &sharded->opt, 1, 0, 0, 0, 0},
                        second = {of_all, MODELS, &all->opt, 1, 0, 0, 0, 0};
    char *a = 0, *b = 0;
    TE_TRY(te_checkpoint_save(path, &first, &ctx));
    const int64_t n = comm.world.rank ? 0 : bytes_of(&a, path);
    TE_TRY(te_checkpoint_save(path, &second, &ctx));
    const int64_t m = comm.world.rank ? 0 : bytes_of(&b, path);
    compared += n;
    if (n != m || n < 0 || (n && memcmp(a, b, (size_t)n))) wrong++, printf("%s: the files differ\n", name);
    free(a), free(b);
    for (int i = 0; i < MODELS; i++)
        TE_TRY(te_fill(&ctx, sharded->memory[2 * i], 0xff, te_plan_param_bytes(sharded->models[i]->plan)));
    TE_TRY(te_fill(&ctx, sharded->opt.m, 0xff, (size_t)sharded->opt.m_elements * te_dtype_bytes(sharded->opt.moments)));
    TE_TRY(te_fill(&ctx, sharded->opt.v, 0xff, (size_t)sharded->opt.v_elements * te_dtype_bytes(sharded->opt.moments)));
    return loaded(&first, path);
}
static te_status states_of(const char *name, te_adamw_config config, int bad, const char *path) {
    static replica all, sharded;
    const int ranks = te_data_group(&ctx)->size, clips = config.max_norm > 0;
    config.grad_scale = 1.0f / (float)ranks;
    TE_TRY(bind_replica(&all, &config));
    config.shards = ranks;
    TE_TRY(bind_replica(&sharded, &config));
    /* a shard and its rounding; with Muon also one matrix and the small tensors */
    const int64_t rest = config.rule == TE_RULE_muon ? 67 * 131 + 13 * 37 + 61 * 67 + 12 * TE_PARAM_ALIGN : 0;
    const int64_t amax = all.opt.m_elements / ranks + MODELS * ranks * TE_PARAM_ALIGN + rest;
    wrong += ranks > 1 && sharded.opt.m_elements > amax;
    for (int step = 0; step < 4; step++) {
        if (step == 3 && !clips) TE_TRY(through_file(name, &sharded, &all, path));
        TE_TRY(fill_gradients(&all, step, bad && step == 1));
        TE_TRY(fill_gradients(&sharded, step, bad && step == 1));
        TE_TRY(te_reduce_gradients(all.models, MODELS, &ctx));
        if (step < 2) TE_TRY(te_adamw_reduce(&sharded.opt, &ctx));
        else TE_TRY(te_reduce_gradients(sharded.models, MODELS, &ctx)); /* it sums more than necessary, which must not matter */
        TE_TRY(te_adamw_step(&all.opt, &ctx));
        TE_TRY(te_adamw_step(&sharded.opt, &ctx));
        TE_TRY(compare_replicas(name, &sharded, &all, clips));
    }
    for (int i = 0; i < 2 * MODELS + 1; i++) te_release(&ctx, all.memory[i]), te_release(&ctx, sharded.memory[i]);
    return TE_OK;
}
static int two_of_them(const te_model *model, const te_param *p) {
    return !strcmp(model->plan->name, "wide") || !strcmp(p->op, "c");
}
static te_status run_states(const char *path) {
    te_adamw_config c = te_adamw_defaults(0.01f), d = c, sgd = te_sgd_defaults(0.01f, 0.9f);
    TE_TRY(states_of("adamw", c, 0, path));
    d.moments = TE_bf16;
    TE_TRY(states_of("adamw, moments in bf16", d, 0, path));
    d.moments = TE_e4m3;
    TE_TRY(states_of("adamw, moments in 8 bits", d, 0, path));
    d.moments = TE_bf16, d.no_master = 1;
    TE_TRY(states_of("adamw, no master weights", d, 0, path));
    TE_TRY(states_of("sgd", sgd, 0, path));
    if (te_tensor_group(&ctx)->size == 1) { /* Muon refuses matrices that are sharded over a tensor group */
        te_adamw_config muon = te_muon_defaults(0.01f);
        TE_TRY(states_of("muon", muon, 0, path));
        muon.moments = TE_bf16, muon.match_rms = 1, muon.muon_takes = two_of_them;
        TE_TRY(states_of("muon, moments in bf16, of some", muon, 0, path));
    }
    c.skip_nonfinite = 1;
    TE_TRY(states_of("adamw, a step left out", c, 1, path));
    c.max_norm = 0.5f;
    return states_of("adamw, clipped", c, 0, path);
}

/* ---- the vocabulary ---------------------------------------------------------------------------------------------- */

/* Of 4 ranks, each has 15 columns of the small vocabulary. For the large one, linear_cross_entropy computes pieces of rows
 * or, with 2 ranks, of columns. */
enum { VOCABULARY = 60, LARGE = 1680, WIDTH = 24, ROWS = 300, PADDING = 34 };

#define LOSS (label_smoothing, 0.1f), (z_loss, 1e-2f)
#define LISTS(dtype, N)                                                                                               \
    TE_SEQUENTIAL(loss_##dtype##N, dtype, (copy_to_group, c), (linear, head, WIDTH, VOCABULARY / N, (shard, columns)), \
                  (softcap, cap, 30.0f), (cross_entropy, loss, VOCABULARY, (ranks, (N)), LOSS))                       \
    TE_SEQUENTIAL(table_##dtype##N, dtype, (embedding, tokens, VOCABULARY, WIDTH, (ranks, N)), (all_reduce, r),       \
                  (scale, twice, 2.0f))                                                                               \
    TE_SEQUENTIAL(padded_##dtype##N, dtype,                                                                           \
                  (embedding, tokens, VOCABULARY, WIDTH, (ranks, N), (padding_idx, PADDING)), (all_reduce, r))
#define WHOLE(dtype)                                                                                                  \
    TE_SEQUENTIAL(loss_##dtype, dtype, (linear, head, WIDTH, VOCABULARY), (softcap, cap, 30.0f),                      \
                  (cross_entropy, loss, VOCABULARY, LOSS))                                                            \
    TE_SEQUENTIAL(table_##dtype, dtype, (embedding, tokens, VOCABULARY, WIDTH), (scale, twice, 2.0f))                 \
    TE_SEQUENTIAL(padded_##dtype, dtype, (embedding, tokens, VOCABULARY, WIDTH, (padding_idx, PADDING)))              \
    TE_SEQUENTIAL(row_##dtype, dtype, (linear, head, WIDTH, LARGE), (cross_entropy, loss, LARGE, LOSS))               \
    LISTS(dtype, 1) LISTS(dtype, 2) LISTS(dtype, 3) LISTS(dtype, 4)
WHOLE(f32)
WHOLE(bf16)
#define TE_FORWARD_linear_cross_entropy TE_FUSED
#define TE_BACKWARD_cross_entropy_linear TE_FUSED
#define ROW(dtype, N)                                                                                                 \
    TE_SEQUENTIAL(row_##dtype##N, dtype, (copy_to_group, c), (linear, head, WIDTH, LARGE / N, (shard, columns)),      \
                  (cross_entropy, loss, LARGE, (ranks, N), LOSS))
ROW(f32, 1) ROW(f32, 2) ROW(f32, 3) ROW(f32, 4) ROW(bf16, 1) ROW(bf16, 2) ROW(bf16, 3) ROW(bf16, 4)
#undef TE_FORWARD_linear_cross_entropy
#undef TE_BACKWARD_cross_entropy_linear
static_assert((int)row_f322_forward_steps == 2 && (int)row_f322_backward_steps == 2, "copy_to_group, linear_cross_entropy");

/* The results of a list: y of forward and of inference, dx, the weight's gradient. */
typedef struct made {
    float y[2][ROWS * WIDTH], dx[ROWS * WIDTH], grad[LARGE * WIDTH];
    int64_t elements, first; /* this rank's part of the weight */
} made;
static te_status make(made *m, const te_plan *plan, int vocabulary) {
    static uint8_t v[ROWS * WIDTH * 4];
    const te_group *g = te_tensor_group(&ctx);
    const int tokens = te__from_tokens(plan);
    const te_dtype out = plan->out_dtype;
    const int64_t n_x = ROWS * WIDTH, n_y = ROWS * plan->out;
    int32_t ids[2 * ROWS];
    te_model model;
    te_param weight;
    te_saved saved;
    te_batch batch;
    void *at[7]; /* x, y, dx, dy, ids, parameters, gradients */
    memset(&model, 0, sizeof model), memset(&saved, 0, sizeof saved), memset(&batch, 0, sizeof batch);
    const size_t bytes[7] = {n_x * 4, n_x * 4, n_x * 4, n_x * 4, sizeof ids, te_plan_param_bytes(plan),
                             te_plan_grad_bytes(plan)};
    for (int i = 0; i < 7; i++) TE_TRY(te_allocate(&ctx, &at[i], bytes[i]));
    for (int i = 1; i < 4; i++) TE_TRY(te_fill(&ctx, at[i], 0xff, bytes[i]));
    TE_TRY(te_fill(&ctx, at[6], 0xff, bytes[6]));
    for (int i = 0; i < 2 * ROWS; i++) ids[i] = (i * 41 + 17) % vocabulary;
    ids[ROWS] = ids[ROWS + 9] = -100, ids[3] = ids[4] = ids[5] = ids[ROWS + 7] = vocabulary - 1;
    TE_TRY(te_copy(&ctx, at[4], ids, sizeof ids));
    TE_TRY(te_fill_normal(at[0], plan->in_dtype, n_x, 0, 3.0f, 21, 1, &ctx));
    TE_TRY(te_fill_normal(at[3], out, n_y, 0, 1.0f, 21, 2, &ctx));
    TE_TRY(te_model_bind(&model, plan, &weight, 1, at[5], (float *)at[6], &ctx));
    TE_TRY(te_model_randomize(&model, 1.0f, 22, 5, &ctx));
    TE_TRY(te_allocate(&ctx, &saved.memory, saved.bytes = te_plan_saved_bytes_of_rank(plan, ROWS, &ctx)));
    TE_TRY(te_context_reserve(&ctx, te_plan_workspace_bytes(plan, &model, ROWS, &ctx)));
    batch.batch = 1, batch.seq = ROWS, batch.tokens = (const int32_t *)at[4], batch.labels = batch.tokens + ROWS;
    const te_tensor x = tokens ? te_none() : te_matrix(at[0], plan->in_dtype, ROWS, WIDTH),
                    dx = tokens ? te_none() : te_matrix(at[2], plan->in_dtype, ROWS, WIDTH),
                    y = te_matrix(at[1], out, ROWS, plan->out), dy = te_matrix(at[3], out, ROWS, plan->out);
    TE_TRY(te_plan_forward(y, 0, x, plan, &model, &batch, &ctx));
    TE_TRY(read_back(v, at[1], (size_t)n_y * te_dtype_bytes(out)));
    for (int64_t i = 0; i < n_y; i++) m->y[1][i] = te_load(v, i, out);
    TE_TRY(te_plan_forward(y, &saved, x, plan, &model, &batch, &ctx));
    TE_TRY(read_back(v, at[1], (size_t)n_y * te_dtype_bytes(out)));
    for (int64_t i = 0; i < n_y; i++) m->y[0][i] = te_load(v, i, out);
    TE_TRY(te_plan_backward(dx, dy, &saved, plan, &model, &batch, &ctx));
    if (!tokens) TE_TRY(read_back(v, at[2], (size_t)n_x * te_dtype_bytes(plan->in_dtype)));
    for (int64_t i = 0; !tokens && i < n_x; i++) m->dx[i] = te_load(v, i, plan->in_dtype);
    m->elements = weight.rows * weight.cols, m->first = weight.shard == TE_SHARD_none ? 0 : g->rank * m->elements;
    TE_TRY(read_back(m->grad, weight.grad, (size_t)m->elements * sizeof(float)));
    for (int i = 0; i < 7; i++) te_release(&ctx, at[i]);
    te_release(&ctx, saved.memory);
    return TE_OK;
}
static double largest(const float *v, int64_t n) {
    double amax = 0;
    for (int64_t i = 0; i < n; i++) amax = fabs((double)v[i]) > amax ? fabs((double)v[i]) : amax;
    return amax;
}
/* The bounds. An embedding must have the same bits. The other results are sums over rows or the vocabulary: the bound of f32 is
 * relative to the largest element, and in 16 bits dlogits, each rank's dx and their sum are rounded, too. */
static te_status vocabulary_of(const te_plan *shared, const te_plan *whole, int vocabulary) {
    static made got, want;
    const int tokens = te__from_tokens(whole);
    const double f32 = te_max(vocabulary, ROWS) / (double)(1 << 24), off = tokens ? 0 : whole->dtype == TE_f32 ? f32 : 3.0 / 256;
    TE_TRY(make(&got, shared, vocabulary));
    TE_TRY(make(&want, whole, vocabulary));
    for (int k = 0; k < 2; k++) {
        const double amax = tokens ? 0 : f32 * largest(want.y[k], ROWS);
        for (int64_t i = 0; i < ROWS * whole->out; i++) compare(whole->name, i, got.y[k][i], want.y[k][i], amax);
    }
    const double dx = off * largest(want.dx, ROWS * WIDTH), grad = off * largest(want.grad, vocabulary * WIDTH);
    for (int64_t i = 0; !tokens && i < ROWS * WIDTH; i++) compare("dx", i, got.dx[i], want.dx[i], dx);
    for (int64_t i = 0; i < got.elements; i++) compare("dweight", i, got.grad[i], want.grad[got.first + i], grad);
    return TE_OK;
}
#define OF_RANKS(kind, dtype)                                                               \
    (size == 1   ? kind##_##dtype##1_plan() : size == 2 ? kind##_##dtype##2_plan()          \
     : size == 3 ? kind##_##dtype##3_plan() : kind##_##dtype##4_plan())
static te_status run_vocabulary(int size) {
    TE_TRY(vocabulary_of(OF_RANKS(table, f32), table_f32_plan(), VOCABULARY));
    TE_TRY(vocabulary_of(OF_RANKS(padded, f32), padded_f32_plan(), VOCABULARY));
    TE_TRY(vocabulary_of(OF_RANKS(loss, f32), loss_f32_plan(), VOCABULARY));
    TE_TRY(vocabulary_of(OF_RANKS(row, f32), row_f32_plan(), LARGE));
    TE_TRY(vocabulary_of(OF_RANKS(table, bf16), table_bf16_plan(), VOCABULARY));
    TE_TRY(vocabulary_of(OF_RANKS(padded, bf16), padded_bf16_plan(), VOCABULARY));
    TE_TRY(vocabulary_of(OF_RANKS(loss, bf16), loss_bf16_plan(), VOCABULARY));
    return vocabulary_of(OF_RANKS(row, bf16), row_bf16_plan(), LARGE);
}

/* ---- a GPT ------------------------------------------------------------------------------------------------------- */

enum { HIDDEN = 32, FFN = 96, HEADS = 8, KV_HEADS = 2, LENGTH = 16, SEQUENCES = 4 };

/* [vocabulary] */
#define GPT(N)                                                                                                        \
    (embedding, tokens, VOCABULARY, HIDDEN, (ranks, N)), (reduce_scatter, e), (positions, at, LENGTH, HIDDEN),        \
    BLOCK(HIDDEN, FFN, N), (rmsnorm, last, HIDDEN), (all_gather, g3),                                                 \
    (tied_linear, head, HIDDEN, VOCABULARY / N, (shard, columns)), (cross_entropy, loss, VOCABULARY, (ranks, N))
/* [vocabulary] */
/* With 4 ranks, two of them have the same kv head. */
#define KV(N) (KV_HEADS > N ? KV_HEADS / N : 1)
#define COPIES(N) (KV_HEADS < N ? N / KV_HEADS : 1)
#define QKV(H, N) ((HEADS / N + 2 * KV(N)) * ((H) / HEADS))
#define BLOCK(H, F, N)                                                                                                \
    (fork, x1), (layernorm, n1, H), (all_gather, g1),                                                                 \
    (linear, qkv, H, QKV(H, N), (shard, columns), (parts, 3), (first_part, HEADS / N / KV(N)), (copies, COPIES(N))),  \
    (bias, qkv_b, QKV(H, N)),                                                                                         \
    (attention, mix, HEADS / N, KV(N), (H) / HEADS, (dropout, 0.1f), (alibi, 1), (sinks, 1)),                         \
    (linear, proj, (H) / N, H, (shard, rows)),                                                                        \
    (reduce_scatter, s1), (bias, proj_b, H), (dropout, d1, 0.1f), (add, x1),                                          \
    (fork, x2), (rmsnorm, n2, H), (all_gather, g2), (linear, fc1, H, 2 * (F) / N, (shard, columns), (parts, 2)),      \
    (swiglu, act), (xielu, act2), (linear, fc2, (F) / N, H, (shard, rows)), (reduce_scatter, s2), (add, x2)
TE_SEQUENTIAL(gpt1, (f32, (rows, shard)), GPT(1))
TE_SEQUENTIAL(gpt2, (f32, (rows, shard)), GPT(2))
TE_SEQUENTIAL(gpt4, (f32, (rows, shard)), GPT(4))

typedef struct task { int sharded, first, last; const char *from, *to; } task;

/* Checks that the ranks that hold the same heads of k and v have the same bits of them. */
static te_status same_copies(const te_model *m) {
    const te_group *g = te__copies_group(&ctx);
    static float all[16 * HIDDEN * HIDDEN];
    void *memory;
    TE_TRY(te_allocate(&ctx, &memory, sizeof all));
    for (int i = 0; i < m->param_count && g->size > 1; i++) {
        const te_param *p = &m->param[i];
        const te_shard_layout s = te_shard_layout_of(p, te_tensor_group(&ctx));
        const int64_t n = p->rows * p->cols - s.first;
        if (s.copies == 1) continue;
        TE_TRY(te_group_all_gather(g, memory, (const float *)p->data + s.first, n, TE_f32, &ctx));
        TE_TRY(read_back(all, memory, sizeof all));
        for (int r = 1; r < g->size; r++)
            if (memcmp(all, (float *)all + r * n, (size_t)n * sizeof(float)))
                wrong++, printf("rank %d: %s.%s: the copies differ\n", comm.world.rank, p->op, p->field);
    }
    te_release(&ctx, memory);
    return TE_OK;
}
static te_status losses_of(te_model *m, te_param *table, te_param *head, task t) {
    const te_plan *plan = m->plan;
    te_model *models[1] = {m};
    const te_group *d = te_data_group(&ctx);
    const int sequences = SEQUENCES / d->size, rows = sequences * LENGTH;
    te_saved saved;
    te_batch batch;
    te_adamw opt;
    te_adamw_config config = te_adamw_defaults(3e-3f);
    void *tokens = 0, *loss = 0, *state = 0;
    int32_t text[SEQUENCES * LENGTH + 1];
    float each[SEQUENCES * LENGTH + 1];
    memset(&saved, 0, sizeof saved), memset(&batch, 0, sizeof batch), memset(&opt, 0, sizeof opt);
    TE_TRY(te_tie(head, table, &ctx));
    TE_TRY(te_model_randomize(m, 0.1f, 5, 100, &ctx));
    TE_TRY(te_allocate(&ctx, &saved.memory, saved.bytes = te_plan_saved_bytes_of_rank(plan, rows, &ctx)));
    TE_TRY(te_context_reserve(&ctx, te_plan_workspace_bytes(plan, m, rows, &ctx)));
    TE_TRY(te_allocate(&ctx, &tokens, sizeof text));
    TE_TRY(te_allocate(&ctx, &loss, sizeof each));
    /* [shards] */
    config.shards = t.sharded ? te_data_group(&ctx)->size : 1;
    TE_TRY(te_allocate(&ctx, &state, te_adamw_bytes_of(models, 1, &config)));
    TE_TRY(te_adamw_init(&opt, state, te_adamw_bytes_of(models, 1, &config), models, 1, &config, &ctx));
    /* [shards] */
    const te_named_model named[1] = {{"gpt", m}};
    const te_checkpoint all = {named, 1, &opt, 1, 0, 0, 0, 0};
    if (strcmp(t.from, "-")) TE_TRY(loaded(&all, t.from));
    batch.batch = sequences, batch.seq = LENGTH, batch.loss_scale = 1.0f / (SEQUENCES * LENGTH);
    batch.tokens = (const int32_t *)tokens + d->rank * rows, batch.labels = batch.tokens + 1;
    for (int step = t.first; step < t.last; step++) {
        float mean = 0;
        for (int i = 0; i <= SEQUENCES * LENGTH; i++) { /* three of four tokens depend on the one before */
            uint32_t u[4];
            te_philox(u, 9, (uint64_t)i, (uint32_t)step % 8, 0);
            text[i] = i && u[0] % 4 ? (text[i - 1] * 7 + 3) % VOCABULARY : (int32_t)(u[1] % VOCABULARY);
        }
        TE_TRY(te_copy(&ctx, tokens, text, sizeof text));
        TE_TRY(te_synchronize(&ctx));
        TE_TRY(te_plan_forward(te_matrix(loss, TE_f32, rows, 1), &saved, te_none(), plan, m, &batch, &ctx));
        TE_TRY(te_plan_backward(te_none(), te_none(), &saved, plan, m, &batch, &ctx));
        TE_TRY(te_adamw_reduce(&opt, &ctx));
        TE_TRY(te_adamw_step(&opt, &ctx));
        TE_TRY(read_back(each, loss, (size_t)rows * sizeof(float)));
        for (int i = 0; i < rows; i++) mean += each[i] / (SEQUENCES * LENGTH);
        TE_TRY(te_copy(&ctx, loss, &mean, sizeof mean));
        TE_TRY(te_group_all_reduce(d, loss, loss, 1, TE_f32, &ctx));
        TE_TRY(read_back(&mean, loss, sizeof mean));
        if (!comm.world.rank) printf("%d\t%.8g\n", step + 1, mean);
        wrong += !(mean > 0 && mean < 100);
    }
    TE_TRY(same_copies(m));
    if (strcmp(t.to, "-")) TE_TRY(te_checkpoint_save(t.to, &all, &ctx));
    void *const memory[4] = {saved.memory, tokens, loss, state};
    for (int i = 0; i < 4; i++) te_release(&ctx, memory[i]);
    return TE_OK;
}
#define TRAIN(name)                                                                                                   \
    static te_status train_##name(task t) {                                                                           \
        static name m;                                                                                                \
        void *params = 0, *grads = 0;                                                                                 \
        TE_TRY(te_allocate(&ctx, &params, name##_param_bytes()));                                                     \
        TE_TRY(te_allocate(&ctx, &grads, name##_grad_bytes()));                                                       \
        TE_TRY(name##_bind(&m, params, (float *)grads, &ctx));                                                        \
        TE_TRY(losses_of(&m.model, &m.tokens.weight, &m.head.weight, t));                                             \
        te_release(&ctx, params), te_release(&ctx, grads);                                                            \
        return TE_OK;                                                                                                 \
    }
TRAIN(gpt1)
TRAIN(gpt2)
TRAIN(gpt4)

/* ---- FP8 scales -------------------------------------------------------------------------------------------------- */

TE_SEQUENTIAL(fp8, (f32, (recipe, fp8_delayed)), (linear, up, 16, 32), (gelu, act), (linear, down, 32, 16))
enum { FP8_ROWS = 16, FP8_STEPS = 4, FP8_PRODUCTS = 2, FP8_TENSORS = 3 * FP8_PRODUCTS };

/* The amaxes of a rank since the last step. After the first step, which computes current scales, they are in the histories. */
static te_status local_amax(float amax[FP8_TENSORS], const te_recipes *r, int step) {
    static float history[FP8_TENSORS * TE_SCALES_MAX_HISTORY];
    const te_scales *s = &r->scales;
    TE_TRY(read_back(amax, s->amax, FP8_TENSORS * sizeof(float)));
    TE_TRY(read_back(history, s->history, (size_t)(FP8_TENSORS * s->length) * sizeof(float)));
    for (int i = FP8_PRODUCTS; i < FP8_TENSORS && !step; i++)
        for (int h = 0; h < s->length; h++) amax[i] = fmaxf(amax[i], history[i * s->length + h]);
    return TE_OK;
}
/* A step on x of seed `draw` with all that te_recipes_step then changes: y, and the scales of all tensors. */
typedef struct scaled_step { float y[FP8_ROWS * 16], scale[FP8_TENSORS]; } scaled_step;
static te_status run_scaled_step(scaled_step *out, fp8 *m, te_recipes *recipes, te_saved *saved, te_tensor x,
                                 te_tensor y, te_tensor dx) {
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = FP8_ROWS;
    TE_TRY(te_fill_normal(x.data, TE_f32, FP8_ROWS * 16, 0, 2.0f, 19, (uint32_t)comm.world.rank, &ctx));
    TE_TRY(fp8_forward(y, saved, x, m, &batch, &ctx));
    TE_TRY(fp8_backward(dx, y, saved, m, &batch, &ctx));
    TE_TRY(te_recipes_step(recipes, &ctx));
    TE_TRY(read_back(out->y, y.data, sizeof out->y));
    return read_back(out->scale, recipes->scales.scale, sizeof out->scale);
}
/* Saves the weights and scales, takes a step, overwrites all of them, loads the file, and takes the step again. */
static te_status run_scales_file(const char *path, fp8 *m, te_recipes *recipes, te_saved *saved, te_tensor x,
                                 te_tensor y, te_tensor dx) {
    static scaled_step first, again;
    const te_named_model named[1] = {{"m", &m->model}};
    const te_checkpoint all = {named, 1, 0, 0, 0, 0, 0, recipes};
    te_safetensors file;
    TE_TRY(te_checkpoint_save(path, &all, &ctx));
    TE_TRY(run_scaled_step(&first, m, recipes, saved, x, y, dx));
    for (int i = 0; i < 3; i++) TE_TRY(run_scaled_step(&again, m, recipes, saved, x, y, dx)); /* other histories */
    TE_TRY(te_fill(&ctx, m->up.weight.data, 0, 16 * 32 * sizeof(float)));
    TE_TRY(te_fill(&ctx, recipes->scales.scale, 0, FP8_TENSORS * sizeof(float)));
    TE_TRY(te_safetensors_open(&file, path, &ctx));
    const te_status status = te_checkpoint_load(&all, &file, &ctx);
    te_safetensors_close(&file);
    TE_TRY(status);
    TE_TRY(run_scaled_step(&again, m, recipes, saved, x, y, dx));
    for (int i = 0; i < FP8_ROWS * 16; i++) compare("y after loading", i, again.y[i], first.y[i], 0);
    for (int i = 0; i < FP8_TENSORS; i++) compare("scale after loading", i, again.scale[i], first.scale[i], 0);
    recipes->config.ranks = 1; /* as if each rank had scales of its own */
    if (comm.world.size > 1)
        refuses(te_checkpoint_save(path, &all, &ctx), TE_ERROR_VALUE, "each rank has scales of its own");
    recipes->config.ranks = comm.world.size;
    return TE_OK;
}
static te_status run_scales(const char *path) {
    static fp8 m;
    static te_recipes recipes;
    const int ranks = comm.world.size;
    const te_scale_rule rule = te__scale_rule_current();
    te_model *models[1] = {&m.model};
    te_recipes_config config = te_recipes_defaults();
    te_saved saved;
    te_batch batch;
    float amax[64][FP8_TENSORS], scale[FP8_TENSORS], past[FP8_TENSORS] = {0};
    void *params, *grads, *memory, *x, *all;
    memset(&saved, 0, sizeof saved), memset(&batch, 0, sizeof batch);
    config.history = 8, config.ranks = ranks + 1;
    TE_TRY(te_allocate(&ctx, &params, fp8_param_bytes()));
    TE_TRY(te_allocate(&ctx, &grads, fp8_grad_bytes()));
    TE_TRY(te_allocate(&ctx, &x, 3 * FP8_ROWS * 16 * sizeof(float)));
    TE_TRY(te_allocate(&ctx, &all, sizeof amax));
    TE_TRY(fp8_bind(&m, params, (float *)grads, &ctx));
    TE_TRY(te_model_randomize(&m.model, 0.3f, 8, 64 * (uint32_t)te_tensor_group(&ctx)->rank, &ctx)); /* different weights on each tensor rank */
    TE_TRY(te_allocate(&ctx, &memory, te_recipes_bytes(models, 1, &config)));
    refuses(te_recipes_init(&recipes, memory, te_recipes_bytes(models, 1, &config), models, 1, &config, &ctx),
            TE_ERROR_VALUE, "recipes: ranks is");
    config.ranks = ranks;
    TE_TRY(te_recipes_init(&recipes, memory, te_recipes_bytes(models, 1, &config), models, 1, &config, &ctx));
    TE_TRY(te_allocate(&ctx, &saved.memory, saved.bytes = te_plan_saved_bytes(fp8_plan(), FP8_ROWS)));
    TE_TRY(te_context_reserve(&ctx, te_plan_workspace_bytes(fp8_plan(), &m.model, FP8_ROWS, &ctx)));
    batch.batch = 1, batch.seq = FP8_ROWS;
    const te_tensor in = te_matrix(x, TE_f32, FP8_ROWS, 16), y = te_matrix((float *)x + FP8_ROWS * 16, TE_f32, FP8_ROWS, 16),
                    dx = te_matrix((float *)x + 2 * FP8_ROWS * 16, TE_f32, FP8_ROWS, 16);
    for (int step = 0; step < FP8_STEPS; step++) {
        const uint32_t draw = (uint32_t)(64 * step + comm.world.rank);
        for (int micro_batch = 0; micro_batch < 2; micro_batch++) {
            TE_TRY(te_fill_normal(x, TE_f32, FP8_ROWS * 16, 0, 1.0f + (float)(draw % 3), 17, 2 * draw, &ctx));
            if (step == 2 && comm.world.rank == ranks - 1) TE_TRY(te_fill(&ctx, x, 0xff, 4)); /* one rank has a NaN */
            TE_TRY(fp8_forward(y, &saved, in, &m, &batch, &ctx));
            TE_TRY(fp8_backward(dx, y, &saved, &m, &batch, &ctx));
            batch.accumulate = 1;
        }
        batch.accumulate = 0;
        TE_TRY(te_fill_normal(params, TE_f32, 16, 0, 1.0f, 18, draw / 64, &ctx)); /* new weights, as after an optimizer step */
        TE_TRY(local_amax(amax[comm.world.rank], &recipes, step));
        TE_TRY(te_copy(&ctx, (float *)all + comm.world.rank * FP8_TENSORS, amax[comm.world.rank], sizeof amax[0]));
        TE_TRY(te_group_all_gather(&comm.world, all, (float *)all + comm.world.rank * FP8_TENSORS, FP8_TENSORS, TE_f32,
                                   &ctx));
        TE_TRY(read_back(amax, all, (size_t)ranks * sizeof amax[0]));
        TE_TRY(te_recipes_step(&recipes, &ctx));
        TE_TRY(read_back(scale, recipes.scales.scale, sizeof scale));
        for (int i = FP8_PRODUCTS; i < FP8_TENSORS; i++) {
            float now = 0;
            int finite = 1;
            for (int r = 0; r < ranks; r++) finite &= amax[r][i] <= 3e38f, now = fmaxf(now, amax[r][i]);
            if (finite) past[i] = fmaxf(past[i], now);
            wrong += !(past[i] > 0) || (!step && !finite);
            compare("scale", i, scale[i], te_scale_of_amax(past[i], te_fp8_max(i < 4 ? TE_e4m3 : TE_e5m2), &config.rule), 0);
        }
        /* weights: all ranks have the same scale, though their amaxes differ */
        TE_TRY(te_copy(&ctx, (float *)all + comm.world.rank * FP8_TENSORS, scale, sizeof scale));
        TE_TRY(te_group_all_gather(&comm.world, all, (float *)all + comm.world.rank * FP8_TENSORS, FP8_TENSORS, TE_f32,
                                   &ctx));
        TE_TRY(read_back(amax, all, (size_t)ranks * sizeof amax[0]));
        float w[16 * 32], largest = 0;
        TE_TRY(read_back(w, m.up.weight.data, sizeof w));
        for (int i = 0; i < 16 * 32; i++) largest = fmaxf(largest, fabsf(w[i]));
        wrong += scale[0] > te_scale_of_amax(largest, te_fp8_max(TE_e4m3), &rule);
        for (int i = 0; i < FP8_TENSORS; i++) compare("scale of rank 0", i, scale[i], amax[0][i], 0);
    }
    if (te_tensor_group(&ctx)->size == 1) TE_TRY(run_scales_file(path, &m, &recipes, &saved, in, y, dx));
    recipes.config.ranks = ranks + 1;
    refuses(te_recipes_step(&recipes, &ctx), TE_ERROR_STATE, "recipes: ranks is");
    void *const room[6] = {params, grads, memory, x, all, saved.memory};
    for (int i = 0; i < 6; i++) te_release(&ctx, room[i]);
    return TE_OK;
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static te_status run_refuse(void) { /* 2 ranks, which are replicas */
    static odd m;
    te_adamw opt;
    te_adamw_config c = te_adamw_defaults(0.01f);
    te_model *models[1] = {&m.model};
    void *params, *grads, *state;
    memset(&opt, 0, sizeof opt);
    TE_TRY(te_allocate(&ctx, &params, odd_param_bytes()));
    TE_TRY(te_allocate(&ctx, &grads, odd_grad_bytes()));
    TE_TRY(odd_bind(&m, params, (float *)grads, &ctx));
    TE_TRY(te_model_randomize(&m.model, 1.0f, 1, 1, &ctx));
    const size_t bytes = te_adamw_bytes_of(models, 1, &c);
    TE_TRY(te_allocate(&ctx, &state, 2 * bytes));
    c.shards = 3;
    refuses(te_adamw_init(&opt, state, 2 * bytes, models, 1, &c, &ctx), TE_ERROR_VALUE, "shards is 3, and the data");
    c.shards = 0;
    refuses(te_adamw_init(&opt, state, 2 * bytes, models, 1, &c, &ctx), TE_ERROR_VALUE, "shards is 0, it must");
    c = te_adamw_defaults(0.01f), c.shards = 2;
    refuses(te_adamw_init(&opt, state, bytes / 2, models, 1, &c, &ctx), TE_ERROR_MEMORY, "are needed");
    TE_TRY(te_adamw_init(&opt, state, 2 * bytes, models, 1, &c, &ctx));
    opt.config.shards = 1;
    refuses(te_adamw_step(&opt, &ctx), TE_ERROR_STATE, "shards is 1 in the config, and was 2");
    refuses(te_adamw_reduce(&opt, &ctx), TE_ERROR_STATE, "shards is 1 in the config, and was 2");
    opt.config.shards = 2;
    /* a list for tensor groups of 3 ranks, in a group of 1 */
    static made nothing;
    refuses(make(&nothing, loss_f323_plan(), VOCABULARY), TE_ERROR_STATE, "is for a tensor group of 3 ranks, here are 1");
    /* checkpoints: rank 0 cannot write; the ranks have different tensors; a value is infinite */
    const te_named_model named[1] = {{"m", &m.model}}, other[1] = {{"other", &m.model}};
    const te_checkpoint all = {named, 1, &opt, 0, 0, 0, 0, 0},
                        differs = {comm.world.rank ? other : named, 1, 0, 0, 0, 0, 0, 0};
    refuses(te_checkpoint_save("/no/such/folder/x", &all, &ctx), TE_ERROR_IO,
            comm.world.rank ? "rank 0 of 2 has failed" : "/no/such/folder/x");
    refuses(te_checkpoint_save("/tmp/never-written", &differs, &ctx), TE_ERROR_VALUE, "has other tensors than rank");
    const float bad = INFINITY;
    TE_TRY(te_copy(&ctx, m.a.weight.data, &bad, sizeof bad));
    TE_TRY(te_synchronize(&ctx));
    refuses(te_checkpoint_save("/tmp/never-written", &all, &ctx), comm.world.rank ? TE_ERROR_IO : TE_ERROR_VALUE,
            comm.world.rank ? "rank 0 of 2 has failed" : "element 0 is not finite");
    if (!comm.world.rank && !access("/tmp/never-written", F_OK)) wrong += printf("a file was written\n");
    return TE_OK;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "states";
    const int number = argc > 2 ? atoi(argv[2]) : 1;
    int rank, size;
    te_comm_rank_from_env(&rank, &size);
    te_comm_config config = te_comm_defaults();
    config.file = getenv("RANKS_FILE");
    config.tensor = !strcmp(mode, "vocabulary") ? size : !strcmp(mode, "refuse") ? 1 : number;
    config.copies = !strcmp(mode, "train") ? COPIES(config.tensor) : 1;
    te_status status = te_context_create(&ctx, TE_CUDA ? te_comm_local_rank_from_env() : 0, 3);
    if (status == TE_OK) status = te_comm_create(&comm, &config, &ctx);
    if (status == TE_OK) {
        if (!strcmp(mode, "states")) status = argc < 4 ? TE_ERROR_VALUE : run_states(argv[3]);
        else if (!strcmp(mode, "vocabulary")) status = run_vocabulary(size);
        else if (!strcmp(mode, "scales")) status = argc < 4 ? TE_ERROR_VALUE : run_scales(argv[3]);
        else if (!strcmp(mode, "refuse")) status = run_refuse();
        else if (argc < 8) status = TE_ERROR_VALUE;
        else {
            const task t = {atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), argv[6], argv[7]};
            status = number == 1 ? train_gpt1(t) : number == 2 ? train_gpt2(t) : train_gpt4(t);
        }
    }
    if (status != TE_OK) printf("rank %d: %s: %s\n", rank, te_status_string(status), te_last_error(&ctx));
    else if (compared && !rank) printf("%s: %lld values of %d ranks\n", mode, (long long)compared, size);
    fflush(stdout);
    te_comm_destroy(&comm); /* does not wait for ranks that have failed */
    te_context_destroy(&ctx);
    if (status == TE_ERROR_COMM) _exit(3); /* exit handlers of MPI would wait */
    return status != TE_OK || wrong;
}
