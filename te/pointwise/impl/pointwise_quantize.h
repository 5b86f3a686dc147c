/* pointwise_quantize.h -- stores the result of a pointwise kernel in FP8 with scales that the kernel computes: one
 * scale for each tile of 1 x 128 elements (fp8_block) or for each row (fp8_row). A group of lanes holds all elements of
 * the tile or row in registers, so the kernel that produces a GEMM's operand can also quantize the operand, without a
 * second pass. The result is bitwise identical to the result of two passes, of which the first rounds to the dtype of
 * the list of ops, and the second quantizes (quantize_blockwise.h, quantize_rowwise.h).
 *
 * Lower bound of the time: a copy of as many bytes. For each element, a kernel in a 16-bit model reads 2 bytes of x,
 * and writes 1 byte of y and 1/32 byte of tile scales. Two passes would read and write 7 bytes. Measurements:
 * docs/notes/pointwise.md.
 */
#ifndef TE_POINTWISE_QUANTIZE_H
#define TE_POINTWISE_QUANTIZE_H

#include "../../fp8/scales.h" /* te_blockwise_1d_scale_at */
#include "pointwise.h" /* te_pointwise, te_pointwise_shape */

enum { TE_TILE_LANES = TE_FP8_BLOCK / 8 /* how many lanes share a tile of 1 x 128 elements; each has eight elements. On
                                         * a CPU one lane has the whole tile */ };

/* Return whether the kernel, launched with the arguments c, stores its result in FP8 with scales that it computes. */
TE_FN int te_pointwise_is_quantized(const te_pointwise *c, const te_pointwise_shape k) {
    return k.scaled != TE_SCALING_NONE && c->scaled.y;
}

/* Some rows of a tensor in registers, in the dtype of the list of ops. A lane has te_pointwise_shape.chunks vectors of
 * eight elements of each row. */
typedef struct te_quantized_rows {
    int64_t row, step; /* the rows are row, row + step, row + 2 * step, and so on */
    int first;         /* the number, within a row, of the first lane's first vector of eight elements */
    const te_vec8 *v;  /* the lane's vectors, [rows][stride] */
    int stride;
} te_quantized_rows;

/* te__pointwise_quantize_col returns the first column of vector number i of lane number `id`.
 * te__pointwise_quantize_exists returns whether this column lies inside the row; the result is the constant 1 if the
 * lanes cover the row exactly. */
TE_FN int te__pointwise_quantize_col(te_quantized_rows rows, const te_pointwise_shape k, int id, int i) {
    return 8 * (rows.first + id + i * k.lanes);
}
TE_FN int te__pointwise_quantize_exists(const te_pointwise_shape k, int col) {
    return k.half % (8 * k.lanes * k.chunks) == 0 || col < k.half;
}
TE_FN uint32_t te__pointwise_quantize_amax(const te_vec8 *v, const te_pointwise_shape k, int col) {
    return te__pointwise_quantize_exists(k, col) ? te_amax_vec8(v, k.out) : 0;
}
TE_FN void te__pointwise_quantize_store(const te_pointwise *c, const te_vec8 *v, const te_pointwise_shape k,
                                        int64_t row, int col, float scale) {
    float x[8];
    if (!te__pointwise_quantize_exists(k, col)) return;
    te_vec8_floats(x, v, k.out);
    TE_UNROLL for (int j = 0; j < 8; j++) x[j] = te_fp8_scaled(x[j], scale);
    te_store8_fp8(c->scaled.y, row * k.half + col, x, 8, 1, TE_e4m3);
}
/* Return the scale of a 1 x 128 tile, computed from the tile's amax, and store 1 / scale to c->scaled.inverse. row,
 * col: the position of the tile's first element. amax_bits: the bits of the amax. */
TE_FN float te__pointwise_quantize_tile(const te_pointwise *c, const te_pointwise_shape k, int64_t row, int col,
                                        uint32_t amax_bits) {
    const float scale = te_scale_of_amax_bits(amax_bits, TE_E4M3_MAX, &c->scaled.rule);
    c->scaled.inverse[te_blockwise_1d_scale_at(c->rows, k.half, row, col / TE_FP8_BLOCK)] = 1.0f / scale;
    return scale;
}
#if TE_CUDA
/* Quantize `count` rows, with a scale for each tile of 1 x 128 elements. TE_TILE_LANES = 16 lanes share k.chunks tiles
 * of each row; each lane has one vector of each tile. The computation of the scales is divided among the 16 lanes: one
 * lane computes a tile's scale, and passes it to the other 15 lanes by a shuffle. */
