// blockwise_test.cc -- the recipes fp8_block and fp8_row: casts to FP8 with blockwise (1 x 128, 128 x 128) and rowwise scales, GEMMs of
// such operands, and lists with these recipes.
#include <functional>

#include "recipe.h"
#include "te/gemm/gemm.h"
#include "te/ops/activation.h"
#include "te/ops/attention.h"
#include "te/ops/elementwise.h"
#include "te/ops/dropout.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/recompute.h"
#include "te/ops/residual.h"

TE_QUANTIZE_BLOCKWISE(tiles_f32, f32)
TE_QUANTIZE_BLOCKWISE(tiles_bf16, bf16)
TE_QUANTIZE_ROWWISE(rows_f32, f32)
TE_QUANTIZE_ROWWISE(rows_bf16, bf16)
TE_GEMM_BLOCKWISE(product)

#define BLOCKWISE(D) (D, (recipe, fp8_block))
MODEL(of_f32, BLOCKWISE(f32), (linear, l, 144, 32))
MODEL(of_bf16, BLOCKWISE(bf16), (linear, l, 32, 272))
MODEL(small, BLOCKWISE(f32), (linear, l, 16, 16))
MODEL(fixed, BLOCKWISE(f32), (linear, a, 32, 48), (silu, s), (frozen_linear, l, 48, 32))

#define BY_ROW(D) (D, (recipe, fp8_row))
MODEL(row_f32, BY_ROW(f32), (linear, l, 272, 144))
MODEL(row_bf16, BY_ROW(bf16), (rmsnorm, n, 48), (linear, l, 48, 80), (gelu, g), (linear, m, 80, 48))

#define BLOCK(H)                                                                                                                 \
    (fork, x1), (layernorm, ln1, H), (linear, qkv, H, 3 * H), (bias, qkv_b, 3 * H), (attention, attn, 2, 2, H / 2),             \
        (linear, proj, H, H), (bias, proj_b, H), (dropout, drop1, 0.1f), (add, x1), (fork, x2), (rmsnorm, ln2, H),              \
        (linear, fc1, H, 4 * H), (bias, fc1_b, 4 * H), (gelu, act), (linear, fc2, 4 * H, H, (recipe, RECIPE)), (bias, fc2_b, H), (add, x2)
#define RECOMPUTED(H)                                                                                                                 \
    (fork, x1), (recompute, r1), (layernorm, ln1, H), (linear, qkv, H, 3 * H), (bias, qkv_b, 3 * H),                             \
        (attention, attn, 2, 2, H / 2), (linear, proj, H, H), (bias, proj_b, H), (dropout, drop1, 0.1f), (end_recompute, r1),   \
        (add, x1), (fork, x2), (recompute, r2), (rmsnorm, ln2, H), (linear, fc1, H, 4 * H), (bias, fc1_b, 4 * H), (gelu, act),  \
        (linear, fc2, 4 * H, H, (recipe, RECIPE)), (bias, fc2_b, H), (end_recompute, r2), (add, x2)
#define RECIPE fp8_block
MODEL(blockwise, BLOCKWISE(bf16), BLOCK(64))
UNFUSED(unfused, BLOCKWISE(bf16), BLOCK(64)) // unfused, because recompute regions would split patterns
UNFUSED(recomputed, BLOCKWISE(bf16), RECOMPUTED(64))
#undef RECIPE
#define RECIPE fp8_delayed // one GEMM with tensorwise scales among blockwise ones
MODEL(mixed, BLOCKWISE(bf16), BLOCK(64))

namespace {

// ---- the expected result of a cast ---------------------------------------------------------------------------------------

struct tile_rule { double epsilon = 0; bool power_of_two = false; };

// The expected scale for an amax; 1 if the amax is 0 or infinite.
float scale_of(double amax, te_dtype to, tile_rule rule) {
    if (!(amax > 0) || std::isinf(amax)) return 1;
    const double a = std::max(amax, (double)(float)rule.epsilon);
    float s = (to == TE_e4m3 ? 448.0f : 57344.0f) / (float)a;
    s = std::min(std::max(s, std::ldexp(1.0f, -126)), std::ldexp(1.0f, 126));
    return rule.power_of_two ? std::ldexp(1.0f, std::ilogb(s)) : s;
}
// The expected cast of a matrix [rows, cols] whose cols are the GEMM's k: the bytes, and 1 / scale of each element, for 1 x 128 or (blocks) 128 x 128.
struct cast {
    std::vector<uint8_t> byte;
    std::vector<float> inverse; // 1 / scale, one for each element
    cast(const std::vector<float> &x, size_t rows, size_t cols, bool blocks, te_dtype to, tile_rule rule) : byte(x.size()), inverse(x.size()) {
        const size_t high = blocks ? 128 : 1;
        for (size_t i0 = 0; i0 < rows; i0 += high)
            for (size_t j0 = 0; j0 < cols; j0 += 128) {
                const size_t i1 = std::min(rows, i0 + high), j1 = std::min(cols, j0 + 128);
                double largest = 0;
                bool number = true;
                for (size_t i = i0; i < i1; i++)
                    for (size_t j = j0; j < j1; j++) {
                        const double v = std::fabs((double)x[i * cols + j]);
                        number = number && !std::isnan(v), largest = std::max(largest, std::isnan(v) ? 0 : v);
                    }
                const float s = number ? scale_of(largest, to, rule) : 1;
                for (size_t i = i0; i < i1; i++)
                    for (size_t j = j0; j < j1; j++)
                        byte[i * cols + j] = te_fp8_of_float(std::isinf(x[i * cols + j]) ? NAN : x[i * cols + j] * s, to), inverse[i * cols + j] = 1 / s;
            }
    }
    double value(size_t i, te_dtype t) const { return (double)te_float_of_fp8(byte[i], t) * (double)inverse[i]; }
};
// The expected index of the scale of element (i, j).
size_t scale_index(size_t rows, size_t cols, size_t i, size_t j, bool blocks) {
    const size_t across = (cols + 127) / 128, fours = rows / 4 * 4;
    if (blocks) return i / 128 * ((across + 3) / 4 * 4) + j / 128;
    return i < fours ? j / 128 * fours + i : across * fours + j / 128 * (rows - fours) + i - fours;
}
std::vector<float> transpose(const std::vector<float> &x, size_t rows, size_t cols) {
    std::vector<float> t(x.size());
    for (size_t i = 0; i < x.size(); i++) t[i % cols * rows + i / cols] = x[i];
    return t;
}
std::vector<float> floats_of(const buffer &b) {
    const std::vector<uint8_t> raw = b.raw();
    std::vector<float> v(raw.size() / 4);
    memcpy(v.data(), raw.data(), v.size() * 4);
    return v;
}

// Numbers of all sizes, with tiles of zeros and, unless `finite`, infinities and NaNs.
std::vector<float> drawn(size_t rows, size_t cols, unsigned seed, bool finite, te_dtype t) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> x(rows * cols);
    for (size_t i = 0; i < x.size(); i++) {
        const size_t tile = i / cols * ((cols + 127) / 128) + i % cols / 128;
        float v = normal(random) * std::ldexp(1.0f, (int)(random() % 24) - 16 + (int)(tile % 5) * 10);
        if (random() % 64 == 0) v = random() % 2 ? 0.0f : 1e-41f;
        if (tile % 11 == 3) v = -0.0f;
        if (!finite && random() % 300 == 0) v = random() % 2 ? INFINITY : -NAN;
        x[i] = te_round_to(v, t);
    }
    return x;
}

