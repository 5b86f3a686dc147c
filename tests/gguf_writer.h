// gguf_writer.h -- GGUF files as strings of bytes, for tests: valid ones, and ones with any fault.
//
// Do this:
//     Gguf g;
//     g.value("general.alignment", TE_GGUF_uint32, le<uint32_t>(64));
//     g.tensor("a.weight", {2, 32}, TE_GGUF_Q8_0, bytes);
//     std::string file = g.file();
#ifndef GGUF_WRITER_H
#define GGUF_WRITER_H

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "te/io/gguf.h"

// The bytes of a number.
template <class T> std::string le(T v) { return std::string((const char *)&v, sizeof v); }
// A string with its length in front.
inline std::string text(const std::string &s) { return le<uint64_t>(s.size()) + s; }
// An array of `count` elements, whose bytes follow each other.
inline std::string array(te_gguf_kind element, uint64_t count, const std::string &elements) {
    return le<uint32_t>((uint32_t)element) + le(count) + elements;
}

struct Gguf {
    uint32_t version = 3;
    std::string magic = "GGUF", values, tensors, data;
    uint64_t value_count = 0, tensor_count = 0, alignment = 32;

    void value(const std::string &key, te_gguf_kind kind, const std::string &bytes) {
        values += text(key) + le<uint32_t>((uint32_t)kind) + bytes, value_count++;
    }
    // The description of a tensor without its data. shape: [rows, cols], as te_gguf_tensor has it.
    void describe(const std::string &name, const std::vector<uint64_t> &shape, uint32_t type, uint64_t offset) {
        tensors += text(name) + le<uint32_t>((uint32_t)shape.size());
        for (size_t i = shape.size(); i--;) tensors += le<uint64_t>(shape[i]);
        tensors += le(type) + le(offset), tensor_count++;
    }
    void tensor(const std::string &name, const std::vector<uint64_t> &shape, uint32_t type, const std::string &bytes) {
        data.resize((data.size() + alignment - 1) / alignment * alignment);
        describe(name, shape, type, data.size());
        data += bytes;
    }
    std::string header() const {
        return magic + le(version) + le(tensor_count) + le(value_count) + values + tensors;
    }
    std::string file() const {
        std::string s = header();
        if (tensor_count) s.resize((s.size() + alignment - 1) / alignment * alignment);
        return s + data;
    }
};

#endif
