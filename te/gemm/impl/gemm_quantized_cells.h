/* gemm_quantized_cells.h -- reads repacked quantized weights (te/quant/repacked_blocks.h) on the GPU: a lane's codes as
 * operands of mma, and scales and offsets in f32. A value of the weight is scale * q + offset, where q is the code
 * minus the zero point, an integer that bf16 and f16 represent exactly.
 *
 * How codes become floats: if an integer is stored in the low bits of a 16-bit float, the float's value is the integer
 * times the smallest positive float (2^-133 in bf16, 2^-24 in f16), provided that the integer has at most 8 bits in
 * bf16 or 11 bits in f16. This holds because subnormal floats and the smallest normal floats are equally spaced. So one
 * mask extracts two codes as floats, and one fma of packed pairs multiplies both codes by a power of two and subtracts
 * the zero point. The power of two is chosen so that the result is q times a `unit`, which is the same for all formats
 * of weights (te__cell_unit_log). If the bits of an E2M1 number are placed where bf16 has sign, exponent and mantissa,
 * the value of the bf16 number is 2^-126 times the E2M1 number.
 */
/* target: cuda */
#ifndef TE_GEMM_QUANTIZED_CELLS_H
#define TE_GEMM_QUANTIZED_CELLS_H

#include "../../core/impl/ptx_cuda.h"    /* te__mma_sync */
#include "../../core/lanes.h"            /* te_block_here */
#include "../../quant/repacked_blocks.h" /* te__cell_low_bytes */

/* A step is the part of W that a warp multiplies at a time: 16 rows of 256 columns. (The last step of a row may have
 * fewer columns.) W is stored in cells of 16 blocks, one from each of 16 rows, so a step is one cell in a k-quant, and
 * several cells in a format with blocks of 32, 64 or 128 columns. */
enum { TE_STEP_K = 256, TE_STEP_GROUPS = TE_STEP_K / TE_CELL_GROUP };

/* The constants of format F. */
template <te_block_format F>
struct te__cells_of {
    TE_BOTH constexpr int block_values(void) {
#define TE_CELLS_VALUES(token, values, bytes) F == TE_BLOCK_##token ? values:
        return TE_BLOCK_FORMATS(TE_CELLS_VALUES) 0;
#undef TE_CELLS_VALUES
    }
    TE_BOTH constexpr int block_bytes(void) {
#define TE_CELLS_BYTES(token, values, bytes) F == TE_BLOCK_##token ? bytes:
        return TE_BLOCK_FORMATS(TE_CELLS_BYTES) 0;
#undef TE_CELLS_BYTES
    }
    enum {
        VALUES = block_values(),
        GROUPS = VALUES / TE_CELL_GROUP, /* groups of 32 columns in a cell */
        CELL = TE_CELL_ROWS * block_bytes(),
        STEP = CELL * (TE_STEP_K / VALUES),
        IS_K = F == TE_BLOCK_q4_k || F == TE_BLOCK_q5_k || F == TE_BLOCK_q6_k,
        IS_8BIT = F == TE_BLOCK_q8_0 || F == TE_BLOCK_int8,
        ZERO_POINTS = F == TE_BLOCK_int4z_32 || F == TE_BLOCK_int4z_64 || F == TE_BLOCK_int4z_128, /* one per block */
        LOW = IS_8BIT ? 512 : 256,
        HIGH = F == TE_BLOCK_q6_k                                               ? 128
               : F == TE_BLOCK_q5_0 || F == TE_BLOCK_q5_1 || F == TE_BLOCK_q5_k ? 64
                                                                                : 0,
        SCALES = GROUPS * (LOW + HIGH), /* offset of a cell's scales */
        /* in int8: bytes of the scales of 16 rows, which are stored behind the cells of these rows */
        ROW_SCALES = F == TE_BLOCK_int8 ? (int)TE_CELL_ROWS * (int)TE_BLOCK_ROW_SCALE : 0,
        /* 1 if a lane loads the low bits of two groups at once (te__cell_pairs_groups) */
        PAIRS = GROUPS > 1 && !IS_K,
        SPAN = PAIRS ? (int)GROUPS : 1, /* number of successive groups that share a scale; not used in int8, where a
                                         * whole row has one scale */
        /* A lane has codes of two rows, lane / 4 and lane / 4 + 8. When the low and the high bits of a code of the
         * second row are merged, the code's lowest bit lies at this position of a 16-bit half of a word. */
        UPPER_AT = IS_8BIT ? 0 : 4 - HIGH / 64,
        ZERO_LOG = IS_8BIT                                                                 ? 7 /* log2 of the zero */
                   : F == TE_BLOCK_q4_0 || F == TE_BLOCK_int4_64 || F == TE_BLOCK_int4_128 ? 3
                   : F == TE_BLOCK_q5_0                                                    ? 4
                   : F == TE_BLOCK_q6_k                                                    ? 5
                                        : -1, /* no zero point, or one per block */
        OFFSET = F == TE_BLOCK_q4_1 || F == TE_BLOCK_q5_1 || F == TE_BLOCK_q4_k || F == TE_BLOCK_q5_k,
        HALVES = F == TE_BLOCK_q6_k, /* 1 if each half of a group has a scale of its own */
        /* A lane has eight codes of a row of a group. Their columns are t to t + 3 and t + HALF to t + HALF + 3, where
         * t = T_COLUMNS * (lane % 4) */
        T_COLUMNS = HALVES ? 4 : 8,
        HALF = HALVES ? 16 : 4
    };
};
/* Returns the bytes that 16 rows of k columns take: their cells and, in int8, the scales of the rows behind the
 * cells. */
