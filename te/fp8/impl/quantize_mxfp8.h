/* quantize_mxfp8.h -- casts a tensor to MXFP8 in one pass: elements in e4m3, and a scale in e8m0 for each block of 32
 * elements. A block is 32 consecutive elements of a row (output y) or of a column (output yt); one kernel can store y,
 * yt or both.
 *
 * Do this:
 *     TE_QUANTIZE_MXFP8(of_bf16, bf16)                                // defines the kernels and of_bf16_run
 *     te_quantize_microscaled q = te_quantize_microscaled_of(rows, cols);
 *     q.x = x, q.y.data = y, q.y.scales = s, q.yt.data = yt, q.yt.scales = t;     // y or yt may stay null
 *     TE_TRY(of_bf16_run(&q, ctx));
 *
 * scale = the smallest power of two that is not below amax * (1 / 448). The product is computed in f32, and amax
 * ignores NaNs. An element is x / scale, rounded to nearest even and saturated. Scale and element are defined as in
 * TransformerEngine. A block with an infinity has the scale 2^127, and the infinity becomes 448, whose product with the
 * scale is infinite in f32. A NaN stays NaN.
 *
 * A warp casts a tile of 32 x 128 elements, which consists of four units of 32 x 32. A lane holds 16 rows of eight
 * columns in registers; shuffles find the amax of a row (over four lanes) and of a column (over two lanes). Lower bound
 * of the time: a copy of as many bytes, 4.06 for each bf16 element: 2 of x, 1 of y, 1 of yt, and 1/32 of each of the
 * two arrays of scales. docs/notes/fp8_casts.md has measurements.
 */
#ifndef TE_QUANTIZE_MXFP8_H
#define TE_QUANTIZE_MXFP8_H

#include "../../core/dtype.h" /* te_vec8 */
#include "../../core/lanes.h" /* te_lanes_pair_max */
#include "../microscaled.h"   /* te_quantize_microscaled */
#include "cast_transpose.h"   /* te__fp8_store_row */

enum {
    TE_MXFP8_ROWS = TE_CUDA ? 16 : 32,  /* the number of rows of a 32 x 32 unit that a lane holds */
    TE_MXFP8_VECTORS = TE_CUDA ? 1 : 4, /* the number of vectors of eight columns of a unit that a lane holds */
    TE_MXFP8_THREADS = TE_CUDA ? 256 : 1,
    TE_MXFP8_UNITS = 32, /* the number of units that a thread block casts: on CUDA four for each warp */
    TE_MXFP8_TILE_COLS = 4 * TE_MXFP8_BLOCK
};

/* The part of a 32 x 32 unit that a lane holds. row, col: the first row and the first column of this part in the
 * tensor. across, down: the lane's position among the unit's 4 x 2 lanes (across 0 to 3, down 0 to 1); on the host both
 * are 0. */
typedef struct te__mxfp8_lane { int64_t row, col; int across, down; } te__mxfp8_lane;
/* Compile-time constants of a kernel. */
typedef struct te__mxfp8_kind {
    int aligned; /* 1: cols is a multiple of eight */
    int rounded; /* 1: the kernel stores the rounded values in the dtype of x; 0: it stores elements and scales */
    te_dtype from;
} te__mxfp8_kind;

TE_FN te__mxfp8_kind te__mxfp8_kind_of(const int aligned, const int rounded, const te_dtype from) {
    te__mxfp8_kind k;
    k.aligned = aligned, k.rounded = rounded, k.from = from;
    return k;
}
/* Return the part of a unit that is held by lane number `lane` of the thread block. unit: the number of the unit in the
 * whole tensor. Four units, side by side, form a tile. On CUDA the lanes of a warp are 16 across and 2 down, so that
 * the warp loads 128 columns of a row at once. */
