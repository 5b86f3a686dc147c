/* recipes.h -- the state that models under an FP8 recipe need between optimizer steps: the scales of the models'
 * tensors, and a cache of the models' weights in FP8. Each weight is cast once per optimizer step.
 *
 * Do this:
 *     ... TE_SEQUENTIAL(mlp, (bf16, (recipe, fp8_delayed)), (linear, fc1, 64, 256), (gelu, a), (linear, fc2, 256, 64))
 *     te_model *models[] = {&embed.model, &block.model};        // must outlive `recipes`
 *     te_recipes_config config = te_recipes_defaults();
 *     static te_recipes recipes;                                // must live as long as the models
 *     TE_TRY(te_allocate(&ctx, &memory, te_recipes_bytes(models, 2, &config)));
 *     TE_TRY(te_recipes_init(&recipes, memory, te_recipes_bytes(models, 2, &config), models, 2, &config, &ctx));
 *     ... forward, backward, any number of micro-batches ...
 *     TE_TRY(te_adamw_step(&opt, &ctx));
 *     TE_TRY(te_recipes_step(&recipes, &ctx));                  // casts the new weights, and updates the scales
 *
 * te_recipes_adamw_step (recipes_adamw.h) combines the last two calls and saves one read of the weights. A model that
 * was not passed to te_recipes_init runs in its own dtype instead of FP8. te_recipes_switch turns FP8 off.
 *
 * fp8_delayed computes the scales of x (a GEMM's input) and dy (its output's gradient) from their amax in previous
 * steps; the first step runs as under fp8_current. The scales of weights are computed from their current amax. Under
 * fp8_block and fp8_row each cast computes its own scales, so only the FP8 weights are stored between steps.
 *
 * Several ranks: if config.ranks is te_world_group(&ctx)->size, one collective per step replaces each amax by its
 * maximum over all ranks. All ranks then have the same scales, and these equal the scales of the unsharded tensors. The
 * scales under fp8_current, and in the first step, differ between ranks.
 */
#ifndef TE_RECIPES_H
#define TE_RECIPES_H

#include "../core/rank_group.h"         /* te_world_group */
#include "../fp8/impl/cast_transpose.h"       /* te_quantize, te_quantize_multi_tensor */
#include "../fp8/impl/quantize_rowwise.h"  /* te_quantize_rowwise */
#include "../fp8/impl/quantize_blockwise.h" /* te_quantize_blockwise */
#include "param_groups.h"          /* te__suballocate, te__memory_check */

typedef struct te_recipes_config {
    int history;        /* fp8_delayed: how many previous steps the amax history has, 1 to 1024 */
    te_scale_rule rule; /* fp8_delayed: how a scale is computed from the history */
    int current;        /* 1: lists of ops under fp8_delayed run as under fp8_current */
    float epsilon;      /* an amax below epsilon is replaced by epsilon. Applies to scales from a tensor's current amax:
                         * the scales of weights, and all scales under fp8_current, fp8_block and fp8_row */
    int power_of_two;   /* 1: scales that are computed from a tensor's current amax are rounded down to 2^n */
    int ranks;          /* te_world_group(ctx)->size: each amax is the maximum over all ranks. 1: the ranks exchange no
                         * amax, and each rank uses the amax of its own tensors */
} te_recipes_config;

/* Return the default config: a history of 1024 steps, scales that map the amax to the largest FP8 number, and no
 * exchange between ranks. */
TE_API te_recipes_config te_recipes_defaults(void) {
    te_recipes_config c;
    memset(&c, 0, sizeof c);
    c.history = TE_SCALES_MAX_HISTORY, c.rule.amax = TE_AMAX_MAX, c.ranks = 1;
    return c;
}

/* A te_recipes must not be moved in memory, because the models point to it. */
typedef struct te_recipes {
    te_recipes_config config; /* config.rule may be changed between steps */
    te_model *const *models;
    int model_count, count;     /* model_count: the number of models; count: the number of GEMMs that are under a
                                 * recipe */
    int on, begun;              /* on: 1 if the GEMMs under a recipe run in FP8. begun: 1 if at least one step was made,
                                 * so that an amax history exists */
    te_scales scales;           /* [3 count]: the scales of the GEMMs' weights, then of the inputs x, then of the output
                                 * gradients dy */
    float *gathered;            /* [ranks, 3 count]: every rank's amax of every tensor */
    const void *table;          /* the table of the weights, from te__fp8_cache_table */
    uint64_t fingerprint;       /* the value of te__fp8_cache_fingerprint when `table` was made */
    te_fp8_renewal renewal;     /* how forward casts weights that were written since the last cast */
    const void *update;         /* the te_recipes_adamw whose fused update casts weights or computes their amax; null if
                                 * the program uses no te_recipes_adamw */
} te_recipes;

