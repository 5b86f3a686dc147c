/* safetensors_parse.h -- from the header of a safetensors file to its tables, all of it checked.
 *
 * Do this:
 *     TE_TRY(te__safetensors_parse(&file, header_bytes, data_bytes, ctx));       // file.header[header_bytes] is 0
 */
#ifndef TE_SAFETENSORS_PARSE_H
#define TE_SAFETENSORS_PARSE_H

#include <stdlib.h> /* realloc, qsort */

#include "json.h"       /* te__json */
#include "safetensor.h" /* te_safetensors */

/* Room for one more behind `count` elements: 8, then twice as many whenever they are full. Null, and p stays, if there
 * is none. */
TE_API void *te__room(void *p, int count, size_t size) {
    if (count && (count < 8 || (count & (count - 1)))) return p;
    return realloc(p, (count ? 2 * (size_t)count : 8) * size);
}

/* {"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}, each of the three once, nothing else. */
TE_API te_status te__safetensors_parse_tensor(te_safetensor *t, te__json *j, uint64_t data_bytes) {
    const char *key, *text;
    int64_t begin = 0, end = 0;
    int more = 0, had[3] = {0, 0, 0};
    TE_TRY(te__json_expect(j, '{'));
    for (;;) {
        TE_TRY(te__json_next(&more, j, '}'));
        if (!more) break;
        TE_TRY(te__json_string(&key, j));
        TE_TRY(te__json_expect(j, ':'));
        const int which = !strcmp(key, "dtype") ? 0 : !strcmp(key, "shape") ? 1 : !strcmp(key, "data_offsets") ? 2 : -1;
        TE_REQUIRE(which >= 0 && !had[which]++, j->ctx, TE_ERROR_FORMAT, "%.120s: tensor %.60s: \"%.40s\" %s", j->path,
                   t->name, key,
                   which < 0 ? "is not a field of a tensor" : "stands there twice");
        if (which == 0) {
            int d = 0;
            TE_TRY(te__json_string(&text, j));
            while (d < TE_SAFETENSORS_DTYPE_COUNT &&
                   strcmp(text, te_safetensors_dtype_name((te_safetensors_dtype)d))) d++;
            TE_REQUIRE(d < TE_SAFETENSORS_DTYPE_COUNT, j->ctx, TE_ERROR_FORMAT,
                       "%.120s: tensor %.60s has the unknown dtype \"%.40s\"", j->path, t->name, text);
            t->dtype = (te_safetensors_dtype)d;
        } else if (which == 1) {
            TE_TRY(te__json_expect(j, '['));
            for (int inner = 0;;) {
                TE_TRY(te__json_next(&inner, j, ']'));
                if (!inner) break;
                TE_REQUIRE(t->rank < TE_SAFETENSORS_RANK, j->ctx, TE_ERROR_FORMAT,
                           "%.120s: tensor %.60s has more than %d dimensions", j->path, t->name,
                           (int)TE_SAFETENSORS_RANK);
                TE_TRY(te__json_number(&t->shape[t->rank++], j));
            }
        } else {
            TE_TRY(te__json_expect(j, '['));
            TE_TRY(te__json_number(&begin, j));
            TE_TRY(te__json_expect(j, ','));
            TE_TRY(te__json_number(&end, j));
            TE_TRY(te__json_expect(j, ']'));
        }
    }
    TE_REQUIRE(had[0] && had[1] && had[2], j->ctx, TE_ERROR_FORMAT, "%.120s: tensor %.60s has no %s", j->path, t->name,
               !had[0] ? "dtype" : !had[1] ? "shape" : "data_offsets");
    TE_REQUIRE(te__safetensor_size(&t->bytes, t), j->ctx, TE_ERROR_FORMAT, "%.120s: tensor %.60s, %s, is too large",
               j->path, t->name, te__shape_text_of(t).text);
    TE_REQUIRE(begin <= end && (uint64_t)end <= data_bytes, j->ctx, TE_ERROR_FORMAT,
               "%.120s: tensor %.60s has the offsets [%lld, %lld], the file has %llu bytes of data", j->path, t->name,
               (long long)begin, (long long)end, (unsigned long long)data_bytes);
    TE_REQUIRE((uint64_t)(end - begin) == t->bytes, j->ctx, TE_ERROR_FORMAT, "%.120s: tensor %.60s, %s, has %lld bytes",
               j->path, t->name,
               te__shape_text_of(t).text, (long long)(end - begin));
    t->offset = (uint64_t)begin;
    return TE_OK;
}
TE_API te_status te__safetensors_parse_metadata(te_safetensors *f, te__json *j) {
    TE_TRY(te__json_expect(j, '{'));
    for (int more = 0;; f->metadata_count++) {
        TE_TRY(te__json_next(&more, j, '}'));
        if (!more) return TE_OK;
        void *more_pairs = te__room(f->metadata, f->metadata_count, sizeof *f->metadata);
        TE_REQUIRE(more_pairs, j->ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate", j->path);
        f->metadata = (te_safetensors_pair *)more_pairs;
        te_safetensors_pair *pair = &f->metadata[f->metadata_count];
        TE_TRY(te__json_string(&pair->key, j));
        TE_TRY(te__json_expect(j, ':'));
        TE_TRY(te__json_string(&pair->value, j));
    }
}
TE_API int te__by_offset(const void *a, const void *b) {
    const te_safetensor *x = (const te_safetensor *)a, *y = (const te_safetensor *)b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}
TE_API int te__by_name(const void *a,
                       const void *b) { return strcmp(((const te_safetensor *)a)->name,
                                                      ((const te_safetensor *)b)->name); }
TE_API int te__by_key(const void *a, const void *b) {
    return strcmp(((const te_safetensors_pair *)a)->key, ((const te_safetensors_pair *)b)->key);
}
/* The header: f->header, n bytes and a NUL. Fills in and checks the tables. */
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
        te_safetensor *more_tensors = (te_safetensor *)te__room(f->tensor, f->count, sizeof *f->tensor), *t;
        TE_REQUIRE(more_tensors, ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate", f->path);
        f->tensor = more_tensors, t = &f->tensor[f->count];
        memset(t, 0, sizeof *t);
        t->name = name;
        TE_TRY(te__safetensors_parse_tensor(t, j, data_bytes));
        f->count++;
    }
    (void)te__json_peek(j);
    if (j->at != n) return te__json_fail(j, "something follows the last '}'");

    uint64_t at = 0; /* the data are covered without gap or overlap */
    if (f->count) qsort(f->tensor, (size_t)f->count, sizeof *f->tensor, te__by_offset);
    for (int i = 0; i < f->count; at += f->tensor[i++].bytes)
        TE_REQUIRE(f->tensor[i].offset == at, ctx, TE_ERROR_FORMAT,
                   "%.120s: tensor %.60s begins at byte %llu of the data, the one before ends at %llu",
                   f->path, f->tensor[i].name, (unsigned long long)f->tensor[i].offset, (unsigned long long)at);
    TE_REQUIRE(at == data_bytes, ctx, TE_ERROR_FORMAT, "%.120s: the tensors take %llu bytes, the file has %llu",
               f->path, (unsigned long long)at,
               (unsigned long long)data_bytes);
    if (f->count) qsort(f->tensor, (size_t)f->count, sizeof *f->tensor, te__by_name);
    for (int i = 1; i < f->count; i++)
        TE_REQUIRE(strcmp(f->tensor[i - 1].name, f->tensor[i].name), ctx, TE_ERROR_FORMAT,
                   "%.120s: two tensors are called \"%.60s\"", f->path, f->tensor[i].name);
    if (f->metadata_count) qsort(f->metadata, (size_t)f->metadata_count, sizeof *f->metadata, te__by_key);
    for (int i = 1; i < f->metadata_count; i++)
        TE_REQUIRE(strcmp(f->metadata[i - 1].key, f->metadata[i].key), ctx, TE_ERROR_FORMAT,
                   "%.120s: two metadata are called \"%.60s\"", f->path,
                   f->metadata[i].key);
    return TE_OK;
}

#endif
