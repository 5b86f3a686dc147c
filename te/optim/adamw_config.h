/* adamw_config.h -- the options and the state of the optimizer of adamw.h: AdamW, SGD with momentum, or Muon.
 *
 * Do this:
 *     te_adamw_config config = te_adamw_defaults(3e-4f); // or te_sgd_defaults(0.1f, 0.9f), te_muon_defaults(0.02f)
 *     config.schedule = te_schedule_of(TE_SCHEDULE_cosine, 3e-4f, 100, 10000, 0.1f), config.max_norm = 1.0f;
 */
#ifndef TE_ADAMW_CONFIG_H
#define TE_ADAMW_CONFIG_H

#include "../core/context.h" /* te_status, te_fail */
#include "../plan/model.h"   /* te_model, te_param */
#include "param_groups.h"    /* te_param_group */
#include "../core/base.h" /* TE_BOTH */

/* ---- schedules ----------------------------------------------------------------------------------------------------
 * Learning-rate schedules: a warm-up, then a decay to a fraction of the peak.
 *
 * Do this:
 *     te_schedule s = te_schedule_of(TE_SCHEDULE_cosine, 6e-4f, 200, 10000, 0.1f);
 *     float lr = te_lr(&s, step);     // on the host and inside kernels; AdamW calls it with its own counter
 *
 * A schedule is plain data, te_lr is a pure function of the step, and the optimizer counts steps on the device.
 * Therefore the learning rate also follows the schedule if a captured CUDA graph is replayed.
 */

/* The learning-rate schedules, X(name, decay): `decay` is a formula in t, which rises from 0 at the end of the warm-up
 * to 1 at step `total`. Every decay falls from 1 to 0, except the decay of `constant`. */
#define TE_SCHEDULES(X)                                  \
    X(constant, 1.0f)                                    \
    X(linear, 1.0f - t)                                  \
    X(cosine, 0.5f + 0.5f * cosf(3.14159265358979f * t)) \
    X(sqrt, 1.0f - sqrtf(t))

#define TE_SCHEDULE_ENUM(name, decay) TE_SCHEDULE_##name,
typedef enum te_schedule_kind { TE_SCHEDULES(TE_SCHEDULE_ENUM) TE_SCHEDULE_COUNT } te_schedule_kind;
#undef TE_SCHEDULE_ENUM

typedef struct te_schedule {
    te_schedule_kind kind;
    float peak;            /* the learning rate after the warm-up */
    float final_fraction;  /* the learning rate from step `total` on, as a fraction of the peak */
    int64_t warmup, total; /* in steps; `total` includes the warm-up */
} te_schedule;

TE_API te_schedule te_schedule_of(te_schedule_kind kind, float peak, int64_t warmup, int64_t total,
                                  float final_fraction) {
    te_schedule s;
    s.kind = kind, s.peak = peak, s.final_fraction = final_fraction, s.warmup = warmup, s.total = total;
    return s;
}
/* Return a schedule with the learning rate lr at every step. */
TE_API te_schedule te_schedule_constant(float lr) { return te_schedule_of(TE_SCHEDULE_constant, lr, 0, 0, 1.0f); }

TE_API const char *te_schedule_name(te_schedule_kind kind) {
#define TE_SCHEDULE_NAME(name, decay) #name,
    static const char *const names[] = {TE_SCHEDULES(TE_SCHEDULE_NAME)};
#undef TE_SCHEDULE_NAME
    return (unsigned)kind < (unsigned)TE_SCHEDULE_COUNT ? names[kind] : "unknown";
}

/* Return null if the schedule is valid, else a text that says what is wrong with the schedule. */
TE_API const char *te__schedule_problem(const te_schedule *s) {
    if (!s) return "there is none";
    if ((unsigned)s->kind >= (unsigned)TE_SCHEDULE_COUNT) return "there is no such kind";
    if (!(s->peak >= 0.0f && s->peak <= 3.4e38f)) return "the peak must be a number >= 0";
    if (!(s->final_fraction >= 0.0f && s->final_fraction <= 3.4e38f)) return "the final fraction must be a number >= 0";
    if (s->warmup < 0) return "the warm-up must be >= 0 steps";
    if (s->total < 0) return "the total must be >= 0 steps";
    if (s->kind != TE_SCHEDULE_constant &&
        s->total <= s->warmup) return "the total must be more steps than the warm-up";
    return 0;
}

/* Return the learning rate of step number `step`, counted from 0. During the warm-up the learning rate is peak * (step
 * + 1) / warmup, so the first step does not have the learning rate 0. After the warm-up it is peak * (final_fraction +
 * (1 - final_fraction) * decay(t)). */
