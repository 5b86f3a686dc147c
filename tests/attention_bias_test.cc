// attention_bias_test.cc -- additive biases of attention with their gradients, and the largest logit, combined with every other option, on every
// kernel of both targets, against a reference in double.
#include "attention.h"

// X(name, dtype, heads, kv_heads, head_dim, (left, right, softcap, dropout, varlen, alibi, sinks, only, cross, bias, first, second, top, value))
//
// For each kernel, each pair of these options occurs: bias (heads, shared, relative), window, softcap, dropout, varlen or cross, alibi, sinks, grouped
// heads and top (the largest logit).
#define TABLES(X)                                                                                                                       \
    X(f_1, f32, 4, 2, 20, (-1, 0, 0, 0.2f, 0, 0, 1, 0, 0, 1, 90, 91, 1)) X(f_2, f32, 3, 3, 64, (30, 7, 1.5f, 0, 1, 1, 0, 0, 0, 2, 75, 80, 1)) \
    X(f_3, f32, 2, 1, 72, (-1, -1, 0, 0.3f, 0, 1, 1, 0, 1, 1, 80, 131, 0)) X(f_4, f32, 4, 4, 32, (-1, 0, 0.9f, 0.1f, 1, 0, 0, 0, 0, 3, 8, 20, 1)) \
    X(f_5, f32, 2, 2, 16, (20, -1, 0, 0, 0, 0, 1, 0, 1, 3, 32, 128, 1))                                                                 \
    X(m_1, bf16, 4, 2, 64, (-1, 0, 0, 0.2f, 0, 0, 1, 0, 0, 1, 150, 151, 1)) X(m_2, bf16, 3, 3, 32, (30, 7, 1.5f, 0, 1, 1, 0, 0, 0, 2, 140, 140, 1)) \
    X(m_3, f16, 2, 1, 80, (-1, -1, 0, 0.3f, 0, 1, 1, 0, 1, 1, 133, 200, 0)) X(m_4, bf16, 4, 4, 64, (-1, 0, 0.9f, 0.1f, 1, 0, 0, 0, 0, 3, 8, 20, 1)) \
    X(m_5, bf16, 2, 2, 128, (20, -1, 0, 0, 0, 0, 1, 0, 1, 3, 32, 128, 1)) X(m_6, bf16, 2, 1, 256, (-1, -1, 0, 0, 1, 0, 0, 0, 0, 1, 130, 130, 0)) \
    X(m_7, bf16, 2, 1, 128, (-1, 0, 0, 0, 0, 0, 1, 0, 0, 2, 131, 131, 1)) X(m_8, bf16, 2, 2, 128, (-1, 9, 2.0f, 0.2f, 0, 0, 0, 0, 0, 2, 133, 137, 0)) \
    X(v_1, f32, 4, 2, 40, (-1, 0, 0, 0.2f, 0, 1, 0, 0, 0, 1, 90, 91, 1, 21)) X(v_2, f32, 2, 1, 16, (12, 5, 0, 0, 0, 0, 1, 0, 1, 3, 32, 128, 1, 48)) \
    X(v_3, bf16, 4, 2, 192, (-1, 0, 0, 0, 1, 0, 1, 0, 0, 2, 131, 131, 1, 128)) X(v_4, f16, 2, 1, 48, (-1, -1, 1.5f, 0.2f, 0, 1, 0, 0, 1, 1, 133, 200, 0, 80)) \
    /* a relative bias at the head sizes at which its tiles become smaller */                                                            \
    X(r_1, bf16, 2, 1, 256, (-1, 0, 0, 0, 0, 0, 0, 0, 0, 3, 32, 128, 0)) X(r_2, f32, 2, 1, 64, (-1, 0, 0, 0, 0, 0, 0, 0, 0, 3, 32, 128, 0))  \
    X(r_3, f32, 2, 2, 184, (-1, -1, 0, 0, 0, 0, 0, 0, 0, 3, 16, 40, 0)) X(r_4, f32, 1, 1, 256, (-1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 70, 70, 0))      \
    X(r_5, bf16, 4, 2, 512, (-1, 0, 0, 0, 0, 0, 0, 0, 0, 3, 32, 128, 1)) X(r_6, f32, 2, 1, 512, (-1, -1, 0, 0.1f, 0, 0, 0, 0, 1, 1, 70, 90, 0))

