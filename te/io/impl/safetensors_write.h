/* safetensors_write.h -- writes a safetensors file, for te_safetensors_write and for checkpoints: checks the tensors,
 * and writes the header and then the data, TE_SAFETENSORS_STAGING bytes at a time.
 *
 * An old file at the same path is replaced only when the new file is complete on the disk. te/core/impl/file.h
 * describes the handling of links, permissions and devices.
 */
#ifndef TE_SAFETENSORS_WRITE_H
#define TE_SAFETENSORS_WRITE_H

#include "../../core/impl/file.h"      /* te__new_file */
#include "../checksum.h"          /* te_checksum */
#include "../json.h"              /* te__text */
#include "../safetensors_types.h" /* te_safetensor */

/* Options of te__safetensors_write. */
typedef struct te__safetensors_extra {
    int sealed; /* 1: put a checksum into the metadata */
    int finite; /* 1: an infinity or a NaN in a tensor in F32, BF16 or F16 is an error */
    /* A callback that copies n bytes of a tensor, from byte `at` on, to host memory at address `to`. If the callback is
     * null, the bytes are copied from t->data. */
    te_status (*source)(void *from, void *to, const te_safetensor *t, uint64_t at, size_t n, te_context *ctx);
    void *from; /* the callback's first argument */
} te__safetensors_extra;

TE_API te__safetensors_extra te__safetensors_extra_of(int sealed, int finite) {
    te__safetensors_extra e;
    memset(&e, 0, sizeof e);
    e.sealed = sealed, e.finite = finite;
    return e;
}

/* A sealed file is a file with a checksum. Its header begins with this text, and the digits of the checksum follow
 * directly. */
#define TE__SAFETENSORS_SEAL "{\"__metadata__\":{\"" TE_SAFETENSORS_SUM "\":\""

/* ---- the header -------------------------------------------------------------------------------------------------- */

/* Write one pair of the metadata. A comma precedes the pair unless it is the first pair (*any is 0). */
TE_API void te__safetensors_put_pair(te__text *t, int *any, const char *key, const char *value) {
    if ((*any)++) te__text_char(t, ',');
    te__text_string(t, key), te__text_char(t, ':'), te__text_string(t, value);
}
/* Write the metadata. transformers loads only files whose metadata have the key "format". If the caller's metadata do
 * not have this key, the key is written with the value "pt", as in PyTorch's files. */
TE_API void te__safetensors_put_metadata(te__text *t, const te_safetensors_pair *metadata, int pairs, int sealed) {
    int any = sealed, has_format = 0;
    for (int i = 0; i < pairs; i++) has_format |= !strcmp(metadata[i].key, "format");
    if (sealed) te__text_put(t, TE__SAFETENSORS_SEAL "0000000000000000\",\"te.version\":\"1\"");
    else te__text_put(t, "{\"__metadata__\":{");
    if (!has_format) te__safetensors_put_pair(t, &any, "format", "pt");
    for (int i = 0; i < pairs; i++) te__safetensors_put_pair(t, &any, metadata[i].key, metadata[i].value);
    te__text_char(t, '}');
}
/* Write the header, padded with spaces so that the data begin at a multiple of TE_SAFETENSORS_ALIGN. Tensors are
 * ordered by the size of their elements, the largest first, so that each tensor is aligned to its element size. If
 * `sealed` is set, the header has a checksum, whose digits are zeros at first, and are overwritten when the data has
 * been written. */
