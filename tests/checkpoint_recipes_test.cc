// checkpoint_recipes_test.cc -- a checkpoint is loaded by a run whose FP8 recipes differ from those of the run that saved it: another length of
// the amax histories, more or fewer GEMMs under a recipe, none before or none now. The oracle for the histories is the sequence of amaxes itself.
#include "device_memory.h"
#include "folder.h"
#include "te/te.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <vector>

namespace {

#define LIST(...) (rmsnorm, n1, 32), (linear, fc1, 32, 64), (gelu, act), (linear, fc2, 64, 32 __VA_ARGS__)
TE_SEQUENTIAL(delayed, (bf16, (recipe, fp8_delayed)), LIST())
TE_SEQUENTIAL(one_gemm, (bf16, (recipe, fp8_delayed)), LIST(, (recipe, none)))
TE_SEQUENTIAL(current, (bf16, (recipe, fp8_current)), LIST())
TE_SEQUENTIAL(block, (bf16, (recipe, fp8_block)), LIST())
TE_SEQUENTIAL(bare, bf16, LIST())

enum { ROWS = 8 };

struct pool : device_memory {
    using device_memory::device_memory;
    te_tensor normal(int cols, unsigned seed) {
        void *p = get((size_t)ROWS * (size_t)cols * 2);
        REQUIRE(te_fill_normal(p, TE_bf16, (int64_t)ROWS * cols, 0, 1, seed, 0, ctx) == TE_OK);
        return te_matrix(p, TE_bf16, ROWS, cols);
    }
    std::vector<char> read(const void *from, size_t n) {
        std::vector<char> v(n);
        REQUIRE(te_copy(ctx, v.data(), from, n) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        return v;
    }
};

// A training run of one list, with an optimizer and, if `history` is not 0, with recipes of this history.
template <class M> struct api;
#define API(list)                                                                                                                                        \
    template <> struct api<list> {                                                                                                                       \
        static te_status bind(list *m, pool &p) { return list##_bind(m, p.get(list##_param_bytes()), (float *)p.get(list##_grad_bytes()), p.ctx); }      \
        static size_t workspace(list *m, te_context *c) { return list##_workspace_bytes(m, ROWS, c); }                                                   \
        static size_t saved() { return list##_saved_bytes(ROWS); }                                                                                       \
        static te_status forward(te_tensor y, te_saved *s, te_tensor x, list *m, const te_batch *b, te_context *c) { return list##_forward(y, s, x, m, b, c); }  \
        static te_status backward(te_tensor dx, te_tensor dy, te_saved *s, list *m, const te_batch *b, te_context *c) { return list##_backward(dx, dy, s, m, b, c); } \
    };
API(delayed)
API(one_gemm)
API(current)
API(block)
API(bare)

template <class M> struct run {
    pool &p;
    M m;
    te_model *models[1];
    te_recipes recipes;
    te_adamw opt;
    te_named_model name;
    te_checkpoint checkpoint;
    te_tensor x, y, dy, dx;
    te_saved saved;
    te_batch batch;
    explicit run(pool &of, int history = 0, unsigned seed = 1) : p(of), models{&m.model}, name{"h0", &m.model} {
        REQUIRE(api<M>::bind(&m, p) == TE_OK);
        REQUIRE(te_model_randomize(&m.model, 0.3f, seed, 0, p.ctx) == TE_OK);
        REQUIRE(te_context_reserve(p.ctx, api<M>::workspace(&m, p.ctx)) == TE_OK);
        const te_adamw_config c = te_adamw_defaults(1e-2f);
        size_t bytes = te_adamw_bytes_of(models, 1, &c);
        REQUIRE(te_adamw_init(&opt, p.get(bytes), bytes, models, 1, &c, p.ctx) == TE_OK);
        memset(&checkpoint, 0, sizeof checkpoint);
        checkpoint.models = &name, checkpoint.count = 1, checkpoint.optimizer = &opt;
        memset(&saved, 0, sizeof saved), saved.bytes = std::max(api<M>::saved(), te_plan_saved_bytes_without_recipe(m.model.plan, ROWS)), saved.memory = p.get(saved.bytes);
        memset(&batch, 0, sizeof batch), batch.batch = 1, batch.seq = ROWS;
        x = p.normal(32, 2), y = p.normal(32, 3), dy = p.normal(32, 4), dx = p.normal(32, 5);
        if (history) start_recipes(history);
    }
    void start_recipes(int history) {
        te_recipes_config r = te_recipes_defaults();
        r.history = history;
        const size_t bytes = te_recipes_bytes(models, 1, &r);
        REQUIRE(te_recipes_init(&recipes, p.get(bytes), bytes, models, 1, &r, p.ctx) == TE_OK);
        checkpoint.recipes = &recipes;
    }
    void pass(float size = 1) { // with gradients of this size
        REQUIRE(te_fill_normal(dy.data, TE_bf16, (int64_t)ROWS * 32, 0, size, 4, 0, p.ctx) == TE_OK);
        REQUIRE(api<M>::forward(y, &saved, x, &m, &batch, p.ctx) == TE_OK);
        REQUIRE(api<M>::backward(dx, dy, &saved, &m, &batch, p.ctx) == TE_OK);
    }
    void step(float size = 1) {
        pass(size);
        REQUIRE(te_adamw_step(&opt, p.ctx) == TE_OK);
        if (checkpoint.recipes) REQUIRE(te_recipes_step(&recipes, p.ctx) == TE_OK);
    }
    void save(const std::string &path) { REQUIRE(te_checkpoint_save(path.c_str(), &checkpoint, p.ctx) == TE_OK); }
    te_status load(const std::string &path) {
        te_safetensors f;
        REQUIRE(te_safetensors_open(&f, path.c_str(), p.ctx) == TE_OK);
        const te_status status = te_checkpoint_load(&checkpoint, &f, p.ctx);
        te_safetensors_close(&f);
        return status;
    }
    std::vector<char> weights() { return p.read(m.model.params, m.model.param_bytes); }
    std::vector<char> grads() { return p.read(m.model.grads, (size_t)m.model.grad_elements * sizeof(float)); }
    std::vector<char> state() { return p.read(recipes.scales.memory, recipes.scales.bytes); }
    std::vector<float> floats(const float *from, size_t n) {
        const std::vector<char> v = p.read(from, n * sizeof(float));
        std::vector<float> f(n);
        memcpy(f.data(), v.data(), v.size());
        return f;
    }
    std::vector<float> scale() { return floats(recipes.scales.scale, (size_t)recipes.scales.count); }
    bool says(const char *text) const { return strstr(te_last_error(p.ctx), text) != nullptr; }
};
// A run that loads this file must then compute what another run does, which has the same weights and fresh recipes.
template <class M> void check_fresh(run<M> &loaded, pool &p, int history) {
    run<M> fresh(p);
    REQUIRE(te_copy(p.ctx, (void *)(uintptr_t)fresh.m.model.params, loaded.m.model.params, loaded.m.model.param_bytes) == TE_OK);
    REQUIRE(te_model_changed(&fresh.m.model, p.ctx) == TE_OK);
    fresh.start_recipes(history);
    CHECK(loaded.recipes.begun == 0);
    const bool same_state = loaded.state() == fresh.state();
    CHECK(same_state);
    loaded.pass(), fresh.pass();
    const bool same_y = p.read(loaded.y.data, ROWS * 64) == p.read(fresh.y.data, ROWS * 64), same_grads = loaded.grads() == fresh.grads();
    CHECK(same_y);
    CHECK(same_grads);
}
// Writes a file with the tensors of another one, one of them changed, and without the list's metadata and the checksum.
void rewrite(const std::string &to, const std::string &from, const std::string &name, const std::vector<char> *with, te_context *ctx) {
    te_safetensors f;
    REQUIRE(te_safetensors_open(&f, from.c_str(), ctx) == TE_OK);
    std::vector<std::vector<char>> data;
    std::vector<te_safetensor> all;
    for (int i = 0; i < f.count; i++) {
        te_safetensor t = f.tensor[i];
        const bool changed = name == t.name;
        if (changed && !with) continue;
        data.push_back(changed ? *with : std::vector<char>(t.bytes));
        if (!changed) REQUIRE(te_safetensors_read(&f, &t, data.back().data(), ctx) == TE_OK);
        const int64_t size = (int64_t)data.back().size();
        if (changed && name == "recipes.scales") t = te_safetensor_of(t.name, t.dtype, 1, &size, nullptr);
        all.push_back(t);
    }
    for (size_t i = 0; i < all.size(); i++) all[i].data = data[i].data();
    REQUIRE(te_safetensors_write(to.c_str(), all.data(), (int)all.size(), nullptr, 0, ctx) == TE_OK);
    te_safetensors_close(&f);
}

} // namespace

TEST_CASE("histories of another length: the most recent entries remain") {
    target t;
    for (const int from_length : {1, 2, 3, 9, 10, 16})
        for (const int to_length : {1, 2, 3, 9, 10, 16, 64})
            for (const int steps : {0, 1, 2, 5, 9, 10, 23}) {
                CAPTURE(from_length, to_length, steps);
                device_memory memory(t);
                const te_dtype formats[] = {TE_e4m3, TE_e5m2};
                te_scales from, host, to;
                const size_t bytes = te_scales_bytes(2, from_length), to_bytes = te_scales_bytes(2, to_length);
                REQUIRE(te_scales_init(&from, memory.get(bytes), bytes, formats, 2, from_length, t) == TE_OK);
                const te_scale_rule rule = {TE_AMAX_MAX, 0, 0, 0};
                std::deque<float> window[2]; // the entries that a scale may be computed from
                const auto next = [&](const te_scales &s, int step, int length) {
                    float amax[2];
                    for (int i = 0; i < 2; i++) {
                        amax[i] = 1 + (float)((step * 7 + i * 5) % 13);
                        window[i].push_back(amax[i]);
                        while ((int)window[i].size() > length) window[i].pop_front();
                    }
                    REQUIRE(te_copy(t, s.amax, amax, sizeof amax) == TE_OK);
                    REQUIRE(te_scales_update(&s, 0, 2, &rule, t) == TE_OK);
                    float scale[2];
                    REQUIRE(te_copy(t, scale, s.scale, sizeof scale) == TE_OK);
                    REQUIRE(te_synchronize(t) == TE_OK);
                    for (int i = 0; i < 2; i++) CHECK(scale[i] == te_fp8_max(formats[i]) / *std::max_element(window[i].begin(), window[i].end()));
                };
                for (int i = 0; i < steps; i++) next(from, i, from_length);
                std::vector<float> was(bytes / 4), is(to_bytes / 4);
                REQUIRE(te_copy(t, was.data(), from.memory, bytes) == TE_OK);
                REQUIRE(te_synchronize(t) == TE_OK);
                REQUIRE(te_scales_bind(&host, was.data(), bytes, 2, from_length, t) == TE_OK);
                REQUIRE(te_scales_bind(&to, is.data(), to_bytes, 2, to_length, t) == TE_OK);
                te__scales_resize(&to, &host);
                REQUIRE(te__scales_are_valid(&to, is.data()));
                for (std::deque<float> &w : window)
                    while ((int)w.size() > to_length) w.pop_front();
                te_scales on_target;
                void *p = memory.get(to_bytes);
                REQUIRE(te_copy(t, p, is.data(), to_bytes) == TE_OK);
                REQUIRE(te_scales_bind(&on_target, p, to_bytes, 2, to_length, t) == TE_OK);
                for (int i = steps; i < steps + 2 * to_length + 3; i++) next(on_target, i, to_length);
            }
}

TEST_CASE("a run continues with histories of another length") {
    for (const int from_length : {1, 9, 10, 64})
        for (const int to_length : {1, 9, 10, 64}) {
            target t;
            pool p(t);
            folder dir;
            CAPTURE(from_length, to_length);
            run<delayed> from(p, from_length), to(p, to_length, 7), straight(p, to_length);
            for (int i = 0; i < 5; i++) from.step(1.0f / (float)(1 + i)), straight.step(1.0f / (float)(1 + i));
            from.save(dir / "run");
            REQUIRE(to.load(dir / "run") == TE_OK);
            CHECK(to.recipes.begun == 1);
            CHECK(to.scale() == from.scale());
            const bool same = to.weights() == from.weights();
            CHECK(same);
            // gradients are the largest in the first step: a short history has forgotten them, a long one has not, and a longer one loads as many as there are
            to.step(0.1f), straight.step(0.1f);
            if (from_length >= 5 && to_length >= 5) { // the state has everything that the run has seen
                CHECK(to.scale() == straight.scale());
                const bool same_weights = to.weights() == straight.weights();
                CHECK(same_weights);
            }
        }
}

TEST_CASE("from FP8 to 16 bits") {
    target t;
    pool p(t);
    folder dir;
    run<delayed> from(p, 16), lists_recipe(p, 0, 7), forgot(p, 16, 7);
    run<bare> to(p, 0, 7);
    for (int i = 0; i < 3; i++) from.step();
    from.save(dir / "run");
    REQUIRE(to.load(dir / "run") == TE_OK);
    REQUIRE(lists_recipe.load(dir / "run") == TE_OK);
    bool same = to.weights() == from.weights() && lists_recipe.weights() == from.weights();
    CHECK(same);
    te_adamw_state state;
    REQUIRE(te_adamw_get(&state, &to.opt, t) == TE_OK);
    CHECK(state.step == 3);
    to.step(), lists_recipe.step();
    same = to.weights() == lists_recipe.weights();
    CHECK(same);

    forgot.checkpoint.recipes = nullptr; // its models are under recipes, whose scales would be lost
    const std::vector<char> weights = forgot.weights(), scales = forgot.state();
    CHECK(forgot.load(dir / "run") == TE_ERROR_VALUE);
    INFO(te_last_error(t));
    CHECK(forgot.says("has the scales of FP8 recipes, and model \"h0\" is under recipes: set te_checkpoint.recipes"));
    CHECK(forgot.says("history"));
    same = forgot.weights() == weights && forgot.state() == scales;
    CHECK(same);
    forgot.checkpoint.force = 1;
    REQUIRE(forgot.load(dir / "run") == TE_OK);
    same = forgot.weights() == from.weights();
    CHECK(same);
    forgot.step();
}

TEST_CASE("from 16 bits to FP8: the scales begin anew") {
    target t;
    pool p(t);
    folder dir;
    run<bare> from(p);
    for (int i = 0; i < 3; i++) from.step();
    from.save(dir / "run");
    run<delayed> to(p, 16, 7);
    for (int i = 0; i < 2; i++) to.step(); // what its histories have is of other weights
    REQUIRE(to.load(dir / "run") == TE_OK);
    const bool same = to.weights() == from.weights();
    CHECK(same);
    check_fresh(to, p, 16);
}

TEST_CASE("recipes of other GEMMs, and other recipes") {
    target t;
    pool p(t);
    folder dir;
    run<delayed> both(p, 16);
    run<one_gemm> one(p, 16);
    run<block> blocks(p, 16);
    run<current> currents(p, 16);
    for (int i = 0; i < 3; i++) both.step(), one.step(), blocks.step(), currents.step();
    both.save(dir / "both"), one.save(dir / "one"), blocks.save(dir / "blocks"), currents.save(dir / "currents");
    {
        run<one_gemm> to(p, 16, 7); // more GEMMs in the file
        REQUIRE(to.load(dir / "both") == TE_OK);
        check_fresh(to, p, 16);
    }
    {
        run<delayed> to(p, 16, 7); // fewer
        REQUIRE(to.load(dir / "one") == TE_OK);
        check_fresh(to, p, 16);
    }
    {
        run<delayed> to(p, 16, 7); // as many, but fp8_block has computed no scales of x and dy, so that 1 would be taken for theirs
        REQUIRE(to.load(dir / "blocks") == TE_OK);
        check_fresh(to, p, 16);
    }
    {
        run<block> to(p, 9, 7), again(p, 16, 7);
        REQUIRE(to.load(dir / "both") == TE_OK);
        REQUIRE(again.load(dir / "blocks") == TE_OK);
        CHECK((to.recipes.begun == 1 && again.recipes.begun == 1));
        const bool same = again.state() == blocks.state();
        CHECK(same);
        to.step();
    }
    {
        run<delayed> to(p, 16, 7); // fp8_current has left the scales of its last pass
        REQUIRE(to.load(dir / "currents") == TE_OK);
        to.step();
        for (const float s : to.scale()) CHECK((std::isfinite(s) && s > 0));
    }
}

TEST_CASE("scales of a file that cannot be are refused by name, and change nothing") {
    target t;
    pool p(t);
    folder dir;
    run<delayed> from(p, 10), to(p, 9, 7);
    for (int i = 0; i < 3; i++) from.step();
    from.save(dir / "good");
    const auto numbers = [](int64_t begun, int64_t products, int64_t history) {
        const int64_t v[] = {begun, products, history};
        return std::vector<char>((const char *)v, (const char *)v + sizeof v);
    };
    struct { std::string name; std::vector<char> with; const char *says; } bad[] = {
        {"recipes.begun", numbers(2, 2, 10), "recipes.begun is 2, 2 products, an amax history of 10 steps"},
        {"recipes.begun", numbers(-1, 2, 10), "recipes.begun is -1"},
        {"recipes.begun", numbers(1, -2, 10), "-2 products"},
        {"recipes.begun", numbers(1, INT64_MAX, 10), "9223372036854775807 products"},
        {"recipes.begun", numbers(1, (int64_t)1 << 32, 10), "4294967296 products"},
        {"recipes.begun", numbers(1, INT32_MAX / 3, 1024), "recipes.scales has"},
        {"recipes.begun", numbers(1, 2, 0), "an amax history of 0 steps"},
        {"recipes.begun", numbers(1, 2, -10), "an amax history of -10 steps"},
        {"recipes.begun", numbers(1, 2, 1025), "an amax history of 1025 steps"},
        {"recipes.begun", numbers(1, 2, ((int64_t)1 << 32) + 10), "an amax history of 4294967306 steps"},
        {"recipes.begun", numbers(1, 2, 500), "2 products with an amax history of 500 steps have"},
        {"recipes.begun", numbers(1, 200, 10), "200 products with an amax history of 10 steps have"},
        {"recipes.scales", std::vector<char>(), "recipes.scales has 0 bytes"},
        {"recipes.scales", std::vector<char>(from.recipes.scales.bytes), "an index of the history that cannot be"},
        {"recipes.scales", std::vector<char>(from.recipes.scales.bytes + 1), "amax history of 10 steps have"},
    };
    const std::vector<char> weights = to.weights(), scales = to.state();
    const auto refused = [&](const char *says, te_status status) {
        CHECK(to.load(dir / "bad") == status);
        INFO(te_last_error(t));
        CHECK(to.says(says));
        const bool same = to.weights() == weights && to.state() == scales;
        CHECK(same);
    };
    for (const auto &b : bad) {
        rewrite(dir / "bad", dir / "good", b.name, &b.with, t);
        refused(b.says, TE_ERROR_FORMAT);
    }
    rewrite(dir / "bad", dir / "good", "recipes.begun", nullptr, t);
    refused("has no tensor recipes.begun", TE_ERROR_FORMAT);
    rewrite(dir / "bad", dir / "good", "recipes.scales", nullptr, t);
    refused("has no tensor recipes.scales", TE_ERROR_FORMAT);
    CHECK(to.load(dir / "good") == TE_OK);
}
