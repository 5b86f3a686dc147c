// recompute_long_test.cc -- the checks of recompute.h for forks and inputs that cross recompute regions, for the maximum number of regions and for
// a region of the maximum length.
// In a file of its own: _MANY_MODELS_CUDA in tools/bazel/te.bzl says why.
#include "harness.h"
#include "te/ops/activation.h"
#include "te/ops/elementwise.h"
#include "te/ops/dropout.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/recompute.h"
#include "te/ops/residual.h"

#define V 61
#define BEGIN(r) (recompute, r),
#define END(r) , (end_recompute, r)

// X(name, how, dtype, ops...)
#define LISTS(X)                                                                                                   \
    /* forks before a region, inside it, and at its beginning with the add behind it or in the next region */       \
    X(edges, MODEL, bf16, (fork, a), (linear, l, 40, 40), BEGIN(r) (fork, b), (fork, c), (gelu, g), (fork, d), (linear, m, 40, 40), (add, d), (add, a) END(r), \
      (add, c), BEGIN(s) (fork, z), (silu, h), (linear, n, 40, 40), (add, b), (add, z) END(s), (bias, e, 40))            \
    X(inputs, MODEL, f32, (input, i, 37), BEGIN(r) (input, j, 53), (linear, l, 37, 53), (gelu, g), (linear, m, 53, 37), (add, i), (input, k, 37), (silu, h), (linear, n, 37, 53) END(r), \
      (add, j), (output, o), (linear, p, 53, 37), (add, k))                                                        \
    /* an (output, ..) before a region, whose input the op before it saves, and before a norm */                   \
    X(behind_output, MODEL, f32, (bias, a, 40), (output, o), BEGIN(r) (gelu, g), (linear, l, 40, 40), (silu, h) END(r), (bias, b, 40), (output, p), (rmsnorm, n, 40)) \
    /* the maximum number of ops, and of regions, of a list */                                                     \
    X(list_of_96, MODEL, f32, EIGHT_REGIONS(1), EIGHT_REGIONS(2), EIGHT_REGIONS(3), EIGHT_REGIONS(4))              \
    X(long_region, MODEL, bf16, BEGIN(r) TWENTY(1), TWENTY(2), TWENTY(3), TWENTY(4), (bias, b, 40) END(r))
#define SPAN(i, ...) BEGIN(r##i) __VA_ARGS__ END(r##i)
#define EIGHT_REGIONS(i)                                                                                             \
    SPAN(i##0, (bias, b##i, 24)), SPAN(i##1, (gelu, g##i)), SPAN(i##2, (linear, l##i, 24, 40)), SPAN(i##3, (silu, s##i)), SPAN(i##4, (dropout, d##i, 0.1f)), \
        SPAN(i##5, (linear, m##i, 40, 24)), SPAN(i##6, (rmsnorm, n##i, 24)), SPAN(i##7, (scale, t##i, 1.1f))
#define TEN(i)                                                                                                     \
    (fork, x##i), (rmsnorm, n##i, 40), (linear, l##i, 40, 24), (silu, a##i), (linear, m##i, 24, 40), (bias, c##i, 40), (dropout, d##i, 0.1f), (add, x##i), \
        (scale, s##i, 0.9f), (layernorm, o##i, 40)
#define TWENTY(i) TEN(i##0), TEN(i##1)
#define MODELS(name, how, dtype, ...) how(name, dtype, __VA_ARGS__)
LISTS(MODELS)
static_assert((int)list_of_96_op_count == 32 && (int)TE_MAX_RECOMPUTE_REGIONS == 32, "with 64 marks");

#define REF(name, ...) &name##_subject,
static const subject *const lists[] = {LISTS(REF)};
#include "recompute.h"
