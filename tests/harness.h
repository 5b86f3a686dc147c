// harness.h -- compares a model with the reference: forward, inference and backward, on poisoned memory and guarded buffers.
//
// Do this:
//     MODEL(mlp, bf16, (linear, fc, 64, 96), (bias, b, 96), (gelu, act))      // declares mlp and mlp_subject
//     check(mlp_subject, shape(1, 131));
//
// Every run draws fresh numbers; a failure prints the seed, and TE_SEED=<seed> in the environment repeats it.
// A test moves data by te_copy only, because target memory may lie on a GPU.
#ifndef TESTS_HARNESS_H
#define TESTS_HARNESS_H

#include <catch2/catch.hpp>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

#include "draw.h"
#include "numbers.h"
#include "reference.h"
#include "te/fuse/sequential.h"

namespace {

// ---- a model of any list: the functions that TE_SEQUENTIAL made for it -------------------------------------------------

struct subject {
    const char *text; // of the list
    size_t bytes;     // sizeof the struct of the model
    const te_plan *(*plan)();
    size_t (*param_bytes)();
    size_t (*grad_bytes)();
    size_t (*saved_bytes)(int64_t);
    size_t (*workspace_bytes)(const void *, int64_t, te_context *);
    te_status (*bind)(void *, void *, float *, te_context *);
    te_status (*forward)(te_tensor, te_saved *, te_tensor, const void *, const te_batch *, te_context *);
    te_status (*infer)(te_tensor, te_tensor, const void *, const te_batch *, te_context *);
    te_status (*backward)(te_tensor, te_tensor, const te_saved *, const void *, const te_batch *, te_context *);
};

#define SUBJECT(name, text)                                                                                          \
    {text, sizeof(name), name##_plan, name##_param_bytes, name##_grad_bytes, name##_saved_bytes,                     \
     [](const void *m, int64_t rows, te_context *c) { return name##_workspace_bytes((const name *)m, rows, c); },    \
     [](void *m, void *p, float *g, te_context *c) { return name##_bind((name *)m, p, g, c); },                      \
     [](te_tensor y, te_saved *s, te_tensor x, const void *m, const te_batch *b, te_context *c) { return name##_forward(y, s, x, (const name *)m, b, c); }, \
     [](te_tensor y, te_tensor x, const void *m, const te_batch *b, te_context *c) { return name##_infer(y, x, (const name *)m, b, c); }, \
     [](te_tensor dx, te_tensor dy, const te_saved *s, const void *m, const te_batch *b, te_context *c) { return name##_backward(dx, dy, s, (const name *)m, b, c); }}

#define MODEL(name, dtype, ...) MODEL_WITH(TE_FORWARD_, TE_BACKWARD_, name, dtype, __VA_ARGS__)
#define UNFUSED(name, dtype, ...) MODEL_WITH(TE_UNFUSED_, TE_UNFUSED_, name, dtype, __VA_ARGS__)
#define MODEL_WITH(forward_patterns, backward_patterns, name, dtype, ...)                    \
    TE_SEQUENTIAL_WITH(forward_patterns, backward_patterns, name, dtype, __VA_ARGS__)        \
    [[maybe_unused]] const subject name##_subject = SUBJECT(name, TE_STRING(__VA_ARGS__));

// ---- memory ------------------------------------------------------------------------------------------------------

const size_t guard_bytes = 512;

// Target memory with a guard behind it. All of it begins as 0xff bytes, which are NaN in every format, so that an element that
// was not written, or was read from beyond the end, is noticed. `offset` bytes in front of the data break its alignment.
struct buffer {
    te_context *ctx;
    size_t bytes, offset;
    char *base = nullptr;
    buffer(te_context *c, size_t n, size_t from = 0) : ctx(c), bytes(n), offset(from) {
        void *p = nullptr;
        REQUIRE(te_allocate(ctx, &p, offset + bytes + guard_bytes) == TE_OK);
        base = (char *)p;
        poison();
    }
    buffer(const buffer &) = delete;
    buffer &operator=(const buffer &) = delete;
    ~buffer() { te_release(ctx, base); }
    void *data() const { return base + offset; }
    void poison() { REQUIRE(te_fill(ctx, base, 0xff, offset + bytes + guard_bytes) == TE_OK); }
    // All bytes; fails if a guard was written.
    std::vector<uint8_t> raw() const {
        std::vector<uint8_t> all(offset + bytes + guard_bytes);
        REQUIRE(te_copy(ctx, all.data(), base, all.size()) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        CHECK(numbers::others(all.data(), offset, 0xff) + numbers::others(all.data() + offset + bytes, guard_bytes, 0xff) == 0);
        return std::vector<uint8_t>(all.begin() + (long)offset, all.begin() + (long)(offset + bytes));
    }
    bool poisoned() const {
        const std::vector<uint8_t> v = raw();
        return numbers::others(v.data(), v.size(), 0xff) == 0;
    }
    reference::vec read(te_dtype t, size_t from, size_t n) const { // elements
        return numbers::loaded(raw().data(), from, n, t);
    }
    reference::vec read(te_dtype t) const { return read(t, 0, bytes / te_dtype_bytes(t)); }
    void write(const reference::vec &x, te_dtype t, size_t from = 0) {
        const std::vector<uint8_t> v = numbers::stored(x, t);
        REQUIRE(te_copy(ctx, (char *)data() + from * te_dtype_bytes(t), v.data(), v.size()) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
    }
    void write_ints(const std::vector<int32_t> &x) {
        REQUIRE(te_copy(ctx, data(), x.data(), x.size() * sizeof x[0]) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
    }
};

// While an object of this type lives, a pattern that begins with a GEMM runs as one fused kernel wherever one exists (CUDA).
struct custom_gemms {
    static int &count() {
        static int n = 0;
        return n;
    }
    custom_gemms() { count()++; }
    ~custom_gemms() { count()--; } // also when a check throws
    custom_gemms(const custom_gemms &) = delete;
    custom_gemms &operator=(const custom_gemms &) = delete;
};

struct context {
    te_context c;
    explicit context(uint64_t seed = 1) {
        REQUIRE(te_context_create(&c, 0, seed) == TE_OK);
        if (custom_gemms::count()) c.gemm_custom = 2, c.processors = 2; // two blocks compute all tiles of a GEMM
    }
    context(const context &) = delete;
    context &operator=(const context &) = delete;
    ~context() { te_context_destroy(&c); }
};

// ---- numbers -----------------------------------------------------------------------------------------------------

struct source {
    std::mt19937 random;
    explicit source(unsigned seed) : random(seed) {}
    // Normal numbers, rounded to the dtype.
    reference::vec draw(size_t n, te_dtype t, double mean = 0, double std = 1) {
        return numbers::drawn(random, std::normal_distribution<double>(mean, std), n, t);
    }
    int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); }
};

inline double tolerance_of(te_dtype t) { return t == TE_f32 ? 1e-5 : t == TE_f16 ? 1e-3 : 1.6e-2; }

using numbers::rms;

// ||out - ref|| / ||ref|| <= tolerance, and the error of each element is at most 16 tolerance (RMS of ref + |ref of it|). For two
// results of the library; a comparison with the reference has a bound for each element (check_within in check.h).
inline void check_close(const std::string &name, const reference::vec &out, const reference::vec &ref, double tolerance) {
    REQUIRE(out.size() == ref.size());
    const double scale = rms(ref);
    double squares = 0, worst = 0;
    size_t at = 0;
    for (size_t i = 0; i < ref.size(); i++) {
        const double e = std::fabs(out[i] - ref[i]);
        squares += e * e;
        const double relative = e / (scale + std::fabs(ref[i]));
        if (!(relative <= worst) && !std::isnan(worst) && e > 0) worst = relative, at = i;
        if (std::isnan(e)) worst = NAN, at = i;
    }
    const double error = ref.empty() ? 0 : std::sqrt(squares / (double)ref.size()) / (scale > 0 ? scale : 1);
    if (error <= tolerance && worst <= 16 * tolerance) {
        CHECK(error <= tolerance);
        return;
    }
    INFO(name << ": relative error " << error << ", allowed " << tolerance << "; worst at " << at << " of " << ref.size() << ": " << out[at]
              << ", should be " << ref[at] << " (rms " << scale << ")");
    CHECK(error <= tolerance);
    CHECK(worst <= 16 * tolerance);
}

// ---- where the library rounds ------------------------------------------------------------------------------------

// Whether op i is in front of a rope in a step that begins with a GEMM. If that step is two kernels, they round the value in
// between; if it is one kernel, it does not.
inline bool rotated_in_pattern(const te_plan *p, const te_step *steps, int count, int i) {
    for (int k = 0; k < count; k++)
        for (int j = 0; j + 1 < steps[k].count; j++)
            if (steps[k].op[j] == i && p->op[steps[k].op[0]].op_class == TE_CLASS_gemm && !strcmp(p->op[i + 1].kind, "rope")) return true;
    return false;
}
// The ops whose output forward rounds. On the host that includes a GEMM in front of the rest of its pattern, unless the GEMM
// itself adds the residual. On CUDA a GEMM may round there or not: it is not included, and trial::may_round allows for it.
inline reference::rounding stored_forward(const te_plan *p, bool training) {
    reference::rounding r;
    r.dtype = p->dtype, r.at.assign((size_t)p->op_count, 0);
    const te_run sizes = te__run_to_size(p, TE_FORWARD, 1, TE_USE_off, nullptr);
    const te_step *s = training ? p->forward : p->infer;
    const int count = training ? p->forward_count : p->infer_count;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < s[i].count; j++) {
            const int o = s[i].op[j];
            const bool adds = (p->op[s[i].op[s[i].count - 1]].flags & TE_IS_ADD) && (s[i].count == 2 || (s[i].count == 3 && !strcmp(p->op[s[i].op[1]].kind, "scale")));
            if (p->op[o].op_class == TE_CLASS_gemm && !TE_CUDA && !adds) r.at[(size_t)o] = 1;
            if (!TE_CUDA && rotated_in_pattern(p, s, count, o)) r.at[(size_t)o] = 1;
            const bool forked = j + 1 < s[i].count && (p->op[s[i].op[j + 1]].flags & TE_IS_FORK);
            const bool normed = j + 1 < s[i].count && p->op[s[i].op[j + 1]].op_class == TE_CLASS_norm; // a norm reads a stored, rounded row
            // the logits are stored, some rows at a time
            const bool lossy = j + 1 < s[i].count && (p->op[s[i].op[j + 1]].flags & TE_TO_LOSS);
            if (j + 1 == s[i].count || lossy || forked || normed || (training && te__policy(&sizes, o)->output_saved) || (p->op[o].flags & TE_IS_OUTPUT)) r.at[(size_t)o] = 1;
        }
    if (te__to_loss(p)) r.at.back() = 0;
    return r;
}
inline reference::rounding stored_backward(const te_plan *p) {
    reference::rounding r;
    r.dtype = p->dtype, r.at.assign((size_t)p->op_count, 0);
    for (int i = 0; i < p->backward_count; i++) {
        const te_step &s = p->backward[i];
        r.at[(size_t)s.op[s.count - 1]] = 1;
        if (p->op[s.op[0]].flags & TE_TO_LOSS) r.at[(size_t)s.op[0]] = 1; // the gradient of the logits is stored, too
        // the output of a GEMM is stored in front of the rest of its pattern, unless the GEMM adds to the gradient of a fork
        if (s.count > 1 && p->op[s.op[0]].op_class == TE_CLASS_gemm && !(p->op[s.op[1]].flags & TE_IS_FORK)) r.at[(size_t)s.op[0]] = 1;
    }
    return r;
}
inline reference::rounding at_adds(const te_plan *p) {
    reference::rounding r;
    r.dtype = p->dtype, r.at.assign((size_t)p->op_count, 1);
    return r;
}

// ---- one model in memory ---------------------------------------------------------------------------------------------

struct shape {
    int batch, seq;
    int position = 0, memory = 0; // memory: its number of rows for each sequence
    bool loss_from_dy = false; // of a list that ends in cross_entropy: pass a dy instead of batch.loss_scale
    shape(int b, int s, int m = 0) : batch(b), seq(s), memory(m) {}
};

// Parameter k of an op, of a size as in training: weights of 1 / sqrt(in), gammas around 1 (0 in the 1p norms), biases around 0.
inline reference::vec draw_param(source &random, const reference::op &o, int k, size_t n, te_dtype t) {
    const bool weight = o.kind == "linear" || o.kind == "tied_linear" || o.kind == "expert_linear" || o.kind == "head_linear" ||
                        (o.kind == "router" && k == 0);
    const bool gamma = (reference::is_norm(o.kind) && k == 0) || o.kind.compare(0, 9, "head_norm") == 0;
    return random.draw(n, t, gamma && o.kind.find("1p") == std::string::npos ? 1 : 0, weight ? 1 / std::sqrt((double)o.in) : gamma ? 0.3 : 0.7);
}

struct instance {
    const subject &s;
    const te_plan *plan;
    te_context *ctx;
    reference::list ops;
    std::vector<uint64_t> memory; // of the struct of the model
    buffer params, grads;
    std::vector<reference::vec> param; // of all ops, in list order
    std::vector<int> owner;            // index of the parameter that a tied one is tied to, else its own index

    instance(const subject &sub, te_context *c)
        : s(sub), plan(sub.plan()), ctx(c), ops(plan, sub.text), memory(sub.bytes / 8 + 1, 0), params(c, sub.param_bytes()),
          grads(c, sub.grad_bytes()) {
        REQUIRE(s.bind(memory.data(), params.data(), (float *)grads.data(), ctx) == TE_OK);
        REQUIRE(model()->param_count == ops.params);
        for (int i = 0; i < ops.params; i++) {
            owner.push_back(i);
            te_param *p = &model()->param[i];
            for (int j = 0; p->tied && j < ops.params; j++) {
                te_param *q = &model()->param[j];
                if (q->tied || q->rows != p->rows || q->cols != p->cols) continue;
                REQUIRE(te_tie(p, q, ctx) == TE_OK);
                owner.back() = j;
                break;
            }
        }
    }
    te_model *model() { return (te_model *)memory.data(); }
    size_t elements(int i) { return (size_t)(model()->param[i].rows * model()->param[i].cols); }

    void draw(source &random) {
        param.assign((size_t)ops.params, reference::vec());
        for (const reference::op &o : ops.ops)
            for (int k = 0; k < o.params; k++) {
                const int i = o.first_param + k;
                if (owner[(size_t)i] != i) continue;
                param[(size_t)i] = draw_param(random, o, k, elements(i), plan->dtype);
                const te_dtype dtype = model()->param[i].dtype;
                params.write(param[(size_t)i], dtype, (size_t)((char *)model()->param[i].data - (char *)params.data()) / te_dtype_bytes(dtype));
            }
        for (size_t i = 0; i < param.size(); i++) param[i] = param[(size_t)owner[i]];
    }
    size_t grad_at(int i) { return (size_t)(model()->param[i].grad - (float *)grads.data()); }
    // Adds the gradient of a tied parameter to that of its owner.
    void merge(reference::gradients &g) {
        for (size_t i = 0; i < owner.size(); i++)
            if (owner[i] != (int)i)
                for (size_t e = 0; e < g.params[i].size(); e++) g.params[(size_t)owner[i]][e] += g.params[i][e];
    }
};

// The edges of a list, (input, ..) and (output, ..), with their buffers.
struct edge_buffers {
    std::vector<std::string> names;
    std::vector<std::unique_ptr<buffer>> value, grad;
    std::vector<te_edge> table;
    std::vector<bool> is_input;
};

inline void set_rng(te_context *c, uint64_t seed, uint64_t offset) {
    te_rng r;
    r.seed = seed, r.offset = offset;
    REQUIRE(te_rng_set(&r, c) == TE_OK);
}
inline te_rng get_rng(te_context *c) {
    te_rng r;
    REQUIRE(te_rng_get(&r, c) == TE_OK);
    return r;
}

// The derivative of relu jumps at 0: near it, the reference in double and a kernel in float may be on different sides.
inline bool near_relu_jump(const reference::list &l, const reference::values &v) {
    for (size_t i = 0; i < l.ops.size(); i++) {
        const std::string f = reference::gate(l.ops[i].kind).empty() ? l.ops[i].kind : reference::gate(l.ops[i].kind);
        if (f == "relu")
            for (double e : v.in(i))
                if (std::fabs(e) < 3e-6 && e != 0) return true;
    }
    return false;
}

// Whether a router has chosen between experts whose scores differ so little that rounding decides: by a unit in the last place of a
// few inputs in 16 bits, by the sum's error in f32.
inline bool near_choice(const reference::list &l, const reference::values &v, const std::vector<reference::vec> &params, te_dtype t) {
    for (size_t i = 0; i < l.ops.size(); i++)
        if (l.ops[i].kind == "router" && reference::routing(l.ops[i], v.in(i), params).margin < (t == TE_f32 ? 1e-5 : 1e-3)) return true;
    return false;
}

// ---- the check ---------------------------------------------------------------------------------------------------

} // namespace

#include "check.h" // check()

namespace {

// Checks that the reference's backward is the derivative of its forward: central differences in double at six elements each of
// x, of every parameter and of every input.
inline void check_gradients_of_reference(const subject &s, const shape &at, unsigned seed = fresh_seed()) {
    if (brief()) return; // this calls the reference only, and a sanitizer has nothing to find in it
    const te_plan *plan = s.plan();
    const std::string text = s.text;
    CAPTURE(plan->name, text, seed);
    source random(seed);
    const reference::list l(plan, s.text);
    const reference::rounding exact;
    reference::call call;
    call.batch = at.batch, call.seq = at.seq, call.position = at.position, call.ignore_index = -7;
    call.memory_seq = at.memory;
    call.rng.seed = random.random(), call.rng.offset = random.random();
    const size_t rows = call.rows();
    std::vector<int32_t> tokens(rows), labels(rows);
    std::vector<reference::vec> params((size_t)l.params);
    reference::edges inputs, out_grads;
    for (size_t i = 0; i < l.ops.size(); i++) {
        const reference::op &o = l.ops[i];
        for (int k = 0; k < o.params; k++) {
            const te_param_info &p = plan->op[i].param[k];
            params[(size_t)(o.first_param + k)] = draw_param(random, o, k, (size_t)(p.rows * p.cols), TE_f32);
        }
        if (o.kind == "embedding")
            for (int32_t &t : tokens) t = random.below((int)o.number(0, 1));
        if (o.kind == "cross_entropy")
            for (int32_t &t : labels) t = random.below(4) ? random.below((int)o.in) : -7;
        if (o.kind == "input") inputs[o.name] = random.draw(call.input_rows(o) * (size_t)o.number(0, 0), TE_f32);
        if (o.kind == "output") out_grads[o.name] = random.draw(rows * o.in, TE_f32);
    }
    call.tokens = tokens.data(), call.labels = labels.data();
    reference::vec x = random.draw(te__from_tokens(plan) ? 0 : rows * (size_t)plan->in, TE_f32);
    const reference::vec dy = random.draw(rows * (size_t)plan->out, TE_f32);
    const auto total = [&] { // sum of dy * y, and of each output times its gradient
        reference::edges outs;
        const reference::values v = reference::forward(l, params, x, inputs, call, exact, &outs);
        double sum = 0;
        for (size_t i = 0; i < dy.size(); i++) sum += dy[i] * v.out.back()[i];
        for (const auto &o : outs)
            for (size_t i = 0; i < o.second.size(); i++) sum += o.second[i] * out_grads[o.first][i];
        return sum;
    };
    const reference::values v = reference::forward(l, params, x, inputs, call, exact);
    const reference::gradients g = reference::backward(l, params, v, dy, out_grads, call, exact, exact);
    const auto compare = [&](const std::string &name, reference::vec &at_x, const reference::vec &gradient, size_t stopped = 0, size_t stopped_end = 0) {
        REQUIRE(at_x.size() == gradient.size());
        for (int k = 0; k < 6 && !at_x.empty(); k++) {
            const size_t i = (size_t)random.below((int)at_x.size());
            if (i >= stopped && i < stopped_end) continue; // has no gradient, although the loss depends on it: padding_idx
            double best = INFINITY;
            for (const double h : {1e-4, 1e-5, 1e-6}) { // with the larger h, an input of a relu may change its sign
                const double old = at_x[i];
                at_x[i] = old + h;
                const double above = total();
                at_x[i] = old - h;
                const double below = total();
                at_x[i] = old;
                best = std::fmin(best, std::fabs((above - below) / (2 * h) - gradient[i]));
            }
            INFO(name << "[" << i << "]: backward says " << gradient[i] << ", finite differences are " << best << " away");
            CHECK(best <= 1e-5 * (1 + std::fabs(gradient[i])));
        }
    };
    compare("x", x, g.dx.size() == x.size() ? g.dx : reference::vec(x.size()));
    std::vector<size_t> stopped(params.size(), 0), stopped_end(params.size(), 0);
    for (const reference::op &o : l.ops)
        if (o.kind == "embedding" && o.option("padding_idx", -1) >= 0)
            stopped[(size_t)o.first_param] = (size_t)o.option("padding_idx", 0) * o.out, stopped_end[(size_t)o.first_param] = stopped[(size_t)o.first_param] + o.out;
    for (size_t i = 0; i < params.size(); i++) compare("parameter " + std::to_string(i), params[i], g.params[i], stopped[i], stopped_end[i]);
    for (auto &i : inputs) compare("input " + i.first, i.second, g.inputs.at(i.first));
}

} // namespace

#endif
