// microscaled_test.cc -- casts to MXFP8 and NVFP4, bit by bit against TransformerEngine's definitions written as plain loops; the layouts of
// scales; the Hadamard transform; the mean of stochastic rounding; GEMMs of elements and scales; and wrong calls.
#include "harness.h"
#include "te/fp8/impl/quantize_mxfp8.h"
#include "te/fp8/impl/quantize_nvfp4.h"
#include "te/gemm/gemm_microscaled.h"

TE_QUANTIZE_MXFP8(mx_f32, f32)
TE_QUANTIZE_MXFP8(mx_bf16, bf16)
TE_QUANTIZE_MXFP8(mx_f16, f16)
TE_QUANTIZE_NVFP4(nv_f32, f32)
TE_QUANTIZE_NVFP4(nv_bf16, bf16)
TE_QUANTIZE_NVFP4(nv_f16, f16)
TE_ROUND_MXFP8(mx_round_f32, f32)
TE_ROUND_MXFP8(mx_round_bf16, bf16)
TE_ROUND_MXFP8(mx_round_f16, f16)
TE_ROUND_NVFP4(nv_round_f32, f32)
TE_ROUND_NVFP4(nv_round_bf16, bf16)
TE_ROUND_NVFP4(nv_round_f16, f16)
TE_GEMM_MICROSCALED(product)

namespace {

te_status cast(te_microscaling format, te_dtype from, const te_quantize_microscaled *q, te_context *ctx) {
    if (format == TE_MXFP8) return (from == TE_f32 ? mx_f32_run : from == TE_bf16 ? mx_bf16_run : mx_f16_run)(q, ctx);
    return (from == TE_f32 ? nv_f32_run : from == TE_bf16 ? nv_bf16_run : nv_f16_run)(q, ctx);
}
te_status to_rounded(te_microscaling format, te_dtype from, const te_quantize_microscaled *q, te_context *ctx) {
    if (format == TE_MXFP8) return (from == TE_f32 ? mx_round_f32_run : from == TE_bf16 ? mx_round_bf16_run : mx_round_f16_run)(q, ctx);
    return (from == TE_f32 ? nv_round_f32_run : from == TE_bf16 ? nv_round_bf16_run : nv_round_f16_run)(q, ctx);
}

enum content { FINITE, HUGE_AND_TINY, WITH_INF, WITH_NAN, ZEROS };
struct matrix {
    int64_t rows, cols;
    te_dtype dtype;
    std::vector<uint8_t> bytes;
    std::vector<float> value; // after rounding to dtype
    matrix(int64_t r, int64_t c, te_dtype t, content kind, unsigned seed) : rows(r), cols(c), dtype(t), bytes((size_t)(r * c) * te_dtype_bytes(t)), value((size_t)(r * c)) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal(0, 1);
        for (size_t i = 0; i < value.size(); i++) {
            float v = normal(random) * std::ldexp(1.0f, (int)(random() % 12) - 8);
            if (random() % 16 == 0) v = 0;
            if (random() % 64 == 0) v = -0.0f;
            if (kind == HUGE_AND_TINY) v = std::ldexp(normal(random), (int)(random() % 260) - 140);
            if (kind == ZEROS) v = random() % 2 ? 0.0f : -0.0f;
            if (kind >= WITH_INF && kind <= WITH_NAN && random() % 97 == 0) v = kind == WITH_INF ? (random() % 2 ? INFINITY : -INFINITY) : NAN;
            if (kind >= WITH_INF && kind <= WITH_NAN && i == value.size() / 2) v = kind == WITH_INF ? INFINITY : -NAN;
            te_store(bytes.data(), (int64_t)i, v, t), value[i] = te_load(bytes.data(), (int64_t)i, t);
        }
    }
    float at(int64_t row, int64_t col) const { return row < rows && col < cols ? value[(size_t)(row * cols + col)] : 0.0f; }
};

