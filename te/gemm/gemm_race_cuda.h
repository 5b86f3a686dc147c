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

/* Reads `count` words, all of them 0x5a5a5a5a. */
typedef struct te__race_words {
    uint32_t *word;
    int64_t count;
} te__race_words;
TE_FN void te__race_read_body(const te__race_words *p, te_block b) {
    uint32_t odd = 0;
    TE_UNROLL_1 for (int64_t i = (int64_t)b.x * blockDim.x + threadIdx.x; i < p->count; i += (int64_t)b.nx * blockDim.x)
        odd |= p->word[i] ^ 0x5a5a5a5au;
    if (odd) p->word[0] = odd; /* never; or the compiler would leave the reading out */
}
TE_KERNEL_IF_USED(te__race_read, 256, 1, te__race_words, te__race_read_body(te_args, te_at))

/* All of the memory, so that this is what lies in the L2; the host has time to enqueue what is timed meanwhile. */
TE_IF_USED TE_API te_status te__race_read_all(const te__race_words *words, te_context *ctx) {
    return te__race_read_launch(ctx, te_grid_of(8 * (int64_t)ctx->processors, 1), words);
}
/* As in a pass a racer stands behind a small kernel and ahead of one: ours begins while that in front ends, and reads
 * its weights meanwhile (te_enqueue_follows). cuBLASLt's do not. */
TE_IF_USED TE_API te_status te__race_lap(te__race_fn run, void *arg, int racer, int laps, const te__race_words *words,
                                         te_context *ctx) {
    te_launches *const s = (te_launches *)ctx->launches;
    const te__race_words few = {words->word, 256};
    TE_TRY(te__race_read_launch(ctx, te_grid_of(1, 1), &few));
    if (s) s->racing = 1;
    te_status status = TE_OK;
    for (int lap = 0; status == TE_OK && lap < laps; lap++) status = run(arg, racer, lap, ctx);
    if (s) s->racing = 0;
    return status == TE_OK ? te__race_read_launch(ctx, te_grid_of(1, 1), &few) : status;
}
/* What the two kernels take with none between, the least of a few times. */
TE_IF_USED TE_API te_status te__race_empty(float *ms, const te__race_words *words, cudaEvent_t begin, cudaEvent_t end,
                                           te_context *ctx) {
    float took = 0;
    for (int i = 0; i < 5; i++) {
        TE_TRY(te__race_read_all(words, ctx));
        TE_TRY(te__cuda_status(ctx, cudaEventRecord(begin, (cudaStream_t)ctx->stream), "event"));
        TE_TRY(te__race_lap(0, 0, 0, 0, words, ctx));
        TE_TRY(te__cuda_status(ctx, cudaEventRecord(end, (cudaStream_t)ctx->stream), "event"));
        TE_TRY(te_synchronize(ctx));
        TE_TRY(te__cuda_status(ctx, cudaEventElapsedTime(&took, begin, end), "event"));
        *ms = i == 0 || took < *ms ? took : *ms;
    }
    return TE_OK;
}

/* Median nanoseconds of each racer, and which one wins (-1: none ran): the fastest, but racer 0, the default, where
 * none is a percent faster, for so far medians differ from race to race. They run in turns, of `laps` runs each. Before
 * each turn memory of twice the L2 is read, not written: nothing has to be written back while the racer reads. Round 0
 * loads the kernels and does not count. Those clearly slower fall out early, but never racer 0; one that cannot run
 * falls out with 0 ns. */
TE_IF_USED TE_API te_status te__race(int64_t *ns, int *winner, int count, int laps, int rounds, te__race_fn run,
                                     void *arg, te_context *ctx) {
    cudaEvent_t event[2 * TE__RACERS];
    int64_t sample[TE__RACERS][TE__ROUNDS];
    int in[TE__RACERS], events = 0, l2 = 0;
    float empty = 0;
    void *memory = 0;
    cudaStream_t stream = (cudaStream_t)ctx->stream;
    te_status status = te__cuda_status(ctx, cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, ctx->device), "L2");
    const size_t bytes = 2 * (size_t)l2;
    *winner = -1;
    for (int i = 0; i < count; i++) in[i] = 1, ns[i] = 0;
    if (status == TE_OK) status = te_allocate(ctx, &memory, bytes);
    if (status == TE_OK) status = te_fill(ctx, memory, 0x5a, bytes);
    const te__race_words words = {(uint32_t *)memory, (int64_t)(bytes / 4)};
    while (status == TE_OK && events < 2 * count) {
        status = te__cuda_status(ctx, cudaEventCreate(&event[events]), "event");
        events += status == TE_OK;
    }
    if (status == TE_OK) status = te__race_empty(&empty, &words, event[0], event[1], ctx);
    for (int round = 0; status == TE_OK && round <= rounds; round++) {
        int64_t best = 0;
        for (int j = 0; status == TE_OK && j < count; j++) {
            const int i = (j + round) % count;
            if (!in[i]) continue;
            status = te__race_read_all(&words, ctx);
            if (status == TE_OK) status = te__cuda_status(ctx, cudaEventRecord(event[2 * i], stream), "event");
            if (status == TE_OK) in[i] = te__race_lap(run, arg, i, laps, &words, ctx) == TE_OK;
            if (!in[i]) (void)cudaGetLastError(), ns[i] = 0; /* or the next launch would report it */
            else if (status == TE_OK) status = te__cuda_status(ctx, cudaEventRecord(event[2 * i + 1], stream), "event");
        }
        if (status == TE_OK) status = te_synchronize(ctx);
        for (int i = 0; status == TE_OK && round && i < count; i++) {
            float ms = 0;
            if (!in[i]) continue;
            status = te__cuda_status(ctx, cudaEventElapsedTime(&ms, event[2 * i], event[2 * i + 1]), "event");
            sample[i][round - 1] = te_max(1, (int64_t)((double)(ms - empty) * 1e6 / laps));
            ns[i] = te__median(sample[i], round);
            if (!best || ns[i] < best) best = ns[i], *winner = i;
        }
        for (int i = 1; round > 1 && i < count; i++)
            in[i] = in[i] && (double)ns[i] <= (double)best * (1.0 + 0.4 / round);
    }
    if (*winner > 0 && ns[0] && ns[0] - ns[*winner] <= ns[*winner] / 100) *winner = 0;
    while (events) (void)cudaEventDestroy(event[--events]);
    te_release(ctx, memory);
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
