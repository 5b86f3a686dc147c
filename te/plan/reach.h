/* reach.h -- what a backward has to compute: the gradients of parameters that train, of x and of extra inputs where
 * they are wanted. It goes through the list from the end as far as the last op that has one of these, and no further.
 */
#ifndef TE_REACH_H
#define TE_REACH_H

#include "run.h" /* te_run, te__edge_named */

/* Whether op i hands a gradient to the caller, who wants it: of what an extra input brought. */
TE_API int te__gives_edge(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    if (op->edge < 0 || !(r->plan->op[op->edge].flags & TE_IS_INPUT)) return 0;
    const te_edge *e = te__edge_named(r, r->plan->op[op->edge].name);
    return e && e->grad.data;
}
/* te_run.reach of a backward of which dx is wanted or not. A loss that forward has left to it is computed by the
 * last op. Where there is nothing to compute it is the number of ops. */
TE_API int te__reach_of(const te_run *r) {
    const int count = r->plan->op_count;
    if (r->dx.p) return TE_REACH_dx;
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < r->plan->op[i].params; k++)
            if (te_is_trained(&r->param[i][k])) return i;
        if (te__gives_edge(r, i)) return i;
    }
    return r->loss_in_backward ? count - 1 : count;
}
/* Steps of the backward up to there. */
TE_API int te__steps_to_reach(const te_run *r) {
    const te_plan *p = r->plan;
    int n = 0;
    if (r->reach == p->op_count) return 0;
    while (n < p->backward_count && !te_last_step(r, &p->backward[n])) n++;
    return n + 1;
}
TE_API te_status te__check_reach(const te_run *r, const te_model *m) {
    for (int i = 0; i < m->param_count && m->grads; i++) {
        const te_param *p = &m->param[i];
        TE_REQUIRE(p->grad || p->tied || p->frozen, r->ctx, TE_ERROR_STATE,
                   "%s: %s.%s is no longer frozen, and has no memory for a gradient; call te_bind_trained_grads again",
                   r->plan->name, p->op, p->field);
    }
    TE_REQUIRE(r->reach < r->plan->op_count || !m->param_count, r->ctx, TE_ERROR_STATE,
               "%s: backward has nothing to compute: there is no dx, and %s", r->plan->name,
               m->grads ? "all parameters are frozen" : "the instance was bound without gradients");
    return TE_OK;
}

#endif
