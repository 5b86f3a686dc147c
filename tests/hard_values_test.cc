// hard_values_test.cc -- extreme inputs: NaN propagates, and results are right for very large numbers and for numbers far from 0.
#include "harness.h"
#include "te/ops/activation.h"
#include "te/ops/attention.h"
#include "te/ops/elementwise.h"
#include "te/ops/cross_entropy.h"
#include "te/ops/dropout.h"
#include "te/ops/norm.h"

#define WITH_ACTIVATION(kind) MODEL(of_##kind, f32, (bias, b, 16), (kind, a))
#define WITH_GATED(kind, of) MODEL(of_##kind, f32, (bias, b, 16), (kind, a))
TE_ACTIVATIONS(WITH_ACTIVATION)
TE_GATED_ACTIVATIONS(WITH_GATED)
MODEL(attend, f32, (attention, a, 1, 1, 8, (causal, 0)))
MODEL(loss, f32, (cross_entropy, ce, 1003))
MODEL(loss_bf16, bf16, (cross_entropy, ce, 1003))
MODEL(wide, f32, (layernorm, n, 65536))
MODEL(dropped, f32, (bias, b, 8), (dropout, tenth, 0.1f), (dropout, largest, 0.9999999f), (dropout, none, 0), (dropout, third, 1.0 / 3))

namespace {
struct outcome { reference::vec y, dx; };

// y of x, and dx of dy. Parameters are 0, gammas `weight`.
outcome run(const subject &s, int rows, const reference::vec &x, const reference::vec &dy, double weight = 0, const te_batch &with = te_batch()) {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    const te_plan *p = s.plan();
    std::vector<uint64_t> m(s.bytes / 8 + 1, 0);
    buffer params(ctx, s.param_bytes()), grads(ctx, s.grad_bytes()), in(ctx, x.size() * te_dtype_bytes(p->in_dtype)), memory(ctx, s.saved_bytes(rows));
    buffer out(ctx, (size_t)(rows * p->out) * te_dtype_bytes(p->out_dtype)), dout(ctx, out.bytes), din(ctx, in.bytes), labels(ctx, (size_t)rows * 4);
    te_batch batch = with;
    te_saved saved;
    memset(&saved, 0, sizeof saved);
    saved.memory = memory.data(), saved.bytes = memory.bytes;
    if (!batch.batch) batch.batch = 1, batch.seq = rows;
    if (with.labels) labels.write_ints(std::vector<int32_t>(with.labels, with.labels + rows)), batch.labels = (const int32_t *)labels.data();
    REQUIRE(te_fill(ctx, params.data(), 0, params.bytes) == TE_OK);
    if (weight != 0) params.write(reference::vec((size_t)p->in, weight), p->dtype);
    in.write(x, p->in_dtype), dout.write(dy, p->out_dtype);
    REQUIRE(s.bind(m.data(), params.data(), (float *)grads.data(), ctx) == TE_OK);
    REQUIRE(te_context_reserve(ctx, s.workspace_bytes(m.data(), rows, ctx)) == TE_OK);
    const te_tensor tx = te_matrix(in.data(), p->in_dtype, rows, p->in), ty = te_matrix(out.data(), p->out_dtype, rows, p->out);
    REQUIRE(s.forward(ty, &saved, tx, m.data(), &batch, ctx) == TE_OK);
    REQUIRE(s.backward(te_matrix(din.data(), p->in_dtype, rows, p->in), te_matrix(dout.data(), p->out_dtype, rows, p->out), &saved, m.data(), &batch, ctx) == TE_OK);
    return {out.read(p->out_dtype), din.read(p->in_dtype)};
}
} // namespace

