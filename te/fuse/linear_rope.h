/* linear_rope.h -- the rows linear_rope and linear_bias_rope: the product that makes q, k and v, with rotary positions
 * (te/ops/rope.h) on q and k before they are stored.
 *
 * On Hopper, in 16 bits, with constant widths and head sizes that fit a tile, it is one kernel behind a small one. The
 * small one writes the cosines and sines of all rows, [rows, rotary_dim] in f32: in the product's epilogue they would
 * take double precision, and be computed once for each head. Its floor is 8192 x 128 x 4 bytes, 4 MB, which stay in the
 * L2; it takes 3 us. The epilogue gets the two vectors of eight that turn with each other at once (te_hopper_couples).
 * Rope by itself reads and writes what the product has stored: 8192 x 12288, 0.4 GB, 0.1 ms at 4.2 TB/s beside a
 * product of 1.2 ms.
 *
 * The product is summed in f32 and rounded to 16 bits, as by itself; bias and rope work on that in f32, and the result
 * is rounded. So linear_rope rounds what the two steps round, and linear_bias_rope once less: not behind the bias.
 *
 * All else is the two steps one after the other: other targets and formats, head sizes that do not divide 256 or are
 * odd multiples of eight, products of so few rows or columns that the kernel does not pay (te/gemm/gemm_choose.h), FP8.
 */
#ifndef TE_FUSE_LINEAR_ROPE_H
#define TE_FUSE_LINEAR_ROPE_H

#include "../ops/rope.h"  /* te__rope_to, te_rope_turns */
#include "linear_step.h" /* te__linear_forward */

#define TE__ROPE_MARK_rope ,

/* ---- one kernel -------------------------------------------------------------------------------------------------- */

enum { TE_TURN_ROWS = 4 /* of cosines and sines, by one block */ };

/* y: [rows, rotary], by row the cosines of the pairs, then their sines. */
TE_FN void te_turn_rows(const te_rope_args *a, te_block b, int rotary, int scaled) {
    int group;
    const int64_t first = (int64_t)b.x * TE_TURN_ROWS;
    te_rope_turns((float *)a->y + first * rotary, a, first, (int)te_min(TE_TURN_ROWS, a->rows - first),
                  te_lanes_here(TE_ROPE_THREADS, &group), rotary / 2, rotary, scaled, 1);
}

/* The kernels of a row. turns: of cosines and sines; whole: the product with its epilogue. Null: there is none. */
typedef struct te__rope_kernels {
    te__linear_kernels linear; /* of the linear and its bias by themselves */
    te_rope_launch_fn turn, turns;
    te_product_kernels *whole;
} te__rope_kernels;

#if TE_CUDA && !defined(TE_KEEP_CALLS)

typedef struct te_rope_product {
    te_hopper many;
    te_chain chain;     /* of the bias */
    void *y;            /* [m, n] */
    const float *turns; /* [m, rotary] */
} te_rope_product;

/* All constants. turned: columns of q and k. */
typedef struct te_rope_heads { int turned, head_dim, rotary, interleaved; } te_rope_heads;

TE_FN void te__rope_load8(float v[8], const uint32_t w[4], const te_rope_product *p, int row, int col,
                          te_stages_fn stages, const te_chain_shape k, const te_dtype dtype) {
    te_lane l;
    te_vec8 e;
    TE_UNROLL for (int i = 0; i < 4; i++) e.w[i] = w[i];
    te_vec8_floats(l.v, &e, dtype);
    l.at = te_place_of(k, row, col / 8, 1);
    stages(&l, &p->chain, 0, 1);
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] = l.v[i];
}
TE_FN void te__no_stages(te_lane *l, const te_chain *c, int from, int to) { (void)l, (void)c, (void)from, (void)to; }

