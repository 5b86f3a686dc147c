/* checkpoint_recipes.h -- loads the scales of FP8 recipes from a checkpoint. The run that saved the file and the run
 * that loads it may have different recipes, or different lengths of the amax histories, or only one of the two runs may
 * have recipes:
 *
 *     the file      the run that loads it       what is loaded
 *     scales        recipes of as many GEMMs    the scales; the most recent entries of each amax history, as many as
 *                                               both histories have
 *     scales        recipes of more or fewer    nothing: the scales are initialised, as by te_recipes_init
 *                   GEMMs
 *     no scales     recipes                     nothing: the scales are initialised
 *     scales        no recipes                  nothing
 *
 * Both tensors of the file, "recipes.begun" and "recipes.scales", are read to host memory and checked there.
 */
#ifndef TE_CHECKPOINT_RECIPES_H
#define TE_CHECKPOINT_RECIPES_H

#include "../../optim/recipes.h" /* te_recipes, te_scales */
#include "../safetensors.h"      /* te_safetensors_find */
#include "checkpoint_tensors.h"  /* te__checkpoint_tensors */

/* Whether the file has scales of recipes. */
TE_API int te__checkpoint_has_scales(const te_safetensors *f) {
    return te_safetensors_find(f, "recipes.begun") || te_safetensors_find(f, "recipes.scales");
}
/* Allocate the host memory into which the file's scales will be read. */
TE_API te_status te__checkpoint_open_scales(te__checkpoint_tensors *l, const te_safetensors *f, te_context *ctx) {
    const te_safetensor *t = te_safetensors_find(f, "recipes.scales");
    l->file = f, l->scales_bytes = t ? (size_t)t->bytes : 0;
    if (!te__checkpoint_has_scales(f)) return TE_OK;
    l->scales = (char *)malloc(l->scales_bytes + 1);
    TE_REQUIRE(l->scales, ctx, TE_ERROR_MEMORY, "checkpoint: cannot allocate %zu bytes", l->scales_bytes);
    return TE_OK;
}
/* Add the tensors "recipes.begun" and "recipes.scales" to the list l. When a checkpoint is saved (l->file is null), the
 * two tensors hold the data of `recipes`, and are added unless `recipes` is null. When a checkpoint is loaded, the two
 * tensors are added if the file has them, and their data will be read to host memory. Returns the number of tensors
 * added. */
TE_API int te__checkpoint_add_scales(te__checkpoint_tensors *l, te_recipes *recipes) {
    if (l->file ? !l->scales : !recipes) return 0;
    void *scales = l->file ? (void *)l->scales : recipes->scales.memory;
    te__checkpoint_add_numbers(l, "recipes.begun", TE_SAFETENSORS_I64, 3, l->recipes);
    te__checkpoint_add_numbers(l, "recipes.scales", TE_SAFETENSORS_U8,
                               (int64_t)(l->file ? l->scales_bytes : recipes->scales.bytes), scales);
    return 2;
}

/* Check the scales that were read from the file, and describe them in *s. The number of GEMMs and the history length
 * must agree with the bytes of the tensor, and all scales must be valid (te__scales_are_valid). */
TE_API te_status te__checkpoint_file_scales(te_scales *s, const te__checkpoint_tensors *l, te_context *ctx) {
    const int64_t begun = l->recipes[0], products = l->recipes[1], history = l->recipes[2];
    const char *path = l->file->path;
    TE_REQUIRE((begun | 1) == 1 && products >= 0 && products <= INT32_MAX / 3 && history >= 1 &&
                   history <= TE_SCALES_MAX_HISTORY, ctx, TE_ERROR_FORMAT,
               "%.120s: recipes.begun is %lld, %lld products, an amax history of %lld steps", path, (long long)begun,
               (long long)products, (long long)history);
    const size_t bytes = te_scales_bytes(3 * (int)products, (int)history);
    TE_REQUIRE(l->scales_bytes == bytes, ctx, TE_ERROR_FORMAT,
               "%.120s: recipes.scales has %zu bytes; %lld products with an amax history of %lld steps have %zu", path,
               l->scales_bytes, (long long)products, (long long)history, bytes);
    TE_TRY(te_scales_bind(s, l->scales, bytes, 3 * (int)products, (int)history, ctx));
    TE_REQUIRE(te__scales_are_valid(s, l->scales), ctx, TE_ERROR_FORMAT,
               "%.120s: recipes.scales has a scale, an amax or an index of the history that cannot be", path);
    return TE_OK;
}
/* Check the file's scales before the models or the optimizer are changed. models[count]: the models of the checkpoint.
 * recipes: the recipes into which the scales will be loaded. If `recipes` is null although the file has scales and a
 * model is under FP8 recipes, the scales would be lost without notice; this loss is an error unless force is 1. */
