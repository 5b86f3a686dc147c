// recipe.h -- a model with an FP8 recipe and its memory, one forward and backward of it, and checks of GEMMs against doubles.
//
// Do this:
//     under_recipe u(mlp_subject, 2, 24, seed);
//     micro_batch b(u, u.m.s.saved_bytes(48));
//     b.forward(u), b.backward(u);
//     REQUIRE(te_recipes_step(&u.state, u.ctx) == TE_OK);
#ifndef TESTS_RECIPE_H
#define TESTS_RECIPE_H

#include "harness.h"
#include "te/graph/graph.h"
#include "te/optim/recipes.h"

namespace {

// A model with an FP8 recipe, and its memory.
struct under_recipe {
    context ctx_owner;
    te_context *ctx;
    source random;
    instance m;
    te_model *models[1];
    te_recipes_config config;
    std::unique_ptr<buffer> memory, workspace;
    te_recipes state;
    te_batch batch;
    const te_plan *plan;
    size_t rows;

    static te_recipes_config config_of(int history) {
        te_recipes_config c = te_recipes_defaults();
        return c.history = history, c;
    }
    under_recipe(const subject &s, int batches, int seq, unsigned seed, int history = 3, int tune = 0)
        : under_recipe(s, batches, seq, seed, config_of(history), tune) {}
    under_recipe(const subject &s, int batches, int seq, unsigned seed, const te_recipes_config &c, int tune = 0)
        : ctx(&ctx_owner.c), random(seed), m(s, ctx), models{m.model()}, config(c), plan(m.plan), rows((size_t)(batches * seq)) {
        m.draw(random);
        ctx->gemm_tune = tune;
        const size_t n = te_recipes_bytes(models, 1, &config);
        memory.reset(new buffer(ctx, n));
        REQUIRE(te_recipes_init(&state, memory->data(), n, models, 1, &config, ctx) == TE_OK);
        workspace.reset(new buffer(ctx, s.workspace_bytes(m.memory.data(), (int64_t)rows, ctx)));
        ctx->workspace = workspace->data(), ctx->workspace_bytes = workspace->bytes;
        memset(&batch, 0, sizeof batch);
        batch.batch = batches, batch.seq = seq;
        m.grads.write(reference::vec(m.grads.bytes / 4, 0), TE_f32);
        set_rng(ctx, 5, 0);
    }
    ~under_recipe() { ctx->workspace = nullptr, ctx->workspace_bytes = 0; }
    te_tensor x_of(const buffer &b) const { return te_matrix(b.data(), plan->in_dtype, (int64_t)rows, plan->in); }
    te_tensor y_of(const buffer &b) const { return te_matrix(b.data(), plan->out_dtype, (int64_t)rows, plan->out); }
    size_t x_bytes() const { return rows * (size_t)plan->in * te_dtype_bytes(plan->in_dtype); }
    size_t y_bytes() const { return rows * (size_t)plan->out * te_dtype_bytes(plan->out_dtype); }
};
// The tensors of one forward and backward.
struct micro_batch {
    buffer x, y, dx, dy, memory;
    te_saved saved;
    micro_batch(under_recipe &u, size_t saved_bytes, double size = 1)
        : x(u.ctx, u.x_bytes()), y(u.ctx, u.y_bytes()), dx(u.ctx, u.x_bytes()), dy(u.ctx, u.y_bytes()), memory(u.ctx, saved_bytes) {
        memset(&saved, 0, sizeof saved);
        saved.memory = memory.data(), saved.bytes = memory.bytes;
        x.write(u.random.draw(u.rows * (size_t)u.plan->in, u.plan->in_dtype, 0, size), u.plan->in_dtype);
        dy.write(u.random.draw(u.rows * (size_t)u.plan->out, u.plan->out_dtype, 0, 1e-3 * size), u.plan->out_dtype);
    }
    void forward(under_recipe &u) {
        y.poison();
        REQUIRE(u.m.s.forward(u.y_of(y), &saved, u.x_of(x), u.m.memory.data(), &u.batch, u.ctx) == TE_OK);
    }
    void backward(under_recipe &u) {
        dx.poison();
        REQUIRE(u.m.s.backward(u.x_of(dx), u.y_of(dy), &saved, u.m.memory.data(), &u.batch, u.ctx) == TE_OK);
    }
};

// Checks out[m, n] = sum over k of a(m, k) b(n, k). The bound is the rounding of the result (in f16 steps of 2^-24 below 2^-14) plus
// `lost` times the sum of |terms|.
template <class A, class B>
void check_product(const char *what, const reference::vec &out, size_t m, size_t n, size_t k, A a, B b, te_dtype d, double lost) {
    const double rounding = d == TE_f32 ? 1e-6 : d == TE_f16 ? std::ldexp(1, -11) : std::ldexp(1, -8), least = d == TE_f16 ? std::ldexp(1, -14) : 0;
    reference::vec as(m * k), bs(n * k);
    REQUIRE(out.size() == m * n);
    for (size_t i = 0; i < m * k; i++) as[i] = a(i / k, i % k);
    for (size_t i = 0; i < n * k; i++) bs[i] = b(i / k, i % k);
    const double worst = numbers::worst_of_product(out, as, bs, m, n, k, rounding, least, lost);
    INFO(what << ": the worst error is " << worst << " times its bound");
    CHECK(worst <= 1);
}

inline double distance(const reference::vec &a, const reference::vec &b) {
    double d = 0, s = 0;
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); i++) d += (a[i] - b[i]) * (a[i] - b[i]), s += b[i] * b[i];
    return std::sqrt(d / s);
}
struct results {
    reference::vec y, dx, grads;
};
inline results run_plain(under_recipe &u, micro_batch &b) {
    b.forward(u);
    b.backward(u);
    return {b.y.read(u.plan->out_dtype), b.dx.read(u.plan->in_dtype), u.m.grads.read(TE_f32)};
}
inline size_t without(under_recipe &u) { return te_plan_saved_bytes_without_recipe(u.plan, (int64_t)u.rows); }

