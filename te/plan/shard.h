/* shard.h -- what a rank of the tensor group has of a parameter: runs of the whole one's elements.
 *
 * Of a weight (shard, rows) these are each row's own columns, of one (shard, columns) whole rows of each of its parts
 * (te/ops/linear.h). Run i lies in the rank's own parameter from element `at` on; in the whole one, of `ranks` times as
 * many elements, the same run of each rank, one rank after the other, takes its place:
 *
 *     te_runs s = te_runs_of(p, te_tensor_group(ctx));
 *     for (int64_t i = 0; i < s.count; i++) {
 *         const te_run_place r = te_run_at(&s, i);           // r.elements from r.at here, from r.whole there
 *         ...
 *     }
 */
#ifndef TE_PLAN_SHARD_H
#define TE_PLAN_SHARD_H

#include "../core/group.h" /* te_group */
#include "model.h"         /* te_param */

typedef struct te_runs {
    int64_t count;
    int64_t first, each; /* elements of run 0, of each other */
    int rank, ranks;     /* 0 of 1: this rank's parameter is the whole */
} te_runs;
typedef struct te_run_place { int64_t at, whole, elements; } te_run_place;

TE_API te_runs te_runs_of(const te_param *p, const te_group *g) {
    te_runs s;
    const int64_t all = p->rows * p->cols;
    s.count = 1, s.first = s.each = all, s.rank = 0, s.ranks = 1;
    if (p->shard == TE_SHARD_none || g->size == 1) return s;
    s.rank = g->rank, s.ranks = g->size;
    if (p->shard == TE_SHARD_rows) s.count = p->rows, s.first = s.each = p->cols;
    else {
        s.count = p->parts, s.each = all / (p->first_part + p->parts - 1);
        s.first = s.each * p->first_part;
    }
    return s;
}
TE_API te_run_place te_run_at(const te_runs *s, int64_t i) {
    te_run_place r;
    r.at = i ? s->first + (i - 1) * s->each : 0, r.elements = i ? s->each : s->first;
    r.whole = r.at * s->ranks + s->rank * r.elements;
    return r;
}
/* Which run element `at` of this rank's parameter lies in. */
TE_API int64_t te_run_with(const te_runs *s, int64_t at) { return at < s->first ? 0 : 1 + (at - s->first) / s->each; }

#endif
