/* host.c -- the time of each step of a plan on this CPU, compared in the same run with a copy of as many bytes, or with the GEMMs alone.
 *
 *     gcc -std=c11 -O3 -march=native -fopenmp -DTE_CBLAS -I. bench/host.c -o host -lopenblas -lm
 *     ./host [file.tsv [commit [part of a model's name]]]
 *
 * The runs of a step use several sets of tensors, more than the caches hold (of weights there is one set). A memory-bound step is
 * compared with memcpy, by one thread and by all, of which the faster counts; a step with a GEMM is compared with cblas_sgemm.
 * They run alternately, and the medians are taken. Bytes: each tensor is read once and written once (te_step_row_bytes).
 * Random data, f32.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h> /* timespec_get */

#include "te/te.h"
#if TE_CUDA
int main(void) { return puts("for the host; on a GPU: kernels.cu and block.cu") < 0; }
#else

#include "flops.h" /* bench_step_flops */

#define GPT_BLOCK(H, F, HEADS)                                                                                            \
    (fork, x1), (layernorm, ln1, H), (linear, qkv, H, 3 * (H)), (bias, qkv_b, 3 * (H)),                                   \
    (attention, attn, HEADS, HEADS, (H) / (HEADS)), (linear, proj, H, H), (bias, proj_b, H), (dropout, drop1, 0.1f),      \
    (add, x1), (fork, x2), (layernorm, ln2, H), (linear, fc1, H, F), (bias, fc1_b, F), (gelu, act), (linear, fc2, F, H),  \
    (bias, fc2_b, H), (dropout, drop2, 0.1f), (add, x2)
TE_SEQUENTIAL(gpt768, f32, GPT_BLOCK(768, 3072, 12))
TE_SEQUENTIAL(layernorm_768, f32, (layernorm, n, 768))
TE_SEQUENTIAL(layernorm_4096, f32, (layernorm, n, 4096))
TE_SEQUENTIAL(rmsnorm_768, f32, (rmsnorm, n, 768))
TE_SEQUENTIAL(rmsnorm_4096, f32, (rmsnorm, n, 4096))
TE_SEQUENTIAL(gelu_3072, f32, (bias, b, 3072), (gelu, a))
TE_SEQUENTIAL(swiglu_3072, f32, (bias, b, 2 * 3072), (swiglu, a))
TE_SEQUENTIAL(rope_64, f32, (rope, r, 12, 12, 64))
TE_SEQUENTIAL(cross_entropy_50257, f32, (cross_entropy, c, 50257))

enum { ROUNDS = 7, WARM = 2, SETS = 48 };
static const size_t set_bytes = (size_t)256 << 20; /* bytes of all sets of a step's tensors; also of memcpy's source and destination */
static te_context ctx;
static FILE *tsv;
static const char *only; /* run only models whose name contains this; null: all */
static void *memory[8 + 6 * SETS]; /* the memory of the current case */
static int held;

static void check(te_status s, const char *what) {
    if (s != TE_OK) fprintf(stderr, "%s: %s (%s)\n", what, te_last_error(&ctx), te_status_string(s)), exit(1);
}
static void *allocate(size_t bytes) {
    check(te_allocate(&ctx, &memory[held], bytes), "memory");
    return memory[held++];
}
static float *normal(int64_t n, float std, int stream) {
    float *p = (float *)allocate((size_t)n * sizeof(float));
    check(te_fill_normal(p, TE_f32, n, 0, std, 2, (uint32_t)stream, &ctx), "data");
    return p;
}
static void release(void) { while (held) te_release(&ctx, memory[--held]); }

typedef struct racer { /* work to time: run(arg, i) is the i-th run, on the i-th set of tensors; a round has `runs` of them */
    void (*run)(void *arg, int i), *arg;
    int runs;
    double us[ROUNDS], median, spread;
} racer;
static double now(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}
static int less(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }
static void race(racer *r, int count) { /* run all alternately; a round takes some 4 ms, but has at least three runs */
    for (int round = -1; round < ROUNDS; round++)
        for (int k = 0; k < count; k++) {
            const double start = now();
            for (int i = 0; i < (round < 0 ? 2 : r[k].runs); i++) r[k].run(r[k].arg, i);
            const double us = now() - start;
            if (round < 0) r[k].runs = (int)te_max(3, te_min(4 * SETS, (int64_t)(8000 / (us + 1))));
            else r[k].us[round] = us / r[k].runs;
        }
    for (int k = 0; k < count; k++) {
        double *t = r[k].us + WARM;
        qsort(t, ROUNDS - WARM, sizeof *t, less);
        r[k].median = t[(ROUNDS - WARM) / 2], r[k].spread = (t[ROUNDS - WARM - 1] - t[0]) / r[k].median;
    }
}

