// gemm_fp8_test.cc -- FP8 GEMMs against doubles of the same quantised operands: on the host, by cuBLASLt and by the library's custom
// kernels, alone and in the patterns of a list. Unsupported GEMMs are refused. A tuning file restores the choices of autotuning.
#include <functional>
#include <random>
#include <sstream>

#include "launches.h"
#include "recipe.h"
#include "te/gemm/gemm.h"
#include "te/ops/activation.h"
#include "te/ops/elementwise.h"
#include "te/ops/linear.h"
#include "te/ops/recompute.h"
#include "te/ops/residual.h"

// Forward linear_bias_gelu and linear_bias_add, backward add_bias, linear_gelu_bias and linear_fork.
#define PATTERNS (fork, x), (linear, a, 2064, 528), (bias, ab, 528), (gelu, g), (linear, b, 528, 2064), (bias, bb, 2064), (add, x)
MODEL(patterns_fp8, (bf16, (recipe, fp8_delayed)), PATTERNS)
MODEL(same_fp8, (bf16, (recipe, fp8_delayed), (gradients, e4m3)), PATTERNS)
MODEL(saved_fp8, (bf16, (recipe, fp8_delayed)), PATTERNS, (recompute, r), (scale, one, 1.0f), (end_recompute, r)) // a list with a recompute region saves the inputs of its GEMMs
// Forward linear_swiglu and linear_bias_swiglu; the width of the second is no multiple of a tile.
#define GATED (linear, a, 528, 1088), (swiglu, g), (linear, b, 544, 544)
#define GATED_BIAS (linear, a, 2064, 288), (bias, ab, 288), (swiglu, g), (linear, b, 144, 144)
MODEL(gated_fp8, (bf16, (recipe, fp8_delayed)), GATED)
MODEL(gated_f16_fp8, (f16, (recipe, fp8_delayed)), GATED_BIAS)
MODEL(gated_current_fp8, (bf16, (recipe, fp8_current)), GATED)
MODEL(gated_16_fp8, (bf16, (recipe, fp8_delayed)), (linear, a, 528, 1088, (recipe, none)), (swiglu, g), (linear, b, 544, 544))

namespace {

struct fp8_sum : bounds::fp8_sum {
    fp8_sum(const double *x, size_t x_step, const double *y, size_t y_step, size_t k, bool fast) : bounds::fp8_sum(x, x_step, y, y_step, k, fast, TE_CUDA) {}
};

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
        g.a_fp8.scaling = g.b_fp8.scaling = TE_SCALING_TENSORWISE, g.a_fp8.dtype = q.a, g.b_fp8.dtype = q.b;
        return g;
    }
    static size_t scratch_bytes(const product &q) {
        const te_gemm g = shape_of(q);
        return te__gemm_scratch(&g) * sizeof(float);
    }
    te_gemm gemm() const {
        te_gemm g = shape_of(p);
        g.a = a.data(), g.b = b.data(), g.c = c.data(), g.d = d.data(), g.scratch = (float *)scratch.data(), g.alpha = 0.5f;
        g.a_fp8.inverse = (const float *)inverse.data(), g.b_fp8.inverse = g.a_fp8.inverse + 4;
        if (p.bias) g.epilogue = TE_EPILOGUE_BIAS, g.bias = bias.data();
        return g;
    }
    // The expected values in double, and their error bounds.
    void should_be(reference::vec *y, reference::vec *bound) const {
        const double u = std::ldexp(1.0, -24), factor = 0.5 * (double)scale[0] * (double)scale[1];
        for (int64_t i = 0; i < p.m; i++)
            for (int64_t j = 0; j < p.n; j++) {
                const fp8_sum s(&ra[(size_t)(i * p.k)], 1, &rb[(size_t)(j * p.k)], 1, (size_t)p.k, p.fast);
                double v = factor * s.sum, off = factor * s.error + 4 * u * std::fabs(v);
                if (p.bias) off += bounds::ulp(std::fabs(v), p.out), v += rbias[(size_t)j];
                if (p.beta) off += bounds::ulp(std::fabs(v), p.out), v += rc[(size_t)(i * p.n + j)];
                y->push_back(v), bound->push_back(off + bounds::ulp(std::fabs(v) + off, p.out) + 2 * u * std::fabs(v));
            }
    }
};

