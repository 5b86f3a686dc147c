/* tune_fuzz.c -- a libFuzzer entry for tuning files (te/gemm/impl/gemm_tune_file.h): edits of a valid file, whose `end` line
 * is corrected if the first byte of the input is odd. A refused file leaves the context as it was.
 * tests/fuzz.sh builds and runs it.
 */
#include "te/te.h"
#include "edit.h"

static te_context ctx;
static fuzz_file file;
static char path[FUZZ_PATH];

static void need(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "tune_fuzz: %s: %s\n", what, te_last_error(&ctx));
    abort();
}
static void gone(void) { (void)remove(path); }
/* Writes the line `end` behind the lines of a file. */
static size_t end_file(char *text, size_t n, size_t capacity) {
    int lines = 0;
    for (size_t i = 0; i < n; i++) lines += text[i] == '\n';
    const uint64_t sum = te__tune_checksum(te__tune_checksum_start, text, n);
    return n + (size_t)snprintf(text + n, capacity - n, "end %d %016llx\n", lines, (unsigned long long)sum);
}
static void make(void) {
    static const char *const lines[] = {
        "gemm 128 192 64 nt bf16 bf16 gelu_aux_bias 0 64 64 192 16 8 2000 1500 0000000000000001 0000000000000002 0000000000000003 0000000000000004 "
        "0000000000000005 0000000000000006 0000000000000007 0000000000000008\n",
        "gemm 128 192 64 nt e4m3*e5m2.bf16.fast bf16 bias 0 64 64 192 16 8 2000 1500 0000000000000001 0000000000000002 0000000000000003 "
        "0000000000000004 0000000000000005 0000000000000006 0000000000000007 0000000000000008\n",
        "step linear_bias_gelu forward 128 192 64 bf16 3 2 2000 1900 1500 0\n",
        "step linear_bias_gelu:e4m3*e4m3.bf16.fast infer 128 192 64 bf16 1 3 2000 1900 1500 1400\n"};
    char *text = (char *)file.good;
    need(te_context_create(&ctx, 0, 1) == TE_OK, "context");
    fuzz_temporary(path, "tune"), atexit(gone);
    need(te__tune_header(text, sizeof file.good, &ctx) == TE_OK, "header");
    size_t n = strlen(text);
    for (int i = 2; i < 4; i++) n += (size_t)snprintf(text + n, sizeof file.good - n, "%s", lines[i]);
    const size_t steps = end_file(text, n, sizeof file.good);
    fuzz_write(path, text, steps);
    need(te_gemm_load(path, &ctx) == TE_OK, "the valid file of steps");
    n = strlen(strcpy(text + n, lines[0])) + n, n = strlen(strcpy(text + n, lines[1])) + n;
    file.good_size = end_file(text, n, sizeof file.good);
}
/* Replaces the last line by one that is right. */
static void seal(void) {
    size_t n = file.size;
    while (n && file.bytes[n - 1] == '\n') n--;
    while (n && file.bytes[n - 1] != '\n') n--;
    file.size = end_file((char *)file.bytes, n, sizeof file.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    if (!file.good_size) make();
    if (!n) return 0;
    fuzz_edit(&file, bytes + 1, n - 1);
    if (bytes[0] & 1) seal();
    static te_gemm_choice before[TE_GEMM_MAX_CHOICES], after[TE_GEMM_MAX_CHOICES];
    const int had = te_gemm_report_choices(before, TE_GEMM_MAX_CHOICES, &ctx);
    fuzz_write(path, file.bytes, file.size);
    const te_status status = te_gemm_load(path, &ctx);
    const int has = te_gemm_report_choices(after, TE_GEMM_MAX_CHOICES, &ctx);
    need(has <= TE_GEMM_MAX_CHOICES, "more steps than there is space for");
    if (status != TE_OK) need(had == has && !memcmp(before, after, (size_t)has * sizeof *after), "a refused file changed the context");
    for (int i = 0; i < has; i++)
        need((unsigned)after[i].strategy < TE_STRATEGY_COUNT && memchr(after[i].pattern, 0, sizeof after[i].pattern) && after[i].m > 0, "a step that is none");
    if (has > TE_GEMM_MAX_CHOICES / 2) te_context_destroy(&ctx), need(te_context_create(&ctx, 0, 1) == TE_OK, "context");
    return 0;
}
