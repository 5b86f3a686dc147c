// harness_test.cc -- tests of the harness: it must find errors of known sizes. A case with the tag [!shouldfail] passes if a check in it fails.
#include "harness.h"
#include "te/ops/activation.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/elementwise.h"

namespace {

MODEL(little, f32, (linear, l, 37, 53), (scale, s, 0.001f))
MODEL(normed, f32, (rmsnorm, n, 96), (linear, l, 96, 7))
MODEL(at_a_step, f32, (linear, l, 8, 64), (scale, s, 1e-8f), (relu, a))

float off; // is added to the first element of y or dx

void change(te_tensor t, te_context *c) {
    float first;
    REQUIRE(te_copy(c, &first, t.data, sizeof first) == TE_OK);
    REQUIRE(te_synchronize(c) == TE_OK);
    first += off;
    REQUIRE(te_copy(c, t.data, &first, sizeof first) == TE_OK);
    REQUIRE(te_synchronize(c) == TE_OK);
}
subject with_wrong_forward() {
    subject s = little_subject;
    s.forward = [](te_tensor y, te_saved *saved, te_tensor x, const void *m, const te_batch *b, te_context *c) {
        const te_status status = little_forward(y, saved, x, (const little *)m, b, c);
        change(y, c);
        return status;
    };
    return s;
}
subject with_wrong_backward() {
    subject s = normed_subject;
    s.backward = [](te_tensor dx, te_tensor dy, const te_saved *saved, const void *m, const te_batch *b,
                    te_context *c) {
        const te_status status = normed_backward(dx, dy, saved, (const normed *)m, b, c);
        if (dx.data) change(dx, c);
        return status;
    };
    return s;
}

} // namespace

TEST_CASE("right results pass") {
    off = 0;
    for (int i = 0; i < 5; i++) check(with_wrong_forward(), shape(1, 5)), check(with_wrong_backward(), shape(1, 5));
}

TEST_CASE("a value near 1e-3 that is off by 3e-8 is found", "[!shouldfail]") {
    off = 3e-8f; // a relative error of 3e-5; a tolerance with an absolute floor of 0.05 would let errors of 8e-6 pass
    check(with_wrong_forward(), shape(1, 5));
}

TEST_CASE("a gradient near 1 that is off by 3e-5 is found", "[!shouldfail]") {
    off = 3e-5f; // a tolerance of 16 times 1e-5 for one element would let this pass
    check(with_wrong_backward(), shape(1, 5));
}

TEST_CASE("a list whose relu always has an input near 0 fails with a message", "[!shouldfail]") {
    check(at_a_step_subject, shape(1, 64));
}

TEST_CASE("custom_gemms ends when a check throws") {
    CHECK(custom_gemms::count() == 0);
    try {
        const custom_gemms on;
        CHECK(custom_gemms::count() == 1);
        throw 1;
    } catch (int) {}
    CHECK(custom_gemms::count() == 0);
}

TEST_CASE("the error bound grows with the terms that cancel, not with their sum") {
    const std::vector<reference::vec> params = {{1, -1, 1e-3}};
    reference::call call;
    te_op op;
    memset(&op, 0, sizeof op);
    op.kind = "linear", op.name = "l", op.in = 3, op.out = 1, op.params = 1;
    te_plan plan;
    memset(&plan, 0, sizeof plan);
    plan.op = &op, plan.op_count = 1;
    const reference::list l(&plan, "(linear, l, 3, 1)");
    bounds::forward b(l, params, {1000, 1000, 1}, call, TE_f32);
    b.step(0, {1e-3}, false, false); // 1000 - 1000 + 0.001
    CHECK(b.error[0][0] == Approx(2000.001 * bounds::sums));
}
