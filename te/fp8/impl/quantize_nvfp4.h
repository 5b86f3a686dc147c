/* quantize_nvfp4.h -- casts a tensor to NVFP4: elements in e2m1, a scale in ue4m3 for each block of 16 elements, and an
 * f32 scale for the whole tensor. A block is 16 consecutive elements of a row (output y) or of a column (output yt);
 * one kernel can store y, yt or both.
 *
 * Do this:
 *     TE_QUANTIZE_NVFP4(of_bf16, bf16)                                // defines the kernels and of_bf16_run
 *     te_quantize_microscaled q = te_quantize_microscaled_of(rows, cols);
 *     q.x = x, q.amax = amax, q.y.data = y, q.y.scales = s, q.yt.data = yt, q.yt.scales = t, q.hadamard = 1;
 *     TE_TRY(of_bf16_run(&q, ctx));
 *
 * Two passes read x: the first pass finds the amax of x and of the Hadamard-transformed x, the second pass casts. The
 * formulas, computed in f32, are TransformerEngine's. encode = 6 * 448 / (amax of the tensor). Scale of a block = (amax
 * of the block) * (encode * (1 / 6)), rounded to ue4m3. Element = x * (1 / (scale * (1 / encode))), rounded and
 * saturated to +-6. The value of an element is element * scale * (amax of the tensor / (6 * 448)). If x has a NaN, all
 * scales are NaN; if x has an infinity, the tensor's scale is infinite. So the result of a GEMM shows both NaN and
 * infinity.
 *
 * A pair of lanes casts 16 x 16 elements. A lane holds 16 rows of eight columns, so one lane has a column's whole block
 * and transforms it alone. Elements and scales go through shared memory, so that long runs of bytes are stored. Lower
 * bound of the time: a copy of as many bytes, 5.13 for each bf16 element: 2 for each pass, and 0.56 for each of y and
 * yt. GPUs before Blackwell have no instruction that converts to e2m1; on them the conversion takes longer than the
 * copy (docs/notes/fp8_casts.md).
 */
#ifndef TE_QUANTIZE_NVFP4_H
#define TE_QUANTIZE_NVFP4_H

#include <float.h> /* FLT_MAX */

#include "../../core/dtype.h" /* te_vec8 */
#include "../../core/lanes.h" /* te_lanes_pair_max, te_amax_atomic_max */
#include "../microscaled.h"   /* te_quantize_microscaled */

enum {
    TE_NVFP4_VECTORS = TE_CUDA ? 1 : 2, /* the number of vectors of eight columns of a 16 x 16 unit that a lane holds */
    TE_NVFP4_THREADS = TE_CUDA ? 256 : 1,
    /* a thread block casts a tile of 128 x 256 elements, which consists of units of 16 x 16; on CUDA each warp casts
     * 4 x 4 units */
    TE_NVFP4_TILE_ROWS = 8, /* in units */
    TE_NVFP4_TILE_COLS = 16,
    TE_NVFP4_UNITS = TE_NVFP4_TILE_ROWS * TE_NVFP4_TILE_COLS
};

/* ---- the Hadamard transform -------------------------------------------------------------------------------------- */

/* The signs of the 16 inputs of the Hadamard transform: input i is negated if bit i is 1. The signs are
 * TransformerEngine's: + + + - + - - - - - - + - + - -. */
enum { TE_HADAMARD_SIGNS = 0xd7e8 };

/* One step of the Hadamard transform: replace each pair a = v[i] and b = v[i + half] by a + b and a - b. */
TE_BOTH void te__hadamard16_step(float v[16], const int half) {
    TE_UNROLL for (int i = 0; i < 16; i++) {
        if (i & half) continue;
        const float a = v[i], b = v[i + half];
        v[i] = a + b, v[i + half] = a - b;
    }
}
/* Multiply v by the signs, and run the steps of the Hadamard transform with half = 1, 2, 4, ... below `end`. With
 * end = 16, all four steps run. */
TE_BOTH void te__hadamard16_steps(float v[16], const int end) {
    TE_UNROLL for (int i = 0; i < 16; i++) v[i] = TE_HADAMARD_SIGNS >> i & 1 ? -v[i] : v[i];
    TE_UNROLL for (int half = 1; half < end; half *= 2) te__hadamard16_step(v, half);
}
/* Transform 16 numbers in place: v = v T with T = D H / 4, where D is the diagonal matrix of the signs and H is
 * Sylvester's Hadamard matrix of size 16. T is orthogonal: (dy^T T)(T^T x) = dy^T x. Therefore the weight gradient
 * dy^T x, which is a sum over rows, does not change if 16 rows at a time of dy and of x are transformed. But the
 * transform spreads an outlier over 16 elements, which makes rounding errors smaller. */
TE_BOTH void te_hadamard16(float v[16]) {
    te__hadamard16_steps(v, 16);
    TE_UNROLL for (int i = 0; i < 16; i++) v[i] *= 0.25f;
}

/* ---- scales ------------------------------------------------------------------------------------------------------ */

/* Three numbers that are computed from the amax of a tensor. */
typedef struct te_nvfp4_scale {
    float decode;     /* 1 / encode, where encode is 6 * 448 / amax. An element of a block with scale s is multiplied by
                       * 1 / (s * decode) */
    float multiplier; /* encode / 6. A block's scale is the block's amax * multiplier */
    float value;      /* amax / (6 * 448), the scale of the whole tensor */
} te_nvfp4_scale;

