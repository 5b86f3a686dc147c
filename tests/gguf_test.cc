// gguf_test.cc -- the GGUF format: files that the test writes itself, invalid files, and weights in place and converted. No file may
// make it crash: run this test under the sanitizers, too.
#include <catch2/catch.hpp>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "folder.h"
#include "gguf_writer.h"
#include "te/te.h"
#include "te/infer.h"

namespace {

void write_file(const std::string &path, const std::string &s) {
    FILE *f = std::fopen(path.c_str(), "wb");
    REQUIRE(f != nullptr);
    REQUIRE(std::fwrite(s.data(), 1, s.size(), f) == s.size());
    std::fclose(f);
}
// Reads an element, and the elements of an array in it.
uint64_t visit(const te_gguf_value &v, int depth) {
    te_gguf_value array = v, element;
    uint64_t n = 1;
    int64_t integer = 0;
    double real = 0;
    int flag = 0;
    te_gguf_text s{};
    n += (uint64_t)te_gguf_integer_of(&v, &integer) + (uint64_t)te_gguf_real_of(&v, &real) + (uint64_t)te_gguf_bool_of(&v, &flag);
    if (te_gguf_string_of(&v, &s))
        for (size_t i = 0; i < s.n; i++) n += (unsigned char)s.p[i];
    while (depth < TE_GGUF_MAX_DEPTH && te_gguf_next(&element, &array)) n += visit(element, depth + 1);
    return n;
}
// Opens a file that lies in a memory block of exactly its size, so that the address sanitizer finds a read beyond its end, and reads all
// of it.
te_status open_bytes(const std::string &s, te_context *ctx) {
    char *exact = (char *)std::malloc(s.size() + (s.empty() ? 1 : 0));
    if (!s.empty()) std::memcpy(exact, s.data(), s.size());
    te_gguf f;
    const te_status status = te_gguf_open_memory(&f, exact, s.size(), ctx);
    if (status == TE_OK) {
        uint64_t sum = te_gguf_header_checksum(&f);
        for (int i = 0; i < f.values; i++) sum += visit(f.value[i], 0);
        for (int i = 0; i < f.tensors; i++) {
            const te_gguf_tensor &t = f.tensor[i];
            REQUIRE(te_gguf_find(&f, std::string(t.name.p, t.name.n).c_str()) == &t);
            for (uint64_t k = 0; k < t.bytes; k++) sum += ((const unsigned char *)t.data)[k];
        }
        CHECK(sum);
        te_gguf_close(&f);
    }
    std::free(exact);
    return status;
}
// That the file is refused, with a text that contains `word`.
void refused(const std::string &file, const std::string &word) {
    target c;
    INFO(word);
    CHECK(open_bytes(file, &c.ctx) == TE_ERROR_FORMAT);
    CHECK_THAT(te_last_error(&c.ctx), Catch::Matchers::Contains(word));
}
std::string q8_0_rows(int rows, int cols, unsigned seed) {
    std::mt19937 r(seed);
    std::string s;
    for (int i = 0; i < rows * cols / 32; i++) {
        s += le<uint16_t>((uint16_t)(0x2000 + r() % 0x400)); // a scale in f16
        for (int k = 0; k < 32; k++) s += (char)(r() & 0xff);
    }
    return s;
}
std::string floats(int n, unsigned seed) {
    std::mt19937 r(seed);
    std::string s;
    for (int i = 0; i < n; i++) s += le<float>((float)(int)(r() % 2001 - 1000) / 1000.0f);
    return s;
}
Gguf every_kind() {
    Gguf g;
    g.value("u8", TE_GGUF_uint8, le<uint8_t>(200));
    g.value("i8", TE_GGUF_int8, le<int8_t>(-100));
    g.value("u16", TE_GGUF_uint16, le<uint16_t>(60000));
    g.value("i16", TE_GGUF_int16, le<int16_t>(-30000));
    g.value("u32", TE_GGUF_uint32, le<uint32_t>(4000000000u));
    g.value("i32", TE_GGUF_int32, le<int32_t>(-2000000000));
    g.value("u64", TE_GGUF_uint64, le<uint64_t>(1ull << 60));
    g.value("u64 large", TE_GGUF_uint64, le<uint64_t>(~0ull));
    g.value("i64", TE_GGUF_int64, le<int64_t>(-(1ll << 60)));
    g.value("f32", TE_GGUF_float32, le<float>(1.5f));
    g.value("f64", TE_GGUF_float64, le<double>(-2.25));
    g.value("yes", TE_GGUF_bool, le<uint8_t>(1));
    g.value("text", TE_GGUF_string, text(std::string("a\0b", 3)));
    g.value("no text", TE_GGUF_string, text(""));
    g.value("texts", TE_GGUF_array, array(TE_GGUF_string, 3, text("x") + text("") + text("yz")));
    g.value("numbers", TE_GGUF_array, array(TE_GGUF_int16, 3, le<int16_t>(1) + le<int16_t>(-2) + le<int16_t>(3)));
    g.value("none", TE_GGUF_array, array(TE_GGUF_float32, 0, ""));
    g.value("nested", TE_GGUF_array,
            array(TE_GGUF_array, 2, array(TE_GGUF_string, 1, text("in")) + array(TE_GGUF_uint8, 2, std::string("\7\10"))));
    g.tensor("b.weight", {2, 64}, TE_GGUF_Q8_0, q8_0_rows(2, 64, 1));
    g.tensor("a.bias", {3}, TE_GGUF_F32, floats(3, 2));
    g.tensor("scalar", {}, TE_GGUF_I32, le<int32_t>(5));
    g.tensor("cube", {2, 3, 4}, TE_GGUF_F16, std::string(48, 'c'));
    return g;
}

} // namespace

