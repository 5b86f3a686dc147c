// small_dtypes_test.cc -- e2m1, ue4m3 and e8m0: all codes, all ties and the floats beside them, by a search among the values that the formats'
// definitions have; the same bits on the target; and the mean of stochastic rounding.
#include <catch2/catch.hpp>

#include <cmath>
#include <random>
#include <vector>

#include "te/core/small_dtypes.h"
#include "te/gemm/gemm.h" // te_context_create

namespace {

// The values of a format's codes that are at least 0, in order, by the definition: 2^(e - bias) (1 + m / 2^fraction).
std::vector<double> values(int exponent_bits, int fraction, int bias, int count) {
    std::vector<double> v;
    for (int code = 0; code < count; code++) {
        const int e = code >> fraction, m = code & ((1 << fraction) - 1);
        v.push_back(e || !fraction || !exponent_bits ? std::ldexp(1 + std::ldexp((double)m, -fraction), e - bias) : std::ldexp((double)m, 1 - bias - fraction));
    }
    return v;
}
const std::vector<double> &e2m1_values() {
    static const std::vector<double> v = {0, 0.5, 1, 1.5, 2, 3, 4, 6}; // as the OCP specification prints them
    return v;
}
const std::vector<double> &ue4m3_values() {
    static const std::vector<double> v = values(4, 3, 7, 127);
    return v;
}
const std::vector<double> &e8m0_values() {
    static const std::vector<double> v = values(0, 0, 127, 255);
    return v;
}
// The code of the nearest value of `v` to a, which is at least 0; ties to the even code.
int nearest(const std::vector<double> &v, double a) {
    int low = 0;
    if (a >= v.back()) return (int)v.size() - 1;
    if (a <= v[0]) return 0;
    while (v[(size_t)low + 1] <= a) low++;
    const double down = a - v[(size_t)low], up = v[(size_t)low + 1] - a;
    return low + (up < down || (up == down && low % 2 == 1));
}
int round_up(const std::vector<double> &v, double a) {
    int code = 0;
    while (code + 1 < (int)v.size() && v[(size_t)code] < a) code++;
    return code;
}

enum { E2M1, UE4M3, E8M0, E8M0_UP, FORMATS };
TE_BOTH uint8_t convert(int format, float x) {
    return format == E2M1 ? te_e2m1_of_float(x) : format == UE4M3 ? te_ue4m3_of_float(x) : format == E8M0 ? te_e8m0_of_float(x) : te_e8m0_of_float_up(x);
}
TE_BOTH uint8_t convert_stochastic(int format, float x, uint32_t random) {
    return format == E2M1 ? te_e2m1_of_float_stochastic(x, random) : format == UE4M3 ? te_ue4m3_of_float_stochastic(x, random) : te_e8m0_of_float_stochastic(x, random);
}
TE_BOTH float value_of(int format, uint8_t code) {
    return format == E2M1 ? te_float_of_e2m1(code) : format == UE4M3 ? te_float_of_ue4m3(code) : te_float_of_e8m0(code);
}
const std::vector<double> &values_of(int format) { return format == E2M1 ? e2m1_values() : format == UE4M3 ? ue4m3_values() : e8m0_values(); }

uint8_t expected(int format, float x) {
    if (std::isnan(x)) return format == E2M1 ? 7 : format == UE4M3 ? 0x7f : 0xff;
    const double a = std::fabs((double)x);
    if (format == E2M1) return (uint8_t)(nearest(e2m1_values(), a) | (std::signbit(x) ? 8 : 0));
    if (std::signbit(x)) return 0;
    if (format == UE4M3) return (uint8_t)nearest(ue4m3_values(), a);
    return (uint8_t)(format == E8M0 ? nearest(e8m0_values(), a) : round_up(e8m0_values(), a));
}

// Every value, the midpoint to the next, the floats beside both, subnormal floats, infinities, NaNs and random floats; with both signs.
std::vector<float> interesting(int format) {
    std::vector<float> x;
    const std::vector<double> &v = values_of(format);
    for (size_t i = 0; i < v.size(); i++)
        for (const double c : {v[i], i + 1 < v.size() ? (v[i] + v[i + 1]) / 2 : v[i] * 1.5}) {
            const float f = (float)c;
            x.push_back(f), x.push_back(std::nextafterf(f, INFINITY)), x.push_back(std::nextafterf(f, 0));
        }
    for (const float f : {0.0f, 1e-45f, 1e-40f, 2.9387e-39f, 5.8775e-39f, 1.1754944e-38f, 5.99999f, 6.5f, 7.0f, 1e30f, 1.7e38f, 3.4028235e38f, INFINITY, NAN}) x.push_back(f);
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0, 3);
    for (int i = 0; i < 1 << 16; i++) x.push_back(te_float_of_bits((uint32_t)random())), x.push_back(normal(random));
    const size_t n = x.size();
    for (size_t i = 0; i < n; i++) x.push_back(-x[i]);
    return x;
}

struct arrays { uint8_t *out, *stochastic; float *back; const float *in; int n, format; };
TE_FN void body(const arrays *a, te_block b) {
    int group;
    const te_lanes g = te_lanes_here(TE_CUDA ? 64 : 1, &group);
    for (int i = b.x * 1024 + g.id; i < a->n && i < (b.x + 1) * 1024; i += g.count) {
        uint32_t word[4];
        te_philox(word, 77, (uint64_t)i, 5, 9);
        a->out[i] = convert(a->format, a->in[i]);
        a->stochastic[i] = convert_stochastic(a->format, a->in[i], word[0] & 0xffffu);
        a->back[i] = value_of(a->format, a->out[i]);
    }
}
TE_KERNEL(each, TE_CUDA ? 64 : 1, arrays, body(te_args, te_at))

