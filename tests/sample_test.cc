// sample_test.cc -- (sample, name, vocabulary) against a reference in double that sorts: masks, penalties, cuts, the draw, log-probabilities;
// ties, infinities, NaN; distribution, reproducibility, misuse. The first tests have rows with fresh random parameters.
#include "harness.h"
#include "te/infer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

// What runs a list that is (sample, s, V) alone.
struct subject_of {
    te_dtype dtype;
    int vocabulary;
    te_status (*infer)(te_tensor y, te_tensor x, const te_batch *b, te_context *c);
};
#define LISTS(X)                                                                                          \
    X(1, f32) X(2, bf16) X(17, f32) X(17, bf16) X(17, f16) X(1000, f32) X(1000, bf16) X(1000, f16)        \
    X(50257, f32) X(50257, bf16) X(50257, f16) X(152064, f32) X(152064, bf16) X(152064, f16)
#define DEFINE_LIST(V, D)                                                                                 \
    TE_INFERENCE(of_##V##_##D, D, (sample, s, V))                                                         \
    static te_status infer_##V##_##D(te_tensor y, te_tensor x, const te_batch *b, te_context *c) {              \
        of_##V##_##D m;                                                                                  \
        TE_TRY(of_##V##_##D##_bind(&m, nullptr, c));                                                     \
        return of_##V##_##D##_infer(y, x, &m, b, c);                                                     \
    }
#define NAME_LIST(V, D) {TE_##D, V, infer_##V##_##D},
LISTS(DEFINE_LIST)

namespace {
const subject_of subjects[] = {LISTS(NAME_LIST)};
const subject_of &subject_with(int vocabulary, te_dtype dtype) {
    for (const subject_of &s : subjects)
        if (s.vocabulary == vocabulary && s.dtype == dtype) return s;
    FAIL("no such list");
    return subjects[0];
}

// A row, as a user sets it up.
struct row {
    std::vector<double> logits; // as they are after rounding to the dtype
    float temperature = 1, top_p = 1, min_p = 0, repetition = 1, frequency = 0, presence = 0;
    int top_k = 0;
    uint64_t seed = 0, counter = 0;
    std::vector<uint16_t> history;
    std::vector<bool> allowed, prompt; // empty: not given
};
struct result {
    int token = 0;
    float log_prob = 0;
    uint64_t counter = 0;
    std::vector<uint16_t> history;
    std::vector<int32_t> top_token;
    std::vector<double> top_log_prob;
};

template <class T> void upload(const buffer &to, const std::vector<T> &v) {
    REQUIRE(te_copy(to.ctx, to.data(), v.data(), v.size() * sizeof(T)) == TE_OK);
    REQUIRE(te_synchronize(to.ctx) == TE_OK);
}
template <class T> std::vector<T> download(const buffer &from, size_t n) {
    const std::vector<uint8_t> raw = from.raw();
    std::vector<T> v(n);
    if (n) memcpy(v.data(), raw.data(), n * sizeof(T));
    return v;
}
uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

// All rows in one call. `top`: how many likely tokens; `processors`: not the device's. Null arrays are passed where no row uses the parameter.
std::vector<result> sample(const subject_of &s, const std::vector<row> &rows, int top = 0, bool update_history = false, int processors = 0) {
    const size_t n = rows.size(), v = (size_t)s.vocabulary, words = (v + 31) / 32;
    const context own;
    te_context *const ctx = (te_context *)&own.c;
    if (processors) ctx->processors = processors; // CUDA: so many blocks
    const auto column = [&](auto member) {
        std::vector<std::decay_t<decltype(rows[0].*member)>> all;
        for (const row &r : rows) all.push_back(r.*member);
        return all;
    };
    const auto given = [&](auto f) { return std::any_of(rows.begin(), rows.end(), f); };
    std::vector<double> x;
    std::vector<uint16_t> history;
    std::vector<uint32_t> allowed(n * words, 0), prompt(n * words, 0);
    for (size_t i = 0; i < n; i++) {
        x.insert(x.end(), rows[i].logits.begin(), rows[i].logits.end());
        std::vector<uint16_t> h = rows[i].history;
        h.resize(v, 0);
        history.insert(history.end(), h.begin(), h.end());
        for (size_t k = 0; k < v; k++) {
            if (rows[i].allowed.empty() || rows[i].allowed[k]) allowed[i * words + k / 32] |= 1u << k % 32;
            if (!rows[i].prompt.empty() && rows[i].prompt[k]) prompt[i * words + k / 32] |= 1u << k % 32;
        }
    }
    buffer xb(ctx, n * v * te_dtype_bytes(s.dtype)), y(ctx, n * 4), token(ctx, n * 4), seed(ctx, n * 8), counter(ctx, n * 8), history_b(ctx, n * v * 2);
    buffer allowed_b(ctx, n * words * 4), prompt_b(ctx, n * words * 4), top_token(ctx, n * (size_t)top * 4), top_log_prob(ctx, n * (size_t)top * 4);
    buffer params[6] = {{ctx, n * 4}, {ctx, n * 4}, {ctx, n * 4}, {ctx, n * 4}, {ctx, n * 4}, {ctx, n * 4}}, top_k(ctx, n * 4);
    const std::vector<float> values[6] = {column(&row::temperature), column(&row::top_p), column(&row::min_p), column(&row::repetition), column(&row::frequency),
                                          column(&row::presence)};
    const float off[6] = {-1, 1, 0, 1, 0, 0};
    xb.write(x, s.dtype);
    upload(seed, column(&row::seed)), upload(counter, column(&row::counter)), upload(top_k, column(&row::top_k));
    upload(history_b, history), upload(allowed_b, allowed), upload(prompt_b, prompt);
    te_sampling o;
    memset(&o, 0, sizeof o);
    const float **const param[6] = {&o.temperature, &o.top_p, &o.min_p, &o.repetition_penalty, &o.frequency_penalty, &o.presence_penalty};
    for (int p = 0; p < 6; p++) {
        upload(params[p], values[p]);
        if (std::any_of(values[p].begin(), values[p].end(), [&](float f) { return f != off[p]; })) *param[p] = (const float *)params[p].data();
    }
    o.token = (int32_t *)token.data(), o.seed = (const uint64_t *)seed.data(), o.counter = (uint64_t *)counter.data();
    if (given([](const row &r) { return r.top_k != 0; })) o.top_k = (const int32_t *)top_k.data();
    if (given([](const row &r) { return !r.history.empty(); }) || update_history) o.history = (uint16_t *)history_b.data();
    if (given([](const row &r) { return !r.allowed.empty(); })) o.allowed = (const uint32_t *)allowed_b.data();
    if (given([](const row &r) { return !r.prompt.empty(); })) o.prompt = (const uint32_t *)prompt_b.data();
    if (top) o.top = top, o.top_token = (int32_t *)top_token.data(), o.top_log_prob = (float *)top_log_prob.data();
    o.update_history = update_history;
    te_batch b;
    memset(&b, 0, sizeof b);
    b.batch = (int)n, b.seq = 1, b.sampling = &o;
    const te_status status = s.infer(te_matrix(y.data(), TE_f32, (int64_t)n, 1), te_matrix(xb.data(), s.dtype, (int64_t)n, s.vocabulary), &b, ctx);
    INFO(te_last_error(ctx));
    REQUIRE(status == TE_OK);
    REQUIRE(xb.raw() == numbers::stored(x, s.dtype)); // the logits stay as they are
    const std::vector<int32_t> tokens = download<int32_t>(token, n), tops = download<int32_t>(top_token, n * (size_t)top);
    const std::vector<float> ys = download<float>(y, n), top_ys = download<float>(top_log_prob, n * (size_t)top);
    const std::vector<uint64_t> counters = download<uint64_t>(counter, n);
    const std::vector<uint16_t> counts = download<uint16_t>(history_b, n * v);
    std::vector<result> all(n);
    for (size_t i = 0; i < n; i++) {
        all[i].token = tokens[i], all[i].log_prob = ys[i], all[i].counter = counters[i];
        all[i].history.assign(counts.begin() + (long)(i * v), counts.begin() + (long)((i + 1) * v));
        all[i].top_token.assign(tops.begin() + (long)i * top, tops.begin() + (long)(i + 1) * top);
        all[i].top_log_prob.assign(top_ys.begin() + (long)i * top, top_ys.begin() + (long)(i + 1) * top);
    }
    return all;
}

// ---- the reference -----------------------------------------------------------------------------------------------

// Penalties are f32 arithmetic by definition, so that ties are what they are; all else is in double.
std::vector<double> penalised(const row &r) {
    std::vector<double> l = r.logits;
    for (size_t i = 0; i < l.size(); i++) {
        const int count = r.history.empty() ? 0 : r.history[i];
        float x = (float)l[i];
        if ((count || (!r.prompt.empty() && r.prompt[i])) && r.repetition > 0) x = (float)(x > 0 ? (double)x / r.repetition : (double)x * r.repetition);
        if (count) x = std::fma(-r.frequency, (float)count, x) - r.presence;
        l[i] = !r.allowed.empty() && !r.allowed[i] ? -INFINITY : x;
    }
    return l;
}
// exp((l - top) / temperature), and how much the kernel's may differ from it: the exponential and the rounding down by 2^-22, and
// each rounding of its argument (the difference, the factor) by 2^-24 of the argument; masses are multiples of 2^-44.
struct mass { double is, error; };
mass mass_of(double l, double top, double temperature) {
    if (l == -INFINITY) return {0, 0};
    const double a = l == top ? 0 : (l - top) / temperature, w = std::exp(a);
    return {w, w > 0 ? w * (std::ldexp(1, -22) - 2 * a * std::ldexp(1, -24)) + std::ldexp(1, -44) : 0};
}
// log softmax, and its error.
mass log_prob(const std::vector<double> &logits, int token) {
    const double top = *std::max_element(logits.begin(), logits.end());
    double sum = 0, error = 0;
    for (double l : logits) {
        const mass m = mass_of(l, top, 1);
        sum += m.is, error += m.error;
    }
    const double d = logits[(size_t)token] == top ? 0 : logits[(size_t)token] - top;
    return {d - std::log(sum), error / sum + std::ldexp(1, -22) * (1 + std::fabs(d) + std::log(sum))};
}
std::vector<int> order_of(const std::vector<double> &l) {
    std::vector<int> order(l.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return l[(size_t)a] > l[(size_t)b]; });
    return order;
}

// Whether a row's token is the one that the reference draws, or one of those between which the errors leave the choice.
bool is_right(const row &r, int token) {
    const std::vector<double> l = penalised(r);
    const std::vector<int> order = order_of(l);
    const double top = l[(size_t)order[0]];
    if (token < 0 || (size_t)token >= l.size() || l[(size_t)token] == -INFINITY) return false;
    if (!(r.temperature >= 1e-5f) || r.top_k == 1) return token == order[0];
    size_t k = 0;
    while (k < order.size() && l[(size_t)order[k]] > -INFINITY) k++;
    if (r.top_k > 0) k = std::min(k, (size_t)r.top_k);
    double sum = 0, error = 0;
    std::vector<mass> m(l.size(), {0, 0});
    for (size_t i = 0; i < k; i++) {
        mass &of = m[(size_t)order[i]];
        of = mass_of(l[(size_t)order[i]], top, r.temperature), sum += of.is, error += of.error;
    }
    size_t least = k, most = k; // tokens that top-p keeps
    if (r.top_p < 1) {
        double before = 0;
        least = most = 0;
        for (size_t i = 0; i < k; i++) { // token i is kept if what lies before it does not reach p
            const double limit = std::max((double)r.top_p, 0.0) * sum;
            if (i == 0 || before < limit - 2 * error) least = i + 1;
            if (i == 0 || before <= limit + 2 * error) most = i + 1;
            before += m[(size_t)order[i]].is;
        }
    }
    uint32_t random[4];
    te_philox(random, r.seed, 0, 0x73616d70, r.counter);
    const double u = std::ldexp((double)random[0], -32) + std::ldexp((double)random[1], -64);
    const double min_p = std::min(std::max(r.min_p, 0.0f), 1.0f);
    for (size_t kept = least; kept <= most; kept++)
        for (int strict = 0; strict < (min_p > 0 ? 2 : 1); strict++) {
            double total = 0, before = 0, mine = 0, off = 0;
            std::vector<char> in(l.size(), 0);
            for (size_t i = 0; i < kept; i++) {
                const mass &of = m[(size_t)order[i]];
                if (i == 0 || of.is >= min_p + (strict ? of.error : -of.error)) in[(size_t)order[i]] = 1, total += of.is, off += of.error;
            }
            if (!in[(size_t)token]) continue;
            for (int i = 0; i < token; i++) before += in[(size_t)i] ? m[(size_t)i].is : 0;
            mine = m[(size_t)token].is;
            if (u * total >= before - 2 * off && u * total <= before + mine + 2 * off) return true;
        }
    return false;
}
void check_row(const row &r, const result &got) {
    CAPTURE(r.logits.size(), r.temperature, r.top_k, r.top_p, r.min_p, r.repetition, r.frequency, r.presence, r.seed, r.counter, got.token);
    CAPTURE(r.history.empty(), r.allowed.empty(), r.prompt.empty());
    CHECK(is_right(r, got.token));
    CHECK(got.counter == r.counter + 1);
    if (got.token < 0) return;
    const mass should = log_prob(r.logits, got.token);
    CAPTURE(got.log_prob, should.is, should.error);
    CHECK(std::fabs(got.log_prob - should.is) <= should.error);
}

// A row of fresh logits and parameters: each filter is on in half of the rows.
row fresh_row(source &random, const subject_of &s) {
    row r;
    const size_t v = (size_t)s.vocabulary;
    const double spread = std::exp(std::uniform_real_distribution<double>(-1, 2)(random.random));
    const auto often = [&](int one_in) { return random.below(one_in) == 0; };
    const auto within = [&](double a, double b) { return (float)std::uniform_real_distribution<double>(a, b)(random.random); };
    r.logits = random.draw(v, s.dtype, 0, spread);
    if (often(4)) for (double &l : r.logits) l = std::round(l); // many ties
    if (often(4)) for (double &l : r.logits) l = often(3) ? -INFINITY : l;
    r.logits[(size_t)random.below((int)v)] = spread;
    r.logits = numbers::loaded(numbers::stored(r.logits, s.dtype).data(), 0, v, s.dtype);
    r.temperature = often(8) ? 0 : within(0.3, 2);
    if (often(2)) r.top_k = often(3) ? 1 + random.below((int)v) : 1 + random.below(100);
    if (often(2)) r.top_p = often(6) ? 0 : within(0.05, 0.999);
    if (often(2)) r.min_p = within(0, 0.2);
    if (often(2)) {
        r.history.assign(v, 0);
        for (size_t i = 0; i < v; i++) if (often(20)) r.history[i] = (uint16_t)random.below(9);
        r.frequency = often(2) ? within(-1, 2) : 0, r.presence = often(2) ? within(-1, 2) : 0;
    }
    if (often(3)) {
        r.prompt.assign(v, false);
        for (size_t i = 0; i < v; i++) r.prompt[i] = often(10);
    }
    if (!r.history.empty() || !r.prompt.empty()) r.repetition = often(2) ? within(0.7, 1.6) : 1;
    if (often(3)) {
        const int one_in = often(2) ? 2 : (int)v / 3 + 1;
        r.allowed.assign(v, false);
        for (size_t i = 0; i < v; i++) r.allowed[i] = often(one_in);
        r.allowed[(size_t)(std::max_element(r.logits.begin(), r.logits.end()) - r.logits.begin())] = true;
    }
    r.seed = (uint64_t)random.random() << 32 | random.random(), r.counter = (uint64_t)random.random() << 20;
    return r;
}

} // namespace

