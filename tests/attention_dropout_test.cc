// attention_dropout_test.cc -- dropout of attention's probabilities, alone and with the other options, on every kernel of either target,
// against a reference in double that draws the same mask.
#include <set>

#include "attention.h"

// X(name, dtype, heads, kv_heads, head_dim, options): left, right, softcap, dropout
#define DROPOUTS(X)                                                                                                       \
    X(d_f32_a, f32, 3, 1, 20, (-1, 0, 0, 0.3f)) X(d_f32_b, f32, 2, 2, 64, (-1, -1, 0, 0.1f))                              \
    X(d_f32_c, f32, 2, 1, 128, (40, 3, 0.5f, 0.5f)) X(d_bf16_a, bf16, 4, 2, 32, (-1, 0, 0, 0.1f))                         \
    X(d_bf16_b, bf16, 4, 4, 64, (-1, 0, 0, 0.1f)) X(d_bf16_c, bf16, 4, 2, 64, (100, 0, 0, 0.25f))                         \
    X(d_bf16_d, bf16, 2, 2, 64, (-1, -1, 2.0f, 0.2f)) X(d_bf16_e, bf16, 2, 2, 64, (0, 0, 0, 0.4f))                        \
    X(d_bf16_f, bf16, 3, 3, 128, (-1, 0, 0, 0.1f)) X(d_bf16_g, bf16, 4, 2, 128, (-1, -1, 0, 0.9f))                        \
    X(d_bf16_h, bf16, 4, 1, 128, (33, 100, 0.9f, 0.3f)) X(d_bf16_i, bf16, 2, 2, 128, (-1, 0, 30.0f, 0.1f))                \
    X(d_f16_a, f16, 2, 1, 96, (-1, 0, 0, 0.15f)) X(d_f16_b, f16, 2, 2, 128, (64, 0, 0, 0.1f))                             \
    X(d_f16_c, f16, 2, 1, 192, (-1, 7, 1.2f, 0.1f)) X(d_f16_d, f16, 2, 2, 256, (70, 0, 0, 0.1f)) X(d_f16_e, f16, 2, 1, 80, (-1, 0, 0, 0.2f))
DROPOUTS(KERNELS)

namespace {

const shape dropouts[] = {DROPOUTS(SHAPE)};

} // namespace

TEST_CASE("attention with dropout agrees with a reference in double", "[attention]") {
    check_all(dropouts, sizeof dropouts / sizeof dropouts[0], {1, 2, 17, 65, 129, 333});
}

TEST_CASE("attention with dropout at a longer sequence", "[attention]") {
    std::vector<shape> some;
    for (const shape &s : dropouts)
        if (s.dtype == TE_bf16 && s.dim >= 64) some.push_back(s);
    check_all(some.data(), some.size(), {TE_CUDA ? 1100 : 400});
}

// Each pair of a query and a key has 16 bits of its own, and they fall below the limit as often as they should.
TEST_CASE("attention's dropout draws each pair by itself", "[attention]") {
    const int heads = 5, seq = 97;
    const te_rng rng = {fresh_seed(), 3};
    std::set<std::vector<uint32_t>> seen;
    size_t dropped = 0;
    const double p = 0.3;
    const uint32_t limit = TE_DROPOUT_LIMIT(0.3f);
    for (int head = 0; head < heads; head++)
        for (int query = 0; query < seq; query++)
            for (int key = 0; key < seq; key++) {
                const uint32_t counter = (uint32_t)(key / 32 * 64 + query % 8 * 8 + key % 8);
                CHECK(seen.insert({te__attn_draw_row(head, query, seq), counter, (uint32_t)key / 8 % 4, (uint32_t)query / 8 % 2}).second);
                dropped += (size_t)te__attn_dropped(rng, 5, head, query, key, seq, limit);
            }
    const double n = (double)(heads * seq * seq), off = (double)dropped - n * p;
    CHECK(off * off <= 36 * n * p * (1 - p)); // six standard deviations
}

#if TE_CUDA
#define READY(name, dtype, h, kv, d, options)                                                      \
    {[](te_context *c) { return name##_of::ready(c, &name##_kernels) != nullptr; },                 \
     [](te_context *c) { return name##_back_of::ready(c, &name##_back_kernels) != nullptr; }, TE_##dtype, d},
static const struct { bool (*forward)(te_context *), (*backward)(te_context *); te_dtype dtype; int dim; } hopper[] = {DROPOUTS(READY)};

// Whatever the options: where wgmma runs, it runs with them.
TEST_CASE("attention with options runs on wgmma where it can", "[attention]") {
    context ctx;
    int wgmma = 0, forward = 0, backward = 0;
    for (const auto &k : hopper) wgmma |= k.forward(&ctx.c); // compiled for sm_90a, on a device of it
    for (const auto &k : hopper) {
        const int d = k.dim, can = wgmma && k.dtype != TE_f32;
        CAPTURE(te_dtype_name(k.dtype), d);
        CHECK(k.forward(&ctx.c) == (can && (d == 64 || d == 96 || d == 128 || d == 192 || d == 256)));
        CHECK(k.backward(&ctx.c) == (can && (d == 64 || d == 128)));
        forward += k.forward(&ctx.c), backward += k.backward(&ctx.c);
    }
    std::printf("of %d attention kernels with options %d on wgmma forward, %d backward\n", (int)(sizeof hopper / sizeof hopper[0]), forward, backward);
}
#endif
