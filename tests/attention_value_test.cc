// attention_value_test.cc -- attention in which the head size of v differs from that of q and k (value_dim), with the other options, on every kernel
// of both targets, against a reference in double. With a bias: attention_bias_test.cc; in cross-attention: cross_attention_test.cc.
#include "attention.h"

// X(name, dtype, heads, kv_heads, head_dim, (left, right, softcap, dropout, varlen, alibi, sinks, only, cross, bias, first, second, top, value))
#define FLOATS(X)                                                                                                               \
    X(f_1, f32, 4, 2, 20, (-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12)) X(f_2, f32, 3, 1, 7, (-1, -1, 0, 0.1f, 0, 1, 1, 0, 0, 0, 0, 0, 0, 9)) \
    X(f_3, f32, 2, 2, 192, (40, 3, 0.5f, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 128)) X(f_4, f32, 2, 1, 64, (-1, 0, 0, 0.2f, 1, 1, 0, 0, 0, 0, 0, 0, 0, 140)) \
    X(f_5, f32, 2, 1, 12, (-1, 7, 1.5f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6)) X(f_6, f32, 1, 1, 5, (-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 256))
#define OTHERS(X)                                                                                                               \
    X(m_1, bf16, 4, 2, 192, (-1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 128)) X(m_2, f16, 2, 1, 64, (33, 1, 0, 0.2f, 1, 1, 0, 0, 0, 0, 0, 0, 0, 128)) \
    X(m_3, bf16, 3, 3, 128, (-1, -1, 2.0f, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 64)) X(m_4, bf16, 2, 1, 32, (-1, 20, 1.0f, 0.1f, 1, 0, 1, 0, 0, 0, 0, 0, 0, 48)) \
    X(m_5, bf16, 2, 2, 96, (-1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 256)) X(m_6, f16, 2, 1, 256, (-1, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16))
#define SM90(X)                                                                                                               \
    X(h_1, bf16, 4, 2, 192, (-1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 128)) X(h_2, f16, 2, 2, 192, (-1, -1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 128)) \
    X(h_3, bf16, 4, 1, 192, (50, 65, 0.9f, 0.1f, 1, 1, 1, 1, 0, 0, 0, 0, 0, 128)) X(h_4, bf16, 3, 3, 192, (-1, 0, 0, 0.2f, 1, 0, 0, 0, 0, 0, 0, 0, 0, 128))
// above 256 columns, two warps share the rows of an output
#define WIDE(X)                                                                                                                 \
    X(w_1, bf16, 2, 1, 512, (-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 256)) X(w_2, f16, 2, 2, 64, (30, 9, 0, 0.1f, 1, 0, 1, 0, 0, 0, 0, 0, 0, 512)) \
    X(w_3, bf16, 2, 1, 280, (-1, -1, 1.5f, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 72)) X(w_4, f16, 4, 2, 264, (-1, 0, 0, 0.2f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 408)) \
    X(w_5, f32, 2, 1, 512, (-1, 0, 0, 0.1f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 40)) X(w_6, f32, 2, 1, 390, (20, 5, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 512))
#define SHAPES(X) FLOATS(X) OTHERS(X) SM90(X) WIDE(X)

SHAPES(KERNELS)

namespace {

const shape shapes[] = {SHAPES(SHAPE)};
const size_t count = sizeof shapes / sizeof shapes[0];

} // namespace

TEST_CASE("attention with value_dim matches the reference", "[attention]") {
    std::vector<shape> equal;
    for (const shape &s : shapes)
        if (!s.f.varlen) equal.push_back(s);
    check_all(equal.data(), equal.size(), {1, 2, 17, 64, 65, 129, 200, 333});
}

TEST_CASE("attention with value_dim at a longer sequence", "[attention]") {
    const unsigned seed = fresh_seed();
    std::printf("attention's values: seed %u\n", seed);
    std::mt19937 random(seed);
    double worst[2] = {0, 0};
    for (const shape &s : shapes) {
        if (s.dim != 192 || s.dtype == TE_f32) continue;
        CAPTURE(seed, dtype_of(s), s.heads, s.kv_heads, s.f.value, s.f.left, s.f.right);
        check(s, 2, brief() ? 150 : TE_CUDA ? 577 : 400, random, worst);
    }
}

TEST_CASE("attention with value_dim, packed sequences of different lengths", "[attention]") {
    const unsigned seed = fresh_seed();
    std::printf("attention's values: seed %u\n", seed);
    std::mt19937 random(seed);
    for (const shape &s : shapes) {
        double worst[2] = {0, 0};
        if (!s.f.varlen) continue;
        CAPTURE(seed, dtype_of(s), s.heads, s.kv_heads, s.dim, s.f.value, s.f.left, s.f.right, s.f.softcap, s.f.dropout);
        check_varlen(s, {1}, random, worst);
        check_varlen(s, {0, 5, 64, 0, 0, 128, 1, 193, 0}, random, worst, true, 0, {193, 0, 0, 1, 130, 0, 61, 6, 0});
        // the other kernels run their backward without scratch memory here
        check_varlen(s, {130, 2, 65}, random, worst, s.f.only == TE_ATTENTION_SM90_ONLY, 300);
        check(s, 3, 70, random, worst);
        std::printf("%-4s heads %d/%d head_dim %3d/%d, varlen: forward %.1e, backward %.1e\n", dtype_of(s), s.heads, s.kv_heads, s.dim, (int)s.value(), worst[0],
                    worst[1]);
    }
}

#if TE_CUDA
#define READY(name, dtype, h, kv, d, options)                                                      \
    {[](te_context *c) { return name##_of::ready(c, &name##_kernels) != nullptr; },                 \
     [](te_context *c) { return name##_back_of::ready(c, &name##_back_kernels) != nullptr; }},
static const struct { bool (*forward)(te_context *), (*backward)(te_context *); } sm90[] = {SHAPES(READY)};

TEST_CASE("attention with head_dim 192 and value_dim 128 runs on wgmma where it can", "[attention]") {
    context ctx;
    int wgmma = 0, forward = 0, backward = 0;
    for (const auto &k : sm90) wgmma |= k.forward(&ctx.c); // true if compiled for sm_90a and run on such a device
    for (size_t i = 0; i < count; i++) {
        const shape &s = shapes[i];
        const bool can = wgmma && s.dtype != TE_f32 && s.f.only != TE_ATTENTION_NO_SM90 && s.dim == 192 && s.f.value == 128;
        CAPTURE(dtype_of(s), s.dim, s.f.value);
        CHECK(sm90[i].forward(&ctx.c) == can);
        CHECK(sm90[i].backward(&ctx.c) == can);
        forward += sm90[i].forward(&ctx.c), backward += sm90[i].backward(&ctx.c);
    }
    std::printf("of %d attention kernels with values of another size %d on wgmma forward, %d backward\n", (int)count, forward, backward);
}
#endif
