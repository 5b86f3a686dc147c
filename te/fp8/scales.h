/* scales.h -- the ways to scale a matrix in FP8, the layouts of the scales, and te_scales: the scales of all FP8
 * tensors of a model, which are updated by one kernel.
 *
 * Do this:
 *     const size_t bytes = te_scales_bytes(count, 1024);
 *     TE_TRY(te_allocate(ctx, &memory, bytes));
 *     TE_TRY(te_scales_init(&s, memory, bytes, formats, count, 1024, ctx));
 *     ... casts of tensor i read s.scale[i] and update s.amax[i]; GEMMs read te_scales_inverse(&s, i) ...
 *     TE_TRY(te_scales_update(&s, 0, count, &rule, ctx));        // once per optimizer step
 *
 * Delayed scaling (Micikevicius et al. 2022): the scale is computed from the amax of earlier optimizer steps, so the
 * kernel that produces a tensor can cast it at once. scale = format_max / amax / 2^margin, where amax is either the
 * largest or the most recent entry of the history. If the amax is 0, infinite or NaN, the scale stays unchanged. The
 * history stores 0 for an infinite or NaN amax, because otherwise one bad step would affect the scale as long as its
 * entry is in the history.
 *
 * Current scaling: the history has length 1. The scale of a tensor is updated after a kernel has computed the tensor's
 * amax and before another kernel casts the tensor.
 *
 * Several ranks: call te_scales_reduce before te_scales_update. It sets s.amax to the maximum over the ranks, so that
 * all ranks use the same scales.
 */
#ifndef TE_SCALES_H
#define TE_SCALES_H

#include <float.h> /* FLT_MAX */

#include "../core/base.h"       /* te_ceil_div, TE_BOTH */
#include "../core/rank_group.h" /* te_group_all_gather */
#include "../core/target.h"     /* TE_KERNEL */

/* ---- how a matrix is scaled -------------------------------------------------------------------------------------- */

/* In the declarations below, `cols` of a matrix [rows, cols] is the dimension over which a GEMM sums (the GEMM's k). An
 * FP8 matrix stores each number multiplied by a scale. The array of scales holds the inverses, 1 / scale, because GEMMs
 * multiply by the inverses. The layouts of this array are those of cuBLASLt for
 * CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, _VEC128_32F and _BLK128x128_32F ("Scaling factors layouts").
 *
 * Do this:
 *     float *inverse = ...;        // te_scaling_count(TE_SCALING_BLOCKWISE_1D, rows, cols) floats of target memory
 *     inverse[te_blockwise_1d_scale_at(rows, cols, row, col / TE_FP8_BLOCK)] = 1 / scale;
 */

enum { TE_FP8_BLOCK = 128 /* a 1D block has 1 x 128 elements, a 2D block 128 x 128 */ };

typedef enum te_scaling {
    TE_SCALING_NONE,         /* the matrix is not in FP8 */
    TE_SCALING_TENSORWISE,   /* one scale for the whole matrix */
    TE_SCALING_ROWWISE,      /* one scale for each row: [rows] */
    TE_SCALING_BLOCKWISE_1D, /* one scale for each 1 x 128 elements of a row: [ceil(cols / 128), rows]; see
                                te_blockwise_1d_scale_at */
    TE_SCALING_BLOCKWISE_2D, /* one scale for each 128 x 128 elements: [ceil(rows / 128), ceil(cols / 128) rounded up to
                                a multiple of 4] */
    TE_SCALING_COUNT
} te_scaling;

TE_API const char *te_scaling_name(te_scaling s) {
    static const char *const names[] = {"none", "tensor", "row", "1x128", "128x128"};
    return (unsigned)s < (unsigned)TE_SCALING_COUNT ? names[s] : "unknown scaling";
}

/* Return the number of blocks of TE_FP8_BLOCK rows or columns into which n rows or columns are divided. */
TE_BOTH int64_t te_fp8_blocks(int64_t n) { return te_ceil_div(n, TE_FP8_BLOCK); }
/* Return `rows` rounded down to a multiple of four. cuBLASLt reads 1D scales only for a multiple of four rows. So there
 * are two arrays of scales, one behind the other: the first array for the rounded number of rows, and the second array,
 * which a second GEMM reads, for the remaining 0 to 3 rows. */
TE_BOTH int64_t te_blockwise_1d_aligned_rows(int64_t rows) { return rows / 4 * 4; }
/* Return the index, in the scales of a matrix [rows, cols], of the scale for columns 128 * block to 128 * block + 127
 * of row `row`. */
