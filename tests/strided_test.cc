// strided_test.cc -- x, y, dx and dy whose rows have a stride (te_tensor.stride): columns of one wider matrix, in place, one row, a loss in
// backward, and wrong calls. check() (check.h) tests strides for the lists of the other tests.
#include "device_memory.h"
#include "draw.h"
#include "folder.h"
#include "te/te.h"

#include <cstring>
#include <vector>

namespace {

#define TE_FORWARD_linear_cross_entropy TE_FUSED
#define TE_BACKWARD_cross_entropy_linear TE_FUSED
enum { WIDTH = 64, ROWS = 24 };
TE_SEQUENTIAL(square, bf16, (fork, x), (rmsnorm, n, WIDTH), (linear, fc, WIDTH, WIDTH), (gelu, a), (add, x))
TE_SEQUENTIAL(product, f32, (linear, fc, WIDTH, WIDTH))
TE_SEQUENTIAL(joined, f32, (linear, fc, WIDTH, WIDTH), (input, other, WIDTH), (add, other))
TE_SEQUENTIAL(lossy, f32, (linear, head, WIDTH, 4096), (cross_entropy, loss, 4096))

// A model with its memory.
struct bound : device_memory {
    te_context &c;
    const te_plan *plan;
    std::vector<te_param> params;
    te_model model;
    te_batch batch;
    te_saved saved;
    bound(te_context &context, const te_plan *p, int rows) : device_memory(&context), c(context), plan(p) {
        memset(&model, 0, sizeof model), memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved);
        for (int i = 0; i < plan->op_count; i++) params.resize(params.size() + (size_t)plan->op[i].params);
        REQUIRE(te_model_bind(&model, plan, params.data(), (int)params.size(), get(te_plan_param_bytes(plan)), (float *)get(te_plan_grad_bytes(plan)), &c) == TE_OK);
        REQUIRE(te_model_randomize(&model, 0.2f, fresh_seed(), 0, &c) == TE_OK);
        saved.bytes = te_plan_saved_bytes(plan, rows), saved.memory = get(saved.bytes);
        REQUIRE(te_context_reserve(&c, te_plan_workspace_bytes(plan, &model, rows, &c) + te_plan_strided_bytes(plan, rows, &c)) == TE_OK);
        batch.batch = 1, batch.seq = rows;
    }
    // A matrix of normal numbers.
    te_tensor drawn(te_dtype t, int64_t rows, int64_t cols) {
        void *p = get((size_t)(rows * cols) * te_dtype_bytes(t));
        REQUIRE(te_fill_normal(p, t, rows * cols, 0, 1, fresh_seed(), 0, &c) == TE_OK);
        return te_matrix(p, t, rows, cols);
    }
    te_tensor copy_of(te_tensor t) { // dense
        const te_tensor d = te_matrix(get((size_t)(t.rows * t.cols) * te_dtype_bytes(t.dtype)), t.dtype, t.rows, t.cols);
        const size_t size = te_dtype_bytes(t.dtype);
        for (int64_t r = 0; r < t.rows; r++)
            REQUIRE(te_copy(&c, (char *)d.data + (size_t)(r * t.cols) * size, (char *)t.data + (size_t)(r * (t.stride ? t.stride : t.cols)) * size, (size_t)t.cols * size) == TE_OK);
        return d;
    }
    std::vector<char> bits(te_tensor t) {
        const te_tensor d = copy_of(t);
        std::vector<char> v((size_t)(t.rows * t.cols) * te_dtype_bytes(t.dtype));
        REQUIRE(te_copy(&c, v.data(), d.data, v.size()) == TE_OK);
        REQUIRE(te_synchronize(&c) == TE_OK);
        return v;
    }
    te_status infer(te_tensor y, te_tensor x) { return te_plan_infer(y, x, plan, &model, &batch, &c); }
    void poison_workspace() { REQUIRE(te_fill(&c, c.workspace, 0xff, c.workspace_bytes) == TE_OK); } // NaN
    te_status forward(te_tensor y, te_tensor x) { return te_plan_forward(y, &saved, x, plan, &model, &batch, &c); }
    te_status backward(te_tensor dx, te_tensor dy) {
        poison_workspace();
        return te_plan_backward(dx, dy, &saved, plan, &model, &batch, &c);
    }
    void refuses(te_status got, te_status want, const char *words) {
        INFO(words << ": " << te_last_error(&c));
        CHECK(got == want);
        CHECK(strstr(te_last_error(&c), words) != nullptr);
    }
};
// Columns [first, first + WIDTH) of a wider matrix.
te_tensor columns(te_tensor all, int64_t first) {
    return te_strided((char *)all.data + (size_t)first * te_dtype_bytes(all.dtype), all.dtype, all.rows, WIDTH, all.cols);
}

} // namespace

