/* quantize.h -- a tensor as FP8: row-wise, transposed, and its amax, in one pass.
 *
 * Do this:
 *     TE_QUANTIZE(of_bf16, bf16)                     // the kernels, and of_bf16_run
 *     te_quantize q = te_quantize_of(rows, cols);
 *     q.x = x, q.to = TE_e4m3, q.scale = scales.scale + i;
 *     q.y = y, q.yt = yt, q.amax = scales.amax + i;      // any of the three may stay null
 *     TE_TRY(of_bf16_run(&q, ctx));
 *
 * TE_QUANTIZE_EIGHTS is the same for a list, whose tensors have multiples of eight columns; TE_QUANTIZE_TABLE takes any
 * number of tensors in one launch.
 *
 * y = x * scale, rounded to the nearest number of the format, ties to even, beyond its largest number to that (fp8.h);
 * yt[cols, rows] has the same bytes. With amax alone it is the first pass of current scaling. TE_QUANTIZE_BY_CHANCE,
 * behind TE_QUANTIZE_EIGHTS, makes name_by_chance_run, which rounds up or down by chance instead, so that the mean is
 * x * scale: by the random state q.rng, and of its numbers those of q.stream.
 *
 * Bytes: x read once, y and yt written once; 4 an element of bf16, 3 without yt, 2 for amax alone. The floor is a copy
 * of as many. Of such a copy's rate on an H200, medians of 7, at 8192 x 4096, 32768 x 4096, 32768 x 8192: row-wise,
 * transposed and amax 0.89, 0.91, 0.96; row-wise and amax 0.94, 1.00, 1.01; amax alone 0.87, 0.95, 0.97; all three from
 * f32 0.92, 0.95, 0.96.
 */
#ifndef TE_QUANTIZE_H
#define TE_QUANTIZE_H

#include "../core/fp8_vec.h" /* te_vec8_load_fp8 */
#include "../core/table.h"   /* te_table_find */
#include "fp8_tile.h"        /* TE_FP8_KERNELS */

typedef struct te_quantize {
    void *y, *yt;       /* [rows, cols], [cols, yt_cols] of `to`; null: not wanted */
    float *amax;        /* raised to the largest |x|; target memory; null: not wanted */
    const void *x;      /* [rows, cols] of the dtype that the kernels are made for */
    const float *scale; /* target memory; null: 1 */
    float *inverse;     /* [2] gets 1 / scale and the scale; target memory; null: not wanted */
    int64_t rows, cols;
    int64_t yt_cols;    /* rows, or up to the next multiple of 128: what is more is 0 */
    te_dtype to;
    const te_rng *rng;  /* by chance: the random state, target memory */
    uint32_t stream;    /* by chance: no other tensor that draws by this state has it */
} te_quantize;

TE_API te_quantize te_quantize_of(int64_t rows, int64_t cols) {
    te_quantize q;
    memset(&q, 0, sizeof q);
    q.rows = q.yt_cols = rows, q.cols = cols, q.to = TE_e4m3;
    return q;
}

typedef struct te_quantize_args { te_fp8_out out; const void *x; } te_quantize_args;

