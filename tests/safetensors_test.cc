// safetensors_test.cc -- the safetensors format: round trips, and invalid files. No file may make it crash: run this test under the
// sanitizers, too.
#include <catch2/catch.hpp>

#include <dirent.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "draw.h"
#include "folder.h"
#include "te/io/json.h"
#include "te/io/safetensors.h"

namespace {

std::string read_file(const std::string &path) {
    std::string s;
    FILE *f = std::fopen(path.c_str(), "rb");
    if (!f) return "no file";
    char part[4096];
    for (size_t n; (n = std::fread(part, 1, sizeof part, f)) > 0;) s.append(part, n);
    std::fclose(f);
    return s;
}
void write_file(const std::string &path, const std::string &s) {
    FILE *f = std::fopen(path.c_str(), "wb");
    REQUIRE(f != nullptr);
    REQUIRE(std::fwrite(s.data(), 1, s.size(), f) == s.size());
    std::fclose(f);
}
// Checks that the folder has exactly these entries, and no temporary file.
bool only_entries(const std::string &path, const std::set<std::string> &want) {
    std::set<std::string> have;
    DIR *d = opendir(path.c_str());
    REQUIRE(d != nullptr);
    while (const dirent *e = readdir(d))
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) have.insert(e->d_name);
    closedir(d);
    return have == want;
}

// A file with this header, and this number of bytes as data.
std::string file_of(const std::string &header, size_t data) {
    std::string s;
    for (int i = 0; i < 8; i++) s += (char)(unsigned char)((uint64_t)header.size() >> (8 * i));
    return s + header + std::string(data, 'x');
}

// Opens the file from a memory block of exactly its size, so that the address sanitizer finds a read beyond the end, and reads all of it.
te_status open_bytes(const std::string &s, te_context *ctx) {
    char *exact = (char *)std::malloc(s.size() + (s.empty() ? 1 : 0));
    if (!s.empty()) std::memcpy(exact, s.data(), s.size());
    te_safetensors f;
    const te_status status = te_safetensors_open_memory(&f, exact, s.size(), ctx);
    if (status == TE_OK) {
        uint64_t total = 0;
        for (int i = 0; i < f.count; i++) {
            REQUIRE(te_safetensors_find(&f, f.tensor[i].name) == &f.tensor[i]);
            std::vector<char> data((size_t)f.tensor[i].bytes + 1);
            REQUIRE(te_safetensors_read(&f, &f.tensor[i], data.data(), ctx) == TE_OK);
            total += f.tensor[i].bytes;
        }
        REQUIRE(f.data_at + total == s.size());
        for (int i = 0; i < f.metadata_count; i++) REQUIRE(te_safetensors_metadata(&f, f.metadata[i].key) == f.metadata[i].value);
        te_safetensors_close(&f);
    }
    std::free(exact);
    return status;
}

// A small file with tensors of several dtypes and with metadata.
std::string sample() {
    return file_of("{\"__metadata__\":{\"format\":\"te\",\"k\\u00e9y\\n\":\"v\\\"\\ud83d\\ude00\"},"
                   "\"a.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"
                   "\"step\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
                   "\"b\":{\"shape\":[3],\"data_offsets\":[32,38],\"dtype\":\"BF16\"},"
                   "\"none\":{\"dtype\":\"U8\",\"shape\":[4,0,2],\"data_offsets\":[38,38]}}   ",
                   38);
}

} // namespace

TEST_CASE("a round trip, of every dtype, from target and host memory") {
    target t;
    folder dir;
    const std::string path = dir / "all.safetensors";
    std::mt19937 random(1);
    const int64_t odd[TE_SAFETENSORS_MAX_RANK] = {3, 1, 5, 7, 2, 1, 2, 1}, none[] = {4, 0};
    std::vector<std::vector<uint8_t>> bytes;
    std::vector<te_safetensor> list;
    std::vector<void *> on_target;
    for (int d = 0; d < TE_SAFETENSORS_DTYPE_COUNT; d++)
        for (int rank = 0; rank <= TE_SAFETENSORS_MAX_RANK; rank++)
            list.push_back(te_safetensor_of("", (te_safetensors_dtype)d, rank, odd, nullptr));
    list.push_back(te_safetensor_of("", TE_SAFETENSORS_F32, 2, none, nullptr));
    const int64_t large = TE_SAFETENSORS_STAGING + 4321; // more than the staging buffer holds
    list.push_back(te_safetensor_of("", TE_SAFETENSORS_U8, 1, &large, nullptr));
    std::vector<std::string> names = {"\"quoted\\\"", "tab\t, newline\n, bell\a", "grüße/\xF0\x9F\x98\x80", ""};
    for (size_t i = 0; i < list.size(); i++) {
        if (i >= 4) names.push_back("t" + std::to_string(i));
        bytes.emplace_back((size_t)list[i].bytes);
        for (uint8_t &b : bytes.back()) b = (uint8_t)random();
    }
    for (size_t i = 0; i < list.size(); i++) {
        list[i].name = names[i].c_str();
        if (i % 2) {
            list[i].data = bytes[i].data();
        } else {
            void *p = nullptr;
            REQUIRE(te_allocate(t, &p, bytes[i].size()) == TE_OK);
            REQUIRE(te_copy(t, p, bytes[i].data(), bytes[i].size()) == TE_OK);
            on_target.push_back(p), list[i].data = p;
        }
    }
    const te_safetensors_pair metadata[] = {{"position", "81920"}, {"empty", ""}, {"\x01\"ü", "line\nline\\"}};
    te_status status = te_safetensors_write(path.c_str(), list.data(), (int)list.size(), metadata, 3, t);
    INFO(te_last_error(t));
    REQUIRE(status == TE_OK);
    CHECK(only_entries(dir.path, {"all.safetensors"}));

    te_safetensors f;
    status = te_safetensors_open(&f, path.c_str(), t);
    INFO(te_last_error(t));
    REQUIRE(status == TE_OK);
    CHECK(f.data_at % 8 == 0);
    CHECK(f.count == (int)list.size());
    for (size_t i = 0; i < list.size(); i++) {
        const te_safetensor *e = te_safetensors_find(&f, list[i].name);
        REQUIRE(e != nullptr);
        CHECK(e->dtype == list[i].dtype);
        CHECK(e->rank == list[i].rank);
        CHECK(std::vector<int64_t>(e->shape, e->shape + e->rank) == std::vector<int64_t>(list[i].shape, list[i].shape + e->rank));
        CHECK(e->offset % te_safetensors_dtype_bytes(e->dtype) == 0);
        std::vector<uint8_t> got(bytes[i].size() + 1, 0xee);
        REQUIRE(te_safetensors_read(&f, e, got.data(), t) == TE_OK);
        CHECK(got.back() == 0xee);
        got.pop_back();
        CHECK(got == bytes[i]);
    }
    for (const te_safetensors_pair &p : metadata) CHECK(std::string(te_safetensors_metadata(&f, p.key)) == p.value);
    CHECK(te_safetensors_metadata(&f, "positio") == nullptr);
    CHECK(te_safetensors_find(&f, "t") == nullptr);
    CHECK(te_safetensors_find(&f, nullptr) == nullptr);

    // into target memory, all tensors by one call
    for (void *p : on_target) REQUIRE(te_fill(t, p, 0, 1) == TE_OK);
    REQUIRE(te_safetensors_load(&f, list.data(), (int)list.size(), 1, t) == TE_OK);
    for (size_t i = 0; i < list.size(); i += 2) {
        std::vector<uint8_t> got(bytes[i].size());
        REQUIRE(te_copy(t, got.data(), list[i].data, got.size()) == TE_OK);
        REQUIRE(te_synchronize(t) == TE_OK);
        CHECK(got == bytes[i]);
    }
    te_safetensors_close(&f);
    te_safetensors_close(&f); // a second close is harmless
    for (void *p : on_target) te_release(t, p);

    // a second write has the same bytes; then the file is read from memory
    const std::string once = read_file(path);
    REQUIRE(te_safetensors_write(path.c_str(), list.data(), 0, nullptr, 0, t) == TE_OK); // a file without tensors
    CHECK(read_file(path) == file_of("{\"__metadata__\":{\"format\":\"pt\"}}" + std::string(TE_SAFETENSORS_ALIGN - 8 - 32, ' '), 0));
    CHECK(open_bytes(once, t) == TE_OK);
}