template <te_block_format F>
TE_FN int64_t te__cells_of_rows(int k) {
    return (int64_t)(k / te__cells_of<F>::VALUES) * te__cells_of<F>::CELL + te__cells_of<F>::ROW_SCALES;
}

/* ---- codes ------------------------------------------------------------------------------------------------------- */

/* Returns a * b + c. Each of the words a, b and c holds two numbers of format M. */
template <te_dtype M>
TE_FN uint32_t te__fma_pair(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    if (M == TE_bf16)
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    else
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
/* (a & mask) | base, as one instruction. */
TE_FN uint32_t te__and_or(uint32_t a, uint32_t mask, uint32_t base) {
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(base));
    return d;
}
/* Returns log2 of the unit, the power of two by which a code is multiplied when it is converted to format M. The unit
 * is the smallest positive number of M times the largest power of two in M. */
TE_BOTH constexpr int te__cell_unit_log(te_dtype m) { return m == TE_bf16 ? -6 : -9; }
/* Returns a word whose two 16-bit halves are both the number 2^e in format m. */
TE_BOTH constexpr uint32_t te__cell_power(te_dtype m, int e) {
    return (m == TE_bf16 ? (uint32_t)(e + 127) << 7 : (uint32_t)(e + 15) << 10) * 0x10001u;
}
/* Returns a word whose two 16-bit halves both hold the number -zero * 2^te__cell_unit_log(M) in format M; zero is the
 * zero point of F. */
template <te_block_format F, te_dtype M>
TE_FN uint32_t te__minus_zero(void) {
    const int zero = te__cells_of<F>::ZERO_LOG;
    return (zero < 0 ? 0 : te__cell_power(M, zero + te__cell_unit_log(M))) | 0x80008000u;
}
/* Returns a word whose two 16-bit halves both hold the number -zero * 2^te__cell_unit_log(M) in format M; zero is the
 * zero point of a block. w: the four bytes of the block that hold its scale d and its zero point. */
template <te_dtype M>
TE_FN uint32_t te__minus_zero_point(uint32_t w) {
    return te__fma_pair<M>(__byte_perm(w, 0, 0x4242), te__cell_power(M, M == TE_bf16 ? 127 : 15) | 0x80008000u,
                           0x80008000u);
}
/* Returns code * 2^te__cell_unit_log(M) + minus_zero for two codes, as a pair of numbers in format M. at: the position
 * of a code's lowest bit in each half of `bits`. */
template <te_dtype M>
TE_FN uint32_t te__pair_of_codes(uint32_t bits, const int at, uint32_t minus_zero) {
    return te__fma_pair<M>(bits, te__cell_power(M, (M == TE_bf16 ? 127 : 15) - at), minus_zero);
}
/* Returns two E2M1 numbers in format M, each times the unit 2^te__cell_unit_log(M). Their bits lie in `bits` where bf16
 * has sign, exponent and mantissa. */
