// fp8_test.cc -- conversions to and from FP8. On the host they are compared with a search in doubles for the nearest number; those
// of the target, of one and of eight elements, must have the bits of the host.
#include <catch2/catch.hpp>

#include <cmath>
#include <random>
#include <vector>

#include "te/core/dtype.h"
#include "te/core/target.h" // TE_KERNEL

namespace {

// The value of an FP8 number by definition. e4m3: 4 exponent bits, bias 7, no infinities, one NaN of each sign. e5m2: 5 exponent
// bits, bias 15, infinities and NaNs as in IEEE 754.
double value_of(int byte, te_dtype t) {
    const int bits = t == TE_e4m3 ? 3 : 2, bias = t == TE_e4m3 ? 7 : 15, e = (byte & 0x7f) >> bits, m = byte & ((1 << bits) - 1);
    const double sign = byte & 0x80 ? -1 : 1;
    if (t == TE_e4m3 && (byte & 0x7f) == 0x7f) return NAN;
    if (t == TE_e5m2 && e == 31) return m ? NAN : sign * INFINITY;
    return e ? sign * std::ldexp(1 + std::ldexp((double)m, -bits), e - bias) : sign * std::ldexp((double)m, 1 - bias - bits);
}
// The nearest finite number, ties to even, by a search among all; the largest one for larger values. Not for a NaN.
int nearest(double v, te_dtype t) {
    const int sign = std::signbit(v) ? 0x80 : 0, largest = t == TE_e4m3 ? 0x7e : 0x7b;
    const double a = std::fabs(v);
    int best = 0;
    if (a >= value_of(largest, t)) return sign | largest; // for huge values the distances would be equal in double
    for (int h = 1; h <= largest; h++) {
        const double d = std::fabs(value_of(h, t) - a), b = std::fabs(value_of(best, t) - a);
        if (d < b || (d == b && h % 2 == 0)) best = h;
    }
    return sign | best;
}

enum { WAYS = 3 }; // the functions: of one element; te_store8 and te_load8; te_vec8
struct arrays { uint8_t *bytes[WAYS]; float *back[WAYS]; const float *in; int n; te_dtype t; };
TE_FN void body(const arrays *a, te_block b) {
    int group;
    const te_lanes g = te_lanes_here(TE_CUDA ? 64 : 1, &group);
    for (int i = b.x * 1024 + 8 * g.id; i < a->n && i < (b.x + 1) * 1024; i += 8 * g.count) {
        float v[8];
        te_vec8 e;
        const int n = a->n - i < 8 ? a->n - i : 8;
        te_load8(v, a->in, i, n, n == 8, TE_f32);
        for (int k = 0; k < n; k++) te_store(a->bytes[0], i + k, v[k], a->t), a->back[0][i + k] = te_load(a->bytes[0], i + k, a->t);
        te_store8_fp8(a->bytes[1], i, v, n, n == 8, a->t);
        te_vec8_of_fp8(&e, v, a->t);
        for (int k = 0; k < n; k++) a->bytes[2][i + k] = (uint8_t)(e.w[k / 4] >> 8 * (k % 4));
        te_vec8_load_fp8(&e, a->bytes[1], i, n, 0);
        te_vec8_floats_fp8(v, &e, a->t);
        te_store8(a->back[2], i, v, n, n == 8, TE_f32);
        for (int k = 0; k < n; k++) v[k] = te_round_to(a->in[i + k], a->t);
        te_store8(a->back[1], i, v, n, n == 8, TE_f32);
    }
}
TE_KERNEL(each, TE_CUDA ? 64 : 1, arrays, body(te_args, te_at))

struct results { std::vector<uint8_t> bytes[WAYS]; std::vector<float> back[WAYS]; };
results on_target(const std::vector<float> &in, te_dtype t) {
    te_context c;
    REQUIRE(te_context_create(&c, 0, 1) == TE_OK);
    const size_t n = in.size();
    arrays a;
    results r;
    void *p[1 + 2 * WAYS];
    for (void *&q : p) REQUIRE(te_allocate(&c, &q, n * 4) == TE_OK);
    REQUIRE(te_copy(&c, p[0], in.data(), n * 4) == TE_OK);
    a.in = (const float *)p[0], a.n = (int)n, a.t = t;
    for (int w = 0; w < WAYS; w++) a.bytes[w] = (uint8_t *)p[1 + w], a.back[w] = (float *)p[1 + WAYS + w];
    REQUIRE(each_launch(&c, te__grid_of(te_ceil_div(a.n, 1024), 1), &a) == TE_OK);
    for (int w = 0; w < WAYS; w++) {
        r.bytes[w].resize(n), r.back[w].resize(n);
        REQUIRE(te_copy(&c, r.bytes[w].data(), a.bytes[w], n) == TE_OK);
        REQUIRE(te_copy(&c, r.back[w].data(), a.back[w], n * 4) == TE_OK);
    }
    REQUIRE(te_synchronize(&c) == TE_OK);
    for (void *q : p) te_release(&c, q);
    te_context_destroy(&c);
    return r;
}

// Every bf16 and f16 number; every FP8 number, the midpoint to the next one, and the floats beside that midpoint; random bits.
std::vector<float> interesting(te_dtype t) {
    std::vector<float> x;
    for (int h = 0; h < 65536; h++) x.push_back(te_float_of_bf16((uint16_t)h)), x.push_back(te_float_of_f16((uint16_t)h));
    for (int h = 0; h < 256; h++) {
        const double v = value_of(h, t), next = value_of(h + 1, t);
        if (!std::isfinite(v)) continue;
        x.push_back((float)v);
        if (!std::isfinite(next)) continue;
        const float half = (float)(v / 2 + next / 2);
        x.push_back(half), x.push_back(std::nextafterf(half, INFINITY)), x.push_back(std::nextafterf(half, -INFINITY));
    }
    for (const float v : {0.0f, 1e-45f, 1e-40f, 1.17549435e-38f, 448.0f, 463.9f, 464.0f, 464.1f, 480.0f, 57344.0f, 61439.0f, 61440.0f, 65536.0f, 3.4e38f, INFINITY, NAN})
        x.push_back(v), x.push_back(-v);
    std::mt19937 random(3);
    for (int i = 0; i < 1 << 18; i++) {
        x.push_back(te_float_of_bits((uint32_t)random()));
        x.push_back(te_float_of_bits(((uint32_t)random() & 0x8fffffffu) | 0x38000000u)); // of 2^-15 and more
    }
    return x;
}

int wrong_bytes(te_dtype t) {
    const std::vector<float> x = interesting(t);
    const results there = on_target(x, t);
    int wrong = 0;
    for (size_t i = 0; i < x.size(); i++) {
        const int here = t == TE_e4m3 ? te_e4m3_of_float(x[i]) : te_e5m2_of_float(x[i]), should = std::isnan(x[i]) ? 0x7f : nearest(x[i], t);
        int bad = here != should;
        for (int w = 0; w < WAYS; w++) {
            const float back = there.back[w][i];
            const double v = value_of(should, t);
            bad += there.bytes[w][i] != should || (std::isnan(v) ? !std::isnan(back) : back != v || std::signbit(back) != std::signbit(v));
        }
        if (bad && wrong++ < 5)
            UNSCOPED_INFO(te_dtype_name(t) << ": " << x[i] << " is " << here << " here, " << (int)there.bytes[0][i] << ", " << (int)there.bytes[1][i] << ", "
                                           << (int)there.bytes[2][i] << " on the target, should be " << should);
    }
    return wrong;
}

} // namespace

