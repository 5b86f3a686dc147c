/* adamw_config.h -- what the optimizer is told, and what it has counted.
 *
 * Do this:
 *     te_adamw_config config = te_adamw_defaults(3e-4f); // te_sgd_defaults(0.1f, 0.9f)
 *     config.schedule = te_schedule_of(TE_SCHEDULE_cosine, 3e-4f, 100, 10000, 0.1f), config.max_norm = 1.0f;
 */
#ifndef TE_ADAMW_CONFIG_H
#define TE_ADAMW_CONFIG_H

#include "../core/context.h" /* te_status, te_fail */
#include "../plan/model.h"   /* te_model, te_param */
#include "param_groups.h"    /* te_param_group */
#include "schedule.h"        /* te_schedule */

/* X(name): what becomes of a gradient. The formulas are in adamw_kernels.h and muon.h. */
#define TE_RULES(X) \
    X(adamw)        \
    X(sgd)          \
    X(muon)
#define TE_RULE_ENUM(name) TE_RULE_##name,
typedef enum te_rule { TE_RULES(TE_RULE_ENUM) TE_RULE_COUNT } te_rule;
#undef TE_RULE_ENUM

TE_API const char *te_rule_name(te_rule rule) {
#define TE_RULE_TEXT(name) #name,
    static const char *const names[] = {TE_RULES(TE_RULE_TEXT)};
#undef TE_RULE_TEXT
    return (unsigned)rule < (unsigned)TE_RULE_COUNT ? names[rule] : "unknown";
}

/* Whether Muon takes this matrix; AdamW takes the others. */
typedef int (*te_muon_takes)(const te_model *model, const te_param *p);

typedef struct te_adamw_config {
    te_schedule schedule;
    float beta1, beta2, eps;
    float weight_decay;  /* of tensors with more than one row: matrices, not biases or gains */
    int decay_all;       /* 1: of every tensor */
    float max_norm;      /* gradients are scaled so that their global norm is no more; 0: no clipping, no norm.
                            INFINITY: the norm is computed, and nothing clipped below TE_ADAMW_LARGEST. */
    float grad_scale;    /* what every gradient is multiplied by before anything else: 1 / loss scale */
    int skip_nonfinite;  /* 1: a step whose gradients have an infinity or a NaN changes nothing (computes the norm) */
    te_rule rule;
    te_dtype moments;    /* f32; bf16 or e4m3, rounded up or down by chance, so that the mean is what was to be stored.
                            e4m3 has a scale for each block of 128 elements (moment_blocks.h); AdamW and SGD. */
    int no_master;       /* 1: a bf16 model has no f32 copy of its weights, and these are rounded by chance, too */
    uint64_t seed;       /* of these chances */
    float momentum;      /* SGD and Muon, in place of the betas; 0: none */
    int nesterov;        /* SGD and Muon: 1: the update looks ahead by a step of momentum */
    te_muon_takes muon_takes; /* null: te_muon_matrices, those of hidden layers */
    int match_rms;       /* Muon: 1: updates are 0.2 sqrt(max(rows, cols)) orthogonal ones, which have the root mean
                            square of AdamW's (Liu et al., "Muon is scalable for LLM training", 2025) */
    float rest;          /* Muon: what AdamW takes has this factor of the schedule's learning rate */
    int shards;          /* te_data_group(ctx)->size: moments and master weights are shared out over the data group
                            (slices.h), each rank updates its share of the parameters and gathers the others'; 1: each
                            rank has all of them. Of Muon's matrices each belongs to one rank */
    const te_param_group *groups; /* of a learning rate or decay of their own; read by te_adamw_init alone */
    int group_count;
} te_adamw_config;

/* 2^56. Where the norm is computed, gradients are scaled to a norm of at most this, so that their squares, corrected
 * for having begun at 0, fit f32. Where it is not, an element above 1e18 makes its second moment infinite, and stands
 * still. */
#define TE_ADAMW_LARGEST 72057594037927936.0f
enum { TE_ADAMW_SHARDS = 1 << 16 }; /* at most */
#define TE_ADAMW_STEPS (INT64_C(1) << 53) /* most steps to begin from: a double counts them exactly */

TE_API te_adamw_config te_adamw_defaults(float lr) {
    te_adamw_config c;
    c.schedule = te_schedule_constant(lr), c.beta1 = 0.9f, c.beta2 = 0.999f, c.eps = 1e-8f, c.weight_decay = 0.01f;
    c.decay_all = 0, c.max_norm = 0.0f, c.grad_scale = 1.0f, c.skip_nonfinite = 0;
    c.rule = TE_RULE_adamw, c.moments = TE_f32, c.no_master = 0, c.seed = 1, c.momentum = 0.0f, c.nesterov = 0;
    c.muon_takes = 0, c.match_rms = 0, c.rest = 1.0f, c.shards = 1, c.groups = 0, c.group_count = 0;
    return c;
}
TE_API te_adamw_config te_sgd_defaults(float lr, float momentum) {
    te_adamw_config c = te_adamw_defaults(lr);
    c.rule = TE_RULE_sgd, c.momentum = momentum, c.weight_decay = 0.0f;
    return c;
}
/* As published: 0.02 is its learning rate, with `rest` for AdamW's; with match_rms AdamW's serves both. */
TE_API te_adamw_config te_muon_defaults(float lr) {
    te_adamw_config c = te_adamw_defaults(lr);
    c.rule = TE_RULE_muon, c.momentum = 0.95f, c.nesterov = 1, c.weight_decay = 0.0f;
    return c;
}

