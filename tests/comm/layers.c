/* layers.c -- the ready-made parallel layers (te/layers.h) against the same layer on one rank: y, dx, and each rank's shard
 * of the parameters' gradients. The ranks load their shards of the weights from a file of the whole ones, in which q, k and
 * v or gate and up are separate tensors, or all are transposed. tests/comm.sh runs it as 2 and 4 processes, each of which
 * also computes the whole layer.
 *
 *     mpirun -n 4 layers FOLDER                    each rank writes a file there
 *     mpirun -n 4 layers FOLDER KV                 layers with 2 kv heads, or (with 2 ranks, too) 1
 *
 * Exit code 0: all is right; 1: not; 3: another rank has failed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "te/te.h"
#include "te/moe.h"

enum { HIDDEN = 48, FFN = 80, BATCH = 3, SEQ = 8, EXPERTS = 8, ROWS = BATCH * SEQ, MOST = 16 * HIDDEN * FFN };

/* Each on one rank, and with tensor parallelism (TP) and also sequence parallelism (SP) of 2 and 4. */
#define LAYERS(X)                                                                                                     \
    X(gpt, TE_GPT_BLOCK, (b, HIDDEN, FFN, 4, 0.0f))                                                                   \
    X(llama, TE_LLAMA_BLOCK, (b, HIDDEN, FFN, 8, 4, 6, 500000.0f))                                                    \
    X(qwen2, TE_QWEN2_BLOCK, (b, HIDDEN, FFN, 8, 4, 6, 1000000.0f))                                                   \
    X(qwen3, TE_QWEN3_BLOCK, (b, HIDDEN, FFN, 8, 4, 6, 1000000.0f))                                                   \
    X(gemma2, TE_GEMMA2_BLOCK, (b, HIDDEN, FFN, 8, 4, 6, 0.3f, 3))                                                    \
    X(mixtral, TE_MIXTRAL_BLOCK, (b, HIDDEN, FFN, 8, 4, 6, 1000000.0f, EXPERTS, 2))                                   \
    X(qwen3_moe, TE_QWEN3_MOE_BLOCK, (b, HIDDEN, FFN, 8, 4, 6, 1000000.0f, EXPERTS, 3))
