/* linear_step.h -- runs a step (an op, or several fused ops) that contains a linear. In forward the linear is the first
 * op of the step, and the step's other ops, which follow the linear in the model's list of ops, are fused with it. In
 * backward the step computes the gradient of the linear's weight and the gradient of the linear's input. The step's
 * other ops then come before the linear in the list, and their backward is fused with the GEMM for the input's
 * gradient.
 */
#ifndef TE_LINEAR_STEP_H
#define TE_LINEAR_STEP_H

#include "linear_autotune.h" /* te__linear_choose */
#include "linear_comm_overlap.h" /* te__linear_wgrad, te__overlap_gather, te__defer_product */

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Returns the GEMM y = x weight^T of linear i for operands in the model's number format. Its sizes and number formats
 * are set, its pointers are not. */
TE_API te_gemm te__linear_product(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    te_gemm g = te_gemm_of(r->current.rows, op->out, op->in);
    g.dtype = r->plan->dtype, g.out = op->out_dtype == TE_f32 ? TE_f32 : g.dtype, g.trans_b = 1;
    return g;
}
/* Sets the operands of g, the GEMM y = x weight^T of linear i, which is not in FP8. x is the current value
 * (te_run.current), converted to the model's dtype. */
TE_API te_status te__linear_operands(te_gemm *g, te_run *r, int i) {
    te_value x = r->current;
    TE_TRY(te__convert_value(&x, r, r->plan->dtype));
    g->a = x.data, g->b = r->param[i]->data, g->b_quantized = r->param[i]->quantized;
    return TE_OK;
}
/* Sets the operands of g, the GEMM y = x weight^T of the step's linear: in FP8 under an FP8 recipe, else in the model's
 * number format. If the gather of x's rows was deferred, sets g->ranks if g can overlap the gather; otherwise gathers
 * the rows now. */
