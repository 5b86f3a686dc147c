// loss_scale_test.cc -- dynamic loss scaling (te/optim/loss_scale.h): the rule of the scale, what training computes with it, and that a captured graph of a step follows it.
#include "folder.h"
#include "harness.h"
#include "te/te.h"

#include <cmath>
#include <memory>
#include <vector>

#define LIST (embedding, e, 40, 32), (linear, a, 32, 48), (gelu, g), (linear, b, 48, 32), (linear, head, 32, 40), (cross_entropy, loss, 40)
TE_SEQUENTIAL(in_f16, f16, LIST)
TE_SEQUENTIAL(in_f32, f32, LIST)

namespace {

enum { ROWS = 24 };

// A model, its optimizer, and a loss scaler if `scale` is not 0.
template <class M> struct trainer {
    context own;
    te_context *ctx = &own.c;
    M m;
    const te_plan *plan;
    std::unique_ptr<buffer> params, grads, states, saved_memory, tokens, losses, scaler_memory;
    te_model *models[1];
    te_adamw opt;
    te_saved saved;
    te_batch batch;
    te_loss_scaler scaler;
    te_adamw_config config;
    template <class Bind> trainer(const te_plan *p, Bind bind, float scale, int interval = 2000, float lr = 0.01f) : plan(p) {
        memset(&saved, 0, sizeof saved), memset(&batch, 0, sizeof batch), memset(&scaler, 0, sizeof scaler);
        params.reset(new buffer(ctx, te_plan_param_bytes(p))), grads.reset(new buffer(ctx, te_plan_grad_bytes(p)));
        REQUIRE(te_fill(ctx, params->data(), 0, params->bytes) == TE_OK);
        REQUIRE(te_fill(ctx, grads->data(), 0, grads->bytes) == TE_OK);
        REQUIRE(bind(&m, params->data(), (float *)grads->data(), ctx) == TE_OK);
        REQUIRE(te_model_randomize(&m.model, 0.2f, 7, 0, ctx) == TE_OK);
        models[0] = &m.model, config = te_adamw_defaults(lr), config.max_norm = 1.0f;
        states.reset(new buffer(ctx, te_adamw_bytes_of(models, 1, &config)));
        REQUIRE(te_adamw_init(&opt, states->data(), states->bytes, models, 1, &config, ctx) == TE_OK);
        saved.bytes = te_plan_saved_bytes(p, ROWS), saved_memory.reset(new buffer(ctx, saved.bytes)), saved.memory = saved_memory->data();
        tokens.reset(new buffer(ctx, ROWS * 4)), losses.reset(new buffer(ctx, ROWS * 4));
        std::vector<int32_t> ids;
        for (int i = 0; i < ROWS; i++) ids.push_back(7 * i % 40);
        tokens->write_ints(ids);
        batch.batch = 1, batch.seq = ROWS, batch.tokens = batch.labels = (const int32_t *)tokens->data(), batch.ignore_index = -1;
        batch.loss_scale = 1.0f / ROWS;
        REQUIRE(te_context_reserve(ctx, te_plan_workspace_bytes(p, &m.model, ROWS, ctx)) == TE_OK);
        if (scale == 0) return;
        te_loss_scale_config c = te_loss_scale_defaults();
        c.scale = scale, c.interval = interval;
        scaler_memory.reset(new buffer(ctx, te_loss_scaler_bytes()));
        REQUIRE(te_loss_scaler_init(&scaler, scaler_memory->data(), scaler_memory->bytes, &c, ctx) == TE_OK);
        REQUIRE(te_adamw_use_loss_scaler(&opt, &scaler, ctx) == TE_OK);
        batch.loss_count = te_loss_scaler_inverse(&scaler);
    }
    te_status step() {
        TE_TRY(te_plan_forward(te_matrix(losses->data(), TE_f32, ROWS, 1), &saved, te_none(), plan, &m.model, &batch, ctx));
        TE_TRY(te_plan_backward(te_none(), te_none(), &saved, plan, &m.model, &batch, ctx));
        return te_adamw_step(&opt, ctx);
    }
    te_loss_scale_state now() {
        te_loss_scale_state s;
        REQUIRE(te_loss_scaler_get(&s, &scaler, ctx) == TE_OK);
        return s;
    }
    int64_t skipped() {
        te_adamw_state s;
        REQUIRE(te_adamw_get(&s, &opt, ctx) == TE_OK);
        return s.skipped;
    }
    double loss() {
        double sum = 0;
        for (double v : losses->read(TE_f32)) sum += v;
        return sum / ROWS;
    }
};
const auto bind_f16 = [](in_f16 *m, void *p, float *g, te_context *c) { return in_f16_bind(m, p, g, c); };
const auto bind_f32 = [](in_f32 *m, void *p, float *g, te_context *c) { return in_f32_bind(m, p, g, c); };

te_status graph_step(const te_graph *, const void *arg, te_context *) { return ((trainer<in_f16> *)(uintptr_t)arg)->step(); }

} // namespace

