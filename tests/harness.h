// harness.h -- runs a model against the reference: forward, inference, backward, with poisoned memory and guarded buffers.
//
// Do this:
//     MODEL(mlp, bf16, (linear, fc, 64, 96), (bias, b, 96), (gelu, act))      // declares mlp and mlp_subject
//     check(mlp_subject, shape(1, 131));
//
// Every run draws fresh numbers; a failure prints the seed, and TE_SEED=<seed> in the environment repeats it.
// Move data through te_copy alone: target memory may lie on a GPU.
#ifndef TESTS_HARNESS_H
#define TESTS_HARNESS_H

#include <catch2/catch.hpp>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

#include "draw.h"
#include "reference.h"
#include "te/fuse/sequential.h"

namespace {

// ---- a model, whatever its type -------------------------------------------------------------------------------------

struct subject {
    const char *text; // the list
    size_t bytes;     // of the instance
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
#define MODEL_WITH(rows, rows_b, name, dtype, ...)                    \
    TE_SEQUENTIAL_WITH(rows, rows_b, name, dtype, __VA_ARGS__)        \
    const subject name##_subject = SUBJECT(name, TE_STRING(__VA_ARGS__));

// ---- memory ------------------------------------------------------------------------------------------------------

const size_t guard_bytes = 512;

// Target memory with a guard behind it. 0xff bytes are NaN in every format: what is not written, and what is read from
// beyond the end, shows. `offset` moves the start off the allocation's alignment.
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
        size_t touched = 0;
        for (size_t i = 0; i < all.size(); i++) touched += (i < offset || i >= offset + bytes) && all[i] != 0xff;
        CHECK(touched == 0);
        return std::vector<uint8_t>(all.begin() + (long)offset, all.begin() + (long)(offset + bytes));
    }
    bool poisoned() const {
        for (uint8_t b : raw())
            if (b != 0xff) return false;
        return true;
    }
    reference::vec read(te_dtype t, size_t from, size_t n) const { // elements
        const std::vector<uint8_t> v = raw();
        reference::vec x(n);
        for (size_t i = 0; i < n; i++) x[i] = (double)te_load(v.data(), (int64_t)(from + i), t);
        return x;
    }
    reference::vec read(te_dtype t) const { return read(t, 0, bytes / te_dtype_bytes(t)); }
    void write(const reference::vec &x, te_dtype t, size_t from = 0) {
        std::vector<uint8_t> v(x.size() * te_dtype_bytes(t));
        for (size_t i = 0; i < x.size(); i++) te_store(v.data(), (int64_t)i, (float)x[i], t);
        REQUIRE(te_copy(ctx, (char *)data() + from * te_dtype_bytes(t), v.data(), v.size()) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
    }
    void write_ints(const std::vector<int32_t> &x) {
        REQUIRE(te_copy(ctx, data(), x.data(), x.size() * sizeof x[0]) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
    }
};

// Rows that begin with a product run as one kernel wherever there is one (CUDA).
inline bool &own_products() {
    static bool on = false;
    return on;
}

struct context {
    te_context c;
    explicit context(uint64_t seed = 1) {
        REQUIRE(te_context_create(&c, 0, seed) == TE_OK);
        if (own_products()) c.gemm_own = 2, c.processors = 2; // all tiles of a product go to one pair of blocks
    }
    context(const context &) = delete;
    context &operator=(const context &) = delete;
    ~context() { te_context_destroy(&c); }
};

// ---- numbers -----------------------------------------------------------------------------------------------------

struct source {
    std::mt19937 random;
    explicit source(unsigned seed) : random(seed) {}
    // Normal numbers as they are after rounding to the dtype.
    reference::vec draw(size_t n, te_dtype t, double mean = 0, double std = 1) {
        std::normal_distribution<double> normal(mean, std);
        reference::vec x(n);
        for (double &e : x) e = (double)te_round_to((float)normal(random), t);
        return x;
    }
    int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); }
};

inline double tolerance_of(te_dtype t) { return t == TE_f32 ? 1e-5 : t == TE_f16 ? 1e-3 : 1.6e-2; }

