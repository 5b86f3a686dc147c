// misuse_files_test.cc -- paths that are no regular files or cannot be written: links, FIFOs, devices, folders, missing permissions, a
// full disk, two writers at once. No call may hang or write to another file, and at every moment the path must hold a complete file.
#include <catch2/catch.hpp>

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "folder.h"
#include "te/gemm/gemm.h" // te_gemm_load
#include "te/io/safetensors.h"

namespace {

std::string content(const std::string &path) {
    std::ostringstream s;
    s << std::ifstream(path, std::ios::binary).rdbuf();
    return s.str();
}
void put(const std::string &path, const std::string &text) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}
int permissions(const std::string &path) {
    struct stat s;
    return lstat(path.c_str(), &s) ? -1 : (int)(s.st_mode & 07777);
}
bool is_link(const std::string &path) {
    struct stat s;
    return lstat(path.c_str(), &s) == 0 && S_ISLNK(s.st_mode);
}
std::vector<std::string> entries(const std::string &path) {
    std::vector<std::string> all;
    DIR *d = opendir(path.c_str());
    REQUIRE(d != nullptr);
    while (const dirent *e = readdir(d))
        if (e->d_name[0] != '.') all.push_back(e->d_name);
    closedir(d);
    return all;
}

te_status save(const std::string &path, size_t bytes, int value, te_context *ctx) {
    std::vector<uint8_t> data(bytes, (uint8_t)value);
    const int64_t n = (int64_t)bytes;
    const te_safetensor e = te_safetensor_of("x", TE_SAFETENSORS_U8, 1, &n, data.data());
    return te_safetensors_write_sealed(path.c_str(), &e, 1, nullptr, 0, ctx);
}
// The value of all bytes of the file's tensor; -1: the file does not open, -2: its bytes differ, or the checksum is wrong.
int value_of(const std::string &path, te_context *ctx) {
    te_safetensors f;
    if (te_safetensors_open(&f, path.c_str(), ctx) != TE_OK) return -1;
    const te_safetensor *t = te_safetensors_find(&f, "x");
    std::vector<uint8_t> data(t ? (size_t)t->bytes : 0);
    int value = t && te_safetensors_read(&f, t, data.data(), ctx) == TE_OK && !data.empty() ? data[0] : -2;
    for (uint8_t b : data)
        if (b != value) value = -2;
    if (te_safetensors_verify(&f, ctx) != TE_OK || !f.verified) value = -2;
    te_safetensors_close(&f);
    return value;
}

// If a call hangs, the process ends after a minute.
struct time_limit {
    time_limit() { alarm(60); }
    ~time_limit() { alarm(0); }
};

} // namespace

TEST_CASE("a FIFO, a device and a folder are refused without waiting for them") {
    target t;
    folder dir;
    time_limit limit;
    const std::string fifo = dir / "fifo";
    REQUIRE(mkfifo(fifo.c_str(), 0666) == 0);
    REQUIRE(symlink(fifo.c_str(), (dir / "link").c_str()) == 0);
    const auto text = [&] { return std::string(te_last_error(t)); };
    for (const std::string &path : {fifo, dir / "link", std::string("/dev/null"), std::string("/dev/zero"), dir.path}) {
        CAPTURE(path);
        te_safetensors f;
        CHECK(te_safetensors_open(&f, path.c_str(), t) == TE_ERROR_IO);
        CHECK(text().find("is no regular file") != std::string::npos);
        CHECK(save(path, 100, 1, t) == TE_ERROR_IO);
        CHECK(text().find("is no regular file") != std::string::npos);
        int fd;
        uint64_t bytes;
        CHECK(te__file_open(&fd, &bytes, path.c_str(), t) == TE_ERROR_IO);
        CHECK(te_gemm_load(path.c_str(), t) == TE_ERROR_IO);
        CHECK(text().find("is no regular file") != std::string::npos);
    }
    struct stat s;
    REQUIRE((lstat("/dev/null", &s) == 0 && S_ISCHR(s.st_mode)));
    REQUIRE((lstat(fifo.c_str(), &s) == 0 && S_ISFIFO(s.st_mode)));
    CHECK(entries(dir.path).size() == 2); // no temporary file is left
}

