/* linear_fp8.h -- the operands of a linear whose GEMMs run in FP8, by recipe. x and the weight are e4m3. dy is e4m3
 * under fp8_block, and if the model has the option (gradients, e4m3); otherwise dy is e5m2. FP8 GEMMs read both
 * operands along k, so three transposes are needed as well, weight_t, dy_t and x_t:
 *
 *     y[rows, out] = x[rows, in]  weight[out, in]^T
 *     dx[rows, in] = dy[rows, out]  weight_t[in, out]^T
 *     dw[out, in]  = dy_t[out, rows]  x_t[in, rows]^T        rows padded with zeros to a multiple of 16
 *
 *   recipe       scales                                     x and dy become FP8 in
 *   fp8_delayed  one per tensor, from earlier iterations    the kernel that produces them, else a cast
 *   fp8_current  one per tensor, from its own amax          a cast, after the kernel that produces them and their
 *                                                           amax; or that kernel, run again (TE_VALUE_amax_only)
 *   fp8_block    1 x 128 of x and dy, 128 x 128 of weights  the kernel that produces them, else a cast
 *   fp8_row      one for each row of x and of the weight    the kernel that produces x, else a cast; no FP8 in backward
 *
 * te_operand_policy.input says in which of three ways backward obtains x_t. First: forward has saved x in FP8, and
 * backward transposes it, unless a cast or a GEMM has already stored the transpose. Second: backward casts x again.
 * Third: backward reruns the kernel that has produced x in forward, and the kernel then stores only x_t. Under
 * fp8_block each transpose is rounded from the original values, not from the FP8 values of the other layout.
 */
#ifndef TE_LINEAR_FP8_H
#define TE_LINEAR_FP8_H

#include "../../fp8/impl/cast_transpose.h" /* te_quantize */
#include "../../fp8/impl/quantize_rowwise.h" /* te_quantize_rowwise */
#include "../../fp8/impl/quantize_blockwise.h" /* te_quantize_blockwise */
#include "../../gemm/gemm.h" /* te_gemm */
#include "../../gemm/gemm_blockwise.h" /* TE_GEMM_BLOCKWISE */
#include "../../plan/impl/storage.h" /* te_run, te__policy */

/* Return the number of columns of a transpose: the number of rows of the original, rounded up to a multiple of 16,
 * because FP8 GEMMs need a k that is a multiple of 16. */
TE_API int64_t te__fp8_rows(int64_t rows) { return te_round_up(rows, 16); }

TE_API te_gemm_fp8 te__fp8_operand(te_scaling scaling, te_dtype dtype, const float *inverse) {
    te_gemm_fp8 o;
    o.scaling = scaling, o.dtype = dtype, o.inverse = inverse;
    return o;
}
/* Describes a GEMM operand in FP8 with one scale for the tensor. index: the index of the operand's scale in `scales`.
 * scales: null in a dry run that only measures sizes. */
TE_API te_gemm_fp8 te__tensorwise_operand(te_dtype dtype, const te_scales *scales, int index) {
    return te__fp8_operand(TE_SCALING_TENSORWISE, dtype, scales ? te_scales_inverse(scales, index) : 0);
}

/* ---- fp8_row ----------------------------------------------------------------------------------------------------- */

/* Sets the operands of the GEMM y = x weight^T under fp8_row. x is already in FP8 if the kernel that produced it has
 * stored it in FP8 (pointwise_quantize.h); otherwise this function casts it. */
TE_API te_status te__rowwise_forward(te_gemm *g, te_run *r, int i, te_value x) {
    const te_fp8_product *f = &r->param[i]->fp8;
    void *inverse = 0;
    TE_TRY(te__check_local_scales(r, i));
    g->b = f->data, g->trans_b = 1, g->fast = 1, g->b_fp8 = te__fp8_operand(TE_SCALING_ROWWISE, TE_e4m3, f->inverse);
    if (te_is_fp8(x.dtype)) {
        g->a = x.data, g->a_fp8 = te__fp8_operand(TE_SCALING_ROWWISE, TE_e4m3, x.inverse_scale);
        return TE_OK;
    }
    TE_TRY(te__convert_value(&x, r, r->plan->dtype));
    te_quantize_rowwise q = te__quantize_rowwise_of(x.rows, x.cols);
    TE_TRY(te__scratch(r, &q.y, (size_t)(te__capacity_rows(r) * x.cols)));
    TE_TRY(te__scratch(r, &inverse, (size_t)te__capacity_rows(r) * sizeof(float)));
    q.x = x.data, q.inverse = (float *)inverse, q.rule = f->own;
    g->a = q.y, g->a_fp8 = te__fp8_operand(TE_SCALING_ROWWISE, TE_e4m3, q.inverse);
    return r->dry ? TE_OK : r->plan->fp8->quantize_rowwise(&q, r->ctx);
}