// Pairs of bits: a number in one format, and the number in another format that round to nearest even must yield.
struct conversion {
    te_safetensors_dtype from, to;
    std::vector<uint32_t> bits, want;
};
static const conversion conversions[] = {
    // 1, ties below and above an even number, slightly above a tie, subnormals, the largest, infinities, a NaN, -0
    {TE_SAFETENSORS_F32, TE_SAFETENSORS_BF16,
     {0x3f800000, 0x3f808000, 0x3f818000, 0x3f808001, 0xbf818000, 1, 0x8000, 0x18000, 0x7f7f7fff, 0x7f800000, 0xff800000, 0x7fc00000, 0x80000000},
     {0x3f80, 0x3f80, 0x3f82, 0x3f81, 0xbf82, 0, 0, 2, 0x7f7f, 0x7f80, 0xff80, 0x7fc0, 0x8000}},
    {TE_SAFETENSORS_F32, TE_SAFETENSORS_F16,
     {0x3f800000, 0x3f801000, 0x3f803000, 0x3f801001, 0xbf803000, 0x33000000, 0x33000001, 0x33c00000, 0x38800000, 0x477fe000, 0x477fefff, 0x7f800000, 0xff800000, 0x7fc00000, 0x80000000},
     {0x3c00, 0x3c00, 0x3c02, 0x3c01, 0xbc02, 0, 1, 2, 0x400, 0x7bff, 0x7bff, 0x7c00, 0xfc00, 0x7e00, 0x8000}},
    {TE_SAFETENSORS_BF16, TE_SAFETENSORS_F16, {0x3f80, 0x477f, 0x3300, 0x33c0, 0xbf81, 0x7f80, 0x8000}, {0x3c00, 0x7bf8, 0, 2, 0xbc08, 0x7c00, 0x8000}},
    {TE_SAFETENSORS_F16, TE_SAFETENSORS_BF16, {0x3c00, 0x3c04, 0x3c0c, 1, 0x7bff, 0x7c00, 0x8000}, {0x3f80, 0x3f80, 0x3f82, 0x3380, 0x4780, 0x7f80, 0x8000}},
    {TE_SAFETENSORS_F16, TE_SAFETENSORS_F32, {0x3c00, 0x3c01, 1, 0x83ff, 0x7bff, 0xfc00}, {0x3f800000, 0x3f802000, 0x33800000, 0xb87fc000, 0x477fe000, 0xff800000}},
    {TE_SAFETENSORS_BF16, TE_SAFETENSORS_F32, {0x3f80, 1, 0x7f7f, 0xff80}, {0x3f800000, 0x10000, 0x7f7f0000, 0xff800000}},
};
// These bits as the bytes of a file or of a tensor.
static std::vector<uint8_t> bytes_of(const std::vector<uint32_t> &bits, te_safetensors_dtype t) {
    const size_t size = te_safetensors_dtype_bytes(t);
    std::vector<uint8_t> v;
    for (uint32_t b : bits) v.insert(v.end(), (const uint8_t *)&b, (const uint8_t *)&b + size); // little endian
    return v;
}

