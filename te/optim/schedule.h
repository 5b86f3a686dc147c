/* schedule.h -- learning-rate schedules: a warm-up, then a decay to a fraction of the peak.
 *
 * Do this:
 *     te_schedule s = te_schedule_of(TE_SCHEDULE_cosine, 6e-4f, 200, 10000, 0.1f);
 *     float lr = te_lr(&s, step);     // on the host and inside kernels; AdamW calls it with its own counter
 *
 * A schedule is plain data, te_lr is a pure function of the step, and the optimizer counts steps on the device. So
 * replays of a captured CUDA graph follow the schedule.
 */
#ifndef TE_SCHEDULE_H
#define TE_SCHEDULE_H

#include "../core/base.h" /* TE_BOTH */

/* X(name, decay): the factor of the peak at t, from 1 at t = 0 (end of the warm-up) to 0 at t = 1 (step `total`). */
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
    float final_fraction;  /* of the peak, from step `total` on */
    int64_t warmup, total; /* steps; total includes the warm-up */
} te_schedule;

TE_API te_schedule te_schedule_of(te_schedule_kind kind, float peak, int64_t warmup, int64_t total,
                                  float final_fraction) {
    te_schedule s;
    s.kind = kind, s.peak = peak, s.final_fraction = final_fraction, s.warmup = warmup, s.total = total;
    return s;
}
/* The same learning rate at every step. */
TE_API te_schedule te_schedule_constant(float lr) { return te_schedule_of(TE_SCHEDULE_constant, lr, 0, 0, 1.0f); }

TE_API const char *te_schedule_name(te_schedule_kind kind) {
#define TE_SCHEDULE_NAME(name, decay) #name,
    static const char *const names[] = {TE_SCHEDULES(TE_SCHEDULE_NAME)};
#undef TE_SCHEDULE_NAME
    return (unsigned)kind < (unsigned)TE_SCHEDULE_COUNT ? names[kind] : "unknown";
}

/* Null if the schedule is valid, else a text with the reason. */
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

/* The learning rate of a step; the first step is 0. The warm-up is peak * (step + 1) / warmup, so that the first step's
 * learning rate is not 0. Behind it: peak * (final + (1 - final) * decay(t)). */
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

#endif
