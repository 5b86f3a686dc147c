// hand_model.h -- a model made without TE_SEQUENTIAL: its plan is only a table of ops with parameters, bound to memory that the
// model owns. For tests of code that uses the parameters and never runs the plan: optimizer, gradient norm, checkpoint.
//
// Do this:
//     target t;
//     hand_model m(t, "block", TE_bf16, {{"fc", "weight", 33, 129}, {"fc", "bias", 1, 33}});
//     m.set_data(0, numbers), m.set_grad(0, numbers);
#ifndef TESTS_HAND_MODEL_H
#define TESTS_HAND_MODEL_H

#include <catch2/catch.hpp>

#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "te/gemm/gemm.h" // te_context_create
#include "te/optim/impl/adamw_kernels.h"
#include "te/plan/bind.h"
#include "te/plan/impl/executor.h" // te__training

namespace {

struct target {
    te_context ctx;
    explicit target(uint64_t seed = 1) { REQUIRE(te_context_create(&ctx, 0, seed) == TE_OK); }
    target(const target &) = delete;
    target &operator=(const target &) = delete;
    ~target() { te_context_destroy(&ctx); }
    operator te_context *() { return &ctx; }
    te_context *operator->() { return &ctx; }
};

// Target memory, poisoned: 0xff bytes are NaN in every format.
struct memory {
    te_context *ctx;
    void *p = nullptr;
    size_t bytes;
    memory(te_context *c, size_t n) : ctx(c), bytes(n) {
        REQUIRE(te_allocate(ctx, &p, n) == TE_OK);
        REQUIRE(te_fill(ctx, p, 0xff, n) == TE_OK);
    }
    memory(const memory &) = delete;
    memory &operator=(const memory &) = delete;
    ~memory() { te_release(ctx, p); }
    std::vector<uint8_t> raw() const {
        std::vector<uint8_t> v(bytes);
        REQUIRE(te_copy(ctx, v.data(), p, bytes) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        return v;
    }
};

inline std::vector<float> read_floats(te_context *ctx, const void *p, size_t n, te_dtype t = TE_f32) {
    std::vector<uint8_t> raw(n * te_dtype_bytes(t) + 1);
    std::vector<float> v(n);
    REQUIRE(te_copy(ctx, raw.data(), p, n * te_dtype_bytes(t)) == TE_OK);
    REQUIRE(te_synchronize(ctx) == TE_OK);
    for (size_t i = 0; i < n; i++) v[i] = te_load(raw.data(), (int64_t)i, t);
    return v;
}
inline void write_floats(te_context *ctx, void *p, const std::vector<float> &v, te_dtype t = TE_f32) {
    std::vector<uint8_t> raw(v.size() * te_dtype_bytes(t) + 1);
    for (size_t i = 0; i < v.size(); i++) te_store(raw.data(), (int64_t)i, v[i], t);
    REQUIRE(te_copy(ctx, p, raw.data(), v.size() * te_dtype_bytes(t)) == TE_OK);
    REQUIRE(te_synchronize(ctx) == TE_OK);
}

// The moment m or v of a parameter as floats, from any format of moments. root: it is v, of which e4m3 stores the root.
inline std::vector<float> read_moment(te_context *ctx, const void *p, size_t n, te_dtype moments, int root) {
    if (moments != TE_e4m3) return read_floats(ctx, p, n, moments);
    std::vector<float> v = read_floats(ctx, p, n, TE_e4m3);
    const std::vector<float> scale = read_floats(ctx, te_moment_scales((void *)(uintptr_t)p, (int64_t)n), (n + 127) / 128);
    for (size_t i = 0; i < n; i++) v[i] *= scale[i / 128], v[i] = root ? v[i] * v[i] : v[i];
    return v;
}

struct hand_param {
    const char *op, *field;
    int64_t rows, cols;
    int tied;
    hand_param(const char *o, const char *f, int64_t r, int64_t c, int t = 0) : op(o), field(f), rows(r), cols(c), tied(t) {}
};

struct hand_model {
    te_context *ctx;
    std::string name;
    std::vector<te_op> op;
    std::vector<te_param> param;
    te_plan plan;
    te_model model;
    memory *params = nullptr, *grads = nullptr;

