// packed_test.cc -- several tensors of a file that are packed into one parameter (q, k and v into qkv). They are loaded to the right places and
// saved as separate tensors with the same bits, with conversions of the format, transposed or not. Parts that do not match are refused by name.
#include "hand_model.h"

#include <cstdlib>
#include <memory>

#include <unistd.h>

#include "te/io/packed.h"

namespace {

struct path { // a temporary file, which the destructor removes
    std::string name;
    explicit path(const char *what) : name(std::string(std::getenv("TEST_TMPDIR") ? std::getenv("TEST_TMPDIR") : "/tmp") + "/te_packed_" + std::to_string(getpid()) + what) {}
    ~path() { (void)unlink(name.c_str()); }
    operator const char *() const { return name.c_str(); }
};

std::vector<hand_param> block_params() { return {{"norm", "weight", 1, 6}, {"qkv", "weight", 14, 6}, {"qkv_b", "bias", 1, 14}, {"fc1", "weight", 10, 6}, {"fc2", "weight", 6, 5}, {"out", "weight", 1, 6}, {"lm", "weight", 14, 6, 1}}; }
const te_packed parts[] = {{"norm.weight", "norm", "weight", 0, 0}, {"q.weight", "qkv", "weight", 8, 0},  {"q.bias", "qkv_b", "bias", 8, 0},    {"k.weight", "qkv", "weight", 5, 1},
                           {"k.bias", "qkv_b", "bias", 5, 0},       {"v.weight", "qkv", "weight", 1, 0},  {"v.bias", "qkv_b", "bias", 0, 0},    {"gate.weight", "fc1", "weight", 5, 0},
                           {"up.weight", "fc1", "weight", 0, 1},    {"down.weight", "fc2", "weight", 0, 1}, {"out.weight", "out", "weight", 0, 1}};
const int part_count = (int)(sizeof parts / sizeof parts[0]);

struct views {
    te_packed_list l = te_packed_none();
    ~views() { te_packed_free(&l); }
};

// The views are those of all parameters of m, and are loaded from the file.
void load(const views &v, const hand_model &m, const char *file, te_context *t) {
    CHECK(te_packed_covers(&v.l, &m.model, t) == TE_OK);
    te_safetensors f;
    REQUIRE(te_safetensors_open(&f, file, t) == TE_OK);
    const te_status loaded = te_safetensors_load(&f, v.l.tensor, v.l.count, 1, t);
    INFO(te_last_error(t));
    REQUIRE(loaded == TE_OK);
    te_safetensors_close(&f);
    m.check_gaps();
}
std::vector<float> file_floats(te_context *ctx, const char *file, const char *name) {
    te_safetensors f;
    REQUIRE(te_safetensors_open(&f, file, ctx) == TE_OK);
    const te_safetensor *t = te_safetensors_find(&f, name);
    REQUIRE(t != nullptr);
    const te_dtype dtype = t->dtype == TE_SAFETENSORS_F32 ? TE_f32 : t->dtype == TE_SAFETENSORS_F16 ? TE_f16 : TE_bf16;
    std::vector<uint8_t> raw((size_t)t->bytes);
    REQUIRE(te_safetensors_read(&f, t, raw.data(), ctx) == TE_OK);
    std::vector<float> v((size_t)t->bytes / te_dtype_bytes(dtype));
    for (size_t i = 0; i < v.size(); i++) v[i] = te_load(raw.data(), (int64_t)i, dtype);
    te_safetensors_close(&f);
    return v;
}

} // namespace

