// cache_file_test.cc -- sequences of a cache in files (te/io/cache_file.h): what is in a file, that a loaded sequence goes on with the bits of the saved one
// whatever the pages of both caches, and files that are refused, which leave the cache as it was.
#include "folder.h"
#include "harness.h"
#include "te/infer.h"

// [rows, 48] -> [rows, 48] with two attentions of different sizes
#define LIST(d, dv)                                                                                                                            \
    (linear, l, 48, 3 * d + dv), (rope, r, 2, 1, d, (value_dim, dv)), (attention, a, 2, 1, d, (cache, 1), (value_dim, dv)), (linear, o, 2 * dv, 48), \
        (linear, l2, 48, 4 * 32), (attention, a2, 2, 1, 32, (cache, 1)), (linear, o2, 64, 48)
TE_INFERENCE(in_f32, f32, LIST(24, 16))
TE_INFERENCE(in_bf16, bf16, LIST(64, 128))
TE_INFERENCE(in_f16, f16, LIST(80, 80))
TE_INFERENCE(more_heads, f32, (linear, l, 48, 4 * 24 + 2 * 16), (rope, r, 2, 2, 24, (value_dim, 16)), (attention, a, 2, 2, 24, (cache, 1), (value_dim, 16)),
             (linear, o, 32, 48), (linear, l2, 48, 4 * 32), (attention, a2, 2, 1, 32, (cache, 1)), (linear, o2, 64, 48))
TE_INFERENCE(other_rope, f32, (linear, l, 48, 3 * 24 + 16), (rope, r, 2, 1, 24, (value_dim, 16), (base, 500.0f)),
             (attention, a, 2, 1, 24, (cache, 1), (value_dim, 16)), (linear, o, 32, 48), (linear, l2, 48, 4 * 32), (attention, a2, 2, 1, 32, (cache, 1)),
             (linear, o2, 64, 48))
TE_INFERENCE(one_layer, f32, (linear, l, 48, 3 * 24 + 16), (rope, r, 2, 1, 24, (value_dim, 16)), (attention, a, 2, 1, 24, (cache, 1), (value_dim, 16)),
             (linear, o, 32, 48))
TE_INFERENCE(plain_bf16, bf16, (attention, a, 2, 2, 64, (cache, 1)))

