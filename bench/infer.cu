// infer.cu -- decode steps of whole models: one new token of each sequence, in Llama's shapes with random weights, as one CUDA graph. A step
// is compared with plain kernels that read as many bytes: all weights but the embedding, and the keys and values of all tokens.
//
//     nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -I. -x cu bench/infer.cu -o infer -lcublasLt
//     ./infer [file.tsv [commit [part of a name]]]
//
// Beside the step, its parts: the same kernels of all layers, without the kernels between them. A part is faster or slower alone than in the
// step, because in the step a kernel loads weights while the kernel before it ends.
#include "bench.h"
#include "te/infer.h"

#define NORM(name, d) (rmsnorm, name, d)
#define QKV(d, heads, kv, dim) (linear, qkv, d, (heads + 2 * kv) * dim), (rope, r, heads, kv, dim, (base, 500000.0f))
#define ATTEND(heads, kv, dim) (attention, a, heads, kv, dim, (cache, 1))
#define PROJ(d, heads, dim) (linear, proj, heads * dim, d)
#define FC1(d, ffn) (linear, fc1, d, 2 * ffn), (swiglu, act)
#define FC2(d, ffn) (linear, fc2, ffn, d)
// clang-format off
#define MODEL(name, dtype, d, ffn, heads, kv, dim, vocabulary)                                                                      \
    TE_INFERENCE(name##_embed, dtype, (embedding, e, vocabulary, d))                                                                \
    TE_INFERENCE(name##_block, dtype, (fork, x1), NORM(n1, d), QKV(d, heads, kv, dim), ATTEND(heads, kv, dim), PROJ(d, heads, dim), \
                 (add, x1), (fork, x2), NORM(n2, d), FC1(d, ffn), FC2(d, ffn), (add, x2))                                           \
    TE_INFERENCE(name##_end, dtype, (last_token, last), NORM(n, d), (linear, lm, d, vocabulary), (sample, next, vocabulary))        \
    TE_INFERENCE(name##_part_qkv, dtype, NORM(n1, d), QKV(d, heads, kv, dim))                                                       \
    TE_INFERENCE(name##_part_attention, dtype, ATTEND(heads, kv, dim))                                                              \
    TE_INFERENCE(name##_part_proj, dtype, PROJ(d, heads, dim))                                                                      \
    TE_INFERENCE(name##_part_norm, dtype, NORM(n2, d))                                                                              \
    TE_INFERENCE(name##_part_fc1, dtype, NORM(n2, d), FC1(d, ffn))                                                                  \
    TE_INFERENCE(name##_part_fc2, dtype, FC2(d, ffn))
// clang-format on
MODEL(llama_8b, bf16, 4096, 14336, 32, 8, 128, 128256)
MODEL(llama_1b, bf16, 2048, 8192, 32, 8, 64, 128256)
#define FP8 (bf16, (recipe, fp8_row))
MODEL(llama_8b_fp8, FP8, 4096, 14336, 32, 8, 128, 128256)

enum { LAYERS_8B = 32, LAYERS_1B = 16, MAX_PARAMS = 8 };

// An instance of a list, with random weights.
struct part {
    const te_plan *plan;
    te_model model;
    te_param param[MAX_PARAMS];
    te_recipes recipes; // used if the list has a recipe
    te_model *models[1];
    double weights = 0; // bytes that a step reads, without embeddings
};
static void make(part &p, const te_plan *plan) {
    int count = 0;
    for (int i = 0; i < plan->op_count; i++) count += plan->op[i].params;
    if (count > MAX_PARAMS) bench_check(TE_ERROR_STATE, "too many parameters");
    p.plan = plan, p.models[0] = &p.model;
    bench_check(te_model_bind(&p.model, plan, p.param, count, bench_allocate(te_plan_param_bytes(plan)), nullptr, &bench_ctx), "bind");
    bench_check(te_model_randomize(&p.model, 0.02f, 1, (uint32_t)bench_memory.size(), &bench_ctx), "weights");
    for (int i = 0; i < count; i++)
        if (strcmp(p.param[i].op, "e")) p.weights += (double)p.param[i].rows * (double)p.param[i].cols * (plan->fp8 && p.param[i].rows > 1 ? 1 : 2);
    if (!plan->fp8) return;
    const te_recipes_config config = te_recipes_defaults();
    const size_t bytes = te_recipes_bytes(p.models, 1, &config);
    bench_check(te_recipes_init(&p.recipes, bench_allocate(bytes), bytes, p.models, 1, &config, &bench_ctx), "recipes");
}

struct shape { const char *name; int layers, sequences, context; };

template <int D, class F> static void step(const shape &s, const F &plans) {
    if (bench_only && !strstr(s.name, bench_only)) return;
    std::vector<part> parts(s.layers + 2);
    std::vector<te_model *> models;
    make(parts[0], plans[0]), make(parts[s.layers + 1], plans[2]);
    for (int i = 1; i <= s.layers; i++) make(parts[i], plans[1]), models.push_back(&parts[i].model);
    te_cache_config config = te_cache_defaults();
    config.sequences = s.sequences, config.capacity = s.context + 256;
    static te_cache cache;
    const size_t bytes = te_cache_bytes(models.data(), s.layers, &config);
    bench_check(te_cache_init(&cache, bench_allocate(bytes), bytes, models.data(), s.layers, &config, &bench_ctx), "cache");
    bench_check(te_fill_normal(cache.layer[0].pages, TE_bf16, cache.layer[0].page_elements * cache.t.pages, 0, 1, 2, 0, &bench_ctx), "cache"); // all layers
    te_batch b;
    memset(&b, 0, sizeof b), b.cache = &cache, b.batch = s.sequences, b.seq = s.context;
    bench_check(te_cache_begin(&cache, &b, &bench_ctx), "begin"); // all sequences have `context` tokens
    b.seq = 1;
    int32_t *token = (int32_t *)bench_allocate((size_t)s.sequences * 4);
    bench_check(te_fill(&bench_ctx, token, 0, (size_t)s.sequences * 4), "tokens");
    te_sampling sampling;
    memset(&sampling, 0, sizeof sampling);
    sampling.token = token, b.tokens = token, b.sampling = &sampling;
    size_t workspace = 0;
    for (part &p : parts) workspace = std::max(workspace, te_plan_workspace_bytes(p.plan, &p.model, s.sequences, &bench_ctx));
    bench_check(te_context_reserve(&bench_ctx, workspace), "workspace");
    void *x[2] = {bench_allocate((size_t)s.sequences * D * 2), bench_allocate((size_t)s.sequences * D * 2)};
    void *log_prob = bench_allocate((size_t)s.sequences * 4);
    const auto run = [&](int) {
        te_tensor in = te_none(), out;
        bench_check(te_cache_begin(&cache, &b, &bench_ctx), "begin");
        for (size_t i = 0; i < parts.size(); i++, in = out) {
            out = i + 1 < parts.size() ? te_matrix(x[i % 2], TE_bf16, s.sequences, D) : te_matrix(log_prob, TE_f32, s.sequences, 1);
            bench_check(te_plan_infer(out, in, parts[i].plan, &parts[i].model, &b, &bench_ctx), parts[i].plan->name);
        }
    };
    double weights = 0;
    for (part &p : parts) weights += p.weights;
    const te_attention_options *o = nullptr;
    for (int i = 0; i < plans[1]->op_count; i++)
        if (!strcmp(plans[1]->op[i].kind, "attention")) o = (const te_attention_options *)plans[1]->op[i].options;
    const double kv = 2.0 * s.layers * s.sequences * s.context * o->kv_heads * (o->head_dim + o->value_dim);
    const size_t read_bytes = (size_t)1 << 30;
    uint4 *read = (uint4 *)bench_allocate(read_bytes);
    const auto show = [&](const char *name, double moved, const bench_result &r) {
        printf("%-14s %3d x %-6d %-10s %9.2f us %9.1f MB %6.2f TB/s, %.3f of a read's rate", s.name, s.sequences, s.context, name, r.us, moved / 1e6,
               moved / r.us / 1e6, r.beside_us / read_bytes * moved / r.us);
        if (!strcmp(name, "step")) printf(", %.1f tokens/s", s.sequences * 1e6 / r.us);
        printf("  +-%.1f%%\n", 50 * r.spread), fflush(stdout);
        if (bench_tsv) // the columns of bench_print
            fprintf(bench_tsv, "%s\tdecode\t%s\t%d x %d\t%.3f\t%.0f\t%.3f\t0\t0\t%.3f\ta read\t%.3f\n", s.name, name, s.sequences, s.context, r.us, moved,
                    moved / r.us / 1e6, r.spread, r.beside_us / read_bytes * moved);
    };
    const auto reads = bench_streams<1, 0>(read, read, read_bytes / 16);
    show("step", weights + kv, bench_time(run, 0, 1, 1, reads));
    // the parts, of all layers, on the weights of the layers
    static const char *const names[] = {"qkv", "attention", "proj", "norm", "fc1", "fc2"};
    for (int k = 0; k < 6; k++) {
        const te_plan *plan = plans[3 + k];
        std::vector<part> layers(s.layers);
        const size_t before = bench_memory.size();
        std::vector<te_model *> of;
        double moved = k == 1 ? kv : 0;
        for (part &p : layers) make(p, plan), moved += p.weights, of.push_back(&p.model);
        te_cache own;
        if (k == 1) {
            bench_check(te_cache_init(&own, bench_allocate(bytes), bytes, of.data(), s.layers, &config, &bench_ctx), "cache");
            te_batch whole = b;
            whole.cache = &own, whole.seq = s.context;
            bench_check(te_cache_begin(&own, &whole, &bench_ctx), "begin");
            bench_check(te_fill_normal(own.layer[0].pages, TE_bf16, own.layer[0].page_elements * own.t.pages, 0, 1, 2, 0, &bench_ctx), "cache");
        }
        te_batch batch = b;
        batch.cache = k == 1 ? &own : nullptr;
        void *from = bench_allocate((size_t)s.sequences * (size_t)plan->in * 2), *to = bench_allocate((size_t)s.sequences * (size_t)plan->out * 2);
        bench_check(te_fill_normal(from, TE_bf16, (int64_t)s.sequences * plan->in, 0, 1, 2, 0, &bench_ctx), "x");
        const auto part_run = [&](int) {
            if (k == 1) bench_check(te_cache_begin(&own, &batch, &bench_ctx), "begin");
            for (part &p : layers)
                bench_check(te_plan_infer(te_matrix(to, TE_bf16, s.sequences, plan->out), te_matrix(from, TE_bf16, s.sequences, plan->in), plan, &p.model, &batch, &bench_ctx), plan->name);
        };
        show(names[k], moved, bench_time(part_run, 0, 1, 1, reads));
        bench_release(before);
    }
    bench_check(te_cache_check(&cache, &bench_ctx), "cache");
    bench_release();
}
#define STEP(name, model, layers, d, sequences, context)                                                                                \
    step<d>(shape{name, layers, sequences, context}, std::vector<const te_plan *>{model##_embed_plan(), model##_block_plan(), model##_end_plan(), \
        model##_part_qkv_plan(), model##_part_attention_plan(), model##_part_proj_plan(), model##_part_norm_plan(), model##_part_fc1_plan(), model##_part_fc2_plan()})

int main(int argc, char **argv) {
    bench_open(argc, argv);
    bench_ctx.pdl = 2; // only calls of the library between the passes of a step
    STEP("llama 8b", llama_8b, LAYERS_8B, 4096, 1, 1024);
    STEP("llama 8b", llama_8b, LAYERS_8B, 4096, 8, 2048);
    STEP("llama 8b", llama_8b, LAYERS_8B, 4096, 64, 1024);
    STEP("llama 8b fp8", llama_8b_fp8, LAYERS_8B, 4096, 1, 1024);
    STEP("llama 8b fp8", llama_8b_fp8, LAYERS_8B, 4096, 8, 2048);
    STEP("llama 1b", llama_1b, LAYERS_1B, 2048, 1, 1024);
    STEP("llama 1b", llama_1b, LAYERS_1B, 2048, 8, 1024);
    return bench_close();
}