TE_FN void te__pointwise_quantize_tiles(const te_pointwise *c, const te_pointwise_shape k, te_quantized_rows rows,
                                        const int count, te_lanes g) {
    const int tiles = count * k.chunks, lane = g.id % TE_TILE_LANES;
    TE_UNROLL for (int base = 0; base < tiles; base += TE_TILE_LANES) {
        const int mine = base + lane, col = te__pointwise_quantize_col(rows, k, g.id - lane, mine % k.chunks);
        uint32_t amax_bits = 0;
        float scale = 1.0f;
        TE_UNROLL for (int j = 0; j < TE_TILE_LANES; j++) {
            const int r = (base + j) / k.chunks, i = (base + j) % k.chunks;
            if (base + j >= tiles) continue;
            const uint32_t bits = te_lanes16_max(te__pointwise_quantize_amax(
                &rows.v[r * rows.stride + i], k, te__pointwise_quantize_col(rows, k, g.id, i)));
            amax_bits = lane == j ? bits : amax_bits;
        }
        if (mine < tiles && te__pointwise_quantize_exists(k, col))
            scale = te__pointwise_quantize_tile(c, k, rows.row + mine / k.chunks * rows.step, col, amax_bits);
        TE_UNROLL for (int j = 0; j < TE_TILE_LANES; j++) {
            const int r = (base + j) / k.chunks, i = (base + j) % k.chunks;
            if (base + j >= tiles) continue;
            te__pointwise_quantize_store(c, &rows.v[r * rows.stride + i], k, rows.row + r * rows.step,
                             te__pointwise_quantize_col(rows, k, g.id, i), te_lanes16_broadcast(scale, j));
        }
    }
}
#else
TE_FN void te__pointwise_quantize_tiles(const te_pointwise *c, const te_pointwise_shape k, te_quantized_rows rows,
                                        const int count, te_lanes g) {
    for (int i = 0; i < k.chunks; i += TE_TILE_LANES) {
        const int end = (int)te_min(k.chunks, i + TE_TILE_LANES);
        uint32_t amax_bits = 0;
        for (int j = i; j < end; j++) {
            const uint32_t bits = te__pointwise_quantize_amax(&rows.v[j], k, 8 * j);
            amax_bits = bits > amax_bits ? bits : amax_bits;
        }
        const float scale = te__pointwise_quantize_tile(c, k, rows.row, 8 * i, amax_bits);
        for (int j = i; j < end; j++) te__pointwise_quantize_store(c, &rows.v[j], k, rows.row, 8 * j, scale);
    }
    (void)count, (void)g;
}
#endif
TE_FN void te__pointwise_quantize_row(const te_pointwise *c, const te_pointwise_shape k, te_quantized_rows rows,
                                      te_lanes *g) {
    uint32_t amax_bits = 0;
    TE_UNROLL for (int i = 0; i < k.chunks; i++) {
        const uint32_t bits = te__pointwise_quantize_amax(&rows.v[i], k, te__pointwise_quantize_col(rows, k, g->id, i));
        amax_bits = bits > amax_bits ? bits : amax_bits;
    }
    float amax =
        /* replace a NaN by infinity, because te_lanes_max would drop the NaN */
        te_float_of_bits(amax_bits < 0x7f800000u ? amax_bits : 0x7f800000u);
    te_lanes_max(&amax, g);
    const float scale = te_scale_of_amax_bits(te_bits_of_float(amax), TE_E4M3_MAX, &c->scaled.rule);
    if (g->id == 0) c->scaled.inverse[rows.row] = 1.0f / scale;
    TE_UNROLL for (int i = 0; i < k.chunks; i++)
        te__pointwise_quantize_store(c, &rows.v[i], k, rows.row, te__pointwise_quantize_col(rows, k, g->id, i), scale);
}
/* Store `count` rows in FP8 and, if c->y is not null, also in the dtype of the list of ops. `count` is a compile-time
 * constant; with one scale for each row, it is 1. All lanes of the group must call this function. */