TE_FN te__mxfp8_lane te__mxfp8_lane_of(int64_t cols, uint32_t unit, int lane) {
    te__mxfp8_lane l;
    const uint32_t tiles_across = (uint32_t)te_ceil_div(cols, TE_MXFP8_TILE_COLS), tile = unit / 4;
    l.across = TE_CUDA ? lane % 4 : 0, l.down = TE_CUDA ? lane / 16 % 2 : 0;
    l.row = (int64_t)(tile / tiles_across) * TE_MXFP8_BLOCK + l.down * TE_MXFP8_ROWS;
    l.col = (int64_t)(tile % tiles_across * 4 + unit % 4) * TE_MXFP8_BLOCK + l.across * 8;
    return l;
}
/* Return the scale of a block with this amax, as an e8m0 code. The result is te_e8m0_of_float_up(amax * (1 / 448)), but
 * this function takes fewer instructions. */
TE_FN uint32_t te__mxfp8_scale(float amax) {
    const uint32_t u = te_bits_of_float(amax * (1.0f / TE_E4M3_MAX)), up = (u + 0x7fffffu) >> 23;
    return u <= 0x400000u ? 0u : up < 0xfeu ? up : 0xfeu; /* 0x400000: 2^-127 */
}
/* Store eight columns of one row to an output. v: the elements before scaling. inverse: 1 / scale for each column.
 * codes: the scales as e8m0 codes; if row_scale is 1, codes[0] is the scale of all eight columns. */
TE_FN void te__mxfp8_store(const te_microscaled_out *o, int64_t at, const float v[8], const float *inverse,
                           const uint32_t *codes, const int row_scale, int n, const te__mxfp8_kind k) {
    float scaled[8];
    TE_UNROLL for (int j = 0; j < 8; j++) scaled[j] = v[j] * inverse[row_scale ? 0 : j];
    const uint32_t w[2] = {te__fp8_word(scaled, 1), te__fp8_word(scaled + 4, 1)};
    if (!k.rounded) {
        te__fp8_store_row(o->data, at, w, n, k.aligned);
        return;
    }
    te__floats_of_fp8(scaled, w[0], 1), te__floats_of_fp8(scaled + 4, w[1], 1);
    TE_UNROLL for (int j = 0; j < 8; j++) scaled[j] *= te_float_of_e8m0((uint8_t)codes[row_scale ? 0 : j]);
    te__microscaled_store_rounded(o->rounded, at, scaled, n, k.aligned, k.from);
}
/* The scales of the eight columns of a vector, as e8m0 codes, and the inverses 1 / scale. */
typedef struct te__mxfp8_columns { uint32_t code[8]; float inverse[8]; } te__mxfp8_columns;

