/* linear_wgrad.h -- the product of a weight's gradient, now or beside rows on their way between ranks.
 *
 * Nothing in backward reads it, so it may wait. Under sequence parallelism a backward has the rows of all ranks
 * gathered again for the gradient of an attention's last linear, whose product (8192 x 1024 x 4096, a rank's part of
 * four) takes 96 us where the rows take 240. So the gradient of the weight before it, the MLP's first, 350 us, waits
 * for these rows to be on their way, and runs in front of that product: te_gemm_ranks.beside. A GPT's layer on four
 * H100s, hidden 4096, 4 x 2048 tokens: 4.85 ms before, 4.72 so; in FP8 3.57 and 3.45 to 3.50. What it reads, dy and
 * under a recipe its transpose, stays in the workspace as long.
 */
#ifndef TE_FUSE_LINEAR_WGRAD_H
#define TE_FUSE_LINEAR_WGRAD_H

#include "linear_ranks.h" /* te__linear_gemm, te_leaves_rows */

/* dweight[out, in] (+)= dy^T x, in f32; dy and x have the list's format: its operands. */
TE_API te_status te__wgrad_operands(te_gemm *w, te_run *r, int i, te_value dy) {
    te_value x = te_input_of(r, i);
    TE_TRY(te_as(&x, r, r->plan->dtype));
    w->a = dy.p, w->trans_a = 1, w->b = x.p;
    return TE_OK;
}
/* Leave its product. Of a weight that is frozen for now this takes the memory and launches nothing: the workspace does
 * not depend on what is frozen. */
TE_API te_status te__leave_wgrad(te_gemm *w, te_run *r, int i, te_value dy) {
    te_waiting *late = &r->waiting;
    te_value a = te_no_value(), b = te_no_value();
    const int dry = r->dry;
    if (r->plan->op[i].flags & TE_IS_FROZEN) return TE_OK; /* it has no x */
    late->runs = te_is_trained(r->param[i]);
    r->dry |= !late->runs;
    const te_status status = te_is_in_fp8(r, i) ? TE_OK : te__wgrad_operands(w, r, i, dy);
    r->dry = dry;
    if (status != TE_OK) return status;
    a.block = w->a == dy.p ? dy.block : te__pool_block_at(&r->pool, w->a);
    b.block = te__pool_block_at(&r->pool, w->b);
    te__set_root(r, &late->a, a), te__set_root(r, &late->b, b);
    late->product = *w, late->is_there = 1;
    return TE_OK;
}
/* What waits, now. */
TE_API te_status te__wgrad_now(void *run) {
    te_run *r = (te_run *)run;
    te_waiting late = r->waiting;
    const int dry = r->dry;
    if (!late.is_there) return TE_OK;
    te__set_root(r, &r->waiting.a, te_no_value()), te__set_root(r, &r->waiting.b, te_no_value());
    r->waiting.is_there = 0, r->dry |= !late.runs;
    const te_status status = te__linear_gemm(r, &late.product, TE_ROWS_OF_k, 0);
    r->dry = dry;
    return status;
}
/* The product, now. */
TE_API te_status te__linear_wgrad(te_gemm *w, te_run *r, int i, te_value dy) {
    TE_TRY(te__leave_wgrad(w, r, i, dy));
    return te__wgrad_now(r);
}

/* Whether that of step s waits: the next step adds up its data gradient over the ranks, and a step behind that gathers
 * rows for the next linear. Not where gradients are watched, or what it reads is made again (rerun.h). */
TE_API int te__wgrad_waits(const te_run *r, const te_step *s) {
    const te_plan *p = r->plan;
    const te_step *next = s + 1;
    if (r->watch || !r->tensor->memory || te__span_of(p, s->op[0]) >= 0 || !te_leaves_product(r, s)) return 0;
    while ((next = te__step_after(r, next, 1)) != 0) {
        const te_op *op = &p->op[next->op[0]];
        if (op->op_class == TE_CLASS_gemm) return 0;
        if (next->count == 1 && op->in_rows == TE_ROWS_tokens && op->out_rows == TE_ROWS_shard)
            return te_leaves_rows(r, next);
    }
    return 0;
}
/* The next linear's product is about to run. ranks: it gathers rows, with what waits beside them; null: it does not.
 * While products are timed nothing runs beside them. */
TE_API te_status te__wgrad_flush(te_run *r, te_gemm_ranks *ranks) {
    if (!ranks || r->dry || r->ctx->gemm_tune) return te__wgrad_now(r);
    if (r->waiting.is_there) ranks->beside = te__wgrad_now, ranks->beside_of = r;
    return TE_OK;
}

#endif
