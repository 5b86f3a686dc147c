// comm_address_test.cc -- the start of ranks by an address (te/comm/impl/comm_address.h): HMAC-SHA-256 against published values, ranks as
// threads that get the id, and peers that rank 0 refuses.
#include "folder.h"
#include "te/comm/impl/comm_address.h"

#include <arpa/inet.h>
#include <thread>
#include <vector>

namespace {
const char *const secret = "0123456789abcdef";
typedef std::vector<unsigned char> bytes;

std::string hex(const unsigned char *digest) {
    char text[2 * TE__SHA256_BYTES + 1];
    for (int i = 0; i < TE__SHA256_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", digest[i]);
    return text;
}
std::string sha256(const std::string &text) {
    unsigned char digest[TE__SHA256_BYTES];
    te__sha256 h;
    te__sha256_begin(&h);
    te__sha256_add(&h, text.data(), text.size() / 3), te__sha256_add(&h, text.data() + text.size() / 3, text.size() - text.size() / 3);
    te__sha256_end(&h, digest);
    return hex(digest);
}
std::string hmac(const std::string &key, const std::string &text) {
    unsigned char digest[TE__SHA256_BYTES];
    const te__bytes piece[2] = {te__bytes_of(text.data(), text.size() / 2), te__bytes_of(text.data() + text.size() / 2, text.size() - text.size() / 2)};
    te__hmac(digest, te__bytes_of(key.data(), key.size()), piece, 2);
    return hex(digest);
}
// An address of this machine with a port that is free now.
std::string free_address() {
    struct sockaddr_in at;
    socklen_t length = sizeof at;
    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET, at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
    REQUIRE(getsockname(fd, (struct sockaddr *)&at, &length) == 0);
    close(fd);
    return "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
}
// A rank in a thread of its own.
struct rank_thread {
    te__comm_start start;
    std::string text;
    te_status status = TE_OK;
    bytes id;
    double took = 0;
    std::thread thread;
    rank_thread(const std::string &address, int rank, int size, double timeout = 20, const char *key = secret, size_t count = 128)
        : start{nullptr, address.c_str(), key, timeout, rank, size}, id(count, (unsigned char)rank) {
        for (size_t i = 0; !rank && i < count; i++) id[i] = (unsigned char)(7 * i + 3);
        thread = std::thread([this] {
            static thread_local te_context ctx; // only its error text is used
            const double since = te__seconds();
            memset(&ctx, 0, sizeof ctx);
            status = te__address_pass(id.data(), id.size(), &start, &ctx);
            text = ctx.error, took = te__seconds() - since;
        });
    }
    void join() {
        if (thread.joinable()) thread.join();
    }
    void is(te_status expected, const std::string &words) {
        join();
        INFO("rank " << start.rank << ": " << te_status_string(status) << ": " << text);
        CHECK(status == expected);
        if (expected != TE_OK) CHECK(text.find(words) != std::string::npos);
    }
    ~rank_thread() { join(); }
};
typedef std::vector<std::unique_ptr<rank_thread>> rank_threads;

int connect_to(const std::string &address, int tries = 500) {
    struct sockaddr_in at;
    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET, at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons((uint16_t)std::stoi(address.substr(address.find(':') + 1)));
    for (int i = 0; i < tries; i++, te__sleep_1ms()) {
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0) return fd;
        close(fd);
    }
    return -1;
}
// Connects as a rank and makes its hello; returns the connection.
int make_hello(te__address_hello *hello, const std::string &address, int rank, int size) {
    const te__comm_start start = {nullptr, address.c_str(), secret, 5, rank, size};
    te__address_greeting greeting;
    const int fd = connect_to(address);
    REQUIRE(fd >= 0);
    REQUIRE(te__socket_receive(fd, &greeting, sizeof greeting, te__seconds() + 5) == 1);
    memset(hello, 0, sizeof *hello);
    hello->rank = (uint32_t)rank, hello->size = (uint32_t)size, hello->bytes = 128;
    te__address_magic(hello->magic);
    te__address_hello_proof(hello->proof, &start, greeting.nonce, hello);
    return fd;
}
} // namespace

