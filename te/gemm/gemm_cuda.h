/* gemm_cuda.h -- te_gemm_run through cuBLASLt, its plans cached per shape in the context. Included by gemm.h.
 *
 * A call whose plan is cached looks it up, points the descriptor at this call's bias and aux, and enqueues.
 */
#ifndef TE_GEMM_CUDA_H
#define TE_GEMM_CUDA_H

#include <cublasLt.h> /* cublasLtMatmul */

#include "gemm.h"
#include "../core/target.h" /* te__cuda_* */

enum {
    TE_GEMM_WORKSPACE = 32 << 20, /* bytes; what cuBLASLt asks for on Hopper */
    TE_GEMM_LEFT = 256,           /* tiles that gemm_hopper.h shares out, at most; behind the workspace are 16 counts for each, 0 */
    TE__GEMM_SLOTS = 2 * TE_GEMM_PLANS
};

/* What makes two products the same to cuBLASLt. */
typedef struct te__gemm_key { uint64_t word[4]; } te__gemm_key;

typedef struct te__gemm_plan {
    te__gemm_key key;
    int found, timed; /* timed: 1, or -1 if it could not be */
    const void *bias, *aux; /* that the descriptor points to */
    cublasLtMatmulAlgo_t algo;
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t a, b, d;
    te_gemm_tuned product;
} te__gemm_plan;

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(((te_gemm_tuned *)0)->algo), "a tuning file holds eight words");

typedef struct te__gemm_state {
    cublasLtHandle_t handle;
    void *workspace;
    uint16_t slot[TE__GEMM_SLOTS]; /* open addressing; 1 + the index of a plan, or 0 */
    int plans, choices;
    int encode_known;
    void (*encode)(void); /* gemm_hopper.h: te__encode_fn; null: not on this device */
    te__gemm_plan plan[TE_GEMM_PLANS]; /* in the order of their first use */
    te_gemm_choice choice[TE_GEMM_CHOICES];
} te__gemm_state;

TE_API te_status te__blas_status(te_context *ctx, cublasStatus_t s, const char *what) {
    return s == CUBLAS_STATUS_SUCCESS ? TE_OK : te_fail(ctx, TE_ERROR_BLAS, "%s: %s", what, cublasLtGetStatusString(s));
}

TE_API void te__cuda_close(te_context *ctx) {
    te__gemm_state *s = (te__gemm_state *)ctx->gemm;
    if (!s) return;
    if (s->handle) (void)cublasLtDestroy(s->handle);
    te_release(ctx, s->workspace);
    free(s);
    te__launches_close(ctx);
}

/* Create a context on a CUDA device (compute capability 8.0 or higher). Makes it the thread's current device. */
TE_API te_status te_context_create(te_context *ctx, int device, uint64_t seed) {
    static const te_target cuda = {"cuda", te__cuda_allocate, te__cuda_release, te__cuda_copy, te__cuda_fill,
                                   te__cuda_synchronize, te__cuda_close};
    if (!ctx) return TE_ERROR_NULL;
    memset(ctx, 0, sizeof *ctx);
    ctx->target = &cuda, ctx->device = device, ctx->gemm_own = 1, ctx->overlap = 1, ctx->replay = TE_LAUNCH_GRAPHS;
    TE_TRY(te__cuda_status(ctx, cudaSetDevice(device), "cudaSetDevice"));
    int major = 0, minor = 0;
    TE_TRY(te__cuda_status(ctx, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device"));
    TE_TRY(te__cuda_status(ctx, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "device"));
    TE_REQUIRE(major >= 8, ctx, TE_ERROR_DEVICE, "device %d has compute capability %d.%d; 8.0 or higher is needed", device, major, minor);
    ctx->capability = 100 * major + 10 * minor;
    TE_TRY(te__cuda_status(ctx, cudaDeviceGetAttribute(&ctx->processors, cudaDevAttrMultiProcessorCount, device), "device"));
    te__gemm_state *s = (te__gemm_state *)calloc(1, sizeof *s);
    TE_REQUIRE(s, ctx, TE_ERROR_MEMORY, "cannot allocate %zu bytes", sizeof *s);
    ctx->gemm = s, ctx->launches = calloc(1, sizeof(te_launches)); /* without it, kernel by kernel */
    te_rng rng;
    rng.seed = seed, rng.offset = 0;
    te_status status = te__blas_status(ctx, cublasLtCreate(&s->handle), "cublasLtCreate");
    if (status == TE_OK) status = te_allocate(ctx, &s->workspace, TE_GEMM_WORKSPACE + TE_GEMM_LEFT * 64 + TE_ALIGN);
    if (status == TE_OK) status = te_fill(ctx, (char *)s->workspace + TE_GEMM_WORKSPACE, 0, TE_GEMM_LEFT * 64 + TE_ALIGN);
    if (status == TE_OK) ctx->tickets = (uint32_t *)(void *)((char *)s->workspace + TE_GEMM_WORKSPACE + TE_GEMM_LEFT * 64);
    if (status == TE_OK) status = te_allocate(ctx, (void **)&ctx->rng, sizeof rng);
    if (status == TE_OK) status = te_rng_set(&rng, ctx);
    if (status != TE_OK) {
        te__cuda_close(ctx);
        ctx->gemm = 0;
    }
    return status;
}

TE_API cudaDataType te__cuda_type(te_dtype t) { return t == TE_f32 ? CUDA_R_32F : t == TE_bf16 ? CUDA_R_16BF : CUDA_R_16F; }

/* ---- the plans --------------------------------------------------------------------------------------------------- */

TE_API void te__gemm_set(te__gemm_plan *p, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes) {
    (void)cublasLtMatmulDescSetAttribute(&p->operation, attribute, value, bytes);
}
/* The one thing in a descriptor that changes from call to call. */
TE_API void te__gemm_point(te__gemm_plan *p, const void *bias, const void *aux) {
    if (p->product.epilogue == TE_EPILOGUE_NONE) return;
    if (bias != p->bias) te__gemm_set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias), p->bias = bias;
    if (p->product.epilogue != TE_EPILOGUE_GELU_AUX_BIAS || aux == p->aux) return;
    te__gemm_set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux), p->aux = aux;
}

