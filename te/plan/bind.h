/* bind.h -- an instance's parameters and gradients: how large their two buffers are, and where each tensor lies in
 * them. */
#ifndef TE_BIND_H
#define TE_BIND_H

#include "model.h" /* te_plan, te_model, te_param */

/* Parameters lie in one buffer in list order, gradients in another; a tensor starts at a multiple of this many
 * elements, at the same element of both. So the optimizer, the gradient norm, a checkpoint and an all-reduce walk flat
 * memory. */
enum { TE_PARAM_ALIGN = 128 };

/* A plan whose widths are still symbols is refused. */
TE_API te_status te__check_dims(const te_plan *plan, te_context *ctx) {
    TE_REQUIRE(!plan->takes_dims, ctx, TE_ERROR_STATE,
               "%s: its widths are known only at run time; call %s_set_dims first", plan->name, plan->name);
    return TE_OK;
}

/* Elements of the parameter buffer, the gaps between tensors included; 0 where widths are not known yet. */
TE_API int64_t te_plan_param_elements(const te_plan *plan) {
    int64_t n = 0;
    for (int i = 0; !plan->takes_dims && i < plan->op_count; i++)
        for (int k = 0; k < plan->op[i].params; k++) {
            const te_param_info *p = &plan->op[i].param[k];
            if (!p->tied) n += te_round_up(p->rows * p->cols, TE_PARAM_ALIGN);
        }
    return n;
}
TE_API size_t te_plan_param_bytes(const te_plan *plan) {
    return (size_t)te_plan_param_elements(plan) * te_dtype_bytes(plan->dtype);
}
TE_API size_t te_plan_grad_bytes(const te_plan *plan) { return (size_t)te_plan_param_elements(plan) * sizeof(float); }

/* Bind an instance to its memory: params (te_plan_param_bytes), grads (te_plan_grad_bytes; null for inference only).
 * Contents are left as they are. */
TE_API te_status te_model_bind(te_model *m, const te_plan *plan, te_param *param, int param_count, void *params,
                               float *grads, te_context *ctx) {
    TE_REQUIRE(m && ctx, ctx, TE_ERROR_NULL, "%s: the instance or the context is null", plan->name);
    TE_TRY(te__check_dims(plan, ctx));
    TE_REQUIRE(params || !te_plan_param_elements(plan), ctx, TE_ERROR_NULL, "%s: params is null", plan->name);
    TE_REQUIRE((uintptr_t)params % TE_ALIGN == 0 && (uintptr_t)grads % TE_ALIGN == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: params and grads must be aligned to %d bytes", plan->name, (int)TE_ALIGN);
    m->plan = plan, m->param = param, m->param_count = param_count;
    int64_t at = 0;
    for (int i = 0; i < plan->op_count; i++)
        for (int k = 0; k < plan->op[i].params; k++, param++) {
            const te_param_info *info = &plan->op[i].param[k];
            param->op = plan->op[i].name, param->field = info->field, param->rows = info->rows,
            param->cols = info->cols;
            param->dtype = plan->dtype;
            param->init = info->init, param->tied = info->tied, param->shared = 0;
            param->data = 0, param->grad = 0;
            memset(&param->fp8, 0, sizeof param->fp8);
            if (info->tied) continue;
            param->data = (char *)params + (size_t)at * te_dtype_bytes(plan->dtype);
            if (grads) param->grad = grads + at;
            at += te_round_up(info->rows * info->cols, TE_PARAM_ALIGN);
        }
    return TE_OK;
}

/* Let `user` (of a tied_linear) be `owner`'s memory. The backward of the user must run before the owner's, as it does
 * when the owner is the embedding of the same network: the user writes the gradient and the owner adds to it. */
TE_API te_status te_tie(te_param *user, te_param *owner, te_context *ctx) {
    TE_REQUIRE(user && owner && owner->data, ctx, TE_ERROR_NULL, "te_tie: a parameter is null or not bound");
    TE_REQUIRE(user->tied, ctx, TE_ERROR_VALUE, "te_tie: %s.%s has memory of its own; declare it as tied_linear",
               user->op, user->field);
    TE_REQUIRE(user->rows == owner->rows && user->cols == owner->cols, ctx, TE_ERROR_SHAPE,
               "te_tie: %s.%s is %lld x %lld, %s.%s is %lld x %lld", user->op, user->field, (long long)user->rows,
               (long long)user->cols, owner->op, owner->field, (long long)owner->rows, (long long)owner->cols);
    TE_REQUIRE(user->dtype == owner->dtype, ctx, TE_ERROR_DTYPE, "te_tie: %s.%s is %s, %s.%s is %s", user->op,
               user->field, te_dtype_name(user->dtype), owner->op, owner->field, te_dtype_name(owner->dtype));
    user->data = owner->data, user->grad = owner->grad, owner->shared = 1;
    return TE_OK;
}

#endif
