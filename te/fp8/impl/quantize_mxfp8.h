/* quantize_mxfp8.h -- casts a tensor to MXFP8: elements in e4m3, and a scale in e8m0 for each block of 32 elements of a
 * row, of a column, or of both, in one pass.
 *
 * Do this:
 *     TE_QUANTIZE_MXFP8(of_bf16, bf16)                                // defines the kernels and of_bf16_run
 *     te_quantize_microscaled q = te_quantize_microscaled_of(rows, cols);
 *     q.x = x, q.y.data = y, q.y.scales = s, q.yt.data = yt, q.yt.scales = t;     // y or yt may stay null
 *     TE_TRY(of_bf16_run(&q, ctx));
 *
 * scale = the smallest power of two that is not below amax / 448, where amax * (1 / 448) is computed in f32, and amax
 * ignores NaNs; an element is x / scale, rounded to nearest even and saturated. This is TransformerEngine's definition.
 * An infinity becomes 448 in a block of scale 2^127, so its value is infinite in f32; a NaN stays NaN.
 *
 * A warp casts a tile of 64 x 64 elements, four units of 32 x 32; a lane holds 16 rows of eight columns in registers,
 * and shuffles find the amax of rows (over four lanes) and of columns (over two). Lower bound: the time of a copy of
 * the same bytes, for each bf16 element 4.06: 2 of x, 1 each of y and yt, and 1/32 each of their scales.
 */
#ifndef TE_QUANTIZE_MXFP8_H
#define TE_QUANTIZE_MXFP8_H

#include "../../core/dtype.h" /* te_vec8 */
#include "../../core/lanes.h" /* te_lanes_pair_max */
#include "../microscaled.h"   /* te_quantize_microscaled */
#include "cast_transpose.h"   /* te__fp8_store_row */

enum {
    TE_MXFP8_ROWS = TE_CUDA ? 16 : 32,  /* the rows of a unit that a lane holds */
    TE_MXFP8_VECTORS = TE_CUDA ? 1 : 4, /* the vectors of eight columns of a unit that a lane holds */
    TE_MXFP8_THREADS = TE_CUDA ? 256 : 1,
    TE_MXFP8_UNITS = 32 /* the units that a block of threads casts: on CUDA four in each warp */
};

/* What a lane holds of a unit: the first row and column of its part, and the bits of the lane's index in which it
 * differs from the other lanes of the unit (across: 0 to 3, down: 0 or 1). */
typedef struct te__mxfp8_lane { int64_t row, col; int across, down; } te__mxfp8_lane;

/* Returns what lane `lane` of the block holds in its unit number `unit`, an index in the whole tensor. Units are
 * counted by tiles of 2 x 2 units. */
TE_FN te__mxfp8_lane te__mxfp8_lane_of(int64_t cols, int64_t unit, int lane) {
    te__mxfp8_lane l;
    const int64_t tiles_across = te_ceil_div(cols, 2 * TE_MXFP8_BLOCK), tile = unit / 4;
    l.across = TE_CUDA ? lane % 4 : 0, l.down = TE_CUDA ? lane / 8 % 2 : 0;
    l.row = (tile / tiles_across * 2 + unit % 4 / 2) * TE_MXFP8_BLOCK + l.down * TE_MXFP8_ROWS;
    l.col = (tile % tiles_across * 2 + unit % 2) * TE_MXFP8_BLOCK + l.across * 8;
    return l;
}
/* Store row `row` of a lane's eight columns of one output. scaled: the elements, times 1 / scale; scale: for each the
 * scale. from: the dtype of x, a compile-time constant. */
TE_FN void te__mxfp8_store(const te_microscaled_out *o, int64_t at, const float scaled[8], const float scale[8], int n,
                           const int aligned, const te_dtype from) {
    const uint32_t w[2] = {te__fp8_word(scaled, 1), te__fp8_word(scaled + 4, 1)};
    if (o->data) te__fp8_store_row(o->data, at, w, n, aligned);
    if (o->rounded) {
        float v[8];
        te__floats_of_fp8(v, w[0], 1), te__floats_of_fp8(v + 4, w[1], 1);
        TE_UNROLL for (int k = 0; k < 8; k++) v[k] *= scale[k];
        te__microscaled_store_rounded(o->rounded, at, v, n, aligned, from);
    }
}
/* Store the scales of a lane's rows and columns that lie in the tensor; of the lanes that share a row or a column, one
 * stores. */
