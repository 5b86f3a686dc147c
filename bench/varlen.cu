// varlen.cu -- attention of packed sequences of different lengths, compared with equal lengths: 64 random lengths from 1 to 4096, 16 heads
// of 128, bf16, causal, forward and backward. The comparison is a batch of 64 equal sequences, of a multiple of 128 tokens each, by the
// kernels without cu_seqlens; its time is scaled to the number of pairs of query and key that the random lengths have. Both run alternately in
// one program. Exit code 1: packed sequences take more than 1.08 times the time of equal ones.
//
//     nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -I. bench/varlen.cu -o varlen -lcublasLt && ./varlen
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "te/te.h"

static constexpr int HEADS = 16, D = 128, WIDTH = 3 * HEADS * D, SEQUENCES = 64, LONGEST = 4096, DRAWS = 5, TURNS = 15;
static const double limit = 1.08;

TE_ATTENTION_FORWARD(even, bf16, HEADS, HEADS, D, 1)
TE_ATTENTION_BACKWARD(even_backward, bf16, HEADS, HEADS, D, 1)
TE_ATTENTION_FORWARD_OF(packed, bf16, HEADS, HEADS, D, (-1, 0, 0, 0, 1))
TE_ATTENTION_BACKWARD_OF(packed_backward, bf16, HEADS, HEADS, D, (-1, 0, 0, 0, 1))

static te_context ctx;

static void check(te_status s, const char *what) {
    if (s == TE_OK) return;
    fprintf(stderr, "%s: %s (%s)\n", what, te_last_error(&ctx), te_status_string(s));
    exit(1);
}
static void *allocate(size_t bytes) {
    void *p = nullptr;
    check(te_allocate(&ctx, &p, bytes), "memory");
    return p;
}
// Microseconds of a launch, as the mean of three.
template <class F> static double time_of(F f) {
    cudaEvent_t a, b;
    float ms = 0;
    cudaEventCreate(&a), cudaEventCreate(&b);
    cudaEventRecord(a, (cudaStream_t)ctx.stream);
    for (int i = 0; i < 3; i++) f();
    cudaEventRecord(b, (cudaStream_t)ctx.stream);
    if (cudaEventSynchronize(b) != cudaSuccess) check(TE_ERROR_CUDA, cudaGetErrorString(cudaGetLastError()));
    cudaEventElapsedTime(&ms, a, b);
    cudaEventDestroy(a), cudaEventDestroy(b);
    return 1e3 * ms / 3;
}
static double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}
static double pairs(double length) { return length * (length + 1) / 2; }

// Returns the larger of the ratios forward and backward. bound: the upper limit of a sequence's length that is passed to the kernels.
static double measure(const char *name, const std::vector<int> &lengths, int bound) {
    std::vector<int32_t> cu(1, 0);
    double work = 0;
    for (const int n : lengths) cu.push_back(cu.back() + n), work += pairs(n);
    const int count = (int)lengths.size();
    const int equal = std::max(128, (int)(std::sqrt(2 * work / count) / 128 + 0.5) * 128);
    const size_t rows = (size_t)std::max((int64_t)cu.back(), (int64_t)count * equal);
    te_attention_args a, b;
    memset(&a, 0, sizeof a);
    void *qkv = allocate(rows * WIDTH * 2), *dout = allocate(rows * HEADS * D * 2);
    check(te_fill_normal(qkv, TE_bf16, (int64_t)(rows * WIDTH), 0, 1, 1, 0, &ctx), "fill");
    check(te_fill_normal(dout, TE_bf16, (int64_t)(rows * HEADS * D), 0, 1, 2, 0, &ctx), "fill");
    a.qkv = qkv, a.dout = dout, a.out = allocate(rows * HEADS * D * 2), a.dqkv = allocate(rows * WIDTH * 2), a.scale = 0.0883883f;
    a.lse = (float *)allocate(rows * HEADS * 4), a.delta = (float *)allocate(rows * HEADS * 4);
    a.scratch = allocate(packed_backward_scratch_bytes(&ctx, (int64_t)rows));
    b = a;
    b.out = allocate(rows * HEADS * D * 2), b.lse = (float *)allocate(rows * HEADS * 4);
    int32_t *there = (int32_t *)allocate(cu.size() * 4);
    check(te_copy(&ctx, there, cu.data(), cu.size() * 4), "copy");
    check(te_synchronize(&ctx), "copy");
    a.batch = count, a.seq = bound, a.rows = cu.back(), a.cu_seqlens = there;
    b.batch = count, b.seq = equal;
    const double share = work / (count * pairs(equal));
    double worst = 0;
    for (int backward = 0; backward < 2; backward++) {
        std::vector<double> of_packed, of_even, ratio;
        check(packed_launch(&ctx, &a), "forward"), check(even_launch(&ctx, &b), "forward"); // saves what backward reads
        for (int i = 0; i <= TURNS; i++) {
            const double x = time_of([&] { check(backward ? packed_backward_launch(&ctx, &a) : packed_launch(&ctx, &a), name); });
            const double y = share * time_of([&] { check(backward ? even_backward_launch(&ctx, &b) : even_launch(&ctx, &b), name); });
            if (i) of_packed.push_back(x), of_even.push_back(y), ratio.push_back(x / y);
        }
        const double tflops = work * HEADS * D * (backward ? 10 : 4) * 1e-6;
        printf("%-28s %-8s %6d rows, bound %5d: %8.1f us, %5.0f TFLOP/s; equal lengths (%d of %d) %8.1f us, %5.0f; %.3f times\n", name,
               backward ? "backward" : "forward", cu.back(), bound, median(of_packed), tflops / median(of_packed), count, equal, median(of_even),
               tflops / median(of_even), median(ratio));
        worst = std::max(worst, median(ratio));
    }
    check(te_synchronize(&ctx), "run");
    for (void *p : {qkv, dout, a.out, b.out, a.dqkv, (void *)a.lse, (void *)b.lse, (void *)a.delta, a.scratch, (void *)there}) te_release(&ctx, p);
    return worst;
}

int main() {
    check(te_context_create(&ctx, 0, 1), "context");
    double worst = 0;
    for (int draw = 0; draw < DRAWS; draw++) {
        std::mt19937 random(100u + (unsigned)draw);
        std::vector<int> lengths;
        for (int i = 0; i < SEQUENCES; i++) lengths.push_back(1 + (int)(random() % LONGEST));
        worst = std::max(worst, measure("64 random", lengths, LONGEST));
        if (draw) continue;
        measure("the same, a looser bound", lengths, 4 * LONGEST);
        std::sort(lengths.begin(), lengths.end());
        measure("the same, ascending", lengths, LONGEST);
    }
    measure("64 of 2048", std::vector<int>(SEQUENCES, 2048), LONGEST);
    std::mt19937 random(7);
    std::vector<int> lengths;
    for (int i = 0; i < 1000; i++) lengths.push_back(1 + (int)(random() % 256));
    measure("1000 of 1 to 256", lengths, LONGEST);
    printf("the worst of 64 random lengths: %.3f times the time of equal lengths, the limit is %.2f\n", worst, limit);
    te_context_destroy(&ctx);
    return worst > limit;
}
