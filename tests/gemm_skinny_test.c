/* gemm_skinny_test.c -- products of a few rows on the host (te__skinny in te/gemm/impl/gemm_host.h): close to sums in
 * double for each dtype and odd sizes, a row has the same bits for each number of rows, and nothing is written beyond D.
 */
#include <stdio.h>

#include "te/te.h"

enum { MAX_M = 9, MAX_N = 70, MAX_K = 1040, GUARD = 16 };

static float random_number(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 8388608.0f - 1.0f;
}
/* x[n] of random numbers, rounded to dtype. */
static void draw(void *x, int64_t n, te_dtype dtype, uint32_t seed) {
    for (int64_t i = 0; i < n; i++) te_store(x, i, random_number(&seed), dtype);
}

static struct {
    _Alignas(TE_ALIGN) float a[MAX_M * MAX_K];
    _Alignas(TE_ALIGN) float b[MAX_N * MAX_K];
    _Alignas(TE_ALIGN) float c[MAX_M * MAX_N];
    _Alignas(TE_ALIGN) float d[MAX_M * MAX_N + GUARD];
} x;
static float scratch[MAX_M * MAX_K + MAX_N * MAX_K + MAX_M * MAX_N];
static te_context ctx;

static te_status multiply(int m, int n, int k, te_dtype dtype, te_dtype out, float beta) {
    te_gemm g = te_gemm_of(m, n, k);
    g.trans_b = 1, g.dtype = dtype, g.out = out, g.alpha = 0.5f, g.beta = beta;
    g.a = x.a, g.b = x.b, g.c = beta != 0 ? x.c : 0, g.d = x.d, g.scratch = scratch;
    if (te__gemm_scratch(&g) > sizeof scratch / sizeof scratch[0]) return TE_ERROR_MEMORY;
    memset(x.d, 0x55, sizeof x.d);
    return te_gemm_run(&g, &ctx);
}
/* The largest error of D, in units of what the summation and the rounding of D may cost; above 1 is wrong. */
static double error(int m, int n, int k, te_dtype dtype, te_dtype out, float beta) {
    const double unit = out == TE_f32 ? 0x1p-24 : out == TE_bf16 ? 0x1p-8 : 0x1p-11;
    double worst = 0;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            const double c = beta * (double)te_load(x.c, (int64_t)i * n + j, out);
            double sum = 0, size = fabs(c);
            for (int p = 0; p < k; p++) {
                const double term = 0.5 * (double)te_load(x.a, (int64_t)i * k + p, dtype) *
                                    (double)te_load(x.b, (int64_t)j * k + p, dtype);
                sum += term, size += fabs(term);
            }
            const double off = fabs((double)te_load(x.d, (int64_t)i * n + j, out) - sum - c);
            const double bound = (k + 3) * 0x1p-24 * size + unit * (fabs(sum + c) + 0x1p-10);
            if (!(off <= worst * bound)) worst = off / bound;
        }
    return worst;
}
static int check(int n, int k, te_dtype dtype, te_dtype out, float beta) {
    static float first[MAX_N];
    const size_t row = (size_t)n * te_dtype_bytes(out);
    draw(x.a, MAX_M * (int64_t)k, dtype, 1), draw(x.b, (int64_t)n * k, dtype, 2), draw(x.c, MAX_M * (int64_t)n, out, 3);
    for (int m = 1; m <= MAX_M; m++) {
        const te_status status = multiply(m, n, k, dtype, out, beta);
        const double off = status == TE_OK ? error(m, n, k, dtype, out, beta) : 2;
        if (m == 1) memcpy(first, x.d, row);
        const unsigned char *behind = (const unsigned char *)x.d + (size_t)m * row;
        int is_kept = m > TE__SKINNY_M || !memcmp(first, x.d, row);
        for (int i = 0; i < GUARD; i++) is_kept = is_kept && behind[i] == 0x55;
        if (off <= 1 && is_kept) continue;
        printf("FAIL %s to %s, m %d, n %d, k %d, beta %g: %s, error %g, %s\n", te_dtype_name(dtype), te_dtype_name(out),
               m, n, k, (double)beta, te_status_string(status), off, is_kept ? "same row" : "another row, or beyond D");
        return 1;
    }
    return 0;
}

int main(void) {
    static const int widths[] = {1, 3, 4, 31, 32, 33, 70}, depths[] = {1, 15, 16, 17, 511, 512, 513, 1040};
    static const te_dtype formats[][2] = {{TE_f32, TE_f32}, {TE_bf16, TE_bf16}, {TE_bf16, TE_f32},
                                          {TE_f16, TE_f16}, {TE_f16, TE_f32}};
    int failed = 0, count = 0;
    if (te_context_create(&ctx, 0, 1) != TE_OK) return 1;
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
        for (size_t k = 0; k < sizeof depths / sizeof depths[0]; k++)
            for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++)
                for (int beta = 0; beta < 2; beta++, count++)
                    failed += check(widths[i], depths[k], formats[f][0], formats[f][1], (float)beta);
    te_context_destroy(&ctx);
    printf("%d of %d kinds of products are right\n", count - failed, count);
    return failed != 0;
}