    hand_model(te_context *c, const char *n, te_dtype dtype, const std::vector<hand_param> &list, bool with_grads = true) : ctx(c), name(n) {
        for (const hand_param &p : list) {
            te_op o;
            memset(&o, 0, sizeof o);
            o.kind = "linear", o.op_class = TE_CLASS_gemm, o.edge = -1, o.name = p.op, o.params = 1;
            o.param[0].field = p.field, o.param[0].rows = p.rows, o.param[0].cols = p.cols, o.param[0].init = TE_INIT_normal, o.param[0].tied = p.tied;
            op.push_back(o);
        }
        memset(&plan, 0, sizeof plan);
        plan.name = name.c_str(), plan.dtype = dtype, plan.op_count = (int)op.size(), plan.op = op.data(), plan.training = &te__training;
        param.resize(op.size());
        params = new memory(ctx, te_plan_param_bytes(&plan));
        if (with_grads) grads = new memory(ctx, te_plan_grad_bytes(&plan));
        REQUIRE(te_model_bind(&model, &plan, param.data(), (int)param.size(), params->p, grads ? (float *)grads->p : nullptr, ctx) == TE_OK);
    }
    hand_model(const hand_model &) = delete;
    hand_model &operator=(const hand_model &) = delete;
    ~hand_model() { delete params, delete grads; }

    size_t elements(size_t i) const { return (size_t)(param[i].rows * param[i].cols); }
    std::vector<float> data(size_t i) const { return read_floats(ctx, param[i].data, elements(i), plan.dtype); }
    void set_data(size_t i, const std::vector<float> &v) { write_floats(ctx, param[i].data, v, plan.dtype); }
    void set_grad(size_t i, const std::vector<float> &v) { write_floats(ctx, param[i].grad, v); }

    void draw_data(std::mt19937 &random, float std) {
        for (size_t i = 0; i < param.size(); i++)
            if (!param[i].tied) set_data(i, draw(random, elements(i), std));
    }
    void draw_grad(std::mt19937 &random, float std) {
        for (size_t i = 0; i < param.size(); i++)
            if (!param[i].tied) set_grad(i, draw(random, elements(i), std));
    }
    static std::vector<float> draw(std::mt19937 &random, size_t n, float std) {
        std::normal_distribution<float> normal(0, std);
        std::vector<float> v(n);
        for (float &e : v) e = normal(random);
        return v;
    }
    // Whether the gaps between the parameters still hold their poison.
    void check_gaps() const {
        std::vector<uint8_t> p = params->raw(), g = grads ? grads->raw() : std::vector<uint8_t>();
        for (size_t i = 0; i < param.size(); i++) {
            if (param[i].tied) continue;
            const size_t at = (size_t)((char *)param[i].data - (char *)params->p), size = te_dtype_bytes(plan.dtype);
            memset(&p[at], 0xff, elements(i) * size);
            if (grads) memset(&g[at / size * 4], 0xff, elements(i) * 4);
        }
        size_t touched = 0;
        for (uint8_t b : p) touched += b != 0xff;
        for (uint8_t b : g) touched += b != 0xff;
        CHECK(touched == 0);
    }
};

// Sizes around the chunk that a block processes: one element, primes, whole chunks, and one more or less.
inline std::vector<hand_param> odd_params() {
    return {{"one", "weight", 1, 1},      {"seven", "bias", 1, 7},     {"odd", "weight", 3, 5},       {"chunk", "weight", 2, 1024},
            {"more", "bias", 1, 2049},    {"less", "weight", 23, 89},  {"square", "weight", 64, 64},  {"norm", "weight", 2, 4096},
            {"over", "weight", 8193, 1},  {"wide", "bias", 1, 8191},   {"large", "weight", 131, 257}, {"tied", "weight", 64, 64, 1},
            {"last", "weight", 2, 2}};
}

} // namespace

#endif
