/* comm_address.h -- how a communicator starts with config.address: rank 0 passes NCCL's unique id to the other ranks
 * over TCP. Only rank 0 listens, only at the given address, and only until all ranks have connected.
 *
 * Do this on all ranks:
 *     te__comm_start a = {0, "10.0.0.1:29510", secret, timeout, rank, size};
 *     TE_TRY(te__address_pass(&id, sizeof id, &a, ctx));  // rank 0 sends its id, the other ranks receive it
 *
 * A secret K that all ranks know, and that is never sent, keeps other processes out. A connection has three messages:
 *   1. rank 0 sends a greeting with a random nonce;
 *   2. the peer sends a hello: its rank, the number of ranks in its config, the name of its run and a nonce of its own,
 *      with HMAC-SHA-256(K, "peer", rank 0's nonce, hello) as the proof that the peer knows the secret;
 *   3. when all ranks have connected, or a rank is refused, rank 0 sends a reply: the id or the reason of the refusal,
 *      with HMAC-SHA-256(K, "rank 0", both nonces, reply). This proves to the peer that the id comes from rank 0.
 * Nonces are new for each connection, so a recorded message cannot be used again. Rank 0 sends nothing that depends on
 * the secret to a peer that has not proved that it knows the secret. The id itself is not encrypted, because NCCL's
 * traffic is not encrypted either.
 */
/* target: cuda */
#ifndef TE_COMM_ADDRESS_H
#define TE_COMM_ADDRESS_H

#include <netdb.h>      /* getaddrinfo, getnameinfo */
#include <sys/socket.h> /* socket, bind, accept, send, recv */

#include "comm_start.h" /* te__seconds, te_comm_run_name, open, read, poll */

/* ---- HMAC-SHA-256 (FIPS 180-4, RFC 2104) ------------------------------------------------------------------------- */

enum { TE__SHA256_BYTES = 32, TE__SHA256_BLOCK = 64 };
typedef struct te__sha256 {
    uint32_t state[8];
    uint64_t bytes; /* how many bytes have been added */
    unsigned char block[TE__SHA256_BLOCK];
} te__sha256;

TE_API uint32_t te__rotate_right(uint32_t x, int n) { return x >> n | x << (32 - n); }
TE_API void te__sha256_block(uint32_t state[8], const unsigned char block[TE__SHA256_BLOCK]) {
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++) {
        const unsigned char *b = block + 4 * i;
        w[i] = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    }
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (te__rotate_right(a, 7) ^ te__rotate_right(a, 18) ^ a >> 3) +
               (te__rotate_right(b, 17) ^ te__rotate_right(b, 19) ^ b >> 10);
    }
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        const uint32_t e = s[4], a = s[0];
        const uint32_t t1 = s[7] + (te__rotate_right(e, 6) ^ te__rotate_right(e, 11) ^ te__rotate_right(e, 25)) +
                            ((e & s[5]) ^ (~e & s[6])) + k[i] + w[i];
        const uint32_t t2 = (te__rotate_right(a, 2) ^ te__rotate_right(a, 13) ^ te__rotate_right(a, 22)) +
                            ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
        for (int j = 7; j > 0; j--) s[j] = s[j - 1];
        s[4] += t1, s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}
TE_API void te__sha256_begin(te__sha256 *h) {
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memset(h, 0, sizeof *h);
    memcpy(h->state, first, sizeof first);
}
TE_API void te__sha256_add(te__sha256 *h, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        h->block[h->bytes++ % TE__SHA256_BLOCK] = ((const unsigned char *)data)[i];
        if (h->bytes % TE__SHA256_BLOCK == 0) te__sha256_block(h->state, h->block);
    }
}
TE_API void te__sha256_end(te__sha256 *h, unsigned char digest[TE__SHA256_BYTES]) {
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(8 * h->bytes >> (56 - 8 * i));
    te__sha256_add(h, "\x80", 1);
    while (h->bytes % TE__SHA256_BLOCK != TE__SHA256_BLOCK - sizeof length) te__sha256_add(h, "", 1);
    te__sha256_add(h, length, sizeof length);
    for (int i = 0; i < TE__SHA256_BYTES; i++) digest[i] = (unsigned char)(h->state[i / 4] >> (24 - 8 * (i % 4)));
}

