/* attention_gives.h -- what attention gives beside its result to a list with a recipe: in inference the operand of the
 * product behind it, in e4m3, in the place of the result; and the largest magnitude of the result, and of its gradient,
 * where the scale of a cast is of that. Each is a pass over the tensor less.
 */
#ifndef TE_OPS_ATTENTION_GIVES_H
#define TE_OPS_ATTENTION_GIVES_H

#include "../attention/attention_args.h" /* te_attention_args */
#include "../plan/impl/storage.h"                 /* te_acquire, te_is_measured, te_is_stored_in_fp8 */

/* The option gives. In backward it costs 2 to 4% at some head sizes, so only where the recipe wants every amax. */
#define TE__ATTENTION_GIVES_FORWARD(model) ((int)model##_names_recipe)
#define TE__ATTENTION_GIVES_BACKWARD(model) ((int)model##_recipe == (int)TE_RECIPE_fp8_current)

/* Whether the kernel stores its result in FP8, for the product behind it: in inference, where nobody else reads it. */
TE_API int te__attention_gives_fp8(const te_run *r, const te_step *s, int gives) {
    return gives && r->pass == TE_INFER && r->plan->dtype != TE_f32 && !te_last_step(r, s) &&
           te_policy(r, s->op[0] + 1)->stored_by_producer;
}
TE_API te_status te__attention_out_in_fp8(te_value *y, te_attention_args *a, te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    const te_fp8_product *f = &r->param[i + 1]->fp8;
    TE_TRY(te_acquire(r, y, op->out_rows, op->out, TE_e4m3));
    if (f->scales) a->out_scale = f->scales->scale + f->x; /* else sizes are measured */
    return TE_OK;
}
/* The amax of what the kernel stores, y, the operand of product i, where the cast wants it of that; else null. */
TE_API float *te__attention_amax(const te_run *r, const te_step *s, int i, te_value y, int gives) {
    if (!gives || r->dry || !y.data || r->plan->dtype == TE_f32 || te_last_step(r, s)) return 0;
    if (i < 0 || !te_finds_amax(r, i, y.dtype)) return 0;
    const te_fp8_product *f = &r->param[i]->fp8;
    return f->scales->amax + (r->pass == TE_BACKWARD ? f->dy : f->x);
}

#endif
