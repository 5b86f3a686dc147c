// expert_fp8_test.cc -- experts under the recipe fp8_block: (expert_linear, ..) against sums in doubles over the operands as they are cast to
// FP8, with any routing; lists with experts against the same list without a recipe; weights in FP8 only.
#include "folder.h"
#include "recipe.h"
#include "te/fuse/inference.h"
#include "te/io/fp8_weights.h"
#include "te/moe.h"
#include "te/ops/activation.h"
#include "te/ops/elementwise.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/residual.h"
#include "te/optim/recipes_adamw.h"

#define BLOCKWISE(D) (D, (recipe, fp8_block))
// 528 and 144: the last block of 128 columns is not full. 640: an odd number of blocks. The host takes the narrower ones, which are quicker.
#define WIDE (TE_CUDA ? 528 : 144)
#define SQUARE (TE_CUDA ? 640 : 128)

#define PRODUCT(in, out) (router, r, in, 5, (top_k, 3), (score, softmax_of_chosen)), (expert_linear, l, in, out, 5), (combine, r)
MODEL(product_bf16, BLOCKWISE(bf16), PRODUCT(WIDE, TE_CUDA ? 640 : 384))
MODEL(product_f16, BLOCKWISE(f16), PRODUCT(SQUARE, TE_CUDA ? 1024 : 256))
UNFUSED(product_unfused, BLOCKWISE(bf16), PRODUCT(WIDE, TE_CUDA ? 512 : 128))
MODEL(product_narrow, BLOCKWISE(bf16), PRODUCT(48, 128))
#if !TE_CUDA
MODEL(product_f32, BLOCKWISE(f32), PRODUCT(48, 384))
#endif

#define EXPERTS(in, middle, out)                                                                                                        \
    (fork, x), (rmsnorm, n, in), (router, r, in, 6, (top_k, 2), (renormalise, 1)), (expert_linear, up, in, 2 * (middle), 6), (swiglu, act), \
        (expert_linear, down, middle, out, 6), (combine, r), (linear, l, out, in), (add, x)
MODEL(layer, BLOCKWISE(bf16), EXPERTS(WIDE, SQUARE, SQUARE))
MODEL(layer_without, bf16, EXPERTS(WIDE, SQUARE, SQUARE))
TE_INFERENCE(layer_for_inference, BLOCKWISE(bf16), EXPERTS(WIDE, SQUARE, SQUARE))
// Experts with a capacity, with a bias, and that weigh their inputs; and one that opts out.
MODEL(dropping, BLOCKWISE(bf16), (router, r, WIDE, 4, (top_k, 2), (capacity, 1.1f)), (expert_linear, up, WIDE, SQUARE, 4), (expert_bias, b, SQUARE, 4),
      (gelu, act), (expert_linear, down, SQUARE, 512, 4), (combine, r))
MODEL(weighing, BLOCKWISE(bf16), (router, r, WIDE, 4, (top_k, 2), (score, sigmoid), (weigh, input)), (expert_linear, up, WIDE, SQUARE, 4), (silu, act),
      (expert_linear, down, SQUARE, 512, 4), (combine, r))
MODEL(opting_out, BLOCKWISE(bf16), (router, r, 40, 3, (top_k, 2)), (expert_linear, up, 40, 24, 3, (recipe, none)), (combine, r))

