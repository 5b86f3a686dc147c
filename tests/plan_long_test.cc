// plan_long_test.cc -- plans of lists of the maximum length.
// In a file of its own: _MANY_MODELS_CUDA in tools/bazel/te.bzl says why.
#include "harness.h"
#include "te/ops/activation.h"
#include "te/ops/elementwise.h"
#include "te/ops/dropout.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/residual.h"

// Twelve ops. Eight times twelve are 96, the maximum of a list.
#define TWELVE(i, W, F)                                                                                                       \
    (fork, x##i), (rmsnorm, n##i, W), (linear, l##i, W, F), (bias, b##i, F), (silu, a##i), (linear, m##i, F, W), (bias, c##i, W), \
        (dropout, d##i, 0.1f), (add, x##i), (scale, s##i, 0.9f), (layernorm, o##i, W), (scale, t##i, 1.1f)
#define TWENTY_FOUR(i, j, W, F) TWELVE(i, W, F), TWELVE(j, W, F)
MODEL(list_of_72, bf16, TWENTY_FOUR(1, 2, 24, 40), TWENTY_FOUR(3, 4, 24, 40), TWENTY_FOUR(5, 6, 24, 40))
MODEL(list_of_96, f32, TWENTY_FOUR(1, 2, 24, 40), TWENTY_FOUR(3, 4, 24, 40), TWENTY_FOUR(5, 6, 24, 40), TWENTY_FOUR(7, 8, 24, 40))
static_assert((int)list_of_96_op_count == 96 && (int)TE_MAX_OPS == 96, "as long as a list can be");
UNFUSED(unfused_96, f32, TWENTY_FOUR(1, 2, 24, 40), TWENTY_FOUR(3, 4, 24, 40), TWENTY_FOUR(5, 6, 24, 40), TWENTY_FOUR(7, 8, 24, 40))
static_assert((int)unfused_96_forward_steps == 96 && (int)unfused_96_infer_steps == 88, "an op, a step; inference leaves dropout out");

static const subject *const lists[] = {&list_of_72_subject, &list_of_96_subject, &unfused_96_subject};
#include "plan.h"
