// recipe.h -- a model under an FP8 recipe with its memory, and one forward and backward of it.
//
// Do this:
//     under_recipe u(mlp_subject, 2, 24, seed);
//     micro_batch b(u, u.m.s.saved_bytes(48));
//     b.forward(u), b.backward(u);
//     REQUIRE(te_recipes_step(&u.state, u.ctx) == TE_OK);
#ifndef TESTS_RECIPE_H
#define TESTS_RECIPE_H

#include "harness.h"
#include "te/optim/recipes.h"

namespace {

// A model under a recipe, with its memory.
struct under_recipe {
    context own;
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

    under_recipe(const subject &s, int batches, int seq, unsigned seed, int history = 3, int tune = 0)
        : ctx(&own.c), random(seed), m(s, ctx), models{m.model()}, config(te_recipes_defaults()), plan(m.plan), rows((size_t)(batches * seq)) {
        m.draw(random);
        ctx->gemm_tune = tune;
        config.history = history;
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
// What one forward reads and keeps.
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

} // namespace

#endif
