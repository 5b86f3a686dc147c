/* norm_last.c -- models of two blocks, each block a list that ends in the next block's norm (TE_GPT_BLOCK_TP_NORM_LAST,
 * .. of te/layers.h), against the same model as one list: y of inference and of forward, dx and all gradients have the
 * same bits. Also counts the steps: each collective whose sum is added to a residual, and the norm behind or before the
 * add, are one step, in these lists and in those of Gemma 2. tests/comm.sh runs it as 2 and 4 processes.
 *
 *     mpirun -n 4 norm_last
 *
 * Exit code 0: all is right; 1: not; 3: another rank has failed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "te/te.h"

enum { HIDDEN = 48, FFN = 80, BATCH = 3, SEQ = 8, ROWS = BATCH * SEQ, COUNT = ROWS * HIDDEN, PARTS = 3, MAX_PARAMS = 32 };

/* X(name, block, its arguments behind the prefix and before the number of ranks, the kind and options of its norms) */
#define LAYERS(X)                                                                                                     \
    X(gpt, TE_GPT_BLOCK, (HIDDEN, FFN, 4, 0.0f), layernorm, 1e-5f)                                                    \
    X(llama, TE_LLAMA_BLOCK, (HIDDEN, FFN, 8, 4, 6, 500000.0f), rmsnorm, 1e-5f)                                       \
    X(qwen2, TE_QWEN2_BLOCK, (HIDDEN, FFN, 8, 4, 6, 1000000.0f), rmsnorm, 1e-6f)                                      \
    X(qwen3, TE_QWEN3_BLOCK, (HIDDEN, FFN, 8, 4, 6, 1000000.0f), rmsnorm, 1e-6f)
