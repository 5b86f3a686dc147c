// widths_test.cc -- lists whose widths are known only at run time, as multiples of TE_DIM symbols: against the reference, and against
// the same lists with constant widths, whose bits they must have where both are compiled to the same code.
#include "harness.h"
#include "te/te.h"

#define H TE_DIM(0)
#define F TE_DIM(1)

// A list with symbols as a subject for the harness: name_at({37, 53}) is the list with these dims, until the next call.
#define SIZED(name, dtype, ...) SIZED_WITH(TE_FORWARD_, TE_BACKWARD_, name, dtype, __VA_ARGS__)
#define SIZED_WITH(forward_patterns, backward_patterns, name, dtype, ...)                                                                   \
    TE_SEQUENTIAL_DIMS_WITH(forward_patterns, backward_patterns, name, dtype, __VA_ARGS__)                                                  \
    static name name##_sized;                                                                                        \
    static std::vector<int64_t> name##_dims;                                                                         \
    static std::string name##_text;                                                                                  \
    static subject name##_at(const std::vector<int64_t> &dims) {                                                     \
        context c;                                                                                                   \
        name##_dims = dims, name##_text = with_numbers(TE_STRING(__VA_ARGS__), dims);                                \
        const te_status status = name##_set_dims(&name##_sized, dims.data(), (int)dims.size(), &c.c);                \
        INFO(te_last_error(&c.c));                                                                                   \
        REQUIRE(status == TE_OK);                                                                                    \
        const subject s = {                                                                                          \
            name##_text.c_str(), sizeof(name), [] { return (const te_plan *)&name##_sized.te_sized; },               \
            [] { return name##_param_bytes(&name##_sized); }, [] { return name##_grad_bytes(&name##_sized); },       \
            [](int64_t rows_) { return name##_saved_bytes(&name##_sized, rows_); },                                  \
            [](const void *m, int64_t rows_, te_context *ctx) { return name##_workspace_bytes((const name *)m, rows_, ctx); }, \
            [](void *m, void *p, float *g, te_context *ctx) {                                                        \
                const te_status set = name##_set_dims((name *)m, name##_dims.data(), (int)name##_dims.size(), ctx);  \
                return set == TE_OK ? name##_bind((name *)m, p, g, ctx) : set;                                       \
            },                                                                                                       \
            [](te_tensor y, te_saved *saved, te_tensor x, const void *m, const te_batch *b, te_context *ctx) { return name##_forward(y, saved, x, (const name *)m, b, ctx); }, \
            [](te_tensor y, te_tensor x, const void *m, const te_batch *b, te_context *ctx) { return name##_infer(y, x, (const name *)m, b, ctx); }, \
            [](te_tensor dx, te_tensor dy, const te_saved *saved, const void *m, const te_batch *b, te_context *ctx) { return name##_backward(dx, dy, saved, (const name *)m, b, ctx); }}; \
        return s;                                                                                                    \
    }

// The text of the list with numbers instead of its symbols.
static std::string with_numbers(std::string text, const std::vector<int64_t> &dims) {
    const std::string symbols[] = {TE_STRING(TE_DIM(0)), TE_STRING(TE_DIM(1)), TE_STRING(TE_DIM(2))};
    for (size_t k = 0; k < dims.size(); k++)
        for (size_t at; (at = text.find(symbols[k])) != std::string::npos;) text.replace(at, symbols[k].size(), std::to_string(dims[k]));
    return text;
}

// ---- lists, with symbols or constants ----------------------------------------------------------------------------------

#define MLP(h, f)                                                                                                    \
    (fork, x), (layernorm, ln, h), (linear, fc1, h, f), (bias, b1, f), (gelu, a), (linear, fc2, f, h), (bias, b2, h), (dropout, d, 0.1f), (add, x)
#define GATED(h, f) (rmsnorm, n, h), (linear, fc1, h, 2 * f), (bias, b1, 2 * f), (swiglu, a), (linear, fc2, f, h)
// every part of a pointwise kernel with a norm: the forward pattern with dropout, and the backward pattern with all column sums
#define ROW(h) (input, i, h), (bias, b, h), (dropout, d, 0.2f), (add, i), (fork, f), (layernorm, n, h), (scale, s, 0.5f), (add, f)
#define MAPS(h) (bias, b, 2 * h), (silu, s), (fork, f), (scale, t, 0.5f), (add, f), (geglu, g), (dropout, d), (bias, c, h)
#define LM(h, v, n)                                                                                                  \
    (embedding, e, v, h), (positions, p, n, h), (rmsnorm1p, r, h), (tied_linear, l, h, v), (scale, s, 0.125f), (cross_entropy, c, v)
#define HEAD(h, v) (rmsnorm, n, h), (linear, l, h, v), (cross_entropy, c, v)
#define BLOCK(h, f)                                                                                                  \
    (fork, x1), (layernorm, ln1, h), (linear, qkv, h, 4 * 64), (rope, r, 2, 1, 64), (attention, attn, 2, 1, 64), (linear, proj, 128, h), (bias, pb, h), \
        (add, x1), (fork, x2), (rmsnorm, n2, h), (linear, fc1, h, f), (bias, b1, f), (recompute, rc), (relu, a), (linear, fc2, f, h), (end_recompute, rc), \
        (bias, b2, h), (dropout, d, 0.1f), (add, x2)

SIZED(mlp_f32, f32, MLP(H, F))
SIZED(alone_f32, (f32, (width, 2 * H)), (silu, s), (geglu, g), (scale, t, 0.5f)) // only the list has a width, no op
SIZED(mlp_bf16, bf16, MLP(H, F))
SIZED(mlp_f16, f16, MLP(H, F))
SIZED(gated_f32, f32, GATED(H, F))
SIZED(gated_bf16, bf16, GATED(H, F))
SIZED(row_f32, f32, ROW(H))
SIZED(row_bf16, bf16, ROW(H))
SIZED(row_f16, f16, ROW(H))
SIZED_WITH(TE_UNFUSED_, TE_UNFUSED_, unfused_bf16, bf16, ROW(H))
SIZED(maps_f32, f32, MAPS(H))
SIZED(maps_bf16, bf16, MAPS(H))
SIZED(maps_f16, f16, MAPS(H))
SIZED(lm_f32, f32, LM(H, F, TE_DIM(2)))
SIZED(lm_bf16, bf16, LM(H, F, TE_DIM(2)))
SIZED(head_bf16, bf16, HEAD(H, F))
SIZED(block_f32, f32, BLOCK(H, F))
SIZED(norms_f32, f32, (l2norm, a, H), (layernorm1p, b, H))

TEST_CASE("symbols: a list of linears, norms and maps matches the reference", "[widths]") {
    for (const std::vector<int64_t> &dims : std::vector<std::vector<int64_t>>{{65, 131}, {1000, 8}, {64, 256}, {7, 3}, {40, 1024}}) {
        if (brief() && dims[0] < 65) break;
        for (const subject &s : {mlp_f32_at(dims), mlp_bf16_at(dims), mlp_f16_at(dims), gated_f32_at(dims), gated_bf16_at(dims), block_f32_at(dims)}) {
            check(s, shape(1, 1));
            check(s, shape(1, 37));
        }
    }
}
TEST_CASE("symbols: a pattern with a norm, at several widths", "[widths]") {
    for (const int64_t width : {3, 65, 1024, 1032, 4100, 64, 1000, 1025, 4096, 12288}) {
        if (brief() && width == 64) break;
        for (const subject &s : {row_f32_at({width}), row_bf16_at({width}), row_f16_at({width}), unfused_bf16_at({width}), norms_f32_at({width})}) {
            if (!brief()) check(s, shape(1, 1));
            check(s, shape(1, brief() ? 3 : width > 2000 ? 5 : 41));
        }
    }
    for (const int64_t width : brief() ? std::vector<int64_t>{12296} : std::vector<int64_t>{12296, 65535, 65536})
        for (const subject &s : {row_f32_at({width}), row_bf16_at({width}), norms_f32_at({width})}) check(s, shape(1, 3));
}
TEST_CASE("symbols: an elementwise pattern, at several widths", "[widths]") {
    for (const int64_t width : {1, 37, 1032, 8, 120, 520, 4097}) {
        if (brief() && width == 8) break;
        for (const subject &s : {maps_f32_at({width}), maps_bf16_at({width}), maps_f16_at({width}), alone_f32_at({width})}) {
            if (!brief()) check(s, shape(1, 1));
            check(s, shape(1, brief() ? 5 : width < 100 ? 131 : 19));
        }
    }
    if (!brief()) check(maps_bf16_at({100000}), shape(1, 3));
}
TEST_CASE("symbols: embedding, positions and cross-entropy", "[widths]") {
    for (const std::vector<int64_t> &dims : std::vector<std::vector<int64_t>>{{37, 2500, 40}, {64, 61, 40}, {520, 96, 57}, {8, 50257, 38}}) {
        if (brief() && dims[0] == 520) break;
        for (const subject &s : {lm_f32_at(dims), lm_bf16_at(dims)}) {
            check(s, shape(1, 1));
            shape at(2, !TE_CUDA && dims[1] > 9999 ? 3 : 33);
            at.position = 5, at.loss_from_dy = true;
            check(s, at);
        }
        check(head_bf16_at({dims[0], dims[1]}), shape(1, brief() || dims[1] > 9999 ? 9 : 131)); // 2500: the vocabulary in pieces
    }
    if (!brief())
        for (const subject &s : {lm_f32_at({8, 262144, 38}), lm_bf16_at({8, 262144, 38})}) check(s, shape(1, TE_CUDA ? 3 : 1));
}
TEST_CASE("symbols: the gradients of the reference", "[widths]") {
    check_gradients_of_reference(mlp_f32_at({37, 53}), shape(1, 3));
    check_gradients_of_reference(lm_f32_at({24, 31, 9}), shape(2, 3));
}

// ---- the same lists with constants -------------------------------------------------------------------------------------

MODEL(mlp_64, bf16, MLP(64, 256))
MODEL(mlp_65, f32, MLP(65, 131))
MODEL(gated_40, bf16, GATED(40, 88))
MODEL(row_1000, f16, ROW(1000))
MODEL(row_5000, bf16, ROW(5000))
MODEL(maps_1500, f32, MAPS(1500))
MODEL(lm_96, bf16, LM(96, 257, 50))
MODEL(block_96, f32, BLOCK(96, 200))

#if !TE_CUDA && defined(TE_KEEP_CALLS)
namespace {
// The outputs of forward, inference and backward on random numbers.
std::vector<std::vector<uint8_t>> run(const subject &s, int rows, unsigned seed) {
    source random(seed);
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    instance m(s, ctx);
    m.draw(random);
    const te_plan *p = m.plan;
    const te_dtype out_dtype = p->out_dtype;
    const bool tokens = te__from_tokens(p) != 0;
    const size_t size = te_dtype_bytes(p->dtype), out_size = te_dtype_bytes(out_dtype), n = (size_t)rows;
    buffer x(ctx, n * (size_t)p->in * size), y(ctx, n * (size_t)p->out * out_size), z(ctx, y.bytes), dx(ctx, x.bytes), dy(ctx, y.bytes);
    buffer edge(ctx, x.bytes), edge_grad(ctx, x.bytes), ids(ctx, n * 4);
    buffer workspace(ctx, s.workspace_bytes(m.memory.data(), rows, ctx)), memory(ctx, s.saved_bytes(rows));
    ctx->workspace = workspace.data(), ctx->workspace_bytes = workspace.bytes;
    x.write(random.draw(x.bytes / size, p->dtype), p->dtype), dy.write(random.draw(y.bytes / out_size, out_dtype), out_dtype);
    edge.write(random.draw(x.bytes / size, p->dtype), p->dtype);
    std::vector<int32_t> id(n);
    for (int32_t &i : id) i = random.below(50);
    ids.write_ints(id);
    const te_edge e = {"i", te_matrix(edge.data(), p->dtype, rows, p->in), te_matrix(edge_grad.data(), p->dtype, rows, p->in)};
    te_batch b;
    memset(&b, 0, sizeof b);
    b.batch = 1, b.seq = rows, b.tokens = b.labels = (const int32_t *)ids.data(), b.ignore_index = -1, b.edges = &e, b.edge_count = 1;
    te_saved saved;
    memset(&saved, 0, sizeof saved);
    saved.memory = memory.data(), saved.bytes = memory.bytes;
    const te_tensor tx = tokens ? te_none() : te_matrix(x.data(), p->dtype, rows, p->in), tdx = tokens ? te_none() : te_matrix(dx.data(), p->dtype, rows, p->in);
    set_rng(ctx, 5, 9);
    const te_status status[] = {s.forward(te_matrix(y.data(), out_dtype, rows, p->out), &saved, tx, m.memory.data(), &b, ctx),
                                s.infer(te_matrix(z.data(), out_dtype, rows, p->out), tx, m.memory.data(), &b, ctx),
                                s.backward(tdx, te_matrix(dy.data(), out_dtype, rows, p->out), &saved, m.memory.data(), &b, ctx)};
    INFO(te_last_error(ctx));
    for (te_status t : status) REQUIRE(t == TE_OK);
    ctx->workspace = nullptr, ctx->workspace_bytes = 0;
    return {y.raw(), z.raw(), dx.raw(), m.grads.raw(), memory.raw(), edge_grad.raw()};
}
} // namespace
#endif

TEST_CASE("lists with symbols and with constants have the same bits and need the same memory", "[widths]") {
    const struct { subject sized, fixed; } pairs[] = {
        {mlp_bf16_at({64, 256}), mlp_64_subject},   {mlp_f32_at({65, 131}), mlp_65_subject}, {gated_bf16_at({40, 88}), gated_40_subject},
        {row_f16_at({1000}), row_1000_subject},     {row_bf16_at({5000}), row_5000_subject}, {maps_f32_at({1500}), maps_1500_subject},
        {lm_bf16_at({96, 257, 50}), lm_96_subject}, {block_f32_at({96, 200}), block_96_subject}};
    for (const auto &pair : pairs)
        for (int rows : {1, 3, 45}) {
            const unsigned seed = fresh_seed();
            const te_plan *a = pair.sized.plan(), *b = pair.fixed.plan();
            CAPTURE(b->name, rows, seed);
            CHECK(pair.sized.param_bytes() == pair.fixed.param_bytes());
            CHECK(pair.sized.grad_bytes() == pair.fixed.grad_bytes());
            CHECK(pair.sized.saved_bytes(rows) == pair.fixed.saved_bytes(rows));
            REQUIRE(a->op_count == b->op_count);
            for (int i = 0; i < a->op_count; i++) {
                CHECK(a->op[i].in == b->op[i].in);
                CHECK(a->op[i].out == b->op[i].out);
            }
            // Not on CUDA, where the sums of a norm may have another order, and not where the compiler inlines, because it may contract
            // products and sums differently. There only the comparison with the reference counts.
#if !TE_CUDA && defined(TE_KEEP_CALLS)
            const bool same = run(pair.sized, rows, seed) == run(pair.fixed, rows, seed);
            CHECK(same);
#endif
        }
}

// ---- several dims in one program -----------------------------------------------------------------------------------

TEST_CASE("instances of one list with different dims", "[widths]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    source random(seed);
    struct one {
        int64_t dims[2];
        mlp_f32 m;
        std::unique_ptr<buffer> params, x, y;
    } all[3] = {{{64, 96}, {}, {}, {}, {}}, {{37, 5}, {}, {}, {}, {}}, {{1000, 64}, {}, {}, {}, {}}};
    const int rows = 7;
    std::vector<std::vector<uint8_t>> first;
    size_t workspace = 0;
    for (one &o : all) {
        REQUIRE(mlp_f32_set_dims(&o.m, o.dims, 2, ctx) == TE_OK);
        o.params.reset(new buffer(ctx, mlp_f32_param_bytes(&o.m)));
        o.x.reset(new buffer(ctx, (size_t)(rows * o.dims[0]) * 4)), o.y.reset(new buffer(ctx, o.x->bytes));
        o.params->write(random.draw(o.params->bytes / 4, TE_f32, 0, 0.1), TE_f32), o.x->write(random.draw(o.x->bytes / 4, TE_f32), TE_f32);
        REQUIRE(mlp_f32_bind(&o.m, o.params->data(), nullptr, ctx) == TE_OK);
        CHECK(o.m.fc1.weight.rows == o.dims[1]);
        CHECK(o.m.fc1.weight.cols == o.dims[0]);
        workspace = std::max(workspace, mlp_f32_workspace_bytes(&o.m, rows, ctx));
    }
    REQUIRE(te_context_reserve(ctx, workspace) == TE_OK);
    te_batch b;
    memset(&b, 0, sizeof b);
    b.batch = 1, b.seq = rows;
    for (int second = 0; second < 2; second++)
        for (int i = 0; i < 3; i++) {
            one &o = all[second ? 2 - i : i];
            o.y->poison();
            REQUIRE(mlp_f32_infer(te_matrix(o.y->data(), TE_f32, rows, o.dims[0]), te_matrix(o.x->data(), TE_f32, rows, o.dims[0]), &o.m, &b, ctx) == TE_OK);
            if (second) CHECK(o.y->raw() == first[(size_t)(2 - i)]);
            else first.push_back(o.y->raw());
        }
    CHECK(mlp_f32_infer(te_matrix(all[1].y->data(), TE_f32, rows, 37), te_matrix(all[0].x->data(), TE_f32, rows, 64), &all[1].m, &b, ctx) == TE_ERROR_SHAPE);
    CHECK(std::string(te_last_error(ctx)).find("64 columns") != std::string::npos);
}

// A declaration as in a header and the definition as in one source file, here in one file, with C linkage.
TE_DECLARE_DIMS(declared, f32, GATED(H, F))
TEST_CASE("a declared list with symbols", "[widths]") {
    context ctx_owner;
    static declared m;
    const int64_t dims[2] = {40, 88};
    REQUIRE(declared_set_dims(&m, dims, 2, &ctx_owner.c) == TE_OK);
    CHECK(declared_param_bytes(&m) == gated_f32_at({40, 88}).param_bytes());
    CHECK(declared_saved_bytes(&m, 9) == gated_f32_at({40, 88}).saved_bytes(9));
}
TE_DEFINE_DIMS(declared, f32, GATED(H, F))

// ---- invalid dims --------------------------------------------------------------------------------------------------

TEST_CASE("invalid dims are refused and change nothing", "[widths]") {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    static mlp_bf16 m;
    static te_batch b;
    te_saved saved;
    memset(&saved, 0, sizeof saved);
    b.batch = 1, b.seq = 1;
    const auto text = [&](const char *part) { return std::string(te_last_error(ctx)).find(part) != std::string::npos; };
    char bytes[512];
    void *const aligned = (void *)(((uintptr_t)bytes + 255) & ~(uintptr_t)255);

    // dims that are not set
    CHECK(mlp_bf16_param_bytes(&m) == 0);
    CHECK(mlp_bf16_grad_bytes(&m) == 0);
    CHECK(mlp_bf16_saved_bytes(&m, 8) == 0);
    CHECK(mlp_bf16_workspace_bytes(&m, 8, ctx) == 0);
    CHECK(mlp_bf16_bind(&m, aligned, nullptr, ctx) == TE_ERROR_STATE);
    CHECK(text("mlp_bf16: its widths are known only at run time; call mlp_bf16_set_dims first"));
    CHECK(mlp_bf16_infer(te_none(), te_none(), &m, &b, ctx) == TE_ERROR_STATE);
    CHECK(mlp_bf16_forward(te_none(), &saved, te_none(), &m, &b, ctx) == TE_ERROR_STATE);
    CHECK(mlp_bf16_backward(te_none(), te_none(), &saved, &m, &b, ctx) == TE_ERROR_STATE);
    CHECK(mlp_bf16_infer(te_none(), te_none(), nullptr, &b, ctx) == TE_ERROR_NULL);
    CHECK(mlp_bf16_param_bytes(nullptr) == 0);

    // invalid numbers
    const struct { int64_t dims[2]; te_status status; const char *text; } wrong[] = {
        {{0, 64}, TE_ERROR_VALUE, "TE_DIM(0) is 0"},
        {{64, -1}, TE_ERROR_VALUE, "TE_DIM(1) is -1"},
        {{64, INT64_MIN}, TE_ERROR_VALUE, "TE_DIM(1)"},
        {{64, INT64_MAX}, TE_ERROR_OVERFLOW, "TE_DIM(1) is 9223372036854775807"},
        {{64, TE_MAX_WIDTH + 1}, TE_ERROR_OVERFLOW, "8388608 at most"},
        {{65537, 64}, TE_ERROR_OVERFLOW, "(layernorm, ln) has 65537 columns"},
    };
    for (const auto &w : wrong) {
        CHECK(mlp_bf16_set_dims(&m, w.dims, 2, ctx) == w.status);
        CHECK(text(w.text));
        CHECK(mlp_bf16_param_bytes(&m) == 0);
    }
    const int64_t good[3] = {64, 96, 5}, large[1] = {TE_MAX_WIDTH};
    static maps_f32 maps;
    CHECK(maps_f32_set_dims(&maps, large, 1, ctx) == TE_ERROR_OVERFLOW); // this list has a width of twice the dim, which overflows
    CHECK(text("(bias, b) becomes wider than 8388608"));
    CHECK(mlp_bf16_set_dims(&m, good, 1, ctx) == TE_ERROR_SHAPE);
    CHECK(mlp_bf16_set_dims(&m, good, 3, ctx) == TE_ERROR_SHAPE);
    CHECK(text("3 dims were given, the list takes 2"));
    CHECK(mlp_bf16_set_dims(&m, nullptr, 2, ctx) == TE_ERROR_NULL);
    CHECK(mlp_bf16_set_dims(nullptr, good, 2, ctx) == TE_ERROR_NULL);
    CHECK(mlp_bf16_set_dims(&m, good, 2, nullptr) == TE_ERROR_NULL);

    // the old dims stay valid until others are set
    REQUIRE(mlp_bf16_set_dims(&m, good, 2, ctx) == TE_OK);
    const size_t params = mlp_bf16_param_bytes(&m);
    CHECK(mlp_bf16_infer(te_none(), te_none(), &m, &b, ctx) == TE_ERROR_STATE);
    CHECK(text("mlp_bf16_bind first"));
    CHECK(mlp_bf16_workspace_bytes(&m, 8, ctx) == 0);
    REQUIRE(mlp_bf16_bind(&m, aligned, nullptr, ctx) == TE_OK);
    CHECK(mlp_bf16_set_dims(&m, wrong[0].dims, 2, ctx) == TE_ERROR_VALUE);
    CHECK(mlp_bf16_param_bytes(&m) == params);
    CHECK(mlp_bf16_workspace_bytes(&m, 8, ctx) > 0);
    const int64_t other[2] = {128, 96};
    REQUIRE(mlp_bf16_set_dims(&m, other, 2, ctx) == TE_OK);
    CHECK(mlp_bf16_param_bytes(&m) > params);
    CHECK(mlp_bf16_workspace_bytes(&m, 8, ctx) == 0); // the instance must be bound anew
}

TEST_CASE("setting dims invalidates the saved tensors of a forward", "[widths]") {
    context ctx_owner;
    te_context *ctx = &ctx_owner.c;
    static row_f32 m;
    const int64_t small = 64, wide = 96;
    buffer params(ctx, 4096), grads(ctx, 4096), x(ctx, 96 * 4), y(ctx, 96 * 4), dx(ctx, 96 * 4), memory(ctx, 1 << 20);
    const te_edge e = {"i", te_matrix(x.data(), TE_f32, 1, 64), te_none()};
    te_batch b;
    te_saved saved;
    memset(&b, 0, sizeof b), memset(&saved, 0, sizeof saved);
    b.batch = b.seq = 1, b.edges = &e, b.edge_count = 1, saved.memory = memory.data(), saved.bytes = memory.bytes;
    REQUIRE(te_context_reserve(ctx, 1 << 20) == TE_OK);
    REQUIRE(row_f32_set_dims(&m, &small, 1, ctx) == TE_OK);
    REQUIRE(row_f32_bind(&m, params.data(), (float *)grads.data(), ctx) == TE_OK);
    REQUIRE(row_f32_forward(te_matrix(y.data(), TE_f32, 1, 64), &saved, te_matrix(x.data(), TE_f32, 1, 64), &m, &b, ctx) == TE_OK);
    REQUIRE(row_f32_set_dims(&m, &wide, 1, ctx) == TE_OK);
    REQUIRE(row_f32_bind(&m, params.data(), (float *)grads.data(), ctx) == TE_OK);
    CHECK(row_f32_backward(te_matrix(dx.data(), TE_f32, 1, 96), te_matrix(y.data(), TE_f32, 1, 96), &saved, &m, &b, ctx) == TE_ERROR_STATE);
    CHECK(std::string(te_last_error(ctx)) == "row_f32: the dims have been set anew, or the recipe switched, since the forward");
}

TEST_CASE("the printed plan has the widths that were set", "[widths]") {
    static row_f32 m;
    context ctx_owner;
    const auto printed = [] {
        FILE *f = tmpfile();
        REQUIRE(f);
        row_f32_print_plan(f, &m);
        rewind(f);
        std::string text;
        for (int c; (c = fgetc(f)) != EOF;) text += (char)c;
        fclose(f);
        return text;
    };
    CHECK(printed() == "row_f32: 8 ops, f32, of widths that row_f32_set_dims sets\n");
    const int64_t width = 12345;
    REQUIRE(row_f32_set_dims(&m, &width, 1, &ctx_owner.c) == TE_OK);
    CHECK(printed().find(" 12345 -> 12345 ") != std::string::npos);
}
