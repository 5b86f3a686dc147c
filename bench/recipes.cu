// recipes.cu -- a GPT block and the LayerNorm + MLP part under FP8 recipes, beside the same lists in bf16 and beside their bare
// products in FP8, in turns on one GPU. Weights are cast once a step (te_recipes_step), so not here.
//
//     nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -I. bench/recipes.cu -o recipes -lcublasLt && ./recipes recipes.tsv COMMIT
#include "bench.h"
#include "models.h" // gpt4096

TE_SEQUENTIAL(gpt_current, (bf16, (recipe, fp8_current)), GPT_4096)
TE_SEQUENTIAL(gpt_delayed, (bf16, (recipe, fp8_delayed)), GPT_4096)
TE_SEQUENTIAL(mlp_delayed, (bf16, (recipe, fp8_delayed)), MLP_PART(4096, 16384, 0.1f))

// The products of a linear in FP8, forward and backward, with operands that lie ready.
struct products {
    te_gemm forward, dx, dw;
    products(int rows, int in, int out) : forward(te_gemm_of(rows, out, in)), dx(te_gemm_of(rows, in, out)), dw(te_gemm_of(out, in, rows)) {
        te_dtype first = TE_e4m3;
        uint32_t id = 0;
        for (te_gemm *g : {&forward, &dx, &dw}) {
            g->trans_b = 1, g->dtype = TE_bf16, g->out = g == &dw ? TE_f32 : TE_bf16, g->fast = g == &forward;
            g->a_fp8.scaling = g->b_fp8.scaling = TE_SCALING_TENSOR, g->a_fp8.dtype = first, g->b_fp8.dtype = TE_e4m3;
            void *a = bench_allocate((size_t)(g->m * g->k)), *b = bench_allocate((size_t)(g->n * g->k));
            bench_check(te_fill_normal(a, first, g->m * g->k, 0, 1, 4, id++, &bench_ctx), "a");
            bench_check(te_fill_normal(b, TE_e4m3, g->n * g->k, 0, 1, 4, id++, &bench_ctx), "b");
            g->a = a, g->b = b, g->d = bench_allocate((size_t)(g->m * g->n) * 4);
            first = TE_e5m2;
        }
    }
    void run() const {
        for (const te_gemm *g : {&forward, &dx, &dw}) bench_check(te_gemm_run(g, &bench_ctx), "product");
    }
};
// `plan`'s forward and backward, beside the products alone of its linears.
static void beside_products(const te_plan *plan, int batch, int seq) {
    if (bench_only && !strstr(plan->name, bench_only)) return;
    bench_case c(plan, batch, seq, 256);
    c.make(1);
    std::vector<products> p;
    for (int i = 0; i < plan->op_count; i++)
        if (plan->op[i].recipe != TE_RECIPE_none) p.emplace_back((int)c.rows, plan->op[i].in, plan->op[i].out);
    for (const products &one : p) one.run(); // is tuned here
    bench_graph a([&](int) { c.forward(0), c.backward(0); }, 2), b([&](int) { for (const products &one : p) one.run(); }, 2);
    for (double us = 0; us < 3e5; us += 2 * ((double)a.us.back() + (double)b.us.back())) a.run(), b.run();
    a.us.clear(), b.us.clear();
    for (int i = 0; i < 2 * BENCH_ROUNDS; i++) a.run(), b.run();
    bench_result r;
    r.bytes = r.flops = r.copy_us = 0, r.us = a.median(), r.spread = a.spread(), r.beside_us = b.median();
    bench_print(plan->name, "training", "whole", std::to_string(c.rows) + "x" + std::to_string(plan->in), r, "its bare products");
}

int main(int argc, char **argv) {
    bench_open(argc, argv);
    bench_ctx.gemm_tune = 1;
    for (const te_plan *p : {gpt_current_plan(), gpt_delayed_plan()}) bench_against(p, {gpt4096_plan()}, 4, 2048, TE_BACKWARD, "in bf16");
    beside_products(mlp_delayed_plan(), 4, 2048);
    for (const te_plan *p : {gpt4096_plan(), gpt_current_plan(), gpt_delayed_plan()}) bench_plan(p, 4, 2048);
    bench_whole(gpt_delayed_plan(), 4, 2048);
    return bench_close();
}
