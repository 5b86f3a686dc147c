// rows_forward_bf16_test.cc -- every row of the forward fusion list against the reference, in bf16: one kind of each family at odd widths.
// rows_forward_kinds_bf16_test.cc has every kind, at aligned widths.
#define TE_SMALL_M_16BIT 1 // kernels for 9 to 128 rows in 16 bits beside cuBLASLt, too
#include "rows.h"

#define ROW_DTYPE bf16
#define ROW_SPACE one_37
#define ROW_IN 37
#define ROW_OUT 53
#define ROW_HOW MODEL
#define ROW_ALL 0
#include "rows_forward.h"

TEST_CASE("every row of the forward fusion list, bf16", "[rows]") {
    check_rows(&te_plan::forward, &te_plan::forward_count);
}
