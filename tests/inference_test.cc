// inference_test.cc -- lists made by TE_INFERENCE: they have the inference of TE_SEQUENTIAL's list, bit for bit, and no other pass.
#include "harness.h"
#include "te/te.h"

// Two models of a list: name_all has all passes, name_alone only inference. They have the same kernels.
#define BOTH(name, dtype, ...)                       \
    TE_SEQUENTIAL(name##_all, dtype, __VA_ARGS__)    \
    TE_INFERENCE(name##_alone, dtype, __VA_ARGS__)

#define BLOCK(H, F)                                                                                                   \
    (recompute, r1), (fork, x1), (rmsnorm, n1, H), (linear, qkv, H, 4 * 16), (rope, r, 2, 1, 16),                  \
        (attention, at, 2, 1, 16), (linear, proj, 32, H), (dropout, d1, 0.1f), (add, x1), (end_recompute, r1),     \
        (fork, x2), (layernorm, n2, H), (linear, fc1, H, F), (bias, b1, F), (gelu, a), (linear, fc2, F, H),           \
        (bias, b2, H), (dropout, d2, 0.2f), (add, x2)
BOTH(block, f32, BLOCK(40, 72))
BOTH(model, (bf16, (residual, f32)), (embedding, wte, 61, 40), (positions, wpe, 32, 40), BLOCK(40, 72), (last_token, last),
     (linear, head, 40, 61))
TE_SEQUENTIAL_DIMS(wide_all, f32, (fork, x), (rmsnorm, n, TE_DIM(0)), (linear, fc, TE_DIM(0), 2 * TE_DIM(1)), (swiglu, a),
                   (linear, out, TE_DIM(1), TE_DIM(0)), (dropout, d), (add, x))
TE_INFERENCE_DIMS(wide_alone, f32, (fork, x), (rmsnorm, n, TE_DIM(0)), (linear, fc, TE_DIM(0), 2 * TE_DIM(1)), (swiglu, a),
                  (linear, out, TE_DIM(1), TE_DIM(0)), (dropout, d), (add, x))

static_assert((int)block_alone_infer_steps == (int)block_all_infer_steps, "the same steps");
static_assert((int)block_alone_forward_steps == 0 && (int)block_alone_backward_steps == 0, "and no others");

namespace {
// Checks that both models infer the same bits from the same parameters.
template <class All, class Alone>
void same_bits(const te_plan *plan, const All &all, const Alone &alone, int batch, int seq, te_context *ctx) {
    const int64_t rows = (int64_t)batch * seq, out = plan->op[plan->op_count - 1].out_rows == TE_ROWS_sequences ? batch : rows;
    source random(fresh_seed());
    buffer x(ctx, (size_t)(rows * plan->in) * te_dtype_bytes(plan->in_dtype)), tokens(ctx, (size_t)rows * 4);
    const size_t bytes = (size_t)(out * plan->out) * te_dtype_bytes(plan->out_dtype);
    buffer y(ctx, bytes), z(ctx, bytes);
    std::vector<int32_t> words((size_t)rows);
    for (int32_t &w : words) w = random.below(61);
    tokens.write_ints(words);
    x.write(random.draw((size_t)(rows * plan->in), plan->in_dtype), plan->in_dtype);
    te_batch b;
    memset(&b, 0, sizeof b);
    b.batch = batch, b.seq = seq, b.tokens = (const int32_t *)tokens.data();
    const te_tensor from = te_matrix(x.data(), plan->in_dtype, rows, plan->in);
    const te_status first = all(te_matrix(y.data(), plan->out_dtype, out, plan->out), from, &b);
    const te_status second = alone(te_matrix(z.data(), plan->out_dtype, out, plan->out), from, &b);
    INFO(plan->name << ", " << batch << " x " << seq << ": " << te_last_error(ctx));
    REQUIRE((first == TE_OK && second == TE_OK));
    for (double v : y.read(plan->out_dtype)) REQUIRE(std::isfinite(v));
    CHECK(y.raw() == z.raw());
}
// TOGETHER(name, ...): checks name_all and name_alone on one buffer of parameters; `...` are the arguments of their size functions.
#define TOGETHER(name, ...)                                                                                           \
    [&](te_context *ctx, name##_all &m, name##_alone &n) {                                                            \
        REQUIRE((name##_all_param_bytes(__VA_ARGS__) > 0));                                                           \
        const std::vector<std::pair<int, int>> shapes = {{1, 1}, {3, 7}, {2, 32}};                                    \
        for (const auto &s : shapes) {                                                                                \
            const int rows = s.first * s.second;                                                                      \
            const size_t need = name##_all_workspace_bytes(&m, rows, ctx);                                            \
            CHECK(name##_alone_workspace_bytes(&n, rows, ctx) <= need);                                               \
            REQUIRE(te_context_reserve(ctx, need) == TE_OK);                                                          \
            same_bits(m.model.plan, [&](te_tensor y, te_tensor x, const te_batch *b) { return name##_all_infer(y, x, &m, b, ctx); }, \
                      [&](te_tensor y, te_tensor x, const te_batch *b) { return name##_alone_infer(y, x, &n, b, ctx); }, s.first,   \
                      s.second, ctx);                                                                                 \
        }                                                                                                             \
    }
} // namespace

TEST_CASE("TE_INFERENCE has the bits of TE_SEQUENTIAL's inference", "[inference]") {
    context c;
    block_all m;
    block_alone n;
    buffer params(&c.c, block_all_param_bytes());
    REQUIRE(block_alone_param_bytes() == params.bytes);
    REQUIRE(block_alone_bind(&n, params.data(), &c.c) == TE_OK);
    REQUIRE(block_all_bind(&m, params.data(), nullptr, &c.c) == TE_OK);
    REQUIRE(te_model_randomize(&n.model, 0.3f, 7, 0, &c.c) == TE_OK);
    for (int i = 0; i < m.model.param_count; i++) {
        CHECK(m.model.param[i].data == n.model.param[i].data);
        CHECK(std::string(m.model.param[i].op) == n.model.param[i].op);
    }
    TOGETHER(block)(&c.c, m, n);
    REQUIRE(block_alone_workspace_bytes(&n, 64, &c.c) < block_all_workspace_bytes(&m, 64, &c.c));
}
TEST_CASE("TE_INFERENCE of a list from tokens to logits, with a residual stream in f32 and last_token", "[inference]") {
    context c;
    model_all m;
    model_alone n;
    buffer params(&c.c, model_all_param_bytes());
    REQUIRE(model_alone_bind(&n, params.data(), &c.c) == TE_OK);
    REQUIRE(model_all_bind(&m, params.data(), nullptr, &c.c) == TE_OK);
    REQUIRE(te_model_randomize(&n.model, 0.3f, 7, 0, &c.c) == TE_OK);
    TOGETHER(model)(&c.c, m, n);
}
TEST_CASE("TE_INFERENCE_DIMS: widths that are known only at run time", "[inference]") {
    context c;
    wide_all m;
    wide_alone n;
    memset(&n, 0, sizeof n);
    CHECK(wide_alone_param_bytes(&n) == 0); /* no dims yet */
    CHECK(wide_alone_bind(&n, &c, &c.c) == TE_ERROR_STATE);
    const int64_t dims[2] = {37, 24};
    REQUIRE((wide_all_set_dims(&m, dims, 2, &c.c) == TE_OK && wide_alone_set_dims(&n, dims, 2, &c.c) == TE_OK));
    buffer params(&c.c, wide_all_param_bytes(&m));
    REQUIRE(wide_alone_bind(&n, params.data(), &c.c) == TE_OK);
    REQUIRE(wide_all_bind(&m, params.data(), nullptr, &c.c) == TE_OK);
    REQUIRE(te_model_randomize(&n.model, 0.3f, 7, 0, &c.c) == TE_OK);
    TOGETHER(wide, &m)(&c.c, m, n);
}
TEST_CASE("a model for inference refuses training, by name", "[inference]") {
    context c;
    block_alone n;
    const te_plan *p = block_alone_plan();
    buffer params(&c.c, block_alone_param_bytes()), grads(&c.c, block_all_grad_bytes()), x(&c.c, 4 * 40 * 4), y(&c.c, 4 * 40 * 4), saved_memory(&c.c, 1 << 16);
    const auto says = [&](te_status status) {
        INFO(te_last_error(&c.c));
        return status == TE_ERROR_STATE && std::string(te_last_error(&c.c)).find("block_alone: the list is for inference alone") != std::string::npos;
    };
    te_param *first = (te_param *)(void *)(&n.model + 1);
    CHECK(says(te_model_bind(&n.model, p, first, (int)(&n.te_end - first), params.data(), (float *)grads.data(), &c.c)));
    REQUIRE(block_alone_bind(&n, params.data(), &c.c) == TE_OK);
    REQUIRE(te_model_randomize(&n.model, 0.3f, 7, 0, &c.c) == TE_OK);
    REQUIRE(te_context_reserve(&c.c, 1 << 20) == TE_OK);
    x.write(reference::vec(160, 1.0), TE_f32);
    te_batch b;
    te_saved saved;
    memset(&b, 0, sizeof b), memset(&saved, 0, sizeof saved);
    b.batch = 1, b.seq = 4, saved.memory = saved_memory.data(), saved.bytes = saved_memory.bytes;
    const te_tensor tx = te_matrix(x.data(), TE_f32, 4, 40), ty = te_matrix(y.data(), TE_f32, 4, 40);
    CHECK(says(te_plan_forward(ty, &saved, tx, p, &n.model, &b, &c.c)));
    CHECK(says(te_plan_backward(ty, tx, &saved, p, &n.model, &b, &c.c)));
    CHECK((te_plan_saved_bytes(p, 4) == 0 && te_plan_grad_bytes(p) == 0));
    te_model *models[] = {&n.model};
    te_adamw opt;
    const te_adamw_config config = te_adamw_defaults(1e-3f);
    CHECK(says(te_adamw_init(&opt, saved_memory.data(), saved_memory.bytes, models, 1, &config, &c.c)));
    CHECK((y.poisoned() && saved_memory.poisoned()));
    CHECK(te_plan_forward(ty, nullptr, tx, p, &n.model, &b, &c.c) == TE_OK); /* saves nothing */
}
TEST_CASE("the printed plan of a model for inference has only that pass", "[inference]") {
    FILE *f = tmpfile();
    REQUIRE(f);
    block_alone_print_plan(f);
    std::string text((size_t)ftell(f), 0);
    rewind(f);
    REQUIRE(fread(&text[0], 1, text.size(), f) == text.size());
    fclose(f);
    INFO(text);
    CHECK(text.find("block_alone: 17 ops, f32, ") == 0);
    CHECK(text.find("inference, ") != std::string::npos);
    for (const char *other : {"forward,", "backward", "saved"}) CHECK(text.find(other) == std::string::npos);
}

// ---- weights from a file -----------------------------------------------------------------------------------------

#define TRAINED(eps_) (embedding, wte, 61, 40), (fork, x), (rmsnorm, n, 40, (eps, eps_)), (linear, fc, 40, 40), (gelu, a), (dropout, d, 0.1f), (add, x)
TE_SEQUENTIAL(trained, f32, TRAINED(1e-5f), (layernorm, lnf, 40), (tied_linear, lm, 40, 61), (cross_entropy, loss, 61))
#define ANSWERS(eps_) TRAINED(eps_), (last_token, last), (layernorm, lnf, 40), (tied_linear, lm, 40, 61)
TE_INFERENCE(answers, f32, ANSWERS(1e-5f))
TE_INFERENCE(other_eps, f32, ANSWERS(1e-6f))
TE_INFERENCE(answers_bf16, bf16, ANSWERS(1e-5f))
TE_INFERENCE(other_width, f32, (linear, fc, 40, 41))

namespace {
// A checkpoint with the state of an optimizer, and the model that it was made from.
struct checkpoint {
    te_context *ctx;
    std::string path;
    trained m;
    buffer params, grads, state;
    te_adamw opt;
    te_model *models[1];
    te_safetensors file;
    explicit checkpoint(te_context *c)
        : ctx(c), path(std::string(getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp") + "/te_inference_XXXXXX"), params(c, trained_param_bytes()),
          grads(c, trained_grad_bytes()), state(c, 1 << 18) {
        const int fd = mkstemp(&path[0]);
        REQUIRE(fd >= 0);
        (void)close(fd);
        models[0] = &m.model;
        memset(&file, 0, sizeof file);
        const te_adamw_config config = te_adamw_defaults(1e-3f);
        REQUIRE(te_fill(ctx, params.data(), 0, params.bytes) == TE_OK);
        REQUIRE(te_fill(ctx, grads.data(), 0, grads.bytes) == TE_OK);
        REQUIRE(trained_bind(&m, params.data(), (float *)grads.data(), ctx) == TE_OK);
        REQUIRE(te_model_randomize(&m.model, 0.3f, fresh_seed(), 0, ctx) == TE_OK);
        REQUIRE(te_tie(&m.lm.weight, &m.wte.weight, ctx) == TE_OK);
        REQUIRE(te_adamw_init(&opt, state.data(), state.bytes, models, 1, &config, ctx) == TE_OK);
        const te_named_model named = {"lm", &m.model};
        te_checkpoint all;
        memset(&all, 0, sizeof all);
        all.models = &named, all.count = 1, all.optimizer = &opt, all.random = 1;
        REQUIRE(te_checkpoint_save(path.c_str(), &all, ctx) == TE_OK);
    }
    ~checkpoint() { te_safetensors_close(&file), (void)unlink(path.c_str()); }
    bool refuses(te_status status, te_status want, const char *text) {
        INFO(te_last_error(ctx) << " should have \"" << text << "\"");
        CHECK(status == want);
        CHECK(std::string(te_last_error(ctx)).find(text) != std::string::npos);
        return status == want;
    }
};
} // namespace

TEST_CASE("weights in a mapped file, or in a file in memory, give the same bits as parameters", "[inference][weights]") {
    context c;
    checkpoint s(&c.c);
    answers copied;
    buffer params(&c.c, answers_param_bytes());
    te_safetensors f;
    const te_named_model to = {"lm", &copied.model};
    REQUIRE(answers_bind(&copied, params.data(), &c.c) == TE_OK);
    REQUIRE(te_safetensors_open(&f, s.path.c_str(), &c.c) == TE_OK);
    REQUIRE(te_weights_load(&to, 1, &f, &c.c) == TE_OK);
    te_safetensors_close(&f);
    REQUIRE(te_tie(&copied.lm.weight, &copied.wte.weight, &c.c) == TE_OK);
    for (int i = 0; i < copied.model.param_count; i++) { /* each parameter equals the saved one */
        const te_param &p = copied.model.param[i], &was = s.m.model.param[i];
        const size_t bytes = (size_t)(p.rows * p.cols) * 4;
        std::vector<char> a(bytes), b(bytes);
        REQUIRE((te_copy(&c.c, a.data(), p.data, bytes) == TE_OK && te_copy(&c.c, b.data(), was.data, bytes) == TE_OK));
        REQUIRE(te_synchronize(&c.c) == TE_OK);
        CHECK(a == b);
    }
    for (bool mapped : {true, false}) {
        answers used;
        const te_named_model from = {"lm", &used.model};
        std::vector<char> bytes;
        if (mapped) REQUIRE(te_safetensors_map(&f, s.path.c_str(), &c.c) == TE_OK);
        else {
            FILE *file = fopen(s.path.c_str(), "rb");
            REQUIRE(file);
            bytes.resize(1 << 20);
            const size_t n = fread(bytes.data(), 1, bytes.size(), file);
            fclose(file);
            REQUIRE((uintptr_t)bytes.data() % 16 == 0);
            REQUIRE(te_safetensors_open_memory(&f, bytes.data(), n, &c.c) == TE_OK);
        }
        REQUIRE(te_safetensors_verify(&f, &c.c) == TE_OK);
        REQUIRE(answers_bind(&used, nullptr, &c.c) == TE_OK);
        if (TE_CUDA) {
            s.refuses(te_weights_use(&from, 1, &f, &c.c), TE_ERROR_DEVICE, "te_weights_load copies them");
            te_safetensors_close(&f);
            continue;
        }
        REQUIRE(te_context_reserve(&c.c, 1 << 20) == TE_OK);
        te_batch b;
        memset(&b, 0, sizeof b);
        b.batch = 1, b.seq = 1;
        s.refuses(answers_infer(te_none(), te_none(), &used, &b, &c.c), TE_ERROR_STATE, "answers: wte.weight has no memory");
        s.refuses(te_model_randomize(&used.model, 0.1f, 1, 0, &c.c), TE_ERROR_STATE, "wte.weight has no memory");
        s.refuses(te_weights_load(&from, 1, &f, &c.c), TE_ERROR_STATE, "lm.wte.weight has no memory");
        REQUIRE(te_weights_use(&from, 1, &f, &c.c) == TE_OK);
        REQUIRE(te_weights_use(&from, 1, &f, &c.c) == TE_OK); /* a second call is valid */
        REQUIRE(te_tie(&used.lm.weight, &used.wte.weight, &c.c) == TE_OK);
        CHECK((const char *)used.fc.weight.data == f.memory + f.data_at + te_safetensors_find(&f, "lm.fc.weight")->offset);
        for (int seq : {1, 5}) {
            buffer tokens(&c.c, (size_t)seq * 3 * 4), y(&c.c, 3 * 61 * 4), z(&c.c, 3 * 61 * 4);
            source random(fresh_seed());
            std::vector<int32_t> words((size_t)seq * 3);
            for (int32_t &w : words) w = random.below(61);
            tokens.write_ints(words);
            b.batch = 3, b.seq = seq, b.tokens = (const int32_t *)tokens.data();
            REQUIRE(answers_infer(te_matrix(y.data(), TE_f32, 3, 61), te_none(), &copied, &b, &c.c) == TE_OK);
            REQUIRE(answers_infer(te_matrix(z.data(), TE_f32, 3, 61), te_none(), &used, &b, &c.c) == TE_OK);
            CHECK(y.raw() == z.raw());
        }
        // calls that would write to the file are refused
        s.refuses(te_model_randomize(&used.model, 0.1f, 1, 0, &c.c), TE_ERROR_STATE, "answers: wte.weight lies in a file");
        s.refuses(te_param_normal(&used.fc.weight, 0.1f, 1, 0, &c.c), TE_ERROR_STATE, "fc.weight lies in a file");
        s.refuses(te_param_normal(&used.lm.weight, 0.1f, 1, 0, &c.c), TE_ERROR_STATE, "lm.weight lies in a file");
        s.refuses(te_weights_load(&from, 1, &f, &c.c), TE_ERROR_STATE, "wte.weight lies in a file");
        te_checkpoint all;
        memset(&all, 0, sizeof all);
        all.models = &from, all.count = 1, all.force = 1;
        s.refuses(te_checkpoint_load(&all, &f, &c.c), TE_ERROR_STATE, "wte.weight lies in a file");
        te_safetensors_close(&f);
    }
}
TEST_CASE("a file that does not match the model is refused by name, and no parameter changes", "[inference][weights]") {
    context c;
    checkpoint s(&c.c);
    answers m;
    other_eps e;
    answers_bf16 h;
    other_width w;
    buffer params(&c.c, answers_param_bytes()), half(&c.c, answers_bf16_param_bytes());
    REQUIRE(answers_bind(&m, params.data(), &c.c) == TE_OK);
    REQUIRE(other_eps_bind(&e, params.data(), &c.c) == TE_OK);
    REQUIRE(other_width_bind(&w, params.data(), &c.c) == TE_OK);
    REQUIRE(answers_bf16_bind(&h, half.data(), &c.c) == TE_OK);
    const te_named_model named = {"lm", &m.model}, nobody = {"h7", &m.model}, eps = {"lm", &e.model}, wide = {"lm", &w.model}, bf16 = {"lm", &h.model};
    REQUIRE(te_safetensors_open(&s.file, s.path.c_str(), &c.c) == TE_OK);
    s.refuses(te_weights_load(&nobody, 1, &s.file, &c.c), TE_ERROR_FORMAT, "has no tensor h7.wte.weight");
    s.refuses(te_weights_load(&eps, 1, &s.file, &c.c), TE_ERROR_VALUE, "of model \"lm\" it has (rmsnorm n");
    s.refuses(te_weights_load(&wide, 1, &s.file, &c.c), TE_ERROR_VALUE, "where this one has (linear fc 40>41");
    s.refuses(te_weights_load(nullptr, 1, &s.file, &c.c), TE_ERROR_NULL, "models");
    s.refuses(te_weights_load(&named, -1, &s.file, &c.c), TE_ERROR_SHAPE, "-1 models");
    CHECK(params.poisoned());
    REQUIRE(te_weights_load(&bf16, 1, &s.file, &c.c) == TE_OK); /* the weights are converted */
    te_safetensors_close(&s.file);
    CHECK(te_safetensors_map(&s.file, "/no/such/file", &c.c) == TE_ERROR_IO);
    CHECK((te_safetensors_map(nullptr, "x", &c.c) == TE_ERROR_NULL && te_safetensors_map(&s.file, nullptr, &c.c) == TE_ERROR_NULL));
    FILE *empty = fopen(s.path.c_str(), "wb");
    REQUIRE(empty);
    fclose(empty);
    CHECK(te_safetensors_map(&s.file, s.path.c_str(), &c.c) == TE_ERROR_FORMAT);
    if (TE_CUDA) return;

    checkpoint good(&c.c);
    std::vector<char> bytes(1 << 20);
    FILE *file = fopen(good.path.c_str(), "rb");
    REQUIRE(file);
    const size_t n = fread(bytes.data() + 4, 1, bytes.size() - 4, file);
    fclose(file);
    s.refuses(te_weights_use(&named, 1, &s.file, &c.c), TE_ERROR_NULL, "not open");
    REQUIRE(te_safetensors_open(&s.file, good.path.c_str(), &c.c) == TE_OK);
    s.refuses(te_weights_use(&named, 1, &s.file, &c.c), TE_ERROR_STATE, "is not in memory");
    te_safetensors_close(&s.file);
    REQUIRE(te_safetensors_open_memory(&s.file, bytes.data() + 4, n, &c.c) == TE_OK);
    s.refuses(te_weights_use(&named, 1, &s.file, &c.c), TE_ERROR_ALIGNMENT, "no multiple of 16 bytes");
    te_safetensors_close(&s.file);
    REQUIRE(te_safetensors_map(&s.file, good.path.c_str(), &c.c) == TE_OK);
    s.refuses(te_weights_use(&named, 1, &s.file, &c.c), TE_ERROR_STATE, "lm.wte.weight is bound to memory");
    s.refuses(te_weights_use(&bf16, 1, &s.file, &c.c), TE_ERROR_DTYPE, "it should be BF16 [61, 40]; te_weights_load converts");
    for (int i = 0; i < m.model.param_count; i++) CHECK_FALSE(m.model.param[i].constant);
}
