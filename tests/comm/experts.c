/* experts.c -- experts over the ranks of a tensor group: (dispatch, all_to_all), which sends rows only to the ranks of
 * their experts, against all_gather and reduce_scatter of all rows, and y against doubles. Routings: random, experts
 * without rows, all tokens to the experts of one rank, NaN in x, a capacity; 1 to 80 tokens of a rank; in f32 and bf16, with a
 * recompute region, and with other ops between router and combine. A transport counts the bytes that a rank sends; they
 * are compared with the number of visits. tests/comm.sh runs it as 1, 2 and 4 processes.
 *
 *     mpirun -n 4 experts [SEED]
 *
 * Exit code 0: all is right; 1: not; 3: another rank has failed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "te/te.h"
#include "te/moe.h"

enum { HIDDEN = 24, FFN = 16, EXPERTS = 8, TOP_K = 2, MAX_TOKENS = 4 * 80, MAX_PARAMS = 8 };

/* [lists] */
#define ROUTER(N, ...) \
    (router, r, HIDDEN, EXPERTS, (top_k, TOP_K), (renormalise, 1), (choice_bias, 1), (aux_loss, 0.02f), (z_loss, 0.01f), \
     (ranks, N), __VA_ARGS__)
#define EXPERT_MLP(N) \
    (expert_linear, up, HIDDEN, 2 * FFN, EXPERTS / (N)), (swiglu, act),                                              \
    (expert_linear, down, FFN, HIDDEN, EXPERTS / (N)), (combine, r)
#define BY_ALL_GATHER(N) (all_gather, g), ROUTER(N, (dispatch, all_gather)), EXPERT_MLP(N), (reduce_scatter, s)
#define BY_ALL_TO_ALL(N) ROUTER(N, (dispatch, all_to_all)), EXPERT_MLP(N)
/* [lists] */
#define CAPACITY 0.7
/* the router's rows are stored, and the combine saves its input */
#define BIASES(N) \
    (expert_bias, first, HIDDEN, EXPERTS / N), (expert_linear, mid, HIDDEN, HIDDEN, EXPERTS / N),                    \
    (expert_bias, last, HIDDEN, EXPERTS / N), (combine, r)
