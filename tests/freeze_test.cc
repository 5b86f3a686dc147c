// freeze_test.cc -- frozen parameters. Whichever parameters are frozen, dx and the gradients of the others keep their bits, and the
// gradient memory of the frozen ones is not touched. Also the mean loss over the rows that have a label.
#include <algorithm>

#include "harness.h"
#include "te/te.h"

// Backward patterns that sum the gradients of a bias, a norm, a mul_param and dyt's three parameters; attention with the bias in front of
// it; a linear and a fork in one step.
TE_SEQUENTIAL(stream, f32, (gelu, first), (fork, x1), (layernorm, ln, 24), (linear, qkv, 24, 72), (bias, qkv_b, 72), (attention, at, 3, 3, 8), (linear, proj, 24, 24), (bias, proj_b, 24),
              (mul_param, scale1, 24), (add, x1), (fork, x2), (dyt, dy, 24), (linear, fc1, 24, 40), (bias, fc1_b, 40), (swiglu, act), (linear, fc2, 20, 24), (bias, fc2_b, 24), (add, x2),
              (fork, x3), (linear, out, 24, 16), (mul_param, one, 1), (fork, y1), (load, x3), (linear, low, 24, 3), (linear, high, 3, 16), (add, y1))
// From tokens to the loss: embedding, positions, head norms with rope, sinks, a recompute region, a tied head.
TE_SEQUENTIAL(words, f32, (embedding, wte, 29, 16), (positions, wpe, 12, 16), (recompute, r), (rmsnorm, ln, 16), (linear, qkv, 16, 48), (head_norm, heads, 2, 2, 8), (rope, rot, 2, 2, 8),
              (attention, at, 2, 2, 8, (sinks, 1)), (linear, proj, 16, 16), (end_recompute, r), (gelu, act), (tied_linear, lm, 16, 29), (cross_entropy, loss, 29))
TE_SEQUENTIAL(edged, bf16, (input, side, 16), (linear, a, 16, 16), (bias, a_b, 16), (gelu, g), (add, side), (linear, b, 16, 16))
TE_SEQUENTIAL(fp8_gelu, (bf16, (recipe, fp8_delayed)), (rmsnorm, n, 32), (linear, a, 32, 48), (bias, a_b, 48), (gelu, g), (linear, b, 48, 32))
TE_SEQUENTIAL(dropped, (bf16, (recipe, fp8_delayed)), (linear, a, 32, 48), (bias, a_b, 48), (dropout, d, 0.2f), (linear, b, 48, 32), (bias, b_b, 32))
#define TE_FORWARD_linear_cross_entropy TE_FUSED
#define TE_BACKWARD_cross_entropy_linear TE_FUSED
TE_SEQUENTIAL(head, bf16, (rmsnorm, n, 16), (linear, lm, 16, 40), (cross_entropy, loss, 40))
// Lists with linears that are frozen at run time (te_freeze) or in the list (frozen_linear): behind a norm, behind a gated op, beside a
// branch that trains, in a recompute region; with a loss; in FP8.
#define ADAPTED(LINEAR)                                                                                                                          \
    (rmsnorm, n, 24), (LINEAR, up, 24, 80), (bias, up_b, 80), (swiglu, act), (LINEAR, down, 40, 24), (fork, x), (LINEAR, w, 24, 24), (fork, y), \
        (load, x), (linear, low, 24, 3), (linear, high, 3, 24), (add, y), (recompute, r), (rmsnorm, n2, 24), (LINEAR, fc, 24, 32), (silu, s),    \
        (LINEAR, out, 32, 16), (end_recompute, r), (scale, half, 0.5f)
#define TO_LOSS(LINEAR) (rmsnorm, n, 16), (LINEAR, lm, 16, 40), (cross_entropy, loss, 40)
// No gelu here: where backward does not recompute it, forward uses cuBLASLt's gelu, which has other bits.
#define FP8_SILU(LINEAR) (rmsnorm, n, 32), (LINEAR, a, 32, 48), (bias, a_b, 48), (silu, g), (LINEAR, b, 48, 32), (bias, b_b, 32), (dropout, d, 0.2f)
TE_SEQUENTIAL(adapted, f32, ADAPTED(linear))
TE_SEQUENTIAL(adapted_fixed, f32, ADAPTED(frozen_linear))
TE_SEQUENTIAL(to_loss, bf16, TO_LOSS(linear))
TE_SEQUENTIAL(to_loss_fixed, bf16, TO_LOSS(frozen_linear))
TE_SEQUENTIAL(fp8_silu, (bf16, (recipe, fp8_delayed)), FP8_SILU(linear))
TE_SEQUENTIAL(fp8_silu_fixed, (bf16, (recipe, fp8_delayed)), FP8_SILU(frozen_linear))

