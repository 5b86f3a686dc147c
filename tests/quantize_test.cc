// quantize_test.cc -- casts of tensors to FP8, row-wise and transposed, with their amax; scales and their update. The bytes must be those of
// the conversion of single elements (fp8_test.cc), so host and target have the same bits.
#include "harness.h"
#include "te/core/tensor_kernels.h"
#include "te/fp8/impl/cast_transpose.h"
#include "te/fp8/scales.h"

TE_QUANTIZE(of_f32, f32)
TE_QUANTIZE(of_bf16, bf16)
TE_QUANTIZE(of_f16, f16)
TE_TRANSPOSE_FP8(transpose)

namespace {

te_status quantize(te_dtype from, const te_quantize *q, te_context *ctx) {
    return (from == TE_f32 ? of_f32_run : from == TE_bf16 ? of_bf16_run : of_f16_run)(q, ctx);
}

// Numbers of all sizes, with zeros, subnormals and, unless `finite`, infinities and NaNs.
std::vector<float> odd_numbers(size_t n, unsigned seed, bool finite) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> x(n);
    for (float &v : x) {
        v = normal(random) * std::ldexp(1.0f, (int)(random() % 24) - 16);
        const unsigned kind = random() % 64;
        if (kind == 0) v = 0;
        if (kind == 1) v = -0.0f;
        if (kind == 2) v = 1e-41f;
        if (!finite && kind == 3) v = INFINITY;
        if (!finite && kind == 4) v = -NAN;
    }
    return x;
}

struct tensor {
    te_dtype from;
    std::vector<uint8_t> bytes;
    std::vector<float> value; // after rounding to `from`
    tensor(const std::vector<float> &x, te_dtype t) : from(t), bytes(x.size() * te_dtype_bytes(t)), value(x.size()) {
        for (size_t i = 0; i < x.size(); i++) te_store(bytes.data(), (int64_t)i, x[i], t), value[i] = te_load(bytes.data(), (int64_t)i, t);
    }
};
uint32_t amax_of(const std::vector<float> &x, float before) {
    uint32_t largest = te_bits_of_float(before);
    for (const float v : x) largest = std::max(largest, std::isnan(v) ? 0x7fffffffu : te_bits_of_float(std::fabs(v)));
    return largest;
}

template <class T> void put(te_context *ctx, const buffer &b, const std::vector<T> &v) {
    REQUIRE(b.bytes == v.size() * sizeof(T));
    REQUIRE(te_copy(ctx, b.data(), v.data(), b.bytes) == TE_OK);
    REQUIRE(te_synchronize(ctx) == TE_OK);
}
template <class T> std::vector<T> get(const buffer &b) {
    const std::vector<uint8_t> raw = b.raw();
    std::vector<T> v(raw.size() / sizeof(T));
    memcpy(v.data(), raw.data(), v.size() * sizeof(T));
    return v;
}

enum { Y = 1, YT = 2, AMAX = 4, SCALE = 8 };
void check(int64_t rows, int64_t cols, te_dtype from, te_dtype to, int wanted, bool finite = true) {
    const unsigned seed = fresh_seed();
    const size_t n = (size_t)(rows * cols);
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    const tensor x(odd_numbers(n, seed, finite), from);
    const float factor = 37.3f, before = 0.25f;
    buffer bx(ctx, x.bytes.size(), 16), y(ctx, n, 16), yt(ctx, n, 16), amax(ctx, 4), scale(ctx, 4);
    put(ctx, bx, x.bytes), put<float>(ctx, amax, {before}), put<float>(ctx, scale, {factor});
    te_quantize q = te__quantize_of(rows, cols);
    q.x = bx.data(), q.to = to;
    if (wanted & Y) q.y = y.data();
    if (wanted & YT) q.yt = yt.data();
    if (wanted & AMAX) q.amax = (float *)amax.data();
    if (wanted & SCALE) q.scale = (const float *)scale.data();
    INFO(rows << " x " << cols << " " << te_dtype_name(from) << " -> " << te_dtype_name(to) << ", wanted " << wanted << ", TE_SEED=" << seed);
    const te_status status = quantize(from, &q, ctx);
    INFO(te_last_error(ctx));
    REQUIRE(status == TE_OK);
    const std::vector<uint8_t> gave = y.raw(), transposed = yt.raw();
    size_t wrong = 0, wrong_transposed = 0;
    for (size_t i = 0; i < n; i++) {
        const float v = std::isinf(x.value[i]) ? NAN : x.value[i] * (wanted & SCALE ? factor : 1.0f);
        const uint8_t should = to == TE_e4m3 ? te_e4m3_of_float(v) : te_e5m2_of_float(v);
        wrong += wanted & Y ? gave[i] != should : gave[i] != 0xff;
        const size_t t = i % (size_t)cols * (size_t)rows + i / (size_t)cols;
        wrong_transposed += wanted & YT ? transposed[t] != should : transposed[t] != 0xff;
    }
    CHECK(wrong == 0);
    CHECK(wrong_transposed == 0);
    CHECK(get<uint32_t>(amax)[0] == (wanted & AMAX ? amax_of(x.value, before) : te_bits_of_float(before)));
    CHECK(bx.raw() == x.bytes);
}

} // namespace