namespace {

te_cache_config config_of(int sequences, int capacity, int page_rows, int pages = 0) {
    te_cache_config c = te_cache_defaults();
    c.sequences = sequences, c.capacity = capacity, c.page_rows = page_rows, c.pages = pages;
    return c;
}

// Two instances of a list, one behind the other, with the same random weights in each `runner`, and a cache.
template <class Model> struct runner {
    te_context *ctx;
    Model m[2];
    std::unique_ptr<buffer> params[2], memory;
    te_cache cache;
    const te_plan *plan;
    runner(te_context *c, const te_cache_config &config, const te_plan *p, size_t bytes, te_status (*bind)(Model *, void *, te_context *)) : ctx(c), plan(p) {
        te_model *models[2];
        for (int i = 0; i < 2; i++) {
            params[i].reset(new buffer(ctx, bytes));
            REQUIRE(bind(&m[i], params[i]->data(), ctx) == TE_OK);
            REQUIRE(te_model_randomize(&m[i].model, 0.3f, 7, (uint32_t)i, ctx) == TE_OK);
            models[i] = &m[i].model;
        }
        memory.reset(new buffer(ctx, te_cache_bytes(models, 2, &config)));
        REQUIRE(te_cache_init(&cache, memory->data(), memory->bytes, models, 2, &config, ctx) == TE_OK);
        REQUIRE(te_context_reserve(ctx, te_plan_workspace_bytes(plan, &m[0].model, 128, ctx)) == TE_OK);
    }
    // Appends rows [first, first + count) of x to sequence `slot`; returns the bits of the outputs.
    std::vector<uint8_t> step(int32_t slot, const reference::vec &x, int first, int count) {
        const size_t size = te_dtype_bytes(plan->dtype), in = (size_t)plan->in;
        buffer rows(ctx, (size_t)count * in * size), y(ctx, (size_t)count * in * size), slots(ctx, 4);
        rows.write(reference::vec(x.begin() + (long)(first * (int)in), x.begin() + (long)((first + count) * (int)in)), plan->dtype);
        slots.write_ints({slot});
        te_batch b;
        memset(&b, 0, sizeof b);
        b.batch = 1, b.seq = count, b.cache = &cache, b.slots = (const int32_t *)slots.data();
        REQUIRE(te_cache_begin(&cache, &b, ctx) == TE_OK);
        const te_tensor from = te_matrix(rows.data(), plan->dtype, count, plan->in), to = te_matrix(y.data(), plan->dtype, count, plan->in);
        REQUIRE(te_plan_infer(to, from, plan, &m[0].model, &b, ctx) == TE_OK);
        REQUIRE(te_plan_infer(from, to, plan, &m[1].model, &b, ctx) == TE_OK);
        return rows.raw();
    }
    std::vector<int32_t> lengths() {
        std::vector<int32_t> v((size_t)cache.t.sequences);
        REQUIRE(te_cache_lengths(&cache, v.data(), ctx) == TE_OK);
        return v;
    }
    int free_pages() {
        int32_t n = 0;
        REQUIRE(te_copy(ctx, &n, cache.t.free_count, sizeof n) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        return n;
    }
};
#define RUNNER(name, list, ctx, config) runner<list> name(ctx, config, list##_plan(), list##_param_bytes(), list##_bind)

std::string bytes_of(const std::string &path) {
    std::string s;
    FILE *f = std::fopen(path.c_str(), "rb");
    REQUIRE(f);
    char part[4096];
    for (size_t n; (n = std::fread(part, 1, sizeof part, f)) > 0;) s.append(part, n);
    std::fclose(f);
    return s;
}
void write_bytes(const std::string &path, const std::string &s) {
    FILE *f = std::fopen(path.c_str(), "wb");
    REQUIRE(f);
    REQUIRE(std::fwrite(s.data(), 1, s.size(), f) == s.size());
    std::fclose(f);
}

template <class Model>
void round_trip(const te_plan *plan, size_t bytes, te_status (*bind)(Model *, void *, te_context *)) {
    const unsigned seed = fresh_seed();
    folder f;
    const std::string path = f / "sequence.safetensors", again = f / "again.safetensors";
    context c;
    source random(seed);
    std::string first_bytes;
    for (const int length : {1, 48, 101})
        for (const int from_rows : {0, 16, 64})
            for (const int to_rows : {0, 16, 128}) {
                INFO("seed " << seed << ", " << plan->name << ", " << length << " tokens, pages of " << from_rows << " and " << to_rows);
                runner<Model> a(&c.c, config_of(3, 120, from_rows), plan, bytes, bind), b(&c.c, config_of(4, 200, to_rows), plan, bytes, bind);
                const reference::vec x = random.draw((size_t)(120 * plan->in), plan->dtype);
                std::vector<int32_t> tokens((size_t)length), loaded(200, -7);
                for (int32_t &t : tokens) t = random.below(1000);
                a.step(0, x, 3, 40), b.step(3, x, 1, 33), b.step(1, x, 5, 20); // others, and one that is replaced
                a.step(2, x, 0, length);
                REQUIRE(te_cache_save(&a.cache, 2, tokens.data(), path.c_str(), &c.c) == TE_OK);
                int n = 0;
                const te_status status = te_cache_load(&b.cache, 1, loaded.data(), &n, path.c_str(), &c.c);
                INFO(te_last_error(&c.c));
                REQUIRE(status == TE_OK);
                CHECK(n == length);
                CHECK(std::equal(tokens.begin(), tokens.end(), loaded.begin()));
                CHECK(b.lengths() == std::vector<int32_t>({0, length, 0, 33}));
                const auto pages = [&](int rows) { return (rows + b.cache.t.page_rows - 1) / b.cache.t.page_rows; };
                CHECK(b.free_pages() == b.cache.t.pages - pages(length) - pages(33));
                REQUIRE(te_cache_save(&b.cache, 1, tokens.data(), again.c_str(), &c.c) == TE_OK);
                CHECK(bytes_of(again) == bytes_of(path)); // not a word about pages
                for (const int count : {1, 1, 9}) CHECK(a.step(2, x, 100, count) == b.step(1, x, 100, count));
                CHECK(te_cache_check(&b.cache, &c.c) == TE_OK);
            }
}
#define ROUND_TRIP(list) round_trip<list>(list##_plan(), list##_param_bytes(), list##_bind)

} // namespace

TEST_CASE("a loaded sequence goes on with the bits of the saved one") {
    ROUND_TRIP(in_f32);
    ROUND_TRIP(in_bf16);
    ROUND_TRIP(in_f16);
}

TEST_CASE("a file has each head's rows in the order of the tokens") {
    folder f;
    const std::string path = f / "sequence.safetensors";
    context c;
    const unsigned seed = fresh_seed();
    INFO("seed " << seed);
    source random(seed);
    plain_bf16 m;
    REQUIRE(plain_bf16_bind(&m, nullptr, &c.c) == TE_OK);
    te_model *models[] = {&m.model};
    const te_cache_config config = config_of(1, 100, 32);
    buffer memory(&c.c, te_cache_bytes(models, 1, &config));
    te_cache cache;
    REQUIRE(te_cache_init(&cache, memory.data(), memory.bytes, models, 1, &config, &c.c) == TE_OK);
    REQUIRE(te_context_reserve(&c.c, plain_bf16_workspace_bytes(&m, 77, &c.c)) == TE_OK);
    const int length = 77, width = 6 * 64;
    const reference::vec qkv = random.draw((size_t)(length * width), TE_bf16);
    buffer x(&c.c, qkv.size() * 2), y(&c.c, (size_t)length * 128 * 2);
    x.write(qkv, TE_bf16);
    te_batch b;
    memset(&b, 0, sizeof b);
    b.batch = 1, b.seq = length, b.cache = &cache;
    REQUIRE(te_cache_begin(&cache, &b, &c.c) == TE_OK);
    REQUIRE(plain_bf16_infer(te_matrix(y.data(), TE_bf16, length, 128), te_matrix(x.data(), TE_bf16, length, width), &m, &b, &c.c) == TE_OK);
    REQUIRE(te_cache_save(&cache, 0, nullptr, path.c_str(), &c.c) == TE_OK);
    te_safetensors file;
    REQUIRE(te_safetensors_open(&file, path.c_str(), &c.c) == TE_OK);
    CHECK(file.count == 2);
    for (int value = 0; value < 2; value++) {
        const te_safetensor *t = te_safetensors_find(&file, value ? "layer.0.values" : "layer.0.keys");
        REQUIRE(t);
        REQUIRE((t->rank == 3 && t->shape[0] == 2 && t->shape[1] == length && t->shape[2] == 64 && t->dtype == TE_SAFETENSORS_BF16));
        buffer data(&c.c, (size_t)t->bytes);
        REQUIRE(te_safetensors_read(&file, t, data.data(), &c.c) == TE_OK);
        const reference::vec got = data.read(TE_bf16);
        for (int h = 0; h < 2; h++)
            for (int r = 0; r < length; r++)
                for (int k = 0; k < 64; k++)
                    REQUIRE(got[(size_t)((h * length + r) * 64 + k)] == qkv[(size_t)(r * width + (2 + 2 * value + h) * 64 + k)]);
    }
    te_safetensors_close(&file);
}

TEST_CASE("an empty sequence can be saved, and loading it empties a sequence") {
    folder f;
    const std::string path = f / "empty.safetensors";
    context c;
    RUNNER(a, in_f32, &c.c, config_of(2, 64, 16));
    source random(3);
    const reference::vec x = random.draw(64 * 48, TE_f32);
    REQUIRE(te_cache_save(&a.cache, 0, nullptr, path.c_str(), &c.c) == TE_OK);
    a.step(1, x, 0, 20);
    int n = -1;
    REQUIRE(te_cache_load(&a.cache, 1, nullptr, &n, path.c_str(), &c.c) == TE_OK);
    CHECK(n == 0);
    CHECK(a.lengths() == std::vector<int32_t>({0, 0}));
    CHECK(a.free_pages() == a.cache.t.pages);
}

TEST_CASE("a file that does not fit is refused by name, and the cache stays as it was") {
    folder f;
    const std::string path = f / "good.safetensors", bad = f / "bad.safetensors";
    context c;
    source random(fresh_seed());
    const reference::vec x = random.draw(120 * 48, TE_f32);
    RUNNER(a, in_f32, &c.c, config_of(2, 120, 16));
    a.step(0, x, 0, 50);
    REQUIRE(te_cache_save(&a.cache, 0, nullptr, path.c_str(), &c.c) == TE_OK);
    const std::string good = bytes_of(path);
    RUNNER(witness, in_f32, &c.c, config_of(2, 120, 16)); // does the same without refused loads
    RUNNER(b, in_f32, &c.c, config_of(2, 120, 16));
    witness.step(1, x, 7, 21), b.step(1, x, 7, 21);
    int at = 28;
    const auto refused = [&](te_status status, te_status expected, const char *text) {
        INFO(te_last_error(&c.c));
        CHECK(status == expected);
        CHECK(std::string(te_last_error(&c.c)).find(text) != std::string::npos);
    };
    const auto unharmed = [&] {
        CHECK(b.lengths() == std::vector<int32_t>({0, at - 7}));
        CHECK(b.free_pages() == witness.free_pages());
        CHECK(b.step(1, x, at, 1) == witness.step(1, x, at, 1));
        at++;
    };
    const auto load = [&](const std::string &from) { return te_cache_load(&b.cache, 1, nullptr, nullptr, from.c_str(), &c.c); };
    refused(load(f / "none"), TE_ERROR_IO, "cannot open");
    unharmed();
    for (const size_t n : {(size_t)0, (size_t)7, (size_t)200, good.size() - 1}) { // truncated
        write_bytes(bad, good.substr(0, n));
        CHECK(load(bad) == TE_ERROR_FORMAT);
        unharmed();
    }
    for (const size_t n : {good.size() - 1, good.size() / 2, (size_t)60}) { // one bit
        std::string s = good;
        s[n] = (char)(s[n] ^ 4);
        write_bytes(bad, s);
        CHECK(load(bad) == TE_ERROR_FORMAT);
    }
    unharmed();
    // headers of other programs, which have no checksum
    const auto header = [&](std::string s, size_t data) {
        while (s.size() % 8) s += ' ';
        std::string all;
        for (int i = 0; i < 8; i++) all += (char)(s.size() >> (8 * i));
        write_bytes(bad, all + s + std::string(data, '\0'));
    };
    header("{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
    refused(load(bad), TE_ERROR_FORMAT, "is no sequence of a cache");
    header("{\"layer.0.keys\":{\"dtype\":\"F32\",\"shape\":[1,4000000000000,24],\"data_offsets\":[0,384000000000000]}}", 64);
    CHECK(load(bad) == TE_ERROR_FORMAT);
    header("{\"layer.0.keys\":{\"dtype\":\"F32\",\"shape\":[1,4000000000000,0],\"data_offsets\":[0,0]}}", 0);
    refused(load(bad), TE_ERROR_SHAPE, "4000000000000 tokens");
    header("{\"layer.0.keys\":{\"dtype\":\"F32\",\"shape\":[1,1,24],\"data_offsets\":[0,96]}}", 96);
    refused(load(bad), TE_ERROR_FORMAT, "has no tensor layer.0.values");
    unharmed();
    // tokens that are not there; other slots
    int32_t tokens[120];
    refused(te_cache_load(&b.cache, 1, tokens, nullptr, path.c_str(), &c.c), TE_ERROR_FORMAT, "without tokens");
    refused(te_cache_load(&b.cache, 2, nullptr, nullptr, path.c_str(), &c.c), TE_ERROR_VALUE, "sequence 2 of a cache of 2");
    refused(te_cache_save(&b.cache, -1, nullptr, bad.c_str(), &c.c), TE_ERROR_VALUE, "sequence -1");
    refused(te_cache_save(&b.cache, 0, nullptr, nullptr, &c.c), TE_ERROR_NULL, "path is null");
    refused(te_cache_load(&b.cache, 0, nullptr, nullptr, nullptr, &c.c), TE_ERROR_NULL, "path is null");
    unharmed();
    // other lists
    RUNNER(heads, more_heads, &c.c, config_of(2, 120, 16));
    refused(te_cache_load(&heads.cache, 0, nullptr, nullptr, path.c_str(), &c.c), TE_ERROR_SHAPE, "tensor layer.0.keys is F32 [1, 50, 24], it should be F32 [2, 50, 24]");
    RUNNER(rope, other_rope, &c.c, config_of(2, 120, 16));
    refused(te_cache_load(&rope.cache, 0, nullptr, nullptr, path.c_str(), &c.c), TE_ERROR_VALUE, "it has (rope r");
    RUNNER(layer, one_layer, &c.c, config_of(2, 120, 16));
    refused(te_cache_load(&layer.cache, 0, nullptr, nullptr, path.c_str(), &c.c), TE_ERROR_SHAPE, "layer.1.keys");
    RUNNER(dtype, in_bf16, &c.c, config_of(2, 120, 16));
    CHECK(te_cache_load(&dtype.cache, 0, nullptr, nullptr, path.c_str(), &c.c) != TE_OK);
    // too long, too few pages
    RUNNER(brief, in_f32, &c.c, config_of(2, 49, 16));
    refused(te_cache_load(&brief.cache, 0, nullptr, nullptr, path.c_str(), &c.c), TE_ERROR_SHAPE, "has 50 tokens, a sequence of this cache has 49 at most");
    RUNNER(full, in_f32, &c.c, config_of(3, 120, 16, 5));
    full.step(0, x, 0, 17), full.step(2, x, 0, 1);
    refused(te_cache_load(&full.cache, 1, nullptr, nullptr, path.c_str(), &c.c), TE_ERROR_MEMORY, "need 4 pages, of the cache's 5 pages 2 are free");
    CHECK(full.lengths() == std::vector<int32_t>({17, 0, 1}));
    REQUIRE(te_cache_load(&full.cache, 0, nullptr, nullptr, path.c_str(), &c.c) == TE_OK); // in the place of its own two pages
    CHECK(full.lengths() == std::vector<int32_t>({50, 0, 1}));
    CHECK(full.step(0, x, 50, 1) == a.step(0, x, 50, 1));
    CHECK(te_cache_check(&full.cache, &c.c) == TE_OK);
    REQUIRE(load(path) == TE_OK);
}
