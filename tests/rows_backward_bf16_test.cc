// rows_backward_bf16_test.cc -- every row of the backward fusion list against the reference, in bf16: every kind at aligned widths; one of each family at odd widths.
#include "rows.h"

#define ROW_DTYPE bf16
#define ROW_SPACE all_64
#define ROW_IN 64
#define ROW_OUT 96
#define ROW_HOW MODEL
#define ROW_ALL 1
#include "rows_backward.h"

#define ROW_SPACE one_37
#define ROW_IN 37
#define ROW_OUT 53
#define ROW_HOW MODEL
#define ROW_ALL 0
#include "rows_backward.h"

TEST_CASE("every row of the backward fusion list, bf16", "[rows]") {
    check_rows(&te_plan::backward, &te_plan::backward_count);
}