void check_cast(size_t rows, size_t cols, te_dtype from, te_dtype to, bool blocks, bool finite = true, tile_rule rule = tile_rule()) {
    const unsigned seed = fresh_seed();
    INFO(rows << " x " << cols << " of " << te_dtype_name(from) << " to " << te_dtype_name(to) << (blocks ? ", blocks" : ", tiles") << ", TE_SEED=" << seed);
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    const std::vector<float> x = drawn(rows, cols, seed, finite, from);
    const size_t padded = (rows + 15) / 16 * 16, L = (cols + 127) / 128, D = (rows + 127) / 128;
    const size_t scales = blocks ? D * ((L + 3) / 4 * 4) : L * rows, transposed_scales = blocks ? L * ((D + 3) / 4 * 4) : D * cols;
    buffer bx(ctx, rows * cols * te_dtype_bytes(from)), y(ctx, rows * cols), yt(ctx, cols * padded), s(ctx, scales * 4), st(ctx, transposed_scales * 4);
    bx.write(reference::vec(x.begin(), x.end()), from);
    te_quantize_blockwise q = te__quantize_blockwise_of((int64_t)rows, (int64_t)cols);
    CHECK(te_scaling_count(blocks ? TE_SCALING_BLOCKWISE_2D : TE_SCALING_BLOCKWISE_1D, q.rows, q.cols) == (int64_t)scales);
    q.x = bx.data(), q.y = y.data(), q.yt = yt.data(), q.y_inverse = (float *)s.data(), q.yt_inverse = (float *)st.data();
    q.to = to, q.square_blocks = blocks, q.yt_cols = (int64_t)padded, q.rule.epsilon = (float)rule.epsilon, q.rule.power_of_two = rule.power_of_two;
    const auto run = [&] { return from == TE_f32 ? tiles_f32_run(&q, ctx) : tiles_bf16_run(&q, ctx); };
    REQUIRE(run() == TE_OK);
    const cast row(x, rows, cols, blocks, to, rule), col(transpose(x, rows, cols), cols, rows, blocks, to, rule);
    const std::vector<uint8_t> gave = y.raw(), transposed = yt.raw();
    const std::vector<float> inverse = floats_of(s), transposed_inverse = floats_of(st);
    size_t wrong = 0, wrong_transposed = 0, wrong_scales = 0, padding = 0, none = 0;
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) {
            wrong += gave[i * cols + j] != row.byte[i * cols + j];
            wrong_transposed += transposed[j * padded + i] != col.byte[j * rows + i];
            wrong_scales += inverse[scale_index(rows, cols, i, j, blocks)] != row.inverse[i * cols + j];
            wrong_scales += transposed_inverse[scale_index(cols, padded, j, i, blocks)] != col.inverse[j * rows + i];
        }
    for (size_t j = 0; j < cols; j++)
        for (size_t i = rows; i < padded; i++) padding += transposed[j * padded + i] != 0;
    for (const float v : inverse) none += std::isnan(v);
    for (const float v : transposed_inverse) none += std::isnan(v);
    CHECK(wrong == 0);
    CHECK(wrong_transposed == 0);
    CHECK(wrong_scales == 0);
    CHECK(padding == 0);
    CHECK(none == 0);
    y.poison(), yt.poison(), s.poison(), st.poison(); // each output alone
    q.yt = nullptr;
    REQUIRE(run() == TE_OK);
    CHECK((y.raw() == gave && floats_of(s) == inverse && yt.poisoned() && st.poisoned()));
    y.poison(), s.poison();
    q.y = nullptr, q.yt = yt.data();
    REQUIRE(run() == TE_OK);
    CHECK((yt.raw() == transposed && floats_of(st) == transposed_inverse && y.poisoned() && s.poisoned()));
}

} // namespace

