/* adamw_fp8.h -- the update of AdamW with what the recipes need of the weights that it stores (recipes_adamw.h): the
 * largest magnitude of those with a scale a tensor, and those of fp8_block in FP8, as they lie and transposed.
 *
 * A weight with a scale a tensor, and whatever is no product's weight, is updated in adamw_kernels.h's chunks, which
 * raise the tensor's amax by what they store. A weight of fp8_block is updated in tiles of 128 x 128, whose scales need
 * nothing from outside: a warp has a row of the tile at a time, leaves its weights, rounded to the list's 16 bits, in
 * shared memory, and quantize_tiles.h's code goes on from there. Random numbers belong to elements (te__adamw_random),
 * so they are those of adamw_kernels.h.
 *
 * Bytes an element, of AdamW with moments in f32, master weights and a 16-bit list: the update's 30 and nothing more
 * for an amax, where the pass of its own reads 2; 32 for fp8_block, where update and cast move 34. With moments in bf16
 * the update's are 22: 24 of 26. The floor is bytes * elements / copy rate.
 */
#ifndef TE_ADAMW_FP8_H
#define TE_ADAMW_FP8_H

#include "../fp8/quantize_tiles.h" /* te__tiles_store */
#include "adamw_kernels.h"         /* te__adamw_chunk, te__adamw_store_weights */

typedef struct te__adamw_fp8_args {
    te__adamw_args step;      /* first: [count + 1], of the chunks; what is updated in tiles has none */
    const int32_t *scale_of;  /* [count] whose place in amax each tensor has; -1: none */
    float *amax;
    te_table blocks;          /* te_tiles_args, a chunk of which is a tile */
    const int32_t *tensor_of; /* [blocks.count] which of step.tensor each is; -1: none, the recipes' pass casts it */
} te__adamw_fp8_args;

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

/* Update the chunk of tensor n that begins at `from`; not in a step that is left out. */
TE_FN void te__adamw_update_chunk(const te__adamw_args *a, int n, int64_t from, te_dtype moments) {
    const te_adamw_state state = *a->state;
    const te__adamw_tensor t = a->tensor[n];
    te__adamw_form f;
    f.moments = moments, f.rule = TE_RULE_adamw;
    if (state.apply) te__adamw_chunk(&t, from, &state, &a->config, f);
}
/* The bits of the largest |w| of its weights as they are stored. */
TE_FN uint32_t te__adamw_largest(const te__adamw_tensor *t, int64_t from, te_lanes lanes) {
    const int64_t to = te_min(t->elements, from + TE__ADAMW_CHUNK);
    uint32_t most = 0;
    for (int64_t i = from + 8 * lanes.id; i < to; i += 8 * lanes.count) {
        float v[8];
        const int n = (int)te_min(8, to - i);
        if (t->dtype == TE_f32) te_load8_own(v, t->weight, i, n, n == 8, TE_f32);
        else if (t->dtype == TE_bf16) te_load8_own(v, t->weight, i, n, n == 8, TE_bf16);
        else te_load8_own(v, t->weight, i, n, n == 8, TE_f16);
        most = te_amax_bits8(most, v);
    }
    return most;
}
/* Behind the barrier the block reads the weights of its chunk again, which moves nothing from memory: they have just
 * been stored, and are in the L2. Kept in registers beside the update, the largest of them makes it spill. */
TE_FN void te__adamw_raise_body(const te__adamw_fp8_args *a, te_block b, te_dtype moments) {
    int group;
    const te_lanes lanes = te_lanes_here(TE__ADAMW_LANES, &group);
    const int n = te_chunk_tensor(a->step.first, a->step.count, b.x);
    const int64_t from = (int64_t)(b.x - a->step.first[n]) * TE__ADAMW_CHUNK;
    te__adamw_update_chunk(&a->step, n, from, moments);
    const int scale = a->scale_of[n];
    if (scale < 0) return;
    te_block_sync();
    te_amax_raise(a->amax + scale, te__adamw_largest(a->step.tensor + n, from, lanes), lanes);
}
TE_KERNEL_IF_USED(te_adamw_raise, TE__ADAMW_THREADS, TE__ADAMW_RESIDENT, te__adamw_fp8_args,
                  te__adamw_raise_body(te_args, te_at, TE_f32))
TE_KERNEL_IF_USED(te_adamw_raise_bf16, TE__ADAMW_THREADS, TE__ADAMW_RESIDENT, te__adamw_fp8_args,
                  te__adamw_raise_body(te_args, te_at, TE_bf16))

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* A part is what a lane takes at once: so many are in a row of the tile, and in all of it. With three blocks on a
 * multiprocessor nothing is spilled, with four it is. */
enum { TE__ADAMW_ACROSS = (int)TE_FP8_TILE / (int)TE__ADAMW_WIDTH,
       TE__ADAMW_PARTS = (int)TE_FP8_TILE * TE__ADAMW_ACROSS, TE__ADAMW_TILES_RESIDENT = 3 };
static_assert((int)TE__ADAMW_THREADS == (int)TE_FP8_LANES, "a block has a tile");

/* The tile's weights as they are stored, and then what te__tiles_store shares. They do not go by memory: until the last
 * row is there, the first may have left the L2. */
typedef struct te__adamw_shared {
    union {
        te__adamw_halves part[TE__ADAMW_PARTS];
        te_tiles_shared tiles;
    } u;
} te__adamw_shared;

/* Where a part begins in its tensor, and how many of its elements exist. */
typedef struct te__adamw_at { int64_t i; int n; } te__adamw_at;