TE_BOTH float te_lr(const te_schedule *s, int64_t step) {
    float decay = 1.0f;
    if (step < s->warmup) return (float)((double)s->peak * (double)(step + 1) / (double)s->warmup);
    const double done = (double)(step - s->warmup), length = (double)(s->total - s->warmup);
    const float t = done < length ? (float)(done / length) : 1.0f;
    (void)t;
#define TE_SCHEDULE_CASE(name, formula) \
    if (s->kind == TE_SCHEDULE_##name) decay = formula;
    TE_SCHEDULES(TE_SCHEDULE_CASE)
#undef TE_SCHEDULE_CASE
    return s->peak * (s->final_fraction + (1.0f - s->final_fraction) * decay);
}

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

/* The type of a function that the program provides: it returns whether Muon updates the matrix p. AdamW updates all
 * parameters that Muon does not update. */
typedef int (*te_muon_takes)(const te_model *model, const te_param *p);

typedef struct te_adamw_config {
    te_schedule schedule;
    float beta1, beta2, eps;
    float weight_decay;    /* applies to tensors with more than one row, i.e. not to biases and the gains of norms */
    int decay_all;         /* 1: weight_decay applies to every tensor */
    float max_norm;        /* gradients are scaled down so that their global norm is at most max_norm. 0: the norm is
                            * not computed, and gradients are not clipped. INFINITY: the norm is computed, and gradients
                            * are clipped only to TE_ADAMW_NORM_LIMIT */
    float grad_scale;      /* every gradient is first multiplied by grad_scale, which should be 1 / loss scale */
    int skip_nonfinite;    /* 1: a step changes nothing if the gradients contain an infinity or a NaN. The norm is then
                            * always computed, to find such gradients */
    te_rule rule;
    te_dtype moments;      /* the format of the moments: f32, bf16 or e4m3. Moments in bf16 and e4m3 are rounded
                              stochastically, so that the rounding is unbiased. e4m3 has a scale for each block of 128
                              elements, and is supported only by AdamW and SGD. */
    int no_master;         /* 1: a bf16 model has no f32 master weights; its weights are rounded stochastically */
    uint64_t seed;         /* the seed of the stochastic rounding */
    float momentum;        /* for SGD and Muon: the factor by which each step multiplies the momentum; 0 for no
                            * momentum. SGD and Muon do not use beta1 and beta2 */
    int nesterov;          /* for SGD and Muon: 1 to use Nesterov's momentum */
    te_muon_takes muon_takes; /* selects the matrices that Muon updates; null means te_muon_matrices, which selects the
                               * matrices of hidden layers */
    int match_rms;         /* for Muon, 1: multiply the orthogonal update by 0.2 sqrt(max(rows, cols)). The update then
                            * has about the RMS of AdamW's updates (Liu et al., "Muon is scalable for LLM training",
                            * 2025) */
    float adamw_lr_factor; /* for Muon: AdamW's learning rate is the schedule's learning rate times this factor */
    int shards;            /* 1: no ZeRO-1; each rank has all moments and master weights. te_data_group(ctx)->size:
                            * ZeRO-1 (zero1.h). Moments and master weights are then sharded over the data group; each
                            * rank updates its own shard of the parameters, and then receives the other ranks' shards.
                            * With Muon, each matrix belongs to one rank. */
    const te_param_group *groups; /* groups of parameters with another learning rate or weight decay; only te_adamw_init
                                   * reads this array */
    int group_count;
} te_adamw_config;

/* 2^56. If the gradient norm is computed, gradients are scaled down so that their norm is at most 2^56. The
 * bias-corrected second moment then fits f32. If the norm is not computed, a gradient above 1e18 makes the second
 * moment of its element infinite, and this element is never updated again. */
#define TE_ADAMW_NORM_LIMIT 72057594037927936.0f
enum { TE_ADAMW_MAX_SHARDS = 1 << 16 };
#define TE_ADAMW_MAX_STEPS (INT64_C(1) << 53) /* the limit of te_adamw_set: a double represents every integer up to
                                               * 2^53 */

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
/* Return a config for Muon with the values of its publication (cited in muon.h), where lr is 0.02. The parameters that
 * AdamW updates have the learning rate lr * adamw_lr_factor. If you set match_rms, choose an lr that suits AdamW;
 * adamw_lr_factor can then be 1. */
TE_API te_adamw_config te_muon_defaults(float lr) {
    te_adamw_config c = te_adamw_defaults(lr);
    c.rule = TE_RULE_muon, c.momentum = 0.95f, c.nesterov = 1, c.weight_decay = 0.0f;
    return c;
}

/* The optimizer's scalars, in target memory. A checkpoint stores only `step` and `skipped`, because each optimizer step
 * computes all other members. */
typedef struct te_adamw_state {
    int64_t step, skipped;      /* step: how many steps have updated the parameters; skipped: how many steps were
                                 * skipped because of skip_nonfinite */
    float norm;                 /* the norm of the gradients times grad_scale, before clipping. Infinity if the norm
                                 * does not fit f32. Only infinite or NaN gradients cause the step to be skipped, not an
                                 * infinite norm alone */
    float lr;                   /* the learning rate */
    float adamw_lr;             /* the learning rate of parameters that AdamW updates; it differs from lr only if the
                                 * rule is Muon (adamw_lr_factor) */
    float scale;                /* grad_scale times the clipping factor */
    float correct_m, correct_v; /* the factors of the bias correction: 1 / (1 - beta1^step) for m, 1 / (1 - beta2^step)
                                   for v */
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
               "muon: moments of e4m3; they are f32 or bf16");
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
/* Return whether an optimizer can continue with these numbers of steps made and steps skipped. */
TE_API int te__adamw_counts_valid(int64_t step, int64_t skipped) {
    return step >= 0 && step <= TE_ADAMW_MAX_STEPS && skipped >= 0 && skipped <= TE_ADAMW_MAX_STEPS;
}

#endif