TEST_CASE("a cast with blockwise scales, row-wise and transposed", "[blockwise]") {
    const size_t sizes[][2] = {{1, 16}, {3, 128}, {128, 144}, {129, 560}, {520, 32}};
    for (const auto &s : sizes)
        for (const bool blocks : {false, true}) {
            check_cast(s[0], s[1], TE_f32, TE_e4m3, blocks);
            check_cast(s[0], s[1], TE_bf16, TE_e4m3, blocks);
            check_cast(s[0], s[1], TE_bf16, TE_e5m2, blocks, false);
            check_cast(s[0], s[1], TE_f32, TE_e4m3, blocks, false, {1e-3, true});
        }
}

TEST_CASE("a cast with rowwise scales", "[blockwise]") {
    const size_t sizes[][2] = {{1, 16}, {3, 128}, {130, 272}, {2, 9232}};
    for (const auto &s : sizes)
        for (int kind = 0; kind < 4; kind++) {
            const te_dtype from = kind % 2 ? TE_bf16 : TE_f32, to = kind == 3 ? TE_e5m2 : TE_e4m3;
            const tile_rule rule = kind == 2 ? tile_rule{1e-3, true} : tile_rule{};
            const size_t rows = s[0], cols = s[1];
            const unsigned seed = fresh_seed();
            CAPTURE(rows, cols, kind, seed);
            context ctx_owner;
            const std::vector<float> x = drawn(rows, cols, seed, kind < 2, from);
            buffer bx(&ctx_owner.c, x.size() * te_dtype_bytes(from)), y(&ctx_owner.c, x.size()), inverse(&ctx_owner.c, rows * 4);
            bx.write(reference::vec(x.begin(), x.end()), from);
            te_quantize_rowwise q = te__quantize_rowwise_of((int64_t)rows, (int64_t)cols);
            q.x = bx.data(), q.y = y.data(), q.inverse = (float *)inverse.data(), q.to = to;
            q.rule.epsilon = (float)rule.epsilon, q.rule.power_of_two = rule.power_of_two;
            REQUIRE((from == TE_f32 ? rows_f32_run : rows_bf16_run)(&q, &ctx_owner.c) == TE_OK);
            const std::vector<uint8_t> gave = y.raw();
            const std::vector<float> scales = floats_of(inverse);
            size_t wrong = 0, wrong_scales = 0;
            for (size_t i = 0; i < rows; i++) {
                double largest = 0;
                bool number = true;
                for (size_t j = 0; j < cols; j++) number = number && !std::isnan(x[i * cols + j]), largest = std::max(largest, std::fabs((double)x[i * cols + j]));
                const float scale = number ? scale_of(largest, to, rule) : 1;
                for (size_t j = 0; j < cols; j++) wrong += gave[i * cols + j] != te_fp8_of_float(std::isinf(x[i * cols + j]) ? NAN : x[i * cols + j] * scale, to);
                wrong_scales += scales[i] != 1 / scale;
            }
            CHECK(wrong == 0);
            CHECK(wrong_scales == 0);
        }
}

// ---- GEMMs ---------------------------------------------------------------------------------------------------------------

