/* file.h -- reads a file at an offset, and writes a new file that replaces an old one only when the new file is
 * complete on the disk.
 *
 * Do this:
 *     TE_TRY(te__file_open(&fd, &bytes, path, ctx));          // refuses all but regular files, without blocking
 *     te_status status = te__file_read(fd, text, bytes, 0, path, ctx);
 *     (void)close(fd);
 *
 *     te__new_file f;
 *     TE_TRY(te__new_file_open(&f, path, ctx));               // writes to path.tmp.<process>.<number>, same folder
 *     status = te__new_file_write(&f, text, bytes, ctx);
 *     status = te__new_file_close(&f, status, ctx);           // replaces path, or removes the temporary file
 *
 * Guarantees for a new file:
 * - The temporary file belongs to this writer alone: its name is new (O_EXCL), and no symbolic link is followed to
 *   create it. If two processes write to the same path, the last one to finish wins; at every moment the path is a
 *   complete file. A process that is killed while it writes leaves its temporary file behind.
 * - The content of the file, and then its folder, are on the disk (fsync) before the close returns TE_OK.
 * - A new file gets the permissions of the file that it replaces, and the owner where the system allows that. A file
 *   without write permission is not replaced; the call returns an error.
 * - If the path is a symbolic link, the file that the link leads to is replaced, and the link stays. The call returns
 *   an error for a dangling link, for another user's link in a folder to which all may write (such as /tmp), and for
 *   devices, FIFOs, sockets and folders.
 */
#ifndef TE_FILE_H
#define TE_FILE_H

#include <errno.h>     /* errno, EINTR */
#include <fcntl.h>     /* open */
#include <stdlib.h>    /* malloc */
#include <sys/stat.h>  /* fstat */
#include <sys/types.h> /* off_t, ssize_t */
#include <unistd.h>    /* read, write, lseek, close, access, getpid, geteuid */
#include "../context.h" /* te_fail */

/* POSIX functions that the system's headers do not declare if the compiler runs with -std=c11. */
TE_EXTERN_C int fsync(int fd);
#ifndef __cplusplus
extern int lstat(const char *path, struct stat *info);
extern int fchmod(int fd, mode_t mode);
extern int fchown(int fd, uid_t owner, gid_t group);
extern char *realpath(const char *path, char *resolved);
#endif

/* Open a regular file for reading, and set *bytes to its size. Returns an error if the path is another kind of file.
 * O_NONBLOCK is set because opening a FIFO would otherwise block. */
