// producers_test.cc -- kernels that store the FP8 operand of a GEMM. With blockwise or rowwise scales, they must have the bits of the same kernel
// in the list's format followed by a cast. Kernels that store a gradient with a tensorwise scale both row-wise and transposed must have the bits
// of the row-wise kernel followed by a transpose.
#include "draw.h"
#include "recipe.h"
#include "te/fuse/inference.h"
#include "te/ops/activation.h"
#include "te/ops/elementwise.h"
#include "te/ops/dropout.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/residual.h"
#include "te/optim/init.h"

TE_QUANTIZE_BLOCKWISE(tiles_f32, f32)
TE_QUANTIZE_BLOCKWISE(tiles_bf16, bf16)
TE_QUANTIZE_ROWWISE(rows_f32, f32)
TE_QUANTIZE_ROWWISE(rows_bf16, bf16)

// X(dtype, letter of the recipe, recipe)
#define RECIPES(X) X(bf16, b, fp8_block) X(f32, b, fp8_block) X(bf16, r, fp8_row)
#define LISTS(D, r, R)                                                                                                           \
    MODEL(r##D##_norm, (D, (recipe, R)), (layernorm, n, 144), (linear, l, 144, 16))                                              \
    MODEL(r##D##_wide, (D, (recipe, R)), (rmsnorm, n, 2064), (linear, l, 2064, 16))                                              \
    MODEL(r##D##_add, (D, (recipe, R)), (fork, x), (relu, r), (add, x), (fork, y), (rmsnorm, n, 128), (linear, l, 128, 128), (add, y)) \
    MODEL(r##D##_gelu, (D, (recipe, R)), (linear, f, 16, 272), (bias, b, 272), (gelu, n), (linear, l, 272, 16))                  \
    MODEL(r##D##_gated, (D, (recipe, R)), (linear, f, 16, 512), (bias, b, 512), (swiglu, n), (linear, l, 256, 16))               \
    MODEL(r##D##_drop, (D, (recipe, R)), (fork, x), (linear, f, 160, 160), (bias, b, 160), (dropout, d, 0.2f), (add, x), (linear, l, 160, 16)) \
    TE_INFERENCE(r##D##_alone, (D, (recipe, R)), (layernorm, n, 144), (linear, a, 144, 2064), (rmsnorm, w, 2064), (linear, c, 2064, 128),   \
                 (fork, x), (relu, r), (add, x), (fork, y), (rmsnorm, m, 128), (linear, d, 128, 128), (add, y),                   \
                 (linear, f, 128, 272), (bias, b, 272), (gelu, s), (linear, e, 272, 16), (linear, g, 16, 512), (bias, h, 512),    \
                 (swiglu, t), (linear, i, 256, 16))
RECIPES(LISTS)

TE_TRANSPOSE_FP8(transpose)
// X(dtype): lists whose backward has kernels that store a tensorwise-scaled gradient both row-wise and transposed.
#define TRANSPOSED(X) X(bf16) X(f32)
#define TRANSPOSED_LISTS(D)                                                                                                          \
    MODEL(t##D##_drop, (D, (recipe, fp8_delayed)), (fork, x), (linear, f, 160, 160), (bias, b, 160), (dropout, d, 0.2f), (add, x), (linear, l, 160, 16)) \
    MODEL(t##D##_bias, (D, (recipe, fp8_delayed)), (linear, f, 16, 272), (bias, b, 272), (dropout, d, 0.3f), (linear, l, 272, 16)) \
    MODEL(t##D##_scale, (D, (recipe, fp8_delayed)), (linear, f, 16, 144), (scale, s, 0.3f), (linear, l, 144, 16))                \
    MODEL(t##D##_gated, (D, (recipe, fp8_delayed)), (linear, f, 16, 160), (bias, b, 160), (swiglu, n), (linear, l, 80, 16))       \
    MODEL(t##D##_current, (D, (recipe, fp8_current)), (linear, f, 16, 272), (bias, b, 272), (dropout, d, 0.3f), (linear, l, 272, 16))
TRANSPOSED(TRANSPOSED_LISTS)

namespace {

// A pointwise kernel of a list: the number of its ops (behind the GEMM, if its pattern begins with one), and the index of the norm among them.
struct producer {
    const char *name;
    te_pointwise_launch_fn launch;
    te_pointwise_shape k;
    int count, norm;
};
#define OF(kernel, half, count, norm) {#kernel, kernel##_launch, kernel##_shape(half), count, norm}
#define PRODUCERS(D, r, R)                                                                                                       \
    OF(r##D##_norm_n_layernorm, 144, 1, 0), OF(r##D##_alone_n_layernorm_infer, 144, 1, 0),                                       \
        OF(r##D##_wide_n_rmsnorm, 2064, 1, 0), OF(r##D##_alone_w_rmsnorm_infer, 2064, 1, 0),                                     \
        OF(r##D##_add_x_add_fork_rmsnorm, 128, 3, 2), OF(r##D##_alone_x_add_fork_rmsnorm_infer, 128, 3, 2),                      \
        OF(r##D##_gelu_f_linear_bias_gelu, 272, 2, -1), OF(r##D##_alone_f_linear_bias_gelu_infer, 272, 2, -1),                   \
        OF(r##D##_gelu_l_linear_gelu_bias_backward, 272, 2, -1), OF(r##D##_gated_f_linear_bias_swiglu, 256, 2, -1),              \
        OF(r##D##_alone_g_linear_bias_swiglu_infer, 256, 2, -1), OF(r##D##_gated_l_linear_swiglu_bias_backward, 256, 2, -1),     \
        OF(r##D##_drop_f_linear_bias_dropout_add, 160, 3, -1), OF(r##D##_drop_x_add_dropout_bias_backward, 160, 3, -1),

// Numbers of many sizes and, unless `finite`, an infinity of each sign and a NaN.
void draw(buffer &b, source &random, size_t n, te_dtype t, bool finite) {
    reference::vec v = random.draw(n, t, 0, 1);
    for (size_t i = 0; i < n; i++) v[i] = i % 97 == 5 ? 0 : v[i] * std::ldexp(1, (int)(i / 64 % 9) * 2 - 8);
    if (!finite && n > 50) v[7] = INFINITY, v[n / 2] = NAN, v[n - 9] = -INFINITY;
    b.write(v, t);
}
// An FP8 output with its scales, and its transpose with its scales.
struct stored {
    buffer y, s, yt, st;
    stored(te_context *ctx, te_scaling scaling, int64_t rows, int64_t cols)
        : y(ctx, (size_t)(rows * cols)), s(ctx, (size_t)te_scaling_count(scaling, rows, cols) * 4), yt(ctx, (size_t)(te_round_up(rows, 16) * cols)),
          st(ctx, (size_t)te_scaling_count(TE_SCALING_BLOCKWISE_1D, cols, te_round_up(rows, 16)) * 4) {}
    bool operator==(const stored &o) const { return y.raw() == o.y.raw() && s.raw() == o.s.raw() && yt.raw() == o.yt.raw() && st.raw() == o.st.raw(); }
};
te_status cast(const stored &to, const buffer &from, te_pointwise_shape k, int64_t rows, int64_t cols, bool transposed, te_context *ctx) {
    if (k.scaled == TE_SCALING_ROWWISE) {
        te_quantize_rowwise q = te__quantize_rowwise_of(rows, cols);
        q.x = from.data(), q.y = to.y.data(), q.inverse = (float *)to.s.data();
        return k.out == TE_f32 ? rows_f32_run(&q, ctx) : rows_bf16_run(&q, ctx);
    }
    te_quantize_blockwise q = te__quantize_blockwise_of(rows, cols);
    q.x = from.data(), q.y = to.y.data(), q.y_inverse = (float *)to.s.data();
    if (transposed) q.yt = to.yt.data(), q.yt_inverse = (float *)to.st.data(), q.yt_cols = te_round_up(rows, 16);
    return k.out == TE_f32 ? tiles_f32_run(&q, ctx) : tiles_bf16_run(&q, ctx);
}

void check(const producer &p, int64_t rows, bool finite) {
    const unsigned seed = fresh_seed();
    CAPTURE(p.name, rows, finite, seed);
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    source random(seed);
    const te_pointwise_shape k = p.k;
    const int64_t in = (int64_t)k.half * k.in_halves, out = (int64_t)k.half * k.out_halves, widest = 2 * k.half, tiles = te_fp8_blocks(rows);
    const size_t size = te_dtype_bytes(k.out), largest = (size_t)(rows * widest);
    buffer x(ctx, (size_t)(rows * in) * size), edge(ctx, largest * size), saved(ctx, largest * size), weight(ctx, (size_t)widest * size), y(ctx, (size_t)(rows * out) * size);
    buffer stats(ctx, (size_t)rows * 8), side(ctx, largest * size), fused_side(ctx, largest * size), sums(ctx, (size_t)(16 * widest) * 4), tile_sums(ctx, (size_t)(tiles * widest) * 4);
    draw(x, random, (size_t)(rows * in), k.out, finite), draw(edge, random, largest, k.out, true), draw(saved, random, largest, k.out, true);
    weight.write(random.draw((size_t)widest, k.out, 1, 0.2), k.out);
    set_rng(ctx, 5, 0);
    const stored pair(ctx, k.scaled, rows, out), fused(ctx, k.scaled, rows, out);
    te_run r;
    memset(&r, 0, sizeof r);
    r.ctx = ctx, r.pass = k.backward ? TE_BACKWARD : TE_FORWARD;
    te_pointwise c;
    memset(&c, 0, sizeof c);
    c.x = x.data(), c.rows = rows, c.half = k.half, c.y = y.data();
    for (int i = 0; i < p.count; i++) {
        te_stage *s = &c.op[i];
        s->w[0] = s->w[1] = weight.data(), s->edge = k.norm >= 0 && i < k.norm ? edge.data() : nullptr, s->saved = saved.data(), s->rng = ctx->rng, s->id = (uint32_t)i;
        if (!k.backward && k.norm < 0 && i + 1 < p.count) s->out = side.data(); // the output of a map, saved for backward
        if (k.norm > 0 && i == 0) s->out = side.data();
        if (i == k.norm) s->stats = (float *)stats.data();
        if (i == k.sums) s->sum[0] = (float *)sums.data();
    }
    if (k.norm < 0 && !k.backward) c.op[p.count - 1].edge = edge.data(); // the value of the fork, if the last op is an add
    const int blocks = te__pointwise_blocks(&r, rows, k);
    const te_grid grid = te__grid_of((int64_t)(k.sums >= 0 ? te_min(blocks, 16) : blocks) * te_pointwise_tiles(k), 1);
    const bool transposes = k.transposes && k.scaled == TE_SCALING_BLOCKWISE_1D;
    for (const bool transposed : {false, true}) {
        if (transposed ? !transposes : k.backward != 0) continue;
        REQUIRE(p.launch(ctx, grid, &c) == TE_OK);
        REQUIRE(cast(pair, y, k, rows, out, transposed, ctx) == TE_OK);
        te_pointwise f = c;
        f.y = nullptr, f.scaled.y = fused.y.data(), f.scaled.inverse = (float *)fused.s.data(), f.scaled.rule = te__scale_rule_current();
        f.scaled.yt_cols = te_round_up(rows, 16), f.scaled.norm_x = k.norm > 0 ? side.data() : x.data();
        if (transposed) f.scaled.tiles = 1, f.scaled.yt = fused.yt.data(), f.scaled.yt_inverse = (float *)fused.st.data();
        if (k.sums >= 0) f.op[k.sums].sum[0] = (float *)tile_sums.data();
        for (int i = 0; i < p.count; i++)
            if (f.op[i].out) f.op[i].out = fused_side.data();
        if (k.norm > 0) f.scaled.norm_x = fused_side.data();
        REQUIRE(p.launch(ctx, grid, &f) == TE_OK);
        CHECK(bool(pair == fused));
        CHECK(bool(side.raw() == fused_side.raw()));
        if (k.sums < 0) continue;
        const int64_t n = k.half * k.sum_halves;
        const reference::vec a = sums.read(TE_f32, 0, (size_t)(te_min(blocks, 16) * n)), b = tile_sums.read(TE_f32, 0, (size_t)(tiles * n)), v = y.read(k.out);
        for (int64_t j = 0; finite && j < n; j++) { // both sums have the same terms in different orders
            double left = 0, right = 0, all = 0;
            for (int64_t i = 0; i < te_min(blocks, 16); i++) left += a[(size_t)(i * n + j)];
            for (int64_t i = 0; i < tiles; i++) right += b[(size_t)(i * n + j)];
            for (int64_t i = 0; i < rows; i++) all += std::fabs(v[(size_t)(i * n + j)]);
            if (!(std::fabs(left - right) <= all * std::ldexp((double)rows, -23) * 1.02)) { CHECK(left == right); break; }
        }
    }
}

const producer producers[] = {RECIPES(PRODUCERS)};

int transposing() {
    int n = 0;
    for (const producer &p : producers) n += p.k.transposes;
    return n;
}

} // namespace

TEST_CASE("a kernel that stores FP8 has the bits of one that stores the list's dtype, followed by a cast", "[producers]") {
    const std::vector<int64_t> sizes = brief() ? std::vector<int64_t>{129} : std::vector<int64_t>{1, 37, 261};
    for (const producer &p : producers) {
        for (const int64_t rows : sizes) check(p, rows, true);
        check(p, 50, false);
    }
    CHECK(transposing() == 2 * (3 + 2 * 3)); // only fp8_block, in two dtypes: 3 norms, and 3 patterns of maps in forward and in backward
}

// ---- gradients with a tensorwise scale ------------------------------------------------------------------------------------

namespace {

#define TRANSPOSED_PRODUCERS(D)                                                                                                      \
    OF(t##D##_drop_x_add_dropout_bias_backward, 160, 3, -1), OF(t##D##_bias_d_dropout_bias_backward, 272, 2, -1),                \
        OF(t##D##_scale_s_scale_backward, 144, 1, -1),
const producer transposed_producers[] = {TRANSPOSED(TRANSPOSED_PRODUCERS)};

// An FP8 output with a tensorwise scale, its transpose and its amax.
struct transposed {
    buffer y, yt, amax;
    transposed(te_context *ctx, int64_t rows, int64_t cols) : y(ctx, (size_t)(rows * cols)), yt(ctx, (size_t)(te_round_up(rows, 16) * cols)), amax(ctx, 4) {
        amax.write(reference::vec(1, 0.0), TE_f32);
    }
    bool operator==(const transposed &o) const { return y.raw() == o.y.raw() && yt.raw() == o.yt.raw() && amax.raw() == o.amax.raw(); }
};

void check_transposed(const producer &p, int64_t rows, bool finite) {
    const unsigned seed = fresh_seed();
    CAPTURE(p.name, rows, finite, seed);
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    source random(seed);
    const te_pointwise_shape k = p.k;
    const int64_t in = (int64_t)k.half * k.in_halves, out = (int64_t)k.half * k.out_halves, n = (int64_t)k.half * k.sum_halves, tiles = te_fp8_blocks(rows);
    const size_t size = te_dtype_bytes(k.out), largest = (size_t)(2 * rows * k.half);
    buffer x(ctx, (size_t)(rows * in) * size), saved(ctx, largest * size), scale(ctx, 4), y(ctx, (size_t)(rows * out) * size);
    buffer sums(ctx, (size_t)(16 * 2 * k.half) * 4), tile_sums(ctx, (size_t)(tiles * 2 * k.half) * 4);
    draw(x, random, (size_t)(rows * in), k.out, finite), draw(saved, random, largest, k.out, true);
    scale.write(reference::vec(1, 37.5), TE_f32);
    set_rng(ctx, 5, 0);
    const transposed pair(ctx, rows, out), fused(ctx, rows, out);
    te_run r;
    memset(&r, 0, sizeof r);
    r.ctx = ctx, r.pass = TE_BACKWARD;
    te_pointwise c;
    memset(&c, 0, sizeof c);
    c.x = x.data(), c.rows = rows, c.half = k.half;
    for (int i = 0; i < p.count; i++) {
        te_stage *s = &c.op[i];
        s->saved = saved.data(), s->rng = ctx->rng, s->id = (uint32_t)i;
        if (i == k.sums) s->sum[0] = (float *)sums.data();
    }
    te_pointwise f = c;
    const int blocks = (int)te_min(te__pointwise_blocks(&r, rows, k), 16);
    const te_grid grid = te__grid_of((int64_t)(k.sums >= 0 ? blocks : te__pointwise_blocks(&r, rows, k)) * te_pointwise_tiles(k), 1);
    c.y = y.data(), c.fp8.y = pair.y.data(), c.fp8.scale = (const float *)scale.data(), c.fp8.amax = (float *)pair.amax.data();
    REQUIRE(p.launch(ctx, grid, &c) == TE_OK);
    te_quantize q = te__quantize_of(rows, out);
    q.x = pair.y.data(), q.yt = pair.yt.data(), q.yt_cols = te_round_up(rows, 16);
    REQUIRE(transpose_run(&q, ctx) == TE_OK);
    f.fp8 = c.fp8, f.fp8.y = fused.y.data(), f.fp8.amax = (float *)fused.amax.data();
    f.scaled.tiles = 1, f.scaled.scale = f.fp8.scale, f.scaled.yt = fused.yt.data(), f.scaled.yt_cols = te_round_up(rows, 16);
    if (k.sums >= 0) f.op[k.sums].sum[0] = (float *)tile_sums.data();
    REQUIRE(p.launch(ctx, grid, &f) == TE_OK);
    CHECK(bool(pair == fused));
    if (k.sums < 0 || !finite) return;
    const reference::vec a = sums.read(TE_f32, 0, (size_t)(blocks * n)), b = tile_sums.read(TE_f32, 0, (size_t)(tiles * n)), v = y.read(k.out);
    for (int64_t j = 0; j < n; j++) { // both sums have the same terms in different orders
        double left = 0, right = 0, all = 0;
        for (int64_t i = 0; i < blocks; i++) left += a[(size_t)(i * n + j)];
        for (int64_t i = 0; i < tiles; i++) right += b[(size_t)(i * n + j)];
        for (int64_t i = 0; i < rows; i++) all += std::fabs(v[(size_t)(i * n + j)]);
        if (!(std::fabs(left - right) <= all * std::ldexp((double)rows, -23) * 1.02)) { CHECK(left == right); break; }
    }
}

} // namespace

TEST_CASE("a kernel that also stores the transpose of its FP8 gradient has the bits of one without, followed by a transpose", "[producers]") {
    for (const producer &p : transposed_producers) {
        REQUIRE(p.k.transposes == 1);
        for (const int64_t rows : brief() ? std::vector<int64_t>{129} : std::vector<int64_t>{1, 37, 261}) check_transposed(p, rows, true);
        check_transposed(p, 50, false);
    }
    CHECK(tbf16_gated_l_linear_swiglu_bias_backward_shape(80).transposes == 0); // not with a gated op, which reads a saved tensor
    CHECK(tbf16_current_d_dropout_bias_backward_shape(272).transposes == 0);    // not with fp8_current, whose scale is not known yet
}

// ---- whole lists ---------------------------------------------------------------------------------------------------------

// Pointwise patterns whose widths are known only at run time have no kernels that store FP8: casts follow them, and forward also saves the
// tensors that it casts.
#define OPS(A, B) (layernorm, n, A), (linear, a, A, B), (gelu, s), (linear, b, B, 16)
TE_SEQUENTIAL(block_fixed, (bf16, (recipe, fp8_block)), OPS(160, 272))
TE_SEQUENTIAL_DIMS(block_sized, (bf16, (recipe, fp8_block)), (layernorm, n, TE_DIM(0)), (linear, a, TE_DIM(0), TE_DIM(1)), (gelu, s), (linear, b, TE_DIM(1), 16))
TE_SEQUENTIAL(row_fixed, (bf16, (recipe, fp8_row)), OPS(160, 272))
TE_SEQUENTIAL_DIMS(row_sized, (bf16, (recipe, fp8_row)), (layernorm, n, TE_DIM(0)), (linear, a, TE_DIM(0), TE_DIM(1)), (gelu, s), (linear, b, TE_DIM(1), 16))

namespace {

struct passes {
    std::vector<uint8_t> y, inferred, dx, grads;
    size_t saved;
    bool operator==(const passes &o) const { return y == o.y && inferred == o.inferred && dx == o.dx && grads == o.grads; }
};
// Runs forward, backward and inference of a bound instance by these functions.
template <class Forward, class Backward, class Infer>
passes run_passes(te_context *ctx, te_model *model, const buffer &grads, size_t saved_bytes, size_t workspace_bytes, const reference::vec &numbers, int rows,
                  Forward forward, Backward backward, Infer infer) {
    te_model *models[] = {model};
    const te_recipes_config config = te_recipes_defaults();
    buffer memory(ctx, te_recipes_bytes(models, 1, &config)), workspace(ctx, workspace_bytes), saved_memory(ctx, saved_bytes);
    buffer x(ctx, (size_t)rows * 160 * 2), y(ctx, (size_t)rows * 16 * 2), dy(ctx, y.bytes), dx(ctx, x.bytes), inferred(ctx, y.bytes);
    te_recipes state;
    REQUIRE(te_model_randomize(model, 0.2f, 1, 0, ctx) == TE_OK);
    REQUIRE(te_recipes_init(&state, memory.data(), memory.bytes, models, 1, &config, ctx) == TE_OK);
    x.write(reference::vec(numbers.begin(), numbers.begin() + rows * 160), TE_bf16);
    dy.write(reference::vec(numbers.begin(), numbers.begin() + rows * 16), TE_bf16);
    ctx->workspace = workspace.data(), ctx->workspace_bytes = workspace.bytes;
    te_saved saved;
    memset(&saved, 0, sizeof saved);
    saved.memory = saved_memory.data(), saved.bytes = saved_memory.bytes;
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = rows;
    const auto of = [&](const buffer &b, int64_t cols) { return te_matrix(b.data(), TE_bf16, rows, cols); };
    REQUIRE(forward(of(y, 16), &saved, of(x, 160), &batch) == TE_OK);
    REQUIRE(backward(of(dx, 160), of(dy, 16), &saved, &batch) == TE_OK);
    REQUIRE(infer(of(inferred, 16), of(x, 160), &batch) == TE_OK);
    ctx->workspace = nullptr, ctx->workspace_bytes = 0;
    CHECK(saved_memory.raw().size() == saved_bytes); // raw() checks its guard
    return {y.raw(), inferred.raw(), dx.raw(), grads.raw(), saved_bytes};
}

} // namespace

// Defines M##_passes, which runs an instance of M. `before` sets its dims; then come the arguments of its size functions.
#define PASSES(M, before, param_args, saved_args)                                                                                \
    static passes M##_passes(te_context *ctx, const reference::vec &numbers, int rows) {                                         \
        static M m;                                                                                                              \
        memset(&m, 0, sizeof m);                                                                                                 \
        before;                                                                                                                  \
        buffer params(ctx, M##_param_bytes param_args), grads(ctx, M##_grad_bytes param_args);                                   \
        grads.write(reference::vec(grads.bytes / 4, 0), TE_f32);                                                                 \
        REQUIRE(M##_bind(&m, params.data(), (float *)grads.data(), ctx) == TE_OK);                                               \
        return run_passes(                                                                                                       \
            ctx, &m.model, grads, M##_saved_bytes saved_args, M##_workspace_bytes(&m, rows, ctx), numbers, rows,                 \
            [&](te_tensor y, te_saved *s, te_tensor x, const te_batch *b) { return M##_forward(y, s, x, &m, b, ctx); },          \
            [&](te_tensor dx, te_tensor dy, const te_saved *s, const te_batch *b) { return M##_backward(dx, dy, s, &m, b, ctx); }, \
            [&](te_tensor y, te_tensor x, const te_batch *b) { return M##_infer(y, x, &m, b, ctx); });                           \
    }
static const int64_t widths[] = {160, 272};
PASSES(block_fixed, , (), (rows))
PASSES(block_sized, REQUIRE(block_sized_set_dims(&m, widths, 2, ctx) == TE_OK), (&m), (&m, rows))
PASSES(row_fixed, , (), (rows))
PASSES(row_sized, REQUIRE(row_sized_set_dims(&m, widths, 2, ctx) == TE_OK), (&m), (&m, rows))

TEST_CASE("a list whose pointwise kernels store FP8 has the bits of one with cast kernels", "[producers]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    source random(seed);
    for (const int rows : {1, 150}) {
        CAPTURE(rows);
        context ctx_owner;
        const reference::vec numbers = random.draw((size_t)rows * 160, TE_bf16);
        const passes fixed = block_fixed_passes(&ctx_owner.c, numbers, rows), sized = block_sized_passes(&ctx_owner.c, numbers, rows);
        CHECK(bool(fixed == sized));
        CHECK(bool(fixed.y == fixed.inferred));
        CHECK(fixed.saved < sized.saved);
        CHECK(bool(row_fixed_passes(&ctx_owner.c, numbers, rows) == row_sized_passes(&ctx_owner.c, numbers, rows)));
    }
}
