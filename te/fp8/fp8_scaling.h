/* fp8_scaling.h -- how a matrix in FP8 is scaled, and where its scales lie.
 *
 * Do this:
 *     float *inverse = ...;        // te_scaling_count(TE_SCALING_TILES, rows, cols) floats of target memory
 *     inverse[te_tile_scale_at(rows, cols, row, col / TE_FP8_BLOCK)] = 1 / scale;
 *
 * A matrix is [rows, cols], and a product reads it along cols, its k. What is stored is the number times its scale; the
 * array has 1 / scale, which products multiply by. The layouts are those that cuBLASLt documents for
 * CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, _VEC128_32F and _BLK128x128_32F ("Scaling factors layouts").
 */
#ifndef TE_FP8_SCALING_H
#define TE_FP8_SCALING_H

#include "../core/base.h" /* te_ceil_div, TE_BOTH */

enum { TE_FP8_BLOCK = 128 /* elements of a tile, rows and columns of a block */ };

typedef enum te_scaling {
    TE_SCALING_NONE,   /* the matrix is not in FP8 */
    TE_SCALING_TENSOR, /* by one number */
    TE_SCALING_ROW,    /* by one a row: [rows] */
    TE_SCALING_TILES,  /* by one for each 1 x 128 of a row: [cols / 128, rows], up; te_tile_scale_at */
    TE_SCALING_BLOCKS, /* by one for each 128 x 128: [rows / 128, cols / 128], up, a row rounded up to four of them */
    TE_SCALING_COUNT
} te_scaling;

TE_API const char *te_scaling_name(te_scaling s) {
    static const char *const names[] = {"none", "tensor", "row", "1x128", "128x128"};
    return (unsigned)s < (unsigned)TE_SCALING_COUNT ? names[s] : "unknown scaling";
}

/* Tiles and blocks of `n` elements. */
TE_BOTH int64_t te_fp8_blocks(int64_t n) { return te_ceil_div(n, TE_FP8_BLOCK); }
/* Rows whose tiles' scales lie as cuBLASLt reads them, which takes multiples of four rows. Those of the last up to
 * three rows lie behind them. */
TE_BOTH int64_t te_tile_rows(int64_t rows) { return rows / 4 * 4; }
/* Where the scale of tile `tile` of row `row` lies. */
TE_BOTH int64_t te_tile_scale_at(int64_t rows, int64_t cols, int64_t row, int64_t tile) {
    const int64_t most = te_tile_rows(rows);
    const int64_t rest = te_fp8_blocks(cols) * most + tile * (rows - most) - most;
    return (row < most ? tile * most : rest) + row;
}
/* Scales of a row of blocks, and where that of block (row, col) lies. */
TE_BOTH int64_t te_block_scales(int64_t cols) { return te_round_up(te_fp8_blocks(cols), 4); }
TE_BOTH int64_t te_block_scale_at(int64_t cols, int64_t row, int64_t col) { return row * te_block_scales(cols) + col; }

/* Floats of the scales of a matrix. */
TE_BOTH int64_t te_scaling_count(te_scaling s, int64_t rows, int64_t cols) {
    switch (s) {
    case TE_SCALING_TENSOR: return 1;
    case TE_SCALING_ROW: return rows;
    case TE_SCALING_TILES: return te_fp8_blocks(cols) * rows;
    case TE_SCALING_BLOCKS: return te_fp8_blocks(rows) * te_block_scales(cols);
    default: return 0;
    }
}
/* Where the scale of element (row, col) lies. */
TE_BOTH int64_t te_scale_at(te_scaling s, int64_t rows, int64_t cols, int64_t row, int64_t col) {
    switch (s) {
    case TE_SCALING_ROW: return row;
    case TE_SCALING_TILES: return te_tile_scale_at(rows, cols, row, col / TE_FP8_BLOCK);
    case TE_SCALING_BLOCKS: return te_block_scale_at(cols, row / TE_FP8_BLOCK, col / TE_FP8_BLOCK);
    default: return 0;
    }
}

#endif
