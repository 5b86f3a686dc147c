// comm.cu -- collectives as functions that bench/comm.py calls, in turns with NCCL and PyTorch's symmetric memory.
//
//     nvcc -std=c++17 -O3 -arch=sm_90a -DTE_COMM -I. -shared -Xcompiler=-fPIC bench/comm.cu -o libcomm.so -lnccl
#include "te/te.h"
#ifndef TE_COMM
int main() { return puts("compile with -DTE_COMM as a library, for bench/comm.py") < 0; }
#else
static te_context ctx;
static te_comm comm;

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
// Waits; what has gone wrong since.
extern "C" const char *comm_check() { return text_of(te_comm_synchronize(&ctx)); }
extern "C" void comm_close() {
    ctx.stream = nullptr;
    te_comm_destroy(&comm);
    te_context_destroy(&ctx);
}
#endif
