// sample.cu -- the choice of tokens: one row of 152064 logits and 128 rows of 131072, in bf16, by filter. The floor is one read of the logits at
// the rate of a copy of 1 GB (half of its traffic is writing; a plain read is some percent faster). Normal logits of a standard deviation of 1 are
// flat, of 4 peaked.
//
//     nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -I. bench/sample.cu -o sample -lcublasLt && ./sample
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "te/infer.h"

TE_INFERENCE(wide, bf16, (sample, next, 152064))
TE_INFERENCE(many, bf16, (sample, next, 131072))

static te_context context;
static void must(te_status status) {
    if (status == TE_OK) return;
    fprintf(stderr, "sample: %s\n", te_last_error(&context));
    exit(1);
}
template <class T> static T *filled(size_t n, T value) {
    void *p;
    const std::vector<T> v(n, value);
    must(te_allocate(&context, &p, n * sizeof(T)));
    must(te_copy(&context, p, v.data(), n * sizeof(T)));
    must(te_synchronize(&context));
    return (T *)p;
}
// Microseconds of `run`, on average over so many calls one behind the other.
template <class F> static double time_of(F run) {
    enum { CALLS = 300 };
    cudaEvent_t begin, end;
    cudaEventCreate(&begin), cudaEventCreate(&end);
    for (int i = 0; i < 20; i++) run();
    cudaEventRecord(begin, (cudaStream_t)context.stream);
    for (int i = 0; i < CALLS; i++) run();
    cudaEventRecord(end, (cudaStream_t)context.stream), cudaEventSynchronize(end);
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    cudaEventDestroy(begin), cudaEventDestroy(end);
    return ms * 1000 / CALLS;
}

template <class M>
static void bench(const te_plan *plan, const M &m, te_status (*infer)(te_tensor, te_tensor, const M *, const te_batch *, te_context *), int rows,
                  double bytes_us) {
    const int64_t n = (int64_t)rows * plan->in;
    void *const x = filled<uint16_t>((size_t)n, 0);
    float *const y = filled<float>((size_t)rows, 0);
    for (float spread : {1.0f, 4.0f}) {
        must(te_fill_normal(x, TE_bf16, n, 0, spread, 2, 0, &context));
        te_sampling none, all;
        memset(&none, 0, sizeof none);
        none.token = filled<int32_t>((size_t)rows, 0);
        none.seed = filled<uint64_t>((size_t)rows, 5), none.counter = filled<uint64_t>((size_t)rows, 0);
        memcpy(&all, &none, sizeof all);
        all.temperature = filled<float>((size_t)rows, 0.8f), all.top_k = filled<int32_t>((size_t)rows, 50), all.top_p = filled<float>((size_t)rows, 0.9f);
        all.min_p = filled<float>((size_t)rows, 0.01f), all.history = filled<uint16_t>((size_t)n, 0);
        all.repetition_penalty = filled<float>((size_t)rows, 1.1f), all.allowed = filled<uint32_t>((size_t)rows * (size_t)(plan->in / 32), ~0u);
        all.top = 20, all.top_token = filled<int32_t>((size_t)rows * 20, 0), all.top_log_prob = filled<float>((size_t)rows * 20, 0);
        const auto line = [&](const char *name, te_sampling s) {
            te_batch b;
            memset(&b, 0, sizeof b);
            b.batch = rows, b.seq = 1, b.sampling = &s;
            const double us = time_of([&] { must(infer(te_matrix(y, TE_f32, rows, 1), te_matrix(x, TE_bf16, rows, plan->in), &m, &b, &context)); });
            printf("%d x %d, deviation %g, %s: %.1f us, %.2f of the floor\n", rows, plan->in, spread, name, us, (double)n * 2 / bytes_us / us);
        };
        te_sampling s = none;
        line("greedy", s);
        s.temperature = all.temperature;
        line("temperature", s);
        s.top_k = all.top_k;
        line("top-k", s);
        s.top_p = all.top_p;
        line("top-k, top-p", s);
        s.top_k = nullptr;
        line("top-p", s);
        s.top_p = nullptr, s.min_p = all.min_p;
        line("min-p", s);
        line("all filters, history, mask, 20 log-probabilities", all);
    }
}

int main() {
    must(te_context_create(&context, 0, 1));
    const size_t bytes = (size_t)1 << 30;
    void *const from = filled<char>(bytes, 0), *const to = filled<char>(bytes, 0);
    const double copy = time_of([&] { must(te_copy(&context, to, from, bytes)); });
    printf("a copy moves %.2f TB/s\n", 2e-6 * (double)bytes / copy);
    wide w;
    many q;
    must(wide_bind(&w, nullptr, &context));
    must(many_bind(&q, nullptr, &context));
    bench(wide_plan(), w, wide_infer, 1, 2 * (double)bytes / copy);
    bench(many_plan(), q, many_infer, 128, 2 * (double)bytes / copy);
    te_context_destroy(&context);
    return 0;
}
