/* gemm_host.h -- te_gemm_run on a CPU: by a CBLAS library in a build with -DTE_CBLAS, else by a blocked loop. GEMMs of
 * at most TE__SKINNY_M rows, as in decoding, have a separate loop, the "skinny" loop.
 *
 * All of these loops multiply in f32. Operands of other dtypes are first widened to float in g->scratch, and the result
 * is rounded at the end. The skinny loop widens the weight in registers instead, so that it reads the weight from
 * memory once and stores no copy of it. te__gemm_supports returns 0 for GEMMs with an epilogue, so that pointwise
 * kernels compute the epilogue's ops.
 *
 * FP8 operands with rowwise or blockwise scales have a separate loop, which is also the reference that the GPU's
 * kernels are tested against. With blockwise scales the products of each 128 elements of k are summed in float, this
 * sum is multiplied by the scales of both operands, and the scaled sums are added in float. With rowwise scales the sum
 * over all of k is multiplied by the scales. (cuBLASLt adds the products of the 128 elements in another order.)
 *
 * The results of the library's own loops do not depend on the number of threads. The results of a CBLAS library may:
 * OpenBLAS adds up a sum in another order if it divides k among more threads. So with -DTE_CBLAS two runs have the same
 * bits only if both have the same number of threads.
 */
#ifndef TE_GEMM_HOST_H
#define TE_GEMM_HOST_H

#include "../../core/target.h" /* TE_KERNEL */
#include "../gemm_types.h"     /* te_gemm, te_scale_at */

#ifdef __aarch64__
#include <arm_neon.h> /* vfmaq_f32 */
#endif
#ifdef TE_CBLAS
#include <cblas.h> /* cblas_sgemm */
#endif

TE_API int te__gemm_supports(const te_gemm *g, te_context *ctx) {
    (void)ctx;
    return g->epilogue == TE_EPILOGUE_NONE;
}
enum { TE__SKINNY_M = 8 };
/* Returns whether the skinny loop computes the product. The skinny loop does so if D has at most TE__SKINNY_M rows, B
 * is transposed (as in x weight^T), and the operands are not FP8; otherwise the blocked loop computes it. The two loops
 * add up the terms of a sum in different orders. A program whose rows must be bitwise identical in batches of any size
 * is compiled with -DTE_BATCH_INVARIANT, which leaves the skinny loop out. */
TE_API int te__gemm_is_skinny(const te_gemm *g) {
#ifdef TE_BATCH_INVARIANT
    const int is_allowed = 0;
#else
    const int is_allowed = 1;
#endif
    return is_allowed && g->m <= TE__SKINNY_M && !g->trans_a && g->trans_b && !te__gemm_is_fp8(g);
}
/* Returns whether te_gemm_run may round differently if C and D are the same matrix than if they are two matrices.
 * Always 0 here, because the host rounds the same way in both cases; cuBLASLt may not. */
TE_API int te__gemm_depends_on_place(const te_gemm *g) { return (void)g, 0; }
/* Return the number of floats of g->scratch that te_gemm_run needs: 0 if A, B and D are f32. */
TE_API size_t te__gemm_scratch(const te_gemm *g) {
    size_t n = 0;
    if (te__gemm_has_scale_arrays(g)) return 0;
    if (te__gemm_is_skinny(g)) return g->dtype == TE_f32 ? 0 : (size_t)g->m * (size_t)g->k;
    if (te__gemm_a_dtype(g) != TE_f32) n += (size_t)g->m * (size_t)g->k + (size_t)g->k * (size_t)g->n;
    if (g->out != TE_f32) n += (size_t)g->m * (size_t)g->n;
    return n;
}

/* ---- widening the operands, rounding the result ------------------------------------------------------------------ */

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
/* Converts the n elements of x to floats and stores the floats at *scratch; advances *scratch past the floats, and
 * returns their address. */
TE_API float *te__widened(te_context *ctx, float **scratch, const void *x, int64_t n, te_dtype dtype) {
    te__widen_args a;
    a.y = *scratch, a.x = x, a.n = n, a.dtype = dtype;
    (void)te__widen_launch(ctx, te__grid_of(te_ceil_div(n, TE__WIDEN_BLOCK), 1), &a);
    *scratch += n;
    return a.y;
}

/* Compute D = `product` + beta C, rounded to D's dtype, where `product` is alpha op(A) op(B) in f32. Each block
 * computes one row of D. */
