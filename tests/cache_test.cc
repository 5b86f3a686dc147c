// cache_test.cc -- inference with a key-value cache (te/cache/cache.h): a prompt in parts, sequence beside sequence, has the outputs of all rows at once; pages, forks,
// truncation, and what a batch is refused for.
#include "harness.h"
#include "te/te.h"
#include "te/infer.h"

// [rows, width] -> [rows, width]: positions from the cache, grouped queries, and each option of attention
MODEL(plain_f32, f32, (linear, l, 48, 8 * 32), (rope, r, 4, 2, 32), (attention, a, 4, 2, 32, (cache, 1)), (linear, o, 128, 48))
MODEL(plain_bf16, bf16, (linear, l, 48, 8 * 64), (rope, r, 4, 2, 64), (attention, a, 4, 2, 64, (cache, 1)), (linear, o, 256, 48))
MODEL(odd_bf16, bf16, (linear, l, 48, 7 * 80), (rope, r, 5, 1, 80), (attention, a, 5, 1, 80, (cache, 1)), (linear, o, 400, 48))
MODEL(eight_bf16, bf16, (linear, l, 48, 7 * 72), (rope, r, 5, 1, 72), (attention, a, 5, 1, 72, (cache, 1)), (linear, o, 360, 48))
MODEL(large_f16, f16, (linear, l, 48, 9 * 128), (bias, b, 9 * 128), (rope, r, 7, 1, 128), (attention, a, 7, 1, 128, (cache, 1)), (linear, o, 896, 48))
MODEL(window_bf16, bf16, (linear, l, 48, 4 * 64), (attention, a, 2, 1, 64, (cache, 1), (window_left, 37), (sinks, 1), (softcap, 20)), (linear, o, 128, 48))
MODEL(window_f32, f32, (linear, l, 48, 4 * 36), (attention, a, 2, 1, 36, (cache, 1), (window_left, 9), (sinks, 1), (softcap, 20)), (linear, o, 72, 48))
MODEL(alibi_f32, f32, (linear, l, 48, 9 * 20), (attention, a, 3, 3, 20, (cache, 1), (alibi, 1)), (linear, o, 60, 48))
MODEL(relative_bf16, bf16, (linear, l, 48, 6 * 64), (attention, a, 2, 2, 64, (cache, 1), (relative_bias, 8), (max_distance, 32)), (linear, o, 128, 48))
MODEL(value_f32, f32, (linear, l, 48, 3 * 24 + 16), (rope, r, 2, 1, 24, (value_dim, 16)), (attention, a, 2, 1, 24, (cache, 1), (value_dim, 16)), (linear, o, 32, 48))
MODEL(norm_f32, f32, (linear, l, 48, 8 * 32), (head_norm, n, 4, 2, 32), (rope, r, 4, 2, 32), (attention, a, 4, 2, 32, (cache, 1)), (linear, o, 128, 48))
MODEL(learnt_f32, f32, (positions, p, 300, 48), (linear, l, 48, 6 * 16), (attention, a, 2, 2, 16, (cache, 1)), (linear, o, 32, 48))
// attention alone: the GEMMs of a list need not have the same bits for any number of rows
MODEL(alone_f32, f32, (rope, r, 4, 2, 32), (attention, a, 4, 2, 32, (cache, 1)))
MODEL(alone_bf16, bf16, (rope, r, 5, 1, 64), (attention, a, 5, 1, 64, (cache, 1)))
MODEL(alone_f16, f16, (rope, r, 4, 4, 128), (attention, a, 4, 4, 128, (cache, 1)))
MODEL(alone_80, bf16, (rope, r, 4, 2, 80), (attention, a, 4, 2, 80, (cache, 1)))
MODEL(alone_256, bf16, (rope, r, 6, 2, 256), (attention, a, 6, 2, 256, (cache, 1), (window_left, 300), (sinks, 1)))
MODEL(alone_512, bf16, (rope, r, 4, 2, 512), (attention, a, 4, 2, 512, (cache, 1), (window_left, 300), (sinks, 1)))
MODEL(wide_f32, f32, (rope, r, 2, 1, 384), (attention, a, 2, 1, 384, (cache, 1)))
MODEL(without, f32, (linear, l, 48, 6 * 16), (attention, a, 2, 2, 16), (linear, o, 32, 48))

