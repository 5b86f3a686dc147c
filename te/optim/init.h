/* init.h -- starting values for parameters.
 *
 * Do this:
 *     TE_TRY(te_model_randomize(&block.model, 0.02f, seed, 100, &ctx));      // weights normal, gammas 1, biases 0
 *     TE_TRY(te_param_normal(&block.proj.weight, 0.02f / sqrtf(2.0f * layers), seed, 7, &ctx));
 */
#ifndef TE_OPTIM_INIT_H
#define TE_OPTIM_INIT_H

#include "../model.h"  /* te_param */
#include "../target.h" /* TE_KERNEL */

typedef struct te_normal_args {
    void *w;
    int64_t count;
    te_dtype dtype;
    float mean, std;
    uint64_t seed;
    uint32_t stream;
} te_normal_args;
enum { TE_NORMAL_BLOCK = 1024, TE_NORMAL_LANES = TE_CUDA ? 256 : 1 };

/* Box & Muller 1958: four words make four numbers. */
TE_FN void te_normal_body(const te_normal_args *a, te_block b) {
    int group;
    const te_lanes g = te_lanes_here(TE_NORMAL_LANES, &group);
    for (int64_t i = (int64_t)b.x * TE_NORMAL_BLOCK + 4 * g.id; i < te_min(a->count, ((int64_t)b.x + 1) * TE_NORMAL_BLOCK); i += 4 * g.count) {
        uint32_t u[4];
        te_philox(u, a->seed, (uint64_t)i / 4, a->stream, 0);
        for (int k = 0; k < 4; k++) {
            const float radius = sqrtf(-2.0f * logf(te_uniform(u[k & 2]))), angle = 6.2831853f * te_uniform(u[(k & 2) + 1]);
            if (i + k < a->count) te_store(a->w, i + k, a->mean + a->std * radius * (k & 1 ? sinf(angle) : cosf(angle)), a->dtype);
        }
    }
}
TE_KERNEL(te_normal, TE_NORMAL_LANES, te_normal_args, te_normal_body(te_args, te_at))

/* Fill `count` elements with normal numbers; std 0 fills with the mean. The same seed and stream give the same numbers. */
TE_API te_status te_fill_normal(void *w, te_dtype dtype, int64_t count, float mean, float std, uint64_t seed, uint32_t stream, te_context *ctx) {
    te_normal_args a;
    TE_REQUIRE(w && ctx, ctx, TE_ERROR_NULL, "te_fill_normal: a pointer is null");
    TE_TRY(te_check_target(ctx, "te_fill_normal"));
    TE_REQUIRE(count >= 0 && te_ceil_div(count, TE_NORMAL_BLOCK) <= INT32_MAX, ctx, TE_ERROR_OVERFLOW, "te_fill_normal: %lld elements", (long long)count);
    a.w = w, a.count = count, a.dtype = dtype, a.mean = mean, a.std = std, a.seed = seed, a.stream = stream;
    return count ? te_normal_launch(ctx, te_grid_of(te_ceil_div(count, TE_NORMAL_BLOCK), 1), &a) : TE_OK;
}
/* The dtype of a parameter is its model's. */
TE_API te_status te_param_normal(const te_param *p, te_dtype dtype, float std, uint64_t seed, uint32_t stream, te_context *ctx) {
    return te_fill_normal(p->data, dtype, p->rows * p->cols, 0, std, seed, stream, ctx);
}
/* Every parameter of the model as its op declares it: weights normal(0, std), gammas 1 (0 if zero-centred), biases 0. Uses one
 * stream a parameter, from `stream` on. */
TE_API te_status te_model_randomize(const te_model *m, float std, uint64_t seed, uint32_t stream, te_context *ctx) {
    TE_REQUIRE(m && m->plan, ctx, TE_ERROR_STATE, "te_model_randomize: the instance has not been bound");
    for (int i = 0; i < m->param_count; i++) {
        const te_param *p = &m->param[i];
        const float mean = p->init == TE_INIT_one ? 1.0f : 0.0f;
        if (p->tied) continue;
        TE_TRY(te_fill_normal(p->data, m->plan->dtype, p->rows * p->cols, mean, p->init == TE_INIT_normal ? std : 0.0f, seed, stream + (uint32_t)i, ctx));
    }
    return TE_OK;
}

#endif
