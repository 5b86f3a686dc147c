// comm.cu -- collectives, fused collective patterns and GEMMs that overlap collectives, as a library for bench/comm.py, which compares
// them with NCCL and PyTorch's symmetric memory.
//
//     nvcc -std=c++17 -O3 -arch=sm_90a -DTE_COMM -DRANKS=2 -I. -sharded -Xcompiler=-fPIC bench/comm.cu -o libcomm.so -lnccl
//
// RANKS: tensor-parallel ranks of the GPT blocks; all else runs on any number of ranks.
#include "te/te.h"
#ifndef TE_COMM
int main() { return puts("compile with -DTE_COMM as a library, for bench/comm.py") < 0; }
#else
#ifndef RANKS
#define RANKS 2
#endif
static te_context ctx;
static te_comm comm;

// Inference lists with a fused pattern (_fused), and the same with each collective a step of its own (_unfused): all_reduce, add, norm; the
// same behind a linear; reduce_scatter, add, norm, all_gather (the boundary between two parts of a block under sequence parallelism); and
// that in front of an FP8 linear.
enum { HIDDEN = 8192, ROWS = 2048, PART = 4096 };
#define REDUCED (fork, x1), (all_reduce, r), (add, x1), (rmsnorm, n, HIDDEN)
#define LINEAR_REDUCED (input, x1, HIDDEN), (linear, out, PART, HIDDEN, (shard, rows)), (all_reduce, r), (add, x1), (rmsnorm, n, HIDDEN)
#define BOUNDARY (input, x1, HIDDEN), (reduce_scatter, s), (add, x1), (rmsnorm, n, HIDDEN), (all_gather, g)
#define BOUNDARY_LINEAR BOUNDARY, (linear, in, HIDDEN, PART, (shard, columns))
#define TE_FORWARD_add_norm TE_FUSED
TE_INFERENCE(reduced_fused, bf16, REDUCED)
TE_INFERENCE(linear_reduced_fused, bf16, LINEAR_REDUCED)
TE_INFERENCE(boundary_fused, bf16, BOUNDARY)
TE_INFERENCE(boundary_linear_fused, (bf16, (recipe, fp8_delayed)), BOUNDARY_LINEAR)
#undef TE_FORWARD_all_reduce_add_norm
#undef TE_FORWARD_reduce_scatter_add_norm_all_gather
TE_INFERENCE(reduced_unfused, bf16, REDUCED)
TE_INFERENCE(linear_reduced_unfused, bf16, LINEAR_REDUCED)
TE_INFERENCE(boundary_unfused, bf16, BOUNDARY)
TE_INFERENCE(boundary_linear_unfused, (bf16, (recipe, fp8_delayed)), BOUNDARY_LINEAR)

