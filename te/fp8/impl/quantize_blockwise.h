/* quantize_blockwise.h -- casts a tensor to FP8 with one scale for each block of 1 x 128 or of 128 x 128 elements. One
 * pass produces the tensor in FP8, its transpose, and the scales of both.
 *
 * Do this:
 *     TE_QUANTIZE_BLOCKWISE(of_bf16, bf16)                            // defines the kernel and of_bf16_run
 *     te_quantize_blockwise q = te__quantize_blockwise_of(rows, cols); // cols a multiple of 16
 *     q.x = x, q.y = y, q.y_inverse = s, q.yt = yt, q.yt_inverse = t; // y and s, or yt and t, may stay null
 *     TE_TRY(of_bf16_run(&q, ctx));
 *
 * 1D blocks (default): y[rows, cols] has one scale for each 1 x 128 elements of a row of x. Its transpose yt[cols,
 * yt_cols], which the weight gradient reads, has one scale for each 128 x 1 elements of a column of x. Because the
 * scales differ, both y and yt are rounded from x itself (DeepSeek-V3, arXiv:2412.19437, section 3.3). 2D blocks
 * (q.square_blocks, for weights): there is one scale for each 128 x 128 elements, and yt has the same bytes as y,
 * transposed. scale = (largest number of the FP8 format) / (amax of the block), or 1 if the amax is 0, infinite or NaN.
 * scales.h describes the layout of scales.
 *
 * A thread block casts a tile of 128 x 128. Each lane (thread) holds 8 x 8 elements in registers while the amax of each
 * row and column is reduced in shared memory. Lower bound of the time: a copy of as many bytes, 4.06 for each bf16
 * element: 2 of x, 1 of y, 1 of yt, and 1/32 of each of the two arrays of scales. Measurements:
 * docs/notes/fp8_casts.md.
 */
#ifndef TE_QUANTIZE_BLOCKWISE_H
#define TE_QUANTIZE_BLOCKWISE_H

#include "../../core/target.h" /* te_multi_tensor_find */
#include "../scales.h"         /* te_scale_of_amax, te_blockwise_1d_scale_at */
#include "cast_transpose.h"    /* te__fp8_transpose_piece, te__fp8_store_tile */

typedef struct te_quantize_blockwise {
    void *y, *yt;                   /* [rows, cols] and [cols, yt_cols], of dtype `to`; null: this output is not
                                     * stored */
    float *y_inverse, *yt_inverse;  /* 1 / scale of each block of y and of yt; target memory */
    const void *x;                  /* [rows, cols] of the dtype that the kernel is made for */
    int64_t rows, cols;
    int64_t yt_cols; /* `rows` up to `rows` rounded up to a multiple of 128; yt's columns from index `rows` on become
                      * zeros */
    te_dtype to;
    int square_blocks;  /* 1: blocks of 128 x 128 elements; 0: blocks of 1 x 128 elements */
    te_scale_rule rule; /* only its members epsilon, margin and power_of_two are used, because there is no amax
                         * history */
} te_quantize_blockwise;

TE_API te_quantize_blockwise te__quantize_blockwise_of(int64_t rows, int64_t cols) {
    te_quantize_blockwise q;
    memset(&q, 0, sizeof q);
    q.rows = q.yt_cols = rows, q.cols = cols, q.to = TE_e4m3, q.rule = te__scale_rule_current();
    return q;
}

typedef struct te_blockwise_args { te_fp8_out out; te_quantize_blockwise q; } te_blockwise_args;

enum {
    TE_BLOCKWISE_LANES_A_SIDE = TE_FP8_TILE / 8,         /* the number of 8 x 8 pieces along a side of the tile */
    TE_BLOCKWISE_PIECES = TE_FP8_LANES / TE_FP8_THREADS, /* the number of 8 x 8 pieces that a lane has: one on CUDA, all
                                                          * pieces of the tile on the host */
    /* the pitch of te_blockwise_shared.amax, in words. The padding of 4 words makes the lanes of a warp write to
     * different banks */
    TE_BLOCKWISE_LINE_PITCH = TE_FP8_TILE + 4
};
/* The 8 x 8 pieces of x that a lane holds in registers while the scales are computed. */
typedef struct te_blockwise_registers { te_vec8 x[TE_BLOCKWISE_PIECES][8]; } te_blockwise_registers;
/* In the arrays of this struct, a "line" is a row or a column of the tile. The first index of an array is 0 for rows
 * and 1 for columns. */