TEST_CASE("tokens of fresh rows are those of a reference that sorts", "[sample]") {
    source random(fresh_seed());
    for (const subject_of &s : subjects) {
        const int count = s.vocabulary > 10000 ? (brief() ? 2 : 12) : brief() ? 8 : 48;
        std::vector<row> rows;
        for (int i = 0; i < count; i++) rows.push_back(fresh_row(random, s));
        const std::vector<result> all = sample(s, rows);
        INFO(te_dtype_name(s.dtype) << " " << s.vocabulary);
        for (size_t i = 0; i < rows.size(); i++) check_row(rows[i], all[i]);
    }
}

TEST_CASE("greedy is the lowest of the likeliest tokens, however it is asked for", "[sample]") {
    source random(fresh_seed());
    for (const subject_of &s : subjects) {
        std::vector<row> rows(4);
        for (row &r : rows) r.logits = random.draw((size_t)s.vocabulary, s.dtype, 0, 2);
        for (int i = 0; i < 3; i++) rows[3].logits[(size_t)random.below(s.vocabulary)] = 64; // ties
        rows[0].temperature = 0, rows[1].top_k = 1, rows[2].top_p = 0, rows[3].temperature = 1e-6f;
        const std::vector<result> all = sample(s, rows);
        for (size_t i = 0; i < rows.size(); i++) {
            INFO(te_dtype_name(s.dtype) << " " << s.vocabulary << ", row " << i);
            const auto top = std::max_element(rows[i].logits.begin(), rows[i].logits.end());
            CHECK(all[i].token == top - rows[i].logits.begin());
        }
        for (row &r : rows) r.temperature = -1; // no temperature at all
        for (const result &r : sample(s, rows)) CHECK(r.token >= 0);
    }
}

