/* main.c -- a plain C11 application that uses a model; the model's kernels are compiled in another file, model.cu.
 *
 *     cc   -std=c11 -O2 -I. -c examples/embed/main.c -o main.o
 *     nvcc -O3 -gencode arch=compute_90a,code=sm_90a -I. -c examples/embed/model.cu -o model.o
 *     nvcc main.o model.o -o embed -lcublasLt -lm
 * or, without a GPU:
 *     cc   -std=c11 -O2 -I. examples/embed/main.c -x c examples/embed/model.cu -o embed -lm
 *
 * This file is compiled the same way for both. scorer_context_create makes a context for the target (CUDA or the host)
 * that model.cu was compiled for, and te_allocate, te_copy and te_synchronize follow the context. Functions that launch
 * kernels of the library (te_model_randomize, te_adamw_step, ...) have to be called from model.cu: called from this
 * file, they would be the host's.
 */
#include <math.h>
#include <stdio.h>

#include "model.h"

enum { ROWS = 3 };

/* Numbers in [-1, 1] that look irregular. */
static float number(int i) { return (float)sin(12.9898 * (i + 1)); }

typedef struct weights { /* in list order */
    float gamma[SCORER_IN], beta[SCORER_IN];
    float w1[SCORER_HIDDEN][SCORER_IN], b1[SCORER_HIDDEN];
    float w2[SCORER_OUT][SCORER_HIDDEN], b2[SCORER_OUT];
} weights;

/* The same model in plain double arithmetic, for one row. */
static void reference(double y[SCORER_OUT], const float x[SCORER_IN], const weights *w) {
    double mean = 0, variance = 0, n[SCORER_IN], h[SCORER_HIDDEN];
    for (int i = 0; i < SCORER_IN; i++) mean += x[i] / (double)SCORER_IN;
    for (int i = 0; i < SCORER_IN; i++) variance += (x[i] - mean) * (x[i] - mean) / SCORER_IN;
    for (int i = 0; i < SCORER_IN; i++) n[i] = (x[i] - mean) / sqrt(variance + 1e-5) * w->gamma[i] + w->beta[i];
    for (int o = 0; o < SCORER_HIDDEN; o++) {
        h[o] = w->b1[o];
        for (int i = 0; i < SCORER_IN; i++) h[o] += n[i] * w->w1[o][i];
        h[o] = h[o] > 0 ? h[o] : 0;
    }
    for (int o = 0; o < SCORER_OUT; o++) {
        y[o] = w->b2[o];
        for (int i = 0; i < SCORER_HIDDEN; i++) y[o] += h[i] * w->w2[o][i];
    }
}

/* Copy a parameter's values from the host. */
static te_status upload(const te_param *p, const void *numbers, te_context *ctx) {
    return te_copy(ctx, p->data, numbers, (size_t)(p->rows * p->cols) * sizeof(float));
}

/* [infer] */
static te_status infer(float y[ROWS][SCORER_OUT], const float x[ROWS][SCORER_IN], const weights *w, te_context *ctx) {
    static scorer model;
    void *params;
    te_tensor tx = te_matrix(NULL, TE_f32, ROWS, SCORER_IN), ty = te_matrix(NULL, TE_f32, ROWS, SCORER_OUT);
    te_batch batch = {0};
    batch.batch = 1, batch.seq = ROWS;

    TE_TRY(te_allocate(ctx, &params, scorer_param_bytes()));
    TE_TRY(te_allocate(ctx, &tx.data, ROWS * SCORER_IN * sizeof(float)));
    TE_TRY(te_allocate(ctx, &ty.data, ROWS * SCORER_OUT * sizeof(float)));
    TE_TRY(scorer_bind(&model, params, NULL, ctx)); /* no gradients: inference only */
    TE_TRY(te_context_reserve(ctx, scorer_workspace_bytes(&model, ROWS, ctx)));

    TE_TRY(upload(&model.ln.weight, w->gamma, ctx));
    TE_TRY(upload(&model.ln.bias, w->beta, ctx));
    TE_TRY(upload(&model.fc1.weight, w->w1, ctx));
    TE_TRY(upload(&model.fc1_b.bias, w->b1, ctx));
    TE_TRY(upload(&model.fc2.weight, w->w2, ctx));
    TE_TRY(upload(&model.fc2_b.bias, w->b2, ctx));
    TE_TRY(te_copy(ctx, tx.data, x, ROWS * SCORER_IN * sizeof(float)));

    TE_TRY(scorer_infer(ty, tx, &model, &batch, ctx));
    TE_TRY(te_copy(ctx, y, ty.data, ROWS * SCORER_OUT * sizeof(float)));
    TE_TRY(te_synchronize(ctx)); /* before the host reads y */

    te_release(ctx, params), te_release(ctx, tx.data), te_release(ctx, ty.data);
    return TE_OK;
}
/* [infer] */

int main(void) {
    float x[ROWS][SCORER_IN], y[ROWS][SCORER_OUT];
    weights w;
    te_context ctx;
    double error = 0;
    for (int i = 0; i < ROWS * SCORER_IN; i++) x[i / SCORER_IN][i % SCORER_IN] = number(i);
    for (int i = 0; i < (int)(sizeof w / sizeof(float)); i++) ((float *)&w)[i] = number(1000 + i);

    te_status status = scorer_context_create(&ctx, 0, 1);
    if (status == TE_OK) status = infer(y, (const float(*)[SCORER_IN])x, &w, &ctx);
    if (status != TE_OK) {
        fprintf(stderr, "embed: %s: %s\n", te_status_string(status), te_last_error(&ctx));
        return 1;
    }
    printf("target: %s\n", ctx.target->name);
    scorer_print_plan(stdout);
    for (int r = 0; r < ROWS; r++) {
        double expected[SCORER_OUT];
        reference(expected, x[r], &w);
        printf("row %d:", r);
        for (int o = 0; o < SCORER_OUT; o++) {
            printf("  %9.5f (%9.5f)", y[r][o], expected[o]);
            error = fmax(error, fabs(y[r][o] - expected[o]));
        }
        printf("\n");
    }
    te_context_destroy(&ctx);
    printf("largest difference from double arithmetic: %.1e\n", error);
    return error < 1e-4 ? 0 : 1; /* not `error > ...`: a NaN fails */
}