TE_FN void te__mxfp8_store_scales(const te_quantize_microscaled *q, const te__mxfp8_lane *l, const uint8_t *rows,
                                  const uint8_t *cols) {
    const te_microscaled_shape by_row = te_microscaled_shape_of(TE_MXFP8, q->rows, q->cols, 0, q->swizzled);
    const te_microscaled_shape by_col = te_microscaled_shape_of(TE_MXFP8, q->rows, q->cols, 1, q->swizzled);
    if (q->y.scales && l->across == 0 && l->col < q->cols)
        TE_UNROLL for (int k = 0; k < TE_MXFP8_ROWS; k++) if (l->row + k < q->rows)
            q->y.scales[te_microscale_at(TE_MXFP8, &by_row, l->row + k, l->col / TE_MXFP8_BLOCK, 0, q->swizzled)] =
                rows[k];
    if (q->yt.scales && l->down == 0 && l->row < q->rows)
        TE_UNROLL for (int k = 0; k < 8 * TE_MXFP8_VECTORS; k++) if (l->col + k < q->cols)
            q->yt.scales[te_microscale_at(TE_MXFP8, &by_col, l->col + k, l->row / TE_MXFP8_BLOCK, 1, q->swizzled)] =
                cols[k];
}
/* Cast what a lane holds of a unit. aligned: 1 if cols is a multiple of eight; from: the dtype of x; both are
 * compile-time constants. */
TE_FN void te__mxfp8_unit(const te_quantize_microscaled *q, const te__mxfp8_lane *l, const int aligned,
                          const te_dtype from) {
    te_vec8 x[TE_MXFP8_ROWS][TE_MXFP8_VECTORS];
    float row_amax[TE_MXFP8_ROWS], col_amax[TE_MXFP8_VECTORS][8], v[8];
    uint8_t row_code[TE_MXFP8_ROWS], col_code[8 * TE_MXFP8_VECTORS];
    const int rows = (int)te_max(0, te_min(TE_MXFP8_ROWS, q->rows - l->row));
    /* load */
    TE_UNROLL for (int k = 0; k < TE_MXFP8_ROWS; k++)
        TE_UNROLL for (int h = 0; h < TE_MXFP8_VECTORS; h++) {
            const int64_t col = l->col + 8 * h;
            memset(&x[k][h], 0, sizeof x[k][h]);
            if (k < rows && col < q->cols)
                te_vec8_load(&x[k][h], q->x, (l->row + k) * q->cols + col, (int)te_min(8, q->cols - col), aligned,
                             from);
        }
    /* amax and scale of each row and column */
    TE_UNROLL for (int h = 0; h < TE_MXFP8_VECTORS; h++) TE_UNROLL for (int j = 0; j < 8; j++) col_amax[h][j] = 0.0f;
    TE_UNROLL for (int k = 0; k < TE_MXFP8_ROWS; k++) {
        row_amax[k] = 0.0f;
        TE_UNROLL for (int h = 0; h < TE_MXFP8_VECTORS; h++) {
            te_vec8_floats(v, &x[k][h], from);
            TE_UNROLL for (int j = 0; j < 8; j++) {
                row_amax[k] = te__microscaled_max(row_amax[k], v[j]);
                col_amax[h][j] = te__microscaled_max(col_amax[h][j], v[j]);
            }
        }
        row_amax[k] = te_lanes_pair_max(te_lanes_pair_max(row_amax[k], 1), 2);
        row_code[k] = te_e8m0_of_float_up(row_amax[k] * (1.0f / TE_E4M3_MAX));
    }
    TE_UNROLL for (int h = 0; h < TE_MXFP8_VECTORS; h++)
        TE_UNROLL for (int j = 0; j < 8; j++) {
            const float amax = te_lanes_pair_max(col_amax[h][j], 8);
            col_code[8 * h + j] = te_e8m0_of_float_up(amax * (1.0f / TE_E4M3_MAX));
        }
    te__mxfp8_store_scales(q, l, row_code, col_code);
    /* cast and store */
    TE_UNROLL for (int k = 0; k < TE_MXFP8_ROWS; k++)
        TE_UNROLL for (int h = 0; h < TE_MXFP8_VECTORS; h++) {
            const int64_t col = l->col + 8 * h, at = (l->row + k) * q->cols + col;
            const int n = (int)te_min(8, q->cols - col);
            float scaled[8], scale[8];
            if (k >= rows || n <= 0) continue;
            te_vec8_floats(v, &x[k][h], from);
            if (q->y.data || q->y.rounded) {
                const float inverse = te_inverse_of_e8m0(row_code[k]);
                TE_UNROLL for (int j = 0; j < 8; j++)
                    scaled[j] = v[j] * inverse, scale[j] = te_float_of_e8m0(row_code[k]);
                te__mxfp8_store(&q->y, at, scaled, scale, n, aligned, from);
            }
            if (q->yt.data || q->yt.rounded) {
                TE_UNROLL for (int j = 0; j < 8; j++)
                    scaled[j] = v[j] * te_inverse_of_e8m0(col_code[8 * h + j]),
                    scale[j] = te_float_of_e8m0(col_code[8 * h + j]);
                te__mxfp8_store(&q->yt, at, scaled, scale, n, aligned, from);
            }
        }
}
TE_FN void te_mxfp8_body(const te_quantize_microscaled *q, te_block b, const int aligned, const te_dtype from) {
    int group;
    const te_lanes g = te_lanes_here(TE_MXFP8_THREADS, &group);
    /* on CUDA a lane has one unit: the four units of a warp lie beside each other (bit 2 of the lane's index) and one
     * above the other (bit 4), so eight lanes load 64 columns of a row */
    const int first = TE_CUDA ? g.id / 32 * 4 + g.id / 16 % 2 * 2 + g.id / 4 % 2 : 0;
    for (int k = first; k < TE_MXFP8_UNITS; k += TE_CUDA ? TE_MXFP8_UNITS : 1) {
        const te__mxfp8_lane l = te__mxfp8_lane_of(q->cols, (int64_t)b.x * TE_MXFP8_UNITS + k, g.id);
        te__mxfp8_unit(q, &l, aligned, from);
    }
}
TE_API te_grid te__mxfp8_grid(const te_quantize_microscaled *q) {
    const int64_t tiles = te_ceil_div(q->rows, 2 * TE_MXFP8_BLOCK) * te_ceil_div(q->cols, 2 * TE_MXFP8_BLOCK);
    return te__grid_of(te_ceil_div(4 * tiles, TE_MXFP8_UNITS), 1);
}

