/* quant.c -- products of weights in few bits on this CPU: GB/s of the weight's bytes, for each format and several numbers of rows, beside a
 * plain read of the same bytes, in turns. With more than 8 rows also the time of the f32 GEMM of the same shape.
 *
 *     gcc -std=c11 -O3 -march=native -fopenmp -I. bench/quant.c -o quant -lm
 *     ./quant [out in [part of a format's name]]        default: 4096 x 4096, all formats
 *
 * There are as many copies of the weight as need 256 MiB, more than the caches hold, and each product reads the next one. Each time is the
 * least of 15 rounds (5 of more than 8 rows); `of read` is the time of the read divided by that of the product. On a machine that others use,
 * run it with OMP_NUM_THREADS=1: a loop that waits for a thread which is not running takes milliseconds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h> /* timespec_get */

#include "te/infer.h"
#if TE_CUDA
int main(void) { return puts("for the host; bench/quant_gpu.cu is for CUDA") < 0; }
#else
#ifdef _OPENMP
#include <omp.h> /* omp_get_max_threads */
#endif

enum { ROUNDS = 15, MAX_ROWS = 512, POOL = 256 << 20 };
static te_context ctx;
static uint64_t sink;

static void check(te_status s, const char *what) {
    if (s != TE_OK) fprintf(stderr, "%s: %s (%s)\n", what, te_last_error(&ctx), te_status_string(s)), exit(1);
}
static void *allocate(size_t bytes) {
    void *p;
    check(te_allocate(&ctx, &p, bytes), "memory");
    return p;
}
static double now(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static double least(const double *t, int n) {
    double min = t[0];
    for (int i = 1; i < n; i++) min = t[i] < min ? t[i] : min;
    return min;
}

/* Reads all bytes, by all threads, each with four streams of loads in flight. */
static void read_all(const char *p, size_t bytes) {
    typedef uint64_t lanes __attribute__((vector_size(64), aligned(1)));
    uint64_t total = 0;
    const int64_t chunk = 1 << 15, chunks = (int64_t)bytes / chunk;
#ifdef _OPENMP
#pragma omp parallel for reduction(^ : total)
#endif
    for (int64_t c = 0; c < chunks; c++) {
        lanes s[4] = {{0}, {0}, {0}, {0}};
        for (int64_t i = c * chunk; i < (c + 1) * chunk; i += 256)
            for (int k = 0; k < 4; k++) s[k] ^= *(const lanes *)(const void *)(p + i + 64 * k);
        for (int k = 0; k < 8; k++) total ^= s[0][k] ^ s[1][k] ^ s[2][k] ^ s[3][k];
    }
    sink ^= total;
}

static void bench(te_block_format f, int64_t out, int64_t in, const float *row, uint8_t *weights, const float *x, float *y) {
    const size_t row_bytes = te_block_row_bytes(f, in), bytes = row_bytes * (size_t)out;
    const int copies = (int)te_max(1, POOL / (int64_t)bytes);
    const int rows[] = {1, 2, 4, 8, 16, 64, 512};
    for (size_t i = 0; i < (size_t)copies * (size_t)out; i++) {
        if (i < 64) te_quantize_row(weights + i * row_bytes, row + 8 * i, in, f);
        else memcpy(weights + i * row_bytes, weights + (i % 64) * row_bytes, row_bytes);
    }
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        double read[ROUNDS], product[ROUNDS];
        const int rounds = rows[k] > 8 ? 5 : ROUNDS;
        te_weight_part part = {weights, f, out};
        te_quantized_weight w = {&part, 1};
        te_gemm g = te_gemm_of(rows[k], out, in);
        g.a = x, g.d = y, g.trans_b = 1, g.b_quantized = &w;
        g.scratch = (float *)allocate(te__quantized_scratch(&g) + 1);
        for (int r = -2; r < rounds; r++) {
            const uint8_t *at = weights + (size_t)(2 * (r + 2) % copies) * bytes, *next = weights + (size_t)((2 * (r + 2) + 1) % copies) * bytes;
            double t = now();
            read_all((const char *)at, bytes);
            if (r >= 0) read[r] = now() - t;
            part.data = next, t = now();
            check(te__quantized_run(&g, &ctx), "product");
            if (r >= 0) product[r] = now() - t;
        }
        const double a = least(read, rounds), b = least(product, rounds);
        printf("%-5s %6lld x %6lld  %3d rows  %9.1f us  %6.1f GB/s  read %6.1f GB/s  of read %.2f  %7.1f GFLOP/s\n", te_block_name(f), (long long)out,
               (long long)in, rows[k], 1e6 * b, (double)bytes / b * 1e-9, (double)bytes / a * 1e-9, a / b, 2e-9 * (double)rows[k] * (double)(out * in) / b);
        te_release(&ctx, g.scratch);
    }
}
static void bench_f32(int64_t out, int64_t in, const float *w, const float *x, float *y) {
    const int rows[] = {1, 8, 16, 64, 512};
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        double time[5];
        te_gemm g = te_gemm_of(rows[k], out, in);
        g.a = x, g.b = w, g.d = y, g.trans_b = 1;
        for (int r = 0; r < 5; r++) {
            const double t = now();
            check(te_gemm_run(&g, &ctx), "f32");
            time[r] = now() - t;
        }
        const double t = least(time, 5);
        printf("f32 GEMM %3lld x %6lld  %3d rows  %9.1f us  %6.1f GB/s  %44.1f GFLOP/s\n", (long long)out, (long long)in, rows[k], 1e6 * t,
               4e-9 * (double)(out * in) / t, 2e-9 * (double)rows[k] * (double)(out * in) / t);
    }
}
int main(int argc, char **argv) {
    const int64_t out = argc > 2 ? atoll(argv[1]) : 4096, in = argc > 2 ? atoll(argv[2]) : 4096;
    const char *only = argc > 3 ? argv[3] : "";
    if (out < 64 || in < 256) return fprintf(stderr, "quant: at least 64 x 256\n"), 1;
    check(te_context_create(&ctx, 0, 1), "context");
    float *row = (float *)allocate((size_t)(in + 512) * 4), *x = (float *)allocate((size_t)(MAX_ROWS * in) * 4);
    float *y = (float *)allocate((size_t)(MAX_ROWS * out) * 4), *w = (float *)allocate((size_t)(out * in) * 4);
    uint8_t *weights = (uint8_t *)allocate((size_t)te_max(POOL, out * in * 4) + (1 << 16));
    check(te_fill_normal(row, TE_f32, in + 512, 0, 0.05f, 1, 0, &ctx), "data");
    check(te_fill_normal(x, TE_f32, MAX_ROWS * in, 0, 1.0f, 1, 1, &ctx), "data");
    check(te_fill_normal(w, TE_f32, out * in, 0, 0.05f, 1, 2, &ctx), "data");
#ifdef _OPENMP
    printf("%d threads\n", omp_get_max_threads());
#endif
    for (int f = TE_BLOCK_f32; f < TE_BLOCK_COUNT; f++)
        if (strstr(te_block_name((te_block_format)f), only) && in % te_block_values((te_block_format)f) == 0)
            bench((te_block_format)f, out, in, row, weights, x, y);
    if (!*only || !strcmp(only, "f32")) bench_f32(out, in, w, x, y);
    return sink == 12345;
}
#endif
