// plan_test.cc -- from a list of ops to its plan: which patterns match, how many steps there are, long patterns, custom ops and
// patterns, several models and instances, micro-batches in flight.
#include <algorithm>
#include <cstring>

#include "harness.h"
#include "te/ops/recompute.h"
#include "te/ops/activation.h"
#include "te/ops/attention.h"
#include "te/ops/elementwise.h"
#include "te/ops/cross_entropy.h"
#include "te/ops/dropout.h"
#include "te/ops/embedding.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/residual.h"

// ---- a custom op, y = x^3, and custom patterns ----------------------------------------------------------------------

#define TE_OP_cube (cube, map)
#define TE_FLAGS_cube(op) (TE_SAVES_INPUT)
TE_CALLBACK void te_cube_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    (void)s, (void)at, (void)options;
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] = v[i] * v[i] * v[i];
}
TE_CALLBACK void te_cube_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options) {
    float x[8];
    (void)sum, (void)options;
    te_read8(x, s->saved, at.format.in, s, at);
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] *= 3 * x[i] * x[i]; // y = x^3
}
static const bool cube_known = [] {
    reference::custom_map m;
    m.f = [](double x) { return x * x * x; }, m.slope = [](double x) { return 3 * x * x; };
    reference::custom_maps()["cube"] = m;
    return true;
}();

#define TE_FORWARD_linear_cube TE_FUSED
#define TE_BACKWARD_cube_bias TE_FUSED
// eight ops, the maximum of a pattern
#define TE_FORWARD_cube_scale_bias_act_scale_dropout_scale_add TE_FUSED
#define TE_FORWARD_linear_bias_act_scale_dropout_add_fork_norm TE_FUSED
#define TE_BACKWARD_norm_fork_add_scale_dropout_scale_act_bias TE_FUSED
// a shorter pattern, over which the longer one must win
#define TE_FORWARD_cube_scale TE_FUSED

// ---- lists ------------------------------------------------------------------------------------------------------

#define GPT(H, F, HEADS)                                                                                                      \
    (fork, x1), (layernorm, ln1, H), (linear, qkv, H, 3 * H), (bias, qkv_b, 3 * H), (attention, attn, HEADS, HEADS, H / HEADS), \
        (linear, proj, H, H), (bias, proj_b, H), (dropout, drop1, 0.1f), (add, x1), (fork, x2), (layernorm, ln2, H),          \
        (linear, fc1, H, F), (bias, fc1_b, F), (gelu, act), (linear, fc2, F, H), (bias, fc2_b, H), (dropout, drop2, 0.1f), (add, x2)
MODEL(gpt, f32, GPT(64, 128, 2))
static_assert((int)gpt_forward_steps == 6, "fork_layernorm linear_bias attention linear_bias_dropout_add_fork_layernorm linear_bias_gelu linear_bias_dropout_add");
static_assert((int)gpt_infer_steps == 6, "fork_layernorm linear_bias attention linear_bias_add_fork_layernorm linear_bias_gelu linear_bias_add");
static_assert((int)gpt_backward_steps == 8, "add_dropout_bias linear_gelu_bias linear layernorm_fork_add_dropout_bias linear attention_bias linear layernorm_fork");

UNFUSED(gpt_unfused, f32, GPT(64, 128, 2))
static_assert((int)gpt_unfused_forward_steps == 18 && (int)gpt_unfused_infer_steps == 16 && (int)gpt_unfused_backward_steps == 18, "an op, a step");

MODEL(custom, f32, (linear, l, 37, 53), (cube, c), (linear, m, 53, 37), (bias, b, 37), (cube, d))
static_assert((int)custom_forward_steps == 3 && (int)custom_backward_steps == 4, "linear_cube linear_bias cube; cube_bias linear cube linear");

MODEL(eight, f32, (fork, x), (cube, c), (scale, s, 0.5f), (bias, b, 40), (silu, a), (scale, t, 2.0f), (dropout, d, 0.3f), (scale, u, 0.7f), (add, x))
static_assert((int)eight_forward_steps == 2, "fork, and eight ops");
static_assert((int)eight_infer_steps == 6, "fork cube_scale bias_silu scale scale add");

