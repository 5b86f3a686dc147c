/* comm_start.h -- the start of a communicator, as far as it needs neither NCCL nor MPI: the file by which rank 0 passes
 * NCCL's unique id to the other ranks, and the comparison of the ranks' replies about their configs.
 *
 * Do this, on rank 0 and on the other ranks:
 *     TE_TRY(te__id_file_write(&id, sizeof id, file, timeout, ctx));   // then te__id_file_remove, when all have come
 *     TE_TRY(te__id_file_read(&id, sizeof id, file, timeout, ctx));    // waits for the file
 *
 * Whoever can write the file could make ranks connect to another address, and whoever can read it could join the run.
 * So the file is made for its owner alone (mode 0600), nothing that exists is overwritten, no symbolic link is
 * followed, and ranks take no file that belongs to another user or that others may write to.
 *
 * If rank 0 is killed before all ranks have come, the file stays. A later run recognises such a file by its age: a
 * running rank 0 removes its file after its timeout at the latest, so an older file must come from a run that was
 * killed. It also recognises the file by the name of the run (te__run_name). Rank 0 replaces a file that is too old;
 * the other ranks wait until rank 0 has made another file.
 */
#ifndef TE_COMM_START_H
#define TE_COMM_START_H

#include <poll.h>     /* poll */
#include <stdlib.h>   /* getenv */
#include <sys/stat.h> /* fstat */
#include <time.h>     /* time, clock_gettime, timespec_get */

#include "../../core/impl/file.h" /* lstat, open, write, geteuid */
#include "../../core/rank_group.h" /* te_context, te_min */

enum {
    TE__ID_FILE_BYTES = 1024, /* the largest size of a unique id, in bytes; NCCL's has 128 */
    TE__ID_FILE_RUN = 128     /* the largest size of the name of a run, in bytes, with the terminating 0 */
};

/* The content of the file. bytes: the size of the id; end: the same number again. As long as the file is not
 * completely written, `end` is missing. */
typedef struct te__id_file {
    char magic[16], run[TE__ID_FILE_RUN];
    uint32_t bytes;
    unsigned char id[TE__ID_FILE_BYTES];
    uint32_t end;
} te__id_file;

static const char te__id_file_magic[16] TE_UNUSED = "te-comm id 1\n";

/* Returns the time in seconds, for timeouts. The clock is monotonic, except in strict C11, which has only the clock
 * that an administrator may set. */