/* What is not transposed may be cut into rows anywhere: into the longest that are no wider than a tile. */
TE_API void te__quantize_flatten(te_fp8_out *o) {
    int64_t cols = TE_FP8_TILE;
    if (o->yt) return;
    while (cols > 1 && o->rows * o->cols % cols) cols /= 2;
    if (cols % 8 && o->cols > cols) return;
    o->rows = o->rows * o->cols / cols, o->cols = cols;
}
TE_API te_status te__quantize_args_of(te_quantize_args *a, const te_quantize *q, const char *who, te_context *ctx) {
    memset(a, 0, sizeof *a);
    TE_TRY(te_check_target(ctx, who));
    TE_REQUIRE(q, ctx, TE_ERROR_NULL, "%s: what is to be cast is null", who);
    a->out.y = (uint8_t *)q->y, a->out.yt = (uint8_t *)q->yt, a->out.amax = q->amax, a->out.scale = q->scale;
    a->out.inverse = q->inverse, a->out.yt_cols = q->yt_cols;
    a->out.rows = q->rows, a->out.cols = q->cols, a->out.to = q->to, a->x = q->x;
    a->out.rng = q->rng, a->out.stream = q->stream;
    TE_TRY(te_fp8_check(&a->out, who, ctx));
    TE_REQUIRE(q->x || !q->rows || !q->cols, ctx, TE_ERROR_NULL, "%s: x is null", who);
    TE_REQUIRE((uintptr_t)q->x % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: x does not start at a multiple of %d bytes", who, (int)TE_ACCESS);
    te__quantize_flatten(&a->out);
    return TE_OK;
}

/* The producer, of tensors of `from`, a constant. */
TE_FN void te__quantize_load(te_vec8 *in, const void *arg, int64_t row, int64_t col, int n, int wide, te_dtype from) {
    const te_quantize_args *a = (const te_quantize_args *)arg;
    te_vec8_load(in, a->x, row * a->out.cols + col, n, wide, from);
}
typedef te_status (*te__quantize_fn)(const te_quantize_args *a, te_context *ctx);
TE_API te_status te__quantize_by(te__quantize_fn run, const te_quantize *q, const char *who, te_context *ctx) {
    te_quantize_args a;
    TE_TRY(te__quantize_args_of(&a, q, who, ctx));
    return run(&a, ctx);
}

enum { TE_QUANTIZE_RESIDENT = 4, TE_QUANTIZE_RESIDENT_f32 = 2 }; /* blocks, by the registers that x takes */
#define TE__QUANTIZE_RESIDENT(from) (TE_##from == TE_f32 ? TE_QUANTIZE_RESIDENT_f32 : TE_QUANTIZE_RESIDENT)

/* Kernels for tensors of `from`, and te_status name_run(const te_quantize *q, te_context *ctx). */
#define TE_QUANTIZE(name, from)                                                                                       \
    TE__QUANTIZE_PRODUCER(name, from)                                                                                 \
    TE_FP8_KERNELS(name##_of, TE__QUANTIZE_RESIDENT(from), te_quantize_args, name##_load, name##_make, 1)             \
    TE_API te_status name##_run(const te_quantize *q, te_context *ctx)                                                \
        { return te__quantize_by(name##_of_run, q, #name, ctx); }
/* The same, of multiples of eight columns. */
#define TE_QUANTIZE_EIGHTS(name, from)                                                                                \
    TE__QUANTIZE_PRODUCER(name, from)                                                                                 \
    TE__QUANTIZE_OF_EIGHTS(name, name##_of, from, 0)                                                                  \
    TE_API te_status name##_run(const te_quantize *q, te_context *ctx)                                                \
        { return te__quantize_by(name##_of_run, q, #name, ctx); }
#define TE_QUANTIZE_BY_CHANCE(name, from)                                                                             \
    TE__QUANTIZE_OF_EIGHTS(name, name##_by_chance_of, from, 1)                                                        \
    TE_API te_status name##_by_chance_run(const te_quantize *q, te_context *ctx) {                                    \
        TE_REQUIRE(q && q->rng, ctx, TE_ERROR_NULL, "%s: rng is null", #name);                                        \
        return te__quantize_by(name##_by_chance_of_run, q, #name, ctx);                                               \
    }
#define TE__QUANTIZE_OF_EIGHTS(name, kernel, from, chance)                                                            \
    TE_FP8_KERNEL(kernel, TE__QUANTIZE_RESIDENT(from), te_quantize_args, name##_load, name##_make, 1, 1, chance)      \
    TE_API te_status kernel##_run(const te_quantize_args *a, te_context *ctx) {                                       \
        TE_REQUIRE(a->out.cols % 8 == 0, ctx, TE_ERROR_SHAPE, "%s: %lld columns; it takes multiples of eight", #name, \
                   (long long)a->out.cols);                                                                           \
        return a->out.rows && a->out.cols ? kernel##_launch(ctx, te__fp8_grid(&a->out), a) : TE_OK;                   \
    }
#define TE__QUANTIZE_PRODUCER(name, from)                                                                             \
    TE_FN void name##_load(te_vec8 *in, const void *arg, int64_t row, int64_t col, int n, int wide) {                 \
        te__quantize_load(in, arg, row, col, n, wide, TE_##from);                                                     \
    }                                                                                                                 \
    TE_FN void name##_make(float v[8], const te_vec8 *in, const void *arg, int64_t row, int64_t col) {                \
        (void)arg, (void)row, (void)col, te_vec8_floats(v, in, TE_##from);                                            \
    }

/* ---- several tensors in one launch ------------------------------------------------------------------------------- */

/* Of te_quantize_args, a chunk of which is a tile; all become e4m3. Bytes: as those of one by one. */
typedef struct te_quantize_table {
    te_table of;
    int cast; /* 1: y and yt; 0: amax alone */
} te_quantize_table;

TE_FN te_quantize_args te__quantize_take(const te_quantize_table *t, te_block *b) {
    te_quantize_args a = ((const te_quantize_args *)t->of.tensor)[te_table_find(&t->of, b)];
    if (t->cast) a.out.amax = 0;
    else a.out.y = a.out.yt = 0;
    return a;
}
/* te_status name_table_run(const te_quantize_table *t, te_context *ctx), of multiples of eight columns. */
#define TE_QUANTIZE_TABLE(name, from)                                                                                 \
    TE__QUANTIZE_PRODUCER(name##_table, from)                                                                         \
    TE_FN void name##_table_body(const te_quantize_table *t, te_block b, te_fp8_shared *turned) {                     \
        const te_quantize_args a = te__quantize_take(t, &b);                                                          \
        te__fp8_tile(&a.out, b, turned, name##_table_load, name##_table_make, &a, TE_e4m3, 1, 1, 0);                  \
    }                                                                                                                 \
    TE_KERNEL_RESIDENT(name##_table, TE_FP8_THREADS, TE__QUANTIZE_RESIDENT(from), te_quantize_table,                  \
                       TE_SHARED te_fp8_shared turned; name##_table_body(te_args, te_at, &turned))                    \
    TE_API te_status name##_table_run(const te_quantize_table *t, te_context *ctx)                                    \
        { return t->of.chunks ? name##_table_launch(ctx, te_grid_of(t->of.chunks, 1), t) : TE_OK; }

/* ---- the transpose of what is in FP8 already --------------------------------------------------------------------- */

/* Bytes stay what they are, whatever the format: those of a tile are turned. Bytes: 2 an element. */
TE_FN void te_turn_body(const te_quantize_args *a, te_block b, te_fp8_shared *turned) {
    enum { SIDE = TE_FP8_TILE / 8 };
    int group;
    const te_lanes g = te_lanes_here(TE_FP8_THREADS, &group);
    const int across = (int)te_ceil_div(a->out.cols, TE_FP8_TILE);
    const int64_t row = (int64_t)(b.x / across) * TE_FP8_TILE, col = (int64_t)(b.x % across) * TE_FP8_TILE;
    for (int i = g.id; i < TE_FP8_LANES; i += g.count) {
        const int64_t first = row + i / SIDE * 8, at = col + i % SIDE * 8;
        uint32_t word[8][2];
        TE_UNROLL for (int k = 0; k < 8; k++) {
            te_vec8 e;
            e.w[0] = e.w[1] = 0;
            if (first + k < a->out.rows && at < a->out.cols)
                te_vec8_load_fp8(&e, a->x, (first + k) * a->out.cols + at, 8, 1);
            word[k][0] = e.w[0], word[k][1] = e.w[1];
        }
        te__fp8_turn(turned, word, i / SIDE * 8, i % SIDE * 8);
    }
    te_block_sync();
    te__fp8_store_tile(&a->out, turned, row, col, g);
}
/* The kernel, and te_status name_run(const te_quantize *q, te_context *ctx): x in FP8, rows of multiples of eight, to
 * yt; nothing else of q is looked at. */
#define TE_TURN(name)                                                                                                 \
    TE_KERNEL_RESIDENT(name##_kernel, TE_FP8_THREADS, 6, te_quantize_args, TE_SHARED te_fp8_shared turned;            \
                       te_turn_body(te_args, te_at, &turned))                                                         \
    TE_API te_status name##_run(const te_quantize *q, te_context *ctx) {                                              \
        te_quantize_args a;                                                                                           \
        TE_TRY(te__quantize_args_of(&a, q, #name, ctx));                                                              \
        TE_REQUIRE(q->yt && q->cols % 8 == 0, ctx, TE_ERROR_SHAPE,                                                    \
                   #name ": rows of %lld; they are turned in multiples of eight, into yt", (long long)q->cols);       \
        return q->rows && q->cols ? name##_kernel_launch(ctx, te__fp8_grid(&a.out), &a) : TE_OK;                      \
    }

#endif
