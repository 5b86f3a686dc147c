/* safetensors_parse.h -- opens a safetensors file: parses its header into tables, and checks the whole header.
 *
 * A file consists of the header's length (8 bytes, little-endian), the header (JSON), and the tensors' data:
 *     {"__metadata__":{"key":"value"},"fc.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}
 *
 * The file is not trusted. Each size in the file is checked against the size of the file before it is used, and the
 * tensors must cover the data without gaps or overlap. Unknown fields of a tensor are skipped. Metadata that are no
 * strings are listed with the value null. A tensor with an unknown dtype or with too many dimensions is no error: it is
 * listed with the size that follows from its offsets, so that a program can use the other tensors of the file.
 */
#ifndef TE_SAFETENSORS_PARSE_H
#define TE_SAFETENSORS_PARSE_H

#include "../../core/impl/file.h"      /* te__file_open, te__file_read */
#include "../json.h"              /* te__json, te__grow */
#include "../safetensors_types.h" /* te_safetensors */

/* ---- the header -------------------------------------------------------------------------------------------------- */

/* Parse a tensor's dtype into t->dtype. A dtype that is not in TE_SAFETENSORS_DTYPES becomes TE_SAFETENSORS_OTHER. */
TE_API te_status te__safetensors_parse_dtype(te_safetensor *t, te__json *j) {
    const char *text;
    int d = 0;
    TE_TRY(te__json_string(&text, j));
    while (d < TE_SAFETENSORS_DTYPE_COUNT && strcmp(text, te_safetensors_dtype_name((te_safetensors_dtype)d))) d++;
    t->dtype = (te_safetensors_dtype)d, t->dtype_text = d == TE_SAFETENSORS_OTHER ? text : 0;
    return TE_OK;
}
TE_API te_status te__safetensors_parse_shape(te_safetensor *t, te__json *j) {
    TE_TRY(te__json_expect(j, '['));
    for (int more = 0;; t->rank++) {
        int64_t n = 0;
        TE_TRY(te__json_next(&more, j, ']'));
        if (!more) return TE_OK;
        TE_TRY(te__json_number(&n, j));
        if (t->rank < TE_SAFETENSORS_MAX_RANK) t->shape[t->rank] = n;
    }
}
TE_API te_status te__safetensors_parse_offsets(int64_t *begin, int64_t *end, te__json *j) {
    TE_TRY(te__json_expect(j, '['));
    TE_TRY(te__json_number(begin, j));
    TE_TRY(te__json_expect(j, ','));
    TE_TRY(te__json_number(end, j));
    return te__json_expect(j, ']');
}
/* Set t->bytes to the tensor's size, end - begin. Check that the tensor's dtype and shape give the same size, unless
 * the library does not know the dtype, or the tensor has more dimensions than t->shape can store. */
TE_API te_status te__safetensors_set_size(te_safetensor *t, int64_t begin, int64_t end, uint64_t data_bytes,
                                          const te__json *j) {
    TE_REQUIRE(begin <= end && (uint64_t)end <= data_bytes, j->ctx, TE_ERROR_FORMAT,
               "%.120s: tensor %.60s has the offsets [%lld, %lld], the file has %llu bytes of data", j->path, t->name,
               (long long)begin, (long long)end, (unsigned long long)data_bytes);
    t->offset = (uint64_t)begin;
    if (t->dtype == TE_SAFETENSORS_OTHER || t->rank > TE_SAFETENSORS_MAX_RANK)
        return t->bytes = (uint64_t)(end - begin), TE_OK;
    TE_REQUIRE(te__safetensor_size(&t->bytes, t), j->ctx, TE_ERROR_FORMAT, "%.120s: tensor %.60s, %s, is too large",
               j->path, t->name, te__shape_text_of(t).text);
    TE_REQUIRE((uint64_t)(end - begin) == t->bytes, j->ctx, TE_ERROR_FORMAT, "%.120s: tensor %.60s, %s, has %lld bytes",
               j->path, t->name, te__shape_text_of(t).text, (long long)(end - begin));
    return TE_OK;
}
/* Parse the JSON object that describes a tensor. The object must have each of the fields dtype, shape and data_offsets
 * once; other fields are skipped. */
