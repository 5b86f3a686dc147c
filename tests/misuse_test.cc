// misuse_test.cc -- the table of misuse (misuse.h): every wrong use is refused by name, does not compile, or is documented as fine.
// None may crash, hang, or silently compute something else.
#include <catch2/catch.hpp>

#include <glob.h>

#include "draw.h" // brief()
#include "misuse_files.h"
#include "misuse_lists.h"
#include "misuse_models.h"
#include "misuse_state.h"

// With a sanitizer, too, an allocation that is too large returns null.
extern "C" const char *__asan_default_options();
extern "C" const char *__asan_default_options() { return "allocator_may_return_null=1"; }

// Compiles the lists by each installed compiler. Returns the number of lists that do not compile, each counted once.
static int does_not_compile(int *fine) {
    const std::vector<misuse::list> lists = misuse::wrong_lists();
    const char *base = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp";
    if (brief()) return printf("misuse: SKIPPED: lists that do not compile; gcc's run has them\n"), 0;
    std::string folder = std::string(base) + "/te_lists_XXXXXX";
    REQUIRE(mkdtemp(&folder[0]) != nullptr);
    int refused = 0;
    for (const char *compiler : {"gcc -std=c11", "clang -std=c11", "g++ -std=c++17 -x c++"}) {
        const std::string name(compiler, strcspn(compiler, " "));
        if (std::system(("command -v " + name + " >/dev/null 2>&1 && test -e te/te.h").c_str())) {
            printf("misuse: SKIPPED: no %s, or not run where te/te.h is\n", name.c_str());
            continue;
        }
        const misuse::compiled c = misuse::compile_lists(compiler, lists, folder);
        for (const std::string &w : c.wrong) FAIL_CHECK(name << ": " << w);
        refused = c.refused, *fine = c.fine;
    }
    (void)unlink((folder + "/lists.c").c_str()), (void)unlink((folder + "/log").c_str()), (void)rmdir(folder.c_str());
    return refused;
}

static void make(misuse::table &t) {
    misuse::models(t);
    misuse::context_calls(t), misuse::number_calls(t), misuse::bind_calls(t);
    misuse::optimizer_calls(t), misuse::recipe_calls(t), misuse::product_calls(t), misuse::graph_calls(t);
    misuse::file_calls(t), misuse::word_calls(t);
}

TEST_CASE("the table of misuse") {
    misuse::table t;
    const std::vector<misuse::verdict> verdicts = misuse::run(t, make);
    int refused = 0, fine = 0, lists_fine = 0, failed[misuse::OUTCOMES] = {0};
    for (size_t i = 0; i < t.size(); i++) {
        const misuse::verdict &v = verdicts[i];
        if (v.what == misuse::AS_EXPECTED) (t[i].is_fine ? fine : refused)++;
        else failed[v.what]++;
        INFO(t[i].name << ": " << v.why);
        CHECK(v.what == misuse::AS_EXPECTED);
    }
    const int lists = does_not_compile(&lists_fine);
    glob_t between; // one file for each mistake between ops; tests/fail/run.sh compiles them
    const int files = glob("tests/fail/*.c", 0, nullptr, &between) == 0 ? (int)between.gl_pathc : 0;
    globfree(&between);
    printf("misuse: %d refused, %d do not compile (%d of them in tests/fail), %d fine, %d crashed, %d hung, %d silently wrong, %d refused in other words\n", refused, lists + files, files,
           fine + lists_fine, failed[misuse::CRASHED], failed[misuse::HUNG], failed[misuse::SILENTLY_WRONG], failed[misuse::REFUSED_OTHERWISE]);
}
