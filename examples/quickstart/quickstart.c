/* quickstart.c -- one Transformer layer in five steps. It prints each step's time beside that of the step before, and
 * checks that all steps compute the same numbers.
 *
 *     1  every op a kernel of its own
 *     2  two modules, each of them fused: attention and MLP with their norms
 *     3  the layer as one list
 *     4  forward and backward of 3 as one CUDA graph
 *     5  inference of 3, which saves nothing for a backward
 *
 *     cc   -O3 -march=native -fopenmp -I. examples/quickstart/quickstart.c -o quickstart -lm
 *     nvcc -O3 -gencode arch=compute_90a,code=sm_90a -I. -x cu examples/quickstart/quickstart.c -o quickstart -lcublasLt
 *     ./quickstart
 *
 * -DDTYPE=f16 chooses another dtype: bf16, f16 or f32. Sizes: 4 x 2048 tokens of a layer of 4096 columns on a GPU, less
 * on the host. Exit code 1: a call failed, or the numbers differ.
 */
#include "te/te.h"

#include <math.h>   /* sqrt */
#include <stdio.h>
#include <stdlib.h> /* malloc */
#include <time.h>   /* timespec_get */

#ifdef __CUDACC__
enum { HIDDEN = 4096, FFN = 16384, HEADS = 32, BATCH = 4, SEQ = 2048, ROUNDS = 20 };
#ifndef DTYPE
#define DTYPE bf16
#endif
#else
enum { HIDDEN = 256, FFN = 1024, HEADS = 8, BATCH = 2, SEQ = 128, ROUNDS = 5 };
#ifndef DTYPE
#define DTYPE f32
#endif
#endif
enum { ROWS = BATCH * SEQ };
#define DTYPE_OF_(dtype) TE_##dtype
#define DTYPE_OF(dtype) DTYPE_OF_(dtype)

/* [lists] */
#define ATTENTION(H, HEADS)                                                                             \
    (fork, x1), (layernorm, ln1, H), (linear, qkv, H, 3 * (H)), (bias, qkv_b, 3 * (H)),                 \
    (attention, attn, HEADS, HEADS, (H) / (HEADS)), (linear, proj, H, H), (bias, proj_b, H), (add, x1)
#define MLP(H, F)                                                                                       \
    (fork, x2), (layernorm, ln2, H), (linear, fc1, H, F), (bias, fc1_b, F), (gelu, act),                \
    (linear, fc2, F, H), (bias, fc2_b, H), (add, x2)

TE_SEQUENTIAL_WITH(TE_UNFUSED_, TE_UNFUSED_, unfused, DTYPE, ATTENTION(HIDDEN, HEADS), MLP(HIDDEN, FFN))
TE_SEQUENTIAL(attention_module, DTYPE, ATTENTION(HIDDEN, HEADS))
TE_SEQUENTIAL(mlp_module, DTYPE, MLP(HIDDEN, FFN))
TE_SEQUENTIAL(layer, DTYPE, ATTENTION(HIDDEN, HEADS), MLP(HIDDEN, FFN))
/* [lists] */

/* Parameters, gradients, tensors and the context are shared by all steps: the lists lay out their parameters alike. */
static struct {
    te_context ctx;
    char *params;
    float *grads;
    te_tensor x, y, dy, dx, middle, dmiddle; /* middle: the first module's output and the second's input */
    float *wide;                             /* y or dx in f32, for the comparison */
    te_batch batch;
} at;

static unfused unfused_m;
static unfused_saved saved_unfused;
static attention_module attention_m;
static attention_module_saved saved_attention;
static mlp_module mlp_m;
static mlp_module_saved saved_mlp;
static layer layer_m;
static layer_saved saved_layer;

/* An instance points to its parameters and gradients. The memory that forward saves in, and the workspace, are the
 * caller's. */
