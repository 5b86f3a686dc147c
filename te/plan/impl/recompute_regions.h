/* recompute_regions.h -- spans of a list whose forward backward runs again (te/ops/recompute.h). */
#ifndef TE_RECOMPUTE_REGIONS_H
#define TE_RECOMPUTE_REGIONS_H

#include "storage.h" /* te_run */

/* Memory for what span k keeps. Forward takes it, too: its steps write where they would if all of it were saved. */
TE_API te_status te__recompute_open(te_run *r, int k) {
    const te_recompute_region *s = &r->plan->span[k];
    const size_t bytes = te__place(r, (char *)(uintptr_t)TE_ALIGN, 0, s->first, s->last, k);
    te_value v = te_no_value();
    v.block = te__pool_take(&r->pool, &v.p, bytes);
    TE_REQUIRE(v.block >= 0, r->ctx, TE_ERROR_MEMORY, "%s: more than %d values are alive at once", r->plan->name,
               (int)TE_MAX_LIVE);
    te__set_root(r, &r->span[k], v);
    (void)te__place(r, (char *)v.p, 0, s->first, s->last, k);
    return TE_OK;
}
TE_API void te__recompute_close(te_run *r, int k) {
    (void)te__place(r, 0, 0, r->plan->span[k].first, r->plan->span[k].last,
                    -1); /* nowhere, but for the forks it begins with */
    te__set_root(r, &r->span[k], te_no_value());
}

/* A backward that does not reach the begin of the list may leave a span open. */
TE_API void te__recompute_close_all(te_run *r) {
    for (int k = 0; k < r->plan->span_count; k++)
        if (r->span[k].p) te__recompute_close(r, k);
}

/* The steps [*from, *to) of the forward that span k runs again: as far as the last one that leaves something in it. */
TE_API void te__recompute_steps(const te_run *r, int k, int *from, int *to) {
    const te_plan *plan = r->plan;
    int i = 0;
    while (i < plan->forward_count && plan->forward[i].op[0] < plan->span[k].first) i++;
    for (*from = *to = i; i < plan->forward_count && plan->forward[i].op[0] < plan->span[k].last; i++)
        for (int j = 0; j < plan->forward[i].count; j++)
            if (te__is_lost(r, k, plan->forward[i].op[j])) *to = i + 1;
}

/* In backward: fill the memory of span k again, by a forward of its own that knows where this walk keeps everything.
 * What the span's last op gives is saved already: there its output goes to the workspace, and its row statistics
 * nowhere. */
TE_API te_status te__recompute_run(te_run *r, int k) {
    const te_recompute_region *s = &r->plan->span[k];
    int from, to;
    TE_TRY(te__recompute_open(r, k));
    te__recompute_steps(r, k, &from, &to);
    te_run forward = *r;
    forward.pass = TE_FORWARD, forward.now = te_input_of(r, s->first);
    forward.turned = te_no_value(), forward.measured = forward.unstored = 0;
    forward.y.p = 0, forward.act[s->last] = 0, forward.stats[s->last] = 0;
    for (int i = from; i < to; i++) {
        TE_TRY(r->plan->forward[i].run(&forward, &r->plan->forward[i]));
        te__pool_sweep(&forward.pool);
    }
    te_set_now(&forward, te_no_value());
    te__pool_sweep(&forward.pool);
    r->pool = forward.pool;
    memcpy(r->turned_x, forward.turned_x, sizeof r->turned_x);
    return TE_OK;
}

/* Before and after a step. A step of forward lies within a span or outside, one of backward may reach into several. */
TE_API te_status te__recompute_enter(te_run *r, const te_step *step) {
    for (int k = 0; r->pass != TE_INFER && k < r->plan->span_count; k++)
        for (int j = 0; j < step->count && !r->span[k].p; j++)
            if (r->plan->span[k].first <= step->op[j] && step->op[j] <= r->plan->span[k].last)
                TE_TRY(r->pass == TE_FORWARD ? te__recompute_open(r, k) : te__recompute_run(r, k));
    return TE_OK;
}
TE_API void te__recompute_leave(te_run *r, const te_step *step) {
    for (int k = 0; r->pass != TE_INFER && k < r->plan->span_count; k++)
        for (int j = 0; j < step->count && r->span[k].p; j++)
            if (step->op[j] == (r->pass == TE_FORWARD ? r->plan->span[k].last : r->plan->span[k].first))
                te__recompute_close(r, k);
}

#endif
