// (expert_linear, .., (weights, ..)): weights of experts in few bits, in inference on the CPU, against doubles. On CUDA they are refused.
#include "folder.h"
#include "harness.h"
#include "te/infer.h"
#include "te/moe.h"
#include "te/io/quantized_file.h"

enum { IN = 256, OUT = 24, EXPERTS = 5, TOP_K = 2 };
#define EXPERT_OPS \
    (router, r, IN, EXPERTS, (top_k, TOP_K), (renormalise, 1)), (expert_linear, up, IN, OUT, EXPERTS), (combine, r)
TE_INFERENCE(experts_f32, (f32, (weights, quantized)), EXPERT_OPS)
#if !TE_CUDA
TE_INFERENCE(experts_bf16, (bf16, (weights, quantized)), EXPERT_OPS)
TE_INFERENCE(plain, f32, EXPERT_OPS)
TE_INFERENCE(of_file, (f32, (weights, quantized)), (router, r, 64, 3), (expert_linear, up, 64, 16, 3), (expert_bias, up_b, 16, 3), (swiglu, act), (combine, r))

namespace {

// The parts of a weight [EXPERTS * OUT, IN], quantized from random floats, and the numbers that they stand for.
struct weight {
    std::vector<std::vector<uint8_t>> bytes;
    std::vector<te_weight_part> part;
    reference::vec value;
    te_quantized_weight of() const { return {part.data(), (int)part.size()}; }
    void add(source &random, te_block_format f, int64_t rows) {
        const reference::vec from = random.draw((size_t)(rows * IN), TE_f32);
        std::vector<float> row(IN);
        bytes.emplace_back(te_block_row_bytes(f, IN) * (size_t)rows);
        for (int64_t i = 0; i < rows; i++) {
            uint8_t *const to = bytes.back().data() + te_block_row_bytes(f, IN) * (size_t)i;
            for (size_t k = 0; k < IN; k++) row[k] = (float)from[(size_t)i * IN + k];
            te_quantize_row(to, row.data(), IN, f);
            te_dequantize_row(row.data(), to, IN, f);
            value.insert(value.end(), row.begin(), row.end());
        }
        part.push_back({bytes.back().data(), f, rows});
    }
};
template <class M> void check_list(const weight &w, int rows, te_dtype dtype, source &random, te_context *ctx, size_t param_bytes,
                                   te_status (*bind)(M *, void *, te_context *), size_t (*workspace)(const M *, int64_t, te_context *),
                                   te_status (*infer)(te_tensor, te_tensor, const M *, const te_batch *, te_context *)) {
    M m;
    te_batch batch;
    memset(&batch, 0, sizeof batch), batch.batch = 1, batch.seq = rows;
    buffer params(ctx, param_bytes), x(ctx, (size_t)rows * IN * te_dtype_bytes(dtype)), y(ctx, (size_t)rows * OUT * te_dtype_bytes(dtype));
    const reference::vec in = random.draw((size_t)rows * IN, dtype);
    reference::vec gate = random.draw(EXPERTS * IN, dtype);
    x.write(in, dtype);
    REQUIRE(bind(&m, params.data(), ctx) == TE_OK);
    REQUIRE(te_copy(ctx, m.r.weight.data, numbers::stored(gate, dtype).data(), gate.size() * te_dtype_bytes(dtype)) == TE_OK);
    const te_quantized_weight of = w.of();
    REQUIRE(te_use_quantized(&m.up.weight, &of, ctx) == TE_OK);
    REQUIRE(te_context_reserve(ctx, workspace(&m, rows, ctx)) == TE_OK);
    REQUIRE(te_fill(ctx, ctx->workspace, 0xff, ctx->workspace_bytes) == TE_OK);
    const te_status status = infer(te_matrix(y.data(), dtype, rows, OUT), te_matrix(x.data(), dtype, rows, IN), &m, &batch, ctx);
    INFO(te_last_error(ctx));
    REQUIRE(status == TE_OK);
    const reference::vec out = y.read(dtype);
    const double step = dtype == TE_f32 ? 1e-5 : std::ldexp(1.0, -8); // of the format, with the sums in f32
    for (size_t t = 0; t < (size_t)rows; t++) {
        double logit[EXPERTS] = {0}, all = 0;
        size_t chosen[TOP_K];
        for (size_t e = 0; e < EXPERTS; e++)
            for (size_t k = 0; k < IN; k++) logit[e] += in[t * IN + k] * gate[e * IN + k];
        for (size_t k = 0; k < IN; k++) all = std::max(all, std::fabs(in[t * IN + k]));
        for (size_t j = 0; j < TOP_K; j++) {
            chosen[j] = j && !chosen[0] ? 1 : 0;
            for (size_t e = 0; e < EXPERTS; e++)
                if ((!j || e != chosen[0]) && logit[e] > logit[chosen[j]]) chosen[j] = e;
        }
        const double share = 1 / (1 + std::exp(logit[chosen[1]] - logit[chosen[0]]));
        for (size_t n = 0; n < OUT; n++) {
            double want = 0, bound = 0;
            for (size_t j = 0; j < TOP_K; j++) {
                const double part = j ? 1 - share : share;
                for (size_t k = 0; k < IN; k++) {
                    const double v = w.value[(chosen[j] * OUT + n) * IN + k];
                    want += part * v * in[t * IN + k];
                    // half a step of 8 bits, whose scale is rounded to f16; the weights of the router: a few roundings of logits of some 16
                    bound += part * std::fabs(v) * (all / 127 * 0.51 + 2 * step * std::fabs(in[t * IN + k]));
                }
            }
            bound += step * std::fabs(want) + 1e-3 * bound;
            CAPTURE(t, n, want, out[t * OUT + n], bound);
            CHECK(std::fabs(out[t * OUT + n] - want) <= bound);
        }
    }
}
} // namespace

