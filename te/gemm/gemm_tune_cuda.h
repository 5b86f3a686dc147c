/* gemm_tune_cuda.h -- the race between cuBLASLt's candidates for a product, where ctx->gemm_tune asks for it
 * (gemm_tune.h).
 *
 * A race allocates scratch memory, fills it with normal numbers, waits for the stream and frees it: nothing of the
 * caller's is read or written.
 */
#ifndef TE_GEMM_TUNE_CUDA_H
#define TE_GEMM_TUNE_CUDA_H

#include "../core/fill.h"   /* te_fill_normal */
#include "gemm_race_cuda.h" /* te__race, te__gemm_plan */

/* One product's race. A set of operands for each lap, so that one lap does not warm the L2 for the next. */
typedef struct te__gemm_trial {
    te__gemm_plan *plan;
    te__gemm_state *state;
    char *memory;
    size_t b, c, d, bias, aux, scales[2], set; /* where they lie in a set, behind A; and its bytes */
    int count;
    cublasLtMatmulAlgo_t algo[TE__RACERS];
} te__gemm_trial;

TE_API te_status te__gemm_trial_run(void *arg, int racer, int lap, te_context *ctx) {
    te__gemm_trial *t = (te__gemm_trial *)arg;
    te__gemm_plan *p = t->plan;
    char *set = t->memory + (size_t)lap * t->set;
    const float alpha = 1.0f, beta = p->product.beta ? 1.0f : 0.0f;
    te__gemm_point(p, set + t->bias, set + t->aux);
    const int fine = p->product.a_scaling > TE_SCALING_TENSOR;
    te__gemm_scale(p, fine ? (const float *)(const void *)(set + t->scales[0]) : 0,
                   fine ? (const float *)(const void *)(set + t->scales[1]) : 0);
    return te__blas_status(ctx,
                           cublasLtMatmul(t->state->handle, &p->operation, &alpha, set + t->b, &p->a, set, &p->b, &beta,
                                          set + (p->product.beta ? t->c : t->d), &p->d, set + t->d, &p->d,
                                          &t->algo[racer], t->state->workspace, TE_GEMM_WORKSPACE,
                                          (cudaStream_t)ctx->stream),
                           "cublasLtMatmul");
}
TE_API void te__gemm_enter(te__gemm_trial *t, const cublasLtMatmulAlgo_t *algo) {
    for (int i = 0; i < t->count; i++)
        if (!memcmp(&t->algo[i], algo, sizeof *algo)) return;
    if (t->count < TE__RACERS) t->algo[t->count++] = *algo;
}

/* Heat, then final: the first candidate and the three fastest. */
TE_IF_USED TE_API te_status te__gemm_race(te__gemm_trial *t, int laps, te_context *ctx) {
    enum { HEAT = 5, FASTEST = 3 };
    int64_t ns[TE__RACERS];
    int winner, best[FASTEST], found = 0;
    TE_TRY(te__race(ns, &winner, t->count, laps, HEAT, te__gemm_trial_run, t, ctx));
    te_gemm_tuned *p = &t->plan->product;
    p->candidates = t->count;
    for (; found < FASTEST; found++) {
        int at = -1;
        for (int i = 0; i < t->count; i++)
            if (ns[i] && (at < 0 || ns[i] < ns[at])) at = i;
        if (at < 0) break;
        best[found] = at, ns[at] = 0;
    }
    te__gemm_trial final = *t, *f = &final;
    f->count = 1;
    for (int i = 0; i < found; i++) te__gemm_enter(f, &t->algo[best[i]]);
    TE_TRY(te__race(ns, &winner, f->count, laps, TE__ROUNDS, te__gemm_trial_run, f, ctx));
    if (winner < 0 || !ns[0]) return TE_OK; /* the first candidate cannot run: te_gemm_run will say so */
    p->first_ns = ns[0], p->best_ns = ns[winner];
    t->plan->algo = f->algo[winner], t->plan->timed = 1;
    return TE_OK;
}

/* Time the candidates for this plan and keep the fastest. Allocates scratch memory, waits for the stream and frees it.
 * A plan that cannot be timed for want of memory stays with the first candidate; one met during a capture is timed at a
 * later call. */