namespace {
struct operand {
    std::vector<double> value;
    std::unique_ptr<buffer> bytes, scales;
    operand(te_context *ctx, size_t rows, size_t cols, te_scaling scaling, unsigned seed) : value(rows * cols) {
        const std::vector<float> x = drawn(rows, cols, seed, true, TE_f32);
        const size_t n = (size_t)te_scaling_count(scaling, (int64_t)rows, (int64_t)cols);
        const cast c(x, rows, cols, scaling == TE_SCALING_BLOCKWISE_2D, TE_e4m3, {});
        std::vector<float> scale(n, TE_CUDA ? 1.0f : NAN); // scales that belong to no element: the host must not read them, cuBLASLt may
        std::vector<uint8_t> byte = c.byte;
        for (size_t i = 0; i < rows * cols; i++) {
            if (scaling == TE_SCALING_ROWWISE) { // the scale of the first tile of each row, for the whole row
                const float s = 1 / c.inverse[i / cols * cols];
                byte[i] = te_fp8_of_float(x[i] * s, TE_e4m3), scale[i / cols] = 1 / s, value[i] = (double)te_float_of_fp8(byte[i], TE_e4m3) / (double)s;
            } else scale[scale_index(rows, cols, i / cols, i % cols, scaling == TE_SCALING_BLOCKWISE_2D)] = c.inverse[i], value[i] = c.value(i, TE_e4m3);
        }
        bytes.reset(new buffer(ctx, byte.size())), scales.reset(new buffer(ctx, n * 4));
        REQUIRE(te_copy(ctx, bytes->data(), byte.data(), byte.size()) == TE_OK);
        REQUIRE(te_copy(ctx, scales->data(), scale.data(), n * 4) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
    }
    te_gemm_fp8 as(te_scaling s) const { te_gemm_fp8 o; return o.scaling = s, o.dtype = TE_e4m3, o.inverse = (const float *)scales->data(), o; }
};
void check_scaled(size_t m, size_t n, size_t k, te_scaling of_a, te_scaling of_b, te_dtype out, bool adds, int custom_kernels = 1, bool biased = false) {
    const unsigned seed = fresh_seed();
    INFO(m << " x " << n << " x " << k << ", " << te_scaling_name(of_a) << " by " << te_scaling_name(of_b) << ", TE_SEED=" << seed);
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    ctx->gemm_custom = custom_kernels;
    const float alpha = out == TE_f16 ? 0x1p-14f : 0.5f;
    source random(seed);
    const operand a(ctx, m, k, of_a, seed + 1), b(ctx, n, k, of_b, seed + 2);
    buffer d(ctx, m * n * te_dtype_bytes(out)), c(ctx, d.bytes);
    const reference::vec before = random.draw(m * n, out);
    c.write(before, out);
    const reference::vec bias = biased ? random.draw(n, out) : reference::vec(n, 0.0);
    buffer bias_memory(ctx, n * te_dtype_bytes(out));
    bias_memory.write(bias, out);
    te_gemm g = te_gemm_of((int64_t)m, (int64_t)n, (int64_t)k);
    g.a = a.bytes->data(), g.b = b.bytes->data(), g.c = c.data(), g.d = d.data(), g.trans_b = 1, g.dtype = out, g.out = out;
    g.a_fp8 = a.as(of_a), g.b_fp8 = b.as(of_b), g.alpha = alpha, g.beta = adds ? 2.0f : 0.0f;
    if (biased) g.epilogue = TE_EPILOGUE_BIAS, g.bias = bias_memory.data();
    if (biased) CHECK(product_takes_bias(&g, ctx));
    REQUIRE((of_a == TE_SCALING_BLOCKWISE_1D ? product_run(&g, ctx) : te_gemm_run(&g, ctx)) == TE_OK);
    const reference::vec gave = d.read(out);
    const double rounding = out == TE_f32 ? 1e-6 : std::ldexp(1, -8);
    // the part of k with one scale; its sum by the tensor cores is scaled and added in f32
    const size_t run = of_a == TE_SCALING_BLOCKWISE_1D ? 128 : k;
    double worst = 0;
    for (size_t i = 0; i < m * n; i++) {
        double sum = 0, off = 0;
        for (size_t l = 0; l < k; l += run) {
            const bounds::fp8_sum part(&a.value[i / n * k + l], 1, &b.value[i % n * k + l], 1, std::min(run, k - l), false, TE_CUDA);
            sum += part.sum, off += part.error + 1e-6 * std::fabs(part.sum);
        }
        // half of a subnormal step
        const double should = alpha * sum + (adds ? 2 * before[i] : 0) + bias[i % n], least = out == TE_f16 ? std::ldexp(1, -24) : 1e-30;
        // larger values overflow to infinity, and so may values that exceed it by their error
        const double end = out == TE_f16 ? 65504 : INFINITY;
        const double difference = std::fabs(std::min(std::max(gave[i], -end), end) - std::min(std::max(should, -end), end));
        const double e = std::isnan(gave[i]) ? INFINITY : difference / (rounding * (std::fabs(should) + (adds ? 2 * std::fabs(before[i]) : 0) + std::fabs(bias[i % n])) + alpha * off + least);
        worst = e <= worst ? worst : e;
    }
    CHECK(worst <= 1);
}
} // namespace

TEST_CASE("GEMMs with blockwise and rowwise scales match the products of their operands in double", "[blockwise]") {
    const te_scaling pairs[][2] = {{TE_SCALING_BLOCKWISE_1D, TE_SCALING_BLOCKWISE_2D}, {TE_SCALING_BLOCKWISE_1D, TE_SCALING_BLOCKWISE_1D}, {TE_SCALING_ROWWISE, TE_SCALING_ROWWISE}};
    const size_t sizes[][3] = {{1, 16, 16}, {3, 48, 144}, {4, 16, 128}, {66, 144, 144}, {131, 16, 272}};
    for (const auto &p : pairs)
        for (const auto &s : sizes)
            for (const te_dtype out : {TE_f32, TE_bf16, TE_f16}) check_scaled(s[0], s[1], s[2], p[0], p[1], out, s[0] % 2 == 0 || out == TE_f32);
}

TEST_CASE("the bias of a blockwise-scaled GEMM", "[blockwise]") {
    context ctx_owner;
    alignas(TE_ACCESS) static char memory[256];
    te_gemm g = te_gemm_of(0, 16, 128);
    g.a = g.b = memory, g.d = memory, g.bias = memory, g.trans_b = 1, g.dtype = g.out = TE_bf16, g.epilogue = TE_EPILOGUE_BIAS;
    g.a_fp8.dtype = g.b_fp8.dtype = TE_e4m3, g.a_fp8.inverse = g.b_fp8.inverse = (const float *)memory;
    g.a_fp8.scaling = TE_SCALING_BLOCKWISE_1D, g.b_fp8.scaling = TE_SCALING_BLOCKWISE_1D;
    CHECK(product_run(&g, &ctx_owner.c) == TE_ERROR_VALUE); // not for the gradient of a weight
    CHECK_THAT(ctx_owner.c.error, Catch::Contains("takes no epilogue bias"));
    g.a_fp8.scaling = g.b_fp8.scaling = TE_SCALING_ROWWISE;
    CHECK(te_gemm_run(&g, &ctx_owner.c) == TE_ERROR_VALUE);
    g.a_fp8.scaling = TE_SCALING_BLOCKWISE_1D, g.b_fp8.scaling = TE_SCALING_BLOCKWISE_2D;
    CHECK(te_gemm_run(&g, &ctx_owner.c) == TE_ERROR_VALUE); // only custom kernels add a bias
    CHECK_THAT(ctx_owner.c.error, Catch::Contains(TE_CUDA ? "takes no bias" : "epilogue bias on the host"));
}

#if TE_CUDA && !defined(TE_KEEP_CALLS)
TEST_CASE("blockwise-scaled GEMMs by custom kernels", "[blockwise]") {
    const size_t sizes[][3] = {{4, 16, 512}, {131, 272, 784}, {260, 528, 1040}, {514, 144, 1552}, {256, 1040, 4096}};
    const auto has = [](size_t m, size_t n, size_t k, te_scaling of_b, te_dtype out) {
        context ctx_owner;
        te_gemm g = te_gemm_of((int64_t)m / 4 * 4, (int64_t)n, (int64_t)k);
        g.trans_b = 1, g.dtype = TE_bf16, g.out = out, g.a_fp8.dtype = g.b_fp8.dtype = TE_e4m3;
        g.a_fp8.scaling = TE_SCALING_BLOCKWISE_1D, g.b_fp8.scaling = of_b;
        return te__sm90_blockwise_available(&g, &ctx_owner.c);
    };
    for (const auto &s : sizes) {
        CHECK(has(s[0], s[1], s[2], TE_SCALING_BLOCKWISE_2D, TE_bf16));
        for (const te_dtype out : {TE_bf16, TE_f16})
            for (const bool biased : {false, true}) check_scaled(s[0], s[1], s[2], TE_SCALING_BLOCKWISE_1D, TE_SCALING_BLOCKWISE_2D, out, false, 2, biased);
        CHECK(has(s[0], s[1], s[2], TE_SCALING_BLOCKWISE_1D, TE_f32)); // the gradient of a weight
        check_scaled(s[0], s[1], s[2], TE_SCALING_BLOCKWISE_1D, TE_SCALING_BLOCKWISE_1D, TE_f32, false, 2);
    }
    CHECK(!has(128, 128, 496, TE_SCALING_BLOCKWISE_2D, TE_bf16));
    CHECK(!has(128, 128, 512, TE_SCALING_BLOCKWISE_2D, TE_f32));
    CHECK(!has(128, 128, 512, TE_SCALING_BLOCKWISE_1D, TE_bf16));
}
#endif

TEST_CASE("GEMMs with different scaling are different entries of a tuning file", "[blockwise]") {
    const te_scaling pairs[][2] = {{TE_SCALING_TENSORWISE, TE_SCALING_TENSORWISE}, {TE_SCALING_ROWWISE, TE_SCALING_ROWWISE}, {TE_SCALING_BLOCKWISE_1D, TE_SCALING_BLOCKWISE_2D}, {TE_SCALING_BLOCKWISE_1D, TE_SCALING_BLOCKWISE_1D}};
    static te__tune_reader reader;
    std::vector<std::string> texts;
    for (const auto &p : pairs) {
        te_gemm g = te_gemm_of(16, 16, 128);
        g.trans_b = 1, g.dtype = g.out = TE_bf16, g.a_fp8.scaling = p[0], g.b_fp8.scaling = p[1], g.a_fp8.dtype = g.b_fp8.dtype = TE_e4m3;
        const te_gemm_tuned t = te__gemm_tuned_of(&g);
        te__operands_text text = te__operands_text_of(&t);
        te_gemm_tuned back = t;
        back.a_scaling = back.b_scaling = TE_SCALING_NONE, back.a = back.b = back.dtype = TE_f32;
        reader.word[0] = text.text;
        REQUIRE(te__tune_operands(&back, &reader, 0) == TE_OK);
        CHECK(te__gemm_same_product(&t, &back));
        for (const std::string &other : texts) CHECK(other != text.text);
        texts.push_back(text.text);
    }
    CHECK(texts[2] == "e4m3*e4m3.bf16.1x128*128x128");
}

// ---- lists ---------------------------------------------------------------------------------------------------------------

namespace {
const double rounding = std::ldexp(1, -4) / std::sqrt(3); // the largest RMS error of rounding an operand to 3 fraction bits, relative
std::vector<float> floats(const reference::vec &v) { return std::vector<float>(v.begin(), v.end()); }

void check_linear(const subject &s, int rows, tile_rule rule) {
    const unsigned seed = fresh_seed();
    CAPTURE(s.plan()->name, rows, seed);
    te_recipes_config config = te_recipes_defaults();
    config.history = 1, config.epsilon = (float)rule.epsilon, config.power_of_two = rule.power_of_two;
    under_recipe u(s, 1, rows, seed, config);
    const te_dtype d = u.plan->dtype;
    const size_t in = (size_t)u.plan->in, out = (size_t)u.plan->out, m = (size_t)rows;
    const double lost = TE_CUDA ? std::ldexp(1, -11) : 1e-6 * std::sqrt((double)std::max(in, std::max(out, m)));
    const cast w(floats(u.m.param[0]), out, in, true, TE_e4m3, rule);
    micro_batch b(u, s.saved_bytes(rows), 3);
    const std::vector<float> x = floats(b.x.read(d)), dy = floats(b.dy.read(d));
    const cast of_x(x, m, in, false, TE_e4m3, rule), of_dy(dy, m, out, false, TE_e4m3, rule);
    const cast of_xt(transpose(x, m, in), in, m, false, TE_e4m3, rule), of_dyt(transpose(dy, m, out), out, m, false, TE_e4m3, rule);
    const auto at = [](const cast &c, size_t cols) { return [&c, cols](size_t i, size_t j) { return c.value(i * cols + j, TE_e4m3); }; };
    const auto across = [](const cast &c, size_t cols) { return [&c, cols](size_t i, size_t j) { return c.value(j * cols + i, TE_e4m3); }; };
    b.forward(u);
    b.backward(u);
    check_product("y", b.y.read(d), m, out, in, at(of_x, in), at(w, in), d, lost);
    check_product("dx", b.dx.read(d), m, in, out, at(of_dy, out), across(w, in), d, lost);
    check_product("dweight", u.m.grads.read(TE_f32), out, in, m, at(of_dyt, m), at(of_xt, m), TE_f32, lost);
    buffer inferred(u.ctx, u.y_bytes());
    REQUIRE(s.infer(u.y_of(inferred), u.x_of(b.x), u.m.memory.data(), &u.batch, u.ctx) == TE_OK);
    CHECK(bool(inferred.raw() == b.y.raw()));
    const reference::vec once = u.m.grads.read(TE_f32);
    u.batch.accumulate = 1;
    b.forward(u);
    b.backward(u);
    const reference::vec twice = u.m.grads.read(TE_f32);
    double off = 0;
    for (size_t i = 0; i < once.size(); i++) off = std::max(off, std::fabs(twice[i] - 2 * once[i]) / (std::fabs(once[i]) + 1e-30));
    CHECK(off < 1e-6);
    REQUIRE(te_recipes_step(&u.state, u.ctx) == TE_OK);
    CHECK(u.memory->raw().size() == u.memory->bytes); // raw() checks its guard
        CHECK(u.workspace->raw().size() == u.workspace->bytes);
    }
    } // namespace

TEST_CASE("a linear with fp8_block matches the products of its quantised operands in double", "[blockwise]") {
    for (const int rows : {1, 131}) check_linear(of_f32_subject, rows, {}), check_linear(of_bf16_subject, rows, {});
    check_linear(small_subject, 20, {1e-2, true});
}

TEST_CASE("a transformer block with fp8_block is close to the same block without, and saves less", "[blockwise]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    for (const subject *s : {&blockwise_subject, &recomputed_subject, &mixed_subject}) {
        under_recipe u(*s, 2, 21, seed);
        CAPTURE(u.plan->name);
        micro_batch b(u, without(u)), exact(u, s->saved_bytes(42));
        const results fp8 = run_plain(u, b);
        REQUIRE(te_recipes_switch(&u.state, 0, u.ctx) == TE_OK);
        set_rng(u.ctx, 5, 0);
        const results list = run_plain(u, b);
        CHECK(distance(fp8.y, list.y) < rounding * std::sqrt(8)); // x passes through four GEMMs of two operands each
        CHECK(distance(fp8.dx, list.dx) < rounding * std::sqrt(16));
        CHECK(distance(fp8.grads, list.grads) < rounding * std::sqrt(16));
        CHECK(distance(fp8.y, list.y) > 1e-3);
        REQUIRE(te_recipes_switch(&u.state, 1, u.ctx) == TE_OK);
        set_rng(u.ctx, 5, 0);
        const results back = run_plain(u, b);
        CHECK((back.y == fp8.y && back.dx == fp8.dx && back.grads == fp8.grads));
        exact.forward(u), exact.backward(u);
                CHECK(exact.memory.raw().size() == exact.memory.bytes); // raw() checks its guard
    }
    CHECK((double)te_plan_saved_bytes(blockwise_plan(), 128) < 0.62 * (double)te_plan_saved_bytes_without_recipe(blockwise_plan(), 128));
    const auto of_128_rows = [](const te_plan *p) { return te_plan_saved_bytes(p, 384) - te_plan_saved_bytes(p, 256); };
    CHECK(of_128_rows(mixed_plan()) == of_128_rows(blockwise_plan())); // no input of a GEMM is saved, with tensorwise scales neither
    CHECK(of_128_rows(unfused_plan()) == of_128_rows(blockwise_plan()));
}