TEST_CASE("every FP8 number has the value that its format defines", "[fp8]") {
    for (const te_dtype t : {TE_e4m3, TE_e5m2})
        for (int h = 0; h < 256; h++) {
            const float back = t == TE_e4m3 ? te_float_of_e4m3((uint8_t)h) : te_float_of_e5m2((uint8_t)h);
            const double v = value_of(h, t);
            CAPTURE(te_dtype_name(t), h, back, v);
            if (std::isnan(v)) CHECK(std::isnan(back));
            else CHECK((back == v && std::signbit(back) == std::signbit(v)));
        }
    CHECK(te_fp8_max(TE_e4m3) == value_of(0x7e, TE_e4m3));
    CHECK(te_fp8_max(TE_e5m2) == value_of(0x7b, TE_e5m2));
}
TEST_CASE("FP8 rounds to the nearest, ties to even, and saturates, on host and target", "[fp8]") {
    CHECK(wrong_bytes(TE_e4m3) == 0);
    CHECK(wrong_bytes(TE_e5m2) == 0);
}
#if !TE_CUDA
TEST_CASE("loads and stores of eight FP8 numbers: beyond the end they read 0 and write nothing", "[fp8]") {
    for (const te_dtype t : {TE_e4m3, TE_e5m2})
        for (int n = 0; n <= 8; n++) {
            alignas(16) uint8_t memory[32];
            memset(memory, 0xff, sizeof memory);
            const float v[8] = {1, -2, 3, -4, 5, -6, 7, -8};
            te_store8_fp8(memory, 8, v, n, n == 8, t);
            int written = 0;
            for (uint8_t b : memory) written += b != 0xff;
            CHECK(written == n);
            float back[8];
            te_vec8 e;
            te_vec8_load_fp8(&e, memory, 8, n, 0);
            te_vec8_floats_fp8(back, &e, t);
            for (int i = 0; i < 8; i++) CHECK(back[i] == (i < n ? v[i] : 0.0f));
            te_load8_fp8(back, memory, 8, n, n == 8, t);
            for (int i = 0; i < 8; i++) CHECK(back[i] == (i < n ? v[i] : 0.0f));
        }
}
#endif