namespace {

typedef std::vector<uint8_t> bytes;

// A list with its memory. The workspace has the size that te_plan_workspace_bytes returns while no parameter is frozen.
struct list {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    const te_plan *plan;
    int rows;
    std::vector<te_param> param;
    te_model model;
    buffer params, grads, compact, x, y, dx, dy, side, dside, memory, tokens, labels, count;
    te_edge edge;
    te_batch batch;
    te_saved saved;
    static int params_of(const te_plan *p) {
        int n = 0;
        for (int i = 0; i < p->op_count; i++) n += p->op[i].params;
        return n;
    }
    list(const te_plan *p, int batches, int seq, const char *tied = nullptr, const char *owner = nullptr)
        : plan(p), rows(batches * seq), param((size_t)params_of(p)), params(ctx, te_plan_param_bytes(p)), grads(ctx, te_plan_grad_bytes(p)), compact(ctx, te_plan_grad_bytes(p)),
          x(ctx, (size_t)rows * (size_t)p->in * 4), y(ctx, (size_t)rows * (size_t)p->out * 4), dx(ctx, x.bytes), dy(ctx, y.bytes), side(ctx, x.bytes), dside(ctx, x.bytes),
          memory(ctx, te_plan_saved_bytes(p, rows)), tokens(ctx, (size_t)rows * 4), labels(ctx, (size_t)rows * 4), count(ctx, 4) {
        source random(5);
        bind();
        REQUIRE(te_model_randomize(&model, 0.3f, 1, 0, ctx) == TE_OK);
        if (tied) tie(tied, owner);
        std::vector<int32_t> ints((size_t)rows), wanted((size_t)rows);
        for (size_t i = 0; i < ints.size(); i++) ints[i] = random.below(29), wanted[i] = random.below(3) ? random.below(29) : -100;
        wanted[0] = 7;
        tokens.write_ints(ints), labels.write_ints(wanted);
        x.write(random.draw(x.bytes / te_dtype_bytes(p->in_dtype), p->in_dtype), p->in_dtype), dy.write(random.draw(dy.bytes / te_dtype_bytes(p->out_dtype), p->out_dtype), p->out_dtype);
        side.write(random.draw(side.bytes / 2, TE_bf16), TE_bf16);
        memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved), memset(&edge, 0, sizeof edge);
        edge.name = "side", edge.value = te_matrix(side.data(), TE_bf16, rows, p->in);
        batch.batch = batches, batch.seq = seq, batch.tokens = (const int32_t *)tokens.data(), batch.labels = (const int32_t *)labels.data(), batch.loss_scale = 0.25f;
        if (!strcmp(p->name, "edged")) batch.edges = &edge, batch.edge_count = 1;
        saved.memory = memory.data(), saved.bytes = memory.bytes;
        REQUIRE(te_context_reserve(ctx, te_plan_workspace_bytes(plan, &model, rows, ctx)) == TE_OK);
    }
    void bind(bool with_grads = true) {
        REQUIRE(te_model_bind(&model, plan, param.data(), (int)param.size(), params.data(), with_grads ? (float *)grads.data() : nullptr, ctx) == TE_OK);
    }
    te_param *named(const std::string &op, const std::string &field = "weight") {
        for (te_param &p : param)
            if (p.op == op && p.field == field) return &p;
        FAIL("no parameter " << op);
        return nullptr;
    }
    void tie(const char *user, const char *owner) { REQUIRE(te_tie(named(user), named(owner), ctx) == TE_OK); }
    bool to_loss() const { return te__to_loss(plan) != 0; }
    te_tensor in(const buffer &b) const { return te__from_tokens(plan) ? te_none() : te_matrix(b.data(), plan->in_dtype, rows, plan->in); }
    te_tensor out(const buffer &b) const { return te_matrix(b.data(), plan->out_dtype, rows, plan->out); }
    void forward() {
        const te_status s = te_plan_forward(out(y), &saved, in(x), plan, &model, &batch, ctx);
        INFO(te_last_error(ctx));
        REQUIRE(s == TE_OK);
    }
    te_status try_backward(bool wants_dx) { return te_plan_backward(wants_dx ? in(dx) : te_none(), to_loss() ? te_none() : out(dy), &saved, plan, &model, &batch, ctx); }
    void backward(bool wants_dx) {
        for (buffer *b : {&grads, &compact, &dx, &dside}) b->poison();
        const te_status s = try_backward(wants_dx);
        INFO(te_last_error(ctx));
        REQUIRE(s == TE_OK);
    }
    size_t elements(size_t k) const { return (size_t)(param[k].rows * param[k].cols); }
    bytes gradient(size_t k) const {
        bytes b(elements(k) * sizeof(float));
        REQUIRE(te_copy(ctx, b.data(), param[k].grad, b.size()) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        return b;
    }
    void freeze(size_t k, bool is = true) { REQUIRE((is ? te_freeze : te_unfreeze)(&model, param[k].op, param[k].field, ctx) == TE_OK); }
};

// Freezes the parameters in the mask: the gradients of the others must have the bits of `all`, and those of the frozen stay untouched.
void check_masked(list &l, const std::vector<bytes> &all, uint64_t mask, bool wants_dx, const bytes &dx) {
    for (size_t k = 0; k < l.param.size(); k++)
        if (!l.param[k].tied) l.freeze(k, mask >> k & 1);
    l.backward(wants_dx);
    for (size_t k = 0; k < l.param.size(); k++) {
        if (l.param[k].tied) continue;
        CAPTURE(l.plan->name, l.param[k].op, l.param[k].field, mask, wants_dx);
        CHECK(te_is_trained(&l.param[k]) == !(mask >> k & 1));
        CHECK(l.gradient(k) == (mask >> k & 1 ? bytes(all[k].size(), 0xff) : all[k]));
    }
    if (wants_dx) CHECK(l.dx.raw() == dx);
    else CHECK(l.dx.poisoned());
}
void check_list(list &l) {
    const size_t n = l.param.size();
    const uint64_t every = (UINT64_C(1) << n) - 1;
    const bool has_dx = !te__from_tokens(l.plan);
    source random(11);
    l.forward(), l.backward(true);
    const bytes dx = l.dx.raw();
    std::vector<bytes> all;
    for (size_t k = 0; k < n; k++) all.push_back(l.gradient(k));
    for (size_t k = 0; k < n; k++) {
        if (l.param[k].tied) continue;
        check_masked(l, all, UINT64_C(1) << k, has_dx, dx);
        check_masked(l, all, every & ~(UINT64_C(1) << k), false, dx); // only this one trains
    }
    for (int i = 0; i < 8; i++) check_masked(l, all, (uint64_t)random.random() & (uint64_t)random.random() & every, i % 2 && has_dx, dx);
    if (has_dx) check_masked(l, all, every, true, dx);
    // Gradient memory for the trained parameters only.
    const uint64_t mask = 0x5555555555555555u & every;
    for (size_t k = 0; k < n; k++)
        if (!l.param[k].tied) l.freeze(k, mask >> k & 1);
    size_t rest = 0;
    for (size_t k = 0; k < n; k++)
        if (!l.param[k].tied && !(mask >> k & 1)) rest += (size_t)te_round_up((int64_t)l.elements(k), TE_PARAM_ALIGN) * sizeof(float);
    CHECK(te_trained_grad_bytes(&l.model) == rest);
    std::vector<te_param *> users;
    for (te_param &p : l.param)
        if (p.tied) users.push_back(&p);
    if (!users.empty()) return;
    REQUIRE(te_bind_trained_grads(&l.model, (float *)l.compact.data(), l.ctx) == TE_OK);
    l.backward(has_dx);
    for (size_t k = 0; k < n; k++) {
        CHECK((l.param[k].grad == nullptr) == (mask >> k & 1));
        if (l.param[k].grad) CHECK(l.gradient(k) == all[k]);
    }
    CHECK(l.grads.poisoned());
    const bytes used = l.compact.raw();
    for (size_t i = rest; i < used.size(); i++)
        if (used[i] != 0xff) FAIL("written behind the gradients that were bound");
    if (has_dx) CHECK(l.dx.raw() == dx);
    // Unfreezing all then makes that memory too small, which is refused.
    REQUIRE(te_unfreeze(&l.model, nullptr, nullptr, l.ctx) == TE_OK);
    CHECK(l.try_backward(has_dx) == TE_ERROR_STATE);
    CHECK(std::string(te_last_error(l.ctx)).find("call te_bind_trained_grads again") != std::string::npos);
    // Bound without gradients: backward computes dx only.
    l.bind(false);
    if (has_dx) {
        l.backward(true);
        CHECK(l.dx.raw() == dx);
        CHECK(l.grads.poisoned());
    }
    CHECK(l.try_backward(false) == TE_ERROR_STATE);
    CHECK(std::string(te_last_error(l.ctx)).find("nothing to compute: there is no dx, and the instance was bound without gradients") != std::string::npos);
}

} // namespace

