/* adamw.h -- AdamW over all tensors of several models in one launch, with fp32 master weights, clipping by the global
 * gradient norm and a learning-rate schedule, all of it on the device. Loshchilov & Hutter, "Decoupled weight decay
 * regularization", ICLR 2019. The config can ask for moments in bf16 or 8 bits (moment_blocks.h), and for SGD with
 * momentum or Muon (muon.h) by the same calls.
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
 *
 * Replicas on several ranks may share the states out (ZeRO-1, slices.h): config.shards = te_data_group(&ctx)->size,
 * before te_adamw_bytes_of, and te_adamw_reduce(&opt, &ctx) in the place of te_reduce_gradients. Each rank then has
 * 1 / shards of the moments and of the master weights, and the numbers are those of one that has all. Each of Muon's
 * matrices belongs to one rank, which makes it orthogonal, so that work is shared out, too.
 */
#ifndef TE_ADAMW_H
#define TE_ADAMW_H

#include "../comm/reduce.h" /* te__reduce_gradients */
#include "adamw_blocks.h"   /* te_adamw_update_e4m3 */
#include "adamw_kernels.h"  /* te_adamw_update, te__adamw_begin, te__adamw_start; te_adamw_config */
#include "adamw_layout.h"   /* te_adamw, te_adamw_bytes_of */
#include "grad_norm.h"      /* te_grad_norm_run */
#include "muon.h"           /* te__muon_matrix */

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
TE_IF_USED TE_API te_status te_adamw_reset(te_adamw *opt, te_context *ctx) {
    TE_TRY(te__adamw_check(opt, ctx));
    const te__adamw_args a = te__adamw_args_of(opt);
    TE_TRY(te_fill(ctx, opt->state, 0, sizeof *opt->state));
    TE_TRY(te_fill(ctx, opt->m, 0, te__moments_bytes(opt->m_elements, opt->moments)));
    TE_TRY(te_fill(ctx, opt->v, 0, te__moments_bytes(opt->v_elements, opt->moments)));
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
TE_IF_USED TE_API te_status te_adamw_init(te_adamw *opt, void *memory, size_t bytes, te_model *const *models, int count,
                                          const te_adamw_config *config, te_context *ctx) {
    TE_TRY(te__models_check(models, count, "adamw", ctx));
    TE_REQUIRE(opt && config, ctx, TE_ERROR_NULL, "adamw: the struct or the config is null");
    TE_TRY(te__adamw_config_check(config, ctx));
    TE_TRY(te__groups_check(config->groups, config->group_count, models, count, ctx));
    const te_slices slices = te__adamw_slices(config, config->shards > 1 ? te_data_group(ctx)->rank : 0);
    TE_TRY(te__slices_check(models, count, slices, "adamw", ctx));
    const te__adamw_layout l = te__adamw_layout_of(models, count, config, slices.rank);
    for (int i = 0; i < count; i++)
        TE_REQUIRE(!config->no_master || models[i]->plan->dtype != TE_f16, ctx, TE_ERROR_DTYPE,
                   "adamw: no_master, and model %d (%s) is f16; weights without an f32 copy are bf16", i,
                   models[i]->plan->name);
    te_param_walk p = te_params_of(models, count);
    while (te_params_next(&p))
        if (te__param_rule(config->rule, config->muon_takes, models[p.model], p.param) == TE_RULE_muon)
            TE_TRY(te__muon_check(p.param, te__muon_dtype(models[p.model]->plan->dtype), ctx));
    TE_TRY(te__memory_check(memory, bytes, te_adamw_bytes_of(models, count, config), models, count, "adamw", ctx));

    char *base = (char *)memory;
    memset(opt, 0, sizeof *opt);
    opt->config = *config, opt->models = models, opt->model_count = count, opt->slices = slices;
    opt->config.groups = 0, opt->config.group_count = 0;
    opt->where = te__params_where(models, count);
    opt->count = l.count, opt->chunks = (int)l.chunks, opt->m_elements = l.m_elements, opt->v_elements = l.v_elements;
    opt->tensor = (const te__adamw_tensor *)(base + l.table), opt->first = (const int32_t *)(opt->tensor + l.count);
    opt->rule = config->rule, opt->moments = config->moments, opt->takes = config->muon_takes;
    opt->no_master = config->no_master;
    opt->m = base + l.m, opt->v = base + l.v, opt->master = (float *)(base + l.master);
    opt->muon.x[0] = base + l.x[0], opt->muon.x[1] = base + l.x[1], opt->muon.a = base + l.a, opt->muon.b = base + l.b;
    opt->muon.scratch = (float *)(base + l.scratch), opt->muon.partial = (float *)(base + l.partial);
    opt->muon.factor = (float *)(base + l.factor), opt->room = base + l.room;
    TE_TRY(te__grad_norm_init(&opt->norm, base + l.norm, l.table - l.norm, models, count, slices, ctx));

    const size_t table_bytes = (size_t)l.count * sizeof(te__adamw_tensor) + ((size_t)l.count + 1) * sizeof(int32_t);
    te__adamw_tensor *rows = (te__adamw_tensor *)calloc(1, table_bytes);
    TE_REQUIRE(rows, ctx, TE_ERROR_MEMORY, "adamw: cannot allocate %zu bytes", table_bytes);
    int32_t *first = (int32_t *)(rows + l.count);
    te_adamw_walk w = te_adamw_tensors(opt);
    for (te__adamw_tensor *t = rows; te_adamw_next(&w); t++, first++) {
        t->dtype = w.param->dtype, t->elements = w.elements;
        t->master = w.master, t->m = w.m, t->v = w.v, t->grad = w.param->grad + w.from;
        t->weight = (char *)w.param->data + (size_t)w.from * te_dtype_bytes(t->dtype);
        te__adamw_choose(t, config, models[w.model], w.param);
        t->rule = w.rule, t->at = w.pieces.before + w.from;
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
TE_IF_USED TE_API te_status te__adamw_each_matrix(const te_adamw *opt, const te__adamw_args *args, te_context *ctx) {
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
TE_IF_USED TE_API te_status te__adamw_matrices(const te_adamw *opt, const te__adamw_args *args, te_context *ctx) {
    te_enqueue_open(ctx);
    const te_status status = te__adamw_each_matrix(opt, args, ctx);
    return te_enqueue_close(ctx, status);
}
/* What this rank has of the parameters, by the numbers of this step. */
TE_IF_USED TE_API te_status te__adamw_update(const te_adamw *opt, const te__adamw_args *a, te_context *ctx) {
    if (!opt->chunks) return TE_OK;
    const te_grid grid = te_grid_of(opt->chunks, 1);
    if (te__in_blocks(opt->moments))
        return opt->rule == TE_RULE_sgd ? te_sgd_update_e4m3_launch(ctx, grid, a)
                                        : te_adamw_update_e4m3_launch(ctx, grid, a);
    if (opt->rule == TE_RULE_sgd)
        return opt->moments == TE_f32 ? te_sgd_update_launch(ctx, grid, a) : te_sgd_update_bf16_launch(ctx, grid, a);
    TE_TRY(opt->moments == TE_f32 ? te_adamw_update_launch(ctx, grid, a) : te_adamw_update_bf16_launch(ctx, grid, a));
    return opt->rule == TE_RULE_muon ? te__adamw_matrices(opt, a, ctx) : TE_OK;
}
/* The groups are those of te_adamw_init. */
TE_API te_status te__adamw_check_ranks(const te_adamw *opt, te_context *ctx) {
    const te_group *g = te_data_group(ctx);
    TE_REQUIRE(opt->slices.ranks == opt->config.shards, ctx, TE_ERROR_STATE,
               "adamw: shards is %d in the config, and was %d at te_adamw_init", opt->config.shards,
               opt->slices.ranks);
    TE_REQUIRE(opt->slices.ranks == 1 || (g->size == opt->slices.ranks && g->rank == opt->slices.rank), ctx,
               TE_ERROR_STATE, "adamw: this is rank %d of %d in the data group, and was %d of %d at te_adamw_init",
               g->rank, g->size, opt->slices.rank, opt->slices.ranks);
    return TE_OK;
}
/* The sums of m's gradients are there; where buckets leave slices of them, those are what this rank updates. */
TE_API te_status te__adamw_check_sums(const te_adamw *opt, const te_model *m, te_context *ctx) {
    const int slices = m->watch ? m->watch->slices : 1;
    TE_TRY(te__check_reduced(m, "adamw", ctx));
    TE_REQUIRE(slices <= 1 || (slices == opt->slices.ranks && !opt->slices.whole), ctx, TE_ERROR_STATE,
               "adamw: buckets sum a slice of %d of the gradients of %s, and %s", slices, m->plan->name,
               opt->slices.whole ? "muon needs whole matrices; shards is 1 in their config"
                                 : "the optimizer has no such slices of its states");
    return TE_OK;
}
/* Between the last backward and te_adamw_step, on all ranks: te_reduce_gradients of the optimizer's models or, where
 * its states are shared out, no more of the sums than this rank's update reads (beside Muon: all). */
TE_API te_status te_adamw_reduce(const te_adamw *opt, te_context *ctx) {
    TE_TRY(te__adamw_check(opt, ctx));
    TE_TRY(te__adamw_check_ranks(opt, ctx));
    return te__reduce_gradients(opt->models, opt->model_count, opt->slices.whole ? 1 : opt->slices.ranks, ctx);
}
/* What a step refuses, before it enqueues anything. */
TE_API te_status te__adamw_check_step(const te_adamw *opt, te_context *ctx) {
    TE_TRY(te__adamw_check(opt, ctx));
    TE_TRY(te__adamw_config_check(&opt->config, ctx));
    TE_TRY(te__adamw_check_ranks(opt, ctx));
    TE_REQUIRE(opt->rule == opt->config.rule && opt->moments == opt->config.moments, ctx, TE_ERROR_STATE,
               "adamw: the config asks for %s with moments in %s since te_adamw_init, which made room for %s in %s",
               te_rule_name(opt->config.rule), te_dtype_name(opt->config.moments), te_rule_name(opt->rule),
               te_dtype_name(opt->moments));
    TE_REQUIRE(!opt->no_master == !opt->config.no_master, ctx, TE_ERROR_STATE,
               "adamw: no_master is %d in the config, and was %d at te_adamw_init", opt->config.no_master,
               opt->no_master);
    for (int i = 0; i < opt->model_count; i++) TE_TRY(te__adamw_check_sums(opt, opt->models[i], ctx));
    return TE_OK;
}
/* The norm if it is wanted, and the step's numbers. */
TE_IF_USED TE_API te_status te__adamw_begin_step(const te_adamw *opt, const te__adamw_args *a, te_context *ctx) {
    if (a->norm) TE_TRY(te_grad_norm_run(&opt->norm, ctx));
    return te__adamw_begin_launch(ctx, te_grid_of(1, 1), a);
}
/* Enqueue one step: the norm if it is wanted, the step's numbers, the update; of shared-out states, too, the gathering
 * of the parameters. With CUDA this is a function template: `auto f = &te_adamw_step<>`. */
TE_IF_USED TE_API te_status te_adamw_step(te_adamw *opt, te_context *ctx) {
    TE_TRY(te__adamw_check_step(opt, ctx));
    const te__adamw_args a = te__adamw_args_of(opt);
    TE_TRY(te__adamw_begin_step(opt, &a, ctx));
    TE_TRY(te__adamw_update(opt, &a, ctx));
    if (opt->slices.ranks == 1) return TE_OK;
    return te__slices_gather(opt->models, opt->model_count, opt->slices, opt->room, ctx);
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
