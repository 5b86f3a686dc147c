/* fp8_collectives.c -- FP8 operands that a pointwise kernel stores for a linear behind a collective: one that passes them
 * through (copy_to_group, in backward all_reduce) or gathers them (all_gather, in backward reduce_scatter). With one rank
 * these collectives change nothing, so a list with them must have the bits of the list without: one rounding, from the
 * kernel's f32. With a copy_to_group no more is saved than without: backward recomputes the linear's input all the same.
 *
 *     mpirun -n 1 fp8_collectives
 *
 * Exit code 0: all is right; 1: not. Host only: on CUDA the lists' GEMMs are not all run by the same kernels.
 */
#include <stdio.h>
#include <stdlib.h>

#include "te/te.h"

enum { WIDTH = 128, INNER = 256, ROWS = 40, RECIPES = 4, RANDOM = 3 };
#define LIST(ENTER, LEAVE, columns, rows)                                                                             \
    (fork, x1), (rmsnorm, n1, WIDTH), ENTER(1) (linear, fc1, WIDTH, INNER columns), (gelu, a),                        \
    (linear, fc2, INNER, WIDTH rows), LEAVE(1) (bias, b, WIDTH), (scale, by, 0.5f), (add, x1), (fork, x2),            \
    (layernorm, n2, WIDTH), ENTER(2) (linear, fc3, WIDTH, INNER columns), (relu, a2),                                 \
    (linear, fc4, INNER, WIDTH rows), LEAVE(2) (bias, b2, WIDTH), (add, x2), (fork, x3),                              \
    (rmsnorm, n3, WIDTH), ENTER(3) (linear, fc5, WIDTH, INNER columns), (gelu, a3),                                   \
    (linear, fc6, INNER, WIDTH rows), LEAVE(3) (bias, b3, WIDTH), (gelu, a4),                                         \
    ENTER(4) (linear, fc7, WIDTH, INNER columns), (relu, a5), (linear, fc8, INNER, WIDTH rows), LEAVE(4)              \
    (bias, b5, WIDTH), (add, x3)