TE_BOTH int64_t te_blockwise_1d_scale_at(int64_t rows, int64_t cols, int64_t row, int64_t block) {
    const int64_t aligned = te_blockwise_1d_aligned_rows(rows);
    const int64_t rest = te_fp8_blocks(cols) * aligned + block * (rows - aligned) - aligned;
    return (row < aligned ? block * aligned : rest) + row;
}
/* Return the pitch of the array of scales for blocks of 128 x 128 elements: the distance, in scales, from one row of
 * blocks to the next. */
TE_BOTH int64_t te_blockwise_2d_scale_pitch(int64_t cols) { return te_round_up(te_fp8_blocks(cols), 4); }
/* Return the index, in the array of scales for blocks of 128 x 128 elements, of the scale of one block. row, col: the
 * block's position, counted in blocks. */
TE_BOTH int64_t te_blockwise_2d_scale_at(int64_t cols, int64_t row, int64_t col) {
    return row * te_blockwise_2d_scale_pitch(cols) + col;
}

/* Returns the number of floats in the array of scales of a matrix [rows, cols]. */
TE_BOTH int64_t te_scaling_count(te_scaling s, int64_t rows, int64_t cols) {
    switch (s) {
    case TE_SCALING_TENSORWISE: return 1;
    case TE_SCALING_ROWWISE: return rows;
    case TE_SCALING_BLOCKWISE_1D: return te_fp8_blocks(cols) * rows;
    case TE_SCALING_BLOCKWISE_2D: return te_fp8_blocks(rows) * te_blockwise_2d_scale_pitch(cols);
    default: return 0;
    }
}
/* Returns the index, in the array of scales of a matrix [rows, cols], of the scale of element (row, col). */
TE_BOTH int64_t te_scale_at(te_scaling s, int64_t rows, int64_t cols, int64_t row, int64_t col) {
    switch (s) {
    case TE_SCALING_ROWWISE: return row;
    case TE_SCALING_BLOCKWISE_1D: return te_blockwise_1d_scale_at(rows, cols, row, col / TE_FP8_BLOCK);
    case TE_SCALING_BLOCKWISE_2D: return te_blockwise_2d_scale_at(cols, row / TE_FP8_BLOCK, col / TE_FP8_BLOCK);
    default: return 0;
    }
}

/* ---- the scales of a model --------------------------------------------------------------------------------------- */

typedef struct te_scales {
    float *amax;       /* [count], the largest |x| of each tensor x in this step so far; te_scales_update resets it to
                        * 0 */
    float *scale;      /* [count], the factor by which each tensor is multiplied before it is rounded; initially 1 */
    float *inverse;    /* [count, TE_SCALES_INVERSE_STRIDE], 1 / scale, by which GEMMs multiply */
    float *format_max; /* [count], the largest number that the tensor's format represents */
    float *history;    /* [count, length], for each tensor a ring buffer of its amax in earlier steps; initially 0 */
    int32_t *at;       /* [count], the index of each ring buffer's next entry to write */
    int count, length;
    void *memory; /* the memory of all arrays above, which a checkpoint saves */
    size_t bytes;
} te_scales;

/* The amax from which a scale is computed: the largest amax in the history, or the most recent amax. */
typedef enum te_amax_algorithm { TE_AMAX_MAX, TE_AMAX_MOST_RECENT } te_amax_algorithm;

typedef struct te_scale_rule {
    te_amax_algorithm amax;
    int margin;       /* the scale is divided by 2^margin, as headroom above amax */
    float epsilon;    /* an amax below epsilon is replaced by epsilon */
    int power_of_two; /* 1: the scale is rounded down to a power of two */
} te_scale_rule;

/* Return the rule of current scaling: the scale is computed from the most recent amax, without a margin. */
TE_API te_scale_rule te__scale_rule_current(void) {
    const te_scale_rule r = {TE_AMAX_MOST_RECENT, 0, 0.0f, 0};
    return r;
}

enum {
    TE_SCALES_MAX_HISTORY = 1024,
    TE_SCALES_MAX_MARGIN = 64,
    TE_SCALES_INVERSE_STRIDE = TE_ACCESS / 4 /* in floats; these are 16 bytes, because cuBLASLt needs each scale at a
                                              * multiple of 16 bytes */
};