TE_BOTH te_nvfp4_scale te_nvfp4_scale_of(float amax) {
    te_nvfp4_scale s;
    const float range = TE_E2M1_MAX * TE_E4M3_MAX;
    float encode = range / amax;
    encode = encode > FLT_MAX ? FLT_MAX : encode == 0.0f ? 1.0f : encode;
    s.decode = 1.0f / encode, s.multiplier = encode * (1.0f / TE_E2M1_MAX), s.value = amax / range;
    return s;
}
/* Return the number by which the elements of a block are multiplied before they are rounded. code: the block's scale in
 * ue4m3. */
TE_BOTH float te_nvfp4_factor(uint8_t code, const te_nvfp4_scale *s) {
    const float inverse = 1.0f / (te_float_of_ue4m3(code) * s->decode);
    return inverse > FLT_MAX ? FLT_MAX : inverse;
}
/* Return the scale of a block in ue4m3. amax: the largest |x| of the block. */
TE_BOTH uint8_t te_nvfp4_encode(float amax, const te_nvfp4_scale *s) {
    return te_e4m3_of_float(amax * s->multiplier); /* e4m3 and ue4m3 are the same for numbers that are not negative */
}

/* Two f32 numbers for the ue4m3 scale of a block. factor: the number by which the block's elements are multiplied
 * before they are rounded to e2m1. value: the number by which an e2m1 element must be multiplied to get its value. */
typedef struct te__nvfp4_block_scale { float factor, value; } te__nvfp4_block_scale;
/* The scales of y or of yt. of_code: on CUDA, a table in shared memory with a te__nvfp4_block_scale for each ue4m3
 * code. rng: for stochastic rounding, a local copy of *q->rng; without the copy, the compiler would load *q->rng again
 * after each store. */
typedef struct te__nvfp4_scales {
    te_nvfp4_scale tensor;
    const te__nvfp4_block_scale *of_code;
    te_rng rng;
} te__nvfp4_scales;

TE_FN te__nvfp4_block_scale te__nvfp4_block_scale_of(uint8_t code, const te_nvfp4_scale *tensor) {
    te__nvfp4_block_scale s;
    s.factor = te_nvfp4_factor(code, tensor), s.value = te_float_of_ue4m3(code) * tensor->value;
    return s;
}
/* Compute the scales of y, s[0], and of yt, s[1], from q->amax. On CUDA each thread computes one of the 2 x 128 entries
 * of the two tables of_code, so that no division is needed for each block. */
TE_FN void te__nvfp4_compute_scales(te__nvfp4_scales s[2], const te_quantize_microscaled *q) {
    memset(s, 0, 2 * sizeof *s);
    TE_UNROLL for (int i = 0; i < 2; i++) {
        s[i].tensor = te_nvfp4_scale_of(q->amax[i]);
        if (q->rng) s[i].rng = *q->rng;
    }
#if TE_CUDA
    __shared__ te__nvfp4_block_scale te_shared[2][128];
    const int i = (int)threadIdx.x / 128 % 2, code = (int)threadIdx.x % 128;
    const te_nvfp4_scale tensor = te_nvfp4_scale_of(q->amax[i]);
    te_shared[i][code] = te__nvfp4_block_scale_of((uint8_t)code, &tensor);
    s[0].of_code = te_shared[0], s[1].of_code = te_shared[1];
    __syncthreads();
#endif
}
TE_FN te__nvfp4_block_scale te__nvfp4_look_up(const te__nvfp4_scales *s, uint8_t code) {
    return TE_CUDA ? s->of_code[code] : te__nvfp4_block_scale_of(code, &s->tensor);
}

/* ---- a unit of 16 x 16 ------------------------------------------------------------------------------------------- */

/* The tile that a thread block casts: the tile's first row and first column in the tensor. */
typedef struct te__nvfp4_tile { int64_t row, col; } te__nvfp4_tile;
/* The part of a 16 x 16 unit that a lane holds, 16 rows of eight columns (on the host, the whole unit). unit_row,
 * unit_col: the unit's position in the tile. row, col: the part's first row and first column in the tensor. rows: how
 * many of the part's 16 rows lie inside the tensor; 0 if all columns of the part lie outside. across: 0 for the unit's
 * first eight columns, 1 for its last eight. */
typedef struct te__nvfp4_lane {
    int unit_row, unit_col;
    int64_t row, col;
    int rows, across;
} te__nvfp4_lane;
typedef struct te__nvfp4_unit { te_vec8 x[TE_NVFP4_BLOCK][TE_NVFP4_VECTORS]; } te__nvfp4_unit;
/* How a kernel casts. TE_NVFP4_nearest: blocks of 16 elements, rounded to nearest even. TE_NVFP4_stochastic: blocks of
 * 16 elements, rounded stochastically. TE_NVFP4_square: blocks of 16 x 16 elements, rounded to nearest even. */
typedef enum te__nvfp4_casts { TE_NVFP4_nearest, TE_NVFP4_stochastic, TE_NVFP4_square } te__nvfp4_casts;
/* Compile-time constants of a kernel. */
typedef struct te__nvfp4_kind {
    int aligned;    /* 1: cols is a multiple of eight */
    int rounded;    /* 1: the kernel stores the rounded values in the dtype of x; 0: it stores elements and scales */
    te__nvfp4_casts casts;
    te_dtype from;
} te__nvfp4_kind;

