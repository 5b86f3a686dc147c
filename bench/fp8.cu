// fp8.cu -- times of FP8 work on this GPU: casts, with transpose and amax, compared with a copy of as many bytes, and the update of a
// model's scales. As a library it runs FP8 GEMMs for fp8_peers.py, which compares them with PyTorch's.
//
//     nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -I. bench/fp8.cu -o fp8 -lcublasLt && ./fp8 [OUT.tsv [commit]]
//     nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -Xcompiler -fPIC -shared -I. bench/fp8.cu -o libfp8.so -lcublasLt
#include "bench.h"
#include "te/fp8/impl/cast_transpose.h"
#include "te/fp8/impl/quantize_blockwise.h"
#include "te/fp8/scales.h"
#include "te/gemm/gemm.h"

// ---- casts

TE_QUANTIZE(of_f32, f32)
TE_QUANTIZE(of_bf16, bf16)
TE_QUANTIZE_BLOCKWISE(tiles_of_bf16, bf16)

// A gelu (tanh form) that stores FP8, by the kernel of te/fp8/impl/cast_transpose.h.
struct gelu_args { te_fp8_out out; const void *x; };
TE_FN void gelu_load(te_vec8 *in, const void *arg, int64_t row, int64_t col, int n, int wide) {
    const gelu_args *a = (const gelu_args *)arg;
    te_vec8_load(in, a->x, row * a->out.cols + col, n, wide, TE_bf16);
}
TE_FN void gelu_make(float v[8], const te_vec8 *in, const void *, int64_t, int64_t) {
    te_vec8_floats(v, in, TE_bf16);
    TE_UNROLL for (int k = 0; k < 8; k++) v[k] *= te_sigmoid(1.5957691f * (v[k] + 0.044715f * v[k] * v[k] * v[k]));
}
TE_FP8_KERNELS(gelu_fp8, 4, gelu_args, gelu_load, gelu_make, 1)

static void casts(int64_t rows, int64_t cols) {
    const int64_t n = rows * cols;
    const int sets = 3, runs = n > 64 << 20 ? 6 : 12;
    const std::string shape = std::to_string(rows) + "x" + std::to_string(cols);
    std::vector<void *> x, y, yt;
    float *numbers = (float *)bench_allocate(4096), one = 2.0f;
    for (int i = 0; i < sets; i++) {
        x.push_back(bench_allocate((size_t)n * 4)), y.push_back(bench_allocate((size_t)n)), yt.push_back(bench_allocate((size_t)n));
        bench_check(te_fill_normal(x.back(), TE_bf16, 2 * n, 0, 1, 5, (uint32_t)i, &bench_ctx), "numbers"); // also valid as f32: two bf16 numbers in one f32
    }
    bench_check(te_copy(&bench_ctx, numbers, &one, 4), "scale");
    bench_check(te_fill(&bench_ctx, numbers + 16, 0, 4), "amax");
    const auto run = [&](const char *what, te_dtype from, int with_y, int with_yt, int with_amax, te_dtype to) {
        const double bytes = (double)n * ((double)te_dtype_bytes(from) + with_y + with_yt);
        bench_print("cast", te_dtype_name(to), what, shape, bench_time([&](int i) {
            te_quantize q = te__quantize_of(rows, cols);
            q.x = x[i % sets], q.to = to, q.scale = numbers;
            if (with_y) q.y = y[i % sets];
            if (with_yt) q.yt = yt[i % sets];
            if (with_amax) q.amax = numbers + 16;
            bench_check(from == TE_f32 ? of_f32_run(&q, &bench_ctx) : of_bf16_run(&q, &bench_ctx), what);
        }, bytes, 0, runs));
    };
    float *inverse = (float *)bench_allocate((size_t)te_scaling_count(TE_SCALING_BLOCKWISE_1D, rows, cols) * 4);
    float *transposed_scales = (float *)bench_allocate((size_t)te_scaling_count(TE_SCALING_BLOCKWISE_1D, cols, rows) * 4);
    const auto tiles = [&](const char *what, int with_yt, int blocks) {
        const double scales = blocks ? 0.0 : 4.0 / TE_FP8_BLOCK; // bytes an element
        const double bytes = (double)n * (2 + (1 + with_yt) * (1 + scales));
        bench_print("cast", "e4m3", what, shape, bench_time([&](int i) {
            te_quantize_blockwise q = te__quantize_blockwise_of(rows, cols);
            q.x = x[i % sets], q.y = y[i % sets], q.y_inverse = inverse, q.square_blocks = blocks;
            if (with_yt) q.yt = yt[i % sets], q.yt_inverse = transposed_scales;
            bench_check(tiles_of_bf16_run(&q, &bench_ctx), what);
        }, bytes, 0, runs));
    };
    tiles("bf16 -> row-wise and transposed in tiles", 1, 0);
    tiles("bf16 -> row-wise in tiles", 0, 0);
    tiles("bf16 -> row-wise and transposed in blocks", 1, 1);
    run("bf16 -> row-wise, transposed, amax", TE_bf16, 1, 1, 1, TE_e4m3);
    run("bf16 -> transposed, amax", TE_bf16, 0, 1, 1, TE_e5m2);
    run("bf16 -> row-wise, amax", TE_bf16, 1, 0, 1, TE_e4m3);
    run("bf16 -> amax", TE_bf16, 0, 0, 1, TE_e4m3);
    run("f32 -> row-wise, transposed, amax", TE_f32, 1, 1, 1, TE_e4m3);
    bench_print("cast", "e4m3", "gelu -> row-wise, transposed, amax", shape, bench_time([&](int i) {
        gelu_args a;
        memset(&a, 0, sizeof a);
        a.out.y = (uint8_t *)y[i % sets], a.out.yt = (uint8_t *)yt[i % sets], a.out.scale = numbers, a.out.amax = numbers + 16, a.out.rows = a.out.yt_cols = rows, a.out.cols = cols;
        a.out.to = TE_e4m3, a.x = x[i % sets];
        bench_check(gelu_fp8_run(&a, &bench_ctx), "gelu");
    }, (double)n * 4, 0, runs));
    bench_release();
}

