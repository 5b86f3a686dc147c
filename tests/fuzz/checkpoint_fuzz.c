/* checkpoint_fuzz.c -- a libFuzzer entry for checkpoints. The input is a list of edits of a valid checkpoint. The edited
 * file must not cause a crash; if it is refused, no weight may change; and if it is accepted without `force`, it is the
 * valid file, or has none of the library's metadata. tests/fuzz.sh builds and runs it.
 */
#include <stdio.h>

#include "te/te.h"

TE_SEQUENTIAL(fuzzed, f32, (linear, fc, 4, 6), (bias, b, 6), (gelu, act), (linear, out, 6, 4))
TE_INFERENCE(alone, f32, (linear, fc, 4, 6), (bias, b, 6), (gelu, act), (linear, out, 6, 4))

enum { EDIT = 4 /* bytes of input for each edit */, MAX_BYTES = 1 << 16 };

static te_context ctx;
static fuzzed m;
static te_adamw opt;
static te_named_model names[1];
static te_checkpoint all;
static unsigned char good[MAX_BYTES], file[2 * MAX_BYTES];
static char *params, *before;
static size_t good_bytes, params_bytes;

static void need(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "checkpoint_fuzz: %s: %s\n", what, te_last_error(&ctx));
    abort();
}
static void make(void) {
    static te_model *models[1];
    te_adamw_config config = te_adamw_defaults(1e-3f);
    void *p, *g, *o;
    char path[] = "/tmp/te_checkpoint_fuzz_XXXXXX";
    models[0] = &m.model;
    need(te_context_create(&ctx, 0, 1) == TE_OK, "context");
    params_bytes = fuzzed_param_bytes();
    need(te_allocate(&ctx, &p, params_bytes) == TE_OK && te_allocate(&ctx, &g, fuzzed_grad_bytes()) == TE_OK, "memory");
    need(te_fill(&ctx, p, 0, params_bytes) == TE_OK && te_fill(&ctx, g, 0, fuzzed_grad_bytes()) == TE_OK, "memory");
    need(fuzzed_bind(&m, p, (float *)g, &ctx) == TE_OK && te_model_randomize(&m.model, 0.1f, 1, 0, &ctx) == TE_OK,
         "model");
    need(te_allocate(&ctx, &o, te_adamw_bytes(models, 1)) == TE_OK, "memory");
    need(te_adamw_init(&opt, o, te_adamw_bytes(models, 1), models, 1, &config, &ctx) == TE_OK, "optimizer");
    names[0].name = "h0", names[0].model = &m.model;
    all.models = names, all.count = 1, all.optimizer = &opt, all.random = 1;
    const int fd = mkstemp(path);
    need(fd >= 0, "temporary file");
    (void)close(fd);
    need(te_checkpoint_save(path, &all, &ctx) == TE_OK, "save");
    FILE *f = fopen(path, "rb");
    need(f != NULL, "open");
    good_bytes = fread(good, 1, sizeof good, f);
    need(good_bytes > 0 && good_bytes < sizeof good, "read");
    fclose(f), (void)remove(path);
    params = (char *)p, before = (char *)malloc(params_bytes);
    memcpy(before, params, params_bytes);
}
/* Changes, removes or inserts bytes, truncates the file, or changes the length of the header. */
static size_t edit(const uint8_t *bytes, size_t n) {
    static const char *const pieces[] = {"\"",      "\\",
                                         "{",       "}",
                                         "[",       "]",
                                         ",",       ":",
                                         "0",       "18446744073709551615",
                                         "\\ud800", "te.",
                                         "F64",     "9223372036854775807",
                                         "null",    "\"shape\":[",
                                         "\xff",    "__metadata__",
                                         " ",       "-1"};
    size_t size = good_bytes;
    memcpy(file, good, good_bytes);
    for (; n >= EDIT && size > 16 && size < MAX_BYTES + 4096; bytes += EDIT, n -= EDIT) {
        const size_t at = (((size_t)bytes[1] << 8) | bytes[2]) % size, left = size - at;
        const char *piece = pieces[bytes[3] % (sizeof pieces / sizeof *pieces)];
        const size_t length = strlen(piece), cut = (size_t)(bytes[3] % 16) < left ? (size_t)(bytes[3] % 16) : left;
        switch (bytes[0] % 6) {
        case 0: file[at] = bytes[3]; break;
        case 1: file[at] ^= (unsigned char)(1 << bytes[3] % 8); break;
        case 2: memmove(file + at, file + at + cut, left - cut), size -= cut; break;
        case 3: memmove(file + at + length, file + at, left), memcpy(file + at, piece, length), size += length; break;
        case 4: size = at; break;
        default:
            for (int i = 0; i < 8; i++) file[i] = (unsigned char)((at > 8 ? at - 8 : 0) >> (8 * i));
        }
    }
    return size;
}

/* Checks that weights that are used in place (te_weights_use) lie within the file. */
static void use(const te_safetensors *f, const unsigned char *from, size_t size) {
    alone m;
    const te_named_model named = {"h0", &m.model};
    need(alone_bind(&m, NULL, &ctx) == TE_OK, "bind");
    if (te_weights_use(&named, 1, f, &ctx) != TE_OK) return;
    for (int i = 0; i < m.model.param_count; i++) {
        const te_param *p = &m.model.param[i];
        const unsigned char *at = (const unsigned char *)p->data, *end = at + (size_t)(p->rows * p->cols) * sizeof(float);
        need(at >= from && end <= from + size, "weights beyond the file");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    if (!params) make();
    const size_t size = edit(bytes, n);
    unsigned char *exact = (unsigned char *)malloc(size + !size); /* of the exact size, so that the sanitizer finds a read beyond the end */
    te_safetensors f;
    need(exact != NULL, "memory");
    memcpy(exact, file, size);
    if (te_safetensors_open_memory(&f, exact, size, &ctx) == TE_OK) {
        int ours = 0;
        for (int i = 0; i < f.metadata_count; i++) ours |= !strncmp(f.metadata[i].key, "te.", 3);
        all.force = 0;
        const te_status status = te_checkpoint_load(&all, &f, &ctx);
        if (status == TE_OK && ours && (size != good_bytes || memcmp(file, good, size)))
            need(0, "a changed file was accepted");
        if (status != TE_OK && memcmp(params, before, params_bytes))
            need(0, "a refused file changed a weight");
        all.force = 1;
        (void)te_checkpoint_load(&all, &f, &ctx);
        memcpy(params, before, params_bytes);
        use(&f, exact, size);
        te_safetensors_close(&f);
    }
    free(exact);
    return 0;
}