TE_FN te__nvfp4_kind te__nvfp4_kind_of(const int aligned, const int rounded, const te__nvfp4_casts casts,
                                       const te_dtype from) {
    te__nvfp4_kind k;
    k.aligned = aligned, k.rounded = rounded, k.casts = casts, k.from = from;
    return k;
}
TE_FN te__nvfp4_tile te__nvfp4_tile_of(const te_quantize_microscaled *q, te_block b) {
    te__nvfp4_tile t;
    const uint32_t across = (uint32_t)te_ceil_div(q->cols, TE_NVFP4_TILE_COLS * TE_NVFP4_BLOCK);
    t.row = (int64_t)((uint32_t)b.x / across) * (TE_NVFP4_TILE_ROWS * TE_NVFP4_BLOCK);
    t.col = (int64_t)((uint32_t)b.x % across) * (TE_NVFP4_TILE_COLS * TE_NVFP4_BLOCK);
    return t;
}
/* Return which columns of which 16 x 16 unit this lane casts. On CUDA two lanes share a unit, eight columns each, and i
 * is 0. The 16 units of a warp are arranged 4 x 4, so that eight lanes load 64 columns of a row; the warps are arranged
 * 2 x 4. On the host one lane casts all units of the tile, and i is the number of the unit. */
TE_FN te__nvfp4_lane te__nvfp4_lane_of(const te_quantize_microscaled *q, const te__nvfp4_tile *t, te_lanes g, int i) {
    te__nvfp4_lane l;
    l.unit_row = TE_CUDA ? g.id / 128 * 4 + g.id / 8 % 4 : i / TE_NVFP4_TILE_COLS;
    l.unit_col = TE_CUDA ? g.id / 32 % 4 * 4 + g.id / 2 % 4 : i % TE_NVFP4_TILE_COLS;
    l.across = TE_CUDA ? g.id % 2 : 0;
    l.row = t->row + l.unit_row * TE_NVFP4_BLOCK, l.col = t->col + l.unit_col * TE_NVFP4_BLOCK + l.across * 8;
    l.rows = l.col < q->cols ? (int)te_max(0, te_min(TE_NVFP4_BLOCK, q->rows - l.row)) : 0;
    return l;
}
TE_FN void te__nvfp4_load(te__nvfp4_unit *u, const te_quantize_microscaled *q, const te__nvfp4_lane *l,
                          const int aligned, const te_dtype from) {
    const int64_t pitch = q->cols * (int64_t)te_dtype_bytes(from);
    const char *row = (const char *)te_opaque_pointer((const char *)q->x + (l->row * q->cols + l->col) *
                                                                               (int64_t)te_dtype_bytes(from));
    TE_UNROLL for (int k = 0; k < TE_NVFP4_BLOCK; k++, row += pitch)
        TE_UNROLL for (int h = 0; h < TE_NVFP4_VECTORS; h++) {
            const int n = (int)te_min(8, q->cols - l->col - 8 * h);
            memset(&u->x[k][h], 0, sizeof u->x[k][h]);
            if (k < l->rows && (h == 0 || n > 0)) te_vec8_load(&u->x[k][h], row, 8 * h, n, aligned, from);
        }
}
/* Get element j of a vector as a float. */
TE_FN float te__nvfp4_element(const te_vec8 *x, const int j, const te_dtype from) {
    const uint16_t half = (uint16_t)(x->w[j / 2] >> j % 2 * 16);
    if (from == TE_f32) return te_float_of_bits(x->w[j]);
    if (from == TE_bf16) return te_float_of_bits(j % 2 ? x->w[j / 2] & 0xffff0000u : x->w[j / 2] << 16);
    return te_float_of_f16(half);
}
/* Get column j of vector h of a unit. */
TE_FN void te__nvfp4_column(float v[16], const te__nvfp4_unit *u, int h, const int j, const te_dtype from) {
    TE_UNROLL for (int k = 0; k < TE_NVFP4_BLOCK; k++) v[k] = te__nvfp4_element(&u->x[k][h], j, from);
}

/* ---- the first pass: amax ---------------------------------------------------------------------------------------- */

/* Return 4 * (largest magnitude of the Hadamard transform of v), as the bits of a float; a NaN counts as the largest.
 * The last step of the transform computes a + b and a - b. The larger magnitude of the two is |a| + |b|, so the last
 * step is not computed. */
TE_FN uint32_t te__hadamard16_amax(float v[16]) {
    float m[8];
    te__hadamard16_steps(v, 8);
    TE_UNROLL for (int i = 0; i < 8; i++) m[i] = fabsf(v[i]) + fabsf(v[i + 8]);
    const uint32_t bits = te_amax_bits8(0, m);
    if (bits != 0x7f800000u) return bits;
    te__hadamard16_step(v, 8); /* |a| + |b| is infinite, but a + b or a - b may be NaN, so run the last step */
    return te_amax_bits8(te_amax_bits8(0, v), v + 8);
}
TE_FN void te_nvfp4_amax_body(const te_quantize_microscaled *q, te_block b, const int aligned, const te_dtype from) {
    int group;
    const te_lanes g = te_lanes_here(TE_NVFP4_THREADS, &group);
    uint32_t bits = 0, transformed = 0;
    const te__nvfp4_tile tile = te__nvfp4_tile_of(q, b);
    for (int k = 0; k < (TE_CUDA ? 1 : TE_NVFP4_UNITS); k++) {
        const te__nvfp4_lane l = te__nvfp4_lane_of(q, &tile, g, k);
        te__nvfp4_unit u;
        te__nvfp4_load(&u, q, &l, aligned, from);
        TE_UNROLL for (int h = 0; h < TE_NVFP4_VECTORS; h++) {
            te_vec8 max;
            memset(&max, 0, sizeof max);
            TE_UNROLL for (int i = 0; i < TE_NVFP4_BLOCK; i++) te_vec8_max_magnitudes(&max, &u.x[i][h], from);
            const uint32_t m = te_amax_vec8(&max, from);
            bits = m > bits ? m : bits;
            if (!q->hadamard) continue;
            TE_UNROLL for (int j = 0; j < 8; j++) {
                float v[16];
                te__nvfp4_column(v, &u, h, j, from);
                const uint32_t t = te__hadamard16_amax(v);
                transformed = t > transformed ? t : transformed;
            }
        }
    }
    /* Round the amax to the dtype of x. Rounding is monotonic, so this is the amax of the rounded values */
    if (q->hadamard) transformed = te_amax_bits(te__round_wide(te_float_of_bits(transformed) * 0.25f, from));
    te_amax_atomic_max(q->amax, bits, g), te_amax_atomic_max(q->amax + 1, q->hadamard ? transformed : bits, g);
}

