// attention_options_test.cc -- the options of attention, alone and combined, on every kernel of both targets, against a reference in double.
#include <set>

#include "attention.h"

// X(name, dtype, heads, kv_heads, head_dim, (left, right, softcap, dropout, varlen, alibi, sinks, only))
//
// The first seven entries of each table, with the shapes without options in attention_test.cc, are an orthogonal array: each pair of window, softcap,
// dropout, varlen, alibi, sinks and grouped heads occurs with both on, both off, and each alone. The other entries have windows that visit the tiles
// in other orders.
#define SM90_64(X)                                                                                                            \
    X(h64_1, bf16, 4, 2, 64, (40, 0, 0, 0, 1, 0, 1, 1)) X(h64_2, bf16, 4, 2, 64, (30, 170, 0, 0.2f, 0, 1, 0, 1))                \
    X(h64_3, bf16, 3, 3, 64, (-1, -1, 0, 0.1f, 1, 1, 1, 1)) X(h64_4, bf16, 2, 2, 64, (-1, 20, 2.0f, 0, 0, 1, 1, 1))             \
    X(h64_5, bf16, 6, 2, 64, (-1, 0, 0.7f, 0, 1, 1, 0, 1)) X(h64_6, bf16, 4, 1, 64, (-1, -1, 50.0f, 0.1f, 0, 0, 1, 1))          \
    X(h64_7, bf16, 2, 2, 64, (190, -1, 1.0f, 0.25f, 1, 0, 0, 1)) X(h64_8, bf16, 4, 4, 64, (0, 0, 0, 0, 0, 0, 0, 1))
// the code of head size 64 with other tiles, which compiles ten times as long: one entry with all options, and the other kinds of windows
#define SM90_128(X)                                                                                                           \
    X(h128_1, bf16, 6, 2, 128, (50, 65, 0.9f, 0.1f, 1, 1, 1, 1)) X(h128_2, bf16, 4, 2, 128, (64, 0, 0, 0, 1, 0, 1, 1))          \
    X(h128_3, bf16, 2, 2, 128, (-1, 0, 0.8f, 0, 0, 1, 0, 1)) X(h128_4, f16, 3, 1, 128, (-1, -1, 0, 0.5f, 0, 0, 0, 1))
// 96 is the code of 128, whose last TMA box of columns is partly used; 192 and 256 have another backward kernel, which splits dQ into three and four
#define SM90_OTHERS(X)                                                                                                        \
    X(h96, f16, 2, 1, 96, (65, 0, 0.9f, 0.15f, 0, 1, 1, 1)) X(h192, bf16, 2, 1, 192, (20, 30, 0, 0.1f, 1, 1, 0, 1))             \
    X(h256_1, f16, 2, 2, 256, (70, 0, 2.0f, 0, 0, 0, 1, 1)) X(h256_2, bf16, 2, 1, 256, (-1, 9, 0, 0.1f, 1, 1, 0, 1))
#define OTHERS(X)                                                                                                               \
    X(m_1, bf16, 4, 2, 32, (40, 0, 0, 0, 1, 0, 1, 2)) X(m_2, bf16, 2, 1, 64, (33, 1, 0, 0.2f, 0, 1, 0, 2))                      \
    X(m_3, bf16, 2, 2, 128, (-1, 0, 0, 0.2f, 1, 1, 1, 2)) X(m_4, f16, 2, 2, 80, (-1, 20, 1.0f, 0, 0, 1, 1, 2))                  \
    X(m_5, bf16, 4, 2, 128, (-1, -1, 30.0f, 0, 1, 1, 0, 2)) X(m_6, bf16, 4, 1, 64, (-1, 0, 1.0f, 0.1f, 0, 0, 1, 2))             \
    X(m_7, bf16, 2, 2, 32, (100, -1, 0.9f, 0.1f, 1, 0, 0, 2)) X(m_8, bf16, 3, 3, 128, (63, 0, 0, 0, 0, 0, 0, 2))                \
    X(m_9, bf16, 2, 1, 192, (-1, 7, 1.2f, 0, 0, 0, 1, 2))                                                                       \
    X(m_10, bf16, 2, 1, 512, (40, 9, 1.5f, 0.1f, 1, 1, 1, 2)) X(m_11, f16, 2, 1, 320, (50, 0, 0, 0.2f, 0, 0, 1, 0))
