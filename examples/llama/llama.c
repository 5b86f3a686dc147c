/* llama.c -- logits of a Llama, Qwen2, Qwen3, Gemma 2 or GPT-2 from a folder as Hugging Face publishes it: config.json,
 * and model.safetensors or, if there is none, several files and model.safetensors.index.json.
 *
 *     cc -O3 -march=native -fopenmp -DTE_CBLAS -include sizes.h -I. examples/llama/llama.c -o llama -lopenblas -lm
 *     nvcc -O3 -gencode arch=compute_90a,code=sm_90a -include sizes.h -I. -x cu examples/llama/llama.c -o llama -lcublasLt
 *     ./llama FOLDER 785 6722 315 9625 374            the five most likely tokens to follow these
 *     ./llama FOLDER --check expected.safetensors 1e-4     compares the logits for the file's `ids` with its `logits`
 *
 * Sizes are compile-time constants (models.h), so each size of a model needs its own build: `examples/llama/sizes.py
 * FOLDER >sizes.h` writes the sizes of the model in a folder to a header, and `-include sizes.h` compiles for them.
 * Weights are converted to MODEL_DTYPE, by default f32 on the host and bf16 on CUDA.
 */
#include "models.h"

#include <stdio.h>
#include <stdlib.h> /* calloc, strtod */

enum { MAX_FILES = 256, MAX_PARAMS = 24, MAX_NAME = 256, TOP = 5 };

/* The instance of a list: its model, and its parameters. */
typedef struct part {
    const te_plan *plan;
    te_model model;
    te_param param[MAX_PARAMS];
    te_packed_list views; /* of its parameters, in the shapes of the files' tensors */
} part;

/* The files of a model. used: for each tensor of a file, whether a parameter was loaded from it. */
typedef struct checkpoint {
    const char *folder;
    te_json config, index; /* index: empty if there is one file */
    const family *is;
    const char *prefix;
    char table[MAX_NAME];      /* the name of the embedding's table, as the family has it */
    const char *table_in_file; /* the same, or that of the head, if the head is tied and the files have only that */
    int files, layers, tied;
    char name[MAX_FILES][MAX_NAME], *used[MAX_FILES];
    te_safetensors file[MAX_FILES];
} checkpoint;

static checkpoint from;
static part *parts; /* [1 + layers + 1]: embedding, blocks, head */

/* ---- config.json ------------------------------------------------------------------------------------------------- */

