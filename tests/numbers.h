// numbers.h -- numbers that tests draw, store and compare: loops over every element, compiled once, optimised, for all tests.
#ifndef TESTS_NUMBERS_H
#define TESTS_NUMBERS_H

#include <cstdint>
#include <random>
#include <vector>

#include "te/core/dtype.h" // te_dtype

namespace numbers {

typedef std::vector<double> vec;

// n normal numbers as they are after rounding to the dtype; `normal` keeps what it has drawn ahead.
vec drawn(std::mt19937 &random, std::normal_distribution<double> normal, size_t n, te_dtype t);
// The same in f32; number i times factor[i % width].
vec drawn(std::mt19937 &random, const std::vector<float> &factor, size_t n, te_dtype t);

std::vector<uint8_t> stored(const vec &x, te_dtype t);
vec loaded(const void *p, size_t from, size_t n, te_dtype t);
// How many bytes of p are not `byte`.
size_t others(const uint8_t *p, size_t n, uint8_t byte);

double rms(const vec &x);
// Elements of x, each beside what it should be, as shares of what it may be off by: the largest share, where that is, and
// the root of the sum of squares over the same of the bounds.
struct distance {
    double worst, whole;
    size_t at;
};
distance within(const vec &x, const vec &ref, const vec &bound);
// Of out[m, n], which should be a[m, k] times b[n, k] transposed: the largest share of what it may be off by, `rounding` of itself (of
// `least`, if it is smaller) and `lost` of the sum of all magnitudes.
double worst_of_product(const vec &out, const vec &a, const vec &b, size_t m, size_t n, size_t k, double rounding, double least, double lost);

} // namespace numbers

#endif
