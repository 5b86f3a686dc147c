/* checkpoint_fuzz.c -- a libFuzzer entry for checkpoints. The input is a list of edits of a valid checkpoint. The edited
 * file must not cause a crash; if it is refused, no weight may change; and if it is accepted without `force`, it is the
 * valid file, or has none of the library's metadata. tests/fuzz.sh builds and runs it.
 */
#include <stdio.h>

#include "te/te.h"
#include "edit.h"

TE_SEQUENTIAL(fuzzed, f32, (linear, fc, 4, 6), (bias, b, 6), (gelu, act), (linear, out, 6, 4))
TE_INFERENCE(alone, f32, (linear, fc, 4, 6), (bias, b, 6), (gelu, act), (linear, out, 6, 4))

static te_context ctx;
static fuzzed m;
static te_adamw opt;
static te_named_model names[1];
static te_checkpoint all;
static fuzz_file file;
static char *params, *before;
static size_t params_bytes;

static void need(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "checkpoint_fuzz: %s: %s\n", what, te_last_error(&ctx));
    abort();
}
static void make(void) {
    static te_model *models[1];
    te_adamw_config config = te_adamw_defaults(1e-3f);
    void *p, *g, *o;
    char path[FUZZ_PATH];
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
    fuzz_temporary(path, "checkpoint");
    need(te_checkpoint_save(path, &all, &ctx) == TE_OK, "save");
    fuzz_read(&file, path), (void)remove(path);
    params = (char *)p, before = (char *)malloc(params_bytes);
    memcpy(before, params, params_bytes);
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
    fuzz_edit(&file, bytes, n);
    const size_t size = file.size;
    unsigned char *exact = fuzz_exact(&file);
    te_safetensors f;
    if (te_safetensors_open_memory(&f, exact, size, &ctx) == TE_OK) {
        int ours = 0;
        for (int i = 0; i < f.metadata_count; i++) ours |= !strncmp(f.metadata[i].key, "te.", 3);
        all.force = 0;
        const te_status status = te_checkpoint_load(&all, &f, &ctx);
        if (status == TE_OK && ours && (size != file.good_size || memcmp(exact, file.good, size)))
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
