// stochastic_rounding_test.cc -- stochastic rounding to FP8: each result is the number below or above, as its random bits decide, and the mean of
// many results is the value that was rounded. For the cast kernels, and for the gradients of a list with (rounding, stochastic).
#include "recipe.h"
#include "te/fp8/impl/cast_transpose.h"
#include "te/ops/activation.h"
#include "te/ops/elementwise.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"

TE_QUANTIZE_VEC8(from_bf16, bf16)
TE_QUANTIZE_STOCHASTIC(from_bf16, bf16)
TE_QUANTIZE_VEC8(from_f32, f32)
TE_QUANTIZE_STOCHASTIC(from_f32, f32)

#define OPS (rmsnorm, n, 64), (linear, a, 64, 96), (bias, ab, 96), (gelu, g), (linear, b, 96, 48)
MODEL(chance, (bf16, (recipe, fp8_delayed), (rounding, stochastic)), OPS)
MODEL(chance_current, (bf16, (recipe, fp8_current), (rounding, stochastic), (gradients, e4m3)), OPS)
MODEL(nearest, (bf16, (recipe, fp8_delayed)), OPS)
MODEL(said, (bf16, (recipe, fp8_delayed), (rounding, nearest)), OPS)
MODEL(bare_chance, (bf16, (recipe, fp8_current), (rounding, stochastic)), (linear, a, 64, 48))
MODEL(bare, (bf16, (recipe, fp8_current)), (linear, a, 64, 48))

namespace {

struct format { te_dtype to; int fraction, least; double max_value; };
const format formats[] = {{TE_e4m3, 3, -6, 448}, {TE_e5m2, 2, -14, 57344}};

// The expected result. |x| lies between two FP8 numbers; let d be its distance to the lower one over the distance of the two, truncated to the
// 23 - fraction bits that a float has for it. The result is the upper number if random / 65536 < d.
double rounded(double x, uint32_t random, const format &f) {
    const double a = std::fabs(x);
    if (std::isnan(x)) return x;
    if (a >= f.max_value) return std::copysign(f.max_value, x);
    const int exponent = a > 0 ? std::max(std::ilogb(a), f.least) : f.least;
    const double step = std::ldexp(1, exponent - f.fraction), steps = a / step;
    const double part = std::floor(std::ldexp(steps - std::floor(steps), 23 - f.fraction));
    return std::copysign((std::floor(steps) + (part > std::ldexp(random, 7 - f.fraction))) * step, x);
}
double number_of(uint8_t byte, te_dtype t) { return t == TE_e4m3 ? te_float_of_e4m3(byte) : te_float_of_e5m2(byte); }
uint32_t random_of(te_rng rng, uint32_t stream, size_t e) {
    uint32_t word[4];
    te_philox(word, rng.seed, e / 8, stream, rng.offset);
    return word[e % 8 / 2] >> e % 2 * 16 & 0xffff;
}
struct made { std::vector<uint8_t> y, yt; float amax; };
made make(te_context *ctx, te_status (*run)(const te_quantize *, te_context *), const buffer &x, int64_t rows, int64_t cols, te_dtype to, float scale, te_rng rng, uint32_t stream) {
    buffer y(ctx, (size_t)(rows * cols)), yt(ctx, (size_t)(rows * cols)), of(ctx, 4), amax(ctx, 4), state(ctx, sizeof rng);
    of.write({scale}, TE_f32), amax.write({0}, TE_f32);
    REQUIRE(te_copy(ctx, state.data(), &rng, sizeof rng) == TE_OK);
    te_quantize q = te__quantize_of(rows, cols);
    q.x = x.data(), q.y = y.data(), q.yt = yt.data(), q.amax = (float *)amax.data(), q.scale = (const float *)of.data(), q.to = to;
    q.rng = (const te_rng *)state.data(), q.stream = stream;
    REQUIRE(run(&q, ctx) == TE_OK);
    return {y.raw(), yt.raw(), (float)amax.read(TE_f32)[0]};
}

} // namespace

TEST_CASE("stochastic rounding takes the number below or above, as the random bits decide", "[rounding]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    source random(seed);
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    for (const format &f : formats)
        for (const te_dtype from : {TE_bf16, TE_f32})
            for (const int rows : {1, 7, 130})
                for (const int cols : {8, 120, 264}) {
                    CAPTURE(te_dtype_name(f.to), te_dtype_name(from), rows, cols);
                    const size_t n = (size_t)(rows * cols);
                    reference::vec x = random.draw(n, from);
                    for (size_t i = 0; i < n; i++) { // all magnitudes of the format, infinities and NaNs
                        if (i % 3 == 0) x[i] = std::ldexp(x[i], -random.below(20));
                        if (i % 53 == 1) x[i] = (i % 2 ? 1 : -1) * 1e6;
                        if (i % 59 == 2) x[i] = i % 2 ? 0.0 : -0.0;
                        if (i % 61 == 3) x[i] = i % 2 ? INFINITY : -INFINITY;
                        if (i % 67 == 4) x[i] = NAN;
                    }
                    buffer in(ctx, n * te_dtype_bytes(from));
                    in.write(x, from);
                    x = in.read(from);
                    const float scale = f.to == TE_e4m3 ? 37.5f : 0.75f;
                    const te_rng rng = {random.random(), (uint64_t)random.below(1 << 20) << 20};
                    const auto run = from == TE_bf16 ? from_bf16_stochastic_run : from_f32_stochastic_run;
                    const made a = make(ctx, run, in, rows, cols, f.to, scale, rng, 77), repeat = make(ctx, run, in, rows, cols, f.to, scale, rng, 77);
                    size_t wrong = 0, transposed = 0;
                    for (size_t i = 0; i < n; i++) {
                        const double scaled = std::isinf(x[i]) ? NAN : (double)((float)x[i] * scale); // an infinity becomes NaN
                        const double should = rounded(scaled, random_of(rng, 77, i), f), is = number_of(a.y[i], f.to);
                        wrong += std::isnan(should) ? !std::isnan(is) : should != is || std::signbit(should) != std::signbit(is);
                        transposed += a.yt[i % (size_t)cols * (size_t)rows + i / (size_t)cols] != a.y[i];
                    }
                    CHECK(wrong == 0);
                    CHECK(transposed == 0);
                    CHECK((repeat.y == a.y && repeat.yt == a.yt));
                    const made nearest = make(ctx, from == TE_bf16 ? from_bf16_run : from_f32_run, in, rows, cols, f.to, scale, rng, 77);
                    CHECK(numbers::stored({nearest.amax}, TE_f32) == numbers::stored({a.amax}, TE_f32));
                    if (n < 500) continue;
                    CHECK(make(ctx, run, in, rows, cols, f.to, scale, rng, 78).y != a.y);
                    CHECK(make(ctx, run, in, rows, cols, f.to, scale, {rng.seed, rng.offset + 1}, 77).y != a.y);
                    CHECK(nearest.y != a.y);
                }
    te_quantize q = te__quantize_of(8, 8);
    CHECK(from_bf16_stochastic_run(&q, ctx) == TE_ERROR_NULL);
    CHECK(strstr(te_last_error(ctx), "rng is null"));
}

