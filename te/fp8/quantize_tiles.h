/* quantize_tiles.h -- a tensor as FP8 with a scale for each tile of 128 elements or each block of 128 x 128: row-wise,
 * transposed, and the scales of both, in one pass.
 *
 * Do this:
 *     TE_QUANTIZE_TILES(of_bf16, bf16)                        // the kernel, and of_bf16_run
 *     te_quantize_tiles q = te_quantize_tiles_of(rows, cols); // cols a multiple of 16
 *     q.x = x, q.y = y, q.y_inverse = s, q.yt = yt, q.yt_inverse = t;      // y or yt, with its scales, may stay null
 *     TE_TRY(of_bf16_run(&q, ctx));
 *
 * Of x[rows, cols] y has a scale for each 1 x 128 of a row, and yt[cols, yt_cols], the transpose that a weight's
 * gradient reads, one for each 128 x 1 of a column: both are rounded from x itself (DeepSeek-V3, arXiv:2412.19437,
 * section 3.3). With q.blocks, for weights, one scale serves 128 x 128 elements, and yt has the bytes of y. scale =
 * most / amax of what it is for, most the largest number of the format; 1 where amax is 0, infinite or no number.
 * fp8_scaling.h says where scales lie.
 *
 * A block has a tile of 128 x 128 and a lane 8 x 8 of its elements, which it keeps in registers while the largest of
 * each row and column are found through shared memory. Bytes an element: that of x, one each for y and yt, and 1/32
 * each for their scales: 4.06 of bf16. The floor is a copy of as many. 8192 x 12288 on an H200 between products, at the
 * clock that they leave: 108 us, where a copy takes 96.
 */
#ifndef TE_QUANTIZE_TILES_H
#define TE_QUANTIZE_TILES_H

#include "../core/table.h" /* te_table_find */
#include "fp8_scaling.h"   /* te_scale_at */
#include "fp8_tile.h"      /* te__fp8_turn, te__fp8_store_tile */
#include "scales.h"        /* te_scale_of_amax */

typedef struct te_quantize_tiles {
    void *y, *yt;                   /* [rows, cols], [cols, yt_cols] of `to`; null: not wanted */
    float *y_inverse, *yt_inverse;  /* 1 / scale of y's and yt's tiles or blocks; target memory, with y and yt */
    const void *x;                  /* [rows, cols] of the dtype that the kernel is made for */
    int64_t rows, cols;
    int64_t yt_cols;    /* rows, or up to the next multiple of 128: what is more is 0 */
    te_dtype to;
    int blocks;         /* 1: a scale for 128 x 128 elements */
    te_scale_rule rule; /* epsilon, power_of_two */
} te_quantize_tiles;

TE_API te_quantize_tiles te_quantize_tiles_of(int64_t rows, int64_t cols) {
    te_quantize_tiles q;
    memset(&q, 0, sizeof q);
    q.rows = q.yt_cols = rows, q.cols = cols, q.to = TE_e4m3, q.rule = te_scale_rule_current();
    return q;
}

typedef struct te_tiles_args { te_fp8_out out; te_quantize_tiles q; } te_tiles_args;

enum {
    TE_TILES_SIDE = TE_FP8_TILE / 8,               /* lanes along a row or column of the tile */
    TE_TILES_HELD = TE_FP8_LANES / TE_FP8_THREADS, /* pieces of 8 x 8 of a lane: one, or all of them on the host */
    TE_TILES_LINES = TE_FP8_TILE + 4               /* words: lanes of a warp write to different banks */
};
/* What a lane holds of the tile. */
typedef struct te_tiles_held { te_vec8 x[TE_TILES_HELD][8]; } te_tiles_held;
/* of: of the rows, and of the columns. */
typedef struct te_tiles_shared {
    union {
        /* the largest |x| that each of the lanes along a line has seen of it, as it lies in memory: two lines a word
         * where x has 16 bits */
        uint32_t most[2][TE_TILES_SIDE][TE_TILES_LINES];
        te_fp8_shared turned;
    } u;
    uint32_t line[2][TE_FP8_TILE]; /* bits of a line's scale or, of blocks, of its largest |x| */
} te_tiles_shared;

