// kept_norms_test.cc -- norms in front of a product under fp8_delayed in lists that keep inputs: stored in FP8 as they lie and transposed, with
// the amax, in one pass (te/fuse/chain_norm_turned.h), against doubles; and the steps of such lists.
#include "draw.h"
#include "launches.h"
#include "recipe.h"
#include "te/ops/bias.h"
#include "te/ops/dropout.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/residual.h"
#include "te/optim/init.h"

TE_TURN(turn)

// X(dtype, width): norms of a list that keeps inputs, alone and behind other ops.
#define KEPT_NORMS(X) X(bf16, 256) X(bf16, 768) X(bf16, 4096) X(bf16, 8192) X(f16, 768)
#define KEPT_NORM_OF(D, W, norm)                                                                                                 \
    MODEL(k##D##_##norm##_##W, (D, (recipe, fp8_delayed), (inputs, kept)), (norm, n, W), (linear, l, W, 16))                     \
    MODEL(k##D##_add_##norm##_##W, (D, (recipe, fp8_delayed), (inputs, kept)), (fork, x), (bias, b, W), (dropout, d, 0.2f), (add, x), (fork, y), \
          (norm, n, W), (linear, l, W, 16), (linear, m, 16, W), (dropout, e, 0.1f), (add, y))
#define KEPT_NORM_LISTS(D, W) KEPT_NORM_OF(D, W, layernorm) KEPT_NORM_OF(D, W, rmsnorm)
KEPT_NORMS(KEPT_NORM_LISTS)
MODEL(kept_row_of_16384, (bf16, (recipe, fp8_delayed), (inputs, kept)), (layernorm, n, 16384), (linear, l, 16384, 16)) // a ring of two tiles
MODEL(kept_row_of_80, (bf16, (recipe, fp8_delayed), (inputs, kept)), (layernorm, n, 80), (linear, l, 80, 16)) // no multiple of 256
MODEL(kept_in_f32, (f32, (recipe, fp8_delayed), (inputs, kept)), (layernorm, n, 256), (linear, l, 256, 16))
MODEL(kept_scale_of_now, (bf16, (recipe, fp8_current), (inputs, kept)), (layernorm, n, 256), (linear, l, 256, 16))
MODEL(made_again, (bf16, (recipe, fp8_delayed)), (fork, x), (bias, b, 768), (dropout, d, 0.2f), (add, x), (fork, y), (layernorm, n, 768),
      (linear, l, 768, 16), (linear, m, 16, 768), (dropout, e, 0.1f), (add, y))

namespace {

// The kernels of a row: its ops, of which the last is the norm.
struct kept_norm {
    const char *name;
    te_chain_launch_fn launch;
    te_chain_shape k;
    te_turned_kernel *kernel;
    const subject *list;
    int layernorm;
};
#define KERNELS_OF(row) #row, row##_launch, row##_shape(0), row##_turned()
#define KEPT_NORM(D, W, norm)                                                                                                    \
    {KERNELS_OF(k##D##_##norm##_##W##_n_##norm), &k##D##_##norm##_##W##_subject, (int)TE_NORM_##norm == (int)TE_NORM_layernorm}, \
        {KERNELS_OF(k##D##_add_##norm##_##W##_b_bias_dropout_add_fork_##norm), &k##D##_add_##norm##_##W##_subject,               \
         (int)TE_NORM_##norm == (int)TE_NORM_layernorm},
#define KEPT_NORM_CASES(D, W) KEPT_NORM(D, W, layernorm) KEPT_NORM(D, W, rmsnorm)
const kept_norm kept_norms[] = {KEPT_NORMS(KEPT_NORM_CASES){KERNELS_OF(kept_row_of_16384_n_layernorm), &kept_row_of_16384_subject, 1}};

#if TE_CUDA
// Numbers of many sizes and, if wanted, some that are not finite.
void draw(buffer &b, source &random, size_t n, te_dtype t, bool finite) {
    reference::vec v = random.draw(n, t, 0, 1);
    for (size_t i = 0; i < n; i++) v[i] = i % 97 == 5 ? 0 : v[i] * std::ldexp(1, (int)(i / 64 % 9) * 2 - 8);
    if (!finite && n > 50) v[7] = INFINITY, v[n / 2] = NAN, v[n - 9] = -INFINITY;
    b.write(v, t);
}
// What is stored in FP8 with one scale.
struct turned {
    buffer y, yt, amax;
    turned(te_context *ctx, int64_t rows, int64_t cols) : y(ctx, (size_t)(rows * cols)), yt(ctx, (size_t)(te_round_up(rows, 16) * cols)), amax(ctx, 4) {
        amax.write(reference::vec(1, 0.0), TE_f32);
    }
    bool operator==(const turned &o) const { return y.raw() == o.y.raw() && yt.raw() == o.yt.raw() && amax.raw() == o.amax.raw(); }
};

// A norm's results: in FP8, what its row leaves beside, its statistics.
struct normed {
    turned t;
    buffer stats, side, inverse;
    normed(te_context *ctx, int64_t rows, int64_t cols, int each) : t(ctx, rows, cols), stats(ctx, (size_t)(rows * each) * 4), side(ctx, (size_t)(rows * cols) * 2), inverse(ctx, 8) {}
    bool operator==(const normed &o) const {
        return t == o.t && stats.raw() == o.stats.raw() && side.raw() == o.side.raw() && inverse.raw() == o.inverse.raw();
    }
};
double of_e4m3(uint8_t b) { return (double)te_float_of_fp8(b, TE_e4m3); }

// y of one row against doubles: x what the norm read, stats what it left, of rounding errors of `lost` of what is added up.
double worst_row(const double *x, const uint8_t *y, int64_t n, const reference::vec &gamma, const reference::vec &beta, const double *stats, bool layernorm,
                 double scale, double lost, double *largest) {
    double mean = 0, squares = 0, sum = 0, worst = 0;
    for (int64_t j = 0; j < n; j++) mean += layernorm ? x[j] / (double)n : 0, sum += std::fabs(x[j]) / (double)n;
    for (int64_t j = 0; j < n; j++) squares += (x[j] - mean) * (x[j] - mean) / (double)n;
    const double rstd = 1 / std::sqrt(squares + 1e-5);
    if (layernorm) worst = std::max(worst, std::fabs(stats[0] - mean) / (lost * sum + 1e-30));
    worst = std::max(worst, std::fabs(stats[layernorm ? 1 : 0] - rstd) / (lost * rstd));
    for (int64_t j = 0; j < n; j++) {
        const double a = (x[j] - mean) * rstd * gamma[(size_t)j], b = layernorm ? beta[(size_t)j] : 0, v = a + b;
        const double off = lost * (std::fabs(a) + std::fabs(b) + (layernorm ? sum * rstd * std::fabs(gamma[(size_t)j]) : 0));
        *largest = std::max(*largest, std::fabs(v));
        const double given = std::min(448.0, std::max(-448.0, v * scale));
        const double step = std::ldexp(1, std::max(-9, std::ilogb(std::max(std::fabs(given) + off * scale, 1e-30)) - 3));
        worst = std::max(worst, std::fabs(of_e4m3(y[j]) - given) / (step / 2 + off * scale));
    }
    return worst;
}

void check_kept_norm(const kept_norm &n, int64_t rows, int clusters, bool finite) {
    const unsigned seed = fresh_seed();
    context own;
    te_context *ctx = &own.c;
    source random(seed);
    const te_chain_shape k = n.k;
    const int64_t cols = k.half;
    const int each = n.layernorm ? 2 : 1;
    const size_t all = (size_t)(rows * cols);
    const double scale = 37.5;
    CAPTURE(n.name, rows, clusters, finite, seed);
    buffer x(ctx, all * 2), edge(ctx, all * 2), weight(ctx, (size_t)cols * 2), bias(ctx, (size_t)cols * 2), scales(ctx, 4);
    draw(x, random, all, k.in, finite), draw(edge, random, all, k.in, true);
    const reference::vec gamma = random.draw((size_t)cols, k.in, 1, 0.2), beta = random.draw((size_t)cols, k.in, 0, 0.5);
    weight.write(gamma, k.in), bias.write(beta, k.in), scales.write(reference::vec(1, scale), TE_f32);
    set_rng(ctx, 5, 0);
    const normed apart(ctx, rows, cols, each), fused(ctx, rows, cols, each);
    te_run r;
    memset(&r, 0, sizeof r);
    r.ctx = ctx, r.pass = TE_FORWARD;
    const auto chain_of = [&](const normed &to) {
        te_chain c;
        memset(&c, 0, sizeof c);
        c.x = x.data(), c.rows = rows, c.half = k.half;
        for (int i = 0; i <= k.norm; i++) {
            te_stage *s = &c.op[i];
            s->w[0] = i == k.norm ? weight.data() : bias.data(), s->w[1] = bias.data(), s->edge = edge.data(), s->rng = ctx->rng, s->id = (uint32_t)i;
            if (i == k.norm) s->stats = (float *)to.stats.data();
            if (k.norm > 0 && i == k.norm - 2) s->out = to.side.data();
        }
        c.fp8.y = to.t.y.data(), c.fp8.scale = (const float *)scales.data(), c.fp8.amax = (float *)to.t.amax.data(), c.fp8.inverse = (float *)to.inverse.data();
        return c;
    };
    te_chain a = chain_of(apart), f = chain_of(fused);
    REQUIRE(n.launch(ctx, te_grid_of((int64_t)te__chain_blocks(&r, rows, k) * te_chain_tiles(k), 1), &a) == TE_OK);
    f.scaled.yt = fused.t.yt.data(), f.scaled.yt_cols = te_round_up(rows, 16);
    int *const known = &n.kernel->clusters[ctx->device & 63];
    const int before = *known;
    if (clusters) *known = clusters + 1;
    const te_status status = n.launch(ctx, te_grid_of(1, 1), &f);
    *known = before;
    REQUIRE(status == TE_OK);
    te_quantize q = te_quantize_of(rows, cols);
    q.x = fused.t.y.data(), q.yt = apart.t.yt.data(), q.yt_cols = te_round_up(rows, 16);
    REQUIRE(turn_run(&q, ctx) == TE_OK);
    CHECK(bool(fused.t.yt.raw() == apart.t.yt.raw()));
    CHECK(bool(fused.side.raw() == apart.side.raw()));
    CHECK(bool(fused.inverse.raw() == apart.inverse.raw()));
    const std::vector<uint8_t> y = fused.t.y.raw(), rows_y = apart.t.y.raw();
    const double amax = fused.t.amax.read(TE_f32)[0];
    if (!finite) { // the same are not numbers
        size_t others = 0;
        for (size_t i = 0; i < all; i++) others += std::isnan(of_e4m3(y[i])) != std::isnan(of_e4m3(rows_y[i]));
        CHECK(others == 0);
        CHECK(std::isnan(amax) == std::isnan(apart.t.amax.read(TE_f32)[0]));
        return;
    }
    const reference::vec read = k.norm > 0 ? fused.side.read(k.in) : x.read(k.in), stats = fused.stats.read(TE_f32);
    const double lost = std::ldexp(std::log2((double)cols) + 16, -24); // sums of eight, then in pairs, and a few operations
    double worst = 0, largest = 0, most = 0;
    for (int64_t i = 0; i < rows; i++)
        worst = std::max(worst, worst_row(read.data() + i * cols, y.data() + i * cols, cols, gamma, beta, stats.data() + i * each, n.layernorm, scale, lost, &largest));
    for (const uint8_t b : y) most = std::max(most, std::fabs(of_e4m3(b)));
    CHECK(worst <= 1);
    CHECK(std::fabs(amax - largest) <= 4 * lost * largest);
    CHECK(most == std::fabs(of_e4m3(te_fp8_of_float((float)amax * (float)scale, TE_e4m3))));
}
// Many tiles a cluster, by all clusters and by one: the same bits each time.
void check_many_tiles(const kept_norm &n, int64_t rows) {
    context own;
    te_context *ctx = &own.c;
    const te_chain_shape k = n.k;
    const int64_t cols = k.half;
    CAPTURE(n.name, rows);
    buffer x(ctx, (size_t)(rows * cols) * 2), weight(ctx, (size_t)cols * 2), scales(ctx, 4);
    REQUIRE(te_fill_normal(x.data(), k.in, rows * cols, 0, 1, 5, 0, ctx) == TE_OK);
    REQUIRE(te_fill_normal(weight.data(), k.in, cols, 1, 0.2f, 5, 1, ctx) == TE_OK);
    scales.write(reference::vec(1, 20), TE_f32);
    set_rng(ctx, 5, 0);
    int *const known = &n.kernel->clusters[ctx->device & 63];
    const int before = *known;
    std::unique_ptr<normed> first;
    for (const int clusters : {before - 1, before - 1, 1, 2, before - 1}) {
        std::unique_ptr<normed> to(new normed(ctx, rows, cols, n.layernorm ? 2 : 1));
        te_chain c;
        memset(&c, 0, sizeof c);
        c.x = x.data(), c.rows = rows, c.half = k.half;
        for (int i = 0; i <= k.norm; i++) {
            te_stage *s = &c.op[i];
            s->w[0] = s->w[1] = weight.data(), s->edge = x.data(), s->rng = ctx->rng, s->id = (uint32_t)i;
            if (i == k.norm) s->stats = (float *)to->stats.data();
            if (k.norm > 0 && i == k.norm - 2) s->out = to->side.data();
        }
        c.fp8.y = to->t.y.data(), c.fp8.scale = (const float *)scales.data(), c.fp8.amax = (float *)to->t.amax.data();
        c.scaled.yt = to->t.yt.data(), c.scaled.yt_cols = te_round_up(rows, 16);
        *known = clusters + 1;
        const te_status status = n.launch(ctx, te_grid_of(1, 1), &c);
        *known = before;
        REQUIRE(status == TE_OK);
        if (first) CHECK(bool(*first == *to));
        else first = std::move(to);
    }
}
#endif

// A step with scales that are known: its launches of the kernel, and of kernels that transpose.
void check_kept_list(const kept_norm &n, int rows) {
    const unsigned seed = fresh_seed();
    under_recipe u(*n.list, 1, rows, seed);
    CAPTURE(u.plan->name, rows, seed);
    micro_batch b(u, u.m.s.saved_bytes(rows));
    const results cast = run_plain(u, b);
    REQUIRE(te_recipes_step(&u.state, u.ctx) == TE_OK);
    set_rng(u.ctx, 5, 0);
    const results stored = run_plain(u, b);
    CHECK(distance(stored.y, cast.y) < 0.06); // a cast rounds what has been rounded to 16 bits
    CHECK(distance(stored.dx, cast.dx) < 0.1);
    CHECK(distance(stored.grads, cast.grads) < 0.1);
    CHECK(b.memory.raw().size() == b.memory.bytes); // its guard
    CHECK(u.workspace->raw().size() == u.workspace->bytes);
#if TE_CUDA
    const bool runs = te__turned_clusters(n.kernel, u.ctx) > 0;
    CHECK(launches_like("norm_turned", u.ctx, [&] { return b.forward(u), TE_OK; }) == runs);
    const int turns = launches_like("_turn_kernel", u.ctx, [&] { return b.backward(u), TE_OK; });
    CHECK(turns == !runs);
#endif
}
// The second step of a list that keeps inputs and of one whose backward makes them again.
void check_kept_and_made(int rows) {
    const unsigned seed = fresh_seed();
    under_recipe u(kbf16_add_layernorm_768_subject, 1, rows, seed), v(made_again_subject, 1, rows, seed);
    CAPTURE(rows, seed);
    micro_batch a(u, u.m.s.saved_bytes(rows)), b(v, v.m.s.saved_bytes(rows));
    run_plain(u, a), run_plain(v, b);
    REQUIRE(te_recipes_step(&u.state, u.ctx) == TE_OK);
    REQUIRE(te_recipes_step(&v.state, v.ctx) == TE_OK);
    set_rng(u.ctx, 5, 0), set_rng(v.ctx, 5, 0);
    const results stored = run_plain(u, a), made = run_plain(v, b);
    if (!TE_CUDA) {
        CHECK((made.y == stored.y));
        CHECK((made.dx == stored.dx));
        CHECK((made.grads == stored.grads));
    }
    CHECK(distance(made.y, stored.y) < 0.02); // statistics differ in their last bits
    CHECK(distance(made.dx, stored.dx) < 0.04);
    CHECK(distance(made.grads, stored.grads) < 0.04);
}

} // namespace

#if TE_CUDA
TEST_CASE("a norm of a list that keeps inputs is stored in FP8 as it lies and transposed in one pass", "[kept_norms]") {
    context own;
    if (own.c.capability != 900) {
        WARN("skipped: no device of compute capability 9.0");
        return;
    }
    for (const kept_norm &n : kept_norms) {
        CAPTURE(n.name);
        REQUIRE(te__turned_clusters(n.kernel, &own.c) > 0);
        for (const int64_t rows : brief() ? std::vector<int64_t>{33} : std::vector<int64_t>{1, 31, 33, 257}) check_kept_norm(n, rows, 0, true);
        check_kept_norm(n, 257, 1, true), check_kept_norm(n, 450, 2, true);
        check_kept_norm(n, 50, 0, false);
        if (!brief()) check_many_tiles(n, std::min(40001, 24000001 / n.k.half));
    }
    CHECK(!kept_row_of_80_n_layernorm_turned()->kernel);
    CHECK(!kept_in_f32_n_layernorm_turned()->kernel);
    CHECK(!kept_scale_of_now_n_layernorm_turned()->kernel);
    CHECK(!made_again_b_bias_dropout_add_fork_layernorm_turned()->kernel);
}
#endif

TEST_CASE("a list that keeps the inputs of products has the results of one that makes them again", "[kept_norms]") {
    for (const int rows : brief() ? std::vector<int>{33} : std::vector<int>{1, 31, 33, 257}) {
        for (const kept_norm &n : kept_norms)
            if (n.k.half <= 768 || TE_CUDA || rows < 33) check_kept_list(n, rows);
        check_kept_and_made(rows);
    }
}