/* ---- the products under a recipe --------------------------------------------------------------------------------- */

/* An iterator over the GEMMs of several models that are under a recipe, in the order of their lists of ops. */
typedef struct te__recipe_iter {
    te_model *const *models;
    int count, model, op, next; /* count: the number of models. model, op: the indices of the current GEMM's model and
                                 * op. next: the index, in te_model.param, of the next op's first parameter */
    te_param *param;            /* the weight of the current GEMM */
    te_recipe recipe;           /* the recipe of the current GEMM */
} te__recipe_iter;

TE_API te__recipe_iter te__recipe_products(te_model *const *models, int count) {
    te__recipe_iter it;
    memset(&it, 0, sizeof it);
    it.models = models, it.count = models ? count : 0;
    return it;
}
/* Go to the next GEMM that is under a recipe. Returns 0 if no GEMM is left. */
TE_API int te__recipe_next_product(te__recipe_iter *it) {
    for (; it->model < it->count; it->model++, it->op = it->next = 0) {
        const te_model *m = it->models[it->model];
        while (m && m->plan && it->op < m->plan->op_count) {
            const te_op *op = &m->plan->op[it->op++];
            it->param = &m->param[it->next], it->recipe = op->recipe, it->next += op->params;
            if (op->recipe != TE_RECIPE_none) return 1;
        }
    }
    return 0;
}

/* The bytes that a weight takes in the FP8 cache. data: the weight in FP8; transposed: the transposed weight in FP8;
 * scales, transposed_scales: the scales of `data` and of `transposed`, if these are rowwise or blockwise; all: the sum
 * of the four. */
typedef struct te__fp8_weight_bytes { size_t data, transposed, scales, transposed_scales, all; } te__fp8_weight_bytes;
TE_API te__fp8_weight_bytes te__fp8_weight_bytes_of(const te_param *p, te_recipe recipe) {
    const int64_t rows = p->rows, cols = p->cols;
    const te_scaling scaling = TE_IS_BLOCKWISE(recipe) ? TE_SCALING_BLOCKWISE_2D : TE_SCALING_ROWWISE;
    const int has_scales = !TE_IS_TENSORWISE(recipe), has_transposed = !TE_IS_ROWWISE(recipe);
    te__fp8_weight_bytes s;
    memset(&s, 0, sizeof s);
    if (TE_IS_MICROSCALED(recipe)) return s; /* such weights are cast at each use */
    s.data = (size_t)te_round_up(rows * cols, TE_ALIGN);
    if (has_transposed) s.transposed = s.data;
    if (has_scales) s.scales = (size_t)te_round_up(te_scaling_count(scaling, rows, cols) * 4, TE_ALIGN);
    if (has_scales && has_transposed)
        s.transposed_scales = (size_t)te_round_up(te_scaling_count(scaling, cols, rows) * 4, TE_ALIGN);
    s.all = s.data + s.transposed + s.scales + s.transposed_scales;
    return s;
}

/* ---- casting a weight -------------------------------------------------------------------------------------------- */

/* The three functions below return the arguments for casting a weight with tensorwise, blockwise or rowwise scales. A
 * tensorwise cast takes two launches: the first computes the amax, and the second casts with the scale that was
 * computed from the amax. A blockwise or rowwise cast takes one launch, which also computes the scales. */

TE_API te_quantize te__weight_cast_tensorwise(const te_param *p) {
    te_quantize q = te__quantize_of(p->rows, p->cols);
    const te_scales *s = p->fp8.scales;
    q.x = p->data, q.y = p->fp8.data, q.yt = p->fp8.transposed;
    q.scale = s->scale + p->fp8.weight, q.amax = s->amax + p->fp8.weight;
    return q;
}
TE_API te_quantize_blockwise te__weight_cast_blockwise(const te_param *p) {
    te_quantize_blockwise q = te__quantize_blockwise_of(p->rows, p->cols);
    q.x = p->data, q.y = p->fp8.data, q.yt = p->fp8.transposed, q.square_blocks = 1, q.rule = p->fp8.own;
    q.y_inverse = p->fp8.inverse, q.yt_inverse = p->fp8.transposed_inverse;
    return q;
}
TE_API te_quantize_rowwise te__weight_cast_rowwise(const te_param *p) {
    te_quantize_rowwise q = te__quantize_rowwise_of(p->rows, p->cols);
    q.x = p->data, q.y = p->fp8.data, q.inverse = p->fp8.inverse, q.rule = p->fp8.own;
    return q;
}

