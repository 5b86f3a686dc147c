// patterns_backward_test.cc -- every pattern of the backward fusion list against the reference, in f32: one kind of each family at odd and at aligned widths, and unfused.
// patterns_backward_bf16_test.cc has every kind.
#include "patterns.h"

#define PATTERN_DTYPE f32
#define PATTERN_SPACE one_37
#define PATTERN_IN 37
#define PATTERN_OUT 53
#define PATTERN_HOW MODEL
#define PATTERN_ALL 0
#include "patterns_backward.h"

#define PATTERN_SPACE one_64
#define PATTERN_IN 64
#define PATTERN_OUT 96
#define PATTERN_HOW MODEL
#define PATTERN_ALL 0
#include "patterns_backward.h"

#define PATTERN_SPACE plain_37
#define PATTERN_IN 37
#define PATTERN_OUT 53
#define PATTERN_HOW UNFUSED
#define PATTERN_ALL 0
#include "patterns_backward.h"

// Each entry of the X-list must be a pattern of the fusion list. A test case of patterns_forward_test.cc checks the converse.
#define IS_FUSED(pattern) static_assert(TE_IF_MARKED(TE_BACKWARD_##pattern, 1, 0), "TE_BACKWARD_PATTERNS lists " #pattern ", which is no pattern");
TE_BACKWARD_PATTERNS(IS_FUSED)

TEST_CASE("every pattern of the backward fusion list, f32", "[patterns]") {
    check_patterns(&te_plan::backward, &te_plan::backward_count);
}