namespace {

// The matrix x [rows, cols] after a cast to e4m3, with a scale for each 1 x 128 or (blocks) 128 x 128 elements.
reference::vec cast_to_fp8(const reference::vec &x, size_t rows, size_t cols, bool blocks) {
    const size_t high = blocks ? 128 : 1;
    reference::vec y(x.size());
    for (size_t i0 = 0; i0 < rows; i0 += high)
        for (size_t j0 = 0; j0 < cols; j0 += 128) {
            double amax = 0;
            for (size_t i = i0; i < std::min(rows, i0 + high); i++)
                for (size_t j = j0; j < std::min(cols, j0 + 128); j++) amax = std::max(amax, std::fabs(x[i * cols + j]));
            const float scale = amax > 0 ? 448.0f / (float)amax : 1;
            for (size_t i = i0; i < std::min(rows, i0 + high); i++)
                for (size_t j = j0; j < std::min(cols, j0 + 128); j++)
                    y[i * cols + j] = (double)te_float_of_fp8(te_fp8_of_float((float)x[i * cols + j] * scale, TE_e4m3), TE_e4m3) * (double)(1 / scale);
        }
    return y;
}

// Values, each the sum of some products, and for their bounds the sums of the |products| and of the |terms| of these.
struct sums {
    reference::vec value, products, terms;
    explicit sums(size_t n) : value(n, 0.0), products(n, 0.0), terms(n, 0.0) {}
    void add(size_t i, double factor, const double *a, size_t a_step, const double *b, size_t b_step, size_t k) {
        double product = 0;
        for (size_t j = 0; j < k; j++) product += a[j * a_step] * b[j * b_step], terms[i] += std::fabs(factor * a[j * a_step] * b[j * b_step]);
        value[i] += factor * product, products[i] += std::fabs(factor * product);
    }
    // rounding: relative, of a product; lost: the error of a sum relative to its |terms|
    void check(const char *what, const reference::vec &got, double rounding, double lost) const {
        size_t wrong = 0;
        REQUIRE(got.size() == value.size());
        double worst = 0;
        for (size_t i = 0; i < got.size(); i++) {
            const double error = std::fabs(got[i] - value[i]) / (rounding * products[i] + lost * terms[i] + 1e-30);
            wrong += !(error <= 1), worst = error <= worst ? worst : error;
        }
        INFO(what << ": " << wrong << " of " << got.size() << " are wrong; the worst error is " << worst << " times its bound");
        CHECK(wrong == 0);
    }
};

// A list of one product between a router and its combine. all_at_first: the router's weight is 0, so all tokens choose the experts 0 to 2.
void check_product_of_experts(const subject &s, int rows, bool all_at_first) {
    const unsigned seed = fresh_seed();
    CAPTURE(s.plan()->name, rows, all_at_first, seed);
    under_recipe u(s, 1, rows, seed);
    const te_dtype d = u.plan->dtype;
    const size_t in = (size_t)u.plan->in, out = (size_t)u.plan->out, experts = 5, k = 3, n = (size_t)rows;
    // The router's weight is so small that its own part of dx is far below the rounding.
    const reference::vec of_router = u.random.draw(experts * in, d, 0, all_at_first ? 0 : d == TE_f16 ? 1e-7 : 1e-9);
    const te_param *weight = &u.m.model()->param[1];
    const std::vector<uint8_t> raw = numbers::stored(of_router, d);
    REQUIRE(te_copy(u.ctx, u.m.model()->param[0].data, raw.data(), raw.size()) == TE_OK);
    REQUIRE(te_synchronize(u.ctx) == TE_OK);
    micro_batch b(u, s.saved_bytes(rows));
    b.dy.write(u.random.draw(n * out, d), d);
    b.forward(u), b.backward(u);
    // the routing, as forward has saved it: logits, weights and experts
    const std::vector<uint8_t> saved = b.memory.raw();
    std::vector<float> w(n * k);
    std::vector<int32_t> expert(n * k);
    memcpy(w.data(), saved.data() + TE_ALIGN + n * experts * 4, w.size() * 4);
    memcpy(expert.data(), saved.data() + TE_ALIGN + n * (experts + k) * 4, expert.size() * 4);
    const reference::vec x = b.x.read(d), dy = b.dy.read(d), qx = cast_to_fp8(x, n, in, false), qdy = cast_to_fp8(dy, n, out, false);
    const reference::vec qw = cast_to_fp8(u.m.param[1], experts * out, in, true);
    sums y(n * out), dx(n * in), dw(experts * out * in);
    for (size_t t = 0; t < n; t++)
        for (size_t j = 0; j < k; j++) {
            const size_t e = (size_t)expert[t * k + j];
            const double *of_e = qw.data() + e * out * in, weight_of = (double)w[t * k + j];
            REQUIRE(e < experts);
            if (all_at_first) REQUIRE(e == j);
            for (size_t o = 0; o < out; o++) y.add(t * out + o, weight_of, &qx[t * in], 1, of_e + o * in, 1, in);
            // A combine of its own weighs dy, which is cast behind it.
            reference::vec weighed(dy.begin() + (long)(t * out), dy.begin() + (long)((t + 1) * out));
            for (double &v : weighed) v = (double)te_round_to((float)(v * weight_of), d);
            const bool weighs_first = &s == &product_unfused_subject;
            const reference::vec of_dy = cast_to_fp8(weighed, 1, out, false);
            for (size_t i = 0; i < in; i++)
                dx.add(t * in + i, weighs_first ? 1 : weight_of, weighs_first ? of_dy.data() : &qdy[t * out], 1, of_e + i, in, out);
            for (size_t o = 0; o < out; o++)
                for (size_t i = 0; i < in; i++) dw.add((e * out + o) * in + i, weight_of, &dy[t * out + o], 1, &x[t * in + i], 1, 1);
        }
    // Products are rounded to the list's dtype, then multiplied by a weight and rounded again (dx), and their sum is rounded.
    const double unit = d == TE_f32 ? std::ldexp(1, -22) : d == TE_f16 ? std::ldexp(1, -11) : std::ldexp(1, -8);
    const double lost = TE_CUDA ? std::ldexp(1, -11) : 1e-6 * std::sqrt((double)std::max(in, out)); // as for the other GEMMs of fp8_block
    y.check("y", b.y.read(d), 3 * unit, lost), dx.check("dx", b.dx.read(d), 3 * unit, lost);
    const size_t at = (size_t)(weight->grad - (float *)u.m.grads.data());
    dw.check("dweight", u.m.grads.read(TE_f32, at, experts * out * in), 0, 2 * unit + 1e-6); // w x is rounded to the list's dtype
    for (size_t e = 0; e < experts; e++) // an expert without rows has the gradient 0
        if (std::find(expert.begin(), expert.end(), (int32_t)e) == expert.end())
            for (double v : u.m.grads.read(TE_f32, at + e * out * in, out * in)) REQUIRE(v == 0);
    buffer inferred(u.ctx, u.y_bytes());
    REQUIRE(s.infer(u.y_of(inferred), u.x_of(b.x), u.m.memory.data(), &u.batch, u.ctx) == TE_OK);
    CHECK(bool(inferred.raw() == b.y.raw()));
}

} // namespace

