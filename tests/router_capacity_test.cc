// (router, .., (capacity, F)): rows behind the capacity of an expert are dropped, in forward, in backward and in the statistics.
#include "harness.h"
#include "te/ops/activation.h"
#include "te/ops/linear.h"
#include "te/moe.h"
#include "te/ops/norm.h"
#include "te/ops/recompute.h"

// Capacities: of one row, of less and of more rows than the experts have on average, and with each op that reads routed rows.
#define MOE_CAPACITIES(X)                                                                                                                        \
    X(capacity_alone, f32, (linear, l, 24, 24), (router, r, 24, 5, (top_k, 2), (capacity, 0.5)), (combine, r))                                   \
    X(capacity_mlp, f32, (fork, x), (rmsnorm, n, 32), (router, r, 32, 8, (top_k, 3), (renormalise, 1), (capacity, 1), (aux_loss, 0.3f),          \
      (z_loss, 0.1f)), (expert_linear, up, 32, 2 * 24, 8), (expert_bias, b, 48, 8), (swiglu, act), (expert_linear, down, 24, 32, 8), (combine, r), (add, x)) \
    X(capacity_branch, f32, (router, r, 24, 4, (top_k, 2), (score, sigmoid), (bias, 1), (capacity, 0.75f)), (fork, z), (expert_linear, gate, 24, 16, 4), (silu, s), \
      (fork, g), (load, z), (expert_linear, up, 24, 16, 4), (mul, g), (expert_linear, down, 16, 24, 4), (expert_bias, c, 24, 4), (combine, r), (bias, b, 24)) \
    X(capacity_one, f32, (router, r, 16, 8, (top_k, 2), (score, softmax_of_chosen), (capacity, 0.001)), (expert_linear, up, 16, 16, 8), (combine, r)) \
    X(capacity_input, f32, (linear, l, 24, 24), (router, r, 24, 5, (top_k, 2), (score, sigmoid), (weigh, input), (capacity, 0.6)),               \
      (expert_linear, up, 24, 16, 5), (gelu, a), (expert_linear, down, 16, 24, 5), (combine, r), (bias, b, 24))                                  \
    X(capacity_region, bf16, (linear, l, 24, 32), (recompute, p), (router, r, 32, 8, (top_k, 2), (capacity, 0.8)), (expert_linear, up, 32, 2 * 24, 8), \
      (swiglu, act), (expert_linear, down, 24, 32, 8), (combine, r), (end_recompute, p), (linear, m, 32, 24))                                    \
    X(capacity_wide, bf16, (router, r, 64, 3, (top_k, 2), (capacity, 0.7)), (expert_linear, up, 64, 2 * 192, 3), (swiglu, act),                  \
      (expert_linear, down, 192, 72, 3), (combine, r))

#define MOE_MODEL(name, dtype, ...) MODEL(name, dtype, __VA_ARGS__)
#define MOE_SUBJECT(name, ...) &name##_subject,
MOE_CAPACITIES(MOE_MODEL)

TEST_CASE("rows behind the capacity of an expert are dropped", "[moe]") {
    for (const subject *s : {MOE_CAPACITIES(MOE_SUBJECT)}) {
        check(*s, shape(1, 1));
        check(*s, shape(2, 9));
        check(*s, shape(1, s->plan()->dtype == TE_f32 ? 131 : 150));
        if (s->plan()->dtype == TE_f32) check_gradients_of_reference(*s, shape(1, 5));
    }
}

namespace {
TE_SEQUENTIAL(tops_capacity, f32, (router, r, 8, 8, (top_k, 3), (capacity, 0.5)), (combine, r))
TE_SEQUENTIAL(tops_negative, f32, (router, r, 8, 8, (top_k, 3), (capacity, -1)), (combine, r))
} // namespace

TEST_CASE("of the rows of an expert with all tokens, the first ones are within the capacity", "[moe]") {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    const size_t rows = 96, kept = 18; // ceil(0.5 * 96 * 3 / 8)
    buffer params(ctx, 256), grads(ctx, 256), x(ctx, rows * 32), y(ctx, rows * 32), dy(ctx, rows * 32), dx(ctx, rows * 32),
        memory(ctx, tops_capacity_saved_bytes((int64_t)rows)), counts(ctx, 32);
    tops_capacity m;
    te_batch batch;
    te_saved saved;
    memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved);
    REQUIRE(tops_capacity_bind(&m, params.data(), (float *)grads.data(), ctx) == TE_OK);
    reference::vec unit(64, 0.0), logits;
    for (size_t i = 0; i < 8; i++) unit[i * 8 + i] = 1;
    for (size_t i = 0; i < rows * 8; i++) logits.push_back((i % 8 == 6 ? 3 : i % 8 == 2 ? 2 : i % 8 == 3 ? 1 : -4) + 0.01 * (double)(i % 5));
    params.write(unit, TE_f32), x.write(logits, TE_f32), dy.write(logits, TE_f32), counts.write(reference::vec(8, 0.0), TE_f32);
    batch.batch = 1, batch.seq = (int)rows, saved.memory = memory.data(), saved.bytes = memory.bytes;
    REQUIRE(te_context_reserve(ctx, tops_capacity_workspace_bytes(&m, (int64_t)rows, ctx)) == TE_OK);
    const te_tensor tx = te_matrix(x.data(), TE_f32, (int64_t)rows, 8), ty = te_matrix(y.data(), TE_f32, (int64_t)rows, 8);
    REQUIRE(tops_capacity_forward(ty, &saved, tx, &m, &batch, ctx) == TE_OK);
    const te_status status = tops_capacity_backward(te_matrix(dx.data(), TE_f32, (int64_t)rows, 8), te_matrix(dy.data(), TE_f32, (int64_t)rows, 8), &saved, &m, &batch, ctx);
    INFO(te_last_error(ctx));
    REQUIRE(status == TE_OK);
    const reference::vec out = y.read(TE_f32), d = dx.read(TE_f32);
    for (size_t i = 0; i < rows * 8; i++) {
        CHECK((out[i] != 0) == (i < kept * 8));
        CHECK((d[i] != 0) == (i < kept * 8));
    }
    REQUIRE(te_router_counts((float *)counts.data(), &saved, "r", ctx) == TE_OK);
    CHECK(counts.read(TE_f32) == reference::vec{0, 0, 96, 96, 0, 0, 96, 0});
    counts.write(reference::vec(8, 0.0), TE_f32);
    REQUIRE(te_router_dropped((float *)counts.data(), &saved, "r", ctx) == TE_OK);
    CHECK(counts.read(TE_f32) == reference::vec{0, 0, 78, 78, 0, 0, 78, 0});
    tops_negative n;
    REQUIRE(tops_negative_bind(&n, params.data(), (float *)grads.data(), ctx) == TE_OK);
    CHECK(tops_negative_infer(ty, tx, &n, &batch, ctx) == TE_ERROR_VALUE);
    CHECK(std::string(te_last_error(ctx)).find("the capacity is -1, but must be 0 or more") != std::string::npos);
}
