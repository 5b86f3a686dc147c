/* ranks.c -- every collective op against its definition, fused collective patterns in doubles, and a small GPT whose
 * losses do not depend on the number of ranks. tests/comm.sh runs it as several processes.
 *
 *     mpirun -n 4 ranks ops                        rank 0 prints how many values were compared
 *     mpirun -n 2 ranks patterns COUNT             COUNT times: a fused all_reduce pattern against its unfused steps
 *     mpirun -n 4 ranks gpt TENSOR                 rank 0 prints the losses of 50 steps; TENSOR ranks share a replica
 *     mpirun -n 4 ranks stall SECONDS              rank 1 hangs: the others time out after so many seconds
 *     mpirun -n 4 ranks leave SECONDS              rank 1 is killed
 *     mpirun -n 4 ranks absent SECONDS             rank 1 does not come to the first collective, for which NCCL would connect to it
 *
 * Exit code 0: all is right; 1: not; 3: another rank has failed.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "te/te.h"

static te_context ctx;
static te_comm comm;

/* ---- collective ops ---------------------------------------------------------------------------------------------- */

enum { WIDTH = 13, BATCH = 3, SEQ = 5 }; /* a rank has BATCH * SEQ rows */

#define LISTS(dtype)                                                                                                  \
    TE_SEQUENTIAL(gather_##dtype, (dtype, (rows, shard), (width, WIDTH)), (all_gather, c))                            \
    TE_SEQUENTIAL(scatter_##dtype, (dtype, (width, WIDTH)), (reduce_scatter, c))                                      \
    TE_SEQUENTIAL(reduce_##dtype, (dtype, (width, WIDTH)), (all_reduce, c))                                           \
    TE_SEQUENTIAL(copy_##dtype, (dtype, (width, WIDTH)), (copy_to_group, c), (scale, twice, 2.0f))
LISTS(f32)
LISTS(bf16)
LISTS(f16)

/* A fused pattern that begins with an all_reduce, and the same list without that pattern. */
enum { ROW_WIDTH = 264, MAX_ROWS = 300 };
#define REDUCED_LIST                                                                                              \
    (fork, x1), (scale, s, 0.5f), (all_reduce, r), (add, x1), (fork, x2), (rmsnorm, n, ROW_WIDTH), (add, x2)
TE_SEQUENTIAL(fused, bf16, REDUCED_LIST)
#undef TE_FORWARD_all_reduce_add_fork_norm
TE_SEQUENTIAL(unfused, bf16, REDUCED_LIST)

/* Fused collective patterns, checked in doubles: a width for which there is a kernel, and one for which there is none. */
#define SUMMED(dtype, w)                                                                                              \
    TE_INFERENCE(summed_##dtype##_##w, dtype, (input, x1, w), (all_reduce, r), (bias, b, w), (add, x1),               \
        (layernorm, n, w))                                                                                            \
    TE_INFERENCE(boundary_##dtype##_##w, dtype, (input, x1, w), (reduce_scatter, s), (bias, b, w), (add, x1),             \
        (layernorm, n, w), (all_gather, g))                                                                           \
    static_assert((int)summed_##dtype##_##w##_infer_steps == 2 && (int)boundary_##dtype##_##w##_infer_steps == 2, "fused");
SUMMED(f32, 13)
SUMMED(bf16, 13)
SUMMED(f32, 264)
SUMMED(bf16, 264)

static int64_t compared, wrong;

/* Element (row, col) of a rank before the collective. Elements have both signs and several magnitudes. */
static double value_of(int rank, int64_t row, int col, te_dtype dtype) {
    uint32_t u[4];
    uint8_t storage[4];
    te_philox(u, 7, (uint64_t)(row * WIDTH + col), (uint32_t)rank, 0);
    te_store(storage, 0, (te_uniform(u[0]) - 0.5f) * (u[1] % 8 ? 1.0f : 100.0f), dtype);
    return (double)te_load(storage, 0, dtype);
}
/* The sum over the ranks; *size is the sum of magnitudes. */
static double sum_of(int64_t row, int col, te_dtype dtype, int ranks, double *size) {
    double sum = 0;
    *size = 0;
    for (int r = 0; r < ranks; r++) sum += value_of(r, row, col, dtype), *size += fabs(value_of(r, row, col, dtype));
    return sum;
}
typedef enum expected { GATHERED, SCATTERED, REDUCED, TWICE, SAME } expected;

/* Compares y with the definition, for inputs from value_of. Each addition of two numbers may round once. */
static te_status check(const char *name, te_tensor y, expected w, const te_group *g) {
    const size_t bytes = (size_t)(y.rows * y.cols) * te_dtype_bytes(y.dtype);
    const double u = y.dtype == TE_f32 ? 1.0 / (1 << 24) : y.dtype == TE_bf16 ? 1.0 / (1 << 8) : 1.0 / (1 << 11);
    char *got = (char *)malloc(bytes);
    if (!got) return TE_ERROR_MEMORY;
    TE_TRY(te_copy(&ctx, got, y.data, bytes));
    TE_TRY(te_synchronize(&ctx));
    for (int64_t row = 0; row < y.rows; row++)
        for (int col = 0; col < WIDTH; col++, compared++) {
            double size = 0, want;
            const int64_t all = w == SCATTERED ? g->rank * y.rows + row : row;
            if (w == GATHERED) want = value_of((int)(row / (BATCH * SEQ)), row % (BATCH * SEQ), col, y.dtype);
            else if (w == SAME) want = value_of(g->rank, row, col, y.dtype);
            else want = sum_of(all, col, y.dtype, g->size, &size);
            if (w == TWICE) want *= 2, size *= 2;
            const double off = fabs((double)te_load(got, row * WIDTH + col, y.dtype) - want);
            if (off <= size * u * (g->size - 1) + fabs(want) * (g->size > 1 ? 0 : u)) continue;
            if (!wrong++) printf("rank %d: %s at %d, %d is off by %g\n", g->rank, name, (int)row, col, off);
        }
    free(got);
    return TE_OK;
}
static te_status tensor_of(te_tensor *t, te_dtype dtype, int64_t rows, int rank) {
    const size_t bytes = (size_t)(rows * WIDTH) * te_dtype_bytes(dtype);
    void *p = 0;
    char *v = (char *)malloc(bytes);
    if (!v) return TE_ERROR_MEMORY;
    for (int64_t i = 0; i < rows * WIDTH; i++)
        te_store(v, i, (float)(rank < 0 ? 0 : value_of(rank, i / WIDTH, (int)(i % WIDTH), dtype)), dtype);
    TE_TRY(te_allocate(&ctx, &p, bytes));
    TE_TRY(te_copy(&ctx, p, v, bytes));
    TE_TRY(te_synchronize(&ctx));
    free(v);
    *t = te_matrix(p, dtype, rows, WIDTH);
    return TE_OK;
}
/* Checks forward and backward of a list with x and dy from value_of. wy, wx: the expected y and dx. */
static te_status run_list(const te_plan *plan, expected wy, expected wx) {
    const te_group *g = te_tensor_group(&ctx);
    const int64_t part = BATCH * SEQ, all = part * g->size;
    te_model m;
    te_saved saved;
    te_batch batch;
    te_tensor x, y, dx, dy;
    memset(&m, 0, sizeof m), memset(&saved, 0, sizeof saved), memset(&batch, 0, sizeof batch);
    batch.batch = BATCH, batch.seq = SEQ * g->size;
    TE_TRY(te_model_bind(&m, plan, 0, 0, 0, 0, &ctx));
    TE_TRY(te_allocate(&ctx, &saved.memory, saved.bytes = te_plan_saved_bytes(plan, all)));
    TE_TRY(te_context_reserve(&ctx, te_plan_workspace_bytes(plan, &m, all, &ctx)));
    const int64_t in = wy == GATHERED ? part : all, out = wy == SCATTERED ? part : all;
    TE_TRY(tensor_of(&x, plan->dtype, in, g->rank));
    TE_TRY(tensor_of(&dy, plan->dtype, out, g->rank));
    TE_TRY(tensor_of(&y, plan->dtype, out, -1));
    TE_TRY(tensor_of(&dx, plan->dtype, in, -1));
    TE_TRY(te_plan_forward(y, &saved, x, plan, &m, &batch, &ctx));
    TE_TRY(te_plan_backward(dx, dy, &saved, plan, &m, &batch, &ctx));
    TE_TRY(check(plan->name, y, wy, g));
    TE_TRY(check(plan->name, dx, wx, g));
    TE_TRY(te_plan_forward(y, 0, x, plan, &m, &batch, &ctx)); /* without saved: inference */
    TE_TRY(check(plan->name, y, wy, g));
    void *const memory[5] = {saved.memory, x.data, y.data, dx.data, dy.data};
    for (int i = 0; i < 5; i++) te_release(&ctx, memory[i]);
    return TE_OK;
}
/* The expected y: copy_to_group is the identity in forward, and the scale behind it doubles. */
static te_status run_copy(const te_plan *plan) {
    const te_group *g = te_tensor_group(&ctx);
    te_model m;
    te_saved saved;
    te_batch batch;
    te_tensor x, y, dx, dy;
    memset(&m, 0, sizeof m), memset(&saved, 0, sizeof saved), memset(&batch, 0, sizeof batch);
    batch.batch = BATCH, batch.seq = SEQ;
    TE_TRY(te_model_bind(&m, plan, 0, 0, 0, 0, &ctx));
    TE_TRY(te_allocate(&ctx, &saved.memory, saved.bytes = te_plan_saved_bytes(plan, BATCH * SEQ)));
    TE_TRY(te_context_reserve(&ctx, te_plan_workspace_bytes(plan, &m, BATCH * SEQ, &ctx)));
    TE_TRY(tensor_of(&x, plan->dtype, BATCH * SEQ, g->rank));
    TE_TRY(tensor_of(&dy, plan->dtype, BATCH * SEQ, g->rank));
    TE_TRY(tensor_of(&y, plan->dtype, BATCH * SEQ, -1));
    TE_TRY(tensor_of(&dx, plan->dtype, BATCH * SEQ, -1));
    TE_TRY(te_plan_forward(y, &saved, x, plan, &m, &batch, &ctx));
    TE_TRY(te_plan_backward(dx, dy, &saved, plan, &m, &batch, &ctx));
    TE_TRY(check(plan->name, dx, TWICE, g));
    float *const half = (float *)malloc((size_t)(BATCH * SEQ * WIDTH) * sizeof(float)); /* y / 2, which is x */
    if (!half) return TE_ERROR_MEMORY;
    TE_TRY(te_copy(&ctx, half, y.data, (size_t)(BATCH * SEQ * WIDTH) * te_dtype_bytes(y.dtype)));
    TE_TRY(te_synchronize(&ctx));
    for (int64_t i = 0; i < BATCH * SEQ * WIDTH; i++) te_store(half, i, te_load(half, i, y.dtype) / 2, y.dtype);
    TE_TRY(te_copy(&ctx, y.data, half, (size_t)(BATCH * SEQ * WIDTH) * te_dtype_bytes(y.dtype)));
    TE_TRY(te_synchronize(&ctx));
    free(half);
    TE_TRY(check(plan->name, y, SAME, g));
    void *const memory[5] = {saved.memory, x.data, y.data, dx.data, dy.data};
    for (int i = 0; i < 5; i++) te_release(&ctx, memory[i]);
    return TE_OK;
}
/* Returns y of forward and of inference, on random rows that differ by rank. */
static te_status reduced(uint16_t *y, const te_plan *plan, int64_t rows) {
    const size_t bytes = (size_t)(rows * ROW_WIDTH) * sizeof *y;
    te_model m;
    te_param gamma;
    te_saved saved;
    te_batch batch;
    void *at[3] = {0, 0, 0}; /* gamma, x, y */
    memset(&m, 0, sizeof m), memset(&saved, 0, sizeof saved), memset(&batch, 0, sizeof batch);
    memset(&gamma, 0, sizeof gamma);
    batch.batch = 1, batch.seq = (int)rows;
    for (int64_t i = 0; i < rows * ROW_WIDTH; i++)
        te_store(y, i, (float)value_of(comm.world.rank, 0, (int)i, TE_bf16), TE_bf16);
    for (int i = 0; i < 3; i++) TE_TRY(te_allocate(&ctx, &at[i], bytes));
    TE_TRY(te_copy(&ctx, at[0], y, ROW_WIDTH * sizeof *y));
    TE_TRY(te_copy(&ctx, at[1], y, bytes));
    TE_TRY(te_synchronize(&ctx));
    TE_TRY(te_model_bind(&m, plan, &gamma, 1, at[0], 0, &ctx));
    TE_TRY(te_allocate(&ctx, &saved.memory, saved.bytes = te_plan_saved_bytes(plan, rows)));
    TE_TRY(te_context_reserve(&ctx, te_plan_workspace_bytes(plan, &m, rows, &ctx)));
    for (int infers = 0; infers < 2; infers++) {
        TE_TRY(te_plan_forward(te_matrix(at[2], TE_bf16, rows, ROW_WIDTH), infers ? 0 : &saved,
                               te_matrix(at[1], TE_bf16, rows, ROW_WIDTH), plan, &m, &batch, &ctx));
        TE_TRY(te_copy(&ctx, y + infers * rows * ROW_WIDTH, at[2], bytes));
        TE_TRY(te_comm_synchronize(&ctx));
    }
    for (int i = 0; i < 3; i++) te_release(&ctx, at[i]);
    te_release(&ctx, saved.memory);
    return TE_OK;
}
static te_status compare_fused(int times) {
    static uint16_t y[2][2 * MAX_ROWS * ROW_WIDTH];
    const int max_rows = TE_CUDA ? 128 : MAX_ROWS; /* no more rows than multiprocessors, because norms of more rows sum in another order */
    const int64_t first[3] = {1, 15, max_rows};
    for (int i = 0; i < times; i++) {
        const int64_t rows = i < 3 ? first[i] : 1 + (i * 37) % max_rows, count = 2 * rows * ROW_WIDTH;
        int64_t differ = 0;
        if (i % 7 == 3 * comm.world.rank) usleep(3000); /* random delays */
        TE_TRY(reduced(y[0], fused_plan(), rows));
        TE_TRY(reduced(y[1], unfused_plan(), rows));
        for (int64_t k = 0; k < count; k++) differ += y[0][k] != y[1][k];
        compared += count;
        if (differ && !wrong++) printf("rank %d: %lld of %lld differ in the fused all_reduce\n", comm.world.rank,
                                       (long long)differ, (long long)count);
    }
    return TE_OK;
}
/* Row `row` of y = layernorm(the sum of all x + bias + residual), and a bound for its error. in[w + 3 w]: the residual;
 * bias, gamma and beta. Values are rounded when they are stored, sums over ranks at each addition; the norm's sums are
 * in f32. */
static void in_doubles(double *y, double *bound, int w, int64_t row, const double *in, te_dtype dtype, int ranks) {
    const double f32 = 1.0 / (1 << 24), u = dtype == TE_f32 ? f32 : 1.0 / (1 << 8);
    double v[ROW_WIDTH], off[ROW_WIDTH], mean = 0, off_mean = 0, square = 0, off_square = 0;
    for (int i = 0; i < w; i++) {
        double size = 0, sum = 0;
        for (int r = 0; r < ranks; r++) {
            const double x = value_of(r, row * 31, i, dtype);
            sum += x, size += fabs(x);
        }
        v[i] = sum + in[w + i] + in[i];
        off[i] = u * (ranks * size + fabs(v[i])) + f32 * (fabs(sum) + fabs(in[w + i]) + fabs(in[i]) + fabs(v[i]));
        mean += v[i] / w, off_mean += (off[i] + w * f32 * fabs(v[i])) / w;
    }
    for (int i = 0; i < w; i++) {
        const double d = v[i] - mean, off_d = off[i] + off_mean;
        square += d * d / w, off_square += (2 * fabs(d) * off_d + off_d * off_d + w * f32 * d * d) / w;
    }
    const double rstd = 1 / sqrt(square + 1e-5), off_rstd = off_square / (square + 1e-5); /* twice the first-order error */
    for (int i = 0; i < w; i++) {
        const double d = v[i] - mean, of_d = d * rstd * in[2 * w + i];
        y[i] = of_d + in[3 * w + i];
        bound[i] = fabs(in[2 * w + i]) * rstd * (off[i] + off_mean) + fabs(of_d) * (off_rstd + 8 * f32) + u * fabs(y[i]);
    }
}
/* Checks one of these lists, with `rows` rows on each rank. */
static te_status summed(const te_plan *plan, int64_t rows, int is_boundary) {
    const te_group *g = te_tensor_group(&ctx);
    const int w = plan->in;
    const int64_t all = is_boundary ? rows * g->size : rows, first = is_boundary ? g->rank * rows : 0;
    const size_t size = te_dtype_bytes(plan->dtype);
    static char text[4 * MAX_ROWS * ROW_WIDTH * sizeof(float)];
    static double in[4 * ROW_WIDTH], y[ROW_WIDTH], bound[ROW_WIDTH];
    const int64_t counts[4] = {3 * w, all * w, rows * w, all * w}; /* parameters, x, the residual, y */
    void *at[4] = {0, 0, 0, 0};
    te_model m;
    te_param params[3];
    te_batch batch;
    te_edge edge;
    memset(&m, 0, sizeof m), memset(params, 0, sizeof params), memset(&batch, 0, sizeof batch);
    memset(&edge, 0, sizeof edge);
    for (int k = 0; k < 4; k++) TE_TRY(te_allocate(&ctx, &at[k], (size_t)(k ? counts[k] : 3 * 1024) * size));
    TE_TRY(te_model_bind(&m, plan, params, 3, at[0], 0, &ctx));
    TE_TRY(te_context_reserve(&ctx, te_plan_workspace_bytes(plan, &m, all, &ctx)));
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < w; i++) in[(k + 1) * w + i] = value_of(20 + k, 1, i, plan->dtype);
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < w; i++) te_store(text, i, (float)in[(k + 1) * w + i], plan->dtype);
        TE_TRY(te_copy(&ctx, params[k].data, text, (size_t)w * size));
        TE_TRY(te_synchronize(&ctx));
    }
    for (int k = 1; k < 3; k++) { /* the residual of an all_reduce is the same on all ranks */
        for (int64_t i = 0; i < counts[k]; i++)
            te_store(text, i, (float)value_of(k == 1 ? g->rank : 30, (i / w + (k == 1 ? 0 : first)) * 31, (int)(i % w), plan->dtype),
                     plan->dtype);
        TE_TRY(te_copy(&ctx, at[k], text, (size_t)counts[k] * size));
        TE_TRY(te_synchronize(&ctx));
    }
    batch.batch = 1, batch.seq = (int)all, batch.edges = &edge, batch.edge_count = 1;
    edge.name = "x1", edge.value = te_matrix(at[2], plan->dtype, rows, w);
    TE_TRY(te_plan_infer(te_matrix(at[3], plan->dtype, all, w), te_matrix(at[1], plan->dtype, all, w), plan, &m, &batch, &ctx));
    TE_TRY(te_copy(&ctx, text, at[3], (size_t)counts[3] * size));
    TE_TRY(te_comm_synchronize(&ctx));
    for (int64_t row = 0; row < all; row++) {
        for (int i = 0; i < w; i++) in[i] = value_of(30, row * 31, i, plan->dtype);
        in_doubles(y, bound, w, row, in, plan->dtype, g->size);
        for (int i = 0; i < w; i++, compared++) {
            const double off = fabs((double)te_load(text, row * w + i, plan->dtype) - y[i]);
            if (off <= bound[i]) continue;
            if (!wrong++) printf("rank %d: %s, %d rows: %d, %d is off by %g, may be by %g\n", g->rank, plan->name, (int)rows,
                                 (int)row, i, off, bound[i]);
        }
    }
    for (int k = 0; k < 4; k++) te_release(&ctx, at[k]);
    return TE_OK;
}
#define SUMMED_OF(dtype, w)                                      \
    TE_TRY(summed(summed_##dtype##_##w##_plan(), rows, 0));      \
    TE_TRY(summed(boundary_##dtype##_##w##_plan(), rows, 1))
static te_status all_summed(void) {
    const int64_t of[3] = {1, 7, MAX_ROWS};
    for (int i = 0; i < 3; i++) {
        const int64_t rows = of[i];
        SUMMED_OF(f32, 13);
        SUMMED_OF(bf16, 13);
        SUMMED_OF(f32, 264);
        SUMMED_OF(bf16, 264);
    }
    return TE_OK;
}
#define EACH(dtype)                                             \
    TE_TRY(run_list(gather_##dtype##_plan(), GATHERED, SCATTERED));  \
    TE_TRY(run_list(scatter_##dtype##_plan(), SCATTERED, GATHERED)); \
    TE_TRY(run_list(reduce_##dtype##_plan(), REDUCED, SAME));        \
    TE_TRY(run_copy(copy_##dtype##_plan()))
/* An all_gather of FP8 must copy all bits, those of NaNs, too. The number of elements must be even. */
static te_status gather_fp8(void) {
    enum { COUNT = 514 };
    const te_group *g = te_tensor_group(&ctx);
    uint8_t *got = (uint8_t *)malloc((size_t)(COUNT * g->size));
    void *x, *y;
    if (!got) return TE_ERROR_MEMORY;
    TE_TRY(te_allocate(&ctx, &x, COUNT));
    TE_TRY(te_allocate(&ctx, &y, (size_t)(COUNT * g->size)));
    for (int i = 0; i < COUNT; i++) got[i] = (uint8_t)(i + 31 * g->rank);
    TE_TRY(te_copy(&ctx, x, got, COUNT));
    TE_TRY(te_fill(&ctx, y, 0x55, (size_t)(COUNT * g->size)));
    TE_TRY(te_group_all_gather(g, y, x, COUNT, g->size % 2 ? TE_e4m3 : TE_e5m2, &ctx));
    TE_TRY(te_copy(&ctx, got, y, (size_t)(COUNT * g->size)));
    TE_TRY(te_synchronize(&ctx));
    for (int i = 0; i < COUNT * g->size; i++, compared++)
        if (got[i] != (uint8_t)(i % COUNT + 31 * (i / COUNT)) && !wrong++)
            printf("rank %d: byte %d of the gathered FP8 is %d\n", g->rank, i, got[i]);
    if (te_group_all_gather(g, y, x, COUNT - 1, TE_e4m3, &ctx) != TE_ERROR_SHAPE && !wrong++)
        printf("rank %d: an odd number of bytes was gathered\n", g->rank);
    free(got), te_release(&ctx, x), te_release(&ctx, y);
    return TE_OK;
}
static te_status run_ops(void) {
    EACH(f32);
    EACH(bf16);
    EACH(f16);
    TE_TRY(gather_fp8());
    TE_TRY(all_summed());
    return compare_fused(3);
}

/* ---- a GPT ------------------------------------------------------------------------------------------------------- */

enum { VOCABULARY = 61, HIDDEN = 32, FFN = 96, HEADS = 4, LENGTH = 16, SEQUENCES = 4, STEPS = 50 };

/* [list] */
#define BLOCK(b, H, F, N)                                                                                             \
    (fork, b##_x1), (layernorm, b##_n1, H), (all_gather, b##_g1),                                                     \
    (linear, b##_qkv, H, 3 * (H) / N, (shard, columns), (parts, 3)), (bias, b##_qkv_b, 3 * (H) / N),                  \
    (attention, b##_at, HEADS / N, HEADS / N, (H) / HEADS, (dropout, 0.1f)),                                          \
    (linear, b##_proj, (H) / N, H, (shard, rows)),                                                                    \
    (reduce_scatter, b##_s1), (bias, b##_proj_b, H), (dropout, b##_d1, 0.1f), (add, b##_x1),                          \
    (fork, b##_x2), (layernorm, b##_n2, H), (all_gather, b##_g2), (linear, b##_fc1, H, (F) / N, (shard, columns)),    \
    (bias, b##_fc1_b, (F) / N), (gelu, b##_act), (linear, b##_fc2, (F) / N, H, (shard, rows)),                        \
    (reduce_scatter, b##_s2), (bias, b##_fc2_b, H), (dropout, b##_d2, 0.1f), (add, b##_x2)
#define GPT(N)                                                                                                        \
    (embedding, tokens, VOCABULARY, HIDDEN), (positions, at, LENGTH, HIDDEN), BLOCK(b0, HIDDEN, FFN, N),              \
    BLOCK(b1, HIDDEN, FFN, N), (rmsnorm, last, HIDDEN), (linear, head, HIDDEN, VOCABULARY),                           \
    (cross_entropy, loss, VOCABULARY)
TE_SEQUENTIAL(gpt1, (f32, (rows, shard)), GPT(1))
TE_SEQUENTIAL(gpt2, (f32, (rows, shard)), GPT(2)) /* for tensor groups of 2 ranks */
/* [list] */

static int frozen; /* whether some of the parameters are frozen */

/* Freezes parameters of several kinds, sharded over the tensor group and not, with NaN in the memory of their gradients. */
static te_status freeze_some(te_model *m) {
    TE_TRY(te_freeze(m, "at", 0, &ctx));
    TE_TRY(te_freeze(m, "b0_qkv", 0, &ctx));
    TE_TRY(te_freeze(m, "b0_proj_b", 0, &ctx));
    TE_TRY(te_freeze(m, "b1_n1", "weight", &ctx));
    for (int i = 0; i < m->param_count; i++) {
        const te_param *p = &m->param[i];
        if (p->frozen) TE_TRY(te_fill(&ctx, p->grad, 0xff, (size_t)(p->rows * p->cols) * sizeof(float)));
    }
    return TE_OK;
}
/* Checks that the NaN is still there. */
static te_status check_frozen(const te_model *m) {
    for (int i = 0; i < m->param_count; i++) {
        const te_param *p = &m->param[i];
        static uint32_t bits[3 * HIDDEN * HIDDEN];
        const size_t bytes = p->frozen ? (size_t)(p->rows * p->cols) * sizeof(float) : 0;
        if (bytes) TE_TRY(te_copy(&ctx, bits, p->grad, bytes));
        TE_TRY(te_comm_synchronize(&ctx));
        for (size_t k = 0; k < bytes / sizeof bits[0]; k++)
            if (bits[k] != 0xffffffffu && !wrong++) printf("%s.%s is frozen, its gradient was written\n", p->op, p->field);
    }
    return TE_OK;
}
/* Trains on the sequences of this replica, of SEQUENCES in all. The ranks of the replica divide their rows. */
static te_status losses_of(te_model *m, void *params, void *grads) {
    const te_plan *plan = m->plan;
    te_model *models[1] = {m};
    const te_group *t = te_tensor_group(&ctx), *d = te_data_group(&ctx);
    const int sequences = SEQUENCES / d->size, rows = sequences * LENGTH, rank_rows = rows / t->size;
    te_saved saved;
    te_batch batch;
    te_adamw opt;
    te_adamw_config config = te_adamw_defaults(3e-3f);
    void *memory = 0, *tokens = 0, *loss = 0, *state = 0;
    int32_t text[SEQUENCES * LENGTH + 1];
    float one_loss[SEQUENCES * LENGTH + 1];
    memset(&saved, 0, sizeof saved), memset(&batch, 0, sizeof batch), memset(&opt, 0, sizeof opt);
    config.max_norm = 0.5f;
    TE_TRY(te_model_randomize(m, 0.1f, 5, 100, &ctx));
    if (frozen) TE_TRY(freeze_some(m));
    TE_TRY(te_allocate(&ctx, &memory, saved.bytes = te_plan_saved_bytes_of_rank(plan, rows, &ctx)));
    const size_t alone = te_plan_saved_bytes(plan, 4096), shared = te_plan_saved_bytes_of_rank(plan, 4096, &ctx);
    if (t->size > 1 && shared > alone / 10 * 9 && !wrong++) printf("saved: %zu bytes, alone %zu\n", shared, alone);
    saved.memory = memory;
    TE_TRY(te_context_reserve(&ctx, te_plan_workspace_bytes(plan, m, rows, &ctx)));
    TE_TRY(te_allocate(&ctx, &tokens, sizeof text));
    TE_TRY(te_allocate(&ctx, &loss, sizeof one_loss));
    TE_TRY(te_allocate(&ctx, &state, te_adamw_bytes(models, 1)));
    TE_TRY(te_adamw_init(&opt, state, te_adamw_bytes(models, 1), models, 1, &config, &ctx));
    batch.batch = sequences, batch.seq = LENGTH, batch.loss_scale = 1.0f / (SEQUENCES * LENGTH);
    batch.tokens = (const int32_t *)tokens + d->rank * rows, batch.labels = batch.tokens + 1;
    for (int step = 0; step < STEPS; step++) {
        float mean = 0;
        for (int i = 0; i <= SEQUENCES * LENGTH; i++) { /* three of four tokens depend on the one before */
            uint32_t u[4];
            te_philox(u, 9, (uint64_t)i, (uint32_t)step % 8, 0);
            text[i] = i && u[0] % 4 ? (text[i - 1] * 7 + 3) % VOCABULARY : (int32_t)(u[1] % VOCABULARY);
        }
        TE_TRY(te_copy(&ctx, tokens, text, sizeof text));
        TE_TRY(te_synchronize(&ctx));
        /* [step] */
        TE_TRY(te_plan_forward(te_matrix(loss, TE_f32, rank_rows, 1), &saved, te_none(), plan, m, &batch, &ctx));
        TE_TRY(te_plan_backward(te_none(), te_none(), &saved, plan, m, &batch, &ctx));
        TE_TRY(te_reduce_gradients(models, 1, &ctx));
        TE_TRY(te_adamw_step(&opt, &ctx));
        /* [step] */
        TE_TRY(te_copy(&ctx, one_loss, loss, (size_t)rank_rows * sizeof(float)));
        TE_TRY(te_comm_synchronize(&ctx));
        for (int i = 0; i < rank_rows; i++) mean += one_loss[i] / (SEQUENCES * LENGTH);
        TE_TRY(te_copy(&ctx, loss, &mean, sizeof mean));
        TE_TRY(te_group_all_reduce(&comm.world, loss, loss, 1, TE_f32, &ctx));
        TE_TRY(te_copy(&ctx, &mean, loss, sizeof mean));
        TE_TRY(te_comm_synchronize(&ctx));
        if (!comm.world.rank) printf("%d\t%.8g\n", step + 1, mean);
        wrong += !(mean > 0 && mean < 100);
    }
    te_adamw_state done;
    TE_TRY(te_adamw_get(&done, &opt, &ctx));
    if (!comm.world.rank) printf("norm\t%.8g\n", (double)done.norm);
    TE_TRY(check_frozen(m));
#if TE_CUDA
    const te_launches *launches = (const te_launches *)ctx.launches;
    if (!comm.world.rank)
        fprintf(stderr, "graphs: %lld made, %lld launched\n", (long long)launches->made, (long long)launches->replayed);
#endif
    void *const all[6] = {memory, tokens, loss, state, params, grads};
    for (int i = 0; i < 6; i++) te_release(&ctx, all[i]);
    return TE_OK;
}
#define TRAIN(name)                                                                                                   \
    static name name##_m;                                                                                             \
    static te_status run_##name(void) {                                                                               \
        void *params = 0, *grads = 0;                                                                                 \
        TE_TRY(te_allocate(&ctx, &params, name##_param_bytes()));                                                     \
        TE_TRY(te_allocate(&ctx, &grads, name##_grad_bytes()));                                                       \
        TE_TRY(name##_bind(&name##_m, params, (float *)grads, &ctx));                                                 \
        return losses_of(&name##_m.model, params, grads);                                                             \
    }
TRAIN(gpt1)
TRAIN(gpt2)

/* ---- a rank that fails ------------------------------------------------------------------------------------------- */

/* Saves a checkpoint, as a program would before it ends. After a failure the error must still name its cause. */
static te_status save_after(te_status status) {
    te_checkpoint all;
    if (status != TE_ERROR_COMM) return status;
    memset(&all, 0, sizeof all);
    all.random = 1;
    return te_checkpoint_save("/tmp/te_ranks_must_not_exist", &all, &ctx);
}
static te_status run_without(int leaves, int from) { /* from: the collective from which on rank 1 is missing */
    void *p = 0;
    TE_TRY(te_allocate(&ctx, &p, 1000 * sizeof(float)));
    TE_TRY(te_fill(&ctx, p, 0, 1000 * sizeof(float)));
    for (int i = 0; i < 4; i++) {
        if (i == from && comm.world.rank == 1) {
            if (leaves) (void)kill(getpid(), SIGKILL);
            sleep(600);
        }
        TE_TRY(te_group_all_reduce(&comm.world, p, p, 1000, TE_f32, &ctx));
        TE_TRY(te_comm_synchronize(&ctx));
    }
    return TE_OK;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "ops";
    frozen = argc > 3 && !strcmp(argv[3], "frozen");
    const int number = argc > 2 ? atoi(argv[2]) : 1, absent = !strcmp(mode, "absent"),
              fails = absent || !strcmp(mode, "stall") || !strcmp(mode, "leave");
    int rank, size;
    te_comm_rank_from_env(&rank, &size);
    te_comm_config config = te_comm_defaults();
    config.file = getenv("RANKS_FILE");
    config.tensor = !strcmp(mode, "gpt") ? number : fails ? 1 : size;
    if (fails) config.timeout = number;
    if (absent) config.peer_bytes = 0; /* all collectives go through NCCL */
    te_status status = te_context_create(&ctx, TE_CUDA ? te_comm_local_rank_from_env() : 0, 3);
    if (status == TE_OK) status = te_comm_create(&comm, &config, &ctx);
    if (status == TE_OK) {
        if (!strcmp(mode, "ops")) status = run_ops();
        else if (!strcmp(mode, "patterns")) status = compare_fused(number);
        else if (fails) status = save_after(run_without(!strcmp(mode, "leave"), absent ? 0 : 2));
        else status = number == 2 ? run_gpt2() : run_gpt1();
    }
    if (status != TE_OK) printf("rank %d: %s: %s\n", rank, te_status_string(status), te_last_error(&ctx));
    else if (compared && !rank) printf("%lld values of %d ranks\n", (long long)compared, size);
    fflush(stdout);
    te_comm_destroy(&comm); /* does not wait for ranks that have failed */
    te_context_destroy(&ctx);
    if (status == TE_ERROR_COMM) _exit(3); /* exit handlers of MPI would wait */
    return status != TE_OK || wrong;
}
