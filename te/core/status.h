/* status.h -- what every call returns.
 *
 * Do this:
 *     TE_TRY(te_context_create(&ctx, 0, seed));
 *     if (block_forward(y, &saved, x, &m, &batch, &ctx) != TE_OK) puts(te_last_error(&ctx));
 *
 * The library never exits, throws or prints. A call that fails has enqueued and written nothing, except that
 * TE_ERROR_CUDA, TE_ERROR_BLAS and TE_ERROR_COMM, which the vendor's run time reports, may come after a part of the
 * work.
 */
#ifndef TE_STATUS_H
#define TE_STATUS_H

#include "base.h" /* TE_API */

/* X(name, text): the one list of statuses. */
#define TE_STATUSES(X)                                                                         \
    X(OK, "success")                                                                           \
    X(ERROR_NULL, "a required pointer is null")                                                \
    X(ERROR_SHAPE, "a tensor or a count has the wrong shape")                                  \
    X(ERROR_DTYPE, "a tensor has the wrong dtype")                                             \
    X(ERROR_ALIGNMENT, "a pointer is not aligned to 16 bytes")                                 \
    X(ERROR_OVERFLOW, "a size does not fit")                                                   \
    X(ERROR_MEMORY, "a buffer is too small, or memory could not be had")                       \
    X(ERROR_VALUE, "an argument has a value that is not allowed")                              \
    X(ERROR_STATE, "a call came out of order")                                                 \
    X(ERROR_DEVICE, "the device cannot run this")                                              \
    X(ERROR_CUDA, "the CUDA run time reported an error")                                       \
    X(ERROR_BLAS, "the matrix library reported an error")                                      \
    X(ERROR_IO, "a file could not be read or written")                                         \
    X(ERROR_FORMAT, "a file is not what it should be")                                         \
    X(ERROR_COMM, "another rank failed, or the communication library reported an error")

#define TE_STATUS_ENUM(name, text) TE_##name,
typedef enum te_status { TE_STATUSES(TE_STATUS_ENUM) TE_STATUS_COUNT } te_status;
#undef TE_STATUS_ENUM

/* One sentence for a status; never null. */
TE_API const char *te_status_string(te_status status) {
#define TE_STATUS_TEXT(name, text) text,
    static const char *const texts[] = {TE_STATUSES(TE_STATUS_TEXT)};
#undef TE_STATUS_TEXT
    return (unsigned)status < (unsigned)TE_STATUS_COUNT ? texts[status] : "unknown status";
}

/* Return the status of a call that failed. */
#define TE_TRY(call)                                    \
    do {                                                \
        const te_status te_try_ = (call);               \
        if (te_try_ != TE_OK) return te_try_;           \
    } while (0)

/* Return `status` with a text in the context unless `cond` holds. The text says what was wrong and with which
 * values. */
#define TE_REQUIRE(cond, ctx, status, ...)                               \
    do {                                                                 \
        if (!(cond)) return te_fail((ctx), (status), __VA_ARGS__);       \
    } while (0)

#endif