/* the number of blocks that must fit on an SM, for which the compiler limits registers; in f32 x takes more of them */
#define TE__MXFP8_RESIDENT(from) (TE_##from == TE_f32 ? 1 : 2)

/* Define the kernels for tensors of dtype `from`, one for cols that are a multiple of eight and one for other cols, and
 * te_status name_run(const te_quantize_microscaled *q, te_context *ctx). Errors: TE_ERROR_NULL, TE_ERROR_SHAPE,
 * TE_ERROR_ALIGNMENT, TE_ERROR_OVERFLOW. */
#define TE_QUANTIZE_MXFP8(name, from)                                                                              \
    TE_KERNEL_RESIDENT(name##_aligned, TE_MXFP8_THREADS, TE__MXFP8_RESIDENT(from), te_quantize_microscaled,        \
                       te_mxfp8_body(te_args, te_at, 1, TE_##from))                                                \
    TE_KERNEL_RESIDENT(name##_unaligned, TE_MXFP8_THREADS, 1, te_quantize_microscaled,                             \
                       te_mxfp8_body(te_args, te_at, 0, TE_##from))                                                \
    TE_API te_status name##_run(const te_quantize_microscaled *q, te_context *ctx) {                               \
        TE_TRY(te__microscaled_check(q, TE_MXFP8, #name, ctx));                                                    \
        if (!q->rows || !q->cols) return TE_OK;                                                                    \
        TE_TRY(te__microscaled_clear_padding(q, TE_MXFP8, ctx));                                                   \
        return q->cols % 8 == 0 ? name##_aligned_launch(ctx, te__mxfp8_grid(q), q)                                 \
                                : name##_unaligned_launch(ctx, te__mxfp8_grid(q), q);                              \
    }

#endif
