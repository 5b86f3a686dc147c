/* param_groups.h -- iterates over the parameters of several models, and defines groups of parameters that have their
 * own learning rate or weight decay.
 *
 * Do this:
 *     te_param_iter it = te_params_of(models, 2);
 *     while (te_params_next(&it)) use(it.param, it.model);      // leaves out tied and frozen parameters
 *
 *     te_param_group groups[3];
 *     groups[0] = te_param_group_of(0, "embedding", 0), groups[0].lr = 0.1f;     // op, kind, field; 0 matches any
 *     groups[1] = te_param_group_of("proj", 0, "weight"), groups[1].weight_decay = 0.0f;
 *     groups[2] = te_param_group_of(0, 0, "bias"), groups[2].lr = 2.0f;
 *     config.groups = groups, config.group_count = 3;                            // config: a te_adamw_config, any rule
 *
 * A parameter belongs to the first group that matches it. A parameter that matches no group uses the config's values. A
 * group that matches no parameter at all is an error, because one of its names is probably misspelt.
 */
#ifndef TE_PARAM_GROUPS_H
#define TE_PARAM_GROUPS_H

#include "../core/target.h"  /* te_chunk_tensor, TE_KERNEL; adamw.h and others need them */
#include "../plan/freeze.h" /* te_model, te_param, te_freeze */

/* ---- iterating over parameters ----------------------------------------------------------------------------------- */

/* An iterator over the parameters of several models, in the order of their lists of ops. Frozen parameters are left
 * out, and tied parameters too, because their memory belongs to another parameter. */
typedef struct te_param_iter {
    te_model *const *models;
    int count;
    int model, index; /* model: the index of the current parameter's model; index: the parameter's index in
                       * te_model.param */
    te_param *param;  /* the current parameter */
} te_param_iter;

TE_API te_param_iter te_params_of(te_model *const *models, int count) {
    te_param_iter it;
    it.models = models, it.count = models ? count : 0, it.model = 0, it.index = -1, it.param = 0;
    return it;
}
/* Go to the next parameter. Returns 0 if no parameter is left. */
TE_API int te_params_next(te_param_iter *it) {
    for (; it->model < it->count; it->model++, it->index = -1)
        while (it->models[it->model] && ++it->index < it->models[it->model]->param_count) {
            it->param = &it->models[it->model]->param[it->index];
            if (!it->param->tied && !it->param->frozen) return 1;
        }
    return 0;
}

/* Return a hash of the addresses of all parameters and gradients. If the hash has changed since a table of these
 * addresses was made, the table is stale: a model was bound to other memory, or other parameters were frozen. */
TE_API uint64_t te__params_fingerprint(te_model *const *models, int count) {
    uint64_t hash = 1;
    te_param_iter it = te_params_of(models, count);
    while (te_params_next(&it))
        hash = (hash * 31 + (uint64_t)(uintptr_t)it.param->data) * 31 + (uint64_t)(uintptr_t)it.param->grad;
    return hash;
}

