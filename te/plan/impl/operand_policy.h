/* operand_policy.h -- for each op of a list and each pass: in which format its operands come, who stores them so, and
 * what of them is saved for backward or recomputed. One record an op and pass, computed once when a call begins; the
 * executor, the sizes and the printed plan read it. The rules are functions of constants, and the macros that choose
 * kernels (te/pointwise, te/linear) call the same ones.
 *
 * "Operand" is what flows: in forward the input x of an op, in backward the gradient dy of its output. FP8 products of
 * backward read x as well, transposed, for the weight's gradient: te_operand_policy.input says where that comes from.
 */
#ifndef TE_OPERAND_POLICY_H
#define TE_OPERAND_POLICY_H

#include "../../fp8/scales.h" /* te_scaling */
#include "../model.h" /* te_plan, te_op, te_param, te_recipe */

/* Which of the products that name a recipe run in FP8: as each parameter says or, where only sizes are asked for, none;
 * all, their operands cast; all, their operands stored in FP8 by the kernels that produce them; the same, with scales
 * that all ranks have in common. */
typedef enum te_recipe_use {
    TE_USE_as_bound,
    TE_USE_off,
    TE_USE_on,
    TE_USE_stored,
    TE_USE_common
} te_recipe_use;

/* Where backward takes a product's input from, for its weight's gradient in FP8. */
typedef enum te_input_source {
    TE_INPUT_not_needed,   /* there is no such gradient, or it runs in the list's format */
    TE_INPUT_saved_fp8,    /* forward saves it in FP8, as it lies or transposed */
    TE_INPUT_saved_for_others, /* it is saved in the list's format, for other ops: cast again, with forward's scale */
    TE_INPUT_recomputed    /* its producer's kernel runs again, from the input that the producer saved */
} te_input_source;

typedef struct te_operand_policy {
    unsigned char fp8;               /* the product runs in FP8 in this pass */
    unsigned char scaling;           /* and its operand is scaled so, a te_scaling */
    unsigned char
        stored_by_producer; /* the kernel that produces the operand stores it in FP8: the scale is known before */
    unsigned char amax_by_producer;  /* that kernel finds the operand's amax, of which the scale is */
    unsigned char gathered;          /* the operand may be gathered from all ranks in FP8: they have the same scale */
    unsigned char input;             /* a te_input_source; the same for both passes */
    unsigned char output_read;       /* backward reads the op's output, or a fork saves it; the same for both passes */
    unsigned char output_saved;      /* that, or a recompute region begins with it: it lies in memory after forward */
} te_operand_policy;

/* ---- the rules --------------------------------------------------------------------------------------------------- */

/* Whether an op's output can be recomputed from its saved input and its parameters alone, once more in the list's
 * format: it is deterministic, and reads no fork. */
TE_BOTH int te__is_recomputable(int flags, te_dtype out, te_dtype list) {
    const int reads_fork = TE_IS_ADD | TE_IS_MUL | TE_IS_LOAD | TE_IS_CROSS;
    return (flags & TE_SAVES_INPUT) && !(flags & (TE_DRAWS | reads_fork)) && out == list;
}
/* Whether backward's gradient changes as it passes an op with these flags. */
TE_BOTH int te__changes_gradient(int flags) { return !(flags & TE_GRAD_UNCHANGED); }
/* How far the consumer of an op's result is: the next op or, where that passes the value through, the one behind.
 * passes_through: TE_PASSES_VALUE in forward, TE_PASSES_GRAD in backward; no two such ops follow each other. */
TE_BOTH int te__consumer_distance(int next_flags, int passes_through) { return next_flags & passes_through ? 2 : 1; }
/* The scaling of operands under a recipe: with one scale a tensor, a scale a row, or a scale for each 1 x 128. */
TE_BOTH te_scaling te__scaling_of_recipe(int recipe) {
    return (te_scaling)TE_SCALING_OF(recipe);
}
/* Whether the kernel that stores an operand finds its scales itself, because each is of a part of a row. */
TE_BOTH int te__has_local_scales(te_scaling s) { return s == TE_SCALING_ROWWISE || s == TE_SCALING_BLOCKWISE_1D; }

/* ---- the op before, the step before ------------------------------------------------------------------------------ */

/* The op whose output op i reads in forward, past ops that pass it through. -1: it reads the list's x. */
TE_API int te__producer_of(const te_plan *p, int i) {
    for (i--; i >= 0 && (p->op[i].flags & TE_PASSES_VALUE);) i--;
    return i;
}
/* The forward step that ends with op i and can recompute that op alone, because it reads what the step's kernel reads,
 * or is its norm. null: there is none. */
TE_API const te_step *te__recomputing_step(const te_plan *p, int i) {
    const te_op *op = &p->op[i];
    for (int k = 0; k < p->forward_count; k++) {
        const te_step *s = &p->forward[k];
        const te_op *first = &p->op[s->op[p->op[s->op[0]].op_class == TE_CLASS_gemm]];
        if (s->op[s->count - 1] != i) continue;
        if (p->op[s->op[0]].op_class == TE_CLASS_custom && !(p->op[s->op[0]].flags & TE_LEADS_POINTWISE)) return 0;
        for (int j = 0; j < s->count - 1; j++)
            if (p->op[s->op[j]].op_class == TE_CLASS_norm) return 0;
        return op->op_class == TE_CLASS_norm || (first->in == op->in && first->in_dtype == op->in_dtype) ? s : 0;
    }
    return 0;
}

