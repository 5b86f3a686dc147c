/* readme.c -- the README's example. tools/readme.py copies the text between marks into the README, and below it the
 * beginning of what the program prints; tools/plan_picture.py draws the plan.
 *
 *     cc   -O2 -I. examples/readme/readme.c -o readme -lm
 *     nvcc -O3 -gencode arch=compute_90a,code=sm_90a -I. -x cu examples/readme/readme.c -o readme -lcublasLt
 *     ./readme
 */
/* [list] */
#include "te/te.h"

#define GPT_BLOCK(H, F, HEADS)                                                              \
    (fork, x1), (layernorm, ln1, H), (linear, qkv, H, 3 * (H)), (bias, qkv_b, 3 * (H)),     \
    (attention, attn, HEADS, HEADS, (H) / (HEADS)),                                         \
    (linear, proj, H, H), (bias, proj_b, H), (dropout, drop1, 0.1f), (add, x1),             \
    (fork, x2), (layernorm, ln2, H), (linear, fc1, H, F), (bias, fc1_b, F), (gelu, act),    \
    (linear, fc2, F, H), (bias, fc2_b, H), (dropout, drop2, 0.1f), (add, x2)

TE_SEQUENTIAL(block, f32, GPT_BLOCK(768, 3072, 12))
/* [list] */

static block m;             /* one instance: pointers to its parameters and gradients */
static block_saved saved;   /* memory for the values that a forward saves for its backward */
static te_batch batch;      /* the sizes of the batch, and further inputs such as tokens and labels */
static te_tensor x, y, dx, dy;

static te_status run(te_context *ctx) {
    const int rows = 64; /* 2 sequences of 32 tokens */
    void *params, *grads, *memory;
    TE_TRY(te_allocate(ctx, &params, block_param_bytes()));
    TE_TRY(te_allocate(ctx, &grads, block_grad_bytes()));
    TE_TRY(te_allocate(ctx, &saved.memory, saved.bytes = block_saved_bytes(rows)));
    TE_TRY(block_bind(&m, params, (float *)grads, ctx));
    TE_TRY(te_model_randomize(&m.model, 0.02f, 1, 0, ctx)); /* weights normal, gammas 1, biases 0 */
    TE_TRY(te_context_reserve(ctx, block_workspace_bytes(&m, rows, ctx)));

    te_tensor *const tensors[4] = {&x, &y, &dx, &dy};
    TE_TRY(te_allocate(ctx, &memory, (size_t)(4 * rows * 768) * sizeof(float)));
    for (int i = 0; i < 4; i++) *tensors[i] = te_matrix((float *)memory + i * rows * 768, TE_f32, rows, 768);
    TE_TRY(te_fill_normal(memory, TE_f32, 4 * rows * 768, 0.0f, 1.0f, 1, 100, ctx));

    batch.batch = 2, batch.seq = 32;
    /* [passes] */
    TE_TRY(block_forward(y, &saved, x, &m, &batch, ctx));
    TE_TRY(block_backward(dx, dy, &saved, &m, &batch, ctx)); /* and m.fc1.weight.grad, ... */
    /* [passes] */
    return te_synchronize(ctx);
}

int main(void) {
    te_context ctx;
    te_status status = te_context_create(&ctx, 0, 1); /* device 0, seed 1 */
    if (status == TE_OK) status = run(&ctx);
    if (status != TE_OK) printf("%s: %s\n", te_status_string(status), te_last_error(&ctx));
    else block_print_plan(stdout);
    te_context_destroy(&ctx);
    return status != TE_OK;
}
