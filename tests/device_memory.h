// device_memory.h -- memory of the target that a test allocates, and that is released with the struct.
#ifndef DEVICE_MEMORY_H
#define DEVICE_MEMORY_H

#include <vector>

#include <catch2/catch.hpp>

#include "te/te.h"

struct device_memory {
    te_context *ctx;
    std::vector<void *> all;
    explicit device_memory(te_context *c) : ctx(c) {}
    device_memory(const device_memory &) = delete;
    device_memory &operator=(const device_memory &) = delete;
    ~device_memory() {
        for (void *p : all) te_release(ctx, p);
    }
    // `bytes` bytes of zeros.
    void *get(size_t bytes) {
        void *p = nullptr;
        REQUIRE(te_allocate(ctx, &p, bytes ? bytes : 1) == TE_OK);
        REQUIRE(te_fill(ctx, p, 0, bytes) == TE_OK);
        all.push_back(p);
        return p;
    }
};

#endif
