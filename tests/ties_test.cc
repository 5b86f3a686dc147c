// ties_test.cc -- tied parameters: the gradients of the owner and of all users are summed, in whatever order their backwards run.
#include "harness.h"
#include "te/ops/activation.h"
#include "te/ops/elementwise.h"
#include "te/ops/embedding.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/optim/init.h"

// One owner with several users in its list, behind it, in front of it, and on both sides. Which of them backward runs first differs.
MODEL(two_behind, f32, (embedding, e, 24, 24), (tied_linear, a, 24, 24), (gelu, g), (tied_linear, b, 24, 24))
MODEL(one_before, f32, (tied_linear, a, 24, 24), (gelu, g), (linear, fc, 24, 24))
MODEL(both_sides, f32, (tied_linear, a, 24, 24), (gelu, g), (linear, fc, 24, 24), (tied_linear, b, 24, 24), (bias, h, 24), (tied_linear, c, 24, 24))
// The gradient of a bias is summed at the end of backward, so its user writes first even if it stands in front of the bias.
MODEL(summed, f32, (linear, fc, 24, 1), (tied_linear, a, 1, 24), (bias, h, 24), (linear, out, 24, 1), (bias, one, 1))
// Users in other lists than the owner.
TE_SEQUENTIAL(owner, f32, (linear, fc, 8, 8))
TE_SEQUENTIAL(user, f32, (tied_linear, a, 8, 8), (tied_linear, b, 8, 8))
TE_SEQUENTIAL(logits, f32, (rmsnorm, n, 8), (tied_linear, h, 8, 8))
TE_SEQUENTIAL(half_owner, bf16, (linear, fc, 16, 128))
TE_SEQUENTIAL(half_user, bf16, (tied_linear, a, 8, 8))

TEST_CASE("several users in one list", "[ties]") {
    for (const subject *s : {&two_behind_subject, &one_before_subject, &both_sides_subject}) check(*s, shape(2, 9));
}

namespace {
// An owner and three instances that use its weight.
struct lists {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    owner o;
    user u, v;
    logits l;
    buffer params, grads, norm, x, y, dy, dx, memory;
    te_batch batch;
    lists() : params(ctx, owner_param_bytes()), grads(ctx, owner_grad_bytes()), norm(ctx, logits_param_bytes()), x(ctx, 4 * 8 * 4), y(ctx, 4 * 8 * 4), dy(ctx, 4 * 8 * 4), dx(ctx, 4 * 8 * 4),
              memory(ctx, user_saved_bytes(4) + owner_saved_bytes(4)) {
        memset(&batch, 0, sizeof batch);
        batch.batch = 1, batch.seq = 4;
        source random(7);
        params.write(random.draw(64, TE_f32), TE_f32), x.write(random.draw(32, TE_f32), TE_f32), dy.write(random.draw(32, TE_f32), TE_f32);
        REQUIRE(te_context_reserve(ctx, 1 << 20) == TE_OK);
        REQUIRE(owner_bind(&o, params.data(), (float *)grads.data(), ctx) == TE_OK);
        REQUIRE(user_bind(&u, params.data(), (float *)grads.data(), ctx) == TE_OK);
        REQUIRE(user_bind(&v, params.data(), (float *)grads.data(), ctx) == TE_OK);
        REQUIRE(logits_bind(&l, norm.data(), nullptr, ctx) == TE_OK); // without gradients, for inference
    }
    te_tensor as(const buffer &b) const { return te_matrix(b.data(), TE_f32, 4, 8); }
    // The gradient after the backwards of these instances, in this order.
    template <class... Run> reference::vec after(Run... run) {
        grads.poison();
        const int all[] = {run()...};
        (void)all;
        return grads.read(TE_f32, 0, 64);
    }
    template <class Forward, class Backward, class Instance> int pass(Forward forward, Backward backward, const Instance &m, bool add) {
        te_saved saved;
        memset(&saved, 0, sizeof saved);
        saved.memory = memory.data(), saved.bytes = memory.bytes, batch.accumulate = add;
        REQUIRE(forward(as(y), &saved, as(x), &m, &batch, ctx) == TE_OK);
        REQUIRE(backward(as(dx), as(dy), &saved, &m, &batch, ctx) == TE_OK);
        return 0;
    }
    int run(const owner &m, bool add = false) { return pass(owner_forward, owner_backward, m, add); }
    int run(const user &m, bool add = false) { return pass(user_forward, user_backward, m, add); }
};
} // namespace

