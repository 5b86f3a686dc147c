/* widths.c -- one list for any width: an MLP whose sizes come from the command line, as an inference engine reads them
 * from a model's file.
 *
 *     cc -O2 -I. examples/widths/widths.c -o widths -lm && ./widths 1024 2816
 */
#include "te/te.h"

#include <stdio.h>
#include <stdlib.h> /* atoll */

/* [list] */
#define HIDDEN TE_DIM(0)
#define FFN TE_DIM(1)
TE_SEQUENTIAL_DIMS(mlp, f32, (fork, x), (rmsnorm, norm, HIDDEN), (linear, fc1, HIDDEN, 2 * FFN), (swiglu, act),
                   (linear, fc2, FFN, HIDDEN), (add, x))

static mlp m;

static te_status load(const int64_t dims[2], te_context *ctx) { /* {hidden, ffn} */
    void *params;
    TE_TRY(mlp_set_dims(&m, dims, 2, ctx)); /* before any other call; refuses widths that the kernels do not support */
    TE_TRY(te_allocate(ctx, &params, mlp_param_bytes(&m)));
    TE_TRY(mlp_bind(&m, params, 0, ctx));
    return te_context_reserve(ctx, mlp_workspace_bytes(&m, 64, ctx)); /* rows */
}
/* [list] */

static te_status run(const int64_t dims[2], te_context *ctx) {
    enum { ROWS = 64 };
    static te_batch batch;
    void *x, *y;
    const size_t bytes = (size_t)ROWS * (size_t)dims[0] * sizeof(float);
    TE_TRY(load(dims, ctx));
    TE_TRY(te_model_randomize(&m.model, 0.02f, 1, 0, ctx));
    TE_TRY(te_allocate(ctx, &x, bytes));
    TE_TRY(te_allocate(ctx, &y, bytes));
    TE_TRY(te_fill_normal(x, TE_f32, ROWS * dims[0], 0.0f, 1.0f, 1, 100, ctx));
    batch.batch = 1, batch.seq = ROWS;
    TE_TRY(mlp_infer(te_matrix(y, TE_f32, ROWS, dims[0]), te_matrix(x, TE_f32, ROWS, dims[0]), &m, &batch, ctx));
    TE_TRY(te_synchronize(ctx));
    mlp_print_plan(stdout, &m);
    te_release(ctx, x), te_release(ctx, y), te_release(ctx, m.model.param->data);
    return TE_OK;
}

int main(int argc, char **argv) {
    const int64_t dims[2] = {argc > 1 ? atoll(argv[1]) : 1024, argc > 2 ? atoll(argv[2]) : 2816};
    te_context ctx;
    te_status status = te_context_create(&ctx, 0, 1);
    if (status == TE_OK) status = run(dims, &ctx);
    if (status != TE_OK) printf("%s: %s\n", te_status_string(status), te_last_error(&ctx));
    te_context_destroy(&ctx);
    return status != TE_OK;
}
