/* router_balance.h -- counts the rows of a router's experts, and balances the experts without an auxiliary loss: after
 * each optimizer step, the choice_bias of experts with few rows is increased, and the choice_bias of experts with many
 * rows is decreased (DeepSeek-V3, arXiv 2412.19437).
 *
 * Do this at the end of an optimizer step, for each router with a choice_bias:
 *     TE_TRY(te_fill(&ctx, counts, 0, E * sizeof(float)));                     // counts: [E] f32, in target memory
 *     TE_TRY(te_router_counts(counts, &saved, "r", &ctx));                     // of each micro-batch
 *     TE_TRY(te_router_balance(&block.r.choice_bias, counts, 0.001f, &ctx));
 *
 * If the router has a capacity, te_router_dropped counts the rows that were not computed.
 *
 * The ranks of a tensor group all have the same counts; the counts of the ranks of a data group have to be summed
 * (te_group_all_reduce).
 */
#ifndef TE_OPS_ROUTER_BALANCE_H
#define TE_OPS_ROUTER_BALANCE_H

#include "router.h" /* te_routing, te__router_options_of */

typedef struct te_balance_args {
    float *counts;         /* [experts] */
    const int32_t *offset; /* [experts + 1] */
    void *bias;            /* [experts], of `dtype` */
    te_dtype dtype;
    int experts;
    int capacity; /* the first `capacity` rows of each expert are not counted */
    float rate;
} te_balance_args;
TE_FN void te_router_count_body(const te_balance_args *a, te_block b) {
    int none;
    const te_lanes g = te_lanes_here(TE_ROUTER_LANES, &none);
    (void)b;
    for (int e = g.id; e < a->experts; e += g.count)
        a->counts[e] += (float)te_max(0, a->offset[e + 1] - a->offset[e] - (int64_t)a->capacity);
}
TE_KERNEL_IF_USED(te_router_count, TE_ROUTER_LANES, 1, te_balance_args, te_router_count_body(te_args, te_at))
TE_FN void te_router_balance_body(const te_balance_args *a, te_block b) {
    int none;
    te_lanes g = te_lanes_here(TE_ROUTER_LANES, &none);
    float mean = 0;
    (void)b;
    for (int e = g.id; e < a->experts; e += g.count) mean += a->counts[e] / (float)a->experts;
    te_lanes_sum(&mean, 1, &g);
    for (int e = g.id; e < a->experts; e += g.count) {
        const float less = mean - a->counts[e], step = less > 0 ? a->rate : less < 0 ? -a->rate : 0.0f;
        te__store_wide(a->bias, e, te__load_wide(a->bias, e, a->dtype) + step, a->dtype);
    }
}
TE_KERNEL_IF_USED(te_router_balance_kernel, TE_ROUTER_LANES, 1, te_balance_args,
                  te_router_balance_body(te_args, te_at))
/* Adds to counts[e] the number of rows of expert e or, with `dropped`, the number of the expert's rows beyond the
 * capacity. call: the name of the public function, for error texts. */
TE_IF_USED TE_API te_status te__router_count_rows(float *counts, const te_saved *saved, const char *router, int dropped,
                                                  const char *call, te_context *ctx) {
    te_balance_args a;
    TE_TRY(te__check_target(ctx, call));
    TE_REQUIRE(counts && saved && router, ctx, TE_ERROR_NULL,
               "%s: the counts, the te_saved or the router's name is null", call);
    TE_REQUIRE(saved->plan, ctx, TE_ERROR_STATE, "%s: no forward has filled this te_saved", call);
    const te_plan *p = saved->plan;
    int i = 0;
    while (i < p->op_count && (!te__is_router(p, i) || strcmp(p->op[i].name, router) != 0)) i++;
    TE_REQUIRE(i < p->op_count, ctx, TE_ERROR_VALUE, "%s: %s has no (router, %.60s, ..)", call, p->name, router);
    te_run r;
    te__begin(&r, p, TE_FORWARD, (int64_t)saved->batch * saved->seq,
              saved->sequences ? saved->sequences : saved->batch, ctx);
    if (te__has_memory(p)) r.memory = saved->memory_rows;
    te__take_params(&r, saved->model);
    te__set_recipe_use(&r, TE_USE_as_bound);
    (void)te__lay_out(&r, (char *)saved->memory);
    TE_REQUIRE(r.stats[i], ctx, TE_ERROR_STATE, "%s: (router, %.60s, ..) stands in a (recompute, ..)", call, router);
    memset(&a, 0, sizeof a);
    const te_routing t = te__routing_of(&r, i);
    a.counts = counts, a.offset = t.offset, a.experts = p->op[i].experts, a.capacity = dropped ? t.capacity : 0;
    return te_router_count_launch(ctx, te__grid_of(1, 1), &a);
}
/* Adds to counts[e] how many rows the router called `router` has sent to expert e in the forward that filled *saved,
 * including dropped rows. counts: [experts] in f32, in target memory. Errors: TE_ERROR_STATE if no forward has filled
 * *saved or if the router is inside a (recompute, ..), whose values are not saved; TE_ERROR_VALUE if the op list has no
 * such router; TE_ERROR_NULL. */
TE_IF_USED TE_API te_status te_router_counts(float *counts, const te_saved *saved, const char *router,
                                             te_context *ctx) {
    return te__router_count_rows(counts, saved, router, 0, "te_router_counts", ctx);
}
/* Like te_router_counts, but counts only the rows that were dropped because they exceeded an expert's capacity. */
TE_IF_USED TE_API te_status te_router_dropped(float *counts, const te_saved *saved, const char *router,
                                              te_context *ctx) {
    return te__router_count_rows(counts, saved, router, 1, "te_router_dropped", ctx);
}
/* Adds `rate` to the choice_bias of each expert with fewer rows than the mean of `counts`, and subtracts `rate` from
 * the choice_bias of each expert with more rows, so that the next tokens are spread more evenly. In bf16 and f16, a
 * rate below half a unit in the last place of the bias changes nothing, because the sum is rounded. counts: [experts]
 * in f32, in target memory. Errors: TE_ERROR_NULL; TE_ERROR_VALUE if `bias` is no choice_bias. */
TE_IF_USED TE_API te_status te_router_balance(te_param *bias, const float *counts, float rate, te_context *ctx) {
    te_balance_args a;
    TE_TRY(te__check_target(ctx, "te_router_balance"));
    TE_REQUIRE(bias && bias->data && counts, ctx, TE_ERROR_NULL,
               "te_router_balance: the bias is null or not bound, or the counts are null");
    TE_REQUIRE(!strcmp(bias->field, "choice_bias"), ctx, TE_ERROR_VALUE, "te_router_balance: %s.%s is no choice_bias",
               bias->op, bias->field);
    memset(&a, 0, sizeof a);
    a.counts = (float *)(uintptr_t)counts, a.bias = bias->data, a.dtype = bias->dtype, a.experts = (int)bias->cols;
    a.rate = rate;
    TE_TRY(te_router_balance_kernel_launch(ctx, te__grid_of(1, 1), &a));
    return te__param_written(bias, ctx), TE_OK;
}

#endif