// Backward patterns of every kind that begin with a GEMM (for dx), which continue in its epilogue or in a pointwise kernel.
#define BEHIND_linear_norm_fork_add_dropout_bias TE_FUSED
#define BEHIND_linear_fork TE_FUSED
#define BEHIND_linear_gated_bias TE_FUSED
MODEL_WITH(TE_FORWARD_, BEHIND_, behind_linear, f16, (fork, x), (linear, p, 40, 40), (bias, b, 40), (dropout, d, 0.2f), (add, x), (fork, z), (layernorm, n, 40),
           (linear, q, 40, 96), (bias, c, 96), (swiglu, g), (linear, r, 48, 40), (add, z))
static_assert((int)behind_linear_backward_steps == 4, "add linear_swiglu_bias linear_layernorm_fork_add_dropout_bias linear_fork");

MODEL(eight_of_linear, bf16, (fork, x), (linear, l, 64, 64), (bias, b, 64), (gelu, a), (scale, t, 2.0f), (dropout, d, 0.3f), (add, x), (fork, z), (rmsnorm, n, 64), (add, z))
static_assert((int)eight_of_linear_forward_steps == 3, "fork, eight ops, add");
MODEL(long_mirror, f32, (fork, x), (linear, l, 37, 37), (bias, b, 37), (relu, a), (scale, s, 2.0f), (dropout, d, 0.3f), (scale, t, 0.3f), (add, x), (fork, z), (rmsnorm, n, 37), (scale, u, 3.0f), (add, z))
static_assert((int)long_mirror_backward_steps == 4, "add, scale, eight ops, linear_fork");

// Inference omits dropout: at the beginning, at the end, and two in succession.
MODEL(dropped, f32, (dropout, d1, 0.5f), (linear, l, 37, 37), (dropout, d2, 0.5f), (bias, b, 37), (dropout, d3, 0.2f), (dropout, d4, 0.2f), (gelu, a), (dropout, d5, 0.1f))
static_assert((int)dropped_forward_steps == 8, "each is a step");
static_assert((int)dropped_infer_steps == 1, "linear_bias_gelu");
MODEL(fork_behind_dropout, f32, (linear, l, 37, 37), (dropout, d, 0.5f), (fork, x), (rmsnorm, n, 37), (dropout, e, 0.5f), (add, x), (dropout, f, 0.5f))
MODEL(parted, f32, (fork, x), (gelu, g), (add, x), (dropout, d, 0.5f), (fork, z), (rmsnorm, n, 37), (linear, l, 37, 37), (add, z))
MODEL(marked, f32, (bias, a, 37), (recompute, r), (linear, l, 37, 37), (bias, b, 37), (end_recompute, r), (gelu, g), (rmsnorm, n, 37))

// Forks within forks, forks that cross, one op between fork and add, and none.
MODEL(nested, f32, (fork, a), (fork, b), (fork, c), (linear, l, 37, 37), (add, c), (gelu, g), (add, b), (rmsnorm, n, 37), (add, a))
MODEL(crossed, bf16, (fork, a), (linear, l, 64, 64), (fork, b), (silu, f), (add, a), (fork, c), (layernorm, n, 64), (add, b), (bias, d, 64), (add, c))
MODEL(doubled, f32, (fork, a), (add, a), (bias, b, 37), (fork, c), (add, c))
MODEL(many_edges, f32,
    (fork, a1), (gelu, b1), (fork, a2), (gelu, b2), (fork, a3), (gelu, b3), (fork, a4), (gelu, b4), (fork, a5), (gelu, b5), (fork, a6), (gelu, b6),
    (fork, a7), (gelu, b7), (fork, a8), (gelu, b8), (fork, a9), (gelu, b9), (fork, a10), (gelu, b10), (fork, a11), (gelu, b11), (fork, a12), (gelu, b12),
    (fork, a13), (gelu, b13), (fork, a14), (gelu, b14), (fork, a15), (gelu, b15), (fork, a16), (gelu, b16), (fork, a17), (gelu, b17), (fork, a18), (gelu, b18),
    (fork, a19), (gelu, b19), (fork, a20), (gelu, b20), (fork, a21), (gelu, b21), (fork, a22), (gelu, b22), (fork, a23), (gelu, b23), (fork, a24), (gelu, b24),
    (add, a1), (add, a2), (add, a3), (add, a4), (add, a5), (add, a6), (add, a7), (add, a8), (add, a9), (add, a10), (add, a11), (add, a12),
    (add, a13), (add, a14), (add, a15), (add, a16), (add, a17), (add, a18), (add, a19), (add, a20), (add, a21), (add, a22), (add, a23), (add, a24), (bias, z, 16))

