// loss.cu -- a library for loss.py: a head (linear, cross_entropy), forward and backward, and its three GEMMs alone.
//
//     nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -Xcompiler -fPIC -shared -I. bench/loss.cu -o libloss.so -lcublasLt
//
// As a program it prints the memory of each head, without weights, gradients, x and dx, at the sizes that loss.py times.
#include "te/te.h"

#define TE_FORWARD_linear_cross_entropy TE_FUSED
#define TE_BACKWARD_cross_entropy_linear TE_FUSED

TE_SEQUENTIAL(gpt2, bf16, (linear, lm, 768, 50304), (cross_entropy, loss, 50304))
TE_SEQUENTIAL(qwen3, bf16, (linear, lm, 4096, 151936), (cross_entropy, loss, 151936))
TE_SEQUENTIAL_WITH(TE_UNFUSED_, TE_UNFUSED_, gpt2_apart, bf16, (linear, lm, 768, 50304), (cross_entropy, loss, 50304))
TE_SEQUENTIAL_WITH(TE_UNFUSED_, TE_UNFUSED_, qwen3_apart, bf16, (linear, lm, 4096, 151936), (cross_entropy, loss, 151936))

enum { HEADS = 4, PARAMS = 1 };
static struct head {
    const te_plan *plan;
    te_param param[PARAMS];
    te_model model;
    te_saved saved;
    te_batch batch;
} heads[HEADS] = {{gpt2_plan()}, {qwen3_plan()}, {gpt2_apart_plan()}, {qwen3_apart_plan()}};
static te_context context;

static const char *text_of(te_status status) { return status == TE_OK ? nullptr : te_last_error(&context); }

extern "C" {
// All work runs on this stream. The first run of a GEMM also times its candidate kernels.
const char *loss_open(void *stream) {
    const te_status status = te_context_create(&context, 0, 1);
    context.stream = stream, context.gemm_tune = 1;
    return text_of(status);
}
// Bytes of the workspace and of the values that forward saves.
size_t loss_bytes(int which, int64_t rows, void *weight, float *grad) {
    head *h = &heads[which];
    if (te_model_bind(&h->model, h->plan, h->param, PARAMS, weight, grad, &context)) return 0;
    h->saved.bytes = te_plan_saved_bytes(h->plan, rows);
    return te_plan_workspace_bytes(h->plan, &h->model, rows, &context) + h->saved.bytes;
}
// Uses `memory`, of that many bytes: first the saved values, then the workspace.
const char *loss_bind(int which, int64_t rows, const int32_t *labels, void *memory, size_t bytes) {
    head *h = &heads[which];
    h->saved.memory = memory;
    context.workspace = (char *)memory + h->saved.bytes, context.workspace_bytes = bytes - h->saved.bytes;
    memset(&h->batch, 0, sizeof h->batch);
    h->batch.batch = 1, h->batch.seq = (int)rows, h->batch.labels = labels, h->batch.loss_scale = 1.0f / (float)rows;
    return nullptr;
}
// passes: bit 0: forward; bit 1: backward; bit 2: backward computes the loss; bit 3: gradients are accumulated.
const char *loss_run(int which, int passes, float *loss, void *dx, void *x) {
    head *h = &heads[which];
    const int64_t rows = h->batch.seq;
    const te_tensor in = te_matrix(x, TE_bf16, rows, h->plan->in), din = te_matrix(dx, TE_bf16, rows, h->plan->in), y = te_matrix(loss, TE_f32, rows, 1);
    h->batch.loss_in_backward = passes >> 2 & 1, h->batch.accumulate = passes >> 3 & 1;
    te_status s = TE_OK;
    if (passes & 1) s = te_plan_forward(y, &h->saved, in, h->plan, &h->model, &h->batch, &context);
    if (s == TE_OK && passes & 2) s = te_plan_backward(din, te_none(), &h->saved, h->plan, &h->model, &h->batch, &context);
    return text_of(s);
}
int loss_is_deferred(int which) { return heads[which].saved.loss_in_backward; }
// The three GEMMs of a head, with all logits in memory: logits = x W^T, dx = logits W, dW = logits^T x in f32. `only`: a bit for each to run.
const char *loss_products(int64_t rows, int64_t vocabulary, int64_t hidden, void *logits, void *x, void *weight, void *dx, float *dw, int only) {
    te_gemm g = te_gemm_of(rows, vocabulary, hidden), d = te_gemm_of(rows, hidden, vocabulary), w = te_gemm_of(vocabulary, hidden, rows);
    g.dtype = g.out = d.dtype = d.out = w.dtype = TE_bf16, w.out = TE_f32;
    g.a = x, g.b = weight, g.trans_b = 1, g.d = logits;
    d.a = logits, d.b = weight, d.d = dx;
    w.a = logits, w.trans_a = 1, w.b = x, w.d = dw;
    const te_gemm all[3] = {g, d, w};
    te_product_kernels *kernels[3] = {TE_UNFUSED_GEMM(bf16, forward), TE_UNFUSED_GEMM(bf16, backward), nullptr};
    for (int i = 0; i < 3; i++) {
        if (!(only >> i & 1)) continue;
        const te_status s = te_gemm_is_custom(kernels[i], &all[i], &context) ? te__unfused_gemm_run(kernels[i], &all[i], &context) : te_gemm_run(&all[i], &context);
        if (s) return text_of(s);
    }
    return nullptr;
}
}

int main() {
    const struct { const char *name; int64_t rows; } sizes[HEADS] = {
        {"gpt2, a piece at a time", 8192}, {"qwen3, a piece at a time", 4096}, {"gpt2, all logits", 8192}, {"qwen3, all logits", 4096}};
    const char *error = loss_open(nullptr);
    for (int i = 0; i < HEADS && !error; i++) {
        void *weight = nullptr, *grad = nullptr;
        const size_t elements = (size_t)heads[i].plan->op[0].in * (size_t)heads[i].plan->op[0].out;
        if (te_allocate(&context, &weight, elements * 2) || te_allocate(&context, &grad, elements * 4)) error = te_last_error(&context);
        const size_t bytes = error ? 0 : loss_bytes(i, sizes[i].rows, weight, (float *)grad);
        if (!error && !bytes) error = te_last_error(&context);
        printf("%-24s %5lld rows: %8.1f MiB\n", sizes[i].name, (long long)sizes[i].rows, (double)bytes / 1048576);
        te_release(&context, weight), te_release(&context, grad);
    }
    if (error) fprintf(stderr, "%s\n", error);
    te_context_destroy(&context);
    return error != nullptr;
}
