/* safetensors_write.h -- te_safetensors_write. Included by safetensors.h. */
#include "safetensors.h" /* te_safetensor; before the guard, for it includes this file at its end */

#ifndef TE_SAFETENSORS_WRITE_H
#define TE_SAFETENSORS_WRITE_H

TE_API int te__name_order(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* The header. Tensors lie in the file in the order of their elements' size, so that each is aligned to it. */
TE_API void te__safetensors_header(te__text *t, const te_safetensor *tensor, int n, const te_safetensors_pair *metadata, int pairs) {
    uint64_t at = 0;
    int any = 0;
    te__text_char(t, '{');
    if (pairs) {
        te__text_put(t, "\"__metadata__\":{");
        for (int i = 0; i < pairs; i++) {
            if (i) te__text_char(t, ',');
            te__text_string(t, metadata[i].key), te__text_char(t, ':'), te__text_string(t, metadata[i].value);
        }
        te__text_char(t, '}'), any = 1;
    }
    for (size_t size = 8; size; size /= 2)
        for (int i = 0; i < n; i++) {
            const te_safetensor *e = &tensor[i];
            if (te_safetensors_dtype_bytes(e->dtype) != size) continue;
            if (any++) te__text_char(t, ',');
            te__text_string(t, e->name), te__text_put(t, ":{\"dtype\":\""), te__text_put(t, te_safetensors_dtype_name(e->dtype));
            te__text_put(t, "\",\"shape\":[");
            for (int k = 0; k < e->rank; k++) {
                if (k) te__text_char(t, ',');
                te__text_number(t, (uint64_t)e->shape[k]);
            }
            te__text_put(t, "],\"data_offsets\":["), te__text_number(t, at), te__text_char(t, ',');
            te__text_number(t, at += e->bytes), te__text_put(t, "]}");
        }
    te__text_char(t, '}');
    while (t->n % 8) te__text_char(t, ' ');
}

TE_API te_status te__safetensors_check(const te_safetensor *tensor, int n, const te_safetensors_pair *metadata, int pairs, te_context *ctx) {
    uint64_t bytes, total = 0;
    TE_REQUIRE(n >= 0 && pairs >= 0, ctx, TE_ERROR_SHAPE, "safetensors: %d tensors, %d metadata pairs", n, pairs);
    TE_REQUIRE((tensor || !n) && (metadata || !pairs), ctx, TE_ERROR_NULL, "safetensors: the tensors or the metadata are null");
    for (int i = 0; i < n; i++) {
        const te_safetensor *t = &tensor[i];
        TE_REQUIRE(t->name, ctx, TE_ERROR_NULL, "safetensors: tensor %d has no name", i);
        TE_REQUIRE(te__utf8_valid(t->name) && strcmp(t->name, "__metadata__"), ctx, TE_ERROR_VALUE, "safetensors: a tensor cannot be called \"%.60s\"", t->name);
        TE_REQUIRE((unsigned)t->dtype < (unsigned)TE_SAFETENSORS_DTYPE_COUNT, ctx, TE_ERROR_DTYPE, "%.60s: dtype %d", t->name, (int)t->dtype);
        TE_REQUIRE(te__safetensor_size(&bytes, t) && bytes == t->bytes, ctx, TE_ERROR_SHAPE, "%.60s: %llu bytes are not %s", t->name,
                   (unsigned long long)t->bytes, te__shape_text_of(t).text);
        TE_REQUIRE(t->data || !bytes, ctx, TE_ERROR_NULL, "%.60s: data is null", t->name);
        TE_REQUIRE(bytes <= (uint64_t)INT64_MAX / 2 - total, ctx, TE_ERROR_OVERFLOW, "%.60s: the file would be too large", t->name);
        total += bytes;
    }
    for (int i = 0; i < pairs; i++)
        TE_REQUIRE(metadata[i].key && metadata[i].value && te__utf8_valid(metadata[i].key) && te__utf8_valid(metadata[i].value), ctx,
                   TE_ERROR_VALUE, "safetensors: metadata %d is null or not UTF-8", i);
    return TE_OK;
}
TE_API te_status te__safetensors_unique(const char **name, int n, const char *what, te_context *ctx) {
    qsort(name, (size_t)n, sizeof *name, te__name_order);
    for (int i = 1; i < n; i++)
        TE_REQUIRE(strcmp(name[i - 1], name[i]), ctx, TE_ERROR_VALUE, "safetensors: two %s are called \"%.60s\"", what, name[i]);
    return TE_OK;
}
TE_API te_status te__safetensors_put(te__new_file *f, const te_safetensor *tensor, int n, const char *header, size_t header_bytes,
                                     char *staging, te_context *ctx) {
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)header_bytes >> (8 * i));
    TE_TRY(te__new_file_write(f, length, sizeof length, ctx));
    TE_TRY(te__new_file_write(f, header, header_bytes, ctx));
    for (size_t size = 8; size; size /= 2)
        for (int i = 0; i < n; i++) {
            if (te_safetensors_dtype_bytes(tensor[i].dtype) != size) continue;
            for (uint64_t at = 0; at < tensor[i].bytes; at += TE_SAFETENSORS_STAGING) {
                const uint64_t left = tensor[i].bytes - at;
                const size_t part = left < TE_SAFETENSORS_STAGING ? (size_t)left : (size_t)TE_SAFETENSORS_STAGING;
                TE_TRY(te_copy(ctx, staging, (const char *)tensor[i].data + at, part));
                TE_TRY(te_synchronize(ctx));
                TE_TRY(te__new_file_write(f, staging, part, ctx));
            }
        }
    return TE_OK;
}

