// microscaled_recipe_test.cc -- the recipes mxfp8 and nvfp4: GEMMs against products, in double, of operands that the casts of microscaled_test.cc
// rounded; the other steps against the list without a recipe; and what a user may do with such a list.
#include "recipe.h"
#include "te/te.h"
#include "te/microscaling.h"

MODEL(mx_f32, (f32, (recipe, mxfp8)), (linear, fc, 96, 160))
MODEL(mx_bf16, (bf16, (recipe, mxfp8)), (linear, fc, 96, 160))
MODEL(nv_f32, (f32, (recipe, nvfp4)), (linear, fc, 112, 80))
MODEL(nv_bf16, (bf16, (recipe, nvfp4)), (linear, fc, 112, 80))
MODEL(nv_f16, (f16, (recipe, nvfp4)), (linear, fc, 112, 80))
MODEL(nv_untransformed, (f32, (recipe, nvfp4), (hadamard, off)), (linear, fc, 112, 80))
MODEL(nv_nearest, (f32, (recipe, nvfp4), (rounding, nearest), (square_blocks, off)), (linear, fc, 112, 80))

#define ATTENTION                                                                                                                   \
    (fork, x1), (layernorm, ln1, 64), (linear, qkv, 64, 192), (bias, qkv_b, 192), (attention, attn, 4, 4, 16), (linear, proj, 64, 64), \
        (bias, proj_b, 64), (add, x1)
#define MLP (fork, x2), (layernorm, ln2, 64), (linear, fc1, 64, 256), (bias, b1, 256), (gelu, act), (linear, fc2, 256, 64), (bias, b2, 64), (add, x2)
MODEL(plain_block, f32, ATTENTION, MLP)
MODEL(mx_block, (f32, (recipe, mxfp8)), ATTENTION, MLP)
MODEL(nv_block, (f32, (recipe, nvfp4)), ATTENTION, MLP)
// Unfused, because on CUDA a fused GEMM that saves its gelu's input has another kernel than one that does not.
UNFUSED(nv_unfused, (f32, (recipe, nvfp4)), ATTENTION, MLP)
UNFUSED(nv_region, (f32, (recipe, nvfp4)), ATTENTION, (recompute, mlp), MLP, (end_recompute, mlp))
MODEL(bf16_block, (bf16, (recipe, nvfp4)), (layernorm, ln, 64), (linear, fc1, 64, 128), (bias, b1, 128), (gelu, act), (linear, fc2, 128, 64, (recipe, none)), (bias, b2, 64))
MODEL(frozen, (f32, (recipe, mxfp8)), (linear, fc1, 64, 96), (frozen_linear, fc2, 96, 64))
MODEL(loss, (f32, (recipe, mxfp8)), (linear, fc1, 64, 96), (gelu, act), (linear, head, 96, 256), (cross_entropy, ce, 256))
TE_SEQUENTIAL_DIMS(sized, (f32, (recipe, mxfp8)), (rmsnorm, n, TE_DIM(0)), (linear, a, TE_DIM(0), TE_DIM(1)), (silu, s), (linear, b, TE_DIM(1), 32))
TE_SEQUENTIAL(constant, (f32, (recipe, mxfp8)), (rmsnorm, n, 64), (linear, a, 64, 96), (silu, s), (linear, b, 96, 32))
TE_INFERENCE(alone, (f32, (recipe, mxfp8)), (rmsnorm, n, 64), (linear, a, 64, 96), (silu, s), (linear, b, 96, 32))