/* Row-major D = A B is column-major D^T = B^T A^T, so A and B change places. */
TE_API void te__gemm_describe(te__gemm_plan *p) {
    static const cublasLtEpilogue_t epilogues[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_BIAS,
                                                   CUBLASLT_EPILOGUE_GELU_AUX_BIAS};
    const te_gemm_tuned *g = &p->product;
    const cudaDataType in = te__cuda_type(g->dtype), out = te__cuda_type(g->out);
    const cublasOperation_t ta = g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, tb = g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    (void)cublasLtMatmulDescInit(&p->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    te__gemm_set(p, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    te__gemm_set(p, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
    te__gemm_set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogues[g->epilogue], sizeof epilogues[0]);
    if (g->epilogue != TE_EPILOGUE_NONE) te__gemm_set(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &in, sizeof in);
    if (g->epilogue == TE_EPILOGUE_GELU_AUX_BIAS) te__gemm_set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &g->n, sizeof g->n);
    (void)cublasLtMatrixLayoutInit(&p->a, in, (uint64_t)(g->trans_b ? g->k : g->n), (uint64_t)(g->trans_b ? g->n : g->k), g->trans_b ? g->k : g->n);
    (void)cublasLtMatrixLayoutInit(&p->b, in, (uint64_t)(g->trans_a ? g->m : g->k), (uint64_t)(g->trans_a ? g->k : g->m), g->trans_a ? g->m : g->k);
    (void)cublasLtMatrixLayoutInit(&p->d, out, (uint64_t)g->n, (uint64_t)g->m, g->n);
}

/* Up to `count` candidates of the heuristic. Partial sums of a split k are added up in float and in a fixed order, so that the
 * same inputs give the same bits: reductions in the output's place or dtype are left out. */
enum { TE__GEMM_ASKED = 32 }; /* candidates of a race */
TE_API int te__gemm_ask(cublasLtMatmulHeuristicResult_t *result, int count, te__gemm_plan *p, te__gemm_state *s) {
    cublasLtMatmulPreferenceOpaque_t preference;
    const size_t workspace = TE_GEMM_WORKSPACE;
    const uint32_t alignment = TE_ACCESS, reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    (void)cublasLtMatmulPreferenceInit(&preference);
    (void)cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    (void)cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction);
    (void)cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment, sizeof alignment);
    (void)cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignment, sizeof alignment);
    (void)cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment, sizeof alignment);
    (void)cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment, sizeof alignment);
    int n = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(s->handle, &p->operation, &p->a, &p->b, &p->d, &p->d, &preference, count, result, &n);
    return status == CUBLAS_STATUS_SUCCESS ? n : 0;
}

