// quantized_file_test.cc -- weights in 4 bits in safetensors files: GPTQ, AWQ and MXFP4 as other programs write them, value by value against
// their definitions; casts with their errors; and files that must be refused by name.
#include "folder.h"
#include "harness.h"
#include "te/infer.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>

TE_INFERENCE(file_plain, f32, (rmsnorm, n, 256), (linear, up, 256, 48))
TE_INFERENCE(file_few, (f32, (weights, quantized)), (rmsnorm, n, 256), (linear, up, 256, 48))
// Lists that name the format of their weights, or of one.
TE_INFERENCE(file_int8, (f32, (weights, int8)), (rmsnorm, n, 256), (linear, up, 256, 48))
TE_INFERENCE(file_q8_0, (f32, (weights, q4_k)), (rmsnorm, n, 256), (linear, up, 256, 48, (weights, q8_0)))
TE_INFERENCE(file_int4_128, (bf16, (weights, int4_128)), (rmsnorm, n, 256), (linear, up, 256, 48))
TE_INFERENCE(file_int4z_64, (f32, (weights, int4z_64)), (rmsnorm, n, 256), (linear, up, 256, 48))
TE_INFERENCE(file_mxfp4, (f32, (weights, mxfp4)), (rmsnorm, n, 256), (linear, up, 256, 48))
TE_INFERENCE(file_q4_k, (f32, (weights, quantized)), (rmsnorm, n, 256), (linear, up, 256, 48, (weights, q4_k)))
TE_INFERENCE(file_float, (f32, (weights, int8)), (rmsnorm, n, 256), (linear, up, 256, 48, (weights, none)))
TE_INFERENCE(file_odd, (f32, (weights, int4_128)), (linear, up, 192, 48))
TE_INFERENCE(file_one, (f32, (weights, int8)), (rmsnorm, n, 256), (linear, up, 256, 1))
TE_INFERENCE(file_ends, (f32, (weights, int4_64)), (embedding, e, 48, 256, (weights, q6_k)), (tied_linear, head, 256, 48))

/* [file] */
TE_INFERENCE(mlp, (bf16, (weights, quantized)), (rmsnorm, norm, 256), (linear, up, 256, 48))
static const te_packed parts[] = {{"post_attention_layernorm.weight", "norm", "weight", 0, 0},
                                  {"mlp.up_proj.weight", "up", "weight", 0, 0}};

/* The file and the weights must stay as long as the instance. */
static te_status load(mlp *m, te_block_weights *weights, te_safetensors *file, const char *path, te_context *ctx) {
    te_quantized_source from;
    TE_TRY(te_safetensors_map(file, path, ctx));
    from = te_quantized_source_of(file);
    TE_TRY(mlp_bind(m, 0, ctx));
    return te_quantized_bind(weights, &m->model, parts, 2, "model.layers.0.", &from, ctx);
}
/* [file] */

