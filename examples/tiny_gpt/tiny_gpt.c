/* tiny_gpt.c -- the third step of the tutorial (docs/tutorial): a GPT of two blocks learns a rhyme, and recites it.
 *
 *     cc -O2 -I. examples/tiny_gpt/tiny_gpt.c -o tiny_gpt -lm && ./tiny_gpt
 *     nvcc -O3 -gencode arch=compute_90a,code=sm_90a -I. -x cu examples/tiny_gpt/tiny_gpt.c -o tiny_gpt -lcublasLt
 *
 * Exit code 1: a call failed, or the text that the model generates is not the rhyme.
 */
/* [lists] */
#include "te/te.h"
#include "te/infer.h" /* sample */

enum { VOCABULARY = 128, HIDDEN = 64, HEADS = 4, SEQ = 32, BATCH = 8, ROWS = BATCH * SEQ, STEPS = 151 };

#define GPT                                                                                               \
    (embedding, tokens, VOCABULARY, HIDDEN), (positions, at, SEQ, HIDDEN),                                \
    TE_GPT_BLOCK(b0, HIDDEN, 4 * HIDDEN, HEADS, 0.0f), TE_GPT_BLOCK(b1, HIDDEN, 4 * HIDDEN, HEADS, 0.0f), \
    (layernorm, norm, HIDDEN)

TE_SEQUENTIAL(gpt, f32, GPT, (linear, head, HIDDEN, VOCABULARY), (cross_entropy, loss, VOCABULARY))
TE_INFERENCE(next, f32, GPT, (last_token, last), (linear, head, HIDDEN, VOCABULARY), (sample, choice, VOCABULARY))
/* [lists] */

static const char rhyme[] = "one, two, three, four, five, once I caught a fish alive; six, seven, eight, nine, ten, "
                            "then I let it go again. ";

static gpt m;
static gpt_saved saved;
static next reader; /* the list for inference, with the same parameters */
static te_adamw opt;
static te_batch batch;
static te_tensor losses;
static void *params, *device_tokens, *device_labels, *label_count, *mean, *choice;

static te_status make(te_context *ctx) {
    void *grads, *loss, *moments;
    TE_TRY(te_allocate(ctx, &params, gpt_param_bytes()));
    TE_TRY(te_allocate(ctx, &grads, gpt_grad_bytes()));
    TE_TRY(gpt_bind(&m, params, (float *)grads, ctx));
    TE_TRY(next_bind(&reader, params, ctx));
    TE_TRY(te_model_randomize(&m.model, 0.05f, 1, 0, ctx));
    TE_TRY(te_allocate(ctx, &saved.memory, saved.bytes = gpt_saved_bytes(ROWS)));
    TE_TRY(te_context_reserve(ctx, gpt_workspace_bytes(&m, ROWS, ctx)));
    TE_TRY(te_context_reserve(ctx, next_workspace_bytes(&reader, SEQ, ctx)));
    TE_TRY(te_allocate(ctx, &device_tokens, ROWS * sizeof(int32_t)));
    TE_TRY(te_allocate(ctx, &device_labels, ROWS * sizeof(int32_t)));
    TE_TRY(te_allocate(ctx, &loss, ROWS * sizeof(float)));
    TE_TRY(te_allocate(ctx, &label_count, sizeof(float)));
    TE_TRY(te_allocate(ctx, &mean, sizeof(float)));
    TE_TRY(te_allocate(ctx, &choice, sizeof(int32_t)));
    losses = te_matrix(loss, TE_f32, ROWS, 1);
    /* [optimizer] */
    static te_model *models[] = {&m.model}; /* the optimizer keeps a pointer to the array */
    te_adamw_config config = te_adamw_defaults(3e-3f);
    /* the peak, steps of warm-up, all steps, the last learning rate / the peak */
    config.schedule = te_schedule_of(TE_SCHEDULE_cosine, 3e-3f, 10, STEPS, 0.1f);
    config.max_norm = 1.0f;
    const size_t bytes = te_adamw_bytes_of(models, 1, &config);
    TE_TRY(te_allocate(ctx, &moments, bytes));
    return te_adamw_init(&opt, moments, bytes, models, 1, &config, ctx);
    /* [optimizer] */
}

