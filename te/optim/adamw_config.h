/* adamw_config.h -- the options and the state of the optimizer of adamw.h: AdamW, SGD with momentum, or Muon.
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

/* X(name): the update rules. Their formulas are in impl/adamw_kernels.h and muon.h. */
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

/* Whether Muon updates this matrix; AdamW updates all other parameters. */
typedef int (*te_muon_takes)(const te_model *model, const te_param *p);

typedef struct te_adamw_config {
    te_schedule schedule;
    float beta1, beta2, eps;
    float weight_decay;    /* of tensors with more than one row: matrices, not biases or gains */
    int decay_all;         /* 1: weight_decay applies to every tensor */
    float max_norm;        /* clip: gradients are scaled so that their global norm is at most this; 0: no clipping, and
                              no norm is computed. INFINITY: the norm is computed, but clips to TE_ADAMW_NORM_LIMIT. */
    float grad_scale;      /* every gradient is multiplied by it before anything else: 1 / loss scale */
    int skip_nonfinite;    /* 1: a step whose gradients have an infinity or a NaN changes nothing (this computes the
                              norm) */
    te_rule rule;
    te_dtype moments;      /* format of the moments: f32, or bf16 or e4m3 with stochastic rounding, which is unbiased.
                              e4m3 has a scale for each block of 128 elements; only for AdamW and SGD. */
    int no_master;         /* 1: a bf16 model has no f32 master weights; its weights are rounded stochastically */
    uint64_t seed;         /* of the stochastic rounding */
    float momentum;        /* SGD and Muon, in place of the betas; 0: none */
    int nesterov;          /* SGD and Muon: 1: Nesterov's momentum */
    te_muon_takes muon_takes; /* the matrices that Muon updates; null: te_muon_matrices, those of hidden layers */
    int match_rms;         /* Muon: 1: the orthogonal update is multiplied by 0.2 sqrt(max(rows, cols)), so that its
                              RMS is that of AdamW's (Liu et al., "Muon is scalable for LLM training", 2025) */
    float adamw_lr_factor; /* Muon: parameters that AdamW updates have the schedule's learning rate times this */
    int shards;            /* ZeRO-1 (zero1.h). te_data_group(ctx)->size: moments and master weights are sharded over
                              the data group; each rank updates its shard of the parameters and gathers the others.
                              1: each rank has all states. Each of Muon's matrices belongs to one rank. */
    const te_param_group *groups; /* parameters with their own learning rate or decay; only read by te_adamw_init */
    int group_count;
} te_adamw_config;

/* 2^56. If the norm is computed, gradients are scaled to a norm of at most this, so that the bias-corrected second
 * moment fits f32. If it is not computed, a gradient above 1e18 makes the second moment of its element infinite, and
 * that element is not updated any more. */
#define TE_ADAMW_NORM_LIMIT 72057594037927936.0f
enum { TE_ADAMW_MAX_SHARDS = 1 << 16 };
#define TE_ADAMW_MAX_STEPS (INT64_C(1) << 53) /* limit of te_adamw_set: integers that a double represents exactly */

TE_API te_adamw_config te_adamw_defaults(float lr) {
    te_adamw_config c;
    c.schedule = te_schedule_constant(lr), c.beta1 = 0.9f, c.beta2 = 0.999f, c.eps = 1e-8f, c.weight_decay = 0.01f;
    c.decay_all = 0, c.max_norm = 0.0f, c.grad_scale = 1.0f, c.skip_nonfinite = 0;
    c.rule = TE_RULE_adamw, c.moments = TE_f32, c.no_master = 0, c.seed = 1, c.momentum = 0.0f, c.nesterov = 0;
    c.muon_takes = 0, c.match_rms = 0, c.adamw_lr_factor = 1.0f, c.shards = 1, c.groups = 0, c.group_count = 0;
    return c;
}
TE_API te_adamw_config te_sgd_defaults(float lr, float momentum) {
    te_adamw_config c = te_adamw_defaults(lr);
    c.rule = TE_RULE_sgd, c.momentum = momentum, c.weight_decay = 0.0f;
    return c;
}
/* The values of the publication, where lr is 0.02. adamw_lr_factor times lr is the learning rate of the parameters that
 * AdamW updates. With match_rms, lr is one that suits AdamW, and the factor can be 1. */
TE_API te_adamw_config te_muon_defaults(float lr) {
    te_adamw_config c = te_adamw_defaults(lr);
    c.rule = TE_RULE_muon, c.momentum = 0.95f, c.nesterov = 1, c.weight_decay = 0.0f;
    return c;
}

/* Lies in target memory. A checkpoint needs only step and skipped; the other members are recomputed at the beginning of
 * each step. */
typedef struct te_adamw_state {
    int64_t step, skipped;      /* updates made; steps skipped because of skip_nonfinite */
    float norm;                 /* of the gradients after grad_scale, before clipping; infinity if it does not fit f32,
                                   which does not cause a step to be skipped: only gradients that are not finite do */
    float lr;                   /* the learning rate */
    float adamw_lr;             /* of parameters that AdamW updates: differs under the rule Muon (adamw_lr_factor) */
    float scale;                /* grad_scale times the clipping factor */
    float correct_m, correct_v; /* bias correction, 1 / (1 - beta^step) */
    int32_t apply;              /* 0: this step is skipped */
} te_adamw_state;

TE_API int te__adamw_finite(float x) { return fabsf(x) <= 3.402823466e38f; } /* false for NaN, too */
TE_API int te__adamw_shards_valid(int shards) { return shards >= 1 && shards <= TE_ADAMW_MAX_SHARDS; }
TE_API int te__moments_dtype_valid(te_dtype moments) {
    return moments == TE_f32 || moments == TE_bf16 || moments == TE_e4m3;
}
TE_API te_status te__adamw_config_check(const te_adamw_config *c, te_context *ctx) {
    const char *problem = te__schedule_problem(&c->schedule);
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
    TE_REQUIRE(te__moments_dtype_valid(c->moments), ctx, TE_ERROR_DTYPE,
               "adamw: moments of %s; they are f32, bf16 or e4m3", te_dtype_name(c->moments));
    TE_REQUIRE(c->moments != TE_e4m3 || c->rule != TE_RULE_muon, ctx, TE_ERROR_DTYPE,
               "adamw: moments of e4m3 with muon, whose are f32 or bf16");
    TE_REQUIRE(c->momentum >= 0.0f && c->momentum < 1.0f, ctx, TE_ERROR_VALUE, "adamw: momentum %g must be in [0, 1)",
               (double)c->momentum);
    TE_REQUIRE(!c->nesterov || c->momentum > 0.0f, ctx, TE_ERROR_VALUE,
               "adamw: nesterov looks ahead by the momentum, which is 0");
    TE_REQUIRE(c->adamw_lr_factor >= 0.0f && te__adamw_finite(c->adamw_lr_factor), ctx, TE_ERROR_VALUE,
               "adamw: adamw_lr_factor %g must be finite and >= 0", (double)c->adamw_lr_factor);
    TE_REQUIRE(te__adamw_shards_valid(c->shards), ctx, TE_ERROR_VALUE, "adamw: shards is %d, it must be from 1 to %d",
               c->shards, (int)TE_ADAMW_MAX_SHARDS);
    return TE_OK;
}
/* Whether an optimizer can continue from these counts. */
TE_API int te__adamw_counts_valid(int64_t step, int64_t skipped) {
    return step >= 0 && step <= TE_ADAMW_MAX_STEPS && skipped >= 0 && skipped <= TE_ADAMW_MAX_STEPS;
}

#endif
