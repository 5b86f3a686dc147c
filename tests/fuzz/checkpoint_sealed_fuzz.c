/* checkpoint_sealed_fuzz.c -- a libFuzzer entry for checkpoints whose checksum is right although they were changed: a
 * checksum finds accidents, and does not protect from a stranger's file. Such a file may be accepted or refused; a refused
 * one changes nothing, and after an accepted one a whole training step stays within its memory.
 * tests/fuzz.sh builds and runs it.
 */
#include "te/te.h"
#include "edit.h"

TE_SEQUENTIAL(fuzzed, (bf16, (recipe, fp8_delayed)), (linear, fc, 16, 32), (bias, b, 32), (gelu, act), (linear, out, 32, 16))

enum { ROWS = 4, HISTORY = 5, REGIONS = 4 };

static te_context ctx;
static fuzzed m;
static te_adamw opt;
static te_recipes recipes;
static te_loss_scaler scaler;
static te_named_model names[1];
static te_checkpoint all;
static te_saved saved;
static te_tensor x, y, dx;
static te_batch batch;
static fuzz_file file;
static te_safetensors valid; /* of the valid file, which undoes an accepted one */
static struct { char *data, *before; size_t bytes; } memory[REGIONS]; /* parameters, optimizer, recipes, loss scale */

static void need(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "checkpoint_sealed_fuzz: %s: %s\n", what, te_last_error(&ctx));
    abort();
}
static void *get(size_t bytes) {
    void *p;
    need(te_allocate(&ctx, &p, bytes) == TE_OK && te_fill(&ctx, p, 0, bytes) == TE_OK, "memory");
    return p;
}
/* A training step; sanitizers watch it. Its numbers may be anything. */
static void step(void) {
    need(fuzzed_forward(y, &saved, x, &m, &batch, &ctx) == TE_OK, "forward");
    need(fuzzed_backward(dx, y, &saved, &m, &batch, &ctx) == TE_OK, "backward");
    need(te_adamw_step(&opt, &ctx) == TE_OK && te_recipes_step(&recipes, &ctx) == TE_OK, "step");
}
static void make(void) {
    static te_model *models[1];
    char path[FUZZ_PATH];
    te_adamw_config config = te_adamw_defaults(1e-3f);
    te_recipes_config of = te_recipes_defaults();
    const te_loss_scale_config scaling = te_loss_scale_defaults();
    models[0] = &m.model, config.moments = TE_e4m3, of.history = HISTORY;
    need(te_context_create(&ctx, 0, 1) == TE_OK, "context");
    memory[0].bytes = fuzzed_param_bytes();
    memory[0].data = (char *)get(memory[0].bytes);
    need(fuzzed_bind(&m, memory[0].data, (float *)get(fuzzed_grad_bytes()), &ctx) == TE_OK, "bind");
    need(te_model_randomize(&m.model, 0.1f, 1, 0, &ctx) == TE_OK, "weights");
    memory[1].bytes = te_adamw_bytes_of(models, 1, &config), memory[2].bytes = te_recipes_bytes(models, 1, &of);
    memory[1].data = (char *)get(memory[1].bytes), memory[2].data = (char *)get(memory[2].bytes);
    need(te_adamw_init(&opt, memory[1].data, memory[1].bytes, models, 1, &config, &ctx) == TE_OK, "optimizer");
    need(te_recipes_init(&recipes, memory[2].data, memory[2].bytes, models, 1, &of, &ctx) == TE_OK, "recipes");
    memory[3].bytes = te_loss_scaler_bytes(), memory[3].data = (char *)get(memory[3].bytes);
    need(te_loss_scaler_init(&scaler, memory[3].data, memory[3].bytes, &scaling, &ctx) == TE_OK, "loss scale");
    need(te_adamw_use_loss_scaler(&opt, &scaler, &ctx) == TE_OK, "loss scale");
    need(te_context_reserve(&ctx, fuzzed_workspace_bytes(&m, ROWS, &ctx)) == TE_OK, "workspace");
    saved.memory = get(saved.bytes = fuzzed_saved_bytes(ROWS));
    batch.batch = 1, batch.seq = ROWS;
    x = te_matrix(get(ROWS * 16 * 2), TE_bf16, ROWS, 16), y = te_matrix(get(ROWS * 16 * 2), TE_bf16, ROWS, 16);
    dx = te_matrix(get(ROWS * 16 * 2), TE_bf16, ROWS, 16);
    for (int i = 0; i < ROWS * 16; i++) te_store((void *)(uintptr_t)x.data, i, (float)(i % 7) - 3.0f, TE_bf16);
    for (int i = 0; i < 2; i++) step();
    names[0].name = "h0", names[0].model = &m.model;
    all.models = names, all.count = 1, all.optimizer = &opt, all.random = 1, all.recipes = &recipes;
    fuzz_temporary(path, "sealed");
    need(te_checkpoint_save(path, &all, &ctx) == TE_OK, "save");
    fuzz_read(&file, path), (void)remove(path);
    need(te_safetensors_open_memory(&valid, file.good, file.good_size, &ctx) == TE_OK, "open");
    need(te_checkpoint_load(&all, &valid, &ctx) == TE_OK, "load");
    for (int i = 0; i < REGIONS; i++) memory[i].before = (char *)malloc(memory[i].bytes), memcpy(memory[i].before, memory[i].data, memory[i].bytes);
}
static void check_unchanged(void) {
    for (int i = 0; i < REGIONS; i++) need(!memcmp(memory[i].data, memory[i].before, memory[i].bytes), "a refused file changed something");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    te_safetensors f;
    if (!valid.path) make();
    fuzz_edit(&file, bytes, n), fuzz_seal(&file);
    unsigned char *exact = fuzz_exact(&file);
    if (te_safetensors_open_memory(&f, exact, file.size, &ctx) == TE_OK) {
        for (all.force = 0; all.force < 2; all.force++) {
            if (te_checkpoint_load(&all, &f, &ctx) != TE_OK) {
                check_unchanged();
                continue;
            }
            step();
            for (int i = 0; i < REGIONS; i++) memcpy(memory[i].data, memory[i].before, memory[i].bytes);
            all.force = 0;
            need(te_checkpoint_load(&all, &valid, &ctx) == TE_OK, "the valid file");
            all.force = 1; /* once is enough: force accepts all that was accepted without */
        }
        te_safetensors_close(&f);
    }
    free(exact);
    return 0;
}
