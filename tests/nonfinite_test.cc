// nonfinite_test.cc -- infinities and NaNs under the recipes: whatever tensor they come from, skip_nonfinite leaves the step out, delayed scaling's scales keep their
// values, and the next step is as if nothing had been.
#include "device_memory.h"
#include "draw.h"
#include "folder.h"
#include "te/te.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

// Lists in which different kernels cast x and dy: the cast by itself, a norm, a map, a gated op, a GEMM's epilogue, attention.
#define ALONE (linear, fc1, 128, 128)
#define MLP (fork, x), (rmsnorm, n1, 128), (linear, fc1, 128, 256), (gelu, act), (linear, fc2, 256, 128), (add, x)
#define GATED (layernorm, n1, 128), (linear, fc1, 128, 512), (swiglu, act), (linear, fc2, 256, 128), (bias, b, 128)
#define ATTENDS (rmsnorm, n1, 128), (linear, qkv, 128, 384), (attention, a, 2, 2, 64), (linear, proj, 128, 128)
#define LISTS(X)                                                                                                             \
    X(alone_delayed, fp8_delayed, bf16, ALONE) X(mlp_delayed, fp8_delayed, bf16, MLP) X(gated_delayed, fp8_delayed, bf16, GATED) \
    X(attends_delayed, fp8_delayed, bf16, ATTENDS) X(alone_current, fp8_current, bf16, ALONE) X(mlp_current, fp8_current, bf16, MLP) \
    X(gated_current, fp8_current, bf16, GATED) X(alone_block, fp8_block, bf16, ALONE) X(mlp_block, fp8_block, bf16, MLP)     \
    X(gated_block, fp8_block, bf16, GATED) X(attends_block, fp8_block, bf16, ATTENDS) X(mlp_row, fp8_row, bf16, MLP)         \
    X(mlp_delayed_f16, fp8_delayed, f16, MLP) X(alone_current_f16, fp8_current, f16, ALONE) X(mlp_block_f16, fp8_block, f16, MLP)
#define DECLARE(name, recipe_, dtype, ...) TE_SEQUENTIAL(name, (dtype, (recipe, recipe_)), __VA_ARGS__)
LISTS(DECLARE)
TE_SEQUENTIAL(stochastic, (bf16, (recipe, fp8_delayed), (gradients, e5m2), (rounding, stochastic)), MLP)

