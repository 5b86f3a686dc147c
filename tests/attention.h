// attention.h -- shared by the tests of the attention kernels: a check of forward, backward and inference against the reference in
// double (attention_reference.h). Errors are ||out - ref|| / ||ref||. The reference gets inputs that are rounded to the dtype. The
// 16-bit kernels round P and dS before they multiply them, and dS is a difference of two numbers: hence the tolerance of f16 is 1e-3
// in forward and 4e-3 in backward. The `out` that backward reads for delta = rowsum(dout * out) is rounded, too; the reference
// takes the `out` that forward stored.
#ifndef TESTS_ATTENTION_H
#define TESTS_ATTENTION_H

#include <cstdlib>
#include <catch2/catch.hpp>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "attention_reference.h"
#include "draw.h"
#include "numbers.h"
#include "te/gemm/gemm.h"                   // te_context_create
#include "te/attention/attention_kernels.h" // what is tested

namespace {

using attention_reference::alibi_slopes;
using attention_reference::drawn;
using attention_reference::dropout_factor;
using attention_reference::form;
using attention_reference::reference;

typedef te_status (*launch)(te_context *, const te_attention_args *);
typedef size_t (*scratch_bytes)(te_context *, int64_t);
// KERNELS(name, dtype, heads, kv_heads, head_dim, options) makes the kernels, SHAPE(the same arguments) is their table entry.
#define KERNELS(name, dtype, h, kv, d, options)                   \
    TE_ATTENTION_FORWARD_OF(name, dtype, h, kv, d, options)       \
    TE_ATTENTION_BACKWARD_OF(name##_back, dtype, h, kv, d, options) \
    TE_ATTENTION_SINKS_GRAD(name##_sinks, dtype, h)
#define STRIP(...) __VA_ARGS__
#define SHAPE(name, dtype, h, kv, d, options) \
    {name##_launch, name##_back_launch, name##_back_scratch_bytes, TE_##dtype, h, kv, d, name##_back_sum_rows, {STRIP options}, name##_sinks_launch},

struct shape {
    launch forward, backward;
    scratch_bytes scratch;
    te_dtype dtype;
    int heads, kv_heads, dim, sum_rows;
    form f;
    te_sinks_grad_fn sinks;
    size_t value() const { return (size_t)(f.value ? f.value : dim); }   // head size of v
    // number of columns of q; qk(): of q and k; width(): of q, k and v; out(): of the output
    size_t q() const { return (size_t)heads * (size_t)dim; }
    size_t qk() const { return q() + (size_t)kv_heads * (size_t)dim; }
    size_t width() const { return qk() + (size_t)kv_heads * value(); }
    size_t out() const { return (size_t)heads * value(); }
};

const size_t guard = 256; // bytes behind each buffer, which no kernel may write

// Target memory for n numbers of a dtype.
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
    void poison() { REQUIRE(te_fill(ctx, data, 0xff, bytes() + guard) == TE_OK); } // 0xff bytes are NaN in every format
    std::vector<uint8_t> raw() const {
        std::vector<uint8_t> v(bytes() + guard);
        REQUIRE(te_copy(ctx, v.data(), data, v.size()) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        REQUIRE(numbers::others(v.data() + bytes(), guard, 0xff) == 0);
        return v;
    }
    std::vector<double> read() const {
        return numbers::loaded(raw().data(), 0, n, dtype);
    }
    // Fills it with normal numbers, number i times factor(i), and returns them as stored.
    template <class F> std::vector<double> draw(std::mt19937 &random, F factor) {
        std::vector<float> factors(n);
        for (size_t i = 0; i < n; i++) factors[i] = factor(i);
        return draw(random, factors);
    }
    std::vector<double> draw(std::mt19937 &random, const std::vector<float> &factors) {
        const std::vector<double> x = numbers::drawn(random, factors, n, dtype);
        const std::vector<uint8_t> v = numbers::stored(x, dtype);
        REQUIRE(te_copy(ctx, data, v.data(), v.size()) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        return x;
    }
    std::vector<double> draw(std::mt19937 &random) { return draw(random, std::vector<float>(1, 1.0f)); }
};

struct context {
    te_context c;
    context() { REQUIRE(te_context_create(&c, 0, 1) == TE_OK); }
    ~context() { te_context_destroy(&c); }
};

reference attention(const shape &s, int batch, int seq, double scale, const std::vector<double> &qkv, const std::vector<double> &dout,
                    const drawn &from = drawn(), const std::vector<double> *stored = nullptr, const std::vector<double> *sinks = nullptr) {
    return attention_reference::attention(s.f, s.heads, s.kv_heads, s.dim, batch, seq, scale, qkv, dout, from, stored, sinks);
}

// The relative error of columns [from, to) of rows of `width` (attention_reference::distance_of).
double error(const std::vector<double> &x, const std::vector<double> &ref, size_t width, size_t from, size_t to, double tolerance, double floor = 0.05) {
    const attention_reference::distance d = attention_reference::distance_of(x, ref, width, from, to, floor);
    CHECK(d.worst <= 12 * tolerance); // and no single element has a much larger error
    return d.whole;
}

// The sinks of a shape; check() computes their gradient after a backward and compares it.
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
        buffer sum(c, TE_f32, heads * (size_t)te__attention_sinks_grad_blocks(a.cu_seqlens ? a.rows : a.batch * a.seq));
        REQUIRE(te__attention_sinks_grad(c, s.sinks, &a, (float *)sum.data, s.heads, {0, s.heads, 1}, s.f.varlen) == TE_OK);
        const std::vector<double> parts = sum.read();
        const std::vector<uint8_t> first = sum.raw();
        for (size_t head = 0; head < heads; head++) {
            double got = 0;
            for (size_t i = head; i < parts.size(); i += heads) got += parts[i];
            CAPTURE(head, got, ref.dsinks[head], ref.dsinks_size[head]);
            CHECK(std::fabs(got - ref.dsinks[head]) <= 1e-4 * ref.dsinks_size[head]);
        }
        sum.poison();
        REQUIRE(te__attention_sinks_grad(c, s.sinks, &a, (float *)sum.data, s.heads, {0, s.heads, 1}, s.f.varlen) == TE_OK);
        CHECK(sum.raw() == first);
    }
};

// With softcap, a score is rounded as a number of the size of the cap is.
double lse_bound(const shape &s) { return 1e-5 * (1 + s.f.softcap / 16); }
// The error of lse. It is a logarithm, so its absolute error is the relative error of the probabilities: hence a floor of 1. The logit of a lone key,
// 0.01 with a softcap of 50, has 50 times the rounding error of a tanh.
double lse_error(const std::vector<double> &x, const std::vector<double> &ref, const shape &s) { return error(x, ref, 1, 0, 1, lse_bound(s), 1); }
// The tolerance of dq and dk. Where a query sees one key, dS is exactly 0, and dq and dk are only the rounding errors of dP, a sequential sum
// over the n columns of v: n 2^-25 at a magnitude of 1, times the scale, relative to gradients of 0.05. Six times that is allowed in f32 if v
// has its own head size or more than 256 columns; in the other shapes the errors stay within `backward`.
double scores_bound(const shape &s, double backward) {
    return (s.f.value || s.dim > 256) && s.dtype == TE_f32 ? std::max(backward, 6 * (double)s.value() * std::ldexp(1, -25) / (0.05 * std::sqrt((double)s.dim))) : backward;
}

// Whether the kernels of this shape exist for another device only.
bool cannot_run(const shape &s, te_context *c, const te_attention_args &a) {
    if (s.f.only != TE_ATTENTION_SM90_ONLY || s.forward(c, &a) != TE_ERROR_DEVICE) return false;
    static int told = 0;
    if (!told++) std::printf("SKIPPED: shapes for compute capability 9.0 alone\n");
    return true;
}

const char *dtype_of(const shape &s) { return te_dtype_name(s.dtype); }

// Without with_scratch, backward runs the kernels that need no scratch memory.
void check(const shape &s, int batch, int seq, std::mt19937 &random, double worst[2], bool with_scratch = true) {
    context ctx;
    const size_t rows = (size_t)batch * (size_t)seq, width = s.width(), q = s.q(), qk = s.qk(), h = s.out();
    buffer qkv(&ctx.c, s.dtype, rows * width), out(&ctx.c, s.dtype, rows * h), dout(&ctx.c, s.dtype, rows * h);
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
    if (random() % 2) { // a rank that holds some of the heads: dropout counts heads over all ranks
        a.whole.first = (int)(random() % 9) * s.heads, a.whole.more = 2 * s.heads;
        from.heads = (size_t)(3 * s.heads), from.first_head = (size_t)a.whole.first;
    }
    const sinks_of sinks(&ctx.c, s, random);
    a.sinks = sinks.data.data;
    if (cannot_run(s, &ctx.c, a)) return;
    REQUIRE(s.forward(&ctx.c, &a) == TE_OK);
    REQUIRE(s.backward(&ctx.c, &a) == TE_OK);
    const std::vector<double> stored = out.read();
    reference ref = attention(s, batch, seq, a.scale, x, dy, from, &stored, &sinks.values);
    sinks.check(&ctx.c, a, ref);
    if (TE_CUDA && s.f.varlen) { // there lse is [heads, rows], over all sequences
        const std::vector<double> of = ref.lse;
        for (size_t i = 0; i < of.size(); i++) {
            const size_t n = (size_t)seq, head = i / n % (size_t)s.heads, b = i / n / (size_t)s.heads;
            ref.lse[head * rows + b * n + i % n] = of[i];
        }
    }
    const double forward = s.dtype == TE_f32 ? 1e-5 : s.dtype == TE_f16 ? 1e-3 : 1.6e-2;
    const double backward = s.dtype == TE_f16 ? 4e-3 : forward, scores = scores_bound(s, backward);
    const std::vector<double> dx = dqkv.read();
    const double e[5] = {error(out.read(), ref.out, h, 0, h, forward), lse_error(lse.read(), ref.lse, s),
                         error(dx, ref.dqkv, width, 0, q, scores), error(dx, ref.dqkv, width, q, qk, scores),
                         error(dx, ref.dqkv, width, qk, width, backward)};
    INFO("out " << e[0] << " lse " << e[1] << " dq " << e[2] << " dk " << e[3] << " dv " << e[4]);
    CHECK(e[0] <= forward);
    CHECK(e[1] <= lse_bound(s));
    for (int i = 2; i < 5; i++) CHECK(e[i] <= (i < 4 ? scores : backward));
    worst[0] = std::max(worst[0], e[0]), worst[1] = std::max(worst[1], std::max(e[2], std::max(e[3], e[4])));
    const std::vector<uint8_t> first = out.raw(), gradient = dqkv.raw(), sums = lse.raw();
    if (scratch_size) { // nondeterministic backward: the same tolerances; a deterministic one after it has the old bits again
        dqkv.poison(), scratch.poison(), delta.poison();
        ctx.c.attention_nondeterministic = 1;
        REQUIRE(s.backward(&ctx.c, &a) == TE_OK);
        ctx.c.attention_nondeterministic = 0;
        const std::vector<double> dz = dqkv.read();
        CHECK(error(dz, ref.dqkv, width, 0, q, scores) <= scores);
        CHECK(error(dz, ref.dqkv, width, q, qk, scores) <= scores);
        CHECK(error(dz, ref.dqkv, width, qk, width, backward) <= backward);
    }
    // a second run has the same bits; forward without lse, as in inference
    out.poison(), dqkv.poison(), delta.poison(), scratch.poison();
    a.lse = nullptr;
    REQUIRE(s.forward(&ctx.c, &a) == TE_OK);
    a.lse = (float *)lse.data;
    REQUIRE(s.backward(&ctx.c, &a) == TE_OK);
    CHECK(out.raw() == first);
    CHECK(dqkv.raw() == gradient);
    CHECK(lse.raw() == sums);
    if (s.f.dropout > 0) { // inference drops nothing
        shape whole = s;
        whole.f.dropout = 0;
        out.poison();
        te_attention_args infer = a;
        infer.rng = nullptr, infer.lse = nullptr;
        REQUIRE(s.forward(&ctx.c, &infer) == TE_OK);
        CHECK(error(out.read(), attention(whole, batch, seq, a.scale, x, dy, from, nullptr, &sinks.values).out, h, 0, h, forward) <= forward);
        REQUIRE(s.forward(&ctx.c, &a) == TE_OK);
    }
    if (!s.sum_rows) return;
    // backward that also stores the sums of dqkv over each sum_rows rows of a sequence; dqkv must not change
    const size_t parts = (size_t)te_ceil_div(seq, s.sum_rows);
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

// Sequences of these lengths, packed one behind the other: each is compared with the reference of it alone. spare: the maximum length passed is
// that of the longest sequence plus this. again: other lengths with the same total, for a second run in the same memory.
TE_UNUSED void check_varlen(const shape &s, const std::vector<int> &lengths, std::mt19937 &random, double worst[2], bool with_scratch = true, int spare = 0,
                  const std::vector<int> &second_lengths = {}) {
    context ctx;
    std::vector<int32_t> cu(1, 0);
    for (const int n : lengths) cu.push_back(cu.back() + n);
    const size_t rows = (size_t)cu.back(), width = s.width(), q = s.q(), qk = s.qk(), h = s.out();
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
    for (const std::vector<int> *l : {&lengths, &second_lengths})
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
    const double forward = s.dtype == TE_f32 ? 1e-5 : s.dtype == TE_f16 ? 1e-3 : 1.6e-2, backward = s.dtype == TE_f16 ? 4e-3 : forward, scores = scores_bound(s, backward);
    for (int time = 0; time < (second_lengths.empty() ? 1 : 2); time++) {
        for (size_t i = 0; time && i < second_lengths.size(); i++) cu[i + 1] = cu[i] + second_lengths[i];
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
        const double e[5] = {error(y, want_y, h, 0, h, forward), lse_error(l, want_l, s), error(dx, want_dx, width, 0, q, scores),
                             error(dx, want_dx, width, q, qk, scores), error(dx, want_dx, width, qk, width, backward)};
        INFO("out " << e[0] << " lse " << e[1] << " dq " << e[2] << " dk " << e[3] << " dv " << e[4]);
        CHECK(e[0] <= forward);
        CHECK(e[1] <= lse_bound(s));
        for (int i = 2; i < 5; i++) CHECK(e[i] <= (i < 4 ? scores : backward));
        worst[0] = std::max(worst[0], e[0]), worst[1] = std::max(worst[1], std::max(e[2], std::max(e[3], e[4])));
        const std::vector<uint8_t> had = out.raw(), gradient = dqkv.raw(); // a second run must have the same bits
        out.poison(), dqkv.poison(), delta.poison(), scratch.poison();
        REQUIRE(s.forward(&ctx.c, &a) == TE_OK);
        REQUIRE(s.backward(&ctx.c, &a) == TE_OK);
        CHECK(out.raw() == had);
        CHECK(dqkv.raw() == gradient);
        // NaNs in one sequence must not reach another
        const size_t nan_sequence = random() % lengths.size(), from_row = (size_t)cu[nan_sequence], to_row = (size_t)cu[nan_sequence + 1];
        if (from_row == to_row) continue;
        const auto fill_with_nan = [&](buffer &b, size_t w) {
            const size_t bytes = w * te_dtype_bytes(s.dtype);
            REQUIRE(te_fill(&ctx.c, (char *)b.data + from_row * bytes, 0xff, (to_row - from_row) * bytes) == TE_OK);
        };
        const auto without_nan_rows = [&](std::vector<double> v, const std::vector<double> &want, size_t w) {
            for (size_t i = from_row * w; i < to_row * w; i++) v[i] = want[i];
            return v;
        };
        const std::vector<uint8_t> qkv_was = qkv.raw(), dout_was = dout.raw();
        fill_with_nan(qkv, width), fill_with_nan(dout, h);
        REQUIRE(s.forward(&ctx.c, &a) == TE_OK);
        REQUIRE(s.backward(&ctx.c, &a) == TE_OK);
        CHECK(error(without_nan_rows(out.read(), want_y, h), want_y, h, 0, h, forward) <= forward);
        CHECK(error(without_nan_rows(dqkv.read(), want_dx, width), want_dx, width, 0, width, scores) <= scores);
        REQUIRE(te_copy(&ctx.c, qkv.data, qkv_was.data(), qkv.bytes()) == TE_OK);
        REQUIRE(te_copy(&ctx.c, dout.data, dout_was.data(), dout.bytes()) == TE_OK);
        REQUIRE(te_synchronize(&ctx.c) == TE_OK);
    }
    // invalid cu_seqlens: every kernel must end and write inside its buffers only (that it also reads inside them, sanitizers check)
    for (int time = 0; time < (brief() ? 1 : 4); time++) {
        for (int32_t &n : cu) n = time == 0 ? (int32_t)rows - n : (int32_t)(random() % (2 * rows)) - (int32_t)rows / 2;
        if (time == 3) cu[cu.size() / 2] = INT32_MIN, cu.back() = INT32_MAX;
        REQUIRE(te_copy(&ctx.c, first.data, cu.data(), cu.size() * sizeof cu[0]) == TE_OK);
        REQUIRE(s.forward(&ctx.c, &a) == TE_OK);
        REQUIRE(s.backward(&ctx.c, &a) == TE_OK);
        for (const buffer *b : {&out, &dqkv, &lse, &delta, &scratch}) (void)b->raw(); // checks the guards
    }
}

// Checks each shape at each length.
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
            CAPTURE(seed, dtype_of(s), s.heads, s.kv_heads, s.dim, s.f.value, s.f.left, s.f.right, s.f.softcap, s.f.dropout, seqs[j]);
            check(s, seqs[j] < 100 ? 3 : 1, seqs[j], random, worst);
            if (TE_CUDA && (seqs[j] == 65 || seqs[j] == 333) && s.f.only != TE_ATTENTION_SM90_ONLY) check(s, 2, seqs[j], random, worst, false);
        }
        std::printf("%-4s heads %d/%d head_dim %3d/%d window %d, %d softcap %g dropout %g alibi %d sinks %d only %d: forward %.1e, backward %.1e\n", dtype_of(s), s.heads,
                    s.kv_heads, s.dim, (int)s.value(), s.f.left, s.f.right, s.f.softcap, s.f.dropout, s.f.alibi, s.f.sinks, s.f.only, worst[0], worst[1]);
    }
}

} // namespace

#endif