TE_FN void te__mxfp8_column_scales(te__mxfp8_columns *c, const te_vec8 *amax, const te_dtype from) {
    float m[8];
    te_vec8_floats(m, amax, from);
    TE_UNROLL for (int j = 0; j < 8; j++) {
        c->code[j] = te__mxfp8_scale(te_lanes_pair_max(m[j], 16));
        c->inverse[j] = te_inverse_of_e8m0((uint8_t)c->code[j]);
    }
}
/* Store the scales of columns col to col + 7 to q->yt.scales. */
TE_FN void te__mxfp8_store_column_scales(const te_quantize_microscaled *q, const te__mxfp8_columns *c, int64_t row,
                                         int64_t col, int n, const te__mxfp8_kind k) {
    const te_microscaled_shape s = te_microscaled_shape_of(TE_MXFP8, q->rows, q->cols, 1, q->swizzled);
    uint8_t *to = q->yt.scales + te_microscale_at(TE_MXFP8, &s, col, row / TE_MXFP8_BLOCK, 1, q->swizzled);
    uint32_t w[2] = {0, 0};
    TE_UNROLL for (int j = 0; j < 8; j++) w[j / 4] |= c->code[j] << 8 * (j % 4);
    if (!q->swizzled) te__fp8_store_row(to, 0, w, n, k.aligned);
    else TE_UNROLL for (int j = 0; j < 8; j++) if (j < n) to[16 * j] = (uint8_t)c->code[j];
}
/* Cast what a lane holds of a unit. */
TE_FN void te__mxfp8_unit(const te_quantize_microscaled *q, const te__mxfp8_lane *l, const te__mxfp8_kind k) {
    te_vec8 x[TE_MXFP8_ROWS][TE_MXFP8_VECTORS], amax[TE_MXFP8_VECTORS];
    te__mxfp8_columns c[TE_MXFP8_VECTORS];
    const int rows = l->col < q->cols ? (int)te_max(0, te_min(TE_MXFP8_ROWS, q->rows - l->row)) : 0;
    const int64_t first = l->row * q->cols + l->col;
    const uint32_t pitch = (uint32_t)(q->cols * (int64_t)te_dtype_bytes(k.from)); /* te__mxfp8_check: fits */
    const int by_row = k.rounded ? q->y.rounded != 0 : q->y.data != 0;
    const int by_col = k.rounded ? q->yt.rounded != 0 : q->yt.data != 0;
    const char *from = (const char *)te_opaque_pointer((const char *)q->x + first * (int64_t)te_dtype_bytes(k.from));
    /* load, and the amax of each column */
    TE_UNROLL for (int i = 0; i < TE_MXFP8_ROWS; i++)
        TE_UNROLL for (int h = 0; h < TE_MXFP8_VECTORS; h++) {
            const int n = (int)te_min(8, q->cols - l->col - 8 * h);
            memset(&x[i][h], 0, sizeof x[i][h]);
            if (i < rows && n > 0)
                te_vec8_load(&x[i][h], from + (uint64_t)(uint32_t)i * pitch, 8 * h, n, k.aligned, k.from);
        }
    TE_UNROLL for (int h = 0; h < TE_MXFP8_VECTORS; h++) {
        const int n = (int)te_min(8, q->cols - l->col - 8 * h);
        memset(&amax[h], 0, sizeof amax[h]);
        if (!by_col) continue;
        TE_UNROLL for (int i = 0; i < TE_MXFP8_ROWS; i++) te_vec8_max_numbers(&amax[h], &x[i][h], k.from);
        te__mxfp8_column_scales(&c[h], &amax[h], k.from);
        if (!k.rounded && l->down == 0 && rows > 0 && n > 0)
            te__mxfp8_store_column_scales(q, &c[h], l->row, l->col + 8 * h, n, k);
    }
    /* the amax of each row; cast and store */
    const te_microscaled_shape s = te_microscaled_shape_of(TE_MXFP8, q->rows, q->cols, 0, q->swizzled);
    const int64_t stride = te__microscale_stride(TE_MXFP8, &s, 0, q->swizzled);
    const int64_t scale_at = te_microscale_at(TE_MXFP8, &s, l->row, l->col / TE_MXFP8_BLOCK, 0, q->swizzled);
    TE_UNROLL for (int i = 0; i < TE_MXFP8_ROWS; i++) {
        uint32_t code = 0;
        if (by_row) {
            const float m = te_vec8_largest(x[i], TE_MXFP8_VECTORS, k.from);
            code = te__mxfp8_scale(te_lanes_pair_max(te_lanes_pair_max(m, 1), 2));
            if (!k.rounded && l->across == 0 && i < rows) q->y.scales[scale_at + i * stride] = (uint8_t)code;
        }
        const float inverse = te_inverse_of_e8m0((uint8_t)code);
        TE_UNROLL for (int h = 0; h < TE_MXFP8_VECTORS; h++) {
            const int n = (int)te_min(8, q->cols - l->col - 8 * h);
            const int64_t at = first + (int64_t)((uint64_t)(uint32_t)i * (uint32_t)q->cols) + 8 * h;
            float v[8];
            if (i >= rows || n <= 0) continue;
            te_vec8_floats(v, &x[i][h], k.from);
            if (by_row) te__mxfp8_store(&q->y, at, v, &inverse, &code, 1, n, k);
            if (by_col) te__mxfp8_store(&q->yt, at, v, c[h].inverse, c[h].code, 0, n, k);
        }
    }
}
TE_FN void te_mxfp8_body(const te_quantize_microscaled *q, te_block b, const te__mxfp8_kind kind) {
    int group;
    const te_lanes g = te_lanes_here(TE_MXFP8_THREADS, &group);
    for (int i = 0; i < (TE_CUDA ? 1 : TE_MXFP8_UNITS); i++) { /* on CUDA a lane has one unit */
        const int unit = TE_CUDA ? g.id / 32 * 4 + g.id / 4 % 4 : i;
        const te__mxfp8_lane l = te__mxfp8_lane_of(q->cols, (uint32_t)b.x * TE_MXFP8_UNITS + (uint32_t)unit, g.id);
        te__mxfp8_unit(q, &l, kind);
    }
}
TE_API te_grid te__mxfp8_grid(const te_quantize_microscaled *q) {
    const int64_t tiles = te_ceil_div(q->rows, TE_MXFP8_BLOCK) * te_ceil_div(q->cols, TE_MXFP8_TILE_COLS);
    return te__grid_of(te_ceil_div(4 * tiles, TE_MXFP8_UNITS), 1);
}

