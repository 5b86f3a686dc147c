// attention_test.cc -- attention forward and backward against a reference in double, on both targets. Options of attention are tested in
// attention_options_test.cc.
#include "attention.h"

// X(name, dtype, heads, kv_heads, head_dim, options): every tested shape; options as in attention_options_test.cc. In bf16 `only` selects the kernels for
// compute capability 9.0 (1) or the other kernels of the same size (2); without it the library chooses, as it does for a user.
#define SHAPES(X)                                                                                                               \
    X(f_1, f32, 4, 4, 64, (-1, -1)) X(f_2, f32, 4, 2, 64, (-1, 0)) X(f_3, f32, 3, 1, 128, (-1, 0)) X(f_4, f32, 3, 1, 20, (-1, 0)) \
    X(f_5, f32, 2, 1, 7, (-1, -1)) X(f_6, f32, 1, 1, 256, (-1, 0))                                                              \
    X(h_1, bf16, 4, 4, 64, (-1, -1, 0, 0, 0, 0, 0, 1)) X(h_2, bf16, 4, 2, 64, (-1, 0, 0, 0, 0, 0, 0, 1))                        \
    X(h_3, bf16, 3, 1, 64, (-1, -1, 0, 0, 0, 0, 0, 1)) X(h_4, bf16, 4, 2, 128, (-1, -1, 0, 0, 0, 0, 0, 1))                      \
    X(h_5, f16, 2, 1, 96, (-1, 0, 0, 0, 0, 0, 0, 1)) X(h_6, bf16, 2, 2, 96, (-1, -1, 0, 0, 0, 0, 0, 1))                         \
    X(h_7, bf16, 2, 1, 192, (-1, 0, 0, 0, 0, 0, 0, 1)) X(h_8, f16, 2, 2, 256, (-1, -1, 0, 0, 0, 0, 0, 1))                       \
    X(a_1, bf16, 4, 4, 64, (-1, 0)) X(a_2, bf16, 4, 4, 128, (-1, 0)) X(a_3, f16, 4, 2, 128, (-1, 0)) X(a_4, bf16, 2, 1, 256, (-1, 0)) \
    X(m_1, bf16, 4, 2, 32, (-1, 0)) X(m_2, bf16, 2, 2, 80, (-1, -1)) X(m_3, bf16, 4, 2, 64, (-1, -1, 0, 0, 0, 0, 0, 2))         \
    X(m_4, f16, 4, 2, 128, (-1, -1, 0, 0, 0, 0, 0, 2))                                                                          \
    X(w_1, bf16, 4, 2, 512, (-1, 0)) X(w_2, f16, 2, 1, 264, (-1, -1)) X(w_3, bf16, 2, 2, 384, (-1, 0))                          \
    X(w_4, f32, 2, 1, 512, (-1, 0)) X(w_5, f32, 2, 2, 301, (-1, -1))
SHAPES(KERNELS)

namespace {

const shape shapes[] = {SHAPES(SHAPE)};

} // namespace

TEST_CASE("attention matches the reference", "[attention]") {
    const unsigned seed = fresh_seed();
    std::printf("attention: seed %u\n", seed);
    std::mt19937 random(seed);
    for (const shape &s : shapes) {
        double worst[2] = {0, 0};
        const int seqs[] = {1, 2, 7, 17, 63, 64, 65, 127, 129, 200}, only = (int)(random() % 10);
        for (const int seq : seqs) {
            if (brief() && seq != seqs[only]) continue;
            CAPTURE(seed, dtype_of(s), s.heads, s.kv_heads, s.dim, s.f.right, s.f.only, seq);
            check(s, seq < 100 ? 3 : 1, seq, random, worst);
            if (TE_CUDA && seq == 65 && s.f.only != TE_ATTENTION_SM90_ONLY) check(s, 2, seq, random, worst, false);
        }
        std::printf("%-4s heads %d/%d head_dim %3d causal %d only %d: forward %.1e, backward %.1e\n", dtype_of(s), s.heads, s.kv_heads,
                    s.dim, s.f.right == 0, s.f.only, worst[0], worst[1]);
    }
}

TEST_CASE("attention at a longer sequence", "[attention]") {
    const unsigned seed = fresh_seed();
    std::printf("attention: seed %u\n", seed);
    std::mt19937 random(seed);
    double worst[2] = {0, 0};
    for (const shape &s : shapes)
        if (s.heads == 4 && s.kv_heads == 2 && s.dim >= 64) {
            CAPTURE(seed, dtype_of(s), s.dim, s.f.right);
            check(s, 2, brief() && !TE_CUDA ? 193 : 577, random, worst);
            if (TE_CUDA) check(s, 1, 1000, random, worst);
        }
}