static char *copy_from, *copy_to; /* [set_bytes] */
typedef struct copying { size_t half; int parts; } copying;
static void copy_run(void *arg, int i) {
    const copying *c = (const copying *)arg;
    const size_t at = c->half * (size_t)i % (set_bytes - c->half), part = c->half / (size_t)c->parts;
#ifdef _OPENMP
#pragma omp parallel for schedule(static) if (c->parts > 1)
#endif
    for (int k = 0; k < c->parts; k++) memcpy(copy_to + at + (size_t)k * part, copy_from + at + (size_t)k * part, part);
}

typedef struct products { int count; te_gemm g[2]; } products; /* the GEMMs of a step, without its other ops */
static void products_run(void *arg, int i) {
    const products *p = (const products *)arg;
    for (int k = 0; k < p->count; k++) check(te_gemm_run(&p->g[k], &ctx), "product"), (void)i; /* one call of cblas_sgemm each */
}

static void print(const char *model, const char *pass, const char *step, const char *shape, const racer *r, double bytes, double flops, double beside_us) {
    const double us = r->median;
    printf("%-20s %-9s %-40s %-14s %10.2f us  ", model, pass, step, shape, us);
    if (flops > 0) printf("%7.1f GFLOP/s", flops / us * 1e-3);
    else if (bytes > 0) printf("%6.1f MB %6.1f GB/s", bytes * 1e-6, bytes / us * 1e-3);
    if (beside_us > 0) printf("  %5.3f of %s", beside_us / us, flops > 0 ? "the GEMMs alone" : "copy");
    if (r->spread > 0) printf("  +-%.1f%%", 50 * r->spread);
    puts("");
    if (flops > 0) bytes = beside_us = 0;
    if (tsv) fprintf(tsv, "%s\t%s\t%s\t%s\t%.3f\t%.0f\t%.4f\t%.3f\t%.4f\t%.3f\n", model, pass, step, shape, us, bytes, bytes / us * 1e-6, beside_us / us, flops / us * 1e-6, r->spread);
    fflush(stdout);
}
/* Time `run`, and its GEMMs alone or, if flops is 0, the copy. Returns the median in microseconds. */
static double measure(const char *model, const char *pass, const char *step, const char *shape, void (*run)(void *, int), void *arg, double bytes,
                      double flops, products *bare) {
    const size_t half = (size_t)te_min((int64_t)bytes / 2, (int64_t)set_bytes / 2); /* for a larger copy the rate of this one counts */
    copying one = {half, 1}, all = {half, 64};
    racer r[3] = {{run, arg, 0, {0}, 0, 0}, {flops > 0 ? products_run : copy_run, flops > 0 ? (void *)bare : &one, 0, {0}, 0, 0}, {copy_run, &all, 0, {0}, 0, 0}};
    const int count = flops <= 0 ? 3 : bare->count ? 2 : 1;
    race(r, count);
    const double beside_us = count < 3 ? r[1].median : fmin(r[1].median, r[2].median) * (bytes / 2 / (double)half);
    print(model, pass, step, shape, &r[0], bytes, flops, beside_us);
    if (count == 2) print(model, pass, "bare_products", shape, &r[1], 0, flops, 0);
    return r[0].median;
}