/* ---- fp8_block --------------------------------------------------------------------------------------------------- */

/* A matrix in e4m3 with a scale for each 1 x 128 elements. data: the elements; inverse: the inverses of the scales. */
typedef struct te_blockwise_matrix { void *data; float *inverse; } te_blockwise_matrix;

/* Acquires scratch memory for a value of `cols` columns in FP8 and its scales. transposed: 1 if the memory is for the
 * value's transpose. */
TE_API te_status te__blockwise_scratch(te_blockwise_matrix *t, te_run *r, int cols, int transposed) {
    const int64_t rows = te__capacity_rows(r);
    const int64_t scales = transposed ? te_scaling_count(TE_SCALING_BLOCKWISE_1D, cols, rows)
                                      : te_scaling_count(TE_SCALING_BLOCKWISE_1D, rows, cols);
    void *inverse = 0;
    TE_TRY(te__scratch(r, &t->data, (size_t)(rows * cols)));
    TE_TRY(te__scratch(r, &inverse, (size_t)scales * sizeof(float)));
    t->inverse = (float *)inverse;
    return TE_OK;
}
/* Casts v to FP8: untransposed to `to` and transposed to `transposed`. An output whose data is null is not stored. */
TE_API te_status te__blockwise_cast_value(te_run *r, te_value v, const te_fp8_product *f, te_blockwise_matrix to,
                                    te_blockwise_matrix transposed) {
    TE_TRY(te__convert_value(&v, r, r->plan->dtype));
    te_quantize_blockwise q = te__quantize_blockwise_of(v.rows, v.cols);
    q.x = v.data, q.y = to.data, q.y_inverse = to.inverse, q.yt = transposed.data, q.yt_inverse = transposed.inverse;
    q.yt_cols = te__fp8_rows(v.rows), q.rule = f->own;
    return r->dry ? TE_OK : r->plan->fp8->quantize_blockwise(&q, r->ctx);
}
/* Sets the operands of the GEMM y = x weight^T under fp8_block. */
TE_API te_status te__blockwise_forward(te_gemm *g, te_run *r, int i, te_value x) {
    const te_fp8_product *f = &r->param[i]->fp8;
    const te_saved_input saved = te__saved_input_of(r, i);
    const te_blockwise_matrix transposed = {saved.x, saved.inverse};
    te_blockwise_matrix a = {x.data, x.inverse_scale};
    TE_TRY(te__check_local_scales(r, i));
    if (r->pass == TE_FORWARD) te__set_saved_transposed(r, i, 1);
    if (!te_is_fp8(x.dtype)) {
        TE_TRY(te__blockwise_scratch(&a, r, x.cols, 0));
        TE_TRY(te__blockwise_cast_value(r, x, f, a, transposed));
    }
    g->a = a.data, g->b = f->data, g->trans_b = 1;
    g->a_fp8 = te__fp8_operand(TE_SCALING_BLOCKWISE_1D, TE_e4m3, a.inverse);
    g->b_fp8 = te__fp8_operand(TE_SCALING_BLOCKWISE_2D, TE_e4m3, f->inverse);
    return TE_OK;
}
/* Used if forward has not saved the input of linear i in FP8: computes the transpose of this input in FP8. */
TE_API te_status te__blockwise_recompute(te_run *r, int i, te_blockwise_matrix transposed) {
    const te_blockwise_matrix none = {0, 0};
    const te_recompute_target to = {0, transposed.data, transposed.inverse, 0, 0};
    if (te__policy(r, i)->input == TE_INPUT_saved_for_others)
        return te__blockwise_cast_value(r, te__input_of(r, i), &r->param[i]->fp8, none, transposed);
    return r->dry ? TE_OK : te__recompute_input(r, i, &to);
}
/* Sets the operands of both GEMMs of backward under fp8_block. w: the GEMM for dweight, which is skipped if the weight
 * is frozen. x: the GEMM for dx. */
