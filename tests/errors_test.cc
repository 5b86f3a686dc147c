// errors_test.cc -- a refused call returns an error text with the tensor's name and the values, and changes nothing: no output,
// no gradient, not the random state, and not the saved tensors of an earlier forward.
#include <algorithm>
#include <functional>

#include "harness.h"
#include "te/ops/attention.h"
#include "te/ops/elementwise.h"
#include "te/ops/cross_entropy.h"
#include "te/ops/dropout.h"
#include "te/ops/embedding.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/residual.h"

MODEL(block, bf16, (input, side, 64), (layernorm, ln, 64), (linear, fc, 64, 64), (bias, fc_b, 64), (dropout, drop, 0.1f), (add, side), (output, mid), (linear, out, 64, 40))
TE_SEQUENTIAL(plain, bf16, (linear, fc, 64, 40))
MODEL(loss, f32, (embedding, e, 11, 32), (positions, p, 16, 32), (layernorm, n, 32), (linear, h, 32, 11), (cross_entropy, ce, 11))
TE_SEQUENTIAL(tied, f32, (embedding, e, 11, 32), (tied_linear, h, 32, 11), (bias, b, 11))

namespace {

enum { BATCH = 2, SEQ = 4, ROWS = BATCH * SEQ };

// A valid forward and backward of `block`. A test changes one argument, and the call must be refused.
struct scene {
    context ctx_owner;
    te_context *ctx;
    instance m;
    buffer x, y, dx, dy, side, dside, mid, dmid, memory, workspace;
    te_tensor tx, ty, tdx, tdy;
    te_edge edge[2];
    te_batch batch;
    te_saved saved;
    const void *instance_given;
    te_saved *saved_given;
    const te_batch *batch_given;
    te_context *ctx_given;

    scene()
        : ctx_owner(5), ctx(&ctx_owner.c), m(block_subject, ctx), x(ctx, ROWS * 64 * 2), y(ctx, ROWS * 40 * 2), dx(ctx, ROWS * 64 * 2), dy(ctx, ROWS * 40 * 2),
          side(ctx, ROWS * 64 * 2), dside(ctx, ROWS * 64 * 2), mid(ctx, ROWS * 64 * 2), dmid(ctx, ROWS * 64 * 2),
          memory(ctx, block_saved_bytes(ROWS)), workspace(ctx, block_subject.workspace_bytes(m.memory.data(), ROWS, ctx)) {
        source random(1);
        m.draw(random);
        for (buffer *b : {&x, &side, &dy, &dmid}) b->write(random.draw(b->bytes / 2, TE_bf16), TE_bf16);
        tx = te_matrix(x.data(), TE_bf16, ROWS, 64), ty = te_matrix(y.data(), TE_bf16, ROWS, 40);
        tdx = te_matrix(dx.data(), TE_bf16, ROWS, 64), tdy = te_matrix(dy.data(), TE_bf16, ROWS, 40);
        memset(edge, 0, sizeof edge), memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved);
        edge[0].name = "side", edge[0].value = te_matrix(side.data(), TE_bf16, ROWS, 64), edge[0].grad = te_matrix(dside.data(), TE_bf16, ROWS, 64);
        edge[1].name = "mid", edge[1].value = te_matrix(mid.data(), TE_bf16, ROWS, 64), edge[1].grad = te_matrix(dmid.data(), TE_bf16, ROWS, 64);
        batch.batch = BATCH, batch.seq = SEQ, batch.edges = edge, batch.edge_count = 2;
        saved.memory = memory.data(), saved.bytes = memory.bytes;
        ctx->workspace = workspace.data(), ctx->workspace_bytes = workspace.bytes;
        instance_given = m.memory.data(), saved_given = &saved, batch_given = &batch, ctx_given = ctx;
    }
    ~scene() { ctx->workspace = nullptr, ctx->workspace_bytes = 0; }
    te_status forward() { return block_forward(ty, saved_given, tx, (const block *)instance_given, batch_given, ctx_given); }
    te_status infer() { return block_infer(ty, tx, (const block *)instance_given, batch_given, ctx_given); }
    te_status backward() { return block_backward(tdx, tdy, saved_given, (const block *)instance_given, batch_given, ctx_given); }
};

typedef std::function<void(scene &)> edit;

void check_text(const te_context *ctx, const std::vector<std::string> &texts) {
    const std::string error = te_last_error(ctx);
    for (const std::string &t : texts) {
        CAPTURE(error, t);
        CHECK(error.find(t) != std::string::npos);
    }
}

