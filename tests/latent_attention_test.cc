// latent_attention_test.cc -- multi-head latent attention (MLA): (head_linear, ..) and a block of DeepSeek against the reference; the absorbed
// form over a cache of latent vectors against the expanded one.
#include "folder.h"
#include "harness.h"

#include <numeric>

#include "te/infer.h"
#include "te/layers.h"
#include "te/moe.h"
#include "te/ops/activation.h"
#include "te/ops/attention.h"
#include "te/ops/elementwise.h"
#include "te/ops/join.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/rope.h"

#define HEAD_LISTS(X, dtype)                                                                                                 \
    X(head_alone_##dtype, dtype, (head_linear, h, 3, 16, 24))                                                                \
    X(head_transposed_##dtype, dtype, (linear, l, 40, 4 * 24), (head_linear, h, 4, 16, 40, (keep, 8), (transposed, 1)))      \
    X(head_kept_##dtype, dtype, (bias, b, 80), (head_linear, h, 2, 24, 8, (keep, 16)), (bias, c, 48))                        \
    X(head_one_##dtype, dtype, (head_linear, h, 1, 72, 136, (transposed, 1)), (head_linear, i, 17, 8, 8))

#define HEAD_MODEL(name, dtype, ...) MODEL(name, dtype, __VA_ARGS__)
#define HEAD_SUBJECT(name, ...) &name##_subject,
HEAD_LISTS(HEAD_MODEL, f32)
HEAD_LISTS(HEAD_MODEL, bf16)
HEAD_LISTS(HEAD_MODEL, f16)

TEST_CASE("a linear for each head", "[latent_attention]") {
    for (const subject *s : {HEAD_LISTS(HEAD_SUBJECT, f32) HEAD_LISTS(HEAD_SUBJECT, bf16) HEAD_LISTS(HEAD_SUBJECT, f16)}) {
        check(*s, shape(1, 1));
        check(*s, shape(1, 7));
        if (!brief()) check(*s, shape(2, 33));
        check_gradients_of_reference(*s, shape(1, 3));
    }
}

// ---- whole blocks, and the absorbed form ----

// heads, q_lora, kv_lora, unrotated, rotated, value
#define SMALL_SIZES (2, 24, 32, 16, 8, 24)
#define SMALL_ROPE ((base, 1000.0f), (interleaved, 1))
/* [block] */
#define LATENT(H, SIZES, ROPE) \
    (fork, x), (rmsnorm, norm, H), TE_MLA(a, TE_MLA_QUERY_LORA, H, SIZES, ROPE, (causal, 1)), (add, x)
/* [block] */
MODEL(latent, f32, LATENT(40, SMALL_SIZES, SMALL_ROPE))
MODEL(deepseek, f32, TE_DEEPSEEK_BLOCK(b, 40, SMALL_SIZES, SMALL_ROPE, 16, 32, 8, (top_k, 3), (groups, 4), (groups_kept, 2), (factor, 2.5f)))
MODEL(deepseek_bf16, bf16, TE_DEEPSEEK_BLOCK(b, 40, SMALL_SIZES, SMALL_ROPE, 16, 32, 8, (top_k, 3), (groups, 4), (groups_kept, 2), (factor, 2.5f)))

TEST_CASE("latent attention, and a block of DeepSeek", "[latent_attention]") {
    for (const subject *s : {&latent_subject, &deepseek_subject, &deepseek_bf16_subject}) {
        check(*s, shape(1, 1));
        shape at(2, 7);
        at.position = 5;
        check(*s, at);
        check_gradients_of_reference(*s, shape(1, 3));
    }
}

// name, dtype, format of the cache, QUERY, hidden size, sizes, scale, bound of the relative error
#define ABSORBED_BOTH(X)                                                                             \
    X(small_f32, f32, 1, TE_MLA_QUERY_LORA, 40, (2, 24, 32, 16, 8, 24), 0.2041241452f, 1e-5)         \
    X(large_bf16, bf16, 1, TE_MLA_QUERY_LORA, 48, (3, 40, 512, 128, 64, 128), 0.0721687837f, 2e-2)   \
    X(small_int8, f32, int8, TE_MLA_QUERY_LORA, 40, (2, 24, 64, 16, 8, 24), 0.2041241452f, 3e-2)
#if TE_CUDA // fewer lists, because nvcc takes long for each of them
#define ABSORBED(X) ABSORBED_BOTH(X) X(half_e4m3, f16, e4m3, TE_MLA_QUERY, 40, (2, 0, 64, 16, 16, 24), 0.1767766953f, 0.1)
#else
#define ABSORBED(X) ABSORBED_BOTH(X)                                                                 \
    X(odd_f32, f32, 1, TE_MLA_QUERY, 37, (3, 0, 40, 8, 24, 16), 0.1767766953f, 1e-5)                 \
    X(large_f32, f32, 1, TE_MLA_QUERY, 24, (2, 0, 512, 128, 64, 128), 0.0721687837f, 1e-5)           \
    X(small_bf16, bf16, 1, TE_MLA_QUERY_LORA, 40, (5, 24, 32, 16, 8, 24), 0.2041241452f, 2e-2)       \
    X(small_f16, f16, 1, TE_MLA_QUERY, 40, (2, 0, 64, 16, 16, 24), 0.1767766953f, 3e-3)              \
    X(small_e4m3, f32, e4m3, TE_MLA_QUERY_LORA, 40, (2, 24, 64, 16, 8, 24), 0.2041241452f, 0.1)
#endif
/* [absorbed] */
#define CACHED(QUERY, H, SIZES, ROPE, SCALE, FORMAT) \
    TE_MLA_ABSORBED(a, QUERY, H, SIZES, ROPE, (scale, SCALE), (cache, FORMAT))
/* [absorbed] */
#define ABSORBED_LIST(name, dtype, format, QUERY, H, SIZES, scale_, bound)                            \
    MODEL(name##_expanded, dtype, TE_MLA(a, QUERY, H, SIZES, SMALL_ROPE, (causal, 1)))                \
    TE_INFERENCE(name, dtype, CACHED(QUERY, H, SIZES, SMALL_ROPE, scale_, format))
ABSORBED(ABSORBED_LIST)

namespace {

struct absorbed_list {
    const subject *expanded;
    const te_plan *(*plan)();
    size_t bytes, param_bytes;
    te_status (*bind)(void *, void *, te_context *);
    double bound;
};
#define ABSORBED_OF(name, dtype, format, QUERY, H, SIZES, scale_, bound)         \
    {&name##_expanded_subject, name##_plan, sizeof(name), name##_param_bytes(), \
     [](void *m, void *p, te_context *c) { return name##_bind((name *)m, p, c); }, bound},

// A list in the absorbed form with the parameters of the expanded one, whose outputs the reference computes.
struct absorbed_model {
    const absorbed_list &l;
    context own;
    te_context *ctx = &own.c;
    source random;
    instance expanded;
    std::vector<char> memory;
    buffer params;
    int in, out;
    te_dtype dtype;
    std::vector<reference::vec> x, want; // of each sequence

    absorbed_model(const absorbed_list &of, unsigned seed)
        : l(of), random(seed), expanded(*of.expanded, ctx), memory(of.bytes), params(ctx, of.param_bytes), in(of.plan()->in), out(of.plan()->out), dtype(of.plan()->dtype) {
        expanded.draw(random);
        REQUIRE(l.bind(memory.data(), params.data(), ctx) == TE_OK);
        te_model *m = model(), *from = expanded.model();
        REQUIRE(m->param_count == from->param_count);
        for (int i = 0; i < m->param_count; i++) // the same shapes, in another order
            for (int k = 0; k < m->param_count; k++)
                if (!strcmp(m->param[i].op, from->param[k].op)) {
                    REQUIRE((m->param[i].rows == from->param[k].rows && m->param[i].cols == from->param[k].cols));
                    REQUIRE(te_copy(ctx, m->param[i].data, from->param[k].data, (size_t)(m->param[i].rows * m->param[i].cols) * te_dtype_bytes(dtype)) == TE_OK);
                }
        REQUIRE(te_context_reserve(ctx, te_plan_workspace_bytes(l.plan(), m, 512, ctx)) == TE_OK);
    }
    te_model *model() { return (te_model *)(void *)memory.data(); }
    void draw_sequence(int rows) {
        reference::call call;
        call.seq = rows, call.training = false;
        x.push_back(random.draw((size_t)(rows * in), dtype));
        want.push_back(reference::forward(expanded.ops, expanded.param, x.back(), {}, call, reference::rounding()).out.back());
    }
    reference::vec run(const reference::vec &rows_in, const te_batch &b) {
        const int64_t rows = (int64_t)b.batch * b.seq;
        buffer from(ctx, rows_in.size() * te_dtype_bytes(dtype), 16), to(ctx, (size_t)(rows * out) * te_dtype_bytes(dtype), 16);
        from.write(rows_in, dtype);
        const te_status status = te_plan_infer(te_matrix(to.data(), dtype, rows, out), te_matrix(from.data(), dtype, rows, in), l.plan(), model(), &b, ctx);
        INFO(te_last_error(ctx));
        REQUIRE(status == TE_OK);
        return to.read(dtype);
    }
    // Rows from `row` of `got` on against rows [first, first + count) of sequence i.
    void compare(const reference::vec &got, int row, size_t i, int first, int count) {
        double norm = 0, difference = 0;
        for (int k = 0; k < count * out; k++) {
            const double w = want[i][(size_t)(first * out + k)], d = got[(size_t)(row * out + k)] - w;
            norm += w * w, difference += d * d;
        }
        INFO("sequence " << i << ", rows " << first << " to " << first + count << ", " << std::sqrt(difference / norm));
        CHECK(std::sqrt(difference / norm) <= l.bound);
    }
    // The next counts[i] rows of each sequence i, after at[i] rows.
    void step(te_cache *cache, const std::vector<int> &at, const std::vector<int> &counts) {
        std::vector<int32_t> cu(1, 0), slots;
        reference::vec rows_in;
        te_batch b;
        memset(&b, 0, sizeof b);
        for (size_t i = 0; i < x.size(); i++) {
            if (!counts[i]) continue;
            rows_in.insert(rows_in.end(), x[i].begin() + at[i] * in, x[i].begin() + (at[i] + counts[i]) * in);
            cu.push_back(cu.back() + counts[i]), slots.push_back((int32_t)(x.size() - 1 - i)), b.max_seqlen = std::max(b.max_seqlen, counts[i]);
        }
        buffer cu_there(ctx, cu.size() * 4), slots_there(ctx, slots.size() * 4 + 4);
        cu_there.write_ints(cu), slots_there.write_ints(slots);
        b.batch = 1, b.seq = cu.back(), b.sequences = (int)slots.size(), b.cu_seqlens = (const int32_t *)cu_there.data();
        b.cache = cache, b.slots = (const int32_t *)slots_there.data();
        REQUIRE(te_cache_begin(cache, &b, ctx) == TE_OK);
        const reference::vec got = run(rows_in, b);
        for (size_t i = 0, k = 0; i < x.size(); i++)
            if (counts[i]) compare(got, cu[k++], i, at[i], counts[i]);
    }
};

// Sequences in random parts: prompts, single tokens, and a few tokens at a time; saved to a file and loaded on the way.
void in_parts(absorbed_model &m, int page_rows) {
    te_cache_config config = te_cache_defaults();
    config.sequences = (int)m.x.size(), config.capacity = 160, config.page_rows = page_rows;
    te_model *models[] = {m.model()};
    buffer memory(m.ctx, te_cache_bytes(models, 1, &config));
    te_cache cache;
    folder there;
    REQUIRE(te_cache_init(&cache, memory.data(), memory.bytes, models, 1, &config, m.ctx) == TE_OK);
    std::vector<int> at(m.x.size(), 0), counts(m.x.size());
    for (int step = 0;; step++) {
        for (size_t i = 0; i < m.x.size(); i++) {
            const int left = (int)m.x[i].size() / m.in - at[i];
            counts[i] = step == 0 ? left / 2 : m.random.below(3) == 0 ? 0 : std::min(left, m.random.below(2) ? 1 : 1 + m.random.below(70));
        }
        if (std::accumulate(counts.begin(), counts.end(), 0)) m.step(&cache, at, counts);
        int left = 0;
        for (size_t i = 0; i < m.x.size(); i++) at[i] += counts[i], left += (int)m.x[i].size() / m.in - at[i];
        if (!left) break;
        if (step) continue;
        const int slot = 0, length = at[m.x.size() - 1]; // slots are in reverse order
        int loaded = -1;
        const std::string path = there.path + "/sequence.safetensors";
        REQUIRE(te_cache_save(&cache, slot, nullptr, path.c_str(), m.ctx) == TE_OK);
        REQUIRE(te_cache_truncate(&cache, slot, 0, m.ctx) == TE_OK);
        REQUIRE(te_cache_load(&cache, slot, nullptr, &loaded, path.c_str(), m.ctx) == TE_OK);
        CHECK(loaded == length);
    }
    CHECK(te_cache_check(&cache, m.ctx) == TE_OK);
}

} // namespace

TEST_CASE("the absorbed form has the outputs of the expanded one, a prompt at once and in parts", "[latent_attention]") {
    const std::vector<absorbed_list> lists = {ABSORBED(ABSORBED_OF)};
    for (const absorbed_list &l : lists) {
        const unsigned seed = fresh_seed();
        INFO("seed: " << seed << ", " << l.plan()->name);
        absorbed_model m(l, seed);
        for (const int n : {1, 17 + m.random.below(20), 66 + m.random.below(40)}) {
            te_batch b;
            m.draw_sequence(n);
            memset(&b, 0, sizeof b), b.batch = 1, b.seq = n;
            m.compare(m.run(m.x.back(), b), 0, m.x.size() - 1, 0, n); // without a cache
        }
        for (const int page_rows : {0, 16}) in_parts(m, page_rows);
    }
}
TEST_CASE("a token takes the columns of its key in the cache, and no more", "[latent_attention]") {
    context own;
    te_cache_config config = te_cache_defaults();
    config.capacity = 1024;
    std::vector<char> memory(sizeof(large_bf16));
    buffer params(&own.c, large_bf16_param_bytes());
    REQUIRE(large_bf16_bind((large_bf16 *)(void *)memory.data(), params.data(), &own.c) == TE_OK);
    te_model *models[] = {(te_model *)(void *)memory.data()};
    const size_t bytes = te_cache_bytes(models, 1, &config);
    CHECK((bytes >= 1024 * 576 * 2 && bytes < 1024 * 576 * 2 + 8192));
}
