/* recipes_adamw.h -- te_adamw_step and te_recipes_step in one call, with bitwise identical results. The optimizer's
 * kernels also compute the amax of the new weights, or cast the new weights to FP8. So the weights are read once less.
 *
 * Do this:
 *     static te_recipes recipes;                                // te_recipes_init
 *     static te_adamw opt;                                      // te_adamw_init
 *     static te_recipes_adamw update;                           // must live as long as `recipes`
 *     const size_t bytes = te_recipes_adamw_bytes(&recipes, &opt);
 *     TE_TRY(te_allocate(&ctx, &memory, bytes));
 *     TE_TRY(te_recipes_adamw_init(&update, memory, bytes, &recipes, &opt, &ctx));
 *     ... forward, backward ...
 *     TE_TRY(te_recipes_adamw_step(&update, &ctx));             // instead of the two calls
 *
 * fp8_block: the update also computes the scales of the new weights, and casts the weights to FP8, untransposed and
 * transposed. No other kernel needs to cast them. Update and cast read and write 32 bytes for each element instead of
 * 34. fp8_delayed and fp8_current: the update also computes the amax of the new weights, and other kernels cast them.
 * Update and amax read and write 30 bytes for each element instead of 32. More: docs/notes/optimizer.md.
 *
 * Some weights are cast by separate passes, as in te_recipes_step: tied or frozen weights, weights of models that the
 * optimizer does not update, weights under fp8_row, and weights under fp8_block in f32 models. With SGD, Muon, 8-bit
 * moments or ZeRO-1, te_recipes_adamw_step runs te_adamw_step and te_recipes_step one after the other.
 */
#ifndef TE_RECIPES_ADAMW_H
#define TE_RECIPES_ADAMW_H

#include "../fp8/impl/quantize_blockwise.h" /* te__blockwise_store */
#include "adamw.h"                 /* te_adamw, te__adamw_begin_step */
#include "impl/adamw_kernels.h"    /* te__adamw_chunk, te__adamw_store_weights */
#include "recipes.h"               /* te_recipes, te__recipes_advance */

typedef struct te__adamw_fp8_args {
    te__adamw_args step;      /* the arguments of the update by chunks. In step.first, the tensors in `blocks`, which
                               * are updated tile by tile, have no chunks */
    const int32_t *scale_of;  /* [count]: for each tensor, the index of its entry in `amax`; -1 if its amax is not
                               * needed */
    float *amax;
    te_multi_tensor blocks;          /* all weights under fp8_block, as a table of te_blockwise_args whose chunks are
                                      * tiles of 128 x 128 */
    /* [blocks.count]: for each weight in `blocks`, its index among the optimizer's tensors. -1: the optimizer does not
     * update this weight, and a separate pass casts it */
    const int32_t *tensor_of;
} te__adamw_fp8_args;

/* ---- kernel: update a chunk, and find the amax of its weights ---------------------------------------------------- */

/* The kernel te_adamw_update_amax updates all tensors except the weights under fp8_block, which
 * te_adamw_update_blockwise updates by tiles. It also computes the amax of weights with tensorwise scales. */

/* Update the chunk of tensor n that begins at element `from`, unless the optimizer step is skipped. */
TE_FN void te__adamw_update_chunk(const te__adamw_args *a, int n, int64_t from, te_dtype moments) {
    const te_adamw_state state = *a->state;
    const te__adamw_tensor t = a->tensor[n];
    te__adamw_variant var;
    var.moments = moments, var.rule = TE_RULE_adamw;
    if (state.apply) te__adamw_chunk(&t, from, &state, &a->config, var);
}
/* Return the bits of the largest |w| among the stored weights w of a chunk. The chunk begins at element `from` of
 * tensor t. */
TE_FN uint32_t te__adamw_chunk_amax(const te__adamw_tensor *t, int64_t from, te_lanes lanes) {
    const int64_t to = te_min(t->elements, from + TE__ADAMW_CHUNK);
    uint32_t amax = 0;
    for (int64_t i = from + 8 * lanes.id; i < to; i += 8 * lanes.count) {
        float v[8];
        const int n = (int)te_min(8, to - i);
        if (t->dtype == TE_f32) te_load8_coherent(v, t->weight, i, n, n == 8, TE_f32);
        else if (t->dtype == TE_bf16) te_load8_coherent(v, t->weight, i, n, n == 8, TE_bf16);
        else te_load8_coherent(v, t->weight, i, n, n == 8, TE_f16);
        amax = te_amax_bits8(amax, v);
    }
    return amax;
}
/* Update a chunk and, after a barrier, read the chunk's new weights again to compute their amax. The new weights are
 * still in the L2 cache, so the second read does not access device memory. If the amax were computed during the update,
 * the kernel would need so many registers that it would spill. */