/* [step] */
static te_status step(float *loss, int number, te_context *ctx) {
    int32_t tokens[ROWS], labels[ROWS];
    const int length = (int)sizeof rhyme - 1;
    for (int row = 0; row < ROWS; row++) { /* each sequence begins at another place of the rhyme */
        const int at = 29 * number + 13 * (row / SEQ) + row % SEQ;
        tokens[row] = rhyme[at % length], labels[row] = rhyme[(at + 1) % length];
    }
    TE_TRY(te_copy(ctx, device_tokens, tokens, sizeof tokens));
    TE_TRY(te_copy(ctx, device_labels, labels, sizeof labels));
    batch.batch = BATCH, batch.seq = SEQ, batch.loss_scale = 1.0f;
    batch.tokens = (const int32_t *)device_tokens, batch.labels = (const int32_t *)device_labels;
    batch.loss_count = (const float *)label_count; /* the gradient is that of the mean over the labels */
    TE_TRY(te_count_labels((float *)label_count, batch.labels, ROWS, 0, 0, ctx));
    TE_TRY(gpt_forward(losses, &saved, te_none(), &m, &batch, ctx));
    TE_TRY(gpt_backward(te_none(), te_none(), &saved, &m, &batch, ctx));
    TE_TRY(te_adamw_step(&opt, ctx));
    TE_TRY(te_mean_loss((float *)mean, (const float *)losses.data, ROWS, batch.loss_count, 0, ctx));
    TE_TRY(te_copy(ctx, loss, mean, sizeof *loss));
    return te_synchronize(ctx); /* the host reads the loss, and reuses tokens and labels */
}
/* [step] */

/* [generate] */
/* Continue the text, of at least SEQ characters, by `count` characters. */
static te_status generate(char *text, int count, te_context *ctx) {
    te_sampling sampling;
    memset(&sampling, 0, sizeof sampling), memset(&batch, 0, sizeof batch);
    sampling.token = (int32_t *)choice; /* no temperature: the most likely token */
    batch.batch = 1, batch.seq = SEQ, batch.tokens = (const int32_t *)device_tokens, batch.sampling = &sampling;
    void *log_probability = losses.data;
    for (int length = (int)strlen(text); count-- > 0; length++) {
        int32_t tokens[SEQ], token;
        for (int i = 0; i < SEQ; i++) tokens[i] = text[length - SEQ + i];
        TE_TRY(te_copy(ctx, device_tokens, tokens, sizeof tokens));
        TE_TRY(next_infer(te_matrix(log_probability, TE_f32, 1, 1), te_none(), &reader, &batch, ctx));
        TE_TRY(te_copy(ctx, &token, choice, sizeof token));
        TE_TRY(te_synchronize(ctx));
        text[length] = (char)token, text[length + 1] = 0;
    }
    return TE_OK;
}
/* [generate] */

static te_status run(int *learnt, te_context *ctx) {
    char text[256];
    float loss;
    TE_TRY(make(ctx));
    for (int i = 0; i < STEPS; i++) {
        TE_TRY(step(&loss, i, ctx));
        if (i % 30 == 0) printf("step %3d  loss %.1f\n", i, (double)loss);
    }
    snprintf(text, sizeof text, "%.*s", (int)SEQ, rhyme);
    TE_TRY(generate(text, (int)sizeof rhyme - 1 - SEQ, ctx));
    printf("%s\n", text);
    *learnt = !strcmp(text, rhyme);
    return TE_OK;
}

int main(void) {
    te_context ctx;
    int learnt = 0;
    te_status status = te_context_create(&ctx, 0, 1);
    if (status == TE_OK) status = run(&learnt, &ctx);
    if (status != TE_OK) printf("%s: %s\n", te_status_string(status), te_last_error(&ctx));
    te_context_destroy(&ctx);
    return status != TE_OK || !learnt;
}