/* ---- the second pass: cast --------------------------------------------------------------------------------------- */

/* Multiply eight numbers by `factor`, round the products to e2m1, and return the eight codes, the first one in the
 * lowest four bits. The code of a NaN is arbitrary. index: the position, in the random stream, of the random numbers
 * for these eight elements. */
TE_FN uint32_t te__nvfp4_codes(const te_vec8 *x, float factor, const te_rng *rng, uint32_t stream, int64_t index,
                               const te__nvfp4_kind kind) {
    uint32_t codes = 0, word[4];
    float v[8];
    if (kind.casts != TE_NVFP4_stochastic) return te__e2m1_of_vec8(x, factor, kind.from);
    te_philox(word, rng->seed, (uint64_t)index, stream, rng->offset);
    te_vec8_floats(v, x, kind.from);
    TE_UNROLL for (int k = 0; k < 8; k++)
        codes |= te__e2m1_of_number_stochastic(v[k] * factor, word[k / 2] >> k % 2 * 16 & 0xffffu) << 4 * k;
    return codes;
}
/* Where a lane stores its lines (rows, or columns). data: the address for the first line's elements; pitch: the
 * distance in bytes to the next line's elements. scales: the address for the first line's scale; stride: the distance
 * in bytes to the next line's scale. count: how many lines are stored. */
typedef struct te__nvfp4_lines { uint8_t *data, *scales; int64_t pitch, stride; int count; } te__nvfp4_lines;

#if TE_CUDA
/* The cast elements and scales of a tile in shared memory: [0] for rows, [1] for columns. From shared memory a thread
 * block stores long runs of each line: 128 bytes of a row, 64 bytes of a column. Because of padding behind each 16 rows
 * or eight columns, the lanes of a warp write to different banks. */
typedef struct te__nvfp4_stage {
    uint2 data[2][(TE_NVFP4_UNITS * 128 + 512) / 8];
    uint32_t scales[2][(TE_NVFP4_UNITS * 16 + 256) / 4];
} te__nvfp4_stage;
/* The layout of a tile in te__nvfp4_stage. lines: how many lines (rows or columns) the tile has. blocks: how many
 * blocks of 16 elements a line has, each with 8 bytes of elements and 1 byte of scale. group: how many lines follow
 * each other without padding. Behind each `group` lines, there are 2 * group bytes of padding in the elements and
 * `group` bytes in the scales. */
typedef struct te__nvfp4_layout { int lines, blocks, group; } te__nvfp4_layout;

TE_FN te__nvfp4_layout te__nvfp4_layout_of(const int columnwise) {
    te__nvfp4_layout l;
    l.lines = TE_NVFP4_BLOCK * (columnwise ? TE_NVFP4_TILE_COLS : TE_NVFP4_TILE_ROWS);
    l.blocks = columnwise ? TE_NVFP4_TILE_ROWS : TE_NVFP4_TILE_COLS, l.group = columnwise ? 8 : 16;
    return l;
}
/* Return the index, in te__nvfp4_stage.scales, of the scale of block number `block` of line number `line`. */
TE_FN int te__nvfp4_staged_scale(const te__nvfp4_layout *l, int line, int block) {
    return line * l->blocks + line / l->group * l->group + block;
}
/* Return the index, in te__nvfp4_stage.data, of the first byte of block number `block` of line number `line`. */
TE_FN int te__nvfp4_staged_data(const te__nvfp4_layout *l, int line, int block) {
    return line * l->blocks * 8 + line / l->group * (2 * l->group) + block * 8;
}
TE_FN te__nvfp4_lines te__nvfp4_lines_of(const te_quantize_microscaled *q, const te__nvfp4_lane *l,
                                         const int columnwise, te__nvfp4_stage *stage) {
    te__nvfp4_lines to;
    (void)q;
    const te__nvfp4_layout layout = te__nvfp4_layout_of(columnwise);
    const int line = columnwise ? l->unit_col * TE_NVFP4_BLOCK + l->across * 8 : l->unit_row * TE_NVFP4_BLOCK;
    const int block = columnwise ? l->unit_row : l->unit_col;
    to.data = (uint8_t *)stage->data[columnwise] + te__nvfp4_staged_data(&layout, line, block) +
              (columnwise ? 0 : l->across * 4);
    to.scales = (uint8_t *)stage->scales[columnwise] + te__nvfp4_staged_scale(&layout, line, block);
    to.pitch = layout.blocks * 8, to.stride = layout.blocks, to.count = columnwise ? 8 : TE_NVFP4_BLOCK;
    return to;
}
/* Store the elements of a tile from shared memory to the tensor. The tile's first line is line number `first` of the
 * tensor, and its first block is block number first_block of each line. */
