/* linear_rows.h -- a linear whose product runs under fp8_row: y[rows, out] = x[rows, in] weight[out, in]^T of e4m3,
 * with a scale for each row of x and of the weight. Made for inference: what a row gives depends on no other row.
 * Backward runs in the list's own format, with the weight and x as they are, so forward keeps x as without a recipe.
 */
#ifndef TE_FUSE_LINEAR_ROWS_H
#define TE_FUSE_LINEAR_ROWS_H

#include "../fp8/quantize_rows.h" /* te_quantize_rows */
#include "../gemm/gemm_types.h"   /* te_gemm */
#include "../plan/run.h"          /* te_run */

/* Whether this device has products whose scales are not of tensors: those of fp8_row and of fp8_block. */
TE_API te_status te__check_fine_grained(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    TE_REQUIRE(!TE_CUDA || r->ctx->capability == 900, r->ctx, TE_ERROR_DEVICE,
               "%s: (%s, %s): products of fp8_block and fp8_row need compute capability 9.0; device %d has %d.%d",
               r->plan->name, op->kind, op->name, r->ctx->device, r->ctx->capability / 100,
               r->ctx->capability / 10 % 10);
    return TE_OK;
}

TE_API te_gemm_fp8 te__row_operand(const float *inverse) {
    te_gemm_fp8 o;
    o.scaling = TE_SCALING_ROW, o.dtype = TE_e4m3, o.inverse = inverse;
    return o;
}
/* The operands of y = x weight^T. x is in FP8 where the kernel before has stored it so (chain_scaled.h). */
TE_API te_status te__row_forward(te_gemm *g, te_run *r, int i, te_value x) {
    const te_fp8_product *f = &r->param[i]->fp8;
    void *inverse = 0;
    TE_TRY(te__check_fine_grained(r, i));
    g->b = f->data, g->trans_b = 1, g->fast = 1, g->b_fp8 = te__row_operand(f->inverse);
    if (te_is_fp8(x.dtype)) {
        g->a = x.p, g->a_fp8 = te__row_operand(te_scales_behind(r, x));
        return TE_OK;
    }
    TE_TRY(te_as(&x, r, r->plan->dtype));
    te_quantize_rows q = te_quantize_rows_of(x.rows, x.cols);
    TE_TRY(te_scratch(r, &q.y, (size_t)(te_room_rows(r) * x.cols)));
    TE_TRY(te_scratch(r, &inverse, (size_t)te_room_rows(r) * sizeof(float)));
    q.x = x.p, q.inverse = (float *)inverse, q.rule = f->own;
    g->a = q.y, g->a_fp8 = te__row_operand(q.inverse);
    return r->dry ? TE_OK : r->plan->fp8->rows(&q, r->ctx);
}

#endif
