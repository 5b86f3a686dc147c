/* cast_transpose.h -- kernels that in one pass cast a tensor to FP8, store the result and its transpose, and compute
 * the tensor's amax. TE_QUANTIZE makes kernels that cast a tensor in memory. TE_FP8_KERNELS makes kernels that cast the
 * results of a computation, which two functions, load and compute, define.
 *
 * Do this, to cast a tensor:
 *     TE_QUANTIZE(of_bf16, bf16)                         // defines the kernels and of_bf16_run
 *     te_quantize q = te__quantize_of(rows, cols);
 *     q.x = x, q.to = TE_e4m3, q.scale = scales.scale + i;
 *     q.y = y, q.yt = yt, q.amax = scales.amax + i;      // any of these three may be null
 *     TE_TRY(of_bf16_run(&q, ctx));
 *
 * Do this, to cast the results of a computation of your own:
 *     typedef struct my_args { te_fp8_out out; const void *x; } my_args;                     // out must be first
 *     TE_FN void my_load(te_vec8 *in, const void *arg, int64_t row, int64_t col, int n, int aligned) { ... }
 *     TE_FN void my_compute(float v[8], const te_vec8 *in, const void *arg, int64_t row, int64_t col) { ... }
 *     TE_FP8_KERNELS(my_kernel, 4, my_args, my_load, my_compute, 1)
 *     ... TE_TRY(te__fp8_check(&args.out, "my_op", ctx)); TE_TRY(my_kernel_run(&args, ctx));
 *
 * A thread block casts a tile of 128 x 128 elements, and each of its lanes (threads) casts 8 x 8 elements of the tile.
 * A lane loads its eight rows at once, stores eight bytes of y for each row, transposes the bytes in registers, and
 * writes them to shared memory. From there the block stores the transposed tile in runs of 128 bytes. Lower bound of
 * the time: reading the inputs once and writing y and yt once (4 bytes for each bf16 element; 3 without yt; 2 for amax
 * alone). Measurements: docs/notes/fp8_casts.md.
 */
#ifndef TE_CAST_TRANSPOSE_H
#define TE_CAST_TRANSPOSE_H

#include "../../core/dtype.h"  /* te_vec8, te_vec8_load_fp8 */
#include "../../core/lanes.h"  /* te_amax_atomic_max */
#include "../../core/philox.h" /* te_philox */
#include "../../core/target.h" /* TE_KERNEL_RESIDENT, te_multi_tensor_find */
#include "../scales.h"         /* te_scale_save */

enum {
    TE_FP8_TILE = 128,
    TE_FP8_LANES = TE_FP8_TILE / 8 * (TE_FP8_TILE / 8), /* the number of 8 x 8 pieces of a tile; each lane has one
                                                         * piece */
    TE_FP8_THREADS = TE_CUDA ? TE_FP8_LANES : 1,
    TE_FP8_MAX_INPUTS = 3 /* the largest number of inputs of a kernel; the backward of a gated activation, for example,
                           * reads dy and the two halves of x */
};

/* The outputs of a cast. All pointers point to target memory. */
typedef struct te_fp8_out {
    uint8_t *y, *yt;    /* y is [rows, cols]; yt is the transpose of y, [cols, yt_cols]. A null pointer: this output is
                         * not stored */
    float *amax;        /* updated to max(*amax, |v| of all elements v before scaling); null: no amax is computed */
    const float *scale; /* each element is multiplied by *scale before it is rounded; null means a scale of 1 */
    float *inverse;     /* [2], output: 1 / scale and the scale (te_scale_save); null: they are not stored */
    int64_t rows, cols;
    /* the number of columns of yt, from `rows` to `rows` rounded up to a multiple of 128. It may exceed `rows`, because
     * GEMMs need a multiple of 16. The columns of yt from index `rows` on are filled with zeros. */
    int64_t yt_cols;
    te_dtype to;        /* e4m3 or e5m2 */
    const te_rng *rng;  /* the random state for stochastic rounding */
    /* the number of the random stream from which stochastic rounding of this tensor draws */
    uint32_t stream;
} te_fp8_out;

