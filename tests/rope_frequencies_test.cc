// rope_frequencies_test.cc -- rope with the caller's frequencies, (scaling, given): the same rotation as the scalings that the op computes itself,
// longrope, dynamic and multi-section rope against their formulas in double, in all patterns with a rope, and calls that are refused.
#include "device_memory.h"
#include "harness.h"
#include "te/te.h"

#define CALLERS (scaling, given)
MODEL(plain_rope, f32, (rope, r, 2, 1, 32, (base, 5000)))
MODEL(given_rope, f32, (rope, r, 2, 1, 32, CALLERS))
MODEL(yarn_rope, f32, (rope, r, 2, 1, 32, (rotary_dim, 24), (interleaved, 1), (base, 10000), (scaling, yarn), (factor, 4), (original_length, 64)))
MODEL(given_as_yarn, f32, (rope, r, 2, 1, 32, (rotary_dim, 24), (interleaved, 1), CALLERS, (attention_factor, 1.1386294f)))
MODEL(given_norm, f32, (head_norm, n, 2, 1, 32), (rope, r, 2, 1, 32, CALLERS))
MODEL(plain_norm, f32, (head_norm, n, 2, 1, 32), (rope, r, 2, 1, 32, (base, 5000)))
MODEL(given_linear, f32, (linear, l, 24, 128), (rope, r, 2, 1, 32, CALLERS))
MODEL(plain_linear, f32, (linear, l, 24, 128), (rope, r, 2, 1, 32, (base, 5000)))
MODEL(sections3, f32, (rope, r, 2, 1, 32, CALLERS, (sections, 3)))

namespace {
const int ROWS = 37;
typedef std::vector<float> floats;

// A call of a list with ROWS rows, in forward, inference and backward, on the same x, dy and parameters for each list.
struct rotation {
    context owner;
    te_context *ctx = &owner.c;
    device_memory memory;
    source random;
    instance m;
    const te_plan *plan;
    buffer x, y, inferred, dy, dx, frequencies, positions;
    te_edge edge;
    te_batch batch;
    te_saved saved;
    reference::vec x_values, dy_values;
    rotation(const subject &s, unsigned seed, const floats &f, int sections = 1, const std::vector<int32_t> &at = {})
        : memory(ctx), random(seed), m(s, ctx), plan(s.plan()), x(ctx, (size_t)ROWS * (size_t)plan->in * 4), y(ctx, (size_t)ROWS * (size_t)plan->out * 4), inferred(ctx, y.bytes),
          dy(ctx, y.bytes), dx(ctx, x.bytes), frequencies(ctx, f.size() * 4 + 4), positions(ctx, at.size() * 4 + 4) {
        m.draw(random);
        x_values = random.draw((size_t)ROWS * (size_t)plan->in, TE_f32), dy_values = random.draw((size_t)ROWS * (size_t)plan->out, TE_f32);
        x.write(x_values, TE_f32), dy.write(dy_values, TE_f32);
        memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved);
        batch.batch = 1, batch.seq = ROWS, saved.bytes = s.saved_bytes(ROWS), saved.memory = memory.get(saved.bytes);
        if (!f.empty()) frequencies.write(reference::vec(f.begin(), f.end()), TE_f32);
        edge = te_edge{"r", te_matrix(frequencies.data(), TE_f32, sections, (int)f.size() / sections), te_none()};
        if (!f.empty()) batch.edges = &edge, batch.edge_count = 1;
        if (!at.empty()) positions.write_ints(at), batch.positions = (const int32_t *)positions.data();
        else batch.position = 1000;
        REQUIRE(te_context_reserve(ctx, s.workspace_bytes(m.memory.data(), ROWS, ctx)) == TE_OK);
    }
    te_tensor of(const buffer &b, int cols) { return te_matrix(b.data(), TE_f32, ROWS, cols); }
    te_status forward() { return m.s.forward(of(y, plan->out), &saved, of(x, plan->in), m.memory.data(), &batch, ctx); }
    void run() {
        INFO(te_last_error(ctx));
        REQUIRE(forward() == TE_OK);
        REQUIRE(m.s.infer(of(inferred, plan->out), of(x, plan->in), m.memory.data(), &batch, ctx) == TE_OK);
        REQUIRE(m.s.backward(of(dx, plan->in), of(dy, plan->out), &saved, m.memory.data(), &batch, ctx) == TE_OK);
        CHECK(inferred.raw() == y.raw());
    }
};
// Both lists rotate by the same angles, up to the rounding of the frequencies to float at positions up to 1037.
void compare(const subject &given, const subject &own, const floats &f) {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    rotation a(given, seed, f), b(own, seed, {});
    a.run(), b.run();
    check_close("y", a.y.read(TE_f32), b.y.read(TE_f32), 1040 * 6e-8 * 2);
    check_close("dx", a.dx.read(TE_f32), b.dx.read(TE_f32), 1040 * 6e-8 * 2);
    for (int i = 0; i < a.m.ops.params; i++)
        check_close("gradients", a.m.grads.read(TE_f32, a.m.grad_at(i), a.m.elements(i)), b.m.grads.read(TE_f32, b.m.grad_at(i), b.m.elements(i)), 1040 * 6e-8 * 4);
}
floats plain(int rotary, double base) {
    floats f;
    for (int p = 0; p < rotary / 2; p++) f.push_back((float)std::pow(base, -2.0 * p / rotary));
    return f;
}
} // namespace