TEST_CASE("the rule of the scale") {
    te_loss_scale_state s = {1.0f / 1024, 1024, 0, 3, 2.0f, 0.5f};
    // finite steps, and what the scale and the count of good steps are then
    const struct { int finite; float scale; int good; } steps[] = {{1, 1024, 1}, {1, 1024, 2}, {1, 2048, 0}, {1, 2048, 1}, {0, 1024, 0}, {0, 512, 0}, {1, 512, 1}, {1, 512, 2}, {0, 256, 0}, {1, 256, 1}, {1, 256, 2}, {1, 512, 0}};
    for (const auto &e : steps) {
        te__loss_scale_update(&s, e.finite);
        CHECK(s.scale == e.scale);
        CHECK(s.inverse == 1.0f / e.scale);
        CHECK(s.good == e.good);
    }
    for (int i = 0; i < 500; i++) te__loss_scale_update(&s, 0);
    CHECK(s.scale == TE_LOSS_SCALE_MIN);
    CHECK(s.inverse == TE_LOSS_SCALE_MAX);
    for (int i = 0; i < 1000; i++) te__loss_scale_update(&s, 1);
    CHECK(s.scale == TE_LOSS_SCALE_MAX);
    const te_loss_scale_config c = te_loss_scale_defaults();
    CHECK((c.scale == 65536 && c.growth == 2 && c.backoff == 0.5f && c.interval == 2000));
}

TEST_CASE("in f32 a scale changes no bit of the weights") {
    trainer<in_f32> without(in_f32_plan(), bind_f32, 0), with(in_f32_plan(), bind_f32, 1024, 2);
    for (int i = 0; i < 6; i++) REQUIRE((without.step() == TE_OK && with.step() == TE_OK));
    CHECK(with.params->raw() == without.params->raw());
    CHECK(with.now().scale == 8192); // three times two steps
    CHECK(with.skipped() == 0);
    // the gradients are those of the scaled loss
    CHECK(std::fabs(with.grads->read(TE_f32)[40] / without.grads->read(TE_f32)[40] - 4096) < 1);
}

TEST_CASE("an overflow skips the step and halves the scale until the gradients are finite") {
    trainer<in_f16> t(in_f16_plan(), bind_f16, 1099511627776.0f); // 2^40
    const std::vector<uint8_t> before = t.params->raw();
    int skips = 0;
    REQUIRE(t.step() == TE_OK);
    while (t.skipped() > skips && skips < 60) {
        skips++;
        CHECK(t.params->raw() == before);
        CHECK(t.now().scale == std::ldexp(1.0f, 40 - skips));
        REQUIRE(t.step() == TE_OK);
    }
    CHECK(skips > 10);
    CHECK(skips < 40);
    CHECK(t.now().good == 1);
    CHECK(t.params->raw() != before);
    const double first = t.loss();
    for (int i = 0; i < 30; i++) REQUIRE(t.step() == TE_OK);
    CHECK(t.loss() < 0.8 * first);
}

TEST_CASE("gradients that f16 would lose are kept") {
    trainer<in_f16> without(in_f16_plan(), bind_f16, 0), with(in_f16_plan(), bind_f16, 65536);
    for (te_batch *b : {&without.batch, &with.batch}) b->loss_scale = 1e-9f; // as of a loss that has a small weight
    REQUIRE((without.step() == TE_OK && with.step() == TE_OK));
    int lost = 0, n = 0;
    const std::vector<double> a = without.grads->read(TE_f32), b = with.grads->read(TE_f32);
    for (size_t i = 40 * 32; i < 40 * 32 + 48 * 32; i++) lost += a[i] == 0 && b[i] != 0, n += b[i] != 0; // of the linear after the embedding
    INFO(lost << " of " << n);
    CHECK(n > 700);
    CHECK(lost > n * 9 / 10);
    te_adamw_state s;
    REQUIRE(te_adamw_get(&s, &with.opt, with.ctx) == TE_OK);
    CHECK(s.norm < 1e-7f); // unscaled
    CHECK(s.norm > 0);
}

