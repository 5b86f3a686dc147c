/* gradients.h -- column sums of a backward (dbias, dgamma, ..): kernels leave partial sums, one launch adds those
 * of all steps up at the end (column_reduce.h); and who is told that a gradient is final.
 */
#ifndef TE_GRADIENTS_H
#define TE_GRADIENTS_H

#include "storage.h" /* te_run, te_is_trained */

/* Whether backward adds to the parameter's gradient. */
TE_API int te_accumulates(const te_run *r, const te_param *p) {
    return p->shared || (r->batch && r->batch->accumulate);
}

/* Tell who wants to know it that this backward does not write p's gradient any more. */
TE_API te_status te__notify_final(te_run *r, const te_param *p) {
    return r->watch && !r->dry && te_is_trained(p) ? r->watch->is_final(r->watch, p, r->ctx) : TE_OK;
}
/* Behind a step: of its ops' parameters those that no sum waits for. */
TE_API te_status te__notify_step(te_run *r, const te_step *s) {
    for (int j = 0; r->watch && j < s->count; j++)
        for (int k = 0; k < r->plan->op[s->op[j]].params; k++) {
            const te_param *p = &r->param[s->op[j]][k];
            int waits = 0;
            for (int i = 0; i < r->sum_count; i++) waits |= r->sum_of[i] == p;
            if (!waits) TE_TRY(te__notify_final(r, p));
        }
    return TE_OK;
}
/* Add up all that wait. */
TE_IF_USED TE_API te_status te__reduce_columns_now(te_run *r) {
    const int count = r->sum_count;
    int widest = 0, odd = 0;
    for (int i = 0; i < r->sum_count; i++)
        widest = (int)te_max(widest, r->sums.job[i].width), odd |= r->sums.job[i].width % 2;
    if (widest && !r->dry) {
        const int columns = widest >= TE_SUM_WIDE && !odd ? 2 : 1;
        const te_grid grid = te__grid_of(te_ceil_div(widest, columns * TE_SUM_LANES), r->sum_count);
        if (columns == 2) TE_TRY(te_sum_wide_rows_launch(r->ctx, grid, &r->sums));
        else TE_TRY(te_sum_rows_launch(r->ctx, grid, &r->sums));
    }
    if (r->column_count && !r->dry)
        TE_TRY(te_sum_rows_launch(r->ctx, te__grid_of(1, r->column_count), &r->columns));
    for (int i = 0; i < r->sum_count; i++) te__pool_root(&r->pool, r->partial[i], -1);
    r->sum_count = r->column_count = 0;
    te__pool_sweep(&r->pool);
    for (int i = 0; i < count; i++) TE_TRY(te__notify_final(r, r->sum_of[i]));
    return TE_OK;
}
/* The sum j of a gradient that is one number: of its columns first, at `columns`, then of those. */
TE_API void te__sum_columns(te_run *r, te_sum_job *j, float *columns) {
    te_sum_job *c = &r->columns.job[r->column_count++];
    *c = *j;
    c->partial = columns, c->width = 1, c->count = j->width;
    j->total = columns, j->accumulate = 0;
}
/* Room for `blocks` partial sums of p's gradient, which will be added up before this backward ends, unless p is frozen:
 * the workspace is the same then, and what is left there goes nowhere. most: blocks that
 * the largest batch has; so much is taken always, so that what is reserved for that one serves a smaller one. */
TE_API te_status te_defer_column_sum(te_run *r, float **partial, const te_param *p, int width, int blocks, int most) {
    TE_REQUIRE(r->sum_count < TE_SUM_JOBS, r->ctx, TE_ERROR_STATE, "%s: a row sums more than %d gradients",
               r->plan->name, (int)TE_SUMS_A_STEP);
    void *memory = 0;
    const int is_one = width > 1 && p->rows * p->cols == 1, trains = te_is_trained(p);
    const size_t rows = (size_t)most + (is_one ? 1 : 0);
    const int block = te__pool_take(&r->pool, &memory, rows * (size_t)width * sizeof(float));
    TE_REQUIRE(block >= 0, r->ctx, TE_ERROR_MEMORY, "%s: more than %d values are alive at once", r->plan->name,
               (int)TE_MAX_LIVE);
    te__pool_root(&r->pool, block, 1);
    te_sum_job *j = &r->sums.job[r->sum_count];
    r->sum_of[r->sum_count] = p, r->partial[r->sum_count++] = block;
    *partial = (float *)memory;
    j->partial = *partial, j->total = p->grad, j->width = trains ? width : 0, j->count = blocks,
    j->accumulate = te_accumulates(r, p);
    if (is_one && trains) te__sum_columns(r, j, *partial + (size_t)most * (size_t)width);
    return TE_OK;
}

#endif