#define LISTS(N)                                                                                                      \
    TE_SEQUENTIAL(gather##N, (f32, (rows, shard)), BY_ALL_GATHER(N))                                                  \
    TE_SEQUENTIAL(visit##N, (f32, (rows, shard)), BY_ALL_TO_ALL(N))                                                   \
    TE_SEQUENTIAL(again##N, (f32, (rows, shard)), (fork, x), (recompute, c), BY_ALL_TO_ALL(N), (end_recompute, c),     \
                  (add, x))                                                                                           \
    TE_SEQUENTIAL(plain##N, (f32, (rows, shard)), (fork, x), BY_ALL_TO_ALL(N), (add, x))                              \
    TE_SEQUENTIAL(gather_bias##N, (f32, (rows, shard)), (all_gather, g), ROUTER(N, (dispatch, all_gather)), BIASES(N), \
                  (reduce_scatter, s))                                                                                \
    TE_SEQUENTIAL(visit_bias##N, (f32, (rows, shard)), ROUTER(N, (dispatch, all_to_all)), BIASES(N))                  \
    TE_SEQUENTIAL(gather_cap##N, (f32, (rows, shard)), (all_gather, g),                                               \
                  ROUTER(N, (dispatch, all_gather), (capacity, CAPACITY)), EXPERT_MLP(N), (reduce_scatter, s))        \
    TE_SEQUENTIAL(visit_cap##N, (f32, (rows, shard)), ROUTER(N, (dispatch, all_to_all), (capacity, CAPACITY)),         \
                  EXPERT_MLP(N))                                                                                      \
    TE_SEQUENTIAL(gather_bf##N, (bf16, (rows, shard)), BY_ALL_GATHER(N))                                              \
    TE_SEQUENTIAL(visit_bf##N, (bf16, (rows, shard)), BY_ALL_TO_ALL(N))
LISTS(1)
LISTS(2)
LISTS(4)

static te_context ctx;
static te_comm comm;
static int64_t compared, wrong;
static uint64_t seed;

/* ---- a transport that counts --------------------------------------------------------------------------------------- */

static const te_transport *real;
static int64_t sent; /* bytes that this rank has sent to other ranks */
static te_status counting_all_gather(const te_group *g, void *y, const void *x, int64_t n, te_dtype t, te_context *c) {
    sent += (g->size - 1) * n * (int64_t)te_dtype_bytes(t);
    return real->all_gather(g, y, x, n, t, c);
}
static te_status counting_reduce_scatter(const te_group *g, void *y, const void *x, int64_t n, te_dtype t, te_context *c) {
    sent += (g->size - 1) * n * (int64_t)te_dtype_bytes(t);
    return real->reduce_scatter(g, y, x, n, t, c);
}
static te_status counting_exchange(const te_group *g, const te_transfer *t, int count, te_context *c) {
    for (int i = 0; i < count; i++) sent += t[i].is_received ? 0 : t[i].bytes;
    return real->exchange(g, t, count, c);
}

/* ---- a list, run ---------------------------------------------------------------------------------------------------- */

typedef struct results {
    te_model model;
    te_param param[MAX_PARAMS];
    void *params, *saved_memory;
    float *grads, *y, *infer, *dx; /* y, infer, dx: of this rank, [tokens, HIDDEN] */
    int64_t forward_bytes, backward_bytes, infer_bytes, saved_bytes;
} results;
/* Fills memory with NaN in every format. */
static te_status poison(void *p, size_t bytes) { return te_fill(&ctx, p, 0xff, bytes); }
static te_status memory_of(void *to, size_t bytes) {
    void *p;
    TE_TRY(te_allocate(&ctx, &p, bytes + TE_ALIGN));
    TE_TRY(poison(p, bytes + TE_ALIGN));
    return memcpy(to, &p, sizeof p), TE_OK;
}
/* to = x, n values in f32 in the host's memory, in the dtype t. */
static te_status upload(void *to, te_dtype t, const float *x, int64_t n) {
    void *p;
    TE_TRY(memory_of(&p, (size_t)n * 4));
    TE_TRY(te_copy(&ctx, p, x, (size_t)n * 4));
    TE_TRY(te_convert(to, t, p, TE_f32, n, &ctx));
    TE_TRY(te_synchronize(&ctx));
    return te_release(&ctx, p), TE_OK;
}
/* Runs the list for `tokens` tokens of each rank, with the values of the parameters in `params`, f32, in the list's order. */
static te_status run_list(results *s, const te_plan *plan, const float *params, const float *x, const float *dy, int tokens) {
    const int64_t rows = (int64_t)tokens * comm.tensor.size, n = (int64_t)tokens * HIDDEN;
    te_model *models[1] = {&s->model};
    te_batch batch;
    te_saved saved;
    int count = 0;
    memset(s, 0, sizeof *s), memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved);
    for (int i = 0; i < plan->op_count; i++) count += plan->op[i].params;
    TE_TRY(memory_of(&s->params, te_plan_param_bytes(plan)));
    TE_TRY(memory_of(&s->grads, te_plan_grad_bytes(plan)));
    TE_TRY(memory_of(&s->y, (size_t)n * 4));
    TE_TRY(memory_of(&s->infer, (size_t)n * 4));
    TE_TRY(memory_of(&s->dx, (size_t)n * 4));
    TE_TRY(te_model_bind(&s->model, plan, s->param, count, s->params, s->grads, &ctx));
    for (int k = 0; k < count; k++) {
        const te_param *p = &s->param[k];
        TE_TRY(upload(p->data, p->dtype, params, p->rows * p->cols));
        params += p->rows * p->cols;
    }
    TE_TRY(memory_of(&s->saved_memory, saved.bytes = te_plan_saved_bytes_of_rank(plan, rows, &ctx)));
    saved.memory = s->saved_memory, s->saved_bytes = (int64_t)saved.bytes;
    TE_TRY(te_context_reserve(&ctx, te_plan_workspace_bytes(plan, &s->model, rows, &ctx)));
    TE_TRY(poison(ctx.workspace, ctx.workspace_bytes));
    batch.batch = comm.tensor.size, batch.seq = tokens, batch.loss_scale = 0.125f;
    void *x_list, *dy_list, *out;
    const te_dtype t = plan->dtype;
    TE_TRY(memory_of(&x_list, (size_t)n * 4));
    TE_TRY(memory_of(&dy_list, (size_t)n * 4));
    TE_TRY(memory_of(&out, (size_t)n * 4));
    TE_TRY(upload(x_list, t, x, n));
    TE_TRY(upload(dy_list, t, dy, n));
    const te_tensor x_in = te_matrix(x_list, t, tokens, HIDDEN), to = te_matrix(out, t, tokens, HIDDEN);
    sent = 0;
    TE_TRY(te_plan_infer(to, x_in, plan, &s->model, &batch, &ctx));
    TE_TRY(te_convert(s->infer, TE_f32, out, t, n, &ctx));
    s->infer_bytes = sent, sent = 0;
    TE_TRY(poison(ctx.workspace, ctx.workspace_bytes));
    TE_TRY(poison(out, (size_t)n * 4));
    TE_TRY(te_plan_forward(to, &saved, x_in, plan, &s->model, &batch, &ctx));
    TE_TRY(te_convert(s->y, TE_f32, out, t, n, &ctx));
    s->forward_bytes = sent, sent = 0;
    TE_TRY(poison(ctx.workspace, ctx.workspace_bytes));
    TE_TRY(poison(out, (size_t)n * 4));
    TE_TRY(te_plan_backward(to, te_matrix(dy_list, t, tokens, HIDDEN), &saved, plan, &s->model, &batch, &ctx));
    TE_TRY(te_convert(s->dx, TE_f32, out, t, n, &ctx));
    s->backward_bytes = sent;
    TE_TRY(te_reduce_gradients(models, 1, &ctx));
    TE_TRY(te_comm_synchronize(&ctx));
    te_release(&ctx, x_list), te_release(&ctx, dy_list), te_release(&ctx, out);
    return TE_OK;
}
static void drop(results *s) {
    void *const memory[6] = {s->params, s->saved_memory, s->grads, s->y, s->infer, s->dx};
    for (int i = 0; i < 6; i++) te_release(&ctx, memory[i]);
}

/* ---- comparisons --------------------------------------------------------------------------------------------------- */

/* limit: the largest difference, relative to the root mean square of `want`; 0: the bits must be the same. Two NaN are. */
static te_status compare(const char *list, const char *what, const float *got, const float *want, int64_t n, double limit) {
    static float a[MAX_TOKENS * HIDDEN * EXPERTS], b[MAX_TOKENS * HIDDEN * EXPERTS];
    double square = 0, off = 0;
    TE_TRY(te_copy(&ctx, a, got, (size_t)n * 4));
    TE_TRY(te_copy(&ctx, b, want, (size_t)n * 4));
    TE_TRY(te_comm_synchronize(&ctx));
    for (int64_t i = 0; i < n; i++) square += b[i] == b[i] ? (double)b[i] * b[i] : 0;
    for (int64_t i = 0; i < n; i++) {
        if (a[i] != a[i] && b[i] != b[i]) continue;
        const double d = limit > 0 ? fabs((double)a[i] - b[i]) : (double)(memcmp(&a[i], &b[i], 4) != 0);
        off = !(d <= off) ? d : off;
    }
    compared += n;
    if (off <= limit * sqrt(square / (double)n)) return TE_OK; /* false for a NaN */
    wrong++;
    printf("rank %d: %s: %s is off by %g, of %g\n", comm.tensor.rank, list, what, off, sqrt(square / (double)n));
    return TE_OK;
}
static te_status compare_all(const results *got, const results *want, int tokens, double limit) {
    const char *list = got->model.plan->name;
    const int64_t n = (int64_t)tokens * HIDDEN;
    TE_TRY(compare(list, "y", got->y, want->y, n, limit));
    TE_TRY(compare(list, "y of inference", got->infer, got->y, n, 0));
    TE_TRY(compare(list, "dx", got->dx, want->dx, n, limit));
    for (int k = 0; k < got->model.param_count; k++) {
        const te_param *p = &got->param[k];
        if (p->shard != want->param[k].shard || p->sums != want->param[k].sums)
            wrong++, printf("%s: %s.%s has another shard\n", list, p->op, p->field);
        TE_TRY(compare(list, p->op, p->grad, want->param[k].grad, p->rows * p->cols, limit));
    }
    return TE_OK;
}

/* ---- the layer in doubles ------------------------------------------------------------------------------------------- */

typedef struct input {
    float x[MAX_TOKENS * HIDDEN], dy[MAX_TOKENS * HIDDEN]; /* of all ranks */
    float weight[EXPERTS * HIDDEN], bias[EXPERTS], up[EXPERTS * 2 * FFN * HIDDEN], down[EXPERTS * HIDDEN * FFN];
    float params[EXPERTS * (HIDDEN + 1 + 2 * FFN * HIDDEN + HIDDEN * FFN)]; /* those of this rank */
} input;
/* The experts of a token by its f32 input. weight: [EXPERTS, HIDDEN]. of_chosen: the scores of the chosen ones, divided
 * by their sum. Returns 0 if the choice depends on rounding. */
static int choice_in_doubles(double of_chosen[TOP_K], int chosen[TOP_K], const float *x, const float *weight,
                             const float *bias) {
    double logit[EXPERTS], score[EXPERTS], top = -1e300, total = 0, sum = 0;
    int clear = 1;
    for (int e = 0; e < EXPERTS; e++) {
        logit[e] = 0;
        for (int h = 0; h < HIDDEN; h++) logit[e] += (double)x[h] * weight[e * HIDDEN + h];
        top = logit[e] > top ? logit[e] : top;
    }
    for (int e = 0; e < EXPERTS; e++) score[e] = exp(logit[e] - top), total += score[e];
    for (int j = 0; j <= TOP_K; j++) { /* the one behind the last one only to see how near it is */
        int best = -1;
        for (int e = 0; e < EXPERTS; e++) {
            int taken = 0;
            for (int i = 0; i < j && i < TOP_K; i++) taken |= chosen[i] == e;
            if (!taken && (best < 0 || score[e] / total + bias[e] > score[best] / total + bias[best])) best = e;
        }
        if (j < TOP_K) chosen[j] = best, sum += score[best];
        else clear = score[chosen[j - 1]] / total + bias[chosen[j - 1]] - score[best] / total - bias[best] > 2e-5;
    }
    for (int j = 0; j < TOP_K; j++) of_chosen[j] = score[chosen[j]] / sum;
    return clear;
}
/* Its output. rows: of each expert so far; an expert drops those behind the first `capacity` ones. */
static void token_in_doubles(double *y, const double of_chosen[TOP_K], const int chosen[TOP_K], const float *x,
                             const input *in, int rows[EXPERTS], int capacity) {
    for (int h = 0; h < HIDDEN; h++) y[h] = 0;
    for (int j = 0; j < TOP_K; j++) {
        double act[FFN];
        if (rows[chosen[j]]++ >= capacity) continue;
        for (int f = 0; f < FFN; f++) {
            double gate = 0, value = 0;
            const float *w = in->up + ((int64_t)chosen[j] * 2 * FFN + f) * HIDDEN;
            for (int h = 0; h < HIDDEN; h++) gate += (double)x[h] * w[h], value += (double)x[h] * w[FFN * HIDDEN + h];
            act[f] = gate / (1 + exp(-gate)) * value;
        }
        for (int h = 0; h < HIDDEN; h++)
            for (int f = 0; f < FFN; f++)
                y[h] += of_chosen[j] * act[f] * in->down[((int64_t)chosen[j] * HIDDEN + h) * FFN + f];
    }
}

/* ---- cases ------------------------------------------------------------------------------------------------------------ */

/* choose: what the bias of the choice does: 0: nothing; 1: half of the experts get no token; 2: all tokens go to the
 * experts of the last rank; 3: to the first of each rank and, with one rank, to the first two */
static void set_bias(float *bias, int choose, int each) {
    for (int e = 0; e < EXPERTS; e++) {
        const int there = choose == 1 ? e % 3 != 1 && e < 6 : choose == 2 ? e >= EXPERTS - each : e % each == 0 || e == 1;
        bias[e] = choose == 0 || there ? 0.0f : -4.0f;
    }
}
/* The same on all ranks. */
static te_status draw(float *to, int64_t n, float std, uint32_t stream) {
    void *p;
    TE_TRY(memory_of(&p, (size_t)n * 4));
    TE_TRY(te_fill_normal((float *)p, TE_f32, n, 0.0f, std, seed, stream, &ctx));
    TE_TRY(te_copy(&ctx, to, p, (size_t)n * 4));
    TE_TRY(te_synchronize(&ctx));
    return te_release(&ctx, p), TE_OK;
}
static float rounded_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    return memcpy(&x, &bits, 4), x;
}
/* Changes tokens whose choice depends on rounding, in f32 or in bf16. */
static void avoid_ties(input *in) {
    static float weight[EXPERTS * HIDDEN];
    for (int i = 0; i < EXPERTS * HIDDEN; i++) weight[i] = rounded_to_bf16(in->weight[i]);
    for (int t = 0; t < MAX_TOKENS; t++) {
        float *const x = in->x + t * HIDDEN, near[HIDDEN];
        double of_chosen[TOP_K];
        int chosen[TOP_K];
        for (int clear = 0, tries = 0; !clear && tries < 20; tries++) {
            x[tries] += tries ? 0.125f : 0;
            for (int h = 0; h < HIDDEN; h++) near[h] = rounded_to_bf16(x[h]);
            clear = choice_in_doubles(of_chosen, chosen, x, in->weight, in->bias) &&
                    choice_in_doubles(of_chosen, chosen, near, weight, in->bias);
        }
    }
}
static te_status make_input(input *in, int choose, uint32_t stream) {
    const int rank = comm.tensor.rank, each = EXPERTS / comm.tensor.size;
    float *at = in->params;
    TE_TRY(draw(in->x, MAX_TOKENS * HIDDEN, 1.0f, stream));
    TE_TRY(draw(in->dy, MAX_TOKENS * HIDDEN, 1.0f, stream + 1));
    TE_TRY(draw(in->weight, EXPERTS * HIDDEN, 0.3f, stream + 2));
    TE_TRY(draw(in->up, EXPERTS * 2 * FFN * HIDDEN, 0.3f, stream + 3));
    TE_TRY(draw(in->down, EXPERTS * HIDDEN * FFN, 0.3f, stream + 4));
    set_bias(in->bias, choose, each);
    avoid_ties(in);
    memcpy(at, in->weight, sizeof in->weight), at += EXPERTS * HIDDEN;
    memcpy(at, in->bias, sizeof in->bias), at += EXPERTS;
    memcpy(at, in->up + rank * each * 2 * FFN * HIDDEN, (size_t)(each * 2 * FFN * HIDDEN) * 4), at += each * 2 * FFN * HIDDEN;
    memcpy(at, in->down + rank * each * HIDDEN * FFN, (size_t)(each * HIDDEN * FFN) * 4);
    return TE_OK;
}
typedef struct plans {
    const te_plan *gather, *visit, *again, *plain, *gather_bias, *visit_bias, *gather_bf, *visit_bf, *gather_cap, *visit_cap;
} plans;

/* Compares y with doubles, and the bytes that this rank has sent with the tokens' visits. capacity: of the router; 0: none. */
static te_status check_doubles(const results *visit, const results *gather, const input *in, int tokens, double capacity,
                               int64_t bytes[2]) {
    static float want[MAX_TOKENS * HIDDEN];
    const int rank = comm.tensor.rank, ranks = comm.tensor.size, each = EXPERTS / ranks;
    const int max_rows = capacity > 0 ? (int)ceil(capacity * tokens * ranks * TOP_K / EXPERTS - 1e-9) : tokens * ranks;
    int of_expert[EXPERTS] = {0};
    int64_t rows = 0; /* that this rank sends in one direction and, for the other one, receives */
    int clear = 1;
    for (int t = 0; t < tokens * ranks; t++) {
        double y[HIDDEN], of_chosen[TOP_K];
        int chosen[TOP_K], is_mine = t / tokens == rank;
        clear &= choice_in_doubles(of_chosen, chosen, in->x + t * HIDDEN, in->weight, in->bias);
        token_in_doubles(y, of_chosen, chosen, in->x + t * HIDDEN, in, of_expert, max_rows);
        for (int h = 0; h < HIDDEN && is_mine; h++) want[t % tokens * HIDDEN + h] = (float)y[h];
        for (int q = 0; q < ranks; q++) {
            int visits = 0;
            for (int j = 0; j < TOP_K; j++) visits |= chosen[j] / each == q;
            rows += visits && (is_mine ? q != rank : q == rank);
        }
    }
    if (visit->saved_bytes > gather->saved_bytes) wrong++, printf("all_to_all saves more\n");
    if (!clear) wrong++, printf("a choice that depends on rounding\n");
    const int64_t choice = (int64_t)(ranks - 1) * tokens * TOP_K * 4, all = (int64_t)(ranks - 1) * tokens * HIDDEN * 4;
    const int64_t forward = rows * HIDDEN * 4 + 2 * choice, backward = rows * HIDDEN * 4 + choice;
    if (!TE_CUDA && (visit->forward_bytes != forward || visit->infer_bytes != forward ||
                     visit->backward_bytes != backward || gather->forward_bytes != 2 * all ||
                     gather->backward_bytes != 2 * all))
        wrong++, printf("rank %d: all_to_all: %lld and %lld bytes, not %lld and %lld; all_gather: %lld and %lld, not %lld\n",
                        rank, (long long)visit->forward_bytes, (long long)visit->backward_bytes, (long long)forward,
                        (long long)backward, (long long)gather->forward_bytes, (long long)gather->backward_bytes,
                        (long long)(2 * all));
    bytes[0] += visit->forward_bytes + visit->backward_bytes, bytes[1] += gather->forward_bytes + gather->backward_bytes;
    void *p;
    TE_TRY(memory_of(&p, sizeof want));
    TE_TRY(te_copy(&ctx, p, want, (size_t)(tokens * HIDDEN) * 4));
    TE_TRY(compare(visit->model.plan->name, "y, against doubles", visit->y, (const float *)p, (int64_t)tokens * HIDDEN, 1e-4));
    return te_release(&ctx, p), TE_OK;
}
static te_status check(const plans *p, int tokens, int choose, uint32_t stream, int64_t bytes[2]) {
    static input in;
    results gather, visit, other;
    TE_TRY(make_input(&in, choose, stream));
    const float *x = in.x + comm.tensor.rank * tokens * HIDDEN, *dy = in.dy + comm.tensor.rank * tokens * HIDDEN;
    TE_TRY(run_list(&gather, p->gather, in.params, x, dy, tokens));
    TE_TRY(run_list(&visit, p->visit, in.params, x, dy, tokens));
    TE_TRY(compare_all(&visit, &gather, tokens, 2e-5));
    TE_TRY(check_doubles(&visit, &gather, &in, tokens, 0, bytes));
    TE_TRY(run_list(&other, p->visit, in.params, x, dy, tokens)); /* again: the same bits */
    TE_TRY(compare_all(&other, &visit, tokens, 0));
    drop(&other), drop(&gather), drop(&visit);
    TE_TRY(run_list(&gather, p->plain, in.params, x, dy, tokens));
    TE_TRY(run_list(&visit, p->again, in.params, x, dy, tokens));
    TE_TRY(compare_all(&visit, &gather, tokens, 0));
    drop(&gather), drop(&visit);
    TE_TRY(run_list(&gather, p->gather_bias, in.params, x, dy, tokens)); /* the parameters are what stands there */
    TE_TRY(run_list(&visit, p->visit_bias, in.params, x, dy, tokens));
    TE_TRY(compare_all(&visit, &gather, tokens, 2e-5));
    drop(&gather), drop(&visit);
    TE_TRY(run_list(&gather, p->gather_cap, in.params, x, dy, tokens));
    TE_TRY(run_list(&visit, p->visit_cap, in.params, x, dy, tokens));
    TE_TRY(compare_all(&visit, &gather, tokens, 2e-5));
    int64_t again[2] = {0, 0};
    TE_TRY(check_doubles(&visit, &gather, &in, tokens, CAPACITY, again));
    drop(&gather), drop(&visit);
    TE_TRY(run_list(&gather, p->gather_bf, in.params, x, dy, tokens));
    TE_TRY(run_list(&visit, p->visit_bf, in.params, x, dy, tokens));
    /* a sum over ranks is rounded for each of them, to 2^-9 of a number of several times the root mean square */
    TE_TRY(compare_all(&visit, &gather, tokens, 0.1));
    return drop(&gather), drop(&visit), TE_OK;
}
/* A NaN in one token makes that token's y NaN, and no other one's. */
static te_status check_nan(const plans *p, uint32_t stream) {
    static input in;
    enum { TOKENS = 5 };
    results gather, visit;
    int nan = 0;
    TE_TRY(make_input(&in, 0, stream));
    in.x[2 * HIDDEN + 3] = NAN;
    const float *x = in.x + comm.tensor.rank * TOKENS * HIDDEN, *dy = in.dy + comm.tensor.rank * TOKENS * HIDDEN;
    TE_TRY(run_list(&gather, p->gather, in.params, x, dy, TOKENS));
    TE_TRY(run_list(&visit, p->visit, in.params, x, dy, TOKENS));
    TE_TRY(compare("NaN", "y", visit.y, gather.y, TOKENS * HIDDEN, 2e-5));
    TE_TRY(compare("NaN", "inference", visit.infer, gather.infer, TOKENS * HIDDEN, 2e-5));
    TE_TRY(te_copy(&ctx, in.dy, visit.y, TOKENS * HIDDEN * 4));
    TE_TRY(te_comm_synchronize(&ctx));
    for (int i = 0; i < TOKENS * HIDDEN; i++) nan += in.dy[i] != in.dy[i];
    if (nan != (comm.tensor.rank ? 0 : HIDDEN)) wrong++, printf("rank %d: %d NaN in y\n", comm.tensor.rank, nan);
    return drop(&gather), drop(&visit), TE_OK;
}
/* The kernel by which ranks store rows in each other's memory: several ranks in one process, each with its own array. */
enum { SEND_RANKS = 3, SEND_TOKENS = 11, SEND_EACH = 2 };
static te_status check_send(void) {
    enum { ALL = SEND_RANKS * SEND_TOKENS };
    static float x[ALL][HIDDEN], want[ALL][HIDDEN];
    static int32_t expert[ALL][TOP_K];
    float *rows[SEND_RANKS], *back[SEND_RANKS];
    char *at[2][SEND_RANKS];
    float random[ALL * HIDDEN];
    te_token_exchange e = {0, &expert[0][0], ALL, TOP_K, SEND_EACH, HIDDEN, TE_f32};
    te_token_send_args a;
    TE_TRY(draw(random, ALL * HIDDEN, 1.0f, 9000));
    memcpy(x, random, sizeof x);
    for (int t = 0; t < ALL; t++) /* rank 1 has no token in the first half */
        for (int j = 0; j < TOP_K; j++) {
            const int n = SEND_RANKS * SEND_EACH;
            expert[t][j] = (int)(fabsf(x[t][j]) * 1000) % n;
            if (t < ALL / 2 && expert[t][j] / SEND_EACH == 1) expert[t][j] = n - 1;
        }
    for (int r = 0; r < SEND_RANKS; r++) {
        TE_TRY(memory_of(&rows[r], sizeof x));
        TE_TRY(memory_of(&back[r], sizeof x));
        at[0][r] = (char *)rows[r], at[1][r] = (char *)back[r];
    }
    for (int r = 0; r < SEND_RANKS; r++) {
        te__token_send_args_of(&a, &e, x[r * SEND_TOKENS], at[0], r, SEND_RANKS, 0);
        TE_TRY(te_token_send_launch(&ctx, te__grid_of(te_ceil_div(a.count, TE_TOKEN_WARPS), 1), &a));
    }
    for (int r = 0; r < SEND_RANKS; r++) /* each rank returns r + 1 times what it has received */
        for (int t = 0; t < ALL; t++) {
            int visits = 0;
            for (int j = 0; j < TOP_K; j++) visits |= expert[t][j] / SEND_EACH == r;
            const int there = visits || t / SEND_TOKENS == r;
            for (int h = 0; h < HIDDEN; h++) {
                float *v = &rows[r][t * HIDDEN + h];
                if (there ? *v != x[t][h] : *v == *v) wrong++, printf("send: rank %d, token %d\n", r, t);
                *v *= (float)(r + 1), want[t][h] += visits ? *v : 0;
            }
        }
    for (int r = 0; r < SEND_RANKS; r++) {
        te__token_send_args_of(&a, &e, rows[r], at[1], r, SEND_RANKS, 1);
        TE_TRY(te_token_send_launch(&ctx, te__grid_of(te_ceil_div(a.count, TE_TOKEN_WARPS), 1), &a));
    }
    for (int r = 0; r < SEND_RANKS; r++) {
        te_token_sum_args s;
        memset(&s, 0, sizeof s);
        s.part = back[r], s.expert = expert[r * SEND_TOKENS], s.y = rows[r], s.tokens = SEND_TOKENS, s.parts = SEND_RANKS;
        s.top_k = TOP_K, s.experts = SEND_EACH, s.width = HIDDEN, s.in = s.out = TE_f32;
        TE_TRY(te_token_sum_launch(&ctx, te__grid_of(te_ceil_div(s.tokens, TE_TOKEN_WARPS), 1), &s));
        TE_TRY(compare("send", "sums", rows[r], want[r * SEND_TOKENS], SEND_TOKENS * HIDDEN, 0));
        te_release(&ctx, rows[r]), te_release(&ctx, back[r]);
    }
    return TE_OK;
}
static te_status run(void) {
#define PLANS(N) {gather##N##_plan(), visit##N##_plan(), again##N##_plan(), plain##N##_plan(), gather_bias##N##_plan(), \
                  visit_bias##N##_plan(), gather_bf##N##_plan(), visit_bf##N##_plan(), gather_cap##N##_plan(), \
                  visit_cap##N##_plan()}
    const plans all[3] = {PLANS(1), PLANS(2), PLANS(4)};
    const plans *p = &all[comm.tensor.size == 4 ? 2 : comm.tensor.size - 1];
    const int tokens[4] = {1, 3, 37, 80};
    for (int choose = 0; choose < 4; choose++) {
        int64_t bytes[2] = {0, 0};
        for (int i = 0; i < 4; i++) TE_TRY(check(p, tokens[i], choose, (uint32_t)(100 * (4 * choose + i)), bytes));
        float sum[2] = {(float)bytes[0], (float)bytes[1]}, *mapped;
        TE_TRY(memory_of(&mapped, sizeof sum));
        TE_TRY(te_copy(&ctx, mapped, sum, sizeof sum));
        TE_TRY(te_group_all_reduce(&comm.tensor, mapped, mapped, 2, TE_f32, &ctx));
        TE_TRY(te_copy(&ctx, sum, mapped, sizeof sum));
        TE_TRY(te_comm_synchronize(&ctx));
        te_release(&ctx, mapped);
        static const char *const routing[4] = {"random routing", "experts without rows", "all to one rank", "one of each"};
        if (!comm.tensor.rank)
            printf("experts, %d ranks, %s: %.0f bytes between ranks by all_to_all, %.0f by all_gather\n", comm.tensor.size,
                   routing[choose], (double)sum[0], (double)sum[1]);
    }
    if (!TE_CUDA) TE_TRY(check_send());
    return check_nan(p, 5000);
}

int main(int argc, char **argv) {
    const char *from = argc > 1 ? argv[1] : getenv("TE_SEED");
    int rank, size;
    seed = from ? strtoull(from, 0, 10) : 1;
    te_comm_rank_from_env(&rank, &size);
    te_comm_config config = te_comm_defaults();
    config.file = getenv("RANKS_FILE"), config.tensor = size, config.overlap_bytes = MAX_TOKENS * HIDDEN * 4;
    te_status status = te_context_create(&ctx, TE_CUDA ? te_comm_local_rank_from_env() : 0, 3);
    if (status == TE_OK) status = te_comm_create(&comm, &config, &ctx);
    if (status == TE_OK && comm.tensor.transport && !TE_CUDA) {
        static te_transport counting;
        real = comm.tensor.transport, counting = *real;
        counting.all_gather = counting_all_gather, counting.reduce_scatter = counting_reduce_scatter;
        counting.exchange = counting_exchange, comm.tensor.transport = &counting;
    }
    if (status == TE_OK) status = run();
    if (status != TE_OK) printf("rank %d: %s: %s\n", rank, te_status_string(status), te_last_error(&ctx));
    else if (!rank)
        printf("experts: seed %llu, %lld values of %d ranks\n", (unsigned long long)seed, (long long)compared, size);
    fflush(stdout);
    te_comm_destroy(&comm); /* does not wait for ranks that have failed */
    te_context_destroy(&ctx);
    if (status == TE_ERROR_COMM) _exit(3); /* exit handlers of MPI would wait */
    return status != TE_OK || wrong;
}