TEST_CASE("of equal logits the lowest tokens are kept", "[sample]") {
    for (const subject_of &s : subjects) {
        if (s.vocabulary < 17) continue;
        const int keeps = std::min(5000, s.vocabulary / 2);
        std::vector<row> rows(brief() ? 6 : 40);
        for (size_t i = 0; i < rows.size(); i++) {
            rows[i].logits.assign((size_t)s.vocabulary, -1.5);
            if (i % 2) rows[i].logits[(size_t)s.vocabulary - 1] = 1, rows[i].logits[3] = -2;
            rows[i].counter = i;
            if (i % 4 < 2) rows[i].top_k = keeps;
            else rows[i].top_p = 0.5f;
        }
        const std::vector<result> all = sample(s, rows);
        int most = 0;
        for (size_t i = 0; i < rows.size(); i++) {
            check_row(rows[i], all[i]);
            const bool last = i % 2 && all[i].token == s.vocabulary - 1;
            if (i % 4 < 2 && !last) CHECK(all[i].token < (i % 2 ? keeps : keeps)); // token 3 is not among them in odd rows
            if (i % 4 == 2) CHECK(all[i].token < (s.vocabulary + 1) / 2);
            if (i % 4 < 2 && !last) most = std::max(most, all[i].token);
        }
        CHECK((s.vocabulary < 1000 || most > keeps / 4)); // and not always the first
    }
}

