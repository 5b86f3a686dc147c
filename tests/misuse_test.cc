// misuse_test.cc -- the table of misuse (misuse.h): every mistake is refused by name, does not compile, or is documented as fine.
// None crashes, hangs, or computes something else in silence.
#include <catch2/catch.hpp>

#include "misuse_models.h"
#include "misuse_state.h"

TEST_CASE("the table of misuse") {
    misuse::table t;
    misuse::models(t);
    misuse::context_calls(t), misuse::number_calls(t), misuse::bind_calls(t);
    misuse::optimizer_calls(t), misuse::recipe_calls(t), misuse::product_calls(t), misuse::graph_calls(t);
    const std::vector<misuse::verdict> verdicts = misuse::run(t);
    int refused = 0, fine = 0, failed[misuse::OUTCOMES] = {0};
    for (size_t i = 0; i < t.size(); i++) {
        const misuse::verdict &v = verdicts[i];
        if (v.what == misuse::AS_EXPECTED) (t[i].is_fine ? fine : refused)++;
        else failed[v.what]++;
        INFO(t[i].name << ": " << v.why);
        CHECK(v.what == misuse::AS_EXPECTED);
    }
    printf("misuse: %d refused, %d fine, %d crashed, %d hung, %d silently wrong, %d refused in other words\n", refused, fine, failed[misuse::CRASHED], failed[misuse::HUNG],
           failed[misuse::SILENTLY_WRONG], failed[misuse::REFUSED_OTHERWISE]);
}