TEST_CASE("strides: x, y, dx and dy are columns of one matrix", "[strided]") {
    target t;
    bound b(*(te_context *)t, square_plan(), ROWS);
    const te_tensor all = b.drawn(TE_bf16, ROWS, 4 * WIDTH + 8), x = columns(all, 0), y = columns(all, WIDTH), dy = columns(all, 2 * WIDTH), dx = columns(all, 3 * WIDTH + 8);
    const te_tensor dense_x = b.copy_of(x), dense_dy = b.copy_of(dy), dense_y = b.drawn(TE_bf16, ROWS, WIDTH), dense_dx = b.drawn(TE_bf16, ROWS, WIDTH);
    const te_tensor gap = te_strided((char *)all.data + 2 * 3 * WIDTH, TE_bf16, ROWS, 8, all.cols), grads = te_matrix((void *)(uintptr_t)b.model.grads, TE_f32, 1, b.model.grad_elements);
    const std::vector<char> between = b.bits(gap);
    REQUIRE(b.forward(dense_y, dense_x) == TE_OK);
    REQUIRE(b.backward(dense_dx, dense_dy) == TE_OK);
    const std::vector<char> want_grads = b.bits(grads);
    REQUIRE(b.forward(y, x) == TE_OK);
    REQUIRE(b.backward(dx, dy) == TE_OK);
    const bool same_y = b.bits(y) == b.bits(dense_y), same_dx = b.bits(dx) == b.bits(dense_dx), same_grads = b.bits(grads) == want_grads;
    CHECK(same_y);
    CHECK(same_dx);
    CHECK(same_grads);
    const bool inputs = b.bits(x) == b.bits(dense_x) && b.bits(dy) == b.bits(dense_dy) && b.bits(gap) == between;
    CHECK(inputs);
    // some dense, some with a stride
    REQUIRE(b.forward(dense_y, x) == TE_OK);
    REQUIRE(b.backward(dense_dx, dy) == TE_OK);
    CHECK((b.bits(grads) == want_grads));
    REQUIRE(b.forward(y, dense_x) == TE_OK);
    REQUIRE(b.backward(dx, dense_dy) == TE_OK);
    CHECK((b.bits(grads) == want_grads));
}

TEST_CASE("strides: in place", "[strided]") {
    target t;
    te_context &c = *(te_context *)t;
    bound b(c, square_plan(), ROWS), p(c, product_plan(), ROWS); // dense, `product` cannot run in place
    for (bound *m : {&b, &p}) {
        const te_tensor all = m->drawn(m->plan->dtype, ROWS, WIDTH + 24), x = columns(all, 8), dense = m->copy_of(x), y = m->drawn(m->plan->dtype, ROWS, WIDTH);
        REQUIRE(m->infer(y, dense) == TE_OK);
        REQUIRE(m->infer(x, x) == TE_OK);
        CHECK((m->bits(x) == m->bits(y)));
        m->refuses(m->forward(x, x), TE_ERROR_VALUE, "y overlaps x; backward reads both");
    }
    const te_tensor x = p.drawn(TE_f32, ROWS, WIDTH), dx = p.drawn(TE_f32, ROWS, WIDTH), y = p.drawn(TE_f32, ROWS, WIDTH), dy = columns(p.drawn(TE_f32, ROWS, WIDTH + 1), 0);
    REQUIRE(p.forward(y, x) == TE_OK);
    REQUIRE(p.backward(dx, dy) == TE_OK);
    REQUIRE(p.backward(dy, dy) == TE_OK);
    CHECK((p.bits(dx) == p.bits(dy)));
    p.refuses(p.infer(x, x), TE_ERROR_VALUE, "y overlaps x; this list cannot run in place");
}

