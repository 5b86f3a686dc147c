// attention_options_test.cc -- the options of attention, on every kernel of either target, against a reference in double.
#include "attention.h"

// X(name, dtype, heads, kv_heads, head_dim, options): head sizes of every kernel of CUDA, options in parentheses
#define WINDOWS(X)                                                                                                     \
    X(w_f32_a, f32, 3, 1, 20, (3, 0)) X(w_f32_b, f32, 2, 2, 64, (0, 0)) X(w_f32_c, f32, 2, 1, 64, (5, 90))             \
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

WINDOWS(KERNELS)
SOFTCAPS(KERNELS)

namespace {

const shape windows[] = {WINDOWS(SHAPE)}, softcaps[] = {SOFTCAPS(SHAPE)};

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
