/* gemm_tune_file.h -- what writing and reading a tuning file (gemm_tune.h) share. */
#ifndef TE_GEMM_TUNE_FILE_H
#define TE_GEMM_TUNE_FILE_H

#include "../core/file.h" /* te__new_file, te__file_read */
#include "gemm.h"         /* te_gemm_tuned, te_gemm_choice */

enum {
    TE__TUNE_FORMAT = 2,
    TE__TUNE_LINE = 640,      /* characters of a line, at most; the longest that is written has some 350 */
    TE__TUNE_FILE = 1 << 20,  /* bytes of a file, at most */
    TE__TUNE_WORDS = 24       /* of the longest line */
};

/* Fowler, Noll & Vo, FNV-1a: finds damage, not malice. */
TE_API uint64_t te__tune_sum(uint64_t sum, const char *p, size_t n) {
    for (size_t i = 0; i < n; i++) sum = (sum ^ (uint8_t)p[i]) * 1099511628211ull;
    return sum;
}
static const uint64_t te__tune_sum_start TE_UNUSED = 14695981039346656037ull;

TE_API te_status te__tune_header(char *text, size_t bytes, te_context *ctx) {
    char name[280];
    size_t version = 0;
    TE_TRY(te__gemm_identify(name, sizeof name, &version, ctx));
    for (char *p = name; *p; p++)
        if (*p < ' ' || *p > '~') *p = '?';
    snprintf(text, bytes, "te-gemm %d\ndevice %s\ncublaslt %zu\n", (int)TE__TUNE_FORMAT, name, version);
    return TE_OK;
}

#endif
