// recompute.h -- checks of every list with recompute regions: it has the same bits as a run that saves everything, it saves less, and it
// computes what the reference does. A template by inclusion; its inputs:
//     V                  tokens and labels are below it
//     static const subject *const lists[]
#include <cstring>

namespace {

// A forward and a backward of `s` on random numbers from `seed`. save_all: with the same plan without its recompute regions.
struct results {
    std::vector<uint8_t> y, dx, grads, edges;
    size_t saved, workspace;
};
results run(const subject &s, int batch, int seq, unsigned seed, bool save_all, bool accumulate = false) {
    source random(seed);
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    instance m(s, ctx);
    m.draw(random);
    te_plan plan = *m.plan;
    if (save_all) plan.region_count = 0;
    m.model()->plan = &plan;
    const bool tokens = te__from_tokens(&plan), loss = te__to_loss(&plan);
    const int64_t rows = (int64_t)batch * seq;
    const size_t size = te_dtype_bytes(plan.dtype), in = tokens ? 0 : (size_t)(rows * plan.in), out = (size_t)(rows * plan.out);
    const size_t out_size = te_dtype_bytes(plan.out_dtype);
    buffer x(ctx, in * size), y(ctx, out * out_size), dx(ctx, in * size), dy(ctx, out * out_size), ids(ctx, (size_t)rows * 4);
    buffer saved_memory(ctx, te_plan_saved_bytes(&plan, rows)), workspace(ctx, te_plan_workspace_bytes(&plan, m.model(), rows, ctx));
    x.write(random.draw(in, plan.dtype), plan.dtype), dy.write(random.draw(out, plan.out_dtype), plan.out_dtype);
    std::vector<int32_t> labels((size_t)rows);
    for (int32_t &l : labels) l = random.below(V);
    ids.write_ints(labels);
    te_batch b;
    memset(&b, 0, sizeof b);
    b.batch = batch, b.seq = seq, b.tokens = b.labels = (const int32_t *)ids.data(), b.ignore_index = -1, b.loss_scale = 1, b.accumulate = accumulate;
    std::vector<te_edge> edges;
    std::vector<std::unique_ptr<buffer>> edge_memory;
    for (int i = 0; i < plan.op_count; i++)
        if (plan.op[i].flags & (TE_IS_INPUT | TE_IS_OUTPUT)) {
            size_t width = (size_t)plan.op[i].out;
            for (int j = i; j < plan.op_count; j++)
                if (plan.op[j].edge == i) width = (size_t)plan.op[j].out;
            te_edge e;
            e.name = plan.op[i].name;
            for (te_tensor *t : {&e.value, &e.grad}) {
                edge_memory.emplace_back(new buffer(ctx, (size_t)rows * width * size));
                edge_memory.back()->write(random.draw((size_t)rows * width, plan.dtype), plan.dtype);
                *t = te_matrix(edge_memory.back()->data(), plan.dtype, rows, (int64_t)width);
            }
            edges.push_back(e);
        }
    b.edges = edges.data(), b.edge_count = (int)edges.size();
    if (accumulate) m.grads.write(random.draw(m.grads.bytes / 4, TE_f32), TE_f32);
    ctx->workspace = workspace.data(), ctx->workspace_bytes = workspace.bytes;
    te_saved saved;
    memset(&saved, 0, sizeof saved);
    saved.memory = saved_memory.data(), saved.bytes = saved_memory.bytes;
    set_rng(ctx, seed, 9);
    const te_tensor tx = tokens ? te_none() : te_matrix(x.data(), plan.dtype, rows, plan.in), tdx = tokens ? te_none() : te_matrix(dx.data(), plan.dtype, rows, plan.in);
    const te_tensor ty = te_matrix(y.data(), plan.out_dtype, rows, plan.out);
    const te_tensor tdy = loss ? te_none() : te_matrix(dy.data(), plan.out_dtype, rows, plan.out);
    REQUIRE(te_plan_forward(ty, &saved, tx, &plan, m.model(), &b, ctx) == TE_OK);
    results r;
    r.y = y.raw();
    const std::vector<uint8_t> saved_before = saved_memory.raw(), x_before = x.raw();
    workspace.poison(); // backward must not need what forward left in the workspace
    const te_status backward = te_plan_backward(tdx, tdy, &saved, &plan, m.model(), &b, ctx);
    INFO(te_last_error(ctx));
    REQUIRE(backward == TE_OK);
    CHECK(y.raw() == r.y); // recomputation must write to the workspace only
    CHECK(saved_memory.raw() == saved_before);
    CHECK(x.raw() == x_before);
    CHECK(get_rng(ctx).offset == 9u + (te__draws(&plan) ? 1 : 0));
    r.dx = dx.raw(), r.grads = m.grads.raw();
    for (auto &e : edge_memory) {
        const std::vector<uint8_t> v = e->raw();
        r.edges.insert(r.edges.end(), v.begin(), v.end());
    }
    (void)workspace.raw();
    ctx->workspace = nullptr, ctx->workspace_bytes = 0;
    r.saved = saved_memory.bytes, r.workspace = workspace.bytes;
    return r;
}
void check_same(const results &a, const results &b) {
    CHECK(a.y == b.y);
    CHECK(a.dx == b.dx);
    CHECK(a.grads == b.grads);
    CHECK(a.edges == b.edges);
}

} // namespace

TEST_CASE("recompute regions change no bit", "[recompute]") {
    for (const subject *s : lists) {
        const unsigned seed = fresh_seed();
        const std::string text = s->text;
        CAPTURE(text, seed);
        for (int seq : {1, 13}) {
            if (brief() && seq == 1) continue;
            const results all = run(*s, 3, seq, seed, true), less = run(*s, 3, seq, seed, false);
            check_same(less, all);
            check_same(run(*s, 3, seq, seed, false), less); // a second time
            check_same(run(*s, 3, seq, seed, false, true), run(*s, 3, seq, seed, true, true));
            CHECK(less.saved <= all.saved);
        }
    }
}

TEST_CASE("recompute regions never save more bytes", "[recompute]") {
    const int64_t rows = 131;
    for (const subject *s : lists) {
        context ctx_owner;
        instance m(*s, &ctx_owner.c);
        te_plan all = *m.plan;
        all.region_count = 0;
        CHECK(te_plan_saved_bytes(&all, rows) >= s->saved_bytes(rows));
    }
}

TEST_CASE("lists with recompute regions match the reference", "[recompute]") {
    for (const subject *s : lists) {
        check(*s, shape(1, 1));
        check(*s, shape(3, 13));
    }
}
