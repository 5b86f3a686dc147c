// recipes.cu -- the time of a GPT block, of the LayerNorm + MLP part, and of a layer of experts under FP8 recipes, compared with the same lists
// in bf16 and with their FP8 GEMMs alone; both sides run alternately on one GPU. Casts of weights are not included: te_recipes_step casts
// them once a step.
//
//     nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -I. bench/recipes.cu -o recipes -lcublasLt && ./recipes recipes.tsv COMMIT
#include "bench.h"
#include "models.h" // gpt4096
#include "te/moe.h"

TE_SEQUENTIAL(gpt_current, (bf16, (recipe, fp8_current)), GPT_4096)
TE_SEQUENTIAL(gpt_delayed, (bf16, (recipe, fp8_delayed)), GPT_4096)
TE_SEQUENTIAL(gpt_kept, (bf16, (recipe, fp8_delayed), (inputs, saved)), GPT_4096)
TE_SEQUENTIAL(gpt_block, (bf16, (recipe, fp8_block)), GPT_4096)
TE_SEQUENTIAL(gpt_row, (bf16, (recipe, fp8_row)), GPT_4096)
TE_SEQUENTIAL(mlp_delayed, (bf16, (recipe, fp8_delayed)), MLP_PART(4096, 16384, 0.1f))
TE_SEQUENTIAL(mlp_kept, (bf16, (recipe, fp8_delayed), (inputs, saved)), MLP_PART(4096, 16384, 0.1f))
TE_SEQUENTIAL(mlp_block, (bf16, (recipe, fp8_block)), MLP_PART(4096, 16384, 0.1f))
TE_SEQUENTIAL(mlp_block_kept, (bf16, (recipe, fp8_block), (inputs, saved)), MLP_PART(4096, 16384, 0.1f))

// The experts of Qwen3-30B-A3B.
#define EXPERTS                                                                                                                  \
    (fork, x), (rmsnorm, n, 2048), (router, r, 2048, 128, (top_k, 8), (renormalise, 1)), (expert_linear, up, 2048, 2 * 768, 128), \
        (swiglu, act), (expert_linear, down, 768, 2048, 128), (combine, r), (add, x)
TE_SEQUENTIAL(experts, bf16, EXPERTS)
TE_SEQUENTIAL(experts_block, (bf16, (recipe, fp8_block)), EXPERTS)

// Allocate an operand [rows, k] of normal numbers. Rowwise and blockwise scales are normal numbers, too.
static const void *operand(te_gemm_fp8 *o, te_scaling scaling, te_dtype dtype, int64_t rows, int64_t k, uint32_t id) {
    const int64_t scales = te_scaling_count(scaling, rows, k);
    void *p = bench_allocate((size_t)(rows * k)), *inverse = scaling == TE_SCALING_TENSORWISE ? nullptr : bench_allocate((size_t)scales * 4);
    bench_check(te_fill_normal(p, dtype, rows * k, 0, 1, 4, id, &bench_ctx), "an operand");
    if (inverse) bench_check(te_fill_normal(inverse, TE_f32, scales, 1, 0.1f, 5, id, &bench_ctx), "scales");
    o->scaling = scaling, o->dtype = dtype, o->inverse = (const float *)inverse;
    return p;
}
// The three GEMMs of a linear in FP8, forward and backward, with operands that are in FP8 already.
struct products {
    te_gemm forward, dx, dw;
    products(int rows, int in, int out, bool blockwise) : forward(te_gemm_of(rows, out, in)), dx(te_gemm_of(rows, in, out)), dw(te_gemm_of(out, in, rows)) {
        const te_scaling first = blockwise ? TE_SCALING_BLOCKWISE_1D : TE_SCALING_TENSORWISE;
        uint32_t id = 0;
        for (te_gemm *g : {&forward, &dx, &dw}) {
            const te_scaling second = !blockwise ? first : g == &dw ? TE_SCALING_BLOCKWISE_1D : TE_SCALING_BLOCKWISE_2D;
            g->trans_b = 1, g->dtype = TE_bf16, g->out = g == &dw ? TE_f32 : TE_bf16, g->fast = g == &forward && !blockwise;
            g->a = operand(&g->a_fp8, first, blockwise || g == &forward ? TE_e4m3 : TE_e5m2, g->m, g->k, id++);
            g->b = operand(&g->b_fp8, second, TE_e4m3, g->n, g->k, id++);
            g->d = bench_allocate((size_t)(g->m * g->n) * 4);
        }
    }
    void run() const {
        for (const te_gemm *g : {&forward, &dx, &dw}) bench_check(te_gemm_run(g, &bench_ctx), "product");
    }
};
// Compare the forward and backward of `plan` with the GEMMs of its linears alone.
static void beside_products(const te_plan *plan, int batch, int seq) {
    if (bench_only && !strstr(plan->name, bench_only)) return;
    bench_case c(plan, batch, seq, 256);
    c.make(1);
    std::vector<products> p;
    for (int i = 0; i < plan->op_count; i++)
        if (plan->op[i].recipe != TE_RECIPE_none) p.emplace_back((int)c.rows, plan->op[i].in, plan->op[i].out, TE_IS_BLOCKWISE(plan->op[i].recipe));
    for (const products &one : p) one.run(); // autotunes the GEMM
    bench_graph a([&](int) { c.forward(0), c.backward(0); }, 2), b([&](int) { for (const products &one : p) one.run(); }, 2);
    for (double us = 0; us < 3e5; us += 2 * ((double)a.us.back() + (double)b.us.back())) a.run(), b.run();
    a.us.clear(), b.us.clear();
    for (int i = 0; i < 2 * BENCH_ROUNDS; i++) a.run(), b.run();
    bench_result r;
    r.bytes = r.flops = r.copy_us = 0, r.us = a.median(), r.spread = a.spread(), r.beside_us = b.median();
    bench_print(plan->name, "training", "whole", std::to_string(c.rows) + "x" + std::to_string(plan->in), r, "its GEMMs alone");
}

int main(int argc, char **argv) {
    bench_open(argc, argv);
    bench_ctx.gemm_tune = 1;
    for (const te_plan *p : {gpt_current_plan(), gpt_delayed_plan(), gpt_kept_plan(), gpt_block_plan()}) bench_against(p, {gpt4096_plan()}, 4, 2048, TE_BACKWARD, "in bf16");
    for (const te_plan *p : {gpt_row_plan(), gpt_delayed_plan()})
        for (const int seq : {1, 8, 64, 2048}) bench_against(p, {gpt4096_plan()}, seq == 2048 ? 4 : 1, seq, TE_INFER, "in bf16");
    for (te_pass pass : {TE_INFER, TE_FORWARD, TE_BACKWARD}) bench_against(experts_block_plan(), {experts_plan()}, 16, 2048, pass, "in bf16");
    beside_products(mlp_delayed_plan(), 4, 2048);
    beside_products(mlp_kept_plan(), 4, 2048);
    beside_products(mlp_block_plan(), 4, 2048);
    beside_products(mlp_block_kept_plan(), 4, 2048);
    for (const te_plan *p : {gpt4096_plan(), gpt_current_plan(), gpt_delayed_plan(), gpt_block_plan()}) bench_plan(p, 4, 2048);
    bench_whole(gpt_delayed_plan(), 4, 2048);
    return bench_close();
}
