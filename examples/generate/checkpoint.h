/* checkpoint.h -- a model in a folder of Hugging Face: config.json, and model.safetensors or, if there is none, several
 * files with model.safetensors.index.json. Tensors are loaded by tables (te/io/packed.h).
 *
 * Do this:
 *     from.folder = folder;
 *     TE_TRY(check_config(&ctx));                          // MODEL_CHECKSUM is of this config.json
 *     TE_TRY(open_files(prefixes, 2, "embed_tokens.weight", 0, &ctx));
 *     TE_TRY(load_tensors(&p, table, from.prefix, &ctx));  // p: a part with memory; END ends the table
 *     close_files();
 */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include <unistd.h> /* access */

#include "linked.h"     /* linked, open_to_read */
#include "part.h"       /* part, END */
#include "te/io/json.h" /* te_json */
#include "te/io/quantized_file.h" /* te_mxfp4_load */

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
    FILE *f = open_to_read(path);
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
        const linked_file *in = linked(path);
        TE_TRY(in ? te_safetensors_open_memory(&from.file[i], in->bytes, linked_size(in), ctx)
                  : te_safetensors_map(&from.file[i], path, ctx));
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
/* Open all files that the index names. */
static inline te_status open_all_files(te_context *ctx) {
    const te_safetensors *file;
    for (int i = 0; i < from.index.count; i++)
        if (!strncmp(from.index.value[i].name, "weight_map.", 11) && from.index.value[i].text)
            TE_TRY(open_file(&file, from.index.value[i].text, ctx));
    return TE_OK;
}
static int has_tensor(const char *name) {
    char key[MAX_NAME + 16];
    snprintf(key, sizeof key, "weight_map.%s", name);
    return from.index.count ? te_json_find(&from.index, key) != 0 : te_safetensors_find(&from.file[0], name) != 0;
}
/* Open the only file or the index, and find the prefix of its names: the one with which the tensor `probe` is there or,
 * unless it is null, `other`. As in transformers, an index beside model.safetensors is not read. */
static te_status open_files(const char *const *prefixes, size_t count, const char *probe, const char *other,
                            te_context *ctx) {
    char path[MAX_PATH], name[MAX_NAME];
    const te_safetensors *file;
    snprintf(path, sizeof path, "%s/model.safetensors", from.folder);
    const int is_one = linked(path) || !access(path, F_OK);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", from.folder);
    if (!is_one && !access(path, F_OK)) TE_TRY(te_json_open(&from.index, path, ctx));
    else TE_TRY(open_file(&file, "model.safetensors", ctx));
    for (size_t i = 0; i < count; i++) {
        from.prefix = prefixes[i];
        snprintf(name, sizeof name, "%s%s", from.prefix, probe);
        if (has_tensor(name)) return TE_OK;
        snprintf(name, sizeof name, "%s%s", from.prefix, other ? other : probe);
        if (has_tensor(name)) return TE_OK;
    }
    return te_fail(ctx, TE_ERROR_FORMAT, "%.200s: no file has a tensor %s, with or without \"%s\" in front",
                   from.folder, probe, prefixes[0]);
}
static void close_files(void) {
    for (int i = 0; i < from.files; i++) te_safetensors_close(&from.file[i]);
    te_json_close(&from.index);
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* Load one view. If the files do not have its tensor, they may have it in MXFP4. */
static te_status load_view(const te_safetensor *view, te_context *ctx) {
    char blocks[2 * MAX_NAME], scales[2 * MAX_NAME];
    const te_safetensors *file, *of_scales;
    snprintf(blocks, sizeof blocks, "%s_blocks", view->name);
    snprintf(scales, sizeof scales, "%s_scales", view->name);
    if (has_tensor(view->name) || !has_tensor(blocks)) {
        TE_TRY(file_of(&file, view->name, ctx));
        return te_safetensors_load(file, view, 1, 0, ctx);
    }
    TE_TRY(file_of(&file, blocks, ctx));
    TE_TRY(file_of(&of_scales, scales, ctx));
    return te_mxfp4_load(file, of_scales, view, ctx);
}
/* Load the tensors of a list of views, unless `status`, that of making the list, is an error. Frees the list. */
static te_status load_views(te_packed_list *views, te_status status, te_context *ctx) {
    for (int i = 0; i < views->count && status == TE_OK; i++) status = load_view(&views->tensor[i], ctx);
    te_packed_free(views);
    return status;
}
/* Load the parameters that tables describe. table: END is behind its last entry; heads: the same of tensors that have q,
 * k and v head by head, or null. */
static inline te_status load_tables(part *p, const te_packed *table, const te_packed_heads *heads, const char *prefix,
                             te_context *ctx) {
    int count = 0, head_count = 0;
    while (table[count].name) count++;
    while (heads && heads[head_count].name) head_count++;
    te_packed_list views = te_packed_none();
    te_status status = te_packed_add(&views, &p->model, table, count, prefix, ctx);
    if (status == TE_OK && head_count)
        status = te_packed_add_heads(&views, &p->model, heads, head_count, prefix, ctx);
    return load_views(&views, status, ctx);
}
static inline te_status load_tensors(part *p, const te_packed *table, const char *prefix, te_context *ctx) {
    return load_tables(p, table, 0, prefix, ctx);
}

#endif