/* Rows of the piece at (row, col) that exist: 0 behind the last column. */
TE_FN int te__tiles_rows(int64_t rows, int64_t cols, int64_t row, int64_t col) {
    return col < cols ? (int)te_max(0, te_min(8, rows - row)) : 0;
}
/* Load piece i of the tile at (row0, col0). */
TE_FN void te__tiles_load(const te_quantize_tiles *q, te_vec8 x[8], int64_t row0, int64_t col0, int i,
                          const te_dtype from) {
    const int64_t row = row0 + i / TE_TILES_SIDE * 8, col = col0 + i % TE_TILES_SIDE * 8;
    const int rows = te__tiles_rows(q->rows, q->cols, row, col);
    const uint32_t pitch = (uint32_t)(q->cols * (int64_t)te_dtype_bytes(from)); /* te__tiles_args_of */
    const char *first =
        (const char *)te_hold((const char *)q->x + (row * q->cols + col) * (int64_t)te_dtype_bytes(from));
    TE_UNROLL for (uint32_t k = 0; k < 8; k++) {
        memset(&x[k], 0, sizeof x[k]);
        if ((int)k < rows) te_vec8_load(&x[k], first + (uint64_t)k * pitch, 0, 8, 1, from);
    }
}
/* The words of eight elements, four or eight, to `to`, which lies at a multiple of 16 bytes. */
TE_FN void te__tiles_put(uint32_t *to, const te_vec8 *e, const te_dtype from) {
    TE_UNROLL for (int h = 0; h < (from == TE_f32 ? 2 : 1); h++) {
        te__bytes16 four;
        TE_UNROLL for (int j = 0; j < 4; j++) four.w[j] = e->w[4 * h + j];
        ((te__bytes16 *)(void *)to)[h] = four;
    }
}
/* Leave the largest of the rows and columns of piece i; what does not exist of it is 0. */
TE_FN void te__tiles_measure(const te_vec8 x[8], te_tiles_shared *s, int i, const te_dtype from) {
    const int down = i / TE_TILES_SIDE, across = i % TE_TILES_SIDE, words = from == TE_f32 ? 8 : 4;
    te_vec8 of_rows, of_cols;
    memset(&of_rows, 0, sizeof of_rows);
    memset(&of_cols, 0, sizeof of_cols);
    TE_UNROLL for (int k = 0; k < 8; k++) te_vec8_raise(&of_cols, &x[k], from);
    TE_UNROLL for (int k = 0; k < words; k++)
        of_rows.w[k] = from == TE_f32 ? te_amax_vec8(&x[k], from) : te_amax_two_vec8(&x[2 * k], &x[2 * k + 1]);
    te__tiles_put(&s->u.most[0][across][words * down], &of_rows, from);
    te__tiles_put(&s->u.most[1][down][words * across], &of_cols, from);
}
/* Bits of the largest |x| of line i of the tile, a row, or from TE_FP8_TILE on a column. */
TE_FN uint32_t te__tiles_largest(const te_tiles_shared *s, int i, const te_dtype from) {
    const int at = i % TE_FP8_TILE, halves = from != TE_f32;
    uint32_t most = 0;
    TE_UNROLL for (int k = 0; k < TE_TILES_SIDE; k++) {
        const uint32_t seen = s->u.most[i / TE_FP8_TILE][k][halves ? at / 2 : at];
        most = halves ? te__larger_halves(most, seen) : seen > most ? seen : most;
    }
    return halves ? te_amax_half(at % 2 ? most >> 16 : most & 0xffffu, from) : most;
}
/* Line i: its largest and, of tiles, its scale, whose inverse it stores. */
TE_FN void te__tiles_line(const te_quantize_tiles *q, te_tiles_shared *s, int64_t row0, int64_t col0, int i, float most,
                          const te_dtype from) {
    const int turned = i / TE_FP8_TILE, at = i % TE_FP8_TILE;
    uint32_t bits = te__tiles_largest(s, i, from);
    if (!q->blocks) {
        const float scale = te_scale_of_own(bits, most, &q->rule);
        const int64_t row = row0 + at, col = col0 + at;
        bits = te_bits_of_float(scale);
        if (!turned && q->y && row < q->rows)
            q->y_inverse[te_tile_scale_at(q->rows, q->cols, row, col0 / TE_FP8_TILE)] = 1.0f / scale;
        if (turned && q->yt && col < q->cols)
            q->yt_inverse[te_tile_scale_at(q->cols, q->yt_cols, col, row0 / TE_FP8_TILE)] = 1.0f / scale;
    }
    s->line[turned][at] = bits;
}
/* The last block of a row of blocks fills up its row of scales, of which cuBLASLt may read all. */
TE_FN void te__tiles_put_block(float *inverse, int64_t cols, int64_t row, int64_t col, float value) {
    inverse[te_block_scale_at(cols, row, col)] = value;
    for (int64_t k = col + 1; col + 1 == te_fp8_blocks(cols) && k < te_block_scales(cols); k++)
        inverse[te_block_scale_at(cols, row, k)] = 1.0f;
}
/* The scale of the whole tile, as the first lane stores it, and for all lines. */
TE_FN void te__tiles_block(const te_quantize_tiles *q, te_tiles_shared *s, int64_t row0, int64_t col0, te_lanes g,
                           float most) {
    const int lanes = TE_CUDA ? TE_TILES_SIDE : 1;
    const int64_t row = row0 / TE_FP8_TILE, col = col0 / TE_FP8_TILE;
    uint32_t bits = 0;
    for (int k = g.id % lanes; k < TE_FP8_TILE; k += lanes) bits = s->line[0][k] > bits ? s->line[0][k] : bits;
    const float scale = te_scale_of_own(te_tile_lanes_max(bits), most, &q->rule);
    if (g.id == 0 && q->y) te__tiles_put_block(q->y_inverse, q->cols, row, col, 1.0f / scale);
    if (g.id == 0 && q->yt) te__tiles_put_block(q->yt_inverse, q->yt_cols, col, row, 1.0f / scale);
    te_block_sync();
    for (int i = g.id; i < 2 * TE_FP8_TILE; i += TE_FP8_THREADS)
        s->line[i / TE_FP8_TILE][i % TE_FP8_TILE] = te_bits_of_float(scale);
    te_block_sync();
}
/* Piece i rounded by its rows' scales (turned 0: into y) or its columns' (1: into the transposed tile). */
TE_FN void te__tiles_round(const te_tiles_args *a, const te_vec8 x[8], te_tiles_shared *s, int64_t row0, int64_t col0,
                           int i, const int turned, const te_dtype from, const te_dtype to) {
    const int row = i / TE_TILES_SIDE * 8, col = i % TE_TILES_SIDE * 8;
    const int rows = te__tiles_rows(a->q.rows, a->q.cols, row0 + row, col0 + col);
    const te__bytes16 *line = (const te__bytes16 *)(const void *)&s->line[turned][turned ? col : row];
    const te__bytes16 by[2] = {line[0], line[1]}; /* before anything is stored, or each row would load them anew */
    uint8_t *y = turned ? 0 : (uint8_t *)(uintptr_t)te_hold(a->out.y + (row0 + row) * a->q.cols + col0 + col);
    uint32_t r[8][2];
    TE_UNROLL for (uint32_t k = 0; k < 8; k++) {
        float v[8];
        te_vec8_floats(v, &x[k], from);
        TE_UNROLL for (uint32_t j = 0; j < 8; j++) {
            const uint32_t at = turned ? j : k;
            v[j] *= te_float_of_bits(by[at / 4].w[at % 4]);
        }
        r[k][0] = te__fp8_word(v, to == TE_e4m3), r[k][1] = te__fp8_word(v + 4, to == TE_e4m3);
        if (!turned && (int)k < rows) te__fp8_store_row(y + (uint64_t)k * (uint32_t)a->q.cols, 0, r[k], 8, 1);
    }
    if (turned) te__fp8_turn(&s->u.turned, r, row, col);
}
/* The tile at (row, col) of what the lanes hold. */
TE_FN void te__tiles_store(const te_tiles_args *a, const te_tiles_held *held, te_tiles_shared *s, te_lanes g,
                           int64_t row, int64_t col, const te_dtype from, const te_dtype to) {
    const te_quantize_tiles *q = &a->q;
    const float most = te_fp8_most(to);
    TE_UNROLL for (int h = 0; h < TE_TILES_HELD; h++)
        te__tiles_measure(held->x[h], s, g.id + h * g.count, from);
    te_block_sync();
    for (int i = g.id; i < 2 * TE_FP8_TILE; i += TE_FP8_THREADS) te__tiles_line(q, s, row, col, i, most, from);
    te_block_sync();
    if (q->blocks) te__tiles_block(q, s, row, col, g, most);
    TE_UNROLL for (int h = 0; h < TE_TILES_HELD; h++)
        if (q->y) te__tiles_round(a, held->x[h], s, row, col, g.id + h * g.count, 0, from, to);
    if (!q->yt) return;
    TE_UNROLL for (int h = 0; h < TE_TILES_HELD; h++)
        te__tiles_round(a, held->x[h], s, row, col, g.id + h * g.count, 1, from, to);
    te_block_sync();
    te__fp8_store_tile(&a->out, &s->u.turned, row, col, g);
}
TE_FN void te__tiles_tile(const te_tiles_args *a, te_block b, te_tiles_held *held, te_tiles_shared *s,
                          const te_dtype from, const te_dtype to) {
    int group;
    const te_lanes g = te_lanes_here(TE_FP8_THREADS, &group);
    const int across = (int)te_ceil_div(a->q.cols, TE_FP8_TILE);
    const int64_t row = (int64_t)(b.x / across) * TE_FP8_TILE, col = (int64_t)(b.x % across) * TE_FP8_TILE;
    TE_UNROLL for (int h = 0; h < TE_TILES_HELD; h++)
        te__tiles_load(&a->q, held->x[h], row, col, g.id + h * g.count, from);
    te__tiles_store(a, held, s, g, row, col, from, to);
}
TE_FN void te_tiles_body(const te_tiles_args *a, te_block b, te_tiles_held *held, te_tiles_shared *s,
                         const te_dtype from) {
    if (a->q.to == TE_e4m3) te__tiles_tile(a, b, held, s, from, TE_e4m3);
    else te__tiles_tile(a, b, held, s, from, TE_e5m2);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

TE_API te_status te__tiles_args_of(te_tiles_args *a, const te_quantize_tiles *q, const char *who, te_context *ctx) {
    memset(a, 0, sizeof *a);
    TE_TRY(te_check_target(ctx, who));
    TE_REQUIRE(q, ctx, TE_ERROR_NULL, "%s: what is to be cast is null", who);
    a->q = *q, a->out.y = (uint8_t *)q->y, a->out.yt = (uint8_t *)q->yt;
    a->out.rows = q->rows, a->out.cols = q->cols, a->out.yt_cols = q->yt_cols, a->out.to = q->to;
    TE_TRY(te_fp8_check(&a->out, who, ctx));
    TE_TRY(te__scale_rule_check(&q->rule, who, ctx));
    TE_REQUIRE(q->cols % 16 == 0, ctx, TE_ERROR_SHAPE,
               "%s: %lld columns; tiles of 128 elements are of rows of multiples of 16", who, (long long)q->cols);
    TE_REQUIRE(q->cols <= (int64_t)UINT32_MAX / 4, ctx, TE_ERROR_OVERFLOW, "%s: rows of %lld elements", who,
               (long long)q->cols); /* so their bytes fit where te__tiles_load has them */
    TE_REQUIRE((q->x && (!q->y || q->y_inverse) && (!q->yt || q->yt_inverse)) || !q->rows || !q->cols, ctx,
               TE_ERROR_NULL, "%s: x, or where the scales go, is null", who);
    TE_REQUIRE((uintptr_t)q->x % TE_ACCESS == 0 && (uintptr_t)q->y_inverse % TE_ACCESS == 0 &&
                   (uintptr_t)q->yt_inverse % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: x or its scales do not start at a multiple of %d bytes", who, (int)TE_ACCESS);
    return TE_OK;
}

/* The kernel for tensors of `from`, and te_status name_run(const te_quantize_tiles *q, te_context *ctx). */
#define TE_QUANTIZE_TILES(name, from)                                                                              \
    TE_FN void name##_body(const te_tiles_args *a, te_block b, te_tiles_held *held, te_tiles_shared *s) {          \
        te_tiles_body(a, b, held, s, TE_##from);                                                                   \
    }                                                                                                              \
    TE_KERNEL_WITH(name##_kernel, TE_FP8_THREADS, TE_##from == TE_f32 ? 2 : 3, te_tiles_args, te_tiles_held,       \
                   te_tiles_shared, name##_body)                                                                   \
    TE_API te_status name##_run(const te_quantize_tiles *q, te_context *ctx) {                                     \
        te_tiles_args a;                                                                                           \
        TE_TRY(te__tiles_args_of(&a, q, #name, ctx));                                                              \
        return q->rows && q->cols ? name##_kernel_launch(ctx, te__fp8_grid(&a.out), &a) : TE_OK;                   \
    }

/* Several tensors in one launch, te_tiles_args of e4m3 a chunk of which is a tile:
 * te_status name_table_run(const te_table *t, te_context *ctx). */
#define TE_QUANTIZE_TILES_TABLE(name, from)                                                                        \
    TE_FN void name##_table_body(const te_table *t, te_block b, te_tiles_held *held, te_tiles_shared *s) {         \
        const te_tiles_args a = ((const te_tiles_args *)t->tensor)[te_table_find(t, &b)];                          \
        te__tiles_tile(&a, b, held, s, TE_##from, TE_e4m3);                                                        \
    }                                                                                                              \
    TE_KERNEL_WITH(name##_table, TE_FP8_THREADS, TE_##from == TE_f32 ? 2 : 3, te_table, te_tiles_held,             \
                   te_tiles_shared, name##_table_body)                                                             \
    TE_API te_status name##_table_run(const te_table *t, te_context *ctx)                                          \
        { return t->chunks ? name##_table_launch(ctx, te_grid_of(t->chunks, 1), t) : TE_OK; }

#endif
