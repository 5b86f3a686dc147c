// linear_loss_test.cc -- a linear and the cross_entropy behind it as one step (te/linear/impl/linear_cross_entropy.h). Beyond the tests of all patterns:
// logits that are computed in pieces of rows and of the vocabulary, lists that fuse only forward or only backward, and the memory.
#include "harness.h"
#include "te/ops/elementwise.h"
#include "te/ops/cross_entropy.h"
#include "te/ops/embedding.h"
#include "te/ops/last_token.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"

#define TE_FORWARD_linear_cross_entropy TE_FUSED
#define TE_BACKWARD_cross_entropy_linear TE_FUSED
MODEL(wide, f32, (rmsnorm, n, 37), (linear, l, 37, 2500), (cross_entropy, c, 2500))
MODEL(tall, bf16, (linear, l, 192, 1900), (cross_entropy, c, 1900, (label_smoothing, 0.2f), (z_loss, 1e-3f)))
MODEL(of_tokens, bf16, (embedding, e, 600, 24), (tied_linear, l, 24, 600), (cross_entropy, c, 600))
MODEL_WITH(TE_FORWARD_, TE_UNFUSED_, forward_fused, bf16, (bias, b, 40), (linear, l, 40, 72), (cross_entropy, c, 72))
MODEL_WITH(TE_UNFUSED_, TE_BACKWARD_, backward_fused, bf16, (bias, b, 40), (linear, l, 40, 72), (cross_entropy, c, 72))
MODEL(sequences, f32, (rmsnorm, n, 24), (last_token, t), (linear, l, 24, 40), (cross_entropy, c, 40))

static te__logits_piece backward_piece(const te_plan *p, int64_t rows) {
    const te_op *l = &p->op[p->op_count - 2];
    return te__logits_of_backward(te_round_up(rows, TE_ROW_PAD), l->out, l->in, te_dtype_bytes(p->dtype), p->dtype == TE_f32 ? 0 : 4);
}

TEST_CASE("logits in pieces of rows and of the vocabulary", "[linear_loss]") {
    CHECK(backward_piece(wide_plan(), 131).columns == 1024); // three pieces of the vocabulary, each of all rows
    CHECK(backward_piece(wide_plan(), 131).rows == 256);
    check(wide_subject, shape(1, 131));
    shape by_dy(3, 86);
    by_dy.loss_from_dy = true;
    check(wide_subject, by_dy);
    CHECK(backward_piece(tall_plan(), 300).rows == 256); // two pieces of rows, each with four of the vocabulary
    CHECK(backward_piece(tall_plan(), 300).columns == 512);
    check(tall_subject, shape(1, 300));
    check(of_tokens_subject, shape(2, 150)); // the weight is tied, so another op adds to its gradient
}
TEST_CASE("a list may fuse the pattern in one pass only", "[linear_loss]") {
    static_assert((int)forward_fused_forward_steps == 2 && (int)forward_fused_backward_steps == 3, "fused in forward only");
    static_assert((int)backward_fused_forward_steps == 3 && (int)backward_fused_backward_steps == 2, "fused in backward only");
    for (const subject *s : {&forward_fused_subject, &backward_fused_subject}) check(*s, shape(2, 70));
    CHECK(forward_fused_saved_bytes(256) > backward_fused_saved_bytes(256)); // by the logits, which an unfused backward reads
}