typedef struct te_blockwise_shared {
    union {
        /* amax[0 for rows, 1 for columns][k][line]: the largest |x| among the elements 8 * k to 8 * k + 7 of a line, in
         * the dtype of x. If x has 16 bits, a word holds the maxima of two neighbouring lines */
        uint32_t amax[2][TE_BLOCKWISE_LANES_A_SIDE][TE_BLOCKWISE_LINE_PITCH];
        te_fp8_shared transposed;
    } u;
    uint32_t line[2][TE_FP8_TILE]; /* the bits of each line's scale. With 2D blocks, at first the bits of the line's
                                    * largest |x|, from which the scale is computed */
} te_blockwise_shared;

/* The row and the column, in the tensor, of a tile's first element. */
typedef struct te_blockwise_origin { int64_t row, col; } te_blockwise_origin;

TE_FN te_blockwise_origin te__blockwise_origin_at(int64_t row, int64_t col) {
    te_blockwise_origin o;
    o.row = row, o.col = col;
    return o;
}

/* ---- load, and the amax of each line ----------------------------------------------------------------------------- */

/* Return how many rows of the 8 x 8 piece at (row, col) lie in the tensor. If col is past the tensor's last column,
 * return 0. */
TE_FN int te__blockwise_rows(int64_t rows, int64_t cols, int64_t row, int64_t col) {
    return col < cols ? (int)te_max(0, te_min(8, rows - row)) : 0;
}
/* Load piece i (8 x 8 elements) of the tile whose first element is at (row0, col0). from: the dtype of x, a
 * compile-time constant. */
TE_FN void te__blockwise_load(const te_quantize_blockwise *q, te_vec8 x[8], int64_t row0, int64_t col0, int i,
                              const te_dtype from) {
    const int64_t row = row0 + i / TE_BLOCKWISE_LANES_A_SIDE * 8, col = col0 + i % TE_BLOCKWISE_LANES_A_SIDE * 8;
    const int rows = te__blockwise_rows(q->rows, q->cols, row, col);
    /* the bytes of a row of x, which fit into 32 bits, because te__blockwise_args_of has checked the number of
     * columns */
    const uint32_t pitch = (uint32_t)(q->cols * (int64_t)te_dtype_bytes(from));
    const char *first =
        (const char *)te_opaque_pointer((const char *)q->x + (row * q->cols + col) * (int64_t)te_dtype_bytes(from));
    TE_UNROLL for (uint32_t k = 0; k < 8; k++) {
        memset(&x[k], 0, sizeof x[k]);
        if ((int)k < rows) te_vec8_load(&x[k], first + (uint64_t)k * pitch, 0, 8, 1, from);
    }
}
/* Store the eight elements *e to the address `to`, which is a multiple of 16 bytes. The elements take four words in a
 * 16-bit format, and eight words in f32. */
TE_FN void te__blockwise_store_words(uint32_t *to, const te_vec8 *e, const te_dtype from) {
    TE_UNROLL for (int h = 0; h < (from == TE_f32 ? 2 : 1); h++) {
        te__bytes16 four;
        TE_UNROLL for (int j = 0; j < 4; j++) four.w[j] = e->w[4 * h + j];
        ((te__bytes16 *)(void *)to)[h] = four;
    }
}
/* Write the largest |x| of each row and of each column of piece i (8 x 8 elements of the tile) to shared memory.
 * Elements outside the tensor were loaded as 0. */
TE_FN void te__blockwise_piece_amax(const te_vec8 x[8], te_blockwise_shared *s, int i, const te_dtype from) {
    const int down = i / TE_BLOCKWISE_LANES_A_SIDE, across = i % TE_BLOCKWISE_LANES_A_SIDE;
    const int words = from == TE_f32 ? 8 : 4;
    te_vec8 of_rows, of_cols;
    memset(&of_rows, 0, sizeof of_rows);
    memset(&of_cols, 0, sizeof of_cols);
    TE_UNROLL for (int k = 0; k < 8; k++) te_vec8_max_magnitudes(&of_cols, &x[k], from);
    TE_UNROLL for (int k = 0; k < words; k++)
        of_rows.w[k] = from == TE_f32 ? te_amax_vec8(&x[k], from) : te_amax_16x2_of_two_vec8(&x[2 * k], &x[2 * k + 1]);
    te__blockwise_store_words(&s->u.amax[0][across][words * down], &of_rows, from);
    te__blockwise_store_words(&s->u.amax[1][down][words * across], &of_cols, from);
}
/* Return the largest |x| of line i, as the bits of a float. Lines 0 to 127 are the rows of the tile, and lines 128 to
 * 255 its columns. */
