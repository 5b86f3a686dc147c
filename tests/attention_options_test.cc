// attention_options_test.cc -- the options of attention, on every kernel of either target, against a reference in double.
#include "attention.h"

// X(name, dtype, heads, kv_heads, head_dim, options): head sizes of every kernel of CUDA, options in parentheses
#define WINDOWS(X)                                                                                                     \
    X(w_f32_a, f32, 3, 1, 20, (3, 0)) X(w_f32_b, f32, 2, 2, 64, (0, 0)) X(w_f32_A, f32, 6, 2, 20, (-1, 0, 0, 0, 0, 1)) X(w_bf16_A, bf16, 3, 1, 64, (-1, -1, 0, 0.1f, 0, 1)) X(w_f32_c, f32, 2, 1, 64, (5, 90))             \
    X(w_f32_d, f32, 2, 1, 128, (-1, 4)) X(w_f32_e, f32, 1, 1, 256, (70, -1)) X(w_f32_f, f32, 1, 1, 7, (100000, 0))     \
    X(w_bf16_a, bf16, 4, 2, 32, (40, 0)) X(w_bf16_b, bf16, 4, 4, 64, (37, 0)) X(w_bf16_c, bf16, 4, 2, 64, (100, 0))    \
    X(w_bf16_d, bf16, 2, 2, 64, (0, 0)) X(w_bf16_e, bf16, 3, 1, 64, (30, 170)) X(w_bf16_f, bf16, 2, 2, 64, (-1, 20))   \
    X(w_bf16_g, bf16, 2, 1, 64, (190, -1)) X(w_bf16_h, bf16, 3, 3, 128, (63, 0)) X(w_bf16_i, bf16, 4, 2, 128, (64, 0)) \
    X(w_bf16_j, bf16, 2, 2, 128, (0, 0)) X(w_bf16_k, bf16, 4, 1, 128, (50, 65)) X(w_bf16_l, bf16, 2, 2, 128, (-1, 0))  \
    X(w_bf16_m, bf16, 2, 2, 128, (90, -1)) X(w_f16_a, f16, 2, 1, 96, (65, 0)) X(w_f16_b, f16, 2, 2, 128, (3, 200))     \
    X(w_f16_c, f16, 2, 1, 192, (20, 30)) X(w_f16_d, f16, 2, 2, 256, (70, 0)) X(w_f16_e, f16, 2, 1, 80, (33, 1))

#define SOFTCAPS(X)                                                                                                                       \
    X(s_f32_a, f32, 3, 1, 20, (-1, 0, 1.5f)) X(s_f32_b, f32, 2, 2, 64, (-1, -1, 50.0f)) X(s_f32_c, f32, 2, 1, 128, (40, 3, 0.5f))         \
    X(s_bf16_a, bf16, 4, 2, 32, (-1, 0, 1.0f)) X(s_bf16_b, bf16, 4, 4, 64, (-1, 0, 50.0f)) X(s_bf16_c, bf16, 4, 2, 64, (100, 0, 0.7f))    \
    X(s_bf16_d, bf16, 2, 2, 64, (-1, -1, 2.0f)) X(s_bf16_e, bf16, 3, 3, 128, (-1, 0, 1.0f)) X(s_bf16_f, bf16, 4, 2, 128, (-1, -1, 30.0f)) \
    X(s_bf16_g, bf16, 4, 1, 128, (33, 100, 0.9f)) X(s_f16_a, f16, 2, 1, 96, (-1, 0, 1.5f)) X(s_f16_b, f16, 2, 2, 128, (64, 0, 0.8f))      \
    X(s_f16_c, f16, 2, 1, 192, (-1, 7, 1.2f)) X(s_f16_d, f16, 2, 2, 256, (70, 0, 2.0f))