TE_API te_status te__linear_begin(te_gemm *g, te__gemm_overlap *ranks, te_run *r, const te_step *s,
                                  const te__linear_kernels *kernels) {
    TE_TRY(te__overlap_gather(g, ranks, r, kernels->unfused, r->current.block < 0));
    return te__policy(r, s->op[0])->fp8 ? r->plan->fp8->forward(g, r, s->op[0], r->current)
                                        : te__linear_operands(g, r, s->op[0]);
}
/* Runs the step's GEMM g, whose operands te__linear_begin has set, and the step's ops after the linear. */
TE_IF_USED TE_API te_status te__linear_run(te_run *r, const te_step *s, const te__linear_kernels *kernels, te_gemm *g) {
    te_gemm_strategy strategy = TE_STRATEGY_BARE;
    int taken = 0;
    if (!g->ranks && te__defers_product(r, s)) {
        te_value y;
        TE_TRY(te__output(&y, r, s, s->op[0]));
        return te__defer_product(r, g, y, kernels->unfused);
    }
    if (!g->ranks) TE_TRY(te__linear_choose(g, &strategy, &taken, r, s, kernels));
    else if (s->count > 1 && te__linear_can_store(r, s, kernels) && te__gemm_is_fused(kernels->fused, g, r->ctx))
        strategy = TE_STRATEGY_CUSTOM;
    return te__linear_run_strategy(r, s, kernels, g, strategy, taken);
}
TE_IF_USED TE_API te_status te__linear_forward(te_run *r, const te_step *s, const te__linear_kernels *kernels) {
    te__gemm_overlap ranks;
    if (r->recompute || r->describe)
        return te__pointwise_step_forward(r, s, 1, 0, r->current, kernels->launch, kernels->shape);
    te_gemm g = te__linear_product(r, s->op[0]);
    TE_TRY(te__linear_begin(&g, &ranks, r, s, kernels));
    return te__linear_run(r, s, kernels, &g);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Computes dx = dy weight, and then the backward of the step's other ops, which come before the linear in the list and
 * therefore start from dx. x: the GEMM for dx. */
TE_API te_status te__linear_dgrad_row(te_run *r, const te_step *s, const te__linear_kernels *kernels, te_gemm *x) {
    const te_op *op = &r->plan->op[s->op[0]];
    te_gemm fused = *x;
    te_value dx, converted;
    fused.fast = 1; /* the fused kernel accumulates in the tensor cores if the operands are FP8 (fast accumulation) */
    const int is_fused = te__linear_can_store(r, s, kernels) && te__gemm_is_fused(kernels->fused, &fused, r->ctx) &&
                    op->in_dtype == r->plan->dtype;
    TE_TRY(te__acquire(r, &dx, op->in_rows, op->in, op->in_dtype));
    if (is_fused) return te__product_step_backward(r, s, kernels->fused, &fused, kernels->shape, dx);
    TE_TRY(te__begin_converted(&converted, &dx, r, x->out));
    x->d = converted.data;
    TE_TRY(te__linear_gemm(r, x, TE_ROWS_OF_m, kernels->unfused));
    TE_TRY(te__end_converted(&dx, &converted, r));
    return te__pointwise_step_backward(r, s, 1, 0, dx, kernels->launch, kernels->shape);
}
/* Computes dx[rows, in] = dy weight. If the step has a second op, that op is a fork (an op whose output has several
 * uses), and the linear reads the fork's output; the GEMM then also adds the gradient of the fork's other uses
 * (r->edge). x: the GEMM for dx. */
TE_API te_status te__linear_dgrad(te_run *r, const te_step *s, const te__linear_kernels *kernels, te_gemm *x) {
    const int last = s->op[s->count - 1];
    te_value dx, converted;
    TE_TRY(te__gradient(&dx, r, s, last));
    if (dx.data && !x->ranks && te__defers_product(r, s)) return te__defer_product(r, x, dx, kernels->unfused);
    if (dx.data) {
        TE_TRY(te__begin_converted(&converted, &dx, r, x->out));
        x->d = converted.data;
        if (s->count > 1 && r->edge[last].data) {
            te_value edge = r->edge[last];
            TE_TRY(te__convert_value(&edge, r, x->out));
            x->c = edge.data, x->beta = 1.0f;
            TE_TRY(te__linear_avoid_place(x, &converted, 0, r, kernels->unfused));
        }
        TE_TRY(te__linear_gemm(r, x, TE_ROWS_OF_m, kernels->unfused));
        TE_TRY(te__end_converted(&dx, &converted, r));
    }
    if (s->count > 1) te__set_edge(r, last, te__no_value());
    te__set_current(r, dx);
    return TE_OK;
}
TE_API te_status te__linear_backward(te_run *r, const te_step *s, const te__linear_kernels *kernels) {
    const int i = s->op[0];
    const te_op *op = &r->plan->op[i];
    te_param *p = r->param[i];
    te_value dy = r->current;
    if (r->describe) return te__pointwise_step_backward(r, s, 1, 0, r->current, kernels->launch, kernels->shape);
    te__gemm_overlap ranks;
    te_gemm w = te_gemm_of(op->out, op->in, dy.rows), x = te_gemm_of(dy.rows, op->in, op->out);
    w.dtype = x.dtype = r->plan->dtype, w.out = TE_f32, x.out = op->in_dtype == TE_f32 ? TE_f32 : x.dtype;
    if (!te__needs_input_grad(r, i)) TE_TRY(te__gather_rows_now(r));
    TE_TRY(te__overlap_gather(&x, &ranks, r, kernels->unfused, te_is_trained(p)));
    dy.data = r->current.data;
    w.c = w.d = p->grad, w.beta = te__accumulates(r, p) ? 1.0f : 0.0f;
    if (te__policy(r, i)->fp8) TE_TRY(r->plan->fp8->backward(&w, &x, r, i, dy));
    else {
        TE_TRY(te__convert_value(&dy, r, r->plan->dtype));
        x.a = dy.data, x.b = p->data;
    }
    TE_TRY(te__wgrad_flush(r, x.ranks ? &ranks : 0));
    /* If dy is still being gathered (x.ranks is not null), dx is computed before dweight, because the GEMM for dx can
     * begin with the rows of dy that have arrived. */
    if (!x.ranks && te__wgrad_is_deferred(r, s)) TE_TRY(te__defer_wgrad(&w, r, i, dy));
    else if (!x.ranks) TE_TRY(te__linear_wgrad(&w, r, i, dy));
    if (!te__needs_input_grad(r, i)) return te__set_current(r, te__no_value()), TE_OK;
    TE_TRY(kernels->launch ? te__linear_dgrad_row(r, s, kernels, &x) : te__linear_dgrad(r, s, kernels, &x));
    if (!x.ranks) return TE_OK;
    /* run the deferred GEMM of a weight gradient if it has not run during the gather, for example in tests that let
     * the gather and the GEMM run one after the other (te__overlap_memory.serial) */
    TE_TRY(te__wgrad_now(r));
    if (te__policy(r, i)->fp8 && te_is_trained(p)) TE_TRY(r->plan->fp8->transpose(r, dy, (void *)(uintptr_t)w.a));
    return te__linear_wgrad(&w, r, i, dy);
}

/* Forward and backward have separate functions, so that an inference-only program compiles no backward code. */
TE_IF_USED TE_API te_status te__linear_step_forward(te_run *r, const te_step *s, te_pointwise_launch_fn launch,
                                                   te_pointwise_shape k, te_product_kernels *fused,
                                                   te_product_kernels *unfused) {
    const te__linear_kernels kernels = {launch, k, fused, unfused};
    return te__linear_forward(r, s, &kernels);
}
TE_API te_status te__linear_step_backward(te_run *r, const te_step *s, te_pointwise_launch_fn launch,
                                         te_pointwise_shape k, te_product_kernels *fused, te_product_kernels *unfused) {
    const te__linear_kernels kernels = {launch, k, fused, unfused};
    return te__linear_backward(r, s, &kernels);
}

#endif