TE_FN void te__adamw_update_amax_body(const te__adamw_fp8_args *a, te_block b, te_dtype moments) {
    int group;
    const te_lanes lanes = te_lanes_here(TE__ADAMW_LANES, &group);
    const int n = te_chunk_tensor(a->step.first, a->step.count, b.x);
    const int64_t from = (int64_t)(b.x - a->step.first[n]) * TE__ADAMW_CHUNK;
    te__adamw_update_chunk(&a->step, n, from, moments);
    const int scale = a->scale_of[n];
    if (scale < 0) return;
    te_block_sync();
    te_amax_atomic_max(a->amax + scale, te__adamw_chunk_amax(a->step.tensor + n, from, lanes), lanes);
}
TE_KERNEL_IF_USED(te_adamw_update_amax, TE__ADAMW_THREADS, TE__ADAMW_RESIDENT, te__adamw_fp8_args,
                  te__adamw_update_amax_body(te_args, te_at, TE_f32))
TE_KERNEL_IF_USED(te_adamw_update_amax_bf16, TE__ADAMW_THREADS, TE__ADAMW_RESIDENT, te__adamw_fp8_args,
                  te__adamw_update_amax_body(te_args, te_at, TE_bf16))

/* ---- kernel: update a tile of 128 x 128, and cast it to FP8 ------------------------------------------------------ */

/* The kernel te_adamw_update_blockwise updates the weights under fp8_block, and also casts them to FP8. It can do so
 * because the scale of a 128 x 128 tile depends only on the elements of this tile, which one thread block updates. A
 * warp updates one row of the tile at a time, and stores the new weights, rounded to their 16-bit format, in shared
 * memory, from where te__blockwise_store casts them. The random numbers of stochastic rounding depend only on the index
 * of an element (te__adamw_random), and so are the same as in the other kernels. */

/* TE__ADAMW_TILE_ROW_VECS: the number of vectors (te__adamw_vec) in a row of the tile. TE__ADAMW_TILE_VECS: the number
 * of vectors in the whole tile. TE__ADAMW_BLOCKWISE_RESIDENT: the number of resident blocks on a multiprocessor; with
 * four the kernel would spill registers. */
enum { TE__ADAMW_TILE_ROW_VECS = (int)TE_FP8_TILE / (int)TE__ADAMW_WIDTH,
       TE__ADAMW_TILE_VECS = (int)TE_FP8_TILE * TE__ADAMW_TILE_ROW_VECS, TE__ADAMW_BLOCKWISE_RESIDENT = 3 };
static_assert((int)TE__ADAMW_THREADS == (int)TE_FP8_LANES, "a block has a tile");

/* The shared memory of a thread block. It holds first the tile's new weights, and later the shared memory of
 * te__blockwise_store. Reading the new weights from global memory instead would be slower, because the first row may
 * have left the L2 cache by the time the last row is stored. */
typedef struct te__adamw_shared {
    union {
        te__adamw_halves vec[TE__ADAMW_TILE_VECS];
        te_blockwise_shared tiles;
    } u;
} te__adamw_shared;

/* The position of a vector of TE__ADAMW_WIDTH elements. i: the index of its first element in the tensor; n: how many of
 * its elements lie inside the tensor. */
typedef struct te__adamw_position { int64_t i; int n; } te__adamw_position;