namespace {

enum { ROWS = 48, COLS = 256 };

// A safetensors file in memory.
struct file {
    std::string header = "{", data;
    void add(const std::string &name, const char *dtype, const std::vector<int64_t> &shape, const void *bytes, size_t n) {
        std::string dims;
        for (const int64_t d : shape) dims += (dims.empty() ? "" : ",") + std::to_string(d);
        header += (header.size() > 1 ? ",\"" : "\"") + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + dims + "],\"data_offsets\":[" +
                  std::to_string(data.size()) + "," + std::to_string(data.size() + n) + "]}";
        data.append((const char *)bytes, n);
    }
    template <class T> void add(const std::string &name, const char *dtype, const std::vector<int64_t> &shape, const std::vector<T> &v) {
        add(name, dtype, shape, v.data(), v.size() * sizeof(T));
    }
    std::string bytes() const {
        const uint64_t n = header.size() + 1;
        return std::string((const char *)&n, 8) + header + "}" + data;
    }
};

// A weight in 4 bits: codes [rows][cols], and for each group of columns and row a zero point and a scale in f16.
struct packed_weight {
    int64_t group, groups;
    std::vector<int> q, zero;
    std::vector<uint16_t> scale;
    std::string name = "up";
    packed_weight(int64_t g, bool symmetric, source &s) : group(g), groups(COLS / g) {
        for (int i = 0; i < ROWS * COLS; i++) q.push_back(s.below(16));
        for (int64_t i = 0; i < groups * ROWS; i++) {
            zero.push_back(symmetric ? 8 : 1 + s.below(15));
            scale.push_back((uint16_t)(0x2400 + s.below(0x800) + 0x8000 * s.below(2)));
        }
    }
    float at(int64_t row, int64_t col) const {
        const size_t g = (size_t)(col / group * ROWS + row);
        return te_float_of_f16(scale[g]) * (float)(q[(size_t)(row * COLS + col)] - zero[g]);
    }
    void scales(file &f) const { f.add(name + ".scales", "F16", {groups, ROWS}, scale); }
    // GPTQ: eight consecutive columns of a row in a word; eight consecutive rows' zero points, minus one in version 1
    void gptq(file &f, int version, bool order) const {
        std::vector<uint32_t> w(COLS / 8 * ROWS, 0), z((size_t)groups * ROWS / 8, 0);
        std::vector<int32_t> g;
        for (size_t r = 0; r < ROWS; r++)
            for (size_t c = 0; c < COLS; c++) w[c / 8 * ROWS + r] |= (uint32_t)q[r * COLS + c] << 4 * (c % 8);
        for (size_t k = 0; k < (size_t)groups; k++)
            for (size_t r = 0; r < ROWS; r++) z[k * (ROWS / 8) + r / 8] |= (uint32_t)(zero[k * ROWS + r] - (version == 1)) << 4 * (r % 8);
        for (int c = 0; c < COLS; c++) g.push_back(c / (int)group);
        f.add(name + ".qweight", "I32", {COLS / 8, ROWS}, w), f.add(name + ".qzeros", "I32", {groups, ROWS / 8}, z), scales(f);
        if (order) f.add(name + ".g_idx", "I32", {COLS}, g);
    }
    // AWQ: rows 0, 2, 4, 6, 1, 3, 5, 7 of eight in a word
    void awq(file &f) const {
        static const int order[] = {0, 2, 4, 6, 1, 3, 5, 7};
        std::vector<uint32_t> w(COLS * ROWS / 8, 0), z((size_t)groups * ROWS / 8, 0);
        for (size_t r = 0; r < ROWS; r += 8)
            for (size_t i = 0; i < 8; i++) {
                const size_t row = r + (size_t)order[i];
                for (size_t c = 0; c < COLS; c++) w[c * (ROWS / 8) + r / 8] |= (uint32_t)q[row * COLS + c] << 4 * i;
                for (size_t k = 0; k < (size_t)groups; k++) z[k * (ROWS / 8) + r / 8] |= (uint32_t)zero[k * ROWS + row] << 4 * i;
            }
        f.add(name + ".qweight", "I32", {COLS, ROWS / 8}, w), f.add(name + ".qzeros", "I32", {groups, ROWS / 8}, z), scales(f);
    }
};
void add_norm(file &f) { f.add("norm.weight", "F32", {COLS}, std::vector<float>(COLS, 1.0f)); }

const te_packed table[] = {{"norm.weight", "n", "weight", 0, 0}, {"up.weight", "up", "weight", 0, 0}};
const te_packed expert_table[] = {{"norm.weight", "n", "weight", 0, 0}, {"experts.up", "up", "weight", 0, 0}};

struct opened {
    std::string bytes;
    context c;
    te_context *ctx = (te_context *)&c.c;
    te_safetensors f;
    te_quantized_source from;
    opened(const file &of) : bytes(of.bytes()) {
        INFO(bytes.substr(8, 300));
        REQUIRE(te_safetensors_open_memory(&f, bytes.data(), bytes.size(), ctx) == TE_OK);
        from = te_quantized_source_of(&f);
    }
    ~opened() { te_safetensors_close(&f); }
    // The values of `up`, converted to f32.
    std::vector<float> values(const te_packed *of) {
        file_plain m;
        te_block_weights w;
        std::vector<float> v((size_t)ROWS * COLS);
        REQUIRE(file_plain_bind(&m, nullptr, ctx) == TE_OK);
        const te_status status = te_quantized_bind(&w, &m.model, of, 2, "", &from, ctx);
        INFO(te_last_error(ctx));
        REQUIRE(status == TE_OK);
        REQUIRE(te_copy(ctx, v.data(), m.up.weight.data, v.size() * 4) == TE_OK);
        REQUIRE(te_synchronize(ctx) == TE_OK);
        te_block_weights_release(&w, ctx);
        return v;
    }
    // The format that `up` keeps in a list that takes it.
    te_block_format format(const te_packed *of) {
        file_few m;
        te_block_weights w;
        REQUIRE(file_few_bind(&m, nullptr, ctx) == TE_OK);
        REQUIRE(te_quantized_bind(&w, &m.model, of, 2, "", &from, ctx) == TE_OK);
        REQUIRE(m.up.weight.quantized);
        const te_block_format f = m.up.weight.quantized->part[0].format;
        te_block_weights_release(&w, ctx);
        return f;
    }
    void refused(const te_packed *of, te_status status, const char *word) {
        file_few m;
        te_block_weights w;
        INFO(word);
        REQUIRE(file_few_bind(&m, nullptr, ctx) == TE_OK);
        CHECK(te_quantized_bind(&w, &m.model, of, 2, "", &from, ctx) == status);
        CHECK_THAT(te_last_error(ctx), Catch::Matchers::Contains(word));
        CHECK((!m.n.weight.data && !m.up.weight.quantized && !w.part && !w.memory && !w.host));
    }
};

} // namespace

