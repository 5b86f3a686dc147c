/* quantize_rows.h -- a tensor as FP8 with a scale for each row.
 *
 * Do this:
 *     TE_QUANTIZE_ROWS(of_bf16, bf16)                       // the kernel, and of_bf16_run
 *     te_quantize_rows q = te_quantize_rows_of(rows, cols); // cols a multiple of 16
 *     q.x = x, q.y = y, q.inverse = s;                      // s: [rows], 1 / scale
 *     TE_TRY(of_bf16_run(&q, ctx));
 *
 * scale = most / amax of the row, most the largest number of the format; 1 where amax is 0, infinite or no number.
 *
 * A block has a row. Its lanes keep what they load first in registers, up to 8192 elements of a row, and load the rest
 * again, which then lies in the L1. Bytes an element: that of x and one for y; the floor is a copy of as many.
 */
#ifndef TE_QUANTIZE_ROWS_H
#define TE_QUANTIZE_ROWS_H

#include "../core/amax.h"    /* te_amax_bits8 */
#include "../core/fp8_vec.h" /* te_vec8, te_store8_fp8 */
#include "../core/table.h"   /* te_table_find */
#include "scales.h"          /* te_scale_of_own, TE_KERNEL_RESIDENT */

typedef struct te_quantize_rows {
    void *y;        /* [rows, cols] of `to` */
    float *inverse; /* [rows], 1 / scale; target memory */
    const void *x;  /* [rows, cols] of the dtype that the kernel is made for */
    int64_t rows, cols;
    te_dtype to;
    te_scale_rule rule; /* epsilon, power_of_two */
} te_quantize_rows;

TE_API te_quantize_rows te_quantize_rows_of(int64_t rows, int64_t cols) {
    te_quantize_rows q;
    memset(&q, 0, sizeof q);
    q.rows = rows, q.cols = cols, q.to = TE_e4m3, q.rule = te_scale_rule_current();
    return q;
}

enum {
    TE_ROWS_LANES = TE_CUDA ? 256 : 1,
    TE_ROWS_HELD = 4 /* vectors of eight elements that a lane keeps */
};

TE_FN void te__rows_store(const te_quantize_rows *q, const te_vec8 *x, int64_t at, float scale, const te_dtype from,
                          const te_dtype to) {
    float v[8];
    te_vec8_floats(v, x, from);
    TE_UNROLL for (int k = 0; k < 8; k++) v[k] *= scale;
    te_store8_fp8(q->y, at, v, 8, 1, to);
}
TE_FN void te__rows_row(const te_quantize_rows *q, te_block b, const te_dtype from, const te_dtype to) {
    int group;
    te_lanes g = te_lanes_here(TE_ROWS_LANES, &group);
    const int64_t row = (int64_t)b.x * q->cols, step = 8 * g.count, rest = TE_ROWS_HELD * step + 8 * g.id;
    te_vec8 held[TE_ROWS_HELD], e;
    uint32_t most = 0;
    float v[8];
    TE_UNROLL for (int h = 0; h < TE_ROWS_HELD; h++) {
        const int64_t col = h * step + 8 * g.id;
        memset(&held[h], 0, sizeof held[h]);
        if (col < q->cols) te_vec8_load(&held[h], q->x, row + col, 8, 1, from);
    }
    TE_UNROLL for (int h = 0; h < TE_ROWS_HELD; h++) te_vec8_floats(v, &held[h], from), most = te_amax_bits8(most, v);
    for (int64_t col = rest; col < q->cols; col += step) {
        te_vec8_load(&e, q->x, row + col, 8, 1, from);
        te_vec8_floats(v, &e, from), most = te_amax_bits8(most, v);
    }
    float amax = te_float_of_bits(most < 0x7f800000u ? most : 0x7f800000u); /* the lanes' maximum leaves NaNs out */
    te_lanes_max(&amax, &g);
    const float scale = te_scale_of_own(te_bits_of_float(amax), te_fp8_most(to), &q->rule);
    if (g.id == 0) q->inverse[b.x] = 1.0f / scale;
    TE_UNROLL for (int h = 0; h < TE_ROWS_HELD; h++) {
        const int64_t col = h * step + 8 * g.id;
        if (col < q->cols) te__rows_store(q, &held[h], row + col, scale, from, to);
    }
    for (int64_t col = rest; col < q->cols; col += step) {
        te_vec8_load(&e, q->x, row + col, 8, 1, from);
        te__rows_store(q, &e, row + col, scale, from, to);
    }
}
TE_FN void te_rows_body(const te_quantize_rows *q, te_block b, const te_dtype from) {
    if (q->to == TE_e4m3) te__rows_row(q, b, from, TE_e4m3);
    else te__rows_row(q, b, from, TE_e5m2);
}

TE_API te_status te__rows_check(const te_quantize_rows *q, const char *who, te_context *ctx) {
    TE_TRY(te_check_target(ctx, who));
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
/* The kernel for tensors of `from`, and te_status name_run(const te_quantize_rows *q, te_context *ctx). */
#define TE_QUANTIZE_ROWS(name, from)                                                                               \
    TE_KERNEL_RESIDENT(name##_kernel, TE_ROWS_LANES, TE_##from == TE_f32 ? 3 : 4, te_quantize_rows,                 \
                       te_rows_body(te_args, te_at, TE_##from))                                                    \
    TE_API te_status name##_run(const te_quantize_rows *q, te_context *ctx) {                                      \
        TE_TRY(te__rows_check(q, #name, ctx));                                                                     \
        return q->rows && q->cols ? name##_kernel_launch(ctx, te_grid_of(q->rows, 1), q) : TE_OK;                  \
    }

/* Several tensors in one launch, te_quantize_rows of e4m3 a chunk of which is a row:
 * te_status name_table_run(const te_table *t, te_context *ctx). */
#define TE_QUANTIZE_ROWS_TABLE(name, from)                                                                         \
    TE_FN void name##_table_body(const te_table *t, te_block b) {                                                  \
        const te_quantize_rows q = ((const te_quantize_rows *)t->tensor)[te_table_find(t, &b)];                    \
        te__rows_row(&q, b, TE_##from, TE_e4m3);                                                                   \
    }                                                                                                              \
    TE_KERNEL_RESIDENT(name##_table, TE_ROWS_LANES, TE_##from == TE_f32 ? 3 : 4, te_table,                          \
                       name##_table_body(te_args, te_at))                                                          \
    TE_API te_status name##_table_run(const te_table *t, te_context *ctx)                                          \
        { return t->chunks ? name##_table_launch(ctx, te_grid_of(t->chunks, 1), t) : TE_OK; }

#endif
