/* gemm_host.h -- te_gemm_run on a CPU: CBLAS where there is one (-DTE_CBLAS), a plain blocked loop where not.
 * Included by gemm.h. 16-bit operands are widened to float in g->scratch; the epilogues are left to the caller's
 * own kernels (te_gemm_supports says so).
 */
#ifndef TE_GEMM_HOST_H
#define TE_GEMM_HOST_H

#include "../core/target.h" /* TE_KERNEL */
#include "gemm_scaled_host.h" /* te__scaled_run */
#include "gemm_types.h"       /* te_gemm */

#ifdef TE_CBLAS
#include <cblas.h> /* cblas_sgemm */
#endif

TE_API int te_gemm_supports(const te_gemm *g, te_context *ctx) {
    (void)ctx;
    return g->epilogue == TE_EPILOGUE_NONE;
}
/* Floats of scratch that te_gemm_run wants: none where A, B and D are f32. */
TE_API size_t te_gemm_scratch(const te_gemm *g) {
    size_t n = 0;
    if (te_gemm_is_fine_grained(g)) return 0;
    if (te__gemm_a(g) != TE_f32) n += (size_t)g->m * (size_t)g->k + (size_t)g->k * (size_t)g->n;
    if (g->out != TE_f32) n += (size_t)g->m * (size_t)g->n;
    return n;
}

typedef struct te__widen_args { float *y; const void *x; int64_t n; te_dtype dtype; } te__widen_args;
enum { TE__WIDEN_BLOCK = 1 << 14 };
TE_FN void te__widen_body(const te__widen_args *a, te_block b) {
    const int64_t from = (int64_t)b.x * TE__WIDEN_BLOCK, to = te_min(a->n, from + TE__WIDEN_BLOCK);
    if (a->dtype == TE_bf16)
        for (int64_t i = from; i < to; i++) a->y[i] = te_load(a->x, i, TE_bf16);
    else if (a->dtype == TE_e4m3)
        for (int64_t i = from; i < to; i++) a->y[i] = te_load(a->x, i, TE_e4m3);
    else if (a->dtype == TE_e5m2)
        for (int64_t i = from; i < to; i++) a->y[i] = te_load(a->x, i, TE_e5m2);
    else
        for (int64_t i = from; i < to; i++) a->y[i] = te_load(a->x, i, TE_f16);
}
TE_KERNEL(te__widen, 1, te__widen_args, te__widen_body(te_args, te_at))
TE_API float *te__widened(te_context *ctx, float **scratch, const void *x, int64_t n, te_dtype dtype) {
    te__widen_args a;
    a.y = *scratch, a.x = x, a.n = n, a.dtype = dtype;
    (void)te__widen_launch(ctx, te_grid_of(te_ceil_div(n, TE__WIDEN_BLOCK), 1), &a);
    *scratch += n;
    return a.y;
}

typedef struct te__narrow_args { const te_gemm *g; const float *product; } te__narrow_args;
TE_FN void te__narrow_body(const te__narrow_args *a, te_block b) {
    const te_gemm *g = a->g;
    for (int64_t i = b.x * g->n; i < (b.x + 1) * g->n; i++)
        te_store(g->d, i, a->product[i] + (g->beta != 0 ? g->beta * te_load(g->c, i, g->out) : 0.0f), g->out);
}
TE_KERNEL(te__narrow, 1, te__narrow_args, te__narrow_body(te_args, te_at))

#ifndef TE_CBLAS
/* The plain loop: tiles of D go to threads; a tile packs its slices of A and B and keeps 12 x 16 sums in registers (6 x
 * 16 where there are fewer of them). Vectors of 16 are the compiler's own: it makes what the machine has of them. */
#ifdef __AVX512F__
enum { TE__REG_M = 12 };
#else
enum { TE__REG_M = 6 };
#endif
enum { TE__TILE_M = 96, TE__TILE_N = 64, TE__TILE_K = 256, TE__REG_N = 16 };
typedef float te__v16 __attribute__((vector_size(64), aligned(4)));
typedef struct te__sgemm_args {
    int64_t m, n, k;
    int trans_a, trans_b;
    float alpha, beta;
    const float *a, *b;
    float *c;
} te__sgemm_args;

