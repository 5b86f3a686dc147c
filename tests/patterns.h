// patterns.h -- for the tests that include patterns_forward.h or patterns_backward.h: the table of their cases, and a check of each.
#ifndef TESTS_PATTERNS_H
#define TESTS_PATTERNS_H

#include "harness.h"
#include "te/ops/activation.h"
#include "te/ops/attention.h"
#include "te/ops/elementwise.h"
#include "te/ops/dropout.h"
#include "te/moe.h"
#include "te/ops/head_norm.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/residual.h"

namespace {

// A list that uses a pattern. step: the name of that step in its plan ("linear_bias_gelu" of the pattern linear_bias_act).
struct pattern_case {
    const subject *s;
    const char *pattern, *step;
    bool fused;
};
inline std::vector<pattern_case> &pattern_cases() {
    static std::vector<pattern_case> cases;
    return cases;
}
struct add_pattern_case {
    add_pattern_case(const subject &s, const char *pattern, const char *step, bool fused) {
        const pattern_case c = {&s, pattern, step, fused};
        pattern_cases().push_back(c);
    }
};

} // namespace

// PATTERN_HOW: MODEL or UNFUSED (harness.h).
#define PATTERN_CASE(name, pattern, step, ...)    \
    PATTERN_HOW(name, PATTERN_DTYPE, __VA_ARGS__) \
    const add_pattern_case name##_added(name##_subject, pattern, step, TE_JOIN1(PATTERN_FUSED_, PATTERN_HOW));
#define PATTERN_FUSED_MODEL true
#define PATTERN_FUSED_UNFUSED false

namespace {

// Each case must compute what the reference does and, if fused, its plan must have the pattern as a step.
inline void check_patterns(const te_step *const te_plan::*steps, const int te_plan::*count) {
    for (const pattern_case &c : pattern_cases()) {
        const te_plan *p = c.s->plan();
        int found = 0, longest = 0;
        for (int i = 0; i < p->*count; i++) {
            found += !strcmp((p->*steps)[i].pattern, c.step);
            longest = std::max(longest, (p->*steps)[i].count);
        }
        CAPTURE(c.pattern, c.step);
        if (c.fused) CHECK(found == 1);
        else CHECK(longest == 1);
        check(*c.s, shape(1, 1));
        if (!brief()) check(*c.s, shape(7, 1));
        check(*c.s, shape(1, brief() && !TE_CUDA ? 35 : 131));
        if (TE_CUDA && c.fused && ((p->dtype != TE_f32 && !strncmp(c.step, "linear_", 7)) || strstr(c.step, "norm"))) {
            const custom_gemms on; // one fused kernel; 131 and 258 rows are several tiles for each of its two blocks
            check(*c.s, shape(1, 131));
            check(*c.s, shape(3, 86));
        }
        if (p->dtype == TE_f32 && c.fused) check_gradients_of_reference(*c.s, shape(1, 3));
    }
}

} // namespace

#endif