TE_FN uint32_t te__blockwise_line_amax(const te_blockwise_shared *s, int i, const te_dtype from) {
    const int at = i % TE_FP8_TILE, is_16_bit = from != TE_f32;
    uint32_t amax = 0;
    TE_UNROLL for (int k = 0; k < TE_BLOCKWISE_LANES_A_SIDE; k++) {
        const uint32_t part = s->u.amax[i / TE_FP8_TILE][k][is_16_bit ? at / 2 : at];
        amax = is_16_bit ? te__max_u16x2(amax, part) : part > amax ? part : amax;
    }
    return is_16_bit ? te_amax_bits_of_16(at % 2 ? amax >> 16 : amax & 0xffffu, from) : amax;
}

/* ---- scales ------------------------------------------------------------------------------------------------------ */

/* Set the entry of s->line for line i, where lines 0 to 127 are the tile's rows and lines 128 to 255 its columns. With
 * blocks of 1 x 128, the entry becomes the line's scale, and 1 / scale is stored to q->y_inverse or q->yt_inverse. With
 * blocks of 128 x 128, the entry becomes the line's largest |x|. format_max is the largest number of the FP8 format. */
TE_FN void te__blockwise_1d_scale(const te_quantize_blockwise *q, te_blockwise_shared *s, te_blockwise_origin o, int i,
                                  float format_max, const te_dtype from) {
    const int is_column = i / TE_FP8_TILE, at = i % TE_FP8_TILE;
    uint32_t bits = te__blockwise_line_amax(s, i, from);
    if (!q->square_blocks) {
        const float scale = te_scale_of_amax_bits(bits, format_max, &q->rule);
        const int64_t row = o.row + at, col = o.col + at;
        bits = te_bits_of_float(scale);
        if (!is_column && q->y && row < q->rows)
            q->y_inverse[te_blockwise_1d_scale_at(q->rows, q->cols, row, o.col / TE_FP8_TILE)] = 1.0f / scale;
        if (is_column && q->yt && col < q->cols)
            q->yt_inverse[te_blockwise_1d_scale_at(q->cols, q->yt_cols, col, o.row / TE_FP8_TILE)] = 1.0f / scale;
    }
    s->line[is_column][at] = bits;
}
/* Store `value`, the 1 / scale of the 128 x 128 block in row `row` and column `col` of blocks, to the array `inverse`.
 * For the last block of a row of blocks, also fill the padding behind this row's entries with 1, because cuBLASLt may
 * read the padding. */
TE_FN void te__blockwise_2d_store_inverse(float *inverse, int64_t cols, int64_t row, int64_t col, float value) {
    inverse[te_blockwise_2d_scale_at(cols, row, col)] = value;
    for (int64_t k = col + 1; col + 1 == te_fp8_blocks(cols) && k < te_blockwise_2d_scale_pitch(cols); k++)
        inverse[te_blockwise_2d_scale_at(cols, row, k)] = 1.0f;
}
/* With blocks of 128 x 128: compute the scale of the whole tile, and set s->line of all lines to it. The first lane
 * stores 1 / scale to the outputs. */
TE_FN void te__blockwise_2d_scale(const te_quantize_blockwise *q, te_blockwise_shared *s, te_blockwise_origin o,
                                  te_lanes g, float format_max) {
    const int lanes = TE_CUDA ? TE_BLOCKWISE_LANES_A_SIDE : 1;
    const int64_t row = o.row / TE_FP8_TILE, col = o.col / TE_FP8_TILE;
    uint32_t bits = 0;
    for (int k = g.id % lanes; k < TE_FP8_TILE; k += lanes) bits = s->line[0][k] > bits ? s->line[0][k] : bits;
    const float scale = te_scale_of_amax_bits(te_lanes16_max(bits), format_max, &q->rule);
    if (g.id == 0 && q->y) te__blockwise_2d_store_inverse(q->y_inverse, q->cols, row, col, 1.0f / scale);
    if (g.id == 0 && q->yt) te__blockwise_2d_store_inverse(q->yt_inverse, q->yt_cols, col, row, 1.0f / scale);
    te_block_sync();
    for (int i = g.id; i < 2 * TE_FP8_TILE; i += TE_FP8_THREADS)
        s->line[i / TE_FP8_TILE][i % TE_FP8_TILE] = te_bits_of_float(scale);
    te_block_sync();
}

/* ---- cast and store ---------------------------------------------------------------------------------------------- */

/* Cast piece i (8 x 8 elements). If by_columns is 0, multiply the elements by the scales of the piece's rows, and store
 * the result to y. If by_columns is 1, multiply the elements by the scales of the piece's columns, and store the result
 * to the transposed tile in shared memory. by_columns and the formats are compile-time constants. */
