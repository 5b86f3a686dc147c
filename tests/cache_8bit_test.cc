// cache_8bit_test.cc -- key-value caches in 8 bits, (cache, int8) and (cache, e4m3): the bits of the numbers and scales that are stored, attention over
// them against doubles, forks, padding, NaN, and the distance from a cache of 16 bits. The lists are attention alone: x is [q, k, v] of each row.
#include "folder.h"
#include "harness.h"
#include "te/infer.h"

// X(name, dtype, format, heads, kv_heads, head_dim, value_dim, window_left, softcap, alibi, sinks)
#define LISTS(X)                                     \
    X(grouped_f32, f32, int8, 4, 2, 32, 32, -1, 0, 0, 0) \
    X(odd_f32, f32, e4m3, 3, 3, 20, 12, 9, 20, 1, 0)   \
    X(sinks_f32, f32, int8, 2, 1, 64, 64, -1, 0, 0, 1) \
    X(group2_64, bf16, int8, 4, 2, 64, 64, -1, 0, 0, 0) \
    X(group7_128, bf16, e4m3, 7, 1, 128, 128, -1, 0, 0, 0) \
    X(group8_128, bf16, int8, 16, 2, 128, 128, -1, 0, 0, 0) \
    X(group12_128, f16, int8, 12, 1, 128, 128, -1, 0, 0, 0) \
    X(group1_64, f16, e4m3, 2, 2, 64, 64, -1, 0, 1, 0) \
    X(window_64, bf16, int8, 2, 1, 64, 64, 37, 20, 0, 1) \
    X(value_192, bf16, e4m3, 4, 4, 192, 128, -1, 0, 0, 0) \
    X(wide_256, bf16, int8, 6, 2, 256, 256, 300, 0, 0, 1) \
    X(group16_192, f16, e4m3, 16, 1, 192, 192, -1, 0, 0, 0) \
    X(simt_80, bf16, e4m3, 4, 2, 80, 80, -1, 0, 1, 0) \
    X(wide_512, bf16, int8, 4, 2, 512, 512, 300, 0, 0, 1)
#define ATTEND(cached, heads, kv, d, dv, left, softcap_, alibi_, sinks_) \
    (attention, a, heads, kv, d, (cache, cached), (value_dim, dv), (window_left, left), (softcap, softcap_), (alibi, alibi_), (sinks, sinks_))
#define DECLARE(name, dtype, format, heads, kv, d, dv, left, cap, alibi, sinks) \
    TE_INFERENCE(name, dtype, ATTEND(format, heads, kv, d, dv, left, cap, alibi, sinks))
LISTS(DECLARE)
// the same attention over a cache in the list's own format, and both formats in one cache
TE_INFERENCE(list_64, bf16, ATTEND(1, 4, 2, 64, 64, -1, 0, 0, 0))
TE_INFERENCE(e4m3_64, bf16, ATTEND(e4m3, 4, 2, 64, 64, -1, 0, 0, 0))
TE_INFERENCE(both, bf16, (linear, l, 48, 4 * 64), (attention, a, 2, 1, 64, (cache, e4m3)), (linear, o, 128, 48), (linear, l2, 48, 6 * 32),
             (attention, a2, 2, 2, 32, (cache, 1)), (linear, o2, 64, 48), (linear, l3, 48, 4 * 64), (attention, a3, 2, 1, 64, (cache, int8)), (linear, o3, 128, 48))

