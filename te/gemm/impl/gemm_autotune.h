/* gemm_autotune.h -- autotuning: times candidates that compute the same result, chooses the fastest, and stores the
 * choice in the context.
 *
 *   te__autotune         times candidates, which may be any work that a function of the caller enqueues
 *   te__gemm_tune_plan   times the algorithms that cuBLASLt proposes for one product
 *   te__gemm_find_choice, te__gemm_store_choice
 *                        find and store, in the context, the strategies that were chosen for fused patterns
 *                        (te/linear/impl/linear_autotune.h) and for FP8 GEMMs (gemm_dispatch.h)
 *
 * Tuning allocates scratch memory, fills it with normally distributed numbers, waits for the stream and frees the
 * memory: none of the caller's memory is read or written. Nothing is tuned on the host. This header also includes the
 * back end of this build (cuBLASLt, gemm_fallback.h or the host), whose state (te__gemm_state) holds the results.
 */
#ifndef TE_GEMM_AUTOTUNE_H
#define TE_GEMM_AUTOTUNE_H

#include "../../core/tensor_kernels.h" /* te_fill_normal */
#if !TE_CUDA
#include "gemm_host.h" /* te_gemm_run on a CPU */
#elif defined(TE_NO_CUBLASLT)
#include "gemm_fallback.h" /* te__gemm_state; te_gemm_run without a library */
#else
#include "gemm_cublaslt.h" /* te__gemm_state; cuBLASLt's plans */
#endif

/* The type of a function that enqueues candidate number `candidate` once. A sample measures several runs of a
 * candidate, and `repeat` is the index of this run in the sample. The function may choose different memory for each
 * `repeat`, so that a run does not find its operands in the L2. */
typedef te_status (*te__candidate_fn)(void *arg, int candidate, int repeat, te_context *ctx);

#if TE_CUDA

enum {
    TE__MAX_CANDIDATES = 48,
    TE__AUTOTUNE_ROUNDS = 11 /* the largest number of samples per candidate; odd, so that the median is a sample */
};

/* ---- timing ------------------------------------------------------------------------------------------------------ */

TE_API int64_t te__median(const int64_t *v, int n) {
    int64_t sorted[TE__AUTOTUNE_ROUNDS];
    for (int i = 0; i < n; i++) {
        int j = i;
        for (; j > 0 && sorted[j - 1] > v[i]; j--) sorted[j] = sorted[j - 1];
        sorted[j] = v[i];
    }
    return n ? sorted[n / 2] : 0;
}

/* Memory that is read before each sample to evict the candidates' operands from the L2. Every 32-bit word of this
 * memory has the value 0x5a5a5a5a. */
typedef struct te__l2_flush {
    uint32_t *word;
    int64_t count;
} te__l2_flush;
TE_FN void te__l2_flush_body(const te__l2_flush *p, te_block b) {
    uint32_t odd = 0;
    TE_UNROLL_1 for (int64_t i = (int64_t)b.x * blockDim.x + threadIdx.x; i < p->count; i += (int64_t)b.nx * blockDim.x)
        odd |= p->word[i] ^ 0x5a5a5a5au;
    if (odd) p->word[0] = odd; /* `odd` is always 0, but without this store the compiler would remove the loads, whose
                                * results would be unused */
}
TE_KERNEL_IF_USED(te__l2_read, 256, 1, te__l2_flush, te__l2_flush_body(te_args, te_at))

/* Enqueues a kernel that reads the whole memory of `flush`. This kernel runs long enough for the host to enqueue the
 * whole next sample, so that launch latencies do not enter the sample's time. */
TE_IF_USED TE_API te_status te__l2_flush_all(const te__l2_flush *flush, te_context *ctx) {
    return te__l2_read_launch(ctx, te__grid_of(8 * (int64_t)ctx->processors, 1), flush);
}
/* Enqueues a sample: `repeats` runs of a candidate between two small kernels. The small kernels stand for the kernels
 * that run before and after the GEMM in a forward or backward pass. Without them a sample would not show that a kernel
 * of this library, unlike cuBLASLt's kernels, starts and loads its weights while the previous kernel is still running
 * (programmatic dependent launch, te__launch_follows_kernel). */
