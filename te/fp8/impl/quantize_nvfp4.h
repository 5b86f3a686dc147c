/* quantize_nvfp4.h -- casts a tensor to NVFP4: elements in e2m1, a scale in ue4m3 for each block of 16 elements, and an
 * f32 scale for the tensor; rowwise, columnwise, or both.
 *
 * Do this:
 *     TE_QUANTIZE_NVFP4(of_bf16, bf16)                                // defines the kernels and of_bf16_run
 *     te_quantize_microscaled q = te_quantize_microscaled_of(rows, cols);
 *     q.x = x, q.amax = amax, q.y.data = y, q.y.scales = s, q.yt.data = yt, q.yt.scales = t, q.hadamard = 1;
 *     TE_TRY(of_bf16_run(&q, ctx));
 *
 * Two passes read x: the first finds the amax of x and of the transformed x, the second casts. TransformerEngine's
 * definitions, in f32: encode = 6 * 448 / amax of the tensor; a block's scale = amax of the block * (encode * (1 / 6)),
 * rounded to ue4m3; an element is x * (1 / (scale * (1 / encode))), rounded and saturated to +-6. An element has the
 * value e2m1 * ue4m3 * (amax / (6 * 448)). If x has a NaN, all scales are NaN; if it has an infinity, the tensor's
 * scale is infinite: both reach the product.
 *
 * A pair of lanes casts 16 x 16 elements; a lane holds 16 rows of eight columns, so a column's block and its transform
 * lie in one lane. Lower bound: a copy of the same bytes, for a bf16 element 5.13: 2 for each pass, and 0.56 each for y
 * and yt. GPUs before Blackwell convert to e2m1 by integer instructions, which take more time than these bytes
 * (docs/notes/fp8_casts.md).
 */
#ifndef TE_QUANTIZE_NVFP4_H
#define TE_QUANTIZE_NVFP4_H

#include <float.h> /* FLT_MAX */

#include "../../core/dtype.h" /* te_vec8 */
#include "../../core/lanes.h" /* te_lanes_pair_max, te_amax_atomic_max */
#include "../microscaled.h"   /* te_quantize_microscaled */

enum {
    TE_NVFP4_VECTORS = TE_CUDA ? 1 : 2, /* the vectors of eight columns of a 16 x 16 unit that a lane holds */
    TE_NVFP4_THREADS = TE_CUDA ? 256 : 1,
    TE_NVFP4_UNITS = 128 /* the units of 16 x 16 that a block of threads casts: on CUDA 4 x 4 in each warp */
};

/* ---- the Hadamard transform -------------------------------------------------------------------------------------- */

/* The signs by which the 16 inputs of the transform are multiplied: bit i is 1 if input i is negated. They are
 * TransformerEngine's: + + + - + - - - - - - + - + - -. */
enum { TE_HADAMARD_SIGNS = 0xd7e8 };

/* Transform 16 numbers in place: v = v D H / 4, where D is the diagonal matrix of the signs and H the 16 x 16 Hadamard
 * matrix (Sylvester's). The matrix is orthogonal, so (dy^T T)(T^T x) = dy^T x: transforming both operands of a weight
 * gradient along the rows over which it sums leaves the sum unchanged, but spreads an outlier over 16 elements. */
TE_BOTH void te_hadamard16(float v[16]) {
    TE_UNROLL for (int i = 0; i < 16; i++) v[i] = TE_HADAMARD_SIGNS >> i & 1 ? -v[i] : v[i];
    TE_UNROLL for (int half = 1; half < 16; half *= 2)
        TE_UNROLL for (int i = 0; i < 16; i++) {
            if (i & half) continue;
            const float a = v[i], b = v[i + half];
            v[i] = a + b, v[i + half] = a - b;
        }
    TE_UNROLL for (int i = 0; i < 16; i++) v[i] *= 0.25f;
}

/* ---- scales ------------------------------------------------------------------------------------------------------ */

/* The scales of a tensor, which follow from its amax. */
typedef struct te_nvfp4_scale {
    float decode;     /* the inverse of 6 * 448 / amax; by it TransformerEngine computes 1 / scale of a block */
    float multiplier; /* a block's scale is its amax times this */
    float value;      /* amax / (6 * 448): the tensor's scale */
} te_nvfp4_scale;