TEST_CASE("weights of experts in few bits", "[moe]") {
    context ctx_owner;
    source random(fresh_seed());
    // one part for all experts; one for each; parts that end inside an expert's rows; several formats
    for (const te_block_format f : {TE_BLOCK_q8_0, TE_BLOCK_mxfp4, TE_BLOCK_q4_k, TE_BLOCK_int8, TE_BLOCK_f16})
        for (const std::vector<int64_t> &rows : {std::vector<int64_t>{EXPERTS * OUT}, {OUT, OUT, OUT, OUT, OUT}, {7, 50, 8, 55}}) {
            weight w;
            for (size_t i = 0; i < rows.size(); i++) w.add(random, i % 2 ? TE_BLOCK_q5_0 : f, rows[i]);
            for (const int tokens : {1, 3, 37}) {
                CAPTURE(te_block_name(f), rows.size(), tokens);
                check_list<experts_f32>(w, tokens, TE_f32, random, &ctx_owner.c, experts_f32_param_bytes(), experts_f32_bind, experts_f32_workspace_bytes, experts_f32_infer);
                check_list<experts_bf16>(w, tokens, TE_bf16, random, &ctx_owner.c, experts_bf16_param_bytes(), experts_bf16_bind, experts_bf16_workspace_bytes, experts_bf16_infer);
            }
        }
}