TE_API te__gemm_key te__gemm_key_of(int64_t m, int64_t n, int64_t k, int trans_a, int trans_b, te_dtype dtype, te_dtype out, te_epilogue e, int beta) {
    te__gemm_key key;
    key.word[0] = (uint64_t)m, key.word[1] = (uint64_t)n, key.word[2] = (uint64_t)k;
    key.word[3] = (uint64_t)(trans_a != 0) | (uint64_t)(trans_b != 0) << 1 | (uint64_t)(beta != 0) << 2 | (uint64_t)dtype << 8 | (uint64_t)out << 16 | (uint64_t)e << 24;
    return key;
}
/* Where the plan with this key is, or would be. */
TE_API uint16_t *te__gemm_slot(const te__gemm_key *key, te__gemm_state *s) {
    const uint64_t *w = key->word;
    uint64_t hash = (((w[0] * 0x9E3779B97F4A7C15ull ^ w[1]) * 0x9E3779B97F4A7C15ull ^ w[2]) * 0x9E3779B97F4A7C15ull ^ w[3]) * 0x9E3779B97F4A7C15ull;
    for (hash >>= 32;; hash++) {
        uint16_t *at = &s->slot[hash % TE__GEMM_SLOTS];
        if (!*at || !memcmp(&s->plan[*at - 1].key, key, sizeof *key)) return at;
    }
}
/* The next plan, described; null if the cache is full. */
TE_API te__gemm_plan *te__gemm_new_plan(uint16_t *slot, const te__gemm_key *key, const te_gemm_tuned *product, te__gemm_state *s) {
    if (s->plans == TE_GEMM_PLANS) return 0;
    te__gemm_plan *p = &s->plan[s->plans++];
    *slot = (uint16_t)s->plans;
    p->key = *key, p->product = *product;
    te__gemm_describe(p);
    return p;
}
/* The plan for this product, made on first sight; null if the cache is full. */
TE_API te__gemm_plan *te__gemm_find_plan(const te_gemm *g, te_context *ctx) {
    te__gemm_state *s = (te__gemm_state *)ctx->gemm;
    const te__gemm_key key = te__gemm_key_of(g->m, g->n, g->k, g->trans_a, g->trans_b, g->dtype, g->out, g->epilogue, g->beta != 0);
    uint16_t *slot = te__gemm_slot(&key, s);
    if (*slot) return &s->plan[*slot - 1];
    te_gemm_tuned t;
    memset(&t, 0, sizeof t);
    t.m = g->m, t.n = g->n, t.k = g->k, t.trans_a = g->trans_a != 0, t.trans_b = g->trans_b != 0, t.dtype = g->dtype, t.out = g->out;
    t.epilogue = g->epilogue, t.beta = g->beta != 0;
    te__gemm_plan *p = te__gemm_new_plan(slot, &key, &t, s);
    cublasLtMatmulHeuristicResult_t result;
    if (p && te__gemm_ask(&result, 1, p, s)) p->found = 1, p->algo = result.algo;
    return p;
}

/* Whether cuBLASLt's candidates for this product were timed, or are to be. */
TE_API int te__gemm_is_timed(const te_gemm *g, te_context *ctx) {
    te__gemm_state *s = (te__gemm_state *)ctx->gemm;
    const te__gemm_key key = te__gemm_key_of(g->m, g->n, g->k, g->trans_a, g->trans_b, g->dtype, g->out, g->epilogue, g->beta != 0);
    const uint16_t slot = *te__gemm_slot(&key, s);
    return ctx->gemm_tune || (slot && s->plan[slot - 1].timed > 0);
}
/* Whether cuBLASLt has this product with this epilogue. The gelu epilogues are left to our own kernels in f32, where
 * theirs approximates tanh too coarsely for 1e-5. */
TE_API int te_gemm_supports(const te_gemm *g, te_context *ctx) {
    if (g->epilogue >= TE_EPILOGUE_GELU_BIAS && (g->dtype == TE_f32 || g->n % TE_VECTOR)) return 0;
    const te__gemm_plan *p = te__gemm_find_plan(g, ctx);
    return p && p->found;
}
TE_API size_t te_gemm_scratch(const te_gemm *g) {
    (void)g;
    return 0;
}

TE_API te_status te__gemm_tune(te__gemm_plan *p, te_context *ctx); /* gemm_tune_cuda.h */