/* Return the position of vector k of the tile whose first element is at (row0, col0). */
TE_FN te__adamw_position te__adamw_tile_position(const te__adamw_tensor *t, int64_t cols, int64_t row0, int64_t col0,
                                                 int k) {
    const int64_t row = row0 + k / TE__ADAMW_TILE_ROW_VECS;
    const int64_t col = col0 + k % TE__ADAMW_TILE_ROW_VECS * TE__ADAMW_WIDTH;
    te__adamw_position at;
    at.i = row * cols + col;
    at.n = at.i < t->elements ? (int)te_max(0, te_min(TE__ADAMW_WIDTH, cols - col)) : 0;
    return at;
}
/* Update a whole vector, unless the optimizer step is skipped. Returns the vector's weights in 16 bits. */
TE_FN te__adamw_halves te__adamw_update_vec(const te__adamw_tensor *t, int64_t i, const te_adamw_state *s,
                                            const te_adamw_config *c, te__adamw_variant var) {
    te__adamw_vec r;
    if (!s->apply) return *(const te__adamw_halves *)((const uint16_t *)t->weight + i);
    te__adamw_load(&r, t, i, var);
    te__optim_math(&r, s, c, t, TE__ADAMW_WIDTH, var.rule);
    te__adamw_store_moments(&r, t, i, s, c, var);
    return te__adamw_store_weights(&r.p, t, i, s, c);
}
/* Update a vector of the tile, unless the optimizer step is skipped. Returns the vector's weights in 16 bits, with
 * zeros for elements outside the tensor. A row of the tensor has a multiple of 16 elements. So only on a CPU, where
 * vectors have 32 elements, can a vector lie partly outside the tensor. */
TE_FN te__adamw_halves te__adamw_tile_vec(const te__adamw_tensor *t, te__adamw_position at, const te_adamw_state *s,
                                          const te_adamw_config *c, te__adamw_variant var) {
    te__adamw_halves h;
    if (at.n == TE__ADAMW_WIDTH) return te__adamw_update_vec(t, at.i, s, c, var);
    memset(&h, 0, sizeof h);
    if (TE_CUDA) return h;
    if (s->apply) te__adamw_tail(t, at.i, at.i + at.n, s, c, var);
    for (int k = 0; k < at.n; k++) h.v[k] = ((const uint16_t *)t->weight)[at.i + k];
    return h;
}
/* Update the tile whose first element is at (row, col), and store the tile's new weights in `tile`, in shared
 * memory. */
TE_FN void te__adamw_update_tile(te__adamw_halves *tile, const te__adamw_args *a, int tensor, int64_t cols,
                                 int64_t row, int64_t col, te_lanes g, te_dtype moments) {
    const te_adamw_state state = *a->state;
    const te__adamw_tensor t = a->tensor[tensor];
    te__adamw_variant var;
    var.moments = moments, var.rule = TE_RULE_adamw;
    TE_UNROLL_1 for (int k = g.id; k < TE__ADAMW_TILE_VECS; k += g.count)
        tile[k] = te__adamw_tile_vec(&t, te__adamw_tile_position(&t, cols, row, col, k), &state, &a->config, var);
}
/* Load a lane's pieces of 8 x 8 weights from `tile`, in shared memory, into registers. The layout of the registers is
 * the one that te__blockwise_load produces from global memory. */
TE_FN void te__adamw_load_tile(te_blockwise_registers *held, const te__adamw_halves *tile, te_lanes g) {
    TE_UNROLL for (int h = 0; h < TE_BLOCKWISE_PIECES; h++) {
        const int i = g.id + h * g.count, row = i / TE_BLOCKWISE_LANES_A_SIDE * 8,
                  col = i % TE_BLOCKWISE_LANES_A_SIDE * 8;
        TE_UNROLL for (int k = 0; k < 8; k++) {
            const uint16_t *from = (const uint16_t *)(const void *)tile + (row + k) * TE_FP8_TILE + col;
            const te__bytes16 w = *(const te__bytes16 *)(const void *)from;
            memset(&held->x[h][k], 0, sizeof held->x[h][k]);
            TE_UNROLL for (int j = 0; j < 4; j++) held->x[h][k].w[j] = w.w[j];
        }
    }
}
TE_FN void te__adamw_update_blockwise_body(const te__adamw_fp8_args *a, te_block b, te_blockwise_registers *held,
                                           te__adamw_shared *s, te_dtype moments) {
    int group;
    const te_lanes g = te_lanes_here(TE_FP8_THREADS, &group);
    const int n = te_multi_tensor_find(&a->blocks, &b), tensor = a->tensor_of[n];
    if (tensor < 0) return;
    const te_blockwise_args *to = (const te_blockwise_args *)a->blocks.tensor + n;
    const int64_t cols = to->out.cols;
    const int across = (int)te_ceil_div(cols, TE_FP8_TILE);
    const int64_t row = (int64_t)(b.x / across) * TE_FP8_TILE, col = (int64_t)(b.x % across) * TE_FP8_TILE;
    te__adamw_update_tile(s->u.vec, &a->step, tensor, cols, row, col, g, moments);
    te_block_sync();
    te__adamw_load_tile(held, s->u.vec, g);
    te_block_sync();
    const te_blockwise_args cast = *to; /* loaded only now, because the update needs all registers */
    if (a->step.tensor[tensor].dtype == TE_bf16)
        te__blockwise_store(&cast, held, &s->u.tiles, g, row, col, TE_bf16, TE_e4m3);
    else te__blockwise_store(&cast, held, &s->u.tiles, g, row, col, TE_f16, TE_e4m3);
}
TE_FN void te__adamw_update_blockwise_f32_body(const te__adamw_fp8_args *a, te_block b, te_blockwise_registers *held,
                                               te__adamw_shared *s) {
    te__adamw_update_blockwise_body(a, b, held, s, TE_f32);
}
TE_FN void te__adamw_update_blockwise_bf16_body(const te__adamw_fp8_args *a, te_block b, te_blockwise_registers *held,
                                                te__adamw_shared *s) {
    te__adamw_update_blockwise_body(a, b, held, s, TE_bf16);
}
TE_KERNEL_WITH_IF_USED(te_adamw_update_blockwise, TE__ADAMW_THREADS, TE__ADAMW_BLOCKWISE_RESIDENT, te__adamw_fp8_args,
                       te_blockwise_registers, te__adamw_shared, te__adamw_update_blockwise_f32_body)