TE_API te_status te__safetensors_parse_tensor(te_safetensor *t, te__json *j, uint64_t data_bytes) {
    enum { DTYPE, SHAPE, OFFSETS, FIELDS };
    static const char *const fields[FIELDS] = {"dtype", "shape", "data_offsets"};
    const char *key;
    int64_t begin = 0, end = 0;
    int more = 0, seen[FIELDS] = {0, 0, 0};
    TE_TRY(te__json_expect(j, '{'));
    for (;;) {
        TE_TRY(te__json_next(&more, j, '}'));
        if (!more) break;
        TE_TRY(te__json_string(&key, j));
        TE_TRY(te__json_expect(j, ':'));
        int field = 0;
        while (field < FIELDS && strcmp(key, fields[field])) field++;
        TE_REQUIRE(field == FIELDS || !seen[field]++, j->ctx, TE_ERROR_FORMAT,
                   "%.120s: tensor %.60s: \"%.40s\" stands there twice", j->path, t->name, key);
        if (field == FIELDS) TE_TRY(te__json_skip(j));
        else if (field == DTYPE) TE_TRY(te__safetensors_parse_dtype(t, j));
        else if (field == SHAPE) TE_TRY(te__safetensors_parse_shape(t, j));
        else TE_TRY(te__safetensors_parse_offsets(&begin, &end, j));
    }
    TE_REQUIRE(seen[DTYPE] && seen[SHAPE] && seen[OFFSETS], j->ctx, TE_ERROR_FORMAT, "%.120s: tensor %.60s has no %s",
               j->path, t->name, fields[!seen[DTYPE] ? DTYPE : !seen[SHAPE] ? SHAPE : OFFSETS]);
    return te__safetensors_set_size(t, begin, end, data_bytes, j);
}
/* Parse the JSON value of "__metadata__": an object, or null if there is no metadata. A key whose value is no string is
 * listed with the value null. So te_safetensors_verify notices if the checksum was damaged and is no string. */