/* Part k of the tile at (row0, col0). */
TE_FN te__adamw_at te__adamw_at_part(const te__adamw_tensor *t, int64_t cols, int64_t row0, int64_t col0, int k) {
    const int64_t row = row0 + k / TE__ADAMW_ACROSS, col = col0 + k % TE__ADAMW_ACROSS * TE__ADAMW_WIDTH;
    te__adamw_at at;
    at.i = row * cols + col;
    at.n = at.i < t->elements ? (int)te_max(0, te_min(TE__ADAMW_WIDTH, cols - col)) : 0;
    return at;
}
/* A part that is all there. */
TE_FN te__adamw_halves te__adamw_update_part(const te__adamw_tensor *t, int64_t i, const te_adamw_state *s,
                                             const te_adamw_config *c, te__adamw_form f) {
    te__adamw_part r;
    if (!s->apply) return *(const te__adamw_halves *)((const uint16_t *)t->weight + i);
    te__adamw_load(&r, t, i, f);
    te__optim_math(&r, s, c, t, TE__ADAMW_WIDTH, f.rule);
    te__adamw_store_moments(&r, t, i, s, c, f);
    return te__adamw_store_weights(&r.p, t, i, s, c);
}
/* Update a part, but not in a step that is left out. Returns its weights, zeros for what does not exist. Rows are
 * multiples of 16 elements: only a CPU, which takes 32 at once, meets less than a part. */
TE_FN te__adamw_halves te__adamw_tile_part(const te__adamw_tensor *t, te__adamw_at at, const te_adamw_state *s,
                                           const te_adamw_config *c, te__adamw_form f) {
    te__adamw_halves h;
    if (at.n == TE__ADAMW_WIDTH) return te__adamw_update_part(t, at.i, s, c, f);
    memset(&h, 0, sizeof h);
    if (TE_CUDA) return h;
    if (s->apply) te__adamw_rest(t, at.i, at.i + at.n, s, c, f);
    for (int k = 0; k < at.n; k++) h.v[k] = ((const uint16_t *)t->weight)[at.i + k];
    return h;
}
/* Update the tile at (row, col), and leave its weights in `tile`. */
TE_FN void te__adamw_update_tile(te__adamw_halves *tile, const te__adamw_args *a, int tensor, int64_t cols,
                                 int64_t row, int64_t col, te_lanes g, te_dtype moments) {
    const te_adamw_state state = *a->state;
    const te__adamw_tensor t = a->tensor[tensor];
    te__adamw_form f;
    f.moments = moments, f.rule = TE_RULE_adamw;
    TE_UNROLL_1 for (int k = g.id; k < TE__ADAMW_PARTS; k += g.count)
        tile[k] = te__adamw_tile_part(&t, te__adamw_at_part(&t, cols, row, col, k), &state, &a->config, f);
}
/* A lane's 8 x 8 of it, as te__tiles_load would have them. */
TE_FN void te__adamw_hold(te_tiles_held *held, const te__adamw_halves *tile, te_lanes g) {
    TE_UNROLL for (int h = 0; h < TE_TILES_HELD; h++) {
        const int i = g.id + h * g.count, row = i / TE_TILES_SIDE * 8, col = i % TE_TILES_SIDE * 8;
        TE_UNROLL for (int k = 0; k < 8; k++) {
            const uint16_t *from = (const uint16_t *)(const void *)tile + (row + k) * TE_FP8_TILE + col;
            const te__bytes16 w = *(const te__bytes16 *)(const void *)from;
            memset(&held->x[h][k], 0, sizeof held->x[h][k]);
            TE_UNROLL for (int j = 0; j < 4; j++) held->x[h][k].w[j] = w.w[j];
        }
    }
}
TE_FN void te__adamw_tiles_body(const te__adamw_fp8_args *a, te_block b, te_tiles_held *held, te__adamw_shared *s,
                                te_dtype moments) {
    int group;
    const te_lanes g = te_lanes_here(TE_FP8_THREADS, &group);
    const int n = te_table_find(&a->blocks, &b), tensor = a->tensor_of[n];
    if (tensor < 0) return;
    const te_tiles_args *to = (const te_tiles_args *)a->blocks.tensor + n;
    const int64_t cols = to->out.cols;
    const int across = (int)te_ceil_div(cols, TE_FP8_TILE);
    const int64_t row = (int64_t)(b.x / across) * TE_FP8_TILE, col = (int64_t)(b.x % across) * TE_FP8_TILE;
    te__adamw_update_tile(s->u.part, &a->step, tensor, cols, row, col, g, moments);
    te_block_sync();
    te__adamw_hold(held, s->u.part, g);
    te_block_sync();
    const te_tiles_args cast = *to; /* not before: the update needs the registers */
    if (a->step.tensor[tensor].dtype == TE_bf16)
        te__tiles_store(&cast, held, &s->u.tiles, g, row, col, TE_bf16, TE_e4m3);
    else te__tiles_store(&cast, held, &s->u.tiles, g, row, col, TE_f16, TE_e4m3);
}
TE_KERNEL_IF_USED(te_adamw_tiles, TE__ADAMW_THREADS, TE__ADAMW_TILES_RESIDENT, te__adamw_fp8_args,
                  te_tiles_held held; TE_SHARED te__adamw_shared shared;
                  te__adamw_tiles_body(te_args, te_at, &held, &shared, TE_f32))
TE_KERNEL_IF_USED(te_adamw_tiles_bf16, TE__ADAMW_THREADS, TE__ADAMW_TILES_RESIDENT, te__adamw_fp8_args,
                  te_tiles_held held; TE_SHARED te__adamw_shared shared;
                  te__adamw_tiles_body(te_args, te_at, &held, &shared, TE_bf16))

#endif
