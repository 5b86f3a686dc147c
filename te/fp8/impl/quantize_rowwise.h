/* quantize_rowwise.h -- casts a tensor to FP8 with one scale for each row.
 *
 * Do this:
 *     TE_QUANTIZE_ROWWISE(of_bf16, bf16)                          // defines the kernel and of_bf16_run
 *     te_quantize_rowwise q = te__quantize_rowwise_of(rows, cols); // cols a multiple of 16
 *     q.x = x, q.y = y, q.inverse = s;                            // s: [rows], output: 1 / scale
 *     TE_TRY(of_bf16_run(&q, ctx));
 *
 * scale = (largest number of the FP8 format) / (amax of the row), or 1 if the amax is 0, infinite or NaN.
 *
 * A thread block casts a row. Its lanes (threads) first compute the row's amax, and then round the elements. The first
 * 8192 elements of the row stay in registers; the lanes load the rest of the row a second time, from the L1. Lower
 * bound of the time: a copy that reads x once and writes one byte for each element.
 */
#ifndef TE_QUANTIZE_ROWWISE_H
#define TE_QUANTIZE_ROWWISE_H

#include "../../core/dtype.h"  /* te_vec8, te_store8_fp8 */
#include "../../core/lanes.h"  /* te_amax_bits8 */
#include "../../core/target.h" /* te_multi_tensor_find */
#include "../scales.h"         /* te_scale_of_amax_bits, TE_KERNEL_RESIDENT */

typedef struct te_quantize_rowwise {
    void *y;        /* [rows, cols], of dtype `to` */
    float *inverse; /* [rows], 1 / scale; target memory */
    const void *x;  /* [rows, cols] of the dtype that the kernel is made for */
    int64_t rows, cols;
    te_dtype to;
    te_scale_rule rule; /* only its members epsilon, margin and power_of_two are used, because there is no amax
                         * history */
} te_quantize_rowwise;

TE_API te_quantize_rowwise te__quantize_rowwise_of(int64_t rows, int64_t cols) {
    te_quantize_rowwise q;
    memset(&q, 0, sizeof q);
    q.rows = rows, q.cols = cols, q.to = TE_e4m3, q.rule = te__scale_rule_current();
    return q;
}

enum {
    TE_ROWWISE_LANES = TE_CUDA ? 256 : 1,
    TE_ROWWISE_VECTORS = 4 /* the number of vectors of eight elements that a lane holds in registers */
};

/* Cast the eight elements x and store them to the elements at to at + 7 of q->y. `from` and `to` are the dtypes of x
 * and y, as compile-time constants. */
TE_FN void te__rowwise_store(const te_quantize_rowwise *q, const te_vec8 *x, int64_t at, float scale,
                             const te_dtype from, const te_dtype to) {
    float v[8];
    te_vec8_floats(v, x, from);
    TE_UNROLL for (int k = 0; k < 8; k++) v[k] = te_fp8_scaled(v[k], scale);
    te_store8_fp8(q->y, at, v, 8, 1, to);
}
/* Cast row b.x. `from` and `to` are the dtypes of x and y, as compile-time constants. */
TE_FN void te__rowwise_row(const te_quantize_rowwise *q, te_block b, const te_dtype from, const te_dtype to) {
    int group;
    te_lanes g = te_lanes_here(TE_ROWWISE_LANES, &group);
    const int64_t row = (int64_t)b.x * q->cols, step = 8 * g.count, rest = TE_ROWWISE_VECTORS * step + 8 * g.id;
    te_vec8 held[TE_ROWWISE_VECTORS], e;
    uint32_t bits = 0;
    float v[8];
    TE_UNROLL for (int h = 0; h < TE_ROWWISE_VECTORS; h++) {
        const int64_t col = h * step + 8 * g.id;
        memset(&held[h], 0, sizeof held[h]);
        if (col < q->cols) te_vec8_load(&held[h], q->x, row + col, 8, 1, from);
    }
    TE_UNROLL for (int h = 0; h < TE_ROWWISE_VECTORS; h++)
        te_vec8_floats(v, &held[h], from), bits = te_amax_bits8(bits, v);
    for (int64_t col = rest; col < q->cols; col += step) {
        te_vec8_load(&e, q->x, row + col, 8, 1, from);
        te_vec8_floats(v, &e, from), bits = te_amax_bits8(bits, v);
    }
    /* te_lanes_max ignores NaNs, so replace a NaN by infinity: a row with either of the two has the scale 1 */
    float amax = te_float_of_bits(bits < 0x7f800000u ? bits : 0x7f800000u);
    te_lanes_max(&amax, &g);
    const float scale = te_scale_of_amax_bits(te_bits_of_float(amax), te_fp8_max(to), &q->rule);
    if (g.id == 0) q->inverse[b.x] = 1.0f / scale;
    TE_UNROLL for (int h = 0; h < TE_ROWWISE_VECTORS; h++) {
        const int64_t col = h * step + 8 * g.id;
        if (col < q->cols) te__rowwise_store(q, &held[h], row + col, scale, from, to);
    }
    for (int64_t col = rest; col < q->cols; col += step) {
        te_vec8_load(&e, q->x, row + col, 8, 1, from);
        te__rowwise_store(q, &e, row + col, scale, from, to);
    }
}
TE_FN void te_rowwise_body(const te_quantize_rowwise *q, te_block b, const te_dtype from) {
    if (q->to == TE_e4m3) te__rowwise_row(q, b, from, TE_e4m3);
    else te__rowwise_row(q, b, from, TE_e5m2);
}