// With this change forward is refused and, unless training_only, inference, too.
void refuse_forward(te_status status, const std::vector<std::string> &texts, const edit &change, bool training_only = false) {
    for (int infer = 0; infer <= !training_only; infer++) {
        scene s;
        CAPTURE(infer);
        change(s);
        CHECK((infer ? s.infer() : s.forward()) == status);
        if (s.ctx_given) check_text(s.ctx, texts);
        for (const buffer *b : {&s.y, &s.mid, &s.memory, &s.workspace}) CHECK(b->poisoned());
        CHECK(get_rng(s.ctx).offset == 0);
    }
}

// With this change backward is refused, after a forward that succeeded.
void refuse_backward(te_status status, const std::vector<std::string> &texts, const edit &change) {
    scene s;
    REQUIRE(s.forward() == TE_OK);
    s.workspace.poison();
    const std::vector<uint8_t> memory = s.memory.raw(), y = s.y.raw(), mid = s.mid.raw();
    change(s);
    CHECK(s.backward() == status);
    if (s.ctx_given) check_text(s.ctx, texts);
    for (const buffer *b : {&s.dx, &s.dside, &s.m.grads, &s.workspace}) CHECK(b->poisoned());
    CHECK(s.memory.raw() == memory);
    CHECK(s.y.raw() == y);
    CHECK(s.mid.raw() == mid);
    CHECK(get_rng(s.ctx).offset == 1);
}

void *shifted(const buffer &b) { return (char *)b.data() + 2; }

} // namespace

TEST_CASE("the scene is valid without a change", "[errors]") {
    scene s;
    REQUIRE(s.forward() == TE_OK);
    REQUIRE(s.backward() == TE_OK);
    REQUIRE(s.infer() == TE_OK);
    CHECK(std::string(te_last_error(s.ctx)).empty());
    s.edge[0].grad = te_none(), s.edge[1].grad = te_none(), s.tdx = te_none(); // gradients are optional
    REQUIRE(s.backward() == TE_OK);
}

