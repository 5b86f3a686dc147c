/* safetensors.h -- reads and writes named tensors and metadata strings in the safetensors format of Hugging Face
 * (https://github.com/huggingface/safetensors). A file has the header's length in eight bytes, a JSON header, and the
 * tensors' bytes.
 *
 * Do this:
 *     te_safetensor t[2];
 *     t[0] = te_safetensor_matrix("fc.weight", TE_bf16, 3072, 768, weight);      // host or target memory
 *     t[1] = te_safetensor_matrix("fc.bias", TE_bf16, 1, 3072, bias);
 *     TE_TRY(te_safetensors_write("model.safetensors", t, 2, 0, 0, &ctx));
 *
 *     te_safetensors file;
 *     TE_TRY(te_safetensors_open(&file, "model.safetensors", &ctx));             // checks all of the header
 *     te_status status = te_safetensors_verify(&file, &ctx);                     // the checksum, if the file has one
 *     if (status == TE_OK) status = te_safetensors_load(&file, t, 2, 1, &ctx);   // checks names and shapes, then reads
 *     te_safetensors_close(&file);
 *
 * Loading converts F32, BF16 and F16 to the dtype of the destination, rounding to nearest even, and treats the shapes
 * [1, n] and [n] as equal. A finite number that the conversion would make infinite is an error. Integers and FP8 are
 * never converted.
 *
 * Files are not trusted: an error in a file produces TE_ERROR_FORMAT with a text that names the tensor, nothing is read
 * out of bounds, and each size in a file is checked against the size of the file before the size is used. A tensor with
 * an unknown dtype (such as C64) or more than eight dimensions is an error only if the program loads this tensor.
 */
#ifndef TE_SAFETENSORS_H
#define TE_SAFETENSORS_H

#include <sys/mman.h> /* mmap */

#include "checksum.h"               /* te_checksum */
#include "impl/safetensors_parse.h" /* te__safetensors_open */
#include "impl/safetensors_write.h" /* te__safetensors_write */
#include "safetensors_types.h"      /* te_safetensor, te_safetensor_of, te_safetensor_matrix */

/* ---- opening ----------------------------------------------------------------------------------------------------- */

TE_API void te_safetensors_close(te_safetensors *f) {
    if (!f) return;
    if (f->open) (void)close(f->fd);
    if (f->mapped) (void)munmap((void *)(uintptr_t)f->memory, f->mapped);
    free(f->tensor), free(f->metadata), free(f->header), free(f->path);
    memset(f, 0, sizeof *f);
}
/* Open a file and check its whole header. After an error there is nothing to close. Errors: TE_ERROR_IO,
 * TE_ERROR_FORMAT, TE_ERROR_MEMORY. */
TE_API te_status te_safetensors_open(te_safetensors *f, const char *path, te_context *ctx) {
    TE_REQUIRE(f, ctx, TE_ERROR_NULL, "safetensors: the struct is null");
    memset(f, 0, sizeof *f);
    TE_REQUIRE(path, ctx, TE_ERROR_NULL, "safetensors: the path is null");
    const te_status status = te__safetensors_open(f, path, 0, 0, ctx);
    if (status != TE_OK) te_safetensors_close(f);
    return status;
}
/* Open a file whose `bytes` bytes lie in host memory, and check its whole header. The bytes must stay there until the
 * file is closed. */
TE_API te_status te_safetensors_open_memory(te_safetensors *f, const void *memory, size_t bytes, te_context *ctx) {
    TE_REQUIRE(f, ctx, TE_ERROR_NULL, "safetensors: the struct is null");
    memset(f, 0, sizeof *f);
    TE_REQUIRE(memory, ctx, TE_ERROR_NULL, "safetensors: the memory is null");
    const te_status status = te__safetensors_open(f, "memory", memory, bytes, ctx);
    if (status != TE_OK) te_safetensors_close(f);
    return status;
}