#define RANKS(BLOCK, args, N) RANKS_(BLOCK, TE_STRIP args, N)
#define RANKS_(...) RANKS__(__VA_ARGS__)
#define RANKS__(BLOCK, ...) BLOCK(__VA_ARGS__)
#define LISTS(name, BLOCK, args)                                                                                      \
    TE_SEQUENTIAL(name, f32, BLOCK args)                                                                              \
    TE_SEQUENTIAL(name##_tp2, f32, RANKS(BLOCK##_TP, args, 2))                                                        \
    TE_SEQUENTIAL(name##_tp4, f32, RANKS(BLOCK##_TP, args, 4))                                                        \
    TE_SEQUENTIAL(name##_sp2, (f32, (rows, shard)), RANKS(BLOCK##_SP, args, 2))                                       \
    TE_SEQUENTIAL(name##_sp4, (f32, (rows, shard)), RANKS(BLOCK##_SP, args, 4))
LAYERS(LISTS)
#define ROPE_OPTIONS (base, 500000.0f), (scaling, llama3), (factor, 8.0f), (original_length, 16)
TE_SEQUENTIAL(llama31, f32, TE_LLAMA31_BLOCK(b, HIDDEN, FFN, 8, 4, 6, ROPE_OPTIONS))
TE_SEQUENTIAL(llama31_tp2, f32, TE_LLAMA31_BLOCK_TP(b, HIDDEN, FFN, 8, 4, 6, 2, ROPE_OPTIONS))
TE_SEQUENTIAL(llama31_tp4, f32, TE_LLAMA31_BLOCK_TP(b, HIDDEN, FFN, 8, 4, 6, 4, ROPE_OPTIONS))
TE_SEQUENTIAL(llama31_sp2, (f32, (rows, shard)), TE_LLAMA31_BLOCK_SP(b, HIDDEN, FFN, 8, 4, 6, 2, ROPE_OPTIONS))
TE_SEQUENTIAL(llama31_sp4, (f32, (rows, shard)), TE_LLAMA31_BLOCK_SP(b, HIDDEN, FFN, 8, 4, 6, 4, ROPE_OPTIONS))

/* Fewer kv heads than ranks, so that 2 or 4 ranks hold the same one. */
#define TWO_KV(X)                                                                                                     \
    X(llama_kv2, TE_LLAMA_BLOCK, (b, HIDDEN, FFN, 8, 2, 6, 500000.0f))                                                \
    X(qwen3_kv2, TE_QWEN3_BLOCK, (b, HIDDEN, FFN, 8, 2, 6, 1000000.0f))                                               \
    X(gemma2_kv2, TE_GEMMA2_BLOCK, (b, HIDDEN, FFN, 8, 2, 6, 0.3f, 3))                                                \
    X(mixtral_kv2, TE_MIXTRAL_BLOCK, (b, HIDDEN, FFN, 8, 2, 6, 1000000.0f, EXPERTS, 2))
#define LISTS_OF_4(name, BLOCK, args)                                                                                 \
    TE_SEQUENTIAL(name, f32, BLOCK args)                                                                              \
    TE_SEQUENTIAL(name##_tp4, f32, RANKS(BLOCK##_TP, args, 4))                                                        \
    TE_SEQUENTIAL(name##_sp4, (f32, (rows, shard)), RANKS(BLOCK##_SP, args, 4))
TWO_KV(LISTS_OF_4)
LISTS(qwen2_kv1, TE_QWEN2_BLOCK, (b, HIDDEN, FFN, 8, 1, 6, 1000000.0f))

/* Attention whose heads differ: each has its own slope and its own sink. */
#define SLOPES(ENTER, LEAVE, N)                                                                                       \
    (fork, b_x), (rmsnorm, b_norm1, HIDDEN), (ENTER, b_enter),                                                        \
    (linear, b_qkv, HIDDEN, 16 * 6 / N, (shard, columns), (parts, 3), (first_part, 2)),                               \
    (attention, b_attn, 8 / N, 4 / N, 6, (alibi, 1), (sinks, 1)),                                                     \
    (linear, b_proj, 8 * 6 / N, HIDDEN, (shard, rows)), (LEAVE, b_leave), (add, b_x)
TE_SEQUENTIAL(slopes, f32, (fork, b_x), (rmsnorm, b_norm1, HIDDEN), (linear, b_qkv, HIDDEN, 16 * 6),
              (attention, b_attn, 8, 4, 6, (alibi, 1), (sinks, 1)), (linear, b_proj, 8 * 6, HIDDEN), (add, b_x))
TE_SEQUENTIAL(slopes_tp2, f32, SLOPES(copy_to_group, all_reduce, 2))
TE_SEQUENTIAL(slopes_tp4, f32, SLOPES(copy_to_group, all_reduce, 4))
TE_SEQUENTIAL(slopes_sp2, (f32, (rows, shard)), SLOPES(all_gather, reduce_scatter, 2))
TE_SEQUENTIAL(slopes_sp4, (f32, (rows, shard)), SLOPES(all_gather, reduce_scatter, 4))

TE_SEQUENTIAL(mixtral_ep2, (f32, (rows, shard)), TE_MIXTRAL_BLOCK_EP(b, HIDDEN, FFN, 8, 4, 6, 1000000.0f, EXPERTS, 2, 2))
TE_SEQUENTIAL(mixtral_ep4, (f32, (rows, shard)), TE_MIXTRAL_BLOCK_EP(b, HIDDEN, FFN, 8, 4, 6, 1000000.0f, EXPERTS, 2, 4))
TE_SEQUENTIAL(qwen3_moe_ep2, (f32, (rows, shard)), TE_QWEN3_MOE_BLOCK_EP(b, HIDDEN, FFN, 8, 4, 6, 1000000.0f, EXPERTS, 3, 2))
TE_SEQUENTIAL(qwen3_moe_ep4, (f32, (rows, shard)), TE_QWEN3_MOE_BLOCK_EP(b, HIDDEN, FFN, 8, 4, 6, 1000000.0f, EXPERTS, 3, 4))

/* The parameters' names in a file: one list for any number of ranks. */
static const te_packed gpt_file[] = {
    {"ln_1.weight", "b_norm1", "weight", 0, 0}, {"ln_1.bias", "b_norm1", "bias", 0, 0},
    {"c_attn.weight", "b_qkv", "weight", 0, 1}, {"c_attn.bias", "b_qkv_bias", "bias", 0, 0},
    {"c_proj.weight", "b_proj", "weight", 0, 1}, {"c_proj.bias", "b_proj_bias", "bias", 0, 0},
    {"ln_2.weight", "b_norm2", "weight", 0, 0}, {"ln_2.bias", "b_norm2", "bias", 0, 0},
    {"c_fc.weight", "b_fc1", "weight", 0, 1}, {"c_fc.bias", "b_fc1_bias", "bias", 0, 0},
    {"mlp.weight", "b_fc2", "weight", 0, 1}, {"mlp.bias", "b_fc2_bias", "bias", 0, 0}};
static te_packed llama_file[] = { /* with 4 kv heads; use_kv_heads changes that */
    {"norm1", "b_norm1", "weight", 0, 0}, {"q_proj", "b_qkv", "weight", 8 * 6, 0}, {"k_proj", "b_qkv", "weight", 4 * 6, 0},
    {"v_proj", "b_qkv", "weight", 0, 0}, {"o_proj", "b_proj", "weight", 0, 0}, {"norm2", "b_norm2", "weight", 0, 0},
    {"gate_proj", "b_fc1", "weight", FFN, 0}, {"up_proj", "b_fc1", "weight", FFN, 0}, {"down_proj", "b_fc2", "weight", 0, 0},
    {"q_norm", "b_heads", "q_weight", 0, 0}, {"k_norm", "b_heads", "k_weight", 0, 0},         /* Qwen3 */
    {"q_bias", "b_qkv_bias", "bias", 8 * 6, 0}, {"k_bias", "b_qkv_bias", "bias", 4 * 6, 0},   /* Qwen2 */
    {"v_bias", "b_qkv_bias", "bias", 0, 0}, {"after1", "b_norm1_after", "weight", 0, 0},      /* Gemma 2 */
    {"after2", "b_norm2_after", "weight", 0, 0}, {"gate", "b_router", "weight", 0, 0},        /* a mixture of experts */
    {"sinks", "b_attn", "sinks", 0, 0}};
enum { GPT_FILE = sizeof gpt_file / sizeof *gpt_file, LLAMA_FILE = sizeof llama_file / sizeof *llama_file };

static void use_kv_heads(int kv) {
    for (int i = 0; i < (int)LLAMA_FILE; i++)
        if (llama_file[i].rows == 4 * 6) llama_file[i].rows = kv * 6;
}

/* Gate, up and down of each expert are tensors of their own. */
static int expert_file(te_packed *parts) {
    static char name[3 * EXPERTS][16];
    for (int i = 0; i < 3 * EXPERTS; i++) {
        snprintf(name[i], sizeof name[i], "expert%d.%d", i / 3, i % 3);
        parts[i].name = name[i], parts[i].op = i % 3 == 2 ? "b_fc2" : "b_fc1", parts[i].field = "weight";
        parts[i].rows = i % 3 == 2 ? HIDDEN : FFN, parts[i].form = 0;
    }
    return 3 * EXPERTS;
}

static te_context ctx;
static te_comm comm;
static const char *folder;
static int64_t compared, copied, wrong;

/* A layer and its results for x and dy, which are the same on all ranks. */
typedef struct layer {
    te_model model;
    te_param param[16];
    float *params, *grads, *x, *y, *dy, *dx;
    te_saved saved;
    int first, rows; /* of this rank */
} layer;

/* The whole layer writes its weights to a file; a sharded one loads its shards from it. */
static te_status exchange(const layer *l, int whole) {
    char path[512];
    te_packed_list list = te_packed_none();
    te_safetensors file;
    const int is_gpt = !strncmp(l->model.plan->name, "gpt", 3);
    const int has_experts = !strncmp(l->model.plan->name, "mixtral", 7) || !strncmp(l->model.plan->name, "qwen3_moe", 9);
    te_packed parts[LLAMA_FILE + 3 * EXPERTS];
    int count = has_experts ? expert_file(parts) : 0;
    for (int i = 0; i < (is_gpt ? (int)GPT_FILE : (int)LLAMA_FILE); i++) { /* the tensors that this list has */
        const te_packed *p = is_gpt ? &gpt_file[i] : &llama_file[i];
        if (has_experts && (!strcmp(p->op, "b_fc1") || !strcmp(p->op, "b_fc2"))) continue;
        for (int k = 0, has = 0; k < l->model.param_count && !has; k++)
            if (!strcmp(l->param[k].op, p->op)) parts[count++] = *p, has = 1;
    }
    snprintf(path, sizeof path, "%s/layer%d", folder, comm.world.rank);
    te_status status = te_packed_add(&list, &l->model, parts, count, "layer.", &ctx);
    if (status == TE_OK) status = te_packed_covers(&list, &l->model, &ctx);
    if (status == TE_OK && whole) status = te_safetensors_write(path, list.tensor, list.count, 0, 0, &ctx);
    if (status == TE_OK && !whole) {
        status = te_fill(&ctx, l->params, 0xff, te_plan_param_bytes(l->model.plan)); /* NaN */
        if (status == TE_OK) status = te_safetensors_open(&file, path, &ctx);
        if (status == TE_OK) {
            /* a rank loads the tensors of its own experts only */
            status = te_safetensors_load(&file, list.tensor, list.count, !has_experts, &ctx);
            te_safetensors_close(&file);
        }
        if (status == TE_OK && te_safetensors_write(path, list.tensor, list.count, 0, 0, &ctx) != TE_ERROR_VALUE)
            wrong++, printf("rank %d: a shard was written\n", comm.world.rank);
    }
    te_packed_free(&list);
    return status;
}
static te_status make(layer *l, const te_plan *plan, int whole, int sharers) {
    float **const of[6] = {&l->params, &l->grads, &l->x, &l->y, &l->dy, &l->dx};
    te_model *models[1] = {&l->model};
    te_batch batch;
    int params = 0;
    for (int i = 0; i < plan->op_count; i++) params += plan->op[i].params;
    memset(l, 0, sizeof *l), memset(&batch, 0, sizeof batch);
    l->rows = ROWS / sharers, l->first = sharers > 1 ? comm.tensor.rank * l->rows : 0;
    for (int i = 0; i < 6; i++) {
        void *memory;
        const size_t bytes = i == 0 ? te_plan_param_bytes(plan) : i == 1 ? te_plan_grad_bytes(plan) : ROWS * HIDDEN * 4;
        TE_TRY(te_allocate(&ctx, &memory, bytes));
        TE_TRY(te_fill(&ctx, memory, i < 2 ? 0 : 0xff, bytes));
        *of[i] = (float *)memory;
    }
    TE_TRY(te_fill_normal(l->x, TE_f32, ROWS * HIDDEN, 0.0f, 1.0f, 7, 1, &ctx));
    TE_TRY(te_fill_normal(l->dy, TE_f32, ROWS * HIDDEN, 0.0f, 1.0f, 7, 2, &ctx));
    TE_TRY(te_model_bind(&l->model, plan, l->param, params, l->params, l->grads, &ctx));
    TE_TRY(te_model_randomize(&l->model, 0.2f, 7, 100, &ctx));
    for (int i = 0; i < params; i++)
        if (!strcmp(l->param[i].field, "sinks")) /* which begin as zeros */
            TE_TRY(te_fill_normal(l->param[i].data, TE_f32, l->param[i].cols, 0.0f, 1.0f, 7, 3, &ctx));
    TE_TRY(te_synchronize(&ctx));
    TE_TRY(exchange(l, whole));
    void *saved;
    TE_TRY(te_allocate(&ctx, &saved, l->saved.bytes = te_plan_saved_bytes_of_rank(plan, ROWS, &ctx)));
    l->saved.memory = saved;
    TE_TRY(te_context_reserve(&ctx, te_plan_workspace_bytes(plan, &l->model, ROWS, &ctx)));
    batch.batch = BATCH, batch.seq = SEQ;
    const int64_t at = (int64_t)l->first * HIDDEN;
    TE_TRY(te_plan_forward(te_matrix(l->y + at, TE_f32, l->rows, HIDDEN), &l->saved,
                           te_matrix(l->x + at, TE_f32, l->rows, HIDDEN), plan, &l->model, &batch, &ctx));
    TE_TRY(te_plan_backward(te_matrix(l->dx + at, TE_f32, l->rows, HIDDEN),
                            te_matrix(l->dy + at, TE_f32, l->rows, HIDDEN), &l->saved, plan, &l->model, &batch, &ctx));
    TE_TRY(te_reduce_gradients(models, 1, &ctx));
    return te_comm_synchronize(&ctx);
}
static void drop(layer *l) {
    void *const memory[7] = {l->params, l->grads, l->x, l->y, l->dy, l->dx, l->saved.memory};
    for (int i = 0; i < 7; i++) te_release(&ctx, memory[i]);
}

/* Compares the root mean squares of the difference and of the values. */
static te_status compare(const char *list, const char *what, const float *got, const float *want, int64_t n) {
    static float a[MOST], b[MOST];
    double off = 0, size = 0;
    TE_TRY(te_copy(&ctx, a, got, (size_t)n * sizeof *a));
    TE_TRY(te_copy(&ctx, b, want, (size_t)n * sizeof *b));
    TE_TRY(te_comm_synchronize(&ctx));
    for (int64_t i = 0; i < n; i++) off += ((double)a[i] - b[i]) * ((double)a[i] - b[i]), size += (double)b[i] * b[i];
    compared += n;
    /* the gradient of k's bias is only rounding, because softmax does not depend on it. False for a NaN. */
    if (off <= 1.6e-11 * size + 1e-11 * (double)n) return TE_OK; /* a relative error of 4e-6, because sums over ranks have another order */
    wrong++, printf("rank %d: %s: %s is off by %g, of %g\n", comm.world.rank, list, what, sqrt(off), sqrt(size));
    return TE_OK;
}
/* Checks that the ranks that hold the same heads of k and v have the same bits of these weights and gradients. */
static te_status compare_copies(const char *list, const te_param *p, const te_shard_layout *s) {
    static float all[2 * MOST];
    const te_group *g = te__copies_group(&ctx);
    const int64_t n = p->rows * p->cols - s->first;
    void *memory;
    if (s->copies == 1) return TE_OK;
    if (s->copies != g->size || n <= 0) wrong++, printf("%s: %s has %d copies\n", list, p->op, s->copies);
    TE_TRY(te_allocate(&ctx, &memory, (size_t)g->size * (size_t)n * sizeof(float)));
    for (int i = 0; i < 2; i++) {
        TE_TRY(te_group_all_gather(g, memory, (i ? p->grad : (float *)p->data) + s->first, n, TE_f32, &ctx));
        TE_TRY(te_copy(&ctx, all, memory, (size_t)g->size * (size_t)n * sizeof(float)));
        TE_TRY(te_comm_synchronize(&ctx));
        for (int r = 1; r < g->size; r++)
            if (memcmp(all, all + r * n, (size_t)n * sizeof(float)))
                wrong++, printf("rank %d: %s: %s %s: the copies differ\n", comm.world.rank, list, p->op, i ? "grad" : "data");
        copied += n;
    }
    te_release(&ctx, memory);
    return TE_OK;
}
/* The gradient norm counts each element once, whichever ranks hold it. */
static te_status norm_of(double *norm, layer *l) {
    te_model *models[1] = {&l->model};
    te_grad_norm n;
    void *memory;
    TE_TRY(te_allocate(&ctx, &memory, te_grad_norm_bytes(models, 1)));
    TE_TRY(te_grad_norm_init(&n, memory, te_grad_norm_bytes(models, 1), models, 1, &ctx));
    TE_TRY(te_grad_norm_run(&n, &ctx));
    TE_TRY(te_copy(&ctx, norm, n.norm, sizeof *norm));
    TE_TRY(te_comm_synchronize(&ctx));
    te_release(&ctx, memory);
    return TE_OK;
}
static te_status check(const te_plan *one, const te_plan *many, int by_rows) {
    layer w, l;
    TE_TRY(make(&w, one, 1, 1));
    TE_TRY(make(&l, many, 0, by_rows ? comm.tensor.size : 1));
    const int64_t at = (int64_t)l.first * HIDDEN, n = (int64_t)l.rows * HIDDEN;
    TE_TRY(compare(many->name, "y", l.y + at, w.y + at, n));
    TE_TRY(compare(many->name, "dx", l.dx + at, w.dx + at, n));
    for (int k = 0; k < l.model.param_count; k++) {
        const te_param *p = &l.param[k];
        const te_shard_layout runs = te_shard_layout_of(p, te_tensor_group(&ctx));
        TE_TRY(compare_copies(many->name, p, &runs));
        for (int64_t i = 0; i < runs.count; i++) {
            const te_shard_run r = te_shard_run_at(&runs, i);
            TE_TRY(compare(many->name, p->op, (float *)p->data + r.at, (float *)w.param[k].data + r.whole, r.elements));
            TE_TRY(compare(many->name, p->op, p->grad + r.at, w.param[k].grad + r.whole, r.elements));
        }
    }
    double whole, parts; /* the gradient norms; the whole layer's is that of one rank */
    TE_TRY(norm_of(&parts, &l));
    te_comm *const together = ctx.comm;
    ctx.comm = 0;
    const te_status status = norm_of(&whole, &w);
    ctx.comm = together;
    TE_TRY(status);
    if (!(fabs(parts - whole) <= 1e-5 * whole))
        wrong++, printf("rank %d: %s: the gradient norm is %g, should be %g\n", comm.world.rank, many->name, parts, whole);
    drop(&w), drop(&l);
    return TE_OK;
}
static te_status run(int kv) {
    const int four = comm.tensor.size == 4;
#define CHECK(name, ...)                                                                                              \
    TE_TRY(check(name##_plan(), four ? name##_tp4_plan() : name##_tp2_plan(), 0));                                    \
    TE_TRY(check(name##_plan(), four ? name##_sp4_plan() : name##_sp2_plan(), 1));
#define CHECK_OF_4(name, ...)                                                                                         \
    TE_TRY(check(name##_plan(), name##_tp4_plan(), 0));                                                               \
    TE_TRY(check(name##_plan(), name##_sp4_plan(), 1));
    if (kv == 2) { TWO_KV(CHECK_OF_4) }
    if (kv == 1) { CHECK(qwen2_kv1) }
    if (kv != 4) return TE_OK;
    LAYERS(CHECK)
    CHECK(llama31)
    CHECK(slopes)
    TE_TRY(check(mixtral_plan(), four ? mixtral_ep4_plan() : mixtral_ep2_plan(), 1));
    TE_TRY(check(qwen3_moe_plan(), four ? qwen3_moe_ep4_plan() : qwen3_moe_ep2_plan(), 1));
    return TE_OK;
}

int main(int argc, char **argv) {
    int rank, size;
    if (argc < 2) return fprintf(stderr, "layers FOLDER [KV]\n"), 2;
    const int kv = argc > 2 ? atoi(argv[2]) : 4;
    use_kv_heads(kv);
    folder = argv[1];
    te_comm_rank_from_env(&rank, &size);
    te_comm_config config = te_comm_defaults();
    config.file = getenv("RANKS_FILE"), config.tensor = size, config.copies = size > kv ? size / kv : 1;
    te_status status = te_context_create(&ctx, TE_CUDA ? te_comm_local_rank_from_env() : 0, 3);
    if (status == TE_OK) status = te_comm_create(&comm, &config, &ctx);
    if (status == TE_OK) status = run(kv);
    if (status != TE_OK) printf("rank %d: %s: %s\n", rank, te_status_string(status), te_last_error(&ctx));
    else if (!rank) printf("layers: %lld values of %d ranks, %lld copies the same\n", (long long)compared, size, (long long)copied);
    fflush(stdout);
    te_comm_destroy(&comm); /* does not wait for ranks that have failed */
    te_context_destroy(&ctx);
    if (status == TE_ERROR_COMM) _exit(3); /* exit handlers of MPI would wait */
    return status != TE_OK || wrong;
}
