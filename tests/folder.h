// folder.h -- for tests of files: a context, and a temporary folder.
#ifndef TESTS_FOLDER_H
#define TESTS_FOLDER_H

#include <catch2/catch.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "te/gemm/gemm.h" // te_context_create

namespace {

struct target {
    te_context ctx;
    target() { REQUIRE(te_context_create(&ctx, 0, 1) == TE_OK); }
    target(const target &) = delete;
    target &operator=(const target &) = delete;
    ~target() { te_context_destroy(&ctx); }
    operator te_context *() { return &ctx; }
};

// A temporary folder of one test, which the destructor removes.
struct folder {
    std::string path;
    folder() {
        const char *base = std::getenv("TEST_TMPDIR") ? std::getenv("TEST_TMPDIR") : std::getenv("TMPDIR");
        std::string name = std::string(base ? base : "/tmp") + "/te_test_XXXXXX";
        REQUIRE(mkdtemp(&name[0]) != nullptr);
        path = name;
    }
    ~folder() {
        if (std::system(("chmod -R u+rwx '" + path + "'; rm -rf '" + path + "'").c_str()))
            std::puts("cannot remove the test's folder");
    }
    std::string operator/(const char *name) const { return path + "/" + name; }
};

} // namespace

#endif