// GEMMs that overlap a collective, rows x out x in of each rank: 8192 x 14336 x 8192 and 8192 x 4096 x 4096.
enum { TOKENS = 8192 };
#define SHAPES(X) X(large, 8192, 14336) X(small, 4096, 4096)
#define SHAPE_LISTS(name, in, out)                                                                           \
    TE_SEQUENTIAL(name##_gather, (bf16, (rows, shard)), (all_gather, g), (linear, fc, in, out, (shard, columns))) \
    TE_SEQUENTIAL(name##_scatter, bf16, (linear, fc, in, out, (shard, rows)), (reduce_scatter, s))             \
    TE_SEQUENTIAL(name##_alone, bf16, (linear, fc, in, out))
SHAPES(SHAPE_LISTS)
// A GPT layer with tensor and sequence parallelism, and the same on one GPU.
enum { BLOCK_WIDTH = 4096 };
#define SHARDED TE_GPT_BLOCK_SP(b, BLOCK_WIDTH, 4 * BLOCK_WIDTH, 32, 0.1f, RANKS)
#define WHOLE TE_GPT_BLOCK(b, BLOCK_WIDTH, 4 * BLOCK_WIDTH, 32, 0.1f)
TE_SEQUENTIAL(sharded, (bf16, (rows, shard)), SHARDED)
TE_SEQUENTIAL(sharded_fp8, (bf16, (rows, shard), (recipe, fp8_delayed)), SHARDED)
TE_SEQUENTIAL(whole, bf16, WHOLE)
TE_SEQUENTIAL(whole_fp8, (bf16, (recipe, fp8_delayed)), WHOLE)

static const char *text_of(te_status s) { return s == TE_OK ? nullptr : te_last_error(&ctx); }

// All functions return null or an error text. file: a path for NCCL's unique id.
extern "C" const char *comm_open(int rank, int size, const char *file, int64_t peer_bytes, int64_t overlap_bytes) {
    te_comm_config config = te_comm_defaults();
    config.rank = rank, config.size = size, config.tensor = size, config.file = file, config.peer_bytes = peer_bytes;
    config.overlap_bytes = overlap_bytes;
    te_status s = te_context_create(&ctx, rank, 1);
    if (s == TE_OK) s = te_comm_create(&comm, &config, &ctx);
    if (s == TE_OK && !comm.tensor.peers) return "the ranks cannot map each other's memory";
    return text_of(s);
}
// All-reduces up to one_shot_bytes are one-shot, and kernels have at most max_blocks blocks; -1 and 0: as the library chooses.
extern "C" void comm_force(int64_t one_shot_bytes, int max_blocks) {
    te_peer_memory *p = comm.tensor.peers;
    static const te_peer_memory chosen = *p;
    p->one_shot_bytes = one_shot_bytes < 0 ? chosen.one_shot_bytes : one_shot_bytes;
    p->max_blocks = max_blocks ? max_blocks : chosen.max_blocks;
}
// kind: a te_peer_kind. count: elements of one rank.
extern "C" const char *comm_run(int kind, void *y, const void *x, int64_t count, int dtype, void *stream) {
    const te_group *g = te_tensor_group(&ctx);
    const te_dtype t = (te_dtype)dtype;
    ctx.stream = stream;
    if (kind == TE_PEER_all_reduce) return text_of(te_group_all_reduce(g, y, x, count, t, &ctx));
    if (kind == TE_PEER_reduce_scatter) return text_of(te_group_reduce_scatter(g, y, x, count, t, &ctx));
    return text_of(te_group_all_gather(g, y, x, count, t, &ctx));
}
// The four lists above, each fused and unfused.
enum { PATTERNS = 4 };
static te_model pattern_models[PATTERNS][2];
static te_status patterns_bind() {
    const te_plan *const plans[PATTERNS][2] = {{reduced_fused_plan(), reduced_unfused_plan()}, {linear_reduced_fused_plan(), linear_reduced_unfused_plan()},
                                            {boundary_fused_plan(), boundary_unfused_plan()}, {boundary_linear_fused_plan(), boundary_linear_unfused_plan()}};
    static te_param params[PATTERNS][2][2];
    static te_recipes recipes[2];
    static te_model *in_fp8[2][1];
    for (int pattern = 0; pattern < PATTERNS; pattern++) {
        void *memory, *scales;
        TE_TRY(te_allocate(&ctx, &memory, te_plan_param_bytes(plans[pattern][0])));
        for (int k = 0; k < 2; k++) {
            te_model *m = &pattern_models[pattern][k];
            TE_TRY(te_model_bind(m, plans[pattern][k], params[pattern][k], pattern % 2 + 1, memory, 0, &ctx));
            TE_TRY(te_model_randomize(m, 0.02f, 1, 0, &ctx));
            if (pattern == 3) { // with scales as after some training steps
                te_recipes_config config = te_recipes_defaults();
                config.ranks = comm.world.size, in_fp8[k][0] = m;
                const size_t bytes = te_recipes_bytes(in_fp8[k], 1, &config);
                TE_TRY(te_allocate(&ctx, &scales, bytes));
                TE_TRY(te_recipes_init(&recipes[k], scales, bytes, in_fp8[k], 1, &config, &ctx));
                TE_TRY(te_recipes_loaded(&recipes[k], 1, &ctx));
            }
            // reserved before any call is captured, because a captured graph keeps the address of its workspace
            TE_TRY(te_context_reserve(&ctx, te_plan_workspace_bytes(m->plan, m, ROWS, &ctx)));
        }
    }
    return te_synchronize(&ctx);
}
// y = norm(residual + the sum over the ranks of x), with gamma 1 and random weights. pattern 0: x[rows, HIDDEN] is summed; 1: the linear's
// output for x[rows, PART] is summed; 2: each rank computes its rows, which are then gathered; 3: as 2, and y[rows, PART] is the output of the
// FP8 linear behind. The first call must not be captured.
static te_status run_pattern(int pattern, int is_unfused, void *y, void *x, void *residual, int rows) {
    const te_model *m = &pattern_models[pattern][is_unfused];
    te_batch batch;
    te_edge edge;
    if (!m->plan) TE_TRY(patterns_bind());
    memset(&batch, 0, sizeof batch), memset(&edge, 0, sizeof edge);
    batch.batch = 1, batch.seq = rows;
    edge.name = "x1", edge.value = te_matrix(residual, TE_bf16, pattern >= 2 ? rows / comm.tensor.size : rows, HIDDEN);
    if (pattern) batch.edges = &edge, batch.edge_count = 1;
    ctx.gemm_custom = 1;
    return te_plan_infer(te_matrix(y, TE_bf16, rows, pattern == 3 ? (int)PART : (int)HIDDEN),
                         te_matrix(x, TE_bf16, rows, pattern == 1 ? (int)PART : (int)HIDDEN), m->plan, m, &batch, &ctx);
}
extern "C" const char *comm_pattern(int pattern, int is_unfused, void *y, void *x, void *residual, int rows, void *stream) {
    ctx.stream = stream;
    return text_of(run_pattern(pattern, is_unfused, y, x, residual, rows));
}
// How many GEMMs so far sent their output to the other ranks in their epilogue, for a fused pattern.
extern "C" int64_t comm_gemm_sends() { return comm.tensor.peers->gemms; }
// Run a list, forward or, if dy is not null, backward. kind 0: all_gather and GEMM, 1: GEMM and reduce_scatter, 2: the GEMM alone, by the
// library's own kernel. saves: forward saves for backward. serial: the collective and the GEMM run one after the other. The first call of each
// kind must not be captured.
static te_status run_gemm(int is_small, int kind, int saves, int serial, void *y, void *x, void *weight, void *dx, void *dy, float *grad) {
    const te_plan *const plans[2][3] = {{large_gather_plan(), large_scatter_plan(), large_alone_plan()},
                                        {small_gather_plan(), small_scatter_plan(), small_alone_plan()}};
    const te_plan *plan = plans[is_small][kind];
    static te_model models[2][3];
    static te_param params[2][3];
    static te_saved saved[2][3];
    te_model *m = &models[is_small][kind];
    te_saved *saved_of = &saved[is_small][kind];
    te__overlap_memory *const memory = comm.tensor.memory;
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = TOKENS;
    if (!m->plan) {
        TE_TRY(te_model_bind(m, plan, &params[is_small][kind], 1, weight, grad, &ctx));
        TE_TRY(te_context_reserve(&ctx, te_plan_workspace_bytes(plan, m, TOKENS, &ctx)));
        TE_TRY(te_comm_allocate(&comm, &saved_of->memory, saved_of->bytes = te_plan_saved_bytes_of_rank(plan, TOKENS, &ctx), &ctx));
    }
    const int local = TOKENS / comm.tensor.size;
    const te_tensor in = te_matrix(x, TE_bf16, kind == 0 ? local : TOKENS, plan->in), out = te_matrix(y, TE_bf16, kind == 1 ? local : TOKENS, plan->out);
    if (serial) comm.tensor.memory = 0;
    ctx.gemm_custom = kind == 2 ? 2 : 1;
    te_status s = dy ? te_plan_backward(te_matrix(dx, TE_bf16, in.rows, in.cols), te_matrix(dy, TE_bf16, out.rows, out.cols), saved_of, plan, m, &batch, &ctx)
                     : te_plan_forward(out, saves ? saved_of : 0, in, plan, m, &batch, &ctx);
    comm.tensor.memory = memory;
    return s;
}
extern "C" const char *comm_gemm(int is_small, int kind, int saves, int serial, void *y, void *x, void *weight, void *dx, void *dy,
                                    float *grad, void *stream) {
    ctx.stream = stream;
    return text_of(run_gemm(is_small, kind, saves, serial, y, x, weight, dx, dy, grad));
}
// A transport that, in place of each collective, copies this rank's rows within the device: to measure a layer without communication. (Without
// the copies, operands would be NaN. Arithmetic on NaN draws less power, and the GEMMs would be faster.) The copies are recorded, so that they
// can be timed by themselves.
struct local_copy { void *to; const void *from; size_t bytes; };
static local_copy copies[64];
static int copy_count;
static te_status copy_and_record(void *to, const void *from, size_t bytes, te_context *context) {
    if (to == from) return TE_OK;
    if (copy_count == 64) return te_fail(context, TE_ERROR_OVERFLOW, "too many copies");
    copies[copy_count++] = {to, from, bytes};
    return te_copy(context, to, from, bytes);
}
static te_status gather_local(const te_group *g, void *y, const void *x, int64_t count, te_dtype dtype, te_context *context) {
    const size_t bytes = (size_t)count * te_dtype_bytes(dtype);
    for (int r = 0; r < g->size; r++) TE_TRY(copy_and_record((char *)y + r * bytes, x, bytes, context));
    return TE_OK;
}
static te_status scatter_local(const te_group *g, void *y, const void *x, int64_t count, te_dtype dtype, te_context *context) {
    const size_t bytes = (size_t)count * te_dtype_bytes(dtype);
    return copy_and_record(y, (const char *)x + g->rank * bytes, bytes, context);
}
static te_status reduce_local(const te_group *, void *y, const void *x, int64_t count, te_dtype dtype, te_context *context) {
    return copy_and_record(y, x, (size_t)count * te_dtype_bytes(dtype), context);
}
static const te_transport local_rows = {"local rows", gather_local, scatter_local, reduce_local, nullptr};

// Forward and backward of a block, 4 x 2048 tokens. fp8: under fp8_delayed, with the same scales on all ranks. how: 0: as the library does it,
// 1: collectives and GEMMs one after the other, 2: with copies of this rank's rows in place of collectives, 3: on one GPU, 4: only the copies
// of variant 2. The first call must not be captured.
static te_status block_step(int fp8, int how, void *y, void *dx, void *x, void *dy) {
    static te_model models[2][2], *in_fp8[2][1];
    static te_param params[2][2][32];
    static te_saved saved_of[2][2];
    static te_recipes recipes[2];
    const int alone = how == 3, first = !models[fp8][alone].plan;
    te_model *const m = &models[fp8][alone];
    te_saved *const saved = &saved_of[fp8][alone];
    te_group *const tensor = &comm.tensor, was = *tensor;
    const te_plan *plan = alone ? fp8 ? whole_fp8_plan() : whole_plan() : fp8 ? sharded_fp8_plan() : sharded_plan();
    const int local = alone ? TOKENS : TOKENS / tensor->size;
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 4, batch.seq = TOKENS / 4;
    ctx.gemm_custom = 1;
    if (first) {
        void *weights, *grads, *scales;
        int count = 0;
        te_recipes_config config = te_recipes_defaults();
        config.ranks = alone ? 1 : comm.world.size, in_fp8[alone][0] = m;
        for (int i = 0; i < plan->op_count; i++) count += plan->op[i].params;
        TE_TRY(te_allocate(&ctx, &weights, te_plan_param_bytes(plan)));
        TE_TRY(te_allocate(&ctx, &grads, te_plan_grad_bytes(plan)));
        TE_TRY(te_model_bind(m, plan, params[fp8][alone], count, weights, (float *)grads, &ctx));
        TE_TRY(te_model_randomize(m, 0.02f, 1, 0, &ctx));
        if (fp8) {
            const size_t bytes = te_recipes_bytes(in_fp8[alone], 1, &config);
            TE_TRY(te_allocate(&ctx, &scales, bytes));
            TE_TRY(te_recipes_init(&recipes[alone], scales, bytes, in_fp8[alone], 1, &config, &ctx));
        }
        TE_TRY(te_context_reserve(&ctx, te_plan_workspace_bytes(plan, m, TOKENS, &ctx)));
        saved->bytes = te_plan_saved_bytes_of_rank(plan, TOKENS, &ctx);
        if (alone) TE_TRY(te_allocate(&ctx, &saved->memory, saved->bytes));
        else TE_TRY(te_comm_allocate(&comm, &saved->memory, saved->bytes, &ctx));
    }
    if (how == 4) {
        for (int i = 0; i < copy_count; i++) TE_TRY(te_copy(&ctx, copies[i].to, copies[i].from, copies[i].bytes));
        return TE_OK;
    }
    if (how) tensor->memory = 0;
    if (how == 2) tensor->peers = 0, tensor->transport = &local_rows, copy_count = 0;
    const te_tensor in = te_matrix(x, TE_bf16, local, BLOCK_WIDTH), out = te_matrix(y, TE_bf16, local, BLOCK_WIDTH);
    te_status s = te_plan_forward(out, saved, in, plan, m, &batch, &ctx);
    if (s == TE_OK)
        s = te_plan_backward(te_matrix(dx, TE_bf16, local, BLOCK_WIDTH), te_matrix(dy, TE_bf16, local, BLOCK_WIDTH), saved, plan, m, &batch, &ctx);
    *tensor = was;
    return s == TE_OK && fp8 && first ? te_recipes_step(&recipes[alone], &ctx) : s;
}
extern "C" const char *comm_block(int fp8, int how, void *y, void *dx, void *x, void *dy, void *stream) {
    ctx.stream = stream;
    return text_of(block_step(fp8, how, y, dx, x, dy));
}
extern "C" int comm_block_ranks() { return RANKS; }
// Reset the random state, so that the next dropout masks are those that followed the first call of this function.
extern "C" const char *comm_same_dropout() {
    static te_rng first;
    static int known;
    ctx.stream = nullptr;
    const te_status s = known++ ? te_rng_set(&first, &ctx) : te_rng_get(&first, &ctx);
    return text_of(s == TE_OK ? te_synchronize(&ctx) : s);
}
// How many collectives so far overlapped a GEMM.
extern "C" int64_t comm_overlapped() { return comm.tensor.memory ? comm.tensor.memory->gathered + comm.tensor.memory->scattered : -1; }
// Waits for the device, and reports errors.
extern "C" const char *comm_check() { return text_of(te_comm_synchronize(&ctx)); }
extern "C" void comm_close() {
    ctx.stream = nullptr;
    te_comm_destroy(&comm);
    te_context_destroy(&ctx);
}
#endif