TE_FN void te__nvfp4_store_stage_data(const te_microscaled_out *o, const te_microscaled_shape *s, int64_t first,
                                      int64_t first_block, const te__nvfp4_stage *stage, const int columnwise) {
    const te__nvfp4_layout layout = te__nvfp4_layout_of(columnwise);
    /* a thread stores eight bytes of every `step`th line. `step` is a multiple of layout.group */
    const int step = TE_NVFP4_THREADS / layout.blocks, block = (int)threadIdx.x % layout.blocks;
    const int line = (int)threadIdx.x / layout.blocks, lines = (int)te_min(layout.lines, s->lines - first);
    const uint2 *from = stage->data[columnwise] + te__nvfp4_staged_data(&layout, line, block) / 8;
    uint8_t *to = o->data + (first + line) * s->pitch + (first_block + block) * 8;
    if (first_block + block >= s->blocks) return;
    TE_UNROLL for (int i = 0; i < layout.lines; i += step, to += step * s->pitch)
        if (line + i < lines) *(uint2 *)(void *)to = from[te__nvfp4_staged_data(&layout, i, 0) / 8];
}
/* Store the scales of a tile from shared memory to the tensor (first, first_block: as in te__nvfp4_store_stage_data).
 * Four scales are stored at a time if their address is a multiple of four bytes. */
TE_FN void te__nvfp4_store_stage_scales(const te_microscaled_out *o, const te_microscaled_shape *s, int64_t first,
                                        int64_t first_block, const te__nvfp4_stage *stage, const int columnwise,
                                        int swizzled) {
    const te__nvfp4_layout layout = te__nvfp4_layout_of(columnwise);
    const int step = TE_NVFP4_THREADS * 4 / layout.blocks, block = (int)threadIdx.x % (layout.blocks / 4) * 4;
    const int line = (int)threadIdx.x / (layout.blocks / 4), lines = (int)te_min(layout.lines, s->lines - first);
    const int blocks = (int)te_min(4, s->blocks - first_block - block), words = swizzled || s->blocks % 4 == 0;
    const uint32_t *from = stage->scales[columnwise] + te__nvfp4_staged_scale(&layout, line, block) / 4;
    TE_UNROLL for (int i = 0; i < layout.lines; i += step) {
        uint32_t four = from[te__nvfp4_staged_scale(&layout, i, 0) / 4];
        if (line + i >= lines || blocks <= 0) continue;
        uint8_t *to = o->scales + te_microscale_at(TE_NVFP4, s, first + line + i, first_block + block, columnwise,
                                                   swizzled);
        if (blocks < 4) four &= (1u << 8 * blocks) - 1u; /* the padding of swizzled scales is 0 */
        if (words) *(uint32_t *)(void *)to = four;
        else TE_UNROLL_1 for (int k = 0; k < blocks; k++) to[k] = (uint8_t)(four >> 8 * k);
    }
}
TE_FN void te__nvfp4_store_stage(const te_quantize_microscaled *q, const te__nvfp4_tile *t,
                                 const te__nvfp4_stage *stage, const int columnwise) {
    const te_microscaled_out *o = columnwise ? &q->yt : &q->y;
    const te_microscaled_shape s = te_microscaled_shape_of(TE_NVFP4, q->rows, q->cols, columnwise, q->swizzled);
    const int64_t line = columnwise ? t->col : t->row, block = (columnwise ? t->row : t->col) / TE_NVFP4_BLOCK;
    te__nvfp4_store_stage_data(o, &s, line, block, stage, columnwise);
    te__nvfp4_store_stage_scales(o, &s, line, block, stage, columnwise, q->swizzled);
}
#else
typedef struct te__nvfp4_stage te__nvfp4_stage;
/* Return where a lane stores its lines (rows or columns). On the host, it stores them directly to the tensor, not to a
 * te__nvfp4_stage. */
TE_FN te__nvfp4_lines te__nvfp4_lines_of(const te_quantize_microscaled *q, const te__nvfp4_lane *l,
                                         const int columnwise, te__nvfp4_stage *stage) {
    te__nvfp4_lines to;
    (void)stage;
    const te_microscaled_out *o = columnwise ? &q->yt : &q->y;
    const te_microscaled_shape s = te_microscaled_shape_of(TE_NVFP4, q->rows, q->cols, columnwise, q->swizzled);
    const int64_t line = columnwise ? l->col : l->row, block = (columnwise ? l->row : l->col) / TE_NVFP4_BLOCK;
    memset(&to, 0, sizeof to);
    if (!o->data || block >= s.blocks || line >= s.lines) return to;
    to.data = o->data + line * s.pitch + block * (TE_NVFP4_BLOCK / 2), to.pitch = s.pitch;
    to.scales = o->scales + te_microscale_at(TE_NVFP4, &s, line, block, columnwise, q->swizzled);
    to.stride = te__microscale_stride(TE_NVFP4, &s, columnwise, q->swizzled);
    to.count = (int)te_min(TE_NVFP4_BLOCK, s.lines - line);
    return to;
}
#endif
/* Return where a lane stores its lines (rows or columns). If the kernel stores rounded values, only the member `count`
 * is set, because te__nvfp4_store_rounded computes the addresses. */
