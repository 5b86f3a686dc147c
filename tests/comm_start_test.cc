// comm_start_test.cc -- the file by which ranks meet (te/comm/impl/comm_start.h): made for its owner alone, never over something that exists, and read only if it is
// this user's, complete, of this run and not older than the timeout. And what ranks have said about their configs.
#include "folder.h"
#include "te/comm/impl/comm_start.h"

#include <chrono>
#include <fcntl.h>
#include <set>
#include <sys/stat.h>
#include <thread>
#include <vector>
#include <unistd.h>
#include <utime.h>

namespace {
const double timeout = 0.3;
const char *const run_variables[] = {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID",
                                     "SLURM_RESTART_COUNT"};

struct scene {
    target t;
    folder f;
    std::string path = f / "id";
    unsigned char id[128], got[128];
    scene() {
        for (const char *name : run_variables) unsetenv(name);
        for (int i = 0; i < 128; i++) id[i] = (unsigned char)(3 * i + 1), got[i] = 0;
    }
    ~scene() {
        for (const char *name : run_variables) unsetenv(name);
    }
    te_status write() { return te__id_file_write(id, sizeof id, path.c_str(), timeout, t); }
    te_status read(double seconds = timeout) { return te__id_file_read(got, sizeof got, path.c_str(), seconds, t); }
    void age(int seconds) {
        const time_t then = time(nullptr) - seconds;
        const struct utimbuf times = {then, then};
        REQUIRE(utime(path.c_str(), &times) == 0);
    }
    std::string content(const std::string &name) {
        char text[4096];
        FILE *file = fopen(name.c_str(), "rb");
        if (!file) return "none";
        const size_t n = fread(text, 1, sizeof text, file);
        fclose(file);
        return std::string(text, n);
    }
    void put(const std::string &name, const std::string &text) {
        FILE *file = fopen(name.c_str(), "wb");
        REQUIRE(file);
        REQUIRE(fwrite(text.data(), 1, text.size(), file) == text.size());
        REQUIRE(fclose(file) == 0);
    }
    // Makes the file another user's, which only the superuser can; others take a file of the superuser. Returns the user's number, or
    // "" if there is no other user, as in a sandbox with a user namespace of its own.
    std::string give_away() {
        if (geteuid()) return path = "/etc/passwd", "0";
        if (chown(path.c_str(), 12345, (gid_t)-1) == 0) return "12345";
        REQUIRE((errno == EINVAL || errno == EPERM));
        WARN("files of another user are not tested: there is none here");
        return "";
    }
    void says(te_status got_status, te_status status, const char *words) {
        INFO(te_last_error(t));
        CHECK(got_status == status);
        CHECK(std::string(te_last_error(t)).find(words) != std::string::npos);
    }
};
} // namespace

TEST_CASE("the file of a run passes the id, is for its owner alone, and goes") {
    for (mode_t mask : {0, 022, 0777}) {
        scene s;
        const mode_t before = umask(mask);
        const te_status status = s.write();
        umask(before);
        REQUIRE(status == TE_OK);
        struct stat info;
        REQUIRE(stat(s.path.c_str(), &info) == 0);
        CHECK((info.st_mode & 07777 & ~0600u) == 0);
        if (mask == 0777) continue; // not even its owner may read it
        CHECK((info.st_mode & 07777) == 0600);
        REQUIRE(s.read() == TE_OK);
        CHECK(memcmp(s.got, s.id, sizeof s.id) == 0);
        s.id[0]++;
        te__id_file_remove(s.id, sizeof s.id, s.path.c_str()); // another run's id
        CHECK(stat(s.path.c_str(), &info) == 0);
        s.id[0]--;
        te__id_file_remove(s.id, sizeof s.id, s.path.c_str());
        CHECK(stat(s.path.c_str(), &info) != 0);
    }
}