TEST_CASE("strides: overlap", "[strided]") {
    target t;
    bound b(*(te_context *)t, product_plan(), ROWS);
    const te_tensor all = b.drawn(TE_f32, ROWS, 3 * WIDTH), x = columns(all, 0), dense = b.drawn(TE_f32, ROWS, WIDTH);
    CHECK(b.infer(columns(all, WIDTH), x) == TE_OK);
    b.refuses(b.infer(columns(all, WIDTH - 4), x), TE_ERROR_VALUE, "y overlaps x; they are to be the same or apart");
    b.refuses(b.infer(x, columns(all, WIDTH - 4)), TE_ERROR_VALUE, "y overlaps x");
    b.refuses(b.infer(columns(all, 2 * WIDTH + 4), x), TE_ERROR_VALUE, "y overlaps x"); // wraps into the next row of x
    b.refuses(b.infer(te_matrix(all.data, TE_f32, ROWS, WIDTH), x), TE_ERROR_VALUE, "y overlaps x");
    b.refuses(b.infer(te_strided((float *)all.data + WIDTH, TE_f32, ROWS, WIDTH, WIDTH + 8), x), TE_ERROR_VALUE, "y overlaps x"); // another stride
    b.refuses(b.infer(te_strided(all.data, TE_f32, ROWS, WIDTH, WIDTH + 1), te_matrix(all.data, TE_f32, ROWS, WIDTH)), TE_ERROR_VALUE, "y overlaps x");
    b.saved.memory = b.get(b.saved.bytes + sizeof(float) * ROWS * WIDTH); // so that y lies in no other memory
    b.refuses(b.forward(te_strided(b.saved.memory, TE_f32, ROWS, WIDTH, WIDTH), x), TE_ERROR_VALUE, "y overlaps saved.memory");
    b.refuses(b.infer(te_strided(b.c.workspace, TE_f32, ROWS, WIDTH, 2 * WIDTH), dense), TE_ERROR_VALUE, "y overlaps the workspace");
    REQUIRE(b.forward(columns(all, WIDTH), x) == TE_OK);
    b.refuses(b.backward(x, dense), TE_ERROR_VALUE, "dx overlaps the forward's x, which backward reads");
    CHECK(b.backward(columns(all, 2 * WIDTH), dense) == TE_OK);
}

TEST_CASE("strides: one row has none, and a stride of the width is dense", "[strided]") {
    target t;
    te_context &c = *(te_context *)t;
    bound b(c, product_plan(), ROWS);
    const te_tensor x = b.drawn(TE_f32, ROWS, WIDTH), y = b.drawn(TE_f32, ROWS, WIDTH), z = b.drawn(TE_f32, ROWS, WIDTH);
    c.workspace_bytes = te_plan_workspace_bytes(b.plan, &b.model, ROWS, &c); // no copies
    REQUIRE(b.infer(y, x) == TE_OK);
    CHECK(b.infer(te_strided(z.data, TE_f32, ROWS, WIDTH, WIDTH), te_strided(x.data, TE_f32, ROWS, WIDTH, WIDTH)) == TE_OK);
    CHECK((b.bits(y) == b.bits(z)));
    b.batch.seq = 1;
    const te_tensor one = te_matrix(z.data, TE_f32, 1, WIDTH), first = te_matrix(y.data, TE_f32, 1, WIDTH);
    CHECK(b.infer(te_strided(z.data, TE_f32, 1, WIDTH, 1000003), te_strided(x.data, TE_f32, 1, WIDTH, WIDTH + 1)) == TE_OK);
    REQUIRE(b.infer(first, te_matrix(x.data, TE_f32, 1, WIDTH)) == TE_OK);
    CHECK((b.bits(one) == b.bits(first)));
}

