/* flops.h -- floating-point operations of a step; a multiply and an add are two. Scores that a mask hides do not count.
 *
 * Do this:
 *     const double tflops = bench_step_flops(plan, &plan->forward[2], TE_FORWARD, &batch) / microseconds / 1e6;
 */
#ifndef BENCH_FLOPS_H
#define BENCH_FLOPS_H

#include "te/te.h" /* te_plan, te_step, te_batch */

/* Forward: q k^T and p v, both for each pair of a query and a key that it sees. Causal: query i sees the i + 1 keys up to its own. */
static double bench_attention_flops(double batch, double seq, double heads, double head_dim, int causal) {
    const double pairs = causal ? seq * (seq + 1) / 2 : seq * seq;
    return 2 * (2 * batch * heads * pairs * head_dim);
}

/* 0: the step begins with neither a product nor attention, and moves bytes. */
static double bench_step_flops(const te_plan *plan, const te_step *step, te_pass pass, const te_batch *batch) {
    const te_op *op = &plan->op[step->op[0]];
    if (op->op_class == TE_CLASS_gemm) /* y = x w^T; backward dx = dy w and dw = dy^T x */
        return (pass == TE_BACKWARD ? 2 : 1) * 2.0 * batch->batch * batch->seq * op->in * op->out;
    if (!strcmp(op->kind, "attention")) {
        const te_attention_options *o = (const te_attention_options *)op->options;
        /* Backward: q k^T again, for p is not kept, and dp = do v^T, dq = ds k, dk = ds^T q, dv = p^T do: five products for two. */
        return (pass == TE_BACKWARD ? 2.5 : 1) * bench_attention_flops(batch->batch, batch->seq, o->heads, o->head_dim, o->causal);
    }
    return 0;
}

#endif
