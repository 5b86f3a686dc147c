/* load_safetensors.h -- the weights of a model in a folder of Hugging Face: config.json, and model.safetensors or, if
 * there is none, several files with model.safetensors.index.json. Part of load_model.h.
 *
 * Files are mapped. On the host the table of the embedding, which is that of a tied head too, is used where it lies if
 * the file has it in MODEL_DTYPE; all other tensors are copied, because q, k and v, and gate and up, become one weight
 * each. te_safetensors_load checks names and shapes, and converts the dtype.
 */
#ifndef LOAD_SAFETENSORS_H
#define LOAD_SAFETENSORS_H

#include <unistd.h> /* access */

#include "load_model.h" /* part, bind_part */
#include "te/io/json.h" /* te_json */

enum { MAX_FILES = 256 };

typedef struct checkpoint {
    const char *folder, *prefix; /* prefix: in front of all names but that of lm_head */
    te_json index;               /* empty if there is one file */
    int files;
    char name[MAX_FILES][MAX_NAME];
    te_safetensors file[MAX_FILES];
} checkpoint;

static checkpoint from;

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* The model was compiled for one config.json: another one may have the same shapes and still mean another model. */
static te_status check_config(te_context *ctx) {
    char path[MAX_PATH];
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a, as configure.py computes it */
    snprintf(path, sizeof path, "%s/config.json", from.folder);
    FILE *f = fopen(path, "rb");
    TE_REQUIRE(f, ctx, TE_ERROR_IO, "%.200s: cannot open it", path);
    for (int c; (c = getc(f)) != EOF;) hash = (hash ^ (uint64_t)c) * 0x100000001b3u;
    fclose(f);
    TE_REQUIRE(hash == MODEL_CHECKSUM, ctx, TE_ERROR_VALUE,
               "%.200s: is not the config.json that this program was compiled for; run configure.py and compile again",
               path);
    return TE_OK;
}
static te_status open_file(const te_safetensors **file, const char *name, te_context *ctx) {
    char path[MAX_PATH];
    int i = 0;
    while (i < from.files && strcmp(from.name[i], name)) i++;
    if (i == from.files) {
        TE_REQUIRE(i < MAX_FILES && strlen(name) < MAX_NAME && !strchr(name, '/'), ctx, TE_ERROR_FORMAT,
                   "the index names more than %d files, or one in another folder: %.60s", (int)MAX_FILES, name);
        snprintf(path, sizeof path, "%s/%s", from.folder, name);
        TE_TRY(te_safetensors_map(&from.file[i], path, ctx));
        snprintf(from.name[i], MAX_NAME, "%s", name);
        from.files++;
    }
    *file = &from.file[i];
    return TE_OK;
}
/* The file that has this tensor: the one that the index names, or the only one. */
static te_status file_of(const te_safetensors **file, const char *tensor, te_context *ctx) {
    char key[MAX_NAME + 16];
    if (!from.index.count) return open_file(file, "model.safetensors", ctx);
    snprintf(key, sizeof key, "weight_map.%s", tensor);
    const te_json_value *v = te_json_find(&from.index, key);
    TE_REQUIRE(v && v->text, ctx, TE_ERROR_FORMAT, "model.safetensors.index.json has no tensor %.80s", tensor);
    return open_file(file, v->text, ctx);
}
static int has_tensor(const char *name) {
    char key[MAX_NAME + 16];
    snprintf(key, sizeof key, "weight_map.%s", name);
    return from.index.count ? te_json_find(&from.index, key) != 0 : te_safetensors_find(&from.file[0], name) != 0;
}
/* Open the only file or the index, and find the prefix of its names. As in transformers, an index beside
 * model.safetensors is not read. */