inline double rms(const reference::vec &x) {
    double sum = 0;
    for (double e : x) sum += e * e;
    return x.empty() ? 0 : std::sqrt(sum / (double)x.size());
}
inline double distance(const reference::vec &a, const reference::vec &b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return std::sqrt(sum);
}

// ||out - ref|| / ||ref|| <= tolerance, and no element further off than 16 times that of the RMS (and of itself, where it
// stands out). `floor` is the RMS below which `ref` counts as cancelled out: the error is then taken relative to it.
inline void check_close(const std::string &name, const reference::vec &out, const reference::vec &ref, double tolerance, double floor = 0) {
    REQUIRE(out.size() == ref.size());
    const double scale = std::max(rms(ref), floor);
    double squares = 0, worst = 0;
    size_t at = 0;
    for (size_t i = 0; i < ref.size(); i++) {
        const double e = std::fabs(out[i] - ref[i]);
        squares += e * e;
        const double share = e / (scale + std::fabs(ref[i]));
        if (!(share <= worst) && !std::isnan(worst) && e > 0) worst = share, at = i;
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

// A product on its way to the rest of its row is rounded on the host, unless it takes an add along; on CUDA it may be: `products`.
inline reference::rounding stored_forward(const te_plan *p, bool training, bool products = false) {
    reference::rounding r;
    r.dtype = p->dtype, r.at.assign((size_t)p->op_count, 0);
    const te_step *s = training ? p->forward : p->infer;
    for (int i = 0; i < (training ? p->forward_count : p->infer_count); i++)
        for (int j = 0; j < s[i].count; j++) {
            const int o = s[i].op[j];
            const bool adds = (p->op[s[i].op[s[i].count - 1]].flags & TE_IS_ADD) && (s[i].count == 2 || (s[i].count == 3 && !strcmp(p->op[s[i].op[1]].kind, "scale")));
            if (p->op[o].op_class == TE_CLASS_gemm && (products || (!TE_CUDA && !adds))) r.at[(size_t)o] = 1;
            const bool forked = j + 1 < s[i].count && (p->op[s[i].op[j + 1]].flags & TE_IS_FORK);
            if (j + 1 == s[i].count || forked || (training && te_in_memory(p, o)) || (p->op[o].flags & TE_IS_OUTPUT)) r.at[(size_t)o] = 1;
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
        // a matrix product, but not one that adds to the gradient of a fork
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
    int position = 0;
    bool loss_from_dy = false; // a list that ends in cross_entropy: bring a dy
    double tolerance = 0;      // 0: the dtype's
    shape(int b, int s) : batch(b), seq(s) {}
};

// Parameter k of an op, of the size that training has: weights 1 / sqrt(in), gammas around 1 (or 0), biases around 0.
inline reference::vec draw_param(source &random, const reference::op &o, int k, size_t n, te_dtype t) {
    const bool weight = o.kind == "linear" || o.kind == "tied_linear";
    const bool gamma = reference::is_norm(o.kind) && k == 0;
    return random.draw(n, t, gamma && o.kind.find("1p") == std::string::npos ? 1 : 0, weight ? 1 / std::sqrt((double)o.in) : gamma ? 0.3 : 0.7);
}

struct instance {
    const subject &s;
    const te_plan *plan;
    te_context *ctx;
    reference::list ops;
    std::vector<uint64_t> memory; // the struct
    buffer params, grads;
    std::vector<reference::vec> param; // as in the list, flat
    std::vector<int> owner;            // of a tied parameter: the one that it is tied to; else itself

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
                const size_t from = (size_t)((char *)model()->param[i].data - (char *)params.data()) / te_dtype_bytes(plan->dtype);
                params.write(param[(size_t)i], plan->dtype, from);
            }
        for (size_t i = 0; i < param.size(); i++) param[i] = param[(size_t)owner[i]];
    }
    size_t grad_at(int i) { return (size_t)(model()->param[i].grad - (float *)grads.data()); }
    // A tied parameter's gradient goes to its owner.
    void merge(reference::gradients &g) {
        for (size_t i = 0; i < owner.size(); i++)
            if (owner[i] != (int)i)
                for (size_t e = 0; e < g.params[i].size(); e++) g.params[(size_t)owner[i]][e] += g.params[i][e];
    }
};

// The edges of a list: buffers by name.
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

// relu has a step in its slope: a reference in double and a kernel in float may stand on different sides of it.
inline bool near_a_step(const reference::list &l, const reference::values &v) {
    for (size_t i = 0; i < l.ops.size(); i++) {
        const std::string f = reference::gate(l.ops[i].kind).empty() ? l.ops[i].kind : reference::gate(l.ops[i].kind);
        if (f == "relu")
            for (double e : v.in(i))
                if (std::fabs(e) < 3e-6 && e != 0) return true;
    }
    return false;
}

// ---- the check ---------------------------------------------------------------------------------------------------

inline void check(const subject &s, const shape &at, unsigned seed = fresh_seed()) {
    const te_plan *plan = s.plan();
    const std::string text = s.text;
    CAPTURE(plan->name, text, te_dtype_name(plan->dtype), at.batch, at.seq, at.position, seed);
    source random(seed);
    context own;
    te_context *ctx = &own.c;
    instance m(s, ctx);
    const te_dtype dtype = plan->dtype, out_dtype = plan->out_dtype;
    const double tolerance = at.tolerance > 0 ? at.tolerance : tolerance_of(dtype);
    const double cancelled = 0.05; // a sum to a twentieth of its size: numbers are near 1
    const bool from_tokens = te__from_tokens(plan) != 0, to_loss = te__to_loss(plan) != 0;
    const size_t rows = (size_t)at.batch * (size_t)at.seq, in = (size_t)plan->in, out = (size_t)plan->out;

    // what comes along
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = at.batch, batch.seq = at.seq, batch.position = at.position, batch.ignore_index = -7, batch.loss_scale = 1.0f / (float)rows;
    reference::call call;
    call.batch = at.batch, call.seq = at.seq, call.position = at.position, call.ignore_index = -7, call.loss_scale = (double)batch.loss_scale;
    std::vector<int32_t> tokens(rows), labels(rows);
    buffer tokens_there(ctx, rows * 4), labels_there(ctx, rows * 4);
    edge_buffers e;
    reference::edges in_edges, out_grads;
    for (const reference::op &o : m.ops.ops) {
        if (o.kind == "embedding") {
            for (int32_t &t : tokens) t = random.below((int)o.number(0, 1));
            tokens_there.write_ints(tokens);
            batch.tokens = (const int32_t *)tokens_there.data(), call.tokens = tokens.data();
        }
        if (o.kind == "cross_entropy") {
            for (int32_t &t : labels) t = random.below(5) ? random.below((int)o.in) : -7;
            labels[0] = random.below((int)o.in);
            labels_there.write_ints(labels);
            batch.labels = (const int32_t *)labels_there.data(), call.labels = labels.data();
        }
        if (o.kind != "input" && o.kind != "output") continue;
        const size_t n = rows * (o.kind == "input" ? (size_t)o.number(0, 0) : o.in);
        e.names.push_back(o.name), e.is_input.push_back(o.kind == "input");
        e.value.emplace_back(new buffer(ctx, n * te_dtype_bytes(dtype), 16));
        e.grad.emplace_back(new buffer(ctx, n * te_dtype_bytes(dtype), 16));
        te_edge edge;
        edge.name = plan->op[&o - &m.ops.ops[0]].name;
        edge.value = te_matrix(e.value.back()->data(), dtype, (int64_t)rows, (int64_t)(n / rows));
        edge.grad = te_matrix(e.grad.back()->data(), dtype, (int64_t)rows, (int64_t)(n / rows));
        e.table.push_back(edge);
    }
    batch.edges = e.table.data(), batch.edge_count = (int)e.table.size();
    call.rng.seed = (uint64_t)random.random() << 32 | random.random(), call.rng.offset = random.random();

    // numbers, drawn again while a relu stands on its step
    const size_t size = te_dtype_bytes(dtype), out_size = te_dtype_bytes(out_dtype);
    buffer x(ctx, from_tokens ? 0 : rows * in * size, 16), y(ctx, rows * out * out_size, 16), y2(ctx, rows * out * out_size, 16);
    buffer dx(ctx, from_tokens ? 0 : rows * in * size, 16), dx2(ctx, from_tokens ? 0 : rows * in * size, 16), dy(ctx, rows * out * out_size, 16);
    reference::values ref;
    reference::edges ref_out_edges;
    for (int tries = 0; tries < 100; tries++) {
        m.draw(random);
        for (size_t i = 0; i < e.names.size(); i++)
            (e.is_input[i] ? in_edges : out_grads)[e.names[i]] = random.draw(e.value[i]->bytes / size, dtype);
        ref = reference::forward(m.ops, m.param, random.draw(x.bytes / size, dtype), in_edges, call, stored_forward(plan, true), &ref_out_edges);
        if (!near_a_step(m.ops, ref)) break;
    }
    x.write(ref.x, dtype);
    for (size_t i = 0; i < e.names.size(); i++)
        if (e.is_input[i]) e.value[i]->write(in_edges[e.names[i]], dtype);
        else e.grad[i]->write(out_grads[e.names[i]], dtype);
    reference::vec dy_ref = random.draw(rows * out, out_dtype);
    if (to_loss && !at.loss_from_dy) dy_ref.clear();
    else dy.write(dy_ref, out_dtype);
    const std::vector<uint8_t> x_before = x.raw(), params_before = m.params.raw();

    // exactly the memory that was asked for
    buffer workspace(ctx, s.workspace_bytes(m.memory.data(), (int64_t)rows, ctx)), saved_memory(ctx, s.saved_bytes((int64_t)rows));
    ctx->workspace = workspace.data(), ctx->workspace_bytes = workspace.bytes;
    te_saved saved;
    memset(&saved, 0, sizeof saved);
    saved.memory = saved_memory.data(), saved.bytes = saved_memory.bytes;
    const te_tensor tx = from_tokens ? te_none() : te_matrix(x.data(), dtype, (int64_t)rows, (int64_t)in);
    const te_tensor tdx = from_tokens ? te_none() : te_matrix(dx.data(), dtype, (int64_t)rows, (int64_t)in);
    const te_tensor tdx2 = from_tokens ? te_none() : te_matrix(dx2.data(), dtype, (int64_t)rows, (int64_t)in);
    const te_tensor ty = te_matrix(y.data(), out_dtype, (int64_t)rows, (int64_t)out), ty2 = te_matrix(y2.data(), out_dtype, (int64_t)rows, (int64_t)out);
    const te_tensor tdy = dy_ref.empty() ? te_none() : te_matrix(dy.data(), out_dtype, (int64_t)rows, (int64_t)out);

    // ---- forward
    set_rng(ctx, call.rng.seed, call.rng.offset);
    const te_status forward = s.forward(ty, &saved, tx, m.memory.data(), &batch, ctx);
    INFO(te_last_error(ctx));
    REQUIRE(forward == TE_OK);
    const te_rng after = get_rng(ctx);
    CHECK(after.seed == call.rng.seed);
    CHECK(after.offset == call.rng.offset + (te__draws(plan) ? 1 : 0));
    // Each step is judged by what it read: the reference goes on from what the kernels stored.
    const std::vector<uint8_t> kept = saved_memory.raw();
    te_plan all = *plan; // saves what a (recompute, ..) leaves out, too; its steps are the same
    all.span_count = 0;
    buffer all_memory(ctx, plan->span_count ? te_plan_saved_bytes(&all, (int64_t)rows) : 0);
    if (plan->span_count) {
        te_saved everything = saved;
        everything.memory = all_memory.data(), everything.bytes = all_memory.bytes;
        set_rng(ctx, call.rng.seed, call.rng.offset);
        const te_plan *bound = m.model()->plan;
        m.model()->plan = &all;
        REQUIRE(te_plan_forward(ty2, &everything, tx, &all, m.model(), &batch, ctx) == TE_OK);
        m.model()->plan = bound;
        CHECK(y2.raw() == y.raw());
    }
    const buffer &stored_memory = plan->span_count ? all_memory : saved_memory;
    te_run layout;
    te__begin(&layout, &all, TE_FORWARD, (int64_t)rows, call.batch, ctx);
    layout.x.p = x.data(), layout.y.p = y.data();
    (void)te__lay_out(&layout, (char *)stored_memory.data());
    ref_out_edges.clear();
    ref = reference::forward(m.ops, m.param, ref.x, in_edges, call, stored_forward(plan, true), &ref_out_edges, [&](size_t i, reference::vec &v) {
        const char *p = (const char *)layout.act[i], *base = (const char *)stored_memory.data();
        reference::vec got;
        if (i + 1 == m.ops.ops.size()) got = y.read(out_dtype);
        else if (p >= base && p < base + stored_memory.bytes)
            got = stored_memory.read(dtype, (size_t)(p - base) / size, rows * (size_t)plan->op[i].out);
        else return;
        check_close(std::string("output of ") + plan->op[i].name, got, v, tolerance, cancelled);
        v = got;
    });
    for (size_t i = 0; i < e.names.size(); i++)
        if (!e.is_input[i]) check_close("output " + e.names[i], e.value[i]->read(dtype), ref_out_edges[e.names[i]], tolerance, cancelled);

    // ---- the same again
    std::vector<std::vector<uint8_t>> first(1, y.raw());
    for (auto &b : e.value) first.push_back(b->raw());
    for (size_t i = 0; i < e.names.size(); i++)
        if (!e.is_input[i]) e.value[i]->poison();
    y.poison(), workspace.poison(), saved_memory.poison();
    set_rng(ctx, call.rng.seed, call.rng.offset);
    REQUIRE(s.forward(ty, &saved, tx, m.memory.data(), &batch, ctx) == TE_OK);
    CHECK(y.raw() == first[0]);
    for (size_t i = 0; i < e.value.size(); i++) CHECK(e.value[i]->raw() == first[i + 1]);
    CHECK(saved_memory.raw() == kept);

    // ---- inference
    {
        reference::call infer = call;
        infer.training = false;
        reference::edges outs, rounded_outs;
        reference::values v = reference::forward(m.ops, m.param, ref.x, in_edges, infer, stored_forward(plan, false), &outs), rounded;
        if (TE_CUDA) rounded = reference::forward(m.ops, m.param, ref.x, in_edges, infer, stored_forward(plan, false, true), &rounded_outs);
        for (size_t i = 0; i < e.names.size(); i++)
            if (!e.is_input[i]) e.value[i]->poison();
        const te_rng before = get_rng(ctx);
        for (int again = 0; again < 2; again++) {
            workspace.poison(), y2.poison();
            REQUIRE(s.infer(ty2, tx, m.memory.data(), &batch, ctx) == TE_OK);
            if (again) CHECK(y2.raw() == first.back());
            else {
                const reference::vec got = y2.read(out_dtype);
                if (TE_CUDA && distance(got, rounded.out.back()) < distance(got, v.out.back())) v = rounded, outs = rounded_outs;
                check_close("y of inference", got, v.out.back(), tolerance, cancelled);
                for (size_t i = 0; i < e.names.size(); i++)
                    if (!e.is_input[i]) check_close("inference: output " + e.names[i], e.value[i]->read(dtype), outs[e.names[i]], tolerance, cancelled);
            }
            first.push_back(y2.raw());
        }
        CHECK(get_rng(ctx).offset == before.offset);
    }

    // ---- backward
    reference::gradients g = reference::backward(m.ops, m.param, ref, dy_ref, out_grads, call, stored_backward(plan), at_adds(plan));
    m.merge(g);
    const double unit = dy_ref.empty() ? (double)batch.loss_scale : 1, floor = to_loss ? 1e-3 * unit : cancelled;
    const double floor_of_sums = cancelled * std::sqrt((double)rows) * unit;
    std::vector<uint8_t> grads_first, dx_first;
    std::vector<reference::vec> before((size_t)m.ops.params);
    for (int pass = 0; pass < 4; pass++) { // overwrite; the same again; add; without dx
        const bool add = pass == 2;
        batch.accumulate = add;
        m.grads.poison(), dx.poison(), dx2.poison(), workspace.poison();
        for (size_t i = 0; i < e.names.size(); i++)
            if (e.is_input[i]) e.grad[i]->poison();
        std::vector<uint8_t> gaps = m.grads.raw();
        for (int i = 0; i < m.ops.params; i++) {
            if (m.owner[(size_t)i] != i) continue;
            memset(&gaps[m.grad_at(i) * 4], 0, m.elements(i) * 4);
            if (!add) continue;
            before[(size_t)i] = random.draw(m.elements(i), TE_f32, 0, rms(g.params[(size_t)i]) + floor);
            m.grads.write(before[(size_t)i], TE_f32, m.grad_at(i));
        }
        const te_status backward = s.backward(pass == 0 ? tdx : pass < 3 ? tdx2 : te_none(), tdy, &saved, m.memory.data(), &batch, ctx);
        INFO("backward, accumulate " << add << ": " << te_last_error(ctx));
        REQUIRE(backward == TE_OK);
        if (pass == 0 && !from_tokens) check_close("dx", dx.read(dtype), g.dx, tolerance, floor);
        for (int i = 0; (pass == 0 || add) && i < m.ops.params; i++) {
            if (m.owner[(size_t)i] != i) continue;
            reference::vec want = g.params[(size_t)i];
            for (size_t k = 0; add && k < want.size(); k++) want[k] += before[(size_t)i][k];
            check_close(std::string(add ? "added to the gradient of " : "gradient of ") + m.model()->param[i].op + "." + m.model()->param[i].field,
                        m.grads.read(TE_f32, m.grad_at(i), m.elements(i)), want, tolerance, floor_of_sums);
        }
        for (size_t i = 0; pass == 0 && i < e.names.size(); i++)
            if (e.is_input[i]) check_close("gradient of input " + e.names[i], e.grad[i]->read(dtype), g.inputs[e.names[i]], tolerance, floor);
        const std::vector<uint8_t> now = m.grads.raw();
        size_t touched = 0;
        for (size_t i = 0; i < gaps.size(); i++) touched += gaps[i] == 0xff && now[i] != 0xff;
        CHECK(touched == 0); // the gaps between gradients
        if (pass == 0) grads_first = now, dx_first = dx.raw();
        else if (!add) CHECK(now == grads_first);
        if (pass == 1 || add) CHECK(dx2.raw() == dx_first);
    }

    // ---- nothing else was touched
    CHECK(x.raw() == x_before);
    CHECK(m.params.raw() == params_before);
    CHECK(y.raw() == first[0]);
    CHECK(saved_memory.raw() == kept);
    if (!dy_ref.empty()) CHECK(dy.read(out_dtype) == dy_ref);
    (void)workspace.raw();
    ctx->workspace = nullptr, ctx->workspace_bytes = 0;
}

// The reference's backward is the derivative of its forward: central differences in double, for x, every parameter and
// every input, at a few elements each.
inline void check_gradients_of_reference(const subject &s, const shape &at, unsigned seed = fresh_seed()) {
    if (brief()) return; // nothing of the library runs here
    const te_plan *plan = s.plan();
    const std::string text = s.text;
    CAPTURE(plan->name, text, seed);
    source random(seed);
    const reference::list l(plan, s.text);
    const reference::rounding exact;
    reference::call call;
    call.batch = at.batch, call.seq = at.seq, call.position = at.position, call.ignore_index = -7;
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
        if (o.kind == "input") inputs[o.name] = random.draw(rows * (size_t)o.number(0, 0), TE_f32);
        if (o.kind == "output") out_grads[o.name] = random.draw(rows * o.in, TE_f32);
    }
    call.tokens = tokens.data(), call.labels = labels.data();
    reference::vec x = random.draw(te__from_tokens(plan) ? 0 : rows * (size_t)plan->in, TE_f32);
    const reference::vec dy = random.draw(rows * (size_t)plan->out, TE_f32);
    const auto total = [&] { // sum of dy y, and of what goes out
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
    const auto compare = [&](const std::string &name, reference::vec &at_x, const reference::vec &gradient) {
        REQUIRE(at_x.size() == gradient.size());
        for (int k = 0; k < 6 && !at_x.empty(); k++) {
            const size_t i = (size_t)random.below((int)at_x.size());
            double best = INFINITY;
            for (const double h : {1e-4, 1e-5, 1e-6}) { // a step of relu may lie within the larger ones
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
    for (size_t i = 0; i < params.size(); i++) compare("parameter " + std::to_string(i), params[i], g.params[i]);
    for (auto &i : inputs) compare("input " + i.first, i.second, g.inputs.at(i.first));
}

} // namespace

#endif