/* ---- the records ------------------------------------------------------------------------------------------------- */

/* Where product i, whose weight has a gradient in FP8, has its input from in backward. */
TE_API te_input_source te__input_source_of(const te_plan *p, int i) {
    const int from = te__producer_of(p, i);
    /* an input may be needed after a recompute region that it lies in is closed again */
    if (p->region_count || !p->fp8 || p->fp8->saves_inputs || from < 0) return TE_INPUT_saved_fp8;
    const te_op *op = &p->op[from];
    if ((op->flags & TE_SAVES_OUTPUT) || ((op->flags & TE_IS_FORK) && !(op->flags & TE_IS_INPUT)))
        return TE_INPUT_saved_for_others;
    const int has_kernels = p->fp8->fixed_widths && !p->fp8->quantize_rowwise; /* which store a transpose alone */
    const int is_pointwise = op->op_class != TE_CLASS_gemm && op->op_class != TE_CLASS_custom;
    if (has_kernels && is_pointwise && te__is_recomputable(op->flags, op->out_dtype, p->dtype) &&
        te__recomputing_step(p, from))
        return TE_INPUT_recomputed;
    return TE_INPUT_saved_fp8;
}
/* Whether product i runs in FP8, in forward or in inference. */
TE_API int te__recipe_is_on(const te_plan *p, int i, te_recipe_use use, te_param *const *param) {
    if (p->op[i].recipe == TE_RECIPE_none) return 0;
    return use == TE_USE_as_bound ? param[i]->fp8.on : use != TE_USE_off;
}
TE_API te_operand_policy te__product_policy(const te_plan *p, int i, int backward, te_recipe_use use,
                                            te_param *const *param) {
    const te_op *op = &p->op[i];
    te_operand_policy o = {0, 0, 0, 0, 0, 0, 0, 0};
    if (!te__recipe_is_on(p, i, use, param)) return o;
    const te_fp8_product *bound = use == TE_USE_as_bound ? &param[i]->fp8 : 0;
    const int trains = !TE_IS_ROWWISE(op->recipe); /* backward of fp8_row runs in the list's format */
    if (trains && !(op->flags & TE_IS_FROZEN)) o.input = (unsigned char)te__input_source_of(p, i);
    if (backward && !trains) return o;
    o.fp8 = 1, o.scaling = (unsigned char)te__scaling_of_recipe(op->recipe);
    if (o.scaling != TE_SCALING_TENSORWISE) return o;
    const int scale_is_known = bound ? !bound->current : use >= TE_USE_stored;
    /* gradients that are rounded stochastically are rounded by a cast */
    o.stored_by_producer = scale_is_known && (!backward || !p->fp8 || p->fp8->rounding == TE_ROUNDING_nearest);
    o.amax_by_producer = bound && bound->current;
    o.gathered = o.stored_by_producer && (bound ? bound->common : use == TE_USE_common);
    return o;
}
/* Whether backward reads the output of op i in the list's format, or a fork saves it. next: the policy of its consumer,
 * which saves its input in FP8 instead, if it is a product that trains so. */
TE_API int te__output_is_read(const te_plan *p, const te_operand_policy *backward, int i) {
    if (p->op[i].flags & TE_SAVES_OUTPUT) return 1;
    while (i + 1 < p->op_count && (p->op[i + 1].flags & TE_PASSES_VALUE)) i++;
    if (i + 1 == p->op_count || backward[i + 1].fp8) return 0;
    if (te__recomputes_logits(p, i)) return 0;
    return (p->op[i + 1].flags & (TE_SAVES_INPUT | TE_IS_FORK)) != 0 || te__recomputes_logits(p, i + 1);
}
/* Whether op i, in recompute region k, leaves something that backward has to compute again: not the region's last op,
 * whose output is saved for the ops behind it. */
TE_API int te__is_lost(const te_plan *p, const te_operand_policy *forward, int k, int i) {
    const te_op *op = &p->op[i];
    if (i >= p->region[k].last) return 0;
    return op->stats || forward[i].input == TE_INPUT_saved_fp8 ||
           (forward[i].output_read && !(op->flags & (TE_IS_FORK | TE_IS_LOAD)));
}
/* All of them: policy[0] of forward and inference, policy[1] of backward. Behind the last op: nothing. */
TE_API void te__init_policies(te_operand_policy policy[2][TE_MAX_OPS + 1], const te_plan *p, te_recipe_use use,
                              te_param *const *param) {
    const int on = p->fp8 && use != TE_USE_off;
    for (int pass = 0; pass < 2; pass++) {
        memset(policy[pass], 0, (size_t)(p->op_count + 1) * sizeof policy[pass][0]);
        for (int i = 0; on && i < p->op_count; i++) policy[pass][i] = te__product_policy(p, i, pass, use, param);
    }
    for (int i = 0; i < p->op_count; i++) {
        const int read = te__output_is_read(p, policy[1], i);
        for (int pass = 0; pass < 2; pass++)
            policy[pass][i].output_read = policy[pass][i].output_saved = (unsigned char)read;
    }
    for (int k = 0; k < p->region_count; k++) { /* what a recompute region begins with is saved */
        const int before = p->region[k].first - 1;
        for (int j = before + 1; before >= 0 && j < p->region[k].last; j++)
            if (te__is_lost(p, policy[0], k, j)) policy[0][before].output_saved = policy[1][before].output_saved = 1;
    }
}

#endif
