// patterns_forward_kinds_bf16_test.cc -- every pattern of the forward fusion list against the reference, in bf16: every kind of each family at aligned widths.
// In a file of its own: _MANY_MODELS_CUDA in tools/bazel/te.bzl says why.
#include "patterns.h"

#define PATTERN_DTYPE bf16

// On CUDA these widths are large enough for the kernels that fuse a GEMM with its epilogue (te/linear/impl/linear_epilogue.h).
#define WIDE_IN (TE_CUDA ? 264 : 64)
#define WIDE_OUT (TE_CUDA ? 328 : 96)
#define PATTERN_SPACE all_wide
#define PATTERN_IN WIDE_IN
#define PATTERN_OUT WIDE_OUT
#define PATTERN_HOW MODEL
#define PATTERN_ALL 1
#include "patterns_forward.h"

TEST_CASE("every pattern of the forward fusion list with every kind, bf16", "[patterns]") {
    check_patterns(&te_plan::forward, &te_plan::forward_count);
}