TE_KERNEL_WITH_IF_USED(te_adamw_update_blockwise_bf16, TE__ADAMW_THREADS, TE__ADAMW_BLOCKWISE_RESIDENT,
                       te__adamw_fp8_args, te_blockwise_registers, te__adamw_shared,
                       te__adamw_update_blockwise_bf16_body)

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* A te_recipes_adamw must not be moved in memory, because the recipes point to it. */
typedef struct te_recipes_adamw {
    te_recipes *recipes;
    te_adamw *opt;
    int fused;                /* 1: te_recipes_adamw_step runs the fused kernels of this file; 0: it calls te_adamw_step
                               * and then te_recipes_step */
    int count, chunks;        /* count: the number of the optimizer's tensors; chunks: the number of chunks of the
                               * tensors that are not updated tile by tile */
    const int32_t *first;     /* [count + 1]: the index of the first chunk of each tensor. The arrays first, scale_of
                               * and tensor_of are in target memory; te__adamw_fp8_args describes scale_of and
                               * tensor_of */
    const int32_t *scale_of;  /* [count] */
    const int32_t *tensor_of; /* [blocks.count] */
    te_multi_tensor blocks;          /* all weights under fp8_block. If the fused update updates none of them,
                                      * blocks.chunks is 0 */
    uint64_t fingerprint;     /* the value of te__params_fingerprint when the tables were made */
} te_recipes_adamw;

typedef struct te__recipes_adamw_layout {
    size_t first, scale_of, tensor_of, bytes;
    int blocks; /* the number of weights under fp8_block */
} te__recipes_adamw_layout;

TE_API te__recipes_adamw_layout te__recipes_adamw_layout_of(const te_recipes *s, const te_adamw *opt) {
    te__recipes_adamw_layout l;
    memset(&l, 0, sizeof l);
    if (!s || !opt) return l;
    te__recipe_iter it = te__recipe_products(s->models, s->model_count);
    while (te__recipe_next_product(&it)) l.blocks += te__weight_granularity(it.recipe) == TE__WEIGHTS_BLOCKWISE;
    l.first = te__suballocate(&l.bytes, ((size_t)opt->count + 1) * sizeof(int32_t));
    l.scale_of = te__suballocate(&l.bytes, (size_t)opt->count * sizeof(int32_t));
    l.tensor_of = te__suballocate(&l.bytes, (size_t)l.blocks * sizeof(int32_t));
    return l;
}
/* Return the bytes of target memory that te_recipes_adamw_init needs: eight bytes for each te_param, and four for each
 * weight under fp8_block. `recipes` and `opt` must be initialised; if one of them is null, the result is 0. */
TE_API size_t te_recipes_adamw_bytes(const te_recipes *recipes, const te_adamw *opt) {
    return te__recipes_adamw_layout_of(recipes, opt).bytes;
}

/* ---- mapping the recipes' weights to the optimizer's tensors ----------------------------------------------------- */

/* Return whether the fused kernels of this file support the optimizer: its rule must be AdamW, without ZeRO-1 and
 * without 8-bit moments. */
TE_API int te__adamw_is_fusable(const te_adamw *opt) {
    return opt->rule == TE_RULE_adamw && !te__moments_8bit(opt->moments) && opt->zero1.ranks == 1;
}
/* A weight of a GEMM under a recipe. granularity: TE__WEIGHTS_TENSORWISE and so on. block: if the recipe is fp8_block,
 * the weight's index among the weights under fp8_block. */