// One line (a row, or a column and perhaps its transform), padded with zeros to whole blocks.
std::vector<float> line_of(const matrix &x, int64_t i, bool columnwise, bool hadamard, int64_t padded) {
    std::vector<float> v((size_t)padded);
    for (int64_t k = 0; k < padded; k++) v[(size_t)k] = columnwise ? x.at(k, i) : x.at(i, k);
    for (int64_t first = 0; hadamard && first < padded; first += 16) {
        const int sign[16] = {1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};
        float t[16];
        for (int k = 0; k < 16; k++) t[k] = v[(size_t)(first + k)] * (float)sign[k];
        // The sums of x_k sign_k (-1)^popcount(j & k), in the order of the fast transform: halves of the sum are sums of pairs, and so on.
        for (int j = 0; j < 16; j++) {
            float s[16];
            std::copy(t, t + 16, s);
            for (int bit = 1, n = 16; bit < 16; bit *= 2, n /= 2)
                for (int k = 0; k < n / 2; k++) s[k] = j & bit ? s[2 * k] - s[2 * k + 1] : s[2 * k] + s[2 * k + 1];
            v[(size_t)(first + j)] = te_round_to(s[0] * 0.25f, x.dtype);
        }
    }
    return v;
}
float amax_of(const std::vector<float> &v, bool propagate_nan) {
    float m = 0;
    for (const float e : v) {
        if (std::isnan(e) && propagate_nan) return NAN;
        m = std::max(m, std::fabs(e));
    }
    return m;
}
uint8_t nearest_e2m1(float f) {
    const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6}, ties[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};
    const float a = std::fabs(f);
    int code = 0;
    if (std::isnan(f)) return 0;
    while (code < 7 && (a > ties[code] || (a == ties[code] && code % 2 == 1))) code++;
    (void)values;
    return (uint8_t)(code | (std::signbit(f) ? 8 : 0));
}

struct expected { std::vector<uint8_t> data, scales; std::vector<float> rounded; };
// The definitions; rounded is [lines, blocks * block].
expected reference(te_microscaling format, const matrix &x, bool columnwise, bool hadamard, bool square) {
    const te_microscaled_shape s = te_microscaled_shape_of(format, x.rows, x.cols, columnwise, 0);
    const int64_t block = format == TE_MXFP8 ? 32 : 16, padded = s.blocks * block;
    std::vector<std::vector<float>> lines;
    float amax = 0;
    for (int64_t i = 0; i < s.lines; i++) {
        lines.push_back(line_of(x, i, columnwise, hadamard, padded));
        const float m = amax_of(lines.back(), true);
        amax = std::isnan(amax) || std::isnan(m) ? NAN : std::max(amax, m);
    }
    float encode = 2688.0f / amax;
    if (encode > FLT_MAX) encode = FLT_MAX;
    if (encode == 0) encode = 1;
    const float multiplier = encode * (1.0f / 6.0f), decode = 1.0f / encode;
    expected e = {std::vector<uint8_t>((size_t)s.data_bytes), std::vector<uint8_t>((size_t)(s.lines * s.blocks)), std::vector<float>((size_t)(s.lines * padded))};
    for (int64_t i = 0; i < s.lines; i++)
        for (int64_t b = 0; b < s.blocks; b++) {
            std::vector<float> v(lines[(size_t)i].begin() + b * block, lines[(size_t)i].begin() + (b + 1) * block);
            float m = amax_of(v, false);
            for (int64_t k = i / 16 * 16; square && k < std::min(i / 16 * 16 + 16, s.lines); k++)
                m = std::max(m, amax_of(std::vector<float>(lines[(size_t)k].begin() + b * block, lines[(size_t)k].begin() + (b + 1) * block), false));
            uint8_t &scale = e.scales[(size_t)(i * s.blocks + b)];
            if (format == TE_MXFP8) {
                const float target = m * (1.0f / 448.0f);
                int code = 0;
                while (code < 254 && std::ldexp(1.0, code - 127) < (double)target) code++;
                scale = (uint8_t)code;
                for (int64_t k = 0; k < block; k++) {
                    const uint8_t byte = te_e4m3_of_float(v[(size_t)k] * (float)std::ldexp(1.0, 127 - code));
                    const int64_t row = columnwise ? b * block + k : i, col = columnwise ? i : b * block + k;
                    if (row < x.rows && col < x.cols) e.data[(size_t)(row * x.cols + col)] = byte;
                    e.rounded[(size_t)(i * padded + b * block + k)] = te_float_of_e4m3(byte) * (float)std::ldexp(1.0, code - 127);
                }
                continue;
            }
            scale = te_ue4m3_of_float(m * multiplier);
            float inverse = 1.0f / (te_float_of_ue4m3(scale) * decode);
            if (inverse > FLT_MAX) inverse = FLT_MAX;
            for (int64_t k = 0; k < block; k++) {
                const uint8_t code = nearest_e2m1(v[(size_t)k] * inverse);
                e.data[(size_t)(i * s.pitch + (b * block + k) / 2)] |= (uint8_t)(code << (k % 2 ? 4 : 0));
                e.rounded[(size_t)(i * padded + b * block + k)] = te_float_of_e2m1(code) * (te_float_of_ue4m3(scale) * (amax / 2688.0f));
            }
        }
    return e;
}