TE_IF_USED TE_API te_status te__gemm_tune(te__gemm_plan *p, te_context *ctx) {
    enum {
        LAPS = 8,
        SMALL = 16 << 20
    }; /* products of up to SMALL bytes run several laps: events are no finer than about a microsecond */
    const te_gemm_tuned *g = &p->product;
    if (te__cuda_capturing(ctx)) return TE_OK;
    char error[sizeof ctx->error];
    memcpy(error, ctx->error, sizeof error);
    p->timed = -1;
    te__gemm_trial trial, *t = &trial;
    memset(t, 0, sizeof *t);
    const size_t in = te_dtype_bytes(g->dtype), a = te_dtype_bytes(g->a), out = te_dtype_bytes(g->out);
    const size_t mn = (size_t)g->m * (size_t)g->n;
    size_t at = (size_t)te_round_up((int64_t)((size_t)g->m * (size_t)g->k * a), TE_ALIGN);
    t->plan = p, t->state = (te__gemm_state *)ctx->gemm;
    t->b = at, at += (size_t)te_round_up((int64_t)((size_t)g->k * (size_t)g->n * a), TE_ALIGN);
    t->d = at, at += (size_t)te_round_up((int64_t)(mn * out), TE_ALIGN);
    t->c = at, at += g->beta ? (size_t)te_round_up((int64_t)(mn * out), TE_ALIGN) : 0;
    t->bias = at,
    at += g->epilogue != TE_EPILOGUE_NONE ? (size_t)te_round_up((int64_t)((size_t)g->n * in), TE_ALIGN) : 0;
    t->aux = at, at += g->epilogue == TE_EPILOGUE_GELU_AUX_BIAS ? (size_t)te_round_up((int64_t)(mn * in), TE_ALIGN) : 0;
    const int fine = g->a_scaling > TE_SCALING_TENSOR; /* else scales are 1 */
    t->scales[0] = at, at += fine ? (size_t)te_round_up(te_scaling_count(g->a_scaling, g->m, g->k) * 4, TE_ALIGN) : 0;
    t->scales[1] = at, at += fine ? (size_t)te_round_up(te_scaling_count(g->b_scaling, g->n, g->k) * 4, TE_ALIGN) : 0;
    t->set = at;
    const int laps = (int)te_max(1, te_min(LAPS, (int64_t)((size_t)SMALL / t->set)));
    void *memory = 0;
    te_status status = te_allocate(ctx, &memory, (size_t)laps * t->set);
    t->memory = (char *)memory;
    /* C in f32 gets pairs of 16-bit numbers: of its own size, and none is a NaN */
    if (status == TE_OK)
        status = te_fill_normal(memory, g->dtype, (int64_t)((size_t)laps * t->set / in), 0.0f, 1.0f, 1, 0, ctx);
    for (int lap = 0; te_is_fp8(g->a) && status == TE_OK && lap < laps; lap++) { /* nor is one of FP8 */
        char *set = t->memory + (size_t)lap * t->set;
        status = te_fill_normal(set, g->a, g->m * g->k, 0.0f, 1.0f, 2, (uint32_t)lap, ctx);
        if (status == TE_OK) status = te_fill_normal(set + t->b, g->b, g->k * g->n, 0.0f, 1.0f, 3, (uint32_t)lap, ctx);
    }
    if (status == TE_OK) {
        cublasLtMatmulHeuristicResult_t result[TE__GEMM_ASKED];
        te__gemm_enter(t, &p->algo);
        const int n = te__gemm_ask(result, TE__GEMM_ASKED, p, t->state);
        for (int i = 0; i < n; i++)
            if (result[i].state == CUBLAS_STATUS_SUCCESS) te__gemm_enter(t, &result[i].algo);
        status = te__gemm_race(t, laps, ctx);
    }
    te_release(ctx, memory);
    if (status != TE_OK && status != TE_ERROR_MEMORY) return status;
    memcpy(ctx->error, error, sizeof error); /* candidates that were refused are no error */
    return TE_OK;
}

#endif