TEST_CASE("rows that nothing can be drawn from, and infinite logits", "[sample]") {
    source random(fresh_seed());
    for (const int vocabulary : {17, 1000, 50257}) {
        const subject_of &s = subject_with(vocabulary, TE_bf16);
        const size_t v = (size_t)vocabulary, at = (size_t)random.below(vocabulary);
        std::vector<row> rows(10);
        for (size_t i = 0; i < rows.size(); i++) {
            rows[i].logits = random.draw(v, s.dtype), rows[i].counter = i;
            rows[i].temperature = i % 2 ? 0.7f : 0.0f;
        }
        for (int i : {0, 1}) rows[(size_t)i].allowed.assign(v, false);                                     // nothing is allowed
        for (int i : {2, 3}) rows[(size_t)i].logits.assign(v, -INFINITY);                                  // nothing is likely
        for (int i : {4, 5}) rows[(size_t)i].logits[at] = NAN, rows[(size_t)i].top_k = 5;                  // broken
        for (int i : {6, 7}) rows[(size_t)i].logits[at] = INFINITY, rows[(size_t)i].top_p = 0.9f;          // certain
        for (int i : {8, 9}) rows[(size_t)i].logits[at] = NAN, rows[(size_t)i].allowed.assign(v, true), rows[(size_t)i].allowed[at] = false;
        const std::vector<result> all = sample(s, rows, 3);
        for (size_t i = 0; i < 6; i++) {
            CAPTURE(vocabulary, i);
            CHECK(all[i].token == -1);
            CHECK(std::isnan(all[i].log_prob));
            CHECK(all[i].counter == i + 1);
        }
        for (size_t i : {6, 7}) {
            CHECK(all[i].token == (int)at);
            CHECK(all[i].log_prob == 0.0f);
            CHECK(all[i].top_token[0] == (int)at);
            CHECK(all[i].top_log_prob[0] == 0.0);
            CHECK(all[i].top_log_prob[1] == -INFINITY);
        }
        for (size_t i : {8, 9}) { // what is not allowed does not matter to the token, but the model's distribution has no sum
            CHECK(all[i].token >= 0);
            CHECK(all[i].token != (int)at);
            CHECK(std::isnan(all[i].log_prob));
        }
        for (size_t i : {2, 3, 4, 5}) CHECK(all[i].top_token == std::vector<int32_t>(3, -1));
        for (size_t i : {0, 1}) CHECK(all[i].top_token[0] >= 0); // the model's, whatever is allowed
    }
    // Two infinities share the probability, and finite logits have none.
    const subject_of &s = subject_with(17, TE_f32);
    std::vector<row> rows(64);
    int second = 0;
    for (size_t i = 0; i < rows.size(); i++) rows[i].logits = random.draw(17, TE_f32), rows[i].logits[3] = rows[i].logits[11] = INFINITY, rows[i].counter = i;
    for (const result &r : sample(s, rows)) {
        CHECK((r.token == 3 || r.token == 11));
        CHECK(std::fabs(r.log_prob + std::log(2.0)) < 1e-6);
        second += r.token == 11;
    }
    CHECK(second > 8); // 8 or fewer of 64: one in 10^9
    CHECK(second < 56);
}