typedef struct te__round_args { const te_gemm *g; const float *product; } te__round_args;
TE_FN void te__round_body(const te__round_args *a, te_block b) {
    const te_gemm *g = a->g;
    for (int64_t i = b.x * g->n; i < (b.x + 1) * g->n; i++)
        te_store(g->d, i, a->product[i] + (g->beta != 0 ? g->beta * te_load(g->c, i, g->out) : 0.0f), g->out);
}
TE_KERNEL(te__round, 1, te__round_args, te__round_body(te_args, te_at))

/* ---- inner loops ------------------------------------------------------------------------------------------------- */

/* How many bytes ahead of its use the skinny loop prefetches the weight into the cache. */
enum { TE__SKINNY_AHEAD = 8192 };

/* The inner loops exist for registers of 4, 8 and 16 floats. A program contains one of these versions or, if it selects
 * instructions at run time (te_isa), all three. */
#if defined __AVX512F__
#define TE__LANES_COMPILED 16
#elif defined __AVX__
#define TE__LANES_COMPILED 8
#else
#define TE__LANES_COMPILED 4
#endif
#if TE__DISPATCH || TE__LANES_COMPILED == 16
#define TE__LANES 16
#include "gemm_host_micro.inc" /* te__skinny_micro_16, te__sgemm_micro_16 */
#endif
#if TE__DISPATCH || TE__LANES_COMPILED == 8
#define TE__LANES 8
#include "gemm_host_micro.inc" /* te__skinny_micro_8, te__sgemm_micro_8 */
#endif
#if TE__LANES_COMPILED == 4
#define TE__LANES 4
#include "gemm_host_micro.inc" /* te__skinny_micro_4, te__sgemm_micro_4 */
#endif
/* Returns the number of floats in a register, in the loops for the instructions `isa`. */
TE_FN int te__lanes_of(te_isa isa) {
    return isa == TE_ISA_AVX512 ? 16 : isa == TE_ISA_AVX2 && TE__LANES_COMPILED < 8 ? 8 : TE__LANES_COMPILED;
}
/* Call the loop `name` for registers of `lanes` floats, a compile-time constant. */
#if TE__DISPATCH
#define TE__CALL_OF_LANES(name, lanes, ...)  \
    ((lanes) == 16  ? name##_16(__VA_ARGS__) \
     : (lanes) == 8 ? name##_8(__VA_ARGS__)  \
                    : TE__COMPILED_LOOP(name)(__VA_ARGS__))
#else
#define TE__CALL_OF_LANES(name, lanes, ...) ((void)(lanes), TE__COMPILED_LOOP(name)(__VA_ARGS__))
#endif
#if TE__LANES_COMPILED == 16
#define TE__COMPILED_LOOP(name) name##_16
#elif TE__LANES_COMPILED == 8
#define TE__COMPILED_LOOP(name) name##_8
#else
#define TE__COMPILED_LOOP(name) name##_4
#endif

/* ---- the blocked loop in f32 ------------------------------------------------------------------------------------- */

#ifndef TE_CBLAS
/* The blocked loop. Each block (on a CPU, the unit of work that a thread takes) computes one tile of D, 96 x 64. For
 * each 256 elements of k the block first copies ("packs") the tile's slices of A and B into the order in which the
 * inner loop reads them. The inner loop accumulates 12 x 16 sums in registers with AVX-512, 6 x 16 with AVX2, and 4 x
 * 16 on other CPUs. */
enum { TE__TILE_M = 96, TE__TILE_N = 64, TE__TILE_K = 256, TE__REG_N = 16, TE__REG_MAX_M = 12 };
typedef struct te__sgemm_args {
    int64_t m, n, k;
    int trans_a, trans_b;
    float alpha, beta;
    const float *a, *b;
    float *c;
} te__sgemm_args;
/* A tile's slices of A and B, packed. */
typedef struct te__sgemm_packed {
    float a[TE__TILE_M * TE__TILE_K], b[TE__TILE_N * TE__TILE_K];
} te__sgemm_packed;

/* Copy the tile's slices of A and B, `kk` elements of k from k0 on, in the order in which te__sgemm_micro reads them,
 * `reg_m` rows of A at a time. Elements beyond m and n are set to 0. */