#define FLOATS(X)                                                                                                               \
    X(f_1, f32, 3, 1, 20, (5, 90, 0, 0, 1, 0, 1)) X(f_2, f32, 6, 2, 64, (-1, 4, 0, 0.1f, 0, 1, 0))                              \
    X(f_3, f32, 2, 2, 64, (-1, 0, 0, 0.3f, 1, 1, 1)) X(f_4, f32, 2, 2, 128, (40, 3, 0.5f, 0, 0, 1, 1))                          \
    X(f_5, f32, 2, 1, 64, (-1, -1, 50.0f, 0, 1, 1, 0)) X(f_6, f32, 3, 1, 20, (-1, 0, 1.5f, 0.1f, 0, 0, 1))                      \
    X(f_7, f32, 2, 1, 72, (70, -1, 1.5f, 0.2f, 1, 0, 0)) X(f_8, f32, 1, 1, 7, (100000, 0)) X(f_9, f32, 2, 2, 64, (0, 0))                          \
    X(f_10, f32, 2, 1, 512, (30, 2, 1.5f, 0.1f, 1, 1, 1))
#define SHAPES(X) SM90_64(X) SM90_128(X) SM90_OTHERS(X) OTHERS(X) FLOATS(X)

SHAPES(KERNELS)

namespace {

const shape shapes[] = {SHAPES(SHAPE)};
const size_t count = sizeof shapes / sizeof shapes[0];

} // namespace

TEST_CASE("attention with options matches the reference", "[attention]") {
    std::vector<shape> equal;
    for (const shape &s : shapes)
        if (!s.f.varlen) equal.push_back(s);
    check_all(equal.data(), equal.size(), {1, 2, 17, 64, 65, 129, 200, 333});
}

// Long enough for several bands of key tiles in backward, and for more tiles than pipeline stages in forward.
TEST_CASE("attention with options at a longer sequence", "[attention]") {
    const unsigned seed = fresh_seed();
    std::printf("attention's options: seed %u\n", seed);
    std::mt19937 random(seed);
    double worst[2] = {0, 0};
    for (const shape &s : shapes) {
        const bool window = s.f.left >= 0 && s.f.right >= 0;
        if (s.dtype == TE_f32 || (s.dim != 64 && s.dim != 128)) continue;
        CAPTURE(seed, dtype_of(s), s.heads, s.kv_heads, s.dim, s.f.left, s.f.right);
        check(s, 1, !TE_CUDA ? (brief() ? 150 : 400) : window ? 2500 : 1100, random, worst);
        if (TE_CUDA && window) check(s, 5, 2177, random, worst);
    }
}

TEST_CASE("attention of packed sequences equals that of each sequence alone", "[attention]") {
    const unsigned seed = fresh_seed();
    std::printf("attention's options: seed %u\n", seed);
    std::mt19937 random(seed);
    for (const shape &s : shapes) {
        double worst[2] = {0, 0};
        if (!s.f.varlen) continue;
        CAPTURE(seed, dtype_of(s), s.heads, s.kv_heads, s.dim, s.f.left, s.f.right, s.f.softcap, s.f.dropout);
        check_varlen(s, {1}, random, worst);
        check_varlen(s, {0, 5, 64, 0, 0, 128, 1, 193, 0}, random, worst, true, 0, {193, 0, 0, 1, 130, 0, 61, 6, 0});
        // the other kernels run their backward without scratch memory here
        check_varlen(s, {130, 2, 65}, random, worst, s.f.only == TE_ATTENTION_SM90_ONLY, 300);
        if (!brief()) {
            std::vector<int> lengths;
            for (int i = 0; i < 40; i++) lengths.push_back((int)(random() % (i % 8 ? 20 : TE_CUDA ? 900 : 200)));
            check_varlen(s, lengths, random, worst);
        }
        for (const int seq : {70, 17, 200}) // the same kernels with sequences of equal length
            if (!brief() || seq == 70) check(s, 3, seq, random, worst);
        std::printf("%-4s heads %d/%d head_dim %3d, varlen: forward %.1e, backward %.1e\n", dtype_of(s), s.heads, s.kv_heads, s.dim, worst[0], worst[1]);
    }
}

