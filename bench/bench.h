// bench.h -- measures the time of each step of a plan on this GPU, and compares it with a copy of as many bytes in the same run.
//
//     bench_open(argc, argv);
//     bench_plan(block_plan(), 4, 2048);               every step of a list, forward, inference and backward
//     bench_step(ln_plan(), 1, 8192, TE_FORWARD, "layernorm");
//     return bench_close();
//
// A step is captured many times into one CUDA graph, so that the host's time does not count. The runs use several sets of
// tensors, more than the L2 holds. The copy is captured in the same way, twice: as cudaMemcpyAsync and as a plain kernel, of which
// the faster one counts. The graphs run alternately, and the medians of their times are taken. Bytes are those of
// te_step_row_bytes: each tensor is read once and written once. Data is random. A case may also be compared with other
// work (bench_time's `others`), which alternates with it in the same way.
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <algorithm>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "flops.h" // bench_step_flops
#include "te/te.h"

static te_context bench_ctx;
static FILE *bench_tsv;
static int bench_slow;         // how many steps that move more than a megabyte ran below half the copy rate
static const char *bench_only; // run only models whose name contains this; null: all
static std::vector<void *> bench_memory; // the memory of the current case

static void bench_check(te_status s, const char *what) {
    if (s == TE_OK) return;
    fprintf(stderr, "%s: %s (%s)\n", what, te_last_error(&bench_ctx), te_status_string(s));
    exit(1);
}
static void *bench_allocate(size_t bytes) {
    void *p = nullptr;
    bench_check(te_allocate(&bench_ctx, &p, bytes), "memory");
    bench_memory.push_back(p);
    return p;
}
static void bench_release(size_t keep = 0) {
    bench_check(te_synchronize(&bench_ctx), "release");
    for (; bench_memory.size() > keep; bench_memory.pop_back()) te_release(&bench_ctx, bench_memory.back());
}

// ---- time --------------------------------------------------------------------------------------------------------------

struct bench_graph {
    cudaGraphExec_t exec;
    int runs, nodes;
    std::vector<float> us;
    template <class F> bench_graph(F f, int n) : runs(n) {
        cudaStream_t stream = (cudaStream_t)bench_ctx.stream;
        cudaGraph_t graph;
        for (int i = 0; i < 2; i++) f(i); // the first call loads modules
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        for (int i = 0; i < n; i++) f(i);
        if (cudaStreamEndCapture(stream, &graph) != cudaSuccess || cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess)
            bench_check(TE_ERROR_CUDA, cudaGetErrorString(cudaGetLastError()));
        size_t count = 0;
        cudaGraphGetNodes(graph, nullptr, &count);
        nodes = (int)count;
        cudaGraphDestroy(graph);
    }
    bench_graph(const bench_graph &) = delete;
    ~bench_graph() { cudaGraphExecDestroy(exec); }
    void run() {
        cudaStream_t stream = (cudaStream_t)bench_ctx.stream;
        cudaEvent_t a, b;
        float ms;
        cudaEventCreate(&a), cudaEventCreate(&b);
        cudaEventRecord(a, stream), cudaGraphLaunch(exec, stream), cudaEventRecord(b, stream);
        if (cudaEventSynchronize(b) != cudaSuccess) bench_check(TE_ERROR_CUDA, cudaGetErrorString(cudaGetLastError()));
        cudaEventElapsedTime(&ms, a, b);
        cudaEventDestroy(a), cudaEventDestroy(b);
        us.push_back(1e3f * ms / (float)runs);
    }
    double median() {
        std::vector<float> t(us.begin() + 2, us.end()); // the first two warm up
        std::sort(t.begin(), t.end());
        return t[t.size() / 2];
    }
    double spread() {
        const auto m = std::minmax_element(us.begin() + 2, us.end());
        return (*m.second - *m.first) / median();
    }
};

enum { BENCH_ROUNDS = 9 };
static const size_t bench_copy_bytes = (size_t)1 << 30; // bytes of the copy's source, and of its destination

