/* gemm_cublaslt.h -- GEMMs by cuBLASLt: descriptors and algorithms, cached per shape in the context ("plans").
 *
 * cuBLASLt's matrices are column-major, so what it calls A is this library's B, and its B is this library's A:
 * row-major D = A B is column-major D^T = B^T A^T. A plan holds the descriptor, the layouts and the algorithm of one
 * product. A call looks up its plan, points the descriptor at the bias, aux and scales of the call, and enqueues the
 * product. The algorithm is the one that cuBLASLt's heuristic proposes first or, if autotuning has timed the proposals,
 * the fastest one (gemm_autotune.h). In a build without cuBLASLt (TE_NO_CUBLASLT) gemm_fallback.h takes the place of
 * this file.
 */
/* target: cuda */
#ifndef TE_GEMM_CUBLASLT_H
#define TE_GEMM_CUBLASLT_H

#include <cublasLt.h> /* cublasLtMatmul */
#include <stdlib.h>   /* calloc */

#include "../gemm_types.h" /* te_gemm, te__gemm_allocate */

enum {
    TE_HAS_CUBLASLT = 1,
    TE__GEMM_SLOTS = 2 * TE_GEMM_MAX_PLANS, /* number of slots of the hash table of plans, which is at most half full */
    TE__GEMM_MAX_RESULTS = 32               /* the largest number of algorithms that tuning requests from cuBLASLt's
                                             * heuristic for one product */
};

/* The properties of a product (GEMM) on which its plan depends, packed into four words, as a key of the hash table. */
typedef struct te__gemm_key { uint64_t word[4]; } te__gemm_key;

typedef struct te__gemm_plan {
    te__gemm_key key;
    /* found: 1 if cuBLASLt has an algorithm for this product. timed: 1 if the product's algorithms were timed, 0 if not
     * yet, -1 if they cannot be timed */
    int found, timed;
    /* bias, aux, a_inverse and b_inverse are the pointers that the descriptor `operation` holds at present; the
     * descriptor is changed only if a call passes other pointers */
    const void *bias, *aux;
    const float *a_inverse, *b_inverse;
    cublasLtMatmulAlgo_t algo;
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t a, b, d; /* layouts of matrices in cuBLASLt's terms: its A is this library's B, and its
                                           * B is this library's A */
    te_gemm_tuned product;
} te__gemm_plan;

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(((te_gemm_tuned *)0)->algo), "a tuning file holds eight words");

/* The state of a context's GEMMs, to which te_context.gemm points. */
typedef struct te__gemm_state {
    cublasLtHandle_t handle;
    void *workspace;
    /* hash table with open addressing; a slot holds 1 + the index of a plan, or 0 if the slot is free */
    uint16_t slot[TE__GEMM_SLOTS];
    int plans, choices;
    /* the plans, in the order of their first use; the last element is for the temporary plan that is used when the
     * cache is full */
    te__gemm_plan plan[TE_GEMM_MAX_PLANS + 1];
    te_gemm_choice choice[TE_GEMM_MAX_CHOICES];
} te__gemm_state;

TE_API te_status te__blas_status(te_context *ctx, cublasStatus_t s, const char *what) {
    return s == CUBLAS_STATUS_SUCCESS ? TE_OK : te_fail(ctx, TE_ERROR_BLAS, "%s: %s", what, cublasLtGetStatusString(s));
}

/* ---- the state --------------------------------------------------------------------------------------------------- */

TE_API void te__gemm_close(te_context *ctx) {
    te__gemm_state *s = (te__gemm_state *)ctx->gemm;
    if (s && s->handle) (void)cublasLtDestroy(s->handle);
    if (s) te_release(ctx, s->workspace);
    free(s);
    ctx->gemm = 0;
}
/* Creates cuBLASLt's handle and the workspace. Like te__gemm_allocate, this function may be called while a stream is
 * being captured. */
TE_API te_status te__gemm_create(te__gemm_state *s, te_context *ctx) {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    te_status status = te__blas_status(ctx, cublasLtCreate(&s->handle), "cublasLtCreate");
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    return status == TE_OK ? te__gemm_allocate(&s->workspace, ctx) : status;
}
/* Creates the state of the GEMMs if the context has none. The first call comes before any kernel is launched, namely
 * when the size of a workspace is computed. */
