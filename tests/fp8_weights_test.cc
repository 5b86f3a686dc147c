// fp8_weights_test.cc -- inference with GEMM weights in FP8 only, loaded from a file in FP8 or from a checkpoint. It has the bits of a list
// with the same recipe that holds weights in 16 bits beside those in FP8, and needs about half of the memory.
#include <cstdio>
#include <unistd.h>

#include "harness.h"
#include "te/io/fp8_weights.h"
#include "te/te.h"

// Widths that are no multiples of 128; a linear alone, linears with a bias and an activation, and one without a recipe.
#define LIST                                                                                                                     \
    (fork, x1), (rmsnorm, n, 144), (linear, a, 144, 272), (bias, a_b, 272), (gelu, g), (linear, b, 272, 144), (add, x1),          \
        (linear, c, 144, 144), (dropout, d, 0.1f), (linear, e, 144, 48, (recipe, none))
#define BOTH(name, ...) TE_SEQUENTIAL(name##_trained, (__VA_ARGS__), LIST) TE_INFERENCE(name, (__VA_ARGS__), LIST)
BOTH(delayed, bf16, (recipe, fp8_delayed))
BOTH(current, f32, (recipe, fp8_current))
BOTH(block, bf16, (recipe, fp8_block))
BOTH(row, f16, (recipe, fp8_row))
TE_INFERENCE(other_width, (bf16, (recipe, fp8_row)), (linear, a, 144, 256))
TE_INFERENCE(by_block, (bf16, (recipe, fp8_block)), (linear, a, 144, 272))
TE_INFERENCE(by_row, (bf16, (recipe, fp8_row)), (linear, a, 144, 272))
TE_INFERENCE(tied, (bf16, (recipe, fp8_row)), (embedding, wte, 64, 32), (tied_linear, head, 32, 64))

