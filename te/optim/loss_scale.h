/* loss_scale.h -- dynamic loss scaling, for training in f16. Gradients below 6e-8 are 0 in f16, and gradients above
 * 65504 are infinite. So backward computes the gradients of loss * scale, and the optimizer divides the gradients by
 * the scale. If the gradients have an infinity or a NaN, the optimizer step is skipped, and the scale is halved; after
 * 2000 steps in a row without a skip, the scale is doubled (Micikevicius et al., "Mixed precision training", ICLR 2018;
 * the defaults are those of PyTorch's GradScaler). The scale lies in target memory, so that a captured graph of a step
 * can be replayed.
 *
 * Do this:
 *     te_loss_scale_config config = te_loss_scale_defaults();
 *     TE_TRY(te_loss_scaler_init(&scaler, memory, te_loss_scaler_bytes(), &config, &ctx));
 *     TE_TRY(te_adamw_use_loss_scaler(&opt, &scaler, &ctx));   // after te_adamw_init
 *     batch.loss_scale = 1.0f / rows, batch.loss_count = te_loss_scaler_inverse(&scaler);  // dloss = scale / rows
 *     ... forward, backward, te_adamw_step, as without loss scaling
 *
 * To average the loss over the labels that are not ignored (te_count_labels), set batch.loss_count to the result of
 * te_loss_scaler_count instead. If a list of ops does not end in a loss, the program must multiply dy, the gradient of
 * the list's output, by the scale (te_loss_scaler_get).
 */
#ifndef TE_LOSS_SCALE_H
#define TE_LOSS_SCALE_H

#include "../core/target.h" /* TE_KERNEL_IF_USED, te__check_target */

typedef struct te_loss_scale_config {
    float scale;             /* the first scale */
    float growth, backoff;   /* the scale is multiplied by `growth` after `interval` steps in a row without a skip, and
                              * by `backoff` after each skipped step */
    int interval;
} te_loss_scale_config;

TE_API te_loss_scale_config te_loss_scale_defaults(void) {
    te_loss_scale_config c;
    c.scale = 65536.0f, c.growth = 2.0f, c.backoff = 0.5f, c.interval = 2000;
    return c;
}

/* The state, in target memory. */
typedef struct te_loss_scale_state {
    float inverse, scale; /* inverse: 1 / scale */
    int32_t good;         /* number of consecutive steps without a skip, since the scale last changed */
    int32_t interval;
    float growth, backoff;
} te_loss_scale_state;

typedef struct te_loss_scaler { te_loss_scale_state *state; /* target memory */ } te_loss_scaler;

/* The limits of the scale. Between them, the scale and its inverse are normal (not subnormal) numbers. */
#define TE_LOSS_SCALE_MIN 5.421010862427522e-20f /* 2^-64 */
#define TE_LOSS_SCALE_MAX 1.8446744073709552e19f /* 2^64 */

/* Update the scale after an optimizer step. finite: 1 if all gradients were finite, else 0. One thread of the device
 * calls this function. */
TE_BOTH void te__loss_scale_update(te_loss_scale_state *s, int finite) {
    float scale = s->scale;
    s->good = finite ? s->good + 1 : 0;
    if (!finite) scale *= s->backoff;
    else if (s->good >= s->interval) scale *= s->growth, s->good = 0;
    s->scale = fminf(fmaxf(scale, TE_LOSS_SCALE_MIN), TE_LOSS_SCALE_MAX);
    s->inverse = 1.0f / s->scale;
}

/* Return whether a run can continue with this scale, and with `good` as the number of steps since the scale last
 * changed. */
TE_API int te__loss_scale_valid(float scale, int64_t good) {
    return scale >= TE_LOSS_SCALE_MIN && scale <= TE_LOSS_SCALE_MAX && good >= 0 && good < INT32_MAX;
}
/* Return the bytes of target memory that te_loss_scaler_init needs. */
TE_API size_t te_loss_scaler_bytes(void) { return (size_t)te_round_up((int64_t)sizeof(te_loss_scale_state), TE_ALIGN); }
TE_API te_status te__loss_scaler_check(const te_loss_scaler *s, const char *who, te_context *ctx) {
    TE_TRY(te__check_target(ctx, who));
    TE_REQUIRE(s && s->state, ctx, TE_ERROR_NULL, "%s: the loss scaler is null or not initialised", who);
    return TE_OK;
}
/* Initialise the loss scaler *s. memory: target memory of te_loss_scaler_bytes bytes, aligned to TE_ALIGN. Waits for
 * the stream. Errors: TE_ERROR_NULL, TE_ERROR_MEMORY, TE_ERROR_ALIGNMENT; TE_ERROR_VALUE: a scale outside of 2^-64 to
 * 2^64, a growth below 1, a backoff that is not between 0 and 1, an interval below 1. */