TEST_CASE("each parameter frozen, all others frozen, and random sets", "[freeze]") {
    {
        list l(stream_plan(), 2, 5);
        check_list(l);
    }
    {
        list l(words_plan(), 2, 7, "lm", "wte");
        check_list(l);
    }
    list l(head_plan(), 1, 33);
    check_list(l);
}

TEST_CASE("a frozen head with loss_in_backward", "[freeze]") {
    list l(head_plan(), 3, 300);
    l.batch.loss_in_backward = 1;
    l.forward(), l.backward(true);
    const bytes y = l.y.raw(), dx = l.dx.raw();
    REQUIRE(te_freeze(&l.model, nullptr, nullptr, l.ctx) == TE_OK);
    for (bool wants_dx : {true, false}) {
        l.y.poison(), l.forward(), l.backward(wants_dx);
        CHECK(l.y.raw() == y); // the losses are computed although no parameter trains
        if (wants_dx) CHECK(l.dx.raw() == dx);
        CHECK(l.grads.poisoned());
    }
}

TEST_CASE("a tied weight trains as its owner does", "[freeze]") {
    list l(words_plan(), 2, 7, "lm", "wte");
    l.forward();
    CHECK(te_freeze(&l.model, "lm", "weight", l.ctx) == TE_ERROR_VALUE);
    CHECK(std::string(te_last_error(l.ctx)) == "te_freeze: words: lm.weight is tied, and trains as the parameter that owns it does");
    REQUIRE(te_freeze(&l.model, "wte", nullptr, l.ctx) == TE_OK);
    CHECK(!te_is_trained(l.named("lm")));
    l.backward(true);
    CHECK(l.gradient(0) == bytes(l.elements(0) * sizeof(float), 0xff)); // neither the gradient of the embedding nor that of the tied head
    REQUIRE(te_freeze(&l.model, nullptr, nullptr, l.ctx) == TE_OK);
    CHECK(l.try_backward(false) == TE_ERROR_STATE);
    CHECK(std::string(te_last_error(l.ctx)) == "words: backward has nothing to compute: there is no dx, and all parameters are frozen");
    CHECK(te_bind_trained_grads(&l.model, (float *)l.compact.data(), l.ctx) == TE_ERROR_STATE);
    CHECK(std::string(te_last_error(l.ctx)).find("is tied already") != std::string::npos);
}

