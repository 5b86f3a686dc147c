/* adamw.h -- AdamW over all tensors of several models in one launch, with fp32 master weights, clipping by the global
 * gradient norm and a learning-rate schedule, all of it on the device. Loshchilov & Hutter, "Decoupled weight decay
 * regularization", ICLR 2019. The config can ask for moments in bf16, and for SGD with momentum by the same calls.
 *
 * Do this:
 *     te_model *models[] = {&embed.model, &block.model};        // must outlive the optimizer
 *     te_adamw_config config = te_adamw_defaults(3e-4f);
 *     config.schedule = te_schedule_of(TE_SCHEDULE_cosine, 3e-4f, 100, 10000, 0.1f), config.max_norm = 1.0f;
 *     const size_t bytes = te_adamw_bytes_of(models, 2, &config);
 *     TE_TRY(te_allocate(&ctx, &memory, bytes));
 *     TE_TRY(te_adamw_init(&opt, memory, bytes, models, 2, &config, &ctx));
 *     ... backward ...
 *     TE_TRY(te_adamw_step(&opt, &ctx));                        // enqueues; can be captured in a graph and replayed
 *     TE_TRY(te_adamw_get(&state, &opt, &ctx));                 // now and then: step, norm, lr; waits for the stream
 *
 * Gradients are read and left as they are: the next backward overwrites them unless its batch says accumulate.
 */
#ifndef TE_ADAMW_H
#define TE_ADAMW_H

#include "adamw_kernels.h" /* te_adamw_update, te__adamw_begin, te__adamw_start; te_adamw_config */
#include "grad_norm.h"     /* te_grad_norm */

typedef struct te_adamw {
    te_adamw_config config; /* all but weight_decay, decay_all, rule and moments may be changed between steps */
    te_model *const *models;
    int model_count, count, chunks;
    te_adamw_state *state;          /* target memory, as everything below */
    te_grad_norm norm;
    const te__adamw_tensor *tensor; /* [count] */
    const int32_t *first;           /* [count + 1], the first chunk of each tensor */
    void *m, *v;                    /* tensors one after the other, each at a multiple of TE_PARAM_ALIGN elements */
    float *master;
    int64_t elements;               /* of m, gaps included; SGD has no v */
    te_rule rule;                   /* as at te_adamw_init */
    te_dtype moments;               /* of m and v */
    uint64_t where;                 /* te__params_where: what the table was made for */
} te_adamw;

/* ---- what lies where -------------------------------------------------------------------------------------------- */

/* A walk over the optimizer's tensors, for a checkpoint or a look at them:
 *     te_adamw_walk w = te_adamw_tensors(&opt);
 *     while (te_adamw_next(&w)) use(w.param, w.model, w.master, w.m, w.v);
 */
typedef struct te_adamw_walk {
    te_param_walk params;
    const te_adamw *opt;
    int64_t at, master_at;
    int model;            /* index into the models */
    const te_param *param;
    float *master;         /* [rows, cols], target memory; param->data if the model is f32 */
    void *m, *v;           /* [rows, cols] of opt->moments; v is null where the rule has none */
} te_adamw_walk;

