/* gemm_race_cuda.h -- which of several ways to compute the same is the fastest: cuBLASLt's candidates for a product
 * (gemm_tune_cuda.h), the splits of a step (fuse/linear_choose.h). */
/* target: cuda */
#ifndef TE_GEMM_RACE_CUDA_H
#define TE_GEMM_RACE_CUDA_H

#include "gemm_back_end_cuda.h" /* te__gemm_state */

enum {
    TE__RACERS = 48,
    TE__ROUNDS = 11      /* at most, of a race; odd, for a median */
};

/* Enqueue racer `racer` once, on the memory of this lap. */
typedef te_status (*te__race_fn)(void *arg, int racer, int lap, te_context *ctx);

TE_API int64_t te__median(const int64_t *v, int n) {
    int64_t sorted[TE__ROUNDS];
    for (int i = 0; i < n; i++) {
        int j = i;
        for (; j > 0 && sorted[j - 1] > v[i]; j--) sorted[j] = sorted[j - 1];
        sorted[j] = v[i];
    }
    return n ? sorted[n / 2] : 0;
}

/* Median nanoseconds of each racer, and which one wins (-1: none ran): the fastest, but racer 0, the default, where
 * none is a percent faster, for so far medians differ from race to race. They run in turns. Before each turn twice the
 * L2 is overwritten, which also gives the host time to enqueue the `laps` runs between the two events. Round 0 loads
 * the kernels and does not count. Those clearly slower fall out early, but never racer 0; one that cannot run falls out
 * with 0 ns. */
TE_API te_status te__race(int64_t *ns, int *winner, int count, int laps, int rounds, te__race_fn run, void *arg,
                          te_context *ctx) {
    cudaEvent_t event[2 * TE__RACERS];
    int64_t sample[TE__RACERS][TE__ROUNDS];
    int in[TE__RACERS], events = 0, l2 = 0;
    void *flush = 0;
    cudaStream_t stream = (cudaStream_t)ctx->stream;
    te_status status = te__cuda_status(ctx, cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, ctx->device), "L2");
    const size_t bytes = 2 * (size_t)l2;
    *winner = -1;
    for (int i = 0; i < count; i++) in[i] = 1, ns[i] = 0;
    if (status == TE_OK) status = te_allocate(ctx, &flush, bytes);
    while (status == TE_OK && events < 2 * count) {
        status = te__cuda_status(ctx, cudaEventCreate(&event[events]), "event");
        events += status == TE_OK;
    }
    for (int round = 0; status == TE_OK && round <= rounds; round++) {
        int64_t best = 0;
        for (int j = 0; status == TE_OK && j < count; j++) {
            const int i = (j + round) % count;
            if (!in[i]) continue;
            status = te_fill(ctx, flush, 0x5a, bytes);
            if (status == TE_OK) status = te__cuda_status(ctx, cudaEventRecord(event[2 * i], stream), "event");
            for (int lap = 0; status == TE_OK && in[i] && lap < laps; lap++) in[i] = run(arg, i, lap, ctx) == TE_OK;
            if (!in[i]) (void)cudaGetLastError(), ns[i] = 0; /* or the next launch would report it */
            else if (status == TE_OK) status = te__cuda_status(ctx, cudaEventRecord(event[2 * i + 1], stream), "event");
        }
        if (status == TE_OK) status = te_synchronize(ctx);
        for (int i = 0; status == TE_OK && round && i < count; i++) {
            float ms = 0;
            if (!in[i]) continue;
            status = te__cuda_status(ctx, cudaEventElapsedTime(&ms, event[2 * i], event[2 * i + 1]), "event");
            sample[i][round - 1] = te_max(1, (int64_t)((double)ms * 1e6 / laps));
            ns[i] = te__median(sample[i], round);
            if (!best || ns[i] < best) best = ns[i], *winner = i;
        }
        for (int i = 1; round > 1 && i < count; i++)
            in[i] = in[i] && (double)ns[i] <= (double)best * (1.0 + 0.4 / round);
    }
    if (*winner > 0 && ns[0] && ns[0] - ns[*winner] <= ns[*winner] / 100) *winner = 0;
    while (events) (void)cudaEventDestroy(event[--events]);
    te_release(ctx, flush);
    return status;
}

/* ---- the splits of a step ---------------------------------------------------------------------------------------- */

/* Whether splits are taken by choice: there are choices, or there may be. */
TE_API int te__gemm_chooses(const te_context *ctx) {
    return ctx && (ctx->gemm_tune || (ctx->gemm && ((const te__gemm_state *)ctx->gemm)->choices));
}
/* Whether a step may be timed now: that waits for the stream, which a capture forbids. */
TE_API int te__gemm_may_time(te_context *ctx) {
    const te__gemm_state *s = ctx->gemm_tune ? te__gemm_state_of(ctx) : 0;
    return s && s->choices < TE_GEMM_CHOICES && !te__cuda_capturing(ctx);
}

#endif
