// attention.h -- what the tests of the attention kernels share: a reference in double, and a check of forward, backward and inference
// against it. Errors are ||out - ref|| / ||ref||. Inputs are rounded to the dtype before the reference sees them. What is inherent to
// 16 bits: P and dS are rounded for their products, and dS is a difference of
// two numbers; hence backward in f16 may be off by 4e-3 where forward may by 1e-3. The `out` that backward reads for
// delta = rowsum(dout * out) is rounded, too; the reference takes what forward stored.
#ifndef TESTS_ATTENTION_H
#define TESTS_ATTENTION_H

#include <cstdlib>
#include <catch2/catch.hpp>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "draw.h"
#include "te/gemm/gemm.h"                   // te_context_create
#include "te/attention/attention_kernels.h" // what is tested

namespace {

typedef te_status (*launch)(te_context *, const te_attention_args *);
typedef size_t (*scratch_bytes)(te_context *, int64_t);
// SHAPE(name, dtype, heads, kv_heads, head_dim, options): a shape of KERNELS(the same).
#define KERNELS(name, dtype, h, kv, d, options)                   \
    TE_ATTENTION_FORWARD_OF(name, dtype, h, kv, d, options)       \
    TE_ATTENTION_BACKWARD_OF(name##_back, dtype, h, kv, d, options) \
    TE_ATTENTION_SINKS(name##_sinks, dtype, h)
#define STRIP(...) __VA_ARGS__
#define SHAPE(name, dtype, h, kv, d, options) \
    {name##_launch, name##_back_launch, name##_back_scratch_bytes, TE_##dtype, h, kv, d, name##_back_sum_rows, {STRIP options}, name##_sinks_launch},

// The options of te/attention/attention_form.h.
struct form {
    int left, right;
    double softcap = 0, dropout = 0;
    int varlen = 0, alibi = 0, sinks = 0, only = 0, cross = 0, bias = 0, first = 0, second = 0, top = 0;
    bool sees(int query, int key) const {
        return (left < 0 || key >= query - left) && (right < 0 || key <= query + right);
    }
};
struct shape {
    launch forward, backward;
    scratch_bytes scratch;
    te_dtype dtype;
    int heads, kv_heads, dim, sum_rows;
    form f;
    te_attention_sinks_fn sinks;
};

const size_t guard = 256; // bytes behind each buffer that nobody may write

// Numbers of a dtype in target memory.
struct buffer {
    te_context *ctx;
    te_dtype dtype;
    size_t n;
    void *data = nullptr;
    buffer(te_context *c, te_dtype t, size_t count) : ctx(c), dtype(t), n(count) {
        REQUIRE(te_allocate(ctx, &data, bytes() + guard) == TE_OK);
        poison();
    }
    buffer(const buffer &) = delete;
    ~buffer() { te_release(ctx, data); }
    size_t bytes() const { return n * te_dtype_bytes(dtype); }
    void poison() { REQUIRE(te_fill(ctx, data, 0xff, bytes() + guard) == TE_OK); } // NaN in every format
    std::vector<uint8_t> raw() const {
        std::vector<uint8_t> v(bytes() + guard);
        REQUIRE(te_copy(ctx, v.data(), data, v.size()) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        for (size_t i = bytes(); i < v.size(); i++) REQUIRE(v[i] == 0xff);
        return v;
    }
    std::vector<double> read() const {
        const std::vector<uint8_t> v = raw();
        std::vector<double> x(n);
        for (size_t i = 0; i < n; i++) x[i] = te_load(v.data(), (int64_t)i, dtype);
        return x;
    }
    // Fresh normal numbers, number i times factor(i); returns them as stored.
    template <class F> std::vector<double> draw(std::mt19937 &random, F factor) {
        std::normal_distribution<float> normal;
        std::vector<uint8_t> v(bytes());
        std::vector<double> x(n);
        for (size_t i = 0; i < n; i++) {
            te_store(v.data(), (int64_t)i, normal(random) * factor(i), dtype);
            x[i] = te_load(v.data(), (int64_t)i, dtype);
        }
        REQUIRE(te_copy(ctx, data, v.data(), v.size()) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        return x;
    }
    std::vector<double> draw(std::mt19937 &random) {
        return draw(random, [](size_t) { return 1.0f; });
    }
};

struct context {
    te_context c;
    context() { REQUIRE(te_context_create(&c, 0, 1) == TE_OK); }
    ~context() { te_context_destroy(&c); }
};

struct reference {
    std::vector<double> out, lse, dqkv, dsinks, dsinks_size; // size: the sum of |terms|
};

// The keys that a query sees, one by one.
std::vector<size_t> keys_of(const form &f, size_t query, size_t seq) {
    std::vector<size_t> keys;
    for (size_t j = 0; j < seq; j++)
        if (f.sees((int)query, (int)j)) keys.push_back(j);
    return keys;
}
// ALiBi's slopes as the paper's own code has them: of a power of two a geometric series that begins with its ratio, of other numbers those of the next
// lower power of two, and every other one of twice as many.
std::vector<double> alibi_slopes(int heads) {
    int whole = 1;
    while (2 * whole <= heads) whole *= 2;
    std::vector<double> v;
    for (int i = 1; i <= whole; i++) v.push_back(std::pow(std::pow(2, -8.0 / whole), i));
    if (heads > whole) {
        const std::vector<double> twice = alibi_slopes(2 * whole);
        for (int i = 0; whole + i < heads; i++) v.push_back(twice[(size_t)(2 * i)]);
    }
    return v;
}
// What dropout multiplies a probability by: the words of a counter are for queries q, q + 8 of 16 and keys k, k + 8, k + 16, k + 24 of 32.
// te/attention/attention_drop.h says it for the kernels. head: of all sequences.
struct drawn {
    te_rng rng = {0, 0};
    uint32_t id = 0;
    size_t first_head = 0, seq = 0; // of a sequence among others: what its heads are counted from, and the longest one; 0: there are no others
};
double dropout_factor(const form &f, const drawn &from, size_t head, size_t query, size_t key, size_t seq) {
    uint32_t word[4];
    const double limit = std::floor(65536 * (double)(float)f.dropout + 0.5);
    head += from.first_head, seq = from.seq ? from.seq : seq;
    te_philox(word, from.rng.seed, (uint64_t)(head * ((seq + 15) / 16) + query / 16) << 32 | (key / 32 * 64 + query % 8 * 8 + key % 8), from.id,
              from.rng.offset);
    return (word[key / 8 % 4] >> (query / 8 % 2 ? 16 : 0) & 0xffff) < limit ? 0 : 65536 / (65536 - limit);
}
// stored: the `out` that a backward reads for delta, if that is not exact. Where a row sees one key, nothing but its rounding is left of dS.
reference attention(const shape &s, int batch, int seq, double scale, const std::vector<double> &qkv, const std::vector<double> &dout,
                    const drawn &from = drawn(), const std::vector<double> *stored = nullptr, const std::vector<double> *sinks = nullptr) {
    const size_t h = (size_t)s.heads, kv = (size_t)s.kv_heads, d = (size_t)s.dim, n = (size_t)seq, width = (h + 2 * kv) * d;
    reference r;
    r.out.assign((size_t)batch * n * h * d, 0), r.lse.assign((size_t)batch * h * n, 0), r.dqkv.assign(qkv.size(), 0);
    r.dsinks.assign(h, 0), r.dsinks_size.assign(h, 0);
    const std::vector<double> slopes = alibi_slopes(s.heads);
    std::vector<double> p(n), t(n), kept(n, 1.0); // t: the tanh of softcap; kept: what dropout multiplies by
    for (size_t b = 0; b < (size_t)batch; b++)
        for (size_t head = 0; head < h; head++)
            for (size_t i = 0; i < n; i++) {
                const size_t group = head / (h / kv), first = b * n * width;
                const std::vector<size_t> keys = keys_of(s.f, i, n);
                const double *q = &qkv[first + i * width + head * d], *dy = &dout[(b * n + i) * h * d + head * d];
                double *dq = &r.dqkv[first + i * width + head * d], *y = &r.out[(b * n + i) * h * d + head * d];
                const size_t k0 = first + (h + group) * d, v0 = k0 + kv * d;
                const double sink = s.f.sinks ? (*sinks)[head] : -INFINITY; // as one more score, of a key whose value is 0
                double top = sink, sum = 0, delta = 0, size = 0;
                for (const size_t j : keys) {
                    double dot = 0;
                    for (size_t c = 0; c < d; c++) dot += q[c] * qkv[k0 + j * width + c];
                    p[j] = dot * scale;
                    if (s.f.softcap > 0) t[j] = std::tanh(p[j] / s.f.softcap), p[j] = s.f.softcap * t[j];
                    if (s.f.alibi) p[j] -= slopes[head] * std::fabs((double)i - (double)j);
                    top = std::max(top, p[j]);
                }
                for (const size_t j : keys) sum += std::exp(p[j] - top);
                sum += std::exp(sink - top);
                r.lse[(b * h + head) * n + i] = top + std::log(sum);
                for (const size_t j : keys) {
                    p[j] = std::exp(p[j] - top) / sum;
                    if (s.f.dropout > 0) kept[j] = dropout_factor(s.f, from, b * h + head, i, j, n);
                    for (size_t c = 0; c < d; c++) y[c] += p[j] * kept[j] * qkv[v0 + j * width + c];
                }
                const double *had = stored ? &(*stored)[(b * n + i) * h * d + head * d] : y;
                for (size_t c = 0; c < d; c++) delta += dy[c] * had[c], size += std::fabs(dy[c] * had[c]);
                // as any other score's gradient, p (dp - delta), where dp is 0
                r.dsinks[head] += std::exp(sink - top) / sum * (0 - delta), r.dsinks_size[head] += std::exp(sink - top) / sum * size;
                for (const size_t j : keys) {
                    double dp = 0;
                    for (size_t c = 0; c < d; c++) dp += dy[c] * qkv[v0 + j * width + c];
                    const double ds = p[j] * (dp * kept[j] - delta) * scale * (1 - t[j] * t[j]);
                    for (size_t c = 0; c < d; c++) {
                        r.dqkv[v0 + j * width + c] += p[j] * kept[j] * dy[c];
                        dq[c] += ds * qkv[k0 + j * width + c];
                        r.dqkv[k0 + j * width + c] += ds * q[c];
                    }
                }
            }
    return r;
}

// Columns [from, to) of rows of `width`. Where all gradients cancel (seq 1), ||ref|| is 0: the error is then taken
// relative to numbers of 0.05, the size that such gradients have elsewhere.
double error(const std::vector<double> &x, const std::vector<double> &ref, size_t width, size_t from, size_t to, double tolerance) {
    double norm = 0, difference = 0, worst = 0;
    size_t n = 0;
    for (size_t i = 0; i < ref.size(); i++)
        if (i % width >= from && i % width < to) norm += ref[i] * ref[i], difference += (x[i] - ref[i]) * (x[i] - ref[i]), n++;
    const double rms = std::max(std::sqrt(norm / (double)n), 0.05);
    for (size_t i = 0; i < ref.size(); i++)
        if (i % width >= from && i % width < to) {
            const double e = std::fabs(x[i] - ref[i]) / (rms + std::fabs(ref[i]));
            if (!(e <= worst)) worst = e; // a NaN stays
        }
    CHECK(worst <= 12 * tolerance); // no single element far outside
    return std::sqrt(difference / (double)n) / rms;
}

// The sinks of a shape, and their gradient behind a backward.
struct sinks_of {
    const shape &s;
    buffer data;
    std::vector<double> values;
    sinks_of(te_context *c, const shape &of, std::mt19937 &random) : s(of), data(c, of.dtype, (size_t)of.heads) {
        values = data.draw(random, [](size_t) { return 2.0f; });
    }
    void check(te_context *c, const te_attention_args &a, const reference &ref) const {
        const size_t heads = (size_t)s.heads;
        if (!s.f.sinks) return;
        buffer sum(c, TE_f32, heads * (size_t)te__attention_sinks_blocks(a.cu_seqlens ? a.rows : a.batch * a.seq));
        REQUIRE(te__attention_sinks(c, s.sinks, &a, (float *)sum.data, s.heads, s.f.varlen) == TE_OK);
        const std::vector<double> parts = sum.read();
        const std::vector<uint8_t> first = sum.raw();
        for (size_t head = 0; head < heads; head++) {
            double got = 0;
            for (size_t i = head; i < parts.size(); i += heads) got += parts[i];
            CAPTURE(head, got, ref.dsinks[head], ref.dsinks_size[head]);
            CHECK(std::fabs(got - ref.dsinks[head]) <= 1e-4 * ref.dsinks_size[head]);
        }
        sum.poison();
        REQUIRE(te__attention_sinks(c, s.sinks, &a, (float *)sum.data, s.heads, s.f.varlen) == TE_OK);
        CHECK(sum.raw() == first);
    }
};

// Under a cap a score is rounded at the size of the cap, not at its own.
double lse_bound(const shape &s) { return 1e-5 * (1 + s.f.softcap / 16); }

// Kernels for another device alone.
bool cannot_run(const shape &s, te_context *c, const te_attention_args &a) {
    if (s.f.only != TE_ATTENTION_HOPPER || s.forward(c, &a) != TE_ERROR_DEVICE) return false;
    static int told = 0;
    if (!told++) std::printf("SKIPPED: shapes for compute capability 9.0 alone\n");
    return true;
}

const char *dtype_of(const shape &s) { return te_dtype_name(s.dtype); }

// with_scratch: else the kernels of backward that need none run.
void check(const shape &s, int batch, int seq, std::mt19937 &random, double worst[2], bool with_scratch = true) {
    context ctx;
    const size_t rows = (size_t)batch * (size_t)seq, d = (size_t)s.dim, h = (size_t)s.heads * d, kv = (size_t)s.kv_heads * d;
    buffer qkv(&ctx.c, s.dtype, rows * (h + 2 * kv)), out(&ctx.c, s.dtype, rows * h), dout(&ctx.c, s.dtype, rows * h);
    buffer dqkv(&ctx.c, s.dtype, qkv.n), lse(&ctx.c, TE_f32, rows * (size_t)s.heads), delta(&ctx.c, TE_f32, lse.n);
    const std::vector<double> x = qkv.draw(random), dy = dout.draw(random);
    const size_t scratch_size = with_scratch ? s.scratch(&ctx.c, (int64_t)rows) : 0;
    buffer scratch(&ctx.c, TE_f32, scratch_size / 4);
    te_attention_args a;
    memset(&a, 0, sizeof a);
    a.out = out.data, a.lse = (float *)lse.data, a.qkv = qkv.data, a.dqkv = dqkv.data, a.dout = dout.data;
    a.delta = (float *)delta.data, a.scratch = scratch_size ? scratch.data : nullptr;
    a.batch = batch, a.seq = seq, a.scale = 1.0f / std::sqrt((float)s.dim);
    drawn from;
    from.id = (uint32_t)(random() % 60), from.rng.seed = random() * 4294967296u + random(), from.rng.offset = random() * 4294967296u + random();
    buffer rng(&ctx.c, TE_f32, sizeof from.rng / 4);
    REQUIRE(te_copy(&ctx.c, rng.data, &from.rng, sizeof from.rng) == TE_OK);
    REQUIRE(te_synchronize(&ctx.c) == TE_OK);
    if (s.f.dropout > 0) a.rng = (const te_rng *)rng.data, a.id = from.id;
    const sinks_of sinks(&ctx.c, s, random);
    a.sinks = sinks.data.data;
    if (cannot_run(s, &ctx.c, a)) return;
    REQUIRE(s.forward(&ctx.c, &a) == TE_OK);
    REQUIRE(s.backward(&ctx.c, &a) == TE_OK);
    const std::vector<double> stored = out.read();
    reference ref = attention(s, batch, seq, a.scale, x, dy, from, &stored, &sinks.values);
    sinks.check(&ctx.c, a, ref);
    if (TE_CUDA && s.f.varlen) { // lse is [heads, rows]
        const std::vector<double> of = ref.lse;
        for (size_t i = 0; i < of.size(); i++) {
            const size_t n = (size_t)seq, head = i / n % (size_t)s.heads, b = i / n / (size_t)s.heads;
            ref.lse[head * rows + b * n + i % n] = of[i];
        }
    }
    const double forward = s.dtype == TE_f32 ? 1e-5 : s.dtype == TE_f16 ? 1e-3 : 1.6e-2;
    const double backward = s.dtype == TE_f16 ? 4e-3 : forward;
    const std::vector<double> dx = dqkv.read();
    const double e[5] = {error(out.read(), ref.out, h, 0, h, forward), error(lse.read(), ref.lse, 1, 0, 1, lse_bound(s)),
                         error(dx, ref.dqkv, h + 2 * kv, 0, h, backward), error(dx, ref.dqkv, h + 2 * kv, h, h + kv, backward),
                         error(dx, ref.dqkv, h + 2 * kv, h + kv, h + 2 * kv, backward)};
    INFO("out " << e[0] << " lse " << e[1] << " dq " << e[2] << " dk " << e[3] << " dv " << e[4]);
    CHECK(e[0] <= forward);
    CHECK(e[1] <= lse_bound(s));
    for (int i = 2; i < 5; i++) CHECK(e[i] <= backward);
    worst[0] = std::max(worst[0], e[0]), worst[1] = std::max(worst[1], std::max(e[2], std::max(e[3], e[4])));
    const std::vector<uint8_t> first = out.raw(), gradient = dqkv.raw(), sums = lse.raw();
    if (scratch_size) { // in whatever order: as near, and the next one is repeatable again
        dqkv.poison(), scratch.poison(), delta.poison();
        ctx.c.attention_unrepeatable = 1;
        REQUIRE(s.backward(&ctx.c, &a) == TE_OK);
        ctx.c.attention_unrepeatable = 0;
        const std::vector<double> dz = dqkv.read();
        CHECK(error(dz, ref.dqkv, h + 2 * kv, 0, h, backward) <= backward);
        CHECK(error(dz, ref.dqkv, h + 2 * kv, h, h + kv, backward) <= backward);
        CHECK(error(dz, ref.dqkv, h + 2 * kv, h + kv, h + 2 * kv, backward) <= backward);
    }
    // the same bits again; and lse is not needed in inference
    out.poison(), dqkv.poison(), delta.poison(), scratch.poison();
    a.lse = nullptr;
    REQUIRE(s.forward(&ctx.c, &a) == TE_OK);
    a.lse = (float *)lse.data;
    REQUIRE(s.backward(&ctx.c, &a) == TE_OK);
    CHECK(out.raw() == first);
    CHECK(dqkv.raw() == gradient);
    CHECK(lse.raw() == sums);
    if (s.f.dropout > 0) { // in inference nothing is dropped
        shape whole = s;
        whole.f.dropout = 0;
        out.poison();
        te_attention_args infer = a;
        infer.rng = nullptr, infer.lse = nullptr;
        REQUIRE(s.forward(&ctx.c, &infer) == TE_OK);
        CHECK(error(out.read(), attention(whole, batch, seq, a.scale, x, dy, drawn(), nullptr, &sinks.values).out, h, 0, h, forward) <= forward);
        REQUIRE(s.forward(&ctx.c, &a) == TE_OK);
    }
    if (!s.sum_rows) return;
    // with the sums of dqkv over so many rows of each sequence; dqkv is the same
    const size_t width = h + 2 * kv, parts = (size_t)te_ceil_div(seq, s.sum_rows);
    buffer sum(&ctx.c, TE_f32, (size_t)batch * parts * width);
    a.sum = (float *)sum.data;
    dqkv.poison();
    REQUIRE(s.backward(&ctx.c, &a) == TE_OK);
    CHECK(dqkv.raw() == gradient);
    std::vector<double> wanted(sum.n), magnitude(sum.n);
    for (size_t b = 0; b < (size_t)batch; b++)
        for (size_t i = 0; i < (size_t)seq; i++)
            for (size_t c = 0; c < width; c++) {
                const size_t to = (b * parts + i / (size_t)s.sum_rows) * width + c;
                wanted[to] += dx[(b * (size_t)seq + i) * width + c], magnitude[to] += std::fabs(dx[(b * (size_t)seq + i) * width + c]);
            }
    const std::vector<double> got = sum.read();
    double off = 0;
    for (size_t i = 0; i < sum.n; i++)
        if (!(std::fabs(got[i] - wanted[i]) <= 1e-5 * magnitude[i])) off++;
    CHECK(off == 0);
}

// Sequences of these lengths, one behind the other: each against the reference of it alone. spare: so much more the bound of lengths is than the
// longest one. again: other lengths in the same memory, of as many rows.
void check_varlen(const shape &s, const std::vector<int> &lengths, std::mt19937 &random, double worst[2], bool with_scratch = true, int spare = 0,
                  const std::vector<int> &again = {}) {
    context ctx;
    std::vector<int32_t> cu(1, 0);
    for (const int n : lengths) cu.push_back(cu.back() + n);
    const size_t rows = (size_t)cu.back(), d = (size_t)s.dim, h = (size_t)s.heads * d, kv = (size_t)s.kv_heads * d, width = h + 2 * kv;
    buffer qkv(&ctx.c, s.dtype, rows * width), out(&ctx.c, s.dtype, rows * h), dout(&ctx.c, s.dtype, rows * h);
    buffer dqkv(&ctx.c, s.dtype, qkv.n), lse(&ctx.c, TE_f32, rows * (size_t)s.heads), delta(&ctx.c, TE_f32, lse.n);
    buffer first(&ctx.c, TE_f32, cu.size());
    const std::vector<double> x = qkv.draw(random), dy = dout.draw(random);
    const size_t scratch_size = with_scratch ? s.scratch(&ctx.c, (int64_t)rows) : 0;
    buffer scratch(&ctx.c, TE_f32, scratch_size / 4);
    te_attention_args a;
    memset(&a, 0, sizeof a);
    a.out = out.data, a.lse = (float *)lse.data, a.qkv = qkv.data, a.dqkv = dqkv.data, a.dout = dout.data;
    a.delta = (float *)delta.data, a.scratch = scratch_size ? scratch.data : nullptr;
    a.batch = (int)lengths.size(), a.scale = 1.0f / std::sqrt((float)s.dim), a.rows = (int)rows, a.cu_seqlens = (const int32_t *)first.data;
    for (const std::vector<int> *l : {&lengths, &again})
        for (const int n : *l) a.seq = std::max(a.seq, n + spare);
    drawn from;
    from.id = 7, from.rng.seed = random(), from.rng.offset = random(), from.seq = (size_t)a.seq;
    buffer rng(&ctx.c, TE_f32, sizeof from.rng / 4);
    REQUIRE(te_copy(&ctx.c, rng.data, &from.rng, sizeof from.rng) == TE_OK);
    REQUIRE(te_synchronize(&ctx.c) == TE_OK);
    if (s.f.dropout > 0) a.rng = (const te_rng *)rng.data, a.id = from.id;
    const sinks_of sinks(&ctx.c, s, random);
    a.sinks = sinks.data.data;
    if (cannot_run(s, &ctx.c, a)) return;
    const double forward = s.dtype == TE_f32 ? 1e-5 : s.dtype == TE_f16 ? 1e-3 : 1.6e-2, backward = s.dtype == TE_f16 ? 4e-3 : forward;
    for (int time = 0; time < (again.empty() ? 1 : 2); time++) {
        for (size_t i = 0; time && i < again.size(); i++) cu[i + 1] = cu[i] + again[i];
        REQUIRE((size_t)cu.back() == rows);
        REQUIRE(te_copy(&ctx.c, first.data, cu.data(), cu.size() * sizeof cu[0]) == TE_OK);
        out.poison(), dqkv.poison(), delta.poison(), lse.poison(), scratch.poison();
        REQUIRE(s.forward(&ctx.c, &a) == TE_OK);
        REQUIRE(s.backward(&ctx.c, &a) == TE_OK);
        const std::vector<double> y = out.read(), dx = dqkv.read(), l = lse.read();
        std::vector<double> want_y, want_dx, want_l(l.size());
        reference whole;
        whole.dsinks.assign((size_t)s.heads, 0), whole.dsinks_size = whole.dsinks;
        for (size_t i = 0; i + 1 < cu.size(); i++) {
            const size_t b = (size_t)cu[i], n = (size_t)cu[i + 1] - b;
            const auto part = [&](const std::vector<double> &v, size_t w) {
                return std::vector<double>(v.begin() + (std::ptrdiff_t)(b * w), v.begin() + (std::ptrdiff_t)((b + n) * w));
            };
            if (!n) continue;
            from.first_head = i * (size_t)s.heads;
            const std::vector<double> stored = part(y, h);
            const reference ref = attention(s, 1, (int)n, a.scale, part(x, width), part(dy, h), from, &stored, &sinks.values);
            for (size_t k = 0; k < ref.dsinks.size(); k++) whole.dsinks[k] += ref.dsinks[k], whole.dsinks_size[k] += ref.dsinks_size[k];
            want_y.insert(want_y.end(), ref.out.begin(), ref.out.end()), want_dx.insert(want_dx.end(), ref.dqkv.begin(), ref.dqkv.end());
            for (size_t k = 0; k < ref.lse.size(); k++) want_l[k / n * rows + b + k % n] = ref.lse[k];
        }
        sinks.check(&ctx.c, a, whole);
        const double e[5] = {error(y, want_y, h, 0, h, forward), error(l, want_l, 1, 0, 1, lse_bound(s)), error(dx, want_dx, width, 0, h, backward),
                             error(dx, want_dx, width, h, h + kv, backward), error(dx, want_dx, width, h + kv, width, backward)};
        INFO("out " << e[0] << " lse " << e[1] << " dq " << e[2] << " dk " << e[3] << " dv " << e[4]);
        CHECK(e[0] <= forward);
        CHECK(e[1] <= lse_bound(s));
        for (int i = 2; i < 5; i++) CHECK(e[i] <= backward);
        worst[0] = std::max(worst[0], e[0]), worst[1] = std::max(worst[1], std::max(e[2], std::max(e[3], e[4])));
        const std::vector<uint8_t> had = out.raw(), gradient = dqkv.raw(); // the same bits again
        out.poison(), dqkv.poison(), delta.poison(), scratch.poison();
        REQUIRE(s.forward(&ctx.c, &a) == TE_OK);
        REQUIRE(s.backward(&ctx.c, &a) == TE_OK);
        CHECK(out.raw() == had);
        CHECK(dqkv.raw() == gradient);
        // what is not finite in a sequence does not leave it
        const size_t ill = random() % lengths.size(), from_row = (size_t)cu[ill], to_row = (size_t)cu[ill + 1];
        if (from_row == to_row) continue;
        const auto spoil = [&](buffer &b, size_t w) {
            const size_t bytes = w * te_dtype_bytes(s.dtype);
            REQUIRE(te_fill(&ctx.c, (char *)b.data + from_row * bytes, 0xff, (to_row - from_row) * bytes) == TE_OK);
        };
        const auto heal = [&](std::vector<double> v, const std::vector<double> &want, size_t w) {
            for (size_t i = from_row * w; i < to_row * w; i++) v[i] = want[i];
            return v;
        };
        const std::vector<uint8_t> qkv_was = qkv.raw(), dout_was = dout.raw();
        spoil(qkv, width), spoil(dout, h);
        REQUIRE(s.forward(&ctx.c, &a) == TE_OK);
        REQUIRE(s.backward(&ctx.c, &a) == TE_OK);
        CHECK(error(heal(out.read(), want_y, h), want_y, h, 0, h, forward) <= forward);
        CHECK(error(heal(dqkv.read(), want_dx, width), want_dx, width, 0, width, backward) <= backward);
        REQUIRE(te_copy(&ctx.c, qkv.data, qkv_was.data(), qkv.bytes()) == TE_OK);
        REQUIRE(te_copy(&ctx.c, dout.data, dout_was.data(), dout.bytes()) == TE_OK);
        REQUIRE(te_synchronize(&ctx.c) == TE_OK);
    }
    // numbers that make no sense: every kernel ends, and nothing else is written (reading: compute-sanitizer, the address sanitizer)
    for (int time = 0; time < (brief() ? 1 : 4); time++) {
        for (int32_t &n : cu) n = time == 0 ? (int32_t)rows - n : (int32_t)(random() % (2 * rows)) - (int32_t)rows / 2;
        if (time == 3) cu[cu.size() / 2] = INT32_MIN, cu.back() = INT32_MAX;
        REQUIRE(te_copy(&ctx.c, first.data, cu.data(), cu.size() * sizeof cu[0]) == TE_OK);
        REQUIRE(s.forward(&ctx.c, &a) == TE_OK);
        REQUIRE(s.backward(&ctx.c, &a) == TE_OK);
        for (const buffer *b : {&out, &dqkv, &lse, &delta, &scratch}) (void)b->raw(); // the guards
    }
}

// Each shape at each length.
TE_UNUSED void check_all(const shape *shapes, size_t count, const std::vector<int> &seqs) {
    const unsigned seed = fresh_seed();
    std::printf("attention's options: seed %u\n", seed);
    std::mt19937 random(seed);
    for (size_t i = 0; i < count; i++) {
        const shape &s = shapes[i];
        double worst[2] = {0, 0};
        const size_t only = random() % seqs.size();
        for (size_t j = 0; j < seqs.size(); j++) {
            if (brief() && j != only) continue;
            CAPTURE(seed, dtype_of(s), s.heads, s.kv_heads, s.dim, s.f.left, s.f.right, s.f.softcap, s.f.dropout, seqs[j]);
            check(s, seqs[j] < 100 ? 3 : 1, seqs[j], random, worst);
            if (TE_CUDA && (seqs[j] == 65 || seqs[j] == 333) && s.f.only != TE_ATTENTION_HOPPER) check(s, 2, seqs[j], random, worst, false);
        }
        std::printf("%-4s heads %d/%d head_dim %3d window %d, %d softcap %g dropout %g alibi %d sinks %d only %d: forward %.1e, backward %.1e\n", dtype_of(s), s.heads,
                    s.kv_heads, s.dim, s.f.left, s.f.right, s.f.softcap, s.f.dropout, s.f.alibi, s.f.sinks, s.f.only, worst[0], worst[1]);
    }
}

} // namespace

#endif
