/* gradients.h -- gradients that are sums over the rows of a batch (dbias, dgamma, dbeta). The sums are computed in a
 * fixed order, without atomics. The header also has the functions that tell a listener (te_watch) when a gradient is
 * final, i.e. will not be written again.
 *
 * Each block of a backward kernel stores one partial sum per column, in memory that te_defer_column_sum provides. One
 * launch at the end of backward adds up the partial sums of all steps. If the table of deferred sums (TE_SUM_JOBS
 * entries) gets full before the end, a launch between two steps adds up the sums that are deferred so far.
 *
 * The least possible memory traffic is one read of each partial sum, i.e. blocks * width floats for a gradient with
 * `width` columns.
 */
#ifndef TE_GRADIENTS_H
#define TE_GRADIENTS_H

#include "../../core/target.h" /* TE_KERNEL_IF_USED, te_lanes_here */
#include "storage.h" /* te_run, te_sum_args, te_is_trained */

/* ---- the kernels ------------------------------------------------------------------------------------------------- */

/* A thread block adds up TE_SUM_LANES columns, or 2 * TE_SUM_LANES if each thread has two columns. Its threads form
 * TE_SUM_GROUPS groups; group g adds up the partial sums g, g + TE_SUM_GROUPS, g + 2 * TE_SUM_GROUPS, ... A thread
 * issues up to TE_SUM_AHEAD loads before it uses the first loaded value. This often covers all loads of the thread: a
 * kernel with two blocks on each of 132 SMs leaves 264 partial sums per column, at most 17 for each of 16 groups. If a
 * gradient has TE_SUM_WIDE or more columns, a thread adds up two columns: 12288 columns of 132 partial sums each then
 * take 2.8 us instead of 4.2 us. */
enum {
    TE_SUM_GROUPS = TE_CUDA ? 16 : 1,
    TE_SUM_LANES = TE_CUDA ? 32 : 1,
    TE_SUM_AHEAD = 18,
    TE_SUM_WIDE = 2048
};
typedef struct te_two_floats { float v[2]; } __attribute__((aligned(8))) te_two_floats;

/* For each job of *a, compute the sum of partial[i][col] over all i < count. Store this sum to total[col], or add it to
 * total[col] if the job's `accumulate` is 1. The order of the additions depends only on `count`, so results are
 * reproducible. `columns` is the number of columns that a thread adds up, a compile-time constant, 1 or 2; if `columns`
 * is 2, all widths must be even. */
TE_FN void te_sum_body(const te_sum_args *a, te_block b, const int columns) {
    int group;
    const te_lanes g = te_lanes_here(TE_SUM_LANES, &group);
    const te_sum_job *j = &a->job[b.y];
    const int col = (b.x * TE_SUM_LANES + g.id) * columns;
    float sum[2] = {0, 0};
    for (int first = group; col < j->width && first < j->count; first += TE_SUM_AHEAD / columns * TE_SUM_GROUPS) {
        te_two_floats part[TE_SUM_AHEAD];
        TE_UNROLL for (int i = 0; i < TE_SUM_AHEAD / columns; i++) {
            const int p = first + i * TE_SUM_GROUPS;
            const float *from = j->partial + (int64_t)p * j->width + col;
            part[i].v[0] = part[i].v[1] = 0;
            if (p < j->count && columns == 2) part[i] = *(const te_two_floats *)(const void *)from;
            else if (p < j->count) part[i].v[0] = *from;
        }
        TE_UNROLL
        for (int i = 0; i < TE_SUM_AHEAD / columns; i++) TE_UNROLL
        for (int e = 0; e < columns; e++) sum[e] += part[i].v[e];
    }
    te_groups_sum(sum, columns, g, TE_SUM_GROUPS);
    if (group == 0 && col < j->width) TE_UNROLL
    for (int e = 0; e < columns; e++) j->total[col + e] = (j->accumulate ? j->total[col + e] : 0.0f) + sum[e];
}
TE_KERNEL_IF_USED(te_sum_rows, TE_SUM_LANES * TE_SUM_GROUPS, 1, te_sum_args, te_sum_body(te_args, te_at, 1))
TE_KERNEL_IF_USED(te_sum_wide_rows, TE_SUM_LANES * TE_SUM_GROUPS, 1, te_sum_args, te_sum_body(te_args, te_at, 2))