/* Map a file into memory, and check its whole header. While the file is open, no other process may truncate it. */
TE_API te_status te_safetensors_map(te_safetensors *f, const char *path, te_context *ctx) {
    te_safetensors file;
    uint64_t bytes = 0;
    int fd = -1;
    TE_REQUIRE(f, ctx, TE_ERROR_NULL, "safetensors: the struct is null");
    memset(f, 0, sizeof *f), memset(&file, 0, sizeof file);
    TE_REQUIRE(path, ctx, TE_ERROR_NULL, "safetensors: the path is null");
    TE_TRY(te__file_open(&fd, &bytes, path, ctx));
    void *at = bytes && bytes <= SIZE_MAX ? mmap(0, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    (void)close(fd);
    TE_REQUIRE(at != MAP_FAILED, ctx, bytes ? TE_ERROR_MEMORY : TE_ERROR_FORMAT, "%.120s: cannot map its %llu bytes",
               path, (unsigned long long)bytes);
    file.mapped = (size_t)bytes, file.memory = (const char *)at;
    const te_status status = te__safetensors_open(&file, path, at, (size_t)bytes, ctx);
    if (status == TE_OK) *f = file;
    else te_safetensors_close(&file);
    return status;
}

/* Find the tensor with this name in the file's table; the result is null if there is none. */
TE_API const te_safetensor *te_safetensors_find(const te_safetensors *f, const char *name) {
    te_safetensor key;
    key.name = name;
    return f && name && f->count ? (const te_safetensor *)bsearch(&key, f->tensor, (size_t)f->count, sizeof key,
                                                                  te__by_name) : 0;
}
/* Find the metadata string with this key; the result is null if there is none, or if the value is no string. */
TE_API const char *te_safetensors_metadata(const te_safetensors *f, const char *key) {
    te_safetensors_pair pair, *found = 0;
    pair.key = key, pair.value = 0;
    if (f && key && f->metadata_count)
        found = (te_safetensors_pair *)bsearch(&pair, f->metadata, (size_t)f->metadata_count, sizeof pair, te__by_key);
    return found ? found->value : 0;
}

/* ---- the checksum ------------------------------------------------------------------------------------------------ */

/* Compute the checksum of the file's bytes as if each digit of the checksum stored in the file were '0'. digits_at: the
 * offset of these digits in the file. */
TE_API te_status te__safetensors_sum(uint64_t *sum, const te_safetensors *f, uint64_t digits_at, te_context *ctx) {
    uint64_t total = f->data_at;
    for (int i = 0; i < f->count; i++) total += f->tensor[i].bytes;
    const size_t capacity = total < TE_SAFETENSORS_STAGING ? (size_t)total : (size_t)TE_SAFETENSORS_STAGING;
    char *staging = (char *)malloc(capacity);
    TE_REQUIRE(staging, ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate %zu bytes", f->path, capacity);
    te_checksum s = te_checksum_begin();
    te_status status = TE_OK;
    for (uint64_t at = 0; at < total && status == TE_OK; at += capacity) {
        const size_t part = total - at < capacity ? (size_t)(total - at) : capacity;
        status = te__safetensors_get(f, staging, part, at, ctx);
        for (uint64_t d = digits_at; status == TE_OK && d < digits_at + TE_SAFETENSORS_DIGITS; d++)
            if (d >= at && d < at + part) staging[d - at] = '0';
        if (status == TE_OK) te_checksum_add(&s, staging, part);
    }
    free(staging);
    *sum = te_checksum_end(&s);
    return status;
}
/* Verify the checksum that te_safetensors_write_sealed has put into the file. Returns TE_ERROR_FORMAT if any bit of the
 * file has changed. A file without a checksum, which another program may have written, passes, and f->verified stays 0.
 * Reads the whole file. */
TE_API te_status te_safetensors_verify(te_safetensors *f, te_context *ctx) {
    TE_REQUIRE(f && f->path && ctx, ctx, TE_ERROR_NULL, "safetensors: the file is not open, or the context is null");
    const char *was = te_safetensors_metadata(f, TE_SAFETENSORS_SUM);
    /* Only files with a checksum have keys that begin with "te.". So if the key of the checksum is missing here, it was
     * damaged */
    for (int i = 0; !was && i < f->metadata_count; i++)
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

/* Read the bytes of tensor t of the file into `dst`. t: a result of te_safetensors_find. dst: t->bytes bytes of host or
 * target memory. Waits for the stream. */
TE_API te_status te_safetensors_read(const te_safetensors *f, const te_safetensor *t, void *dst, te_context *ctx) {
    TE_REQUIRE(f && t && ctx && (dst || !t->bytes), ctx, TE_ERROR_NULL,
               "safetensors: the file, the tensor or its destination is null");
    const te_safetensor *found = te_safetensors_find(f, t->name);
    TE_REQUIRE(found && found->offset == t->offset && found->bytes == t->bytes, ctx, TE_ERROR_VALUE,
               "safetensors: the tensor is not one of this file's; te_safetensors_find returns those");
    if (!t->bytes) return TE_OK;
    const size_t capacity = t->bytes < TE_SAFETENSORS_STAGING ? (size_t)t->bytes : (size_t)TE_SAFETENSORS_STAGING;
    char *staging = (char *)malloc(capacity);
    TE_REQUIRE(staging, ctx, TE_ERROR_MEMORY, "%.60s: cannot allocate %zu bytes", t->name, capacity);
    te_status status = TE_OK;
    for (uint64_t at = 0; at < t->bytes && status == TE_OK; at += capacity) {
        const size_t part = t->bytes - at < capacity ? (size_t)(t->bytes - at) : capacity;
        status = te__safetensors_get(f, staging, part, f->data_at + t->offset + at, ctx);
        if (status == TE_OK) status = te_copy(ctx, (char *)dst + at, staging, part);
        if (status == TE_OK) status = te_synchronize(ctx);
    }
    free(staging);
    return status;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* Return whether te_safetensors_load can convert numbers of the dtype `from`, i.e. whether `from` is F32, BF16 or F16.
 * *to: output, the te_dtype that is the same as `from`. */
TE_API int te__safetensors_converts(te_dtype *to, te_safetensors_dtype from) {
    for (int t = TE_f32; t <= TE_f16; t++)
        if (te__safetensors_dtype_of((te_dtype)t) == from) return *to = (te_dtype)t, 1;
    return 0;
}
TE_API int te__safetensors_fits(const te_safetensor *t, const te_safetensor *want) {
    te_dtype dtype;
    return t->dtype == want->dtype ||
           (te__safetensors_converts(&dtype, t->dtype) && te__safetensors_converts(&dtype, want->dtype));
}
/* Return whether the tensor t of a file has the shape of `want`, where [1, n] counts as equal to [n]. */
TE_API int te__safetensors_same_shape(const te_safetensor *t, const te_safetensor *want) {
    const int skip = t->rank == 2 && want->rank == 1 && t->shape[0] == 1;
    const int skip_want = want->rank == 2 && t->rank == 1 && want->shape[0] == 1;
    if (want->matrices)
        return t->rank == 3 && t->shape[0] == want->matrices && t->shape[0] * t->shape[1] == want->shape[0] &&
               t->shape[2] == want->shape[1];
    return t->rank - skip == want->rank - skip_want &&
           !memcmp(t->shape + skip, want->shape + skip_want, (size_t)(t->rank - skip) * sizeof t->shape[0]);
}
/* Convert n numbers from dtype `is` to dtype `as`, rounding to nearest even, and return -1. If `to` is null, write
 * nothing, and return the index of the first finite number that would become infinite, or -1 if there is no such
 * number. */
TE_API int64_t te__safetensors_convert(void *to, te_dtype as, const void *from, te_dtype is, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const float v = te_load(from, i, is);
        if (to) te_store(to, i, v, as);
        else if (fabsf(v) <= 3.402823466e38f && !(fabsf(te_round_to(v, as)) <= 3.402823466e38f)) return i;
    }
    return -1;
}
/* Read n elements of tensor t, from element number `at` on, without conversion. If `want` describes a slice of t, the
 * elements are counted within the slice. */
TE_API te_status te__safetensors_get_part(const te_safetensors *f, const te_safetensor *t, const te_safetensor *want,
                                          char *to, int64_t at, int64_t n, te_context *ctx) {
    const size_t size = te_safetensors_dtype_bytes(t->dtype);
    const uint64_t begin = f->data_at + t->offset;
    const int64_t cols = te__safetensor_cols(t), width = want->count[1], step = want->step[1];
    if (!want->sliced || (width == cols && want->step[0] == 1)) {
        const int64_t first = want->sliced ? want->first[0] * cols : 0;
        return te__safetensors_get(f, to, (size_t)n * size, begin + (uint64_t)(first + at) * size, ctx);
    }
    char *row = step > 1 ? (char *)malloc((size_t)cols * size) : 0;
    te_status status = TE_OK;
    if (step > 1 && !row) status = te_fail(ctx, TE_ERROR_MEMORY, "%.60s: cannot allocate a row", t->name);
    for (int64_t k = at; k < at + n && status == TE_OK;) { /* each iteration reads a row of the slice, or a part of
                                                            * it */
        const int64_t in_row = te_min(width - k % width, at + n - k), span = (in_row - 1) * step + 1;
        const int64_t first = (want->first[0] + k / width * want->step[0]) * cols + want->first[1] + k % width * step;
        status = te__safetensors_get(f, row ? row : to, (size_t)span * size, begin + (uint64_t)first * size, ctx);
        for (int64_t i = 0; row && i < in_row && status == TE_OK; i++)
            memcpy(to + (size_t)i * size, row + (size_t)(i * step) * size, size);
        to += (size_t)in_row * size, k += in_row;
    }
    free(row);
    return status;
}
/* Read tensor t (or, if `want` describes a slice of t, this slice) into want->data, and convert the numbers to
 * want->dtype. If check_only is set, write nothing, and only check that no finite number would become infinite. */
TE_API te_status te__safetensors_read_as(const te_safetensors *f, const te_safetensor *t, const te_safetensor *want,
                                         int check_only, te_context *ctx) {
    te_dtype is = TE_f32, as = TE_f32;
    const int same = t->dtype == want->dtype;
    if (same && check_only) return TE_OK;
    if (same && !want->sliced) return te_safetensors_read(f, t, want->data, ctx);
    if (!same) (void)te__safetensors_converts(&is, t->dtype), (void)te__safetensors_converts(&as, want->dtype);
    const int64_t count = te__safetensor_count(want), part = TE_SAFETENSORS_STAGING / 8;
    const size_t size = te_safetensors_dtype_bytes(want->dtype);
    if (check_only && as == TE_f32) return TE_OK;
    /* The buffer has 8 bytes for each number. Without conversion a number takes up to 8 bytes; with conversion the
     * number as read and the converted number take at most 4 bytes each. */
    char *staging = (char *)malloc((size_t)te_min(count, part) * 8 + 1);
    TE_REQUIRE(staging, ctx, TE_ERROR_MEMORY, "%.60s: cannot allocate %lld bytes", t->name, (long long)part * 8);
    char *converted = same ? staging : staging + te_min(count, part) * 4;
    te_status status = TE_OK;
    for (int64_t at = 0; at < count && status == TE_OK; at += part) {
        const int64_t n = te_min(part, count - at);
        status = te__safetensors_get_part(f, t, want, staging, at, n, ctx);
        if (status != TE_OK) break;
        const int64_t bad = same ? -1 : te__safetensors_convert(check_only ? 0 : converted, as, staging, is, n);
        if (bad >= 0)
            status = te_fail(ctx, TE_ERROR_VALUE, "%.120s: element %lld of %.60s, %g, does not fit %s", f->path,
                             (long long)(at + bad), t->name, (double)te_load(staging, bad, is), te_dtype_name(as));
        if (check_only || status != TE_OK) continue;
        status = te_copy(ctx, (char *)want->data + (size_t)at * size, converted, (size_t)n * size);
        if (status == TE_OK) status = te_synchronize(ctx);
    }
    free(staging);
    return status;
}

/* Read tensor t (or, if `want` describes a slice of t, this slice), convert the numbers to want->dtype, and store the
 * transpose in want->data. Allocates host memory of twice the size of want->data. */
TE_API te_status te__safetensors_read_transposed(const te_safetensors *f, const te_safetensor *t,
                                                 const te_safetensor *want, te_context *ctx) {
    te_safetensor host = *want;
    const size_t bytes = (size_t)te__safetensor_data_bytes(want);
    char *staging = (char *)malloc(2 * bytes + 1);
    TE_REQUIRE(staging, ctx, TE_ERROR_MEMORY, "%.60s: cannot allocate %zu bytes", t->name, 2 * bytes);
    char *transposed = staging + bytes;
    host.data = staging, host.transposed = 0;
    te_status status = te__safetensors_read_as(f, t, &host, 0, ctx);
    if (status == TE_OK) {
        te__safetensor_transpose(transposed, staging, want->sliced ? want->count[0] : want->shape[0],
                                 want->sliced ? want->count[1] : want->shape[1],
                                 te_safetensors_dtype_bytes(want->dtype));
        status = te_copy(ctx, want->data, transposed, bytes);
        const te_status done = te_synchronize(ctx);
        if (status == TE_OK) status = done;
    }
    free(staging);
    return status;
}
/* Return whether w, which describes a tensor to load or write, is valid: w has a name, w's shape, bytes and data are
 * consistent, and if w is a slice, the slice lies within the file's tensor. */
TE_API int te__safetensors_is_valid(const te_safetensor *w) {
    uint64_t bytes;
    if (!w->name || !te__safetensor_size(&bytes, w) || bytes != w->bytes) return 0;
    if (!w->data && bytes) return 0;
    if (w->matrices < 0 || (w->matrices && (w->rank != 2 || w->shape[0] % w->matrices))) return 0;
    return (!w->transposed || w->rank == 2) && te__safetensor_has_slice(w);
}
/* Check that the file has the tensors of the list want[n] and, if `exact` is set, no others. Shapes must be equal, but
 * [1, n] counts as equal to [n]. Dtypes must be equal, but F32, BF16 and F16 count as equal to each other, because
 * te_safetensors_load converts them. For each tensor, the list may have either one entry, or several entries that are
 * slices. */
TE_API te_status te_safetensors_check(const te_safetensors *f, const te_safetensor *want, int n, int exact,
                                      te_context *ctx) {
    TE_REQUIRE(f && f->path && (want || n <= 0), ctx, TE_ERROR_NULL,
               "safetensors: the file is not open, or the list is null");
    TE_REQUIRE(n >= 0, ctx, TE_ERROR_SHAPE, "safetensors: a list of %d tensors", n);
    enum { UNUSED, WHOLE, SLICES };
    /* [f->count]: for each tensor of the file, how the list uses it: UNUSED, WHOLE (the whole tensor) or SLICES */
    char *used = (char *)calloc(1, (size_t)f->count + 1);
    TE_REQUIRE(used, ctx, TE_ERROR_MEMORY, "safetensors: cannot allocate %d bytes", f->count + 1);
    te_status status = TE_OK;
    for (int i = 0; i < n && status == TE_OK; i++) {
        const te_safetensor *w = &want[i], *t = te_safetensors_find(f, w->name);
        if (!te__safetensors_is_valid(w))
            status = te_fail(ctx, TE_ERROR_VALUE,
                             "safetensors: entry %d (%.60s) of the list has no name, shape or data, or no such slice",
                             i, w->name ? w->name : "?");
        else if (!t)
            status = te_fail(ctx, TE_ERROR_FORMAT, "%.120s: has no tensor %.60s, which should be %s", f->path, w->name,
                             te__shape_text_of(w).text);
        else if (used[t - f->tensor] == WHOLE || (used[t - f->tensor] == SLICES && !w->sliced))
            status = te_fail(ctx, TE_ERROR_VALUE, "safetensors: the list has %.60s twice", w->name);
        else if (!te__safetensors_fits(t, w) || !te__safetensors_same_shape(t, w))
            status = te_fail(ctx, te__safetensors_fits(t, w) ? TE_ERROR_SHAPE : TE_ERROR_DTYPE,
                             "%.120s: tensor %.60s is %s, it should be %s", f->path, w->name,
                             te__shape_text_of(t).text, te__shape_text_of(w).text);
        else used[t - f->tensor] = w->sliced ? SLICES : WHOLE;
    }
    for (int i = 0; exact && i < f->count && status == TE_OK; i++)
        if (used[i] == UNUSED)
            status = te_fail(ctx, TE_ERROR_FORMAT, "%.120s: has a tensor %.60s, %s, that nothing here is called",
                             f->path, f->tensor[i].name, te__shape_text_of(&f->tensor[i]).text);
    free(used);
    return status;
}
/* Check the list want[n] as te_safetensors_check does, and then read each tensor into its te_safetensor.data. F32, BF16
 * and F16 are converted to the dtype of the destination, rounded to nearest even; a finite number that would become
 * infinite produces TE_ERROR_VALUE. Integers and FP8 are never converted. If a check fails, nothing has been written.
 * Only after TE_ERROR_IO, when the disk fails during the load, a part of the tensors may have been written. Waits for
 * the stream. If `data` is the memory of a model's parameter, an optimizer's master weights and FP8 copies of the
 * parameter are recomputed at their next use; only for FP8 recipes with several ranks must the program call
 * te_model_changed after the load. */
TE_API te_status te_safetensors_load(const te_safetensors *f, const te_safetensor *want, int n, int exact,
                                     te_context *ctx) {
    TE_TRY(te_safetensors_check(f, want, n, exact, ctx));
    for (int i = 0; i < 2 * n; i++) { /* the first n iterations check all tensors, the next n read them */
        const te_safetensor *w = &want[i % n], *t = te_safetensors_find(f, w->name);
        if (i >= n && ctx) te__count_write(w->written ? w->written : &ctx->loaded, ctx);
        TE_TRY(i >= n && w->transposed ? te__safetensors_read_transposed(f, t, w, ctx)
                                       : te__safetensors_read_as(f, t, w, i < n, ctx));
    }
    return TE_OK;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Write metadata and tensors to a file. If the metadata have no key "format", the pair "format": "pt" is added, because
 * transformers loads only files with this key. The tensors may lie in host or target memory, and are read in stream
 * order. An old file at the same path stays unchanged until the new file is complete on the disk (te/core/impl/file.h).
 * Waits for the stream. Errors: TE_ERROR_IO; TE_ERROR_VALUE, TE_ERROR_SHAPE and others if a tensor or metadata pair is
 * not valid; the error text says which one. */
TE_API te_status te_safetensors_write(const char *path, const te_safetensor *tensor, int n,
                                      const te_safetensors_pair *metadata, int pairs, te_context *ctx) {
    TE_TRY(te__safetensors_keys(metadata, pairs, ctx));
    return te__safetensors_write(path, tensor, n, metadata, pairs, te__safetensors_extra_of(0, 0), ctx);
}
/* Write metadata and tensors to a file, as te_safetensors_write does, and also store a checksum of the whole file in
 * the metadata, under the key "te.checksum", for te_safetensors_verify. */
TE_API te_status te_safetensors_write_sealed(const char *path, const te_safetensor *tensor, int n,
                                             const te_safetensors_pair *metadata, int pairs, te_context *ctx) {
    TE_TRY(te__safetensors_keys(metadata, pairs, ctx));
    return te__safetensors_write(path, tensor, n, metadata, pairs, te__safetensors_extra_of(1, 0), ctx);
}

#endif
