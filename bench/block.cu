// block.cu -- the time of each step of a plan on this GPU: GPT blocks of two sizes, a Llama block, the LayerNorm + MLP part by
// itself, embedding and head. It also compares fused steps with their GEMM alone at the same shapes, and weight gradients that are added to
// those of the previous micro-batch with those that are not. GEMMs are autotuned; the gain of that is printed last.
//
//     nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -I. bench/block.cu -o block -lcublasLt && ./block block.tsv COMMIT
#include "bench.h"
#include "models.h" // gpt4096

TE_SEQUENTIAL(gpt768, bf16, ATTENTION_PART(768, 12, 0.1f), MLP_PART(768, 3072, 0.1f))
TE_SEQUENTIAL(mlp4096, bf16, MLP_PART(4096, 16384, 0.1f))
TE_SEQUENTIAL(llama4096, bf16, LLAMA_4096)
TE_SEQUENTIAL(embed768, bf16, (embedding, wte, 50304, 768), (positions, wpe, 1024, 768))
TE_SEQUENTIAL(head768, bf16, (layernorm, lnf, 768), (linear, lm, 768, 50304), (cross_entropy, loss, 50304))
TE_SEQUENTIAL(bare_qkv, bf16, (linear, l, 4096, 12288))
TE_SEQUENTIAL(bare_gqa, bf16, (linear, l, 4096, 6144))
TE_SEQUENTIAL(bare_proj, bf16, (linear, l, 4096, 4096))
TE_SEQUENTIAL(bare_fc1, bf16, (linear, l, 4096, 16384))
TE_SEQUENTIAL(bare_fc2, bf16, (linear, l, 16384, 4096))

TE_SEQUENTIAL(linear_bias_gelu, bf16, (linear, l, 4096, 16384), (bias, b, 16384), (gelu, a))
TE_SEQUENTIAL(linear_rope, bf16, (linear, l, 4096, 12288), (rope, r, 32, 32, 128))
TE_SEQUENTIAL(linear_rope_gqa, bf16, (linear, l, 4096, 6144), (rope, r, 32, 8, 128))
TE_SEQUENTIAL(linear_bias_rope, bf16, (linear, l, 4096, 12288), (bias, b, 12288), (rope, r, 32, 32, 128))
TE_SEQUENTIAL(attention_128, bf16, (attention, attn, 16, 16, 128))
TE_SEQUENTIAL(attention_128_fp8, bf16, (attention, attn, 16, 16, 128, (fp8, 1)))

// dweight[out, in] += dy[rows, out]^T x[rows, in] in f32, compared with the same GEMM that overwrites dweight.
static void accumulating(const char *name, int rows, int in, int out) {
    if (bench_only && !strstr(name, bench_only)) return;
    te_gemm g = te_gemm_of(out, in, rows);
    void *dy = bench_allocate((size_t)rows * out * 2), *x = bench_allocate((size_t)rows * in * 2), *dweight = bench_allocate((size_t)out * in * 4);
    bench_check(te_fill_normal(dy, TE_bf16, (int64_t)rows * out, 0, 1e-2f, 3, 0, &bench_ctx), "dy");
    bench_check(te_fill_normal(x, TE_bf16, (int64_t)rows * in, 0, 1, 3, 1, &bench_ctx), "x");
    bench_check(te_fill_normal(dweight, TE_f32, (int64_t)out * in, 0, 1, 3, 2, &bench_ctx), "dweight");
    g.a = dy, g.trans_a = 1, g.b = x, g.c = g.d = dweight, g.dtype = TE_bf16, g.out = TE_f32;
    te_gemm sum = g;
    sum.beta = 1.0f;
    const bench_result r = bench_time([&](int) { bench_check(te_gemm_run(&sum, &bench_ctx), "wgrad"); }, 0, 2.0 * rows * in * out, 10,
                                      {[&](int) { bench_check(te_gemm_run(&g, &bench_ctx), "wgrad"); }});
    bench_print(name, "wgrad", "linear, accumulating", std::to_string(rows) + "x" + std::to_string(in) + (in == out ? "" : "x" + std::to_string(out)), r, "not accumulating");
    bench_release();
}

int main(int argc, char **argv) {
    bench_open(argc, argv);
    bench_ctx.gemm_tune = 1;
    bench_plan(bare_qkv_plan(), 4, 2048);
    bench_plan(bare_proj_plan(), 4, 2048);
    bench_plan(bare_fc1_plan(), 4, 2048);
    bench_plan(bare_fc2_plan(), 4, 2048);
    accumulating("bare_qkv", 8192, 4096, 12288);
    accumulating("bare_proj", 8192, 4096, 4096);
    accumulating("bare_fc1", 8192, 4096, 16384);
    accumulating("bare_fc2", 8192, 16384, 4096);
    bench_plan(mlp4096_plan(), 4, 2048);
    bench_against(mlp4096_plan(), {bare_fc1_plan(), bare_fc2_plan()}, 4, 2048, TE_BACKWARD, "its GEMMs alone");
    for (te_pass pass : {TE_INFER, TE_FORWARD}) bench_against(linear_bias_gelu_plan(), {bare_fc1_plan()}, 4, 2048, pass, "its GEMM alone");
    for (const te_plan *p : {linear_rope_plan(), linear_bias_rope_plan()}) bench_against(p, {bare_qkv_plan()}, 4, 2048, TE_FORWARD, "its GEMM alone");
    bench_against(linear_rope_gqa_plan(), {bare_gqa_plan()}, 4, 2048, TE_FORWARD, "its GEMM alone");
    bench_against(attention_128_fp8_plan(), {attention_128_plan()}, 2, 8192, TE_FORWARD, "the same in bf16");
    bench_plan(gpt4096_plan(), 4, 2048);
    bench_whole(gpt4096_plan(), 4, 2048);
    for (int rows : {1, 8, 16, 64}) bench_whole(gpt4096_plan(), 1, rows);
    bench_plan(llama4096_plan(), 4, 2048);
    bench_plan(gpt768_plan(), 8, 1024);
    bench_plan(embed768_plan(), 8, 1024, 50257);
    bench_plan(head768_plan(), 8, 1024, 50257);
    te_gemm_print(stdout, &bench_ctx);
    return bench_close();
}