template <te_dtype M>
TE_FN uint32_t te__pair_of_e2m1(uint32_t bits) {
    if (M == TE_f16) bits = te__and_or(bits, 0x80008000u, bits << 3 & 0x0e000e00u);
    return te__fma_pair<M>(bits, te__cell_power(M, M == TE_bf16 ? 120 : 5), 0x80008000u);
}
/* Sets q[upper][i] to pair i of the lane's E2M1 numbers in row lane / 4 + 8 * upper, times the unit
 * 2^te__cell_unit_log(M). word: the lane's part of a group of 32 columns, as te__cell_store_mxfp4 stores it. */
template <te_dtype M>
TE_FN void te__cell_mxfp4(uint32_t q[2][4], const uint32_t word[2]) {
    TE_UNROLL for (int i = 0; i < 2; i++) {
        const uint32_t w = word[i];
        q[0][2 * i] = te__pair_of_e2m1<M>(w & 0x81c081c0u);
        q[1][2 * i] = te__pair_of_e2m1<M>(w << 3 & 0x81c081c0u);
        q[0][2 * i + 1] = te__pair_of_e2m1<M>(te__and_or(w << 1, 0x80008000u, w << 6 & 0x01c001c0u));
        q[1][2 * i + 1] = te__pair_of_e2m1<M>(te__and_or(w << 2, 0x80008000u, w >> 3 & 0x01c001c0u));
    }
}
/* Returns the high bits (all but the low four) of the lane's codes of a group of 32 columns. The high bits are placed
 * so that for each pair of codes te__cell_high_of_pair moves them next to the low bits by one shift, for both rows. */
template <te_block_format F>
TE_FN uint32_t te__cell_high(const char *step, int group, int lane) {
    typedef te__cells_of<F> cells;
    const char *at =
        step + group / cells::GROUPS * cells::CELL + cells::GROUPS * cells::LOW + group % cells::GROUPS * cells::HIGH;
    if (F == TE_BLOCK_q6_k) return *(const uint32_t *)(const void *)(at + lane * 4);
    if (!te__cells_of<F>::HIGH) return 0;
    return __byte_perm(*(const uint16_t *)(const void *)(at + lane * 2), 0, 0x4140);
}
template <te_block_format F>
TE_FN uint32_t te__cell_high_of_pair(uint32_t high, const int i) {
    const int left = F == TE_BLOCK_q6_k ? 2 - 4 * i : 3 - 2 * i;
    return left > 0 ? high << left : high >> -left;
}
/* Returns the low bits of the lane's codes of a group (32 columns): four words in formats with 8-bit codes, two words
 * in all other formats. step: the first byte of the step (16 rows of 256 columns). */
template <te_block_format F>
TE_FN uint4 te__cell_low_bits(const char *step, int group, int lane) {
    typedef te__cells_of<F> cells;
    const int in_cell = group % cells::GROUPS;
    const char *low =
        step + group / cells::GROUPS * cells::CELL + te__cell_low_at(F, in_cell) + lane * te__cell_low_lane(F);
    if (cells::IS_8BIT) return *(const uint4 *)(const void *)low;
    const uint2 w = *(const uint2 *)(const void *)low;
    return make_uint4(w.x, w.y, 0, 0);
}
/* Returns the low bits of the lane's codes of two groups of 32 columns, `group` (an even number) and group + 1, in a
 * format with te__cells_of<F>::PAIRS. */
template <te_block_format F>
TE_FN uint4 te__cell_low_bits_of_pair(const char *step, int group, int lane) {
    typedef te__cells_of<F> cells;
    return *(const uint4 *)(const void *)(step + group / cells::GROUPS * cells::CELL +
                                          te__cell_low_at(F, group % cells::GROUPS) + lane * 16);
}
/* Sets q[upper][i] to pair i of the lane's codes in row lane / 4 + 8 * upper, minus their zero point, times the unit
 * 2^te__cell_unit_log(M), in format M. w: the result of te__cell_low_bits; minus_zero: te__minus_zero for each of the
 * two rows. */
