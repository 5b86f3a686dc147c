/* collective_run.h -- the step of a collective (collective.h). */
#ifndef TE_COMM_COLLECTIVE_RUN_H
#define TE_COMM_COLLECTIVE_RUN_H

#include "../plan/impl/call_checks.h" /* te_run, te_output, te_gradient */
#include "scatter.h"       /* te__late_product */

typedef te_status (*te_collective_fn)(const te_group *g, void *y, const void *x, int64_t count, te_dtype dtype,
                                      te_context *ctx);
TE_API te_status te__collective_begin(te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    TE_REQUIRE(!r->batch || r->ctx->comm, r->ctx, TE_ERROR_STATE,
               "%s: (%s, %s) needs the ranks of a group; te_comm_create makes them", r->plan->name, op->kind, op->name);
    return TE_OK;
}
/* This rank's rows, x, and those of all, y, become FP8 for product i: x by a cast, where the kernel before has not
 * stored it so (te_gathered_consumer). Forward keeps y for backward. */
TE_API te_status te__gather_in_fp8(te_value *x, te_value *y, te_run *r, int i) {
    const te_fp8_product *f = &r->param[i]->fp8;
    const int back = r->pass == TE_BACKWARD;
    const te_value rows = *x;
    te_saved_input kept = te_saved_input_of(r, i);
    if (back) kept.x = 0, kept.inverse = 0;
    y->dtype = back ? r->plan->fp8->gradients : TE_e4m3;
    if (kept.x) *y = te_value_of(kept.x, y->dtype, y->rows, (int)y->cols);
    if (te_is_fp8(rows.dtype)) return TE_OK;
    TE_TRY(te_acquire(r, x, TE_ROWS_shard, (int)rows.cols, y->dtype));
    return r->plan->fp8->cast(r, rows, f, back ? f->dy : f->x, y->dtype, x->data, 0, kept.inverse);
}
/* y becomes what is made of `now`. The elements that a rank has are the fewer of the two sides. */
TE_API te_status te__collective_to(te_run *r, const te_step *s, te_value y, te_collective_fn call) {
    const int gathers = call == te_group_all_gather, next = gathers ? te__gather_consumer(r, s) : -1;
    te_value x = r->current;
    if (next >= 0 && y.data) TE_TRY(te__gather_in_fp8(&x, &y, r, next));
    if (gathers && te_defers_gather(r, s)) {
        if (!r->dry) TE_TRY(te_peers_check(r->tensor, r->ctx));
        te_defer(r, &y, TE_VALUE_deferred_gather, x);
    } else if (y.data && x.data && !r->dry)
        TE_TRY(call(r->tensor, y.data, x.data, te_min(x.rows, y.rows) * y.cols, y.dtype, r->ctx));
    te_set_current(r, y);
    return TE_OK;
}
/* call: null where the value stays as it is. */
TE_API te_status te__collective_run(te_run *r, const te_step *s, te_collective_fn call) {
    const int i = s->op[0], back = r->pass == TE_BACKWARD;
    te_value y;
    TE_TRY(te__collective_begin(r, i));
    if (!call) return TE_OK;
    TE_TRY(back ? te_gradient(&y, r, s, i) : te_output(&y, r, s, i));
    return te__collective_to(r, s, y, call);
}
/* A reduce_scatter. kernels: those of the product before it and the sum; null: there are none. */
TE_API te_status te__adding_run(te_run *r, const te_step *s, te_scatter_kernels *kernels) {
    const int i = s->op[0], back = r->pass == TE_BACKWARD;
    const te_value x = r->current;
    te_value y;
    int takes = 0;
    TE_TRY(te__collective_begin(r, i));
    TE_TRY(back ? te_gradient(&y, r, s, i) : te_output(&y, r, s, i));
    if (r->current.state == TE_VALUE_deferred_product) TE_TRY(te__late_product(&takes, r, y, kernels));
    if (!takes && y.data && x.data && !r->dry)
        TE_TRY(te_group_reduce_scatter(r->tensor, y.data, x.data, te_min(x.rows, y.rows) * y.cols, y.dtype, r->ctx));
    te_set_current(r, y);
    return TE_OK;
}

#endif