// A copy that reads bytes / 2 and writes as many: cudaMemcpyAsync, or a plain kernel, which is faster at some sizes.
static __global__ void bench_copy_kernel(uint4 *to, const uint4 *from, size_t n) {
    const size_t i = (size_t)blockIdx.x * 1024 + threadIdx.x;
    uint4 v[4];
    for (int k = 0; k < 4; k++) if (i + 256 * k < n) v[k] = from[i + 256 * k];
    for (int k = 0; k < 4; k++) if (i + 256 * k < n) to[i + 256 * k] = v[k];
}
static void bench_copy(size_t bytes, int i, bool kernel) {
    static char *from, *to;
    cudaStream_t stream = (cudaStream_t)bench_ctx.stream;
    if (!from) {
        bench_check(te_allocate(&bench_ctx, (void **)&from, bench_copy_bytes), "memory");
        bench_check(te_allocate(&bench_ctx, (void **)&to, bench_copy_bytes), "memory");
        bench_check(te_fill_normal(from, TE_bf16, (int64_t)(bench_copy_bytes / 2), 0, 1, 9, 0, &bench_ctx), "copy");
    }
    size_t half = bytes / 2 / 16 * 16, at = half * 2 <= bench_copy_bytes ? half * (size_t)i % (bench_copy_bytes - half) / 16 * 16 : 0;
    for (size_t part; half; half -= part, at = 0) {
        part = std::min(half, bench_copy_bytes - at);
        if (!kernel) cudaMemcpyAsync(to + at, from + at, part, cudaMemcpyDeviceToDevice, stream);
        else bench_copy_kernel<<<(unsigned)((part / 16 + 1023) / 1024), 256, 0, stream>>>((uint4 *)(to + at), (const uint4 *)(from + at), part / 16);
    }
}

// A plain kernel with another ratio of reads to writes than a copy: it reads `reads` arrays of n vectors of 16 bytes, one behind the
// other, and writes `writes` arrays; each thread has `ahead` loads of each array in flight. If writes is 0, `to` is one vector,
// and it is not changed.
template <int reads, int writes, int ahead> static __global__ void __launch_bounds__(256) bench_stream_kernel(uint4 *to, const uint4 *from, size_t n) {
    const size_t first = (size_t)blockIdx.x * (256 * ahead) + threadIdx.x;
    uint4 v[ahead][reads];
    uint32_t all = 0;
#pragma unroll
    for (int k = 0; k < ahead; k++)
#pragma unroll
        for (int i = 0; i < reads; i++) v[k][i] = first + 256 * k < n ? from[i * n + first + 256 * k] : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int k = 0; k < ahead; k++) {
        uint4 x = v[k][0];
#pragma unroll
        for (int i = 1; i < reads; i++) x.x ^= v[k][i].x, x.y ^= v[k][i].y, x.z ^= v[k][i].z, x.w ^= v[k][i].w;
#pragma unroll
        for (int i = 0; i < writes; i++) if (first + 256 * k < n) to[i * n + first + 256 * k] = x;
        all ^= x.x ^ x.y ^ x.z ^ x.w;
    }
    if (writes == 0 && (uint64_t)all + n == 0) to[0].x = all; // never happens, but the compiler does not know that
}
template <int reads, int writes, int ahead> static void bench_stream(uint4 *to, const uint4 *from, size_t n) {
    bench_stream_kernel<reads, writes, ahead><<<(unsigned)((n + 256 * ahead - 1) / (256 * ahead)), 256, 0, (cudaStream_t)bench_ctx.stream>>>(to, from, n);
}
// This kernel with 1, 2, 4 and 8 loads in flight: the fastest shows the rate that the memory reaches.
template <int reads, int writes> static std::vector<std::function<void(int)>> bench_streams(uint4 *to, const uint4 *from, size_t n) {
    return {[=](int) { bench_stream<reads, writes, 1>(to, from, n); }, [=](int) { bench_stream<reads, writes, 2>(to, from, n); },
            [=](int) { bench_stream<reads, writes, 4>(to, from, n); }, [=](int) { bench_stream<reads, writes, 8>(to, from, n); }};
}