template <te_block_format F, te_dtype M>
TE_FN void te__cell_codes(uint32_t q[2][4], const uint4 w, const uint32_t minus_zero[2], const char *step, int group,
                          int lane) {
    typedef te__cells_of<F> cells;
    if (cells::IS_8BIT) {
        const uint32_t word[4] = {w.x, w.y, w.z, w.w};
        TE_UNROLL for (int i = 0; i < 4; i++) {
            q[0][i] = te__pair_of_codes<M>(word[i] & 0x00ff00ffu, 0, minus_zero[0]);
            q[1][i] = te__pair_of_codes<M>(__byte_perm(word[i], 0, 0x4341), 0, minus_zero[1]);
        }
        return;
    }
    if (F == TE_BLOCK_mxfp4) {
        const uint32_t word[2] = {w.x, w.y};
        te__cell_mxfp4<M>(q, word);
        return;
    }
    const uint32_t word[4] = {w.x, w.x >> 8, w.y, w.y >> 8}, high = te__cell_high<F>(step, group, lane);
    TE_UNROLL for (int i = 0; i < 4; i++) {
        uint32_t first = word[i] & 0x000f000fu, second = word[i] & 0x00f000f0u;
        if (cells::HIGH) {
            const uint32_t more = te__cell_high_of_pair<F>(high, i);
            first = te__and_or(more, F == TE_BLOCK_q6_k ? 0x00300030u : 0x00100010u, first);
            second = te__and_or(more, F == TE_BLOCK_q6_k ? 0x000c000cu : 0x00080008u, second);
        }
        q[0][i] = te__pair_of_codes<M>(first, 0, minus_zero[0]);
        q[1][i] = te__pair_of_codes<M>(second, cells::UPPER_AT, minus_zero[1]);
    }
}

/* ---- scales ------------------------------------------------------------------------------------------------------ */

TE_FN float te__float_of_half(uint32_t bits) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((uint16_t)bits));
    return f;
}
/* The unsigned byte number i of w. */
TE_FN float te__float_of_byte(uint32_t w, const int i) {
    return __uint_as_float(__byte_perm(w, 0x4b000000u, 0x7440 + i)) - 8388608.0f; /* 2^23 + byte - 2^23 */
}
/* Returns 2^(e - 127). For e = 255, which stands for NaN, returns infinity. */
TE_FN float te__float_of_e8m0(uint32_t e) { return __uint_as_float(max(e << 23, 0x00400000u)); }
/* Loads the scales and offsets of one row of a step, for half of its 256 columns: groups 4 * half to 4 * half + 3, each
 * of 32 columns. If the step has only `groups` groups, the values of missing groups are 0. scale[i][0] and scale[i][1]
 * are the scales of the first and the second half of group 4 * half + i. offset[i] is 0 if the format has no offsets.
 * zero_point[i] (only in int4z) has the bytes of the scale d and the zero point. of_rows: in int8, the rows' scales. */
template <te_block_format F>
TE_FN void te__cell_scales(float scale[4][2], float offset[4], uint32_t zero_point[4], const char *step, int groups,
                           int row, int half, const char *of_rows) {
    typedef te__cells_of<F> cells;
    const char *at = step + cells::SCALES;
    TE_UNROLL for (int i = 0; i < 4; i++) zero_point[i] = 0;
    if (F == TE_BLOCK_int8) {
        const float of_row = *(const float *)(const void *)(of_rows + row * TE_BLOCK_ROW_SCALE);
        TE_UNROLL for (int i = 0; i < 4; i++) scale[i][0] = scale[i][1] = of_row, offset[i] = 0;
    } else if (F == TE_BLOCK_q6_k) {
        const uint2 w = *(const uint2 *)(const void *)(at + row * 16 + half * 8);
        const float d = te__float_of_half(*(const uint16_t *)(const void *)(at + TE_CELL_ROWS * 16 + row * 2));
        const uint32_t word[2] = {w.x ^ 0x80808080u, w.y ^ 0x80808080u}; /* scales are signed */
        TE_UNROLL for (int i = 0; i < 4; i++) {
            scale[i][0] = d * (te__float_of_byte(word[i / 2], i % 2 * 2) - 128.0f);
            scale[i][1] = d * (te__float_of_byte(word[i / 2], i % 2 * 2 + 1) - 128.0f);
            offset[i] = 0;
        }
    } else if (F == TE_BLOCK_q4_k || F == TE_BLOCK_q5_k) {
        const uint32_t w = *(const uint32_t *)(const void *)(at + row % 8 * 8 + row / 8 * 4);
        const float d = te__float_of_half(w & 0xffffu), dmin = te__float_of_half(w >> 16);
        const int lane = row % 8 * 4 + half * 2, shift = row / 8 * 4;
        const uint2 low = *(const uint2 *)(const void *)(at + 64 + lane * 4);
        const uint32_t high = *(const uint32_t *)(const void *)(at + 64 + 128 + lane * 2) >> shift / 2;
        TE_UNROLL for (int i = 0; i < 4; i++) {
            const uint32_t four = (i < 2 ? low.x : low.y) >> (i % 2 * 16 + shift), two = high >> i * 8;
            scale[i][0] = scale[i][1] = d * (float)((four >> 8 & 15u) | (two & 0x30u));
            offset[i] = -(dmin * (float)((four & 15u) | (two << 4 & 0x30u)));
        }
    } else {
        TE_UNROLL for (int i = 0; i < 4; i++) {
            const char *p = at + (half * 4 + i) / cells::GROUPS * cells::CELL;
            const int paired = row % 8 * 2 + row / 8;
            uint32_t w = 0;
            if (half * 4 + i < groups)
                w = F == TE_BLOCK_mxfp4                   ? *(const uint8_t *)(p + paired)
                    : cells::OFFSET || cells::ZERO_POINTS ? *(const uint32_t *)(const void *)(p + paired * 4)
                                                          : *(const uint16_t *)(const void *)(p + paired * 2);
            scale[i][0] = scale[i][1] =
                F == TE_BLOCK_mxfp4 ? (w == 255 ? NAN : te__float_of_e8m0(w)) : te__float_of_half(w & 0xffffu);
            offset[i] = cells::OFFSET ? te__float_of_half(w >> 16) : 0.0f, zero_point[i] = w;
        }
    }
}