// sequences that differ in length; the kernels that each target has, with what else an option may be
#define VARLENS(X)                                                                                                                        \
    X(v_f32_a, f32, 3, 1, 20, (-1, 0, 0, 0, 1)) X(v_f32_b, f32, 2, 2, 64, (5, 3, 1.5f, 0.2f, 1, 1)) X(v_bf16_a, bf16, 4, 2, 32, (40, 0, 0, 0.2f, 1)) \
    X(v_bf16_b, bf16, 4, 4, 64, (-1, 0, 0, 0, 1)) X(v_bf16_c, bf16, 4, 2, 64, (-1, -1, 0, 0.2f, 1)) X(v_bf16_d, bf16, 4, 2, 128, (-1, 0, 0, 0, 1)) \
    X(v_bf16_e, bf16, 2, 2, 128, (-1, -1, 0, 0, 1)) X(v_bf16_f, bf16, 2, 2, 128, (70, 0, 0.9f, 0.1f, 1)) X(v_f16_a, f16, 2, 1, 192, (-1, 9, 0, 0, 1))

WINDOWS(KERNELS)
VARLENS(KERNELS)
SOFTCAPS(KERNELS)

namespace {

const shape windows[] = {WINDOWS(SHAPE)}, softcaps[] = {SOFTCAPS(SHAPE)}, varlens[] = {VARLENS(SHAPE)};

} // namespace

TEST_CASE("attention with a window agrees with a reference in double", "[attention]") {
    check_all(windows, sizeof windows / sizeof windows[0], {1, 2, 17, 64, 65, 129, 200, 333});
}

TEST_CASE("attention with softcap agrees with a reference in double", "[attention]") {
    check_all(softcaps, sizeof softcaps / sizeof softcaps[0], {1, 2, 17, 65, 129, 333});
}

// Several bands of key tiles in backward, and more tiles than stages in forward.
TEST_CASE("attention with a window at a longer sequence", "[attention]") {
    const unsigned seed = fresh_seed();
    std::printf("attention's options: seed %u\n", seed);
    std::mt19937 random(seed);
    double worst[2] = {0, 0};
    for (const shape &s : windows)
        if (s.f.left >= 0 && s.f.right >= 0 && s.f.left < 1000 && (s.dim == 64 || s.dim == 128)) {
            CAPTURE(seed, dtype_of(s), s.heads, s.kv_heads, s.dim, s.f.left, s.f.right);
            check(s, 1, TE_CUDA ? 2500 : 700, random, worst);
            if (TE_CUDA) check(s, 5, 2177, random, worst);
        }
}

TEST_CASE("attention of sequences that differ in length: each as if it were alone", "[attention]") {
    const unsigned seed = fresh_seed();
    std::printf("attention's options: seed %u\n", seed);
    std::mt19937 random(seed);
    for (const shape &s : varlens) {
        double worst[2] = {0, 0};
        CAPTURE(seed, dtype_of(s), s.heads, s.kv_heads, s.dim, s.f.left, s.f.right, s.f.softcap, s.f.dropout);
        check_varlen(s, {1}, random, worst);
        check_varlen(s, {0, 5, 64, 0, 0, 128, 1, 193, 0}, random, worst, true, 0, {193, 0, 0, 1, 130, 0, 61, 6, 0});
        check_varlen(s, {130, 2, 65}, random, worst, false, 300);
        if (!brief()) {
            std::vector<int> lengths;
            for (int i = 0; i < 40; i++) lengths.push_back((int)(random() % (i % 8 ? 20 : TE_CUDA ? 900 : 200)));
            check_varlen(s, lengths, random, worst);
        }
        check(s, 3, 70, random, worst); // and of sequences that do not
        std::printf("%-4s heads %d/%d head_dim %3d, varlen: forward %.1e, backward %.1e\n", dtype_of(s), s.heads, s.kv_heads, s.dim, worst[0], worst[1]);
    }
}

// Against a count of rows, one by one: what kernels ask of cu_seqlens, and that no answer leaves the rows.
TEST_CASE("sequences that differ in length lie where cu_seqlens says", "[attention]") {
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
        te_sequence_walk w = te_sequence_walk_of(&s, size);
        for (int tile = 0; tile < te_sequence_tiles(&s, size); tile++) {
            te_sequence_walk_to(&w, &s, tile, size);
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
            const te_sequence own = te_sequence_rows(&s, i);
            CHECK((own.first <= row && row < own.first + own.count));
            CHECK(position == row - own.first);
        }
    }
}