#if !TE_CUDA
TEST_CASE("min-p alone lists few tokens more than it keeps", "[sample]") {
    std::mt19937 random(fresh_seed());
    for (int i = 0; i < 1000; i++) {
        const auto within = [&](float from, float to) { return std::uniform_real_distribution<float>(from, to)(random); };
        const float top = within(-20, 60), min_p = i % 10 == 0 ? 1.0f : i % 10 == 1 ? 3.0f : within(1e-6f, 1), temperature = within(0.05f, 3);
        const double kept = (double)top + (double)temperature * std::log((double)std::min(min_p, 1.0f));
        const float least = te__sample_logit(te__sample_least_of_min_p(te__sample_key(top), min_p, temperature));
        CAPTURE(top, min_p, temperature, kept, least);
        CHECK(least <= kept);
        CHECK(least >= kept - 0.01 * (double)temperature);
    }
}
#endif

TEST_CASE("draws have the distribution of the kept tokens", "[sample]") {
    source random(fresh_seed());
    const subject_of &s = subject_with(17, TE_f32);
    std::vector<double> logits = random.draw(17, TE_f32, 0, 1.2);
    logits[(size_t)order_of(logits)[1]] = logits[(size_t)order_of(logits)[0]] - 0.5; // every kind keeps two at least
    for (int kind = 0; kind < 5; kind++) {
        row r;
        r.logits = logits, r.seed = random.random(), r.temperature = 0.8f;
        if (kind == 1) r.top_k = 6;
        if (kind == 2) r.top_p = 0.8f;
        if (kind == 3) r.min_p = 0.3f;
        if (kind == 4) r.top_k = 9, r.top_p = 0.9f, r.min_p = 0.02f;
        // the expected distribution: by sorting
        const std::vector<int> order = order_of(logits);
        std::map<int, double> p;
        double sum = 0, kept = 0, before = 0;
        const size_t k = r.top_k ? (size_t)r.top_k : 17;
        for (size_t i = 0; i < k; i++) sum += std::exp((logits[(size_t)order[i]] - logits[(size_t)order[0]]) / r.temperature);
        for (size_t i = 0; i < k; i++) {
            const double w = std::exp((logits[(size_t)order[i]] - logits[(size_t)order[0]]) / r.temperature);
            if (before < r.top_p * sum && w >= r.min_p) p[order[i]] = w, kept += w;
            before += w;
        }
        const int calls = brief() ? 2 : 20, each = 1000;
        std::map<int, int> counts;
        for (int call = 0; call < calls; call++) {
            std::vector<row> rows((size_t)each, r);
            for (int i = 0; i < each; i++) rows[(size_t)i].counter = (uint64_t)(call * each + i);
            for (const result &got : sample(s, rows)) counts[got.token]++;
        }
        double chi = 0, df = -1, rare = 0, rare_counts = 0;
        for (const auto &one : counts) CHECK(p.count(one.first) == 1);
        for (const auto &one : p) {
            const double expected = one.second / kept * calls * each;
            if (expected < 10) rare += expected, rare_counts += counts[one.first];
            else chi += (counts[one.first] - expected) * (counts[one.first] - expected) / expected, df++;
        }
        if (rare > 10) chi += (rare_counts - rare) * (rare_counts - rare) / rare, df++;
        CAPTURE(kind, chi, df);
        CHECK(p.size() >= 2);
        CHECK(chi < df + 6 * std::sqrt(2 * df) + 20); // some 6 standard deviations, and the tail of few degrees of freedom
    }
}

