/* isa.c -- GEMMs on the host by the kernels of each instruction set that this CPU and this program have (te_isa), against sums in double;
 * and checksums of what has the same bits on every machine. tests/dispatch.sh builds it for x86, tools/aarch64.sh for ARM.
 *
 *     ./isa           prints one line for each instruction set, and `FAIL ...` for each kernel whose error is above its bound
 *     ./isa bits      prints the checksums
 */
#include <stdio.h>
#include <stdlib.h>

#include "te/infer.h"

enum { MAX_M = 30, MAX_N = 37, MAX_K = 1040 };
static te_context ctx;
static int failed;
static uint32_t state = 1;

static uint32_t next_number(void) { return state = state * 1664525u + 1013904223u, state >> 8; }
static float uniform(void) { return (float)next_number() / 8388608.0f - 1.0f; }

static struct {
    float a[MAX_M * MAX_K] __attribute__((aligned(TE_ALIGN)));
    float b[MAX_N * MAX_K] __attribute__((aligned(TE_ALIGN)));
    float d[MAX_M * MAX_N] __attribute__((aligned(TE_ALIGN)));
    uint8_t scratch[16 * MAX_M * MAX_K + 16 * MAX_N * MAX_K] __attribute__((aligned(TE_ALIGN)));
    double sum[MAX_M * MAX_N], terms[MAX_M * MAX_N]; /* the result, and the sum of the magnitudes of its terms */
} x;

static void multiply(te_gemm *g, const char *what) {
    memset(x.d, 0x55, sizeof x.d);
    g->scratch = (float *)(void *)x.scratch;
    const te_status s = g->b_quantized ? te__quantized_run(g, &ctx) : te_gemm_run(g, &ctx);
    if (s != TE_OK) printf("FAIL %s: %s\n", what, te_last_error(&ctx)), failed = 1;
}
/* Compares D with x.sum: an error of one rounding for each of k terms, and of the rounding of D, is allowed. */
static void compare(const te_gemm *g, const char *what) {
    const double unit = g->out == TE_f32 ? 0 : g->out == TE_bf16 ? 0x1p-8 : 0x1p-11;
    double worst = 0;
    for (int64_t i = 0; i < g->m * g->n; i++) {
        const double error = fabs((double)te_load(x.d, i, g->out) - x.sum[i]);
        const double bound = (double)(g->k / 8 + 16) * 0x1p-24 * x.terms[i] + unit * fabs(x.sum[i]) + 1e-30;
        if (!(error / bound <= worst)) worst = error / bound;
    }
    if (worst <= 1) return;
    printf("FAIL isa %d, %s, m %d n %d k %d: error of %.3g bounds\n", ctx.isa, what, (int)g->m, (int)g->n, (int)g->k, worst), failed = 1;
}

/* ---- weights in f32, bf16 and f16 -------------------------------------------------------------------------------------- */

static void floats(int m, int n, int k, te_dtype t) {
    te_gemm g = te_gemm_of(m, n, k);
    g.trans_b = 1, g.dtype = g.out = t, g.a = x.a, g.b = x.b, g.d = x.d;
    for (int64_t i = 0; i < (int64_t)m * k; i++) te_store(x.a, i, uniform(), t);
    for (int64_t i = 0; i < (int64_t)n * k; i++) te_store(x.b, i, (i % 97 ? 1.0f : 1e-6f) * uniform(), t); /* with subnormals of f16 */
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0, terms = 0;
            for (int p = 0; p < k; p++) {
                const double term = (double)te_load(x.a, (int64_t)i * k + p, t) * (double)te_load(x.b, (int64_t)j * k + p, t);
                sum += term, terms += fabs(term);
            }
            x.sum[i * n + j] = sum, x.terms[i * n + j] = terms;
        }
    multiply(&g, "floats"), compare(&g, t == TE_f32 ? "f32" : t == TE_bf16 ? "bf16" : "f16");
}

/* ---- weights in block formats ------------------------------------------------------------------------------------------ */