TEST_CASE("F32, BF16 and F16 are converted to the tensor's dtype, rounded to nearest even") {
    target t;
    folder dir;
    const std::string path = dir / "file";
    for (const conversion &c : conversions)
        for (size_t copies : {1, 100000}) { // more than the staging buffer holds
            if (brief() && copies > 1 && &c != &conversions[0]) continue;
            std::vector<uint32_t> bits, want;
            for (size_t i = 0; i < copies; i++) bits.insert(bits.end(), c.bits.begin(), c.bits.end()), want.insert(want.end(), c.want.begin(), c.want.end());
            const int64_t n = (int64_t)bits.size(), row[2] = {1, n}, column[2] = {n, 1}, cube[3] = {1, 1, n};
            std::vector<uint8_t> data = bytes_of(bits, c.from);
            const std::vector<uint8_t> wanted = bytes_of(want, c.to);
            CAPTURE(te_safetensors_dtype_name(c.from), te_safetensors_dtype_name(c.to), n);
            for (int file_rank = 1; file_rank <= 2; file_rank++) { // [n] and [1, n]
                const te_safetensor e = te_safetensor_of("x", c.from, file_rank, file_rank == 1 ? &n : row, data.data());
                REQUIRE(te_safetensors_write(path.c_str(), &e, 1, nullptr, 0, t) == TE_OK);
                te_safetensors f;
                REQUIRE(te_safetensors_open(&f, path.c_str(), t) == TE_OK);
                void *memory = nullptr;
                const size_t size = te_safetensors_dtype_bytes(c.to) * (size_t)n;
                REQUIRE(te_allocate(t, &memory, size) == TE_OK);
                for (int rank = 1; rank <= 2; rank++) {
                    REQUIRE(te_fill(t, memory, 0xee, size) == TE_OK);
                    const te_safetensor want_e = te_safetensor_of("x", c.to, rank, rank == 1 ? &n : row, memory);
                    REQUIRE(te_safetensors_load(&f, &want_e, 1, 1, t) == TE_OK);
                    std::vector<uint8_t> got(size);
                    REQUIRE(te_copy(t, got.data(), memory, size) == TE_OK);
                    REQUIRE(te_synchronize(t) == TE_OK);
                    CHECK((got == wanted));
                }
                for (const te_safetensor &other : {te_safetensor_of("x", c.to, 2, column, memory), te_safetensor_of("x", c.to, 3, cube, memory)})
                    CHECK(te_safetensors_load(&f, &other, 1, 1, t) == TE_ERROR_SHAPE);
                te_release(t, memory);
                te_safetensors_close(&f);
            }
        }
}
TEST_CASE("unsupported conversions are refused, and nothing is loaded") {
    target t;
    folder dir;
    const std::string path = dir / "file";
    struct { te_safetensors_dtype from, to; uint32_t bits; te_status status; const char *says; } all[] = {
        {TE_SAFETENSORS_F32, TE_SAFETENSORS_F16, 0x477ff000, TE_ERROR_VALUE, "element 2 of x, 65520, does not fit f16"},
        {TE_SAFETENSORS_F32, TE_SAFETENSORS_BF16, 0xff7fffff, TE_ERROR_VALUE, "element 2 of x, -3.40282e+38, does not fit bf16"},
        {TE_SAFETENSORS_BF16, TE_SAFETENSORS_F16, 0x4780, TE_ERROR_VALUE, "element 2 of x, 65536, does not fit f16"},
        {TE_SAFETENSORS_I32, TE_SAFETENSORS_F32, 1, TE_ERROR_DTYPE, "x is I32 [3], it should be F32 [3]"},
        {TE_SAFETENSORS_F32, TE_SAFETENSORS_I32, 1, TE_ERROR_DTYPE, "x is F32 [3], it should be I32 [3]"},
        {TE_SAFETENSORS_F64, TE_SAFETENSORS_F32, 1, TE_ERROR_DTYPE, "x is F64 [3]"},
        {TE_SAFETENSORS_F8_E4M3, TE_SAFETENSORS_BF16, 1, TE_ERROR_DTYPE, "x is F8_E4M3 [3]"},
        {TE_SAFETENSORS_BF16, TE_SAFETENSORS_F8_E4M3, 1, TE_ERROR_DTYPE, "x is BF16 [3]"},
        {TE_SAFETENSORS_F8_E4M3, TE_SAFETENSORS_F8_E5M2, 1, TE_ERROR_DTYPE, "x is F8_E4M3 [3]"},
        {TE_SAFETENSORS_F8_E4M3, TE_SAFETENSORS_F8_E4M3, 1, TE_OK, ""},
    };
    for (const auto &c : all) {
        const int64_t n = 3;
        uint64_t in[3] = {0}, out[3], first_out = 0;
        float first = 1;
        memcpy((char *)in + 2 * te_safetensors_dtype_bytes(c.from), &c.bits, te_safetensors_dtype_bytes(c.from) < 4 ? te_safetensors_dtype_bytes(c.from) : 4);
        te_safetensor e[] = {te_safetensor_of("first", TE_SAFETENSORS_F32, 0, nullptr, &first), te_safetensor_of("x", c.from, 1, &n, in)};
        REQUIRE(te_safetensors_write(path.c_str(), e, 2, nullptr, 0, t) == TE_OK);
        te_safetensors f;
        REQUIRE(te_safetensors_open(&f, path.c_str(), t) == TE_OK);
        memset(out, 0xee, sizeof out);
        e[0].data = &first_out, e[1] = te_safetensor_of("x", c.to, 1, &n, out);
        CHECK(te_safetensors_load(&f, e, 2, 1, t) == c.status);
        CAPTURE(te_last_error(t));
        CHECK(std::string(te_last_error(t)).find(c.says) != std::string::npos);
        if (c.status != TE_OK) CHECK(((first_out == 0) && out[0] == 0xeeeeeeeeeeeeeeee && out[1] == out[0] && out[2] == out[0]));
        te_safetensors_close(&f);
    }
}

