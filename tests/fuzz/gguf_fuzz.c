/* gguf_fuzz.c -- a libFuzzer entry for untrusted files in the GGUF format. tests/fuzz.sh builds and runs it.
 *
 * With nearly every mutation of the first bytes of a file the parser would not run. So the first byte of an input decides: if it is odd,
 * the file gets a valid beginning, whose two counts are the next two bytes. If its second bit is set, a valid file is changed by the input
 * instead: the input is pairs of a place and a byte.
 */
#include "te/gemm/gemm.h" /* te_context_create */
#include "te/io/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static size_t put(uint8_t *to, size_t at, const void *from, size_t n) {
    memcpy(to + at, from, n);
    return at + n;
}
static size_t put_number(uint8_t *to, size_t at, uint64_t v, size_t n) { return put(to, at, &v, n); }
static size_t put_text(uint8_t *to, size_t at, const char *s) { return put(to, put_number(to, at, strlen(s), 8), s, strlen(s)); }
/* A file with a value of every kind that has a length, and two tensors. */
static size_t valid_file(uint8_t file[1024]) {
    size_t at = put(file, 0, "GGUF\3\0\0\0", 8);
    at = put_number(file, at, 2, 8), at = put_number(file, at, 4, 8);
    at = put_text(file, at, "general.alignment"), at = put_number(file, at, TE_GGUF_uint32, 4), at = put_number(file, at, 32, 4);
    at = put_text(file, at, "text"), at = put_number(file, at, TE_GGUF_string, 4), at = put_text(file, at, "abc");
    at = put_text(file, at, "texts"), at = put_number(file, at, TE_GGUF_array, 4), at = put_number(file, at, TE_GGUF_string, 4);
    at = put_number(file, at, 2, 8), at = put_text(file, at, "x"), at = put_text(file, at, "yz");
    at = put_text(file, at, "nested"), at = put_number(file, at, TE_GGUF_array, 4), at = put_number(file, at, TE_GGUF_array, 4);
    at = put_number(file, at, 1, 8), at = put_number(file, at, TE_GGUF_bool, 4), at = put_number(file, at, 2, 8);
    at = put_number(file, at, 1, 2);
    for (int i = 0; i < 2; i++) {
        at = put_text(file, at, i ? "a" : "b"), at = put_number(file, at, 2, 4);
        at = put_number(file, at, 32, 8), at = put_number(file, at, 1, 8);
        at = put_number(file, at, TE_GGUF_Q8_0, 4), at = put_number(file, at, 64 * (uint64_t)i, 8);
    }
    const size_t data = (at + 31) / 32 * 32;
    memset(file + at, 1, data + 98 - at);
    return data + 98;
}
static uint64_t visit(const te_gguf_value *v, int depth) {
    te_gguf_value array = *v, element;
    te_gguf_text s;
    int64_t integer = 0;
    uint64_t sum = (uint64_t)te_gguf_integer_of(v, &integer);
    if (te_gguf_string_of(v, &s))
        for (size_t i = 0; i < s.n; i++) sum += (unsigned char)s.p[i];
    if (depth > TE_GGUF_MAX_DEPTH) abort();
    while (te_gguf_next(&element, &array)) sum += visit(&element, depth + 1);
    return sum;
}
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    te_context ctx;
    te_gguf f;
    uint8_t file[1024] = {0};
    size_t size = 0;
    volatile uint64_t sum = 0;
    if (n < 3 || te_context_create(&ctx, 0, 1) != TE_OK) return 0;
    const int change = (bytes[0] & 2) != 0, begin = !change && (bytes[0] & 1);
    if (change) size = valid_file(file);
    for (size_t i = 1; change && i + 2 < n; i += 3) file[(bytes[i] | (size_t)bytes[i + 1] << 8) % size] = bytes[i + 2];
    if (begin) {
        size = put(file, 0, "GGUF\3\0\0\0", 8);
        size = put_number(file, size, bytes[1] % 8, 8), size = put_number(file, size, bytes[2] % 8, 8);
    }
    const size_t rest = change ? 0 : n - 3;
    uint8_t *exact = (uint8_t *)malloc(size + rest + !(size + rest)); /* of the exact size, for the sanitizer */
    if (!exact) abort();
    memcpy(exact, file, size), memcpy(exact + size, bytes + 3, rest);
    if (te_gguf_open_memory(&f, exact, size + rest, &ctx) == TE_OK) {
        for (int i = 0; i < f.values; i++) sum += visit(&f.value[i], 0);
        for (int i = 0; i < f.tensors; i++)
            for (uint64_t k = 0; k < f.tensor[i].bytes; k++) sum += ((const uint8_t *)f.tensor[i].data)[k];
        sum += te_gguf_header_checksum(&f);
        te_gguf_close(&f);
    } else if (change && n == 3) {
        abort(); /* the valid file, unchanged */
    }
    free(exact);
    te_context_destroy(&ctx);
    return 0;
}
