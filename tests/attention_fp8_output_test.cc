// attention_fp8_output_test.cc -- the options fp8_output and amax_output of every attention kernel. The e4m3 output has the bits of the
// output in the list's dtype followed by a cast; the amax of the output, and of its gradient, is exact. In a list these options replace a
// cast kernel and an amax kernel.
#include "harness.h"
#include "launches.h"
#include "recipe.h"
#include "te/te.h"

// The options of a kernel with fp8_output and a window of `left` and `right` keys (-1: unlimited).
#define FORM(left, right) (left, right, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)
#define BOTH(name, dtype, heads, kv_heads, head_dim, left, right)                           \
    TE_ATTENTION_FORWARD_OF(name, dtype, heads, kv_heads, head_dim, FORM(left, right))      \
    TE_ATTENTION_BACKWARD_OF(name##_back, dtype, heads, kv_heads, head_dim, FORM(left, right))
BOTH(plain_64, bf16, 4, 2, 64, -1, 0)
BOTH(plain_128, f16, 2, 1, 128, -1, -1)
BOTH(window_128, bf16, 2, 2, 128, 70, 9)
BOTH(wide_256, bf16, 1, 1, 256, -1, 0)
BOTH(odd_48, bf16, 3, 3, 48, -1, 0)
BOTH(odd_80, f16, 2, 1, 80, -1, -1)
TE_ATTENTION_FORWARD_FP8(fp8_128, bf16, 2, 1, 128, FORM(-1, 0))
TE_ATTENTION_FORWARD(without_output, bf16, 2, 1, 64, 1)
TE_ATTENTION_BACKWARD(without_output_back, bf16, 2, 1, 64, 1)
TE_ATTENTION_FORWARD_FP8(without_output_fp8, bf16, 2, 1, 64, TE__ATTENTION_PLAIN(1))

#define RECIPE_LIST(name, D, recipe_) \
    MODEL(name, (D, (recipe, recipe_)), (linear, l, 48, 4 * 64), (attention, a, 2, 1, 64), (linear, p, 128, 32), (bias, b, 32))
RECIPE_LIST(delayed, bf16, fp8_delayed)
RECIPE_LIST(delayed_f16, f16, fp8_delayed)
RECIPE_LIST(delayed_f32, f32, fp8_delayed)
RECIPE_LIST(current, bf16, fp8_current)
RECIPE_LIST(blockwise, bf16, fp8_block)
MODEL(bare_delayed, (bf16, (recipe, fp8_delayed)), (linear, l, 48, 4 * 64), (attention, a, 2, 1, 64), (linear, p, 128, 32))
MODEL(bare_current, (bf16, (recipe, fp8_current)), (linear, l, 48, 4 * 64), (attention, a, 2, 1, 64), (linear, p, 128, 32))
MODEL(between, (bf16, (recipe, fp8_delayed)), (linear, l, 48, 4 * 64), (attention, a, 2, 1, 64), (bias, c, 128), (linear, p, 128, 32))
MODEL(at_end, (bf16, (recipe, fp8_delayed)), (linear, l, 48, 4 * 64), (attention, a, 2, 1, 64))
MODEL(no_product, (bf16, (recipe, fp8_delayed)), (linear, l, 48, 4 * 64), (attention, a, 2, 1, 64), (linear, p, 128, 32, (recipe, none)))

namespace {

struct kernel {
    const char *name;
    te_status (*launch)(te_context *, const te_attention_args *);
    te_dtype dtype;
    int heads, kv_heads, dim;
    size_t (*scratch_bytes)(te_context *, int64_t); // null unless the kernel computes in FP8
    te_status (*back)(te_context *, const te_attention_args *);
    size_t (*back_bytes)(te_context *, int64_t);
};
#define OF(name, dtype, heads, kv_heads, dim) {#name, name##_launch, TE_##dtype, heads, kv_heads, dim, nullptr, name##_back_launch, name##_back_scratch_bytes}
const kernel kernels[] = {OF(plain_64, bf16, 4, 2, 64), OF(plain_128, f16, 2, 1, 128), OF(window_128, bf16, 2, 2, 128), OF(wide_256, bf16, 1, 1, 256),
                          OF(odd_48, bf16, 3, 3, 48), OF(odd_80, f16, 2, 1, 80), {"fp8_128", fp8_128_launch, TE_bf16, 2, 1, 128, fp8_128_scratch_bytes, nullptr, nullptr}};

// The sizes of a call: number of rows, columns of q, k and v, and elements of the output.
struct sizes {
    int batch;
    size_t rows, width, out;
    sizes(const kernel &k, int seq)
        : batch(seq < 300 ? 2 : 1), rows((size_t)(batch * seq)), width((size_t)((k.heads + 2 * k.kv_heads) * k.dim)), out(rows * (size_t)(k.heads * k.dim)) {}
};

// The bits of the largest |v|, at least those of 1, the value to which these tests initialise the amax.
uint32_t largest_of(const reference::vec &v) {
    float maximum = 1;
    for (const double x : v) maximum = std::max(maximum, std::fabs((float)x));
    return te_bits_of_float(maximum);
}
uint32_t bits_of(const buffer &b) {
    uint32_t bits;
    memcpy(&bits, b.raw().data(), 4);
    return bits;
}

} // namespace

TEST_CASE("attention's e4m3 output has the bits of a cast of its output", "[attention]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    source random(seed);
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    for (const kernel &k : kernels)
        for (const int seq : {1, 15, 64, 129, 300}) {
            CAPTURE(k.name, seq);
            const sizes n(k, seq);
            const size_t rows = n.rows, width = n.width, out = n.out;
            buffer qkv(ctx, rows * width * 2), y(ctx, out * 2), y8(ctx, out), lse(ctx, rows * (size_t)k.heads * 4), scale(ctx, 4), scratch(ctx, k.scratch_bytes ? k.scratch_bytes(ctx, (int64_t)rows) : 16);
            reference::vec x = random.draw(rows * width, k.dtype);
            for (size_t i = 0; i < x.size(); i += 37) x[i] *= 8;
            qkv.write(x, k.dtype), scale.write({37.5}, TE_f32); // with this scale some results exceed the range of e4m3
            te_attention_args a;
            memset(&a, 0, sizeof a);
            a.out = y.data(), a.qkv = qkv.data(), a.lse = (float *)lse.data(), a.scratch = scratch.data(), a.batch = n.batch, a.seq = seq, a.scale = 1 / std::sqrt((float)k.dim);
            const te_status status = k.launch(ctx, &a);
            if (status == TE_ERROR_DEVICE && k.scratch_bytes) continue; // on CUDA this kernel needs compute capability 9.0
            INFO(te_last_error(ctx));
            REQUIRE(status == TE_OK);
            REQUIRE(te_synchronize(ctx) == TE_OK);
            const std::vector<uint8_t> sums = lse.raw();
            lse.poison();
            a.out = y8.data(), a.out_scale = (const float *)scale.data();
            REQUIRE(k.launch(ctx, &a) == TE_OK);
            REQUIRE(te_synchronize(ctx) == TE_OK);
            const reference::vec wide = y.read(k.dtype);
            buffer amax(ctx, 4);
            amax.write({1}, TE_f32), y.poison();
            a.out = y.data(), a.out_scale = nullptr, a.amax = (float *)amax.data();
            REQUIRE(k.launch(ctx, &a) == TE_OK);
            REQUIRE(te_synchronize(ctx) == TE_OK);
            CHECK(bits_of(amax) == largest_of(wide));
            CHECK(y.read(k.dtype) == wide);
            const std::vector<uint8_t> bytes = y8.raw();
            size_t wrong = 0, largest = 0;
            for (size_t i = 0; i < out; i++) {
                wrong += bytes[i] != te_e4m3_of_float((float)wide[i] * 37.5f);
                largest += (bytes[i] & 0x7f) == 0x7e;
            }
            CHECK(wrong == 0);
            CHECK((largest > 0 || seq < 64));
            CHECK(lse.raw() == sums);
        }
}

TEST_CASE("attention's backward computes the amax of its gradient", "[attention]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    source random(seed);
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    for (const kernel &k : kernels)
        for (const int seq : {1, 15, 64, 129, 300})
            for (const bool fast : {true, false}) { // not fast: no scratch memory, hence the kernels that need none
                if (!k.back) continue;
                CAPTURE(k.name, seq, fast);
                const sizes n(k, seq);
                buffer qkv(ctx, n.rows * n.width * 2), y(ctx, n.out * 2), dy(ctx, n.out * 2), lse(ctx, n.rows * (size_t)k.heads * 4), delta(ctx, n.rows * (size_t)k.heads * 4), d(ctx, n.rows * n.width * 2),
                    amax(ctx, 4), scratch(ctx, k.back_bytes(ctx, (int64_t)n.rows) + 16);
                qkv.write(random.draw(n.rows * n.width, k.dtype), k.dtype), dy.write(random.draw(n.out, k.dtype, 0, 20), k.dtype);
                te_attention_args a;
                memset(&a, 0, sizeof a);
                a.out = y.data(), a.qkv = qkv.data(), a.lse = (float *)lse.data(), a.batch = n.batch, a.seq = seq, a.scale = 1 / std::sqrt((float)k.dim);
                REQUIRE(k.launch(ctx, &a) == TE_OK);
                a.dout = dy.data(), a.dqkv = d.data(), a.delta = (float *)delta.data(), a.scratch = fast ? scratch.data() : nullptr;
                REQUIRE(k.back(ctx, &a) == TE_OK);
                REQUIRE(te_synchronize(ctx) == TE_OK);
                const reference::vec should = d.read(k.dtype);
                amax.write({1}, TE_f32), d.poison(), a.amax = (float *)amax.data();
                REQUIRE(k.back(ctx, &a) == TE_OK);
                REQUIRE(te_synchronize(ctx) == TE_OK);
                CHECK(bits_of(amax) == largest_of(should));
                CHECK(largest_of(should) > te_bits_of_float(1));
                CHECK(d.read(k.dtype) == should);
            }
}

TEST_CASE("attention declared without fp8_output refuses out_scale and amax", "[attention]") {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    buffer numbers(ctx, 4 * 64 * 16 * 4), one(ctx, 4);
    one.write({1}, TE_f32);
    te_attention_args a;
    memset(&a, 0, sizeof a);
    a.out = a.dqkv = numbers.data(), a.qkv = a.dout = numbers.data(), a.lse = a.delta = (float *)numbers.data(), a.scratch = numbers.data();
    a.batch = 1, a.seq = 4, a.scale = 1;
    for (te_status (*launch)(te_context *, const te_attention_args *) : {without_output_launch, without_output_back_launch, without_output_fp8_launch})
        for (const bool scaled : {true, false}) {
            a.out_scale = scaled ? (const float *)one.data() : nullptr, a.amax = scaled ? nullptr : (float *)one.data();
            CHECK(launch(ctx, &a) == TE_ERROR_VALUE);
            CHECK(strstr(te_last_error(ctx), "declared without `fp8_output`"));
        }
}

#define OF_LIST(name, casts) {#name, &name##_subject, casts}
TEST_CASE("in inference attention stores the FP8 operand of the GEMM that consumes it", "[attention]") {
    // casts: the number of cast kernels in an inference. The cast of x, which comes from the caller, stays.
    struct expected { const char *name; const subject *list; int casts; };
    const expected all[] = {OF_LIST(delayed, 1), OF_LIST(delayed_f16, 1), OF_LIST(delayed_f32, 2), OF_LIST(blockwise, 0), OF_LIST(between, 1), OF_LIST(at_end, 1), OF_LIST(no_product, 1),
                            OF_LIST(current, 3)}; // of which one finds the amax of x
    for (const expected &e : all)
        for (const int seq : {5, 70}) {
            const unsigned seed = fresh_seed();
            CAPTURE(e.name, seq, seed);
            under_recipe u(*e.list, 2, seq, seed);
            micro_batch b(u, u.m.s.saved_bytes((int64_t)u.rows));
            b.forward(u), b.backward(u); // a first step: afterwards the scales come from its amax
            REQUIRE(te_recipes_step(&u.state, u.ctx) == TE_OK);
            b.forward(u);
            buffer y(u.ctx, u.y_bytes());
            const auto infer = [&] { return u.m.s.infer(u.y_of(y), u.x_of(b.x), u.m.memory.data(), &u.batch, u.ctx); };
            REQUIRE(infer() == TE_OK);
            CHECK(y.raw() == b.y.raw());
#if TE_CUDA
            if (!brief()) CHECK(launches_like("_quantize_", u.ctx, infer) == e.casts); // not under a sanitizer, which reports the failed lookup of a cuBLASLt kernel as an error
#endif
        }
}

#if TE_CUDA
TEST_CASE("under fp8_current attention computes the amax of its output, without an amax kernel", "[attention]") {
    int casts[2], n = 0;
    for (const subject *list : {&bare_delayed_subject, &bare_current_subject}) {
        under_recipe u(*list, 2, 70, fresh_seed());
        micro_batch b(u, u.m.s.saved_bytes((int64_t)u.rows));
        b.forward(u), b.backward(u);
        REQUIRE(te_recipes_step(&u.state, u.ctx) == TE_OK);
        casts[n++] = launches_like("_quantize_", u.ctx, [&] { return b.forward(u), b.backward(u), TE_OK; });
    }
    CHECK((brief() || casts[1] - casts[0] == 2)); // amax kernels for x and dy only, which come from the caller
}
#endif