/* One piece of a message. */
typedef struct te__bytes { const void *data; size_t count; } te__bytes;

/* Computes the HMAC of the message that consists of piece[count]. */
TE_API void te__hmac(unsigned char mac[TE__SHA256_BYTES], te__bytes key, const te__bytes *piece, int count) {
    unsigned char pad[TE__SHA256_BLOCK] = {0};
    te__sha256 h;
    if (key.count > sizeof pad) te__sha256_begin(&h), te__sha256_add(&h, key.data, key.count), te__sha256_end(&h, pad);
    else memcpy(pad, key.data, key.count);
    for (size_t i = 0; i < sizeof pad; i++) pad[i] ^= 0x36;
    te__sha256_begin(&h), te__sha256_add(&h, pad, sizeof pad);
    for (int i = 0; i < count; i++) te__sha256_add(&h, piece[i].data, piece[i].count);
    te__sha256_end(&h, mac);
    for (size_t i = 0; i < sizeof pad; i++) pad[i] ^= 0x36 ^ 0x5c;
    te__sha256_begin(&h), te__sha256_add(&h, pad, sizeof pad), te__sha256_add(&h, mac, TE__SHA256_BYTES);
    te__sha256_end(&h, mac);
}
/* Compares two proofs. The time of the comparison does not depend on where the proofs differ, so the time reveals
 * nothing to an attacker. */