TEST_CASE("separate tensors are loaded into one parameter, and saved as separate tensors") {
    target t;
    std::mt19937 random(3);
    const path first("first"), second("second");
    for (te_dtype dtype : {TE_f32, TE_bf16, TE_f16})
        for (te_dtype stored : {TE_f32, TE_bf16}) {
            // Tensors as another program writes them, with their own shapes.
            const std::vector<std::pair<const char *, std::vector<int64_t>>> shapes = {{"norm.weight", {6}}, {"q.weight", {8, 6}}, {"q.bias", {8}}, {"k.weight", {6, 5}}, {"k.bias", {5}}, {"v.weight", {1, 6}},
                {"v.bias", {1}}, {"gate.weight", {5, 6}}, {"up.weight", {6, 5}}, {"down.weight", {5, 6}}, {"out.weight", {6, 1}}};
            std::vector<std::string> names;
            std::vector<te_safetensor> list;
            std::vector<std::vector<float>> values;
            std::vector<std::unique_ptr<memory>> there;
            for (const auto &s : shapes) {
                size_t n = 1;
                for (int64_t d : s.second) n *= (size_t)d;
                values.push_back(hand_model::draw(random, n, 1));
                for (float &v : values.back()) v = te_round_to(v, TE_bf16); // f16 may round it a second time
                there.emplace_back(new memory(t, n * te_dtype_bytes(stored)));
                write_floats(t, there.back()->p, values.back(), stored);
                names.push_back("layers.3." + std::string(s.first));
            }
            for (size_t i = 0; i < shapes.size(); i++) list.push_back(te_safetensor_of(names[i].c_str(), te__safetensors_dtype_of(stored), (int)shapes[i].second.size(), shapes[i].second.data(), there[i]->p));
            REQUIRE(te_safetensors_write(first, list.data(), (int)list.size(), nullptr, 0, t) == TE_OK);

            hand_model m(t, "block", dtype, block_params(), false);
            views v;
            REQUIRE(te_packed_add(&v.l, &m.model, parts, part_count, "layers.3.", t) == TE_OK);
            load(v, m, first, t);
            const auto is = [&](float x) { return te_round_to(x, dtype); };
            const std::vector<float> qkv = m.data(1), bias = m.data(2), fc1 = m.data(3), fc2 = m.data(4), out = m.data(5);
            for (size_t r = 0; r < 14; r++)
                for (size_t c = 0; c < 6; c++) CHECK(qkv[r * 6 + c] == is(r < 8 ? values[1][r * 6 + c] : r < 13 ? values[3][c * 5 + r - 8] : values[5][c]));
            for (size_t i = 0; i < 14; i++) CHECK(bias[i] == is(i < 8 ? values[2][i] : i < 13 ? values[4][i - 8] : values[6][0]));
            for (size_t r = 0; r < 10; r++)
                for (size_t c = 0; c < 6; c++) CHECK(fc1[r * 6 + c] == is(r < 5 ? values[7][r * 6 + c] : values[8][c * 5 + r - 5]));
            for (size_t r = 0; r < 6; r++)
                for (size_t c = 0; c < 5; c++) CHECK(fc2[r * 5 + c] == is(values[9][c * 6 + r]));
            for (size_t c = 0; c < 6; c++) CHECK(out[c] == is(values[10][c]));

            REQUIRE(te_safetensors_write(second, v.l.tensor, v.l.count, nullptr, 0, t) == TE_OK);
            for (size_t i = 0; i < names.size(); i++) {
                std::vector<float> want = values[i];
                for (float &x : want) x = is(x);
                CAPTURE(names[i]);
                CHECK(file_floats(t, second, names[i].c_str()) == want);
            }
        }
}

