// cross_attention_test.cc -- lists with (cross_attention, ..), whose keys and values have other rows than the queries, against the reference in double;
// and the T5 block of te/layers.h.
#include "harness.h"
#include "te/te.h"

// A decoder: queries from x, keys and values from the memory. X(name, dtype, options of the attention)
#define DECODER(H, M, HEADS, KV, D, ...)                                                                                                  \
    (input, enc, M, (rows, memory)), (fork, x), (rmsnorm, n, H), (linear, q, H, HEADS * D), (fork, queries), (load, enc),                 \
        (linear, kv, M, 2 * KV * D), (bias, kv_b, 2 * KV * D), (fork, keys), (load, queries),                                             \
        (cross_attention, c, keys, HEADS, KV, D __VA_ARGS__), (linear, p, HEADS * D, H), (add, x)
#define PLAIN(X)                                                                                                                          \
    X(full, f32, DECODER(32, 48, 4, 4, 16))                                                                                               \
    X(causal, f32, DECODER(24, 40, 4, 2, 20, , (causal, 1), (dropout, 0.2f), (sinks, 1), (softcap, 2.0f), (alibi, 1)))                    \
    X(window, f32, DECODER(40, 24, 3, 1, 16, , (window_left, 6), (window_right, 3), (scale, 0.4f)))                                       \
    X(masked, f32, DECODER(16, 16, 2, 1, 8, , (causal, 1), (window_left, 2), (alibi, 1)))                                                 \
    X(bf, bf16, DECODER(32, 48, 2, 1, 16, , (causal, 1), (dropout, 0.1f)))                                                              \
    X(bf64, bf16, (input, keys, 4 * 64, (rows, memory)), (cross_attention, a, keys, 4, 2, 64, (causal, 1), (alibi, 1), (softcap, 3.0f)), (gelu, g)) \
    X(bf128, bf16, (input, keys, 2 * 128, (rows, memory)), (cross_attention, a, keys, 2, 1, 128, (window_left, 70), (window_right, 20), (sinks, 1), (dropout, 0.1f)), (gelu, g)) \
    X(all128, bf16, (input, keys, 2 * 2 * 128, (rows, memory)), (cross_attention, a, keys, 4, 2, 128, (sinks, 1)), (gelu, g))             \
    X(all96, f16, (input, keys, 2 * 96, (rows, memory)), (cross_attention, a, keys, 2, 1, 96, (causal, 1), (dropout, 0.1f)), (gelu, g))   \
    X(all64, bf16, (input, keys, 2 * 2 * 64, (rows, memory)), (cross_attention, a, keys, 2, 2, 64), (gelu, g))                            \
    X(h256, f16, (input, keys, 2 * 256, (rows, memory)), (cross_attention, a, keys, 1, 1, 256, (causal, 1), (scale, 0.1f)), (gelu, g)) \
    X(h512, bf16, (input, keys, 2 * 512, (rows, memory)), (cross_attention, a, keys, 2, 1, 512, (causal, 1)), (gelu, g)) \
    X(h264, f32, (input, keys, 264 + 512, (rows, memory)), (cross_attention, a, keys, 2, 1, 264, (value_dim, 512), (window_left, 40), (dropout, 0.1f)), (gelu, g)) \
    X(value, f32, (input, keys, 2 * (20 + 12), (rows, memory)), (cross_attention, a, keys, 4, 2, 20, (value_dim, 12), (causal, 1), (dropout, 0.2f), (sinks, 1)), (gelu, g)) \
    X(value_made, f32, (input, enc, 24, (rows, memory)), (fork, x), (linear, q, 32, 3 * 16), (fork, queries), (load, enc), (linear, kv, 24, 3 * (16 + 40)), (fork, keys), (load, queries), \
        (cross_attention, a, keys, 3, 3, 16, (value_dim, 40), (alibi, 1), (window_left, 9)), (linear, p, 3 * 40, 32), (add, x))       \
    X(v192, bf16, (input, keys, 2 * (192 + 128), (rows, memory)), (cross_attention, a, keys, 4, 2, 192, (value_dim, 128), (causal, 1)), (gelu, g)) \
    X(v64, f16, (input, keys, 64 + 96, (rows, memory)), (cross_attention, a, keys, 2, 1, 64, (value_dim, 96), (softcap, 3.0f)), (gelu, g)) \
    X(made, f32, (input, keys, 2 * 2 * 16, (rows, memory)), (cross_attention, a, keys, 4, 2, 16), (gelu, g),                              \
        (cross_attention, b, keys, 4, 2, 16, (causal, 1)), (linear, l, 64, 40))                                                           \
    X(shared, (f32, (width, 32)), (input, enc, 24, (rows, memory)), (fork, x), (load, enc), (rmsnorm, n, 24), (linear, kv, 24, 2 * 32), (fork, keys), (load, repeat, x), \
        (cross_attention, a, keys, 2, 2, 16), (linear, q, 32, 32), (cross_attention, b, keys, 2, 2, 16, (causal, 1)), (add, x))           \
    X(tokens, f32, (fork, x), (linear, kv, 32, 2 * 16), (fork, keys), (load, x), (linear, q, 32, 64), (cross_attention, a, keys, 4, 1, 16, (causal, 1))) \
    X(first, f32, (fork, keys), (linear, q, 64, 64), (cross_attention, c, keys, 2, 1, 32))                                                \
    X(rerun, f32, (input, enc, 24, (rows, memory)), (bias, b, 32), (recompute, r), (fork, x), (load, enc), (linear, kv, 24, 2 * 32), (fork, keys), \
        (load, back, x), (cross_attention, a, keys, 2, 2, 16), (gelu, g), (linear, l, 32, 32), (end_recompute, r), (add, x))

