/* recipes.h -- what lists under an FP8 recipe keep from step to step: the scales of their tensors, and their weights in
 * FP8.
 *
 * Do this:
 *     ... TE_SEQUENTIAL(mlp, (bf16, (recipe, fp8_delayed)), (linear, fc1, 64, 256), (gelu, a), (linear, fc2, 256, 64))
 *     te_model *models[] = {&embed.model, &block.model};        // must outlive the state
 *     te_recipes_config config = te_recipes_defaults();
 *     static te_recipes recipes;                                // the models point to it
 *     TE_TRY(te_allocate(&ctx, &memory, te_recipes_bytes(models, 2, &config)));
 *     TE_TRY(te_recipes_init(&recipes, memory, te_recipes_bytes(models, 2, &config), models, 2, &config, &ctx));
 *     ... forward, backward, as many micro-batches as one likes ...
 *     TE_TRY(te_adamw_step(&opt, &ctx));
 *     TE_TRY(te_recipes_step(&recipes, &ctx));                  // the weights have changed: scales, weights in FP8
 *
 * te_recipes_adamw_step (recipes_adamw.h) is the last two calls in one, and reads the weights once less.
 *
 * Until te_recipes_init and behind te_recipes_switch(&recipes, 0) the same lists run in their own format.
 *
 * fp8_delayed scales x and dy by what was largest in the steps before; in the first step, which has none before it, as
 * fp8_current does. Weights are scaled by what is largest in them, cast and transposed once a step. fp8_block has
 * nothing to remember: each tile of 1 x 128 of x and dy, and each block of 128 x 128 of a weight, is scaled by what is
 * largest in it; nor has fp8_row, where each row of x and of a weight is.
 *
 * Several ranks: with config.ranks = te_world_group(&ctx)->size a step takes what was largest on any of them, by one
 * collective, so that all have the same scales: those of the whole tensors, of which a rank has rows or columns. The
 * scales of fp8_current, and of the first step, are each rank's own.
 */
#ifndef TE_RECIPES_H
#define TE_RECIPES_H

#include "../core/group.h"  /* te_world_group */
#include "params.h"         /* te__part, te__memory_check */
#include "recipe_weights.h" /* te__weights_pass, te__recipes_of */

typedef struct te_recipes_config {
    int history;        /* fp8_delayed: steps whose largest magnitudes are remembered, 1 to 1024 */
    te_scale_rule rule; /* fp8_delayed: the scale for them */
    int current;        /* 1: lists of fp8_delayed run as if they were of fp8_current */
    float epsilon;      /* scales that come from what they scale (weights, fp8_current, fp8_block, fp8_row): a largest
                         * magnitude below it counts as it */
    int power_of_two;   /* 1: such scales are rounded down to powers of two */
    int ranks;          /* te_world_group(ctx)->size: magnitudes are the largest of all ranks; 1: of each by itself */
} te_recipes_config;

/* The largest magnitude of 1024 steps, no margin, each rank by itself. */
TE_API te_recipes_config te_recipes_defaults(void) {
    te_recipes_config c;
    memset(&c, 0, sizeof c);
    c.history = TE_SCALES_MOST_HISTORY, c.rule.amax = TE_AMAX_MAX, c.ranks = 1;
    return c;
}

TE_API te_scale_rule te__recipes_own_rule(const te_recipes_config *c) {
    te_scale_rule own = te_scale_rule_current();
    own.epsilon = c->epsilon, own.power_of_two = c->power_of_two;
    return own;
}

/* Must stay where it is: the models point to it. */
typedef struct te_recipes {
    te_recipes_config config; /* the rule may be changed between steps */
    te_model *const *models;
    int model_count, count; /* products under a recipe */
    int on, begun;          /* begun: a step lies behind them */
    te_scales scales;           /* [3 count]: of the weights, of the inputs x, of the gradients dy */
    float *gathered;            /* [ranks, 3 count]: what was largest on each rank */
    const void *table;          /* of the weights: te__weights_table */
    uint64_t where;             /* te__weights_where: what the table was made for */
    const void *update;         /* the te_recipes_adamw that their fp8.updated is of; null: none (recipes_adamw.h) */
} te_recipes;