#define CALL(M, ...) CALL_(M, __VA_ARGS__)
#define CALL_(M, ...) M(__VA_ARGS__)
#define ONE_LIST(name, BLOCK, args, NORM, EPS, FORM, N, OPTIONS)                                                      \
    TE_SEQUENTIAL(name, OPTIONS, CALL(BLOCK##_##FORM, b0, TE_STRIP args, N), CALL(BLOCK##_##FORM, b1, TE_STRIP args, N), \
                  (output, b_y), (NORM, last, HIDDEN, (eps, EPS)))
#define BLOCK_LIST(name, BLOCK, args, FORM, N) \
    TE_SEQUENTIAL(name, f32, CALL(BLOCK##_##FORM##_NORM_LAST, b, next, TE_STRIP args, N))
#define LISTS(name, BLOCK, args, NORM, EPS)                                                                           \
    TE_SEQUENTIAL(name##_first_tp, f32, (output, b_y), (NORM, next, HIDDEN, (eps, EPS)))                              \
    TE_SEQUENTIAL(name##_first_sp, (f32, (rows, shard)), (output, b_y), (NORM, next, HIDDEN, (eps, EPS)),             \
                  (all_gather, next_gather))                                                                          \
    ONE_LIST(name##_tp2, BLOCK, args, NORM, EPS, TP, 2, f32)                                                          \
    ONE_LIST(name##_tp4, BLOCK, args, NORM, EPS, TP, 4, f32)                                                          \
    ONE_LIST(name##_sp2, BLOCK, args, NORM, EPS, SP, 2, (f32, (rows, shard)))                                         \
    ONE_LIST(name##_sp4, BLOCK, args, NORM, EPS, SP, 4, (f32, (rows, shard)))                                         \
    BLOCK_LIST(name##_block_tp2, BLOCK, args, TP, 2)                                                                  \
    BLOCK_LIST(name##_block_tp4, BLOCK, args, TP, 4)                                                                  \
    BLOCK_LIST(name##_block_sp2, BLOCK, args, SP, 2)                                                                  \
    BLOCK_LIST(name##_block_sp4, BLOCK, args, SP, 4)
LAYERS(LISTS)
TE_SEQUENTIAL(gemma2, f32, TE_GEMMA2_BLOCK_TP(b0, HIDDEN, FFN, 8, 4, 6, 0.3f, 3, 2),
              TE_GEMMA2_BLOCK_TP(b1, HIDDEN, FFN, 8, 4, 6, 0.3f, -1, 2), (rmsnorm1p, last, HIDDEN))
TE_SEQUENTIAL(gemma2_block, f32, TE_GEMMA2_BLOCK_TP(b, HIDDEN, FFN, 8, 4, 6, 0.3f, 3, 2))

static te_context ctx;
static te_comm comm;
static int64_t compared, wrong;

/* ---- the steps --------------------------------------------------------------------------------------------------- */

/* How many collectives of a list sum a value to which a residual is added (added), and how many of these are in one
 * step with that add and a norm (fused). */
typedef struct collectives { int added, fused; } collectives;
static collectives count_collectives(const te_plan *p, const te_step *steps, int count) {
    collectives c = {0, 0};
    for (int i = 0; i < p->op_count; i++) {
        int add = i;
        if (strcmp(p->op[i].kind, "all_reduce") && strcmp(p->op[i].kind, "reduce_scatter")) continue;
        while (add < p->op_count && !(p->op[add].flags & TE_IS_ADD) && p->op[add].op_class != TE_CLASS_gemm) add++;
        if (add == p->op_count || !(p->op[add].flags & TE_IS_ADD)) continue;
        c.added++;
        for (int k = 0; k < count; k++) {
            int has = 0, norm = 0;
            for (int j = 0; j < steps[k].count; j++) {
                has += steps[k].op[j] == i || steps[k].op[j] == add;
                norm |= p->op[steps[k].op[j]].op_class == TE_CLASS_norm;
            }
            c.fused += has == 2 && norm;
        }
    }
    return c;
}
static void check_steps(const te_plan *p, int expected) {
    const te_step *const steps[2] = {p->forward, p->infer};
    const int counts[2] = {p->forward_count, p->infer_count};
    for (int k = 0; k < 2; k++) {
        const collectives c = count_collectives(p, steps[k], counts[k]);
        if (c.added != expected || c.fused != expected)
            wrong++, printf("%s, %s: %d of %d collectives with an add are one step with a norm, of %d that it has\n", p->name,
                            k ? "inference" : "forward", c.fused, c.added, expected);
    }
}

/* ---- the lists of blocks against one list ------------------------------------------------------------------------ */

/* One list of the model: all of it, or one of the parts first, block, block. All pointers are to target memory. */
typedef struct part {
    te_model model;
    te_param param[MAX_PARAMS];
    float *grads, *y, *dx, *sum, *dsum; /* sum: the extra output b_y, and the next part's b_x1; dsum: its gradient */
    void *params;
    te_saved saved;
} part;
static te_status make(part *p, const te_plan *plan) {
    float **const of[4] = {&p->y, &p->dx, &p->sum, &p->dsum};
    void *memory;
    int params = 0;
    for (int i = 0; i < plan->op_count; i++) params += plan->op[i].params;
    memset(p, 0, sizeof *p);
    p->saved.bytes = te_plan_saved_bytes_of_rank(plan, ROWS, &ctx);
    for (int i = 0; i < 4; i++) {
        TE_TRY(te_allocate(&ctx, &memory, COUNT * sizeof(float)));
        TE_TRY(te_fill(&ctx, memory, 0xff, COUNT * sizeof(float))); /* NaN */
        *of[i] = (float *)memory;
    }
    TE_TRY(te_allocate(&ctx, &memory, p->saved.bytes));
    p->saved.memory = memory;
    TE_TRY(te_allocate(&ctx, &p->params, te_plan_param_bytes(plan)));
    TE_TRY(te_allocate(&ctx, &memory, te_plan_grad_bytes(plan)));
    TE_TRY(te_fill(&ctx, memory, 0, te_plan_grad_bytes(plan)));
    p->grads = (float *)memory;
    TE_TRY(te_model_bind(&p->model, plan, p->param, params, p->params, p->grads, &ctx));
    return te_context_reserve(&ctx, te_plan_workspace_bytes(plan, &p->model, ROWS, &ctx));
}
static void drop(part *p) {
    void *const memory[7] = {p->params, p->grads, p->saved.memory, p->y, p->dx, p->sum, p->dsum};
    for (int i = 0; i < 7; i++) te_release(&ctx, memory[i]);
}
typedef enum which { INFER, FORWARD, BACKWARD } which;
/* Runs one pass of one part. before: the part in front of it, or null; last: whether nothing reads this part's b_y. x,
 * dy: the list's input, and the gradient of its output. */
static te_status run_part(part *p, const part *before, int last, which pass, te_tensor x, te_tensor dy, int rows) {
    const te_plan *plan = p->model.plan;
    te_edge edges[2];
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = BATCH, batch.seq = SEQ, batch.edges = edges, batch.edge_count = before ? 2 : 1;
    edges[0].name = "b_y", edges[0].value = te_matrix(p->sum, TE_f32, rows, HIDDEN);
    edges[0].grad = last ? te_none() : te_matrix(p->dsum, TE_f32, rows, HIDDEN);
    if (before) {
        edges[1].name = "b_x1", edges[1].value = te_matrix(before->sum, TE_f32, rows, HIDDEN);
        edges[1].grad = te_matrix(before->dsum, TE_f32, rows, HIDDEN);
    }
    const te_tensor y = te_matrix(p->y, TE_f32, dy.rows, HIDDEN);
    if (pass == INFER) return te_plan_infer(y, x, plan, &p->model, &batch, &ctx);
    if (pass == FORWARD) return te_plan_forward(y, &p->saved, x, plan, &p->model, &batch, &ctx);
    return te_plan_backward(te_matrix(p->dx, TE_f32, x.rows, HIDDEN), dy, &p->saved, plan, &p->model, &batch, &ctx);
}
static te_status same(const char *list, const char *what, const void *got, const void *want, size_t bytes) {
    static char a[1 << 20], b[1 << 20];
    for (size_t at = 0; at < bytes; at += sizeof a) {
        const size_t n = bytes - at < sizeof a ? bytes - at : sizeof a;
        TE_TRY(te_copy(&ctx, a, (const char *)got + at, n));
        TE_TRY(te_copy(&ctx, b, (const char *)want + at, n));
        TE_TRY(te_comm_synchronize(&ctx));
        compared += (int64_t)(n / sizeof(float));
        if (!memcmp(a, b, n)) continue;
        wrong++, printf("rank %d: %s: %s has other bits\n", comm.world.rank, list, what);
    }
    return TE_OK;
}
/* one: the model as one list; first, block: its parts. by_rows: with sequence parallelism. */
static te_status check(const te_plan *one, const te_plan *first, const te_plan *block, int by_rows) {
    const te_plan *const plans[PARTS] = {first, block, block};
    const int ranks = comm.tensor.size, rows = by_rows ? ROWS / ranks : ROWS, own = by_rows ? comm.tensor.rank * rows : 0;
    part whole, parts[PARTS];
    te_model *models[PARTS], *model = &whole.model;
    void *x, *dy;
    int k = 0;
    TE_TRY(make(&whole, one));
    TE_TRY(te_model_randomize(&whole.model, 0.2f, 7, 100 + (uint32_t)comm.tensor.rank, &ctx));
    for (int i = 0; i < PARTS; i++) {
        TE_TRY(make(&parts[i], plans[i]));
        models[i] = &parts[i].model;
        for (int j = 0; j < parts[i].model.param_count; j++, k++) /* the parts have the same parameters, in the same order */
            TE_TRY(te_copy(&ctx, parts[i].param[j].data, whole.param[k].data,
                           (size_t)(whole.param[k].rows * whole.param[k].cols) * sizeof(float)));
    }
    if (k != whole.model.param_count) return te_fail(&ctx, TE_ERROR_STATE, "%s: the parts have %d parameters", one->name, k);
    TE_TRY(te_allocate(&ctx, &x, COUNT * sizeof(float)));
    TE_TRY(te_allocate(&ctx, &dy, COUNT * sizeof(float)));
    TE_TRY(te_fill_normal(x, TE_f32, COUNT, 0.0f, 1.0f, 7, 1, &ctx));
    TE_TRY(te_fill(&ctx, dy, 0, COUNT * sizeof(float))); /* zero in the rows of other ranks, over which dy is summed */
    TE_TRY(te_fill_normal((float *)dy + own * HIDDEN, TE_f32, rows * HIDDEN, 0.0f, 1.0f, 7, 2 + (uint32_t)own, &ctx));
    const te_tensor of_x = te_matrix((float *)x + own * HIDDEN, TE_f32, rows, HIDDEN), of_dy = te_matrix(dy, TE_f32, ROWS, HIDDEN);
    for (int pass = INFER; pass <= FORWARD; pass++) {
        TE_TRY(run_part(&whole, 0, 1, (which)pass, of_x, te_matrix((float *)dy + own * HIDDEN, TE_f32, rows, HIDDEN), rows));
        for (int i = 0; i < PARTS; i++)
            TE_TRY(run_part(&parts[i], i ? &parts[i - 1] : 0, i + 1 == PARTS, (which)pass,
                            i ? te_matrix(parts[i - 1].y, TE_f32, ROWS, HIDDEN) : of_x, of_dy, rows));
        TE_TRY(same(block->name, pass ? "y of forward" : "y of inference", parts[PARTS - 1].y + own * HIDDEN, whole.y,
                    (size_t)(rows * HIDDEN) * sizeof(float)));
    }
    TE_TRY(run_part(&whole, 0, 1, BACKWARD, of_x, te_matrix((float *)dy + own * HIDDEN, TE_f32, rows, HIDDEN), rows));
    for (int i = PARTS - 1; i >= 0; i--)
        TE_TRY(run_part(&parts[i], i ? &parts[i - 1] : 0, i + 1 == PARTS, BACKWARD,
                        i ? te_matrix(parts[i - 1].y, TE_f32, ROWS, HIDDEN) : of_x,
                        i + 1 < PARTS ? te_matrix(parts[i + 1].dx, TE_f32, ROWS, HIDDEN) : of_dy, rows));
    TE_TRY(te_reduce_gradients(&model, 1, &ctx));
    TE_TRY(te_reduce_gradients(models, PARTS, &ctx));
    TE_TRY(same(block->name, "dx", parts[0].dx, whole.dx, (size_t)(rows * HIDDEN) * sizeof(float)));
    for (int i = 0, m = 0; i < PARTS; i++)
        for (int j = 0; j < parts[i].model.param_count; j++, m++)
            TE_TRY(same(block->name, whole.param[m].op, parts[i].param[j].grad, whole.param[m].grad,
                        (size_t)(whole.param[m].rows * whole.param[m].cols) * sizeof(float)));
    for (int i = 0; i < PARTS; i++) drop(&parts[i]);
    drop(&whole), te_release(&ctx, x), te_release(&ctx, dy);
    return TE_OK;
}
static te_status run(void) {
    const int four = comm.tensor.size == 4;
#define CHECK(name, ...)                                                                                                \
    check_steps(name##_tp2_plan(), 4), check_steps(name##_block_tp2_plan(), 2), check_steps(name##_block_sp2_plan(), 2); \
    TE_TRY(check(four ? name##_tp4_plan() : name##_tp2_plan(), name##_first_tp_plan(),                                  \
                 four ? name##_block_tp4_plan() : name##_block_tp2_plan(), 0));                                         \
    TE_TRY(check(four ? name##_sp4_plan() : name##_sp2_plan(), name##_first_sp_plan(),                                  \
                 four ? name##_block_sp4_plan() : name##_block_sp2_plan(), 1));
    LAYERS(CHECK)
    check_steps(gemma2_plan(), 4), check_steps(gemma2_block_plan(), 2);
    return TE_OK;
}

int main(void) {
    int rank, size;
    te_comm_rank_from_env(&rank, &size);
    te_comm_config config = te_comm_defaults();
    config.file = getenv("RANKS_FILE"), config.tensor = size;
    if (getenv("RANKS_TIMEOUT")) config.timeout = atof(getenv("RANKS_TIMEOUT"));
    te_status status = te_context_create(&ctx, TE_CUDA ? te_comm_local_rank_from_env() : 0, 3);
    if (status == TE_OK) status = te_comm_create(&comm, &config, &ctx);
    if (status == TE_OK) status = run();
    const te_peer_memory *peers = status == TE_OK ? te_tensor_group(&ctx)->peers : 0;
    if (status != TE_OK) printf("rank %d: %s: %s\n", rank, te_status_string(status), te_last_error(&ctx));
    else if (!rank)
        printf("norm_last: %lld values of %d ranks, %lld wrong tensors, %lld fused patterns\n", (long long)compared, size,
               (long long)wrong, peers ? (long long)peers->fused : 0LL);
    fflush(stdout);
    te_comm_destroy(&comm); /* does not wait for ranks that have failed */
    te_context_destroy(&ctx);
    if (status == TE_ERROR_COMM) _exit(3); /* exit handlers of MPI would wait */
    return status != TE_OK || wrong;
}