/* The value of a key of config.json; null if it is missing or null. */
static const te_json_value *said(const char *key) {
    const te_json_value *v = te_json_find(&from.config, key);
    return v && v->kind != TE_JSON_null ? v : 0;
}
static te_status check_want(const want *w, te_context *ctx) {
    const te_json_value *v = said(w->key);
    if (!v && w->old) v = said(w->old);
    TE_REQUIRE(v || !(w->otherwise != w->otherwise), ctx, TE_ERROR_FORMAT, "config.json has no %s", w->key);
    const char *end = strrchr(w->key, '.');
    const int is_rope = !strncmp(w->key, "rope_", 5) && end && (!strcmp(end, ".rope_type") || !strcmp(end, ".type"));
    TE_REQUIRE(!is_rope || !v || (v->text && !strcmp(v->text, w->text)), ctx, TE_ERROR_VALUE,
               "config.json: the rotary positions are scaled by %.40s (%s); this program has %s", v->text ? v->text : "?",
               v->name, !strcmp(from.is->type, "llama") ? "default and llama3" : "none of these scalings");
    if (w->text) {
        TE_REQUIRE(!v || (v->text && !strcmp(v->text, w->text)), ctx, TE_ERROR_VALUE,
                   "config.json: %s is %.40s, of this family only %s is known here", w->key, v->text ? v->text : "no text",
                   w->text);
        return TE_OK;
    }
    const double is = v ? v->number : w->otherwise;
    TE_REQUIRE((!v || !v->text) && fabs(is - w->number) <= 1e-6 * fabs(w->number), ctx, TE_ERROR_VALUE,
               "config.json: %s is %.7g, this program was compiled for %.7g: see %s in "
               "examples/llama/models.h; examples/llama/sizes.py writes a sizes.h to compile with (-include sizes.h)",
               w->key, is, w->number, from.is->sizes);
    return TE_OK;
}
/* Gemma 2: layers 0, 2, .. have the sliding window. */
static te_status check_layers(te_context *ctx) {
    char key[MAX_NAME];
    for (int i = 0; i < from.layers && from.is->first != from.is->second; i++) {
        const char *is = i % 2 ? "full_attention" : "sliding_attention";
        snprintf(key, sizeof key, "layer_types.%d", i);
        const te_json_value *v = said(key);
        TE_REQUIRE(!v || (v->text && !strcmp(v->text, is)), ctx, TE_ERROR_VALUE, "config.json: %s should be %s", key, is);
    }
    return TE_OK;
}
static te_status read_config(te_context *ctx) {
    char path[1024];
    snprintf(path, sizeof path, "%s/config.json", from.folder);
    TE_TRY(te_json_open(&from.config, path, ctx));
    const te_json_value *type = said("model_type"), *tied = said("tie_word_embeddings");
    const te_json_value *rope = said("rope_parameters.rope_type");
    if (!rope) rope = said("rope_scaling.rope_type");
    for (size_t i = 0; type && type->text && i < sizeof families / sizeof families[0]; i++)
        if (!strcmp(type->text, families[i].type) &&
            (!families[i].rope || (rope && rope->text && !strcmp(rope->text, families[i].rope))))
            from.is = &families[i];
    TE_REQUIRE(from.is, ctx, TE_ERROR_VALUE, "config.json: model_type is %.40s; llama, qwen2, qwen3, gemma2 and gpt2 are known",
               type && type->text ? type->text : "missing");
    for (const want *w = from.is->wants; w->key; w++) TE_TRY(check_want(w, ctx));
    const te_json_value *layers = said(from.is->layers);
    TE_REQUIRE(layers && layers->number >= 1 && layers->number <= 1000 && layers->number == (int)layers->number, ctx,
               TE_ERROR_FORMAT, "config.json: %s should be 1 to 1000", from.is->layers);
    from.layers = (int)layers->number, from.tied = tied ? tied->number != 0 : from.is->tied;
    return check_layers(ctx);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static te_status open_file(int *number, const char *name, te_context *ctx) {
    char path[1024];
    for (*number = 0; *number < from.files; ++*number)
        if (!strcmp(from.name[*number], name)) return TE_OK;
    TE_REQUIRE(from.files < MAX_FILES && strlen(name) < MAX_NAME && !strchr(name, '/'), ctx, TE_ERROR_FORMAT,
               "the index names more than %d files, or one in another folder: %.60s", (int)MAX_FILES, name);
    snprintf(path, sizeof path, "%s/%s", from.folder, name);
    TE_TRY(te_safetensors_open(&from.file[*number], path, ctx));
    snprintf(from.name[*number], MAX_NAME, "%s", name);
    from.files++, from.used[*number] = (char *)calloc((size_t)from.file[*number].count + 1, 1);
    TE_REQUIRE(from.used[*number], ctx, TE_ERROR_MEMORY, "no memory for the table of a file");
    return TE_OK;
}
/* The file that has this tensor: as the index says, or the only one. */
static te_status file_of(int *number, const char *tensor, te_context *ctx) {
    char key[MAX_NAME + 16];
    if (!from.index.count) return open_file(number, "model.safetensors", ctx);
    snprintf(key, sizeof key, "weight_map.%s", tensor);
    const te_json_value *v = te_json_find(&from.index, key);
    TE_REQUIRE(v && v->text, ctx, TE_ERROR_FORMAT, "model.safetensors.index.json has no tensor %.80s", tensor);
    return open_file(number, v->text, ctx);
}
/* Whether the index or the only file has the tensor `name`, with `prefix` in front. */
static int has_tensor(const char *prefix, const char *name) {
    char key[2 * MAX_NAME];
    snprintf(key, sizeof key, "%s%s%s", from.index.count ? "weight_map." : "", prefix, name);
    return from.index.count ? te_json_find(&from.index, key) != 0 : te_safetensors_find(&from.file[0], key) != 0;
}
/* Open the only file, or the index. As in transformers, an index beside model.safetensors is not read. */
static te_status open_files(te_context *ctx) {
    char path[1024];
    int number;
    snprintf(path, sizeof path, "%s/model.safetensors", from.folder);
    const int is_one = !access(path, F_OK);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", from.folder);
    if (!is_one && !access(path, F_OK)) TE_TRY(te_json_open(&from.index, path, ctx));
    else TE_TRY(open_file(&number, "model.safetensors", ctx));
    const char *table = from.is->embed_from->name;
    from.prefix = from.is->prefix; /* the original files of GPT-2 have no prefix */
    if (!has_tensor(from.prefix, table) && !has_tensor(from.prefix, from.is->head_from->name)) from.prefix = "";
    snprintf(from.table, sizeof from.table, "%s%s", from.prefix, table), from.table_in_file = from.table;
    if (from.tied && !has_tensor("", from.table) && has_tensor("", "lm_head.weight")) from.table_in_file = "lm_head.weight";
    return TE_OK;
}
/* Load the views from number `first` on, each from the file that has it. */
static te_status load_views(part *p, int first, te_context *ctx) {
    for (int i = first; i < p->views.count; i++) {
        te_safetensor t = p->views.tensor[i];
        int number;
        if (!strcmp(t.name, from.table)) t.name = from.table_in_file;
        TE_TRY(file_of(&number, t.name, ctx));
        const te_safetensors *f = &from.file[number];
        TE_TRY(te_safetensors_load(f, &t, 1, 0, ctx));
        from.used[number][te_safetensors_find(f, t.name) - f->tensor] = 1;
    }
    return TE_OK;
}
static te_status load_part(part *p, const te_plan *plan, const te_packed *packed, const char *prefix, te_context *ctx) {
    void *memory;
    int count = 0, tensors = 0;
    for (int i = 0; i < plan->op_count; i++) count += plan->op[i].params;
    while (packed[tensors].name) tensors++;
    TE_REQUIRE(count <= MAX_PARAMS, ctx, TE_ERROR_STATE, "%s: more than %d parameters", plan->name, (int)MAX_PARAMS);
    p->plan = plan;
    TE_TRY(te_allocate(ctx, &memory, te_plan_param_bytes(plan)));
    TE_TRY(te_model_bind(&p->model, plan, p->param, count, memory, 0, ctx));
    TE_TRY(te_packed_add(&p->views, &p->model, packed, tensors, prefix, ctx));
    return load_views(p, 0, ctx);
}
/* Every tensor of the files must have been used, except attention masks and rotary frequencies, which old files
 * contain, and the head of a model whose head is tied. */
static te_status check_used(te_context *ctx) {
    for (int i = 0; i < from.files; i++)
        for (int k = 0; k < from.file[i].count; k++) {
            const char *name = from.file[i].tensor[k].name;
            const int known = strstr(name, ".attn.bias") || strstr(name, ".attn.masked_bias") ||
                              strstr(name, "rotary_emb.inv_freq") || (from.tied && !strcmp(name, "lm_head.weight"));
            TE_REQUIRE(from.used[i][k] || known, ctx, TE_ERROR_FORMAT,
                       "%.60s: has a tensor %.80s that this family has no place for", from.name[i], name);
        }
    return TE_OK;
}
static te_status load_model(te_context *ctx) {
    char prefix[MAX_NAME];
    te_packed head = {"lm_head.weight", "head", "weight", 0, 0};
    TE_TRY(read_config(ctx));
    TE_TRY(open_files(ctx));
    parts = (part *)calloc((size_t)from.layers + 2, sizeof *parts);
    TE_REQUIRE(parts, ctx, TE_ERROR_MEMORY, "no memory for %d layers", from.layers);
    part *last = &parts[from.layers + 1];
    TE_TRY(load_part(parts, from.is->embed(), from.is->embed_from, from.prefix, ctx));
    for (int i = 0; i < from.layers; i++) {
        snprintf(prefix, sizeof prefix, "%s%s.%d.", from.prefix, from.is->layer, i);
        TE_TRY(load_part(&parts[1 + i], (i % 2 ? from.is->second : from.is->first)(), from.is->block_from, prefix, ctx));
    }
    TE_TRY(load_part(last, from.is->head(), from.is->head_from, from.prefix, ctx));
    if (from.tied) head.name = from.is->embed_from->name;
    const int first = last->views.count;
    TE_TRY(te_packed_add(&last->views, &last->model, &head, 1, from.tied ? from.prefix : "", ctx));
    TE_TRY(load_views(last, first, ctx));
    for (int i = 0; i < from.layers + 2; i++) TE_TRY(te_packed_covers(&parts[i].views, &parts[i].model, ctx));
    return check_used(ctx);
}

/* ---- logits ------------------------------------------------------------------------------------------------------ */

/* logits: [n, vocabulary], host memory that the caller frees. */
static te_status compute(float **logits, const int32_t *ids, int n, te_context *ctx) {
    const int last = from.layers + 1, hidden = parts->plan->out, vocabulary = parts[last].plan->out;
    const size_t bytes = (size_t)n * (size_t)vocabulary * sizeof(float);
    void *tokens, *x[2], *y;
    size_t workspace = 0;
    te_batch batch;
    for (int i = 0; i < n; i++)
        TE_REQUIRE(ids[i] >= 0 && ids[i] < vocabulary, ctx, TE_ERROR_VALUE, "token %d is not one of %d", (int)ids[i], vocabulary);
    for (int i = 0; i <= last; i++)
        if (workspace < te_plan_workspace_bytes(parts[i].plan, &parts[i].model, n, ctx))
            workspace = te_plan_workspace_bytes(parts[i].plan, &parts[i].model, n, ctx);
    TE_TRY(te_context_reserve(ctx, workspace));
    TE_TRY(te_allocate(ctx, &tokens, (size_t)n * sizeof *ids));
    for (int i = 0; i < 2; i++) TE_TRY(te_allocate(ctx, &x[i], (size_t)n * (size_t)hidden * sizeof(float)));
    TE_TRY(te_allocate(ctx, &y, bytes));
    TE_TRY(te_copy(ctx, tokens, ids, (size_t)n * sizeof *ids));
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = n, batch.tokens = (const int32_t *)tokens;
    for (int i = 0; i <= last; i++) {
        const te_tensor in = i ? te_matrix(x[(i + 1) % 2], TE_f32, n, hidden) : te_none();
        const te_tensor out = i < last ? te_matrix(x[i % 2], TE_f32, n, hidden) : te_matrix(y, TE_f32, n, vocabulary);
        TE_TRY(te_plan_forward(out, 0, in, parts[i].plan, &parts[i].model, &batch, ctx));
    }
    *logits = (float *)malloc(bytes);
    TE_REQUIRE(*logits, ctx, TE_ERROR_MEMORY, "no memory for the logits");
    TE_TRY(te_copy(ctx, *logits, y, bytes));
    te_release(ctx, tokens), te_release(ctx, x[0]), te_release(ctx, x[1]);
    TE_TRY(te_synchronize(ctx));
    te_release(ctx, y);
    return TE_OK;
}
static void print_top(const float *row, int vocabulary) {
    int best[TOP], count = 0;
    for (; count < TOP && count < vocabulary; count++) {
        best[count] = -1;
        for (int k = 0; k < vocabulary; k++) {
            int had = 0;
            for (int i = 0; i < count; i++) had |= best[i] == k;
            if (!had && (best[count] < 0 || row[k] > row[best[count]])) best[count] = k;
        }
        printf("token %d, logit %.4f\n", best[count], (double)row[best[count]]);
    }
}
/* Check that ||logits - expected|| / ||expected|| <= tolerance, for the `ids` and `logits` of a file. */
static te_status check(const char *path, double tolerance, te_context *ctx) {
    te_safetensors f;
    const int vocabulary = parts[from.layers + 1].plan->out;
    TE_TRY(te_safetensors_open(&f, path, ctx));
    const te_safetensor *t = te_safetensors_find(&f, "ids");
    TE_REQUIRE(t && t->rank == 1 && t->dtype == TE_SAFETENSORS_I32 && t->shape[0] > 0 && t->shape[0] < 1 << 20, ctx,
               TE_ERROR_FORMAT, "%.80s: has no ids, I32 [n]", path);
    const int64_t n = t->shape[0], all = n * vocabulary;
    int32_t *ids = (int32_t *)malloc((size_t)n * sizeof *ids);
    float *expected = (float *)malloc((size_t)all * sizeof *expected), *logits = 0;
    TE_REQUIRE(ids && expected, ctx, TE_ERROR_MEMORY, "no memory for the logits");
    const te_safetensor both[2] = {te_safetensor_of("ids", TE_SAFETENSORS_I32, 1, &n, ids),
                                   te_safetensor_matrix("logits", TE_f32, n, vocabulary, expected)};
    TE_TRY(te_safetensors_load(&f, both, 2, 0, ctx));
    TE_TRY(compute(&logits, ids, (int)n, ctx));
    double off = 0, size = 0;
    for (int64_t i = 0; i < all; i++)
        off += ((double)logits[i] - expected[i]) * ((double)logits[i] - expected[i]), size += (double)expected[i] * expected[i];
    const double error = sqrt(off / size);
    printf("%s, %s: relative error %.2e of %d x %d logits\n", from.is->type, te_dtype_name(parts->plan->dtype), error, (int)n,
           vocabulary);
    free(ids), free(expected), free(logits), te_safetensors_close(&f);
    TE_REQUIRE(error <= tolerance, ctx, TE_ERROR_VALUE, "that is more than %g", tolerance);
    return TE_OK;
}
/* The number that `text` is, all of it and from 0 to `limit`; an error names `what`. */
static te_status number_of(double *number, const char *text, double limit, const char *what, te_context *ctx) {
    char *end = 0;
    *number = strtod(text, &end);
    TE_REQUIRE(end != text && !*end && *number >= 0 && *number <= limit && strspn(text, "0123456789.e-+") == strlen(text),
               ctx, TE_ERROR_VALUE, "\"%.40s\" is no %s; it must be a number from 0 to %g", text, what, limit);
    return TE_OK;
}
static te_status token_of(int32_t *token, const char *text, te_context *ctx) {
    double number = 0;
    TE_REQUIRE(*text && strspn(text, "0123456789") == strlen(text), ctx, TE_ERROR_VALUE,
               "\"%.40s\" is no token; a token is a number of digits alone", text);
    TE_TRY(number_of(&number, text, parts[from.layers + 1].plan->out - 1, "token", ctx));
    *token = (int32_t)number;
    return TE_OK;
}
static te_status run(int argc, char **argv, te_context *ctx) {
    const int n = argc - 2;
    float *logits = 0;
    from.folder = argv[1];
    TE_TRY(load_model(ctx));
    if (!strcmp(argv[2], "--check")) {
        double tolerance = 0;
        TE_REQUIRE(argc == 5, ctx, TE_ERROR_VALUE, "--check takes a file and a tolerance");
        TE_TRY(number_of(&tolerance, argv[4], 1e30, "tolerance", ctx));
        return check(argv[3], tolerance, ctx);
    }
    int32_t *ids = (int32_t *)malloc((size_t)n * sizeof *ids);
    TE_REQUIRE(ids, ctx, TE_ERROR_MEMORY, "no memory for %d tokens", n);
    te_status status = TE_OK;
    for (int i = 0; i < n && status == TE_OK; i++) status = token_of(&ids[i], argv[2 + i], ctx);
    if (status != TE_OK) return free(ids), status;
    TE_TRY(compute(&logits, ids, n, ctx));
    const int vocabulary = parts[from.layers + 1].plan->out;
    print_top(logits + (size_t)(n - 1) * (size_t)vocabulary, vocabulary);
    free(ids), free(logits);
    return TE_OK;
}
static void clean_up(te_context *ctx) {
    for (int i = 0; parts && i < from.layers + 2; i++) {
        te_release(ctx, (void *)(uintptr_t)parts[i].model.params);
        te_packed_free(&parts[i].views);
    }
    for (int i = 0; i < from.files; i++) te_safetensors_close(&from.file[i]), free(from.used[i]);
    te_json_close(&from.config), te_json_close(&from.index), free(parts);
}

int main(int argc, char **argv) {
    te_context ctx;
    if (argc < 3) return printf("llama FOLDER TOKEN... | llama FOLDER --check FILE TOLERANCE\n"), 2;
    te_status status = te_context_create(&ctx, 0, 1);
    if (status == TE_OK) status = run(argc, argv, &ctx);
    if (status != TE_OK) printf("%s: %s\n", te_status_string(status), te_last_error(&ctx));
    clean_up(&ctx);
    te_context_destroy(&ctx);
    return status != TE_OK;
}
