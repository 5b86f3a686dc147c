/* gemm_scaled_host.h -- FP8 products whose scales are of tiles, blocks or rows, on a CPU. Included by gemm_host.h.
 *
 * Sums have two levels: each 128 of k are summed in float, multiplied by both scales, and added to the rest in float.
 * Scales of rows multiply the sum of all k. cuBLASLt's order within the 128 is its own; this is its oracle.
 */
#ifndef TE_GEMM_SCALED_HOST_H
#define TE_GEMM_SCALED_HOST_H

#include "../core/target.h" /* TE_KERNEL */
#include "gemm_types.h"     /* te_gemm, te_scale_at */

enum { TE__SCALED_M = 64, TE__SCALED_N = 64, TE__SCALED_WIDE = 16, TE__SCALED_HIGH = 4 };
typedef float te__scaled_sum __attribute__((vector_size(4 * TE__SCALED_WIDE), aligned(4)));

/* A tile of D: what it is made of for 128 of k, and its sums. */
typedef struct te__scaled_tile {
    float a[TE__SCALED_M][TE_FP8_BLOCK], b[TE__SCALED_N / TE__SCALED_WIDE][TE_FP8_BLOCK][TE__SCALED_WIDE];
    float sum[TE__SCALED_M][TE__SCALED_N];
} te__scaled_tile;

/* Of a matrix [rows, k] the scales of rows row0 and up, as they multiply 128 elements from column `col` on; `all`: as
 * they multiply the sum of all k. What is scaled so gives 1 to the other. */
TE_API void te__scaled_factors(float *f, int count, const te_gemm_fp8 *m, int64_t rows, int64_t k, int64_t row0,
                               int64_t col, int all) {
    for (int i = 0; i < count; i++)
        f[i] = row0 + i < rows && (m->scaling == TE_SCALING_ROW) == all
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
            t->b[j / TE__SCALED_WIDE][p][j % TE__SCALED_WIDE] =
                n0 + j < g->n ? of_b[b[(n0 + j) * g->k + k0 + p]] : 0.0f;
}
/* HIGH x WIDE sums of 128 of k, multiplied by their scales and added to the tile's. */
TE_FN void te__scaled_micro(te__scaled_tile *t, int i, int j, int kk, const float *fa, const float *fb) {
    te__scaled_sum s[TE__SCALED_HIGH];
    memset(s, 0, sizeof s);
    for (int p = 0; p < kk; p++) {
        const te__scaled_sum b = *(const te__scaled_sum *)(const void *)t->b[j / TE__SCALED_WIDE][p];
        for (int r = 0; r < TE__SCALED_HIGH; r++) s[r] += t->a[i + r][p] * b;
    }
    for (int r = 0; r < TE__SCALED_HIGH; r++)
        for (int c = 0; c < TE__SCALED_WIDE; c++) t->sum[i + r][j + c] += s[r][c] * (fa[i + r] * fb[j + c]);
}
TE_FN void te__scaled_body(const te_gemm *g, te_block block) {
    const int64_t m0 = (int64_t)block.x * TE__SCALED_M, n0 = (int64_t)block.y * TE__SCALED_N;
    float fa[TE__SCALED_M], fb[TE__SCALED_N];
    te__scaled_tile t;
    memset(t.sum, 0, sizeof t.sum);
    for (int64_t k0 = 0; k0 < g->k; k0 += TE_FP8_BLOCK) {
        const int kk = (int)te_min(TE_FP8_BLOCK, g->k - k0);
        te__scaled_load(&t, g, m0, n0, k0, kk);
        te__scaled_factors(fa, TE__SCALED_M, &g->a_fp8, g->m, g->k, m0, k0, 0);
        te__scaled_factors(fb, TE__SCALED_N, &g->b_fp8, g->n, g->k, n0, k0, 0);
        for (int i = 0; i < TE__SCALED_M && m0 + i < g->m; i += TE__SCALED_HIGH)
            for (int j = 0; j < TE__SCALED_N; j += TE__SCALED_WIDE) te__scaled_micro(&t, i, j, kk, fa, fb);
    }
    te__scaled_factors(fa, TE__SCALED_M, &g->a_fp8, g->m, g->k, m0, 0, 1);
    te__scaled_factors(fb, TE__SCALED_N, &g->b_fp8, g->n, g->k, n0, 0, 1);
    for (int i = 0; i < TE__SCALED_M && m0 + i < g->m; i++)
        for (int j = 0; j < TE__SCALED_N && n0 + j < g->n; j++) {
            const int64_t at = (m0 + i) * g->n + n0 + j;
            const float c = g->beta != 0 ? g->beta * te_load(g->c, at, g->out) : 0.0f;
            te_store(g->d, at, g->alpha * (t.sum[i][j] * (fa[i] * fb[j])) + c, g->out);
        }
}
TE_KERNEL(te__scaled, 1, te_gemm, te__scaled_body(te_args, te_at))

TE_API te_status te__scaled_run(const te_gemm *g, te_context *ctx) {
    return te__scaled_launch(ctx, te_grid_of(te_ceil_div(g->m, TE__SCALED_M), te_ceil_div(g->n, TE__SCALED_N)), g);
}

#endif
