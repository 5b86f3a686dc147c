// aliasing_test.cc -- tensors of a call that share memory. A tensor that a call writes may not overlap another one: the call is refused by
// name and writes nothing. Lists that may run in place compute the right results in place.
#include "harness.h"
#include "te/te.h"

MODEL(bare, f32, (linear, fc, 64, 64))
MODEL(rotated, f32, (rope, r, 2, 1, 16))
MODEL(map, f32, (bias, b, 64), (gelu, a))
MODEL(normed, bf16, (layernorm, n, 64))
MODEL(two, f32, (linear, fc, 64, 64), (bias, b, 64), (gelu, a), (linear, out, 64, 64))
MODEL(residual, f32, (fork, x), (rmsnorm, n, 64), (linear, fc, 64, 128), (silu, a), (linear, out, 128, 64), (add, x))
MODEL(attends, f32, (linear, qkv, 64, 192), (attention, a, 4, 4, 16), (linear, out, 64, 64))
MODEL(ends_in_attention, f32, (linear, qkv, 64, 192), (attention, a, 4, 4, 16))
MODEL(one_product, f32, (fork, x), (linear, fc, 64, 64), (add, x))
MODEL(branch, f32, (fork, x), (linear, up, 64, 64), (fork, a), (load, x), (linear, fc, 64, 64), (add, a))
MODEL(branches, f32, (fork, x), (linear, up, 64, 64), (fork, a), (load, x), (linear, fc, 64, 64), (add, a), (gelu, g), (add, x))
MODEL(gate, f32, (fork, x), (linear, fc, 64, 64), (mul, x))
MODEL(joins, f32, (input, side, 64), (linear, fc, 64, 64), (output, mid), (mul, side))
MODEL(edges, f32, (input, side, 64), (linear, fc, 64, 64), (output, mid), (linear, out, 64, 64), (add, side))
MODEL(loss, f32, (embedding, e, 16, 64), (linear, fc, 64, 16), (cross_entropy, ce, 16))

namespace {
enum { ROWS = 24 };

// A call of a list of 64 columns, of which each tensor may be moved.
struct scene {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    const subject &s;
    const te_plan *plan;
    instance m;
    te_dtype dtype;
    buffer x, y, dy, dx, memory, workspace, side, mid, dside, dmid, tokens, labels;
    te_edge edge[2];
    te_batch batch;
    te_saved saved;
    te_tensor tx, ty, tdy, tdx;
    explicit scene(const subject &of)
        : s(of), plan(of.plan()), m(of, ctx), dtype(plan->dtype), x(ctx, 2 * ROWS * 64 * 4 + 1024), y(ctx, x.bytes), dy(ctx, x.bytes), dx(ctx, x.bytes), memory(ctx, of.saved_bytes(ROWS)),
          workspace(ctx, of.workspace_bytes(m.memory.data(), ROWS, ctx)), side(ctx, x.bytes), mid(ctx, x.bytes), dside(ctx, x.bytes), dmid(ctx, x.bytes), tokens(ctx, ROWS * 4), labels(ctx, ROWS * 4) {
        source random(9);
        m.draw(random);
        for (buffer *b : {&x, &dy, &side, &dmid}) b->write(random.draw((size_t)ROWS * 64, dtype), dtype);
        memset(edge, 0, sizeof edge), memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved);
        edge[0].name = "side", edge[0].value = as(side, 64), edge[0].grad = as(dside, 64);
        edge[1].name = "mid", edge[1].value = as(mid, 64), edge[1].grad = as(dmid, 64);
        batch.batch = 2, batch.seq = ROWS / 2, batch.edges = edge, batch.edge_count = 2, batch.loss_scale = 1;
        tokens.write_ints(std::vector<int32_t>(ROWS, 1)), labels.write_ints(std::vector<int32_t>(ROWS, 2));
        batch.tokens = (const int32_t *)tokens.data(), batch.labels = (const int32_t *)labels.data();
        saved.memory = memory.data(), saved.bytes = memory.bytes;
        ctx->workspace = workspace.data(), ctx->workspace_bytes = workspace.bytes;
        tx = as(x, plan->in), ty = as(y, plan->out), tdy = as(dy, plan->out), tdx = as(dx, plan->in);
        if (te__from_tokens(plan)) tx = tdx = te_none();
        if (te__to_loss(plan)) tdy = te_none();
    }
    ~scene() { ctx->workspace = nullptr, ctx->workspace_bytes = 0; }
    te_tensor as(const buffer &b, int cols) const { return te_matrix(b.data(), dtype, ROWS, cols); }
    te_status forward() { return s.forward(ty, &saved, tx, m.memory.data(), &batch, ctx); }
    te_status infer() { return s.infer(ty, tx, m.memory.data(), &batch, ctx); }
    te_status backward() { return s.backward(tdx, tdy, &saved, m.memory.data(), &batch, ctx); }
    reference::vec of(const buffer &b) const { return b.read(dtype, 0, (size_t)ROWS * 64); }
    std::vector<std::vector<uint8_t>> all() const {
        std::vector<std::vector<uint8_t>> v;
        for (const buffer *b : {&x, &y, &dy, &dx, &memory, &workspace, &side, &mid, &dside, &dmid, &tokens, &labels, (const buffer *)&m.params, (const buffer *)&m.grads}) v.push_back(b->raw());
        return v;
    }
};
void *shifted(void *p, long bytes) { return (char *)p + bytes; }