TEST_CASE("a token depends on its row, seed and counter alone", "[sample]") {
    source random(fresh_seed());
    for (const subject_of &s : {subject_with(1000, TE_bf16), subject_with(50257, TE_f16), subject_with(152064, TE_bf16)}) {
        std::vector<row> rows;
        for (int i = 0; i < (brief() ? 3 : 9); i++) rows.push_back(fresh_row(random, s));
        const std::vector<result> all = sample(s, rows, 4), again = sample(s, rows, 4);
        std::vector<row> backwards(rows.rbegin(), rows.rend());
        const std::vector<result> reversed = sample(s, backwards, 4);
        for (size_t i = 0; i < rows.size(); i++) {
            const result alone = sample(s, {rows[i]}, 4)[0], &other = reversed[rows.size() - 1 - i];
            const result one = sample(s, {rows[i]}, 4, false, 1)[0], two = sample(s, {rows[i]}, 4, false, 2)[0]; // blocks
            const result four = sample(s, {rows[i]}, 4, false, 4)[0];
            for (const result *r : {&again[i], &alone, &other, &one, &two, &four}) {
                CHECK(r->token == all[i].token);
                CHECK(bits_of(r->log_prob) == bits_of(all[i].log_prob));
                CHECK(r->top_token == all[i].top_token);
                CHECK(r->top_log_prob == all[i].top_log_prob);
            }
        }
    }
    std::vector<row> rows(32);
    for (size_t i = 0; i < rows.size(); i++) rows[i].logits.assign(1000, 0), rows[i].counter = i / 2, rows[i].seed = i % 2;
    std::vector<int> tokens;
    for (const result &r : sample(subject_with(1000, TE_f32), rows)) tokens.push_back(r.token);
    std::sort(tokens.begin(), tokens.end());
    CHECK(std::unique(tokens.begin(), tokens.end()) - tokens.begin() > 24); // other seeds and counters draw others
}

// Logits that are exact in all formats, made of integers, so that they are the same everywhere; the tokens were computed on the host.
// On a GPU so many rows are processed by one block each, which finds a bound from the parts of its row.
TEST_CASE("many long rows without masks and penalties", "[sample]") {
    source random(fresh_seed());
    const subject_of &s = subject_with(152064, TE_bf16);
    std::vector<row> rows;
    for (int i = 0; i < (brief() ? 16 : 160); i++) {
        row r = fresh_row(random, s);
        r.history.clear(), r.prompt.clear(), r.allowed.clear(), r.repetition = 1, r.frequency = r.presence = 0;
        r.temperature = 0.6f, r.top_k = 0, r.top_p = 1, r.min_p = 0;
        if (i % 4 == 0) r.top_k = 193 + random.below(1000);
        if (i % 4 == 1) r.min_p = 0.02f;
        if (i % 8 < 1 || i % 4 == 2) r.top_p = 0.5f + 0.1f * (float)random.below(5);
        rows.push_back(r);
    }
    const std::vector<result> all = sample(s, rows);
    for (size_t i = 0; i < rows.size(); i++) {
        if (i % 16 < 8 && i < 32) check_row(rows[i], all[i]);
        const result alone = sample(s, {rows[i]})[0];
        CAPTURE(i, rows[i].top_k, rows[i].top_p, rows[i].min_p);
        CHECK(all[i].token == alone.token);
        CHECK(all[i].log_prob == alone.log_prob);
    }
}

TEST_CASE("tokens are the same on every target", "[sample]") {
    const subject_of subject[] = {subject_with(1000, TE_f32), subject_with(50257, TE_bf16), subject_with(152064, TE_f16)};
    uint32_t hash = 2166136261u;
    for (const subject_of &s : subject) {
        std::vector<row> rows(8);
        for (size_t i = 0; i < rows.size(); i++) {
            row &r = rows[i];
            r.logits.resize((size_t)s.vocabulary), r.history.assign((size_t)s.vocabulary, 0);
            for (size_t k = 0; k < r.logits.size(); k++) {
                uint32_t w[4];
                te_philox(w, 7, k, (uint32_t)i, 0);
                r.logits[k] = (int)((w[0] & 63) + (w[1] & 63) + (w[2] & 63)) / 16.0 - 6;
                r.history[k] = (uint16_t)(w[3] % 16 ? 0 : w[3] >> 28);
            }
            r.seed = 99, r.counter = i, r.temperature = 0.625f + 0.25f * (float)i;
            if (i & 1) r.top_k = i & 4 ? 50 : 5000;
            if (i & 2) r.top_p = 0.9f;
            if (i & 4) r.repetition = 1.2f, r.frequency = 0.3f, r.presence = 0.1f, r.min_p = 0.01f;
        }
        for (const result &r : sample(s, rows)) hash = (hash ^ (uint32_t)r.token) * 16777619u;
    }
    CHECK(hash == 0xefd3d258u);
}