TE_FN te__nvfp4_lines te__nvfp4_lines_to(const te_quantize_microscaled *q, const te__nvfp4_lane *l,
                                         const int columnwise, te__nvfp4_stage *stage, const te__nvfp4_kind kind) {
    te__nvfp4_lines to;
    if (!kind.rounded) return te__nvfp4_lines_of(q, l, columnwise, stage);
    memset(&to, 0, sizeof to);
    to.count = q->y.rounded ? l->rows : 0;
    return to;
}
/* Store the e2m1 codes of eight elements of a line to the address `to`, a multiple of four. */
TE_FN void te__nvfp4_store_codes(uint8_t *to, uint32_t codes) { *(uint32_t *)(void *)to = codes; }
/* Store the values of eight e2m1 codes to the matrix `to`, which has `cols` columns: to row `row`, from column `col`
 * on. value: for each column, the number by which the e2m1 number is multiplied. */
TE_FN void te__nvfp4_store_rounded(void *to, int64_t row, int64_t cols, int64_t col, uint32_t codes,
                                   const float value[8], const te_dtype from) {
    float v[8];
    if (col >= cols) return;
    te__floats_of_e2m1(v, codes);
    TE_UNROLL for (int j = 0; j < 8; j++) v[j] *= value[j];
    te__microscaled_store_rounded(to, row * cols + col, v, 8, 1, from);
}
/* Cast the lane's part of each row of the unit for the rowwise output y, and set `codes` to the cast elements. If a
 * block is 16 x 16 elements, the unit is one block, and `amax` is the block's amax. */
TE_FN void te__nvfp4_cast_rows(uint32_t codes[TE_NVFP4_BLOCK][TE_NVFP4_VECTORS], const te_quantize_microscaled *q,
                               const te__nvfp4_scales *s, const te__nvfp4_unit *u, const te__nvfp4_lane *l, float amax,
                               const te__nvfp4_lines *to, const te__nvfp4_kind kind) {
    const int64_t vectors = te_ceil_div(q->cols, TE_NVFP4_BLOCK) * 2, index = l->row * vectors + l->col / 8;
    const uint32_t exist = q->amax[0] == q->amax[0] ? ~0u : 0u; /* 0 if x has a NaN: all elements become 0, and all
                                                                 * scales NaN */
    TE_UNROLL for (int k = 0; k < TE_NVFP4_BLOCK; k++) {
        float m = amax, value[8];
        if (kind.casts != TE_NVFP4_square)
            m = te_lanes_pair_max(te_vec8_largest(u->x[k], TE_NVFP4_VECTORS, kind.from), 1);
        const uint8_t code = te_nvfp4_encode(m, &s->tensor);
        const te__nvfp4_block_scale scale = te__nvfp4_look_up(s, code);
        if (!kind.rounded && l->across == 0 && k < to->count) to->scales[k * to->stride] = code;
        TE_UNROLL for (int j = 0; j < 8; j++) value[j] = scale.value;
        TE_UNROLL for (int h = 0; h < TE_NVFP4_VECTORS; h++) {
            const int64_t number = index + k * vectors + h;
            codes[k][h] = te__nvfp4_codes(&u->x[k][h], scale.factor, &s->rng, q->stream, number, kind) & exist;
            if (k >= to->count) continue;
            if (kind.rounded)
                te__nvfp4_store_rounded(q->y.rounded, l->row + k, q->cols, l->col + 8 * h, codes[k][h], value,
                                        kind.from);
            else te__nvfp4_store_codes(to->data + k * to->pitch + 4 * h, codes[k][h]);
        }
    }
}
/* Transpose a matrix of 8 x 8 numbers of four bits each: number j of to[i] = number i of from[j]. */
TE_FN void te__nvfp4_transpose_codes(uint32_t to[8], const uint32_t from[8]) {
    uint32_t pairs[2][4], t[4];
    /* byte i of pairs[odd][j] holds number 2 * i + odd of from[2 * j] and of from[2 * j + 1] */
    TE_UNROLL for (int j = 0; j < 4; j++) {
        const uint32_t a = from[2 * j], b = from[2 * j + 1];
        pairs[0][j] = (a & 0x0f0f0f0fu) | (b & 0x0f0f0f0fu) << 4;
        pairs[1][j] = (a >> 4 & 0x0f0f0f0fu) | (b & 0xf0f0f0f0u);
    }
    TE_UNROLL for (int odd = 0; odd < 2; odd++) {
        te_transpose_bytes_4x4(t, pairs[odd]);
        TE_UNROLL for (int i = 0; i < 4; i++) to[2 * i + odd] = t[i];
    }
}
/* Eight cast columns of a unit. For each column: the e2m1 codes of its 16 elements, its scale in ue4m3, and the number
 * by which an e2m1 number is multiplied to get its value. */
typedef struct te__nvfp4_cast_columns {
    uint32_t codes[2][8];
    uint8_t scale[8];
    float value[8];
} te__nvfp4_cast_columns;