// Every range that a kernel gets from the mask, against a test of each pair of query and key.
TEST_CASE("the ranges of the attention mask match its pairs", "[attention]") {
    const int windows[][2] = {{-1, -1}, {-1, 0}, {0, 0}, {2, 0}, {1, 3}, {3, 1}, {-1, 2}, {2, -1}, {20, 20}};
    for (const auto &w : windows)
        for (int seq = 1; seq <= 9; seq++) {
            const int left = w[0], right = w[1];
            const te__attn_mask m = te__attn_mask_of(seq, left, right);
            const auto sees = [&](int query, int key) {
                return (left < 0 || key >= query - left) && (right < 0 || key <= query + right);
            };
            CAPTURE(left, right, seq);
            for (int at = 0; at < seq; at++)
                for (int count = 1; at + count <= seq; count++) {
                    const te__attn_range span[2] = {te__attn_keys_of(m, at, count), te__attn_queries_of(m, at, count)};
                    for (int side = 0; side < 2; side++) // a range of queries, or of keys
                        for (int other = 0; other < seq; other++) {
                            int some = 0, all = 1;
                            for (int i = at; i < at + count; i++) {
                                const int yes = side ? sees(other, i) : sees(i, other);
                                some |= yes, all &= yes;
                                CHECK((side ? te__attn_sees(m, other, i) : te__attn_sees(m, i, other)) == yes);
                                CHECK((side ? te__attn_seen(m, i, other) : te__attn_seen(m, other, i)) == yes);
                            }
                            CAPTURE(side, at, count, other);
                            CHECK((other >= span[side].first && other < span[side].end) == some);
                            CHECK((other >= span[side].all_first && other < span[side].all_end) == all);
                            CHECK(te__attn_intersects(span[side], other, 1) == some);
                            CHECK(te__attn_needs_mask(span[side], other, 1) == !all);
                            if (other + 3 > seq) continue;
                            const te__attn_range tiles = te__attn_in_tiles(span[side], 3);
                            if (other % 3 == 0) CHECK(te__attn_intersects(tiles, other / 3, 1) == te__attn_intersects(span[side], other, 3));
                            if (other % 3 == 0) CHECK(te__attn_needs_mask(tiles, other / 3, 1) == te__attn_needs_mask(span[side], other, 3));
                        }
                }
            for (int query = 0; query < seq + 3; query++) // also beyond the end of the sequence
                for (int key = seq; key < seq + 3; key++) CHECK(!te__attn_sees(m, query, key));
        }
}

// Kernels that rescale their accumulators conditionally must rescale when a tile exceeds the running maximum. Here the keys grow towards the first or the last one.
TEST_CASE("attention forward rescales when the running maximum grows", "[attention]") {
    const unsigned seed = fresh_seed();
    std::printf("attention: seed %u\n", seed);
    std::mt19937 random(seed);
    for (const shape &s : shapes)
        for (const int to_first : {0, 1}) {
            const int batch = 2, seq = brief() ? 150 : 400;
            if (brief() && to_first != (int)(random() % 2)) continue;
            CAPTURE(seed, dtype_of(s), s.heads, s.kv_heads, s.dim, s.f.right, to_first);
            context ctx;
            const size_t rows = (size_t)batch * seq, width = s.width(), h = s.out();
            buffer qkv(&ctx.c, s.dtype, rows * width), out(&ctx.c, s.dtype, rows * h), lse(&ctx.c, TE_f32, rows * (size_t)s.heads);
            const std::vector<double> x = qkv.draw(random, [&](size_t i) {
                const size_t column = i % width, key = i / width % seq;
                return column < s.q() || column >= s.qk() ? 1.0f : 0.1f + 40.0f * (float)(to_first ? seq - key : key) / seq;
            });
            te_attention_args a;
            memset(&a, 0, sizeof a);
            a.out = out.data, a.lse = (float *)lse.data, a.qkv = qkv.data, a.batch = batch, a.seq = seq, a.scale = 1.0f / std::sqrt((float)s.dim);
            if (cannot_run(s, &ctx.c, a)) continue;
            REQUIRE(s.forward(&ctx.c, &a) == TE_OK);
            const reference ref = attention(s, batch, seq, a.scale, x, std::vector<double>(rows * h, 0.0));
            // scores are forty times as large as in the other tests, and so are their rounding errors in f32
            const double forward = s.dtype == TE_f32 ? 40e-5 : s.dtype == TE_f16 ? 1e-3 : 1.6e-2;
            CHECK(error(out.read(), ref.out, h, 0, h, forward) <= forward);
            CHECK(error(lse.read(), ref.lse, 1, 0, 1, 1e-5) <= 1e-5);
            const std::vector<uint8_t> first = out.raw();
            out.poison();
            REQUIRE(s.forward(&ctx.c, &a) == TE_OK);
            CHECK(out.raw() == first);
        }
}