TEST_CASE("a symbolic link stays, and its target is replaced") {
    target t;
    folder dir;
    REQUIRE(mkdir((dir / "far").c_str(), 0777) == 0);
    REQUIRE(save(dir / "far/file", 1000, 1, t) == TE_OK);
    REQUIRE(symlink("far/file", (dir / "link").c_str()) == 0);
    REQUIRE(symlink("link", (dir / "second").c_str()) == 0);
    REQUIRE(symlink("nowhere", (dir / "dangling").c_str()) == 0);
    REQUIRE(symlink("loop", (dir / "loop").c_str()) == 0);
    CHECK(save(dir / "second", 1000, 2, t) == TE_OK);
    CHECK(is_link(dir / "link"));
    CHECK(is_link(dir / "second"));
    CHECK(value_of(dir / "far/file", t) == 2);
    for (const char *name : {"dangling", "loop"}) {
        CHECK(save(dir / name, 1000, 3, t) == TE_ERROR_IO);
        CHECK(std::string(te_last_error(t)).find("leads nowhere") != std::string::npos);
        CHECK(is_link(dir / name));
    }
    CHECK(access((dir / "nowhere").c_str(), F_OK) != 0);
    CHECK(entries(dir / "far").size() == 1);
    CHECK(entries(dir.path).size() == 5);
}

TEST_CASE("existing files with the names of temporary files are not written to") {
    target t;
    folder dir;
    const std::string path = dir / "file", victim = dir / "victim";
    put(victim, "mine");
    // the temporary name of older versions, and the first names of this process
    std::vector<std::string> names = {path + ".tmp"};
    for (int k = 0; k < 3; k++) names.push_back(path + ".tmp." + std::to_string(getpid()) + "." + std::to_string(k));
    for (const std::string &name : names) REQUIRE(symlink(victim.c_str(), name.c_str()) == 0);
    CHECK(save(path, 1000, 1, t) == TE_OK);
    CHECK(value_of(path, t) == 1);
    CHECK(content(victim) == "mine");
    for (const std::string &name : names) CHECK(is_link(name));
}

TEST_CASE("a write keeps the permissions of the file") {
    target t;
    folder dir;
    const std::string path = dir / "file";
    const mode_t mask = umask(0022);
    CHECK(save(path, 1000, 1, t) == TE_OK);
    CHECK(permissions(path) == 0644);
    for (int mode : {0600, 0640, 0660, 0666, 0755}) {
        REQUIRE(chmod(path.c_str(), (mode_t)mode) == 0);
        CHECK(save(path, 1000, 2, t) == TE_OK);
        CHECK(permissions(path) == mode);
    }
    umask(mask);
    if (geteuid() == 0) {
        WARN("skipped: files without write permission, because root may write them");
        return;
    }
    REQUIRE(chmod(path.c_str(), 0444) == 0);
    CHECK(save(path, 1000, 3, t) == TE_ERROR_IO);
    CHECK(std::string(te_last_error(t)).find("cannot write") != std::string::npos);
    CHECK(value_of(path, t) == 2);
    REQUIRE(mkdir((dir / "closed").c_str(), 0555) == 0);
    CHECK(save(dir / "closed/file", 1000, 3, t) == TE_ERROR_IO);
    CHECK(std::string(te_last_error(t)).find("cannot create it") != std::string::npos);
}

TEST_CASE("a write to a full disk leaves the old file, and no other file") {
    target t;
    folder dir;
    const std::string path = dir / "file";
    REQUIRE(save(path, 1000, 1, t) == TE_OK);
    rlimit was, is;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &was) == 0);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    is = was, is.rlim_cur = 50000; // write fails with EFBIG, as on a full disk with ENOSPC
    REQUIRE(setrlimit(RLIMIT_FSIZE, &is) == 0);
    const te_status status = save(path, 100000, 2, t);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &was) == 0);
    std::signal(SIGXFSZ, handler);
    CHECK(status == TE_ERROR_IO);
    CHECK(std::string(te_last_error(t)).find("cannot write: File too large") != std::string::npos);
    CHECK(value_of(path, t) == 1);
    CHECK(entries(dir.path).size() == 1);
}

