// rows_backward_f16_test.cc -- every row of the backward fusion list against the reference, in f16: one kind of each family at aligned widths.
// Odd widths and lists that are not fused take the same ways as in bf16 (rows_backward_bf16_test.cc) and f32.
#include "rows.h"

#define ROW_DTYPE f16
#define ROW_SPACE one_64
#define ROW_IN 64
#define ROW_OUT 96
#define ROW_HOW MODEL
#define ROW_ALL 0
#include "rows_backward.h"

TEST_CASE("every row of the backward fusion list, f16", "[rows]") {
    check_rows(&te_plan::backward, &te_plan::backward_count);
}