TEST_CASE("slices of a tensor, transposed or not") {
    target t;
    folder dir;
    const std::string path = dir / "file";
    const unsigned seed = fresh_seed();
    std::mt19937 random(seed);
    CAPTURE(seed);
    for (int time = 0; time < 40; time++) {
        const bool large = time % 20 == 19 && !brief(); // more than the staging buffer holds
        const int64_t rows = large ? 1111 : 1 + random() % 40, cols = large ? 1500 : 1 + random() % 40;
        const auto part = [&](int64_t of, int64_t *first) {
            const int64_t n = random() % 4 ? 1 + (int64_t)random() % of : of;
            return *first = (int64_t)random() % (of - n + 1), n;
        };
        int64_t row, col;
        const int64_t m = part(rows, &row), n = part(cols, &col), size[2] = {rows, cols};
        const te_dtype formats[] = {TE_f32, TE_bf16, TE_f16, TE_e4m3};
        const te_dtype is = formats[random() % 4], as = is == TE_e4m3 ? is : formats[random() % 3];
        const bool transposed = random() % 2;
        std::vector<uint8_t> file((size_t)(rows * cols) * te_dtype_bytes(is)), want((size_t)(m * n) * te_dtype_bytes(as)), got(want.size());
        for (int64_t i = 0; i < rows * cols; i++) te_store(file.data(), i, (float)(random() % 17) - 8, is); // exact in all formats
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) te_store(want.data(), transposed ? j * m + i : i * n + j, te_load(file.data(), (row + i) * cols + col + j, is), as);
        te_safetensor e = te_safetensor_of("x", te__safetensors_dtype_of(is), 2, size, file.data());
        REQUIRE(te_safetensors_write(path.c_str(), &e, 1, nullptr, 0, t) == TE_OK);
        te_safetensors f;
        REQUIRE(te_safetensors_open(&f, path.c_str(), t) == TE_OK);
        void *memory = nullptr;
        REQUIRE(te_allocate(t, &memory, want.size()) == TE_OK);
        REQUIRE(te_fill(t, memory, 0xee, want.size()) == TE_OK);
        e = transposed ? te_safetensor_transposed("x", as, cols, rows, memory) : te_safetensor_of("x", te__safetensors_dtype_of(as), 2, size, memory);
        e = te_safetensor_slice(e, row, m, col, n);
        CAPTURE(rows, cols, row, m, col, n, te_dtype_name(is), te_dtype_name(as), transposed);
        REQUIRE(te_safetensors_load(&f, &e, 1, 1, t) == TE_OK);
        REQUIRE(te_copy(t, got.data(), memory, got.size()) == TE_OK);
        REQUIRE(te_synchronize(t) == TE_OK);
        CHECK((got == want));
        const te_safetensor twice[] = {e, e};
        CHECK(te_safetensors_load(&f, twice, 2, 1, t) == TE_OK);
        const auto refused = [&](const te_safetensor &wrong) { return te_safetensors_load(&f, &wrong, 1, 1, t) == TE_ERROR_VALUE && std::string(te_last_error(t)).find("slice") != std::string::npos; };
        CHECK(refused(te_safetensor_slice(e, rows - m + 1, m, col, n)));
        CHECK(refused(te_safetensor_slice(e, row, m, cols - n + 1, n)));
        CHECK(refused(te_safetensor_slice(e, -1, m, col, n)));
        CHECK(refused(te_safetensor_slice(e, row, 0, col, n)));
        CHECK(refused(te_safetensor_slice(e, row, m, INT64_MAX, n)));
        CHECK(refused(te_safetensor_slice(e, row, INT64_MAX, col, n)));
        CHECK(te_safetensors_write(path.c_str(), &e, 1, nullptr, 0, t) == TE_ERROR_VALUE);
        te_safetensor both[] = {e, e};
        both[time % 2].sliced = 0;
        CHECK(te_safetensors_load(&f, both, 2, 1, t) == TE_ERROR_VALUE); // a whole tensor and a slice in one call
        te_release(t, memory);
        te_safetensors_close(&f);
    }
}
TEST_CASE("a load that fails loads nothing") {
    target t;
    te_safetensors f;
    const std::string s = sample();
    REQUIRE(te_safetensors_open_memory(&f, s.data(), s.size(), t) == TE_OK);
    CHECK(std::string(te_safetensors_metadata(&f, "kéy\n")) == "v\"\xF0\x9F\x98\x80");
    float a[6];
    uint16_t b[4];
    int64_t step;
    const int64_t six[] = {2, 3}, three = 3, none[] = {4, 0, 2}, wrong[] = {3, 2};
    const auto load = [&](std::vector<te_safetensor> list, int exact = 1) {
        memset(a, 0xee, sizeof a), memset(b, 0xee, sizeof b), memset(&step, 0xee, sizeof step);
        const te_status status = te_safetensors_load(&f, list.data(), (int)list.size(), exact, t);
        size_t untouched = 0;
        for (size_t i = 0; i < sizeof a; i++) untouched += ((unsigned char *)a)[i] == 0xee;
        for (size_t i = 0; i < sizeof b; i++) untouched += ((unsigned char *)b)[i] == 0xee;
        for (size_t i = 0; i < sizeof step; i++) untouched += ((unsigned char *)&step)[i] == 0xee;
        CHECK((untouched == sizeof a + sizeof b + sizeof step) == (status != TE_OK));
        return status;
    };
    const auto text = [&] { return std::string(te_last_error(t)); };
    const te_safetensor wa = te_safetensor_of("a.weight", TE_SAFETENSORS_F32, 2, six, a), ws = te_safetensor_of("step", TE_SAFETENSORS_I64, 0, nullptr, &step);
    const te_safetensor wb = te_safetensor_of("b", TE_SAFETENSORS_BF16, 1, &three, b), wn = te_safetensor_of("none", TE_SAFETENSORS_U8, 3, none, nullptr);
    CHECK(load({wa, ws, wb, wn}) == TE_OK);
    CHECK(load({wn, wb, wa, ws}) == TE_OK);
    CHECK(b[3] == 0xeeee);
    CHECK(load({wa, ws, wn}) == TE_ERROR_FORMAT);
    CHECK(text() == "memory: has a tensor b, BF16 [3], that nothing here is called");
    CHECK(load({wa}, 0) == TE_OK);
    CHECK(load({wa, ws, wb, wn, te_safetensor_of("c", TE_SAFETENSORS_BF16, 1, &three, b)}) == TE_ERROR_FORMAT);
    CHECK(text() == "memory: has no tensor c, which should be BF16 [3]");
    CHECK(load({wb, ws, wn, te_safetensor_of("a.weight", TE_SAFETENSORS_F32, 2, wrong, a)}) == TE_ERROR_SHAPE);
    CHECK(text() == "memory: tensor a.weight is F32 [2, 3], it should be F32 [3, 2]");
    CHECK(load({ws, wb, wn, te_safetensor_of("a.weight", TE_SAFETENSORS_I32, 2, six, a)}) == TE_ERROR_DTYPE);
    CHECK(load({ws, wb, wn, te_safetensor_of("a.weight", TE_SAFETENSORS_F32, 2, six, nullptr)}) == TE_ERROR_VALUE);
    CHECK(load({wa, ws, wb, wn, wa}) == TE_ERROR_VALUE);
    te_safetensor nameless = wa;
    nameless.name = nullptr;
    CHECK(load({nameless}) == TE_ERROR_VALUE);
    te_safetensor far = wa; // an entry that does not come from this file
    far.offset = 1 << 20;
    CHECK(te_safetensors_read(&f, &far, a, t) == TE_ERROR_VALUE);
    te_safetensors_close(&f);
    CHECK(te_safetensors_load(&f, &wa, 1, 0, t) == TE_ERROR_NULL); // a closed file
    CHECK(te_safetensors_read(&f, &wa, a, t) == TE_ERROR_VALUE);
}

