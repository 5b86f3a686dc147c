/* steps.cu -- what each step of a plan takes on this GPU: a GPT block at two sizes, embedding and head.
 *
 *     nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -I. bench/steps.cu -o steps -lcublasLt && ./steps steps.tsv COMMIT
 *
 * A step is captured many times into one CUDA graph, so that the host does not count, each time after a write that fills
 * the L2 with something else; the median of several replays is taken. Its bytes are those of te_step_row_bytes; beside it, in the same run and in the same way, a device-to-device
 * copy that moves the same number of bytes. Products and attention have TFLOP/s instead. Data is random.
 */
#include <algorithm>
#include <string>
#include <vector>

#include "te/te.h"

#define BLOCK(H, F, HEADS, P)                                                                                          \
    (fork, x1), (layernorm, ln1, H), (linear, qkv, H, 3 * (H)), (bias, qkv_b, 3 * (H)),                                \
    (attention, attn, HEADS, HEADS, (H) / (HEADS)), (linear, proj, H, H), (bias, proj_b, H), (dropout, drop1, P),      \
    (add, x1), (fork, x2), (layernorm, ln2, H), (linear, fc1, H, F), (bias, fc1_b, F), (gelu, act), (linear, fc2, F, H), \
    (bias, fc2_b, H), (dropout, drop2, P), (add, x2)
#define LLAMA(H, F, HEADS, KV, D)                                                                                      \
    (fork, x1), (rmsnorm, ln1, H), (linear, qkv, H, ((HEADS) + 2 * (KV)) * (D)), (rope, turn, HEADS, KV, D),           \
    (attention, attn, HEADS, KV, D), (linear, proj, (HEADS) * (D), H), (add, x1), (fork, x2), (rmsnorm, ln2, H),       \
    (linear, up, H, 2 * (F)), (swiglu, act), (linear, down, F, H), (add, x2)

TE_SEQUENTIAL(gpt768, bf16, BLOCK(768, 3072, 12, 0.1f))
TE_SEQUENTIAL(gpt4096, bf16, BLOCK(4096, 16384, 32, 0.1f))
TE_SEQUENTIAL(llama4096, bf16, LLAMA(4096, 14336, 32, 8, 128))
TE_SEQUENTIAL(embed768, bf16, (embedding, wte, 50304, 768), (positions, wpe, 1024, 768))
TE_SEQUENTIAL(head768, bf16, (layernorm, lnf, 768), (linear, lm, 768, 50304), (cross_entropy, loss, 50304))

static te_context ctx;
static FILE *tsv;
static int slow;

static void check(te_status s, const char *what) {
    if (s == TE_OK) return;
    fprintf(stderr, "%s: %s (%s)\n", what, te_last_error(&ctx), te_status_string(s));
    exit(1);
}
static void *memory(size_t bytes) {
    void *p = nullptr;
    check(te_allocate(&ctx, &p, bytes), "memory");
    return p;
}
/* Microseconds a run of `f`, which enqueues on ctx.stream, with nothing of its data in the L2: before each run a buffer
 * three times its size is written, and the time of that alone is taken off. */
template <class F> static double graph_time(F f, int runs);
template <class F> static double time_of(F f, int runs) {
    static char *flush;
    static double flush_time;
    const size_t room = (size_t)192 << 20;
    auto clear = [&] { cudaMemsetAsync(flush, 1, room, (cudaStream_t)ctx.stream); };
    if (!flush) flush = (char *)memory(room), flush_time = graph_time(clear, 30);
    return std::max(0.01, graph_time([&] { clear(), f(); }, runs) - flush_time);
}
template <class F> static double graph_time(F f, int runs) {
    cudaStream_t stream = (cudaStream_t)ctx.stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t a, b;
    cudaEventCreate(&a), cudaEventCreate(&b);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    for (int i = 0; i < runs; i++) f();
    if (cudaStreamEndCapture(stream, &graph) != cudaSuccess || cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) check(TE_ERROR_CUDA, "capture");
    std::vector<float> times;
    for (int i = 0; i < 9; i++) {
        float ms;
        cudaEventRecord(a, stream), cudaGraphLaunch(exec, stream), cudaEventRecord(b, stream), cudaEventSynchronize(b);
        cudaEventElapsedTime(&ms, a, b);
        if (i > 1) times.push_back(ms);
    }
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaEventDestroy(a), cudaEventDestroy(b);
    std::sort(times.begin(), times.end());
    return 1e3 * times[times.size() / 2] / runs;
}
static double copy_time(size_t bytes, int runs) {
    static char *from, *to;
    static const size_t room = (size_t)1 << 30;
    if (!from) from = (char *)memory(room), to = (char *)memory(room);
    return time_of(
        [&] {
            for (size_t left = bytes / 2, part; left; left -= part) {
                part = std::min(room, left);
                cudaMemcpyAsync(to, from, part, cudaMemcpyDeviceToDevice, (cudaStream_t)ctx.stream);
            }
        },
        runs);
}

