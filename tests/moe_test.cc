// Mixture of experts: (router, ..), (expert_linear, ..), (expert_bias, ..) and (combine, ..) against the reference, with any routing: experts
// without rows, ties, NaN in the logits.
#include "folder.h"
#include "harness.h"
#include "te/layers.h"
#include "te/ops/activation.h"
#include "te/ops/attention.h"
#include "te/ops/cross_entropy.h"
#include "te/ops/embedding.h"
#include "te/io/packed.h"
#include "te/moe.h"
#include "te/ops/head_norm.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/recompute.h"
#include "te/ops/rope.h"
#include "te/plan/freeze.h"

/* [mixtral] */
#define MIXTRAL_EXPERTS(H, F, E)                                                                                      \
    (fork, x), (rmsnorm, norm, H), (router, r, H, E, (top_k, 2), (renormalise, 1)),                                   \
    (expert_linear, up, H, 2 * (F), E), (swiglu, act), (expert_linear, down, F, H, E), (combine, r), (add, x)
/* [mixtral] */

#define MOE_LISTS(X, dtype)                                                                                                                      \
    X(alone_##dtype, dtype, (router, r, 24, 5, (top_k, 2)), (combine, r))                                                                        \
    X(one_##dtype, dtype, (router, r, 37, 1), (combine, r))                                                                                       \
    X(all_##dtype, dtype, (router, r, 16, 4, (top_k, 4), (score, sigmoid)), (combine, r))                                                        \
    X(mixtral_##dtype, dtype, MIXTRAL_EXPERTS(32, 24, 8))                                                                                        \
    X(biased_##dtype, dtype, (router, r, 40, 3, (top_k, 1), (score, softmax_of_chosen)), (expert_linear, up, 40, 72, 3), (expert_bias, b, 72, 3), \
      (gelu, act), (expert_linear, down, 72, 40, 3), (expert_bias, c, 40, 3), (combine, r), (bias, d, 40))                                       \
    X(grouped_##dtype, dtype, (fork, x), (router, r, 16, 12, (top_k, 3), (score, sigmoid), (choice_bias, 1), (groups, 4), (groups_kept, 2),      \
      (renormalise, 1), (factor, 2.5f)), (expert_linear, up, 16, 16, 12), (silu, act), (combine, r), (add, x))                                   \
    X(losses_##dtype, dtype, (linear, l, 24, 24), (router, r, 24, 6, (top_k, 2), (aux_loss, 0.3f), (z_loss, 0.2f)), (expert_linear, up, 24, 8, 6), \
      (combine, r), (linear, h, 8, 16))                                                                                                          \
    X(gated_##dtype, dtype, (router, r, 16, 10, (top_k, 3), (score, sigmoid), (bias, 1), (choice_bias, 1)), (expert_linear, up, 16, 16, 10),     \
      (combine, r))                                                                                                                              \
    X(chosen_##dtype, dtype, (router, r, 24, 70, (top_k, 6), (score, softmax_of_chosen), (bias, 1), (factor, 0.5f)), (rmsnorm, n, 24), (fork, x), \
      (expert_linear, up, 24, 24, 70), (tanh, t), (add, x), (combine, r))

// Lists with branches and regions around the experts.
#define MOE_BRANCHES(X)                                                                                                                          \
    X(branches, f32, (router, r, 24, 4, (top_k, 2)), (fork, z), (expert_linear, gate, 24, 16, 4), (silu, s), (fork, g), (load, z),               \
      (expert_linear, up, 24, 16, 4), (mul, g), (expert_linear, down, 16, 24, 4), (combine, r), (bias, b, 24))                                   \
    X(shared_expert, f32, (fork, x), (rmsnorm, n, 24), (fork, h), (router, r, 24, 4, (top_k, 2)), (expert_linear, up, 24, 16, 4), (gelu, a),     \
      (expert_linear, down, 16, 24, 4), (combine, r), (fork, routed), (load, h), (linear, s1, 24, 32), (gelu, sa), (linear, s2, 32, 24),         \
      (add, routed), (add, x))                                                                                                                   \
    X(two_layers, f32, (fork, x), (router, r, 16, 4, (top_k, 2)), (expert_linear, up, 16, 24, 4), (gelu, a), (expert_linear, down, 24, 16, 4),   \
      (combine, r), (add, x), (fork, y), (rmsnorm, n, 16), (router, q, 16, 6, (top_k, 3), (score, sigmoid)), (expert_linear, up2, 16, 8, 6),     \
      (tanh, t), (combine, q), (linear, l, 8, 16), (add, y))                                                                                     \
    X(region, bf16, (linear, l, 24, 32), (recompute, p), (router, r, 32, 8, (top_k, 2)), (expert_linear, up, 32, 2 * 24, 8),                     \
      (expert_bias, b, 48, 8), (swiglu, act), (expert_linear, down, 24, 32, 8), (combine, r), (end_recompute, p), (linear, m, 32, 24))           \
    X(region_of_experts, f32, (rmsnorm, n, 24), (router, r, 24, 4, (top_k, 2)), (recompute, p), (expert_linear, up, 24, 16, 4), (gelu, a),       \
      (expert_linear, down, 16, 24, 4), (end_recompute, p), (combine, r))                                                                        \
    X(region_of_block, f32, (recompute, p), (fork, x), (rmsnorm, n, 24), (router, r, 24, 4, (top_k, 2)), (expert_linear, up, 24, 16, 4),         \
      (gelu, a), (expert_linear, down, 16, 24, 4), (combine, r), (add, x), (end_recompute, p), (bias, b, 24))                                    \
    X(language_model, f32, (embedding, tokens, 40, 32), (fork, x), (rmsnorm, n1, 32), (linear, qkv, 32, 4 * 16), (rope, p, 2, 1, 16),            \
      (attention, attn, 2, 1, 16), (linear, proj, 32, 32), (add, x), (fork, y), (rmsnorm, n2, 32), (router, r, 32, 8, (top_k, 2),                \
      (renormalise, 1), (aux_loss, 0.01f)), (expert_linear, up, 32, 2 * 16, 8), (swiglu, act), (expert_linear, down, 16, 32, 8), (combine, r),   \
      (add, y), (rmsnorm, n3, 32), (linear, head, 32, 40), (cross_entropy, loss, 40))                                                            \
    X(mixtral_block, f32, TE_MIXTRAL_BLOCK(b0, 32, 24, 2, 1, 16, 10000.0f, 8, 2))                                                                \
    X(qwen3_moe_block, f32, TE_QWEN3_MOE_BLOCK(b0, 32, 16, 2, 1, 16, 10000.0f, 8, 3))                                                            \
    X(gpt_oss_block, f32, TE_GPT_OSS_BLOCK(b0, 32, 16, 2, 1, 16, 3, 5, 2, (base, 10000.0f), (scaling, yarn), (factor, 4.0f),                      \
      (original_length, 16), (truncate, 0)))                                                                                                     \
    X(weighs_input, f32, (router, r, 24, 5, (top_k, 2), (score, sigmoid), (weigh, input)), (expert_linear, up, 24, 16, 5), (gelu, a),            \
      (expert_linear, down, 16, 24, 5), (combine, r), (bias, b, 24))                                                                             \
    X(weighs_input_alone, f32, (linear, l, 20, 20), (router, r, 20, 4, (top_k, 2), (renormalise, 1), (weigh, input)), (gelu, a), (combine, r))   \
    X(weighs_one_product, f32, (fork, x), (router, r, 16, 4, (top_k, 2), (score, softmax_of_chosen), (weigh, input)),                            \
      (expert_linear, up, 16, 16, 4), (combine, r), (add, x))                                                                                    \
    X(llama4_block, f32, TE_LLAMA4_BLOCK(b0, 32, 16, 2, 1, 16, 4, 1, (base, 10000.0f)))                                                          \
    X(llama4_block_no_rope, f32, TE_LLAMA4_BLOCK_NO_ROPE(b0, 32, 16, 2, 1, 16, 4, 2))                                                            \
    X(mixtral_block_16, bf16, TE_MIXTRAL_BLOCK(b0, 32, 24, 2, 1, 16, 10000.0f, 4, 1))

// Widths and numbers of rows for which the kernels of Hopper run, in tiles that are not full; and groups with few rows.
#define MOE_WIDE(X, dtype)                                                                                                                       \
    X(wide_##dtype, dtype, (router, r, 64, 3, (top_k, 2)), (expert_linear, up, 64, 2 * 192, 3), (swiglu, act), (expert_linear, down, 192, 72, 3), \
      (combine, r))                                                                                                                              \
    X(deep_##dtype, dtype, (router, r, 128, 4, (top_k, 1), (renormalise, 1)), (expert_linear, up, 128, 64, 4), (gelu, act),                      \
      (expert_linear, down, 64, 264, 4), (combine, r))

#define MOE_MODEL(name, dtype, ...) MODEL(name, dtype, __VA_ARGS__)
#define MOE_SUBJECT(name, ...) &name##_subject,
MOE_LISTS(MOE_MODEL, f32)
MOE_LISTS(MOE_MODEL, bf16)
MOE_LISTS(MOE_MODEL, f16)
MOE_WIDE(MOE_MODEL, bf16)
MOE_WIDE(MOE_MODEL, f16)
MOE_BRANCHES(MOE_MODEL)
UNFUSED(unfused, bf16, (router, r, 24, 5, (top_k, 2)), (expert_linear, up, 24, 40, 5), (expert_linear, down, 40, 24, 5), (combine, r))

TEST_CASE("routers and experts", "[moe]") {
    for (const subject *s : {MOE_LISTS(MOE_SUBJECT, f32) MOE_LISTS(MOE_SUBJECT, bf16) MOE_LISTS(MOE_SUBJECT, f16)}) {
        check(*s, shape(1, 1));
        check(*s, shape(2, 5));
        const bool is_f32 = s->plan()->dtype == TE_f32;
        if (is_f32) check(*s, shape(1, 131)); // several chunks of the choice
        if (is_f32) check_gradients_of_reference(*s, shape(1, 3));
        if (is_f32) check_gradients_of_reference(*s, shape(2, 4));
    }
}

TEST_CASE("experts of more rows and columns than a tile", "[moe]") {
    for (const subject *s : {MOE_WIDE(MOE_SUBJECT, bf16) MOE_WIDE(MOE_SUBJECT, f16)}) {
        check(*s, shape(1, 3));
        check(*s, shape(1, 60));
        check(*s, shape(2, 75));
        if (!brief()) check(*s, shape(3, 131));
    }
}

TEST_CASE("experts among branches and in recompute regions", "[moe]") {
    for (const subject *s : {MOE_BRANCHES(MOE_SUBJECT) & unfused_subject}) {
        check(*s, shape(1, 1));
        check(*s, shape(2, 9));
        if (s->plan()->dtype == TE_f32) check(*s, shape(1, 70));
        if (s->plan()->dtype == TE_f32 && !s->plan()->region_count) check_gradients_of_reference(*s, shape(1, 3));
    }
}

TEST_CASE("forward saves neither the routed rows of a router nor the rows that a combine sums", "[moe]") {
    // a routed row: the input and output of swiglu, 4 + 8 / 2 + 1 numbers of the routing; a row: the norm's output and its statistics
    const size_t routed = (48 + 24) * 4 + 9 * 4, row = 32 * 4 + 4;
    CHECK(te_plan_saved_bytes(mixtral_f32_plan(), TE_ROW_PAD) <= (2 * routed + row) * TE_ROW_PAD + TE_ALIGN);
}

namespace {

// A list with a router of logits that the test chooses: x is [rows, 8], and the router's weight is the unit matrix, so logit e is x[e].
TE_SEQUENTIAL(tops, f32, (router, r, 8, 8, (top_k, 3)), (expert_linear, up, 8, 8, 8), (combine, r))
TE_SEQUENTIAL(tops_biased, f32, (router, r, 8, 8, (top_k, 3), (score, sigmoid), (choice_bias, 1)), (expert_linear, up, 8, 8, 8), (combine, r))

struct chosen_logits {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    tops m;
    buffer params, grads, x, y, dy, dx, memory, workspace;
    te_batch batch;
    te_saved saved;
    size_t rows;
    reference::vec experts; // expert e maps every row to (e + 1) in each column: sum of weights times (e + 1), with x summed to 1
    explicit chosen_logits(const reference::vec &logits)
        : params(ctx, tops_param_bytes()), grads(ctx, tops_grad_bytes()), x(ctx, logits.size() * 4), y(ctx, x.bytes), dy(ctx, x.bytes), dx(ctx, x.bytes),
          memory(ctx, tops_saved_bytes((int64_t)logits.size() / 8)), workspace(ctx, 1 << 20), rows(logits.size() / 8) {
        memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved);
        REQUIRE(tops_bind(&m, params.data(), (float *)grads.data(), ctx) == TE_OK);
        reference::vec unit(64, 0.0), weight(512);
        for (size_t i = 0; i < 8; i++) unit[i * 8 + i] = 1;
        for (size_t e = 0; e < 8; e++)
            for (size_t i = 0; i < 64; i++) weight[e * 64 + i] = (double)(e + 1) * 0.125 * (double)(1 + i % 3);
        REQUIRE(te_copy(ctx, m.r.weight.data, numbers::stored(unit, TE_f32).data(), 256) == TE_OK);
        REQUIRE(te_copy(ctx, m.up.weight.data, numbers::stored(weight, TE_f32).data(), 2048) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        x.write(logits, TE_f32), dy.write(reference::vec(logits.size(), 0.5), TE_f32);
        batch.batch = 1, batch.seq = (int)rows, saved.memory = memory.data(), saved.bytes = memory.bytes;
        REQUIRE(tops_workspace_bytes(&m, (int64_t)rows, ctx) <= workspace.bytes);
        ctx->workspace = workspace.data(), ctx->workspace_bytes = workspace.bytes;
    }
    ~chosen_logits() { ctx->workspace = nullptr, ctx->workspace_bytes = 0; }
    te_tensor of(const buffer &b) const { return te_matrix(b.data(), TE_f32, (int64_t)rows, 8); }
    void run() {
        REQUIRE(tops_forward(of(y), &saved, of(x), &m, &batch, ctx) == TE_OK);
        REQUIRE(tops_backward(of(dx), of(dy), &saved, &m, &batch, ctx) == TE_OK);
    }
    // The experts of each token in the order of the choice, as forward has saved them: behind the logits and the weights.
    std::vector<int32_t> chosen() const {
        std::vector<int32_t> all(rows * 3);
        const std::vector<uint8_t> raw = memory.raw();
        memcpy(all.data(), raw.data() + TE_ALIGN + rows * (8 + 3) * 4, all.size() * 4);
        return all;
    }
};

} // namespace

TEST_CASE("of equal scores the lower expert number is chosen, and a choice is ordered by score", "[moe]") {
    const double low = -1e30;
    chosen_logits c({0, 0, 0, 0, 0, 0, 0, 0, /**/ 1, 3, 2, 3, 1, 3, 0, 0, /**/ -1, -2, -1, 4, -1, -1, -1, -1, /**/ -0.0, 0, -0.0, 0, -5, -5, -5, -5,
                     /**/ low, low, 2, low, low, low, low, low});
    c.run();
    CHECK(c.chosen() == std::vector<int32_t>{0, 1, 2, 1, 3, 5, 3, 0, 2, 0, 1, 2, 2, 0, 1});
}

TEST_CASE("an expert without rows has the gradient 0, and one with all rows the whole", "[moe]") {
    reference::vec logits;
    for (size_t t = 0; t < 200; t++)
        for (size_t e = 0; e < 8; e++) logits.push_back(e == 6 || e == 2 || e == 3 ? 2 + 0.01 * (double)(t % 7) : -1);
    chosen_logits c(logits);
    c.run();
    const reference::vec g = numbers::loaded(c.grads.raw().data(), (size_t)(c.m.up.weight.grad - (float *)c.grads.data()), 512, TE_f32);
    for (size_t e = 0; e < 8; e++) {
        double sum = 0;
        for (size_t i = 0; i < 64; i++) sum += std::fabs(g[e * 64 + i]);
        CHECK((sum > 0) == (e == 6 || e == 2 || e == 3));
    }
    for (double v : c.y.read(TE_f32)) CHECK(std::isfinite(v));
}

TEST_CASE("a NaN among the logits of a token stays with that token", "[moe]") {
    reference::vec logits;
    source random(fresh_seed());
    for (size_t t = 0; t < 80; t++)
        for (double v : random.draw(8, TE_f32)) logits.push_back(v);
    chosen_logits sound(logits);
    sound.run();
    for (size_t k = 0; k < 3; k++) {
        reference::vec bad = logits;
        for (size_t e = 0; e < 8; e++)
            if (k == 0 ? e == 5 : k == 1 || e != 3) bad[17 * 8 + e] = NAN;
        if (k == 2) bad[64 * 8] = INFINITY; // exp(inf - inf)
        chosen_logits c(bad);
        c.run();
        const reference::vec y = c.y.read(TE_f32), expected = sound.y.read(TE_f32), dx = c.dx.read(TE_f32), expected_dx = sound.dx.read(TE_f32);
        for (size_t t = 0; t < 80; t++)
            for (size_t i = 0; i < 8; i++) {
                const size_t at = t * 8 + i;
                const bool is_bad = t == 17 || (k == 2 && t == 64);
                CAPTURE(k, t, i);
                if (is_bad) CHECK(std::isnan(y[at]));
                else CHECK(std::fabs(y[at] - expected[at]) <= 1e-5 * (1 + std::fabs(expected[at])));
                if (is_bad) CHECK(std::isnan(dx[at]));
                else CHECK(std::fabs(dx[at] - expected_dx[at]) <= 1e-5 * (1 + std::fabs(expected_dx[at])));
            }
        const std::vector<int32_t> chosen = c.chosen();
        for (size_t j = 0; j < chosen.size(); j++) CHECK((chosen[j] >= 0 && chosen[j] < 8));
        if (k == 0) CHECK((chosen[17 * 3] != 5 && chosen[17 * 3 + 1] != 5 && chosen[17 * 3 + 2] != 5)); // it counts as -infinity
        if (k == 1) CHECK((chosen[17 * 3] == 0 && chosen[17 * 3 + 1] == 1 && chosen[17 * 3 + 2] == 2));
    }
}

TEST_CASE("too many routed rows are refused", "[moe]") {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    tops m;
    buffer params(ctx, tops_param_bytes()), x(ctx, 64);
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    REQUIRE(tops_bind(&m, params.data(), nullptr, ctx) == TE_OK);
    batch.batch = 1 << 14, batch.seq = 1 << 15;
    const te_tensor t = te_matrix(x.data(), TE_f32, 1 << 29, 8);
    CHECK(tops_infer(t, t, &m, &batch, ctx) == TE_ERROR_OVERFLOW);
    CHECK(std::string(te_last_error(ctx)).find("536870912 tokens with 3 experts each are too many rows for (router, r)") != std::string::npos);
}

TEST_CASE("with frozen experts or a frozen router, the other gradients are the same", "[moe]") {
    for (int k = 0; k < 2; k++) {
        const unsigned seed = fresh_seed();
        std::vector<uint8_t> dx[2], other[2];
        for (int frozen = 0; frozen < 2; frozen++) {
            context ctx_owner;
            te_context *ctx = &ctx_owner.c;
            instance m(mixtral_f32_subject, ctx);
            source random(seed);
            m.draw(random);
            buffer x(ctx, 20 * 32 * 4), y(ctx, x.bytes), d(ctx, x.bytes), dy(ctx, x.bytes), memory(ctx, mixtral_f32_saved_bytes(20));
            buffer workspace(ctx, mixtral_f32_subject.workspace_bytes(m.memory.data(), 20, ctx));
            x.write(random.draw(20 * 32, TE_f32), TE_f32), dy.write(random.draw(20 * 32, TE_f32), TE_f32);
            te_batch batch;
            te_saved saved;
            memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved);
            batch.batch = 1, batch.seq = 20, saved.memory = memory.data(), saved.bytes = memory.bytes;
            ctx->workspace = workspace.data(), ctx->workspace_bytes = workspace.bytes;
            if (frozen) REQUIRE(te_freeze(m.model(), k ? "r" : "up", nullptr, ctx) == TE_OK);
            const te_tensor tx = te_matrix(x.data(), TE_f32, 20, 32), ty = te_matrix(y.data(), TE_f32, 20, 32), td = te_matrix(d.data(), TE_f32, 20, 32), tg = te_matrix(dy.data(), TE_f32, 20, 32);
            REQUIRE(mixtral_f32_subject.forward(ty, &saved, tx, m.memory.data(), &batch, ctx) == TE_OK);
            REQUIRE(mixtral_f32_subject.backward(td, tg, &saved, m.memory.data(), &batch, ctx) == TE_OK);
            dx[frozen] = d.raw();
            const std::vector<uint8_t> all = m.grads.raw();
            const mixtral_f32 *model = (const mixtral_f32 *)m.memory.data();
            const long at = (model->down.weight.grad - (float *)m.grads.data()) * 4;
            other[frozen].assign(all.begin() + at, all.begin() + at + 24 * 32 * 8 * 4);
            const te_param *q = k ? &model->r.weight : &model->up.weight;
            const size_t from = (size_t)(q->grad - (float *)m.grads.data()) * 4;
            CHECK((numbers::others(all.data() + from, (size_t)(q->rows * q->cols) * 4, 0xff) == 0) == (frozen == 1));
            ctx->workspace = nullptr, ctx->workspace_bytes = 0;
        }
        CHECK(dx[0] == dx[1]);
        CHECK(other[0] == other[1]);
    }
}

TEST_CASE("a choice bias changes the choice, not the weights, and has the gradient 0", "[moe]") {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    tops_biased m;
    buffer params(ctx, tops_biased_param_bytes()), grads(ctx, tops_biased_grad_bytes()), x(ctx, 32), y(ctx, 32), dy(ctx, 32), memory(ctx, tops_biased_saved_bytes(1));
    te_batch batch;
    te_saved saved;
    memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved);
    REQUIRE(tops_biased_bind(&m, params.data(), (float *)grads.data(), ctx) == TE_OK);
    reference::vec unit(64, 0.0), bias(8, 0.0);
    for (size_t i = 0; i < 8; i++) unit[i * 8 + i] = 1;
    bias[7] = 2, bias[0] = -1;
    params.write(reference::vec(params.bytes / 4, 0.0), TE_f32);
    REQUIRE(te_copy(ctx, m.r.weight.data, numbers::stored(unit, TE_f32).data(), 256) == TE_OK);
    REQUIRE(te_copy(ctx, m.r.choice_bias.data, numbers::stored(bias, TE_f32).data(), 32) == TE_OK);
    REQUIRE(te_synchronize(ctx) == TE_OK);
    x.write({3, 1, 0.5, 0, -1, -2, -3, -4}, TE_f32), dy.write(reference::vec(8, 1.0), TE_f32);
    batch.batch = batch.seq = 1, saved.memory = memory.data(), saved.bytes = memory.bytes;
    REQUIRE(te_context_reserve(ctx, tops_biased_workspace_bytes(&m, 1, ctx)) == TE_OK);
    const te_tensor tx = te_matrix(x.data(), TE_f32, 1, 8), ty = te_matrix(y.data(), TE_f32, 1, 8), td = te_matrix(dy.data(), TE_f32, 1, 8);
    REQUIRE(tops_biased_forward(ty, &saved, tx, &m, &batch, ctx) == TE_OK);
    REQUIRE(tops_biased_backward(te_none(), td, &saved, &m, &batch, ctx) == TE_OK);
    const std::vector<uint8_t> raw = memory.raw();
    float weight[3];
    int32_t expert[3];
    memcpy(weight, raw.data() + TE_ALIGN + 32, 12), memcpy(expert, raw.data() + TE_ALIGN + 44, 12);
    CHECK((expert[0] == 7 && expert[1] == 1 && expert[2] == 2));
    const double logit[3] = {-4, 1, 0.5};
    for (int j = 0; j < 3; j++) CHECK(std::fabs((double)weight[j] - reference::sigmoid(logit[j])) < 1e-6);
    const reference::vec g = numbers::loaded(grads.raw().data(), (size_t)(m.r.choice_bias.grad - (float *)grads.data()), 8, TE_f32);
    for (double e : g) CHECK(e == 0);
    // the experts 7, 1 and 2 have a row each, the mean is 3 / 8
    buffer counts(ctx, 32);
    counts.write(reference::vec(8, 0.0), TE_f32);
    REQUIRE(te_router_counts((float *)counts.data(), &saved, "r", ctx) == TE_OK);
    REQUIRE(te_router_counts((float *)counts.data(), &saved, "r", ctx) == TE_OK); // two micro-batches
    CHECK(counts.read(TE_f32) == reference::vec{0, 2, 2, 0, 0, 0, 0, 2});
    REQUIRE(te_router_balance(&m.r.choice_bias, (const float *)counts.data(), 0.25f, ctx) == TE_OK);
    const size_t at = (size_t)((char *)m.r.choice_bias.data - (char *)params.data()) / 4;
    CHECK(params.read(TE_f32, at, 8) == reference::vec{-0.75, -0.25, -0.25, 0.25, 0.25, 0.25, 0.25, 1.75});
    CHECK(te_router_counts((float *)counts.data(), &saved, "q", ctx) == TE_ERROR_VALUE);
    CHECK(std::string(te_last_error(ctx)).find("has no (router, q, ..)") != std::string::npos);
    CHECK(te_router_counts(nullptr, &saved, "r", ctx) == TE_ERROR_NULL);
    CHECK(te_router_balance(&m.r.weight, (const float *)counts.data(), 0.25f, ctx) == TE_ERROR_VALUE);
    te_saved none;
    memset(&none, 0, sizeof none);
    CHECK(te_router_counts((float *)counts.data(), &none, "r", ctx) == TE_ERROR_STATE);
}

TEST_CASE("a tensor of all experts is loaded: transposed, with gate and up in turns, and a bias", "[moe]") {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    const folder f;
    const std::string file = f / "experts.safetensors";
    const size_t experts = 5, hidden = 32, inner = 16;
    instance m(gpt_oss_block_subject, ctx);
    source random(fresh_seed());
    const gpt_oss_block *block = (const gpt_oss_block *)m.memory.data();
    for (const int form : {0, (int)TE_PACKED_TRANSPOSED, (int)TE_PACKED_INTERLEAVED, TE_PACKED_TRANSPOSED | TE_PACKED_INTERLEAVED}) {
        m.draw(random); // other values than those of the file
        const bool transposed = form & TE_PACKED_TRANSPOSED, turns = form & TE_PACKED_INTERLEAVED;
        // element (expert, row of gate or up, column) of the parameter is at this place of the file
        const auto row_of = [&](size_t r) { return turns ? r % inner * 2 + r / inner : r; };
        const auto up_at = [&](size_t e, size_t r, size_t c) {
            return transposed ? (e * hidden + c) * 2 * inner + row_of(r) : (e * 2 * inner + row_of(r)) * hidden + c;
        };
        reference::vec up = random.draw(experts * 2 * inner * hidden, TE_f32), bias = random.draw(experts * 2 * inner, TE_f32);
        const std::vector<uint8_t> up_bytes = numbers::stored(up, TE_f32), bias_bytes = numbers::stored(bias, TE_f32);
        const int64_t shape[3] = {(int64_t)experts, (int64_t)(transposed ? hidden : 2 * inner), (int64_t)(transposed ? 2 * inner : hidden)};
        const te_safetensor in_file[] = {te_safetensor_of("up", TE_SAFETENSORS_F32, 3, shape, (void *)up_bytes.data()),
                                         te_safetensor_matrix("up_bias", TE_f32, (int64_t)experts, 2 * (int64_t)inner, (void *)bias_bytes.data())};
        REQUIRE(te_safetensors_write(file.c_str(), in_file, 2, nullptr, 0, ctx) == TE_OK);
        const te_packed parts[] = {{"up", "b0_fc1", "weight", 0, form | TE_PACKED_EXPERTS},
                                   {"up_bias", "b0_fc1_bias", "bias", 0, (form & ~TE_PACKED_TRANSPOSED) | TE_PACKED_EXPERTS}};
        te_packed_list list = te_packed_none();
        REQUIRE(te_packed_add(&list, m.model(), parts, 2, "", ctx) == TE_OK);
        te_safetensors s;
        REQUIRE(te_safetensors_open(&s, file.c_str(), ctx) == TE_OK);
        REQUIRE(te_safetensors_load(&s, list.tensor, list.count, 1, ctx) == TE_OK);
        const auto read = [&](const te_param &p) {
            std::vector<uint8_t> raw((size_t)(p.rows * p.cols) * 4);
            REQUIRE((te_copy(ctx, raw.data(), p.data, raw.size()) == TE_OK && te_synchronize(ctx) == TE_OK));
            return numbers::loaded(raw.data(), 0, raw.size() / 4, TE_f32);
        };
        const reference::vec w = read(block->b0_fc1.weight), b = read(block->b0_fc1_bias.bias);
        int wrong = 0;
        for (size_t e = 0; e < experts; e++)
            for (size_t r = 0; r < 2 * inner; r++) {
                wrong += b[e * 2 * inner + r] != bias[e * 2 * inner + row_of(r)];
                for (size_t c = 0; c < hidden; c++) wrong += w[(e * 2 * inner + r) * hidden + c] != up[up_at(e, r, c)];
            }
        CAPTURE(form);
        CHECK(wrong == 0);
        te_packed_free(&list);
        // the file has another number of experts
        list.tensor = nullptr, list.count = 0;
        const int64_t wrong_shape[3] = {shape[0] - 1, shape[1], shape[2]};
        const te_safetensor fewer = te_safetensor_of("up", TE_SAFETENSORS_F32, 3, wrong_shape, (void *)up_bytes.data());
        REQUIRE(te_safetensors_write(file.c_str(), &fewer, 1, nullptr, 0, ctx) == TE_OK);
        te_safetensors_close(&s);
        REQUIRE(te_safetensors_open(&s, file.c_str(), ctx) == TE_OK);
        REQUIRE(te_packed_add(&list, m.model(), parts, 1, "", ctx) == TE_OK);
        CHECK(te_safetensors_load(&s, list.tensor, list.count, 1, ctx) == TE_ERROR_SHAPE);
        CHECK(std::string(te_last_error(ctx)).find("is F32 [4, ") != std::string::npos);
        CHECK(std::string(te_last_error(ctx)).find("it should be F32 [5, ") != std::string::npos);
        te_safetensors_close(&s);
        te_packed_free(&list);
    }
    const auto refuse = [&](te_packed part, const char *word) {
        te_packed_list list = te_packed_none();
        CHECK(te_packed_add(&list, m.model(), &part, 1, "", ctx) == TE_ERROR_VALUE);
        CAPTURE(te_last_error(ctx));
        CHECK(std::string(te_last_error(ctx)).find(word) != std::string::npos);
        CHECK(list.count == 0);
    };
    refuse({"up", "b0_fc1", "weight", 0, 8}, "8 is no sum of te_packed_form");
    refuse({"up", "b0_fc1", "weight", 0, TE_PACKED_INTERLEAVED}, "INTERLEAVED without EXPERTS");
    refuse({"up", "b0_fc1", "weight", 64, TE_PACKED_EXPERTS}, "the table states a number of rows");
    refuse({"up", "b0_qkv", "weight", 0, TE_PACKED_EXPERTS}, "b0_qkv.weight is no parameter of experts");
    refuse({"up", "b0_router", "weight", 0, TE_PACKED_EXPERTS}, "b0_router.weight is no parameter of experts");
    refuse({"up", "b0_fc1_bias", "bias", 0, TE_PACKED_EXPERTS | TE_PACKED_TRANSPOSED}, "a bias is not transposed");
}

TEST_CASE("a file with a tensor for each expert is loaded into one weight, and written", "[moe]") {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    const folder f;
    const std::string file = f / "experts.safetensors";
    std::vector<uint8_t> before, after;
    for (int pass = 0; pass < 2; pass++) {
        instance m(mixtral_block_subject, ctx);
        source random(fresh_seed() + (unsigned)pass); // TE_SEED may fix the seed; the second model has other weights
        m.draw(random);
        // the names of Mixtral: w1 is the gate, w3 goes up, w2 down
        std::vector<std::string> names;
        for (int e = 0; e < 8; e++)
            for (int k : {1, 3, 2}) names.push_back("experts." + std::to_string(e) + ".w" + std::to_string(k) + ".weight");
        std::vector<te_packed> parts = {{"gate.weight", "b0_router", "weight", 0, 0}};
        for (size_t i = 0; i < names.size(); i++)
            parts.push_back({names[i].c_str(), i % 3 == 2 ? "b0_fc2" : "b0_fc1", "weight", i % 3 == 2 ? 32 : 24, 0});
        te_packed_list list = te_packed_none();
        REQUIRE(te_packed_add(&list, m.model(), parts.data(), (int)parts.size(), "model.layers.0.block_sparse_moe.", ctx) == TE_OK);
        CHECK(list.count == 25);
        const te_param *fc1 = &((mixtral_block *)m.memory.data())->b0_fc1.weight, *fc2 = &((mixtral_block *)m.memory.data())->b0_fc2.weight;
        CHECK((fc1->rows == 8 * 48 && fc1->cols == 32 && fc2->rows == 8 * 32 && fc2->cols == 24));
        const auto bytes = [&] {
            std::vector<uint8_t> v((size_t)(fc1->rows * fc1->cols + fc2->rows * fc2->cols) * 4);
            const size_t first = (size_t)(fc1->rows * fc1->cols) * 4;
            REQUIRE((te_copy(ctx, v.data(), fc1->data, first) == TE_OK && te_copy(ctx, v.data() + first, fc2->data, v.size() - first) == TE_OK));
            REQUIRE(te_synchronize(ctx) == TE_OK);
            return v;
        };
        if (!pass) {
            before = bytes();
            REQUIRE(te_safetensors_write(file.c_str(), list.tensor, list.count, nullptr, 0, ctx) == TE_OK);
        } else {
            CHECK(bytes() != before);
            te_safetensors s;
            REQUIRE(te_safetensors_open(&s, file.c_str(), ctx) == TE_OK);
            const te_safetensor *w = te_safetensors_find(&s, "model.layers.0.block_sparse_moe.experts.5.w3.weight");
            REQUIRE(w);
            CHECK((w->shape[0] == 24 && w->shape[1] == 32));
            REQUIRE(te_safetensors_load(&s, list.tensor, list.count, 1, ctx) == TE_OK);
            te_safetensors_close(&s);
            CHECK(bytes() == before);
        }
        te_packed_free(&list);
    }
}
