// numbers.h -- draws, stores and compares the numbers of tests. A library of its own, because its loops over every element must be
// optimised even where the tests are not.
#ifndef TESTS_NUMBERS_H
#define TESTS_NUMBERS_H

#include <cstdint>
#include <random>
#include <vector>

#include "te/core/dtype.h" // te_dtype

namespace numbers {

typedef std::vector<double> vec;

// n normal numbers, rounded to the dtype.
vec drawn(std::mt19937 &random, std::normal_distribution<double> normal, size_t n, te_dtype t);
// n normal numbers in f32, number i times factor[i % factor.size()], rounded to the dtype.
vec drawn(std::mt19937 &random, const std::vector<float> &factor, size_t n, te_dtype t);

std::vector<uint8_t> stored(const vec &x, te_dtype t);
vec loaded(const void *p, size_t from, size_t n, te_dtype t);
// The number of bytes of p that differ from `byte`.
size_t others(const uint8_t *p, size_t n, uint8_t byte);

double rms(const vec &x);
// Errors of x relative to its bounds. worst: the largest |x - ref| / bound, at index `at`. whole: the RMS of the errors over the RMS of
// the bounds.
struct distance {
    double worst, whole;
    size_t at;
};
distance within(const vec &x, const vec &ref, const vec &bound);
// The largest error of out[m, n] = a[m, k] b[n, k]^T relative to its bound, which is rounding times max(|element|, least) plus lost times
// the sum of |terms|.
double worst_of_product(const vec &out, const vec &a, const vec &b, size_t m, size_t n, size_t k, double rounding, double least, double lost);

} // namespace numbers

#endif
