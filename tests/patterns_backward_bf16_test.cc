// patterns_backward_bf16_test.cc -- every pattern of the backward fusion list against the reference, in bf16: every kind at aligned widths; one of each family at odd widths.
#include "patterns.h"

#define PATTERN_DTYPE bf16
#define PATTERN_SPACE all_64
#define PATTERN_IN 64
#define PATTERN_OUT 96
#define PATTERN_HOW MODEL
#define PATTERN_ALL 1
#include "patterns_backward.h"

#define PATTERN_SPACE one_37
#define PATTERN_IN 37
#define PATTERN_OUT 53
#define PATTERN_HOW MODEL
#define PATTERN_ALL 0
#include "patterns_backward.h"

TEST_CASE("every pattern of the backward fusion list, bf16", "[patterns]") {
    check_patterns(&te_plan::backward, &te_plan::backward_count);
}
