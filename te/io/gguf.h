/* gguf.h -- reads files in the GGUF format of llama.cpp: metadata and tensors. The tensors' data is used in place, in
 * the mapped file.
 *
 * Do this:
 *     te_gguf file;
 *     int64_t layers;
 *     te_gguf_value tokens, token;
 *     te_gguf_text text;
 *     TE_TRY(te_gguf_map(&file, "model-q4_k_m.gguf", &ctx));                 // checks all of the header
 *     te_status status = te_gguf_get_integer(&layers, &file, "llama.block_count", &ctx);
 *     if (status == TE_OK) status = te_gguf_get_array(&tokens, &file, "tokenizer.ggml.tokens", TE_GGUF_string, &ctx);
 *     while (status == TE_OK && te_gguf_next(&token, &tokens)) (void)te_gguf_string_of(&token, &text);
 *     const te_gguf_tensor *t = te_gguf_find(&file, "token_embd.weight");    // null: there is none
 *     te_gguf_close(&file);                                                  // the tensors' data can no longer be read
 *
 * Supported are versions 2 and 3 of the format, in little-endian order. For a model that is split into several files,
 * pass the name of the first file, "..-00001-of-00003.gguf". The tensors of all files of the model are in one table.
 *
 * Files are not trusted: an error in a file produces TE_ERROR_FORMAT with a text that names the key or the tensor,
 * nothing is read out of bounds, and each count in a file is checked against the size of the file before it is used.
 */
#ifndef TE_GGUF_H
#define TE_GGUF_H

#include <sys/mman.h> /* mmap */

#include "gguf_types.h"      /* te_gguf, te_gguf_value, te_gguf_tensor */
#include "impl/gguf_parse.h" /* te__gguf_parse */

/* ---- opening ----------------------------------------------------------------------------------------------------- */

TE_API void te_gguf_close(te_gguf *f) {
    if (!f) return;
    for (int i = 0; i < f->files; i++)
        if (f->file[i].mapped) (void)munmap((void *)(uintptr_t)f->file[i].memory, (size_t)f->file[i].bytes);
    free(f->value), free(f->tensor), free(f->file), free(f->path);
    memset(f, 0, sizeof *f);
}
/* Parse `file`, and add its tensors and metadata to *f. On success, te_gguf_close(f) will unmap the file; on an error
 * this function unmaps the file. */
