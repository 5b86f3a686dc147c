// turns.cu -- a library for peers.py, which runs it alternately with PyTorch: the GEMMs of a linear; the GPT, Llama and Qwen3 blocks and their
// attention, forward and backward, and inference of a few rows. As a program it prints what autotuning gains at the shapes of the GPT block.
//
//     nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -Xcompiler -fPIC -shared -I. bench/turns.cu -o libturns.so -lcublasLt
#include "models.h" // gpt4096
#include "turns.h"

TE_SEQUENTIAL(llama4096, bf16, LLAMA_4096)
TE_SEQUENTIAL(qwen4096, bf16, QWEN3_4096)
TE_SEQUENTIAL(attention4096, bf16, (attention, attn, 32, 32, 128)) // the attention of the GPT block
TE_SEQUENTIAL(attention_gqa, bf16, (attention, attn, 32, 8, 128))  // the attention of the other two blocks

list lists[] = {{gpt4096_plan()}, {attention4096_plan()}, {llama4096_plan()}, {qwen4096_plan()}, {attention_gqa_plan()}};
const int list_count = sizeof lists / sizeof *lists;

// ---- GEMMs

// y[m, n] = x[m, k] w[n, k]^T;  dx[m, k] = dy[m, n] w;  dw[n, k] = dy^T x in f32, in bf16
enum { FORWARD, DGRAD, WGRAD_F32, WGRAD };

static te_gemm product_of(int which, int m, int n, int k, void *out, const void *a, const void *b) {
    te_gemm g = which == FORWARD ? te_gemm_of(m, n, k) : which == DGRAD ? te_gemm_of(m, k, n) : te_gemm_of(n, k, m);
    g.a = a, g.b = b, g.d = out, g.trans_b = which == FORWARD, g.trans_a = which >= WGRAD_F32, g.dtype = TE_bf16, g.out = which == WGRAD_F32 ? TE_f32 : TE_bf16;
    return g;
}

extern "C" {
// Run a GEMM as a step of a list runs it.
const char *products_run(int which, int m, int n, int k, void *out, const void *a, const void *b) {
    const te_gemm g = product_of(which, m, n, k, out, a, b);
    te_product_kernels *kernels = which == FORWARD ? TE_UNFUSED_GEMM(bf16, forward) : which == DGRAD ? TE_UNFUSED_GEMM(bf16, backward) : nullptr;
    return text_of(te_gemm_is_custom(kernels, &g, &context) ? te__unfused_gemm_run(kernels, &g, &context) : te_gemm_run(&g, &context));
}
// The time of cuBLASLt's first candidate over that of its fastest; 1 where one of the library's own kernels runs.
double products_gain(int which, int m, int n, int k) {
    const te_gemm g = product_of(which, m, n, k, nullptr, nullptr, nullptr);
    const te__gemm_plan *p = te__gemm_find_plan(&g, &context);
    return p && p->timed > 0 ? (double)p->product.first_ns / (double)p->product.best_ns : 1.0;
}
}

int main() {
    const int m = 8192, shapes[][2] = {{12288, 4096}, {4096, 4096}, {16384, 4096}, {4096, 16384}};
    const size_t bytes = (size_t)16384 * 16384 * 4;
    void *a = nullptr, *b = nullptr, *out = nullptr;
    const char *error = turns_open(nullptr);
    if (!error && (te_allocate(&context, &a, bytes) || te_allocate(&context, &b, bytes) || te_allocate(&context, &out, bytes) ||
                   te_fill_normal(a, TE_bf16, bytes / 2, 0, 1, 1, 0, &context) || te_fill_normal(b, TE_bf16, bytes / 2, 0, 1, 1, 1, &context)))
        error = te_last_error(&context);
    context.gemm_custom = 0; // cuBLASLt only
    for (const auto &shape : shapes)
        for (int which = FORWARD; which <= WGRAD && !error; which++) error = products_run(which, m, shape[0], shape[1], out, a, b);
    if (!error) te_gemm_print(stdout, &context);
    else fprintf(stderr, "%s\n", error);
    return error != nullptr;
}
