// latent_decode_test.cc -- attention whose values are the first columns of its keys (values_in_keys), over a key-value cache, against the formula in
// double: prompts, and then one to four new rows of each sequence, in contiguous caches and in pages; the same bits alone and in any batch.
#include "harness.h"

#include <algorithm>

#include "te/infer.h"
#include "te/ops/attention.h"

// name, dtype, heads, head_dim, value_dim, scale, window_left, softcap, alibi
#define LATENT(X)                                                    \
    X(heads16_bf16, bf16, 16, 576, 512, 0.08f, -1, 0, 0)             \
    X(heads128_bf16, bf16, 128, 576, 512, 0.06f, -1, 0, 0)           \
    X(heads5_f16, f16, 5, 192, 128, 0.1f, 100, 20.0f, 0)             \
    X(heads20_bf16, bf16, 20, 320, 256, 0.08f, -1, 0, 1)             \
    X(heads12_f16, f16, 12, 576, 512, 0.06f, 700, 0, 0)              \
    X(heads4_f32, f32, 4, 576, 512, 0.08f, -1, 0, 0)                 \
    X(heads2_bf16, bf16, 2, 128, 128, 0.1f, -1, 0, 0)                \
    X(heads3_bf16, bf16, 3, 72, 40, 0.2f, -1, 0, 0) /* no kernel for decoding has these sizes */
#define LATENT_LIST(name, dtype, heads, dim, value, scale_, left, cap, has_alibi)                                              \
    TE_INFERENCE(name, dtype, (attention, a, heads, 1, dim, (value_dim, value), (values_in_keys, 1), (scale, scale_),          \
                               (window_left, left), (softcap, cap), (alibi, has_alibi), (cache, 1)))
LATENT(LATENT_LIST)