TE_IF_USED TE_API te_status te__autotune_sample(te__candidate_fn run, void *arg, int candidate, int repeats,
                                                const te__l2_flush *flush, te_context *ctx) {
    te_launches *const s = (te_launches *)ctx->launches;
    const te__l2_flush small = {flush->word, 256};
    TE_TRY(te__l2_read_launch(ctx, te__grid_of(1, 1), &small));
    if (s) s->autotuning = 1;
    te_status status = TE_OK;
    for (int repeat = 0; status == TE_OK && repeat < repeats; repeat++) status = run(arg, candidate, repeat, ctx);
    if (s) s->autotuning = 0;
    return status == TE_OK ? te__l2_read_launch(ctx, te__grid_of(1, 1), &small) : status;
}
/* Measures the time that the two small kernels of a sample (te__autotune_sample) take without any run of a candidate
 * between them, and sets *ms to the minimum of five such times, in milliseconds. *ms is then subtracted from every
 * sample. */
TE_IF_USED TE_API te_status te__autotune_overhead(float *ms, const te__l2_flush *flush, cudaEvent_t begin,
                                                  cudaEvent_t end, te_context *ctx) {
    float took = 0;
    for (int i = 0; i < 5; i++) {
        TE_TRY(te__l2_flush_all(flush, ctx));
        TE_TRY(te__cuda_status(ctx, cudaEventRecord(begin, (cudaStream_t)ctx->stream), "event"));
        TE_TRY(te__autotune_sample(0, 0, 0, 0, flush, ctx));
        TE_TRY(te__cuda_status(ctx, cudaEventRecord(end, (cudaStream_t)ctx->stream), "event"));
        TE_TRY(te_synchronize(ctx));
        TE_TRY(te__cuda_status(ctx, cudaEventElapsedTime(&took, begin, end), "event"));
        *ms = i == 0 || took < *ms ? took : *ms;
    }
    return TE_OK;
}

/* The state of te__autotune: the candidates, and the samples (timings) taken of each. */
typedef struct te__autotuner {
    te__candidate_fn run;
    void *arg;
    int count, repeats;
    int events;                                              /* the number of events in begin_end that have been
                                                              * created */
    /* 1 if this candidate is still timed; 0 if it cannot run, or was dropped because it is slower */
    int in[TE__MAX_CANDIDATES];
    /* two events for each candidate, recorded before and after its sample */
    cudaEvent_t begin_end[2 * TE__MAX_CANDIDATES];
    /* sample[i][r]: the time of one run of candidate i, in ns: the mean over the runs of its sample in round r + 1
     * (rounds count from 1) */
    int64_t sample[TE__MAX_CANDIDATES][TE__AUTOTUNE_ROUNDS];
    te__l2_flush flush;
    float overhead; /* the time, in ms, that the two small kernels before and after a sample take without the sample */
} te__autotuner;
TE_IF_USED TE_API te_status te__autotune_open(te__autotuner *t, te_context *ctx) {
    int l2 = 0;
    TE_TRY(te__cuda_status(ctx, cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, ctx->device), "L2"));
    const size_t bytes = 2 * (size_t)l2;
    void *memory = 0;
    TE_TRY(te_allocate(ctx, &memory, bytes));
    t->flush.word = (uint32_t *)memory, t->flush.count = (int64_t)(bytes / 4);
    TE_TRY(te_fill(ctx, memory, 0x5a, bytes));
    for (; t->events < 2 * t->count; t->events++)
        TE_TRY(te__cuda_status(ctx, cudaEventCreate(&t->begin_end[t->events]), "event"));
    return te__autotune_overhead(&t->overhead, &t->flush, t->begin_end[0], t->begin_end[1], ctx);
}
TE_API void te__autotune_close(te__autotuner *t, te_context *ctx) {
    while (t->events) (void)cudaEventDestroy(t->begin_end[--t->events]);
    te_release(ctx, t->flush.word);
}
/* Takes one sample (a timing of t->repeats runs) of each candidate, and waits for the stream. The candidate that is
 * sampled first changes from round to round. */
