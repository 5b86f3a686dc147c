// generation_test.cc -- continuous batching (te/generation.h) against a loop that generates one sequence at a time: random arrivals, lengths, filters, stops and
// cancels; prompts in parts, prefixes, forks, a full cache, misuse; and what a step allocates and waits for. On the host results are compared bit by bit, which needs
// GEMMs that compute a row alike in batches of any size.
#undef TE_CBLAS
#define TE_BATCH_INVARIANT
#include "folder.h"
#include "harness.h"
#include "te/infer.h"

#include <map>

enum { V = 61, H = 48 };
#define BLOCK(h, ...)                                                                                                           \
    (fork, x1), (rmsnorm, n1, h), (linear, qkv, h, 4 * 32), (rope, r, 2, 1, 32), (attention, a, 2, 1, 32, (cache, 1)),          \
        (linear, o, 64, h), (add, x1), (fork, x2), (rmsnorm, n2, h), (linear, up, h, 96), (swiglu, g), (linear, down, 48, h), (add, x2)
#define LISTS(dtype)                                                                                           \
    TE_INFERENCE(embed_##dtype, dtype, (embedding, e, V, H), (positions, p, 200, H))                            \
    TE_INFERENCE(block_##dtype, dtype, BLOCK(H))                                                               \
    TE_INFERENCE(head_##dtype, dtype, (rmsnorm, n, H), (last_token, last), (linear, lm, H, V), (sample, next, V))
LISTS(f32)
LISTS(bf16)
TE_INFERENCE(wide_head, f32, (rmsnorm, n, H), (last_token, last), (linear, lm, H, 64), (sample, next, 64))
TE_INFERENCE(no_sample, f32, (rmsnorm, n, H), (last_token, last), (linear, lm, H, V))
TE_INFERENCE(uncached, f32, (linear, qkv, H, 4 * 32), (attention, a, 2, 1, 32), (linear, o, 64, H))

namespace {

te_cache_config config_of(int sequences, int capacity, int page_rows, int pages = 0) {
    te_cache_config c = te_cache_defaults();
    c.sequences = sequences, c.capacity = capacity, c.page_rows = page_rows, c.pages = pages;
    return c;
}

// Embedding, two blocks and a head, with random weights. Logits are spread enough that filters have something to do.
struct language_model {
    te_context *ctx;
    te_dtype dtype;
    std::vector<std::unique_ptr<buffer>> params;
    embed_f32 embed32;
    block_f32 block32[2];
    head_f32 head32;
    embed_bf16 embed16;
    block_bf16 block16[2];
    head_bf16 head16;
    te_model *models[4];
    language_model(te_context *c, te_dtype t) : ctx(c), dtype(t) {
        const bool f32 = t == TE_f32;
        void *const p[] = {memory(f32 ? embed_f32_param_bytes() : embed_bf16_param_bytes()), memory(f32 ? block_f32_param_bytes() : block_bf16_param_bytes()),
                           memory(f32 ? block_f32_param_bytes() : block_bf16_param_bytes()), memory(f32 ? head_f32_param_bytes() : head_bf16_param_bytes())};
        REQUIRE((f32 ? embed_f32_bind(&embed32, p[0], ctx) : embed_bf16_bind(&embed16, p[0], ctx)) == TE_OK);
        for (int i = 0; i < 2; i++) REQUIRE((f32 ? block_f32_bind(&block32[i], p[1 + i], ctx) : block_bf16_bind(&block16[i], p[1 + i], ctx)) == TE_OK);
        REQUIRE((f32 ? head_f32_bind(&head32, p[3], ctx) : head_bf16_bind(&head16, p[3], ctx)) == TE_OK);
        models[0] = f32 ? &embed32.model : &embed16.model, models[3] = f32 ? &head32.model : &head16.model;
        for (int i = 0; i < 2; i++) models[1 + i] = f32 ? &block32[i].model : &block16[i].model;
        for (int i = 0; i < 4; i++) REQUIRE(te_model_randomize(models[i], i == 3 ? 0.35f : 0.2f, 5, (uint32_t)i, ctx) == TE_OK);
    }
    void *memory(size_t bytes) {
        params.emplace_back(new buffer(ctx, bytes));
        return params.back()->data();
    }
};

// A request with memory of its own.
struct wish {
    std::vector<int32_t> prompt, stop;
    te_generation_request r = te_generation_request_of(nullptr, 0);
    const te_generation_request *get() {
        r.prompt = prompt.data(), r.count = (int)prompt.size(), r.stop = stop.data(), r.stop_count = (int)stop.size();
        return &r;
    }
};
struct text {
    std::vector<int32_t> tokens;
    std::vector<uint32_t> log_probs; // their bits
    te_generation_end end = TE_GENERATION_END_runs;
    std::vector<int32_t> tops;
};
uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

// One sequence: the whole prompt in one batch, then a token at a time, by the calls of docs/inference.md alone.
text reference_text(language_model &m, wish &w, int capacity, int top = 0) {
    te_context *ctx = m.ctx;
    const te_generation_request &r = *w.get();
    const te_cache_config config = config_of(1, capacity, 0);
    te_cache cache;
    buffer memory(ctx, te_cache_bytes(m.models, 4, &config));
    REQUIRE(te_cache_init(&cache, memory.data(), memory.bytes, m.models, 4, &config, ctx) == TE_OK);
    const size_t rows = w.prompt.size(), size = te_dtype_bytes(m.dtype);
    buffer tokens(ctx, rows * 4), x(ctx, rows * H * size), y(ctx, rows * H * size), log_prob(ctx, 16), next(ctx, 4), history(ctx, V * 2), prompt(ctx, 8);
    buffer seed(ctx, 8), counter(ctx, 8), params(ctx, 7 * 16), tops(ctx, (size_t)top * 4 + 4), top_log(ctx, (size_t)top * 4 + 4);
    const float f[] = {r.temperature, r.top_p, r.min_p, r.repetition_penalty, r.frequency_penalty, r.presence_penalty};
    for (int i = 0; i < 6; i++) REQUIRE(te_copy(ctx, (char *)params.data() + i * 16, &f[i], 4) == TE_OK);
    REQUIRE(te_copy(ctx, (char *)params.data() + 6 * 16, &r.top_k, 4) == TE_OK);
    REQUIRE(te_copy(ctx, seed.data(), &r.seed, 8) == TE_OK);
    REQUIRE(te_fill(ctx, counter.data(), 0, 8) == TE_OK);
    REQUIRE(te_fill(ctx, history.data(), 0, V * 2) == TE_OK);
    std::vector<int32_t> mask(2, 0);
    for (const int32_t t : w.prompt) mask[(size_t)t / 32] = (int32_t)((uint32_t)mask[(size_t)t / 32] | 1u << t % 32);
    prompt.write_ints(mask), tokens.write_ints(w.prompt);
    const auto param = [&](int i) { return (const float *)(const void *)((char *)params.data() + i * 16); };
    te_sampling s;
    memset(&s, 0, sizeof s);
    s.token = (int32_t *)next.data(), s.seed = (const uint64_t *)seed.data(), s.counter = (uint64_t *)counter.data();
    s.temperature = param(0), s.top_p = param(1), s.min_p = param(2), s.top_k = (const int32_t *)(const void *)param(6);
    s.history = (uint16_t *)history.data(), s.prompt = (const uint32_t *)prompt.data(), s.update_history = 1;
    s.repetition_penalty = param(3), s.frequency_penalty = param(4), s.presence_penalty = param(5);
    s.top = top, s.top_token = (int32_t *)tops.data(), s.top_log_prob = (float *)top_log.data();
    te_batch b;
    memset(&b, 0, sizeof b);
    b.batch = 1, b.seq = (int)rows, b.tokens = (const int32_t *)tokens.data(), b.cache = &cache, b.sampling = &s;
    text t;
    const int max_tokens = r.max_tokens ? r.max_tokens : capacity - r.count + 1;
    while (t.end == TE_GENERATION_END_runs) {
        REQUIRE(te_cache_begin(&cache, &b, ctx) == TE_OK);
        te_tensor now = te_none();
        for (int i = 0; i < 4; i++) {
            const te_tensor to = i == 3 ? te_matrix(log_prob.data(), TE_f32, 1, 1) : te_matrix(i % 2 ? y.data() : x.data(), m.dtype, b.seq, H);
            const te_status status = te_plan_infer(to, now, m.models[i]->plan, m.models[i], &b, ctx);
            INFO(te_last_error(ctx));
            REQUIRE(status == TE_OK);
            now = to;
        }
        int32_t token = 0;
        float lp = 0;
        REQUIRE(te_copy(ctx, &token, next.data(), 4) == TE_OK);
        REQUIRE(te_copy(ctx, &lp, log_prob.data(), 4) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        t.tokens.push_back(token), t.log_probs.push_back(bits_of(lp));
        if (top) {
            const std::vector<uint8_t> raw = tops.raw();
            for (int k = 0; k < top; k++) {
                int32_t one;
                memcpy(&one, raw.data() + k * 4, 4), t.tops.push_back(one);
            }
        }
        const bool stopped = std::find(w.stop.begin(), w.stop.end(), token) != w.stop.end();
        t.end = token < 0 ? TE_GENERATION_END_no_token : stopped ? TE_GENERATION_END_stop : (int)t.tokens.size() == max_tokens ? TE_GENERATION_END_length : t.end;
        b.seq = 1, b.tokens = (const int32_t *)next.data();
    }
    return t;
}

// A generation with its cache and memory.
struct server {
    language_model &m;
    te_context *ctx;
    te_cache cache;
    std::unique_ptr<buffer> cache_memory, device;
    std::vector<uint64_t> host;
    te_generation_config config;
    te_generation g;
    std::map<int64_t, text> texts;
    server(language_model &model, const te_cache_config &of_cache, int sequences, int rows, int penalties = 1, int top = 0, int pages = 0) : m(model), ctx(model.ctx) {
        cache_memory.reset(new buffer(ctx, te_cache_bytes(m.models, 4, &of_cache)));
        REQUIRE(te_cache_init(&cache, cache_memory->data(), cache_memory->bytes, m.models, 4, &of_cache, ctx) == TE_OK);
        config = te_generation_defaults(m.models, 4, &cache);
        config.sequences = sequences, config.rows = rows, config.penalties = penalties, config.top = top, config.pages = pages;
        REQUIRE(te_context_reserve(ctx, te_generation_workspace_bytes(&config, ctx)) == TE_OK);
        device.reset(new buffer(ctx, te_generation_bytes(&config)));
        host.assign((te_generation_host_bytes(&config) + TE_ALIGN) / 8, 0xabababab);
        const te_status status = te_generation_init(&g, &config, memory(), ctx);
        INFO(te_last_error(ctx));
        REQUIRE(status == TE_OK);
    }
    server(const server &) = delete;
    ~server() {
        (void)te_synchronize(ctx);
        te_generation_close(&g);
    }
    te_generation_memory made;
    const te_generation_memory *memory() {
        const uintptr_t at = ((uintptr_t)host.data() + TE_ALIGN - 1) / TE_ALIGN * TE_ALIGN;
        made.device = device->data(), made.device_bytes = device->bytes, made.host = (void *)at, made.host_bytes = te_generation_host_bytes(&config);
        return &made;
    }
    te_status add(wish &w, int64_t *id) { return te_generation_add(&g, w.get(), id, ctx); }
    int64_t must_add(wish &w) {
        int64_t id = 0;
        const te_status status = add(w, &id);
        INFO(te_last_error(ctx));
        REQUIRE(status == TE_OK);
        return id;
    }
    void step() {
        const te_status status = te_generation_step(&g, ctx);
        INFO(te_last_error(ctx));
        REQUIRE(status == TE_OK);
        te_generation_event e;
        while (te_generation_next(&g, &e)) {
            text &t = texts[e.id];
            REQUIRE(t.end == TE_GENERATION_END_runs);
            if (e.token >= 0 || e.end == TE_GENERATION_END_no_token) t.tokens.push_back(e.token), t.log_probs.push_back(bits_of(e.log_prob));
            if (e.top_token) t.tops.insert(t.tops.end(), e.top_token, e.top_token + config.top);
            t.end = e.end;
        }
    }
    void finish() {
        for (int i = 0; te_generation_running(&g); i++) {
            REQUIRE(i < 10000);
            step();
        }
    }
    int free_pages() {
        int32_t n = 0;
        REQUIRE(te_copy(ctx, &n, cache.t.free_count, sizeof n) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        return n;
    }
};

// On the host the two are equal. On CUDA their batches run on other kernels, so a draw can fall on the other side of a boundary: `differ` counts such texts.
void compare(const text &got, const text &want, int *differ, bool is_part = false) {
    if (TE_CUDA) {
        *differ += got.tokens.size() > want.tokens.size() || !std::equal(got.tokens.begin(), got.tokens.end(), want.tokens.begin());
        return;
    }
    if (!is_part) {
        CHECK(got.tokens == want.tokens);
        CHECK(got.log_probs == want.log_probs);
        CHECK(te_generation_end_text(got.end) == te_generation_end_text(want.end));
        CHECK(got.tops == want.tops);
        return;
    }
    REQUIRE(got.tokens.size() <= want.tokens.size());
    CHECK(std::equal(got.tokens.begin(), got.tokens.end(), want.tokens.begin()));
    CHECK(std::equal(got.log_probs.begin(), got.log_probs.end(), want.log_probs.begin()));
}

wish draw_wish(source &random, int max_prompt, int max_tokens) {
    wish w;
    for (int n = 1 + random.below(max_prompt); n; n--) w.prompt.push_back(random.below(V));
    for (int n = random.below(3) ? random.below(3) : 0; n; n--) w.stop.push_back(random.below(V));
    w.r.max_tokens = 1 + random.below(max_tokens), w.r.seed = random.random();
    if (!random.below(4)) return w; // greedy
    w.r.temperature = 0.5f + (float)random.below(20) / 10;
    if (random.below(2)) w.r.top_k = 1 + random.below(20);
    if (random.below(2)) w.r.top_p = 0.5f + (float)random.below(50) / 100;
    if (!random.below(3)) w.r.min_p = 0.02f;
    if (random.below(2)) w.r.repetition_penalty = 1.3f;
    if (!random.below(3)) w.r.frequency_penalty = 0.2f;
    if (!random.below(3)) w.r.presence_penalty = 0.3f;
    return w;
}

} // namespace

TEST_CASE("a sequence has the same tokens and log-probabilities alone and in any mix") {
    for (const te_dtype dtype : {TE_f32, TE_bf16})
        for (const int page_rows : {16, 0}) {
            const int lag = TE_CUDA || (dtype == TE_f32) == (page_rows == 16); // the host can be late, too
            const unsigned seed = fresh_seed();
            INFO("seed " << seed << ", pages of " << page_rows);
            source random(seed);
            context c;
            language_model m(&c.c, dtype);
            server s(m, config_of(7, 100, page_rows, page_rows ? 22 : 0), 7, 16);
            s.g.lag = lag;
            const int all = brief() ? 12 : 40;
            std::map<int64_t, wish> wishes;
            std::map<int64_t, bool> cancelled;
            wish next = draw_wish(random, 60, 35);
            int begun = 0, full = 0, differ = 0;
            while (begun < all || te_generation_running(&s.g)) {
                for (int k = random.below(4); k && begun < all; k--) { // arrivals
                    int64_t id = 0;
                    const te_status status = s.add(next, &id);
                    INFO(te_last_error(&c.c));
                    REQUIRE((status == TE_OK || status == TE_ERROR_MEMORY));
                    if (status == TE_ERROR_MEMORY) {
                        REQUIRE(te_generation_running(&s.g));
                        full++;
                        break;
                    }
                    wishes[id] = next, next = draw_wish(random, 60, 35), begun++;
                }
                s.step();
                for (const auto &w : wishes)
                    if (!cancelled[w.first] && s.texts[w.first].end == TE_GENERATION_END_runs && !random.below(150)) {
                        REQUIRE(te_generation_cancel(&s.g, w.first, &c.c) == TE_OK);
                        cancelled[w.first] = true;
                    }
            }
            CHECK(full > 0);
            std::map<int, int> ends;
            for (auto &w : wishes) {
                INFO("sequence " << w.first << ", prompt of " << w.second.prompt.size());
                const text want = reference_text(m, w.second, 100);
                if (cancelled[w.first]) CHECK(s.texts[w.first].end == TE_GENERATION_END_runs);
                compare(s.texts[w.first], want, &differ, cancelled[w.first]);
                ends[s.texts[w.first].end]++;
            }
            if (TE_CUDA && dtype == TE_f32) CHECK(differ <= all / 20);
            if (!brief()) CHECK((ends[TE_GENERATION_END_stop] > 0 && ends[TE_GENERATION_END_length] > 0));
            CHECK(s.free_pages() == s.cache.t.pages);
            CHECK(s.g.free_pages == s.g.pages);
            CHECK(te_cache_check(&s.cache, &c.c) == TE_OK);
        }
}

TEST_CASE("a prompt longer than a step, beside a sequence that decodes") {
    context c;
    source random(fresh_seed());
    language_model m(&c.c, TE_f32);
    server s(m, config_of(2, 120, 16), 2, 5);
    wish one = draw_wish(random, 3, 1), long_prompt = draw_wish(random, 1, 1);
    one.r.max_tokens = 40, one.stop.clear(), long_prompt.r.max_tokens = 7, long_prompt.stop.clear();
    for (int i = 0; i < 77; i++) long_prompt.prompt.push_back(random.below(V));
    const int64_t a = s.must_add(one);
    for (int i = 0; i < 4; i++) s.step();
    const int64_t b = s.must_add(long_prompt);
    const size_t before = s.texts[a].tokens.size();
    for (int i = 0; i < 19; i++) s.step(); // 78 rows, 4 at a time
    CHECK(s.texts[b].tokens.empty());
    CHECK(s.texts[a].tokens.size() == before + 19); // a token in each step
    s.finish();
    int differ = 0;
    compare(s.texts[a], reference_text(m, one, 120), &differ), compare(s.texts[b], reference_text(m, long_prompt, 120), &differ);
    CHECK(differ <= 1);
}

TEST_CASE("sequences that outlive others move to a smaller graph") {
    for (const int lag : {0, 1}) {
        if (TE_CUDA && !lag) continue;
        context c;
        source random(fresh_seed());
        language_model m(&c.c, TE_f32);
        server s(m, config_of(7, 64, 16), 7, 32);
        s.g.lag = lag;
        std::map<int64_t, wish> wishes;
        for (int i = 0; i < 7; i++) {
            wish w = draw_wish(random, 4, 1);
            w.stop.clear(), w.r.max_tokens = i == 6 ? 40 : i == 4 ? 20 : 5, w.r.repetition_penalty = 1.2f;
            wishes[s.must_add(w)] = w;
        }
        const auto sequences = [&] { return s.g.step[s.g.current ^ 1].sequences; };
        for (int i = 0; i < 5; i++) s.step();
        CHECK(sequences() == 7);
        for (int i = 0; i < 5; i++) s.step();
        CHECK(te_generation_running(&s.g) == 2);
        CHECK(sequences() == 2);
        for (int i = 0; i < 15; i++) s.step();
        CHECK(te_generation_running(&s.g) == 1);
        CHECK(sequences() == 1);
        s.finish();
        int differ = 0;
        for (auto &w : wishes) compare(s.texts[w.first], reference_text(m, w.second, 64), &differ);
        CHECK(differ <= 1);
        CHECK(s.free_pages() == s.cache.t.pages);
    }
}

TEST_CASE("the likeliest tokens, stops and a length that the capacity decides") {
    context c;
    source random(fresh_seed());
    language_model m(&c.c, TE_f32);
    server s(m, config_of(3, 40, 16), 3, 8, 0, 3);
    wish w[3];
    for (wish &one : w) {
        one = draw_wish(random, 12, 1);
        one.r = te_generation_request_of(nullptr, 0), one.stop.clear();
        one.r.temperature = 1, one.r.seed = random.random();
    }
    w[1].r.max_tokens = 1, w[2].r.temperature = 0;
    const text first = reference_text(m, w[0], 40, 3);
    CHECK(first.end == TE_GENERATION_END_length);
    CHECK((int)first.tokens.size() == 41 - (int)w[0].prompt.size());
    int64_t id[3];
    for (int i = 0; i < 3; i++) id[i] = s.must_add(w[i]);
    s.finish();
    int differ = 0;
    for (int i = 0; i < 3; i++) compare(s.texts[id[i]], reference_text(m, w[i], 40, 3), &differ);
    CHECK(differ <= 1);
    // a stop token behind some of the same text
    w[0].stop = {first.tokens[6]};
    const int64_t stopped = s.must_add(w[0]);
    s.finish();
    compare(s.texts[stopped], reference_text(m, w[0], 40, 3), &differ);
    CHECK(differ <= 2);
    if (!TE_CUDA) CHECK(s.texts[stopped].tokens.back() == first.tokens[6]);
    CHECK(s.texts[stopped].end == TE_GENERATION_END_stop);
}

namespace {
void fork_at(int lag, unsigned seed) {
    INFO("seed " << seed << ", lag " << lag);
    context c;
    source random(seed);
    language_model m(&c.c, TE_f32);
    server s(m, config_of(4, 100, 16), 4, 32);
    s.g.lag = lag;
    wish w = draw_wish(random, 20, 1);
    w.stop.clear(), w.r.temperature = 1.5f, w.r.top_k = 0, w.r.top_p = 1, w.r.min_p = 0, w.r.max_tokens = 40;
    w.r.repetition_penalty = 1.2f, w.r.frequency_penalty = 0.1f;
    const int64_t parent = s.must_add(w);
    int64_t same = 0, other = 0, none = 0;
    CHECK(te_generation_fork(&s.g, parent, w.get(), &none, &c.c) == TE_ERROR_STATE); // no token yet
    for (int i = 0; i < 9; i++) s.step();
    wish again = w, with_seed = w;
    again.r.max_tokens = 31, with_seed.r.seed++, with_seed.r.max_tokens = 20;
    REQUIRE(te_generation_fork(&s.g, parent, again.get(), &same, &c.c) == TE_OK);
    REQUIRE(te_generation_fork(&s.g, parent, with_seed.get(), &other, &c.c) == TE_OK);
    wish third = w;
    int64_t grandchild = 0;
    third.r.max_tokens = 4;
    REQUIRE(te_generation_fork(&s.g, same, third.get(), &grandchild, &c.c) == TE_OK); // before a step of its own
    s.finish();
    int differ = 0;
    compare(s.texts[parent], reference_text(m, w, 100), &differ);
    CHECK(differ == 0);
    const std::vector<int32_t> &all = s.texts[parent].tokens;
    REQUIRE(all.size() == 40);
    CHECK(s.texts[same].tokens == std::vector<int32_t>(all.begin() + 9, all.end()));
    CHECK(s.texts[grandchild].tokens == std::vector<int32_t>(all.begin() + 9, all.begin() + 13));
    CHECK(s.texts[same].end == TE_GENERATION_END_length);
    CHECK(s.texts[other].tokens.size() == 20);
    CHECK(!std::equal(s.texts[other].tokens.begin(), s.texts[other].tokens.end(), all.begin() + 9));
    // a sequence that stops with the token that the fork begins behind: with a lag the host learns of it later
    wish stops = w;
    stops.stop = {all[8]};
    if (TE_CUDA || !lag || std::find(all.begin(), all.begin() + 8, all[8]) != all.begin() + 8) return;
    const int64_t stopped = s.must_add(stops);
    for (int i = 0; i < 9; i++) s.step();
    int64_t child = 0;
    REQUIRE(te_generation_fork(&s.g, stopped, again.get(), &child, &c.c) == TE_OK);
    s.finish();
    CHECK(s.texts[stopped].end == TE_GENERATION_END_stop);
    CHECK(s.texts[stopped].tokens == std::vector<int32_t>(all.begin(), all.begin() + 9));
    CHECK(s.texts[child].end == TE_GENERATION_END_stop);
    CHECK(s.texts[child].tokens.empty());
    CHECK(s.free_pages() == s.cache.t.pages);
    CHECK(te_cache_check(&s.cache, &c.c) == TE_OK);
}
} // namespace

TEST_CASE("a fork goes on as the sequence does, and with another seed by itself") {
    for (const int lag : {0, 1})
        if (!TE_CUDA || lag) fork_at(lag, fresh_seed());
}

TEST_CASE("prompts that begin with a sequence of the cache") {
    const unsigned seed = fresh_seed();
    INFO("seed " << seed);
    for (const int page_rows : {16, 0}) {
        context c;
        source random(seed);
        language_model m(&c.c, TE_f32);
        server s(m, config_of(4, 100, page_rows), 3, 16);
        wish w = draw_wish(random, 1, 20);
        w.prompt.clear();
        for (int i = 0; i < 40; i++) w.prompt.push_back(random.below(V));
        // sequence 3 gets these tokens
        buffer tokens(&c.c, 40 * 4), slots(&c.c, 4), x(&c.c, 40 * H * 4), y(&c.c, 40 * H * 4);
        tokens.write_ints(w.prompt), slots.write_ints({3});
        te_batch b;
        memset(&b, 0, sizeof b);
        b.batch = 1, b.seq = 40, b.tokens = (const int32_t *)tokens.data(), b.cache = &s.cache, b.slots = (const int32_t *)slots.data();
        REQUIRE(te_cache_begin(&s.cache, &b, &c.c) == TE_OK);
        const te_tensor from = te_matrix(x.data(), TE_f32, 40, H), to = te_matrix(y.data(), TE_f32, 40, H);
        REQUIRE(te_plan_infer(from, te_none(), m.models[0]->plan, m.models[0], &b, &c.c) == TE_OK);
        REQUIRE(te_plan_infer(to, from, m.models[1]->plan, m.models[1], &b, &c.c) == TE_OK);
        REQUIRE(te_plan_infer(from, to, m.models[2]->plan, m.models[2], &b, &c.c) == TE_OK);
        std::map<int64_t, wish> wishes;
        for (const int shared : {40, 32, 17}) {
            wish one = draw_wish(random, 20, 25);
            one.prompt.insert(one.prompt.begin(), w.prompt.begin(), w.prompt.begin() + shared);
            one.r.prefix = 3, one.r.prefix_count = shared;
            wishes[s.must_add(one)] = one;
            s.step();
        }
        s.finish();
        int differ = 0;
        for (auto &one : wishes) compare(s.texts[one.first], reference_text(m, one.second, 100), &differ);
        CHECK(differ <= 1);
        // the prefix in a file, and in the sequence again
        folder f;
        const std::string path = f / "prefix.safetensors";
        std::vector<int32_t> loaded(100);
        int length = 0;
        REQUIRE(te_cache_save(&s.cache, 3, w.prompt.data(), path.c_str(), &c.c) == TE_OK);
        REQUIRE(te_cache_truncate(&s.cache, 3, 0, &c.c) == TE_OK);
        REQUIRE(te_cache_load(&s.cache, 3, loaded.data(), &length, path.c_str(), &c.c) == TE_OK);
        REQUIRE((length == 40 && std::equal(w.prompt.begin(), w.prompt.end(), loaded.begin())));
        wish behind = draw_wish(random, 9, 15);
        behind.prompt.insert(behind.prompt.begin(), loaded.begin(), loaded.begin() + 40);
        behind.r.prefix = 3, behind.r.prefix_count = 40;
        const int64_t of_file = s.must_add(behind);
        s.finish();
        compare(s.texts[of_file], reference_text(m, behind, 100), &differ);
        CHECK(differ <= 1);
        // a prefix that is not as long as the request says
        wish wrong = w;
        wrong.prompt.push_back(1), wrong.prompt.push_back(2), wrong.r.prefix = 3, wrong.r.prefix_count = 41;
        const int64_t id = s.must_add(wrong);
        s.finish();
        CHECK(s.texts[id].end == TE_GENERATION_END_cache);
        CHECK(s.texts[id].tokens.empty());
        CHECK(te_cache_check(&s.cache, &c.c) == TE_OK);
    }
}

TEST_CASE("a full cache: sequences wait, and a sequence whose pages others have taken ends with that") {
    context c;
    source random(fresh_seed());
    language_model m(&c.c, TE_f32);
    server s(m, config_of(4, 64, 16, 6), 3, 64);
    s.g.lag = 1;
    const auto of = [&](int prompt, int max_tokens) {
        wish w;
        for (int i = 0; i < prompt; i++) w.prompt.push_back(random.below(V));
        w.r.max_tokens = max_tokens;
        return w;
    };
    wish a = of(20, 20), b = of(30, 3), too_many = of(10, 20);
    int64_t id = 0;
    const int64_t first = s.must_add(a), second = s.must_add(b); // 3 pages, 2 pages
    CHECK(s.add(too_many, &id) == TE_ERROR_MEMORY);              // 2 pages
    CHECK(std::string(te_last_error(&c.c)).find("needs 2 pages of the cache, 1 are free; add it again") != std::string::npos);
    for (int i = 0; i < 3 + s.g.lag; i++) s.step();
    CHECK(s.texts[second].end == TE_GENERATION_END_length);
    const int64_t third = s.must_add(too_many);
    // another sequence of the cache takes the pages that the generation believed to have
    buffer slots(&c.c, 4);
    slots.write_ints({3});
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = 64, batch.cache = &s.cache, batch.slots = (const int32_t *)slots.data();
    REQUIRE(te_cache_begin(&s.cache, &batch, &c.c) == TE_OK);
    CHECK(s.free_pages() == 0);
    s.finish();
    int ended = 0, differ = 0;
    for (const int64_t one : {first, third}) ended += s.texts[one].end == TE_GENERATION_END_cache;
    CHECK(ended == 2);
    for (auto &one : std::map<int64_t, wish *>{{first, &a}, {second, &b}, {third, &too_many}})
        compare(s.texts[one.first], reference_text(m, *one.second, 64), &differ, s.texts[one.first].end == TE_GENERATION_END_cache);
    CHECK(te_cache_check(&s.cache, &c.c) == TE_ERROR_MEMORY);
    REQUIRE(te_cache_truncate(&s.cache, 3, 0, &c.c) == TE_OK);
    CHECK(s.free_pages() == 6);
}

TEST_CASE("logits that are not finite end a sequence, and no other one") {
    context c;
    language_model m(&c.c, TE_f32);
    server s(m, config_of(3, 64, 16), 3, 16);
    // the embedding of token 60 is NaN
    std::vector<float> nan(H, NAN);
    REQUIRE(te_copy(&c.c, (float *)m.models[0]->param[0].data + 60 * H, nan.data(), H * 4) == TE_OK);
    REQUIRE(te_synchronize(&c.c) == TE_OK);
    wish good, bad;
    good.prompt = {1, 2, 3}, bad.prompt = {5, 60, 7}, good.r.max_tokens = 5, bad.r.max_tokens = 5;
    const int64_t a = s.must_add(bad), b = s.must_add(good);
    s.finish();
    CHECK(s.texts[a].end == TE_GENERATION_END_no_token);
    CHECK(s.texts[a].tokens == std::vector<int32_t>({-1}));
    int differ = 0;
    const text want = reference_text(m, good, 64);
    if (want.end == TE_GENERATION_END_length) compare(s.texts[b], want, &differ);
    CHECK(differ == 0);
}

static void received(void *user, int32_t token, te_generation_end end) {
    text *t = (text *)user;
    if (token >= 0) t->tokens.push_back(token);
    t->end = end;
}
/* [generation] */
/* The texts of all requests, as many at a time as there is space for; request[i].user says where the tokens go. */
static te_status generate_all(te_generation *g, const te_generation_request *request, int count, te_context *ctx) {
    te_generation_event e;
    int64_t id;
    for (int next = 0; next < count || te_generation_running(g);) {
        te_status status = TE_OK;
        while (next < count && (status = te_generation_add(g, &request[next], &id, ctx)) == TE_OK) next++;
        if (status != TE_OK && status != TE_ERROR_MEMORY) return status; /* TE_ERROR_MEMORY: there is no space now */
        TE_TRY(te_generation_step(g, ctx));
        while (te_generation_next(g, &e)) received(e.user, e.token, e.end);
    }
    return TE_OK;
}
/* [generation] */

TEST_CASE("the loop of docs/inference.md") {
    context c;
    source random(fresh_seed());
    language_model m(&c.c, TE_f32);
    server s(m, config_of(3, 64, 16), 3, 16);
    std::vector<wish> wishes(8);
    std::vector<text> texts(8);
    std::vector<te_generation_request> requests;
    int differ = 0;
    for (size_t i = 0; i < wishes.size(); i++) {
        wishes[i] = draw_wish(random, 30, 20), wishes[i].r.user = &texts[i];
        requests.push_back(*wishes[i].get());
    }
    REQUIRE(generate_all(&s.g, requests.data(), (int)requests.size(), &c.c) == TE_OK);
    for (size_t i = 0; i < wishes.size(); i++) {
        text want = reference_text(m, wishes[i], 64);
        want.log_probs.clear();
        compare(texts[i], want, &differ);
    }
    CHECK(differ <= 1);
}

namespace {
int allocations, waits;
const te_target *real;
te_status counted_allocate(te_context *ctx, void **p, size_t bytes) { return allocations++, real->allocate(ctx, p, bytes); }
te_status counted_synchronize(te_context *ctx) { return waits++, real->synchronize(ctx); }
} // namespace

TEST_CASE("no call but te_generation_init allocates, or waits for the stream") {
    context c;
    source random(fresh_seed());
    language_model m(&c.c, TE_bf16);
    server s(m, config_of(4, 100, 16), 4, 16);
    te_target counted = *c.c.target;
    real = c.c.target;
    counted.allocate = counted_allocate, counted.synchronize = counted_synchronize;
    c.c.target = &counted;
    allocations = waits = 0;
    for (int i = 0; i < 40; i++) {
        wish w = draw_wish(random, 30, 12);
        int64_t id = 0, child = 0;
        const te_status status = s.add(w, &id);
        if (status == TE_OK && i % 9 == 8) REQUIRE(te_generation_cancel(&s.g, id, &c.c) == TE_OK);
        s.step();
        if (status == TE_OK && i % 5 == 1) (void)te_generation_fork(&s.g, id, w.get(), &child, &c.c);
    }
    s.finish();
#if TE_CUDA
    // steps that only decode launch the graphs of te_generation_init, and record nothing
    wish w = draw_wish(random, 3, 1);
    w.r.max_tokens = 30, w.stop.clear();
    s.must_add(w), s.step();
    const te_launches *l = (const te_launches *)c.c.launches;
    const int64_t made = l->made, updated = l->updated, replayed = l->replayed;
    for (int i = 0; i < 20; i++) s.step();
    CHECK((l->made == made && l->updated == updated && l->replayed == replayed));
    s.finish();
#endif
    c.c.target = real;
    CHECK(allocations == 0);
    CHECK(waits == 0);
}

TEST_CASE("what a generation is refused for") {
    context c;
    language_model m(&c.c, TE_f32);
    server s(m, config_of(3, 64, 16, 8), 2, 16, 0);
    const auto says = [&](te_status status, te_status expected, const char *part) {
        INFO(te_last_error(&c.c));
        CHECK(status == expected);
        CHECK(std::string(te_last_error(&c.c)).find(part) != std::string::npos);
    };
    te_generation other;
    memset(&other, 0, sizeof other);
    const auto init = [&](te_generation_config config) {
        CHECK((config.models == m.models || te_generation_bytes(&config) == 0));
        return te_generation_init(&other, &config, s.memory(), &c.c);
    };
    te_generation_config config = s.config;
    config.sequences = 4;
    says(init(config), TE_ERROR_VALUE, "4 sequences; 1 to 3 can be");
    config = s.config, config.rows = 1;
    says(init(config), TE_ERROR_VALUE, "1 rows in a step");
    config = s.config, config.pages = 9;
    says(init(config), TE_ERROR_VALUE, "9 pages; the cache has 8");
    config = s.config, config.top = 62;
    says(init(config), TE_ERROR_VALUE, "top is 62; 0 to 61");
    config = s.config, config.rows = 1024;
    says(init(config), TE_ERROR_MEMORY, "bytes of the target");
    config = s.config, config.count = 3;
    says(init(config), TE_ERROR_VALUE, "last_token stands in the last list");
    te_model *models[] = {m.models[0], m.models[1], m.models[2], m.models[3]};
    config = s.config, config.models = models;
    models[0] = m.models[1];
    says(init(config), TE_ERROR_VALUE, "the first list begins with an embedding");
    models[0] = m.models[0], models[1] = m.models[3];
    says(init(config), TE_ERROR_VALUE, "last_token stands in the last list");
    models[1] = m.models[1];
    wide_head wide;
    no_sample without;
    uncached plain;
    buffer memory(&c.c, 1 << 20);
    REQUIRE(wide_head_bind(&wide, memory.data(), &c.c) == TE_OK);
    REQUIRE(no_sample_bind(&without, memory.data(), &c.c) == TE_OK);
    REQUIRE(uncached_bind(&plain, memory.data(), &c.c) == TE_OK);
    models[3] = &wide.model;
    says(init(config), TE_ERROR_SHAPE, "sample chooses among 64 tokens, the embedding has 61");
    models[3] = &without.model;
    says(init(config), TE_ERROR_VALUE, "sample ends the last list");
    models[3] = m.models[3], models[1] = &plain.model;
    says(init(config), TE_ERROR_VALUE, "a has no (cache, 1)");
    language_model stranger(&c.c, TE_f32);
    models[1] = stranger.models[1];
    says(init(config), TE_ERROR_STATE, "the cache was made without it");
    // requests
    wish w;
    int64_t id = 0;
    says(s.add(w, &id), TE_ERROR_NULL, "has no token");
    w.prompt = {1, 61};
    says(s.add(w, &id), TE_ERROR_VALUE, "token 1 of the prompt is 61");
    w.prompt = {1, -1};
    says(s.add(w, &id), TE_ERROR_VALUE, "token 1 of the prompt is -1");
    w.prompt = {1, 2}, w.r.max_tokens = 64;
    says(s.add(w, &id), TE_ERROR_SHAPE, "would have 65 tokens, the cache's capacity is 64");
    w.prompt.assign(65, 1), w.r.max_tokens = 0;
    says(s.add(w, &id), TE_ERROR_SHAPE, "would have 65 tokens");
    w.prompt = {1, 2}, w.r.max_tokens = -1;
    says(s.add(w, &id), TE_ERROR_VALUE, "max_tokens is -1");
    w.r.max_tokens = 3, w.r.presence_penalty = 0.1f;
    says(s.add(w, &id), TE_ERROR_STATE, "without config.penalties");
    w.r.presence_penalty = 0, w.stop.assign(9, 1);
    says(s.add(w, &id), TE_ERROR_VALUE, "9 stop tokens");
    w.stop.clear(), w.r.prefix_count = 2;
    says(s.add(w, &id), TE_ERROR_VALUE, "a prefix of 2 tokens; the prompt has 2");
    w.r.prefix_count = 1, w.r.prefix = 1;
    says(s.add(w, &id), TE_ERROR_VALUE, "2 to 2 can be");
    w.r.prefix_count = 0;
    s.must_add(w), s.must_add(w);
    says(s.add(w, &id), TE_ERROR_MEMORY, "all 2 sequences run");
    says(te_generation_cancel(&s.g, 77, &c.c), TE_ERROR_VALUE, "no sequence 77 runs");
    says(te_generation_fork(&s.g, 77, w.get(), &id, &c.c), TE_ERROR_VALUE, "no sequence 77 runs");
    for (int i = 0; i < 1 + s.g.lag; i++) REQUIRE(te_generation_step(&s.g, &c.c) == TE_OK);
    says(te_generation_step(&s.g, &c.c), TE_ERROR_STATE, "2 events of the last step have not been taken");
    te_generation_event e;
    while (te_generation_next(&s.g, &e)) s.texts[e.id].tokens.push_back(e.token);
    te_generation moved = s.g;
    says(te_generation_step(&moved, &c.c), TE_ERROR_STATE, "moved");
    s.finish();
    context second;
    CHECK(te_generation_step(&s.g, &second.c) == TE_ERROR_STATE);
}
