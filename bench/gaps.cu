// gaps.cu -- measures how long the GPU idles between the kernels of a training step: GPT-2's 124M shape with 12 layers, as in
// examples/train_gpt, forward, backward and AdamW with clipping, replayed as one CUDA graph. CUPTI reports when each kernel, copy and fill
// began and ended. CUPTI's own work makes the gaps longer, so a second estimate is printed beside them: the time of a replay without CUPTI
// less the sum of the kernels' times, divided by the number of gaps. Programmatic dependent launch (te_context.pdl) is off here, because a
// kernel that starts early would count its waiting as its own time. The first two lines show what it saves in a step.
//
//     nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -I. bench/gaps.cu -o gaps -lcublasLt && ./gaps gaps.tsv COMMIT
//
// The program loads CUPTI at run time: libcupti.so from the library path, from $CUDA_HOME or from /usr/local/cuda. If the library or its header
// is missing, the bench says so and measures nothing.
#include <cstdio>

#if !__has_include(<cupti.h>)
int main() {
    printf("gaps: skipped, it was built without cupti.h\n");
    return 0;
}
#else
#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include "bench.h"

enum { LAYERS = 12, HIDDEN = 768, HEADS = 12, SEQ = 1024, VOCABULARY = 50304, TOKENS = 50257, BATCH = 8, REPLAYS = 20 };
static const double limit_us = 3; // the largest mean gap that passes

TE_SEQUENTIAL(embed, bf16, (embedding, wte, VOCABULARY, HIDDEN), (positions, wpe, SEQ, HIDDEN))
TE_SEQUENTIAL(block, bf16, (fork, x1), (layernorm, ln1, HIDDEN), (linear, qkv, HIDDEN, 3 * HIDDEN), (bias, qkv_b, 3 * HIDDEN),
              (attention, attn, HEADS, HEADS, HIDDEN / HEADS), (linear, proj, HIDDEN, HIDDEN), (bias, proj_b, HIDDEN), (add, x1),
              (fork, x2), (layernorm, ln2, HIDDEN), (linear, fc1, HIDDEN, 4 * HIDDEN), (bias, fc1_b, 4 * HIDDEN), (gelu, act),
              (linear, fc2, 4 * HIDDEN, HIDDEN), (bias, fc2_b, HIDDEN), (add, x2))
TE_SEQUENTIAL(head, bf16, (layernorm, lnf, HIDDEN), (tied_linear, lm, HIDDEN, VOCABULARY), (cross_entropy, loss, VOCABULARY))

// ---- the step ----------------------------------------------------------------------------------------------------------

