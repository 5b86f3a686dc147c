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
static te_block_weights weights[PARTS]; /* of the parts that are loaded by te_gguf_bind or te_quantized_bind */

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
#ifdef MODEL_WEIGHTS
/* Print the errors of the weights that were cast: for each kind of weight their mean over the layers. */
static void print_casts(FILE *to) {
    typedef struct cast {
        const te_param *param;
        te_block_format format;
        int count;
        double mean, most;
    } cast;
    cast casts[2 * MAX_PARAMS];
    int n = 0;
    for (int i = 0; i < PARTS; i++)
        for (int k = 0; weights[i].weight && k < parts[i].model.param_count; k++)
            for (int j = 0; j < weights[i].weight[k].parts; j++) {
                const te_weight_part *tensor = &weights[i].weight[k].part[j];
                const te_param *p = &parts[i].param[k];
                const double error = weights[i].error[tensor - weights[i].part];
                int c = 0;
                if (!(error > 0)) continue;
                while (c < n && (strcmp(casts[c].param->op, p->op) || casts[c].format != tensor->format)) c++;
                if (c == 2 * MAX_PARAMS) continue;
                if (c == n) memset(&casts[n++], 0, sizeof *casts);
                casts[c].param = p, casts[c].format = tensor->format, casts[c].count++;
                casts[c].mean += error, casts[c].most = error > casts[c].most ? error : casts[c].most;
            }
    for (int c = 0; c < n; c++)
        fprintf(to, "%s.%s: %d tensors cast to %s, relative error %.4f, at most %.4f\n", casts[c].param->op,
                casts[c].param->field, casts[c].count, te_block_name(casts[c].format),
                casts[c].mean / casts[c].count, casts[c].most);
}
#endif
static void unload_model(te_context *ctx) {
    for (int i = 0; i < PARTS; i++) te_release(ctx, (void *)(uintptr_t)parts[i].model.params);
    close_model(ctx);
}

#endif
