/* reader.h -- which op reads what a step gives: the next one, but for collectives that hand it on, or gather it. */
#ifndef TE_PLAN_READER_H
#define TE_PLAN_READER_H

#include "run.h" /* te_run, te_is_given_in_fp8 */

/* The op that reads what op i gives, in backward the gradient of what it got, as it lies: the next one in this pass but
 * for those that hand it on. */
TE_API int te_reader_of(const te_run *r, int i) {
    const te_op *op = r->plan->op;
    if (r->pass == TE_BACKWARD) {
        for (i--; i > 0 && (op[i].flags & TE_HANDS_BACK) && te_is_wanted(r, i);) i--;
        return i;
    }
    for (i++; i + 1 < r->plan->op_count && (op[i].flags & TE_HANDS_ON);) i++;
    return i;
}
/* Whether product i reads FP8 that was gathered from all ranks: these have to have the same scale. */
TE_API int te_is_gathered_in_fp8(const te_run *r, int i) {
    if (!te_is_given_in_fp8(r, i)) return 0;
    return r->use == TE_USE_as_bound ? r->param[i] && r->param[i]->fp8.common : r->use == TE_USE_common;
}
/* Op i is behind what this pass has made, and gathers it from all ranks (an all_gather, in backward a reduce_scatter):
 * the product that reads it so; -1: it does not gather, or in the list's format. */
TE_API int te_gathered_for(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    const int back = r->pass == TE_BACKWARD, next = back ? i - 1 : i + 1;
    const te_rows from = back ? op->out_rows : op->in_rows, to = back ? op->in_rows : op->out_rows;
    if (from != TE_ROWS_shard || to != TE_ROWS_tokens || next < 0 || next >= r->plan->op_count) return -1;
    if (back && !te_is_wanted(r, i)) return -1;
    return te_is_gathered_in_fp8(r, next) ? next : -1;
}

#endif