TE_FN void te__blockwise_cast(const te_blockwise_args *a, const te_vec8 x[8], te_blockwise_shared *s,
                              te_blockwise_origin o, int i, const int by_columns, const te_dtype from,
                              const te_dtype to) {
    const int row = i / TE_BLOCKWISE_LANES_A_SIDE * 8, col = i % TE_BLOCKWISE_LANES_A_SIDE * 8;
    const int rows = te__blockwise_rows(a->q.rows, a->q.cols, o.row + row, o.col + col);
    /* Load the scales here, before any store, because otherwise the compiler would load them again after each store. */
    const te__bytes16 *line = (const te__bytes16 *)(const void *)&s->line[by_columns][by_columns ? col : row];
    const te__bytes16 scales[2] = {line[0], line[1]};
    uint8_t *y =
        by_columns ? 0 : (uint8_t *)(uintptr_t)te_opaque_pointer(a->out.y + (o.row + row) * a->q.cols + o.col + col);
    uint32_t r[8][2];
    TE_UNROLL for (uint32_t k = 0; k < 8; k++) {
        float v[8];
        te_vec8_floats(v, &x[k], from);
        TE_UNROLL for (uint32_t j = 0; j < 8; j++) {
            const uint32_t at = by_columns ? j : k;
            v[j] = te_fp8_scaled(v[j], te_float_of_bits(scales[at / 4].w[at % 4]));
        }
        r[k][0] = te__fp8_word(v, to == TE_e4m3), r[k][1] = te__fp8_word(v + 4, to == TE_e4m3);
        if (!by_columns && (int)k < rows) te__fp8_store_row(y + (uint64_t)k * (uint32_t)a->q.cols, 0, r[k], 8, 1);
    }
    if (by_columns) te__fp8_transpose_piece(&s->u.transposed, r, row, col);
}
/* Compute the scales of the tile whose first element is at (row, col), cast the tile, and store the result. held: this
 * lane's elements of the tile, in registers. */