#define CROSS_MODEL(name, dtype, ...) MODEL(name, dtype, __VA_ARGS__)
#define CROSS_SUBJECT(name, ...) &name##_subject,
PLAIN(CROSS_MODEL)

TEST_CASE("cross-attention in a list", "[cross]") {
    for (const subject *s : {PLAIN(CROSS_SUBJECT)}) {
        check(*s, shape(1, 1, 1));
        check(*s, shape(2, 7, 19));
        check(*s, shape(2, 19, 7));
        if (!brief()) {
            check(*s, shape(1, 1, 70));
            check(*s, shape(1, 131, 1));
            check(*s, shape(1, 67, 150));
            check(*s, shape(1, 200, 66));
            if (s->plan()->dtype != TE_f32) check(*s, shape(2, 130, 600)), check(*s, shape(1, 300, 700)), check(*s, shape(1, 330, 260)); // several tiles
        }
        check_gradients_of_reference(*s, shape(2, 3, 5));
        check_gradients_of_reference(*s, shape(1, 6, 2));
    }
}

#define T5(X)                                                                                                                             \
    X(t5, f32, (input, enc, 40, (rows, memory)), TE_T5_DECODER_BLOCK(a, 32, 48, 4, 16, 0.1f, 40, enc))                                    \
    X(t5_gated_16, bf16, (input, enc, 32, (rows, memory)), TE_T5_DECODER_BLOCK_GATED(a, 32, 48, 2, 16, 0.1f, 32, enc))                    \
    X(t5_two, f32, (embedding, tokens, 61, 32), (input, enc, 24, (rows, memory)), TE_T5_DECODER_BLOCK(b0, 32, 40, 2, 16, 0.1f, 24, enc),  \
      TE_T5_DECODER_BLOCK_GATED(b1, 32, 40, 2, 16, 0.1f, 24, enc), (rmsnorm, n, 32), (linear, head, 32, 61), (cross_entropy, loss, 61))

T5(CROSS_MODEL)

TEST_CASE("T5's decoder block", "[cross]") {
    for (const subject *s : {T5(CROSS_SUBJECT)}) {
        check(*s, shape(1, 1, 1));
        check(*s, shape(3, 7, 12));
        check(*s, shape(2, 12, 5));
        if (s->plan()->dtype == TE_f32) check_gradients_of_reference(*s, shape(2, 3, 4));
    }
}

namespace {

struct decoder {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    instance m;
    buffer x, y, dy, keys, dkeys, memory, workspace;
    te_edge edge;
    te_batch batch;
    te_saved saved;
    decoder() : m(made_subject, ctx), x(ctx, 4 * 64 * 4), y(ctx, 4 * 40 * 4), dy(ctx, y.bytes), keys(ctx, 6 * 64 * 4), dkeys(ctx, keys.bytes),
                memory(ctx, made_saved_bytes(6)), workspace(ctx, made_subject.workspace_bytes(m.memory.data(), 6, ctx)) {
        source random(fresh_seed());
        m.draw(random);
        x.write(random.draw(4 * 64, TE_f32), TE_f32), keys.write(random.draw(6 * 64, TE_f32), TE_f32), dy.write(random.draw(4 * 40, TE_f32), TE_f32);
        memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved), memset(&edge, 0, sizeof edge);
        edge.name = "keys", edge.value = te_matrix(keys.data(), TE_f32, 6, 64), edge.grad = te_matrix(dkeys.data(), TE_f32, 6, 64);
        batch.batch = 2, batch.seq = 2, batch.memory_seq = 3, batch.edges = &edge, batch.edge_count = 1;
        saved.memory = memory.data(), saved.bytes = memory.bytes;
        ctx->workspace = workspace.data(), ctx->workspace_bytes = workspace.bytes;
    }
    ~decoder() { ctx->workspace = nullptr, ctx->workspace_bytes = 0; }
    te_status forward() { return made_subject.forward(te_matrix(y.data(), TE_f32, 4, 40), &saved, te_matrix(x.data(), TE_f32, 4, 64), m.memory.data(), &batch, ctx); }
    te_status backward() { return made_subject.backward(te_none(), te_matrix(dy.data(), TE_f32, 4, 40), &saved, m.memory.data(), &batch, ctx); }
    void refuses(te_status got, te_status want, const char *text) {
        INFO(te_last_error(ctx));
        CHECK(got == want);
        CHECK(std::string(te_last_error(ctx)).find(text) != std::string::npos);
        CHECK((y.poisoned() && m.grads.poisoned() && dkeys.poisoned()));
    }
};

} // namespace