TEST_CASE("products of experts in FP8", "[expert_fp8]") {
    const std::vector<const subject *> all = {&product_bf16_subject, &product_f16_subject, &product_unfused_subject, &product_narrow_subject,
#if !TE_CUDA
                                              &product_f32_subject,
#endif
    };
    for (const subject *s : all)
        for (int rows : {1, 3, 22}) check_product_of_experts(*s, rows, false);
    check_product_of_experts(product_bf16_subject, brief() ? 60 : TE_CUDA ? 301 : 83, false);
    check_product_of_experts(product_bf16_subject, 40, true);
}

TEST_CASE("lists with experts in FP8 compute almost what they compute without a recipe", "[expert_fp8]") {
    for (const subject *s : {&layer_subject, &dropping_subject, &weighing_subject})
        for (int rows : {1, 19}) {
            const unsigned seed = fresh_seed();
            CAPTURE(s->plan()->name, rows, seed);
            under_recipe u(*s, 1, rows, seed);
            micro_batch b(u, s->saved_bytes(rows));
            const results fp8 = run_plain(u, b), again = run_plain(u, b);
            CHECK((fp8.y == again.y && fp8.dx == again.dx));
            REQUIRE(te_recipes_switch(&u.state, 0, u.ctx) == TE_OK);
            micro_batch c(u, without(u));
            c.x.write(b.x.read(TE_bf16), TE_bf16), c.dy.write(b.dy.read(TE_bf16), TE_bf16);
            u.m.grads.write(reference::vec(u.m.grads.bytes / 4, 0), TE_f32);
            const results off = run_plain(u, c);
            CHECK((distance(fp8.y, off.y) < 0.1 && distance(fp8.y, off.y) > 1e-3));
            CHECK((distance(fp8.dx, off.dx) < 0.1 && distance(fp8.dx, off.dx) > 1e-3));
            CHECK(distance(fp8.grads, off.grads) < 0.1);
        }
}