namespace {

// A model, a cache, and the inputs of several sequences with their outputs when each is one batch without a cache.
struct cached {
    const subject &s;
    context own;
    te_context *ctx = &own.c;
    source random;
    instance m;
    te_dtype dtype;
    int in, out;
    te_cache cache;
    std::unique_ptr<buffer> memory;
    std::vector<reference::vec> x, want;

    cached(const subject &sub, const te_cache_config &config, unsigned seed) : s(sub), random(seed), m(sub, ctx), dtype(sub.plan()->dtype), in(sub.plan()->in), out(sub.plan()->out) {
        m.draw(random);
        te_model *models[] = {m.model()};
        memory.reset(new buffer(ctx, te_cache_bytes(models, 1, &config), 0));
        REQUIRE(te_cache_init(&cache, memory->data(), memory->bytes, models, 1, &config, ctx) == TE_OK);
        REQUIRE(te_context_reserve(ctx, s.workspace_bytes(m.memory.data(), 2048, ctx)) == TE_OK);
    }
    void draw_sequence(int rows) {
        x.push_back(random.draw((size_t)(rows * in), dtype));
        want.emplace_back();
        te_batch b;
        memset(&b, 0, sizeof b), b.batch = 1, b.seq = rows;
        want.back() = run(x.back(), b);
    }
    reference::vec run(const reference::vec &rows_in, const te_batch &b, te_status expected = TE_OK) {
        const int64_t rows = (int64_t)b.batch * b.seq;
        buffer from(ctx, rows_in.size() * te_dtype_bytes(dtype), 16), to(ctx, (size_t)(rows * out) * te_dtype_bytes(dtype), 16);
        from.write(rows_in, dtype);
        const te_status status = s.infer(te_matrix(to.data(), dtype, rows, out), te_matrix(from.data(), dtype, rows, in), m.memory.data(), &b, ctx);
        INFO(te_last_error(ctx));
        REQUIRE(status == expected);
        return status == TE_OK ? to.read(dtype) : reference::vec();
    }
    // The next counts[i] rows of sequence which[i], which is the cache's slots[i], after at[which[i]] rows.
    reference::vec step(const std::vector<int> &which, const std::vector<int> &counts, const std::vector<int32_t> &slots, const std::vector<int> &at) {
        std::vector<int32_t> cu(1, 0);
        reference::vec rows_in;
        te_batch b;
        memset(&b, 0, sizeof b);
        for (size_t i = 0; i < which.size(); i++) {
            const reference::vec &v = x[(size_t)which[i]];
            const long first = (long)at[(size_t)which[i]] * in;
            rows_in.insert(rows_in.end(), v.begin() + first, v.begin() + first + counts[i] * in);
            cu.push_back(cu.back() + counts[i]), b.max_seqlen = std::max(b.max_seqlen, counts[i]);
        }
        buffer cu_there(ctx, cu.size() * 4), slots_there(ctx, slots.size() * 4);
        cu_there.write_ints(cu), slots_there.write_ints(slots);
        b.batch = 1, b.seq = cu.back(), b.sequences = (int)which.size(), b.cu_seqlens = (const int32_t *)cu_there.data();
        b.cache = &cache, b.slots = (const int32_t *)slots_there.data();
        REQUIRE(te_cache_begin(&cache, &b, ctx) == TE_OK);
        return run(rows_in, b);
    }
    double bound() const { return dtype == TE_f32 ? 1e-5 : dtype == TE_f16 ? 2e-3 : 1.6e-2; }
    // Rows from `row` of `got` on against rows [first, first + count) of sequence i.
    void compare(const reference::vec &got, int row, int i, int first, int count) {
        double norm = 0, difference = 0;
        for (int k = 0; k < count * out; k++) {
            const double w = want[(size_t)i][(size_t)(first * out + k)], g = got[(size_t)(row * out + k)];
            norm += w * w, difference += (g - w) * (g - w);
        }
        INFO("sequence " << i << ", rows " << first << " to " << first + count);
        CHECK(std::sqrt(difference / norm) <= bound());
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

te_cache_config config_of(int sequences, int capacity, int page_rows, int pages = 0) {
    te_cache_config c = te_cache_defaults();
    c.sequences = sequences, c.capacity = capacity, c.page_rows = page_rows, c.pages = pages;
    return c;
}

// Sequences of random lengths, in random parts (a prompt, single tokens, a few at a time), in batches of several.
void parts(const subject &s, int page_rows) {
    const unsigned seed = fresh_seed();
    INFO("seed: " << seed << ", " << s.text << ", pages of " << page_rows);
    cached c(s, config_of(5, 300, page_rows), seed);
    const std::vector<int> lengths = {1, 17, 64 + c.random.below(60), 257 + c.random.below(40)};
    for (const int n : lengths) c.draw_sequence(n);
    std::vector<int32_t> slot = {4, 2, 0, 3};
    std::vector<int> at(lengths.size(), 0);
    for (int step = 0;; step++) {
        std::vector<int> which, counts;
        std::vector<int32_t> slots;
        for (size_t k = 0; k < lengths.size(); k++) {
            const size_t i = (k + (size_t)step) % lengths.size();
            const int left = lengths[i] - at[i], n = step == 0 ? lengths[i] / 3 : c.random.below(3) ? 1 : c.random.below(left < 90 ? left + 1 : 90);
            if (!left || (step && !c.random.below(4))) continue;
            which.push_back((int)i), counts.push_back(std::min(std::max(n, 1), left)), slots.push_back(slot[i]);
        }
        if (which.empty()) {
            if (at == lengths) break;
            continue;
        }
        const reference::vec got = c.step(which, counts, slots, at);
        for (size_t k = 0, row = 0; k < which.size(); k++) {
            c.compare(got, (int)row, which[k], at[(size_t)which[k]], counts[k]);
            at[(size_t)which[k]] += counts[k], row += (size_t)counts[k];
        }
    }
    CHECK(te_cache_check(&c.cache, c.ctx) == TE_OK);
    const std::vector<int32_t> held = c.lengths();
    for (size_t i = 0; i < lengths.size(); i++) CHECK(held[(size_t)slot[i]] == lengths[i]);
    for (size_t i = 0; i < 5; i++) REQUIRE(te_cache_truncate(&c.cache, (int)i, 0, c.ctx) == TE_OK);
    CHECK(c.free_pages() == c.cache.t.pages);
}

} // namespace

TEST_CASE("a prompt in parts has the outputs of the whole prompt") {
    for (const subject *s : {&plain_f32_subject, &plain_bf16_subject, &odd_bf16_subject, &eight_bf16_subject, &large_f16_subject, &window_bf16_subject, &window_f32_subject,
                             &alibi_f32_subject, &relative_bf16_subject, &value_f32_subject, &norm_f32_subject, &learnt_f32_subject, &alone_f16_subject, &alone_256_subject, &alone_512_subject, &wide_f32_subject})
        for (const int page_rows : {0, 16, 64}) parts(*s, page_rows);
}

TEST_CASE("a row has the same bits alone and in any batch") {
    for (const subject *s : {&alone_f32_subject, &alone_bf16_subject, &alone_f16_subject, &alone_80_subject, &alone_256_subject, &alone_512_subject}) {
        const unsigned seed = fresh_seed();
        INFO("seed: " << seed << ", " << s->text);
        cached c(*s, config_of(6, 600, 16), seed);
        for (const int n : {531, 40, 3, 258}) c.draw_sequence(n);
        std::vector<int> at(4, 0);
        c.step({0, 1, 2, 3}, {530, 39, 2, 257}, {0, 1, 2, 3}, at);
        at = {530, 39, 2, 257};
        const reference::vec together = c.step({2, 0, 3, 1}, {1, 1, 1, 1}, {2, 0, 3, 1}, at);
        for (int i = 0; i < 4; i++) REQUIRE(te_cache_truncate(&c.cache, i, at[(size_t)i], c.ctx) == TE_OK);
        const std::vector<int> order = {2, 0, 3, 1};
        for (int k = 0; k < 4; k++) {
            const int i = order[(size_t)k];
            const reference::vec alone = c.step({i}, {1}, {i}, at);
            CHECK(std::equal(alone.begin(), alone.end(), together.begin() + k * c.out));
        }
    }
}

// On a GPU these are more groups than blocks: some have all splits in one block, others lie across the boundary of two.
TEST_CASE("many sequences have the bits of each alone") {
    const unsigned seed = fresh_seed();
    INFO("seed: " << seed);
    const int count = 96, longest = TE_CUDA ? 1300 : 90;
    cached c(alone_f16_subject, config_of(count, longest + 2, 16), seed);
    std::vector<int> all, at, ones((size_t)count, 1);
    std::vector<int32_t> slots;
    for (int i = 0; i < count; i++) {
        const int prompt = 1 + c.random.below(i % 3 ? longest : longest / 8);
        c.draw_sequence(prompt + 2);
        c.step({i}, {prompt}, {i}, std::vector<int>((size_t)i + 1, 0));
        all.push_back(i), at.push_back(prompt), slots.push_back(i);
    }
    reference::vec together;
    for (int token = 0; token < 2; token++) {
        together = c.step(all, ones, slots, at);
        for (int i = 0; i < count; i++) c.compare(together, i, i, at[(size_t)i], 1), at[(size_t)i]++;
    }
    for (int i = 0; i < count; i += 5) {
        REQUIRE(te_cache_truncate(&c.cache, i, --at[(size_t)i], c.ctx) == TE_OK);
        const reference::vec alone = c.step({i}, {1}, {i}, at);
        INFO("sequence " << i << " of " << at[(size_t)i] << " tokens");
        CHECK(std::equal(alone.begin(), alone.end(), together.begin() + i * c.out));
    }
    CHECK(te_cache_check(&c.cache, c.ctx) == TE_OK);
}

TEST_CASE("forks share full pages and go on by themselves") {
    for (const int page_rows : {0, 16}) {
        cached c(plain_f32_subject, config_of(3, 128, page_rows), fresh_seed());
        c.draw_sequence(70), c.draw_sequence(70);
        for (int k = 0; k < 37 * c.in; k++) c.x[1][(size_t)k] = c.x[0][(size_t)k]; // the same prefix
        te_batch b;
        memset(&b, 0, sizeof b), b.batch = 1, b.seq = 70, c.want[1] = c.run(c.x[1], b);
        c.step({0}, {37}, {2}, {0, 0});
        REQUIRE(te_cache_fork(&c.cache, 0, 2, c.ctx) == TE_OK);
        if (page_rows) CHECK(c.free_pages() == c.cache.t.pages - 4); // two shared pages, and the third twice
        c.compare(c.step({0}, {33}, {2}, {37, 37}), 0, 0, 37, 33);
        c.compare(c.step({1}, {33}, {0}, {37, 37}), 0, 1, 37, 33);
        // sequence 2 goes on in the middle of a page that it shares: sequence 0 must not see it
        REQUIRE(te_cache_truncate(&c.cache, 2, 20, c.ctx) == TE_OK);
        c.step({1}, {30}, {2}, {20, 37}); // other rows than those that the page had there
        REQUIRE(te_cache_truncate(&c.cache, 0, 37, c.ctx) == TE_OK);
        c.compare(c.step({1}, {33}, {0}, {70, 37}), 0, 1, 37, 33);
        REQUIRE(te_cache_truncate(&c.cache, 2, 0, c.ctx) == TE_OK);
        REQUIRE(te_cache_truncate(&c.cache, 0, 37, c.ctx) == TE_OK); // the shared pages are still there
        c.compare(c.step({1}, {33}, {0}, {37, 37}), 0, 1, 37, 33);
        REQUIRE(te_cache_truncate(&c.cache, 0, 0, c.ctx) == TE_OK);
        CHECK(c.free_pages() == c.cache.t.pages);
        CHECK(te_cache_check(&c.cache, c.ctx) == TE_OK);
    }
}

// A graph's step: one new token of each of three sequences. The batch lies in the test, because the graph reads its addresses at each replay.
struct graph_step {
    cached *c;
    te_batch batch;
};
te_status one_token(const te_graph *g, const void *arg, te_context *ctx) {
    const graph_step *t = (const graph_step *)arg;
    TE_TRY(te_cache_begin(&t->c->cache, &t->batch, ctx));
    return t->c->s.infer(te_graph_output(g, "y"), te_graph_input(g, "x"), t->c->m.memory.data(), &t->batch, ctx);
}

TEST_CASE("one captured graph serves all lengths") {
    for (const subject *s : {&plain_f32_subject, &plain_bf16_subject}) {
        cached c(*s, config_of(3, 300, 16), fresh_seed());
        const std::vector<int> prompts = {5, 250, 31};
        for (const int n : prompts) c.draw_sequence(n + 12);
        const std::vector<int32_t> slots = {1, 2, 0};
        c.step({0, 1, 2}, prompts, slots, {0, 0, 0});
        buffer slots_there(c.ctx, slots.size() * 4), x(c.ctx, 3 * (size_t)c.in * te_dtype_bytes(c.dtype), 0), y(c.ctx, 3 * (size_t)c.out * te_dtype_bytes(c.dtype), 0);
        slots_there.write_ints(slots);
        graph_step t;
        memset(&t, 0, sizeof t);
        t.c = &c, t.batch.batch = 3, t.batch.seq = 1, t.batch.cache = &c.cache, t.batch.slots = (const int32_t *)slots_there.data();
        te_named in[] = {te_named_tensor("x", te_matrix(x.data(), c.dtype, 3, c.in))}, out[] = {te_named_tensor("y", te_matrix(y.data(), c.dtype, 3, c.out))};
        te_graph_spec spec = te_graph_spec_of("token", one_token, &t, 0, in, 1, out, 1);
        te_graph g;
        for (int token = 0; token < 12; token++) {
            reference::vec rows;
            for (int i = 0; i < 3; i++) {
                const reference::vec &v = c.x[(size_t)i];
                const long first = (long)(prompts[(size_t)i] + token) * c.in;
                rows.insert(rows.end(), v.begin() + first, v.begin() + first + c.in);
            }
            x.write(rows, c.dtype), y.poison();
            if (token == 0) { // eager, which loads kernels
                REQUIRE(te_cache_begin(&c.cache, &t.batch, c.ctx) == TE_OK);
                REQUIRE(c.s.infer(out[0].tensor, in[0].tensor, c.m.memory.data(), &t.batch, c.ctx) == TE_OK);
                REQUIRE(te_synchronize(c.ctx) == TE_OK);
            } else {
                if (token == 1) REQUIRE(te_graph_capture(&g, &spec, nullptr, c.ctx) == TE_OK);
                REQUIRE(te_graph_replay(&g, in, 1, c.ctx) == TE_OK);
            }
            const reference::vec got = y.read(c.dtype);
            for (int i = 0; i < 3; i++) c.compare(got, i, i, prompts[(size_t)i] + token, 1);
        }
        te_graph_destroy(&g);
        CHECK(te_cache_check(&c.cache, c.ctx) == TE_OK);
        CHECK(c.lengths() == std::vector<int32_t>({43, 17, 262}));
    }
}

TEST_CASE("a batch that does not fit leaves the cache as it was, and is reported") {
    cached c(plain_f32_subject, config_of(4, 64, 16, 5), fresh_seed());
    for (int i = 0; i < 4; i++) c.draw_sequence(65);
    const std::vector<int> none(4, 0);
    // 5 pages: sequence 0 takes 3, sequence 1 needs 3 and is refused, sequence 2 takes 1
    const reference::vec got = c.step({0, 1, 2}, {40, 40, 10}, {0, 1, 2}, none);
    c.compare(got, 0, 0, 0, 40);
    for (int k = 40 * c.out; k < 80 * c.out; k++) REQUIRE(std::isfinite(got[(size_t)k]));
    CHECK(te_cache_check(&c.cache, c.ctx) == TE_ERROR_MEMORY);
    CHECK(te_cache_check(&c.cache, c.ctx) == TE_OK); // told once
    CHECK(c.lengths()[0] == 40);
    CHECK(c.lengths()[1] == 0);
    // longer than the capacity; a slot that does not exist
    c.step({0}, {25}, {0}, {40, 0, 0, 0});
    CHECK(te_cache_check(&c.cache, c.ctx) == TE_ERROR_SHAPE);
    c.step({0}, {1}, {4}, none);
    CHECK(te_cache_check(&c.cache, c.ctx) == TE_ERROR_VALUE);
    c.step({0}, {1}, {-2}, none);
    CHECK(te_cache_check(&c.cache, c.ctx) == TE_ERROR_VALUE);
    CHECK(c.lengths()[0] == 40);
    c.compare(c.step({0}, {24}, {0}, {40, 0, 0, 0}), 0, 0, 40, 24); // still as it was
    CHECK(te_cache_check(&c.cache, c.ctx) == TE_OK);
}

TEST_CASE("a sequence moves with its pages") {
    for (const int page_rows : {0, 16}) {
        cached c(plain_f32_subject, config_of(3, 128, page_rows), fresh_seed());
        c.draw_sequence(70), c.draw_sequence(70);
        c.step({0, 1}, {37, 20}, {2, 0}, {0, 0});
        const int free_pages = c.free_pages();
        REQUIRE(te_cache_move(&c.cache, 1, 2, c.ctx) == TE_OK);
        CHECK(c.lengths() == std::vector<int32_t>({20, 37, 0}));
        CHECK(c.free_pages() == free_pages);
        c.compare(c.step({0}, {10}, {1}, {37, 20}), 0, 0, 37, 10);
        REQUIRE(te_cache_move(&c.cache, 0, 1, c.ctx) == TE_OK); // the sequence that was there ends
        REQUIRE(te_cache_move(&c.cache, 0, 0, c.ctx) == TE_OK);
        CHECK(c.lengths() == std::vector<int32_t>({47, 0, 0}));
        c.compare(c.step({0}, {23}, {0}, {47, 20}), 0, 0, 47, 23);
        REQUIRE(te_cache_truncate(&c.cache, 0, 0, c.ctx) == TE_OK);
        CHECK(c.free_pages() == c.cache.t.pages);
        CHECK(te_cache_check(&c.cache, c.ctx) == TE_OK);
        CHECK(te_cache_move(&c.cache, 3, 0, c.ctx) == TE_ERROR_VALUE);
    }
}

TEST_CASE("rows of padding change nothing, in a batch and in the cache") {
    for (const subject *s : {&plain_f32_subject, &alone_bf16_subject, &alone_80_subject}) {
        cached c(*s, config_of(4, 64, 16), fresh_seed());
        for (int i = 0; i < 4; i++) c.draw_sequence(40);
        const std::vector<int> none(4, 0), at = {20, 20, 20, 20};
        c.step({0, 1}, {20, 20}, {2, 1}, none);
        const int free_pages = c.free_pages();
        // one token each, and a prompt of padding beside a prompt
        const reference::vec got = c.step({2, 1, 3, 0}, {1, 1, 1, 1}, {TE_CACHE_PADDING, 1, TE_CACHE_PADDING, 2}, at);
        c.compare(got, 1, 1, 20, 1), c.compare(got, 3, 0, 20, 1);
        for (int k = 0; k < c.out; k++) {
            REQUIRE(std::isfinite(got[(size_t)k]));
            if (s != &plain_f32_subject) REQUIRE((got[(size_t)k] == 0 && got[(size_t)(2 * c.out + k)] == 0));
        }
        c.compare(c.step({2, 0}, {7, 9}, {TE_CACHE_PADDING, 2}, {21, 21, 0, 0}), 7, 0, 21, 9);
        CHECK(c.lengths() == std::vector<int32_t>({0, 21, 30, 0}));
        CHECK(c.free_pages() == free_pages);
        CHECK(te_cache_check(&c.cache, c.ctx) == TE_OK);
    }
}

TEST_CASE("what a cache is refused for") {
    cached c(plain_f32_subject, config_of(2, 64, 16), fresh_seed());
    const auto says = [&](te_status status, te_status expected, const char *text) {
        INFO(te_last_error(c.ctx));
        CHECK(status == expected);
        CHECK(std::string(te_last_error(c.ctx)).find(text) != std::string::npos);
    };
    te_model *models[] = {c.m.model()};
    te_cache other;
    const auto init = [&](te_cache_config config) { return te_cache_init(&other, c.memory->data(), c.memory->bytes, models, 1, &config, c.ctx); };
    says(init(config_of(0, 64, 16)), TE_ERROR_VALUE, "0 sequences of 64 tokens");
    says(init(config_of(2, 64, 24)), TE_ERROR_VALUE, "page_rows 24");
    says(init(config_of(2, 64, 8)), TE_ERROR_VALUE, "page_rows 8");
    says(init(config_of(200, 64, 16)), TE_ERROR_MEMORY, "bytes are needed");
    te_cache_config good = config_of(2, 64, 16);
    says(te_cache_init(&other, (char *)c.memory->data() + 16, c.memory->bytes, models, 1, &good, c.ctx), TE_ERROR_ALIGNMENT, "aligned");
    says(te_cache_truncate(&c.cache, 2, 0, c.ctx), TE_ERROR_VALUE, "sequence 2 of a cache of 2");
    says(te_cache_truncate(&c.cache, 0, -1, c.ctx), TE_ERROR_VALUE, "length -1");
    says(te_cache_fork(&c.cache, 0, 3, c.ctx), TE_ERROR_VALUE, "sequence 3");
    te_batch b;
    memset(&b, 0, sizeof b), b.batch = 1, b.seq = 1, b.cache = &c.cache;
    te_cache moved = c.cache;
    b.cache = &moved;
    says(te_cache_begin(&moved, &b, c.ctx), TE_ERROR_STATE, "moved");
    b.cache = nullptr;
    says(te_cache_begin(&c.cache, &b, c.ctx), TE_ERROR_STATE, "is not this cache");
    b.cache = &c.cache, b.batch = 3;
    says(te_cache_begin(&c.cache, &b, c.ctx), TE_ERROR_SHAPE, "3 sequences, the cache has 2");
    // a model that the cache was not made for, an attention without the option, and training
    b.batch = 1;
    REQUIRE(te_cache_begin(&c.cache, &b, c.ctx) == TE_OK);
    cached stranger(alibi_f32_subject, config_of(2, 64, 16), fresh_seed());
    stranger.run(reference::vec((size_t)stranger.in), b, TE_ERROR_STATE);
    instance plain(without_subject, c.ctx);
    buffer x(c.ctx, (size_t)c.in * 4), y(c.ctx, (size_t)c.in * 4);
    says(without_subject.infer(te_matrix(y.data(), TE_f32, 1, c.in), te_matrix(x.data(), TE_f32, 1, c.in), plain.memory.data(), &b, c.ctx), TE_ERROR_STATE,
         "declared without (cache, 1)");
    // te_cache_begin was called for a batch of another size, or not at all
    const reference::vec two = reference::vec((size_t)c.in * 2);
    b.seq = 2, c.run(two, b, TE_ERROR_STATE), says(TE_ERROR_STATE, TE_ERROR_STATE, "te_cache_begin was last called for 1");
    b.seq = 1;
    REQUIRE(te_cache_init(&c.cache, c.memory->data(), c.memory->bytes, models, 1, &good, c.ctx) == TE_OK);
    c.run(reference::vec((size_t)c.in), b, TE_ERROR_STATE), says(TE_ERROR_STATE, TE_ERROR_STATE, "te_cache_begin was last called for 0");
    te_saved saved;
    memset(&saved, 0, sizeof saved);
    buffer memory(c.ctx, c.s.saved_bytes(1));
    saved.memory = memory.data(), saved.bytes = memory.bytes;
    says(c.s.forward(te_matrix(y.data(), TE_f32, 1, c.in), &saved, te_matrix(x.data(), TE_f32, 1, c.in), c.m.memory.data(), &b, c.ctx), TE_ERROR_STATE,
         "has a cache, which is for inference");
    te_model *uncached[] = {plain.model()};
    says(te_cache_init(&other, c.memory->data(), c.memory->bytes, uncached, 1, &good, c.ctx), TE_ERROR_VALUE,
         "0 attentions with (cache, 1)");
}