// A piece of the logits and the sums of dx need at most 1 / TE_LOSS_FRACTION of the memory of all logits, at any size.
TEST_CASE("only a piece of the logits is in memory at a time", "[linear_loss]") {
    struct size { int64_t rows, vocabulary, hidden; };
    for (const size &s : {size{8192, 50304, 768}, size{4096, 151936, 4096}, size{16384, 32000, 4096}, size{2048, 256, 768}, size{8192, 50257, 768}}) {
        const int64_t all = s.rows * s.vocabulary * 2;
        const te__logits_piece f = te__logits_of_forward(s.rows, s.vocabulary), b = te__logits_of_backward(s.rows, s.vocabulary, s.hidden, 2, 4);
        CAPTURE(s.rows, s.vocabulary, s.hidden, b.rows, b.columns);
        CHECK(f.rows * f.columns * 2 * TE_LOSS_FRACTION <= all);
        CHECK((b.rows * b.columns * 2 + (b.columns < s.vocabulary ? b.rows * s.hidden * 4 : 0)) * TE_LOSS_FRACTION <= all);
        CHECK(te__logits_traffic(b, s.rows, s.vocabulary, s.hidden) <= te__logits_traffic(f, s.rows, s.vocabulary, s.hidden));
    }
    CHECK(wide_saved_bytes(4096) < (size_t)4096 * (37 * 8 + 64)); // the input and output of the norm, and a few numbers for each row
    const context ctx_owner;
    instance m(tall_subject, (te_context *)&ctx_owner.c);
    const size_t x = 4096 * 192, logits = (size_t)4096 * 1900, weight = 1900 * 192;
    // on the host the operands of a 16-bit GEMM are converted to floats
    const size_t of_host = TE_CUDA ? 0 : 4 * (x + weight + logits / 16);
    CHECK(tall_subject.workspace_bytes(m.memory.data(), 4096, m.ctx) <= logits * 2 / 16 + of_host + 2 * x + 4096);
}

// Behind last_token there is one row for each sequence, and pieces are of those rows.
TEST_CASE("a loss for each sequence", "[linear_loss]") {
    const te_plan *p = sequences_plan();
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    instance m(sequences_subject, ctx);
    source random(fresh_seed());
    m.draw(random);
    const int batch = 150, seq = 2;
    // Only the first `batch` floats of y and y2 are written. The buffers have the size of dx, so that a dx in y2's place overlaps nothing else.
    const size_t size = (size_t)batch * seq * 24 * 4;
    buffer x(ctx, size), y(ctx, size), y2(ctx, size), dx(ctx, size), labels(ctx, batch * 4), memory(ctx, sequences_saved_bytes(batch * seq)),
        workspace(ctx, sequences_subject.workspace_bytes(m.memory.data(), batch * seq, ctx));
    ctx->workspace = workspace.data(), ctx->workspace_bytes = workspace.bytes;
    x.write(random.draw((size_t)batch * seq * 24, TE_f32), TE_f32);
    std::vector<int32_t> label((size_t)batch);
    for (int32_t &l : label) l = random.below(40);
    labels.write_ints(label);
    te_batch b;
    memset(&b, 0, sizeof b);
    b.batch = batch, b.seq = seq, b.labels = (const int32_t *)labels.data(), b.loss_scale = 1.0f / batch;
    te_saved saved;
    memset(&saved, 0, sizeof saved);
    saved.memory = memory.data(), saved.bytes = memory.bytes;
    const te_tensor in = te_matrix(x.data(), TE_f32, batch * seq, 24), din = te_matrix(dx.data(), TE_f32, batch * seq, 24);
    REQUIRE(te_plan_forward(te_matrix(y.data(), TE_f32, batch, 1), &saved, in, p, m.model(), &b, ctx) == TE_OK);
    REQUIRE(te_plan_backward(din, te_none(), &saved, p, m.model(), &b, ctx) == TE_OK);
    const reference::vec once = dx.read(TE_f32);
    b.loss_in_backward = 1;
    REQUIRE(te_plan_forward(te_matrix(y2.data(), TE_f32, batch, 1), &saved, in, p, m.model(), &b, ctx) == TE_OK);
    SECTION("loss_in_backward has the same loss and gradient") {
        REQUIRE(te_plan_backward(din, te_none(), &saved, p, m.model(), &b, ctx) == TE_OK);
        CHECK(y2.raw() == y.raw());
        check_close("dx", dx.read(TE_f32), once, 1e-5);
        CHECK(rms(once) > 0);
    }
    SECTION("a dx that overlaps the loss, which backward writes, is refused") {
        te_tensor over = din;
        over.data = y2.data();
        const te_status status = te_plan_backward(over, te_none(), &saved, p, m.model(), &b, ctx);
        CHECK(status == TE_ERROR_VALUE);
        CHECK(std::string(te_last_error(ctx)).find("dx overlaps the forward's y, which backward writes") != std::string::npos);
    }
    ctx->workspace = nullptr, ctx->workspace_bytes = 0;
}