TEST_CASE("rank 0 writes over nothing, and through no link") {
    scene s;
    const std::string other = s.f / "other";
    SECTION("a file") {
        s.put(s.path, "mine");
        s.says(s.write(), TE_ERROR_STATE, "exists: another run uses it, or one that has failed left it");
        CHECK(s.content(s.path) == "mine");
    }
    SECTION("a large file, however old") {
        s.put(s.path, std::string(3000, 'x')), s.age(1000);
        s.says(s.write(), TE_ERROR_STATE, "exists");
        CHECK(s.content(s.path).size() == 3000);
    }
    SECTION("a link to a file") {
        s.put(other, "theirs");
        REQUIRE(symlink(other.c_str(), s.path.c_str()) == 0);
        s.says(s.write(), TE_ERROR_IO, "no regular file");
        CHECK(s.content(other) == "theirs");
    }
    SECTION("a link that leads nowhere") {
        REQUIRE(symlink(other.c_str(), s.path.c_str()) == 0);
        s.says(s.write(), TE_ERROR_IO, "no regular file");
        CHECK(s.content(other) == "none");
    }
    SECTION("a folder, a FIFO") {
        REQUIRE(mkdir(s.path.c_str(), 0700) == 0);
        s.says(s.write(), TE_ERROR_IO, "no regular file");
        REQUIRE(rmdir(s.path.c_str()) == 0);
        REQUIRE(mkfifo(s.path.c_str(), 0600) == 0);
        s.says(s.write(), TE_ERROR_IO, "no regular file");
    }
    SECTION("a folder that is not there") {
        s.path = s.f / "no/id";
        s.says(s.write(), TE_ERROR_IO, "cannot make config.file");
    }
    SECTION("another user's file, however old") {
        REQUIRE(s.write() == TE_OK);
        s.age(1000);
        const std::string owner = s.give_away();
        if (!owner.empty()) s.says(s.write(), TE_ERROR_IO, ("belongs to user " + owner).c_str());
    }
}

TEST_CASE("the file of an earlier run is recognised by its age") {
    scene s;
    REQUIRE(s.write() == TE_OK);
    s.says(s.write(), TE_ERROR_STATE, "exists"); // two runs at once
    s.age(100);
    s.says(s.read(), TE_ERROR_COMM, "left by an earlier run");
    CHECK(s.got[1] == 0);
    s.id[0] = 77;
    REQUIRE(s.write() == TE_OK); // in its place
    REQUIRE(s.read() == TE_OK);
    CHECK(s.got[0] == 77);
}

TEST_CASE("a rank waits for the file of this run while that of an earlier one is there") {
    scene s;
    REQUIRE(s.write() == TE_OK);
    s.age(100), s.id[0] = 78;
    te_status later = TE_ERROR_STATE;
    target other;
    std::thread rank0([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        later = te__id_file_write(s.id, sizeof s.id, s.path.c_str(), timeout, other);
    });
    const te_status status = s.read(20);
    rank0.join();
    REQUIRE(later == TE_OK);
    REQUIRE(status == TE_OK);
    CHECK(s.got[0] == 78);
}

TEST_CASE("the file of another run is recognised by the launcher's name of the run") {
    const struct { const char *name, *one, *two; } cases[] = {{"PMIX_NAMESPACE", "prterun-7@1", "prterun-8@1"}, {"TORCHELASTIC_RUN_ID", "a", "b"}, {"SLURM_JOB_ID", "17", "18"}, {"PMI_JOBID", "x", "y"}};
    for (const auto &c : cases) {
        scene s;
        INFO(c.name);
        setenv(c.name, c.one, 1);
        REQUIRE(s.write() == TE_OK);
        REQUIRE(s.read() == TE_OK);
        setenv(c.name, c.two, 1);
        s.says(s.read(), TE_ERROR_COMM, "of another run");
        unsetenv(c.name); // a rank that a launcher has not named takes it
        REQUIRE(s.read() == TE_OK);
    }
    scene s; // a second start of the same job
    setenv("TORCHELASTIC_RUN_ID", "a", 1), setenv("TORCHELASTIC_RESTART_COUNT", "0", 1);
    REQUIRE(s.write() == TE_OK);
    setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
    s.says(s.read(), TE_ERROR_COMM, "of another run");
    setenv("TORCHELASTIC_RUN_ID", std::string(500, 'n').c_str(), 1);
    char name[TE_COMM_RUN_NAME];
    te_comm_run_name(name);
    CHECK(strlen(name) < TE_COMM_RUN_NAME);
}

