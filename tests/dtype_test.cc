// dtype_test.cc -- number formats, loads and stores, fast exponentials and Philox, each on the host and, by a kernel, on the
// target.
#include <catch2/catch.hpp>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "te/gemm/gemm.h" // te_context_create
#include "te/core/math.h"
#include "te/ops/dropout.h"

namespace {

// The value of a 16-bit number by the definition of its format: bf16 has 8 exponent and 7 fraction bits, f16 has 5 and 10.
double value_of(uint16_t h, te_dtype t) {
    const int bits = t == TE_bf16 ? 7 : 10, bias = t == TE_bf16 ? 127 : 15, max_exponent = t == TE_bf16 ? 255 : 31;
    const int e = (h & 0x7fff) >> bits, m = h & ((1 << bits) - 1);
    const double sign = h & 0x8000 ? -1 : 1;
    if (e == max_exponent) return m ? NAN : sign * INFINITY;
    return e ? sign * std::ldexp(1 + std::ldexp((double)m, -bits), e - bias) : sign * std::ldexp((double)m, 1 - bias - bits);
}
// The nearest number of the format, ties to even, by a binary search.
uint16_t nearest(double v, te_dtype t) {
    const uint16_t sign = std::signbit(v) ? 0x8000 : 0, infinity = t == TE_bf16 ? 0x7f80 : 0x7c00;
    const double a = std::fabs(v);
    int low = 0, high = infinity; // value(low) <= a < value(high)
    if (std::isinf(a)) return (uint16_t)(sign | infinity);
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        (value_of((uint16_t)middle, t) <= a ? low : high) = middle;
    }
    // for rounding, infinity counts as the number that would come next
    const double below = value_of((uint16_t)low, t), step = below - value_of((uint16_t)(low ? low - 1 : 0), t);
    const double above = high == infinity ? below + step : value_of((uint16_t)high, t);
    const double down = a - below, up = above - a;
    return (uint16_t)(sign | (down < up || (down == up && low % 2 == 0) ? low : high));
}

struct arrays { float *out; uint32_t *words; const float *in; int n, what; };
enum { ROUND_bf16, ROUND_f16, EXP2, EXP, SIGMOID, PHILOX };
TE_FN void body(const arrays *a, te_block b) {
    int group;
    const te_lanes g = te_lanes_here(TE_CUDA ? 64 : 1, &group);
    for (int i = b.x * 1024 + g.id; i < a->n && i < (b.x + 1) * 1024; i += g.count) {
        const float x = a->in[i];
        if (a->what == ROUND_bf16) a->words[i] = te_bf16_of_float(x), a->out[i] = te_float_of_bf16((uint16_t)a->words[i]);
        if (a->what == ROUND_f16) a->words[i] = te_f16_of_float(x), a->out[i] = te_float_of_f16((uint16_t)a->words[i]);
        if (a->what == EXP2) a->out[i] = te_exp2(x);
        if (a->what == EXP) a->out[i] = te_exp(x);
        if (a->what == SIGMOID) a->out[i] = te_sigmoid(x);
        if (a->what == PHILOX) {
            uint32_t word[4];
            te_philox(word, 12345678901234ull, (uint64_t)i << 20, (uint32_t)i % 7, (uint64_t)i * 99999999977ull);
            a->words[i] = word[0] ^ word[1] ^ word[2] ^ word[3], a->out[i] = te_uniform(word[0]);
        }
    }
}
TE_KERNEL(each, TE_CUDA ? 64 : 1, arrays, body(te_args, te_at))

struct results { std::vector<float> out; std::vector<uint32_t> words; };
results on_target(const std::vector<float> &in, int what) {
    te_context c;
    REQUIRE(te_context_create(&c, 0, 1) == TE_OK);
    arrays a;
    void *p[3];
    for (void *&q : p) REQUIRE(te_allocate(&c, &q, in.size() * 4) == TE_OK);
    REQUIRE(te_copy(&c, p[0], in.data(), in.size() * 4) == TE_OK);
    a.in = (const float *)p[0], a.out = (float *)p[1], a.words = (uint32_t *)p[2], a.n = (int)in.size(), a.what = what;
    REQUIRE(te_fill(&c, a.words, 0, in.size() * 4) == TE_OK);
    REQUIRE(each_launch(&c, te__grid_of(te_ceil_div(a.n, 1024), 1), &a) == TE_OK);
    results r = {std::vector<float>(in.size()), std::vector<uint32_t>(in.size())};
    REQUIRE(te_copy(&c, r.out.data(), p[1], in.size() * 4) == TE_OK);
    REQUIRE(te_copy(&c, r.words.data(), p[2], in.size() * 4) == TE_OK);
    REQUIRE(te_synchronize(&c) == TE_OK);
    for (void *q : p) te_release(&c, q);
    te_context_destroy(&c);
    return r;
}