TEST_CASE("two writers of one path, and a reader that always finds a complete file") {
    target t;
    folder dir;
    const std::string path = dir / "file";
    REQUIRE(save(path, 300000, 1, t) == TE_OK);
    std::vector<pid_t> children;
    for (int who = 1; who <= 3; who++) {
        const pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            te_context ctx; // of the host, because CUDA does not survive a fork
            std::memset(&ctx, 0, sizeof ctx);
            int bad = 0;
            std::vector<uint8_t> data(300000 + (size_t)who * 100000, (uint8_t)who);
            for (int i = 0; i < 40; i++) {
                te__new_file f;
                te_status s = te__new_file_open(&f, path.c_str(), &ctx);
                if (s == TE_OK) {
                    const int64_t n = (int64_t)data.size();
                    const te_safetensor e = te_safetensor_of("x", TE_SAFETENSORS_U8, 1, &n, data.data());
                    te__text text = {nullptr, 0};
                    te__safetensors_header(&text, &e, 1, nullptr, 0, 1);
                    std::vector<char> header(text.n);
                    text.p = header.data(), text.n = 0;
                    te__safetensors_header(&text, &e, 1, nullptr, 0, 1);
                    te__safetensors_writer w;
                    w.file = f, w.sum = te_checksum_begin(), w.extra.sealed = 1, w.extra.finite = 0;
                    unsigned char length[8];
                    for (int b = 0; b < 8; b++) length[b] = (unsigned char)((uint64_t)text.n >> (8 * b));
                    s = te__safetensors_put(&w, length, 8, &ctx);
                    if (s == TE_OK) s = te__safetensors_put(&w, text.p, text.n, &ctx);
                    for (size_t at = 0; at < data.size() && s == TE_OK; at += 100000)
                        s = te__safetensors_put(&w, data.data() + at, 100000, &ctx);
                    char digits[17];
                    std::snprintf(digits, sizeof digits, "%016llx", (unsigned long long)te_checksum_end(&w.sum));
                    if (s == TE_OK) s = te__new_file_overwrite(&w.file, digits, 16, 8 + strlen(TE__SAFETENSORS_SEAL), &ctx);
                    s = te__new_file_close(&w.file, s, &ctx);
                }
                bad += s != TE_OK;
            }
            _exit(bad ? 1 : 0);
        }
        children.push_back(child);
    }
    int bad = 0;
    for (size_t left = children.size(); left;) {
        const int value = value_of(path, t);
        bad += value < 1 || value > 3;
        int status = 0;
        const pid_t done = waitpid(-1, &status, WNOHANG);
        REQUIRE(done >= 0);
        if (done) left--, bad += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    CHECK(bad == 0);
    CHECK(entries(dir.path).size() == 1);
}

TEST_CASE("the maximum size of a header is a hundred million bytes, as in the reference implementation") {
    target t;
    folder dir;
    const std::string path = dir / "long";
    for (uint64_t n : {100000000, 100000001}) {
        std::string length(8, '\0');
        for (int i = 0; i < 8; i++) length[(size_t)i] = (char)(unsigned char)(n >> (8 * i));
        put(path, length);
        REQUIRE(truncate(path.c_str(), (off_t)n + 8) == 0); // a sparse file, which needs no disk space
        te_safetensors f;
        CHECK(te_safetensors_open(&f, path.c_str(), t) == TE_ERROR_FORMAT);
        const std::string says = n == 100000000 ? "a header begins with '{'" : "at most 100000000 are allowed";
        INFO(te_last_error(t));
        CHECK(std::string(te_last_error(t)).find(says) != std::string::npos);
    }
}