namespace {

enum { ROWS = 48, WIDTH = 128 };

struct list_of {
    const char *name;
    te_dtype dtype;
    size_t bytes;
    size_t (*param_bytes)(), (*grad_bytes)(), (*saved_bytes)(int64_t);
    std::function<te_status(void *, void *, float *, te_context *)> bind;
    std::function<te_status(te_tensor, te_saved *, te_tensor, void *, const te_batch *, te_context *)> forward;
    std::function<te_status(te_tensor, te_tensor, const te_saved *, void *, const te_batch *, te_context *)> backward;
    std::function<size_t(void *, te_context *)> workspace;
};
#define LIST(list, recipe_, dtype, ...)                                                                                                                         \
    {#list, TE_##dtype, sizeof(list), list##_param_bytes, list##_grad_bytes, list##_saved_bytes,                                                                \
     [](void *m, void *p, float *g, te_context *c) { return list##_bind((list *)m, p, g, c); },                                                                 \
     [](te_tensor y, te_saved *s, te_tensor x, void *m, const te_batch *b, te_context *c) { return list##_forward(y, s, x, (list *)m, b, c); },                  \
     [](te_tensor dx, te_tensor dy, const te_saved *s, void *m, const te_batch *b, te_context *c) { return list##_backward(dx, dy, s, (list *)m, b, c); },      \
     [](void *m, te_context *c) { return list##_workspace_bytes((list *)m, ROWS, c); }},
const list_of lists[] = {LISTS(LIST) LIST(stochastic, fp8_delayed, bf16, )};

struct training : device_memory {
    const list_of &list;
    std::vector<char> model_bytes;
    te_model *model, *models[1];
    te_adamw opt;
    te_recipes recipes;
    te_tensor x, y, dy, dx;
    te_saved saved;
    te_batch batch;
    training(te_context *c, const list_of &l) : device_memory(c), list(l), model_bytes(l.bytes + 64) {
        model = (te_model *)(((uintptr_t)model_bytes.data() + 63) / 64 * 64);
        REQUIRE(list.bind(model, get(list.param_bytes()), (float *)get(list.grad_bytes()), ctx) == TE_OK);
        REQUIRE(te_model_randomize(model, 0.1f, 1, 0, ctx) == TE_OK);
        models[0] = model;
        te_adamw_config a = te_adamw_defaults(1e-2f);
        a.skip_nonfinite = 1;
        size_t bytes = te_adamw_bytes_of(models, 1, &a);
        REQUIRE(te_adamw_init(&opt, get(bytes), bytes, models, 1, &a, ctx) == TE_OK);
        te_recipes_config r = te_recipes_defaults();
        r.history = 4, bytes = te_recipes_bytes(models, 1, &r);
        REQUIRE(te_recipes_init(&recipes, get(bytes), bytes, models, 1, &r, ctx) == TE_OK);
        REQUIRE(te_context_reserve(ctx, list.workspace(model, ctx)) == TE_OK);
        memset(&saved, 0, sizeof saved), saved.bytes = list.saved_bytes(ROWS), saved.memory = get(saved.bytes);
        memset(&batch, 0, sizeof batch), batch.batch = 1, batch.seq = ROWS;
        for (te_tensor *t : {&x, &y, &dy, &dx}) *t = te_matrix(get((size_t)ROWS * WIDTH * 2), list.dtype, ROWS, WIDTH);
    }
    template <class T> std::vector<T> read(const void *from, size_t n) {
        std::vector<T> v(n);
        REQUIRE(te_copy(ctx, v.data(), from, n * sizeof(T)) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        return v;
    }
    // Overwrite element i of t by `value`.
    void put(const te_tensor &t, size_t i, float value) {
        uint16_t stored;
        te_store(&stored, 0, value, t.dtype);
        REQUIRE(te_copy(ctx, (uint16_t *)t.data + i, &stored, sizeof stored) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
    }
    void draw() {
        REQUIRE(te_fill_normal(x.data, x.dtype, ROWS * WIDTH, 0, 1, 3, 0, ctx) == TE_OK);
        REQUIRE(te_fill_normal(dy.data, dy.dtype, ROWS * WIDTH, 0, 1, 4, 0, ctx) == TE_OK);
    }
    void step() {
        REQUIRE(list.forward(y, &saved, x, model, &batch, ctx) == TE_OK);
        REQUIRE(list.backward(dx, dy, &saved, model, &batch, ctx) == TE_OK);
        REQUIRE(te_adamw_step(&opt, ctx) == TE_OK);
        REQUIRE(te_recipes_step(&recipes, ctx) == TE_OK);
    }
    std::vector<char> weights() { return read<char>(model->params, model->param_bytes); }
    std::vector<float> scales() { return read<float>(recipes.scales.scale, (size_t)recipes.scales.count); }
    te_adamw_state state() {
        te_adamw_state s;
        REQUIRE(te_adamw_get(&s, &opt, ctx) == TE_OK);
        return s;
    }
};

enum source { IN_X, IN_DY, IN_A_WEIGHT, SOURCES };
const char *const sources[] = {"x", "dy", "a weight"};

} // namespace

TEST_CASE("a step with an infinity or a NaN is left out under every recipe") {
    int turn = 0;
    for (const list_of &list : lists)
        for (const int before : {0, 2})
            for (int from = 0; from < SOURCES; from++)
                for (const float value : {INFINITY, -INFINITY, (float)NAN}) {
                    if (brief() && turn++ % 5) continue; // three or four of the 18 cases of each list, other ones of the next list
                    if (from == IN_A_WEIGHT && !strncmp(list.name, "alone", 5)) continue; // no gradient depends on this weight
                    target t;
                    training one(t, list);
                    one.draw();
                    for (int i = 0; i < before; i++) one.step();
                    INFO(list.name << " after " << before << " steps, " << value << " in " << sources[from]);
                    if (from == IN_A_WEIGHT) {
                        const te_param &p = one.model->param[one.model->param_count - 1];
                        const te_param &weight = p.rows > 1 ? p : one.model->param[one.model->param_count - 2];
                        one.put(te_matrix(weight.data, list.dtype, weight.rows, weight.cols), 77, value);
                        REQUIRE(te_model_changed(one.model, t) == TE_OK);
                    } else one.put(from == IN_X ? one.x : one.dy, 131, value);
                    const std::vector<char> weights = one.weights();
                    const std::vector<float> scales = one.scales();
                    one.step();
                    CHECK(one.state().skipped == 1);
                    CHECK(one.state().step == before);
                    const bool same = one.weights() == weights;
                    CHECK(same);
                    int bad = 0;
                    for (const float s : one.scales()) bad += !(s > 0 && s <= FLT_MAX);
                    CHECK(bad == 0);
                    if (from == IN_A_WEIGHT) continue;
                    one.draw(), one.step();
                    CHECK(one.state().skipped == 1);
                    CHECK(one.state().step == before + 1);
                    const std::vector<float> grads = one.read<float>(one.model->grads, (size_t)one.model->elements);
                    int none = 0;
                    for (const float g : grads) none += !std::isfinite(g);
                    CHECK(none == 0);
                }
}

TEST_CASE("a scale of delayed scaling is the old one after a step with an infinity") {
    for (const list_of &list : lists) {
        if (std::string(list.name).find("delayed") == std::string::npos) continue;
        target t;
        training one(t, list);
        one.draw(), one.step(), one.step();
        const std::vector<float> before = one.scales();
        one.put(one.x, 131, INFINITY), one.step();
        const std::vector<float> after = one.scales();
        const size_t products = (size_t)one.recipes.count; // the scales of the weights, then of x, then of dy; the infinity reaches the x of the first product
        INFO(list.name);
        CHECK(after[products] == before[products]);
        for (size_t i = 0; i < products; i++) CHECK(after[i] == before[i]); // no weight has changed
    }
}

TEST_CASE("finite numbers beyond the range of FP8 saturate") {
    for (const te_dtype to : {TE_e4m3, TE_e5m2})
        for (const float x : {1e3f, -6e4f, 1e30f, -3e38f})
            for (const float scale : {1.0f, 448.0f, 1e30f}) {
                const float v = te_fp8_scaled(x, scale), most = te_fp8_max(to);
                CHECK(te_float_of_fp8(te_fp8_of_float(v, to), to) == (std::fabs(v) < most ? te_float_of_fp8(te_fp8_of_float(v, to), to) : std::copysign(most, x)));
                CHECK(te_bits_of_float(v) == te_bits_of_float(x * scale));
            }
    for (const float x : {0.0f, -0.0f, 1e-45f, -1e-45f, 1.5f, -1.5f})
        for (const float scale : {1e-30f, 1.0f, 3.0f}) CHECK(te_bits_of_float(te_fp8_scaled(x, scale)) == te_bits_of_float(x * scale));
    for (const float x : {INFINITY, -INFINITY, (float)NAN}) CHECK(std::isnan(te_fp8_scaled(x, 2.0f)));
}
