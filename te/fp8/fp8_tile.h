/* fp8_tile.h -- the skeleton of kernels that make a tensor and store it as FP8: row-wise, transposed and with its amax,
 * in one pass. What an element is computed from, and how, is the producer's: two functions. quantize.h has the
 * plainest one.
 *
 * Do this:
 *     typedef struct my_args { te_fp8_out out; const void *x; } my_args;                     // begins with the out
 *     TE_FN void my_load(te_vec8 *in, const void *arg, int64_t row, int64_t col, int n, int wide) { ... }
 *     TE_FN void my_make(float v[8], const te_vec8 *in, const void *arg, int64_t row, int64_t col) { ... }
 *     TE_FP8_KERNELS(my_kernel, 4, my_args, my_load, my_make, 1)
 *     ... TE_TRY(te_fp8_check(&args.out, "my_op", ctx)); TE_TRY(my_kernel_run(&args, ctx));
 *
 * A block has a tile of 128 x 128, a lane 8 x 8 of its elements. It loads what its eight rows are made from at once,
 * stores eight bytes a row, turns the bytes in its registers and leaves them in shared memory, from where the
 * transposed tile goes out in runs of 128 bytes. Bytes: what the producer reads, and one each for y and yt.
 */
#ifndef TE_FP8_TILE_H
#define TE_FP8_TILE_H

#include "../core/amax.h"   /* te_amax_raise */
#include "../core/philox.h" /* te_philox */
#include "../core/target.h" /* TE_KERNEL_RESIDENT */
#include "scales.h"         /* te_scale_keep */

enum {
    TE_FP8_TILE = 128,
    TE_FP8_LANES = TE_FP8_TILE / 8 * (TE_FP8_TILE / 8), /* of a tile */
    TE_FP8_THREADS = TE_CUDA ? TE_FP8_LANES : 1,
    TE_FP8_MOST_INPUTS = 3 /* a gated op's backward reads dy and both halves of x */
};

/* Where a tensor goes. */
typedef struct te_fp8_out {
    uint8_t *y, *yt;    /* [rows, cols], [cols, yt_cols]; null: not wanted */
    float *amax;        /* raised to the largest |v|, before the scale; null: not wanted */
    const float *scale; /* what v is multiplied by before it is rounded; null: 1 */
    float *inverse;     /* [2] gets 1 / scale and the scale (te_scale_keep); null: not wanted */
    int64_t rows, cols;
    int64_t yt_cols;    /* rows, or up to 127 more: zeros, where a product over the rows needs a multiple of 16 */
    te_dtype to;
    /* of a kernel that rounds by chance: the random state, target memory, and which of its numbers are this tensor's */
    const te_rng *rng;
    uint32_t stream;
} te_fp8_out;

/* The producer. load: eight elements from (row, col) of each of its inputs, n of which exist; wide, a constant: n is 8
 * and they lie at multiples of eight. make: what they become. */
typedef void (*te_fp8_load_fn)(te_vec8 *in, const void *arg, int64_t row, int64_t col, int n, int wide);
typedef void (*te_fp8_make_fn)(float v[8], const te_vec8 *in, const void *arg, int64_t row, int64_t col);

/* A tile, transposed: 128 bytes of each column, their 16-byte pieces permuted. */
typedef struct __attribute__((aligned(16))) te_fp8_shared {
    uint32_t word[TE_FP8_TILE * TE_FP8_TILE / 4];
} te_fp8_shared;

typedef struct __attribute__((aligned(8), may_alias)) te__bytes8 { uint32_t w[2]; } te__bytes8;
typedef struct __attribute__((aligned(16), may_alias)) te__bytes16 { uint32_t w[4]; } te__bytes16;

/* Where the four bytes from `row` of column `col` lie: columns that are eight apart fall on different banks. */
TE_FN int te__fp8_word_at(int col, int row) {
    return col * (TE_FP8_TILE / 4) + ((row / 16 ^ (col / 8 & 7)) * 4 | (row / 4 & 3));
}

/* ---- a lane's 8 x 8 ---------------------------------------------------------------------------------------------- */