TEST_CASE("attention with sinks refuses to run without them", "[attention]") {
    context ctx;
    te_attention_args a;
    memset(&a, 0, sizeof a);
    a.batch = 1, a.seq = 4, a.scale = 1;
    CHECK(f_6_launch(&ctx.c, &a) == TE_ERROR_NULL);
    CHECK(f_6_back_launch(&ctx.c, &a) == TE_ERROR_NULL);
}

// Each pair of a query and a key has its own 16 random bits, and they are below the limit as often as the probability says.
TEST_CASE("attention's dropout draws each pair of query and key independently", "[attention]") {
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

// The functions by which kernels read cu_seqlens, against a count of every row; with invalid cu_seqlens they must still stay within the rows.
TEST_CASE("packed sequences begin where cu_seqlens says", "[attention]") {
    std::mt19937 random(fresh_seed());
    for (int time = 0; time < 300; time++) {
        const int count = 1 + (int)(random() % 7), size = 1 + (int)(random() % 5), bad = time % 3 == 2;
        std::vector<int32_t> first(1, 0);
        int longest = 1;
        for (int i = 0; i < count; i++) {
            first.push_back(first.back() + (int)(random() % 9));
            longest = std::max(longest, first[(size_t)i + 1] - first[(size_t)i]);
        }
        const int rows = first.back();
        if (bad)
            for (int32_t &n : first) n = (int32_t)(random() % 5 ? random() % 40 - 5 : random());
        te_sequences s = {first.data(), count, longest, rows};
        if (time % 3 == 1) s.first = nullptr, s.rows = count * longest;
        CAPTURE(first, longest, size);
        std::vector<int> taken((size_t)s.rows, 0), tiles((size_t)te_sequence_tiles(&s, size) + 1, -1);
        te_sequence_cursor w = te_sequence_cursor_begin(&s, size);
        for (int tile = 0; tile < te_sequence_tiles(&s, size); tile++) {
            te_sequence_cursor_seek(&w, &s, tile, size);
            const int row = (tile - w.tile) * size, i = te_sequence_of(&s, tile, size);
            REQUIRE((i >= 0 && i < count));
            REQUIRE((row >= 0 && w.at.first >= 0 && w.at.count >= 0 && w.at.count <= longest && w.at.first + w.at.count <= s.rows));
            for (int r = row; r < row + size && r < w.at.count; r++) taken[(size_t)(w.at.first + r)]++;
            if (row < w.at.count && !bad) CHECK(i == w.index);
        }
        for (int row = 0; row < s.rows; row++) {
            CHECK((bad ? taken[(size_t)row] <= 1 : taken[(size_t)row] == 1));
            const int i = te_sequence_of(&s, row, 0), position = te_sequence_position(&s, row);
            if (bad) continue;
            const te_sequence found = te_sequence_rows(&s, i);
            CHECK((found.first <= row && row < found.first + found.count));
            CHECK(position == row - found.first);
        }
    }
}

#if TE_CUDA
#define READY(name, dtype, h, kv, d, options)                                                      \
    {[](te_context *c) { return name##_of::ready(c, &name##_kernels) != nullptr; },                 \
     [](te_context *c) { return name##_back_of::ready(c, &name##_back_kernels) != nullptr; }, TE_##dtype, d},
static const struct { bool (*forward)(te_context *), (*backward)(te_context *); te_dtype dtype; int dim; } sm90[] = {SHAPES(READY)};

// No option makes attention fall back from wgmma.
TEST_CASE("attention with options runs on wgmma where it can", "[attention]") {
    context ctx;
    int wgmma = 0, forward = 0, backward = 0;
    for (const auto &k : sm90) wgmma |= k.forward(&ctx.c); // true if compiled for sm_90a and run on such a device
    for (size_t i = 0; i < count; i++) {
        const auto &k = sm90[i];
        const int d = k.dim, can = wgmma && k.dtype != TE_f32 && shapes[i].f.only != TE_ATTENTION_NO_SM90;
        CAPTURE(te_dtype_name(k.dtype), d);
        const bool wide = d == 64 || d == 96 || d == 128 || d == 192 || d == 256;
        CHECK(k.forward(&ctx.c) == (can && wide));
        CHECK(k.backward(&ctx.c) == (can && wide));
        forward += k.forward(&ctx.c), backward += k.backward(&ctx.c);
    }
    std::printf("of %d attention kernels with options %d on wgmma forward, %d backward\n", (int)(sizeof sm90 / sizeof sm90[0]), forward, backward);
}
#endif
