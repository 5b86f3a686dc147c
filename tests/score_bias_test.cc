// score_bias_test.cc -- lists with the options (bias, ..), (relative_bias, ..) and (max_logit, 1) of attention, against the reference in double.
#include "harness.h"
#include "te/te.h"

#define LISTS(X)                                                                                                                          \
    X(by_head, f32, (fork, x), (linear, l, 24, 8 * 16), (bias, b, 8 * 16), (attention, a, 4, 2, 16, (bias, heads), (bias_queries, 70), (sinks, 1), (dropout, 0.2f), (max_logit, 1)), \
        (linear, p, 64, 24), (add, x))                                                                                                    \
    X(for_all, bf16, (attention, a, 2, 1, 16, (causal, 0), (bias, shared), (bias_queries, 70), (bias_keys, 71), (softcap, 2.0f), (alibi, 1)), (gelu, g)) \
    X(both_sides, f16, (attention, a, 4, 4, 16, (causal, 0), (relative_bias, 8), (max_distance, 20), (sinks, 1)), (gelu, g))             \
    X(recomputed, f32, (recompute, r), (attention, a, 2, 2, 8, (relative_bias, 2 + 4), (max_distance, 20), (max_logit, 1)), (gelu, g), (end_recompute, r), (gelu, h)) \
    X(to_memory, f32, (input, keys, 2 * 2 * 16, (rows, memory)), (cross_attention, a, keys, 4, 2, 16, (bias, heads), (bias_queries, 70), (bias_keys, 90)), (gelu, g))
#define SCORE_MODEL(name, dtype, ...) MODEL(name, dtype, __VA_ARGS__)
#define SCORE_SUBJECT(name, ...) &name##_subject,
LISTS(SCORE_MODEL)
MODEL(lengths, f32, (attention, a, 2, 2, 8, (varlen, 1), (bias, heads), (bias_queries, 9), (max_logit, 1)))
MODEL(owner, f32, (attention, a, 2, 2, 8, (relative_bias, 8)), (linear, l2, 16, 48), (attention, b, 2, 2, 8, (relative_bias, 8), (tied, 1)))
MODEL(apart, f32, (attention, a, 2, 2, 8, (relative_bias, 8)), (linear, l2, 16, 48), (attention, b, 2, 2, 8, (relative_bias, 8)))

TEST_CASE("lists with a bias of attention match the reference", "[attention]") {
    for (const subject *s : {LISTS(SCORE_SUBJECT)}) {
        check(*s, shape(1, 1, 1));
        check(*s, shape(2, 7, 19));
        check(*s, shape(1, 70, 66));
        if (s->plan()->dtype == TE_f32) check_gradients_of_reference(*s, shape(2, 3, 4));
    }
}

namespace {

// A list with the tensors of one forward and backward.
struct runner {
    const subject &s;
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    instance m;
    int rows, in, out;
    buffer x, y, dy, memory, workspace;
    te_batch batch;
    te_saved saved;
    te_edge edge;
    runner(const subject &of, int sequences, int seq, int in_, int out_, size_t saved_bytes)
        : s(of), m(of, ctx), rows(sequences * seq), in(in_), out(out_), x(ctx, (size_t)(rows * in * 4)), y(ctx, (size_t)(rows * out * 4)), dy(ctx, y.bytes),
          memory(ctx, saved_bytes), workspace(ctx, of.workspace_bytes(m.memory.data(), rows, ctx)) {
        source random(fresh_seed());
        m.draw(random);
        x.write(random.draw((size_t)(rows * in), TE_f32), TE_f32), dy.write(random.draw((size_t)(rows * out), TE_f32), TE_f32);
        memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved), memset(&edge, 0, sizeof edge);
        batch.batch = sequences, batch.seq = seq;
        saved.memory = memory.data(), saved.bytes = memory.bytes;
        ctx->workspace = workspace.data(), ctx->workspace_bytes = workspace.bytes;
    }
    ~runner() { ctx->workspace = nullptr, ctx->workspace_bytes = 0; }
    te_status forward() { return s.forward(te_matrix(y.data(), TE_f32, rows, out), &saved, te_matrix(x.data(), TE_f32, rows, in), m.memory.data(), &batch, ctx); }
    te_status infer() { return s.infer(te_matrix(y.data(), TE_f32, rows, out), te_matrix(x.data(), TE_f32, rows, in), m.memory.data(), &batch, ctx); }
    te_status backward() { return s.backward(te_none(), te_matrix(dy.data(), TE_f32, rows, out), &saved, m.memory.data(), &batch, ctx); }
};

} // namespace