TEST_CASE("recompute regions with fp8_block change no bit", "[blockwise]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    under_recipe u(unfused_subject, 2, 33, seed), v(recomputed_subject, 2, 33, seed);
    micro_batch a(u, u.m.s.saved_bytes(66)), b(v, v.m.s.saved_bytes(66));
    const results left = run_plain(u, a), right = run_plain(v, b);
    CHECK((left.y == right.y && left.dx == right.dx && left.grads == right.grads));
    CHECK(b.memory.bytes < a.memory.bytes);
}

TEST_CASE("fp8_row has rowwise scales in forward, and its backward computes in the list's dtype", "[blockwise]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    for (const int rows : {1, 37}) {
        under_recipe u(row_f32_subject, 1, rows, seed);
        const size_t in = 272, out = 144, m = (size_t)rows;
        micro_batch b(u, row_f32_saved_bytes(rows), 3);
        const auto by_row = [](const reference::vec &v, size_t cols) {
            reference::vec q(v.size());
            for (size_t i = 0; i < v.size(); i += cols) {
                double largest = 0;
                for (size_t j = i; j < i + cols; j++) largest = std::max(largest, std::fabs(v[j]));
                const float s = scale_of(largest, TE_e4m3, {});
                for (size_t j = i; j < i + cols; j++) q[j] = (double)te_float_of_e4m3(te_e4m3_of_float((float)v[j] * s)) / (double)s;
            }
            return q;
        };
        const reference::vec x = by_row(b.x.read(TE_f32), in), w = by_row(u.m.param[0], in);
        const results fp8 = run_plain(u, b);
        const double lost = TE_CUDA ? std::ldexp(1, -11) : 1e-6 * std::sqrt((double)in);
        check_product("y", fp8.y, m, out, in, [&](size_t i, size_t k) { return x[i * in + k]; }, [&](size_t j, size_t k) { return w[j * in + k]; }, TE_f32, lost);
        buffer inferred(u.ctx, u.y_bytes());
        REQUIRE(u.m.s.infer(u.y_of(inferred), u.x_of(b.x), u.m.memory.data(), &u.batch, u.ctx) == TE_OK);
        CHECK(bool(inferred.raw() == b.y.raw()));
        REQUIRE(te_recipes_step(&u.state, u.ctx) == TE_OK);
        CHECK(u.memory->raw().size() == u.memory->bytes); // raw() checks its guard
        CHECK(u.workspace->raw().size() == u.workspace->bytes);
        REQUIRE(te_recipes_switch(&u.state, 0, u.ctx) == TE_OK);
        const results list = run_plain(u, b);
        CHECK(distance(fp8.y, list.y) < rounding * std::sqrt(2));
        CHECK((fp8.dx == list.dx && fp8.grads == list.grads));
    }
    CHECK(row_bf16_saved_bytes(128) == te_plan_saved_bytes_without_recipe(row_bf16_plan(), 128));
    under_recipe u(row_bf16_subject, 2, 33, seed);
    micro_batch b(u, row_bf16_saved_bytes(66));
    const results fp8 = run_plain(u, b);
    REQUIRE(te_recipes_switch(&u.state, 0, u.ctx) == TE_OK);
    const results list = run_plain(u, b);
    CHECK(distance(fp8.y, list.y) < 2 * rounding);
    CHECK(distance(fp8.y, list.y) > 1e-3);
    CHECK(distance(fp8.dx, list.dx) < 2 * rounding);
    CHECK(distance(fp8.grads, list.grads) < 2 * rounding);
    char text[1 << 13] = {0};
    FILE *f = tmpfile();
    REQUIRE(f);
    row_bf16_print_plan(f);
    rewind(f);
    CHECK(fread(text, 1, sizeof text - 1, f) > 0);
    fclose(f);
    size_t by_rows = 0, in_fp8 = 0, stored = 0;
    for (const char *at = text; (at = strstr(at, "; stores e4m3 by rows")) != nullptr; at++) stored++;
    CHECK(stored == 4); // rmsnorm and gelu, in forward and in inference
    for (const char *at = text; (at = strstr(at, ", e4m3 by rows")) != nullptr; at++) by_rows++;
    for (const char *at = text; (at = strstr(at, " fp8 ")) != nullptr; at++) in_fp8++;
    CHECK((by_rows == 4 && in_fp8 == 4)); // two GEMMs, in forward and in inference
}