TE_BOTH te_nvfp4_scale te_nvfp4_scale_of(float amax) {
    te_nvfp4_scale s;
    const float range = TE_E2M1_MAX * TE_E4M3_MAX;
    float encode = range / amax;
    encode = encode > FLT_MAX ? FLT_MAX : encode == 0.0f ? 1.0f : encode;
    s.decode = 1.0f / encode, s.multiplier = encode * (1.0f / TE_E2M1_MAX), s.value = amax / range;
    return s;
}
/* Returns the number by which the elements of a block are multiplied before they are rounded. *code: the block's scale.
 * amax: the largest |x| of the block. */
TE_BOTH float te_nvfp4_encode(uint8_t *code, float amax, const te_nvfp4_scale *s) {
    *code = te_ue4m3_of_float(amax * s->multiplier);
    const float inverse = 1.0f / (te_float_of_ue4m3(*code) * s->decode);
    return inverse > FLT_MAX ? FLT_MAX : inverse;
}

/* ---- a unit of 16 x 16 ------------------------------------------------------------------------------------------- */

/* The first row and column of what a lane holds, and which half of the unit's columns that is (on the host, 0). */
typedef struct te__nvfp4_lane { int64_t row, col; int across; } te__nvfp4_lane;
typedef struct te__nvfp4_unit { te_vec8 x[TE_NVFP4_BLOCK][TE_NVFP4_VECTORS]; } te__nvfp4_unit;

/* Returns the lane's part of unit number `unit` in the whole tensor. Units are counted by tiles of 4 x 4 units. */
TE_FN te__nvfp4_lane te__nvfp4_lane_of(int64_t cols, int64_t unit, int lane) {
    te__nvfp4_lane l;
    const int64_t tiles_across = te_ceil_div(cols, 4 * TE_NVFP4_BLOCK), tile = unit / 16;
    l.across = TE_CUDA ? lane % 2 : 0;
    l.row = (tile / tiles_across * 4 + unit % 16 / 4) * TE_NVFP4_BLOCK;
    l.col = (tile % tiles_across * 4 + unit % 4) * TE_NVFP4_BLOCK + l.across * 8;
    return l;
}
TE_FN void te__nvfp4_load(te__nvfp4_unit *u, const te_quantize_microscaled *q, const te__nvfp4_lane *l,
                          const int aligned, const te_dtype from) {
    TE_UNROLL for (int k = 0; k < TE_NVFP4_BLOCK; k++)
        TE_UNROLL for (int h = 0; h < TE_NVFP4_VECTORS; h++) {
            const int64_t row = l->row + k, col = l->col + 8 * h;
            memset(&u->x[k][h], 0, sizeof u->x[k][h]);
            if (row < q->rows && col < q->cols)
                te_vec8_load(&u->x[k][h], q->x, row * q->cols + col, (int)te_min(8, q->cols - col), aligned, from);
        }
}
/* Get element j of a vector as a float. */
TE_FN float te__nvfp4_element(const te_vec8 *x, const int j, const te_dtype from) {
    const uint16_t half = (uint16_t)(x->w[j / 2] >> j % 2 * 16);
    if (from == TE_f32) return te_float_of_bits(x->w[j]);
    return from == TE_bf16 ? te_float_of_bf16(half) : te_float_of_f16(half);
}
/* Get column j of the lane's vector h, transformed if `hadamard` is 1. The result is rounded to the dtype of x, as a
 * GEMM that transforms would store it. */
TE_FN void te__nvfp4_column(float v[16], const te__nvfp4_unit *u, int h, const int j, int hadamard,
                            const te_dtype from) {
    TE_UNROLL for (int k = 0; k < TE_NVFP4_BLOCK; k++) v[k] = te__nvfp4_element(&u->x[k][h], j, from);
    if (!hadamard) return;
    te_hadamard16(v);
    TE_UNROLL for (int k = 0; k < TE_NVFP4_BLOCK; k++) v[k] = te__round_wide(v[k], from);
}

/* ---- the first pass: amax ---------------------------------------------------------------------------------------- */