TE_API te_status te__gguf_add(te_gguf *f, te_gguf_file file, te__gguf_split *split, const char *path,
                              te_context *ctx) {
    te_gguf_file *grown = (te_gguf_file *)te__grow(f->file, f->files, sizeof file);
    te_status status = grown ? TE_OK : te_fail(ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate", path);
    if (grown) f->file = grown, status = te__gguf_parse(f, &file, split, path, ctx);
    if (status == TE_OK) f->file[f->files++] = file;
    else if (file.mapped) (void)munmap((void *)(uintptr_t)file.memory, (size_t)file.bytes);
    return status;
}
TE_API te_status te__gguf_map_file(te_gguf_file *file, const char *path, te_context *ctx) {
    uint64_t bytes = 0;
    int fd = -1;
    TE_TRY(te__file_open(&fd, &bytes, path, ctx));
    void *at = bytes && bytes <= SIZE_MAX ? mmap(0, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    (void)close(fd);
    TE_REQUIRE(at != MAP_FAILED, ctx, bytes ? TE_ERROR_MEMORY : TE_ERROR_FORMAT, "%.120s: cannot map its %llu bytes",
               path, (unsigned long long)bytes);
    file->memory = (const unsigned char *)at, file->bytes = bytes, file->header = 0, file->mapped = 1;
    return TE_OK;
}
/* Write to `text` how the path of a split model's file ends: "-00001-of-00003.gguf" for file number 0 of 3 files. */
enum { TE__GGUF_SUFFIX = 20 };
TE_API void te__gguf_suffix(char text[64], int64_t number, int64_t count) {
    snprintf(text, 64, "-%05d-of-%05d.gguf", (int)(number + 1), (int)count);
}
/* Map all files of a split model except the first file, which is mapped already. path: workspace, as many bytes as
 * f->path has. */
TE_API te_status te__gguf_map_splits(te_gguf *f, const te__gguf_split *first, char *path, te_context *ctx) {
    const size_t n = strlen(f->path), prefix = n > TE__GGUF_SUFFIX ? n - TE__GGUF_SUFFIX : 0;
    char suffix[64];
    te__gguf_suffix(suffix, 0, first->count);
    TE_REQUIRE(first->number == 0 && !strcmp(f->path + prefix, suffix), ctx, TE_ERROR_FORMAT,
               "%.120s: is file %lld of a model in %lld files; open the first, whose name ends in %s",
               te__gguf_path_end(f->path), (long long)first->number + 1, (long long)first->count, suffix);
    for (int64_t i = 1; i < first->count; i++) {
        te_gguf_file file;
        te__gguf_split split;
        te__gguf_suffix(suffix, i, first->count);
        snprintf(path, n + 1, "%.*s%s", (int)prefix, f->path, suffix);
        TE_TRY(te__gguf_map_file(&file, path, ctx));
        TE_TRY(te__gguf_add(f, file, &split, path, ctx));
        TE_REQUIRE(split.number == i && split.count == first->count, ctx, TE_ERROR_FORMAT,
                   "%.120s: says that it is file %lld of %lld", te__gguf_path_end(path), (long long)split.number + 1,
                   (long long)split.count);
    }
    return TE_OK;
}
/* Map the file at `path`, and check its header. If the file is the first one of a split model, all files of the model
 * are mapped and checked. No other process may change the files while they are open. After an error there is nothing to
 * close. Errors: TE_ERROR_IO, TE_ERROR_FORMAT, TE_ERROR_MEMORY. */
TE_API te_status te_gguf_map(te_gguf *f, const char *path, te_context *ctx) {
    te_gguf_file file;
    te__gguf_split split;
    TE_REQUIRE(f, ctx, TE_ERROR_NULL, "gguf: the struct is null");
    memset(f, 0, sizeof *f);
    TE_REQUIRE(path, ctx, TE_ERROR_NULL, "gguf: the path is null");
    const size_t n = strlen(path) + 1;
    char *copy = (char *)malloc(n);
    f->path = (char *)malloc(n);
    te_status status = f->path && copy ? te__gguf_map_file(&file, path, ctx)
                                       : te_fail(ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate", path);
    if (status == TE_OK) {
        memcpy(f->path, path, n);
        status = te__gguf_add(f, file, &split, path, ctx);
        if (status == TE_OK && split.count > 1) status = te__gguf_map_splits(f, &split, copy, ctx);
        if (status == TE_OK) status = te__gguf_finish(f, &split, ctx);
    }
    free(copy);
    if (status != TE_OK) te_gguf_close(f);
    return status;
}
/* Open a file whose `bytes` bytes lie in host memory, and check its header. The bytes must stay there until the file is
 * closed. Errors: TE_ERROR_FORMAT (the file is not valid, or is one of several files of a split model);
 * TE_ERROR_MEMORY. */
TE_API te_status te_gguf_open_memory(te_gguf *f, const void *memory, size_t bytes, te_context *ctx) {
    te_gguf_file file;
    te__gguf_split split;
    TE_REQUIRE(f, ctx, TE_ERROR_NULL, "gguf: the struct is null");
    memset(f, 0, sizeof *f);
    TE_REQUIRE(memory, ctx, TE_ERROR_NULL, "gguf: the memory is null");
    file.memory = (const unsigned char *)memory, file.bytes = bytes, file.header = 0, file.mapped = 0;
    f->path = (char *)malloc(7);
    te_status status = f->path ? TE_OK : te_fail(ctx, TE_ERROR_MEMORY, "memory: cannot allocate");
    if (f->path) memcpy(f->path, "memory", 7), status = te__gguf_add(f, file, &split, "memory", ctx);
    if (status == TE_OK && split.count > 1)
        status = te_fail(ctx, TE_ERROR_FORMAT, "memory: is one of %lld files; te_gguf_map opens them",
                         (long long)split.count);
    if (status == TE_OK) status = te__gguf_finish(f, &split, ctx);
    if (status != TE_OK) te_gguf_close(f);
    return status;
}
/* Find the tensor with this name; null if there is none. */
TE_API const te_gguf_tensor *te_gguf_find(const te_gguf *f, const char *name) {
    te_gguf_tensor key;
    if (!f || !name || !f->tensors) return 0;
    key.name = te__gguf_text(name, strlen(name));
    return (const te_gguf_tensor *)bsearch(&key, f->tensor, (size_t)f->tensors, sizeof key, te__gguf_by_name);
}
/* Return a checksum of the metadata and of the tensors' names, shapes, types and offsets, but not of the tensors' data:
 * the 64-bit FNV-1a hash of the headers of all files, one after the other. */
TE_API uint64_t te_gguf_header_checksum(const te_gguf *f) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; f && i < f->files; i++)
        for (uint64_t k = 0; k < f->file[i].header; k++) hash = (hash ^ f->file[i].memory[k]) * 0x100000001b3u;
    return hash;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* te_gguf_integer_of, te_gguf_real_of, te_gguf_bool_of and te_gguf_string_of store a value in *out and return 1. If the
 * value is of another kind, they return 0 and leave *out unchanged. */

/* Store an integer of any width in *out. For a uint64 above INT64_MAX, the function returns 0. */
TE_API int te_gguf_integer_of(const te_gguf_value *v, int64_t *out) { return v && te__gguf_integer(v, out); }
/* Read a float32 or a float64. */
TE_API int te_gguf_real_of(const te_gguf_value *v, double *out) {
    float single = 0;
    if (!v || (v->kind != TE_GGUF_float32 && v->kind != TE_GGUF_float64)) return 0;
    if (v->kind == TE_GGUF_float64) return memcpy(out, v->at, 8), 1;
    memcpy(&single, v->at, 4), *out = single;
    return 1;
}
TE_API int te_gguf_bool_of(const te_gguf_value *v, int *out) {
    if (!v || v->kind != TE_GGUF_bool) return 0;
    *out = *v->at;
    return 1;
}
TE_API int te_gguf_string_of(const te_gguf_value *v, te_gguf_text *out) {
    if (!v || v->kind != TE_GGUF_string) return 0;
    *out = te__gguf_text((const char *)v->at, (size_t)v->count);
    return 1;
}
/* Iterate over an array: store its next element in *element, advance *array past this element, and return 1. Return 0
 * if no element is left, or if *array is no array. array: a copy of the value that te_gguf_key returns, or the value
 * that te_gguf_get_array stores. An element may itself be an array. */
TE_API int te_gguf_next(te_gguf_value *element, te_gguf_value *array) {
    te__gguf_cursor c;
    if (!array || array->kind != TE_GGUF_array || !array->count) return 0;
    memset(&c, 0, sizeof c), memset(element, 0, sizeof *element);
    /* The whole header was checked when the file was opened. So the cursor needs no limit (UINT64_MAX). */
    c.memory = array->at, c.bytes = UINT64_MAX, c.path = "", c.name = te__gguf_text("an element", 10);
    element->kind = array->element;
    if (te__gguf_read_value(element, &c, 0) != TE_OK) return 0;
    array->at += c.at, array->count--;
    return 1;
}
/* Find the value with this key; null if there is none. */
TE_API const te_gguf_value *te_gguf_key(const te_gguf *f, const char *key) {
    return f && key ? te__gguf_find_value(f->value, f->values, key) : 0;
}

/* ---- values of required keys ------------------------------------------------------------------------------------- */

/* te_gguf_get_integer and the functions after it store the value of a key in *out. If the file has no such key, or its
 * value is of another kind, they return TE_ERROR_FORMAT with a text that names the key, and leave *out unchanged. */

/* Return the error for a key that is missing or whose value is not `kind`. */
TE_API te_status te__gguf_lacks(const te_gguf *f, const char *key, const char *kind, te_context *ctx) {
    const te_gguf_value *v = te_gguf_key(f, key);
    TE_REQUIRE(f && f->path && key, ctx, TE_ERROR_NULL, "gguf: the file is not open, or the key is null");
    TE_REQUIRE(v, ctx, TE_ERROR_FORMAT, "%.120s: has no %.60s, which should be %s", f->path, key, kind);
    return te_fail(ctx, TE_ERROR_FORMAT, "%.120s: %.60s is %s, it should be %s", f->path, key,
                   te_gguf_kind_name(v->kind), kind);
}
TE_API te_status te_gguf_get_integer(int64_t *out, const te_gguf *f, const char *key, te_context *ctx) {
    return te_gguf_integer_of(te_gguf_key(f, key), out) ? TE_OK : te__gguf_lacks(f, key, "an integer", ctx);
}
TE_API te_status te_gguf_get_real(double *out, const te_gguf *f, const char *key, te_context *ctx) {
    return te_gguf_real_of(te_gguf_key(f, key), out) ? TE_OK : te__gguf_lacks(f, key, "a float", ctx);
}
TE_API te_status te_gguf_get_bool(int *out, const te_gguf *f, const char *key, te_context *ctx) {
    return te_gguf_bool_of(te_gguf_key(f, key), out) ? TE_OK : te__gguf_lacks(f, key, "a bool", ctx);
}
TE_API te_status te_gguf_get_string(te_gguf_text *out, const te_gguf *f, const char *key, te_context *ctx) {
    return te_gguf_string_of(te_gguf_key(f, key), out) ? TE_OK : te__gguf_lacks(f, key, "a string", ctx);
}
/* Store the array of a key in *out; te_gguf_next iterates over *out. element: the kind that the array's elements must
 * have. */
TE_API te_status te_gguf_get_array(te_gguf_value *out, const te_gguf *f, const char *key, te_gguf_kind element,
                                   te_context *ctx) {
    const te_gguf_value *v = te_gguf_key(f, key);
    if (!v || v->kind != TE_GGUF_array) return te__gguf_lacks(f, key, "an array", ctx);
    TE_REQUIRE(v->element == element, ctx, TE_ERROR_FORMAT, "%.120s: %.60s is an array of %s, it should be of %s",
               f->path, key, te_gguf_kind_name(v->element), te_gguf_kind_name(element));
    *out = *v;
    return TE_OK;
}

#endif