TEST_CASE("invalid shapes are refused, and nothing is written", "[blockwise]") {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    buffer free_memory(ctx, 1 << 14);
    const auto refused = [&](te_status as, const char *text, const std::function<void(te_quantize_blockwise &)> &set) {
        te_quantize_blockwise q = te__quantize_blockwise_of(16, 32);
        char *at = (char *)free_memory.data();
        q.x = at, q.y = at + 4096, q.yt = at + 5120, q.y_inverse = (float *)(void *)(at + 6144), q.yt_inverse = (float *)(void *)(at + 7168);
        set(q);
        CHECK(tiles_f32_run(&q, ctx) == as);
        CHECK_THAT(te_last_error(ctx), Catch::Contains("tiles_f32") && Catch::Contains(text));
        CHECK(free_memory.poisoned());
    };
    refused(TE_ERROR_NULL, "x, or where the scales go", [](te_quantize_blockwise &q) { q.x = nullptr; });
    refused(TE_ERROR_NULL, "where the scales go", [](te_quantize_blockwise &q) { q.y_inverse = nullptr; });
    refused(TE_ERROR_NULL, "where the scales go", [](te_quantize_blockwise &q) { q.yt_inverse = nullptr; });
    refused(TE_ERROR_SHAPE, "24 columns", [](te_quantize_blockwise &q) { q.cols = 24; });
    refused(TE_ERROR_OVERFLOW, "1073741824 elements", [](te_quantize_blockwise &q) { q.cols = 1 << 30; });
    refused(TE_ERROR_SHAPE, "-1", [](te_quantize_blockwise &q) { q.rows = -1; });
    refused(TE_ERROR_SHAPE, "rows of 15", [](te_quantize_blockwise &q) { q.yt_cols = 15; });
    refused(TE_ERROR_DTYPE, "bf16", [](te_quantize_blockwise &q) { q.to = TE_bf16; });
    refused(TE_ERROR_VALUE, "epsilon", [](te_quantize_blockwise &q) { q.rule.epsilon = NAN; });
    refused(TE_ERROR_ALIGNMENT, "16 bytes", [](te_quantize_blockwise &q) { q.yt_inverse++; });
    CHECK(tiles_f32_run(nullptr, ctx) == TE_ERROR_NULL);
    const auto of_rows = [&](te_status as, const char *text, const std::function<void(te_quantize_rowwise &)> &set) {
        te_quantize_rowwise q = te__quantize_rowwise_of(16, 32);
        char *at = (char *)free_memory.data();
        q.x = at, q.y = at + 4096, q.inverse = (float *)(void *)(at + 6144);
        set(q);
        CHECK(rows_f32_run(&q, ctx) == as);
        CHECK_THAT(te_last_error(ctx), Catch::Contains("rows_f32") && Catch::Contains(text));
        CHECK(free_memory.poisoned());
    };
    of_rows(TE_ERROR_NULL, "a pointer is null", [](te_quantize_rowwise &q) { q.inverse = nullptr; });
    of_rows(TE_ERROR_SHAPE, "16 x 24", [](te_quantize_rowwise &q) { q.cols = 24; });
    of_rows(TE_ERROR_DTYPE, "f32", [](te_quantize_rowwise &q) { q.to = TE_f32; });
    of_rows(TE_ERROR_OVERFLOW, "rows", [](te_quantize_rowwise &q) { q.rows = INT64_C(1) << 40; });
    of_rows(TE_ERROR_VALUE, "epsilon", [](te_quantize_rowwise &q) { q.rule.epsilon = -1; });
    of_rows(TE_ERROR_ALIGNMENT, "16 bytes", [](te_quantize_rowwise &q) { q.inverse++; });
    CHECK(rows_f32_run(nullptr, ctx) == TE_ERROR_NULL);
    under_recipe u(small_subject, 1, 8, 1);
    te_recipes fresh;
    te_recipes_config c = te_recipes_defaults();
    c.epsilon = -1;
    CHECK(te_recipes_init(&fresh, u.memory->data(), te_recipes_bytes(u.models, 1, &c), u.models, 1, &c, u.ctx) == TE_ERROR_VALUE);
    CHECK_THAT(te_last_error(u.ctx), Catch::Contains("recipes: a rule with an epsilon of -1"));
}