// copy_us: the time of the copy; beside_us: the time of the other work that it is compared with. 0 if there is none.
struct bench_result { double us, bytes, flops, copy_us, spread, beside_us; };

// `f(i)` enqueues the i-th run, on the i-th set of tensors; each of `others` enqueues work to compare with, of which the fastest counts.
template <class F> static bench_result bench_time(F f, double bytes, double flops, int runs, const std::vector<std::function<void(int)>> &others = {}) {
    bench_result r;
    bench_graph work(f, runs);
    std::vector<std::unique_ptr<bench_graph>> copies, beside;
    for (bool kernel : {false, true})
        if (flops <= 0) copies.emplace_back(new bench_graph([&](int i) { bench_copy((size_t)bytes, i, kernel); }, runs));
    for (const auto &other : others) beside.emplace_back(new bench_graph(other, runs));
    for (int i = 0; i < BENCH_ROUNDS; i++) {
        work.run();
        for (auto &g : copies) g->run();
        for (auto &g : beside) g->run();
    }
    const auto fastest = [](const std::vector<std::unique_ptr<bench_graph>> &graphs) {
        double us = 0;
        for (auto &g : graphs) us = us > 0 ? std::min(us, g->median()) : g->median();
        return us;
    };
    r.us = work.median(), r.spread = work.spread(), r.bytes = bytes, r.flops = flops, r.copy_us = fastest(copies), r.beside_us = fastest(beside);
    return r;
}

// `beside`: the name of the work whose time is r.beside_us.
static void bench_print(const std::string &group, const char *pass, const char *step, const std::string &shape, const bench_result &r, const char *beside = "") {
    const double tbs = r.bytes / r.us / 1e6, of_copy = r.copy_us > 0 ? r.copy_us / r.us : 0, tflops = r.flops / r.us / 1e6;
    printf("%-12s %-9s %-40s %-14s %9.2f us  ", group.c_str(), pass, step, shape.c_str(), r.us);
    if (r.flops > 0) printf("%7.0f TFLOP/s", tflops);
    else if (r.bytes > 0) printf("%8.1f MB %6.2f TB/s  %5.3f of copy", r.bytes / 1e6, tbs, of_copy);
    if (r.beside_us > 0) printf("  %s: %.2f us, %.3f times that, %.3f of its rate", beside, r.beside_us, r.us / r.beside_us, r.beside_us / r.us);
    printf("  +-%.1f%%%s\n", 50 * r.spread, r.copy_us > 0 && r.bytes > 1e6 && of_copy < 0.5 ? "  SLOW" : "");
    bench_slow += r.copy_us > 0 && r.bytes > 1e6 && of_copy < 0.5;
    if (bench_tsv)
        fprintf(bench_tsv, "%s\t%s\t%s\t%s\t%.3f\t%.0f\t%.3f\t%.3f\t%.1f\t%.3f\t%s\t%.3f\n", group.c_str(), pass, step, shape.c_str(), r.us, r.flops > 0 ? 0 : r.bytes,
                r.flops > 0 ? 0 : tbs, r.flops > 0 ? 0 : of_copy, tflops, r.spread, beside, r.beside_us);
    fflush(stdout);
}

// ---- a plan ------------------------------------------------------------------------------------------------------------

static double bench_bytes(const te_plan *p, const te_step *s, te_pass pass, int64_t rows, const te_model *m) {
    double bytes = (double)te_step_row_bytes(p, s, pass) * (double)rows;
    const te_op *last = &p->op[s->op[s->count - 1]];
    bool keeps = pass == TE_BACKWARD && s == &p->backward[p->backward_count - 1];
    for (int i = 0; i < s->count; i++) keeps = keeps && (p->op[s->op[i]].flags & TE_GRAD_UNCHANGED);
    if (keeps) bytes += (double)rows * last->in * (double)te_dtype_bytes(p->dtype); // copies dy to dx
    if (!strcmp(s->pattern, "embedding") && pass == TE_BACKWARD) bytes += (double)m->param[0].rows * (double)m->param[0].cols * 4; // cleared first
    return bytes;
}