/* ---- whole weights, and rows of a table -------------------------------------------------------------------------- */

typedef struct te__dequantize_args {
    void *y; /* [rows, k], or for a lookup [count, k] */
    const char *cells;
    te_dtype dtype;
    int k;
    int64_t rows;          /* of the part */
    const int32_t *tokens; /* for a lookup, [count] */
    int64_t count;
    int64_t first, size; /* for a lookup: the part's first row within the table, and the number of rows of the table */
} te__dequantize_args;
enum { TE_DEQUANTIZE_THREADS = 256 };

/* Store eight values of a row: four from element `at` on, and four from element at + half on. If the eight are adjacent
 * and have 16 bits, they are stored as one vector, because stores of half vectors would leave sectors of 32 bytes half
 * written. */
TE_FN void te__dequantize_store(void *y, int64_t at, const int half, const float v[8], te_dtype dtype) {
    if (half == 4 && dtype != TE_f32) {
        *(uint4 *)(void *)((uint16_t *)y + at) =
            make_uint4(te_pair_of_floats(v[0], v[1], dtype), te_pair_of_floats(v[2], v[3], dtype),
                       te_pair_of_floats(v[4], v[5], dtype), te_pair_of_floats(v[6], v[7], dtype));
        return;
    }
    TE_UNROLL for (int part = 0; part < 2; part++) {
        const float *f = v + 4 * part;
        const int64_t i = at + half * part;
        if (dtype == TE_f32)
            *(float4 *)(void *)((float *)y + i) = make_float4(f[0], f[1], f[2], f[3]);
        else
            *(uint2 *)(void *)((uint16_t *)y + i) =
                make_uint2(te_pair_of_floats(f[0], f[1], dtype), te_pair_of_floats(f[2], f[3], dtype));
    }
}
/* Sets v to the eight values that this lane has in one row of a group: scale * code + offset. q: the codes as bf16,
 * times the unit (te__cell_unit_log). */
TE_FN void te__dequantize_group(float v[8], const uint32_t q[4], const float scale[2], float offset) {
    const float per_unit = (float)(1 << -te__cell_unit_log(TE_bf16));
    TE_UNROLL for (int i = 0; i < 4; i++) {
        const float2 pair = te_floats_of_pair(q[i], TE_bf16);
        v[2 * i] = scale[i / 2] * (pair.x * per_unit) + offset;
        v[2 * i + 1] = scale[i / 2] * (pair.y * per_unit) + offset;
    }
}
/* Returns a word whose two halves both hold -zero * 2^te__cell_unit_log(TE_bf16) in bf16; zero is the zero point of a
 * row's block. zero_point: in int4z, the bytes of the block that hold its scale d and its zero point. */
template <te_block_format F>
TE_FN uint32_t te__dequantize_zero(uint32_t zero_point) {
    return te__cells_of<F>::ZERO_POINTS ? te__minus_zero_point<TE_bf16>(zero_point) : te__minus_zero<F, TE_bf16>();
}
/* Sets y to the values of all rows of the part. Each warp converts 16 rows x 128 columns (four groups of 32
 * columns). */
