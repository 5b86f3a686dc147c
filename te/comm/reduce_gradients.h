/* reduce_gradients.h -- sums the gradients of ranks that train one model, once a step, after its last backward.
 *
 * Do this:
 *     te_model *models[] = {&embed.model, &block.model};
 *     TE_TRY(te_reduce_gradients(models, 2, &ctx));        // then clip and step, the same on all ranks
 *
 * Over the tensor group it sums the gradients of parameters that all ranks of the group hold, if each rank computed the
 * gradient from its own rows (TE_ROWS_shard: norms, biases and embeddings under sequence parallelism) or its own
 * columns (TE_PARAMS_REPLICATED: norms of heads). Over the data group it sums all gradients. The result is the sum, not
 * the mean: for a loss that is the mean over all tokens set batch.loss_scale to 1 / (tokens of all replicas). Frozen
 * parameters (plan/freeze.h) must be the same on all ranks; they are left out. buckets.h reduces while backward still
 * runs.
 */
#ifndef TE_COMM_REDUCE_H
#define TE_COMM_REDUCE_H

#include "../core/rank_group.h"  /* te_group_all_reduce */
#include "../core/target.h" /* te__check_target */
#include "../plan/bind.h"   /* te_model, te_param, TE_PARAM_ALIGN */

/* Gradients that are adjacent in memory (with the gaps of their alignment): one all-reduce sums them. */
typedef struct te__grad_range { float *from, *to; } te__grad_range;

/* Whether p has a gradient of its own that is to be reduced. */
TE_API int te__is_reduced(const te_param *p) { return !p->tied && !p->frozen && p->grad; }
/* Enqueues the sum of the range, and makes the range empty. */
TE_API te_status te__grad_range_reduce(te__grad_range *range, const te_group *g, te_context *ctx) {
    float *const from = range->from;
    range->from = 0;
    return from ? te_group_all_reduce(g, from, from, range->to - from, TE_f32, ctx) : TE_OK;
}
/* Adds p's gradient to the range if it is adjacent; otherwise enqueues the sum of the range and begins a new range with
 * p. */
TE_API te_status te__grad_range_extend(te__grad_range *range, const te_param *p, const te_group *g, te_context *ctx) {
    if (!range->from || p->grad != range->to) {
        TE_TRY(te__grad_range_reduce(range, g, ctx));
        range->from = p->grad;
    }
    range->to = p->grad + te_round_up(p->rows * p->cols, TE_PARAM_ALIGN);
    return TE_OK;
}
/* Sums a model's gradients over a group: all, or only those that are partial sums on each rank. */
TE_API te_status te__reduce_group(const te_group *g, const te_model *m, int only_partial, te_context *ctx) {
    te__grad_range range = {0, 0};
    if (g->size == 1) return TE_OK;
    for (int i = 0; i < m->param_count; i++) {
        const te_param *p = &m->param[i];
        if (te__is_reduced(p) && (p->sums || !only_partial)) TE_TRY(te__grad_range_extend(&range, p, g, ctx));
    }
    return te__grad_range_reduce(&range, g, ctx);
}
/* Reduce-scatter over the data group: this rank gets the sums of its shard (te__slice_elements), and of the elements
 * behind the last shard, with half of the traffic of an all-reduce. Shards ignore the borders of parameters, so the
 * memory of frozen parameters is sent, too.
 */
TE_API te_status te__reduce_scatter_group(const te_group *g, const te_model *m, int shards, te_context *ctx) {
    float *grads = (float *)(uintptr_t)m->grads;
    const int64_t shard = te__slice_elements(m->elements, shards), rest = shard * shards;
    if (shard) TE_TRY(te_group_reduce_scatter(g, grads + g->rank * shard, grads, shard, TE_f32, ctx));
    return te_group_all_reduce(g, grads + rest, grads + rest, m->elements - rest, TE_f32, ctx);
}
TE_API te_status te__reduce_gradients(te_model *const *models, int count, int shards, te_context *ctx) {
    TE_TRY(te__check_target(ctx, "te_reduce_gradients"));
    TE_REQUIRE(models && count >= 0, ctx, TE_ERROR_NULL, "te_reduce_gradients: the list of models is null");
    for (int i = 0; i < count; i++)
        TE_REQUIRE(models[i] && models[i]->plan && (models[i]->grads || !models[i]->elements), ctx, TE_ERROR_STATE,
                   "te_reduce_gradients: model %d is null, not bound, or bound without gradients", i);
    for (int i = 0; i < count; i++) TE_TRY(te__check_reduced(models[i], "te_reduce_gradients", ctx));
    for (int i = 0; i < count; i++) {
        TE_TRY(te__reduce_group(te_tensor_group(ctx), models[i], 1, ctx));
        TE_TRY(shards > 1 ? te__reduce_scatter_group(te_data_group(ctx), models[i], shards, ctx)
                          : te__reduce_group(te_data_group(ctx), models[i], 0, ctx));
    }
    return TE_OK;
}
/* Enqueues the sums. All ranks call it with their shards of the same models, in the same order. With ZeRO-1 (sharded
 * optimizer states) call te_adamw_reduce instead, which moves half of the bytes. */
TE_API te_status te_reduce_gradients(te_model *const *models, int count, te_context *ctx) {
    return te__reduce_gradients(models, count, 1, ctx);
}

#endif
