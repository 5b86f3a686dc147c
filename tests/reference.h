// reference.h -- the reference: computes a list of ops in double, from the formulas, one op after the other and without fusion,
// forward and backward. Kinds, names, widths and edges come from the op table of the plan; arguments come from the text of the
// list, so that a wrong default in the library does not become the expected value.
//
// Do this:
//     reference::list ops(plan, "(linear, fc, 8, 4), (gelu, act)");
//     reference::values v = reference::forward(ops, params, x, edges, call, exact);
//     reference::gradients g = reference::backward(ops, params, v, dy, edge_grads, call, exact);
//
// `rounding` names the ops whose output the library stores in 16 bits: the reference rounds there, too. `exact` rounds nowhere.
// reference.cc, which has the formulas, is a library of its own, which is optimised even where the tests are not.
#ifndef TESTS_REFERENCE_H
#define TESTS_REFERENCE_H

#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "te/plan/model.h" // te_plan

namespace reference {

typedef std::vector<double> vec;

// The value of "128 / 2", "(4 + 2) * 64", "0.1f".
struct expression {
    const char *p;
    double sum() {
        double v = product();
        while (*p == '+' || *p == '-') v = *p++ == '+' ? v + product() : v - product();
        return v;
    }
    double product() {
        double v = leaf();
        while (*p == '*' || *p == '/') v = *p++ == '*' ? v * leaf() : v / leaf();
        return v;
    }
    double leaf() {
        if (*p == '(') {
            p++;
            const double v = sum();
            p++;
            return v;
        }
        char *end;
        const double v = std::strtod(p, &end);
        p = end + (*end == 'f' && end != p);
        return v;
    }
};

struct op {
    std::string kind, name;
    std::vector<std::string> args; // as written in the list
    size_t in, out;
    int edge, first_param, params; // first_param: index into the flat list of parameters
    double number(size_t i, double otherwise) const {
        if (i >= args.size()) return otherwise;
        expression e = {args[i].c_str()};
        return e.sum();
    }
    // The number as the library has it: rounded to float.
    double factor(size_t i, double otherwise) const { return (double)(float)number(i, otherwise); }
    // The value of the option "(name,value)".
    double option(const std::string &of, double otherwise) const {
        for (const std::string &a : args)
            if (a.compare(0, of.size() + 2, "(" + of + ",") == 0) {
                expression e = {a.c_str() + of.size() + 2};
                return e.sum();
            }
        return otherwise;
    }
    std::string word(const std::string &of) const { // the word of the option "(name,word)"; empty if the op does not have it
        for (const std::string &a : args)
            if (a.compare(0, of.size() + 2, "(" + of + ",") == 0) return a.substr(of.size() + 2, a.size() - of.size() - 3);
        return "";
    }
};

struct list {
    std::vector<op> ops;
    int params = 0;
    list(const te_plan *plan, const std::string &text);
};

// The inputs of a call beside the tensors.
struct call {
    int batch = 1, seq = 1, position = 0, ignore_index = -1;
    int memory_seq = 0; // rows of an (input, .., (rows, memory)) for each sequence
    const int32_t *tokens = nullptr, *labels = nullptr;
    double loss_scale = 0;
    te_rng rng = {0, 0};
    bool training = true;
    size_t rows() const { return (size_t)batch * (size_t)seq; }
    size_t input_rows(const op &input) const {
        for (const std::string &a : input.args)
            if (a == "(rows,memory)") return (size_t)batch * (size_t)memory_seq;
            else if (a == "(rows,sequences)") return (size_t)batch;
        return rows();
    }
};

// at[i]: whether the output of op i (forward) or the gradient of its input (backward) is rounded.
struct rounding {
    te_dtype dtype = TE_f32;
    std::vector<char> at;
    void apply(vec &v, size_t i) const {
        if (dtype == TE_f32 || i >= at.size() || !at[i]) return;
        for (double &e : v) e = (double)te_round_to((float)e, dtype);
    }
};

struct values {
    vec x;
    std::vector<vec> out;            // by op
    std::map<std::string, vec> from; // the inputs, by name
    const vec &in(size_t i) const { return i ? out[i - 1] : x; }
};
typedef std::map<std::string, vec> edges; // by name

struct gradients {
    vec dx;
    std::vector<vec> params;
    edges inputs;
};

// ---- leaf formulas -------------------------------------------------------------------------------------------------

double sigmoid(double x);
double normal_cdf(double x);

// An op that a test defines: y = f(x), and its derivative.
struct custom_map { double (*f)(double), (*slope)(double); };
std::map<std::string, custom_map> &custom_maps();

double activation(const std::string &kind, double x);
double activation_slope(const std::string &kind, double x);
// The activation of a gated op's first half; "" if the op is not gated.
std::string gate(const std::string &kind);
bool is_activation(const std::string &kind);
bool is_norm(const std::string &kind);

// (clamped_swiglu, name, (limit, 7), (alpha, 1.702)): y = f(min(a, limit)) (1 + clamp(b, -limit, limit)), f(x) = x sigmoid(alpha x).
struct clamped_slopes { double y, da, db; };
clamped_slopes clamped_swiglu(const op &o, double a, double b);

// (xielu, name, (beta, 0.5)), with the softplus of its two parameters, and the derivatives of the softplus.
struct xielu {
    double beta, alpha_p, alpha_n, slope_p, slope_n;
    xielu(const op &o, const std::vector<vec> &params);
    double along_p(double x) const { return x > 0 ? x * x : 0; }            // dy / d alpha_p
    double along_n(double x) const { return x > 0 ? 0 : std::expm1(x) - x; } // dy / d alpha_n
    double y(double x) const { return alpha_p * along_p(x) + alpha_n * along_n(x) + beta * x; }
    double slope(double x) const { return (x > 0 ? 2 * alpha_p * x : alpha_n * std::expm1(x)) + beta; }
};

// (dropout, name, p): the factor of element e of op number `id`. It is 0 if the element's 16 bits of the Philox words are below 65536 p.
double dropout_factor(const op &o, size_t id, size_t e, const te_rng &rng);

// The frequencies of the pairs of a rope, scaled as in the papers: by wavelength (Llama 3.1), by a ramp over the pairs (YaRN).
struct rope_table {
    std::vector<double> frequency;
    double magnitude = 1;
    explicit rope_table(const op &o);
};
// (rope, name, heads, kv_heads, head_dim, (rotary_dim, ..), (interleaved, ..), (base, ..), (scaling, ..)): rotates q and k; direction -1
// rotates back.
vec rope(const op &o, const vec &x, const call &c, int direction);

// The sizes of a head_linear, and where its weight has the element of column n of y and column k of x.
struct head_linear {
    size_t heads, in, out, keep;
    bool transposed;
    explicit head_linear(const op &o)
        : heads((size_t)o.number(0, 1)), in((size_t)o.number(1, 0)), out((size_t)o.number(2, 0)), keep((size_t)o.option("keep", 0)), transposed(o.option("transposed", 0) == 1) {}
    size_t weight(size_t head, size_t n, size_t k) const { return transposed ? (head * in + k) * out + n : (head * out + n) * in + k; }
};

// The layout of the input of an attention: rows of q, k and v side by side; of a cross_attention, all rows of q, then all rows of k and v.
struct attention_sizes {
    bool cross;
    size_t heads, kv, dim, value, queries, keys, width, kv_width, kv_from; // dim, value: head sizes of q and k, and of v
    attention_sizes(const op &o, const call &c, size_t elements)
        : cross(o.kind == "cross_attention"), heads((size_t)o.number(cross, 0)), kv((size_t)o.number(cross + 1, 0)), dim((size_t)o.number(cross + 2, 0)),
          value((size_t)o.option("value_dim", (double)dim)), queries((size_t)c.seq), keys(queries), width(o.in), kv_width(cross ? kv * (dim + value) : width), kv_from(cross ? c.rows() * width : heads * dim) {
        if (cross) keys = (elements - kv_from) / kv_width / (size_t)c.batch;
    }
    size_t q0(size_t batch, size_t head, size_t query) const { return (batch * queries + query) * width + head * dim; }
    size_t k0(size_t batch, size_t head) const { return kv_from + batch * keys * kv_width + head / (heads / kv) * dim; } // index of key 0
    size_t v0(size_t batch, size_t head) const { return kv_from + batch * keys * kv_width + kv * dim + head / (heads / kv) * value; }
    // the position among the keys: the last query is at the last key
    long at(size_t query) const { return (long)query + (long)keys - (long)queries; }
};
vec joined(const vec &q, const vec &kv);
vec split(vec &x, size_t n); // removes the elements behind the first n, and returns them

// The options of an attention. A query sees the keys first() to end() - 1.
struct attention_options {
    int left, right; // -1: no bound
    double scale, softcap, dropout; // 0: none
    bool alibi;
    std::string table; // the kind of learnt bias: heads, shared or relative; empty: none
    size_t sinks, major, minor; // major, minor: the table's queries and keys, or its buckets and max_distance
    explicit attention_options(const op &o)
        : left((int)o.option("window_left", -1)), right(o.option("causal", o.kind == "attention") == 1 ? 0 : (int)o.option("window_right", -1)),
          scale((double)(float)o.option("scale", 1 / std::sqrt(o.number(o.kind == "attention" ? 2 : 3, 1)))), softcap((double)(float)o.option("softcap", 0)),
          dropout((double)(float)o.option("dropout", 0)), alibi(o.option("alibi", 0) == 1),
          table(o.option("relative_bias", 0) > 0 ? "relative" : o.word("bias")), sinks(o.option("sinks", 0) == 1) {
        major = (size_t)(table == "relative" ? o.option("relative_bias", 0) : o.option("bias_queries", 0));
        minor = (size_t)(table == "relative" ? o.option("max_distance", 128) : o.option("bias_keys", (double)major));
    }
    // The sinks and the bias table among the op's parameters, or their gradients; null if it has none.
    template <class V> V *sinks_of(V *w) const { return sinks ? w : nullptr; }
    template <class V> V *table_of(V *w) const { return table.empty() || !w ? nullptr : w + sinks; }
    // Index in the table of the bias of query i, at position `at` among the keys, and a key. T5's bucket is found by counting limits.
    size_t place(size_t head, size_t heads, size_t i, long at, size_t key) const {
        if (table.empty()) return 0;
        if (table != "relative") return ((table == "heads" ? head : 0) * major + i) * minor + key;
        const bool both = right != 0;
        const long far = (long)key - at, n = far <= 0 ? -far : both ? far : 0;
        const size_t side = both ? major / 2 : major, exact = side / 2, begin = both && far > 0 ? side : 0;
        size_t bucket = n < (long)exact ? (size_t)n : exact;
        for (size_t k = 1; n >= (long)exact && k < side - exact; k++)
            if ((double)n >= (double)exact * std::pow((double)minor / (double)exact, (double)k / (double)(side - exact)) * (1 - 1e-12)) bucket = exact + k;
        return (begin + bucket) * heads + head;
    }
    // ALiBi. n: the largest power of two that is at most heads. The slope of head h < n is 2^(-8 (h + 1) / n); the other heads have every other
    // slope of 2 n heads.
    double bias(size_t head, size_t heads, long at, size_t key) const {
        size_t n = 1;
        while (2 * n <= heads) n *= 2;
        const double step = head < n ? 8.0 * (double)(head + 1) / (double)n : 4.0 * (double)(2 * (head - n) + 1) / (double)n;
        return alibi ? -std::exp2(-step) * std::fabs((double)at - (double)key) : 0;
    }
    double capped(double score) const { return softcap > 0 ? softcap * std::tanh(score / softcap) : score; }
    double slope(double of_capped) const { return softcap > 0 ? 1 - of_capped / softcap * (of_capped / softcap) : 1; }
    // The factor by which dropout multiplies a probability. One Philox counter yields four words for a tile of 16 queries and 32 keys: their halves
    // are for queries q and q + 8, the words for keys k, k + 8, k + 16 and k + 24.
    double dropout_factor(size_t id, size_t head, size_t query, size_t key, const call &c) const {
        uint32_t word[4];
        const double limit = std::floor(65536 * dropout + 0.5);
        if (dropout == 0 || !c.training) return 1;
        te_philox(word, c.rng.seed, (uint64_t)(head * (((size_t)c.seq + 15) / 16) + query / 16) << 32 | (key / 32 * 64 + query % 8 * 8 + key % 8),
                  (uint32_t)id, c.rng.offset);
        return (word[key / 8 % 4] >> (query / 8 % 2 ? 16 : 0) & 0xffff) < limit ? 0 : 65536 / (65536 - limit);
    }
    size_t first(long at) const { return left < 0 || at < left ? 0 : (size_t)(at - left); }
    size_t end(long at, size_t keys) const { return right < 0 || at + right + 1 > (long)keys ? keys : (size_t)std::max(at + right + 1, 0l); }
};
// (attention, name, heads, kv_heads, head_dim, options), and cross_attention. w: its parameters, or null. With dy and the stored output it is
// backward: it fills dx and adds to dw.
vec attention(const op &o, size_t id, const vec &x, const vec *w, const call &c, const vec *dy, const vec *stored, vec *dx, vec *dw);

// ---- forward -------------------------------------------------------------------------------------------------------

struct norm_row { double mean, rstd; };
// The columns that a norm normalises, (first, 0) and (columns, all), and the norm of a row with only these columns.
struct norm_part {
    size_t first;
    op of;
    explicit norm_part(const op &o) : first((size_t)o.option("first", 0)), of(o) { of.in = of.out = (size_t)o.option("columns", (double)o.in); }
};
norm_row norm_of(const op &o, const double *x);
double gamma_of(const op &o, const std::vector<vec> &params, size_t c);

// (head_norm, name, heads, kv_heads, head_dim, (eps, ..)): a norm of each head of q and of k, with one parameter for all of q and one for all of k.
struct head_norm {
    size_t heads, rotated, dim, all; // heads of q, of q and k; columns of a head; heads of q, k and v
    op of[2];                       // the norm of a head of q, and of k
    explicit head_norm(const op &o)
        : heads((size_t)o.number(0, 0)), rotated(heads + (size_t)o.number(1, 0)), dim((size_t)o.number(2, 0)), all(o.in / dim), of{o, o} {
        for (int k = 0; k < 2; k++)
            of[k].kind = o.kind == "head_norm" ? "rmsnorm" : "rmsnorm1p", of[k].in = of[k].out = dim, of[k].first_param += k, of[k].params = 1;
    }
    // Calls f(index of the first element, norm) for each head of q and k.
    template <class F>
    void each(size_t rows, F f) const {
        for (size_t r = 0; r < rows; r++)
            for (size_t h = 0; h < rotated; h++) f((r * all + h) * dim, of[h >= heads]);
    }
};

// (concat, name, fork, width, (heads, 1), (front, 0)): which element of its input, or of the fork's value, element e of the output is.
struct concat {
    bool of_fork;
    size_t at;
    concat(const op &o, size_t e) {
        const size_t width = (size_t)o.number(1, 0), heads = (size_t)o.option("heads", 1), head = o.in / heads;
        const size_t row = e / o.out, h = e % o.out / (head + width), c = e % o.out % (head + width), split = o.option("front", 0) == 1 ? width : head;
        of_fork = (c < split) == (o.option("front", 0) == 1);
        at = of_fork ? row * width + (c < split ? c : c - split) : row * o.in + h * head + (c < split ? c : c - split);
    }
};

// (gate, name, x, (first, 0)), (modulate, name, x, (first, 0)): y = x factor + summand. The element of the value of x that an element of y is
// multiplied by, and the one that is added (modulate). `width`: columns of the value; it has a row for each sequence or, with one column, for each row.
struct modulated {
    bool gate;
    size_t factor, summand;
    modulated(const op &o, const call &c, size_t width, size_t e) : gate(o.kind == "gate") {
        const size_t row = e / o.out, first = (size_t)o.option("first", 0) + e % o.out, sequence = row / (size_t)c.seq * width;
        factor = gate ? (width == 1 ? row : sequence + first) : sequence + first + o.out, summand = sequence + first;
    }
};

// (router, name, hidden, experts, options): the logits, the chosen experts and their weights, and the order of the routed rows. `margin` is the
// least difference between the score of a chosen expert and that of the next one: a choice within rounding errors is no choice to test.
struct routing {
    size_t experts, top_k, tokens;
    std::string score;
    bool divides; // whether the scores of the chosen experts are divided by their sum
    bool weighs_input; // whether the weights multiply the inputs of the experts, not their outputs
    double factor, margin = INFINITY;
    std::vector<char> dropped; // [tokens, top_k]: whether the row is behind the expert's capacity
    vec logit, p;              // [tokens, experts]: p = softmax(logit)
    vec weight, chosen_score;  // [tokens, top_k]
    std::vector<size_t> expert, row, slot, count; // expert, row: [tokens, top_k]; slot: the inverse of row
    routing(const op &o, const vec &x, const std::vector<vec> &params);
    double input_weight(size_t at) const { return weighs_input ? weight[at] : 1; }
    double output_weight(size_t at) const { return weighs_input ? 1 : weight[at]; }
    // The gradients of the logits, of those of the weights and of the two losses.
    vec gradient(const op &o, const vec &dweight, double loss_scale) const;
};
// The router whose rows op i reads.
size_t router_of(const list &l, size_t i);
// Of the rows of the output of op i, which ones a router has dropped, so that no kernel computes them. Empty: none.
std::vector<char> dropped_rows(const list &l, size_t i, const values &v, const std::vector<vec> &params);

// The value of the fork or input that op i reads.
const vec &fork_value(const list &l, size_t i, const values &v, const edges &in_edges);
size_t fork_width(const list &l, size_t i); // its columns

// in_edges: the tensor of each (input, name). out_edges, unless null, receives the tensor of each (output, name).
// stored(i, y) is called with the output of each op, and may replace it by the one that a kernel stored.
values forward(const list &l, const std::vector<vec> &params, const vec &x, const edges &in_edges, const call &c, const rounding &round,
               edges *out_edges = nullptr, const std::function<void(size_t, vec &)> &stored = nullptr);

// ---- backward ------------------------------------------------------------------------------------------------------

// dy of a list that ends in cross_entropy: [rows], or empty for call.loss_scale in every row. out_grads: the gradient of each (output,
// name). `held` rounds the gradient that an add passes to its fork. seen(i, dy, dx) is called with the gradients of the output and the
// input of each op.
gradients backward(const list &l, const std::vector<vec> &params, const values &v, const vec &dy, const edges &out_grads, const call &c,
                   const rounding &round, const rounding &held,
                   const std::function<void(size_t, const vec &, const vec &)> &seen = nullptr);

} // namespace reference

#endif
