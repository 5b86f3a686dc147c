/* comm_wait_cuda.h -- waits that end: cudaStreamSynchronize has no limit, and waits for ever for a rank that has died.
 *
 * Do this:
 *     TE_TRY(te__comm_wait_stream(group, "all_gather", ctx)); // until the stream is idle or the timeout has passed
 */
/* target: cuda */
#ifndef TE_COMM_WAIT_CUDA_H
#define TE_COMM_WAIT_CUDA_H

#include "../../core/rank_group.h" /* te_comm, te_group */
#include "../../core/target.h"     /* te__cuda_status */

#if TE_CUDA && defined(TE_COMM)
#include <time.h> /* clock_gettime, nanosleep */

TE_API double te__seconds(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
TE_API void te__sleep_1ms(void) {
    const struct timespec moment = {0, 1000000};
    (void)nanosleep(&moment, 0);
}
/* Waits until the context's stream is idle, at most g->comm->timeout seconds. After TE_ERROR_COMM the communicator has
 * failed, and the caller must free no device memory, because cudaFree would wait for the stream. */
TE_API te_status te__comm_wait_stream(const te_group *g, const char *what, te_context *ctx) {
    const double since = te__seconds();
    for (cudaError_t e; (e = cudaStreamQuery((cudaStream_t)ctx->stream)) != cudaSuccess; te__sleep_1ms()) {
        if (e != cudaErrorNotReady) return te__cuda_status(ctx, e, what);
        if (te__seconds() - since < g->comm->timeout) continue;
        (void)te_fail(ctx, TE_ERROR_COMM, "%s of the %s group, rank %d of %d: another rank has not come within %g "
                      "seconds", what, g->name, g->rank, g->size, g->comm->timeout);
        return te__comm_failed(g->comm, ctx);
    }
    return TE_OK;
}
#endif

#endif
