// attention.cu -- attention by itself in bf16: as a library for peers.py, which compares it with cuDNN and flash-attn-4 at these shapes;
// as a program it prints the library's times alone.
//
//     nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -Xcompiler -fPIC -shared -I. bench/attention.cu -o libattention.so -lcublasLt
//     nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -I. bench/attention.cu -o attention -lcublasLt && ./attention
#include <algorithm>
#include <vector>

#include "turns.h"

TE_SEQUENTIAL(h32_d128_causal, bf16, (attention, attn, 32, 32, 128))
TE_SEQUENTIAL(h32_d128_full, bf16, (attention, attn, 32, 32, 128, (causal, 0)))
TE_SEQUENTIAL(h16_d128_causal, bf16, (attention, attn, 16, 16, 128))
TE_SEQUENTIAL(h16_d128_full, bf16, (attention, attn, 16, 16, 128, (causal, 0)))
TE_SEQUENTIAL(h64_kv8_d128_causal, bf16, (attention, attn, 64, 8, 128))
TE_SEQUENTIAL(h32_d64_causal, bf16, (attention, attn, 32, 32, 64))
TE_SEQUENTIAL(h16_d256_causal, bf16, (attention, attn, 16, 16, 256))
TE_SEQUENTIAL(h32_d192_v128_causal, bf16, (attention, attn, 32, 32, 192, (value_dim, 128)))
TE_SEQUENTIAL(h32_d192_v128_full, bf16, (attention, attn, 32, 32, 192, (value_dim, 128), (causal, 0)))

list lists[] = {{h32_d128_causal_plan()}, {h32_d128_full_plan()}, {h16_d128_causal_plan()}, {h16_d128_full_plan()},
                {h64_kv8_d128_causal_plan()}, {h32_d64_causal_plan()}, {h16_d256_causal_plan()}, {h32_d192_v128_causal_plan()}, {h32_d192_v128_full_plan()}};
const int list_count = sizeof lists / sizeof *lists;

struct shape {
    int batch, seq, heads, kv_heads, head_dim, causal, value_dim;
};
static const shape shapes[] = {{4, 2048, 32, 32, 128, 1, 128}, {4, 2048, 32, 32, 128, 0, 128}, {2, 8192, 16, 16, 128, 1, 128},
                               {2, 8192, 16, 16, 128, 0, 128}, {1, 16384, 64, 8, 128, 1, 128}, {2, 8192, 32, 32, 64, 1, 64},
                               {2, 4096, 16, 16, 256, 1, 256}, {2, 4096, 32, 32, 192, 1, 128}, {2, 4096, 32, 32, 192, 0, 128}};
static_assert(sizeof shapes / sizeof *shapes == sizeof lists / sizeof *lists, "a shape for each list");

extern "C" {
int shapes_count() { return list_count; }
const int *shapes_at(int which) { return &shapes[which].batch; } // a shape as seven ints
}

static const char *error;
static cudaEvent_t begin, end;

// Microseconds of a run: the median over nine rounds of three runs each, after two rounds to warm up.
template <class F> static double time_of(F run) {
    std::vector<float> us;
    for (int round = 0; round < 11 && !error; round++) {
        float ms = 0;
        cudaEventRecord(begin, (cudaStream_t)context.stream);
        for (int i = 0; i < 3 && !error; i++) error = run();
        cudaEventRecord(end, (cudaStream_t)context.stream);
        cudaEventSynchronize(end);
        cudaEventElapsedTime(&ms, begin, end);
        if (round >= 2) us.push_back(1e3f * ms / 3);
    }
    if (us.empty()) return 0;
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
}

int main() {
    error = turns_open(nullptr);
    if (!error) cudaEventCreate(&begin), cudaEventCreate(&end), printf("batch seq heads kv head_dim/value_dim causal: forward, backward, unrepeatable; TFLOP/s\n");
    for (int i = 0; i < list_count && !error; i++) {
        const shape &s = shapes[i];
        if ((error = lists_open(i, s.batch, s.seq))) break;
        const double us[] = {time_of([&] { return lists_forward(i); }), time_of([&] { return lists_backward(i, 0); }), time_of([&] { return lists_backward(i, 1); })};
        const double flops = 2.0 * s.batch * s.heads * s.seq * s.seq / (s.causal ? 2 : 1); // of one GEMM, for each column of a head
        const double forward = flops * (s.head_dim + s.value_dim), backward = flops * (3 * s.head_dim + 2 * s.value_dim);
        if (error) break;
        printf("%d %5d %2d %2d %3d/%d %d: %7.1f %7.1f %7.1f us; %3.0f %3.0f %3.0f\n", s.batch, s.seq, s.heads, s.kv_heads, s.head_dim, s.value_dim, s.causal, us[0], us[1], us[2],
               forward / us[0] / 1e6, backward / us[1] / 1e6, backward / us[2] / 1e6);
        lists_close();
    }
    if (error) fprintf(stderr, "%s\n", error);
    return error != nullptr;
}