// Files that other programs write: the library uses the tensors that it knows, and refuses the others by name, when they are read.
TEST_CASE("tensors and metadata that the library does not have") {
    target t;
    folder dir;
    const std::string known = "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}";
    const auto with = [&](const std::string &odd) { return file_of("{" + known + "," + odd + "}", 24); };
    const auto field = [&](const std::string &dtype, const std::string &shape) {
        return "\"odd\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":[8,24]}";
    };
    struct { std::string file; const char *says; te_status status; } odd[] = {
        {with(field("F8_E8M0", "[16]")), "tensor odd is F8_E8M0 [16], it should be F32 [2]", TE_ERROR_DTYPE},
        {with(field("F4", "[32]")), "tensor odd is F4 [32], it should be F32 [2]", TE_ERROR_DTYPE},
        {with(field("F6_E2M3", "[21]")), "tensor odd is F6_E2M3 [21]", TE_ERROR_DTYPE},
        {with(field("C64", "[2]")), "tensor odd is C64 [2]", TE_ERROR_DTYPE},
        {with(field("F8_E4M3FNUZ", "[4,4]")), "tensor odd is F8_E4M3FNUZ [4, 4]", TE_ERROR_DTYPE},
        {with(field("F8_E5M2FNUZ", "[4,4]")), "tensor odd is F8_E5M2FNUZ [4, 4]", TE_ERROR_DTYPE},
        {with(field("", "[4,4]")), "tensor odd is  [4, 4]", TE_ERROR_DTYPE},
        {with(field(std::string(300, 'F'), "[9223372036854775807,9223372036854775807]")), "FFF [9223372036854775807, 9223372036854775807]", TE_ERROR_DTYPE},
        {with(field("F32", "[1,1,2,1,2]")), "tensor odd is F32 [1, 1, 2, 1, 2], it should be F32 [2]", TE_ERROR_SHAPE},
        {with(field("F32", "[1,1,1,1,1,1,1,1,2,2]")), "tensor odd is F32 [1, 1, 1, 1, 1, 1, 1, 1, ..], it should be F32 [2]", TE_ERROR_SHAPE},
        {with(field("F32", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2,2]")), "F32 [1, 1, 1, 1, 1, 1, 1, 1, ..]", TE_ERROR_SHAPE},
    };
    for (auto &o : odd) {
        CAPTURE(o.says);
        CHECK(open_bytes(o.file, t) == TE_OK); // lists all tensors, and reads the bytes of each
        te_safetensors f;
        float w[2] = {0, 0}, x[2] = {5, 5};
        REQUIRE(te_safetensors_open_memory(&f, o.file.data(), o.file.size(), t) == TE_OK);
        CHECK(f.count == 2);
        const te_safetensor want = te_safetensor_matrix("w", TE_f32, 1, 2, w), other = te_safetensor_matrix("odd", TE_f32, 1, 2, x);
        CHECK(te_safetensors_load(&f, &want, 1, 0, t) == TE_OK); // the tensor that is asked for
        CHECK(!std::memcmp(w, "xxxxxxxx", 8));
        CHECK(te_safetensors_load(&f, &other, 1, 0, t) == o.status);
        INFO(te_last_error(t));
        CHECK(std::strstr(te_last_error(t), o.says) != nullptr);
        CHECK((x[0] == 5 && x[1] == 5));
        CHECK(te_safetensors_check(&f, &want, 1, 1, t) == TE_ERROR_FORMAT); // an exact list names the one that is left
        CHECK(std::strstr(te_last_error(t), "has a tensor odd") != nullptr);
        const te_safetensor *listed = te_safetensors_find(&f, "odd");
        REQUIRE(listed != nullptr);
        CHECK((listed->bytes == 16 && listed->offset == 8));
        te_safetensor again = *listed; // neither written nor loaded as it is
        again.data = x;
        const std::string path = dir / "again.safetensors";
        if (o.status == TE_ERROR_DTYPE) CHECK(te_safetensors_write(path.c_str(), &again, 1, nullptr, 0, t) == TE_ERROR_DTYPE);
        te_safetensors_close(&f);
    }
    // fields that a tensor does not have, of every kind of value; metadata that are null, or no strings
    const std::string more = "\"extra\":[1,-2.5e3,{\"x\":[],\"y\":{}},\"s\",null,true],";
    CHECK(open_bytes(file_of("{\"a\":{" + more + "\"dtype\":\"U8\",\"n\":null,\"shape\":[2],\"data_offsets\":[0,2],\"z\":\"\"}}", 2), t) == TE_OK);
    const std::string metadata = file_of("{\"__metadata__\":{\"a\":null,\"b\":1.5,\"c\":{\"d\":[1]},\"e\":\"text\"}," + known + "}", 8);
    te_safetensors f;
    REQUIRE(te_safetensors_open_memory(&f, metadata.data(), metadata.size(), t) == TE_OK);
    CHECK(f.metadata_count == 4);
    for (const char *key : {"a", "b", "c"}) CHECK(te_safetensors_metadata(&f, key) == nullptr);
    CHECK(std::string(te_safetensors_metadata(&f, "e")) == "text");
    CHECK(te_safetensors_verify(&f, t) == TE_OK);
    te_safetensors_close(&f);
    const std::string none = file_of("{\"__metadata__\": null ," + known + "}", 8);
    REQUIRE(te_safetensors_open_memory(&f, none.data(), none.size(), t) == TE_OK);
    CHECK((f.metadata_count == 0 && f.count == 1));
    te_safetensors_close(&f);
    // a sealed file whose checksum became null is damaged
    const std::string damaged = file_of("{\"__metadata__\":{\"te.checksum\":null}," + known + "}", 8);
    REQUIRE(te_safetensors_open_memory(&f, damaged.data(), damaged.size(), t) == TE_OK);
    CHECK(te_safetensors_verify(&f, t) == TE_ERROR_FORMAT);
    te_safetensors_close(&f);
}

// transformers loads only files whose metadata have "format".
TEST_CASE("files have the format pt unless the caller says another") {
    target t;
    folder dir;
    float w[2] = {1, 2};
    const te_safetensor tensor = te_safetensor_matrix("w", TE_f32, 1, 2, w);
    const te_safetensors_pair own[] = {{"epoch", "3"}, {"format", "np"}};
    for (const bool sealed : {false, true})
        for (const int pairs : {0, 1, 2}) {
            const std::string path = dir / "f.safetensors";
            REQUIRE((sealed ? te_safetensors_write_sealed : te_safetensors_write)(path.c_str(), &tensor, 1, own, pairs, t) == TE_OK);
            te_safetensors f;
            REQUIRE(te_safetensors_open(&f, path.c_str(), t) == TE_OK);
            CHECK(std::string(te_safetensors_metadata(&f, "format")) == (pairs == 2 ? "np" : "pt"));
            CHECK(f.metadata_count == (pairs == 2 ? 2 : 1 + pairs) + (sealed ? 2 : 0));
            CHECK(te_safetensors_verify(&f, t) == TE_OK);
            CHECK(f.verified == (sealed ? 1 : 0));
            te_safetensors_close(&f);
        }
}

TEST_CASE("invalid headers") {
    target t;
    const std::string good = "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}";
    const auto tensor = [](const std::string &dtype, const std::string &shape, const std::string &offsets) {
        return "{\"a\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
    };
    // valid headers first: the invalid ones differ from them in one thing
    CHECK(open_bytes(sample(), t) == TE_OK);
    CHECK(open_bytes(file_of("{" + good + "}", 2), t) == TE_OK);
    CHECK(open_bytes(file_of("{ " + good + "\n,\t\"__metadata__\" : { } }\r\n ", 2), t) == TE_OK);
    CHECK(open_bytes(file_of("{}", 0), t) == TE_OK);
    CHECK(open_bytes(file_of(tensor("U8", "[]", "[0,1]"), 1), t) == TE_OK);
    CHECK(open_bytes(file_of(tensor("F64", "[1,1,1,2]", "[0,16]"), 16), t) == TE_OK);

    struct { std::string header; size_t data; const char *says; } wrong[] = {
        {"", 2, "begins with '{'"},
        {" {}", 0, "begins with '{'"},
        {"[]", 0, "begins with '{'"},
        {"{", 0, "'\"' should stand here"},
        {"{}}", 0, "something follows"},
        {"{} x", 0, "something follows"},
        {"{}" + std::string(3, '\0'), 0, "something follows"},
        {"{,}", 0, "'\"' should stand here"},
        {"{" + good + ",}", 2, "'\"' should stand here"},
        {"{" + good + " " + good + "}", 2, "',' should stand here"},
        {"{" + good + "," + good + "}", 2, "begins at byte 0 of the data, the one before ends at 2"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
         "two tensors are called \"a\""},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2,
         "two tensors are called \"a\""},
        {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "two metadata are called \"k\""},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ stands there twice"},
        {"{\"__metadata__\":{\"k\":}}", 0, "a value should stand here"},
        {"{\"__metadata__\":[]}", 0, "'{' should stand here"},
        {"{\"__metadata__\":nul}", 0, "a value should stand here"},
        {"{\"__metadata__\":{\"k\":{\"deep\":\"x\"}}", 0, "',' should stand here"},
        {"{\"__metadata__\":{\"k\":" + std::string(5000, '[') + "}}", 0, "nested too deep"},
        {"{\"a\":" + std::string(5000, '[') + std::string(5000, ']') + "}", 0, "'{' should stand here"},
        {"{\"a\":" + std::string(5000, '{'), 0, "'\"' should stand here"},
        {"{\"a\":null}", 0, "'{' should stand here"},
        {"{\"a\":{}}", 0, "tensor a has no dtype"},
        {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,2]}}", 2, "tensor a has no shape"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2]}}", 2, "tensor a has no data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, "\"dtype\" stands there twice"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"shape\":[2],\"data_offsets\":[0,2]}}", 2, "\"shape\" stands there twice"},
        {"{\"a\":{\"extra\":[1,{\"x\":}],\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, "a value should stand here"},
        {"{\"a\":{\"extra\":1,\"dtype\":\"U8\",\"data_offsets\":[0,2]}}", 2, "tensor a has no shape"},
        {"{\"a\":{\"dtype\":8,\"shape\":[2],\"data_offsets\":[0,2]}}", 2, "'\"' should stand here"},
        {tensor("Q4", "[2]", "[0,3]"), 2, "offsets [0, 3]"},
        {tensor("Q4", "[2]", "[1,2]"), 2, "begins at byte 1 of the data, the one before ends at 0"},
        {tensor("U8", "2", "[0,2]"), 2, "'[' should stand here"},
        {tensor("U8", "[-2]", "[0,2]"), 2, "a whole number >= 0"},
        {tensor("U8", "[2.0]", "[0,2]"), 2, "',' should stand here"},
        {tensor("U8", "[2e0]", "[0,2]"), 2, "',' should stand here"},
        {tensor("U8", "[02]", "[0,2]"), 2, "a number begins with 0"},
        {tensor("U8", "[2]", "[00,2]"), 2, "a number begins with 0"},
        {tensor("U8", "[2,]", "[0,2]"), 2, "a whole number >= 0"},
        {tensor("U8", "[,2]", "[0,2]"), 2, "a whole number >= 0"},
        {tensor("U8", "[1,1,1,1,1,1,1,1,1,-2]", "[0,2]"), 2, "a whole number >= 0"},
        {tensor("U8", "[1,1,1,1,1,1,1,3]", "[0,2]"), 2, "tensor a, U8 [1, 1, 1, 1, 1, 1, 1, 3], has 2 bytes"},
        {tensor("U8", "[2]", "[0]"), 2, "',' should stand here"},
        {tensor("U8", "[2]", "[0,2,3]"), 2, "']' should stand here"},
        {tensor("U8", "[2]", "[]"), 2, "a whole number >= 0"},
        {tensor("U8", "[2]", "[2,0]"), 2, "offsets [2, 0]"},
        {tensor("U8", "[2]", "[0,3]"), 2, "offsets [0, 3]"},
        {tensor("U8", "[2]", "[0,1]"), 2, "tensor a, U8 [2], has 1 bytes"},
        {tensor("F32", "[2]", "[0,2]"), 2, "tensor a, F32 [2], has 2 bytes"},
        {tensor("U8", "[1]", "[1,2]"), 2, "begins at byte 1 of the data, the one before ends at 0"},
        {tensor("U8", "[2]", "[0,2]"), 3, "the tensors take 2 bytes, the file has 3"},
        {"{}", 1, "the tensors take 0 bytes, the file has 1"},
        {tensor("U8", "[9223372036854775807]", "[0,9223372036854775807]"), 2, "offsets [0, 9223372036854775807]"},
        {tensor("U8", "[9223372036854775808]", "[0,2]"), 2, "does not fit into 63 bits"},
        {tensor("U8", "[2]", "[0,18446744073709551618]"), 2, "does not fit into 63 bits"},
        {tensor("F64", "[2305843009213693952]", "[0,0]"), 0, "is too large"},
        {tensor("U8", "[4294967296,4294967296]", "[0,0]"), 0, "is too large"},
        {tensor("F32", "[9223372036854775807,9223372036854775807,9223372036854775807,9223372036854775807]", "[0,2]"), 2, "is too large"},
        {"{\"a", 0, "no end to it"},
        {"{\"a\\", 0, "no such escape"},
        {"{\"a\\x\":", 0, "no such escape"},
        {"{\"\\u12", 0, "four hex digits"},
        {"{\"\\u12g4\":", 0, "four hex digits"},
        {"{\"\\ud800\":", 0, "half of a surrogate pair"},
        {"{\"\\udc00\\ud800\":", 0, "half of a surrogate pair"},
        {"{\"\\ud800\\u0041\":", 0, "half of a surrogate pair"},
        {"{\"\\ud800\\", 0, "half of a surrogate pair"},
        {"{\"\\u0000\":", 0, "a NUL in a string"},
        {"{\"a\nb\":", 0, "a control character"},
        {"{\"\xff\":", 0, "not UTF-8"},
        {"{\"\xc0\x80\":", 0, "not UTF-8"},
        {"{\"\xed\xa0\x80\":", 0, "not UTF-8"},
        {"{\"\xf4\x90\x80\x80\":", 0, "not UTF-8"},
        {"{\"\xe2\x82", 0, "not UTF-8"},
    };
    for (const auto &w : wrong) {
        const te_status status = open_bytes(file_of(w.header, w.data), t);
        const std::string text = te_last_error(t);
        INFO(w.header.substr(0, 200) << " -- " << text);
        CHECK(status == TE_ERROR_FORMAT);
        CHECK(text.find(w.says) != std::string::npos);
    }
    // invalid lengths of the header
    for (uint64_t n : std::vector<uint64_t>{0, 3, 1000, 100u << 20, (100u << 20) + 1, UINT64_C(1) << 40, INT64_MAX, UINT64_MAX - 7, UINT64_MAX}) {
        std::string s = file_of("{}", 0);
        for (int i = 0; i < 8; i++) s[(size_t)i] = (char)(unsigned char)(n >> (8 * i));
        CAPTURE(n);
        CHECK(open_bytes(s, t) == TE_ERROR_FORMAT);
    }
    CHECK(open_bytes("", t) == TE_ERROR_FORMAT);
}