/* Write tensors (host or target memory, in stream order) and metadata to a file. The old file stays as it is until the
 * new one, path.tmp, is complete on the disk. Waits for the stream. Errors: TE_ERROR_IO; what is wrong with an entry. */
TE_API te_status te_safetensors_write(const char *path, const te_safetensor *tensor, int n, const te_safetensors_pair *metadata, int pairs,
                                      te_context *ctx) {
    TE_REQUIRE(path && ctx, ctx, TE_ERROR_NULL, "safetensors: the path or the context is null");
    TE_TRY(te__safetensors_check(tensor, n, metadata, pairs, ctx));
    te__text text;
    text.p = 0, text.n = 0;
    te__safetensors_header(&text, tensor, n, metadata, pairs);
    TE_REQUIRE(text.n <= TE_SAFETENSORS_HEADER, ctx, TE_ERROR_OVERFLOW, "safetensors: the header would have %zu bytes, at most %d are allowed",
               text.n, (int)TE_SAFETENSORS_HEADER);

    const size_t names = (size_t)(n > pairs ? n : pairs);
    const char **name = (const char **)malloc((names + 1) * sizeof *name);
    char *staging = (char *)malloc(TE_SAFETENSORS_STAGING);
    te_status status = TE_OK;
    text.p = (char *)malloc(text.n), text.n = 0;
    if (!name || !staging || !text.p) status = te_fail(ctx, TE_ERROR_MEMORY, "safetensors: cannot allocate %d bytes", (int)TE_SAFETENSORS_STAGING);
    if (status == TE_OK) {
        for (int i = 0; i < n; i++) name[i] = tensor[i].name;
        status = te__safetensors_unique(name, n, "tensors", ctx);
    }
    if (status == TE_OK) {
        for (int i = 0; i < pairs; i++) name[i] = metadata[i].key;
        status = te__safetensors_unique(name, pairs, "metadata keys", ctx);
    }
    te__new_file f;
    memset(&f, 0, sizeof f);
    if (status == TE_OK) {
        te__safetensors_header(&text, tensor, n, metadata, pairs);
        status = te__new_file_open(&f, path, ctx);
        if (status == TE_OK) status = te__new_file_close(&f, te__safetensors_put(&f, tensor, n, text.p, text.n, staging, ctx), ctx);
    }
    free(text.p), free(staging), free((void *)name);
    return status;
}

#endif
