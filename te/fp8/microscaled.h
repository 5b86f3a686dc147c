/* microscaled.h -- tensors in the block-scaled formats MXFP8 and NVFP4: the sizes and the layouts of their elements and
 * scales.
 *
 * Do this:
 *     te_microscaled_shape s = te_microscaled_shape_of(TE_NVFP4, rows, cols, 0, 1);  // blocks along a row, swizzled
 *     te_allocate(ctx, &data, s.data_bytes), te_allocate(ctx, &scales, s.scale_bytes);
 *
 *   format  elements  a block                      its scale      the tensor's scale
 *   mxfp8   e4m3      32 elements of a row         e8m0           none
 *   nvfp4   e2m1      16 elements of a row, or     ue4m3          f32: amax / (6 * 448)
 *                     16 x 16 elements of a weight
 *
 * A tensor x may be stored in two forms. In the rowwise form, a block is a part of a row of x. In the columnwise form,
 * a block is a part of a column of x; the GEMM of a weight gradient reads this form, because it sums over the rows of
 * x. Blocks at the end of a row or a column may be incomplete. Sources: OCP Microscaling Formats (MX) Specification
 * 1.0; NVIDIA, "Pretraining Large Language Models with NVFP4" (2025); the layouts are those of TransformerEngine.
 */
#ifndef TE_MICROSCALED_H
#define TE_MICROSCALED_H

#include "../core/philox.h" /* te_rng */
#include "../core/small_dtypes.h" /* te_e8m0_of_float_up, te_e2m1_of_float */
#include "../core/target.h" /* te__check_target, TE_KERNEL_RESIDENT */

typedef enum te_microscaling { TE_MXFP8, TE_NVFP4 } te_microscaling;

enum {
    TE_MXFP8_BLOCK = 32, /* the number of elements of a block of MXFP8 */
    TE_NVFP4_BLOCK = 16,
    /* the size of a tile of swizzled scales: the scales of 4 blocks in each of 128 rows lie in 512 consecutive bytes
     * (cuBLAS, "Layouts of 1D block scaling factors") */
    TE_SCALE_TILE_ROWS = 128,
    TE_SCALE_TILE_BLOCKS = 4
};

/* Sizes of a tensor that is stored rowwise or columnwise. A "line" is a row of x in the rowwise form, and a column of x
 * in the columnwise form. */
typedef struct te_microscaled_shape {
    int64_t lines, blocks;  /* the number of lines, and the number of blocks in each line */
    int64_t pitch;          /* the bytes from one row of te_microscaled_out.data to the next. mxfp8: `data` is [rows,
                             * cols] in the order of x, in both forms. nvfp4: a row of `data` is a line, with two
                             * elements in each byte, the first element in the low half; the line is padded with zeros
                             * to whole blocks */
    int64_t data_bytes;
    int64_t scale_bytes;    /* bytes of all scales; a scale takes one byte, and swizzled scales are padded to whole
                             * tiles */
} te_microscaled_shape;

/* Return the sizes for a tensor [rows, cols]. columnwise: 1 for the columnwise form, 0 for the rowwise form. swizzled:
 * 1 if scales are in tiles of 128 x 4 (te_swizzled_scale_at), 0 if scales are a plain matrix. */
TE_BOTH te_microscaled_shape te_microscaled_shape_of(te_microscaling format, int64_t rows, int64_t cols, int columnwise,
                                                     int swizzled) {
    te_microscaled_shape s;
    const int64_t block = format == TE_MXFP8 ? TE_MXFP8_BLOCK : TE_NVFP4_BLOCK;
    s.lines = columnwise ? cols : rows, s.blocks = te_ceil_div(columnwise ? rows : cols, block);
    s.pitch = format == TE_MXFP8 ? cols : s.blocks * (TE_NVFP4_BLOCK / 2);
    s.data_bytes = format == TE_MXFP8 ? rows * cols : s.lines * s.pitch;
    s.scale_bytes = swizzled ? te_round_up(s.lines, TE_SCALE_TILE_ROWS) * te_round_up(s.blocks, TE_SCALE_TILE_BLOCKS)
                             : s.lines * s.blocks;
    return s;
}
/* Return the index, in swizzled scales, of the scale of block number `block` of line number `line`. cuBLASLt reads this
 * layout: tiles of 128 lines x 4 blocks, in row-major order. Within a tile, the scales of lines that are 32 apart are
 * neighbours. */
