/* recipe_weights.h -- the weights of products under a recipe: their place in FP8, and the pass that casts them all.
 *
 * A pass is one launch for each list and kind of scales, however many models are bound to it: a GPT's blocks take the
 * same time as one weight of their size. It goes by a table in target memory, which te_recipes_init makes.
 */
#ifndef TE_RECIPE_WEIGHTS_H
#define TE_RECIPE_WEIGHTS_H

#include "../fp8/quantize.h"       /* te_quantize, te_quantize_table */
#include "../fp8/quantize_rows.h"  /* te_quantize_rows */
#include "../fp8/quantize_tiles.h" /* te_quantize_tiles */
#include "params.h"                /* te__part */

/* ---- the products of several models ------------------------------------------------------------------------------ */

typedef struct te__recipe_walk {
    te_model *const *models;
    int count, model, op, next; /* next: the parameter of the next op */
    te_param *param;            /* the weight of the last product */
    te_recipe recipe;
} te__recipe_walk;

TE_API te__recipe_walk te__recipes_of(te_model *const *models, int count) {
    te__recipe_walk w;
    memset(&w, 0, sizeof w);
    w.models = models, w.count = models ? count : 0;
    return w;
}
/* Go to the next product; 0 if there is none. */
TE_API int te__recipes_next(te__recipe_walk *w) {
    for (; w->model < w->count; w->model++, w->op = w->next = 0) {
        const te_model *m = w->models[w->model];
        while (m && m->plan && w->op < m->plan->op_count) {
            const te_op *op = &m->plan->op[w->op++];
            w->param = &m->param[w->next], w->recipe = op->recipe, w->next += op->params;
            if (op->recipe != TE_RECIPE_none) return 1;
        }
    }
    return 0;
}

/* Bytes of a weight in FP8: as it lies and transposed, each with its scales where those are not of a tensor. */
typedef struct te__recipe_weight { size_t data, transposed, scales, transposed_scales, all; } te__recipe_weight;
TE_API te__recipe_weight te__recipe_weight_of(const te_param *p, te_recipe recipe) {
    const int64_t rows = p->rows, cols = p->cols;
    const te_scaling by = TE_IS_BLOCKWISE(recipe) ? TE_SCALING_BLOCKS : TE_SCALING_ROW;
    const int fine = !TE_IS_TENSORWISE(recipe), turns = !TE_IS_ROWWISE(recipe);
    te__recipe_weight s;
    s.data = (size_t)te_round_up(rows * cols, TE_ALIGN), s.transposed = turns ? s.data : 0;
    s.scales = fine ? (size_t)te_round_up(te_scaling_count(by, rows, cols) * 4, TE_ALIGN) : 0;
    s.transposed_scales = fine && turns ? (size_t)te_round_up(te_scaling_count(by, cols, rows) * 4, TE_ALIGN) : 0;
    s.all = s.data + s.transposed + s.scales + s.transposed_scales;
    return s;
}

/* A number that changes when one of the weights lies elsewhere. */
TE_API uint64_t te__weights_where(te_model *const *models, int count) {
    uint64_t sum = 1;
    te__recipe_walk w = te__recipes_of(models, count);
    while (te__recipes_next(&w)) sum = sum * 31 + (uint64_t)(uintptr_t)w.param->data;
    return sum;
}

/* ---- what a cast takes ------------------------------------------------------------------------------------------- */

/* With its own largest magnitude, or what its scale makes of it. */
TE_API te_quantize te__weight_by_tensor(const te_param *p) {
    te_quantize q = te_quantize_of(p->rows, p->cols);
    const te_scales *s = p->fp8.scales;
    q.x = p->data, q.y = p->fp8.data, q.yt = p->fp8.transposed;
    q.scale = s->scale + p->fp8.weight, q.amax = s->amax + p->fp8.weight;
    return q;
}
TE_API te_quantize_tiles te__weight_by_block(const te_param *p) {
    te_quantize_tiles q = te_quantize_tiles_of(p->rows, p->cols);
    q.x = p->data, q.y = p->fp8.data, q.yt = p->fp8.transposed, q.blocks = 1, q.rule = p->fp8.own;
    q.y_inverse = p->fp8.inverse, q.yt_inverse = p->fp8.transposed_inverse;
    return q;
}
TE_API te_quantize_rows te__weight_by_row(const te_param *p) {
    te_quantize_rows q = te_quantize_rows_of(p->rows, p->cols);
    q.x = p->data, q.y = p->fp8.data, q.inverse = p->fp8.inverse, q.rule = p->fp8.own;
    return q;
}