/* The number of thread blocks that must fit on an SM; the compiler limits the registers of a thread accordingly. For an
 * x in f32, which takes more registers, the number is smaller */
#define TE__MXFP8_RESIDENT(from) (TE_##from == TE_f32 ? 1 : 2)
#define TE__MXFP8_KERNEL(name, from, aligned, rounded)                                                             \
    TE_KERNEL_RESIDENT(name, TE_MXFP8_THREADS, TE__MXFP8_RESIDENT(from), te_quantize_microscaled,                  \
                       te_mxfp8_body(te_args, te_at, te__mxfp8_kind_of(aligned, rounded, TE_##from)))

/* Define kernels for tensors of dtype `from`, and te_status name_run(const te_quantize_microscaled *q, te_context
 * *ctx), which stores elements and scales. The members y.rounded and yt.rounded must be null. Errors: TE_ERROR_NULL,
 * TE_ERROR_SHAPE, TE_ERROR_VALUE, TE_ERROR_ALIGNMENT, TE_ERROR_OVERFLOW. */
#define TE_QUANTIZE_MXFP8(name, from)                                                                              \
    TE__MXFP8_KERNEL(name##_aligned, from, 1, 0)                                                                   \
    TE__MXFP8_KERNEL(name##_unaligned, from, 0, 0)                                                                 \
    TE_API te_status name##_run(const te_quantize_microscaled *q, te_context *ctx) {                               \
        TE_TRY(te__microscaled_check(q, TE_MXFP8, 0, #name, ctx));                                                 \
        if (!q->rows || !q->cols) return TE_OK;                                                                    \
        TE_TRY(te__microscaled_clear_padding(q, TE_MXFP8, ctx));                                                   \
        return q->cols % 8 == 0 ? name##_aligned_launch(ctx, te__mxfp8_grid(q), q)                                 \
                                : name##_unaligned_launch(ctx, te__mxfp8_grid(q), q);                              \
    }
/* Define a kernel and te_status name_run(const te_quantize_microscaled *q, te_context *ctx), which stores y.rounded and
 * yt.rounded. `cols` must be a multiple of eight, and the members `data` and `scales` of y and yt must be null. Errors:
 * those of TE_QUANTIZE_MXFP8. */
#define TE_ROUND_MXFP8(name, from)                                                                                 \
    TE__MXFP8_KERNEL(name##_kernel, from, 1, 1)                                                                    \
    TE_API te_status name##_run(const te_quantize_microscaled *q, te_context *ctx) {                               \
        TE_TRY(te__microscaled_check(q, TE_MXFP8, 1, #name, ctx));                                                 \
        return q->rows && q->cols ? name##_kernel_launch(ctx, te__mxfp8_grid(q), q) : TE_OK;                       \
    }

#endif
