/* custom_op.c -- a custom op, softsign, and custom fusion patterns, defined outside the library.
 *
 *     cc   -O2 -I. examples/custom_op/custom_op.c -o custom_op -lm
 *     nvcc -O3 -gencode arch=compute_90a,code=sm_90a -I. -x cu examples/custom_op/custom_op.c -o custom_op -lcublasLt
 *     ./custom_op                          prints the plan, checks the gradients by finite differences
 *
 * y = x / (1 + |x| / cap) approaches its bound more slowly than tanh (Glorot & Bengio 2010, with a cap of 1).
 */
#include <math.h>
#include <stdio.h>

#include "te/te.h"

/* [op] */
/* (softsign, name, cap): y = x / (1 + |x| / cap). */
#define TE_OP_softsign (softsign, map)         /* (family, class); a map works on each element alone */
#define TE_FLAGS_softsign(op) (TE_SAVES_INPUT) /* forward saves x, because backward reads it */
#define TE_OPTIONS_softsign(op) (te_softsign_options, (float)(TE_ARG1(op, 1.0f)))
typedef struct te_softsign_options { float cap; } te_softsign_options;

TE_CALLBACK void te_softsign_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    const float cap = ((const te_softsign_options *)options)->cap;
    (void)s, (void)at;
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] /= 1.0f + fabsf(v[i]) / cap;
}
TE_CALLBACK void te_softsign_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options) {
    const float cap = ((const te_softsign_options *)options)->cap;
    float x[8];
    (void)sum;
    te_read8(x, s->saved, at.format.in, s, at);
    TE_UNROLL for (int i = 0; i < 8; i++) {
        const float t = 1.0f + fabsf(x[i]) / cap;
        v[i] /= t * t; /* y = x / (1 + |x| / cap) */
    }
}
/* [op] */

/* [patterns] */
#define TE_FORWARD_linear_softsign TE_FUSED
#define TE_FORWARD_linear_bias_softsign TE_FUSED
#define TE_BACKWARD_softsign_bias TE_FUSED /* the reverse of the list's order: one kernel for dx and dbias */
/* [patterns] */

enum { ROWS = 5, IN = 16, HIDDEN = 24, OUT = 10 };

/* [model] */
TE_SEQUENTIAL(capped, f32,
    (rmsnorm, ln, IN), (linear, fc1, IN, HIDDEN), (bias, fc1_b, HIDDEN), (softsign, cap1, 2.0f),
    (linear, fc2, HIDDEN, OUT), (softsign, cap2, 1.5f))

static_assert((int)capped_forward_steps == 3, "rmsnorm, linear_bias_softsign, linear_softsign");
static_assert((int)capped_backward_steps == 5, "softsign, linear, softsign_bias, linear, rmsnorm");
/* [model] */

typedef struct setup {
    te_context ctx;
    capped model;
    te_batch batch;
    capped_saved saved;
    te_tensor x, y, dx, dy;
    void *params, *grads;
    float loss_weight[ROWS * OUT];
} setup;

static te_status tensor(te_tensor *t, int cols, te_context *ctx) {
    *t = te_matrix(NULL, TE_f32, ROWS, cols);
    return te_allocate(ctx, &t->data, (size_t)ROWS * (size_t)cols * sizeof(float));
}
static te_status make(setup *s) {
    te_context *ctx = &s->ctx;
    TE_TRY(te_context_create(ctx, 0, 1));
    TE_TRY(te_allocate(ctx, &s->params, capped_param_bytes()));
    TE_TRY(te_allocate(ctx, &s->grads, capped_grad_bytes()));
    TE_TRY(capped_bind(&s->model, s->params, (float *)s->grads, ctx));
    TE_TRY(te_model_randomize(&s->model.model, 0.5f, 7, 0, ctx));
    s->saved.bytes = capped_saved_bytes(ROWS);
    TE_TRY(te_allocate(ctx, &s->saved.memory, s->saved.bytes));
    TE_TRY(te_context_reserve(ctx, capped_workspace_bytes(&s->model, ROWS, ctx)));
    TE_TRY(tensor(&s->x, IN, ctx));
    TE_TRY(tensor(&s->dx, IN, ctx));
    TE_TRY(tensor(&s->y, OUT, ctx));
    TE_TRY(tensor(&s->dy, OUT, ctx));
    TE_TRY(te_fill_normal(s->x.data, TE_f32, ROWS * IN, 0.0f, 1.0f, 7, 100, ctx));
    TE_TRY(te_fill_normal(s->dy.data, TE_f32, ROWS * OUT, 0.0f, 1.0f, 7, 101, ctx));
    TE_TRY(te_copy(ctx, s->loss_weight, s->dy.data, sizeof s->loss_weight));
    s->batch.batch = 1, s->batch.seq = ROWS;
    return te_synchronize(ctx);
}