TE_API double te__seconds(void) {
    struct timespec now;
#ifdef CLOCK_MONOTONIC
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
#else
    (void)timespec_get(&now, TIME_UTC);
#endif
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
TE_API void te__sleep_1ms(void) { (void)poll(0, 0, 1); }

/* Stores a name that is the same on all ranks of a run and differs between runs. It consists of environment variables
 * of the launcher; if the launcher has set none of them, the name is "". */
TE_API void te__run_name(char name[TE__ID_FILE_RUN]) {
    static const char *const variables[][3] = {{"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"},
                                               {"PMIX_NAMESPACE", 0, 0},
                                               {"OMPI_MCA_ess_base_jobid", 0, 0},
                                               {"PMI_JOBID", 0, 0},
                                               {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}};
    memset(name, 0, TE__ID_FILE_RUN);
    for (size_t i = 0; i < sizeof variables / sizeof variables[0] && !*name; i++) {
        size_t n = 0;
        const char *first = getenv(variables[i][0]);
        for (int k = 0; first && *first && k < 3 && variables[i][k] && n < TE__ID_FILE_RUN - 1; k++) {
            const char *text = getenv(variables[i][k]);
            const int put = snprintf(name + n, TE__ID_FILE_RUN - n, "%s%.40s", k ? "." : "", text ? text : "");
            n += (size_t)te_max(put, 0);
        }
    }
}

/* ---- rank 0 ------------------------------------------------------------------------------------------------------ */

/* The age of a file in seconds, by this machine's clock. */
TE_API double te__file_age(const struct stat *info) { return difftime(time(0), info->st_mtime); }
/* Returns whether the file is too old to belong to this run. File times have whole seconds, so a file's age is
 * uncertain by one. */
TE_API int te__id_file_is_old(const struct stat *info, double timeout) { return te__file_age(info) > timeout + 1; }

/* Removes the file if an earlier run of this user has left it, so that a new one can be made; any other file is left as
 * it is, and the result is an error. */
TE_API te_status te__id_file_replace(const char *file, double timeout, te_context *ctx) {
    struct stat info;
    if (lstat(file, &info)) return TE_OK;
    TE_REQUIRE(S_ISREG(info.st_mode), ctx, TE_ERROR_IO,
               "te_comm_create: config.file %.120s exists and is no regular file; choose another name", file);
    TE_REQUIRE(info.st_uid == geteuid(), ctx, TE_ERROR_IO,
               "te_comm_create: config.file %.120s exists and belongs to user %ld; choose another name", file,
               (long)info.st_uid);
    TE_REQUIRE((size_t)info.st_size <= sizeof(te__id_file) && te__id_file_is_old(&info, timeout), ctx, TE_ERROR_STATE,
               "te_comm_create: config.file %.120s exists: another run uses it, or one that has failed left it %.0f "
               "seconds ago; remove it or choose another name", file, te__file_age(&info));
    TE_REQUIRE(!remove(file), ctx, TE_ERROR_IO, "te_comm_create: cannot remove %.120s, which an earlier run left: %s",
               file, strerror(errno));
    return TE_OK;
}
/* Makes the file, with the id of `bytes` bytes. Errors: the file exists and is not the old file of an earlier run; the
 * file cannot be made. */
TE_API te_status te__id_file_write(const void *id, size_t bytes, const char *file, double timeout, te_context *ctx) {
    te__id_file f;
    TE_REQUIRE(bytes <= sizeof f.id, ctx, TE_ERROR_OVERFLOW, "te_comm_create: a unique id of %zu bytes", bytes);
    TE_TRY(te__id_file_replace(file, timeout, ctx));
    memset(&f, 0, sizeof f);
    memcpy(f.magic, te__id_file_magic, sizeof f.magic), memcpy(f.id, id, bytes);
    te__run_name(f.run), f.bytes = f.end = (uint32_t)bytes;
    /* O_EXCL follows no symbolic link, and fails if another process has made the file in the meantime. */
    const int fd = open(file, O_WRONLY | O_CREAT | O_EXCL, 0600);
    TE_REQUIRE(fd >= 0, ctx, TE_ERROR_IO, "te_comm_create: cannot make config.file %.120s: %s", file, strerror(errno));
    const int is_written = write(fd, &f, sizeof f) == (ssize_t)sizeof f, is_closed = close(fd) == 0;
    if (is_written && is_closed) return TE_OK;
    (void)remove(file);
    return te_fail(ctx, TE_ERROR_IO, "te_comm_create: cannot write config.file %.120s: %s", file, strerror(errno));
}
/* Removes the file that te__id_file_write has made, unless another run has replaced the file since then. */
TE_API void te__id_file_remove(const void *id, size_t bytes, const char *file) {
    te__id_file f;
    const int fd = open(file, O_RDONLY | O_NONBLOCK);
    if (fd < 0) return;
    const int is_same = read(fd, &f, sizeof f) == (ssize_t)sizeof f && f.bytes == bytes && !memcmp(f.id, id, bytes);
    (void)close(fd);
    if (is_same) (void)remove(file);
}

/* ---- the other ranks --------------------------------------------------------------------------------------------- */

/* Tries once to read the file. *waits: null if the file has been read, else the reason why the file cannot be used
 * yet. The result is an error only if waiting would not help, because the file will never be usable. */
TE_API te_status te__id_file_try(te__id_file *f, const char **waits, const char *file, double timeout,
                                 te_context *ctx) {
    struct stat link, info;
    char run[TE__ID_FILE_RUN];
    *waits = "rank 0 has not made it";
    if (lstat(file, &link)) return TE_OK;
    TE_REQUIRE(S_ISREG(link.st_mode), ctx, TE_ERROR_IO,
               "te_comm_create: config.file %.120s is no regular file, and links are not followed", file);
    const int fd = open(file, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    TE_REQUIRE(fd >= 0 || errno == ENOENT, ctx, TE_ERROR_IO, "te_comm_create: cannot read config.file %.120s: %s", file,
               strerror(errno));
    if (fd < 0) return TE_OK;
    /* whether the opened file is the one that lstat has seen: between the two calls the name may have become a link */
    const int is_same = !fstat(fd, &info) && info.st_dev == link.st_dev && info.st_ino == link.st_ino;
    const ssize_t got = is_same ? read(fd, f, sizeof *f) : 0;
    (void)close(fd);
    if (!is_same) return TE_OK;
    TE_REQUIRE(info.st_uid == geteuid(), ctx, TE_ERROR_IO,
               "te_comm_create: config.file %.120s belongs to user %ld, who is not this one (%ld)", file,
               (long)info.st_uid, (long)geteuid());
    TE_REQUIRE(!(info.st_mode & 022), ctx, TE_ERROR_IO,
               "te_comm_create: others may write to config.file %.120s (mode %o)", file, (unsigned)info.st_mode & 0777);
    *waits = "it is not complete";
    if (got != (ssize_t)sizeof *f) return TE_OK;
    TE_REQUIRE(!memcmp(f->magic, te__id_file_magic, sizeof f->magic) && f->bytes == f->end &&
                   f->bytes <= sizeof f->id && memchr(f->run, 0, sizeof f->run), ctx, TE_ERROR_FORMAT,
               "te_comm_create: config.file %.120s holds no unique id", file);
    te__run_name(run);
    *waits = "it was left by an earlier run: it is older than the timeout";
    if (te__id_file_is_old(&info, timeout)) return TE_OK;
    *waits = "it is of another run, by the launcher's name of it";
    if (*run && *f->run && strcmp(run, f->run)) return TE_OK;
    *waits = 0;
    return TE_OK;
}
/* Waits for the file and reads the id. Errors: within `timeout` seconds no file of this run came; the file belongs to
 * another user, or others may write to it; the file is a link, or was not made by te__id_file_write. */
TE_API te_status te__id_file_read(void *id, size_t bytes, const char *file, double timeout, te_context *ctx) {
    te__id_file f;
    const char *waits = 0;
    for (const double start = te__seconds();; te__sleep_1ms()) {
        TE_TRY(te__id_file_try(&f, &waits, file, timeout, ctx));
        if (!waits || te__seconds() - start >= timeout) break;
    }
    TE_REQUIRE(!waits, ctx, TE_ERROR_COMM,
               "te_comm_create: config.file %.120s: %s, and no other came within %g seconds", file, waits, timeout);
    TE_REQUIRE(f.bytes == bytes, ctx, TE_ERROR_FORMAT,
               "te_comm_create: config.file %.120s has an id of %u bytes, this library's has %zu", file,
               (unsigned)f.bytes, bytes);
    memcpy(id, f.id, bytes);
    return TE_OK;
}

/* ---- configs ----------------------------------------------------------------------------------------------------- */

/* A rank's reply about its config. accepts: 1: the rank accepts its config; sizes: the members tensor, copies,
 * context and pipeline of its te_comm_config. */
enum { TE__COMM_SIZES = 4 };
typedef struct te__comm_says { int32_t accepts, sizes[TE__COMM_SIZES]; } te__comm_says;

/* Compares the replies of all ranks, says[size]. If a rank does not accept its config, or has another size than rank 0
 * in it, all ranks return the same error; but a rank that already has an error, `status`, returns that error. */
TE_API te_status te__comm_compare(const te__comm_says *says, int size, te_status status, te_context *ctx) {
    static const char *const names[TE__COMM_SIZES] = {"tensor", "copies", "context", "pipeline"};
    int refuses = -1;
    for (int i = size - 1; i >= 0; i--)
        if (!says[i].accepts) refuses = i;
    if (status == TE_OK && refuses >= 0)
        return te_fail(ctx, TE_ERROR_VALUE, "te_comm_create: rank %d of %d refuses its config", refuses, size);
    for (int k = 0; status == TE_OK && k < TE__COMM_SIZES; k++)
        for (int i = 1; i < size; i++)
            TE_REQUIRE(says[i].sizes[k] == says[0].sizes[k], ctx, TE_ERROR_VALUE,
                       "te_comm_create: config.%s is %d on rank 0, and %d on rank %d", names[k],
                       (int)says[0].sizes[k], (int)says[i].sizes[k], i);
    return status;
}

#endif