TE_API te_status te__blockwise_backward(te_gemm *w, te_gemm *x, te_run *r, int i, te_value dy) {
    const te_fp8_product *f = &r->param[i]->fp8;
    const te_saved_input saved = te__saved_input_of(r, i);
    const te_blockwise_matrix none = {0, 0};
    const int frozen = (r->plan->op[i].flags & TE_IS_FROZEN) != 0, trains = te_is_trained(r->param[i]);
    te_blockwise_matrix a = {dy.data, dy.inverse_scale}, at = {dy.transposed, dy.transposed_inverse_scale};
    te_blockwise_matrix xt = {saved.x, saved.inverse};
    TE_TRY(te__check_local_scales(r, i));
    if (!te_is_fp8(dy.dtype)) {
        TE_TRY(te__blockwise_scratch(&a, r, dy.cols, 0));
        at = none;
        if (!frozen) TE_TRY(te__blockwise_scratch(&at, r, dy.cols, 1));
        TE_TRY(te__blockwise_cast_value(r, dy, f, a, trains ? at : none));
    }
    if (!xt.data && !frozen) {
        TE_TRY(te__blockwise_scratch(&xt, r, r->plan->op[i].in, 1));
        if (trains) TE_TRY(te__blockwise_recompute(r, i, xt));
    }
    x->a = a.data, x->b = f->transposed, x->trans_b = 1;
    x->a_fp8 = te__fp8_operand(TE_SCALING_BLOCKWISE_1D, TE_e4m3, a.inverse);
    x->b_fp8 = te__fp8_operand(TE_SCALING_BLOCKWISE_2D, TE_e4m3, f->transposed_inverse);
    w->a = at.data, w->b = xt.data, w->trans_a = 0, w->trans_b = 1, w->k = te__fp8_rows(dy.rows);
    w->a_fp8 = te__fp8_operand(TE_SCALING_BLOCKWISE_1D, TE_e4m3, at.inverse);
    w->b_fp8 = te__fp8_operand(TE_SCALING_BLOCKWISE_1D, TE_e4m3, xt.inverse);
    return TE_OK;
}

/* ---- fp8_delayed and fp8_current --------------------------------------------------------------------------------- */

/* The number of the first Philox stream of random numbers for the stochastic rounding of gradients; each scale has a
 * stream of its own. The number is far above the numbers of the ops' streams, which begin at 0. */
enum { TE__FP8_ROUNDING_STREAMS = 0x66703800 };

/* Casts v to FP8 with the scale at `index`: untransposed to y, transposed to yt; 1 / scale goes to `inverse`. Each of
 * y, yt and `inverse` may be null, in which case that output is not stored. Under fp8_current the scale is updated
 * first, from the amax of v; if the kernel that produced v has not computed the amax, this function computes it. */
TE_IF_USED TE_API te_status te__fp8_cast(te_run *r, te_value v, const te_fp8_product *f, int index, te_dtype to,
                                         void *y, void *yt, float *inverse) {
    const int has_amax = v.amax != 0;
    TE_TRY(te__convert_value(&v, r, r->plan->dtype));
    te_quantize q = te__quantize_of(v.rows, v.cols);
    if (r->dry) return TE_OK;
    q.x = v.data, q.to = to, q.amax = f->scales->amax + index;
    if (f->current) {
        if (!has_amax) TE_TRY(r->plan->fp8->quantize(&q, r->ctx));
        TE_TRY(te_scales_update(f->scales, index, 1, &f->own, r->ctx));
    }
    /* no amax is stored: under fp8_current the amax is known already, and under fp8_delayed inference must not change
     * the history of amaxes */
    if (f->current || r->pass == TE_INFER) q.amax = 0;
    q.rng = r->rng, q.stream = TE__FP8_ROUNDING_STREAMS + (uint32_t)index;
    q.y = y, q.yt = yt, q.yt_cols = te__fp8_rows(v.rows), q.scale = f->scales->scale + index, q.inverse = inverse;
    return index == f->dy ? r->plan->fp8->quantize_dy(&q, r->ctx) : r->plan->fp8->quantize(&q, r->ctx);
}
/* Transposes v, which is in FP8, to [cols, rows rounded up to a multiple of 16]. */
TE_API te_status te__fp8_transpose_into(te_run *r, te_value v, void *transposed) {
    te_quantize q = te__quantize_of(v.rows, v.cols);
    q.x = v.data, q.yt = transposed, q.yt_cols = te__fp8_rows(v.rows);
    return r->dry ? TE_OK : r->plan->fp8->transpose_fp8(&q, r->ctx);
}
/* Transposes v, which is in FP8, to scratch memory at *transposed. If `wanted` is 0, the function only acquires the
 * memory and computes nothing, because the workspace must have the same size whether the transpose is needed or not. */