// After `change` moved a tensor, the call must be refused with this text and write nothing.
template <class Change> void refuse(const subject &of, const std::string &pass, const std::string &text, Change change) {
    scene s(of);
    if (pass == "backward") REQUIRE(s.forward() == TE_OK);
    change(s);
    CAPTURE(pass, text);
    const auto before = s.all();
    CHECK((pass == "backward" ? s.backward() : pass == "infer" ? s.infer() : s.forward()) == TE_ERROR_VALUE);
    CHECK(std::string(te_last_error(s.ctx)) == text);
    CHECK((s.all() == before));
}
} // namespace

TEST_CASE("in place: inference and backward of lists that may", "[aliasing]") {
    for (const subject *of : {&map_subject, &normed_subject, &two_subject, &residual_subject, &attends_subject, &branches_subject}) {
        scene apart(*of), same(*of);
        CAPTURE(apart.plan->name);
        REQUIRE(apart.infer() == TE_OK);
        same.ty = same.tx;
        REQUIRE(same.infer() == TE_OK);
        CHECK(same.of(same.x) == apart.of(apart.y));
        scene left(*of), right(*of);
        REQUIRE(left.forward() == TE_OK);
        REQUIRE(right.forward() == TE_OK);
        REQUIRE(left.backward() == TE_OK);
        right.tdx = right.tdy;
        REQUIRE(right.backward() == TE_OK);
        CHECK(right.of(right.dy) == left.of(left.dx));
        CHECK(right.m.grads.raw() == left.m.grads.raw());
    }
}

TEST_CASE("in place: refused if one step reads x and writes y, and in training", "[aliasing]") {
    refuse(branch_subject, "infer", "branch: y overlaps x; this list cannot run in place", [](scene &s) { s.ty = s.tx; });
    for (const subject *of : {&bare_subject, &rotated_subject, &one_product_subject}) {
        const std::string name = of->plan()->name;
        refuse(*of, "infer", name + ": y overlaps x; this list cannot run in place", [](scene &s) { s.ty = s.tx; });
        refuse(*of, "backward", name + ": dx overlaps dy; this list cannot run in place", [](scene &s) { s.tdx = s.tdy; });
    }
    refuse(two_subject, "forward", "two: y overlaps x; backward reads both", [](scene &s) { s.ty = s.tx; });
    for (const long by : {16L, 64 * 4L, -64 * 4L, (ROWS * 64 - 4) * 4L}) { // shifted by less than a row, by a row, and by all but 16 bytes
        refuse(two_subject, "infer", "two: y overlaps x; they are to be the same or apart", [&](scene &s) { s.tx.data = shifted(s.x.data(), 512), s.ty.data = shifted(s.tx.data, by); });
        refuse(two_subject, "backward", "two: dx overlaps dy; they are to be the same or apart", [&](scene &s) { s.tdy.data = shifted(s.dy.data(), 512), s.tdx.data = shifted(s.tdy.data, by); });
    }
    scene s(two_subject); // y directly behind x is valid
    s.ty.data = shifted(s.x.data(), ROWS * 64 * 4);
    CHECK(s.infer() == TE_OK);
}