// An instance of a list with random weights and tokens, and several sets of tensors.
struct bench_case {
    const te_plan *plan;
    te_context *ctx = &bench_ctx;
    int64_t rows;
    size_t allocated_before, work, saved_bytes; // allocated_before: how many blocks bench_memory had before this case
    std::vector<te_param> params;
    te_model m, *models[1] = {&m};
    te_recipes recipes; // used if the list has a recipe
    te_batch batch;
    std::vector<te_saved> saved;
    std::vector<std::vector<te_edge>> edges; // [set]: the list's extra inputs and outputs, without gradients
    std::vector<void *> x, y, dx, dy, workspace;

    bench_case(const te_plan *p, int b, int seq, int vocabulary) : plan(p), rows((int64_t)b * seq), allocated_before(bench_memory.size()), params(TE_MAX_OPS * 2) {
        int count = 0;
        for (int i = 0; i < plan->op_count; i++) count += plan->op[i].params;
        bench_check(te_model_bind(&m, plan, params.data(), count, bench_allocate(te_plan_param_bytes(plan)), (float *)bench_allocate(te_plan_grad_bytes(plan)), ctx), "bind");
        bench_check(te_model_randomize(&m, 0.02f, 1, 0, ctx), "weights");
        if (plan->fp8) {
            const te_recipes_config config = te_recipes_defaults();
            const size_t bytes = te_recipes_bytes(models, 1, &config);
            bench_check(te_recipes_init(&recipes, bench_allocate(bytes), bytes, models, 1, &config, ctx), "recipes");
        }
        work = te_plan_workspace_bytes(plan, &m, rows, ctx), saved_bytes = te_plan_saved_bytes(plan, rows);
        std::vector<int32_t> ids((size_t)rows);
        for (size_t i = 0; i < ids.size(); i++) {
            uint32_t u[4];
            te_philox(u, 3, i, 0, 0);
            ids[i] = (int32_t)(u[0] % (uint32_t)vocabulary);
        }
        int32_t *tokens = (int32_t *)bench_allocate((size_t)rows * 4);
        bench_check(te_copy(ctx, tokens, ids.data(), (size_t)rows * 4), "tokens");
        bench_check(te_synchronize(ctx), "tokens");
        memset(&batch, 0, sizeof batch);
        batch.batch = b, batch.seq = seq, batch.tokens = batch.labels = tokens, batch.ignore_index = -1;
    }
    ~bench_case() {
        ctx->workspace = nullptr, ctx->workspace_bytes = 0;
        bench_release(allocated_before);
    }
    bool from_tokens() const { return te__from_tokens(plan) != 0; }
    size_t in() const { return (size_t)rows * (size_t)plan->in * te_dtype_bytes(plan->dtype); }
    size_t out() const { return (size_t)rows * (size_t)plan->out * std::max<size_t>(te_dtype_bytes(plan->dtype), 4); }
    te_tensor tensor(void *p) const { return from_tokens() ? te_none() : te_matrix(p, plan->dtype, rows, plan->in); }
    te_tensor out_tensor(void *p) const { return te_matrix(p, plan->out_dtype, rows, plan->out); }
    void use(size_t set) {
        ctx->workspace = workspace[set], ctx->workspace_bytes = work;
        batch.edges = edges[set].data(), batch.edge_count = (int)edges[set].size();
    }
    void forward(size_t set) {
        use(set);
        bench_check(te_plan_forward(out_tensor(y[set]), &saved[set], tensor(x[set]), plan, &m, &batch, ctx), "forward");
    }
    void infer(size_t set) {
        use(set);
        bench_check(te_plan_forward(out_tensor(y[set]), nullptr, tensor(x[set]), plan, &m, &batch, ctx), "inference");
    }
    void backward(size_t set) {
        use(set);
        bench_check(te_plan_backward(tensor(dx[set]), out_tensor(dy[set]), &saved[set], plan, &m, &batch, ctx), "backward");
    }
    // Allocate `sets` sets of tensors, and run a forward on each.
    void make(int sets) {
        for (int i = 0; i < sets; i++) {
            te_saved s;
            memset(&s, 0, sizeof s);
            x.push_back(bench_allocate(in())), dx.push_back(bench_allocate(in())), y.push_back(bench_allocate(out())), dy.push_back(bench_allocate(out()));
            workspace.push_back(bench_allocate(work));
            s.memory = bench_allocate(saved_bytes), s.bytes = saved_bytes;
            saved.push_back(s);
            edges.emplace_back();
            for (int k = 0; k < plan->op_count; k++) {
                const te_op *op = &plan->op[k];
                if (!(op->flags & (TE_IS_INPUT | TE_IS_OUTPUT))) continue;
                void *value = bench_allocate((size_t)rows * (size_t)op->out * te_dtype_bytes(plan->dtype));
                bench_check(te_fill_normal(value, plan->dtype, rows * op->out, 0, 1, 2, 200 + (uint32_t)i, ctx), op->name);
                edges.back().push_back({op->name, te_matrix(value, plan->dtype, rows, op->out), te_none()});
            }
            bench_check(te_fill_normal(x.back(), plan->dtype, rows * plan->in, 0, 1, 2, (uint32_t)i, ctx), "x");
            if (te__to_loss(plan)) bench_check(te_fill_normal(dy.back(), TE_f32, rows, 1e-4f, 0, 2, 100, ctx), "dy");
            else bench_check(te_fill_normal(dy.back(), plan->dtype, rows * plan->out, 0, 1, 2, 100 + (uint32_t)i, ctx), "dy");
            forward((size_t)i);
        }
        if (!plan->fp8) return;
        backward(0); // the first step computes the scales for later ones
        bench_check(te_recipes_step(&recipes, ctx), "scales");
        for (int i = 0; i < sets; i++) forward((size_t)i);
    }
};

