/* gradients.c -- examples/llama with one more option: it compares the gradients of every parameter with those that
 * transformers computed (make_models.py).
 *
 *     ./gradients FOLDER --gradients gradients.safetensors 1e-4
 *
 * The file has `ids` and, for each tensor of the model, an F32 tensor of its name and shape: the gradient of the mean
  * cross-entropy of all tokens but the first, each predicted from the tokens before it.
 */
#define main llama_main
#include "examples/llama/llama.c"
#undef main

TE_SEQUENTIAL(loss, f32, (cross_entropy, loss, APPLY(VOCABULARY, LLAMA)))

/* The output of a list with its gradient, and the list's saved tensors. */
typedef struct passage { void *y, *dy; te_saved saved; int64_t rows; } passage;

static te_tensor matrix_of(const part *p, void *data, int64_t rows) { return te_matrix(data, TE_f32, rows, p->plan->out); }

static te_status bind_with_gradients(part *p, passage *to, int64_t rows, te_context *ctx) {
    const size_t bytes = (size_t)(rows * p->plan->out) * sizeof(float);
    void *params = (void *)(uintptr_t)p->model.params, *grads;
    TE_TRY(te_allocate(ctx, &grads, te_plan_grad_bytes(p->plan)));
    TE_TRY(te_fill(ctx, grads, 0xff, te_plan_grad_bytes(p->plan))); /* NaN until backward has written it */
    TE_TRY(te_model_bind(&p->model, p->plan, p->param, p->model.param_count, params, (float *)grads, ctx));
    TE_TRY(te_allocate(ctx, &to->y, bytes));
    TE_TRY(te_allocate(ctx, &to->dy, bytes));
    to->saved.bytes = te_plan_saved_bytes(p->plan, rows);
    return te_allocate(ctx, &to->saved.memory, to->saved.bytes);
}
/* Runs forward, loss and backward of all lists, which fills the gradients of their parameters. */
static te_status run_passes(passage *by, const int32_t *ids, int n, te_context *ctx) {
    const int last = from.layers + 1;
    size_t workspace;
    te_batch batch;
    loss m;
    loss_saved loss_keeps;
    void *labels, *tokens, *each;
    memset(&batch, 0, sizeof batch), memset(&loss_keeps, 0, sizeof loss_keeps);
    TE_TRY(loss_bind(&m, 0, 0, ctx));
    workspace = loss_workspace_bytes(&m, n, ctx);
    for (int i = 0; i <= last; i++) {
        TE_TRY(bind_with_gradients(&parts[i], &by[i], n, ctx));
        workspace = te_max(workspace, te_plan_workspace_bytes(parts[i].plan, &parts[i].model, n, ctx));
    }
    TE_TRY(te_context_reserve(ctx, workspace));
    TE_TRY(te_allocate(ctx, &tokens, (size_t)n * sizeof *ids));
    TE_TRY(te_allocate(ctx, &labels, (size_t)n * sizeof *ids));
    TE_TRY(te_allocate(ctx, &each, (size_t)n * sizeof(float)));
    TE_TRY(te_allocate(ctx, &loss_keeps.memory, loss_keeps.bytes = loss_saved_bytes(n)));
    const int32_t ignored = -1;
    TE_TRY(te_copy(ctx, tokens, ids, (size_t)n * sizeof *ids));
    TE_TRY(te_copy(ctx, labels, ids + 1, (size_t)(n - 1) * sizeof *ids));
    TE_TRY(te_copy(ctx, (int32_t *)labels + n - 1, &ignored, sizeof ignored));
    batch.batch = 1, batch.seq = n, batch.tokens = (const int32_t *)tokens, batch.labels = (const int32_t *)labels;
    batch.ignore_index = ignored, batch.loss_scale = 1.0f / (float)(n - 1);
    for (int i = 0; i <= last; i++) {
        const te_tensor x = i ? matrix_of(&parts[i - 1], by[i - 1].y, n) : te_none();
        TE_TRY(te_plan_forward(matrix_of(&parts[i], by[i].y, n), &by[i].saved, x, parts[i].plan, &parts[i].model, &batch, ctx));
    }
    const te_tensor logits = matrix_of(&parts[last], by[last].y, n), dlogits = matrix_of(&parts[last], by[last].dy, n);
    TE_TRY(loss_forward(te_matrix(each, TE_f32, n, 1), &loss_keeps, logits, &m, &batch, ctx));
    TE_TRY(loss_backward(dlogits, te_none(), &loss_keeps, &m, &batch, ctx));
    for (int i = last; i >= 0; i--) {
        const te_tensor dx = i ? matrix_of(&parts[i - 1], by[i - 1].dy, n) : te_none();
        TE_TRY(te_plan_backward(dx, matrix_of(&parts[i], by[i].dy, n), &by[i].saved, parts[i].plan, &parts[i].model, &batch, ctx));
    }
    TE_TRY(te_synchronize(ctx));
    te_release(ctx, tokens), te_release(ctx, labels), te_release(ctx, each), te_release(ctx, loss_keeps.memory);
    return TE_OK;
}