TE_FN void te__sgemm_pack(te__sgemm_packed *packed, const te__sgemm_args *g, int64_t m0, int64_t n0, int64_t k0, int kk,
                          int reg_m) {
    float *const pa = packed->a, *const pb = packed->b;
    for (int i = 0; i < TE__TILE_M; i++)
        for (int p = 0; p < kk; p++)
            pa[(i / reg_m) * reg_m * kk + p * reg_m + i % reg_m] = m0 + i >= g->m ? 0.0f
                                                                   : g->trans_a   ? g->a[(k0 + p) * g->m + m0 + i]
                                                                                  : g->a[(m0 + i) * g->k + k0 + p];
    for (int j = 0; j < TE__TILE_N; j++)
        for (int p = 0; p < kk; p++)
            pb[(j / TE__REG_N) * TE__REG_N * kk + p * TE__REG_N + j % TE__REG_N] =
                n0 + j >= g->n ? 0.0f
                : g->trans_b   ? g->b[(n0 + j) * g->k + k0 + p]
                               : g->b[(k0 + p) * g->n + n0 + j];
}
TE_FN void te__sgemm_tile(const te__sgemm_args *g, te_block b, te__sgemm_packed *packed, te_isa isa) {
    const int lanes = te__lanes_of(isa), reg_m = lanes == 16 ? TE__REG_MAX_M : lanes == 8 ? 6 : 4;
    const int64_t m0 = (int64_t)b.x * TE__TILE_M, n0 = (int64_t)b.y * TE__TILE_N;
    for (int64_t k0 = 0; k0 < te_max(g->k, 1); k0 += TE__TILE_K) {
        const int kk = (int)te_min(TE__TILE_K, g->k - k0);
        te__sgemm_pack(packed, g, m0, n0, k0, kk, reg_m);
        for (int i = 0; i < TE__TILE_M && m0 + i < g->m; i += reg_m)
            for (int j = 0; j < TE__TILE_N && n0 + j < g->n; j += TE__REG_N) {
                float sum[TE__REG_MAX_M * TE__REG_N];
                TE__CALL_OF_LANES(te__sgemm_micro, lanes, sum, packed->a + i * kk, packed->b + j * kk, kk);
                for (int r = 0; r < reg_m && m0 + i + r < g->m; r++)
                    for (int s = 0; s < TE__REG_N && n0 + j + s < g->n; s++) {
                        float *c = g->c + (m0 + i + r) * g->n + n0 + j + s;
                        *c = g->alpha * sum[r * TE__REG_N + s] + (k0 ? *c : g->beta != 0 ? g->beta * *c : 0.0f);
                    }
            }
    }
}
TE_KERNEL_ISA(te__sgemm, te__sgemm_args, sizeof(te__sgemm_packed),
              te__sgemm_tile(te_args, te_at, (te__sgemm_packed *)te_memory, te_isa_))
#endif

/* Computes c = alpha op(a) op(b) + beta c in f32. alpha, the sizes and the transposes are taken from g. */
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
    return te__sgemm_launch(ctx, te__grid_of(te_ceil_div(g->m, TE__TILE_M), te_ceil_div(g->n, TE__TILE_N)), &s);
#endif
}

/* ---- GEMMs of a few rows ----------------------------------------------------------------------------------------- */

/* The skinny loop. Each block (on a CPU, the unit of work that a thread takes) computes TE__SKINNY_BLOCK columns of D,
 * one after the other: it multiplies a row of the weight, whose elements are converted to float in registers, by up to
 * four rows of A at a time. Memory traffic: the weight is read once. (Several rows of the weight at a time would be
 * several streams, which hardware prefetches badly.) The order of a sum depends on k alone, so a row of D is bitwise
 * identical whatever m is. */
enum { TE__SKINNY_BLOCK = 32, TE__SKINNY_LANES = 16 };
typedef struct te__skinny_args {
    const te_gemm *g;
    const float *a;        /* [m, k] */
    const uint8_t *weight; /* [rows, k] of `dtype`: f32, bf16 or f16; need not be aligned */
    te_dtype dtype;
    int64_t rows, first; /* rows: the number of rows of the weight; first: the index of the column of D that the
                          * weight's first row produces */
} te__skinny_args;

/* Adds to sum[16 * r + i], for each r < count, the products w[p] * a[r * stride + p] for all p < kk with p % 16 == i.
 * kk must be a multiple of 16 (te__skinny_micro). */