enum { BACK_END, CUSTOM };
// Checks a GEMM, and returns 1 if it ran, 0 if it is not supported.
int check(const product &p, int who, int processors = 0) {
    const unsigned seed = fresh_seed();
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    ctx->gemm_custom = who == CUSTOM ? 2 : 0;
    if (processors) ctx->processors = processors;
    operands o(ctx, p, seed);
    const te_gemm g = o.gemm();
    INFO(name_of(p) << (who == CUSTOM ? ", a custom kernel" : "") << ", TE_SEED=" << seed);
    if (who == CUSTOM && !te__gemm_fp8_is_custom(&g, ctx)) {
#if TE_CUDA && !defined(TE_KEEP_CALLS)
        CHECK((!p.fast || p.out == TE_f32 || p.k <= 6 * TE_TILE_K || ctx->capability != 900)); // the only reasons not to have a kernel
#endif
        return 0;
    }
    if (who == BACK_END && !te__gemm_supports(&g, ctx)) {
        CHECK((!TE_CUDA && p.bias)); // on CUDA, cuBLASLt must support it; on the host a bias is left to the next kernel
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

TEST_CASE("an FP8 GEMM by cuBLASLt or the host", "[gemm_fp8]") {
    int ran = 0;
    for (const auto &pair : pairs)
        for (const te_dtype dtype : {TE_bf16, TE_f16})
            for (int fast = 0; fast < 2; fast++) {
                ran += check({128, 192, 256, pair[0], pair[1], dtype, dtype, fast, 0, 0}, BACK_END);
                // the gradient of a weight, accumulated
                ran += check({64, 96, 1040, pair[0], pair[1], dtype, TE_f32, fast, 1, 0}, BACK_END);
                ran += check({1, 16, 16, pair[0], pair[1], dtype, dtype, fast, 0, 0}, BACK_END);
                ran += check({131, 48, 80, pair[0], pair[1], dtype, dtype, fast, 1, 0}, BACK_END);
                ran += check({131, 48, 80, pair[0], pair[1], dtype, dtype, fast, 0, 1}, BACK_END);
            }
    CHECK(ran == 3 * 2 * 2 * (TE_CUDA ? 5 : 4));
    if (!TE_CUDA) CHECK(check({16, 32, 48, TE_e4m3, TE_e4m3, TE_f32, TE_f32, 0, 1, 0}, BACK_END) == 1); // for a list in f32
}
#if TE_CUDA && !defined(TE_KEEP_CALLS)
namespace {
// Checks a skinny or small-m GEMM y[m, n] = x[m, k] w[n, k]^T, m <= 128, with tensorwise or rowwise scales or, if skinny, blockwise ones, with or
// without a residual.
template <te_dtype T, te_gemm_operands FORM> void check_small_m(int64_t m, int64_t n, int64_t k, te_scaling of_x, te_scaling of_w, bool added, int processors = 0) {
    const unsigned seed = fresh_seed();
    INFO(m << " x " << n << " x " << k << " -> " << te_dtype_name(T) << " by " << te_scaling_name(of_x) << (added ? " added" : "") << ", TE_SEED=" << seed);
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    source random(seed);
    const auto size = [](int64_t rows, int64_t cols) { return (size_t)(rows * cols); };
    const reference::vec x = random.draw(size(m, k), TE_e4m3), w = random.draw(size(n, k), TE_e4m3), c = random.draw(size(m, n), T);
    const reference::vec sx = random.draw((size_t)te_scaling_count(of_x, m, k), TE_f32), sw = random.draw((size_t)te_scaling_count(of_w, n, k), TE_f32);
    reference::vec should, off;
    buffer bx(ctx, x.size()), bw(ctx, w.size()), bc(ctx, 2 * c.size()), d(ctx, 2 * c.size()), scales_x(ctx, 4 * sx.size()), scales_w(ctx, 4 * sw.size());
    bx.write(x, TE_e4m3), bw.write(w, TE_e4m3), bc.write(c, T), scales_x.write(sx, TE_f32), scales_w.write(sw, TE_f32);
    te_gemm g = te_gemm_of(m, n, k);
    g.trans_b = 1, g.dtype = g.out = T, g.fast = 1, g.alpha = 0.5f, g.beta = added ? 1.0f : 0.0f;
    g.a = bx.data(), g.b = bw.data(), g.c = bc.data(), g.d = d.data();
    g.a_fp8.scaling = of_x, g.b_fp8.scaling = of_w, g.a_fp8.dtype = g.b_fp8.dtype = TE_e4m3;
    g.a_fp8.inverse = (const float *)scales_x.data(), g.b_fp8.inverse = (const float *)scales_w.data();
    ctx->gemm_custom = 2;
    te_product_kernels *kernels = te__unfused_gemm_kernels<T, 1, 0, FORM>();
    if (processors) ctx->processors = processors;
    REQUIRE((m > TE_SKINNY_ROWS ? te__gemm_is_small_m(kernels, &g, ctx) : te__gemm_is_skinny(kernels, &g, ctx)));
    REQUIRE(te__unfused_gemm_run(kernels, &g, ctx) == TE_OK);
    const double u = std::ldexp(1.0, -24);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double v = 0, may = 0;
            for (int64_t l = 0; l < k; l += of_x == TE_SCALING_BLOCKWISE_1D ? 128 : k) { // the part of k that has one scale
                const fp8_sum s(&x[size(i, k) + (size_t)l], 1, &w[size(j, k) + (size_t)l], 1, (size_t)(of_x == TE_SCALING_BLOCKWISE_1D ? std::min<int64_t>(128, k - l) : k), true);
                const double factor = 0.5 * sx[(size_t)te_scale_at(of_x, m, k, i, l)] * sw[(size_t)te_scale_at(of_w, n, k, j, l)];
                v += factor * s.sum, may += std::fabs(factor) * (s.error + 16 * u * std::fabs(s.sum));
            }
            may += 4 * u * std::fabs(v);
            if (added) may += bounds::ulp(std::fabs(v), T), v += c[size(i, n) + (size_t)j];
            should.push_back(v), off.push_back(may + bounds::ulp(std::fabs(v) + may, T) + 2 * u * std::fabs(v));
        }
    check_within("d", d.read(T), should, off);
    const std::vector<uint8_t> bits = d.raw();
    d.poison();
    REQUIRE(te__unfused_gemm_run(kernels, &g, ctx) == TE_OK);
    CHECK(d.raw() == bits);
}
} // namespace

TEST_CASE("skinny FP8 GEMMs by a custom kernel", "[gemm_fp8]") {
    const int64_t sizes[][3] = {{1, 16, 16}, {2, 48, 272}, {3, 4112, 528}, {4, 16, 128}, {5, 272, 2064}, {7, 528, 4096}, {8, 144, 10000}};
    for (const auto &s : sizes)
        for (const bool added : {false, true}) {
            check_small_m<TE_bf16, TE_OPERANDS_FP8>(s[0], s[1], s[2], TE_SCALING_TENSORWISE, TE_SCALING_TENSORWISE, added);
            check_small_m<TE_f16, TE_OPERANDS_FP8>(s[0], s[1], s[2], TE_SCALING_ROWWISE, TE_SCALING_ROWWISE, added);
            check_small_m<TE_bf16, TE_OPERANDS_FP8_BLOCKWISE>(s[0], s[1], s[2], TE_SCALING_BLOCKWISE_1D, TE_SCALING_BLOCKWISE_2D, added);
        }
    const int64_t more[][4] = {{9, 16, 16, 0}, {17, 272, 528, 4}, {63, 48, 80, 0}, {64, 528, 2064, 12}, {65, 272, 1040, 2}, {127, 16, 272, 0}, {128, 1040, 1552, 14}};
    for (const auto &s : more)
        for (const bool added : {false, true}) {
            if (brief() && s[2] > 600) continue;
            check_small_m<TE_bf16, TE_OPERANDS_FP8>(s[0], s[1], s[2], TE_SCALING_ROWWISE, TE_SCALING_ROWWISE, added, (int)s[3]);
            check_small_m<TE_f16, TE_OPERANDS_FP8>(s[0], s[1], s[2], TE_SCALING_TENSORWISE, TE_SCALING_TENSORWISE, added, (int)s[3]);
        }
    te_gemm g = te_gemm_of(8, 64, 64);
    g.trans_b = 1, g.dtype = g.out = TE_bf16, g.a_fp8.scaling = g.b_fp8.scaling = TE_SCALING_ROWWISE, g.a_fp8.dtype = g.b_fp8.dtype = TE_e4m3;
    CHECK(te__skinny_can(&g));
    g.a_fp8.dtype = TE_e5m2; // not for a gradient in e5m2
    CHECK(!te__skinny_can(&g));
    g.a_fp8.dtype = TE_e4m3, g.m = 9;
    CHECK(!te__skinny_can(&g));
    g.m = 8, g.a_fp8.scaling = g.b_fp8.scaling = TE_SCALING_BLOCKWISE_1D; // not for the gradient of a weight
    CHECK(!te__skinny_can(&g));
}
TEST_CASE("an FP8 GEMM by a custom kernel", "[gemm_fp8]") {
    int ran = 0, all = 0;
    for (const auto &pair : pairs)
        for (const te_dtype dtype : {TE_bf16, TE_f16})
            for (int added = 0; added < 2; added++)
                for (const int64_t k : {400, 528, 2048})
                    for (const int64_t m : {3, 131, 300}) {
                        if (brief() && (k != 528 || m == 3 || (dtype == TE_bf16) == (pair[0] == TE_e5m2))) continue;
                        ran += check({m, m == 131 ? 528 : 272, k, pair[0], pair[1], dtype, dtype, 1, added, !added}, CUSTOM), all++;
                    }
    CHECK(ran == all);
    CHECK(all >= 12);
    CHECK(check({200, 272, 384, TE_e4m3, TE_e4m3, TE_bf16, TE_bf16, 1, 0, 0}, CUSTOM) == 0); // k is too small
    CHECK(check({200, 272, 2048, TE_e4m3, TE_e4m3, TE_bf16, TE_bf16, 0, 0, 0}, CUSTOM) == 0); // not fast: sums in f32
    // processors, columns, k: clusters without a tile of their own compute a part of another tile's k
    const int64_t uneven[][3] = {{12, 528, 2064}, {18, 528, 3200}, {132, 528, 4112}, {10, 1296, 4112}, {10, 528, 12400}};
    for (const auto &u : uneven) CHECK(check({200, u[1], u[2], TE_e4m3, TE_e4m3, TE_bf16, TE_bf16, 1, 0, 1}, CUSTOM, (int)u[0]) == 1);
}
TEST_CASE("an autotuned FP8 GEMM computes the same bits, also after its tuning file was loaded", "[gemm_fp8]") {
    char path[] = "/tmp/te_gemm_fp8_XXXXXX";
    const int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    close(fd);
    const product list[] = {{128, 192, 256, TE_e4m3, TE_e4m3, TE_bf16, TE_bf16, 1, 0, 1}, {128, 192, 256, TE_e4m3, TE_e4m3, TE_bf16, TE_bf16, 0, 0, 1},
                            {96, 64, 512, TE_e5m2, TE_e4m3, TE_bf16, TE_f32, 0, 1, 0}};
    std::vector<uint8_t> bits[3];
    for (int pass = 0; pass < 2; pass++) {
        context ctx_owner;
        te_context *ctx = &ctx_owner.c;
        ctx->gemm_custom = 0, ctx->gemm_tune = pass == 0;
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
TEST_CASE("autotuning times a custom kernel and cuBLASLt, and a tuning file restores the choice", "[gemm_fp8]") {
    char path[] = "/tmp/te_gemm_fp8_XXXXXX";
    const int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    close(fd);
    const product list[] = {{300, 528, 1040, TE_e4m3, TE_e4m3, TE_bf16, TE_bf16, 1, 0, 1}, {300, 528, 1040, TE_e5m2, TE_e4m3, TE_bf16, TE_bf16, 1, 1, 0}};
    int own_runs[2];
    for (int pass = 0; pass < 2; pass++) {
        context ctx_owner;
        te_context *ctx = &ctx_owner.c;
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
            const int runs = te__gemm_fp8_is_custom(&g, ctx);
            if (pass) CHECK(runs == own_runs[i]);
            own_runs[i] = runs;
        }
        te_gemm_choice found[4];
        REQUIRE(te_gemm_report_choices(found, 4, ctx) == 2);
        for (int i = 0; i < 2; i++) {
            CHECK(found[i].ns[TE_STRATEGY_BARE] > 0);
            CHECK(found[i].ns[TE_STRATEGY_CUSTOM] > 0);
            CHECK((found[i].strategy == TE_STRATEGY_CUSTOM) == (own_runs[i] == 1));
        }
        if (!pass) REQUIRE(te_gemm_save(path, ctx) == TE_OK);
    }
    std::remove(path);
}
#endif
TEST_CASE("unsupported FP8 GEMMs are refused with their sizes", "[gemm_fp8]") {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    const product p = {32, 48, 64, TE_e4m3, TE_e4m3, TE_bf16, TE_bf16, 1, 0, 0};
    operands o(ctx, p, 1);
    const auto refused = [&](const te_gemm &g, te_status status, const char *text) {
        CHECK(te__gemm_check(&g, "(linear, fc1)", ctx) == status);
        CHECK(std::string(te_last_error(ctx)).find("(linear, fc1): ") == 0);
        CHECK(te_gemm_fp8_run(&g, ctx) == status);
        INFO(te_last_error(ctx));
        CHECK(std::string(te_last_error(ctx)).find(text) != std::string::npos);
        CHECK(o.d.poisoned());
    };
    te_gemm g = o.gemm();
    CHECK(te__gemm_check(&g, "fc1", ctx) == TE_OK);
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

// ---- patterns of a list --------------------------------------------------------------------------------------------------

namespace {

// Reads n numbers from target memory, and multiplies them by `factor`.
reference::vec read_at(te_context *ctx, const void *p, te_dtype t, size_t n, double factor = 1) {
    std::vector<uint8_t> bytes(n * te_dtype_bytes(t));
    REQUIRE(te_copy(ctx, bytes.data(), p, bytes.size()) == TE_OK);
    REQUIRE(te_synchronize(ctx) == TE_OK);
    reference::vec v(n);
    for (size_t i = 0; i < n; i++) v[i] = factor * (double)te_load(bytes.data(), (int64_t)i, t);
    return v;
}
double largest(const reference::vec &v) {
    double amax = 0;
    for (double e : v) amax = std::max(amax, std::fabs(e));
    return amax;
}
enum { IN = 2064, MIDDLE = 528, LINEAR_A = 1, BIAS_A = 2, LINEAR_B = 4 }; // widths of patterns_fp8, and indices of its ops

// Checks each step of a forward and backward of patterns_fp8 from the values that the step before has stored. stored: pointwise kernels store FP8.
void check_patterns(under_recipe &u, micro_batch &b, bool stored, bool custom) {
    const size_t m = u.rows;
    const bool in_e4m3 = u.plan->fp8->gradients == TE_e4m3; // the relative error of rounding a gradient: 1/8 in e5m2, 1/16 in e4m3
    const double moves = std::ldexp(1.0, in_e4m3 ? -4 : -3);
    const reference::vec bias_a = u.m.param[1], bias_b = u.m.param[3], x_given = b.x.read(TE_bf16), dy_given = b.dy.read(TE_bf16);
    const te_fp8_product *const a = &u.m.model()->param[0].fp8, *const c = &u.m.model()->param[2].fp8;
    const auto scale_of = [&](int i) { return read_at(u.ctx, u.state.scales.scale + i, TE_f32, 1)[0]; };
    const auto amax_of = [&](int i) { return read_at(u.ctx, u.state.scales.amax + i, TE_f32, 1)[0]; };
    b.forward(u);
    b.backward(u);
    const reference::vec wa = read_at(u.ctx, a->data, TE_e4m3, (size_t)IN * MIDDLE, 1 / scale_of(a->weight));
    const reference::vec wb = read_at(u.ctx, c->data, TE_e4m3, (size_t)IN * MIDDLE, 1 / scale_of(c->weight));
    te_run r = te__run_to_size(u.plan, TE_FORWARD, (int64_t)m, TE_USE_on, u.ctx);
    r.x.data = b.x.data();
    te__take_params(&r, u.m.model());
    te__set_recipe_use(&r, TE_USE_as_bound);
    (void)te__lay_out(&r, (char *)b.memory.data());
    // the saved FP8 input of a GEMM, or the one that backward would recompute
    const auto saved_input = [&](int op, size_t cols, int scale) {
        const te_saved_input k = te__saved_input_of(&r, op);
        const reference::vec of = read_at(u.ctx, k.inverse, TE_f32, 2);
        const size_t rows = (size_t)te__fp8_rows((int64_t)m);
        const int recomputed = te__policy(&r, op)->input != TE_INPUT_saved_fp8;
        buffer memory(u.ctx, (size_t)te__capacity_rows(&r) * cols + 2 * TE_ALIGN);
        void *at = k.x;
        CHECK((of[1] == scale_of(scale) && std::fabs(of[0] * of[1] - 1) < 1e-6));
        if (recomputed) {
            r.pass = TE_BACKWARD, r.dry = 0, r.pool.count = 0, r.pool.high = 0, r.pool.base = (char *)memory.data();
            REQUIRE(te__fp8_recompute_input(&r, op, &at, 1) == TE_OK);
            r.pass = TE_FORWARD;
        }
        if (!recomputed && !te__saved_is_transposed(b.saved.transposed, op)) return read_at(u.ctx, at, TE_e4m3, m * cols, of[0]);
        const reference::vec transposed = read_at(u.ctx, at, TE_e4m3, rows * cols, of[0]);
        reference::vec x(m * cols);
        for (size_t j = 0; j < cols; j++)
            for (size_t i = 0; i < rows; i++)
                if (i < m) x[i * cols + j] = transposed[j * rows + i];
                else REQUIRE(transposed[j * rows + i] == 0);
        return x;
    };
    // a cast, and the GEMM of more than 128 rows, save the transpose
    if (u.ctx->capability == 900 && custom && te__policy(&r, LINEAR_B)->input == TE_INPUT_saved_fp8) CHECK(te__saved_is_transposed(b.saved.transposed, LINEAR_B) == (!stored || m > 128));
    const reference::vec xa = saved_input(LINEAR_A, IN, a->x), xb = saved_input(LINEAR_B, MIDDLE, c->x), pre = read_at(u.ctx, r.act[BIAS_A], TE_bf16, m * MIDDLE);
    const reference::vec grads = u.m.grads.read(TE_f32);
    const auto grad = [&](int i) { return reference::vec(grads.begin() + (long)u.m.grad_at(i), grads.begin() + (long)(u.m.grad_at(i) + u.m.elements(i))); };
    // y = round(x w^T) + bias (+ c)
    const auto product = [&](const reference::vec &x, const reference::vec &w, const reference::vec &bias, const reference::vec *added, size_t n, size_t k, reference::vec *v,
                             reference::vec *off) {
        for (size_t i = 0; i < m; i++)
            for (size_t j = 0; j < n; j++) {
                const fp8_sum s(&x[i * k], 1, &w[j * k], 1, k, true);
                const double more = bias[j] + (added ? (*added)[i * n + j] : 0), size = std::fabs(s.sum) + s.error;
                v->push_back(s.sum + more);
                off->push_back(s.error + bounds::ulp(size, TE_bf16) + bounds::ulp(std::fabs(s.sum + bias[j]) + s.error, TE_bf16) + bounds::ulp(std::fabs(v->back()) + s.error, TE_bf16));
            }
    };
    reference::vec v, off;
    product(xa, wa, bias_a, nullptr, MIDDLE, IN, &v, &off);
    check_within("pre-activation", pre, v, off);
    // the gelu of it in FP8 must lie between the roundings of gelu - e and gelu + e; the error e includes the rounding between two kernels
    const double xb_scale = scale_of(c->x);
    size_t wrong = 0;
    double amax = 0, amax_error = 0;
    for (size_t i = 0; i < pre.size(); i++) {
        const double g = reference::activation("gelu", pre[i]), e = bounds::functions * (1 + std::fabs(pre[i])) + (custom && stored ? 0 : 1.2 * bounds::ulp(std::fabs(pre[i]), TE_bf16) + bounds::ulp(std::fabs(g), TE_bf16));
        const double low = te_round_to((float)((g - e) * xb_scale), TE_e4m3) / xb_scale, high = te_round_to((float)((g + e) * xb_scale), TE_e4m3) / xb_scale;
        wrong += !(xb[i] >= low * (1 - 1e-6 * (low > 0 ? 1 : -1)) - 1e-30 && xb[i] <= high * (1 + 1e-6 * (high > 0 ? 1 : -1)) + 1e-30);
        if (std::fabs(g) > amax) amax = std::fabs(g), amax_error = e;
    }
    CHECK(wrong == 0);
    if (stored) CHECK(std::fabs(amax_of(c->x) - amax) <= amax_error + 1e-6 * amax);
    // the scale comes from this amax: in the first step its own, in the second that of the first, which had the same numbers
    CHECK(std::fabs(448 / xb_scale - amax) <= amax_error + bounds::ulp(amax, TE_bf16) + 1e-6 * amax);
    v.clear(), off.clear();
    product(xb, wb, bias_b, &x_given, IN, MIDDLE, &v, &off);
    check_within("y", b.y.read(TE_bf16), v, off);

    // dy of b in FP8; then its product, through the gelu; the column sums of that; and the same as dy of a, rounded to FP8
    // half of the smallest FP8 number
    const double dyb_scale = scale_of(c->dy), dya_scale = scale_of(a->dy), step = (in_e4m3 ? std::ldexp(1.0, -10) : std::ldexp(1.0, -17)) / dya_scale;
    reference::vec dyb(dy_given.size()), g, g_off, sum(MIDDLE), sum_off(MIDDLE);
    for (size_t i = 0; i < dyb.size(); i++) dyb[i] = (double)te_round_to((float)dy_given[i] * (float)dyb_scale, u.plan->fp8->gradients) / dyb_scale;
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < MIDDLE; j++) {
            const fp8_sum s(&dyb[i * IN], 1, &wb[j], MIDDLE, IN, custom);
            const double p = pre[i * MIDDLE + j], slope = reference::activation_slope("gelu", p), e = s.error + bounds::ulp(std::fabs(s.sum) + s.error, TE_bf16);
            g.push_back(s.sum * slope), g_off.push_back(e * std::fabs(slope) + bounds::functions * (1 + std::fabs(p)) * (std::fabs(s.sum) + e));
            sum[j] += g.back(), sum_off[j] += g_off.back() + bounds::sums * std::fabs(g.back());
        }
    check_within("dbias", grad(1), sum, sum_off);
    amax = largest(g);
    if (stored) CHECK(std::fabs(amax_of(a->dy) - amax) <= largest(g_off) + 1e-6 * amax);
    CHECK(std::fabs(te_fp8_max(u.plan->fp8->gradients) / dya_scale - amax) <= largest(g_off) + bounds::ulp(amax, TE_bf16) + 1e-6 * amax);
    // the bound of a sum of values rounded to FP8: six standard deviations of uniformly distributed errors
    const double largest_wa = largest(wa), largest_xa = largest(xa);
    const auto rounded = [&](const reference::vec &w, double largest_w, size_t i, size_t i_step, size_t j, size_t j_step, size_t k, double *s, double *o) {
        double squares = 0, certain = 0;
        for (size_t l = 0; l < k; l++) {
            const double q = std::fabs(g[i + l * i_step]), x = w[j + l * j_step], e = (q * moves + step) * x;
            squares += e * e, certain += g_off[i + l * i_step] * std::fabs(x);
        }
        const fp8_sum f(&g[i], i_step, &w[j], j_step, k, false);
        *s = f.sum, *o = f.error + certain + 6 * std::sqrt(squares / 3) + (stored ? 0 : bounds::ulp(amax, TE_bf16) * std::sqrt((double)k) * largest_w);
    };
    // compares every 23rd row, and the last one
    const auto some = [&](const char *what, const reference::vec &all, size_t rows, size_t cols, const std::function<void(size_t, size_t, double *, double *)> &f) {
        reference::vec got;
        v.clear(), off.clear();
        for (size_t i = (rows - 1) % 23; i < rows; i += 23)
            for (size_t j = 0; j < cols; j++) {
                double s = 0, o = 0;
                f(i, j, &s, &o);
                got.push_back(all[i * cols + j]), v.push_back(s), off.push_back(o);
            }
        check_within(what, got, v, off);
    };
    some("dx", b.dx.read(TE_bf16), m, IN, [&](size_t i, size_t j, double *s, double *o) {
        rounded(wa, largest_wa, i * MIDDLE, 1, j, IN, MIDDLE, s, o);
        *o += bounds::ulp(std::fabs(*s) + *o, TE_bf16), *s += dy_given[i * IN + j], *o += bounds::ulp(std::fabs(*s) + *o, TE_bf16);
    });
    some("dweight of a", grad(0), MIDDLE, IN, [&](size_t j, size_t i, double *s, double *o) { rounded(xa, largest_xa, j, MIDDLE, i, IN, m, s, o); });
    some("dweight of b", grad(2), IN, MIDDLE, [&](size_t j, size_t i, double *s, double *o) {
        const fp8_sum f(&dyb[j], IN, &xb[i], MIDDLE, m, false);
        *s = f.sum, *o = f.error + 1e-6 * std::fabs(f.sum);
    });
}

void check_list(const subject &list, int rows, bool custom, int processors = 0) {
    const unsigned seed = fresh_seed();
    CAPTURE(rows, custom, processors, seed);
    under_recipe u(list, 1, rows, seed);
    if (processors) u.ctx->processors = processors;
    micro_batch b(u, list.saved_bytes(rows));
    for (int step = 0; step < 2; step++) { // in the first step GEMMs store 16 bits, and cast kernels convert them to FP8
        CAPTURE(step);
        check_patterns(u, b, step > 0, custom);
        REQUIRE(te_recipes_step(&u.state, u.ctx) == TE_OK);
    }
    CHECK(u.memory->raw().size() == u.memory->bytes); // raw() checks the guards
    CHECK(u.workspace->raw().size() == u.workspace->bytes);
    CHECK(b.memory.raw().size() == b.memory.bytes);
}

} // namespace

TEST_CASE("patterns that begin with an FP8 GEMM, by cuBLASLt or the host and a second kernel", "[gemm_fp8]") {
    for (int rows : {5, 37, 300})
        for (const subject *s : {&patterns_fp8_subject, &saved_fp8_subject, &same_fp8_subject})
            if (!brief() || rows < 300 || s == &patterns_fp8_subject) check_list(*s, rows, false); // the host's kernels for 300 rows are the same for each list
}
#if TE_CUDA && !defined(TE_KEEP_CALLS)
// The number of launches of `kernel` in `run`.
template <class F> int launches_of(const void *kernel, te_context *ctx, F run) {
    cudaFunction_t function;
    REQUIRE(cudaGetFuncBySymbol(&function, kernel) == cudaSuccess);
    return launches_where(ctx, run, [=](const void *f) { return f == kernel || f == (const void *)function; });
}
TEST_CASE("patterns that begin with an FP8 GEMM, as one kernel", "[gemm_fp8]") {
    const custom_gemms on;
    for (int rows : {5, 37, 300})
        for (const subject *s : {&patterns_fp8_subject, &saved_fp8_subject, &same_fp8_subject})
            if (!brief() || rows < 300) check_list(*s, rows, true);
    check_list(patterns_fp8_subject, 140, true, 12); // parts of a tile's k go to clusters that have none
    if (brief()) return; // not under a sanitizer, which reports the failed lookup of a cuBLASLt kernel (launches_of) as an error
    {
        under_recipe skinny(patterns_fp8_subject, 1, 7, 1);
        micro_batch b(skinny, patterns_fp8_saved_bytes(7));
        if (skinny.ctx->capability != 900) return;
        b.forward(skinny);
        const auto forward = [&] { return skinny.m.s.forward(skinny.y_of(b.y), &b.saved, skinny.x_of(b.x), skinny.m.memory.data(), &skinny.batch, skinny.ctx); };
        CHECK(launches_of(patterns_fp8_a_linear_bias_gelu_kernels()->skinny_fp8.kernel, skinny.ctx, forward) == 1);
        CHECK(launches_of(patterns_fp8_b_linear_bias_add_kernels()->skinny_fp8.kernel, skinny.ctx, forward) == 1);
    }
    {
        under_recipe batch(patterns_fp8_subject, 1, 37, 1);
        micro_batch b(batch, patterns_fp8_saved_bytes(37));
        b.forward(batch);
        const auto forward = [&] { return batch.m.s.forward(batch.y_of(b.y), &b.saved, batch.x_of(b.x), batch.m.memory.data(), &batch.batch, batch.ctx); };
        CHECK(launches_of(patterns_fp8_a_linear_bias_gelu_kernels()->small_m_fp8.kernel, batch.ctx, forward) == 1);
        CHECK(launches_of(patterns_fp8_b_linear_bias_add_kernels()->small_m_fp8.kernel, batch.ctx, forward) == 1);
    }
    under_recipe u(patterns_fp8_subject, 1, 300, 1);
    micro_batch b(u, patterns_fp8_saved_bytes(300));
    for (int step = 0; step < 2; step++) {
        const auto forward = [&] { return u.m.s.forward(u.y_of(b.y), &b.saved, u.x_of(b.x), u.m.memory.data(), &u.batch, u.ctx); };
        const auto backward = [&] { return u.m.s.backward(u.x_of(b.dx), u.y_of(b.dy), &b.saved, u.m.memory.data(), &u.batch, u.ctx); };
        b.forward(u);
        CHECK(launches_of(patterns_fp8_a_linear_bias_gelu_kernels()->persistent_fp8.kernel, u.ctx, forward) == 1);
        CHECK(launches_of(patterns_fp8_b_linear_bias_add_kernels()->persistent_fp8.kernel, u.ctx, forward) == 1);
        CHECK(launches_of(patterns_fp8_b_linear_gelu_bias_backward_kernels()->persistent_fp8.kernel, u.ctx, backward) == 1);
        // First step, then later ones: x of a needs an amax kernel and a cast, then only the cast. For x of b the gelu kernel runs a second time once
        // the scale is known, then not. dy needs an amax kernel and two casts, then one cast. Backward casts x of a once more and recomputes the gelu.
        CHECK(launches_of((const void *)patterns_fp8_quantize_of, u.ctx, forward) == (step ? 1 : 2));
        CHECK(launches_of((const void *)patterns_fp8_a_linear_bias_gelu_row, u.ctx, forward) == (step ? 0 : 1));
        CHECK(launches_of((const void *)patterns_fp8_quantize_of, u.ctx, backward) == (step ? 1 : 3) + 1);
        CHECK(launches_of((const void *)patterns_fp8_a_linear_bias_gelu_tiles, u.ctx, backward) == 1);
        CHECK(launches_of((const void *)patterns_fp8_turn_kernel, u.ctx, backward) == 0);
        b.backward(u);
        REQUIRE(te_recipes_step(&u.state, u.ctx) == TE_OK);
        // One launch finds the amax of all weights and another one casts them, once in an optimizer step and not in a pass.
        const auto next = [&] { return te_recipes_step(&u.state, u.ctx); };
        for (const int pass : {0, 1}) CHECK(launches_of((const void *)patterns_fp8_quantize_multi_tensor, u.ctx, [&] { return pass ? backward() : forward(); }) == 0);
        CHECK(launches_of((const void *)patterns_fp8_quantize_multi_tensor, u.ctx, next) == 2);
    }
}
namespace {
// Random -1, 0 and 1, whose products are exact in FP8.
reference::vec signs(size_t n, unsigned seed) {
    std::mt19937 bits(seed);
    reference::vec v(n);
    for (double &e : v) e = (double)(bits() % 3) - 1;
    return v;
}
// The results of three steps of a list with a gated op, whose second weight is the identity: y, the pre-activation, scale and amax of the
// gated op's output, and y of inference.
std::vector<std::vector<uint8_t>> gated_steps(const subject &list, int rows, int custom, unsigned seed) {
    under_recipe u(list, 1, rows, seed);
    u.ctx->gemm_custom = custom;
    u.workspace.reset(new buffer(u.ctx, list.workspace_bytes(u.m.memory.data(), rows, u.ctx)));
    u.ctx->workspace = u.workspace->data(), u.ctx->workspace_bytes = u.workspace->bytes;
    const te_dtype dtype = u.plan->dtype;
    const auto set = [&](int i, const reference::vec &v) {
        u.m.params.write(v, dtype, (size_t)((char *)u.m.model()->param[i].data - (char *)u.m.params.data()) / te_dtype_bytes(dtype));
    };
    const int last = u.m.model()->param_count - 1;
    const size_t half = (size_t)u.m.model()->param[last].cols;
    reference::vec one(half * half, 0);
    for (size_t i = 0; i < half; i++) one[i * half + i] = 1;
    reference::vec weights = signs(u.m.elements(0), seed);
    for (double &e : weights) e *= 0.0625;
    set(0, weights), set(last, one);
    if (last == 2) set(1, signs(2 * half, seed + 1));
    micro_batch b(u, list.saved_bytes(rows));
    b.x.write(signs(u.rows * (size_t)u.plan->in, seed + 2), dtype);
    std::vector<std::vector<uint8_t>> all;
    const te_fp8_product *const f = &u.m.model()->param[last].fp8;
    for (int step = 0; step < 3; step++) {
        REQUIRE(te_recipes_step(&u.state, u.ctx) == TE_OK); // casts the current weights
        b.forward(u);
        all.push_back(b.y.raw());
        te_run r = te__run_to_size(u.plan, TE_FORWARD, rows, TE_USE_on, u.ctx);
        te__take_params(&r, u.m.model());
        te__set_recipe_use(&r, TE_USE_as_bound);
        (void)te__lay_out(&r, (char *)b.memory.data());
        std::vector<uint8_t> activation(u.rows * 2 * half * 2), scales(8);
        REQUIRE(te_copy(u.ctx, activation.data(), r.act[last == 2], activation.size()) == TE_OK);
        REQUIRE(te_copy(u.ctx, scales.data(), u.state.scales.scale + f->x, 4) == TE_OK);
        REQUIRE(te_copy(u.ctx, scales.data() + 4, u.state.scales.amax + f->x, 4) == TE_OK);
        REQUIRE(te_synchronize(u.ctx) == TE_OK);
        all.push_back(activation), all.push_back(scales);
        b.y.poison();
        REQUIRE(list.infer(u.y_of(b.y), u.x_of(b.x), u.m.memory.data(), &u.batch, u.ctx) == TE_OK);
        all.push_back(b.y.raw());
    }
    CHECK(b.memory.raw().size() == b.memory.bytes); // raw() checks the guards
    CHECK(u.workspace->raw().size() == u.workspace->bytes);
    return all;
}
} // namespace
TEST_CASE("a pattern of an FP8 GEMM and a gated op is one kernel in inference, with the bits of two", "[gemm_fp8]") {
    for (const subject *list : {&gated_fp8_subject, &gated_f16_fp8_subject, &gated_current_fp8_subject, &gated_16_fp8_subject})
        for (const int rows : {130, 300}) {
            const unsigned seed = fresh_seed();
            CAPTURE(list->text, rows, seed);
            const auto one = gated_steps(*list, rows, 2, seed), two = gated_steps(*list, rows, 0, seed);
            REQUIRE(one.size() == two.size());
            for (size_t i = 0; i < one.size(); i++) {
                CAPTURE(i);
                CHECK(one[i] == two[i]);
            }
        }
    CHECK(!gated_16_fp8_a_linear_swiglu_kernels()->persistent.kernel); // the pointwise kernel that stores FP8 stays separate
    if (brief()) return;
    const custom_gemms on;
    under_recipe u(gated_fp8_subject, 1, 300, 1);
    if (u.ctx->capability != 900) return;
    micro_batch b(u, gated_fp8_saved_bytes(300));
    for (int step = 0; step < 2; step++) {
        const auto infer = [&] { return gated_fp8_subject.infer(u.y_of(b.y), u.x_of(b.x), u.m.memory.data(), &u.batch, u.ctx); };
        const auto forward = [&] { return u.m.s.forward(u.y_of(b.y), &b.saved, u.x_of(b.x), u.m.memory.data(), &u.batch, u.ctx); };
        b.forward(u);
        REQUIRE(infer() == TE_OK);
        CHECK(launches_of(gated_fp8_a_linear_swiglu_kernels()->persistent_fp8.kernel, u.ctx, infer) == 1);
        // in training two kernels are faster
        CHECK(launches_of(gated_fp8_a_linear_swiglu_kernels()->persistent_fp8.kernel, u.ctx, forward) == 0);
        REQUIRE(te_recipes_step(&u.state, u.ctx) == TE_OK);
    }
}
TEST_CASE("large FP8 patterns are fused into one kernel by default", "[gemm_fp8]") {
    context ctx_owner;
    if (ctx_owner.c.capability != 900) return;
    const product p = {16384, 16384, 4096, TE_e4m3, TE_e4m3, TE_bf16, TE_bf16, 1, 0, 0};
    te_gemm g = operands::shape_of(p);
    CHECK(te__gemm_is_fused(patterns_fp8_b_linear_bias_add_kernels(), &g, &ctx_owner.c) == 1);
    CHECK(te__gemm_is_fused(patterns_fp8_a_linear_bias_gelu_kernels(), &g, &ctx_owner.c) == 1);
    CHECK(te__gemm_is_fused(patterns_fp8_b_linear_gelu_bias_backward_kernels(), &g, &ctx_owner.c) == 1);
    g.m = 1024; // only two tiles for each block
    CHECK(te__gemm_is_fused(patterns_fp8_a_linear_bias_gelu_kernels(), &g, &ctx_owner.c) == 0);
    g.m = 4, g.a_fp8.scaling = g.b_fp8.scaling = TE_SCALING_NONE; // without scales there is no FP8 kernel
    CHECK(te__gemm_is_fused(patterns_fp8_b_linear_bias_add_kernels(), &g, &ctx_owner.c) == 0);
}
TEST_CASE("autotuning times the strategies of a pattern that begins with an FP8 GEMM, and a tuning file restores the choice", "[gemm_fp8]") {
    char path[] = "/tmp/te_gemm_fp8_XXXXXX";
    const int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    close(fd);
    std::vector<uint8_t> y;
    const int rows = 37; // few, because the comparison in double is slow
    for (int pass = 0; pass < 2; pass++) {
        under_recipe u(patterns_fp8_subject, 1, rows, 3, 3, pass == 0);
        if (pass) {
            REQUIRE(te_gemm_load(path, u.ctx) == TE_OK);
            // the loaded strategy may need another size
            u.workspace.reset(new buffer(u.ctx, patterns_fp8_subject.workspace_bytes(u.m.memory.data(), rows, u.ctx)));
            u.ctx->workspace = u.workspace->data(), u.ctx->workspace_bytes = u.workspace->bytes;
        }
        micro_batch b(u, patterns_fp8_saved_bytes(rows));
        for (int step = 0; step < 2; step++) {
            if (pass) b.forward(u), b.backward(u); // runs the kernels that the file names
            else check_patterns(u, b, false, false); // checks the kernels that autotuning chose
            REQUIRE(te_recipes_step(&u.state, u.ctx) == TE_OK);
        }
        if (pass) CHECK(b.y.raw() == y);
        else y = b.y.raw();
        te_gemm_choice found[16];
        const int count = te_gemm_report_choices(found, 16, u.ctx);
        REQUIRE(count <= 16);
        int timed = 0, with_gelu = 0;
        for (int i = 0; i < count; i++) {
            const bool custom = found[i].ns[TE_STRATEGY_CUSTOM] > 0 && found[i].ns[TE_STRATEGY_BARE] > 0;
            timed += custom && !strcmp(found[i].pattern, "linear_bias_add:e4m3*e4m3.bf16.fast");
            with_gelu += custom && !strcmp(found[i].pattern, "linear_bias_gelu:e4m3*e4m3.bf16.fast");
        }
        if (u.ctx->capability == 900) CHECK((timed >= 1 && with_gelu >= 1));
        if (!pass) REQUIRE(te_gemm_save(path, u.ctx) == TE_OK);
    }
    std::remove(path);
}
#endif