TEST_CASE("forward: null", "[errors]") {
    refuse_forward(TE_ERROR_NULL, {"block", "x is null"}, [](scene &s) { s.tx.data = nullptr; });
    refuse_forward(TE_ERROR_NULL, {"block", "y is null"}, [](scene &s) { s.ty = te_none(); });
    refuse_forward(TE_ERROR_NULL, {"block", "instance"}, [](scene &s) { s.instance_given = nullptr; });
    refuse_forward(TE_ERROR_NULL, {"block", "batch"}, [](scene &s) { s.batch_given = nullptr; });
    refuse_forward(TE_ERROR_NULL, {}, [](scene &s) { s.ctx_given = nullptr; });
    refuse_forward(TE_ERROR_NULL, {"block", "saved is null", "block_infer"}, [](scene &s) { s.saved_given = nullptr; }, true);
    refuse_forward(TE_ERROR_NULL, {"block", "saved.memory"}, [](scene &s) { s.saved.memory = nullptr; }, true);
    refuse_forward(TE_ERROR_NULL, {"block", "edges"}, [](scene &s) { s.batch.edges = nullptr; });
    CHECK(std::string(te_last_error(nullptr)) == "the context is null");
}
TEST_CASE("forward: shapes and dtypes", "[errors]") {
    refuse_forward(TE_ERROR_DTYPE, {"block", "x is f16", "bf16"}, [](scene &s) { s.tx.dtype = TE_f16; });
    refuse_forward(TE_ERROR_DTYPE, {"block", "y is f32", "bf16"}, [](scene &s) { s.ty.dtype = TE_f32; });
    refuse_forward(TE_ERROR_SHAPE, {"block", "x has 65 columns", "64"}, [](scene &s) { s.tx.cols = 65; });
    refuse_forward(TE_ERROR_SHAPE, {"block", "y has 64 columns", "40"}, [](scene &s) { s.ty.cols = 64; });
    refuse_forward(TE_ERROR_SHAPE, {"block", "x has 7 rows", "8"}, [](scene &s) { s.tx.rows = 7; });
    refuse_forward(TE_ERROR_SHAPE, {"block", "y has 9 rows", "8"}, [](scene &s) { s.ty.rows = 9; });
    refuse_forward(TE_ERROR_SHAPE, {"block", "batch 0", "seq 4"}, [](scene &s) { s.batch.batch = 0; });
    refuse_forward(TE_ERROR_SHAPE, {"block", "batch 2", "seq -1"}, [](scene &s) { s.batch.seq = -1; });
    refuse_forward(TE_ERROR_OVERFLOW, {"block", "2147483647"}, [](scene &s) { s.batch.seq = INT32_MAX; });
    refuse_forward(TE_ERROR_OVERFLOW, {"block", "65536"}, [](scene &s) { s.batch.batch = s.batch.seq = 65536; });
    refuse_forward(TE_ERROR_VALUE, {"block", "position -1"}, [](scene &s) { s.batch.position = -1; });
    refuse_forward(TE_ERROR_VALUE, {"block", "position 2147483646"}, [](scene &s) { s.batch.position = INT32_MAX - 1; });
}
TEST_CASE("forward: alignment", "[errors]") {
    refuse_forward(TE_ERROR_ALIGNMENT, {"block", "x "}, [](scene &s) { s.tx.data = shifted(s.x); });
    refuse_forward(TE_ERROR_ALIGNMENT, {"block", "y "}, [](scene &s) { s.ty.data = shifted(s.y); });
    refuse_forward(TE_ERROR_ALIGNMENT, {"block", "saved.memory"}, [](scene &s) { s.saved.memory = (char *)s.memory.data() + 16; }, true);
    refuse_forward(TE_ERROR_ALIGNMENT, {"block", "workspace"}, [](scene &s) { s.ctx->workspace = (char *)s.workspace.data() + 16; });
}
TEST_CASE("forward: memory", "[errors]") {
    refuse_forward(TE_ERROR_MEMORY, {"block", "8 rows", "saved.memory", std::to_string(block_saved_bytes(ROWS)), std::to_string(block_saved_bytes(ROWS) - 1)},
                   [](scene &s) { s.saved.bytes--; }, true);
    refuse_forward(TE_ERROR_MEMORY, {"block", "8 rows", "workspace", "te_context_reserve"}, [](scene &s) { s.ctx->workspace_bytes = 0; });
    refuse_forward(TE_ERROR_MEMORY, {"block", "workspace"}, [](scene &s) { s.ctx->workspace = nullptr, s.ctx->workspace_bytes = 0; });
    scene s; // a workspace that is one byte too small for forward or for backward
    REQUIRE(s.forward() == TE_OK);
    s.workspace.poison();
    s.ctx->workspace_bytes--;
    const bool forward = s.forward() == TE_OK, backward = s.backward() == TE_OK;
    CHECK(!(forward && backward)); // te_plan_workspace_bytes is the size of the larger one
}
TEST_CASE("forward: edges", "[errors]") {
    refuse_forward(TE_ERROR_NULL, {"block", "no edge", "side"}, [](scene &s) { s.edge[0].name = "other"; });
    refuse_forward(TE_ERROR_NULL, {"block", "no edge", "mid"}, [](scene &s) { s.batch.edge_count = 1; });
    refuse_forward(TE_ERROR_NULL, {"block", "no edge"}, [](scene &s) { s.edge[0].name = nullptr; });
    refuse_forward(TE_ERROR_NULL, {"block", "side is null"}, [](scene &s) { s.edge[0].value = te_none(); });
    refuse_forward(TE_ERROR_DTYPE, {"block", "side is f32"}, [](scene &s) { s.edge[0].value.dtype = TE_f32; });
    refuse_forward(TE_ERROR_SHAPE, {"block", "side has 3 rows", "8"}, [](scene &s) { s.edge[0].value.rows = 3; });
    refuse_forward(TE_ERROR_SHAPE, {"block", "mid has 40 columns", "64"}, [](scene &s) { s.edge[1].value.cols = 40; });
    refuse_forward(TE_ERROR_ALIGNMENT, {"block", "mid "}, [](scene &s) { s.edge[1].value.data = shifted(s.mid); });
}
TEST_CASE("forward: an instance that is not bound, or is of another model", "[errors]") {
    refuse_forward(TE_ERROR_STATE, {"block", "bound", "block_bind"}, [](scene &s) { memset(s.m.memory.data(), 0, s.m.memory.size() * 8); });
    refuse_forward(TE_ERROR_STATE, {"block", "bound"}, [](scene &s) { s.m.model()->plan = plain_plan(); });
    scene s; // the size functions of an instance that is not bound
    block unbound;
    memset(&unbound, 0, sizeof unbound);
    CHECK(block_workspace_bytes(&unbound, ROWS, s.ctx) == 0);
    CHECK(std::string(te_last_error(s.ctx)).find("block_bind") != std::string::npos);
}
TEST_CASE("a forward that is refused leaves the saved tensors of an earlier one", "[errors]") {
    scene s;
    REQUIRE(s.forward() == TE_OK);
    const std::vector<uint8_t> memory = s.memory.raw();
    s.batch.edge_count = 1;
    CHECK(s.forward() == TE_ERROR_NULL);
    s.batch.edge_count = 2, s.ctx->workspace_bytes = 0;
    CHECK(s.forward() == TE_ERROR_MEMORY);
    s.ctx->workspace_bytes = s.workspace.bytes;
    CHECK(s.memory.raw() == memory);
    CHECK(s.backward() == TE_OK);
}

