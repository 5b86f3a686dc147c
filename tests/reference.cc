// reference.cc -- the formulas of every kind of op, forward and backward, as declared in reference.h.
#include "reference.h"

#include <algorithm>

namespace reference {

list::list(const te_plan *plan, const std::string &text) {
    std::vector<std::vector<std::string>> tuples(1, std::vector<std::string>(1));
    int depth = 0;
    for (char c : text) {
        depth += c == '(';
        if (c == '(' && depth == 1) continue;
        depth -= c == ')';
        if (depth == 0 && c == ',') tuples.push_back(std::vector<std::string>(1));
        else if (depth == 1 && c == ',') tuples.back().push_back("");
        else if (depth >= 1 && c != ' ' && c != '\n') tuples.back().back() += c;
    }
    for (size_t i = 0; i < tuples.size();) // the marks (recompute, ..) and (end_recompute, ..) are not in the op table of the plan
        if (tuples[i][0] == "recompute" || tuples[i][0] == "end_recompute") tuples.erase(tuples.begin() + (long)i);
        else i++;
    for (int i = 0; i < plan->op_count; i++) {
        const te_op &o = plan->op[i];
        op r;
        r.kind = o.kind, r.name = o.name, r.in = (size_t)o.in, r.out = (size_t)o.out, r.edge = o.edge;
        r.first_param = params, r.params = o.params, params += o.params;
        if ((size_t)i < tuples.size() && tuples[(size_t)i].size() >= 2)
            r.args.assign(tuples[(size_t)i].begin() + 2, tuples[(size_t)i].end());
        ops.push_back(r);
    }
}

// ---- leaf formulas -------------------------------------------------------------------------------------------------

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double normal_cdf(double x) { return 0.5 * (1 + std::erf(x / std::sqrt(2.0))); }
std::map<std::string, custom_map> &custom_maps() {
    static std::map<std::string, custom_map> maps;
    return maps;
}
double activation(const std::string &kind, double x) {
    if (kind == "gelu") return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    if (kind == "gelu_erf") return x * normal_cdf(x);
    if (kind == "qgelu") return x * sigmoid(1.702 * x);
    if (kind == "relu") return x > 0 ? x : 0;
    if (kind == "srelu") return x > 0 ? x * x : 0;
    if (kind == "silu") return x * sigmoid(x);
    if (kind == "sigmoid") return sigmoid(x);
    if (kind == "tanh") return std::tanh(x);
    return custom_maps().count(kind) ? custom_maps().at(kind).f(x) : NAN;
}
double activation_slope(const std::string &kind, double x) {
    if (kind == "gelu") {
        const double k = std::sqrt(2 / M_PI), t = std::tanh(k * (x + 0.044715 * x * x * x));
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x);
    }
    if (kind == "gelu_erf") return normal_cdf(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    if (kind == "qgelu") return sigmoid(1.702 * x) * (1 + 1.702 * x * (1 - sigmoid(1.702 * x)));
    if (kind == "relu") return x > 0 ? 1 : 0;
    if (kind == "srelu") return x > 0 ? 2 * x : 0;
    if (kind == "silu") return sigmoid(x) * (1 + x * (1 - sigmoid(x)));
    if (kind == "sigmoid") return sigmoid(x) * (1 - sigmoid(x));
    if (kind == "tanh") return 1 / (std::cosh(x) * std::cosh(x));
    return custom_maps().count(kind) ? custom_maps().at(kind).slope(x) : NAN;
}
std::string gate(const std::string &kind) {
    static const std::map<std::string, std::string> gates = {{"glu", "sigmoid"}, {"geglu", "gelu"},   {"qgeglu", "qgelu"},
                                                             {"reglu", "relu"},  {"sreglu", "srelu"}, {"swiglu", "silu"}};
    const auto found = gates.find(kind);
    return found == gates.end() ? "" : found->second;
}
bool is_activation(const std::string &kind) { return !std::isnan(activation(kind, 1)); }
bool is_norm(const std::string &kind) {
    return kind.compare(0, 9, "layernorm") == 0 || kind.compare(0, 7, "rmsnorm") == 0 || kind == "l2norm";
}
clamped_slopes clamped_swiglu(const op &o, double a, double b) {
    const double limit = (double)(float)o.option("limit", 7), alpha = (double)(float)o.option("alpha", 1.702);
    const double x = std::fmin(a, limit), up = 1 + std::fmax(-limit, std::fmin(b, limit)), s = sigmoid(alpha * x);
    return {x * s * up, a <= limit ? up * (s + alpha * x * s * (1 - s)) : 0, std::fabs(b) <= limit ? x * s : 0};
}
xielu::xielu(const op &o, const std::vector<vec> &params) : beta((double)(float)o.option("beta", 0.5)) {
    const double p = params[(size_t)o.first_param][0], n = params[(size_t)o.first_param + 1][0];
    alpha_p = std::log1p(std::exp(p)), alpha_n = beta + std::log1p(std::exp(n)), slope_p = sigmoid(p), slope_n = sigmoid(n);
}
double dropout_factor(const op &o, size_t id, size_t e, const te_rng &rng) {
    const float p = (float)o.number(0, 0.5);
    uint32_t word[4];
    te_philox(word, rng.seed, e / 8, (uint32_t)id, rng.offset);
    const uint32_t bits = (word[e % 8 / 2] >> (e % 2 * 16)) & 0xffff;
    const uint32_t limit = std::min<uint32_t>((uint32_t)std::lround(p * 65536), 65535);
    return bits < limit ? 0 : 65536.0 / (65536.0 - limit);
}
rope_table::rope_table(const op &o) {
    const double pi = std::acos(-1.0), rotary = o.option("rotary_dim", o.number(2, 0) - o.option("first", 0)), base = (double)(float)o.option("base", 10000);
    const double factor = (double)(float)o.option("factor", 1), length = o.option("original_length", 0);
    const double low = (double)(float)o.option("low_freq_factor", 1), high = (double)(float)o.option("high_freq_factor", 4);
    const auto pair_of = [&](double turns) { return rotary * std::log(length / (turns * 2 * pi)) / (2 * std::log(base)); };
    double first = pair_of((double)(float)o.option("beta_fast", 32)), last = pair_of((double)(float)o.option("beta_slow", 1));
    if (o.option("truncate", 1) == 1) first = std::floor(first), last = std::ceil(last);
    first = std::max(first, 0.0), last = std::min(last, rotary - 1);
    if (first == last) last += 0.001;
    for (double p = 0; p < rotary / 2; p++) {
        const double f = std::pow(base, -2 * p / rotary), wavelength = 2 * pi / f;
        double scaled = f;
        if (o.word("scaling") == "linear") scaled = f / factor;
        if (o.word("scaling") == "llama3" && wavelength > length / low) scaled = f / factor;
        else if (o.word("scaling") == "llama3" && wavelength >= length / high) {
            const double smooth = (length / wavelength - low) / (high - low);
            scaled = (1 - smooth) * f / factor + smooth * f;
        }
        if (o.word("scaling") == "yarn") {
            const double ramp = std::min(std::max((p - first) / (last - first), 0.0), 1.0);
            scaled = f / factor * ramp + f * (1 - ramp);
        }
        frequency.push_back(scaled);
    }
    if (o.word("scaling") == "yarn") magnitude = (double)(float)o.option("attention_factor", 0.1 * std::log(factor) + 1);
}
vec rope(const op &o, const vec &x, const call &c, int direction) {
    const size_t heads = (size_t)o.number(0, 0), kv = (size_t)o.number(1, 0), dim = (size_t)o.number(2, 0);
    const size_t first = (size_t)o.option("first", 0), rotary = (size_t)o.option("rotary_dim", (double)(dim - first));
    const bool interleaved = o.option("interleaved", 0) == 1;
    const rope_table table(o);
    vec y = x;
    for (size_t r = 0; r < c.rows(); r++)
        for (size_t h = 0; h < heads + kv; h++)
            for (size_t p = 0; p < rotary / 2; p++) {
                const double t = (double)(c.position + (int)(r % (size_t)c.seq));
                const double angle = direction * t * table.frequency[p];
                const size_t at = r * o.in + h * dim + first, i = at + (interleaved ? 2 * p : p), j = at + (interleaved ? 2 * p + 1 : p + rotary / 2);
                y[i] = table.magnitude * (x[i] * std::cos(angle) - x[j] * std::sin(angle));
                y[j] = table.magnitude * (x[i] * std::sin(angle) + x[j] * std::cos(angle));
            }
    return y;
}
vec joined(const vec &q, const vec &kv) {
    vec x = q;
    x.insert(x.end(), kv.begin(), kv.end());
    return x;
}
vec split(vec &x, size_t n) {
    const vec rest(x.begin() + (long)n, x.end());
    x.resize(n);
    return rest;
}
vec attention(const op &o, size_t id, const vec &x, const vec *w, const call &c, const vec *dy, const vec *stored, vec *dx, vec *dw) {
    const attention_sizes at(o, c, x.size());
    const attention_options with(o);
    const vec *sinks = with.sinks_of(w), *table = with.table_of(w);
    vec *dsinks = with.sinks_of(dw), *dtable = with.table_of(dw);
    const double scale = with.scale;
    const size_t dim = at.dim, value = at.value, heads = at.heads, width = at.kv_width, out = o.out;
    vec y(c.rows() * out, 0.0), p(at.keys), slope(at.keys), drop(at.keys);
    if (dx) dx->assign(x.size(), 0.0);
    for (size_t b = 0; b < (size_t)c.batch; b++)
        for (size_t h = 0; h < heads; h++)
            for (size_t i = 0; i < at.queries; i++) {
                const size_t from = with.first(at.at(i)), end = with.end(at.at(i), at.keys);
                const size_t q0 = at.q0(b, h, i), k0 = at.k0(b, h), v0 = at.v0(b, h), y0 = (b * at.queries + i) * out + h * value;
                if (from >= end && !sinks) continue; // the query sees no key
                const double sink = sinks ? (*sinks)[h] : -INFINITY; // the score of one more key, whose value is 0
                double top = sink, sum = 0, delta = 0;
                for (size_t j = from; j < end; j++) {
                    p[j] = 0;
                    for (size_t d = 0; d < dim; d++) p[j] += scale * x[q0 + d] * x[k0 + j * width + d];
                    p[j] = with.capped(p[j]), slope[j] = with.slope(p[j]), p[j] += with.bias(h, heads, at.at(i), j);
                    if (table) p[j] += (*table)[with.place(h, heads, i, at.at(i), j)];
                    top = p[j] > top ? p[j] : top;
                }
                sum = std::exp(sink - top);
                for (size_t j = from; j < end; j++) p[j] = std::exp(p[j] - top), sum += p[j];
                for (size_t j = from; j < end; j++) {
                    p[j] /= sum, drop[j] = with.dropout_factor(id, b * heads + h, i, j, c);
                    for (size_t d = 0; d < value; d++) y[y0 + d] += p[j] * drop[j] * x[v0 + j * width + d];
                }
                if (!dx) continue;
                for (size_t d = 0; d < value; d++) delta += (*dy)[y0 + d] * (*stored)[y0 + d];
                if (sinks) (*dsinks)[h] += std::exp(sink - top) / sum * (0 - delta);
                for (size_t j = from; j < end; j++) {
                    double dp = 0;
                    for (size_t d = 0; d < value; d++) dp += (*dy)[y0 + d] * x[v0 + j * width + d];
                    if (dtable) (*dtable)[with.place(h, heads, i, at.at(i), j)] += p[j] * (dp * drop[j] - delta);
                    const double ds = p[j] * (dp * drop[j] - delta) * scale * slope[j];
                    for (size_t d = 0; d < value; d++) (*dx)[v0 + j * width + d] += p[j] * drop[j] * (*dy)[y0 + d];
                    for (size_t d = 0; d < dim; d++) {
                        (*dx)[q0 + d] += ds * x[k0 + j * width + d];
                        (*dx)[k0 + j * width + d] += ds * x[q0 + d];
                    }
                }
            }
    return y;
}

// ---- forward -------------------------------------------------------------------------------------------------------

norm_row norm_of(const op &o, const double *x) {
    const double n = (double)o.in, eps = (double)(float)o.option("eps", 1e-5);
    norm_row r = {0, 0};
    double squares = 0;
    if (o.kind.compare(0, 9, "layernorm") == 0)
        for (size_t c = 0; c < o.in; c++) r.mean += x[c] / n;
    for (size_t c = 0; c < o.in; c++) squares += (x[c] - r.mean) * (x[c] - r.mean);
    r.rstd = 1 / std::sqrt((o.kind == "l2norm" ? squares : squares / n) + eps);
    return r;
}
double gamma_of(const op &o, const std::vector<vec> &params, size_t c) {
    if (!o.params) return 1;
    return params[(size_t)o.first_param][c] + (o.kind.find("1p") != std::string::npos ? 1 : 0);
}
routing::routing(const op &o, const vec &x, const std::vector<vec> &params)
    : experts((size_t)o.number(1, 0)), top_k((size_t)o.option("top_k", 1)), tokens(x.size() / o.in), score(o.word("score")),
      divides(o.option("renormalise", 0) == 1 || score == "softmax_of_chosen"), weighs_input(o.word("weigh") == "input"), factor((double)(float)o.option("factor", 1)),
      logit(tokens * experts), p(tokens * experts), weight(tokens * top_k), chosen_score(tokens * top_k), expert(tokens * top_k), row(tokens * top_k),
      slot(tokens * top_k), count(experts) {
    const vec &w = params[(size_t)o.first_param];
    const bool bias = o.option("bias", 0) == 1, choice_bias = o.option("choice_bias", 0) == 1;
    const size_t groups = (size_t)o.option("groups", 1), kept = (size_t)o.option("groups_kept", (double)groups), size = experts / groups;
    for (size_t t = 0; t < tokens; t++) {
        double top = -INFINITY, sum = 0, of_chosen = 0;
        vec s(experts), c(experts);
        for (size_t e = 0; e < experts; e++) {
            double &l = logit[t * experts + e];
            if (bias) l = params[(size_t)o.first_param + 1][e];
            for (size_t k = 0; k < o.in; k++) l += x[t * o.in + k] * w[e * o.in + k];
            top = std::fmax(top, l);
        }
        for (size_t e = 0; e < experts; e++) sum += std::exp(logit[t * experts + e] - top);
        for (size_t e = 0; e < experts; e++) {
            const double l = logit[t * experts + e];
            p[t * experts + e] = std::exp(l - top) / sum;
            s[e] = score == "sigmoid" ? sigmoid(l) : score == "softmax_of_chosen" ? std::exp(l - top) : p[t * experts + e];
            c[e] = (choice_bias || groups > 1) && score != "softmax_of_chosen" ? s[e] : l;
            if (choice_bias) c[e] += params[(size_t)o.first_param + 1 + bias][e];
        }
        const auto best = [&](const vec &of) { return (size_t)(std::max_element(of.begin(), of.end()) - of.begin()); }; // the first of equals
        if (groups > 1) {
            vec of_group(groups);
            for (size_t g = 0; g < groups; g++) {
                vec part(c.begin() + (long)(g * size), c.begin() + (long)((g + 1) * size));
                std::sort(part.rbegin(), part.rend());
                of_group[g] = part[0] + (size > 1 ? part[1] : 0);
            }
            vec sorted = of_group;
            std::sort(sorted.rbegin(), sorted.rend());
            if (kept < groups) margin = std::fmin(margin, sorted[kept - 1] - sorted[kept]);
            std::vector<char> keep(groups);
            for (size_t n = 0; n < kept; n++) keep[best(of_group)] = 1, of_group[best(of_group)] = -INFINITY;
            for (size_t e = 0; e < experts; e++)
                if (!keep[e / size]) c[e] = -INFINITY;
        }
        for (size_t j = 0; j < top_k; j++) {
            const size_t e = best(c);
            const double of_this = c[e];
            expert[t * top_k + j] = e, chosen_score[t * top_k + j] = s[e], of_chosen += s[e], count[e]++;
            c[e] = -INFINITY;
            margin = std::fmin(margin, of_this - c[best(c)]);
        }
        for (size_t j = 0; j < top_k; j++) weight[t * top_k + j] = factor * chosen_score[t * top_k + j] / (divides ? of_chosen : 1);
    }
    std::vector<size_t> next(experts + 1);
    for (size_t e = 0; e < experts; e++) next[e + 1] = next[e] + count[e];
    const double F = o.option("capacity", 0), capacity = F > 0 ? std::ceil(F * (double)(tokens * top_k) / (double)experts - 1e-6) : INFINITY;
    vec kept_rows(experts);
    for (size_t i = 0; i < expert.size(); i++) {
        row[i] = next[expert[i]]++, slot[row[i]] = i;
        dropped.push_back(kept_rows[expert[i]]++ >= capacity);
    }
}
vec routing::gradient(const op &o, const vec &dweight, double loss_scale) const {
    const double aux = (double)(float)o.option("aux_loss", 0), z = (double)(float)o.option("z_loss", 0);
    vec d(tokens * experts, 0.0);
    for (size_t t = 0; t < tokens; t++) {
        vec ds(experts, 0.0), g(experts, 0.0);
        double sum = 0, along = 0, mean = 0, balance = 0, top = -INFINITY, size = 0;
        for (size_t j = 0; j < top_k; j++) sum += chosen_score[t * top_k + j];
        for (size_t j = 0; j < top_k; j++) along += factor * dweight[t * top_k + j] * chosen_score[t * top_k + j] / sum;
        for (size_t j = 0; j < top_k; j++) // w = factor s, or factor s / sum
            ds[expert[t * top_k + j]] = divides ? (factor * dweight[t * top_k + j] - along) / sum : factor * dweight[t * top_k + j];
        for (size_t e = 0; e < experts; e++) top = std::fmax(top, logit[t * experts + e]);
        for (size_t e = 0; e < experts; e++) {
            size += std::exp(logit[t * experts + e] - top), mean += ds[e] * p[t * experts + e];
            g[e] = aux * (double)experts * (double)count[e] / (double)(tokens * top_k) * loss_scale, balance += g[e] * p[t * experts + e];
        }
        for (size_t e = 0; e < experts; e++) {
            const double q = p[t * experts + e], s = sigmoid(logit[t * experts + e]);
            double &to = d[t * experts + e];
            to = score == "sigmoid" ? ds[e] * s * (1 - s) : score == "softmax_of_chosen" ? ds[e] * std::exp(logit[t * experts + e] - top) : q * (ds[e] - mean);
            to += q * (g[e] - balance) + 2 * z * loss_scale * (top + std::log(size)) * q;
        }
    }
    return d;
}
std::vector<char> dropped_rows(const list &l, size_t i, const values &v, const std::vector<vec> &params) {
    size_t from = i + 1;
    while (from-- > 0 && l.ops[from].kind != "router")
        if (l.ops[from].kind == "combine" && from != i + 1) return {};
    if (from == SIZE_MAX) return {};
    const routing q(l.ops[from], v.in(from), params);
    std::vector<char> by_row;
    for (size_t slot : q.slot) by_row.push_back(q.dropped[slot]);
    return by_row;
}
size_t router_of(const list &l, size_t i) {
    while (l.ops[--i].kind != "router")
        if (l.ops[i].kind == "load") i = (size_t)l.ops[i].edge + 1;
    return i;
}
const vec &fork_value(const list &l, size_t i, const values &v, const edges &in_edges) {
    const op &from = l.ops[(size_t)l.ops[i].edge];
    return from.kind == "input" ? in_edges.at(from.name) : v.out[(size_t)l.ops[i].edge];
}
size_t fork_width(const list &l, size_t i) {
    const op &from = l.ops[(size_t)l.ops[i].edge];
    return from.kind == "input" ? (size_t)from.number(0, 0) : from.out;
}
values forward(const list &l, const std::vector<vec> &params, const vec &x, const edges &in_edges, const call &c, const rounding &round,
               edges *out_edges, const std::function<void(size_t, vec &)> &stored) {
    values v;
    v.x = x, v.from = in_edges, v.out.resize(l.ops.size());
    for (size_t i = 0; i < l.ops.size(); i++) {
        const op &o = l.ops[i];
        const vec &in = v.in(i), *w = o.params ? &params[(size_t)o.first_param] : nullptr;
        const size_t rows = o.kind == "embedding" ? c.rows() : o.kind == "last_token" ? (size_t)c.batch : in.size() / o.in;
        vec y(rows * o.out);
        const std::string gated = gate(o.kind);
        if (o.kind == "linear" || o.kind == "tied_linear") {
            for (size_t r = 0; r < rows; r++)
                for (size_t n = 0; n < o.out; n++) {
                    double sum = 0;
                    for (size_t k = 0; k < o.in; k++) sum += in[r * o.in + k] * (*w)[n * o.in + k];
                    y[r * o.out + n] = sum;
                }
        } else if (o.kind == "bias") {
            for (size_t e = 0; e < y.size(); e++) y[e] = in[e] + (*w)[e % o.out];
        } else if (o.kind == "mul_param") {
            for (size_t e = 0; e < y.size(); e++) y[e] = in[e] * (*w)[e % w->size()];
        } else if (is_norm(o.kind)) {
            const norm_part part(o);
            y = in;
            for (size_t r = 0; r < rows; r++) {
                const size_t at = r * o.in + part.first;
                const norm_row s = norm_of(part.of, &in[at]);
                for (size_t k = 0; k < part.of.in; k++)
                    y[at + k] = (in[at + k] - s.mean) * s.rstd * gamma_of(o, params, k) + (o.params == 2 ? params[(size_t)o.first_param + 1][k] : 0);
            }
        } else if (o.kind.compare(0, 9, "head_norm") == 0) {
            y = in;
            head_norm(o).each(rows, [&](size_t at, const op &n) {
                const norm_row s = norm_of(n, &in[at]);
                for (size_t k = 0; k < n.in; k++) y[at + k] = in[at + k] * s.rstd * gamma_of(n, params, k);
            });
        } else if (is_activation(o.kind)) {
            for (size_t e = 0; e < y.size(); e++) y[e] = activation(o.kind, in[e]);
        } else if (!gated.empty()) {
            for (size_t r = 0; r < rows; r++)
                for (size_t k = 0; k < o.out; k++) y[r * o.out + k] = activation(gated, in[r * o.in + k]) * in[r * o.in + o.out + k];
        } else if (o.kind == "softcap") {
            for (size_t e = 0; e < y.size(); e++) y[e] = o.factor(0, 0) * std::tanh(in[e] / o.factor(0, 0));
        } else if (o.kind == "dyt") {
            const vec &weight = params[(size_t)o.first_param + 1], &bias = params[(size_t)o.first_param + 2];
            for (size_t e = 0; e < y.size(); e++) y[e] = weight[e % o.in] * std::tanh((*w)[0] * in[e]) + bias[e % o.in];
        } else if (o.kind == "xielu") {
            const xielu f(o, params);
            for (size_t e = 0; e < y.size(); e++) y[e] = f.y(in[e]);
        } else if (o.kind == "clamped_swiglu") {
            for (size_t r = 0; r < rows; r++)
                for (size_t k = 0; k < o.out; k++) y[r * o.out + k] = clamped_swiglu(o, in[r * o.in + k], in[r * o.in + o.out + k]).y;
        } else if (o.kind == "dropout") {
            for (size_t e = 0; e < y.size(); e++) y[e] = in[e] * (c.training ? dropout_factor(o, i, e, c.rng) : 1);
        } else if (o.kind == "scale") {
            for (size_t e = 0; e < y.size(); e++) y[e] = in[e] * o.factor(0, 1);
        } else if (o.kind == "fork" || o.kind == "input") {
            y = in;
        } else if (o.kind == "output") {
            y = in;
            if (out_edges) (*out_edges)[o.name] = in;
        } else if (o.kind == "add") {
            const vec &operand = fork_value(l, i, v, in_edges);
            for (size_t e = 0; e < y.size(); e++) y[e] = in[e] + operand[e];
        } else if (o.kind == "mul") {
            const vec &operand = fork_value(l, i, v, in_edges);
            for (size_t e = 0; e < y.size(); e++) y[e] = in[e] * operand[e];
        } else if (o.kind == "load") {
            y = fork_value(l, i, v, in_edges);
        } else if (o.kind == "gate" || o.kind == "modulate") {
            const vec &by = fork_value(l, i, v, in_edges);
            const size_t width = fork_width(l, i);
            for (size_t e = 0; e < y.size(); e++) {
                const modulated m(o, c, width, e);
                y[e] = m.gate ? in[e] * by[m.factor] : in[e] * (1 + by[m.factor]) + by[m.summand];
            }
        } else if (o.kind == "router") {
            const routing q(o, in, params);
            y.assign(q.slot.size() * o.in, 0.0);
            for (size_t e = 0; e < y.size(); e++) y[e] = q.input_weight(q.slot[e / o.in]) * in[q.slot[e / o.in] / q.top_k * o.in + e % o.in];
        } else if (o.kind == "expert_linear" || o.kind == "expert_bias" || o.kind == "combine") {
            const size_t from = router_of(l, i);
            const routing q(l.ops[from], v.in(from), params);
            if (o.kind == "combine") y.assign(q.tokens * o.out, 0.0);
            for (size_t r = 0; r < rows; r++) {
                const size_t slot = q.slot[r], e = q.expert[slot];
                if (o.kind == "combine" && q.dropped[slot]) continue;
                for (size_t n = 0; n < o.out; n++) {
                    if (o.kind == "combine") y[slot / q.top_k * o.out + n] += q.output_weight(slot) * in[r * o.in + n];
                    else if (o.kind == "expert_bias") y[r * o.out + n] = in[r * o.in + n] + (*w)[e * o.out + n];
                    else
                        for (size_t k = 0; k < o.in; k++) y[r * o.out + n] += in[r * o.in + k] * (*w)[(e * o.out + n) * o.in + k];
                }
            }
        } else if (o.kind == "head_linear") {
            const head_linear p(o);
            for (size_t r = 0; r < rows * p.heads; r++) {
                for (size_t n = 0; n < p.out; n++)
                    for (size_t k = 0; k < p.in; k++) y[r * (p.out + p.keep) + n] += in[r * (p.in + p.keep) + k] * (*w)[p.weight(r % p.heads, n, k)];
                for (size_t k = 0; k < p.keep; k++) y[r * (p.out + p.keep) + p.out + k] = in[r * (p.in + p.keep) + p.in + k];
            }
        } else if (o.kind == "slice") {
            for (size_t e = 0; e < y.size(); e++) y[e] = in[e / o.out * o.in + (size_t)o.number(0, 0) + e % o.out];
        } else if (o.kind == "concat") {
            const vec &operand = fork_value(l, i, v, in_edges);
            for (size_t e = 0; e < y.size(); e++) y[e] = concat(o, e).of_fork ? operand[concat(o, e).at] : in[concat(o, e).at];
        } else if (o.kind == "rope") {
            y = rope(o, in, c, 1);
        } else if (o.kind == "attention") {
            y = attention(o, i, in, w, c, nullptr, nullptr, nullptr, nullptr);
        } else if (o.kind == "cross_attention") {
            y = attention(o, i, joined(in, fork_value(l, i, v, in_edges)), w, c, nullptr, nullptr, nullptr, nullptr);
        } else if (o.kind == "embedding") {
            for (size_t e = 0; e < y.size(); e++) y[e] = (*w)[(size_t)c.tokens[e / o.out] * o.out + e % o.out];
        } else if (o.kind == "positions") {
            for (size_t e = 0; e < y.size(); e++) y[e] = in[e] + (*w)[((size_t)c.position + e / o.out % (size_t)c.seq) * o.out + e % o.out];
        } else if (o.kind == "last_token") {
            const size_t seq = (size_t)c.seq;
            for (size_t e = 0; e < y.size(); e++) y[e] = in[((e / o.out + 1) * seq - 1) * o.out + e % o.out];
        } else if (o.kind == "cross_entropy") {
            for (size_t r = 0; r < rows; r++) {
                double top = -INFINITY, sum = 0;
                for (size_t k = 0; k < o.in; k++) top = std::fmax(top, in[r * o.in + k]);
                for (size_t k = 0; k < o.in; k++) sum += std::exp(in[r * o.in + k] - top);
                const double e = (double)(float)o.option("label_smoothing", 0), z = (double)(float)o.option("z_loss", 0);
                const double log_sum = top + std::log(sum);
                if (c.labels[r] == c.ignore_index) continue;
                y[r] = (1 - e) * (log_sum - in[r * o.in + (size_t)c.labels[r]]) + z * log_sum * log_sum;
                for (size_t k = 0; k < o.in; k++) y[r] += e / (double)o.in * (log_sum - in[r * o.in + k]);
            }
        } else {
            y.assign(y.size(), NAN); // this kind has no reference yet
        }
        round.apply(y, i);
        if (stored) stored(i, y);
        v.out[i] = y;
    }
    return v;
}

// ---- backward ------------------------------------------------------------------------------------------------------

// Whether op i is the last op that uses its fork.
static bool last_reader(const list &l, size_t i) {
    for (size_t k = i + 1; k < l.ops.size(); k++)
        if (l.ops[k].edge == l.ops[i].edge) return false;
    return true;
}
gradients backward(const list &l, const std::vector<vec> &params, const values &v, const vec &dy, const edges &out_grads, const call &c,
                   const rounding &round, const rounding &held,
                   const std::function<void(size_t, const vec &, const vec &)> &seen) {
    gradients g;
    for (const vec &p : params) g.params.push_back(vec(p.size(), 0.0));
    std::map<int, vec> fork_grad; // by fork: the gradient of its value
    // Op i adds `part` to the gradient of the value of its fork; the ops behind it in the list have added theirs.
    const auto add_to_fork = [&](const vec &part, size_t i) {
        const op &from = l.ops[(size_t)l.ops[i].edge];
        vec &sum = from.kind == "input" ? g.inputs[from.name] : fork_grad[l.ops[i].edge];
        if (sum.empty()) sum.assign(part.size(), 0.0);
        for (size_t e = 0; e < part.size(); e++) sum[e] += part[e];
        held.apply(sum, i);
    };
    vec d = dy.empty() ? vec(v.out.back().size(), c.loss_scale) : dy;
    for (size_t i = l.ops.size(); i-- > 0;) {
        const op &o = l.ops[i];
        const size_t rows = d.size() / o.out;
        const vec &x = v.in(i);
        const std::string gated = gate(o.kind);
        vec dx = d;
        vec *dw = o.params ? &g.params[(size_t)o.first_param] : nullptr;
        const vec *w = o.params ? &params[(size_t)o.first_param] : nullptr;
        if (o.kind == "linear" || o.kind == "tied_linear") { // y = x w^T
            dx.assign(rows * o.in, 0.0);
            for (size_t r = 0; r < rows; r++)
                for (size_t n = 0; n < o.out; n++)
                    for (size_t k = 0; k < o.in; k++) {
                        dx[r * o.in + k] += d[r * o.out + n] * (*w)[n * o.in + k];
                        (*dw)[n * o.in + k] += d[r * o.out + n] * x[r * o.in + k];
                    }
        } else if (o.kind == "bias") { // y = x + b
            for (size_t e = 0; e < d.size(); e++) (*dw)[e % o.out] += d[e];
        } else if (o.kind == "mul_param") { // y = x w
            for (size_t e = 0; e < d.size(); e++) (*dw)[e % w->size()] += d[e] * x[e], dx[e] = d[e] * (*w)[e % w->size()];
        } else if (is_norm(o.kind)) { // y = xhat gamma + beta, xhat = (x - mean) rstd; y = x in columns that it does not normalise
            const norm_part part(o);
            const size_t columns = part.of.in;
            for (size_t r = 0; r < rows; r++) {
                const size_t at = r * o.in + part.first;
                const norm_row s = norm_of(part.of, &x[at]);
                const double n = o.kind == "l2norm" ? 1 : (double)columns;
                double along = 0, mean = 0;
                for (size_t k = 0; k < columns; k++) {
                    const double xhat = (x[at + k] - s.mean) * s.rstd, e = d[at + k], dxhat = e * gamma_of(o, params, k);
                    along += dxhat * xhat / n, mean += dxhat / n;
                    if (o.params > 0) (*dw)[k] += e * xhat;
                    if (o.params > 1) g.params[(size_t)o.first_param + 1][k] += e;
                }
                if (o.kind.compare(0, 9, "layernorm") != 0) mean = 0;
                for (size_t k = 0; k < columns; k++) {
                    const double xhat = (x[at + k] - s.mean) * s.rstd;
                    dx[at + k] = s.rstd * (d[at + k] * gamma_of(o, params, k) - mean - xhat * along);
                }
            }
        } else if (o.kind.compare(0, 9, "head_norm") == 0) { // y = xhat gamma of each head, xhat = x rstd
            head_norm(o).each(rows, [&](size_t at, const op &n) {
                const norm_row s = norm_of(n, &x[at]);
                double along = 0;
                for (size_t k = 0; k < n.in; k++) {
                    along += d[at + k] * gamma_of(n, params, k) * x[at + k] * s.rstd / (double)n.in;
                    g.params[(size_t)n.first_param][k] += d[at + k] * x[at + k] * s.rstd;
                }
                for (size_t k = 0; k < n.in; k++) dx[at + k] = s.rstd * (d[at + k] * gamma_of(n, params, k) - x[at + k] * s.rstd * along);
            });
        } else if (is_activation(o.kind)) { // y = f(x)
            for (size_t e = 0; e < d.size(); e++) dx[e] = d[e] * activation_slope(o.kind, x[e]);
        } else if (!gated.empty()) { // y = f(a) b
            dx.assign(rows * o.in, 0.0);
            for (size_t r = 0; r < rows; r++)
                for (size_t k = 0; k < o.out; k++) {
                    const double a = x[r * o.in + k], b = x[r * o.in + o.out + k], e = d[r * o.out + k];
                    dx[r * o.in + k] = e * activation_slope(gated, a) * b;
                    dx[r * o.in + o.out + k] = e * activation(gated, a);
                }
        } else if (o.kind == "softcap") { // y = cap tanh(x / cap)
            for (size_t e = 0; e < d.size(); e++) dx[e] = d[e] * (1 - std::pow(std::tanh(x[e] / o.factor(0, 0)), 2));
        } else if (o.kind == "dyt") { // y = weight tanh(alpha x) + bias
            const vec &weight = params[(size_t)o.first_param + 1];
            for (size_t e = 0; e < d.size(); e++) {
                const double t = std::tanh((*w)[0] * x[e]), along = d[e] * weight[e % o.in] * (1 - t * t);
                dx[e] = along * (*w)[0];
                (*dw)[0] += along * x[e];
                g.params[(size_t)o.first_param + 1][e % o.in] += d[e] * t;
                g.params[(size_t)o.first_param + 2][e % o.in] += d[e];
            }
        } else if (o.kind == "xielu") { // y = alpha_p x^2 + beta x, or alpha_n (e^x - 1 - x) + beta x
            const xielu f(o, params);
            for (size_t e = 0; e < d.size(); e++) {
                dx[e] = d[e] * f.slope(x[e]);
                (*dw)[0] += d[e] * f.along_p(x[e]) * f.slope_p;
                g.params[(size_t)o.first_param + 1][0] += d[e] * f.along_n(x[e]) * f.slope_n;
            }
        } else if (o.kind == "clamped_swiglu") {
            dx.assign(rows * o.in, 0.0);
            for (size_t r = 0; r < rows; r++)
                for (size_t k = 0; k < o.out; k++) {
                    const size_t a = r * o.in + k, b = a + o.out;
                    const clamped_slopes c8 = clamped_swiglu(o, x[a], x[b]);
                    dx[a] = d[r * o.out + k] * c8.da, dx[b] = d[r * o.out + k] * c8.db;
                }
        } else if (o.kind == "dropout") { // y = mask x / (1 - p)
            for (size_t e = 0; e < d.size(); e++) dx[e] = d[e] * dropout_factor(o, i, e, c.rng);
        } else if (o.kind == "scale") { // y = factor x
            for (size_t e = 0; e < d.size(); e++) dx[e] = d[e] * o.factor(0, 1);
        } else if (o.kind == "add") { // y = x + value of the fork
            if (last_reader(l, i)) held.apply(dx, i);
            add_to_fork(dx, i);
        } else if (o.kind == "mul") { // y = x * value of the fork
            const vec &by = fork_value(l, i, v, v.from);
            for (size_t e = 0; e < d.size(); e++) dx[e] = d[e] * x[e];
            add_to_fork(dx, i);
            for (size_t e = 0; e < d.size(); e++) dx[e] = d[e] * by[e];
        } else if (o.kind == "gate" || o.kind == "modulate") { // y = x factor, or x (1 + factor) + summand
            const vec &by = fork_value(l, i, v, v.from);
            const size_t width = fork_width(l, i);
            vec part(by.size());
            for (size_t e = 0; e < d.size(); e++) {
                const modulated m(o, c, width, e);
                dx[e] = d[e] * (by[m.factor] + (m.gate ? 0 : 1));
                part[m.factor] += d[e] * x[e];
                if (!m.gate) part[m.summand] += d[e];
            }
            add_to_fork(part, i);
        } else if (o.kind == "router") { // y = rows of x; the weights depend on logits = x w^T
            const routing q(o, x, params);
            vec dweight = fork_grad.at((int)i);
            if (q.weighs_input) dweight.assign(q.slot.size(), 0.0); // a row is weight x
            for (size_t e = 0; q.weighs_input && e < d.size(); e++) dweight[q.slot[e / o.in]] += d[e] * x[q.slot[e / o.in] / q.top_k * o.in + e % o.in];
            const vec dlogit = q.gradient(o, dweight, c.loss_scale);
            dx.assign(x.size(), 0.0);
            for (size_t e = 0; e < d.size(); e++) dx[q.slot[e / o.in] / q.top_k * o.in + e % o.in] += q.input_weight(q.slot[e / o.in]) * d[e];
            for (size_t t = 0; t < q.tokens; t++)
                for (size_t e = 0; e < q.experts; e++) {
                    if (o.option("bias", 0) == 1) dw[1][e] += dlogit[t * q.experts + e];
                    for (size_t k = 0; k < o.in; k++) {
                        dx[t * o.in + k] += dlogit[t * q.experts + e] * (*w)[e * o.in + k];
                        (*dw)[e * o.in + k] += dlogit[t * q.experts + e] * x[t * o.in + k];
                    }
                }
        } else if (o.kind == "expert_linear" || o.kind == "expert_bias" || o.kind == "combine") {
            const size_t from = router_of(l, i);
            const routing q(l.ops[from], v.in(from), params);
            dx.assign(x.size(), 0.0);
            if (o.kind == "combine") fork_grad[(int)from].assign(q.slot.size(), 0.0);
            for (size_t r = 0; r < q.slot.size(); r++) {
                const size_t slot = q.slot[r], e = q.expert[slot];
                if (o.kind == "combine" && q.dropped[slot]) continue;
                for (size_t n = 0; n < o.out; n++) {
                    const double g = d[(o.kind == "combine" ? slot / q.top_k : r) * o.out + n];
                    if (o.kind == "combine") // y = the sum of weight x
                        dx[r * o.in + n] = q.output_weight(slot) * g, fork_grad[(int)from][slot] += g * x[r * o.in + n];
                    else if (o.kind == "expert_bias") dx[r * o.in + n] = g, (*dw)[e * o.out + n] += g;
                    else
                        for (size_t k = 0; k < o.in; k++) {
                            dx[r * o.in + k] += g * (*w)[(e * o.out + n) * o.in + k];
                            (*dw)[(e * o.out + n) * o.in + k] += g * x[r * o.in + k];
                        }
                }
            }
        } else if (o.kind == "head_linear") { // y = [x weight^T, x] for each head
            const head_linear p(o);
            dx.assign(x.size(), 0.0);
            for (size_t r = 0; r < rows * p.heads; r++) {
                for (size_t n = 0; n < p.out; n++)
                    for (size_t k = 0; k < p.in; k++) {
                        dx[r * (p.in + p.keep) + k] += d[r * (p.out + p.keep) + n] * (*w)[p.weight(r % p.heads, n, k)];
                        (*dw)[p.weight(r % p.heads, n, k)] += d[r * (p.out + p.keep) + n] * x[r * (p.in + p.keep) + k];
                    }
                for (size_t k = 0; k < p.keep; k++) dx[r * (p.in + p.keep) + p.in + k] = d[r * (p.out + p.keep) + p.out + k];
            }
        } else if (o.kind == "slice") { // y = columns of x
            dx.assign(x.size(), 0.0);
            for (size_t e = 0; e < d.size(); e++) dx[e / o.out * o.in + (size_t)o.number(0, 0) + e % o.out] = d[e];
        } else if (o.kind == "concat") { // y = columns of x, and of the value of the fork
            vec part(fork_value(l, i, v, v.from).size());
            dx.assign(x.size(), 0.0);
            for (size_t e = 0; e < d.size(); e++) (concat(o, e).of_fork ? part : dx)[concat(o, e).at] += d[e];
            add_to_fork(part, i);
        } else if (o.kind == "load") { // y = value of the fork
            add_to_fork(d, i);
            dx.assign(x.size(), 0.0);
        } else if (o.kind == "fork") {
            const auto found = fork_grad.find((int)i);
            if (found != fork_grad.end())
                for (size_t e = 0; e < d.size(); e++) dx[e] = d[e] + found->second[e];
        } else if (o.kind == "output") { // y = x, which is also written to the caller
            const auto found = out_grads.find(o.name);
            if (found != out_grads.end() && !found->second.empty())
                for (size_t e = 0; e < d.size(); e++) dx[e] = d[e] + found->second[e];
        } else if (o.kind == "rope") {
            dx = rope(o, d, c, -1);
        } else if (o.kind == "attention") {
            attention(o, i, x, w, c, &d, &v.out[i], &dx, dw);
        } else if (o.kind == "cross_attention") {
            attention(o, i, joined(x, fork_value(l, i, v, v.from)), w, c, &d, &v.out[i], &dx, dw);
            add_to_fork(split(dx, x.size()), i);
        } else if (o.kind == "embedding") { // y[row] = w[token]
            for (size_t e = 0; e < d.size(); e++)
                if (c.tokens[e / o.out] != (int32_t)o.option("padding_idx", -1)) (*dw)[(size_t)c.tokens[e / o.out] * o.out + e % o.out] += d[e];
        } else if (o.kind == "positions") { // y[row] = x[row] + w[position]
            for (size_t e = 0; e < d.size(); e++) (*dw)[((size_t)c.position + e / o.out % (size_t)c.seq) * o.out + e % o.out] += d[e];
        } else if (o.kind == "last_token") { // y[sequence] = x[its last row]
            const size_t seq = (size_t)c.seq;
            dx.assign(c.rows() * o.in, 0.0);
            for (size_t e = 0; e < d.size(); e++) dx[((e / o.in + 1) * seq - 1) * o.in + e % o.in] = d[e];
        } else if (o.kind == "cross_entropy") { // y = log sum exp x - x[label]
            dx.assign(rows * o.in, 0.0);
            for (size_t r = 0; r < rows; r++) {
                if (c.labels[r] == c.ignore_index) continue;
                double top = -INFINITY, sum = 0;
                for (size_t k = 0; k < o.in; k++) top = std::fmax(top, x[r * o.in + k]);
                for (size_t k = 0; k < o.in; k++) sum += std::exp(x[r * o.in + k] - top);
                const double e = (double)(float)o.option("label_smoothing", 0), z = (double)(float)o.option("z_loss", 0);
                for (size_t k = 0; k < o.in; k++) {
                    const double p = std::exp(x[r * o.in + k] - top) / sum, share = e / (double)o.in + (k == (size_t)c.labels[r] ? 1 - e : 0);
                    dx[r * o.in + k] = d[r] * (p * (1 + 2 * z * (top + std::log(sum))) - share);
                }
            }
        }
        round.apply(dx, i);
        if (seen) seen(i, d, dx);
        d = dx;
    }
    g.dx = d;
    return g;
}

} // namespace reference
