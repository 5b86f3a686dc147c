// bounds.h -- how far off a value of the reference's a kernel may be: for each op the sum of the |terms| that it adds
// up, times the format's epsilon, and what the errors of its inputs become. No floor, and nothing fitted: a value that
// cancels to nothing may be off by the epsilon of what cancelled.
//
// Do this:
//     bounds::forward b(list, params, call, dtype);
//     reference::forward(list, params, x, edges, call, rounding, &outs, [&](size_t i, vec &y) { b.step(i, y, ...); });
//     check_within("y", got, v.out.back(), b.error.back());
//
// Units. Arithmetic is f32, whatever the dtype: a rounding is u = 2^-24 of its result, and the roundings of a sum are a
// random walk whose steps are u times its partial sums. Where the terms have either sign the partial sums are a random
// walk, too: one standard deviation is 0.9 u times the sum of |terms|. Where all have one sign they grow with the
// terms, and it is u sqrt(n / 3) times the sum. Eight, or four, of them are the bound. te/core/math.h gives exp to 2e-7
// (1 + |x|). A stored 16-bit value is one unit in the last place off where two roundings fall apart.
#ifndef TESTS_BOUNDS_H
#define TESTS_BOUNDS_H

#include <algorithm>

#include "reference.h"

namespace bounds {

using reference::call;
using reference::list;
using reference::op;
using reference::vec;

const double sums = 1.0 / (1 << 21); // of the sum of |terms|
inline double same_sign(size_t n) { return sums * std::max(1.0, std::sqrt((double)n / 12)); }
const double functions = 1.0 / (1 << 21); // of exp and what is made of it; 2e-7 twice over, for it stands in a quotient

// One unit in the last place of a number of this size, at most.
inline double ulp(double size, te_dtype t) {
    return t == TE_f32 ? 0 : t == TE_bf16 ? size / (1 << 7) : std::max(size / (1 << 10), 1.0 / (1 << 24));
}
// The steepest slope that an input which may be off by e can have.
inline double slope(const std::string &kind, double x, double e) {
    return std::max(std::fabs(reference::activation_slope(kind, x)),
                    std::max(std::fabs(reference::activation_slope(kind, x + e)),
                             std::fabs(reference::activation_slope(kind, x - e))));
}

// ---- norms ---------------------------------------------------------------------------------------------------------

// Of one row: the normalised values, and how far off they are for inputs off by e.
struct norm_errors {
    reference::norm_row row;
    double n;
    vec xhat, error;
    norm_errors(const op &o, const double *x, const double *e)
        : row(reference::norm_of(o, x)), n(o.kind == "l2norm" ? 1 : (double)o.in) {
        const bool centred = o.kind.compare(0, 9, "layernorm") == 0;
        double size = 0, off = 0, spread = 0;
        for (size_t k = 0; centred && k < o.in; k++) size += std::fabs(x[k]) / n, off += (e ? e[k] : 0) / n;
        for (size_t k = 0; k < o.in; k++) {
            error.push_back((e ? e[k] : 0) + off + sums * (std::fabs(x[k]) + size));
            xhat.push_back((x[k] - row.mean) * row.rstd);
            spread += std::fabs(xhat[k]) * error[k] * row.rstd / n;
        }
        for (size_t k = 0; k < o.in; k++)
            error[k] = row.rstd * error[k] + std::fabs(xhat[k]) * (spread + same_sign(o.in));
    }
};

// ---- attention -----------------------------------------------------------------------------------------------------

// One query: probabilities, and how far off each is. In 16 bits they are rounded on their way into a product.
struct attention_row {
    vec p, error, slope, slope_error; // slope: the derivative of softcap
    double p_sink, sink_error;        // of its sink; 0: it has none
    attention_row(const vec &x, const vec *ex, size_t q0, size_t k0, size_t width, size_t dim, size_t keys,
                  const reference::attention_options &with, const vec &bias, double sink, te_dtype t)
        : p(keys), error(keys), slope(keys), slope_error(keys) {
        const double scale = with.scale;
        double top = sink, sum = 0, mean = 0;
        for (size_t j = 0; j < keys; j++) {
            for (size_t d = 0; d < dim; d++) {
                const double q = x[q0 + d], k = x[k0 + j * width + d];
                p[j] += scale * q * k;
                error[j] += std::fabs(scale) * sums * std::fabs(q * k);
                if (ex)
                    error[j] +=
                        std::fabs(scale) * (std::fabs(q) * (*ex)[k0 + j * width + d] + std::fabs(k) * (*ex)[q0 + d]);
            }
            p[j] = with.capped(p[j]), slope[j] = with.slope(p[j]);
            if (with.softcap > 0) {
                error[j] += functions * with.softcap;
                slope_error[j] = 2 * std::fabs(p[j]) / with.softcap * (error[j] / with.softcap) + functions;
            }
            p[j] += bias[j], error[j] += functions * std::fabs(bias[j]);
            top = std::max(top, p[j]);
        }
        for (size_t j = 0; j < keys; j++) {
            error[j] += functions * (1 + std::fabs(p[j] - top) + std::fabs(top));
            p[j] = std::exp(p[j] - top), sum += p[j];
        }
        const double off = functions * (1 + (sink > -INFINITY ? std::fabs(sink - top) : 0) + std::fabs(top));
        p_sink = std::exp(sink - top), sum += p_sink, p_sink /= sum, mean = p_sink * off;
        for (size_t j = 0; j < keys; j++) p[j] /= sum, mean += p[j] * error[j];
        sink_error = p_sink * (off + mean + same_sign(keys));
        for (size_t j = 0; j < keys; j++) error[j] = p[j] * (error[j] + mean + same_sign(keys)) + ulp(p[j], t);
    }
};
struct attention_shape {
    reference::attention_sizes at;
    size_t dim, width, out; // width: of the rows of keys and values
    reference::attention_options with;
    double scale;
    attention_shape(const op &o, const call &c, size_t elements)
        : at(o, c, elements), dim(at.dim), width(at.kv_width), out(o.out), with(o), scale(with.scale) {}
    // f(first of q, of k, of v, of y, keys, what dropout multiplies by, biases, their places in the table, head) for each query of each head
    template <class F>
    void each(size_t id, const call &c, const vec *w, F f) const {
        const vec *table = w ? with.table_of(w) : nullptr;
        std::vector<size_t> place(at.keys);
        vec kept(at.keys), bias(at.keys);
        for (size_t b = 0; b < (size_t)c.batch; b++)
            for (size_t h = 0; h < at.heads; h++)
                for (size_t i = 0; i < at.queries; i++) {
                    const size_t from = with.first(at.at(i)), end = std::max(with.end(at.at(i), at.keys), from);
                    const size_t k0 = at.k0(b, h) + from * width; // of the first that it sees
                    for (size_t j = from; j < end; j++) {
                        kept[j - from] = with.kept(id, b * at.heads + h, i, j, c), bias[j - from] = with.bias(h, at.heads, at.at(i), j);
                        place[j - from] = with.place(h, at.heads, i, at.at(i), j);
                        if (table) bias[j - from] += (*table)[place[j - from]];
                    }
                    f(at.q0(b, h, i), k0, k0 + at.kv * dim, (b * at.queries + i) * out + h * dim, end - from, kept, bias, place, h);
                }
    }
};
inline double sink_of(const vec *sinks, size_t head) { return sinks ? (*sinks)[head] : -INFINITY; }
inline vec attention(const op &o, size_t id, const vec &x, const vec &ex, const vec *w, const call &c, te_dtype t) {
    const attention_shape s(o, c, x.size());
    const vec *sinks = w ? s.with.sinks_of(w) : nullptr;
    vec e(c.rows() * o.out, 0.0);
    s.each(id, c, w, [&](size_t q0, size_t k0, size_t v0, size_t y0, size_t keys, const vec &kept, const vec &bias, const std::vector<size_t> &, size_t h) {
        const attention_row r(x, &ex, q0, k0, s.width, s.dim, keys, s.with, bias, sink_of(sinks, h), t);
        for (size_t j = 0; j < keys; j++)
            for (size_t d = 0; d < s.dim; d++) {
                const double v = std::fabs(x[v0 + j * s.width + d]);
                e[y0 + d] += kept[j] * (r.error[j] * v + r.p[j] * (ex[v0 + j * s.width + d] + sums * v));
            }
    });
    return e;
}
// Turning by an angle: its sine and cosine are off by the angle's own error.
inline vec rope(const op &o, const vec &x, const vec &ex, const call &c) {
    const size_t heads = (size_t)(o.number(0, 0) + o.number(1, 0)), dim = (size_t)o.number(2, 0),
                 rotary = (size_t)o.option("rotary_dim", (double)dim);
    const bool interleaved = o.option("interleaved", 0) == 1;
    const double magnitude = reference::rope_table(o).magnitude;
    vec e = ex;
    for (size_t r = 0; r < c.rows(); r++)
        for (size_t h = 0; h < heads; h++)
            for (size_t p = 0; p < rotary / 2; p++) {
                const size_t at = r * o.in + h * dim, i = at + (interleaved ? 2 * p : p),
                             j = at + (interleaved ? 2 * p + 1 : p + rotary / 2);
                const double angle = (double)(c.position + (int)(r % (size_t)c.seq));
                e[i] = e[j] = magnitude * (ex[i] + ex[j] + (functions * (1 + angle) + sums) * (std::fabs(x[i]) + std::fabs(x[j])));
            }
    return e;
}

// ---- forward -------------------------------------------------------------------------------------------------------

struct forward {
    const list &l;
    const std::vector<vec> &params;
    const call &c;
    te_dtype dtype;
    vec x;
    std::vector<vec> value, error; // by op; what a kernel stored is right by itself
    std::vector<vec> given;        // by op: the error before that
    reference::edges inputs;       // by name, where a cross_attention reads one
    forward(const list &ops, const std::vector<vec> &p, const vec &first, const call &what, te_dtype t)
        : l(ops), params(p), c(what), dtype(t), x(first) {}