/* ---- what lies where --------------------------------------------------------------------------------------------- */

typedef struct te__recipes_layout { size_t weights, gathered, table, bytes; int count; } te__recipes_layout;

TE_API te__recipes_layout te__recipes_layout_of(te_model *const *models, int count, const te_recipes_config *c) {
    te__recipes_layout l;
    size_t weights = 0;
    te__recipe_walk w = te__recipes_of(models, count);
    memset(&l, 0, sizeof l);
    if (!c) return l;
    for (; te__recipes_next(&w); l.count++) weights += te__recipe_weight_of(w.param, w.recipe).all;
    (void)te__part(&l.bytes, te_scales_bytes(3 * l.count, c->history));
    l.weights = te__part(&l.bytes, weights);
    l.gathered = te__part(&l.bytes, c->ranks > 1 ? (size_t)c->ranks * 3 * (size_t)l.count * sizeof(float) : 0);
    l.table = te__part(&l.bytes, te__weights_layout_of(models, count).bytes);
    return l;
}
/* Bytes of target memory that te_recipes_init wants: two for each element of a product's weight (fp8_row: one), and all
 * scales. */
TE_API size_t te_recipes_bytes(te_model *const *models, int count, const te_recipes_config *config) {
    return te__recipes_layout_of(models, count, config).bytes;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Initialised, and no model was bound again behind its back. */
TE_API te_status te__recipes_check(const te_recipes *s, te_context *ctx) {
    TE_TRY(te_check_target(ctx, "recipes"));
    TE_REQUIRE(s && s->scales.memory, ctx, TE_ERROR_NULL, "recipes: not initialised");
    TE_REQUIRE(s->config.ranks == 1 || (s->gathered && s->config.ranks == te_world_group(ctx)->size), ctx,
               TE_ERROR_STATE, "recipes: ranks is %d in the config, of %d, and was %s at te_recipes_init",
               s->config.ranks, te_world_group(ctx)->size, s->gathered ? "another number" : "1");
    te__recipe_walk w = te__recipes_of(s->models, s->model_count);
    while (te__recipes_next(&w))
        TE_REQUIRE(w.param->fp8.scales == &s->scales, ctx, TE_ERROR_STATE,
                   "recipes: %s.%s was bound, or put under other recipes, since te_recipes_init", w.param->op,
                   w.param->field);
    TE_REQUIRE(s->where == te__weights_where(s->models, s->model_count), ctx, TE_ERROR_STATE,
               "recipes: a weight lies elsewhere since te_recipes_init; initialise the recipes again");
    return TE_OK;
}

/* One pass over the weights: their largest magnitudes, or the cast with the scales that they have; the cast of blocks
 * and of rows finds theirs. rest: 1: but for what the optimizer's update has done of it. That casts no weight with a
 * scale a tensor, which it has to have seen all of first. */
TE_API te_status te__recipes_over_weights(te_recipes *s, int cast, int rest, te_context *ctx) {
    for (int kind = 0; kind < (cast ? TE__WEIGHTS_KINDS : TE__WEIGHTS_BY_TENSOR + 1); kind++) {
        const int some = rest && !(cast && kind == TE__WEIGHTS_BY_TENSOR);
        TE_TRY(te__weights_pass(s->table, s->models, s->model_count, kind, cast, some, ctx));
    }
    return TE_OK;
}
/* What was largest in the first `count` tensors becomes that of all ranks. */
TE_IF_USED TE_API te_status te__recipes_reduce(const te_recipes *s, int count, te_context *ctx) {
    const te_group *g = te_world_group(ctx);
    return s->config.ranks == 1 ? TE_OK : te_scales_reduce(&s->scales, s->gathered, 0, count, g, ctx);
}
/* The weights, what is largest in which is known. */
TE_IF_USED TE_API te_status te__recipes_cast(te_recipes *s, int rest, te_context *ctx) {
    const te_scale_rule own = te__recipes_own_rule(&s->config);
    TE_TRY(te_scales_update(&s->scales, 0, s->count, &own, ctx));
    return te__recipes_over_weights(s, 1, rest, ctx);
}
/* The weights in FP8 anew: for after weights were loaded by themselves, or changed by other means than steps. */
TE_IF_USED TE_API te_status te_recipes_cast_weights(te_recipes *s, te_context *ctx) {
    TE_TRY(te__recipes_check(s, ctx));
    TE_TRY(te__recipes_over_weights(s, 0, 0, ctx));
    TE_TRY(te__recipes_reduce(s, s->count, ctx));
    return te__recipes_cast(s, 0, ctx);
}

/* Scales are of steps before from now on (begun 1), or of the tensors themselves, where there is no step before. */
TE_API void te__recipes_begin(te_recipes *s, int begun) {
    te__recipe_walk w = te__recipes_of(s->models, s->model_count);
    s->begun = begun;
    while (te__recipes_next(&w))
        w.param->fp8.current = !begun || s->config.current || w.recipe == TE_RECIPE_fp8_current;
}

/* Run the products of all models in FP8 (1), or in their lists' own formats (0). */
TE_API te_status te_recipes_switch(te_recipes *s, int on, te_context *ctx) {
    TE_TRY(te__recipes_check(s, ctx));
    te__recipe_walk w = te__recipes_of(s->models, s->model_count);
    while (!on && te__recipes_next(&w))
        TE_REQUIRE(w.param->dtype == s->models[w.model]->plan->dtype, ctx, TE_ERROR_STATE,
                   "recipes: %s.%s is in f32 and in FP8; its product cannot run in the list's format", w.param->op,
                   w.param->field);
    w = te__recipes_of(s->models, s->model_count);
    while (te__recipes_next(&w)) w.param->fp8.on = on != 0;
    s->on = on != 0;
    return TE_OK;
}

/* The formats of all that is scaled: an array that the caller frees. */
TE_API te_status te__recipes_formats(te_dtype **formats, const te_recipes *s, te_context *ctx) {
    const size_t n = (size_t)s->count;
    te_dtype *f = (te_dtype *)calloc(3 * n + 1, sizeof *f);
    te__recipe_walk w = te__recipes_of(s->models, s->model_count);
    TE_REQUIRE(f, ctx, TE_ERROR_MEMORY, "recipes: cannot allocate %zu bytes", 3 * n * sizeof *f);
    for (size_t i = 0; te__recipes_next(&w); i++)
        f[i] = f[n + i] = TE_e4m3, f[2 * n + i] = s->models[w.model]->plan->fp8->gradients;
    *formats = f;
    return TE_OK;
}
/* Bind to memory (target memory, te_recipes_bytes, aligned to TE_ALIGN) and to the models as they are bound now, cast
 * the weights, and switch the recipes on. Waits for the stream. Errors: null pointers, a model that is not bound or
 * listed twice, a history that is not allowed, memory too small or misaligned. */
TE_IF_USED TE_API te_status te_recipes_init(te_recipes *s, void *memory, size_t bytes, te_model *const *models,
                                            int count, const te_recipes_config *config, te_context *ctx) {
    TE_TRY(te__models_bound(models, count, "recipes", ctx));
    TE_REQUIRE(s && config, ctx, TE_ERROR_NULL, "recipes: the struct or the config is null");
    TE_REQUIRE(config->history >= 1 && config->history <= TE_SCALES_MOST_HISTORY, ctx, TE_ERROR_VALUE,
               "recipes: a history of %d steps; it must be 1 to %d", config->history, (int)TE_SCALES_MOST_HISTORY);
    const te_scale_rule own = te__recipes_own_rule(config);
    TE_TRY(te__scale_rule_check(&config->rule, "recipes", ctx));
    TE_TRY(te__scale_rule_check(&own, "recipes", ctx));
    TE_REQUIRE(config->ranks == 1 || config->ranks == te_world_group(ctx)->size, ctx, TE_ERROR_VALUE,
               "recipes: ranks is %d, and there are %d; it is that or 1", config->ranks, te_world_group(ctx)->size);
    te__recipe_walk w = te__recipes_of(models, count);
    while (te__recipes_next(&w))
        TE_REQUIRE(w.param->data, ctx, TE_ERROR_STATE, "recipes: %s.%s has no memory; te_tie it to another parameter",
                   w.param->op, w.param->field);
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
    char *at = (char *)memory + l.weights;
    w = te__recipes_of(models, count);
    for (int i = 0; te__recipes_next(&w); i++) {
        te_fp8_product *f = &w.param->fp8;
        const te__recipe_weight size = te__recipe_weight_of(w.param, w.recipe); /* all of it is written by the cast */
        f->scales = &s->scales, f->own = own, f->common = config->ranks == te_world_group(ctx)->size;
        f->weight = i, f->x = l.count + i, f->dy = 2 * l.count + i;
        f->data = at, at += size.data;
        f->transposed = at, at += size.transposed;
        f->inverse = (float *)(void *)at, at += size.scales;
        f->transposed_inverse = (float *)(void *)at, at += size.transposed_scales;
        f->updated = 0;
    }
    s->table = (const char *)memory + l.table, s->where = te__weights_where(models, count);
    TE_TRY(te__weights_table((char *)memory + l.table, models, count, ctx));
    te__recipes_begin(s, 0);
    TE_TRY(te_recipes_cast_weights(s, ctx));
    return te_recipes_switch(s, 1, ctx);
}

/* For a checkpoint, behind its load: weights, and the scales for them, are other ones. Scales of gradients that were in
 * another format become those of this one. Waits for the stream. */
TE_API te_status te_recipes_loaded(te_recipes *s, int begun, te_context *ctx) {
    te_dtype *formats = 0;
    TE_TRY(te__recipes_check(s, ctx));
    TE_TRY(te__recipes_formats(&formats, s, ctx));
    const te_status status = te_scales_reformat(&s->scales, formats, ctx);
    free(formats);
    TE_TRY(status);
    te__recipes_begin(s, begun);
    return te__recipes_over_weights(s, 1, 0, ctx);
}

/* What a step refuses, before it enqueues anything. */
TE_API te_status te__recipes_check_step(const te_recipes *s, te_context *ctx) {
    TE_TRY(te__recipes_check(s, ctx));
    return te__scale_rule_check(&s->config.rule, "recipes", ctx);
}
/* rest: as te__recipes_over_weights has it. */
TE_IF_USED TE_API te_status te__recipes_go_on(te_recipes *s, int rest, te_context *ctx) {
    const int first = !s->begun && s->on, delayed = (s->begun || first) && s->on && !s->config.current;
    TE_TRY(te__recipes_over_weights(s, 0, rest, ctx));
    if (first && delayed && s->config.ranks > 1) TE_TRY(te_scales_recall(&s->scales, s->count, 2 * s->count, ctx));
    TE_TRY(te__recipes_reduce(s, delayed ? 3 * s->count : s->count, ctx));
    if (first) te__recipes_begin(s, 1);
    if (delayed) TE_TRY(te_scales_update(&s->scales, s->count, 2 * s->count, &s->config.rule, ctx));
    return te__recipes_cast(s, rest, ctx);
}
/* Enqueue what comes behind a step of the optimizer: the scales of fp8_delayed for the next one, in one kernel for all
 * tensors, and the weights in FP8. Of several ranks all call it. */
TE_IF_USED TE_API te_status te_recipes_step(te_recipes *s, te_context *ctx) {
    TE_TRY(te__recipes_check_step(s, ctx));
    return te__recipes_go_on(s, 0, ctx);
}

#endif