#define NOTHING(i)
#define COPY(i) (copy_to_group, c##i),
#define SUM(i) (all_reduce, r##i),
#define GATHER(i) (all_gather, g##i),
#define SCATTER(i) (reduce_scatter, s##i),
#define COMMA ,
#define LISTS(recipe_)                                                                                                \
    TE_SEQUENTIAL(plain_##recipe_, (bf16, (recipe, recipe_)), LIST(NOTHING, NOTHING, , ))                             \
    TE_SEQUENTIAL(copied_##recipe_, (bf16, (recipe, recipe_)),                                                        \
                  LIST(COPY, SUM, COMMA (shard, columns), COMMA (shard, rows)))                                       \
    TE_SEQUENTIAL(gathered_##recipe_, (bf16, (rows, shard), (recipe, recipe_)),                                       \
                  LIST(GATHER, SCATTER, COMMA (shard, columns), COMMA (shard, rows)))
LISTS(fp8_delayed)
LISTS(fp8_current)
LISTS(fp8_block)
LISTS(fp8_row)

static te_context here;
static te_comm comm;

/* The results of a list in its second step, when the scales are known. */
typedef struct __attribute__((aligned(64))) results {
    uint16_t y[ROWS * WIDTH], dx[ROWS * WIDTH], inferred[ROWS * WIDTH];
    float grads[8 * WIDTH * INNER + 64 * WIDTH];
    size_t saved;
} results;
static te_status make(results *out, const te_plan *plan, int random) {
    static te_model model;
    static te_param param[24];
    te_model *models[1] = {&model};
    te_recipes recipes;
    te_recipes_config config = te_recipes_defaults();
    te_batch batch;
    te_saved saved;
    void *params, *scales;
    float *grads;
    static __attribute__((aligned(64))) uint16_t x[ROWS * WIDTH], dy[ROWS * WIDTH];
    int count = 0;
    memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved), memset(out, 0, sizeof *out);
    batch.batch = 1, batch.seq = ROWS;
    for (int i = 0; i < plan->op_count; i++) count += plan->op[i].params;
    TE_REQUIRE(te_plan_grad_bytes(plan) <= sizeof out->grads, &here, TE_ERROR_OVERFLOW, "more gradients than expected");
    TE_TRY(te_allocate(&here, &params, te_plan_param_bytes(plan)));
    TE_TRY(te_allocate(&here, (void **)&grads, te_plan_grad_bytes(plan)));
    TE_TRY(te_model_bind(&model, plan, param, count, params, grads, &here));
    /* the seed depends on the index of the parameter, not of its op, because the lists have different ops in between */
    for (int i = 0; i < model.param_count; i++)
        TE_TRY(te_fill_normal(param[i].data, param[i].dtype, param[i].rows * param[i].cols,
                              param[i].rows == 1 || param[i].cols == 1 ? 1.0f : 0.0f, 0.1f, (uint64_t)random,
                              (uint32_t)i, &here));
    const size_t bytes = te_recipes_bytes(models, 1, &config);
    TE_TRY(te_allocate(&here, &scales, bytes));
    TE_TRY(te_recipes_init(&recipes, scales, bytes, models, 1, &config, &here));
    out->saved = saved.bytes = te_plan_saved_bytes_of_rank(plan, ROWS, &here);
    TE_TRY(te_allocate(&here, &saved.memory, saved.bytes));
    TE_TRY(te_context_reserve(&here, te_plan_workspace_bytes(plan, &model, ROWS, &here)));
    TE_TRY(te_fill_normal(x, TE_bf16, ROWS * WIDTH, 0.0f, 1.0f, (uint64_t)random, 100, &here));
    TE_TRY(te_fill_normal(dy, TE_bf16, ROWS * WIDTH, 0.0f, 1.0f, (uint64_t)random, 101, &here));
    for (int step = 0; step < 2; step++) {
        TE_TRY(te_fill(&here, saved.memory, 0xff, saved.bytes));
        TE_TRY(te_fill(&here, grads, 0, te_plan_grad_bytes(plan)));
        TE_TRY(te_plan_forward(te_matrix(out->y, TE_bf16, ROWS, WIDTH), &saved, te_matrix(x, TE_bf16, ROWS, WIDTH), plan,
                               &model, &batch, &here));
        TE_TRY(te_plan_backward(te_matrix(out->dx, TE_bf16, ROWS, WIDTH), te_matrix(dy, TE_bf16, ROWS, WIDTH), &saved,
                                plan, &model, &batch, &here));
        if (!step) TE_TRY(te_recipes_step(&recipes, &here));
    }
    TE_TRY(te_plan_infer(te_matrix(out->inferred, TE_bf16, ROWS, WIDTH), te_matrix(x, TE_bf16, ROWS, WIDTH), plan, &model,
                         &batch, &here));
    memcpy(out->grads, grads, te_plan_grad_bytes(plan));
    te_release(&here, params), te_release(&here, grads), te_release(&here, scales), te_release(&here, saved.memory);
    return TE_OK;
}
static int differ(const char *name, const char *what, const void *a, const void *b, size_t count, size_t size) {
    size_t off = 0;
    for (size_t i = 0; i < count; i++) off += memcmp((const char *)a + i * size, (const char *)b + i * size, size) != 0;
    if (off) printf("%s: %s: %zu of %zu differ\n", name, what, off, count);
    return off != 0;
}
static te_status run(int *wrong) {
    const te_plan *const plans[RECIPES][3] = {
        {plain_fp8_delayed_plan(), copied_fp8_delayed_plan(), gathered_fp8_delayed_plan()},
        {plain_fp8_current_plan(), copied_fp8_current_plan(), gathered_fp8_current_plan()},
        {plain_fp8_block_plan(), copied_fp8_block_plan(), gathered_fp8_block_plan()},
        {plain_fp8_row_plan(), copied_fp8_row_plan(), gathered_fp8_row_plan()}};
    static results all[3];
    for (int random = 1; random <= RANDOM; random++)
        for (int recipe = 0; recipe < RECIPES; recipe++) {
            for (int i = 0; i < 3; i++) TE_TRY(make(&all[i], plans[recipe][i], random));
            for (int i = 1; i < 3; i++) {
                const char *name = plans[recipe][i]->name;
                *wrong += differ(name, "inference", all[0].inferred, all[i].inferred, ROWS * WIDTH, 2);
                *wrong += differ(name, "y", all[0].y, all[i].y, ROWS * WIDTH, 2);
                *wrong += differ(name, "dx", all[0].dx, all[i].dx, ROWS * WIDTH, 2);
                if (i < 2 || plans[recipe][i] != gathered_fp8_block_plan()) /* whose bias gradients are sums over rows instead of tiles, in another order */
                    *wrong += differ(name, "gradients", all[0].grads, all[i].grads,
                                     te_plan_grad_bytes(plans[recipe][0]) / 4, 4);
            }
            *wrong += all[1].saved != all[0].saved;
        }
    return TE_OK;
}

int main(void) {
    te_comm_config config = te_comm_defaults();
    int wrong = 0;
    te_status status = te_context_create(&here, 0, 1);
    if (status == TE_OK) status = te_comm_create(&comm, &config, &here);
    if (status == TE_OK) status = run(&wrong);
    if (status != TE_OK) printf("%s\n", te_last_error(&here));
    te_comm_destroy(&comm), te_context_destroy(&here);
    printf("fp8_collectives: %d of %d differ\n", wrong, ((2 * 4 + 1) * RECIPES - 1) * RANDOM);
    return status != TE_OK || wrong;
}
