/* pointwise.h -- pointwise kernels: one skeleton for every fused kernel that is not a GEMM. Such a kernel runs
 * elementwise ops, then a norm, then elementwise ops again; each of these three parts may be missing.
 *
 * A group of lanes (threads) takes a row or, without a norm, a part of a row. The group runs the kernel's ops on the
 * row in registers, eight elements at a time, and stores the values that other kernels read. On a CPU a group is one
 * lane. In backward a lane processes the same columns of several rows, and sums the gradients of parameters (dbias,
 * dgamma, dbeta) over these rows. Each block stores one partial sum, and a second kernel adds up the partial sums in a
 * fixed order. No sum uses atomics, so the same inputs give bitwise identical results.
 *
 * Roles: pointwise_elementwise.h and pointwise_norm.h contain the bodies of the kernels; pointwise_quantize.h and
 * pointwise_quantize_transpose.h store FP8 operands with scales; pointwise_kernel.h picks a body; pointwise_macros.h
 * generates the kernels of a model; pointwise_step.h fills in the arguments and launches the kernels.
 *
 * Floor (lower bound of the time): the bytes that a kernel reads and writes, divided by the memory's bandwidth.
 * Measurements: docs/notes/pointwise.md.
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

/* Where and how a kernel stores its result in FP8 for a GEMM with one scale per tensor. If y is null, the result is not
 * stored in FP8; if `amax` is not null, the kernel then computes the amax of the result, rounded to the dtype of the
 * list of ops, for a later cast to FP8. All pointers point to target memory. */
typedef struct te_pointwise_fp8 {
    /* [rows, out], the result. Format: e4m3 in forward; e4m3 or e5m2 in backward, as the option `gradients` says */
    void *y;
    const float *scale; /* y = result * (*scale) */
    /* updated to max(*amax, |v| of all elements v of the result); null: no amax is computed */
    float *amax;
    float *inverse;     /* [2], output: 1 / scale and the scale (te_scale_save); null: not stored */
} te_pointwise_fp8;

/* How a kernel stores its result under a recipe with one scale per tensor. TE_RESULT_y: in the dtype of the list of
 * ops. TE_RESULT_fp8: in FP8. TE_RESULT_amax: in the dtype of the list, and the kernel also computes the result's amax,
 * from which fp8_current then computes the scale. */
typedef enum te_pointwise_result { TE_RESULT_y, TE_RESULT_fp8, TE_RESULT_amax } te_pointwise_result;

/* Where and how a kernel stores its result in FP8 with scales that the kernel computes: one scale for each 1 x 128
 * elements or for each row (pointwise_quantize.h). A tile kernel can also store the transpose of the result
 * (pointwise_quantize_transpose.h). If y is null, the untransposed result is not stored in FP8. All pointers point to
 * target memory. */
typedef struct te_pointwise_quantize {
    void *y;        /* [rows, out], e4m3 */
    float *inverse; /* [te_scaling_count(..)], output: 1 / scale for each scale of y */
    te_scale_rule rule;
    /* 1: launch the tile kernel of pointwise_quantize_transpose.h, which can store the transpose; 0: launch only the
     * row kernel */
    int tiles;
    /* the number of columns of yt: `rows` rounded up to a multiple of 16 */
    int64_t yt_cols;
    void *yt;           /* the transpose of the result in FP8, [out, yt_cols]; null if it is not stored */
    float *yt_inverse;  /* output: 1 / scale for each scale of yt */
    const void *norm_x; /* the input of the kernel's norm */
    /* the index of the first op that the kernel runs. The kernel skips the ops before it, and x is the input of op
     * number `from` */
    int from;
    /* the scale of yt, if yt has one scale; null if yt has a scale for each 1 x 128 elements */
    const float *scale;
    /* 1: the result is first rounded to the dtype of the list of ops, and then multiplied by the FP8 scale and rounded
     * to FP8, as if a separate kernel had cast it */
    int rounded;
} te_pointwise_quantize;

