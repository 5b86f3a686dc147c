// quant_test.cc -- weights in few bits: each block format against its definition, written down here value by value in double; products
// against sums in double, at odd sizes, in parts of several formats; embeddings, tied heads, patterns; refusals. On CUDA weights are
// repacked first, and activations are not rounded.
#include "harness.h"
#include "te/infer.h"

#include <cmath>
#include <cstring>
#include <string>

/* [quantized] */
#define LIST (f32, (weights, quantized))
TE_INFERENCE(head, LIST, (embedding, tokens, 320, 512), (rmsnorm, norm, 512), (tied_linear, logits, 512, 320))

/* blocks: the 320 rows of a tensor in q4_k, for example in a mapped file. Both structs and the blocks stay where they are. */
static te_status use_blocks(head *m, te_weight_part *part, te_quantized_weight *weight, const void *blocks, te_context *ctx) {
    part->data = blocks, part->format = TE_BLOCK_q4_k, part->rows = 320;
    weight->part = part, weight->parts = 1;
    TE_TRY(te_use_quantized(&m->tokens.weight, weight, ctx));
    return te_tie(&m->logits.weight, &m->tokens.weight, ctx);
}
/* [quantized] */
#undef LIST

TE_INFERENCE_DIMS(product_list, (f32, (weights, quantized)), (linear, w, TE_DIM(0), TE_DIM(1)))
TE_INFERENCE_DIMS(product_list_bf16, (bf16, (weights, quantized)), (linear, w, TE_DIM(0), TE_DIM(1)))
TE_INFERENCE_DIMS(product_list_f16, (f16, (weights, quantized)), (linear, w, TE_DIM(0), TE_DIM(1)))
TE_INFERENCE_DIMS(ordinary, f32, (linear, w, TE_DIM(0), TE_DIM(1)))
TE_INFERENCE(ends, (f32, (weights, quantized)), (embedding, e, 61, 512), (rmsnorm, n, 512), (tied_linear, head, 512, 61))
TE_INFERENCE(ends_bf16, (bf16, (weights, quantized)), (embedding, e, 61, 512), (rmsnorm, n, 512), (tied_linear, head, 512, 61))
TE_INFERENCE(pattern, (f32, (weights, quantized)), (fork, x), (linear, a, 256, 96), (bias, b, 96), (gelu, act), (linear, c, 96, 256),
             (scale, half, 0.5f), (add, x))
TE_INFERENCE(other, f32, (linear, a, 256, 96), (bias, b, 96))

namespace {

struct instance_memory { // an instance that is bound to memory of its own
    buffer memory;
    instance_memory(te_context *ctx, size_t bytes) : memory(ctx, bytes) { REQUIRE(te_fill(ctx, memory.data(), 0, bytes) == TE_OK); }
};
bool says(const context &c, const char *word) {
    INFO(te_last_error(&c.c));
    const bool found = strstr(te_last_error(&c.c), word) != nullptr;
    CHECK(found);
    return found;
}

} // namespace

