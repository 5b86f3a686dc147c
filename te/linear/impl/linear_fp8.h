/* linear_fp8.h -- a linear whose product runs in FP8: what its operands are made of, with one scale for a tensor;
 * linear_fp8.h has those of fp8_block, linear_fp8.h those of fp8_row. x and the weight are e4m3, dy is e5m2, or
 * e4m3 where the list says (gradients, e4m3). FP8 products read both operands along k, so that three of them are wanted
 * transposed as well:
 *
 *     y[rows, out]   = x[rows, in]  weight[out, in]^T
 *     dx[rows, in]   = dy[rows, out]  weight_t[in, out]^T
 *     dw[out, in]    = dy_t[out, rows]  x_t[in, rows]^T      rows up to a multiple of 16, with zeros
 *
 * Where a scale is of the tensor itself (fp8_current) its amax comes from the kernel that makes the tensor, if that is
 * a chain or a product with a chain (linear_epilogue.h), else from a pass of its own; then a cast makes FP8 of it. In training
 * a chain of maps that can run again does that instead, and stores nothing the first time: gelu of 8192 x 16384 moves 4
 * and 3 bytes an element, not 6 and 3. Where scales are known before (fp8_delayed), x and dy come in FP8 from such a
 * kernel, else from a cast.
 *
 * Of x forward keeps the scale alone where x is in memory for others, or is what a norm or an activation gives, whose
 * input is (te_is_made_again), unless the list says (inputs, saved): backward makes the transpose of that again, in FP8
 * with the same scale. Else it keeps x in FP8: transposed, where a cast or a product with a chain made it; a chain's
 * kernel for rows stores it as it lies, and backward transposes it. Of dy such a product leaves both forms, and so does
 * a chain of maps (pointwise_quantize_transpose.h).
 */
#ifndef TE_LINEAR_FP8_H
#define TE_LINEAR_FP8_H

#include "../../fp8/quantize_rows.h" /* te_quantize_rows */
#include "../../gemm/gemm_types.h" /* te_gemm */
#include "../../plan/impl/storage.h" /* te_run */
#include "../../fp8/quantize_tiles.h" /* te_quantize_tiles */
#include "../../gemm/gemm_tiles.h" /* te_gemm, TE_GEMM_TILES */
#include "../../fp8/quantize.h" /* te_quantize */
#include "../../gemm/gemm.h" /* te_gemm */

/* linear_fp8.h -- a linear whose product runs under fp8_row: y[rows, out] = x[rows, in] weight[out, in]^T of e4m3,
 * with a scale for each row of x and of the weight. Made for inference: what a row gives depends on no other row.
 * Backward runs in the list's own format, with the weight and x as they are, so forward keeps x as without a recipe.
 */

/* Whether this device has products whose scales are not of tensors: those of fp8_row and of fp8_block. */
TE_API te_status te__check_local_scales(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    TE_REQUIRE(!TE_CUDA || r->ctx->capability == 900, r->ctx, TE_ERROR_DEVICE,
               "%s: (%s, %s): products of fp8_block and fp8_row need compute capability 9.0; device %d has %d.%d",
               r->plan->name, op->kind, op->name, r->ctx->device, r->ctx->capability / 100,
               r->ctx->capability / 10 % 10);
    return TE_OK;
}

