/* main.c -- a main function for a libFuzzer entry if there is no libFuzzer: random inputs for a number of seconds. Every
 * other input is the text of a safetensors header with a few changed bytes.
 *     gcc -g -O1 -fsanitize=address,undefined -I. tests/fuzz/checkpoint_fuzz.c tests/fuzz/main.c -o fuzz -lm
 *     ./fuzz 20
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static uint64_t state;
static unsigned below(unsigned n) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(state >> 33) % n;
}

int main(int argc, char **argv) {
    static const char text[] =
        "\1\46{\"__metadata__\":{\"format\":\"te\",\"k\\u00e9y\\n\":\"v\\\"\\ud83d\\ude00\"},"
        "\"a.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"
        "\"step\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
        "\"b\":{\"shape\":[3],\"data_offsets\":[32,38],\"dtype\":\"BF16\"}}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";
    static const char *const pieces[] = {"\"",
                                         "\\",
                                         "{",
                                         "}",
                                         "[",
                                         "]",
                                         ",",
                                         ":",
                                         "0",
                                         "-1",
                                         "18446744073709551615",
                                         "\\u",
                                         "\\ud800",
                                         "\"dtype\"",
                                         "\"shape\"",
                                         "__metadata__",
                                         "F64",
                                         "\xff",
                                         "\xf0\x9f",
                                         "[[[[",
                                         "null",
                                         " "};
    const long seconds = argc > 1 ? strtol(argv[1], NULL, 10) : 20;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)state);
    fflush(stdout);
    const time_t end = time(NULL) + seconds;
    long rounds = 0;
    for (; time(NULL) < end; rounds++) {
        static uint8_t input[4096];
        size_t n = sizeof text - 1;
        memcpy(input, text, n);
        if (rounds % 2) {
            n = below(64);
            for (size_t i = 0; i < n; i++) input[i] = (uint8_t)below(256);
        }
        for (unsigned edits = below(5); edits && n; edits--) {
            const size_t at = below((unsigned)n);
            const char *piece = pieces[below(sizeof pieces / sizeof *pieces)];
            const size_t length = strlen(piece);
            if (below(2))
                input[at] = (uint8_t)below(256);
            else
                memmove(input + at + length, input + at, n - at), memcpy(input + at, piece, length), n += length;
        }
        (void)LLVMFuzzerTestOneInput(input, n);
    }
    printf("%ld inputs\n", rounds);
    return 0;
}
