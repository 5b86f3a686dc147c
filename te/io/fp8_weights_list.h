/* fp8_weights_list.h -- the parameters of models whose products have their weights in FP8, and the tensors that a file
 * has of them (fp8_weights.h). */
#ifndef TE_FP8_WEIGHTS_LIST_H
#define TE_FP8_WEIGHTS_LIST_H

#include "../optim/recipes.h" /* te__recipe_weight_of */
#include "weights.h"          /* te_named_model, TE_WEIGHTS_NAME */

/* ---- the parameters of several models ---------------------------------------------------------------------------- */

typedef struct te__fp8_walk {
    const te_named_model *models;
    int count, model, op, in_op, next; /* next: the next parameter */
    te_param *param;
    te_recipe recipe; /* none: it is no weight of a product under a recipe */
    int products;     /* of such that lie behind */
} te__fp8_walk;

TE_API te__fp8_walk te__fp8_params_of(const te_named_model *models, int count) {
    te__fp8_walk w;
    memset(&w, 0, sizeof w);
    w.models = models, w.count = models ? count : 0, w.recipe = TE_RECIPE_none;
    return w;
}
/* Go to the next parameter that is not tied; 0 if there is none. */
TE_API int te__fp8_next(te__fp8_walk *w) {
    w->products += w->recipe != TE_RECIPE_none;
    w->recipe = TE_RECIPE_none;
    for (; w->model < w->count; w->model++, w->op = w->in_op = w->next = 0) {
        const te_model *m = w->models[w->model].model;
        for (; m && m->plan && w->op < m->plan->op_count; w->op++, w->in_op = 0)
            while (w->in_op < m->plan->op[w->op].params) {
                w->param = &m->param[w->next++], w->in_op++;
                if (w->param->tied) continue;
                w->recipe = m->plan->op[w->op].recipe;
                return 1;
            }
    }
    return 0;
}
TE_API size_t te__fp8_param_bytes(const te__fp8_walk *w) {
    const te_param *p = w->param;
    const te__recipe_weight size = te__recipe_weight_of(p, w->recipe);
    if (w->recipe != TE_RECIPE_none) return size.data + size.scales;
    return (size_t)te_round_up(p->rows * p->cols * (int64_t)te_dtype_bytes(p->dtype), TE_ALIGN);
}
/* The scales of a weight as a file has them. */
typedef struct te__fp8_shape { int rank; int64_t size[2], count; } te__fp8_shape;
TE_API te__fp8_shape te__fp8_shape_of(const te_param *p, te_recipe recipe) {
    te__fp8_shape s;
    s.rank = TE_IS_TENSORWISE(recipe) ? 1 : 2, s.size[0] = s.size[1] = 1;
    if (TE_IS_ROWWISE(recipe)) s.size[0] = p->rows;
    if (TE_IS_BLOCKWISE(recipe)) s.size[0] = te_fp8_blocks(p->rows), s.size[1] = te_fp8_blocks(p->cols);
    s.count = s.size[0] * s.size[1];
    return s;
}

/* ---- the tensors of a file --------------------------------------------------------------------------------------- */

/* numbers: of scales, on the host. */
typedef struct te__fp8_tensors {
    te_safetensor *tensor;
    char (*name)[TE_WEIGHTS_NAME];
    int count;
    float *numbers;
    int64_t used;
} te__fp8_tensors;

TE_API void te__fp8_tensors_free(te__fp8_tensors *l) { free(l->tensor), free(l->name), free(l->numbers); }
/* Room for all of these models. After an error there is nothing to free. */
TE_API te_status te__fp8_tensors_for(te__fp8_tensors *l, const te_named_model *models, int count, te_context *ctx) {
    size_t tensors = 1, numbers = 1;
    te__fp8_walk w = te__fp8_params_of(models, count);
    memset(l, 0, sizeof *l);
    while (te__fp8_next(&w)) {
        tensors += 3;
        if (w.recipe != TE_RECIPE_none) numbers += (size_t)te__fp8_shape_of(w.param, w.recipe).count + 1;
    }
    l->tensor = (te_safetensor *)calloc(tensors, sizeof *l->tensor);
    l->name = (char (*)[TE_WEIGHTS_NAME])calloc(tensors, sizeof *l->name);
    l->numbers = (float *)calloc(numbers, sizeof *l->numbers);
    if (l->tensor && l->name && l->numbers) return TE_OK;
    te__fp8_tensors_free(l);
    return te_fail(ctx, TE_ERROR_MEMORY, "FP8 weights: cannot allocate for %zu tensors", tensors);
}
/* The next tensor's name, of the walk's parameter: h0.fc1.weight and `end`. */
TE_API te_status te__fp8_name(char **name, te__fp8_tensors *l, const te__fp8_walk *w, const char *end,
                              te_context *ctx) {
    const char *model = w->models[w->model].name;
    *name = l->name[l->count];
    const int n = snprintf(*name, TE_WEIGHTS_NAME, "%s%s%s.%s%s", model, *model ? "." : "", w->param->op,
                           w->param->field, end);
    TE_REQUIRE(n < TE_WEIGHTS_NAME, ctx, TE_ERROR_OVERFLOW, "FP8 weights: the name %.60s.. is too long", *name);
    return TE_OK;
}
/* That of the product's input: h0.fc1.input_scale. */
TE_API te_status te__fp8_input_name(char **name, te__fp8_tensors *l, const te__fp8_walk *w, te_context *ctx) {
    const char *model = w->models[w->model].name;
    *name = l->name[l->count];
    const int n = snprintf(*name, TE_WEIGHTS_NAME, "%s%s%s.input_scale", model, *model ? "." : "", w->param->op);
    TE_REQUIRE(n < TE_WEIGHTS_NAME, ctx, TE_ERROR_OVERFLOW, "FP8 weights: the name %.60s.. is too long", *name);
    return TE_OK;
}
TE_API te_status te__fp8_models(const te_named_model *models, int count, const char *who, te_context *ctx) {
    TE_TRY(te_check_target(ctx, who));
    TE_REQUIRE(models || !count, ctx, TE_ERROR_NULL, "%s: the models are null", who);
    TE_REQUIRE(count >= 0, ctx, TE_ERROR_SHAPE, "%s: %d models", who, count);
    for (int i = 0; i < count; i++) {
        const te_model *m = models[i].model;
        TE_REQUIRE(models[i].name && m && m->plan, ctx, TE_ERROR_NULL, "%s: model %d has no name or is not bound", who,
                   i);
        TE_TRY(te__check_bound(m->plan, m, ctx));
    }
    TE_REQUIRE(te_tensor_group(ctx)->size == 1, ctx, TE_ERROR_VALUE,
               "%s: the ranks of the tensor group have parts of weights", who);
    return TE_OK;
}

#endif