TEST_CASE("every kind of metadata is read, and no other kind is taken for it") {
    target c;
    te_gguf f;
    const std::string bytes = every_kind().file();
    REQUIRE(te_gguf_open_memory(&f, bytes.data(), bytes.size(), &c.ctx) == TE_OK);
    CHECK(f.values == 18);
    CHECK(f.file[0].header == every_kind().header().size());
    int64_t i = 0;
    double x = 0;
    int flag = 0;
    te_gguf_text s{};
    const std::pair<const char *, int64_t> integers[] = {{"u8", 200}, {"i8", -100}, {"u16", 60000}, {"i16", -30000},
        {"u32", 4000000000ll}, {"i32", -2000000000}, {"u64", 1ll << 60}, {"i64", -(1ll << 60)}};
    for (const auto &[key, value] : integers) {
        INFO(key);
        REQUIRE(te_gguf_get_integer(&i, &f, key, &c.ctx) == TE_OK);
        CHECK(i == value);
        CHECK(te_gguf_get_real(&x, &f, key, &c.ctx) == TE_ERROR_FORMAT);
        CHECK(te_gguf_get_bool(&flag, &f, key, &c.ctx) == TE_ERROR_FORMAT);
    }
    CHECK(te_gguf_get_integer(&i, &f, "u64 large", &c.ctx) == TE_ERROR_FORMAT);
    REQUIRE(te_gguf_get_real(&x, &f, "f32", &c.ctx) == TE_OK);
    CHECK(x == 1.5);
    REQUIRE(te_gguf_get_real(&x, &f, "f64", &c.ctx) == TE_OK);
    CHECK(x == -2.25);
    REQUIRE(te_gguf_get_bool(&flag, &f, "yes", &c.ctx) == TE_OK);
    CHECK(flag == 1);
    CHECK(te_gguf_get_integer(&i, &f, "yes", &c.ctx) == TE_ERROR_FORMAT);
    CHECK_THAT(te_last_error(&c.ctx), Catch::Matchers::Contains("yes is bool, it should be an integer"));
    CHECK(te_gguf_get_string(&s, &f, "absent", &c.ctx) == TE_ERROR_FORMAT);
    CHECK_THAT(te_last_error(&c.ctx), Catch::Matchers::Contains("has no absent, which should be a string"));
    REQUIRE(te_gguf_get_string(&s, &f, "text", &c.ctx) == TE_OK);
    CHECK(std::string(s.p, s.n) == std::string("a\0b", 3));
    REQUIRE(te_gguf_get_string(&s, &f, "no text", &c.ctx) == TE_OK);
    CHECK(s.n == 0);
    te_gguf_close(&f);
}
TEST_CASE("arrays are taken apart, arrays in arrays too") {
    target c;
    te_gguf f;
    te_gguf_value a, e, inner;
    te_gguf_text s{};
    int64_t i = 0;
    const std::string bytes = every_kind().file();
    REQUIRE(te_gguf_open_memory(&f, bytes.data(), bytes.size(), &c.ctx) == TE_OK);
    REQUIRE(te_gguf_get_array(&a, &f, "texts", TE_GGUF_string, &c.ctx) == TE_OK);
    std::string all;
    while (te_gguf_next(&e, &a)) all += te_gguf_string_of(&e, &s) ? std::string(s.p, s.n) + "," : "no string";
    CHECK(all == "x,,yz,");
    CHECK(te_gguf_get_array(&a, &f, "texts", TE_GGUF_int16, &c.ctx) == TE_ERROR_FORMAT);
    CHECK(te_gguf_get_array(&a, &f, "text", TE_GGUF_string, &c.ctx) == TE_ERROR_FORMAT);
    REQUIRE(te_gguf_get_array(&a, &f, "numbers", TE_GGUF_int16, &c.ctx) == TE_OK);
    int64_t sum = 0;
    while (te_gguf_next(&e, &a)) sum = te_gguf_integer_of(&e, &i) ? 10 * sum + i : -1;
    CHECK(sum == 83);
    REQUIRE(te_gguf_get_array(&a, &f, "none", TE_GGUF_float32, &c.ctx) == TE_OK);
    CHECK(!te_gguf_next(&e, &a));
    REQUIRE(te_gguf_get_array(&a, &f, "nested", TE_GGUF_array, &c.ctx) == TE_OK);
    REQUIRE(te_gguf_next(&e, &a));
    REQUIRE(te_gguf_next(&inner, &e));
    REQUIRE(te_gguf_string_of(&inner, &s));
    CHECK(std::string(s.p, s.n) == "in");
    CHECK(!te_gguf_next(&inner, &e));
    REQUIRE(te_gguf_next(&e, &a));
    CHECK(e.count == 2);
    CHECK(!te_gguf_next(&inner, &a));
    te_gguf_close(&f);
}
TEST_CASE("tensors have the file's names, shapes, types and bytes") {
    target c;
    te_gguf f;
    for (const uint64_t alignment : {1, 8, 32, 64, 4096}) {
        Gguf g;
        g.alignment = alignment;
        g.value("general.alignment", TE_GGUF_uint32, le<uint32_t>((uint32_t)alignment));
        g.tensor("b", {3, 64}, TE_GGUF_Q8_0, q8_0_rows(3, 64, 4));
        g.tensor("a", {5}, TE_GGUF_F32, floats(5, 5));
        const std::string bytes = g.file();
        REQUIRE(te_gguf_open_memory(&f, bytes.data(), bytes.size(), &c.ctx) == TE_OK);
        const te_gguf_tensor *b = te_gguf_find(&f, "b"), *a = te_gguf_find(&f, "a");
        REQUIRE((a && b && !te_gguf_find(&f, "c")));
        CHECK((b->rank == 2 && b->shape[0] == 3 && b->shape[1] == 64 && b->type == TE_GGUF_Q8_0 && b->bytes == 3 * 68));
        CHECK(!std::memcmp(b->data, q8_0_rows(3, 64, 4).data(), b->bytes));
        CHECK((a->rank == 1 && a->shape[0] == 5 && !std::memcmp(a->data, floats(5, 5).data(), 20)));
        te_gguf_close(&f);
    }
}
TEST_CASE("version 2 is read; versions 1 and 4, big-endian files and other files are refused by name") {
    target c;
    Gguf g = every_kind();
    g.version = 2;
    CHECK(open_bytes(g.file(), &c.ctx) == TE_OK);
    g.version = 1;
    refused(g.file(), "version 1 of the format; 2 and 3 are read, and 1 has not been written since 2023");
    g.version = 4;
    refused(g.file(), "version 4");
    g.version = 0x03000000;
    refused(g.file(), "big-endian");
    g.version = 3, g.magic = "GGML";
    refused(g.file(), "is no GGUF file");
    refused("", "needs 4 bytes");
}
TEST_CASE("a file that ends anywhere in its header or data is refused") {
    target c;
    const std::string bytes = every_kind().file();
    REQUIRE(open_bytes(bytes, &c.ctx) == TE_OK);
    for (size_t n = 0; n < bytes.size(); n++) {
        INFO(n);
        REQUIRE(open_bytes(bytes.substr(0, n), &c.ctx) == TE_ERROR_FORMAT);
    }
}
TEST_CASE("counts and sizes that overflow, or are larger than the file, are refused by name") {
    Gguf g;
    g.value("k", TE_GGUF_array, array(TE_GGUF_uint64, ~0ull / 8 + 2, "12345678"));
    refused(g.file(), "k: an array of");
    g = Gguf(), g.value("k", TE_GGUF_array, array(TE_GGUF_string, ~0ull, text("a")));
    refused(g.file(), "k: needs 8 bytes");
    g = Gguf(), g.value("k", TE_GGUF_string, le<uint64_t>(~0ull));
    refused(g.file(), "k: needs 18446744073709551615 bytes");
    g = Gguf(), g.values = le<uint64_t>(1ull << 40) + "k", g.value_count = 1;
    refused(g.file(), "1 to 65535 are allowed");
    g = Gguf(), g.value("", TE_GGUF_uint8, "a");
    refused(g.file(), "0 bytes; 1 to 65535");
    g = Gguf(), g.value(std::string("a\0b", 3), TE_GGUF_uint8, "a");
    refused(g.file(), "a key at byte 32 contains a zero");
    g = every_kind(), g.value_count = ~0ull;
    CHECK(std::string(g.file()).size() < 4096);
    refused(g.file(), "");
    g = every_kind(), g.tensor_count = 1ull << 60;
    refused(g.file(), "");
    g = Gguf(), g.value("k", (te_gguf_kind)13, "a");
    refused(g.file(), "no value has the kind 13");
    g = Gguf(), g.value("k", TE_GGUF_bool, "\2");
    refused(g.file(), "a bool is 2");
    g = Gguf(), g.value("k", TE_GGUF_array, array(TE_GGUF_bool, 2, std::string("\1\3")));
    refused(g.file(), "a bool is 3");
    std::string nested = array(TE_GGUF_uint8, 0, "");
    for (int i = 0; i < 7; i++) nested = array(TE_GGUF_array, 1, nested);
    target c;
    g = Gguf(), g.value("k", TE_GGUF_array, nested);
    CHECK(open_bytes(g.file(), &c.ctx) == TE_OK);
    g = Gguf(), g.value("k", TE_GGUF_array, array(TE_GGUF_array, 1, nested));
    refused(g.file(), "more than 8 deep");
    g = Gguf();
    for (const char *key : {"b", "a", "b"}) g.value(key, TE_GGUF_uint8, "a");
    refused(g.file(), "two metadata are called \"b\"");
}
TEST_CASE("tensors that overlap, leave the file or have no size are refused by name") {
    const std::string data(256, 'x');
    const auto with = [&](const std::vector<uint64_t> &shape, uint32_t type, uint64_t offset) {
        Gguf g;
        g.tensor("first", {8}, TE_GGUF_F32, data);
        g.describe("second", shape, type, offset);
        return g.file();
    };
    target c;
    CHECK(open_bytes(with({8}, TE_GGUF_F32, 32), &c.ctx) == TE_OK);
    CHECK(open_bytes(with({0, 8}, TE_GGUF_F32, 0), &c.ctx) == TE_OK);
    refused(with({8}, TE_GGUF_F32, 0), "overlap");
    refused(with({8}, TE_GGUF_F32, 16), "no multiple of 32");
    refused(with({8}, TE_GGUF_F32, 256), "tensor second has 32 bytes from byte 256 of the data on; the data has 256");
    refused(with({8}, TE_GGUF_F32, ~31ull), "tensor second has 32 bytes");
    refused(with({1ull << 40}, TE_GGUF_F32, 32), "tensor second has 4398046511104 bytes");
    refused(with({1ull << 40, 1ull << 40}, TE_GGUF_F32, 32), "tensor second is too large");
    refused(with({1ull << 63}, TE_GGUF_F32, 32), "tensor second is too large");
    refused(with({1, 1, 1, 1, 1}, TE_GGUF_F32, 32), "tensor second has 5 dimensions, 4 at most");
    refused(with({33}, TE_GGUF_Q8_0, 32), "rows of 33 values; a block of Q8_0 has 32");
    refused(with({128}, TE_GGUF_Q4_K, 32), "a block of Q4_K has 256");
    // a type that is unknown, so that its size is, too: listed, and refused when it is bound (below)
    CHECK(open_bytes(with({32}, 4, 32), &c.ctx) == TE_OK);
    CHECK(open_bytes(with({1ull << 40, 1ull << 40}, 5000, 32), &c.ctx) == TE_OK);
    refused(with({32}, 4, 256 + 32), "tensor second has 0 bytes from byte 288 of the data on; the data has 256");
    refused(with({32}, 4, 16), "no multiple of 32");
    Gguf g;
    g.tensor("same", {8}, TE_GGUF_F32, std::string(32, 'x')), g.tensor("same", {8}, TE_GGUF_F32, std::string(32, 'x'));
    refused(g.file(), "two tensors are called \"same\"");
    for (const uint32_t alignment : {0u, 3u, 48u, 1u << 21}) {
        g = Gguf(), g.value("general.alignment", TE_GGUF_uint32, le(alignment));
        refused(g.file(), "general.alignment is");
    }
    g = Gguf(), g.value("general.alignment", TE_GGUF_string, text("32"));
    refused(g.file(), "general.alignment is string");
}
TEST_CASE("a model in three files has the tensors of all, and wrong files are refused") {
    target c;
    folder dir;
    te_gguf f;
    const auto part = [&](int number, int count, int tensors) {
        Gguf g;
        g.value("split.no", TE_GGUF_uint16, le<uint16_t>((uint16_t)number));
        g.value("split.count", TE_GGUF_uint16, le<uint16_t>((uint16_t)count));
        g.value("split.tensors.count", TE_GGUF_int32, le<int32_t>(tensors));
        g.tensor("t" + std::to_string(number), {4}, TE_GGUF_F32, floats(4, (unsigned)number));
        if (number == 1) g.tensor("more", {4}, TE_GGUF_F32, floats(4, 9));
        return g;
    };
    const auto path = [&](int number) { return dir.path + "/m-0000" + std::to_string(number + 1) + "-of-00003.gguf"; };
    for (int i = 0; i < 3; i++) write_file(path(i), part(i, 3, 4).file());
    REQUIRE(te_gguf_map(&f, path(0).c_str(), &c.ctx) == TE_OK);
    CHECK((f.files == 3 && f.tensors == 4 && f.values == 3));
    for (int i = 0; i < 3; i++) {
        const te_gguf_tensor *t = te_gguf_find(&f, ("t" + std::to_string(i)).c_str());
        REQUIRE(t);
        CHECK((t->file == i && !std::memcmp(t->data, floats(4, (unsigned)i).data(), 16)));
    }
    te_gguf_close(&f);
    const auto refuse = [&](int open, te_status status, const char *word) {
        INFO(word);
        CHECK(te_gguf_map(&f, path(open).c_str(), &c.ctx) == status);
        CHECK_THAT(te_last_error(&c.ctx), Catch::Matchers::Contains(word));
    };
    refuse(1, TE_ERROR_FORMAT, "is file 2 of a model in 3 files; open the first");
    write_file(path(2), part(1, 3, 4).file());
    refuse(0, TE_ERROR_FORMAT, "says that it is file 2 of 3");
    write_file(path(2), part(2, 3, 4).file().substr(0, 60));
    refuse(0, TE_ERROR_FORMAT, "00003-of-00003");
    std::remove(path(2).c_str());
    refuse(0, TE_ERROR_IO, "cannot open it");
    for (int i = 0; i < 3; i++) write_file(path(i), part(i, 3, 7).file());
    refuse(0, TE_ERROR_FORMAT, "split.tensors.count is 7, the files have 4");
    Gguf twice = part(2, 3, 4);
    twice.tensor("t0", {4}, TE_GGUF_F32, floats(4, 9)), write_file(path(2), twice.file());
    write_file(path(0), part(0, 3, -1).file());
    refuse(0, TE_ERROR_FORMAT, "two tensors are called \"t0\"");
    write_file(dir.path + "/whole.gguf", part(0, 3, 4).file());
    CHECK(te_gguf_map(&f, (dir.path + "/whole.gguf").c_str(), &c.ctx) == TE_ERROR_FORMAT);
    CHECK(te_gguf_map(&f, (dir.path + "/none.gguf").c_str(), &c.ctx) == TE_ERROR_IO);
    refused(part(0, 3, 4).file(), "is one of 3 files");
    refused(part(3, 3, 4).file(), "split.no is 3 and split.count 3");
}
TEST_CASE("a header that is mutated anywhere is refused or read, never read out of bounds") {
    target c;
    const std::string bytes = every_kind().file();
    const size_t header = every_kind().header().size();
    std::mt19937 r(7);
    int opened = 0;
    for (int i = 0; i < 20000; i++) {
        std::string s = bytes;
        for (unsigned k = 1 + r() % 3; k--;) {
            const size_t at = r() % header;
            const unsigned kind = r() % 4;
            if (kind == 0) s[at] = (char)(r() & 0xff);
            else if (kind == 1) s[at] = (char)(s[at] ^ (1 << r() % 8));
            else if (kind == 2 && at + 8 < header) std::memset(&s[at], r() % 2 ? 0xff : 0, 8);
            else s.erase(at, 1 + r() % 4);
        }
        opened += open_bytes(s, &c.ctx) == TE_OK;
    }
    CHECK(opened > 100);
    CHECK(opened < 15000);
}