/* The arguments of a pointwise kernel. */
typedef struct te_pointwise {
    const void *x; /* [rows, in] */
    /* [rows, out], the result in the dtype of the list of ops; null: the result is not stored in this dtype */
    void *y;
    te_pointwise_fp8 fp8;
    int64_t rows;
    te_stage op[TE_MAX_PATTERN];
    /* te_pointwise_shape.half, for kernels whose width is known only at run time */
    int half;
    /* the arguments with which the kernel advances the random state in forward; take.taken is null if another kernel
     * does so */
    te_rng_args take;
    te_pointwise_quantize scaled;
} te_pointwise;

/* The elements that a lane has in registers. v: eight elements of a row. g: if the row has two halves (the input of a
 * gated op), the eight elements at the same columns of the second half. sum: the lane's contributions to a parameter's
 * gradient: sum[0] to sum[7] for the columns of v, sum[8] to sum[15] for the columns of g. If an op has two or three
 * parameters (xielu, dyt), `sum` has eight elements for each parameter instead. */
typedef struct te_lane {
    float v[8], g[8], sum[24];
    te_place at;
} te_lane;

/* The type of a function that runs the ops `from` to `to` - 1 of a kernel on the elements in *l: eight elements, or 16
 * if the row has two halves. A macro generates the function, with one call for each op. */
typedef void (*te_stages_fn)(te_lane *l, const te_pointwise *c, int from, int to);

/* The properties for which a kernel is compiled. All members are compile-time constants, with one exception: `half` and
 * the members that te_shape_at changes are variables if the model's widths are known only at run time. */
typedef struct te_kernel_shape {
    te_dtype in, out, weight;  /* number formats of x, y and the parameters */
    /* A row of x has half * in_halves columns, and a row of y has half * out_halves columns. With a gated op, in_halves
     * is 2 in forward and out_halves is 2 in backward; otherwise both are 1 */
    int half, in_halves, out_halves;
    int aligned;               /* 1: `half` is a multiple of eight */
    int norm;                  /* the position of the norm among the ops of the kernel, or -1 if there is no norm */
    te_norm_options norm_options;
    int norm_columns, norm_first; /* the norm normalises columns norm_first to norm_first + norm_columns - 1; all
                                   * columns if norm_columns is 0 */
    te_dtype norm_in, norm_out; /* number formats of the norm's input and output in forward */
    /* sums: the index of the op whose parameter's gradient is a sum over rows (e.g. a bias); -1 if no op has such a
     * parameter. The gradient has half * sum_halves columns */
    int sums, sum_halves;
    int sum_params;            /* the number of parameters of the op with index `sums`: 1, 2 (xielu) or 3 (dyt) */
    int backward, draws;
    int reads; /* the index of the first op that reads a second tensor of the same shape as x (te_read8); -1 if no op
                * does so */
    /* lanes: the number of lanes in a group. chunks: how many vectors of eight elements of a row a lane has. groups:
     * the number of groups in a thread block; each group works on one row at a time */
    int lanes, chunks, groups;
    int resident;              /* the number of blocks per multiprocessor that the kernel is compiled for */
    int smem_gamma;            /* the bytes of shared memory that hold gamma, or 0 if gamma is held in registers */
    /* the FP8 format (a te_dtype) in which the kernel may store its result; 0 if the model names no FP8 recipe, so that
     * the result is never stored in FP8 */
    int fp8;
    te_scaling scaled;         /* the kind of scales that the kernel computes for its FP8 result
                                * (pointwise_quantize.h) */
    /* 1: the step also has a tile kernel, which stores the transpose of the result (pointwise_quantize_transpose.h) */
    int transposes;
    int norm_reads_x;          /* 1: the norm reads x itself, because only forks precede the norm */
} te_pointwise_shape;
TE_BOTH te_pointwise_shape te_no_shape(void) {
    te_pointwise_shape k;
    memset(&k, 0, sizeof k);
    return k;
}

