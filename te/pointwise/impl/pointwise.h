/* pointwise.h -- pointwise kernels: one skeleton for every fused kernel that is not a matrix product, [elementwise ops]
 * [a norm] [elementwise ops].
 *
 * A group of lanes takes a row (without a norm: a part of a row), runs the kernel's ops on it in registers, eight
 * elements at a time, and stores what other kernels read. On a CPU a group is one lane. In backward a lane keeps to the
 * same columns, sums them over the rows that it sees (dbias, dgamma, dbeta), and each block stores one partial sum; a
 * second kernel adds these up in a fixed order. There are no atomics, so the same inputs give the same bits.
 *
 * Roles: pointwise_elementwise.h and pointwise_norm.h have the bodies, pointwise_quantize.h and
 * pointwise_quantize_transpose.h store FP8 operands with scales, pointwise_kernel.h picks a body, pointwise_macros.h
 * makes the kernels of a list, pointwise_step.h fills in the arguments and launches them.
 *
 * Floor: the bytes that a kernel reads and writes, at the memory's rate. Measurements: docs/notes/pointwise.md.
 */
#ifndef TE_POINTWISE_H
#define TE_POINTWISE_H

#include "../../core/lanes.h" /* te_amax_bits */
#include "../../core/dtype.h" /* te_store8_fp8 */
#include "../../core/target.h" /* te_rng_args, te_block */
#include "../../fp8/scales.h" /* te_scaling */
#include "../../ops/elementwise.h" /* te_stage, te_place */
#include "../../ops/norm.h" /* te_norm_options */

typedef struct te_smem16 { uint32_t w[4]; } __attribute__((aligned(16))) te_smem16; /* 16 bytes of shared memory */

/* The result in FP8 for a consumer with one scale a tensor. y null: it is not stored so, and amax is that of the result
 * in the list's format, for the cast that follows. All pointers are to target memory. */
typedef struct te_pointwise_fp8 {
    void *y;            /* [rows, out], e4m3; in backward the list's format of gradients */
    const float *scale; /* the scale: y is the result times this */
    float *amax;        /* raised to the largest |result|; null: not wanted */
    float *inverse;     /* [2] gets 1 / scale and the scale (te_scale_save); null: not wanted */
} te_pointwise_fp8;

/* How a kernel stores its result under a recipe with one scale a tensor: in the list's format; in FP8; or, under
 * fp8_current, whose scale follows from the result itself, in the list's format and with its amax. */
typedef enum te_pointwise_result { TE_RESULT_y, TE_RESULT_fp8, TE_RESULT_amax } te_pointwise_result;

/* The result in FP8 with scales that the kernel finds, one for each 1 x 128 or for each row (pointwise_quantize.h); and
 * its transpose (pointwise_quantize_transpose.h). y null: not stored. All pointers are to target memory. */
typedef struct te_pointwise_quantize {
    void *y;        /* [rows, out], e4m3 */
    float *inverse; /* 1 / its scales (te_scaling_count) */
    te_scale_rule rule;
    int tiles; /* the tile kernel of pointwise_quantize_transpose.h runs */
    int64_t yt_cols;    /* columns of the transpose: rows, rounded up to a multiple of 16 */
    void *yt;           /* [out, yt_cols]; null: not wanted */
    float *yt_inverse;
    const void *norm_x; /* the input of the kernel's norm */
    int from;           /* the first op to run: x is its input */
    const float *scale; /* the one scale of the transpose; null: it has scales for each 1 x 128 */
    int rounded;        /* round the result to the list's format before it is multiplied by this scale, or by
                         * fp8.scale */
} te_pointwise_quantize;

/* The arguments of a pointwise kernel. */
typedef struct te_pointwise {
    const void *x; /* [rows, in] */
    void *y;       /* [rows, out]; null: not stored */
    te_pointwise_fp8 fp8;
    int64_t rows;
    te_stage op[TE_MAX_PATTERN];
    int half; /* te_pointwise_shape.half, for kernels whose width is known only at run time */
    te_rng_args take; /* forward advances the random state in this kernel; taken null: not in this one */
    te_pointwise_quantize scaled;
} te_pointwise;

/* A lane's eight elements in registers. g: those of the second half of the row, beside a gated op. sum: gradients of
 * parameters, [0, 8) of v's columns and [8, 16) of g's; an op with three parameters has 8 for each. */
