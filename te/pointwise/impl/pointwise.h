/* pointwise.h -- pointwise kernels: one skeleton for every fused kernel that is not a GEMM. Such a kernel runs
 * elementwise ops, then a norm, then elementwise ops again; each of these three parts may be missing.
 *
 * A group of lanes (threads) takes a row or, without a norm, a part of a row. It runs the kernel's ops on the row in
 * registers, eight elements at a time, and stores the values that other kernels read. On a CPU a group is one lane. In
 * backward a lane processes the same columns of several rows, and sums the gradients of parameters (dbias, dgamma,
 * dbeta) over these rows. Each block stores one partial sum, and a second kernel adds up the partial sums in a fixed
 * order. No sum uses atomics, so the same inputs give bitwise identical results.
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

/* Where and how a kernel stores its result in FP8, for a consumer that uses one scale per tensor. If y is null, the
 * result is not stored in FP8; if `amax` is not null, it then receives the amax of the result in the list's dtype, for
 * a later cast to FP8. All pointers are to memory of the target: the GPU, or the host in CPU builds. */
typedef struct te_pointwise_fp8 {
    /* [rows, out], the result: e4m3 in forward; in backward e4m3 or e5m2, as the list's option `gradients` says */
    void *y;
    const float *scale; /* the scale: y = the result * scale */
    /* if the largest |result| exceeds *amax, *amax is set to it; null if no amax is computed */
    float *amax;
    float *inverse;     /* [2]: receives 1 / scale and the scale (te_scale_save); null if these are not stored */
} te_pointwise_fp8;

/* How a kernel stores its result under a recipe with one scale per tensor. TE_RESULT_y: in the list's dtype.
 * TE_RESULT_fp8: in FP8. TE_RESULT_amax: in the list's dtype, and the kernel also computes the result's amax; this is
 * for fp8_current, whose scale is computed from the result itself. */
typedef enum te_pointwise_result { TE_RESULT_y, TE_RESULT_fp8, TE_RESULT_amax } te_pointwise_result;

/* Where and how a kernel stores its result in FP8 with scales that the kernel computes, one for each 1 x 128 elements
 * or for each row (pointwise_quantize.h), and the transpose of the result (pointwise_quantize_transpose.h). If y is
 * null, the FP8 result is not stored. All pointers are to memory of the target: the GPU, or the host in CPU builds. */
typedef struct te_pointwise_quantize {
    void *y;        /* [rows, out], e4m3 */
    float *inverse; /* the inverses, 1 / scale, of the scales of y; te_scaling_count returns how many there are */
    te_scale_rule rule;
    /* 1: launch the tile kernel of pointwise_quantize_transpose.h, which can store the transpose; 0: launch only the
     * row kernel */
    int tiles;
    /* the number of columns of the transpose, which is the number of rows of y, rounded up to a multiple of 16 */
    int64_t yt_cols;
    void *yt;           /* the transpose of the result in FP8, [out, yt_cols]; null if it is not stored */
    float *yt_inverse;  /* the inverses, 1 / scale, of the scales of the transpose */
    const void *norm_x; /* the input of the kernel's norm */
    /* the index of the first op that the kernel runs; x is the input of this op, and the ops in front of it are
     * skipped */
    int from;
    /* the one scale of the whole transpose; null if the transpose has a scale for each 1 x 128 elements */
    const float *scale;
    /* 1: the result is rounded to the list's dtype before it is multiplied by its FP8 scale (`scale` above or
     * fp8.scale), as if it had been stored in the list's dtype and then cast to FP8 */
    int rounded;
} te_pointwise_quantize;

/* The arguments of a pointwise kernel. */
typedef struct te_pointwise {
    const void *x; /* [rows, in] */
    /* [rows, out], memory for the result in the list's dtype; null if the result is not stored in this format */
    void *y;
    te_pointwise_fp8 fp8;
    int64_t rows;
    te_stage op[TE_MAX_PATTERN];
    /* the value of te_pointwise_shape.half (the number of columns of one half of a row), for kernels whose width is
     * known only at run time */
    int half;
    /* the arguments with which this kernel advances the random state in forward; take.taken is null if another kernel
     * advances it */
    te_rng_args take;
    te_pointwise_quantize scaled;
} te_pointwise;

/* The elements that a lane has in registers. v: eight elements of a row. g: if the row has two halves (the input of a
 * gated op), the eight elements of the second half at the same columns. sum: the lane's sums of a parameter's gradient,
 * [0, 8) for the columns of v and [8, 16) for the columns of g. For an op with two or three parameters (xielu, dyt),
 * `sum` has eight elements for each parameter instead. */
