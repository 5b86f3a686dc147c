// prefill_test.cc -- many new rows of each sequence over a key-value cache in the list's own format: any split of a prompt has the outputs of the
// whole prompt at once, for all sizes of pages, head sizes and options; the bits of a row do not depend on the batch; what freed pages and pages
// behind the last token hold changes nothing. The lists are attention alone: x is [q, k, v] of each row.
#include "harness.h"
#include "te/infer.h"

// X(name, dtype, heads, kv_heads, head_dim, value_dim, window_left, softcap, alibi, sinks)
#define LISTS(X)                                    \
    X(plain_f32, f32, 2, 1, 32, 32, -1, 0, 0, 0)    \
    X(group4_128, bf16, 4, 1, 128, 128, -1, 0, 0, 0) \
    X(group1_64, f16, 2, 2, 64, 64, -1, 0, 0, 0)    \
    X(group2_96, bf16, 4, 2, 96, 96, -1, 0, 0, 0)   \
    X(group2_192, f16, 2, 1, 192, 192, -1, 0, 0, 0) \
    X(value_192, bf16, 2, 2, 192, 128, -1, 0, 0, 0) \
    X(wide_256, bf16, 3, 1, 256, 256, -1, 0, 0, 1)  \
    X(window_128, bf16, 4, 2, 128, 128, 130, 20, 0, 0) \
    X(window_64, bf16, 3, 1, 64, 64, 37, 0, 0, 1)   \
    X(window_256, f16, 2, 1, 256, 256, 300, 0, 0, 0) \
    X(alibi_128, f16, 3, 3, 128, 128, -1, 0, 1, 0)  \
    X(simt_80, bf16, 4, 2, 80, 80, -1, 0, 0, 0)
#define DECLARE(name, dtype, heads, kv, d, dv, left, cap, alibi_, sinks_)                                                                          \
    TE_INFERENCE(name, dtype, (attention, a, heads, kv, d, (cache, 1), (value_dim, dv), (window_left, left), (softcap, cap), (alibi, alibi_), \
                               (sinks, sinks_)))
LISTS(DECLARE)