TE_FN void te__blockwise_store(const te_blockwise_args *a, const te_blockwise_registers *held, te_blockwise_shared *s,
                               te_lanes g, int64_t row, int64_t col, const te_dtype from, const te_dtype to) {
    const te_quantize_blockwise *q = &a->q;
    const te_blockwise_origin o = te__blockwise_origin_at(row, col);
    const float format_max = te_fp8_max(to);
    TE_UNROLL for (int h = 0; h < TE_BLOCKWISE_PIECES; h++)
        te__blockwise_piece_amax(held->x[h], s, g.id + h * g.count, from);
    te_block_sync();
    for (int i = g.id; i < 2 * TE_FP8_TILE; i += TE_FP8_THREADS) te__blockwise_1d_scale(q, s, o, i, format_max, from);
    te_block_sync();
    if (q->square_blocks) te__blockwise_2d_scale(q, s, o, g, format_max);
    TE_UNROLL for (int h = 0; h < TE_BLOCKWISE_PIECES; h++)
        if (q->y) te__blockwise_cast(a, held->x[h], s, o, g.id + h * g.count, 0, from, to);
    if (!q->yt) return;
    TE_UNROLL for (int h = 0; h < TE_BLOCKWISE_PIECES; h++)
        te__blockwise_cast(a, held->x[h], s, o, g.id + h * g.count, 1, from, to);
    te_block_sync();
    te__fp8_store_tile(&a->out, &s->u.transposed, row, col, g);
}
/* Cast the tile of block b. */
TE_FN void te__blockwise_tile(const te_blockwise_args *a, te_block b, te_blockwise_registers *held,
                              te_blockwise_shared *s, const te_dtype from, const te_dtype to) {
    int group;
    const te_lanes g = te_lanes_here(TE_FP8_THREADS, &group);
    const int tiles_across = (int)te_ceil_div(a->q.cols, TE_FP8_TILE);
    const int64_t row = (int64_t)(b.x / tiles_across) * TE_FP8_TILE, col = (int64_t)(b.x % tiles_across) * TE_FP8_TILE;
    TE_UNROLL for (int h = 0; h < TE_BLOCKWISE_PIECES; h++)
        te__blockwise_load(&a->q, held->x[h], row, col, g.id + h * g.count, from);
    te__blockwise_store(a, held, s, g, row, col, from, to);
}
TE_FN void te_blockwise_body(const te_blockwise_args *a, te_block b, te_blockwise_registers *held,
                             te_blockwise_shared *s, const te_dtype from) {
    if (a->q.to == TE_e4m3) te__blockwise_tile(a, b, held, s, from, TE_e4m3);
    else te__blockwise_tile(a, b, held, s, from, TE_e5m2);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

TE_API te_status te__blockwise_args_of(te_blockwise_args *a, const te_quantize_blockwise *q, const char *who,
                                       te_context *ctx) {
    memset(a, 0, sizeof *a);
    TE_TRY(te__check_target(ctx, who));
    TE_REQUIRE(q, ctx, TE_ERROR_NULL, "%s: what is to be cast is null", who);
    a->q = *q, a->out.y = (uint8_t *)q->y, a->out.yt = (uint8_t *)q->yt;
    a->out.rows = q->rows, a->out.cols = q->cols, a->out.yt_cols = q->yt_cols, a->out.to = q->to;
    TE_TRY(te__fp8_check(&a->out, who, ctx));
    TE_TRY(te__scale_rule_check(&q->rule, who, ctx));
    TE_REQUIRE(q->cols % 16 == 0, ctx, TE_ERROR_SHAPE,
               "%s: %lld columns; tiles of 128 elements are of rows of multiples of 16", who, (long long)q->cols);
    TE_REQUIRE(q->cols <= (int64_t)UINT32_MAX / 4, ctx, TE_ERROR_OVERFLOW, "%s: rows of %lld elements", who,
               (long long)q->cols); /* because te__blockwise_load computes the bytes of a row in 32 bits */
    TE_REQUIRE((q->x && (!q->y || q->y_inverse) && (!q->yt || q->yt_inverse)) || !q->rows || !q->cols, ctx,
               TE_ERROR_NULL, "%s: x, or where the scales go, is null", who);
    TE_REQUIRE((uintptr_t)q->x % TE_ACCESS == 0 && (uintptr_t)q->y_inverse % TE_ACCESS == 0 &&
                   (uintptr_t)q->yt_inverse % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: x or its scales do not start at a multiple of %d bytes", who, (int)TE_ACCESS);
    return TE_OK;
}

/* The number of thread blocks that must fit on an SM; the compiler limits the registers of a thread accordingly. For an
 * x in f32, which takes more registers, the number is smaller */
#define TE__BLOCKWISE_RESIDENT(from) (TE_##from == TE_f32 ? 2 : 3)

/* Define the kernel for tensors of dtype `from`, and te_status name_run(const te_quantize_blockwise *q, te_context
 * *ctx). */
#define TE_QUANTIZE_BLOCKWISE(name, from)                                                                          \
    TE_FN void name##_body(const te_blockwise_args *a, te_block b, te_blockwise_registers *held,                   \
                           te_blockwise_shared *s) {                                                               \
        te_blockwise_body(a, b, held, s, TE_##from);                                                               \
    }                                                                                                              \
    TE_KERNEL_WITH(name##_kernel, TE_FP8_THREADS, TE__BLOCKWISE_RESIDENT(from), te_blockwise_args,                 \
                   te_blockwise_registers, te_blockwise_shared, name##_body)                                       \
    TE_API te_status name##_run(const te_quantize_blockwise *q, te_context *ctx) {                                 \
        te_blockwise_args a;                                                                                       \
        TE_TRY(te__blockwise_args_of(&a, q, #name, ctx));                                                          \
        return q->rows && q->cols ? name##_kernel_launch(ctx, te__fp8_grid(&a.out), &a) : TE_OK;                   \
    }

/* Define te_status name_multi_tensor_run(const te_multi_tensor *t, te_context *ctx), which casts all tensors of a table
 * to e4m3 in one launch. The table has a te_blockwise_args for each tensor. A chunk, the work of one thread block, is a
 * tile of 128 x 128 elements of a tensor. */
#define TE_QUANTIZE_BLOCKWISE_MULTI_TENSOR(name, from)                                                             \
    TE_FN void name##_multi_tensor_body(const te_multi_tensor *t, te_block b, te_blockwise_registers *held,        \
                                        te_blockwise_shared *s) {                                                  \
        const te_blockwise_args a = ((const te_blockwise_args *)t->tensor)[te_multi_tensor_find(t, &b)];           \
        te__blockwise_tile(&a, b, held, s, TE_##from, TE_e4m3);                                                    \
    }                                                                                                              \
    TE_KERNEL_WITH(name##_multi_tensor, TE_FP8_THREADS, TE__BLOCKWISE_RESIDENT(from), te_multi_tensor,             \
                   te_blockwise_registers, te_blockwise_shared, name##_multi_tensor_body)                          \
    TE_API te_status name##_multi_tensor_run(const te_multi_tensor *t, te_context *ctx)                            \
        { return t->chunks ? name##_multi_tensor_launch(ctx, te__grid_of(t->chunks, 1), t) : TE_OK; }

#endif
