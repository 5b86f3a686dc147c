// comm.cu -- collectives as functions that bench/comm.py calls, in turns with NCCL and PyTorch's symmetric memory.
//
//     nvcc -std=c++17 -O3 -arch=sm_90a -DTE_COMM -I. -shared -Xcompiler=-fPIC bench/comm.cu -o libcomm.so -lnccl
#include "te/te.h"
#ifndef TE_COMM
int main() { return puts("compile with -DTE_COMM as a library, for bench/comm.py") < 0; }
#else
static te_context ctx;
static te_comm comm;

// all_reduce, add and norm as one row, and as two steps.
enum { HIDDEN = 4096, ROWS = 256 };
#define REDUCED (fork, x1), (all_reduce, r), (add, x1), (rmsnorm, n, HIDDEN)
#define TE_FORWARD_add_norm TE_FUSED
TE_SEQUENTIAL(joined, bf16, REDUCED)
#undef TE_FORWARD_all_reduce_add_norm
TE_SEQUENTIAL(apart, bf16, REDUCED)

static const char *text_of(te_status s) { return s == TE_OK ? nullptr : te_last_error(&ctx); }

// Null, or what was wrong; so do all. `file`: where rank 0 leaves NCCL's unique id.
extern "C" const char *comm_open(int rank, int size, const char *file, int64_t peer_bytes) {
    te_comm_config config = te_comm_defaults();
    config.rank = rank, config.size = size, config.tensor = size, config.file = file, config.peer_bytes = peer_bytes;
    te_status s = te_context_create(&ctx, rank, 1);
    if (s == TE_OK) s = te_comm_create(&comm, &config, &ctx);
    if (s == TE_OK && !comm.tensor.peers) return "the ranks cannot map each other's memory";
    return text_of(s);
}
// Sums up to `one_shot` bytes are one-shot, kernels have `blocks` blocks at most; -1 and 0: as the library chooses.
extern "C" void comm_force(int64_t one_shot, int blocks) {
    te_peers *p = comm.tensor.peers;
    static const te_peers was = *p;
    p->one_shot = one_shot < 0 ? was.one_shot : one_shot, p->blocks = blocks ? blocks : was.blocks;
}
// kind: of te_peer_kind. count: elements that one rank has.
extern "C" const char *comm_run(int kind, void *y, const void *x, int64_t count, int dtype, void *stream) {
    const te_group *g = te_tensor_group(&ctx);
    const te_dtype t = (te_dtype)dtype;
    ctx.stream = stream;
    if (kind == TE_PEER_all_reduce) return text_of(te_group_all_reduce(g, y, x, count, t, &ctx));
    if (kind == TE_PEER_reduce_scatter) return text_of(te_group_reduce_scatter(g, y, x, count, t, &ctx));
    return text_of(te_group_all_gather(g, y, x, count, t, &ctx));
}
// y[rows, HIDDEN] = norm(x + the sum of all x), gamma 1. The first call must not be captured.
static te_status row(int is_apart, void *y, void *x, int rows) {
    const te_plan *plan = is_apart ? apart_plan() : joined_plan();
    static te_model models[2];
    static te_param gammas[2];
    static void *memory;
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = rows;
    if (!memory) {
        uint16_t one[HIDDEN];
        for (int i = 0; i < HIDDEN; i++) te_store(one, i, 1.0f, TE_bf16);
        TE_TRY(te_allocate(&ctx, &memory, sizeof one));
        TE_TRY(te_copy(&ctx, memory, one, sizeof one));
        TE_TRY(te_synchronize(&ctx));
    }
    if (!models[is_apart].plan) {
        TE_TRY(te_model_bind(&models[is_apart], plan, &gammas[is_apart], 1, memory, 0, &ctx));
        TE_TRY(te_context_reserve(&ctx, te_plan_workspace_bytes(plan, &models[is_apart], ROWS, &ctx)));
    }
    return te_plan_forward(te_matrix(y, TE_bf16, rows, HIDDEN), 0, te_matrix(x, TE_bf16, rows, HIDDEN), plan, &models[is_apart], &batch,
                           &ctx);
}
extern "C" const char *comm_row(int is_apart, void *y, void *x, int rows, void *stream) {
    ctx.stream = stream;
    return text_of(row(is_apart, y, x, rows));
}
// Waits; what has gone wrong since.
extern "C" const char *comm_check() { return text_of(te_comm_synchronize(&ctx)); }
extern "C" void comm_close() {
    ctx.stream = nullptr;
    te_comm_destroy(&comm);
    te_context_destroy(&ctx);
}
#endif