TEST_CASE("GPTQ and AWQ: the values of the file, bit by bit, in the largest blocks") {
    source s(fresh_seed());
    const struct { int64_t group; te_block_format symmetric, affine; } sizes[] = {{32, TE_BLOCK_q4_0, TE_BLOCK_int4z_32},
                                                                                  {64, TE_BLOCK_int4_64, TE_BLOCK_int4z_64},
                                                                                  {128, TE_BLOCK_int4_128, TE_BLOCK_int4z_128},
                                                                                  {256, TE_BLOCK_int4_128, TE_BLOCK_int4z_128}};
    for (const auto &size : sizes)
        for (const bool symmetric : {true, false})
            for (int form = 0; form < 4; form++) { // GPTQ without and with g_idx, GPTQ version 2, AWQ
                const packed_weight w(size.group, symmetric, s);
                file f;
                if (form == 3) w.awq(f);
                else w.gptq(f, form == 2 ? 2 : 1, form == 1);
                add_norm(f);
                opened o(f);
                o.from.gptq_v2 = form == 2;
                const std::vector<float> v = o.values(table);
                int wrong = 0;
                for (int64_t r = 0; r < ROWS; r++)
                    for (int64_t c = 0; c < COLS; c++) {
                        const float expected = w.at(r, c);
                        wrong += memcmp(&expected, &v[(size_t)(r * COLS + c)], 4) != 0;
                    }
                INFO("group " << size.group << " symmetric " << symmetric << " form " << form);
                CHECK(wrong == 0);
                CHECK(o.format(table) == (symmetric ? size.symmetric : size.affine));
            }
    // a stored zero point of 15 in GPTQ version 1 is 16
    packed_weight w(128, false, s);
    w.zero[5] = 16;
    file f;
    w.gptq(f, 1, false), add_norm(f);
    opened o(f);
    const std::vector<float> v = o.values(table);
    CHECK(v[5 * COLS] == w.at(5, 0));
}

TEST_CASE("the documented program loads a file of GPTQ") {
    source s(fresh_seed());
    packed_weight w(128, true, s);
    w.name = "model.layers.0.mlp.up_proj";
    file f;
    w.gptq(f, 1, false);
    f.add("model.layers.0.post_attention_layernorm.weight", "F32", {COLS}, std::vector<float>(COLS, 1.0f));
    const folder dir;
    const std::string on_disk = dir / "model.safetensors";
    const std::string bytes = f.bytes();
    std::ofstream(on_disk, std::ios::binary).write(bytes.data(), (std::streamsize)bytes.size());
    const context c;
    te_context *const ctx = (te_context *)&c.c;
    mlp m;
    te_block_weights weights;
    te_safetensors opened_file;
    const te_status status = load(&m, &weights, &opened_file, on_disk.c_str(), ctx);
    INFO(te_last_error(ctx));
    REQUIRE(status == TE_OK);
    REQUIRE(m.up.weight.quantized);
    const te_weight_part &part = m.up.weight.quantized->part[0];
    CHECK(part.format == TE_BLOCK_int4_128);
    if (!TE_CUDA) { // there the blocks are in another order, in device memory
        std::vector<float> row(COLS);
        for (int64_t r = 0; r < ROWS; r++) {
            te_dequantize_row(row.data(), (const char *)part.data + r * (int64_t)te_block_row_bytes(part.format, COLS), COLS, part.format);
            for (int64_t i = 0; i < COLS; i++) REQUIRE(row[(size_t)i] == w.at(r, i));
        }
    }
    te_block_weights_release(&weights, ctx);
    te_safetensors_close(&opened_file);
}

