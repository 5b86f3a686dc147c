/* comm_start.h -- those parts of a communicator's start that need neither NCCL nor MPI: the file by which rank 0 passes
 * NCCL's unique id to the other ranks, the comparison of the ranks' configs, the numbering of the hosts, and the
 * division of the ranks into groups.
 *
 * Do this, on rank 0 and on the other ranks:
 *     TE_TRY(te__id_file_write(&id, sizeof id, file, timeout, ctx));   // then te__id_file_remove, when all have come
 *     TE_TRY(te__id_file_read(&id, sizeof id, file, timeout, ctx));    // waits for the file
 *
 * Whoever can write the file could make ranks connect to another address, and whoever can read it could join the run.
 * Therefore only the owner can access the file (mode 0600), no existing file is overwritten, no symbolic link is
 * followed, and ranks do not use a file that belongs to another user or that others may write to.
 *
 * If rank 0 is killed before all ranks have read the file, the file is left behind. A later run recognises such a file
 * by its age: rank 0 removes the file at the latest when rank 0's timeout ends, so an older file must come from a run
 * that was killed. For this the clocks of all hosts and of the file's server must agree to within the timeout. A later
 * run also recognises the file by the name of the run (te_comm_run_name). Rank 0 replaces a file that is too old; the
 * other ranks wait until rank 0 has made another file.
 */
#ifndef TE_COMM_START_H
#define TE_COMM_START_H

#include <poll.h>     /* poll */
#include <stdlib.h>   /* getenv */
#include <sys/stat.h> /* fstat */
#include <sys/utsname.h> /* uname */
#include <time.h>     /* time, clock_gettime, timespec_get */

#include "../../core/impl/file.h" /* lstat, open, write, geteuid */
#include "../../core/rank_group.h" /* te_context, te_min */

enum {
    TE__ID_FILE_BYTES = 1024, /* the largest size of a unique id, in bytes; NCCL's has 128 */
    TE_COMM_RUN_NAME = 128    /* the largest size of the name of a run, in bytes, with the terminating 0 */
};

/* How the ranks find each other, by a file or by an address of rank 0; and the number of this rank. */
typedef struct te__comm_start {
    const char *file;
    const char *address; /* "host:port"; a literal IPv6 address stands in brackets, as in "[::1]:29510" */
    const char *secret;  /* for the address */
    double timeout;
    int rank, size;
} te__comm_start;

/* The content of the file config.file. bytes: the size of the id; end: a copy of `bytes`, which is missing while the
 * file is not completely written. */
