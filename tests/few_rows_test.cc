// few_rows_test.cc -- a linear and the op behind it as one step, for few rows and for more, have the bits of a list of the linear alone and
// a list of that op alone. On compute capability 9.0, up to eight rows run in the kernel of te/gemm/impl/gemm_skinny.h.
#include "harness.h"
#include "te/te.h"

// Three lists: name_whole, and its two parts name_linear and name_rest. width_: columns of the linear's result.
#define PARTS(name, dtype, in, width_, ...)                                        \
    TE_INFERENCE(name##_whole, dtype, (linear, l, in, width_), __VA_ARGS__)        \
    TE_INFERENCE(name##_linear, dtype, (linear, l, in, width_))                    \
    TE_INFERENCE(name##_rest, (dtype, (width, width_)), __VA_ARGS__)
PARTS(heads, bf16, 264, (6 + 2 * 2) * 64, (rope, r, 6, 2, 64))
PARTS(wide_heads, f16, 1024, 5 * 128, (rope, r, 3, 1, 128))
PARTS(widest_heads, bf16, 512, 4 * 256, (rope, r, 2, 1, 256))
PARTS(part_of_heads, bf16, 2048, 5 * 128, (rope, r, 3, 1, 128, (rotary_dim, 64)))
PARTS(scaled, bf16, 136, 3 * 4 * 32, (rope, r, 4, 4, 32, (scaling, llama3), (factor, 8), (original_length, 64)))
PARTS(neighbours, bf16, 136, 6 * 64, (rope, r, 4, 1, 64, (interleaved, 1)))
PARTS(large_values, bf16, 136, 5 * 64 + 128, (rope, r, 4, 1, 64, (value_dim, 128)))
PARTS(gated, bf16, 520, 2 * 264, (swiglu, s))
PARTS(gelu_gated, f16, 2048, 2 * 1000, (geglu, s))
PARTS(odd_gated, bf16, 64, 2 * 100, (swiglu, s)) // the halves are no multiple of eight columns
PARTS(floats, f32, 72, 6 * 64, (rope, r, 4, 1, 64))
// Under a recipe, whose weights are e4m3: the input is cast as well.
#define PARTS_FP8(name, dtype, recipe_, in, width_, ...)                                              \
    TE_INFERENCE(name##_whole, (dtype, (recipe, recipe_)), (linear, l, in, width_), __VA_ARGS__)      \
    TE_INFERENCE(name##_linear, (dtype, (recipe, recipe_)), (linear, l, in, width_))                  \
    TE_INFERENCE(name##_rest, (dtype, (width, width_)), __VA_ARGS__)
PARTS_FP8(row_heads, bf16, fp8_row, 2048, 5 * 128, (rope, r, 3, 1, 128))
PARTS_FP8(row_part_of_heads, f16, fp8_row, 528, 5 * 64, (rope, r, 3, 1, 64, (rotary_dim, 32)))
PARTS_FP8(block_heads, bf16, fp8_block, 2048, 6 * 64, (rope, r, 4, 1, 64))
PARTS_FP8(current_heads, bf16, fp8_current, 2048, 4 * 256, (rope, r, 2, 1, 256))
PARTS_FP8(row_neighbours, bf16, fp8_row, 528, 6 * 64, (rope, r, 4, 1, 64, (interleaved, 1)))

namespace {
// The scales of a model with a recipe.
struct scales_of {
    te_recipes state;
    std::unique_ptr<buffer> memory;
    scales_of(te_model *model, te_context *ctx) {
        te_model *models[] = {model};
        te_recipes_config config = te_recipes_defaults();
        const size_t bytes = te_recipes_bytes(models, 1, &config);
        memory.reset(new buffer(ctx, bytes));
        REQUIRE(te_recipes_init(&state, memory->data(), bytes, models, 1, &config, ctx) == TE_OK);
    }
};
template <class Whole, class Linear, class Rest> void same_bits(const Whole &whole, const Linear &linear, const Rest &rest, te_context *ctx) {
    const te_plan *plan = whole.model.plan;
    const int middle = linear.model.plan->out;
    source random(fresh_seed());
    for (int rows : {1, 2, 3, 7, 8, 9, 33}) {
        const te_dtype t = plan->dtype;
        const size_t size = te_dtype_bytes(t);
        buffer x(ctx, (size_t)(rows * plan->in) * size), product(ctx, (size_t)(rows * middle) * size);
        buffer y(ctx, (size_t)(rows * plan->out) * size), z(ctx, (size_t)(rows * plan->out) * size);
        x.write(random.draw((size_t)(rows * plan->in), t), t);
        te_batch b;
        memset(&b, 0, sizeof b);
        b.batch = 1, b.seq = rows, b.position = random.below(100000);
        INFO(plan->name << ", " << rows << " rows: " << te_last_error(ctx));
        const te_tensor from = te_matrix(x.data(), t, rows, plan->in), between = te_matrix(product.data(), t, rows, middle);
        REQUIRE(te_plan_infer(te_matrix(y.data(), t, rows, plan->out), from, plan, &whole.model, &b, ctx) == TE_OK);
        REQUIRE(te_plan_infer(between, from, linear.model.plan, &linear.model, &b, ctx) == TE_OK);
        REQUIRE(te_plan_infer(te_matrix(z.data(), t, rows, plan->out), between, rest.model.plan, &rest.model, &b, ctx) == TE_OK);
        double sum = 0;
        for (double v : y.read(t)) sum += std::fabs(v); // NaN if a value is
        CHECK((sum > 0 && std::isfinite(sum)));
        CHECK(y.raw() == z.raw());
    }
}
} // namespace

#define SAME_BITS(name)                                                                                                \
    SECTION(#name) {                                                                                                   \
        context c;                                                                                                     \
        name##_whole whole;                                                                                            \
        name##_linear linear;                                                                                          \
        name##_rest rest;                                                                                              \
        buffer weight(&c.c, name##_whole_param_bytes());                                                             \
        REQUIRE(name##_whole_bind(&whole, weight.data(), &c.c) == TE_OK);                                            \
        REQUIRE(name##_linear_bind(&linear, weight.data(), &c.c) == TE_OK);                                          \
        REQUIRE(name##_rest_bind(&rest, nullptr, &c.c) == TE_OK);                                                    \
        REQUIRE(te_model_randomize(&whole.model, 0.05f, fresh_seed(), 0, &c.c) == TE_OK);                            \
        REQUIRE(te_context_reserve(&c.c, name##_whole_workspace_bytes(&whole, 64, &c.c) +                          \
                                               name##_linear_workspace_bytes(&linear, 64, &c.c)) == TE_OK);          \
        same_bits(whole, linear, rest, &c.c);                                                                        \
    }

#define SAME_BITS_FP8(name)                                                                                            \
    SECTION(#name) {                                                                                                   \
        context c;                                                                                                     \
        if (c.c.capability != 900) return; /* rowwise and blockwise scales need it */                                  \
        name##_whole whole;                                                                                            \
        name##_linear linear;                                                                                          \
        name##_rest rest;                                                                                              \
        buffer weight(&c.c, name##_whole_param_bytes());                                                               \
        REQUIRE(name##_whole_bind(&whole, weight.data(), &c.c) == TE_OK);                                              \
        REQUIRE(name##_linear_bind(&linear, weight.data(), &c.c) == TE_OK);                                            \
        REQUIRE(name##_rest_bind(&rest, nullptr, &c.c) == TE_OK);                                                      \
        REQUIRE(te_model_randomize(&whole.model, 0.05f, fresh_seed(), 0, &c.c) == TE_OK);                              \
        scales_of one(&whole.model, &c.c), other(&linear.model, &c.c);                                                 \
        REQUIRE(te_context_reserve(&c.c, name##_whole_workspace_bytes(&whole, 64, &c.c) +                              \
                                             name##_linear_workspace_bytes(&linear, 64, &c.c)) == TE_OK);              \
        same_bits(whole, linear, rest, &c.c);                                                                          \
    }

TEST_CASE("a linear under a recipe and the op behind it have the bits of both alone", "[few_rows]") {
    SAME_BITS_FP8(row_heads) SAME_BITS_FP8(row_part_of_heads) SAME_BITS_FP8(block_heads) SAME_BITS_FP8(current_heads) SAME_BITS_FP8(row_neighbours)
}
TEST_CASE("a linear and the op behind it have the bits of both alone", "[few_rows]") {
    SAME_BITS(heads) SAME_BITS(wide_heads) SAME_BITS(widest_heads) SAME_BITS(part_of_heads) SAME_BITS(scaled) SAME_BITS(neighbours)
    SAME_BITS(large_values) SAME_BITS(gated) SAME_BITS(gelu_gated) SAME_BITS(odd_gated) SAME_BITS(floats)
}
