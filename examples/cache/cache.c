/* cache.c -- generates tokens with a key-value cache, and compares them with those of a pass without a cache.
 *
 * The model is two blocks with random weights. A list has no loops, so the model consists of three lists: the embedding,
 * a block, of which there is an instance for each layer, and the head, which chooses the next token.
 *
 *     cc -O2 -I. examples/cache/cache.c -o cache -lm && ./cache
 */
/* [lists] */
#include "te/infer.h"

enum { VOCABULARY = 256, HIDDEN = 64, HEADS = 4, LAYERS = 2, CAPACITY = 64 };

TE_INFERENCE(start, f32, (embedding, tokens, VOCABULARY, HIDDEN))
TE_INFERENCE(block, f32,
    (fork, x1), (rmsnorm, n1, HIDDEN), (linear, qkv, HIDDEN, 3 * HIDDEN), (rope, r, HEADS, HEADS, HIDDEN / HEADS),
    (attention, a, HEADS, HEADS, HIDDEN / HEADS, (cache, 1)), (linear, proj, HIDDEN, HIDDEN), (add, x1),
    (fork, x2), (rmsnorm, n2, HIDDEN), (linear, fc1, HIDDEN, 4 * HIDDEN), (gelu, act),
    (linear, fc2, 4 * HIDDEN, HIDDEN),
    (add, x2))
TE_INFERENCE(end, f32, (rmsnorm, n, HIDDEN), (last_token, last), (linear, head, HIDDEN, VOCABULARY),
             (sample, next, VOCABULARY))
/* [lists] */

static start first;
static block layer[LAYERS];
static end last;
static te_cache cache;
static void *tokens, *x, *log_prob; /* [CAPACITY] int32, [CAPACITY, HIDDEN], [1] */

static te_status make(te_context *ctx) {
    te_model *models[LAYERS + 2] = {&first.model, &layer[0].model, &layer[1].model, &last.model};
    void *memory;
    TE_TRY(te_allocate(ctx, &memory, start_param_bytes()));
    TE_TRY(start_bind(&first, memory, ctx));
    for (int i = 0; i < LAYERS; i++) {
        TE_TRY(te_allocate(ctx, &memory, block_param_bytes()));
        TE_TRY(block_bind(&layer[i], memory, ctx));
    }
    TE_TRY(te_allocate(ctx, &memory, end_param_bytes()));
    TE_TRY(end_bind(&last, memory, ctx));
    for (int i = 0; i < LAYERS + 2; i++) TE_TRY(te_model_randomize(models[i], 0.3f, 1, (uint32_t)i, ctx));
    TE_TRY(te_allocate(ctx, &tokens, CAPACITY * sizeof(int32_t)));
    TE_TRY(te_allocate(ctx, &x, CAPACITY * HIDDEN * sizeof(float)));
    TE_TRY(te_allocate(ctx, &log_prob, sizeof(float)));
    const size_t of_block = block_workspace_bytes(&layer[0], CAPACITY, ctx), of_end = end_workspace_bytes(&last, CAPACITY, ctx);
    return te_context_reserve(ctx, of_block > of_end ? of_block : of_end);
}
/* [make] */
static te_status make_cache(te_context *ctx) {
    te_model *models[LAYERS] = {&layer[0].model, &layer[1].model}; /* those with an attention */
    te_cache_config config = te_cache_defaults();
    config.sequences = 1, config.capacity = CAPACITY, config.page_rows = 16;
    const size_t bytes = te_cache_bytes(models, LAYERS, &config);
    void *memory;
    TE_TRY(te_allocate(ctx, &memory, bytes));
    return te_cache_init(&cache, memory, bytes, models, LAYERS, &config, ctx);
}
/* [make] */
/* [step] */
/* Choose the token behind the `count` tokens that are new to the cache; if `in` is null, behind `count` tokens in
 * all. */
static te_status next(int32_t *token, const int32_t *new_tokens, int count, te_cache *in, te_context *ctx) {
    te_sampling sampling;
    te_batch batch;
    memset(&sampling, 0, sizeof sampling), memset(&batch, 0, sizeof batch);
    sampling.token = (int32_t *)tokens; /* without a temperature the most likely token is chosen */
    batch.batch = 1, batch.seq = count, batch.tokens = (const int32_t *)tokens;
    batch.sampling = &sampling, batch.cache = in;
    const te_tensor rows = te_matrix(x, TE_f32, count, HIDDEN);
    TE_TRY(te_copy(ctx, tokens, new_tokens, (size_t)count * sizeof *new_tokens));
    if (in) TE_TRY(te_cache_begin(in, &batch, ctx)); /* once for each batch, before the models */
    TE_TRY(start_infer(rows, te_none(), &first, &batch, ctx));
    for (int i = 0; i < LAYERS; i++) TE_TRY(block_infer(rows, rows, &layer[i], &batch, ctx));
    TE_TRY(end_infer(te_matrix(log_prob, TE_f32, 1, 1), rows, &last, &batch, ctx));
    TE_TRY(te_copy(ctx, token, tokens, sizeof *token));
    return te_synchronize(ctx);
}
/* [step] */
/* [run] */
static te_status run(te_context *ctx) {
    int32_t text[CAPACITY] = {1, 2, 3, 4, 5}, again;
    int length = 5, cached = 0, wrong = 0;
    TE_TRY(make_cache(ctx));
    for (; length < 25; length++) { /* the prompt, then one token at a time */
        TE_TRY(next(&text[length], text + cached, length - cached, &cache, ctx));
        cached = length;
    }
    TE_TRY(te_cache_check(&cache, ctx)); /* whether all tokens fitted */
    for (int i = 5; i < length; i++) {
        TE_TRY(next(&again, text, i, 0, ctx)); /* without a cache: all tokens again */
        printf("%d ", (int)text[i]), wrong += again != text[i];
    }
    printf("\n%d of %d tokens differ without the cache\n", wrong, length - 5);
    return wrong ? te_fail(ctx, TE_ERROR_VALUE, "the tokens differ") : TE_OK;
}
/* [run] */
int main(void) {
    te_context ctx;
    te_status status = te_context_create(&ctx, 0, 1);
    if (status == TE_OK) status = make(&ctx);
    if (status == TE_OK) status = run(&ctx);
    if (status != TE_OK) printf("%s: %s\n", te_status_string(status), te_last_error(&ctx));
    te_context_destroy(&ctx);
    return status != TE_OK;
}
