// rows_forward_kinds_test.cc -- every row of the forward fusion list against the reference, in f32: every kind of each family at odd widths.
// In a file of its own: _MANY_MODELS_CUDA in tools/bazel/te.bzl says why.
#include "rows.h"

#define ROW_DTYPE f32
#define ROW_SPACE all_37
#define ROW_IN 37
#define ROW_OUT 53
#define ROW_HOW MODEL
#define ROW_ALL 1
#include "rows_forward.h"

TEST_CASE("every row of the forward fusion list with every kind, f32", "[rows]") {
    check_rows(&te_plan::forward, &te_plan::forward_count);
}
