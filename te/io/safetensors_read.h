/* safetensors_read.h -- opening, checking and reading safetensors files. Included by safetensors.h. */
#include "safetensors.h" /* te_safetensors; before the guard, for it includes this file at its end */

#ifndef TE_SAFETENSORS_READ_H
#define TE_SAFETENSORS_READ_H

/* Room for one more behind `count` elements: 8, then twice as many whenever they are full. Null, and p stays, if there is none. */
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
        TE_REQUIRE(which >= 0 && !had[which]++, j->ctx, TE_ERROR_FORMAT, "%.120s: tensor %.60s: \"%.40s\" %s", j->path, t->name, key,
                   which < 0 ? "is not a field of a tensor" : "stands there twice");
        if (which == 0) {
            int d = 0;
            TE_TRY(te__json_string(&text, j));
            while (d < TE_SAFETENSORS_DTYPE_COUNT && strcmp(text, te_safetensors_dtype_name((te_safetensors_dtype)d))) d++;
            TE_REQUIRE(d < TE_SAFETENSORS_DTYPE_COUNT, j->ctx, TE_ERROR_FORMAT, "%.120s: tensor %.60s has the unknown dtype \"%.40s\"", j->path, t->name, text);
            t->dtype = (te_safetensors_dtype)d;
        } else if (which == 1) {
            TE_TRY(te__json_expect(j, '['));
            for (int inner = 0;;) {
                TE_TRY(te__json_next(&inner, j, ']'));
                if (!inner) break;
                TE_REQUIRE(t->rank < TE_SAFETENSORS_RANK, j->ctx, TE_ERROR_FORMAT, "%.120s: tensor %.60s has more than %d dimensions", j->path, t->name,
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
    TE_REQUIRE(te__safetensor_size(&t->bytes, t), j->ctx, TE_ERROR_FORMAT, "%.120s: tensor %.60s, %s, is too large", j->path, t->name, te__shape_text_of(t).text);
    TE_REQUIRE(begin <= end && (uint64_t)end <= data_bytes, j->ctx, TE_ERROR_FORMAT,
               "%.120s: tensor %.60s has the offsets [%lld, %lld], the file has %llu bytes of data", j->path, t->name, (long long)begin,
               (long long)end, (unsigned long long)data_bytes);
    TE_REQUIRE((uint64_t)(end - begin) == t->bytes, j->ctx, TE_ERROR_FORMAT, "%.120s: tensor %.60s, %s, has %lld bytes", j->path, t->name,
               te__shape_text_of(t).text, (long long)(end - begin));
    t->offset = (uint64_t)begin;
    return TE_OK;
}
TE_API te_status te__safetensors_parse_metadata(te_safetensors *f, te__json *j) {
    TE_TRY(te__json_expect(j, '{'));
    for (int more = 0;; f->metadata_count++) {
        TE_TRY(te__json_next(&more, j, '}'));
        if (!more) return TE_OK;
        te_safetensors_pair *more_pairs = (te_safetensors_pair *)te__room(f->metadata, f->metadata_count, sizeof *f->metadata), *pair;
        TE_REQUIRE(more_pairs, j->ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate", j->path);
        f->metadata = more_pairs, pair = &f->metadata[f->metadata_count];
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
TE_API int te__by_name(const void *a, const void *b) { return strcmp(((const te_safetensor *)a)->name, ((const te_safetensor *)b)->name); }
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
        TE_REQUIRE(f->tensor[i].offset == at, ctx, TE_ERROR_FORMAT, "%.120s: tensor %.60s begins at byte %llu of the data, the one before ends at %llu",
                   f->path, f->tensor[i].name, (unsigned long long)f->tensor[i].offset, (unsigned long long)at);
    TE_REQUIRE(at == data_bytes, ctx, TE_ERROR_FORMAT, "%.120s: the tensors take %llu bytes, the file has %llu", f->path, (unsigned long long)at,
               (unsigned long long)data_bytes);
    if (f->count) qsort(f->tensor, (size_t)f->count, sizeof *f->tensor, te__by_name);
    for (int i = 1; i < f->count; i++)
        TE_REQUIRE(strcmp(f->tensor[i - 1].name, f->tensor[i].name), ctx, TE_ERROR_FORMAT, "%.120s: two tensors are called \"%.60s\"", f->path, f->tensor[i].name);
    if (f->metadata_count) qsort(f->metadata, (size_t)f->metadata_count, sizeof *f->metadata, te__by_key);
    for (int i = 1; i < f->metadata_count; i++)
        TE_REQUIRE(strcmp(f->metadata[i - 1].key, f->metadata[i].key), ctx, TE_ERROR_FORMAT, "%.120s: two metadata are called \"%.60s\"", f->path,
                   f->metadata[i].key);
    return TE_OK;
}

TE_API void te_safetensors_close(te_safetensors *f) {
    if (!f) return;
    if (f->open) (void)close(f->fd);
    free(f->tensor), free(f->metadata), free(f->header), free(f->path);
    memset(f, 0, sizeof *f);
}
/* Bytes of the file itself. */
TE_API te_status te__safetensors_get(const te_safetensors *f, void *dst, size_t n, uint64_t at, te_context *ctx) {
    if (!f->memory) return te__file_read(f->fd, dst, n, at, f->path, ctx);
    if (n) memcpy(dst, f->memory + at, n);
    return TE_OK;
}
TE_API te_status te__safetensors_begin(te_safetensors *f, uint64_t file_bytes, te_context *ctx) {
    unsigned char length[8];
    uint64_t n = 0;
    TE_REQUIRE(file_bytes >= 8, ctx, TE_ERROR_FORMAT, "%.120s: %llu bytes are no safetensors file", f->path, (unsigned long long)file_bytes);
    TE_TRY(te__safetensors_get(f, length, 8, 0, ctx));
    for (int i = 7; i >= 0; i--) n = n << 8 | length[i];
    TE_REQUIRE(n <= TE_SAFETENSORS_HEADER && n <= file_bytes - 8, ctx, TE_ERROR_FORMAT,
               "%.120s: the header should have %llu bytes; the file has %llu, and at most %d are allowed", f->path, (unsigned long long)n,
               (unsigned long long)(file_bytes - 8), (int)TE_SAFETENSORS_HEADER);
    f->header = (char *)malloc((size_t)n + 1);
    TE_REQUIRE(f->header, ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate %llu bytes", f->path, (unsigned long long)n + 1);
    TE_TRY(te__safetensors_get(f, f->header, (size_t)n, 8, ctx));
    f->header[n] = 0, f->data_at = 8 + n;
    return te__safetensors_parse(f, (size_t)n, file_bytes - 8 - n, ctx);
}
TE_API te_status te__safetensors_open(te_safetensors *f, const char *path, const void *memory, size_t bytes, te_context *ctx) {
    struct stat info;
    f->path = (char *)malloc(strlen(path) + 1);
    TE_REQUIRE(f->path, ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate", path);
    memcpy(f->path, path, strlen(path) + 1);
    f->memory = (const char *)memory;
    if (memory) return te__safetensors_begin(f, bytes, ctx);
    f->fd = open(path, O_RDONLY);
    TE_REQUIRE(f->fd >= 0, ctx, TE_ERROR_IO, "%.120s: cannot open it: %s", path, strerror(errno));
    f->open = 1;
    TE_REQUIRE(!fstat(f->fd, &info), ctx, TE_ERROR_IO, "%.120s: %s", path, strerror(errno));
    TE_REQUIRE(S_ISREG(info.st_mode) && info.st_size >= 0, ctx, TE_ERROR_IO, "%.120s: not a file", path);
    return te__safetensors_begin(f, (uint64_t)info.st_size, ctx);
}

/* Open a file and check all of its header. After an error there is nothing to close. Errors: TE_ERROR_IO, _FORMAT, _MEMORY. */
TE_API te_status te_safetensors_open(te_safetensors *f, const char *path, te_context *ctx) {
    TE_REQUIRE(f, ctx, TE_ERROR_NULL, "safetensors: the struct is null");
    memset(f, 0, sizeof *f);
    TE_REQUIRE(path, ctx, TE_ERROR_NULL, "safetensors: the path is null");
    const te_status status = te__safetensors_open(f, path, 0, 0, ctx);
    if (status != TE_OK) te_safetensors_close(f);
    return status;
}
/* The same for a file that lies in host memory, and stays there until it is closed. */
TE_API te_status te_safetensors_open_memory(te_safetensors *f, const void *memory, size_t bytes, te_context *ctx) {
    TE_REQUIRE(f, ctx, TE_ERROR_NULL, "safetensors: the struct is null");
    memset(f, 0, sizeof *f);
    TE_REQUIRE(memory, ctx, TE_ERROR_NULL, "safetensors: the memory is null");
    const te_status status = te__safetensors_open(f, "memory", memory, bytes, ctx);
    if (status != TE_OK) te_safetensors_close(f);
    return status;
}

/* The tensor of this name; null if there is none. */
TE_API const te_safetensor *te_safetensors_find(const te_safetensors *f, const char *name) {
    te_safetensor key;
    key.name = name;
    return f && name && f->count ? (const te_safetensor *)bsearch(&key, f->tensor, (size_t)f->count, sizeof key, te__by_name) : 0;
}
/* The string of this key; null if there is none. */
TE_API const char *te_safetensors_metadata(const te_safetensors *f, const char *key) {
    te_safetensors_pair pair, *found = 0;
    pair.key = key, pair.value = 0;
    if (f && key && f->metadata_count)
        found = (te_safetensors_pair *)bsearch(&pair, f->metadata, (size_t)f->metadata_count, sizeof pair, te__by_key);
    return found ? found->value : 0;
}

/* Read a tensor that te_safetensors_find found into host or target memory of t->bytes. Waits for the stream. */
TE_API te_status te_safetensors_read(const te_safetensors *f, const te_safetensor *t, void *dst, te_context *ctx) {
    TE_REQUIRE(f && t && ctx && (dst || !t->bytes), ctx, TE_ERROR_NULL, "safetensors: the file, the tensor or its destination is null");
    if (!t->bytes) return TE_OK;
    const size_t room = t->bytes < TE_SAFETENSORS_STAGING ? (size_t)t->bytes : (size_t)TE_SAFETENSORS_STAGING;
    char *staging = (char *)malloc(room);
    TE_REQUIRE(staging, ctx, TE_ERROR_MEMORY, "%.60s: cannot allocate %zu bytes", t->name, room);
    te_status status = TE_OK;
    for (uint64_t at = 0; at < t->bytes && status == TE_OK; at += room) {
        const size_t part = t->bytes - at < room ? (size_t)(t->bytes - at) : room;
        status = te__safetensors_get(f, staging, part, f->data_at + t->offset + at, ctx);
        if (status == TE_OK) status = te_copy(ctx, (char *)dst + at, staging, part);
        if (status == TE_OK) status = te_synchronize(ctx);
    }
    free(staging);
    return status;
}

/* Check that the file has these tensors, with these shapes and dtypes, and (exact) no others. */
TE_API te_status te_safetensors_check(const te_safetensors *f, const te_safetensor *want, int n, int exact, te_context *ctx) {
    TE_REQUIRE(f && f->path && (want || n <= 0), ctx, TE_ERROR_NULL, "safetensors: the file is not open, or the list is null");
    char *used = (char *)calloc(1, (size_t)f->count + 1);
    TE_REQUIRE(used, ctx, TE_ERROR_MEMORY, "safetensors: cannot allocate %d bytes", f->count + 1);
    te_status status = TE_OK;
    for (int i = 0; i < n && status == TE_OK; i++) {
        const te_safetensor *w = &want[i], *t = te_safetensors_find(f, w->name);
        uint64_t bytes;
        if (!w->name || !te__safetensor_size(&bytes, w) || bytes != w->bytes || (!w->data && bytes))
            status = te_fail(ctx, TE_ERROR_VALUE, "safetensors: entry %d (%.60s) of the list has no name, shape or data", i, w->name ? w->name : "?");
        else if (!t)
            status = te_fail(ctx, TE_ERROR_FORMAT, "%.120s: has no tensor %.60s, which should be %s", f->path, w->name, te__shape_text_of(w).text);
        else if (used[t - f->tensor]++)
            status = te_fail(ctx, TE_ERROR_VALUE, "safetensors: the list has %.60s twice", w->name);
        else if (t->dtype != w->dtype || t->rank != w->rank || memcmp(t->shape, w->shape, (size_t)t->rank * sizeof t->shape[0]))
            status = te_fail(ctx, t->dtype != w->dtype ? TE_ERROR_DTYPE : TE_ERROR_SHAPE, "%.120s: tensor %.60s is %s, it should be %s", f->path, w->name,
                             te__shape_text_of(t).text, te__shape_text_of(w).text);
    }
    for (int i = 0; exact && i < f->count && status == TE_OK; i++)
        if (!used[i])
            status = te_fail(ctx, TE_ERROR_FORMAT, "%.120s: has a tensor %.60s, %s, that nothing here is called", f->path, f->tensor[i].name,
                             te__shape_text_of(&f->tensor[i]).text);
    free(used);
    return status;
}
/* Check as te_safetensors_check does, and only then read all of them into their `data`. An error of the checks has
 * written nothing; TE_ERROR_IO, from a disk that fails meanwhile, may come after a part. Waits for the stream. */
TE_API te_status te_safetensors_load(const te_safetensors *f, const te_safetensor *want, int n, int exact, te_context *ctx) {
    TE_TRY(te_safetensors_check(f, want, n, exact, ctx));
    for (int i = 0; i < n; i++) TE_TRY(te_safetensors_read(f, te_safetensors_find(f, want[i].name), want[i].data, ctx));
    return TE_OK;
}

#endif