TE_FN uint32_t te__nvfp4_unit_amax(const te__nvfp4_unit *u, int hadamard, const te_dtype from) {
    uint32_t bits = 0;
    TE_UNROLL for (int h = 0; h < TE_NVFP4_VECTORS; h++)
        TE_UNROLL for (int j = 0; j < 8; j++) {
            float v[16];
            te__nvfp4_column(v, u, h, j, hadamard, from);
            bits = te_amax_bits8(te_amax_bits8(bits, v), v + 8);
        }
    return bits;
}
/* Returns which unit of its block of threads a lane begins with. On CUDA the 16 units of a warp are 4 x 4, so that
 * eight lanes load 64 columns of a row. */
TE_FN int te__nvfp4_first_unit(te_lanes g) {
    return TE_CUDA ? g.id / 32 * 16 + g.id / 8 % 4 * 4 + g.id / 2 % 4 : 0;
}
TE_FN void te_nvfp4_amax_body(const te_quantize_microscaled *q, te_block b, const int aligned, const te_dtype from) {
    int group;
    const te_lanes g = te_lanes_here(TE_NVFP4_THREADS, &group);
    uint32_t bits = 0, transformed = 0;
    for (int k = te__nvfp4_first_unit(g); k < TE_NVFP4_UNITS; k += TE_CUDA ? TE_NVFP4_UNITS : 1) {
        const te__nvfp4_lane l = te__nvfp4_lane_of(q->cols, (int64_t)b.x * TE_NVFP4_UNITS + k, g.id);
        te__nvfp4_unit u;
        te__nvfp4_load(&u, q, &l, aligned, from);
        const uint32_t m = te__nvfp4_unit_amax(&u, 0, from);
        const uint32_t t = q->hadamard ? te__nvfp4_unit_amax(&u, 1, from) : m;
        bits = m > bits ? m : bits, transformed = t > transformed ? t : transformed;
    }
    te_amax_atomic_max(q->amax, bits, g), te_amax_atomic_max(q->amax + 1, transformed, g);
}

/* ---- the second pass: cast --------------------------------------------------------------------------------------- */

/* Round eight numbers to e2m1, the first in the lowest four bits. rng: null: to nearest even; else stochastically, with
 * the random numbers of `index` in `stream`. A NaN becomes 0, as in TransformerEngine's reference: its block's scale is
 * NaN. */
TE_FN uint32_t te__nvfp4_codes(const float v[8], const te_rng *rng, uint32_t stream, int64_t index) {
    uint32_t codes = 0, word[4] = {0, 0, 0, 0};
    if (rng) te_philox(word, rng->seed, (uint64_t)index, stream, rng->offset);
    TE_UNROLL for (int k = 0; k < 8; k++) {
        const uint32_t code = rng ? te_e2m1_of_float_stochastic(v[k], word[k / 2] >> k % 2 * 16 & 0xffffu)
                                  : te_e2m1_of_float(v[k]);
        codes |= (v[k] == v[k] ? code : 0u) << 4 * k;
    }
    return codes;
}
/* Store the codes of eight elements of a line to `to`, whose address is a multiple of four. */
TE_FN void te__nvfp4_store_codes(uint8_t *to, uint32_t codes) { *(uint32_t *)(void *)to = codes; }
/* Rowwise: cast the lane's part of each row of the unit. amax: of the unit, if the blocks are square. */
TE_FN void te__nvfp4_rows(const te_quantize_microscaled *q, const te__nvfp4_unit *u, const te__nvfp4_lane *l,
                          float amax, const int aligned, const te_dtype from) {
    const te_nvfp4_scale s = te_nvfp4_scale_of(q->amax[0]);
    const te_microscaled_shape shape = te_microscaled_shape_of(TE_NVFP4, q->rows, q->cols, 0, q->swizzled);
    const int64_t block = l->col / TE_NVFP4_BLOCK;
    TE_UNROLL for (int k = 0; k < TE_NVFP4_BLOCK; k++) {
        const int64_t row = l->row + k;
        float m = 0.0f;
        uint8_t code;
        TE_UNROLL for (int h = 0; h < TE_NVFP4_VECTORS; h++)
            TE_UNROLL for (int j = 0; j < 8; j++) m = te__microscaled_max(m, te__nvfp4_element(&u->x[k][h], j, from));
        m = te_lanes_pair_max(m, 1);
        const float encode = te_nvfp4_encode(&code, q->square_blocks ? amax : m, &s);
        if (row >= q->rows || block >= shape.blocks) continue;
        if (q->y.scales && l->across == 0)
            q->y.scales[te_microscale_at(TE_NVFP4, &shape, row, block, 0, q->swizzled)] = code;
        TE_UNROLL for (int h = 0; h < TE_NVFP4_VECTORS; h++) {
            const int64_t col = l->col + 8 * h;
            float v[8];
            te_vec8_floats(v, &u->x[k][h], from);
            TE_UNROLL for (int j = 0; j < 8; j++) v[j] *= encode;
            const uint32_t codes = te__nvfp4_codes(v, q->rng, q->stream, row * shape.blocks * 2 + col / 8);
            if (q->y.data) te__nvfp4_store_codes(q->y.data + row * shape.pitch + col / 2, codes);
            if (!q->y.rounded || col >= q->cols) continue;
            const float scale = te_float_of_ue4m3(code) * s.value;
            TE_UNROLL for (int j = 0; j < 8; j++) v[j] = te_float_of_e2m1((uint8_t)(codes >> 4 * j)) * scale;
            te__microscaled_store_rounded(q->y.rounded, row * q->cols + col, v, (int)te_min(8, q->cols - col), aligned,
                                          from);
        }
    }
}
/* The casts of the eight columns of a vector: for each the codes of its 16 elements, and its scale in f32. */
typedef struct te__nvfp4_cast_columns { uint32_t codes[8][2]; float scale[8]; } te__nvfp4_cast_columns;