typedef struct te__id_file {
    char magic[16], run[TE_COMM_RUN_NAME];
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

/* Stores the name of the run, which is the same on all ranks and hosts, differs between runs, and can be part of a
 * file's name. The name consists of values of the launcher's environment variables. It is "" if the launcher has set
 * none of these variables. */
TE_API void te_comm_run_name(char name[TE_COMM_RUN_NAME]) {
    static const char *const variables[][3] = {{"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"},
                                               {"PMIX_NAMESPACE", 0, 0},
                                               {"OMPI_MCA_ess_base_jobid", 0, 0},
                                               {"PMI_JOBID", 0, 0},
                                               {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}};
    memset(name, 0, TE_COMM_RUN_NAME);
    for (size_t i = 0; i < sizeof variables / sizeof variables[0] && !*name; i++) {
        size_t n = 0;
        const char *first = getenv(variables[i][0]);
        for (int k = 0; first && *first && k < 3 && variables[i][k] && n < TE_COMM_RUN_NAME - 1; k++) {
            const char *text = getenv(variables[i][k]);
            const int put = snprintf(name + n, TE_COMM_RUN_NAME - n, "%s%.40s", k ? "." : "", text ? text : "");
            n += (size_t)te_max(put, 0);
        }
    }
    for (char *c = name; *c; c++)
        if (*c == '/') *c = '_';
}

/* ---- rank 0 ------------------------------------------------------------------------------------------------------ */

/* Returns the age of a file in seconds, by this machine's clock. */
TE_API double te__file_age(const struct stat *info) { return difftime(time(0), info->st_mtime); }
/* Returns whether the file is too old to belong to this run. File times have whole seconds, so a file's age is
 * uncertain by one second. */
TE_API int te__id_file_is_old(const struct stat *info, double timeout) { return te__file_age(info) > timeout + 1; }

/* Removes a file that an earlier run of this user has left behind, so that a new file can be made. Any other existing
 * file is left as it is, and the function returns an error. */
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
/* Makes the file, with the id of `bytes` bytes. Returns an error if the file exists and is not the old file of an
 * earlier run, or if the file cannot be made. */
TE_API te_status te__id_file_write(const void *id, size_t bytes, const char *file, double timeout, te_context *ctx) {
    te__id_file f;
    TE_REQUIRE(bytes <= sizeof f.id, ctx, TE_ERROR_OVERFLOW, "te_comm_create: a unique id of %zu bytes", bytes);
    TE_TRY(te__id_file_replace(file, timeout, ctx));
    memset(&f, 0, sizeof f);
    memcpy(f.magic, te__id_file_magic, sizeof f.magic), memcpy(f.id, id, bytes);
    te_comm_run_name(f.run), f.bytes = f.end = (uint32_t)bytes;
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
    char run[TE_COMM_RUN_NAME];
    *waits = "rank 0 has not made it";
    if (lstat(file, &link)) return TE_OK;
    TE_REQUIRE(S_ISREG(link.st_mode), ctx, TE_ERROR_IO,
               "te_comm_create: config.file %.120s is no regular file, and links are not followed", file);
    const int fd = open(file, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    TE_REQUIRE(fd >= 0 || errno == ENOENT, ctx, TE_ERROR_IO, "te_comm_create: cannot read config.file %.120s: %s", file,
               strerror(errno));
    if (fd < 0) return TE_OK;
    /* whether the opened file is the file that lstat has seen, because the name may have become a link between the two
     * calls */
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
    te_comm_run_name(run);
    *waits = "it was left by an earlier run: it is older than the timeout";
    if (te__id_file_is_old(&info, timeout)) return TE_OK;
    *waits = "it is of another run, by the launcher's name of it";
    if (*run && *f->run && strcmp(run, f->run)) return TE_OK;
    *waits = 0;
    return TE_OK;
}
/* Waits for the file and reads the id. Returns an error if there is no file of this run within `timeout` seconds, if
 * the file belongs to another user or others may write to it, or if the file is a link or was not made by
 * te__id_file_write. */
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

/* A rank's reply about its config and its host. accepts is 1 if the rank accepts its config; numbers: the members of
 * the rank's te_comm_config that must be the same on all ranks; host: a number that is the same for all ranks on a host
 * (te__says_host); name: the beginning of the host's name. The struct has no padding. */
enum { TE__COMM_NUMBERS = 6 };
typedef struct te__comm_says {
    int32_t accepts, numbers[TE__COMM_NUMBERS];
    uint64_t host;
    char name[32];
} te__comm_says;

/* Compares the replies of all ranks, says[size]. If a rank does not accept its config, or if a number in its config
 * differs from that of rank 0, all ranks return the same error. A rank that already has an error, `status`, returns
 * `status` instead. */
TE_API te_status te__comm_compare(const te__comm_says *says, int size, te_status status, te_context *ctx) {
    static const char *const names[TE__COMM_NUMBERS] = {"tensor",   "copies",              "context",
                                                        "pipeline", "tensor_across_hosts", "hierarchical"};
    int refuses = -1;
    for (int i = size - 1; i >= 0; i--)
        if (!says[i].accepts) refuses = i;
    if (status == TE_OK && refuses >= 0)
        return te_fail(ctx, TE_ERROR_VALUE, "te_comm_create: rank %d of %d refuses its config", refuses, size);
    for (int k = 0; status == TE_OK && k < TE__COMM_NUMBERS; k++)
        for (int i = 1; i < size; i++)
            TE_REQUIRE(says[i].numbers[k] == says[0].numbers[k], ctx, TE_ERROR_VALUE,
                       "te_comm_create: config.%s is %d on rank 0, and %d on rank %d", names[k],
                       (int)says[0].numbers[k], (int)says[i].numbers[k], i);
    return status;
}

/* ---- hosts ------------------------------------------------------------------------------------------------------- */

/* Sets the members host and name of this rank's reply. Two ranks are on one host if the boot id, a random number that
 * Linux draws when it starts, and the host's name are the same. The boot id alone does not suffice: containers of one
 * machine have the same boot id and different names, but usually cannot map each other's memory. name: config.host, or
 * null for the system's host name. */
TE_API void te__says_host(te__comm_says *mine, const char *name) {
    char text[64] = "";
    struct utsname system;
    uint64_t hash = 1469598103934665603u; /* FNV-1a */
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY);
    const ssize_t n = fd >= 0 ? read(fd, text, sizeof text) : 0;
    if (fd >= 0) (void)close(fd);
    if (!name) name = uname(&system) < 0 ? "" : system.nodename;
    for (ssize_t i = 0; i < n; i++) hash = (hash ^ (uint8_t)text[i]) * 1099511628211u;
    for (const char *c = name; *c; c++) hash = (hash ^ (uint8_t)*c) * 1099511628211u;
    mine->host = hash;
    snprintf(mine->name, sizeof mine->name, "%.31s", name);
}
/* Numbers the hosts in the order of their first ranks: host_of[size] gets the number of each rank's host. Returns the
 * number of hosts. */
TE_API int te__hosts_number(int *host_of, const te__comm_says *says, int size) {
    int hosts = 0;
    for (int r = 0; r < size; r++) {
        int first = 0;
        while (says[first].host != says[r].host) first++;
        host_of[r] = first == r ? hosts++ : host_of[first];
    }
    return hosts;
}

/* The grid of the ranks: te_comm_config.tensor, copies, context and pipeline, and the number of all ranks. */
typedef struct te__grid {
    int tensor, copies, context, pipeline, size;
    const int *host_of; /* [size]: the number of each rank's host */
    int *seen;          /* [size]: scratch */
} te__grid;

/* For each kind of group, such as tensor, the function te__<kind>_group_of returns the number of the group to which
 * rank r of the world belongs. te__grid_group makes the groups from these numbers. */
typedef int (*te__group_of_fn)(const te__grid *grid, int r);

TE_API int te__tensor_group_of(const te__grid *grid, int r) { return r / grid->tensor; }
TE_API int te__copies_group_of(const te__grid *grid, int r) { return r / grid->copies; }
TE_API int te__data_group_of(const te__grid *grid, int r) {
    const int ranks = grid->size / grid->pipeline;
    return r / ranks * grid->tensor + r % grid->tensor;
}
/* A context group consists of `context` consecutive ranks of a data group. */
TE_API int te__context_group_of(const te__grid *grid, int r) {
    return r / (grid->tensor * grid->context) * grid->tensor + r % grid->tensor;
}
TE_API int te__pipeline_group_of(const te__grid *grid, int r) { return r % (grid->size / grid->pipeline); }
/* A rank of the first stage and the corresponding rank of the last stage form a group; each rank of another stage is a
 * group by itself. */
TE_API int te__embedding_group_of(const te__grid *grid, int r) {
    const int ranks = grid->size / grid->pipeline, stage = r / ranks;
    return grid->pipeline > 1 && (!stage || stage == grid->pipeline - 1) ? r % ranks : r;
}
/* Ranks of a data group that are on the same host form a group. */
TE_API int te__in_host_group_of(const te__grid *grid, int r) {
    return te__data_group_of(grid, r) * grid->size + grid->host_of[r];
}
/* On each host, the ranks of a data group are numbered from 0; ranks with the same number on different hosts form a
 * group. */
TE_API int te__across_hosts_group_of(const te__grid *grid, int r) {
    int number = 0;
    for (int i = 0; i < r; i++) number += te__in_host_group_of(grid, i) == te__in_host_group_of(grid, r);
    return te__data_group_of(grid, r) * grid->size + number;
}
/* Sets *size to the number of ranks in the group of rank r, and *hosts to the number of hosts on which these ranks run.
 * Returns the number of rank r within the group, whose ranks keep the order that they have in the world. */
TE_API int te__grid_group(int *size, int *hosts, te__group_of_fn group_of, const te__grid *grid, int r) {
    const int number = group_of(grid, r);
    int rank = 0;
    *size = *hosts = 0;
    memset(grid->seen, 0, (size_t)grid->size * sizeof *grid->seen);
    for (int i = 0; i < grid->size; i++) {
        if (group_of(grid, i) != number) continue;
        rank += i < r, *hosts += !grid->seen[grid->host_of[i]], (*size)++;
        grid->seen[grid->host_of[i]] = 1;
    }
    return rank;
}
/* Returns whether all data groups span several hosts, and have the same number of ranks, at least two, on each host. */
TE_API int te__grid_has_levels(const te__grid *grid) {
    int m = 0, size, hosts;
    for (int r = 0; r < grid->size; r++) {
        int count = 0;
        for (int i = 0; i < grid->size; i++) count += te__in_host_group_of(grid, i) == te__in_host_group_of(grid, r);
        if (!r) m = count;
        if (count != m || m < 2) return 0;
    }
    (void)te__grid_group(&size, &hosts, te__data_group_of, grid, 0);
    return size > m;
}

#endif