/* The types of the two functions from which TE_FP8_KERNELS makes a kernel. The load function loads, from each input,
 * the eight elements of row `row` that begin at column `col`; only the first n of the eight lie in the tensor. The
 * compute function computes eight results from these elements. `arg` points to the kernel's arguments. `aligned` is a
 * compile-time constant: 1 if n is 8 and the index of the first element is a multiple of eight. */
typedef void (*te_fp8_load_fn)(te_vec8 *in, const void *arg, int64_t row, int64_t col, int n, int aligned);
typedef void (*te_fp8_compute_fn)(float v[8], const te_vec8 *in, const void *arg, int64_t row, int64_t col);

/* Compile-time constants of a kernel. */
typedef struct te_fp8_options {
    int inputs;     /* how many vectors of eight elements the load function fills, at most TE_FP8_MAX_INPUTS */
    int aligned;    /* 1: cols is a multiple of 8 */
    int stochastic; /* 1: stochastic rounding, 0: rounding to nearest even */
    te_dtype to;
} te_fp8_options;

TE_FN te_fp8_options te_fp8_options_of(const int inputs, const int aligned, const int stochastic) {
    te_fp8_options k;
    k.inputs = inputs, k.aligned = aligned, k.stochastic = stochastic, k.to = TE_e4m3;
    return k;
}

/* The position of a lane's 8 x 8 piece. The tile begins at row row0 and column col0 of the tensor, and the piece begins
 * at row `row` and column `col` of the tile. */
typedef struct te_fp8_piece { int64_t row0, col0; int row, col; } te_fp8_piece;

TE_FN te_fp8_piece te__fp8_piece_at(int64_t row0, int64_t col0, int row, int col) {
    te_fp8_piece at;
    at.row0 = row0, at.col0 = col0, at.row = row, at.col = col;
    return at;
}

/* A transposed tile in shared memory: for each column of the tile 128 bytes, whose 16-byte chunks are swizzled. */
typedef struct __attribute__((aligned(16))) te_fp8_shared {
    uint32_t word[TE_FP8_TILE * TE_FP8_TILE / 4];
} te_fp8_shared;

typedef struct __attribute__((aligned(8), may_alias)) te__bytes8 { uint32_t w[2]; } te__bytes8;
typedef struct __attribute__((aligned(16), may_alias)) te__bytes16 { uint32_t w[4]; } te__bytes16;

/* Return the index in te_fp8_shared of the word that holds rows `row` to row + 3 of column `col`. The swizzle places
 * columns that are eight apart in different banks. */
TE_FN int te__fp8_word_at(int col, int row) {
    return col * (TE_FP8_TILE / 4) + ((row / 16 ^ (col / 8 & 7)) * 4 | (row / 4 & 3));
}

/* ---- a lane's piece of 8 x 8 ------------------------------------------------------------------------------------- */

/* Store the first n bytes of the eight bytes r to y + at. aligned: 1 if n is 8 and the address is a multiple of eight,
 * else 0. */
TE_FN void te__fp8_store_row(uint8_t *y, int64_t at, const uint32_t r[2], int n, const int aligned) {
    if (aligned) {
        te__bytes8 eight;
        eight.w[0] = r[0], eight.w[1] = r[1];
        *(te__bytes8 *)(void *)(y + at) = eight;
    } else
        TE_UNROLL for (int k = 0; k < 8; k++) if (k < n) y[at + k] = (uint8_t)(r[k / 4] >> 8 * (k % 4));
}
/* Write the piece r of 8 x 8 bytes, transposed, into the transposed tile in shared memory. The piece begins at row
 * `row` and column `col` of the tile. */