// Time the steps of the plan: of this pass (-1: all three) and of this name (null: all). `vocabulary`: tokens and labels are below it.
static void bench_steps(const te_plan *plan, int batch, int seq, int only_pass, const char *only_step, int vocabulary, bool totals) {
    if (bench_only && !strstr(plan->name, bench_only)) return;
    bench_case c(plan, batch, seq, vocabulary);
    te_context *ctx = &bench_ctx;
    const int64_t rows = c.rows;
    const int sets = (int)std::min<size_t>(12, 2 + ((size_t)256 << 20) / (2 * c.in() + 2 * c.out() + c.saved_bytes + 1));
    c.make(sets);
    std::vector<te_run> run((size_t)sets), before((size_t)sets);
    std::vector<te_batch> batches;
    for (size_t i = 0; i < (size_t)sets; i++) c.use(i), batches.push_back(c.batch);
    const char *const titles[] = {"forward", "inference", "backward"};
    const auto one = [](te_run *r, const te_step *s) { // a step and its column sums, which a whole backward computes only at its end
        bench_check(s->run(r, s), s->kernels);
        bench_check(te__reduce_columns_now(r), "sums");
    };
    for (int pass = 0; pass < 3; pass++) {
        if (only_pass >= 0 && pass != only_pass) continue;
        const te_step *step = pass == TE_FORWARD ? plan->forward : pass == TE_INFER ? plan->infer : plan->backward;
        const int steps = pass == TE_FORWARD ? plan->forward_count : pass == TE_INFER ? plan->infer_count : plan->backward_count;
        double total = 0;
        for (size_t i = 0; i < (size_t)sets; i++) {
            te_run *r = &run[i];
            te__begin(r, plan, (te_pass)pass, rows, batch, ctx);
            r->batch = &batches[i], r->x.data = c.tensor(c.x[i]).data, r->y.data = c.y[i];
            r->dx = r->x, r->dx.data = c.tensor(c.dx[i]).data, r->dy = r->y, r->dy.data = c.dy[i];
            te__take_params(r, &c.m);
            te__set_recipe_use(r, TE_USE_as_bound);
            te__lay_out(r, (char *)c.saved[i].memory);
            r->dry = 0, r->current = pass == TE_BACKWARD ? r->dy : r->x, r->pool.count = 0, r->pool.base = (char *)c.workspace[i];
        }
        for (int k = 0; k < steps; k++) {
            before = run;
            for (te_run &r : run) one(&r, &step[k]);
            if (only_step && strcmp(step[k].pattern, only_step)) continue;
            const double bytes = bench_bytes(plan, &step[k], (te_pass)pass, rows, &c.m), flops = bench_step_flops(plan, &step[k], (te_pass)pass, &c.batch);
            if (bytes == 0) continue; // passes its value through
            static te_run scratch;
            bench_result r = bench_time(
                [&](int i) { scratch = before[(size_t)(i % sets)], one(&scratch, &step[k]); }, bytes, flops, std::max(2 * sets, 10));
            if (plan->fp8 && flops <= 0) r.bytes = r.copy_us = 0; // no rates in FP8: bench_bytes counts all values in the list's dtype
            const te_op *first = &plan->op[step[k].op[0]], *last = &plan->op[step[k].op[step[k].count - 1]];
            const int from = pass == TE_BACKWARD ? last->in : first->in, to = pass == TE_BACKWARD ? first->out : last->out;
            const std::string shape = std::to_string(rows) + "x" + std::to_string(from) + (from == to ? "" : "x" + std::to_string(to));
            bench_print(plan->name, titles[pass], step[k].pattern, shape, r);
            total += r.us;
        }
        if (totals) printf("%-12s %-9s %-40s %-14s %9.2f us\n", plan->name, titles[pass], "all", "", total);
        if (totals && bench_tsv) fprintf(bench_tsv, "%s\t%s\tall\t%lld\t%.3f\t0\t0\t0\t0\t0\t\t0\n", plan->name, titles[pass], (long long)rows, total);
    }
}