TE_API te_adamw_walk te_adamw_tensors(const te_adamw *opt) {
    te_adamw_walk w;
    memset(&w, 0, sizeof w);
    w.params = te_params_of(opt ? opt->models : 0, opt ? opt->model_count : 0), w.opt = opt;
    return w;
}
TE_API int te_adamw_next(te_adamw_walk *w) {
    if (!te_params_next(&w->params)) return 0;
    w->param = w->params.param, w->model = w->params.model;
    const int64_t slot = te_round_up(w->param->rows * w->param->cols, TE_PARAM_ALIGN);
    const size_t before = (size_t)w->at * te_dtype_bytes(w->opt->moments);
    w->m = (char *)w->opt->m + before, w->v = w->opt->v ? (char *)w->opt->v + before : 0, w->at += slot;
    w->master = (float *)w->param->data;
    if (w->opt->models[w->model]->plan->dtype == TE_f32) return 1;
    w->master = w->opt->master + w->master_at, w->master_at += slot;
    return 1;
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

typedef struct te__adamw_layout { size_t norm, table, m, v, master, bytes; int count; int64_t chunks,
                                 elements; } te__adamw_layout;

TE_API te__adamw_layout te__adamw_layout_of(te_model *const *models, int count, const te_adamw_config *c) {
    te__adamw_layout l;
    te_param_walk w = te_params_of(models, count);
    int64_t masters = 0;
    memset(&l, 0, sizeof l);
    for (; te_params_next(&w); l.count++) {
        const int64_t n = w.param->rows * w.param->cols, slot = te_round_up(n, TE_PARAM_ALIGN);
        l.chunks += te_ceil_div(n, TE__ADAMW_CHUNK), l.elements += slot;
        if (models[w.model]->plan->dtype != TE_f32) masters += slot;
    }
    (void)te__part(&l.bytes, sizeof(te_adamw_state));
    l.norm = te__part(&l.bytes, te_grad_norm_bytes(models, count));
    l.table = te__part(&l.bytes, (size_t)l.count * sizeof(te__adamw_tensor) + ((size_t)l.count + 1) * sizeof(int32_t));
    const size_t moment = (size_t)l.elements * te_dtype_bytes(c->moments);
    l.m = te__part(&l.bytes, moment);
    l.v = te__part(&l.bytes, c->rule == TE_RULE_sgd ? 0 : moment);
    l.master = te__part(&l.bytes, (size_t)masters * sizeof(float));
    return l;
}
/* Bytes of target memory that te_adamw_init wants: for AdamW 12 an element, 8 for an f32 model, four less with moments
 * in bf16, and some for the tables. A config that is refused, or none: as te_adamw_bytes. */
TE_API size_t te_adamw_bytes_of(te_model *const *models, int count, const te_adamw_config *config) {
    const te_adamw_config plain = te_adamw_defaults(0.0f);
    const int known = config && (unsigned)config->rule < (unsigned)TE_RULE_COUNT &&
                      (config->moments == TE_f32 || config->moments == TE_bf16);
    return te__adamw_layout_of(models, count, known ? config : &plain).bytes;
}
/* The same for AdamW with moments in f32: no other takes more. */
TE_API size_t te_adamw_bytes(te_model *const *models, int count) { return te_adamw_bytes_of(models, count, 0); }

TE_API te__adamw_args te__adamw_args_of(const te_adamw *opt) {
    te__adamw_args a;
    a.tensor = opt->tensor, a.first = opt->first, a.count = opt->count;
    a.state = opt->state, a.config = opt->config, a.norm = 0;
    if (opt->config.max_norm > 0.0f || opt->config.skip_nonfinite) a.norm = opt->norm.norm;
    return a;
}

TE_API te_status te__adamw_check(const te_adamw *opt, te_context *ctx) {
    TE_TRY(te_check_target(ctx, "adamw"));
    TE_REQUIRE(opt && opt->state, ctx, TE_ERROR_NULL, "adamw: not initialised");
    TE_REQUIRE(opt->where == te__params_where(opt->models, opt->model_count), ctx, TE_ERROR_STATE,
               "adamw: a model was bound again since te_adamw_init; initialise the optimizer again");
    return TE_OK;
}
/* Begin anew from the models' weights: master = weight, m = v = 0, step 0. For after weights were loaded. */
TE_API te_status te_adamw_reset(te_adamw *opt, te_context *ctx) {
    TE_TRY(te__adamw_check(opt, ctx));
    const te__adamw_args a = te__adamw_args_of(opt);
    TE_TRY(te_fill(ctx, opt->state, 0, sizeof *opt->state));
    const size_t moment = (size_t)opt->elements * te_dtype_bytes(opt->moments);
    TE_TRY(te_fill(ctx, opt->m, 0, moment));
    if (opt->v) TE_TRY(te_fill(ctx, opt->v, 0, moment));
    return opt->chunks ? te__adamw_start_launch(ctx, te_grid_of(opt->chunks, 1), &a) : TE_OK;
}

/* Bind to memory (target memory, te_adamw_bytes_of, aligned to TE_ALIGN), to the models as they are bound now, and
 * reset. `models` must outlive the optimizer. Waits for the stream. Errors: null pointers, a model without gradients or listed
 * twice, a value in the config that is not allowed, memory too small or misaligned. */
TE_API te_status te_adamw_init(te_adamw *opt, void *memory, size_t bytes, te_model *const *models, int count,
                               const te_adamw_config *config, te_context *ctx) {
    TE_TRY(te__models_check(models, count, "adamw", ctx));
    TE_REQUIRE(opt && config, ctx, TE_ERROR_NULL, "adamw: the struct or the config is null");
    TE_TRY(te__adamw_config_check(config, ctx));
    const te__adamw_layout l = te__adamw_layout_of(models, count, config);
    TE_TRY(te__memory_check(memory, bytes, l.bytes, models, count, "adamw", ctx));

    char *base = (char *)memory;
    memset(opt, 0, sizeof *opt);
    opt->config = *config, opt->models = models, opt->model_count = count;
    opt->where = te__params_where(models, count);
    opt->count = l.count, opt->chunks = (int)l.chunks, opt->elements = l.elements;
    opt->tensor = (const te__adamw_tensor *)(base + l.table), opt->first = (const int32_t *)(opt->tensor + l.count);
    opt->rule = config->rule, opt->moments = config->moments;
    opt->m = base + l.m, opt->v = config->rule == TE_RULE_sgd ? 0 : base + l.v;
    opt->master = (float *)(base + l.master);
    TE_TRY(te_grad_norm_init(&opt->norm, base + l.norm, l.table - l.norm, models, count, ctx));

    const size_t table_bytes = (size_t)l.count * sizeof(te__adamw_tensor) + ((size_t)l.count + 1) * sizeof(int32_t);
    te__adamw_tensor *rows = (te__adamw_tensor *)calloc(1, table_bytes);
    TE_REQUIRE(rows, ctx, TE_ERROR_MEMORY, "adamw: cannot allocate %zu bytes", table_bytes);
    int32_t *first = (int32_t *)(rows + l.count);
    te_adamw_walk w = te_adamw_tensors(opt);
    for (te__adamw_tensor *t = rows; te_adamw_next(&w); t++, first++) {
        t->master = w.master, t->m = w.m, t->v = w.v, t->grad = w.param->grad, t->weight = w.param->data;
        t->elements = w.param->rows * w.param->cols, t->dtype = models[w.model]->plan->dtype;
        t->decay = w.param->rows > 1 || config->decay_all ? config->weight_decay : 0.0f;
        t->rule = config->rule, t->at = ((char *)w.m - (char *)opt->m) / (int64_t)te_dtype_bytes(opt->moments);
        first[1] = first[0] + (int32_t)te_ceil_div(t->elements, TE__ADAMW_CHUNK);
    }
    te_status status = te_copy(ctx, base + l.table, rows, table_bytes);
    const te_status done = te_synchronize(ctx);
    free(rows);
    if (status == TE_OK) status = done;
    if (status == TE_OK) opt->state = (te_adamw_state *)base, status = te_adamw_reset(opt, ctx);
    return status;
}

/* Enqueue one step: the norm if it is wanted, the step's numbers, the update. */
TE_API te_status te_adamw_step(te_adamw *opt, te_context *ctx) {
    TE_TRY(te__adamw_check(opt, ctx));
    TE_TRY(te__adamw_config_check(&opt->config, ctx));
    TE_REQUIRE(opt->rule == opt->config.rule && opt->moments == opt->config.moments, ctx, TE_ERROR_STATE,
               "adamw: the config asks for %s with moments in %s since te_adamw_init, which made room for %s in %s",
               te_rule_name(opt->config.rule), te_dtype_name(opt->config.moments), te_rule_name(opt->rule),
               te_dtype_name(opt->moments));
    const te__adamw_args a = te__adamw_args_of(opt);
    if (a.norm) TE_TRY(te_grad_norm_run(&opt->norm, ctx));
    TE_TRY(te__adamw_begin_launch(ctx, te_grid_of(1, 1), &a));
    if (!opt->chunks) return TE_OK;
    const te_grid grid = te_grid_of(opt->chunks, 1);
    if (opt->rule == TE_RULE_sgd)
        return opt->moments == TE_f32 ? te_sgd_update_launch(ctx, grid, &a) : te_sgd_update_bf16_launch(ctx, grid, &a);
    return opt->moments == TE_f32 ? te_adamw_update_launch(ctx, grid, &a) : te_adamw_update_bf16_launch(ctx, grid, &a);
}

/* The state, for a progress line or a checkpoint. Waits for the stream. */
TE_API te_status te_adamw_get(te_adamw_state *state, const te_adamw *opt, te_context *ctx) {
    TE_REQUIRE(state && opt && ctx && opt->state, ctx, TE_ERROR_NULL, "adamw: not initialised, or the context is null");
    TE_TRY(te_copy(ctx, state, opt->state, sizeof *state));
    return te_synchronize(ctx);
}
/* Set it: step and skipped count, each from 0 to TE_ADAMW_STEPS. Waits for the stream. */
TE_API te_status te_adamw_set(const te_adamw_state *state, te_adamw *opt, te_context *ctx) {
    TE_REQUIRE(state && opt && ctx && opt->state, ctx, TE_ERROR_NULL, "adamw: not initialised, or the context is null");
    TE_REQUIRE(te__adamw_counts(state->step, state->skipped), ctx, TE_ERROR_VALUE, "adamw: step %lld, skipped %lld",
               (long long)state->step, (long long)state->skipped);
    TE_TRY(te_copy(ctx, opt->state, state, sizeof *state));
    return te_synchronize(ctx);
}

#endif