TEST_CASE("NaN propagates through every activation, forward and backward", "[hard_values]") {
    reference::vec x(16, 0.5);
    x[3] = x[7] = x[11] = NAN;
    const auto check_one = [&](const char *kind, const outcome &o) {
        CAPTURE(kind);
        for (size_t i = 0; i < o.y.size(); i++) CHECK(std::isnan(o.y[i]) == (std::isnan(x[i]) || (o.y.size() == 8 && std::isnan(x[i + 8]))));
    };
#define CHECK_ACTIVATION(kind) check_one(#kind, run(of_##kind##_subject, 1, x, reference::vec(16, 1)));
#define CHECK_GATED(kind, of) check_one(#kind, run(of_##kind##_subject, 1, x, reference::vec(8, 1)));
    TE_ACTIVATIONS(CHECK_ACTIVATION)
    TE_GATED_ACTIVATIONS(CHECK_GATED)
    const outcome o = run(of_relu_subject, 1, x, reference::vec(16, 3)); // as in PyTorch, the gradient of relu is 0 only if x <= 0, which is false for NaN
    for (size_t i = 0; i < 16; i++) CHECK(o.dx[i] == 3);
    CHECK(std::isnan(run(of_srelu_subject, 1, x, reference::vec(16, 3)).dx[3]));
}

TEST_CASE("activations of large numbers, and their derivatives", "[hard_values]") {
    const reference::vec x = {1e20, -1e20, 3e38, -3e38, 1e10, -1e10, 1e4, -1e4, 50, -50, 20, -20, 100, -100, 1e30, -1e30};
    const auto check_one = [&](const char *kind, const outcome &o) {
        CAPTURE(kind);
        if (!strcmp(kind, "srelu")) return; // the square of such a number is infinite
        const bool bounded = !strcmp(kind, "sigmoid") || !strcmp(kind, "tanh");
        for (size_t i = 0; i < 16; i++) {
            CHECK(o.y[i] == Approx(!bounded && x[i] > 0 ? x[i] : bounded && x[i] > 0 ? 1 : strcmp(kind, "tanh") ? 0 : -1).margin(1e-6));
            CHECK(o.dx[i] == Approx(!bounded && x[i] > 0).margin(1e-6));
        }
    };
#define CHECK_LARGE(kind) check_one(#kind, run(of_##kind##_subject, 1, x, reference::vec(16, 1)));
    TE_ACTIVATIONS(CHECK_LARGE)
}

TEST_CASE("attention: a NaN in a key reaches every query, and very negative scores have the right softmax", "[hard_values]") {
    const int rows = 70;
    source random(3);
    reference::vec x = random.draw(rows * 24, TE_f32);
    x[5 * 24 + 8 + 2] = NAN; // in the key of row 5
    outcome o = run(attend_subject, rows, x, reference::vec(rows * 8, 1));
    for (double e : o.y) CHECK(std::isnan(e));
    for (int r = 0; r < rows; r++)
        for (int d = 0; d < 24; d++) {
            x[(size_t)(r * 24 + d)] = d < 8 ? (d == 0) * 1e17 : d < 16 ? (d == 8) * -1e17 * (1 + r % 3) : r; // scores of -1e34 / sqrt(8) and below
        }
    o = run(attend_subject, rows, x, reference::vec(rows * 8, 1));
    double mean = 0;
    for (int r = 0; r < rows; r += 3) mean += r / 24.0; // the 24 rows with the largest score
    for (double e : o.y) CHECK(e == Approx(mean).epsilon(1e-5));
}