TE_API te_gemm_fp8 te__rowwise_operand(const float *inverse) {
    te_gemm_fp8 o;
    o.scaling = TE_SCALING_ROW, o.dtype = TE_e4m3, o.inverse = inverse;
    return o;
}
/* The operands of y = x weight^T. x is in FP8 where the kernel before has stored it so (pointwise_quantize.h). */
TE_API te_status te__rowwise_forward(te_gemm *g, te_run *r, int i, te_value x) {
    const te_fp8_product *f = &r->param[i]->fp8;
    void *inverse = 0;
    TE_TRY(te__check_local_scales(r, i));
    g->b = f->data, g->trans_b = 1, g->fast = 1, g->b_fp8 = te__rowwise_operand(f->inverse);
    if (te_is_fp8(x.dtype)) {
        g->a = x.p, g->a_fp8 = te__rowwise_operand(te_scales_behind(r, x));
        return TE_OK;
    }
    TE_TRY(te_convert_value(&x, r, r->plan->dtype));
    te_quantize_rows q = te_quantize_rows_of(x.rows, x.cols);
    TE_TRY(te_scratch(r, &q.y, (size_t)(te_capacity_rows(r) * x.cols)));
    TE_TRY(te_scratch(r, &inverse, (size_t)te_capacity_rows(r) * sizeof(float)));
    q.x = x.p, q.inverse = (float *)inverse, q.rule = f->own;
    g->a = q.y, g->a_fp8 = te__rowwise_operand(q.inverse);
    return r->dry ? TE_OK : r->plan->fp8->rows(&q, r->ctx);
}

/* linear_fp8.h -- a linear whose product runs under fp8_block: what its operands are made of. All of them are e4m3.
 *
 *     y[rows, out] = x[rows, in]  weight[out, in]^T           x in tiles of 1 x 128, the weight in blocks of 128 x 128
 *     dx[rows, in] = dy[rows, out]  weight_t[in, out]^T       the same
 *     dw[out, in]  = dy_t[out, rows]  x_t[in, rows]^T         both in tiles of 1 x 128, along the rows
 *
 * The kernel that makes x or dy stores it so where that is a chain (pointwise_quantize_transpose.h), else a cast does. Backward has the
 * transpose of x again where x is saved for others or is what a norm or an activation gives, whose input is
 * (te_is_made_again); else forward keeps it, and its scales. Each transpose is rounded from the numbers themselves, not
 * from the other's bytes.
 */

/* A matrix in FP8, and its scales. */
typedef struct te_blockwise_matrix { void *p; float *inverse; } te_blockwise_matrix;

/* Memory for a value of `cols` columns, as it lies or transposed. */
TE_API te_status te__blockwise_memory(te_blockwise_matrix *t, te_run *r, int cols, int turned) {
    const int64_t rows = te_capacity_rows(r);
    const int64_t scales = turned ? te_scaling_count(TE_SCALING_TILES, cols, rows)
                                  : te_scaling_count(TE_SCALING_TILES, rows, cols);
    void *inverse = 0;
    TE_TRY(te_scratch(r, &t->p, (size_t)(rows * cols)));
    TE_TRY(te_scratch(r, &inverse, (size_t)scales * sizeof(float)));
    t->inverse = (float *)inverse;
    return TE_OK;
}
/* v in tiles: as it lies and, where turned has memory, transposed with rows up to a multiple of 16. */
TE_API te_status te__blockwise_cast(te_run *r, te_value v, const te_fp8_product *f, te_blockwise_matrix to, te_blockwise_matrix turned) {
    TE_TRY(te_convert_value(&v, r, r->plan->dtype));
    te_quantize_tiles q = te_quantize_tiles_of(v.rows, v.cols);
    q.x = v.p, q.y = to.p, q.y_inverse = to.inverse, q.yt = turned.p, q.yt_inverse = turned.inverse;
    q.yt_cols = te_round_up(v.rows, 16), q.rule = f->own;
    return r->dry ? TE_OK : r->plan->fp8->tiles(&q, r->ctx);
}
TE_API te_gemm_fp8 te__blockwise_operand(te_scaling scaling, const float *inverse) {
    te_gemm_fp8 o;
    o.scaling = scaling, o.dtype = TE_e4m3, o.inverse = inverse;
    return o;
}