TEST_CASE("attention refuses invalid sizes", "[attention]") {
    context ctx;
    te_attention_args a;
    memset(&a, 0, sizeof a);
    a.batch = 1, a.seq = 0, a.scale = 1;
    CHECK(shapes[0].forward(&ctx.c, &a) == TE_ERROR_SHAPE);
    a.seq = 4, a.scale = 0;
    CHECK(shapes[0].backward(&ctx.c, &a) == TE_ERROR_VALUE);
    a.batch = 1 << 30, a.seq = 1 << 20, a.scale = 1;
    CHECK(shapes[0].forward(&ctx.c, &a) == TE_ERROR_OVERFLOW);
}

#if TE_CUDA
#define READY(name, dtype, h, kv, d, options)                                                      \
    {[](te_context *c) { return name##_of::ready(c, &name##_kernels) != nullptr; },                 \
     [](te_context *c) { return name##_back_of::ready(c, &name##_back_kernels) != nullptr; }, TE_##dtype, d},
static const struct { bool (*forward)(te_context *), (*backward)(te_context *); te_dtype dtype; int dim; } sm90[] = {SHAPES(READY)};
static __global__ void compiled_for_90a(int *yes) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    *yes = 1;
#else
    *yes = 0;
#endif
}

TEST_CASE("attention runs on wgmma where it can", "[attention]") {
    context ctx;
    int yes = 0, *there = nullptr, forward = 0, backward = 0;
    REQUIRE(cudaMalloc(&there, sizeof yes) == cudaSuccess);
    compiled_for_90a<<<1, 1>>>(there);
    REQUIRE(cudaMemcpy(&yes, there, sizeof yes, cudaMemcpyDefault) == cudaSuccess);
    REQUIRE(cudaFree(there) == cudaSuccess);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const auto &k = sm90[i];
        const int d = k.dim, can = yes && ctx.c.capability == 900 && k.dtype != TE_f32 && shapes[i].f.only != TE_ATTENTION_NO_SM90;
        CAPTURE(te_dtype_name(k.dtype), d);
        CHECK(k.forward(&ctx.c) == (can && (d == 64 || d == 96 || d == 128 || d == 192 || d == 256)));
        CHECK(k.backward(&ctx.c) == k.forward(&ctx.c));
        forward += k.forward(&ctx.c), backward += k.backward(&ctx.c);
    }
    std::printf("of %d attention kernels %d on wgmma forward, %d backward\n", (int)(sizeof sm90 / sizeof sm90[0]), forward, backward);
}

// The tensors of a backward, for any batch and seq of at most `rows` rows.
struct backward_buffers {
    buffer qkv, out, dout, dqkv, lse, delta, scratch;
    te_attention_args a;
    backward_buffers(te_context *c, const shape &s, size_t rows)
        : qkv(c, s.dtype, rows * s.width()), out(c, s.dtype, rows * s.out()),
          dout(c, s.dtype, out.n), dqkv(c, s.dtype, qkv.n), lse(c, TE_f32, rows * (size_t)s.heads), delta(c, TE_f32, lse.n),
          scratch(c, TE_f32, s.scratch(c, (int64_t)rows) / 4) {
        memset(&a, 0, sizeof a);
        a.out = out.data, a.lse = (float *)lse.data, a.qkv = qkv.data, a.dqkv = dqkv.data, a.dout = dout.data;
        a.delta = (float *)delta.data, a.scratch = scratch.n ? scratch.data : nullptr, a.scale = 0.1f;
    }
};

TEST_CASE("attention backward: the same bits a hundred times, while the device runs other kernels", "[attention]") {
    std::mt19937 random(fresh_seed());
    cudaStream_t stream;
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    {
        context ctx, other;
        other.c.stream = stream;
        for (const shape &s : shapes) {
            if (s.dtype == TE_f32 || s.dim < 64) continue;
            const int batch = 1 + (int)(random() % 3), seq = 1 + (int)(random() % (brief() ? 200 : 1500));
            backward_buffers b(&ctx.c, s, (size_t)(batch * seq));
            b.qkv.draw(random), b.dout.draw(random);
            b.a.batch = batch, b.a.seq = seq;
            if (cannot_run(s, &ctx.c, b.a)) continue;
            REQUIRE(s.forward(&ctx.c, &b.a) == TE_OK);
            REQUIRE(te_synchronize(&ctx.c) == TE_OK);
            buffer elsewhere(&ctx.c, s.dtype, b.out.n);
            REQUIRE(te_synchronize(&ctx.c) == TE_OK);
            te_attention_args load = b.a;
            load.out = elsewhere.data, load.lse = nullptr;
            CAPTURE(dtype_of(s), s.heads, s.kv_heads, s.dim, s.f.right, batch, seq);
            std::vector<uint8_t> first;
            for (int i = 0; i < (brief() ? 5 : 100); i++) {
                for (int j = 0; j < i % 4; j++) REQUIRE(s.forward(&other.c, &load) == TE_OK);
                b.dqkv.poison();
                REQUIRE(s.backward(&ctx.c, &b.a) == TE_OK);
                const std::vector<uint8_t> now = b.dqkv.raw();
                if (i == 0) first = now;
                CHECK((now == first));
            }
            REQUIRE(te_synchronize(&other.c) == TE_OK);
        }
    }
    REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}

// Blocks of backward wait for each other, and must not deadlock at any size. A grid of few blocks, on which a deadlock is likelier, is included.
TEST_CASE("attention backward: ten thousand launches of odd sizes end", "[attention]") {
    std::mt19937 random(fresh_seed());
    const int rows = brief() ? 300 : 3000;
    for (const shape &s : shapes) {
        context ctx;
        if (s.dtype == TE_f32 || !s.scratch(&ctx.c, 1)) continue;
        backward_buffers b(&ctx.c, s, (size_t)rows);
        b.qkv.draw(random), b.dout.draw(random);
        CAPTURE(dtype_of(s), s.heads, s.kv_heads, s.dim, s.f.right);
        const int processors = ctx.c.processors;
        for (int i = 0; i < (brief() ? 2 : 800); i++) {
            ctx.c.processors = i % 4 == 1 ? 2 + (int)(random() % 10) : processors;
            b.a.seq = 1 + (int)(random() % (unsigned)(i % 8 ? std::min(rows, 400) : rows)), b.a.batch = 1 + (int)(random() % (unsigned)(rows / b.a.seq));
            if (i % 16 == 0) REQUIRE(s.forward(&ctx.c, &b.a) == TE_OK);
            REQUIRE(s.backward(&ctx.c, &b.a) == TE_OK);
        }
        REQUIRE(te_synchronize(&ctx.c) == TE_OK);
    }
}

TE_ATTENTION_FORWARD(captured, bf16, 4, 2, 64, 1) // its first launch happens during a stream capture
TE_ATTENTION_BACKWARD(captured_backward, bf16, 4, 2, 64, 1)

TEST_CASE("attention can be captured in a graph", "[attention]") {
    context ctx;
    std::mt19937 random(fresh_seed());
    const size_t rows = 300;
    buffer qkv(&ctx.c, TE_bf16, rows * 8 * 64), out(&ctx.c, TE_bf16, rows * 256), dout(&ctx.c, TE_bf16, rows * 256);
    buffer dqkv(&ctx.c, TE_bf16, qkv.n), lse(&ctx.c, TE_f32, rows * 4), delta(&ctx.c, TE_f32, lse.n);
    qkv.draw(random), dout.draw(random);
    te_attention_args a;
    memset(&a, 0, sizeof a);
    a.out = out.data, a.lse = (float *)lse.data, a.qkv = qkv.data, a.dqkv = dqkv.data, a.dout = dout.data;
    a.delta = (float *)delta.data, a.batch = 2, a.seq = 150, a.scale = 0.1f;
    buffer scratch(&ctx.c, TE_f32, captured_backward_scratch_bytes(&ctx.c, (int64_t)rows) / 4);
    if (scratch.n) a.scratch = scratch.data;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess); // the fills and copies on the default stream are done
    ctx.c.stream = stream;
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK(captured_launch(&ctx.c, &a) == TE_OK);
    CHECK(captured_backward_launch(&ctx.c, &a) == TE_OK);
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    REQUIRE(cudaGraphLaunch(exec, stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    const std::vector<uint8_t> y = out.raw(), dx = dqkv.raw();
    out.poison(), dqkv.poison();
    REQUIRE(captured_launch(&ctx.c, &a) == TE_OK);
    REQUIRE(captured_backward_launch(&ctx.c, &a) == TE_OK);
    CHECK(out.raw() == y);
    CHECK(dqkv.raw() == dx);
    CHECK(!std::isnan(dqkv.read()[0]));
    REQUIRE(cudaGraphExecDestroy(exec) == cudaSuccess);
    REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
    ctx.c.stream = nullptr;
    REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}
#endif