// Microseconds that the host takes to enqueue an empty kernel, which differs from machine to machine.
static __global__ void bench_empty_kernel() {}
static double bench_launch_us() {
    const int launches = 200;
    std::vector<double> us;
    for (int k = 0; k < 9; k++) {
        bench_check(te_synchronize(&bench_ctx), "host");
        timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        for (int i = 0; i < launches; i++) bench_empty_kernel<<<1, 32, 0, (cudaStream_t)bench_ctx.stream>>>();
        clock_gettime(CLOCK_MONOTONIC, &b);
        us.push_back(((double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) * 1e-3) / launches);
    }
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
}

// Time a whole list, forward and backward as one graph and inference as another, and the host's time to enqueue them.
static void bench_whole(const te_plan *plan, int batch, int seq, int vocabulary = 256) {
    if (bench_only && !strstr(plan->name, bench_only)) return;
    bench_case c(plan, batch, seq, vocabulary);
    const size_t sets = c.in() + c.out() + c.saved_bytes < ((size_t)64 << 20) ? 4 : 2;
    c.make((int)sets);
    const std::string shape = std::to_string(c.rows) + "x" + std::to_string(plan->in);
    bench_result r;
    r.bytes = r.flops = r.copy_us = r.beside_us = 0;
    const auto time = [&](const char *pass, const std::function<void(size_t)> &f) {
        bench_graph g([&](int i) { f((size_t)i % sets); }, 4);
        for (int i = 0; i < BENCH_ROUNDS; i++) g.run();
        r.us = g.median(), r.spread = g.spread();
        bench_print(plan->name, pass, "whole", shape, r);
        const int enqueued = 8;
        std::vector<double> host;
        for (int k = 0; k < 5; k++) {
            bench_check(te_synchronize(&bench_ctx), "host");
            timespec a, b;
            clock_gettime(CLOCK_MONOTONIC, &a);
            for (int i = 0; i < enqueued; i++) f((size_t)i % sets);
            clock_gettime(CLOCK_MONOTONIC, &b);
            host.push_back(((double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) * 1e-3) / enqueued);
        }
        std::sort(host.begin(), host.end());
        r.us = host[host.size() / 2], r.spread = (host.back() - host.front()) / r.us, r.beside_us = g.nodes / g.runs * bench_launch_us();
        bench_print(plan->name, pass, "host, to enqueue", shape, r, "as many empty kernels");
        r.beside_us = 0;
        printf("%-12s %-9s %d kernels and copies, %.2f us each on the host\n", plan->name, pass, g.nodes / g.runs, r.us / (g.nodes / g.runs));
    };
    time("inference", [&](size_t i) { c.infer(i); });
    time("training", [&](size_t i) { c.forward(i), c.backward(i); });
}