typedef struct te__recipe_entry { te_param *param; int granularity, block; } te__recipe_entry;

/* Fill in entry[s->count], one entry for each weight, and clear every weight's mark te_fp8_product.updated. Returns the
 * number of 128 x 128 tiles in all weights under fp8_block. */
TE_API int te__recipe_entries(te__recipe_entry *entry, const te_recipes *s) {
    int blocks = 0, tiles = 0;
    te__recipe_iter it = te__recipe_products(s->models, s->model_count);
    for (; te__recipe_next_product(&it); entry++) {
        entry->param = it.param, entry->granularity = te__weight_granularity(it.recipe), entry->block = blocks;
        it.param->fp8.updated = 0;
        if (entry->granularity != TE__WEIGHTS_BLOCKWISE) continue;
        blocks++, tiles += (int)te__fp8_cache_chunks(it.param, TE__WEIGHTS_BLOCKWISE);
    }
    return tiles;
}
/* Return the entry of parameter p, one of the optimizer's tensors; null if the fused update neither computes p's amax
 * nor casts p. */
TE_API const te__recipe_entry *te__recipe_entry_of(const te__recipe_entry *entry, const te_recipes *s,
                                                   const te_param *p) {
    const int i = p->fp8.weight; /* p's index in `entry`. The next line checks that p's model still belongs to the
                                  * recipes *s */
    if (p->fp8.scales != &s->scales || i < 0 || i >= s->count || entry[i].param != p) return 0;
    if (entry[i].granularity == TE__WEIGHTS_ROWWISE || entry[i].granularity == TE__WEIGHTS_AT_USE) return 0;
    if (entry[i].granularity == TE__WEIGHTS_BLOCKWISE && p->dtype == TE_f32) return 0;
    return &entry[i];
}
/* Fill in the tables in host memory. Set the mark te_fp8_product.updated of each weight for which the fused update
 * computes the amax or the cast. tiles: the number of 128 x 128 tiles in all weights under fp8_block. */