static double flops_of(const te_plan *p, const te_step *s, te_pass pass, const te_batch *b) {
    const te_op *op = &p->op[s->op[0]];
    const double rows = (double)b->batch * b->seq;
    if (op->op_class == TE_CLASS_gemm) return (pass == TE_BACKWARD ? 4.0 : 2.0) * rows * op->in * op->out;
    if (!strcmp(op->kind, "attention")) return (pass == TE_BACKWARD ? 2.5 : 1.0) * 4.0 * rows * b->seq * op->out / 2;
    return 0;
}

static void bench_pass(te_run *r, te_value now, const te_step *step, int count, const char *title) {
    double total = 0;
    r->dry = 0, r->now = now, r->pool.count = 0, r->pool.base = (char *)ctx.workspace;
    for (int i = 0; i < r->plan->op_count; i++) r->edge[i] = te_value_of(nullptr);
    for (int i = 0; i < count; i++) {
        const te_run before = *r;
        const double flops = flops_of(r->plan, &step[i], r->pass, r->batch);
        double bytes = (double)te_step_row_bytes(r->plan, &step[i], r->pass) * (double)r->rows;
        if (!strcmp(step[i].row, "embedding") && r->pass == TE_BACKWARD) /* the gradient is cleared first */
            bytes += (double)r->param[0]->rows * (double)r->param[0]->cols * 4;
        check(step[i].run(r, &step[i]), step[i].kernels);
        const te_run after = *r;
        const double us = time_of([&] { *r = before; check(step[i].run(r, &step[i]), step[i].kernels); }, 10);
        *r = after;
        const double copy = bytes / copy_time((size_t)bytes, 10) / 1e6, rate = bytes / us / 1e6;
        total += us;
        if (flops == 0 && bytes > 1e6 && rate < 0.5 * copy) slow++;
        if (flops > 0) printf("  %-46s %9.1f us  %8.0f TFLOP/s\n", step[i].row, us, flops / us / 1e6);
        else printf("  %-46s %9.1f us  %8.1f MB %6.2f TB/s  %5.2f of copy%s\n", step[i].row, us, bytes / 1e6, rate, rate / copy,
                    bytes > 1e6 && rate < 0.5 * copy ? "  SLOW" : "");
        if (tsv) fprintf(tsv, "%s\t%s\t%s\t%.2f\t%.0f\t%.3f\t%.3f\t%.1f\n", r->plan->name, title, step[i].row, us, bytes, flops > 0 ? 0 : rate,
                         flops > 0 ? 0 : rate / copy, flops / us / 1e6);
    }
    printf("  %-46s %9.1f us\n", title, total);
}