/* Lives in target memory. A checkpoint needs step and skipped; the rest is what the last step worked with. */
typedef struct te_adamw_state {
    int64_t step, skipped;    /* updates made; steps left out because of skip_nonfinite */
    float norm;               /* of the gradients after grad_scale, before clipping; infinity where it does not fit (the
                                 step counts as finite all the same) */
    float lr;                 /* the learning rate */
    float adamw_lr;           /* AdamW's: the same, but beside Muon */
    float scale;              /* grad_scale times clipping */
    float correct_m, correct_v; /* 1 / (1 - beta^step) */
    int32_t apply;            /* 0: this step is left out */
} te_adamw_state;

TE_API int te__adamw_finite(float x) { return fabsf(x) <= 3.402823466e38f; } /* no NaN either */
TE_API int te__adamw_shards(int shards) { return shards >= 1 && shards <= TE_ADAMW_SHARDS; }
TE_API int te__moments_known(te_dtype moments) {
    return moments == TE_f32 || moments == TE_bf16 || moments == TE_e4m3;
}
TE_API te_status te__adamw_config_check(const te_adamw_config *c, te_context *ctx) {
    const char *problem = te_schedule_problem(&c->schedule);
    TE_REQUIRE(!problem, ctx, TE_ERROR_VALUE, "adamw: schedule %s (peak %g, warmup %lld, total %lld, final %g): %s",
               te_schedule_name(c->schedule.kind), (double)c->schedule.peak, (long long)c->schedule.warmup,
               (long long)c->schedule.total, (double)c->schedule.final_fraction, problem);
    TE_REQUIRE(c->beta1 >= 0.0f && c->beta1 < 1.0f && c->beta2 >= 0.0f && c->beta2 < 1.0f, ctx, TE_ERROR_VALUE,
               "adamw: beta1 %g and beta2 %g must be in [0, 1)", (double)c->beta1, (double)c->beta2);
    TE_REQUIRE(c->eps > 0.0f && te__adamw_finite(c->eps), ctx, TE_ERROR_VALUE, "adamw: eps %g must be finite and > 0",
               (double)c->eps);
    TE_REQUIRE(c->weight_decay >= 0.0f && te__adamw_finite(c->weight_decay), ctx, TE_ERROR_VALUE,
               "adamw: weight_decay %g must be finite and >= 0", (double)c->weight_decay);
    TE_REQUIRE(c->max_norm >= 0.0f, ctx, TE_ERROR_VALUE, "adamw: max_norm %g must be >= 0", (double)c->max_norm);
    TE_REQUIRE(fabsf(c->grad_scale) > 0.0f && te__adamw_finite(c->grad_scale), ctx, TE_ERROR_VALUE,
               "adamw: grad_scale %g must be finite and not 0", (double)c->grad_scale);
    TE_REQUIRE((unsigned)c->rule < (unsigned)TE_RULE_COUNT, ctx, TE_ERROR_VALUE, "adamw: rule %d", (int)c->rule);
    TE_REQUIRE(te__moments_known(c->moments), ctx, TE_ERROR_DTYPE,
               "adamw: moments of %s; they are f32, bf16 or e4m3", te_dtype_name(c->moments));
    TE_REQUIRE(c->moments != TE_e4m3 || c->rule != TE_RULE_muon, ctx, TE_ERROR_DTYPE,
               "adamw: moments of e4m3 with muon, whose are f32 or bf16");
    TE_REQUIRE(c->momentum >= 0.0f && c->momentum < 1.0f, ctx, TE_ERROR_VALUE, "adamw: momentum %g must be in [0, 1)",
               (double)c->momentum);
    TE_REQUIRE(!c->nesterov || c->momentum > 0.0f, ctx, TE_ERROR_VALUE,
               "adamw: nesterov looks ahead by the momentum, which is 0");
    TE_REQUIRE(c->rest >= 0.0f && te__adamw_finite(c->rest), ctx, TE_ERROR_VALUE,
               "adamw: rest %g must be finite and >= 0", (double)c->rest);
    TE_REQUIRE(te__adamw_shards(c->shards), ctx, TE_ERROR_VALUE, "adamw: shards is %d, it must be from 1 to %d",
               c->shards, (int)TE_ADAMW_SHARDS);
    return TE_OK;
}
/* Counts that a run can go on from. */
TE_API int te__adamw_counts(int64_t step, int64_t skipped) {
    return step >= 0 && step <= TE_ADAMW_STEPS && skipped >= 0 && skipped <= TE_ADAMW_STEPS;
}

#endif
