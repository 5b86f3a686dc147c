/* executor_begin.h -- how a walk of a plan begins: nothing is known of it but its sizes.
 *
 * Do this:
 *     te_run r = te_run_to_size(plan, TE_FORWARD, rows, TE_USE_on, ctx);
 *     const size_t bytes = te__lay_out(&r, 0);
 */
#ifndef TE_EXECUTOR_BEGIN_H
#define TE_EXECUTOR_BEGIN_H

#include "storage.h" /* te_run */

TE_API void te__begin(te_run *r, const te_plan *plan, te_pass pass, int64_t tokens, int64_t sequences,
                      te_context *ctx) {
    r->plan = plan, r->pass = pass, r->tokens = tokens, r->sequences = sequences, r->ctx = ctx;
    r->memory = te__has_memory(plan) ? tokens : 0, r->room = 0;
    r->use = TE_USE_as_bound, r->tensor = te_tensor_group(ctx), r->data = te_data_group(ctx);
    r->again.yt = r->again.y = 0, r->again.inverse = 0;
    memset(&r->late, 0, sizeof r->late), r->late.from = te_no_value();
    memset(&r->waiting, 0, sizeof r->waiting), r->waiting.a = r->waiting.b = te_no_value();
    r->measured = r->unstored = 0, r->reach = TE_BACKWARD_STOP_dx, r->watch = 0;
    r->batch = 0, r->dry = 1, r->rng = 0, r->saved = 0, r->take.taken = 0, r->sum_count = r->column_count = 0;
    r->now = r->turned = r->dx = r->dy = te_no_value(), r->ends[0] = r->ends[1] = 0, r->loss_in_backward = 0;
    r->x = te_value_of(0, plan->in_dtype, te_rows_in(r, plan->op[0].in_rows), plan->in);
    r->y = te_value_of(0, plan->out_dtype, te_rows_in(r, te_out_rows(plan)), plan->out);
    r->pool.base = 0, r->pool.high = 0, r->pool.count = 0, r->pool.next_id = 0;
    memset(r->turned_x, 0, sizeof r->turned_x);
    memset(&r->columns, 0, sizeof r->columns);
    memset(&r->sums, 0, sizeof r->sums); /* jobs that are none are arguments, too, and compared (core/launch_cuda.h) */
    for (int i = 0; i < plan->op_count; i++) r->edge[i] = te_no_value(), r->param[i] = 0;
    for (int k = 0; k < plan->span_count; k++) r->span[k] = te_no_value();
}
/* A walk that only asks how large things are. */
TE_API te_run te_run_to_size(const te_plan *plan, te_pass pass, int64_t rows, te_recipe_use use, te_context *ctx) {
    te_run r;
    te__begin(&r, plan, pass, rows, rows, ctx);
    r.use = use;
    return r;
}

#endif