TEST_CASE("MXFP4: the experts of gpt-oss's files") {
    static const float e2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    source s(fresh_seed());
    std::vector<uint8_t> blocks(3 * ROWS * COLS / 2), scales(3 * ROWS * COLS / 32);
    for (uint8_t &b : blocks) b = (uint8_t)s.below(256);
    for (uint8_t &e : scales) e = (uint8_t)(100 + s.below(50));
    file f;
    f.add("experts.up_blocks", "U8", {3, ROWS, COLS / 32, 16}, blocks), f.add("experts.up_scales", "U8", {3, ROWS, COLS / 32}, scales);
    add_norm(f);
    opened o(f);
    for (const size_t expert : {(size_t)0, (size_t)2}) {
        o.from.expert = (int)expert;
        const std::vector<float> v = o.values(expert_table);
        int wrong = 0;
        for (size_t i = 0; i < v.size(); i++) {
            const size_t at = expert * v.size() + i;
            const int code = blocks[at / 2] >> 4 * (at % 2) & 15;
            const float expected = (float)std::ldexp(e2m1[code & 7] * (code > 8 ? -1 : 1), scales[at / 32] - 127);
            wrong += memcmp(&expected, &v[i], 4) != 0;
        }
        CHECK(wrong == 0);
        CHECK(o.format(expert_table) == TE_BLOCK_mxfp4);
    }
    o.from.expert = 3;
    o.refused(expert_table, TE_ERROR_VALUE, "experts.up_blocks has no expert 3 of 3");
    scales[7] = 255;
    file nan, shape, alone;
    nan.add("experts.up_blocks", "U8", {3, ROWS, COLS / 32, 16}, blocks), nan.add("experts.up_scales", "U8", {3, ROWS, COLS / 32}, scales), add_norm(nan);
    opened(nan).refused(expert_table, TE_ERROR_VALUE, "scale 7 of expert 0 of experts.up_scales is NaN");
    shape.add("experts.up_blocks", "U8", {ROWS, 3, COLS / 32, 16}, blocks), shape.add("experts.up_scales", "U8", {3, ROWS, COLS / 32}, scales), add_norm(shape);
    opened(shape).refused(expert_table, TE_ERROR_SHAPE, "is U8 [48, 3, 8, 16], it should be U8 [experts, 48, 8, 16]");
    alone.add("experts.up_blocks", "U8", {3, ROWS, COLS / 32, 16}, blocks), add_norm(alone);
    opened(alone).refused(expert_table, TE_ERROR_FORMAT, "experts.up_blocks has no scales");
}