TEST_CASE("users in other lists: the user that was tied first overwrites the gradient, the owner adds", "[ties]") {
    lists s;
    REQUIRE(te_tie(&s.l.h.weight, &s.o.fc.weight, s.ctx) == TE_OK); // an instance without gradients does not count as the first
    CHECK(s.l.h.weight.grad == nullptr);
    const reference::vec alone = s.after([&] { return s.run(s.o); });
    REQUIRE(te_tie(&s.u.a.weight, &s.o.fc.weight, s.ctx) == TE_OK);
    REQUIRE(te_tie(&s.u.b.weight, &s.o.fc.weight, s.ctx) == TE_OK);
    const reference::vec one = s.after([&] { return s.run(s.u); });
    REQUIRE(te_tie(&s.v.b.weight, &s.o.fc.weight, s.ctx) == TE_OK);
    REQUIRE(te_tie(&s.v.a.weight, &s.o.fc.weight, s.ctx) == TE_OK);
    for (int time = 0; time < 2; time++) {
        const reference::vec all = s.after([&] { return s.run(s.u); }, [&] { return s.run(s.v); }, [&] { return s.run(s.o); });
        for (size_t i = 0; i < 64; i++) CHECK(all[i] == Approx(alone[i] + 2 * one[i]).epsilon(1e-5));
        REQUIRE(te_tie(&s.u.a.weight, &s.o.fc.weight, s.ctx) == TE_OK); // tying a second time changes nothing
        REQUIRE(te_tie(&s.v.b.weight, &s.o.fc.weight, s.ctx) == TE_OK);
    }
    const reference::vec twice = s.after([&] { return s.run(s.u); }, [&] { return s.run(s.u, true); }, [&] { return s.run(s.o, true); });
    for (size_t i = 0; i < 64; i++) CHECK(twice[i] == Approx(alone[i] + 2 * one[i]).epsilon(1e-5)); // with batch.accumulate
}

TEST_CASE("a user writes its gradient before the owner, a bias whose gradient is summed at the end of backward", "[ties]") {
    context ctx_owner;
    summed m;
    buffer params(&ctx_owner.c, summed_param_bytes()), grads(&ctx_owner.c, summed_grad_bytes());
    REQUIRE(summed_bind(&m, params.data(), (float *)grads.data(), &ctx_owner.c) == TE_OK);
    CHECK(m.h.bias.last == 1);
    CHECK(m.fc.weight.last == 0);
    CHECK(te__writes_before(&m.fc.weight, &m.h.bias, &m.h.bias) == 1);
    CHECK(te__writes_before(&m.one.bias, &m.fc.weight, &m.fc.weight) == 0);
}

TEST_CASE("ties that are refused", "[ties]") {
    lists s;
    half_user h;
    buffer none(s.ctx, 256);
    const auto text = [&] { return std::string(te_last_error(s.ctx)); };
    REQUIRE(half_user_bind(&h, none.data(), (float *)none.data(), s.ctx) == TE_OK);
    CHECK(te_tie(&h.a.weight, &s.o.fc.weight, s.ctx) == TE_ERROR_DTYPE);
    CHECK(text() == "te_tie: a.weight is bf16, fc.weight is f32");
    REQUIRE(te_tie(&s.u.a.weight, &s.o.fc.weight, s.ctx) == TE_OK);
    CHECK(te_tie(&s.u.b.weight, &s.u.a.weight, s.ctx) == TE_ERROR_VALUE);
    CHECK(text() == "te_tie: a.weight is tied itself; tie b.weight to the one that owns it");
    owner other;
    buffer params(s.ctx, owner_param_bytes());
    REQUIRE(owner_bind(&other, params.data(), nullptr, s.ctx) == TE_OK);
    CHECK(te_tie(&s.u.a.weight, &other.fc.weight, s.ctx) == TE_ERROR_STATE);
    CHECK(text().find("a.weight is tied to another parameter") != std::string::npos);
    REQUIRE(user_bind(&s.u, params.data(), nullptr, s.ctx) == TE_OK);
    CHECK(te_tie(&s.u.a.weight, &s.o.fc.weight, s.ctx) == TE_ERROR_STATE);
    CHECK(text().find("a.weight has lost its gradients") != std::string::npos);
}

TEST_CASE("te_param_normal fills a parameter of any dtype", "[ties]") {
    context ctx_owner;
    half_owner m;
    buffer params(&ctx_owner.c, half_owner_param_bytes());
    REQUIRE(half_owner_bind(&m, params.data(), nullptr, &ctx_owner.c) == TE_OK);
    REQUIRE(te_param_normal(&m.fc.weight, 0.5f, 1, 0, &ctx_owner.c) == TE_OK);
    const reference::vec w = params.read(TE_bf16); // also checks the guards
    CHECK(rms(w) > 0.4);
    CHECK(rms(w) < 0.6);
}