// ---- weights ----

namespace {

TE_INFERENCE(gguf_plain, f32, (rmsnorm, n, 64), (linear, qkv, 64, 128), (bias, b, 128))
TE_INFERENCE(gguf_blocks, (f32, (weights, quantized)), (rmsnorm, n, 64), (linear, qkv, 64, 128), (bias, b, 128))
TE_INFERENCE(gguf_q8_0, (f32, (weights, q8_0)), (rmsnorm, n, 64), (linear, qkv, 64, 128), (bias, b, 128))
TE_INFERENCE(gguf_half, f16, (rmsnorm, n, 64), (linear, qkv, 64, 128), (bias, b, 128))

const te_packed parts[] = {{"norm.weight", "n", "weight", 0, 0}, {"q.weight", "qkv", "weight", 64, 0},
                           {"k.weight", "qkv", "weight", 32, 0}, {"v.weight", "qkv", "weight", 0, 0},
                           {"q.bias", "b", "bias", 64, 0}, {"k.bias", "b", "bias", 64, 0}};
enum { PARTS = sizeof parts / sizeof *parts };

Gguf weights_file(const std::string &prefix = "blk.0.") {
    Gguf g;
    g.tensor(prefix + "v.weight", {32, 64}, TE_GGUF_F32, floats(32 * 64, 1));
    g.tensor(prefix + "q.weight", {64, 64}, TE_GGUF_Q8_0, q8_0_rows(64, 64, 2));
    g.tensor(prefix + "k.weight", {32, 64}, TE_GGUF_Q4_0, std::string(32 * 2 * 18, '\x33'));
    g.tensor(prefix + "norm.weight", {64}, TE_GGUF_F32, floats(64, 3));
    g.tensor(prefix + "q.bias", {64}, TE_GGUF_F32, floats(64, 4));
    g.tensor(prefix + "k.bias", {64}, TE_GGUF_F32, floats(64, 5));
    return g;
}
struct Opened {
    target c;
    std::string bytes;
    te_gguf f;
    Opened(const Gguf &g) : bytes(g.file()) { REQUIRE(te_gguf_open_memory(&f, bytes.data(), bytes.size(), &c.ctx) == TE_OK); }
    ~Opened() { te_gguf_close(&f); }
};
// The weight [128, 64] that the three tensors are, in float.
std::vector<float> expected_weight(const te_gguf &f) {
    std::vector<float> w;
    for (const char *name : {"blk.0.q.weight", "blk.0.k.weight", "blk.0.v.weight"}) {
        const te_gguf_tensor *t = te_gguf_find(&f, name);
        std::vector<float> part((size_t)(t->shape[0] * t->shape[1]));
        te_dequantize_row(part.data(), t->data, (int64_t)part.size(), te_gguf_format(t->type));
        w.insert(w.end(), part.begin(), part.end());
    }
    return w;
}

// The first `bytes` bytes of a parameter, from the memory of the target.
std::string bytes_of(target &c, const te_param &p, size_t bytes) {
    std::string host(bytes, 0);
    REQUIRE(te_copy(&c.ctx, &host[0], p.data, bytes) == TE_OK);
    return host;
}
std::string bytes_of(const float *x, size_t count) { return std::string((const char *)x, count * sizeof *x); }

} // namespace

