// comm.cu -- collectives as functions that bench/comm.py calls, in turns with NCCL and PyTorch's symmetric memory.
//
//     nvcc -std=c++17 -O3 -arch=sm_90a -DTE_COMM -DRANKS=2 -I. -shared -Xcompiler=-fPIC bench/comm.cu -o libcomm.so -lnccl
//
// RANKS: the ranks of the blocks; all else is of any number.
#include "te/te.h"
#ifndef TE_COMM
int main() { return puts("compile with -DTE_COMM as a library, for bench/comm.py") < 0; }
#else
#ifndef RANKS
#define RANKS 2
#endif
static te_context ctx;
static te_comm comm;

// all_reduce, add and norm as one row, and as two steps; the same behind a product; and the seam between two parts of a block under
// sequence parallelism as one row, and as three steps. Lists for inference alone.
enum { HIDDEN = 8192, ROWS = 2048, PART = 4096 };
#define REDUCED (fork, x1), (all_reduce, r), (add, x1), (rmsnorm, n, HIDDEN)
#define MULTIPLIED (input, x1, HIDDEN), (linear, out, PART, HIDDEN, (shard, rows)), (all_reduce, r), (add, x1), (rmsnorm, n, HIDDEN)
#define SEAM (input, x1, HIDDEN), (reduce_scatter, s), (add, x1), (rmsnorm, n, HIDDEN), (all_gather, g)
#define FED SEAM, (linear, in, HIDDEN, PART, (shard, columns))
#define TE_FORWARD_add_norm TE_FUSED
TE_INFERENCE(reduced_joined, bf16, REDUCED)
TE_INFERENCE(product_joined, bf16, MULTIPLIED)
TE_INFERENCE(seam_joined, bf16, SEAM)
TE_INFERENCE(fed_joined, (bf16, (recipe, fp8_delayed)), FED)
#undef TE_FORWARD_all_reduce_add_norm
#undef TE_FORWARD_reduce_scatter_add_norm_all_gather
TE_INFERENCE(reduced_apart, bf16, REDUCED)
TE_INFERENCE(product_apart, bf16, MULTIPLIED)
TE_INFERENCE(seam_apart, bf16, SEAM)
TE_INFERENCE(fed_apart, (bf16, (recipe, fp8_delayed)), FED)

