// attention_reference.cc -- attention in double, as declared in attention_reference.h.
#include "attention_reference.h"

#include <algorithm>
#include <cmath>

namespace attention_reference {

std::vector<size_t> keys_of(const form &f, size_t query, size_t seq) {
    std::vector<size_t> keys;
    for (size_t j = 0; j < seq; j++)
        if (f.sees((int)query, (int)j)) keys.push_back(j);
    return keys;
}
std::vector<double> alibi_slopes(int heads) {
    int whole = 1;
    while (2 * whole <= heads) whole *= 2;
    std::vector<double> v;
    for (int i = 1; i <= whole; i++) v.push_back(std::pow(std::pow(2, -8.0 / whole), i));
    if (heads > whole) {
        const std::vector<double> twice = alibi_slopes(2 * whole);
        for (int i = 0; whole + i < heads; i++) v.push_back(twice[(size_t)(2 * i)]);
    }
    return v;
}
double dropout_factor(const form &f, const drawn &from, size_t head, size_t query, size_t key, size_t seq) {
    uint32_t word[4];
    const double limit = std::floor(65536 * (double)(float)f.dropout + 0.5);
    head += from.first_head, seq = from.seq ? from.seq : seq;
    te_philox(word, from.rng.seed, (uint64_t)(head * ((seq + 15) / 16) + query / 16) << 32 | (key / 32 * 64 + query % 8 * 8 + key % 8), from.id,
              from.rng.offset);
    return (word[key / 8 % 4] >> (query / 8 % 2 ? 16 : 0) & 0xffff) < limit ? 0 : 65536 / (65536 - limit);
}
reference attention(const form &f, int heads, int kv_heads, int dim, int batch, int seq, double scale, const std::vector<double> &qkv, const std::vector<double> &dout,
                    const drawn &from, const std::vector<double> *stored, const std::vector<double> *sinks) {
    const size_t h = (size_t)heads, kv = (size_t)kv_heads, d = (size_t)dim, e = f.value ? (size_t)f.value : d, n = (size_t)seq, width = (h + kv) * d + kv * e;
    reference r;
    r.out.assign((size_t)batch * n * h * e, 0), r.lse.assign((size_t)batch * h * n, 0), r.dqkv.assign(qkv.size(), 0);
    r.dsinks.assign(h, 0), r.dsinks_size.assign(h, 0);
    const size_t all = from.heads ? from.heads : h; // a head's slope depends on its index among the heads of all ranks
    const std::vector<double> slopes = alibi_slopes((int)all);
    std::vector<double> p(n), t(n), drop(n, 1.0); // t: the tanh of softcap; drop: dropout's factor
    for (size_t b = 0; b < (size_t)batch; b++)
        for (size_t head = 0; head < h; head++)
            for (size_t i = 0; i < n; i++) {
                const size_t group = head / (h / kv), first = b * n * width;
                const std::vector<size_t> keys = keys_of(f, i, n);
                const double *q = &qkv[first + i * width + head * d], *dy = &dout[(b * n + i) * h * e + head * e];
                double *dq = &r.dqkv[first + i * width + head * d], *y = &r.out[(b * n + i) * h * e + head * e];
                const size_t k0 = first + (h + group) * d, v0 = first + (h + kv) * d + group * e;
                const double sink = f.sinks ? (*sinks)[head] : -INFINITY; // the score of one more key, whose value is 0
                double top = sink, sum = 0, delta = 0, size = 0;
                for (const size_t j : keys) {
                    double dot = 0;
                    for (size_t c = 0; c < d; c++) dot += q[c] * qkv[k0 + j * width + c];
                    p[j] = dot * scale;
                    if (f.softcap > 0) t[j] = std::tanh(p[j] / f.softcap), p[j] = f.softcap * t[j];
                    if (f.alibi) p[j] -= slopes[from.heads ? (from.first_head + head) % all : head] * std::fabs((double)i - (double)j);
                    top = std::max(top, p[j]);
                }
                for (const size_t j : keys) sum += std::exp(p[j] - top);
                sum += std::exp(sink - top);
                r.lse[(b * h + head) * n + i] = top + std::log(sum);
                for (const size_t j : keys) {
                    p[j] = std::exp(p[j] - top) / sum;
                    if (f.dropout > 0) drop[j] = dropout_factor(f, from, b * (from.heads ? from.heads : h) + head, i, j, n);
                    for (size_t c = 0; c < e; c++) y[c] += p[j] * drop[j] * qkv[v0 + j * width + c];
                }
                const double *had = stored ? &(*stored)[(b * n + i) * h * e + head * e] : y;
                for (size_t c = 0; c < e; c++) delta += dy[c] * had[c], size += std::fabs(dy[c] * had[c]);
                // p (dp - delta) as of any score; dp is 0
                r.dsinks[head] += std::exp(sink - top) / sum * (0 - delta), r.dsinks_size[head] += std::exp(sink - top) / sum * size;
                for (const size_t j : keys) {
                    double dp = 0;
                    for (size_t c = 0; c < e; c++) dp += dy[c] * qkv[v0 + j * width + c];
                    const double ds = p[j] * (dp * drop[j] - delta) * scale * (1 - t[j] * t[j]);
                    for (size_t c = 0; c < e; c++) r.dqkv[v0 + j * width + c] += p[j] * drop[j] * dy[c];
                    for (size_t c = 0; c < d; c++) {
                        dq[c] += ds * qkv[k0 + j * width + c];
                        r.dqkv[k0 + j * width + c] += ds * q[c];
                    }
                }
            }
    return r;
}
distance distance_of(const std::vector<double> &x, const std::vector<double> &ref, size_t width, size_t from, size_t to, double floor) {
    double norm = 0, difference = 0, worst = 0;
    size_t n = 0;
    for (size_t i = 0; i < ref.size(); i++)
        if (i % width >= from && i % width < to) norm += ref[i] * ref[i], difference += (x[i] - ref[i]) * (x[i] - ref[i]), n++;
    const double rms = std::max(std::sqrt(norm / (double)n), floor);
    for (size_t i = 0; i < ref.size(); i++)
        if (i % width >= from && i % width < to) {
            const double e = std::fabs(x[i] - ref[i]) / (rms + std::fabs(ref[i]));
            if (!(e <= worst)) worst = e; // written so that a NaN is taken and stays
        }
    return {std::sqrt(difference / (double)n) / rms, worst};
}

} // namespace attention_reference
