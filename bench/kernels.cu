// kernels.cu -- the time of every op, and of every pattern of the fusion lists without a GEMM, compared with a copy of as many bytes;
// the gradient norm is compared with a kernel that only reads. It also times plain kernels with other ratios of reads to writes than a
// copy, because the memory's bandwidth depends on this ratio, and with it the bound of a step.
//
//     nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -I. bench/kernels.cu -o kernels -lcublasLt && ./kernels kernels.tsv COMMIT
#include "bench.h"
#include "te/moe.h" /* router_expert_linear, combine_expert_linear */

// ---- the fusion lists: each pattern with one kind of each family, at 4096 columns

struct pattern_case { const te_plan *(*plan)(void); const char *step; te_pass pass; };
static std::vector<pattern_case> &pattern_cases() {
    static std::vector<pattern_case> cases;
    return cases;
}
struct add_pattern_case {
    add_pattern_case(const te_plan *(*plan)(void), const char *step, te_pass pass) { pattern_cases().push_back({plan, step, pass}); }
};
#define PATTERN_CASE(name, pattern, step, ...)        \
    TE_SEQUENTIAL(name, PATTERN_DTYPE, __VA_ARGS__) \
    static const add_pattern_case name##_added(name##_plan, step, PATTERN_PASS);

#define PATTERN_SPACE forward_patterns
#define PATTERN_PASS TE_FORWARD
#define PATTERN_DTYPE bf16
#define PATTERN_IN 4096
#define PATTERN_OUT 4096
#define PATTERN_ALL 0
#include "../tests/patterns_forward.h"

#undef PATTERN_OF
#define PATTERN_SPACE backward_patterns
#undef PATTERN_PASS
#define PATTERN_PASS TE_BACKWARD
#define PATTERN_IN 4096
#define PATTERN_OUT 4096
#define PATTERN_ALL 0
#include "../tests/patterns_backward.h"

// ---- ops by themselves