/* The operands of y = x weight^T. */
TE_API te_status te__blockwise_forward(te_gemm *g, te_run *r, int i, te_value x) {
    const te_fp8_product *f = &r->param[i]->fp8;
    const te_saved_input kept = te_saved_input_of(r, i);
    const te_blockwise_matrix turned = {kept.x, kept.inverse};
    te_blockwise_matrix row = {0, 0};
    TE_TRY(te__check_local_scales(r, i));
    if (r->pass == TE_FORWARD) te_set_saved_transposed(r, i, 1);
    if (te_is_fp8(x.dtype)) row.p = x.p, row.inverse = te_scales_behind(r, x);
    else {
        TE_TRY(te__blockwise_memory(&row, r, x.cols, 0));
        TE_TRY(te__blockwise_cast(r, x, f, row, turned));
    }
    g->a = row.p, g->b = f->data, g->trans_b = 1;
    g->a_fp8 = te__blockwise_operand(TE_SCALING_TILES, row.inverse);
    g->b_fp8 = te__blockwise_operand(TE_SCALING_BLOCKS, f->inverse);
    return TE_OK;
}
/* The transpose of what linear i read, again: of its input, which is saved, or of what gave that. */
TE_API te_status te__blockwise_recompute(te_run *r, int i, te_blockwise_matrix turned) {
    const te_blockwise_matrix none = {0, 0};
    const te_again again = {turned.p, turned.inverse, 0, 0, 0};
    if (te__input_is_saved(r, i)) return te__blockwise_cast(r, te_input_of(r, i), &r->param[i]->fp8, none, turned);
    return r->dry ? TE_OK : te__recompute_input(r, i, again);
}
/* Those of both products of backward: w is dweight's, which a frozen weight does without, x dx's. */
TE_API te_status te__blockwise_backward(te_gemm *w, te_gemm *x, te_run *r, int i, te_value dy) {
    const te_fp8_product *f = &r->param[i]->fp8;
    const te_saved_input kept = te_saved_input_of(r, i);
    const te_blockwise_matrix none = {0, 0};
    te_blockwise_matrix row = none, turned = none, xt = {kept.x, kept.inverse};
    TE_TRY(te__check_local_scales(r, i));
    if (te_is_fp8(dy.dtype)) {
        row.p = dy.p, row.inverse = te_scales_behind(r, dy);
        turned.p = r->turned.p, turned.inverse = te_scales_behind(r, r->turned);
    } else {
        TE_TRY(te__blockwise_memory(&row, r, dy.cols, 0));
        if (!(r->plan->op[i].flags & TE_IS_FROZEN)) TE_TRY(te__blockwise_memory(&turned, r, dy.cols, 1));
        TE_TRY(te__blockwise_cast(r, dy, f, row, te_is_trained(r->param[i]) ? turned : none));
    }
    if (!xt.p && !(r->plan->op[i].flags & TE_IS_FROZEN)) {
        TE_TRY(te__blockwise_memory(&xt, r, r->plan->op[i].in, 1));
        if (te_is_trained(r->param[i])) TE_TRY(te__blockwise_recompute(r, i, xt));
    }
    x->a = row.p, x->b = f->transposed, x->trans_b = 1;
    x->a_fp8 = te__blockwise_operand(TE_SCALING_TILES, row.inverse);
    x->b_fp8 = te__blockwise_operand(TE_SCALING_BLOCKS, f->transposed_inverse);
    w->a = turned.p, w->b = xt.p, w->trans_a = 0, w->trans_b = 1, w->k = te_round_up(dy.rows, 16);
    w->a_fp8 = te__blockwise_operand(TE_SCALING_TILES, turned.inverse);
    w->b_fp8 = te__blockwise_operand(TE_SCALING_TILES, xt.inverse);
    return TE_OK;
}

TE_API int64_t te__fp8_rows(int64_t rows) { return te_round_up(rows, 16); }

/* Of random numbers, far above those of ops, which count from 0: whose they are that gradients are rounded by. */
enum { TE__FP8_ROUNDS = 0x66703800 };