TE_FN void te__fp8_transpose_piece(te_fp8_shared *transposed, uint32_t r[8][2], int row, int col) {
    TE_UNROLL for (int half = 0; half < 2; half++) {
        uint32_t from[2][4], t[2][4];
        TE_UNROLL for (int i = 0; i < 8; i++) from[i / 4][i % 4] = r[i][half];
        te_transpose_bytes_4x4(t[0], from[0]), te_transpose_bytes_4x4(t[1], from[1]);
        TE_UNROLL for (int j = 0; j < 4; j++) {
            te__bytes8 eight;
            eight.w[0] = t[0][j], eight.w[1] = t[1][j];
            *(te__bytes8 *)(void *)(transposed->word + te__fp8_word_at(col + 4 * half + j, row)) = eight;
        }
    }
}
/* Round the elements e to e + 7 of a tensor, v, stochastically; e must be a multiple of eight. Each element uses 16
 * bits of the four random words that Philox generates for index e / 8. */
TE_FN void te__fp8_stochastic8(uint32_t r[2], const float v[8], const te_fp8_out *o, int64_t e, const te_dtype to) {
    const te_rng rng = *o->rng;
    uint32_t word[4];
    te_philox(word, rng.seed, (uint64_t)e / 8, o->stream, rng.offset);
    r[0] = r[1] = 0;
    TE_UNROLL for (int k = 0; k < 8; k++) {
        const uint32_t random = word[k / 2] >> k % 2 * 16 & 0xffffu;
        const uint32_t byte = to == TE_e4m3 ? te__fp8_of_float_stochastic(v[k], random, 3, 7, TE_E4M3_MAX)
                                            : te__fp8_of_float_stochastic(v[k], random, 2, 15, TE_E5M2_MAX);
        r[k / 4] |= byte << 8 * (k % 4);
    }
}
/* Compute the elements of a lane's 8 x 8 piece, cast them, and store the result to y and to the transposed tile.
 * Returns the largest magnitude of the elements before scaling, as the bits of a float. */
TE_FN uint32_t te__fp8_cast_piece(const te_fp8_out *o, te_fp8_shared *transposed, te_fp8_load_fn load,
                                  te_fp8_compute_fn compute, const void *arg, const te_fp8_options k,
                                  const te_fp8_piece at) {
    te_vec8 in[8][TE_FP8_MAX_INPUTS];
    uint32_t r[8][2], amax = 0;
    const int64_t col = at.col0 + at.col;
    const int n = (int)te_max(0, te_min(8, o->cols - col));
    const int rows = n ? (int)te_max(0, te_min(8, o->rows - at.row0 - at.row)) : 0;
    const float scale = o->scale ? *o->scale : 1.0f;
    TE_UNROLL for (int i = 0; i < 8; i++) {
        TE_UNROLL for (int j = 0; j < k.inputs; j++) memset(&in[i][j], 0, sizeof in[i][j]);
        if (i < rows) load(in[i], arg, at.row0 + at.row + i, col, n, k.aligned);
    }
    TE_UNROLL for (int i = 0; i < 8; i++) {
        float v[8];
        compute(v, in[i], arg, at.row0 + at.row + i, col);
        if (!k.aligned) TE_UNROLL for (int j = 0; j < 8; j++) v[j] = j < n ? v[j] : 0.0f;
        if (i < rows) amax = te_amax_bits8(amax, v);
        TE_UNROLL for (int j = 0; j < 8; j++) v[j] = te_fp8_scaled(v[j], scale);
        if (k.stochastic) te__fp8_stochastic8(r[i], v, o, (at.row0 + at.row + i) * o->cols + col, k.to);
        else r[i][0] = te__fp8_word(v, k.to == TE_e4m3), r[i][1] = te__fp8_word(v + 4, k.to == TE_e4m3);
        if (o->y && i < rows) te__fp8_store_row(o->y, (at.row0 + at.row + i) * o->cols + col, r[i], n, k.aligned);
    }
    if (o->yt) te__fp8_transpose_piece(transposed, r, at.row, at.col);
    return amax;
}

/* ---- a block's tile of 128 x 128 --------------------------------------------------------------------------------- */

