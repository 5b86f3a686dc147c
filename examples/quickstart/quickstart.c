/* quickstart.c -- one Transformer layer with dropout, step by step: from single ops to FP8 and a CUDA graph, in bf16
 * and in fp16. It prints each step's time beside that of the step before, and checks the steps' numbers against each
 * other.
 *
 *     1  basic ops: each op a kernel of its own
 *     2  two fused modules: attention and MLP with their norms
 *     3  the layer as one list
 *     4  its GEMMs in FP8: delayed scaling, history 16, e4m3 forward and e5m2 backward; the weights are cast each step
 *     5  the same with cached weights, as in a further micro-batch of the step
 *     6  forward and backward of 5 as one CUDA graph, which takes x and dy by name
 *     7  inference of 3, which saves nothing for a backward
 *     8  inference of 4
 *
 *     cc   -O3 -march=native -fopenmp -I. examples/quickstart/quickstart.c -o quickstart -lm
 *     nvcc -O3 -gencode arch=compute_90a,code=sm_90a -I. -x cu examples/quickstart/quickstart.c \
 *          -o quickstart -lcublasLt
 *     ./quickstart [FILE.tsv [COMMIT]]
 *
 * With a file the table is also written there, with the device's name and the commit, as in bench/results. Sizes on a
 * GPU: 4 x 2048 tokens, hidden 4096, ffn 16384, 32 heads. On a CPU the layer is small, and FP8 is computed without
 * hardware for it. Exit code 1: a call failed, or numbers differ by more than roundings explain.
 */
#include "te/te.h"

#include <math.h>   /* sqrt */
#include <stdio.h>
#include <stdlib.h> /* malloc */
#include <time.h>   /* timespec_get */

#if TE_CUDA
enum { HIDDEN = 4096, FFN = 16384, HEADS = 32, BATCH = 4, SEQ = 2048, ROUNDS = 20 };
#else
enum { HIDDEN = 256, FFN = 1024, HEADS = 8, BATCH = 2, SEQ = 128, ROUNDS = 3 };
#endif
enum { ROWS = BATCH * SEQ, PARAMS = 12, HISTORY = 16 }; /* PARAMS: of the whole layer */

/* [lists] */
#define ATTENTION(H, HEADS)                                                                             \
    (fork, x1), (layernorm, ln1, H), (linear, qkv, H, 3 * (H)), (bias, qkv_b, 3 * (H)),                 \
    (attention, attn, HEADS, HEADS, (H) / (HEADS), (dropout, 0.1f)),                                    \
    (linear, proj, H, H), (bias, proj_b, H), (dropout, drop1, 0.1f), (add, x1)
#define MLP(H, F)                                                                                       \
    (fork, x2), (layernorm, ln2, H), (linear, fc1, H, F), (bias, fc1_b, F), (gelu, act),                \
    (linear, fc2, F, H), (bias, fc2_b, H), (dropout, drop2, 0.1f), (add, x2)