TE_API te_status te__checkpoint_check_scales(const te__checkpoint_tensors *l, const te_recipes *recipes,
                                             const te_named_model *models, int count, int force, te_context *ctx) {
    te_scales s;
    if (!l->scales) return TE_OK;
    if (recipes) return te__checkpoint_file_scales(&s, l, ctx);
    for (int i = 0; i < count && !force && !l->is_sharded; i++)
        for (int k = 0; k < models[i].model->param_count; k++)
            TE_REQUIRE(!models[i].model->param[k].fp8.scales, ctx, TE_ERROR_VALUE,
                       "%.120s: has the scales of FP8 recipes, and model \"%.40s\" is under recipes: set "
                       "te_checkpoint.recipes, or te_checkpoint.force to begin the scales and their history anew",
                       l->file->path, models[i].name);
    return TE_OK;
}

/* Copy the scales `from` to `to`; both lie in host memory and are for the same number of tensors, but the lengths of
 * their histories may differ. If the history of `to` is shorter, only the most recent entries are copied; if it is
 * longer, zeros precede the copied entries, as in the first steps of a run. */
TE_API void te__scales_resize(const te_scales *to, const te_scales *from) {
    const size_t head = (size_t)((char *)from->history - (char *)from->memory);
    const int kept = to->length < from->length ? to->length : from->length;
    memset(to->memory, 0, to->bytes);
    memcpy(to->memory, from->memory, head); /* In *from and *to, the arrays in front of the histories have the same
                                             * layout, whatever the histories' lengths */
    if (to->length == from->length) {
        memcpy(to->history, from->history, (size_t)from->count * (size_t)from->length * sizeof(float));
        return;
    }
    for (int i = 0; i < from->count; i++) {
        const float *entry = from->history + (int64_t)i * from->length;
        float *newest = to->history + (int64_t)(i + 1) * to->length - kept;
        for (int k = 0; k < kept; k++) newest[k] = entry[(from->at[i] + from->length - kept + k) % from->length];
        to->at[i] = 0;
    }
}
/* Initialise the scales as te_recipes_init does, and cast the weights. Waits for the stream. */
TE_IF_USED TE_API te_status te__recipes_restart(te_recipes *r, te_context *ctx) {
    const te_scales s = r->scales;
    te_dtype *formats = 0;
    TE_TRY(te__recipes_formats(&formats, r, ctx));
    const te_status status = te_scales_init(&r->scales, s.memory, s.bytes, formats, s.count, s.length, ctx);
    free(formats);
    TE_TRY(status);
    te__recipes_set_begun(r, 0);
    return te_recipes_cast_weights(r, ctx);
}
/* Return whether the recipes r need tensorwise scales of x (GEMM inputs) and dy (output gradients), but the file has
 * none. s: the file's scales, in host memory. A run under a recipe such as fp8_block leaves all scales of x and dy at
 * 1, without computing them from an amax, so fp8_delayed must not use them. */
TE_API int te__scales_are_missing(const te_scales *s, const te_recipes *r) {
    const int first = s->count / 3; /* tensors 0 to first - 1 are weights, the others are x and dy */
    int delayed = 0;
    te__recipe_iter it = te__recipe_products(r->models, r->model_count);
    while (te__recipe_next_product(&it)) delayed |= it.recipe == TE_RECIPE_fp8_delayed && !r->config.current;
    if (!delayed) return 0;
    for (int64_t i = (int64_t)first * s->length; i < (int64_t)s->count * s->length; i++)
        if (s->history[i] > 0.0f) return 0;
    for (int i = first; i < s->count; i++)
        if (s->scale[i] != 1.0f || s->amax[i] > 0.0f) return 0;
    return 1;
}
/* Set the scales of the recipes r to the scales of the file, or initialise the scales of r; the table at the head of
 * this header says which. Call this after the weights have been loaded. Waits for the stream. */
TE_IF_USED TE_API te_status te__checkpoint_apply_scales(const te__checkpoint_tensors *l, te_recipes *r,
                                                        te_context *ctx) {
    te_scales from, to;
    if (!l->scales || l->recipes[1] != r->count) return te__recipes_restart(r, ctx);
    TE_TRY(te__checkpoint_file_scales(&from, l, ctx));
    if (l->recipes[0] && te__scales_are_missing(&from, r)) return te__recipes_restart(r, ctx);
    void *state = malloc(r->scales.bytes + 1);
    TE_REQUIRE(state, ctx, TE_ERROR_MEMORY, "checkpoint: cannot allocate %zu bytes", r->scales.bytes);
    te_status status = te_scales_bind(&to, state, r->scales.bytes, r->scales.count, r->scales.length, ctx);
    if (status == TE_OK) {
        te__scales_resize(&to, &from);
        status = te_copy(ctx, r->scales.memory, state, r->scales.bytes);
        const te_status done = te_synchronize(ctx);
        if (status == TE_OK) status = done;
    }
    free(state);
    return status == TE_OK ? te_recipes_loaded(r, (int)l->recipes[0], ctx) : status;
}

#endif
