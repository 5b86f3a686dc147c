/* linear_tiles.h -- a linear whose product runs under fp8_block: what its operands are made of. All of them are e4m3.
 *
 *     y[rows, out] = x[rows, in]  weight[out, in]^T           x in tiles of 1 x 128, the weight in blocks of 128 x 128
 *     dx[rows, in] = dy[rows, out]  weight_t[in, out]^T       the same
 *     dw[out, in]  = dy_t[out, rows]  x_t[in, rows]^T         both in tiles of 1 x 128, along the rows
 *
 * The kernel that makes x or dy stores it so where that is a chain (chain_tiles.h), else a cast does. Backward has the
 * transpose of x again where x is saved for others or is what a norm or an activation gives, whose input is
 * (te_is_made_again); else forward keeps it, and its scales. Each transpose is rounded from the numbers themselves, not
 * from the other's bytes.
 */
#ifndef TE_FUSE_LINEAR_TILES_H
#define TE_FUSE_LINEAR_TILES_H

#include "../fp8/quantize_tiles.h" /* te_quantize_tiles */
#include "../gemm/gemm_tiles.h"    /* te_gemm, TE_GEMM_TILES */
#include "../plan/run.h"           /* te_run */
#include "linear_rows.h"           /* te__check_fine_grained */

/* A matrix in FP8, and its scales. */
typedef struct te_tiled { void *p; float *inverse; } te_tiled;

/* Memory for a value of `cols` columns, as it lies or transposed. */
TE_API te_status te__tiled_room(te_tiled *t, te_run *r, int cols, int turned) {
    const int64_t rows = te_room_rows(r);
    const int64_t scales = turned ? te_scaling_count(TE_SCALING_TILES, cols, rows)
                                  : te_scaling_count(TE_SCALING_TILES, rows, cols);
    void *inverse = 0;
    TE_TRY(te_scratch(r, &t->p, (size_t)(rows * cols)));
    TE_TRY(te_scratch(r, &inverse, (size_t)scales * sizeof(float)));
    t->inverse = (float *)inverse;
    return TE_OK;
}
/* v in tiles: as it lies and, where turned has memory, transposed with rows up to a multiple of 16. */
TE_API te_status te__tiled_cast(te_run *r, te_value v, const te_fp8_product *f, te_tiled to, te_tiled turned) {
    TE_TRY(te_as(&v, r, r->plan->dtype));
    te_quantize_tiles q = te_quantize_tiles_of(v.rows, v.cols);
    q.x = v.p, q.y = to.p, q.y_inverse = to.inverse, q.yt = turned.p, q.yt_inverse = turned.inverse;
    q.yt_cols = te_round_up(v.rows, 16), q.rule = f->own;
    return r->dry ? TE_OK : r->plan->fp8->tiles(&q, r->ctx);
}
TE_API te_gemm_fp8 te__tiled_operand(te_scaling scaling, const float *inverse) {
    te_gemm_fp8 o;
    o.scaling = scaling, o.dtype = TE_e4m3, o.inverse = inverse;
    return o;
}

/* The operands of y = x weight^T. */
TE_API te_status te__tiled_forward(te_gemm *g, te_run *r, int i, te_value x) {
    const te_fp8_product *f = &r->param[i]->fp8;
    const te_kept_fp8 kept = te_kept_of(r, i);
    const te_tiled turned = {kept.x, kept.inverse};
    te_tiled row = {0, 0};
    TE_TRY(te__check_fine_grained(r, i));
    if (r->pass == TE_FORWARD) te_keep_turned(r, i, 1);
    if (te_is_fp8(x.dtype)) row.p = x.p, row.inverse = te_scales_behind(r, x);
    else {
        TE_TRY(te__tiled_room(&row, r, x.cols, 0));
        TE_TRY(te__tiled_cast(r, x, f, row, turned));
    }
    g->a = row.p, g->b = f->data, g->trans_b = 1;
    g->a_fp8 = te__tiled_operand(TE_SCALING_TILES, row.inverse);
    g->b_fp8 = te__tiled_operand(TE_SCALING_BLOCKS, f->inverse);
    return TE_OK;
}
/* The transpose of what linear i read, again: of its input, which is saved, or of what gave that. */
TE_API te_status te__tiled_again(te_run *r, int i, te_tiled turned) {
    const te_tiled none = {0, 0};
    const te_again again = {turned.p, turned.inverse, 0, 0, 0};
    if (te__input_is_saved(r, i)) return te__tiled_cast(r, te_input_of(r, i), &r->param[i]->fp8, none, turned);
    return r->dry ? TE_OK : te__step_again(r, i, again);
}
/* Those of both products of backward: w is dweight's, which a frozen weight does without, x dx's. */
TE_API te_status te__tiled_backward(te_gemm *w, te_gemm *x, te_run *r, int i, te_value dy) {
    const te_fp8_product *f = &r->param[i]->fp8;
    const te_kept_fp8 kept = te_kept_of(r, i);
    const te_tiled none = {0, 0};
    te_tiled row = none, turned = none, xt = {kept.x, kept.inverse};
    TE_TRY(te__check_fine_grained(r, i));
    if (te_is_fp8(dy.dtype)) {
        row.p = dy.p, row.inverse = te_scales_behind(r, dy);
        turned.p = r->turned.p, turned.inverse = te_scales_behind(r, r->turned);
    } else {
        TE_TRY(te__tiled_room(&row, r, dy.cols, 0));
        if (!(r->plan->op[i].flags & TE_IS_FROZEN)) TE_TRY(te__tiled_room(&turned, r, dy.cols, 1));
        TE_TRY(te__tiled_cast(r, dy, f, row, te_is_trained(r->param[i]) ? turned : none));
    }
    if (!xt.p && !(r->plan->op[i].flags & TE_IS_FROZEN)) {
        TE_TRY(te__tiled_room(&xt, r, r->plan->op[i].in, 1));
        if (te_is_trained(r->param[i])) TE_TRY(te__tiled_again(r, i, xt));
    }
    x->a = row.p, x->b = f->transposed, x->trans_b = 1;
    x->a_fp8 = te__tiled_operand(TE_SCALING_TILES, row.inverse);
    x->b_fp8 = te__tiled_operand(TE_SCALING_BLOCKS, f->transposed_inverse);
    w->a = turned.p, w->b = xt.p, w->trans_a = 0, w->trans_b = 1, w->k = te_round_up(dy.rows, 16);
    w->a_fp8 = te__tiled_operand(TE_SCALING_TILES, turned.inverse);
    w->b_fp8 = te__tiled_operand(TE_SCALING_TILES, xt.inverse);
    return TE_OK;
}

#endif