static te_status open_files(te_context *ctx) {
    char path[MAX_PATH], name[MAX_NAME];
    const te_safetensors *file;
    snprintf(path, sizeof path, "%s/model.safetensors", from.folder);
    const int is_one = !access(path, F_OK);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", from.folder);
    if (!is_one && !access(path, F_OK)) TE_TRY(te_json_open(&from.index, path, ctx));
    else TE_TRY(open_file(&file, "model.safetensors", ctx));
    for (size_t i = 0; i < sizeof name_prefixes / sizeof name_prefixes[0]; i++) {
        from.prefix = name_prefixes[i];
        snprintf(name, sizeof name, "%s%s", from.prefix, embed_tensors[0].name);
        if (has_tensor(name)) return TE_OK;
        snprintf(name, sizeof name, "%s%s", from.prefix, last_tensors[0].name);
        if (MODEL_TIED && has_tensor(name)) return TE_OK; /* the embedding may be there as the head */
    }
    return te_fail(ctx, TE_ERROR_FORMAT, "%.200s: no file has a tensor %s, with or without \"%s\" in front",
                   from.folder, embed_tensors[0].name, name_prefixes[0]);
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* Load the parameters that a table describes, which has END behind its last entry. */
static te_status load_tensors(part *p, const te_packed *table, const char *prefix, te_context *ctx) {
    int count = 0;
    while (table[count].name) count++;
    te_packed_list views = te_packed_none();
    te_status status = te_packed_add(&views, &p->model, table, count, prefix, ctx);
    for (int i = 0; i < views.count && status == TE_OK; i++) {
        const te_safetensors *file;
        status = file_of(&file, views.tensor[i].name, ctx);
        if (status == TE_OK) status = te_safetensors_load(file, &views.tensor[i], 1, 0, ctx);
    }
    te_packed_free(&views);
    return status;
}
static const char *head_prefix(void) { return strncmp(from.prefix, "language_model.", 15) ? "" : "language_model."; }
/* Load the embedding of a model with a tied head from the tensor of the head: some programs save only that. */
static te_status load_embedding_from_head(te_context *ctx) {
    te_packed table[] = {embed_tensors[0], END};
    table[0].name = "lm_head.weight";
    TE_TRY(bind_part(&parts[0], 1, ctx));
    TE_TRY(load_tensors(&parts[0], embed_tensors + 1, from.prefix, ctx));
    return load_tensors(&parts[0], table, head_prefix(), ctx);
}
/* Use the table of the embedding in the mapped file, or load it if the target, its dtype or its place forbids that. */
static te_status load_embedding(te_context *ctx) {
    char name[MAX_NAME];
    const te_safetensors *file;
    te_named_model model;
    snprintf(name, sizeof name, "%s%s", from.prefix, embed_tensors[0].name);
    if (MODEL_TIED && !has_tensor(name)) return load_embedding_from_head(ctx);
    TE_TRY(file_of(&file, name, ctx));
    snprintf(name, sizeof name, "%s", from.prefix);
    if (*name) name[strlen(name) - 1] = 0; /* te_weights_use adds the dot */
    model.name = name, model.model = &parts[0].model;
    TE_TRY(bind_part(&parts[0], 0, ctx));
    if (te_weights_use(&model, 1, file, ctx) == TE_OK) return TE_OK;
    TE_TRY(bind_part(&parts[0], 1, ctx));
    return load_tensors(&parts[0], embed_tensors, from.prefix, ctx);
}
static te_status load_head(part *p, te_context *ctx) {
    TE_TRY(bind_part(p, 1, ctx));
    if (MODEL_TIED) return te_tie(&p->param[0], &parts[0].param[0], ctx);
    return load_tensors(p, head_tensors, head_prefix(), ctx);
}
/* ---- what load_model.h calls ------------------------------------------------------------------------------------- */

static te_status open_model(const char *folder, te_context *ctx) {
    from.folder = folder;
    TE_TRY(check_config(ctx));
    return open_files(ctx);
}
static te_status load_block(part *p, int layer, te_context *ctx) {
    char name[MAX_NAME], prefix[2 * MAX_NAME];
    snprintf(name, sizeof name, layer_prefix, layer);
    snprintf(prefix, sizeof prefix, "%s%s", from.prefix, name);
    TE_TRY(bind_part(p, 1, ctx));
    return load_tensors(p, block_tensors, prefix, ctx);
}
static te_status load_last(part *p, te_context *ctx) {
    TE_TRY(bind_part(p, 1, ctx));
    return load_tensors(p, last_tensors, from.prefix, ctx);
}
static void close_model(te_context *ctx) {
    (void)ctx;
    for (int i = 0; i < from.files; i++) te_safetensors_close(&from.file[i]);
    te_json_close(&from.index);
}

#endif