TEST_CASE("history counts the chosen tokens", "[sample]") {
    source random(fresh_seed());
    const subject_of &s = subject_with(1000, TE_bf16);
    std::vector<row> rows(4);
    for (size_t i = 0; i < rows.size(); i++) {
        rows[i].logits = random.draw(1000, s.dtype), rows[i].counter = i;
        rows[i].history.assign(1000, 0);
        for (uint16_t &h : rows[i].history) h = (uint16_t)random.below(3);
    }
    rows[1].logits[77] = 50, rows[1].history[77] = 65535;
    rows[2].allowed.assign(1000, false);
    const std::vector<result> all = sample(s, rows, 0, true), kept = sample(s, rows, 0, false);
    for (size_t i = 0; i < rows.size(); i++) {
        std::vector<uint16_t> should = rows[i].history;
        if (all[i].token >= 0 && should[(size_t)all[i].token] < 65535) should[(size_t)all[i].token]++;
        CHECK(all[i].history == should);
        CHECK(kept[i].history == rows[i].history);
    }
    CHECK(all[1].token == 77);
    CHECK(all[2].token == -1);
}

TEST_CASE("the most likely tokens of the model", "[sample]") {
    source random(fresh_seed());
    for (const subject_of &s : subjects) {
        const int top = std::min(s.vocabulary, brief() ? 5 : 20);
        std::vector<row> rows;
        for (int i = 0; i < 4; i++) rows.push_back(fresh_row(random, s));
        rows[3].logits.assign((size_t)s.vocabulary, 0.25);
        const std::vector<result> all = sample(s, rows, top);
        for (size_t i = 0; i < rows.size(); i++) {
            INFO(te_dtype_name(s.dtype) << " " << s.vocabulary << ", row " << i);
            check_row(rows[i], all[i]);
            const std::vector<int> order = order_of(rows[i].logits);
            for (int j = 0; j < top; j++) {
                const double l = rows[i].logits[(size_t)order[(size_t)j]], y = all[i].top_log_prob[(size_t)j];
                CHECK(all[i].top_token[(size_t)j] == (l > -INFINITY ? order[(size_t)j] : -1));
                if (l == -INFINITY) CHECK(y == -INFINITY);
                else {
                    const mass should = log_prob(rows[i].logits, order[(size_t)j]);
                    CHECK(std::fabs(y - should.is) <= should.error);
                }
            }
        }
    }
}

/* [sampling] */
TE_INFERENCE(end, bf16, (embedding, e, 61, 40), (rmsnorm, n, 40), (last_token, last), (linear, lm, 40, 61), (sample, next, 61))

/* A token for each sequence of the batch; all pointers are to target memory. */
static te_status next_tokens(int32_t *token, te_tensor log_prob, const float *temperature, const float *top_p,
                             const uint64_t *seed, uint64_t *counter, const end *m, te_batch batch, te_context *ctx) {
    te_sampling sampling;
    memset(&sampling, 0, sizeof sampling);
    sampling.token = token;
    sampling.temperature = temperature, sampling.top_p = top_p; /* [sequences] */
    sampling.seed = seed, sampling.counter = counter;           /* [sequences]; the counters advance by one */
    batch.sampling = &sampling;
    return end_infer(log_prob, te_none(), m, &batch, ctx);
}
/* [sampling] */
TE_INFERENCE(logits, bf16, (embedding, e, 61, 40), (rmsnorm, n, 40), (last_token, last), (linear, lm, 40, 61))

