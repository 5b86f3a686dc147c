// in_place_test.cc -- inference with y in the place of x, and backward with dx in the place of dy, have the bits of calls with tensors apart, in every
// format and under every recipe, where a GEMM adds the residual. check() (check.h) tests the same for each list of the other tests.
#include "device_memory.h"
#include "folder.h"
#include "te/te.h"

#include <cstring>
#include <vector>

namespace {

#define LIST (fork, x), (rmsnorm, n, 128), (linear, up, 128, 256), (gelu, a), (linear, down, 256, 128), (add, x)
#define BACK (fork, x), (linear, up, 128, 256), (gelu, a), (linear, down, 256, 128), (add, x)
#define ATTENTION (fork, x), (rmsnorm, n, 128), (linear, qkv, 128, 256), (attention, at, 4, 2, 32), (linear, o, 128, 128), (scale, s, 0.7f), (add, x)
TE_SEQUENTIAL(list_f32, f32, LIST)
TE_SEQUENTIAL(list_bf16, bf16, LIST)
TE_SEQUENTIAL(list_f16, f16, LIST)
TE_SEQUENTIAL(back_f32, f32, BACK)
TE_SEQUENTIAL(back_bf16, bf16, BACK)
TE_SEQUENTIAL(back_f16, f16, BACK)
TE_SEQUENTIAL(attention_bf16, bf16, ATTENTION)
TE_SEQUENTIAL(list_delayed, (bf16, (recipe, fp8_delayed)), LIST)
TE_SEQUENTIAL(list_current, (bf16, (recipe, fp8_current)), LIST)
TE_SEQUENTIAL(list_block, (bf16, (recipe, fp8_block)), LIST)
TE_SEQUENTIAL(list_row, (bf16, (recipe, fp8_row)), LIST)
TE_SEQUENTIAL(back_delayed, (bf16, (recipe, fp8_delayed)), BACK)
TE_SEQUENTIAL(back_block, (bf16, (recipe, fp8_block)), BACK)

struct memory : device_memory {
    using device_memory::device_memory;
    te_tensor normal(const te_plan *plan, int rows, unsigned seed) {
        void *p = get((size_t)rows * 128 * te_dtype_bytes(plan->dtype));
        REQUIRE(te_fill_normal(p, plan->dtype, (int64_t)rows * 128, 0, 1, seed, 0, ctx) == TE_OK);
        return te_matrix(p, plan->dtype, rows, 128);
    }
    std::vector<char> bits(te_tensor t) {
        std::vector<char> v((size_t)(t.rows * t.cols) * te_dtype_bytes(t.dtype));
        REQUIRE(te_copy(ctx, v.data(), t.data, v.size()) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        return v;
    }
};

// The calls of a list, and how many GEMMs run as custom kernels (te_context.gemm_custom).
template <class M> void compare(te_status (*bind)(M *, void *, float *, te_context *), size_t param_bytes, size_t grad_bytes, size_t (*saved_bytes)(int64_t), size_t (*workspace)(const M *, int64_t, te_context *)) {
    for (int custom = 0; custom < (TE_CUDA ? 3 : 1); custom++)
        for (const int rows : {1, 8, 40, 150, 256}) {
            target t;
            memory p(t);
            static M m;
            memset(&m, 0, sizeof m);
            t.ctx.gemm_custom = custom;
            REQUIRE(bind(&m, p.get(param_bytes), (float *)p.get(grad_bytes), t) == TE_OK);
            const te_plan *plan = m.model.plan;
            CAPTURE(plan->name, custom, rows);
            REQUIRE(te_model_randomize(&m.model, 0.3f, 1, 0, t) == TE_OK);
            te_model *models[] = {&m.model};
            const te_recipes_config config = te_recipes_defaults();
            static te_recipes recipes;
            const size_t bytes = te_recipes_bytes(models, 1, &config);
            if (plan->fp8) REQUIRE(te_recipes_init(&recipes, p.get(bytes), bytes, models, 1, &config, t) == TE_OK);
            REQUIRE(te_context_reserve(t, workspace(&m, rows, t)) == TE_OK);
            te_batch batch;
            memset(&batch, 0, sizeof batch), batch.batch = 1, batch.seq = rows;
            te_saved saved;
            memset(&saved, 0, sizeof saved), saved.bytes = saved_bytes(rows), saved.memory = p.get(saved.bytes);
            const te_tensor x = p.normal(plan, rows, 2), y = p.normal(plan, rows, 3), dy = p.normal(plan, rows, 4), dx = p.normal(plan, rows, 5);
            const te_tensor in_x = p.normal(plan, rows, 2), in_dy = p.normal(plan, rows, 4);
            REQUIRE(te_plan_infer(y, x, plan, &m.model, &batch, t) == TE_OK);
            REQUIRE(te_plan_infer(in_x, in_x, plan, &m.model, &batch, t) == TE_OK);
            const bool same_y = p.bits(y) == p.bits(in_x);
            CHECK(same_y);
            // the first step under fp8_delayed has current scales, the second one delayed scales
            for (int step = 0; step < (plan->fp8 ? 2 : 1); step++) {
                CAPTURE(step);
                const te_tensor grads = te_matrix((void *)(uintptr_t)m.model.grads, TE_f32, 1, m.model.grad_elements);
                const std::vector<char> dy_bits = p.bits(dy);
                REQUIRE(te_plan_forward(y, &saved, x, plan, &m.model, &batch, t) == TE_OK);
                REQUIRE(te_plan_backward(dx, dy, &saved, plan, &m.model, &batch, t) == TE_OK);
                const std::vector<char> dx_bits = p.bits(dx), grad_bits = p.bits(grads);
                REQUIRE(te_copy(t, in_dy.data, dy_bits.data(), dy_bits.size()) == TE_OK);
                REQUIRE(te_plan_backward(in_dy, in_dy, &saved, plan, &m.model, &batch, t) == TE_OK);
                const bool same_dx = p.bits(in_dy) == dx_bits, same_grads = p.bits(grads) == grad_bits;
                CHECK(same_dx);
                CHECK(same_grads);
                if (plan->fp8) REQUIRE(te_recipes_step(&recipes, t) == TE_OK);
            }
        }
}
#define COMPARE(list) compare<list>(list##_bind, list##_param_bytes(), list##_grad_bytes(), list##_saved_bytes, list##_workspace_bytes)

} // namespace

TEST_CASE("in place: f32, bf16 and f16", "[aliasing]") {
    COMPARE(list_f32);
    COMPARE(list_bf16);
    COMPARE(list_f16);
    COMPARE(back_f32);
    COMPARE(back_bf16);
    COMPARE(back_f16);
    COMPARE(attention_bf16);
}

TEST_CASE("in place: under recipes", "[aliasing]") {
    COMPARE(list_delayed);
    COMPARE(list_current);
    COMPARE(list_block);
    COMPARE(list_row);
    COMPARE(back_delayed);
    COMPARE(back_block);
}