namespace {

struct options_of_nvfp4 { bool hadamard, square_blocks, stochastic; };
const options_of_nvfp4 mxfp8 = {false, false, false}, nvfp4 = {true, true, true}; // the defaults of the recipes

// A matrix of the list's dtype, rounded by the list's own cast; [rows, cols], or more rows columnwise under nvfp4.
reference::vec rounded(under_recipe &u, options_of_nvfp4 options, const reference::vec &v, int64_t rows, int64_t cols, bool columnwise, bool weight, const te_rng *rng, uint32_t stream) {
    const int64_t padded = (rows + 15) / 16 * 16;
    const te_dtype d = u.plan->dtype;
    buffer x(u.ctx, (size_t)(rows * cols) * te_dtype_bytes(d), 16), y(u.ctx, (size_t)(padded * cols) * te_dtype_bytes(d), 16), amax(u.ctx, 16);
    x.write(v, d), y.write(reference::vec((size_t)(padded * cols), 0), d);
    te_quantize_microscaled q = te_quantize_microscaled_of(rows, cols);
    q.x = x.data(), q.amax = (float *)amax.data(), q.rng = rng, q.stream = stream;
    q.square_blocks = weight && options.square_blocks, q.hadamard = columnwise && !weight && options.hadamard;
    (columnwise ? q.yt : q.y).rounded = y.data();
    REQUIRE(u.plan->fp8->quantize_microscaled(&q, u.ctx) == TE_OK);
    return y.read(d);
}
void check_linear(const subject &s, int rows, options_of_nvfp4 options) {
    const unsigned seed = fresh_seed();
    CAPTURE(s.plan()->name, rows, seed);
    under_recipe u(s, 1, rows, seed);
    const te_dtype d = u.plan->dtype;
    const size_t in = (size_t)u.plan->in, out = (size_t)u.plan->out, m = (size_t)rows;
    const size_t k = options.hadamard ? (m + 15) / 16 * 16 : m;
    const double lost = TE_CUDA ? std::ldexp(1, -11) : 1e-6 * std::sqrt((double)std::max(in, std::max(out, k)));
    micro_batch b(u, s.saved_bytes(rows), 3);
    // Under mxfp8 every second row of the weight is 2^-16 as large, and the same columns of dy 2^16 as large, so that both kinds of terms count. Columnwise
    // the small weights are subnormal in their block's e4m3, rowwise they are not; of numbers of one size, both casts would have the same values. The
    // same for rows of x and dy.
    if (u.plan->op[0].recipe == TE_RECIPE_mxfp8) {
        reference::vec w = u.m.param[0], dy = b.dy.read(d), x = b.x.read(d);
        for (size_t i = 0; i < x.size(); i++) if (i / in % 2) x[i] *= std::ldexp(1, -16);
        for (size_t i = 0; i < dy.size(); i++) if (i / out % 2) dy[i] *= std::ldexp(1, 16);
        for (size_t i = 0; i < w.size(); i++) if (i / in % 2) w[i] *= std::ldexp(1, -16);
        for (size_t i = 0; i < dy.size(); i++) if (i % out % 2) dy[i] *= std::ldexp(1, 16);
        u.m.param[0] = w, u.m.params.write(w, d), b.dy.write(dy, d), b.x.write(x, d);
    }
    b.forward(u);
    b.backward(u);
    // the random state with which forward, and so backward, ran is the first part of te_saved
    const te_rng *rng = options.stochastic ? (const te_rng *)b.memory.data() : nullptr;
    const uint32_t stream = TE__MICROSCALED_STREAMS;
    const reference::vec x = b.x.read(d), dy = b.dy.read(d), w = u.m.param[0];
    const auto at = [](const reference::vec &v, size_t cols) { return [&v, cols](size_t i, size_t j) { return v[i * cols + j]; }; };
    const auto across = [](const reference::vec &v, size_t cols) { return [&v, cols](size_t i, size_t j) { return v[j * cols + i]; }; };
    const int64_t M = rows, I = (int64_t)in, O = (int64_t)out;
    const reference::vec xr = rounded(u, options, x, M, I, false, false, nullptr, 0), wr = rounded(u, options, w, O, I, false, true, nullptr, 0);
    const reference::vec dr = rounded(u, options, dy, M, O, false, false, rng, stream), wc = rounded(u, options, w, O, I, true, true, nullptr, 0);
    const reference::vec xc = rounded(u, options, x, M, I, true, false, nullptr, 0), dc = rounded(u, options, dy, M, O, true, false, rng, stream);
    check_product("y", b.y.read(d), m, out, in, at(xr, in), at(wr, in), d, lost);
    check_product("dx", b.dx.read(d), m, in, out, at(dr, out), across(wc, in), d, lost);
    check_product("dweight", u.m.grads.read(TE_f32), out, in, k, across(dc, out), across(xc, in), TE_f32, lost);
    CHECK(distance(xr.size() > x.size() ? reference::vec(xr.begin(), xr.begin() + (long)x.size()) : xr, x) > 1e-3); // it was rounded at all
}
} // namespace

