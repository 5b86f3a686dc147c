/* stack.c -- passes of lists that need much memory in a block, in a thread with a small stack. tests/stack.sh builds and runs it.
 *
 *     OMP_STACKSIZE=128k ./stack 128        the calling thread has 128 KB, as every thread has with musl; so have those of OpenMP
 */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "te/te.h"
#include "te/infer.h" /* sample */

/* Ops whose blocks hold tiles of products, of attention and of casts; and rows as wide as large models have them. */
#define TILES                                                                                                                    \
    (fork, x), (layernorm, n, 256), (linear, l, 256, 3 * 256), (bias, b, 3 * 256), (head_norm, hn, 1, 1, 256), (rope, r, 1, 1, 256), \
        (attention, a, 1, 1, 256, (causal, 1)), (linear, o, 256, 256), (bias, ob, 256), (dropout, d, 0.1f), (add, x),              \
        (rmsnorm, n2, 256), (linear, up, 256, 2 * 128), (bias, ub, 2 * 128), (swiglu, s), (linear, down, 128, 256)
#define ROW (recompute, again), (fork, x), (rmsnorm, n, 16384), (gelu, g), (dropout, d, 0.1f), (add, x), (end_recompute, again), (bias, b, 16384)
TE_SEQUENTIAL(in_f32, f32, TILES)
TE_SEQUENTIAL(in_bf16, bf16, TILES)
TE_SEQUENTIAL(in_f16, f16, TILES)
TE_SEQUENTIAL(delayed, (bf16, (recipe, fp8_delayed)), TILES)
TE_SEQUENTIAL(current, (f16, (recipe, fp8_current)), TILES)
TE_SEQUENTIAL(blockwise, (bf16, (recipe, fp8_block)), TILES)
TE_SEQUENTIAL(rowwise, (f32, (recipe, fp8_row)), TILES)
TE_SEQUENTIAL(row_f32, f32, ROW)
TE_SEQUENTIAL(row_bf16, bf16, ROW)
TE_SEQUENTIAL(row_fp8, (f16, (recipe, fp8_row)), ROW, (linear, l, 16384, 16))
TE_SEQUENTIAL(attention_f32, f32, (attention, a, 1, 1, 256, (causal, 0), (relative_bias, 32), (max_distance, 128), (sinks, 1)))
TE_SEQUENTIAL(attention_bf16, bf16, (attention, a, 2, 1, 192, (value_dim, 128), (dropout, 0.1f)))
TE_SEQUENTIAL(loss, bf16, (embedding, e, 9000, 64), (rmsnorm, n, 64), (linear, head, 64, 9000), (cross_entropy, c, 9000))
TE_INFERENCE(chooses, f32, (embedding, e, 9000, 64), (linear, head, 64, 9000), (sample, s, 9000))

enum { ROWS = 70, MAX_PARAMS = 32 };

static te_context ctx;
static int failed, ran;