TE_API te_status te__fp8_transpose(te_run *r, void **transposed, te_value v, int wanted) {
    TE_TRY(te__scratch(r, transposed, (size_t)(te__capacity_rows(r) * v.cols)));
    return wanted ? te__fp8_transpose_into(r, v, *transposed) : TE_OK;
}
/* Used if forward has not saved the input of linear i in FP8: computes the transpose of this input in FP8, with the
 * scale that forward used. If `wanted` is 0, the function only acquires memory for the transpose and computes
 * nothing. */
TE_API te_status te__fp8_recompute_input(te_run *r, int i, void **transposed, int wanted) {
    const te_saved_input saved = te__saved_input_of(r, i);
    te_value x = te__input_of(r, i);
    TE_TRY(te__scratch(r, transposed, (size_t)(te__capacity_rows(r) * x.cols)));
    if (r->policy[0][i].input == TE_INPUT_saved_for_others) {
        TE_TRY(te__convert_value(&x, r, r->plan->dtype));
        te_quantize q = te__quantize_of(x.rows, x.cols);
        q.x = x.data, q.yt = *transposed, q.yt_cols = te__fp8_rows(x.rows), q.scale = saved.inverse + 1;
        return r->dry || !wanted ? TE_OK : r->plan->fp8->quantize(&q, r->ctx);
    }
    const te_recompute_target to = {0, *transposed, 0, saved.inverse + 1, !r->policy[0][i].stored_by_producer};
    return r->dry || !wanted ? TE_OK : te__recompute_input(r, i, &to);
}
/* Called if the kernel that produces linear i's input has computed only the input's amax (TE_VALUE_amax_only). Updates
 * the scale, then runs that kernel a second time, which now stores the input in FP8 to y. */
TE_IF_USED TE_API te_status te__fp8_run_producer(te_run *r, int i, void *y) {
    const te_fp8_product *f = &r->param[i]->fp8;
    const te_recompute_target to = {y, 0, te__saved_input_of(r, i).inverse, f->scales->scale + f->x, 1};
    if (r->dry) return TE_OK;
    TE_TRY(te_scales_update(f->scales, f->x, 1, &f->own, r->ctx));
    return te__recompute_input(r, i, &to);
}
TE_IF_USED TE_API te_status te__tensorwise_forward(te_gemm *g, te_run *r, int i, te_value x) {
    const te_fp8_product *f = &r->param[i]->fp8;
    const te_saved_input saved = te__saved_input_of(r, i);
    void *y = x.data;
    if (!te_is_fp8(x.dtype)) {
        TE_TRY(te__scratch(r, &y, (size_t)(te__capacity_rows(r) * x.cols)));
        if (r->pass == TE_FORWARD) te__set_saved_transposed(r, i, 1);
        if (x.state == TE_VALUE_amax_only) TE_TRY(te__fp8_run_producer(r, i, y));
        else TE_TRY(te__fp8_cast(r, x, f, f->x, TE_e4m3, y, saved.x, saved.inverse));
    }
    g->a = y, g->b = f->data, g->trans_b = 1, g->fast = 1;
    g->a_fp8 = te__tensorwise_operand(TE_e4m3, f->scales, f->x);
    g->b_fp8 = te__tensorwise_operand(TE_e4m3, f->scales, f->weight);
    return TE_OK;
}
/* Sets *xt to the transpose of linear i's input, for the weight's gradient: the transpose that forward has saved, or a
 * transpose that this function computes. trains: 0 if the weight is not trained in this call; the function then
 * acquires the same memory but launches nothing. */