TEST_CASE("a caller's frequencies rotate like those that the op computes", "[rope]") {
    compare(given_rope_subject, plain_rope_subject, plain(32, 5000));
    compare(given_norm_subject, plain_norm_subject, plain(32, 5000));
    compare(given_linear_subject, plain_linear_subject, plain(32, 5000));
    const reference::list l(yarn_rope_plan(), yarn_rope_subject.text);
    const reference::rope_table table(l.ops[0]);
    compare(given_as_yarn_subject, yarn_rope_subject, floats(table.frequency.begin(), table.frequency.end()));
}

TEST_CASE("multi-section rope: each pair is rotated by the position of its section", "[rope]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::vector<int32_t> at;
    for (int i = 0; i < 3 * ROWS; i++) at.push_back((int32_t)(random() % 900));
    for (const int interleaved : {0, 1}) {
        const int sections[3] = {6, 5, 5};
        const floats all = plain(32, 5000);
        floats f(3 * 16);
        context c;
        REQUIRE(te_rope_frequencies_sections(f.data(), all.data(), 16, sections, 3, interleaved, &c.c) == TE_OK);
        rotation r(sections3_subject, seed, f, 3, at);
        r.run();
        const reference::vec y = r.y.read(TE_f32), dx = r.dx.read(TE_f32);
        for (int row = 0; row < ROWS; row++)
            for (int head = 0; head < 3; head++)
                for (int p = 0; p < 16; p++) {
                    // Qwen2-VL: pairs 0 to 5, 6 to 10, 11 to 15; Qwen3-VL: every third pair, up to the number of its section
                    const int s = interleaved ? (p % 3 == 1 && p < 15 ? 1 : p % 3 == 2 && p < 15 ? 2 : 0) : p < 6 ? 0 : p < 11 ? 1 : 2;
                    const double angle = (double)at[(size_t)(s * ROWS + row)] * (double)all[(size_t)p], co = std::cos(angle), si = std::sin(angle);
                    const size_t i = (size_t)(row * 128 + head * 32 + p), j = i + 16;
                    const double tolerance = 4e-7 * (std::fabs(r.x_values[i]) + std::fabs(r.x_values[j]) + std::fabs(r.dy_values[i]) + std::fabs(r.dy_values[j]));
                    CHECK(std::fabs(y[i] - (r.x_values[i] * co - r.x_values[j] * si)) <= tolerance);
                    CHECK(std::fabs(y[j] - (r.x_values[i] * si + r.x_values[j] * co)) <= tolerance);
                    CHECK(std::fabs(dx[i] - (r.dy_values[i] * co + r.dy_values[j] * si)) <= tolerance);
                    CHECK(std::fabs(dx[j] - (r.dy_values[j] * co - r.dy_values[i] * si)) <= tolerance);
                }
    }
}

