/* flops.h -- the floating-point operations of a step. A multiply-add counts as two; scores that a mask hides do not count.
 *
 * Do this:
 *     const double tflops = bench_step_flops(plan, &plan->forward[2], TE_FORWARD, &batch) / microseconds / 1e6;
 */
#ifndef BENCH_FLOPS_H
#define BENCH_FLOPS_H

#include "te/te.h" /* te_plan, te_step, te_batch */

/* The flops of attention's GEMMs over all pairs of a query and a key that it attends to: keys from `left` before the query to `right` behind it,
 * -1: all. columns: the sum, over these GEMMs, of the columns of a head that each one works on. */
static double bench_attention_flops(double batch, int seq, double heads, double columns, int left, int right) {
    double pairs = 0;
    for (int i = 0; i < seq; i++) {
        const int before = left < 0 || left > i ? i : left, behind = right < 0 || right > seq - 1 - i ? seq - 1 - i : right;
        pairs += before + 1 + behind;
    }
    return 2 * batch * heads * pairs * columns;
}

/* 0 for a memory-bound step, which begins with neither a GEMM nor attention. */
static double bench_step_flops(const te_plan *plan, const te_step *step, te_pass pass, const te_batch *batch) {
    const te_op *op = &plan->op[step->op[0]];
    if ((op->flags & TE_TO_LOSS) && step->count > 1) op = &plan->op[step->op[1]]; /* a backward step cross_entropy_linear: the linear; the recomputed logits do not count */
    if (op->op_class == TE_CLASS_gemm) /* y = x w^T; backward dx = dy w and dw = dy^T x */
        return (pass == TE_BACKWARD ? 2 : 1) * 2.0 * batch->batch * batch->seq * op->in * op->out;
    if (!strcmp(op->kind, "attention")) {
        const te_attention_options *o = (const te_attention_options *)op->options;
        /* Forward: q k^T and p v. Backward: q k^T, recomputed because p is not saved, dp = do v^T, dq = ds k, dk = ds^T q, dv = p^T do. */
        const double columns = pass == TE_BACKWARD ? 3.0 * o->head_dim + 2.0 * o->value_dim : (double)o->head_dim + o->value_dim;
        return bench_attention_flops(batch->batch, batch->seq, o->heads, columns, o->window_left, o->window_right);
    }
    return 0;
}

#endif