TEST_CASE("files truncated at every length, and with a byte too many") {
    target t;
    folder dir;
    const std::string s = sample(), path = dir / "cut";
    CHECK(open_bytes(s, t) == TE_OK);
    CHECK(open_bytes(s + "x", t) == TE_ERROR_FORMAT);
    for (size_t n = 0; n < s.size(); n++) {
        CAPTURE(n);
        REQUIRE(open_bytes(s.substr(0, n), t) == TE_ERROR_FORMAT);
        write_file(path, s.substr(0, n));
        te_safetensors f;
        REQUIRE(te_safetensors_open(&f, path.c_str(), t) == TE_ERROR_FORMAT);
    }
    // a file that is truncated after it was opened
    write_file(path, s);
    te_safetensors f;
    REQUIRE(te_safetensors_open(&f, path.c_str(), t) == TE_OK);
    write_file(path, s.substr(0, s.size() - 5));
    uint16_t b[3];
    CHECK(te_safetensors_read(&f, te_safetensors_find(&f, "b"), b, t) == TE_ERROR_IO);
    CHECK(std::string(te_last_error(t)).find("ends 5 bytes early") != std::string::npos);
    te_safetensors_close(&f);
}

TEST_CASE("mutated files are refused or read, without a crash") {
    target t;
    std::mt19937 random(20250705);
    const std::string whole = sample();
    const char *const pieces[] = {"\"", "\\", "{", "}", "[", "]", ",", ":", "0", "-1", "18446744073709551615", "9223372036854775807", "\\u", "\\ud800", "\\u0000",
                                  "\"dtype\"", "\"shape\"", "\"data_offsets\"", "__metadata__", "F64", "\xff", "\xf0\x9f", "[[[[", "{{{{", "null", "1e9", " "};
    const auto below = [&](size_t n) { return (size_t)(random() % (n ? n : 1)); };
    int accepted = 0;
    for (int round = 0; round < 20000; round++) {
        std::string s = whole;
        for (size_t edits = 1 + below(4); edits; edits--) {
            const size_t at = below(s.size());
            switch (below(6)) {
            case 0: if (!s.empty()) s[at] = (char)(unsigned char)random(); break;
            case 1: if (!s.empty()) s[at] = (char)(unsigned char)(s[at] ^ (1 << below(8))); break;
            case 2: s.erase(at, 1 + below(8)); break;
            case 3: s.insert(at, pieces[below(sizeof pieces / sizeof *pieces)]); break;
            case 4: s.insert(at, s.substr(below(s.size()), below(60))); break;
            default: if (!s.empty()) s[at] = (char)('0' + below(10));
            }
        }
        // in two of three cases the length of the header is kept valid, so that the parser runs
        if (below(3) && s.size() >= 8) {
            const uint64_t n = s.size() - 8 > 38 ? s.size() - 8 - 38 : s.size() - 8;
            for (int i = 0; i < 8; i++) s[(size_t)i] = (char)(unsigned char)(n >> (8 * i));
        }
        const te_status status = open_bytes(s, t);
        REQUIRE((status == TE_OK || status == TE_ERROR_FORMAT));
        accepted += status == TE_OK;
    }
    CHECK(accepted > 100); // mutations of names, padding and data are harmless
    CHECK(accepted < 10000);
}