TEST_CASE("frequencies of longrope and dynamic rope", "[rope]") {
    context c;
    float f[48], factors[48];
    REQUIRE(te_rope_frequencies(f, 96, 10000, &c.c) == TE_OK);
    for (int p = 0; p < 48; p++) factors[p] = 1 + 0.25f * (float)p;
    for (int p = 0; p < 48; p++) CHECK(f[p] == plain(96, 10000)[(size_t)p]);
    REQUIRE(te_rope_frequencies_longrope(f, 96, 10000, factors, &c.c) == TE_OK);
    for (int p = 0; p < 48; p++) CHECK(f[p] == Approx(std::pow(10000.0, -p / 48.0) / (1 + 0.25 * p)).epsilon(1e-7));
    CHECK(te_rope_longrope_factor(32, 4096) == Approx(std::sqrt(1 + std::log(32.0) / std::log(4096.0))).epsilon(1e-7));
    CHECK(te_rope_longrope_factor(1, 4096) == 1);
    for (const int length : {100, 2048, 5000, 100000}) {
        REQUIRE(te_rope_frequencies_dynamic(f, 96, 10000, 4, 2048, length, &c.c) == TE_OK);
        const double base = 10000 * std::pow(4 * std::fmax(length / 2048.0, 1) - 3, 96.0 / 94);
        for (int p = 0; p < 48; p++) CHECK(f[p] == Approx(std::pow(base, -p / 48.0)).epsilon(1e-7));
    }
    const auto refuse = [&](te_status is, te_status status, const char *text) {
        CHECK(is == status);
        CHECK(std::string(te_last_error(&c.c)).find(text) != std::string::npos);
    };
    const int sections[3] = {16, 16, 15}, good[3] = {16, 16, 16};
    float all[3 * 48];
    refuse(te_rope_frequencies(f, 95, 10000, &c.c), TE_ERROR_SHAPE, "rotary_dim is 95");
    refuse(te_rope_frequencies(f, 96, NAN, &c.c), TE_ERROR_VALUE, "base is nan");
    refuse(te_rope_frequencies(nullptr, 96, 1, &c.c), TE_ERROR_NULL, "is null");
    refuse(te_rope_frequencies_dynamic(f, 96, 1e4f, 0.5f, 10, 10, &c.c), TE_ERROR_VALUE, "factor 0.5, at least 1");
    factors[7] = 0;
    refuse(te_rope_frequencies_longrope(f, 96, 1e4f, factors, &c.c), TE_ERROR_VALUE, "factor 7 is 0");
    refuse(te_rope_frequencies_sections(all, f, 48, sections, 3, 0, &c.c), TE_ERROR_VALUE, "47 pairs in all, of 48");
    refuse(te_rope_frequencies_sections(all, f, 40, good, 3, 0, &c.c), TE_ERROR_VALUE, "section 2 has 16 pairs, of 8 left");
}

TEST_CASE("calls with frequencies that are refused", "[rope]") {
    const auto refuse = [&](rotation &r, te_status status, const char *text) {
        CHECK(r.forward() == status);
        INFO(te_last_error(r.ctx));
        CHECK(std::string(te_last_error(r.ctx)).find(text) != std::string::npos);
        CHECK(r.y.poisoned());
    };
    rotation missing(given_rope_subject, 1, plain(32, 5000)), narrow(given_rope_subject, 1, plain(30, 5000)), over(given_rope_subject, 1, plain(32, 5000));
    missing.batch.edge_count = 0, refuse(missing, TE_ERROR_NULL, "the batch brings no edge named r");
    refuse(narrow, TE_ERROR_SHAPE, "r has 15 columns, the list was declared with 16");
    over.edge.value.data = over.y.data(), refuse(over, TE_ERROR_VALUE, "overlaps");
    rotation alone(sections3_subject, 1, floats(48, 0.1f), 3);
    refuse(alone, TE_ERROR_NULL, "(rope, r) has 3 sections and needs batch.positions, [3, rows]");
}