TEST_CASE("a cast to FP8: row-wise, transposed and amax", "[quantize]") {
    const int64_t sizes[][2] = {{1, 1}, {1, 8}, {1, 1000}, {16, 16}, {16, 24}, {7, 129}, {129, 7}, {128, 128}, {144, 272}, {300, 200}, {130, 264}, {1040, 8}};
    const te_dtype formats[] = {TE_f32, TE_bf16, TE_f16};
    for (const auto &s : sizes)
        for (const te_dtype from : formats)
            for (const te_dtype to : {TE_e4m3, TE_e5m2}) check(s[0], s[1], from, to, Y | YT | AMAX | SCALE);
}
TEST_CASE("each output alone, without writing the others", "[quantize]") {
    for (const te_dtype from : {TE_f32, TE_bf16})
        for (int wanted = 1; wanted < 16; wanted++) {
            if (wanted == SCALE) continue;
            check(200, 144, from, TE_e4m3, wanted), check(33, 70, from, TE_e5m2, wanted);
        }
}
TEST_CASE("infinities and NaNs become NaN, and the amax is infinite or NaN", "[quantize]") {
    for (const te_dtype from : {TE_f32, TE_bf16, TE_f16})
        for (const te_dtype to : {TE_e4m3, TE_e5m2}) check(65, 80, from, to, Y | YT | AMAX | SCALE, false), check(1, 4000, from, to, AMAX, false);
}

