/* file.h -- whole reads at an offset, and a file that replaces another only once it is complete on the disk.
 *
 * Do this:
 *     TE_TRY(te__new_file_open(&f, path, ctx));               // writes to path.tmp
 *     te_status status = te__new_file_write(&f, bytes, n, ctx);
 *     status = te__new_file_close(&f, status, ctx);           // fsync and rename if all went well; else removes
 *     path.tmp
 */
#ifndef TE_FILE_H
#define TE_FILE_H

#include <errno.h>     /* errno, EINTR */
#include <fcntl.h>     /* open */
#include <stdlib.h>    /* malloc */
#include <sys/stat.h>  /* fstat */
#include <sys/types.h> /* off_t, ssize_t */
#include <unistd.h>    /* read, write, lseek, close */

#include "context.h" /* te_fail */

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors files are little-endian, and so must the machine be"
#endif

TE_EXTERN_C int fsync(int fd); /* unistd.h hides it from -std=c11 */

/* Exactly n bytes at an offset. */
TE_API te_status te__file_read(int fd, void *dst, size_t n, uint64_t at, const char *path, te_context *ctx) {
    char *to = (char *)dst;
    TE_REQUIRE(at <= (uint64_t)INT64_MAX && lseek(fd, (off_t)at, SEEK_SET) == (off_t)at, ctx, TE_ERROR_IO,
               "%.120s: cannot go to byte %llu: %s", path, (unsigned long long)at, strerror(errno));
    while (n) {
        const ssize_t got = read(fd, to, n < ((size_t)1 << 30) ? n : (size_t)1 << 30);
        if (got < 0 && errno == EINTR) continue;
        TE_REQUIRE(got >= 0, ctx, TE_ERROR_IO, "%.120s: cannot read: %s", path, strerror(errno));
        TE_REQUIRE(got > 0, ctx, TE_ERROR_IO, "%.120s: the file ends %zu bytes early", path, n);
        to += got, n -= (size_t)got;
    }
    return TE_OK;
}

typedef struct te__new_file {
    int fd;
    const char *path;
    char *temporary;
} te__new_file;

TE_API te_status te__new_file_open(te__new_file *f, const char *path, te_context *ctx) {
    const size_t n = strlen(path);
    f->path = path, f->temporary = (char *)malloc(n + 5);
    TE_REQUIRE(f->temporary, ctx, TE_ERROR_MEMORY, "cannot allocate %zu bytes", n + 5);
    memcpy(f->temporary, path, n), memcpy(f->temporary + n, ".tmp", 5);
    f->fd = open(f->temporary, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (f->fd >= 0) return TE_OK;
    const te_status status = te_fail(ctx, TE_ERROR_IO, "%.120s: cannot create it: %s", f->temporary, strerror(errno));
    free(f->temporary);
    return status;
}
TE_API te_status te__new_file_write(te__new_file *f, const void *src, size_t n, te_context *ctx) {
    const char *from = (const char *)src;
    while (n) {
        const ssize_t put = write(f->fd, from, n < ((size_t)1 << 30) ? n : (size_t)1 << 30);
        if (put < 0 && errno == EINTR) continue;
        TE_REQUIRE(put > 0, ctx, TE_ERROR_IO, "%.120s: cannot write: %s; %.120s is as it was", f->temporary,
                   strerror(errno), f->path);
        from += put, n -= (size_t)put;
    }
    return TE_OK;
}
/* `status`: of the writes. The new file takes the old one's place, or leaves no trace. */
TE_API te_status te__new_file_close(te__new_file *f, te_status status, te_context *ctx) {
    if (status == TE_OK && fsync(f->fd))
        status = te_fail(ctx, TE_ERROR_IO, "%.120s: cannot write: %s; %.120s is as it was", f->temporary,
                         strerror(errno), f->path);
    if (close(f->fd) && status == TE_OK)
        status = te_fail(ctx, TE_ERROR_IO, "%.120s: cannot close: %s; %.120s is as it was", f->temporary,
                         strerror(errno), f->path);
    if (status == TE_OK && rename(f->temporary, f->path))
        status = te_fail(ctx, TE_ERROR_IO, "%.120s: cannot take the place of %.120s: %s", f->temporary, f->path,
                         strerror(errno));
    if (status != TE_OK) (void)remove(f->temporary);
    free(f->temporary);
    f->temporary = 0;
    return status;
}

#endif