TE_API te_status te__tensorwise_saved_transpose(void **xt, te_run *r, int i, int64_t rows, int trains) {
    const te_saved_input saved = te__saved_input_of(r, i);
    if (r->policy[0][i].input != TE_INPUT_saved_fp8) return te__fp8_recompute_input(r, i, xt, trains);
    /* Memory for the transpose of x is acquired even if forward has saved the transpose: when the workspace of backward
     * is sized, it is not yet known in which layout forward will save x. */
    const int transposed = te__saved_is_transposed(r->saved_transposed, i);
    const te_value x = te__value_of(saved.x, TE_e4m3, rows, r->plan->op[i].in);
    TE_TRY(te__fp8_transpose(r, xt, x, trains && !transposed));
    if (transposed) *xt = saved.x;
    return TE_OK;
}
TE_IF_USED TE_API te_status te__tensorwise_backward(te_gemm *w, te_gemm *x, te_run *r, int i, te_value dy) {
    const te_fp8_product *f = &r->param[i]->fp8;
    const te_saved_input saved = te__saved_input_of(r, i);
    const size_t bytes = (size_t)(te__capacity_rows(r) * dy.cols);
    const int trains = te_is_trained(r->param[i]), frozen = (r->plan->op[i].flags & TE_IS_FROZEN) != 0;
    void *y = dy.data, *yt = dy.transposed, *xt = saved.x;
    if (te_is_fp8(dy.dtype) && !yt && !frozen) TE_TRY(te__fp8_transpose(r, &yt, dy, trains && !x->ranks));
    else if (!te_is_fp8(dy.dtype)) {
        TE_TRY(te__scratch(r, &y, bytes));
        if (!frozen) TE_TRY(te__scratch(r, &yt, bytes));
        TE_TRY(te__fp8_cast(r, dy, f, f->dy, r->plan->fp8->gradients, y, trains ? yt : 0, 0));
    }
    if (!frozen) TE_TRY(te__tensorwise_saved_transpose(&xt, r, i, dy.rows, trains));
    x->a = y, x->b = f->transposed, x->trans_b = 1;
    x->a_fp8 = te__tensorwise_operand(r->plan->fp8->gradients, f->scales, f->dy);
    x->b_fp8 = te__tensorwise_operand(TE_e4m3, f->scales, f->weight);
    w->a = yt, w->b = xt, w->trans_a = 0, w->trans_b = 1, w->k = te__fp8_rows(dy.rows);
    w->a_fp8 = x->a_fp8, w->b_fp8 = te__fp8_operand(TE_SCALING_TENSORWISE, TE_e4m3, saved.inverse);
    return TE_OK;
}

/* ---- functions that depend on the recipe ------------------------------------------------------------------------- */

/* Sets the operands of the GEMM y = x weight^T of linear i, according to the linear's recipe. */
TE_IF_USED TE_API te_status te__fp8_forward(te_gemm *g, te_run *r, int i, te_value x) {
    switch (te__scaling_of_recipe((int)r->plan->op[i].recipe)) {
    case TE_SCALING_BLOCKWISE_1D: return te__blockwise_forward(g, r, i, x);
    case TE_SCALING_ROWWISE: return te__rowwise_forward(g, r, i, x);
    default: return te__tensorwise_forward(g, r, i, x);
    }
}
/* Sets the operands of both GEMMs of backward, according to the linear's recipe. w: the GEMM for dweight, which is
 * skipped if the weight is frozen. x: the GEMM for dx. If dy is still being gathered (x->ranks is not null), w->a only
 * points to memory for the transpose of dy, which is computed later, when the GEMM for dx has run and all rows of dy
 * have arrived. */
TE_IF_USED TE_API te_status te__fp8_backward(te_gemm *w, te_gemm *x, te_run *r, int i, te_value dy) {
    return TE_IS_BLOCKWISE(r->plan->op[i].recipe) ? te__blockwise_backward(w, x, r, i, dy)
                                                  : te__tensorwise_backward(w, x, r, i, dy);
}

/* Defines the FP8 kernels of a model that names `recipe`, and the table of these kernels, `name`##_fp8. An op may have
 * another recipe than its model, but fp8_block and fp8_row are allowed only where the model names the same recipe
 * (te/ops/linear.h). weights, rounding: the model's options (declare.h). backward: te__fp8_backward, or 0 if the model
 * is for inference only. */
