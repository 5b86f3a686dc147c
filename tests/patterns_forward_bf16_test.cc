// patterns_forward_bf16_test.cc -- every pattern of the forward fusion list against the reference, in bf16: one kind of each family at odd widths.
// patterns_forward_kinds_bf16_test.cc has every kind, at aligned widths.
#define TE_SMALL_M_16BIT 1 // also the small-m kernels (9 to 128 rows) for 16 bits, instead of cuBLASLt alone
#include "patterns.h"

#define PATTERN_DTYPE bf16
#define PATTERN_SPACE one_37
#define PATTERN_IN 37
#define PATTERN_OUT 53
#define PATTERN_HOW MODEL
#define PATTERN_ALL 0
#include "patterns_forward.h"

TEST_CASE("every pattern of the forward fusion list, bf16", "[patterns]") {
    check_patterns(&te_plan::forward, &te_plan::forward_count);
}