/* v as FP8, with the scale at `index`: row-wise at y, transposed at yt, 1 / scale at `inverse`; null: not wanted. */
TE_IF_USED TE_API te_status te__fp8_cast(te_run *r, te_value v, const te_fp8_product *f, int index, te_dtype to,
                                         void *y, void *yt, float *inverse) {
    TE_TRY(te_convert_value(&v, r, r->plan->dtype));
    te_quantize q = te_quantize_of(v.rows, v.cols);
    if (r->dry) return TE_OK;
    q.x = v.p, q.to = to, q.amax = f->scales->amax + index;
    if (f->current) {
        if (!r->measured) TE_TRY(r->plan->fp8->quantize(&q, r->ctx));
        TE_TRY(te_scales_update(f->scales, index, 1, &f->own, r->ctx));
    }
    if (f->current || r->pass == TE_INFER) q.amax = 0; /* fp8_delayed: inference leaves no trace in the history */
    q.rng = r->rng, q.stream = TE__FP8_ROUNDS + (uint32_t)index;
    q.y = y, q.yt = yt, q.yt_cols = te__fp8_rows(v.rows), q.scale = f->scales->scale + index, q.inverse = inverse;
    return index == f->dy ? r->plan->fp8->quantize_dy(&q, r->ctx) : r->plan->fp8->quantize(&q, r->ctx);
}
TE_API te_gemm_fp8 te__fp8_operand(te_dtype dtype, const float *inverse) {
    te_gemm_fp8 o;
    o.scaling = TE_SCALING_TENSOR, o.dtype = dtype, o.inverse = inverse;
    return o;
}

/* The transpose of v, which is in FP8, [cols, rows] with rows up to a multiple of 16. */
TE_API te_status te__fp8_transpose_into(te_run *r, te_value v, void *turned) {
    te_quantize q = te_quantize_of(v.rows, v.cols);
    q.x = v.p, q.yt = turned, q.yt_cols = te__fp8_rows(v.rows);
    return r->dry ? TE_OK : r->plan->fp8->turn(&q, r->ctx);
}
/* The same, with memory for it; wanted 0: that alone. */
TE_API te_status te__fp8_transpose(te_run *r, void **turned, te_value v, int wanted) {
    TE_TRY(te_scratch(r, turned, (size_t)(te_capacity_rows(r) * v.cols)));
    return wanted ? te__fp8_transpose_into(r, v, *turned) : TE_OK;
}

/* The transpose of what linear i read, again (te_is_made_again), by the scale that forward had. */
TE_API te_status te__fp8_recompute_input(te_run *r, int i, void **turned, int wanted) {
    const te_saved_input kept = te_saved_input_of(r, i);
    te_value x = te_input_of(r, i);
    TE_TRY(te_scratch(r, turned, (size_t)(te_capacity_rows(r) * x.cols)));
    if (te__input_is_saved(r, i)) {
        TE_TRY(te_convert_value(&x, r, r->plan->dtype));
        te_quantize q = te_quantize_of(x.rows, x.cols);
        q.x = x.p, q.yt = *turned, q.yt_cols = te__fp8_rows(x.rows), q.scale = kept.inverse + 1;
        return r->dry || !wanted ? TE_OK : r->plan->fp8->quantize(&q, r->ctx);
    }
    const te_again again = {*turned, 0, kept.inverse + 1, !te_is_stored_in_fp8(r, i), 0};
    return r->dry || !wanted ? TE_OK : te__recompute_input(r, i, again);
}

/* What linear i reads, which has been measured but not stored (te__pointwise_amax_only): it is made again, in FP8. */
TE_IF_USED TE_API te_status te__fp8_run_producer(te_run *r, int i, void *y) {
    const te_fp8_product *f = &r->param[i]->fp8;
    const te_again again = {0, te_saved_input_of(r, i).inverse, f->scales->scale + f->x, 1, y};
    if (r->dry) return TE_OK;
    TE_TRY(te_scales_update(f->scales, f->x, 1, &f->own, r->ctx));
    return te__recompute_input(r, i, again);
}

