/* params.h -- the parameters of several models as one list of tensors, cut into chunks: what the gradient norm and the
 * optimizer launch one block each for.
 *
 * Do this:
 *     te_param_walk w = te_params_of(models, 2);
 *     while (te_params_next(&w)) use(w.param, w.model);         // without tied ones, whose memory is another's, and
 *                                                               // without frozen ones (plan/freeze.h)
 */
#ifndef TE_PARAMS_H
#define TE_PARAMS_H

#include "../core/table.h"  /* te_chunk_tensor, TE_KERNEL, for those who include this */
#include "../plan/freeze.h" /* te_model, te_param, te_freeze */

/* ---- a walk over the parameters of several models, tied and frozen ones left out --------------------------------- */

typedef struct te_param_walk {
    te_model *const *models;
    int count, model, index; /* models; where the walk is */
    te_param *param;         /* the parameter of the last te_params_next */
} te_param_walk;

TE_API te_param_walk te_params_of(te_model *const *models, int count) {
    te_param_walk w;
    w.models = models, w.count = models ? count : 0, w.model = 0, w.index = -1, w.param = 0;
    return w;
}
/* Go to the next parameter; 0 if there is none. */
TE_API int te_params_next(te_param_walk *w) {
    for (; w->model < w->count; w->model++, w->index = -1)
        while (w->models[w->model] && ++w->index < w->models[w->model]->param_count) {
            w->param = &w->models[w->model]->param[w->index];
            if (!w->param->tied && !w->param->frozen) return 1;
        }
    return 0;
}

/* A number that changes when one of the models is bound again, elsewhere, or other parameters are frozen. */
TE_API uint64_t te__params_where(te_model *const *models, int count) {
    uint64_t sum = 1;
    te_param_walk w = te_params_of(models, count);
    while (te_params_next(&w))
        sum = (sum * 31 + (uint64_t)(uintptr_t)w.param->data) * 31 + (uint64_t)(uintptr_t)w.param->grad;
    return sum;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* A part of a buffer: where it starts; *at moves behind it. */
TE_API size_t te__part(size_t *at, size_t bytes) {
    const size_t start = *at;
    *at += (bytes + TE_ALIGN - 1) / TE_ALIGN * TE_ALIGN;
    return start;
}
/* The context is of this target, and the models are bound, each once. */
TE_API te_status te__models_bound(te_model *const *models, int count, const char *who, te_context *ctx) {
    TE_TRY(te_check_target(ctx, who));
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
/* Everything an optimizer asks of its models: bound, with gradients, aligned, each once, not too large. */
TE_API te_status te__models_check(te_model *const *models, int count, const char *who, te_context *ctx) {
    TE_TRY(te__models_bound(models, count, who, ctx));
    int64_t total = 0;
    for (int i = 0; i < count; i++) TE_TRY(te__check_trains(models[i]->plan, ctx));
    te_param_walk w = te_params_of(models, count);
    while (te_params_next(&w)) {
        const te_param *p = w.param;
        const char *model = models[w.model]->plan->name;
        TE_REQUIRE(p->rows > 0 && p->cols > 0, ctx, TE_ERROR_SHAPE, "%s: model %d (%s) %s.%s is %lld x %lld", who,
                   w.model, model, p->op,
                   p->field, (long long)p->rows, (long long)p->cols);
        const int fits = p->rows <= (INT64_C(1) << 41) / p->cols && (total += p->rows * p->cols) <= INT64_C(1) << 41;
        TE_REQUIRE(fits, ctx, TE_ERROR_OVERFLOW, "%s: more than 2^41 elements with model %d (%s) %s.%s, %lld x %lld",
                   who,
                   w.model, model, p->op, p->field, (long long)p->rows, (long long)p->cols);
        TE_REQUIRE(p->data && p->grad, ctx, TE_ERROR_NULL, "%s: model %d (%s) %s.%s has no %s", who, w.model, model,
                   p->op, p->field,
                   p->data ? "gradient; bind the model with a gradient buffer" : "memory");
        TE_REQUIRE((uintptr_t)p->data % TE_ACCESS == 0 && (uintptr_t)p->grad % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
                   "%s: model %d (%s) %s.%s is not aligned to %d bytes", who, w.model, model, p->op, p->field,
                   (int)TE_ACCESS);
    }
    return TE_OK;
}
/* A buffer that a caller hands over, for what belongs to these models; it lies apart from theirs. */
TE_API te_status te__memory_check(const void *memory, size_t bytes, size_t needed, te_model *const *models, int count,
                                  const char *who, te_context *ctx) {
    TE_REQUIRE(memory, ctx, TE_ERROR_NULL, "%s: memory is null", who);
    TE_REQUIRE((uintptr_t)memory % TE_ALIGN == 0, ctx, TE_ERROR_ALIGNMENT, "%s: memory must be aligned to %d bytes",
               who, (int)TE_ALIGN);
    TE_REQUIRE(bytes >= needed, ctx, TE_ERROR_MEMORY, "%s: memory has %zu bytes, %zu are needed", who, bytes, needed);
    for (int i = 0; i < count; i++) {
        const te_model *m = models[i];
        const size_t sizes[2] = {m->param_bytes, (size_t)m->grad_elements * sizeof(float)};
        const uintptr_t at = (uintptr_t)memory, own[2] = {(uintptr_t)m->params, (uintptr_t)m->grads};
        for (int k = 0; k < 2; k++)
            TE_REQUIRE(!own[k] || at + needed <= own[k] || own[k] + sizes[k] <= at, ctx, TE_ERROR_VALUE,
                       "%s: memory overlaps the %s of model %d (%s)", who, k ? "gradients" : "parameters", i,
                       models[i]->plan->name);
    }
    return TE_OK;
}

#endif
