// norm_part_fp8_test.cc -- a norm of some columns of a row under FP8 recipes, whose kernels store the operand of the next GEMM: the same bits as the
// norm of a slice that is joined with the rest of the row, and as a norm of whole rows if the columns are all.
#include "device_memory.h"
#include "te/te.h"

#include <cstring>

#define REST (linear, fc1, 256, 128), (gelu, g), (layernorm, k, 128), (linear, fc2, 128, 128)
#define LISTS(recipe_)                                                                                                                                      \
    TE_SEQUENTIAL(whole_##recipe_, (bf16, (recipe, recipe_)), (rmsnorm, q, 256), REST)                                                                      \
    TE_SEQUENTIAL(all_##recipe_, (bf16, (recipe, recipe_)), (rmsnorm, q, 256, (columns, 256)), REST)                                                        \
    TE_SEQUENTIAL(part_##recipe_, (bf16, (recipe, recipe_)), (rmsnorm, q, 256, (first, 128), (columns, 128)), REST)                                         \
    TE_SEQUENTIAL(joined_##recipe_, (bf16, (recipe, recipe_), (width, 256)), (fork, x), (slice, s, 0, 128), (fork, head), (load, x), (slice, u, 128, 128), \
                  (rmsnorm, q, 128), (concat, c, head, 128, (front, 1)), REST)
LISTS(fp8_block)
LISTS(fp8_row)

namespace {
enum { ROWS = 128, IN = 256, OUT = 128 };
struct results {
    std::vector<uint8_t> y, dx;
    bool operator==(const results &o) const { return y == o.y && dx == o.dx; }
};
template <class M> results run(te_context *ctx, const te_plan *plan, te_status (*bind)(M *, void *, float *, te_context *)) {
    device_memory memory(ctx);
    static M m;
    te_saved saved;
    te_batch batch;
    te_recipes recipes;
    te_model *models[1] = {&m.model};
    const te_recipes_config config = te_recipes_defaults();
    memset(&saved, 0, sizeof saved), memset(&batch, 0, sizeof batch), memset(&m, 0, sizeof m);
    REQUIRE(bind(&m, memory.get(te_plan_param_bytes(plan)), (float *)memory.get(te_plan_grad_bytes(plan)), ctx) == TE_OK);
    for (int i = 0; i < m.model.param_count; i++) { // numbers that depend on the op's name alone
        te_param *p = &m.model.param[i];
        REQUIRE(te_fill_normal(p->data, p->dtype, p->rows * p->cols, p->init == TE_INIT_one ? 1.0f : 0.0f, 0.05f, 1, (uint32_t)(p->op[0] * 16 + p->op[strlen(p->op) - 1]), ctx) == TE_OK);
    }
    const size_t bytes = te_recipes_bytes(models, 1, &config);
    REQUIRE(te_recipes_init(&recipes, memory.get(bytes), bytes, models, 1, &config, ctx) == TE_OK);
    saved.bytes = te_plan_saved_bytes_of_rank(plan, ROWS, ctx), saved.memory = memory.get(saved.bytes);
    REQUIRE(te_context_reserve(ctx, te_plan_workspace_bytes(plan, &m.model, ROWS, ctx)) == TE_OK);
    batch.batch = 1, batch.seq = ROWS;
    void *x = memory.get(ROWS * IN * 2), *dy = memory.get(ROWS * OUT * 2), *y = memory.get(ROWS * OUT * 2), *dx = memory.get(ROWS * IN * 2);
    REQUIRE(te_fill_normal(x, TE_bf16, ROWS * IN, 0, 1, 1, 5, ctx) == TE_OK);
    REQUIRE(te_fill_normal(dy, TE_bf16, ROWS * OUT, 0, 1, 1, 6, ctx) == TE_OK);
    const te_status forward = te_plan_forward(te_matrix(y, TE_bf16, ROWS, OUT), &saved, te_matrix(x, TE_bf16, ROWS, IN), plan, &m.model, &batch, ctx);
    INFO(te_last_error(ctx));
    REQUIRE(forward == TE_OK);
    REQUIRE(te_plan_backward(te_matrix(dx, TE_bf16, ROWS, IN), te_matrix(dy, TE_bf16, ROWS, OUT), &saved, plan, &m.model, &batch, ctx) == TE_OK);
    results r = {std::vector<uint8_t>(ROWS * OUT * 2), std::vector<uint8_t>(ROWS * IN * 2)};
    REQUIRE(te_copy(ctx, r.y.data(), y, r.y.size()) == TE_OK);
    REQUIRE(te_copy(ctx, r.dx.data(), dx, r.dx.size()) == TE_OK);
    REQUIRE(te_synchronize(ctx) == TE_OK);
    return r;
}
#define RUN(list) run<list>(&c, list##_plan(), list##_bind)
} // namespace

TEST_CASE("a norm of some columns under an FP8 recipe", "[norm]") {
    te_context c;
    REQUIRE(te_context_create(&c, 0, 1) == TE_OK);
    const results block = RUN(whole_fp8_block), row = RUN(whole_fp8_row), part = RUN(part_fp8_block), part_row = RUN(part_fp8_row);
    CHECK(block == RUN(all_fp8_block));
    CHECK(row == RUN(all_fp8_row));
    CHECK(part == RUN(joined_fp8_block));
    CHECK(part_row == RUN(joined_fp8_row));
    CHECK(!(part.y == block.y));
    CHECK(!(part_row.y == row.y));
    te_context_destroy(&c);
}
