/* fp8_weights_fuzz.c -- a libFuzzer entry for files of FP8 weights (te/io/fp8_weights.h) whose checksum is right although
 * they were changed. The first byte of an input chooses the recipe. A refused file binds nothing; after an accepted one all
 * scales are positive numbers, and inference stays within its memory. tests/fuzz.sh builds and runs it.
 */
#include "te/te.h"
#include "edit.h"

#define LIST (linear, a, 32, 144), (gelu, g), (linear, b, 144, 32), (linear, c, 32, 32, (recipe, none))
#define BOTH(name) TE_SEQUENTIAL(name##_trained, (bf16, (recipe, name)), LIST) TE_INFERENCE(name, (bf16, (recipe, name)), LIST)
BOTH(fp8_delayed)
BOTH(fp8_current)
BOTH(fp8_block)
BOTH(fp8_row)

enum { ROWS = 4, WIDTH = 32, MAX_PARAMS = 4, RECIPES = 4 };

static te_context ctx;
static fuzz_file files[RECIPES];
static const te_plan *plans[RECIPES];
static void *memory;
static size_t memory_bytes;
static te_tensor x, y;
static te_batch batch;

static void need(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "fp8_weights_fuzz: %s: %s\n", what, te_last_error(&ctx));
    abort();
}
static void *get(size_t bytes) {
    void *p;
    need(te_allocate(&ctx, &p, bytes) == TE_OK && te_fill(&ctx, p, 0, bytes) == TE_OK, "memory");
    return p;
}
/* Saves the weights of a list after a step, so that fp8_delayed has scales for its inputs. */
static void save(fuzz_file *file, const te_plan *plan) {
    char path[FUZZ_PATH];
    te_model m, *models[1];
    te_param params[MAX_PARAMS];
    te_recipes recipes;
    te_recipes_config config = te_recipes_defaults();
    te_saved saved;
    const te_named_model named = {"h0", &m};
    models[0] = &m, config.history = 3;
    memset(&m, 0, sizeof m), memset(&saved, 0, sizeof saved);
    void *const weights = get(te_plan_param_bytes(plan)), *const grads = get(te_plan_grad_bytes(plan));
    need(te_model_bind(&m, plan, params, 3, weights, (float *)grads, &ctx) == TE_OK, "bind");
    need(te_model_randomize(&m, 0.2f, 1, 0, &ctx) == TE_OK, "weights");
    const size_t recipes_bytes = te_recipes_bytes(models, 1, &config);
    void *const scales = get(recipes_bytes);
    need(te_recipes_init(&recipes, scales, recipes_bytes, models, 1, &config, &ctx) == TE_OK, "recipes");
    saved.memory = get(saved.bytes = te_plan_saved_bytes(plan, ROWS));
    need(te_context_reserve(&ctx, te_plan_workspace_bytes(plan, &m, ROWS, &ctx)) == TE_OK, "workspace");
    need(te_plan_forward(y, &saved, x, plan, &m, &batch, &ctx) == TE_OK && te_recipes_step(&recipes, &ctx) == TE_OK, "step");
    fuzz_temporary(path, "fp8");
    need(te_fp8_weights_save(path, &named, 1, &ctx) == TE_OK, "save");
    fuzz_read(file, path), (void)remove(path);
    te_release(&ctx, weights), te_release(&ctx, grads), te_release(&ctx, scales), te_release(&ctx, saved.memory);
}
static void make(void) {
    const te_plan *const trained[RECIPES] = {fp8_delayed_trained_plan(), fp8_current_trained_plan(), fp8_block_trained_plan(), fp8_row_trained_plan()};
    plans[0] = fp8_delayed_plan(), plans[1] = fp8_current_plan(), plans[2] = fp8_block_plan(), plans[3] = fp8_row_plan();
    need(te_context_create(&ctx, 0, 1) == TE_OK, "context");
    batch.batch = 1, batch.seq = ROWS;
    x = te_matrix(get(ROWS * WIDTH * 2), TE_bf16, ROWS, WIDTH), y = te_matrix(get(ROWS * WIDTH * 2), TE_bf16, ROWS, WIDTH);
    for (int i = 0; i < ROWS * WIDTH; i++) te_store((void *)(uintptr_t)x.data, i, (float)(i % 7) - 3.0f, TE_bf16);
    for (int i = 0; i < RECIPES; i++) save(&files[i], trained[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    te_model m;
    te_param params[MAX_PARAMS];
    te_fp8_weights weights;
    te_safetensors f;
    const te_named_model named = {"h0", &m};
    if (!plans[0]) make();
    if (!n) return 0;
    const int of = bytes[0] % RECIPES;
    fuzz_file *file = &files[of];
    fuzz_edit(file, bytes + 1, n - 1), fuzz_seal(file);
    unsigned char *exact = fuzz_exact(file);
    memset(&m, 0, sizeof m), memset(params, 0, sizeof params), memset(&weights, 0, sizeof weights);
    need(te_model_bind(&m, plans[of], params, 3, 0, 0, &ctx) == TE_OK, "bind");
    memory_bytes = te_fp8_weights_bytes(&named, 1);
    memory = get(memory_bytes);
    if (te_safetensors_open_memory(&f, exact, file->size, &ctx) == TE_OK) {
        if (te_safetensors_verify(&f, &ctx) == TE_OK && te_fp8_weights_load(&weights, memory, memory_bytes, &named, 1, &f, &ctx) == TE_OK) {
            for (int i = 0; i < weights.scales.count; i++) {
                const float scale = weights.scales.scale[i];
                need(scale > 0 && scale <= TE__SCALE_MAX, "a scale that is none");
            }
            need(te_context_reserve(&ctx, te_plan_workspace_bytes(plans[of], &m, ROWS, &ctx)) == TE_OK, "workspace");
            need(te_plan_infer(y, x, plans[of], &m, &batch, &ctx) == TE_OK, "infer");
        } else {
            need(n > 1, "the valid file");
            for (int i = 0; i < m.param_count; i++) need(!params[i].data && !params[i].fp8.data, "a refused file is bound");
        }
        te_safetensors_close(&f);
    }
    te_release(&ctx, memory), free(exact);
    return 0;
}