/* ---- final gradients --------------------------------------------------------------------------------------------- */

/* Return whether backward adds to the gradient of p instead of overwriting this gradient. If gradients are sharded over
 * ranks, backward overwrites its local gradient, and the sum over the ranks is added to the shard. */
TE_API int te__accumulates(const te_run *r, const te_param *p) {
    return p->shared || (r->batch && r->batch->accumulate && !(r->model && r->model->shards));
}

/* Tell the listener (r->watch), if there is one, that this backward will not write p's gradient again. */
TE_API te_status te__notify_final(te_run *r, const te_param *p) {
    return r->watch && !r->dry && te_is_trained(p) ? r->watch->is_final(r->watch, p, r->ctx) : TE_OK;
}
/* Called after step s: tell the listener (r->watch) which gradients of the step's parameters are final, i.e. will not
 * be written again. Deferred column sums are not final yet. */
TE_API te_status te__notify_step(te_run *r, const te_step *s) {
    for (int j = 0; r->watch && r->pass == TE_BACKWARD && j < s->count; j++)
        for (int k = 0; k < r->plan->op[s->op[j]].params; k++) {
            const te_param *p = &r->param[s->op[j]][k];
            int is_deferred = 0;
            for (int i = 0; i < r->sum_count; i++) is_deferred |= r->sum_of[i] == p;
            if (!is_deferred) TE_TRY(te__notify_final(r, p));
        }
    return TE_OK;
}

/* ---- deferred column sums ---------------------------------------------------------------------------------------- */

/* Launch the kernels that add up all deferred column sums of the steps so far, and release the workspace blocks that
 * hold the partial sums. */
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
/* The gradient of a parameter that is a single number is the sum over all rows and all columns. Therefore split job *j,
 * which sums over rows, into two stages: *j now stores the sum of each column to `columns`, and a second job adds up
 * these column sums to get the gradient. */
TE_API void te__sum_columns(te_run *r, te_sum_job *j, float *columns) {
    te_sum_job *c = &r->columns.job[r->column_count++];
    *c = *j;
    c->partial = columns, c->width = 1, c->count = j->width;
    j->total = columns, j->accumulate = 0;
}
/* Set *partial to memory for [blocks, width] partial sums of p's gradient, one row for each thread block of the
 * caller's kernel. The partial sums are added up before this backward ends. The memory is sized for max_blocks, the
 * number of blocks for the largest batch, so a workspace that was measured for the largest batch suffices for every
 * smaller one. If p is frozen, the memory is acquired all the same, but nothing is added up. Returns TE_ERROR_STATE if
 * the step has more than TE_SUMS_A_STEP sums. */
TE_API te_status te_defer_column_sum(te_run *r, float **partial, const te_param *p, int width, int blocks,
                                     int max_blocks) {
    TE_REQUIRE(r->sum_count < TE_SUM_JOBS, r->ctx, TE_ERROR_STATE, "%s: a step sums more than %d gradients",
               r->plan->name, (int)TE_SUMS_A_STEP);
    void *memory = 0;
    const int is_one = width > 1 && p->rows * p->cols == 1, trains = te_is_trained(p);
    const size_t rows = (size_t)max_blocks + (is_one ? 1 : 0);
    const int block = te__pool_take(&r->pool, &memory, rows * (size_t)width * sizeof(float));
    TE_REQUIRE(block >= 0, r->ctx, TE_ERROR_MEMORY, "%s: more than %d values are alive at once", r->plan->name,
               (int)TE_MAX_LIVE);
    te__pool_root(&r->pool, block, 1);
    te_sum_job *j = &r->sums.job[r->sum_count];
    r->sum_of[r->sum_count] = p, r->partial[r->sum_count++] = block;
    *partial = (float *)memory;
    j->partial = *partial, j->total = p->grad, j->width = trains ? width : 0, j->count = blocks,
    j->accumulate = te__accumulates(r, p);
    if (is_one && trains) te__sum_columns(r, j, *partial + (size_t)max_blocks * (size_t)width);
    return TE_OK;
}

#endif