TEST_CASE("a changed bit in a file with a checksum is found") {
    target t;
    folder dir;
    const std::string path = dir / "sealed";
    const float a[6] = {1, 2, 3, 4, 5, 6};
    const uint16_t b[3] = {7, 8, 9};
    const int64_t six[] = {2, 3}, three = 3;
    const te_safetensor list[] = {te_safetensor_of("a.weight", TE_SAFETENSORS_F32, 2, six, (void *)a),
                                  te_safetensor_of("b", TE_SAFETENSORS_BF16, 1, &three, (void *)b)};
    const te_safetensors_pair metadata[] = {{"lr", "0.002"}, {"text", "a \"b\"\n"}};
    REQUIRE(te_safetensors_write_sealed(path.c_str(), list, 2, metadata, 2, t) == TE_OK);
    const std::string whole = content(path);
    const auto verify = [&](const std::string &bytes, int *verified = nullptr) {
        te_safetensors f;
        te_status s = te_safetensors_open_memory(&f, bytes.data(), bytes.size(), t);
        if (s != TE_OK) return s;
        s = te_safetensors_verify(&f, t);
        if (verified) *verified = f.verified;
        te_safetensors_close(&f);
        return s;
    };
    int verified = 0;
    REQUIRE(verify(whole, &verified) == TE_OK);
    CHECK(verified == 1);
    for (size_t bit = 0; bit < whole.size() * 8; bit++) {
        std::string s = whole;
        s[bit / 8] = (char)(s[bit / 8] ^ (1 << bit % 8));
        if (verify(s) != TE_ERROR_FORMAT) FAIL("bit " << bit % 8 << " of byte " << bit / 8 << " passes");
    }
    for (size_t n = 0; n < whole.size(); n++) REQUIRE(verify(whole.substr(0, n)) == TE_ERROR_FORMAT);
    // two exchanged words, and an edited text
    std::string swapped = whole;
    std::swap(swapped[whole.size() - 28], swapped[whole.size() - 24]);
    CHECK(verify(swapped) == TE_ERROR_FORMAT);
    std::string edited = whole;
    edited.replace(edited.find("0.002"), 5, "0.004");
    CHECK(verify(edited) == TE_ERROR_FORMAT);
    CHECK(std::string(te_last_error(t)).find("it was changed after it was saved") != std::string::npos);
    // files without a checksum pass; a caller may not use its metadata key
    REQUIRE(te_safetensors_write(path.c_str(), list, 2, metadata, 2, t) == TE_OK);
    CHECK(verify(content(path), &verified) == TE_OK);
    CHECK(verified == 0);
    const te_safetensors_pair ours[] = {{"te.checksum", "0000000000000000"}};
    CHECK(te_safetensors_write(path.c_str(), list, 2, ours, 1, t) == TE_ERROR_VALUE);
    CHECK(te_safetensors_write_sealed(path.c_str(), list, 2, ours, 1, t) == TE_ERROR_VALUE);
    CHECK(te_safetensors_verify(nullptr, t) == TE_ERROR_NULL);
}

TEST_CASE("a checksum does not depend on how its input is split") {
    std::vector<uint8_t> text(1000);
    for (size_t i = 0; i < text.size(); i++) text[i] = (uint8_t)(i * i + i / 7);
    te_checksum whole = te_checksum_begin();
    te_checksum_add(&whole, text.data(), text.size());
    for (size_t part : {1, 3, 7, 8, 31, 32, 33, 64, 999}) {
        te_checksum s = te_checksum_begin();
        for (size_t at = 0; at < text.size(); at += part)
            te_checksum_add(&s, &text[at], std::min(part, text.size() - at));
        CHECK(te_checksum_end(&s) == te_checksum_end(&whole));
    }
    for (size_t n : {0, 1, 31, 32, 33}) { // zeros of different lengths have different checksums
        te_checksum a = te_checksum_begin(), b = te_checksum_begin();
        const std::vector<uint8_t> zeros(n + 1, 0);
        te_checksum_add(&a, zeros.data(), n), te_checksum_add(&b, zeros.data(), n + 1);
        CHECK(te_checksum_end(&a) != te_checksum_end(&b));
    }
}
