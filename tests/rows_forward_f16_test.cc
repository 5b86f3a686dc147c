// rows_forward_f16_test.cc -- every row of the forward fusion list against the reference, in f16: one kind of each family at aligned widths.
// Odd widths and lists that are not fused take the same ways as in bf16 (rows_forward_bf16_test.cc) and f32.
#include "rows.h"

#define ROW_DTYPE f16

// On a GPU wide enough for the kernels that are product and chain in one (te/linear/impl/linear_epilogue.h).
#define WIDE_IN (TE_CUDA ? 264 : 64)
#define WIDE_OUT (TE_CUDA ? 328 : 96)
#define ROW_SPACE one_wide
#define ROW_IN WIDE_IN
#define ROW_OUT WIDE_OUT
#define ROW_HOW MODEL
#define ROW_ALL 0
#include "rows_forward.h"

TEST_CASE("every row of the forward fusion list, f16", "[rows]") {
    check_rows(&te_plan::forward, &te_plan::forward_count);
}