#define LISTS(dtype)                                                                                                   \
    TE_SEQUENTIAL_WITH(TE_UNFUSED_, TE_UNFUSED_, ops_##dtype, dtype, ATTENTION(HIDDEN, HEADS), MLP(HIDDEN, FFN))       \
    TE_SEQUENTIAL(attention_##dtype, dtype, ATTENTION(HIDDEN, HEADS))                                                  \
    TE_SEQUENTIAL(mlp_##dtype, dtype, MLP(HIDDEN, FFN))                                                                \
    TE_SEQUENTIAL(layer_##dtype, dtype, ATTENTION(HIDDEN, HEADS), MLP(HIDDEN, FFN))                                    \
    TE_SEQUENTIAL(fp8_##dtype, (dtype, (recipe, fp8_delayed)), ATTENTION(HIDDEN, HEADS), MLP(HIDDEN, FFN))
LISTS(bf16)
LISTS(f16)
/* [lists] */

/* An instance of a list: its parameters and gradients, and the memory that its forward saves in. */
typedef struct instance {
    const te_plan *plan;
    te_model model;
    te_param param[PARAMS];
    te_saved saved;
} instance;

/* All lists of a dtype share parameters, gradients, tensors and the context: they lay out their parameters alike. */
static struct {
    te_context ctx;
    te_dtype dtype;
    char *params;
    float *grads;
    te_tensor x, y, dy, dx, middle, dmiddle; /* middle: the first module's output and the second's input */
    float *wide;                             /* y or dx in f32, for the comparison */
    te_batch batch;
    instance ops, attention, mlp, layer, fp8;
    te_model *fp8_models[1];
    te_recipes recipes; /* scales and cached weights of the list fp8 */
    te_graph graph;
    te_graph_pool pool; /* memory for the tensors of the graph */
    void *memory[32];   /* all that was allocated, for its release */
    int pieces;
    FILE *tsv;          /* null: none */
} at;

static te_status allocate(void **p, size_t bytes) {
    TE_TRY(te_allocate(&at.ctx, p, bytes));
    at.memory[at.pieces++] = *p;
    return TE_OK;
}
static te_status bind(instance *m, const te_plan *plan, size_t first_param, size_t first_grad) {
    int params = 0;
    for (int i = 0; i < plan->op_count; i++) params += plan->op[i].params;
    m->plan = plan;
    TE_TRY(te_model_bind(&m->model, plan, m->param, params, at.params + first_param, at.grads + first_grad, &at.ctx));
    TE_TRY(allocate(&m->saved.memory, m->saved.bytes = te_plan_saved_bytes(plan, ROWS)));
    return te_context_reserve(&at.ctx, te_plan_workspace_bytes(plan, &m->model, ROWS, &at.ctx));
}
/* [fp8] */
static te_status prepare_fp8(void) {
    void *memory;
    te_recipes_config config = te_recipes_defaults(); /* the scale is that of the largest amax in the history */
    config.history = HISTORY;
    at.fp8_models[0] = &at.fp8.model;
    const size_t bytes = te_recipes_bytes(at.fp8_models, 1, &config);
    TE_TRY(allocate(&memory, bytes));
    return te_recipes_init(&at.recipes, memory, bytes, at.fp8_models, 1, &config, &at.ctx);
}
/* [fp8] */

/* [steps] */
static te_status forward(te_tensor y, te_tensor x, instance *m) {
    return te_plan_forward(y, &m->saved, x, m->plan, &m->model, &at.batch, &at.ctx);
}
static te_status backward(te_tensor dx, te_tensor dy, instance *m) {
    return te_plan_backward(dx, dy, &m->saved, m->plan, &m->model, &at.batch, &at.ctx);
}
static te_status step_ops(void) {
    TE_TRY(forward(at.y, at.x, &at.ops));
    return backward(at.dx, at.dy, &at.ops);
}
static te_status step_modules(void) {
    TE_TRY(forward(at.middle, at.x, &at.attention));
    TE_TRY(forward(at.y, at.middle, &at.mlp));
    TE_TRY(backward(at.dmiddle, at.dy, &at.mlp));
    return backward(at.dx, at.dmiddle, &at.attention);
}
static te_status step_layer(void) {
    TE_TRY(forward(at.y, at.x, &at.layer));
    return backward(at.dx, at.dy, &at.layer);
}
static te_status step_fp8_cached(void) {
    TE_TRY(forward(at.y, at.x, &at.fp8));
    return backward(at.dx, at.dy, &at.fp8);
}
static te_status step_fp8(void) {
    TE_TRY(step_fp8_cached());
    return te_recipes_step(&at.recipes, &at.ctx); /* behind the optimizer: new scales, and casts of the new weights */
}
static te_status infer(te_tensor y, te_tensor x, instance *m) {
    return te_plan_infer(y, x, m->plan, &m->model, &at.batch, &at.ctx);
}
static te_status infer_modules(void) {
    TE_TRY(infer(at.middle, at.x, &at.attention));
    return infer(at.y, at.middle, &at.mlp);
}
static te_status infer_ops(void) { return infer(at.y, at.x, &at.ops); }
static te_status infer_layer(void) { return infer(at.y, at.x, &at.layer); }
static te_status infer_fp8(void) { return infer(at.y, at.x, &at.fp8); }

/* What the graph records: it reads its own x and dy, to which each replay copies the caller's. */
static te_status record(const te_graph *g, const void *arg, te_context *ctx) {
    (void)arg, (void)ctx;
    TE_TRY(forward(at.y, te_graph_input(g, "x"), &at.fp8));
    return backward(at.dx, te_graph_input(g, "dy"), &at.fp8);
}
static te_status capture(void) {
    void *memory;
    const te_tensor input = te_matrix(0, at.dtype, ROWS, HIDDEN);
    const te_named in[2] = {te_named_tensor("x", input), te_named_tensor("dy", input)};
    const te_graph_spec spec = te_graph_spec_of("layer", record, 0, 0, in, 2, 0, 0);
    const size_t bytes = 2 * (size_t)te_round_up((int64_t)ROWS * HIDDEN * (int64_t)te_dtype_bytes(at.dtype), TE_ALIGN);
    TE_TRY(allocate(&memory, bytes));
    TE_TRY(te_graph_pool_init(&at.pool, memory, bytes, &at.ctx));
    return te_graph_capture(&at.graph, &spec, &at.pool, &at.ctx);
}
static te_status step_graph(void) {
    const te_named in[2] = {te_named_tensor("x", at.x), te_named_tensor("dy", at.dy)};
    return te_graph_replay(&at.graph, in, 2, &at.ctx);
}
/* [steps] */

/* ---- time and numbers -------------------------------------------------------------------------------------------- */

static double now(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The results of a step, in f32 on the host: y, dx and gradients of training; y of inference, which has no dropout. */
enum { Y, DX, GRADS, INFERRED, RESULTS };
static size_t result_count(int i) {
    return i == GRADS ? te_plan_grad_bytes(at.layer.plan) / sizeof(float) : (size_t)ROWS * HIDDEN;
}
static void *result_data(int i) { return i == GRADS ? (void *)at.grads : i == DX ? at.dx.data : at.y.data; }
static size_t result_bytes(int i) { return result_count(i) * (i == GRADS ? sizeof(float) : te_dtype_bytes(at.dtype)); }
static te_status read_result(float *to, int i) {
    const float *numbers = at.grads;
    if (i != GRADS) {
        TE_TRY(te_convert(at.wide, TE_f32, result_data(i), at.dtype, ROWS * HIDDEN, &at.ctx));
        numbers = at.wide;
    }
    TE_TRY(te_copy(&at.ctx, to, numbers, result_count(i) * sizeof(float)));
    return te_synchronize(&at.ctx);
}
/* The root mean square of the difference, over the root mean square of `want`. */
static double difference(const float *want, const float *got, size_t count) {
    double error = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        error += ((double)want[i] - got[i]) * ((double)want[i] - got[i]);
        size += (double)want[i] * want[i];
    }
    return sqrt(error / size);
}

typedef struct results { float *of[RESULTS]; } results;
static results layer_in_16_bits, layer_in_fp8; /* what later steps are compared with */

/* Run a step once with the same dropout masks as all others, and compare its results [from, to) with `want`; results
 * that `want` does not have yet become the ones to compare with. *worst: the largest difference. */
static te_status compare(double *worst, te_status (*step)(void), int from, int to, results *want) {
    const te_rng masks = {1, 0};
    *worst = 0;
    TE_TRY(te_rng_set(&masks, &at.ctx));
    for (int i = from; i < to; i++) /* NaN, so that the previous step's results cannot pass for this one's */
        TE_TRY(te_fill(&at.ctx, result_data(i), 0xff, result_bytes(i)));
    TE_TRY(step());
    TE_TRY(te_synchronize(&at.ctx));
    for (int i = from; i < to; i++) {
        const int is_first = !want->of[i];
        float *got = (float *)malloc(result_count(i) * sizeof(float));
        TE_REQUIRE(got, &at.ctx, TE_ERROR_MEMORY, "quickstart: no memory for %zu numbers", result_count(i));
        TE_TRY(read_result(got, i));
        if (is_first) want->of[i] = got;
        const double d = difference(want->of[i], got, result_count(i));
        if (!(d <= *worst)) *worst = d; /* NaN, too */
        if (!is_first) free(got);
    }
    return TE_OK;
}

/* A row of the table. The differences that are allowed: a few roundings of the dtype; in FP8 a rounding of dy to two
 * bits of mantissa, and of x and w to three bits. */
typedef struct row {
    const char *name;
    te_status (*step)(void), (*checked)(void); /* checked: the step that is compared, if not the one that is timed */
    int from, to, is_fp8;
    results *want;
} row;
static te_status show(const row *r, double *ms, int *same) {
    const double before = *ms, allowed = r->is_fp8 ? 0x1p-2 : at.dtype == TE_bf16 ? 0x1p-7 : 0x1p-10;
    const int is_first = !r->want->of[r->from];
    double worst;
    for (int i = 0; i < 3; i++) TE_TRY(r->step()); /* the first run also times the candidate kernels of its GEMMs */
    TE_TRY(te_synchronize(&at.ctx));
    const double start = now();
    for (int i = 0; i < ROUNDS; i++) TE_TRY(r->step());
    TE_TRY(te_synchronize(&at.ctx));
    *ms = (now() - start) * 1e3 / ROUNDS;
    TE_TRY(compare(&worst, r->checked ? r->checked : r->step, r->from, r->to, r->want));
    *same &= worst <= allowed;
    printf("%-44s %9.3f ms", r->name, *ms);
    if (before > 0) printf("  %5.2f of the step before", *ms / before);
    else printf("  %23s", "");
    if (is_first) printf("\n");
    else if (worst == 0) printf("  the same bits\n");
    else printf("  %.1e apart, %s the %.1e of %s\n", worst, worst <= allowed ? "within" : "MORE THAN", allowed,
                r->is_fp8 ? "FP8" : te_dtype_name(at.dtype));
    if (at.tsv)
        fprintf(at.tsv, "%s\t%s\t%.3f\t%.3f\t%.2e\n", te_dtype_name(at.dtype), r->name, *ms,
                before > 0 ? *ms / before : 1.0, worst);
    return TE_OK;
}

/* The lists of one dtype. */
typedef struct lists { te_dtype dtype; const te_plan *ops, *attention, *mlp, *layer, *fp8; } lists;

static te_status run(const lists *l, int *same) {
    te_context *ctx = &at.ctx;
    te_tensor *const tensors[6] = {&at.x, &at.y, &at.dy, &at.dx, &at.middle, &at.dmiddle};
    void *p;
    double ms = 0, unused;
    at.dtype = l->dtype, at.batch.batch = BATCH, at.batch.seq = SEQ;
    TE_TRY(allocate(&p, te_plan_param_bytes(l->layer)));
    at.params = (char *)p;
    TE_TRY(allocate(&p, te_plan_grad_bytes(l->layer)));
    at.grads = (float *)p;
    TE_TRY(allocate(&p, (size_t)ROWS * HIDDEN * sizeof(float)));
    at.wide = (float *)p;
    for (int i = 0; i < 6; i++) {
        TE_TRY(allocate(&p, (size_t)ROWS * HIDDEN * te_dtype_bytes(at.dtype)));
        *tensors[i] = te_matrix(p, at.dtype, ROWS, HIDDEN);
        TE_TRY(te_fill_normal(p, at.dtype, (int64_t)ROWS * HIDDEN, 0.0f, 1.0f, 1, (uint32_t)(100 + i), ctx));
    }
    TE_TRY(bind(&at.ops, l->ops, 0, 0));
    TE_TRY(bind(&at.attention, l->attention, 0, 0));
    TE_TRY(bind(&at.mlp, l->mlp, te_plan_param_bytes(l->attention), te_plan_grad_bytes(l->attention) / sizeof(float)));
    TE_TRY(bind(&at.layer, l->layer, 0, 0));
    TE_TRY(bind(&at.fp8, l->fp8, 0, 0));
    TE_TRY(te_model_randomize(&at.layer.model, 0.02f, 1, 0, ctx));
    printf("%s, %d x %d tokens, hidden %d, ffn %d, %d heads, dropout 0.1; forward and backward:\n",
           te_dtype_name(at.dtype), BATCH, SEQ, HIDDEN, FFN, HEADS);
    TE_TRY(compare(&unused, infer_ops, INFERRED, INFERRED + 1, &layer_in_16_bits));
    /* a mask follows from an op's place in its list, so the modules are compared without dropout */
    const row training[] = {
        {"1  basic ops", step_ops, 0, Y, INFERRED, 0, &layer_in_16_bits},
        {"2  fused modules", step_modules, infer_modules, INFERRED, RESULTS, 0, &layer_in_16_bits},
        {"3  the layer as one list", step_layer, 0, Y, INFERRED, 0, &layer_in_16_bits},
        {"4  FP8, delayed scaling", step_fp8, 0, Y, INFERRED, 1, &layer_in_16_bits},
        {"5  FP8, cached weights", step_fp8_cached, 0, Y, INFERRED, 1, &layer_in_16_bits}};
    const char *graphs = TE_CUDA ? "6  5 as one CUDA graph, named inputs" : "6  named inputs (a CPU has no graph)";
    const row graph = {graphs, step_graph, 0, Y, INFERRED, 1, &layer_in_fp8};
    const row inference[] = {{"7  inference in 16 bits", infer_layer, 0, INFERRED, RESULTS, 0, &layer_in_16_bits},
                             {"8  inference in FP8", infer_fp8, 0, INFERRED, RESULTS, 1, &layer_in_16_bits}};
    for (int i = 0; i < 5; i++) {
        if (i == 3) TE_TRY(prepare_fp8());
        TE_TRY(show(&training[i], &ms, same));
    }
    TE_TRY(compare(&unused, step_fp8_cached, Y, INFERRED, &layer_in_fp8));
    TE_TRY(capture());
    TE_TRY(show(&graph, &ms, same));
    printf("inference:\n");
    ms = 0;
    for (int i = 0; i < 2; i++) TE_TRY(show(&inference[i], &ms, same));
    return TE_OK;
}
/* Give back what one dtype has used. */
static void release(void) {
    te_graph_destroy(&at.graph);
    for (int i = 0; i < RESULTS; i++) {
        free(layer_in_16_bits.of[i]), free(layer_in_fp8.of[i]);
        layer_in_16_bits.of[i] = layer_in_fp8.of[i] = 0;
    }
    while (at.pieces) te_release(&at.ctx, at.memory[--at.pieces]);
}

static const char *device_name(void) {
#if TE_CUDA
    static cudaDeviceProp p;
    return cudaGetDeviceProperties(&p, 0) == cudaSuccess ? p.name : "a GPU";
#else
    return "a CPU";
#endif
}

int main(int argc, char **argv) {
    int same = 1;
    te_status status = te_context_create(&at.ctx, 0, 1);
    if (argc > 1 && !(at.tsv = fopen(argv[1], "w"))) return perror(argv[1]), 1;
    if (at.tsv)
        fprintf(at.tsv, "# %s, commit %s\ndtype\tstep\tms\tof_before\tapart\n", device_name(),
                argc > 2 ? argv[2] : "unknown");
    if (status == TE_OK) {
        at.ctx.gemm_tune = 1; /* each GEMM runs the candidate kernel that is fastest on this device */
        printf("%s%s\n", device_name(), TE_CUDA ? "" : ": a small layer, and FP8 by integer arithmetic");
        const lists both[] = {
            {TE_bf16, ops_bf16_plan(), attention_bf16_plan(), mlp_bf16_plan(), layer_bf16_plan(), fp8_bf16_plan()},
            {TE_f16, ops_f16_plan(), attention_f16_plan(), mlp_f16_plan(), layer_f16_plan(), fp8_f16_plan()}};
        for (int i = 0; i < 2 && status == TE_OK; i++) status = run(&both[i], &same), release();
    }
    if (status != TE_OK) printf("%s: %s\n", te_status_string(status), te_last_error(&at.ctx));
    te_context_destroy(&at.ctx);
    if (at.tsv && fclose(at.tsv)) return perror(argv[1]), 1;
    return status != TE_OK || !same;
}
