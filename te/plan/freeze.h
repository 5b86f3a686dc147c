/* freeze.h -- parameters that are not trained: backward launches no kernel that serves only the gradients of these
 * parameters, and the gradient norm, optimizers and reductions over ranks skip these parameters. The gradients of all
 * other parameters are bitwise identical with and without freezing.
 *
 * Do this:
 *     TE_TRY(block_bind(&block, params, 0, &ctx));                  // no gradients yet
 *     TE_TRY(te_freeze(&block.model, 0, 0, &ctx));                  // all of them,
 *     TE_TRY(te_unfreeze(&block.model, "proj", "weight", &ctx));    // but for this one
 *     TE_TRY(te_allocate(&ctx, &memory, te_trained_grad_bytes(&block.model)));
 *     TE_TRY(te_bind_trained_grads(&block.model, (float *)memory, &ctx));
 *
 * te_bind_trained_grads needs memory for the gradients of the trained parameters only. If <model>_bind was called with
 * a gradient buffer, which has memory for all parameters, any parameter may be frozen or unfrozen between optimizer
 * steps; the optimizer must then be initialised again. Frozen parameters have no moments and no master weights. Binding
 * an instance again unfreezes its parameters.
 *
 * If a weight is never to be trained, declare its op as (frozen_linear, ..) instead of (linear, ..). Forward then does
 * not save the op's input, because only the weight's gradient would need this input. For a (linear, ..), forward saves
 * the input even after te_freeze.
 *
 * A tied parameter is trained if the parameter whose memory it shares is trained. Backward runs from the end of the
 * list back to the first op that has a gradient to compute, and stops there. Therefore, if dx is not wanted, the
 * backward of the ops before the first trained parameter costs nothing.
 */
#ifndef TE_FREEZE_H
#define TE_FREEZE_H

#include "bind.h" /* te_model, te__check_bound */

/* Return whether p is the parameter named `field`, e.g. "weight", of the op named `op`. If `op` or `field` is null,
 * every name matches. */
TE_API int te__is_named(const te_param *p, const char *op, const char *field) {
    return (!op || !strcmp(p->op, op)) && (!field || !strcmp(p->field, field));
}
/* Freeze (frozen = 1) or unfreeze (frozen = 0) the parameters called `field` of the op named `op`. If `field` or `op`
 * is null, all names match. Tied parameters are skipped, because a tied parameter is trained if and only if the
 * parameter whose memory it uses is trained. The parameters of a frozen_linear stay frozen. `who` is the caller's name,
 * for messages. */
TE_API te_status te__set_frozen(te_model *m, const char *op, const char *field, int frozen, const char *who,
                                te_context *ctx) {
    int named = 0, untied = 0, fixed = 0;
    TE_TRY(te__check_context(ctx, who));
    TE_REQUIRE(m && m->plan, ctx, TE_ERROR_NULL, "%s: the instance is null or not bound", who);
    TE_TRY(te__check_bound(m->plan, m, ctx));
    for (int i = 0; i < m->param_count; i++)
        if (te__is_named(&m->param[i], op, field))
            named++, untied += !m->param[i].tied, fixed += m->param[i].fixed;
    TE_REQUIRE(named, ctx, TE_ERROR_VALUE, "%s: %s has no parameter %.60s.%.60s", who, m->plan->name, op ? op : "*",
               field ? field : "*");
    TE_REQUIRE(untied, ctx, TE_ERROR_VALUE,
               "%s: %s: %.60s.%.60s is tied, and trains as the parameter that owns it does", who, m->plan->name,
               op ? op : "*", field ? field : "*");
    TE_REQUIRE(frozen || untied > fixed, ctx, TE_ERROR_VALUE,
               "%s: %s: %.60s.%.60s belongs to a frozen_linear, for which forward saves no input", who,
               m->plan->name, op ? op : "*", field ? field : "*");
    for (int i = 0; i < m->param_count; i++) {
        te_param *p = &m->param[i];
        if (te__is_named(p, op, field) && !p->tied) p->frozen = frozen || p->fixed;
    }
    return TE_OK;
}
/* Stop training the parameters called `field` ("weight") of the op named `op` ("fc1"). If `field` or `op` is null, all
 * names match. TE_ERROR_VALUE: no parameter has these names, or all parameters with these names are tied. */
TE_API te_status te_freeze(te_model *m, const char *op, const char *field, te_context *ctx) {
    return te__set_frozen(m, op, field, 1, "te_freeze", ctx);
}
/* Resume training the parameters called `field` of the op named `op`. If `field` or `op` is null, all names match. If
 * te_bind_trained_grads bound the gradients, call te_bind_trained_grads again afterwards, because the gradients of the
 * unfrozen parameters have no memory yet. TE_ERROR_VALUE: no parameter has these names, or all parameters with these
 * names are tied or belong to a frozen_linear. */
TE_API te_status te_unfreeze(te_model *m, const char *op, const char *field, te_context *ctx) {
    return te__set_frozen(m, op, field, 0, "te_unfreeze", ctx);
}

/* ---- memory for the gradients of trained parameters alone -------------------------------------------------------- */

/* Set the gradient pointer of each trained parameter to the address of the parameter's gradient in the buffer `grads`;
 * if `grads` is null, set no pointers. Returns the number of elements that the gradients take, including the gaps
 * between them. */
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
/* Return the bytes that the gradients of all parameters that are not frozen take together. Returns 0 if all parameters
 * are frozen, or if m is not bound. */
TE_API size_t te_trained_grad_bytes(const te_model *m) {
    if (!m || !m->plan || (m->at && m->at != m)) return 0;
    return (size_t)te__place_trained(m, 0) * sizeof(float);
}
/* Bind the gradients of the parameters that are not frozen, in list order. `grads` points to te_trained_grad_bytes
 * bytes, aligned to TE_ALIGN; this call does not change their contents. Call te_bind_trained_grads before te_tie.
 * TE_ERROR_STATE: m is not bound, or a parameter is already tied; TE_ERROR_VALUE: `grads` overlaps the parameters. */
TE_API te_status te_bind_trained_grads(te_model *m, float *grads, te_context *ctx) {
    TE_TRY(te__check_context(ctx, "te_bind_trained_grads"));
    TE_REQUIRE(m && m->plan, ctx, TE_ERROR_NULL, "te_bind_trained_grads: the instance is null or not bound");
    TE_TRY(te__check_bound(m->plan, m, ctx));
    const char *name = m->plan->name;
    const size_t bytes = te_trained_grad_bytes(m), param_bytes = te_plan_param_bytes(m->plan);
    const uintptr_t first = (uintptr_t)m->params, second = (uintptr_t)grads;
    TE_REQUIRE(!m->shards, ctx, TE_ERROR_STATE, "%s: its gradients are sharded (te_fsdp_init)", name);
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