TEST_CASE("backward", "[errors]") {
    refuse_backward(TE_ERROR_NULL, {"block", "saved is null"}, [](scene &s) { s.saved_given = nullptr; });
    refuse_backward(TE_ERROR_NULL, {"block", "dy is null"}, [](scene &s) { s.tdy = te_none(); });
    refuse_backward(TE_ERROR_NULL, {"block", "instance"}, [](scene &s) { s.instance_given = nullptr; });
    refuse_backward(TE_ERROR_NULL, {"block", "batch"}, [](scene &s) { s.batch_given = nullptr; });
    refuse_backward(TE_ERROR_NULL, {}, [](scene &s) { s.ctx_given = nullptr; });
    refuse_backward(TE_ERROR_STATE, {"block", "no forward"}, [](scene &s) { s.saved.plan = nullptr; });
    refuse_backward(TE_ERROR_STATE, {"block", "no forward"}, [](scene &s) { s.saved.plan = plain_plan(); });
    refuse_backward(TE_ERROR_SHAPE, {"block", "batch 2, seq 4", "has 3, 4"}, [](scene &s) { s.batch.batch = 3; });
    refuse_backward(TE_ERROR_SHAPE, {"block", "batch 2, seq 4", "has 4, 2"}, [](scene &s) { s.batch.batch = 4, s.batch.seq = 2; });
    refuse_backward(TE_ERROR_SHAPE, {"block", "position 0", "4 and 7"}, [](scene &s) { s.batch.position = 7; });
    refuse_backward(TE_ERROR_DTYPE, {"block", "dy is f32"}, [](scene &s) { s.tdy.dtype = TE_f32; });
    refuse_backward(TE_ERROR_DTYPE, {"block", "dx is f16"}, [](scene &s) { s.tdx.dtype = TE_f16; });
    refuse_backward(TE_ERROR_SHAPE, {"block", "dy has 64 columns", "40"}, [](scene &s) { s.tdy.cols = 64; });
    refuse_backward(TE_ERROR_SHAPE, {"block", "dx has 5 rows", "8"}, [](scene &s) { s.tdx.rows = 5; });
    refuse_backward(TE_ERROR_ALIGNMENT, {"block", "dy "}, [](scene &s) { s.tdy.data = shifted(s.dy); });
    refuse_backward(TE_ERROR_ALIGNMENT, {"block", "dx "}, [](scene &s) { s.tdx.data = shifted(s.dx); });
    refuse_backward(TE_ERROR_MEMORY, {"block", "workspace"}, [](scene &s) { s.ctx->workspace_bytes = 256; });
    refuse_backward(TE_ERROR_NULL, {"block", "no edge", "mid"}, [](scene &s) { s.batch.edge_count = 1; });
    refuse_backward(TE_ERROR_NULL, {"block", "no edge", "side"}, [](scene &s) { s.edge[0].name = "sides"; });
    refuse_backward(TE_ERROR_DTYPE, {"block", "side is f16"}, [](scene &s) { s.edge[0].grad.dtype = TE_f16; });
    refuse_backward(TE_ERROR_SHAPE, {"block", "mid has 9 rows"}, [](scene &s) { s.edge[1].grad.rows = 9; });
    refuse_backward(TE_ERROR_ALIGNMENT, {"block", "side "}, [](scene &s) { s.edge[0].grad.data = shifted(s.dside); });
    refuse_backward(TE_ERROR_STATE, {"block", "nothing to compute", "without gradients"}, [](scene &s) {
        s.tdx = te_none(), s.edge[0].grad = te_none();
        REQUIRE(block_bind((block *)s.m.memory.data(), s.m.params.data(), nullptr, s.ctx) == TE_OK);
    });
}

