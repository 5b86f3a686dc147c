// patterns_forward_test.cc -- every pattern of the forward fusion list against the reference, in f32: one kind of each family at odd widths, and unfused at aligned ones.
// patterns_forward_kinds_bf16_test.cc has every kind.
#include "patterns.h"

#define PATTERN_DTYPE f32
#define PATTERN_SPACE one_37
#define PATTERN_IN 37
#define PATTERN_OUT 53
#define PATTERN_HOW MODEL
#define PATTERN_ALL 0
#include "patterns_forward.h"

#define PATTERN_SPACE plain_64
#define PATTERN_IN 64
#define PATTERN_OUT 96
#define PATTERN_HOW UNFUSED
#define PATTERN_ALL 0
#include "patterns_forward.h"

// Each entry of the X-list must be a pattern of the fusion list. The first test case below checks the converse.
#define IS_FUSED(pattern) static_assert(TE_IF_MARKED(TE_FORWARD_##pattern, 1, 0), "TE_FORWARD_PATTERNS lists " #pattern ", which is no pattern");
TE_FORWARD_PATTERNS(IS_FUSED)

#if !TE_CUDA
// The text of the header.
asm(".pushsection .rodata\n"
    "fusions_text: .incbin \"te/fuse/fusions.h\"\n"
    ".byte 0\n"
    ".popsection\n");
extern "C" __attribute__((visibility("hidden"))) const char fusions_text[];

static void check_listed(const std::string &prefix, const std::vector<std::string> &patterns) {
    const std::string text = fusions_text;
    size_t found = 0;
    for (size_t at = text.find("#define " + prefix); at != std::string::npos; at = text.find("#define " + prefix, at + 1)) {
        if (text[at - 1] != '\n') continue; // an example in a comment
        const size_t from = at + 8 + prefix.size(), to = text.find_first_of(" (\n", from);
        if (text.compare(to, 9, " TE_FUSED") != 0) continue; // not a pattern, but the X-list itself
        const std::string pattern = text.substr(from, to - from);
        INFO(prefix << pattern << " is not in the X-list");
        CHECK(std::find(patterns.begin(), patterns.end(), pattern) != patterns.end());
        found++;
    }
    CHECK(found == patterns.size());
}
TEST_CASE("the X-lists have every pattern of the fusion lists", "[patterns]") {
#define PATTERN_NAME(pattern) #pattern,
    check_listed("TE_FORWARD_", {TE_FORWARD_PATTERNS(PATTERN_NAME)});
    check_listed("TE_BACKWARD_", {TE_BACKWARD_PATTERNS(PATTERN_NAME)});
}
#endif

TEST_CASE("every pattern of the forward fusion list, f32", "[patterns]") {
    check_patterns(&te_plan::forward, &te_plan::forward_count);
}