TE_FN void te__skinny_add(float *sum, const float *a, int64_t stride, const uint8_t *w, int64_t kk, int count,
                          te_dtype dtype, te_isa isa) {
    const int lanes = te__lanes_of(isa);
    if (count == 4)
        TE__CALL_OF_LANES(te__skinny_micro, lanes, sum, a, stride, w, kk, 4, dtype);
    else if (count == 2)
        TE__CALL_OF_LANES(te__skinny_micro, lanes, sum, a, stride, w, kk, 2, dtype);
    else
        TE__CALL_OF_LANES(te__skinny_micro, lanes, sum, a, stride, w, kk, 1, dtype);
}
/* Compute D[i][j] to D[i + count - 1][j] with row `w` of the weight. count: 1, 2 or 4. */
TE_FN void te__skinny_column(const te__skinny_args *args, int64_t i, int64_t j, const uint8_t *w, int count,
                             te_dtype dtype, te_isa isa) {
    const te_gemm *g = args->g;
    const int64_t size = dtype == TE_f32 ? 4 : 2, lanes = TE__SKINNY_LANES, whole = g->k / lanes * lanes;
    const size_t rest = (size_t)(g->k - whole);
    const float *a = args->a + i * g->k;
    float sum[4 * TE__SKINNY_LANES], last_of_a[4 * TE__SKINNY_LANES];
    uint8_t last_of_w[4 * TE__SKINNY_LANES];
    memset(sum, 0, sizeof sum);
    if (rest) { /* the elements behind the last multiple of 16, padded with zeros */
        memset(last_of_a, 0, sizeof last_of_a), memset(last_of_w, 0, sizeof last_of_w);
        memcpy(last_of_w, w + whole * size, rest * (size_t)size);
        for (int r = 0; r < count; r++)
            memcpy(last_of_a + TE__SKINNY_LANES * r, a + r * g->k + whole, rest * sizeof(float));
    }
    /* One call in a loop instead of two calls, so that the program contains the inlined function once. */
    for (int last = 0; last < (rest ? 2 : 1); last++)
        te__skinny_add(sum, last ? last_of_a : a, last ? lanes : g->k, last ? last_of_w : w, last ? lanes : whole,
                       count, dtype, isa);
    for (int r = 0; r < count; r++) {
        const int64_t at = (i + r) * g->n + j;
        float total = 0.0f;
        for (int lane = 0; lane < TE__SKINNY_LANES; lane++) total += sum[TE__SKINNY_LANES * r + lane];
        te_store(g->d, at, g->alpha * total + (g->beta != 0 ? g->beta * te_load(g->c, at, g->out) : 0.0f), g->out);
    }
}
/* Compute the block's columns of D in up to TE__SKINNY_M rows. dtype: the weight's dtype, a compile-time constant. */
TE_FN void te__skinny_columns(const te__skinny_args *args, te_block block, te_dtype dtype, te_isa isa) {
    const int64_t from = (int64_t)block.x * TE__SKINNY_BLOCK, to = te_min(args->rows, from + TE__SKINNY_BLOCK);
    const int64_t m0 = (int64_t)block.y * TE__SKINNY_M, m1 = te_min(args->g->m, m0 + TE__SKINNY_M);
    for (int64_t row = from; row < to; row++) {
        const uint8_t *w = args->weight + row * args->g->k * (dtype == TE_f32 ? 4 : 2);
        int64_t i = m0;
        for (; i + 4 <= m1; i += 4) te__skinny_column(args, i, args->first + row, w, 4, dtype, isa);
        if (i + 2 <= m1) te__skinny_column(args, i, args->first + row, w, 2, dtype, isa), i += 2;
        if (i < m1) te__skinny_column(args, i, args->first + row, w, 1, dtype, isa);
    }
}
TE_FN void te__skinny_body(const te__skinny_args *args, te_block block, te_isa isa) {
    if (args->dtype == TE_f32)
        te__skinny_columns(args, block, TE_f32, isa);
    else if (args->dtype == TE_bf16)
        te__skinny_columns(args, block, TE_bf16, isa);
    else
        te__skinny_columns(args, block, TE_f16, isa);
}
TE_KERNEL_ISA(te__skinny, te__skinny_args, 0, te__skinny_body(te_args, te_at, te_isa_))

/* Computes columns first to first + rows - 1 of D, where column first + r is the product of A and row r of `weight`, a
 * matrix [rows, k] in f32, bf16 or f16. a: A, converted to float. */
