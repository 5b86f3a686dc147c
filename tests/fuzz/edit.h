/* edit.h -- what the fuzz targets share: edits of a valid file, and a new checksum for an edited one. Each edit takes EDIT
 * bytes of input; an input without edits is the valid file.
 */
#ifndef TE_FUZZ_EDIT_H
#define TE_FUZZ_EDIT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "te/io/checksum.h"

enum { EDIT = 4 /* bytes of input for each edit */, EDIT_MAX_BYTES = 1 << 17, FUZZ_PATH = 64 };

/* A valid file, and the edited one. */
typedef struct fuzz_file {
    unsigned char good[EDIT_MAX_BYTES], bytes[2 * EDIT_MAX_BYTES];
    size_t good_size, size;
} fuzz_file;

static void fuzz_read(fuzz_file *file, const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) abort();
    file->good_size = fread(file->good, 1, sizeof file->good, f);
    fclose(f);
    if (!file->good_size || file->good_size == sizeof file->good) abort();
}
static void fuzz_write(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f)) abort();
}
/* Sets *path to a name for mkstemp and mkdtemp: in memory where there is such a file system, which makes ten times as many
 * inputs as a disk. */
static inline void fuzz_name(char path[FUZZ_PATH], const char *name) {
    snprintf(path, FUZZ_PATH, "%s/te_%s_fuzz_XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", name);
}
/* Makes a new empty file. */
static inline void fuzz_temporary(char path[FUZZ_PATH], const char *name) {
    fuzz_name(path, name);
    const int fd = mkstemp(path);
    if (fd < 0) abort();
    (void)close(fd);
}
/* Changes, removes or inserts bytes, truncates the file, changes the length of a safetensors header, or stores a number
 * that an index, a count or a scale should not be. */
static void fuzz_edit(fuzz_file *file, const uint8_t *bytes, size_t n) {
    static const char *const pieces[] = {"\"", "\\", "{", "}", "[", "]", ",", ":", "0", "18446744073709551615", "\\ud800", "te.",
                                         "F64", "9223372036854775807", "null", "\"shape\":[", "\xff", "__metadata__", " ", "-1",
                                         "\n", "1e999", "F8_E4M3", "2147483648", "\"BF16\"", "../"};
    static const uint64_t numbers[] = {0, 1, UINT64_MAX, INT64_MAX, (uint64_t)INT64_MIN, INT32_MAX, UINT32_MAX, 0x80000000u, 1 << 20, 1025,
                                       0x7fc000007fc00000u, 0x7f8000007f800000u, 0xff800000ff800000u, 0x0000000100000001u, 0x7f7fffff7f7fffffu, 5};
    file->size = file->good_size;
    memcpy(file->bytes, file->good, file->good_size);
    for (; n >= EDIT && file->size > 16 && file->size < EDIT_MAX_BYTES + 4096; bytes += EDIT, n -= EDIT) {
        unsigned char *at = file->bytes + (((size_t)bytes[1] << 8) | bytes[2]) % file->size;
        const size_t place = (size_t)(at - file->bytes), left = file->size - place;
        const char *piece = pieces[bytes[3] % (sizeof pieces / sizeof *pieces)];
        const size_t length = strlen(piece), cut = (size_t)(bytes[3] % 16) < left ? (size_t)(bytes[3] % 16) : left;
        const size_t width = bytes[3] & 16 ? 8 : 4, from = place / width * width;
        switch (bytes[0] % 7) {
        case 0: *at = bytes[3]; break;
        case 1: *at ^= (unsigned char)(1 << bytes[3] % 8); break;
        case 2: memmove(at, at + cut, left - cut), file->size -= cut; break;
        case 3: memmove(at + length, at, left), memcpy(at, piece, length), file->size += length; break;
        case 4: file->size = place; break;
        case 5:
            for (int i = 0; i < 8; i++) file->bytes[i] = (unsigned char)((place > 8 ? place - 8 : 0) >> (8 * i));
            break;
        default:
            if (from + width <= file->size) memcpy(file->bytes + from, &numbers[bytes[3] % 16], width);
        }
    }
}
/* Stores the checksum of the edited bytes, as anybody can who changes a file. */
static void fuzz_seal(fuzz_file *file) {
    static const char key[] = "\"te.checksum\":\"";
    static const size_t length = sizeof key - 1;
    for (size_t at = 8; at + length + 16 < file->size && at < 8192; at++) {
        char digits[17];
        if (memcmp(file->bytes + at, key, length)) continue;
        memset(file->bytes + at + length, '0', 16);
        te_checksum sum = te_checksum_begin();
        te_checksum_add(&sum, file->bytes, file->size);
        snprintf(digits, sizeof digits, "%016llx", (unsigned long long)te_checksum_end(&sum));
        memcpy(file->bytes + at + length, digits, 16);
        return;
    }
}
/* A copy of the edited file of the exact size, so that the sanitizer finds a read beyond its end. */
static unsigned char *fuzz_exact(const fuzz_file *file) {
    unsigned char *exact = (unsigned char *)malloc(file->size + !file->size);
    if (!exact) abort();
    memcpy(exact, file->bytes, file->size);
    return exact;
}

#endif