TEST_CASE("the end of a list: one token for each sequence", "[sample]") {
    source random(fresh_seed());
    const context own;
    te_context *const ctx = (te_context *)&own.c;
    const int batch = 5, seq = 7;
    buffer params(ctx, end_param_bytes()), tokens(ctx, batch * seq * 4), y(ctx, batch * 4), out(ctx, batch * 4), x(ctx, batch * 61 * 2);
    params.write(random.draw(end_param_bytes() / 2, TE_bf16, 0, 0.5), TE_bf16);
    std::vector<int32_t> words(batch * seq);
    for (int32_t &w : words) w = random.below(61);
    tokens.write_ints(words);
    end m;
    logits l;
    te_sampling o;
    memset(&o, 0, sizeof o);
    o.token = (int32_t *)out.data();
    te_batch b;
    memset(&b, 0, sizeof b);
    b.batch = batch, b.seq = seq, b.tokens = (const int32_t *)tokens.data(), b.sampling = &o;
    REQUIRE(end_bind(&m, params.data(), ctx) == TE_OK);
    REQUIRE(logits_bind(&l, params.data(), ctx) == TE_OK);
    REQUIRE(te_context_reserve(ctx, std::max(end_workspace_bytes(&m, batch * seq, ctx), logits_workspace_bytes(&l, batch * seq, ctx))) == TE_OK);
    REQUIRE(end_infer(te_matrix(y.data(), TE_f32, batch, 1), te_none(), &m, &b, ctx) == TE_OK);
    REQUIRE(logits_infer(te_matrix(x.data(), TE_bf16, batch, 61), te_none(), &l, &b, ctx) == TE_OK);
    const std::vector<int32_t> got = download<int32_t>(out, batch);
    for (int i = 0; i < batch; i++) {
        row r;
        r.logits = x.read(TE_bf16, (size_t)i * 61, 61), r.temperature = 0;
        CHECK(is_right(r, got[(size_t)i]));
        CHECK(std::fabs(y.read(TE_f32)[(size_t)i] - log_prob(r.logits, got[(size_t)i]).is) <= log_prob(r.logits, got[(size_t)i]).error);
    }
    std::vector<float> temperature(batch, 0.8f), top_p(batch, 0.9f);
    std::vector<uint64_t> seed(batch, 5), counter(batch, 0);
    buffer t(ctx, batch * 4), p(ctx, batch * 4), of_seed(ctx, batch * 8), of_counter(ctx, batch * 8);
    upload(t, temperature), upload(p, top_p), upload(of_seed, seed), upload(of_counter, counter);
    for (int step = 0; step < 3; step++) {
        REQUIRE(next_tokens((int32_t *)out.data(), te_matrix(y.data(), TE_f32, batch, 1), (const float *)t.data(), (const float *)p.data(),
                            (const uint64_t *)of_seed.data(), (uint64_t *)of_counter.data(), &m, b, ctx) == TE_OK);
        const std::vector<int32_t> drawn = download<int32_t>(out, batch);
        for (int i = 0; i < batch; i++) {
            row r;
            r.logits = x.read(TE_bf16, (size_t)i * 61, 61), r.temperature = 0.8f, r.top_p = 0.9f, r.seed = 5, r.counter = (uint64_t)step;
            CHECK(is_right(r, drawn[(size_t)i]));
        }
    }
}

TEST_CASE("misuse of sampling is refused before anything runs", "[sample]") {
    const context own;
    te_context *const ctx = (te_context *)&own.c;
    const subject_of &s = subject_with(17, TE_f32);
    buffer x(ctx, 17 * 4), y(ctx, 4), words(ctx, 256), history(ctx, 64);
    REQUIRE(te_fill(ctx, x.data(), 0, x.bytes) == TE_OK);
    REQUIRE(te_fill(ctx, words.data(), 0, words.bytes) == TE_OK);
    te_sampling fine;
    memset(&fine, 0, sizeof fine);
    fine.token = (int32_t *)words.data();
    const auto run = [&](const te_sampling *o) {
        te_batch b;
        memset(&b, 0, sizeof b);
        b.batch = b.seq = 1, b.sampling = o;
        return s.infer(te_matrix(y.data(), TE_f32, 1, 1), te_matrix(x.data(), TE_f32, 1, 17), &b, ctx);
    };
    const auto refused = [&](te_status status, const char *word, auto change) {
        te_sampling o = fine;
        change(o);
        CAPTURE(word);
        CHECK(run(&o) == status);
        CHECK(std::string(te_last_error(ctx)).find(word) != std::string::npos);
        CHECK(y.poisoned());
    };
    char *const at = (char *)words.data();
    CHECK(run(nullptr) == TE_ERROR_NULL);
    CHECK(std::string(te_last_error(ctx)).find("sampling") != std::string::npos);
    refused(TE_ERROR_NULL, "token", [&](te_sampling &o) { o.token = nullptr; });
    refused(TE_ERROR_NULL, "seed", [&](te_sampling &o) { o.temperature = (float *)(at + 16); });
    refused(TE_ERROR_NULL, "counter", [&](te_sampling &o) { o.temperature = (float *)(at + 16), o.seed = (uint64_t *)(at + 32); });
    refused(TE_ERROR_NULL, "update_history", [&](te_sampling &o) { o.update_history = 1; });
    refused(TE_ERROR_NULL, "frequency", [&](te_sampling &o) { o.frequency_penalty = (float *)(at + 16); });
    refused(TE_ERROR_NULL, "presence", [&](te_sampling &o) { o.presence_penalty = (float *)(at + 16); });
    refused(TE_ERROR_NULL, "repetition", [&](te_sampling &o) { o.repetition_penalty = (float *)(at + 16); });
    refused(TE_ERROR_NULL, "top_token", [&](te_sampling &o) { o.top = 2; });
    refused(TE_ERROR_VALUE, "17 at most", [&](te_sampling &o) { o.top = 18, o.top_token = (int32_t *)(at + 16), o.top_log_prob = (float *)(at + 32); });
    refused(TE_ERROR_VALUE, "top is -1", [&](te_sampling &o) { o.top = -1; });
    refused(TE_ERROR_ALIGNMENT, "aligned", [&](te_sampling &o) { o.token = (int32_t *)(at + 2); });
    refused(TE_ERROR_ALIGNMENT, "aligned", [&](te_sampling &o) { o.history = (uint16_t *)((char *)history.data() + 2); });
    refused(TE_ERROR_ALIGNMENT, "aligned", [&](te_sampling &o) { o.temperature = (float *)(at + 16), o.seed = (uint64_t *)(at + 36), o.counter = (uint64_t *)(at + 64); });
    CHECK(run(&fine) == TE_OK);
    CHECK(!y.poisoned());
}
