// turns.cu -- what peers.py lets take turns with PyTorch's, as a library: the products of a linear; the GPT, Llama and Qwen3 blocks and their
// attention, forward and backward, and inference of a few rows. A chip at its power limit is some percent faster after a pause, so times from two
// programs cannot be compared that closely. As a program: what tuning gains at the block's shapes.
//
//     nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -Xcompiler -fPIC -shared -I. bench/turns.cu -o libturns.so -lcublasLt
#include "models.h" // gpt4096

TE_SEQUENTIAL(llama4096, bf16, LLAMA_4096)
TE_SEQUENTIAL(qwen4096, bf16, QWEN3_4096)
TE_SEQUENTIAL(attention4096, bf16, (attention, attn, 32, 32, 128)) // the GPT block's alone
TE_SEQUENTIAL(attention_gqa, bf16, (attention, attn, 32, 8, 128))  // and that of the others

static te_context context;

static const char *text_of(te_status status) { return status == TE_OK ? nullptr : te_last_error(&context); }

// ---- products

// y[m, n] = x[m, k] w[n, k]^T;  dx[m, k] = dy[m, n] w;  dw[n, k] = dy^T x in f32, in bf16
enum { FORWARD, DGRAD, WGRAD_F32, WGRAD };

static te_gemm product_of(int which, int m, int n, int k, void *out, const void *a, const void *b) {
    te_gemm g = which == FORWARD ? te_gemm_of(m, n, k) : which == DGRAD ? te_gemm_of(m, k, n) : te_gemm_of(n, k, m);
    g.a = a, g.b = b, g.d = out, g.trans_b = which == FORWARD, g.trans_a = which >= WGRAD_F32, g.dtype = TE_bf16, g.out = which == WGRAD_F32 ? TE_f32 : TE_bf16;
    return g;
}

// ---- lists

// A list with random weights, and the memory of its forward and backward.
enum { PARAMS, GRADS, SAVED, X, Y, DX, DY, PIECES };
struct list {
    const te_plan *plan;
    te_param param[TE_MAX_OPS * TE_MAX_PARAMS];
    te_model model;
    te_batch batch;
    te_saved saved;
    void *memory[PIECES];
    te_tensor tensor(int piece) const { return te_matrix(memory[piece], TE_bf16, batch.batch * batch.seq, piece == X || piece == DX ? plan->in : plan->out); }
};
static list lists[] = {{gpt4096_plan()}, {attention4096_plan()}, {llama4096_plan()}, {qwen4096_plan()}, {attention_gqa_plan()}};

static te_status list_open(list *l, int batch, int seq) {
    const te_plan *p = l->plan;
    const int64_t rows = (int64_t)batch * seq;
    const size_t in = (size_t)rows * p->in * 2, out = (size_t)rows * p->out * 2;
    const size_t bytes[PIECES] = {te_plan_param_bytes(p), te_plan_grad_bytes(p), te_plan_saved_bytes(p, rows), in, out, in, out};
    int count = 0;
    for (int i = 0; i < p->op_count; i++) count += p->op[i].params;
    for (int i = 0; i < PIECES; i++) TE_TRY(te_allocate(&context, &l->memory[i], bytes[i]));
    l->batch.batch = batch, l->batch.seq = seq, l->saved.memory = l->memory[SAVED], l->saved.bytes = bytes[SAVED];
    TE_TRY(te_model_bind(&l->model, p, l->param, count, l->memory[PARAMS], (float *)l->memory[GRADS], &context));
    TE_TRY(te_model_randomize(&l->model, 0.02f, 1, 0, &context));
    TE_TRY(te_fill_normal(l->memory[X], TE_bf16, rows * p->in, 0, 1, 2, 0, &context));
    TE_TRY(te_fill_normal(l->memory[DY], TE_bf16, rows * p->out, 0, 1, 2, 100, &context));
    return te_context_reserve(&context, te_plan_workspace_bytes(p, &l->model, rows, &context));
}
static te_status list_run(list *l) {
    TE_TRY(te_plan_forward(l->tensor(Y), &l->saved, l->tensor(X), l->plan, &l->model, &l->batch, &context));
    return te_plan_backward(l->tensor(DX), l->tensor(DY), &l->saved, l->plan, &l->model, &l->batch, &context);
}

// ---- the library. Texts: null if it went well.

extern "C" {
// On this stream. Candidates are timed at a product's first run.
const char *turns_open(void *stream) {
    const te_status status = te_context_create(&context, 0, 1);
    context.stream = stream, context.gemm_tune = 1;
    return text_of(status);
}
// As te_linear_step runs it.
const char *products_run(int which, int m, int n, int k, void *out, const void *a, const void *b) {
    const te_gemm g = product_of(which, m, n, k, out, a, b);
    te_product_kernels *kernels = which == FORWARD ? TE_BARE(bf16, forward) : which == DGRAD ? TE_BARE(bf16, backward) : nullptr;
    return text_of(te_gemm_is_bare(kernels, &g, &context) ? te_bare_run(kernels, &g, &context) : te_gemm_run(&g, &context));
}
// The time of cuBLASLt's first candidate over that of its fastest; 1 where a kernel of our own runs.
double products_gain(int which, int m, int n, int k) {
    const te_gemm g = product_of(which, m, n, k, nullptr, nullptr, nullptr);
    const te__gemm_plan *p = te__gemm_find_plan(&g, &context);
    return p && p->timed > 0 ? (double)p->product.first_ns / (double)p->product.best_ns : 1.0;
}
// which: of `lists`
const char *lists_open(int which, int batch, int seq) { return text_of(list_open(&lists[which], batch, seq)); }
const char *lists_run(int which) { return text_of(list_run(&lists[which])); }
const char *lists_infer(int which) {
    const list &l = lists[which];
    return text_of(te_plan_forward(l.tensor(Y), nullptr, l.tensor(X), l.plan, &l.model, &l.batch, &context));
}
void lists_close() {
    for (list &l : lists)
        for (void *&p : l.memory) te_release(&context, p), p = nullptr;
}
}

int main() {
    const int m = 8192, shapes[][2] = {{12288, 4096}, {4096, 4096}, {16384, 4096}, {4096, 16384}};
    const size_t most = (size_t)16384 * 16384 * 4;
    void *a = nullptr, *b = nullptr, *out = nullptr;
    const char *error = turns_open(nullptr);
    if (!error && (te_allocate(&context, &a, most) || te_allocate(&context, &b, most) || te_allocate(&context, &out, most) ||
                   te_fill_normal(a, TE_bf16, most / 2, 0, 1, 1, 0, &context) || te_fill_normal(b, TE_bf16, most / 2, 0, 1, 1, 1, &context)))
        error = te_last_error(&context);
    context.gemm_own = 0; // cuBLASLt's alone
    for (const auto &shape : shapes)
        for (int which = FORWARD; which <= WGRAD && !error; which++) error = products_run(which, m, shape[0], shape[1], out, a, b);
    if (!error) te_gemm_print(stdout, &context);
    else fprintf(stderr, "%s\n", error);
    return error != nullptr;
}