// Every 16-bit number, the midpoint to the next one, and the floats beside that midpoint; and a million random numbers.
std::vector<float> interesting(te_dtype t) {
    std::vector<float> x;
    for (int h = 0; h < 65536; h++) {
        const double v = value_of((uint16_t)h, t), next = value_of((uint16_t)(h + 1), t);
        if (std::isnan(v)) continue;
        x.push_back((float)v);
        if (!std::isfinite(v) || !std::isfinite(next)) continue;
        const float half = (float)(v / 2 + next / 2);
        x.push_back(half), x.push_back(std::nextafterf(half, INFINITY)), x.push_back(std::nextafterf(half, -INFINITY));
    }
    for (const double v : {65519.0, 65519.99, 65520.0, 65535.0, 3.3895313892515355e38, 3.4e38, 1e-45, 1e-40, 2.98e-8, 2.9802322387695312e-8, 2.99e-8, 5.96e-8})
        x.push_back((float)v), x.push_back((float)-v);
    std::mt19937 random(1);
    for (int i = 0; i < 1 << 20; i++) x.push_back(te_float_of_bits((uint32_t)random()));
    return x;
}

size_t rounding_errors(te_dtype t) {
    const std::vector<float> x = interesting(t);
    const results there = on_target(x, t == TE_bf16 ? ROUND_bf16 : ROUND_f16);
    size_t wrong = 0;
    for (size_t i = 0; i < x.size(); i++) {
        const uint16_t here = t == TE_bf16 ? te_bf16_of_float(x[i]) : te_f16_of_float(x[i]);
        if (std::isnan(x[i])) wrong += !std::isnan(value_of(here, t)) || !std::isnan(there.out[i]);
        else wrong += here != nearest(x[i], t) || there.words[i] != here || there.out[i] != value_of(here, t);
    }
    return wrong;
}

} // namespace

TEST_CASE("every 16-bit number has the value that its format defines", "[dtype]") {
    size_t wrong = 0;
    for (int h = 0; h < 65536; h++)
        for (const te_dtype t : {TE_bf16, TE_f16}) {
            const uint16_t u = (uint16_t)h;
            const double v = value_of(u, t), read = t == TE_bf16 ? te_float_of_bf16(u) : te_float_of_f16(u);
            wrong += std::isnan(v) ? !std::isnan(read) : read != v || std::signbit(read) != std::signbit(v);
        }
    CHECK(wrong == 0);
}
TEST_CASE("rounding is to nearest, ties to even, on host and target", "[dtype]") {
    CHECK(rounding_errors(TE_bf16) == 0);
    CHECK(rounding_errors(TE_f16) == 0);
}
TEST_CASE("names and sizes", "[dtype]") {
    CHECK(std::string(te_dtype_name(TE_bf16)) == "bf16");
    CHECK(std::string(te_dtype_name(TE_DTYPE_COUNT)) == "unknown");
#define SIZE(token, bytes, name) CHECK(te_dtype_bytes(TE_##token) == bytes);
    TE_DTYPES(SIZE)
}

#if !TE_CUDA
TEST_CASE("loads and stores of eight elements: beyond the end they read 0 and write nothing", "[dtype]") {
    for (const te_dtype t : {TE_f32, TE_bf16, TE_f16})
        for (int n = 0; n <= 8; n++) {
            alignas(16) uint8_t memory[128];
            memset(memory, 0xff, sizeof memory);
            const float v[8] = {1, -2, 3, -4, 5, -6, 7, -8};
            te_store8(memory, 16, v, n, n == 8, t);
            size_t written = 0;
            for (uint8_t b : memory) written += b != 0xff;
            CHECK(written <= (size_t)n * te_dtype_bytes(t));
            float back[8];
            te_load8(back, memory, 16, n, n == 8, t);
            for (int i = 0; i < 8; i++) CHECK(back[i] == (i < n ? v[i] : 0.0f));
        }
}
#endif