MODEL(with_edges, f16, (input, i, 40), (input, j, 64), (linear, l, 64, 64), (output, o), (add, j), (fork, f), (layernorm, n, 64), (output, p), (add, f), (linear, m, 64, 40), (add, i))
MODEL(to_loss, f32, (embedding, e, 50, 32), (positions, p, 16, 32), (layernorm, n, 32), (tied_linear, h, 32, 50), (scale, s, 0.125f),
      (cross_entropy, c, 50)) // small logits, because a loss near 0 is a difference that f32 cannot represent

// A declaration as in a header and the definition as in one source file, here in one file, with C linkage.
#define DECLARED (layernorm, ln, 64), (linear, fc, 64, 96), (bias, b, 96), (gelu, act)
TE_DECLARE(declared, bf16, DECLARED)
static const subject declared_subject = SUBJECT(declared, TE_STRING(DECLARED));

#define ALL(X)                                                                                                                \
    X(gpt) X(gpt_unfused) X(custom) X(behind_linear) X(eight) X(eight_of_linear) X(long_mirror) X(dropped) \
    X(fork_behind_dropout) X(parted) X(marked) X(nested) X(crossed) X(doubled) X(many_edges) X(with_edges) X(to_loss) X(declared)
#define REF(name) &name##_subject,
static const subject *const lists[] = {ALL(REF)};
#include "plan.h"

static std::string patterns_of(const te_step *s, int count) {
    std::string text;
    for (int i = 0; i < count; i++) text += std::string(i ? " " : "") + s[i].pattern;
    return text;
}

TEST_CASE("the longest pattern wins", "[plan]") {
    const te_plan *p = gpt_plan();
    CHECK(patterns_of(p->forward, p->forward_count) ==
          "fork_layernorm linear_bias attention linear_bias_dropout_add_fork_layernorm linear_bias_gelu linear_bias_dropout_add");
    CHECK(patterns_of(p->infer, p->infer_count) == "fork_layernorm linear_bias attention linear_bias_add_fork_layernorm linear_bias_gelu linear_bias_add");
    CHECK(patterns_of(p->backward, p->backward_count) ==
          "add_dropout_bias linear_gelu_bias linear layernorm_fork_add_dropout_bias linear attention_bias linear layernorm_fork");
    p = custom_plan();
    CHECK(patterns_of(p->forward, p->forward_count) == "linear_cube linear_bias cube");
    CHECK(patterns_of(p->backward, p->backward_count) == "cube_bias linear cube linear");
    p = eight_plan();
    CHECK(patterns_of(p->forward, p->forward_count) == "fork cube_scale_bias_silu_scale_dropout_scale_add");
    CHECK(patterns_of(p->infer, p->infer_count) == "fork cube_scale bias_silu scale scale add");
    p = eight_of_linear_plan();
    CHECK(patterns_of(p->forward, p->forward_count) == "fork linear_bias_gelu_scale_dropout_add_fork_rmsnorm add");
    p = long_mirror_plan();
    CHECK(patterns_of(p->backward, p->backward_count) == "add scale rmsnorm_fork_add_scale_dropout_scale_relu_bias linear_fork");
    p = dropped_plan();
    CHECK(patterns_of(p->infer, p->infer_count) == "linear_bias_gelu");
    // inference has no dropout, so a longer pattern matches
    p = fork_behind_dropout_plan();
    CHECK(patterns_of(p->infer, p->infer_count) == "linear fork_rmsnorm add");
}