TEST_CASE("a captured step follows the scale, with the bits of single calls") {
    trainer<in_f16> eager(in_f16_plan(), bind_f16, 1073741824.0f, 3), replayed(in_f16_plan(), bind_f16, 1073741824.0f, 3); // 2^30: some steps are skipped first
    te_graph_pool pool;
    te_graph g;
    REQUIRE((eager.step() == TE_OK && replayed.step() == TE_OK));
    buffer memory(replayed.ctx, 4096);
    REQUIRE(te_graph_pool_init(&pool, memory.data(), memory.bytes, replayed.ctx) == TE_OK);
    const te_graph_spec spec = te_graph_spec_of("step", graph_step, &replayed, 0, 0, 0, 0, 0);
    REQUIRE(te_graph_capture(&g, &spec, &pool, replayed.ctx) == TE_OK);
    for (int i = 0; i < 40; i++) REQUIRE((eager.step() == TE_OK && te_graph_replay(&g, 0, 0, replayed.ctx) == TE_OK));
    CHECK(replayed.params->raw() == eager.params->raw());
    CHECK(replayed.now().scale == eager.now().scale);
    CHECK(replayed.now().good == eager.now().good);
    CHECK(eager.skipped() > 2);
    CHECK(replayed.skipped() == eager.skipped());
    te_graph_destroy(&g);
}

namespace {

// A checkpoint of a trainer, and a file with the tensors of another one, of which `name` has other bytes or, without bytes, is missing.
template <class M> te_checkpoint checkpoint_of(trainer<M> &t, te_named_model *name) {
    te_checkpoint c = {};
    name->name = "m", name->model = &t.m.model;
    c.models = name, c.count = 1, c.optimizer = &t.opt;
    return c;
}
template <class M> te_status load(trainer<M> &t, const std::string &path) {
    te_named_model name;
    const te_checkpoint c = checkpoint_of(t, &name);
    te_safetensors f;
    TE_TRY(te_safetensors_open(&f, path.c_str(), t.ctx));
    const te_status status = te_checkpoint_load(&c, &f, t.ctx);
    te_safetensors_close(&f);
    return status;
}
void rewrite(const std::string &to, const std::string &from, const std::string &name, const std::vector<char> &with, te_context *ctx) {
    te_safetensors f;
    REQUIRE(te_safetensors_open(&f, from.c_str(), ctx) == TE_OK);
    std::vector<std::vector<char>> data;
    std::vector<te_safetensor> all;
    for (int i = 0; i < f.count; i++) {
        te_safetensor t = f.tensor[i];
        if (name == t.name && with.empty()) continue;
        data.push_back(name == t.name ? with : std::vector<char>(t.bytes));
        if (name != t.name) REQUIRE(te_safetensors_read(&f, &t, data.back().data(), ctx) == TE_OK);
        all.push_back(t);
    }
    for (size_t i = 0; i < all.size(); i++) all[i].data = data[i].data();
    REQUIRE(te_safetensors_write_sealed(to.c_str(), all.data(), (int)all.size(), nullptr, 0, ctx) == TE_OK);
    te_safetensors_close(&f);
}
template <class T> std::vector<char> bytes_of(T value) {
    std::vector<char> b(sizeof value);
    memcpy(b.data(), &value, sizeof value);
    return b;
}

} // namespace

TEST_CASE("a run that continues from a checkpoint has the loss scale and the bits of one that was not stopped") {
    const folder files;
    const std::string path = files.path + "/f16.safetensors";
    trainer<in_f16> whole(in_f16_plan(), bind_f16, 1.0e8f, 3), resumed(in_f16_plan(), bind_f16, 1.0e8f, 3);
    for (int i = 0; i < 60 && (i < 10 || whole.now().good == 0); i++) REQUIRE(whole.step() == TE_OK);
    const te_loss_scale_state saved = whole.now();
    CHECK(whole.skipped() > 0); // else the test shows nothing
    CHECK(saved.scale != 1.0e8f);
    CHECK(saved.good > 0);
    te_named_model name;
    const te_checkpoint c = checkpoint_of(whole, &name);
    REQUIRE(te_checkpoint_save(path.c_str(), &c, whole.ctx) == TE_OK);
    REQUIRE(load(resumed, path) == TE_OK);
    CHECK((resumed.now().scale == saved.scale && resumed.now().inverse == saved.inverse && resumed.now().good == saved.good));
    for (int i = 0; i < 11; i++) {
        REQUIRE(whole.step() == TE_OK);
        REQUIRE(resumed.step() == TE_OK);
        CHECK((resumed.now().scale == whole.now().scale && resumed.now().good == whole.now().good));
    }
    CHECK(resumed.skipped() == whole.skipped());
    CHECK((resumed.params->read(TE_f16) == whole.params->read(TE_f16)));
    CHECK(resumed.loss() == whole.loss());
}