struct result { std::vector<uint8_t> data, scales, rounded; };
result get(const buffer &data, const buffer &scales, const buffer &rounded) { return {data.raw(), scales.raw(), rounded.raw()}; }
struct casts { result y, yt; std::vector<uint8_t> amax; };

casts on_target(te_microscaling format, const matrix &x, bool hadamard, bool square, bool swizzled, uint64_t seed = 0) {
    context owner;
    te_context *ctx = &owner.c;
    const te_microscaled_shape row = te_microscaled_shape_of(format, x.rows, x.cols, 0, swizzled), col = te_microscaled_shape_of(format, x.rows, x.cols, 1, swizzled);
    const size_t elements = (size_t)((x.rows + 15) / 16 * 16 * x.cols) * te_dtype_bytes(x.dtype);
    buffer bx(ctx, x.bytes.size(), 16), amax(ctx, 8), rng(ctx, sizeof(te_rng));
    buffer y(ctx, (size_t)row.data_bytes, 16), ys(ctx, (size_t)row.scale_bytes, 16), yr(ctx, elements, 16);
    buffer yt(ctx, (size_t)col.data_bytes, 16), yts(ctx, (size_t)col.scale_bytes, 16), ytr(ctx, elements, 16);
    const te_rng state = {seed, 3};
    REQUIRE(te_copy(ctx, bx.data(), x.bytes.data(), x.bytes.size()) == TE_OK);
    REQUIRE(te_copy(ctx, rng.data(), &state, sizeof state) == TE_OK);
    te_quantize_microscaled q = te_quantize_microscaled_of(x.rows, x.cols);
    q.x = bx.data(), q.swizzled = swizzled, q.amax = (float *)amax.data(), q.hadamard = hadamard, q.square_blocks = square;
    if (seed) q.rng = (const te_rng *)rng.data(), q.stream = 40;
    te_status status = TE_OK;
    q.y.rounded = yr.data(), q.yt.rounded = ytr.data();
    if (x.cols % 8 == 0) status = to_rounded(format, x.dtype, &q, ctx);
    INFO(te_last_error(ctx));
    REQUIRE(status == TE_OK);
    q.y.rounded = q.yt.rounded = nullptr;
    q.y.data = (uint8_t *)y.data(), q.y.scales = (uint8_t *)ys.data(), q.yt.data = (uint8_t *)yt.data(), q.yt.scales = (uint8_t *)yts.data();
    status = cast(format, x.dtype, &q, ctx);
    INFO(te_last_error(ctx));
    REQUIRE(status == TE_OK);
    REQUIRE(te_synchronize(ctx) == TE_OK);
    return {get(y, ys, yr), get(yt, yts, ytr), amax.raw()};
}

