/* freeze.h -- parameters that are not trained: backward launches no kernel for their gradients alone, and the gradient
 * norm, optimizers and the sums over ranks leave them out. What else backward gives has the bits that it has without.
 *
 * Do this:
 *     TE_TRY(block_bind(&block, params, 0, &ctx));                  // no gradients yet
 *     TE_TRY(te_freeze(&block.model, 0, 0, &ctx));                  // all; then "proj", or what one would train
 *     TE_TRY(te_unfreeze(&block.model, "proj", "weight", &ctx));
 *     TE_TRY(te_allocate(&ctx, &memory, te_trained_grad_bytes(&block.model)));
 *     TE_TRY(te_bind_trained_grads(&block.model, (float *)memory, &ctx));
 *
 * Gradients that are bound so have memory for what trains alone. Bound by <model>_bind they lie as the parameters do,
 * those of frozen ones unused, and any of them may be frozen and trained again between steps; an optimizer is
 * initialised anew then. Frozen parameters take no moments and no master weights. To bind an instance trains all of it
 * but those.
 *
 * What never trains says so in the list: (frozen_linear, ..) in place of (linear, ..). It is frozen from the start,
 * cannot be trained, and forward saves no x for its gradient, which it does whatever is frozen here.
 *
 * A tied parameter trains as its owner does. A backward ends where nothing is left to compute: if dx is not wanted, the
 * ops in front of the first parameter that trains cost nothing.
 */
#ifndef TE_FREEZE_H
#define TE_FREEZE_H

#include "bind.h" /* te_model, te__check_bound */

/* Whether these names are p's; null: any. */
TE_API int te__is_named(const te_param *p, const char *op, const char *field) {
    return (!op || !strcmp(p->op, op)) && (!field || !strcmp(p->field, field));
}
/* The parameters of op `op`, null: of all ops, called `field`, null: all. Those that are tied follow their owners,
 * those of a frozen_linear stay frozen. */
TE_API te_status te__set_frozen(te_model *m, const char *op, const char *field, int frozen, const char *who,
                                te_context *ctx) {
    int named = 0, own = 0, fixed = 0;
    TE_TRY(te__check_context(ctx, who));
    TE_REQUIRE(m && m->plan, ctx, TE_ERROR_NULL, "%s: the instance is null or not bound", who);
    TE_TRY(te__check_bound(m->plan, m, ctx));
    for (int i = 0; i < m->param_count; i++)
        if (te__is_named(&m->param[i], op, field))
            named++, own += !m->param[i].tied, fixed += m->param[i].fixed;
    TE_REQUIRE(named, ctx, TE_ERROR_VALUE, "%s: %s has no parameter %.60s.%.60s", who, m->plan->name, op ? op : "*",
               field ? field : "*");
    TE_REQUIRE(own, ctx, TE_ERROR_VALUE, "%s: %s: %.60s.%.60s is tied, and trains as the parameter that owns it does",
               who, m->plan->name, op ? op : "*", field ? field : "*");
    TE_REQUIRE(frozen || own > fixed, ctx, TE_ERROR_VALUE,
               "%s: %s: %.60s.%.60s belongs to a frozen_linear, of which forward keeps no x for a gradient", who,
               m->plan->name, op ? op : "*", field ? field : "*");
    for (int i = 0; i < m->param_count; i++) {
        te_param *p = &m->param[i];
        if (te__is_named(p, op, field) && !p->tied) p->frozen = frozen || p->fixed;
    }
    return TE_OK;
}
TE_API te_status te_freeze(te_model *m, const char *op, const char *field, te_context *ctx) {
    return te__set_frozen(m, op, field, 1, "te_freeze", ctx);
}
/* Train them again: what has no memory for its gradient only once te_bind_trained_grads was called again. */
TE_API te_status te_unfreeze(te_model *m, const char *op, const char *field, te_context *ctx) {
    return te__set_frozen(m, op, field, 0, "te_unfreeze", ctx);
}

/* ---- gradients of what trains, without room for the rest --------------------------------------------------------- */

/* Walk the parameters that train; grads null: only count. Returns elements, gaps included. */
TE_API int64_t te__place_trained(const te_model *m, float *grads) {
    int64_t at = 0;
    for (int i = 0; i < m->param_count; i++) {
        te_param *p = &m->param[i];
        const int trains = !p->tied && !p->frozen;
        if (grads) p->trains = 1, p->grad = trains ? grads + at : 0;
        if (trains) at += te_round_up(p->rows * p->cols, TE_PARAM_ALIGN);
    }
    return at;
}
/* Bytes of gradients of the parameters that are not frozen; 0, if there are none or m is not bound. */
TE_API size_t te_trained_grad_bytes(const te_model *m) {
    if (!m || !m->plan || (m->at && m->at != m)) return 0;
    return (size_t)te__place_trained(m, 0) * sizeof(float);
}
/* Bind gradients (te_trained_grad_bytes, aligned to TE_ALIGN) of the parameters that are not frozen, in list order.
 * Before te_tie. Contents are left as they are. */
TE_API te_status te_bind_trained_grads(te_model *m, float *grads, te_context *ctx) {
    TE_TRY(te__check_context(ctx, "te_bind_trained_grads"));
    TE_REQUIRE(m && m->plan, ctx, TE_ERROR_NULL, "te_bind_trained_grads: the instance is null or not bound");
    TE_TRY(te__check_bound(m->plan, m, ctx));
    const char *name = m->plan->name;
    const size_t bytes = te_trained_grad_bytes(m), param_bytes = te_plan_param_bytes(m->plan);
    const uintptr_t first = (uintptr_t)m->params, second = (uintptr_t)grads;
    TE_REQUIRE(grads, ctx, TE_ERROR_NULL, "%s: grads is null", name);
    TE_REQUIRE(second % TE_ALIGN == 0, ctx, TE_ERROR_ALIGNMENT, "%s: grads must be aligned to %d bytes", name,
               (int)TE_ALIGN);
    TE_REQUIRE(first + param_bytes <= second || second + bytes <= first, ctx, TE_ERROR_VALUE,
               "%s: params overlaps grads", name);
    for (int i = 0; i < m->param_count; i++)
        TE_REQUIRE(!m->param[i].with, ctx, TE_ERROR_STATE,
                   "%s: %s.%s is tied already; bind the gradients first, then tie it again", name, m->param[i].op,
                   m->param[i].field);
    m->grads = grads, m->grad_elements = te__place_trained(m, grads);
    return TE_OK;
}

#endif