TE_IF_USED TE_API te_status te__autotune_round(te__autotuner *t, int64_t *ns, int round, te_context *ctx) {
    cudaStream_t stream = (cudaStream_t)ctx->stream;
    for (int j = 0; j < t->count; j++) {
        const int i = (j + round) % t->count;
        if (!t->in[i]) continue;
        TE_TRY(te__l2_flush_all(&t->flush, ctx));
        TE_TRY(te__cuda_status(ctx, cudaEventRecord(t->begin_end[2 * i], stream), "event"));
        t->in[i] = te__autotune_sample(t->run, t->arg, i, t->repeats, &t->flush, ctx) == TE_OK;
        if (t->in[i]) TE_TRY(te__cuda_status(ctx, cudaEventRecord(t->begin_end[2 * i + 1], stream), "event"));
        /* the candidate cannot run: clear the CUDA error, which the next launch would otherwise report */
        else (void)cudaGetLastError(), ns[i] = 0;
    }
    return te_synchronize(ctx);
}
/* Evaluates round `round` (from 1): computes each candidate's median over the samples of all rounds so far, sets
 * *winner to the candidate with the smallest median, and drops candidates that are clearly slower than the winner. */
TE_API te_status te__autotune_evaluate(te__autotuner *t, int64_t *ns, int *winner, int round, te_context *ctx) {
    int64_t best = 0;
    for (int i = 0; i < t->count; i++) {
        float ms = 0;
        if (!t->in[i]) continue;
        TE_TRY(te__cuda_status(ctx, cudaEventElapsedTime(&ms, t->begin_end[2 * i], t->begin_end[2 * i + 1]), "event"));
        t->sample[i][round - 1] = te_max(1, (int64_t)((double)(ms - t->overhead) * 1e6 / t->repeats));
        ns[i] = te__median(t->sample[i], round);
        if (!best || ns[i] < best) best = ns[i], *winner = i;
    }
    for (int i = 1; round > 1 && i < t->count; i++)
        t->in[i] = t->in[i] && (double)ns[i] <= (double)best * (1.0 + 0.4 / round);
    return TE_OK;
}

/* Times `count` candidates. Sets ns[i] to the median time of candidate i in nanoseconds, or to 0 if the candidate
 * cannot run, and *winner to the fastest candidate, or to -1 if none ran. Candidate 0, the default, wins unless another
 * candidate is more than a percent faster, because the medians of two tunings differ by up to a percent.
 *
 * A round takes one sample of each candidate; a sample is `repeats` runs. Before each sample, memory of twice the L2's
 * size is read to flush the L2. This memory is not written, because the L2 would write it back during the sample. Round
 * 0 only makes the driver load the kernels, and is not counted. Candidates that are clearly slower are dropped after
 * the first rounds, except candidate 0. */
TE_IF_USED TE_API te_status te__autotune(int64_t *ns, int *winner, int count, int repeats, int rounds,
                                         te__candidate_fn run, void *arg, te_context *ctx) {
    te__autotuner t;
    memset(&t, 0, sizeof t);
    t.run = run, t.arg = arg, t.count = count, t.repeats = repeats;
    *winner = -1;
    for (int i = 0; i < count; i++) t.in[i] = 1, ns[i] = 0;
    te_status status = te__autotune_open(&t, ctx);
    for (int round = 0; status == TE_OK && round <= rounds; round++) {
        status = te__autotune_round(&t, ns, round, ctx);
        if (status == TE_OK && round) status = te__autotune_evaluate(&t, ns, winner, round, ctx);
    }
    if (*winner > 0 && ns[0] && ns[0] - ns[*winner] <= ns[*winner] / 100) *winner = 0;
    te__autotune_close(&t, ctx);
    return status;
}

/* ---- the candidates of cuBLASLt ---------------------------------------------------------------------------------- */
#ifndef TE_NO_CUBLASLT

/* One product (GEMM) that is tuned, the algorithms that are timed for it, and memory for their operands. A sample runs
 * an algorithm several times, each time with another set of operands. */
typedef struct te__gemm_trial {
    te__gemm_plan *plan;
    te__gemm_state *state;
    char *memory;
    /* offsets of the operands within a set of operands, in bytes; A is at offset 0. set_bytes: the size of a set */
    size_t b, c, d, bias, aux, scales[2], set_bytes;
    int count;
    cublasLtMatmulAlgo_t algo[TE__MAX_CANDIDATES];
} te__gemm_trial;