size_t count_wrong(const result &r, const expected &e, te_microscaling format, const matrix &x, bool columnwise, bool hadamard, bool swizzled) {
    const te_microscaled_shape s = te_microscaled_shape_of(format, x.rows, x.cols, columnwise, swizzled);
    const int64_t padded = s.blocks * (format == TE_MXFP8 ? 32 : 16);
    size_t wrong = r.data.size() < e.data.size();
    for (size_t i = 0; i < e.data.size() && i < r.data.size(); i++) wrong += r.data[i] != e.data[i];
    std::vector<uint8_t> seen((size_t)s.scale_bytes);
    for (int64_t i = 0; i < s.lines; i++)
        for (int64_t b = 0; b < s.blocks; b++) {
            // cuBLAS's formula for the layout, written out
            const int64_t tile = i / 128 * ((s.blocks + 3) / 4) + b / 4, in_tile = (i % 32) * 16 + (i % 128 / 32) * 4 + b % 4;
            const int64_t plain = format == TE_MXFP8 && columnwise ? b * s.lines + i : i * s.blocks + b, at = swizzled ? tile * 512 + in_tile : plain;
            wrong += r.scales[(size_t)at] != e.scales[(size_t)(i * s.blocks + b)], seen[(size_t)at] = 1;
        }
    for (size_t i = 0; i < seen.size(); i++) wrong += !seen[i] && r.scales[i] != 0; // padding
    for (int64_t i = 0; x.cols % 8 == 0 && i < s.lines; i++) // the rounded values are only for multiples of eight columns
        for (int64_t k = 0; k < padded; k++) {
            const int64_t row = columnwise ? k : i, col = columnwise ? i : k;
            float want = e.rounded[(size_t)(i * padded + k)];
            if (col >= x.cols || row >= (hadamard && columnwise ? (x.rows + 15) / 16 * 16 : x.rows)) continue;
            if (x.dtype == TE_f16 && std::isfinite(want) && std::fabs(want) > 65504) want = std::copysign(65504.0f, want);
            want = te_round_to(want, x.dtype);
            const float is = te_load(r.rounded.data(), row * x.cols + col, x.dtype);
            wrong += std::isnan(want) ? !std::isnan(is) : memcmp(&want, &is, 4) != 0;
        }
    return wrong;
}
void check(te_microscaling format, int64_t rows, int64_t cols, te_dtype from, content kind, bool hadamard, bool square, bool swizzled) {
    const unsigned seed = fresh_seed();
    const matrix x(rows, cols, from, kind, seed);
    INFO((format == TE_MXFP8 ? "mxfp8 " : "nvfp4 ") << rows << " x " << cols << " " << te_dtype_name(from) << " kind " << kind << " hadamard " << hadamard << " square " << square << " swizzled " << swizzled << ", TE_SEED=" << seed);
    const casts c = on_target(format, x, hadamard, square, swizzled);
    CHECK(count_wrong(c.y, reference(format, x, false, false, square), format, x, false, false, swizzled) == 0);
    CHECK(count_wrong(c.yt, reference(format, x, true, hadamard, square), format, x, true, hadamard, swizzled) == 0);
}

const int64_t sizes[][2] = {{1, 1}, {16, 16}, {32, 64}, {33, 70}, {64, 64}, {128, 256}, {130, 104}, {7, 300}, {200, 17}, {257, 136}};

} // namespace