TEST_CASE("strides: the loss in backward", "[strided]") {
    target t;
    enum { TOKENS = 4096 };
    bound b(*(te_context *)t, lossy_plan(), TOKENS);
    const te_tensor x = b.drawn(TE_f32, TOKENS, WIDTH), dx = b.drawn(TE_f32, TOKENS, WIDTH), y = b.drawn(TE_f32, TOKENS, 1), wide = b.drawn(TE_f32, TOKENS, 3);
    const te_tensor thin = te_strided(wide.data, TE_f32, TOKENS, 1, 3), rest = te_strided((float *)wide.data + 1, TE_f32, TOKENS, 2, 3);
    std::vector<int32_t> labels(TOKENS);
    for (size_t i = 0; i < labels.size(); i++) labels[i] = (int32_t)(i * 7 % 4096);
    void *there = b.get(sizeof(int32_t) * TOKENS);
    REQUIRE(te_copy(&b.c, there, labels.data(), sizeof(int32_t) * TOKENS) == TE_OK);
    b.batch.labels = (const int32_t *)there, b.batch.loss_scale = 1.0f / TOKENS, b.batch.loss_in_backward = 1;
    REQUIRE(b.forward(y, x) == TE_OK);
    REQUIRE(b.backward(dx, te_none()) == TE_OK);
    const std::vector<char> before = b.bits(thin), gap = b.bits(rest), want_dx = b.bits(dx);
    REQUIRE(b.forward(thin, x) == TE_OK);
    REQUIRE(b.saved.loss_in_backward);
    CHECK((b.bits(thin) == before)); // forward has left the loss to backward
    REQUIRE(b.backward(dx, te_none()) == TE_OK);
    CHECK((b.bits(thin) == b.bits(y)));
    CHECK((b.bits(rest) == gap));
    CHECK((b.bits(dx) == want_dx));
}

TEST_CASE("strides: wrong calls", "[strided]") {
    target t;
    te_context &c = *(te_context *)t;
    bound b(c, product_plan(), ROWS), j(c, joined_plan(), ROWS);
    const te_tensor x = b.drawn(TE_f32, 2 * ROWS, 2 * WIDTH), y = b.drawn(TE_f32, ROWS, WIDTH);
    const auto with = [&](int64_t stride) { return te_strided(x.data, TE_f32, ROWS, WIDTH, stride); };
    b.refuses(b.infer(y, with(WIDTH - 1)), TE_ERROR_SHAPE, "the rows of x have a stride of 63 elements: it is 0 or 64");
    b.refuses(b.infer(with(-WIDTH), y), TE_ERROR_SHAPE, "the rows of y have a stride of -64 elements");
    b.refuses(b.infer(y, with(INT32_MAX / 4 + 1)), TE_ERROR_SHAPE, "the rows of x have a stride");
    b.refuses(b.infer(y, te_strided((char *)x.data + 4, TE_f32, ROWS, WIDTH, 2 * WIDTH)), TE_ERROR_ALIGNMENT, "x lies at");
    REQUIRE(b.forward(y, te_strided(x.data, TE_f32, ROWS, WIDTH, WIDTH)) == TE_OK);
    b.refuses(b.backward(te_none(), with(3)), TE_ERROR_SHAPE, "the rows of dy have a stride of 3");
    b.refuses(b.backward(with(3), y), TE_ERROR_SHAPE, "the rows of dx have a stride of 3");
    // an extra input
    const te_tensor all = j.drawn(TE_f32, ROWS, 2 * WIDTH);
    const te_edge edge = {"other", columns(all, 0), te_none()};
    j.batch.edges = &edge, j.batch.edge_count = 1;
    j.refuses(j.infer(y, te_matrix(x.data, TE_f32, ROWS, WIDTH)), TE_ERROR_SHAPE, "the rows of other have a stride, which only those of x, y, dx and dy may have");
    // the workspace has no space for the copies
    const size_t there = c.workspace_bytes;
    c.workspace_bytes = te_plan_workspace_bytes(b.plan, &b.model, ROWS, &c);
    b.refuses(b.infer(y, with(2 * WIDTH)), TE_ERROR_MEMORY, "te_plan_strided_bytes");
    c.workspace_bytes = 0;
    b.refuses(b.infer(y, with(2 * WIDTH)), TE_ERROR_MEMORY, "bytes of workspace");
    c.workspace_bytes = there;
    CHECK(b.infer(y, with(2 * WIDTH)) == TE_OK);
}