#define TE_FP8_OPS(name, dtype, weights, rounding, recipe, backward)       \
    TE_JOIN1(TE__FP8_OPS_, recipe)(name, dtype, weights, rounding, backward)
#define TE__FP8_OPS_none TE__FP8_OPS_fp8_current
#define TE__FP8_OPS_fp8_delayed TE__FP8_OPS_fp8_current
#define TE__FP8_OPS_fp8_current(name, dtype, weights, rounding, backward)  \
    TE__FP8_OPS_OF_TENSORS(name, dtype, weights, rounding)                 \
    TE__FP8_OPS_TABLE(name, 0, 0, 0, 0, 0, 0, backward)
#define TE__FP8_OPS_fp8_block(name, dtype, weights, rounding, backward)    \
    TE__FP8_OPS_OF_TENSORS(name, dtype, weights, rounding)                 \
    TE_QUANTIZE_BLOCKWISE(name##_tiles, dtype)                                 \
    TE_QUANTIZE_BLOCKWISE_MULTI_TENSOR(name##_tiles, weights)                         \
    TE_GEMM_BLOCKWISE(name##_product)                                          \
    TE__FP8_OPS_TABLE(name, name##_tiles_run, name##_product_run, name##_product_takes_bias, 0,            \
                      name##_tiles_multi_tensor_run, 0, backward)
#define TE__FP8_OPS_fp8_row(name, dtype, weights, rounding, backward)      \
    TE__FP8_OPS_OF_TENSORS(name, dtype, weights, rounding)                 \
    TE_QUANTIZE_ROWWISE(name##_rows, dtype)                                   \
    TE_QUANTIZE_ROWWISE_MULTI_TENSOR(name##_rows, dtype)                             \
    TE__FP8_OPS_TABLE(name, 0, 0, 0, name##_rows_run, 0, name##_rows_multi_tensor_run, backward)
/* te/microscaling.h redefines the following two macros. */
#define TE__FP8_OPS_mxfp8(name, ...) TE__NO_MICROSCALING(name, mxfp8)
#define TE__FP8_OPS_nvfp4(name, ...) TE__NO_MICROSCALING(name, nvfp4)
#define TE__NO_MICROSCALING(name, recipe)                                                                          \
    static_assert(0, "te: " #name ": (recipe, " #recipe ") needs te/microscaling.h; te/te.h leaves its kernels out"); \
    static const te_fp8_ops name##_fp8 = {0};
#define TE__FP8_OPS_TABLE(name, tiles, product_of_tiles, takes_bias, rows, cast_by_block, cast_by_row, backward)     \
    static const te_fp8_ops name##_fp8 = {name##_quantize_run, name##_quantize_dy_run, name##_turn_run, te_gemm_run, \
                                          tiles, product_of_tiles, takes_bias, rows,                                 \
                                          name##_quantize_multi_tensor_run, cast_by_block, cast_by_row,              \
                                          te__fp8_forward, backward, te__fp8_transpose_into, te__fp8_cast,           \
                                          !name##_takes_dims, name##_saves_inputs, (te_dtype)name##_gradients,       \
                                          (te_rounding)name##_rounding, (te_dtype)name##_weights, 0, 0, 0};
#define TE__FP8_OPS_OF_TENSORS(name, dtype, weights, rounding)             \
    TE_QUANTIZE_VEC8(name##_quantize, dtype)                             \
    TE_QUANTIZE_MULTI_TENSOR(name##_quantize, weights)                            \
    TE_JOIN1(TE__QUANTIZE_DY_, rounding)(name##_quantize, dtype)           \
    TE_TRANSPOSE_FP8(name##_turn)
#define TE__QUANTIZE_DY_nearest(name, dtype)                               \
    TE_API te_status name##_dy_run(const te_quantize *q, te_context *ctx) { return name##_run(q, ctx); }
#define TE__QUANTIZE_DY_stochastic(name, dtype)                            \
    TE_QUANTIZE_STOCHASTIC(name, dtype)                                     \
    TE_API te_status name##_dy_run(const te_quantize *q, te_context *ctx) { return name##_stochastic_run(q, ctx); }

#endif