TE_API void te__safetensors_header(te__text *t, const te_safetensor *tensor, int n, const te_safetensors_pair *metadata,
                                   int pairs, int sealed) {
    uint64_t at = 0;
    te__safetensors_put_metadata(t, metadata, pairs, sealed);
    for (size_t size = 8; size; size /= 2)
        for (int i = 0; i < n; i++) {
            const te_safetensor *e = &tensor[i];
            if (te_safetensors_dtype_bytes(e->dtype) != size) continue;
            te__text_char(t, ','), te__text_string(t, e->name), te__text_put(t, ":{\"dtype\":\"");
            te__text_put(t, te_safetensors_dtype_name(e->dtype));
            te__text_put(t, "\",\"shape\":[");
            for (int k = 0; k < e->rank; k++) {
                if (k) te__text_char(t, ',');
                te__text_number(t, (uint64_t)e->shape[k]);
            }
            te__text_put(t, "],\"data_offsets\":["), te__text_number(t, at), te__text_char(t, ',');
            te__text_number(t, at += e->bytes), te__text_put(t, "]}");
        }
    te__text_char(t, '}');
    while ((8 + t->n) % TE_SAFETENSORS_ALIGN) te__text_char(t, ' ');
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

TE_API te_status te__safetensors_check(const te_safetensor *tensor, int n, const te_safetensors_pair *metadata,
                                       int pairs, te_context *ctx) {
    uint64_t bytes, total = 0;
    TE_REQUIRE(n >= 0 && pairs >= 0, ctx, TE_ERROR_SHAPE, "safetensors: %d tensors, %d metadata pairs", n, pairs);
    TE_REQUIRE((tensor || !n) && (metadata || !pairs), ctx, TE_ERROR_NULL,
               "safetensors: the tensors or the metadata are null");
    for (int i = 0; i < n; i++) {
        const te_safetensor *t = &tensor[i];
        TE_REQUIRE(t->name, ctx, TE_ERROR_NULL, "safetensors: tensor %d has no name", i);
        TE_REQUIRE(te__utf8_valid(t->name) && strcmp(t->name, "__metadata__"), ctx, TE_ERROR_VALUE,
                   "safetensors: a tensor cannot be called \"%.60s\"", t->name);
        TE_REQUIRE((unsigned)t->dtype < (unsigned)TE_SAFETENSORS_DTYPE_COUNT, ctx, TE_ERROR_DTYPE, "%.60s: dtype %d",
                   t->name, (int)t->dtype);
        TE_REQUIRE(te__safetensor_size(&bytes, t) && bytes == t->bytes, ctx, TE_ERROR_SHAPE,
                   "%.60s: %llu bytes are not %s", t->name,
                   (unsigned long long)t->bytes, te__shape_text_of(t).text);
        TE_REQUIRE(t->data || !bytes, ctx, TE_ERROR_NULL, "%.60s: data is null", t->name);
        TE_REQUIRE(!t->sliced, ctx, TE_ERROR_VALUE,
                   "%.60s: a slice is not written: a file has whole tensors; te_checkpoint_save gathers them", t->name);
        TE_REQUIRE(!t->transposed || t->rank == 2, ctx, TE_ERROR_SHAPE, "%.60s: %s has no transpose", t->name,
                   te__shape_text_of(t).text);
        TE_REQUIRE(bytes <= (uint64_t)INT64_MAX / 2 - total, ctx, TE_ERROR_OVERFLOW,
                   "%.60s: the file would be too large", t->name);
        total += bytes;
    }
    for (int i = 0; i < pairs; i++) {
        const te_safetensors_pair *p = &metadata[i];
        TE_REQUIRE(p->key && p->value && te__utf8_valid(p->key) && te__utf8_valid(p->value), ctx, TE_ERROR_VALUE,
                   "safetensors: metadata %d is null or not UTF-8", i);
    }
    return TE_OK;
}
/* Check the keys of the metadata. Keys that begin with "te." are reserved for the library: te_safetensors_verify treats
 * a file with such a key as sealed. */
TE_API te_status te__safetensors_keys(const te_safetensors_pair *metadata, int pairs, te_context *ctx) {
    for (int i = 0; metadata && i < pairs; i++)
        TE_REQUIRE(!metadata[i].key || strncmp(metadata[i].key, "te.", 3), ctx, TE_ERROR_VALUE,
                   "safetensors: the metadata key %.60s: what begins with te. is the library's", metadata[i].key);
    return TE_OK;
}
TE_API int te__name_order(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}
TE_API te_status te__safetensors_unique(const char **name, int n, const char *kind, te_context *ctx) {
    qsort(name, (size_t)n, sizeof *name, te__name_order);
    for (int i = 1; i < n; i++)
        TE_REQUIRE(strcmp(name[i - 1], name[i]), ctx, TE_ERROR_VALUE, "safetensors: two %s are called \"%.60s\"", kind,
                   name[i]);
    return TE_OK;
}
/* ---- numbers that are not finite --------------------------------------------------------------------------------- */

/* Return whether any of the f32 elements in n bytes is an infinity or a NaN, i.e. has all bits of its exponent set. The
 * loop has no early exit, so that the compiler can vectorise it. */
TE_API int te__safetensors_any_nonfinite32(const char *bytes, size_t n) {
    uint32_t any = 0, bits;
    for (size_t i = 0; i < n; i += sizeof bits) {
        memcpy(&bits, bytes + i, sizeof bits);
        any |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return (int)any;
}
TE_API int te__safetensors_any_nonfinite16(const char *bytes, size_t n, uint16_t exponent) {
    uint16_t any = 0, bits;
    for (size_t i = 0; i < n; i += sizeof bits) {
        memcpy(&bits, bytes + i, sizeof bits);
        any = (uint16_t)(any | ((bits & exponent) == exponent));
    }
    return any;
}
/* Return whether any of the elements in n bytes is an infinity or a NaN. size: bytes of an element, 4 for f32 or 2 for
 * a 16-bit format. exponent: the mask of the exponent's bits in the 16-bit format. */
TE_API int te__safetensors_any_nonfinite(const char *bytes, size_t n, size_t size, uint16_t exponent) {
    return size == 4 ? te__safetensors_any_nonfinite32(bytes, n)
                     : te__safetensors_any_nonfinite16(bytes, n, exponent);
}
/* Return the index of the first element that is an infinity or a NaN; -1 if there is none, or if the dtype is not F32,
 * BF16 or F16. */
TE_API int64_t te__safetensors_nonfinite(const char *bytes, size_t n, te_safetensors_dtype dtype) {
    const size_t size = te_safetensors_dtype_bytes(dtype);
    if (dtype != TE_SAFETENSORS_F32 && dtype != TE_SAFETENSORS_BF16 && dtype != TE_SAFETENSORS_F16) return -1;
    const uint16_t exponent = dtype == TE_SAFETENSORS_BF16 ? 0x7f80 : 0x7c00;
    if (!te__safetensors_any_nonfinite(bytes, n, size, exponent)) return -1;
    for (size_t i = 0; i < n; i += size)
        if (te__safetensors_any_nonfinite(bytes + i, size, size, exponent)) return (int64_t)(i / size);
    return -1;
}

/* ---- the data ---------------------------------------------------------------------------------------------------- */

typedef struct te__safetensors_writer {
    te__new_file file;
    te_checksum sum;
    char *staging; /* [TE_SAFETENSORS_STAGING] of host memory */
    te__safetensors_extra extra;
} te__safetensors_writer;

TE_API te_status te__safetensors_put(te__safetensors_writer *w, const void *bytes, size_t n, te_context *ctx) {
    if (w->extra.sealed) te_checksum_add(&w->sum, bytes, n);
    return te__new_file_write(&w->file, bytes, n, ctx);
}
TE_API te_status te__safetensors_put_bytes(te__safetensors_writer *w, const te_safetensor *t, te_context *ctx) {
    for (uint64_t at = 0; at < t->bytes; at += TE_SAFETENSORS_STAGING) {
        const uint64_t left = t->bytes - at;
        const size_t part = left < TE_SAFETENSORS_STAGING ? (size_t)left : (size_t)TE_SAFETENSORS_STAGING;
        if (w->extra.source) TE_TRY(w->extra.source(w->extra.from, w->staging, t, at, part, ctx));
        else TE_TRY(te_copy(ctx, w->staging, (const char *)t->data + at, part));
        TE_TRY(te_synchronize(ctx));
        const int64_t bad = w->extra.finite ? te__safetensors_nonfinite(w->staging, part, t->dtype) : -1;
        const uint64_t first = at / te_safetensors_dtype_bytes(t->dtype);
        TE_REQUIRE(bad < 0, ctx, TE_ERROR_VALUE, "%.60s: element %llu is not finite; %.120s is as it was", t->name,
                   (unsigned long long)first + (unsigned long long)bad, w->file.path);
        TE_TRY(te__safetensors_put(w, w->staging, part, ctx));
    }
    return TE_OK;
}
/* Write the data of one tensor. If the file should have the transpose of t->data (t->transposed), the data is first
 * transposed in host memory, which needs twice the tensor's bytes. */
TE_API te_status te__safetensors_put_tensor(te__safetensors_writer *w, const te_safetensor *t, te_context *ctx) {
    if (!t->transposed) return te__safetensors_put_bytes(w, t, ctx);
    te_safetensor host = *t;
    char *staging = (char *)malloc(2 * (size_t)t->bytes + 1);
    TE_REQUIRE(staging, ctx, TE_ERROR_MEMORY, "%.60s: cannot allocate %llu bytes", t->name,
               2 * (unsigned long long)t->bytes);
    te_status status = te_copy(ctx, staging, t->data, (size_t)t->bytes);
    const te_status done = te_synchronize(ctx);
    if (status == TE_OK) status = done;
    if (status == TE_OK) {
        host.data = staging + t->bytes, host.transposed = 0;
        te__safetensor_transpose((char *)host.data, staging, t->shape[1], t->shape[0],
                                 te_safetensors_dtype_bytes(t->dtype));
        status = te__safetensors_put_bytes(w, &host, ctx);
    }
    free(staging);
    return status;
}
TE_API te_status te__safetensors_put_all(te__safetensors_writer *w, const te_safetensor *tensor, int n,
                                         const te__text *header, te_context *ctx) {
    unsigned char length[8];
    char digits[TE_SAFETENSORS_DIGITS + 1];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)header->n >> (8 * i));
    TE_TRY(te__safetensors_put(w, length, sizeof length, ctx));
    TE_TRY(te__safetensors_put(w, header->p, header->n, ctx));
    for (size_t size = 8; size; size /= 2)
        for (int i = 0; i < n; i++)
            if (te_safetensors_dtype_bytes(tensor[i].dtype) == size)
                TE_TRY(te__safetensors_put_tensor(w, &tensor[i], ctx));
    if (!w->extra.sealed) return TE_OK;
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)te_checksum_end(&w->sum));
    return te__new_file_overwrite(&w->file, digits, TE_SAFETENSORS_DIGITS, 8 + strlen(TE__SAFETENSORS_SEAL), ctx);
}