/* Cast vector number h of the unit (eight columns) for the columnwise output yt. */
TE_FN void te__nvfp4_cast_vector(te__nvfp4_cast_columns *c, const te_quantize_microscaled *q, const te__nvfp4_scales *s,
                                 const te__nvfp4_unit *u, const te__nvfp4_lane *l, const int h,
                                 const te__nvfp4_kind kind) {
    const int64_t blocks = te_ceil_div(q->rows, TE_NVFP4_BLOCK), block = l->row / TE_NVFP4_BLOCK;
    const uint32_t exist = q->amax[1] == q->amax[1] ? ~0u : 0u;
    TE_UNROLL for (int j = 0; j < 8; j++) {
        float v[16];
        te_vec8 e[2];
        te__nvfp4_column(v, u, h, j, kind.from);
        if (q->hadamard) te_hadamard16(v);
        /* Round the transformed column to the dtype of x, because a GEMM that computes the Hadamard transform would do
         * so when it stores its result */
        TE_UNROLL for (int i = 0; i < 2; i++) te_vec8_of_pairs(&e[i], v + 8 * i, kind.from);
        c->scale[j] = te_nvfp4_encode(te_vec8_largest(e, 2, kind.from), &s->tensor);
        const te__nvfp4_block_scale scale = te__nvfp4_look_up(s, c->scale[j]);
        const int64_t index = ((l->col + 8 * h + j) * blocks + block) * 2;
        c->value[j] = scale.value;
        TE_UNROLL for (int i = 0; i < 2; i++)
            c->codes[i][j] = te__nvfp4_codes(&e[i], scale.factor, &s->rng, q->stream + 1, index + i, kind) & exist;
    }
}
/* Store the rounded values of the eight columns of vector number h, a row at a time. */
TE_FN void te__nvfp4_store_rounded_columns(const te_quantize_microscaled *q, const te__nvfp4_cast_columns *c,
                                           const te__nvfp4_lane *l, const int h, const te__nvfp4_kind kind) {
    const int64_t rows = q->hadamard ? te_round_up(q->rows, TE_NVFP4_BLOCK) : q->rows;
    TE_UNROLL for (int i = 0; i < 2; i++) {
        uint32_t row[8];
        te__nvfp4_transpose_codes(row, c->codes[i]);
        TE_UNROLL for (int k = 0; k < 8; k++)
            if (l->row + 8 * i + k < rows)
                te__nvfp4_store_rounded(q->yt.rounded, l->row + 8 * i + k, q->cols, l->col + 8 * h, row[k], c->value,
                                        kind.from);
    }
}
/* Store the codes and scales of the eight columns of vector number h. */
TE_FN void te__nvfp4_store_columns(const te__nvfp4_lines *to, const te__nvfp4_cast_columns *c, const int h) {
    TE_UNROLL for (int j = 0; j < 8; j++) {
        const int col = 8 * h + j;
        if (col >= to->count) continue;
        to->scales[col * to->stride] = c->scale[j];
        uint8_t *data = to->data + col * to->pitch;
#if TE_CUDA
        *(uint2 *)(void *)data = make_uint2(c->codes[0][j], c->codes[1][j]);
#else
        te__nvfp4_store_codes(data, c->codes[0][j]), te__nvfp4_store_codes(data + 4, c->codes[1][j]);
#endif
    }
}
/* Cast the lane's columns of the unit for the columnwise output yt. If a block is 16 x 16 elements, the unit is one
 * block, and y and yt have the same elements: `codes` has the elements that te__nvfp4_cast_rows has cast, and `amax` is
 * the block's amax. */
TE_FN void te__nvfp4_cast_columns_of(uint32_t codes[TE_NVFP4_BLOCK][TE_NVFP4_VECTORS],
                                     const te_quantize_microscaled *q, const te__nvfp4_scales *s,
                                     const te__nvfp4_unit *u, const te__nvfp4_lane *l, float amax,
                                     const te__nvfp4_lines *to, const te__nvfp4_kind kind) {
    TE_UNROLL for (int h = 0; h < TE_NVFP4_VECTORS; h++) {
        te__nvfp4_cast_columns c;
        if (kind.casts != TE_NVFP4_square) te__nvfp4_cast_vector(&c, q, s, u, l, h, kind);
        else {
            TE_UNROLL for (int i = 0; i < 2; i++) {
                uint32_t row[8];
                TE_UNROLL for (int k = 0; k < 8; k++) row[k] = codes[8 * i + k][h];
                te__nvfp4_transpose_codes(c.codes[i], row);
            }
            TE_UNROLL for (int j = 0; j < 8; j++) {
                c.scale[j] = te_nvfp4_encode(amax, &s->tensor);
                c.value[j] = te__nvfp4_look_up(s, c.scale[j]).value;
            }
        }
        if (kind.rounded) te__nvfp4_store_rounded_columns(q, &c, l, h, kind);
        else te__nvfp4_store_columns(to, &c, h);
    }
}
TE_FN void te_nvfp4_body(const te_quantize_microscaled *q, te_block b, const te__nvfp4_kind kind) {
    int group;
    const te_lanes g = te_lanes_here(TE_NVFP4_THREADS, &group);
    const int square = kind.casts == TE_NVFP4_square;
    const int by_row = kind.rounded ? q->y.rounded != 0 : q->y.data != 0;
    const int by_col = kind.rounded ? q->yt.rounded != 0 : q->yt.data != 0;
    te__nvfp4_stage *stage = 0;
#if TE_CUDA
    __shared__ te__nvfp4_stage te_shared_stage;
    if (!kind.rounded) stage = &te_shared_stage;
#endif
    te__nvfp4_scales s[2];
    te__nvfp4_compute_scales(s, q);
    b.x = b.nx - 1 - b.x; /* reverse order, because the part of x that the first pass has read last is still in the
                           * L2 */
    const te__nvfp4_tile tile = te__nvfp4_tile_of(q, b);
    for (int k = 0; k < (TE_CUDA ? 1 : TE_NVFP4_UNITS); k++) {
        const te__nvfp4_lane l = te__nvfp4_lane_of(q, &tile, g, k);
        te__nvfp4_unit u;
        float amax = 0.0f;
        uint32_t codes[TE_NVFP4_BLOCK][TE_NVFP4_VECTORS];
        te__nvfp4_load(&u, q, &l, kind.aligned, kind.from);
        if (square) {
            TE_UNROLL for (int i = 0; i < TE_NVFP4_BLOCK; i++)
                amax = te__microscaled_max(amax, te_vec8_largest(u.x[i], TE_NVFP4_VECTORS, kind.from));
            amax = te_lanes_pair_max(amax, 1);
        }
        if (square || by_row) {
            const te__nvfp4_lines to = te__nvfp4_lines_to(q, &l, 0, stage, kind);
            te__nvfp4_cast_rows(codes, q, &s[0], &u, &l, amax, &to, kind);
        }
        if (by_col) {
            const te__nvfp4_lines to = te__nvfp4_lines_to(q, &l, 1, stage, kind);
            te__nvfp4_cast_columns_of(codes, q, &s[1], &u, &l, amax, &to, kind);
        }
    }
#if TE_CUDA
    if (kind.rounded) return;
    __syncthreads();
    if (by_row) te__nvfp4_store_stage(q, &tile, stage, 0);
    if (by_col) te__nvfp4_store_stage(q, &tile, stage, 1);
#endif
}
TE_API te_grid te__nvfp4_grid(const te_quantize_microscaled *q) {
    return te__grid_of(te_ceil_div(q->rows, TE_NVFP4_TILE_ROWS * TE_NVFP4_BLOCK) *
                           te_ceil_div(q->cols, TE_NVFP4_TILE_COLS * TE_NVFP4_BLOCK), 1);
}