/* A random row of `k` values. In the formats up to q6_k: random blocks, whose scales are between 2^-6 and 2^-3; in the others: random
 * values, rounded. */
static void draw_row(uint8_t *b, int k, te_block_format f) {
    static float v[64 * 256];
    const size_t block = (size_t)te_block_bytes(f), bytes = te_block_row_bytes(f, k);
    if (f > TE_BLOCK_q6_k) {
        for (int i = 0; i < k; i++) v[i] = uniform() * (float)(1 + i / 256);
        te_quantize_row(b, v, k, f);
        return;
    }
    for (size_t i = 0; i < bytes; i++) b[i] = (uint8_t)next_number();
    for (size_t i = 0; i < bytes; i += block) {
        const size_t at = f == TE_BLOCK_q6_k ? 208 : 0;
        b[i + at + 1] = (uint8_t)(0x24 + next_number() % 12 + 0x80 * (next_number() % 2));
        if (te__block_has_offset(f)) b[i + 3] = (uint8_t)(0x24 + next_number() % 12);
    }
}
static void blocks(int m, int n, int k, te_block_format f) {
    const size_t row_bytes = te_block_row_bytes(f, k);
    uint8_t *const w = (uint8_t *)x.b + 1; /* not aligned */
    te_weight_part part;
    te_quantized_weight weight;
    te_gemm g = te_gemm_of(m, n, k);
    part.data = w, part.format = f, part.rows = n, weight.part = &part, weight.parts = 1;
    g.trans_b = 1, g.dtype = g.out = TE_f32, g.a = x.a, g.b_quantized = &weight, g.d = x.d;
    for (int j = 0; j < n; j++) draw_row(w + (size_t)j * row_bytes, k, f);
    for (int64_t i = 0; i < (int64_t)m * k; i++) x.a[i] = uniform();
    multiply(&g, te_block_name(f));
    /* what the kernels multiply: the rounded activations, which multiply() has left in the scratch memory */
    const int group = te__block_group(f), values = te_block_values(f);
    char *const scratch = (char *)x.scratch + (values < TE_BLOCK_MAX_VALUES ? 0 : te__quantized_lay_out(&g).blocks_256);
    const te__activations a = te__activations_at(scratch, m, k, values < TE_BLOCK_MAX_VALUES ? 32 : 256);
    memset(x.sum, 0, sizeof x.sum), memset(x.terms, 0, sizeof x.terms);
    for (int j = 0; j < n; j++) {
        const uint8_t *const row = w + (size_t)j * row_bytes;
        const double of_row = te__row_scale(row, k, f);
        for (int64_t k0 = 0; k0 < k; k0 += values) {
            te__block_codes c;
            te__block_unpack(&c, row + te__blocks_bytes(f, k0), f);
            for (int i = 0; i < m; i++)
                for (int p = 0; p < values; p += group) {
                    const int64_t at = ((int64_t)i * k + k0 + p) / 32;
                    double dot = 0, size = 0;
                    for (int q = p; q < p + group; q++) {
                        const double term = (double)c.q[q] * a.q[(int64_t)i * k + k0 + q];
                        dot += term, size += fabs(term);
                    }
                    const double scale = of_row * (double)c.scale[p / group] * (double)a.scale[at];
                    const double offset = group == 32 ? (double)c.offset[p / group] * (double)a.scaled_sum[at] : 0;
                    /* AVX kernels subtract the zero point, at most 128, from the sum */
                    x.sum[i * n + j] += scale * dot + offset, x.terms[i * n + j] += fabs(scale) * (size + 128.0 * 127 * group / 8) + fabs(offset);
                }
        }
    }
    compare(&g, te_block_name(f));
}

