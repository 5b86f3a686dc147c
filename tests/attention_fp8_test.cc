// attention_fp8_test.cc -- attention forward in FP8 against doubles. The FP8 operands that its casts write are compared byte for byte. The
// bounds of the outputs and log-sum-exps come from rounding P to e4m3, from the sums of the tensor cores and from the output's format. Then a
// list with (fp8, 1).
#include "bounds.h"
#include "harness.h"
#include "te/te.h"

TE_ATTENTION_FORWARD_FP8(grouped, bf16, 6, 2, 64, TE__ATTENTION_PLAIN(1))
TE_ATTENTION_FORWARD_FP8(windowed, f16, 2, 1, 128, (70, 9))
TE_ATTENTION_FORWARD_FP8(causal, bf16, 2, 2, 128, TE__ATTENTION_PLAIN(1))
TE_ATTENTION_FORWARD_FP8(full, bf16, 2, 1, 256, TE__ATTENTION_PLAIN(0))

MODEL(in_fp8, bf16, (linear, l, 48, 4 * 64), (attention, a, 2, 1, 64, (fp8, 1)), (bias, b, 128))
MODEL(in_bf16, bf16, (linear, l, 48, 4 * 64), (attention, a, 2, 1, 64), (bias, b, 128))

namespace {

struct shape8 {
    te_status (*launch)(te_context *, const te_attention_args *);
    te_status (*ready)(te_context *);
    size_t (*scratch_bytes)(te_context *, int64_t);
    te_dtype dtype;
    int heads, kv_heads, dim, left, right;
};
#define SHAPE8(name, dtype, heads, kv_heads, dim, left, right) \
    {name##_launch, name##_ready, name##_scratch_bytes, TE_##dtype, heads, kv_heads, dim, left, right}
const shape8 shapes8[] = {SHAPE8(grouped, bf16, 6, 2, 64, -1, 0), SHAPE8(windowed, f16, 2, 1, 128, 70, 9), SHAPE8(causal, bf16, 2, 2, 128, -1, 0),
                          SHAPE8(full, bf16, 2, 1, 256, -1, -1)};

// On CUDA the only kernel is for compute capability 9.0.
bool is_skipped(te_context *ctx) {
    if (grouped_ready(ctx) == TE_OK) return false;
    WARN("skipped: " << te_last_error(ctx));
    return true;
}

// A call, and its operands in e4m3.
struct call8 {
    const shape8 &s;
    int batch, seq;
    size_t rows, width, all;
    te_context *ctx;
    buffer qkv, out, lse, scratch;
    reference::vec x; // the e4m3 values; the value that one stands for is x times inverse[head]
    std::vector<double> inverse;
    std::vector<uint8_t> bytes;
    te_attention_args a;

    call8(const shape8 &of, int b, int n, te_context *c, source &random, float sharper = 1)
        : s(of), batch(b), seq(n), rows((size_t)(b * n)), width((size_t)((of.heads + 2 * of.kv_heads) * of.dim)), all(width / (size_t)of.dim), ctx(c),
          qkv(c, rows * width * 2), out(c, rows * (size_t)(of.heads * of.dim) * 2), lse(c, rows * (size_t)of.heads * 4),
          scratch(c, of.scratch_bytes(c, (int64_t)rows)), x(random.draw(rows * width, of.dtype)), inverse(all) {
        std::vector<float> amax(all);
        bytes.resize(x.size());
        // heads of different sizes, and some rows that are four times as large: their scores raise the running maximum late
        for (size_t i = 0; i < x.size(); i++) {
            const size_t head = i % width / (size_t)s.dim;
            x[i] *= (head % 3 ? 1.5 : 0.75) * (i / width % 37 == 5 && head < (size_t)(s.heads + s.kv_heads) ? 4 : 1);
        }
        qkv.write(x, s.dtype), x = qkv.read(s.dtype);
        for (size_t i = 0; i < x.size(); i++) amax[i % width / (size_t)s.dim] = std::max(amax[i % width / (size_t)s.dim], std::fabs((float)x[i]));
        memset(&a, 0, sizeof a);
        a.out = out.data(), a.lse = (float *)lse.data(), a.qkv = qkv.data(), a.scratch = scratch.data();
        a.batch = batch, a.seq = seq, a.scale = sharper / std::sqrt((float)s.dim);
        std::vector<float> scale(all);
        // amax of k becomes 15, of v 448, and of q at most 15, so that the unit of a score is a power of two
        for (size_t i = 0; i < all; i++) {
            const bool is_q = i < (size_t)s.heads, is_v = i >= (size_t)(s.heads + s.kv_heads);
            scale[i] = (is_v ? 448.0f : 15.0f) / amax[i], inverse[i] = (double)(amax[i] / (is_v ? 448.0f : 15.0f));
            if (!is_q) continue;
            const float k = amax[(size_t)s.heads + i / (size_t)(s.heads / s.kv_heads)] / 15.0f, count = amax[i] / 15.0f * k * a.scale * 1.44269504088896341f;
            const double unit = std::exp2(std::ceil(std::log2((double)count)));
            scale[i] *= count / (float)unit, inverse[i] = unit / ((double)k * (double)a.scale * 1.4426950408889634);
        }
        for (size_t i = 0; i < x.size(); i++)
            bytes[i] = te_e4m3_of_float((float)x[i] * scale[i % width / (size_t)s.dim]), x[i] = te_float_of_e4m3(bytes[i]);
    }
    // Checks the operands in scratch memory: q and k by row, v transposed with its keys permuted, and 0 for keys behind the sequence.
    void check_casts() {
        const std::vector<uint8_t> there = scratch.raw();
        const te_attention_fp8_operands p = te__attn_fp8_operands_of(&a, s.heads, s.kv_heads, s.dim);
        const size_t d = (size_t)s.dim, heads = (size_t)s.heads, kv = (size_t)s.kv_heads;
        const uint8_t *base = (const uint8_t *)a.scratch, *q = &there[(size_t)(p.q - base)], *k = &there[(size_t)(p.k - base)],
                      *v = &there[(size_t)(p.v - base)];
        size_t wrong = 0;
        for (size_t row = 0; row < rows; row++)
            for (size_t head = 0; head < all; head++)
                for (size_t c = 0; c < d; c++) {
                    const size_t in = row % (size_t)seq, group = head - heads - kv;
                    const uint8_t got = head < heads        ? q[(row * heads + head) * d + c]
                                        : head < heads + kv ? k[(row * kv + head - heads) * d + c]
                                                            : v[((row / (size_t)seq * kv + group) * d + c) * (size_t)p.keys + (size_t)te__attn_fp8_byte_of_key((int)in)];
                    wrong += got != bytes[row * width + head * d + c];
                }
        for (size_t line = 0; line < (size_t)batch * kv * d; line++)
            for (int key = seq; key < p.keys; key++) wrong += v[line * (size_t)p.keys + (size_t)te__attn_fp8_byte_of_key(key)] != 0;
        CHECK(wrong == 0);
    }
    // The error of a score whose sum is kept in f16: one rounding for each 32 products.
    double in_f16(size_t q, size_t k) const {
        double sum = 0, error = 0;
        for (size_t c = 0; c < (size_t)s.dim; c++) {
            sum += x[q + c] * x[k + c];
            if (c % 32 == 31) error += std::fabs(sum) / 2048;
        }
        return TE_CUDA ? error : 0;
    }
    // Checks the output and log-sum-exp of one query and head.
    void check_query(size_t row, size_t head, const reference::vec &got, const reference::vec &got_lse) {
        const size_t d = (size_t)s.dim, heads = (size_t)s.heads, n = (size_t)seq, first = row / n * n, k_head = heads + head / (heads / (size_t)s.kv_heads),
                     v_head = k_head + (size_t)s.kv_heads;
        const int query = (int)(row - first), from = s.left < 0 ? 0 : std::max(0, query - s.left), end = s.right < 0 ? seq : std::min(seq, query + s.right + 1);
        const double unit = inverse[head] * inverse[k_head] * (double)a.scale * 1.4426950408889634; // of a score, as an exponent of 2
        std::vector<double> p((size_t)(end - from)), off(p.size());
        double top = -1e300, sum = 0, sum_error = 0, worst = 0;
        for (size_t i = 0; i < p.size(); i++) {
            const bounds::fp8_sum score(&x[row * width + head * d], 1, &x[(first + (size_t)from + i) * width + k_head * d], 1, d, true, TE_CUDA);
            p[i] = score.sum * unit, top = std::max(top, p[i]);
            off[i] = (score.error + in_f16(row * width + head * d, (first + (size_t)from + i) * width + k_head * d)) * unit + 1e-6 * (1 + std::fabs(p[i]));
        }
        // the relative error of P; on CUDA both P and its exponent (of up to 5 above the maximum) are f16
        for (size_t i = 0; i < p.size(); i++) {
            const double log = p[i] - top;
            off[i] = 0.6931471805599453 * (off[i] + (TE_CUDA ? (5 - log) / 2048 : 0)) + (TE_CUDA ? std::exp2(-9.5) : 0);
            p[i] = std::exp2(log), sum += p[i], sum_error += p[i] * off[i];
        }
        // sixteen of them are summed in f16, whose smallest steps round by 2^-25
        sum_error += TE_CUDA ? sum / 256 + (double)p.size() / (1 << 25) : 0;
        for (size_t c = 0; c < d; c++) {
            const double *v = &x[(first + (size_t)from) * width + v_head * d + c];
            const bounds::fp8_sum value(p.data(), 1, v, width, p.size(), true, TE_CUDA);
            double error = value.error + std::fabs(value.sum) * sum_error / sum;
            // rounding P to e4m3: half a unit of its 3 fraction bits, or of its smallest numbers; the maximum is rounded up, twice if it
            // has an error
            for (size_t i = 0; i < p.size(); i++)
                error += (p[i] * (1.0 / 16 + off[i]) + 1.0 / (1 << (10 + TE__ATTN_FP8_P_EXPONENT - 2))) * std::fabs(v[i * width]);
            const double want = value.sum / sum * inverse[v_head];
            const double bound = error / sum * inverse[v_head] + bounds::ulp(std::fabs(want), s.dtype);
            const double is = got[row * heads * d + head * d + c];
            worst = std::max(worst, is == is ? std::fabs(is - want) / bound : 1e9);
        }
        CHECK(worst <= 1);
        const double lse_is = got_lse[(row / n * heads + head) * n + row % n], want = top * 0.6931471805599453 + std::log(sum);
        CHECK(std::fabs(lse_is - want) <= sum_error / sum + 1e-6 * (1 + std::fabs(want) + std::fabs(top)));
    }
};

} // namespace

TEST_CASE("attention in FP8 matches attention of the e4m3 values in double", "[attention]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    source random(seed);
    context ctx_owner;
    if (is_skipped(&ctx_owner.c)) return;
    for (const shape8 &s : shapes8)
        for (const int seq : {1, 15, 129, 300}) {
            CAPTURE(s.dim, s.heads, s.left, s.right, seq);
            call8 c(s, seq < 300 ? 3 : 1, seq, &ctx_owner.c, random);
            const te_status status = s.launch(&ctx_owner.c, &c.a);
            INFO(te_last_error(&ctx_owner.c));
            REQUIRE(status == TE_OK);
            REQUIRE(te_synchronize(&ctx_owner.c) == TE_OK);
            c.check_casts();
            const reference::vec out = c.out.read(s.dtype), lse = c.lse.read(TE_f32);
            for (const double v : out) REQUIRE(std::isfinite(v));
            for (const double v : lse) REQUIRE(std::isfinite(v));
            for (int i = 0; i < (brief() ? 4 : 24); i++) c.check_query((size_t)random.below((int)c.rows), (size_t)random.below(s.heads), out, lse);
        }
}

// As exponents of 2, such scores are integers that f16 cannot represent exactly, or at all.
TEST_CASE("attention in FP8 is finite with scores of thousands and more", "[attention]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    source random(seed);
    context ctx_owner;
    if (is_skipped(&ctx_owner.c)) return;
    for (const shape8 &s : shapes8)
        for (const float sharper : {1e-20f, 200.0f, 1e4f, 1e8f}) {
            CAPTURE(s.dim, s.heads, s.left, s.right, sharper);
            call8 c(s, 2, 300, &ctx_owner.c, random, sharper);
            REQUIRE(s.launch(&ctx_owner.c, &c.a) == TE_OK);
            REQUIRE(te_synchronize(&ctx_owner.c) == TE_OK);
            const reference::vec out = c.out.read(s.dtype), lse = c.lse.read(TE_f32);
            const size_t d = (size_t)s.dim, heads = (size_t)s.heads;
            size_t wrong = 0;
            for (size_t i = 0; i < out.size(); i++) { // a mean of values: e4m3 is at most 448, and 1.1 allows for the roundings
                const size_t head = heads + (size_t)s.kv_heads + i / d % heads / (heads / (size_t)s.kv_heads);
                wrong += !(std::fabs(out[i]) <= 448 * c.inverse[head] * 1.1);
            }
            CHECK(wrong == 0);
            for (int i = 0; i < 24; i++) { // the log-sum-exp is close to the largest score, which is by far the largest term
                const size_t row = (size_t)random.below((int)c.rows), head = (size_t)random.below(s.heads), n = 300, first = row / n * n;
                const size_t k_head = heads + head / (heads / (size_t)s.kv_heads), query = row - first;
                const size_t from = s.left < 0 || (size_t)s.left > query ? 0 : query - (size_t)s.left, end = s.right < 0 ? n : std::min(n, query + (size_t)s.right + 1);
                double largest = -1e300;
                for (size_t k = from; k < end; k++) {
                    double sum = 0;
                    for (size_t j = 0; j < d; j++) sum += c.x[row * c.width + head * d + j] * c.x[(first + k) * c.width + k_head * d + j];
                    largest = std::max(largest, sum * c.inverse[head] * c.inverse[k_head] * (double)c.a.scale);
                }
                const double is = lse[(row / n * heads + head) * n + query];
                CHECK(is >= largest - std::fabs(largest) / 256 - 0.01);
                CHECK(is <= largest + std::fabs(largest) / 256 + std::log((double)(end - from)) + 0.01);
            }
        }
}

TEST_CASE("attention in FP8: an infinity makes the outputs that depend on it NaN, and no others", "[attention]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    source random(seed);
    context ctx_owner;
    if (is_skipped(&ctx_owner.c)) return;
    const shape8 &s = shapes8[0];
    for (const size_t head : {(size_t)1, (size_t)6, (size_t)9}) { // a head of q, of k and of v; three heads of q share one of k and v
        CAPTURE(head);
        call8 c(s, 1, 200, &ctx_owner.c, random);
        reference::vec x = c.qkv.read(s.dtype);
        x[77 * c.width + head * (size_t)s.dim + 5] = INFINITY;
        c.qkv.write(x, s.dtype);
        REQUIRE(s.launch(&ctx_owner.c, &c.a) == TE_OK);
        REQUIRE(te_synchronize(&ctx_owner.c) == TE_OK);
        const reference::vec out = c.out.read(s.dtype);
        size_t wrong = 0;
        for (size_t i = 0; i < out.size(); i++) {
            const size_t q = i / (size_t)s.dim % (size_t)s.heads;
            const bool reads = head < 6 ? q == head : q / 3 == (head - 6) % 2;
            wrong += reads ? !std::isnan(out[i]) : !std::isfinite(out[i]);
        }
        CHECK(wrong == 0);
    }
}

TEST_CASE("attention in FP8 refuses unsupported arguments, and writes nothing", "[attention]") {
    context ctx_owner;
    source random(1);
    if (is_skipped(&ctx_owner.c)) return;
    call8 c(shapes8[0], 1025, 1, &ctx_owner.c, random);
    CHECK(c.s.launch(&ctx_owner.c, &c.a) == TE_ERROR_SHAPE);
    CHECK(std::string(te_last_error(&ctx_owner.c)).find("1025 sequences, in FP8 it takes up to 1024") != std::string::npos);
    c.a.batch = 1024, c.a.scratch = nullptr;
    CHECK(c.s.launch(&ctx_owner.c, &c.a) == TE_ERROR_NULL);
    CHECK((c.out.poisoned() && c.lse.poisoned() && c.scratch.poisoned()));
}

TEST_CASE("a list with (fp8, 1) is close to the same list without", "[attention]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    context ctx_owner;
    if (is_skipped(&ctx_owner.c)) return;
    const size_t rows = 2 * 77;
    reference::vec y[2], dx[2];
    for (int i = 0; i < 2; i++) {
        const subject &s = i ? in_bf16_subject : in_fp8_subject;
        source random(seed);
        instance m(s, &ctx_owner.c);
        m.draw(random);
        buffer x(&ctx_owner.c, rows * 48 * 2), out(&ctx_owner.c, rows * 128 * 2), d(&ctx_owner.c, rows * 48 * 2), dy(&ctx_owner.c, rows * 128 * 2), memory(&ctx_owner.c, s.saved_bytes((int64_t)rows));
        x.write(random.draw(rows * 48, TE_bf16), TE_bf16), dy.write(random.draw(rows * 128, TE_bf16), TE_bf16);
        te_batch batch;
        te_saved saved;
        memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved);
        batch.batch = 2, batch.seq = 77, saved.memory = memory.data(), saved.bytes = memory.bytes;
        REQUIRE(te_context_reserve(&ctx_owner.c, s.workspace_bytes(m.memory.data(), (int64_t)rows, &ctx_owner.c)) == TE_OK);
        const te_tensor in = te_matrix(x.data(), TE_bf16, (int64_t)rows, 48), to = te_matrix(out.data(), TE_bf16, (int64_t)rows, 128);
        const te_tensor gradient = te_matrix(d.data(), TE_bf16, (int64_t)rows, 48), given = te_matrix(dy.data(), TE_bf16, (int64_t)rows, 128);
        REQUIRE(s.infer(to, in, m.memory.data(), &batch, &ctx_owner.c) == TE_OK);
        const std::vector<uint8_t> inferred = out.raw();
        out.poison();
        REQUIRE(s.forward(to, &saved, in, m.memory.data(), &batch, &ctx_owner.c) == TE_OK);
        CHECK(out.raw() == inferred);
        REQUIRE(s.backward(gradient, given, &saved, m.memory.data(), &batch, &ctx_owner.c) == TE_OK);
        y[i] = out.read(TE_bf16), dx[i] = d.read(TE_bf16);
    }
    // the relative error of each of q, k, v and P is 2^-4 at most, and its RMS 2^-5.8
    const auto apart = [](const reference::vec &v, const reference::vec &w) {
        double off = 0, size = 0;
        for (size_t i = 0; i < v.size(); i++) off += (v[i] - w[i]) * (v[i] - w[i]), size += w[i] * w[i];
        return std::sqrt(off / size);
    };
    CHECK(apart(y[0], y[1]) > 0);
    CHECK(apart(y[0], y[1]) < 1.0 / 8);
    CHECK(apart(dx[0], dx[1]) < 1.0 / 8);
}