/* The operands of y = x weight^T. */
TE_IF_USED TE_API te_status te__fp8_forward(te_gemm *g, te_run *r, int i, te_value x) {
    const te_fp8_product *f = &r->param[i]->fp8;
    const te_saved_input kept = te_saved_input_of(r, i);
    if (te_is_tiled(r, i)) return te__blockwise_forward(g, r, i, x);
    if (TE_IS_ROWWISE(r->plan->op[i].recipe)) return te__rowwise_forward(g, r, i, x);
    void *y = x.p;
    if (!te_is_fp8(x.dtype)) {
        TE_TRY(te_scratch(r, &y, (size_t)(te_capacity_rows(r) * x.cols)));
        if (r->pass == TE_FORWARD) te_set_saved_transposed(r, i, 1);
        if (r->unstored) TE_TRY(te__fp8_run_producer(r, i, y));
        else TE_TRY(te__fp8_cast(r, x, f, f->x, TE_e4m3, y, kept.x, kept.inverse));
    }
    g->a = y, g->b = f->data, g->trans_b = 1, g->fast = 1;
    g->a_fp8 = te__fp8_operand(TE_e4m3, f->scales ? te_scales_inverse(f->scales, f->x) : 0);
    g->b_fp8 = te__fp8_operand(TE_e4m3, f->scales ? te_scales_inverse(f->scales, f->weight) : 0);
    return TE_OK;
}
/* Those of both products of backward: w is dweight's, which a frozen weight does without, x dx's. Where dy is still on
 * its way (x->ranks) w->a is memory for its transpose, which is made behind dx's product. */
TE_IF_USED TE_API te_status te__fp8_backward(te_gemm *w, te_gemm *x, te_run *r, int i, te_value dy) {
    const te_fp8_product *f = &r->param[i]->fp8;
    const te_saved_input kept = te_saved_input_of(r, i);
    if (te_is_tiled(r, i)) return te__blockwise_backward(w, x, r, i, dy);
    const size_t bytes = (size_t)(te_capacity_rows(r) * dy.cols);
    const int trains = te_is_trained(r->param[i]), fixed = (r->plan->op[i].flags & TE_IS_FROZEN) != 0;
    void *y = dy.p, *yt = r->turned.p, *xt = kept.x;
    if (te_is_fp8(dy.dtype) && !yt && !fixed) TE_TRY(te__fp8_transpose(r, &yt, dy, trains && !x->ranks));
    else if (!te_is_fp8(dy.dtype)) {
        TE_TRY(te_scratch(r, &y, bytes));
        if (!fixed) TE_TRY(te_scratch(r, &yt, bytes));
        TE_TRY(te__fp8_cast(r, dy, f, f->dy, r->plan->fp8->gradients, y, trains ? yt : 0, 0));
    }
    if (!fixed && te_is_made_again(r, i)) TE_TRY(te__fp8_recompute_input(r, i, &xt, trains));
    else if (!fixed) { /* memory for the transpose in any case: the workspace is sized before a forward has kept x */
        const int turned = te_saved_is_transposed(r->turned_x, i);
        const te_value as_kept = te_value_of(kept.x, TE_e4m3, dy.rows, r->plan->op[i].in);
        TE_TRY(te__fp8_transpose(r, &xt, as_kept, trains && !turned));
        if (turned) xt = kept.x;
    }
    x->a = y, x->b = f->transposed, x->trans_b = 1;
    x->a_fp8 = te__fp8_operand(r->plan->fp8->gradients, f->scales ? te_scales_inverse(f->scales, f->dy) : 0);
    x->b_fp8 = te__fp8_operand(TE_e4m3, f->scales ? te_scales_inverse(f->scales, f->weight) : 0);
    w->a = yt, w->b = xt, w->trans_a = 0, w->trans_b = 1, w->k = te__fp8_rows(dy.rows);
    w->a_fp8 = x->a_fp8, w->b_fp8 = te__fp8_operand(TE_e4m3, kept.inverse);
    return TE_OK;
}