TEST_CASE("a linear under mxfp8 or nvfp4 computes the products of its rounded operands", "[microscaled]") {
    for (const int rows : {1, 16, 37, 64}) {
        for (const subject *s : {&mx_f32_subject, &mx_bf16_subject}) check_linear(*s, rows, mxfp8);
        for (const subject *s : {&nv_f32_subject, &nv_bf16_subject, &nv_f16_subject}) check_linear(*s, rows, nvfp4);
    }
}
TEST_CASE("under nvfp4 the transform, 16 x 16 blocks of weights and stochastic rounding can be switched off", "[microscaled]") {
    for (const int rows : {1, 37}) {
        check_linear(nv_untransformed_subject, rows, {false, true, true});
        check_linear(nv_nearest_subject, rows, {true, false, false});
    }
}
TEST_CASE("a block under mxfp8 or nvfp4 is close to the block without a recipe, and saves as much", "[microscaled]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    for (const subject *s : {&mx_block_subject, &nv_block_subject}) {
        under_recipe u(*s, 2, 24, seed), p(*s, 2, 24, seed);
        REQUIRE(te_recipes_switch(&p.state, 0, p.ctx) == TE_OK);
        CHECK(s->saved_bytes(48) == plain_block_subject.saved_bytes(48));
        micro_batch a(u, s->saved_bytes(48)), b(p, s->saved_bytes(48));
        const results left = run_plain(u, a), right = run_plain(p, b);
        // e4m3 rounds to 2^-4 of a number and e2m1 to 2^-2, uniformly; about six rounded operands in a row on each path
        const double most = 6 * std::ldexp(1, s == &mx_block_subject ? -4 : -2) / std::sqrt(3);
        CHECK(distance(left.y, right.y) < most);
        CHECK(distance(left.dx, right.dx) < most);
        CHECK(distance(left.grads, right.grads) < most);
        CHECK(distance(left.grads, right.grads) > 1e-3);
    }
}
TEST_CASE("mxfp8 or nvfp4 switched off has the bits of the list without a recipe", "[microscaled]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    under_recipe u(nv_block_subject, 2, 24, seed), v(mx_block_subject, 2, 24, seed);
    REQUIRE(te_recipes_switch(&u.state, 0, u.ctx) == TE_OK);
    REQUIRE(te_recipes_switch(&v.state, 0, v.ctx) == TE_OK);
    micro_batch a(u, nv_block_saved_bytes(48)), b(v, mx_block_saved_bytes(48));
    const results left = run_plain(u, a), right = run_plain(v, b);
    CHECK((left.y == right.y && left.dx == right.dx && left.grads == right.grads));
}
TEST_CASE("an instance that te_recipes_init was not given runs without the recipe", "[microscaled]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    under_recipe u(nv_block_subject, 2, 24, seed);
    instance other(nv_block_subject, u.ctx); // with the same weights, and not among the models of u.state
    source random(seed);
    other.draw(random);
    micro_batch b(u, nv_block_saved_bytes(48));
    b.forward(u);
    const reference::vec rounded = b.y.read(TE_f32);
    REQUIRE(nv_block_subject.forward(u.y_of(b.y), &b.saved, u.x_of(b.x), other.memory.data(), &u.batch, u.ctx) == TE_OK);
    const reference::vec plain = b.y.read(TE_f32);
    REQUIRE(te_recipes_switch(&u.state, 0, u.ctx) == TE_OK);
    b.forward(u);
    CHECK((plain == b.y.read(TE_f32)));
    CHECK_FALSE((plain == rounded));
}
TEST_CASE("recompute regions under nvfp4 change no bit, and a second backward repeats the first", "[microscaled]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    under_recipe u(nv_unfused_subject, 2, 33, seed), v(nv_region_subject, 2, 33, seed);
    micro_batch a(u, u.m.s.saved_bytes(66)), b(v, v.m.s.saved_bytes(66));
    const results left = run_plain(u, a), right = run_plain(v, b);
    CHECK((left.y == right.y && left.dx == right.dx && left.grads == right.grads));
    CHECK(b.memory.bytes < a.memory.bytes);
    u.m.grads.write(reference::vec(u.m.grads.bytes / 4, 0), TE_f32);
    a.backward(u);
    CHECK((a.dx.read(TE_f32) == left.dx && u.m.grads.read(TE_f32) == left.grads));
}
TEST_CASE("steps under mxfp8 and nvfp4 can be replayed as a graph", "[microscaled]") {
    check_graph(bf16_block_subject, 40, fresh_seed());
    check_graph(mx_bf16_subject, 33, fresh_seed());
}
TEST_CASE("a frozen linear under mxfp8 computes only the gradient of its input; a loss runs behind a linear", "[microscaled]") {
    under_recipe u(frozen_subject, 1, 20, fresh_seed());
    micro_batch b(u, frozen_saved_bytes(20));
    const results r = run_plain(u, b);
    for (size_t i = 0; i < r.grads.size(); i++) CHECK_FALSE(std::isnan(r.grads[i]));
    CHECK(loss_plan()->op[2].recipe == TE_RECIPE_mxfp8);
}
TEST_CASE("te_recipes keeps no copies of weights under mxfp8 and nvfp4; te_fp8_weights_save refuses them", "[microscaled]") {
    under_recipe u(mx_block_subject, 1, 16, fresh_seed());
    const te_recipes_config c = te_recipes_defaults();
    CHECK(te_recipes_bytes(u.models, 1, &c) <= te_scales_bytes(12, c.history) + 16 * TE_ALIGN);
    CHECK(u.m.model()->param[2].fp8.data == nullptr);
    te_named_model named[] = {{"block.", u.m.model()}};
    CHECK(te_fp8_weights_save("/tmp/never_written", named, 1, u.ctx) == TE_ERROR_STATE);
    CHECK(std::string(te_last_error(u.ctx)).find("mxfp8 or nvfp4") != std::string::npos);
}

