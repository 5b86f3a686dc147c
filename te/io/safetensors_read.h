/* safetensors_read.h -- checking and reading safetensors files.
 *
 * Do this:
 *     te_safetensors file;
 *     TE_TRY(te_safetensors_open(&file, "model.safetensors", &ctx));             // checks all of the header
 *     te_status status = te_safetensors_verify(&file, &ctx);                     // the checksum, if it has one
 *     if (status == TE_OK) status = te_safetensors_load(&file, t, 2, 1, &ctx);   // checks names and shapes, then reads
 *     te_safetensors_close(&file);
 */
#ifndef TE_SAFETENSORS_READ_H
#define TE_SAFETENSORS_READ_H

#include "checksum.h"         /* te_checksum */
#include "safetensors_open.h" /* te_safetensors_open */

/* ---- the checksum ------------------------------------------------------------------------------------------------ */

/* The sum of the file's bytes, those of the sum's own digits taken as '0'. */
TE_API te_status te__safetensors_sum(uint64_t *sum, const te_safetensors *f, uint64_t digits_at, te_context *ctx) {
    uint64_t total = f->data_at;
    for (int i = 0; i < f->count; i++) total += f->tensor[i].bytes;
    const size_t room = total < TE_SAFETENSORS_STAGING ? (size_t)total : (size_t)TE_SAFETENSORS_STAGING;
    char *staging = (char *)malloc(room);
    TE_REQUIRE(staging, ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate %zu bytes", f->path, room);
    te_checksum s = te_checksum_begin();
    te_status status = TE_OK;
    for (uint64_t at = 0; at < total && status == TE_OK; at += room) {
        const size_t part = total - at < room ? (size_t)(total - at) : room;
        status = te__safetensors_get(f, staging, part, at, ctx);
        for (uint64_t d = digits_at; status == TE_OK && d < digits_at + TE_SAFETENSORS_DIGITS; d++)
            if (d >= at && d < at + part) staging[d - at] = '0';
        if (status == TE_OK) te_checksum_add(&s, staging, part);
    }
    free(staging);
    *sum = te_checksum_end(&s);
    return status;
}
/* Compare the whole file with the checksum that te_safetensors_write_sealed put into it: TE_ERROR_FORMAT if a bit of it
 * has changed. A file without one passes, and f->verified stays 0; files of others have none. Reads all of the file. */
TE_API te_status te_safetensors_verify(te_safetensors *f, te_context *ctx) {
    TE_REQUIRE(f && f->path && ctx, ctx, TE_ERROR_NULL, "safetensors: the file is not open, or the context is null");
    const char *was = te_safetensors_metadata(f, TE_SAFETENSORS_SUM);
    for (int i = 0; !was && i < f->metadata_count; i++) /* a sealed file whose key was hit */
        TE_REQUIRE(strncmp(f->metadata[i].key, "te.", 3), ctx, TE_ERROR_FORMAT,
                   "%.120s: has the metadata %.40s, but no checksum: it was changed after it was saved", f->path,
                   f->metadata[i].key);
    if (!was) return TE_OK;
    uint64_t sum = 0;
    char is[TE_SAFETENSORS_DIGITS + 1];
    TE_TRY(te__safetensors_sum(&sum, f, 8 + (uint64_t)(was - f->header), ctx));
    snprintf(is, sizeof is, "%016llx", (unsigned long long)sum);
    TE_REQUIRE(!strcmp(is, was), ctx, TE_ERROR_FORMAT,
               "%.120s: the checksum is %.20s, that of its bytes %s: it was changed after it was saved", f->path, was,
               is);
    f->verified = 1;
    return TE_OK;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Read a tensor that te_safetensors_find found into host or target memory of t->bytes. Waits for the stream. */
TE_API te_status te_safetensors_read(const te_safetensors *f, const te_safetensor *t, void *dst, te_context *ctx) {
    TE_REQUIRE(f && t && ctx && (dst || !t->bytes), ctx, TE_ERROR_NULL,
               "safetensors: the file, the tensor or its destination is null");
    const te_safetensor *own = te_safetensors_find(f, t->name);
    TE_REQUIRE(own && own->offset == t->offset && own->bytes == t->bytes, ctx, TE_ERROR_VALUE,
               "safetensors: the tensor is not one of this file's; te_safetensors_find gives them");
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

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* F32, BF16 and F16 become each other. */
TE_API int te__safetensors_converts(te_dtype *to, te_safetensors_dtype from) {
    for (int t = TE_f32; t <= TE_f16; t++)
        if (te_safetensors_dtype_of((te_dtype)t) == from) return *to = (te_dtype)t, 1;
    return 0;
}
TE_API int te__safetensors_fits(const te_safetensor *t, const te_safetensor *want) {
    te_dtype dtype;
    return t->dtype == want->dtype ||
           (te__safetensors_converts(&dtype, t->dtype) && te__safetensors_converts(&dtype, want->dtype));
}
/* One row is a vector: [1, n] and [n] are the same. */
TE_API int te__safetensors_same_shape(const te_safetensor *a, const te_safetensor *b) {
    const int skip_a = a->rank == 2 && b->rank == 1 && a->shape[0] == 1;
    const int skip_b = b->rank == 2 && a->rank == 1 && b->shape[0] == 1;
    return a->rank - skip_a == b->rank - skip_b &&
           !memcmp(a->shape + skip_a, b->shape + skip_b, (size_t)(a->rank - skip_a) * sizeof a->shape[0]);
}
/* n numbers of a file as another format, rounded to nearest even. Returns the first that is finite and would be an
 * infinity; -1: none. to null: only look. */
TE_API int64_t te__safetensors_convert(void *to, te_dtype as, const void *from, te_dtype is, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const float v = te_load(from, i, is);
        if (to) te_store(to, i, v, as);
        else if (fabsf(v) <= 3.402823466e38f && !(fabsf(te_round_to(v, as)) <= 3.402823466e38f)) return i;
    }
    return -1;
}
/* Numbers [at, at + n) of what `want` has of tensor t, as the file has them. */
TE_API te_status te__safetensors_get_part(const te_safetensors *f, const te_safetensor *t, const te_safetensor *want,
                                          char *to, int64_t at, int64_t n, te_context *ctx) {
    const size_t size = te_safetensors_dtype_bytes(t->dtype);
    const uint64_t begin = f->data_at + t->offset;
    const int64_t cols = te__safetensor_cols(t), width = want->count[1];
    if (!want->sliced || width == cols) {
        const int64_t first = want->sliced ? want->first[0] * cols : 0;
        return te__safetensors_get(f, to, (size_t)n * size, begin + (uint64_t)(first + at) * size, ctx);
    }
    for (int64_t k = at; k < at + n;) { /* row by row */
        const int64_t in_row = te_min(width - k % width, at + n - k);
        const int64_t first = (want->first[0] + k / width) * cols + want->first[1] + k % width;
        TE_TRY(te__safetensors_get(f, to, (size_t)in_row * size, begin + (uint64_t)first * size, ctx));
        to += (size_t)in_row * size, k += in_row;
    }
    return TE_OK;
}
/* Read of tensor t what is wanted, or (look) only see whether all its numbers stay numbers. */
TE_API te_status te__safetensors_read_as(const te_safetensors *f, const te_safetensor *t, const te_safetensor *want,
                                         int look, te_context *ctx) {
    te_dtype is = TE_f32, as = TE_f32;
    const int same = t->dtype == want->dtype;
    if (same && look) return TE_OK;
    if (same && !want->sliced) return te_safetensors_read(f, t, want->data, ctx);
    if (!same) (void)te__safetensors_converts(&is, t->dtype), (void)te__safetensors_converts(&as, want->dtype);
    const int64_t count = te__safetensor_count(want), part = TE_SAFETENSORS_STAGING / 8;
    const size_t size = te_safetensors_dtype_bytes(want->dtype);
    if (look && as == TE_f32) return TE_OK;
    char *staging = (char *)malloc((size_t)te_min(count, part) * 8 + 1); /* 8 bytes, or 4 and 4 of another format */
    TE_REQUIRE(staging, ctx, TE_ERROR_MEMORY, "%.60s: cannot allocate %lld bytes", t->name, (long long)part * 8);
    char *made = same ? staging : staging + te_min(count, part) * 4;
    te_status status = TE_OK;
    for (int64_t at = 0; at < count && status == TE_OK; at += part) {
        const int64_t n = te_min(part, count - at);
        status = te__safetensors_get_part(f, t, want, staging, at, n, ctx);
        if (status != TE_OK) break;
        const int64_t bad = same ? -1 : te__safetensors_convert(look ? 0 : made, as, staging, is, n);
        if (bad >= 0)
            status = te_fail(ctx, TE_ERROR_VALUE, "%.120s: element %lld of %.60s, %g, does not fit %s", f->path,
                             (long long)(at + bad), t->name, (double)te_load(staging, bad, is), te_dtype_name(as));
        if (look || status != TE_OK) continue;
        status = te_copy(ctx, (char *)want->data + (size_t)at * size, made, (size_t)n * size);
        if (status == TE_OK) status = te_synchronize(ctx);
    }
    free(staging);
    return status;
}

/* The same for data that is the transpose, which host memory has twice meanwhile. */
TE_API te_status te__safetensors_read_turned(const te_safetensors *f, const te_safetensor *t, const te_safetensor *want,
                                             te_context *ctx) {
    te_safetensor host = *want;
    const size_t bytes = (size_t)te__safetensor_data_bytes(want);
    char *staging = (char *)malloc(2 * bytes + 1);
    TE_REQUIRE(staging, ctx, TE_ERROR_MEMORY, "%.60s: cannot allocate %zu bytes", t->name, 2 * bytes);
    char *turned = staging + bytes;
    host.data = staging, host.transposed = 0;
    te_status status = te__safetensors_read_as(f, t, &host, 0, ctx);
    if (status == TE_OK) {
        te__safetensor_turn(turned, staging, want->sliced ? want->count[0] : want->shape[0],
                            want->sliced ? want->count[1] : want->shape[1], te_safetensors_dtype_bytes(want->dtype));
        status = te_copy(ctx, want->data, turned, bytes);
        const te_status done = te_synchronize(ctx);
        if (status == TE_OK) status = done;
    }
    free(staging);
    return status;
}
/* Check that the file has these tensors and (exact) no others: of these shapes, where [1, n] and [n] are the same, and
 * of these dtypes, where F32, BF16 and F16 pass for each other, as te_safetensors_load converts them. The list has each
 * once, or slices of it. */
TE_API te_status te_safetensors_check(const te_safetensors *f, const te_safetensor *want, int n, int exact,
                                      te_context *ctx) {
    TE_REQUIRE(f && f->path && (want || n <= 0), ctx, TE_ERROR_NULL,
               "safetensors: the file is not open, or the list is null");
    TE_REQUIRE(n >= 0, ctx, TE_ERROR_SHAPE, "safetensors: a list of %d tensors", n);
    char *used = (char *)calloc(1, (size_t)f->count + 1);
    TE_REQUIRE(used, ctx, TE_ERROR_MEMORY, "safetensors: cannot allocate %d bytes", f->count + 1);
    te_status status = TE_OK;
    for (int i = 0; i < n && status == TE_OK; i++) {
        const te_safetensor *w = &want[i], *t = te_safetensors_find(f, w->name);
        uint64_t bytes;
        if (!w->name || !te__safetensor_size(&bytes, w) || bytes != w->bytes || (!w->data && bytes) ||
            (w->transposed && w->rank != 2) || !te__safetensor_has_slice(w))
            status = te_fail(ctx, TE_ERROR_VALUE,
                             "safetensors: entry %d (%.60s) of the list has no name, shape or data, or no such slice",
                             i, w->name ? w->name : "?");
        else if (!t)
            status = te_fail(ctx, TE_ERROR_FORMAT, "%.120s: has no tensor %.60s, which should be %s", f->path, w->name,
                             te__shape_text_of(w).text);
        else if (used[t - f->tensor] && (used[t - f->tensor] != 2 || !w->sliced))
            status = te_fail(ctx, TE_ERROR_VALUE, "safetensors: the list has %.60s twice", w->name);
        else if (!te__safetensors_fits(t, w) || !te__safetensors_same_shape(t, w))
            status = te_fail(ctx, te__safetensors_fits(t, w) ? TE_ERROR_SHAPE : TE_ERROR_DTYPE,
                             "%.120s: tensor %.60s is %s, it should be %s", f->path, w->name,
                             te__shape_text_of(t).text, te__shape_text_of(w).text);
        else used[t - f->tensor] = w->sliced ? 2 : 1;
    }
    for (int i = 0; exact && i < f->count && status == TE_OK; i++)
        if (!used[i])
            status = te_fail(ctx, TE_ERROR_FORMAT, "%.120s: has a tensor %.60s, %s, that nothing here is called",
                             f->path, f->tensor[i].name,
                             te__shape_text_of(&f->tensor[i]).text);
    free(used);
    return status;
}
/* Check as te_safetensors_check does, and only then read all of them into their `data`. F32, BF16 and F16 become the
 * dtype that is wanted, rounded to nearest even; a number that would become infinite is TE_ERROR_VALUE. Integers and
 * FP8 are never converted. An error of the checks has written nothing; TE_ERROR_IO, from a disk that fails meanwhile,
 * may come after a part. Waits for the stream. */
TE_API te_status te_safetensors_load(const te_safetensors *f, const te_safetensor *want, int n, int exact,
                                     te_context *ctx) {
    TE_TRY(te_safetensors_check(f, want, n, exact, ctx));
    for (int i = 0; i < 2 * n; i++) { /* all are looked at before one is read */
        const te_safetensor *w = &want[i % n], *t = te_safetensors_find(f, w->name);
        TE_TRY(i >= n && w->transposed ? te__safetensors_read_turned(f, t, w, ctx)
                                       : te__safetensors_read_as(f, t, w, i < n, ctx));
    }
    return TE_OK;
}

#endif
