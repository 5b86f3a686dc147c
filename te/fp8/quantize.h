/* quantize.h -- a tensor as FP8: row-wise, transposed, and its amax, in one pass.
 *
 * Do this:
 *     te_quantize q = te_quantize_of(rows, cols);
 *     q.x = x, q.from = TE_bf16, q.to = TE_e4m3, q.scale = scales.scale + i;
 *     q.y = y, q.yt = yt, q.amax = scales.amax + i;      // any of the three may stay null
 *     TE_TRY(te_quantize_run(&q, ctx));
 *
 * y = x * scale, rounded to the nearest number of the format, ties to even, beyond its largest number to that (fp8.h);
 * yt[cols, rows] has the same bytes. With amax alone it is the first pass of current scaling.
 *
 * Bytes: x read once, y and yt written once; 4 an element of bf16, 3 without yt, 2 for amax alone.
 */
#ifndef TE_QUANTIZE_H
#define TE_QUANTIZE_H

#include "fp8_tile.h" /* TE_FP8_KERNELS */

typedef struct te_quantize {
    void *y, *yt;       /* [rows, cols], [cols, yt_cols] of `to`; null: not wanted */
    float *amax;        /* raised to the largest |x|; target memory; null: not wanted */
    const void *x;      /* [rows, cols] of `from` */
    const float *scale; /* target memory; null: 1 */
    float *inverse;     /* gets 1 / scale; target memory; null: not wanted */
    int64_t rows, cols;
    int64_t yt_cols;    /* rows, or up to the next multiple of 128: what is more is 0 */
    te_dtype from, to;
} te_quantize;

TE_API te_quantize te_quantize_of(int64_t rows, int64_t cols) {
    te_quantize q;
    memset(&q, 0, sizeof q);
    q.rows = q.yt_cols = rows, q.cols = cols, q.to = TE_e4m3;
    return q;
}

typedef struct te_quantize_args { te_fp8_out out; const void *x; } te_quantize_args;

#define TE__QUANTIZE(from)                                                                                            \
    TE_FN void te__quantize_load_##from(te_vec8 *in, const void *arg, int64_t row, int64_t col, int n, int wide) {    \
        const te_quantize_args *a = (const te_quantize_args *)arg;                                                    \
        te_vec8_load(in, a->x, row * a->out.cols + col, n, wide, TE_##from);                                          \
    }                                                                                                                 \
    TE_FN void te__quantize_make_##from(float v[8], const te_vec8 *in, const void *arg, int64_t row, int64_t col) {   \
        (void)arg, (void)row, (void)col;                                                                              \
        te_vec8_floats(v, in, TE_##from);                                                                             \
    }                                                                                                                 \
    TE_FP8_KERNELS(te__quantize_##from, TE_##from == TE_f32 ? 2 : 4, te_quantize_args, te__quantize_load_##from,      \
                   te__quantize_make_##from, 1)
TE__QUANTIZE(f32)
TE__QUANTIZE(bf16)
TE__QUANTIZE(f16)

/* What is not transposed may be cut into rows anywhere: into the longest that are no wider than a tile. */
TE_API void te__quantize_flatten(te_fp8_out *o) {
    int64_t cols = TE_FP8_TILE;
    if (o->yt) return;
    while (cols > 1 && o->rows * o->cols % cols) cols /= 2;
    if (cols % 8 && o->cols > cols) return;
    o->rows = o->rows * o->cols / cols, o->cols = cols;
}
TE_API te_status te_quantize_run(const te_quantize *q, te_context *ctx) {
    te_quantize_args a;
    memset(&a, 0, sizeof a);
    a.out.y = (uint8_t *)q->y, a.out.yt = (uint8_t *)q->yt, a.out.amax = q->amax, a.out.scale = q->scale;
    a.out.inverse = q->inverse, a.out.yt_cols = q->yt_cols;
    a.out.rows = q->rows, a.out.cols = q->cols, a.out.to = q->to, a.x = q->x;
    TE_TRY(te_fp8_check(&a.out, "te_quantize_run", ctx));
    TE_REQUIRE(q->x || !q->rows || !q->cols, ctx, TE_ERROR_NULL, "te_quantize_run: x is null");
    TE_REQUIRE((uintptr_t)q->x % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
               "te_quantize_run: x does not start at a multiple of %d bytes", (int)TE_ACCESS);
    TE_REQUIRE(q->from == TE_f32 || q->from == TE_bf16 || q->from == TE_f16, ctx, TE_ERROR_DTYPE,
               "te_quantize_run: from %s; it must be f32, bf16 or f16", te_dtype_name(q->from));
    te__quantize_flatten(&a.out);
    if (q->from == TE_f32) return te__quantize_f32_run(&a, ctx);
    return q->from == TE_bf16 ? te__quantize_bf16_run(&a, ctx) : te__quantize_f16_run(&a, ctx);
}

#endif