TEST_CASE("binding and tying", "[errors]") {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    block b;
    memset(&b, 0, sizeof b);
    buffer params(ctx, block_param_bytes()), grads(ctx, block_grad_bytes());
    CHECK(block_bind(nullptr, params.data(), (float *)grads.data(), ctx) == TE_ERROR_NULL);
    check_text(ctx, {"block"});
    CHECK(block_bind(&b, params.data(), (float *)grads.data(), nullptr) == TE_ERROR_NULL);
    CHECK(block_bind(&b, nullptr, (float *)grads.data(), ctx) == TE_ERROR_NULL);
    check_text(ctx, {"block", "params"});
    CHECK(block_bind(&b, (char *)params.data() + 16, (float *)grads.data(), ctx) == TE_ERROR_ALIGNMENT);
    CHECK(block_bind(&b, params.data(), (float *)grads.data() + 4, ctx) == TE_ERROR_ALIGNMENT);
    check_text(ctx, {"block", "grads", "256"});
    CHECK(b.model.plan == nullptr);
    CHECK(params.poisoned());

    tied t;
    memset(&t, 0, sizeof t);
    buffer tied_params(ctx, tied_param_bytes()), x(ctx, 4 * 4), y(ctx, 4 * 11 * 4), memory(ctx, tied_saved_bytes(4)), tokens(ctx, 4 * 4);
    tied_params.write(reference::vec(tied_params.bytes / 4, 0.5), TE_f32);
    tokens.write_ints({1, 2, 3, 0});
    REQUIRE(tied_bind(&t, tied_params.data(), nullptr, ctx) == TE_OK);
    REQUIRE(te_context_reserve(ctx, 1 << 20) == TE_OK);
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = 4, batch.tokens = (const int32_t *)tokens.data();
    te_saved saved;
    memset(&saved, 0, sizeof saved);
    saved.memory = memory.data(), saved.bytes = memory.bytes;
    const te_tensor ty = te_matrix(y.data(), TE_f32, 4, 11);
    CHECK(tied_forward(ty, &saved, te_none(), &t, &batch, ctx) == TE_ERROR_STATE);
    check_text(ctx, {"tied", "h.weight", "te_tie"});
    CHECK(y.poisoned());
    CHECK(te_tie(&t.h.weight, nullptr, ctx) == TE_ERROR_NULL);
    CHECK(te_tie(nullptr, &t.e.weight, ctx) == TE_ERROR_NULL);
    CHECK(te_tie(&t.e.weight, &t.b.bias, ctx) == TE_ERROR_VALUE);
    check_text(ctx, {"e.weight", "tied_linear"});
    CHECK(te_tie(&t.h.weight, &t.b.bias, ctx) == TE_ERROR_SHAPE);
    check_text(ctx, {"h.weight", "11 x 32", "b.bias", "1 x 11"});
    REQUIRE(te_tie(&t.h.weight, &t.e.weight, ctx) == TE_OK);
    CHECK(tied_forward(ty, &saved, te_none(), &t, &batch, ctx) == TE_OK);
}

TEST_CASE("tokens, positions and labels", "[errors]") {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    instance m(loss_subject, ctx);
    source random(2);
    m.draw(random);
    buffer y(ctx, ROWS * 4), memory(ctx, loss_saved_bytes(ROWS)), tokens(ctx, ROWS * 4), labels(ctx, ROWS * 4);
    std::vector<int32_t> t = {0, 1, 2, 3, 10, 9, 8, 7}, l = {0, 1, -1, 3, 10, -1, 8, 7};
    tokens.write_ints(t), labels.write_ints(l);
    REQUIRE(te_context_reserve(ctx, loss_subject.workspace_bytes(m.memory.data(), ROWS, ctx)) == TE_OK);
    te_saved saved;
    te_batch batch;
    memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved);
    batch.batch = BATCH, batch.seq = SEQ, batch.ignore_index = -1, batch.loss_scale = 1;
    batch.tokens = (const int32_t *)tokens.data(), batch.labels = (const int32_t *)labels.data();
    saved.memory = memory.data(), saved.bytes = memory.bytes;
    const te_tensor ty = te_matrix(y.data(), TE_f32, ROWS, 1);
    const loss *i = (const loss *)m.memory.data();
    const auto refused = [&](te_status status, const std::vector<std::string> &texts) {
        CHECK(loss_forward(ty, &saved, te_none(), i, &batch, ctx) == status);
        check_text(ctx, texts);
        CHECK(loss_infer(ty, te_none(), i, &batch, ctx) == status);
        CHECK(y.poisoned());
        CHECK(memory.poisoned());
    };
    batch.tokens = nullptr;
    refused(TE_ERROR_NULL, {"loss", "tokens"});
    batch.tokens = (const int32_t *)tokens.data(), batch.labels = nullptr;
    refused(TE_ERROR_NULL, {"loss", "labels"});
    batch.labels = (const int32_t *)labels.data(), batch.position = 13;
    refused(TE_ERROR_SHAPE, {"loss", "positions p", "16", "17"});
    batch.position = 12; // the largest valid one
