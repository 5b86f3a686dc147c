// rows.h -- what rows_forward.h and rows_backward.h share: the table of cases that they make, and how it is gone through.
#ifndef TESTS_ROWS_H
#define TESTS_ROWS_H

#include "harness.h"
#include "te/ops/activation.h"
#include "te/ops/attention.h"
#include "te/ops/elementwise.h"
#include "te/ops/dropout.h"
#include "te/ops/head_norm.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/residual.h"
#include "te/ops/dyt.h"

namespace {

// A list that exercises a row: `step` is what the step is called in its plan ("linear_bias_gelu" of linear_bias_act).
struct row_case {
    const subject *s;
    const char *row, *step;
    bool fused;
};
inline std::vector<row_case> &row_cases() {
    static std::vector<row_case> cases;
    return cases;
}
struct add_row_case {
    add_row_case(const subject &s, const char *row, const char *step, bool fused) {
        const row_case c = {&s, row, step, fused};
        row_cases().push_back(c);
    }
};

} // namespace

// ROW_HOW: MODEL or UNFUSED (harness.h).
#define ROW_CASE(name, row, step, ...)    \
    ROW_HOW(name, ROW_DTYPE, __VA_ARGS__) \
    const add_row_case name##_added(name##_subject, row, step, TE_JOIN1(ROW_FUSED_, ROW_HOW));
#define ROW_FUSED_MODEL true
#define ROW_FUSED_UNFUSED false

namespace {

// Every case has its row as a step of its plan, if fused, and computes what the reference does.
inline void check_rows(const te_step *const te_plan::*steps, const int te_plan::*count) {
    for (const row_case &c : row_cases()) {
        const te_plan *p = c.s->plan();
        int found = 0, longest = 0;
        for (int i = 0; i < p->*count; i++) {
            found += !strcmp((p->*steps)[i].row, c.step);
            longest = std::max(longest, (p->*steps)[i].count);
        }
        CAPTURE(c.row, c.step);
        if (c.fused) CHECK(found == 1);
        else CHECK(longest == 1);
        check(*c.s, shape(1, 1));
        if (!brief()) check(*c.s, shape(7, 1));
        check(*c.s, shape(1, brief() && !TE_CUDA ? 35 : 131));
        if (TE_CUDA && c.fused && ((p->dtype != TE_f32 && !strncmp(c.step, "linear_", 7)) || strstr(c.step, "norm"))) {
            const own_products on; // and more rows than multiprocessors
            check(*c.s, shape(1, 131));
            check(*c.s, shape(3, 86));
        }
        if (p->dtype == TE_f32 && c.fused) check_gradients_of_reference(*c.s, shape(1, 3));
    }
}

} // namespace

#endif