TEST_CASE("an owner whose gradients are bound after its user was tied", "[freeze]") {
    list user(words_plan(), 2, 7, "lm", "wte"), owner(words_plan(), 2, 7, "lm", "wte");
    user.bind(), owner.bind(false);
    REQUIRE(te_tie(user.named("lm"), owner.named("wte"), user.ctx) == TE_OK);
    user.forward();
    user.backward(true); // the owner has no gradients, so the user's gradient is not stored
    REQUIRE(te_bind_trained_grads(&owner.model, (float *)owner.compact.data(), owner.ctx) == TE_OK);
    CHECK(user.try_backward(false) == TE_ERROR_STATE);
    CHECK(std::string(te_last_error(user.ctx)).find("the owner of lm.weight was bound again since; te_tie them again") != std::string::npos);
    REQUIRE(te_tie(user.named("lm"), owner.named("wte"), user.ctx) == TE_OK);
    user.backward(true);
    CHECK(te_is_trained(user.named("lm")));
    CHECK(user.gradient(0) != bytes(user.elements(0) * sizeof(float), 0xff));
}

TEST_CASE("only the gradient of an extra input", "[freeze]") {
    list l(edged_plan(), 1, 9);
    l.edge.grad = te_matrix(l.dside.data(), TE_bf16, 9, 16);
    l.forward(), l.backward(true);
    const bytes dside = l.dside.raw();
    REQUIRE(te_freeze(&l.model, nullptr, nullptr, l.ctx) == TE_OK);
    l.backward(false);
    CHECK(l.dside.raw() == dside);
    CHECK(l.dx.poisoned());
    CHECK(l.grads.poisoned());
    l.edge.grad = te_none();
    CHECK(l.try_backward(false) == TE_ERROR_STATE);
}

