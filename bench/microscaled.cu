// microscaled.cu -- times of casts to MXFP8 and NVFP4 on this GPU, each compared with a copy of as many bytes.
//
//     nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -I. bench/microscaled.cu -o microscaled -lcublasLt
//     ./microscaled [OUT.tsv [commit]]
#include "bench.h"
#include "te/fp8/impl/quantize_mxfp8.h"
#include "te/fp8/impl/quantize_nvfp4.h"

TE_QUANTIZE_MXFP8(mx, bf16)
TE_QUANTIZE_NVFP4(nv, bf16)
TE_ROUND_MXFP8(mx_round, bf16)
TE_ROUND_NVFP4(nv_round, bf16)

enum { ROWWISE = 1, COLUMNWISE = 2, ROUNDED = 4, HADAMARD = 8, SQUARE = 16, STOCHASTIC = 32, SWIZZLED = 64 };

static void casts(int64_t rows, int64_t cols) {
    const int64_t n = rows * cols;
    const int sets = 3, runs = n > 64 << 20 ? 6 : 12;
    const std::string shape = std::to_string(rows) + "x" + std::to_string(cols);
    std::vector<void *> x, y, yt;
    float *amax = (float *)bench_allocate(8);
    uint8_t *scales = (uint8_t *)bench_allocate((size_t)n / 16 + 65536), *scales_t = (uint8_t *)bench_allocate((size_t)n / 16 + 65536);
    for (int i = 0; i < sets; i++) {
        x.push_back(bench_allocate((size_t)n * 2)), y.push_back(bench_allocate((size_t)n * 2)), yt.push_back(bench_allocate((size_t)n * 2));
        bench_check(te_fill_normal(x.back(), TE_bf16, n, 0, 1, 5, (uint32_t)i, &bench_ctx), "numbers");
    }
    const auto run = [&](te_microscaling format, const char *what, int flags) {
        const double element = format == TE_MXFP8 ? 1 + 1 / 32.0 : 0.5 + 1 / 16.0, out = flags & ROUNDED ? 2 : element;
        const double bytes = (double)n * ((format == TE_MXFP8 ? 2 : 4) + out * (!!(flags & ROWWISE) + !!(flags & COLUMNWISE)));
        bench_print("cast", format == TE_MXFP8 ? "mxfp8" : "nvfp4", what, shape, bench_time([&](int i) {
            te_quantize_microscaled q = te_quantize_microscaled_of(rows, cols);
            te_microscaled_out *const to[] = {&q.y, &q.yt};
            for (int k = 0; k < 2; k++) {
                void *data = k ? yt[i % sets] : y[i % sets];
                if (!(flags & (k ? COLUMNWISE : ROWWISE))) continue;
                if (flags & ROUNDED) to[k]->rounded = data;
                else to[k]->data = (uint8_t *)data, to[k]->scales = k ? scales_t : scales;
            }
            q.x = x[i % sets], q.amax = amax, q.hadamard = !!(flags & HADAMARD), q.square_blocks = !!(flags & SQUARE);
            q.swizzled = !!(flags & SWIZZLED), q.rng = flags & STOCHASTIC ? bench_ctx.rng : nullptr;
            const auto of_mxfp8 = flags & ROUNDED ? mx_round_run : mx_run, of_nvfp4 = flags & ROUNDED ? nv_round_run : nv_run;
            bench_check((format == TE_MXFP8 ? of_mxfp8 : of_nvfp4)(&q, &bench_ctx), what);
        }, bytes, 0, runs));
    };
    run(TE_MXFP8, "rowwise and columnwise", ROWWISE | COLUMNWISE);
    run(TE_MXFP8, "rowwise and columnwise, swizzled scales", ROWWISE | COLUMNWISE | SWIZZLED);
    run(TE_MXFP8, "rowwise", ROWWISE);
    run(TE_MXFP8, "rowwise and columnwise, rounded to bf16", ROWWISE | COLUMNWISE | ROUNDED);
    run(TE_NVFP4, "rowwise and columnwise with Hadamard", ROWWISE | COLUMNWISE | HADAMARD);
    run(TE_NVFP4, "rowwise and columnwise with Hadamard, swizzled", ROWWISE | COLUMNWISE | HADAMARD | SWIZZLED);
    run(TE_NVFP4, "rowwise and columnwise with Hadamard, stochastic", ROWWISE | COLUMNWISE | HADAMARD | STOCHASTIC);
    run(TE_NVFP4, "16 x 16, rowwise and columnwise", ROWWISE | COLUMNWISE | SQUARE);
    run(TE_NVFP4, "with Hadamard, rounded to bf16", ROWWISE | COLUMNWISE | ROUNDED | HADAMARD);
    bench_release();
}

int main(int argc, char **argv) {
    bench_open(argc, argv);
    casts(8192, 4096);
    casts(32768, 4096);
    return bench_close();
}