static double bytes_of(const te_plan *p, const te_step *s, te_pass pass, int64_t rows) {
    int keeps = pass == TE_BACKWARD && s == &p->backward[p->backward_count - 1];
    for (int i = 0; i < s->count; i++) keeps = keeps && (p->op[s->op[i]].flags & TE_GRAD_UNCHANGED);
    return (double)rows * ((double)te_step_row_bytes(p, s, pass) + (keeps ? p->in * 4.0 : 0)); /* copies dy to dx */
}
/* y = x w^T, or dx = dy w and dw = dy^T x, of the linear that the step begins with. */
static products products_of(const te_plan *p, const te_step *s, te_pass pass, int64_t rows, float *const operand[3]) {
    const te_op *op = &p->op[s->op[0]];
    products b;
    b.count = op->op_class != TE_CLASS_gemm ? 0 : pass == TE_BACKWARD ? 2 : 1;
    b.g[0] = pass == TE_BACKWARD ? te_gemm_of(rows, op->in, op->out) : te_gemm_of(rows, op->out, op->in);
    b.g[1] = te_gemm_of(op->out, op->in, rows);
    b.g[0].trans_b = pass != TE_BACKWARD, b.g[1].trans_a = 1;
    for (int i = 0; i < 2; i++) b.g[i].a = operand[0], b.g[i].b = operand[1], b.g[i].d = operand[2], b.g[i].dtype = b.g[i].out = TE_f32;
    return b;
}
static void bind(te_model *m, const te_plan *plan) {
    static te_param params[TE_MAX_OPS * TE_MAX_PARAMS];
    int count = 0;
    for (int i = 0; i < plan->op_count; i++) count += plan->op[i].params;
    void *weights = allocate(te_plan_param_bytes(plan));
    check(te_model_bind(m, plan, params, count, weights, normal(te_plan_param_elements(plan), 1e-3f, 1), &ctx), "bind");
    check(te_model_randomize(m, 0.02f, 1, 0, &ctx), "weights");
}

/* Run a step and its column sums, which a whole backward computes only at its end. */
static void one(te_run *r, const te_step *step) {
    check(step->run(r, step), step->kernels);
    check(te__reduce_columns_now(r), "sums");
}
typedef struct stepping { te_run scratch, *before; const te_step *step; int sets; } stepping;
static void step_run(void *arg, int i) {
    stepping *s = (stepping *)arg;
    s->scratch = s->before[i % s->sets];
    one(&s->scratch, s->step);
}

static void steps(const te_plan *plan, int batch, int seq) {
    if (only && !strstr(plan->name, only)) return;
    static te_run run[SETS], before[SETS];
    static stepping at;
    const int64_t rows = (int64_t)batch * seq, in = rows * plan->in, out = rows * plan->out;
    te_model m;
    bind(&m, plan);
    float *operand[3]; /* operands of the GEMMs alone: at most [rows, 4096] or [4096, 4096] */
    for (int i = 0; i < 3; i++) operand[i] = normal(te_max(rows, 4096) * 4096, 1, i);
    int32_t *labels = (int32_t *)allocate((size_t)rows * 4);
    for (int64_t i = 0; i < rows; i++) labels[i] = (int32_t)(i * 7919 % plan->in);
    te_batch b = {0};
    b.batch = batch, b.seq = seq, b.labels = labels, b.ignore_index = -1;
    const size_t work = te_plan_workspace_bytes(plan, &m, rows, &ctx), saved_bytes = te_plan_saved_bytes(plan, rows);
    const int sets = (int)te_min(SETS, 2 + (int64_t)(set_bytes / (8 * (size_t)(in + out) + saved_bytes)));
    float *x[SETS], *y[SETS], *dx[SETS], *dy[SETS], *workspace[SETS];
    te_saved saved[SETS];
    for (int i = 0; i < sets; i++) {
        x[i] = normal(in, 1, i), y[i] = normal(out, 1, i), dx[i] = normal(in, 1, i), dy[i] = normal(out, 1, 100 + i);
        ctx.workspace = workspace[i] = (float *)allocate(work), ctx.workspace_bytes = work;
        saved[i].memory = allocate(saved_bytes), saved[i].bytes = saved_bytes;
        check(te_plan_forward(te_matrix(y[i], TE_f32, rows, plan->out), &saved[i], te_matrix(x[i], TE_f32, rows, plan->in), plan, &m, &b, &ctx), "forward");
    }

    const char *const titles[] = {"forward", "inference", "backward"};
    for (int pass = 0; pass < 3; pass++) {
        const te_step *step = pass == TE_FORWARD ? plan->forward : pass == TE_INFER ? plan->infer : plan->backward;
        const int count = pass == TE_FORWARD ? plan->forward_count : pass == TE_INFER ? plan->infer_count : plan->backward_count;
        char shape[64];
        racer total = {0, 0, 0, {0}, 0, 0};
        for (int i = 0; i < sets; i++) {
            te_run *r = &run[i];
            te__begin(r, plan, (te_pass)pass, rows, batch, &ctx);
            r->batch = &b, r->x.data = x[i], r->y.data = y[i], r->dx = r->x, r->dx.data = dx[i], r->dy = r->y, r->dy.data = dy[i];
            te__take_params(r, &m);
            te__lay_out(r, (char *)saved[i].memory);
            r->dry = 0, r->current = pass == TE_BACKWARD ? r->dy : r->x, r->pool.base = (char *)workspace[i];
        }
        for (int k = 0; k < count; k++) {
            memcpy(before, run, sizeof run);
            for (int i = 0; i < sets; i++) one(&run[i], &step[k]);
            const double bytes = bytes_of(plan, &step[k], (te_pass)pass, rows), flops = bench_step_flops(plan, &step[k], (te_pass)pass, &b);
            if (bytes <= 0) continue; /* passes its value through */
            const te_op *first = &plan->op[step[k].op[0]], *last = &plan->op[step[k].op[step[k].count - 1]];
            const int from = pass == TE_BACKWARD ? last->in : first->in, to = pass == TE_BACKWARD ? first->out : last->out;
            snprintf(shape, sizeof shape, from == to ? "%dx%dx%d" : "%dx%dx%dx%d", batch, seq, from, to);
            at.before = before, at.step = &step[k], at.sets = sets;
            products bare = products_of(plan, &step[k], (te_pass)pass, rows, operand);
            total.median += measure(plan->name, titles[pass], step[k].pattern, shape, step_run, &at, bytes, flops, &bare);
        }
        if (count > 1 && snprintf(shape, sizeof shape, "%dx%d", batch, seq)) print(plan->name, titles[pass], "all", shape, &total, 0, 0, 0);
    }
    ctx.workspace = 0, ctx.workspace_bytes = 0, release();
}