/* Interleaved: the pairs of these eight dimensions, from `dim` on, if they turn. */
TE_FN void te__rope_turn_near(float v[8], const float *turns, int dim, const te_rope_heads h) {
    float4 c, s;
    if (dim >= h.rotary) return;
    c = __ldg((const float4 *)(turns + dim / 2)), s = __ldg((const float4 *)(turns + h.rotary / 2 + dim / 2));
    const float cosine[4] = {c.x, c.y, c.z, c.w}, sine[4] = {s.x, s.y, s.z, s.w};
    te_turn_near8(v, cosine, sine);
}
/* Columns from `col` and from `other` on, of one head. */
TE_FN void te_rope_epilogue(const te_rope_product *p, const uint32_t w[4], const uint32_t u[4], int row, int col,
                            int other, te_stages_fn stages, const te_chain_shape k, const te_rope_heads h,
                            const te_dtype dtype) {
    const float *turns = p->turns + (int64_t)row * h.rotary;
    const int dim = col % h.head_dim, pairs = h.rotary / 2, far = !h.interleaved && col < h.turned && dim < pairs;
    float v[8], mate[8], cosine[8], sine[8];
    if (far) { /* ahead of what needs them */
        te_load8(cosine, turns, dim, 8, 1, TE_f32);
        te_load8(sine, turns, pairs + dim, 8, 1, TE_f32);
    }
    te__rope_load8(v, w, p, row, col, stages, k, dtype);
    te__rope_load8(mate, u, p, row, other, stages, k, dtype);
    if (far) te_turn8(v, mate, cosine, sine);
    if (h.interleaved && col < h.turned) {
        te__rope_turn_near(v, turns, dim, h);
        te__rope_turn_near(mate, turns, other % h.head_dim, h);
    }
    te_store8(p->y, (int64_t)row * p->many.n + col, v, 8, 1, dtype);
    te_store8(p->y, (int64_t)row * p->many.n + other, mate, 8, 1, dtype);
}

/* What a tile takes: heads that divide 256 columns, and pairs that lie in 128 of them, if need be crossed. */
#define TE__ROPE_FITS(dim, rotary, interleaved)                                                     \
    ((rotary) > 0 && 256 % (dim) == 0 && (dim) % 16 == 0 && (rotary) % ((interleaved) ? 8 : 16) == 0 \
     && ((dim) <= 128 || (interleaved) || (rotary) <= 128 || (rotary) == 256))