TE_API te_status te__gemm_open(te_context *ctx) {
    if (ctx->gemm) return TE_OK;
    te__gemm_state *s = (te__gemm_state *)calloc(1, sizeof *s);
    TE_REQUIRE(s, ctx, TE_ERROR_MEMORY, "cannot allocate %zu bytes", sizeof *s);
    ctx->gemm = s, ctx->gemm_close = te__gemm_close;
    const te_status status = te__gemm_create(s, ctx);
    if (status != TE_OK) te__gemm_close(ctx);
    return status;
}
/* Return the state of the context's GEMMs, which is created if necessary; null if it cannot be created. */
TE_API te__gemm_state *te__gemm_state_of(te_context *ctx) {
    return te__gemm_open(ctx) == TE_OK ? (te__gemm_state *)ctx->gemm : 0;
}

/* ---- descriptors ------------------------------------------------------------------------------------------------- */

TE_API cudaDataType te__cuda_type(te_dtype t) {
    static const cudaDataType types[] = {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2};
    return types[t];
}
TE_API int32_t te__cuda_scale_mode(te_scaling s) {
    static const int32_t modes[] = {CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
                                    CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
                                    CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                                    CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F};
    return modes[s];
}
TE_API void te__gemm_set_attribute(te__gemm_plan *p, cublasLtMatmulDescAttributes_t attribute, const void *value,
                                   size_t bytes) {
    (void)cublasLtMatmulDescSetAttribute(&p->operation, attribute, value, bytes);
}
/* Point the plan's descriptor at the inverse scales of the operands A and B of this call. */
TE_API void te__gemm_set_scales(te__gemm_plan *p, const float *a, const float *b) {
    if (a != p->a_inverse)
        te__gemm_set_attribute(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &a, sizeof a), p->a_inverse = a;
    if (b != p->b_inverse)
        te__gemm_set_attribute(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &b, sizeof b), p->b_inverse = b;
}
/* Point the plan's descriptor at the tensors that the epilogue reads (bias) and writes (aux) in this call. */
TE_API void te__gemm_set_epilogue(te__gemm_plan *p, const void *bias, const void *aux) {
    if (p->product.epilogue == TE_EPILOGUE_NONE) return;
    if (bias != p->bias)
        te__gemm_set_attribute(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias), p->bias = bias;
    if (p->product.epilogue != TE_EPILOGUE_GELU_AUX_BIAS || aux == p->aux) return;
    te__gemm_set_attribute(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux), p->aux = aux;
}
/* Set the plan's descriptor and matrix layouts for the GEMM that p->product describes. */
TE_API void te__gemm_describe(te__gemm_plan *p) {
    static const cublasLtEpilogue_t epilogues[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                                                   CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS};
    const te_gemm_tuned *g = &p->product;
    const cudaDataType in = te__cuda_type(g->dtype), out = te__cuda_type(g->out);
    const int8_t fast = (int8_t)g->fast;
    const cublasOperation_t ta = g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, tb = g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    (void)cublasLtMatmulDescInit(&p->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    te__gemm_set_attribute(p, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    te__gemm_set_attribute(p, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
    te__gemm_set_attribute(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogues[g->epilogue], sizeof epilogues[0]);
    if (g->epilogue != TE_EPILOGUE_NONE)
        te__gemm_set_attribute(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &in, sizeof in);
    if (g->epilogue == TE_EPILOGUE_GELU_AUX_BIAS)
        te__gemm_set_attribute(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &g->n, sizeof g->n);
    if (fast) te__gemm_set_attribute(p, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
    if (g->a_scaling > TE_SCALING_TENSORWISE) {
        const int32_t of_a = te__cuda_scale_mode(g->a_scaling), of_b = te__cuda_scale_mode(g->b_scaling);
        te__gemm_set_attribute(p, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &of_a, sizeof of_a);
        te__gemm_set_attribute(p, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &of_b, sizeof of_b);
    }
    (void)cublasLtMatrixLayoutInit(&p->a, te__cuda_type(g->b), (uint64_t)(g->trans_b ? g->k : g->n),
                                   (uint64_t)(g->trans_b ? g->n : g->k), g->trans_b ? g->k : g->n);
    (void)cublasLtMatrixLayoutInit(&p->b, te__cuda_type(g->a), (uint64_t)(g->trans_a ? g->m : g->k),
                                   (uint64_t)(g->trans_a ? g->k : g->m), g->trans_a ? g->m : g->k);
    (void)cublasLtMatrixLayoutInit(&p->d, out, (uint64_t)g->n, (uint64_t)g->m, g->n);
}

TE_API void te__gemm_prefer(cublasLtMatmulPreferenceOpaque_t *preference,
                            cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t bytes) {
    (void)cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, bytes);
}
/* Asks cuBLASLt's heuristic for up to `count` algorithms, and returns how many it has proposed. Results must be bitwise
 * reproducible, so algorithms that split k must add the partial sums in float and in a fixed order: algorithms that add
 * them in place or in the output's dtype are excluded. */
TE_API int te__gemm_heuristic(cublasLtMatmulHeuristicResult_t *result, int count, te__gemm_plan *p,
                              te__gemm_state *s) {
    cublasLtMatmulPreferenceOpaque_t preference;
    const size_t workspace = TE_GEMM_WORKSPACE;
    const uint32_t alignment = TE_ACCESS, reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    /* a placeholder for the arrays of scales: any valid address will do, but the heuristic rejects null */
    const float *const any = (const float *)s->workspace;
    if (p->product.a_scaling > TE_SCALING_TENSORWISE && !p->a_inverse) te__gemm_set_scales(p, any, any);
    (void)cublasLtMatmulPreferenceInit(&preference);
    te__gemm_prefer(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    te__gemm_prefer(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction);
    te__gemm_prefer(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment, sizeof alignment);
    te__gemm_prefer(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignment, sizeof alignment);
    te__gemm_prefer(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment, sizeof alignment);
    te__gemm_prefer(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment, sizeof alignment);
    int n = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(s->handle, &p->operation, &p->a, &p->b, &p->d, &p->d,
                                                                 &preference, count, result, &n);
    return status == CUBLAS_STATUS_SUCCESS ? n : 0;
}

/* ---- the cache of plans ------------------------------------------------------------------------------------------ */

TE_API te__gemm_key te__gemm_key_of(const te_gemm_tuned *t) {
    te__gemm_key key;
    key.word[0] = (uint64_t)t->m, key.word[1] = (uint64_t)t->n, key.word[2] = (uint64_t)t->k;
    key.word[3] = (uint64_t)t->trans_a | (uint64_t)t->trans_b << 1 | (uint64_t)t->beta << 2 | (uint64_t)t->fast << 3 |
                  (uint64_t)t->dtype << 8 | (uint64_t)t->out << 16 | (uint64_t)t->epilogue << 24 |
                  (uint64_t)t->a << 32 | (uint64_t)t->b << 40 | (uint64_t)t->a_scaling << 48 |
                  (uint64_t)t->b_scaling << 56;
    return key;
}
/* Returns the slot, in the hash table, of the plan with this key or, if there is no such plan, the free slot for it. A
 * slot holds 1 + the plan's index in s->plan, or 0 if it is free. */
TE_API uint16_t *te__gemm_slot(const te__gemm_key *key, te__gemm_state *s) {
    const uint64_t *w = key->word;
    uint64_t hash =
        (((w[0] * 0x9E3779B97F4A7C15ull ^ w[1]) * 0x9E3779B97F4A7C15ull ^ w[2]) * 0x9E3779B97F4A7C15ull ^ w[3]) *
        0x9E3779B97F4A7C15ull;
    for (hash >>= 32;; hash++) {
        uint16_t *at = &s->slot[hash % TE__GEMM_SLOTS];
        if (!*at || !memcmp(&s->plan[*at - 1].key, key, sizeof *key)) return at;
    }
}
TE_API uint16_t *te__gemm_slot_of(const te_gemm_tuned *t, te__gemm_key *key, te__gemm_state *s) {
    *key = te__gemm_key_of(t);
    return te__gemm_slot(key, s);
}
TE_API void te__gemm_init_plan(te__gemm_plan *p, const te__gemm_key *key, const te_gemm_tuned *product) {
    memset(p, 0, sizeof *p);
    p->key = *key, p->product = *product;
    te__gemm_describe(p);
}
TE_API int te__gemm_count_untimed(const te__gemm_state *s) {
    int n = 0;
    for (int i = 0; i < s->plans; i++) n += !s->plan[i].timed;
    return n;
}
/* Makes space in a full cache. (A program whose number of rows varies fills the cache.) Plans that were not timed are
 * dropped: if they are needed again, the heuristic chooses the same algorithms. Plans that were timed stay: if they
 * were dropped, the heuristic might later choose another algorithm than tuning has chosen, and the results would no
 * longer be bitwise identical. */
TE_API void te__gemm_evict_untimed(te__gemm_state *s) {
    const int count = s->plans;
    if (!te__gemm_count_untimed(s)) return;
    memset(s->slot, 0, sizeof s->slot);
    s->plans = 0;
    for (int i = 0; i < count; i++) {
        const te__gemm_plan old = s->plan[i];
        te__gemm_plan *p = &s->plan[s->plans];
        if (!old.timed) continue;
        te__gemm_init_plan(p, &old.key, &old.product);
        p->found = old.found, p->timed = old.timed, p->algo = old.algo;
        *te__gemm_slot(&p->key, s) = (uint16_t)++s->plans;
    }
}
/* Creates a plan with its descriptor. If the cache is full, plans that were not timed are evicted. If it is full even
 * then, the new plan is temporary: it is valid only until the next plan is created, and is never timed. */
TE_API te__gemm_plan *te__gemm_new_plan(const te__gemm_key *key, const te_gemm_tuned *product, te__gemm_state *s) {
    if (s->plans == TE_GEMM_MAX_PLANS) te__gemm_evict_untimed(s);
    const int full = s->plans == TE_GEMM_MAX_PLANS;
    te__gemm_plan *p = &s->plan[s->plans];
    te__gemm_init_plan(p, key, product);
    p->timed = full ? -1 : 0;
    if (!full) *te__gemm_slot(key, s) = (uint16_t)++s->plans;
    return p;
}
/* Returns the plan (descriptors and algorithm) for this product, which is created at the first call for the product.
 * Returns null if the context's state cannot be created. */
TE_API te__gemm_plan *te__gemm_find_plan(const te_gemm *g, te_context *ctx) {
    te__gemm_state *s = te__gemm_state_of(ctx);
    if (!s) return 0;
    const te_gemm_tuned t = te__gemm_tuned_of(g);
    const te__gemm_key key = te__gemm_key_of(&t);
    const uint16_t slot = *te__gemm_slot(&key, s);
    te__gemm_plan *last = &s->plan[TE_GEMM_MAX_PLANS];
    if (slot || (last->found && !memcmp(&last->key, &key, sizeof key))) return slot ? &s->plan[slot - 1] : last;
    te__gemm_plan *p = te__gemm_new_plan(&key, &t, s);
    cublasLtMatmulHeuristicResult_t result;
    if (te__gemm_heuristic(&result, 1, p, s)) p->found = 1, p->algo = result.algo;
    return p;
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

/* Returns whether the algorithms that cuBLASLt proposes for this product were timed already, or will be timed because
 * tuning is on. */
TE_API int te__gemm_is_timed(const te_gemm *g, te_context *ctx) {
    te__gemm_state *s = te__gemm_state_of(ctx);
    if (!s) return 0;
    const te_gemm_tuned t = te__gemm_tuned_of(g);
    const te__gemm_key key = te__gemm_key_of(&t);
    const uint16_t slot = *te__gemm_slot(&key, s);
    return ctx->gemm_tune || (slot && s->plan[slot - 1].timed > 0);
}
/* Returns whether te_gemm_run supports this product with its epilogue. In f32 the gelu epilogues are left to a
 * pointwise kernel, because cuBLASLt's approximation of tanh is too coarse for an accuracy of 1e-5. */
TE_API int te__gemm_supports(const te_gemm *g, te_context *ctx) {
    /* for a quantized B, gemm_quantized_cuda.h runs the GEMM */
    if (g->b_quantized) return g->epilogue <= TE_EPILOGUE_BIAS;
    if (te__gemm_has_scale_arrays(g)) return g->epilogue == TE_EPILOGUE_NONE;
    if (g->epilogue >= TE_EPILOGUE_GELU_BIAS && (g->dtype == TE_f32 || g->n % TE_VECTOR)) return 0;
    const te__gemm_plan *p = te__gemm_find_plan(g, ctx);
    return p && p->found;
}
/* Returns whether the result of te_gemm_run may differ, in its last bit, from the result of the same GEMM with separate
 * C and D. If C is D, cuBLASLt may run another kernel of the same algorithm: it rounds the product to D's format, then
 * adds C and rounds again, whereas with separate C and D the sum is rounded once (cuBLASLt 13.1 on an H200, bf16). */
TE_API int te__gemm_depends_on_place(const te_gemm *g) { return g->beta != 0 && g->c == g->d; }
/* Return the number of floats of scratch memory that te_gemm_run needs: none with cuBLASLt. */
TE_API size_t te__gemm_scratch(const te_gemm *g) {
    (void)g;
    return 0;
}

typedef struct te__gemm_args { te_gemm g; cublasLtMatmulAlgo_t algo; } te__gemm_args;
TE_API te_status te__gemm_call(const void *args, te_context *ctx) {
    const te__gemm_args *a = (const te__gemm_args *)args;
    const te_gemm *g = &a->g;
    te__gemm_state *s = (te__gemm_state *)ctx->gemm;
    te__gemm_plan *p = te__gemm_find_plan(g, ctx);
    te__gemm_set_epilogue(p, g->bias, g->aux);
    if (te__gemm_is_fp8(g)) te__gemm_set_scales(p, g->a_fp8.inverse, g->b_fp8.inverse);
    return te__blas_status(ctx,
                           cublasLtMatmul(s->handle, &p->operation, &g->alpha, g->b, &p->a, g->a, &p->b, &g->beta,
                                          g->beta != 0 ? g->c : g->d, &p->d, g->d, &p->d, &a->algo, s->workspace,
                                          TE_GEMM_WORKSPACE, (cudaStream_t)ctx->stream),
                           "cublasLtMatmul");
}
/* Enqueues the product with the algorithm of its plan. */
TE_IF_USED TE_API te_status te__gemm_launch(const te_gemm *g, const te__gemm_plan *p, te_context *ctx) {
    te__gemm_args a;
    memset(&a, 0, sizeof a);
    a.g = *g, a.algo = p->algo;
    te__small_fills_by_kernels(ctx);
    return te__cuda_call(ctx, te__gemm_call, &a, sizeof a);
}

/* ---- for the tuning file ----------------------------------------------------------------------------------------- */

TE_API size_t te__gemm_library_version(void) { return cublasLtGetVersion(); }
/* Returns the first timed product among the cached plans (s->plan) from index *at on, and sets *at to the index after
 * that plan. Returns null if no more plans were timed. */
TE_API const te_gemm_tuned *te__gemm_next_tuned(int *at, te_context *ctx) {
    te__gemm_state *s = te__gemm_state_of(ctx);
    while (s && *at < s->plans) {
        te__gemm_plan *p = &s->plan[(*at)++];
        if (p->timed > 0) return memcpy(p->product.algo, &p->algo, sizeof p->algo), &p->product;
    }
    return 0;
}
/* Returns whether an algorithm from a tuning file may be used. The algorithm may be used only if cuBLASLt itself
 * proposes it for this product on this device: the data of an algorithm is opaque, and cuBLASLt may crash on data that
 * it did not make. Sets *added to 1 if the cache does not have the product yet, else to 0. */
TE_API int te__gemm_accepts(const te_gemm_tuned *t, int *added, te_context *ctx) {
    te__gemm_state *s = te__gemm_state_of(ctx);
    te__gemm_plan p;
    if (!s) return 0;
    memset(&p, 0, sizeof p);
    p.product = *t;
    *added = !*te__gemm_slot_of(t, &p.key, s);
    te__gemm_describe(&p);
    cublasLtMatmulHeuristicResult_t result[TE__GEMM_MAX_RESULTS];
    /* Ask the heuristic twice, once for one algorithm and once for TE__GEMM_MAX_RESULTS, because the algorithm that is
     * returned to the first request may be missing from the longer list */
    static const int counts[] = {1, TE__GEMM_MAX_RESULTS};
    for (int c = 0; c < 2; c++) {
        const int n = te__gemm_heuristic(result, counts[c], &p, s);
        for (int i = 0; i < n; i++)
            if (result[i].state == CUBLAS_STATUS_SUCCESS && !memcmp(&result[i].algo, t->algo, sizeof t->algo)) return 1;
    }
    return 0;
}
/* Stores an algorithm from a tuning file in the product's cached plan. Creates the plan if it does not exist. The
 * caller has checked by te__gemm_free_plans that there is space. */
TE_API void te__gemm_store_tuned(const te_gemm_tuned *t, te_context *ctx) {
    te__gemm_state *s = (te__gemm_state *)ctx->gemm;
    te__gemm_key key;
    const uint16_t slot = *te__gemm_slot_of(t, &key, s);
    te__gemm_plan *p = slot ? &s->plan[slot - 1] : te__gemm_new_plan(&key, t, s);
    p->product = *t, p->found = p->timed = 1;
    memcpy(&p->algo, t->algo, sizeof p->algo);
}
/* Return the number of products that can still be added to the cache of plans if all untimed plans are evicted. */
TE_API int te__gemm_free_plans(te_context *ctx) {
    const te__gemm_state *s = te__gemm_state_of(ctx);
    return s ? TE_GEMM_MAX_PLANS - s->plans + te__gemm_count_untimed(s) : 0;
}

#endif