TEST_CASE("exponentials and sigmoid", "[dtype]") {
    std::vector<float> x;
    for (double v = -140; v <= 130; v += 0.00731) x.push_back((float)v);
    const results two = on_target(x, EXP2), e = on_target(x, EXP), s = on_target(x, SIGMOID);
    double worst2 = 0, worst = 0, worst_s = 0;
    for (size_t i = 0; i < x.size(); i++) {
        const double v = x[i];
        if (v > -125.9 && v < 127.9) worst2 = std::fmax(worst2, std::fabs(two.out[i] / std::exp2(v) - 1));
        if (v <= -126) CHECK(two.out[i] <= 1.2e-38f); // 0, or a subnormal number
        if (v >= 128) CHECK(std::isinf(two.out[i]));
        if (v > -87 && v < 88) worst = std::fmax(worst, std::fabs(e.out[i] / std::exp(v) - 1) / (1 + std::fabs(v) / 2));
        if (v > -80) worst_s = std::fmax(worst_s, std::fabs(s.out[i] * (1 + std::exp(-v)) - 1) / (1 + (v < 0 ? -v : 0) / 2));
    }
    CHECK(worst2 < 3e-7);
    CHECK(worst < 3e-7);
    CHECK(worst_s < 4e-7);
    const results edge = on_target({INFINITY, -INFINITY, NAN, 0.0f, -1000.0f, 1000.0f}, EXP2);
    CHECK(std::isinf(edge.out[0]));
    CHECK(edge.out[1] == 0);
    CHECK(std::isnan(edge.out[2]));
    CHECK(edge.out[3] == 1);
    CHECK(edge.out[4] == 0);
    CHECK(std::isinf(edge.out[5]));
    const results flat = on_target({INFINITY, -INFINITY, NAN, 0.0f, -1000.0f, 1000.0f}, SIGMOID);
    CHECK(flat.out[0] == 1);
    CHECK(flat.out[1] == 0);
    CHECK(std::isnan(flat.out[2]));
    CHECK(flat.out[3] == 0.5f);
    CHECK(flat.out[4] == 0);
    CHECK(flat.out[5] == 1);
}

// The published test vectors of Random123: philox4x32 with 7 rounds.
TEST_CASE("Philox computes the published test vectors, on host and target", "[dtype]") {
    uint32_t r[4];
    te_philox(r, 0, 0, 0, 0);
    CHECK((r[0] == 0x5f6fb709 && r[1] == 0x0d893f64 && r[2] == 0x4f121f81 && r[3] == 0x4f730a48));
    te_philox(r, 0x299f31d0a4093822ull, 0x85a308d3243f6a88ull, 0x13198a2e, 0x03707344);
    CHECK((r[0] == 0x4dfccaba && r[1] == 0x190a87f0 && r[2] == 0xc47362ba && r[3] == 0xb6b5242a));
    te_philox(r, 0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffff, 0xffffffff);
    CHECK((r[0] == 0x5207ddc2 && r[1] == 0x45165e59 && r[2] == 0x4d8ee751 && r[3] == 0x8c52f662));
    const results there = on_target(std::vector<float>(5000), PHILOX);
    size_t wrong = 0;
    for (int i = 0; i < 5000; i++) {
        te_philox(r, 12345678901234ull, (uint64_t)i << 20, (uint32_t)i % 7, (uint64_t)i * 99999999977ull);
        wrong += there.words[(size_t)i] != (r[0] ^ r[1] ^ r[2] ^ r[3]) || there.out[(size_t)i] != te_uniform(r[0]);
        wrong += !(te_uniform(r[0]) > 0 && te_uniform(r[0]) < 1);
    }
    CHECK(wrong == 0);
    CHECK((te_uniform(0) > 0 && te_uniform(0xffffffffu) < 1));
}

TEST_CASE("dropout drops elements with its probability", "[dtype]") {
    for (const float p : {0.0f, 0.01f, 0.1f, 0.5f, 0.9f}) {
        const int n = 1 << 20;
        int dropped = 0;
        for (int i = 0; i < n; i += 8) {
            uint32_t word[4];
            te_philox(word, 7, (uint64_t)i / 8, 3, 11);
            for (int e = 0; e < 8; e++) dropped += te_dropped(word, e, TE_DROPOUT_LIMIT(p));
        }
        const double expected = (double)p * n, deviation = std::sqrt((double)p * (1 - (double)p) * n);
        CAPTURE(p, dropped);
        CHECK(std::fabs(dropped - expected) <= 5 * deviation + n / 131072.0); // the probability is rounded to steps of 2^-16
    }
}
