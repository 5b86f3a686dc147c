/* first.c -- the first two steps of the tutorial (docs/tutorial): a list, its three passes and its plan.
 *
 *     cc -O2 -I. examples/first/first.c -o first -lm && ./first
 *     nvcc -O3 -gencode arch=compute_90a,code=sm_90a -I. -x cu examples/first/first.c -o first -lcublasLt && ./first
 */
/* [list] */
#include "te/te.h"

enum { ROWS = 4, WIDTH = 8, HIDDEN = 32 };

TE_SEQUENTIAL(mlp, f32, (fork, x), (rmsnorm, norm, WIDTH), (linear, fc1, WIDTH, HIDDEN), (bias, fc1_b, HIDDEN),
              (gelu, act), (linear, fc2, HIDDEN, WIDTH), (add, x))
/* [list] */

/* [steps] */
static_assert((int)mlp_forward_steps == 3 && (int)mlp_infer_steps == 3, "fork_rmsnorm, linear_bias_gelu, linear_add");
/* [steps] */

/* [memory] */
static mlp m;             /* pointers to the parameters and gradients: m.fc1.weight.data, m.fc1.weight.grad, .. */
static mlp_saved saved;   /* the values that forward saves for backward */
static te_tensor x, y, dx, dy;

static te_status matrix(te_tensor *t, te_context *ctx) {
    *t = te_matrix(0, TE_f32, ROWS, WIDTH);
    return te_allocate(ctx, &t->data, ROWS * WIDTH * sizeof(float));
}
static te_status make(te_context *ctx) {
    void *params, *grads;
    TE_TRY(te_allocate(ctx, &params, mlp_param_bytes()));
    TE_TRY(te_allocate(ctx, &grads, mlp_grad_bytes()));
    TE_TRY(mlp_bind(&m, params, (float *)grads, ctx));
    TE_TRY(te_allocate(ctx, &saved.memory, saved.bytes = mlp_saved_bytes(ROWS)));
    TE_TRY(te_context_reserve(ctx, mlp_workspace_bytes(&m, ROWS, ctx)));
    TE_TRY(te_model_randomize(&m.model, 0.5f, 1, 0, ctx)); /* standard deviation, seed, stream of random numbers */
    TE_TRY(matrix(&x, ctx));
    TE_TRY(matrix(&y, ctx));
    TE_TRY(matrix(&dx, ctx));
    TE_TRY(matrix(&dy, ctx));
    TE_TRY(te_fill_normal(x.data, TE_f32, ROWS * WIDTH, 0.0f, 1.0f, 1, 100, ctx));
    return te_fill_normal(dy.data, TE_f32, ROWS * WIDTH, 0.0f, 1.0f, 1, 101, ctx);
}
/* [memory] */

/* Print the first row of a matrix in target memory. */
static te_status print_row(const char *name, const void *row, te_context *ctx) {
    float numbers[WIDTH];
    TE_TRY(te_copy(ctx, numbers, row, sizeof numbers));
    TE_TRY(te_synchronize(ctx));
    printf("%-16s", name);
    for (int i = 0; i < WIDTH; i++) printf("%7.3f", (double)numbers[i]);
    printf("\n");
    return TE_OK;
}

/* [passes] */
static te_status run(te_context *ctx) {
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = ROWS; /* batch * seq rows */
    TE_TRY(mlp_forward(y, &saved, x, &m, &batch, ctx));
    TE_TRY(mlp_backward(dx, dy, &saved, &m, &batch, ctx));
    TE_TRY(print_row("x", x.data, ctx));
    TE_TRY(print_row("y", y.data, ctx));
    TE_TRY(print_row("dx", dx.data, ctx));
    TE_TRY(print_row("norm.weight.grad", m.norm.weight.grad, ctx));
    TE_TRY(mlp_infer(y, x, &m, &batch, ctx)); /* the same y, and nothing is saved */
    return print_row("y of inference", y.data, ctx);
}
/* [passes] */

/* [main] */
int main(void) {
    te_context ctx;
    te_status status = te_context_create(&ctx, 0, 1); /* device 0, seed 1 */
    if (status == TE_OK) status = make(&ctx);
    if (status == TE_OK) status = run(&ctx);
    if (status != TE_OK) printf("%s: %s\n", te_status_string(status), te_last_error(&ctx));
    else mlp_print_plan(stdout);
    te_context_destroy(&ctx);
    return status != TE_OK;
}
/* [main] */