namespace {

struct latent_list {
    const te_plan *(*plan)();
    te_status (*bind)(void *, void *, te_context *);
    size_t bytes;
    double scale;
    int left;
    double softcap;
    bool alibi;
};
#define LATENT_OF(name, dtype, heads, dim, value, scale_, left, cap, has_alibi)                                                \
    {name##_plan, [](void *m, void *p, te_context *c) { return name##_bind((name *)m, p, c); }, sizeof(name), scale_, left, cap, has_alibi != 0},
const latent_list lists[] = {LATENT(LATENT_OF)};

struct latent_cache {
    const latent_list &l;
    context own;
    te_context *ctx = &own.c;
    source random;
    const te_attention_options &o;
    const te_dtype dtype;
    const int in, out;
    std::vector<char> memory;
    te_cache cache;
    std::unique_ptr<buffer> pages;
    std::vector<reference::vec> x; // the rows of each sequence

    latent_cache(const latent_list &of, unsigned seed, int sequences, int capacity, int page_rows)
        : l(of), random(seed), o(*(const te_attention_options *)of.plan()->op[0].options), dtype(of.plan()->dtype), in(of.plan()->in), out(of.plan()->out), memory(of.bytes) {
        te_cache_config config = te_cache_defaults();
        config.sequences = sequences, config.capacity = capacity, config.page_rows = page_rows, config.decode_rows = 4;
        REQUIRE(l.bind(memory.data(), nullptr, ctx) == TE_OK);
        te_model *models[] = {model()};
        pages.reset(new buffer(ctx, te_cache_bytes(models, 1, &config)));
        REQUIRE(te_cache_init(&cache, pages->data(), pages->bytes, models, 1, &config, ctx) == TE_OK);
        REQUIRE(te_context_reserve(ctx, te_plan_workspace_bytes(l.plan(), model(), 4096, ctx)) == TE_OK);
    }
    te_model *model() { return (te_model *)(void *)memory.data(); }
    void draw(int rows) { x.push_back(random.draw((size_t)(rows * in), dtype)); }
    // Rows at[i] to at[i] + counts[i] of the sequences which[i], which have these slots in the cache.
    reference::vec step(const std::vector<int> &which, const std::vector<int> &counts, const std::vector<int> &at) {
        std::vector<int32_t> cu(1, 0), slots(which.begin(), which.end());
        reference::vec rows;
        te_batch b;
        memset(&b, 0, sizeof b);
        for (size_t i = 0; i < which.size(); i++) {
            const auto from = x[(size_t)which[i]].begin() + (long)at[(size_t)which[i]] * in;
            rows.insert(rows.end(), from, from + (long)counts[i] * in);
            cu.push_back(cu.back() + counts[i]), b.max_seqlen = std::max(b.max_seqlen, counts[i]);
        }
        buffer cu_there(ctx, cu.size() * 4), slots_there(ctx, slots.size() * 4);
        cu_there.write_ints(cu), slots_there.write_ints(slots);
        b.batch = 1, b.seq = cu.back(), b.sequences = (int)which.size(), b.cu_seqlens = (const int32_t *)cu_there.data();
        b.cache = &cache, b.slots = (const int32_t *)slots_there.data();
        REQUIRE(te_cache_begin(&cache, &b, ctx) == TE_OK);
        buffer from(ctx, rows.size() * te_dtype_bytes(dtype)), to(ctx, (size_t)(b.seq * out) * te_dtype_bytes(dtype));
        from.write(rows, dtype);
        const te_status status = te_plan_infer(te_matrix(to.data(), dtype, b.seq, out), te_matrix(from.data(), dtype, b.seq, in), l.plan(), model(), &b, ctx);
        INFO(te_last_error(ctx));
        REQUIRE(status == TE_OK);
        return to.read(dtype);
    }
    // Row `row` of `got` against the output of row `query` of a sequence. The bound of an element: P is rounded to the dtype before it is
    // multiplied by the values, and so is the output; in f32 the sums have so large an error.
    void compare(const reference::vec &got, int row, int sequence, int query) {
        const int d = o.head_dim, dv = o.value_dim, first = l.left < 0 ? 0 : std::max(0, query - l.left);
        const reference::vec &v = x[(size_t)sequence];
        const double eps = dtype == TE_f32 ? 1e-5 : dtype == TE_f16 ? 0x1p-10 : 0x1p-7;
        double worst = 0;
        std::vector<double> p, want((size_t)dv), size((size_t)dv);
        for (int head = random.below(std::max(1, o.heads / 3)); head < o.heads; head += std::max(1, o.heads / 3)) { // three or four heads
            const double *q = &v[(size_t)(query * in + head * d)];
            double top = -1e300, sum = 0;
            p.assign((size_t)(query + 1), 0), want.assign((size_t)dv, 0), size.assign((size_t)dv, 0);
            for (int k = first; k <= query; k++) {
                const double *key = &v[(size_t)(k * in + o.heads * d)];
                double s = 0;
                for (int i = 0; i < d; i++) s += q[i] * key[i];
                s *= l.scale;
                if (l.softcap > 0) s = l.softcap * std::tanh(s / l.softcap);
                if (l.alibi) s -= (double)te__attn_alibi_slope(head, o.heads) * (query - k);
                p[(size_t)k] = s, top = std::max(top, s);
            }
            for (int k = first; k <= query; k++) sum += p[(size_t)k] = std::exp(p[(size_t)k] - top);
            for (int k = first; k <= query; k++)
                for (int i = 0; i < dv; i++) {
                    const double e = p[(size_t)k] / sum * v[(size_t)(k * in + o.heads * d + i)];
                    want[(size_t)i] += e, size[(size_t)i] += std::fabs(e);
                }
            for (int i = 0; i < dv; i++) {
                const double e = std::fabs(got[(size_t)(row * out + head * dv + i)] - want[(size_t)i]) / (eps * size[(size_t)i] + 1e-12);
                if (!(e <= worst)) worst = e;
            }
        }
        INFO("row " << query << " of sequence " << sequence);
        CHECK(worst <= 1);
    }
};

// Prompts in one batch, then steps of one to four rows of some of the sequences.
void check_list(const latent_list &l, int page_rows) {
    const unsigned seed = fresh_seed();
    INFO("seed: " << seed << ", " << l.plan()->name << ", pages of " << page_rows);
    source lengths(seed + 1);
    const int most = (12 << 20) / l.plan()->in; // the inputs of 128 heads are large
    const int longest = std::min(most, brief() ? 70 : TE_CUDA ? 1100 + lengths.below(40) : 150), steps = brief() ? 2 : 3;
    const std::vector<int> prompts = {longest, 1, brief() || !TE_CUDA || most < 600 ? 33 : 480 + lengths.below(60), 17 + lengths.below(20)};
    latent_cache c(l, seed, (int)prompts.size(), longest + 4 * steps + 1, page_rows);
    const std::vector<int> all = {0, 1, 2, 3};
    std::vector<int> at(prompts.size(), 0);
    for (const int n : prompts) c.draw(n + 4 * steps + 1);
    const reference::vec prompt = c.step(all, prompts, at);
    for (size_t i = 0, row = 0; i < prompts.size(); row += (size_t)prompts[i++])
        for (const int r : {0, prompts[i] / 2, prompts[i] - 1}) c.compare(prompt, (int)row + r, (int)i, r);
    at = prompts;
    for (int step = 0; step < steps; step++) {
        std::vector<int> which, counts;
        for (int i = (int)prompts.size() - 1; i >= 0; i--)
            if (step != 1 || i != 1) which.push_back(i), counts.push_back(step == 0 ? 1 : 1 + c.random.below(4));
        const reference::vec got = c.step(which, counts, at);
        for (size_t k = 0, row = 0; k < which.size(); k++)
            for (int r = 0; r < counts[k]; r++) c.compare(got, (int)row++, which[k], at[(size_t)which[k]]++);
    }
    CHECK(te_cache_check(&c.cache, c.ctx) == TE_OK);
}

} // namespace

#define CASE(list, ...)                                                                              \
    TEST_CASE("attention over latent vectors: " #list, "[latent]") {                                 \
        for (const latent_list &l : lists)                                                           \
            if (!strcmp(l.plan()->name, #list))                                                      \
                for (const int page_rows : {0, 16}) check_list(l, page_rows);                        \
    }
LATENT(CASE)

// On a GPU these are more splits than blocks: some groups have all splits in one block, others lie across the boundary of two.
TEST_CASE("a row over latent vectors has the same bits alone and in any batch", "[latent]") {
    const unsigned seed = fresh_seed();
    INFO("seed: " << seed);
    const int count = brief() || !TE_CUDA ? 5 : 90, longest = brief() || !TE_CUDA ? 40 : 2100;
    const latent_list *const list = std::find_if(std::begin(lists), std::end(lists), [](const latent_list &l) { return !strcmp(l.plan()->name, "heads2_bf16"); });
    latent_cache c(*list, seed, count, longest + 3, 16);
    std::vector<int> all, at, ones((size_t)count, 1);
    for (int i = 0; i < count; i++) {
        const int prompt = 1 + c.random.below(i % 3 ? longest : longest / 8);
        c.draw(prompt + 2), all.push_back(i), at.push_back(prompt);
        c.step({i}, {prompt}, std::vector<int>((size_t)i + 1, 0));
    }
    const reference::vec together = c.step(all, ones, at);
    for (int i = 0; i < count; i += 7) {
        c.compare(together, i, i, at[(size_t)i]);
        REQUIRE(te_cache_truncate(&c.cache, i, at[(size_t)i], c.ctx) == TE_OK);
        const reference::vec alone = c.step({i}, {1}, at);
        CHECK(std::equal(alone.begin(), alone.end(), together.begin() + (long)i * c.out));
    }
}