// Compare a list with other lists, for instance with its GEMMs alone: inference, forward, or forward and backward (pass TE_BACKWARD). Both run
// alternately, after 0.3 s of warming up, because a chip's clock depends on its temperature.
static void bench_against(const te_plan *plan, const std::vector<const te_plan *> &others, int batch, int seq, te_pass pass, const char *beside) {
    if (bench_only && !strstr(plan->name, bench_only)) return;
    bench_case c(plan, batch, seq, 256);
    std::vector<std::unique_ptr<bench_case>> o;
    const auto run = [=](bench_case *p) {
        if (pass == TE_INFER) p->infer(0);
        else p->forward(0);
        if (pass == TE_BACKWARD) p->backward(0);
    };
    c.make(1);
    for (const te_plan *p : others) o.emplace_back(new bench_case(p, batch, seq, 256)), o.back()->make(1);
    bench_graph a([&](int) { run(&c); }, 2), b([&](int) { for (auto &p : o) run(p.get()); }, 2);
    for (double us = 0; us < 3e5; us += 2 * ((double)a.us.back() + (double)b.us.back())) a.run(), b.run();
    a.us.clear(), b.us.clear();
    for (int i = 0; i < 2 * BENCH_ROUNDS; i++) a.run(), b.run();
    bench_result r;
    r.bytes = r.flops = r.copy_us = 0, r.us = a.median(), r.spread = a.spread(), r.beside_us = b.median();
    const char *const titles[] = {"forward", "inference", "training"};
    bench_print(plan->name, titles[pass], "whole", std::to_string(c.rows) + "x" + std::to_string(plan->in), r, beside);
    while (!o.empty()) o.pop_back(); // memory is freed in reverse order
}
static inline void bench_plan(const te_plan *plan, int batch, int seq, int vocabulary = 256) { bench_steps(plan, batch, seq, -1, nullptr, vocabulary, true); }
static inline void bench_step(const te_plan *plan, int batch, int seq, te_pass pass, const char *step, int vocabulary = 256) {
    bench_steps(plan, batch, seq, pass, step, vocabulary, false);
}

// The program's arguments: [file.tsv [commit [part of a model's name]]]
static void bench_open(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : nullptr, *commit = argc > 2 ? argv[2] : nullptr;
    bench_only = argc > 3 ? argv[3] : nullptr;
    bench_check(te_context_create(&bench_ctx, 0, 1), "context");
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    bench_ctx.stream = stream;
    cudaDeviceProp device;
    cudaGetDeviceProperties(&device, 0);
    printf("%s\n", device.name);
    if (path) bench_tsv = fopen(path, "w");
    if (bench_tsv) fprintf(bench_tsv, "# %s, commit %s\nmodel\tpass\tstep\tshape\tmicroseconds\tbytes\tTB/s\tof_copy\tTFLOP/s\tspread\tbeside\tbeside_us\n", device.name, commit ? commit : "unknown");
}
static int bench_close() {
    printf("%d memory-bound steps below half the copy rate\n", bench_slow);
    if (bench_tsv) fclose(bench_tsv);
    return bench_slow || cudaDeviceSynchronize() != cudaSuccess;
}

#endif
