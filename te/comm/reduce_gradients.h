/* reduce_gradients.h -- sums the gradients of the ranks that train one model. Call te_reduce_gradients once in each
 * optimizer step, after the step's last backward. To sum the gradients while backward still runs, use buckets.h
 * instead.
 *
 * Do this:
 *     te_model *models[] = {&embed.model, &block.model};
 *     TE_TRY(te_reduce_gradients(models, 2, &ctx));        // then clip and update, with the same results on all ranks
 *
 * Over the data group all gradients are summed. Over the tensor group a gradient is summed if its parameter is
 * replicated in the group while each rank computed the gradient from a part of the data: from its own rows
 * (TE_ROWS_shard: norms, biases and embeddings under sequence parallelism) or from its own columns
 * (TE_PARAMS_REPLICATED: norms of heads). If several ranks hold the same heads of k and v (te_param.copies), the
 * gradients of these heads are also summed over these ranks, as the last sum, so that the copies stay bitwise
 * identical. The result is the sum, not the mean: for a loss that is the mean over all tokens, set batch.loss_scale to
 * 1 / (tokens of all replicas). The gradients of frozen parameters (plan/freeze.h) are left out, so the same parameters
 * must be frozen on all ranks.
 */
#ifndef TE_COMM_REDUCE_H
#define TE_COMM_REDUCE_H

#include "../core/rank_group.h"  /* te_group_all_reduce */
#include "../core/target.h" /* te__check_target */
#include "../plan/bind.h"   /* te_model, te_param, TE_PARAM_ALIGN */

/* A range of memory that one all-reduce sums: the gradients of consecutive parameters, with the padding between them.
 * from: the first element; to: the element after the last one. */
typedef struct te__grad_range { float *from, *to; } te__grad_range;

/* Returns whether parameter p has a gradient that must be summed over ranks. A tied parameter has no gradient of its
 * own; a frozen parameter needs no gradient. */
TE_API int te__is_reduced(const te_param *p) { return !p->tied && !p->frozen && p->grad; }
/* Enqueues the all-reduce of the range, and makes the range empty. */
TE_API te_status te__grad_range_reduce(te__grad_range *range, const te_group *g, te_context *ctx) {
    float *const from = range->from;
    range->from = 0;
    return from ? te_group_all_reduce(g, from, from, range->to - from, TE_f32, ctx) : TE_OK;
}
/* Adds p's gradient to the range if the two are adjacent. If not, enqueues the all-reduce of the range, and begins a
 * new range with p's gradient. */
TE_API te_status te__grad_range_extend(te__grad_range *range, const te_param *p, const te_group *g, te_context *ctx) {
    if (!range->from || p->grad != range->to) {
        TE_TRY(te__grad_range_reduce(range, g, ctx));
        range->from = p->grad;
    }
    range->to = p->grad + te_round_up(p->rows * p->cols, TE_PARAM_ALIGN);
    return TE_OK;
}
/* Sums the gradients of model m over a group. With only_partial 1, sums only those gradients of which each rank has a
 * partial sum (te_param.sums). With only_partial 0, sums all gradients. */
TE_API te_status te__reduce_group(const te_group *g, const te_model *m, int only_partial, te_context *ctx) {
    te__grad_range range = {0, 0};
    if (g->size == 1) return TE_OK;
    for (int i = 0; i < m->param_count; i++) {
        const te_param *p = &m->param[i];
        if (te__is_reduced(p) && (p->sums || !only_partial)) TE_TRY(te__grad_range_extend(&range, p, g, ctx));
    }
    return te__grad_range_reduce(&range, g, ctx);
}
/* Sums the gradients of those elements of p of which several ranks hold copies (te_param.copies), because each of these
 * ranks has computed the gradients only from its own heads of q. */
TE_API te_status te__reduce_copies(const te_param *p, te_context *ctx) {
    const te_shard_layout s = te_shard_layout_of(p, te_tensor_group(ctx));
    if (s.copies == 1 || !te__is_reduced(p)) return TE_OK;
    float *const from = p->grad + s.first;
    return te_group_all_reduce(te__copies_group(ctx), from, from, p->rows * p->cols - s.first, TE_f32, ctx);
}
/* Reduces a model's gradients over the data group such that this rank gets only the sums of its own shard
 * (te__slice_elements). The size of a shard is rounded down, so a few elements lie behind the last shard; all ranks get
 * the sums of these elements. Each rank sends half as many bytes as in an all-reduce. A shard is a range of the
 * gradient buffer, so if the range includes gradients of frozen parameters, these gradients are sent as well. */
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
        if (models[i]->shards) continue; /* with te_fsdp_init the model's gradients were already reduced during
                                          * backward */
        TE_TRY(te__reduce_group(te_tensor_group(ctx), models[i], 1, ctx));
        TE_TRY(shards > 1 ? te__reduce_scatter_group(te_data_group(ctx), models[i], shards, ctx)
                          : te__reduce_group(te_data_group(ctx), models[i], 0, ctx));
        for (int k = 0; k < models[i]->param_count; k++) TE_TRY(te__reduce_copies(&models[i]->param[k], ctx));
    }
    return TE_OK;
}
/* Enqueues the collectives that sum the gradients of these models over the ranks. All ranks must pass the same models
 * in the same order; a rank passes its own shard of a tensor-parallel model. With ZeRO-1 (sharded optimizer states)
 * call te_adamw_reduce instead, which sends half as many bytes. */
TE_API te_status te_reduce_gradients(te_model *const *models, int count, te_context *ctx) {
    return te__reduce_gradients(models, count, 1, ctx);
}

#endif