TEST_CASE("mxfp8: elements, scales and values are those of the definition, at odd sizes", "[microscaled]") {
    for (const auto &s : sizes)
        for (const te_dtype from : {TE_f32, TE_bf16, TE_f16})
            for (const content kind : {FINITE, HUGE_AND_TINY, WITH_INF, WITH_NAN, ZEROS}) check(TE_MXFP8, s[0], s[1], from, kind, false, false, (s[0] + kind) % 2 == 0);
}
TEST_CASE("nvfp4: elements, scales and values are those of the definition, at odd sizes", "[microscaled]") {
    int turn = 0;
    for (const auto &s : sizes)
        for (const te_dtype from : {TE_f32, TE_bf16, TE_f16})
            for (const content kind : {FINITE, HUGE_AND_TINY, WITH_INF, WITH_NAN, ZEROS})
                for (int mode = 0; mode < 3; mode++) {
                    if (brief() && turn++ % 4) continue; // every fourth: each dtype with each content and mode still has two sizes or more
                    check(TE_NVFP4, s[0], s[1], from, kind, mode == 1, mode == 2, (s[0] + kind) % 2 == 0);
                }
}
TEST_CASE("nvfp4: a NaN or an infinity anywhere makes every value of the tensor NaN or infinite", "[microscaled]") {
    for (const content kind : {WITH_INF, WITH_NAN}) {
        const matrix x(48, 48, TE_bf16, kind, 5);
        const casts c = on_target(TE_NVFP4, x, true, false, false);
        size_t finite = 0;
        for (int64_t i = 0; i < 48 * 48; i++)
            finite += std::isfinite(te_load(c.y.rounded.data(), i, TE_bf16)), finite += std::isfinite(te_load(c.yt.rounded.data(), i, TE_bf16));
        CHECK(finite == 0);
    }
}
#if !TE_CUDA
TEST_CASE("the Hadamard transform is orthogonal, and a column of it is the signs", "[microscaled]") {
    float t[16][16];
    for (int i = 0; i < 16; i++) {
        for (int k = 0; k < 16; k++) t[i][k] = i == k;
        te_hadamard16(t[i]);
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++) {
            float dot = 0;
            for (int j = 0; j < 16; j++) dot += t[i][j] * t[k][j];
            CHECK(dot == (i == k ? 1.0f : 0.0f));
        }
    const float sign[16] = {1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};
    for (int i = 0; i < 16; i++) CHECK(t[i][0] == sign[i] / 4);
}
#endif
TEST_CASE("nvfp4: stochastic rounding has the right mean, rowwise and columnwise, and depends on the seed", "[microscaled]") {
    // 4000 casts of the same block, in rows 16 apart: the mean of the values is the number within 3 sigma (with a chance of 0.003 for each of 16 numbers
    // to fail, so 4 sigma are allowed here), where sigma^2 <= distance^2 / 4 / n.
    enum { COPIES = 4096 };
    const float block[16] = {6, 0.1f, 0.3f, 0.6f, 0.9f, 1.2f, 1.4f, 1.7f, 2.3f, 2.7f, 3.3f, 3.8f, 4.5f, 5.1f, 5.7f, -2.2f};
    for (const bool columnwise : {false, true}) {
        matrix x(columnwise ? 16 : COPIES, columnwise ? COPIES : 16, TE_f32, ZEROS, 1);
        for (int64_t i = 0; i < COPIES; i++)
            for (int64_t k = 0; k < 16; k++) {
                const int64_t at = columnwise ? k * COPIES + i : i * 16 + k;
                x.value[(size_t)at] = block[k], te_store(x.bytes.data(), at, block[k], TE_f32);
            }
        const casts c = on_target(TE_NVFP4, x, false, false, false, 12345), other = on_target(TE_NVFP4, x, false, false, false, 54321);
        const result &r = columnwise ? c.yt : c.y;
        CHECK(r.data == (columnwise ? on_target(TE_NVFP4, x, false, false, false, 12345).yt : on_target(TE_NVFP4, x, false, false, false, 12345).y).data);
        CHECK(r.data != (columnwise ? other.yt : other.y).data);
        for (int64_t k = 0; k < 16; k++) {
            double sum = 0, square = 0;
            for (int64_t i = 0; i < COPIES; i++) {
                const double v = te_load(r.rounded.data(), columnwise ? k * COPIES + i : i * 16 + k, TE_f32);
                sum += v, square += v * v;
            }
            const double mean = sum / COPIES, sigma = std::sqrt(std::max(0.0, square / COPIES - mean * mean) / COPIES);
            INFO("number " << block[k] << " mean " << mean << " sigma " << sigma);
            CHECK(std::fabs(mean - (double)block[k]) <= 4 * sigma + 1e-5);
        }
    }
}
namespace {
// An operand of a GEMM: a fresh matrix and its cast, with swizzled scales, in memory of `ctx`.
struct operand {
    matrix x;
    casts c;
    expected e;
    buffer data, scales, amax;
    operand(te_context *ctx, te_microscaling format, int64_t lines, int64_t k, bool columnwise, unsigned seed)
        : x(columnwise ? k : lines, columnwise ? lines : k, TE_bf16, FINITE, seed), c(on_target(format, x, false, false, true)), e(reference(format, x, columnwise, false, false)),
          data(ctx, side(columnwise).data.size(), 16), scales(ctx, side(columnwise).scales.size(), 16), amax(ctx, 8) {
        REQUIRE(te_copy(ctx, data.data(), side(columnwise).data.data(), data.bytes) == TE_OK);
        REQUIRE(te_copy(ctx, scales.data(), side(columnwise).scales.data(), scales.bytes) == TE_OK);
        REQUIRE(te_copy(ctx, amax.data(), c.amax.data(), 8) == TE_OK);
    }
    const result &side(bool columnwise) const { return columnwise ? c.yt : c.y; }
    te_microscaled_operand of(te_microscaling format, bool columnwise) const {
        return {(const uint8_t *)data.data(), (const uint8_t *)scales.data(), format == TE_NVFP4 ? (const float *)amax.data() + columnwise : nullptr, columnwise};
    }
};
void check_gemm(te_microscaling format, int64_t m, int64_t n, int64_t k, bool a_columnwise, bool b_columnwise, te_dtype out, bool adds) {
    const unsigned seed = fresh_seed();
    CAPTURE(format, m, n, k, a_columnwise, b_columnwise, adds, seed);
    context owner;
    te_context *ctx = &owner.c;
    const operand a(ctx, format, m, k, a_columnwise, seed), b(ctx, format, n, k, b_columnwise, seed + 1);
    buffer d(ctx, (size_t)(m * n) * te_dtype_bytes(out), 16), factors(ctx, 8);
    const reference::vec before((size_t)(m * n), adds ? 0.5 : NAN);
    d.write(before, out);
    te_gemm_microscaled g = te_gemm_microscaled_of(format, m, n, k);
    g.a = a.of(format, a_columnwise), g.b = b.of(format, b_columnwise), g.d = d.data(), g.out = out, g.adds = adds, g.factors = (float *)factors.data();
    const te_status status = product_run(&g, ctx);
    INFO(te_last_error(ctx));
    REQUIRE(status == TE_OK);
    const reference::vec is = d.read(out);
    const int64_t padded = (int64_t)a.e.rounded.size() / m;
    size_t wrong = 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = adds ? 0.5 : 0, terms = sum;
            for (int64_t p = 0; p < k; p++) {
                const double term = (double)a.e.rounded[(size_t)(i * padded + p)] * (double)b.e.rounded[(size_t)(j * padded + p)];
                sum += term, terms += std::fabs(term);
            }
            // sums of k floats, and products of scales, which e.rounded has rounded as well; then the format of D
            const double bound = (double)(k + 8) * std::ldexp(1, -24) * terms + (out == TE_f32 ? 0 : std::ldexp(1, -8)) * std::fabs(sum);
            wrong += !(std::fabs(is[(size_t)(i * n + j)] - sum) <= bound);
        }
    CHECK(wrong == 0);
}
} // namespace
TEST_CASE("a GEMM of elements and swizzled scales is the product of the values that they stand for", "[microscaled]") {
    for (const te_microscaling format : {TE_MXFP8, TE_NVFP4}) {
        check_gemm(format, 1, 8, 32, false, false, TE_f32, false);
        check_gemm(format, 131, 136, 160, false, false, TE_f32, false); // two tiles of scales along the rows, and along k
        check_gemm(format, 37, 144, 64, false, true, TE_f32, false);    // dx = dy w
        check_gemm(format, 144, 32, 96, true, true, TE_f32, true);      // dw += dy^T x
        check_gemm(format, 48, 32, 64, true, false, TE_bf16, false);
    }
}
TEST_CASE("wrong GEMMs of MXFP8 and NVFP4 are refused", "[microscaled]") {
    context owner;
    te_context *ctx = &owner.c;
    buffer d(ctx, 32 * 32 * 4, 16), x(ctx, 4096, 16);
    te_gemm_microscaled g = te_gemm_microscaled_of(TE_NVFP4, 32, 32, 32);
    const uint8_t *p = (const uint8_t *)x.data();
    g.a.data = g.a.scales = g.b.data = g.b.scales = p, g.d = d.data();
    const auto fails = [&](te_status with, const char *text) {
        CHECK(product_run(&g, ctx) == with);
        CHECK(std::string(te_last_error(ctx)).find(text) != std::string::npos);
    };
    fails(TE_ERROR_NULL, "factors is null");
    g.factors = (float *)d.data();
    fails(TE_ERROR_NULL, "a.amax is null");
    g.format = TE_MXFP8, g.b.scales = nullptr;
    fails(TE_ERROR_NULL, "b.scales is null");
    g.b.scales = p + 1;
    fails(TE_ERROR_ALIGNMENT, "b does not start");
    g.b.scales = p, g.k = 48;
    fails(TE_ERROR_SHAPE, "k must be a multiple of 32");
    g.k = 32, g.m = 24, g.a.columnwise = 1;
    fails(TE_ERROR_SHAPE, "a is columnwise with 24 columns");
    g.a.columnwise = 0, g.out = TE_e4m3;
    fails(TE_ERROR_DTYPE, "D is f32");
    g.out = TE_f32, g.d = nullptr;
    fails(TE_ERROR_ALIGNMENT, "D is null");
    CHECK(product_run(nullptr, ctx) == TE_ERROR_NULL);
}
TEST_CASE("wrong casts are refused, and write nothing", "[microscaled]") {
    context owner;
    te_context *ctx = &owner.c;
    buffer x(ctx, 32 * 32 * 2, 16), y(ctx, 32 * 32, 16), s(ctx, 32, 16), amax(ctx, 8);
    te_quantize_microscaled q = te_quantize_microscaled_of(32, 32);
    q.x = x.data(), q.y.data = (uint8_t *)y.data(), q.y.scales = (uint8_t *)s.data();
    CHECK(mx_bf16_run(&q, ctx) == TE_OK);
    CHECK(nv_bf16_run(&q, ctx) == TE_ERROR_NULL); // amax
    CHECK(std::string(te_last_error(ctx)).find("amax is null") != std::string::npos);
    q.amax = (float *)amax.data(), q.hadamard = q.square_blocks = 1;
    CHECK(nv_bf16_run(&q, ctx) == TE_ERROR_VALUE);
    q.hadamard = 0, q.rng = (const te_rng *)x.data();
    CHECK(nv_bf16_run(&q, ctx) == TE_ERROR_VALUE);
    CHECK(std::string(te_last_error(ctx)).find("blocks of 16 x 16 are rounded to nearest; rng must be null") != std::string::npos);
    q.rng = nullptr;
    CHECK(nv_bf16_run(&q, ctx) == TE_OK);
    q.y.scales = nullptr;
    CHECK(mx_bf16_run(&q, ctx) == TE_ERROR_NULL);
    CHECK(std::string(te_last_error(ctx)).find("y.scales is null") != std::string::npos);
    q.y.scales = (uint8_t *)s.data(), q.y.data++;
    CHECK(mx_bf16_run(&q, ctx) == TE_ERROR_ALIGNMENT);
    q.y.data--, q.x = nullptr;
    CHECK(mx_bf16_run(&q, ctx) == TE_ERROR_NULL);
    q.x = x.data(), q.rows = -1;
    CHECK(mx_bf16_run(&q, ctx) == TE_ERROR_SHAPE);
    CHECK(mx_bf16_run(nullptr, ctx) == TE_ERROR_NULL);
    q.rows = 32, q.cols = 28, q.y.rounded = y.data();
    CHECK(mx_bf16_run(&q, ctx) == TE_ERROR_VALUE);
    q.y.data = q.y.scales = nullptr;
    CHECK(mx_round_bf16_run(&q, ctx) == TE_ERROR_SHAPE);
    q.y.rounded = nullptr, q.cols = 32;
    q.rows = 0;
    CHECK(mx_bf16_run(&q, ctx) == TE_OK);
}