/* Store the first n of the 16 bytes w to a row of yt; the other bytes lie outside yt. The bytes with indices `exist` to
 * n - 1 are padding, and are stored as 0. `aligned` may be 1 only if n is 16, `exist` is at least 16, and the address
 * is a multiple of 16. */
TE_FN void te__fp8_store_transposed(uint8_t *to, te__bytes16 w, int n, int exist, const int aligned) {
    if (aligned) *(te__bytes16 *)(void *)to = w;
    else
        TE_UNROLL for (int k = 0; k < 16; k++) {
            if (k < n) to[k] = k < exist ? (uint8_t)(w.w[k / 4] >> 8 * (k % 4)) : 0;
        }
}
/* Store the transposed tile to yt. The tile's first element is (row, col) of the tensor. Each lane stores chunks of 16
 * bytes, i.e. 16 rows of one column of the tile. */
TE_FN void te__fp8_store_tile(const te_fp8_out *o, const te_fp8_shared *transposed, int64_t row, int64_t col,
                              te_lanes g) {
    enum { CHUNKS = TE_FP8_TILE / 16 };
    const int cols = (int)te_min(TE_FP8_TILE, o->cols - col), is_pitch_aligned = o->yt_cols % 16 == 0;
    const int rows = (int)te_min(TE_FP8_TILE, o->yt_cols - row), exist = (int)te_min(TE_FP8_TILE, o->rows - row);
    uint8_t *tile = (uint8_t *)(uintptr_t)te_opaque_pointer(o->yt + col * o->yt_cols + row);
    for (unsigned i = (unsigned)g.id; i < (unsigned)TE_FP8_TILE * CHUNKS; i += TE_FP8_THREADS) {
        const int first = (int)(i % CHUNKS) * 16, column = (int)(i / CHUNKS);
        const te__bytes16 w = *(const te__bytes16 *)(const void *)(transposed->word + te__fp8_word_at(column, first));
        if (first < rows && column < cols)
            te__fp8_store_transposed(tile + column * o->yt_cols + first, w, (int)te_min(16, rows - first),
                                     exist - first, is_pitch_aligned && exist - first >= 16);
    }
}
/* Cast the tile of block b. */
TE_FN void te__fp8_tile(const te_fp8_out *o, te_block b, te_fp8_shared *transposed, te_fp8_load_fn load,
                        te_fp8_compute_fn compute, const void *arg, const te_fp8_options k) {
    enum { LANES_A_SIDE = TE_FP8_TILE / 8 };
    int group;
    const te_lanes g = te_lanes_here(TE_FP8_THREADS, &group);
    const int tiles_across = (int)te_ceil_div(o->cols, TE_FP8_TILE);
    const int64_t row = (int64_t)(b.x / tiles_across) * TE_FP8_TILE, col = (int64_t)(b.x % tiles_across) * TE_FP8_TILE;
    uint32_t amax = 0;
    for (int i = g.id; i < TE_FP8_LANES; i += g.count) {
        const te_fp8_piece at = te__fp8_piece_at(row, col, i / LANES_A_SIDE * 8, i % LANES_A_SIDE * 8);
        const uint32_t m = te__fp8_cast_piece(o, transposed, load, compute, arg, k, at);
        amax = m > amax ? m : amax;
    }
    if (o->yt) {
        te_block_sync();
        te__fp8_store_tile(o, transposed, row, col, g);
    }
    if (o->amax) te_amax_atomic_max(o->amax, amax, g);
    if (o->inverse && b.x == 0 && g.id == 0) te_scale_save(o->inverse, o->scale ? *o->scale : 1.0f);
}
/* Cast the tile of thread block b to the format o->to, e4m3 or e5m2. The branch makes the format, k.to, a compile-time
 * constant in each of the two calls. */