// With fp8_delayed, the gradient of a bias with a dropout behind it is summed by tiles (pointwise_quantize_transpose.h), also if weights
// are frozen.
static void check_in_fp8(const te_plan *plan, int seq, bool delayed) {
    list l(plan, 2, seq);
    te_recipes recipes;
    te_model *models[] = {&l.model};
    te_recipes_config config = te_recipes_defaults();
    config.current = !delayed;
    buffer state(l.ctx, te_recipes_bytes(models, 1, &config));
    REQUIRE(te_recipes_init(&recipes, state.data(), state.bytes, models, 1, &config, l.ctx) == TE_OK);
    l.forward(), l.backward(true);
    REQUIRE(te_recipes_step(&recipes, l.ctx) == TE_OK); // from here on delayed scales are known
    l.forward(), l.backward(true);
    const bytes dx = l.dx.raw();
    std::vector<bytes> all;
    for (size_t k = 0; k < l.param.size(); k++) all.push_back(l.gradient(k));
    const uint64_t every = ((uint64_t)1 << l.param.size()) - 1;
    for (uint64_t mask = 0; mask <= every; mask++) {
        check_masked(l, all, mask, true, dx);
        if (mask != every) check_masked(l, all, mask, false, dx);
    }
}
TEST_CASE("FP8 GEMMs with frozen weights", "[freeze]") {
    for (bool delayed : {false, true}) {
        check_in_fp8(fp8_gelu_plan(), 24, delayed);
        check_in_fp8(dropped_plan(), 80, delayed);
    }
}

// Forward saves the FP8 input of a GEMM row-wise or transposed, depending on the kernel that produces it. The size of backward's workspace is
// computed before that is known, so it must be enough for every combination.
TEST_CASE("the workspace of an FP8 backward is enough whichever saved inputs are transposed", "[freeze]") {
    for (const te_plan *plan : {fp8_gelu_plan(), dropped_plan(), fp8_silu_plan()})
        for (const int rows : {1, 33, 160, 500})
            for (const int current : {0, 1}) {
                list l(plan, 1, rows);
                const size_t sized = te_plan_workspace_bytes(plan, &l.model, rows, l.ctx);
                te_recipes recipes;
                te_model *models[] = {&l.model};
                te_recipes_config config = te_recipes_defaults();
                config.current = current;
                buffer state(l.ctx, te_recipes_bytes(models, 1, &config));
                REQUIRE(te_recipes_init(&recipes, state.data(), state.bytes, models, 1, &config, l.ctx) == TE_OK);
                for (int transposed = 0; transposed < 1 << plan->op_count; transposed++) {
                    te_run r;
                    te__begin_batch(&r, plan, TE_BACKWARD, &l.model, &l.batch, l.ctx);
                    r.x.data = l.x.data(), r.y.data = l.y.data(), r.dx = r.x, r.dy = r.y, r.current = r.dy;
                    for (int i = 0; i < plan->op_count; i++) te__set_saved_transposed(&r, i, transposed >> i & 1);
                    r.saved_bytes = te__lay_out(&r, (char *)l.memory.data()), r.backward_stop = te__backward_stop_of(&r);
                    INFO(plan->name << ", " << rows << " rows, transposed: " << transposed);
                    REQUIRE(te__run_pass(&r) == TE_OK); // a dry run
                    if (r.pool.high > sized) CHECK(r.pool.high <= sized);
                }
                CHECK(sized > 0);
            }
}