/* The kernels of a list that names `recipe`: `name`##_fp8. Ops may have other recipes than their list, but fp8_block
 * and fp8_row alone where the list names the same (te/ops/linear.h). weights, rounding: the list's options (declare.h).
 * backward: te__fp8_backward, or 0 where the list is for inference alone. */
#define TE_FP8_OPS(name, dtype, weights, rounding, recipe, backward)       \
    TE_JOIN1(TE__FP8_OPS_, recipe)(name, dtype, weights, rounding, backward)
#define TE__FP8_OPS_none TE__FP8_OPS_fp8_current
#define TE__FP8_OPS_fp8_delayed TE__FP8_OPS_fp8_current
#define TE__FP8_OPS_fp8_current(name, dtype, weights, rounding, backward)  \
    TE__FP8_OPS_OF_TENSORS(name, dtype, weights, rounding)                 \
    TE__FP8_OPS_TABLE(name, 0, 0, 0, 0, 0, 0, backward)
#define TE__FP8_OPS_fp8_block(name, dtype, weights, rounding, backward)    \
    TE__FP8_OPS_OF_TENSORS(name, dtype, weights, rounding)                 \
    TE_QUANTIZE_TILES(name##_tiles, dtype)                                 \
    TE_QUANTIZE_TILES_TABLE(name##_tiles, weights)                         \
    TE_GEMM_TILES(name##_product)                                          \
    TE__FP8_OPS_TABLE(name, name##_tiles_run, name##_product_run, name##_product_takes_bias, 0,            \
                      name##_tiles_table_run, 0, backward)
#define TE__FP8_OPS_fp8_row(name, dtype, weights, rounding, backward)      \
    TE__FP8_OPS_OF_TENSORS(name, dtype, weights, rounding)                 \
    TE_QUANTIZE_ROWS(name##_rows, dtype)                                   \
    TE_QUANTIZE_ROWS_TABLE(name##_rows, dtype)                             \
    TE__FP8_OPS_TABLE(name, 0, 0, 0, name##_rows_run, 0, name##_rows_table_run, backward)
#define TE__FP8_OPS_TABLE(name, tiles, product_of_tiles, takes_bias, rows, cast_by_block, cast_by_row, backward)       \
    static const te_fp8_ops name##_fp8 = {name##_quantize_run, name##_quantize_dy_run, name##_turn_run, te_gemm_run,   \
                                          tiles, product_of_tiles, takes_bias, rows,                                   \
                                          name##_quantize_table_run, cast_by_block, cast_by_row,                       \
                                          te__fp8_forward, backward, te__fp8_transpose_into, te__fp8_cast,                     \
                                          !name##_takes_dims, name##_saves_inputs, (te_dtype)name##_gradients,         \
                                          (te_rounding)name##_rounding, (te_dtype)name##_weights};
#define TE__FP8_OPS_OF_TENSORS(name, dtype, weights, rounding)             \
    TE_QUANTIZE_EIGHTS(name##_quantize, dtype)                             \
    TE_QUANTIZE_TABLE(name##_quantize, weights)                            \
    TE_JOIN1(TE__QUANTIZE_DY_, rounding)(name##_quantize, dtype)           \
    TE_TURN(name##_turn)
#define TE__QUANTIZE_DY_nearest(name, dtype)                               \
    TE_API te_status name##_dy_run(const te_quantize *q, te_context *ctx) { return name##_run(q, ctx); }
#define TE__QUANTIZE_DY_stochastic(name, dtype)                            \
    TE_QUANTIZE_BY_CHANCE(name, dtype)                                     \
    TE_API te_status name##_dy_run(const te_quantize *q, te_context *ctx) { return name##_by_chance_run(q, ctx); }

#endif