struct step { under_recipe *u; micro_batch *b; };
inline te_status whole_step(const te_graph *, const void *arg, te_context *ctx) {
    const step *s = (const step *)arg;
    under_recipe &u = *s->u;
    TE_TRY(u.m.s.forward(u.y_of(s->b->y), &s->b->saved, u.x_of(s->b->x), u.m.memory.data(), &u.batch, ctx));
    TE_TRY(u.m.s.backward(u.x_of(s->b->dx), u.y_of(s->b->dy), &s->b->saved, u.m.memory.data(), &u.batch, ctx));
    return te_recipes_step(&u.state, ctx);
}
// Checks that eager steps and a captured graph, both with the update of the scales, compute the same bits. A list in bf16.
inline void check_graph(const subject &s, int rows, unsigned seed) {
    under_recipe u(s, 1, rows, seed), v(s, 1, rows, seed);
#if TE_CUDA
    cudaStream_t streams[2];
    for (cudaStream_t &one : streams) REQUIRE(cudaStreamCreate(&one) == cudaSuccess);
    u.ctx->stream = streams[0], v.ctx->stream = streams[1];
#endif
    micro_batch a(u, u.m.s.saved_bytes(rows)), b(v, v.m.s.saved_bytes(rows));
    const step eager = {&u, &a}, captured = {&v, &b};
    REQUIRE(whole_step(nullptr, &eager, u.ctx) == TE_OK);
    REQUIRE(whole_step(nullptr, &captured, v.ctx) == TE_OK);
    te_graph g;
    const te_graph_spec spec = te_graph_spec_of("step", whole_step, &captured, 0, nullptr, 0, nullptr, 0);
    REQUIRE(te_graph_capture(&g, &spec, nullptr, v.ctx) == TE_OK);
    for (int i = 0; i < 4; i++) { // inputs of another size in the third step change the amax history
        const double size = i == 2 ? 8 : 1;
        const reference::vec x = u.random.draw(u.rows * (size_t)u.plan->in, TE_bf16, 0, size);
        a.x.write(x, TE_bf16), b.x.write(x, TE_bf16);
        REQUIRE(whole_step(nullptr, &eager, u.ctx) == TE_OK);
        REQUIRE(te_graph_replay(&g, nullptr, 0, v.ctx) == TE_OK);
        CHECK(bool(a.y.raw() == b.y.raw()));
        CHECK(bool(a.dx.raw() == b.dx.raw()));
        CHECK(bool(u.m.grads.raw() == v.m.grads.raw()));
        const std::vector<uint8_t> left = u.memory->raw(), right = v.memory->raw();
        // the table of addresses is the last part of the state
        const auto table = (long)te__recipes_layout_of(u.models, 1, &u.config).table;
        CHECK(std::equal(left.begin(), left.begin() + table, right.begin()));
    }
    te_graph_destroy(&g);
#if TE_CUDA
    REQUIRE(te_synchronize(u.ctx) == TE_OK);
    u.ctx->stream = v.ctx->stream = nullptr;
    for (cudaStream_t one : streams) cudaStreamDestroy(one);
#endif
}

} // namespace

#endif
