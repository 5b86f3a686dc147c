// bounds.cc -- the error bounds that bounds.h declares, for each kind of op: of its output and of its gradients.
#include "bounds.h"

namespace bounds {

fp8_sum::fp8_sum(const double *x, size_t x_step, const double *y, size_t y_step, size_t k, bool fast, bool tensor_cores) {
    const double cut = std::ldexp(1.0, -13);
    double part = 0, largest = 0;
    for (size_t l = 0; l < k; l++) {
        const double term = x[l * x_step] * y[l * y_step];
        sum += term, part += term, size += std::fabs(term), largest = std::max(largest, std::max(std::fabs(term), std::fabs(part)));
        if (l % 32 == 31 || l == k - 1) error += tensor_cores ? 33 * cut * largest : 0, largest = std::fabs(part);
        if (!fast && l % 128 == 127) part = largest = 0;
    }
    error += sums * size;
}

// The largest |slope| of an activation at x - e, x and x + e, where e is the error of x.
static double slope(const std::string &kind, double x, double e) {
    return std::max(std::fabs(reference::activation_slope(kind, x)),
                    std::max(std::fabs(reference::activation_slope(kind, x + e)),
                             std::fabs(reference::activation_slope(kind, x - e))));
}

// ---- norms ---------------------------------------------------------------------------------------------------------

// One row of a norm: its normalised values, and their error bounds if the inputs have errors e.
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

// ---- mixture of experts --------------------------------------------------------------------------------------------

// The relative error of the weights of token t. x: the router's input; ex: its error bounds, or null. The logits are sums, exp and the sigmoid
// multiply their errors by at most 1, and a quotient has the errors of both of its parts.
static double weight_error(const op &o, const reference::routing &q, size_t t, const vec &x, const vec *ex, const vec &w) {
    double off = 0, size = 0;
    for (size_t e = 0; e < q.experts; e++) {
        double l = o.option("bias", 0) == 1 ? sums * std::fabs(q.logit[t * q.experts + e]) : 0;
        for (size_t k = 0; k < o.in; k++)
            l += (sums * std::fabs(x[t * o.in + k]) + (ex ? (*ex)[t * o.in + k] : 0)) * std::fabs(w[e * o.in + k]);
        off = std::max(off, l), size = std::max(size, std::fabs(q.logit[t * q.experts + e]));
    }
    return 3 * off + 3 * functions * (2 + 2 * size) + same_sign(q.experts);
}
// The error bounds of the gradients of the logits, dlogit. eweight: those of the gradients of the weights, dweight.
static vec logit_errors(const op &o, const reference::routing &q, const vec &x, const vec &w, const vec &dweight, const vec &eweight,
                        const vec &dlogit, double loss_scale, te_dtype t16) {
    const double aux = o.option("aux_loss", 0), z = o.option("z_loss", 0);
    vec e(dlogit.size());
    for (size_t t = 0; t < q.tokens; t++) {
        const double relative = 2 * weight_error(o, q, t, x, nullptr, w) + 8 * sums;
        double along = 0, off = 0, balance = 0, top = 0;
        for (size_t k = 0; k < q.experts; k++) {
            balance += q.p[t * q.experts + k] * aux * (double)q.experts * (double)q.count[k] / (double)q.slot.size() * loss_scale;
            top = std::max(top, std::fabs(q.logit[t * q.experts + k]));
        }
        const auto own = [&](size_t j) { // the derivative of a score, at most; divided by the sum of the scores if the weight is
            const size_t at = t * q.top_k + j;
            return q.divides ? q.weight[at] / q.factor : q.chosen_score[at];
        };
        for (size_t j = 0; j < q.top_k; j++)
            along += own(j) * std::fabs(q.factor * dweight[t * q.top_k + j]), off += own(j) * q.factor * eweight[t * q.top_k + j];
        for (size_t k = 0; k < q.experts; k++) {
            const size_t at = t * q.experts + k;
            const double share = aux * (double)q.experts * (double)q.count[k] / (double)q.slot.size() * loss_scale;
            double mine = q.p[at];
            for (size_t j = 0; j < q.top_k; j++)
                if (q.expert[t * q.top_k + j] == k) {
                    const size_t i = t * q.top_k + j;
                    mine += own(j), e[at] += own(j) * q.factor * (eweight[i] + relative * std::fabs(dweight[i]));
                }
            e[at] += mine * (off + along * relative) + q.p[at] * (share + balance) * relative +
                     2 * z * loss_scale * q.p[at] * (top + std::log((double)q.experts) + 1) * (relative + functions);
            e[at] += ulp(std::fabs(dlogit[at]) + e[at], t16);
        }
    }
    return e;
}

// ---- attention -----------------------------------------------------------------------------------------------------

// One query: its probabilities and their error bounds. A 16-bit kernel rounds them before it multiplies them with v.
struct attention_row {
    vec p, error, slope, slope_error; // slope: the derivative of softcap
    double p_sink, sink_error;        // of the sink; 0 without one
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
    size_t dim, value, width, out; // columns: of a head of q and k, of a head of v; of a row of keys and values; of a row of y
    reference::attention_options with;
    double scale;
    attention_shape(const op &o, const call &c, size_t elements)
        : at(o, c, elements), dim(at.dim), value(at.value), width(at.kv_width), out(o.out), with(o), scale(with.scale) {}
    // Calls f(q0, k0, v0, y0, keys, dropout factors, biases, indices in the bias table, head) for each query of each head. The first four are the
    // indices of the first element of q, of the first visible key and value, and of y.
    template <class F>
    void each(size_t id, const call &c, const vec *w, F f) const {
        const vec *table = w ? with.table_of(w) : nullptr;
        std::vector<size_t> place(at.keys);
        vec drop(at.keys), bias(at.keys);
        for (size_t b = 0; b < (size_t)c.batch; b++)
            for (size_t h = 0; h < at.heads; h++)
                for (size_t i = 0; i < at.queries; i++) {
                    const size_t from = with.first(at.at(i)), end = std::max(with.end(at.at(i), at.keys), from);
                    const size_t k0 = at.k0(b, h) + from * width; // the first key that the query sees
                    for (size_t j = from; j < end; j++) {
                        drop[j - from] = with.dropout_factor(id, b * at.heads + h, i, j, c), bias[j - from] = with.bias(h, at.heads, at.at(i), j);
                        place[j - from] = with.place(h, at.heads, i, at.at(i), j);
                        if (table) bias[j - from] += (*table)[place[j - from]];
                    }
                    f(at.q0(b, h, i), k0, at.v0(b, h) + from * width, (b * at.queries + i) * out + h * value, end - from, drop, bias, place, h);
                }
    }
};
static double sink_of(const vec *sinks, size_t head) { return sinks ? (*sinks)[head] : -INFINITY; }
static vec attention(const op &o, size_t id, const vec &x, const vec &ex, const vec *w, const call &c, te_dtype t) {
    const attention_shape s(o, c, x.size());
    const vec *sinks = w ? s.with.sinks_of(w) : nullptr;
    vec e(c.rows() * o.out, 0.0);
    s.each(id, c, w, [&](size_t q0, size_t k0, size_t v0, size_t y0, size_t keys, const vec &drop, const vec &bias, const std::vector<size_t> &, size_t h) {
        const attention_row r(x, &ex, q0, k0, s.width, s.dim, keys, s.with, bias, sink_of(sinks, h), t);
        for (size_t j = 0; j < keys; j++)
            for (size_t d = 0; d < s.value; d++) {
                const double v = std::fabs(x[v0 + j * s.width + d]);
                e[y0 + d] += drop[j] * (r.error[j] * v + r.p[j] * (ex[v0 + j * s.width + d] + sums * v));
            }
    });
    return e;
}
// Rotating by an angle: its sine and cosine have the error of the angle.
static vec rope(const op &o, const vec &x, const vec &ex, const call &c) {
    const size_t heads = (size_t)(o.number(0, 0) + o.number(1, 0)), dim = (size_t)o.number(2, 0),
                 first = (size_t)o.option("first", 0), rotary = (size_t)o.option("rotary_dim", (double)(dim - first));
    const bool interleaved = o.option("interleaved", 0) == 1;
    const double magnitude = reference::rope_table(o).magnitude;
    vec e = ex;
    for (size_t r = 0; r < c.rows(); r++)
        for (size_t h = 0; h < heads; h++)
            for (size_t p = 0; p < rotary / 2; p++) {
                const size_t at = r * o.in + h * dim + first, i = at + (interleaved ? 2 * p : p),
                             j = at + (interleaved ? 2 * p + 1 : p + rotary / 2);
                const double angle = (double)(c.position + (int)(r % (size_t)c.seq));
                e[i] = e[j] = magnitude * (ex[i] + ex[j] + (functions * (1 + angle) + sums) * (std::fabs(x[i]) + std::fabs(x[j])));
            }
    return e;
}

// ---- forward -------------------------------------------------------------------------------------------------------

vec forward::fork_error(size_t i, size_t n) const {
    const size_t edge = (size_t)l.ops[i].edge;
    return l.ops[edge].kind == "input" ? vec(n, 0.0) : error[edge];
}
double forward::fork_size(size_t i, size_t k) const {
    const size_t edge = (size_t)l.ops[i].edge;
    return l.ops[edge].kind == "input" ? 0 : std::fabs(value[edge][k]);
}
void forward::step(size_t i, const vec &y, bool rounded, bool may) {
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
            const reference::norm_part part(o);
            const size_t first = r * o.in + part.first;
            const norm_errors n(part.of, &in[first], &before[first]);
            for (size_t k = 0; k < part.of.in; k++) {
                const double gamma = std::fabs(reference::gamma_of(o, params, k)),
                             beta = o.params == 2 ? std::fabs(params[(size_t)o.first_param + 1][k]) : 0;
                const double stored = o.params ? std::fabs((*w)[k]) + 1 : 1; // the size of the stored number: a 1p norm stores gamma - 1
                e[first + k] = gamma * n.error[k] + sums * (std::fabs(n.xhat[k]) * stored + beta);
            }
        }
    } else if (o.kind.compare(0, 9, "head_norm") == 0) {
        reference::head_norm(o).each(rows, [&](size_t at, const op &of) {
            const norm_errors n(of, &in[at], &before[at]);
            for (size_t k = 0; k < of.in; k++) {
                const double stored = std::fabs(params[(size_t)of.first_param][k]) + 1; // the size of the stored number, which is gamma - 1
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
        e = attention(o, i, reference::joined(in, kv), reference::joined(before, fork_error(i, kv.size())), w, c, dtype);
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
    } else if (o.kind == "xielu") {
        const reference::xielu f(o, params);
        for (size_t k = 0; k < e.size(); k++) {
            const double x = in[k], off = before[k], size = x > 0 ? f.alpha_p * x * x : f.alpha_n * (std::fabs(std::expm1(x)) - x);
            e[k] = off * std::max(std::fabs(f.slope(x - off)), std::fabs(f.slope(x + off))) + functions * (size + f.beta * std::fabs(x));
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
        e = fork_error(i, y.size());
    } else if (o.kind == "gate" || o.kind == "modulate") {
        const size_t width = reference::fork_width(l, i);
        const bool input = l.ops[(size_t)o.edge].kind == "input";
        const vec &by = input ? inputs.at(l.ops[(size_t)o.edge].name) : value[(size_t)o.edge];
        const vec off = fork_error(i, by.size());
        for (size_t k = 0; k < e.size(); k++) {
            const reference::modulated m(o, c, width, k);
            const double factor = std::fabs(by[m.factor]) + !m.gate, plus = m.gate ? 0 : std::fabs(by[m.summand]);
            e[k] = before[k] * (factor + off[m.factor]) + std::fabs(in[k]) * off[m.factor] + (m.gate ? 0 : off[m.summand]) + sums * (std::fabs(in[k]) * factor + plus);
        }
    } else if (o.kind == "router") {
        const reference::routing q(o, in, params);
        for (size_t k = 0; k < e.size(); k++) {
            const size_t slot = q.slot[k / o.in], at = slot / q.top_k * o.in + k % o.in;
            const double relative = q.weighs_input ? weight_error(o, q, slot / q.top_k, in, &before, params[(size_t)o.first_param]) + sums : 0;
            e[k] = q.input_weight(slot) * (before[at] * (1 + relative) + relative * std::fabs(in[at]));
        }
    } else if (o.kind == "expert_linear" || o.kind == "expert_bias" || o.kind == "combine") {
        const size_t from = reference::router_of(l, i);
        const op &router = l.ops[from];
        const vec &rx = from ? value[from - 1] : x;
        const reference::routing q(router, rx, params);
        std::fill(e.begin(), e.end(), 0.0);
        vec relative(q.tokens);
        for (size_t t = 0; t < q.tokens && o.kind == "combine" && !q.weighs_input; t++)
            relative[t] = weight_error(router, q, t, rx, from ? &error[from - 1] : nullptr, params[(size_t)router.first_param]);
        for (size_t r = 0; r < q.slot.size(); r++) {
            const size_t slot = q.slot[r], expert = q.expert[slot], token = slot / q.top_k;
            if (o.kind == "combine" && q.dropped[slot]) continue;
            for (size_t n = 0; n < o.out; n++) {
                const size_t at = r * o.in + n;
                if (o.kind == "combine") e[token * o.out + n] += q.output_weight(slot) * (before[at] * (1 + relative[token]) + (relative[token] + sums) * std::fabs(in[at]));
                else if (o.kind == "expert_bias") e[at] = before[at] + sums * (std::fabs(in[at]) + std::fabs((*w)[expert * o.out + n]));
                else
                    for (size_t k = 0; k < o.in; k++)
                        e[r * o.out + n] += (before[r * o.in + k] + sums * std::fabs(in[r * o.in + k])) * std::fabs((*w)[(expert * o.out + n) * o.in + k]);
            }
        }
    } else if (o.kind == "head_linear") {
        const reference::head_linear p(o);
        std::fill(e.begin(), e.end(), 0.0);
        for (size_t r = 0; r < rows * p.heads; r++) {
            const size_t from = r * (p.in + p.keep), to = r * (p.out + p.keep);
            for (size_t n = 0; n < p.out; n++)
                for (size_t k = 0; k < p.in; k++)
                    e[to + n] += (before[from + k] + sums * std::fabs(in[from + k])) * std::fabs((*w)[p.weight(r % p.heads, n, k)]);
            for (size_t k = 0; k < p.keep; k++) e[to + p.out + k] = before[from + p.in + k];
        }
    } else if (o.kind == "slice") {
        for (size_t k = 0; k < e.size(); k++) e[k] = before[k / o.out * o.in + (size_t)o.number(0, 0) + k % o.out];
    } else if (o.kind == "concat") {
        const vec off = fork_error(i, rows * (size_t)o.number(1, 0));
        for (size_t k = 0; k < e.size(); k++) e[k] = (reference::concat(o, k).of_fork ? off : before)[reference::concat(o, k).at];
    } else if (o.kind == "mul") { // y = x * value of the fork
        const vec off = fork_error(i, y.size());
        for (size_t k = 0; k < e.size(); k++) {
            const double by = in[k] != 0 ? std::fabs(y[k] / in[k]) : fork_size(i, k);
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
            const double log_sum = size + std::log((double)o.in); // an upper bound
            if (c.labels[r] == c.ignore_index) continue;
            e[r] += smooth * (off + same_sign(o.in) * 2 * size) +
                    2 * z * log_sum * (off + same_sign(o.in) + (functions + 2 * sums) * (1 + log_sum));
        }
    } else { // y = x + operand (bias, positions, add), y = factor x (dropout, scale), or y = x
        const bool same = o.kind == "fork" || o.kind == "input" || o.kind == "output";
        const double factor = o.kind == "scale"                   ? std::fabs(o.factor(0, 1))
                              : o.kind == "dropout" && c.training ? 1 / (1 - o.factor(0, 0.5))
                                                                  : 1;
        const vec *operand =
            o.kind == "add" && l.ops[(size_t)o.edge].kind != "input" ? &error[(size_t)o.edge] : nullptr;
        for (size_t k = 0; k < e.size() && !same; k++)
            e[k] = factor * before[k] + (operand ? (*operand)[k] : 0) +
                   sums * (2 * std::fabs(in[k]) * factor + std::fabs(y[k]));
    }
    for (size_t k = 0; k < e.size() && (rounded || may); k++)
        e[k] += ulp(std::fabs(y[k]) + e[k], dtype) * (rounded + may);
    value.push_back(y), error.push_back(e), unstored.push_back(e);
}
void forward::stored(const vec &y, bool before) {
    value.back() = y;
    for (size_t k = 0; k < y.size(); k++) error.back()[k] = before ? ulp(std::fabs(y[k]), dtype) : 0;
}

// ---- backward ------------------------------------------------------------------------------------------------------

// The error bound of an activation's slope: at most that of x times a derivative of exp of x^3.
static double slope_error(double x) { return functions * (2 + 2 * std::fabs(x) + 0.2 * std::fabs(x * x * x)); }
static vec attention_backward(const op &o, size_t id, const vec &x, const vec &y, const vec &dy, const vec &ey, const vec *w, vec *ew,
                              const call &c, te_dtype t) {
    const attention_shape s(o, c, x.size());
    const vec *sinks = w ? s.with.sinks_of(w) : nullptr;
    vec *esinks = ew ? s.with.sinks_of(ew) : nullptr, *etable = ew ? s.with.table_of(ew) : nullptr;
    vec e(x.size(), 0.0);
    s.each(id, c, w, [&](size_t q0, size_t k0, size_t v0, size_t y0, size_t keys, const vec &drop, const vec &bias, const std::vector<size_t> &place, size_t h) {
        const attention_row r(x, nullptr, q0, k0, s.width, s.dim, keys, s.with, bias, sink_of(sinks, h), t);
        double delta = 0, off = 0;
        for (size_t d = 0; d < s.value; d++) {
            delta += dy[y0 + d] * y[y0 + d];
            off += std::fabs(y[y0 + d]) * (ey[y0 + d] + sums * std::fabs(dy[y0 + d]));
        }
        if (esinks) (*esinks)[h] += r.p_sink * off + r.sink_error * std::fabs(delta) + sums * r.p_sink * std::fabs(delta);
        for (size_t j = 0; j < keys; j++) {
            double dp = 0, edp = 0;
            for (size_t d = 0; d < s.value; d++) {
                const double v = x[v0 + j * s.width + d];
                dp += dy[y0 + d] * v, edp += std::fabs(v) * (ey[y0 + d] + sums * std::fabs(dy[y0 + d]));
            }
            dp *= drop[j], edp *= drop[j];
            if (etable)
                (*etable)[place[j]] += r.error[j] * std::fabs(dp - delta) + r.p[j] * (edp + off + sums * (std::fabs(dp) + std::fabs(delta)));
            const double ds = std::fabs(r.p[j] * r.slope[j] * (dp - delta) * s.scale);
            double eds = std::fabs(s.scale) * r.slope[j] * (r.error[j] * std::fabs(dp - delta) + r.p[j] * (edp + off)) + ulp(ds, t);
            if (s.with.softcap > 0) // the kernel also rounds P times this derivative
                eds += std::fabs(s.scale * (dp - delta)) * (r.p[j] * r.slope_error[j] + ulp(r.p[j] * r.slope[j], t));
            for (size_t d = 0; d < s.value; d++) {
                const double g = std::fabs(dy[y0 + d]);
                e[v0 + j * s.width + d] += drop[j] * (r.error[j] * g + r.p[j] * (ey[y0 + d] + sums * g));
            }
            for (size_t d = 0; d < s.dim; d++) {
                const double k = std::fabs(x[k0 + j * s.width + d]), q = std::fabs(x[q0 + d]);
                e[q0 + d] += (eds + sums * ds) * k;
                e[k0 + j * s.width + d] += (eds + sums * ds) * q;
            }
        }
    });
    return e;
}
void backward::step(size_t i, const vec &dy, const vec &dx, bool rounded, bool may, bool held) {
    const op &o = l.ops[i];
    const vec &x = v.in(i);
    const size_t rows = dy.size() / o.out;
    const std::string gated = reference::gate(o.kind);
    const vec *w = o.params ? &params[(size_t)o.first_param] : nullptr;
    vec *ew = o.params ? &param[(size_t)o.first_param] : nullptr;
    if (d.empty()) d.assign(dy.size(), 0.0);
    vec e = d;
    e.resize(dx.size(), 0.0);
    if (o.kind == "linear" || o.kind == "tied_linear") { // y = x w^T
        std::fill(e.begin(), e.end(), 0.0);
        double muls = 0; // number of mul in front of this op, each of which adds the error of its factor to x
        vec total((*ew).size()); // the partial sums grow towards it, while `sums` assumes partial sums around 0
        for (size_t k = 0; k < i; k++) muls += l.ops[k].kind == "mul";
        for (size_t r = 0; r < rows; r++)
            for (size_t n = 0; n < o.out; n++) {
                const double off = d[r * o.out + n] + sums * std::fabs(dy[r * o.out + n]);
                for (size_t k = 0; k < o.in; k++) {
                    e[r * o.in + k] += off * std::fabs((*w)[n * o.in + k]);
                    (*ew)[n * o.in + k] += (off + muls * sums * std::fabs(dy[r * o.out + n])) * std::fabs(x[r * o.in + k]);
                    total[n * o.in + k] += dy[r * o.out + n] * x[r * o.in + k];
                }
            }
        for (size_t k = 0; k < total.size(); k++) (*ew)[k] += (same_sign(rows) - sums) * std::fabs(total[k]);
    } else if (o.kind == "bias") {
        for (size_t k = 0; k < d.size(); k++) (*ew)[k % o.out] += d[k] + sums * std::fabs(dy[k]);
    } else if (o.kind == "softcap") { // y = cap tanh(x / cap)
        for (size_t k = 0; k < e.size(); k++) {
            const double t = std::tanh(x[k] / o.factor(0, 0));
            e[k] = d[k] * (1 - t * t) + std::fabs(dy[k]) * (2 * functions * t * t + 2 * sums);
        }
    } else if (o.kind == "dyt") { // y = weight tanh(alpha x) + bias
        vec &eweight = param[(size_t)o.first_param + 1], &ebias = param[(size_t)o.first_param + 2];
        for (size_t k = 0; k < e.size(); k++) {
            const double weight = std::fabs(params[(size_t)o.first_param + 1][k % o.in]), alpha = std::fabs((*w)[0]);
            const double t = std::fabs(std::tanh(alpha * x[k])), g = std::fabs(dy[k]), ax = alpha * std::fabs(x[k]);
            const double et = functions * (t + ax * (1 - t * t)); // the error of tanh(alpha x)
            const double along = weight * (d[k] * (1 - t * t) + g * (2 * t * et + 3 * sums));
            e[k] = alpha * along + sums * std::fabs(dx[k]);
            (*ew)[0] += std::fabs(x[k]) * (along + sums * g * weight * (1 - t * t));
            eweight[k % o.in] += d[k] * t + g * (et + sums * t), ebias[k % o.in] += d[k] + sums * g;
        }
    } else if (o.kind == "xielu") {
        const reference::xielu f(o, params);
        for (size_t k = 0; k < e.size(); k++) {
            const double u = x[k], g = std::fabs(dy[k]), off = d[k] + (functions + sums) * g;
            e[k] = d[k] * std::fabs(f.slope(u)) + functions * g * (u > 0 ? 2 * f.alpha_p * u + f.beta : f.alpha_n + f.beta);
            (*ew)[0] += off * f.along_p(u) * f.slope_p;
            param[(size_t)o.first_param + 1][0] += u > 0 ? 0 : off * (std::fabs(std::expm1(u)) - u) * f.slope_n;
        }
    } else if (o.kind == "clamped_swiglu") {
        for (size_t r = 0; r < rows; r++)
            for (size_t k = 0; k < o.out; k++) {
                const size_t a = r * o.in + k, b = a + o.out;
                const reference::clamped_slopes s = reference::clamped_swiglu(o, x[a], x[b]);
                const double limit = o.option("limit", 7), f = std::fabs(std::fmin(x[a], limit));
                const double up = 1 + std::fmin(std::fabs(x[b]), limit), g = std::fabs(dy[r * o.out + k]);
                e[a] = d[r * o.out + k] * std::fabs(s.da) + (s.da != 0 ? g * up * slope_error(f) : 0);
                e[b] = d[r * o.out + k] * std::fabs(s.db) + (s.db != 0 ? g * functions * (1 + f) * (1 + f) : 0);
            }
    } else if (o.kind == "mul_param") { // y = x w
        for (size_t k = 0; k < d.size(); k++) {
            const size_t at = k % w->size();
            (*ew)[at] += std::fabs(x[k]) * (d[k] + sums * std::fabs(dy[k]));
            e[k] = d[k] * std::fabs((*w)[at]) + sums * std::fabs(dx[k]);
        }
    } else if (reference::is_norm(o.kind)) {
        for (size_t r = 0; r < rows; r++) {
            const reference::norm_part part(o);
            const size_t first = r * o.in + part.first, columns = part.of.in;
            const norm_errors s(part.of, &x[first], nullptr);
            double off_along = 0, off_mean = 0, along = 0;
            for (size_t k = 0; k < columns; k++) {
                const size_t at = first + k;
                const double gamma = reference::gamma_of(o, params, k), g = std::fabs(dy[at] * gamma),
                             eg = d[at] * std::fabs(gamma) + sums * g;
                along += dy[at] * gamma * s.xhat[k] / s.n;
                off_along += (eg * std::fabs(s.xhat[k]) + g * s.error[k] + sums * g * std::fabs(s.xhat[k])) / s.n;
                off_mean += (eg + sums * g) / s.n;
                if (o.params > 0)
                    (*ew)[k] += d[at] * std::fabs(s.xhat[k]) +
                                std::fabs(dy[at]) * (s.error[k] + sums * std::fabs(s.xhat[k]));
                if (o.params > 1) param[(size_t)o.first_param + 1][k] += d[at] + sums * std::fabs(dy[at]);
            }
            if (o.kind.compare(0, 9, "layernorm") != 0) off_mean = 0;
            for (size_t k = 0; k < columns; k++) {
                const size_t at = first + k;
                const double gamma = std::fabs(reference::gamma_of(o, params, k)),
                             g = std::fabs(dy[at]) * (gamma + 1);
                e[at] = s.row.rstd * (d[at] * gamma + 2 * sums * g + off_mean + std::fabs(s.xhat[k]) * off_along +
                                      s.error[k] * std::fabs(along)) +
                        std::fabs(dx[at]) * same_sign(columns); // the error of rstd
            }
        }
    } else if (o.kind.compare(0, 9, "head_norm") == 0) {
        reference::head_norm(o).each(rows, [&](size_t first, const op &of) {
            const norm_errors s(of, &x[first], nullptr);
            double off_along = 0, along = 0;
            for (size_t k = 0; k < of.in; k++) {
                const size_t at = first + k;
                const double gamma = reference::gamma_of(of, params, k), g = std::fabs(dy[at] * gamma), eg = d[at] * std::fabs(gamma) + sums * g;
                along += dy[at] * gamma * s.xhat[k] / s.n;
                off_along += (eg * std::fabs(s.xhat[k]) + g * s.error[k] + sums * g * std::fabs(s.xhat[k])) / s.n;
                param[(size_t)of.first_param][k] +=
                    d[at] * std::fabs(s.xhat[k]) + std::fabs(dy[at]) * (s.error[k] + sums * std::fabs(s.xhat[k]));
            }
            for (size_t k = 0; k < of.in; k++) {
                const size_t at = first + k;
                const double gamma = std::fabs(reference::gamma_of(of, params, k)), g = std::fabs(dy[at]) * (gamma + 1);
                e[at] = s.row.rstd * (d[at] * gamma + 2 * sums * g + std::fabs(s.xhat[k]) * off_along + s.error[k] * std::fabs(along)) +
                        std::fabs(dx[at]) * same_sign(of.in); // the error of rstd
            }
        });
    } else if (reference::is_activation(o.kind)) {
        for (size_t k = 0; k < e.size(); k++)
            e[k] =
                d[k] * std::fabs(reference::activation_slope(o.kind, x[k])) + std::fabs(dy[k]) * slope_error(x[k]);
    } else if (!gated.empty()) {
        for (size_t r = 0; r < rows; r++)
            for (size_t k = 0; k < o.out; k++) {
                const size_t at = r * o.in + k, from = r * o.out + k;
                const double a = x[at], b = std::fabs(x[at + o.out]),
                             f = std::fabs(reference::activation(gated, a)), g = std::fabs(dy[from]);
                e[at] = (d[from] * std::fabs(reference::activation_slope(gated, a)) + g * slope_error(a)) * b;
                e[at + o.out] = d[from] * f + g * functions * (1 + std::fabs(a) + f * (1 + std::fabs(a)));
            }
    } else if (o.kind == "router") {
        const reference::routing q(o, x, params);
        vec dweight = expert_weights, eweight = fork_grad.at((int)i);
        e.assign(dx.size(), 0.0);
        if (q.weighs_input) std::fill(dweight.begin(), dweight.end(), 0.0), std::fill(eweight.begin(), eweight.end(), 0.0);
        for (size_t k = 0; k < d.size(); k++) {
            const size_t slot = q.slot[k / o.in], at = slot / q.top_k * o.in + k % o.in;
            const double relative = q.weighs_input ? weight_error(o, q, slot / q.top_k, x, nullptr, *w) : 0;
            e[at] += q.input_weight(slot) * (d[k] * (1 + relative) + (relative + sums) * std::fabs(dy[k]));
            if (q.weighs_input) dweight[slot] += dy[k] * x[at], eweight[slot] += (d[k] + sums * std::fabs(dy[k])) * std::fabs(x[at]);
        }
        const vec dlogit = q.gradient(o, dweight, c.loss_scale);
        const vec off = logit_errors(o, q, x, *w, dweight, eweight, dlogit, c.loss_scale, dtype);
        vec total(w->size()); // as for a linear
        for (size_t t = 0; t < q.tokens; t++)
            for (size_t n = 0; n < q.experts; n++) {
                const double g = dlogit[t * q.experts + n], eg = off[t * q.experts + n] + sums * std::fabs(g);
                if (o.option("bias", 0) == 1) ew[1][n] += eg;
                for (size_t k = 0; k < o.in; k++) {
                    e[t * o.in + k] += eg * std::fabs((*w)[n * o.in + k]);
                    (*ew)[n * o.in + k] += eg * std::fabs(x[t * o.in + k]), total[n * o.in + k] += g * x[t * o.in + k];
                }
            }
        for (size_t k = 0; k < total.size(); k++) (*ew)[k] += (same_sign(q.tokens) - sums) * std::fabs(total[k]);
    } else if (o.kind == "expert_linear" || o.kind == "expert_bias" || o.kind == "combine") {
        const size_t from = reference::router_of(l, i);
        const reference::routing q(l.ops[from], v.in(from), params);
        const vec &router = params[(size_t)l.ops[from].first_param];
        vec total(ew ? ew->size() : 0);
        e.assign(dx.size(), 0.0);
        if (o.kind == "combine") fork_grad[(int)from].assign(q.slot.size(), 0.0), expert_weights.assign(q.slot.size(), 0.0);
        // In a pattern with a combine, the kernels of an expert_linear round its dx before they multiply it by the weight, and the product of x and
        // the weight; and the gradient of the weight is a sum over the columns of x, not of y.
        const bool before = o.kind == "combine" && i && l.ops[i - 1].kind == "expert_linear", combined = o.kind == "expert_linear" && i + 1 < l.ops.size() && l.ops[i + 1].kind == "combine";
        for (size_t r = 0; r < q.slot.size(); r++) {
            const size_t slot = q.slot[r], expert = q.expert[slot];
            if (o.kind == "combine" && q.dropped[slot]) continue;
            const double relative = o.kind == "combine" && !q.weighs_input ? weight_error(l.ops[from], q, slot / q.top_k, v.in(from), nullptr, router) : 0;
            for (size_t n = 0; n < o.out; n++) {
                const size_t at = (o.kind == "combine" ? slot / q.top_k : r) * o.out + n, to = r * o.in + n;
                const double off = d[at] + sums * std::fabs(dy[at]);
                if (o.kind == "combine") {
                    e[to] = q.output_weight(slot) * (off + relative * std::fabs(dy[at]));
                    fork_grad[(int)from][slot] += (off + ulp(std::fabs(dy[at]), dtype)) * std::fabs(x[to]), expert_weights[slot] += dy[at] * x[to];
                    for (size_t k = 0; before && k < l.ops[i - 1].in; k++) { // the terms of (dy w) x
                        const double term = std::fabs(params[(size_t)l.ops[i - 1].first_param][(expert * o.in + n) * l.ops[i - 1].in + k] * v.in(i - 1)[r * l.ops[i - 1].in + k]);
                        fork_grad[(int)from][slot] += (off + (sums + ulp(1, dtype)) * std::fabs(dy[at])) * term;
                    }
                } else if (o.kind == "expert_bias") e[to] = d[at], (*ew)[expert * o.out + n] += off;
                else
                    for (size_t k = 0; k < o.in; k++) {
                        const size_t p = (expert * o.out + n) * o.in + k;
                        e[r * o.in + k] += off * std::fabs((*w)[p]);
                        (*ew)[p] += off * std::fabs(x[r * o.in + k]), total[p] += dy[at] * x[r * o.in + k];
                        if (combined) (*ew)[p] += std::fabs(dy[at]) * (ulp(std::fabs(x[r * o.in + k]), dtype) + sums * std::fabs(x[r * o.in + k]));
                    }
            }
        }
        for (size_t k = 0; k < total.size(); k++) (*ew)[k] += (same_sign(q.slot.size()) - sums) * std::fabs(total[k]);
    } else if (o.kind == "head_linear") {
        const reference::head_linear p(o);
        vec total(ew->size());
        e.assign(dx.size(), 0.0);
        for (size_t r = 0; r < rows * p.heads; r++) {
            const size_t from = r * (p.out + p.keep), to = r * (p.in + p.keep);
            for (size_t n = 0; n < p.out; n++) {
                const double off = d[from + n] + sums * std::fabs(dy[from + n]);
                for (size_t k = 0; k < p.in; k++) {
                    const size_t at = p.weight(r % p.heads, n, k);
                    e[to + k] += off * std::fabs((*w)[at]);
                    (*ew)[at] += off * std::fabs(x[to + k]), total[at] += dy[from + n] * x[to + k];
                }
            }
            for (size_t k = 0; k < p.keep; k++) e[to + p.in + k] = d[from + p.out + k];
        }
        for (size_t k = 0; k < total.size(); k++) (*ew)[k] += (same_sign(rows) - sums) * std::fabs(total[k]);
    } else if (o.kind == "attention") {
        e = attention_backward(o, i, x, v.out[i], dy, d, w, ew, c, dtype);
    } else if (o.kind == "cross_attention") {
        const vec &kv = reference::fork_value(l, i, v, v.from);
        vec part;
        std::vector<vec> dparams; // not used
        for (int p = 0; p < o.params; p++) dparams.emplace_back(w[p].size());
        reference::attention(o, i, reference::joined(x, kv), w, c, &dy, &v.out[i], &part, dparams.data());
        e = attention_backward(o, i, reference::joined(x, kv), v.out[i], dy, d, w, ew, c, dtype);
        const vec off = reference::split(e, x.size());
        add_to_fork(i, reference::split(part, x.size()), off, held);
    } else if (o.kind == "rope") {
        e = rope(o, dy, d, c);
    } else if (o.kind == "embedding" || o.kind == "positions") {
        for (size_t k = 0; k < d.size(); k++) {
            const size_t row = o.kind == "embedding" ? (size_t)c.tokens[k / o.out]
                                                     : (size_t)c.position + k / o.out % (size_t)c.seq;
            (*ew)[row * o.out + k % o.out] += d[k] + sums * std::fabs(dy[k]);
        }
    } else if (o.kind == "cross_entropy") { // dx = dy (p - 1 at the label)
        for (size_t r = 0; r < rows; r++) {
            double top = -INFINITY, sum = 0;
            for (size_t k = 0; k < o.in; k++) top = std::max(top, x[r * o.in + k]);
            for (size_t k = 0; k < o.in; k++) sum += std::exp(x[r * o.in + k] - top);
            double off_logits = 0; // the error of the log of the sum: at most the largest error of a logit
            for (size_t k = 0; k < o.in && !logits.empty(); k++) off_logits = std::max(off_logits, logits[r * o.in + k]);
            for (size_t k = 0; k < o.in; k++) {
                const double z = x[r * o.in + k] - top, smooth = o.option("label_smoothing", 0);
                const double log_sum = std::fabs(top) + std::log(sum), zl = o.option("z_loss", 0);
                const double along = 1 + 2 * zl * log_sum, p = std::exp(z) / sum * along;
                const double label = (k == (size_t)c.labels[r] ? 1 - smooth : 0) + smooth / (double)o.in;
                const double off = p * (functions * (2 + std::fabs(z) + std::fabs(top)) + same_sign(o.in)) +
                                   p * 2 * zl * (functions * (2 + log_sum) + same_sign(o.in)) + sums * (p + label) +
                                   (logits.empty() ? 0 : p * (std::expm1(logits[r * o.in + k] + off_logits) + 2 * zl * off_logits));
                e[r * o.in + k] = c.labels[r] == c.ignore_index ? 0 : d[r] * (p + label) + std::fabs(dy[r]) * off;
            }
        }
    } else {
        const double factor = o.kind == "scale"     ? std::fabs(o.factor(0, 1))
                              : o.kind == "dropout" ? 1 / (1 - o.factor(0, 0.5))
                                                    : 1;
        const auto found = fork_grad.find((int)i);
        for (size_t k = 0; k < e.size() && o.kind != "load" && o.kind != "slice" && o.kind != "concat" && o.kind != "gate" && o.kind != "modulate"; k++) { // (the input and the output of a load differ in size)
            e[k] = factor * d[k] + sums * (2 * std::fabs(dy[k]) * factor + std::fabs(dx[k]));
            if (o.kind == "fork" && found != fork_grad.end()) e[k] += found->second[k];
        }
    }
    if (o.kind == "add") {
        for (size_t k = 0; k < e.size(); k++) e[k] = d[k] + (held ? ulp(std::fabs(dy[k]) + d[k], dtype) : 0);
        add_to_fork(i, dy, e, held);
    } else if (o.kind == "mul") { // y = x * value of the fork
        const vec &by = reference::fork_value(l, i, v, v.from);
        vec part(d.size()), off(d.size());
        for (size_t k = 0; k < e.size(); k++) {
            part[k] = dy[k] * x[k], off[k] = d[k] * std::fabs(x[k]) + sums * std::fabs(part[k]);
            e[k] = d[k] * std::fabs(by[k]) + sums * std::fabs(dx[k]);
        }
        add_to_fork(i, part, off, held);
    } else if (o.kind == "gate" || o.kind == "modulate") {
        const vec &by = reference::fork_value(l, i, v, v.from);
        const size_t width = reference::fork_width(l, i);
        vec part(by.size()), off(by.size());
        for (size_t k = 0; k < d.size(); k++) {
            const reference::modulated m(o, c, width, k);
            e[k] = d[k] * (std::fabs(by[m.factor]) + !m.gate) + sums * std::fabs(dy[k]) * (std::fabs(by[m.factor]) + !m.gate);
            part[m.factor] += dy[k] * x[k], off[m.factor] += d[k] * std::fabs(x[k]) + sums * std::fabs(dy[k] * x[k]);
            if (!m.gate) part[m.summand] += dy[k], off[m.summand] += d[k] + sums * std::fabs(dy[k]);
        }
        add_to_fork(i, part, off, held);
    } else if (o.kind == "slice") {
        std::fill(e.begin(), e.end(), 0.0);
        for (size_t k = 0; k < d.size(); k++) e[k / o.out * o.in + (size_t)o.number(0, 0) + k % o.out] = d[k];
    } else if (o.kind == "concat") {
        vec part(reference::fork_value(l, i, v, v.from).size()), off(part.size());
        std::fill(e.begin(), e.end(), 0.0);
        for (size_t k = 0; k < d.size(); k++) {
            const reference::concat of(o, k);
            if (of.of_fork) part[of.at] += dy[k], off[of.at] += d[k] + sums * std::fabs(dy[k]);
            else e[of.at] = d[k];
        }
        add_to_fork(i, part, off, held);
    } else if (o.kind == "load") {
        add_to_fork(i, dy, d, held);
        e.assign(dx.size(), 0.0);
    }
    for (size_t k = 0; k < e.size() && (rounded || may); k++)
        e[k] += ulp(std::fabs(dx[k]) + e[k], dtype) * (rounded + may);
    d = e;
}
void backward::add_to_fork(size_t i, const vec &part, const vec &off, bool held) {
    const op &from = l.ops[(size_t)l.ops[i].edge];
    vec &e = from.kind == "input" ? inputs[from.name] : fork_grad[l.ops[i].edge], &size = fork_terms[l.ops[i].edge];
    const bool first = e.empty();
    if (first) e.assign(part.size(), 0.0), size.assign(part.size(), 0.0);
    for (size_t k = 0; k < part.size(); k++) {
        size[k] += std::fabs(part[k]), e[k] += off[k];
        if (!first) e[k] += sums * size[k];
        if (held && (!first || l.ops[i].kind != "add")) e[k] += ulp(size[k] + e[k], dtype);
    }
}

} // namespace bounds