TEST_CASE("a header with very many tensors") {
    target t;
    std::string header = "{";
    const int n = 20000;
    for (int i = 0; i < n; i++) {
        char s[160];
        snprintf(s, sizeof s, "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}", i ? "," : "", (i * 7919) % n, i, i + 1);
        header += s;
    }
    CHECK(open_bytes(file_of(header + "}", (size_t)n), t) == TE_OK);
}

TEST_CASE("a write that fails leaves the old file as it was") {
    target t;
    folder dir;
    const std::string path = dir / "model.safetensors", old = sample();
    write_file(path, old);
    std::vector<uint8_t> data(100000, 7);
    const int64_t n = (int64_t)data.size();
    const te_safetensor e = te_safetensor_of("x", TE_SAFETENSORS_U8, 1, &n, data.data());
    const auto text = [&] { return std::string(te_last_error(t)); };

    // the folder does not exist, or the path is a folder; tests/misuse_files_test.cc has more such cases
    CHECK(te_safetensors_write((dir / "no/where").c_str(), &e, 1, nullptr, 0, t) == TE_ERROR_IO);
    CHECK(text().find("cannot create it") != std::string::npos);
    REQUIRE(mkdir((dir / "folder").c_str(), 0777) == 0);
    CHECK(te_safetensors_write((dir / "folder").c_str(), &e, 1, nullptr, 0, t) == TE_ERROR_IO);
    CHECK(text().find("is no regular file") != std::string::npos);

    // invalid entries are refused before anything is written
    const auto refuse = [&](te_safetensor x, te_status want) {
        const te_safetensor list[] = {e, x};
        CHECK(te_safetensors_write(path.c_str(), list, 2, nullptr, 0, t) == want);
        CHECK(read_file(path) == old);
    };
    te_safetensor x = e;
    refuse(x, TE_ERROR_VALUE); // two tensors of one name
    x.name = nullptr, refuse(x, TE_ERROR_NULL);
    x.name = "__metadata__", refuse(x, TE_ERROR_VALUE);
    x.name = "\xff", refuse(x, TE_ERROR_VALUE);
    x = e, x.name = "y", x.data = nullptr, refuse(x, TE_ERROR_NULL);
    x = e, x.name = "y", x.bytes--, refuse(x, TE_ERROR_SHAPE);
    x = e, x.name = "y", x.rank = 5, refuse(x, TE_ERROR_SHAPE);
    x = e, x.name = "y", x.shape[0] = -1, refuse(x, TE_ERROR_SHAPE);
    x = e, x.name = "y", x.rank = 2, x.shape[0] = x.shape[1] = INT64_MAX, refuse(x, TE_ERROR_SHAPE);
    const te_safetensors_pair twice[] = {{"k", "1"}, {"k", "2"}}, null[] = {{"k", nullptr}};
    CHECK(te_safetensors_write(path.c_str(), &e, 1, twice, 2, t) == TE_ERROR_VALUE);
    CHECK(te_safetensors_write(path.c_str(), &e, 1, null, 1, t) == TE_ERROR_VALUE);
    CHECK(te_safetensors_write(nullptr, &e, 1, nullptr, 0, t) == TE_ERROR_NULL);
    CHECK(te_safetensors_write(path.c_str(), nullptr, 1, nullptr, 0, t) == TE_ERROR_NULL);
    CHECK(te_safetensors_write(path.c_str(), &e, -1, nullptr, 0, t) == TE_ERROR_SHAPE);
    CHECK(read_file(path) == old);

    // a write that succeeds replaces the old file
    CHECK(te_safetensors_write(path.c_str(), &e, 1, nullptr, 0, t) == TE_OK);
    CHECK(read_file(path).size() > data.size());
    CHECK(only_entries(dir.path, {"folder", "model.safetensors"}));

    te_safetensors f;
    CHECK(te_safetensors_open(&f, (dir / "nothing").c_str(), t) == TE_ERROR_IO);
    CHECK(text().find("cannot open it") != std::string::npos);
    CHECK(te_safetensors_open(&f, dir.path.c_str(), t) == TE_ERROR_IO);
    CHECK(te_safetensors_open(nullptr, path.c_str(), t) == TE_ERROR_NULL);
    CHECK(te_safetensors_open(&f, nullptr, t) == TE_ERROR_NULL);
    CHECK(te_safetensors_open_memory(&f, nullptr, 5, t) == TE_ERROR_NULL);
}

