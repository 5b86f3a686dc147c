/* adamw.h -- AdamW (Loshchilov & Hutter, "Decoupled weight decay regularization", ICLR 2019). One launch updates all
 * tensors of several models. The optimizer has master weights in f32, clips by the global gradient norm and follows a
 * learning-rate schedule, all on the device. The config can select SGD with momentum or Muon (muon.h) instead of AdamW,
 * moments in bf16 or 8 bits, and sharding of moments and master weights over ranks (zero1.h).
 *
 * Do this:
 *     te_model *models[] = {&embed.model, &block.model};        // must outlive the optimizer
 *     te_adamw_config config = te_adamw_defaults(3e-4f);
 *     config.schedule = te_schedule_of(TE_SCHEDULE_cosine, 3e-4f, 100, 10000, 0.1f), config.max_norm = 1.0f;
 *     const size_t bytes = te_adamw_bytes_of(models, 2, &config);
 *     TE_TRY(te_allocate(&ctx, &memory, bytes));
 *     TE_TRY(te_adamw_init(&opt, memory, bytes, models, 2, &config, &ctx));
 *     ... backward ...
 *     TE_TRY(te_adamw_step(&opt, &ctx));                        // enqueues; a graph can capture the step
 *     TE_TRY(te_adamw_get(&state, &opt, &ctx));                 // reads step, norm and lr; waits for the stream
 *
 * A step does not clear the gradients: the next backward overwrites them, unless te_batch.accumulate is set.
 *
 * ZeRO-1: set config.shards = te_data_group(&ctx)->size before te_adamw_bytes_of, and call te_adamw_reduce(&opt, &ctx)
 * instead of te_reduce_gradients. Each rank then stores only 1 / config.shards of the moments and master weights; the
 * results are the same as without sharding. With Muon, each matrix is assigned to one rank, which orthogonalises it.
 * For ZeRO-2 and ZeRO-3 see fsdp.h.
 */
#ifndef TE_ADAMW_H
#define TE_ADAMW_H

#include "../comm/reduce_gradients.h"     /* te__reduce_gradients */
#include "grad_norm.h"          /* te_grad_norm, te_grad_norm_run */
#include "impl/adamw_kernels.h" /* te__adamw_tensor, te_adamw_update and the other kernels; te_adamw_config */
#include "muon.h"               /* te__muon_matrix, te__muon_sizes, te__param_rule */
#include "zero1.h"              /* te_zero1_iter */

typedef struct te_adamw {
    te_adamw_config config; /* the options; may be changed between steps, except weight_decay, decay_all, rule, moments,
                             * no_master, muon_takes and shards. config.groups is null, because te_adamw_init has copied
                             * the groups' values into the array `tensor` */
    te_model *const *models;
    /* model_count: the number of models. count: the number of tensors that this rank updates. chunks: the number of
     * chunks into which these tensors are divided, each of at most TE__ADAMW_CHUNK elements */
    int model_count, count, chunks;
    te_zero1 zero1;                 /* which shard of moments and master weights this rank has */
    te_adamw_state *state;          /* `state` and the pointers after it point into target memory */
    te_grad_norm norm;
    const te__adamw_tensor *tensor; /* [count] */
    const int32_t *first;           /* [count + 1], the index of the first chunk of each tensor */
    void *m, *v;                    /* the moments of all tensors; each tensor's moments begin at a multiple of
                                     * TE_PARAM_ALIGN elements */
    float *master;
    int64_t m_elements, v_elements; /* the numbers of elements in m and in v, including the gaps between tensors. Only
                                       tensors that AdamW updates have a v */
    te_rule rule;                   /* te_adamw_init copies the config's rule here, and its moments, no_master and
                                     * muon_takes to the members below */
    te_dtype moments;               /* the format of m and v */
    int no_master;
    te_muon_takes takes;
    te__muon muon;
    char *gather_buffer;            /* ZeRO-1 with Muon: the buffer of te__zero1_gather */
    uint64_t fingerprint;           /* value of te__params_fingerprint when the table `tensor` was made */
    int has_masters;                /* 1: at least one tensor has master weights besides its weights */
    te_loss_scale_state *scaler;    /* the state of dynamic loss scaling, set by te_adamw_use_loss_scaler; null without
                                     * loss scaling */
    /* Two counts, as they were when the master weights last agreed with the weights: te__params_writes (the writes to
     * the parameters), and te_context.loaded (which te_safetensors_load increases). If a count has changed since then,
     * te_adamw_renew compares the weights with the master weights */
    uint64_t written, loaded;
} te_adamw;