typedef struct te__gemm_args { te_gemm g; cublasLtMatmulAlgo_t algo; } te__gemm_args;
TE_API te_status te__gemm_call(const void *args, te_context *ctx) {
    const te__gemm_args *a = (const te__gemm_args *)args;
    const te_gemm *g = &a->g;
    te__gemm_state *s = (te__gemm_state *)ctx->gemm;
    te__gemm_plan *p = te__gemm_find_plan(g, ctx);
    te__gemm_point(p, g->bias, g->aux);
    return te__blas_status(ctx,
                           cublasLtMatmul(s->handle, &p->operation, &g->alpha, g->b, &p->a, g->a, &p->b, &g->beta,
                                          g->beta != 0 ? g->c : g->d, &p->d, g->d, &p->d, &a->algo, s->workspace, TE_GEMM_WORKSPACE,
                                          (cudaStream_t)ctx->stream),
                           "cublasLtMatmul");
}
TE_API te_status te_gemm_run(const te_gemm *g, te_context *ctx) {
    te__gemm_plan *p = te__gemm_find_plan(g, ctx);
    TE_REQUIRE(p, ctx, TE_ERROR_BLAS, "more than %d different matrix products in one context", (int)TE_GEMM_PLANS);
    TE_REQUIRE(p->found, ctx, TE_ERROR_BLAS, "cuBLASLt has no algorithm for the %s product %lld x %lld x %lld", te_dtype_name(g->dtype),
               (long long)g->m, (long long)g->n, (long long)g->k);
    if (ctx->gemm_tune && !p->timed) {
        const int open = te_enqueue_is_open(ctx);
        TE_TRY(te_enqueue_close(ctx, TE_OK));
        TE_TRY(te__gemm_tune(p, ctx));
        if (open) te_enqueue_open(ctx);
    }
    te__gemm_args a;
    memset(&a, 0, sizeof a);
    a.g = *g, a.algo = p->algo;
    return te__cuda_call(ctx, te__gemm_call, &a, sizeof a);
}

/* ---- for gemm_tune.h ------------------------------------------------------------------------------------------------ */

/* What a tuning file is for. `name` in printable characters. */
TE_API te_status te__gemm_identify(char *name, size_t bytes, size_t *version, te_context *ctx) {
    struct cudaDeviceProp device;
    TE_TRY(te__cuda_status(ctx, cudaGetDeviceProperties(&device, ctx->device), "device"));
    snprintf(name, bytes, "%d %s", ctx->processors, device.name);
    *version = cublasLtGetVersion();
    return TE_OK;
}
/* The first timed plan from index *at on, which moves behind it; null: no more. */
TE_API const te_gemm_tuned *te__gemm_next_tuned(int *at, te_context *ctx) {
    te__gemm_state *s = (te__gemm_state *)ctx->gemm;
    while (*at < s->plans) {
        te__gemm_plan *p = &s->plan[(*at)++];
        if (p->timed > 0) return memcpy(p->product.algo, &p->algo, sizeof p->algo), &p->product;
    }
    return 0;
}
TE_API uint16_t *te__gemm_slot_of(const te_gemm_tuned *t, te__gemm_key *key, te__gemm_state *s) {
    *key = te__gemm_key_of(t->m, t->n, t->k, t->trans_a, t->trans_b, t->dtype, t->out, t->epilogue, t->beta);
    return te__gemm_slot(key, s);
}
/* Whether cuBLASLt itself proposes this algorithm here: its words are opaque, and what is none of its own it may not
 * survive. *added: 1 if the cache does not have the product yet. */
TE_API int te__gemm_accepts(const te_gemm_tuned *t, int *added, te_context *ctx) {
    te__gemm_state *s = (te__gemm_state *)ctx->gemm;
    te__gemm_plan p;
    memset(&p, 0, sizeof p);
    p.product = *t;
    *added = !*te__gemm_slot_of(t, &p.key, s);
    te__gemm_describe(&p);
    cublasLtMatmulHeuristicResult_t result[TE__GEMM_ASKED];
    for (int asked = 1; asked <= TE__GEMM_ASKED; asked += TE__GEMM_ASKED - 1) { /* the first one, and the many */
        const int n = te__gemm_ask(result, asked, &p, s);
        for (int i = 0; i < n; i++)
            if (result[i].state == CUBLAS_STATUS_SUCCESS && !memcmp(&result[i].algo, t->algo, sizeof t->algo)) return 1;
    }
    return 0;
}
/* From now on this product runs so. There is room for it. */
TE_API void te__gemm_keep(const te_gemm_tuned *t, te_context *ctx) {
    te__gemm_state *s = (te__gemm_state *)ctx->gemm;
    te__gemm_key key;
    uint16_t *slot = te__gemm_slot_of(t, &key, s);
    te__gemm_plan *p = *slot ? &s->plan[*slot - 1] : te__gemm_new_plan(slot, &key, t, s);
    if (!p) return;
    p->product = *t, p->found = p->timed = 1;
    memcpy(&p->algo, t->algo, sizeof p->algo);
}
TE_API int te__gemm_room(te_context *ctx) { return TE_GEMM_PLANS - ((te__gemm_state *)ctx->gemm)->plans; }
/* The splits that were timed, and how many. */
TE_API te_gemm_choice *te__gemm_choices(int **count, te_context *ctx) {
    te__gemm_state *s = (te__gemm_state *)ctx->gemm;
    *count = &s->choices;
    return s->choice;
}

#include "gemm_tune_cuda.h" /* te__gemm_tune: how it is found */

#endif