TE_API te_status te__skinny_part(const te_gemm *g, const float *a, const void *weight, te_dtype dtype, int64_t rows,
                                 int64_t first, te_context *ctx) {
    te__skinny_args args;
    args.g = g, args.a = a, args.weight = (const uint8_t *)weight, args.dtype = dtype;
    args.rows = rows, args.first = first;
    return te__skinny_launch(ctx, te__grid_of(te_ceil_div(rows, TE__SKINNY_BLOCK), te_ceil_div(g->m, TE__SKINNY_M)),
                             &args);
}
TE_API te_status te__skinny_run(const te_gemm *g, te_context *ctx) {
    float *scratch = g->scratch;
    const float *a = (const float *)g->a;
    if (g->dtype != TE_f32) a = te__widened(ctx, &scratch, g->a, g->m * g->k, g->dtype);
    return te__skinny_part(g, a, g->b, g->dtype, g->n, 0, ctx);
}

/* ---- FP8 with rowwise or blockwise scales ------------------------------------------------------------------------ */

enum { TE__SCALED_M = 64, TE__SCALED_N = 64, TE__SCALED_REG_N = 16, TE__SCALED_REG_M = 4 };
typedef float te__scaled_sum __attribute__((vector_size(4 * TE__SCALED_REG_N), aligned(4)));

/* The working memory for one tile of D: the tile's slices of A and B for 128 elements of k, as floats, and the sums. */
typedef struct te__scaled_tile {
    float a[TE__SCALED_M][TE_FP8_BLOCK], b[TE__SCALED_N / TE__SCALED_REG_N][TE_FP8_BLOCK][TE__SCALED_REG_N];
    float sum[TE__SCALED_M][TE__SCALED_N];
} te__scaled_tile;

/* Sets f[i], for i < count, to the factor for row row0 + i of the matrix m [rows, k]. If `rowwise` is 1, the factor is
 * the inverse scale of the whole row, or 1 if m has no rowwise scales. If `rowwise` is 0, the factor is the inverse
 * scale of the row's 128 columns from `col` on, or 1 if m has rowwise scales. */
TE_API void te__scaled_factors(float *f, int count, const te_gemm_fp8 *m, int64_t rows, int64_t k, int64_t row0,
                               int64_t col, int rowwise) {
    for (int i = 0; i < count; i++)
        f[i] = row0 + i < rows && (m->scaling == TE_SCALING_ROWWISE) == rowwise
                   ? m->inverse[te_scale_at(m->scaling, rows, k, row0 + i, col)] : 1.0f;
}
TE_API void te__scaled_load(te__scaled_tile *t, const te_gemm *g, int64_t m0, int64_t n0, int64_t k0, int kk) {
    const uint8_t *a = (const uint8_t *)g->a, *b = (const uint8_t *)g->b;
    float of_a[256], of_b[256];
    for (int i = 0; i < 256; i++)
        of_a[i] = te_float_of_fp8((uint8_t)i, g->a_fp8.dtype), of_b[i] = te_float_of_fp8((uint8_t)i, g->b_fp8.dtype);
    for (int i = 0; i < TE__SCALED_M; i++)
        for (int p = 0; p < kk; p++) t->a[i][p] = m0 + i < g->m ? of_a[a[(m0 + i) * g->k + k0 + p]] : 0.0f;
    for (int j = 0; j < TE__SCALED_N; j++)
        for (int p = 0; p < kk; p++)
            t->b[j / TE__SCALED_REG_N][p][j % TE__SCALED_REG_N] =
                n0 + j < g->n ? of_b[b[(n0 + j) * g->k + k0 + p]] : 0.0f;
}
/* Computes TE__SCALED_REG_M x TE__SCALED_REG_N sums over `kk` elements of k, multiplies them by the factors fa and fb
 * of their rows and columns, and adds them to the tile's sums from (i, j) on. */