/* ---- the optimizer's tensors ------------------------------------------------------------------------------------- */

/* Iterates over the optimizer's tensors, for a checkpoint or to inspect them:
 *     te_adamw_iter it = te_adamw_tensors(&opt);
 *     while (te_adamw_next(&it)) use(it.param, it.model, it.master, it.m, it.v);
 */
typedef struct te_adamw_iter {
    te_zero1_iter zero1;
    const te_adamw *opt;
    int64_t m_at, v_at, master_at; /* indices of the next tensor's first element in opt->m, opt->v and opt->master */
    int model;                     /* the index of the parameter's model */
    const te_param *param;
    int64_t from, elements; /* a range of the parameter's elements, by its first element and its length: all elements
                             * or, with ZeRO-1, a range that this rank updates */
    float *master;          /* [elements], in target memory: the master weights of these elements. If the parameter is
                             * f32, `master` points into param->data. Null if there are no master weights
                             * (config.no_master) */
    /* [elements], the moments in the format opt->moments; v is null if the rule has no second moment. In the format
     * e4m3, the scales follow the elements (te_moment_scales returns the scales' address), and v holds the square roots
     * of the second moments */
    void *m, *v;
    te_rule rule;           /* the rule that updates this tensor */
} te_adamw_iter;

TE_API te_adamw_iter te_adamw_tensors(const te_adamw *opt) {
    te_adamw_iter it;
    memset(&it, 0, sizeof it);
    it.opt = opt;
    if (opt) it.zero1 = te_zero1_iter_of(opt->models, opt->model_count, opt->zero1);
    else it.zero1 = te_zero1_iter_of(0, 0, te_zero1_of(0, 1));
    return it;
}
TE_API int te_adamw_next(te_adamw_iter *it) {
    const te_adamw *opt = it->opt;
    if (!te_zero1_next(&it->zero1)) return 0;
    it->param = it->zero1.param, it->model = it->zero1.model;
    it->from = it->zero1.from, it->elements = it->zero1.elements;
    const int64_t slot = te_round_up(it->elements, TE_PARAM_ALIGN);
    it->rule = te__param_rule(opt->rule, opt->takes, opt->models[it->model], it->param);
    it->m = (char *)opt->m + te__moments_bytes(it->m_at, opt->moments), it->m_at += slot;
    it->v = it->rule == TE_RULE_adamw ? (char *)opt->v + te__moments_bytes(it->v_at, opt->moments) : 0;
    if (it->v) it->v_at += slot;
    it->master = (float *)te__param_at(opt->models[it->model], it->param, it->from);
    if (it->param->dtype == TE_f32) return 1;
    it->master = opt->no_master ? 0 : opt->master + it->master_at, it->master_at += slot;
    return 1;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Return which shard of moments and master weights rank number `rank` of the data group has. A matrix that Muon updates
 * is not divided, but belongs to one rank. */
TE_API te_zero1 te__adamw_zero1(const te_adamw_config *c, int rank) {
    te_zero1 z = te_zero1_of(rank, c->shards);
    if (c->rule == TE_RULE_muon && c->shards > 1) z.whole = c->muon_takes ? c->muon_takes : te_muon_matrices;
    return z;
}
/* The layout of the optimizer's memory: the offset of each part in bytes, in ascending order; and how many tensors,
 * chunks and elements this rank updates. */
typedef struct te__adamw_layout {
    size_t norm, table, m, v, master, x[2], a, b, scratch, partial, factor, gather_buffer, bytes;
    size_t table_bytes;
    int count, has_masters;
    int64_t chunks, m_elements, v_elements;
} te__adamw_layout;

TE_API te__adamw_layout te__adamw_layout_of(te_model *const *models, int count, const te_adamw_config *c, int rank) {
    te__adamw_layout l;
    const te_zero1 zero1 = te__adamw_zero1(c, rank);
    te_zero1_iter it = te_zero1_iter_of(models, count, zero1);
    te__muon_sizes muon;
    int64_t masters = 0;
    memset(&l, 0, sizeof l), memset(&muon, 0, sizeof muon);
    for (; te_zero1_next(&it); l.count++) {
        const int64_t n = it.elements, slot = te_round_up(n, TE_PARAM_ALIGN);
        const te_rule rule = te__param_rule(c->rule, c->muon_takes, models[it.model], it.param);
        l.chunks += te_ceil_div(n, TE__ADAMW_CHUNK), l.m_elements += slot;
        if (rule == TE_RULE_adamw) l.v_elements += slot;
        if (rule == TE_RULE_muon) te__muon_sizes_add(&muon, it.param, te__muon_dtype(models[it.model]->plan->dtype));
        if (it.param->dtype != TE_f32 && !c->no_master) masters += slot;
    }
    l.table_bytes = (size_t)l.count * sizeof(te__adamw_tensor) + ((size_t)l.count + 1) * sizeof(int32_t);
    (void)te__suballocate(&l.bytes, sizeof(te_adamw_state));
    l.norm = te__suballocate(&l.bytes, te__grad_norm_bytes(models, count, zero1));
    l.table = te__suballocate(&l.bytes, l.table_bytes);
    l.m = te__suballocate(&l.bytes, te__moments_bytes(l.m_elements, c->moments));
    l.v = te__suballocate(&l.bytes, te__moments_bytes(l.v_elements, c->moments));
    l.master = te__suballocate(&l.bytes, (size_t)masters * sizeof(float)), l.has_masters = masters > 0;
    for (int i = 0; i < 2; i++) l.x[i] = te__suballocate(&l.bytes, (size_t)muon.x);
    l.a = te__suballocate(&l.bytes, (size_t)muon.a), l.b = te__suballocate(&l.bytes, (size_t)muon.a);
    l.scratch = te__suballocate(&l.bytes, (size_t)muon.scratch);
    if (c->rule != TE_RULE_muon) return l;
    l.partial = te__suballocate(&l.bytes, (size_t)l.chunks * sizeof(float));
    l.factor = te__suballocate(&l.bytes, (size_t)l.count * sizeof(float));
    l.gather_buffer = te__suballocate(&l.bytes, te__zero1_gather_bytes(models, count, zero1));
    return l;
}
/* Return the bytes of target memory that te_adamw_init needs. AdamW needs 12 bytes for each element (8 if the model is
 * f32), and some bytes for tables. Moments in bf16 save 4 bytes for each element, moments in e4m3 save 5.94, and
 * config->no_master saves 4. Muon needs no second moment, but memory for two copies of the largest matrix. ZeRO-1
 * divides all this except the tables by config->shards; rounding then adds up to 128 elements for each shard of a
 * model. With Muon, ZeRO-1 also needs a buffer of config->shards times the size of the largest matrix. The result is
 * the same on all ranks. If the config is null or not valid, the result is that of te_adamw_bytes. */
TE_API size_t te_adamw_bytes_of(te_model *const *models, int count, const te_adamw_config *config) {
    const te_adamw_config plain = te_adamw_defaults(0.0f);
    const int valid = config && (unsigned)config->rule < (unsigned)TE_RULE_COUNT &&
                      te__moments_dtype_valid(config->moments) && te__adamw_shards_valid(config->shards);
    size_t bytes = 0;
    for (int rank = 0; rank < (valid ? config->shards : 1); rank++) {
        const te__adamw_layout l = te__adamw_layout_of(models, count, valid ? config : &plain, rank);
        bytes = l.bytes > bytes ? l.bytes : bytes;
    }
    return bytes;
}
/* Return the bytes of target memory that te_adamw_init needs for AdamW with moments in f32. */
TE_API size_t te_adamw_bytes(te_model *const *models, int count) { return te_adamw_bytes_of(models, count, 0); }

/* ---- initialisation ---------------------------------------------------------------------------------------------- */

TE_API te__adamw_args te__adamw_args_of(const te_adamw *opt) {
    te__adamw_args a;
    a.tensor = opt->tensor, a.first = opt->first, a.count = opt->count;
    a.state = opt->state, a.config = opt->config, a.norm = 0;
    a.scaler = opt->scaler;
    if (opt->config.max_norm > 0.0f || opt->config.skip_nonfinite || a.scaler) a.norm = opt->norm.norm;
    return a;
}

TE_API te_status te__adamw_check(const te_adamw *opt, te_context *ctx) {
    TE_TRY(te__check_target(ctx, "adamw"));
    TE_REQUIRE(opt && opt->state, ctx, TE_ERROR_NULL, "adamw: not initialised");
    TE_REQUIRE(opt->fingerprint == te__params_fingerprint(opt->models, opt->model_count), ctx, TE_ERROR_STATE,
               "adamw: a model was bound again, or other parameters were frozen, since te_adamw_init; initialise the "
               "optimizer again");
    return TE_OK;
}
/* Record the current counts of writes to the weights. To be called when the master weights agree with the weights. If a
 * count changes later, te_adamw_renew compares weights and master weights. */
TE_API void te__adamw_agrees(te_adamw *opt, const te_context *ctx) {
    opt->written = te__params_writes(opt->models, opt->model_count), opt->loaded = ctx->loaded;
}
/* If weights were written by other code than this optimizer (te_safetensors_load, or a program that then calls
 * te_model_changed), update the master weights: each master weight that does not round to its weight becomes a copy of
 * the weight. All other master weights keep their precision. If no weight was written, do nothing. te_adamw_step calls
 * this function. Reads 6 bytes for each element. */
TE_IF_USED TE_API te_status te_adamw_renew(te_adamw *opt, te_context *ctx) {
    TE_TRY(te__adamw_check(opt, ctx));
    if (opt->written == te__params_writes(opt->models, opt->model_count) && opt->loaded == ctx->loaded) return TE_OK;
    const te__adamw_args a = te__adamw_args_of(opt);
    if (opt->has_masters) TE_TRY(te__adamw_renew_master_launch(ctx, te__grid_of(opt->chunks, 1), &a));
    te__adamw_agrees(opt, ctx);
    return TE_OK;
}
/* Reset the optimizer, for instance after the program has loaded other weights: master weight = weight, m = v = 0, step
 * = 0. */
TE_IF_USED TE_API te_status te_adamw_reset(te_adamw *opt, te_context *ctx) {
    TE_TRY(te__adamw_check(opt, ctx));
    const te__adamw_args a = te__adamw_args_of(opt);
    TE_TRY(te_fill(ctx, opt->state, 0, sizeof *opt->state));
    TE_TRY(te_fill(ctx, opt->m, 0, te__moments_bytes(opt->m_elements, opt->moments)));
    TE_TRY(te_fill(ctx, opt->v, 0, te__moments_bytes(opt->v_elements, opt->moments)));
    te__adamw_agrees(opt, ctx);
    return opt->chunks ? te__adamw_init_master_launch(ctx, te__grid_of(opt->chunks, 1), &a) : TE_OK;
}

/* Set t->decay and t->lr, the weight decay and the learning-rate factor of parameter p. If p belongs to a
 * te_param_group, they are the group's values, else the config's weight decay and 1. */
TE_API void te__adamw_set_group(te__adamw_tensor *t, const te_adamw_config *c, const te_model *m, const te_param *p) {
    const te_param_group *g = te__group_of(c->groups, c->group_count, m, p);
    t->decay = p->rows > 1 || c->decay_all ? c->weight_decay : 0.0f, t->lr = 1.0f;
    if (!g) return;
    t->lr = g->lr;
    if (g->weight_decay != TE_DECAY_OF_CONFIG) t->decay = g->weight_decay;
}
/* Set the options and the pointers in *opt. base: the optimizer's memory, whose layout is *l. */
TE_API void te__adamw_bind(te_adamw *opt, char *base, const te__adamw_layout *l, const te_adamw_config *config) {
    opt->config = *config, opt->config.groups = 0, opt->config.group_count = 0;
    opt->count = l->count, opt->chunks = (int)l->chunks, opt->has_masters = l->has_masters;
    opt->m_elements = l->m_elements, opt->v_elements = l->v_elements;
    opt->tensor = (const te__adamw_tensor *)(base + l->table), opt->first = (const int32_t *)(opt->tensor + l->count);
    opt->rule = config->rule, opt->moments = config->moments, opt->takes = config->muon_takes;
    opt->no_master = config->no_master;
    opt->m = base + l->m, opt->v = base + l->v, opt->master = (float *)(base + l->master);
    opt->muon.x[0] = base + l->x[0], opt->muon.x[1] = base + l->x[1];
    opt->muon.a = base + l->a, opt->muon.b = base + l->b, opt->muon.scratch = (float *)(base + l->scratch);
    opt->muon.partial = (float *)(base + l->partial), opt->muon.factor = (float *)(base + l->factor);
    opt->gather_buffer = base + l->gather_buffer;
}
/* Make two tables, of the tensors and of each tensor's first chunk, and copy them to `table` in target memory. Waits
 * for the stream. */
TE_API te_status te__adamw_put_table(const te_adamw *opt, void *table, size_t bytes, const te_adamw_config *config,
                                     te_context *ctx) {
    te__adamw_tensor *rows = (te__adamw_tensor *)calloc(1, bytes);
    TE_REQUIRE(rows, ctx, TE_ERROR_MEMORY, "adamw: cannot allocate %zu bytes", bytes);
    int32_t *first = (int32_t *)(rows + opt->count);
    te_adamw_iter it = te_adamw_tensors(opt);
    for (te__adamw_tensor *t = rows; te_adamw_next(&it); t++, first++) {
        t->dtype = it.param->dtype, t->elements = it.elements;
        t->master = it.master, t->m = it.m, t->v = it.v;
        t->grad = te__grad_at(opt->models[it.model], it.param, it.from);
        t->weight = te__param_at(opt->models[it.model], it.param, it.from);
        te__adamw_set_group(t, config, opt->models[it.model], it.param);
        t->rule = it.rule, t->at = it.zero1.before + it.from;
        first[1] = first[0] + (int32_t)te_ceil_div(t->elements, TE__ADAMW_CHUNK);
    }
    const te_status status = te_copy(ctx, table, rows, bytes), done = te_synchronize(ctx);
    free(rows);
    return status == TE_OK ? done : status;
}
/* Return an error if a block of 8-bit moments has both elements that several ranks hold (te_param.copies) and elements
 * that only this rank holds. All elements of a block share one scale. In such a block the scale would differ between
 * the ranks, and their copies of the same moments would differ, too. */
TE_API te_status te__adamw_check_copies(const te_param *p, te_dtype moments, te_context *ctx) {
    const te_shard_layout s = te_shard_layout_of(p, te_tensor_group(ctx));
    TE_REQUIRE(s.copies == 1 || s.first % TE_MOMENT_BLOCK == 0 || !te__moments_8bit(moments), ctx, TE_ERROR_SHAPE,
               "adamw: moments in %s have a scale for each %d elements, and %s.%s has %lld elements of q in front of "
               "those of k, which other ranks hold, too; choose moments in f32 or bf16", te_dtype_name(moments),
               (int)TE_MOMENT_BLOCK, p->op, p->field, (long long)s.first);
    return TE_OK;
}
/* Initialise the optimizer for these models, which must be bound, and reset it (te_adamw_reset). memory: target memory
 * of te_adamw_bytes_of bytes, aligned to TE_ALIGN. `models` must outlive the optimizer. Waits for the stream. Errors:
 * null pointers, a model without gradients or listed twice, a value in the config that is not allowed, a group that
 * matches no parameter, memory too small or misaligned, an f16 model without master weights, a matrix for Muon that is
 * sharded over the tensor group, 8-bit moments for a parameter of which ranks hold copies that begin in the middle of a
 * block of moments. */
TE_IF_USED TE_API te_status te_adamw_init(te_adamw *opt, void *memory, size_t bytes, te_model *const *models, int count,
                                          const te_adamw_config *config, te_context *ctx) {
    TE_TRY(te__models_check(models, count, "adamw", ctx));
    TE_REQUIRE(opt && config, ctx, TE_ERROR_NULL, "adamw: the struct or the config is null");
    TE_TRY(te__adamw_config_check(config, ctx));
    TE_TRY(te__groups_check(config->groups, config->group_count, models, count, ctx));
    const te_zero1 zero1 = te__adamw_zero1(config, config->shards > 1 ? te_data_group(ctx)->rank : 0);
    TE_TRY(te__zero1_check(models, count, zero1, "adamw", ctx));
    const te__adamw_layout l = te__adamw_layout_of(models, count, config, zero1.rank);
    for (int i = 0; i < count; i++)
        TE_REQUIRE(!config->no_master || models[i]->plan->dtype != TE_f16, ctx, TE_ERROR_DTYPE,
                   "adamw: no_master, and model %d (%s) is f16; weights without an f32 copy are bf16", i,
                   models[i]->plan->name);
    te_param_iter it = te_params_of(models, count);
    while (te_params_next(&it)) {
        if (te__param_rule(config->rule, config->muon_takes, models[it.model], it.param) == TE_RULE_muon)
            TE_TRY(te__muon_check(it.param, te__muon_dtype(models[it.model]->plan->dtype), ctx));
        TE_TRY(te__adamw_check_copies(it.param, config->moments, ctx));
    }
    TE_TRY(te__memory_check(memory, bytes, te_adamw_bytes_of(models, count, config), models, count, "adamw", ctx));

    char *base = (char *)memory;
    memset(opt, 0, sizeof *opt);
    opt->models = models, opt->model_count = count, opt->zero1 = zero1;
    opt->fingerprint = te__params_fingerprint(models, count);
    te__adamw_bind(opt, base, &l, config);
    TE_TRY(te__grad_norm_init(&opt->norm, base + l.norm, l.table - l.norm, models, count, zero1, ctx));
    TE_TRY(te__adamw_put_table(opt, base + l.table, l.table_bytes, config, ctx));
    opt->state = (te_adamw_state *)base; /* now te__adamw_check accepts the optimizer */
    return te_adamw_reset(opt, ctx);
}

/* From the next step on, divide the gradients by the scaler's scale, skip steps whose gradients have an infinity or a
 * NaN, and adapt the scale (loss_scale.h). If `scaler` is null, loss scaling is turned off. After te_adamw_init loss
 * scaling is off. Errors: the optimizer or the scaler is not initialised. */
TE_API te_status te_adamw_use_loss_scaler(te_adamw *opt, const te_loss_scaler *scaler, te_context *ctx) {
    TE_TRY(te__adamw_check(opt, ctx));
    TE_REQUIRE(!scaler || scaler->state, ctx, TE_ERROR_NULL, "te_adamw_use_loss_scaler: the scaler is not initialised");
    opt->scaler = scaler ? scaler->state : 0;
    return TE_OK;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* Enqueue Muon's update of all its matrices. The first launch updates the momentum of all matrices, and the second
 * launch computes the norms of their updates; then the matrices are updated one after the other. */
TE_IF_USED TE_API te_status te__adamw_enqueue_matrices(const te_adamw *opt, const te__adamw_args *args,
                                                       te_context *ctx) {
    te__muon_args a;
    memset(&a, 0, sizeof a);
    a.step = *args, a.memory = opt->muon;
    TE_TRY(te_muon_momentum_launch(ctx, te__grid_of(opt->chunks, 1), &a));
    TE_TRY(te_muon_norm_launch(ctx, te__grid_of(opt->count, 1), &a));
    te_adamw_iter it = te_adamw_tensors(opt);
    for (; te_adamw_next(&it); a.tensor++)
        if (it.rule == TE_RULE_muon)
            TE_TRY(te__muon_matrix(&a, it.param, opt->models[it.model]->plan->dtype, ctx));
    return TE_OK;
}
/* Update the matrices by Muon. Each matrix takes seventeen launches. To save launch overhead, the launches are
 * recorded, and enqueued as CUDA graphs. */
TE_IF_USED TE_API te_status te__adamw_matrices(const te_adamw *opt, const te__adamw_args *args, te_context *ctx) {
    te__launch_record_begin(ctx);
    const te_status status = te__launch_record_end(ctx, te__adamw_enqueue_matrices(opt, args, ctx));
    return status == TE_OK ? te_launch_flush(ctx) : status; /* so that kernels enqueued later wait for the new weights
                                                             * (ctx->pdl) */
}
/* Enqueue the update of all parameters or, with ZeRO-1, of this rank's shard of the parameters. */
TE_IF_USED TE_API te_status te__adamw_update(const te_adamw *opt, const te__adamw_args *a, te_context *ctx) {
    if (!opt->chunks) return TE_OK;
    const te_grid grid = te__grid_of(opt->chunks, 1);
    if (te__moments_8bit(opt->moments))
        return opt->rule == TE_RULE_sgd ? te_sgd_update_8bit_launch(ctx, grid, a)
                                        : te_adamw_update_8bit_launch(ctx, grid, a);
    if (opt->rule == TE_RULE_sgd)
        return opt->moments == TE_f32 ? te_sgd_update_launch(ctx, grid, a) : te_sgd_update_bf16_launch(ctx, grid, a);
    TE_TRY(opt->moments == TE_f32 ? te_adamw_update_launch(ctx, grid, a) : te_adamw_update_bf16_launch(ctx, grid, a));
    return opt->rule == TE_RULE_muon ? te__adamw_matrices(opt, a, ctx) : TE_OK;
}
/* Check that the context has the same data group as when te_adamw_init was called. */
TE_API te_status te__adamw_check_ranks(const te_adamw *opt, te_context *ctx) {
    const te_group *g = te_data_group(ctx);
    TE_REQUIRE(opt->zero1.ranks == opt->config.shards, ctx, TE_ERROR_STATE,
               "adamw: shards is %d in the config, and was %d at te_adamw_init", opt->config.shards, opt->zero1.ranks);
    TE_REQUIRE(opt->zero1.ranks == 1 || (g->size == opt->zero1.ranks && g->rank == opt->zero1.rank), ctx,
               TE_ERROR_STATE, "adamw: this is rank %d of %d in the data group, and was %d of %d at te_adamw_init",
               g->rank, g->size, opt->zero1.rank, opt->zero1.ranks);
    return TE_OK;
}
/* Check that m's gradients have been reduced over the ranks. If te_buckets or te_fsdp reduce-scatters the gradients, a
 * rank has sums only for its own shard of the gradients. In this case, check that the optimizer updates the same
 * shard. */
TE_API te_status te__adamw_check_reduced(const te_adamw *opt, const te_model *m, te_context *ctx) {
    const int shards = m->watch ? m->watch->slices : 1;
    TE_TRY(te__check_reduced(m, "adamw", ctx));
    TE_REQUIRE(shards <= 1 || (shards == opt->zero1.ranks && !opt->zero1.whole), ctx, TE_ERROR_STATE,
               "adamw: buckets sum a slice of %d of the gradients of %s, and %s", shards, m->plan->name,
               opt->zero1.whole ? "muon needs whole matrices; shards is 1 in their config"
                                : "the optimizer's states are not sharded like that");
    return TE_OK;
}
/* Sum the gradients of the optimizer's models over the ranks; replaces te_reduce_gradients. Call te_adamw_reduce on all
 * ranks between the last backward and te_adamw_step. With ZeRO-1 the gradients are reduce-scattered, because each
 * rank's update reads only its own shard of the gradients; with ZeRO-1 and Muon they are all-reduced. */
TE_API te_status te_adamw_reduce(const te_adamw *opt, te_context *ctx) {
    TE_TRY(te__adamw_check(opt, ctx));
    TE_TRY(te__adamw_check_ranks(opt, ctx));
    return te__reduce_gradients(opt->models, opt->model_count, opt->zero1.whole ? 1 : opt->zero1.ranks, ctx);
}
/* Check for all errors that a step can return, before the step enqueues anything. */
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
    for (int i = 0; i < opt->model_count; i++) TE_TRY(te__adamw_check_reduced(opt, opt->models[i], ctx));
    return TE_OK;
}
/* Begin an optimizer step: copy loaded weights to the master weights, enqueue the gradient norm if the config needs it,
 * and enqueue the kernel that computes learning rate, clipping factor and bias correction. */
TE_IF_USED TE_API te_status te__adamw_begin_step(te_adamw *opt, const te__adamw_args *a, te_context *ctx) {
    TE_TRY(te_adamw_renew(opt, ctx));
    if (a->norm) TE_TRY(te_grad_norm_run(&opt->norm, ctx));
    return te__adamw_begin_launch(ctx, te__grid_of(1, 1), a);
}
/* Count the optimizer's own write to the parameters. From this count, FP8 recipes know that the weights must be cast
 * again. */
TE_API void te__adamw_has_written(te_adamw *opt, te_context *ctx) {
    te__params_written(opt->models, opt->model_count, ctx);
    te__adamw_agrees(opt, ctx);
}
/* Enqueue one optimizer step: the gradient norm if the config needs it, the learning rate and the other scalars, the
 * update and, with ZeRO-1, the all-gather of the updated parameters. With CUDA, te_adamw_step is a function template;
 * its address is `&te_adamw_step<>`. */
TE_IF_USED TE_API te_status te_adamw_step(te_adamw *opt, te_context *ctx) {
    TE_TRY(te__adamw_check_step(opt, ctx));
    const te__adamw_args a = te__adamw_args_of(opt);
    TE_TRY(te__adamw_begin_step(opt, &a, ctx));
    TE_TRY(te__adamw_update(opt, &a, ctx));
    te__adamw_has_written(opt, ctx);
    if (opt->zero1.ranks == 1) return TE_OK;
    return te__zero1_gather(opt->models, opt->model_count, opt->zero1, opt->gather_buffer, ctx);
}

/* ---- the state --------------------------------------------------------------------------------------------------- */

/* Copy the optimizer's scalars (step, norm, learning rate) to *state in host memory, for a progress line or a
 * checkpoint. Waits for the stream. */
TE_API te_status te_adamw_get(te_adamw_state *state, const te_adamw *opt, te_context *ctx) {
    TE_REQUIRE(state && opt && ctx && opt->state, ctx, TE_ERROR_NULL, "adamw: not initialised, or the context is null");
    TE_TRY(te_copy(ctx, state, opt->state, sizeof *state));
    return te_synchronize(ctx);
}
/* Set the numbers of steps made and skipped, for instance from a checkpoint. state->step and state->skipped must each
 * be from 0 to TE_ADAMW_MAX_STEPS. Waits for the stream. */
TE_API te_status te_adamw_set(const te_adamw_state *state, te_adamw *opt, te_context *ctx) {
    TE_REQUIRE(state && opt && ctx && opt->state, ctx, TE_ERROR_NULL, "adamw: not initialised, or the context is null");
    TE_REQUIRE(te__adamw_counts_valid(state->step, state->skipped), ctx, TE_ERROR_VALUE,
               "adamw: step %lld, skipped %lld", (long long)state->step, (long long)state->skipped);
    TE_TRY(te_copy(ctx, opt->state, state, sizeof *state));
    return te_synchronize(ctx);
}

#endif