TE_BOTH int64_t te_swizzled_scale_at(int64_t blocks, int64_t line, int64_t block) {
    const int64_t tile = line / TE_SCALE_TILE_ROWS * te_ceil_div(blocks, TE_SCALE_TILE_BLOCKS) +
                         block / TE_SCALE_TILE_BLOCKS;
    return tile * (TE_SCALE_TILE_ROWS * TE_SCALE_TILE_BLOCKS) + line % 32 * 16 + line / 32 % 4 * 4 +
           block % TE_SCALE_TILE_BLOCKS;
}
/* Return the index of the scale of block number `block` of line number `line`. Scales that are not swizzled are a
 * matrix [lines, blocks], except for mxfp8 in the columnwise form, whose scales are [blocks, lines], in the order of
 * x. */
TE_BOTH int64_t te_microscale_at(te_microscaling format, const te_microscaled_shape *s, int64_t line, int64_t block,
                                 int columnwise, int swizzled) {
    if (swizzled) return te_swizzled_scale_at(s->blocks, line, block);
    return columnwise && format == TE_MXFP8 ? block * s->lines + line : line * s->blocks + block;
}

/* ---- a cast ------------------------------------------------------------------------------------------------------ */

/* The outputs of a cast in one of the two forms, rowwise or columnwise. The pointers point to target memory; an output
 * whose pointer is null is not stored. */
typedef struct te_microscaled_out {
    uint8_t *data, *scales; /* the elements, and the scales of the blocks (te_microscaled_shape_of). Both pointers must
                             * be null, or neither */
    void *rounded;          /* the values that `data` and `scales` represent, in the dtype of x, as a matrix [rows,
                             * cols]. A GEMM of this dtype on `rounded` emulates a GEMM on the block-scaled format. In
                             * the columnwise form with the Hadamard transform, `rounded` has the transformed values,
                             * [rows rounded up to a multiple of 16, cols] */
} te_microscaled_out;

typedef struct te_quantize_microscaled {
    te_microscaled_out y, yt; /* y: rowwise; yt: columnwise */
    const void *x;            /* [rows, cols] of the dtype that the kernels are made for */
    int64_t rows, cols;
    int swizzled;             /* 1: the scales of y and yt are swizzled */
    /* The members below are for nvfp4 only. */
    float *amax;              /* [2], output in target memory, not null: the largest |x|, and the largest |x| after the
                               * Hadamard transform */
    int square_blocks;        /* 1: a block of y and of yt is 16 x 16 elements (for weights). Must be 0 if `hadamard` or
                               * `rng` is set */
    int hadamard;             /* 1: yt is the cast of the transformed x (te_hadamard16) */
    const te_rng *rng;        /* the random state for stochastic rounding; null: round to nearest even */
    uint32_t stream;          /* the number of the random stream for stochastic rounding: y draws from `stream`, yt from
                               * stream + 1 */
} te_quantize_microscaled;

TE_BOTH te_quantize_microscaled te_quantize_microscaled_of(int64_t rows, int64_t cols) {
    te_quantize_microscaled q;
    memset(&q, 0, sizeof q);
    q.rows = rows, q.cols = cols;
    return q;
}

/* Return max(m, |v|), or m if v is NaN. */
TE_FN float te__microscaled_max(float m, float v) {
    const float a = fabsf(v);
    return TE_CUDA ? fmaxf(m, a) : a > m ? a : m;
}
/* Return the distance, in scales, from the scale of a block to the scale of the block with the same number in the next
 * line. For swizzled scales, the result is valid only between two lines of the same group of 32 lines, i.e. with the
 * same line / 32. */
TE_BOTH int64_t te__microscale_stride(te_microscaling format, const te_microscaled_shape *s, int columnwise,
                                      int swizzled) {
    return swizzled ? 16 : columnwise && format == TE_MXFP8 ? 1 : s->blocks;
}
/* Store the first n of the eight values v to the elements from index `at` on of `to`, an array in the dtype `from`.
 * Rounding to a block-scaled format can increase a finite number beyond 65504, the largest f16 number. In f16, such a
 * number is stored as 65504, not as infinity. */
TE_FN void te__microscaled_store_rounded(void *to, int64_t at, float v[8], int n, int aligned, const te_dtype from) {
    TE_UNROLL for (int k = 0; k < 8; k++) {
        const uint32_t u = te_bits_of_float(v[k]), a = u & 0x7fffffffu, largest = 0x477fe000u; /* 65504 */
        if (from == TE_f16 && a > largest && a < 0x7f800000u) v[k] = te_float_of_bits((u & 0x80000000u) | largest);
    }
    te_store8(to, at, v, n, aligned, from);
}
/* ---- checks, on the host ----------------------------------------------------------------------------------------- */