TE_API te_status te__gemm_trial_run(void *arg, int candidate, int repeat, te_context *ctx) {
    te__gemm_trial *t = (te__gemm_trial *)arg;
    te__gemm_plan *p = t->plan;
    char *set = t->memory + (size_t)repeat * t->set_bytes;
    const float alpha = 1.0f, beta = p->product.beta ? 1.0f : 0.0f;
    te__gemm_set_epilogue(p, set + t->bias, set + t->aux);
    const int arrays = p->product.a_scaling > TE_SCALING_TENSORWISE;
    te__gemm_set_scales(p, arrays ? (const float *)(const void *)(set + t->scales[0]) : 0,
                        arrays ? (const float *)(const void *)(set + t->scales[1]) : 0);
    return te__blas_status(ctx,
                           cublasLtMatmul(t->state->handle, &p->operation, &alpha, set + t->b, &p->a, set, &p->b, &beta,
                                          set + (p->product.beta ? t->c : t->d), &p->d, set + t->d, &p->d,
                                          &t->algo[candidate], t->state->workspace, TE_GEMM_WORKSPACE,
                                          (cudaStream_t)ctx->stream),
                           "cublasLtMatmul");
}
/* Add an algorithm to the candidates of the trial, unless it is already in the list or the list is full. */
TE_API void te__gemm_add_candidate(te__gemm_trial *t, const cublasLtMatmulAlgo_t *algo) {
    for (int i = 0; i < t->count; i++)
        if (!memcmp(&t->algo[i], algo, sizeof *algo)) return;
    if (t->count < TE__MAX_CANDIDATES) t->algo[t->count++] = *algo;
}
/* Compute the offsets of the operands within a set of operands, and the size of a set. */
TE_API void te__gemm_trial_layout(te__gemm_trial *t) {
    const te_gemm_tuned *g = &t->plan->product;
    const size_t in = te_dtype_bytes(g->dtype), a = te_dtype_bytes(g->a), out = te_dtype_bytes(g->out);
    const size_t mn = (size_t)g->m * (size_t)g->n;
    const int arrays = g->a_scaling > TE_SCALING_TENSORWISE; /* 1 if an operand has an array of scales (rowwise or
                                                              * blockwise). If 0, the candidates are timed without
                                                              * scales */
    size_t at = (size_t)te_round_up((int64_t)((size_t)g->m * (size_t)g->k * a), TE_ALIGN);
    t->b = at, at += (size_t)te_round_up((int64_t)((size_t)g->k * (size_t)g->n * a), TE_ALIGN);
    t->d = at, at += (size_t)te_round_up((int64_t)(mn * out), TE_ALIGN);
    t->c = at, at += g->beta ? (size_t)te_round_up((int64_t)(mn * out), TE_ALIGN) : 0;
    t->bias = at;
    at += g->epilogue != TE_EPILOGUE_NONE ? (size_t)te_round_up((int64_t)((size_t)g->n * in), TE_ALIGN) : 0;
    t->aux = at, at += g->epilogue == TE_EPILOGUE_GELU_AUX_BIAS ? (size_t)te_round_up((int64_t)(mn * in), TE_ALIGN) : 0;
    t->scales[0] = at;
    at += arrays ? (size_t)te_round_up(te_scaling_count(g->a_scaling, g->m, g->k) * 4, TE_ALIGN) : 0;
    t->scales[1] = at;
    at += arrays ? (size_t)te_round_up(te_scaling_count(g->b_scaling, g->n, g->k) * 4, TE_ALIGN) : 0;
    t->set_bytes = at;
}
/* Fills all sets of operands with normally distributed numbers: first all memory with numbers of the product's dtype,
 * then FP8 operands with FP8 numbers. So no element of an operand is NaN. An f32 element of C in a product of 16-bit
 * operands is filled with two random 16-bit numbers; no such element is NaN either, because the exponent of the upper
 * 16-bit number becomes the exponent of the element. */