TEST_CASE("MXFP4 is loaded into views of floats: whole, an expert, every second row") {
    source s(fresh_seed());
    const int64_t experts = 3, rows = 6, cols = 96, groups = cols / 32;
    std::vector<uint8_t> blocks((size_t)(experts * rows * groups * 16)), scales((size_t)(experts * rows * groups));
    for (uint8_t &b : blocks) b = (uint8_t)s.below(256);
    for (uint8_t &e : scales) e = (uint8_t)(120 + s.below(15));
    const auto value = [&](int64_t row, int64_t col) {
        static const float e2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
        const size_t at = (size_t)(row * cols + col);
        const int code = blocks[at / 2] >> 4 * (at % 2) & 15;
        return std::ldexp(e2m1[code & 7] * (code > 8 ? -1 : 1), scales[at / 32] - 127);
    };
    // the two tensors may be in different files
    file of_blocks, of_scales;
    of_blocks.add("up_blocks", "U8", {experts, rows, groups, 16}, blocks), of_scales.add("up_scales", "U8", {experts, rows, groups}, scales);
    const opened q(of_blocks), e(of_scales);
    te_context *ctx = q.ctx;
    const auto view = [&](te_dtype t, int64_t first, int64_t count, int64_t step, const buffer &to) {
        te_safetensor v = te_safetensor_slice(te_safetensor_matrix("up", t, experts * rows, cols, to.data()), first, count, 0, cols);
        v.step[0] = step, v.matrices = experts;
        return v;
    };
    const int64_t ranges[][3] = {{0, experts * rows, 1}, {rows, rows, 1}, {2 * rows, 3, 2}, {2 * rows + 1, 3, 2}};
    for (const te_dtype t : {TE_f32, TE_bf16, TE_f16})
        for (const auto &r : ranges) {
            buffer to(ctx, (size_t)(r[1] * cols) * te_dtype_bytes(t));
            const te_safetensor v = view(t, r[0], r[1], r[2], to);
            REQUIRE(te_mxfp4_load(&q.f, &e.f, &v, ctx) == TE_OK);
            const reference::vec y = to.read(t);
            int wrong = 0;
            for (size_t i = 0; i < y.size(); i++) wrong += y[i] != value(r[0] + (int64_t)i / cols * r[2], (int64_t)i % cols);
            CAPTURE(t, r[0], r[1], r[2]);
            CHECK(wrong == 0); // these values are exact in 16 bits
        }
    buffer to(ctx, (size_t)(experts * rows * cols) * 4);
    const auto refuse = [&](const te_safetensors &in, const te_safetensor &v, te_status status, const char *word) {
        CHECK(te_mxfp4_load(&q.f, &in, &v, ctx) == status);
        CAPTURE(te_last_error(ctx));
        CHECK(std::string(te_last_error(ctx)).find(word) != std::string::npos);
    };
    const te_safetensor good = view(TE_f32, 0, rows, 1, to);
    te_safetensor v = good;
    refuse(q.f, good, TE_ERROR_FORMAT, "has no tensor up_scales");
    v.transposed = 1, refuse(e.f, v, TE_ERROR_VALUE, "no matrix of whole rows");
    v = good, v.count[1] = 32, refuse(e.f, v, TE_ERROR_VALUE, "no matrix of whole rows");
    v = good, v.step[0] = 4, v.first[0] = 1, refuse(e.f, v, TE_ERROR_VALUE, "no matrix of whole rows"); // beyond the last row
    v = good, v.matrices = 2, refuse(e.f, v, TE_ERROR_SHAPE, "up_blocks is U8 [3, 6, 3, 16], it should be U8 [2, 9, 3, 16]");
    scales[(size_t)groups + 1] = 255;
    file nan;
    nan.add("up_scales", "U8", {experts, rows, groups}, scales);
    refuse(opened(nan).f, good, TE_ERROR_VALUE, "a scale of row 1 of up_scales is NaN");
    CHECK(te_mxfp4_load(nullptr, &e.f, &good, ctx) == TE_ERROR_NULL);
}

// The list of M casts x, which the file has in floats, to `format`; the error is that of te_quantize_row, and the product that of the values.
template <class M, class B> void cast_to(opened &o, B bind, te_block_format format, const std::vector<float> &x) {
    std::vector<uint8_t> bytes(te_block_row_bytes(format, COLS));
    std::vector<float> back(COLS);
    double errors = 0, squares = 0;
    M m;
    te_block_weights w;
    INFO(te_block_name(format));
    REQUIRE(bind(&m, nullptr, o.ctx) == TE_OK);
    REQUIRE(te_quantized_bind(&w, &m.model, table, 2, "", &o.from, o.ctx) == TE_OK);
    REQUIRE(m.up.weight.quantized);
    const te_weight_part *const part = m.up.weight.quantized->part;
    CHECK((m.up.weight.weights == format && part->format == format && part->rows == ROWS));
    int wrong = 0;
    for (size_t r = 0; r < ROWS; r++) {
        te_quantize_row(bytes.data(), x.data() + r * COLS, COLS, format);
        te_dequantize_row(back.data(), bytes.data(), COLS, format);
#if !TE_CUDA
        wrong += memcmp(bytes.data(), (const uint8_t *)part->data + r * bytes.size(), bytes.size()) != 0;
#endif
        for (size_t i = 0; i < COLS; i++) {
            const double d = back[i] - x[r * COLS + i];
            errors += d * d, squares += (double)x[r * COLS + i] * x[r * COLS + i];
        }
    }
    CHECK(wrong == 0);
    const double error = w.error[part - w.part];
    CHECK(std::fabs(error - std::sqrt(errors / squares)) < 1e-9);
    CHECK((error > 0.001 && error < 0.2));
    te_block_weights_release(&w, o.ctx);
}