static void check_isa(void) {
    static const int rows[] = {1, 2, 3, 4, 5, 8, 9, 26}, sizes[][2] = {{1, 32}, {7, 33}, {16, 256}, {37, 1040}};
    for (int r = 0; r < 8; r++)
        for (int s = 0; s < 4; s++)
            for (int t = 0; t < 3; t++) floats(rows[r], sizes[s][0], sizes[s][1], t == 0 ? TE_f32 : t == 1 ? TE_bf16 : TE_f16);
    static const int blocks_of_row[] = {1, 3, 4, 6, 7};
    for (int r = 0; r < 8; r++)
        for (int s = 0; s < 5; s++)
            for (int f = TE_BLOCK_q8_0; f < TE_BLOCK_COUNT; f++) {
                const te_block_format format = (te_block_format)f;
                const int k = blocks_of_row[s] * te_block_values(format);
                if (k <= MAX_K) blocks(rows[r], 19, k, format);
            }
    printf("isa %d: %s\n", ctx.isa, failed ? "FAIL" : "ok");
}

/* ---- the same bits everywhere ------------------------------------------------------------------------------------------ */

static uint64_t hash(uint64_t h, const void *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) h = (h ^ ((const uint8_t *)p)[i]) * 1099511628211u;
    return h;
}
static void print_bits(void) {
    uint64_t h = 14695981039346656037u;
    for (uint32_t i = 0; i < 65536; i++) {
        const float v[2] = {te_float_of_f16((uint16_t)i), te_float_of_bf16((uint16_t)i)};
        if (!(v[0] != v[0]) && !(v[1] != v[1])) h = hash(h, v, sizeof v);
    }
    printf("from 16 bits %016llx\n", (unsigned long long)h);
    for (uint32_t i = 0; i < 1u << 20; i++) {
        const float v = te_float_of_bits(i << 12 | (next_number() & 4095u));
        if (v != v) continue;
        const uint16_t to[2] = {te_f16_of_float(v), te_bf16_of_float(v)};
        const uint8_t fp8[2] = {te_fp8_of_float(v, TE_e4m3), te_fp8_of_float(v, TE_e5m2)};
        h = hash(hash(h, to, sizeof to), fp8, sizeof fp8);
    }
    printf("to 16 and 8 bits %016llx\n", (unsigned long long)h);
    uint64_t before = 0;
    for (int f = TE_BLOCK_q8_0; f < TE_BLOCK_COUNT; f++) {
        const te_block_format format = (te_block_format)f;
        if (f == TE_BLOCK_q6_k + 1) {
            printf("block formats %016llx\n", (unsigned long long)h);
            before = h, h = 14695981039346656037u;
        }
        static float v[64 * 256];
        const size_t bytes = te_block_row_bytes(format, 64 * 256);
        uint8_t *const big = (uint8_t *)x.b;
        for (int i = 0; i < 64 * 256; i++) v[i] = uniform() * (float)(1 + i / 256);
        if (te_block_values(format) < TE_BLOCK_MAX_VALUES) { /* k-quants are not promised to have the same bits */
            te_quantize_row(big, v, 64 * 256, format);
            h = hash(h, big, bytes);
        }
        if (f <= TE_BLOCK_q6_k) draw_row(big, 64 * 256, format);
        te_dequantize_row(v, big, 64 * 256, format);
        h = hash(h, v, sizeof v);
    }
    printf("mxfp4, int4, int8 %016llx\n", (unsigned long long)h);
    h = before;
    for (uint32_t i = 0; i < 4096; i++) {
        uint32_t word[4];
        te_philox(word, 1234567890123u + i, (uint64_t)i << 20, i & 7, i);
        const float v = te_uniform(word[3]);
        h = hash(hash(h, word, sizeof word), &v, sizeof v);
    }
    printf("random numbers %016llx\n", (unsigned long long)h);
}

int main(int argc, char **argv) {
    if (te_context_create(&ctx, 0, 1) != TE_OK) return 2;
    if (argc > 1 && !strcmp(argv[1], "bits")) {
        print_bits();
        return 0;
    }
    const int best = ctx.isa;
    for (int isa = 0; isa <= best; isa++) ctx.isa = isa, check_isa();
    return failed;
}
