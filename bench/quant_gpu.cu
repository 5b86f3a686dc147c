// quant_gpu.cu -- products of weights in few bits on this GPU: the time of each format and several numbers of rows, beside a plain read of the
// same bytes in turns, and the GEMM of the list's dtype where W is converted in the workspace.
//
//     nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -I. bench/quant_gpu.cu -o quant_gpu -lcublasLt
//     ./quant_gpu [out in [part of a format's name]]        default: 4096 x 14336, all formats
//
// There are as many copies of the weight as need 256 MiB, more than the L2 holds, and each product reads the next one. `of read` is the time
// of the fastest plain kernel that reads as many bytes, divided by the time of the product. `in a pass`: the products of a round are the
// kernels of one pass, so each loads its weight before the one in front of it ends.
#include "bench.h"
#include "te/infer.h" // te__quantized_run

enum { POOL = 256 << 20 };

static void bench_format(te_block_format f, int64_t out, int64_t in) {
    const te_weight_part shape = {nullptr, f, out};
    const te_quantized_weight one = {&shape, 1};
    const size_t bytes = te_repacked_bytes(&one, in);
    const int copies = (int)std::max((int64_t)2, POOL / (int64_t)bytes), rows[] = {1, 4, 16, 64, 512};
    char *pool = (char *)bench_allocate(bytes * (size_t)copies);
    std::vector<te_weight_part> part((size_t)copies, shape);
    std::vector<te_quantized_weight> w;
    bench_check(te_fill_normal(pool, TE_bf16, (int64_t)(bytes * (size_t)copies / 2), 0, 1, 2, 0, &bench_ctx), "data");
    for (int i = 0; i < copies; i++) part[(size_t)i].data = pool + bytes * (size_t)i, w.push_back({&part[(size_t)i], 1});
    void *x = bench_allocate((size_t)(512 * in) * 2), *y = bench_allocate((size_t)(512 * out) * 2);
    bench_check(te_fill_normal(x, TE_bf16, 512 * in, 0, 1, 1, 0, &bench_ctx), "data");
    for (const int m : rows) {
        te_gemm g = te_gemm_of(m, out, in);
        g.a = x, g.d = y, g.trans_b = 1, g.dtype = g.out = TE_bf16;
        const size_t scratch = te__quantized_scratch(&g);
        g.scratch = (float *)bench_allocate(scratch + 1);
        const auto run = [&](int i) {
            te_gemm next = g;
            next.b_quantized = &w[(size_t)(i % copies)];
            bench_check(te__quantized_run<TE_bf16>(&next, &bench_ctx), "product");
        };
        const auto from = [&](int i) { return (const uint4 *)(const void *)(pool + bytes * (size_t)(i % copies)); };
        const size_t n = bytes / 16;
        uint4 *const to = (uint4 *)(void *)pool;
        const std::vector<std::function<void(int)>> reads = {
            [&](int i) { bench_stream<1, 0, 1>(to, from(i), n); }, [&](int i) { bench_stream<1, 0, 2>(to, from(i), n); },
            [&](int i) { bench_stream<1, 0, 4>(to, from(i), n); }, [&](int i) { bench_stream<1, 0, 8>(to, from(i), n); }};
        const bench_result alone = bench_time(run, (double)bytes, 1, 4 * copies, reads);
        const bench_result pass = bench_time([&](int i) {
            if (i % (4 * copies) == 0) te__launch_record_begin(&bench_ctx);
            run(i);
            if (i % (4 * copies) == 4 * copies - 1) bench_check(te__launch_record_end(&bench_ctx, TE_OK), "pass");
        }, (double)bytes, 1, 4 * copies);
        printf("%-5s %lld x %lld %4d rows %8.2f us %7.1f GB/s, %.2f of read (%.2f us); in a pass %8.2f us, %.2f of read; %.1f TFLOP/s\n", te_block_name(f),
               (long long)out, (long long)in, m, alone.us, (double)bytes / alone.us * 1e-3, alone.beside_us / alone.us, alone.beside_us, pass.us,
               alone.beside_us / pass.us, 2e-6 * m * (double)(out * in) / alone.us);
        fflush(stdout);
    }
    bench_release();
}
int main(int argc, char **argv) {
    const int64_t out = argc > 2 ? atoll(argv[1]) : 4096, in = argc > 2 ? atoll(argv[2]) : 14336;
    const char *only = argc > 3 ? argv[3] : "";
    bench_open(1, argv);
    for (int f = TE_BLOCK_q8_0; f < TE_BLOCK_COUNT; f++)
        if (strstr(te_block_name((te_block_format)f), only) && in % te_block_values((te_block_format)f) == 0) bench_format((te_block_format)f, out, in);
    return bench_close();
}
