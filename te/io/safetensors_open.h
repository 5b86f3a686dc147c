/* safetensors_open.h -- opening a safetensors file, by its path, mapped, or in memory, and looking into its header.
 *
 * Do this:
 *     te_safetensors file;
 *     TE_TRY(te_safetensors_open(&file, "model.safetensors", &ctx));             // checks all of the header
 *     const te_safetensor *t = te_safetensors_find(&file, "wte.weight");         // null: there is none
 *     te_safetensors_close(&file);
 */
#ifndef TE_SAFETENSORS_OPEN_H
#define TE_SAFETENSORS_OPEN_H

#include <sys/mman.h> /* mmap */

#include "../core/file.h"      /* te__file_open, te__file_read */
#include "safetensors_parse.h" /* te__safetensors_parse */

TE_API void te_safetensors_close(te_safetensors *f) {
    if (!f) return;
    if (f->open) (void)close(f->fd);
    if (f->mapped) (void)munmap((void *)(uintptr_t)f->memory, f->mapped);
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
    TE_REQUIRE(file_bytes >= 8, ctx, TE_ERROR_FORMAT, "%.120s: %llu bytes are no safetensors file", f->path,
               (unsigned long long)file_bytes);
    TE_TRY(te__safetensors_get(f, length, 8, 0, ctx));
    for (int i = 7; i >= 0; i--) n = n << 8 | length[i];
    TE_REQUIRE(n <= TE_SAFETENSORS_HEADER && n <= file_bytes - 8, ctx, TE_ERROR_FORMAT,
               "%.120s: the header should have %llu bytes; the file has %llu, and at most %d are allowed", f->path,
               (unsigned long long)n, (unsigned long long)(file_bytes - 8), (int)TE_SAFETENSORS_HEADER);
    f->header = (char *)malloc((size_t)n + 1);
    TE_REQUIRE(f->header, ctx, TE_ERROR_MEMORY, "%.120s: cannot allocate %llu bytes", f->path,
               (unsigned long long)n + 1);
    TE_TRY(te__safetensors_get(f, f->header, (size_t)n, 8, ctx));
    f->header[n] = 0, f->data_at = 8 + n;
    return te__safetensors_parse(f, (size_t)n, file_bytes - 8 - n, ctx);
}
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

/* Open a file and check all of its header. After an error there is nothing to close. Errors: TE_ERROR_IO, _FORMAT,
 * _MEMORY. */
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

/* The same for a file that is mapped into memory, where no other process may cut it shorter before it is closed. */
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

/* The tensor of this name; null if there is none. */
TE_API const te_safetensor *te_safetensors_find(const te_safetensors *f, const char *name) {
    te_safetensor key;
    key.name = name;
    return f && name && f->count ? (const te_safetensor *)bsearch(&key, f->tensor, (size_t)f->count, sizeof key,
                                                                  te__by_name) : 0;
}
/* The string of this key; null if there is none. */
TE_API const char *te_safetensors_metadata(const te_safetensors *f, const char *key) {
    te_safetensors_pair pair, *found = 0;
    pair.key = key, pair.value = 0;
    if (f && key && f->metadata_count)
        found = (te_safetensors_pair *)bsearch(&pair, f->metadata, (size_t)f->metadata_count, sizeof pair, te__by_key);
    return found ? found->value : 0;
}

#endif
