// turns.h -- lists as a library for peers.py, which runs them alternately with PyTorch's in one process. (A chip at its power limit is some percent
// faster after a pause, so times from two programs cannot be compared closely enough.) A file that includes this header defines `lists`.
#ifndef BENCH_TURNS_H
#define BENCH_TURNS_H

#include "te/te.h"

static te_context context;

static const char *text_of(te_status status) { return status == TE_OK ? nullptr : te_last_error(&context); }

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
extern list lists[];
extern const int list_count;

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
static te_status list_forward(list *l, te_saved *saved) {
    return te_plan_forward(l->tensor(Y), saved, l->tensor(X), l->plan, &l->model, &l->batch, &context);
}
static te_status list_backward(list *l) {
    return te_plan_backward(l->tensor(DX), l->tensor(DY), &l->saved, l->plan, &l->model, &l->batch, &context);
}

// ---- the library. Functions return null or an error text. which: an index of `lists`.

extern "C" {
// All work runs on this stream. The first run of a GEMM also times its candidate kernels.
const char *turns_open(void *stream) {
    const te_status status = te_context_create(&context, 0, 1);
    context.stream = stream, context.gemm_tune = 1;
    return text_of(status);
}
const char *lists_open(int which, int batch, int seq) { return text_of(list_open(&lists[which], batch, seq)); }
const char *lists_forward(int which) { return text_of(list_forward(&lists[which], &lists[which].saved)); }
const char *lists_infer(int which) { return text_of(list_forward(&lists[which], nullptr)); }
// The backward of the last forward. unrepeatable: te_context.attention_nondeterministic
const char *lists_backward(int which, int unrepeatable) {
    context.attention_nondeterministic = unrepeatable;
    return text_of(list_backward(&lists[which]));
}
void lists_close() {
    for (int i = 0; i < list_count; i++)
        for (void *&p : lists[i].memory) te_release(&context, p), p = nullptr;
}
}

#endif
