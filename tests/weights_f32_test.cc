// weights_f32_test.cc -- (weights, f32) in a list with a recipe: GEMM weights are in f32 for the optimizer and in FP8 for the GEMMs, without a 16-bit
// copy. A twin list has that copy: both have the same bits while 16 bits represent the weights exactly. After that, each FP8 byte must be the cast
// of the f32 weight.
#include "folder.h"
#include "recipe.h"
#include "te/fuse/inference.h"
#include "te/io/checkpoint.h"
#include "te/io/fp8_weights.h"
#include "te/ops/activation.h"
#include "te/ops/elementwise.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/optim/recipes_adamw.h"

// Weights of whole tiles of 128 x 128, of partial tiles, of less than one tile, and one of a linear without a recipe.
#define OPS (rmsnorm, n, 144), (linear, a, 144, 272), (bias, ab, 272), (silu, s), (linear, b, 272, 128), (linear, c, 128, 256), (linear, d, 256, 16, (recipe, none))
#define PAIR(name, dtype, recipe_)                               \
    MODEL(name, (dtype, (recipe, recipe_)), OPS)                 \
    MODEL(name##_alone, (dtype, (weights, f32), (recipe, recipe_)), OPS)
PAIR(delayed, bf16, fp8_delayed)
PAIR(delayed_f16, f16, fp8_delayed)
PAIR(current, bf16, fp8_current)
PAIR(blockwise, bf16, fp8_block)
PAIR(blockwise_f16, f16, fp8_block)
MODEL(tied, (bf16, (weights, f32), (recipe, fp8_delayed)), (linear, a, 64, 64, (recipe, none)), (tied_linear, b, 64, 64))
TE_INFERENCE(served, (bf16, (recipe, fp8_delayed)), OPS)
MODEL(said, (bf16, (weights, bf16), (recipe, fp8_delayed)), OPS)

namespace {

struct twins { const subject *with, *alone; };
const twins pairs[] = {{&delayed_subject, &delayed_alone_subject}, {&delayed_f16_subject, &delayed_f16_alone_subject}, {&current_subject, &current_alone_subject},
                     {&blockwise_subject, &blockwise_alone_subject}, {&blockwise_f16_subject, &blockwise_f16_alone_subject}};

// The optimizer of a model with a recipe, and the update that does the steps of both in one.
struct optimizer {
    buffer memory, both;
    te_adamw opt;
    te_recipes_adamw update;
    optimizer(under_recipe &u, const te_adamw_config &c) : memory(u.ctx, te_adamw_bytes_of(u.models, 1, &c)), both(u.ctx, init(u, c)) {
        REQUIRE(te_recipes_adamw_init(&update, both.data(), both.bytes, &u.state, &opt, u.ctx) == TE_OK);
    }
    size_t init(under_recipe &u, const te_adamw_config &c) {
        const te_status status = te_adamw_init(&opt, memory.data(), memory.bytes, u.models, 1, &c, u.ctx);
        INFO(te_last_error(u.ctx));
        REQUIRE(status == TE_OK);
        return te_recipes_adamw_bytes(&u.state, &opt);
    }
    // The f32 master weights of parameter p, which are the parameter itself or part of the optimizer's memory.
    reference::vec master(under_recipe &u, const te_param *p) {
        te_adamw_iter w = te_adamw_tensors(&opt);
        while (te_adamw_next(&w))
            if (w.param == p) return numbers_at(u, w.master, (size_t)w.elements);
        return {};
    }
    static reference::vec numbers_at(under_recipe &u, const float *at, size_t n) {
        std::vector<float> f(n);
        REQUIRE(te_copy(u.ctx, f.data(), at, n * sizeof(float)) == TE_OK);
        REQUIRE(te_synchronize(u.ctx) == TE_OK);
        return reference::vec(f.begin(), f.end());
    }
};
std::vector<uint8_t> bytes_at(under_recipe &u, const void *at, size_t n) {
    std::vector<uint8_t> b(n);
    REQUIRE(te_copy(u.ctx, b.data(), at, n) == TE_OK);
    REQUIRE(te_synchronize(u.ctx) == TE_OK);
    return b;
}
// Checks that each byte of the FP8 weights, row-wise and transposed, is the cast of the f32 weight with its scale.
void check_casts(under_recipe &u) {
    te__recipe_iter w = te__recipe_products(u.models, 1);
    while (te__recipe_next_product(&w)) {
        const te_param *p = w.param;
        const te_fp8_product *f = &p->fp8;
        CAPTURE(p->op);
        CHECK(p->dtype == TE_f32);
        const size_t rows = (size_t)p->rows, cols = (size_t)p->cols;
        const reference::vec x = optimizer::numbers_at(u, (const float *)p->data, rows * cols);
        const std::vector<uint8_t> y = bytes_at(u, f->data, rows * cols), yt = bytes_at(u, f->transposed, rows * cols);
        // a scale for each tile of `tall` by `wide` weights
        const size_t tall = TE_IS_BLOCKWISE(w.recipe) ? 128 : rows, wide = TE_IS_BLOCKWISE(w.recipe) ? 128 : cols, across = (cols + wide - 1) / wide;
        std::vector<float> largest((rows + tall - 1) / tall * across, 0);
        for (size_t i = 0; i < x.size(); i++) {
            float &amax = largest[i / cols / tall * across + i % cols / wide];
            amax = std::max(amax, std::fabs((float)x[i]));
        }
        size_t wrong = 0;
        for (size_t i = 0; i < x.size(); i++) {
            const float scale = te_scale_of_amax(largest[i / cols / tall * across + i % cols / wide], TE_E4M3_MAX, &f->own);
            wrong += y[i] != te_e4m3_of_float((float)x[i] * scale);
            wrong += yt[i % cols * rows + i / cols] != y[i];
        }
        CHECK(wrong == 0);
    }
}

} // namespace

TEST_CASE("weights in f32 replace the optimizer's master weights, and have no 16-bit copy", "[weights]") {
    for (const twins &t : pairs) {
        context ctx_owner;
        te_context *ctx = &ctx_owner.c;
        instance with(*t.with, ctx), alone(*t.alone, ctx);
        CAPTURE(t.with->plan()->name);
        te_model *models[2][1] = {{with.model()}, {alone.model()}};
        const te_adamw_config config = te_adamw_defaults(0.01f);
        const size_t elements = 144 * 272 + 272 * 128 + 128 * 256;
        CHECK(alone.s.grad_bytes() == with.s.grad_bytes());
        CHECK(alone.s.param_bytes() == with.s.param_bytes() + 2 * elements);
        CHECK(te_adamw_bytes_of(models[1], 1, &config) == te_adamw_bytes_of(models[0], 1, &config) - 4 * elements);
        size_t end = 0;
        for (int i = 0; i < alone.model()->param_count; i++) {
            const te_param *p = &alone.model()->param[i], *q = &with.model()->param[i];
            const size_t at = (size_t)((const char *)p->data - (const char *)alone.params.data());
            CHECK(at == end);
            CHECK(p->dtype == (strcmp(p->field, "weight") || !strcmp(p->op, "d") || !strcmp(p->op, "n") ? alone.plan->dtype : TE_f32));
            CHECK(p->grad - (float *)alone.grads.data() == q->grad - (float *)with.grads.data());
            end = at + (size_t)te_round_up(p->rows * p->cols, TE_PARAM_ALIGN) * te_dtype_bytes(p->dtype);
        }
        CHECK(end == alone.params.bytes);
    }
    CHECK(said_param_bytes() == delayed_param_bytes());
}

TEST_CASE("a pass with weights in f32 has the bits of one with the same weights in 16 bits", "[weights]") {
    for (const twins &t : pairs) {
        const unsigned seed = fresh_seed();
        CAPTURE(t.with->plan()->name, seed);
        under_recipe u(*t.with, 2, 70, seed), v(*t.alone, 2, 70, seed);
        check_casts(v);
        micro_batch a(u, u.m.s.saved_bytes((int64_t)u.rows)), b(v, v.m.s.saved_bytes((int64_t)v.rows));
        const te_adamw_config config = te_adamw_defaults(0.01f);
        optimizer o(u, config), p(v, config);
        a.forward(u), b.forward(v);
        CHECK(a.y.raw() == b.y.raw());
        a.backward(u), b.backward(v);
        CHECK(a.dx.raw() == b.dx.raw());
        CHECK(u.m.grads.raw() == v.m.grads.raw());
        REQUIRE(te_recipes_adamw_step(&o.update, u.ctx) == TE_OK);
        REQUIRE(te_recipes_adamw_step(&p.update, v.ctx) == TE_OK);
        for (int i = 0; i < u.models[0]->param_count; i++) // the same master weights, which in v are the parameters themselves
            CHECK(o.master(u, &u.models[0]->param[i]) == p.master(v, &v.models[0]->param[i]));
        check_casts(v);
    }
}

TEST_CASE("with weights in f32, the fused step of optimizer and recipes has the bits of the two calls", "[weights]") {
    for (const te_rule rule : {TE_RULE_adamw, TE_RULE_sgd, TE_RULE_muon})
        for (const twins &t : pairs) {
            if (rule != TE_RULE_adamw && t.with != &delayed_subject) continue;
            const unsigned seed = fresh_seed();
            CAPTURE(t.alone->plan()->name, te_rule_name(rule), seed);
            under_recipe u(*t.alone, 1, 40, seed), v(*t.alone, 1, 40, seed), w(*t.with, 1, 40, seed);
            micro_batch a(u, u.m.s.saved_bytes(40)), b(v, v.m.s.saved_bytes(40)), c(w, w.m.s.saved_bytes(40));
            te_adamw_config config = te_adamw_defaults(0.01f);
            config.rule = rule, config.max_norm = 1.0f;
            optimizer o(u, config), p(v, config), q(w, config);
            for (int step = 0; step < 3; step++) {
                CAPTURE(step);
                a.forward(u), b.forward(v), a.backward(u), b.backward(v);
                if (!step) c.forward(w), c.backward(w);
                REQUIRE(te_recipes_adamw_step(&o.update, u.ctx) == TE_OK);
                REQUIRE(te_adamw_step(&p.opt, v.ctx) == TE_OK);
                REQUIRE(te_recipes_step(&v.state, v.ctx) == TE_OK);
                CHECK(a.y.raw() == b.y.raw());
                CHECK(u.m.params.raw() == v.m.params.raw());
                check_casts(u), check_casts(v);
                if (step) continue;
                // the initial weights are exact in 16 bits, so the first step equals the twin's
                REQUIRE(te_adamw_step(&q.opt, w.ctx) == TE_OK);
                for (int i = 0; i < u.models[0]->param_count; i++)
                    CHECK(p.master(v, &v.models[0]->param[i]) == q.master(w, &w.models[0]->param[i]));
            }
        }
}

TEST_CASE("a run with weights in f32 resumes from a checkpoint with the same bits", "[weights]") {
    folder dir;
    const std::string path = dir / "run.safetensors";
    for (const subject *s : {&delayed_alone_subject, &blockwise_alone_subject}) {
        const unsigned seed = fresh_seed();
        CAPTURE(s->plan()->name, seed);
        under_recipe u(*s, 1, 40, seed), v(*s, 1, 40, seed + 1);
        micro_batch a(u, u.m.s.saved_bytes(40)), b(v, v.m.s.saved_bytes(40));
        b.x.write(a.x.read(u.plan->in_dtype), u.plan->in_dtype), b.dy.write(a.dy.read(u.plan->out_dtype), u.plan->out_dtype);
        const te_adamw_config config = te_adamw_defaults(0.01f);
        optimizer o(u, config), p(v, config);
        const auto step = [](under_recipe &w, micro_batch &m, optimizer &by) {
            m.forward(w), m.backward(w);
            REQUIRE(te_recipes_adamw_step(&by.update, w.ctx) == TE_OK);
        };
        step(u, a, o), step(u, a, o);
        const te_named_model of_u[] = {{"h0", u.models[0]}}, of_v[] = {{"h0", v.models[0]}};
        const te_checkpoint saved = {of_u, 1, &o.opt, 1, nullptr, 0, 0, &u.state}, loaded = {of_v, 1, &p.opt, 1, nullptr, 0, 0, &v.state};
        REQUIRE(te_checkpoint_save(path.c_str(), &saved, u.ctx) == TE_OK);
        te_safetensors file;
        REQUIRE(te_safetensors_open(&file, path.c_str(), v.ctx) == TE_OK);
        CHECK(te_safetensors_find(&file, "h0.a.weight")->dtype == TE_SAFETENSORS_F32);
        CHECK(te_safetensors_find(&file, "adamw.master.h0.a.weight") == nullptr);
        CHECK(te_safetensors_find(&file, "adamw.master.h0.d.weight") != nullptr);
        const te_status status = te_checkpoint_load(&loaded, &file, v.ctx);
        INFO(te_last_error(v.ctx));
        REQUIRE(status == TE_OK);
        // a list with a 16-bit copy needs master weights, which this file does not have
        if (s == &delayed_alone_subject) {
            under_recipe w(delayed_subject, 1, 40, seed);
            const te_named_model of_w[] = {{"h0", w.models[0]}};
            optimizer q(w, config);
            const te_checkpoint other = {of_w, 1, &q.opt, 0, nullptr, 0, 0, &w.state};
            const te_status refused = te_checkpoint_load(&other, &file, w.ctx);
            INFO(te_last_error(w.ctx));
            CHECK(refused == TE_ERROR_FORMAT);
            CHECK(strstr(te_last_error(w.ctx), "has no tensor adamw.master.h0.a.weight"));
            CHECK(te_weights_load(of_w, 1, &file, w.ctx) == TE_OK); // the weights are converted
        }
        te_safetensors_close(&file);
        CHECK(u.m.params.raw() == v.m.params.raw());
        step(u, a, o), step(v, b, p);
        CHECK(a.y.raw() == b.y.raw());
        CHECK(a.dx.raw() == b.dx.raw());
        CHECK(u.m.params.raw() == v.m.params.raw());
        check_casts(v);
    }
}

TEST_CASE("a list for inference loads the checkpoint of a run with weights in f32", "[weights]") {
    folder dir;
    const std::string path = dir / "fp8.safetensors";
    under_recipe u(delayed_alone_subject, 1, 40, fresh_seed());
    micro_batch a(u, u.m.s.saved_bytes(40));
    a.forward(u), a.backward(u); // a first step, after which the scales of the inputs are known
    REQUIRE(te_recipes_step(&u.state, u.ctx) == TE_OK);
    const te_named_model trained[] = {{"h0", u.models[0]}};
    REQUIRE(te_fp8_weights_save(path.c_str(), trained, 1, u.ctx) == TE_OK);
    served s;
    REQUIRE(served_bind(&s, nullptr, u.ctx) == TE_OK);
    const te_named_model models[] = {{"h0", &s.model}};
    buffer memory(u.ctx, te_fp8_weights_bytes(models, 1)), y(u.ctx, u.y_bytes()), workspace(u.ctx, served_workspace_bytes(&s, 40, u.ctx));
    te_fp8_weights weights;
    te_safetensors file;
    REQUIRE(te_safetensors_open(&file, path.c_str(), u.ctx) == TE_OK);
    REQUIRE(te_fp8_weights_load(&weights, memory.data(), memory.bytes, models, 1, &file, u.ctx) == TE_OK);
    te_safetensors_close(&file);
    REQUIRE(u.m.s.infer(u.y_of(y), u.x_of(a.x), u.m.memory.data(), &u.batch, u.ctx) == TE_OK);
    const std::vector<uint8_t> should = y.raw();
    u.ctx->workspace = workspace.data(), u.ctx->workspace_bytes = workspace.bytes, y.poison();
    REQUIRE(served_infer(u.y_of(y), u.x_of(a.x), &s, &u.batch, u.ctx) == TE_OK);
    CHECK(y.raw() == should);
}

TEST_CASE("weights in f32 are refused where a GEMM would read them", "[weights]") {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    instance m(delayed_alone_subject, ctx);
    source random(fresh_seed());
    m.draw(random);
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = 16;
    buffer x(ctx, 16 * 144 * 2), y(ctx, 16 * 16 * 2), workspace(ctx, m.s.workspace_bytes(m.memory.data(), 16, ctx));
    ctx->workspace = workspace.data(), ctx->workspace_bytes = workspace.bytes;
    x.write(random.draw(16 * 144, TE_bf16), TE_bf16);
    const auto infer = [&] { return m.s.infer(te_matrix(y.data(), TE_bf16, 16, 16), te_matrix(x.data(), TE_bf16, 16, 144), m.memory.data(), &batch, ctx); };
    CHECK(infer() == TE_ERROR_STATE);
    CHECK(strstr(te_last_error(ctx), "delayed_alone: a.weight is in f32"));
    CHECK(y.poisoned());

    te_model *models[] = {m.model()};
    const te_recipes_config config = te_recipes_defaults();
    buffer memory(ctx, te_recipes_bytes(models, 1, &config));
    te_recipes recipes;
    REQUIRE(te_recipes_init(&recipes, memory.data(), memory.bytes, models, 1, &config, ctx) == TE_OK);
    CHECK(infer() == TE_OK);
    CHECK(te_recipes_switch(&recipes, 0, ctx) == TE_ERROR_STATE);
    CHECK(strstr(te_last_error(ctx), "a.weight is in f32 and in FP8"));
    CHECK(recipes.on == 1);
    CHECK(te_recipes_switch(&recipes, 1, ctx) == TE_OK);
    ctx->workspace = nullptr, ctx->workspace_bytes = 0;

    tied t;
    buffer params(ctx, tied_param_bytes()), grads(ctx, tied_grad_bytes());
    REQUIRE(tied_bind(&t, params.data(), (float *)grads.data(), ctx) == TE_OK);
    CHECK(te_tie(&t.b.weight, &t.a.weight, ctx) == TE_ERROR_DTYPE);
    CHECK(strstr(te_last_error(ctx), "te_tie: b.weight is f32, a.weight is bf16"));
}