namespace {
// y of a list of the shape of `constant` in inference, with the same parameters each time.
template <class M> reference::vec answer(M &m, size_t param_bytes, size_t workspace_bytes, te_status (*bind)(M *, void *, te_context *),
                                         te_status (*infer)(te_tensor, te_tensor, const M *, const te_batch *, te_context *), te_context *ctx) {
    buffer params(ctx, param_bytes), x(ctx, 21 * 64 * 4), y(ctx, 21 * 32 * 4), workspace(ctx, workspace_bytes);
    REQUIRE(bind(&m, params.data(), ctx) == TE_OK);
    REQUIRE(te_model_randomize(&m.model, 0.2f, 1, 0, ctx) == TE_OK);
    te_model *models[] = {&m.model};
    const te_recipes_config config = te_recipes_defaults();
    buffer memory(ctx, te_recipes_bytes(models, 1, &config));
    te_recipes state;
    REQUIRE(te_recipes_init(&state, memory.data(), memory.bytes, models, 1, &config, ctx) == TE_OK);
    source random(7);
    x.write(random.draw(21 * 64, TE_f32), TE_f32);
    ctx->workspace = workspace.data(), ctx->workspace_bytes = workspace.bytes;
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = 21;
    REQUIRE(infer(te_matrix(y.data(), TE_f32, 21, 32), te_matrix(x.data(), TE_f32, 21, 64), &m, &batch, ctx) == TE_OK);
    ctx->workspace = nullptr, ctx->workspace_bytes = 0;
    return y.read(TE_f32);
}
} // namespace
TEST_CASE("lists under mxfp8 whose widths are known at run time, and lists for inference, compute the same", "[microscaled]") {
    context owner;
    te_context *ctx = &owner.c;
    static sized s;
    static constant c;
    static alone a;
    const int64_t odd[] = {64, 48}, dims[] = {64, 96};
    CHECK(sized_set_dims(&s, odd, 2, ctx) == TE_ERROR_SHAPE); // 48 is no multiple of 32
    CHECK(std::string(te_last_error(ctx)).find("multiples of 32") != std::string::npos);
    REQUIRE(sized_set_dims(&s, dims, 2, ctx) == TE_OK);
    const auto bind_sized = [](sized *m, void *p, te_context *x) { return sized_bind(m, p, nullptr, x); };
    const auto bind_constant = [](constant *m, void *p, te_context *x) { return constant_bind(m, p, nullptr, x); };
    const auto bind_alone = [](alone *m, void *p, te_context *x) { return alone_bind(m, p, x); };
    const reference::vec of_sized = answer<sized>(s, sized_param_bytes(&s), 1 << 20, bind_sized, sized_infer, ctx);
    const reference::vec of_constant = answer<constant>(c, constant_param_bytes(), 1 << 20, bind_constant, constant_infer, ctx);
    CHECK((of_sized == of_constant));
    CHECK((answer<alone>(a, alone_param_bytes(), 1 << 20, bind_alone, alone_infer, ctx) == of_constant));
}
