// gemm_fp8_test.cc -- products in FP8 against doubles of the same quantised operands: on the host, by cuBLASLt and by the kernel of
// our own; what no back end has is refused; what tuning found goes through a file.
#include <sstream>

#include "harness.h"
#include "te/gemm/gemm_fp8.h"
#include "te/gemm/gemm_tune.h"

namespace {

struct product {
    int64_t m, n, k;
    te_dtype a, b, dtype, out;
    int fast, beta, bias;
};

std::string name_of(const product &p) {
    std::ostringstream s;
    s << p.m << " x " << p.n << " x " << p.k << " " << te_dtype_name(p.a) << " by " << te_dtype_name(p.b) << " -> " << te_dtype_name(p.out) << (p.fast ? " fast" : "")
      << (p.beta ? " added" : "") << (p.bias ? " bias" : "");
    return s.str();
}

struct operands {
    te_context *ctx;
    product p;
    buffer a, b, c, d, bias, scratch, inverse;
    reference::vec ra, rb, rc, rbias;
    float scale[2] = {0.37f, 5.1f};
    operands(te_context *x, const product &q, unsigned seed)
        : ctx(x), p(q), a(x, (size_t)(q.m * q.k), 16), b(x, (size_t)(q.k * q.n), 16), c(x, (size_t)(q.m * q.n) * te_dtype_bytes(q.out), 16),
          d(x, (size_t)(q.m * q.n) * te_dtype_bytes(q.out), 16), bias(x, (size_t)q.n * te_dtype_bytes(q.dtype), 16), scratch(x, scratch_bytes(q)), inverse(x, 32, 16) {
        source random(seed);
        ra = random.draw((size_t)(q.m * q.k), q.a), rb = random.draw((size_t)(q.k * q.n), q.b);
        rc = random.draw((size_t)(q.m * q.n), q.out), rbias = random.draw((size_t)q.n, q.dtype);
        a.write(ra, q.a), b.write(rb, q.b), c.write(rc, q.out), bias.write(rbias, q.dtype), inverse.write({scale[0], 0, 0, 0, scale[1], 0, 0, 0}, TE_f32);
    }
    static te_gemm shape_of(const product &q) {
        te_gemm g = te_gemm_of(q.m, q.n, q.k);
        g.trans_b = 1, g.dtype = q.dtype, g.out = q.out, g.fast = q.fast, g.beta = q.beta ? 1.0f : 0.0f;
        g.a_fp8.scaling = g.b_fp8.scaling = TE_SCALING_TENSOR, g.a_fp8.dtype = q.a, g.b_fp8.dtype = q.b;
        return g;
    }
    static size_t scratch_bytes(const product &q) {
        const te_gemm g = shape_of(q);
        return te_gemm_scratch(&g) * sizeof(float);
    }
    te_gemm gemm() const {
        te_gemm g = shape_of(p);
        g.a = a.data(), g.b = b.data(), g.c = c.data(), g.d = d.data(), g.scratch = (float *)scratch.data(), g.alpha = 0.5f;
        g.a_fp8.inverse = (const float *)inverse.data(), g.b_fp8.inverse = g.a_fp8.inverse + 4;
        if (p.bias) g.epilogue = TE_EPILOGUE_BIAS, g.bias = bias.data();
        return g;
    }
    // In doubles, and how far off each may be. Products of FP8 numbers are exact in f32. The tensor cores add 32 of them and the sum so far at a time:
    // aligned to the largest and cut off 13 bits below it; fast: all along, else for 128 of k, whose sums are then added in f32.
    void should_be(reference::vec *y, reference::vec *bound) const {
        const double u = std::ldexp(1.0, -24), cut = std::ldexp(1.0, -13), factor = 0.5 * (double)scale[0] * (double)scale[1];
        for (int64_t i = 0; i < p.m; i++)
            for (int64_t j = 0; j < p.n; j++) {
                double sum = 0, size = 0, part = 0, error = 0, largest = 0;
                for (int64_t l = 0; l < p.k; l++) {
                    const double term = ra[(size_t)(i * p.k + l)] * rb[(size_t)(j * p.k + l)];
                    sum += term, part += term, size += std::fabs(term), largest = std::max(largest, std::max(std::fabs(term), std::fabs(part)));
                    if (l % 32 == 31 || l == p.k - 1) error += TE_CUDA ? 33 * cut * largest : 0, largest = std::fabs(part);
                    if (!p.fast && l % 128 == 127) part = largest = 0;
                }
                double v = factor * sum, off = factor * (error + bounds::sums * size) + 4 * u * std::fabs(v);
                if (p.bias) off += bounds::ulp(std::fabs(v), p.out), v += rbias[(size_t)j];
                if (p.beta) off += bounds::ulp(std::fabs(v), p.out), v += rc[(size_t)(i * p.n + j)];
                y->push_back(v), bound->push_back(off + bounds::ulp(std::fabs(v) + off, p.out) + 2 * u * std::fabs(v));
            }
    }
};

enum { BACK_END, OWN };
// 1: it ran.
int check(const product &p, int who, int processors = 0) {
    const unsigned seed = fresh_seed();
    context own;
    te_context *ctx = &own.c;
    ctx->gemm_own = who == OWN ? 2 : 0;
    if (processors) ctx->processors = processors;
    operands o(ctx, p, seed);
    const te_gemm g = o.gemm();
    INFO(name_of(p) << (who == OWN ? ", a kernel of our own" : "") << ", TE_SEED=" << seed);
    if (who == OWN && !te_gemm_fp8_is_own(&g, ctx)) {
#if TE_CUDA && !defined(TE_KEEP_CALLS)
        CHECK((!p.fast || p.out == TE_f32 || p.k <= 6 * TE_TILE_K || ctx->capability != 900)); // said no for a reason
#endif
        return 0;
    }
    if (who == BACK_END && !te_gemm_supports(&g, ctx)) {
        CHECK((!TE_CUDA && p.bias)); // the host leaves it to the kernel behind
        return 0;
    }
    const auto run = [&] {
        const te_status status = te_gemm_fp8_run(&g, ctx);
        INFO(te_last_error(ctx));
        REQUIRE(status == TE_OK);
        return o.d.raw();
    };
    const std::vector<uint8_t> bits = run();
    reference::vec y, bound;
    o.should_be(&y, &bound);
    check_within("d", o.d.read(p.out), y, bound);
    o.d.poison();
    CHECK(run() == bits);
    return 1;
}
const te_dtype pairs[][2] = {{TE_e4m3, TE_e4m3}, {TE_e4m3, TE_e5m2}, {TE_e5m2, TE_e4m3}};

} // namespace