// A file system allows names of 255 bytes; the name of the temporary file must not be longer than the file's.
TEST_CASE("files with long names") {
    target t;
    folder dir;
    float w[2] = {1, 2};
    const te_safetensor tensor = te_safetensor_matrix("w", TE_f32, 1, 2, w);
    std::string umlauts;
    while (umlauts.size() < 254) umlauts += "\xc3\xbc";
    std::set<std::string> names;
    for (const std::string &name : {std::string("a"), std::string(199, 'b'), std::string(200, 'c'), std::string(201, 'd'), std::string(240, 'e'), std::string(254, 'f'), std::string(255, 'g'), std::string(255, 'g').replace(254, 1, "h"), umlauts, "x" + umlauts}) {
        const std::string path = dir / name.c_str();
        CAPTURE(name);
        for (int k = 0; k < 2; k++) { // a new one, and one in the place of an old one
            CHECK(te_safetensors_write(path.c_str(), &tensor, 1, nullptr, 0, t) == TE_OK);
            INFO(te_last_error(t));
            te_safetensors f;
            REQUIRE(te_safetensors_open(&f, path.c_str(), t) == TE_OK);
            CHECK(f.count == 1);
            te_safetensors_close(&f);
        }
        const size_t stem = te__new_file_stem(path.c_str());
        CHECK(te__utf8_valid(path.substr(0, stem).c_str()));
        CHECK(stem - (path.size() - name.size()) == (name.size() <= 200 ? name.size() : name[1] == '\xc3' ? 199 : 200));
        names.insert(name);
    }
    CHECK(only_entries(dir.path, names)); // no temporary file is left
    CHECK(te_safetensors_write((dir / std::string(256, 'i').c_str()).c_str(), &tensor, 1, nullptr, 0, t) == TE_ERROR_IO);
    INFO(te_last_error(t));
    CHECK(std::strstr(te_last_error(t), "File name too long") != nullptr);
}

TEST_CASE("JSON files as tables") {
    target t;
    folder f;
    te_json table;
    const auto open = [&](const std::string &text) {
        write_file(f / "a.json", text);
        return te_json_open(&table, (f / "a.json").c_str(), t);
    };
    REQUIRE(open(" {\"a\": {\"b.c\": [1, -2.5e-1, [true, null], {}]}, \"d\": \"\\u00e9\\n\", \"\": 0,\"e\":[]}\n") == TE_OK);
    CHECK(table.count == 6);
    CHECK(te_json_find(&table, "a.b.c.0")->number == 1);
    CHECK(te_json_find(&table, "a.b.c.1")->number == -0.25);
    CHECK((te_json_find(&table, "a.b.c.2.0")->kind == TE_JSON_bool && te_json_find(&table, "a.b.c.2.0")->number == 1));
    CHECK(te_json_find(&table, "a.b.c.2.1")->kind == TE_JSON_null);
    CHECK(te_json_find(&table, "d")->text == std::string("\xc3\xa9\n"));
    CHECK(te_json_find(&table, "")->kind == TE_JSON_number);
    CHECK(te_json_find(&table, "a") == nullptr);
    te_json_close(&table);
    REQUIRE(open("-0.5E+3") == TE_OK);
    CHECK(te_json_find(&table, "")->number == -500);
    te_json_close(&table);
    REQUIRE(open("[Infinity, -Infinity, {\"a\": NaN}]") == TE_OK); // as Python writes them
    CHECK(te_json_find(&table, "0")->number == INFINITY);
    CHECK(te_json_find(&table, "1")->number == -INFINITY);
    CHECK((te_json_find(&table, "2.a")->kind == TE_JSON_number && std::isnan(te_json_find(&table, "2.a")->number)));
    te_json_close(&table);
    REQUIRE(open(std::string(16, '[') + "1" + std::string(16, ']')) == TE_OK);
    te_json_close(&table);
    const std::vector<std::pair<std::string, std::string>> wrong = {
        {"", "a value should stand"}, {"{", "'\"' should stand"}, {"[1,]", "a value should stand"}, {"[1 2]", "',' should stand"},
        {"{\"a\":1,}", "'\"' should stand"}, {"{\"a\" 1}", "':' should stand"}, {"{a:1}", "'\"' should stand"}, {"[01]", "a value should stand"},
        {"[1.]", "digits should follow the point"}, {"[1e]", "digits should follow the e"}, {"[.5]", "a value"}, {"[+1]", "a value"},
        {"[Nan]", "a value"}, {"[Inf]", "a value"}, {"[+Infinity]", "a value"}, {"[Infinityy]", "',' should stand"}, {"[-NaN]", "a value"}, {"[tru]", "a value"}, {"[truefalse]", "',' should stand"}, {"[1]]", "something follows"}, {"1 2", "something follows"},
        {"[\"a]", "a control character in a string, or no end"}, {"{\"a\":1,\"a\":2}", "\"a\" stands there twice"}, {"[1}", "',' should stand"},
        {"{\"a.b\":1,\"a\":{\"b\":2}}", "stands there twice"}, {std::string(17, '[') + std::string(17, ']'), "nested too deep"},
        {"{\"" + std::string(300, 'x') + "\":1}", "a name that is too long"}, {"[" + std::string(70, '1') + "]", "more than 63 characters"},
        {std::string("[1]\0", 4), "something follows"}};
    for (const auto &w : wrong) {
        CAPTURE(w.first, te_last_error(t));
        CHECK(open(w.first) == TE_ERROR_FORMAT);
        CHECK(std::string(te_last_error(t)).find(w.second) != std::string::npos);
    }
    CHECK(te_json_open(&table, (f / "none.json").c_str(), t) == TE_ERROR_IO);
}