typedef struct te_lane {
    float v[8], g[8], sum[24];
    te_place at;
} te_lane;

/* The type of a function that runs the ops [from, to) of a kernel on the elements in *l, which are eight elements, or
 * 16 if the row has two halves. A macro generates the function, with one call for each op. */
typedef void (*te_stages_fn)(te_lane *l, const te_pointwise *c, int from, int to);

/* The properties for which a kernel is compiled. All members are compile-time constants, with one exception: if the
 * model's widths are known only at run time, `half` and the members that te_shape_at changes are variables. */
typedef struct te_kernel_shape {
    te_dtype in, out, weight;  /* number formats of x, y and the parameters */
    /* A row of x has half * in_halves columns, and a row of y has half * out_halves columns. With a gated op, in_halves
     * is 2 in forward and out_halves is 2 in backward; otherwise both are 1 */
    int half, in_halves, out_halves;
    int aligned;               /* 1: `half` is a multiple of eight */
    int norm;                  /* the position of the norm among the ops of the kernel, or -1 if there is no norm */
    te_norm_options norm_options;
    int norm_columns, norm_first; /* the norm normalises norm_columns columns from column norm_first on, or all columns
                                   * if norm_columns is 0 */
    te_dtype norm_in, norm_out; /* number formats of the norm's input and output in forward */
    /* sums: the index of the op whose parameter's gradient is a sum over rows (e.g. a bias), or -1 if there is no such
     * op. This gradient has half * sum_halves columns */
    int sums, sum_halves;
    int sum_params;            /* the number of parameters of the op with index `sums`: 1, 2 (xielu) or 3 (dyt) */
    int backward, draws;
    int reads; /* the index of the first op that reads another tensor of the same shape as x (te_read8), or -1 if no op
                * does */
    /* lanes: the number of lanes in a group; chunks: the number of vectors of eight elements of a row that a lane has;
     * groups: the number of groups in a block, each of which works on one row at a time */
    int lanes, chunks, groups;
    int resident;              /* the number of blocks per multiprocessor that the kernel is compiled for */
    int smem_gamma;            /* the bytes of shared memory that hold gamma, or 0 if gamma is held in registers */
    /* the FP8 format, a te_dtype, in which the result may be stored, or 0 if the result is never stored in FP8 because
     * the model names no recipe */
    int fp8;
    te_scaling scaled;         /* the kind of scales that the kernel computes itself for its FP8 result
                                * (pointwise_quantize.h) */
    /* 1: the step also has a tile kernel, which stores the transpose of the result (pointwise_quantize_transpose.h) */
    int transposes;
    int norm_reads_x;          /* 1: the norm reads x itself, because only forks come before it */
} te_pointwise_shape;
TE_BOTH te_pointwise_shape te_no_shape(void) {
    te_pointwise_shape k;
    memset(&k, 0, sizeof k);
    return k;
}

/* The kind of scales, a te_scaling, that the pointwise kernel `name` computes when it stores its result for the GEMM
 * that follows. TE_SCALING_NONE means that the kernel computes no scales; this is so in backward, where the tile kernel
 * computes the scales instead (pointwise_quantize_transpose.h). A kernel without a norm whose width is known only at
 * run time gives each group of lanes only a part of a row, so it cannot compute a scale for the whole row. */