namespace {
struct path {
    std::string text = std::string(getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp") + "/te_fp8_XXXXXX";
    path() {
        const int fd = mkstemp(&text[0]);
        REQUIRE(fd >= 0);
        (void)close(fd);
    }
    ~path() { (void)unlink(text.c_str()); }
    const char *c_str() const { return text.c_str(); }
    std::string bytes() const {
        std::string all;
        FILE *f = fopen(c_str(), "rb");
        REQUIRE(f);
        char part[4096];
        for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) all.append(part, n);
        fclose(f);
        return all;
    }
};

void refuses(te_status status, te_status want, const char *text, te_context *ctx) {
    INFO(te_last_error(ctx) << " should have \"" << text << "\"");
    CHECK(status == want);
    CHECK(std::string(te_last_error(ctx)).find(text) != std::string::npos);
}

// A list with a recipe after one training step, so that fp8_delayed has scales for its inputs.
template <class M> struct trained {
    te_context *ctx;
    const te_plan *plan;
    M m;
    buffer params, grads;
    std::unique_ptr<buffer> memory;
    te_model *models[1];
    te_recipes recipes;
    template <class Bind>
    trained(te_context *c, const te_plan *p, Bind bind)
        : ctx(c), plan(p), params(c, te_plan_param_bytes(p)), grads(c, te_plan_grad_bytes(p)) {
        const te_recipes_config config = te_recipes_defaults();
        te_saved saved;
        te_batch b;
        memset(&b, 0, sizeof b), memset(&saved, 0, sizeof saved);
        REQUIRE(te_fill(ctx, params.data(), 0, params.bytes) == TE_OK);
        REQUIRE(te_fill(ctx, grads.data(), 0, grads.bytes) == TE_OK);
        REQUIRE(bind(&m, params.data(), (float *)grads.data()) == TE_OK);
        REQUIRE(te_model_randomize(&m.model, 0.2f, fresh_seed(), 0, ctx) == TE_OK);
        models[0] = &m.model;
        memory.reset(new buffer(ctx, te_recipes_bytes(models, 1, &config)));
        REQUIRE(te_recipes_init(&recipes, memory->data(), memory->bytes, models, 1, &config, ctx) == TE_OK);
        const int64_t rows = 16;
        buffer x(ctx, (size_t)(rows * plan->in) * te_dtype_bytes(plan->in_dtype)), y(ctx, x.bytes), saved_tensors(ctx, te_plan_saved_bytes(plan, rows));
        source random(fresh_seed());
        x.write(random.draw((size_t)(rows * plan->in), plan->in_dtype), plan->in_dtype);
        saved.memory = saved_tensors.data(), saved.bytes = saved_tensors.bytes, b.batch = 1, b.seq = (int)rows;
        REQUIRE(te_context_reserve(ctx, te_plan_workspace_bytes(plan, &m.model, rows, ctx)) == TE_OK);
        REQUIRE(te_plan_forward(te_matrix(y.data(), plan->out_dtype, rows, plan->out), &saved, te_matrix(x.data(), plan->in_dtype, rows, plan->in), plan,
                                &m.model, &b, ctx) == TE_OK);
        REQUIRE(te_recipes_step(&recipes, ctx) == TE_OK);
    }
};

// The outputs of inference for several numbers of rows, from the same x.
std::vector<uint8_t> answers(const te_plan *plan, te_model *m, unsigned seed, te_context *ctx) {
    std::vector<uint8_t> all;
    for (int rows : {1, 5, 16, 37}) {
        te_batch b;
        memset(&b, 0, sizeof b);
        b.batch = 1, b.seq = rows;
        buffer x(ctx, (size_t)rows * (size_t)plan->in * te_dtype_bytes(plan->in_dtype));
        buffer y(ctx, (size_t)rows * (size_t)plan->out * te_dtype_bytes(plan->out_dtype));
        source random(seed + (unsigned)rows);
        x.write(random.draw((size_t)rows * (size_t)plan->in, plan->in_dtype), plan->in_dtype);
        REQUIRE(te_context_reserve(ctx, te_plan_workspace_bytes(plan, m, rows, ctx)) == TE_OK);
        const te_status status = te_plan_infer(te_matrix(y.data(), plan->out_dtype, rows, plan->out), te_matrix(x.data(), plan->in_dtype, rows, plan->in),
                                               plan, m, &b, ctx);
        INFO(te_last_error(ctx));
        REQUIRE(status == TE_OK);
        for (double v : y.read(plan->out_dtype)) REQUIRE(std::isfinite(v));
        const std::vector<uint8_t> bytes = y.raw();
        all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
}

// An inference list with the weights from a file.
template <class M> struct loaded {
    M m;
    te_fp8_weights weights;
    std::unique_ptr<buffer> memory;
    template <class Bind> te_status open(const path &from, te_context *ctx, Bind bind) {
        te_safetensors f;
        REQUIRE(bind(&m) == TE_OK);
        const te_named_model named = {"h0", &m.model};
        memory.reset(new buffer(ctx, te_fp8_weights_bytes(&named, 1)));
        REQUIRE(te_safetensors_open(&f, from.c_str(), ctx) == TE_OK);
        REQUIRE(te_safetensors_verify(&f, ctx) == TE_OK);
        const te_status status = te_fp8_weights_load(&weights, memory->data(), memory->bytes, &named, 1, &f, ctx);
        te_safetensors_close(&f);
        return status;
    }
};

template <class All, class Alone, class BindAll, class Bind>
void check(const te_plan *all_plan, const te_plan *plan, bool scales_differ, BindAll bind_all, Bind bind) {
    context c;
    path fp8_file, checkpoint, resaved;
    trained<All> t(&c.c, all_plan, bind_all(&c.c));
    const unsigned seed = fresh_seed();
    const te_named_model named = {"h0", &t.m.model};
    const std::vector<uint8_t> want = answers(all_plan, &t.m.model, seed, &c.c);
    REQUIRE(te_fp8_weights_save(fp8_file.c_str(), &named, 1, &c.c) == TE_OK);
    const auto to_none = [&](Alone *m) { return bind(m, &c.c); };
    {
        loaded<Alone> l;
        const te_status status = l.open(fp8_file, &c.c, to_none);
        INFO(te_last_error(&c.c));
        REQUIRE(status == TE_OK);
        CHECK(answers(plan, &l.m.model, seed, &c.c) == want);
        CHECK(l.m.a.weight.data == nullptr);
        if (plan->dtype != TE_f32) CHECK(l.memory->bytes < te_plan_param_bytes(plan) * 62 / 100);
        const te_named_model same = {"h0", &l.m.model};
        te_named_model twice = same;
        refuses(te_model_randomize(&l.m.model, 0.1f, 1, 0, &c.c), TE_ERROR_STATE, "a.weight has no memory", &c.c);
        te_safetensors f;
        REQUIRE(te_safetensors_open(&f, fp8_file.c_str(), &c.c) == TE_OK);
        refuses(te_fp8_weights_load(&l.weights, l.memory->data(), l.memory->bytes, &twice, 1, &f, &c.c), TE_ERROR_STATE, "bind its model to none", &c.c);
        te_safetensors_close(&f);
        CHECK(answers(plan, &l.m.model, seed, &c.c) == want);
        REQUIRE(te_fp8_weights_save(resaved.c_str(), &same, 1, &c.c) == TE_OK);
        // the texts of a trained and an inference list in the files differ; the tensors do not
        CHECK(resaved.bytes().size() == fp8_file.bytes().size());
        loaded<Alone> more;
        REQUIRE(more.open(resaved, &c.c, to_none) == TE_OK);
        CHECK(answers(plan, &more.m.model, seed, &c.c) == want);
    }
    te_checkpoint whole;
    memset(&whole, 0, sizeof whole);
    whole.models = &named, whole.count = 1;
    REQUIRE(te_checkpoint_save(checkpoint.c_str(), &whole, &c.c) == TE_OK);
    loaded<Alone> cast;
    const te_status status = cast.open(checkpoint, &c.c, to_none);
    INFO(te_last_error(&c.c));
    REQUIRE(status == TE_OK);
    const std::vector<uint8_t> is = answers(plan, &cast.m.model, seed, &c.c);
    if (!scales_differ) CHECK(is == want);
    std::vector<uint8_t> weight((size_t)(144 * 272)), was(weight.size()); // both were cast from the same numbers
    REQUIRE(te_copy(&c.c, weight.data(), cast.m.a.weight.fp8.data, weight.size()) == TE_OK);
    REQUIRE(te_copy(&c.c, was.data(), t.m.a.weight.fp8.data, was.size()) == TE_OK);
    REQUIRE(te_synchronize(&c.c) == TE_OK);
    CHECK(weight == was);
}
#define CHECK_OF(name, scales_differ)                                                                                            \
    check<name##_trained, name>(name##_trained_plan(), name##_plan(), scales_differ,                                             \
        [](te_context *ctx) { return [ctx](name##_trained *m, void *p, float *g) { return name##_trained_bind(m, p, g, ctx); }; }, \
        [](name *m, te_context *ctx) { return name##_bind(m, nullptr, ctx); })
} // namespace

TEST_CASE("fp8_delayed: weights and scales of inputs", "[fp8_weights]") { CHECK_OF(delayed, true); }
TEST_CASE("fp8_current: weights", "[fp8_weights]") { CHECK_OF(current, false); }
TEST_CASE("fp8_block: weights", "[fp8_weights]") { CHECK_OF(block, false); }
TEST_CASE("fp8_row: weights", "[fp8_weights]") { CHECK_OF(row, false); }

TEST_CASE("a file in FP8 that does not match the model, and a model without FP8 weights, are refused", "[fp8_weights][errors]") {
    context c;
    path file;
    std::vector<uint8_t> weight(144 * 272, 0x38); // 1.0
    std::vector<float> scales(272, 0.5f);
    const int64_t of_rows[2] = {272, 1};
    te_safetensor t[3] = {te_safetensor_matrix("a.weight", TE_e4m3, 272, 144, weight.data()),
                          te_safetensor_of("a.weight_scale_inv", TE_SAFETENSORS_F32, 2, of_rows, scales.data()), te_safetensor()};
    const auto load = [&](te_model *m, te_status want, const char *text) {
        te_safetensors f;
        te_fp8_weights w;
        const te_named_model named = {"", m};
        buffer memory(&c.c, te_fp8_weights_bytes(&named, 1));
        REQUIRE(te_safetensors_open(&f, file.c_str(), &c.c) == TE_OK);
        refuses(te_fp8_weights_load(&w, memory.data(), memory.bytes, &named, 1, &f, &c.c), want, text, &c.c);
        if (want != TE_OK) CHECK(!m->param->fp8.data);
        else {
            refuses(te_fp8_weights_load(&w, memory.data(), memory.bytes - 1, &named, 1, &f, &c.c), TE_ERROR_MEMORY, "are needed", &c.c);
            refuses(te_fp8_weights_load(&w, (char *)memory.data() + 16, memory.bytes, &named, 1, &f, &c.c), TE_ERROR_ALIGNMENT, "aligned", &c.c);
            refuses(te_fp8_weights_load(nullptr, memory.data(), memory.bytes, &named, 1, &f, &c.c), TE_ERROR_NULL, "null", &c.c);
            te_batch b; // each output is the sum of 144 products 1 * 1 * 0.5
            memset(&b, 0, sizeof b), b.batch = b.seq = 1;
            buffer x(&c.c, 144 * 2), y(&c.c, 272 * 2);
            x.write(reference::vec(144, 1.0), TE_bf16);
            REQUIRE(te_context_reserve(&c.c, te_plan_workspace_bytes(m->plan, m, 1, &c.c)) == TE_OK);
            REQUIRE(te_plan_infer(te_matrix(y.data(), TE_bf16, 1, 272), te_matrix(x.data(), TE_bf16, 1, 144), m->plan, m, &b, &c.c) == TE_OK);
            for (double v : y.read(TE_bf16)) CHECK(v == 72);
        }
        te_safetensors_close(&f);
    };
    by_row r;
    by_block k;
    other_width o;
    tied e;
    REQUIRE(by_row_bind(&r, nullptr, &c.c) == TE_OK);
    REQUIRE(by_block_bind(&k, nullptr, &c.c) == TE_OK);
    REQUIRE(other_width_bind(&o, nullptr, &c.c) == TE_OK);
    REQUIRE(tied_bind(&e, nullptr, &c.c) == TE_OK);
    REQUIRE(te_safetensors_write(file.c_str(), t, 1, nullptr, 0, &c.c) == TE_OK);
    load(&r.model, TE_ERROR_FORMAT, "has no tensor a.weight_scale_inv, which should be F32 [272, 1]");
    REQUIRE(te_safetensors_write(file.c_str(), t, 2, nullptr, 0, &c.c) == TE_OK);
    load(&k.model, TE_ERROR_SHAPE, "tensor a.weight_scale_inv is F32 [272, 1], it should be F32 [3, 2]");
    load(&o.model, TE_ERROR_SHAPE, "tensor a.weight is F8_E4M3 [272, 144], it should be F8_E4M3 [256, 144]");
    load(&e.model, TE_ERROR_VALUE, "(tied_linear, head) is tied");
    t[0].dtype = TE_SAFETENSORS_F8_E5M2;
    REQUIRE(te_safetensors_write(file.c_str(), t, 2, nullptr, 0, &c.c) == TE_OK);
    load(&r.model, TE_ERROR_DTYPE, "tensor a.weight is F8_E5M2 [272, 144], it should be F8_E4M3");
    t[0].dtype = TE_SAFETENSORS_F8_E4M3;
    row_trained m;
    buffer params(&c.c, row_trained_param_bytes());
    REQUIRE(row_trained_bind(&m, params.data(), nullptr, &c.c) == TE_OK);
    const te_named_model named = {"", &m.model};
    refuses(te_fp8_weights_save(file.c_str(), &named, 1, &c.c), TE_ERROR_STATE, "a.weight is not in FP8", &c.c);
    REQUIRE(te_safetensors_write(file.c_str(), t, 2, nullptr, 0, &c.c) == TE_OK);
    load(&r.model, TE_OK, "");
}
