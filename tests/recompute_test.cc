// recompute_test.cc -- recompute regions, (recompute, r) .. (end_recompute, r): the checks of recompute.h for transformer blocks; which tensors are
// saved, which steps are recomputed, and what the printed plan says about it.
#include <cstring>

#include "harness.h"
#include "te/ops/activation.h"
#include "te/ops/attention.h"
#include "te/ops/elementwise.h"
#include "te/ops/cross_entropy.h"
#include "te/ops/dropout.h"
#include "te/ops/embedding.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/recompute.h"
#include "te/ops/residual.h"
#include "te/ops/rope.h"

#define H 48
#define F 77
#define HEADS 3
#define D 16
#define V 61

#define BEGIN(r) (recompute, r),
#define END(r) , (end_recompute, r)
#define NO_MARK(r)
// Block number i in four pieces, each of which may be a recompute region.
#define NORM_QKV(i) (fork, x##i), (layernorm, ln##i, H), (linear, qkv##i, H, 3 * H), (bias, qkv_b##i, 3 * H)
#define ATTENTION(i) (attention, attn##i, HEADS, HEADS, D), (linear, proj##i, H, H), (bias, proj_b##i, H), (dropout, drop##i, 0.1f), (add, x##i)
#define NORM_FC1(i) (fork, z##i), (layernorm, lnz##i, H), (linear, fc1##i, H, F), (bias, fc1_b##i, F)
#define GELU_FC2(i) (gelu, act##i), (linear, fc2##i, F, H), (bias, fc2_b##i, H), (dropout, dropz##i, 0.2f), (add, z##i)
#define PIECES(i, B, E)                                                                                            \
    B(a##i) NORM_QKV(i) E(a##i), B(b##i) ATTENTION(i) E(b##i), B(c##i) NORM_FC1(i) E(c##i), B(d##i) GELU_FC2(i) E(d##i)
#define BLOCK(i) PIECES(i, NO_MARK, NO_MARK)
#define WHOLE(i) BEGIN(r##i) BLOCK(i) END(r##i)

// X(name, how, dtype, ops...)
#define OF_BOTH(X, how, t)                                                                                         \
    X(plain_##t, how, t, BLOCK(1))                                                                                 \
    X(whole_##t, how, t, WHOLE(1))                                                                                 \
    X(pieces_##t, how, t, PIECES(1, BEGIN, END))                                                                   \
    X(act_##t, how, t, NORM_QKV(1), ATTENTION(1), NORM_FC1(1), BEGIN(r) GELU_FC2(1) END(r))
#define BLOCKS(X)                                                                                                  \
    OF_BOTH(X, MODEL, f32)                                                                                         \
    OF_BOTH(X, MODEL, bf16)                                                                                        \
    X(two_f32, MODEL, f32, WHOLE(1), WHOLE(2))                                                                     \
    X(two_in_one_f32, MODEL, f32, BEGIN(r) BLOCK(1), BLOCK(2) END(r))                                              \
    X(first_of_two_f32, MODEL, f32, WHOLE(1), BLOCK(2))                                                            \
    X(norm_bf16, MODEL, bf16, BEGIN(r) NORM_QKV(1) END(r), ATTENTION(1), BLOCK(2))
#define MODELS(name, how, dtype, ...) how(name, dtype, __VA_ARGS__)
BLOCKS(MODELS)

// A Llama block: rmsnorm, rope, swiglu. Forward stores the input of the swiglu with and without the region, so the region costs forward nothing.
#define LLAMA(B, E)                                                                                                \
    (fork, x), (rmsnorm, n, H), (linear, qkv, H, 80), B(r) (rope, rot, 3, 1, D), (attention, attn, 3, 1, D), (linear, proj, H, H), (add, x) E(r), \
        (fork, z), (rmsnorm, m, H), (linear, fc1, H, 2 * F), B(s) (swiglu, act), (linear, fc2, F, H), (add, z) E(s)

#define OTHERS(X)                                                                                                  \
    X(unfused, UNFUSED, bf16, PIECES(1, BEGIN, END), WHOLE(2))                                                     \
    X(in_f16, MODEL, f16, WHOLE(1))                                                                                  \
    X(llama, MODEL, bf16, LLAMA(BEGIN, END))                                                                       \
    X(network, MODEL, f32, (embedding, wte, V, H), (positions, wpe, 40, H), WHOLE(1), PIECES(2, BEGIN, END),       \
      BEGIN(last) (layernorm, lnf, H), (tied_linear, lm, H, V) END(last), (scale, s, 0.125f), (cross_entropy, loss, V)) \
    X(from_tokens, MODEL, bf16, BEGIN(r) (embedding, wte, V, H), (positions, wpe, 40, H), (layernorm, n, H), (linear, l, H, F), (gelu, g) END(r), (linear, m, F, H)) \
    X(up_to_loss, MODEL, f32, (embedding, wte, V, H), BEGIN(r) (layernorm, n, H), (linear, lm, H, V), (scale, s, 0.125f) END(r), (cross_entropy, loss, V)) \
    /* regions that split patterns of forward and of backward: act_bias would match across r and s */              \
    X(within_patterns, MODEL, bf16, (linear, l, 37, 53), BEGIN(r) (gelu, g), (bias, b, 53) END(r), BEGIN(s) (silu, h), (bias, c, 53) END(s), \
      BEGIN(t) (relu, a), (dropout, d, 0.3f), (layernorm, n, 53) END(t), (linear, m, 53, 37))                      \
    X(nothing_inside, MODEL, f32, BEGIN(r) (bias, b, 37) END(r), (linear, l, 37, 37), BEGIN(s) (scale, t, 2.0f), (dropout, d, 0.5f) END(s)) \
    X(one_each, MODEL, f32, BEGIN(a) (attention, attn, 1, 1, 16) END(a), BEGIN(b) (rmsnorm, n, 16) END(b), BEGIN(c) (linear, l, 16, 37) END(c), \
      BEGIN(d) (gelu, g) END(d), BEGIN(e) (dropout, h, 0.5f) END(e))                                               \
    X(ends_with_norm, MODEL, f32, (linear, l, 37, 37), BEGIN(r) (gelu, g), (bias, b, 37), (layernorm, n, 37) END(r), (linear, m, 37, 53), \
      BEGIN(s) (silu, h), (linear, o, 53, 48), (attention, attn, 1, 1, 16) END(s))
OTHERS(MODELS)

// A declaration as in a header; the definition is at the end of this file.
#define DECLARED (linear, l, 64, 96), (bias, c, 96), BEGIN(r) (gelu, g), (linear, m, 96, 40) END(r), (bias, b, 40)
TE_DECLARE(declared, bf16, DECLARED)
static const subject declared_subject = SUBJECT(declared, TE_STRING(DECLARED));

#define REF(name, ...) &name##_subject,
static const subject *const lists[] = {BLOCKS(REF) OTHERS(REF) &declared_subject};
#include "recompute.h"

namespace {

std::string patterns_of(const te_step *s, int count) {
    std::string text;
    for (int i = 0; i < count; i++) text += std::string(i ? " " : "") + s[i].pattern;
    return text;
}
// The forward steps that recompute region k runs in backward.
std::string recomputed(const te_plan *p, int k) {
    int from, to;
    const te_run sizes = te__run_to_size(p, TE_BACKWARD, 1, TE_USE_off, nullptr);
    te__recompute_steps(&sizes, k, &from, &to);
    return patterns_of(p->forward + from, to - from);
}
std::string printed(const te_plan *p) {
    FILE *f = tmpfile();
    REQUIRE(f);
    te_plan_print(f, p);
    rewind(f);
    std::string text;
    for (int c; (c = fgetc(f)) != EOF;) text += (char)c;
    fclose(f);
    return text;
}

} // namespace

TEST_CASE("a region around the whole block: the bits of the block without it, and nothing but the random state is saved", "[recompute]") {
    const subject *const pairs[][2] = {{&plain_f32_subject, &whole_f32_subject}, {&plain_bf16_subject, &whole_bf16_subject}};
    for (const auto &pair : pairs) {
        const unsigned seed = fresh_seed();
        CAPTURE(seed);
        const te_plan *plain = pair[0]->plan(), *whole = pair[1]->plan();
        const results a = run(*pair[0], 3, 13, seed, false), b = run(*pair[1], 3, 13, seed, false);
        check_same(a, b);
        CHECK(b.saved == (size_t)TE_ALIGN); // the random state
        CHECK(b.workspace >= a.saved - (size_t)TE_ALIGN);
        CHECK(patterns_of(plain->forward, plain->forward_count) == patterns_of(whole->forward, whole->forward_count));
        // fc2 is not recomputed, because backward does not need its output
        CHECK(recomputed(whole, 0) == "fork_layernorm linear_bias attention linear_bias_dropout_add_fork_layernorm linear_bias_gelu");
    }
}

TEST_CASE("regions change neither inference nor the patterns of backward", "[recompute]") {
    const te_plan *plain = plain_bf16_plan();
    for (const te_plan *p : {whole_bf16_plan(), pieces_bf16_plan(), act_bf16_plan()}) {
        CHECK(p->op_count == plain->op_count);
        CHECK(patterns_of(p->infer, p->infer_count) == patterns_of(plain->infer, plain->infer_count));
        CHECK(patterns_of(p->backward, p->backward_count) == patterns_of(plain->backward, plain->backward_count));
    }
    CHECK(patterns_of(pieces_bf16_plan()->forward, pieces_bf16_plan()->forward_count) ==
          "fork_layernorm linear_bias attention linear_bias_dropout_add fork_layernorm linear_bias gelu linear_bias_dropout_add");
    CHECK(patterns_of(within_patterns_plan()->backward, within_patterns_plan()->backward_count) == "linear layernorm dropout relu_bias silu_bias gelu linear");
}

TEST_CASE("recomputation ends at the last op that backward needs", "[recompute]") {
    const te_plan *p = pieces_f32_plan();
    REQUIRE(p->region_count == 4);
    CHECK(std::string(p->region[2].name) == "c1");
    CHECK(p->region[2].first == 9);
    CHECK(p->region[2].last == 12);
    CHECK(recomputed(p, 0) == "fork_layernorm");
    CHECK(recomputed(p, 1) == "attention");
    CHECK(recomputed(p, 2) == "fork_layernorm");
    CHECK(recomputed(p, 3) == "gelu");
    CHECK(recomputed(llama_plan(), 0) == "rope attention");
    CHECK(recomputed(llama_plan(), 1) == "swiglu");
    CHECK(recomputed(nothing_inside_plan(), 0).empty());
    for (int k = 0; k < 5; k++) CHECK(recomputed(one_each_plan(), k).empty());
    CHECK(recomputed(ends_with_norm_plan(), 0) == "gelu bias"); // not the norm, whose statistics and output are saved
    CHECK(recomputed(ends_with_norm_plan(), 1) == "silu linear");
    CHECK(recomputed(from_tokens_plan(), 0) == "embedding positions layernorm linear_gelu");
}

TEST_CASE("the saved tensors", "[recompute]") {
    const int64_t rows = 131, padded = 256;
    const auto less = [&](const subject &s, int64_t floats, int64_t values) { // for each row, so much less is saved than without regions
        te_plan all = *s.plan();
        all.region_count = 0;
        CHECK((int64_t)(te_plan_saved_bytes(&all, rows) - s.saved_bytes(rows)) ==
              padded * (floats * 4 + values * (int64_t)te_dtype_bytes(all.dtype)));
    };
    less(plain_f32_subject, 0, 0);
    less(act_f32_subject, 0, F);
    less(act_bf16_subject, 0, F);
    less(norm_bf16_subject, 2, H);                       // the norm's output, its mean and rstd
    less(pieces_bf16_subject, 2 + HEADS + 2, H + H + H + F); // ln and lnz with their statistics, attention's lse and output, the gelu
    less(llama_subject, 3, H + F); // rope's output (80) is not saved either, but its input is, which no list without the region saves
    less(nothing_inside_subject, 0, 0);
    less(one_each_subject, 0, 0);
    CHECK(two_f32_saved_bytes(rows) == (size_t)(TE_ALIGN + padded * H * 4)); // the random state, and the input of the second region
    CHECK(two_in_one_f32_saved_bytes(rows) == (size_t)TE_ALIGN);
}

TEST_CASE("the printed plan says what would be saved without regions, and which steps are recomputed", "[recompute]") {
    const std::string plain = printed(plain_f32_plan()), act = printed(act_f32_plan());
    CHECK(plain.find("recompute") == std::string::npos);
    CHECK(plain.find("  +  ") == std::string::npos);
    const int whole = (int)((plain_f32_saved_bytes(TE_ROW_PAD) - TE_ALIGN) / TE_ROW_PAD);
    CHECK(act.find(std::to_string(whole - F * 4) + " bytes a row saved for backward (" + std::to_string(whole) + " without recompute)\n") != std::string::npos);
    const size_t backward = act.find("backward, 8 steps; +: a forward step that is recomputed\n");
    REQUIRE(backward != std::string::npos);
    const size_t gelu = act.find("   +  gelu ", backward);
    REQUIRE(gelu != std::string::npos);
    CHECK(gelu < act.find("   1  add_dropout_bias ", backward));
    CHECK(act.find("act_f32_act1_gelu\n", gelu) < act.find("   1  add_dropout_bias ", backward));
}

// ---- no allocation and no synchronisation; graphs ---------------------------------------------------------------------

namespace {

int allocations, waits;
const te_target *real_target;
te_status counted_allocate(te_context *ctx, void **p, size_t bytes) { return allocations++, real_target->allocate(ctx, p, bytes); }
te_status counted_synchronize(te_context *ctx) { return waits++, real_target->synchronize(ctx); }

struct trip { // the tensors of one forward and backward
    enum { ROWS = 26 };
    buffer x, y, dx, dy, memory;
    te_saved saved;
    te_batch batch;
    trip(te_context *c, source &random)
        : x(c, ROWS * H * 2), y(c, ROWS * H * 2), dx(c, ROWS * H * 2), dy(c, ROWS * H * 2), memory(c, pieces_bf16_saved_bytes(ROWS)) {
        memset(&saved, 0, sizeof saved), memset(&batch, 0, sizeof batch);
        saved.memory = memory.data(), saved.bytes = memory.bytes, batch.batch = 2, batch.seq = ROWS / 2;
        for (buffer *b : {&x, &dy}) b->write(random.draw(ROWS * H, TE_bf16), TE_bf16);
    }
    te_tensor as(const buffer &b) const { return te_matrix(b.data(), TE_bf16, ROWS, H); }
    te_status forward(instance &m) { return m.s.forward(as(y), &saved, as(x), m.memory.data(), &batch, m.ctx); }
    te_status backward(instance &m) { return m.s.backward(as(dx), as(dy), &saved, m.memory.data(), &batch, m.ctx); }
};

} // namespace

TEST_CASE("two micro-batches in flight: each backward has the dropout of its forward, without allocations and waits", "[recompute]") {
    source random(fresh_seed());
    context ctx_owner;
    instance m(pieces_bf16_subject, &ctx_owner.c);
    m.draw(random);
    REQUIRE(te_context_reserve(&ctx_owner.c, pieces_bf16_subject.workspace_bytes(m.memory.data(), trip::ROWS, &ctx_owner.c)) == TE_OK);
    trip a(&ctx_owner.c, random), b(&ctx_owner.c, random);
    set_rng(&ctx_owner.c, 3, 0);
    REQUIRE((a.forward(m) == TE_OK && a.backward(m) == TE_OK));
    const auto ga = m.grads.raw();
    REQUIRE((b.forward(m) == TE_OK && b.backward(m) == TE_OK));
    const auto da = a.dx.raw(), db = b.dx.raw(), gb = m.grads.raw();
    for (buffer *z : {&a.y, &a.dx, &a.memory, &b.y, &b.dx, &b.memory}) z->poison();
    set_rng(&ctx_owner.c, 3, 0);
    te_target counted = *ctx_owner.c.target;
    real_target = ctx_owner.c.target;
    counted.allocate = counted_allocate, counted.synchronize = counted_synchronize;
    ctx_owner.c.target = &counted;
    allocations = waits = 0;
    const bool went = a.forward(m) == TE_OK && b.forward(m) == TE_OK && b.backward(m) == TE_OK;
    ctx_owner.c.target = real_target;
    REQUIRE(went);
    CHECK(allocations == 0);
    CHECK(waits == 0);
    CHECK(b.dx.raw() == db);
    CHECK(m.grads.raw() == gb);
    REQUIRE(a.backward(m) == TE_OK);
    CHECK(a.dx.raw() == da);
    CHECK(m.grads.raw() == ga);
}

TEST_CASE("a workspace that is too small is refused before anything runs", "[recompute]") {
    source random(fresh_seed());
    context ctx_owner;
    instance m(pieces_bf16_subject, &ctx_owner.c);
    m.draw(random);
    buffer workspace(&ctx_owner.c, pieces_bf16_subject.workspace_bytes(m.memory.data(), trip::ROWS, &ctx_owner.c));
    ctx_owner.c.workspace = workspace.data(), ctx_owner.c.workspace_bytes = workspace.bytes;
    trip a(&ctx_owner.c, random);
    REQUIRE(a.forward(m) == TE_OK);
    workspace.poison();
    ctx_owner.c.workspace_bytes = 1024;
    CHECK(a.backward(m) == TE_ERROR_MEMORY);
    CHECK((workspace.poisoned() && a.dx.poisoned() && m.grads.poisoned()));
    ctx_owner.c.workspace_bytes = workspace.bytes;
    CHECK(a.backward(m) == TE_OK);
    ctx_owner.c.workspace = nullptr, ctx_owner.c.workspace_bytes = 0;
}

#if TE_CUDA
TEST_CASE("replays of a captured forward and backward have the bits of eager ones", "[recompute]") {
    source random(fresh_seed());
    context ctx_owner;
    cudaStream_t stream;
    REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
    ctx_owner.c.stream = stream;
    {
        instance m(pieces_bf16_subject, &ctx_owner.c);
        m.draw(random);
        REQUIRE(te_context_reserve(&ctx_owner.c, pieces_bf16_subject.workspace_bytes(m.memory.data(), trip::ROWS, &ctx_owner.c)) == TE_OK);
        trip a(&ctx_owner.c, random);
        set_rng(&ctx_owner.c, 3, 0);
        for (int i = 0; i < 2; i++) REQUIRE((a.forward(m) == TE_OK && a.backward(m) == TE_OK));
        const auto y = a.y.raw(), dx = a.dx.raw(), grads = m.grads.raw();
        for (buffer *z : {&a.y, &a.dx, &a.memory, &m.grads}) z->poison();
        set_rng(&ctx_owner.c, 3, 0);
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
        const bool went = a.forward(m) == TE_OK && a.backward(m) == TE_OK;
        REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
        REQUIRE(went);
        REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
        for (int i = 0; i < 2; i++) REQUIRE(cudaGraphLaunch(exec, stream) == cudaSuccess);
        CHECK(a.y.raw() == y);
        CHECK(a.dx.raw() == dx);
        CHECK(m.grads.raw() == grads);
        REQUIRE(cudaGraphExecDestroy(exec) == cudaSuccess);
        REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
    }
    ctx_owner.c.stream = nullptr;
    REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}
#endif

TE_DEFINE(declared, bf16, DECLARED)