/* Check that no two tensors have the same name, and no two metadata pairs the same key. */
TE_API te_status te__safetensors_names(const te_safetensor *tensor, int n, const te_safetensors_pair *metadata,
                                       int pairs, te_context *ctx) {
    const size_t names = (size_t)(n > pairs ? n : pairs) + 1;
    const char **name = (const char **)malloc(names * sizeof *name);
    TE_REQUIRE(name, ctx, TE_ERROR_MEMORY, "safetensors: cannot allocate %zu bytes", names * sizeof *name);
    for (int i = 0; i < n; i++) name[i] = tensor[i].name;
    te_status status = te__safetensors_unique(name, n, "tensors", ctx);
    for (int i = 0; i < pairs; i++) name[i] = metadata[i].key;
    if (status == TE_OK) status = te__safetensors_unique(name, pairs, "metadata keys", ctx);
    free((void *)name);
    return status;
}
TE_API te_status te__safetensors_write(const char *path, const te_safetensor *tensor, int n,
                                       const te_safetensors_pair *metadata, int pairs, te__safetensors_extra extra,
                                       te_context *ctx) {
    TE_REQUIRE(path && ctx, ctx, TE_ERROR_NULL, "safetensors: the path or the context is null");
    TE_TRY(te__safetensors_check(tensor, n, metadata, pairs, ctx));
    TE_TRY(te__safetensors_names(tensor, n, metadata, pairs, ctx));
    te__text text;
    text.p = 0, text.n = 0;
    te__safetensors_header(&text, tensor, n, metadata, pairs, extra.sealed);
    TE_REQUIRE(text.n <= TE_SAFETENSORS_MAX_HEADER, ctx, TE_ERROR_OVERFLOW,
               "safetensors: the header would have %zu bytes, at most %d are allowed", text.n,
               (int)TE_SAFETENSORS_MAX_HEADER);
    /* bytes of the staging buffer, and of the header, which lies behind the buffer */
    const size_t capacity = text.n + TE_SAFETENSORS_STAGING;
    char *memory = (char *)malloc(capacity);
    TE_REQUIRE(memory, ctx, TE_ERROR_MEMORY, "safetensors: cannot allocate %zu bytes", capacity);
    te__safetensors_writer w;
    w.sum = te_checksum_begin(), w.staging = memory, w.extra = extra;
    text.p = memory + TE_SAFETENSORS_STAGING, text.n = 0;
    te__safetensors_header(&text, tensor, n, metadata, pairs, extra.sealed);
    te_status status = te__new_file_open(&w.file, path, ctx);
    if (status == TE_OK)
        status = te__new_file_close(&w.file, te__safetensors_put_all(&w, tensor, n, &text, ctx), ctx);
    free(memory);
    return status;
}

#endif
