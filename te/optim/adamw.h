/* adamw.h -- AdamW over all tensors of several models in one launch, with fp32 master weights, clipping by the global
 * gradient norm and a learning-rate schedule, all of it on the device. Loshchilov & Hutter, "Decoupled weight decay
 * regularization", ICLR 2019. The config can ask for moments in bf16, and for SGD with momentum or Muon (muon.h) by the
 * same calls.
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
#include "muon.h"          /* te__muon_matrix, te__param_rule */

typedef struct te_adamw {
    te_adamw_config config; /* weight_decay, decay_all, rule, moments, no_master and muon_takes stay as they are; groups
                             * are gone, the tensors have what they say */
    te_model *const *models;
    int model_count, count, chunks;
    te_adamw_state *state;          /* target memory, as everything below */
    te_grad_norm norm;
    const te__adamw_tensor *tensor; /* [count] */
    const int32_t *first;           /* [count + 1], the first chunk of each tensor */
    void *m, *v;                    /* tensors one after the other, each at a multiple of TE_PARAM_ALIGN elements */
    float *master;
    int64_t m_elements, v_elements; /* gaps included; only what AdamW takes has a v */
    te_rule rule;                   /* as at te_adamw_init, like the next three */
    te_dtype moments;               /* of m and v */
    int no_master;
    te_muon_takes takes;
    te__muon muon;
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
    int64_t at, v_at, master_at;
    int model;            /* index into the models */
    const te_param *param;
    float *master;         /* [rows, cols], target memory; param->data if the model is f32; null: no_master */
    void *m, *v;           /* [rows, cols] of opt->moments; v is null where the rule has none */
    te_rule rule;          /* of this tensor */
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
    const size_t moment = te_dtype_bytes(w->opt->moments);
    w->rule = te__param_rule(w->opt->rule, w->opt->takes, w->opt->models[w->model], w->param);
    w->m = (char *)w->opt->m + (size_t)w->at * moment, w->at += slot;
    w->v = w->rule == TE_RULE_adamw ? (char *)w->opt->v + (size_t)w->v_at * moment : 0;
    if (w->v) w->v_at += slot;
    w->master = (float *)w->param->data;
    if (w->opt->models[w->model]->plan->dtype == TE_f32) return 1;
    w->master = w->opt->no_master ? 0 : w->opt->master + w->master_at, w->master_at += slot;
    return 1;
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

typedef struct te__adamw_layout {
    size_t norm, table, m, v, master, x[2], a, b, scratch, partial, factor, bytes;
    int count;
    int64_t chunks, m_elements, v_elements;
} te__adamw_layout;

TE_API te__adamw_layout te__adamw_layout_of(te_model *const *models, int count, const te_adamw_config *c) {
    te__adamw_layout l;
    te_param_walk w = te_params_of(models, count);
    te__muon_sizes muon;
    int64_t masters = 0;
    memset(&l, 0, sizeof l), memset(&muon, 0, sizeof muon);
    for (; te_params_next(&w); l.count++) {
        const int64_t n = w.param->rows * w.param->cols, slot = te_round_up(n, TE_PARAM_ALIGN);
        const te_rule rule = te__param_rule(c->rule, c->muon_takes, models[w.model], w.param);
        const te_dtype dtype = models[w.model]->plan->dtype;
        l.chunks += te_ceil_div(n, TE__ADAMW_CHUNK), l.m_elements += slot;
        if (rule == TE_RULE_adamw) l.v_elements += slot;
        if (rule == TE_RULE_muon) te__muon_add(&muon, w.param, te__muon_dtype(dtype));
        if (dtype != TE_f32 && !c->no_master) masters += slot;
    }
    (void)te__part(&l.bytes, sizeof(te_adamw_state));
    l.norm = te__part(&l.bytes, te_grad_norm_bytes(models, count));
    l.table = te__part(&l.bytes, (size_t)l.count * sizeof(te__adamw_tensor) + ((size_t)l.count + 1) * sizeof(int32_t));
    l.m = te__part(&l.bytes, (size_t)l.m_elements * te_dtype_bytes(c->moments));
    l.v = te__part(&l.bytes, (size_t)l.v_elements * te_dtype_bytes(c->moments));
    l.master = te__part(&l.bytes, (size_t)masters * sizeof(float));
    for (int i = 0; i < 2; i++) l.x[i] = te__part(&l.bytes, (size_t)muon.x);
    l.a = te__part(&l.bytes, (size_t)muon.a), l.b = te__part(&l.bytes, (size_t)muon.a);
    l.scratch = te__part(&l.bytes, (size_t)muon.scratch);
    if (c->rule != TE_RULE_muon) return l;
    l.partial = te__part(&l.bytes, (size_t)l.chunks * sizeof(float));
    l.factor = te__part(&l.bytes, (size_t)l.count * sizeof(float));
    return l;
}
/* Bytes of target memory that te_adamw_init wants: for AdamW 12 an element, 8 for an f32 model, four less with moments
 * in bf16 and as many without master weights, and some for the tables; Muon takes no second moment, but two copies of
 * the largest matrix. A config that is refused, or none: as te_adamw_bytes. */
TE_API size_t te_adamw_bytes_of(te_model *const *models, int count, const te_adamw_config *config) {
    const te_adamw_config plain = te_adamw_defaults(0.0f);
    const int known = config && (unsigned)config->rule < (unsigned)TE_RULE_COUNT &&
                      (config->moments == TE_f32 || config->moments == TE_bf16);
    return te__adamw_layout_of(models, count, known ? config : &plain).bytes;
}
/* The same for AdamW with moments in f32. */
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
               "adamw: a model was bound again, or other parameters were frozen, since te_adamw_init; initialise the "
               "optimizer again");
    return TE_OK;
}
/* Begin anew from the models' weights: master = weight, m = v = 0, step 0. For after weights were loaded. */
TE_API te_status te_adamw_reset(te_adamw *opt, te_context *ctx) {
    TE_TRY(te__adamw_check(opt, ctx));
    const te__adamw_args a = te__adamw_args_of(opt);
    TE_TRY(te_fill(ctx, opt->state, 0, sizeof *opt->state));
    TE_TRY(te_fill(ctx, opt->m, 0, (size_t)opt->m_elements * te_dtype_bytes(opt->moments)));
    TE_TRY(te_fill(ctx, opt->v, 0, (size_t)opt->v_elements * te_dtype_bytes(opt->moments)));
    return opt->chunks ? te__adamw_start_launch(ctx, te_grid_of(opt->chunks, 1), &a) : TE_OK;
}