/* The kind of scales, a te_scaling, that the pointwise kernel `name` computes when it stores its result in FP8 for the
 * next GEMM. TE_SCALING_NONE: the kernel computes no scales. This is the case in backward, where a tile kernel computes
 * the scales (pointwise_quantize_transpose.h). It is also the case for rowwise scales if the kernel has no norm and its
 * width is known only at run time, because a group of lanes then has only a part of a row. */
#define TE__POINTWISE_SCALING(model, name)                                                                        \
    (name##_is_backward || TE_IS_TENSORWISE(model##_recipe)                          ? (int)TE_SCALING_NONE       \
     : TE_IS_ROWWISE(model##_recipe) && name##_norm < 0 && model##_takes_dims ? (int)TE_SCALING_NONE              \
                                                                                    : TE_SCALING_OF(model##_recipe))
/* The index of the norm as the launch macros get it: -1 if the kernel has no norm. Exception: a kernel without a norm
 * that computes rowwise scales passes 0, and so is launched like a kernel with a norm, because a group of lanes must
 * hold a whole row. */
#define TE__POINTWISE_WHOLE_ROW(name) \
    ((int)name##_norm < 0 && (int)name##_scaled == (int)TE_SCALING_ROWWISE ? 0 : (int)name##_norm)
/* The number of lanes in a group: `lanes`, but at least a whole warp in a kernel that computes scales, because such a
 * kernel finds the amax by warp shuffles. */
#define TE__WARPS_OF(scaled, lanes) \
    (TE_CUDA && (int)(scaled) != (int)TE_SCALING_NONE && (lanes) < 32 ? 32 : (lanes))
#define TE__SCALED_LANES(name, lanes) TE__WARPS_OF(name##_scaled, lanes)
#define TE__POINTWISE_SCALING_FACTS(model, name) \
    name##_scaled = TE__POINTWISE_SCALING(model, name), name##_row_at = TE__POINTWISE_WHOLE_ROW(name)

/* The largest number of rows that a lane loads at once in a kernel without a norm. te_map_batch returns the number of
 * rows for one kernel. */
enum { TE_MAP_ROWS = TE_CUDA ? 4 : 1 };
/* Return the number of rows that a lane loads at once in kernel k, which has no norm. */
TE_BOTH int te_map_batch(te_pointwise_shape k) {
    const int gated = k.in_halves + k.out_halves > 2;
    if (!TE_CUDA || k.scaled == TE_SCALING_ROWWISE) return 1;
    /* Sixteen lanes share a tile of 1 x 128 elements, whose scale one of the lanes computes. With four rows at once,
     * four of the sixteen lanes compute scales at the same time, each for another row; with two rows (a gated op), two
     * lanes do. */
    if (k.scaled == TE_SCALING_BLOCKWISE_1D && !k.backward) return gated ? 2 : 4;
    return k.sums < 0 ? (gated ? 1 : 2) : gated || k.draws ? 2 : 4;
}
/* The number of blocks that share a row. */
TE_BOTH int te_pointwise_tiles(te_pointwise_shape k) {
    return k.norm >= 0 ? 1 : ((k.half + 7) / 8 + k.lanes * k.chunks - 1) / (k.lanes * k.chunks);
}

/* ---- the shape of the launch ----------------------------------------------------------------------------------- */

/* Macros that compute a kernel's constants; pointwise_macros.h defines enumerators with these values. A vector is eight
 * neighbouring elements of a row. w: the number of columns of a row. norm, sums: as in te_pointwise_shape; -1 if the
 * kernel has no norm, or no op that sums a gradient. */
#define TE_VECTORS(w) (((w) + 7) / 8)
#if TE_CUDA
/* The number of lanes that share a row in a kernel with a norm. Forward: one warp processes a row of up to 1024
 * columns, and 64 to 1024 threads process a longer row. Backward: one warp processes a row of up to 1024 columns. A row
 * of 1025 to 4096 columns is divided among so many lanes that a lane has only one or two vectors of eight elements,
 * because the sums over rows take most of a lane's registers. */
#define TE_NORM_LANES_forward(w, sums) ((w) <= 1024 ? 32 : (w) <= 2048 ? 64 : (w) <= 4096 ? 128 : (w) <= 12288 ? 256 \
    : (w) <= 32768 ? 512 : 1024)
#define TE_NORM_LANES_backward(w, sums) \
    ((w) <= 1024 ? 32 : (w) <= 2048 ? 256 : (w) <= 4096 ? ((sums) < 0 ? 512 : 256) : (w) <= 12288 ? 512 : 1024)
/* The number of lanes of a group in the low-latency norm kernel: one lane for each vector of a row. This kernel runs in
 * forward if there are at most as many rows as SMs. With so few rows, instruction cache misses take most of the
 * kernel's time, because the preceding GEMM has evicted the kernel's code from the L2. With one vector per lane the
 * code is half as long. With 64 rows, a Transformer layer of 4096 columns takes 127.5 us, instead of 130.2 us with the
 * kernel for many rows. With 8192 rows, the low-latency kernel would be slower: 58 us for a LayerNorm, instead of 35
 * us. */
#define TE_LOW_LATENCY_LANES(norm, w, sums, pass) (TE_VECTORS(w) >= 1024 ? 1024 : (TE_VECTORS(w) + 31) / 32 * 32)
/* The number of lanes of a group in a kernel without a norm. A kernel that sums no gradient over rows (sums < 0) uses
 * many lanes, so that a block works on many columns of a few neighbouring rows. With few columns of many rows, or with
 * rows far apart, the kernel takes up to a tenth longer (8192 x 16384: bias_gelu 210 us instead of 200 us,
 * bias_dropout_add 210 us instead of 195 us). */
#define TE_MAP_LANES(w, sums)                                                                                 \
    ((sums) < 0 && TE_VECTORS(w) % 256 == 0 ? 256 : (sums) < 0 && TE_VECTORS(w) % 128 == 0 ? 128 : (sums) < 0 \
        && TE_VECTORS(w) % 64 == 0 ? 64                                                                       \
     : TE_VECTORS(w) >= 32 ? 32 : TE_VECTORS(w) >= 16 ? 16 : TE_VECTORS(w) >= 8 ? 8 : 4)
#define TE_POINTWISE_LANES(norm, w, sums, pass) ((norm) < 0 ? TE_MAP_LANES(w, sums) : TE_NORM_LANES_##pass(w, sums))
#define TE_POINTWISE_GROUPS(norm, lanes) ((norm) < 0 ? 256 / (lanes) : (lanes) > 32 ? 1 : 4)
#define TE_POINTWISE_CHUNKS(norm, w, lanes) ((norm) < 0 ? 1 : (TE_VECTORS(w) + (lanes) - 1) / (lanes))
/* The number of blocks per SM that a kernel is compiled for, which limits the registers of a thread. TE_NORM_THREADS is
 * the number of threads per SM that keeps the memory busy; it is smaller if a lane holds many vectors (chunks) of a
 * row, because the lane then needs more registers. A kernel that sums gradients is launched with no more blocks than
 * fit on the device at once (te__max_blocks). */
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

/* The list of the kernels of a pointwise step whose width is known only at run time: X(.., suffix, columns, aligned)
 * for each kernel. aligned: 1 if the kernel needs rows whose width is a multiple of eight. columns: with a norm, the
 * maximum width of a row; without a norm, every width is allowed. For widths that are no multiple of eight, a step with
 * a norm has one kernel for up to 1024 columns and one kernel for longer rows. */
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
/* Set the members of a shape that depend on a width known only at run time: on CUDA, `lanes` of a kernel without a
 * norm; on the host, where a group has one lane, the number of vectors of this lane (chunks). */
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
/* Round the eight elements v to the format `to`. */
TE_FN void te__pointwise_round(float v[8], te_dtype to) {
    te_vec8 e;
    te_vec8_of_pairs(&e, v, to);
    te_vec8_floats(v, &e, to);
}
/* Return the maximum of amax_bits and |v[i]| for the elements v[i] that lie inside the row. amax_bits and the result
 * are the bits of floats. */
TE_FN uint32_t te__pointwise_amax(uint32_t amax_bits, const float v[8], te_place at) {
    if (at.aligned) return te_amax_bits8(amax_bits, v);
    TE_UNROLL
    for (int i = 0; i < 8; i++)
        if (i < at.n && te_amax_bits(v[i]) > amax_bits) amax_bits = te_amax_bits(v[i]);
    return amax_bits;
}
/* Multiply the eight elements v by `scale` and store them in FP8. Update *amax_bits, the bits of a float, to the
 * maximum of its value and all |v| before scaling. */
TE_FN void te__pointwise_store_fp8(const te_pointwise *c, const float v[8], float scale, te_place at,
                                   const te_pointwise_shape k, uint32_t *amax_bits) {
    float w[8];
    *amax_bits = te__pointwise_amax(*amax_bits, v, at);
    TE_UNROLL for (int i = 0; i < 8; i++) w[i] = te_fp8_scaled(v[i], scale);
    te_store8_fp8(c->fp8.y, te_index(at), w, at.n, at.aligned, (te_dtype)k.fp8);
}
/* The type of a function that stores a kernel's result in the dtype of the list of ops or in FP8, and may also compute
 * the amax (te_pointwise_result). *amax_bits: the bits of the largest |y| so far. */
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
/* The rows on which a group of lanes works, and the registers and shared memory of a lane. sums: the lane's sums over
 * rows, [TE_SUM_SLOTS][chunks][8]. rows: registers for rows, [5][chunks]; in the backward of a norm they hold dy and x
 * of the current row, dy and x of the next row, and gamma. smem_gamma: gamma in shared memory,
 * te_pointwise_shape.smem_gamma bytes. */
typedef struct te_pointwise_part {
    int tile; /* the number, within a row, of the first vector of eight elements on which the thread block works */
    int64_t first, step; /* the group works on the rows first, first + step, first + 2 * step, and so on */
    float *sums;
    te_vec8 *rows;
    te_smem16 *smem_gamma;
    uint32_t *amax_bits;
} te_pointwise_part;
/* Return the largest |y| after y has been rounded to the format `to`. amax_bits: the largest |y| before rounding.
 * Argument and result are the bits of floats. Rounding is monotonic, so it suffices to round the maximum instead of
 * each element. */
TE_FN uint32_t te_amax_rounded(uint32_t amax_bits, te_dtype to) {
    return amax_bits > 0x7f800000u ? amax_bits : te_amax_bits(te_round_to(te_float_of_bits(amax_bits), to));
}
/* End of a kernel: update *c->fp8.amax to the maximum of its value and the thread block's largest |y|. Block 0 also
 * stores 1 / scale and the scale to c->fp8.inverse. block_lanes: all lanes of the block. amax_bits: the largest |y| of
 * this lane. */
TE_FN void te_pointwise_store_amax(const te_pointwise *c, const te_pointwise_shape k, te_block b, te_lanes block_lanes,
                                   uint32_t amax_bits) {
    if (!k.fp8 || !(c->fp8.y || c->fp8.amax)) return;
    if (c->fp8.amax)
        te_amax_atomic_max(c->fp8.amax, c->fp8.y ? amax_bits : te_amax_rounded(amax_bits, k.out), block_lanes);
    if (c->fp8.inverse && b.x == 0 && block_lanes.id == 0) te_scale_save(c->fp8.inverse, *c->fp8.scale);
}

#endif
