// stranger_test.cc -- what the library must not take on trust: a te_saved of another instance or batch, a count that is no number, and files whose checksum is right but
// whose contents nobody can have written: indices, scales, lengths of histories.
#include "device_memory.h"
#include "folder.h"
#include "te/te.h"

#include <clocale>
#include <cmath>
#include <cstring>
#include <fstream>
#include <vector>

namespace {

TE_SEQUENTIAL(plain, f32, (fork, x), (rmsnorm, n, 32), (linear, fc1, 32, 64), (gelu, a), (linear, fc2, 64, 32), (add, x))
TE_SEQUENTIAL(turned, f32, (linear, qkv, 32, 96), (rope, r, 2, 2, 16), (attention, a, 2, 2, 16), (linear, proj, 32, 32))
TE_SEQUENTIAL(texts, f32, (embedding, e, 48, 32), (linear, lm, 32, 48), (cross_entropy, ce, 48))
TE_SEQUENTIAL(loss, f32, (linear, lm, 32, 48), (cross_entropy, ce, 48))
#define FP8_LIST (rmsnorm, n1, 32), (linear, fc1, 32, 64), (gelu, act), (linear, fc2, 64, 32)
TE_SEQUENTIAL(scaled, (bf16, (recipe, fp8_delayed)), FP8_LIST)
TE_SEQUENTIAL(blocks, (bf16, (recipe, fp8_block)), (linear, fc1, 128, 128))
TE_INFERENCE(scaled_small, (bf16, (recipe, fp8_delayed)), FP8_LIST)
TE_INFERENCE(blocks_small, (bf16, (recipe, fp8_block)), (linear, fc1, 128, 128))

enum { ROWS = 8 };

struct pool : device_memory {
    using device_memory::device_memory;
    te_tensor normal(int cols, te_dtype dtype, unsigned seed) {
        void *p = get((size_t)ROWS * (size_t)cols * te_dtype_bytes(dtype));
        REQUIRE(te_fill_normal(p, dtype, (int64_t)ROWS * cols, 0, 1, seed, 0, ctx) == TE_OK);
        return te_matrix(p, dtype, ROWS, cols);
    }
    template <class T> std::vector<T> read(const T *from, size_t n) {
        std::vector<T> v(n);
        REQUIRE(te_copy(ctx, v.data(), from, n * sizeof(T)) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        return v;
    }
};
te_batch batch_of(int batch, int seq) {
    te_batch b;
    memset(&b, 0, sizeof b), b.batch = batch, b.seq = seq;
    return b;
}
#define BIND(list, p, m)                                                                                        \
    do {                                                                                                        \
        REQUIRE(list##_bind(&(m), (p).get(list##_param_bytes()), (float *)(p).get(list##_grad_bytes()), (p).ctx) == TE_OK); \
        REQUIRE(te_model_randomize(&(m).model, 0.3f, 1, 0, (p).ctx) == TE_OK);                                  \
        REQUIRE(te_context_reserve((p).ctx, list##_workspace_bytes(&(m), ROWS, (p).ctx)) == TE_OK);             \
    } while (0)
te_saved saved_of(pool &p, size_t bytes) {
    te_saved s;
    memset(&s, 0, sizeof s), s.bytes = bytes, s.memory = p.get(bytes);
    return s;
}

// A network under a recipe with an optimizer, as a checkpoint has them.
struct trained {
    pool &p;
    scaled m;
    te_model *models[1];
    te_recipes recipes;
    te_adamw opt;
    te_named_model name;
    te_checkpoint checkpoint;
    trained(pool &of, int history, te_dtype moments) : p(of), models{&m.model}, name{"h0", &m.model} {
        BIND(scaled, p, m);
        te_adamw_config c = te_adamw_defaults(1e-2f);
        c.moments = moments;
        size_t bytes = te_adamw_bytes_of(models, 1, &c);
        REQUIRE(te_adamw_init(&opt, p.get(bytes), bytes, models, 1, &c, p.ctx) == TE_OK);
        te_recipes_config r = te_recipes_defaults();
        r.history = history, bytes = te_recipes_bytes(models, 1, &r);
        REQUIRE(te_recipes_init(&recipes, p.get(bytes), bytes, models, 1, &r, p.ctx) == TE_OK);
        memset(&checkpoint, 0, sizeof checkpoint);
        checkpoint.models = &name, checkpoint.count = 1, checkpoint.optimizer = &opt, checkpoint.recipes = &recipes;
    }
    void step() {
        te_saved s = saved_of(p, scaled_saved_bytes(ROWS));
        const te_batch b = batch_of(1, ROWS);
        const te_tensor x = p.normal(32, TE_bf16, 2), y = p.normal(32, TE_bf16, 3), dy = p.normal(32, TE_bf16, 4), dx = p.normal(32, TE_bf16, 5);
        REQUIRE(scaled_forward(y, &s, x, &m, &b, p.ctx) == TE_OK);
        REQUIRE(scaled_backward(dx, dy, &s, &m, &b, p.ctx) == TE_OK);
        REQUIRE(te_adamw_step(&opt, p.ctx) == TE_OK);
        REQUIRE(te_recipes_step(&recipes, p.ctx) == TE_OK);
    }
    std::vector<char> scales() { return p.read((const char *)recipes.scales.memory, recipes.scales.bytes); }
    void save(const std::string &path) { REQUIRE(te_checkpoint_save(path.c_str(), &checkpoint, p.ctx) == TE_OK); }
    te_status load(const std::string &path) {
        te_safetensors f;
        REQUIRE(te_safetensors_open(&f, path.c_str(), p.ctx) == TE_OK);
        const te_status status = te_checkpoint_load(&checkpoint, &f, p.ctx);
        te_safetensors_close(&f);
        return status;
    }
};

} // namespace

TEST_CASE("a te_saved is refused by the backward of another instance") {
    target t;
    pool p(t);
    plain m[2];
    for (plain &one : m) BIND(plain, p, one);
    te_saved s = saved_of(p, plain_saved_bytes(ROWS));
    const te_batch b = batch_of(2, ROWS / 2);
    const te_tensor x = p.normal(32, TE_f32, 2), y = p.normal(32, TE_f32, 3), dy = p.normal(32, TE_f32, 4), dx = p.normal(32, TE_f32, 5);
    REQUIRE(plain_forward(y, &s, x, &m[0], &b, t) == TE_OK);
    CHECK(plain_backward(dx, dy, &s, &m[1], &b, t) == TE_ERROR_STATE);
    CHECK(std::string(te_last_error(t)).find("another instance") != std::string::npos);
    CHECK(plain_backward(dx, dy, &s, &m[0], &b, t) == TE_OK);
}

TEST_CASE("backward has the positions of its forward") {
    target t;
    pool p(t);
    turned m;
    BIND(turned, p, m);
    te_saved s = saved_of(p, turned_saved_bytes(ROWS));
    int32_t *positions = (int32_t *)p.get(ROWS * sizeof(int32_t)), *others = (int32_t *)p.get(ROWS * sizeof(int32_t));
    const te_tensor x = p.normal(32, TE_f32, 2), y = p.normal(32, TE_f32, 3), dy = p.normal(32, TE_f32, 4), dx = p.normal(32, TE_f32, 5);
    for (const int32_t *at_forward : {(const int32_t *)nullptr, (const int32_t *)positions})
        for (const int32_t *at_backward : {(const int32_t *)nullptr, (const int32_t *)positions, (const int32_t *)others}) {
            te_batch b = batch_of(2, ROWS / 2);
            b.positions = at_forward;
            REQUIRE(turned_forward(y, &s, x, &m, &b, t) == TE_OK);
            b.positions = at_backward;
            CHECK(turned_backward(dx, dy, &s, &m, &b, t) == (at_forward == at_backward ? TE_OK : TE_ERROR_VALUE));
        }
}

TEST_CASE("backward has the tokens and the labels of its forward") {
    target t;
    pool p(t);
    texts m;
    BIND(texts, p, m);
    te_saved s = saved_of(p, texts_saved_bytes(ROWS));
    int32_t *ids = (int32_t *)p.get(ROWS * sizeof(int32_t)), *others = (int32_t *)p.get(ROWS * sizeof(int32_t));
    REQUIRE(te_fill(t, ids, 0, ROWS * sizeof *ids) == TE_OK);
    REQUIRE(te_fill(t, others, 0, ROWS * sizeof *others) == TE_OK);
    const te_tensor y = te_matrix(p.get(ROWS * sizeof(float)), TE_f32, ROWS, 1);
    te_batch b = batch_of(2, ROWS / 2);
    b.tokens = b.labels = ids, b.ignore_index = -1, b.loss_scale = 1;
    REQUIRE(texts_forward(y, &s, te_none(), &m, &b, t) == TE_OK);
    const auto refused = [&](te_batch at_backward, const char *text, te_status status = TE_ERROR_VALUE) {
        CHECK(texts_backward(te_none(), te_none(), &s, &m, &at_backward, t) == status);
        CHECK(std::string(te_last_error(t)).find(text) != std::string::npos);
    };
    te_batch other = b;
    other.tokens = others, refused(other, "the forward had its tokens at");
    other = b, other.tokens = nullptr, refused(other, "tokens", TE_ERROR_NULL);
    other = b, other.labels = others, refused(other, "the forward had its labels at");
    other = b, other.ignore_index = 3, refused(other, "ignored -1, this batch");
    CHECK(texts_backward(te_none(), te_none(), &s, &m, &b, t) == TE_OK);
}

TEST_CASE("a loss count that is no number makes the gradients none") {
    target t;
    pool p(t);
    loss m;
    BIND(loss, p, m);
    te_saved s = saved_of(p, loss_saved_bytes(ROWS));
    te_batch b = batch_of(1, ROWS);
    float *count = (float *)p.get(sizeof(float));
    b.labels = (const int32_t *)p.get(ROWS * sizeof(int32_t)), b.loss_count = count, b.loss_scale = 1;
    const te_tensor x = p.normal(32, TE_f32, 2), dx = p.normal(32, TE_f32, 5);
    const te_tensor y = te_matrix(p.get(ROWS * sizeof(float)), TE_f32, ROWS, 1);
    float first[4];
    const float counts[4] = {0, 1, 4, NAN};
    for (int i = 0; i < 4; i++) {
        REQUIRE(te_copy(t, count, &counts[i], sizeof(float)) == TE_OK);
        REQUIRE(loss_forward(y, &s, x, &m, &b, t) == TE_OK);
        REQUIRE(loss_backward(dx, te_none(), &s, &m, &b, t) == TE_OK);
        first[i] = p.read((const float *)dx.data, 1)[0];
    }
    CHECK(first[0] == first[1]);
    CHECK(first[2] == first[1] / 4);
    CHECK(std::isnan(first[3]));
}

TEST_CASE("a checkpoint whose scales cannot be is refused, and changes nothing") {
    target t;
    pool p(t);
    folder dir;
    trained from(p, 16, TE_f32), to(p, 16, TE_f32);
    const float none = NAN, infinite = INFINITY, negative = -1, zero = 0;
    const int32_t before = -1, behind = 16, far_away = 1 << 26;
    te_scales &s = from.recipes.scales;
    struct { void *at; const void *value; } bad[] = {{s.at + 1, &before}, {s.at, &behind}, {s.at + 2, &far_away}, {s.scale, &none}, {s.scale + 1, &infinite}, {s.scale, &zero},
                                                     {s.history + 3, &none}, {s.history, &negative}, {s.inverse, &zero}, {s.format_max, &none}};
    from.save(dir / "good");
    for (const auto &one : bad) {
        const std::vector<char> good = from.scales(), old = to.scales();
        REQUIRE(te_copy(t, one.at, one.value, 4) == TE_OK);
        from.checkpoint.force = 1, from.save(dir / "bad"), from.checkpoint.force = 0;
        CHECK(to.load(dir / "bad") == TE_ERROR_FORMAT);
        INFO(te_last_error(t));
        const bool same = to.scales() == old;
        CHECK(same);
        REQUIRE(te_copy(t, s.memory, good.data(), good.size()) == TE_OK);
    }
    CHECK(to.load(dir / "good") == TE_OK);
}

TEST_CASE("scales are loaded whatever the format of the moments") {
    for (const te_dtype moments : {TE_f32, TE_bf16, TE_e4m3}) {
        target t;
        pool p(t);
        folder dir;
        trained from(p, 16, moments), to(p, 16, moments);
        for (int i = 0; i < 3; i++) from.step();
        from.save(dir / "run");
        REQUIRE(to.load(dir / "run") == TE_OK);
        const bool same = to.scales() == from.scales();
        CHECK(same);
        CHECK(to.recipes.begun == from.recipes.begun);
    }
}

// Overwrite a scale of the file's FP8 weights, and load it.
template <class M> void load_scale(te_context *ctx, const std::string &path, const char *name, float value, te_status (*bind)(M *, void *, te_context *), te_status expected) {
    pool p(ctx);
    M m;
    te_safetensors f;
    te_fp8_weights w;
    std::ifstream in(path, std::ios::binary);
    std::vector<char> bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    REQUIRE(te_safetensors_open_memory(&f, bytes.data(), bytes.size(), ctx) == TE_OK);
    const te_safetensor *tensor = te_safetensors_find(&f, name);
    REQUIRE(tensor);
    std::memcpy(bytes.data() + f.data_at + tensor->offset, &value, sizeof value);
    REQUIRE(bind(&m, nullptr, ctx) == TE_OK);
    te_named_model to = {"h", &m.model};
    const size_t needed = te_fp8_weights_bytes(&to, 1);
    INFO(name << " is " << value << ": " << te_last_error(ctx));
    CHECK(te_fp8_weights_load(&w, p.get(needed), needed, &to, 1, &f, ctx) == expected);
    te_safetensors_close(&f);
}
TEST_CASE("FP8 weights with a scale that is none are refused") {
    target t;
    pool p(t);
    folder dir;
    scaled by_tensor;
    blocks by_block;
    BIND(scaled, p, by_tensor);
    BIND(blocks, p, by_block);
    te_model *models[2] = {&by_tensor.model, &by_block.model};
    te_recipes r[2];
    for (int i = 0; i < 2; i++) {
        te_recipes_config c = te_recipes_defaults();
        const size_t bytes = te_recipes_bytes(&models[i], 1, &c);
        REQUIRE(te_recipes_init(&r[i], p.get(bytes), bytes, &models[i], 1, &c, t) == TE_OK);
        te_named_model name = {"h", models[i]};
        REQUIRE(te_fp8_weights_save((dir / (i ? "block" : "tensor")).c_str(), &name, 1, t) == TE_OK);
    }
    for (const float value : {NAN, INFINITY, 0.0f, -1.0f, 0.5f}) {
        const te_status expected = value == 0.5f ? TE_OK : TE_ERROR_VALUE;
        load_scale<scaled_small>(t, dir / "tensor", "h.fc1.weight_scale_inv", value, scaled_small_bind, expected);
        load_scale<blocks_small>(t, dir / "block", "h.fc1.weight_scale_inv", value, blocks_small_bind, expected);
    }
}

TE_SEQUENTIAL(tokens_in, f32, (embedding, wte, 20, 32))
TE_SEQUENTIAL(tokens_out, f32, (tied_linear, lm, 32, 20), (cross_entropy, ce, 20))
TE_INFERENCE(mapped, f32, (linear, fc1, 32, 32), (gelu, a), (linear, fc2, 32, 32))
TE_SEQUENTIAL(to_map, f32, (linear, fc1, 32, 32), (gelu, a), (linear, fc2, 32, 32))
TEST_CASE("a result over a parameter that lies outside of the instance's own memory is refused") {
    target t;
    pool p(t);
    folder dir;
    te_batch b = batch_of(1, ROWS);
    const auto refused = [&](te_status status, const char *word) {
        INFO(te_last_error(t));
        CHECK(status == TE_ERROR_VALUE);
        CHECK(std::string(te_last_error(t)).find(word) != std::string::npos);
    };
    { // a tied weight, and its gradient
        tokens_in e;
        tokens_out h;
        BIND(tokens_in, p, e);
        BIND(tokens_out, p, h);
        REQUIRE(te_tie(&h.lm.weight, &e.wte.weight, t) == TE_OK);
        te_saved s = saved_of(p, tokens_out_saved_bytes(ROWS));
        b.labels = (const int32_t *)p.get(ROWS * sizeof(int32_t)), b.loss_scale = 1;
        const te_tensor x = p.normal(32, TE_f32, 2), y = te_matrix(p.get(ROWS * sizeof(float)), TE_f32, ROWS, 1);
        refused(tokens_out_forward(te_matrix(e.wte.weight.data, TE_f32, ROWS, 1), &s, x, &h, &b, t), "y overlaps the parameters (lm.weight, which is tied)");
        refused(tokens_out_forward(te_matrix((float *)e.wte.weight.data + 20 * 32 - 4, TE_f32, ROWS, 1), &s, x, &h, &b, t), "overlaps the parameters");
        REQUIRE(tokens_out_forward(y, &s, x, &h, &b, t) == TE_OK);
        refused(tokens_out_backward(te_matrix(e.wte.weight.data, TE_f32, ROWS, 32), te_none(), &s, &h, &b, t), "dx overlaps the parameters");
        refused(tokens_out_backward(te_matrix(e.wte.weight.grad, TE_f32, ROWS, 32), te_none(), &s, &h, &b, t), "dx overlaps the gradients (lm.weight, which is tied)");
        REQUIRE(tokens_out_backward(p.normal(32, TE_f32, 5), te_none(), &s, &h, &b, t) == TE_OK);
        b.labels = nullptr;
    }
    { // weights in FP8, beside those in bf16 and alone
        trained from(p, 16, TE_f32);
        const te_fp8_product &f = from.m.fc2.weight.fp8;
        te_saved s = saved_of(p, scaled_saved_bytes(ROWS));
        const te_tensor x = p.normal(32, TE_bf16, 2);
        for (void *at : {f.data, f.transposed}) refused(scaled_forward(te_matrix(at, TE_bf16, ROWS, 32), &s, x, &from.m, &b, t), "y overlaps the parameters (fc2.weight in FP8)");
        REQUIRE(te_fp8_weights_save((dir / "fp8").c_str(), &from.name, 1, t) == TE_OK);
        scaled_small m;
        te_fp8_weights w;
        te_safetensors file;
        REQUIRE(scaled_small_bind(&m, nullptr, t) == TE_OK);
        te_named_model to = {"h0", &m.model};
        const size_t needed = te_fp8_weights_bytes(&to, 1);
        REQUIRE(te_safetensors_open(&file, (dir / "fp8").c_str(), t) == TE_OK);
        REQUIRE(te_fp8_weights_load(&w, p.get(needed), needed, &to, 1, &file, t) == TE_OK);
        te_safetensors_close(&file);
        REQUIRE(te_context_reserve(t, scaled_small_workspace_bytes(&m, ROWS, t)) == TE_OK);
        refused(scaled_small_infer(te_matrix(m.fc1.weight.fp8.data, TE_bf16, ROWS, 32), x, &m, &b, t), "y overlaps the parameters (fc1.weight in FP8)");
        refused(scaled_small_infer(te_matrix(m.n1.weight.data, TE_bf16, ROWS, 32), x, &m, &b, t), "y overlaps the parameters (n1.weight)");
        REQUIRE(scaled_small_infer(p.normal(32, TE_bf16, 3), x, &m, &b, t) == TE_OK);
    }
    if (TE_CUDA) return;
    to_map from; // a mapped file
    mapped m;
    BIND(to_map, p, from);
    te_named_model name = {"h0", &from.model}, to = {"h0", &m.model};
    te_checkpoint c;
    memset(&c, 0, sizeof c), c.models = &name, c.count = 1;
    REQUIRE(te_checkpoint_save((dir / "run").c_str(), &c, t) == TE_OK);
    te_safetensors file;
    REQUIRE(te_safetensors_map(&file, (dir / "run").c_str(), t) == TE_OK);
    REQUIRE(mapped_bind(&m, nullptr, t) == TE_OK);
    REQUIRE(te_weights_use(&to, 1, &file, t) == TE_OK);
    REQUIRE(te_context_reserve(t, mapped_workspace_bytes(&m, ROWS, t)) == TE_OK);
    const te_tensor x = p.normal(32, TE_f32, 2);
    refused(mapped_infer(te_matrix(m.fc2.weight.data, TE_f32, ROWS, 32), x, &m, &b, t), "y overlaps the parameters (fc2.weight, in a file)");
    REQUIRE(mapped_infer(p.normal(32, TE_f32, 3), x, &m, &b, t) == TE_OK);
    te_safetensors_close(&file);
}

TEST_CASE("an empty path is refused before a training, not behind it") {
    target t;
    CHECK(te_checkpoint_probe("", t) == TE_ERROR_IO);
}

// Numbers of a JSON file are those that strtod reads in the C locale, in every locale that this machine has with another decimal point.
TEST_CASE("numbers of JSON do not depend on the locale") {
    target t;
    folder dir;
    const char *const numbers[] = {"0.5", "12.75", "-0.25e1", "0", "-0.0", "1e-05", "3.141592653589793238462643383279", "6.02214076E+23", "1.7976931348623157e308", "4.9e-324", "0.1",
                                   "123456789012345678901234567890.5", "1e999999999999", "1e-999999999999", "0.000000000000000000000000000001e30"};
    const int count = (int)(sizeof numbers / sizeof numbers[0]);
    std::ofstream file(dir / "n.json");
    for (int i = 0; i < count; i++) file << (i ? ", " : "{") << "\"n" << i << "\": " << numbers[i];
    file << "}";
    file.close();
    std::vector<double> want;
    for (const char *number : numbers) want.push_back(std::strtod(number, nullptr));
    int others = 0;
    for (const char *locale : {"C", "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "pl_PL.UTF-8"}) {
        if (!std::setlocale(LC_ALL, locale)) continue;
        others += std::strtod("0,5", nullptr) == 0.5;
        te_json j;
        REQUIRE(te_json_open(&j, (dir / "n.json").c_str(), t) == TE_OK);
        for (int i = 0; i < count; i++) {
            INFO(numbers[i] << " in the locale " << locale);
            const te_json_value *v = te_json_find(&j, ("n" + std::to_string(i)).c_str());
            REQUIRE(v);
            CHECK(std::memcmp(&v->number, &want[(size_t)i], sizeof(double)) == 0);
        }
        te_json_close(&j);
    }
    std::setlocale(LC_ALL, "C");
    if (!others) WARN("no locale with a decimal comma here");
}
TEST_CASE("numbers of JSON that are none are refused") {
    target t;
    folder dir;
    for (const std::string &number : {std::string("."), std::string(".5"), std::string("1."), std::string("01"), std::string("1e"), std::string("1e+"), std::string("-"), std::string("+1"),
                                      std::string("0x1"), std::string("1,5"), "1." + std::string(70, '3'), std::string(64, '1'), "1e" + std::string(70, '0')}) {
        std::ofstream(dir / "n.json") << "{\"n\": " << number << "}";
        te_json j;
        INFO(number);
        CHECK(te_json_open(&j, (dir / "n.json").c_str(), t) == TE_ERROR_FORMAT);
    }
}

TEST_CASE("a JSON file does not take hundreds of times its size") {
    target t;
    folder dir;
    for (const int values : {20000, 400000}) {
        std::ofstream file(dir / "n.json");
        file << "{\"" << std::string(values == 20000 ? 8 : 240, 'k') << "\": [0";
        for (int i = 1; i < values; i++) file << ",0";
        file << "]}";
        file.close();
        te_json j;
        const te_status status = te_json_open(&j, (dir / "n.json").c_str(), t);
        INFO(te_last_error(t));
        CHECK(status == (values == 20000 ? TE_OK : TE_ERROR_FORMAT));
        if (status == TE_OK) te_json_close(&j);
    }
    std::ofstream index(dir / "index.json"); // as long names as an index of weights has
    index << "{\"weight_map\": {\"a\": \"b\"";
    for (int i = 0; i < 60000; i++) index << ", \"model.layers." << i << ".self_attn.q_proj.weight\": \"model-00001-of-00030.safetensors\"";
    index << "}}";
    index.close();
    te_json j;
    REQUIRE(te_json_open(&j, (dir / "index.json").c_str(), t) == TE_OK);
    CHECK(j.count == 60001);
    te_json_close(&j);
}