/* The decay and the learning rate of a tensor. */
TE_API void te__adamw_choose(te__adamw_tensor *t, const te_adamw_config *c, const te_model *m, const te_param *p) {
    const te_param_group *g = te__group_of(c->groups, c->group_count, m, p);
    t->decay = p->rows > 1 || c->decay_all ? c->weight_decay : 0.0f, t->lr = 1.0f;
    if (!g) return;
    t->lr = g->lr;
    if (g->weight_decay != TE_DECAY_OF_CONFIG) t->decay = g->weight_decay;
}
/* Bind to memory (target memory, te_adamw_bytes_of, aligned to TE_ALIGN), to the models as they are bound now, and
 * reset. `models` must outlive the optimizer. Waits for the stream. Errors: null pointers, a model without gradients or
 * listed twice, a value in the config that is not allowed, a group of parameters that takes none, memory too small or
 * misaligned, a model in f16 without master weights, a matrix for Muon of which this rank has a part. */
TE_API te_status te_adamw_init(te_adamw *opt, void *memory, size_t bytes, te_model *const *models, int count,
                               const te_adamw_config *config, te_context *ctx) {
    TE_TRY(te__models_check(models, count, "adamw", ctx));
    TE_REQUIRE(opt && config, ctx, TE_ERROR_NULL, "adamw: the struct or the config is null");
    TE_TRY(te__adamw_config_check(config, ctx));
    TE_TRY(te__groups_check(config->groups, config->group_count, models, count, ctx));
    const te__adamw_layout l = te__adamw_layout_of(models, count, config);
    for (int i = 0; i < count; i++)
        TE_REQUIRE(!config->no_master || models[i]->plan->dtype != TE_f16, ctx, TE_ERROR_DTYPE,
                   "adamw: no_master, and model %d (%s) is f16; weights without an f32 copy are bf16", i,
                   models[i]->plan->name);
    te_param_walk p = te_params_of(models, count);
    while (te_params_next(&p))
        if (te__param_rule(config->rule, config->muon_takes, models[p.model], p.param) == TE_RULE_muon)
            TE_TRY(te__muon_check(p.param, te__muon_dtype(models[p.model]->plan->dtype), ctx));
    TE_TRY(te__memory_check(memory, bytes, l.bytes, models, count, "adamw", ctx));

    char *base = (char *)memory;
    memset(opt, 0, sizeof *opt);
    opt->config = *config, opt->models = models, opt->model_count = count;
    opt->config.groups = 0, opt->config.group_count = 0;
    opt->where = te__params_where(models, count);
    opt->count = l.count, opt->chunks = (int)l.chunks, opt->m_elements = l.m_elements, opt->v_elements = l.v_elements;
    opt->tensor = (const te__adamw_tensor *)(base + l.table), opt->first = (const int32_t *)(opt->tensor + l.count);
    opt->rule = config->rule, opt->moments = config->moments, opt->takes = config->muon_takes;
    opt->no_master = config->no_master;
    opt->m = base + l.m, opt->v = base + l.v, opt->master = (float *)(base + l.master);
    opt->muon.x[0] = base + l.x[0], opt->muon.x[1] = base + l.x[1], opt->muon.a = base + l.a, opt->muon.b = base + l.b;
    opt->muon.scratch = (float *)(base + l.scratch), opt->muon.partial = (float *)(base + l.partial);
    opt->muon.factor = (float *)(base + l.factor);
    TE_TRY(te_grad_norm_init(&opt->norm, base + l.norm, l.table - l.norm, models, count, ctx));

    const size_t table_bytes = (size_t)l.count * sizeof(te__adamw_tensor) + ((size_t)l.count + 1) * sizeof(int32_t);
    te__adamw_tensor *rows = (te__adamw_tensor *)calloc(1, table_bytes);
    TE_REQUIRE(rows, ctx, TE_ERROR_MEMORY, "adamw: cannot allocate %zu bytes", table_bytes);
    int32_t *first = (int32_t *)(rows + l.count);
    te_adamw_walk w = te_adamw_tensors(opt);
    for (te__adamw_tensor *t = rows; te_adamw_next(&w); t++, first++) {
        t->master = w.master, t->m = w.m, t->v = w.v, t->grad = w.param->grad, t->weight = w.param->data;
        t->elements = w.param->rows * w.param->cols, t->dtype = models[w.model]->plan->dtype;
        te__adamw_choose(t, config, models[w.model], w.param);
        t->rule = w.rule, t->at = ((char *)w.m - (char *)opt->m) / (int64_t)te_dtype_bytes(opt->moments);
        first[1] = first[0] + (int32_t)te_ceil_div(t->elements, TE__ADAMW_CHUNK);
    }
    te_status status = te_copy(ctx, base + l.table, rows, table_bytes);
    const te_status done = te_synchronize(ctx);
    free(rows);
    if (status == TE_OK) status = done;
    if (status == TE_OK) opt->state = (te_adamw_state *)base, status = te_adamw_reset(opt, ctx);
    return status;
}

