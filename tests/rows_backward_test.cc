// rows_backward_test.cc -- every row of the backward fusion list against the reference, in f32: one kind of each family at odd and at aligned widths, and unfused.
// rows_backward_bf16_test.cc has every kind.
#include "rows.h"

#define ROW_DTYPE f32
#define ROW_SPACE one_37
#define ROW_IN 37
#define ROW_OUT 53
#define ROW_HOW MODEL
#define ROW_ALL 0
#include "rows_backward.h"

#define ROW_SPACE one_64
#define ROW_IN 64
#define ROW_OUT 96
#define ROW_HOW MODEL
#define ROW_ALL 0
#include "rows_backward.h"

#define ROW_SPACE plain_37
#define ROW_IN 37
#define ROW_OUT 53
#define ROW_HOW UNFUSED
#define ROW_ALL 0
#include "rows_backward.h"

// Each row of the X-list is a row of the fusion list; the case behind this says the same the other way round.
#define IS_FUSED(row) static_assert(TE_IF_MARKED(TE_BACKWARD_##row, 1, 0), "TE_BACKWARD_PATTERNS lists " #row ", which is no row");
TE_BACKWARD_PATTERNS(IS_FUSED)

TEST_CASE("every row of the backward fusion list, f32", "[rows]") {
    check_rows(&te_plan::backward, &te_plan::backward_count);
}