TEST_CASE("a rank takes no file that others could have written, and none that is not whole") {
    scene s;
    const std::string other = s.f / "other";
    REQUIRE(s.write() == TE_OK);
    SECTION("others may write to it") {
        for (mode_t mode : {0620, 0602, 0666}) {
            REQUIRE(chmod(s.path.c_str(), mode) == 0);
            s.says(s.read(), TE_ERROR_IO, "others may write to config.file");
        }
    }
    SECTION("another user's") {
        const std::string owner = s.give_away();
        if (!owner.empty()) s.says(s.read(), TE_ERROR_IO, ("belongs to user " + owner + ", who is not this one").c_str());
    }
    SECTION("a link to a good one") {
        REQUIRE(rename(s.path.c_str(), other.c_str()) == 0);
        REQUIRE(symlink(other.c_str(), s.path.c_str()) == 0);
        s.says(s.read(), TE_ERROR_IO, "links are not followed");
    }
    SECTION("a FIFO, without waiting for its writer") {
        REQUIRE(unlink(s.path.c_str()) == 0);
        REQUIRE(mkfifo(s.path.c_str(), 0600) == 0);
        s.says(s.read(), TE_ERROR_IO, "no regular file");
    }
    SECTION("each part of it alone: a rank waits for the rest") {
        const std::string all = s.content(s.path);
        for (size_t n = 0; n < all.size(); n += 97) {
            const char *waits = nullptr;
            te__id_file f;
            s.put(s.path, all.substr(0, n));
            REQUIRE(te__id_file_try(&f, &waits, s.path.c_str(), timeout, s.t) == TE_OK);
            REQUIRE(waits);
            CHECK(std::string(waits) == "it is not complete");
        }
        s.says(s.read(), TE_ERROR_COMM, "not complete");
    }
    SECTION("something else of the same length") {
        s.put(s.path, std::string(sizeof(te__id_file), 'x'));
        s.says(s.read(), TE_ERROR_FORMAT, "holds no unique id");
    }
    SECTION("an id of another length") {
        unsigned char shorter[64];
        s.says(te__id_file_read(shorter, sizeof shorter, s.path.c_str(), timeout, s.t), TE_ERROR_FORMAT, "128 bytes, this library's has 64");
    }
    SECTION("none") {
        REQUIRE(unlink(s.path.c_str()) == 0);
        const auto start = std::chrono::steady_clock::now();
        s.says(s.read(), TE_ERROR_COMM, "rank 0 has not made it");
        const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        CHECK(took >= timeout * 0.9);
        CHECK(took < 10);
    }
}

TEST_CASE("what ranks say about their configs") {
    scene s;
    te__comm_says all[3] = {{1, {2, 1, 1, 1, 0, 0}, 0, ""}, {1, {2, 1, 1, 1, 0, 0}, 0, ""}, {1, {2, 1, 1, 1, 0, 0}, 0, ""}};
    CHECK(te__comm_compare(all, 3, TE_OK, s.t) == TE_OK);
    all[2].numbers[0] = 3;
    s.says(te__comm_compare(all, 3, TE_OK, s.t), TE_ERROR_VALUE, "config.tensor is 2 on rank 0, and 3 on rank 2");
    all[2].numbers[0] = 2, all[1].numbers[2] = 2;
    s.says(te__comm_compare(all, 3, TE_OK, s.t), TE_ERROR_VALUE, "config.context is 1 on rank 0, and 2 on rank 1");
    all[1].numbers[2] = 1, all[2].numbers[3] = 4;
    s.says(te__comm_compare(all, 3, TE_OK, s.t), TE_ERROR_VALUE, "config.pipeline is 1 on rank 0, and 4 on rank 2");
    all[2].numbers[3] = 1, all[2].numbers[4] = 1;
    s.says(te__comm_compare(all, 3, TE_OK, s.t), TE_ERROR_VALUE, "config.tensor_across_hosts is 0 on rank 0, and 1 on rank 2");
    all[2].numbers[4] = 0, all[1].numbers[5] = 1;
    s.says(te__comm_compare(all, 3, TE_OK, s.t), TE_ERROR_VALUE, "config.hierarchical is 0 on rank 0, and 1 on rank 1");
    all[1].numbers[5] = 0;
    all[1].accepts = 0;
    s.says(te__comm_compare(all, 3, TE_OK, s.t), TE_ERROR_VALUE, "rank 1 of 3 refuses its config");
    te_fail(s.t, TE_ERROR_SHAPE, "its own error");
    s.says(te__comm_compare(all, 3, TE_ERROR_SHAPE, s.t), TE_ERROR_SHAPE, "its own error");
}

TEST_CASE("the name of a run can be part of a file's name") {
    scene s;
    char run[TE_COMM_RUN_NAME];
    te_comm_run_name(run);
    CHECK(std::string(run).empty());
    setenv("TORCHELASTIC_RUN_ID", "../jobs/17", 1), setenv("MASTER_PORT", "29500", 1);
    te_comm_run_name(run);
    CHECK(std::string(run) == ".._jobs_17..29500");
}

