/* lora.c -- fine-tunes a trained network by low-rank branches beside its weights, which stay frozen (LoRA).
 * Hu et al., "LoRA: low-rank adaptation of large language models", ICLR 2022.
 *
 *     cc -O2 -I. examples/lora/lora.c -o lora -lm && ./lora
 *
 * First the base model is trained to classify points. Then the classes are renamed, and only the branches are trained
 * on the new labels: only they have gradients, moments and weight-gradient kernels. Exit code 1: a byte of the base
 * model has changed, or the loss has not fallen.
 */
#include "te/te.h"

enum { ROWS = 256, IN = 16, HIDDEN = 64, CLASSES = 8, RANK = 4, STEPS = 200 };

/* [list] */
/* y = W x + 2 B A x: the forks save x and W x, load continues from x. */
#define LORA_LINEAR(b, from, to)                                                                                   \
    (fork, b##_x), (linear, b, from, to), (fork, b##_y), (load, b##_x), (linear, b##_a, from, RANK),               \
        (linear, b##_b, RANK, to), (scale, b##_scale, 2.0f), (add, b##_y)

TE_SEQUENTIAL(net, f32, LORA_LINEAR(fc1, IN, HIDDEN), (bias, fc1_bias, HIDDEN), (gelu, act),
              LORA_LINEAR(fc2, HIDDEN, CLASSES), (bias, fc2_bias, CLASSES), (cross_entropy, loss, CLASSES))
/* [list] */

static net m;
static net_saved saved;
static te_batch batch;
static te_tensor x, losses;
static float *mean;


/* The mean loss of the rows that have a label; their number was counted on the device. */
static te_status loss_now(float *loss, te_context *ctx) {
    TE_TRY(te_mean_loss(mean, (const float *)losses.data, ROWS, batch.loss_count, 0, ctx));
    TE_TRY(te_copy(ctx, loss, mean, sizeof *loss));
    return te_synchronize(ctx);
}
/* Train the parameters that are not frozen; only these have gradients and moments. loss: of the first and the last
 * step. */
static te_status train(float loss[2], te_context *ctx) {
    te_model *models[] = {&m.model};
    const te_adamw_config config = te_adamw_defaults(1e-2f);
    void *grads, *memory;
    te_adamw opt;
    /* [bind] */
    const size_t grad_bytes = te_trained_grad_bytes(&m.model), bytes = te_adamw_bytes_of(models, 1, &config);
    TE_TRY(te_allocate(ctx, &grads, grad_bytes));
    TE_TRY(te_allocate(ctx, &memory, bytes));
    TE_TRY(te_bind_trained_grads(&m.model, (float *)grads, ctx));
    TE_TRY(te_adamw_init(&opt, memory, bytes, models, 1, &config, ctx));
    /* [bind] */
    for (int step = 0; step < STEPS; step++) {
        TE_TRY(net_forward(losses, &saved, x, &m, &batch, ctx));
        TE_TRY(net_backward(te_none(), te_none(), &saved, &m, &batch, ctx));
        TE_TRY(te_adamw_step(&opt, ctx));
        if (step == 0 || step == STEPS - 1) TE_TRY(loss_now(&loss[step > 0], ctx));
    }
    printf("%zu bytes of gradients, %zu of the optimizer; loss %.3f, after %d steps %.3f\n", grad_bytes, bytes,
           (double)loss[0], STEPS, (double)loss[1]);
    return te_release(ctx, grads), te_release(ctx, memory), TE_OK;
}
/* [choose] */
/* Train the branches alone, or all but them. */
static te_status choose(int branches, te_context *ctx) {
    static const char *const names[] = {"fc1_a", "fc1_b", "fc2_a", "fc2_b"};
    TE_TRY((branches ? te_freeze : te_unfreeze)(&m.model, 0, 0, ctx));
    for (int i = 0; i < 4; i++) TE_TRY((branches ? te_unfreeze : te_freeze)(&m.model, names[i], 0, ctx));
    return TE_OK;
}
/* [choose] */
/* A point's class is its largest coordinate, renamed by `shift`; one point in eight has no label. */
static te_status set_labels(int shift, te_context *ctx) {
    static float points[ROWS * IN];
    static int32_t labels[ROWS];
    TE_TRY(te_copy(ctx, points, x.data, sizeof points));
    TE_TRY(te_synchronize(ctx));
    for (int i = 0; i < ROWS; i++) {
        int best = 0;
        for (int k = 1; k < CLASSES; k++) best = points[i * IN + k] > points[i * IN + best] ? k : best;
        labels[i] = i % 8 ? (best + shift) % CLASSES : -100;
    }
    TE_TRY(te_copy(ctx, (void *)(uintptr_t)batch.labels, labels, sizeof labels));
    TE_TRY(te_synchronize(ctx));
    return te_count_labels((float *)(uintptr_t)batch.loss_count, batch.labels, ROWS, 0, 0, ctx);
}
/* Copy all parameters of the base model to `to`. */
static te_status copy_base(char *to, te_context *ctx) {
    const te_param *const base[] = {&m.fc1.weight, &m.fc1_bias.bias, &m.fc2.weight, &m.fc2_bias.bias};
    for (int i = 0; i < 4; i++) {
        const size_t bytes = (size_t)(base[i]->rows * base[i]->cols) * sizeof(float);
        TE_TRY(te_copy(ctx, to, base[i]->data, bytes));
        to += bytes;
    }
    return te_synchronize(ctx);
}
static te_status run(te_context *ctx) {
    static char before[(IN * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES) * sizeof(float)], after[sizeof before];
    const size_t sizes[] = {net_param_bytes(), net_saved_bytes(ROWS), ROWS * IN * sizeof(float), ROWS * sizeof(float),
                            ROWS * sizeof(int32_t), sizeof(float), sizeof(float)};
    void *p[7];
    float loss[2];
    for (int i = 0; i < 7; i++) TE_TRY(te_allocate(ctx, &p[i], sizes[i]));
    saved.memory = p[1], saved.bytes = sizes[1];
    x = te_matrix(p[2], TE_f32, ROWS, IN), losses = te_matrix(p[3], TE_f32, ROWS, 1);
    batch.batch = 1, batch.seq = ROWS, batch.labels = (const int32_t *)p[4], batch.loss_scale = 1.0f;
    batch.loss_count = (const float *)p[5], mean = (float *)p[6];
    TE_TRY(te_fill_normal(p[2], TE_f32, ROWS * IN, 0.0f, 1.0f, 1, 100, ctx));
    TE_TRY(net_bind(&m, p[0], 0, ctx));
    TE_TRY(te_model_randomize(&m.model, 0.2f, 1, 0, ctx));
    TE_TRY(te_param_normal(&m.fc1_b.weight, 0.0f, 1, 0, ctx)); /* B = 0: at first the branches add nothing */
    TE_TRY(te_param_normal(&m.fc2_b.weight, 0.0f, 1, 0, ctx));
    TE_TRY(te_context_reserve(ctx, net_workspace_bytes(&m, ROWS, ctx)));

    printf("all but the branches: ");
    TE_TRY(choose(0, ctx));
    TE_TRY(set_labels(0, ctx));
    TE_TRY(train(loss, ctx));
    TE_TRY(copy_base(before, ctx));
    printf("the branches alone, other labels: ");
    TE_TRY(choose(1, ctx));
    TE_TRY(set_labels(1, ctx));
    TE_TRY(train(loss, ctx));
    TE_TRY(copy_base(after, ctx));
    TE_REQUIRE(!memcmp(before, after, sizeof before), ctx, TE_ERROR_STATE, "the base has changed");
    TE_REQUIRE(loss[1] < 0.5f * loss[0], ctx, TE_ERROR_STATE, "the loss has not fallen");
    for (int i = 0; i < 7; i++) te_release(ctx, p[i]);
    return TE_OK;
}

int main(void) {
    te_context ctx;
    te_status status = te_context_create(&ctx, 0, 1);
    if (status == TE_OK) status = run(&ctx);
    if (status != TE_OK) printf("%s: %s\n", te_status_string(status), te_last_error(&ctx));
    te_context_destroy(&ctx);
    return status != TE_OK;
}