static void adamw_run(void *opt, int i) { check(te_adamw_step((te_adamw *)opt, &ctx), "adamw"), (void)i; }
static void adamw(const te_plan *plan, int clip) {
    if (only && !strstr("adamw", only)) return;
    te_model m, *models[] = {&m};
    te_adamw opt;
    te_adamw_config config = te_adamw_defaults(1e-4f);
    bind(&m, plan), config.max_norm = clip ? 1.0f : 0.0f;
    check(te_adamw_init(&opt, allocate(te_adamw_bytes(models, 1)), te_adamw_bytes(models, 1), models, 1, &config, &ctx), "adamw");
    const int64_t n = te_plan_param_elements(plan);
    char shape[32];
    snprintf(shape, sizeof shape, "%lld", (long long)n);
    measure("adamw", "step", clip ? "grad_norm_adamw" : "adamw", shape, adamw_run, &opt, (double)n * (clip ? 32 : 28), 0, 0);
    release();
}

int main(int argc, char **argv) {
    if (argc > 1 && !(tsv = fopen(argv[1], "w"))) return perror(argv[1]), 1;
    if (tsv) fprintf(tsv, "# the host, commit %s\nmodel\tpass\tstep\tshape\tmicroseconds\tbytes\tTB/s\tof_copy\tTFLOP/s\tspread\n", argc > 2 ? argv[2] : "unknown");
    only = argc > 3 ? argv[3] : 0;
    check(te_context_create(&ctx, 0, 1), "context");
    copy_from = (char *)allocate(set_bytes), copy_to = (char *)allocate(set_bytes), held = 0; /* `release` does not free these two */
    memset(copy_from, 1, set_bytes), memset(copy_to, 1, set_bytes);
    steps(gpt768_plan(), 4, 64), steps(gpt768_plan(), 1, 256);
    steps(layernorm_768_plan(), 1, 4096), steps(rmsnorm_768_plan(), 1, 4096);
    steps(layernorm_4096_plan(), 1, 1024), steps(rmsnorm_4096_plan(), 1, 1024);
    steps(gelu_3072_plan(), 1, 1024), steps(swiglu_3072_plan(), 1, 1024);
    steps(rope_64_plan(), 4, 256), steps(cross_entropy_50257_plan(), 1, 256);
    adamw(gpt768_plan(), 0), adamw(gpt768_plan(), 1);
    te_context_destroy(&ctx);
    return tsv && fclose(tsv) != 0;
}
#endif
