/* init.h -- starting values for parameters.
 *
 * Do this:
 *     TE_TRY(te_model_randomize(&block.model, 0.02f, seed, 100, &ctx));      // weights normal, norms 1, biases 0
 *     TE_TRY(te_param_normal(&block.proj.weight, 0.02f / sqrtf(2.0f * layers), seed, 7, &ctx));
 */
#ifndef TE_OPTIM_INIT_H
#define TE_OPTIM_INIT_H

#include "../core/tensor_kernels.h"  /* te_fill_normal */
#include "../plan/bind.h"  /* te__check_writable */

/* Fill a parameter with numbers from the normal distribution (mean, std). An element of a sharded parameter gets the
 * same number as in the unsharded parameter, if the seed is the same on all ranks. */
TE_IF_USED TE_API te_status te__param_fill(te_param *p, float mean, float std, uint64_t seed, uint32_t stream,
                                           te_context *ctx) {
    const te_group *g = te_tensor_group(ctx);
    const te_shard_layout s = te_shard_layout_of(p, g);
    if (p->shard == TE_SHARD_rows) { /* the shard has some columns of every row; one call fills these columns in all
                                      * rows */
        const te__normal_part part = te__normal_part_of(p->rows, p->cols, g->rank * p->cols, g->size * p->cols);
        TE_TRY(te__fill_normal_part(p->data, p->dtype, part, mean, std, seed, stream, ctx));
        return te__param_written(p, ctx), TE_OK;
    }
    for (int64_t i = 0; i < s.count; i++) {
        const te_shard_run r = te_shard_run_at(&s, i);
        const te__normal_part part = te__normal_part_of(1, r.elements, r.whole, r.elements);
        char *data = (char *)p->data + (size_t)r.at * te_dtype_bytes(p->dtype);
        TE_TRY(te__fill_normal_part(data, p->dtype, part, mean, std, seed, stream, ctx));
        te__param_written(p, ctx);
    }
    return TE_OK;
}
/* Fill a parameter with numbers from the normal distribution (0, std), rounded to the parameter's dtype. */
TE_IF_USED TE_API te_status te_param_normal(te_param *p, float std, uint64_t seed, uint32_t stream,
                                            te_context *ctx) {
    TE_REQUIRE(p && p->data, ctx, TE_ERROR_NULL, "te_param_normal: the parameter is null or not bound");
    TE_REQUIRE(!p->constant, ctx, TE_ERROR_STATE, "te_param_normal: %s.%s lies in a file, which is only read", p->op,
               p->field);
    TE_REQUIRE(fabsf(std) <= 3.402823466e38f, ctx, TE_ERROR_VALUE, "te_param_normal: std is %g", (double)std);
    return te__param_fill(p, 0, std, seed, stream, ctx);
}
/* Return the mean of a parameter's initial values. */
TE_API float te__init_constant(te_init init) {
    switch (init) {
        case TE_INIT_one: return 1.0f;
        case TE_INIT_half: return 0.5f;
        case TE_INIT_xielu_p: return 0.20338232f;  /* log(e^0.8 - 1) */
        case TE_INIT_xielu_n: return -1.05022561f; /* log(e^0.3 - 1) */
        default: return 0.0f;
    }
}
/* Initialise every parameter of m as its op declares: weights from the normal distribution (0, std), the gains of norms
 * 1 (0 if the norm adds 1 to the gain), biases 0. Parameter i draws from the random stream number stream + i. */
TE_IF_USED TE_API te_status te_model_randomize(const te_model *m, float std, uint64_t seed, uint32_t stream,
                                               te_context *ctx) {
    TE_REQUIRE(m && m->plan && (!m->at || m->at == m), ctx, TE_ERROR_STATE,
               "te_model_randomize: the instance has not been bound, or copied since");
    TE_REQUIRE(fabsf(std) <= 3.402823466e38f, ctx, TE_ERROR_VALUE, "te_model_randomize: std is %g", (double)std);
    TE_TRY(te__check_writable(m, "te_model_randomize", ctx));
    for (int i = 0; i < m->param_count; i++)
        TE_REQUIRE(m->param[i].data || m->param[i].tied, ctx, TE_ERROR_STATE,
                   "te_model_randomize: %s: %s.%s has no memory", m->plan->name, m->param[i].op, m->param[i].field);
    for (int i = 0; i < m->param_count; i++) {
        te_param *p = &m->param[i];
        const float mean = te__init_constant(p->init);
        if (p->tied) continue;
        TE_TRY(te__param_fill(p, mean, p->init == TE_INIT_normal ? std : 0.0f, seed, stream + (uint32_t)i, ctx));
    }
    return TE_OK;
}

#endif