namespace {

using reference::vec;

struct list {
    const char *text;
    const te_plan *(*plan)();
    size_t bytes, param_bytes;
    te_status (*bind)(void *, void *, te_context *);
    int sinks;
};
#define LIST_OF(name, dtype, heads, kv, d, dv, left, cap, alibi, sinks) \
    {#name, name##_plan, sizeof(name), name##_param_bytes(), [](void *m, void *p, te_context *c) { return name##_bind((name *)m, p, c); }, sinks},
const std::vector<list> &lists() {
    static const std::vector<list> all = {LISTS(LIST_OF)};
    return all;
}

// A list, its cache, and sequences with their outputs when each is one batch without a cache.
struct runner {
    const list &l;
    context own;
    te_context *ctx = &own.c;
    source random;
    std::vector<char> model;
    std::unique_ptr<buffer> params, memory;
    te_cache cache;
    std::vector<vec> x, want;

    // The memory of the cache begins as NaN (harness.h), so that a kernel that multiplies values behind the last token by 0 is noticed.
    runner(const list &of, const te_cache_config &config, unsigned seed) : l(of), random(seed), model(of.bytes) {
        params.reset(new buffer(ctx, std::max<size_t>(of.param_bytes, 64)));
        REQUIRE(l.bind(model.data(), params->data(), ctx) == TE_OK);
        te_model *models[] = {m()};
        if (l.sinks) params->write(random.draw(of.param_bytes / te_dtype_bytes(dtype()), dtype()), dtype());
        memory.reset(new buffer(ctx, te_cache_bytes(models, 1, &config)));
        REQUIRE(te_cache_init(&cache, memory->data(), memory->bytes, models, 1, &config, ctx) == TE_OK);
        REQUIRE(te_context_reserve(ctx, te_plan_workspace_bytes(l.plan(), m(), 8192, ctx)) == TE_OK);
    }
    te_model *m() { return (te_model *)(void *)model.data(); }
    te_dtype dtype() const { return l.plan()->dtype; }
    int in() const { return l.plan()->in; }
    int out() const { return l.plan()->out; }
    vec run(const vec &rows_in, const te_batch &b) {
        const int64_t rows = (int64_t)b.batch * b.seq;
        buffer from(ctx, rows_in.size() * te_dtype_bytes(dtype()), 16), to(ctx, (size_t)(rows * out()) * te_dtype_bytes(dtype()), 16);
        from.write(rows_in, dtype());
        const te_status status = te_plan_infer(te_matrix(to.data(), dtype(), rows, out()), te_matrix(from.data(), dtype(), rows, in()), l.plan(), m(), &b, ctx);
        INFO(te_last_error(ctx));
        REQUIRE(status == TE_OK);
        return to.read(dtype());
    }
    // A sequence of `rows` tokens. The scores grow from the first keys to the last ones, so that the maximum of a row changes while it is processed.
    int draw_sequence(int rows) {
        vec v = random.draw((size_t)(rows * in()), dtype());
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < in(); c++) v[(size_t)(r * in() + c)] *= 0.5 + (double)r / rows;
        x.push_back(numbers::loaded(numbers::stored(v, dtype()).data(), 0, v.size(), dtype()));
        te_batch b;
        memset(&b, 0, sizeof b), b.batch = 1, b.seq = rows;
        want.push_back(run(x.back(), b));
        return (int)x.size() - 1;
    }
    // The next counts[i] rows of sequence which[i], from row at[which[i]] on, of sequence slots[i] of the cache.
    vec step(const std::vector<int> &which, const std::vector<int> &counts, const std::vector<int32_t> &slots, const std::vector<int> &at) {
        std::vector<int32_t> cu(1, 0);
        vec rows_in;
        te_batch b;
        memset(&b, 0, sizeof b);
        for (size_t i = 0; i < which.size(); i++) {
            const vec &v = x[(size_t)which[i]];
            const long first = (long)at[(size_t)which[i]] * in();
            rows_in.insert(rows_in.end(), v.begin() + first, v.begin() + first + (long)counts[i] * in());
            cu.push_back(cu.back() + counts[i]), b.max_seqlen = std::max(b.max_seqlen, counts[i]);
        }
        buffer cu_there(ctx, cu.size() * 4), slots_there(ctx, slots.size() * 4);
        cu_there.write_ints(cu), slots_there.write_ints(slots);
        b.batch = 1, b.seq = cu.back(), b.sequences = (int)which.size(), b.cu_seqlens = (const int32_t *)cu_there.data();
        b.cache = &cache, b.slots = (const int32_t *)slots_there.data();
        REQUIRE(te_cache_begin(&cache, &b, ctx) == TE_OK);
        return run(rows_in, b);
    }
    // Rows from `row` of `got` on against rows [first, first + count) of sequence i. The two kernels round P, and their sums differ in order.
    void compare(const vec &got, int row, int i, int first, int count) {
        const vec part(got.begin() + (long)row * out(), got.begin() + (long)(row + count) * out());
        const vec whole(want[(size_t)i].begin() + (long)first * out(), want[(size_t)i].begin() + (long)(first + count) * out());
        check_close("sequence " + std::to_string(i) + ", rows from " + std::to_string(first), part, whole, tolerance_of(dtype()) / 2);
    }
};

te_cache_config config_of(int sequences, int capacity, int page_rows, int pages = 0) {
    te_cache_config c = te_cache_defaults();
    c.sequences = sequences, c.capacity = capacity, c.page_rows = page_rows, c.pages = pages;
    return c;
}

const int longest = TE_CUDA ? 700 : 130;

} // namespace

TEST_CASE("any split of a prompt has the outputs of the whole prompt") {
    for (const list &l : lists())
        for (const int page_rows : {0, 16, 32, 64, 128, 256}) {
            const unsigned seed = fresh_seed();
            INFO("seed: " << seed << ", " << l.text << ", pages of " << page_rows);
            runner r(l, config_of(6, longest, page_rows), seed);
            const std::vector<int> lengths = {17, longest / 4 + r.random.below(longest / 8), longest / 2, longest - r.random.below(64), 192};
            std::vector<int> at, left;
            for (const int n : lengths) r.draw_sequence(std::min(n, longest)), at.push_back(0), left.push_back(std::min(n, longest));
            const std::vector<int32_t> slot = {4, 2, 0, 3, 5};
            for (bool more = true; more;) {
                std::vector<int> which, counts;
                std::vector<int32_t> slots;
                more = false;
                for (int i = 0; i < (int)lengths.size(); i++) {
                    const int chunks[] = {1, 17, 64, 128, 1 + r.random.below(longest / 2), left[(size_t)i]};
                    const int n = std::min(left[(size_t)i], chunks[r.random.below(6)]);
                    if (n > 0 && r.random.below(4)) which.push_back(i), counts.push_back(n), slots.push_back(slot[(size_t)i]);
                    more = more || left[(size_t)i];
                }
                if (which.empty()) continue;
                const vec got = r.step(which, counts, slots, at);
                for (size_t k = 0, row = 0; k < which.size(); row += (size_t)counts[k], k++) {
                    const size_t i = (size_t)which[k];
                    r.compare(got, (int)row, (int)i, at[i], counts[k]);
                    at[i] += counts[k], left[i] -= counts[k];
                }
            }
            CHECK(te_cache_check(&r.cache, r.ctx) == TE_OK);
        }
}