TE_FN void te_pointwise_store_quantized(const te_pointwise *c, const te_pointwise_shape k, te_quantized_rows rows,
                                        const int count, te_lanes *g) {
    if (c->y)
        TE_UNROLL for (int j = 0; j < count * k.chunks; j++) {
            const int r = j / k.chunks, i = j % k.chunks, col = te__pointwise_quantize_col(rows, k, g->id, i);
            const int64_t at = (rows.row + r * rows.step) * k.half + col;
            float x[8];
            te_vec8_floats(x, &rows.v[r * rows.stride + i], k.out);
            if (te__pointwise_quantize_exists(k, col)) te_store8(c->y, at, x, 8, 1, k.out);
        }
    if (k.scaled == TE_SCALING_BLOCKWISE_1D) te__pointwise_quantize_tiles(c, k, rows, count, *g);
    else te__pointwise_quantize_row(c, k, rows, g);
}

/* ---- without a norm ---------------------------------------------------------------------------------------------- */

/* Run the ops of a kernel without a norm on `count` rows: p->first, p->first + p->step, and so on. In each row, the
 * group of lanes has the vectors of eight elements from number p->tile on. All `count` rows are loaded before the first
 * row is computed. p->rows: registers, [count][in_halves][chunks]. scaled, a compile-time constant: 1 if the result is
 * stored in FP8 with computed scales. */
TE_FN void te_quantized_map_rows(const te_pointwise *c, te_stages_fn stages, te_store_fn store,
                                 const te_pointwise_shape k, te_lanes *g, const te_pointwise_part *p, const int count,
                                 const int scaled) {
    const int stride = k.in_halves * k.chunks;
    TE_UNROLL for (int r = 0; r < count; r++)
        TE_UNROLL for (int i = 0; i < k.chunks; i++) {
            const te_place at = te_place_of(k, p->first + r * p->step, p->tile + g->id + i * g->count, k.in_halves);
            te_vec8 *to = p->rows + r * stride + i;
            if (!te__pointwise_quantize_exists(k, at.col)) continue;
            te_vec8_load(to, c->x, te_index(at), 8, 1, k.in);
            if (k.in_halves == 2) te_vec8_load(to + k.chunks, c->x, te_index(te_second_half(at)), 8, 1, k.in);
        }
    TE_UNROLL for (int r = 0; r < count; r++)
        TE_UNROLL for (int i = 0; i < k.chunks; i++) {
            te_vec8 *of = p->rows + r * stride + i;
            te_lane l;
            l.at = te_place_of(k, p->first + r * p->step, p->tile + g->id + i * g->count, k.in_halves);
            if (!te__pointwise_quantize_exists(k, l.at.col)) continue;
            te_vec8_floats(l.v, of, k.in);
            if (k.in_halves == 2) te_vec8_floats(l.g, of + k.chunks, k.in);
            stages(&l, c, 0, TE_MAX_PATTERN);
            if (scaled) te_vec8_of_pairs(of, l.v, k.out);
            else store(c, &l, k, p->amax_bits);
        }
    const te_quantized_rows result = {p->first, p->step, p->tile, p->rows, stride};
    if (scaled) te_pointwise_store_quantized(c, k, result, count, g);
}
/* The body of a kernel without a norm that may store FP8 with computed scales. A group of lanes works on the rows
 * p->first, p->first + p->step, and so on. If `adjacent` is 1, the group works on only one batch of te_map_batch(k)
 * rows; otherwise it works on all rows up to the last row of the tensor. */
TE_FN void te__quantized_map(const te_pointwise *c, te_stages_fn stages, te_store_fn store, const te_pointwise_shape k,
                             te_lanes *g, const te_pointwise_part *p, const int adjacent, const int scaled) {
    const int batch = te_map_batch(k);
    te_pointwise_part one = *p;
    if (adjacent && p->first + (batch - 1) * p->step < c->rows) {
        te_quantized_map_rows(c, stages, store, k, g, p, te_map_batch(k), scaled);
        return;
    }
    for (int r = 0; one.first < c->rows && (!adjacent || r < batch); r++, one.first += one.step)
        te_quantized_map_rows(c, stages, store, k, g, &one, 1, scaled);
}
TE_FN void te_quantized_map_body(const te_pointwise *c, te_stages_fn stages, te_store_fn store,
                                 const te_pointwise_shape k, te_lanes *g, const te_pointwise_part *p,
                                 const int adjacent) {
    if (c->scaled.y) te__quantized_map(c, stages, store, k, g, p, adjacent, 1);
    else te__quantized_map(c, stages, store, k, g, p, adjacent, 0);
}

#endif
