/* linear_microscaled.h -- the operands of a linear under the recipes mxfp8 and nvfp4. No GPU before Blackwell
 * multiplies these formats, so the GEMMs are emulated: each operand is rounded to the format, and the GEMM reads the
 * rounded values in the model's dtype:
 *
 *     y[rows, out] = x weight^T           x and the weight rowwise: blocks along `in`
 *     dx[rows, in] = dy weight            dy rowwise and the weight columnwise: blocks along `out`
 *     dw[out, in]  = dy^T x               dy and x columnwise: blocks along the rows
 *
 * mxfp8 rounds all operands to nearest. nvfp4 differs in three ways. A block of the weight has 16 x 16 elements, so
 * that the weight has the same values rowwise and columnwise. Columnwise x and dy are Hadamard-transformed before they
 * are rounded (te_hadamard16). And dy is rounded stochastically. The model's options (square_blocks, off), (hadamard,
 * off) and (rounding, nearest) switch these three differences off.
 *
 * The values of mxfp8 are exact in bf16 and f32 (in f16 down to 2^-24); the values of nvfp4 are rounded to the model's
 * dtype, because a tensor's scale is an arbitrary f32 number. Forward saves x in the model's dtype, as without a
 * recipe, and the weight is cast at each use, so te_recipes holds no copies of weights.
 */
#ifndef TE_LINEAR_MICROSCALED_H
#define TE_LINEAR_MICROSCALED_H

#include "../../fp8/impl/quantize_mxfp8.h" /* TE_ROUND_MXFP8 */
#include "../../fp8/impl/quantize_nvfp4.h" /* TE_ROUND_NVFP4, te_hadamard16 */
#include "../../gemm/gemm.h"               /* te_gemm */
#include "../../plan/impl/storage.h"       /* te_run, te__scratch */

/* The number of the first Philox stream with which gradients are rounded; each GEMM has two streams. */
enum { TE__MICROSCALED_STREAMS = 0x66704d00 };

/* Returns the number of rows of an operand of the weight gradient: `rows`, rounded up to a multiple of 16 if the
 * Hadamard transform is on, which needs whole blocks of 16 rows. */
TE_API int64_t te__microscaled_rows(const te_run *r, int64_t rows) {
    return r->plan->fp8->hadamard ? te_round_up(rows, TE_NVFP4_BLOCK) : rows;
}
/* Acquires scratch memory for an operand of `rows` rows in the model's dtype. */
TE_API te_status te__microscaled_scratch(void **memory, te_run *r, int64_t rows, int64_t cols) {
    return te__scratch(r, memory, (size_t)(rows * cols) * te_dtype_bytes(r->plan->dtype));
}
/* Rounds x [rows, cols], in the model's dtype, to the format of linear i: rowwise to y, columnwise to yt. y or yt may
 * be null. q: a cast whose sizes and options are set; this function sets its pointers. runs: 0 if only memory is to be
 * acquired. */
TE_API te_status te__microscaled_round(te_run *r, te_quantize_microscaled q, const void *x, void *y, void *yt,
                                       int runs) {
    void *amax = 0;
    TE_TRY(te__scratch(r, &amax, TE_ALIGN));
    q.x = x, q.amax = (float *)amax, q.y.rounded = y, q.yt.rounded = yt;
    return r->dry || !runs ? TE_OK : r->plan->fp8->quantize_microscaled(&q, r->ctx);
}
/* Rounds the weight of linear i for forward (columnwise 0) or for dx (columnwise 1), to scratch memory. */
TE_API te_status te__microscaled_weight(void **rounded, te_run *r, int i, int columnwise) {
    const te_param *p = r->param[i];
    te_quantize_microscaled q = te_quantize_microscaled_of(r->plan->op[i].out, r->plan->op[i].in);
    q.square_blocks = r->plan->fp8->square_blocks;
    TE_TRY(te__microscaled_scratch(rounded, r, q.rows, q.cols));
    return te__microscaled_round(r, q, p->data, columnwise ? 0 : *rounded, columnwise ? *rounded : 0, 1);
}

/* ---- forward and backward ---------------------------------------------------------------------------------------- */

/* Sets the operands of the GEMM y = x weight^T of linear i. */
TE_API te_status te__microscaled_forward(te_gemm *g, te_run *r, int i, te_value x) {
    void *a = 0, *b = 0;
    TE_TRY(te__convert_value(&x, r, r->plan->dtype));
    TE_TRY(te__microscaled_scratch(&a, r, te__capacity_of_value(r, &x), x.cols));
    TE_TRY(te__microscaled_round(r, te_quantize_microscaled_of(x.rows, x.cols), x.data, a, 0, 1));
    TE_TRY(te__microscaled_weight(&b, r, i, 0));
    g->a = a, g->b = b, g->b_is_new = 1;
    return TE_OK;
}
/* Rounds dy, the gradient that linear i reads, rowwise for dx and columnwise for the weight gradient. No memory is
 * acquired for yt if the model declares the weight as frozen. */