TEST_CASE("checkpoints without a loss scale, or with one that cannot be") {
    const folder files;
    const std::string with = files.path + "/with.safetensors", without = files.path + "/without.safetensors", bad = files.path + "/bad.safetensors";
    trainer<in_f32> scaled(in_f32_plan(), bind_f32, 512), plain(in_f32_plan(), bind_f32, 0), into(in_f32_plan(), bind_f32, 64);
    te_named_model name;
    REQUIRE(te_loss_scaler_set(&scaled.scaler, 32, 5, scaled.ctx) == TE_OK);
    te_checkpoint c = checkpoint_of(scaled, &name);
    REQUIRE(te_checkpoint_save(with.c_str(), &c, scaled.ctx) == TE_OK);
    c = checkpoint_of(plain, &name);
    REQUIRE(te_checkpoint_save(without.c_str(), &c, plain.ctx) == TE_OK);
    // the file has no scale: the scaler keeps its own; the optimizer has no scaler: the file's scale is not used
    REQUIRE(te_loss_scaler_set(&into.scaler, 128, 7, into.ctx) == TE_OK);
    REQUIRE(load(into, without) == TE_OK);
    CHECK((into.now().scale == 128 && into.now().good == 7));
    REQUIRE(load(plain, with) == TE_OK);
    REQUIRE(load(into, with) == TE_OK);
    CHECK((into.now().scale == 32 && into.now().inverse == 1.0f / 32 && into.now().good == 5 && into.now().interval == 2000));
    const auto refused = [&](const std::string &tensor, const std::vector<char> &value, const char *words) {
        rewrite(bad, with, tensor, value, into.ctx);
        const auto params = into.params->read(TE_f32);
        for (trainer<in_f32> *t : {&into, &plain}) {
            CHECK(load(*t, bad) == TE_ERROR_FORMAT);
            INFO(te_last_error(t->ctx));
            CHECK(std::string(te_last_error(t->ctx)).find(words) != std::string::npos);
        }
        CHECK((into.now().scale == 32 && into.now().good == 5));
        CHECK((into.params->read(TE_f32) == params));
    };
    for (const float scale : {0.0f, -32.0f, INFINITY, NAN, 1.0e-30f, 1.0e30f}) refused("loss_scale", bytes_of(scale), "loss_scale is");
    for (const int64_t steps : {(int64_t)-1, (int64_t)INT32_MAX, INT64_MAX, (int64_t)1 << 32})
        refused("loss_scale.steps", bytes_of(steps), "steps after it changed");
    refused("loss_scale.steps", {}, "has no tensor loss_scale.steps");
    refused("loss_scale", {}, "loss_scale.steps");
}

TEST_CASE("a mean over labels that are not ignored, and states that are set") {
    trainer<in_f32> t(in_f32_plan(), bind_f32, 256);
    buffer count(t.ctx, 8);
    for (double labels : {6.0, 0.0}) {
        count.write({labels, 0.0}, TE_f32);
        REQUIRE(te_loss_scaler_count((float *)count.data() + 1, (const float *)count.data(), &t.scaler, t.ctx) == TE_OK);
        CHECK(count.read(TE_f32)[1] == (labels > 0 ? labels : 1) / 256);
    }
    REQUIRE(te_loss_scaler_set(&t.scaler, 32, 5, t.ctx) == TE_OK);
    CHECK((t.now().scale == 32 && t.now().inverse == 1.0f / 32 && t.now().good == 5 && t.now().interval == 2000));
    const auto refused = [&](te_status got, te_status status, const char *words) {
        INFO(te_last_error(t.ctx));
        CHECK(got == status);
        CHECK(std::string(te_last_error(t.ctx)).find(words) != std::string::npos);
    };
    for (float scale : {0.0f, -1.0f, INFINITY, NAN}) refused(te_loss_scaler_set(&t.scaler, scale, 0, t.ctx), TE_ERROR_VALUE, "te_loss_scaler_set");
    CHECK(t.now().scale == 32);
    te_loss_scaler none;
    memset(&none, 0, sizeof none);
    refused(te_adamw_use_loss_scaler(&t.opt, &none, t.ctx), TE_ERROR_NULL, "not initialised");
    refused(te_loss_scaler_count((float *)count.data(), (const float *)count.data(), &none, t.ctx), TE_ERROR_NULL, "not initialised");
    const struct { te_loss_scale_config c; const char *words; } configs[] = {
        {{0, 2, 0.5f, 1}, "scale is 0"}, {{1, 0.5f, 0.5f, 1}, "growth is 0.5"}, {{1, 2, 1, 1}, "backoff is 1"}, {{1, 2, NAN, 1}, "backoff is"}, {{1, 2, 0.5f, 0}, "interval is 0"}};
    for (const auto &e : configs) refused(te_loss_scaler_init(&none, t.scaler_memory->data(), t.scaler_memory->bytes, &e.c, t.ctx), TE_ERROR_VALUE, e.words);
    const te_loss_scale_config c = te_loss_scale_defaults();
    refused(te_loss_scaler_init(&none, t.scaler_memory->data(), 8, &c, t.ctx), TE_ERROR_MEMORY, "memory has 8 bytes");
}