TEST_CASE("casts of plain weights, and their errors") {
    source s(fresh_seed());
    const reference::vec drawn = s.draw((size_t)ROWS * COLS, TE_f32);
    const std::vector<float> x(drawn.begin(), drawn.end());
    file f;
    f.add("up.weight", "F32", {ROWS, COLS}, x), add_norm(f);
    opened o(f);
    CHECK(o.values(table) == x);
    cast_to<file_int8>(o, file_int8_bind, TE_BLOCK_int8, x), cast_to<file_q8_0>(o, file_q8_0_bind, TE_BLOCK_q8_0, x);
    cast_to<file_int4_128>(o, file_int4_128_bind, TE_BLOCK_int4_128, x), cast_to<file_int4z_64>(o, file_int4z_64_bind, TE_BLOCK_int4z_64, x);
    cast_to<file_mxfp4>(o, file_mxfp4_bind, TE_BLOCK_mxfp4, x), cast_to<file_q4_k>(o, file_q4_k_bind, TE_BLOCK_q4_k, x);
    // (weights, none): in the list's dtype
    file_float plain;
    te_block_weights w;
    REQUIRE(file_float_bind(&plain, nullptr, o.ctx) == TE_OK);
    REQUIRE(te_quantized_bind(&w, &plain.model, table, 2, "", &o.from, o.ctx) == TE_OK);
    CHECK((plain.up.weight.data && !plain.up.weight.quantized && plain.up.weight.weights == TE_BLOCK_none));
    te_block_weights_release(&w, o.ctx);
    // a weight of one row is converted
    file one;
    one.add("up.weight", "F32", {1, COLS}, std::vector<float>(x.begin(), x.begin() + COLS)), add_norm(one);
    opened row(one);
    file_one single;
    REQUIRE(file_one_bind(&single, nullptr, row.ctx) == TE_OK);
    const te_status status = te_quantized_bind(&w, &single.model, table, 2, "", &row.from, row.ctx);
    INFO(te_last_error(row.ctx));
    REQUIRE(status == TE_OK);
    CHECK((single.up.weight.data && !single.up.weight.quantized));
    te_block_weights_release(&w, row.ctx);
    // an embedding whose format is its own, and a tied head
    file table_file;
    table_file.add("e", "F32", {ROWS, COLS}, x);
    opened e(table_file);
    file_ends ends;
    const te_packed ends_table[] = {{"e", "e", "weight", 0, 0}};
    REQUIRE(file_ends_bind(&ends, nullptr, e.ctx) == TE_OK);
    REQUIRE(te_quantized_bind(&w, &ends.model, ends_table, 1, "", &e.from, e.ctx) == TE_OK);
    REQUIRE(ends.e.weight.quantized);
    CHECK(ends.e.weight.quantized->part[0].format == TE_BLOCK_q6_k);
    CHECK(te_tie(&ends.head.weight, &ends.e.weight, e.ctx) == TE_OK);
    te_block_weights_release(&w, e.ctx);

    file_int4_128 m;
    char text[256] = {0};
    REQUIRE(file_int4_128_bind(&m, nullptr, o.ctx) == TE_OK);
    REQUIRE(te_quantized_bind(&w, &m.model, table, 2, "", &o.from, o.ctx) == TE_OK);
    FILE *const to = tmpfile();
    te_block_weights_print(to, &w, &m.model);
    rewind(to);
    REQUIRE(fgets(text, sizeof text, to));
    CHECK_THAT(text, Catch::Matchers::Contains("up.weight: 48 x 256 int4_128, relative error 0.1"));
    CHECK(!fgets(text, sizeof text, to));
    fclose(to);
    te_block_weights_release(&w, o.ctx);

    const auto refused = [&](opened &b, te_model *model, const te_packed *of, int count, te_status expected, const char *word) {
        CHECK(te_quantized_bind(&w, model, of, count, "", &b.from, b.ctx) == expected);
        CHECK_THAT(te_last_error(b.ctx), Catch::Matchers::Contains(word));
        CHECK((!w.part && !w.memory && !w.host));
    };
    file bad;
    std::vector<float> y = x;
    y[COLS + 3] = INFINITY;
    bad.add("up.weight", "F32", {ROWS, COLS}, y), add_norm(bad);
    opened b(bad);
    REQUIRE(file_int4_128_bind(&m, nullptr, b.ctx) == TE_OK);
    refused(b, &m.model, table, 2, TE_ERROR_VALUE, "row 1 of up.weight has a value that int4_128 cannot hold");
    file narrow;
    narrow.add("up.weight", "F32", {ROWS, 192}, std::vector<float>(ROWS * 192));
    opened n(narrow);
    file_odd odd;
    REQUIRE(file_odd_bind(&odd, nullptr, n.ctx) == TE_OK);
    refused(n, &odd.model, table + 1, 1, TE_ERROR_SHAPE, "up.weight has 192 columns; for int4_128 they must be a multiple of 128");
    // a file that has the weight in another format of blocks
    file other;
    packed_weight(64, false, s).gptq(other, 1, false), add_norm(other);
    opened z(other);
    REQUIRE(file_int4_128_bind(&m, nullptr, z.ctx) == TE_OK);
    refused(z, &m.model, table, 2, TE_ERROR_VALUE, "up.weight: part 0 is in int4z_64, and the list's option is (weights, int4_128)");
}