TEST_CASE("parts that do not match are refused by name, and the list of tensors does not change") {
    target t;
    hand_model m(t, "block", TE_f32, block_params(), false);
    views v;
    REQUIRE(te_packed_add(&v.l, &m.model, parts, 1, "a.", t) == TE_OK);
    const auto refuse = [&](std::vector<te_packed> p, te_status status, const char *word) {
        CAPTURE(word);
        CHECK(te_packed_add(&v.l, &m.model, p.data(), (int)p.size(), "x.", t) == status);
        CHECK(std::string(te_last_error(t)).find(word) != std::string::npos);
        CHECK(v.l.count == 1);
        CHECK(v.l.tensor[0].name == std::string("a.norm.weight"));
    };
    refuse({{"q", "qkw", "weight", 0, 0}}, TE_ERROR_VALUE, "block has no parameter qkw.weight");
    refuse({{"q", "qkv", "bias", 0, 0}}, TE_ERROR_VALUE, "block has no parameter qkv.bias");
    refuse({{nullptr, "qkv", "weight", 0, 0}}, TE_ERROR_NULL, "part 0 has no name");
    refuse({{"lm", "lm", "weight", 0, 0}}, TE_ERROR_VALUE, "lm.weight is tied");
    refuse({{"q", "qkv", "weight", 8, 0}, {"k", "qkv", "weight", 7, 0}}, TE_ERROR_SHAPE, "k: 7 rows of qkv.weight, of which 6 are left");
    refuse({{"q", "qkv", "weight", 0, 0}, {"k", "qkv", "weight", 0, 0}}, TE_ERROR_SHAPE, "of which 0 are left");
    refuse({{"q", "qkv", "weight", -1, 0}}, TE_ERROR_SHAPE, "-1 rows");
    refuse({{"q", "qkv", "weight", INT64_MAX, 0}}, TE_ERROR_SHAPE, "of which 14 are left");
    refuse({{"q", "qkv_b", "bias", 8, 0}}, TE_ERROR_SHAPE, "the parts of qkv_b.bias have 8 of its 14 columns");
    CHECK(te_packed_add(nullptr, &m.model, parts, 1, "", t) == TE_ERROR_NULL);
    CHECK(te_packed_add(&v.l, nullptr, parts, 1, "", t) == TE_ERROR_NULL);
    CHECK(te_packed_add(&v.l, &m.model, nullptr, 1, "", t) == TE_ERROR_NULL);
    CHECK(te_packed_add(&v.l, &m.model, parts, 1, nullptr, t) == TE_ERROR_NULL);
    CHECK(te_packed_add(&v.l, &m.model, parts, -1, "", t) == TE_ERROR_SHAPE);
    CHECK(te_packed_covers(&v.l, &m.model, t) == TE_ERROR_SHAPE);
    CHECK(std::string(te_last_error(t)) == "block: no tensor of the file is qkv.weight, 14 x 6");
    // An invalid value of transposed.
    te_safetensor bad = te_safetensor_matrix("x", TE_f32, 1, 6, m.param[0].data);
    bad.transposed = 1;
    CHECK(te_safetensors_write(path("bad"), &bad, 1, nullptr, 0, t) == TE_ERROR_SHAPE);
    te_packed_free(nullptr);
}

TEST_CASE("a tensor that stores q, k and v head by head is loaded into a parameter with q, k and v of all heads") {
    target t;
    std::mt19937 random(7);
    const path file("heads");
    const int cols = 5, dim = 3;
    for (const std::pair<int, int> &n : {std::pair<int, int>(4, 4), {6, 2}, {3, 1}}) {
        const int heads = n.first, kv = n.second, group = heads / kv, rows = (heads + 2 * kv) * dim;
        hand_model m(t, "block", TE_f32, {{"qkv", "weight", rows, cols}, {"qkv_b", "bias", 1, rows}}, false);
        std::vector<std::vector<float>> values = {hand_model::draw(random, (size_t)(rows * cols), 1), hand_model::draw(random, (size_t)rows, 1)};
        memory weight(t, values[0].size() * 4), bias(t, values[1].size() * 4);
        write_floats(t, weight.p, values[0]), write_floats(t, bias.p, values[1]);
        const int64_t shape[1] = {rows};
        const te_safetensor stored[] = {te_safetensor_matrix("h.query_key_value.weight", TE_f32, rows, cols, weight.p),
                                        te_safetensor_of("h.query_key_value.bias", te__safetensors_dtype_of(TE_f32), 1, shape, bias.p)};
        REQUIRE(te_safetensors_write(file, stored, 2, nullptr, 0, t) == TE_OK);
        views v;
        const te_packed_heads tensors[] = {{"query_key_value.weight", "qkv", "weight", heads, kv}, {"query_key_value.bias", "qkv_b", "bias", heads, kv}};
        REQUIRE(te_packed_add_heads(&v.l, &m.model, tensors, 2, "h.", t) == TE_OK);
        load(v, m, file, t);
        const std::vector<float> qkv = m.data(0), b = m.data(1);
        for (int head = 0; head < heads + 2 * kv; head++) { // of the parameter: q, then k, then v
            const int of = head < heads ? head / group : (head - heads) % kv;                                            // its kv head
            const int in_file = of * (group + 2) + (head < heads ? head % group : group + (head >= heads + kv)); // heads of the file in front of it
            for (int r = 0; r < dim; r++) {
                CHECK(b[(size_t)(head * dim + r)] == values[1][(size_t)(in_file * dim + r)]);
                for (int c = 0; c < cols; c++) CHECK(qkv[(size_t)((head * dim + r) * cols + c)] == values[0][(size_t)((in_file * dim + r) * cols + c)]);
            }
        }
        const auto refuse = [&](te_packed_heads h, te_status status, const char *word) {
            const int before = v.l.count;
            CHECK(te_packed_add_heads(&v.l, &m.model, &h, 1, "", t) == status);
            CHECK(std::string(te_last_error(t)).find(word) != std::string::npos);
            CHECK(v.l.count == before);
        };
        refuse({"x", "qkw", "weight", heads, kv}, TE_ERROR_VALUE, "block has no parameter qkw.weight");
        refuse({"x", "qkv", "weight", heads + kv, kv}, TE_ERROR_SHAPE, "rows, not those of");
        refuse({"x", "qkv", "weight", heads, 0}, TE_ERROR_SHAPE, "of q and 0 of k and v");
        refuse({"x", "qkv_b", "bias", -heads, kv}, TE_ERROR_SHAPE, "columns, not those of");
        refuse({nullptr, "qkv", "weight", heads, kv}, TE_ERROR_NULL, "has no name");
    }
}