// For each step of inference: 1 if it uses a kernel of forward, 0 if it has its own.
static std::string shared_of(const te_plan *p) {
    std::string text;
    for (int i = 0; i < p->infer_count; i++) text += is_of_forward(p, p->infer[i]) ? '1' : '0';
    return text;
}
TEST_CASE("inference shares forward's kernels of steps without dropout", "[plan]") {
    CHECK(shared_of(gpt_plan()) == "111010");
    CHECK(shared_of(custom_plan()) == "111");
    CHECK(shared_of(to_loss_plan()) == std::string((size_t)to_loss_infer_steps, '1'));
    CHECK(shared_of(with_edges_plan()) == std::string((size_t)with_edges_infer_steps, '1'));
    CHECK(shared_of(dropped_plan()) == "0");               // forward's step has a dropout
    CHECK(shared_of(fork_behind_dropout_plan()) == "110"); // forward has dropout_add
    CHECK(shared_of(eight_plan()) == "100000");            // inference's other steps begin or end at other ops than forward's
    CHECK(shared_of(parted_plan()) == "1100");
    CHECK(shared_of(marked_plan()) == "100");              // a recompute region ends a pattern of forward
    CHECK(shared_of(many_edges_plan()) == std::string((size_t)many_edges_infer_steps, '1'));
}

TEST_CASE("the plan is printed as a table", "[plan]") {
    FILE *f = tmpfile();
    REQUIRE(f);
    gpt_print_plan(f);
    rewind(f);
    std::string text;
    for (int c; (c = fgetc(f)) != EOF;) text += (char)c;
    fclose(f);
    const te_plan *p = gpt_plan();
    for (const auto &pass : {std::make_pair(p->forward, p->forward_count), std::make_pair(p->infer, p->infer_count), std::make_pair(p->backward, p->backward_count)})
        for (int i = 0; i < pass.second; i++) {
            CHECK(text.find(std::string("  ") + pass.first[i].pattern + " ") != std::string::npos);
            CHECK(text.find(std::string("  ") + pass.first[i].kernels + "\n") != std::string::npos);
        }
    CHECK(text.find("forward, 6 steps") != std::string::npos);
    CHECK(text.find("inference, 6 steps") != std::string::npos);
    CHECK(text.find("backward, 8 steps") != std::string::npos);
}

// ---- several instances, and several forwards in flight ----------------------------------------------------------------

namespace {
struct trip { // the tensors of one forward and backward of `rows` rows
    buffer x, y, dx, dy, memory;
    te_saved saved;
    te_batch batch;
    trip(const subject &s, te_context *c, int rows, source &random)
        : x(c, (size_t)(rows * s.plan()->in) * 4), y(c, (size_t)(rows * s.plan()->out) * 4), dx(c, x.bytes), dy(c, y.bytes), memory(c, s.saved_bytes(rows)) {
        memset(&saved, 0, sizeof saved), memset(&batch, 0, sizeof batch);
        saved.memory = memory.data(), saved.bytes = memory.bytes;
        batch.batch = 1, batch.seq = rows;
        x.write(random.draw(x.bytes / 4, TE_f32), TE_f32), dy.write(random.draw(y.bytes / 4, TE_f32), TE_f32);
    }
    te_tensor as(const buffer &b) const { return te_matrix(b.data(), TE_f32, batch.seq, (int64_t)b.bytes / 4 / batch.seq); }
    void forward(instance &m) {
        REQUIRE(m.s.forward(as(y), &saved, as(x), m.memory.data(), &batch, m.ctx) == TE_OK);
    }
    void backward(instance &m, int accumulate) {
        batch.accumulate = accumulate;
        REQUIRE(m.s.backward(as(dx), as(dy), &saved, m.memory.data(), &batch, m.ctx) == TE_OK);
    }
};
} // namespace

TEST_CASE("the struct of a model has the parameters by name", "[plan]") {
    context c;
    gpt g;
    buffer params(&c.c, gpt_param_bytes());
    REQUIRE(gpt_bind(&g, params.data(), nullptr, &c.c) == TE_OK);
    CHECK(g.qkv.weight.rows == 192);
    CHECK(g.qkv.weight.cols == 64);
    CHECK(std::string(g.fc1.weight.op) == "fc1");
    CHECK(std::string(g.ln1.bias.field) == "bias");
    CHECK(g.ln1.weight.data == params.data());
    CHECK(g.ln1.weight.init == TE_INIT_one);
    CHECK(g.fc2.weight.grad == nullptr);
}

