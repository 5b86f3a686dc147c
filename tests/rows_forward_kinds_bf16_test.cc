// rows_forward_kinds_bf16_test.cc -- every row of the forward fusion list against the reference, in bf16: every kind of each family at aligned widths.
// In a file of its own: _MANY_MODELS_CUDA in tools/bazel/te.bzl says why.
#include "rows.h"

#define ROW_DTYPE bf16

// On a GPU wide enough for the kernels that are product and chain in one (te/linear/impl/linear_epilogue.h).
#define WIDE_IN (TE_CUDA ? 264 : 64)
#define WIDE_OUT (TE_CUDA ? 328 : 96)
#define ROW_SPACE all_wide
#define ROW_IN WIDE_IN
#define ROW_OUT WIDE_OUT
#define ROW_HOW MODEL
#define ROW_ALL 1
#include "rows_forward.h"

TEST_CASE("every row of the forward fusion list with every kind, bf16", "[rows]") {
    check_rows(&te_plan::forward, &te_plan::forward_count);
}