TEST_CASE("the mean of stochastic rounding is the value that was rounded", "[rounding]") {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    source random(fresh_seed());
    const int64_t rows = 256, cols = 512;
    const size_t n = (size_t)(rows * cols);
    buffer in(ctx, n * 4);
    for (const format &f : formats)
        for (const double value : {1.03, -3.7, 0.3 * std::ldexp(1, f.least - f.fraction), 1.9 * std::ldexp(1, f.least - 1)}) {
            CAPTURE(te_dtype_name(f.to), value);
            in.write(reference::vec(n, value), TE_f32);
            const made a = make(ctx, from_f32_stochastic_run, in, rows, cols, f.to, 1, {random.random(), 3}, 5);
            double sum = 0, low = INFINITY, high = -INFINITY;
            for (const uint8_t byte : a.y) {
                const double v = number_of(byte, f.to);
                sum += v, low = std::min(low, v), high = std::max(high, v);
            }
            CHECK((low < value && value < high)); // the two neighbours of value
            const double p = (value - low) / (high - low), deviation = (high - low) * std::sqrt(p * (1 - p) / (double)n);
            CHECK(std::fabs(sum / (double)n - value) < 6 * deviation + (high - low) / 65536);
        }
}

TEST_CASE("stochastically rounded gradients: the same bits for one forward, others for the next", "[rounding]") {
    for (const subject *s : {&chance_subject, &chance_current_subject}) {
        const unsigned seed = fresh_seed();
        CAPTURE(s->plan()->name, seed);
        under_recipe u(*s, 2, 24, seed), v(nearest_subject, 2, 24, seed);
        micro_batch a(u, u.m.s.saved_bytes(48)), b(v, v.m.s.saved_bytes(48));
        const auto pass = [](under_recipe &w, micro_batch &m) { return m.backward(w), std::make_pair(m.dx.raw(), w.m.grads.raw()); };
        a.forward(u), b.forward(v);
        CHECK(a.y.raw() == b.y.raw()); // forward rounds to nearest
        const auto first = pass(u, a), second = pass(u, a);
        CHECK(first == second);
        a.forward(u);
        CHECK(pass(u, a) != first);
        set_rng(u.ctx, 5, 0); // the initial random state of under_recipe
        a.forward(u);
        CHECK(pass(u, a) == first);
    }
    under_recipe u(nearest_subject, 1, 16, 1), v(said_subject, 1, 16, 1);
    micro_batch a(u, u.m.s.saved_bytes(16)), b(v, v.m.s.saved_bytes(16));
    a.forward(u), b.forward(v), a.backward(u), b.backward(v);
    CHECK(a.dx.raw() == b.dx.raw());
}

TEST_CASE("the mean of stochastically rounded weight gradients is nearer to the exact one than round to nearest", "[rounding]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    under_recipe u(bare_chance_subject, 1, 64, seed), v(bare_subject, 1, 64, seed);
    micro_batch a(u, u.m.s.saved_bytes(64)), b(v, v.m.s.saved_bytes(64));
    reference::vec x(64 * 64), dy = b.dy.read(TE_bf16);
    for (double &one : x) one = (u.random.below(2) ? 1 : -1) * (1 + u.random.below(2)); // exact in FP8, so only dy is rounded
    a.x.write(x, TE_bf16), b.x.write(x, TE_bf16), a.dy.write(dy, TE_bf16);
    reference::vec should(48 * 64, 0), mean(should);
    for (size_t r = 0; r < 64; r++)
        for (size_t o = 0; o < 48; o++)
            for (size_t i = 0; i < 64; i++) should[o * 64 + i] += dy[r * 48 + o] * x[r * 64 + i];
    const int draws = 64;
    for (int k = 0; k < draws; k++) {
        a.forward(u), a.backward(u);
        const reference::vec g = u.m.grads.read(TE_f32, u.m.grad_at(0), mean.size());
        for (size_t i = 0; i < mean.size(); i++) mean[i] += g[i] / draws;
    }
    b.forward(v), b.backward(v);
    const double by_chance = distance(mean, should), by_rule = distance(v.m.grads.read(TE_f32, v.m.grad_at(0), mean.size()), should);
    CAPTURE(by_chance, by_rule);
    CHECK(by_rule > 0.01); // the format has two fraction bits
    CHECK(by_chance < 0.4 * by_rule);
}
