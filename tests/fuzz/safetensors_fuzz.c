/* safetensors_fuzz.c -- a libFuzzer entry for untrusted files in the safetensors format. tests/fuzz.sh builds and runs it.
 *
 * A file begins with the length of its header, and with nearly every mutation of it the parser would not run. So the
 * first byte of an input decides: if it is odd, the file gets a valid length.
 */
#include "te/gemm/gemm.h" /* te_context_create */
#include "te/io/json.h"
#include "te/io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void read_table(const uint8_t *bytes, size_t n, te_context *ctx) {
    te_json t;
    memset(&t, 0, sizeof t);
    t.text = (char *)malloc(n + 1);
    if (!t.text) abort();
    memcpy(t.text, bytes, n), t.text[n] = 0;
    if (te__json_table(&t, n, "fuzz", ctx) == TE_OK)
        for (int i = 0; i < t.count; i++)
            if (te_json_find(&t, t.value[i].name) != &t.value[i]) abort();
    te_json_close(&t);
}
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    te_context ctx;
    te_safetensors f;
    if (n < 2 || te_context_create(&ctx, 0, 1) != TE_OK) return 0;
    read_table(bytes, n, &ctx);
    const int fits = bytes[0] & 1;
    const size_t data = bytes[1] < n - 2 ? bytes[1] : n - 2, header = n - 2 - data;
    char *file = (char *)malloc(n + 8), buffer[256];
    if (!file) abort();
    if (fits) {
        for (int i = 0; i < 8; i++) file[i] = (char)(unsigned char)((uint64_t)header >> (8 * i));
        memcpy(file + 8, bytes + 2, n - 2);
    } else {
        memcpy(file, bytes + 2, n - 2);
    }
    const size_t size = fits ? n + 6 : n - 2;
    char *exact = (char *)realloc(file, size + !size); /* of the exact size, so that the sanitizer finds a read beyond the end */
    if (!exact) abort();
    if (te_safetensors_open_memory(&f, exact, size, &ctx) == TE_OK) {
        uint64_t total = 0;
        for (int i = 0; i < f.count; i++) {
            const te_safetensor *t = te_safetensors_find(&f, f.tensor[i].name);
            if (t != &f.tensor[i]) abort();
            if (t->bytes <= sizeof buffer && te_safetensors_read(&f, t, buffer, &ctx) != TE_OK) abort();
            total += t->bytes;
        }
        if (f.data_at + total != size) abort();
        const te_status verified = te_safetensors_verify(&f, &ctx);
        if (verified == TE_OK && f.verified && !te_safetensors_metadata(&f, TE_SAFETENSORS_SUM)) abort();
        for (int i = 0; i < f.metadata_count; i++)
            if (te_safetensors_metadata(&f, f.metadata[i].key) != f.metadata[i].value) abort();
        te_safetensors_close(&f);
    }
    free(exact);
    te_context_destroy(&ctx);
    return 0;
}