// The list with frozen_linear (fixed) computes the bits of the list in which the same weights are frozen by te_freeze (loose), and its forward
// saves `less` bytes less.
static void check_fixed(list &loose, list &fixed, const std::vector<const char *> &names, size_t less, bool in_fp8 = false) {
    CAPTURE(fixed.plan->name);
    CHECK(te_plan_saved_bytes(loose.plan, loose.rows) - te_plan_saved_bytes(fixed.plan, fixed.rows) == less);
    for (const char *name : names) {
        REQUIRE(te_freeze(&loose.model, name, nullptr, loose.ctx) == TE_OK);
        CHECK(fixed.named(name)->frozen);
        CHECK(te_unfreeze(&fixed.model, name, nullptr, fixed.ctx) == TE_ERROR_VALUE);
        CHECK(std::string(te_last_error(fixed.ctx)).find(std::string(name) + ".* belongs to a frozen_linear, for which forward saves no input") != std::string::npos);
    }
    REQUIRE(te_freeze(&fixed.model, nullptr, nullptr, fixed.ctx) == TE_OK);
    REQUIRE(te_unfreeze(&fixed.model, nullptr, nullptr, fixed.ctx) == TE_OK); // unfreezes all that may be
    char texts[2][1024];
    te__text was = {texts[0], 0}, is = {texts[1], 0};
    te__plan_text(&was, loose.plan, 1), te__text_char(&was, 0), te__plan_text(&is, fixed.plan, 1), te__text_char(&is, 0);
    CHECK(std::string(texts[0]) == texts[1]); // so a checkpoint of one list can be loaded by the other
    CHECK(te_trained_grad_bytes(&fixed.model) == te_trained_grad_bytes(&loose.model));
    for (list *l : {&loose, &fixed}) {
        te_recipes recipes;
        te_model *models[] = {&l->model};
        te_recipes_config config = te_recipes_defaults();
        buffer state(l->ctx, in_fp8 ? te_recipes_bytes(models, 1, &config) : 16);
        if (in_fp8) REQUIRE(te_recipes_init(&recipes, state.data(), state.bytes, models, 1, &config, l->ctx) == TE_OK);
        l->memory.poison(), l->forward(), l->backward(true);
        if (in_fp8) REQUIRE(te_recipes_step(&recipes, l->ctx) == TE_OK);
        l->memory.poison(), l->forward(), l->backward(true);
    }
    CHECK(fixed.y.raw() == loose.y.raw());
    CHECK(fixed.dx.raw() == loose.dx.raw());
    CHECK(fixed.grads.raw() == loose.grads.raw()); // including the poison of the frozen gradients
}

TEST_CASE("a frozen_linear saves no input", "[freeze]") {
const size_t rows = TE_ROW_PAD; // saved tensors have at least these rows
    {
        list loose(adapted_plan(), 2, 9), fixed(adapted_fixed_plan(), 2, 9);
        // the inputs within the recompute region are not saved in either list
        check_fixed(loose, fixed, {"up", "down", "w", "fc", "out"}, rows * (24 + 40) * sizeof(float));
    }
    {
        list loose(to_loss_plan(), 2, 9), fixed(to_loss_fixed_plan(), 2, 9);
        check_fixed(loose, fixed, {"lm"}, 0); // backward recomputes the logits from the saved input of lm
    }
    list loose(fp8_silu_plan(), 2, 9), fixed(fp8_silu_fixed_plan(), 2, 9);
    // only the scales: backward would recompute these inputs, of a norm and a silu
    check_fixed(loose, fixed, {"a", "b"}, 2 * TE_ALIGN, true);
}

// ---- the mean over rows that have a label ---------------------------------------------------------------------------------