#define TE__POINTWISE_SCALING(model, name)                                                                        \
    (name##_is_backward || TE_IS_TENSORWISE(model##_recipe)                          ? (int)TE_SCALING_NONE       \
     : TE_IS_ROWWISE(model##_recipe) && name##_norm < 0 && model##_takes_dims ? (int)TE_SCALING_NONE              \
                                                                                    : TE_SCALING_OF(model##_recipe))
/* The index of the norm for the launch macros, or -1 if the kernel has no norm. A kernel without a norm that computes
 * rowwise scales passes 0. It is then launched like a kernel with a norm, because a group of lanes must hold a whole
 * row. */
#define TE__POINTWISE_WHOLE_ROW(name) \
    ((int)name##_norm < 0 && (int)name##_scaled == (int)TE_SCALING_ROWWISE ? 0 : (int)name##_norm)
/* The number of lanes in a group. It is `lanes`, but at least a whole warp in a kernel that computes scales, because
 * such a kernel finds the amax by warp shuffles. */
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
    /* Sixteen lanes share a tile of 1 x 128, and one of them computes the tile's scale. Four rows (two rows for a gated
     * op) are loaded at once, so that several of the sixteen lanes compute scales at the same time, each for another
     * row. */
    if (k.scaled == TE_SCALING_BLOCKWISE_1D && !k.backward) return gated ? 2 : 4;
    return k.sums < 0 ? (gated ? 1 : 2) : gated || k.draws ? 2 : 4;
}
/* The number of blocks that share a row. */
TE_BOTH int te_pointwise_tiles(te_pointwise_shape k) {
    return k.norm >= 0 ? 1 : ((k.half + 7) / 8 + k.lanes * k.chunks - 1) / (k.lanes * k.chunks);
}

/* ---- the shape of the launch ----------------------------------------------------------------------------------- */

/* Macros that compute a kernel's constants; pointwise_macros.h defines enumerators with these values. A vector is eight
 * neighbouring elements of a row. w: the number of columns of a row. norm, sums: the members of te_pointwise_shape with
 * these names, which are -1 if the kernel has no such op. */
#define TE_VECTORS(w) (((w) + 7) / 8)
#if TE_CUDA
/* The number of lanes that share a row in a kernel with a norm. Forward: one warp processes a row of up to 1024
 * columns, and 64 to 1024 threads process a longer row. Backward: one warp processes a row of up to 1024 columns. A
 * lane has one vector of eight elements of a row of up to 4096 columns, because the sums over rows take most of the
 * registers; above 2048 columns, a lane has two vectors if the gradient of a bias is also summed (sums >= 0). */
#define TE_NORM_LANES_forward(w, sums) ((w) <= 1024 ? 32 : (w) <= 2048 ? 64 : (w) <= 4096 ? 128 : (w) <= 12288 ? 256 \
    : (w) <= 32768 ? 512 : 1024)
#define TE_NORM_LANES_backward(w, sums) \
    ((w) <= 1024 ? 32 : (w) <= 2048 ? 256 : (w) <= 4096 ? ((sums) < 0 ? 512 : 256) : (w) <= 12288 ? 512 : 1024)
/* The number of lanes of a group in the low-latency norm kernel: one lane for each vector of a row. This kernel runs in
 * forward if there are at most as many rows as SMs. With so few rows, most of a kernel's time is spent on instruction
 * cache misses, because the GEMM before it has evicted the kernel's code from the L2; with one vector per lane the code
 * is half as long. With 64 rows, a Transformer layer of 4096 columns takes 127.5 us, instead of 130.2 us with the
 * kernel for many rows. With 8192 rows, the low-latency kernel would be slower: 58 us for a LayerNorm, instead of 35
 * us. */
#define TE_LOW_LATENCY_LANES(norm, w, sums, pass) (TE_VECTORS(w) >= 1024 ? 1024 : (TE_VECTORS(w) + 31) / 32 * 32)
/* The number of lanes of a group in a kernel without a norm. If the kernel has no sums over rows either, a block takes
 * a few neighbouring rows, and as many columns of each row as it can. If a block takes rows that lie far apart, or few
 * columns of many rows, the kernel takes up to a tenth longer (8192 x 16384: bias_gelu 210 us instead of 200 us,
 * bias_dropout_add 210 us instead of 195 us). */
#define TE_MAP_LANES(w, sums)                                                                                 \
    ((sums) < 0 && TE_VECTORS(w) % 256 == 0 ? 256 : (sums) < 0 && TE_VECTORS(w) % 128 == 0 ? 128 : (sums) < 0 \
        && TE_VECTORS(w) % 64 == 0 ? 64                                                                       \
     : TE_VECTORS(w) >= 32 ? 32 : TE_VECTORS(w) >= 16 ? 16 : TE_VECTORS(w) >= 8 ? 8 : 4)
#define TE_POINTWISE_LANES(norm, w, sums, pass) ((norm) < 0 ? TE_MAP_LANES(w, sums) : TE_NORM_LANES_##pass(w, sums))
#define TE_POINTWISE_GROUPS(norm, lanes) ((norm) < 0 ? 256 / (lanes) : (lanes) > 32 ? 1 : 4)
#define TE_POINTWISE_CHUNKS(norm, w, lanes) ((norm) < 0 ? 1 : (TE_VECTORS(w) + (lanes) - 1) / (lanes))
/* The number of blocks per SM that a kernel is compiled for, which limits the registers of a thread. TE_NORM_THREADS is
 * the number of threads per SM that keeps the memory busy. The number is reduced if a lane holds many vectors (chunks)
 * of a row and so needs more registers. A kernel that sums gradients is launched with no more blocks than fit on the
 * device at once (te__max_blocks). */
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
 * for each kernel. With a norm, `columns` is the maximum width of a row; without a norm, any width is allowed. For rows
 * whose length is no multiple of eight, a step with a norm has one kernel for up to 1024 columns and one for longer
 * rows. */
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
/* Set the members of a shape that depend on a width known only at run time: on CUDA, the number of lanes of a kernel
 * without a norm; on the host, the number of vectors of the only lane. */
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
/* Round v to the format `to`, as storing v in this format would. */
TE_FN void te__pointwise_round(float v[8], te_dtype to) {
    te_vec8 e;
    te_vec8_of_pairs(&e, v, to);
    te_vec8_floats(v, &e, to);
}
/* Let m be the largest |v| among those of the eight elements that lie inside the row. Return the larger one of
 * amax_bits and the bits of m. */
TE_FN uint32_t te__pointwise_amax(uint32_t amax_bits, const float v[8], te_place at) {
    if (at.aligned) return te_amax_bits8(amax_bits, v);
    TE_UNROLL
    for (int i = 0; i < 8; i++)
        if (i < at.n && te_amax_bits(v[i]) > amax_bits) amax_bits = te_amax_bits(v[i]);
    return amax_bits;
}
/* Multiply eight elements by `scale` and store them in FP8. If the largest |v| before scaling exceeds *amax_bits (the
 * bits of a float), set *amax_bits to its bits. */
TE_FN void te__pointwise_store_fp8(const te_pointwise *c, const float v[8], float scale, te_place at,
                                   const te_pointwise_shape k, uint32_t *amax_bits) {
    float w[8];
    *amax_bits = te__pointwise_amax(*amax_bits, v, at);
    TE_UNROLL for (int i = 0; i < 8; i++) w[i] = te_fp8_scaled(v[i], scale);
    te_store8_fp8(c->fp8.y, te_index(at), w, at.n, at.aligned, (te_dtype)k.fp8);
}
/* The type of a function that stores a kernel's result. Depending on the arguments, it stores the result in the list's
 * dtype, in FP8 under a recipe, or in the list's dtype and computes the amax. *amax_bits holds the bits of the largest
 * |y| so far. */
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
/* Which rows a group of lanes works on, and the registers and shared memory of a lane. sums: the lane's sums,
 * [TE_SUM_SLOTS] [chunks][8]. rows: registers for rows, [5][chunks] (in the backward of a norm: dy and x of the current
 * row, dy and x of the next row, and gamma). smem_gamma: k.smem_gamma bytes of shared memory. */
typedef struct te_pointwise_part {
    int tile; /* index, within a row, of the first vector of eight elements on which the block works */
    int64_t first, step; /* first: the index of the group's first row; step: the distance, in rows, from one row of the
                          * group to its next row */
    float *sums;
    te_vec8 *rows;
    te_smem16 *smem_gamma;
    uint32_t *amax_bits;
} te_pointwise_part;
/* Return the largest |y| after rounding to the format `to`, in which y is stored. Rounding is monotonic, so it suffices
 * to round the maximum instead of each element. The argument and the result are the bits of floats. */
TE_FN uint32_t te_amax_rounded(uint32_t amax_bits, te_dtype to) {
    return amax_bits > 0x7f800000u ? amax_bits : te_amax_bits(te_round_to(te_float_of_bits(amax_bits), to));
}
/* Called at the end of a kernel: if the block's largest |y| exceeds *c->fp8.amax, set *c->fp8.amax to it. Block 0 also
 * stores 1 / scale and the scale to c->fp8.inverse. block_lanes: all lanes of the block. */
TE_FN void te_pointwise_store_amax(const te_pointwise *c, const te_pointwise_shape k, te_block b, te_lanes block_lanes,
                                   uint32_t amax_bits) {
    if (!k.fp8 || !(c->fp8.y || c->fp8.amax)) return;
    if (c->fp8.amax)
        te_amax_atomic_max(c->fp8.amax, c->fp8.y ? amax_bits : te_amax_rounded(amax_bits, k.out), block_lanes);
    if (c->fp8.inverse && b.x == 0 && block_lanes.id == 0) te_scale_save(c->fp8.inverse, *c->fp8.scale);
}

#endif