#define ACTIVATION(kind) TE_SEQUENTIAL(of_##kind, bf16, (bias, b, 16384), (kind, a))
#define GATED(kind, etc) TE_SEQUENTIAL(of_##kind, bf16, (bias, b, 2 * 16384), (kind, a))
#define NORM(kind, etc)                                      \
    TE_SEQUENTIAL(kind##_768, bf16, (kind, n, 768))          \
    TE_SEQUENTIAL(kind##_4096, bf16, (kind, n, 4096))        \
    TE_SEQUENTIAL(kind##_8192, bf16, (kind, n, 8192))        \
    TE_SEQUENTIAL(kind##_12288, bf16, (kind, n, 12288))      \
    TE_SEQUENTIAL(add_fork_##kind##_4096, bf16, (fork, x), (scale, s, 0.5f), (add, x), (fork, z), (kind, n, 4096), (add, z))
TE_ACTIVATIONS(ACTIVATION)
TE_GATED_ACTIVATIONS(GATED)
NORM(layernorm, ~)
NORM(rmsnorm, ~)
TE_SEQUENTIAL(bias_16384, bf16, (bias, b, 16384))
TE_SEQUENTIAL(bias_dropout_add_16384, bf16, (input, residual, 16384), (bias, b, 16384), (dropout, d, 0.1f), (add, residual))
TE_SEQUENTIAL(rope_128, bf16, (rope, r, 128, 0, 128))
TE_SEQUENTIAL(qwen3_heads, bf16, (head_norm, n, 32, 8, 128), (rope, r, 32, 8, 128))
TE_SEQUENTIAL(cross_entropy_50257, bf16, (cross_entropy, c, 50257))
TE_SEQUENTIAL(cross_entropy_50304, bf16, (cross_entropy, c, 50304))
TE_SEQUENTIAL(cross_entropy_131072, bf16, (cross_entropy, c, 131072))
TE_SEQUENTIAL(embedding_4096, bf16, (embedding, e, 50304, 4096))
TE_SEQUENTIAL(weights, bf16, (linear, a, 16384, 16384), (linear, b, 16384, 4096), (layernorm, n, 4096), (linear, c, 4096, 16384))

static void whole(const te_plan *plan, int rows, int vocabulary = 256) { // forward and backward
    for (te_pass pass : {TE_FORWARD, TE_BACKWARD}) bench_steps(plan, 1, rows, pass, nullptr, vocabulary, false);
}

static void optimizer() {
    te_context *ctx = &bench_ctx;
    const te_plan *plan = weights_plan();
    std::vector<te_param> params(16);
    int count = 0;
    for (int i = 0; i < plan->op_count; i++) count += plan->op[i].params;
    te_model m, *models[] = {&m};
    const int64_t n = te_plan_param_elements(plan);
    float *grads = (float *)bench_allocate(te_plan_grad_bytes(plan));
    bench_check(te_model_bind(&m, plan, params.data(), count, bench_allocate(te_plan_param_bytes(plan)), grads, ctx), "bind");
    bench_check(te_model_randomize(&m, 0.02f, 1, 0, ctx), "weights");
    bench_check(te_fill_normal(grads, TE_f32, n, 0, 1e-3f, 5, 0, ctx), "gradients");
    uint4 *nothing = (uint4 *)bench_allocate(sizeof(uint4));
    te_grad_norm norm;
    const size_t norm_bytes = te_grad_norm_bytes(models, 1);
    bench_check(te_grad_norm_init(&norm, bench_allocate(norm_bytes), norm_bytes, models, 1, ctx), "gradient norm");
    const bench_result read = bench_time([&](int) { bench_check(te_grad_norm_run(&norm, ctx), "gradient norm"); }, (double)n * 4, 0, 4,
                                         bench_streams<1, 0>(nothing, (const uint4 *)grads, (size_t)n / 4));
    bench_print("weights", "step", "grad_norm", std::to_string(n), read, "a plain kernel that reads");
    for (int clip = 0; clip < 2; clip++) {
        te_adamw opt;
        te_adamw_config config = te_adamw_defaults(1e-4f);
        config.max_norm = clip ? 1.0f : 0.0f;
        const size_t bytes = te_adamw_bytes(models, 1);
        bench_check(te_adamw_init(&opt, bench_allocate(bytes), bytes, models, 1, &config, ctx), "optimizer");
        const bench_result r = bench_time([&](int) { bench_check(te_adamw_step(&opt, ctx), "optimizer"); }, (double)n * (4 + 4 * 3 + 4 * 3 + 2 + (clip ? 4 : 0)), 0, 4);
        bench_print("weights", "step", clip ? "grad_norm_adamw" : "adamw", std::to_string(n), r);
    }
    bench_release();
}

// Time a plain kernel that reads `reads` arrays and writes `writes` arrays of 8192 x 16384 elements of 16 bits.
template <int reads, int writes> static void mix() {
    const size_t n = (size_t)8192 * 16384 / 8;
    uint4 *memory = (uint4 *)bench_allocate((reads + writes) * n * sizeof(uint4));
    bench_check(te_fill_normal(memory, TE_bf16, (int64_t)((reads + writes) * n * 8), 0, 1, 7, 0, &bench_ctx), "numbers");
    bench_result best;
    best.us = 0;
    for (const auto &stream : bench_streams<reads, writes>(memory + reads * n, memory, n)) {
        const bench_result r = bench_time(stream, 16.0 * (double)((reads + writes) * n), 0, 4);
        if (best.us <= 0 || r.us < best.us) best = r;
    }
    const std::string name = std::to_string(reads) + (reads == 1 ? " read" : " reads") + (writes ? " + " + std::to_string(writes) + (writes == 1 ? " write" : " writes") : "");
    bench_print("memory", "plain", name.c_str(), "8192x16384", best);
    bench_release();
}

int main(int argc, char **argv) {
    bench_open(argc, argv);
    for (const te_plan *p : {layernorm_4096_plan(), rmsnorm_4096_plan()}) whole(p, 8192), whole(p, 32768);
    for (const te_plan *p : {layernorm_8192_plan(), rmsnorm_8192_plan()}) whole(p, 32768);
    for (const te_plan *p : {layernorm_768_plan(), rmsnorm_768_plan()}) whole(p, 8192);
    for (const te_plan *p : {layernorm_12288_plan(), rmsnorm_12288_plan()}) whole(p, 1024);
    bench_step(add_fork_layernorm_4096_plan(), 1, 8192, TE_FORWARD, "add_fork_layernorm");
    bench_step(add_fork_rmsnorm_4096_plan(), 1, 8192, TE_FORWARD, "add_fork_rmsnorm");
#define RUN_ACTIVATION(kind) bench_steps(of_##kind##_plan(), 1, 8192, TE_INFER, nullptr, 256, false), whole(of_##kind##_plan(), 8192);
#define RUN_GATED(kind, etc) RUN_ACTIVATION(kind)
    TE_ACTIVATIONS(RUN_ACTIVATION)
    TE_GATED_ACTIVATIONS(RUN_GATED)
    whole(bias_16384_plan(), 8192);
    whole(bias_dropout_add_16384_plan(), 8192);
    for (te_pass pass : {TE_FORWARD, TE_BACKWARD}) bench_step(rope_128_plan(), 4, 2048, pass, "rope");
    bench_step(qwen3_heads_plan(), 4, 2048, TE_FORWARD, "head_norm_rope");
    bench_step(qwen3_heads_plan(), 4, 2048, TE_BACKWARD, "rope_head_norm");
    whole(cross_entropy_50257_plan(), 8192, 50257);
    whole(cross_entropy_50304_plan(), 8192, 50257);
    whole(cross_entropy_131072_plan(), 4096, 128000);
    whole(embedding_4096_plan(), 8192, 50257);
    if (!bench_only) optimizer();
    if (!bench_only) mix<1, 0>(), mix<1, 1>(), mix<1, 2>(), mix<2, 1>(), mix<3, 1>();
    for (const pattern_case &c : pattern_cases()) bench_step(c.plan(), 4, 2048, c.pass, c.step);
    return bench_close();
}
