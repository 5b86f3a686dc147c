/* chain_scaled.h -- a chain's row in FP8 with scales of its own: one for each tile of 1 x 128, or one for the row. Both
 * are of numbers that a group of lanes has in registers, so a kernel that makes a product's operand stores it so in its
 * own pass. The bits are those of the chain's result, rounded to the list's format, and a pass of quantize_tiles.h or
 * quantize_rows.h behind it.
 *
 * Bytes an element of a bf16 list: 2 for x, 1 for y and 1/32 for the scales of tiles. The chain and the cast move 7.
 */
#ifndef TE_FUSE_CHAIN_SCALED_H
#define TE_FUSE_CHAIN_SCALED_H

#include "../fp8/fp8_scaling.h" /* te_tile_scale_at */
#include "../fp8/scales.h"      /* te_scale_of_own */
#include "chain.h"              /* te_chain, te_chain_shape */

enum {
    TE_TILE_LANES = TE_FP8_BLOCK / 8,              /* lanes that share a tile, or vectors that the one lane of a CPU has
                                                    * of it one behind the other */
    TE_TILE_VECTORS = TE_CUDA ? 1 : TE_TILE_LANES  /* of a lane */
};

/* Whether the kernel stores y so in this call. */
TE_FN int te_chain_is_scaled(const te_chain *c, const te_chain_shape k) {
    return k.scaled != TE_SCALING_NONE && c->scaled.y;
}

/* The bits of the largest |v| of a vector at column `col`; 0 behind the row's end. */
TE_FN uint32_t te__scaled_most(const te_vec8 *v, const te_chain_shape k, int col) {
    float x[8];
    if (col >= k.half) return 0;
    te_vec8_floats(x, v, k.out);
    return te_amax_bits8(0, x);
}
TE_FN void te__scaled_store(const te_chain *c, const te_vec8 *v, const te_chain_shape k, int64_t row, int col,
                            float scale) {
    float x[8];
    if (col >= k.half) return;
    te_vec8_floats(x, v, k.out);
    TE_UNROLL for (int j = 0; j < 8; j++) x[j] *= scale;
    te_store8_fp8(c->scaled.y, row * k.half + col, x, 8, 1, TE_e4m3);
}
/* v: a lane's [chunks] of the row, as y would be stored, from vector `first` of the row on. */
TE_FN void te__scaled_tiles(const te_chain *c, const te_chain_shape k, int64_t row, te_lanes g, int first,
                            const te_vec8 *v) {
    float scale = 1.0f;
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const int col = 8 * (first + g.id + i * g.count);
        if (i % TE_TILE_VECTORS == 0) {
            uint32_t most = 0;
            TE_UNROLL for (int j = 0; j < TE_TILE_VECTORS; j++) {
                const uint32_t bits = i + j < k.chunks ? te__scaled_most(&v[i + j], k, col + 8 * j) : 0;
                most = bits > most ? bits : most;
            }
            most = te_tile_lanes_max(most);
            scale = te_scale_of_own(most, TE_E4M3_MOST, &c->scaled.rule);
            if (col < k.half && g.id % TE_TILE_LANES == 0)
                c->scaled.inverse[te_tile_scale_at(c->rows, k.half, row, col / TE_FP8_BLOCK)] = 1.0f / scale;
        }
        te__scaled_store(c, &v[i], k, row, col, scale);
    }
}
TE_FN void te__scaled_row(const te_chain *c, const te_chain_shape k, int64_t row, te_lanes *g, const te_vec8 *v) {
    uint32_t most = 0;
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const uint32_t bits = te__scaled_most(&v[i], k, 8 * (g->id + i * g->count));
        most = bits > most ? bits : most;
    }
    float amax = te_float_of_bits(most < 0x7f800000u ? most : 0x7f800000u); /* the lanes' maximum leaves NaNs out */
    te_lanes_max(&amax, g);
    const float scale = te_scale_of_own(te_bits_of_float(amax), TE_E4M3_MOST, &c->scaled.rule);
    if (g->id == 0) c->scaled.inverse[row] = 1.0f / scale;
    TE_UNROLL for (int i = 0; i < k.chunks; i++)
        te__scaled_store(c, &v[i], k, row, 8 * (g->id + i * g->count), scale);
}
/* All lanes of the group arrive; of a row they have the vectors from `first` on, where it has one scale all of it. */
TE_FN void te_chain_store_scaled(const te_chain *c, const te_chain_shape k, int64_t row, te_lanes *g, int first,
                                 const te_vec8 *v) {
    if (k.scaled == TE_SCALING_TILES) te__scaled_tiles(c, k, row, *g, first, v);
    else te__scaled_row(c, k, row, g, v);
}

/* ---- maps -------------------------------------------------------------------------------------------------------- */

/* `count` rows of a chain without a norm from `row` on, `step` apart, of each the lanes' vectors from `first` on: all
 * are loaded before the first is worked on. rows: [count][2][chunks], a row and its second half. */
TE_FN void te_scaled_map_rows(const te_chain *c, te_stages_fn stages, te_store_fn store, const te_chain_shape k,
                              te_lanes *g, int64_t row, int64_t step, const int count, int first, te_vec8 *rows,
                              uint32_t *most) {
    TE_UNROLL for (int r = 0; r < count; r++)
        TE_UNROLL for (int i = 0; i < k.chunks; i++) {
            const te_place at = te_place_of(k, row + r * step, first + g->id + i * g->count, k.in_halves);
            te_vec8 *to = rows + 2 * r * k.chunks + i;
            if (at.col >= k.half) continue;
            te_vec8_load(to, c->x, te_index(at), 8, 1, k.in);
            if (k.in_halves == 2) te_vec8_load(to + k.chunks, c->x, te_index(te_second_half(at)), 8, 1, k.in);
        }
    TE_UNROLL for (int r = 0; r < count; r++) {
        te_vec8 *of = rows + 2 * r * k.chunks;
        TE_UNROLL for (int i = 0; i < k.chunks; i++) {
            te_lane l;
            l.at = te_place_of(k, row + r * step, first + g->id + i * g->count, k.in_halves);
            if (l.at.col >= k.half) continue;
            te_vec8_floats(l.v, &of[i], k.in);
            if (k.in_halves == 2) te_vec8_floats(l.g, &of[i + k.chunks], k.in);
            stages(&l, c, 0, TE_MAX_ROW);
            if (te_chain_is_scaled(c, k)) te_vec8_of_pairs(&of[i], l.v, k.out);
            store(c, &l, k, most);
        }
        if (te_chain_is_scaled(c, k)) te_chain_store_scaled(c, k, row + r * step, g, first, of);
    }
}
/* The body of such a chain: a group of lanes takes rows from `row` on, `step` apart; where `beside` one or two. */
TE_FN void te_scaled_map_body(const te_chain *c, te_stages_fn stages, te_store_fn store, const te_chain_shape k,
                              te_lanes *g, int first, int64_t row, int64_t step, const int beside, te_vec8 *rows,
                              uint32_t *most) {
    const int batch = te_map_batch(k);
    if (beside && row + (batch - 1) * step < c->rows) {
        te_scaled_map_rows(c, stages, store, k, g, row, step, te_map_batch(k), first, rows, most);
        return;
    }
    for (int r = 0; row < c->rows && (!beside || r < batch); r++, row += step)
        te_scaled_map_rows(c, stages, store, k, g, row, step, 1, first, rows, most);
}

#endif