typedef struct te_lane {
    float v[8], g[8], sum[24];
    te_place at;
} te_lane;

/* Runs the ops [from, to) of the kernel on one te_lane; a macro makes it, with one call for each op. */
typedef void (*te_stages_fn)(te_lane *l, const te_pointwise *c, int from, int to);

/* What a kernel is made for. All members are constants; where the list's widths are known only at run time, all but
 * `half` and what te_shape_at changes. */
typedef struct te_kernel_shape {
    te_dtype in, out, weight;  /* number formats of x, y and the parameters */
    int half, in_halves, out_halves; /* a row of x has half * in_halves columns, a row of y half * out_halves */
    int aligned;               /* half is a multiple of eight */
    int norm;                  /* which op is the norm; -1: none */
    te_norm_options norm_options;
    te_dtype norm_in, norm_out; /* formats of the norm's input and output in forward */
    int sums, sum_halves;      /* which op sums the gradient over rows (bias); -1: none. It has half * sum_halves
                                * columns */
    int sums_three;            /* that op has three parameters (dyt) */
    int backward, draws;
    int reads; /* the first op that reads a 16-bit tensor of the row's shape (te_read8); -1: none */
    int lanes, chunks, groups; /* lanes for a row, vectors of eight for a lane, rows for a block at a time */
    int resident;              /* blocks on a multiprocessor */
    int smem_gamma;            /* bytes of shared memory for gamma; 0: none */
    int fp8;                   /* y may be stored in this FP8 format, a te_dtype: the list names a recipe; 0: it may
                                * not */
    te_scaling scaled;         /* and with scales of this kind, which the kernel finds (pointwise_quantize.h) */
    int transposes; /* there is a tile kernel, too, which stores the transpose (pointwise_quantize_transpose.h) */
    int norm_reads_x;          /* the norm's input is x: no ops but forks come before it */
} te_pointwise_shape;
TE_BOTH te_pointwise_shape te_no_shape(void) {
    te_pointwise_shape k;
    memset(&k, 0, sizeof k);
    return k;
}

/* The kind of scales, a te_scaling, with which the pointwise kernel `name` stores its result for the product behind it;
 * TE_SCALING_NONE: it finds none. In backward the tile kernel does that (pointwise_quantize_transpose.h). Without a
 * norm, a kernel whose width is known only at run time has only a part of a row, so it cannot find a scale for the row.
 */