TEST_CASE("a batch whose memory does not match is refused, and nothing is written", "[cross]") {
    decoder d;
    const std::vector<int32_t> cu = {0, 1, 4};
    buffer there(d.ctx, 12);
    there.write_ints(cu);
    d.batch.memory_seq = 0;
    d.refuses(d.forward(), TE_ERROR_SHAPE, "batch.memory_seq is 0");
    d.batch.memory_seq = 4;
    d.refuses(d.forward(), TE_ERROR_SHAPE, "keys has 6 rows, the batch has 8");
    d.batch.memory_seq = 1 << 30;
    d.refuses(d.forward(), TE_ERROR_OVERFLOW, "memory_seq 1073741824");
    d.batch.memory_seq = 3, d.batch.sequences = 2, d.batch.max_seqlen = 3, d.batch.cu_seqlens = (const int32_t *)there.data();
    d.refuses(d.forward(), TE_ERROR_VALUE, "takes sequences of one length");
    d.batch.sequences = d.batch.max_seqlen = 0, d.batch.cu_seqlens = nullptr;
    d.edge.value.cols = 48;
    d.refuses(d.forward(), TE_ERROR_SHAPE, "keys has 48 columns");
    d.edge.value.cols = 64, d.edge.name = "other";
    d.refuses(d.forward(), TE_ERROR_NULL, "no edge named keys");
    d.edge.name = "keys", d.saved.bytes = made_saved_bytes(4) - 1;
    d.refuses(d.forward(), TE_ERROR_MEMORY, "saved.memory");
    d.saved.bytes = d.memory.bytes;
    REQUIRE(d.forward() == TE_OK);
    d.y.poison();
    d.batch.memory_seq = 2, d.edge.value.rows = d.edge.grad.rows = 4;
    d.refuses(d.backward(), TE_ERROR_SHAPE, "rows of memory");
}

TEST_CASE("without the gradient of the memory, the other gradients are the same", "[cross]") {
    decoder d;
    REQUIRE(d.forward() == TE_OK);
    REQUIRE(d.backward() == TE_OK);
    const std::vector<uint8_t> grads = d.m.grads.raw();
    CHECK(!d.dkeys.poisoned());
    d.dkeys.poison(), d.m.grads.poison(), d.workspace.poison();
    d.edge.grad = te_none();
    REQUIRE(d.backward() == TE_OK);
    CHECK(d.m.grads.raw() == grads);
    CHECK(d.dkeys.poisoned());
}

TEST_CASE("a list whose last op is cross-attention to x does not run in place", "[cross]") {
    context ctx_owner;
    instance m(first_subject, &ctx_owner.c);
    buffer x(&ctx_owner.c, 3 * 64 * 4), y(&ctx_owner.c, x.bytes);
    source random(fresh_seed());
    m.draw(random);
    x.write(random.draw(3 * 64, TE_f32), TE_f32);
    const std::vector<uint8_t> before = x.raw();
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = 3;
    REQUIRE(te_context_reserve(&ctx_owner.c, first_subject.workspace_bytes(m.memory.data(), 3, &ctx_owner.c)) == TE_OK);
    const te_tensor t = te_matrix(x.data(), TE_f32, 3, 64);
    CHECK(first_subject.infer(t, t, m.memory.data(), &batch, &ctx_owner.c) == TE_ERROR_VALUE);
    CHECK(std::string(te_last_error(&ctx_owner.c)).find("cannot run in place") != std::string::npos);
    CHECK(x.raw() == before);
    CHECK(first_subject.infer(te_matrix(y.data(), TE_f32, 3, 64), t, m.memory.data(), &batch, &ctx_owner.c) == TE_OK);
}
