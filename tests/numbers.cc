// numbers.cc -- the functions that numbers.h declares.
#include "numbers.h"

#include <algorithm>
#include <cmath>

namespace numbers {

vec drawn(std::mt19937 &random, std::normal_distribution<double> normal, size_t n, te_dtype t) {
    vec x(n);
    for (double &e : x) e = (double)te_round_to((float)normal(random), t);
    return x;
}
vec drawn(std::mt19937 &random, const std::vector<float> &factor, size_t n, te_dtype t) {
    std::normal_distribution<float> normal;
    vec x(n);
    for (size_t i = 0; i < n; i++) x[i] = (double)te_round_to(normal(random) * factor[i % factor.size()], t);
    return x;
}
std::vector<uint8_t> stored(const vec &x, te_dtype t) {
    std::vector<uint8_t> v(x.size() * te_dtype_bytes(t));
    for (size_t i = 0; i < x.size(); i++) te_store(v.data(), (int64_t)i, (float)x[i], t);
    return v;
}
vec loaded(const void *p, size_t from, size_t n, te_dtype t) {
    vec x(n);
    for (size_t i = 0; i < n; i++) x[i] = (double)te_load(p, (int64_t)(from + i), t);
    return x;
}
size_t others(const uint8_t *p, size_t n, uint8_t byte) { return n - (size_t)std::count(p, p + n, byte); }

double rms(const vec &x) {
    double sum = 0;
    for (double e : x) sum += e * e;
    return x.empty() ? 0 : std::sqrt(sum / (double)x.size());
}
distance within(const vec &x, const vec &ref, const vec &bound) {
    distance d = {0, 0, 0};
    double errors = 0, bounds = 0;
    for (size_t i = 0; i < ref.size(); i++) {
        const double e = std::fabs(x[i] - ref[i]), allowed = bound[i] + 1e-37; // 1e-37: f32 is less precise below it
        if (!(e / allowed <= d.worst) && !std::isnan(d.worst)) d.worst = e / allowed, d.at = i;
        errors += e * e, bounds += allowed * allowed;
    }
    d.whole = ref.empty() ? 0 : std::sqrt(errors / bounds);
    return d;
}
double worst_of_product(const vec &out, const vec &a, const vec &b, size_t m, size_t n, size_t k, double rounding, double least, double lost) {
    double worst = 0;
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            double sum = 0, all = 0;
            for (size_t l = 0; l < k; l++) sum += a[i * k + l] * b[j * k + l], all += std::fabs(a[i * k + l] * b[j * k + l]);
            const double e = std::fabs(out[i * n + j] - sum) / (rounding * std::max(std::fabs(sum), least) + lost * all + 1e-30);
            worst = e <= worst ? worst : e;
        }
    return worst;
}

} // namespace numbers