#define BIND(list, m, saved, first_param, first_grad)                                                    \
    TE_TRY(list##_bind(&m, at.params + (first_param), at.grads + (first_grad), &at.ctx));               \
    TE_TRY(te_allocate(&at.ctx, &saved.memory, saved.bytes = list##_saved_bytes(ROWS)));                  \
    TE_TRY(te_context_reserve(&at.ctx, list##_workspace_bytes(&m, ROWS, &at.ctx)))

static te_status bind_all(void) {
    BIND(unfused, unfused_m, saved_unfused, 0, 0);
    BIND(layer, layer_m, saved_layer, 0, 0);
    BIND(attention_module, attention_m, saved_attention, 0, 0);
    BIND(mlp_module, mlp_m, saved_mlp, attention_module_param_bytes(), attention_module_grad_bytes() / sizeof(float));
    return TE_OK;
}

/* [steps] */
static te_status step_unfused(void) {
    TE_TRY(unfused_forward(at.y, &saved_unfused, at.x, &unfused_m, &at.batch, &at.ctx));
    return unfused_backward(at.dx, at.dy, &saved_unfused, &unfused_m, &at.batch, &at.ctx);
}
static te_status step_modules(void) {
    TE_TRY(attention_module_forward(at.middle, &saved_attention, at.x, &attention_m, &at.batch, &at.ctx));
    TE_TRY(mlp_module_forward(at.y, &saved_mlp, at.middle, &mlp_m, &at.batch, &at.ctx));
    TE_TRY(mlp_module_backward(at.dmiddle, at.dy, &saved_mlp, &mlp_m, &at.batch, &at.ctx));
    return attention_module_backward(at.dx, at.dmiddle, &saved_attention, &attention_m, &at.batch, &at.ctx);
}
static te_status step_layer(void) {
    TE_TRY(layer_forward(at.y, &saved_layer, at.x, &layer_m, &at.batch, &at.ctx));
    return layer_backward(at.dx, at.dy, &saved_layer, &layer_m, &at.batch, &at.ctx);
}
static te_status step_infer(void) { return layer_infer(at.y, at.x, &layer_m, &at.batch, &at.ctx); }

static te_graph graph;
static te_graph_pool pool; /* memory for tensors that belong to a graph: here there are none */
static te_status step_record(const te_graph *g, const void *arg, te_context *ctx) {
    (void)g, (void)arg;
    TE_TRY(layer_forward(at.y, &saved_layer, at.x, &layer_m, &at.batch, ctx));
    return layer_backward(at.dx, at.dy, &saved_layer, &layer_m, &at.batch, ctx);
}
static te_status capture(void) {
    static void *memory;
    const te_graph_spec spec = te_graph_spec_of("layer", step_record, 0, 0, 0, 0, 0, 0);
    TE_TRY(te_allocate(&at.ctx, &memory, TE_ALIGN));
    TE_TRY(te_graph_pool_init(&pool, memory, TE_ALIGN, &at.ctx));
    return te_graph_capture(&graph, &spec, &pool, &at.ctx);
}
static te_status step_graph(void) { return te_graph_replay(&graph, 0, 0, &at.ctx); }
/* [steps] */

/* ---- time and numbers -------------------------------------------------------------------------------------------- */

static double now(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The results of a step, in f32 on the host: y, dx, gradients. */
enum { Y, DX, GRADS, RESULTS };
static size_t result_count(int i) { return i == GRADS ? layer_grad_bytes() / sizeof(float) : (size_t)ROWS * HIDDEN; }
static te_status read_result(float *to, int i) {
    const float *numbers = at.grads;
    if (i != GRADS) {
        TE_TRY(te_convert(at.wide, TE_f32, i == Y ? at.y.data : at.dx.data, at.y.dtype, ROWS * HIDDEN, &at.ctx));
        numbers = at.wide;
    }
    TE_TRY(te_copy(&at.ctx, to, numbers, result_count(i) * sizeof(float)));
    return te_synchronize(&at.ctx);
}

/* The root mean square of the difference, over the root mean square of `first`. */
static double difference(const float *first, const float *other, size_t count) {
    double error = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        error += ((double)first[i] - other[i]) * ((double)first[i] - other[i]);
        size += (double)first[i] * first[i];
    }
    return sqrt(error / size);
}

static float *first[RESULTS]; /* the results of step 1 */

/* Run a step, print its time and how far its numbers are from those of step 1. `results`: how many of Y, DX and GRADS
 * it computes. */
static te_status show(const char *name, te_status (*step)(void), int results, double *ms, int *same) {
    const double before = *ms;
    const int is_first_step = !first[0];
    for (int i = 0; i < results; i++) { /* NaN, so that the previous step's results cannot pass for this one's */
        void *p = i == GRADS ? (void *)at.grads : i == Y ? at.y.data : at.dx.data;
        TE_TRY(te_fill(&at.ctx, p, 0xff, result_count(i) * (i == GRADS ? sizeof(float) : te_dtype_bytes(at.y.dtype))));
    }
    TE_TRY(step()); /* the first run also times the candidate kernels of its GEMMs */
    TE_TRY(te_synchronize(&at.ctx));
    const double start = now();
    for (int i = 0; i < ROUNDS; i++) TE_TRY(step());
    TE_TRY(te_synchronize(&at.ctx));
    *ms = (now() - start) * 1e3 / ROUNDS;
    printf("%-34s %9.3f ms", name, *ms);
    if (before > 0) printf("  %5.2f of the step before", *ms / before);
    else printf("  %23s", "");
    double worst = 0;
    for (int i = 0; i < results; i++) {
        const int is_first = !first[i];
        float *to = (float *)malloc(result_count(i) * sizeof(float));
        TE_REQUIRE(to, &at.ctx, TE_ERROR_MEMORY, "quickstart: no memory for %zu numbers", result_count(i));
        TE_TRY(read_result(to, i));
        if (is_first) first[i] = to;
        const double d = difference(first[i], to, result_count(i));
        if (!(d <= worst)) worst = d;
        if (!is_first) free(to);
    }
    /* a few roundings of the dtype apart */
    const double allowed = at.y.dtype == TE_bf16 ? 0x1p-7 : at.y.dtype == TE_f16 ? 0x1p-10 : 1e-5;
    *same &= worst <= allowed;
    if (is_first_step) printf("\n");
    else if (worst == 0) printf("  the same bits in %s\n", results == RESULTS ? "y, dx and gradients" : "y");
    else printf("  numbers %s: %.1e of their size apart\n", worst <= allowed ? "agree" : "DIFFER", worst);
    return TE_OK;
}

static te_status run(int *same) {
    const te_dtype dtype = DTYPE_OF(DTYPE);
    te_context *ctx = &at.ctx;
    te_tensor *const tensors[6] = {&at.x, &at.y, &at.dy, &at.dx, &at.middle, &at.dmiddle};
    void *params, *grads, *wide;
    double ms = 0;
    at.batch.batch = BATCH, at.batch.seq = SEQ;
    TE_TRY(te_allocate(ctx, &params, layer_param_bytes()));
    TE_TRY(te_allocate(ctx, &grads, layer_grad_bytes()));
    TE_TRY(te_allocate(ctx, &wide, (size_t)ROWS * HIDDEN * sizeof(float)));
    at.params = (char *)params, at.grads = (float *)grads, at.wide = (float *)wide;
    for (int i = 0; i < 6; i++) {
        void *p;
        TE_TRY(te_allocate(ctx, &p, (size_t)ROWS * HIDDEN * te_dtype_bytes(dtype)));
        *tensors[i] = te_matrix(p, dtype, ROWS, HIDDEN);
        TE_TRY(te_fill_normal(p, dtype, (int64_t)ROWS * HIDDEN, 0.0f, 1.0f, 1, (uint64_t)(100 + i), ctx));
    }
    TE_TRY(bind_all());
    TE_TRY(te_model_randomize(&layer_m.model, 0.02f, 1, 0, ctx));
    printf("%d x %d tokens, hidden %d, ffn %d, %d heads, " TE_STRING(DTYPE) "; forward and backward:\n", BATCH, SEQ, HIDDEN,
           FFN, HEADS);
    TE_TRY(show("1  every op a kernel of its own", step_unfused, RESULTS, &ms, same));
    TE_TRY(show("2  two modules, fused", step_modules, RESULTS, &ms, same));
    TE_TRY(show("3  the layer as one list", step_layer, RESULTS, &ms, same));
    TE_TRY(capture());
    TE_TRY(show("4  the same as one CUDA graph", step_graph, RESULTS, &ms, same));
    ms = 0;
    printf("inference:\n");
    TE_TRY(show("5  the layer as one list", step_infer, Y + 1, &ms, same));
    return TE_OK;
}

int main(void) {
    int same = 1;
    te_status status = te_context_create(&at.ctx, 0, 1);
    if (status == TE_OK) {
        at.ctx.gemm_tune = 1; /* each GEMM runs the candidate kernel that is fastest on this GPU */
        status = run(&same);
    }
    if (status != TE_OK) printf("%s: %s\n", te_status_string(status), te_last_error(&at.ctx));
    te_graph_destroy(&graph);
    te_context_destroy(&at.ctx);
    return status != TE_OK || !same;
}