typedef std::vector<uint8_t> bytes;
// The FP8 weights of a model with their scales, read from the memory of its recipes.
std::vector<bytes> weights_of(te_model *m, const te_recipes &state, const buffer &memory) {
    const bytes all = memory.raw();
    const auto part = [&](const void *from, size_t n) {
        const auto at = all.begin() + ((const char *)from - (const char *)memory.data());
        return bytes(at, at + (long)n);
    };
    std::vector<bytes> found;
    te__recipe_iter w = te__recipe_products(&m, 1);
    while (te__recipe_next_product(&w)) {
        found.push_back(part(w.param->fp8.data, te__fp8_weight_bytes_of(w.param, w.recipe).all));
        if (TE_IS_TENSORWISE(w.recipe)) found.push_back(part(state.scales.scale + w.param->fp8.weight, sizeof(float)));
    }
    return found;
}
TEST_CASE("one pass that casts the weights of several models with all kinds of scaling has the bits of a pass for each model", "[blockwise]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    source random(seed);
    std::vector<std::unique_ptr<instance>> all;
    std::vector<te_model *> models;
    for (const subject *s : {&mixed_subject, &row_bf16_subject, &blockwise_subject, &mixed_subject, &row_f32_subject, &of_f32_subject, &of_bf16_subject, &mixed_subject}) {
        all.emplace_back(new instance(*s, ctx));
        all.back()->draw(random);
        models.push_back(all.back()->model());
    }
    te_recipes_config c = te_recipes_defaults();
    c.history = 2;
    const int count = (int)models.size();
    const size_t n = te_recipes_bytes(models.data(), count, &c);
    buffer memory(ctx, n);
    te_recipes together, alone;
    REQUIRE(te_recipes_init(&together, memory.data(), n, models.data(), count, &c, ctx) == TE_OK);
    for (auto &one : all) one->draw(random); // other weights than at te_recipes_init
    REQUIRE(te_recipes_cast_weights(&together, ctx) == TE_OK);
    std::vector<std::vector<bytes>> found;
    for (te_model *m : models) found.push_back(weights_of(m, together, memory));
    for (size_t i = 0; i < models.size(); i++) {
        buffer by_itself(ctx, te_recipes_bytes(&models[i], 1, &c));
        REQUIRE(te_recipes_init(&alone, by_itself.data(), by_itself.bytes, &models[i], 1, &c, ctx) == TE_OK);
        CAPTURE(i);
        CHECK(found[i].size() > 0);
        CHECK(bool(found[i] == weights_of(models[i], alone, by_itself)));
    }
    CHECK(te_recipes_step(&together, ctx) == TE_ERROR_STATE); // the models belong to other recipes now
}