TEST_CASE("the experts of a file in MXFP4, with the rows of gate and up in turns", "[moe]") {
    static const double e2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    enum { FILE_EXPERTS = 3, FILE_ROWS = 16, GROUPS = 2, ALL = FILE_EXPERTS * FILE_ROWS };
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    const folder f;
    const std::string name = f / "experts.safetensors";
    source random(fresh_seed());
    std::vector<uint8_t> codes(ALL * GROUPS * 16), scales(ALL * GROUPS);
    for (uint8_t &c : codes) c = (uint8_t)random.below(256);
    for (uint8_t &s : scales) s = (uint8_t)(110 + random.below(30));
    const std::vector<uint8_t> bias = numbers::stored(random.draw(ALL, TE_f32), TE_f32), gate = numbers::stored(random.draw(3 * 64, TE_f32), TE_f32);
    const auto place = [](size_t i) { return i % (FILE_ROWS / 2) * 2 + i / (FILE_ROWS / 2); }; // in the file
    const int64_t of_codes[] = {FILE_EXPERTS, FILE_ROWS, GROUPS, 16}, of_two[] = {2, FILE_ROWS, GROUPS, 16};
    const te_packed parts[] = {{"gate", "r", "weight", 0, 0}, {"up", "up", "weight", 0, TE_PACKED_EXPERTS | TE_PACKED_INTERLEAVED},
                               {"up_bias", "up_b", "bias", 0, TE_PACKED_EXPERTS | TE_PACKED_INTERLEAVED}};
    const auto bind = [&](const int64_t *shape, const te_packed *table, of_file *m, te_block_weights *w, te_safetensors *s) {
        const te_safetensor in_file[] = {te_safetensor_of("up_blocks", TE_SAFETENSORS_U8, 4, shape, codes.data()), te_safetensor_of("up_scales", TE_SAFETENSORS_U8, 3, shape, scales.data()),
                                         te_safetensor_matrix("up_bias", TE_f32, FILE_EXPERTS, FILE_ROWS, (void *)bias.data()), te_safetensor_matrix("gate", TE_f32, 3, 64, (void *)gate.data())};
        REQUIRE(te_safetensors_write(name.c_str(), in_file, 4, nullptr, 0, ctx) == TE_OK);
        REQUIRE(te_safetensors_map(s, name.c_str(), ctx) == TE_OK);
        REQUIRE(of_file_bind(m, nullptr, ctx) == TE_OK);
        const te_quantized_source from = te_quantized_source_of(s);
        return te_quantized_bind(w, &m->model, table, 3, "", &from, ctx);
    };
    of_file m;
    te_block_weights w;
    te_safetensors s;
    const te_status status = bind(of_codes, parts, &m, &w, &s);
    INFO(te_last_error(ctx));
    REQUIRE(status == TE_OK);
    REQUIRE((m.up.weight.quantized && m.up.weight.quantized->parts == 1 && m.up.weight.quantized->part->format == TE_BLOCK_mxfp4));
    int wrong = 0;
    for (size_t r = 0; r < ALL; r++) {
        float row[64], b;
        const size_t from = r / FILE_ROWS * FILE_ROWS + place(r % FILE_ROWS);
        te_dequantize_row(row, (const uint8_t *)m.up.weight.quantized->part->data + r * GROUPS * 17, 64, TE_BLOCK_mxfp4);
        for (size_t k = 0; k < 64; k++) {
            const int code = codes[(from * 64 + k) / 2] >> 4 * (k % 2) & 15;
            wrong += (double)row[k] != std::ldexp(e2m1[code & 7] * (code > 7 ? -1 : 1), scales[from * GROUPS + k / 32] - 127);
        }
        memcpy(&b, bias.data() + from * 4, 4);
        wrong += ((const float *)m.up_b.bias.data)[r] != b;
    }
    CHECK(wrong == 0);
    te_block_weights_release(&w, ctx), te_safetensors_close(&s);
    CHECK(bind(of_two, parts, &m, &w, &s) == TE_ERROR_SHAPE);
    CHECK(std::string(te_last_error(ctx)).find("is U8 [2, 16, 2, 16], it should be U8 [experts, 16, 2, 16] of 3 experts") != std::string::npos);
    te_safetensors_close(&s);
    te_packed transposed[] = {parts[0], parts[1], parts[2]};
    transposed[1].form |= TE_PACKED_TRANSPOSED;
    CHECK(bind(of_codes, transposed, &m, &w, &s) == TE_ERROR_VALUE);
    te_safetensors_close(&s);
}

TEST_CASE("weights of experts in few bits are refused, by name", "[moe]") {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    source random(fresh_seed());
    experts_f32 m;
    plain p;
    te_batch batch;
    memset(&batch, 0, sizeof batch), batch.batch = batch.seq = 1;
    buffer params(ctx, experts_f32_param_bytes()), x(ctx, IN * 4), y(ctx, OUT * 4);
    weight w;
    for (int i = 0; i < EXPERTS * OUT; i++) w.add(random, TE_BLOCK_q8_0, 1);
    const te_quantized_weight of = w.of();
    REQUIRE(plain_bind(&p, params.data(), ctx) == TE_OK);
    CHECK(te_use_quantized(&p.up.weight, &of, ctx) == TE_ERROR_STATE);
    REQUIRE(experts_f32_bind(&m, params.data(), ctx) == TE_OK);
    CHECK(te_use_quantized(&m.r.weight, &of, ctx) == TE_ERROR_STATE);
    REQUIRE(te_use_quantized(&m.up.weight, &of, ctx) == TE_OK);
    params.write(reference::vec(params.bytes / 4, 0.0), TE_f32), x.write(reference::vec(IN, 1.0), TE_f32);
    REQUIRE(te_context_reserve(ctx, experts_f32_workspace_bytes(&m, 1, ctx)) == TE_OK);
    CHECK(experts_f32_infer(te_matrix(y.data(), TE_f32, 1, OUT), te_matrix(x.data(), TE_f32, 1, IN), &m, &batch, ctx) == TE_ERROR_SHAPE);
    CHECK(std::string(te_last_error(ctx)).find("has more than 16 parts") != std::string::npos);
}
#else
TEST_CASE("weights of experts in few bits are refused on CUDA", "[moe]") {
    context ctx_owner;
    experts_f32 m;
    const te_weight_part part = {&m, TE_BLOCK_q8_0, EXPERTS * OUT};
    const te_quantized_weight w = {&part, 1};
    buffer params(&ctx_owner.c, experts_f32_param_bytes());
    REQUIRE(experts_f32_bind(&m, params.data(), &ctx_owner.c) == TE_OK);
    CHECK(te_use_quantized(&m.up.weight, &w, &ctx_owner.c) == TE_ERROR_STATE);
    CHECK(std::string(te_last_error(&ctx_owner.c)).find("on the CPU, of an expert_linear") != std::string::npos);
}
#endif
