/* gemm_quantized.h -- GEMMs on a CPU whose weight is in few bits (te/quant/block_formats.h): D = alpha A W^T + beta C, A
 * [m, k] in the list's format. The parts of the weight are computed one after the other.
 */
#ifndef TE_GEMM_QUANTIZED_H
#define TE_GEMM_QUANTIZED_H

#include "../../quant/block_formats.h" /* te_quantized_weight, te_dequantize_row */
#include "../gemm_types.h"             /* te_gemm */
#if !TE_CUDA
#include "gemm_host.h" /* te__skinny_micro, te__widened */
#endif

#if !TE_CUDA

/* ---- rows of a table --------------------------------------------------------------------------------------------- */

typedef struct te__lookup_args {
    void *y;
    te_dtype dtype;
    const int32_t *tokens;
    const te_quantized_weight *w;
    int64_t cols;
} te__lookup_args;
/* Each block computes one row of y. */
TE_API void te__lookup_body(const te__lookup_args *a, te_block b) {
    float v[TE_BLOCK_MAX_VALUES];
    int64_t row = a->tokens[b.x];
    const te_weight_part *part = te__part_of_row(a->w, &row);
    const uint8_t *x = (const uint8_t *)part->data + (size_t)row * te_block_row_bytes(part->format, a->cols);
    for (int64_t c = 0; c < a->cols; c += TE_BLOCK_MAX_VALUES) {
        const int64_t n = te_min(a->cols - c, TE_BLOCK_MAX_VALUES);
        te_dequantize_row(v, x + te_block_row_bytes(part->format, c), n, part->format);
        for (int64_t i = 0; i < n; i++) te_store(a->y, b.x * a->cols + c + i, v[i], a->dtype);
    }
}
TE_KERNEL(te__lookup, 1, te__lookup_args, te__lookup_body(te_args, te_at))
/* y[i] = row tokens[i] of w, for `rows` tokens, each of which must be a row of w. */
TE_API te_status te__quantized_lookup(void *y, te_dtype dtype, const int32_t *tokens, int64_t rows,
                                      const te_quantized_weight *w, int64_t cols, te_context *ctx) {
    te__lookup_args a;
    a.y = y, a.dtype = dtype, a.tokens = tokens, a.w = w, a.cols = cols;
    return te__lookup_launch(ctx, te__grid_of(rows, 1), &a);
}

/* ---- by floats --------------------------------------------------------------------------------------------------- */

/* The weight's values are converted to floats, TE__SKINNY_K values of TE__SKINNY_N rows at a time, in memory that stays
 * in the L1 cache, and multiplied by up to TE__SKINNY_M rows of A. */
typedef struct te__by_floats_args {
    const te_gemm *g;
    const float *a;             /* [m, k] */
    const te_weight_part *part;
    int64_t first;              /* the column of D that belongs to the part's first row */
} te__by_floats_args;
TE_API void te__by_floats_load(float to[TE__SKINNY_K], const te__by_floats_args *a, int64_t row, int64_t k0, int kk) {
    const te_block_format f = a->part->format;
    const uint8_t *w = (const uint8_t *)a->part->data + (size_t)row * te_block_row_bytes(f, a->g->k);
    te_dequantize_row(to, w + te_block_row_bytes(f, k0), kk, f);
    for (int i = kk; i % TE__SKINNY_LANES; i++) to[i] = 0.0f;
}
TE_API void te__by_floats_body(const te__by_floats_args *args, te_block block) {
    const te_gemm *g = args->g;
    const int64_t from = (int64_t)block.x * TE__SKINNY_BLOCK, to = te_min(args->part->rows, from + TE__SKINNY_BLOCK);
    const int64_t m0 = (int64_t)block.y * TE__SKINNY_M;
    const int rows = (int)te_min(TE__SKINNY_M, g->m - m0);
    float b[TE__SKINNY_N][TE__SKINNY_K], last_of_a[TE__SKINNY_K];
    for (int64_t j = from; j < to; j += TE__SKINNY_N) {
        te__skinny_sum sum[TE__SKINNY_M][TE__SKINNY_N];
        memset(sum, 0, sizeof sum);
        for (int64_t k0 = 0; k0 < g->k; k0 += TE__SKINNY_K) {
            const int kk = (int)te_min(TE__SKINNY_K, g->k - k0);
            for (int r = 0; r < TE__SKINNY_N; r++) te__by_floats_load(b[r], args, te_min(j + r, to - 1), k0, kk);
            for (int i = 0; i < rows; i++) {
                const float *a = args->a + (m0 + i) * g->k + k0;
                if (kk % TE__SKINNY_LANES) te__skinny_widen(last_of_a, a, 0, kk, TE_f32), a = last_of_a;
                te__skinny_micro(sum[i], a, (const float (*)[TE__SKINNY_K])b, kk);
            }
        }
        for (int i = 0; i < rows; i++)
            for (int r = 0; r < TE__SKINNY_N && j + r < to; r++)
                te__skinny_store(g, m0 + i, args->first + j + r, &sum[i][r]);
    }
}
TE_KERNEL(te__by_floats, 1, te__by_floats_args, te__by_floats_body(te_args, te_at))

/* ---- the product ------------------------------------------------------------------------------------------------- */

/* Bytes of te_gemm.scratch that te__quantized_run needs. */
TE_API size_t te__quantized_scratch(const te_gemm *g) {
    return g->dtype == TE_f32 ? 0 : (size_t)g->m * (size_t)g->k * sizeof(float);
}
TE_API te_status te__quantized_run(const te_gemm *g, te_context *ctx) {
    te__by_floats_args a;
    float *scratch = g->scratch;
    a.g = g, a.a = (const float *)g->a, a.first = 0;
    if (g->dtype != TE_f32) a.a = te__widened(ctx, &scratch, g->a, g->m * g->k, g->dtype);
    for (int i = 0; i < g->b_quantized->parts; i++) {
        a.part = &g->b_quantized->part[i];
        const te_grid grid =
            te__grid_of(te_ceil_div(a.part->rows, TE__SKINNY_BLOCK), te_ceil_div(g->m, TE__SKINNY_M));
        TE_TRY(te__by_floats_launch(ctx, grid, &a));
        a.first += a.part->rows;
    }
    return TE_OK;
}

#endif
#endif