TE_FN void te__sgemm_micro(te__v16 sum[TE__REG_M], const float *pa, const float *pb, int kk) {
    te__v16 s[TE__REG_M];
    for (int i = 0; i < TE__REG_M; i++) s[i] = sum[i];
    for (int p = 0; p < kk; p++) {
        const te__v16 b = *(const te__v16 *)(const void *)(pb + p * TE__REG_N);
        for (int i = 0; i < TE__REG_M; i++) s[i] += pa[p * TE__REG_M + i] * b;
    }
    for (int i = 0; i < TE__REG_M; i++) sum[i] = s[i];
}
TE_API void te__sgemm_tile(const te__sgemm_args *g, te_block b) {
    float pa[TE__TILE_M * TE__TILE_K], pb[TE__TILE_N * TE__TILE_K];
    const int64_t m0 = (int64_t)b.x * TE__TILE_M, n0 = (int64_t)b.y * TE__TILE_N;
    for (int64_t k0 = 0; k0 < te_max(g->k, 1); k0 += TE__TILE_K) {
        const int kk = (int)te_min(TE__TILE_K, g->k - k0);
        for (int i = 0; i < TE__TILE_M; i++)
            for (int p = 0; p < kk; p++)
                pa[(i / TE__REG_M) * TE__REG_M * kk + p * TE__REG_M + i % TE__REG_M] =
                    m0 + i >= g->m ? 0.0f
                    : g->trans_a   ? g->a[(k0 + p) * g->m + m0 + i]
                                   : g->a[(m0 + i) * g->k + k0 + p];
        for (int j = 0; j < TE__TILE_N; j++)
            for (int p = 0; p < kk; p++)
                pb[(j / TE__REG_N) * TE__REG_N * kk + p * TE__REG_N + j % TE__REG_N] =
                    n0 + j >= g->n ? 0.0f
                    : g->trans_b   ? g->b[(n0 + j) * g->k + k0 + p]
                                   : g->b[(k0 + p) * g->n + n0 + j];
        for (int i = 0; i < TE__TILE_M && m0 + i < g->m; i += TE__REG_M)
            for (int j = 0; j < TE__TILE_N && n0 + j < g->n; j += TE__REG_N) {
                te__v16 sum[TE__REG_M];
                memset(sum, 0, sizeof sum);
                te__sgemm_micro(sum, pa + i * kk, pb + j * kk, kk);
                for (int r = 0; r < TE__REG_M && m0 + i + r < g->m; r++)
                    for (int s = 0; s < TE__REG_N && n0 + j + s < g->n; s++) {
                        float *c = g->c + (m0 + i + r) * g->n + n0 + j + s;
                        *c = g->alpha * sum[r][s] + (k0 ? *c : g->beta != 0 ? g->beta * *c : 0.0f);
                    }
            }
    }
}
TE_KERNEL(te__sgemm, 1, te__sgemm_args, te__sgemm_tile(te_args, te_at))
#endif

TE_API te_status te__sgemm_run(const te_gemm *g, const float *a, const float *b, float beta, float *c,
                               te_context *ctx) {
#ifdef TE_CBLAS
    (void)ctx;
    cblas_sgemm(CblasRowMajor, g->trans_a ? CblasTrans : CblasNoTrans, g->trans_b ? CblasTrans : CblasNoTrans,
                (int)g->m, (int)g->n, (int)g->k, g->alpha, a, (int)(g->trans_a ? g->m : g->k), b,
                (int)(g->trans_b ? g->k : g->n), beta, c, (int)g->n);
    return TE_OK;
#else
    te__sgemm_args s;
    s.m = g->m, s.n = g->n, s.k = g->k, s.trans_a = g->trans_a, s.trans_b = g->trans_b;
    s.alpha = g->alpha, s.beta = beta, s.a = a, s.b = b, s.c = c;
    return te__sgemm_launch(ctx, te_grid_of(te_ceil_div(g->m, TE__TILE_M), te_ceil_div(g->n, TE__TILE_N)), &s);
#endif
}

TE_API te_status te_gemm_run(const te_gemm *product, te_context *ctx) {
    TE_TRY(te__gemm_check_run(product, "te_gemm_run", ctx));
    TE_REQUIRE(te_gemm_supports(product, ctx), ctx, TE_ERROR_VALUE, "te_gemm_run: epilogue %s on the host",
               te_epilogue_name(product->epilogue));
    TE_REQUIRE(product->scratch || !te_gemm_scratch(product), ctx, TE_ERROR_NULL,
               "te_gemm_run: scratch is null, te_gemm_scratch says how many floats it has");
    TE_TRY(te__gemm_check_tiles(product, ctx));
    if (te_gemm_is_fine_grained(product)) return te__scaled_run(product, ctx);
    te_gemm scaled = *product, *g = &scaled;
    float *scratch = g->scratch;
    const float *a = (const float *)g->a, *b = (const float *)g->b;
    if (g->a_fp8.inverse && te_gemm_is_fp8(g)) g->alpha *= *g->a_fp8.inverse;
    if (g->b_fp8.inverse && te_gemm_is_fp8(g)) g->alpha *= *g->b_fp8.inverse;
    if (te__gemm_a(g) != TE_f32) {
        a = te__widened(ctx, &scratch, g->a, g->m * g->k, te__gemm_a(g));
        b = te__widened(ctx, &scratch, g->b, g->k * g->n, te__gemm_b(g));
    }
    if (g->out == TE_f32) {
        if (g->beta != 0 && g->c != g->d) memcpy(g->d, g->c, (size_t)(g->m * g->n) * sizeof(float));
        return te__sgemm_run(g, a, b, g->beta, (float *)g->d, ctx);
    }
    TE_TRY(te__sgemm_run(g, a, b, 0.0f, scratch, ctx));
    te__narrow_args n;
    n.g = g, n.product = scratch;
    return te__narrow_launch(ctx, te_grid_of(g->m, 1), &n);
}

/* ---- for gemm_tune.h: there is nothing to tune ------------------------------------------------------------------- */

typedef te_status (*te__race_fn)(void *arg, int racer, int lap, te_context *ctx);
enum { TE__ROUNDS = 1 };
TE_API te_status te__race(int64_t *ns, int *winner, int count, int laps, int rounds, te__race_fn run, void *arg,
                          te_context *ctx) {
    (void)ns, (void)count, (void)laps, (void)rounds, (void)run, (void)arg, (void)ctx;
    *winner = -1;
    return TE_OK;
}
TE_API int te__gemm_chooses(const te_context *ctx) { return (void)ctx, 0; }
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
TE_API void te__gemm_keep(const te_gemm_tuned *t, te_context *ctx) { (void)t, (void)ctx; }
TE_API int te__gemm_room(te_context *ctx) { return (void)ctx, (int)TE_GEMM_PLANS; }
TE_API te_gemm_choice *te__gemm_choices(int **count, te_context *ctx) {
    return (void)ctx, *count = 0, (te_gemm_choice *)0;
}
#define TE_GEMM_RUN_OF(T, trains) te_gemm_run

#endif
