/* load_model.h -- the lists of families.h with their weights, from a folder of Hugging Face (load_safetensors.h) or
 * from a GGUF file (load_gguf.h); model.h says which of the two the program is compiled for.
 *
 * Do this:
 *     TE_TRY(load_model(path, &ctx));                  // fills the array `parts`, in the order of the computation
 *     for (int i = 0; i < PARTS; i++) .. te_plan_infer(y, x, parts[i].plan, &parts[i].model, &batch, &ctx) ..
 *     unload_model(&ctx);
 */
#ifndef LOAD_MODEL_H
#define LOAD_MODEL_H

#include "families.h" /* lists and names of tensors */
#include "part.h"     /* part, bind_part */

enum {
    LAST = MODEL_LAYERS + 1, /* parts[0] is the embedding, then there are the blocks and the lists behind them */
    HEAD = LAST + 1,
    CHOICE = HEAD + 1,
    PARTS = CHOICE + 1,
    DTYPE = TE_JOIN1(TE_, MODEL_DTYPE)
};

static part parts[PARTS];

/* The plans of the kinds of blocks, in the order of configure.py. */
typedef const te_plan *plan_of(void);
static plan_of *const block_plans[] = {
#if MODEL_HAS_full
    full_plan,
#else
    0,
#endif
#if MODEL_HAS_sliding
    sliding_plan,
#else
    0,
#endif
#if MODEL_HAS_unrotated
    unrotated_plan,
#else
    0,
#endif
#if MODEL_HAS_dense
    dense_plan
#else
    0
#endif
};
static const te_plan *block_plan(int layer) {
    static const char kind[MODEL_LAYERS] = {MODEL_KINDS};
    return block_plans[(int)kind[layer]]();
}
#if MODEL_GGUF
#include "load_gguf.h" /* open_model, load_embedding, load_block, load_last, load_head, close_model */
#else
#include "load_safetensors.h" /* open_model, load_embedding, load_block, load_last, load_head, close_model */
#endif

/* path: a folder or, if the program is compiled for a GGUF file, that file. */
static te_status load_model(const char *path, te_context *ctx) {
    TE_TRY(open_model(path, ctx));
    parts[0].plan = embed_plan(), parts[LAST].plan = last_plan(), parts[HEAD].plan = head_plan();
    parts[CHOICE].plan = choose_plan();
    for (int i = 0; i < MODEL_LAYERS; i++) parts[1 + i].plan = block_plan(i);
    TE_TRY(load_embedding(ctx));
    for (int i = 0; i < MODEL_LAYERS; i++) TE_TRY(load_block(&parts[1 + i], i, ctx));
    TE_TRY(load_last(&parts[LAST], ctx));
    TE_TRY(load_head(&parts[HEAD], ctx));
    return bind_part(&parts[CHOICE], 0, ctx); /* it has no parameters */
}
static void unload_model(te_context *ctx) {
    for (int i = 0; i < PARTS; i++) te_release(ctx, (void *)(uintptr_t)parts[i].model.params);
    close_model(ctx);
}

#endif