namespace {
// A custom producer: it has two inputs, its values depend on row and column, and it turns zeros into large numbers. So elements beyond the
// end, which are read as 0, would be noticed in the amax.
struct pair_args { te_fp8_out out; const void *x, *y; };
TE_FN void pair_load(te_vec8 *in, const void *arg, int64_t row, int64_t col, int n, int wide) {
    const pair_args *a = (const pair_args *)arg;
    te_vec8_load(&in[0], a->x, row * a->out.cols + col, n, wide, TE_bf16);
    te_vec8_load(&in[1], a->y, row * a->out.cols + col, n, wide, TE_f16);
}
TE_BOTH float pair_of(float x, float y, int64_t row, int64_t col) { return x == 0 && y == 0 ? 1e9f : (row + 3 * col) % 5 ? x * y : -y; }
TE_FN void pair_make(float v[8], const te_vec8 *in, const void *arg, int64_t row, int64_t col) {
    float x[8], y[8];
    (void)arg;
    te_vec8_floats(x, &in[0], TE_bf16), te_vec8_floats(y, &in[1], TE_f16);
    TE_UNROLL for (int k = 0; k < 8; k++) v[k] = pair_of(x[k], y[k], row, col + k);
}
TE_FP8_KERNELS(pair_kernel, 2, pair_args, pair_load, pair_make, 2)
} // namespace
TEST_CASE("a custom producer with two inputs", "[quantize]") {
    const int64_t sizes[][2] = {{1, 8}, {130, 264}, {144, 16}, {77, 131}};
    for (const auto &s : sizes) {
        const size_t n = (size_t)(s[0] * s[1]);
        context ctx_owner;
        te_context *ctx = &ctx_owner.c;
        const unsigned seed = fresh_seed();
        source random(seed);
        const reference::vec rx = random.draw(n, TE_bf16), ry = random.draw(n, TE_f16, 1);
        buffer x(ctx, 2 * n, 16), y(ctx, 2 * n, 16), to(ctx, n, 16), transposed(ctx, n, 16), amax(ctx, 4);
        x.write(rx, TE_bf16), y.write(ry, TE_f16), put<float>(ctx, amax, {0.0f});
        pair_args a;
        memset(&a, 0, sizeof a);
        a.out.y = (uint8_t *)to.data(), a.out.yt = (uint8_t *)transposed.data(), a.out.amax = (float *)amax.data(), a.out.rows = a.out.yt_cols = s[0], a.out.cols = s[1], a.out.to = TE_e5m2;
        a.x = x.data(), a.y = y.data();
        INFO(s[0] << " x " << s[1] << ", TE_SEED=" << seed);
        REQUIRE(te__fp8_check(&a.out, "pair", ctx) == TE_OK);
        REQUIRE(pair_kernel_run(&a, ctx) == TE_OK);
        const std::vector<uint8_t> gave = to.raw(), gave_transposed = transposed.raw();
        size_t wrong = 0;
        float largest = 0;
        for (size_t i = 0; i < n; i++) {
            const size_t row = i / (size_t)s[1], col = i % (size_t)s[1];
            const float v = pair_of((float)rx[i], (float)ry[i], (int64_t)row, (int64_t)col);
            largest = std::max(largest, std::fabs(v));
            wrong += gave[i] != te_e5m2_of_float(v) || gave_transposed[col * (size_t)s[0] + row] != gave[i];
        }
        CHECK(wrong == 0);
        CHECK(get<float>(amax)[0] == largest);
    }
}
TEST_CASE("many rows", "[quantize]") {
    check(brief() ? 2000 : 100000, 24, TE_bf16, TE_e4m3, Y | YT | AMAX | SCALE);
    check(brief() ? 2001 : 100001, 3, TE_bf16, TE_e5m2, Y | YT | AMAX | SCALE);
}
TEST_CASE("padded rows of the transposed tensor end in zeros, and the inverse scale is stored", "[quantize]") {
    const int64_t sizes[][3] = {{1, 16, 16}, {37, 48, 48}, {130, 24, 144}, {128, 40, 128}, {200, 33, 256}};
    for (const auto &s : sizes) {
        context ctx_owner;
        te_context *ctx = &ctx_owner.c;
        const size_t rows = (size_t)s[0], cols = (size_t)s[1], longer = (size_t)s[2];
        const tensor x(odd_numbers(rows * cols, fresh_seed(), true), TE_bf16);
        buffer bx(ctx, x.bytes.size()), yt(ctx, cols * longer), scale(ctx, 4), inverse(ctx, 8);
        put(ctx, bx, x.bytes), put<float>(ctx, scale, {3.0f});
        te_quantize q = te__quantize_of(s[0], s[1]);
        q.x = bx.data(), q.yt = yt.data(), q.yt_cols = s[2], q.scale = (const float *)scale.data(), q.inverse = (float *)inverse.data();
        REQUIRE(of_bf16_run(&q, ctx) == TE_OK);
        const std::vector<uint8_t> transposed = yt.raw();
        size_t wrong = 0;
        for (size_t c = 0; c < cols; c++)
            for (size_t r = 0; r < longer; r++) wrong += transposed[c * longer + r] != (r < rows ? te_e4m3_of_float(x.value[r * cols + c] * 3.0f) : 0);
        CHECK(wrong == 0);
        CHECK(get<float>(inverse) == std::vector<float>{1.0f / 3.0f, 3.0f});
    }
}
TEST_CASE("the transpose of an FP8 tensor", "[quantize]") {
    const int64_t sizes[][3] = {{1, 16, 16}, {37, 48, 48}, {130, 24, 144}, {128, 40, 128}, {200, 272, 256}, {261, 136, 261}};
    for (const auto &s : sizes) {
        context ctx_owner;
        te_context *ctx = &ctx_owner.c;
        const size_t rows = (size_t)s[0], cols = (size_t)s[1], longer = (size_t)s[2];
        std::mt19937 random(fresh_seed());
        std::vector<uint8_t> bytes(rows * cols);
        for (uint8_t &b : bytes) b = (uint8_t)random();
        buffer x(ctx, bytes.size()), yt(ctx, cols * longer);
        put(ctx, x, bytes);
        te_quantize q = te__quantize_of(s[0], s[1]);
        q.x = x.data(), q.yt = yt.data(), q.yt_cols = s[2];
        REQUIRE(transpose_run(&q, ctx) == TE_OK);
        const std::vector<uint8_t> transposed = yt.raw();
        size_t wrong = 0;
        for (size_t c = 0; c < cols; c++)
            for (size_t r = 0; r < longer; r++) wrong += transposed[c * longer + r] != (r < rows ? bytes[r * cols + c] : 0);
        CHECK(wrong == 0);
    }
    context ctx_owner;
    te_quantize q = te__quantize_of(8, 12);
    buffer x(&ctx_owner.c, 96), yt(&ctx_owner.c, 96);
    q.x = x.data(), q.yt = yt.data();
    CHECK(transpose_run(&q, &ctx_owner.c) == TE_ERROR_SHAPE);
    CHECK(std::string(te_last_error(&ctx_owner.c)).find("multiples of eight") != std::string::npos);
    CHECK(yt.poisoned());
}
TEST_CASE("invalid casts are refused, and nothing is written", "[quantize]") {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    buffer x(ctx, 64 * 2, 16), y(ctx, 64, 16);
    te_quantize q = te__quantize_of(8, 8);
    q.x = x.data(), q.y = y.data();
    const auto refused = [&](te_status status, const char *text) {
        INFO(te_last_error(ctx));
        CHECK(of_bf16_run(&q, ctx) == status);
        CHECK(std::string(te_last_error(ctx)).find(text) != std::string::npos);
        CHECK(y.poisoned());
    };
    q.to = TE_bf16, refused(TE_ERROR_DTYPE, "bf16; it must be e4m3 or e5m2"), q.to = TE_e4m3;
    q.x = nullptr, refused(TE_ERROR_NULL, "x is null"), q.x = (char *)x.data() + 2, refused(TE_ERROR_ALIGNMENT, "x does not start");
    q.x = x.data(), q.y = (char *)y.data() + 8, refused(TE_ERROR_ALIGNMENT, "y or yt"), q.y = y.data();
    q.rows = -1, refused(TE_ERROR_SHAPE, "-1 x 8"), q.rows = 8;
    q.yt = q.y, q.yt_cols = 7, refused(TE_ERROR_SHAPE, "rows of 7"), q.yt_cols = 129, refused(TE_ERROR_SHAPE, "rows of 129"), q.yt = nullptr;
    q.rows = (int64_t)1 << 40, q.cols = 1 << 20, refused(TE_ERROR_OVERFLOW, "more tiles");
    q.rows = 0, q.cols = 8, q.x = nullptr;
    CHECK(of_bf16_run(&q, ctx) == TE_OK);
    CHECK(te_convert(y.data(), TE_e4m3, x.data(), TE_bf16, 8, ctx) == TE_ERROR_DTYPE);
    CHECK(te_convert(y.data(), TE_f32, x.data(), TE_e5m2, 8, ctx) == TE_ERROR_DTYPE);
    CHECK(y.poisoned());
}