TE_API int te__proofs_are_equal(const unsigned char a[TE__SHA256_BYTES], const unsigned char b[TE__SHA256_BYTES]) {
    int difference = 0;
    for (int i = 0; i < TE__SHA256_BYTES; i++) difference |= a[i] ^ b[i];
    return !difference;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

enum {
    TE__SECRET_MIN_BYTES = 16,       /* shorter secrets can be guessed from a recorded proof */
    TE__ADDRESS_PENDING = 64,        /* the largest number of open connections of rank 0 on which no proof has arrived
                                      * yet */
    TE__ADDRESS_TEXT = 200           /* the largest size of the text that says why a rank is refused */
};
#define TE__ADDRESS_HELLO_SECONDS 2.0 /* rank 0 closes a connection if no proof has been received within this time */

/* The messages have no padding, and their numbers have the byte order of the processor. A rank on a processor of the
 * other byte order is refused, because `magic` begins with a number. */
typedef struct te__address_greeting {
    uint32_t magic[2];
    unsigned char nonce[TE__SHA256_BYTES];
} te__address_greeting;
typedef struct te__address_hello {
    uint32_t magic[2], rank, size, bytes, unused; /* bytes: the size of the id that the peer expects */
    char run[TE_COMM_RUN_NAME];                    /* te_comm_run_name */
    unsigned char nonce[TE__SHA256_BYTES], proof[TE__SHA256_BYTES];
} te__address_hello;
typedef struct te__address_reply {
    uint32_t magic[2], is_refused, unused;
    char text[TE__ADDRESS_TEXT];          /* why the peer is refused */
    unsigned char id[TE__ID_FILE_BYTES], proof[TE__SHA256_BYTES];
} te__address_reply;

TE_API void te__address_magic(uint32_t magic[2]) { magic[0] = 0x7465636fu, magic[1] = 1; /* "teco", version 1 */ }
TE_API int te__address_has_magic(const uint32_t magic[2]) { return magic[0] == 0x7465636fu && magic[1] == 1; }

TE_API te__bytes te__bytes_of(const void *data, size_t count) {
    te__bytes b;
    b.data = data, b.count = count;
    return b;
}
/* Computes the proof in a hello. nonce: rank 0's nonce. */
TE_API void te__address_hello_proof(unsigned char proof[TE__SHA256_BYTES], const te__comm_start *a,
                                    const unsigned char nonce[TE__SHA256_BYTES], const te__address_hello *hello) {
    const te__bytes message[3] = {{"peer", 5}, {nonce, TE__SHA256_BYTES}, {hello, offsetof(te__address_hello, proof)}};
    te__hmac(proof, te__bytes_of(a->secret, strlen(a->secret)), message, 3);
}
/* Computes the proof in a reply to `hello`. nonce: rank 0's nonce. */
TE_API void te__address_reply_proof(unsigned char proof[TE__SHA256_BYTES], const te__comm_start *a,
                                    const unsigned char nonce[TE__SHA256_BYTES], const te__address_hello *hello,
                                    const te__address_reply *reply) {
    const te__bytes message[4] = {{"rank 0", 7},
                                  {nonce, TE__SHA256_BYTES},
                                  {hello->nonce, TE__SHA256_BYTES},
                                  {reply, offsetof(te__address_reply, proof)}};
    te__hmac(proof, te__bytes_of(a->secret, strlen(a->secret)), message, 4);
}
TE_API te_status te__address_nonce(unsigned char nonce[TE__SHA256_BYTES], te_context *ctx) {
    const int fd = open("/dev/urandom", O_RDONLY);
    const ssize_t got = fd >= 0 ? read(fd, nonce, TE__SHA256_BYTES) : -1;
    if (fd >= 0) (void)close(fd);
    TE_REQUIRE(got == TE__SHA256_BYTES, ctx, TE_ERROR_IO, "te_comm_create: cannot read /dev/urandom: %s",
               strerror(errno));
    return TE_OK;
}

/* ---- sockets ----------------------------------------------------------------------------------------------------- */

TE_API void te__socket_close(int *fd) {
    if (*fd >= 0) (void)close(*fd);
    *fd = -1;
}
/* Makes operations on the socket return at once. */
TE_API void te__socket_unblock(int fd) { (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }
/* Returns the number of milliseconds, rounded up, until the time `end` (te__seconds), but at most `limit` seconds. */
TE_API int te__milliseconds_until(double end, double limit) {
    const double left = end - te__seconds();
    return left <= 0 ? 0 : 1 + (int)(1e3 * (left < limit ? left : limit));
}
/* Waits until the socket is ready for `events`, at most until the time `end` (te__seconds). */
TE_API int te__socket_wait(int fd, short events, double end) {
    struct pollfd p;
    int ready;
    p.fd = fd, p.events = events, p.revents = 0;
    do ready = poll(&p, 1, te__milliseconds_until(end, 1e6));
    while (ready < 0 && errno == EINTR);
    return ready > 0;
}
/* Sends a message, and returns whether the whole message fitted into the socket's buffer. */
TE_API int te__socket_send(int fd, const void *message, size_t bytes) {
    return send(fd, message, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}
/* Receives a whole message. Returns 1 on success, 0 if the message has not been received by the time `end`, -1 if the
 * connection is closed. */
TE_API int te__socket_receive(int fd, void *message, size_t bytes, double end) {
    for (size_t got = 0; got < bytes;) {
        if (!te__socket_wait(fd, POLLIN, end)) return 0;
        const ssize_t n = recv(fd, (char *)message + got, bytes - got, MSG_DONTWAIT);
        if (n > 0) got += (size_t)n;
        else if (n == 0 || (errno != EAGAIN && errno != EINTR)) return -1;
    }
    return 1;
}
/* Looks up config.address. The caller calls freeaddrinfo if *found is not null. */
TE_API te_status te__address_find(struct addrinfo **found, const te__comm_start *a, te_context *ctx) {
    char host[256];
    struct addrinfo hints;
    const char *const colon = strrchr(a->address, ':');
    const size_t n = colon ? (size_t)(colon - a->address) : 0;
    *found = 0;
    const long port = colon && strspn(colon + 1, "0123456789") == strlen(colon + 1) ? strtol(colon + 1, 0, 10) : 0;
    TE_REQUIRE(n > 0 && n < sizeof host && port > 0 && port < 65536, ctx, TE_ERROR_VALUE,
               "te_comm_create: config.address is \"%.80s\"; it is \"host:port\", as in \"10.0.0.1:29510\"",
               a->address);
    const int has_brackets = a->address[0] == '[' && a->address[n - 1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(has_brackets ? n - 2 : n), a->address + has_brackets);
    memset(&hints, 0, sizeof hints);
    hints.ai_family = AF_UNSPEC, hints.ai_socktype = SOCK_STREAM;
    const int error = getaddrinfo(host, colon + 1, &hints, found);
    TE_REQUIRE(!error, ctx, TE_ERROR_IO, "te_comm_create: config.address \"%.80s\": %s", a->address,
               gai_strerror(error));
    return TE_OK;
}

/* ---- rank 0 ------------------------------------------------------------------------------------------------------ */

/* A connection. got: number of bytes of the hello received so far; nonce: rank 0's nonce for this connection. */
typedef struct te__address_peer {
    int fd;
    double since;
    size_t got;
    unsigned char nonce[TE__SHA256_BYTES];
    te__address_hello hello;
} te__address_peer;

typedef struct te__address_server {
    const te__comm_start *start;
    int listener, count, came;   /* count: number of pending connections; came: number of accepted ranks */
    te__address_peer pending[TE__ADDRESS_PENDING]; /* connections whose hello is not complete */
    te__address_peer *rank;                        /* [size]: the connections of the accepted ranks; fd is -1 if a rank
                                                    * has not connected */
    uint32_t id_bytes;
    char refused[TE__ADDRESS_TEXT];                /* the reason of the last refusal, for the error text */
} te__address_server;

TE_API te_status te__address_listen(te__address_server *s, te_context *ctx) {
    struct addrinfo *found = 0;
    int error = 0;
    TE_TRY(te__address_find(&found, s->start, ctx));
    for (const struct addrinfo *i = found; i && s->listener < 0; i = i->ai_next) {
        const int one = 1;
        s->listener = socket(i->ai_family, i->ai_socktype, i->ai_protocol);
        if (s->listener < 0) error = errno;
        else if (setsockopt(s->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
                 bind(s->listener, i->ai_addr, i->ai_addrlen) || listen(s->listener, 1024))
            error = errno, te__socket_close(&s->listener);
    }
    freeaddrinfo(found);
    TE_REQUIRE(s->listener >= 0, ctx, TE_ERROR_IO,
               "te_comm_create: rank 0 cannot listen at config.address \"%.80s\", which must be an address of its "
               "host with a free port: %s", s->start->address, strerror(error));
    te__socket_unblock(s->listener);
    return TE_OK;
}
/* Accepts a connection and sends the greeting. */
TE_API te_status te__address_accept(te__address_server *s, te_context *ctx) {
    te__address_peer *p = &s->pending[s->count];
    te__address_greeting greeting;
    memset(p, 0, sizeof *p);
    p->fd = accept(s->listener, 0, 0), p->since = te__seconds();
    if (p->fd < 0) return TE_OK; /* the peer has given up already */
    const te_status status = te__address_nonce(p->nonce, ctx);
    te__address_magic(greeting.magic), memcpy(greeting.nonce, p->nonce, sizeof greeting.nonce);
    if (status == TE_OK && te__socket_send(p->fd, &greeting, sizeof greeting)) s->count++;
    else te__socket_close(&p->fd);
    return status;
}
/* Sends the reply and closes the connection. text: why the peer is refused, or null if the peer gets the id. Returns
 * whether the reply was sent. */
TE_API int te__address_answer(const te__address_server *s, te__address_peer *p, const char *text, const void *id) {
    te__address_reply reply;
    memset(&reply, 0, sizeof reply);
    te__address_magic(reply.magic), reply.is_refused = text != 0;
    if (text) snprintf(reply.text, sizeof reply.text, "%s", text);
    else memcpy(reply.id, id, s->id_bytes);
    te__address_reply_proof(reply.proof, s->start, p->nonce, &p->hello, &reply);
    const int is_sent = te__socket_send(p->fd, &reply, sizeof reply);
    te__socket_close(&p->fd);
    return is_sent;
}
/* Returns whether an accepted rank has closed its connection. */
TE_API int te__address_is_gone(const te__address_peer *p) {
    char byte;
    const ssize_t n = recv(p->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}
/* Judges a complete hello: accepts the rank, or refuses it with a text that says why. A peer without the secret gets no
 * reply. */
TE_API void te__address_judge(te__address_server *s, te__address_peer *p) {
    const te__address_hello *h = &p->hello;
    const int size = s->start->size;
    unsigned char proof[TE__SHA256_BYTES];
    char run[TE_COMM_RUN_NAME], text[TE__ADDRESS_TEXT] = "";
    te__address_hello_proof(proof, s->start, p->nonce, h);
    if (!te__address_has_magic(h->magic) || !te__proofs_are_equal(proof, h->proof)) {
        char host[64] = "an unknown address";
        struct sockaddr_storage from;
        socklen_t length = sizeof from;
        if (!getpeername(p->fd, (struct sockaddr *)&from, &length))
            (void)getnameinfo((struct sockaddr *)&from, length, host, sizeof host, 0, 0, NI_NUMERICHOST);
        snprintf(s->refused, sizeof s->refused, "a process at %s has not proved that it knows the secret", host);
        te__socket_close(&p->fd);
        return;
    }
    te_comm_run_name(run);
    const int other_run = *run && *h->run && strncmp(run, h->run, sizeof run);
    te__address_peer *const accepted = h->rank > 0 && h->rank < (uint32_t)size ? &s->rank[h->rank] : 0;
    if (other_run)
        snprintf(text, sizeof text, "rank %u is of another run, by the launcher's name of it", (unsigned)h->rank);
    else if (h->size != (uint32_t)size)
        snprintf(text, sizeof text, "rank %u is one of %u ranks by its config, and one of %d by rank 0's",
                 (unsigned)h->rank, (unsigned)h->size, size);
    else if (!accepted)
        snprintf(text, sizeof text, "a process says that it is rank %u of %d, as which only rank 0 may listen",
                 (unsigned)h->rank, size);
    else if (h->bytes != s->id_bytes)
        snprintf(text, sizeof text, "rank %u expects an id of %u bytes, rank 0's has %u: other versions of NCCL",
                 (unsigned)h->rank, (unsigned)h->bytes, (unsigned)s->id_bytes);
    else if (accepted->fd >= 0 && !te__address_is_gone(accepted))
        snprintf(text, sizeof text, "two processes say that they are rank %u of %d", (unsigned)h->rank, size);
    if (*text) {
        snprintf(s->refused, sizeof s->refused, "%s", text);
        (void)te__address_answer(s, p, text, 0);
        return;
    }
    if (accepted->fd >= 0) te__socket_close(&accepted->fd); /* the earlier process of this rank has ended, and the new
                                                             * process replaces it */
    else s->came++;
    *accepted = *p, p->fd = -1;
}
/* Reads the bytes that have been received on a pending connection, and judges the hello when it is complete. */
TE_API void te__address_read(te__address_server *s, te__address_peer *p) {
    const ssize_t n = recv(p->fd, (char *)&p->hello + p->got, sizeof p->hello - p->got, MSG_DONTWAIT);
    if (n > 0) p->got += (size_t)n;
    if (n > 0 && p->got == sizeof p->hello) te__address_judge(s, p);
    else if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) te__socket_close(&p->fd);
}
/* Waits for connections and messages, and handles them. */
TE_API te_status te__address_step(te__address_server *s, double end, te_context *ctx) {
    struct pollfd p[TE__ADDRESS_PENDING + 1];
    const int has_space = s->count < TE__ADDRESS_PENDING, count = s->count;
    memset(p, 0, sizeof p);
    for (int i = 0; i < count; i++) p[i].fd = s->pending[i].fd, p[i].events = POLLIN;
    p[count].fd = has_space ? s->listener : -1, p[count].events = POLLIN;
    if (poll(p, (nfds_t)count + 1, te__milliseconds_until(end, 0.1)) < 0) return TE_OK; /* by a signal */
    for (int i = 0; i < count; i++) {
        if (p[i].revents) te__address_read(s, &s->pending[i]);
        else if (te__seconds() - s->pending[i].since > TE__ADDRESS_HELLO_SECONDS) te__socket_close(&s->pending[i].fd);
    }
    if (p[count].revents) TE_TRY(te__address_accept(s, ctx));
    int open = 0;
    for (int i = 0; i < s->count; i++)
        if (s->pending[i].fd >= 0) s->pending[open++] = s->pending[i];
    s->count = open;
    return TE_OK;
}
/* Waits for all ranks, and sends the id to each of them. If a rank has not connected within the timeout, sends the
 * other ranks the reason instead. */
TE_API te_status te__address_serve(te__address_server *s, const void *id, te_context *ctx) {
    const te__comm_start *a = s->start;
    const double end = te__seconds() + a->timeout;
    char text[TE__ADDRESS_TEXT];
    int missing = -1;
    while (s->came < a->size - 1 && te__seconds() < end) TE_TRY(te__address_step(s, end, ctx));
    for (int r = a->size - 1; r > 0; r--)
        if (s->rank[r].fd < 0) missing = r;
    if (missing > 0)
        snprintf(text, sizeof text, "rank %d has not come to rank 0 within %g seconds (%d of %d ranks are missing)",
                 missing, a->timeout, a->size - 1 - s->came, a->size);
    int lost = -1;
    for (int r = 1; r < a->size; r++)
        if (s->rank[r].fd >= 0 && !te__address_answer(s, &s->rank[r], missing > 0 ? text : 0, id)) lost = r;
    TE_REQUIRE(missing < 0, ctx, TE_ERROR_COMM, "te_comm_create: %s%s%s", text, *s->refused ? "; refused: " : "",
               s->refused);
    TE_REQUIRE(lost < 0, ctx, TE_ERROR_COMM, "te_comm_create: the connection of rank %d to rank 0 is lost", lost);
    return TE_OK;
}
TE_API te_status te__address_send(const void *id, size_t bytes, const te__comm_start *a, te_context *ctx) {
    te__address_server *s = (te__address_server *)calloc(1, sizeof *s);
    te__address_peer *const rank = (te__address_peer *)calloc((size_t)a->size, sizeof *rank);
    te_status status = s && rank ? TE_OK : te_fail(ctx, TE_ERROR_MEMORY, "te_comm_create: cannot allocate for %d ranks",
                                                   a->size);
    if (status == TE_OK) {
        s->start = a, s->listener = -1, s->rank = rank, s->id_bytes = (uint32_t)bytes;
        for (int r = 0; r < a->size; r++) rank[r].fd = -1;
        status = te__address_listen(s, ctx);
        if (status == TE_OK) status = te__address_serve(s, id, ctx);
        te__socket_close(&s->listener);
        for (int i = 0; i < s->count; i++) te__socket_close(&s->pending[i].fd);
        for (int r = 0; r < a->size; r++) te__socket_close(&rank[r].fd);
    }
    free(rank), free(s);
    return status;
}

/* ---- the other ranks --------------------------------------------------------------------------------------------- */

/* Tries once to connect to rank 0. If nobody answers, sets *fd to -1 and *error to the reason (errno). */
TE_API te_status te__address_try(int *fd, int *error, const te__comm_start *a, double end, te_context *ctx) {
    struct addrinfo *found = 0;
    *fd = -1;
    TE_TRY(te__address_find(&found, a, ctx));
    for (const struct addrinfo *i = found; i && *fd < 0; i = i->ai_next) {
        socklen_t length = sizeof *error;
        *fd = socket(i->ai_family, i->ai_socktype, i->ai_protocol);
        if (*fd < 0) continue;
        te__socket_unblock(*fd);
        *error = connect(*fd, i->ai_addr, i->ai_addrlen) ? errno : 0;
        if (*error == EINPROGRESS) {
            if (!te__socket_wait(*fd, POLLOUT, end)) *error = ETIMEDOUT;
            else if (getsockopt(*fd, SOL_SOCKET, SO_ERROR, error, &length)) *error = errno;
        }
        if (*error) te__socket_close(fd);
    }
    freeaddrinfo(found);
    return TE_OK;
}
/* Exchanges the messages on an open connection. */
TE_API te_status te__address_ask(void *id, size_t bytes, int fd, const te__comm_start *a, double end,
                                 te_context *ctx) {
    te__address_greeting greeting;
    te__address_hello hello;
    te__address_reply reply;
    unsigned char proof[TE__SHA256_BYTES];
    memset(&hello, 0, sizeof hello);
    const int greeted = te__socket_receive(fd, &greeting, sizeof greeting, end);
    TE_REQUIRE(greeted, ctx, TE_ERROR_COMM, "te_comm_create: \"%.80s\" has not answered within %g seconds", a->address,
               a->timeout);
    TE_REQUIRE(greeted > 0 && te__address_has_magic(greeting.magic), ctx, TE_ERROR_FORMAT,
               "te_comm_create: another program than rank 0 of this library listens at config.address \"%.80s\"",
               a->address);
    te__address_magic(hello.magic), te_comm_run_name(hello.run);
    hello.rank = (uint32_t)a->rank, hello.size = (uint32_t)a->size, hello.bytes = (uint32_t)bytes;
    TE_TRY(te__address_nonce(hello.nonce, ctx));
    te__address_hello_proof(hello.proof, a, greeting.nonce, &hello);
    const int sent = te__socket_send(fd, &hello, sizeof hello);
    const int got = sent ? te__socket_receive(fd, &reply, sizeof reply, end) : -1;
    TE_REQUIRE(got, ctx, TE_ERROR_COMM,
               "te_comm_create: rank 0 at \"%.80s\" has not sent its id within %g seconds: it waits for other ranks, "
               "or cannot be reached any more", a->address, a->timeout);
    TE_REQUIRE(got > 0, ctx, TE_ERROR_COMM,
               "te_comm_create: rank 0 at \"%.80s\" has closed the connection: it has ended, or has another secret",
               a->address);
    te__address_reply_proof(proof, a, greeting.nonce, &hello, &reply);
    TE_REQUIRE(te__address_has_magic(reply.magic) && te__proofs_are_equal(proof, reply.proof), ctx, TE_ERROR_COMM,
               "te_comm_create: the process at \"%.80s\" has not proved that it knows the secret", a->address);
    reply.text[sizeof reply.text - 1] = 0;
    TE_REQUIRE(!reply.is_refused, ctx, TE_ERROR_COMM, "te_comm_create: rank 0 refuses: %s", reply.text);
    memcpy(id, reply.id, bytes);
    return TE_OK;
}
TE_API te_status te__address_receive(void *id, size_t bytes, const te__comm_start *a, te_context *ctx) {
    const double end = te__seconds() + a->timeout;
    int fd = -1, error = 0;
    do {
        TE_TRY(te__address_try(&fd, &error, a, end, ctx));
        if (fd < 0) (void)poll(0, 0, 20);
    } while (fd < 0 && te__seconds() < end);
    TE_REQUIRE(fd >= 0, ctx, TE_ERROR_COMM,
               "te_comm_create: rank 0 has not listened at config.address \"%.80s\" within %g seconds: %s", a->address,
               a->timeout, strerror(error));
    const te_status status = te__address_ask(id, bytes, fd, a, end, ctx);
    te__socket_close(&fd);
    return status;
}

/* ---- all ranks --------------------------------------------------------------------------------------------------- */

/* Passes id[bytes] of rank 0 to all ranks. Returns an error if a rank has not connected within the timeout, if a
 * process has a different secret, a different number of ranks or the same rank as another process, or if the address
 * does not belong to rank 0's host. */
TE_API te_status te__address_pass(void *id, size_t bytes, const te__comm_start *a, te_context *ctx) {
    TE_REQUIRE(a->secret && strlen(a->secret) >= TE__SECRET_MIN_BYTES, ctx, TE_ERROR_VALUE,
               "te_comm_create: with config.address, config.secret or the variable TE_COMM_SECRET is a secret of at "
               "least %d characters, the same on all ranks", (int)TE__SECRET_MIN_BYTES);
    TE_REQUIRE(bytes <= TE__ID_FILE_BYTES, ctx, TE_ERROR_OVERFLOW, "te_comm_create: a unique id of %zu bytes", bytes);
    if (a->size == 1) return TE_OK;
    return a->rank ? te__address_receive(id, bytes, a, ctx) : te__address_send(id, bytes, a, ctx);
}

#endif