#if !TE_CUDA
    t[5] = 11, tokens.write_ints(t);
    refused(TE_ERROR_VALUE, {"loss", "token 11", "row 5", "e, 11"});
    t[5] = -1, tokens.write_ints(t);
    refused(TE_ERROR_VALUE, {"loss", "token -1"});
    t[5] = 9, tokens.write_ints(t);
    l[3] = 11, labels.write_ints(l);
    refused(TE_ERROR_VALUE, {"loss", "label 11", "row 3", "ce, 11"});
    l[3] = -2, labels.write_ints(l);
    refused(TE_ERROR_VALUE, {"loss", "label -2"});
    l[3] = 3, labels.write_ints(l);
#endif
    REQUIRE(loss_forward(ty, &saved, te_none(), i, &batch, ctx) == TE_OK);
    batch.loss_scale = 0;
    CHECK(loss_backward(te_none(), te_none(), &saved, i, &batch, ctx) == TE_ERROR_VALUE);
    check_text(ctx, {"loss", "loss_scale"});
    for (const float scale : {NAN, INFINITY, -INFINITY}) {
        batch.loss_scale = scale;
        CHECK(loss_backward(te_none(), te_none(), &saved, i, &batch, ctx) == TE_ERROR_VALUE);
        check_text(ctx, {"loss", "loss_scale"});
    }
    CHECK(loss_backward(te_none(), te_matrix(y.data(), TE_bf16, ROWS, 1), &saved, i, &batch, ctx) == TE_ERROR_DTYPE);
    CHECK(m.grads.poisoned());
    batch.loss_scale = 1;
    CHECK(loss_backward(te_none(), te_none(), &saved, i, &batch, ctx) == TE_OK);
}

TEST_CASE("contexts", "[errors]") {
    te_context c;
    CHECK(te_context_create(nullptr, 0, 1) == TE_ERROR_NULL);
    CHECK(te_context_create(&c, 4096, 1) != TE_OK);
    CHECK(std::string(te_last_error(&c)) != "");
    te_context_destroy(&c);
    te_context_destroy(nullptr);
    context ctx_owner;
    void *p = nullptr;
    CHECK(te_allocate(nullptr, &p, 1) == TE_ERROR_NULL);
    CHECK(te_allocate(&ctx_owner.c, nullptr, 1) == TE_ERROR_NULL);
    CHECK(te_context_reserve(nullptr, 1) == TE_ERROR_NULL);
    REQUIRE(te_context_reserve(&ctx_owner.c, 1000) == TE_OK);
    void *const before = ctx_owner.c.workspace;
    const te_status status = te_context_reserve(&ctx_owner.c, SIZE_MAX - 8);
    CHECK((status == TE_ERROR_OVERFLOW || status == TE_ERROR_MEMORY));
    CHECK(ctx_owner.c.workspace == before);
    CHECK(ctx_owner.c.workspace_bytes >= 1000);
    CHECK(std::string(te_last_error(&ctx_owner.c)).find(std::to_string(SIZE_MAX - 8)) != std::string::npos);
    REQUIRE(te_context_reserve(&ctx_owner.c, 500) == TE_OK);
    CHECK(ctx_owner.c.workspace == before);
}

TEST_CASE("every status has a text", "[errors]") {
    std::vector<std::string> texts;
    for (int i = 0; i < TE_STATUS_COUNT; i++) {
        const std::string text = te_status_string((te_status)i);
        CHECK(text.size() > 3);
        CHECK(text != "unknown status");
        CHECK(std::find(texts.begin(), texts.end(), text) == texts.end());
        texts.push_back(text);
    }
    CHECK(std::string(te_status_string(TE_STATUS_COUNT)) == "unknown status");
}