/* Return the address of 1 / scale of tensor i, for GEMMs. */
TE_API const float *te_scales_inverse(const te_scales *s, int i) {
    return s->inverse + (int64_t)i * TE_SCALES_INVERSE_STRIDE;
}

TE_API size_t te__scales_part(int64_t floats) { return (size_t)te_round_up(floats * 4, TE_ALIGN); }
/* Return the bytes of target memory that te_scales_init needs for `count` tensors. length: the number of entries of
 * each tensor's amax history. */
TE_API size_t te_scales_bytes(int count, int length) {
    return 4 * te__scales_part(count) + te__scales_part((int64_t)count * TE_SCALES_INVERSE_STRIDE) +
           te__scales_part((int64_t)count * length);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* The bounds of a scale. Between these bounds, the scale and its inverse are normal (not subnormal) numbers. */
#define TE__SCALE_MAX 8.507059173023462e37f /* 2^126 */
#define TE__SCALE_MIN 1.1754943508222875e-38f

/* Return the scale for an amax. amax or rule->epsilon must be above 0. format_max: the largest number of the FP8
 * format. */
TE_BOTH float te_scale_of_amax(float amax, float format_max, const te_scale_rule *rule) {
    const float a = amax < rule->epsilon ? rule->epsilon : amax;
    float s = format_max / a * te_float_of_bits((uint32_t)(127 - rule->margin) << 23);
    s = s > TE__SCALE_MAX ? TE__SCALE_MAX : s < TE__SCALE_MIN ? TE__SCALE_MIN : s;
    return rule->power_of_two ? te_float_of_bits(te_bits_of_float(s) & 0xff800000u) : s;
}

/* Return the scale for an amax, or 1 if the amax is 0, infinite or NaN. amax: the bits of a float. */
TE_BOTH float te_scale_of_amax_bits(uint32_t amax, float format_max, const te_scale_rule *rule) {
    return amax > 0 && amax < 0x7f800000u ? te_scale_of_amax(te_float_of_bits(amax), format_max, rule) : 1.0f;
}

/* Save the scale with which a tensor was cast: saved[0] = 1 / scale, saved[1] = scale. A kernel that reads the tensor
 * needs the saved scale, because it may run after the scale was updated. */
TE_BOTH void te_scale_save(float *saved, float scale) { saved[0] = 1.0f / scale, saved[1] = scale; }

typedef struct te_scales_args {
    te_scales s;
    te_scale_rule rule;
    int first, count;
} te_scales_args;
enum { TE_SCALES_LANES = TE_CUDA ? 32 : 1, TE_SCALES_THREADS = TE_CUDA ? 256 : 1,
       TE_SCALES_GROUPS = TE_SCALES_THREADS / TE_SCALES_LANES };

/* Update the scale and the amax history of each tensor. A group of lanes (threads) works on one tensor. Memory traffic:
 * with TE_AMAX_MAX, four bytes are read for each entry of the history; with TE_AMAX_MOST_RECENT, the history is not
 * read. */
TE_FN void te_scales_update_body(const te_scales_args *a, te_block b) {
    int group;
    te_lanes g = te_lanes_here(TE_SCALES_LANES, &group);
    const int j = b.x * TE_SCALES_GROUPS + group, i = a->first + j, length = a->s.length;
    if (j >= a->count) return;
    const float now = a->s.amax[i], entry = now <= FLT_MAX ? now : 0.0f; /* entry: 0 if amax is infinite or NaN */
    const int at = a->s.at[i];
    float *history = a->s.history + (int64_t)i * length, largest = entry;
    for (int h = g.id; a->rule.amax == TE_AMAX_MAX && h < length; h += g.count)
        if (h != at) largest = history[h] > largest ? history[h] : largest;
    te_lanes_max(&largest, &g);
    if (g.id != 0) return;
    history[at] = entry, a->s.at[i] = at + 1 < length ? at + 1 : 0, a->s.amax[i] = 0.0f;
    if (!(now <= FLT_MAX) || !(largest > 0.0f || a->rule.epsilon > 0.0f)) return;
    a->s.scale[i] = te_scale_of_amax(largest, a->s.format_max[i], &a->rule);
    a->s.inverse[(int64_t)i * TE_SCALES_INVERSE_STRIDE] = 1.0f / a->s.scale[i];
}
TE_KERNEL_IF_USED(te__scales_update, TE_SCALES_THREADS, 1, te_scales_args, te_scales_update_body(te_args, te_at))

typedef struct te_scales_reduce_args {
    te_scales s;
    const float *all; /* [ranks, count], the amax of each tensor on each rank */
    int first, count, ranks;
} te_scales_reduce_args;
/* Set the amax of each tensor to its maximum over the ranks. If the amax is infinite or NaN on any rank, the result is
 * infinite on all ranks, so that the next update leaves the scale unchanged on all ranks. Memory traffic: four bytes
 * are read for each rank and tensor. */
TE_FN void te_scales_reduce_body(const te_scales_reduce_args *a, te_block b) {
    int group;
    te_lanes g = te_lanes_here(TE_SCALES_LANES, &group);
    const int j = b.x * TE_SCALES_GROUPS + group;
    float largest = 0.0f;
    if (j >= a->count) return;
    for (int r = g.id; r < a->ranks; r += g.count) {
        const float v = a->all[(int64_t)r * a->count + j];
        largest = v <= FLT_MAX ? (v > largest ? v : largest) : INFINITY;
        if (!(largest <= FLT_MAX)) break;
    }
    te_lanes_max(&largest, &g);
    if (g.id == 0) a->s.amax[a->first + j] = largest;
}
TE_KERNEL_IF_USED(te__scales_reduce, TE_SCALES_THREADS, 1, te_scales_reduce_args, te_scales_reduce_body(te_args, te_at))
/* Set the amax of each tensor to the maximum of the current amax and all entries of the tensor's history, and set these
 * entries to 0. Memory traffic: four bytes are read and four bytes written for each entry of the history. */
TE_FN void te_scales_amax_from_history_body(const te_scales_args *a, te_block b) {
    int group;
    te_lanes g = te_lanes_here(TE_SCALES_LANES, &group);
    const int j = b.x * TE_SCALES_GROUPS + group, i = a->first + j, length = a->s.length;
    if (j >= a->count) return;
    float *history = a->s.history + (int64_t)i * length, largest = 0.0f;
    const float now = a->s.amax[i];
    for (int h = g.id; h < length; h += g.count) {
        largest = history[h] > largest ? history[h] : largest;
        history[h] = 0.0f;
    }
    te_lanes_max(&largest, &g);
    if (g.id == 0) a->s.at[i] = 0, a->s.amax[i] = largest > now ? largest : now;
}
TE_KERNEL_IF_USED(te__scales_amax_from_history, TE_SCALES_THREADS, 1, te_scales_args,
                  te_scales_amax_from_history_body(te_args, te_at))

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Set the pointers of *s to the parts of `memory`, which te_scales_init has initialised, or which was loaded from a
 * checkpoint. */
TE_API te_status te_scales_bind(te_scales *s, void *memory, size_t bytes, int count, int length, te_context *ctx) {
    TE_REQUIRE(s && memory, ctx, TE_ERROR_NULL, "te_scales_bind: a pointer is null");
    TE_REQUIRE(count >= 0 && length >= 1 && length <= TE_SCALES_MAX_HISTORY, ctx, TE_ERROR_SHAPE,
               "te_scales_bind: %d tensors with a history of %d; it must be 1 to %d", count, length,
               (int)TE_SCALES_MAX_HISTORY);
    TE_REQUIRE((uintptr_t)memory % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
               "te_scales_bind: the memory does not start at a multiple of %d bytes", (int)TE_ACCESS);
    TE_REQUIRE(bytes >= te_scales_bytes(count, length), ctx, TE_ERROR_MEMORY, "te_scales_bind: %zu bytes of %zu", bytes,
               te_scales_bytes(count, length));
    const size_t part = te__scales_part(count) / 4;
    s->amax = (float *)memory, s->scale = s->amax + part, s->format_max = s->scale + part;
    s->inverse = s->format_max + 2 * part;
    s->at = (int32_t *)(void *)(s->format_max + part);
    s->history = s->inverse + te__scales_part((int64_t)count * TE_SCALES_INVERSE_STRIDE) / 4;
    s->count = count, s->length = length, s->memory = memory, s->bytes = te_scales_bytes(count, length);
    return TE_OK;
}
/* Return whether `state`, in host memory, has valid contents for s->memory: indices within the histories, finite
 * numbers, scales above 0, and FP8 formats. A checkpoint of unknown origin may contain anything, so loading needs this
 * check. */
TE_API int te__scales_are_valid(const te_scales *s, const void *state) {
    te_scales copy;
    if (te_scales_bind(&copy, (void *)(uintptr_t)state, s->bytes, s->count, s->length, 0) != TE_OK) return 0;
    for (int i = 0; i < s->count; i++) {
        const float scale = copy.scale[i], inverse = copy.inverse[(int64_t)i * TE_SCALES_INVERSE_STRIDE];
        if (copy.at[i] < 0 || copy.at[i] >= s->length) return 0;
        if (copy.format_max[i] != TE_E4M3_MAX && copy.format_max[i] != TE_E5M2_MAX) return 0;
        if (!(scale > 0.0f && scale <= FLT_MAX && inverse > 0.0f && inverse <= FLT_MAX)) return 0;
        if (!(copy.amax[i] >= 0.0f)) return 0;
        for (int h = 0; h < s->length; h++) {
            const float entry = copy.history[(int64_t)i * s->length + h];
            if (!(entry >= 0.0f && entry <= FLT_MAX)) return 0;
        }
    }
    return 1;
}
/* Bind *s to `memory` (te_scales_bind), set all scales to 1, and empty all histories. formats: [count], host memory,
 * each e4m3 or e5m2. Waits for the stream. */
TE_API te_status te_scales_init(te_scales *s, void *memory, size_t bytes, const te_dtype *formats, int count,
                                int length, te_context *ctx) {
    TE_TRY(te__check_target(ctx, "te_scales_init"));
    TE_TRY(te_scales_bind(s, memory, bytes, count, length, ctx));
    TE_REQUIRE(formats || !count, ctx, TE_ERROR_NULL, "te_scales_init: the formats are null");
    for (int i = 0; i < count; i++) TE_REQUIRE(te_is_fp8(formats[i]), ctx, TE_ERROR_DTYPE,
        "te_scales_init: tensor %d is %s; it must be e4m3 or e5m2", i, te_dtype_name(formats[i]));
    const size_t part = te__scales_part(count) / 4;
    float *start = (float *)calloc(s->bytes ? s->bytes : 1, 1); /* the initial state, in host memory */
    TE_REQUIRE(start, ctx, TE_ERROR_MEMORY, "te_scales_init: cannot allocate %zu bytes", s->bytes);
    for (int i = 0; i < count; i++) {
        const size_t at = (size_t)i;
        /* the tensor's scale and its inverse */
        start[part + at] = start[4 * part + at * TE_SCALES_INVERSE_STRIDE] = 1.0f;
        start[2 * part + at] = te_fp8_max(formats[i]);
    }
    te_status status = te_copy(ctx, memory, start, s->bytes);
    if (status == TE_OK) status = te_synchronize(ctx);
    free(start);
    return status;
}
/* Change the FP8 formats of the tensors. Each scale is multiplied by (largest number of the new format) / (largest
 * number of the old format). formats: the new formats, [count], host memory. Waits for the stream. Returns
 * TE_ERROR_FORMAT, and changes nothing, if an old format, which is read from s->format_max, is not an FP8 format. */
TE_API te_status te__scales_reformat(const te_scales *s, const te_dtype *formats, te_context *ctx) {
    const size_t part = te__scales_part(s->count) / 4, bytes = (size_t)((char *)s->history - (char *)s->memory);
    /* a copy of the arrays amax, scale, format_max, at and inverse, which lie in front of the history */
    float *all = (float *)malloc(bytes + 1);
    TE_REQUIRE(all, ctx, TE_ERROR_MEMORY, "te__scales_reformat: cannot allocate %zu bytes", bytes);
    int known = 1;
    te_status status = te_copy(ctx, all, s->memory, bytes);
    if (status == TE_OK) status = te_synchronize(ctx);
    for (size_t i = 0; status == TE_OK && known && i < (size_t)s->count; i++) {
        /* the largest numbers of the two formats, 448 and 57344, have the ratio 2^7, so the new scale is exact */
        const float max = te_fp8_max(formats[i]), old = all[2 * part + i], ratio = max / old;
        known = old == TE_E4M3_MAX || old == TE_E5M2_MAX;
        all[2 * part + i] = max, all[part + i] *= ratio;
        all[4 * part + i * TE_SCALES_INVERSE_STRIDE] /= ratio;
    }
    if (status == TE_OK && known) status = te_copy(ctx, s->memory, all, bytes);
    if (status == TE_OK) status = te_synchronize(ctx);
    free(all);
    TE_TRY(status);
    TE_REQUIRE(known, ctx, TE_ERROR_FORMAT, "te__scales_reformat: the state is of no FP8 format");
    return TE_OK;
}
TE_API te_status te__scale_rule_check(const te_scale_rule *rule, const char *who, te_context *ctx) {
    TE_REQUIRE(rule->amax == TE_AMAX_MAX || rule->amax == TE_AMAX_MOST_RECENT, ctx, TE_ERROR_VALUE,
               "%s: a rule of amax %d", who, (int)rule->amax);
    TE_REQUIRE(rule->margin >= -TE_SCALES_MAX_MARGIN && rule->margin <= TE_SCALES_MAX_MARGIN, ctx, TE_ERROR_VALUE,
               "%s: a rule with a margin of %d; it must be %d to %d", who, rule->margin, -(int)TE_SCALES_MAX_MARGIN,
               (int)TE_SCALES_MAX_MARGIN);
    TE_REQUIRE(rule->epsilon >= 0.0f && rule->epsilon <= FLT_MAX, ctx, TE_ERROR_VALUE,
               "%s: a rule with an epsilon of %g", who, (double)rule->epsilon);
    return TE_OK;
}
/* Update the tensors first to first + count - 1 in one launch: for each tensor, store its amax in the history, compute
 * its scale, and reset its amax to 0. Errors: TE_ERROR_NULL, TE_ERROR_SHAPE, TE_ERROR_VALUE (the rule is not valid). */
TE_IF_USED TE_API te_status te_scales_update(const te_scales *s, int first, int count, const te_scale_rule *rule,
                                             te_context *ctx) {
    te_scales_args a;
    TE_TRY(te__check_target(ctx, "te_scales_update"));
    TE_REQUIRE(s && rule && s->memory, ctx, TE_ERROR_NULL, "te_scales_update: a pointer is null");
    TE_REQUIRE(first >= 0 && count >= 0 && first <= s->count - count, ctx, TE_ERROR_SHAPE,
               "te_scales_update: %d tensors from %d on, of %d", count, first, s->count);
    TE_TRY(te__scale_rule_check(rule, "te_scales_update", ctx));
    memset(&a, 0, sizeof a);
    a.s = *s, a.rule = *rule, a.first = first, a.count = count;
    return count ? te__scales_update_launch(ctx, te__grid_of(te_ceil_div(count, TE_SCALES_GROUPS), 1), &a) : TE_OK;
}

/* Set the amax of each of the tensors first to first + count - 1 to its maximum over the ranks of group g, with one
 * collective for all tensors. gathered: workspace, [ranks of the group, count], in target memory. */
TE_IF_USED TE_API te_status te_scales_reduce(const te_scales *s, float *gathered, int first, int count,
                                             const te_group *g, te_context *ctx) {
    te_scales_reduce_args a;
    TE_TRY(te__check_target(ctx, "te_scales_reduce"));
    TE_REQUIRE(s && s->memory && g && (gathered || !count), ctx, TE_ERROR_NULL, "te_scales_reduce: a pointer is null");
    TE_REQUIRE(first >= 0 && count >= 0 && first <= s->count - count, ctx, TE_ERROR_SHAPE,
               "te_scales_reduce: %d tensors from %d on, of %d", count, first, s->count);
    if (g->size == 1 || !count) return TE_OK;
    memset(&a, 0, sizeof a);
    a.s = *s, a.all = gathered, a.first = first, a.count = count, a.ranks = g->size;
    TE_TRY(te_group_all_gather(g, gathered, s->amax + first, count, TE_f32, ctx));
    return te__scales_reduce_launch(ctx, te__grid_of(te_ceil_div(count, TE_SCALES_GROUPS), 1), &a);
}
/* For each of the tensors first to first + count - 1, move the amax from the history back to s->amax: set s->amax to
 * the maximum of its current value and all entries of the history, and set these entries to 0. fp8_delayed calls this
 * function in its first step, which updates each scale from the current amax and so moves each amax to the history.
 * te_scales_reduce needs the amaxes in s->amax, because it exchanges only this array between the ranks. */
TE_IF_USED TE_API te_status te__scales_reduce_amax(const te_scales *s, int first, int count, te_context *ctx) {
    te_scales_args a;
    memset(&a, 0, sizeof a);
    a.s = *s, a.first = first, a.count = count;
    if (!count) return TE_OK;
    return te__scales_amax_from_history_launch(ctx, te__grid_of(te_ceil_div(count, TE_SCALES_GROUPS), 1), &a);
}

#endif
