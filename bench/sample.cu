// sample.cu -- the choice of tokens (te/ops/sample.h): one row of 152064 logits and 128 rows of 131072, in bf16, by filter, beside a plain kernel
// that reads as many bytes. Normal logits of a standard deviation of 1 are flat, of 4 peaked.
//
//     nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -I. bench/sample.cu -o sample -lcublasLt
//     ./sample [file.tsv [commit [part of a name]]]
//
// Each run has other logits, of which there are more than the L2 holds. Bytes: those of the logits, read once.
#include "bench.h"
#include "te/infer.h"

TE_INFERENCE(wide, bf16, (sample, next, 152064))
TE_INFERENCE(many, bf16, (sample, next, 131072))

template <class T> static T *filled(size_t n, T value) {
    const std::vector<T> v(n, value);
    void *p = bench_allocate(n * sizeof(T));
    bench_check(te_copy(&bench_ctx, p, v.data(), n * sizeof(T)), "copy");
    bench_check(te_synchronize(&bench_ctx), "copy");
    return (T *)p;
}
template <int ahead> static std::function<void(int)> read(uint4 *to, const uint4 *from, size_t n, int sets) {
    return [=](int i) { bench_stream<1, 0, ahead>(to, from + n * (size_t)(i % sets), n); };
}

template <class M> static void sample(const te_plan *plan, te_status (*bind)(M *, void *, te_context *), int rows) {
    if (bench_only && !strstr(plan->name, bench_only)) return;
    static M m;
    bench_check(bind(&m, nullptr, &bench_ctx), "bind");
    const size_t n = (size_t)rows * (size_t)plan->in, bytes = n * 2;
    const int sets = (int)(((size_t)160 << 20) / bytes + 1);
    char *const x = (char *)bench_allocate(bytes * (size_t)sets);
    float *const y = filled<float>((size_t)rows, 0);
    const std::string shape = std::to_string(rows) + "x" + std::to_string(plan->in);
    for (float spread : {1.0f, 4.0f}) {
        bench_check(te_fill_normal(x, TE_bf16, (int64_t)n * sets, 0, spread, 2, 0, &bench_ctx), "logits");
        te_sampling none, all;
        memset(&none, 0, sizeof none);
        none.token = filled<int32_t>((size_t)rows, 0);
        none.seed = filled<uint64_t>((size_t)rows, 5), none.counter = filled<uint64_t>((size_t)rows, 0);
        memcpy(&all, &none, sizeof all);
        all.temperature = filled<float>((size_t)rows, 0.8f), all.top_k = filled<int32_t>((size_t)rows, 50), all.top_p = filled<float>((size_t)rows, 0.9f);
        all.min_p = filled<float>((size_t)rows, 0.01f), all.history = filled<uint16_t>(n, 0);
        all.repetition_penalty = filled<float>((size_t)rows, 1.1f), all.allowed = filled<uint32_t>((size_t)rows * (size_t)(plan->in / 32), ~0u);
        all.top = 20, all.top_token = filled<int32_t>((size_t)rows * 20, 0), all.top_log_prob = filled<float>((size_t)rows * 20, 0);
        const auto line = [&](const char *name, te_sampling s) {
            te_batch b;
            memset(&b, 0, sizeof b);
            b.batch = rows, b.seq = 1, b.sampling = &s;
            const auto run = [&](int i) {
                const te_tensor logits = te_matrix(x + bytes * (size_t)(i % sets), TE_bf16, rows, plan->in);
                bench_check(te_plan_infer(te_matrix(y, TE_f32, rows, 1), logits, plan, &m.model, &b, &bench_ctx), "sample");
            };
            uint4 *const from = (uint4 *)x;
            bench_result r = bench_time(run, (double)bytes, 1e-9, sets,
                                        {read<1>(from, from, bytes / 16, sets), read<2>(from, from, bytes / 16, sets), read<4>(from, from, bytes / 16, sets)});
            r.flops = 0;
            bench_print(plan->name, "sample", (std::string(name) + (spread > 1 ? ", peaked" : ", flat")).c_str(), shape, r, "a read");
        };
        te_sampling s = none;
        line("greedy", s);
        s.temperature = all.temperature;
        line("temperature", s);
        s.top_k = all.top_k;
        line("top-k", s);
        s.top_p = all.top_p;
        line("top-k, top-p", s);
        s.top_k = filled<int32_t>((size_t)rows, 1000);
        line("top-k of 1000, top-p", s);
        s.top_k = nullptr;
        line("top-p", s);
        s.top_p = nullptr, s.min_p = all.min_p;
        line("min-p", s);
        line("all filters, history, mask, 20 log-probs", all);
    }
    bench_release();
}

int main(int argc, char **argv) {
    bench_open(argc, argv);
    sample<wide>(wide_plan(), wide_bind, 1);
    sample<many>(many_plan(), many_bind, 128);
    return bench_close();
}