    // How far off what the fork or input of op i kept is, and how large element k of it.
    vec kept_error(size_t i, size_t n) const {
        const size_t edge = (size_t)l.ops[i].edge;
        return l.ops[edge].kind == "input" ? vec(n, 0.0) : error[edge];
    }
    double kept_size(size_t i, size_t k) const {
        const size_t edge = (size_t)l.ops[i].edge;
        return l.ops[edge].kind == "input" ? 0 : std::fabs(value[edge][k]);
    }
    // The error of op i, whose output is y: `rounded` if it is stored, `may` if a kernel may round it or not.
    void step(size_t i, const vec &y, bool rounded, bool may) {
        const op &o = l.ops[i];
        const size_t rows = y.size() / o.out;
        const vec &in = i ? value[i - 1] : x, before = i ? error[i - 1] : vec(x.size(), 0.0);
        const vec *w = o.params ? &params[(size_t)o.first_param] : nullptr;
        vec e = before;
        const std::string gated = reference::gate(o.kind);
        e.resize(y.size(), 0.0);
        if (o.kind == "linear" || o.kind == "tied_linear") {
            for (size_t r = 0; r < rows; r++)
                for (size_t n = 0; n < o.out; n++) {
                    double sum = 0;
                    for (size_t k = 0; k < o.in; k++)
                        sum +=
                            std::fabs((*w)[n * o.in + k]) * (before[r * o.in + k] + sums * std::fabs(in[r * o.in + k]));
                    e[r * o.out + n] = sum;
                }
        } else if (reference::is_norm(o.kind)) {
            for (size_t r = 0; r < rows; r++) {
                const norm_errors n(o, &in[r * o.in], &before[r * o.in]);
                for (size_t k = 0; k < o.in; k++) {
                    const double gamma = std::fabs(reference::gamma_of(o, params, k)),
                                 beta = o.params == 2 ? std::fabs(params[(size_t)o.first_param + 1][k]) : 0;
                    const double stored = o.params ? std::fabs((*w)[k]) + 1 : 1; // gamma, from what is stored less 1
                    e[r * o.in + k] = gamma * n.error[k] + sums * (std::fabs(n.xhat[k]) * stored + beta);
                }
            }
        } else if (o.kind.compare(0, 9, "head_norm") == 0) {
            reference::head_norm(o).each(rows, [&](size_t at, const op &of) {
                const norm_errors n(of, &in[at], &before[at]);
                for (size_t k = 0; k < of.in; k++) {
                    const double stored = std::fabs(params[(size_t)of.first_param][k]) + 1; // gamma, from what is stored less 1
                    e[at + k] = std::fabs(reference::gamma_of(of, params, k)) * n.error[k] + sums * std::fabs(n.xhat[k]) * stored;
                }
            });
        } else if (reference::is_activation(o.kind)) {
            for (size_t k = 0; k < e.size(); k++)
                e[k] = before[k] * slope(o.kind, in[k], before[k]) +
                       functions * (std::fabs(in[k]) + std::fabs(y[k]) * (1 + std::fabs(in[k])));
        } else if (!gated.empty()) {
            for (size_t r = 0; r < rows; r++)
                for (size_t k = 0; k < o.out; k++) {
                    const size_t at = r * o.in + k;
                    const double a = in[at], b = std::fabs(in[at + o.out]), f = reference::activation(gated, a);
                    const double ef = before[at] * slope(gated, a, before[at]) +
                                      functions * (1 + std::fabs(a) + std::fabs(f) * (1 + std::fabs(a)));
                    e[r * o.out + k] =
                        ef * (b + before[at + o.out]) + std::fabs(f) * before[at + o.out] + sums * std::fabs(f) * b;
                }
        } else if (o.kind == "attention") {
            e = attention(o, i, in, before, w, c, dtype);
        } else if (o.kind == "cross_attention") {
            const op &fork = l.ops[(size_t)o.edge];
            const vec &kv = fork.kind == "input" ? inputs.at(fork.name) : value[(size_t)o.edge];
            e = attention(o, i, reference::joined(in, kv), reference::joined(before, kept_error(i, kv.size())), w, c, dtype);
        } else if (o.kind == "rope") {
            e = rope(o, in, before, c);
        } else if (o.kind == "embedding") {
            std::fill(e.begin(), e.end(), 0.0);
        } else if (o.kind == "mul_param") {
            for (size_t k = 0; k < e.size(); k++)
                e[k] = before[k] * std::fabs((*w)[k % w->size()]) + sums * std::fabs(y[k]);
        } else if (o.kind == "softcap") { // y = cap tanh(x / cap)
            for (size_t k = 0; k < e.size(); k++) e[k] = before[k] + functions * std::fabs(y[k]);
        } else if (o.kind == "dyt") { // y = weight tanh(alpha x) + bias
            for (size_t k = 0; k < e.size(); k++) {
                const double weight = std::fabs(params[(size_t)o.first_param + 1][k % o.in]);
                const double bias = std::fabs(params[(size_t)o.first_param + 2][k % o.in]);
                const double ax = std::fabs((*w)[0]), t = std::fabs(std::tanh((*w)[0] * in[k]));
                e[k] = weight * (ax * before[k] + functions * (t + ax * std::fabs(in[k]) * (1 - t * t))) +
                       sums * (weight * t + bias);
            }
        } else if (o.kind == "clamped_swiglu") { // y = f(a) (1 + b); no slope of x sigmoid(alpha x) is above 1.1
            for (size_t r = 0; r < rows; r++)
                for (size_t k = 0; k < o.out; k++) {
                    const size_t a = r * o.in + k, b = a + o.out;
                    const double limit = o.option("limit", 7), f = std::fabs(std::fmin(in[a], limit));
                    const double up = 1 + std::fmin(std::fabs(in[b]), limit);
                    e[r * o.out + k] = (1.1 * before[a] + functions * (1 + f) * (1 + f)) * up + f * before[b];
                }
        } else if (o.kind == "load") {
            e = kept_error(i, y.size());
        } else if (o.kind == "mul") { // y = x kept
            const vec off = kept_error(i, y.size());
            for (size_t k = 0; k < e.size(); k++) {
                const double by = in[k] != 0 ? std::fabs(y[k] / in[k]) : kept_size(i, k);
                e[k] = before[k] * (by + off[k]) + std::fabs(in[k]) * off[k] + sums * std::fabs(y[k]);
            }
        } else if (o.kind == "cross_entropy") { // y = top + log sum - x[label]
            for (size_t r = 0; r < rows; r++) {
                const double z = o.option("z_loss", 0), smooth = o.option("label_smoothing", 0);
                double size = 0, off = 0;
                for (size_t k = 0; k < o.in; k++)
                    size = std::max(size, std::fabs(in[r * o.in + k])), off = std::max(off, before[r * o.in + k]);
                e[r] = c.labels[r] == c.ignore_index
                           ? 0
                           : 2 * off + same_sign(o.in) + (functions + sums) * (1 + std::log((double)o.in) + 2 * size);
                const double log_sum = size + std::log((double)o.in); // at most
                if (c.labels[r] == c.ignore_index) continue;
                e[r] += smooth * (off + same_sign(o.in) * 2 * size) +
                        2 * z * log_sum * (off + same_sign(o.in) + (functions + 2 * sums) * (1 + log_sum));
            }
        } else { // a sum of what came in and of what an op has: bias, positions, add; or a multiple: dropout, scale; or
                 // itself
            const bool same = o.kind == "fork" || o.kind == "input" || o.kind == "output";
            const double factor = o.kind == "scale"                   ? std::fabs(o.factor(0, 1))
                                  : o.kind == "dropout" && c.training ? 1 / (1 - o.factor(0, 0.5))
                                                                      : 1;
            const vec *kept =
                o.kind == "add" && l.ops[(size_t)o.edge].kind != "input" ? &error[(size_t)o.edge] : nullptr;
            for (size_t k = 0; k < e.size() && !same; k++)
                e[k] = factor * before[k] + (kept ? (*kept)[k] : 0) +
                       sums * (2 * std::fabs(in[k]) * factor + std::fabs(y[k]));
        }
        for (size_t k = 0; k < e.size() && (rounded || may); k++)
            e[k] += ulp(std::fabs(y[k]) + e[k], dtype) * (rounded + may);
        value.push_back(y), error.push_back(e), given.push_back(e);
    }
    // Go on from what a kernel stored; `before`: or from what it had before that was rounded.
    void stored(const vec &y, bool before) {
        value.back() = y;
        for (size_t k = 0; k < y.size(); k++) error.back()[k] = before ? ulp(std::fabs(y[k]), dtype) : 0;
    }
};

} // namespace bounds

#endif