TEST_CASE("files that are no such weights are refused by name") {
    source s(fresh_seed());
    const packed_weight w(128, false, s), eight(16, false, s);
    const auto refuse = [&](const std::function<void(file &)> &fill, te_status status, const char *word) {
        file f;
        fill(f), add_norm(f);
        opened(f).refused(table, status, word);
    };
    const std::vector<uint32_t> words((size_t)COLS * ROWS);
    const auto some = [&](size_t n) { return std::vector<uint32_t>(words.begin(), words.begin() + (long)n); };
    refuse([](file &) {}, TE_ERROR_FORMAT, "has no tensor up.weight, and none of it in 4 bits");
    refuse([&](file &f) { eight.gptq(f, 1, false); }, TE_ERROR_VALUE, "up.qweight has groups of 16 columns; multiples of 32 are supported");
    refuse([&](file &f) { f.add("up.qweight", "I32", {COLS / 8, ROWS}, some(COLS / 8 * ROWS)), w.scales(f); }, TE_ERROR_FORMAT, "up.qweight has no qzeros beside it");
    refuse([&](file &f) { f.add("up.qweight", "I32", {COLS / 4, ROWS}, some(COLS / 4 * ROWS)), f.add("up.qzeros", "I32", {2, ROWS / 8}, some(12)), w.scales(f); }, TE_ERROR_SHAPE,
           "up.qweight is I32 [64, 48]; for 48 x 256 in 4 bits it should be I32 [32, 48] of GPTQ or [256, 6] of AWQ"); // 8 bits
    refuse([&](file &f) { f.add("up.qweight", "I32", {COLS / 8, ROWS}, some(COLS / 8 * ROWS)), f.add("up.qzeros", "I32", {1, ROWS / 8}, some(6)), w.scales(f); }, TE_ERROR_SHAPE, "up.qzeros is I32 [1, 6], it should be I32 [2, 6]");
    refuse([&](file &f) { f.add("up.qweight", "I32", {COLS / 8, ROWS}, some(COLS / 8 * ROWS)), f.add("up.qzeros", "I32", {2, ROWS / 8}, some(12)), f.add("up.scales", "F16", {3, 32}, w.scale); }, TE_ERROR_SHAPE, "up.scales is F16 [3, 32], it should be F16 [groups, 48]");
    refuse([&](file &f) { f.add("up.qweight", "I32", {COLS / 8, ROWS}, some(COLS / 8 * ROWS)), f.add("up.qzeros", "I32", {2, ROWS / 8}, some(12)), f.add("up.scales", "I16", {2, ROWS}, w.scale); }, TE_ERROR_SHAPE, "up.scales is I16 [2, 48]");
    packed_weight infinite = w;
    infinite.scale[ROWS + 20] = 0x7c00;
    refuse([&](file &f) { infinite.awq(f); }, TE_ERROR_VALUE, "a scale of group 1 in rows 16 to 31 is not finite");
    refuse([&](file &f) { f.add("up.weight", "F32", {ROWS, COLS - 1}, some(ROWS * (COLS - 1))); }, TE_ERROR_SHAPE, "up.weight is F32 [48, 255], it should be [48, 256]");
    refuse([&](file &f) { f.add("up.weight", "I32", {ROWS, COLS}, some(ROWS * COLS)); }, TE_ERROR_DTYPE, "up.weight is I32 [48, 256]; F32, F16 and BF16 are supported");
    file order;
    w.gptq(order, 1, true), add_norm(order);
    int32_t moved = 1;
    const size_t at = order.data.size() - COLS * 4 /* the norm */ - COLS * 4 + 3 * 4;
    order.data.replace(at, 4, (const char *)&moved, 4);
    opened(order).refused(table, TE_ERROR_VALUE, "up.g_idx is that of act-order (desc_act), which is not supported: column 3 is in group 1, not 0");
    // scales in bf16 are kept if f16 holds them
    std::vector<uint16_t> bf16(w.scale.size());
    for (size_t i = 0; i < bf16.size(); i++) bf16[i] = te_bf16_of_float(0.0123f * (float)(i + 1));
    const auto in_bf16 = [&](file &f) { f.add("up.qweight", "I32", {COLS / 8, ROWS}, some(COLS / 8 * ROWS)), f.add("up.qzeros", "I32", {2, ROWS / 8}, some(12)), f.add("up.scales", "BF16", {2, ROWS}, bf16), add_norm(f); };
    file kept;
    in_bf16(kept);
    CHECK(opened(kept).values(table)[0] == te_float_of_bf16(bf16[0]) * -1.0f);
    bf16[3] = te_bf16_of_float(1e-9f);
    file lost;
    in_bf16(lost);
    opened(lost).refused(table, TE_ERROR_VALUE, "a scale of group 0 in rows 0 to 15 is not finite, or no number of f16");
}