// Products beside a collective, rows x out x in of each rank: 8192 x 14336 x 8192 and 8192 x 4096 x 4096.
enum { TOKENS = 8192 };
#define PRODUCTS(X) X(large, 8192, 14336) X(small, 4096, 4096)
#define PRODUCT_LISTS(name, in, out)                                                                           \
    TE_SEQUENTIAL(name##_gather, (bf16, (rows, shard)), (all_gather, g), (linear, fc, in, out, (shard, columns))) \
    TE_SEQUENTIAL(name##_scatter, bf16, (linear, fc, in, out, (shard, rows)), (reduce_scatter, s))             \
    TE_SEQUENTIAL(name##_alone, bf16, (linear, fc, in, out))
PRODUCTS(PRODUCT_LISTS)
// A GPT's layer with sequence parallelism, and the same on one GPU.
enum { BLOCK_WIDTH = 4096 };
#define SHARED TE_GPT_BLOCK_SP(b, BLOCK_WIDTH, 4 * BLOCK_WIDTH, 32, 0.1f, RANKS)
#define WHOLE TE_GPT_BLOCK(b, BLOCK_WIDTH, 4 * BLOCK_WIDTH, 32, 0.1f)
TE_SEQUENTIAL(shared, (bf16, (rows, shard)), SHARED)
TE_SEQUENTIAL(shared_fp8, (bf16, (rows, shard), (recipe, fp8_delayed)), SHARED)
TE_SEQUENTIAL(whole, bf16, WHOLE)
TE_SEQUENTIAL(whole_fp8, (bf16, (recipe, fp8_delayed)), WHOLE)

static const char *text_of(te_status s) { return s == TE_OK ? nullptr : te_last_error(&ctx); }

// Null, or what was wrong; so do all. `file`: where rank 0 leaves NCCL's unique id.
extern "C" const char *comm_open(int rank, int size, const char *file, int64_t peer_bytes, int64_t overlap_bytes) {
    te_comm_config config = te_comm_defaults();
    config.rank = rank, config.size = size, config.tensor = size, config.file = file, config.peer_bytes = peer_bytes;
    config.overlap_bytes = overlap_bytes;
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
// Lists of rows over ranks, each joined and as steps; what: see below.
enum { WHATS = 4 };
static te_model row_models[WHATS][2];
static te_status rows_bind() {
    const te_plan *const plans[WHATS][2] = {{reduced_joined_plan(), reduced_apart_plan()}, {product_joined_plan(), product_apart_plan()},
                                            {seam_joined_plan(), seam_apart_plan()}, {fed_joined_plan(), fed_apart_plan()}};
    static te_param params[WHATS][2][2];
    static te_recipes recipes[2];
    static te_model *in_fp8[2][1];
    for (int what = 0; what < WHATS; what++) {
        void *memory, *scales;
        TE_TRY(te_allocate(&ctx, &memory, te_plan_param_bytes(plans[what][0])));
        for (int k = 0; k < 2; k++) {
            te_model *m = &row_models[what][k];
            TE_TRY(te_model_bind(m, plans[what][k], params[what][k], what % 2 + 1, memory, 0, &ctx));
            TE_TRY(te_model_randomize(m, 0.02f, 1, 0, &ctx));
            if (what == 3) { // as if there had been steps
                te_recipes_config config = te_recipes_defaults();
                config.ranks = comm.world.size, in_fp8[k][0] = m;
                const size_t bytes = te_recipes_bytes(in_fp8[k], 1, &config);
                TE_TRY(te_allocate(&ctx, &scales, bytes));
                TE_TRY(te_recipes_init(&recipes[k], scales, bytes, in_fp8[k], 1, &config, &ctx));
                TE_TRY(te_recipes_loaded(&recipes[k], 1, &ctx));
            }
            // before any call is captured, for what was captured keeps the workspace of then
            TE_TRY(te_context_reserve(&ctx, te_plan_workspace_bytes(m->plan, m, ROWS, &ctx)));
        }
    }
    return te_synchronize(&ctx);
}
// y = norm(residual + the sum of all x), gamma 1, weights random; what: 0: of x[rows, HIDDEN], 1: of the products of x[rows, PART], 2: of
// this rank's rows, gathered, 3: and y[rows, PART] their product in FP8. The first call must not be captured.
static te_status row(int what, int is_apart, void *y, void *x, void *residual, int rows) {
    const te_model *m = &row_models[what][is_apart];
    te_batch batch;
    te_edge edge;
    if (!m->plan) TE_TRY(rows_bind());
    memset(&batch, 0, sizeof batch), memset(&edge, 0, sizeof edge);
    batch.batch = 1, batch.seq = rows;
    edge.name = "x1", edge.value = te_matrix(residual, TE_bf16, what >= 2 ? rows / comm.tensor.size : rows, HIDDEN);
    if (what) batch.edges = &edge, batch.edge_count = 1;
    ctx.gemm_own = 1;
    return te_plan_infer(te_matrix(y, TE_bf16, rows, what == 3 ? (int)PART : (int)HIDDEN),
                         te_matrix(x, TE_bf16, rows, what == 1 ? (int)PART : (int)HIDDEN), m->plan, m, &batch, &ctx);
}
extern "C" const char *comm_row(int what, int is_apart, void *y, void *x, void *residual, int rows, void *stream) {
    ctx.stream = stream;
    return text_of(row(what, is_apart, y, x, residual, rows));
}
// Products that have sent to a row.
extern "C" int64_t comm_sent() { return comm.tensor.peers->sent; }
// What a list makes of x: kind 0: gather, 1: scatter, 2: the product alone, by our own kernel. keeps: forward for training. apart: the
// collective and the product one after the other. The first call of each must not be captured.
static te_status product(int is_small, int kind, int keeps, int apart, void *y, void *x, void *weight, void *dx, void *dy, float *grad) {
    const te_plan *const plans[2][3] = {{large_gather_plan(), large_scatter_plan(), large_alone_plan()},
                                        {small_gather_plan(), small_scatter_plan(), small_alone_plan()}};
    const te_plan *plan = plans[is_small][kind];
    static te_model models[2][3];
    static te_param params[2][3];
    static te_saved saved[2][3];
    te_model *m = &models[is_small][kind];
    te_saved *kept = &saved[is_small][kind];
    te_rank_memory *const memory = comm.tensor.memory;
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = TOKENS;
    if (!m->plan) {
        TE_TRY(te_model_bind(m, plan, &params[is_small][kind], 1, weight, grad, &ctx));
        TE_TRY(te_context_reserve(&ctx, te_plan_workspace_bytes(plan, m, TOKENS, &ctx)));
        TE_TRY(te_comm_allocate(&comm, &kept->memory, kept->bytes = te_plan_saved_bytes_of_rank(plan, TOKENS, &ctx), &ctx));
    }
    const int own = TOKENS / comm.tensor.size;
    const te_tensor in = te_matrix(x, TE_bf16, kind == 0 ? own : TOKENS, plan->in), out = te_matrix(y, TE_bf16, kind == 1 ? own : TOKENS, plan->out);
    if (apart) comm.tensor.memory = 0;
    ctx.gemm_own = kind == 2 ? 2 : 1;
    te_status s = dy ? te_plan_backward(te_matrix(dx, TE_bf16, in.rows, in.cols), te_matrix(dy, TE_bf16, out.rows, out.cols), kept, plan, m, &batch, &ctx)
                     : te_plan_forward(out, keeps ? kept : 0, in, plan, m, &batch, &ctx);
    comm.tensor.memory = memory;
    return s;
}
extern "C" const char *comm_product(int is_small, int kind, int keeps, int apart, void *y, void *x, void *weight, void *dx, void *dy,
                                    float *grad, void *stream) {
    ctx.stream = stream;
    return text_of(product(is_small, kind, keeps, apart, y, x, weight, dx, dy, grad));
}
// In the place of collectives copies within the device, of this rank's rows to where all belong: products of what is not there at all are
// faster, for NaNs draw less power. What was copied is kept, so that its time can be told.
struct copied { void *to; const void *from; size_t bytes; };
static copied copies[64];
static int copy_count;
static te_status copy_and_keep(void *to, const void *from, size_t bytes, te_context *context) {
    if (to == from) return TE_OK;
    if (copy_count == 64) return te_fail(context, TE_ERROR_OVERFLOW, "more copies than there is room for");
    copies[copy_count++] = {to, from, bytes};
    return te_copy(context, to, from, bytes);
}
static te_status gather_own(const te_group *g, void *y, const void *x, int64_t count, te_dtype dtype, te_context *context) {
    const size_t bytes = (size_t)count * te_dtype_bytes(dtype);
    for (int r = 0; r < g->size; r++) TE_TRY(copy_and_keep((char *)y + r * bytes, x, bytes, context));
    return TE_OK;
}
static te_status scatter_own(const te_group *g, void *y, const void *x, int64_t count, te_dtype dtype, te_context *context) {
    const size_t bytes = (size_t)count * te_dtype_bytes(dtype);
    return copy_and_keep(y, (const char *)x + g->rank * bytes, bytes, context);
}
static te_status reduce_own(const te_group *, void *y, const void *x, int64_t count, te_dtype dtype, te_context *context) {
    return copy_and_keep(y, x, (size_t)count * te_dtype_bytes(dtype), context);
}
static const te_transport own_rows = {"own rows", gather_own, scatter_own, reduce_own, nullptr};

// Forward and backward of a block, 4 x 2048 tokens. fp8: under fp8_delayed, with scales that all ranks have. how: 0: as the library does
// it, 1: collectives and products one after the other, 2: with copies of own rows in their place, 3: on one GPU, 4: those copies alone. The
// first call must not be captured.
static te_status block_step(int fp8, int how, void *y, void *dx, void *x, void *dy) {
    static te_model models[2][2], *in_fp8[2][1];
    static te_param params[2][2][32];
    static te_saved kept[2][2];
    static te_recipes recipes[2];
    const int alone = how == 3, first = !models[fp8][alone].plan;
    te_model *const m = &models[fp8][alone];
    te_saved *const saved = &kept[fp8][alone];
    te_group *const tensor = &comm.tensor, was = *tensor;
    const te_plan *plan = alone ? fp8 ? whole_fp8_plan() : whole_plan() : fp8 ? shared_fp8_plan() : shared_plan();
    const int own = alone ? TOKENS : TOKENS / tensor->size;
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 4, batch.seq = TOKENS / 4;
    ctx.gemm_own = 1;
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
    if (how == 2) tensor->peers = 0, tensor->transport = &own_rows, copy_count = 0;
    const te_tensor in = te_matrix(x, TE_bf16, own, BLOCK_WIDTH), out = te_matrix(y, TE_bf16, own, BLOCK_WIDTH);
    te_status s = te_plan_forward(out, saved, in, plan, m, &batch, &ctx);
    if (s == TE_OK)
        s = te_plan_backward(te_matrix(dx, TE_bf16, own, BLOCK_WIDTH), te_matrix(dy, TE_bf16, own, BLOCK_WIDTH), saved, plan, m, &batch, &ctx);
    *tensor = was;
    return s == TE_OK && fp8 && first ? te_recipes_step(&recipes[alone], &ctx) : s;
}
extern "C" const char *comm_block(int fp8, int how, void *y, void *dx, void *x, void *dy, void *stream) {
    ctx.stream = stream;
    return text_of(block_step(fp8, how, y, dx, x, dy));
}
extern "C" int comm_block_ranks() { return RANKS; }
// What is dropped out next is what was behind the first call of this.
extern "C" const char *comm_same_dropout() {
    static te_rng first;
    static int known;
    ctx.stream = nullptr;
    const te_status s = known++ ? te_rng_set(&first, &ctx) : te_rng_get(&first, &ctx);
    return text_of(s == TE_OK ? te_synchronize(&ctx) : s);
}
// Gathers and scatters that have overlapped a product.
extern "C" int64_t comm_overlapped() { return comm.tensor.memory ? comm.tensor.memory->gathered + comm.tensor.memory->scattered : -1; }
// Waits; what has gone wrong since.
extern "C" const char *comm_check() { return text_of(te_comm_synchronize(&ctx)); }
extern "C" void comm_close() {
    ctx.stream = nullptr;
    te_comm_destroy(&comm);
    te_context_destroy(&ctx);
}
#endif