TE_FN void te__fp8_store_row(uint8_t *y, int64_t at, const uint32_t r[2], int n, const int wide) {
    if (wide) {
        te__bytes8 eight;
        eight.w[0] = r[0], eight.w[1] = r[1];
        *(te__bytes8 *)(void *)(y + at) = eight;
    } else
        TE_UNROLL for (int k = 0; k < 8; k++) if (k < n) y[at + k] = (uint8_t)(r[k / 4] >> 8 * (k % 4));
}
/* The bytes of eight rows, from (row, col) of the tile, into the transposed one. */
TE_FN void te__fp8_turn(te_fp8_shared *turned, uint32_t r[8][2], int row, int col) {
    TE_UNROLL for (int half = 0; half < 2; half++) {
        uint32_t from[2][4], t[2][4];
        TE_UNROLL for (int i = 0; i < 8; i++) from[i / 4][i % 4] = r[i][half];
        te_turn_bytes(t[0], from[0]), te_turn_bytes(t[1], from[1]);
        TE_UNROLL for (int j = 0; j < 4; j++) {
            te__bytes8 eight;
            eight.w[0] = t[0][j], eight.w[1] = t[1][j];
            *(te__bytes8 *)(void *)(turned->word + te__fp8_word_at(col + 4 * half + j, row)) = eight;
        }
    }
}
/* v in FP8 by chance, elements e .. e + 7 of a tensor, e a multiple of eight: they share the four words of an index. */
TE_FN void te__fp8_chance8(uint32_t r[2], const float v[8], const te_fp8_out *o, int64_t e, const te_dtype to) {
    const te_rng rng = *o->rng;
    uint32_t word[4];
    te_philox(word, rng.seed, (uint64_t)e / 8, o->stream, rng.offset);
    r[0] = r[1] = 0;
    TE_UNROLL for (int k = 0; k < 8; k++) {
        const uint32_t random = word[k / 2] >> k % 2 * 16 & 0xffffu;
        const uint32_t byte = to == TE_e4m3 ? te__fp8_by_chance(v[k], random, 3, 7, TE_E4M3_MOST)
                                            : te__fp8_by_chance(v[k], random, 2, 15, TE_E5M2_MOST);
        r[k / 4] |= byte << 8 * (k % 4);
    }
}
/* Make eight rows from (row, col) of the tile at (row0, col0). Returns the bits of the largest |v|. */
TE_FN uint32_t te__fp8_make(const te_fp8_out *o, te_fp8_shared *turned, int64_t row0, int64_t col0, int row, int col,
                            te_fp8_load_fn load, te_fp8_make_fn make, const void *arg, const te_dtype to,
                            const int inputs, const int wide, const int chance) {
    te_vec8 in[8][TE_FP8_MOST_INPUTS];
    uint32_t r[8][2], most = 0;
    const int64_t at = col0 + col;
    const int n = (int)te_max(0, te_min(8, o->cols - at));
    const int rows = n ? (int)te_max(0, te_min(8, o->rows - row0 - row)) : 0;
    const float scale = o->scale ? *o->scale : 1.0f;
    TE_UNROLL for (int i = 0; i < 8; i++) {
        TE_UNROLL for (int j = 0; j < inputs; j++) memset(&in[i][j], 0, sizeof in[i][j]);
        if (i < rows) load(in[i], arg, row0 + row + i, at, n, wide);
    }
    TE_UNROLL for (int i = 0; i < 8; i++) {
        float v[8];
        make(v, in[i], arg, row0 + row + i, at);
        if (!wide) TE_UNROLL for (int k = 0; k < 8; k++) v[k] = k < n ? v[k] : 0.0f;
        if (i < rows) most = te_amax_bits8(most, v);
        TE_UNROLL for (int k = 0; k < 8; k++) v[k] *= scale;
        if (chance) te__fp8_chance8(r[i], v, o, (row0 + row + i) * o->cols + at, to);
        else r[i][0] = te__fp8_word(v, to == TE_e4m3), r[i][1] = te__fp8_word(v + 4, to == TE_e4m3);
        if (o->y && i < rows) te__fp8_store_row(o->y, (row0 + row + i) * o->cols + at, r[i], n, wide);
    }
    if (o->yt) te__fp8_turn(turned, r, row, col);
    return most;
}

/* ---- a tile ------------------------------------------------------------------------------------------------------ */