TE_API te_status te_loss_scaler_init(te_loss_scaler *s, void *memory, size_t bytes, const te_loss_scale_config *config,
                                     te_context *ctx) {
    te_loss_scale_state first;
    TE_TRY(te__check_target(ctx, "te_loss_scaler_init"));
    TE_REQUIRE(s && memory && config, ctx, TE_ERROR_NULL,
               "te_loss_scaler_init: the struct, the memory or the config is null");
    TE_REQUIRE(bytes >= te_loss_scaler_bytes(), ctx, TE_ERROR_MEMORY,
               "te_loss_scaler_init: memory has %zu bytes, %zu are needed", bytes, te_loss_scaler_bytes());
    TE_REQUIRE((uintptr_t)memory % TE_ALIGN == 0, ctx, TE_ERROR_ALIGNMENT,
               "te_loss_scaler_init: memory must be aligned to %d bytes", (int)TE_ALIGN);
    TE_REQUIRE(config->scale >= TE_LOSS_SCALE_MIN && config->scale <= TE_LOSS_SCALE_MAX, ctx, TE_ERROR_VALUE,
               "te_loss_scaler_init: scale is %g", (double)config->scale);
    TE_REQUIRE(config->growth >= 1.0f && config->growth <= TE_LOSS_SCALE_MAX, ctx, TE_ERROR_VALUE,
               "te_loss_scaler_init: growth is %g, it must be 1 or more", (double)config->growth);
    TE_REQUIRE(config->backoff > 0.0f && config->backoff < 1.0f, ctx, TE_ERROR_VALUE,
               "te_loss_scaler_init: backoff is %g, it must be between 0 and 1", (double)config->backoff);
    TE_REQUIRE(config->interval >= 1, ctx, TE_ERROR_VALUE, "te_loss_scaler_init: interval is %d", config->interval);
    memset(&first, 0, sizeof first);
    first.scale = config->scale, first.inverse = 1.0f / config->scale, first.good = 0;
    first.interval = config->interval, first.growth = config->growth, first.backoff = config->backoff;
    TE_TRY(te_copy(ctx, memory, &first, sizeof first));
    TE_TRY(te_synchronize(ctx));
    s->state = (te_loss_scale_state *)memory;
    return TE_OK;
}
/* Return the address of 1 / scale in target memory, for te_batch.loss_count. */
TE_API const float *te_loss_scaler_inverse(const te_loss_scaler *s) { return s && s->state ? &s->state->inverse : 0; }

typedef struct te__loss_scaler_count_args {
    const te_loss_scale_state *state;
    const float *count;
    float *to;
} te__loss_scaler_count_args;
TE_FN void te__loss_scaler_count_body(const te__loss_scaler_count_args *a) {
    const float count = *a->count;
    /* if all labels are ignored, the count is taken as 1, as in te_mean_loss */
    *a->to = (count > 0.0f ? count : 1.0f) * a->state->inverse;
}
TE_KERNEL_IF_USED(te__loss_scaler_count, 1, 1, te__loss_scaler_count_args, te__loss_scaler_count_body(te_args))
/* Enqueue a kernel that stores count[0] / scale in to[0], for te_batch.loss_count. count: the result of
 * te_count_labels. `to` and `count` are in target memory. */
TE_IF_USED TE_API te_status te_loss_scaler_count(float *to, const float *count, const te_loss_scaler *s,
                                                      te_context *ctx) {
    te__loss_scaler_count_args a;
    TE_TRY(te__loss_scaler_check(s, "te_loss_scaler_count", ctx));
    TE_REQUIRE(to && count, ctx, TE_ERROR_NULL, "te_loss_scaler_count: to or count is null");
    memset(&a, 0, sizeof a);
    a.state = s->state, a.count = count, a.to = to;
    return te__loss_scaler_count_launch(ctx, te__grid_of(1, 1), &a);
}
/* Copy the scaler's state to *state in host memory, for a progress line, or to save the state without a checkpoint.
 * Waits for the stream. */
TE_API te_status te_loss_scaler_get(te_loss_scale_state *state, const te_loss_scaler *s, te_context *ctx) {
    TE_TRY(te__loss_scaler_check(s, "te_loss_scaler_get", ctx));
    TE_REQUIRE(state, ctx, TE_ERROR_NULL, "te_loss_scaler_get: the state is null");
    TE_TRY(te_copy(ctx, state, s->state, sizeof *state));
    return te_synchronize(ctx);
}
/* Set the scale, and the number of steps since the scale last changed, to values that te_loss_scaler_get has read
 * before. te_checkpoint_load calls this function for the optimizer's loss scaler. Waits for the stream. Errors:
 * TE_ERROR_VALUE: a scale outside of 2^-64 to 2^64, a number of steps that is negative or INT32_MAX. */
TE_API te_status te_loss_scaler_set(const te_loss_scaler *s, float scale, int good, te_context *ctx) {
    te_loss_scale_state now;
    TE_TRY(te_loss_scaler_get(&now, s, ctx));
    TE_REQUIRE(te__loss_scale_valid(scale, good), ctx, TE_ERROR_VALUE,
               "te_loss_scaler_set: a scale of %g, with %d steps", (double)scale, good);
    now.scale = scale, now.inverse = 1.0f / scale, now.good = good;
    TE_TRY(te_copy(ctx, s->state, &now, sizeof now));
    return te_synchronize(ctx);
}

#endif