/* sum(y * dy): the loss whose gradient with respect to y is dy. */
static te_status loss_of(double *loss, setup *s) {
    float y[ROWS * OUT];
    TE_TRY(capped_infer(s->y, s->x, &s->model, &s->batch, &s->ctx));
    TE_TRY(te_copy(&s->ctx, y, s->y.data, sizeof y));
    TE_TRY(te_synchronize(&s->ctx));
    *loss = 0;
    for (int i = 0; i < ROWS * OUT; i++) *loss += (double)y[i] * (double)s->loss_weight[i];
    return TE_OK;
}
static te_status loss_with(double *loss, setup *s, float *element, float value) {
    TE_TRY(te_copy(&s->ctx, element, &value, sizeof value));
    return loss_of(loss, s);
}

/* Compare `gradient`, of `count` elements in target memory, with central differences of the loss in each element of
 * `data`; count a difference that is too large in *wrong. */
static te_status check(int *wrong, const char *name, void *data, const void *gradient, int count, setup *s) {
    const float h = 1e-2f;
    double difference = 0, size = 0;
    for (int i = 0; i < count; i++) {
        float *element = (float *)data + i, value, g;
        double above, below;
        TE_TRY(te_copy(&s->ctx, &value, element, sizeof value));
        TE_TRY(te_copy(&s->ctx, &g, (const float *)gradient + i, sizeof g));
        TE_TRY(te_synchronize(&s->ctx));
        TE_TRY(loss_with(&above, s, element, value + h));
        TE_TRY(loss_with(&below, s, element, value - h));
        TE_TRY(te_copy(&s->ctx, element, &value, sizeof value));
        TE_TRY(te_synchronize(&s->ctx));
        const double expected = (above - below) / (2.0 * (double)h);
        difference += (g - expected) * (g - expected), size += expected * expected;
    }
    const double relative = sqrt(difference / size);
    const int good = relative < 1e-3; /* central differences are off by h^2, f32 by 1e-5; a NaN is not good */
    printf("%-12s %4d elements, off by %.1e of its norm: %s\n", name, count, relative, good ? "ok" : "WRONG");
    *wrong += !good;
    return TE_OK;
}

static te_status run(int *wrong, setup *s) {
    TE_TRY(make(s));
    TE_TRY(capped_forward(s->y, &s->saved, s->x, &s->model, &s->batch, &s->ctx));
    TE_TRY(capped_backward(s->dx, s->dy, &s->saved, &s->model, &s->batch, &s->ctx));
    TE_TRY(check(wrong, "x", s->x.data, s->dx.data, ROWS * IN, s));
    for (int i = 0; i < s->model.model.param_count; i++) {
        const te_param *p = &s->model.model.param[i];
        char name[32];
        snprintf(name, sizeof name, "%s.%s", p->op, p->field);
        TE_TRY(check(wrong, name, p->data, p->grad, (int)(p->rows * p->cols), s));
    }
    return TE_OK;
}

int main(void) {
    static setup s;
    int wrong = 0;
    capped_print_plan(stdout);
    const te_status status = run(&wrong, &s);
    if (status != TE_OK) fprintf(stderr, "custom_op: %s: %s\n", te_status_string(status), te_last_error(&s.ctx));
    te_release(&s.ctx, s.params), te_release(&s.ctx, s.grads), te_release(&s.ctx, s.saved.memory);
    te_release(&s.ctx, s.x.data), te_release(&s.ctx, s.y.data), te_release(&s.ctx, s.dx.data), te_release(&s.ctx, s.dy.data);
    te_context_destroy(&s.ctx);
    return status == TE_OK && !wrong ? 0 : 1;
}