// ---- scales ---------------------------------------------------------------------------------------------------------

namespace {

// The expected scale, in double, from the history as a plain list with the newest amax first. The library has a ring buffer.
struct model {
    std::vector<double> history;
    float scale = 1;
    void step(float amax, const te_scale_rule &rule, float largest, int length) {
        const bool good = std::isfinite(amax);
        history.insert(history.begin(), good ? (double)amax : 0.0);
        history.resize(std::min<size_t>(history.size(), (size_t)length));
        double a = history[0];
        if (rule.amax == TE_AMAX_MAX) for (const double h : history) a = std::max(a, h);
        a = std::max(a, (double)rule.epsilon);
        if (!good || a == 0) return;
        const float quotient = (float)((double)largest / a); // rounded once, as an f32 division is
        double s = (double)quotient * std::ldexp(1.0, -rule.margin);
        s = std::min(std::max(s, std::ldexp(1.0, -126)), std::ldexp(1.0, 126));
        if (std::isinf(quotient)) s = std::ldexp(1.0, 126);
        if (rule.power_of_two) s = std::exp2(std::floor(std::log2(s)));
        scale = (float)s;
    }
};

void check_scales(int count, int length, const te_scale_rule &rule) {
    const unsigned seed = fresh_seed();
    std::mt19937 random(seed);
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    std::vector<te_dtype> formats;
    for (int i = 0; i < count; i++) formats.push_back(random() % 2 ? TE_e4m3 : TE_e5m2);
    buffer memory(ctx, te_scales_bytes(count, length), 16);
    te_scales s;
    REQUIRE(te_scales_init(&s, memory.data(), memory.bytes, formats.data(), count, length, ctx) == TE_OK);
    std::vector<model> should((size_t)count);
    std::vector<float> amax((size_t)count), scale((size_t)count), inverse((size_t)count * TE_SCALES_INVERSE_STRIDE);
    INFO(count << " tensors, history " << length << ", " << (rule.amax == TE_AMAX_MAX ? "max" : "most recent") << ", margin " << rule.margin << ", TE_SEED=" << seed);
    for (int step = 0; step < 2 * length + 5 && step < 60; step++) {
        // every fifth step updates some of them only
        const int first = step % 5 == 4 ? count / 3 : 0, updated = step % 5 == 4 ? count / 2 : count;
        for (int i = 0; i < count; i++) {
            const float v = std::ldexp(1.0f + (float)(random() % 1024) / 1024, (int)(random() % 40) - 20);
            const unsigned kind = random() % 12;
            amax[(size_t)i] = kind == 0 ? 0 : kind == 1 ? INFINITY : kind == 2 ? NAN : kind == 3 ? 1e-43f : v;
            if (i >= first && i < first + updated) should[(size_t)i].step(amax[(size_t)i], rule, te_fp8_max(formats[(size_t)i]), length);
        }
        REQUIRE(te_copy(ctx, s.amax, amax.data(), (size_t)count * 4) == TE_OK);
        const te_status status = te_scales_update(&s, first, updated, &rule, ctx);
        INFO(te_last_error(ctx));
        REQUIRE(status == TE_OK);
        std::vector<float> left((size_t)count);
        REQUIRE(te_copy(ctx, scale.data(), s.scale, (size_t)count * 4) == TE_OK);
        REQUIRE(te_copy(ctx, inverse.data(), s.inverse, inverse.size() * 4) == TE_OK);
        REQUIRE(te_copy(ctx, left.data(), s.amax, (size_t)count * 4) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        for (size_t i = 0; i < (size_t)count; i++) {
            CAPTURE(step, i, amax[i]);
            const bool took = (int)i >= first && (int)i < first + updated;
            REQUIRE(scale[i] == should[i].scale); // exactly: it is one division, rounded to nearest
            REQUIRE(inverse[i * TE_SCALES_INVERSE_STRIDE] == 1.0f / scale[i]);
            REQUIRE((uintptr_t)te_scales_inverse(&s, (int)i) % 16 == 0);
            REQUIRE((took ? te_bits_of_float(left[i]) == 0 : te_bits_of_float(left[i]) == te_bits_of_float(amax[i])));
        }
    }
    memory.raw(); // checks the guards
}

} // namespace

TEST_CASE("scales follow the history of amax", "[scales]") {
    for (const int length : {1, 2, 16, 33, 1024})
        for (const int count : {1, 7, 40}) {
            const te_scale_rule plain = {TE_AMAX_MAX, 0, 0.0f, 0}, recent = {TE_AMAX_MOST_RECENT, 2, 0.0f, 0};
            const te_scale_rule current = {TE_AMAX_MOST_RECENT, 0, 1e-6f, 1}, negative = {TE_AMAX_MAX, -3, 0.0f, 1};
            for (const te_scale_rule &rule : {plain, recent, current, negative}) check_scales(count, length, rule);
        }
}
TEST_CASE("scales that are bound to a copy of their bytes continue with the same bits", "[scales]") {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    const te_dtype formats[] = {TE_e4m3, TE_e5m2, TE_e4m3};
    const te_scale_rule rule = {TE_AMAX_MAX, 0, 0.0f, 0};
    const size_t bytes = te_scales_bytes(3, 4);
    buffer first(ctx, bytes, 16), second(ctx, bytes, 16);
    te_scales a, b;
    REQUIRE(te_scales_init(&a, first.data(), bytes, formats, 3, 4, ctx) == TE_OK);
    const auto step = [&](te_scales *s, float v) {
        const float amax[] = {v, 2 * v, 3 * v};
        REQUIRE(te_copy(ctx, s->amax, amax, sizeof amax) == TE_OK);
        REQUIRE(te_scales_update(s, 0, 3, &rule, ctx) == TE_OK);
    };
    for (const float v : {1.0f, 9.0f, 2.0f}) step(&a, v);
    REQUIRE(te_copy(ctx, second.data(), a.memory, a.bytes) == TE_OK);
    REQUIRE(te_scales_bind(&b, second.data(), bytes, 3, 4, ctx) == TE_OK);
    for (const float v : {3.0f, 4.0f, 5.0f}) step(&a, v), step(&b, v); // 9 drops out of the history
    CHECK(first.raw() == second.raw());
    float scale[3];
    REQUIRE(te_copy(ctx, scale, b.scale, sizeof scale) == TE_OK);
    REQUIRE(te_synchronize(ctx) == TE_OK);
    CHECK(scale[0] == 448.0f / 5.0f);
    CHECK(scale[1] == 57344.0f / 10.0f);
    // the second tensor changes its format: its scale must be that of a state that had this format from the start
    const te_dtype all_e4m3[] = {TE_e4m3, TE_e4m3, TE_e4m3};
    buffer third(ctx, bytes, 16);
    te_scales c;
    REQUIRE(te_scales_init(&c, third.data(), bytes, all_e4m3, 3, 4, ctx) == TE_OK);
    for (const float v : {1.0f, 9.0f, 2.0f, 3.0f, 4.0f, 5.0f}) step(&c, v);
    REQUIRE(te__scales_reformat(&b, all_e4m3, ctx) == TE_OK);
    CHECK(second.raw() == third.raw());
    REQUIRE(te__scales_reformat(&b, formats, ctx) == TE_OK);
    CHECK(second.raw() == first.raw());
    const float none = 100;
    REQUIRE(te_copy(ctx, b.format_max + 2, &none, sizeof none) == TE_OK);
    const auto before = second.raw();
    CHECK(te__scales_reformat(&b, all_e4m3, ctx) == TE_ERROR_FORMAT);
    CHECK(second.raw() == before);
    CHECK(te_scales_bind(&b, second.data(), bytes - 1, 3, 4, ctx) == TE_ERROR_MEMORY);
    CHECK(te_scales_bind(&b, second.data(), bytes, 3, 1025, ctx) == TE_ERROR_SHAPE);
    CHECK(te_scales_bind(&b, (char *)second.data() + 4, bytes, 3, 4, ctx) == TE_ERROR_ALIGNMENT);
    const te_dtype wrong[] = {TE_e4m3, TE_bf16, TE_e4m3};
    CHECK(te_scales_init(&b, second.data(), bytes, wrong, 3, 4, ctx) == TE_ERROR_DTYPE);
    CHECK(te_scales_update(&a, 1, 3, &rule, ctx) == TE_ERROR_SHAPE);
    const te_scale_rule far = {TE_AMAX_MAX, 65, 0.0f, 0}, negative = {TE_AMAX_MAX, 0, -1.0f, 0};
    CHECK(te_scales_update(&a, 0, 3, &far, ctx) == TE_ERROR_VALUE);
    CHECK(te_scales_update(&a, 0, 3, &negative, ctx) == TE_ERROR_VALUE);
}