struct part {
    const te_plan *plan;
    te_model model;
    std::vector<te_param> params;
    te_saved saved;
    void *y;
};
struct trainer {
    std::vector<part> parts; // embed, blocks, head
    std::vector<te_model *> models; // the optimizer points to this array
    void *dx[2];
    te_batch batch;
    te_adamw optimizer;
    int64_t rows() const { return (int64_t)batch.batch * batch.seq; }
};
static te_param *param_of(part *p, const char *op) {
    for (te_param &one : p->params)
        if (one.op && !strcmp(one.op, op)) return &one;
    bench_check(TE_ERROR_VALUE, op);
    return nullptr;
}
static void make(trainer *t) {
    te_context *ctx = &bench_ctx;
    const int64_t rows = (int64_t)BATCH * SEQ;
    size_t workspace = 0;
    t->parts.resize(LAYERS + 2);
    for (size_t i = 0; i < t->parts.size(); i++) {
        part *p = &t->parts[i];
        p->plan = i == 0 ? embed_plan() : i <= LAYERS ? block_plan() : head_plan();
        int count = 0;
        for (int k = 0; k < p->plan->op_count; k++) count += p->plan->op[k].params;
        p->params.resize((size_t)count);
        bench_check(te_model_bind(&p->model, p->plan, p->params.data(), count, bench_allocate(te_plan_param_bytes(p->plan)),
                                  (float *)bench_allocate(te_plan_grad_bytes(p->plan)), ctx), "bind");
        bench_check(te_model_randomize(&p->model, 0.02f, 1, (uint32_t)i * 64, ctx), "weights");
        memset(&p->saved, 0, sizeof p->saved);
        p->saved.bytes = te_plan_saved_bytes(p->plan, rows), p->saved.memory = bench_allocate(p->saved.bytes);
        p->y = bench_allocate((size_t)rows * HIDDEN * 2); // the head's y: one float a row
        t->models.push_back(&p->model);
    }
    bench_check(te_tie(param_of(&t->parts.back(), "lm"), param_of(&t->parts[0], "wte"), ctx), "tie");
    for (part &p : t->parts) workspace = std::max(workspace, te_plan_workspace_bytes(p.plan, &p.model, rows, ctx));
    bench_check(te_context_reserve(ctx, workspace), "workspace");
    for (void *&dx : t->dx) dx = bench_allocate((size_t)rows * HIDDEN * 2);
    std::vector<int32_t> ids((size_t)rows + 1);
    for (size_t i = 0; i < ids.size(); i++) {
        uint32_t u[4];
        te_philox(u, 3, i, 0, 0);
        ids[i] = (int32_t)(u[0] % TOKENS);
    }
    int32_t *tokens = (int32_t *)bench_allocate((size_t)rows * 4), *labels = (int32_t *)bench_allocate((size_t)rows * 4);
    bench_check(te_copy(ctx, tokens, ids.data(), (size_t)rows * 4), "tokens");
    bench_check(te_copy(ctx, labels, ids.data() + 1, (size_t)rows * 4), "labels");
    bench_check(te_synchronize(ctx), "tokens");
    memset(&t->batch, 0, sizeof t->batch);
    t->batch.batch = BATCH, t->batch.seq = SEQ, t->batch.tokens = tokens, t->batch.labels = labels, t->batch.ignore_index = -1;
    t->batch.loss_scale = 1.0f / (float)rows;
    te_adamw_config config = te_adamw_defaults(1e-4f);
    config.max_norm = 1.0f;
    const size_t bytes = te_adamw_bytes(t->models.data(), (int)t->models.size());
    bench_check(te_adamw_init(&t->optimizer, bench_allocate(bytes), bytes, t->models.data(), (int)t->models.size(), &config, ctx), "optimizer");
}
static te_status train(const te_graph *, const void *arg, te_context *ctx) {
    trainer *t = (trainer *)(uintptr_t)arg;
    const size_t last = t->parts.size() - 1;
    const auto hidden = [&](void *p) { return te_matrix(p, TE_bf16, t->rows(), HIDDEN); };
    for (size_t i = 0; i <= last; i++) {
        part *p = &t->parts[i];
        TE_TRY(te_plan_forward(i < last ? hidden(p->y) : te_matrix(p->y, TE_f32, t->rows(), 1), &p->saved, i ? hidden(t->parts[i - 1].y) : te_none(), p->plan,
                               &p->model, &t->batch, ctx));
    }
    te_tensor dy = te_none();
    for (size_t i = last + 1; i-- > 0;) {
        part *p = &t->parts[i];
        const te_tensor dx = i ? hidden(t->dx[i & 1]) : te_none();
        TE_TRY(te_plan_backward(dx, dy, &p->saved, p->plan, &p->model, &t->batch, ctx));
        dy = dx;
    }
    return te_adamw_step(&t->optimizer, ctx);
}
static void capture(te_graph *g, const trainer *t) {
    const te_graph_spec spec = te_graph_spec_of("step", train, t, 0, nullptr, 0, nullptr, 0);
    bench_check(te_graph_capture(g, &spec, nullptr, &bench_ctx), "capture");
}
static double replay_us(te_graph *g) { // the median
    cudaStream_t stream = (cudaStream_t)bench_ctx.stream;
    cudaEvent_t a, b;
    std::vector<float> ms(REPLAYS);
    cudaEventCreate(&a), cudaEventCreate(&b);
    for (float &one : ms) {
        cudaEventRecord(a, stream);
        bench_check(te_graph_replay(g, nullptr, 0, &bench_ctx), "replay");
        cudaEventRecord(b, stream);
        bench_check(te_synchronize(&bench_ctx), "replay");
        cudaEventElapsedTime(&one, a, b);
    }
    cudaEventDestroy(a), cudaEventDestroy(b);
    std::sort(ms.begin() + 2, ms.end()); // the first two warm up
    return 1e3 * ms[2 + (ms.size() - 2) / 2];
}