/* Muon: the momentum of all matrices, then one after the other. */
TE_API te_status te__adamw_each_matrix(const te_adamw *opt, const te__adamw_args *args, te_context *ctx) {
    te__muon_args a;
    memset(&a, 0, sizeof a);
    a.step = *args, a.memory = opt->muon;
    TE_TRY(te_muon_momentum_launch(ctx, te_grid_of(opt->chunks, 1), &a));
    TE_TRY(te_muon_norm_launch(ctx, te_grid_of(opt->count, 1), &a));
    te_adamw_walk w = te_adamw_tensors(opt);
    for (; te_adamw_next(&w); a.tensor++)
        if (w.rule == TE_RULE_muon)
            TE_TRY(te__muon_matrix(&a, w.param, opt->models[w.model]->plan->dtype, ctx));
    return TE_OK;
}
/* These are seventeen launches a matrix: enqueued as graphs, like a pass of a model. */
TE_API te_status te__adamw_matrices(const te_adamw *opt, const te__adamw_args *args, te_context *ctx) {
    te_enqueue_open(ctx);
    const te_status status = te__adamw_each_matrix(opt, args, ctx);
    return te_enqueue_close(ctx, status);
}
/* Enqueue one step: the norm if it is wanted, the step's numbers, the update. */
TE_API te_status te_adamw_step(te_adamw *opt, te_context *ctx) {
    TE_TRY(te__adamw_check(opt, ctx));
    TE_TRY(te__adamw_config_check(&opt->config, ctx));
    TE_REQUIRE(opt->rule == opt->config.rule && opt->moments == opt->config.moments, ctx, TE_ERROR_STATE,
               "adamw: the config asks for %s with moments in %s since te_adamw_init, which made room for %s in %s",
               te_rule_name(opt->config.rule), te_dtype_name(opt->config.moments), te_rule_name(opt->rule),
               te_dtype_name(opt->moments));
    TE_REQUIRE(!opt->no_master == !opt->config.no_master, ctx, TE_ERROR_STATE,
               "adamw: no_master is %d in the config, and was %d at te_adamw_init", opt->config.no_master,
               opt->no_master);
    const te__adamw_args a = te__adamw_args_of(opt);
    if (a.norm) TE_TRY(te_grad_norm_run(&opt->norm, ctx));
    TE_TRY(te__adamw_begin_launch(ctx, te_grid_of(1, 1), &a));
    if (!opt->chunks) return TE_OK;
    const te_grid grid = te_grid_of(opt->chunks, 1);
    if (opt->rule == TE_RULE_sgd)
        return opt->moments == TE_f32 ? te_sgd_update_launch(ctx, grid, &a) : te_sgd_update_bf16_launch(ctx, grid, &a);
    TE_TRY(opt->moments == TE_f32 ? te_adamw_update_launch(ctx, grid, &a) : te_adamw_update_bf16_launch(ctx, grid, &a));
    return opt->rule == TE_RULE_muon ? te__adamw_matrices(opt, &a, ctx) : TE_OK;
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