/* Sixteen bytes of a transposed row, of which n are in the tensor, and `exist` are not zero. */
TE_FN void te__fp8_store_turned(uint8_t *to, te__bytes16 w, int n, int exist, const int whole) {
    if (whole) *(te__bytes16 *)(void *)to = w;
    else
        TE_UNROLL for (int k = 0; k < 16; k++) {
            if (k < n) to[k] = k < exist ? (uint8_t)(w.w[k / 4] >> 8 * (k % 4)) : 0;
        }
}
/* The transposed tile at (row, col): pieces of sixteen rows of a column, whole where rows are multiples of 16. */
TE_FN void te__fp8_store_tile(const te_fp8_out *o, const te_fp8_shared *turned, int64_t row, int64_t col, te_lanes g) {
    enum { PIECES = TE_FP8_TILE / 16 };
    const int cols = (int)te_min(TE_FP8_TILE, o->cols - col), even = o->yt_cols % 16 == 0;
    const int rows = (int)te_min(TE_FP8_TILE, o->yt_cols - row), exist = (int)te_min(TE_FP8_TILE, o->rows - row);
    uint8_t *tile = (uint8_t *)(uintptr_t)te_hold(o->yt + col * o->yt_cols + row);
    for (unsigned i = (unsigned)g.id; i < (unsigned)TE_FP8_TILE * PIECES; i += TE_FP8_THREADS) {
        const int first = (int)(i % PIECES) * 16, column = (int)(i / PIECES);
        const te__bytes16 w = *(const te__bytes16 *)(const void *)(turned->word + te__fp8_word_at(column, first));
        if (first < rows && column < cols)
            te__fp8_store_turned(tile + column * o->yt_cols + first, w, (int)te_min(16, rows - first), exist - first,
                                 even && exist - first >= 16);
    }
}
TE_FN void te__fp8_tile(const te_fp8_out *o, te_block b, te_fp8_shared *turned, te_fp8_load_fn load,
                        te_fp8_make_fn make, const void *arg, const te_dtype to, const int inputs, const int wide,
                        const int chance) {
    enum { SIDE = TE_FP8_TILE / 8 };
    int group;
    const te_lanes g = te_lanes_here(TE_FP8_THREADS, &group);
    const int across = (int)te_ceil_div(o->cols, TE_FP8_TILE);
    const int64_t row = (int64_t)(b.x / across) * TE_FP8_TILE, col = (int64_t)(b.x % across) * TE_FP8_TILE;
    uint32_t most = 0;
    for (int i = g.id; i < TE_FP8_LANES; i += g.count) {
        const uint32_t m =
            te__fp8_make(o, turned, row, col, i / SIDE * 8, i % SIDE * 8, load, make, arg, to, inputs, wide, chance);
        most = m > most ? m : most;
    }
    if (o->yt) {
        te_block_sync();
        te__fp8_store_tile(o, turned, row, col, g);
    }
    if (o->amax) te_amax_raise(o->amax, most, g);
    if (o->inverse && b.x == 0 && g.id == 0) te_scale_keep(o->inverse, o->scale ? *o->scale : 1.0f);
}
TE_FN void te_fp8_body(const te_fp8_out *o, te_block b, te_fp8_shared *turned, te_fp8_load_fn load, te_fp8_make_fn make,
                       const void *arg, const int inputs, const int wide, const int chance) {
    if (o->to == TE_e4m3) te__fp8_tile(o, b, turned, load, make, arg, TE_e4m3, inputs, wide, chance);
    else te__fp8_tile(o, b, turned, load, make, arg, TE_e5m2, inputs, wide, chance);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* What every call of such a kernel asks of its arguments. who: for the text. */
TE_API te_status te_fp8_check(const te_fp8_out *o, const char *who, te_context *ctx) {
    TE_TRY(te_check_target(ctx, who));
    TE_REQUIRE(te_is_fp8(o->to), ctx, TE_ERROR_DTYPE, "%s: to %s; it must be e4m3 or e5m2", who, te_dtype_name(o->to));
    TE_REQUIRE(o->rows >= 0 && o->cols >= 0, ctx, TE_ERROR_SHAPE, "%s: a tensor of %lld x %lld", who,
               (long long)o->rows, (long long)o->cols);
    TE_REQUIRE(!o->yt || (o->yt_cols >= o->rows && o->yt_cols < te_round_up(te_max(1, o->rows), TE_FP8_TILE) + 1), ctx,
               TE_ERROR_SHAPE, "%s: rows of %lld of a transposed tensor that has %lld", who, (long long)o->yt_cols,
               (long long)o->rows);
    TE_REQUIRE((uintptr_t)o->y % TE_ACCESS == 0 && (uintptr_t)o->yt % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: y or yt does not start at a multiple of %d bytes", who, (int)TE_ACCESS);
    TE_REQUIRE(te_ceil_div(o->rows, TE_FP8_TILE) <= INT32_MAX / te_max(1, te_ceil_div(o->cols, TE_FP8_TILE)), ctx,
               TE_ERROR_OVERFLOW, "%s: a tensor of %lld x %lld has more tiles than a launch", who, (long long)o->rows,
               (long long)o->cols);
    return TE_OK;
}
TE_API te_grid te__fp8_grid(const te_fp8_out *o) {
    return te_grid_of(te_ceil_div(o->rows, TE_FP8_TILE) * te_ceil_div(o->cols, TE_FP8_TILE), 1);
}

/* A producer's kernels, for rows of multiples of eight elements and for others, and name_run(const type *, ctx), which
 * takes the one that fits. `resident` blocks are to share a multiprocessor; inputs: tensors that load fills `in` from.
 */
#define TE_FP8_KERNELS(name, resident, type, load, make, inputs)                                                   \
    static_assert((inputs) <= TE_FP8_MOST_INPUTS, #name ": too many inputs");                                      \
    TE_FP8_KERNEL(name##_wide, resident, type, load, make, inputs, 1, 0)                                           \
    TE_FP8_KERNEL(name##_narrow, resident, type, load, make, inputs, 0, 0)                                         \
    TE_API te_status name##_run(const type *args, te_context *ctx) {                                               \
        const te_fp8_out *o = (const te_fp8_out *)(const void *)args;                                              \
        if (!o->rows || !o->cols) return TE_OK;                                                                    \
        return o->cols % 8 == 0 ? name##_wide_launch(ctx, te__fp8_grid(o), args)                                   \
                                : name##_narrow_launch(ctx, te__fp8_grid(o), args);                                \
    }
/* chance: 1: it rounds by chance, and is wide. */
#define TE_FP8_KERNEL(name, resident, type, load, make, inputs, wide, chance)                                      \
    TE_KERNEL_RESIDENT(name, TE_FP8_THREADS, resident, type, TE_SHARED te_fp8_shared turned; te_fp8_body(          \
        (const te_fp8_out *)(const void *)te_args, te_at, &turned, load, make, te_args, inputs, wide, chance))

#endif