// ---- CUPTI -------------------------------------------------------------------------------------------------------------

#if CUPTI_API_VERSION >= 130000 // CUDA 13
typedef CUpti_ActivityKernel10 cupti_kernel;
#else
typedef CUpti_ActivityKernel9 cupti_kernel;
#endif
#define CUPTI_CALLS(X) X(GetVersion) X(ActivityRegisterCallbacks) X(ActivityEnable) X(ActivityFlushAll) X(ActivityGetNextRecord)
static struct {
#define CUPTI_CALL(name) decltype(&cupti##name) name;
    CUPTI_CALLS(CUPTI_CALL)
} cupti;

struct piece { uint64_t start, end; std::string name; };
static std::vector<piece> pieces;

static std::string name_of(const char *mangled) {
    int status = 0;
    char *s = mangled ? abi::__cxa_demangle(mangled, nullptr, nullptr, &status) : nullptr;
    std::string name = s ? s : mangled ? mangled : "a kernel";
    free(s);
    name = name.substr(0, name.find('(')).substr(0, 60);
    return name;
}
static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *size, size_t *records) {
    *size = (size_t)8 << 20, *records = 0;
    *buffer = (uint8_t *)aligned_alloc(64, *size);
}
static void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t *buffer, size_t, size_t filled) {
    for (CUpti_Activity *r = nullptr; cupti.ActivityGetNextRecord(buffer, filled, &r) == CUPTI_SUCCESS;) {
        if (r->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL || r->kind == CUPTI_ACTIVITY_KIND_KERNEL) {
            const cupti_kernel *k = (const cupti_kernel *)r;
            pieces.push_back({k->start, k->end, name_of(k->name)});
        } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            const CUpti_ActivityMemcpy6 *m = (const CUpti_ActivityMemcpy6 *)r;
            pieces.push_back({m->start, m->end, "a copy"});
        } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            const CUpti_ActivityMemset4 *m = (const CUpti_ActivityMemset4 *)r;
            pieces.push_back({m->start, m->end, "a fill"});
        }
    }
    free(buffer);
}
// Load CUPTI. Returns null, or an error text.
static const char *open_cupti() {
    const std::string home = getenv("CUDA_HOME") ? getenv("CUDA_HOME") : "/usr/local/cuda";
    void *library = nullptr;
    for (const std::string &path : {std::string("libcupti.so"), home + "/lib64/libcupti.so", home + "/extras/CUPTI/lib64/libcupti.so"})
        if (!library) library = dlopen(path.c_str(), RTLD_NOW);
    if (!library) return "libcupti.so does not load";
#define CUPTI_FIND(name)                                                      \
    cupti.name = (decltype(cupti.name))dlsym(library, "cupti" #name); \
    if (!cupti.name) return "libcupti.so has no cupti" #name;
    CUPTI_CALLS(CUPTI_FIND)
    uint32_t version = 0; // another version has another layout of records
    if (cupti.GetVersion(&version) != CUPTI_SUCCESS || version != CUPTI_API_VERSION) return "libcupti.so and cupti.h are of different versions";
    if (cupti.ActivityRegisterCallbacks(give_buffer, take_buffer) != CUPTI_SUCCESS) return "CUPTI refuses callbacks";
    for (CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET})
        if (cupti.ActivityEnable(kind) != CUPTI_SUCCESS) return "CUPTI records no activity here";
    return nullptr;
}

// ---- the gaps ----------------------------------------------------------------------------------------------------------

static double of_replay; // us
static void line(const std::string &what, double us, double asked) {
    printf("%-96s %10.2f us  %6.4f of the replay", what.c_str(), us, us / of_replay);
    if (asked > 0) printf("  %.2f of the limit of %.0f us%s", us / asked, asked, us > asked ? "  ABOVE" : "");
    printf("\n");
    if (bench_tsv) fprintf(bench_tsv, "%s\t%.3f\t%.5f\t%.0f\n", what.c_str(), us, us / of_replay, asked);
}

