// router.cu -- the kernels of a router (te/ops/impl/router_kernels.h) without its GEMM: the choice of the experts and the places of the routed
// rows, beside a plain kernel that reads as many bytes as there are logits.
//
//     nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -I. bench/router.cu -o router -lcublasLt
//     ./router [file.tsv [commit [part of a name]]]
//
// Each run has other logits, normal ones, of which there are more than the L2 holds. Bytes: those of the logits, read once.
#include "bench.h"
#include "te/moe.h"

// The shapes of Qwen3-30B-A3B, Mixtral and DeepSeek-V3.
#define QWEN (router, r, 2048, 128, (top_k, 8), (renormalise, 1))
#define MIXTRAL (router, r, 4096, 8, (top_k, 2), (renormalise, 1))
#define DEEPSEEK (router, r, 7168, 256, (top_k, 8), (score, sigmoid), (choice_bias, 1), (groups, 8), (groups_kept, 4), (renormalise, 1))
#define ROUTER(name, op)                                                                                  \
    TE__ROUTER_CHOOSE(name##_choose, op, bf16, 0)                                                         \
    TE__ROUTER_KERNEL(name##_place, op, te_router_gather, 8, te_formats_of(TE_bf16, TE_bf16, TE_bf16, TE_bf16), 0)
ROUTER(qwen, QWEN)
ROUTER(mixtral, MIXTRAL)
ROUTER(deepseek, DEEPSEEK)

static void router(const char *name, te_router_options o, te_router_launch_fn choose, te_router_launch_fn place, int64_t tokens) {
    if (bench_only && !strstr(name, bench_only)) return;
    const int64_t n = tokens * o.experts, rows = tokens * o.top_k, chunks = te_ceil_div(tokens, TE_ROUTER_CHUNK);
    const size_t bytes = (size_t)n * 4;
    const int sets = (int)std::min(((size_t)160 << 20) / bytes + 1, (size_t)64);
    float *const logits = (float *)bench_allocate(bytes * (size_t)sets);
    bench_check(te_fill_normal(logits, TE_f32, n * sets, 0, 1, 2, 0, &bench_ctx), "logits");
    te_router_args a;
    memset(&a, 0, sizeof a);
    a.at = te__routing_at(bench_allocate((size_t)(n + rows * 4 + o.experts + 1) * 4), tokens, n, o);
    a.rank = (int32_t *)bench_allocate((size_t)rows * 4), a.count = (int32_t *)bench_allocate((size_t)o.experts * 4);
    a.before = (int32_t *)bench_allocate((size_t)(chunks * o.experts) * 4);
    a.choice_bias = bench_allocate((size_t)o.experts * 2);
    bench_check(te_fill_normal((void *)(uintptr_t)a.choice_bias, TE_bf16, o.experts, 0, 0.1f, 3, 0, &bench_ctx), "bias");
    a.tokens = a.all_tokens = tokens, a.experts = o.experts, a.top_k = o.top_k;
    const auto all = [&, chunks](int i) {
        te_router_args b = a;
        b.at.logits = logits + n * (i % sets);
        bench_check(choose(&bench_ctx, te__grid_of(chunks, 1), &b), "choose");
        if (chunks == 1) return;
        bench_check(te_router_scan_launch(&bench_ctx, te__grid_of(te_ceil_div(o.experts, TE_ROUTER_LANES), 1), &b), "scan");
        bench_check(place(&bench_ctx, te__grid_of(chunks, 1), &b), "place");
    };
    const auto first = [&, chunks](int i) {
        te_router_args b = a;
        b.at.logits = logits + n * (i % sets);
        bench_check(choose(&bench_ctx, te__grid_of(chunks, 1), &b), "choose");
    };
    const auto read = [&](int i) {
        uint4 *const from = (uint4 *)logits;
        bench_stream<1, 0, 2>(from, from + bytes / 16 * (size_t)(i % sets), bytes / 16);
    };
    const std::string shape = std::to_string(tokens) + "x" + std::to_string(o.experts);
    for (int k = 0; k < (chunks > 1 ? 2 : 1); k++) {
        bench_result r = k ? bench_time(first, (double)bytes, 1e-9, sets, {read}) : bench_time(all, (double)bytes, 1e-9, sets, {read});
        r.flops = 0;
        bench_print(name, "router", k ? "choice" : "choice and places", shape, r, "a read");
    }
    bench_release();
}

int main(int argc, char **argv) {
    bench_open(argc, argv);
    for (int64_t tokens : {1, 64, 512, 4096, 32768}) {
        const te_router_options q = TE_OPTIONS_VALUES(QWEN), m = TE_OPTIONS_VALUES(MIXTRAL), d = TE_OPTIONS_VALUES(DEEPSEEK);
        router("qwen3", q, qwen_choose_launch, qwen_place_launch, tokens);
        router("mixtral", m, mixtral_choose_launch, mixtral_place_launch, tokens);
        router("deepseek", d, deepseek_choose_launch, deepseek_place_launch, tokens);
    }
    return bench_close();
}
