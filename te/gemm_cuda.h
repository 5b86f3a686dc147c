/* gemm_cuda.h -- te_gemm_run through cuBLASLt, its plans cached per shape in the context. Included by gemm.h. */
#ifndef TE_GEMM_CUDA_H
#define TE_GEMM_CUDA_H

#include <cublasLt.h> /* cublasLtMatmul */

#include "gemm.h"
#include "target.h" /* te__cuda_* */

enum {
    TE_GEMM_WORKSPACE = 32 << 20, /* bytes; what cuBLASLt asks for on Hopper */
    TE_GEMM_PLANS = 512           /* distinct products a context can remember */
};

/* What makes two products the same to cuBLASLt. Compared byte by byte: filled with memset first. */
typedef struct te__gemm_key {
    int64_t m, n, k;
    int32_t trans_a, trans_b, dtype, out, epilogue, beta;
} te__gemm_key;

typedef struct te__gemm_plan {
    te__gemm_key key;
    int used, found;
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t a, b, d;
    cublasLtMatmulAlgo_t algo;
} te__gemm_plan;

typedef struct te__gemm_state {
    cublasLtHandle_t handle;
    void *workspace;
    te__gemm_plan plan[TE_GEMM_PLANS];
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
}

/* Create a context on a CUDA device (compute capability 8.0 or higher). Makes it the thread's current device. */
TE_API te_status te_context_create(te_context *ctx, int device, uint64_t seed) {
    static const te_target cuda = {"cuda", te__cuda_allocate, te__cuda_release, te__cuda_copy, te__cuda_fill,
                                   te__cuda_synchronize, te__cuda_close};
    if (!ctx) return TE_ERROR_NULL;
    memset(ctx, 0, sizeof *ctx);
    ctx->target = &cuda, ctx->device = device;
    TE_TRY(te__cuda_status(ctx, cudaSetDevice(device), "cudaSetDevice"));
    int major = 0;
    TE_TRY(te__cuda_status(ctx, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device"));
    TE_REQUIRE(major >= 8, ctx, TE_ERROR_DEVICE, "device %d has compute capability %d; 8.0 or higher is needed", device, major);
    TE_TRY(te__cuda_status(ctx, cudaDeviceGetAttribute(&ctx->processors, cudaDevAttrMultiProcessorCount, device), "device"));
    te__gemm_state *s = (te__gemm_state *)calloc(1, sizeof *s);
    TE_REQUIRE(s, ctx, TE_ERROR_MEMORY, "cannot allocate %zu bytes", sizeof *s);
    ctx->gemm = s;
    te_rng rng;
    rng.seed = seed, rng.offset = 0;
    te_status status = te__blas_status(ctx, cublasLtCreate(&s->handle), "cublasLtCreate");
    if (status == TE_OK) status = te_allocate(ctx, &s->workspace, TE_GEMM_WORKSPACE);
    if (status == TE_OK) status = te_allocate(ctx, (void **)&ctx->rng, sizeof rng);
    if (status == TE_OK) status = te_rng_set(&rng, ctx);
    if (status != TE_OK) {
        te__cuda_close(ctx);
        ctx->gemm = 0;
    }
    return status;
}

TE_API cudaDataType te__cuda_type(te_dtype t) { return t == TE_f32 ? CUDA_R_32F : t == TE_bf16 ? CUDA_R_16BF : CUDA_R_16F; }

TE_API void te__gemm_set(te__gemm_plan *p, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes) {
    (void)cublasLtMatmulDescSetAttribute(&p->operation, attribute, value, bytes);
}

/* Ask cuBLASLt once for this product. Row-major D = A B is column-major D^T = B^T A^T, so A and B change places. */
TE_API void te__gemm_make_plan(te__gemm_plan *p, const te_gemm *g, te__gemm_state *s) {
    static const cublasLtEpilogue_t epilogues[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_BIAS,
                                                   CUBLASLT_EPILOGUE_GELU_AUX_BIAS};
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

    cublasLtMatmulPreferenceOpaque_t preference;
    const size_t workspace = TE_GEMM_WORKSPACE;
    const uint32_t alignment = TE_ACCESS;
    (void)cublasLtMatmulPreferenceInit(&preference);
    (void)cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    (void)cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment, sizeof alignment);
    (void)cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignment, sizeof alignment);
    (void)cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment, sizeof alignment);
    (void)cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment, sizeof alignment);
    cublasLtMatmulHeuristicResult_t result;
    int n = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(s->handle, &p->operation, &p->a, &p->b, &p->d, &p->d, &preference, 1, &result, &n);
    p->found = status == CUBLAS_STATUS_SUCCESS && n > 0;
    if (p->found) p->algo = result.algo;
}

/* The plan for this product, made on first sight; null if the cache is full. */
TE_API te__gemm_plan *te__gemm_find_plan(const te_gemm *g, te_context *ctx) {
    te__gemm_state *s = (te__gemm_state *)ctx->gemm;
    te__gemm_key key;
    memset(&key, 0, sizeof key);
    key.m = g->m, key.n = g->n, key.k = g->k, key.trans_a = g->trans_a, key.trans_b = g->trans_b;
    key.dtype = g->dtype, key.out = g->out, key.epilogue = g->epilogue, key.beta = g->beta != 0;
    uint64_t hash = 14695981039346656037ull;
    const uint64_t words[] = {(uint64_t)g->m, (uint64_t)g->n, (uint64_t)g->k,
                              (uint64_t)(key.trans_a | key.trans_b << 1 | key.dtype << 2 | key.out << 5 | key.epilogue << 8 | key.beta << 12)};
    for (int i = 0; i < 4; i++) hash = (hash ^ words[i]) * 1099511628211ull, hash ^= hash >> 29;
    for (int i = 0; i < TE_GEMM_PLANS; i++) {
        te__gemm_plan *p = &s->plan[(hash + (uint64_t)i) % TE_GEMM_PLANS];
        if (!p->used) {
            p->used = 1, p->key = key;
            te__gemm_make_plan(p, g, s);
            return p;
        }
        if (!memcmp(&p->key, &key, sizeof key)) return p;
    }
    return 0;
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

TE_API te_status te_gemm_run(const te_gemm *g, te_context *ctx) {
    te__gemm_state *s = (te__gemm_state *)ctx->gemm;
    te__gemm_plan *p = te__gemm_find_plan(g, ctx);
    TE_REQUIRE(p, ctx, TE_ERROR_BLAS, "more than %d different matrix products in one context", (int)TE_GEMM_PLANS);
    TE_REQUIRE(p->found, ctx, TE_ERROR_BLAS, "cuBLASLt has no algorithm for the %s product %lld x %lld x %lld", te_dtype_name(g->dtype),
               (long long)g->m, (long long)g->n, (long long)g->k);
    if (g->epilogue != TE_EPILOGUE_NONE) te__gemm_set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof g->bias);
    if (g->epilogue == TE_EPILOGUE_GELU_AUX_BIAS) te__gemm_set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &g->aux, sizeof g->aux);
    return te__blas_status(ctx,
                           cublasLtMatmul(s->handle, &p->operation, &g->alpha, g->b, &p->a, g->a, &p->b, &g->beta,
                                          g->beta != 0 ? g->c : g->d, &p->d, g->d, &p->d, &p->algo, s->workspace, TE_GEMM_WORKSPACE,
                                          (cudaStream_t)ctx->stream),
                           "cublasLtMatmul");
}

#endif