// Prompts and parts of prompts beside sequences that decode one or three tokens.
TEST_CASE("many new rows have the bits of each sequence alone") {
    for (const list &l : lists()) {
        const unsigned seed = fresh_seed();
        INFO("seed: " << seed << ", " << l.text);
        te_cache_config config = config_of(6, longest, 32);
        config.decode_rows = 2;
        runner r(l, config, seed);
        const std::vector<int> lengths = {longest, longest / 3, longest - 40, 90, 61, longest - 9};
        const std::vector<int> past = {longest / 2, 0, 33, 20, 60, longest - 12}, order = {4, 3, 1, 0, 5, 2};
        std::vector<int> counts, ordered;
        for (size_t i = 0; i < 6; i++) r.draw_sequence(lengths[i]), counts.push_back(lengths[i] - past[i]);
        r.step({0, 2, 3, 4, 5}, {past[0], past[2], past[3], past[4], past[5]}, {0, 2, 3, 4, 5}, {0, 0, 0, 0, 0, 0});
        for (const int i : order) ordered.push_back(counts[(size_t)i]);
        const vec together = r.step(order, ordered, {4, 3, 1, 0, 5, 2}, past);
        for (int i = 0; i < 6; i++) REQUIRE(te_cache_truncate(&r.cache, i, past[(size_t)i], r.ctx) == TE_OK);
        int row = 0;
        for (const int i : order) {
            const vec alone = r.step({i}, {counts[(size_t)i]}, {i}, past);
            INFO("sequence " << i);
            CHECK(std::equal(alone.begin(), alone.end(), together.begin() + (long)row * r.out()));
            r.compare(together, row, i, past[(size_t)i], counts[(size_t)i]);
            row += counts[(size_t)i];
        }
        CHECK(te_cache_check(&r.cache, r.ctx) == TE_OK);
    }
}

// On a GPU the decoding kernel stores partial results, in memory that also has to be there if decode_rows is more than the kernel can process.
TEST_CASE("decode_rows may be more than the decoding kernel processes") {
    const list &l = lists()[1];
    const unsigned seed = fresh_seed();
    INFO("seed: " << seed << ", " << l.text);
    const int count = TE_CUDA ? 150 : 3;
    te_cache_config config = config_of(count, longest, 0);
    config.decode_rows = 64;
    runner r(l, config, seed);
    std::vector<int> which, prompts, at((size_t)count, 0), ones((size_t)count, 1);
    std::vector<int32_t> slots;
    for (int i = 0; i < count; i++) r.draw_sequence(longest / 2 + i % 7 + 2), which.push_back(i), slots.push_back(i), prompts.push_back(longest / 2 + i % 7);
    for (int i = 0; i < count; i++) r.step({i}, {prompts[(size_t)i]}, {i}, at);
    at = prompts;
    for (int token = 0; token < 2; token++) {
        const vec got = r.step(which, ones, slots, at);
        for (int i = 0; i < count; i++) r.compare(got, i, i, at[(size_t)i], 1), at[(size_t)i]++;
    }
}

TEST_CASE("freed pages, padding and a sequence that does not fit change nothing") {
    for (const list &l : lists())
        for (const int page_rows : {0, 16, 64}) {
            const unsigned seed = fresh_seed();
            INFO("seed: " << seed << ", " << l.text << ", pages of " << page_rows);
            const int rows = longest / 2;
            // pages for one sequence and a half
            runner r(l, config_of(3, longest, page_rows, page_rows ? (rows * 3 / 2 + page_rows - 1) / page_rows : 0), seed);
            const int bad = r.draw_sequence(rows), good = r.draw_sequence(rows), other = r.draw_sequence(longest);
            for (double &v : r.x[(size_t)bad]) v = NAN;
            r.step({bad}, {rows}, {1}, {0, 0, 0});
            REQUIRE(te_cache_truncate(&r.cache, 1, 0, r.ctx) == TE_OK);
            // slot 1 again, in the pages that hold NaN; beside it padding and, if there are pages, a sequence for which too few are free
            const int first = rows / 3 + 1;
            const std::vector<int32_t> slots = {TE_CACHE_PADDING, 1, page_rows ? 2 : TE_CACHE_PADDING};
            const vec got = r.step({other, good, other}, {40, first, longest}, slots, {0, 0, 0});
            r.compare(got, 40, good, 0, first);
            for (long k = 0; k < (long)got.size(); k++)
                if (k < 40L * r.out() || k >= (40L + first) * r.out()) REQUIRE(got[(size_t)k] == 0);
            CHECK(te_cache_check(&r.cache, r.ctx) == (page_rows ? TE_ERROR_MEMORY : TE_OK));
            r.compare(r.step({good}, {rows - first}, {1}, {0, first, 0}), 0, good, first, rows - first);
            CHECK(te_cache_check(&r.cache, r.ctx) == TE_OK);
        }
}
