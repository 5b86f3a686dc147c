// patterns_forward_f16_test.cc -- every pattern of the forward fusion list against the reference, in f16: one kind of each family at aligned widths.
// Odd widths and unfused lists have the same code as in bf16 (patterns_forward_bf16_test.cc) and f32.
#include "patterns.h"

#define PATTERN_DTYPE f16

// On CUDA these widths are large enough for the kernels that fuse a GEMM with its epilogue (te/linear/impl/linear_epilogue.h).
#define WIDE_IN (TE_CUDA ? 264 : 64)
#define WIDE_OUT (TE_CUDA ? 328 : 96)
#define PATTERN_SPACE one_wide
#define PATTERN_IN WIDE_IN
#define PATTERN_OUT WIDE_OUT
#define PATTERN_HOW MODEL
#define PATTERN_ALL 0
#include "patterns_forward.h"

TEST_CASE("every pattern of the forward fusion list, f16", "[patterns]") {
    check_patterns(&te_plan::forward, &te_plan::forward_count);
}
