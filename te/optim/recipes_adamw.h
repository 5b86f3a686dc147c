/* recipes_adamw.h -- te_adamw_step and te_recipes_step as one call, with the same bits: the optimizer's kernels make of
 * the weights that they store what a pass of the recipes would read them again for.
 *
 * Do this:
 *     static te_recipes recipes;                                // te_recipes_init
 *     static te_adamw opt;                                      // te_adamw_init
 *     static te_recipes_adamw update;                           // the recipes point to it
 *     const size_t bytes = te_recipes_adamw_bytes(&recipes, &opt);
 *     TE_TRY(te_allocate(&ctx, &memory, bytes));
 *     TE_TRY(te_recipes_adamw_init(&update, memory, bytes, &recipes, &opt, &ctx));
 *     ... forward, backward ...
 *     TE_TRY(te_recipes_adamw_step(&update, &ctx));             // in the place of the two
 *
 * Weights of fp8_block leave the update in FP8, with both scales, and no pass over them is left. Those of fp8_delayed
 * and fp8_current, whose scale is of all of the new weight, leave it with their largest magnitude, and the cast alone
 * is left. adamw_fp8.h has the bytes of both.
 *
 * The recipes' passes stay as they are for what the update does not store, or not in one place: weights that are tied
 * to another parameter, frozen, or of a model that the optimizer does not have; fp8_row; fp8_block in f32 lists. The
 * call is the two calls one after the other for SGD and Muon, moments in 8 bits and shared-out states (ZeRO-1).
 */
#ifndef TE_RECIPES_ADAMW_H
#define TE_RECIPES_ADAMW_H

#include "adamw.h"     /* te_adamw, te__adamw_begin_step */
#include "adamw_fp8.h" /* te_adamw_raise, te_adamw_tiles */
#include "recipes.h"   /* te_recipes, te__recipes_go_on */

/* Must stay where it is: the recipes point to it. */
typedef struct te_recipes_adamw {
    te_recipes *recipes;
    te_adamw *opt;
    int fused;                /* 0: the two calls one after the other */
    int count, chunks;        /* the optimizer's tensors; chunks of those that are not updated in tiles */
    const int32_t *first;     /* [count + 1], target memory as below; te__adamw_fp8_args has what they are */
    const int32_t *scale_of;  /* [count] */
    const int32_t *tensor_of; /* [blocks.count] */
    te_table blocks;          /* the recipes' weights of fp8_block; no chunks: none is updated in tiles */
    uint64_t where;           /* te__params_where: what the tables were made for */
} te_recipes_adamw;

/* ---- what lies where --------------------------------------------------------------------------------------------- */

typedef struct te__recipes_adamw_layout {
    size_t first, scale_of, tensor_of, bytes;
    int blocks; /* weights of fp8_block */
} te__recipes_adamw_layout;

TE_API te__recipes_adamw_layout te__recipes_adamw_layout_of(const te_recipes *s, const te_adamw *opt) {
    te__recipes_adamw_layout l;
    memset(&l, 0, sizeof l);
    if (!s || !opt) return l;
    te__recipe_walk w = te__recipes_of(s->models, s->model_count);
    while (te__recipes_next(&w)) l.blocks += te__weights_kind(w.recipe) == TE__WEIGHTS_BY_BLOCK;
    l.first = te__part(&l.bytes, ((size_t)opt->count + 1) * sizeof(int32_t));
    l.scale_of = te__part(&l.bytes, (size_t)opt->count * sizeof(int32_t));
    l.tensor_of = te__part(&l.bytes, (size_t)l.blocks * sizeof(int32_t));
    return l;
}
/* Bytes of target memory that te_recipes_adamw_init wants: eight for each parameter, four for each weight of fp8_block.
 * Both are initialised; null: 0. */
TE_API size_t te_recipes_adamw_bytes(const te_recipes *recipes, const te_adamw *opt) {
    return te__recipes_adamw_layout_of(recipes, opt).bytes;
}

/* ---- which of the recipes' weights are which of the optimizer's tensors ------------------------------------------ */

/* Whether its kernels store whole weights, in one pass, from moments that they have by the element. */
TE_API int te__adamw_is_plain(const te_adamw *opt) {
    return opt->rule == TE_RULE_adamw && !te__in_blocks(opt->moments) && opt->slices.ranks == 1;
}
/* A weight of the recipes. block: its place among those of fp8_block. */
typedef struct te__recipe_place { te_param *param; int kind, block; } te__recipe_place;