struct extras {
    te_relative_bias_fn bias_by_distance;
    launch dbias;
    int64_t (*parts)(int64_t);
    te_max_logit_fn top;
};
#define BIAS_KERNELS(name, dtype, h, kv, d, options)         \
    KERNELS(name, dtype, h, kv, d, options)                  \
    TE_ATTENTION_RELATIVE_BIAS(name##_line, dtype)               \
    TE_ATTENTION_DBIAS(name##_dbias, dtype, h, kv, d, options) \
    TE_ATTENTION_MAX_LOGIT(name##_top, h)
#define BIAS_SHAPE(name, dtype, h, kv, d, options) \
    {SHAPE(name, dtype, h, kv, d, options) {name##_line_launch, name##_dbias_launch, name##_dbias_parts, name##_top_launch}},
TABLES(BIAS_KERNELS)

namespace {

struct biased { shape s; extras e; };
const biased shapes[] = {
    TABLES(BIAS_SHAPE)};

// T5's buckets as defined by Raffel et al. Each bucket of the first half of a side holds one distance. Bucket exact + i begins at the first
// distance n with n >= exact (max_distance / exact)^(i / (side - exact)).
int bucket_of(long distance, int buckets, int max_distance, bool both) {
    const int side = both ? buckets / 2 : buckets, exact = side / 2, first = both && distance > 0 ? side : 0;
    const long n = distance <= 0 ? -distance : both ? distance : 0;
    if (n < exact) return first + (int)n;
    int bucket = exact;
    for (int i = 1; i < side - exact; i++)
        if ((double)n >= exact * std::pow((double)max_distance / exact, (double)i / (side - exact)) * (1 - 1e-12)) bucket = exact + i;
    return first + bucket;
}

struct wanted {
    std::vector<double> out, lse, dq, dkv, dbias, dbias_size, top;
};
// The results of one sequence. A row of kv is [k of all heads, v of all heads]. Adds to r.dbias, and raises r.top to the largest logit.
void one_sequence(const shape &s, size_t queries, size_t keys, double scale, const double *q, size_t q_width, const double *kv, size_t kv_width,
                  const double *dy, const double *stored, const std::vector<double> &sinks, const std::vector<double> &bias, const drawn &from, wanted &r) {
    const size_t h = (size_t)s.heads, d = (size_t)s.dim, e = s.value(), group = h / (size_t)s.kv_heads, dk = (size_t)s.kv_heads * d, kvw = s.width() - s.q();
    const long shift = (long)keys - (long)queries;
    const std::vector<double> slopes = alibi_slopes(s.heads);
    r.out.assign(queries * h * e, 0), r.lse.assign(h * queries, 0), r.dq.assign(queries * h * d, 0), r.dkv.assign(keys * kvw, 0);
    for (size_t head = 0; head < h; head++)
        for (size_t i = 0; i < queries; i++) {
            const double sink = s.f.sinks ? sinks[head] : -INFINITY;
            const size_t k0 = head / group * d, v0 = dk + head / group * e;
            std::vector<double> p(keys, 0), t(keys, 0), drop(keys, 1);
            std::vector<size_t> seen, at(keys, 0);
            double top = sink, sum = 0, delta = 0, size = 0;
            for (size_t j = 0; j < keys; j++)
                if (s.f.sees((int)((long)i + shift), (int)j)) seen.push_back(j);
            for (const size_t j : seen) {
                for (size_t c = 0; c < d; c++) p[j] += scale * q[i * q_width + head * d + c] * kv[j * kv_width + k0 + c];
                if (s.f.softcap > 0) t[j] = std::tanh(p[j] / s.f.softcap), p[j] = s.f.softcap * t[j];
                const long far = (long)j - (long)i - shift;
                if (s.f.alibi) p[j] -= slopes[head] * std::fabs((double)far);
                if (s.f.bias == 3) at[j] = (size_t)bucket_of(far, s.f.first, s.f.second, s.f.right != 0) * h + head;
                else if (s.f.bias) at[j] = ((s.f.bias == 1 ? head : 0) * (size_t)s.f.first + i) * (size_t)s.f.second + j;
                if (s.f.bias) p[j] += bias[at[j]];
                top = std::max(top, p[j]), r.top[head] = std::max(r.top[head], p[j]);
            }
            const bool blind = top == -INFINITY;
            if (blind) top = 0;
            sum = std::exp(sink - top);
            for (const size_t j : seen) sum += std::exp(p[j] - top);
            r.lse[head * queries + i] = blind ? INFINITY : top + std::log(sum);
            double *y = &r.out[(i * h + head) * e], *dq = &r.dq[(i * h + head) * d];
            const double *g = dy + (i * h + head) * e, *had = stored + (i * h + head) * e;
            for (const size_t j : seen) {
                p[j] = blind ? 0 : std::exp(p[j] - top) / sum;
                if (s.f.dropout > 0) drop[j] = dropout_factor(s.f, from, head, i, j, queries);
                for (size_t c = 0; c < e; c++) y[c] += p[j] * drop[j] * kv[j * kv_width + v0 + c];
            }
            for (size_t c = 0; c < e; c++) delta += g[c] * had[c], size += std::fabs(g[c] * had[c]);
            for (const size_t j : seen) {
                double dp = 0, part = 0;
                for (size_t c = 0; c < e; c++) {
                    const double one = g[c] * kv[j * kv_width + v0 + c];
                    dp += one, part += std::fabs(one);
                }
                const double ds = p[j] * (dp * drop[j] - delta), dz = ds * scale * (1 - t[j] * t[j]);
                if (s.f.bias) r.dbias[at[j]] += ds, r.dbias_size[at[j]] += p[j] * (part * drop[j] + size);
                for (size_t c = 0; c < e; c++) r.dkv[j * kvw + v0 + c] += p[j] * drop[j] * g[c];
                for (size_t c = 0; c < d; c++) {
                    dq[c] += dz * kv[j * kv_width + k0 + c], r.dkv[j * kvw + k0 + c] += dz * q[i * q_width + head * d + c];
                }
            }
        }
}

// Checks sequences of these lengths; in cross-attention each has `keys` keys. masked: some biases are -inf.
void check_bias(const biased &b, const std::vector<int> &lengths, int keys, bool masked, std::mt19937 &random, double worst[4]) {
    const shape &s = b.s;
    context ctx;
    const bool varlen = s.f.varlen != 0, cross = s.f.cross != 0;
    const size_t n = lengths.size(), qw = s.q(), h = s.out(), kvw = s.width() - qw, heads = (size_t)s.heads;
    std::vector<int32_t> cu(1, 0);
    for (const int l : lengths) cu.push_back(cu.back() + l);
    const size_t rows = (size_t)cu.back(), width = cross ? qw : s.width(), size = s.f.bias == 3 ? (size_t)s.f.first * heads
        : (size_t)s.f.first * (size_t)s.f.second * (s.f.bias == 1 ? heads : 1);
    buffer qkv(&ctx.c, s.dtype, rows * width), dqkv(&ctx.c, s.dtype, qkv.n), out(&ctx.c, s.dtype, rows * h), dout(&ctx.c, s.dtype, rows * h);
    buffer kv(&ctx.c, s.dtype, n * (size_t)keys * kvw), dkv(&ctx.c, s.dtype, kv.n), first(&ctx.c, TE_f32, cu.size());
    buffer lse(&ctx.c, TE_f32, rows * heads), delta(&ctx.c, TE_f32, lse.n), row_max_logit(&ctx.c, TE_f32, lse.n), top(&ctx.c, TE_f32, heads);
    buffer table(&ctx.c, s.dtype, size), bias_by_distance(&ctx.c, TE_f32, heads * (size_t)(2 * s.f.second + 1));
    const std::vector<double> x = qkv.draw(random), y_grad = dout.draw(random), z = kv.draw(random);
    std::vector<double> bias = table.draw(random, [&](size_t i) { return masked && s.f.bias != 3 && i % 5 < 2 ? -INFINITY : 1.5f; });
    for (double &v : bias) // a drawn number times -inf may be inf or NaN
        if (std::isinf(v) || std::isnan(v)) v = -INFINITY;
    if (size) {
        std::vector<uint8_t> raw(table.bytes());
        for (size_t i = 0; i < size; i++) te_store(raw.data(), (int64_t)i, (float)bias[i], s.dtype);
        REQUIRE(te_copy(&ctx.c, table.data, raw.data(), raw.size()) == TE_OK);
    }
    REQUIRE(te_copy(&ctx.c, first.data, cu.data(), cu.size() * sizeof cu[0]) == TE_OK);
    drawn from;
    from.id = 3, from.rng.seed = random(), from.rng.offset = random();
    buffer rng(&ctx.c, TE_f32, sizeof from.rng / 4);
    REQUIRE(te_copy(&ctx.c, rng.data, &from.rng, sizeof from.rng) == TE_OK);
    REQUIRE(te_synchronize(&ctx.c) == TE_OK);
    const sinks_of sinks(&ctx.c, s, random);
    te_attention_args a;
    memset(&a, 0, sizeof a);
    a.out = out.data, a.lse = (float *)lse.data, a.qkv = qkv.data, a.dqkv = dqkv.data, a.dout = dout.data, a.delta = (float *)delta.data;
    a.sinks = sinks.data.data, a.batch = (int)n, a.scale = 1.0f / std::sqrt((float)s.dim), a.bias = table.data, a.bias_by_distance = (float *)bias_by_distance.data;
    if (s.f.dropout > 0) a.rng = (const te_rng *)rng.data, a.id = from.id;
    for (const int l : lengths) a.seq = std::max(a.seq, l);
    if (varlen) a.rows = (int)rows, a.cu_seqlens = (const int32_t *)first.data;
    if (cross) a.kv = kv.data, a.dkv = dkv.data, a.kv_seq = keys;
    a.row_max_logit = (float *)row_max_logit.data;
    const size_t parts = s.f.bias == 3 ? (size_t)b.e.parts(a.seq) : 1;
    buffer dbias(&ctx.c, TE_f32, parts * size);
    a.dbias = (float *)dbias.data;
    const auto run = [&] {
        if (s.f.bias == 3) REQUIRE(te__attention_relative_bias(&ctx.c, b.e.bias_by_distance, &a, s.heads, s.f.first, s.f.second, s.f.right != 0) == TE_OK);
        REQUIRE(s.forward(&ctx.c, &a) == TE_OK);
        REQUIRE(s.backward(&ctx.c, &a) == TE_OK);
        if (s.f.bias) REQUIRE(b.e.dbias(&ctx.c, &a) == TE_OK);
        if (s.f.top) REQUIRE(te__attention_max_logit(&ctx.c, b.e.top, &a, (float *)top.data, s.heads, s.f.varlen) == TE_OK);
    };
    run();
    // the reference, one sequence after the other
    const std::vector<double> y = out.read(), dx = dqkv.read(), l = lse.read(), dz = cross ? dkv.read() : std::vector<double>();
    wanted want;
    want.dbias.assign(size, 0), want.dbias_size = want.dbias, want.top.assign(heads, -INFINITY);
    from.seq = (size_t)a.seq;
    std::vector<double> want_y, want_dq, want_dkv, got_dq, got_dkv, want_l, got_l;
    for (size_t i = 0; i < n; i++) {
        const size_t r0 = (size_t)cu[i], q = (size_t)lengths[i], k = cross ? (size_t)keys : q;
        from.first_head = i * heads;
        one_sequence(s, q, k, a.scale, &x[r0 * width], width, cross ? &z[i * k * kvw] : &x[r0 * width] + qw, cross ? kvw : width, &y_grad[r0 * h], &y[r0 * h],
                     sinks.values, bias, from, want);
        want_y.insert(want_y.end(), want.out.begin(), want.out.end()), want_dq.insert(want_dq.end(), want.dq.begin(), want.dq.end());
        want_dkv.insert(want_dkv.end(), want.dkv.begin(), want.dkv.end());
        for (size_t j = 0; j < q; j++) got_dq.insert(got_dq.end(), &dx[(r0 + j) * width], &dx[(r0 + j) * width] + qw);
        const double *of = cross ? &dz[i * k * kvw] : &dx[r0 * width] + qw;
        for (size_t j = 0; j < k; j++) got_dkv.insert(got_dkv.end(), of + j * (cross ? kvw : width), of + j * (cross ? kvw : width) + kvw);
        for (size_t j = 0; j < want.lse.size(); j++) {
            const size_t head = j / q, row = j % q;
            const double got = l[varlen ? head * rows + r0 + row : (i * heads + head) * q + row];
            if (std::isinf(want.lse[j])) CHECK(got == want.lse[j]);
            else want_l.push_back(want.lse[j]), got_l.push_back(got);
        }
    }
    const double forward = s.dtype == TE_f32 ? 1e-5 : s.dtype == TE_f16 ? 1e-3 : 1.6e-2, backward = scores_bound(s, s.dtype == TE_f16 ? 4e-3 : forward);
    const double e[4] = {error(y, want_y, h, 0, h, forward), want_l.empty() ? 0 : lse_error(got_l, want_l, s),
                         error(got_dq, want_dq, qw, 0, qw, backward), error(got_dkv, want_dkv, kvw, 0, kvw, backward)};
    INFO("out " << e[0] << " lse " << e[1] << " dq " << e[2] << " dkv " << e[3]);
    CHECK(e[0] <= forward); CHECK(e[1] <= lse_bound(s)); CHECK(e[2] <= backward); CHECK(e[3] <= backward);
    worst[0] = std::max(worst[0], e[0]), worst[1] = std::max(worst[1], std::max(e[2], e[3]));
    // the f32 inputs are exact in 16 bits, so the error is that of the sums, and that of a probability from the rounding of its score
    const std::vector<uint8_t> had = out.raw(), gradient = dqkv.raw(), sum = dbias.raw(), tops = top.raw();
    const std::vector<double> got = dbias.read(), t = top.read();
    int off = 0;
    for (size_t i = 0; s.f.bias && i < size; i++) {
        double g = 0;
        for (size_t p = 0; p < parts; p++) g += got[p * size + i];
        const double bound = 4e-5 * want.dbias_size[i] * (1 + s.f.softcap / 16);
        if (!(std::fabs(g - want.dbias[i]) <= bound)) off++;
        if (want.dbias_size[i] > 0) worst[2] = std::max(worst[2], std::fabs(g - want.dbias[i]) / want.dbias_size[i]);
    }
    CHECK(off == 0);
    for (size_t i = 0; s.f.top && i < heads; i++) {
        CAPTURE(i, t[i], want.top[i]);
        CHECK((t[i] == want.top[i] || std::fabs(t[i] - want.top[i]) <= 2e-5 * (1 + std::fabs(want.top[i]) + s.f.softcap / 16)));
    }
    out.poison(), dqkv.poison(), delta.poison(), dbias.poison(), top.poison(), row_max_logit.poison(), lse.poison(), dkv.poison();
    run();
    CHECK(out.raw() == had); CHECK(dqkv.raw() == gradient); CHECK(dbias.raw() == sum); CHECK(top.raw() == tops);
    if (s.f.bias == 0 || s.f.bias == 3) return;
    a.accumulate = 1; // adds the gradient to the one that is there, which doubles it exactly
    REQUIRE(b.e.dbias(&ctx.c, &a) == TE_OK);
    const std::vector<double> twice = dbias.read();
    for (size_t i = 0; i < size; i++)
        if (twice[i] != 2 * got[i]) off++;
    CHECK(off == 0);
}

// Calls f(kernels, worst) for each entry of the table.
template <class F> void check_each(F f) {
    const unsigned seed = fresh_seed();
    std::printf("attention's bias: seed %u\n", seed);
    std::mt19937 random(seed);
    for (const biased &b : shapes) {
        double worst[4] = {0, 0, 0, 0};
        CAPTURE(seed, dtype_of(b.s), b.s.heads, b.s.dim, b.s.f.bias, b.s.f.varlen, b.s.f.cross);
        f(b, random, worst);
        std::printf("%-4s heads %d/%d head_dim %3d/%d bias %d: forward %.1e, backward %.1e, dbias %.1e\n", dtype_of(b.s), b.s.heads, b.s.kv_heads, b.s.dim,
                    (int)b.s.value(), b.s.f.bias, worst[0], worst[1], worst[2]);
    }
}
} // namespace

TEST_CASE("attention with a bias: output, gradients and largest logit match the reference", "[attention]") {
    check_each([](const biased &b, std::mt19937 &random, double *worst) {
        check_bias(b, {1, 1}, 1, false, random, worst);
        check_bias(b, {33, 33, 33}, 50, false, random, worst);
        check_bias(b, {33, 33}, 20, true, random, worst);
    });
}
TEST_CASE("attention with a bias: several tiles, and sequences of different lengths", "[attention]") {
    check_each([](const biased &b, std::mt19937 &random, double *worst) {
        const int big = b.s.dtype == TE_f32 || (brief() && !TE_CUDA) ? 70 : 130;
        check_bias(b, {big}, big + 1, false, random, worst);
        if (b.s.f.varlen) check_bias(b, {5, 0, big, 1, 64}, 1, false, random, worst);
        if (b.s.f.bias == 3 && !b.s.f.varlen) check_bias(b, {200}, 333, false, random, worst);
    });
}

TEST_CASE("relative_bias uses T5's buckets", "[attention]") {
    for (const int buckets : {2, 5, 8, 32, 64})
        for (const int largest : {40, 128, 1000})
            for (int far = -2 * largest; far <= 2 * largest; far++) {
                if (te__attn_bucket(far, buckets, largest, 0) != bucket_of(far, buckets, largest, false)) FAIL(buckets << " " << largest << " " << far);
                if (buckets < 4 || buckets % 2) continue;
                if (te__attn_bucket(far, buckets, largest, 1) != bucket_of(far, buckets, largest, true)) FAIL(buckets << " " << largest << " " << far);
            }
}

TEST_CASE("attention with a bias refuses sequences longer than its table", "[attention]") {
    context ctx;
    te_attention_args a;
    memset(&a, 0, sizeof a);
    a.batch = 1, a.seq = 4, a.scale = 1, a.sinks = &a;
    CHECK(f_1_launch(&ctx.c, &a) == TE_ERROR_NULL);
    a.bias = &a, a.seq = 91;
    CHECK(f_1_launch(&ctx.c, &a) == TE_ERROR_SHAPE);
    CHECK(std::string(te_last_error(&ctx.c)).find("f_1: sequences of 91 queries, its bias was declared with bias_queries 90") != std::string::npos);
    CHECK(f_1_back_launch(&ctx.c, &a) == TE_ERROR_SHAPE);
}