TE_FN void te__scaled_micro(te__scaled_tile *t, int i, int j, int kk, const float *fa, const float *fb) {
    te__scaled_sum s[TE__SCALED_REG_M];
    memset(s, 0, sizeof s);
    for (int p = 0; p < kk; p++) {
        const te__scaled_sum b = *(const te__scaled_sum *)(const void *)t->b[j / TE__SCALED_REG_N][p];
        for (int r = 0; r < TE__SCALED_REG_M; r++) s[r] += t->a[i + r][p] * b;
    }
    for (int r = 0; r < TE__SCALED_REG_M; r++)
        for (int c = 0; c < TE__SCALED_REG_N; c++) t->sum[i + r][j + c] += s[r][c] * (fa[i + r] * fb[j + c]);
}
TE_FN void te__scaled_body(const te_gemm *g, te_block block, te__scaled_tile *t) {
    const int64_t m0 = (int64_t)block.x * TE__SCALED_M, n0 = (int64_t)block.y * TE__SCALED_N;
    float fa[TE__SCALED_M], fb[TE__SCALED_N];
    memset(t->sum, 0, sizeof t->sum);
    for (int64_t k0 = 0; k0 < g->k; k0 += TE_FP8_BLOCK) {
        const int kk = (int)te_min(TE_FP8_BLOCK, g->k - k0);
        te__scaled_load(t, g, m0, n0, k0, kk);
        te__scaled_factors(fa, TE__SCALED_M, &g->a_fp8, g->m, g->k, m0, k0, 0);
        te__scaled_factors(fb, TE__SCALED_N, &g->b_fp8, g->n, g->k, n0, k0, 0);
        for (int i = 0; i < TE__SCALED_M && m0 + i < g->m; i += TE__SCALED_REG_M)
            for (int j = 0; j < TE__SCALED_N; j += TE__SCALED_REG_N) te__scaled_micro(t, i, j, kk, fa, fb);
    }
    te__scaled_factors(fa, TE__SCALED_M, &g->a_fp8, g->m, g->k, m0, 0, 1);
    te__scaled_factors(fb, TE__SCALED_N, &g->b_fp8, g->n, g->k, n0, 0, 1);
    for (int i = 0; i < TE__SCALED_M && m0 + i < g->m; i++)
        for (int j = 0; j < TE__SCALED_N && n0 + j < g->n; j++) {
            const int64_t at = (m0 + i) * g->n + n0 + j;
            const float c = g->beta != 0 ? g->beta * te_load(g->c, at, g->out) : 0.0f;
            te_store(g->d, at, g->alpha * (t->sum[i][j] * (fa[i] * fb[j])) + c, g->out);
        }
}
TE_KERNEL_MEMORY(te__scaled, te_gemm, sizeof(te__scaled_tile),
                 te__scaled_body(te_args, te_at, (te__scaled_tile *)te_memory))

TE_API te_status te__scaled_run(const te_gemm *g, te_context *ctx) {
    return te__scaled_launch(ctx, te__grid_of(te_ceil_div(g->m, TE__SCALED_M), te_ceil_div(g->n, TE__SCALED_N)), g);
}

/* ---- te_gemm_run ------------------------------------------------------------------------------------------------- */

/* Computes D = alpha op(A) op(B) + beta C on the host. */
TE_API te_status te_gemm_run(const te_gemm *product, te_context *ctx) {
    TE_TRY(te__gemm_check_run(product, "te_gemm_run", ctx));
    TE_REQUIRE(te__gemm_supports(product, ctx), ctx, TE_ERROR_VALUE, "te_gemm_run: epilogue %s on the host",
               te__epilogue_name(product->epilogue));
    TE_REQUIRE(product->scratch || !te__gemm_scratch(product), ctx, TE_ERROR_NULL,
               "te_gemm_run: scratch is null, te__gemm_scratch says how many floats it has");
    TE_TRY(te__gemm_check_blockwise(product, ctx));
    if (te__gemm_has_scale_arrays(product)) return te__scaled_run(product, ctx);
    if (te__gemm_is_skinny(product)) return te__skinny_run(product, ctx);
    te_gemm scaled = *product, *g = &scaled;
    float *scratch = g->scratch;
    const float *a = (const float *)g->a, *b = (const float *)g->b;
    if (g->a_fp8.inverse && te__gemm_is_fp8(g)) g->alpha *= *g->a_fp8.inverse;
    if (g->b_fp8.inverse && te__gemm_is_fp8(g)) g->alpha *= *g->b_fp8.inverse;
    if (te__gemm_a_dtype(g) != TE_f32) {
        a = te__widened(ctx, &scratch, g->a, g->m * g->k, te__gemm_a_dtype(g));
        b = te__widened(ctx, &scratch, g->b, g->k * g->n, te__gemm_b_dtype(g));
    }
    if (g->out == TE_f32) {
        if (g->beta != 0 && g->c != g->d) memcpy(g->d, g->c, (size_t)(g->m * g->n) * sizeof(float));
        return te__sgemm_run(g, a, b, g->beta, (float *)g->d, ctx);
    }
    TE_TRY(te__sgemm_run(g, a, b, 0.0f, scratch, ctx));
    te__round_args n;
    n.g = g, n.product = scratch;
    return te__round_launch(ctx, te__grid_of(g->m, 1), &n);
}
/* The function that a model, a list of ops of dtype T, calls to run its GEMMs. trains: 1 if this function must also
 * support the GEMMs of backward, which te_gemm_run does on the host in any case. */
#define TE_GEMM_RUN_OF(T, trains) te_gemm_run

#endif
