// recipe_test.cc -- lists with an FP8 recipe: GEMMs against doubles of their quantised operands, delayed scales, recipes that are
// switched on and off, micro-batches in flight, recomputation, graphs, and misuse.
#include "launches.h"
#include "recipe.h"
#include "te/ops/activation.h"
#include "te/ops/attention.h"
#include "te/ops/elementwise.h"
#include "te/ops/cross_entropy.h"
#include "te/ops/dropout.h"
#include "te/ops/linear.h"
#include "te/ops/residual.h"
#include "te/ops/norm.h"
#include "te/ops/recompute.h"
#include "te/optim/init.h"

#define LINEARS(X, D)                                                                \
    X(current_##D, (D, (recipe, fp8_current)), (linear, l, 48, 80))                  \
    X(delayed_##D, (D, (recipe, fp8_delayed)), (linear, l, 144, 64))                 \
    X(same_##D, (D, (recipe, fp8_delayed), (gradients, e4m3)), (linear, l, 48, 80))  \
    X(smallest_##D, (D, (recipe, fp8_current)), (linear, l, 16, 16))                 \
    X(by_op_##D, (D, (recipe, none)), (linear, l, 256, 32, (recipe, fp8_delayed)))
#define LINEAR_MODEL(name, dtype, ...) MODEL(name, dtype, __VA_ARGS__)
LINEARS(LINEAR_MODEL, bf16)
LINEARS(LINEAR_MODEL, f16)
LINEARS(LINEAR_MODEL, f32)

#define BLOCK(H)                                                                                                                 \
    (fork, x1), (layernorm, ln1, H), (linear, qkv, H, 3 * H), (bias, qkv_b, 3 * H), (attention, attn, 2, 2, H / 2),             \
        (linear, proj, H, H), (bias, proj_b, H), (dropout, drop1, 0.1f), (add, x1), (fork, x2), (rmsnorm, ln2, H),              \
        (linear, fc1, H, 4 * H), (bias, fc1_b, 4 * H), (gelu, act), (linear, fc2, 4 * H, H), (bias, fc2_b, H), (add, x2)
#define RECOMPUTED(H)                                                                                                                 \
    (fork, x1), (recompute, r1), (layernorm, ln1, H), (linear, qkv, H, 3 * H), (bias, qkv_b, 3 * H),                             \
        (attention, attn, 2, 2, H / 2), (linear, proj, H, H), (bias, proj_b, H), (dropout, drop1, 0.1f), (end_recompute, r1),   \
        (add, x1), (fork, x2), (recompute, r2), (rmsnorm, ln2, H), (linear, fc1, H, 4 * H), (bias, fc1_b, 4 * H), (gelu, act),  \
        (linear, fc2, 4 * H, H), (bias, fc2_b, H), (end_recompute, r2), (add, x2)
MODEL(plain, bf16, BLOCK(64))
MODEL(current, (bf16, (recipe, fp8_current)), BLOCK(64))
MODEL(delayed, (bf16, (recipe, fp8_delayed)), BLOCK(64))
UNFUSED(unfused, (bf16, (recipe, fp8_current)), BLOCK(64)) // unfused, because recompute regions would split patterns
UNFUSED(recomputed, (bf16, (recipe, fp8_current)), RECOMPUTED(64))
UNFUSED(unfused_delayed, (bf16, (recipe, fp8_delayed)), BLOCK(64))
UNFUSED(recomputed_delayed, (bf16, (recipe, fp8_delayed)), RECOMPUTED(64))
// Lists with and without a recompute region that holds only a norm, so that backward has nothing to recompute. With a region forward
// saves all inputs of GEMMs in FP8, as with (inputs, saved). There is no gelu behind a bias, because forward may then use cuBLASLt's,
// which has other bits.
#define SAVED(H, X)                                                                                                               \
    (fork, x1), (layernorm, ln1, H), (linear, qkv, H, 3 * H), (bias, qkv_b, 3 * H), (attention, attn, 2, 2, H / 2),             \
        (linear, proj, H, H), (bias, proj_b, H), (add, x1), (fork, x2), (rmsnorm, ln2, H), (linear, fc1, H, 4 * H),             \
        (bias, fc1_b, 4 * H), (silu, act), (linear, fc2, 4 * H, H), (bias, fc2_b, H), (add, x2), (fork, x3), (rmsnorm, ln3, H), \
        (linear, up, H, 4 * H), (swiglu, gate), (linear, down, 2 * H, H), (dropout, drop, 0.1f), (linear, mid, H, H),           \
        (gelu, g), (linear, out, H, H), (add, x3) X(H)
#define WITH_REGION(H) , (recompute, r), (rmsnorm, end, H), (end_recompute, r)
#define WITHOUT_REGION(H) , (rmsnorm, end, H)
#define INPUT_PAIRS(X)                                                                                                           \
    X(saves_current, recomputes_current, (bf16, (recipe, fp8_current))) X(saves_delayed, recomputes_delayed, (bf16, (recipe, fp8_delayed))) \
    X(saves_f32, recomputes_f32, (f32, (recipe, fp8_delayed)))
#define INPUT_MODELS(saves, recomputes, ...) MODEL(saves, __VA_ARGS__, SAVED(64, WITH_REGION)) MODEL(recomputes, __VA_ARGS__, SAVED(64, WITHOUT_REGION))
INPUT_PAIRS(INPUT_MODELS)
MODEL(saved_current, (bf16, (recipe, fp8_current), (inputs, saved)), SAVED(64, WITHOUT_REGION))
MODEL(saved_delayed, (bf16, (recipe, fp8_delayed), (inputs, saved)), SAVED(64, WITHOUT_REGION))
MODEL(wide, (bf16, (residual, f32), (recipe, fp8_current)), BLOCK(64))
MODEL(mixed, (bf16, (recipe, fp8_delayed)), (layernorm, n, 64), (linear, fc1, 64, 128), (gelu, act), (linear, head, 128, 24, (recipe, none)))

// Pointwise patterns of every kind in front of a GEMM, in forward and in backward.
#define POINTWISE_LISTS(X)                                                                                                                \
    X(after_norm, (layernorm, n, 48), (linear, a, 48, 64), (rmsnorm, m, 64), (linear, b, 64, 32), (l2norm, l, 32), (linear, c, 32, 16)) \
    X(after_maps, (linear, a, 32, 64), (bias, ab, 64), (gelu, g), (linear, b, 64, 96), (bias, bb, 96), (swiglu, s), (linear, c, 48, 16), (silu, u)) \
    X(after_residual, (fork, x), (linear, a, 80, 80), (bias, ab, 80), (add, x), (fork, y), (layernorm, n, 80), (linear, b, 80, 144), (relu, r), (linear, c, 144, 80), (bias, cb, 80), (add, y)) \
    X(after_branch, (fork, x), (rmsnorm, n, 48), (fork, m), (linear, a, 48, 64), (silu, s), (fork, g), (load, m), (linear, b, 48, 64), (mul, g), (linear, c, 64, 48), (add, x)) \
    X(after_wide, (rmsnorm, n, 2064), (linear, a, 2064, 16), (geglu, g), (scale, h, 0.5f), (layernorm, m, 8))
#define POINTWISE_MODEL(name, ...) MODEL(name, (f32, (recipe, fp8_delayed)), __VA_ARGS__) UNFUSED(name##_unfused, (f32, (recipe, fp8_delayed)), __VA_ARGS__)
POINTWISE_LISTS(POINTWISE_MODEL)
#define SAME (rmsnorm, n, 48), (linear, a, 48, 64), (bias, ab, 64), (gelu, g), (linear, b, 64, 96), (bias, bb, 96), (swiglu, s), (linear, c, 48, 16), (silu, u)
MODEL(same, (f32, (recipe, fp8_delayed), (gradients, e4m3)), SAME)
UNFUSED(same_unfused, (f32, (recipe, fp8_delayed), (gradients, e4m3)), SAME)

// A pattern of a linear and a cross_entropy: with FP8 it computes all logits at once, as its two ops do.
#define TE_FORWARD_linear_cross_entropy TE_FUSED
#define TE_BACKWARD_cross_entropy_linear TE_FUSED
#define LOSS (rmsnorm, n, 48), (linear, l, 48, 64), (cross_entropy, c, 64, (label_smoothing, 0.1f))
MODEL(loss, (bf16, (recipe, fp8_delayed)), LOSS)
UNFUSED(loss_unfused, (bf16, (recipe, fp8_delayed)), LOSS)

TE_SEQUENTIAL_DIMS(sized, (f32, (recipe, fp8_delayed)), (rmsnorm, n, TE_DIM(0)), (linear, a, TE_DIM(0), TE_DIM(1)), (silu, s), (linear, b, TE_DIM(1), 16))

namespace {

typedef std::vector<uint8_t> bytes;

// ---- against doubles -----------------------------------------------------------------------------------------------------

// The values of v as an FP8 operand: multiplied by the scale, rounded to FP8, and divided by the scale.
reference::vec quantised(const reference::vec &v, double scale, te_dtype to) {
    reference::vec q(v.size());
    for (size_t i = 0; i < v.size(); i++) q[i] = (double)te_float_of_fp8(te_fp8_of_float((float)v[i] * (float)scale, to), to) / scale;
    return q;
}
double largest(const reference::vec &v) {
    double maximum = 0;
    for (double e : v) maximum = std::max(maximum, std::fabs(e));
    return maximum;
}
double scale_of(double amax, te_dtype to) { return (double)(te_fp8_max(to) / (float)amax); }

// Checks three steps of one linear, with inputs of a different size in each.
void check_linear(const subject &s, int rows) {
    const unsigned seed = fresh_seed();
    const std::string name = s.plan()->name;
    CAPTURE(name, rows, seed);
    under_recipe u(s, 1, rows, seed);
    const te_dtype d = u.plan->dtype;
    const size_t in = (size_t)u.plan->in, out = (size_t)u.plan->out, m = (size_t)rows;
    // the accumulators of the tensor cores have 14 bits; in backward (not fast) only over 128 elements
    const double lost = TE_CUDA ? std::ldexp(1, -11) : 1e-6 * std::sqrt((double)std::max(in, std::max(out, m)));
    const te_dtype to = u.plan->fp8->gradients;
    const bool delayed = u.plan->op[0].recipe == TE_RECIPE_fp8_delayed;
    const reference::vec weight = u.m.param[0];
    const reference::vec w = quantised(weight, scale_of(largest(weight), TE_e4m3), TE_e4m3);
    const double sizes[] = {1, 6, 0.2};
    double x_amax = 0, dy_amax = 0;
    for (int step = 0; step < 3; step++) {
        micro_batch b(u, s.saved_bytes(rows), sizes[step]);
        const reference::vec x_values = b.x.read(u.plan->in_dtype), dy_values = b.dy.read(u.plan->out_dtype);
        const bool current = !delayed || !step; // the first step has no history
        const double x_scale = scale_of(current ? largest(x_values) : x_amax, TE_e4m3), dy_scale = scale_of(current ? largest(dy_values) : dy_amax, to);
        const reference::vec x = quantised(x_values, x_scale, TE_e4m3), dy = quantised(dy_values, dy_scale, to);
        x_amax = std::max(x_amax, largest(x_values)), dy_amax = std::max(dy_amax, largest(dy_values));
        CAPTURE(step, x_scale, dy_scale);
        b.forward(u);
        b.backward(u);
        const auto at = [](const reference::vec &v, size_t cols) { return [&v, cols](size_t i, size_t j) { return v[i * cols + j]; }; };
        const auto across = [](const reference::vec &v, size_t cols) { return [&v, cols](size_t i, size_t j) { return v[j * cols + i]; }; };
        check_product("y", b.y.read(u.plan->out_dtype), m, out, in, at(x, in), at(w, in), d, lost);
        check_product("dx", b.dx.read(u.plan->in_dtype), m, in, out, at(dy, out), across(w, in), d, lost);
        check_product("dweight", u.m.grads.read(TE_f32, 0, out * in), out, in, m, across(dy, out), across(x, in), TE_f32, lost);
        buffer inferred(u.ctx, u.y_bytes());
        REQUIRE(s.infer(u.y_of(inferred), u.x_of(b.x), u.m.memory.data(), &u.batch, u.ctx) == TE_OK);
        CHECK(bool(inferred.raw() == b.y.raw()));
        REQUIRE(te_recipes_step(&u.state, u.ctx) == TE_OK);
    }
    CHECK(u.memory->raw().size() == u.memory->bytes); // raw() checks its guard
    CHECK(u.workspace->raw().size() == u.workspace->bytes);
}

} // namespace

#define LINEAR_CHECK(name, ...) check_linear(name##_subject, rows);
TEST_CASE("GEMMs with a recipe match the products of their quantised operands in double", "[recipe]") {
    for (int rows : {1, 16, 37, 200}) {
        LINEARS(LINEAR_CHECK, bf16)
        LINEARS(LINEAR_CHECK, f16)
        LINEARS(LINEAR_CHECK, f32)
    }
}

// ---- whole lists ---------------------------------------------------------------------------------------------------------

TEST_CASE("a block with a recipe is close to the same block without, and saves less", "[recipe]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    for (const subject *s : {&current_subject, &delayed_subject, &recomputed_subject, &wide_subject}) {
        under_recipe u(*s, 2, 21, seed);
        CAPTURE(u.plan->name);
        micro_batch b(u, without(u));
        const results fp8 = run_plain(u, b);
        REQUIRE(te_recipes_switch(&u.state, 0, u.ctx) == TE_OK);
        set_rng(u.ctx, 5, 0);
        const results list = run_plain(u, b);
        CHECK(distance(fp8.y, list.y) < 0.05); // the FP8 formats have 3 and 2 fraction bits
        CHECK(distance(fp8.dx, list.dx) < 0.12);
        CHECK(distance(fp8.grads, list.grads) < 0.15);
        CHECK(distance(fp8.y, list.y) > 1e-3);
        REQUIRE(te_recipes_switch(&u.state, 1, u.ctx) == TE_OK);
        set_rng(u.ctx, 5, 0);
        const results back = run_plain(u, b);
        CHECK(back.y == fp8.y);
        CHECK(back.grads == fp8.grads);
    }
    for (const te_plan *p : {current_plan(), delayed_plan()}) CHECK((double)te_plan_saved_bytes(p, 128) < 0.62 * (double)te_plan_saved_bytes(plain_plan(), 128));
    CHECK(te_plan_saved_bytes_without_recipe(current_plan(), 128) == te_plan_saved_bytes(plain_plan(), 128));
}

TEST_CASE("a list whose recipe is switched off has the bits of the list without a recipe", "[recipe]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    under_recipe u(current_subject, 2, 19, seed), p(plain_subject, 2, 19, seed);
    REQUIRE(te_recipes_switch(&u.state, 0, u.ctx) == TE_OK);
    micro_batch a(u, without(u)), b(p, without(p));
    const results left = run_plain(u, a), right = run_plain(p, b);
    CHECK(bool(left.y == right.y));
    CHECK(bool(left.dx == right.dx));
    CHECK(bool(left.grads == right.grads));
}

TEST_CASE("recompute regions with a recipe change no bit", "[recipe]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    const subject *const pairs[][2] = {{&unfused_subject, &recomputed_subject}, {&unfused_delayed_subject, &recomputed_delayed_subject}};
    for (const auto &pair : pairs) {
        under_recipe u(*pair[0], 2, 33, seed), v(*pair[1], 2, 33, seed);
        CAPTURE(u.plan->name);
        micro_batch a(u, u.m.s.saved_bytes(66)), b(v, v.m.s.saved_bytes(66));
        // in the second step the pointwise kernels of fp8_delayed store FP8, also in backward's recomputation
        for (int step = 0; step < 2; step++) {
            const results left = run_plain(u, a), right = run_plain(v, b);
            CHECK((left.y == right.y));
            CHECK((left.dx == right.dx));
            CHECK((left.grads == right.grads));
            REQUIRE(te_recipes_step(&u.state, u.ctx) == TE_OK);
            REQUIRE(te_recipes_step(&v.state, v.ctx) == TE_OK);
        }
        CHECK(b.memory.bytes < a.memory.bytes);
    }
}

#define INPUT_SUBJECTS(saves, recomputes, ...) {&saves##_subject, &recomputes##_subject},
TEST_CASE("FP8 operands that backward recomputes have the bits of saved ones", "[recipe]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    const subject *const pairs[][2] = {INPUT_PAIRS(INPUT_SUBJECTS){&saved_current_subject, &recomputes_current_subject},
                                           {&saved_delayed_subject, &recomputes_delayed_subject}};
    for (const auto &pair : pairs)
        for (int seq : {1, 33, 130}) {
            under_recipe u(*pair[0], 2, seq, seed), v(*pair[1], 2, seq, seed);
            CAPTURE(u.plan->name, seq);
            micro_batch a(u, u.m.s.saved_bytes(2 * seq)), b(v, v.m.s.saved_bytes(2 * seq));
            for (int step = 0; step < 3; step++) { // from the second step on, the pointwise kernels of fp8_delayed store FP8
                const results left = run_plain(u, a), right = run_plain(v, b);
                CHECK((left.y == right.y));
                CHECK((left.dx == right.dx));
                CHECK((left.grads == right.grads));
                REQUIRE(te_recipes_step(&u.state, u.ctx) == TE_OK);
                REQUIRE(te_recipes_step(&v.state, v.ctx) == TE_OK);
            }
            CHECK(b.memory.raw().size() == b.memory.bytes); // raw() checks its guard
            CHECK(b.memory.bytes < a.memory.bytes);
        }
}

#if TE_CUDA
TEST_CASE("under fp8_current an elementwise op in front of a GEMM runs twice, instead of once and a cast", "[recipe]") {
    int casts[2], n = 0;
    for (const subject *s : {&saved_current_subject, &recomputes_current_subject}) {
        under_recipe u(*s, 2, 70, fresh_seed());
        micro_batch b(u, s->saved_bytes(140));
        b.forward(u), b.backward(u);
        casts[n++] = launches_like("_quantize_", u.ctx, [&] { return b.forward(u), TE_OK; });
    }
    CHECK((brief() || casts[0] - casts[1] == 2)); // silu and gelu; not a swiglu, whose input is twice as large as its output
}
#endif

// In f32 nothing is rounded between a pointwise kernel and the cast of its output. The first step of fp8_delayed casts with current scales. The
// second has the same numbers, hence the same scales, and its pointwise kernels store FP8: it must have the bits of the first.
namespace {
void check_pointwise(const subject &s, int rows) {
    const unsigned seed = fresh_seed();
    under_recipe u(s, 1, rows, seed, 1);
    CAPTURE(u.plan->name, rows, seed);
    micro_batch b(u, s.saved_bytes(rows));
    const results cast = run_plain(u, b);
    REQUIRE(te_recipes_step(&u.state, u.ctx) == TE_OK);
    const results stored = run_plain(u, b);
    CHECK((stored.y == cast.y));
    CHECK((stored.dx == cast.dx));
    CHECK((stored.grads == cast.grads));
    buffer inferred(u.ctx, u.y_bytes());
    REQUIRE(s.infer(u.y_of(inferred), u.x_of(b.x), u.m.memory.data(), &u.batch, u.ctx) == TE_OK);
    CHECK((inferred.raw() == b.y.raw()));
    const te_scales &scales = u.state.scales; // pointwise kernels and casts must find the same amaxes, so the scales do not change
    std::vector<float> before((size_t)scales.count), after(before);
    REQUIRE(te_copy(u.ctx, before.data(), scales.scale, before.size() * 4) == TE_OK);
    REQUIRE(te_recipes_step(&u.state, u.ctx) == TE_OK);
    REQUIRE(te_copy(u.ctx, after.data(), scales.scale, after.size() * 4) == TE_OK);
    REQUIRE(te_synchronize(u.ctx) == TE_OK);
    CHECK(before == after);
}
} // namespace
#define POINTWISE_CHECK(name, ...) check_pointwise(name##_subject, rows), check_pointwise(name##_unfused_subject, rows);
TEST_CASE("a pointwise kernel that stores the FP8 operand of a GEMM has the bits of a cast of its output", "[recipe]") {
    for (int rows : {1, 37, 130}) {
        POINTWISE_LISTS(POINTWISE_CHECK)
        POINTWISE_CHECK(same)
    }
}

TEST_CASE("each micro-batch in flight has its own scales", "[recipe]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    for (const subject *s : {&current_subject, &delayed_subject}) {
        under_recipe u(*s, 1, 40, seed);
        micro_batch a(u, u.m.s.saved_bytes(40)), b(u, u.m.s.saved_bytes(40), 20);
        a.forward(u);
        a.backward(u);
        const bytes a_dx = a.dx.raw();
        u.batch.accumulate = 1;
        set_rng(u.ctx, 9, 0);
        b.forward(u);
        b.backward(u);
        const bytes b_dx = b.dx.raw(), both = u.m.grads.raw();
        u.batch.accumulate = 0;
        set_rng(u.ctx, 5, 0);
        a.forward(u);
        set_rng(u.ctx, 9, 0);
        b.forward(u);
        a.backward(u);
        CHECK(bool(a.dx.raw() == a_dx));
        u.batch.accumulate = 1;
        b.backward(u);
        CHECK(bool(b.dx.raw() == b_dx));
        CHECK(bool(u.m.grads.raw() == both));
    }
}

TEST_CASE("a step with its update of the scales can be replayed as a graph", "[recipe]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    for (const subject *s : {&current_subject, &delayed_subject}) check_graph(*s, 24, seed);
}

TEST_CASE("a linear with (recipe, none) computes in the list's dtype", "[recipe]") {
    const te_plan *p = mixed_plan();
    CHECK(p->op[1].recipe == TE_RECIPE_fp8_delayed);
    CHECK(p->op[3].recipe == TE_RECIPE_none);
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    under_recipe u(mixed_subject, 1, 9, seed);
    CHECK(u.state.count == 1);
    micro_batch b(u, u.m.s.saved_bytes(9));
    b.forward(u);
    b.backward(u);
}

TEST_CASE("a list whose widths are known only at run time runs with a recipe", "[recipe]") {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    sized m;
    memset(&m, 0, sizeof m);
    const int64_t odd[] = {64, 40}, dims[] = {64, 48};
    CHECK(sized_set_dims(&m, odd, 2, ctx) == TE_ERROR_SHAPE);
    CHECK_THAT(te_last_error(ctx), Catch::Contains("(linear, a) has 64 input and 40 output columns; a product in FP8 has multiples of 16"));
    REQUIRE(sized_set_dims(&m, dims, 2, ctx) == TE_OK);
    buffer params(ctx, sized_param_bytes(&m)), grads(ctx, sized_grad_bytes(&m));
    params.write(reference::vec(params.bytes / 4, 0), TE_f32);
    REQUIRE(sized_bind(&m, params.data(), (float *)grads.data(), ctx) == TE_OK);
    REQUIRE(te_model_randomize(&m.model, 0.2f, 1, 0, ctx) == TE_OK);
    te_model *models[] = {&m.model};
    te_recipes_config config = te_recipes_defaults();
    config.history = 4;
    const size_t n = te_recipes_bytes(models, 1, &config);
    buffer memory(ctx, n);
    te_recipes state;
    REQUIRE(te_recipes_init(&state, memory.data(), n, models, 1, &config, ctx) == TE_OK);
    source random(fresh_seed());
    const int rows = 21;
    buffer x(ctx, (size_t)rows * 64 * 4), y(ctx, (size_t)rows * 16 * 4), dx(ctx, x.bytes), saved_memory(ctx, sized_saved_bytes(&m, rows));
    x.write(random.draw((size_t)rows * 64, TE_f32), TE_f32);
    buffer workspace(ctx, sized_workspace_bytes(&m, rows, ctx));
    ctx->workspace = workspace.data(), ctx->workspace_bytes = workspace.bytes;
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = rows;
    te_saved saved;
    memset(&saved, 0, sizeof saved);
    saved.memory = saved_memory.data(), saved.bytes = saved_memory.bytes;
    reference::vec first;
    // The first step has a cast, the second a pointwise kernel that stores FP8, with the same scales. In f32 both round the same numbers. In 16 bits
    // the cast would read rounded numbers, of which some become the neighbouring FP8 number: y would differ by 3% between the steps.
    for (int step = 0; step < 2; step++) {
        REQUIRE(sized_forward(te_matrix(y.data(), TE_f32, rows, 16), &saved, te_matrix(x.data(), TE_f32, rows, 64), &m, &batch, ctx) == TE_OK);
        REQUIRE(sized_backward(te_matrix(dx.data(), TE_f32, rows, 64), te_matrix(y.data(), TE_f32, rows, 16), &saved, &m, &batch, ctx) == TE_OK);
        REQUIRE(te_recipes_step(&state, ctx) == TE_OK);
        const reference::vec out = y.read(TE_f32), in = dx.read(TE_f32);
        if (step) CHECK((out == first));
        first = out;
        CHECK(std::isfinite(largest(in)));
        CHECK(largest(in) > 0);
    }
    ctx->workspace = nullptr, ctx->workspace_bytes = 0;
}

TEST_CASE("the GEMMs of a list with a recipe are autotuned, too", "[recipe]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    for (const subject *s : {&current_subject, &delayed_subject, &mixed_subject}) {
        under_recipe tuned(*s, 2, 24, seed, 3, 1), untuned(*s, 2, 24, seed);
        CAPTURE(tuned.plan->name);
        for (int on : {1, 0}) {
            REQUIRE(te_recipes_switch(&tuned.state, on, tuned.ctx) == TE_OK);
            REQUIRE(te_recipes_switch(&untuned.state, on, untuned.ctx) == TE_OK);
            micro_batch a(tuned, without(tuned)), b(untuned, without(untuned));
            const results left = run_plain(tuned, a), right = run_plain(untuned, b);
            CHECK(distance(left.y, right.y) < 0.02); // another kernel may sum in another order
            CHECK(distance(left.dx, right.dx) < 0.05);
            CHECK(distance(left.grads, right.grads) < 0.05);
        }
    }
}

TEST_CASE("the printed plan names the FP8 GEMMs, and the memory that the recipe saves", "[recipe]") {
    FILE *f = tmpfile();
    REQUIRE(f);
    mixed_print_plan(f);
    std::string text(1 << 14, 0);
    rewind(f);
    text.resize(fread(&text[0], 1, text.size(), f));
    fclose(f);
    const te_plan *p = mixed_plan();
    const size_t with = (te_plan_saved_bytes(p, TE_ROW_PAD) - TE_ALIGN) / TE_ROW_PAD, without_it = (te_plan_saved_bytes_without_recipe(p, TE_ROW_PAD) - TE_ALIGN) / TE_ROW_PAD;
    INFO(text);
    CHECK(with < without_it);
    CHECK(text.find(std::to_string(with) + " bytes a row saved for backward (" + std::to_string(without_it) + " without the recipe)") != std::string::npos);
    size_t lines = 0;
    for (size_t at = 0; (at = text.find(" fp8 ", at)) != std::string::npos; at++) lines++;
    CHECK(lines == 3); // fc1: forward, inference, backward; head has recipe none
}

TEST_CASE("misuse of recipes is refused, and nothing is written", "[recipe]") {
    const unsigned seed = fresh_seed();
    under_recipe u(delayed_subject, 1, 8, seed);
    micro_batch b(u, u.m.s.saved_bytes(8));
    te_recipes fresh;
    te_recipes_config c = te_recipes_defaults();
    const size_t n = te_recipes_bytes(u.models, 1, &c);
    buffer memory(u.ctx, n);
    const auto refused = [&](te_status status, te_status as, const char *text) {
        CHECK(status == as);
        CHECK_THAT(te_last_error(u.ctx), Catch::Contains(text));
    };
    refused(te_recipes_init(&fresh, nullptr, n, u.models, 1, &c, u.ctx), TE_ERROR_NULL, "memory is null");
    refused(te_recipes_init(&fresh, memory.data(), n - 1, u.models, 1, &c, u.ctx), TE_ERROR_MEMORY, "are needed");
    te_model unbound;
    memset(&unbound, 0, sizeof unbound);
    te_model *none[] = {&unbound}, *twice[] = {u.models[0], u.models[0]};
    refused(te_recipes_init(&fresh, memory.data(), n, none, 1, &c, u.ctx), TE_ERROR_NULL, "not bound");
    refused(te_recipes_init(&fresh, memory.data(), n, twice, 2, &c, u.ctx), TE_ERROR_VALUE, "again");
    c.history = 0;
    refused(te_recipes_init(&fresh, memory.data(), n, u.models, 1, &c, u.ctx), TE_ERROR_VALUE, "a history of 0 steps");
    c.history = 1025;
    refused(te_recipes_init(&fresh, memory.data(), n, u.models, 1, &c, u.ctx), TE_ERROR_VALUE, "a history of 1025 steps");
    CHECK(memory.poisoned());
    memset(&fresh, 0, sizeof fresh);
    refused(te_recipes_step(&fresh, u.ctx), TE_ERROR_NULL, "not initialised");
    refused(te_recipes_switch(&fresh, 1, u.ctx), TE_ERROR_NULL, "not initialised");
    te_recipes moved = u.state;
    refused(te_recipes_step(&moved, u.ctx), TE_ERROR_STATE, "since te_recipes_init");
    REQUIRE(te_recipes_switch(&u.state, 0, u.ctx) == TE_OK); // without the recipe the saved tensors are larger, so this memory is too small
    refused(u.m.s.forward(u.y_of(b.y), &b.saved, u.x_of(b.x), u.m.memory.data(), &u.batch, u.ctx), TE_ERROR_MEMORY, "saved.memory");
    CHECK(b.y.poisoned());
    REQUIRE(te_recipes_switch(&u.state, 1, u.ctx) == TE_OK);
    b.forward(u);
    REQUIRE(te_recipes_switch(&u.state, 0, u.ctx) == TE_OK);
    refused(u.m.s.backward(u.x_of(b.dx), u.y_of(b.dy), &b.saved, u.m.memory.data(), &u.batch, u.ctx), TE_ERROR_STATE, "since the forward");
    CHECK(b.dx.poisoned());
}

TEST_CASE("a head with a recipe has the bits of its unfused ops", "[recipe]") {
    static_assert((int)loss_forward_steps == 2 && (int)loss_backward_steps == 2 && (int)loss_unfused_backward_steps == 3, "a row, or its ops");
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    const int rows = 150;
    under_recipe u(loss_subject, 1, rows, seed), v(loss_unfused_subject, 1, rows, seed);
    under_recipe *const both[] = {&u, &v};
    std::vector<std::unique_ptr<buffer>> labels;
    for (under_recipe *r : both) {
        std::vector<int32_t> label((size_t)rows);
        for (int i = 0; i < rows; i++) label[(size_t)i] = i % 7 ? i % 64 : -100;
        labels.emplace_back(new buffer(r->ctx, (size_t)rows * 4));
        labels.back()->write_ints(label);
        r->batch.labels = (const int32_t *)labels.back()->data();
    }
    for (const bool on : {true, false}) {
        micro_batch a(u, std::max(loss_saved_bytes(rows), without(u))), b(v, std::max(loss_unfused_saved_bytes(rows), without(v)));
        micro_batch *const batches[] = {&a, &b};
        for (int step = 0; step < 3; step++) {
            for (int k = 0; k < 2; k++) {
                if (!step) REQUIRE(te_recipes_switch(&both[k]->state, on, both[k]->ctx) == TE_OK);
                both[k]->batch.loss_in_backward = step == 2; // has no effect with a recipe
                batches[k]->forward(*both[k]);
                CHECK(batches[k]->saved.loss_in_backward == 0);
                batches[k]->backward(*both[k]);
                if (on) REQUIRE(te_recipes_step(&both[k]->state, both[k]->ctx) == TE_OK);
            }
            CHECK(a.y.raw() == b.y.raw());
            CHECK(a.dx.raw() == b.dx.raw());
            CHECK(u.m.grads.raw() == v.m.grads.raw());
            CHECK(rms(a.dx.read(TE_bf16)) > 0);
        }
    }
}