TEST_CASE("a step of fp8_block and of fp8_row can be replayed as a graph", "[blockwise]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    check_graph(blockwise_subject, 27, seed), check_graph(row_bf16_subject, 27, seed);
}

TEST_CASE("a frozen linear with fp8_block computes only the gradient of its input", "[blockwise]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    under_recipe u(fixed_subject, 1, 50, seed);
    micro_batch b(u, std::max(fixed_saved_bytes(50), without(u)));
    const results fp8 = run_plain(u, b);
    REQUIRE(te_recipes_switch(&u.state, 0, u.ctx) == TE_OK);
    const results list = run_plain(u, b);
    CHECK(distance(fp8.y, list.y) < 2 * rounding); // two GEMMs of two operands each
    CHECK(distance(fp8.dx, list.dx) < 2 * rounding);
    CHECK(distance(fp8.grads, list.grads) < 2 * rounding);
}

TEST_CASE("the printed plan names the operands of the GEMMs of fp8_block", "[blockwise]") {
    FILE *f = tmpfile();
    REQUIRE(f);
    mixed_print_plan(f);
    std::string text(1 << 15, 0);
    rewind(f);
    text.resize(fread(&text[0], 1, text.size(), f));
    fclose(f);
    INFO(text);
    const auto count = [&](const char *what) {
        size_t n = 0;
        for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at++) n++;
        return n;
    };
    CHECK(count(", e4m3 by 1x128 and 128x128") == 9); // three of the four GEMMs, in three passes
    CHECK(count(", dweight by 1x128 and 1x128") == 3);
    CHECK(count(" fp8 ") == 12);
    CHECK(count("; stores e4m3 by 1x128") == 5); // two norms, in forward and in inference, and the gradient of gelu
    CHECK(count("; stores e4m3 by 1x128 and 128x1") == 1); // the gradient of gelu, which is also stored transposed
}
