// grad_norm_test.cc -- the global gradient norm against a norm in double. It has the same bits in each run and with any number of threads,
// and omits the gaps between parameters and the tied parameters.
#include "hand_model.h"
#include "te/optim/grad_norm.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

struct norm_of {
    te_context *ctx;
    std::vector<te_model *> models;
    memory m;
    te_grad_norm norm;
    norm_of(te_context *c, const std::vector<te_model *> &list) : ctx(c), models(list), m(c, te_grad_norm_bytes(models.data(), (int)models.size())) {
        const te_status s = te_grad_norm_init(&norm, m.p, m.bytes, models.data(), (int)models.size(), ctx);
        INFO(te_last_error(ctx));
        REQUIRE(s == TE_OK);
    }
    std::vector<float> run() {
        REQUIRE(te_grad_norm_run(&norm, ctx) == TE_OK);
        return read_floats(ctx, norm.result, 2);
    }
};

double sum_of_squares(const hand_model &m) {
    double sum = 0;
    for (size_t i = 0; i < m.param.size(); i++) {
        if (m.param[i].tied) continue;
        for (float g : read_floats(m.ctx, m.param[i].grad, m.elements(i))) sum += (double)g * g;
    }
    return sum;
}

} // namespace

TEST_CASE("the norm of odd sizes and several models") {
    target t;
    std::mt19937 random(7);
    hand_model a(t, "a", TE_bf16, odd_params()), b(t, "b", TE_f32, {{"fc", "weight", 1000, 333}, {"fc", "bias", 1, 333}});
    hand_model c(t, "c", TE_f16, {{"none", "weight", 3, 3, 1}}); // its only parameter is tied
    for (float size : {1.0f, 1e-6f, 1e6f}) {
        a.draw_grad(random, size), b.draw_grad(random, size / 3);
        const double want = sum_of_squares(a) + sum_of_squares(b);
        norm_of n(t, {&a.model, &c.model, &b.model});
        const std::vector<float> got = n.run();
        CHECK(got[0] == Approx(want).epsilon(2e-6));
        CHECK(got[1] == Approx(std::sqrt(want)).epsilon(2e-6));
        CHECK(n.run() == got);
        a.check_gaps(), b.check_gaps();
    }
}

TEST_CASE("the norm of one parameter of each size") {
    target t;
    std::mt19937 random(8);
    for (int64_t n : {1, 2, 3, 4, 5, 15, 16, 17, 1023, 4096, 8191, 8192, 8193, 16384, 24577, 100003}) {
        hand_model m(t, "m", TE_f32, {{"x", "bias", 1, n}});
        m.draw_grad(random, 1);
        norm_of norm(t, {&m.model});
        CAPTURE(n);
        CHECK(norm.run()[0] == Approx(sum_of_squares(m)).epsilon(2e-6));
    }
}

TEST_CASE("many chunks, with any number of threads") {
    target t;
    std::mt19937 random(9);
    hand_model m(t, "m", TE_f32, {{"x", "weight", 3001, 1009}, {"y", "weight", 1000, 1000}});
    m.draw_grad(random, 0.1f);
    norm_of norm(t, {&m.model});
    const std::vector<float> got = norm.run();
    CHECK(got[0] == Approx(sum_of_squares(m)).epsilon(2e-6));
    for (int threads : {1, 2, 3, 7}) {
#ifdef _OPENMP
        omp_set_num_threads(threads);
#endif
        CAPTURE(threads);
        CHECK(norm.run() == got);
    }
}

TEST_CASE("an infinity or a NaN makes the norm infinite or NaN; without models it is 0") {
    target t;
    hand_model m(t, "m", TE_f32, {{"x", "bias", 1, 9000}});
    std::vector<float> g(9000, 1.0f);
    norm_of norm(t, {&m.model});
    g[8999] = INFINITY, m.set_grad(0, g);
    CHECK(std::isinf(norm.run()[1]));
    g[3] = NAN, m.set_grad(0, g);
    CHECK(std::isnan(norm.run()[1]));
    hand_model nothing(t, "nothing", TE_f32, {{"x", "weight", 3, 3, 1}});
    norm_of none(t, {&nothing.model});
    CHECK(none.run() == std::vector<float>{0, 0});
}