TEST_CASE("a file with random changes is read or refused") { // sanitizers find reads outside of it
    source s(fresh_seed());
    const packed_weight w(64, false, s);
    file forms[3];
    w.gptq(forms[0], 1, true), w.awq(forms[1]);
    forms[2].add("up_blocks", "U8", {2, ROWS, COLS / 32, 16}, std::vector<uint8_t>(2 * ROWS * COLS / 2)), forms[2].add("up_scales", "U8", {2, ROWS, COLS / 32}, std::vector<uint8_t>(2 * ROWS * COLS / 32));
    static const te_packed blocks[] = {{"norm.weight", "n", "weight", 0, 0}, {"up", "up", "weight", 0, 0}};
    int read = 0;
    for (file &f : forms) add_norm(f);
    for (int i = 0; i < (brief() ? 300 : 3000); i++) {
        const std::string whole = forms[i % 3].bytes();
        std::vector<char> bytes(whole.begin(), whole.end());
        const size_t header = 8 + forms[i % 3].header.size();
        for (int k = s.below(4); k >= 0; k--) { // mostly digits, of shapes and offsets
            const size_t at = 8 + (size_t)s.below((int)header - 8);
            if (bytes[at] >= '0' && bytes[at] <= '9') bytes[at] = (char)('0' + s.below(10));
            else if (s.below(8) == 0) bytes[at] = (char)s.below(128);
            else bytes[(size_t)s.below((int)bytes.size() - (int)header) + header] = (char)s.below(256);
        }
        const context c;
        te_context *const ctx = (te_context *)&c.c;
        te_safetensors f;
        if (te_safetensors_open_memory(&f, bytes.data(), bytes.size(), ctx) != TE_OK) continue;
        te_quantized_source from = te_quantized_source_of(&f);
        from.expert = s.below(2);
        file_few m;
        te_block_weights weights;
        REQUIRE(file_few_bind(&m, nullptr, ctx) == TE_OK);
        if (te_quantized_bind(&weights, &m.model, i % 3 == 2 ? blocks : table, 2, "", &from, ctx) == TE_OK) read++, te_block_weights_release(&weights, ctx);
        te_safetensors_close(&f);
    }
    CHECK(read > 0);
}