static int good(te_status s, const char *list, const char *what) {
    if (s == TE_OK) return 1;
    printf("FAIL %s: %s: %s\n", list, what, te_last_error(&ctx));
    return failed = 1, 0;
}
static void *get(size_t bytes) {
    void *p = 0;
    if (!good(te_allocate(&ctx, &p, bytes), "memory", "allocate") || !good(te_fill(&ctx, p, 0, bytes), "memory", "fill")) exit(2);
    return p;
}
/* What the thread with the small stack runs. */
typedef struct job {
    const te_plan *plan;
    te_model *model;
    te_saved *saved;
    te_batch *batch;
    te_recipes_adamw *step; /* null: inference alone */
    te_tensor x, y, dx, dy;
} job;
static size_t stack_bytes;
static void *work(void *of) {
    const job *j = (const job *)of;
    for (int step = 0; j->step && step < 2; step++) {
        good(te_plan_forward(j->y, j->saved, j->x, j->plan, j->model, j->batch, &ctx), j->plan->name, "forward");
        good(te_plan_backward(j->dx, j->dy, j->saved, j->plan, j->model, j->batch, &ctx), j->plan->name, "backward");
        good(te_recipes_adamw_step(j->step, &ctx), j->plan->name, "step");
    }
    good(te_plan_infer(j->y, j->x, j->plan, j->model, j->batch, &ctx), j->plan->name, "infer");
    ran++;
    return 0;
}
static void run(job *j) {
    pthread_t thread;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) || pthread_attr_setstacksize(&attributes, stack_bytes)) puts("no thread with such a stack"), exit(2);
    if (pthread_create(&thread, &attributes, work, j) || pthread_join(thread, 0)) exit(2);
    pthread_attr_destroy(&attributes);
}
/* A step with its optimizer and, under a recipe, its scales. */
static void train(const te_plan *p, te_dtype moments) {
    te_model m, *models[1];
    te_param params[MAX_PARAMS];
    te_recipes recipes;
    te_recipes_adamw both;
    te_adamw opt;
    te_saved saved;
    te_batch b;
    te_adamw_config config = te_adamw_defaults(1e-3f);
    te_recipes_config of = te_recipes_defaults();
    int n = 0;
    models[0] = &m, config.moments = moments, config.max_norm = 1.0f, of.history = 4;
    memset(&m, 0, sizeof m), memset(&saved, 0, sizeof saved), memset(&b, 0, sizeof b), memset(params, 0, sizeof params);
    for (int i = 0; i < p->op_count; i++) n += p->op[i].params;
    void *const weights = get(te_plan_param_bytes(p)), *const grads = get(te_plan_grad_bytes(p));
    if (!good(te_model_bind(&m, p, params, n, weights, (float *)grads, &ctx), p->name, "bind")) return;
    good(te_model_randomize(&m, 0.05f, 1, 0, &ctx), p->name, "randomize");
    const size_t opt_bytes = te_adamw_bytes_of(models, 1, &config), recipe_bytes = te_recipes_bytes(models, 1, &of);
    void *const opt_memory = get(opt_bytes), *const recipe_memory = get(recipe_bytes + 256);
    good(te_adamw_init(&opt, opt_memory, opt_bytes, models, 1, &config, &ctx), p->name, "te_adamw_init");
    good(te_recipes_init(&recipes, recipe_memory, recipe_bytes, models, 1, &of, &ctx), p->name, "te_recipes_init");
    const size_t both_bytes = te_recipes_adamw_bytes(&recipes, &opt);
    void *const both_memory = get(both_bytes + 256);
    good(te_recipes_adamw_init(&both, both_memory, both_bytes, &recipes, &opt, &ctx), p->name, "te_recipes_adamw_init");
    saved.bytes = te_plan_saved_bytes(p, ROWS), saved.memory = get(saved.bytes);
    good(te_context_reserve(&ctx, te_plan_workspace_bytes(p, &m, ROWS, &ctx)), p->name, "reserve");
    const size_t in = te_dtype_bytes(p->in_dtype) * ROWS * (size_t)te_max(p->in, 1), out = 4 * ROWS * (size_t)te_max(p->out, 1);
    void *const x = get(in), *const y = get(out), *const dy = get(out), *const dx = get(in);
    int32_t *const tokens = (int32_t *)get(ROWS * sizeof *tokens);
    b.batch = 1, b.seq = ROWS, b.tokens = b.labels = tokens, b.ignore_index = -1, b.loss_scale = 1.0f / ROWS;
    const int is_loss = !strcmp(p->name, "loss");
    const te_tensor from = is_loss ? te_none() : te_matrix(x, p->in_dtype, ROWS, p->in);
    const te_tensor to = te_matrix(y, is_loss ? TE_f32 : p->out_dtype, ROWS, is_loss ? 1 : p->out);
    job j = {p, &m, &saved, &b, &both, from, to, te_none(), te_none()};
    if (!is_loss) j.dx = te_matrix(dx, p->in_dtype, ROWS, p->in), j.dy = te_matrix(dy, p->out_dtype, ROWS, p->out);
    run(&j);
    void *const all[] = {weights, grads, opt_memory, recipe_memory, both_memory, saved.memory, x, y, dy, dx, tokens};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) te_release(&ctx, all[i]);
}
static void sample(void) {
    static chooses m;
    te_batch b;
    memset(&b, 0, sizeof b);
    int32_t *const tokens = (int32_t *)get(ROWS * sizeof *tokens), *const chosen = (int32_t *)get(ROWS * sizeof *chosen);
    float *const p = (float *)get(ROWS * sizeof *p), *const y = (float *)get(ROWS * sizeof *y);
    uint64_t *const seed = (uint64_t *)get(ROWS * sizeof *seed), *const counter = (uint64_t *)get(ROWS * sizeof *counter);
    void *const weights = get(chooses_param_bytes());
    te_sampling sampling;
    memset(&sampling, 0, sizeof sampling);
    for (int i = 0; i < ROWS; i++) p[i] = 0.9f;
    sampling.token = chosen, sampling.temperature = sampling.top_p = p, sampling.seed = seed, sampling.counter = counter;
    good(chooses_bind(&m, weights, &ctx), "chooses", "bind");
    good(te_model_randomize(&m.model, 0.05f, 1, 0, &ctx), "chooses", "randomize");
    good(te_context_reserve(&ctx, chooses_workspace_bytes(&m, ROWS, &ctx)), "chooses", "reserve");
    b.batch = ROWS, b.seq = 1, b.tokens = tokens, b.sampling = &sampling;
    job j = {chooses_plan(), &m.model, 0, &b, 0, te_none(), te_matrix(y, TE_f32, ROWS, 1), te_none(), te_none()};
    run(&j);
    void *const all[] = {tokens, chosen, p, y, seed, counter, weights};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) te_release(&ctx, all[i]);
}
int main(int argc, char **argv) {
    stack_bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 128) << 10;
    if (te_context_create(&ctx, 0, 1) != TE_OK) return 2;
    train(in_f32_plan(), TE_f32), train(in_bf16_plan(), TE_e4m3), train(in_f16_plan(), TE_bf16);
    train(delayed_plan(), TE_e4m3), train(current_plan(), TE_f32), train(blockwise_plan(), TE_bf16), train(rowwise_plan(), TE_f32);
    train(row_f32_plan(), TE_f32), train(row_bf16_plan(), TE_f32), train(row_fp8_plan(), TE_e4m3);
    train(attention_f32_plan(), TE_f32), train(attention_bf16_plan(), TE_f32), train(loss_plan(), TE_f32);
    sample();
    te_context_destroy(&ctx);
    if (!failed) printf("ok: %d lists with %zu KB of stack\n", ran, stack_bytes >> 10);
    return failed;
}