TEST_CASE("squares that overflow f32") {
    target t;
    std::mt19937 random(10);
    for (int64_t n : {1, 5, 8191, 8192, 40000})
        for (double size : {1e19, 1e20, 1e30, 1e38}) { // of the largest gradient; most are near 1
            hand_model m(t, "m", TE_f32, {{"x", "bias", 1, n}, {"y", "bias", 1, 20000}});
            m.draw_grad(random, 1);
            std::vector<float> g = read_floats(t, m.param[0].grad, (size_t)n);
            g[(size_t)(n / 2)] = (float)size, g[0] = (float)-size;
            m.set_grad(0, g);
            norm_of norm(t, {&m.model});
            const std::vector<float> got = norm.run();
            double exact;
            REQUIRE(te_copy(t, &exact, norm.norm.norm, sizeof exact) == TE_OK);
            REQUIRE(te_synchronize(t) == TE_OK);
            CAPTURE(n, size);
            CHECK(exact == Approx(std::sqrt(sum_of_squares(m))).epsilon(2e-6));
            CHECK(got[1] == (float)exact);
            CHECK(norm.run() == got);
            for (float bad : {INFINITY, -INFINITY, NAN}) {
                g[(size_t)n - 1] = bad, m.set_grad(0, g);
                (void)norm.run();
                REQUIRE(te_copy(t, &exact, norm.norm.norm, sizeof exact) == TE_OK);
                REQUIRE(te_synchronize(t) == TE_OK);
                CHECK(!std::isfinite(exact));
            }
        }
    // of the largest floats the result is finite, though neither the sum nor its root fits f32
    hand_model m(t, "m", TE_f32, {{"x", "bias", 1, 20000}});
    m.set_grad(0, std::vector<float>(20000, 3.4e38f));
    norm_of norm(t, {&m.model});
    CHECK(std::isinf(norm.run()[1]));
    double exact;
    REQUIRE(te_copy(t, &exact, norm.norm.norm, sizeof exact) == TE_OK);
    REQUIRE(te_synchronize(t) == TE_OK);
    CHECK(exact == Approx(3.4e38 * std::sqrt(20000.0)).epsilon(1e-6));
}

TEST_CASE("invalid arguments are refused") {
    target t;
    hand_model m(t, "m", TE_f32, {{"x", "bias", 1, 100}}), frozen(t, "frozen", TE_f32, {{"x", "bias", 1, 100}}, false);
    te_model *models[] = {&m.model, &m.model, nullptr, &frozen.model};
    const size_t bytes = te_grad_norm_bytes(models, 1);
    memory norm_memory(t, bytes);
    te_grad_norm norm;
    const auto text = [&] { return std::string(te_last_error(t)); };
    CHECK(te_grad_norm_init(&norm, norm_memory.p, bytes, models, 1, t) == TE_OK);
    CHECK(te_grad_norm_init(nullptr, norm_memory.p, bytes, models, 1, t) == TE_ERROR_NULL);
    CHECK(te_grad_norm_init(&norm, nullptr, bytes, models, 1, t) == TE_ERROR_NULL);
    CHECK(te_grad_norm_init(&norm, norm_memory.p, bytes, nullptr, 1, t) == TE_ERROR_NULL);
    CHECK(te_grad_norm_init(&norm, norm_memory.p, bytes, models, 1, nullptr) == TE_ERROR_NULL);
    CHECK(te_grad_norm_init(&norm, (char *)norm_memory.p + 16, bytes, models, 1, t) == TE_ERROR_ALIGNMENT);
    CHECK(te_grad_norm_init(&norm, norm_memory.p, bytes - 1, models, 1, t) == TE_ERROR_MEMORY);
    CHECK(text() == "gradient norm: memory has " + std::to_string(bytes - 1) + " bytes, " + std::to_string(bytes) + " are needed");
    CHECK(te_grad_norm_init(&norm, norm_memory.p, bytes, models, -1, t) == TE_ERROR_SHAPE);
    CHECK(te_grad_norm_init(&norm, norm_memory.p, bytes, models, 2, t) == TE_ERROR_VALUE);
    CHECK(text() == "gradient norm: model 1 (m) is model 0 again");
    CHECK(te_grad_norm_init(&norm, norm_memory.p, bytes, models + 2, 1, t) == TE_ERROR_NULL);
    CHECK(te_grad_norm_init(&norm, norm_memory.p, bytes, models + 3, 1, t) == TE_ERROR_NULL);
    CHECK(text().find("x.bias has no gradient") != std::string::npos);
    m.param[0].rows = INT64_MAX / 2;
    CHECK(te_grad_norm_init(&norm, norm_memory.p, bytes, models, 1, t) == TE_ERROR_OVERFLOW);
    m.param[0].rows = -1;
    CHECK(te_grad_norm_init(&norm, norm_memory.p, bytes, models, 1, t) == TE_ERROR_SHAPE);
    CHECK(te_grad_norm_run(nullptr, t) == TE_ERROR_NULL);
}