TE_API void te__recipes_adamw_map(te_recipes_adamw *u, char *tables, const te__recipes_adamw_layout *l,
                                  const te__recipe_entry *entry, int tiles) {
    int32_t *first = (int32_t *)(void *)(tables + l->first), *scale_of = (int32_t *)(void *)(tables + l->scale_of);
    int32_t *tensor_of = (int32_t *)(void *)(tables + l->tensor_of);
    te_adamw_iter it = te_adamw_tensors(u->opt);
    for (int i = 0; i < l->blocks; i++) tensor_of[i] = -1;
    for (int k = 0; te_adamw_next(&it); k++) {
        const te__recipe_entry *e = te__recipe_entry_of(entry, u->recipes, it.param);
        const int blockwise = e && e->granularity == TE__WEIGHTS_BLOCKWISE;
        first[k + 1] = first[k] + (blockwise ? 0 : (int32_t)te_ceil_div(it.elements, TE__ADAMW_CHUNK));
        scale_of[k] = e && !blockwise ? e->param->fp8.weight : -1;
        if (blockwise) tensor_of[e->block] = k, u->blocks.chunks = tiles;
        if (e) e->param->fp8.updated = u->fused = 1;
    }
    u->chunks = first[u->count];
}
TE_API te_status te__recipes_adamw_tables(te_recipes_adamw *u, char *memory, const te__recipes_adamw_layout *l,
                                          te_context *ctx) {
    const size_t entries = (size_t)u->recipes->count * sizeof(te__recipe_entry);
    char *host = (char *)calloc(1, l->bytes + entries + 1);
    TE_REQUIRE(host, ctx, TE_ERROR_MEMORY, "recipes_adamw: cannot allocate %zu bytes", l->bytes + entries);
    te__recipe_entry *entry = (te__recipe_entry *)(void *)(host + l->bytes);
    const int tiles = te__recipe_entries(entry, u->recipes);
    if (te__adamw_is_fusable(u->opt)) te__recipes_adamw_map(u, host, l, entry, tiles);
    te_status status = te_copy(ctx, memory, host, l->bytes);
    const te_status done = te_synchronize(ctx);
    free(host);
    return status == TE_OK ? done : status;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Initialise *u for the recipes and the optimizer, which must be initialised already. If a program initialises the
 * recipes or the optimizer again, it must also call te_recipes_adamw_init again. memory: target memory of
 * te_recipes_adamw_bytes bytes, aligned to TE_ALIGN. Waits for the stream. Errors: null pointers, recipes or an
 * optimizer that is not initialised, memory too small or misaligned. */
TE_API te_status te_recipes_adamw_init(te_recipes_adamw *u, void *memory, size_t bytes, te_recipes *recipes,
                                       te_adamw *opt, te_context *ctx) {
    TE_TRY(te__check_target(ctx, "recipes_adamw"));
    TE_REQUIRE(u, ctx, TE_ERROR_NULL, "recipes_adamw: the struct is null");
    TE_TRY(te__recipes_check(recipes, ctx));
    TE_TRY(te__adamw_check(opt, ctx));
    const te__recipes_adamw_layout l = te__recipes_adamw_layout_of(recipes, opt);
    TE_TRY(te__memory_check(memory, bytes, l.bytes, recipes->models, recipes->model_count, "recipes_adamw", ctx));
    TE_TRY(te__memory_check(memory, bytes, l.bytes, opt->models, opt->model_count, "recipes_adamw", ctx));
    const te__fp8_cache_layout weights = te__fp8_cache_layout_of(recipes->models, recipes->model_count);
    char *at = (char *)memory;
    memset(u, 0, sizeof *u);
    recipes->update = 0;
    u->recipes = recipes, u->opt = opt, u->count = opt->count, u->fingerprint = opt->fingerprint;
    u->first = (const int32_t *)(void *)(at + l.first), u->scale_of = (const int32_t *)(void *)(at + l.scale_of);
    u->tensor_of = (const int32_t *)(void *)(at + l.tensor_of), u->blocks.count = l.blocks;
    u->blocks.tensor = (const char *)recipes->table + weights.tensor[TE__WEIGHTS_BLOCKWISE];
    u->blocks.first = (const int32_t *)((const char *)recipes->table + weights.first[TE__WEIGHTS_BLOCKWISE]);
    TE_TRY(te__recipes_adamw_tables(u, at, &l, ctx));
    recipes->update = u;
    return TE_OK;
}

/* Check for all errors that a step can return, before the step enqueues anything. */
TE_API te_status te__recipes_adamw_check(const te_recipes_adamw *u, te_context *ctx) {
    TE_TRY(te__check_target(ctx, "recipes_adamw"));
    TE_REQUIRE(u && u->recipes, ctx, TE_ERROR_NULL, "recipes_adamw: not initialised");
    TE_TRY(te__adamw_check_step(u->opt, ctx));
    TE_TRY(te__recipes_check_step(u->recipes, ctx));
    TE_REQUIRE(u->recipes->update == u, ctx, TE_ERROR_STATE,
               "recipes_adamw: this is a copy, or the recipes were initialised or given to another since "
               "te_recipes_adamw_init; initialise this again");
    TE_REQUIRE(u->fingerprint == u->opt->fingerprint && u->count == u->opt->count &&
                   (!u->fused || te__adamw_is_fusable(u->opt)), ctx, TE_ERROR_STATE,
               "recipes_adamw: the optimizer was initialised otherwise since te_recipes_adamw_init; initialise this "
               "again");
    return TE_OK;
}
/* Enqueue the update: one launch for the tensors that are updated by chunks, and one launch for the tensors that are
 * updated by tiles. */
TE_IF_USED TE_API te_status te__recipes_adamw_update(const te_recipes_adamw *u, const te__adamw_fp8_args *a,
                                                     te_context *ctx) {
    const te_grid chunks = te__grid_of(u->chunks, 1), tiles = te__grid_of(u->blocks.chunks, 1);
    const int f32 = u->opt->moments == TE_f32;
    if (u->chunks)
        TE_TRY(f32 ? te_adamw_update_amax_launch(ctx, chunks, a) : te_adamw_update_amax_bf16_launch(ctx, chunks, a));
    if (!u->blocks.chunks) return TE_OK;
    return f32 ? te_adamw_update_blockwise_launch(ctx, tiles, a) : te_adamw_update_blockwise_bf16_launch(ctx, tiles, a);
}
/* Enqueue a step of the optimizer and of the recipes. All ranks must call this function. It checks for the errors of
 * both steps first; after such an error nothing is enqueued. */
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
    te__adamw_has_written(u->opt, ctx);
    return te__recipes_advance(u->recipes, 1, ctx);
}

#endif