template <te_block_format F>
TE_UNUSED static __global__ void __launch_bounds__(TE_DEQUANTIZE_THREADS)
    te__dequantize_kernel(const __grid_constant__ te__dequantize_args a) {
    typedef te__cells_of<F> cells;
    const int lane = (int)threadIdx.x % 32, steps = (a.k + TE_STEP_K - 1) / TE_STEP_K;
    const int64_t warp = (int64_t)blockIdx.x * (TE_DEQUANTIZE_THREADS / 32) + threadIdx.x / 32;
    const int64_t tile = warp / (2 * steps), row = tile * TE_CELL_ROWS + lane / 4;
    const int step = (int)(warp / 2 % steps), half = (int)(warp % 2);
    const int groups = (int)te_min(TE_STEP_GROUPS, (a.k - step * TE_STEP_K) / TE_CELL_GROUP);
    float scale[2][4][2], offset[2][4];
    uint32_t zero_point[2][4];
    te_kernel_begin();
    if (tile * TE_CELL_ROWS >= a.rows) return;
    const char *const of_tile = a.cells + tile * te__cells_of_rows<F>(a.k), *at = of_tile + (int64_t)step * cells::STEP;
    const char *const of_rows = of_tile + (te__cells_of_rows<F>(a.k) - cells::ROW_SCALES);
    TE_UNROLL for (int upper = 0; upper < 2; upper++)
        te__cell_scales<F>(scale[upper], offset[upper], zero_point[upper], at, groups, lane / 4 + 8 * upper, half,
                           of_rows);
    TE_UNROLL for (int i = 0; i < 4; i++) {
        const int group = half * 4 + i, col = step * TE_STEP_K + group * TE_CELL_GROUP + lane % 4 * cells::T_COLUMNS;
        uint32_t q[2][4];
        if (group >= groups) break;
        const uint32_t zero[2] = {te__dequantize_zero<F>(zero_point[0][i]), te__dequantize_zero<F>(zero_point[1][i])};
        te__cell_codes<F, TE_bf16>(q, te__cell_low_bits<F>(at, group, lane), zero, at, group, lane);
        TE_UNROLL for (int upper = 0; upper < 2; upper++) {
            float v[8];
            te__dequantize_group(v, q[upper], scale[upper][i], offset[upper][i]);
            if (row + 8 * upper < a.rows)
                te__dequantize_store(a.y, (row + 8 * upper) * a.k + col, cells::HALF, v, a.dtype);
        }
    }
}
/* Sets row i of y to row tokens[i] of the table if that row lies in this part, and to NaN if the table has no such row.
 * Each block converts one row; each thread converts eight values of a group at a time. */
template <te_block_format F>
TE_UNUSED static __global__ void __launch_bounds__(TE_DEQUANTIZE_THREADS)
    te__lookup_kernel(const __grid_constant__ te__dequantize_args a) {
    typedef te__cells_of<F> cells;
    te_kernel_begin();
    const int64_t token = a.tokens[blockIdx.x], row = token - a.first;
    const int unknown = token < 0 || token >= a.size, here = row >= 0 && row < a.rows;
    if (!here && !(unknown && a.first == 0)) return; /* the first part stores the NaN */
    const char *tile = a.cells + (here ? row : 0) / TE_CELL_ROWS * te__cells_of_rows<F>(a.k);
    const char *const of_rows = tile + (te__cells_of_rows<F>(a.k) - cells::ROW_SCALES);
    const int in_cell = (int)((here ? row : 0) % TE_CELL_ROWS), t = (int)threadIdx.x % 4;
    for (int i = (int)threadIdx.x / 4; i < a.k / TE_CELL_GROUP; i += TE_DEQUANTIZE_THREADS / 4) {
        const int step = i / TE_STEP_GROUPS, group = i % TE_STEP_GROUPS, half = group / 4;
        const int groups = (int)te_min(TE_STEP_GROUPS, a.k / TE_CELL_GROUP - step * TE_STEP_GROUPS);
        const char *at = tile + (int64_t)step * cells::STEP;
        float scale[4][2], offset[4], v[8], s[2] = {0, 0}, o = 0;
        uint32_t q[2][4], codes[4], zero_point[4], zero_of_group = 0;
        const int of_lane = in_cell % 8 * 4 + t;
        te__cell_scales<F>(scale, offset, zero_point, at, groups, in_cell, half, of_rows);
        TE_UNROLL for (int j = 0; j < 4; j++)
            if (j == group % 4) zero_of_group = zero_point[j];
        const uint32_t zero[2] = {te__dequantize_zero<F>(zero_of_group), te__dequantize_zero<F>(zero_of_group)};
        te__cell_codes<F, TE_bf16>(q, te__cell_low_bits<F>(at, group, of_lane), zero, at, group, of_lane);
        TE_UNROLL for (int j = 0; j < 4; j++) {
            codes[j] = in_cell < 8 ? q[0][j] : q[1][j];
            if (j == group % 4) s[0] = scale[j][0], s[1] = scale[j][1], o = offset[j];
        }
        te__dequantize_group(v, codes, s, o);
        TE_UNROLL for (int j = 0; j < 8; j++) v[j] = here ? v[j] : NAN;
        te__dequantize_store(a.y, (int64_t)blockIdx.x * a.k + i * TE_CELL_GROUP + t * cells::T_COLUMNS, cells::HALF, v,
                             a.dtype);
    }
}