TE_API te_status te__microscaled_check_out(const te_microscaled_out *o, const char *which, const char *who,
                                           te_context *ctx) {
    TE_REQUIRE(!o->data == !o->scales, ctx, TE_ERROR_NULL, "%s: %s.%s is null, %s.%s is not", who, which,
               o->data ? "scales" : "data", which, o->data ? "data" : "scales");
    TE_REQUIRE(((uintptr_t)o->data | (uintptr_t)o->scales | (uintptr_t)o->rounded) % TE_ACCESS == 0, ctx,
               TE_ERROR_ALIGNMENT, "%s: %s does not start at a multiple of %d bytes", who, which, (int)TE_ACCESS);
    return TE_OK;
}
/* Check the arguments of a cast. rounded: 1 if the function stores y.rounded and yt.rounded, 0 if it stores elements
 * and scales. */
TE_API te_status te__microscaled_check(const te_quantize_microscaled *q, te_microscaling format, int rounded,
                                       const char *who, te_context *ctx) {
    TE_TRY(te__check_target(ctx, who));
    TE_REQUIRE(q, ctx, TE_ERROR_NULL, "%s: what is to be cast is null", who);
    TE_REQUIRE(q->rows >= 0 && q->cols >= 0, ctx, TE_ERROR_SHAPE, "%s: a tensor of %lld x %lld", who,
               (long long)q->rows, (long long)q->cols);
    TE_REQUIRE(4 * te_ceil_div(q->rows, 64) <= INT32_MAX / te_max(8, 8 * te_ceil_div(q->cols, 128)), ctx,
               TE_ERROR_OVERFLOW, "%s: a tensor of %lld x %lld has more blocks than a launch", who, (long long)q->rows,
               (long long)q->cols);
    TE_REQUIRE(q->x || !q->rows || !q->cols, ctx, TE_ERROR_NULL, "%s: x is null", who);
    TE_REQUIRE((uintptr_t)q->x % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: x does not start at a multiple of %d bytes", who, (int)TE_ACCESS);
    TE_TRY(te__microscaled_check_out(&q->y, "y", who, ctx));
    TE_TRY(te__microscaled_check_out(&q->yt, "yt", who, ctx));
    TE_REQUIRE(rounded ? !q->y.data && !q->yt.data : !q->y.rounded && !q->yt.rounded, ctx, TE_ERROR_VALUE,
               "%s stores %s; the other outputs must be null", who, rounded ? "rounded values" : "elements and scales");
    TE_REQUIRE(!rounded || q->cols % 8 == 0, ctx, TE_ERROR_SHAPE, "%s: %lld columns; it takes multiples of eight", who,
               (long long)q->cols);
    TE_REQUIRE(q->cols <= (int64_t)UINT32_MAX / 4, ctx, TE_ERROR_OVERFLOW, "%s: rows of %lld elements", who,
               (long long)q->cols); /* because kernels compute the bytes of a row in 32 bits */
    if (format == TE_MXFP8) return TE_OK;
    TE_REQUIRE(q->amax, ctx, TE_ERROR_NULL, "%s: amax is null; nvfp4 has a scale for the tensor", who);
    TE_REQUIRE(!q->hadamard || !q->square_blocks, ctx, TE_ERROR_VALUE,
               "%s: the Hadamard transform is of blocks of 16 elements of a column, not of 16 x 16", who);
    TE_REQUIRE(!q->rng || !q->square_blocks, ctx, TE_ERROR_VALUE,
               "%s: blocks of 16 x 16 are rounded to nearest; rng must be null", who);
    return TE_OK;
}
/* If the array of scales has padding, set the whole array to 0 before the cast, which does not write the padding. */
TE_API te_status te__microscaled_clear_padding(const te_quantize_microscaled *q, te_microscaling format,
                                               te_context *ctx) {
    for (int columnwise = 0; columnwise < 2; columnwise++) {
        uint8_t *scales = columnwise ? q->yt.scales : q->y.scales;
        const te_microscaled_shape s = te_microscaled_shape_of(format, q->rows, q->cols, columnwise, q->swizzled);
        if (scales && s.scale_bytes != s.lines * s.blocks) TE_TRY(te_fill(ctx, scales, 0, (size_t)s.scale_bytes));
    }
    return TE_OK;
}

#endif