TE_IF_USED TE_API te_status te__gemm_trial_fill(te__gemm_trial *t, int repeats, te_context *ctx) {
    const te_gemm_tuned *g = &t->plan->product;
    const int64_t count = (int64_t)((size_t)repeats * t->set_bytes / te_dtype_bytes(g->dtype));
    TE_TRY(te_fill_normal(t->memory, g->dtype, count, 0.0f, 1.0f, 1, 0, ctx));
    for (int repeat = 0; te_is_fp8(g->a) && repeat < repeats; repeat++) {
        char *set = t->memory + (size_t)repeat * t->set_bytes;
        TE_TRY(te_fill_normal(set, g->a, g->m * g->k, 0.0f, 1.0f, 2, (uint32_t)repeat, ctx));
        TE_TRY(te_fill_normal(set + t->b, g->b, g->k * g->n, 0.0f, 1.0f, 3, (uint32_t)repeat, ctx));
    }
    return TE_OK;
}
/* Times all candidates in a few rounds, then only the first and the three fastest candidates in more rounds. */
TE_IF_USED TE_API te_status te__gemm_trial_time(te__gemm_trial *t, int repeats, te_context *ctx) {
    enum { FIRST_ROUNDS = 5, FINALISTS = 3 };
    int64_t ns[TE__MAX_CANDIDATES];
    int winner, best[FINALISTS], found = 0;
    TE_TRY(te__autotune(ns, &winner, t->count, repeats, FIRST_ROUNDS, te__gemm_trial_run, t, ctx));
    te_gemm_tuned *p = &t->plan->product;
    p->candidates = t->count;
    for (; found < FINALISTS; found++) {
        int at = -1;
        for (int i = 0; i < t->count; i++)
            if (ns[i] && (at < 0 || ns[i] < ns[at])) at = i;
        if (at < 0) break;
        best[found] = at, ns[at] = 0;
    }
    te__gemm_trial final = *t, *f = &final;
    f->count = 1;
    for (int i = 0; i < found; i++) te__gemm_add_candidate(f, &t->algo[best[i]]);
    TE_TRY(te__autotune(ns, &winner, f->count, repeats, TE__AUTOTUNE_ROUNDS, te__gemm_trial_run, f, ctx));
    if (winner < 0 || !ns[0]) return TE_OK; /* the first candidate cannot run, so there is nothing to choose;
                                             * te_gemm_run will return the error */
    p->first_ns = ns[0], p->best_ns = ns[winner];
    t->plan->algo = f->algo[winner], t->plan->timed = 1;
    return TE_OK;
}
/* Times the candidates for this plan, and stores the fastest in the plan. If there is no memory for timing, the plan
 * keeps the heuristic's first candidate. If the stream is being captured, nothing is timed; the first call after the
 * capture times the plan. */
TE_IF_USED TE_API te_status te__gemm_tune_plan(te__gemm_plan *p, te_context *ctx) {
    /* a product whose operands have few bytes runs several times in a sample, because events have a resolution of only
     * 1 us */
    enum { MAX_REPEATS = 8, SHORT_BYTES = 16 << 20 };
    if (te__cuda_capturing(ctx)) return TE_OK;
    char error[sizeof ctx->error];
    memcpy(error, ctx->error, sizeof error);
    p->timed = -1;
    te__gemm_trial trial, *t = &trial;
    memset(t, 0, sizeof *t);
    t->plan = p, t->state = (te__gemm_state *)ctx->gemm;
    te__gemm_trial_layout(t);
    const int repeats = (int)te_max(1, te_min(MAX_REPEATS, (int64_t)((size_t)SHORT_BYTES / t->set_bytes)));
    void *memory = 0;
    te_status status = te_allocate(ctx, &memory, (size_t)repeats * t->set_bytes);
    t->memory = (char *)memory;
    if (status == TE_OK) status = te__gemm_trial_fill(t, repeats, ctx);
    if (status == TE_OK) {
        cublasLtMatmulHeuristicResult_t result[TE__GEMM_MAX_RESULTS];
        te__gemm_add_candidate(t, &p->algo);
        const int n = te__gemm_heuristic(result, TE__GEMM_MAX_RESULTS, p, t->state);
        for (int i = 0; i < n; i++)
            if (result[i].state == CUBLAS_STATUS_SUCCESS) te__gemm_add_candidate(t, &result[i].algo);
        status = te__gemm_trial_time(t, repeats, ctx);
    }
    te_release(ctx, memory);
    if (status != TE_OK && status != TE_ERROR_MEMORY) return status;
    /* restore the context's error text, because it is not an error that a candidate cannot run */
    memcpy(ctx->error, error, sizeof error);
    return TE_OK;
}
#endif

/* ---- results stored in the context ------------------------------------------------------------------------------- */

/* Return the strategies that are stored in the context, and set *count to the address of the variable that holds their
 * number. */
TE_API te_gemm_choice *te__gemm_choices(int **count, te_context *ctx) {
    te__gemm_state *s = te__gemm_state_of(ctx);
    *count = s ? &s->choices : 0;
    return s ? s->choice : 0;
}
/* Returns whether the steps of a plan look up their strategy by te__gemm_find_choice. The steps do so if any strategies
 * are stored in the context, or if tuning is on. */