TEST_CASE("forward writes the largest logit of each head to the edge of its name, and refuses an invalid edge", "[attention]") {
    runner r(by_head_subject, 2, 5, 24, 24, by_head_saved_bytes(10));
    buffer top(r.ctx, 4 * 4), plain(r.ctx, r.y.bytes);
    REQUIRE(r.forward() == TE_OK); // the edge is optional
    CHECK(top.poisoned());
    r.edge.name = "a", r.edge.value = te_matrix(top.data(), TE_f32, 1, 3);
    r.batch.edges = &r.edge, r.batch.edge_count = 1;
    r.y.poison();
    CHECK(r.forward() == TE_ERROR_SHAPE);
    CHECK((r.y.poisoned() && top.poisoned()));
    r.edge.value = te_matrix(top.data(), TE_f32, 1, 4);
    r.edge.value.data = r.y.data();
    CHECK(r.forward() == TE_ERROR_VALUE);
    CHECK(std::string(te_last_error(r.ctx)).find("a overlaps") != std::string::npos);
    r.edge.value.data = top.data();
    CHECK(r.infer() == TE_OK);
    CHECK(top.poisoned()); // inference does not write it
    REQUIRE(r.forward() == TE_OK);
    for (const double v : top.read(TE_f32)) CHECK((std::isfinite(v) && std::fabs(v) < 100));
}

TEST_CASE("attention with a table of biases refuses longer sequences by name", "[attention]") {
    runner r(lengths_subject, 1, 10, 48, 16, lengths_saved_bytes(10));
    const std::vector<int32_t> cu = {0, 6, 10};
    buffer there(r.ctx, 12);
    there.write_ints(cu);
    CHECK(r.forward() == TE_ERROR_SHAPE);
    CHECK(std::string(te_last_error(r.ctx)) == "lengths_a_attention: sequences of 10 queries, its bias was declared with bias_queries 9");
    CHECK(r.infer() == TE_ERROR_SHAPE);
    CHECK(r.y.poisoned());
    // for packed sequences, max_seqlen is compared with the table
    r.batch.sequences = 2, r.batch.max_seqlen = 9, r.batch.cu_seqlens = (const int32_t *)there.data();
    CHECK(r.forward() == TE_OK);
    CHECK(r.backward() == TE_OK);
}

TEST_CASE("a frozen bias gets no gradient, and the other gradients keep their bits", "[attention]") {
    runner r(by_head_subject, 2, 5, 24, 24, by_head_saved_bytes(10));
    by_head &m = *(by_head *)r.m.memory.data();
    REQUIRE((r.forward() == TE_OK && r.backward() == TE_OK));
    const size_t size = (size_t)(m.a.bias.rows * m.a.bias.cols), first = (size_t)(m.a.bias.grad - m.model.grads);
    const std::vector<double> all = r.m.grads.read(TE_f32);
    r.m.grads.poison();
    REQUIRE(te_freeze(&m.model, "a", "bias", r.ctx) == TE_OK);
    REQUIRE(r.backward() == TE_OK);
    const std::vector<double> rest = r.m.grads.read(TE_f32);
    for (size_t i = 0; i < size; i++) CHECK((std::isnan(rest[first + i]) && !std::isnan(all[first + i])));
    for (const te_param *p : {&m.l.weight, &m.b.bias, &m.a.sinks, &m.p.weight})
        for (int64_t i = 0; i < p->rows * p->cols; i++) CHECK(rest[(size_t)(p->grad - m.model.grads + i)] == all[(size_t)(p->grad - m.model.grads + i)]);
}

TEST_CASE("the gradient of a relative bias that two attentions share is the sum of both", "[attention]") {
    runner both(owner_subject, 2, 6, 48, 16, owner_saved_bytes(12)), alone(apart_subject, 2, 6, 48, 16, apart_saved_bytes(12));
    owner &m = *(owner *)both.m.memory.data();
    apart &n = *(apart *)alone.m.memory.data();
    const size_t size = 8 * 2;
    REQUIRE(te_tie(&m.b.relative_bias, &m.a.relative_bias, both.ctx) == TE_OK);
    for (const auto &pair : {std::make_pair(&n.l2.weight, &m.l2.weight), std::make_pair(&n.a.relative_bias, &m.a.relative_bias),
                             std::make_pair(&n.b.relative_bias, &m.a.relative_bias)})
        REQUIRE(te_copy(both.ctx, pair.first->data, pair.second->data, (size_t)(pair.first->rows * pair.first->cols) * 4) == TE_OK);
    REQUIRE(te_copy(both.ctx, alone.x.data(), both.x.data(), both.x.bytes) == TE_OK);
    REQUIRE(te_copy(both.ctx, alone.dy.data(), both.dy.data(), both.dy.bytes) == TE_OK);
    REQUIRE(te_synchronize(both.ctx) == TE_OK);
    REQUIRE((both.forward() == TE_OK && both.backward() == TE_OK && alone.forward() == TE_OK && alone.backward() == TE_OK));
    std::vector<float> sum(size), first(size), second(size);
    REQUIRE(te_copy(both.ctx, sum.data(), m.a.relative_bias.grad, size * 4) == TE_OK);
    REQUIRE(te_copy(alone.ctx, first.data(), n.a.relative_bias.grad, size * 4) == TE_OK);
    REQUIRE(te_copy(alone.ctx, second.data(), n.b.relative_bias.grad, size * 4) == TE_OK);
    REQUIRE((te_synchronize(both.ctx) == TE_OK && te_synchronize(alone.ctx) == TE_OK));
    for (size_t i = 0; i < size; i++) CHECK(sum[i] == second[i] + first[i]);
}