TE_API te_status te__file_open(int *fd, uint64_t *bytes, const char *path, te_context *ctx) {
    struct stat info;
    *fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    TE_REQUIRE(*fd >= 0, ctx, TE_ERROR_IO, "%.120s: cannot open it: %s", path, strerror(errno));
    te_status status = TE_OK;
    if (fstat(*fd, &info)) status = te_fail(ctx, TE_ERROR_IO, "%.120s: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode)) status = te_fail(ctx, TE_ERROR_IO, "%.120s: is no regular file", path);
    else *bytes = (uint64_t)info.st_size;
    if (status != TE_OK) (void)close(*fd);
    return status;
}

/* Read exactly n bytes of the file, beginning at offset `at`, into dst. */
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

/* ---- a new file in the place of an old one ----------------------------------------------------------------------- */

typedef struct te__new_file {
    int fd;
    const char *path; /* the path that the caller passed */
    char *target;     /* the path of the file that is replaced. This is `path` or, if `path` is a symbolic link, the
                       * file that the link leads to */
    char *temporary;  /* the path of the temporary file, which is in the same folder as the target */
} te__new_file;

enum { TE__FILE_TRIES = 10000 }; /* how many names for the temporary file are tried. A name is taken already if an
                                  * earlier process with the same id was killed and left its temporary file behind */

enum { TE__STICKY = 01000 }; /* the sticky bit of a folder's mode, S_ISVTX, which the system's headers hide with
                              * -std=c11 */
/* Return whether the symbolic link at `path` may be followed. Anybody can create a link in a folder to which all may
 * write, such as /tmp. Such folders have the sticky bit, and in them the Linux kernel (fs.protected_symlinks) follows a
 * link only if the link belongs to the user or to the folder's owner. This function makes the same check itself,
 * because realpath reads a link without following it, so the kernel makes no check. */
TE_API int te__link_is_trusted(const char *path, const struct stat *link) {
    struct stat folder, followed;
    const char *slash = strrchr(path, '/');
    const size_t n = slash == path ? 1 : slash ? (size_t)(slash - path) : 0;
    char *name = (char *)malloc(n + 2);
    if (!name) return 0;
    memcpy(name, n ? path : ".", n ? n : 1), name[n ? n : 1] = 0;
    const int known = !stat(name, &folder);
    free(name);
    if (!known || (stat(path, &followed) && errno == EACCES)) return 0; /* the operating system refuses to follow this
                                                                         * link or a further link in the chain */
    return !(folder.st_mode & TE__STICKY) || !(folder.st_mode & S_IWOTH) || link->st_uid == geteuid() ||
           link->st_uid == folder.st_uid;
}
/* Set f->target to the path of the file that will be replaced. If this file exists already, set *exists to 1 and *info
 * to the file's status; else set *exists to 0. Returns an error if the file must not be replaced. */
TE_API te_status te__new_file_target(te__new_file *f, struct stat *info, int *exists, te_context *ctx) {
    const size_t n = strlen(f->path) + 1;
    TE_REQUIRE(n > 1, ctx, TE_ERROR_IO, "cannot create a file: its path is empty");
    *exists = lstat(f->path, info) == 0;
    TE_REQUIRE(*exists || errno == ENOENT, ctx, TE_ERROR_IO, "%.120s: cannot create it: %s", f->path, strerror(errno));
    if (*exists && S_ISLNK(info->st_mode)) {
        TE_REQUIRE(te__link_is_trusted(f->path, info), ctx, TE_ERROR_IO,
                   "%.120s: is another user's symbolic link in a folder for all, which is not followed", f->path);
        f->target = realpath(f->path, 0);
        TE_REQUIRE(f->target, ctx, TE_ERROR_IO, "%.120s: the symbolic link leads nowhere: %s", f->path,
                   strerror(errno));
        TE_REQUIRE(!lstat(f->target, info), ctx, TE_ERROR_IO, "%.120s: %s", f->target, strerror(errno));
    } else {
        f->target = (char *)malloc(n);
        TE_REQUIRE(f->target, ctx, TE_ERROR_MEMORY, "cannot allocate %zu bytes", n);
        memcpy(f->target, f->path, n);
    }
    TE_REQUIRE(!*exists || S_ISREG(info->st_mode), ctx, TE_ERROR_IO,
               "%.120s: is no regular file; a %s is not written to, and stays as it was", f->target,
               S_ISDIR(info->st_mode) ? "folder" : "device, FIFO or socket");
    TE_REQUIRE(!*exists || !access(f->target, W_OK), ctx, TE_ERROR_IO, "%.120s: cannot write: %s", f->target,
               strerror(errno));
    return TE_OK;
}
/* The temporary file's name begins with the target's name, cut to TE__FILE_STEM bytes if the target's name is longer.
 * The whole name then has at most 255 bytes, the limit of file systems. */
enum { TE__FILE_STEM = 200, TE__FILE_SUFFIX = 48 /* TE__FILE_SUFFIX: the limit, in bytes, of the rest of the name,
                                                  * including the NUL */ };
/* Return how many bytes at the beginning of the target's path are also the beginning of the temporary file's path. This
 * number never splits a UTF-8 character. */
TE_API size_t te__new_file_stem(const char *target) {
    const char *slash = strrchr(target, '/'), *name = slash ? slash + 1 : target;
    size_t n = strlen(name);
    if (n > TE__FILE_STEM)
        for (n = TE__FILE_STEM; n > 1 && ((unsigned char)name[n] & 0xc0) == 0x80;) n--;
    return (size_t)(name - target) + n;
}
/* Create the temporary file, with the owner and permissions of the file that it will replace. `old` is the status of
 * the file to be replaced, or null if that file does not exist. Until the temporary file has its final permissions,
 * only its owner can read it. */
TE_API te_status te__new_file_create(te__new_file *f, const struct stat *old, te_context *ctx) {
    const size_t stem = te__new_file_stem(f->target), capacity = stem + TE__FILE_SUFFIX;
    struct stat is;
    f->temporary = (char *)malloc(capacity);
    TE_REQUIRE(f->temporary, ctx, TE_ERROR_MEMORY, "cannot allocate %zu bytes", capacity);
    for (int k = 0; f->fd < 0 && k < TE__FILE_TRIES; k++) {
        memcpy(f->temporary, f->target, stem);
        snprintf(f->temporary + stem, TE__FILE_SUFFIX, ".tmp.%ld.%d", (long)getpid(), k);
        f->fd = open(f->temporary, O_WRONLY | O_CREAT | O_EXCL, old ? 0600 : 0666);
        if (f->fd < 0 && errno != EEXIST && errno != EINTR) break;
    }
    TE_REQUIRE(f->fd >= 0, ctx, TE_ERROR_IO, "%.120s: cannot create it: %s", f->temporary, strerror(errno));
    if (!old) return TE_OK;
    int status = fstat(f->fd, &is);
    const int other = !status && (is.st_uid != old->st_uid || is.st_gid != old->st_gid);
    if (other && fchown(f->fd, old->st_uid, old->st_gid) && errno != EPERM) status = -1;
    if (!status && (is.st_mode & 0777) != (old->st_mode & 0777)) status = fchmod(f->fd, old->st_mode & 0777);
    TE_REQUIRE(!status, ctx, TE_ERROR_IO, "%.120s: cannot have the permissions of %.120s: %s", f->temporary, f->target,
               strerror(errno));
    return TE_OK;
}
/* Close and remove the temporary file, and free the memory of both paths. */
TE_API void te__new_file_discard(te__new_file *f) {
    if (f->fd >= 0) (void)close(f->fd), (void)remove(f->temporary);
    free(f->temporary), free(f->target);
    f->fd = -1, f->temporary = 0, f->target = 0;
}
TE_API te_status te__new_file_open(te__new_file *f, const char *path, te_context *ctx) {
    struct stat info;
    int was = 0;
    f->fd = -1, f->path = path, f->target = 0, f->temporary = 0;
    te_status status = te__new_file_target(f, &info, &was, ctx);
    if (status == TE_OK) status = te__new_file_create(f, was ? &info : 0, ctx);
    if (status != TE_OK) te__new_file_discard(f);
    return status;
}
TE_API te_status te__new_file_fail(const te__new_file *f, const char *what, te_context *ctx) {
    return te_fail(ctx, TE_ERROR_IO, "%.120s: cannot %s: %s; %.120s is as it was", f->temporary, what, strerror(errno),
                   f->path);
}
TE_API te_status te__new_file_write(te__new_file *f, const void *src, size_t n, te_context *ctx) {
    const char *from = (const char *)src;
    while (n) {
        const ssize_t put = write(f->fd, from, n < ((size_t)1 << 30) ? n : (size_t)1 << 30);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return te__new_file_fail(f, "write", ctx);
        from += put, n -= (size_t)put;
    }
    return TE_OK;
}
/* Overwrite n bytes of the temporary file, beginning at offset `at`. */
TE_API te_status te__new_file_overwrite(te__new_file *f, const void *src, size_t n, uint64_t at, te_context *ctx) {
    if (lseek(f->fd, (off_t)at, SEEK_SET) != (off_t)at) return te__new_file_fail(f, "write", ctx);
    return te__new_file_write(f, src, n, ctx);
}
/* Sync the target's folder to the disk. Otherwise a crash soon after the rename could undo the rename. The function
 * replaces f->target by the path of the folder. */
TE_API te_status te__new_file_sync_folder(te__new_file *f, te_context *ctx) {
    char *slash = strrchr(f->target, '/');
    const char *folder = !slash ? "." : slash == f->target ? "/" : f->target;
    if (slash) *slash = 0;
    const int fd = open(folder, O_RDONLY);
    if (fd < 0) return TE_OK; /* not an error: a folder that is writable but not readable cannot be opened */
    const int failed = fsync(fd) && errno != EINVAL && errno != ENOTSUP; /* EINVAL and ENOTSUP are no errors: the file
                                                                          * system cannot sync folders */
    te_status status = TE_OK;
    if (failed)
        status = te_fail(ctx, TE_ERROR_IO, "%.120s: is written, but its folder is not synced: %s", f->path,
                         strerror(errno));
    (void)close(fd);
    return status;
}
/* If `status`, the result of the writes, is TE_OK, replace the target by the new file; otherwise remove the temporary
 * file. Returns the first error, which may be `status`. */
TE_API te_status te__new_file_close(te__new_file *f, te_status status, te_context *ctx) {
    if (status == TE_OK && fsync(f->fd)) status = te__new_file_fail(f, "write", ctx);
    const int closed = close(f->fd);
    f->fd = -1;
    if (closed && status == TE_OK) status = te__new_file_fail(f, "close", ctx);
    const int moved = status == TE_OK && !rename(f->temporary, f->target);
    if (status == TE_OK && !moved)
        status = te_fail(ctx, TE_ERROR_IO, "%.120s: cannot take the place of %.120s: %s", f->temporary, f->target,
                         strerror(errno));
    if (moved) status = te__new_file_sync_folder(f, ctx);
    else (void)remove(f->temporary);
    te__new_file_discard(f);
    return status;
}

#endif