TEST_CASE("cross-entropy does not change if a constant is added to all logits", "[hard_values]") {
    const int rows = 5, width = 1003;
    source random(4);
    const reference::vec x = random.draw(rows * width, TE_bf16);
    const std::vector<int32_t> labels = {0, 1, 1002, 500, 7};
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = rows, batch.labels = labels.data(), batch.ignore_index = -1;
    for (const double offset : {0.0, 1e5, -1e5, 1e6}) {
        reference::vec far = x;
        for (double &e : far) e = (float)(e + offset);
        const outcome o = run(loss_subject, rows, far, reference::vec(rows, 1), 0, batch);
        CAPTURE(offset);
        for (int r = 0; r < rows; r++) {
            double sum = 0;
            const double *v = &far[(size_t)(r * width)];
            for (int c = 0; c < width; c++) sum += std::exp(v[c] - v[labels[(size_t)r]]);
            CHECK(o.y[(size_t)r] == Approx(std::log(sum)).epsilon(1e-6));
            for (int c = 0; c < width; c++) {
                const double p = std::exp(v[c] - v[labels[(size_t)r]]) / sum;
                CHECK(std::fabs(o.dx[(size_t)(r * width + c)] - (p - (c == labels[(size_t)r]))) <= 4e-6 * p + 1e-7);
            }
        }
    }
    reference::vec large(rows * width, -3e38); // one logit, set below, has all of the probability
    for (int r = 0; r < rows; r++) large[(size_t)(r * width + 7)] = 3e38;
    const outcome o = run(loss_subject, rows, large, reference::vec(rows, 1), 0, batch);
    CHECK(o.y[4] == 0);
    CHECK(o.y[0] == INFINITY); // 6e38 exceeds f32
    for (size_t i = 0; i < o.dx.size(); i++) CHECK(std::isfinite(o.dx[i]));
    CHECK(o.dx[0] == -1);
    CHECK(o.dx[7] == 1);
    CHECK(o.dx[4 * width + 7] == 0);
    const outcome h = run(loss_bf16_subject, rows, large, reference::vec(rows, 1), 0, batch);
    CHECK(h.y[4] == 0);
    CHECK(h.dx[7] == 1);
}

TEST_CASE("a zeroed batch ignores no label but -100", "[hard_values]") {
    const int rows = 4, width = 1003;
    const reference::vec x(rows * width, 0);
    const std::vector<int32_t> labels = {0, -100, 1, 0};
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.labels = labels.data();
    const outcome o = run(loss_subject, rows, x, reference::vec(rows, 1), 0, batch);
    for (int r = 0; r < rows; r++) CHECK(o.y[(size_t)r] == Approx(r == 1 ? 0 : std::log(1003.0)).epsilon(1e-6));
    CHECK(o.dx[0] == Approx(1 / 1003.0 - 1).epsilon(1e-6));
    CHECK(o.dx[1003] == 0);
}

TEST_CASE("layernorm of many columns far from zero", "[hard_values]") {
    const size_t width = 65536;
    source random(5);
    const reference::vec x = random.draw(width, TE_f32, 100, 1), dy = random.draw(width, TE_f32, 1, 1);
    const outcome o = run(wide_subject, 1, x, dy, 1);
    double mean = 0, variance = 0, of_dy = 0, of_both = 0;
    for (size_t i = 0; i < width; i++) mean += x[i] / width, of_dy += dy[i] / width;
    for (size_t i = 0; i < width; i++) variance += (x[i] - mean) * (x[i] - mean) / width;
    const double rstd = 1 / std::sqrt(variance + 1e-5);
    for (size_t i = 0; i < width; i++) of_both += dy[i] * (x[i] - mean) * rstd / width;
    double worst = 0, worst_dx = 0;
    for (size_t i = 0; i < width; i++) {
        const double xhat = (x[i] - mean) * rstd, dx = rstd * (dy[i] - of_dy - xhat * of_both);
        worst = std::max(worst, std::fabs(o.y[i] - xhat)), worst_dx = std::max(worst_dx, std::fabs(o.dx[i] - dx));
    }
    CHECK(worst <= 4e-5); // half a unit in the last place of the mean (100) is 3.8e-6, times an rstd of about 5, plus the error of rstd
    CHECK(worst_dx <= 4e-5); // the error of the mean in xhat, times the mean of dy
}

TEST_CASE("dropout scales by 1 / (1 - p)", "[hard_values]") {
    const te_plan *p = dropped_plan();
    const uint32_t limits[] = {6554, 65535, 0, 21845};
    for (int i = 0; i < 4; i++) {
        const te_dropout_options *o = (const te_dropout_options *)p->op[i + 1].options;
        CAPTURE(p->op[i + 1].name);
        CHECK(o->limit == limits[i]);
        CHECK((double)o->factor * (65536 - o->limit) == Approx(65536).epsilon(1e-7));
    }
}