TE_FN void te_fp8_body(const te_fp8_out *o, te_block b, te_fp8_shared *transposed, te_fp8_load_fn load,
                       te_fp8_compute_fn compute, const void *arg, te_fp8_options k) {
    if (o->to == TE_e4m3) k.to = TE_e4m3, te__fp8_tile(o, b, transposed, load, compute, arg, k);
    else k.to = TE_e5m2, te__fp8_tile(o, b, transposed, load, compute, arg, k);
}

/* ---- kernels of a producer --------------------------------------------------------------------------------------- */

/* Check the outputs *o of a cast before the kernel is launched. who: the name of the calling function, for the error
 * text. */
TE_API te_status te__fp8_check(const te_fp8_out *o, const char *who, te_context *ctx) {
    TE_TRY(te__check_target(ctx, who));
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
    return te__grid_of(te_ceil_div(o->rows, TE_FP8_TILE) * te_ceil_div(o->cols, TE_FP8_TILE), 1);
}

/* Define two kernels that cast the results of `compute`, one for a number of columns that is a multiple of eight and
 * one for any number of columns, and te_status name_run(const type *, ctx), which launches the right one. resident: the
 * number of thread blocks that must fit on an SM; the compiler limits the registers of a thread accordingly. inputs:
 * how many vectors the load function fills. */
