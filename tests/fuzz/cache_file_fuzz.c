/* cache_file_fuzz.c -- a libFuzzer entry for saved sequences of a cache (te/io/cache_file.h), whose checksum is made right
 * after the edits unless the first byte of the input is even. A refused file leaves the cache as it was; after an accepted
 * one the cache is in order, and the next token is computed within its memory. tests/fuzz.sh builds and runs it.
 */
#include "te/infer.h"
#include "te/io/cache_file.h"
#include "edit.h"

#define LAYER(i, FORMAT) (linear, l##i, 16, 4 * 16), (attention, a##i, 2, 1, 16, (cache, FORMAT)), (linear, o##i, 32, 16)
TE_INFERENCE(fuzzed, f32, LAYER(0, 1), LAYER(1, int8), LAYER(2, e4m3))

enum { CAPACITY = 40, LENGTH = 21, SLOT = 1, TOKEN_UNSET = -7 };

static te_context ctx;
static fuzzed m;
static te_cache cache;
static te_cache_config config;
static char path[FUZZ_PATH], *memory, *before;
static size_t bytes_of_cache;
static fuzz_file file;

static void need(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "cache_file_fuzz: %s: %s\n", what, te_last_error(&ctx));
    abort();
}
static void gone(void) { (void)remove(path); }
/* Appends `count` rows to a sequence. Its numbers may be anything. */
static void append(int32_t slot, int count) {
    static float x[CAPACITY * 16], y[CAPACITY * 16];
    te_batch b;
    memset(&b, 0, sizeof b), b.batch = 1, b.seq = count, b.cache = &cache, b.slots = &slot;
    for (int i = 0; i < count * 16; i++) x[i] = (float)(i % 7) - 3.0f;
    need(te_cache_begin(&cache, &b, &ctx) == TE_OK, "begin");
    need(fuzzed_infer(te_matrix(y, TE_f32, count, 16), te_matrix(x, TE_f32, count, 16), &m, &b, &ctx) == TE_OK, "infer");
}
static void make(void) {
    static te_model *models[1];
    static int32_t tokens[CAPACITY];
    void *params;
    models[0] = &m.model;
    config = te_cache_defaults();
    config.sequences = 3, config.capacity = CAPACITY, config.page_rows = 16;
    need(te_context_create(&ctx, 0, 1) == TE_OK && te_allocate(&ctx, &params, fuzzed_param_bytes()) == TE_OK, "memory");
    need(fuzzed_bind(&m, params, &ctx) == TE_OK && te_model_randomize(&m.model, 0.3f, 1, 0, &ctx) == TE_OK, "model");
    bytes_of_cache = te_cache_bytes(models, 1, &config);
    need(te_allocate(&ctx, (void **)&memory, bytes_of_cache) == TE_OK && te_fill(&ctx, memory, 0, bytes_of_cache) == TE_OK, "memory");
    need(te_cache_init(&cache, memory, bytes_of_cache, models, 1, &config, &ctx) == TE_OK, "cache");
    need(te_context_reserve(&ctx, fuzzed_workspace_bytes(&m, CAPACITY, &ctx)) == TE_OK, "workspace");
    append(0, 5), append(SLOT, LENGTH);
    for (int i = 0; i < LENGTH; i++) tokens[i] = i;
    fuzz_temporary(path, "cache"), atexit(gone);
    need(te_cache_save(&cache, SLOT, tokens, path, &ctx) == TE_OK, "save");
    fuzz_read(&file, path);
    before = (char *)malloc(bytes_of_cache), memcpy(before, memory, bytes_of_cache);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    int32_t tokens[CAPACITY];
    int length = TOKEN_UNSET;
    if (!file.good_size) make();
    if (!n) return 0;
    fuzz_edit(&file, bytes + 1, n - 1);
    if (bytes[0] & 1) fuzz_seal(&file);
    fuzz_write(path, file.bytes, file.size);
    const te_status status = te_cache_load(&cache, SLOT, tokens, &length, path, &ctx);
    need(n > EDIT || status == TE_OK, "the valid file");
    if (status != TE_OK) {
        need(!memcmp(memory, before, bytes_of_cache) && length == TOKEN_UNSET, "a refused file changed something");
        return 0;
    }
    need(length >= 0 && length <= CAPACITY && te_cache_check(&cache, &ctx) == TE_OK, "a length that cannot be");
    if (length < CAPACITY) append(SLOT, 1);
    need(te_cache_check(&cache, &ctx) == TE_OK, "the cache behind the next token");
    memcpy(memory, before, bytes_of_cache);
    return 0;
}