TEST_CASE("a product in FP8, by the back end", "[gemm_fp8]") {
    int ran = 0;
    for (const auto &pair : pairs)
        for (const te_dtype dtype : {TE_bf16, TE_f16})
            for (int fast = 0; fast < 2; fast++) {
                ran += check({128, 192, 256, pair[0], pair[1], dtype, dtype, fast, 0, 0}, BACK_END);
                ran += check({64, 96, 1040, pair[0], pair[1], dtype, TE_f32, fast, 1, 0}, BACK_END); // a weight's gradient, accumulated
                ran += check({1, 16, 16, pair[0], pair[1], dtype, dtype, fast, 0, 0}, BACK_END);
                ran += check({131, 48, 80, pair[0], pair[1], dtype, dtype, fast, 1, 0}, BACK_END);
                ran += check({131, 48, 80, pair[0], pair[1], dtype, dtype, fast, 0, 1}, BACK_END);
            }
    CHECK(ran == 3 * 2 * 2 * (TE_CUDA ? 5 : 4));
    if (!TE_CUDA) CHECK(check({16, 32, 48, TE_e4m3, TE_e4m3, TE_f32, TE_f32, 0, 1, 0}, BACK_END) == 1); // a list in f32
}
#if TE_CUDA && !defined(TE_KEEP_CALLS)
TEST_CASE("a product in FP8, by a kernel of our own", "[gemm_fp8]") {
    int ran = 0, all = 0;
    for (const auto &pair : pairs)
        for (const te_dtype dtype : {TE_bf16, TE_f16})
            for (int added = 0; added < 2; added++)
                for (const int64_t k : {400, 528, 2048})
                    for (const int64_t m : {3, 131, 300}) {
                        if (brief() && (k != 528 || m == 3 || (dtype == TE_bf16) == (pair[0] == TE_e5m2))) continue;
                        ran += check({m, m == 131 ? 528 : 272, k, pair[0], pair[1], dtype, dtype, 1, added, !added}, OWN), all++;
                    }
    CHECK(ran == all);
    CHECK(all >= 12);
    CHECK(check({200, 272, 384, TE_e4m3, TE_e4m3, TE_bf16, TE_bf16, 1, 0, 0}, OWN) == 0); // too short a k
    CHECK(check({200, 272, 2048, TE_e4m3, TE_e4m3, TE_bf16, TE_bf16, 0, 0, 0}, OWN) == 0); // sums in float
    // processors, columns, k: parts of a tile's k go to clusters that have none
    const int64_t uneven[][3] = {{12, 528, 2064}, {18, 528, 3200}, {132, 528, 4112}, {10, 1296, 4112}, {10, 528, 12400}};
    for (const auto &u : uneven) CHECK(check({200, u[1], u[2], TE_e4m3, TE_e4m3, TE_bf16, TE_bf16, 1, 0, 1}, OWN, (int)u[0]) == 1);
}
TEST_CASE("a product in FP8 that was tuned gives the same, and its file is read again", "[gemm_fp8]") {
    char path[] = "/tmp/te_gemm_fp8_XXXXXX";
    const int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    close(fd);
    const product list[] = {{128, 192, 256, TE_e4m3, TE_e4m3, TE_bf16, TE_bf16, 1, 0, 1}, {128, 192, 256, TE_e4m3, TE_e4m3, TE_bf16, TE_bf16, 0, 0, 1},
                            {96, 64, 512, TE_e5m2, TE_e4m3, TE_bf16, TE_f32, 0, 1, 0}};
    std::vector<uint8_t> bits[3];
    for (int pass = 0; pass < 2; pass++) {
        context own;
        te_context *ctx = &own.c;
        ctx->gemm_own = 0, ctx->gemm_tune = pass == 0;
        if (pass) REQUIRE(te_gemm_load(path, ctx) == TE_OK);
        for (int i = 0; i < 3; i++) {
            operands o(ctx, list[i], 7);
            const te_gemm g = o.gemm();
            INFO(name_of(list[i]));
            REQUIRE(te_gemm_fp8_run(&g, ctx) == TE_OK);
            reference::vec y, bound;
            o.should_be(&y, &bound);
            check_within("d", o.d.read(list[i].out), y, bound);
            if (pass) CHECK(o.d.raw() == bits[i]);
            else bits[i] = o.d.raw();
        }
        CHECK(te_gemm_report(nullptr, 0, ctx) == 3);
        if (!pass) REQUIRE(te_gemm_save(path, ctx) == TE_OK);
    }
    std::remove(path);
}
#endif
#if TE_CUDA && !defined(TE_KEEP_CALLS)
TEST_CASE("a kernel of our own and cuBLASLt are timed, and a tuning file says who is faster", "[gemm_fp8]") {
    char path[] = "/tmp/te_gemm_fp8_XXXXXX";
    const int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    close(fd);
    const product list[] = {{300, 528, 1040, TE_e4m3, TE_e4m3, TE_bf16, TE_bf16, 1, 0, 1}, {300, 528, 1040, TE_e5m2, TE_e4m3, TE_bf16, TE_bf16, 1, 1, 0}};
    int own_runs[2];
    for (int pass = 0; pass < 2; pass++) {
        context own;
        te_context *ctx = &own.c;
        ctx->gemm_tune = pass == 0;
        if (pass) REQUIRE(te_gemm_load(path, ctx) == TE_OK);
        for (int i = 0; i < 2; i++) {
            operands o(ctx, list[i], fresh_seed());
            const te_gemm g = o.gemm();
            INFO(name_of(list[i]));
            REQUIRE(te_gemm_fp8_run(&g, ctx) == TE_OK);
            reference::vec y, bound;
            o.should_be(&y, &bound);
            check_within("d", o.d.read(list[i].out), y, bound);
            const int runs = te_gemm_fp8_is_own(&g, ctx);
            if (pass) CHECK(runs == own_runs[i]);
            own_runs[i] = runs;
        }
        te_gemm_choice found[4];
        REQUIRE(te_gemm_report_choices(found, 4, ctx) == 2);
        for (int i = 0; i < 2; i++) {
            CHECK(found[i].ns[TE_SPLIT_BARE] > 0);
            CHECK(found[i].ns[TE_SPLIT_OWN] > 0);
            CHECK((found[i].split == TE_SPLIT_OWN) == (own_runs[i] == 1));
        }
        if (!pass) REQUIRE(te_gemm_save(path, ctx) == TE_OK);
    }
    std::remove(path);
}
#endif
TEST_CASE("products in FP8 that nobody has are refused, with the sizes", "[gemm_fp8]") {
    context own;
    te_context *ctx = &own.c;
    const product p = {32, 48, 64, TE_e4m3, TE_e4m3, TE_bf16, TE_bf16, 1, 0, 0};
    operands o(ctx, p, 1);
    const auto refused = [&](const te_gemm &g, te_status status, const char *text) {
        CHECK(te_gemm_check(&g, "(linear, fc1)", ctx) == status);
        CHECK(std::string(te_last_error(ctx)).find("(linear, fc1): ") == 0);
        CHECK(te_gemm_fp8_run(&g, ctx) == status);
        INFO(te_last_error(ctx));
        CHECK(std::string(te_last_error(ctx)).find(text) != std::string::npos);
        CHECK(o.d.poisoned());
    };
    te_gemm g = o.gemm();
    CHECK(te_gemm_check(&g, "fc1", ctx) == TE_OK);
    g.k = 40, refused(g, TE_ERROR_SHAPE, "32 x 48 x 40; n and k, the last two, must be multiples of 16"), g = o.gemm();
    g.n = 24, refused(g, TE_ERROR_SHAPE, "32 x 24 x 64"), g = o.gemm();
    g.trans_a = 1, refused(g, TE_ERROR_SHAPE, "store the transposed operand"), g = o.gemm();
    g.trans_b = 0, refused(g, TE_ERROR_SHAPE, "store the transposed operand"), g = o.gemm();
    g.a_fp8.dtype = g.b_fp8.dtype = TE_e5m2; refused(g, TE_ERROR_DTYPE, "e5m2 and e5m2"), g = o.gemm();
    g.b_fp8.scaling = TE_SCALING_NONE, refused(g, TE_ERROR_DTYPE, "e4m3 and bf16"), g = o.gemm();
    g.dtype = TE_e4m3, refused(g, TE_ERROR_DTYPE, "a product of e4m3 to bf16"), g = o.gemm();
    g.out = TE_f16, refused(g, TE_ERROR_DTYPE, "a product of bf16 to f16"), g = o.gemm();
    g.b_fp8.inverse++, refused(g, TE_ERROR_ALIGNMENT, "a scale of an FP8 product"), g = o.gemm();
    if (!TE_CUDA) return;
    ctx->capability = 860, refused(g, TE_ERROR_DEVICE, "8.9; device 0 has 8.6");
}