// kv_b_proj of DeepSeek: of each head, 3 rows for k and then 2 for v.
TEST_CASE("some rows of each head of a tensor are loaded into a parameter") {
    target t;
    std::mt19937 random(8);
    const path file("head_rows");
    const int heads = 3, cols = 4, all = 5;
    hand_model m(t, "block", TE_f32, {{"k_b", "weight", heads * 3, cols}, {"v_b", "weight", heads * 2, cols}}, false);
    const std::vector<float> values = hand_model::draw(random, (size_t)(heads * all * cols), 1);
    memory stored(t, values.size() * 4);
    write_floats(t, stored.p, values);
    const te_safetensor tensor = te_safetensor_matrix("h.kv_b.weight", TE_f32, heads * all, cols, stored.p);
    REQUIRE(te_safetensors_write(file, &tensor, 1, nullptr, 0, t) == TE_OK);
    views v;
    const te_packed_head_rows of[] = {{"kv_b.weight", "k_b", "weight", heads, all, 0, 3}, {"kv_b.weight", "v_b", "weight", heads, all, 3, 2}};
    REQUIRE(te_packed_add_head_rows(&v.l, &m.model, of, 2, "h.", t) == TE_OK);
    load(v, m, file, t);
    for (int i = 0; i < 2; i++) {
        const std::vector<float> got = m.data(i);
        for (int h = 0; h < heads; h++)
            for (int r = 0; r < of[i].rows; r++)
                for (int c = 0; c < cols; c++)
                    CHECK(got[(size_t)((h * of[i].rows + r) * cols + c)] == values[(size_t)((h * all + of[i].first + r) * cols + c)]);
    }
    const auto refuse = [&](te_packed_head_rows h, te_status status, const char *word) {
        const int before = v.l.count;
        CHECK(te_packed_add_head_rows(&v.l, &m.model, &h, 1, "", t) == status);
        CHECK(std::string(te_last_error(t)).find(word) != std::string::npos);
        CHECK(v.l.count == before);
    };
    refuse({"x", "k_c", "weight", heads, all, 0, 3}, TE_ERROR_VALUE, "block has no parameter k_c.weight");
    refuse({"x", "k_b", "weight", heads, all, 0, 2}, TE_ERROR_SHAPE, "has 9 rows, not the 2 from 0 on of 5 rows of 3 heads");
    refuse({"x", "k_b", "weight", heads, all, 3, 3}, TE_ERROR_SHAPE, "not the 3 from 3 on");
    refuse({"x", "k_b", "weight", 0, all, 0, 3}, TE_ERROR_SHAPE, "rows of 0 heads");
}