/* ---- formats known at run time ----------------------------------------------------------------------------------- */

/* Calls X(token) for each format of repacked weights. */
#define TE_CELL_FORMATS(X) \
    X(q8_0) X(q4_0) X(q4_1) X(q5_0) X(q5_1) X(q4_k) X(q5_k) X(q6_k) \
    X(mxfp4) X(int4_64) X(int4_128) X(int4z_32) X(int4z_64) X(int4z_128) X(int8)

TE_IF_USED TE_API const void *te__dequantize_kernel_of(te_block_format f, int lookup) {
    switch ((int)f) {
#define TE_CELLS_KERNEL(token)                                            \
    case TE_BLOCK_##token:                                                \
        return lookup ? (const void *)te__lookup_kernel<TE_BLOCK_##token> \
                      : (const void *)te__dequantize_kernel<TE_BLOCK_##token>;
        TE_CELL_FORMATS(TE_CELLS_KERNEL)
#undef TE_CELLS_KERNEL
    default: return 0;
    }
}
TE_API const char *te__cells_at(const te_weight_part *part) { return (const char *)part->data + TE_REPACKED_HEADER; }
/* Sets y[rows, k] to the values of a repacked weight, converted to `dtype`. */
TE_IF_USED TE_API te_status te__dequantize_weight(void *y, te_dtype dtype, const te_quantized_weight *w, int64_t k,
                                                  te_context *ctx) {
    te__dequantize_args a;
    memset(&a, 0, sizeof a);
    a.dtype = dtype, a.k = (int)k;
    for (int i = 0; i < w->parts; i++) {
        const te_weight_part *part = &w->part[i];
        const int64_t warps = te_ceil_div(part->rows, TE_CELL_ROWS) * te_ceil_div(k, TE_STEP_K) * 2;
        a.y = (char *)y + (size_t)(a.first * k) * te_dtype_bytes(dtype), a.cells = te__cells_at(part);
        a.rows = part->rows, a.first += part->rows;
        TE_TRY(te__cuda_launch_plain(ctx, te__dequantize_kernel_of(part->format, 0), "dequantize",
                                     te__grid_of(te_ceil_div(warps, TE_DEQUANTIZE_THREADS / 32), 1),
                                     TE_DEQUANTIZE_THREADS, &a, sizeof a));
    }
    return TE_OK;
}
/* Sets row i of y to row tokens[i] of w, converted to `dtype`, or to NaN if w has no such row. rows: the number of
 * tokens. */
TE_IF_USED TE_API te_status te__quantized_lookup(void *y, te_dtype dtype, const int32_t *tokens, int64_t rows,
                                                 const te_quantized_weight *w, int64_t cols, te_context *ctx) {
    te__dequantize_args a;
    memset(&a, 0, sizeof a);
    a.y = y, a.dtype = dtype, a.k = (int)cols, a.tokens = tokens, a.count = rows;
    for (int i = 0; i < w->parts; i++) a.size += w->part[i].rows;
    for (int i = 0; i < w->parts; a.first += w->part[i++].rows) {
        a.cells = te__cells_at(&w->part[i]), a.rows = w->part[i].rows;
        TE_TRY(te__cuda_launch_plain(ctx, te__dequantize_kernel_of(w->part[i].format, 1), "embedding lookup",
                                     te__grid_of(rows, 1), TE_DEQUANTIZE_THREADS, &a, sizeof a));
    }
    return TE_OK;
}

#endif
