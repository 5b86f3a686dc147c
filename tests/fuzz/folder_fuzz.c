/* folder_fuzz.c -- a libFuzzer entry for a folder as Hugging Face publishes it, as examples/llama reads it: config.json, the
 * index of several files, and the files. The first byte of an input chooses the family, the second the file that the rest of
 * the input edits. A folder is loaded whole or refused. tests/fuzz.sh builds and runs it.
 */
/* The sizes of the models, in the form of examples/llama/models.h. */
#define LLAMA (16, 24, 32, 2, 1, 16, 10000.0f)
#define QWEN3 (16, 24, 32, 2, 1, 16, 1000000.0f)
#define GEMMA2 (16, 24, 32, 2, 1, 16, 0.25f, 4.0f, 8)
#define GPT2 (16, 64, 32, 1, 48)
#define LLAMA31 (16, 24, 32, 2, 1, 16, 100.0f, 8.0f, 1.0f, 4.0f, 16)
#define QWEN2 (16, 24, 32, 2, 1, 16, 1000000.0f)

#define main llama_main
#include "examples/llama/llama.c"
#undef main
#include "edit.h"

enum { FILES = 4, LAYERS = 2, FAMILIES = sizeof families / sizeof families[0] };
static const char *const names[FILES] = {"config.json", "model.safetensors.index.json", "model-1.safetensors", "model-2.safetensors"};

static te_context ctx;
static fuzz_file files[FAMILIES][FILES];
static char folder[FUZZ_PATH];

static void need(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "folder_fuzz: %s: %s\n", what, te_last_error(&ctx));
    abort();
}
static const char *path_of(const char *name) {
    static char path[256];
    return snprintf(path, sizeof path, "%s/%s", folder, name), path;
}
static void gone(void) {
    for (int i = 0; i < FILES; i++) (void)remove(path_of(names[i]));
    (void)rmdir(folder);
}
/* config.json, with the values that this build of the program requires. */
static void write_config(const family *is) {
    FILE *f = fopen(path_of(names[0]), "wb");
    need(f != 0, "config.json");
    fprintf(f, "{\"model_type\": \"%s\", \"%s\": %d", is->type, is->layers, (int)LAYERS);
    for (int nested = 0; nested < 2; nested++) { /* first the plain values, then those of rope_parameters */
        if (nested) fprintf(f, ", \"rope_parameters\": {\"none\": null");
        for (const want *w = is->wants; w->key; w++) {
            const char *dot = strchr(w->key, '.');
            int twice = 0;
            for (const want *v = is->wants; v < w; v++) twice |= !strcmp(v->key, w->key);
            if (twice || !!dot != nested || (dot && strncmp(w->key, "rope_parameters.", 16)) || (w->number == 0 && !w->text)) continue;
            if (w->text) fprintf(f, ",\n\"%s\": \"%s\"", dot ? dot + 1 : w->key, w->text);
            else fprintf(f, ",\n\"%s\": %.17g", dot ? dot + 1 : w->key, w->number);
        }
        if (nested) fprintf(f, "}");
    }
    need(!fputs("}\n", f) || 1, "config.json"), need(!fclose(f), "config.json");
}
/* The tensors of a model, whose parts are bound but not loaded: every other one goes to the second file. */
static void write_tensors(const family *is) {
    te_packed_list all = te_packed_none();
    te_model m[LAYERS + 2];
    static te_param params[LAYERS + 2][MAX_PARAMS];
    static te_safetensor of[2][64];
    void *memory[LAYERS + 2];
    int count[2] = {0, 0};
    char prefix[MAX_NAME];
    FILE *index = fopen(path_of(names[1]), "wb");
    need(index != 0, "index");
    for (int i = 0; i < LAYERS + 2; i++) {
        const te_plan *plan = !i ? is->embed() : i == LAYERS + 1 ? is->head() : i % 2 ? is->first() : is->second();
        const te_packed *from_parts = !i ? is->embed_from : i == LAYERS + 1 ? is->head_from : is->block_from;
        int tensors = 0, n = 0;
        while (from_parts[tensors].name) tensors++;
        for (int k = 0; k < plan->op_count; k++) n += plan->op[k].params;
        if (i && i <= LAYERS) snprintf(prefix, sizeof prefix, "%s%s.%d.", is->prefix, is->layer, i - 1);
        else snprintf(prefix, sizeof prefix, "%s", is->prefix);
        need(te_allocate(&ctx, &memory[i], te_plan_param_bytes(plan)) == TE_OK, "memory");
        need(te_model_bind(&m[i], plan, params[i], n, memory[i], 0, &ctx) == TE_OK && te_model_randomize(&m[i], 0.1f, 1, 0, &ctx) == TE_OK, "bind");
        need(te_packed_add(&all, &m[i], from_parts, tensors, prefix, &ctx) == TE_OK, "packed");
        const te_packed head = {"lm_head.weight", "head", "weight", 0, 0};
        if (i == LAYERS + 1 && !is->tied) need(te_packed_add(&all, &m[i], &head, 1, "", &ctx) == TE_OK, "head");
    }
    fprintf(index, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (int i = 0; i < all.count; i++) {
        need(count[i % 2] < 64, "tensors");
        fprintf(index, "%s\"%s\": \"%s\"", i ? ",\n" : "", all.tensor[i].name, names[2 + i % 2]);
        of[i % 2][count[i % 2]++] = all.tensor[i];
    }
    fprintf(index, "}}\n"), need(!fclose(index), "index");
    for (int i = 0; i < 2; i++) need(te_safetensors_write(path_of(names[2 + i]), of[i], count[i], 0, 0, &ctx) == TE_OK, "write");
    te_packed_free(&all);
    for (int i = 0; i < LAYERS + 2; i++) te_release(&ctx, memory[i]);
}
static te_status load(void) {
    memset(&from, 0, sizeof from), parts = 0;
    from.folder = folder;
    const te_status status = load_model(&ctx);
    clean_up(&ctx);
    return status;
}
static void make(void) {
    fuzz_name(folder, "folder");
    need(te_context_create(&ctx, 0, 1) == TE_OK && mkdtemp(folder), "folder");
    atexit(gone);
    for (size_t i = 0; i < FAMILIES; i++) {
        write_config(&families[i]), write_tensors(&families[i]);
        need(load() == TE_OK, families[i].sizes);
        for (int k = 0; k < FILES; k++) fuzz_read(&files[i][k], path_of(names[k]));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    static int has = FAMILIES - 1, edited = 0; /* the family whose files the folder has, and which of them is edited */
    if (!files[0][0].good_size) make();
    if (n < 2) return 0;
    const int is = bytes[0] % FAMILIES, file = bytes[1] % FILES;
    for (int k = 0; k < FILES; k++)
        if (is != has || k == edited) fuzz_write(path_of(names[k]), files[is][k].good, files[is][k].good_size);
    has = is, edited = file;
    fuzz_edit(&files[is][file], bytes + 2, n - 2);
    fuzz_write(path_of(names[file]), files[is][file].bytes, files[is][file].size);
    const te_status status = load();
    need(n > 2 || status == TE_OK, "the valid folder");
    return 0;
}