/* Compares the gradient of a view of p's parameters, which has the view's place among the gradients: ||dw - expected|| / ||expected||. */
static te_status compare(double *worst, const part *p, const te_safetensor *view, const te_safetensors *f, te_context *ctx) {
    const size_t n = (size_t)view->bytes / sizeof(float);
    float *is = (float *)malloc((size_t)n * sizeof(float)), *expected = (float *)malloc((size_t)n * sizeof(float));
    TE_REQUIRE(is && expected, ctx, TE_ERROR_MEMORY, "no memory for a gradient");
    te_safetensor t = *view;
    t.data = expected;
    TE_TRY(te_safetensors_load(f, &t, 1, 0, ctx));
    TE_TRY(te_copy(ctx, is, p->model.grads + ((const float *)view->data - (const float *)p->model.params), n * sizeof(float)));
    TE_TRY(te_synchronize(ctx));
    double off = 0, size = 0;
    for (size_t i = 0; i < n; i++)
        off += ((double)is[i] - expected[i]) * ((double)is[i] - expected[i]), size += (double)expected[i] * expected[i];
    free(is), free(expected);
    const double error = sqrt(off / size);
    if (!(error <= *worst) && *worst == *worst) *worst = error, printf("%s: relative error %.2e\n", view->name, error);
    return TE_OK;
}
static te_status check_gradients(const char *path, double tolerance, te_context *ctx) {
    te_safetensors f;
    double worst = 0;
    int count = 1;
    TE_TRY(load_model(ctx));
    const int last = from.layers + 1;
    TE_REQUIRE(parts[last].plan->out == loss_plan()->in && !from.tied, ctx, TE_ERROR_VALUE, "a tied head, or %d tokens",
               parts[last].plan->out);
    TE_TRY(te_safetensors_open(&f, path, ctx));
    const te_safetensor *t = te_safetensors_find(&f, "ids");
    TE_REQUIRE(t && t->rank == 1 && t->shape[0] > 1 && t->shape[0] < 1 << 20, ctx, TE_ERROR_FORMAT, "%.80s: has no ids", path);
    const int64_t n = t->shape[0];
    int32_t *ids = (int32_t *)malloc((size_t)n * sizeof *ids);
    passage *by = (passage *)calloc((size_t)last + 1, sizeof *by);
    TE_REQUIRE(ids && by, ctx, TE_ERROR_MEMORY, "no memory for %d lists", last + 1);
    const te_safetensor tokens = te_safetensor_of("ids", TE_SAFETENSORS_I32, 1, &n, ids);
    TE_TRY(te_safetensors_load(&f, &tokens, 1, 0, ctx));
    TE_TRY(run_passes(by, ids, (int)n, ctx));

    for (int i = 0; i <= last; i++) /* the views cover every parameter, which load_model checks */
        for (int k = 0; k < parts[i].views.count; k++, count++)
            TE_TRY(compare(&worst, &parts[i], &parts[i].views.tensor[k], &f, ctx));
    printf("%s, %s: gradients of %d tensors, relative error %.2e at most\n", from.is->type,
           te_dtype_name(parts->plan->dtype), count - 1, worst);
    TE_REQUIRE(f.count == count, ctx, TE_ERROR_FORMAT, "the file has %d tensors, ids among them; %d were compared", f.count, count - 1);
    TE_REQUIRE(worst <= tolerance, ctx, TE_ERROR_VALUE, "that is more than %g", tolerance);
    te_safetensors_close(&f);
    for (int i = 0; i <= last; i++) {
        te_release(ctx, by[i].y), te_release(ctx, by[i].dy), te_release(ctx, by[i].saved.memory);
        te_release(ctx, (void *)(uintptr_t)parts[i].model.grads);
    }
    return free(ids), free(by), TE_OK;
}

int main(int argc, char **argv) {
    te_context ctx;
    if (argc != 5 || strcmp(argv[2], "--gradients")) return llama_main(argc, argv);
    from.folder = argv[1];
    te_status status = te_context_create(&ctx, 0, 1);
    if (status == TE_OK) status = check_gradients(argv[3], atof(argv[4]), &ctx);
    if (status != TE_OK) printf("%s: %s\n", te_status_string(status), te_last_error(&ctx));
    clean_up(&ctx);
    te_context_destroy(&ctx);
    return status != TE_OK;
}
