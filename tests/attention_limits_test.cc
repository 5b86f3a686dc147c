// attention_limits_test.cc -- attention's tiles for GPUs that allow a block 99 KB of shared memory (compute capability 8.6, 8.9, 12.x), on any GPU: this program's
// tiles have this limit in all code, and its kernels are those for 8.0. tests/architectures.sh compiles it for these GPUs with the default limit.
#ifndef TESTS_OF_ARCHITECTURE
#define TE_SHARED_BYTES (99 * 1024)
#endif
#include "attention.h"

#if defined __CUDA_ARCH__ && !defined TE_SHARED_BYTES
static_assert((TE__ATTN_SHARED == 99 * 1024) == (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ / 100 == 12), "the limit of this architecture");
#endif

// X(name, dtype, heads, kv_heads, head_dim, (left, right, softcap, dropout, varlen, alibi, sinks, only, cross, bias, first, second, top, value))
// Head sizes at which a tile becomes smaller, and those beside them.
#define SHAPES(X)                                                                                                                                            \
    X(m_1, bf16, 2, 1, 64, (-1, 0, 0, 0, 0, 0, 0, 2)) X(m_2, f16, 2, 1, 112, (-1, 0, 0, 0.1f, 1, 0, 1, 2)) X(m_3, bf16, 2, 1, 128, (-1, 0, 0, 0, 0, 0, 0, 2))    \
    X(m_4, f16, 4, 2, 128, (40, 9, 1.5f, 0.2f, 0, 1, 1, 2)) X(m_5, bf16, 2, 2, 160, (-1, -1, 0, 0, 0, 0, 0, 2)) X(m_6, bf16, 2, 1, 192, (-1, 0, 0, 0.2f, 1, 0, 0, 2)) \
    X(m_7, bf16, 2, 1, 208, (-1, 7, 0, 0, 0, 1, 0, 2)) X(m_8, bf16, 2, 1, 256, (-1, 0, 0, 0, 0, 0, 0, 2)) X(m_9, f16, 2, 2, 256, (30, 3, 2.0f, 0.1f, 1, 0, 1, 2)) \
    X(m_10, bf16, 2, 1, 192, (-1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 128)) X(m_11, f16, 2, 1, 128, (-1, 0, 0, 0.1f, 0, 0, 0, 2, 0, 0, 0, 0, 0, 256))            \
    X(f_1, f32, 2, 1, 64, (-1, 0)) X(f_2, f32, 2, 1, 128, (-1, 0, 0, 0.2f)) X(f_3, f32, 1, 1, 184, (-1, -1)) X(f_4, f32, 2, 1, 192, (20, 5, 0, 0, 1))              \
    X(f_5, f32, 2, 1, 256, (-1, 0)) X(f_6, f32, 2, 2, 256, (-1, 0, 1.5f, 0.1f, 1, 1, 1))                                                                     \
    X(w_1, bf16, 4, 2, 512, (-1, 0)) X(w_2, f16, 2, 2, 328, (30, 3, 2.0f, 0.1f, 1, 0, 1)) X(w_3, bf16, 2, 1, 256, (-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 512))     \
    X(w_4, f32, 2, 1, 512, (-1, 0)) X(w_5, f32, 1, 1, 384, (-1, 3, 0, 0.1f, 1))

SHAPES(KERNELS)

namespace {

const shape shapes[] = {SHAPES(SHAPE)};

} // namespace

TEST_CASE("attention within 99 KB of shared memory matches the reference", "[attention]") {
    std::vector<shape> equal;
    for (const shape &s : shapes)
        if (!s.f.varlen) equal.push_back(s);
    check_all(equal.data(), equal.size(), {1, 17, 64, 65, TE_CUDA ? 333 : 100});
}

TEST_CASE("attention of packed sequences within 99 KB of shared memory", "[attention]") {
    const unsigned seed = fresh_seed();
    std::mt19937 random(seed);
    double worst[2] = {0, 0};
    for (const shape &s : shapes) {
        if (!s.f.varlen) continue;
        CAPTURE(seed, dtype_of(s), s.heads, s.kv_heads, s.dim);
        for (int seq : {1, 33, TE_CUDA ? 200 : 70}) check(s, 3, seq, random, worst);
    }
}

#if TE_CUDA && defined TE_SHARED_BYTES
TEST_CASE("a kernel that takes more shared memory than the device allows is refused by name", "[attention]") {
    context c;
    c.c.shared_bytes = 64 * 1024;
    static te__attn_kernel k = {(const void *)m_3, 0, 0};
    int small = 0;
    CHECK(te__attn_configure<m_3_of::fallback>(&small, &k, &c.c, "m_3") == TE_ERROR_DEVICE);
    const std::string text = te_last_error(&c.c);
    INFO(text);
    CHECK(text.find("m_3: a block of the code for compute capability") != std::string::npos);
    CHECK(text.find("takes 69632 bytes of shared memory, device 0 allows 65536; compile for its capability") != std::string::npos);
}
#endif
