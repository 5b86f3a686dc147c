/* reduce.h -- gradients of ranks that train one model: summed once a step, behind its last backward.
 *
 * Do this:
 *     te_model *models[] = {&embed.model, &block.model};
 *     TE_TRY(te_reduce_gradients(models, 2, &ctx));        // then clip and step, the same on all ranks
 *
 * Over the tensor group: the gradients of parameters that all ranks hold and of which each saw its own rows alone
 * (TE_ROWS_shard: norms, biases and embeddings under sequence parallelism) or its own columns (TE_PARAMS_REPLICATED: norms
 * of heads). Over the data group: all gradients. They are sums, not means: a loss that is the mean over all tokens has
 * batch.loss_scale 1 / (the tokens of all replicas).
 * Frozen parameters (plan/freeze.h), the same on all ranks, are left out. While backward still runs: buckets.h.
 */
#ifndef TE_COMM_REDUCE_H
#define TE_COMM_REDUCE_H

#include "../core/group.h"  /* te_group_all_reduce */
#include "../core/target.h" /* te_check_target */
#include "../plan/bind.h"   /* te_model, te_param, TE_PARAM_ALIGN */

/* Gradients that lie one behind the other, the gaps between them included: one call sums them. */
typedef struct te__grad_run { float *from, *to; } te__grad_run;

/* Whether p's gradient is one of its own that ranks sum. */
TE_API int te__is_reduced(const te_param *p) { return !p->tied && !p->frozen && p->grad; }
TE_API te_status te__run_close(te__grad_run *run, const te_group *g, te_context *ctx) {
    float *const from = run->from;
    run->from = 0;
    return from ? te_group_all_reduce(g, from, from, run->to - from, TE_f32, ctx) : TE_OK;
}
/* The next gradient, which is a part of this run or begins one. */
TE_API te_status te__run_add(te__grad_run *run, const te_param *p, const te_group *g, te_context *ctx) {
    if (!run->from || p->grad != run->to) {
        TE_TRY(te__run_close(run, g, ctx));
        run->from = p->grad;
    }
    run->to = p->grad + te_round_up(p->rows * p->cols, TE_PARAM_ALIGN);
    return TE_OK;
}
/* Over a group, of all that trains, or only where ranks have parts of a sum. */
TE_API te_status te__reduce_over(const te_group *g, const te_model *m, int only_sums, te_context *ctx) {
    te__grad_run run = {0, 0};
    if (g->size == 1) return TE_OK;
    for (int i = 0; i < m->param_count; i++) {
        const te_param *p = &m->param[i];
        if (te__is_reduced(p) && (p->sums || !only_sums)) TE_TRY(te__run_add(&run, p, g, ctx));
    }
    return te__run_close(&run, g, ctx);
}
/* Over the data group, of `slices` (te_slice_elements): this rank's slice and what is behind the last one, with half of
 * the traffic. Slices know no parameters, so what a frozen one has for a gradient goes along. */
TE_API te_status te__reduce_slices(const te_group *g, const te_model *m, int slices, te_context *ctx) {
    float *grads = (float *)(uintptr_t)m->grads;
    const int64_t slice = te_slice_elements(m->elements, slices), rest = slice * slices;
    if (slice) TE_TRY(te_group_reduce_scatter(g, grads + g->rank * slice, grads, slice, TE_f32, ctx));
    return te_group_all_reduce(g, grads + rest, grads + rest, m->elements - rest, TE_f32, ctx);
}
TE_API te_status te__reduce_gradients(te_model *const *models, int count, int slices, te_context *ctx) {
    TE_TRY(te_check_target(ctx, "te_reduce_gradients"));
    TE_REQUIRE(models && count >= 0, ctx, TE_ERROR_NULL, "te_reduce_gradients: the list of models is null");
    for (int i = 0; i < count; i++)
        TE_REQUIRE(models[i] && models[i]->plan && (models[i]->grads || !models[i]->elements), ctx, TE_ERROR_STATE,
                   "te_reduce_gradients: model %d is null, not bound, or bound without gradients", i);
    for (int i = 0; i < count; i++) TE_TRY(te__check_reduced(models[i], "te_reduce_gradients", ctx));
    for (int i = 0; i < count; i++) {
        TE_TRY(te__reduce_over(te_tensor_group(ctx), models[i], 1, ctx));
        TE_TRY(slices > 1 ? te__reduce_slices(te_data_group(ctx), models[i], slices, ctx)
                          : te__reduce_over(te_data_group(ctx), models[i], 0, ctx));
    }
    return TE_OK;
}
/* Enqueue the sums. All ranks call it with their parts of the same models, in the same order. An optimizer whose states
 * are shared out needs fewer: te_adamw_reduce. */
TE_API te_status te_reduce_gradients(te_model *const *models, int count, te_context *ctx) {
    return te__reduce_gradients(models, count, 1, ctx);
}

#endif
