// rows_forward_test.cc -- every row of the forward fusion list against the reference, in f32: one kind of each family at odd widths, and unfused at aligned ones.
// rows_forward_kinds_bf16_test.cc has every kind.
#include "rows.h"

#define ROW_DTYPE f32
#define ROW_SPACE one_37
#define ROW_IN 37
#define ROW_OUT 53
#define ROW_HOW MODEL
#define ROW_ALL 0
#include "rows_forward.h"

#define ROW_SPACE plain_64
#define ROW_IN 64
#define ROW_OUT 96
#define ROW_HOW UNFUSED
#define ROW_ALL 0
#include "rows_forward.h"

// Each row of the X-list is a row of the fusion list; the case behind this says the same the other way round.
#define IS_FUSED(row) static_assert(TE_IF_MARKED(TE_FORWARD_##row, 1, 0), "TE_FORWARD_PATTERNS lists " #row ", which is no row");
TE_FORWARD_PATTERNS(IS_FUSED)

#if !TE_CUDA
// The text of the header itself.
asm(".pushsection .rodata\n"
    "fusions_text: .incbin \"te/fuse/fusions.h\"\n"
    ".byte 0\n"
    ".popsection\n");
extern "C" __attribute__((visibility("hidden"))) const char fusions_text[];

static void check_listed(const std::string &prefix, const std::vector<std::string> &rows) {
    const std::string text = fusions_text;
    size_t found = 0;
    for (size_t at = text.find("#define " + prefix); at != std::string::npos; at = text.find("#define " + prefix, at + 1)) {
        const size_t from = at + 8 + prefix.size(), to = text.find_first_of(" (\n", from);
        if (text.compare(to, 9, " TE_FUSED") != 0) continue; // the X-list itself
        const std::string row = text.substr(from, to - from);
        INFO(prefix << row << " is not in the X-list");
        CHECK(std::find(rows.begin(), rows.end(), row) != rows.end());
        found++;
    }
    CHECK(found == rows.size());
}
TEST_CASE("the X-lists name every row of the fusion lists", "[rows]") {
#define ROW_NAME(row) #row,
    check_listed("TE_FORWARD_", {TE_FORWARD_PATTERNS(ROW_NAME)});
    check_listed("TE_BACKWARD_", {TE_BACKWARD_PATTERNS(ROW_NAME)});
}
#endif

TEST_CASE("every row of the forward fusion list, f32", "[rows]") {
    check_rows(&te_plan::forward, &te_plan::forward_count);
}