TE_API int te__gemm_uses_choices(const te_context *ctx) {
    return ctx && (ctx->gemm_tune || (ctx->gemm && ((const te__gemm_state *)ctx->gemm)->choices));
}
/* Returns whether the strategies of a plan's step may be timed now. Tuning must be on, there must be space for another
 * strategy in the context, and the stream must not be capturing, because timing waits for the stream. */
TE_API int te__gemm_may_time(te_context *ctx) {
    const te__gemm_state *s = ctx->gemm_tune ? te__gemm_state_of(ctx) : 0;
    return s && s->choices < TE_GEMM_MAX_CHOICES && !te__cuda_capturing(ctx);
}
/* Returns the device and the version of cuBLASLt for which a tuning file of this context is valid. name: receives the
 * number of multiprocessors and the device's name; *version: set to cuBLASLt's version, or to 0 in a build without
 * cuBLASLt. */
TE_API te_status te__gemm_identify(char *name, size_t bytes, size_t *version, te_context *ctx) {
    struct cudaDeviceProp device;
    TE_TRY(te__cuda_status(ctx, cudaGetDeviceProperties(&device, ctx->device), "device"));
    snprintf(name, bytes, "%d %s", ctx->processors, device.name);
    *version = te__gemm_library_version();
    return TE_OK;
}

#else /* On the host there are no candidates to choose from, and nothing is stored. */

enum { TE__AUTOTUNE_ROUNDS = 1 };
TE_API te_status te__autotune(int64_t *ns, int *winner, int count, int repeats, int rounds, te__candidate_fn run,
                              void *arg, te_context *ctx) {
    (void)ns, (void)count, (void)repeats, (void)rounds, (void)run, (void)arg, (void)ctx;
    *winner = -1;
    return TE_OK;
}
TE_API int te__gemm_uses_choices(const te_context *ctx) { return (void)ctx, 0; }
TE_API int te__gemm_may_time(te_context *ctx) { return (void)ctx, 0; }
TE_API te_status te__gemm_identify(char *name, size_t bytes, size_t *version, te_context *ctx) {
    snprintf(name, bytes, "%d host", ctx->processors);
    *version = 0;
    return TE_OK;
}
TE_API const te_gemm_tuned *te__gemm_next_tuned(int *at, te_context *ctx) {
    return (void)at, (void)ctx, (const te_gemm_tuned *)0;
}
TE_API int te__gemm_accepts(const te_gemm_tuned *t, int *added, te_context *ctx) {
    return (void)t, (void)ctx, *added = 1;
}
TE_API void te__gemm_store_tuned(const te_gemm_tuned *t, te_context *ctx) { (void)t, (void)ctx; }
TE_API int te__gemm_free_plans(te_context *ctx) { return (void)ctx, (int)TE_GEMM_MAX_PLANS; }
TE_API te_gemm_choice *te__gemm_choices(int **count, te_context *ctx) {
    return (void)ctx, *count = 0, (te_gemm_choice *)0;
}
#endif

/* ---- the stored strategies of steps ------------------------------------------------------------------------------ */

TE_API int te__gemm_same_choice(const te_gemm_choice *a, const te_gemm_choice *b) {
    return a->m == b->m && a->n == b->n && a->k == b->k && a->dtype == b->dtype && a->training == b->training &&
           a->stored_outputs == b->stored_outputs && !strcmp(a->pattern, b->pattern);
}
/* Returns the te_gemm_choice that the context stores for the same step as *step describes, or null if the context
 * stores none. Of *step only the members that identify the step (pattern, sizes, dtype, ..) are read. */
TE_API te_gemm_choice *te__gemm_find_choice(const te_gemm_choice *step, te_context *ctx) {
    int *count = 0;
    te_gemm_choice *all = te__gemm_choices(&count, ctx);
    for (int i = 0; count && i < *count; i++)
        if (te__gemm_same_choice(&all[i], step)) return &all[i];
    return 0;
}
/* Stores a copy of *step, a step of a model with its strategy, in the context. The copy replaces an earlier entry for
 * the same step. If the table is full, nothing is stored, and the step runs with its default strategy. */
TE_API void te__gemm_store_choice(const te_gemm_choice *step, te_context *ctx) {
    int *count = 0;
    te_gemm_choice *all = te__gemm_choices(&count, ctx), *found = te__gemm_find_choice(step, ctx);
    if (found) *found = *step;
    else if (count && *count < TE_GEMM_MAX_CHOICES) all[(*count)++] = *step;
}

#endif