TEST_CASE("overlaps that are refused by name", "[aliasing]") {
    for (const char *pass : {"infer", "forward"}) {
        refuse(two_subject, pass, "two: y overlaps the parameters", [](scene &s) { s.ty.data = s.m.params.data(); });
        refuse(two_subject, pass, "two: y overlaps the workspace", [](scene &s) { s.ty.data = s.workspace.data(); });
        refuse(two_subject, pass, "two: x overlaps the workspace", [](scene &s) { s.tx.data = s.workspace.data(); });
        refuse(edges_subject, pass, "edges: mid overlaps x", [](scene &s) { s.edge[1].value.data = s.tx.data; });
        refuse(edges_subject, pass, "edges: mid overlaps side", [](scene &s) { s.edge[1].value.data = s.edge[0].value.data; });
        refuse(edges_subject, pass, "edges: side overlaps y", [](scene &s) { s.edge[0].value.data = s.ty.data; });
        refuse(loss_subject, pass, "loss: y overlaps batch.labels", [](scene &s) { s.ty.data = s.labels.data(); });
        refuse(loss_subject, pass, "loss: y overlaps batch.tokens", [](scene &s) { s.ty.data = s.tokens.data(); });
    }
    refuse(two_subject, "forward", "two: saved.memory overlaps the workspace", [](scene &s) { s.saved.memory = s.workspace.data(), s.saved.bytes = SIZE_MAX / 2; });
    refuse(two_subject, "forward", "two: y overlaps saved.memory", [](scene &s) { s.ty.data = s.memory.data(); });
    refuse(two_subject, "forward", "two: x overlaps saved.memory", [](scene &s) { s.tx.data = s.memory.data(); });
    refuse(two_subject, "backward", "two: dx overlaps the parameters", [](scene &s) { s.tdx.data = s.m.params.data(); });
    refuse(two_subject, "backward", "two: dx overlaps the gradients", [](scene &s) { s.tdx.data = s.m.grads.data(); });
    refuse(two_subject, "backward", "two: dy overlaps the gradients", [](scene &s) { s.tdy.data = s.m.grads.data(); });
    refuse(two_subject, "backward", "two: dx overlaps saved.memory", [](scene &s) { s.tdx.data = s.memory.data(); });
    refuse(two_subject, "backward", "two: dx overlaps the forward's x, which backward reads", [](scene &s) { s.tdx.data = s.tx.data; });
    refuse(two_subject, "backward", "two: dy overlaps the forward's x, which backward reads", [](scene &s) { s.tdy.data = s.tx.data; });
    refuse(ends_in_attention_subject, "backward", "ends_in_attention: dy overlaps the forward's y, which backward reads", [](scene &s) { s.tdy = s.ty; });
    for (const subject *of : {&branch_subject, &gate_subject}) {
        const std::string name = of->plan()->name;
        refuse(*of, "backward", name + ": dx overlaps the forward's x, which backward reads", [](scene &s) { s.tdx.data = s.tx.data; });
    }
    refuse(joins_subject, "backward", "joins: side overlaps dx", [](scene &s) { s.edge[0].value.data = s.tdx.data; });
    refuse(edges_subject, "backward", "edges: side overlaps dy", [](scene &s) { s.edge[0].grad.data = s.tdy.data; });
    refuse(edges_subject, "backward", "edges: side overlaps dx", [](scene &s) { s.edge[0].grad.data = s.tdx.data; });
    scene s(two_subject); // valid, because both are only read: dy in the place of y, and x as an extra input, too
    REQUIRE(s.forward() == TE_OK);
    s.tdy = s.ty;
    CHECK(s.backward() == TE_OK);
    scene e(edges_subject);
    e.edge[0].value = e.tx;
    CHECK(e.forward() == TE_OK);
}

TEST_CASE("parameters that overlap gradients", "[aliasing]") {
    scene s(two_subject);
    two m;
    buffer both(s.ctx, 3 * two_grad_bytes());
    for (const long by : {0L, 256L, (long)two_param_bytes() - 256})
        CHECK(two_bind(&m, both.data(), (float *)shifted(both.data(), by), s.ctx) == TE_ERROR_VALUE);
    CHECK(std::string(te_last_error(s.ctx)) == "two: params overlaps grads");
    CHECK(two_bind(&m, both.data(), (float *)shifted(both.data(), (long)two_param_bytes()), s.ctx) == TE_OK);
}