/* One by itself, of the last two kinds, whose scales the cast finds. */
TE_API te_status te__weight_cast_fine(const te_fp8_ops *of, const te_param *p, te_recipe recipe, te_context *ctx) {
    const te_quantize_tiles tiles = te__weight_by_block(p);
    const te_quantize_rows rows = te__weight_by_row(p);
    return TE_IS_BLOCKWISE(recipe) ? of->quantize_blockwise(&tiles, ctx) : of->quantize_rowwise(&rows, ctx);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* Three tables one after the other, of weights with a scale a tensor, for blocks of 128 x 128, and for rows. */
enum { TE__WEIGHTS_BY_TENSOR, TE__WEIGHTS_BY_BLOCK, TE__WEIGHTS_BY_ROW, TE__WEIGHTS_KINDS };
TE_API int te__weights_kind(te_recipe recipe) {
    return TE_IS_BLOCKWISE(recipe) ? TE__WEIGHTS_BY_BLOCK : TE_IS_ROWWISE(recipe) ? TE__WEIGHTS_BY_ROW
                                                                              : TE__WEIGHTS_BY_TENSOR;
}
/* Bytes of a tensor in the kind's table. */
TE_API size_t te__weights_entry(int kind) {
    return kind == TE__WEIGHTS_BY_TENSOR  ? sizeof(te_quantize_args)
           : kind == TE__WEIGHTS_BY_BLOCK ? sizeof(te_tiles_args) : sizeof(te_quantize_rows);
}
/* Offsets of a kind's tensors and of its first chunks. */
typedef struct te__weights_layout {
    size_t tensor[TE__WEIGHTS_KINDS], first[TE__WEIGHTS_KINDS], bytes;
} te__weights_layout;
TE_API te__weights_layout te__weights_layout_of(te_model *const *models, int count) {
    size_t of[TE__WEIGHTS_KINDS] = {0, 0, 0};
    te__weights_layout l;
    te__recipe_walk w = te__recipes_of(models, count);
    while (te__recipes_next(&w)) of[te__weights_kind(w.recipe)]++;
    memset(&l, 0, sizeof l);
    for (int k = 0; k < TE__WEIGHTS_KINDS; k++) {
        l.tensor[k] = te__part(&l.bytes, of[k] * te__weights_entry(k));
        l.first[k] = te__part(&l.bytes, (of[k] + 1) * sizeof(int32_t));
    }
    return l;
}
/* Chunks of a weight: tiles, or rows. */
TE_API int64_t te__weight_chunks(const te_param *p, int kind) {
    if (kind == TE__WEIGHTS_BY_ROW) return p->rows;
    return te_ceil_div(p->rows, TE_FP8_TILE) * te_ceil_div(p->cols, TE_FP8_TILE);
}
/* Fill in the table at `at`, host memory, for weights that know where they go. */
TE_API te_status te__weights_fill(char *at, te_model *const *models, int count, te_context *ctx) {
    const te__weights_layout l = te__weights_layout_of(models, count);
    int n[TE__WEIGHTS_KINDS] = {0, 0, 0};
    te__recipe_walk w = te__recipes_of(models, count);
    while (te__recipes_next(&w)) {
        const int kind = te__weights_kind(w.recipe), i = n[kind]++;
        int32_t *first = (int32_t *)(void *)(at + l.first[kind]);
        void *tensor = at + l.tensor[kind];
        const int64_t chunks = first[i] + te__weight_chunks(w.param, kind);
        TE_REQUIRE(chunks <= INT32_MAX, ctx, TE_ERROR_OVERFLOW, "recipes: more than %d tiles with %s.%s", INT32_MAX,
                   w.param->op, w.param->field);
        first[i + 1] = (int32_t)chunks;
        if (kind == TE__WEIGHTS_BY_TENSOR) {
            const te_quantize q = te__weight_by_tensor(w.param);
            TE_TRY(te__quantize_args_of((te_quantize_args *)tensor + i, &q, "recipes", ctx));
        } else if (kind == TE__WEIGHTS_BY_BLOCK) {
            const te_quantize_tiles q = te__weight_by_block(w.param);
            TE_TRY(te__tiles_args_of((te_tiles_args *)tensor + i, &q, "recipes", ctx));
        } else {
            const te_quantize_rows q = te__weight_by_row(w.param);
            TE_TRY(te__rows_check(&q, "recipes", ctx));
            ((te_quantize_rows *)tensor)[i] = q;
        }
    }
    return TE_OK;
}
/* Make the table at `table`, target memory. Waits for the stream. */
TE_API te_status te__weights_table(void *table, te_model *const *models, int count, te_context *ctx) {
    const size_t bytes = te__weights_layout_of(models, count).bytes;
    char *host = (char *)calloc(1, bytes + 1);
    TE_REQUIRE(host, ctx, TE_ERROR_MEMORY, "recipes: cannot allocate %zu bytes", bytes);
    te_status status = te__weights_fill(host, models, count, ctx);
    if (status == TE_OK) status = te_copy(ctx, table, host, bytes);
    if (status == TE_OK) status = te_synchronize(ctx);
    free(host);
    return status;
}

/* ---- a pass ------------------------------------------------------------------------------------------------------ */

TE_API te_status te__weights_launch(const te_fp8_ops *of, const te_table *t, int kind, int cast, te_context *ctx) {
    if (!t->count) return TE_OK;
    te_quantize_table q;
    q.of = *t, q.cast = cast;
    return kind == TE__WEIGHTS_BY_TENSOR  ? of->cast_weights(&q, ctx)
           : kind == TE__WEIGHTS_BY_BLOCK ? of->cast_weights_by_block(t, ctx) : of->cast_weights_by_row(t, ctx);
}
/* Go on behind the tensors of a launch. */
TE_API void te__weights_skip(te_table *t, int kind) {
    t->tensor = (const char *)t->tensor + te__weights_entry(kind) * (size_t)t->count, t->first += t->count;
    t->count = t->chunks = 0;
}
/* One pass over the weights of a kind: their largest magnitudes (cast 0), or the cast with the scales that they have. A
 * launch has those that follow each other and whose lists have the same kernels. rest: 1: but for those that the
 * optimizer's update has read (te_fp8_product.updated). */
TE_API te_status te__weights_pass(const void *table, te_model *const *models, int count, int kind, int cast, int rest,
                                  te_context *ctx) {
    const te__weights_layout l = te__weights_layout_of(models, count);
    const te_fp8_ops *of = 0;
    te_table t;
    te__recipe_walk w = te__recipes_of(models, count);
    memset(&t, 0, sizeof t);
    t.tensor = (const char *)table + l.tensor[kind], t.first = (const int32_t *)((const char *)table + l.first[kind]);
    while (te__recipes_next(&w)) {
        if (te__weights_kind(w.recipe) != kind) continue;
        const int done = rest && w.param->fp8.updated;
        if (models[w.model]->plan->fp8 != of || done) {
            TE_TRY(te__weights_launch(of, &t, kind, cast, ctx));
            te__weights_skip(&t, kind);
            of = models[w.model]->plan->fp8;
        }
        t.count++, t.chunks += (int)te__weight_chunks(w.param, kind);
        if (done) te__weights_skip(&t, kind);
    }
    return te__weights_launch(of, &t, kind, cast, ctx);
}

#endif