TEST_CASE("the mean loss over the rows with a label, counted on the device", "[freeze]") {
    for (const te_plan *plan : {words_plan(), head_plan()}) {
        list l(plan, 2, 11, plan == words_plan() ? "lm" : nullptr, "wte");
        const te_context *ctx = l.ctx;
        const bytes raw = l.labels.raw();
        std::vector<int32_t> labels((size_t)l.rows);
        memcpy(labels.data(), raw.data(), raw.size());
        const int with = (int)std::count_if(labels.begin(), labels.end(), [](int32_t v) { return v != -100; });
        REQUIRE((with > 0 && with < l.rows));
        // A count on the device gives the bits of a loss_scale that the host computes.
        l.batch.loss_scale = 1.0f / (float)with;
        l.forward(), l.backward(true);
        const bytes want = l.grads.raw(), dx = l.dx.raw();
        const reference::vec one = l.grads.read(TE_f32);
        REQUIRE(te_count_labels((float *)l.count.data(), l.batch.labels, l.rows, 0, 0, l.ctx) == TE_OK);
        CHECK(l.count.read(TE_f32)[0] == with);
        l.batch.loss_scale = 1.0f, l.batch.loss_count = (const float *)l.count.data();
        l.backward(true);
        CHECK(l.grads.raw() == want);
        CHECK(l.dx.raw() == dx);
        // With the count of two micro-batches, each has half of its gradient.
        REQUIRE(te_count_labels((float *)l.count.data(), l.batch.labels, l.rows, -100, 1, l.ctx) == TE_OK);
        CHECK(l.count.read(TE_f32)[0] == 2 * with);
        l.backward(true);
        l.batch.accumulate = 1;
        REQUIRE(l.try_backward(true) == TE_OK);
        l.batch.accumulate = 0;
        const reference::vec two = l.grads.read(TE_f32);
        for (size_t k = 0, at = 0; k < l.param.size(); at += (size_t)te_round_up((int64_t)l.elements(k), TE_PARAM_ALIGN) * !l.param[k].tied, k++)
            for (size_t i = 0; !l.param[k].tied && i < l.elements(k); i++) CHECK(two[at + i] == Approx(one[at + i]).epsilon(1e-4).margin(1e-6));
        // te_mean_loss.
        double sum = 0;
        for (double v : l.y.read(TE_f32)) sum += v;
        buffer mean(l.ctx, 4);
        REQUIRE(te_mean_loss((float *)mean.data(), (const float *)l.y.data(), l.rows, l.batch.loss_count, 0, l.ctx) == TE_OK);
        REQUIRE(te_mean_loss((float *)mean.data(), (const float *)l.y.data(), l.rows, l.batch.loss_count, 1, l.ctx) == TE_OK);
        CHECK(mean.read(TE_f32)[0] == Approx(sum / with).epsilon(1e-6));
        // If no row has a label, loss and gradients are 0, not NaN.
        l.labels.write_ints(std::vector<int32_t>((size_t)l.rows, -100));
        REQUIRE(te_count_labels((float *)l.count.data(), l.batch.labels, l.rows, 0, 0, l.ctx) == TE_OK);
        l.forward(), l.backward(true);
        for (size_t k = 0; k < l.param.size(); k++)
            if (!l.param[k].tied) CHECK(l.gradient(k) == bytes(l.elements(k) * sizeof(float), 0));
        REQUIRE(te_mean_loss((float *)mean.data(), (const float *)l.y.data(), l.rows, l.batch.loss_count, 0, l.ctx) == TE_OK);
        CHECK(mean.read(TE_f32)[0] == 0);
        // A dy together with a count.
        CHECK(te_plan_backward(l.in(l.dx), l.out(l.dy), &l.saved, l.plan, &l.model, &l.batch, l.ctx) == TE_ERROR_VALUE);
        CHECK(std::string(te_last_error(ctx)).find("dy and batch.loss_count are both given") != std::string::npos);
    }
}

TEST_CASE("te_count_labels with any number of labels", "[freeze]") {
    context ctx_owner;
    for (int n : {0, 1, 2, 31, 1023, 1024, 1025, 70001}) {
        source random((unsigned)n + 1);
        buffer labels(&ctx_owner.c, (size_t)n * 4 + 4), count(&ctx_owner.c, 4);
        std::vector<int32_t> v((size_t)n + 1);
        int with = 0;
        for (size_t i = 0; i + 1 < v.size(); i++) v[i] = random.below(2) ? -5 : random.below(9), with += v[i] != -5;
        labels.write_ints(v);
        REQUIRE(te_count_labels((float *)count.data(), (const int32_t *)labels.data(), n, -5, 0, &ctx_owner.c) == TE_OK);
        CHECK(count.read(TE_f32)[0] == with);
    }
}
