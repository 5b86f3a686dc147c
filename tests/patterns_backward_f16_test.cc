// patterns_backward_f16_test.cc -- every pattern of the backward fusion list against the reference, in f16: one kind of each family at aligned widths.
// Odd widths and unfused lists have the same code as in bf16 (patterns_backward_bf16_test.cc) and f32.
#include "patterns.h"

#define PATTERN_DTYPE f16
#define PATTERN_SPACE one_64
#define PATTERN_IN 64
#define PATTERN_OUT 96
#define PATTERN_HOW MODEL
#define PATTERN_ALL 0
#include "patterns_backward.h"

TEST_CASE("every pattern of the backward fusion list, f16", "[patterns]") {
    check_patterns(&te_plan::backward, &te_plan::backward_count);
}