/* Store the values of eight columns of a unit, a row at a time. */
TE_FN void te__nvfp4_store_rounded(const te_quantize_microscaled *q, const te__nvfp4_cast_columns *c, int64_t row,
                                   int64_t col, const int aligned, const te_dtype from) {
    const int64_t rows = q->hadamard ? te_round_up(q->rows, TE_NVFP4_BLOCK) : q->rows;
    TE_UNROLL for (int k = 0; k < TE_NVFP4_BLOCK; k++) {
        float v[8];
        if (row + k >= rows || col >= q->cols) continue;
        TE_UNROLL for (int j = 0; j < 8; j++)
            v[j] = te_float_of_e2m1((uint8_t)(c->codes[j][k / 8] >> 4 * (k % 8))) * c->scale[j];
        te__microscaled_store_rounded(q->yt.rounded, (row + k) * q->cols + col, v, (int)te_min(8, q->cols - col),
                                      aligned, from);
    }
}
/* Columnwise: cast the lane's columns of the unit. */
TE_FN void te__nvfp4_columns(const te_quantize_microscaled *q, const te__nvfp4_unit *u, const te__nvfp4_lane *l,
                             float amax, const int aligned, const te_dtype from) {
    const te_nvfp4_scale s = te_nvfp4_scale_of(q->amax[1]);
    const te_microscaled_shape shape = te_microscaled_shape_of(TE_NVFP4, q->rows, q->cols, 1, q->swizzled);
    const int64_t block = l->row / TE_NVFP4_BLOCK;
    if (block >= shape.blocks) return;
    TE_UNROLL for (int h = 0; h < TE_NVFP4_VECTORS; h++) {
        te__nvfp4_cast_columns c;
        TE_UNROLL for (int j = 0; j < 8; j++) {
            const int64_t col = l->col + 8 * h + j;
            float v[16], m = 0.0f;
            uint8_t code;
            te__nvfp4_column(v, u, h, j, q->hadamard, from);
            TE_UNROLL for (int k = 0; k < TE_NVFP4_BLOCK; k++) m = te__microscaled_max(m, v[k]);
            const float encode = te_nvfp4_encode(&code, q->square_blocks ? amax : m, &s);
            c.scale[j] = te_float_of_ue4m3(code) * s.value;
            TE_UNROLL for (int k = 0; k < TE_NVFP4_BLOCK; k++) v[k] *= encode;
            const int64_t index = (col * shape.blocks + block) * 2;
            c.codes[j][0] = te__nvfp4_codes(v, q->rng, q->stream + 1, index);
            c.codes[j][1] = te__nvfp4_codes(v + 8, q->rng, q->stream + 1, index + 1);
            if (col >= q->cols) continue;
            if (q->yt.scales) q->yt.scales[te_microscale_at(TE_NVFP4, &shape, col, block, 1, q->swizzled)] = code;
            if (!q->yt.data) continue;
            uint8_t *to = q->yt.data + col * shape.pitch + block * (TE_NVFP4_BLOCK / 2);
            te__nvfp4_store_codes(to, c.codes[j][0]), te__nvfp4_store_codes(to + 4, c.codes[j][1]);
        }
        if (q->yt.rounded) te__nvfp4_store_rounded(q, &c, l->row, l->col + 8 * h, aligned, from);
    }
}
TE_FN void te_nvfp4_body(const te_quantize_microscaled *q, te_block b, const int aligned, const te_dtype from) {
    int group;
    const te_lanes g = te_lanes_here(TE_NVFP4_THREADS, &group);
    for (int k = te__nvfp4_first_unit(g); k < TE_NVFP4_UNITS; k += TE_CUDA ? TE_NVFP4_UNITS : 1) {
        const te__nvfp4_lane l = te__nvfp4_lane_of(q->cols, (int64_t)b.x * TE_NVFP4_UNITS + k, g.id);
        te__nvfp4_unit u;
        float amax = 0.0f;
        te__nvfp4_load(&u, q, &l, aligned, from);
        if (q->square_blocks) {
            TE_UNROLL for (int i = 0; i < TE_NVFP4_BLOCK; i++)
                TE_UNROLL for (int h = 0; h < TE_NVFP4_VECTORS; h++)
                    TE_UNROLL for (int j = 0; j < 8; j++)
                        amax = te__microscaled_max(amax, te__nvfp4_element(&u.x[i][h], j, from));
            amax = te_lanes_pair_max(amax, 1);
        }
        if (q->y.data || q->y.rounded) te__nvfp4_rows(q, &u, &l, amax, aligned, from);
        if (q->yt.data || q->yt.rounded) te__nvfp4_columns(q, &u, &l, amax, aligned, from);
    }
}
TE_API te_grid te__nvfp4_grid(const te_quantize_microscaled *q) {
    const int64_t tiles = te_ceil_div(q->rows, 4 * TE_NVFP4_BLOCK) * te_ceil_div(q->cols, 4 * TE_NVFP4_BLOCK);
    return te__grid_of(te_ceil_div(16 * tiles, TE_NVFP4_UNITS), 1);
}