TEST_CASE("with FP8 off, experts compute the bits of a list without a recipe", "[expert_fp8]") {
    under_recipe u(layer_subject, 1, 13, fresh_seed());
    micro_batch b(u, without(u));
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    instance plain(layer_without_subject, ctx);
    buffer x(ctx, u.x_bytes()), y(ctx, u.y_bytes()), workspace(ctx, layer_without_subject.workspace_bytes(plain.memory.data(), 13, ctx));
    REQUIRE(te_recipes_switch(&u.state, 0, u.ctx) == TE_OK);
    b.forward(u);
    REQUIRE(te_copy(ctx, plain.params.data(), u.m.params.raw().data(), plain.params.bytes) == TE_OK);
    REQUIRE(te_synchronize(ctx) == TE_OK);
    x.write(b.x.read(TE_bf16), TE_bf16);
    ctx->workspace = workspace.data(), ctx->workspace_bytes = workspace.bytes;
    REQUIRE(layer_without_subject.infer(u.y_of(y), u.x_of(x), plain.memory.data(), &u.batch, ctx) == TE_OK);
    ctx->workspace = nullptr, ctx->workspace_bytes = 0;
    CHECK(bool(y.raw() == b.y.raw()));
}

TEST_CASE("experts whose weights are in FP8 only compute the same bits", "[expert_fp8]") {
    folder f;
    under_recipe u(layer_subject, 1, 21, fresh_seed());
    micro_batch b(u, layer_saved_bytes(21));
    const te_named_model trained[] = {{"h0", u.m.model()}};
    const std::string path = f / "fp8.safetensors";
    buffer expected(u.ctx, u.y_bytes()), y(u.ctx, u.y_bytes());
    REQUIRE(layer_subject.infer(u.y_of(expected), u.x_of(b.x), u.m.memory.data(), &u.batch, u.ctx) == TE_OK);
    REQUIRE(te_fp8_weights_save(path.c_str(), trained, 1, u.ctx) == TE_OK);
    layer_for_inference m;
    te_fp8_weights weights;
    te_safetensors file;
    REQUIRE(layer_for_inference_bind(&m, nullptr, u.ctx) == TE_OK);
    const te_named_model models[] = {{"h0", &m.model}};
    buffer memory(u.ctx, te_fp8_weights_bytes(models, 1));
    REQUIRE(te_safetensors_open(&file, path.c_str(), u.ctx) == TE_OK);
    REQUIRE(te_fp8_weights_load(&weights, memory.data(), memory.bytes, models, 1, &file, u.ctx) == TE_OK);
    te_safetensors_close(&file);
    CHECK(m.up.weight.data == nullptr);
    REQUIRE(layer_for_inference_infer(u.y_of(y), u.x_of(b.x), &m, &u.batch, u.ctx) == TE_OK);
    CHECK(bool(y.raw() == expected.raw()));
}

TEST_CASE("the optimizer's update casts the weights of experts as te_recipes_step does", "[expert_fp8]") {
    const unsigned seed = fresh_seed();
    std::vector<uint8_t> y[2], params[2];
    for (int both = 0; both < 2; both++) {
        under_recipe u(layer_subject, 1, 9, seed);
        micro_batch b(u, layer_saved_bytes(9));
        te_adamw opt;
        te_recipes_adamw update;
        const te_adamw_config config = te_adamw_defaults(1e-2f);
        buffer state(u.ctx, te_adamw_bytes_of(u.models, 1, &config));
        REQUIRE(te_adamw_init(&opt, state.data(), state.bytes, u.models, 1, &config, u.ctx) == TE_OK);
        buffer of_update(u.ctx, te_recipes_adamw_bytes(&u.state, &opt));
        if (both) REQUIRE(te_recipes_adamw_init(&update, of_update.data(), of_update.bytes, &u.state, &opt, u.ctx) == TE_OK);
        b.forward(u), b.backward(u);
        if (both) REQUIRE(te_recipes_adamw_step(&update, u.ctx) == TE_OK);
        else REQUIRE((te_adamw_step(&opt, u.ctx) == TE_OK && te_recipes_step(&u.state, u.ctx) == TE_OK));
        b.forward(u);
        y[both] = b.y.raw(), params[both] = u.m.params.raw();
    }
    CHECK((y[0] == y[1] && params[0] == params[1]));
}

TEST_CASE("an expert that opts out runs in the dtype of the list", "[expert_fp8]") {
    under_recipe u(opting_out_subject, 1, 7, fresh_seed());
    CHECK(u.state.count == 0);
    micro_batch b(u, opting_out_saved_bytes(7));
    b.forward(u), b.backward(u);
    for (double v : b.dx.read(TE_bf16)) CHECK(std::isfinite(v));
}

TEST_CASE("a captured graph of experts in FP8 computes the bits of eager steps", "[expert_fp8]") { check_graph(layer_subject, 17, fresh_seed()); }