TEST_CASE("the hosts of the ranks") {
    te__comm_says a, b, c;
    memset(&a, 0, sizeof a), memset(&b, 0, sizeof b), memset(&c, 0, sizeof c);
    te__says_host(&a, nullptr), te__says_host(&b, nullptr), te__says_host(&c, "another name that is longer than 31 bytes");
    CHECK(a.host == b.host);
    CHECK(a.host != c.host);
    CHECK(std::string(c.name) == "another name that is longer tha");
    te__comm_says says[6];
    memset(says, 0, sizeof says);
    const uint64_t hosts[6] = {7, 3, 7, 9, 3, 7};
    int host_of[6];
    for (int r = 0; r < 6; r++) says[r].host = hosts[r];
    CHECK(te__hosts_number(host_of, says, 6) == 3);
    const int expected[6] = {0, 1, 0, 2, 1, 0};
    for (int r = 0; r < 6; r++) CHECK(host_of[r] == expected[r]);
}

// Every group of every grid, by its definition: which ranks have the same stage, tensor rank and so on.
TEST_CASE("the groups of all grids have the ranks that they should") {
    for (int tensor : {1, 2, 3})
        for (int context : {1, 2})
            for (int replicas : {1, 2, 3})
                for (int stages : {1, 2, 3}) {
                    const int size = tensor * context * replicas * stages, ranks = size / stages;
                    std::vector<int> host_of((size_t)size), seen((size_t)size);
                    for (int r = 0; r < size; r++) host_of[(size_t)r] = r * 3 / size;
                    const te__grid grid = {tensor, 1, context, stages, size, host_of.data(), seen.data()};
                    const auto same = [&](int kind, int a, int b) {
                        const bool stage = a / ranks == b / ranks, rank = a % ranks == b % ranks, t = a % tensor == b % tensor;
                        const bool host = host_of[(size_t)a] == host_of[(size_t)b];
                        if (kind == 0) return stage && a / tensor == b / tensor;
                        if (kind == 1) return stage && t;
                        if (kind == 2) return stage && t && a % ranks / tensor / context == b % ranks / tensor / context;
                        if (kind == 3) return rank;
                        if (kind == 5) return stage && t && host;
                        const bool ends = (a / ranks == 0 || a / ranks == stages - 1) && (b / ranks == 0 || b / ranks == stages - 1);
                        return a == b || (stages > 1 && rank && ends);
                    };
                    const te__group_of_fn of[6] = {te__tensor_group_of, te__data_group_of, te__context_group_of, te__pipeline_group_of, te__embedding_group_of, te__in_host_group_of};
                    for (int kind = 0; kind < 6; kind++)
                        for (int r = 0; r < size; r++) {
                            int count = 0, before = 0, got_size = 0, got_hosts = 0;
                            std::set<int> on;
                            for (int i = 0; i < size; i++) {
                                CHECK((of[kind](&grid, i) == of[kind](&grid, r)) == same(kind, i, r));
                                if (same(kind, i, r)) count++, before += i < r, on.insert(host_of[(size_t)i]);
                            }
                            CHECK(te__grid_group(&got_size, &got_hosts, of[kind], &grid, r) == before);
                            CHECK(got_size == count);
                            CHECK(got_hosts == (int)on.size());
                        }
                }
}

TEST_CASE("two levels of the data group") {
    const struct { const char *hosts; int tensor, pipeline, levels; } cases[] = {
        {"aabb", 1, 1, 1}, {"abab", 1, 1, 1}, {"abba", 1, 1, 1}, {"aabb", 2, 1, 0}, {"aaaa", 1, 1, 0}, {"abcd", 1, 1, 0},
        {"aaab", 1, 1, 0}, {"aaaabbbb", 2, 1, 1}, {"aabbccdd", 1, 1, 1}, {"aaabbbcc", 1, 1, 0}, {"aabbccdd", 1, 2, 1}, {"aaaabbbb", 1, 2, 0}};
    for (const auto &c : cases) {
        const int size = (int)strlen(c.hosts);
        std::vector<int> host_of((size_t)size), seen((size_t)size);
        for (int r = 0; r < size; r++) host_of[(size_t)r] = c.hosts[r] - 'a';
        const te__grid grid = {c.tensor, 1, 1, c.pipeline, size, host_of.data(), seen.data()};
        INFO(c.hosts << ", tensor " << c.tensor);
        CHECK(te__grid_has_levels(&grid) == c.levels);
        for (int r = 0; r < size && c.levels; r++) // a rank's group across hosts has one rank of each host
            for (int i = 0; i < size; i++) {
                if (i == r || te__across_hosts_group_of(&grid, i) != te__across_hosts_group_of(&grid, r)) continue;
                CHECK(host_of[(size_t)i] != host_of[(size_t)r]);
                CHECK(te__data_group_of(&grid, i) == te__data_group_of(&grid, r));
            }
    }
}