// ---- scales

static void scales(int count, int length) {
    const std::vector<te_dtype> formats((size_t)count, TE_e4m3);
    const te_scale_rule rule = {TE_AMAX_MAX, 0, 0.0f, 0};
    const size_t bytes = te_scales_bytes(count, length);
    te_scales s;
    bench_check(te_scales_init(&s, bench_allocate(bytes), bytes, formats.data(), count, length, &bench_ctx), "scales");
    bench_print("scales", "", "update", std::to_string(count) + " history " + std::to_string(length),
                bench_time([&](int) { bench_check(te_scales_update(&s, 0, count, &rule, &bench_ctx), "update"); }, (double)count * length * 4, 1e-9, 50));
    bench_release();
}

// ---- GEMMs

static te_gemm product_of(int m, int n, int k, te_dtype a, te_dtype b, te_dtype out, int fast, int beta, void *d, const void *pa, const void *pb, const float *inverse) {
    te_gemm g = te_gemm_of(m, n, k);
    g.trans_b = 1, g.dtype = TE_bf16, g.out = out, g.fast = fast, g.beta = beta ? 1.0f : 0.0f, g.a = pa, g.b = pb, g.c = g.d = d;
    g.a_fp8.scaling = g.b_fp8.scaling = TE_SCALING_TENSORWISE, g.a_fp8.dtype = a, g.b_fp8.dtype = b, g.a_fp8.inverse = inverse, g.b_fp8.inverse = inverse + 4;
    return g;
}

extern "C" {
// All work runs on this stream. Functions return null or an error text.
const char *fp8_open(void *stream) {
    const te_status status = te_context_create(&bench_ctx, 0, 1);
    bench_ctx.stream = stream, bench_ctx.gemm_tune = 1;
    return status == TE_OK ? nullptr : te_last_error(&bench_ctx);
}
void fp8_print(void) { te_gemm_print(stdout, &bench_ctx), fflush(stdout); }
// own: te_context.gemm_custom. formats: 0: e4m3 by e4m3, 1: e5m2 by e4m3. to_f32: add to d in f32, as for a weight's gradient.
const char *fp8_run(int own, int formats, int to_f32, int fast, int m, int n, int k, void *d, const void *a, const void *b, const float *inverse) {
    const te_gemm g = product_of(m, n, k, formats ? TE_e5m2 : TE_e4m3, TE_e4m3, to_f32 ? TE_f32 : TE_bf16, fast, to_f32, d, a, b, inverse);
    bench_ctx.gemm_custom = own;
    return te_gemm_fp8_run(&g, &bench_ctx) == TE_OK ? nullptr : te_last_error(&bench_ctx);
}
// Whether the library chooses its own kernel for this GEMM.
int fp8_is_own(int own, int m, int n, int k) {
    const te_gemm g = product_of(m, n, k, TE_e4m3, TE_e4m3, TE_bf16, 1, 0, nullptr, nullptr, nullptr, nullptr);
    bench_ctx.gemm_custom = own;
    return te__gemm_fp8_is_custom(&g, &bench_ctx);
}
// Cast a tensor to FP8.
const char *fp8_cast(void *y, void *yt, float *amax, const void *x, const float *scale, int64_t rows, int64_t cols, int e5m2) {
    te_quantize q = te__quantize_of(rows, cols);
    q.y = y, q.yt = yt, q.amax = amax, q.x = x, q.scale = scale, q.to = e5m2 ? TE_e5m2 : TE_e4m3;
    return of_bf16_run(&q, &bench_ctx) == TE_OK ? nullptr : te_last_error(&bench_ctx);
}
}

int main(int argc, char **argv) {
    bench_open(argc, argv);
    casts(8192, 4096), casts(32768, 4096), casts(32768, 8192), casts(8192, 16384);
    scales(200, 1), scales(200, 16), scales(200, 1024), scales(2000, 16);
    return bench_close();
}