TE_API te_status te__safetensors_parse_metadata(te_safetensors *f, te__json *j) {
    if (te__json_peek(j) == 'n') return te__json_skip(j);
    TE_TRY(te__json_expect(j, '{'));
    for (int more = 0;; f->metadata_count++) {
        TE_TRY(te__json_next(&more, j, '}'));
        if (!more) return TE_OK;
        void *grown = te__grow(f->metadata, f->metadata_count, sizeof *f->metadata);
        TE_REQUIRE(grown, j->ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate", j->path);
        f->metadata = (te_safetensors_pair *)grown;
        te_safetensors_pair *pair = &f->metadata[f->metadata_count];
        pair->value = 0;
        TE_TRY(te__json_string(&pair->key, j));
        TE_TRY(te__json_expect(j, ':'));
        TE_TRY(te__json_peek(j) == '"' ? te__json_string(&pair->value, j) : te__json_skip(j));
    }
}
TE_API int te__by_offset(const void *a, const void *b) {
    const te_safetensor *x = (const te_safetensor *)a, *y = (const te_safetensor *)b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}
TE_API int te__by_name(const void *a, const void *b) {
    return strcmp(((const te_safetensor *)a)->name, ((const te_safetensor *)b)->name);
}
TE_API int te__by_key(const void *a, const void *b) {
    return strcmp(((const te_safetensors_pair *)a)->key, ((const te_safetensors_pair *)b)->key);
}
/* Check that the tensors cover the data without gaps or overlap, and that tensor names and metadata keys are unique.
 * Sorts the tables of tensors and of metadata. */
TE_API te_status te__safetensors_check_tables(te_safetensors *f, uint64_t data_bytes, te_context *ctx) {
    uint64_t at = 0;
    if (f->count) qsort(f->tensor, (size_t)f->count, sizeof *f->tensor, te__by_offset);
    for (int i = 0; i < f->count; at += f->tensor[i++].bytes)
        TE_REQUIRE(f->tensor[i].offset == at, ctx, TE_ERROR_FORMAT,
                   "%.120s: tensor %.60s begins at byte %llu of the data, the one before ends at %llu",
                   f->path, f->tensor[i].name, (unsigned long long)f->tensor[i].offset, (unsigned long long)at);
    TE_REQUIRE(at == data_bytes, ctx, TE_ERROR_FORMAT, "%.120s: the tensors take %llu bytes, the file has %llu",
               f->path, (unsigned long long)at, (unsigned long long)data_bytes);
    if (f->count) qsort(f->tensor, (size_t)f->count, sizeof *f->tensor, te__by_name);
    for (int i = 1; i < f->count; i++)
        TE_REQUIRE(strcmp(f->tensor[i - 1].name, f->tensor[i].name), ctx, TE_ERROR_FORMAT,
                   "%.120s: two tensors are called \"%.60s\"", f->path, f->tensor[i].name);
    if (f->metadata_count) qsort(f->metadata, (size_t)f->metadata_count, sizeof *f->metadata, te__by_key);
    for (int i = 1; i < f->metadata_count; i++)
        TE_REQUIRE(strcmp(f->metadata[i - 1].key, f->metadata[i].key), ctx, TE_ERROR_FORMAT,
                   "%.120s: two metadata are called \"%.60s\"", f->path, f->metadata[i].key);
    return TE_OK;
}
/* Parse f->header into the tables of tensors and of metadata, and check the tables. n: the bytes of f->header without
 * its closing NUL. */
TE_API te_status te__safetensors_parse(te_safetensors *f, size_t n, uint64_t data_bytes, te_context *ctx) {
    te__json json, *j = &json;
    const char *name;
    int more = 0, metadata = 0;
    json.text = f->header, json.n = n, json.at = 0, json.path = f->path, json.ctx = ctx;
    if (n == 0 || f->header[0] != '{') return te__json_fail(j, "a header begins with '{'");
    json.at = 1;
    for (;;) {
        TE_TRY(te__json_next(&more, j, '}'));
        if (!more) break;
        TE_TRY(te__json_string(&name, j));
        TE_TRY(te__json_expect(j, ':'));
        if (!strcmp(name, "__metadata__")) {
            if (metadata++) return te__json_fail(j, "__metadata__ stands there twice");
            TE_TRY(te__safetensors_parse_metadata(f, j));
            continue;
        }
        te_safetensor *grown = (te_safetensor *)te__grow(f->tensor, f->count, sizeof *f->tensor), *t;
        TE_REQUIRE(grown, ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate", f->path);
        f->tensor = grown, t = &f->tensor[f->count];
        memset(t, 0, sizeof *t);
        t->name = name;
        TE_TRY(te__safetensors_parse_tensor(t, j, data_bytes));
        f->count++;
    }
    (void)te__json_peek(j);
    if (j->at != n) return te__json_fail(j, "something follows the last '}'");
    return te__safetensors_check_tables(f, data_bytes, ctx);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Read n bytes of the file, from byte `at` on, into host memory. */
TE_API te_status te__safetensors_get(const te_safetensors *f, void *dst, size_t n, uint64_t at, te_context *ctx) {
    if (!f->memory) return te__file_read(f->fd, dst, n, at, f->path, ctx);
    if (n) memcpy(dst, f->memory + at, n);
    return TE_OK;
}
/* Read and parse the header. */
TE_API te_status te__safetensors_begin(te_safetensors *f, uint64_t file_bytes, te_context *ctx) {
    unsigned char length[8];
    uint64_t n = 0;
    TE_REQUIRE(file_bytes >= 8, ctx, TE_ERROR_FORMAT, "%.120s: %llu bytes are no safetensors file", f->path,
               (unsigned long long)file_bytes);
    TE_TRY(te__safetensors_get(f, length, 8, 0, ctx));
    for (int i = 7; i >= 0; i--) n = n << 8 | length[i];
    TE_REQUIRE(n <= TE_SAFETENSORS_MAX_HEADER && n <= file_bytes - 8, ctx, TE_ERROR_FORMAT,
               "%.120s: the header should have %llu bytes; the file has %llu, and at most %d are allowed", f->path,
               (unsigned long long)n, (unsigned long long)(file_bytes - 8), (int)TE_SAFETENSORS_MAX_HEADER);
    f->header = (char *)malloc((size_t)n + 1);
    TE_REQUIRE(f->header, ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate %llu bytes", f->path,
               (unsigned long long)n + 1);
    TE_TRY(te__safetensors_get(f, f->header, (size_t)n, 8, ctx));
    f->header[n] = 0, f->data_at = 8 + n;
    return te__safetensors_parse(f, (size_t)n, file_bytes - 8 - n, ctx);
}
/* Open the file at `path` or, if `memory` is not null, the file whose bytes are memory[bytes]. */
TE_API te_status te__safetensors_open(te_safetensors *f, const char *path, const void *memory, size_t bytes,
                                      te_context *ctx) {
    uint64_t size = 0;
    f->path = (char *)malloc(strlen(path) + 1);
    TE_REQUIRE(f->path, ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate", path);
    memcpy(f->path, path, strlen(path) + 1);
    f->memory = (const char *)memory;
    if (memory) return te__safetensors_begin(f, bytes, ctx);
    TE_TRY(te__file_open(&f->fd, &size, path, ctx));
    f->open = 1;
    return te__safetensors_begin(f, size, ctx);
}

#endif