/* Cast a single weight with blockwise or rowwise scales. */
TE_API te_status te__weight_cast_one(const te_fp8_ops *ops, const te_param *p, te_recipe recipe, te_context *ctx) {
    const te_quantize_blockwise blocks = te__weight_cast_blockwise(p);
    const te_quantize_rowwise rows = te__weight_cast_rowwise(p);
    return TE_IS_BLOCKWISE(recipe) ? ops->quantize_blockwise(&blocks, ctx) : ops->quantize_rowwise(&rows, ctx);
}

/* ---- casting all weights: the table ------------------------------------------------------------------------------ */

/* A pass over the weights computes their amax or casts them. It takes one launch for each list of ops and each
 * granularity of scales (tensorwise, blockwise, rowwise), however many models use the list. Therefore casting the
 * weights of all blocks of a GPT takes as long as casting a single weight with as many elements. A launch reads a table
 * in target memory with an entry for each weight of its granularity; te_recipes_init makes the tables. */

/* TE__WEIGHTS_AT_USE: weights under mxfp8 and nvfp4. Each GEMM casts its weight when it runs, so these weights are in
 * no table. */
enum { TE__WEIGHTS_TENSORWISE, TE__WEIGHTS_BLOCKWISE, TE__WEIGHTS_ROWWISE, TE__WEIGHTS_GRANULARITIES,
       TE__WEIGHTS_AT_USE = TE__WEIGHTS_GRANULARITIES };
TE_API int te__weight_granularity(te_recipe recipe) {
    return TE_IS_MICROSCALED(recipe) ? TE__WEIGHTS_AT_USE
           : TE_IS_BLOCKWISE(recipe) ? TE__WEIGHTS_BLOCKWISE
           : TE_IS_ROWWISE(recipe)   ? TE__WEIGHTS_ROWWISE
                                     : TE__WEIGHTS_TENSORWISE;
}
/* Bytes of a weight's entry in the table. */
TE_API size_t te__fp8_cache_entry_bytes(int granularity) {
    return granularity == TE__WEIGHTS_TENSORWISE  ? sizeof(te_quantize_args)
           : granularity == TE__WEIGHTS_BLOCKWISE ? sizeof(te_blockwise_args) : sizeof(te_quantize_rowwise);
}
/* Offsets in the memory of the tables, in bytes, for each granularity. tensor: the offset of the entries for the
 * weights that are cast with this granularity. first: the offset of an array with the index of each such weight's first
 * chunk. */
typedef struct te__fp8_cache_layout {
    size_t tensor[TE__WEIGHTS_GRANULARITIES], first[TE__WEIGHTS_GRANULARITIES], bytes;
} te__fp8_cache_layout;
TE_API te__fp8_cache_layout te__fp8_cache_layout_of(te_model *const *models, int count) {
    size_t entries[TE__WEIGHTS_GRANULARITIES + 1] = {0, 0, 0, 0};
    te__fp8_cache_layout l;
    te__recipe_iter it = te__recipe_products(models, count);
    while (te__recipe_next_product(&it)) entries[te__weight_granularity(it.recipe)]++;
    memset(&l, 0, sizeof l);
    for (int k = 0; k < TE__WEIGHTS_GRANULARITIES; k++) {
        l.tensor[k] = te__suballocate(&l.bytes, entries[k] * te__fp8_cache_entry_bytes(k));
        l.first[k] = te__suballocate(&l.bytes, (entries[k] + 1) * sizeof(int32_t));
    }
    return l;
}
/* Return the number of chunks of a weight. A chunk is the work of one thread block: a row of the weight if the scales
 * are rowwise, otherwise a tile of 128 x 128. */
TE_API int64_t te__fp8_cache_chunks(const te_param *p, int granularity) {
    if (granularity == TE__WEIGHTS_ROWWISE) return p->rows;
    return te_ceil_div(p->rows, TE_FP8_TILE) * te_ceil_div(p->cols, TE_FP8_TILE);
}
/* Return a hash of the addresses of the weights. If the hash has changed since the table of weights was made, a weight
 * has moved, and the table is stale. */