#define TE_FP8_KERNELS(name, resident, type, load, compute, inputs)                                                \
    static_assert((inputs) <= TE_FP8_MAX_INPUTS, #name ": too many inputs");                                       \
    TE_FP8_KERNEL(name##_aligned, resident, type, load, compute, inputs, 1, 0)                                     \
    TE_FP8_KERNEL(name##_unaligned, resident, type, load, compute, inputs, 0, 0)                                   \
    TE_API te_status name##_run(const type *args, te_context *ctx) {                                               \
        const te_fp8_out *o = (const te_fp8_out *)(const void *)args;                                              \
        if (!o->rows || !o->cols) return TE_OK;                                                                    \
        return o->cols % 8 == 0 ? name##_aligned_launch(ctx, te__fp8_grid(o), args)                                \
                                : name##_unaligned_launch(ctx, te__fp8_grid(o), args);                             \
    }
/* Define one kernel that casts the results of `compute`. aligned: 1 if the number of columns is always a multiple of
 * eight. stochastic: 1 if the kernel rounds stochastically; `aligned` must then be 1. */
#define TE_FP8_KERNEL(name, resident, type, load, compute, inputs, aligned, stochastic)                            \
    TE_KERNEL_RESIDENT(name, TE_FP8_THREADS, resident, type, TE_SHARED te_fp8_shared transposed;                   \
                       te_fp8_body((const te_fp8_out *)(const void *)te_args, te_at, &transposed, load, compute,   \
                                   te_args, te_fp8_options_of(inputs, aligned, stochastic)))

/* ---- TE_QUANTIZE: cast a tensor with one scale ------------------------------------------------------------------- */

/* Arguments of a cast y = x * scale, rounded to nearest even and saturated (dtype.h). yt [cols, rows] has the same
 * bytes as y, transposed. If y and yt are null, the kernel computes only the amax, as the first pass of current scaling
 * does. */
typedef struct te_quantize {
    void *y, *yt;       /* [rows, cols] and [cols, yt_cols], of dtype `to`; null: this output is not stored */
    float *amax;        /* updated to max(*amax, |x| of all elements); in target memory; null: no amax is computed */
    const void *x;      /* [rows, cols] of the dtype that the kernels are made for */
    const float *scale; /* in target memory; null means a scale of 1 */
    float *inverse;     /* [2], output: 1 / scale and the scale; in target memory; null: not stored */
    int64_t rows, cols;
    int64_t yt_cols; /* `rows` up to `rows` rounded up to a multiple of 128; yt's columns from index `rows` on become
                      * zeros */
    te_dtype to;
    const te_rng *rng;  /* the random state for stochastic rounding, in target memory */
    /* the number of the random stream for stochastic rounding. Two tensors that are cast with the same random state
     * must have different stream numbers, because otherwise both would get the same random numbers */
    uint32_t stream;
} te_quantize;

TE_API te_quantize te__quantize_of(int64_t rows, int64_t cols) {
    te_quantize q;
    memset(&q, 0, sizeof q);
    q.rows = q.yt_cols = rows, q.cols = cols, q.to = TE_e4m3;
    return q;
}

typedef struct te_quantize_args { te_fp8_out out; const void *x; } te_quantize_args;

/* If no transpose is stored (o->yt is null), treat the tensor as a matrix with rows as long as possible, but no longer
 * than the row of a tile. This is correct because a cast without a transpose does not depend on the shape. */
TE_API void te__quantize_flatten(te_fp8_out *o) {
    int64_t cols = TE_FP8_TILE;
    if (o->yt) return;
    while (cols > 1 && o->rows * o->cols % cols) cols /= 2;
    if (cols % 8 && o->cols > cols) return;
    o->rows = o->rows * o->cols / cols, o->cols = cols;
}
TE_API te_status te__quantize_args_of(te_quantize_args *a, const te_quantize *q, const char *who, te_context *ctx) {
    memset(a, 0, sizeof *a);
    TE_TRY(te__check_target(ctx, who));
    TE_REQUIRE(q, ctx, TE_ERROR_NULL, "%s: what is to be cast is null", who);
    a->out.y = (uint8_t *)q->y, a->out.yt = (uint8_t *)q->yt, a->out.amax = q->amax, a->out.scale = q->scale;
    a->out.inverse = q->inverse, a->out.yt_cols = q->yt_cols;
    a->out.rows = q->rows, a->out.cols = q->cols, a->out.to = q->to, a->x = q->x;
    a->out.rng = q->rng, a->out.stream = q->stream;
    TE_TRY(te__fp8_check(&a->out, who, ctx));
    TE_REQUIRE(q->x || !q->rows || !q->cols, ctx, TE_ERROR_NULL, "%s: x is null", who);
    TE_REQUIRE((uintptr_t)q->x % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: x does not start at a multiple of %d bytes", who, (int)TE_ACCESS);
    te__quantize_flatten(&a->out);
    return TE_OK;
}

/* The load function for tensors of dtype `from`, which is a compile-time constant. */
TE_FN void te__quantize_load(te_vec8 *in, const void *arg, int64_t row, int64_t col, int n, int aligned,
                             te_dtype from) {
    const te_quantize_args *a = (const te_quantize_args *)arg;
    te_vec8_load(in, a->x, row * a->out.cols + col, n, aligned, from);
}
typedef te_status (*te__quantize_fn)(const te_quantize_args *a, te_context *ctx);
TE_API te_status te__quantize_run(te__quantize_fn run, const te_quantize *q, const char *who, te_context *ctx) {
    te_quantize_args a;
    TE_TRY(te__quantize_args_of(&a, q, who, ctx));
    return run(&a, ctx);
}

/* The number of thread blocks that must fit on an SM; the compiler limits the registers of a thread accordingly. For an
 * x in f32, which takes more registers, the number is smaller */
enum { TE_QUANTIZE_RESIDENT = 4, TE_QUANTIZE_RESIDENT_f32 = 2 };
#define TE__QUANTIZE_RESIDENT(from) (TE_##from == TE_f32 ? TE_QUANTIZE_RESIDENT_f32 : TE_QUANTIZE_RESIDENT)

/* Define kernels for tensors of dtype `from`, and te_status name_run(const te_quantize *q, te_context *ctx). */
#define TE_QUANTIZE(name, from)                                                                                       \
    TE__QUANTIZE_PRODUCER(name, from)                                                                                 \
    TE_FP8_KERNELS(name##_of, TE__QUANTIZE_RESIDENT(from), te_quantize_args, name##_load, name##_compute, 1)          \
    TE_API te_status name##_run(const te_quantize *q, te_context *ctx)                                                \
        { return te__quantize_run(name##_of_run, q, #name, ctx); }
/* Define te_status name_run(const te_quantize *q, te_context *ctx) and its only kernel, for tensors of dtype `from`
 * whose number of columns is a multiple of eight. (TE_QUANTIZE also defines a kernel for other numbers of columns.) */
#define TE_QUANTIZE_VEC8(name, from)                                                                                  \
    TE__QUANTIZE_PRODUCER(name, from)                                                                                 \
    TE__QUANTIZE_VEC8_KERNEL(name, name##_of, from, 0)                                                                \
    TE_API te_status name##_run(const te_quantize *q, te_context *ctx)                                                \
        { return te__quantize_run(name##_of_run, q, #name, ctx); }
/* Define name_stochastic_run, which rounds stochastically, so that the expected value of y is x * scale. The random
 * numbers come from stream q->stream of the random state q->rng. TE_QUANTIZE_VEC8(name, from) must precede this
 * macro. */
#define TE_QUANTIZE_STOCHASTIC(name, from)                                                                            \
    TE__QUANTIZE_VEC8_KERNEL(name, name##_stochastic_of, from, 1)                                                     \
    TE_API te_status name##_stochastic_run(const te_quantize *q, te_context *ctx) {                                   \
        TE_REQUIRE(q && q->rng, ctx, TE_ERROR_NULL, "%s: rng is null", #name);                                        \
        return te__quantize_run(name##_stochastic_of_run, q, #name, ctx);                                             \
    }
#define TE__QUANTIZE_VEC8_KERNEL(name, kernel, from, stochastic)                                                      \
    TE_FP8_KERNEL(kernel, TE__QUANTIZE_RESIDENT(from), te_quantize_args, name##_load, name##_compute, 1, 1,           \
                  stochastic)                                                                                         \
    TE_API te_status kernel##_run(const te_quantize_args *a, te_context *ctx) {                                       \
        TE_REQUIRE(a->out.cols % 8 == 0, ctx, TE_ERROR_SHAPE, "%s: %lld columns; it takes multiples of eight", #name, \
                   (long long)a->out.cols);                                                                           \
        return a->out.rows && a->out.cols ? kernel##_launch(ctx, te__fp8_grid(&a->out), a) : TE_OK;                   \
    }
#define TE__QUANTIZE_PRODUCER(name, from)                                                                             \
    TE_FN void name##_load(te_vec8 *in, const void *arg, int64_t row, int64_t col, int n, int aligned) {              \
        te__quantize_load(in, arg, row, col, n, aligned, TE_##from);                                                  \
    }                                                                                                                 \
    TE_FN void name##_compute(float v[8], const te_vec8 *in, const void *arg, int64_t row, int64_t col) {             \
        (void)arg, (void)row, (void)col, te_vec8_floats(v, in, TE_##from);                                            \
    }

/* ---- several tensors in one launch ------------------------------------------------------------------------------- */

/* The arguments of a kernel that casts all tensors of a table to e4m3 in one launch. The table has a te_quantize_args
 * for each tensor. A chunk, the work of one thread block, is a tile of 128 x 128 elements of a tensor. The kernel reads
 * and writes as many bytes as separate launches, one for each tensor. */
typedef struct te_quantize_multi_tensor {
    te_multi_tensor of;
    int cast; /* 1: compute y and yt; 0: compute only amax */
} te_quantize_multi_tensor;

TE_FN te_quantize_args te__quantize_select(const te_quantize_multi_tensor *t, te_block *b) {
    te_quantize_args a = ((const te_quantize_args *)t->of.tensor)[te_multi_tensor_find(&t->of, b)];
    if (t->cast) a.out.amax = 0;
    else a.out.y = a.out.yt = 0;
    return a;
}
/* Define te_status name_multi_tensor_run(const te_quantize_multi_tensor *t, te_context *ctx), for tensors whose number
 * of columns is a multiple of eight. */
#define TE_QUANTIZE_MULTI_TENSOR(name, from)                                                                          \
    TE__QUANTIZE_PRODUCER(name##_multi_tensor, from)                                                                  \
    TE_FN void name##_multi_tensor_body(const te_quantize_multi_tensor *t, te_block b, te_fp8_shared *transposed) {   \
        const te_quantize_args a = te__quantize_select(t, &b);                                                        \
        te__fp8_tile(&a.out, b, transposed, name##_multi_tensor_load, name##_multi_tensor_compute, &a,                \
                     te_fp8_options_of(1, 1, 0));                                                                     \
    }                                                                                                                 \
    TE_KERNEL_RESIDENT(name##_multi_tensor, TE_FP8_THREADS, TE__QUANTIZE_RESIDENT(from), te_quantize_multi_tensor,    \
                       TE_SHARED te_fp8_shared transposed; name##_multi_tensor_body(te_args, te_at, &transposed))     \
    TE_API te_status name##_multi_tensor_run(const te_quantize_multi_tensor *t, te_context *ctx)                      \
        { return t->of.chunks ? name##_multi_tensor_launch(ctx, te__grid_of(t->of.chunks, 1), t) : TE_OK; }

/* ---- TE_TRANSPOSE_FP8: the transpose of an FP8 tensor ------------------------------------------------------------ */

/* Transpose one tile of x, an FP8 tensor, e4m3 or e5m2. The index of thread block b selects the tile. Memory traffic:
 * one byte is read and one byte written for each element. */
TE_FN void te_transpose_fp8_body(const te_quantize_args *a, te_block b, te_fp8_shared *transposed) {
    enum { LANES_A_SIDE = TE_FP8_TILE / 8 };
    int group;
    const te_lanes g = te_lanes_here(TE_FP8_THREADS, &group);
    const int tiles_across = (int)te_ceil_div(a->out.cols, TE_FP8_TILE);
    const int64_t row = (int64_t)(b.x / tiles_across) * TE_FP8_TILE, col = (int64_t)(b.x % tiles_across) * TE_FP8_TILE;
    for (int i = g.id; i < TE_FP8_LANES; i += g.count) {
        const int64_t first = row + i / LANES_A_SIDE * 8, at = col + i % LANES_A_SIDE * 8;
        uint32_t word[8][2];
        TE_UNROLL for (int k = 0; k < 8; k++) {
            te_vec8 e;
            e.w[0] = e.w[1] = 0;
            if (first + k < a->out.rows && at < a->out.cols)
                te_vec8_load_fp8(&e, a->x, (first + k) * a->out.cols + at, 8, 1);
            word[k][0] = e.w[0], word[k][1] = e.w[1];
        }
        te__fp8_transpose_piece(transposed, word, i / LANES_A_SIDE * 8, i % LANES_A_SIDE * 8);
    }
    te_block_sync();
    te__fp8_store_tile(&a->out, transposed, row, col, g);
}
/* Define a kernel, and te_status name_run(const te_quantize *q, te_context *ctx), which transposes q->x, in FP8, to
 * q->yt. q->cols must be a multiple of eight. All members of q except x, yt, rows, cols and yt_cols are ignored. */
#define TE_TRANSPOSE_FP8(name)                                                                                        \
    TE_KERNEL_RESIDENT(name##_kernel, TE_FP8_THREADS, 6, te_quantize_args, TE_SHARED te_fp8_shared transposed;        \
                       te_transpose_fp8_body(te_args, te_at, &transposed))                                            \
    TE_API te_status name##_run(const te_quantize *q, te_context *ctx) {                                              \
        te_quantize_args a;                                                                                           \
        TE_TRY(te__quantize_args_of(&a, q, #name, ctx));                                                              \
        TE_REQUIRE(q->yt && q->cols % 8 == 0, ctx, TE_ERROR_SHAPE,                                                    \
                   #name ": rows of %lld; they are transposed in multiples of eight, into yt", (long long)q->cols);   \
        return q->rows && q->cols ? name##_kernel_launch(ctx, te__fp8_grid(&a.out), &a) : TE_OK;                      \
    }

#endif