#define TE__ROPE_CROSSED(dim, rotary, interleaved) ((dim) == 256 && (rotary) == 256 && !(interleaved))
/* rotary, fits: whether there is the kernel; and its te_hopper_couples. */
#define TE__ROPE_SHAPE_fixed(name, model, dtype, turn)                                                               \
    enum {                                                                                                           \
        name##_rotary = TE__ROTARY(turn),                                                                            \
        name##_fits = !name##_in_fp8 && (int)TE_##dtype != (int)TE_f32                                               \
            && (int)TE_DTYPE_IN(model, turn) == (int)TE_##dtype && (int)TE_DTYPE_OUT(model, turn) == (int)TE_##dtype \
            && (int)TE_WIDTH_IN(model, turn) >= 2 * name##_rotary /* room for cosines and sines */                   \
            && TE__ROPE_FITS(TE_ARG3(turn, 0), name##_rotary, TE__INTERLEAVED(turn)),                                \
        name##_group = !name##_fits ? 0 : (TE_ARG3(turn, 0)) >= 128 ? 16 : (TE_ARG3(turn, 0)) / 8,                   \
        name##_crossed = TE__ROPE_CROSSED(TE_ARG3(turn, 0), name##_rotary, TE__INTERLEAVED(turn)),                   \
        name##_apart = TE__INTERLEAVED(turn) ? 0 : name##_crossed ? 8 : name##_rotary / 16                           \
    };
/* For the linear and its bias by themselves: a kernel for few rows, and for many where none takes the rope along. */
#define TE__ROPE_BIAS_fixed(name, dtype)                                                                             \
    TE__PRODUCT_EPILOGUE(name, dtype)                                                                                \
    TE__PRODUCT_KERNELS(name, dtype, name##_is_product && !name##_fits, name##_is_product, 0)
#define TE__ROPE_BIAS_fixed_fp8 TE_PRODUCT_FP8
#define TE__ROPE_PRODUCT_fixed(name, model, dtype, turn, stages, shape)                                              \
    TE_KERNEL(name##_turns, TE_ROPE_THREADS, te_rope_args,                                                            \
              te_turn_rows(te_args, te_at, name##_rotary, !TE__ROPE_IS(turn, none)))                                  \
    TE_FN void name##_couple(const void *p, const uint32_t w[4], const uint32_t u[4], int row, int col, int other) {  \
        const te_rope_heads h = {(TE_ARG1(turn, 0) + TE_ARG2(turn, 0)) * (TE_ARG3(turn, 0)), TE_ARG3(turn, 0),        \
                                 name##_rotary, TE__INTERLEAVED(turn)};                                               \
        te_rope_epilogue((const te_rope_product *)p, w, u, row, col, other, stages, shape, h, TE_##dtype);            \
    }                                                                                                                 \
    TE_HOPPER_KERNEL_COUPLES(name##_turned, te_rope_product, TE_##dtype, name##_group, name##_apart, name##_crossed,  \
                             name##_couple, name##_fits)                                                              \
    TE_API te_product_kernels *name##_whole(void) {                                                                   \
        static te_product_kernels kernels = {{name##_fits ? (const void *)name##_turned : 0, 0, 0}, {0, 0, 0},        \
                                             {0, 0, 0}, 0};                                                           \
        return &kernels;                                                                                              \
    }

/* The product, with cosines and sines from memory that it would take by itself. */
TE_API te_status te__linear_rope_whole(te_run *r, const te_step *first, const te__rope_kernels *kernels, int turn,
                                       te_gemm *g, te_value y) {
    const te_op *linear = &r->plan->op[first->op[0]];
    te_rope_product p;
    te_rope_args a;
    te_value room, turns;
    memset(&p, 0, sizeof p);
    TE_TRY(te__linear_operands(g, r, first->op[0]));
    for (int j = 0; j < first->count; j++) /* as many as the two steps take: the number of rows decides which it is */
        TE_TRY(te_acquire(r, &room, linear->out_rows, linear->out, linear->out_dtype));
    turns = y, turns.p = room.p;
    te__rope_fill(&a, r, turn, turns);
    if (first->count > 1) te__stage_of(&p.chain.op[0], r, first->op[1]);
    p.y = y.p, p.turns = (const float *)room.p;
    if (!r->dry) {
        TE_TRY(kernels->turns(r->ctx, te_grid_of(te_ceil_div(a.rows, TE_TURN_ROWS), 1), &a));
        TE_TRY(te__hopper_run(kernels->whole->many.kernel, &p, sizeof p, &p.many, g, r->ctx));
    }
    te_set_now(r, y);
    return TE_OK;
}
#else
#define TE__ROPE_SHAPE_fixed TE__ROPE_SHAPE_dims
#define TE__ROPE_BIAS_fixed TE_NO_PRODUCT
#define TE__ROPE_BIAS_fixed_fp8 TE_NO_PRODUCT
#define TE__ROPE_PRODUCT_fixed TE__ROPE_PRODUCT_dims
TE_API te_status te__linear_rope_whole(te_run *r, const te_step *first, const te__rope_kernels *kernels, int turn,
                                       te_gemm *g, te_value y) {
    return (void)r, (void)first, (void)kernels, (void)turn, (void)g, (void)y, TE_OK;
}
#endif
#define TE__ROPE_SHAPE_fixed_fp8 TE__ROPE_SHAPE_fixed
#define TE__ROPE_SHAPE_dims_fp8 TE__ROPE_SHAPE_dims
#define TE__ROPE_SHAPE_dims(name, model, dtype, turn) enum { name##_fits = 0 };
#define TE__ROPE_BIAS_dims TE_NO_PRODUCT
#define TE__ROPE_BIAS_dims_fp8 TE_NO_PRODUCT
#define TE__ROPE_PRODUCT_fixed_fp8 TE__ROPE_PRODUCT_fixed
#define TE__ROPE_PRODUCT_dims_fp8 TE__ROPE_PRODUCT_dims
#define TE__ROPE_PRODUCT_dims(name, model, dtype, turn, stages, shape)                         \
    TE_API te_status name##_turns_launch(te_context *ctx, te_grid grid, const te_rope_args *a) \
        { return (void)ctx, (void)grid, (void)a, TE_OK; }                                 \
    TE_API te_product_kernels *name##_whole(void) { return 0; }

/* ---- the step ---------------------------------------------------------------------------------------------------- */

TE_API te_status te__linear_rope(te_run *r, const te_step *s, const te__rope_kernels *kernels) {
    const int turn = s->op[s->count - 1];
    te_gemm g = te__linear_product(r, s->op[0]);
    te_step first = *s;
    te_value y;
    first.count--;
    TE_TRY(te_output(&y, r, s, turn));
    if (!te_is_in_fp8(r, s->op[0]) && te_gemm_is_own_row_of_many(kernels->whole, &g, r->ctx))
        return te__linear_rope_whole(r, &first, kernels, turn, &g, y);
    TE_TRY(te__linear_forward(r, &first, &kernels->linear));
    return te__rope_to(r, turn, y, kernels->turn);
}

/* ---- the row ----------------------------------------------------------------------------------------------------- */

#define TE__LINEAR_ROPE(name, widths, model, dtype, pass, ...)                                                        \
    TE_ROW_PICK(__VA_ARGS__, TE__LONG_ROPE, TE__LONG_ROPE, TE__LONG_ROPE, TE__LONG_ROPE, TE__LONG_ROPE, TE__LONG_ROPE, \
        TE__LINEAR_BIAS_ROPE, TE__LINEAR_ROPE_ALONE, ~)(name, widths, model, dtype, pass, __VA_ARGS__)
#define TE__LONG_ROPE(name, ...) \
    static_assert(0, "te: " #name ": between a linear and a rope of one row stands a bias or nothing");
#define TE__LINEAR_ROPE_ALONE(name, widths, model, dtype, pass, turn)                                      \
    TE__ROPE_SHAPE_##widths(name, model, dtype, turn)                                                      \
    TE__ROPE_ROW(name, widths, model, dtype, pass, turn, te__no_stages, te_no_shape(), 0, te_no_shape(), 0)
#define TE__LINEAR_BIAS_ROPE(name, widths, model, dtype, pass, op, turn)                                              \
    static_assert((TE_FLAGS(op) & TE_EPILOGUE_OF_BIAS) != 0,                                                          \
                  "te: " #name ": between a linear and a rope of one row stands a bias or nothing");                  \
    TE_CHAIN(name, widths, model, dtype, pass, op)                                                                    \
    TE__ROPE_SHAPE_##widths(name, model, dtype, turn)                                                                 \
    TE__ROPE_BIAS_##widths(name, dtype)                                                                               \
    TE__ROPE_ROW(name, widths, model, dtype, pass, turn, name##_stages, name##_shape(0), name##_launch,               \
                 name##_shape(te_chain_half(r, s, 1)), name##_kernels())
/* stages, shape: of the bias in an epilogue; launch, chain, product: te__linear_kernels. */
#define TE__ROPE_ROW(name, widths, model, dtype, pass, turn, stages, shape, launch, chain, product)                  \
    TE_OWN_rope_forward(name##_turn, model, dtype, turn)                                                             \
    TE__ROPE_PRODUCT_##widths(name, model, dtype, turn, stages, shape)                                               \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                       \
        const te__rope_kernels kernels = {{launch, chain, product, TE_BARE_UNLESS(name##_in_fp8, dtype, forward)},   \
                                          name##_turn_launch, name##_turns_launch, name##_whole()};                  \
        return te__linear_rope(r, s, &kernels);                                                                      \
    }

#endif
