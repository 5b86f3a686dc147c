// written_test.cc -- weights that something other than the optimizer writes: the next step and the next forward use them, whoever writes them, in whatever order the
// optimizer, the recipes and the weights are made. Each case compares, bit by bit, with a run that had the weights from the start.
#include "device_memory.h"
#include "folder.h"
#include "te/te.h"

#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace {

#define LAYERS (rmsnorm, n1, 128), (linear, fc1, 128, 256), (gelu, act), (linear, fc2, 256, 128)
TE_SEQUENTIAL(in_bf16, bf16, LAYERS)
TE_SEQUENTIAL(in_f16, f16, LAYERS)
TE_SEQUENTIAL(in_f32, f32, LAYERS)
TE_SEQUENTIAL(delayed, (bf16, (recipe, fp8_delayed)), LAYERS)
TE_SEQUENTIAL(current, (bf16, (recipe, fp8_current)), LAYERS)
TE_SEQUENTIAL(blocks, (bf16, (recipe, fp8_block)), LAYERS)
TE_SEQUENTIAL(rows, (bf16, (recipe, fp8_row)), LAYERS)
TE_SEQUENTIAL(f32_weights, (bf16, (recipe, fp8_delayed), (weights, f32)), LAYERS)

enum { ROWS = 8, WIDTH = 128 };
typedef std::vector<char> bytes_of;

