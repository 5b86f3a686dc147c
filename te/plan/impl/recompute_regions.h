/* recompute_regions.h -- regions of a list whose forward backward runs again (te/ops/recompute.h): what the ops before
 * a region's last one save lies in the workspace, and only while the region is open.
 */
#ifndef TE_RECOMPUTE_REGIONS_H
#define TE_RECOMPUTE_REGIONS_H

#include "storage.h" /* te_run */

/* Memory for what region k saves. Forward takes it as well: its steps store where they would if all of it were saved.
 */
TE_API te_status te__recompute_open(te_run *r, int k) {
    const te_recompute_region *s = &r->plan->region[k];
    const size_t bytes = te__place(r, (char *)(uintptr_t)TE_ALIGN, 0, s->first, s->last, k);
    te_value v = te_no_value();
    TE_TRY(te__acquire_bytes(r, &v, bytes));
    te__set_root(r, &r->region[k], v);
    (void)te__place(r, (char *)v.data, 0, s->first, s->last, k);
    return TE_OK;
}
TE_API void te__recompute_close(te_run *r, int k) {
    (void)te__place(r, 0, 0, r->plan->region[k].first, r->plan->region[k].last,
                    -1); /* nowhere, but for the forks that it begins with */
    te__set_root(r, &r->region[k], te_no_value());
}

/* A backward that stops before the beginning of the list may leave a region open. */
TE_API void te__recompute_close_all(te_run *r) {
    for (int k = 0; k < r->plan->region_count; k++)
        if (r->region[k].data) te__recompute_close(r, k);
}

/* The forward steps [*from, *to) that backward runs again for region k: up to the last one that saves something. */
TE_API void te__recompute_steps(const te_run *r, int k, int *from, int *to) {
    const te_plan *plan = r->plan;
    int i = 0;
    while (i < plan->forward_count && plan->forward[i].op[0] < plan->region[k].first) i++;
    for (*from = *to = i; i < plan->forward_count && plan->forward[i].op[0] < plan->region[k].last; i++)
        for (int j = 0; j < plan->forward[i].count; j++)
            if (te__is_lost(plan, r->policy[0], k, plan->forward[i].op[j])) *to = i + 1;
}

/* In backward: fill the memory of region k again, by a forward run that shares all addresses with this one. The output
 * of the region's last op is saved already: here it goes to the workspace, and its row statistics nowhere. */
TE_API te_status te__recompute_run(te_run *r, int k) {
    const te_recompute_region *s = &r->plan->region[k];
    int from, to;
    TE_TRY(te__recompute_open(r, k));
    te__recompute_steps(r, k, &from, &to);
    te_run forward = *r;
    forward.pass = TE_FORWARD, forward.current = te_input_of(r, s->first);
    forward.y.data = 0, forward.act[s->last] = 0, forward.stats[s->last] = 0;
    for (int i = from; i < to; i++) {
        TE_TRY(r->plan->forward[i].run(&forward, &r->plan->forward[i]));
        te__pool_sweep(&forward.pool);
    }
    te_set_current(&forward, te_no_value());
    te__pool_sweep(&forward.pool);
    r->pool = forward.pool;
    memcpy(r->saved_transposed, forward.saved_transposed, sizeof r->saved_transposed);
    return TE_OK;
}

/* Before and after a step. A forward step lies within a region or outside, a backward step may reach into several. */
TE_API te_status te__recompute_enter(te_run *r, const te_step *step) {
    for (int k = 0; r->pass != TE_INFER && k < r->plan->region_count; k++)
        for (int j = 0; j < step->count && !r->region[k].data; j++)
            if (r->plan->region[k].first <= step->op[j] && step->op[j] <= r->plan->region[k].last)
                TE_TRY(r->pass == TE_FORWARD ? te__recompute_open(r, k) : te__recompute_run(r, k));
    return TE_OK;
}
TE_API void te__recompute_leave(te_run *r, const te_step *step) {
    for (int k = 0; r->pass != TE_INFER && k < r->plan->region_count; k++)
        for (int j = 0; j < step->count && r->region[k].data; j++)
            if (step->op[j] == (r->pass == TE_FORWARD ? r->plan->region[k].last : r->plan->region[k].first))
                te__recompute_close(r, k);
}

#endif