#define TE__POINTWISE_SCALING(model, name)                                                                        \
    (name##_is_backward || TE_IS_TENSORWISE(model##_recipe)                          ? (int)TE_SCALING_NONE       \
     : TE_IS_ROWWISE(model##_recipe) && name##_norm < 0 && model##_takes_dims ? (int)TE_SCALING_NONE              \
                                                                                    : TE_SCALING_OF(model##_recipe))
/* The norm's index for the choice of the launch: also 0, not -1, where a group of lanes needs the whole row for its
 * scale. */
#define TE__POINTWISE_WHOLE_ROW(name) \
    ((int)name##_norm < 0 && (int)name##_scaled == (int)TE_SCALING_ROWWISE ? 0 : (int)name##_norm)
/* Lanes for a row with scales: whole warps, because the maximum is taken by shuffles. */
#define TE__WARPS_OF(scaled, lanes) \
    (TE_CUDA && (int)(scaled) != (int)TE_SCALING_NONE && (lanes) < 32 ? 32 : (lanes))
#define TE__SCALED_LANES(name, lanes) TE__WARPS_OF(name##_scaled, lanes)
#define TE__POINTWISE_SCALING_FACTS(model, name) \
    name##_scaled = TE__POINTWISE_SCALING(model, name), name##_row_at = TE__POINTWISE_WHOLE_ROW(name)

/* Rows that a lane loads at once in a kernel without a norm: the maximum, and for the kernel k. Then the number of
 * blocks that share a row. */
enum { TE_MAP_ROWS = TE_CUDA ? 4 : 1 };
TE_BOTH int te_map_batch(te_pointwise_shape k) {
    const int gated = k.in_halves + k.out_halves > 2;
    if (!TE_CUDA || k.scaled == TE_SCALING_ROWWISE) return 1;
    /* each of 4 lanes finds the scale of one row's tile */
    if (k.scaled == TE_SCALING_BLOCKWISE_1D && !k.backward) return gated ? 2 : 4;
    return k.sums < 0 ? (gated ? 1 : 2) : gated || k.draws ? 2 : 4;
}
TE_BOTH int te_pointwise_tiles(te_pointwise_shape k) {
    return k.norm >= 0 ? 1 : ((k.half + 7) / 8 + k.lanes * k.chunks - 1) / (k.lanes * k.chunks);
}

/* ---- the shape of the launch ----------------------------------------------------------------------------------- */

/* Macros of constants, of which pointwise_macros.h makes enumerators. norm: which op is the norm, -1: none; w: columns
 * of a row; sums: which op sums a bias's gradient, -1: none. */
#define TE_VECTORS(w) (((w) + 7) / 8)
#if TE_CUDA
/* Forward: a warp takes a row of up to 1024 columns, 64 to 1024 threads a longer one. Backward: one vector a lane up to
 * 4096 columns, because the sums over rows take most of the registers; two vectors where a bias is summed as well. */
#define TE_NORM_LANES_forward(w, sums) ((w) <= 1024 ? 32 : (w) <= 2048 ? 64 : (w) <= 4096 ? 128 : (w) <= 12288 ? 256 \
    : (w) <= 32768 ? 512 : 1024)
#define TE_NORM_LANES_backward(w, sums) \
    ((w) <= 1024 ? 32 : (w) <= 2048 ? 256 : (w) <= 4096 ? ((sums) < 0 ? 512 : 256) : (w) <= 12288 ? 512 : 1024)
/* Forward, no more rows than multiprocessors: as many threads as a row has vectors. Latency dominates. A thread then
 * has one vector, and the kernel half the instructions; instruction cache misses dominate, because the GEMM before this
 * kernel evicted its code from the L2. A GPT block of 4096 columns takes 127.5 us at 64 rows, and 130.2 us with the
 * kernel for many rows. With many rows this kernel is the slower one: a LayerNorm of 8192 rows takes 58 us instead of
 * 35. */
#define TE_LOW_LATENCY_LANES(norm, w, sums, pass) (TE_VECTORS(w) >= 1024 ? 1024 : (TE_VECTORS(w) + 31) / 32 * 32)
/* No norm, and no sums: a block takes a few neighbouring rows, and as many columns of each as it can. Rows that lie far
 * apart, or few columns of many rows, cost up to a tenth more (8192 x 16384: bias_gelu 210 us instead of 200,
 * bias_dropout_add 210 instead of 195). */
#define TE_MAP_LANES(w, sums)                                                                                 \
    ((sums) < 0 && TE_VECTORS(w) % 256 == 0 ? 256 : (sums) < 0 && TE_VECTORS(w) % 128 == 0 ? 128 : (sums) < 0 \
        && TE_VECTORS(w) % 64 == 0 ? 64                                                                       \
     : TE_VECTORS(w) >= 32 ? 32 : TE_VECTORS(w) >= 16 ? 16 : TE_VECTORS(w) >= 8 ? 8 : 4)
#define TE_POINTWISE_LANES(norm, w, sums, pass) ((norm) < 0 ? TE_MAP_LANES(w, sums) : TE_NORM_LANES_##pass(w, sums))
#define TE_POINTWISE_GROUPS(norm, lanes) ((norm) < 0 ? 256 / (lanes) : (lanes) > 32 ? 1 : 4)
#define TE_POINTWISE_CHUNKS(norm, w, lanes) ((norm) < 0 ? 1 : (TE_VECTORS(w) + (lanes) - 1) / (lanes))
/* Blocks on a multiprocessor that a kernel is compiled for, which bounds its registers: as many threads as keep the
 * memory busy, and fewer where a lane has more vectors of a row. Where gradients are summed te__max_blocks launches no
 * more blocks than these. */
#define TE_NORM_THREADS(chunks) ((chunks) <= 2 ? 1536 : (chunks) <= 4 ? 1024 : (chunks) <= 8 ? 640 : 256)
#define TE_RESIDENT_forward(threads, chunks) (TE_NORM_THREADS(chunks) > (threads) \
    ? TE_NORM_THREADS(chunks) / (threads) : 1)
#define TE_NORM_SUMMING_THREADS(chunks) ((chunks) <= 1 ? 1024 : (chunks) <= 2 ? 512 : (chunks) <= 3 ? 384 : 256)
#define TE_RESIDENT_backward(threads, chunks) (TE_NORM_SUMMING_THREADS(chunks) > (threads) \
    ? TE_NORM_SUMMING_THREADS(chunks) / (threads) : 1)
#define TE_POINTWISE_RESIDENT(norm, threads, chunks, sums, gated, pass) \
    ((norm) >= 0 ? TE_RESIDENT_##pass(threads, chunks) : (sums) < 0 ? 6 : (gated) ? 3 : 4)
#define TE_POINTWISE_SMEM_GAMMA(norm, lanes, chunks, size, backward)                                \
    ((norm) >= 0 && (backward) && (lanes) > 32 && (lanes) * (chunks) * 8 * (size) <= 32768 \
        ? (lanes) * (chunks) * 8 * (size) : 0)
#else
#define TE_POINTWISE_SMEM_GAMMA(norm, lanes, chunks, size, backward) 0
#define TE_POINTWISE_LANES(norm, w, sums, pass) 1
#define TE_POINTWISE_GROUPS(norm, lanes) 1
#define TE_POINTWISE_CHUNKS(norm, w, lanes) TE_VECTORS(w)
#define TE_POINTWISE_RESIDENT(norm, threads, chunks, sums, gated, pass) 1
#endif

/* The kernels of a pointwise step whose width is known only at run time: X(.., suffix, columns, aligned). With a norm a
 * row has at most so many columns; without one any number. Rows that are no multiple of eight have one kernel for up to
 * 1024 columns and one for longer rows. */
#if TE_CUDA
#define TE_MAP_KERNELS(X, ...) X(__VA_ARGS__, aligned, 1024, 1) X(__VA_ARGS__, any, 1024, 0)
#define TE_NORM_KERNELS(X, ...)                                                                                 \
    X(__VA_ARGS__, aligned_1k, 1024, 1) X(__VA_ARGS__, aligned_4k, 4096, 1) X(__VA_ARGS__, aligned_12k, 12288, 1) \
    X(__VA_ARGS__, aligned_64k, 65536, 1) X(__VA_ARGS__, any_1k, 1024, 0) X(__VA_ARGS__, any_64k, 65536, 0)
#else
#define TE_MAP_KERNELS(X, ...) X(__VA_ARGS__, any, 1024, half % 8 == 0)
#define TE_NORM_KERNELS(X, ...) X(__VA_ARGS__, any_4k, 4096, half % 8 == 0) X(__VA_ARGS__, any_64k, 65536, \
    half % 8 == 0)
#endif
/* The parts of a shape that depend on the width at run time: on CUDA the lanes of a kernel without a norm, on the host
 * the vectors of its one lane. */
TE_BOTH te_pointwise_shape te_shape_at(te_pointwise_shape k) {
#if TE_CUDA
    if (k.norm < 0) k.lanes = TE__WARPS_OF(k.scaled, TE_MAP_LANES(k.half, k.sums));
    if (k.norm < 0) k.groups = TE_POINTWISE_GROUPS(-1, k.lanes);
#else
    k.chunks = (int)te_min(k.chunks, TE_VECTORS(k.half));
#endif
    return k;
}

TE_FN te_place te_place_of(const te_pointwise_shape k, int64_t row, int vector, int halves) {
    te_place at;
    at.row = row, at.col = vector * 8, at.width = k.half, at.halves = halves, at.ahead_of = 0;
    at.format.in = k.in, at.format.out = k.out, at.format.edge = k.out, at.format.weight = k.weight,
    at.format.local_fork = 0;
    at.aligned = k.aligned, at.n = at.aligned ? 8 : (int)te_min(8, k.half - at.col);
    return at;
}
TE_FN void te_load_lane(te_lane *l, const void *x, const te_pointwise_shape k, int64_t row, int vector) {
    l->at = te_place_of(k, row, vector, k.in_halves);
    te_load8(l->v, x, te_index(l->at), l->at.n, l->at.aligned, k.in);
    if (k.in_halves == 2) te_load8(l->g, x, te_index(te_second_half(l->at)), l->at.n, l->at.aligned, k.in);
}
TE_FN void te_store_lane(const te_lane *l, void *y, const te_pointwise_shape k) {
    te_store8(y, te_index(l->at), l->v, l->at.n, l->at.aligned, k.out);
    if (k.out_halves == 2) te_store8(y, te_index(te_second_half(l->at)), l->g, l->at.n, l->at.aligned, k.out);
}
/* Round v as storing it would. */
TE_FN void te__pointwise_round(float v[8], te_dtype to) {
    te_vec8 e;
    te_vec8_of_pairs(&e, v, to);
    te_vec8_floats(v, &e, to);
}
/* The larger of amax_bits and the bits of the largest |v|, of the elements that lie in the row. */
TE_FN uint32_t te__pointwise_amax(uint32_t amax_bits, const float v[8], te_place at) {
    if (at.aligned) return te_amax_bits8(amax_bits, v);
    TE_UNROLL
    for (int i = 0; i < 8; i++)
        if (i < at.n && te_amax_bits(v[i]) > amax_bits) amax_bits = te_amax_bits(v[i]);
    return amax_bits;
}
/* Store eight elements in FP8, times `scale`. *amax_bits: the bits of the largest |y| so far. */
TE_FN void te__pointwise_store_fp8(const te_pointwise *c, const float v[8], float scale, te_place at,
                                   const te_pointwise_shape k, uint32_t *amax_bits) {
    float w[8];
    *amax_bits = te__pointwise_amax(*amax_bits, v, at);
    TE_UNROLL for (int i = 0; i < 8; i++) w[i] = v[i] * scale;
    te_store8_fp8(c->fp8.y, te_index(at), w, at.n, at.aligned, (te_dtype)k.fp8);
}
/* Store a kernel's result: in the list's format or, under a recipe, in the forms that the arguments ask for.
 * *amax_bits: the bits of the largest |y| so far. */
typedef void (*te_store_fn)(const te_pointwise *c, const te_lane *l, const te_pointwise_shape k, uint32_t *amax_bits);
TE_CALLBACK void te_pointwise_store(const te_pointwise *c, const te_lane *l, const te_pointwise_shape k,
                                    uint32_t *amax_bits) {
    (void)amax_bits;
    if (c->y) te_store_lane(l, c->y, k);
}
TE_CALLBACK void te_pointwise_store_fp8(const te_pointwise *c, const te_lane *l, const te_pointwise_shape k,
                                        uint32_t *amax_bits) {
    if (c->y) te_store_lane(l, c->y, k);
    if (!c->fp8.y) {
        TE_UNROLL for (int half = 0; half < k.out_halves; half++)
            if (c->fp8.amax) *amax_bits = te__pointwise_amax(*amax_bits, half ? l->g : l->v, l->at);
        return;
    }
    const float scale = te_load_scale(c->fp8.scale);
    if (k.norm < 0 && k.out_halves == 1 && c->scaled.rounded) {
        te_lane rounded = *l;
        te__pointwise_round(rounded.v, k.out);
        te__pointwise_store_fp8(c, rounded.v, scale, l->at, k, amax_bits);
        return;
    }
    te__pointwise_store_fp8(c, l->v, scale, l->at, k, amax_bits);
    if (k.out_halves == 2) te__pointwise_store_fp8(c, l->g, scale, te_second_half(l->at), k, amax_bits);
}
/* The rows of a group of lanes, and its registers and shared memory. sums: [TE_SUM_SLOTS][chunks][8]; rows:
 * [5][chunks], which te_norm_registers points into; smem_gamma: k.smem_gamma bytes of shared memory. */
typedef struct te_pointwise_part {
    int tile; /* the first vector of a row */
    int64_t first, step;
    float *sums;
    te_vec8 *rows;
    te_smem16 *smem_gamma;
    uint32_t *amax_bits;
} te_pointwise_part;
/* The bits of the largest |y| as it is stored: rounding is monotonic, so the maximum may be rounded after the fact. */
TE_FN uint32_t te_amax_rounded(uint32_t amax_bits, te_dtype to) {
    return amax_bits > 0x7f800000u ? amax_bits : te_amax_bits(te_round_to(te_float_of_bits(amax_bits), to));
}
/* At the end of a kernel: store its largest |y|. block_lanes: all lanes of the block. */
TE_FN void te_pointwise_store_amax(const te_pointwise *c, const te_pointwise_shape k, te_block b, te_lanes block_lanes,
                                   uint32_t amax_bits) {
    if (!k.fp8 || !(c->fp8.y || c->fp8.amax)) return;
    if (c->fp8.amax)
        te_amax_atomic_max(c->fp8.amax, c->fp8.y ? amax_bits : te_amax_rounded(amax_bits, k.out), block_lanes);
    if (c->fp8.inverse && b.x == 0 && block_lanes.id == 0) te_scale_save(c->fp8.inverse, *c->fp8.scale);
}

#endif