struct results { std::vector<uint8_t> out, stochastic; std::vector<float> back; };
results on_target(const std::vector<float> &in, int format) {
    te_context c;
    REQUIRE(te_context_create(&c, 0, 1) == TE_OK);
    const size_t n = in.size();
    void *p[4];
    for (void *&q : p) REQUIRE(te_allocate(&c, &q, n * 4) == TE_OK);
    REQUIRE(te_copy(&c, p[0], in.data(), n * 4) == TE_OK);
    const arrays a = {(uint8_t *)p[1], (uint8_t *)p[2], (float *)p[3], (const float *)p[0], (int)n, format};
    REQUIRE(each_launch(&c, te__grid_of(te_ceil_div(a.n, 1024), 1), &a) == TE_OK);
    results r = {std::vector<uint8_t>(n), std::vector<uint8_t>(n), std::vector<float>(n)};
    REQUIRE(te_copy(&c, r.out.data(), p[1], n) == TE_OK);
    REQUIRE(te_copy(&c, r.stochastic.data(), p[2], n) == TE_OK);
    REQUIRE(te_copy(&c, r.back.data(), p[3], n * 4) == TE_OK);
    REQUIRE(te_synchronize(&c) == TE_OK);
    for (void *q : p) te_release(&c, q);
    te_context_destroy(&c);
    return r;
}

} // namespace

TEST_CASE("every code has the value that its format defines", "[small_dtypes]") {
    for (int code = 0; code < 16; code++) {
        const float v = te_float_of_e2m1((uint8_t)code);
        CHECK((double)std::fabs(v) == e2m1_values()[(size_t)(code & 7)]);
        CHECK(std::signbit(v) == (code >= 8));
        CHECK(te_float_of_e2m1((uint8_t)(code | 0xf0)) == v); // the high four bits hold another number
    }
    for (int code = 0; code < 127; code++) CHECK((double)te_float_of_ue4m3((uint8_t)code) == ue4m3_values()[(size_t)code]);
    CHECK(std::isnan(te_float_of_ue4m3(0x7f)));
    CHECK(ue4m3_values()[126] == 448);
    for (int code = 0; code < 255; code++) {
        CHECK((double)te_float_of_e8m0((uint8_t)code) == e8m0_values()[(size_t)code]);
        CHECK((double)te_inverse_of_e8m0((uint8_t)code) == 1 / e8m0_values()[(size_t)code]);
    }
    CHECK(std::isnan(te_float_of_e8m0(0xff)));
    CHECK(std::isnan(te_inverse_of_e8m0(0xff)));
}
TEST_CASE("rounding is to nearest even or up, at every tie and beside it, on host and target", "[small_dtypes]") {
    for (int format = 0; format < FORMATS; format++) {
        const std::vector<float> x = interesting(format);
        const results there = on_target(x, format);
        size_t wrong = 0, wrong_there = 0;
        for (size_t i = 0; i < x.size(); i++) {
            const uint8_t here = convert(format, x[i]);
            const float back = value_of(format, here);
            wrong += here != expected(format, x[i]);
            wrong_there += there.out[i] != here || memcmp(&there.back[i], &back, 4) != 0;
        }
        INFO("format " << format);
        CHECK(wrong == 0);
        CHECK(wrong_there == 0);
    }
}
TEST_CASE("stochastic rounding: to a neighbour, exact numbers unchanged, the same bits on the target", "[small_dtypes]") {
    for (int format = 0; format < E8M0_UP; format++) {
        const std::vector<float> x = interesting(format);
        const std::vector<double> &v = values_of(format);
        const results there = on_target(x, format);
        size_t wrong = 0, wrong_there = 0;
        for (size_t i = 0; i < x.size(); i++) {
            uint32_t word[4];
            te_philox(word, 77, (uint64_t)i, 5, 9);
            const uint8_t here = convert_stochastic(format, x[i], word[0] & 0xffffu), near = expected(format, x[i]);
            wrong_there += there.stochastic[i] != here;
            if (std::isnan(x[i]) || (format != E2M1 && std::signbit(x[i]))) {
                wrong += here != near;
                continue;
            }
            const int mask = format == E2M1 ? 7 : 0xff, code = here & mask;
            const double a = std::fabs((double)x[i]);
            const int above = round_up(v, std::min(a, v.back())), below = v[(size_t)above] > a && above ? above - 1 : above;
            wrong += (code != above && code != below) || (format == E2M1 && (here >> 3 != 0) != std::signbit(x[i]));
        }
        INFO("format " << format);
        CHECK(wrong == 0);
        CHECK(wrong_there == 0);
    }
}
TEST_CASE("stochastic rounding: over all 65536 random numbers the mean is the number, to 2^-16 of the distance", "[small_dtypes]") {
    for (int format = 0; format < E8M0_UP; format++)
        for (const float x : {0.1f, 0.37f, 0.99f, 1.3f, 2.2f, 3.9f, 4.1f, 5.77f, 5.999f}) {
            double sum = 0;
            for (uint32_t random = 0; random < 65536; random++) sum += value_of(format, convert_stochastic(format, x, random));
            const std::vector<double> &v = values_of(format);
            const int above = round_up(v, x);
            const double distance = v[(size_t)above] - v[(size_t)above - 1];
            INFO("format " << format << " x " << x);
            CHECK(std::fabs(sum / 65536 - (double)x) <= distance / 65536);
        }
}