int main(int argc, char **argv) {
    bench_open(argc > 1 ? 1 : argc, argv); // without a file: this bench writes a table with other columns
    bench_ctx.gemm_tune = 1;
    trainer t;
    te_graph overlapped, plain, traced;
    make(&t);
    for (int i = 0; i < 2; i++) bench_check(train(nullptr, &t, &bench_ctx), "step"); // loads kernels and autotunes the GEMMs
    capture(&overlapped, &t);
    bench_ctx.pdl = 0;
    capture(&plain, &t);
    const double overlapped_us = replay_us(&overlapped); // before CUPTI is loaded
    of_replay = replay_us(&plain);
    const char *missing = open_cupti();
    if (missing) {
        printf("gaps: skipped, %s; a replay takes %.1f us\n", missing, of_replay);
        return 0;
    }
    capture(&traced, &t); // CUPTI traces only graphs that are made after it was loaded
    for (int i = 0; i < 2; i++) bench_check(te_graph_replay(&traced, nullptr, 0, &bench_ctx), "replay");
    bench_check(te_synchronize(&bench_ctx), "replay");
    (void)cupti.ActivityFlushAll(1);
    pieces.clear();
    for (int i = 0; i < REPLAYS; i++) {
        bench_check(te_graph_replay(&traced, nullptr, 0, &bench_ctx), "replay");
        bench_check(te_synchronize(&bench_ctx), "replay");
    }
    (void)cupti.ActivityFlushAll(1);
    if (pieces.empty() || pieces.size() % REPLAYS || pieces.size() == REPLAYS) {
        printf("gaps: CUPTI recorded %zu kernels, copies and fills in %d replays, which is impossible\n", pieces.size(), (int)REPLAYS);
        return 1;
    }
    std::sort(pieces.begin(), pieces.end(), [](const piece &a, const piece &b) { return a.start < b.start; });
    const size_t count = pieces.size() / REPLAYS;
    std::vector<double> gap(count - 1); // us between piece i and the next, the mean over the replays
    double busy = 0, total = 0;
    for (size_t r = 0; r < REPLAYS; r++) {
        const piece *p = &pieces[r * count];
        uint64_t end = p[0].start;
        for (size_t i = 0; i < count; i++) { // time in which two run at once counts once
            if (i && p[i].start > end) gap[i - 1] += 1e-3 * (double)(p[i].start - end) / REPLAYS;
            busy += p[i].end > end ? 1e-3 * (double)(p[i].end - std::max(end, p[i].start)) / REPLAYS : 0;
            end = std::max(end, p[i].end);
        }
    }
    for (double one : gap) total += one;
    std::vector<size_t> widest(count - 1);
    for (size_t i = 0; i < widest.size(); i++) widest[i] = i;
    std::sort(widest.begin(), widest.end(), [&](size_t a, size_t b) { return gap[a] > gap[b]; });

    if (argc > 1) bench_tsv = fopen(argv[1], "w");
    cudaDeviceProp device;
    cudaGetDeviceProperties(&device, 0);
    if (bench_tsv) fprintf(bench_tsv, "# %s, commit %s\nwhat\tmicroseconds\tof_replay\tasked\n", device.name, argc > 2 ? argv[2] : "unknown");
    const double mean = total / (double)(count - 1);
    line("a step of " + std::to_string(BATCH) + " x " + std::to_string(SEQ) + " tokens, replayed", of_replay, 0);
    line("the same, kernels set up while the ones before them end", overlapped_us, 0);
    line("its " + std::to_string(count) + " kernels, copies and fills", busy, 0);
    line("the gaps between them, by CUPTI", total, 0);
    line("mean gap, by CUPTI", mean, limit_us);
    line("mean gap, from the time of a replay without CUPTI less the kernels' times", std::max(0.0, of_replay - busy) / (double)(count - 1), limit_us);
    for (size_t i = 0; i < 5 && i < widest.size(); i++)
        line("gap between " + pieces[widest[i]].name + " and " + pieces[widest[i] + 1].name, gap[widest[i]], limit_us);
    for (te_graph *g : {&overlapped, &plain, &traced}) te_graph_destroy(g);
    if (bench_tsv) fclose(bench_tsv);
    return mean > limit_us || cudaDeviceSynchronize() != cudaSuccess;
}
#endif
