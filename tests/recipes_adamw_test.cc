// recipes_adamw_test.cc -- te_recipes_adamw_step, the fused step of optimizer and recipes, against the two calls on a twin. It compares every
// byte of weights, master weights, moments, state, scales with their histories and FP8 weights, over steps of which some are skipped.
#include "recipe.h"
#include "te/ops/activation.h"
#include "te/ops/elementwise.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/optim/recipes_adamw.h"

// Weights of whole tiles of 128 x 128, of partial tiles, and of less than one tile.
#define SIZES (rmsnorm, n, 144), (linear, a, 144, 272), (bias, ab, 272), (silu, s), (linear, b, 272, 128), (linear, c, 128, 256), (linear, d, 256, 16)
#define LISTS(X, D)                                                            \
    X(plain_##D, (D), SIZES)                                                   \
    X(delayed_##D, (D, (recipe, fp8_delayed)), SIZES)                          \
    X(current_##D, (D, (recipe, fp8_current)), SIZES)                          \
    X(blockwise_##D, (D, (recipe, fp8_block)), SIZES)
#define LIST_MODEL(name, dtype, ...) MODEL(name, dtype, __VA_ARGS__)
LISTS(LIST_MODEL, bf16)
LISTS(LIST_MODEL, f16)
LISTS(LIST_MODEL, f32)
MODEL(by_row, (bf16, (recipe, fp8_row)), (linear, a, 64, 48), (linear, b, 48, 32))
// Weights with each kind of scaling, in mixed order.
MODEL(mixed, (bf16, (recipe, fp8_block)), (linear, a, 64, 160), (linear, b, 160, 64, (recipe, fp8_delayed)), (linear, c, 64, 64, (recipe, none)), (linear, d, 64, 144))
// Tied weights: the second and the third use the memory of the first.
MODEL(tied, (bf16, (recipe, fp8_delayed)), (linear, a, 64, 64), (tied_linear, b, 64, 64), (tied_linear, c, 64, 64), (linear, d, 64, 48))
MODEL(tied_tiles, (bf16, (recipe, fp8_block)), (linear, a, 144, 144), (tied_linear, b, 144, 144), (linear, d, 144, 48))
MODEL(fixed, (bf16, (recipe, fp8_block)), (linear, a, 64, 64), (frozen_linear, b, 64, 64), (linear, c, 64, 48, (recipe, fp8_delayed)))

namespace {

typedef std::vector<uint8_t> bytes;

// Models, and how they are trained.
struct setup {
    std::vector<const subject *> lists;     // the models of the optimizer
    // indices of those that have recipes, in the recipes' order; -1: a further model of the first list
    std::vector<int> under;
    te_adamw_config config;
    te_recipes_config recipes;
    const char *frozen = nullptr;           // an op of the first list, to be frozen
};
setup setup_of(std::vector<const subject *> lists, std::vector<int> under, te_dtype moments = TE_f32) {
    setup t;
    t.lists = std::move(lists), t.under = std::move(under);
    t.config = te_adamw_defaults(0.02f), t.config.max_norm = 4.0f, t.config.skip_nonfinite = 1, t.config.moments = moments, t.config.weight_decay = 0.1f;
    t.recipes = te_recipes_defaults(), t.recipes.history = 3;
    return t;
}

// Models with their optimizer, their recipes, and the fused update of both.
struct trained {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    source random;
    std::vector<std::unique_ptr<instance>> all;
    std::vector<te_model *> models, under;
    std::unique_ptr<buffer> opt_memory, recipes_memory, memory;
    te_adamw opt;
    te_recipes recipes;
    te_recipes_adamw update;

    trained(const setup &t, unsigned seed) : random(seed) {
        for (const subject *s : t.lists) models.push_back(add(*s));
        for (int i : t.under) under.push_back(i < 0 ? add(*t.lists[0]) : models[(size_t)i]);
        if (t.frozen) REQUIRE(te_freeze(models[0], t.frozen, nullptr, ctx) == TE_OK);
        const int n = (int)models.size(), m = (int)under.size();
        opt_memory.reset(new buffer(ctx, te_adamw_bytes_of(models.data(), n, &t.config)));
        recipes_memory.reset(new buffer(ctx, te_recipes_bytes(under.data(), m, &t.recipes)));
        REQUIRE(te_recipes_init(&recipes, recipes_memory->data(), recipes_memory->bytes, under.data(), m, &t.recipes, ctx) == TE_OK);
        ok(te_adamw_init(&opt, opt_memory->data(), opt_memory->bytes, models.data(), n, &t.config, ctx));
        memory.reset(new buffer(ctx, te_recipes_adamw_bytes(&recipes, &opt)));
        ok(te_recipes_adamw_init(&update, memory->data(), memory->bytes, &recipes, &opt, ctx));
    }
    te_model *add(const subject &s) {
        all.emplace_back(new instance(s, ctx));
        all.back()->draw(random);
        all.back()->grads.write(reference::vec(all.back()->grads.bytes / 4, 0), TE_f32);
        return all.back()->model();
    }
    void ok(te_status status) {
        INFO(te_last_error(ctx));
        REQUIRE(status == TE_OK);
    }
    // Draws gradients, of which two are infinite if `infinite`, and the amaxes of x and dy that passes would leave.
    void draw(double size, bool infinite) {
        for (const auto &i : all) {
            reference::vec g = random.draw(i->grads.bytes / 4, TE_f32, 0, size);
            if (infinite) g[0] = g[g.size() / 2] = INFINITY;
            i->grads.write(g, TE_f32);
        }
        std::vector<float> amax((size_t)(2 * recipes.count));
        for (float &a : amax) a = (float)std::fabs(random.draw(1, TE_f32)[0]);
        ok(te_copy(ctx, recipes.scales.amax + recipes.count, amax.data(), amax.size() * sizeof(float)));
        ok(te_synchronize(ctx));
    }
    int updated() {
        int n = 0;
        te__recipe_iter w = te__recipe_products(recipes.models, recipes.model_count);
        while (te__recipe_next_product(&w)) n += w.param->fp8.updated;
        return n;
    }
    static bytes cut(const bytes &all, size_t from, size_t to) { return bytes(all.begin() + (long)from, all.begin() + (long)to); }
    // All bytes that a step writes, except tables of addresses.
    std::vector<std::pair<const char *, bytes>> content() {
        const te__adamw_layout l = te__adamw_layout_of(models.data(), (int)models.size(), &opt.config, 0);
        const bytes of_opt = opt_memory->raw(), of_recipes = recipes_memory->raw();
        const size_t table = te__recipes_layout_of(under.data(), (int)under.size(), &recipes.config).table;
        const auto from = (size_t)((const char *)under_data() - (const char *)recipes_memory->data());
        std::vector<std::pair<const char *, bytes>> c = {{"state", cut(of_opt, 0, sizeof(te_adamw_state))}, {"m", cut(of_opt, l.m, l.v)}, {"v", cut(of_opt, l.v, l.master)},
                                                         {"master", cut(of_opt, l.master, of_opt.size())}, {"scales and histories", cut(of_recipes, 0, from)}, {"weights in FP8", cut(of_recipes, from, table)}};
        for (const auto &i : all) c.emplace_back("weights", i->params.raw()), c.emplace_back("gradients", i->grads.raw());
        return c;
    }
    const void *under_data() {
        te__recipe_iter w = te__recipe_products(recipes.models, recipes.model_count);
        return te__recipe_next_product(&w) ? w.param->fp8.data : recipes_memory->data();
    }
};

// Runs steps by the fused call and, on a twin, by the two calls. updated: the number of FP8 weights whose amax or cast is part of the fused update.
void check_twins(const setup &t, int updated) {
    const unsigned seed = fresh_seed();
    trained one(t, seed), two(t, seed);
    CAPTURE(seed, t.lists[0]->plan()->name, te_dtype_name(t.config.moments), te_rule_name(t.config.rule), t.config.no_master);
    CHECK(one.updated() == updated);
    CHECK(one.update.fused == (updated > 0));
    bytes last;
    for (int step = 0; step < 7; step++) {
        CAPTURE(step);
        const bool infinite = step == 2 || step == 4 || step == 6; // steps 2 and 4 are skipped, and in 6 weights become NaN
        one.draw(step == 3 ? 3 : 0.1, infinite), two.draw(step == 3 ? 3 : 0.1, infinite);
        for (trained *w : {&one, &two}) {
            w->opt.config.skip_nonfinite = step < 6;
            if (step == 4) // a skipped step must also cast weights that the program has changed
                for (const auto &i : w->all) i->draw(w->random);
        }
        one.ok(te_recipes_adamw_step(&one.update, one.ctx));
        two.ok(te_adamw_step(&two.opt, two.ctx));
        two.ok(te_recipes_step(&two.recipes, two.ctx));
        const auto left = one.content(), right = two.content();
        REQUIRE(left.size() == right.size());
        for (size_t i = 0; i < left.size(); i++) {
            CAPTURE(left[i].first);
            CHECK(bool(left[i].second == right[i].second));
        }
        if (one.recipes.count) CHECK(bool(left[5].second == last) == (step == 2)); // only step 2 is skipped with unchanged weights
        last = left[5].second;
    }
    te_adamw_state state;
    one.ok(te_adamw_get(&state, &one.opt, one.ctx));
    CHECK((state.step == 5 && state.skipped == 2));
    CHECK(one.memory->raw().size() == one.memory->bytes); // raw() checks its guard
}

} // namespace

#define LIST_SUBJECT(name, dtype, ...) &name##_subject,
TEST_CASE("the fused update has the bits of the two calls", "[recipes_adamw]") {
    const std::vector<const subject *> all = {LISTS(LIST_SUBJECT, bf16) LISTS(LIST_SUBJECT, f16) LISTS(LIST_SUBJECT, f32)};
    for (const subject *s : all)
        for (te_dtype moments : {TE_f32, TE_bf16}) {
            const te_plan *p = s->plan();
            const int by_tensor = p->fp8 && !p->fp8->quantize_blockwise;
            if (!p->fp8) check_twins(setup_of({s}, {}, moments), 0);
            else check_twins(setup_of({s}, {0}, moments), by_tensor || p->dtype != TE_f32 ? 4 : 0);
        }
}

TEST_CASE("the fused update has the bits of the two calls with every config", "[recipes_adamw]") {
    for (const subject *s : {&delayed_bf16_subject, &blockwise_bf16_subject})
        for (te_dtype moments : {TE_f32, TE_bf16}) {
            setup t = setup_of({s}, {0}, moments);
            t.config.no_master = 1, t.config.seed = 7;
            check_twins(t, 4);
            t.config.no_master = 0, t.config.max_norm = 0, t.config.decay_all = 1;
            t.recipes.epsilon = 0.2f, t.recipes.power_of_two = 1, t.recipes.current = 1;
            check_twins(t, 4);
        }
}

TEST_CASE("FP8 weights that are not part of the fused update are cast by the recipes' kernels", "[recipes_adamw]") {
    check_twins(setup_of({&by_row_subject}, {0}), 0);
    check_twins(setup_of({&mixed_subject}, {0}), 3);
    check_twins(setup_of({&tied_subject}, {0}), 2);
    check_twins(setup_of({&tied_tiles_subject}, {0}), 2);
    check_twins(setup_of({&fixed_subject}, {0}), 2);
    for (const char *op : {"a", "b", "d"}) {
        setup t = setup_of({&blockwise_bf16_subject}, {0});
        t.frozen = op;
        check_twins(t, 3);
        t.lists[0] = &delayed_bf16_subject;
        check_twins(t, 3);
    }
}

TEST_CASE("several models, in different orders in optimizer and recipes, some only in one of them", "[recipes_adamw]") {
    const std::vector<const subject *> lists = {&delayed_bf16_subject, &plain_bf16_subject, &blockwise_bf16_subject, &mixed_subject, &blockwise_f16_subject, &delayed_bf16_subject, &blockwise_f32_subject};
    for (te_dtype moments : {TE_f32, TE_bf16}) {
        check_twins(setup_of(lists, {6, 5, 4, 3, 2, 0}, moments), 4 * 4 + 3);
        check_twins(setup_of(lists, {3, -1, 4, -1}, moments), 4 + 3);
        check_twins(setup_of({&blockwise_bf16_subject, &blockwise_bf16_subject}, {1, -1, 0}, moments), 8);
    }
}

TEST_CASE("SGD, Muon and 8-bit moments are not fused, and run as the two calls", "[recipes_adamw]") {
    for (const subject *s : {&tied_subject, &tied_tiles_subject}) {
        check_twins(setup_of({s}, {0}, TE_e4m3), 0);
        for (const te_adamw_config &c : {te_sgd_defaults(0.1f, 0.9f), te_muon_defaults(0.02f)}) {
            setup t = setup_of({s}, {0});
            t.config = c, t.config.skip_nonfinite = 1;
            check_twins(t, 0);
        }
    }
}

// ---- the number of kernels -------------------------------------------------------------------------------------------

namespace {
const te_fp8_ops *counted;
int measured, cast, tiles;
te_status count_weights(const te_quantize_multi_tensor *t, te_context *ctx) { return (t->cast ? cast : measured)++, counted->cast_weights(t, ctx); }
te_status count_blocks(const te_multi_tensor *t, te_context *ctx) { return tiles++, counted->cast_weights_by_block(t, ctx); }
// Launches of the recipes' kernels in a step.
template <class F> std::vector<int> launches_in(trained &w, F step) {
    std::vector<te_plan> plans(w.under.size());
    const te_plan *const was = w.under[0]->plan;
    te_fp8_ops ops = *was->fp8;
    counted = was->fp8, measured = cast = tiles = 0;
    ops.cast_weights = count_weights, ops.cast_weights_by_block = count_blocks;
    for (size_t i = 0; i < plans.size(); i++) plans[i] = *w.under[i]->plan, plans[i].fp8 = &ops, w.under[i]->plan = &plans[i];
    w.ok(step());
    for (te_model *m : w.under) m->plan = was;
    return {measured, cast, tiles};
}
} // namespace

TEST_CASE("the fused update needs one pass over the weights less, and with fp8_block none", "[recipes_adamw]") {
    struct expected { const subject *list; std::vector<int> two, one; };
    const expected all[] = {{&delayed_bf16_subject, {1, 1, 0}, {0, 1, 0}}, {&current_f16_subject, {1, 1, 0}, {0, 1, 0}}, {&blockwise_bf16_subject, {0, 0, 1}, {0, 0, 0}},
                            {&blockwise_f32_subject, {0, 0, 1}, {0, 0, 1}}, {&mixed_subject, {1, 1, 1}, {0, 1, 0}}, {&tied_subject, {1, 1, 0}, {2, 1, 0}}, {&tied_tiles_subject, {0, 0, 1}, {0, 0, 2}}};
    for (const expected &e : all) {
        CAPTURE(e.list->plan()->name);
        trained w(setup_of({e.list, e.list}, {0, 1}), 1);
        w.draw(0.1, false);
        CHECK(launches_in(w, [&] { return te_recipes_step(&w.recipes, w.ctx); }) == e.two);
        CHECK(launches_in(w, [&] { return te_recipes_adamw_step(&w.update, w.ctx); }) == e.one);
    }
}

// ---- as a graph ------------------------------------------------------------------------------------------------------

namespace {
te_status one_call(const te_graph *, const void *arg, te_context *ctx) { return te_recipes_adamw_step((te_recipes_adamw *)(uintptr_t)arg, ctx); }
} // namespace

TEST_CASE("the fused step can be replayed as a graph, also if the step is skipped", "[recipes_adamw]") {
    for (const subject *s : {&delayed_bf16_subject, &blockwise_bf16_subject, &mixed_subject}) {
        const unsigned seed = fresh_seed();
        CAPTURE(seed, s->plan()->name);
        const setup t = setup_of({s}, {0}, TE_bf16);
        trained one(t, seed), two(t, seed);
#if TE_CUDA
        cudaStream_t stream;
        REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
        one.ctx->stream = stream;
#endif
        one.draw(0.1, false), two.draw(0.1, false);
        one.ok(te_recipes_adamw_step(&one.update, one.ctx));
        two.ok(te_recipes_adamw_step(&two.update, two.ctx));
        te_graph g;
        const te_graph_spec spec = te_graph_spec_of("step", one_call, &one.update, 0, nullptr, 0, nullptr, 0);
        one.ok(te_graph_capture(&g, &spec, nullptr, one.ctx));
        for (int step = 0; step < 4; step++) {
            one.draw(0.1, step == 1), two.draw(0.1, step == 1);
            one.ok(te_graph_replay(&g, nullptr, 0, one.ctx));
            two.ok(te_recipes_adamw_step(&two.update, two.ctx));
            CHECK(bool(one.content() == two.content()));
        }
        te_graph_destroy(&g);
#if TE_CUDA
        REQUIRE(te_synchronize(one.ctx) == TE_OK);
        one.ctx->stream = nullptr;
        cudaStreamDestroy(stream);
#endif
    }
}

// ---- misuse ----------------------------------------------------------------------------------------------------------

TEST_CASE("misuse of the fused step is refused by name, and nothing is written", "[recipes_adamw]") {
    trained w(setup_of({&delayed_bf16_subject}, {0}), 1);
    w.draw(0.1, false);
    const auto before = w.content();
    const auto refused = [&](te_status status, te_status as, const char *text) {
        CHECK(status == as);
        CAPTURE(text);
        CHECK_THAT(te_last_error(w.ctx), Catch::Contains(text));
        CHECK(bool(w.content() == before));
    };
    te_recipes_adamw fresh;
    void *const p = w.memory->data();
    const size_t n = w.memory->bytes;
    buffer spare(w.ctx, n);
    refused(te_recipes_adamw_init(nullptr, p, n, &w.recipes, &w.opt, w.ctx), TE_ERROR_NULL, "recipes_adamw: the struct is null");
    refused(te_recipes_adamw_init(&fresh, nullptr, n, &w.recipes, &w.opt, w.ctx), TE_ERROR_NULL, "recipes_adamw: memory is null");
    refused(te_recipes_adamw_init(&fresh, (char *)p + 8, n, &w.recipes, &w.opt, w.ctx), TE_ERROR_ALIGNMENT, "recipes_adamw: memory must be aligned");
    refused(te_recipes_adamw_init(&fresh, p, n - 1, &w.recipes, &w.opt, w.ctx), TE_ERROR_MEMORY, "are needed");
    refused(te_recipes_adamw_init(&fresh, w.all[0]->grads.data(), n, &w.recipes, &w.opt, w.ctx), TE_ERROR_VALUE, "overlaps the gradients");
    refused(te_recipes_adamw_init(&fresh, p, n, nullptr, &w.opt, w.ctx), TE_ERROR_NULL, "recipes: not initialised");
    refused(te_recipes_adamw_init(&fresh, p, n, &w.recipes, nullptr, w.ctx), TE_ERROR_NULL, "adamw: not initialised");
    CHECK(te_recipes_adamw_init(&fresh, p, n, &w.recipes, &w.opt, nullptr) == TE_ERROR_NULL);
    CHECK(te_recipes_adamw_step(&w.update, nullptr) == TE_ERROR_NULL);
    CHECK(te_recipes_adamw_bytes(nullptr, &w.opt) + te_recipes_adamw_bytes(&w.recipes, nullptr) == 0);
    refused(te_recipes_adamw_step(nullptr, w.ctx), TE_ERROR_NULL, "recipes_adamw: not initialised");
    memset(&fresh, 0, sizeof fresh);
    refused(te_recipes_adamw_step(&fresh, w.ctx), TE_ERROR_NULL, "recipes_adamw: not initialised");
    fresh = w.update;
    refused(te_recipes_adamw_step(&fresh, w.ctx), TE_ERROR_STATE, "recipes_adamw: this is a copy");
    // if one of the two refuses the call, the other does not run either
    w.opt.config.beta1 = 2;
    refused(te_recipes_adamw_step(&w.update, w.ctx), TE_ERROR_VALUE, "adamw: beta1 2");
    w.opt.config.beta1 = 0.9f, w.recipes.config.rule.margin = 65;
    refused(te_recipes_adamw_step(&w.update, w.ctx), TE_ERROR_VALUE, "recipes: a rule");
    w.recipes.config.rule.margin = 0;
    REQUIRE(te_freeze(w.models[0], "a", nullptr, w.ctx) == TE_OK);
    CHECK(te_recipes_adamw_step(&w.update, w.ctx) == TE_ERROR_STATE);
    CHECK_THAT(te_last_error(w.ctx), Catch::Contains("adamw: a model was bound again, or other parameters were frozen"));
    // an optimizer of other parameters at the same address
    te_adamw_config c = w.opt.config;
    buffer other(w.ctx, w.opt_memory->bytes);
    const te_adamw was = w.opt;
    w.ok(te_adamw_init(&w.opt, other.data(), other.bytes, w.models.data(), 1, &c, w.ctx));
    CHECK(te_recipes_adamw_step(&w.update, w.ctx) == TE_ERROR_STATE);
    CHECK_THAT(te_last_error(w.ctx), Catch::Contains("recipes_adamw: the optimizer was initialised otherwise"));
    REQUIRE(te_unfreeze(w.models[0], "a", nullptr, w.ctx) == TE_OK);
    c.rule = TE_RULE_sgd;
    w.ok(te_adamw_init(&w.opt, other.data(), other.bytes, w.models.data(), 1, &c, w.ctx));
    CHECK(te_recipes_adamw_step(&w.update, w.ctx) == TE_ERROR_STATE);
    CHECK_THAT(te_last_error(w.ctx), Catch::Contains("recipes_adamw: the optimizer was initialised otherwise"));
    w.opt = was;
    // the recipes belong to the last update that was initialised with them
    w.ok(te_recipes_adamw_init(&fresh, spare.data(), spare.bytes, &w.recipes, &w.opt, w.ctx));
    refused(te_recipes_adamw_step(&w.update, w.ctx), TE_ERROR_STATE, "given to another");
    w.ok(te_recipes_adamw_step(&fresh, w.ctx));
    const te_recipes_config same = w.recipes.config;
    w.ok(te_recipes_init(&w.recipes, w.recipes_memory->data(), w.recipes_memory->bytes, w.under.data(), 1, &same, w.ctx));
    CHECK(te_recipes_adamw_step(&fresh, w.ctx) == TE_ERROR_STATE);
    CHECK_THAT(te_last_error(w.ctx), Catch::Contains("initialise this again"));
    w.ok(te_recipes_step(&w.recipes, w.ctx));
}