static void bench(const te_plan *plan, int batch, int seq, int vocabulary) {
    const int64_t rows = (int64_t)batch * seq;
    std::vector<te_param> params(64);
    int count = 0;
    for (int i = 0; i < plan->op_count; i++) count += plan->op[i].params;
    te_model m;
    check(te_model_bind(&m, plan, params.data(), count, memory(te_plan_param_bytes(plan)), (float *)memory(te_plan_grad_bytes(plan)), &ctx), "bind");
    check(te_model_randomize(&m, 0.02f, 1, 0, &ctx), "weights");
    const size_t need = te_plan_workspace_bytes(plan, &m, rows, &ctx);
    check(te_context_reserve(&ctx, need), "workspace");
    const size_t size = 2, in = (size_t)rows * plan->in * size, out = (size_t)rows * plan->out * std::max<size_t>(size, 4);
    void *x = memory(in), *dx = memory(in), *y = memory(out), *dy = memory(out);
    check(te_fill_normal(x, TE_bf16, rows * plan->in, 0, 1, 2, 0, &ctx), "x");
    if (te__to_loss(plan)) check(te_fill_normal(dy, TE_f32, rows, 1e-4f, 0, 2, 1, &ctx), "dy");
    else check(te_fill_normal(dy, TE_bf16, rows * plan->out, 0, 1, 2, 1, &ctx), "dy");
    std::vector<int32_t> ids((size_t)rows);
    for (size_t i = 0; i < ids.size(); i++) {
        uint32_t u[4];
        te_philox(u, 3, i, 0, 0);
        ids[i] = (int32_t)(u[0] % (uint32_t)vocabulary);
    }
    int32_t *tokens = (int32_t *)memory((size_t)rows * 4);
    check(te_copy(&ctx, tokens, ids.data(), (size_t)rows * 4), "tokens");
    check(te_synchronize(&ctx), "tokens");
    te_saved saved;
    memset(&saved, 0, sizeof saved);
    saved.bytes = te_plan_saved_bytes(plan, rows), saved.memory = memory(saved.bytes);
    te_batch b;
    memset(&b, 0, sizeof b);
    b.batch = batch, b.seq = seq, b.tokens = b.labels = tokens, b.ignore_index = -1;
    const te_tensor xt = te__from_tokens(plan) ? te_none() : te_matrix(x, TE_bf16, rows, plan->in);
    check(te_plan_forward(te_matrix(y, te__out_dtype(plan), rows, plan->out), &saved, xt, plan, &m, &b, &ctx), "forward");
    printf("%s: batch %d, seq %d, vocabulary %d\n", plan->name, batch, seq, vocabulary);
    static te_run r;
    for (int pass = 0; pass < 3; pass++) {
        te__begin(&r, plan, (te_pass)pass, rows, &ctx);
        r.batch = &b, r.x = xt.data, r.y = y, r.dx = te__from_tokens(plan) ? nullptr : dx, r.dy = dy;
        te__take_params(&r, &m);
        te__lay_out(&r, (char *)saved.memory);
        if (pass == TE_FORWARD) bench_pass(&r, te_value_of(xt.data), plan->forward, plan->forward_count, "forward");
        if (pass == TE_INFER) bench_pass(&r, te_value_of(xt.data), plan->infer, plan->infer_count, "inference");
        if (pass == TE_BACKWARD) bench_pass(&r, te_value_of(dy), plan->backward, plan->backward_count, "backward");
    }
    /* The optimizer, on the first plan only: its bytes are known. */
    te_model *models[] = {&m};
    te_adamw opt;
    te_adamw_config config = te_adamw_defaults(1e-4f);
    config.max_norm = 1.0f;
    const size_t bytes = te_adamw_bytes(models, 1);
    check(te_adamw_init(&opt, memory(bytes), bytes, models, 1, &config, &ctx), "optimizer");
    const double n = (double)te_plan_param_elements(plan), moved = n * (4 + 4 + 4 * 3 + 4 * 3 + 2);
    const double us = time_of([&] { check(te_adamw_step(&opt, &ctx), "optimizer"); }, 10), copy = moved / copy_time((size_t)moved, 10) / 1e6;
    printf("  %-46s %9.1f us  %8.1f MB %6.2f TB/s  %5.2f of copy\n", "gradient norm, clipping and AdamW", us, moved / 1e6, moved / us / 1e6, moved / us / 1e6 / copy);
    if (tsv) fprintf(tsv, "%s\toptimizer\tnorm_adamw\t%.2f\t%.0f\t%.3f\t%.3f\t0\n", plan->name, us, moved, moved / us / 1e6, moved / us / 1e6 / copy);
    for (void *p : {x, dx, y, dy, (void *)tokens, saved.memory}) te_release(&ctx, p);
}

int main(int argc, char **argv) {
    check(te_context_create(&ctx, 0, 1), "context");
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    ctx.stream = stream;
    cudaDeviceProp device;
    cudaGetDeviceProperties(&device, 0);
    printf("%s\n", device.name);
    if (argc > 1) tsv = fopen(argv[1], "w");
    if (tsv) fprintf(tsv, "# %s, commit %s\nmodel\tpass\tstep\tmicroseconds\tbytes\tTB/s\tof_copy\tTFLOP/s\n", device.name, argc > 2 ? argv[2] : "unknown");
    bench(gpt768_plan(), 8, 1024, 256);
    bench(gpt4096_plan(), 4, 2048, 256);
    bench(llama4096_plan(), 4, 2048, 256);
    bench(embed768_plan(), 8, 1024, 256);
    bench(embed768_plan(), 8, 1024, 50257);
    bench(head768_plan(), 8, 1024, 50257);
    printf("%d memory-bound steps below half the copy rate\n", slow);
    if (tsv) fclose(tsv);
    return slow != 0;
}