namespace {

const te_block_format formats[] = {TE_BLOCK_f32,  TE_BLOCK_f16,  TE_BLOCK_bf16, TE_BLOCK_q8_0, TE_BLOCK_q4_0, TE_BLOCK_q4_1,
                                   TE_BLOCK_q5_0, TE_BLOCK_q5_1, TE_BLOCK_q4_k, TE_BLOCK_q5_k, TE_BLOCK_q6_k,
                                   TE_BLOCK_mxfp4, TE_BLOCK_int4_64, TE_BLOCK_int4_128, TE_BLOCK_int4z_32, TE_BLOCK_int4z_64, TE_BLOCK_int4z_128, TE_BLOCK_int8};

// ---- the formats' definitions ------------------------------------------------------------------------------------------

double f16_at(const uint8_t *p) {
    const int h = p[0] + 256 * p[1], exponent = h / 1024 % 32, fraction = h % 1024;
    const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    return h >= 32768 ? -magnitude : magnitude;
}
int bit(const uint8_t *p, int i) { return p[i / 8] >> i % 8 & 1; }
int nibble(const uint8_t *p, int i, bool high) { return high ? p[i] / 16 : p[i] % 16; }

// Value i of a block is product + offset; the zero of a format is part of product.
struct term { double product, offset; };
term value_at(const uint8_t *b, int i, te_block_format f) {
    float single;
    switch ((int)f) {
    case TE_BLOCK_f32: memcpy(&single, b, 4); return {(double)single, 0};
    case TE_BLOCK_f16: return {f16_at(b), 0};
    case TE_BLOCK_bf16: {
        const uint32_t bits = (uint32_t)b[1] << 24 | (uint32_t)b[0] << 16;
        memcpy(&single, &bits, 4);
        return {(double)single, 0};
    }
    case TE_BLOCK_q8_0: return {f16_at(b) * (int8_t)b[2 + i], 0};
    case TE_BLOCK_q4_0: return {f16_at(b) * (nibble(b + 2, i % 16, i >= 16) - 8), 0};
    case TE_BLOCK_q4_1: return {f16_at(b) * nibble(b + 4, i % 16, i >= 16), f16_at(b + 2)};
    case TE_BLOCK_q5_0: return {f16_at(b) * (nibble(b + 6, i % 16, i >= 16) + 16 * bit(b + 2, i) - 16), 0};
    case TE_BLOCK_q5_1: return {f16_at(b) * (nibble(b + 8, i % 16, i >= 16) + 16 * bit(b + 4, i)), f16_at(b + 2)};
    case TE_BLOCK_mxfp4: {
        const int code = nibble(b + 1, i % 16, i >= 16), exponent = code / 2 % 4;
        const double magnitude = exponent ? std::ldexp(1 + code % 2 * 0.5, exponent - 1) : code % 2 * 0.5;
        return {std::ldexp(code >= 8 && code > 8 ? -magnitude : magnitude, b[0] - 127), 0};
    }
    case TE_BLOCK_int4_64:
    case TE_BLOCK_int4_128: return {f16_at(b) * (nibble(b + 2 + i / 32 * 16, i % 16, i % 32 >= 16) - 8), 0};
    case TE_BLOCK_int4z_32:
    case TE_BLOCK_int4z_64:
    case TE_BLOCK_int4z_128: return {f16_at(b) * (nibble(b + 4 + i / 32 * 16, i % 16, i % 32 >= 16) - b[2]), 0};
    case TE_BLOCK_int8: return {(double)(int8_t)b[i], 0}; // times the scale of the row
    case TE_BLOCK_q6_k: { // two halves of 128 values; in each, four rows of 32 values share 64 low and 32 high bytes
        const int half = i / 128, row = i % 128 / 32, at = i % 32;
        const int low = nibble(b + 64 * half, at + 32 * (row % 2), row >= 2), high = b[128 + 32 * half + at] >> 2 * row & 3;
        return {f16_at(b + 208) * (int8_t)b[192 + i / 16] * (low + 16 * high - 32), 0};
    }
    default: { // q4_k, q5_k: 8 groups of 32
        const int g = i / 32, at = i % 32;
        const uint8_t *packed = b + 4, *low = b + (f == TE_BLOCK_q5_k ? 48 : 16);
        int scale, min;
        if (g < 4) scale = packed[g] % 64, min = packed[g + 4] % 64;
        else scale = packed[g + 4] % 16 + packed[g - 4] / 64 * 16, min = packed[g + 4] / 16 + packed[g] / 64 * 16;
        const int q = nibble(low, 32 * (g / 2) + at, g % 2 == 1) + (f == TE_BLOCK_q5_k ? 16 * (b[16 + at] >> g & 1) : 0);
        return {f16_at(b) * scale * q, -f16_at(b + 2) * min};
    }
    }
}

bool has_offset(te_block_format f) { return f == TE_BLOCK_q4_1 || f == TE_BLOCK_q5_1 || f == TE_BLOCK_q4_k || f == TE_BLOCK_q5_k; }

bool is_k(te_block_format f) { return f == TE_BLOCK_q4_k || f == TE_BLOCK_q5_k || f == TE_BLOCK_q6_k; }
bool has_zero(te_block_format f) { return f == TE_BLOCK_int4z_32 || f == TE_BLOCK_int4z_64 || f == TE_BLOCK_int4z_128; }

// Random bytes of `rows` rows, with scales between 2^-6 and 2^-3.
struct weight {
    te_block_format format;
    int64_t rows, cols;
    size_t row_bytes;
    std::vector<uint8_t> bytes; // one byte in front, so that the data are not aligned
    weight(te_block_format f, int64_t r, int64_t c, source &s) : format(f), rows(r), cols(c), row_bytes(te_block_row_bytes(f, c)), bytes(1 + (size_t)r * te_block_row_bytes(f, c)) {
        const size_t block = (size_t)te_block_bytes(f), count = f == TE_BLOCK_int8 ? 0 : (bytes.size() - 1) / block;
        for (uint8_t &b : bytes) b = (uint8_t)s.below(256);
        for (size_t i = 0; i < count; i++) {
            uint8_t *b = bytes.data() + 1 + i * block;
            const auto scale = [&](size_t at) { b[at + 1] = (uint8_t)(0x24 + s.below(12) + 0x80 * s.below(2)); };
            if (f == TE_BLOCK_q6_k) scale(208);
            else if (f == TE_BLOCK_mxfp4) b[0] = (uint8_t)(120 + s.below(5));
            else if (f == TE_BLOCK_f32) {
                const float v = (float)s.draw(1, TE_f32)[0];
                memcpy(b, &v, 4);
            } else if (f == TE_BLOCK_bf16) b[1] = (uint8_t)(0x3c + s.below(4) + 0x80 * s.below(2));
            else scale(0);
            if (has_offset(f)) scale(2);
            if (has_zero(f)) b[2] = (uint8_t)s.below(17), b[3] = 0;
        }
        for (int64_t i = 0; f == TE_BLOCK_int8 && i < r; i++) {
            const float v = (float)std::ldexp(1 + s.below(1 << 20) * 0x1p-20, -6 + s.below(3)) * (s.below(2) ? 1 : -1);
            memcpy(bytes.data() + 1 + (size_t)(i + 1) * row_bytes - 4, &v, 4);
        }
    }
    const uint8_t *data() const { return bytes.data() + 1; }
    term at(int64_t row, int64_t col) const {
        const int values = te_block_values(format);
        term t = value_at(data() + (size_t)row * row_bytes + (size_t)(col / values) * (size_t)te_block_bytes(format), (int)(col % values), format);
        float of_row = 1;
        if (format == TE_BLOCK_int8) memcpy(&of_row, data() + (size_t)(row + 1) * row_bytes - 4, 4);
        t.product *= of_row;
        return t;
    }
    te_weight_part part() const { return {data(), format, rows}; }
};

// A weight of these parts as te_use_quantized takes it: where it lies, or on CUDA repacked into target memory.
struct resident {
    std::vector<te_weight_part> part;
    te_quantized_weight weight;
    void *memory = nullptr;
    te_context *ctx;
    resident(te_context *c, const std::vector<te_weight_part> &parts, int64_t cols) : part(parts), weight{part.data(), (int)part.size()}, ctx(c) {
        if (!TE_CUDA) return;
        const size_t bytes = te_repacked_bytes(&weight, cols), guard = 512;
        std::vector<uint8_t> end(guard);
        REQUIRE(te_allocate(ctx, &memory, bytes + guard) == TE_OK);
        REQUIRE(te_fill(ctx, memory, 0xff, bytes + guard) == TE_OK);
        REQUIRE(te_repack_weight(part.data(), memory, &weight, cols, ctx) == TE_OK);
        REQUIRE(te_copy(ctx, end.data(), (char *)memory + bytes, guard) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        CHECK(numbers::others(end.data(), guard, 0xff) == 0);
    }
    resident(const resident &) = delete;
    resident &operator=(const resident &) = delete;
    ~resident() { te_release(ctx, memory); }
};
bool is_float(te_block_format f) { return te_block_values(f) == 1; }
// The formats of weights: on CUDA those of blocks.
std::vector<te_block_format> weight_formats() {
    std::vector<te_block_format> v;
    for (const te_block_format f : formats) if (!TE_CUDA || !is_float(f)) v.push_back(f);
    return v;
}

// ---- products ----------------------------------------------------------------------------------------------------------

// Activations whose rounding to 8 bits is exact: integers up to 127 in magnitude, of which each block of 32 has one of 127, times a
// power of two for each 256. The sum of 32 has at most 11 bits, because it is rounded to f16.
reference::vec exact_rows(int64_t m, int64_t k, source &s) {
    reference::vec x((size_t)(m * k));
    double unit = 1;
    for (size_t i = 0; i < x.size(); i += 32) {
        const size_t n = std::min((size_t)32, x.size() - i);
        if (i % 256 == 0) unit = std::ldexp(1.0, s.below(5) - 9);
        double sum = 1e9;
        while (std::fabs(sum) > 2047) {
            sum = 0;
            for (size_t j = 0; j < n; j++) sum += x[i + j] = s.below(255) - 127;
            const size_t largest = (size_t)s.below((int)n);
            sum -= x[i + largest], sum += x[i + largest] = s.below(2) ? 127 : -127;
        }
        for (size_t j = 0; j < n; j++) x[i + j] *= unit;
    }
    return x;
}
// How far an activation in 8 bits is from x: half a step, and the rounding of the scale to f16.
reference::vec activation_error(const reference::vec &x, int64_t k, te_block_format f) {
    const size_t block = te_block_values(f) == 1 ? 0 : te_block_values(f) == 256 ? 256 : 32;
    reference::vec e(x.size(), 0.0);
    for (size_t i = 0; block && i < x.size(); i += block) {
        double amax = 0;
        for (size_t j = i; j < i + block; j++) amax = std::max(amax, std::fabs(x[j]));
        for (size_t j = i; j < i + block; j++) e[j] = amax / 127 * 0.5001 + (std::fabs(x[j]) + amax / 127) * std::ldexp(1.0, -11);
    }
    (void)k;
    return e;
}

struct product {
    reference::vec out, ref, bound;
};
template <class M> void run_list(const resident &w, const buffer &out, const buffer &in, const int64_t (&size)[3], te_dtype dtype, te_context *ctx,
                                 te_status (*set_dims)(M *, const int64_t *, int, te_context *), te_status (*bind)(M *, void *, te_context *),
                                 size_t (*workspace)(const M *, int64_t, te_context *),
                                 te_status (*infer)(te_tensor, te_tensor, const M *, const te_batch *, te_context *)) {
    M list;
    te_batch batch;
    const int64_t m = size[0], n = size[1], k = size[2], dims[] = {k, n};
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = (int)m;
    REQUIRE(set_dims(&list, dims, 2, ctx) == TE_OK);
    REQUIRE(bind(&list, nullptr, ctx) == TE_OK);
    REQUIRE(te_use_quantized(&list.w.weight, &w.weight, ctx) == TE_OK);
    REQUIRE(te_context_reserve(ctx, workspace(&list, m, ctx)) == TE_OK);
    REQUIRE(infer(te_matrix(out.data(), dtype, m, n), te_matrix(in.data(), dtype, m, k), &list, &batch, ctx) == TE_OK);
}
#define RUN_LIST(name) \
    run_list<name>(w, out, in, size, dtype, ctx, name##_set_dims, name##_bind, name##_workspace_bytes, name##_infer)
// x [m, k] times a weight of these parts, by the list of this dtype. exact: the rounding of x to 8 bits is exact.
product multiply(const std::vector<weight> &parts, const reference::vec &x, int64_t m, te_dtype dtype, bool exact) {
    const context c;
    te_context *const ctx = (te_context *)&c.c;
    const int64_t k = parts[0].cols;
    int64_t n = 0;
    std::vector<te_weight_part> part;
    for (const weight &w : parts) n += w.rows, part.push_back(w.part());
    const int64_t size[] = {m, n, k};
    const resident w(ctx, part, k);
    buffer in(ctx, (size_t)(m * k) * te_dtype_bytes(dtype), 16), out(ctx, (size_t)(m * n) * te_dtype_bytes(dtype), 16);
    in.write(x, dtype);
    if (dtype == TE_f32) RUN_LIST(product_list);
    else if (dtype == TE_bf16) RUN_LIST(product_list_bf16);
    else RUN_LIST(product_list_f16);
    product p;
    p.out = out.read(dtype);
    p.ref.resize(p.out.size()), p.bound.resize(p.out.size());
    int64_t first = 0;
    for (const weight &w : parts) {
        const reference::vec error = exact || TE_CUDA ? reference::vec(x.size(), 0.0) : activation_error(x, k, w.format);
        // Sums of 4 are exact, because they are sums of integers; of floats each term counts. A sum of n numbers has n - 1 roundings, each by
        // 2^-24 of a partial sum at most. The kernels have at least 8 partial sums, of k / 32 numbers with offsets, or 16 of floats.
        // Tensor cores truncate: 2^-22 for 16 products and the sum before, if the products are no integers.
        const int64_t group = is_float(w.format) || !exact ? 1 : 4;
        const double epsilon = TE_CUDA && !exact ? std::ldexp(1.0, -22) : std::ldexp(1.0, -24);
        // With more rows CUDA converts the weight to the list's dtype.
        const double of_weight = TE_CUDA && m > 64 ? std::ldexp(1.0, dtype == TE_bf16 ? -9 : dtype == TE_f16 ? -12 : -24) : 0;
        std::vector<term> row((size_t)k);
        for (int64_t j = 0; j < w.rows; j++) {
            for (int64_t e = 0; e < k; e++) row[(size_t)e] = w.at(j, e);
            for (int64_t i = 0; i < m; i++) {
                double sum = 0, terms = 0, of_rounding = 0;
                for (int64_t first_of_group = 0; first_of_group < k; first_of_group += group) {
                    double products = 0, offsets = 0;
                    for (int64_t e = first_of_group; e < std::min(k, first_of_group + group); e++) {
                        const term t = row[(size_t)e];
                        const double v = x[(size_t)(i * k + e)];
                        products += t.product * v, offsets += t.offset * v;
                        of_rounding += (std::fabs(t.product) + std::fabs(t.offset)) * error[(size_t)(i * k + e)];
                        of_rounding += std::fabs((t.product + t.offset) * v) * of_weight;
                    }
                    sum += products + offsets, terms += std::fabs(products) + std::fabs(offsets);
                }
                const size_t at = (size_t)(i * n + first + j);
                p.ref[at] = sum;
                const double of_dtype = dtype == TE_f32 ? 0 : std::fabs(sum) * std::ldexp(1.0, dtype == TE_bf16 ? -8 : -11);
                p.bound[at] = terms * epsilon * (double)(k / 16 + 16) + of_rounding + of_dtype + (dtype == TE_f16 ? std::ldexp(1.0, -25) : 1e-30);
            }
        }
        first += w.rows;
    }
    return p;
}
void check_product(const std::string &name, const product &p) {
    size_t worst = 0;
    double ratio = 0;
    for (size_t i = 0; i < p.out.size(); i++) {
        const double r = std::fabs(p.out[i] - p.ref[i]) / p.bound[i];
        if (!(r <= ratio)) ratio = r, worst = i;
        if (std::isnan(r)) break;
    }
    INFO(name << ": element " << worst << " is " << p.out[worst] << ", should be " << p.ref[worst] << " +- " << p.bound[worst]);
    CHECK(ratio <= 1);
}
std::vector<weight> one(te_block_format f, int64_t n, int64_t k, source &s) {
    std::vector<weight> w;
    w.emplace_back(f, n, k, s);
    return w;
}

} // namespace

TEST_CASE("values of each format are those of its definition, bit by bit") {
    source s(fresh_seed());
    CHECK(std::string(te_block_name(TE_BLOCK_q6_k)) == "q6_k");
    CHECK(std::string(te_block_name(TE_BLOCK_COUNT)) == "unknown");
    CHECK(te_block_bytes(TE_BLOCK_COUNT) == 0);
    CHECK(te_block_row_bytes(TE_BLOCK_q5_k, 1024) == 4 * 176);
    for (const te_block_format f : formats) {
        const weight w(f, 7, 1024, s);
        std::vector<float> y(1024);
        for (int64_t r = 0; r < w.rows; r++) {
            te_dequantize_row(y.data(), w.data() + (size_t)r * w.row_bytes, w.cols, f);
            int wrong = 0;
            for (int64_t i = 0; i < w.cols; i++) {
                const term t = w.at(r, i);
                const float expected = (float)(has_offset(f) ? t.product + t.offset : t.product); // also the sign of zero
                wrong += memcmp(&expected, &y[(size_t)i], 4) != 0;
            }
            INFO(te_block_name(f) << ", row " << r);
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE("rows are quantized to the nearest codes") {
    // by hand: the value of the largest magnitude, -8, is code 0 of q4_0 and of q5_0, and d is 1 and 0.5; 127 is code 127 of q8_0
    std::vector<float> x(32, 1.0f);
    uint8_t b[34];
    x[3] = -8.0f;
    te_quantize_row(b, x.data(), 32, TE_BLOCK_q4_0);
    const uint8_t q4_0[18] = {0, 0x3c, 0x99, 0x99, 0x99, 0x90, 0x99, 0x99, 0x99, 0x99, 0x99, 0x99, 0x99, 0x99, 0x99, 0x99, 0x99, 0x99};
    CHECK(memcmp(b, q4_0, sizeof q4_0) == 0);
    te_quantize_row(b, x.data(), 32, TE_BLOCK_q5_0);
    const uint8_t q5_0[22] = {0, 0x38, 0xf7, 0xff, 0xff, 0xff, 0x22, 0x22, 0x22, 0x20, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22};
    CHECK(memcmp(b, q5_0, sizeof q5_0) == 0);
    for (int i = 0; i < 32; i++) x[(size_t)i] = (float)(127 - i);
    te_quantize_row(b, x.data(), 32, TE_BLOCK_q8_0);
    for (int i = 0; i < 32; i++) CHECK(b[2 + i] == 127 - i);
    CHECK((b[0] == 0 && b[1] == 0x3c));
    for (int i = 0; i < 32; i++) x[(size_t)i] = (float)(i % 16 - 5);
    te_quantize_row(b, x.data(), 32, TE_BLOCK_q4_1);
    CHECK((b[1] == 0x3c && b[2] == 0 && b[3] == 0xc5)); // d = 1, m = -5
    for (int i = 0; i < 16; i++) CHECK(b[4 + i] == i * 17);

    // Each value is within half a step of its code, and the rounding of scales. q4_0 and q5_0 clamp values near the largest magnitude of
    // the other sign, by up to one step. The scales of k-quants are rounded to 6 or 8 bits, so these are compared by their RMS.
    // In int8 amax is that of the row. In mxfp4 a value is within a quarter of amax: the step is 1/2 of its power of two, and 7.9 becomes 6.
    const double steps[] = {0, 0, 0, 0.51 / 127, 1.02 / 8, 0.51 * 2 / 15, 1.02 / 16, 0.51 * 2 / 31, 0, 0, 0, 0.251, 1.02 / 8, 1.02 / 8, 0.51 * 2 / 15, 0.51 * 2 / 15, 0.51 * 2 / 15, 0.51 / 127};
    source s(fresh_seed());
    for (int c = 0; c < (int)(sizeof formats / sizeof formats[0]); c++) {
        const te_block_format f = formats[c];
        const reference::vec v = s.draw(4096, TE_f32);
        std::vector<float> in(v.begin(), v.end()), out(4096);
        std::vector<uint8_t> bytes(te_block_row_bytes(f, 4096));
        te_quantize_row(bytes.data(), in.data(), 4096, f);
        te_dequantize_row(out.data(), bytes.data(), 4096, f);
        double squares = 0, worst = 0;
        for (size_t i = 0; i < 4096; i++) {
            double amax = 0;
            const size_t group = f == TE_BLOCK_int8 ? 4096 : c > 10 ? (size_t)te_block_values(f) : 32;
            for (size_t j = i / group * group; j < i / group * group + group; j++) amax = std::max(amax, (double)std::fabs(in[j]));
            const double e = std::fabs((double)out[i] - (double)in[i]), step = c < 3 ? 0 : is_k(f) ? 1e9 : steps[c] * amax;
            const double of_dtype = c == 1 ? std::fabs(in[i]) * std::ldexp(1.0, -11) + std::ldexp(1.0, -25) : c == 2 ? std::fabs(in[i]) * std::ldexp(1.0, -8) : 0;
            squares += e * e, worst = std::max(worst, e - step - of_dtype - (c < 3 ? 0 : amax * std::ldexp(1.0, -10)));
        }
        INFO(te_block_name(f) << ": relative error " << std::sqrt(squares / 4096));
        CHECK(worst <= 0);
        if (is_k(f)) CHECK(std::sqrt(squares / 4096) < (f == TE_BLOCK_q4_k ? 0.085 : f == TE_BLOCK_q5_k ? 0.043 : 0.022));
        const std::vector<float> zeros(4096, 0.0f);
        te_quantize_row(bytes.data(), zeros.data(), 4096, f);
        te_dequantize_row(out.data(), bytes.data(), 4096, f);
        for (const float z : out) if (z != 0.0f) { CHECK(z == 0.0f); break; }
    }
}

TEST_CASE("products of all formats, from 1 to many rows") {
    source s(fresh_seed());
    struct size { int64_t m, n, k; };
    std::vector<size> sizes = {{1, 1, 256}, {1, 5, 512}, {2, 16, 256}, {3, 17, 768}, {4, 33, 256}, {5, 3, 512}, {8, 35, 512}, {9, 37, 512}, {16, 16, 256}, {24, 18, 256}, {25, 16, 512}, {33, 31, 768}};
    if (TE_CUDA) sizes.insert(sizes.end(), {{1, 300, 2816}, {6, 130, 256}, {10, 129, 768}, {17, 257, 512}, {65, 24, 512}, {300, 40, 768}, {4, 1300, 2304}, {13, 700, 1280}});
    if (TE_CUDA && !brief()) sizes.insert(sizes.end(), {{7, 15, 256}, {11, 16, 1024}, {12, 5, 512}, {14, 144, 256}, {15, 1, 512}, {64, 31, 256}, {1, 4096, 14336}});
    if (!brief()) sizes.insert(sizes.end(), {{1, 131, 2304}, {7, 40, 2560}, {21, 50, 2304}, {530, 19, 256}, {1030, 33, 512}});
    for (const te_block_format f : weight_formats())
        for (const size &z : sizes)
            for (const te_dtype dtype : {TE_f32, TE_bf16, TE_f16}) {
                const std::string name = std::string(te_block_name(f)) + " " + std::to_string(z.m) + " x " + std::to_string(z.n) + " x " + std::to_string(z.k) + " " + te_dtype_name(dtype);
                check_product(name, multiply(one(f, z.n, z.k, s), exact_rows(z.m, z.k, s), z.m, dtype, true));
            }
    // k of one block, or of an odd number of blocks; of one column for floats
    for (const int64_t k : {32, 96, 544, 2080})
        for (const te_block_format f : {TE_BLOCK_q8_0, TE_BLOCK_q4_0, TE_BLOCK_q4_1, TE_BLOCK_q5_0, TE_BLOCK_q5_1, TE_BLOCK_mxfp4, TE_BLOCK_int4z_32, TE_BLOCK_int8})
            for (const int64_t m : {1, 6, 29})
                check_product(std::string(te_block_name(f)) + " k " + std::to_string(k), multiply(one(f, 21, k, s), exact_rows(m, k, s), m, TE_f32, true));
    for (const int64_t k : {128, 384, 1152})
        for (const te_block_format f : {TE_BLOCK_int4_64, TE_BLOCK_int4_128, TE_BLOCK_int4z_64, TE_BLOCK_int4z_128})
            for (const int64_t m : {1, 6, 29})
                check_product(std::string(te_block_name(f)) + " k " + std::to_string(k - k % te_block_values(f)), multiply(one(f, 21, k - (k > 128 && te_block_values(f) == 64) * 64, s), exact_rows(m, k - (k > 128 && te_block_values(f) == 64) * 64, s), m, TE_f32, true));
    const std::vector<int64_t> odd = TE_CUDA ? std::vector<int64_t>() : std::vector<int64_t>{1, 7, 33, 1025};
    for (const int64_t k : odd)
        for (const te_block_format f : {TE_BLOCK_f32, TE_BLOCK_f16, TE_BLOCK_bf16})
            for (const int64_t m : {1, 3, 20})
                check_product(std::string(te_block_name(f)) + " k " + std::to_string(k), multiply(one(f, 6, k, s), exact_rows(m, k, s), m, TE_f32, true));
}

TEST_CASE("products of any activations") { // the host rounds them to 8 bits
    source s(fresh_seed());
    for (const te_block_format f : weight_formats())
        for (const int64_t m : {1, 4, 36}) {
            const product p = multiply(one(f, 24, 768, s), s.draw((size_t)(m * 768), TE_bf16, 0.1, 3), m, TE_f32, false);
            check_product(te_block_name(f), p);
            double squares = 0, whole = 0; // the error of a row of 768 independent roundings is far below the sum of their bounds
            if (TE_CUDA) check_product(te_block_name(f), multiply(one(f, 24, 768, s), s.draw((size_t)(m * 768), TE_f32, 0.1, 3), m, TE_f32, false));
            for (size_t i = 0; i < p.out.size(); i++) squares += (p.out[i] - p.ref[i]) * (p.out[i] - p.ref[i]), whole += p.bound[i] * p.bound[i];
            INFO(te_block_name(f));
            CHECK(std::sqrt(squares / whole) < 0.25);
        }
    // very small and very large activations, whose scales are no normal numbers of f16
    for (const double unit : {1e-30, 1e-12, 1e9})
        for (const te_block_format f : {TE_BLOCK_q8_0, TE_BLOCK_q4_1, TE_BLOCK_q6_k}) {
            reference::vec x = s.draw(3 * 256, TE_bf16);
            for (double &v : x) v *= std::ldexp(1.0, (int)std::log2(unit));
            check_product(te_block_name(f), multiply(one(f, 5, 256, s), x, 3, TE_f32, false));
        }
    // the smallest scales of mxfp4, of which 2^-127 and half of it are no normal numbers
    std::vector<weight> small = one(TE_BLOCK_mxfp4, 21, 256, s);
    for (size_t b = 1; b < small[0].bytes.size(); b += 17) small[0].bytes[b] = (uint8_t)s.below(4);
    for (const int64_t m : {1, 5, 33}) {
        reference::vec x = s.draw((size_t)m * 256, TE_bf16);
        for (double &v : x) v = std::ldexp(v, 100);
        check_product("mxfp4, small scales", multiply(small, x, m, TE_f32, false));
    }
}

TEST_CASE("a weight of parts in several formats") {
    source s(fresh_seed());
    std::vector<weight> w;
    for (const te_block_format f : {TE_BLOCK_q8_0, TE_BLOCK_q4_k, TE_BLOCK_f16, TE_BLOCK_q5_1, TE_BLOCK_bf16, TE_BLOCK_q6_k, TE_BLOCK_f32, TE_BLOCK_q5_k})
        if (!TE_CUDA || !is_float(f)) w.emplace_back(f, 1 + s.below(20), 512, s);
    for (const int64_t m : {1, 5, 11, 40, 70})
        for (const te_dtype dtype : {TE_f32, TE_bf16}) check_product("parts", multiply(w, exact_rows(m, 512, s), m, dtype, true));
}

TEST_CASE("a row's result does not depend on the other rows, up to 24 rows; NaN and infinity stay in their row") {
    source s(fresh_seed());
    for (const te_block_format f : {TE_BLOCK_q8_0, TE_BLOCK_q4_1, TE_BLOCK_q5_0, TE_BLOCK_q4_k, TE_BLOCK_q6_k}) {
        const std::vector<weight> w = one(f, 19, 512, s);
        reference::vec x = s.draw(24 * 512, TE_f32);
        const reference::vec all = multiply(w, x, 24, TE_f32, false).out;
        for (const size_t m : {(size_t)1, (size_t)2, (size_t)3, (size_t)9}) {
            if (TE_CUDA && m == 9) continue; // launched for other rows together
            const reference::vec part = multiply(w, reference::vec(x.begin(), x.begin() + (long)(m * 512)), (int64_t)m, TE_f32, false).out;
            CHECK(part == reference::vec(all.begin(), all.begin() + (long)part.size()));
        }
        for (const double bad : {(double)NAN, (double)INFINITY})
            for (const int64_t m : {2, 32}) {
                reference::vec y = s.draw((size_t)m * 512, TE_f32);
                y[512 + 77] = bad;
                const reference::vec out = multiply(w, y, m, TE_f32, false).out;
                int finite = 0, others = 0;
                for (size_t i = 0; i < out.size(); i++) i / 19 == 1 ? finite += std::isfinite(out[i]) : others += !std::isfinite(out[i]);
                INFO(te_block_name(f) << ", " << m << " rows");
                CHECK(finite == 0);
                CHECK(others == 0);
            }
    }
}

namespace {
// The list `ends`: tokens, a norm, and a head that is tied to the embedding.
template <class M> void check_ends(te_block_format f, te_dtype dtype, te_status (*bind)(M *, void *, te_context *), size_t param_bytes,
                                   size_t (*workspace)(const M *, int64_t, te_context *),
                                   te_status (*infer)(te_tensor, te_tensor, const M *, const te_batch *, te_context *)) {
    source s(fresh_seed());
    const context c;
    te_context *const ctx = (te_context *)&c.c;
    static M m;
    instance_memory memory(ctx, param_bytes);
    weight a(f, 40, 512, s), b(TE_BLOCK_q8_0, 21, 512, s);
    const resident of_parts(ctx, {a.part(), b.part()}, 512);
    const te_quantized_weight w = of_parts.weight;
    REQUIRE(bind(&m, memory.memory.data(), ctx) == TE_OK);
    REQUIRE(te_model_randomize(&m.model, 0.1f, 3, 0, ctx) == TE_OK);
    REQUIRE(te_use_quantized(&m.e.weight, &w, ctx) == TE_OK);
    REQUIRE(te_tie(&m.head.weight, &m.e.weight, ctx) == TE_OK);
    std::vector<int32_t> tokens = {0, 39, 40, 60, 7, 7, 41, 2, 3, 4, 5};
    const int64_t rows = (int64_t)tokens.size();
    REQUIRE(te_context_reserve(ctx, workspace(&m, rows, ctx)) == TE_OK);
    buffer out(ctx, (size_t)rows * 61 * te_dtype_bytes(dtype), 16);
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    buffer token_ids(ctx, tokens.size() * 4, 16);
    token_ids.write_ints(tokens);
    batch.batch = 1, batch.seq = (int)rows, batch.tokens = (const int32_t *)token_ids.data();
    REQUIRE(infer(te_matrix(out.data(), dtype, rows, 61), te_none(), &m, &batch, ctx) == TE_OK);
    std::vector<uint8_t> gains(512 * te_dtype_bytes(dtype));
    REQUIRE(te_copy(ctx, gains.data(), m.n.weight.data, gains.size()) == TE_OK);
    REQUIRE(te_synchronize(ctx) == TE_OK);
    const reference::vec y = out.read(dtype), gain = numbers::loaded(gains.data(), 0, 512, dtype);
    double squares = 0, whole = 0;
    for (int64_t r = 0; r < rows; r++) {
        reference::vec row(512);
        double mean = 0;
        for (int64_t k = 0; k < 512; k++) {
            const int64_t token = tokens[(size_t)r];
            const term t = token < 40 ? a.at(token, k) : b.at(token - 40, k);
            row[(size_t)k] = t.product + t.offset, mean += row[(size_t)k] * row[(size_t)k] / 512;
        }
        for (size_t k = 0; k < 512; k++) row[k] *= gain[k] / std::sqrt(mean + 1e-5);
        for (int64_t j = 0; j < 61; j++) {
            double sum = 0;
            for (int64_t k = 0; k < 512; k++) {
                const term t = j < 40 ? a.at(j, k) : b.at(j - 40, k);
                sum += (t.product + t.offset) * row[(size_t)k];
            }
            const double e = y[(size_t)(r * 61 + j)] - sum;
            squares += e * e, whole += sum * sum;
        }
    }
    INFO(te_block_name(f) << " " << te_dtype_name(dtype) << ": " << std::sqrt(squares / whole));
    // 8 bits: about 0.29 / 127 of a block's amax, some 3 sigma. On CUDA an error of the norm's input and output, each 2^-9 in bf16.
    CHECK(std::sqrt(squares / whole) < (TE_CUDA ? dtype == TE_f32 ? 1e-6 : 0.006 : dtype == TE_f32 ? 0.012 : 0.015));
    // a token outside of the vocabulary is an error, as in other lists; on CUDA its row is NaN
    tokens[4] = 61;
    token_ids.write_ints(tokens);
    const te_status of_token = infer(te_matrix(out.data(), dtype, rows, 61), te_none(), &m, &batch, ctx);
    CHECK(of_token == (TE_CUDA ? TE_OK : TE_ERROR_VALUE));
    if (TE_CUDA) {
        const reference::vec z = out.read(dtype);
        for (size_t i = 0; i < z.size(); i++) REQUIRE((i / 61 == 4 ? std::isnan(z[i]) : z[i] == y[i]));
    }
    // another weight for the owner: the head must be tied again
    const te_quantized_weight same = w;
    REQUIRE(te_use_quantized(&m.e.weight, &same, ctx) == TE_OK);
    tokens[4] = 1;
    token_ids.write_ints(tokens);
    CHECK(infer(te_matrix(out.data(), dtype, rows, 61), te_none(), &m, &batch, ctx) == TE_ERROR_STATE);
    says(c, "te_tie them again");
}
} // namespace

TEST_CASE("an embedding and a tied head") {
    for (const te_block_format f : weight_formats()) {
        check_ends<ends>(f, TE_f32, ends_bind, ends_param_bytes(), ends_workspace_bytes, ends_infer);
        check_ends<ends_bf16>(f, TE_bf16, ends_bf16_bind, ends_bf16_param_bytes(), ends_bf16_workspace_bytes, ends_bf16_infer);
    }
}

TEST_CASE("linears in patterns, and lists with ordinary weights") {
    source s(fresh_seed());
    const context c;
    te_context *const ctx = (te_context *)&c.c;
    pattern m;
    instance_memory memory(ctx, pattern_param_bytes());
    REQUIRE(pattern_bind(&m, memory.memory.data(), ctx) == TE_OK);
    REQUIRE(te_model_randomize(&m.model, 0.1f, 5, 0, ctx) == TE_OK);
    const reference::vec drawn = s.draw(96, TE_f32);
    const std::vector<float> bias(drawn.begin(), drawn.end());
    std::vector<float> first(256 * 96), second(256 * 96);
    REQUIRE(te_copy(ctx, m.b.bias.data, bias.data(), 96 * sizeof(float)) == TE_OK);
    REQUIRE(te_copy(ctx, first.data(), m.a.weight.data, first.size() * sizeof(float)) == TE_OK);
    REQUIRE(te_copy(ctx, second.data(), m.c.weight.data, second.size() * sizeof(float)) == TE_OK);
    REQUIRE(te_synchronize(ctx) == TE_OK);
    std::vector<uint8_t> a(te_block_row_bytes(TE_BLOCK_q8_0, 256) * 96), b(te_block_row_bytes(TE_BLOCK_q8_0, 96) * 256);
    te_quantize_row(a.data(), first.data(), 256 * 96, TE_BLOCK_q8_0);
    te_quantize_row(b.data(), second.data(), 256 * 96, TE_BLOCK_q8_0);
    const resident of_a(ctx, {{a.data(), TE_BLOCK_q8_0, 96}}, 256), of_c(ctx, {{b.data(), TE_BLOCK_q8_0, 256}}, 96);
    const te_quantized_weight w[] = {of_a.weight, of_c.weight};
    for (const int rows : {1, 30, 90}) {
        buffer x(ctx, (size_t)rows * 256 * 4, 16), y(ctx, (size_t)rows * 256 * 4, 16), z(ctx, (size_t)rows * 256 * 4, 16);
        x.write(s.draw((size_t)rows * 256, TE_f32), TE_f32);
        te_batch batch;
        memset(&batch, 0, sizeof batch);
        batch.batch = rows, batch.seq = 1;
        m.a.weight.quantized = m.c.weight.quantized = nullptr;
        REQUIRE(te_context_reserve(ctx, pattern_workspace_bytes(&m, rows, ctx)) == TE_OK); // suffices for both kinds of weights
        REQUIRE(pattern_infer(te_matrix(y.data(), TE_f32, rows, 256), te_matrix(x.data(), TE_f32, rows, 256), &m, &batch, ctx) == TE_OK);
        REQUIRE(te_use_quantized(&m.a.weight, &w[0], ctx) == TE_OK);
        REQUIRE(te_use_quantized(&m.c.weight, &w[1], ctx) == TE_OK);
        REQUIRE(pattern_infer(te_matrix(z.data(), TE_f32, rows, 256), te_matrix(x.data(), TE_f32, rows, 256), &m, &batch, ctx) == TE_OK);
        check_close("q8_0 weights", z.read(TE_f32), y.read(TE_f32), 0.01);
        CHECK(z.read(TE_f32) != y.read(TE_f32));
    }
    // a list with the option and ordinary weights computes the bits of a list without it
    const int64_t dims[] = {40, 24};
    product_list with;
    ordinary without;
    REQUIRE(product_list_set_dims(&with, dims, 2, ctx) == TE_OK);
    REQUIRE(ordinary_set_dims(&without, dims, 2, ctx) == TE_OK);
    instance_memory params(ctx, product_list_param_bytes(&with));
    REQUIRE(product_list_bind(&with, params.memory.data(), ctx) == TE_OK);
    REQUIRE(ordinary_bind(&without, params.memory.data(), ctx) == TE_OK);
    CHECK(with.model.plan->quantized != nullptr);
    CHECK(without.model.plan->quantized == nullptr);
    REQUIRE(te_model_randomize(&with.model, 0.1f, 5, 0, ctx) == TE_OK);
    REQUIRE(te_context_reserve(ctx, product_list_workspace_bytes(&with, 12, ctx)) == TE_OK);
    buffer x(ctx, 12 * 40 * 4, 16), y(ctx, 12 * 24 * 4, 16), z(ctx, 12 * 24 * 4, 16);
    x.write(s.draw(12 * 40, TE_f32), TE_f32);
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = 12;
    REQUIRE(product_list_infer(te_matrix(y.data(), TE_f32, 12, 24), te_matrix(x.data(), TE_f32, 12, 40), &with, &batch, ctx) == TE_OK);
    REQUIRE(ordinary_infer(te_matrix(z.data(), TE_f32, 12, 24), te_matrix(x.data(), TE_f32, 12, 40), &without, &batch, ctx) == TE_OK);
    CHECK(y.raw() == z.raw());
}

TEST_CASE("te_use_quantized refuses, by name") {
    const context c;
    te_context *const ctx = (te_context *)&c.c;
    pattern m;
    other o;
    ends e;
    instance_memory memory(ctx, pattern_param_bytes()), rest(ctx, other_param_bytes()), more(ctx, ends_param_bytes());
    const std::vector<uint8_t> zeros(256 * 256 * 4);
    buffer bytes(ctx, zeros.size());
    const resident q8_0(ctx, {{zeros.data(), TE_BLOCK_q8_0, 96}}, 256), q8_0_90(ctx, {{zeros.data(), TE_BLOCK_q8_0, 90}}, 256);
    const auto refused = [&](te_param *p, std::vector<te_weight_part> part, te_status status, const char *word) {
        const te_quantized_weight w = {part.data(), (int)part.size()};
        const te_param before = *p;
        CHECK(te_use_quantized(p, &w, ctx) == status);
        says(c, word);
        CHECK(memcmp(&before, p, sizeof before) == 0);
    };
    const void *data = bytes.data(), *repacked = q8_0.part[0].data;
    memset(&m, 0, sizeof m);
    refused(&m.a.weight, {{data, TE_BLOCK_q8_0, 96}}, TE_ERROR_NULL, "not bound");
    REQUIRE(pattern_bind(&m, memory.memory.data(), ctx) == TE_OK);
    REQUIRE(other_bind(&o, rest.memory.data(), ctx) == TE_OK);
    REQUIRE(ends_bind(&e, more.memory.data(), ctx) == TE_OK);
    refused(&o.a.weight, {{data, TE_BLOCK_q8_0, 96}}, TE_ERROR_STATE, "a.weight is not the weight of a linear or an embedding or, on the CPU, of an expert_linear, in a list with the option (weights, ..)");
    refused(&m.b.bias, {{data, TE_BLOCK_q8_0, 1}}, TE_ERROR_STATE, "b.bias is not the weight");
    refused(&e.n.weight, {{data, TE_BLOCK_f32, 1}}, TE_ERROR_STATE, "n.weight is not the weight");
    refused(&e.head.weight, {{data, TE_BLOCK_q8_0, 61}}, TE_ERROR_STATE, "head.weight is tied");
    if (TE_CUDA) {
        refused(&m.a.weight, {{repacked, TE_BLOCK_q8_0, 95}}, TE_ERROR_VALUE, "part 0, 95 x 256 in q8_0, was not repacked so");
        refused(&m.a.weight, {{data, TE_BLOCK_q8_0, 96}}, TE_ERROR_VALUE, "part 0, 96 x 256 in q8_0, was not repacked so");
        refused(&m.a.weight, {{zeros.data(), TE_BLOCK_q8_0, 96}}, TE_ERROR_DEVICE, "part 0 does not lie in device memory");
        refused(&m.a.weight, {{data, TE_BLOCK_f16, 96}}, TE_ERROR_VALUE, "part 0 is in f16; on CUDA parts are in formats of blocks");
    }
    refused(&m.a.weight, {{q8_0_90.part[0].data, TE_BLOCK_q8_0, 90}}, TE_ERROR_SHAPE, "its parts have 90 rows, it has 96");
    refused(&m.a.weight, {{q8_0_90.part[0].data, TE_BLOCK_q8_0, 90}, {data, TE_BLOCK_q4_k, 7}}, TE_ERROR_SHAPE, "part 1 has 7 rows, and 6 of the parameter's 96 are left");
    refused(&m.a.weight, {{data, TE_BLOCK_q8_0, 0}, {data, TE_BLOCK_q4_k, 96}}, TE_ERROR_SHAPE, "part 0 has 0 rows");
    refused(&m.a.weight, {{data, TE_BLOCK_q8_0, -1}}, TE_ERROR_SHAPE, "part 0 has -1 rows");
    refused(&m.c.weight, {{data, TE_BLOCK_q6_k, 256}}, TE_ERROR_SHAPE, "96 columns are no multiple of 256, the values of a block of q6_k");
    refused(&m.a.weight, {{data, TE_BLOCK_none, 96}}, TE_ERROR_VALUE, "part 0 has format 0 (none)");
    refused(&m.a.weight, {{data, TE_BLOCK_COUNT, 96}}, TE_ERROR_VALUE, "(unknown)");
    refused(&m.a.weight, {{nullptr, TE_BLOCK_q8_0, 96}}, TE_ERROR_NULL, "part 0 has no data");
    refused(&m.a.weight, {}, TE_ERROR_NULL, "0 parts");
    CHECK(te_use_quantized(nullptr, nullptr, ctx) == TE_ERROR_NULL);
    CHECK(te_use_quantized(&m.a.weight, nullptr, ctx) == TE_ERROR_NULL);
    // a call without the weight's memory says so
    pattern empty;
    REQUIRE(pattern_bind(&empty, nullptr, ctx) == TE_OK);
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = batch.seq = 1;
    buffer x(ctx, 1024, 16), y(ctx, 1024, 16);
    CHECK(pattern_infer(te_matrix(y.data(), TE_f32, 1, 256), te_matrix(x.data(), TE_f32, 1, 256), &empty, &batch, ctx) == TE_ERROR_STATE);
    says(c, "a.weight has no memory");
    CHECK(y.poisoned());
}

TEST_CASE("the example of docs/inference.md") {
    const context c;
    te_context *const ctx = (te_context *)&c.c;
    source s(fresh_seed());
    static head m;
    const weight w(TE_BLOCK_q4_k, 320, 512, s);
    te_weight_part part;
    te_quantized_weight quantized;
    instance_memory memory(ctx, head_param_bytes());
    REQUIRE(head_bind(&m, memory.memory.data(), ctx) == TE_OK);
    const resident blocks(ctx, {w.part()}, 512);
    REQUIRE(use_blocks(&m, &part, &quantized, blocks.part[0].data, ctx) == TE_OK);
    CHECK(m.logits.weight.quantized == &quantized);
}

#if TE_CUDA
TEST_CASE("te_repack_weight refuses, and writes nothing") {
    const context c;
    te_context *const ctx = (te_context *)&c.c;
    const std::vector<uint8_t> bytes(1 << 16);
    buffer memory(ctx, 1 << 16);
    const auto refused = [&](std::vector<te_weight_part> part, int64_t cols, size_t offset, te_status status, const char *word) {
        const te_quantized_weight w = {part.data(), (int)part.size()};
        std::vector<te_weight_part> out(part.size() + 1);
        CHECK(te_repack_weight(out.data(), (char *)memory.data() + offset, &w, cols, ctx) == status);
        says(c, word);
        CHECK(memory.poisoned());
    };
    refused({{bytes.data(), TE_BLOCK_q8_0, 8}, {bytes.data(), TE_BLOCK_f32, 8}}, 64, 0, TE_ERROR_VALUE, "part 1 has format 1 (f32), which is no format of blocks");
    refused({{bytes.data(), TE_BLOCK_COUNT, 8}}, 64, 0, TE_ERROR_VALUE, "(unknown)");
    refused({{bytes.data(), TE_BLOCK_q4_k, 8}}, 64, 0, TE_ERROR_SHAPE, "part 0 is 8 x 64; columns must be a multiple of 256");
    refused({{bytes.data(), TE_BLOCK_q8_0, 0}}, 64, 0, TE_ERROR_SHAPE, "part 0 is 0 x 64");
    refused({{nullptr, TE_BLOCK_q8_0, 8}}, 64, 0, TE_ERROR_NULL, "part 0 has no data");
    refused({{bytes.data(), TE_BLOCK_q8_0, 8}}, 64, 8, TE_ERROR_ALIGNMENT, "not aligned to 16 bytes");
    refused({}, 64, 0, TE_ERROR_NULL, "no parts");
    CHECK(te_repack_weight(nullptr, nullptr, nullptr, 64, ctx) == TE_ERROR_NULL);
}
#else
TEST_CASE("te_repack_weight is for CUDA") {
    const context c;
    std::vector<uint8_t> bytes(34), memory(1024);
    te_weight_part part = {bytes.data(), TE_BLOCK_q8_0, 1};
    const te_quantized_weight w = {&part, 1};
    CHECK(te_repack_weight(&part, memory.data(), &w, 32, (te_context *)&c.c) == TE_ERROR_DEVICE);
    says(c, "the host reads the blocks of a file as they are");
}
#endif

// A repacked value, found as the kernels find it: lane 4 (row % 8) + t has columns 8 t to 8 t + 7 of a group, in q6_k four from 4 t on and
// four from 16 + 4 t on. In blocks of 64 and 128 values a lane has the bytes of two groups beside each other.
TEST_CASE("repacked blocks have the codes and the bytes of the blocks") {
    source s(fresh_seed());
    for (const te_block_format f : formats) {
        if (is_float(f)) continue;
        const int values = te_block_values(f), groups = values / 32;
        const int64_t rows = 21, cols = 3 * values;
        const weight w(f, rows, cols, s);
        std::vector<uint8_t> cells(te__cells_bytes(rows, cols, f));
        CHECK(cells.size() == 32 * w.row_bytes);
        te__repack_rows(cells.data(), w.data(), rows, cols, f);
        const bool is_8bit = f == TE_BLOCK_q8_0 || f == TE_BLOCK_int8, of_pairs = values == 64 || values == 128;
        const size_t low_bytes = is_8bit ? 512 : 256, tile_bytes = 16 * w.row_bytes, high_bytes = f == TE_BLOCK_q6_k ? 128 : (f == TE_BLOCK_q5_0 || f == TE_BLOCK_q5_1 || f == TE_BLOCK_q5_k) ? 64 : 0;
        int wrong = 0;
        for (int64_t r = 0; r < 32; r++)
            for (int64_t col = 0; col < cols; col++) {
                const uint8_t *cell = cells.data() + (size_t)(r / 16) * tile_bytes + (size_t)(col / values) * 16 * (size_t)te_block_bytes(f);
                const int group = (int)(col % values / 32), half = f == TE_BLOCK_q6_k, t = (int)(half ? col / 4 % 4 : col % 32 / 8), i = (int)(half ? col % 4 + col % 32 / 16 * 4 : col % 8), upper = (int)(r % 16 / 8), lane = (int)(r % 8) * 4 + t;
                const uint8_t *low = of_pairs ? cell + group / 2 * 512 + group % 2 * 8 + lane * 8 : cell + (size_t)group * low_bytes, *high = cell + (size_t)groups * low_bytes + (size_t)group * high_bytes;
                const int four = low[lane * 8 + i / 4 * 4 + i % 2 * 2 + i / 2 % 2] >> 4 * upper & 15;
                int code = four;
                if (is_8bit) code = low[lane * 16 + i / 2 * 4 + i % 2 * 2 + upper];
                if (f == TE_BLOCK_mxfp4) { // bits 15 and 8 to 6, or others, of the half of the word of both rows
                    const int number = i / 2 % 2 * 2 + upper, half = low[lane * 8 + i / 4 * 4 + i % 2 * 2] + 256 * low[lane * 8 + i / 4 * 4 + i % 2 * 2 + 1];
                    const int signs[] = {15, 12, 14, 13}, rests[] = {6, 3, 0, 9};
                    code = (half >> signs[number] & 1) * 8 + (half >> rests[number] & 7);
                }
                if (high_bytes == 64) {
                    const int one = high[lane * 2 + i % 2] >> (i / 2 * 2 + 1 - upper) & 1;
                    code = upper ? 2 * four + one : four + 16 * one;
                }
                if (high_bytes == 128) {
                    const int two = high[lane * 4 + i % 2 * 2 + i / 4] >> (i / 2 % 2 * 4 + 2 - 2 * upper) & 3;
                    code = upper ? 4 * four + two : four + 16 * two;
                }
                int expected = 0;
                if (r < rows) {
                    te__block_codes codes;
                    te__block_unpack(&codes, w.data() + (size_t)r * w.row_bytes + (size_t)(col / values) * (size_t)te_block_bytes(f), f);
                    const uint8_t *b = w.data() + (size_t)r * w.row_bytes + (size_t)(col / values) * (size_t)te_block_bytes(f);
                    if (f == TE_BLOCK_mxfp4) code = nibble(b + 1, (int)(col % 16), col % 32 >= 16) == 8 && code == 0 ? 8 : code, expected = nibble(b + 1, (int)(col % 16), col % 32 >= 16);
                    else expected = codes.q[col % values] + (is_8bit ? 128 : has_zero(f) ? b[2] : f == TE_BLOCK_int4_64 || f == TE_BLOCK_int4_128 ? 8 : f == TE_BLOCK_q4_0 ? 8 : f == TE_BLOCK_q5_0 ? 16 : f == TE_BLOCK_q6_k ? 32 : 0);
                }
                wrong += code != expected;
            }
        for (size_t r = 0; f == TE_BLOCK_int8 && r < 32; r++) {
            const uint8_t zeros[4] = {0}, *const scale = cells.data() + (r / 16 + 1) * tile_bytes - 64 + r % 16 * 4;
            wrong += memcmp(scale, (int64_t)r < rows ? w.data() + (r + 1) * w.row_bytes - 4 : zeros, 4) != 0;
        }
        INFO(te_block_name(f));
        CHECK(wrong == 0);
    }
}