/* Define kernels for tensors of dtype `from`, and te_status name_run(const te_quantize_microscaled *q, te_context
 * *ctx), which stores elements and scales. The members y.rounded and yt.rounded must be null. Errors: TE_ERROR_NULL,
 * TE_ERROR_SHAPE, TE_ERROR_VALUE, TE_ERROR_ALIGNMENT, TE_ERROR_OVERFLOW. */
#define TE_QUANTIZE_NVFP4(name, from)                                                                              \
    TE__NVFP4_PASSES(name##_aligned, from, 1, 0)                                                                   \
    TE__NVFP4_PASSES(name##_unaligned, from, 0, 0)                                                                 \
    TE_API te_status name##_run(const te_quantize_microscaled *q, te_context *ctx) {                               \
        TE_TRY(te__microscaled_check(q, TE_NVFP4, 0, #name, ctx));                                                 \
        if (!q->rows || !q->cols) return TE_OK;                                                                    \
        TE_TRY(te__microscaled_clear_padding(q, TE_NVFP4, ctx));                                                   \
        return q->cols % 8 == 0 ? name##_aligned_passes(q, ctx) : name##_unaligned_passes(q, ctx);                 \
    }
/* Define kernels and te_status name_run(const te_quantize_microscaled *q, te_context *ctx), which stores y.rounded and
 * yt.rounded. `cols` must be a multiple of eight, and the members `data` and `scales` of y and yt must be null. Errors:
 * those of TE_QUANTIZE_NVFP4. */
#define TE_ROUND_NVFP4(name, from)                                                                                 \
    TE__NVFP4_PASSES(name##_rounded, from, 1, 1)                                                                   \
    TE_API te_status name##_run(const te_quantize_microscaled *q, te_context *ctx) {                               \
        TE_TRY(te__microscaled_check(q, TE_NVFP4, 1, #name, ctx));                                                 \
        return q->rows && q->cols ? name##_rounded_passes(q, ctx) : TE_OK;                                         \
    }
#define TE__NVFP4_PASSES(name, from, aligned, rounded)                                                             \
    TE_KERNEL_RESIDENT(name##_amax, TE_NVFP4_THREADS, 2, te_quantize_microscaled,                                  \
                       te_nvfp4_amax_body(te_args, te_at, aligned, TE_##from))                                     \
    TE__NVFP4_CAST(name##_nearest, from, 2, te__nvfp4_kind_of(aligned, rounded, TE_NVFP4_nearest, TE_##from))      \
    TE__NVFP4_CAST(name##_stochastic, from, 2,                                                                     \
                   te__nvfp4_kind_of(aligned, rounded, TE_NVFP4_stochastic, TE_##from))                            \
    TE__NVFP4_CAST(name##_square, from, (rounded) ? 2 : 3,                                                         \
                   te__nvfp4_kind_of(aligned, rounded, TE_NVFP4_square, TE_##from))                                \
    TE_API te_status name##_passes(const te_quantize_microscaled *q, te_context *ctx) {                            \
        TE_TRY(te_fill(ctx, q->amax, 0, 2 * sizeof(float)));                                                       \
        TE_TRY(name##_amax_launch(ctx, te__nvfp4_grid(q), q));                                                     \
        return q->square_blocks ? name##_square_launch(ctx, te__nvfp4_grid(q), q)                                  \
               : q->rng         ? name##_stochastic_launch(ctx, te__nvfp4_grid(q), q)                              \
                                : name##_nearest_launch(ctx, te__nvfp4_grid(q), q);                                \
    }
/* blocks: the number of thread blocks that must fit on an SM; the compiler limits the registers of a thread
 * accordingly. For an x in f32, which takes more registers, the number is 1 */
#define TE__NVFP4_CAST(name, from, blocks, kind)                                                                   \
    TE_KERNEL_RESIDENT(name, TE_NVFP4_THREADS, TE_##from == TE_f32 ? 1 : (blocks), te_quantize_microscaled,          \
                       te_nvfp4_body(te_args, te_at, kind))

#endif