struct list_of {
    const char *name;
    te_dtype dtype;
    size_t bytes;
    size_t (*param_bytes)(), (*grad_bytes)(), (*saved_bytes)(int64_t);
    std::function<te_status(void *, void *, float *, te_context *)> bind;
    std::function<te_status(te_tensor, te_saved *, te_tensor, void *, const te_batch *, te_context *)> forward;
    std::function<te_status(te_tensor, te_tensor, const te_saved *, void *, const te_batch *, te_context *)> backward;
    std::function<size_t(void *, te_context *)> workspace;
};
#define LIST(list, dtype)                                                                                                                                       \
    {#list, dtype, sizeof(list), list##_param_bytes, list##_grad_bytes, list##_saved_bytes,                                                                     \
     [](void *m, void *p, float *g, te_context *c) { return list##_bind((list *)m, p, g, c); },                                                                 \
     [](te_tensor y, te_saved *s, te_tensor x, void *m, const te_batch *b, te_context *c) { return list##_forward(y, s, x, (list *)m, b, c); },                  \
     [](te_tensor dx, te_tensor dy, const te_saved *s, void *m, const te_batch *b, te_context *c) { return list##_backward(dx, dy, s, (list *)m, b, c); },      \
     [](void *m, te_context *c) { return list##_workspace_bytes((list *)m, ROWS, c); }}
const list_of plain_lists[] = {LIST(in_bf16, TE_bf16), LIST(in_f16, TE_f16), LIST(in_f32, TE_f32)};
const list_of fp8_lists[] = {LIST(delayed, TE_bf16), LIST(current, TE_bf16), LIST(blocks, TE_bf16), LIST(rows, TE_bf16), LIST(f32_weights, TE_bf16)};

// One training: a model, an optimizer and, where the list has a recipe, recipes.
struct training : device_memory {
    const list_of &list;
    std::vector<char> model_bytes;
    te_model *model, *models[1];
    te_named_model named;
    te_adamw opt;
    te_recipes recipes;
    te_recipes_adamw both;
    te_tensor x, y, dy, dx;
    te_saved saved;
    te_batch batch;
    training(te_context *c, const list_of &l, unsigned seed) : device_memory(c), list(l), model_bytes(l.bytes + 64) {
        model = (te_model *)(((uintptr_t)model_bytes.data() + 63) / 64 * 64);
        REQUIRE(list.bind(model, get(list.param_bytes()), (float *)get(list.grad_bytes()), ctx) == TE_OK);
        REQUIRE(te_model_randomize(model, 0.1f, seed, 0, ctx) == TE_OK);
        REQUIRE(te_context_reserve(ctx, list.workspace(model, ctx)) == TE_OK);
        models[0] = model, named.name = "h0", named.model = model;
        memset(&saved, 0, sizeof saved), saved.bytes = list.saved_bytes(ROWS), saved.memory = get(saved.bytes);
        memset(&batch, 0, sizeof batch), batch.batch = 1, batch.seq = ROWS;
        te_tensor *const tensors[] = {&x, &y, &dy, &dx};
        for (unsigned i = 0; i < 4; i++) {
            void *p = get((size_t)ROWS * WIDTH * te_dtype_bytes(list.dtype));
            REQUIRE(te_fill_normal(p, list.dtype, (int64_t)ROWS * WIDTH, 0, 1, 77 + i, 0, ctx) == TE_OK);
            *tensors[i] = te_matrix(p, list.dtype, ROWS, WIDTH);
        }
    }
    void optimizer(const te_adamw_config &c) {
        const size_t bytes = te_adamw_bytes_of(models, 1, &c);
        REQUIRE(te_adamw_init(&opt, get(bytes), bytes, models, 1, &c, ctx) == TE_OK);
    }
    void recipe() {
        const te_recipes_config c = te_recipes_defaults();
        const size_t bytes = te_recipes_bytes(models, 1, &c);
        REQUIRE(te_recipes_init(&recipes, get(bytes), bytes, models, 1, &c, ctx) == TE_OK);
    }
    void fused() {
        const size_t bytes = te_recipes_adamw_bytes(&recipes, &opt);
        REQUIRE(te_recipes_adamw_init(&both, get(bytes), bytes, &recipes, &opt, ctx) == TE_OK);
    }
    void pass() {
        REQUIRE(list.forward(y, &saved, x, model, &batch, ctx) == TE_OK);
        REQUIRE(list.backward(dx, dy, &saved, model, &batch, ctx) == TE_OK);
    }
    bytes_of read(const void *from, size_t n) {
        bytes_of v(n);
        REQUIRE(te_copy(ctx, v.data(), from, n) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        return v;
    }
    bytes_of weights() { return read(model->params, model->param_bytes); }
    bytes_of output() {
        const te_status status = list.forward(y, &saved, x, model, &batch, ctx);
        INFO(te_last_error(ctx));
        REQUIRE(status == TE_OK);
        return read(y.data, (size_t)ROWS * WIDTH * te_dtype_bytes(y.dtype));
    }
};

// The ways to write all parameters of a training: each leaves the weights of `from` in it.
typedef void (*writer)(training &to, training &from, const std::string &path);
void with_file(training &to, const std::string &path, const std::function<te_status(const te_safetensors *)> &load) {
    te_safetensors f;
    REQUIRE(te_safetensors_open(&f, path.c_str(), to.ctx) == TE_OK);
    const te_status status = load(&f);
    INFO(te_last_error(to.ctx));
    te_safetensors_close(&f);
    REQUIRE(status == TE_OK);
}
void by_weights_load(training &to, training &, const std::string &path) {
    with_file(to, path, [&](const te_safetensors *f) { return te_weights_load(&to.named, 1, f, to.ctx); });
}
void by_checkpoint(training &to, training &, const std::string &path) {
    te_checkpoint c;
    memset(&c, 0, sizeof c), c.models = &to.named, c.count = 1;
    with_file(to, path, [&](const te_safetensors *f) { return te_checkpoint_load(&c, f, to.ctx); });
}
void by_tensor(training &to, training &, const std::string &path) {
    with_file(to, path, [&](const te_safetensors *f) {
        for (int i = 0; i < to.model->param_count; i++) {
            const te_param &p = to.model->param[i];
            const std::string name = std::string("h0.") + p.op + "." + p.field;
            const te_safetensor t = te_safetensor_matrix(name.c_str(), p.dtype, p.rows, p.cols, p.data);
            TE_TRY(te_safetensors_load(f, &t, 1, 0, to.ctx));
        }
        return TE_OK;
    });
}
void by_packed(training &to, training &, const std::string &path) {
    te_packed_list l = te_packed_none();
    std::vector<te_packed> parts;
    for (int i = 0; i < to.model->param_count; i++) {
        te_packed part;
        memset(&part, 0, sizeof part);
        part.op = to.model->param[i].op, part.field = to.model->param[i].field;
        parts.push_back(part);
    }
    std::vector<std::string> names;
    for (const te_packed &part : parts) names.push_back(std::string(part.op) + "." + part.field);
    for (size_t i = 0; i < parts.size(); i++) parts[i].name = names[i].c_str();
    REQUIRE(te_packed_add(&l, to.model, parts.data(), (int)parts.size(), "h0.", to.ctx) == TE_OK);
    with_file(to, path, [&](const te_safetensors *f) { return te_safetensors_load(f, l.tensor, l.count, 0, to.ctx); });
    te_packed_free(&l);
}
void by_randomize(training &to, training &, const std::string &) { REQUIRE(te_model_randomize(to.model, 0.1f, 2, 0, to.ctx) == TE_OK); }
void by_normal(training &to, training &, const std::string &) {
    for (int i = 0; i < to.model->param_count; i++) {
        te_param &p = to.model->param[i];
        if (p.init == TE_INIT_normal) REQUIRE(te_param_normal(&p, 0.1f, 2, (uint32_t)i, to.ctx) == TE_OK);
    }
}
void by_copy(training &to, training &from, const std::string &) {
    REQUIRE(te_copy(to.ctx, (void *)(uintptr_t)to.model->params, from.model->params, to.model->param_bytes) == TE_OK);
    REQUIRE(te_model_changed(to.model, to.ctx) == TE_OK);
}
const struct { const char *name; writer write; } writers[] = {
    {"te_weights_load", by_weights_load}, {"te_checkpoint_load of weights", by_checkpoint}, {"te_safetensors_load of each tensor", by_tensor}, {"te_packed_add", by_packed},
    {"te_model_randomize", by_randomize}, {"te_param_normal", by_normal}, {"te_copy and te_model_changed", by_copy}};

std::vector<te_adamw_config> optimizers() {
    std::vector<te_adamw_config> all;
    for (const te_dtype moments : {TE_f32, TE_bf16, TE_e4m3}) {
        te_adamw_config c = te_adamw_defaults(1e-2f);
        c.moments = moments, all.push_back(c);
    }
    te_adamw_config sgd = te_sgd_defaults(1e-2f, 0.9f);
    all.push_back(sgd), all.push_back(te_muon_defaults(1e-2f));
    return all;
}
// Save the weights, under the names that te_weights_load expects.
std::string save(training &t, const folder &dir) {
    te_checkpoint c;
    memset(&c, 0, sizeof c), c.models = &t.named, c.count = 1;
    REQUIRE(te_checkpoint_save((dir / "weights").c_str(), &c, t.ctx) == TE_OK);
    return dir / "weights";
}

} // namespace

TEST_CASE("an optimizer steps from the weights that were written last") {
    for (const list_of &list : plain_lists)
        for (const te_adamw_config &config : optimizers()) {
            target t;
            folder dir;
            training right(t, list, 2);
            const std::string path = save(right, dir);
            right.optimizer(config);
            right.pass();
            REQUIRE(te_adamw_step(&right.opt, t) == TE_OK);
            for (const auto &w : writers) {
                training other(t, list, 1), source(t, list, 2);
                other.optimizer(config);
                w.write(other, source, path);
                other.pass();
                REQUIRE(te_adamw_step(&other.opt, t) == TE_OK);
                INFO(list.name << ", " << te_rule_name(config.rule) << ", moments in " << te_dtype_name(config.moments) << ", by " << w.name);
                const bool same = other.weights() == right.weights();
                CHECK(same);
            }
        }
}

TEST_CASE("a write of some weights keeps the precision of the other master weights") {
    target t;
    training right(t, plain_lists[0], 1), other(t, plain_lists[0], 1);
    const te_adamw_config c = te_adamw_defaults(1e-5f); // less than a unit in the last place of most weights
    right.optimizer(c), other.optimizer(c);
    for (int i = 0; i < 20; i++) {
        for (training *one : {&right, &other}) {
            one->pass();
            REQUIRE(te_adamw_step(&one->opt, t) == TE_OK);
        }
        REQUIRE(te_model_changed(other.model, t) == TE_OK); // nothing was
    }
    const bool same = other.weights() == right.weights();
    CHECK(same);
}

TEST_CASE("a checkpoint that is saved behind loaded weights has their master weights") {
    target t;
    folder dir;
    training right(t, plain_lists[0], 2), other(t, plain_lists[0], 1), resumed(t, plain_lists[0], 3);
    const std::string path = save(right, dir);
    te_checkpoint c[2];
    for (training *one : {&right, &other, &resumed}) one->optimizer(te_adamw_defaults(1e-2f));
    by_weights_load(other, right, path);
    for (int i = 0; i < 2; i++) {
        memset(&c[i], 0, sizeof c[i]);
        c[i].models = i ? &resumed.named : &other.named, c[i].count = 1, c[i].optimizer = i ? &resumed.opt : &other.opt;
    }
    REQUIRE(te_checkpoint_save((dir / "run").c_str(), &c[0], t) == TE_OK);
    with_file(resumed, dir / "run", [&](const te_safetensors *f) { return te_checkpoint_load(&c[1], f, t); });
    for (training *one : {&right, &resumed}) {
        one->pass();
        REQUIRE(te_adamw_step(&one->opt, t) == TE_OK);
    }
    const bool same = resumed.weights() == right.weights();
    CHECK(same);
}

TEST_CASE("a forward in FP8 has the weights that were written last") {
    for (const list_of &list : fp8_lists) {
        target t;
        folder dir;
        training right(t, list, 2);
        const std::string path = save(right, dir);
        right.recipe();
        const bytes_of y = right.output();
        for (const auto &w : writers) {
            training other(t, list, 1);
            other.recipe();
            const bytes_of before = other.output();
            training source(t, list, 2);
            w.write(other, source, path);
            INFO(list.name << ", by " << w.name);
            const bool same = other.output() == y, changed = before != y;
            CHECK(changed);
            CHECK(same);
        }
    }
}

TEST_CASE("steps in FP8 continue from the weights that were written last") {
    for (const list_of &list : fp8_lists)
        for (const int fused : {0, 1}) {
            target t;
            folder dir;
            training right(t, list, 2);
            const std::string path = save(right, dir);
            const te_adamw_config config = te_adamw_defaults(1e-2f);
            const auto begin = [&](training &one) {
                one.recipe(), one.optimizer(config);
                if (fused) one.fused();
            };
            const auto step = [&](training &one) {
                one.pass();
                if (fused) REQUIRE(te_recipes_adamw_step(&one.both, t) == TE_OK);
                else {
                    REQUIRE(te_adamw_step(&one.opt, t) == TE_OK);
                    REQUIRE(te_recipes_step(&one.recipes, t) == TE_OK);
                }
            };
            begin(right), step(right);
            const bytes_of y = right.output(), weights = right.weights();
            for (const auto &w : writers) {
                training other(t, list, 1), source(t, list, 2);
                begin(other);
                w.write(other, source, path);
                step(other);
                INFO(list.name << ", fused " << fused << ", by " << w.name);
                const bool same_weights = other.weights() == weights, same_output = other.output() == y;
                CHECK(same_weights);
                CHECK(same_output);
            }
        }
}

TEST_CASE("a step of the optimizer alone does not leave old weights in FP8") {
    for (const list_of &list : fp8_lists)
        for (const int fused : {0, 1}) {
            target t;
            training right(t, list, 1), other(t, list, 1);
            for (training *one : {&right, &other}) {
                one->recipe(), one->optimizer(te_adamw_defaults(1e-1f));
                if (fused) one->fused();
                one->pass();
                REQUIRE(te_adamw_step(&one->opt, t) == TE_OK);
            }
            REQUIRE(te_recipes_cast_weights(&right.recipes, t) == TE_OK);
            INFO(list.name << ", fused " << fused);
            const bool same = other.output() == right.output();
            CHECK(same);
        }
}

TEST_CASE("weights in FP8 are saved as they were written last") {
    target t;
    folder dir;
    training right(t, fp8_lists[0], 2), other(t, fp8_lists[0], 1);
    for (training *one : {&right, &other}) one->recipe();
    by_copy(other, right, "");
    std::vector<std::vector<char>> files;
    for (training *one : {&right, &other}) {
        REQUIRE(te_fp8_weights_save((dir / "fp8").c_str(), &one->named, 1, t) == TE_OK);
        te_safetensors f;
        REQUIRE(te_safetensors_open(&f, (dir / "fp8").c_str(), t) == TE_OK);
        const te_safetensor *w = te_safetensors_find(&f, "h0.fc1.weight");
        REQUIRE(w);
        files.emplace_back(w->bytes);
        REQUIRE(te_safetensors_read(&f, w, files.back().data(), t) == TE_OK);
        te_safetensors_close(&f);
    }
    CHECK((files[0] == files[1]));
}

TEST_CASE("weights that were not written are not cast again") {
    target t;
    training one(t, fp8_lists[0], 1);
    one.recipe();
    (void)one.output();
    static int casts;
    static te_status (*cast)(void *, te_context *);
    casts = 0, cast = one.recipes.renewal.renew;
    one.recipes.renewal.renew = [](void *of, te_context *ctx) { return casts++, cast(of, ctx); };
    for (int i = 0; i < 3; i++) (void)one.output();
    CHECK(casts == 0);
    REQUIRE(te_model_changed(one.model, t) == TE_OK);
    for (int i = 0; i < 3; i++) (void)one.output();
    CHECK(casts == 1);
}
