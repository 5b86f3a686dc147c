/* rank_test.h -- what the tests of several ranks share. The file that includes it includes stdio.h, stdlib.h and te/te.h
 * first.
 */
#ifndef TESTS_COMM_RANK_TEST_H
#define TESTS_COMM_RANK_TEST_H

static te_context ctx;
static te_comm comm;
static int64_t compared, wrong; /* numbers of values: compared, and different from what they should be */

/* Checks the status and the error text of a call. */
static inline void refuses(te_status status, te_status want, const char *words) {
    compared++;
    if (status == want && strstr(te_last_error(&ctx), words)) return;
    wrong++, printf("rank %d: %s: %s, not about: %s\n", comm.world.rank, te_status_string(status), te_last_error(&ctx),
                    words);
}

/* Reads a file into memory from malloc. Returns its size, or -1. */
static inline int64_t bytes_of(char **bytes, const char *path) {
    FILE *f = fopen(path, "rb");
    const int64_t n = f && !fseek(f, 0, SEEK_END) ? (int64_t)ftell(f) : 0;
    *bytes = (char *)malloc((size_t)n + 1);
    const int64_t got = f && *bytes && !fseek(f, 0, SEEK_SET) ? (int64_t)fread(*bytes, 1, (size_t)n, f) : -1;
    if (f) (void)fclose(f);
    return got == n ? n : -1;
}

#endif