/* Fill in `place`, [s->count], and have the optimizer update none of them. Returns the tiles of fp8_block. */
TE_API int te__recipe_places(te__recipe_place *place, const te_recipes *s) {
    int blocks = 0, tiles = 0;
    te__recipe_walk w = te__recipes_of(s->models, s->model_count);
    for (; te__recipes_next(&w); place++) {
        place->param = w.param, place->kind = te__weights_kind(w.recipe), place->block = blocks;
        w.param->fp8.updated = 0;
        if (place->kind != TE__WEIGHTS_BY_BLOCK) continue;
        blocks++, tiles += (int)te__weight_chunks(w.param, TE__WEIGHTS_BY_BLOCK);
    }
    return tiles;
}
/* The optimizer's tensor as one of them, if the update is to measure or cast it; else null. */
TE_API const te__recipe_place *te__recipe_place_of(const te__recipe_place *place, const te_recipes *s,
                                                   const te_param *p) {
    const int i = p->fp8.weight; /* stale where the parameter's model is no longer under these recipes */
    if (p->fp8.scales != &s->scales || i < 0 || i >= s->count || place[i].param != p) return 0;
    if (place[i].kind == TE__WEIGHTS_BY_ROW || (place[i].kind == TE__WEIGHTS_BY_BLOCK && p->dtype == TE_f32)) return 0;
    return &place[i];
}
/* Fill in the tables at `at`, host memory, and mark what the update measures or casts. tiles: of fp8_block. */
TE_API void te__recipes_adamw_pair(te_recipes_adamw *u, char *at, const te__recipes_adamw_layout *l,
                                   const te__recipe_place *place, int tiles) {
    int32_t *first = (int32_t *)(void *)(at + l->first), *scale_of = (int32_t *)(void *)(at + l->scale_of);
    int32_t *tensor_of = (int32_t *)(void *)(at + l->tensor_of);
    te_adamw_walk w = te_adamw_tensors(u->opt);
    for (int i = 0; i < l->blocks; i++) tensor_of[i] = -1;
    for (int k = 0; te_adamw_next(&w); k++) {
        const te__recipe_place *p = te__recipe_place_of(place, u->recipes, w.param);
        const int tiled = p && p->kind == TE__WEIGHTS_BY_BLOCK;
        first[k + 1] = first[k] + (tiled ? 0 : (int32_t)te_ceil_div(w.elements, TE__ADAMW_CHUNK));
        scale_of[k] = p && !tiled ? p->param->fp8.weight : -1;
        if (tiled) tensor_of[p->block] = k, u->blocks.chunks = tiles;
        if (p) p->param->fp8.updated = u->fused = 1;
    }
    u->chunks = first[u->count];
}
TE_API te_status te__recipes_adamw_tables(te_recipes_adamw *u, char *memory, const te__recipes_adamw_layout *l,
                                          te_context *ctx) {
    const size_t places = (size_t)u->recipes->count * sizeof(te__recipe_place);
    char *host = (char *)calloc(1, l->bytes + places + 1);
    TE_REQUIRE(host, ctx, TE_ERROR_MEMORY, "recipes_adamw: cannot allocate %zu bytes", l->bytes + places);
    te__recipe_place *place = (te__recipe_place *)(void *)(host + l->bytes);
    const int tiles = te__recipe_places(place, u->recipes);
    if (te__adamw_is_plain(u->opt)) te__recipes_adamw_pair(u, host, l, place, tiles);
    te_status status = te_copy(ctx, memory, host, l->bytes);
    const te_status done = te_synchronize(ctx);
    free(host);
    return status == TE_OK ? done : status;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Bind to memory (target memory, te_recipes_adamw_bytes, aligned to TE_ALIGN), and to both as they are initialised now;
 * initialise again behind either's. Waits for the stream. Errors: null pointers, one of the two not initialised, memory
 * too small or misaligned. */
TE_API te_status te_recipes_adamw_init(te_recipes_adamw *u, void *memory, size_t bytes, te_recipes *recipes,
                                       te_adamw *opt, te_context *ctx) {
    TE_TRY(te_check_target(ctx, "recipes_adamw"));
    TE_REQUIRE(u, ctx, TE_ERROR_NULL, "recipes_adamw: the struct is null");
    TE_TRY(te__recipes_check(recipes, ctx));
    TE_TRY(te__adamw_check(opt, ctx));
    const te__recipes_adamw_layout l = te__recipes_adamw_layout_of(recipes, opt);
    TE_TRY(te__memory_check(memory, bytes, l.bytes, recipes->models, recipes->model_count, "recipes_adamw", ctx));
    TE_TRY(te__memory_check(memory, bytes, l.bytes, opt->models, opt->model_count, "recipes_adamw", ctx));
    const te__weights_layout weights = te__weights_layout_of(recipes->models, recipes->model_count);
    char *at = (char *)memory;
    memset(u, 0, sizeof *u);
    recipes->update = 0;
    u->recipes = recipes, u->opt = opt, u->count = opt->count, u->where = opt->where;
    u->first = (const int32_t *)(void *)(at + l.first), u->scale_of = (const int32_t *)(void *)(at + l.scale_of);
    u->tensor_of = (const int32_t *)(void *)(at + l.tensor_of), u->blocks.count = l.blocks;
    u->blocks.tensor = (const char *)recipes->table + weights.tensor[TE__WEIGHTS_BY_BLOCK];
    u->blocks.first = (const int32_t *)((const char *)recipes->table + weights.first[TE__WEIGHTS_BY_BLOCK]);
    TE_TRY(te__recipes_adamw_tables(u, at, &l, ctx));
    recipes->update = u;
    return TE_OK;
}

TE_API te_status te__recipes_adamw_check(const te_recipes_adamw *u, te_context *ctx) {
    TE_TRY(te_check_target(ctx, "recipes_adamw"));
    TE_REQUIRE(u && u->recipes, ctx, TE_ERROR_NULL, "recipes_adamw: not initialised");
    TE_TRY(te__adamw_check_step(u->opt, ctx));
    TE_TRY(te__recipes_check_step(u->recipes, ctx));
    TE_REQUIRE(u->recipes->update == u, ctx, TE_ERROR_STATE,
               "recipes_adamw: this is a copy, or the recipes were initialised or given to another since "
               "te_recipes_adamw_init; initialise this again");
    TE_REQUIRE(u->where == u->opt->where && u->count == u->opt->count && (!u->fused || te__adamw_is_plain(u->opt)), ctx,
               TE_ERROR_STATE,
               "recipes_adamw: the optimizer was initialised otherwise since te_recipes_adamw_init; initialise this "
               "again");
    return TE_OK;
}
/* The update, in one launch for chunks and one for tiles. */
TE_IF_USED TE_API te_status te__recipes_adamw_update(const te_recipes_adamw *u, const te__adamw_fp8_args *a,
                                                     te_context *ctx) {
    const te_grid chunks = te_grid_of(u->chunks, 1), tiles = te_grid_of(u->blocks.chunks, 1);
    const int f32 = u->opt->moments == TE_f32;
    if (u->chunks)
        TE_TRY(f32 ? te_adamw_raise_launch(ctx, chunks, a) : te_adamw_raise_bf16_launch(ctx, chunks, a));
    if (!u->blocks.chunks) return TE_OK;
    return f32 ? te_adamw_tiles_launch(ctx, tiles, a) : te_adamw_tiles_bf16_launch(ctx, tiles, a);
}
/* Enqueue what te_adamw_step and te_recipes_step enqueue one after the other. What one of them refuses is refused
 * before anything is enqueued. Of several ranks all call it. */
TE_IF_USED TE_API te_status te_recipes_adamw_step(te_recipes_adamw *u, te_context *ctx) {
    te__adamw_fp8_args a;
    TE_TRY(te__recipes_adamw_check(u, ctx));
    if (!u->fused) {
        TE_TRY(te_adamw_step(u->opt, ctx));
        return te_recipes_step(u->recipes, ctx);
    }
    memset(&a, 0, sizeof a);
    a.step = te__adamw_args_of(u->opt);
    TE_TRY(te__adamw_begin_step(u->opt, &a.step, ctx));
    a.step.first = u->first, a.scale_of = u->scale_of, a.amax = u->recipes->scales.amax;
    a.blocks = u->blocks, a.tensor_of = u->tensor_of;
    TE_TRY(te__recipes_adamw_update(u, &a, ctx));
    return te__recipes_go_on(u->recipes, 1, ctx);
}

#endif
