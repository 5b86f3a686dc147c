/* column_reduce.h -- the second stage of backward's column sums (dbias, dgamma, dbeta): a kernel leaves a partial sum
 * a block, and the kernels here add those up in a fixed order. A backward leaves that to its end, where one launch
 * does it for all steps (storage.h: te_defer_column_sum).
 */
#ifndef TE_COLUMN_REDUCE_H
#define TE_COLUMN_REDUCE_H

#include "../../core/target.h" /* TE_KERNEL */

/* TE_SUMS_A_STEP: gradients that a row sums, at most: dgamma, dbeta, dbias. TE_SUM_AHEAD: loads of a thread in flight;
 * two blocks on each of 132 multiprocessors leave 264 partial sums, 17 a group. From TE_SUM_WIDE columns on a thread
 * has two of them: 12288 columns of 132 partial sums take 2.8 us so, 4.2 us one by one. */
enum {
    TE_SUM_JOBS = 16,
    TE_SUMS_A_STEP = 3,
    TE_SUM_GROUPS = TE_CUDA ? 16 : 1,
    TE_SUM_LANES = TE_CUDA ? 32 : 1,
    TE_SUM_AHEAD = 18,
    TE_SUM_WIDE = 2048
};
typedef struct te_sum_job {
    const float *partial; /* [count, width] */
    float *total;         /* [width] */
    int width, count, accumulate;
} te_sum_job;
typedef struct te_sum_args { te_sum_job job[TE_SUM_JOBS]; } te_sum_args;
typedef struct te_two_floats { float v[2]; } __attribute__((aligned(8))) te_two_floats;

/* total[col] (+)= sum of partial[.][col], in an order that only the counts decide. `columns` of a thread, 1 or 2, a
 * constant: with two, widths are even. */
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

#endif