TE_API te_status te__rowwise_check(const te_quantize_rowwise *q, const char *who, te_context *ctx) {
    TE_TRY(te__check_target(ctx, who));
    TE_REQUIRE(q, ctx, TE_ERROR_NULL, "%s: what is to be cast is null", who);
    TE_REQUIRE(te_is_fp8(q->to), ctx, TE_ERROR_DTYPE, "%s: to %s; it must be e4m3 or e5m2", who, te_dtype_name(q->to));
    TE_REQUIRE(q->rows >= 0 && q->cols >= 0 && q->cols % 16 == 0, ctx, TE_ERROR_SHAPE,
               "%s: a tensor of %lld x %lld; rows have multiples of 16 columns", who, (long long)q->rows,
               (long long)q->cols);
    TE_REQUIRE(q->rows <= INT32_MAX, ctx, TE_ERROR_OVERFLOW, "%s: %lld rows", who, (long long)q->rows);
    TE_TRY(te__scale_rule_check(&q->rule, who, ctx));
    TE_REQUIRE((q->x && q->y && q->inverse) || !q->rows || !q->cols, ctx, TE_ERROR_NULL, "%s: a pointer is null", who);
    TE_REQUIRE(((uintptr_t)q->x | (uintptr_t)q->y | (uintptr_t)q->inverse) % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: a tensor or its scales do not start at a multiple of %d bytes", who, (int)TE_ACCESS);
    return TE_OK;
}

/* The number of thread blocks that must fit on an SM; the compiler limits the registers of a thread accordingly. For an
 * x in f32, which takes more registers, the number is smaller */
#define TE__ROWWISE_RESIDENT(from) (TE_##from == TE_f32 ? 3 : 4)

/* Define the kernel for tensors of dtype `from`, and te_status name_run(const te_quantize_rowwise *q, te_context
 * *ctx). */
#define TE_QUANTIZE_ROWWISE(name, from)                                                                            \
    TE_KERNEL_RESIDENT(name##_kernel, TE_ROWWISE_LANES, TE__ROWWISE_RESIDENT(from), te_quantize_rowwise,           \
                       te_rowwise_body(te_args, te_at, TE_##from))                                                 \
    TE_API te_status name##_run(const te_quantize_rowwise *q, te_context *ctx) {                                   \
        TE_TRY(te__rowwise_check(q, #name, ctx));                                                                  \
        return q->rows && q->cols ? name##_kernel_launch(ctx, te__grid_of(q->rows, 1), q) : TE_OK;                  \
    }

/* Define te_status name_multi_tensor_run(const te_multi_tensor *t, te_context *ctx), which casts all tensors of a table
 * to e4m3 in one launch. The table has a te_quantize_rowwise for each tensor. A chunk, the work of one thread block, is
 * a row of a tensor. */
#define TE_QUANTIZE_ROWWISE_MULTI_TENSOR(name, from)                                                               \
    TE_FN void name##_multi_tensor_body(const te_multi_tensor *t, te_block b) {                                    \
        const te_quantize_rowwise q = ((const te_quantize_rowwise *)t->tensor)[te_multi_tensor_find(t, &b)];       \
        te__rowwise_row(&q, b, TE_##from, TE_e4m3);                                                                \
    }                                                                                                              \
    TE_KERNEL_RESIDENT(name##_multi_tensor, TE_ROWWISE_LANES, TE__ROWWISE_RESIDENT(from), te_multi_tensor,         \
                       name##_multi_tensor_body(te_args, te_at))                                                   \
    TE_API te_status name##_multi_tensor_run(const te_multi_tensor *t, te_context *ctx)                            \
        { return t->chunks ? name##_multi_tensor_launch(ctx, te__grid_of(t->chunks, 1), t) : TE_OK; }

#endif