TE_API uint64_t te__fp8_cache_fingerprint(te_model *const *models, int count) {
    uint64_t hash = 1;
    te__recipe_iter it = te__recipe_products(models, count);
    while (te__recipe_next_product(&it)) hash = hash * 31 + (uint64_t)(uintptr_t)it.param->data;
    return hash;
}
/* Fill in the table of weights in host memory. Each parameter's pointers into the FP8 cache must already be set. */
TE_API te_status te__fp8_cache_fill(char *table, te_model *const *models, int count, te_context *ctx) {
    const te__fp8_cache_layout l = te__fp8_cache_layout_of(models, count);
    int n[TE__WEIGHTS_GRANULARITIES] = {0, 0, 0};
    te__recipe_iter it = te__recipe_products(models, count);
    while (te__recipe_next_product(&it)) {
        const int granularity = te__weight_granularity(it.recipe);
        if (granularity == TE__WEIGHTS_AT_USE) continue;
        const int i = n[granularity]++;
        int32_t *first = (int32_t *)(void *)(table + l.first[granularity]);
        void *tensor = table + l.tensor[granularity];
        const int64_t chunks = first[i] + te__fp8_cache_chunks(it.param, granularity);
        TE_REQUIRE(chunks <= INT32_MAX, ctx, TE_ERROR_OVERFLOW, "recipes: more than %d tiles with %s.%s", INT32_MAX,
                   it.param->op, it.param->field);
        first[i + 1] = (int32_t)chunks;
        if (granularity == TE__WEIGHTS_TENSORWISE) {
            const te_quantize q = te__weight_cast_tensorwise(it.param);
            TE_TRY(te__quantize_args_of((te_quantize_args *)tensor + i, &q, "recipes", ctx));
        } else if (granularity == TE__WEIGHTS_BLOCKWISE) {
            const te_quantize_blockwise q = te__weight_cast_blockwise(it.param);
            TE_TRY(te__blockwise_args_of((te_blockwise_args *)tensor + i, &q, "recipes", ctx));
        } else {
            const te_quantize_rowwise q = te__weight_cast_rowwise(it.param);
            TE_TRY(te__rowwise_check(&q, "recipes", ctx));
            ((te_quantize_rowwise *)tensor)[i] = q;
        }
    }
    return TE_OK;
}
/* Make the table of weights (te__fp8_cache_fill) in target memory. Waits for the stream. */
TE_API te_status te__fp8_cache_table(void *table, te_model *const *models, int count, te_context *ctx) {
    const size_t bytes = te__fp8_cache_layout_of(models, count).bytes;
    char *host = (char *)calloc(1, bytes + 1);
    TE_REQUIRE(host, ctx, TE_ERROR_MEMORY, "recipes: cannot allocate %zu bytes", bytes);
    te_status status = te__fp8_cache_fill(host, models, count, ctx);
    if (status == TE_OK) status = te_copy(ctx, table, host, bytes);
    if (status == TE_OK) status = te_synchronize(ctx);
    free(host);
    return status;
}

/* ---- casting all weights: a pass --------------------------------------------------------------------------------- */

TE_API te_status te__fp8_cache_launch(const te_fp8_ops *ops, const te_multi_tensor *t, int granularity, int cast,
                                      te_context *ctx) {
    if (!t->count) return TE_OK;
    te_quantize_multi_tensor q;
    q.of = *t, q.cast = cast;
    return granularity == TE__WEIGHTS_TENSORWISE  ? ops->cast_weights(&q, ctx)
           : granularity == TE__WEIGHTS_BLOCKWISE ? ops->cast_weights_by_block(t, ctx)
                                                  : ops->cast_weights_by_row(t, ctx);
}
/* Advance t past its t->count entries of the table of weights, so that t is empty. The caller has launched a kernel for
 * these entries, or they need no kernel. */
TE_API void te__fp8_cache_skip(te_multi_tensor *t, int granularity) {
    t->tensor = (const char *)t->tensor + te__fp8_cache_entry_bytes(granularity) * (size_t)t->count;
    t->first += t->count;
    t->count = t->chunks = 0;
}
/* Run one pass over all weights whose scales have this granularity. If `cast` is 0, the pass computes the amax of each
 * weight; if `cast` is 1, the pass casts each weight with its current scale. One launch handles consecutive weights
 * whose lists of ops have the same kernels. If skip_updated is 1, the pass leaves out the weights for which the
 * optimizer's fused update has already done the work (te_fp8_product.updated). */