namespace {

using reference::vec;

// What the tests need of a list: its functions, and its constants as they were declared.
struct list {
    const char *text;
    const te_plan *(*plan)();
    size_t bytes, param_bytes;
    te_status (*bind)(void *, void *, te_context *);
    bool e4m3;
    int heads, kv_heads, dim, value, left;
    double softcap;
    int alibi, sinks;
    te_dtype dtype() const { return plan()->dtype; }
    int group() const { return heads / kv_heads; }
};
enum { format_int8 = 0, format_e4m3 = 1, format_1 = 0 };
#define LIST_OF(name, dtype, format, heads, kv, d, dv, left, cap, alibi, sinks)                        \
    {#name, name##_plan, sizeof(name), name##_param_bytes(),                                         \
     [](void *m, void *p, te_context *c) { return name##_bind((name *)m, p, c); }, format_##format == format_e4m3, heads, kv, d, dv, left, cap, alibi, sinks},
const std::vector<list> &lists() {
    static const std::vector<list> all = {LISTS(LIST_OF)};
    return all;
}
const list &list_named(const char *text) {
    for (const list &l : lists())
        if (!strcmp(l.text, text)) return l;
    FAIL("no list " << text);
    return lists()[0];
}

// ---- rounding to 8 bits, by other means than the library's ---------------------------------------------------------

double e4m3_value(int code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    return (code & 0x80 ? -1 : 1) * (exponent ? std::ldexp(8 + fraction, exponent - 10) : std::ldexp(fraction, -9));
}
// The code of the nearest number, the one with an even code if two are equally near.
int e4m3_nearest(double x) {
    static const std::vector<double> ascending = [] {
        std::vector<double> all;
        for (int code = 0; code < 127; code++) all.push_back(e4m3_value(code));
        return all;
    }();
    const double size = std::fabs(x);
    int code = (int)(std::lower_bound(ascending.begin(), ascending.end() - 1, size) - ascending.begin()); // the first that is not smaller, or the last
    if (code > 0) {
        const double to_this = std::fabs(ascending[(size_t)code] - size), to_last = size - ascending[(size_t)code - 1];
        if (to_last < to_this || (to_last == to_this && code % 2)) code--;
    }
    return (std::signbit(x) ? 0x80 : 0) | code;
}
// A row in 8 bits: the codes, the scale, and the values that they stand for.
struct rounded {
    std::vector<uint8_t> codes;
    float scale = 0;
    vec values;
};
rounded round_row(const double *x, int d, bool e4m3) {
    rounded r;
    float amax = 0;
    bool finite = true;
    for (int k = 0; k < d; k++) amax = std::max(amax, (float)std::fabs(x[k])), finite &= std::isfinite(x[k]);
    const float most = e4m3 ? 448.0f : 127.0f;
    const bool zero = !finite || amax < std::ldexp(1.0f, -110);
    const float inverse = zero ? 0 : most / amax;
    r.scale = !finite ? NAN : zero ? 0 : amax / most;
    for (int k = 0; k < d; k++) {
        const float y = zero ? 0.0f : (float)((double)(float)x[k] * (double)inverse); // the product of two floats is exact in double
        const int code = e4m3 ? e4m3_nearest(y) : (int)std::nearbyint(y);
        r.codes.push_back((uint8_t)code);
        r.values.push_back((double)r.scale * (e4m3 ? e4m3_value(code) : code));
    }
    return r;
}

// ---- a cache, and sequences ----------------------------------------------------------------------------------------

struct runner {
    const list &l;
    context own;
    te_context *ctx = &own.c;
    source random;
    std::vector<char> model;
    std::unique_ptr<buffer> params, memory;
    te_cache cache;
    vec sinks;

    runner(const list &of, const te_cache_config &config, unsigned seed) : l(of), random(seed), model(of.bytes) {
        params.reset(new buffer(ctx, std::max<size_t>(of.param_bytes, 64)));
        REQUIRE(l.bind(model.data(), params->data(), ctx) == TE_OK);
        te_model *m = (te_model *)(void *)model.data(), *models[] = {m};
        if (l.sinks) {
            sinks = random.draw((size_t)l.heads, l.dtype());
            params->write(sinks, l.dtype()); // the list's only parameter
        }
        memory.reset(new buffer(ctx, te_cache_bytes(models, 1, &config)));
        REQUIRE(te_cache_init(&cache, memory->data(), memory->bytes, models, 1, &config, ctx) == TE_OK);
        REQUIRE(te_context_reserve(ctx, te_plan_workspace_bytes(l.plan(), m, 2048, ctx)) == TE_OK);
    }
    int in() const { return l.plan()->in; }
    int out() const { return l.plan()->out; }
    // Rows of normal numbers; the keys and values of a row have a magnitude of their own, and one key in four has a large element, as keys have.
    vec rows(int count) {
        vec x = random.draw((size_t)(count * in()), l.dtype());
        const int from = l.heads * l.dim;
        for (int r = 0; r < count; r++) {
            const double size = std::ldexp(1.0, random.below(4) - 2);
            for (int c = from; c < in(); c++) x[(size_t)(r * in() + c)] *= size;
            if (r % 4 == 1) x[(size_t)(r * in() + from + random.below(l.dim))] = 6 * size;
        }
        return numbers::loaded(numbers::stored(x, l.dtype()).data(), 0, x.size(), l.dtype());
    }
    // Appends rows [first[i], first[i] + counts[i]) of x[i] to sequence slots[i]; returns the outputs, one row after the other.
    vec step(const std::vector<const vec *> &x, const std::vector<int> &first, const std::vector<int> &counts, const std::vector<int32_t> &slots) {
        std::vector<int32_t> cu(1, 0);
        vec all;
        te_batch b;
        memset(&b, 0, sizeof b);
        for (size_t i = 0; i < x.size(); i++) {
            all.insert(all.end(), x[i]->begin() + (long)first[i] * in(), x[i]->begin() + (long)(first[i] + counts[i]) * in());
            cu.push_back(cu.back() + counts[i]), b.max_seqlen = std::max(b.max_seqlen, counts[i]);
        }
        const size_t size = te_dtype_bytes(l.dtype());
        buffer from(ctx, all.size() * size, 16), to(ctx, (size_t)(cu.back() * out()) * size, 16), cu_there(ctx, cu.size() * 4), slots_there(ctx, slots.size() * 4);
        from.write(all, l.dtype()), cu_there.write_ints(cu), slots_there.write_ints(slots);
        b.batch = 1, b.seq = cu.back(), b.sequences = (int)x.size(), b.cu_seqlens = (const int32_t *)cu_there.data();
        b.cache = &cache, b.slots = (const int32_t *)slots_there.data();
        REQUIRE(te_cache_begin(&cache, &b, ctx) == TE_OK);
        const te_status status = te_plan_infer(te_matrix(to.data(), l.dtype(), cu.back(), out()), te_matrix(from.data(), l.dtype(), cu.back(), in()), l.plan(),
                                               (te_model *)(void *)model.data(), &b, ctx);
        INFO(te_last_error(ctx));
        REQUIRE(status == TE_OK);
        return to.read(l.dtype());
    }
    vec step(const vec &x, int first, int count, int32_t slot) { return step({&x}, {first}, {count}, {slot}); }
};

te_cache_config config_of(int sequences, int capacity, int page_rows, int decode_rows = 1) {
    te_cache_config c = te_cache_defaults();
    c.sequences = sequences, c.capacity = capacity, c.page_rows = page_rows, c.decode_rows = decode_rows;
    return c;
}

// ---- attention in double -------------------------------------------------------------------------------------------

// The keys or the values of all rows of a sequence, in 8 bits: [rows][kv_heads].
std::vector<std::vector<rounded>> rounded_rows(const runner &r, const vec &x, bool is_value) {
    const list &l = r.l;
    std::vector<std::vector<rounded>> all;
    for (size_t row = 0; row * (size_t)r.in() < x.size(); row++) {
        all.emplace_back();
        for (int h = 0; h < l.kv_heads; h++) {
            const int column = is_value ? (l.heads + l.kv_heads) * l.dim + h * l.value : (l.heads + h) * l.dim;
            all.back().push_back(round_row(&x[row * (size_t)r.in() + (size_t)column], is_value ? l.value : l.dim, l.e4m3));
        }
    }
    return all;
}
// The largest relative error of rounding to a dtype; 0 for f32, whose error is in `functions` and `sums`.
double half_ulp(te_dtype t) { return t == TE_f32 ? 0 : t == TE_bf16 ? 1.0 / 256 : 1.0 / 2048; }
const double functions = 1.0 / (1 << 20), sums = 1.0 / (1 << 20); // of exp and tanh, and of a sum of f32 numbers, relative to the sum of |terms|

// Rows of a sequence, and their keys and values in 8 bits.
struct sequence {
    vec x;
    std::vector<std::vector<rounded>> keys, values;
    sequence(const runner &r, const vec &rows) : x(rows), keys(rounded_rows(r, x, false)), values(rounded_rows(r, x, true)) {}
};
// Checks rows [first, first + count) of a sequence, whose outputs are rows of `got` from `at` on. decoded: the kernel for decoding may have run. It
// rounds P times the scale to bf16; the other kernels for 16 bits round keys and values to the list's dtype, and P. The bound follows from these.
void check_rows(const runner &r, const vec &got, int at, const sequence &s_of, int first, int count) {
    const list &l = r.l;
    const vec &x = s_of.x;
    const auto &keys = s_of.keys, &values = s_of.values;
    const double scale = 1 / std::sqrt((double)l.dim), eps = TE_CUDA ? half_ulp(l.dtype()) : 0, eps_p = TE_CUDA && l.dtype() != TE_f32 ? half_ulp(TE_bf16) : 0;
    double worst = 0;
    for (int row = first; row < first + count; row++)
        for (int head = 0; head < l.heads; head++) {
            const int kv = head / l.group();
            const double *q = &x[(size_t)(row * r.in() + head * l.dim)];
            const double slope = l.alibi ? (double)te__attn_alibi_slope(head, l.heads) : 0;
            std::vector<double> s, ds;
            std::vector<const double *> v; // the values of the keys in s
            const int from = l.left < 0 ? 0 : std::max(0, row - l.left);
            double most = l.sinks ? r.sinks[(size_t)head] : -INFINITY, sum = 0;
            for (int key = from; key <= row; key++) {
                const double *of_key = keys[(size_t)key][(size_t)kv].values.data();
                v.push_back(values[(size_t)key][(size_t)kv].values.data());
                double dot = 0, size = 0;
                for (int k = 0; k < l.dim; k++) {
                    const double term = q[k] * of_key[k];
                    dot += term, size += std::fabs(term);
                }
                double error = scale * size * (eps + sums);
                dot *= scale;
                if (l.softcap > 0) dot = l.softcap * std::tanh(dot / l.softcap), error += functions * l.softcap;
                dot -= slope * (row - key), error += functions * (1 + std::fabs(dot));
                s.push_back(dot), ds.push_back(error), most = std::max(most, dot);
            }
            if (l.sinks) sum += std::exp(r.sinks[(size_t)head] - most);
            double moved = 0;
            for (size_t j = 0; j < s.size(); j++) s[j] = std::exp(s[j] - most), sum += s[j], moved += s[j] * ds[j];
            for (int c = 0; c < l.value; c++) {
                double o = 0, size = 0, error = 0;
                for (size_t j = 0; j < s.size(); j++) {
                    const double term = v[j][c] * s[j] / sum;
                    o += term, size += std::fabs(term), error += std::fabs(term) * (ds[j] + eps + eps_p + sums);
                }
                error += size * moved / sum + std::fabs(o) * half_ulp(l.dtype()) + (l.dtype() == TE_f16 ? 1.0 / (1 << 24) : 0) + 1e-30;
                const double difference = std::fabs(got[(size_t)((at + row - first) * r.out() + head * l.value + c)] - o);
                if (!(difference <= error)) {
                    INFO(l.text << ": row " << row << ", head " << head << ", column " << c << ": " << o << " +- " << error << ", got "
                                << got[(size_t)((at + row - first) * r.out() + head * l.value + c)]);
                    REQUIRE(difference <= error);
                }
                worst = std::max(worst, difference / error);
            }
        }
    CHECK(worst <= 1);
}

// ---- a tensor of a saved sequence ------------------------------------------------------------------------------------
std::vector<uint8_t> saved(const runner &r, const std::string &path, const char *name, te_safetensors_dtype dtype) {
    te_safetensors file;
    REQUIRE(te_safetensors_open(&file, path.c_str(), r.ctx) == TE_OK);
    const te_safetensor *t = te_safetensors_find(&file, name);
    REQUIRE(t);
    CHECK(t->dtype == dtype);
    std::vector<uint8_t> bytes((size_t)t->bytes);
    REQUIRE(te__safetensors_get(&file, (char *)bytes.data(), bytes.size(), file.data_at + t->offset, r.ctx) == TE_OK);
    te_safetensors_close(&file);
    return bytes;
}

} // namespace

TEST_CASE("numbers and scales have the bits of their definition, whichever kernel stores them") {
    for (const list &l : lists())
        for (const int page_rows : {0, 16}) {
            const unsigned seed = fresh_seed();
            INFO("seed " << seed << ", " << l.text << ", pages of " << page_rows);
            folder f;
            runner r(l, config_of(2, 150, page_rows), seed);
            vec x = r.rows(107);
            const int from = l.heads * l.dim, in = r.in();
            for (int c = from; c < in; c++) x[(size_t)(3 * in + c)] = 0, x[(size_t)(4 * in + c)] = c % 2 ? 6e-5 : -6e-5;                                // zeros; small
            for (int c = from; c < in; c++) x[(size_t)(5 * in + c)] = (c % 5 - 2) * (l.e4m3 ? 448 : 127) / 2.0; // ties, and the largest number
            x = numbers::loaded(numbers::stored(x, l.dtype()).data(), 0, x.size(), l.dtype());
            r.step(x, 0, 53, 1);
            for (int row = 53; row < 60; row++) r.step(x, row, 1, 1);
            r.step(x, 60, 47, 1);
            const std::string path = f / "sequence.safetensors";
            REQUIRE(te_cache_save(&r.cache, 1, nullptr, path.c_str(), r.ctx) == TE_OK);
            for (const bool is_value : {false, true}) {
                const auto want = rounded_rows(r, x, is_value);
                const int d = is_value ? l.value : l.dim;
                const std::vector<uint8_t> codes = saved(r, path, is_value ? "layer.0.values" : "layer.0.keys", l.e4m3 ? TE_SAFETENSORS_F8_E4M3 : TE_SAFETENSORS_I8);
                const std::vector<uint8_t> scales = saved(r, path, is_value ? "layer.0.value_scales" : "layer.0.key_scales", TE_SAFETENSORS_F32);
                REQUIRE(codes.size() == (size_t)(107 * l.kv_heads * d));
                REQUIRE(scales.size() == (size_t)(107 * l.kv_heads * 4));
                for (int h = 0; h < l.kv_heads; h++)
                    for (int row = 0; row < 107; row++) {
                        const rounded &w = want[(size_t)row][(size_t)h];
                        float scale;
                        memcpy(&scale, &scales[(size_t)(h * 107 + row) * 4], 4);
                        INFO((is_value ? "value " : "key ") << row << ", head " << h);
                        REQUIRE(scale == w.scale);
                        REQUIRE(std::equal(w.codes.begin(), w.codes.end(), codes.begin() + (long)(h * 107 + row) * d));
                    }
            }
        }
}

namespace {
// A prompt in parts, sequence beside sequence.
void parts(const list &l) {
    for (const int page_rows : {0, 16, 64}) {
        const unsigned seed = fresh_seed();
        INFO("seed " << seed << ", " << l.text << ", pages of " << page_rows);
        runner r(l, config_of(5, 420, page_rows, 3), seed);
        const std::vector<int> lengths = {1, 17, 64 + r.random.below(60), 257 + r.random.below(140)};
        const std::vector<int32_t> slot = {4, 2, 0, 3};
        std::vector<sequence> x;
        for (const int n : lengths) x.emplace_back(r, r.rows(n));
        std::vector<int> at(4, 0);
        for (int step = 0; at != lengths; step++) {
            std::vector<const vec *> of;
            std::vector<int> which, first, counts;
            std::vector<int32_t> slots;
            // first a prompt; then one to three tokens at a time, for the decoding kernel; now and then a part of a prompt
            const int longest = step == 0 || step % 5 == 4 ? 90 : 3;
            for (int k = 0; k < 4; k++) {
                const int i = (k + step) % 4, left = lengths[(size_t)i] - at[(size_t)i];
                const int n = step == 0 ? lengths[(size_t)i] * 4 / 5 : 1 + r.random.below(longest);
                if (!left || (step && !r.random.below(4))) continue;
                which.push_back(i), of.push_back(&x[(size_t)i].x), first.push_back(at[(size_t)i]);
                counts.push_back(std::min(std::max(n, 1), left)), slots.push_back(slot[(size_t)i]);
            }
            if (which.empty()) continue;
            const vec got = r.step(of, first, counts, slots);
            for (size_t k = 0, row = 0; k < which.size(); row += (size_t)counts[k], k++) {
                const int i = which[k];
                const int checked = std::min(counts[k], brief() ? 1 : 6); // the last rows
                check_rows(r, got, (int)row + counts[k] - checked, x[(size_t)i], first[k] + counts[k] - checked, checked);
                at[(size_t)i] += counts[k];
            }
        }
        CHECK(te_cache_check(&r.cache, r.ctx) == TE_OK);
    }
}
} // namespace
#define CASE(name, ...) TEST_CASE("attention over a cache of 8 bits: " #name) { parts(list_named(#name)); }
LISTS(CASE)

// One token of three sequences, beside 30 of a fourth one, which another kernel processes on a GPU.
TEST_CASE("a row over 8 bits has the same bits alone and in any batch") {
    for (const char *name : {"grouped_f32", "group2_64", "group12_128", "group7_128", "window_64", "value_192", "simt_80"}) {
        const list &l = list_named(name);
        const unsigned seed = fresh_seed();
        INFO("seed " << seed << ", " << l.text);
        const std::vector<int> lengths = {TE_CUDA ? 5003 : 531, 40, 3, 258}, counts = {1, 1, 1, 30};
        runner r(l, config_of(4, 5100, 16), seed);
        std::vector<vec> x;
        for (size_t i = 0; i < 4; i++) {
            x.push_back(r.rows(lengths[i]));
            for (int done = 0; done < lengths[i] - counts[i];) {
                const int n = std::min(1000, lengths[i] - counts[i] - done);
                r.step(x[i], done, n, (int32_t)i), done += n;
            }
        }
        const std::vector<int> order = {2, 0, 3, 1};
        std::vector<const vec *> of;
        std::vector<int> first, of_order;
        for (const int i : order)
            of.push_back(&x[(size_t)i]), of_order.push_back(counts[(size_t)i]), first.push_back(lengths[(size_t)i] - counts[(size_t)i]);
        const vec together = r.step(of, first, of_order, {2, 0, 3, 1});
        int row = 0;
        for (int k = 0; k < 4; k++) {
            const int i = order[(size_t)k];
            REQUIRE(te_cache_truncate(&r.cache, i, first[(size_t)k], r.ctx) == TE_OK);
            const vec alone = r.step(x[(size_t)i], first[(size_t)k], of_order[(size_t)k], i);
            INFO("sequence " << i);
            CHECK(std::equal(alone.begin(), alone.end(), together.begin() + row * r.out()));
            const int skipped = brief() ? of_order[(size_t)k] - 1 : 0;
            check_rows(r, alone, skipped, sequence(r, x[(size_t)i]), first[(size_t)k] + skipped, of_order[(size_t)k] - skipped);
            row += of_order[(size_t)k];
        }
    }
}

TEST_CASE("forks, truncated and moved sequences of 8 bits go on with the bits of others") {
    for (const char *name : {"grouped_f32", "odd_f32", "group2_64", "group7_128"})
        for (const int page_rows : {0, 16}) {
            const list &l = list_named(name);
            const unsigned seed = fresh_seed();
            INFO("seed " << seed << ", " << l.text << ", pages of " << page_rows);
            runner r(l, config_of(4, 128, page_rows), seed);
            const vec x = r.rows(60), other = r.rows(60);
            r.step(x, 0, 37, 0);
            const vec want = r.step(x, 37, 23, 0);
            r.step(x, 0, 37, 1);
            REQUIRE(te_cache_fork(&r.cache, 2, 1, r.ctx) == TE_OK);
            r.step(other, 0, 9, 1); // behind the fork, in a page that the two shared
            CHECK(r.step(x, 37, 23, 2) == want);
            REQUIRE(te_cache_truncate(&r.cache, 1, 37, r.ctx) == TE_OK);
            REQUIRE(te_cache_move(&r.cache, 3, 1, r.ctx) == TE_OK);
            CHECK(r.step(x, 37, 23, 3) == want);
            CHECK(te_cache_check(&r.cache, r.ctx) == TE_OK);
        }
}

TEST_CASE("a saved sequence of 8 bits goes on with its bits in any cache, and other formats refuse its file") {
    folder f;
    const std::string path = f / "sequence.safetensors";
    for (const list &l : lists()) {
        const unsigned seed = fresh_seed();
        INFO("seed " << seed << ", " << l.text);
        runner a(l, config_of(2, 128, 16), seed), b(l, config_of(3, 150, 0), seed);
        const vec x = a.rows(70);
        a.step(x, 0, 53, 1), b.step(x, 3, 20, 2);
        REQUIRE(te_cache_save(&a.cache, 1, nullptr, path.c_str(), a.ctx) == TE_OK);
        int length = 0;
        const te_status status = te_cache_load(&b.cache, 2, nullptr, &length, path.c_str(), b.ctx);
        INFO(te_last_error(b.ctx));
        REQUIRE(status == TE_OK);
        CHECK(length == 53);
        CHECK(a.step(x, 53, 1, 1) == b.step(x, 53, 1, 2));
        CHECK(a.step(x, 54, 16, 1) == b.step(x, 54, 16, 2));
    }
    // a list that differs in the format of its cache alone
    const list other = {"e4m3_64", e4m3_64_plan, sizeof(e4m3_64), e4m3_64_param_bytes(), [](void *m, void *p, te_context *c) { return e4m3_64_bind((::e4m3_64 *)m, p, c); },
                        true, 4, 2, 64, 64, -1, 0, 0, 0};
    const list plain = {"list_64", list_64_plan, sizeof(list_64), list_64_param_bytes(), [](void *m, void *p, te_context *c) { return list_64_bind((::list_64 *)m, p, c); },
                        false, 4, 2, 64, 64, -1, 0, 0, 0};
    runner a(list_named("group2_64"), config_of(1, 64, 16), 1), b(other, config_of(1, 64, 16), 1), c(plain, config_of(1, 64, 16), 1);
    a.step(a.rows(20), 0, 20, 0);
    REQUIRE(te_cache_save(&a.cache, 0, nullptr, path.c_str(), a.ctx) == TE_OK);
    CHECK(te_cache_load(&b.cache, 0, nullptr, nullptr, path.c_str(), b.ctx) == TE_ERROR_DTYPE);
    CHECK(std::string(te_last_error(b.ctx)).find("layer.0.keys is I8") != std::string::npos);
    CHECK(te_cache_load(&c.cache, 0, nullptr, nullptr, path.c_str(), c.ctx) != TE_OK);
    INFO(te_last_error(c.ctx));
    CHECK(std::string(te_last_error(c.ctx)).find("layer.0.") != std::string::npos);
    REQUIRE(te_cache_save(&c.cache, 0, nullptr, path.c_str(), c.ctx) == TE_OK); // of a cache of 16 bits
    CHECK(te_cache_load(&a.cache, 0, nullptr, nullptr, path.c_str(), a.ctx) != TE_OK);
    CHECK(std::string(te_last_error(a.ctx)).find("layer.0.") != std::string::npos);
}

TEST_CASE("a key that is not finite makes the rows that see it NaN, and no others") {
    for (const char *name : {"grouped_f32", "group2_64", "group7_128"}) {
        const list &l = list_named(name);
        const unsigned seed = fresh_seed();
        INFO("seed " << seed << ", " << l.text);
        for (const double bad : {(double)INFINITY, (double)NAN})
            for (const bool in_value : {false, true}) {
                runner r(l, config_of(2, 128, 16), seed);
                vec x = r.rows(42);
                const vec whole = r.step(x, 0, 42, 0);
                x[(size_t)(40 * r.in() + (in_value ? r.in() - 1 : (l.heads + l.kv_heads) * l.dim - 1))] = bad; // of the last KV head
                const vec prompt = r.step(x, 0, 40, 1), last = r.step(x, 40, 1, 1), next = r.step(x, 41, 1, 1);
                CHECK(std::equal(prompt.begin(), prompt.end(), whole.begin()));
                for (const vec *y : {&last, &next})
                    for (int c = 0; c < r.out(); c++) REQUIRE(std::isnan((*y)[(size_t)c]) == (c >= r.out() * (l.kv_heads - 1) / l.kv_heads));
            }
    }
}

// The distance from a cache of 16 bits. Rounding moves a key by at most e = amax / 254 (int8), or |k| / 16 or the half of a subnormal (e4m3), hence a
// score by at most sum |q| e, and the output to first order by sum P |v| (ds + mean ds) + P e. The rms is what is usual for 64 normal numbers.
TEST_CASE("results over 8 bits are close to those over 16 bits") {
    const list plain = {"list_64", list_64_plan, sizeof(list_64), list_64_param_bytes(), [](void *m, void *p, te_context *c) { return list_64_bind((::list_64 *)m, p, c); },
                        false, 4, 2, 64, 64, -1, 0, 0, 0};
    const list e4m3 = {"e4m3_64", e4m3_64_plan, sizeof(e4m3_64), e4m3_64_param_bytes(), [](void *m, void *p, te_context *c) { return e4m3_64_bind((::e4m3_64 *)m, p, c); },
                       true, 4, 2, 64, 64, -1, 0, 0, 0};
    const unsigned seed = fresh_seed();
    INFO("seed " << seed);
    runner a(plain, config_of(1, 512, 16), seed), int8(list_named("group2_64"), config_of(1, 512, 16), seed), fp8(e4m3, config_of(1, 512, 16), seed);
    const vec x = a.random.draw((size_t)(400 * a.in()), TE_bf16);
    const vec want = a.step(x, 0, 400, 0);
    const auto rms_of = [&](const vec &y) {
        double e = 0, size = 0;
        for (size_t i = 0; i < y.size(); i++) e += (y[i] - want[i]) * (y[i] - want[i]), size += want[i] * want[i];
        return std::sqrt(e / size);
    };
    // uniform errors of +-amax / 254 with amax = 2.6: 0.006 of a standard deviation; keys and values have it, and bf16 rounds to 0.002
    CHECK(rms_of(int8.step(x, 0, 400, 0)) <= 0.02);
    // relative errors of up to 1 / 16: 0.027 of a standard deviation
    CHECK(rms_of(fp8.step(x, 0, 400, 0)) <= 0.08);
}

TEST_CASE("attentions of one cache may have different formats") {
    context c;
    source random(fresh_seed());
    both m;
    buffer params(&c.c, both_param_bytes());
    REQUIRE(both_bind(&m, params.data(), &c.c) == TE_OK);
    // such that scores are about 1; with large ones the roundings of two kernels would choose between two keys of nearly the same score
    REQUIRE(te_model_randomize(&m.model, 0.15f, 7, 0, &c.c) == TE_OK);
    te_model *models[] = {&m.model};
    const te_cache_config config = config_of(2, 128, 16);
    const size_t bytes = te_cache_bytes(models, 1, &config);
    // a token has 2 * (64 + 4) bytes, 2 * 2 * 32 numbers of 16 bits, and 2 * (64 + 4) bytes again
    CHECK(bytes >= (size_t)(2 * 128 * (136 + 256 + 136)));
    CHECK(bytes <= (size_t)(2 * 128 * (136 + 256 + 136)) + 600000 * (TE_CUDA ? 1000 : 0) + 16 * 3 * TE_ALIGN + 12 * TE_ALIGN);
    buffer memory(&c.c, bytes);
    te_cache cache;
    REQUIRE(te_cache_init(&cache, memory.data(), bytes, models, 1, &config, &c.c) == TE_OK);
    REQUIRE(te_context_reserve(&c.c, te_plan_workspace_bytes(both_plan(), &m.model, 128, &c.c)) == TE_OK);
    const vec x = random.draw(70 * 48, TE_bf16);
    const auto step = [&](int32_t slot, int first, int count) {
        buffer rows(&c.c, (size_t)count * 96), y(&c.c, (size_t)count * 96), slots(&c.c, 4);
        rows.write(vec(x.begin() + first * 48, x.begin() + (first + count) * 48), TE_bf16), slots.write_ints({slot});
        te_batch b;
        memset(&b, 0, sizeof b), b.batch = 1, b.seq = count, b.cache = &cache, b.slots = (const int32_t *)slots.data();
        REQUIRE(te_cache_begin(&cache, &b, &c.c) == TE_OK);
        REQUIRE(both_infer(te_matrix(y.data(), TE_bf16, count, 48), te_matrix(rows.data(), TE_bf16, count, 48), &m, &b, &c.c) == TE_OK);
        return y.read(TE_bf16);
    };
    const vec whole = step(0, 0, 70), first = step(1, 0, 69), last = step(1, 69, 1);
    vec parts = first;
    parts.insert(parts.end(), last.begin(), last.end());
    check_close("a prompt in parts", parts, whole, 1.6e-2);
}

#if TE_CUDA
namespace {
#if defined __CUDA_ARCH_FEAT_SM90_ALL
template <int FORMAT, te_dtype T> __device__ void convert_all(uint16_t *to) {
    const uint32_t first = threadIdx.x * 4u, x = first | (first + 1) << 8 | (first + 2) << 16 | (first + 3) << 24;
    uint32_t even, odd;
    te__decode8_convert<FORMAT, T>(even, odd, x);
    to[first] = (uint16_t)even, to[first + 2] = (uint16_t)(even >> 16), to[first + 1] = (uint16_t)odd, to[first + 3] = (uint16_t)(odd >> 16);
}
#endif
__global__ void convert_kernel(uint16_t *to) { // <<<1, 64>>>, [4, 256]
#if defined __CUDA_ARCH_FEAT_SM90_ALL
    convert_all<TE_CACHE_FORMAT_int8, TE_bf16>(to), convert_all<TE_CACHE_FORMAT_int8, TE_f16>(to + 256);
    convert_all<TE_CACHE_FORMAT_e4m3, TE_bf16>(to + 512), convert_all<TE_CACHE_FORMAT_e4m3, TE_f16>(to + 768);
#endif
}
} // namespace

// nvcc -arch=sm_90a also compiles for compute_90, where te__decode8_unit is left out.
#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__
TEST_CASE("decoding converts all numbers of 8 bits exactly") {
    context c;
    if (c.c.capability != 900) return;
    buffer to(&c.c, 4 * 256 * 2);
    convert_kernel<<<1, 64, 0, (cudaStream_t)c.c.stream>>>((uint16_t *)to.data());
    REQUIRE(te_synchronize(&c.c) == TE_OK);
    const vec bf16 = to.read(TE_bf16), f16 = to.read(TE_f16);
    for (int k = 0; k < 256; k++) {
        INFO("code " << k);
        CHECK(bf16[(size_t)k] * (double)te__decode8_unit<TE_CACHE_FORMAT_int8, TE_bf16>() == (int8_t)k);
        CHECK(f16[(size_t)(256 + k)] == (int8_t)k);
        const double e4m3 = (k & 127) == 127 ? (k & 128 ? -480 : 480) : e4m3_value(k); // NaN, which is never stored, is finite
        CHECK(bf16[(size_t)(512 + k)] == e4m3);
        CHECK(f16[(size_t)(768 + k)] == e4m3);
    }
}
#endif
#endif