/* Define the kernels for tensors of dtype `from`, for cols that are a multiple of eight and for other cols, and
 * te_status name_run(const te_quantize_microscaled *q, te_context *ctx). Errors: TE_ERROR_NULL, TE_ERROR_SHAPE,
 * TE_ERROR_VALUE, TE_ERROR_ALIGNMENT, TE_ERROR_OVERFLOW. */
#define TE_QUANTIZE_NVFP4(name, from)                                                                              \
    TE__QUANTIZE_NVFP4_KERNELS(name##_aligned, from, 1)                                                            \
    TE__QUANTIZE_NVFP4_KERNELS(name##_unaligned, from, 0)                                                          \
    TE_API te_status name##_run(const te_quantize_microscaled *q, te_context *ctx) {                               \
        TE_TRY(te__microscaled_check(q, TE_NVFP4, #name, ctx));                                                    \
        if (!q->rows || !q->cols) return TE_OK;                                                                    \
        TE_TRY(te__microscaled_clear_padding(q, TE_NVFP4, ctx));                                                   \
        TE_TRY(te_fill(ctx, q->amax, 0, 2 * sizeof(float)));                                                       \
        return q->cols % 8 == 0 ? name##_aligned_passes(q, ctx) : name##_unaligned_passes(q, ctx);                 \
    }
#define TE__QUANTIZE_NVFP4_KERNELS(name, from, aligned)                                                            \
    TE_KERNEL_RESIDENT(name##_amax, TE_NVFP4_THREADS, 2, te_quantize_microscaled,                                  \
                       te_nvfp4_amax_body(te_args, te_at, aligned, TE_##from))                                     \
    TE_KERNEL_RESIDENT(name##_cast, TE_NVFP4_THREADS, TE_##from == TE_f32 ? 1 : 2, te_quantize_microscaled,        \
                       te_nvfp4_body(te_args, te_at, aligned, TE_##from))                                          \
    TE_API te_status name##_passes(const te_quantize_microscaled *q, te_context *ctx) {                            \
        TE_TRY(name##_amax_launch(ctx, te__nvfp4_grid(q), q));                                                     \
        return name##_cast_launch(ctx, te__nvfp4_grid(q), q);                                                      \
    }

#endif