TE_API te_status te__microscaled_gradient(void **y, void **yt, te_run *r, int i, te_value dy) {
    const te_op *op = &r->plan->op[i];
    te_quantize_microscaled q = te_quantize_microscaled_of(dy.rows, dy.cols);
    const int64_t capacity = te__capacity_of_value(r, &dy);
    TE_TRY(te__microscaled_scratch(y, r, capacity, dy.cols));
    if (!(op->flags & TE_IS_FROZEN))
        TE_TRY(te__microscaled_scratch(yt, r, te__microscaled_rows(r, capacity), dy.cols));
    q.hadamard = r->plan->fp8->hadamard, q.rng = r->plan->fp8->rounding == TE_ROUNDING_stochastic ? r->rng : 0;
    q.stream = TE__MICROSCALED_STREAMS + 2 * (uint32_t)i;
    return te__microscaled_round(r, q, dy.data, te__needs_input_grad(r, i) ? *y : 0,
                                 te_is_trained(r->param[i]) ? *yt : 0, 1);
}
/* Sets the operands of both GEMMs of backward. w: the GEMM for dweight, which is skipped if the weight is frozen. x:
 * the GEMM for dx. */
TE_API te_status te__microscaled_backward(te_gemm *w, te_gemm *x, te_run *r, int i, te_value dy) {
    void *y = 0, *yt = 0, *xt = 0, *weight = 0;
    TE_TRY(te__convert_value(&dy, r, r->plan->dtype));
    TE_TRY(te__microscaled_gradient(&y, &yt, r, i, dy));
    if (!(r->plan->op[i].flags & TE_IS_FROZEN)) {
        te_value in = te__input_of(r, i);
        TE_TRY(te__convert_value(&in, r, r->plan->dtype));
        te_quantize_microscaled q = te_quantize_microscaled_of(in.rows, in.cols);
        q.hadamard = r->plan->fp8->hadamard;
        TE_TRY(te__microscaled_scratch(&xt, r, te__microscaled_rows(r, te__capacity_of_value(r, &in)), in.cols));
        TE_TRY(te__microscaled_round(r, q, in.data, 0, xt, te_is_trained(r->param[i])));
    }
    TE_TRY(te__microscaled_weight(&weight, r, i, 1));
    x->a = y, x->b = weight, x->b_is_new = 1;
    w->a = yt, w->trans_a = 1, w->b = xt, w->k = te__microscaled_rows(r, dy.rows);
    return TE_OK;
}

/* ---- functions that depend on the recipe ------------------------------------------------------------------------- */

/* Defines the cast of a model under mxfp8 or nvfp4, and its table of functions, `name`##_fp8 (TE_FP8_OPS). backward:
 * te__fp8_backward, or 0 if the model is for inference only. */
#define TE__MICROSCALED_OPS_mxfp8(name, dtype, weights, rounding, backward)                             \
    TE_ROUND_MXFP8(name##_mxfp8, dtype)                                                                 \
    TE__MICROSCALED_TABLE(name, TE_JOIN1(TE__MICROSCALED_, backward), name##_mxfp8_run, 0)
#define TE__MICROSCALED_OPS_nvfp4(name, dtype, weights, rounding, backward)                             \
    TE_ROUND_NVFP4(name##_nvfp4, dtype)                                                                 \
    TE__MICROSCALED_TABLE(name, TE_JOIN1(TE__MICROSCALED_, backward), name##_nvfp4_run, 1)
#define TE__MICROSCALED_te__fp8_backward te__microscaled_backward
#define TE__MICROSCALED_0 0
#define TE__MICROSCALED_TABLE(name, back, run, is_nvfp4)                                                 \
    static const te_fp8_ops name##_fp8 = {                                                              \
        TE_MEMBER(quantize, 0), TE_MEMBER(quantize_dy, 0), TE_MEMBER(transpose_fp8, 0),                 \
        TE_MEMBER(product, 0), TE_MEMBER(quantize_blockwise, 0), TE_MEMBER(gemm_blockwise, 0),          \
        TE_MEMBER(blockwise_takes_bias, 0), TE_MEMBER(quantize_rowwise, 0), TE_MEMBER(cast_weights, 0), \
        TE_MEMBER(cast_weights_by_block, 0), TE_MEMBER(cast_weights_by_row, 0),                         \
        TE_MEMBER(forward, te__microscaled_forward), TE_MEMBER(backward, back),                     \
        TE_MEMBER(transpose, 0), TE_MEMBER(cast, 0), TE_MEMBER(fixed_widths, !name##_takes_dims),       \
        TE_MEMBER(saves_inputs, name##_saves_inputs), TE_MEMBER(gradients, TE_e4m3),                    \
        TE_MEMBER(rounding, (te_rounding)name##_rounding), TE_MEMBER(weights, (te_dtype)name##_weights), \
        TE_MEMBER(quantize_microscaled, run),                                                           \
        TE_MEMBER(hadamard, (is_nvfp4) && (int)name##_hadamard == (int)TE_SWITCH_on),                   \
        TE_MEMBER(square_blocks, (is_nvfp4) && (int)name##_square_blocks == (int)TE_SWITCH_on)};

#endif
