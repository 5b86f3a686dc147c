// bounds_backward.h -- how far off a gradient may be: bounds.h, for the way back.
//
// Do this:
//     bounds::backward b(list, params, values, call, dtype);
//     reference::backward(list, params, values, dy, out_grads, call, round, held,
//                         [&](size_t i, const vec &d, const vec &dx) { b.step(i, d, dx, ...); });
//     check_within("dx", got, g.dx, b.d);          // and b.param, b.inputs
#ifndef TESTS_BOUNDS_BACKWARD_H
#define TESTS_BOUNDS_BACKWARD_H

#include "bounds.h"

namespace bounds {

inline vec attention_backward(const op &o, size_t id, const vec &x, const vec &y, const vec &dy, const vec &ey, const vec *w, vec *ew,
                              const call &c, te_dtype t) {
    const attention_shape s(o, c, x.size());
    const vec *sinks = w ? s.with.sinks_of(w) : nullptr;
    vec *esinks = ew ? s.with.sinks_of(ew) : nullptr, *etable = ew ? s.with.table_of(ew) : nullptr;
    vec e(x.size(), 0.0);
    s.each(id, c, w, [&](size_t q0, size_t k0, size_t v0, size_t y0, size_t keys, const vec &kept, const vec &bias, const std::vector<size_t> &place, size_t h) {
        const attention_row r(x, nullptr, q0, k0, s.width, s.dim, keys, s.with, bias, sink_of(sinks, h), t);
        double delta = 0, off = 0;
        for (size_t d = 0; d < s.dim; d++) {
            delta += dy[y0 + d] * y[y0 + d];
            off += std::fabs(y[y0 + d]) * (ey[y0 + d] + sums * std::fabs(dy[y0 + d]));
        }
        if (esinks) (*esinks)[h] += r.p_sink * off + r.sink_error * std::fabs(delta) + sums * r.p_sink * std::fabs(delta);
        for (size_t j = 0; j < keys; j++) {
            double dp = 0, edp = 0;
            for (size_t d = 0; d < s.dim; d++) {
                const double v = x[v0 + j * s.width + d];
                dp += dy[y0 + d] * v, edp += std::fabs(v) * (ey[y0 + d] + sums * std::fabs(dy[y0 + d]));
            }
            dp *= kept[j], edp *= kept[j];
            if (etable)
                (*etable)[place[j]] += r.error[j] * std::fabs(dp - delta) + r.p[j] * (edp + off + sums * (std::fabs(dp) + std::fabs(delta)));
            const double ds = std::fabs(r.p[j] * r.slope[j] * (dp - delta) * s.scale);
            double eds = std::fabs(s.scale) * r.slope[j] * (r.error[j] * std::fabs(dp - delta) + r.p[j] * (edp + off)) + ulp(ds, t);
            if (s.with.softcap > 0) // P times the derivative is what is rounded, too
                eds += std::fabs(s.scale * (dp - delta)) * (r.p[j] * r.slope_error[j] + ulp(r.p[j] * r.slope[j], t));
            for (size_t d = 0; d < s.dim; d++) {
                const double k = std::fabs(x[k0 + j * s.width + d]), q = std::fabs(x[q0 + d]),
                             g = std::fabs(dy[y0 + d]);
                e[v0 + j * s.width + d] += kept[j] * (r.error[j] * g + r.p[j] * (ey[y0 + d] + sums * g));
                e[q0 + d] += (eds + sums * ds) * k;
                e[k0 + j * s.width + d] += (eds + sums * ds) * q;
            }
        }
    });
    return e;
}

// ---- backward ------------------------------------------------------------------------------------------------------

struct backward {
    const list &l;
    const std::vector<vec> &params;
    const reference::values &v;
    const call &c;
    te_dtype dtype;
    vec d;                   // of the gradient that came last
    std::vector<vec> param;  // of the parameters' gradients
    std::map<int, vec> kept, handed; // by fork: of the gradient of what it kept, and the sum of |terms| of that
    std::map<std::string, vec> inputs;
    vec logits; // how far off the loss's logits are, where no kernel has kept them; empty: they are as the kernels have them
    backward(const list &ops, const std::vector<vec> &p, const reference::values &values, const call &what, te_dtype t)
        : l(ops), params(p), v(values), c(what), dtype(t) {
        for (const vec &e : p) param.push_back(vec(e.size(), 0.0));
    }
    // Op i got the gradient dy and gives dx, rounded or not; `held`: so is what an add hands over.
    void step(size_t i, const vec &dy, const vec &dx, bool rounded, bool may, bool held) {
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
            double muls = 0; // whose factors' errors x has beside its own
            for (size_t k = 0; k < i; k++) muls += l.ops[k].kind == "mul";
            for (size_t r = 0; r < rows; r++)
                for (size_t n = 0; n < o.out; n++) {
                    const double off = d[r * o.out + n] + sums * std::fabs(dy[r * o.out + n]);
                    for (size_t k = 0; k < o.in; k++) {
                        e[r * o.in + k] += off * std::fabs((*w)[n * o.in + k]);
                        (*ew)[n * o.in + k] += (off + muls * sums * std::fabs(dy[r * o.out + n])) * std::fabs(x[r * o.in + k]);
                    }
                }
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
                const double et = functions * (t + ax * (1 - t * t)); // of tanh(alpha x)
                const double along = weight * (d[k] * (1 - t * t) + g * (2 * t * et + 3 * sums));
                e[k] = alpha * along + sums * std::fabs(dx[k]);
                (*ew)[0] += std::fabs(x[k]) * (along + sums * g * weight * (1 - t * t));
                eweight[k % o.in] += d[k] * t + g * (et + sums * t), ebias[k % o.in] += d[k] + sums * g;
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
                const norm_errors s(o, &x[r * o.in], nullptr);
                double off_along = 0, off_mean = 0, along = 0;
                for (size_t k = 0; k < o.in; k++) {
                    const size_t at = r * o.in + k;
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
                for (size_t k = 0; k < o.in; k++) {
                    const size_t at = r * o.in + k;
                    const double gamma = std::fabs(reference::gamma_of(o, params, k)),
                                 g = std::fabs(dy[at]) * (gamma + 1);
                    e[at] = s.row.rstd * (d[at] * gamma + 2 * sums * g + off_mean + std::fabs(s.xhat[k]) * off_along +
                                          s.error[k] * std::fabs(along)) +
                            std::fabs(dx[at]) * same_sign(o.in); // of rstd
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
                            std::fabs(dx[at]) * same_sign(of.in); // of rstd
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
        } else if (o.kind == "attention") {
            e = attention_backward(o, i, x, v.out[i], dy, d, w, ew, c, dtype);
        } else if (o.kind == "cross_attention") {
            const vec &kv = reference::kept_of(l, i, v, v.from);
            vec part;
            std::vector<vec> dparams; // of no use here
            for (int p = 0; p < o.params; p++) dparams.emplace_back(w[p].size());
            reference::attention(o, i, reference::joined(x, kv), w, c, &dy, &v.out[i], &part, dparams.data());
            e = attention_backward(o, i, reference::joined(x, kv), v.out[i], dy, d, w, ew, c, dtype);
            const vec off = reference::split(e, x.size());
            hand_over(i, reference::split(part, x.size()), off, held);
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
                double off_logits = 0; // of the log of the sum: no further off than the furthest logit
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
            const auto found = kept.find((int)i);
            for (size_t k = 0; k < e.size() && o.kind != "load"; k++) { // what a load gets and what it gives differ in size
                e[k] = factor * d[k] + sums * (2 * std::fabs(dy[k]) * factor + std::fabs(dx[k]));
                if (o.kind == "fork" && found != kept.end()) e[k] += found->second[k];
            }
        }
        if (o.kind == "add") {
            for (size_t k = 0; k < e.size(); k++) e[k] = d[k] + (held ? ulp(std::fabs(dy[k]) + d[k], dtype) : 0);
            hand_over(i, dy, e, held);
        } else if (o.kind == "mul") { // y = x kept
            const vec &by = reference::kept_of(l, i, v, v.from);
            vec part(d.size()), off(d.size());
            for (size_t k = 0; k < e.size(); k++) {
                part[k] = dy[k] * x[k], off[k] = d[k] * std::fabs(x[k]) + sums * std::fabs(part[k]);
                e[k] = d[k] * std::fabs(by[k]) + sums * std::fabs(dx[k]);
            }
            hand_over(i, part, off, held);
        } else if (o.kind == "load") {
            hand_over(i, dy, d, held);
            e.assign(dx.size(), 0.0);
        }
        for (size_t k = 0; k < e.size() && (rounded || may); k++)
            e[k] += ulp(std::fabs(dx[k]) + e[k], dtype) * (rounded + may);
        d = e;
    }
    // Op i leaves `part`, off by `off`, of the gradient of what its fork kept, beside what those behind it left.
    void hand_over(size_t i, const vec &part, const vec &off, bool held) {
        const op &from = l.ops[(size_t)l.ops[i].edge];
        vec &e = from.kind == "input" ? inputs[from.name] : kept[l.ops[i].edge], &size = handed[l.ops[i].edge];
        const bool first = e.empty();
        if (first) e.assign(part.size(), 0.0), size.assign(part.size(), 0.0);
        for (size_t k = 0; k < part.size(); k++) {
            size[k] += std::fabs(part[k]), e[k] += off[k];
            if (!first) e[k] += sums * size[k];
            if (held && (!first || l.ops[i].kind != "add")) e[k] += ulp(size[k] + e[k], dtype);
        }
    }
    // Of an activation's slope: x times a derivative of exp in x^3, at most.
    static double slope_error(double x) { return functions * (2 + 2 * std::fabs(x) + 0.2 * std::fabs(x * x * x)); }
};

} // namespace bounds

#endif