/* Return the number of writes to all parameters of the models so far. Each te_param counts the writes to its memory. */
TE_API uint64_t te__params_writes(te_model *const *models, int count) {
    uint64_t sum = 0;
    te_param_iter it = te_params_of(models, count);
    while (te_params_next(&it)) sum += it.param->written;
    return sum;
}
/* Count one write to every parameter of the models. */
TE_API void te__params_written(te_model *const *models, int count, te_context *ctx) {
    te_param_iter it = te_params_of(models, count);
    while (te_params_next(&it)) te__param_written(it.param, ctx);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Lay out a buffer part by part. *end: the size of the buffer so far. Each call appends a part of `bytes` bytes,
 * rounded up to a multiple of TE_ALIGN, and returns the part's offset. */
TE_API size_t te__suballocate(size_t *end, size_t bytes) {
    const size_t start = *end;
    *end += (bytes + TE_ALIGN - 1) / TE_ALIGN * TE_ALIGN;
    return start;
}
/* Check that the context is for this target (CUDA or host). Check that each model is bound, has not been copied in
 * memory since it was bound, and is listed only once. */
TE_API te_status te__models_bound(te_model *const *models, int count, const char *who, te_context *ctx) {
    TE_TRY(te__check_target(ctx, who));
    TE_REQUIRE(count >= 0, ctx, TE_ERROR_SHAPE, "%s: %d models", who, count);
    TE_REQUIRE(models || !count, ctx, TE_ERROR_NULL, "%s: the list of models is null", who);
    for (int i = 0; i < count; i++) {
        TE_REQUIRE(models[i] && models[i]->plan && (models[i]->param || !models[i]->param_count), ctx, TE_ERROR_NULL,
                   "%s: model %d is null or not bound to memory", who, i);
        TE_REQUIRE(!models[i]->at || models[i]->at == models[i], ctx, TE_ERROR_STATE,
                   "%s: model %d (%s) was copied since it was bound; bind it where it lies", who, i,
                   models[i]->plan->name);
        for (int k = 0; k < i; k++)
            TE_REQUIRE(models[i] != models[k], ctx, TE_ERROR_VALUE, "%s: model %d (%s) is model %d again", who, i,
                       models[i]->plan->name, k);
    }
    return TE_OK;
}
/* Check what an optimizer requires of its models: each model is bound to aligned memory, has gradients, and is listed
 * only once, and all models together have at most 2^41 elements. */
TE_API te_status te__models_check(te_model *const *models, int count, const char *who, te_context *ctx) {
    TE_TRY(te__models_bound(models, count, who, ctx));
    const int64_t max_elements = INT64_C(1) << 41;
    int64_t total = 0;
    for (int i = 0; i < count; i++) TE_TRY(te__check_trains(models[i]->plan, ctx));
    te_param_iter it = te_params_of(models, count);
    while (te_params_next(&it)) {
        const te_param *p = it.param;
        const char *model = models[it.model]->plan->name;
        TE_REQUIRE(p->rows > 0 && p->cols > 0, ctx, TE_ERROR_SHAPE, "%s: model %d (%s) %s.%s is %lld x %lld", who,
                   it.model, model, p->op, p->field, (long long)p->rows, (long long)p->cols);
        const int fits = p->rows <= max_elements / p->cols && (total += p->rows * p->cols) <= max_elements;
        TE_REQUIRE(fits, ctx, TE_ERROR_OVERFLOW, "%s: more than 2^41 elements with model %d (%s) %s.%s, %lld x %lld",
                   who, it.model, model, p->op, p->field, (long long)p->rows, (long long)p->cols);
        TE_REQUIRE(p->data && p->grad, ctx, TE_ERROR_NULL, "%s: model %d (%s) %s.%s has no %s", who, it.model, model,
                   p->op, p->field, p->data ? "gradient; bind the model with a gradient buffer" : "memory");
        TE_REQUIRE((uintptr_t)p->data % TE_ACCESS == 0 && (uintptr_t)p->grad % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
                   "%s: model %d (%s) %s.%s is not aligned to %d bytes", who, it.model, model, p->op, p->field,
                   (int)TE_ACCESS);
    }
    return TE_OK;
}
/* Check that the caller's buffer is not null, is aligned and large enough, and does not overlap the models' parameters
 * or gradients. */
TE_API te_status te__memory_check(const void *memory, size_t bytes, size_t needed, te_model *const *models, int count,
                                  const char *who, te_context *ctx) {
    TE_REQUIRE(memory, ctx, TE_ERROR_NULL, "%s: memory is null", who);
    TE_REQUIRE((uintptr_t)memory % TE_ALIGN == 0, ctx, TE_ERROR_ALIGNMENT, "%s: memory must be aligned to %d bytes",
               who, (int)TE_ALIGN);
    TE_REQUIRE(bytes >= needed, ctx, TE_ERROR_MEMORY, "%s: memory has %zu bytes, %zu are needed", who, bytes, needed);
    for (int i = 0; i < count; i++) {
        const te_model *m = models[i];
        const size_t sizes[2] = {m->param_bytes, (size_t)m->grad_elements * sizeof(float)};
        const uintptr_t begin = (uintptr_t)memory, theirs[2] = {(uintptr_t)m->params, (uintptr_t)m->grads};
        for (int k = 0; k < 2; k++)
            TE_REQUIRE(!theirs[k] || begin + needed <= theirs[k] || theirs[k] + sizes[k] <= begin, ctx, TE_ERROR_VALUE,
                       "%s: memory overlaps the %s of model %d (%s)", who, k ? "gradients" : "parameters", i,
                       models[i]->plan->name);
    }
    return TE_OK;
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

#define TE_DECAY_OF_CONFIG (-1.0f) /* the value of te_param_group.weight_decay that selects the weight decay of the
                                    * te_adamw_config */

/* The type of a function that the program provides: it returns whether the group contains the parameter p. */
typedef int (*te_group_takes)(const te_model *model, const te_param *p);

/* A group of parameters. A parameter p belongs to the group if op, kind and field match p, and takes(model, p) is 1; a
 * criterion that is null matches every parameter. */
typedef struct te_param_group {
    const char *op, *kind, *field; /* the name of the parameter's op, the op's kind, and the parameter's name in the op,
                                    * such as "proj", "linear", "weight"; null matches any */
    te_group_takes takes;          /* null: any parameter */
    float lr;                      /* factor: the group's learning rate is the schedule's times lr */
    float weight_decay;            /* the weight decay of the group's parameters, including those with a single row.
                                      TE_DECAY_OF_CONFIG: the group does not change the weight decay */
} te_param_group;

TE_API te_param_group te_param_group_of(const char *op, const char *kind, const char *field) {
    te_param_group g;
    g.op = op, g.kind = kind, g.field = field, g.takes = 0, g.lr = 1.0f, g.weight_decay = TE_DECAY_OF_CONFIG;
    return g;
}

/* Return the op that parameter p belongs to. The result is null if no op has the name p->op, which can only happen if
 * the program has filled in te_model.param itself. */
TE_API const te_op *te__op_of_param(const te_model *m, const te_param *p) {
    for (int i = 0; i < m->plan->op_count; i++)
        if (!strcmp(m->plan->op[i].name, p->op)) return &m->plan->op[i];
    return 0;
}
TE_API int te__group_has(const te_param_group *g, const te_model *m, const te_param *p) {
    const te_op *op = te__op_of_param(m, p);
    if (!te__is_named(p, g->op, g->field)) return 0;
    if (g->kind && (!op || strcmp(op->kind, g->kind))) return 0;
    return !g->takes || g->takes(m, p);
}
/* Return the first of the groups that contains parameter p; null if no group contains p. */
TE_API const te_param_group *te__group_of(const te_param_group *groups, int count, const te_model *m,
                                          const te_param *p) {
    for (int i = 0; i < count; i++)
        if (te__group_has(&groups[i], m, p)) return &groups[i];
    return 0;
}

/* Return whether the group matches at least one parameter of the models. Frozen and tied parameters count, too. */
TE_API int te__group_is_used(const te_param_group *g, te_model *const *models, int count) {
    for (int i = 0; i < count; i++)
        for (int k = 0; k < models[i]->param_count; k++)
            if (te__group_has(g, models[i], &models[i]->param[k])) return 1;
    return 0;
}
TE_API te_status te__groups_check(const te_param_group *groups, int n, te_model *const *models, int count,
                                  te_context *ctx) {
    TE_REQUIRE(n >= 0, ctx, TE_ERROR_SHAPE, "adamw: %d groups of parameters", n);
    TE_REQUIRE(groups || !n, ctx, TE_ERROR_NULL, "adamw: the groups of parameters are null");
    for (int i = 0; i < n; i++) {
        const te_param_group *g = &groups[i];
        TE_REQUIRE(g->lr >= 0.0f && g->lr <= 3.402823466e38f, ctx, TE_ERROR_VALUE,
                   "adamw: group %d: lr %g, a factor, must be finite and >= 0", i, (double)g->lr);
        TE_REQUIRE(g->weight_decay == TE_DECAY_OF_CONFIG ||
                       (g->weight_decay >= 0.0f && g->weight_decay <= 3.402823466e38f), ctx, TE_ERROR_VALUE,
                   "adamw: group %d: weight_decay %g must be finite and >= 0, or TE_DECAY_OF_CONFIG", i,
                   (double)g->weight_decay);
        TE_REQUIRE(te__group_is_used(g, models, count), ctx, TE_ERROR_VALUE,
                   "adamw: group %d (op %.60s, kind %.60s, field %.60s) takes none of the models' parameters", i,
                   g->op ? g->op : "*", g->kind ? g->kind : "*", g->field ? g->field : "*");
    }
    return TE_OK;
}

#endif