TEST_CASE("tensors become parameters: in place for a list that takes quantized weights, converted for others") {
    Opened o(weights_file());
    const std::vector<float> weight = expected_weight(o.f);
    const te_gguf_source in_place = {&o.f, TE_GGUF_IN_PLACE}, converted = {&o.f, TE_GGUF_CONVERTED};
    te_gguf_weights w;
    const float *bias = (const float *)te_gguf_find(&o.f, "blk.0.k.bias")->data;

    gguf_plain plain;
    REQUIRE(gguf_plain_bind(&plain, nullptr, &o.c.ctx) == TE_OK);
    REQUIRE(te_gguf_bind(&w, &plain.model, parts, PARTS, "blk.0.", &in_place, &o.c.ctx) == TE_OK);
    const std::string weight_bytes = bytes_of(weight.data(), weight.size());
    CHECK(bytes_of(o.c, plain.qkv.weight, weight_bytes.size()) == weight_bytes);
    CHECK(bytes_of(o.c, plain.b.bias, 128 * 4).substr(64 * 4) == bytes_of(bias, 64));
    CHECK(!plain.qkv.weight.constant);
    const void *const norm = te_gguf_find(&o.f, "blk.0.norm.weight")->data;
    CHECK(plain.n.weight.constant == (!TE_CUDA && (uintptr_t)norm % TE_ACCESS == 0)); // the host reads it in the file
    CHECK(te_gguf_all_used(&o.f, &o.c.ctx) == TE_OK);
    te_gguf_release(&w, &o.c.ctx);

    gguf_blocks blocks;
    REQUIRE(gguf_blocks_bind(&blocks, nullptr, &o.c.ctx) == TE_OK);
    REQUIRE(te_gguf_bind(&w, &blocks.model, parts, PARTS, "blk.0.", &in_place, &o.c.ctx) == TE_OK);
    const te_quantized_weight *q = blocks.qkv.weight.quantized;
#if TE_CUDA // a weight with a part in f32 is converted
    CHECK((!q && bytes_of(o.c, blocks.qkv.weight, weight_bytes.size()) == weight_bytes));
#else
    REQUIRE((q && q->parts == 3 && !blocks.qkv.weight.data));
    CHECK((q->part[0].format == TE_BLOCK_q8_0 && q->part[1].format == TE_BLOCK_q4_0 && q->part[2].format == TE_BLOCK_f32));
    CHECK((q->part[0].data == te_gguf_find(&o.f, "blk.0.q.weight")->data && q->part[1].rows == 32));
#endif
    te_gguf_release(&w, &o.c.ctx);
    REQUIRE(gguf_blocks_bind(&blocks, nullptr, &o.c.ctx) == TE_OK);
    REQUIRE(te_gguf_bind(&w, &blocks.model, parts, PARTS, "blk.0.", &converted, &o.c.ctx) == TE_OK);
    REQUIRE((!blocks.qkv.weight.quantized && blocks.qkv.weight.data));
    CHECK(bytes_of(o.c, blocks.qkv.weight, weight_bytes.size()) == weight_bytes);
    te_gguf_release(&w, &o.c.ctx);

    // a list that names a format: floats are cast to it, and other blocks are refused
    gguf_q8_0 named;
    REQUIRE(gguf_q8_0_bind(&named, nullptr, &o.c.ctx) == TE_OK);
    CHECK(te_gguf_bind(&w, &named.model, parts, PARTS, "blk.0.", &in_place, &o.c.ctx) == TE_ERROR_VALUE);
    CHECK_THAT(te_last_error(&o.c.ctx), Catch::Matchers::Contains("qkv.weight: part 1 is in q4_0, and the list's option is (weights, q8_0)"));
    Gguf g = weights_file();
    g.tensor("blk.0.k2.weight", {32, 64}, TE_GGUF_F32, floats(32 * 64, 6));
    Opened cast(g);
    const te_gguf_source from = {&cast.f, TE_GGUF_IN_PLACE};
    te_packed of_floats[PARTS];
    std::memcpy(of_floats, parts, sizeof parts);
    of_floats[2].name = "k2.weight";
    REQUIRE(gguf_q8_0_bind(&named, nullptr, &cast.c.ctx) == TE_OK);
    REQUIRE(te_gguf_bind(&w, &named.model, of_floats, PARTS, "blk.0.", &from, &cast.c.ctx) == TE_OK);
    q = named.qkv.weight.quantized;
    REQUIRE((q && q->parts == 3));
    for (int i = 0; i < 3; i++) CHECK((q->part[i].format == TE_BLOCK_q8_0 && (w.error[q->part + i - w.part] > 0) == (i > 0)));
#if !TE_CUDA // on CUDA the weight is repacked
    CHECK(q->part[0].data == te_gguf_find(&cast.f, "blk.0.q.weight")->data);
    std::vector<uint8_t> row(te_block_row_bytes(TE_BLOCK_q8_0, 64));
    te_quantize_row(row.data(), (const float *)te_gguf_find(&cast.f, "blk.0.k2.weight")->data + 64, 64, TE_BLOCK_q8_0);
    CHECK(!std::memcmp(row.data(), (const uint8_t *)q->part[1].data + row.size(), row.size()));
#endif
    te_gguf_release(&w, &cast.c.ctx);

    gguf_half half;
    REQUIRE(gguf_half_bind(&half, nullptr, &o.c.ctx) == TE_OK);
    REQUIRE(te_gguf_bind(&w, &half.model, parts, PARTS, "blk.0.", &in_place, &o.c.ctx) == TE_OK);
    const std::string halves = bytes_of(o.c, half.qkv.weight, weight.size() * 2);
    for (size_t i = 0; i < weight.size(); i++)
        REQUIRE(te_load(halves.data(), (int64_t)i, TE_f16) == te_round_to(weight[i], TE_f16));
    te_gguf_release(&w, &o.c.ctx);
}
TEST_CASE("tensors that do not fit the parameters are refused by name, and nothing is bound") {
    const auto refuse = [](const Gguf &g, const te_packed *table, int count, te_status status, const char *word) {
        Opened o(g);
        const te_gguf_source from = {&o.f, TE_GGUF_IN_PLACE};
        te_gguf_weights w;
        gguf_plain m;
        INFO(word);
        REQUIRE(gguf_plain_bind(&m, nullptr, &o.c.ctx) == TE_OK);
        CHECK(te_gguf_bind(&w, &m.model, table, count, "blk.0.", &from, &o.c.ctx) == status);
        CHECK_THAT(te_last_error(&o.c.ctx), Catch::Matchers::Contains(word));
        CHECK((!m.n.weight.data && !m.qkv.weight.data && !m.b.bias.data));
    };
    te_packed table[PARTS];
    const auto fresh = [&] { std::memcpy(table, parts, sizeof parts); };
    refuse(weights_file("blk.1."), parts, PARTS, TE_ERROR_FORMAT, "has no tensor blk.0.norm.weight, which should be [1, 64]");
    refuse(weights_file(), parts, PARTS - 1, TE_ERROR_SHAPE, "names 64 of 128 rows of b.bias");
    fresh(), table[1].rows = 32;
    refuse(weights_file(), table, PARTS, TE_ERROR_SHAPE, "tensor blk.0.q.weight is Q8_0 [64, 64], it should be [32, 64]");
    fresh(), table[2].rows = 100;
    refuse(weights_file(), table, PARTS, TE_ERROR_SHAPE, "k.weight has 100 rows, of qkv.weight 64 are left");
    fresh(), table[1].form = TE_PACKED_TRANSPOSED;
    refuse(weights_file(), table, PARTS, TE_ERROR_VALUE, "q.weight: has the form 1 in the table");
    fresh(), table[1].op = "none";
    refuse(weights_file(), table, PARTS, TE_ERROR_VALUE, "has no parameter none.weight");
    Gguf g;
    g.tensor("blk.0.norm.weight", {64}, TE_GGUF_I32, std::string(256, 'x'));
    refuse(g, parts, PARTS, TE_ERROR_DTYPE, "tensor blk.0.norm.weight is I32 [64], a type that is not supported");
    g = Gguf(), g.tensor("blk.0.norm.weight", {64}, (te_gguf_type)4, std::string(36, 'x')); // Q4_2, which old files have
    refuse(g, parts, PARTS, TE_ERROR_DTYPE, "tensor blk.0.norm.weight is type 4 [64], a type that is not supported");
    Gguf odd = weights_file();
    odd.tensor("odd", {64}, (te_gguf_type)31, std::string(36, 'x')); // beside the tensors that are asked for
    Opened beside(odd);
    const te_gguf_source source = {&beside.f, TE_GGUF_CONVERTED};
    te_gguf_weights weights;
    gguf_plain bound;
    REQUIRE(gguf_plain_bind(&bound, nullptr, &beside.c.ctx) == TE_OK);
    CHECK(te_gguf_bind(&weights, &bound.model, parts, PARTS, "blk.0.", &source, &beside.c.ctx) == TE_OK);
    CHECK(te_gguf_all_used(&beside.f, &beside.c.ctx) == TE_ERROR_FORMAT);
    CHECK_THAT(te_last_error(&beside.c.ctx), Catch::Matchers::Contains("odd"));
    te_gguf_release(&weights, &beside.c.ctx);
    Opened o(weights_file());
    CHECK(te_gguf_all_used(&o.f, &o.c.ctx) == TE_ERROR_FORMAT);
    CHECK_THAT(te_last_error(&o.c.ctx), Catch::Matchers::Contains("that nothing here is called"));
    const te_gguf_source from = {&o.f, TE_GGUF_IN_PLACE};
    te_gguf_weights w;
    gguf_plain m;
    void *memory = nullptr;
    REQUIRE(te_allocate(&o.c.ctx, &memory, gguf_plain_param_bytes()) == TE_OK);
    REQUIRE(gguf_plain_bind(&m, memory, &o.c.ctx) == TE_OK);
    CHECK(te_gguf_bind(&w, &m.model, parts, PARTS, "blk.0.", &from, &o.c.ctx) == TE_ERROR_STATE);
    te_release(&o.c.ctx, memory);
}
TEST_CASE("a number that does not fit f16 is refused by name") {
    Gguf g = weights_file();
    g.data.replace(0, 4, le<float>(1e6f));
    Opened o(g);
    const te_gguf_source from = {&o.f, TE_GGUF_CONVERTED};
    te_gguf_weights w;
    gguf_half m;
    REQUIRE(gguf_half_bind(&m, nullptr, &o.c.ctx) == TE_OK);
    CHECK(te_gguf_bind(&w, &m.model, parts, PARTS, "blk.0.", &from, &o.c.ctx) == TE_ERROR_VALUE);
    CHECK_THAT(te_last_error(&o.c.ctx), Catch::Matchers::Contains("a value of qkv.weight, 1e+06, does not fit f16"));
}
