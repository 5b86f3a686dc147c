/* recipes_fuzz.c -- a libFuzzer entry for the FP8 scales in checkpoints. The input is a list of edits of a valid file, whose amax histories
 * have another length than those of the run that loads it. The edited file is loaded with `force`, as one whose checksum was computed anew.
 * Scales that are taken must be valid, and a step with them must stay within its memory; a refused file must change nothing. tests/fuzz.sh
 * builds and runs it.
 */
#include <stdio.h>

#include "te/te.h"

TE_SEQUENTIAL(fuzzed, (bf16, (recipe, fp8_delayed)), (linear, fc, 16, 32), (gelu, act), (linear, out, 32, 16))

enum { EDIT = 4 /* bytes of input for each edit */, MAX_BYTES = 1 << 15, SAVED_HISTORY = 9, HISTORY = 5 };

static te_context ctx;
static fuzzed m;
static te_recipes recipes;
static te_checkpoint all;
static unsigned char good[MAX_BYTES], file[MAX_BYTES];
static char *params, *before, *state;
static size_t good_bytes, params_bytes, begun_at, scales_at, scales_bytes;

static void need(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "recipes_fuzz: %s: %s\n", what, te_last_error(&ctx));
    abort();
}
static void start_recipes(int history) {
    static te_model *models[1];
    static void *memory;
    te_recipes_config config = te_recipes_defaults();
    models[0] = &m.model, config.history = history;
    const size_t bytes = te_recipes_bytes(models, 1, &config);
    te_release(&ctx, memory);
    need(te_allocate(&ctx, &memory, bytes) == TE_OK, "memory");
    need(te_recipes_init(&recipes, memory, bytes, models, 1, &config, &ctx) == TE_OK, "recipes");
}
static void make(void) {
    static te_named_model names[1];
    te_safetensors f;
    void *p, *g;
    char path[] = "/tmp/te_recipes_fuzz_XXXXXX";
    need(te_context_create(&ctx, 0, 1) == TE_OK, "context");
    params_bytes = fuzzed_param_bytes();
    need(te_allocate(&ctx, &p, params_bytes) == TE_OK && te_allocate(&ctx, &g, fuzzed_grad_bytes()) == TE_OK, "memory");
    need(te_fill(&ctx, p, 0, params_bytes) == TE_OK && te_fill(&ctx, g, 0, fuzzed_grad_bytes()) == TE_OK, "memory");
    need(fuzzed_bind(&m, p, (float *)g, &ctx) == TE_OK && te_model_randomize(&m.model, 0.1f, 1, 0, &ctx) == TE_OK, "model");
    start_recipes(SAVED_HISTORY);
    for (int step = 0; step < 4; step++) {
        for (int i = 0; i < recipes.scales.count; i++) recipes.scales.amax[i] = (float)(1 + (step * 5 + i) % 7);
        need(te_recipes_step(&recipes, &ctx) == TE_OK, "step");
    }
    names[0].name = "h0", names[0].model = &m.model;
    all.models = names, all.count = 1, all.recipes = &recipes, all.force = 1;
    const int fd = mkstemp(path);
    need(fd >= 0, "temporary file");
    (void)close(fd);
    need(te_checkpoint_save(path, &all, &ctx) == TE_OK, "save");
    FILE *saved = fopen(path, "rb");
    need(saved != NULL, "open");
    good_bytes = fread(good, 1, sizeof good, saved);
    need(good_bytes > 0 && good_bytes < sizeof good, "read");
    fclose(saved), (void)remove(path);
    need(te_safetensors_open_memory(&f, good, good_bytes, &ctx) == TE_OK, "file");
    const te_safetensor *begun = te_safetensors_find(&f, "recipes.begun"), *scales = te_safetensors_find(&f, "recipes.scales");
    need(begun && scales, "scales");
    begun_at = (size_t)(f.data_at + begun->offset), scales_at = (size_t)(f.data_at + scales->offset), scales_bytes = (size_t)scales->bytes;
    te_safetensors_close(&f);
    start_recipes(HISTORY);
    params = (char *)p, before = (char *)malloc(params_bytes), state = (char *)malloc(recipes.scales.bytes);
    memcpy(before, params, params_bytes), memcpy(state, recipes.scales.memory, recipes.scales.bytes);
}
/* Changes numbers of recipes.begun and recipes.scales, and bytes anywhere. */
static void edit(const uint8_t *bytes, size_t n) {
    static const int64_t numbers[] = {0, 1, -1, 2, 3, 5, 9, 10, 64, 1024, 1025, INT32_MAX, INT64_MAX, INT64_MIN, (int64_t)1 << 32, ((int64_t)1 << 32) + 9};
    static const uint32_t words[] = {0, 1, 4, 8, 9, 10, 0x7f800000u, 0x7fc00000u, 0x80000000u, 0xffffffffu, 0x7f7fffffu, 0x00000001u, 0x3f800000u, 0x43e00000u, 1u << 26, 0xff800000u};
    memcpy(file, good, good_bytes);
    for (; n >= EDIT; bytes += EDIT, n -= EDIT) {
        const size_t at = ((size_t)bytes[1] << 8) | bytes[2];
        switch (bytes[0] % 4) {
        case 0: memcpy(file + begun_at + 8 * (at % 3), &numbers[bytes[3] % 16], 8); break;
        case 1: memcpy(file + scales_at + 4 * (at % (scales_bytes / 4)), &words[bytes[3] % 16], 4); break;
        case 2: file[scales_at + at % scales_bytes] = bytes[3]; break;
        default: file[at % good_bytes] = bytes[3];
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    if (!params) make();
    edit(bytes, n);
    te_safetensors f;
    if (te_safetensors_open_memory(&f, file, good_bytes, &ctx) != TE_OK) return 0;
    if (te_checkpoint_load(&all, &f, &ctx) == TE_OK) {
        need(te__scales_are_valid(&recipes.scales, recipes.scales.memory), "scales that cannot be were taken");
        for (int i = 0; i < 2; i++) need(te_recipes_step(&recipes, &ctx) == TE_OK, "step");
    } else need(!memcmp(params, before, params_bytes) && !memcmp(state, recipes.scales.memory, recipes.scales.bytes), "a refused file changed something");
    memcpy(params, before, params_bytes), memcpy(recipes.scales.memory, state, recipes.scales.bytes);
    te_safetensors_close(&f);
    return 0;
}