TE_API te_status te__fp8_cache_pass(const void *table, te_model *const *models, int count, int granularity, int cast,
                                    int skip_updated, te_context *ctx) {
    const te__fp8_cache_layout l = te__fp8_cache_layout_of(models, count);
    const te_fp8_ops *ops = 0;
    te_multi_tensor t;
    te__recipe_iter it = te__recipe_products(models, count);
    memset(&t, 0, sizeof t);
    t.tensor = (const char *)table + l.tensor[granularity];
    t.first = (const int32_t *)((const char *)table + l.first[granularity]);
    while (te__recipe_next_product(&it)) {
        if (te__weight_granularity(it.recipe) != granularity) continue;
        const int skip = skip_updated && it.param->fp8.updated;
        if (models[it.model]->plan->fp8 != ops || skip) {
            TE_TRY(te__fp8_cache_launch(ops, &t, granularity, cast, ctx));
            te__fp8_cache_skip(&t, granularity);
            ops = models[it.model]->plan->fp8;
        }
        t.count++, t.chunks += (int)te__fp8_cache_chunks(it.param, granularity);
        if (skip) te__fp8_cache_skip(&t, granularity);
    }
    return te__fp8_cache_launch(ops, &t, granularity, cast, ctx);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

typedef struct te__recipes_layout { size_t weights, gathered, table, bytes; int count; } te__recipes_layout;

TE_API te__recipes_layout te__recipes_layout_of(te_model *const *models, int count, const te_recipes_config *c) {
    te__recipes_layout l;
    size_t weights = 0;
    te__recipe_iter it = te__recipe_products(models, count);
    memset(&l, 0, sizeof l);
    if (!c) return l;
    for (; te__recipe_next_product(&it); l.count++) weights += te__fp8_weight_bytes_of(it.param, it.recipe).all;
    (void)te__suballocate(&l.bytes, te_scales_bytes(3 * l.count, c->history));
    l.weights = te__suballocate(&l.bytes, weights);
    l.gathered = te__suballocate(&l.bytes, c->ranks > 1 ? (size_t)c->ranks * 3 * (size_t)l.count * sizeof(float) : 0);
    l.table = te__suballocate(&l.bytes, te__fp8_cache_layout_of(models, count).bytes);
    return l;
}
/* Return the bytes of target memory that te_recipes_init needs: two bytes (fp8_row: one byte) for each element of the
 * weights under a recipe, and some bytes for scales and tables. */
TE_API size_t te_recipes_bytes(te_model *const *models, int count, const te_recipes_config *config) {
    return te__recipes_layout_of(models, count, config).bytes;
}

/* ---- the weights ------------------------------------------------------------------------------------------------- */

/* Check that *s is initialised, and that since its initialisation no model was bound to other memory and no weight has
 * moved. */
TE_API te_status te__recipes_check(const te_recipes *s, te_context *ctx) {
    TE_TRY(te__check_target(ctx, "recipes"));
    TE_REQUIRE(s && s->scales.memory, ctx, TE_ERROR_NULL, "recipes: not initialised");
    TE_REQUIRE(s->config.ranks == 1 || (s->gathered && s->config.ranks == te_world_group(ctx)->size), ctx,
               TE_ERROR_STATE, "recipes: ranks is %d in the config, of %d, and was %s at te_recipes_init",
               s->config.ranks, te_world_group(ctx)->size, s->gathered ? "another number" : "1");
    te__recipe_iter it = te__recipe_products(s->models, s->model_count);
    while (te__recipe_next_product(&it))
        TE_REQUIRE(it.param->fp8.scales == &s->scales, ctx, TE_ERROR_STATE,
                   "recipes: %s.%s was bound, or put under other recipes, since te_recipes_init", it.param->op,
                   it.param->field);
    TE_REQUIRE(s->fingerprint == te__fp8_cache_fingerprint(s->models, s->model_count), ctx, TE_ERROR_STATE,
               "recipes: a weight lies elsewhere since te_recipes_init; initialise the recipes again");
    return TE_OK;
}

/* Return the rule for scales that are computed from a tensor's current amax. */
TE_API te_scale_rule te__recipes_current_rule(const te_recipes_config *c) {
    te_scale_rule rule = te__scale_rule_current();
    rule.epsilon = c->epsilon, rule.power_of_two = c->power_of_two;
    return rule;
}
/* Run a pass over the weights of all recipes. If `cast` is 0, the pass computes the amax of each weight with a
 * tensorwise scale; if `cast` is 1, the pass casts all weights. If skip_updated is 1, the pass leaves out work that the
 * optimizer's fused update has already done. The fused update never casts weights with tensorwise scales, because their
 * scale needs the amax of the whole new weight; so the pass casts these weights in any case. */
TE_API te_status te__recipes_weight_pass(te_recipes *s, int cast, int skip_updated, te_context *ctx) {
    for (int g = 0; g < (cast ? TE__WEIGHTS_GRANULARITIES : TE__WEIGHTS_TENSORWISE + 1); g++) {
        const int skip = skip_updated && !(cast && g == TE__WEIGHTS_TENSORWISE);
        TE_TRY(te__fp8_cache_pass(s->table, s->models, s->model_count, g, cast, skip, ctx));
    }
    return TE_OK;
}
/* Replace the amax of tensors 0 to count - 1 of s->scales by its maximum over all ranks, unless s->config.ranks is
 * 1. */
TE_IF_USED TE_API te_status te__recipes_reduce(const te_recipes *s, int count, te_context *ctx) {
    const te_group *g = te_world_group(ctx);
    return s->config.ranks == 1 ? TE_OK : te_scales_reduce(&s->scales, s->gathered, 0, count, g, ctx);
}
/* Cast all weights with their current scales. Also record each weight's count of writes, so that forward can later find
 * out whether a weight was written after its cast. */
TE_API te_status te__recipes_cast_all(te_recipes *s, int skip_updated, te_context *ctx) {
    te__recipe_iter it = te__recipe_products(s->models, s->model_count);
    while (te__recipe_next_product(&it)) it.param->fp8.written = te__writes_of(it.param);
    s->renewal.ctx = ctx, s->renewal.loaded = ctx->loaded;
    return te__recipes_weight_pass(s, 1, skip_updated, ctx);
}
/* Compute the scales of the weights from their amax, which a pass must have computed before, and cast the weights. */
TE_IF_USED TE_API te_status te__recipes_cast(te_recipes *s, int skip_updated, te_context *ctx) {
    const te_scale_rule rule = te__recipes_current_rule(&s->config);
    TE_TRY(te_scales_update(&s->scales, 0, s->count, &rule, ctx));
    return te__recipes_cast_all(s, skip_updated, ctx);
}
/* Cast all weights. With config.ranks above 1, all ranks must call this function after a program has loaded or changed
 * weights; but te_recipes_step, and te_checkpoint_load with `recipes`, cast the weights themselves. With config.ranks
 * 1, no call is needed: forward casts the weights if a weight was written since the last cast (a program that writes
 * weights calls te_model_changed). */
TE_IF_USED TE_API te_status te_recipes_cast_weights(te_recipes *s, te_context *ctx) {
    TE_TRY(te__recipes_check(s, ctx));
    TE_TRY(te__recipes_weight_pass(s, 0, 0, ctx));
    TE_TRY(te__recipes_reduce(s, s->count, ctx));
    return te__recipes_cast(s, 0, ctx);
}
/* The callback te_fp8_renewal.renew, which forward calls if a weight was written after its cast. With config.ranks
 * above 1 the callback returns an error, because casting needs a collective that exchanges the amaxes, and one rank
 * must not begin a collective alone. */
TE_IF_USED TE_API te_status te__recipes_renew(void *of, te_context *ctx) {
    te_recipes *s = (te_recipes *)of;
    TE_REQUIRE(s->config.ranks == 1, ctx, TE_ERROR_STATE,
               "recipes: a weight was written since it was cast to FP8; call te_recipes_step or "
               "te_recipes_cast_weights on all ranks");
    return te_recipes_cast_weights(s, ctx);
}

/* ---- initialisation ---------------------------------------------------------------------------------------------- */

/* Set how fp8_delayed computes scales from now on. begun: 1 to use the amax of previous steps; 0 to use the amax of the
 * current tensors, because no step has been made yet. */
TE_API void te__recipes_set_begun(te_recipes *s, int begun) {
    te__recipe_iter it = te__recipe_products(s->models, s->model_count);
    s->begun = begun;
    while (te__recipe_next_product(&it))
        it.param->fp8.current = !begun || s->config.current || it.recipe == TE_RECIPE_fp8_current;
}

/* Switch the recipes on or off. If `on` is 1, all GEMMs under a recipe run in FP8 from now on; if `on` is 0, they run
 * in the dtypes of their lists of ops. */
TE_API te_status te_recipes_switch(te_recipes *s, int on, te_context *ctx) {
    TE_TRY(te__recipes_check(s, ctx));
    te__recipe_iter it = te__recipe_products(s->models, s->model_count);
    while (!on && te__recipe_next_product(&it))
        TE_REQUIRE(it.param->dtype == s->models[it.model]->plan->dtype, ctx, TE_ERROR_STATE,
                   "recipes: %s.%s is in f32 and in FP8; its product cannot run in the list's format", it.param->op,
                   it.param->field);
    it = te__recipe_products(s->models, s->model_count);
    while (te__recipe_next_product(&it)) it.param->fp8.on = on != 0;
    s->on = on != 0;
    return TE_OK;
}

/* Allocate *formats, [3 count], and store in it the FP8 format of each tensor of s->scales. The caller must free the
 * array. */
TE_API te_status te__recipes_formats(te_dtype **formats, const te_recipes *s, te_context *ctx) {
    const size_t n = (size_t)s->count;
    te_dtype *f = (te_dtype *)calloc(3 * n + 1, sizeof *f);
    te__recipe_iter it = te__recipe_products(s->models, s->model_count);
    TE_REQUIRE(f, ctx, TE_ERROR_MEMORY, "recipes: cannot allocate %zu bytes", 3 * n * sizeof *f);
    for (size_t i = 0; te__recipe_next_product(&it); i++)
        f[i] = f[n + i] = TE_e4m3, f[2 * n + i] = s->models[it.model]->plan->fp8->gradients;
    *formats = f;
    return TE_OK;
}
TE_API te_status te__recipes_check_config(const te_recipes_config *c, te_context *ctx) {
    TE_REQUIRE(c->history >= 1 && c->history <= TE_SCALES_MAX_HISTORY, ctx, TE_ERROR_VALUE,
               "recipes: a history of %d steps; it must be 1 to %d", c->history, (int)TE_SCALES_MAX_HISTORY);
    const te_scale_rule rule = te__recipes_current_rule(c);
    TE_TRY(te__scale_rule_check(&c->rule, "recipes", ctx));
    TE_TRY(te__scale_rule_check(&rule, "recipes", ctx));
    TE_REQUIRE(c->ranks == 1 || c->ranks == te_world_group(ctx)->size, ctx, TE_ERROR_VALUE,
               "recipes: ranks is %d, and there are %d; it is that or 1", c->ranks, te_world_group(ctx)->size);
    TE_REQUIRE(c->ranks == 1 || te_pipeline_group(ctx)->size <= 1, ctx, TE_ERROR_VALUE,
               "recipes: ranks is %d, and the stages of a pipeline have other products than each other; it is 1",
               c->ranks);
    return TE_OK;
}
/* Set each parameter's pointers to its scales and to its memory in the FP8 cache. at: the address of the FP8 cache, in
 * which the weights lie one after the other. */
TE_API void te__recipes_bind(te_recipes *s, char *at, te_context *ctx) {
    te__recipe_iter it = te__recipe_products(s->models, s->model_count);
    for (int i = 0; te__recipe_next_product(&it); i++) {
        te_fp8_product *f = &it.param->fp8;
        /* the FP8 cache need not be cleared, because casting writes all of its bytes */
        const te__fp8_weight_bytes size = te__fp8_weight_bytes_of(it.param, it.recipe);
        f->scales = &s->scales, f->own = te__recipes_current_rule(&s->config);
        f->common = s->config.ranks == te_world_group(ctx)->size;
        f->weight = i, f->x = s->count + i, f->dy = 2 * s->count + i;
        f->data = size.data ? at : 0, at += size.data;
        f->transposed = size.transposed ? at : 0, at += size.transposed;
        f->inverse = size.scales ? (float *)(void *)at : 0, at += size.scales;
        f->transposed_inverse = size.transposed_scales ? (float *)(void *)at : 0, at += size.transposed_scales;
        f->updated = 0, f->renewal = &s->renewal;
    }
}
/* Initialise *s for these models, which must be bound; cast their weights to FP8, and switch the recipes on. memory:
 * target memory of te_recipes_bytes bytes, aligned to TE_ALIGN. Waits for the stream. Errors: null pointers, a model
 * that is not bound or listed twice, a history that is not allowed, memory too small or misaligned. */
TE_IF_USED TE_API te_status te_recipes_init(te_recipes *s, void *memory, size_t bytes, te_model *const *models,
                                            int count, const te_recipes_config *config, te_context *ctx) {
    TE_TRY(te__models_bound(models, count, "recipes", ctx));
    TE_REQUIRE(s && config, ctx, TE_ERROR_NULL, "recipes: the struct or the config is null");
    TE_TRY(te__recipes_check_config(config, ctx));
    for (int i = 0; i < count; i++)
        TE_REQUIRE(!models[i]->shards || !models[i]->shards->has_weights, ctx, TE_ERROR_STATE,
                   "recipes: the weights of model %d (%s) are sharded, and GEMMs in FP8 read copies of whole weights; "
                   "te_fsdp_config.zero 2 shards gradients alone", i, models[i]->plan->name);
    te__recipe_iter it = te__recipe_products(models, count);
    while (te__recipe_next_product(&it))
        TE_REQUIRE(it.param->data, ctx, TE_ERROR_STATE, "recipes: %s.%s has no memory; te_tie it to another parameter",
                   it.param->op, it.param->field);
    const te__recipes_layout l = te__recipes_layout_of(models, count, config);
    TE_TRY(te__memory_check(memory, bytes, l.bytes, models, count, "recipes", ctx));
    memset(s, 0, sizeof *s);
    s->config = *config, s->models = models, s->model_count = count, s->count = l.count;
    te_dtype *formats = 0;
    TE_TRY(te__recipes_formats(&formats, s, ctx));
    const te_status status = te_scales_init(&s->scales, memory, l.weights, formats, 3 * l.count, config->history, ctx);
    free(formats);
    TE_TRY(status);
    if (config->ranks > 1) s->gathered = (float *)(void *)((char *)memory + l.gathered);
    te__recipes_bind(s, (char *)memory + l.weights, ctx);
    s->table = (const char *)memory + l.table, s->fingerprint = te__fp8_cache_fingerprint(models, count);
    TE_TRY(te__fp8_cache_table((char *)memory + l.table, models, count, ctx));
    te__recipes_set_begun(s, 0);
    s->renewal.renew = te__recipes_renew, s->renewal.of = s;
    TE_TRY(te_recipes_cast_weights(s, ctx));
    return te_recipes_switch(s, 1, ctx);
}

/* To be called after a checkpoint has been loaded into the weights and the scales: casts the weights. If the gradients
 * had another FP8 format when the checkpoint was saved, also converts the gradients' scales. begun: whether at least
 * one optimizer step had been made when the checkpoint was saved. Waits for the stream. */
TE_API te_status te_recipes_loaded(te_recipes *s, int begun, te_context *ctx) {
    te_dtype *formats = 0;
    TE_TRY(te__recipes_check(s, ctx));
    TE_TRY(te__recipes_formats(&formats, s, ctx));
    const te_status status = te__scales_reformat(&s->scales, formats, ctx);
    free(formats);
    TE_TRY(status);
    te__recipes_set_begun(s, begun);
    return te__recipes_cast_all(s, 0, ctx);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* Check for all errors that a step can return, before the step enqueues anything. */
TE_API te_status te__recipes_check_step(const te_recipes *s, te_context *ctx) {
    TE_TRY(te__recipes_check(s, ctx));
    return te__scale_rule_check(&s->config.rule, "recipes", ctx);
}
/* Enqueue the kernels of te_recipes_step, without checking for errors first. If skip_updated is 1, leave out the
 * weights that the optimizer's fused update has already cast. */
TE_IF_USED TE_API te_status te__recipes_advance(te_recipes *s, int skip_updated, te_context *ctx) {
    const int first = !s->begun && s->on, delayed = (s->begun || first) && s->on && !s->config.current;
    TE_TRY(te__recipes_weight_pass(s, 0, skip_updated, ctx));
    if (first && delayed && s->config.ranks > 1)
        TE_TRY(te__scales_reduce_amax(&s->scales, s->count, 2 * s->count, ctx));
    TE_TRY(te__recipes_reduce(s, delayed ? 3 * s->count : s->count, ctx));
    if (first) te__recipes_set_begun(s, 1);
    if (delayed) TE_TRY(te_scales_update(&s->scales, s->count, 2 * s->count, &s->config.rule, ctx));
    return te__recipes_cast(s, skip_updated, ctx);
}
/* Enqueue a kernel that computes all scales of fp8_delayed for the next step, and kernels that cast the weights. Call
 * te_recipes_step on all ranks, after each step of the optimizer. */
TE_IF_USED TE_API te_status te_recipes_step(te_recipes *s, te_context *ctx) {
    TE_TRY(te__recipes_check_step(s, ctx));
    return te__recipes_advance(s, 0, ctx);
}

#endif