TEST_CASE("micro-batches in flight with the same parameters", "[plan]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    source random(seed);
    context ctx_owner;
    instance m(gpt_subject, &ctx_owner.c);
    m.draw(random);
    REQUIRE(te_context_reserve(&ctx_owner.c, gpt_subject.workspace_bytes(m.memory.data(), 50, &ctx_owner.c)) == TE_OK);
    trip a(gpt_subject, &ctx_owner.c, 50, random), b(gpt_subject, &ctx_owner.c, 17, random);
    const auto reset = [&] {
        for (buffer *z : {&a.y, &a.dx, &a.memory, &b.y, &b.dx, &b.memory, &m.grads}) z->poison();
        set_rng(&ctx_owner.c, 3, 0);
    };
    reset(); // one micro-batch after the other
    a.forward(m), a.backward(m, 0), b.forward(m), b.backward(m, 1);
    const auto ya = a.y.raw(), yb = b.y.raw(), da = a.dx.raw(), db = b.dx.raw(), g = m.grads.raw();
    reset(); // both forwards first: each backward must use the dropout masks of its forward
    a.forward(m), b.forward(m), a.backward(m, 0), b.backward(m, 1);
    CHECK(a.y.raw() == ya);
    CHECK(b.y.raw() == yb);
    CHECK(a.dx.raw() == da);
    CHECK(b.dx.raw() == db);
    CHECK(m.grads.raw() == g);
    CHECK(get_rng(&ctx_owner.c).offset == 2);
}

TEST_CASE("several instances of one model", "[plan]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    source random(seed);
    context ctx_owner;
    instance m(gpt_subject, &ctx_owner.c), n(gpt_subject, &ctx_owner.c);
    m.draw(random), n.draw(random);
    REQUIRE(te_context_reserve(&ctx_owner.c, gpt_subject.workspace_bytes(m.memory.data(), 20, &ctx_owner.c)) == TE_OK);
    trip a(gpt_subject, &ctx_owner.c, 20, random), b(gpt_subject, &ctx_owner.c, 20, random);
    set_rng(&ctx_owner.c, 3, 0);
    a.forward(m), a.backward(m, 0);
    const auto ya = a.y.raw(), da = a.dx.raw(), g = m.grads.raw();
    b.forward(n), b.backward(n, 0);
    const auto yb = b.y.raw(), h = n.grads.raw();
    CHECK(ya != yb);
    set_rng(&ctx_owner.c, 3, 0);
    a.forward(m), b.forward(n), b.backward(n, 0), a.backward(m, 0);
    CHECK(a.y.raw() == ya);
    CHECK(a.dx.raw() == da);
    CHECK(b.y.raw() == yb);
    CHECK(m.grads.raw() == g);
    CHECK(n.grads.raw() == h);
}

TEST_CASE("the same random state gives the same bits, the next one others", "[plan]") {
    const unsigned seed = fresh_seed();
    source random(seed);
    context ctx_owner(7);
    instance m(gpt_subject, &ctx_owner.c);
    m.draw(random);
    REQUIRE(te_context_reserve(&ctx_owner.c, gpt_subject.workspace_bytes(m.memory.data(), 20, &ctx_owner.c)) == TE_OK);
    trip a(gpt_subject, &ctx_owner.c, 20, random);
    a.forward(m);
    const auto first = a.y.raw();
    a.forward(m);
    CHECK(a.y.raw() != first);
    context other(7);
    CHECK(get_rng(&other.c).seed == 7);
    set_rng(&ctx_owner.c, 7, 0);
    a.forward(m);
    CHECK(a.y.raw() == first);
}

TE_DEFINE(declared, bf16, DECLARED)

// A file may remove patterns from the fusion list.
#undef TE_FORWARD_linear_bias
#undef TE_FORWARD_linear_bias_act
MODEL(without_patterns, f32, (linear, l, 37, 53), (bias, b, 53), (gelu, a))
static_assert((int)without_patterns_forward_steps == 2, "linear bias_gelu");
TEST_CASE("a removed pattern is not matched", "[plan]") {
    check(without_patterns_subject, shape(1, 7));
    CHECK(patterns_of(without_patterns_plan()->forward, without_patterns_plan()->forward_count) == "linear bias_gelu");
}