TEST_CASE("SHA-256 and HMAC have the published values") {
    CHECK(sha256("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") == "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(sha256(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    CHECK(hmac(std::string(20, '\x0b'), "Hi There") == "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    CHECK(hmac("Jefe", "what do ya want for nothing?") == "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    CHECK(hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
          "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("all ranks get the id of rank 0, whoever comes first") {
    for (int size : {2, 5})
        for (int first : {0, 1}) {
            const std::string address = free_address();
            rank_threads ranks;
            for (int i = 0; i < size; i++) {
                const int rank = first ? size - 1 - i : i;
                ranks.emplace_back(new rank_thread(address, rank, size));
                if (!i) te__sleep_1ms();
            }
            for (auto &r : ranks) r->is(TE_OK, "");
            for (auto &r : ranks) CHECK(r->id == ranks[first ? (size_t)size - 1 : 0]->id);
            CHECK(connect_to(address, 1) == -1); // nobody listens any more
        }
}
TEST_CASE("one rank alone does not listen") {
    rank_thread alone("127.0.0.1:1", 0, 1); // only the superuser may listen at port 1
    alone.is(TE_OK, "");
}
TEST_CASE("a rank that does not come is named on all others, within the timeout") {
    const std::string address = free_address();
    rank_thread first(address, 0, 4, 2), other(address, 1, 4), third(address, 3, 4);
    first.is(TE_ERROR_COMM, "rank 2 has not come to rank 0 within 2 seconds (1 of 4 ranks are missing)");
    other.is(TE_ERROR_COMM, "rank 0 refuses: rank 2 has not come");
    third.is(TE_ERROR_COMM, "rank 0 refuses: rank 2 has not come");
    CHECK(first.took < 10);
    CHECK(other.took < 10);
}
TEST_CASE("without rank 0 the others end by the timeout") {
    const std::string address = free_address();
    rank_thread other(address, 1, 2, 0.3);
    other.is(TE_ERROR_COMM, "rank 0 has not listened at config.address");
    CHECK(other.took < 5);
}
TEST_CASE("a peer without the secret gets no reply, and the run goes on") {
    const std::string address = free_address();
    rank_thread first(address, 0, 2), stranger(address, 1, 2, 20, "0123456789abcdeF");
    stranger.is(TE_ERROR_COMM, "has closed the connection: it has ended, or has another secret");
    rank_thread other(address, 1, 2);
    other.is(TE_OK, "");
    first.is(TE_OK, "");
}
TEST_CASE("rank 0's error names the peer that it has refused") {
    const std::string address = free_address();
    rank_thread first(address, 0, 2, 2), stranger(address, 1, 2, 20, "another secret of 24 chars");
    stranger.is(TE_ERROR_COMM, "another secret");
    first.is(TE_ERROR_COMM, "refused: a process at 127.0.0.1 has not proved that it knows the secret");
}
TEST_CASE("a second process with the number of a rank is refused, by name") {
    const std::string address = free_address();
    rank_thread first(address, 0, 3);
    te__address_hello hello;
    te__address_reply reply;
    const int fd = make_hello(&hello, address, 1, 3);
    REQUIRE(te__socket_send(fd, &hello, sizeof hello)); // before the other one connects
    rank_thread again(address, 1, 3);
    again.is(TE_ERROR_COMM, "rank 0 refuses: two processes say that they are rank 1 of 3");
    rank_thread third(address, 2, 3);
    for (rank_thread *r : {&first, &third}) r->is(TE_OK, "");
    REQUIRE(te__socket_receive(fd, &reply, sizeof reply, te__seconds() + 5) == 1);
    CHECK(!reply.is_refused);
    CHECK(bytes(reply.id, reply.id + 128) == first.id);
    close(fd);
}
TEST_CASE("a process that replaces one that has ended is accepted") {
    const std::string address = free_address();
    rank_thread first(address, 0, 3);
    rank_thread(address, 1, 3, 2).is(TE_ERROR_COMM, "it waits for other ranks");
    rank_thread again(address, 1, 3), third(address, 2, 3);
    for (rank_thread *r : {&first, &again, &third}) r->is(TE_OK, "");
}
TEST_CASE("other numbers of ranks, ranks and ids are refused, by name") {
    const std::string address = free_address();
    rank_thread first(address, 0, 2);
    rank_thread(address, 1, 4).is(TE_ERROR_COMM, "rank 1 is one of 4 ranks by its config, and one of 2 by rank 0's");
    rank_thread(address, 2, 2).is(TE_ERROR_COMM, "a process says that it is rank 2 of 2");
    rank_thread(address, 1, 2, 20, secret, 64).is(TE_ERROR_COMM, "rank 1 expects an id of 64 bytes, rank 0's has 128");
    rank_thread other(address, 1, 2);
    other.is(TE_OK, "");
    first.is(TE_OK, "");
}
TEST_CASE("connections that say nothing, or nonsense, do not hold up the ranks") {
    const std::string address = free_address();
    rank_thread first(address, 0, 2);
    std::vector<int> silent;
    for (int i = 0; i < TE__ADDRESS_PENDING + 8; i++) silent.push_back(connect_to(address));
    const std::string nonsense(4096, 'x');
    CHECK(send(silent[0], nonsense.data(), nonsense.size(), MSG_NOSIGNAL) > 0);
    rank_thread other(address, 1, 2);
    other.is(TE_OK, "");
    first.is(TE_OK, "");
    CHECK(other.took < 10);
    for (int fd : silent) close(fd);
}
TEST_CASE("a process that listens but is not rank 0 is found out") {
    struct sockaddr_in at;
    socklen_t length = sizeof at;
    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET, at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&at, sizeof at) == 0);
    REQUIRE(listen(listener, 4) == 0);
    REQUIRE(getsockname(listener, (struct sockaddr *)&at, &length) == 0);
    const std::string address = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
    SECTION("another program") {
        rank_thread other(address, 1, 2);
        const int fd = accept(listener, nullptr, nullptr);
        CHECK(send(fd, "HTTP/1.1 400 Bad Request, as a web server says\r\n\r\n", 50, MSG_NOSIGNAL) == 50);
        other.is(TE_ERROR_FORMAT, "another program than rank 0 of this library listens");
        close(fd);
    }
    SECTION("one that does not know the secret, and sends an id of its own") {
        rank_thread other(address, 1, 2);
        const int fd = accept(listener, nullptr, nullptr);
        te__address_greeting greeting;
        te__address_hello hello;
        te__address_reply reply;
        memset(&greeting, 0, sizeof greeting), memset(&reply, 0, sizeof reply);
        te__address_magic(greeting.magic), te__address_magic(reply.magic);
        CHECK(te__socket_send(fd, &greeting, sizeof greeting));
        CHECK(te__socket_receive(fd, &hello, sizeof hello, te__seconds() + 5) == 1);
        CHECK(te__socket_send(fd, &reply, sizeof reply));
        other.is(TE_ERROR_COMM, "has not proved that it knows the secret");
        CHECK(other.id == bytes(128, 1));
        close(fd);
    }
    SECTION("one that replays a reply of rank 0") {
        te__comm_start start = {nullptr, address.c_str(), secret, 5, 0, 2};
        te__address_hello old;
        te__address_greeting greeting;
        te__address_hello hello;
        te__address_reply reply;
        memset(&old, 0, sizeof old), memset(&greeting, 0, sizeof greeting), memset(&reply, 0, sizeof reply);
        te__address_magic(greeting.magic), te__address_magic(reply.magic);
        te__address_reply_proof(reply.proof, &start, greeting.nonce, &old, &reply);
        rank_thread other(address, 1, 2);
        const int fd = accept(listener, nullptr, nullptr);
        CHECK(te__socket_send(fd, &greeting, sizeof greeting));
        CHECK(te__socket_receive(fd, &hello, sizeof hello, te__seconds() + 5) == 1);
        CHECK(te__socket_send(fd, &reply, sizeof reply));
        other.is(TE_ERROR_COMM, "has not proved that it knows the secret");
        close(fd);
    }
    close(listener);
}
TEST_CASE("a recorded hello is refused") {
    const std::string address = free_address();
    rank_thread first(address, 0, 2);
    te__address_greeting greeting;
    te__address_hello hello;
    char byte;
    close(make_hello(&hello, address, 1, 2)); // recorded
    const int fd = connect_to(address);
    REQUIRE(te__socket_receive(fd, &greeting, sizeof greeting, te__seconds() + 5) == 1);
    CHECK(te__socket_send(fd, &hello, sizeof hello));
    CHECK(te__socket_receive(fd, &byte, 1, te__seconds() + 5) == -1);
    close(fd);
    rank_thread other(address, 1, 2);
    other.is(TE_OK, "");
    first.is(TE_OK, "");
}
TEST_CASE("addresses and secrets that cannot be") {
    for (const char *address : {"", "host", ":29510", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:29x"})
        for (int rank : {0, 1}) rank_thread(address, rank, 2, 0.2).is(TE_ERROR_VALUE, "it is \"host:port\"");
    rank_thread("no-such-host.invalid:29510", 1, 2, 0.2).is(TE_ERROR_IO, "no-such-host.invalid");
    rank_thread("192.0.2.1:29510", 0, 2, 0.2).is(TE_ERROR_IO, "rank 0 cannot listen"); // an address that no machine has
    for (const char *key : {(const char *)nullptr, "", "15 characters.."}) rank_thread(free_address(), 0, 2, 0.2, key).is(TE_ERROR_VALUE, "at least 16 characters");
    const std::string address = free_address();
    const int taken = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at;
    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET, at.sin_addr.s_addr = htonl(INADDR_LOOPBACK), at.sin_port = htons((uint16_t)std::stoi(address.substr(10)));
    REQUIRE(bind(taken, (struct sockaddr *)&at, sizeof at) == 0);
    REQUIRE(listen(taken, 1) == 0);
    rank_thread(address, 0, 2, 0.2).is(TE_ERROR_IO, "an address of its host with a free port");
    close(taken);
}
