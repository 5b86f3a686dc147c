/* executor_begin.h -- a te_run before its first step: nothing is known but the plan, the pass and the number of rows.
 *
 * Do this:
 *     te_run r = te__run_to_size(plan, TE_FORWARD, rows, TE_USE_on, ctx);
 *     const size_t bytes = te__lay_out(&r, 0);
 */
#ifndef TE_EXECUTOR_BEGIN_H
#define TE_EXECUTOR_BEGIN_H

#include "storage.h" /* te_run */

/* Which products run in FP8 from now on; te_run.param says so of TE_USE_as_bound. */
TE_API void te__set_recipe_use(te_run *r, te_recipe_use use) {
    r->use = use;
    if (r->plan->fp8) te__init_policies(r->policy, r->plan, use, r->param);
}
/* No product runs in FP8 yet. */
TE_API void te__begin(te_run *r, const te_plan *plan, te_pass pass, int64_t tokens, int64_t sequences,
                      te_context *ctx) {
    r->plan = plan, r->pass = pass, r->tokens = tokens, r->sequences = sequences, r->ctx = ctx;
    r->memory = te__has_memory(plan) ? tokens : 0, r->capacity = 0;
    r->tensor = te_tensor_group(ctx), r->data = te_data_group(ctx);
    r->batch = 0, r->dry = 1, r->recompute = 0, r->describe = 0;
    memset(&r->deferred, 0, sizeof r->deferred), r->deferred.from = te_no_value();
    memset(&r->deferred_wgrad, 0, sizeof r->deferred_wgrad);
    r->deferred_wgrad.a = r->deferred_wgrad.b = te_no_value();
    r->backward_stop = TE_BACKWARD_STOP_dx, r->watch = 0;
    r->rng = 0, r->saved = 0, r->take.taken = 0, r->sum_count = r->column_count = 0, r->loss_in_backward = 0;
    r->current = r->dx = r->dy = te_no_value(), r->pass_input = r->last_step_input = 0;
    r->x = te_value_of(0, plan->in_dtype, te_rows_in(r, plan->op[0].in_rows), plan->in);
    r->y = te_value_of(0, plan->out_dtype, te_rows_in(r, te_out_rows(plan)), plan->out);
    r->pool.base = 0, r->pool.high = 0, r->pool.count = 0, r->pool.next_id = 0;
    memset(r->saved_transposed, 0, sizeof r->saved_transposed);
    memset(&r->columns, 0, sizeof r->columns);
    memset(&r->sums, 0, sizeof r->sums); /* unused jobs are kernel arguments as well, and compared (graph_replay.h) */
    for (int i = 0; i < plan->op_count; i++) r->edge[i] = te_no_value(), r->param[i] = 0;
    for (int k = 0; k < plan->region_count; k++) r->region[k] = te_no_value();
    r->use = TE_USE_off;
    te__init_policies(r->policy, plan, TE_USE_off, r->param);
}
/* The parameters of this instance. */
TE_API void te__take_params(te_run *r, const te_model *m) {
    te_param *p = m->param;
    for (int i = 0; i < r->plan->op_count; i++) r->param[i] = p, p += r->plan->op[i].params;
}
/* A run that only measures. */
TE_API te_run te__run_to_size(const te_plan *plan, te_pass pass, int64_t rows, te_recipe_use use, te_context *ctx) {
    te_run r;
    te__begin(&r, plan, pass, rows, rows, ctx);
    if (use != TE_USE_off) te__set_recipe_use(&r, use);
    return r;
}

#endif
