/* collective_run.h -- the step of a collective (collective.h). */
#ifndef TE_COMM_COLLECTIVE_RUN_H
#define TE_COMM_COLLECTIVE_RUN_H

#include "../plan/check.h" /* te_run, te_output, te_gradient */
#include "scatter.h"       /* te__late_product */

typedef te_status (*te_collective_fn)(const te_group *g, void *y, const void *x, int64_t count, te_dtype dtype,
                                      te_context *ctx);
TE_API te_status te__collective_begin(te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    TE_REQUIRE(!r->batch || r->ctx->comm, r->ctx, TE_ERROR_STATE,
               "%s: (%s, %s) needs the ranks of a group; te_comm_create makes them", r->plan->name, op->kind, op->name);
    return TE_OK;
}
/* y becomes what is made of `now`. The elements that a rank has are the fewer of the two sides. */
TE_API te_status te__collective_to(te_run *r, const te_step *s, te_value y, te_collective_fn call) {
    const te_value x = r->now;
    if (call == te_group_all_gather && te_leaves_rows(r, s)) {
        if (!r->dry) TE_TRY(te_peers_check(r->tensor, r->ctx));
        te_set_late(r, TE_LATE_rows, x);
    } else if (y.p && x.p && !r->dry)
        TE_TRY(call(r->tensor, y.p, x.p, te_min(x.rows, y.rows) * y.cols, y.dtype, r->ctx));
    te_set_now(r, y);
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
/* A reduce_scatter. kernel: that of the product before it and the sum; null: there is none. */
TE_API te_status te__adding_run(te_run *r, const te_step *s, te_hopper_kernel *kernel) {
    const int i = s->op[0], back = r->pass == TE_BACKWARD;
    const te_value x = r->now;
    te_value y;
    int takes = 0;
    TE_TRY(te__collective_begin(r, i));
    TE_TRY(back ? te_gradient(&y, r, s, i) : te_output(&y, r, s, i));
    if (r->late.kind == TE_LATE_product) TE_TRY(te__late_product(&takes, r, y, kernel));
    if (!takes && y.p && x.p && !r->dry)
        TE_TRY(te_group_reduce_scatter(r->tensor, y.p, x.p, te_min(x.rows, y.rows) * y.cols, y.dtype, r->ctx));
    te_set_now(r, y);
    return TE_OK;
}

#endif
