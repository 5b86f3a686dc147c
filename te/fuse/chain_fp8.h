/* chain_fp8.h -- the pointers of a chain's kernel that stores FP8 for the product behind it. */
#ifndef TE_FUSE_CHAIN_FP8_H
#define TE_FUSE_CHAIN_FP8_H

#include "../plan/gradients.h" /* te_is_trained, te_run */
#include "chain.h"             /* te_chain, te_chain_shape */

/* Let the kernel store v, the operand of product i or this rank's rows of it, in FP8: at `at`, or in the workspace. v
 * becomes that. */
TE_API te_status te__chain_in_fp8(te_value *v, te_run *r, te_chain *c, int i, te_rows rows, void *at) {
    const te_fp8_product *f = &r->param[i]->fp8;
    const int backward = r->pass == TE_BACKWARD, index = backward ? f->dy : f->x;
    if (at) *v = te_value_of(at, TE_e4m3, te_rows_in(r, rows), v->cols);
    else TE_TRY(te_acquire(r, v, rows, v->cols, backward ? r->plan->fp8->gradients : TE_e4m3));
    c->fp8.y = v->p;
    if (r->pass == TE_FORWARD) te_keep_turned(r, i, 0);
    if (!f->scales) return TE_OK; /* sizing only */
    c->fp8.scale = f->scales->scale + index, c->fp8.amax = r->pass == TE_INFER ? 0 : f->scales->amax + index;
    c->fp8.inverse = r->pass == TE_FORWARD ? te_kept_of(r, i).inverse : 0;
    return TE_OK;
}

/* Whether the kernel stores the operand of product i, which is in memory for others as well where `kept`, with scales
 * of its own. In training fp8_block reads it transposed, too. */
TE_API int te__chain_scales(const te_run *r, int i, const te_chain_shape k, int kept) {
    if (!te_is_in_fp8(r, i) || !r->param[i]) return 0;
    if (!te_is_tiled(r, i)) return k.scaled == TE_SCALING_ROW && TE_IS_BY_ROW(r->plan->op[i].recipe);
    if (k.scaled != TE_SCALING_TILES || kept) return 0;
    return r->pass == TE_INFER || k.turns || (r->pass == TE_FORWARD && !te__keeps_fp8(r, i));
}
/* Let it do so, and v become that. Where v has memory it is stored there, too. */
TE_API te_status te__chain_in_scales(te_value *v, te_run *r, te_chain *c, int i, const te_chain_shape k) {
    c->y = v->p;
    TE_TRY(te_acquire_scaled(r, v, v->rows, v->cols, k.scaled));
    c->scaled.y = v->p, c->scaled.inverse = te_scales_behind(r, *v), c->scaled.rule = r->param[i]->fp8.own;
    c->scaled.yt_cols = te_round_up(v->rows, 16);
    return TE_OK;
}
/* The transpose of v, in training: forward keeps it, backward has it in `turned`. */
TE_API te_status te__chain_turns(te_value *turned, te_run *r, te_chain *c, int i, te_value v) {
    const te_kept_fp8 kept = te_kept_of(r, i);
    *turned = te_no_value();
    if (r->pass == TE_FORWARD) {
        if (!te__keeps_fp8(r, i)) return TE_OK;
        c->scaled.tiles = 1, c->scaled.yt = kept.x, c->scaled.yt_inverse = kept.inverse;
        te_keep_turned(r, i, 1);
        return TE_OK;
    }
    c->scaled.tiles = 1;
    if (r->plan->op[i].flags & TE_IS_FROZEN) return TE_OK;
    TE_TRY(te_acquire_scaled(r, turned, te_room_rows(r), v.cols, TE_SCALING_TILES));
    if (te_is_trained(r->param[i])) c->scaled.yt = turned->p, c->scaled.yt_inverse = te_scales_behind(r, *turned);
    return TE_OK;
}

/* Let the kernel for tiles run, which stores the gradient of product i with one scale as it lies, and v, its transpose,
 * where that has memory. */
TE_API void te__chain_by_tiles(te_run *r, te_chain *c, int i, te_value v) {
    const te_fp8_product *f = &r->param[i]->fp8;
    c->scaled.tiles = 1, c->scaled.scale = f->scales ? f->scales->scale + f->dy : 0;
    c->scaled.yt = v.p, c->scaled.yt_cols = te_round_up(c->rows, 16);
}
/* Let it do so. It runs whatever is frozen: the order of its sums, and so the bits of other gradients, do not depend on
 * that. Nor does the memory on what is frozen for a while. */
TE_API te_status te__chain_turned(te_value *turned, te_run *r, te_chain *c, int i, te_value v) {
    if (!(r->plan->op[i].flags & TE_IS_FROZEN))
        TE_TRY(te_acquire(r, turned, r->plan->op[i].out_rows, v.cols, v.dtype));
    te__chain_by_tiles(r, c, i, te_is_trained(r->param[i]) ? *turned : te_no_value());
    return TE_OK;
}

/* Let the kernel find the amax of what it stores for product i in the list's format. The walk's value is that. */
TE_API void te__chain_measure(te_run *r, te_chain *c, int i) {
    const te_fp8_product *f = &r->param[i]->fp8;
    c->fp8.amax = f->scales->amax + (r->pass == TE_BACKWARD ? f->dy : f->x);
    r->measured = 1;
}

#endif
