/* operand_policy.h -- the operand policy: a record for each op of a list and each pass. The record says in which format
 * the op's operand is stored, which kernel stores it in this format, and whether the operand is saved for backward or
 * recomputed. The records are computed once, when a call begins; the executor, the functions that compute sizes, and
 * the printed plan read them. The rules depend only on constants, so the macros that choose kernels (te/pointwise,
 * te/linear) can also apply the rules.
 *
 * The "operand" of an op is its input x in forward, and the gradient dy of its output in backward. To compute the
 * gradient of the weight, an FP8 GEMM of backward also reads the transpose of x; te_operand_policy.input says where
 * this transpose comes from.
 */
#ifndef TE_OPERAND_POLICY_H
#define TE_OPERAND_POLICY_H

#include "../../fp8/scales.h" /* te_scaling */
#include "../model.h" /* te_plan, te_op, te_param, te_recipe */

/* Which of the GEMMs that have an FP8 recipe run in FP8. Every forward, inference and backward call uses as_bound. The
 * other values are assumptions for computing the sizes of te_saved and of the workspace:
 *     as_bound  the GEMMs whose weight is bound in FP8
 *     off       none
 *     on        all; separate kernels cast their operands to FP8
 *     stored    all; the kernels that produce the operands store them in FP8
 *     common    all, as with `stored`; besides, all ranks have the same scales, so operands can be gathered in FP8 */
typedef enum te_recipe_use {
    TE_USE_as_bound,
    TE_USE_off,
    TE_USE_on,
    TE_USE_stored,
    TE_USE_common
} te_recipe_use;

/* Where backward gets the input x of an FP8 GEMM from. Backward needs x to compute the weight gradient dy^T x in
 * FP8. */
typedef enum te_input_source {
    TE_INPUT_not_needed,   /* backward does not read x in FP8: it computes no weight gradient, or computes the weight
                            * gradient in the list's dtype */
    TE_INPUT_saved_fp8,    /* forward saves the input x in FP8, row-major or transposed */
    TE_INPUT_saved_for_others, /* forward saves the input x in the list's dtype anyway, because the backward of another
                                * op needs x in this format; the backward of the GEMM casts x to FP8, with the scale
                                * that forward used */
    TE_INPUT_recomputed    /* backward recomputes the input x: backward runs once more the kernel that has produced x.
                            * The input of that kernel is saved */
} te_input_source;

typedef struct te_operand_policy {
    unsigned char fp8;               /* 1: in this pass the op is a GEMM in FP8, or a GEMM in the list's dtype whose
                                      * operands are rounded to emulate mxfp8 or nvfp4 */
    unsigned char scaling;           /* a te_scaling, which says how the operand of this GEMM is scaled */
    unsigned char
        stored_by_producer; /* 1: the kernel that produces the operand stores it in FP8; this is possible because the
                             * scale is known before the kernel runs */
    unsigned char amax_by_producer;  /* 1: the kernel that produces the operand computes the operand's amax, which
                                      * determines the scale */
    unsigned char gathered;          /* 1: all ranks have the same scale for the operand, so a collective that gathers
                                      * the operand can gather it in FP8 */
    unsigned char input;             /* a te_input_source: where backward gets the GEMM's input from. The records of
                                      * forward and backward have the same value */
    unsigned char output_read;       /* 1: backward reads the op's output, or this output is the value of a fork, which
                                      * forward saves. The records of forward and backward have the same value */
    unsigned char output_saved;      /* 1: the op's output is still in memory after forward, either because backward
                                      * reads the output (output_read) or because the output is the input of a recompute
                                      * region */
} te_operand_policy;

/* ---- the rules --------------------------------------------------------------------------------------------------- */

/* Return whether backward can recompute an op's output, in the list's dtype, from the op's saved input and parameters
 * alone. Recomputation requires that the op is deterministic and does not use a fork's value. */
TE_BOTH int te__is_recomputable(int flags, te_dtype out, te_dtype list) {
    const int reads_fork = TE_IS_ADD | TE_IS_MUL | TE_IS_LOAD | TE_IS_CROSS;
    return (flags & TE_SAVES_INPUT) && !(flags & (TE_DRAWS | reads_fork)) && out == list;
}
/* Return whether an op with these flags changes the gradient, i.e. whether the gradient of the op's input differs from
 * the gradient of the op's output. */
TE_BOTH int te__changes_gradient(int flags) { return !(flags & TE_GRAD_UNCHANGED); }
/* Return the distance, in ops, from an op to the op that consumes its result. The distance is 1 if the next op consumes
 * the result, and 2 if the next op only passes the value through (no two such ops follow each other). next_flags: the
 * flags of the next op. passes_through: TE_PASSES_VALUE in forward, TE_PASSES_GRAD in backward. */
TE_BOTH int te__consumer_distance(int next_flags, int passes_through) { return next_flags & passes_through ? 2 : 1; }
/* Return how a recipe scales operands: with one scale per tensor, per row, or per 1 x 128 tile. */
TE_BOTH te_scaling te__scaling_of_recipe(int recipe) {
    return (te_scaling)TE_SCALING_OF(recipe);
}
/* Return whether a kernel that stores an operand in FP8 can compute the operand's scales itself. The kernel can do so
 * if each scale depends on one row at most, because the kernel holds the whole row. */
TE_BOTH int te__has_local_scales(te_scaling s) { return s == TE_SCALING_ROWWISE || s == TE_SCALING_BLOCKWISE_1D; }

/* ---- the op before, the step before ------------------------------------------------------------------------------ */

/* Return the index of the op whose output op i reads in forward, skipping ops that only pass a value through. The
 * result is -1 if op i reads the list's x. */
TE_API int te__producer_of(const te_plan *p, int i) {
    for (i--; i >= 0 && (p->op[i].flags & TE_PASSES_VALUE);) i--;
    return i;
}
/* Return the forward step whose last op is op i, if the step's kernel can recompute the output of op i without running
 * the other ops of the step; else null. The kernel then reads op i's saved input in place of the step's input. The
 * kernel can do so if the input of op i has the same width and format as the input of the step's pointwise kernel, or
 * if op i is the norm of that kernel. */
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

/* Return where backward gets the input x of GEMM i from, if the GEMM's weight gradient is computed in FP8. */
TE_API te_input_source te__input_source_of(const te_plan *p, int i) {
    const int from = te__producer_of(p, i);
    /* If the list has recompute regions, the input may lie in the memory of a region. When forward closes the region,
     * other values use this memory, and backward would not find the input. Therefore forward saves it in FP8. */
    if (p->region_count || !p->fp8 || p->fp8->saves_inputs || from < 0) return TE_INPUT_saved_fp8;
    const te_op *op = &p->op[from];
    if ((op->flags & TE_SAVES_OUTPUT) || ((op->flags & TE_IS_FORK) && !(op->flags & TE_IS_INPUT)))
        return TE_INPUT_saved_for_others;
    /* whether the list has kernels that can store the transpose of an operand without the operand itself */
    const int has_kernels = p->fp8->fixed_widths && !p->fp8->quantize_rowwise;
    const int is_pointwise = op->op_class != TE_CLASS_gemm && op->op_class != TE_CLASS_custom;
    if (has_kernels && is_pointwise && te__is_recomputable(op->flags, op->out_dtype, p->dtype) &&
        te__recomputing_step(p, from))
        return TE_INPUT_recomputed;
    return TE_INPUT_saved_fp8;
}
/* Return whether GEMM i runs in FP8 in forward or in inference. `use` says which GEMMs run in FP8 (te_recipe_use);
 * param[i] is the first parameter of op i. */
TE_API int te__recipe_is_on(const te_plan *p, int i, te_recipe_use use, te_param *const *param) {
    if (p->op[i].recipe == TE_RECIPE_none) return 0;
    return use == TE_USE_as_bound ? param[i]->fp8.on : use != TE_USE_off;
}
TE_API te_operand_policy te__product_policy(const te_plan *p, int i, int backward, te_recipe_use use,
                                            te_param *const *param) {
    const te_op *op = &p->op[i];
    te_operand_policy o = {0, 0, 0, 0, 0, 0, 0, 0};
    /* An expert_linear casts its operands in its own kernels, and computes its weight gradient in the list's dtype. */
    if (!te__recipe_is_on(p, i, use, param) || op->experts) return o;
    const te_fp8_product *bound = use == TE_USE_as_bound ? &param[i]->fp8 : 0;
    const int trains = !TE_IS_ROWWISE(op->recipe); /* 1: backward also uses FP8. Under fp8_row, backward runs in the
                                                    * list's dtype */
    if (trains && !TE_IS_MICROSCALED(op->recipe) && !(op->flags & TE_IS_FROZEN))
        o.input = (unsigned char)te__input_source_of(p, i);
    if (backward && !trains) return o;
    o.fp8 = 1, o.scaling = (unsigned char)te__scaling_of_recipe((int)op->recipe);
    if (o.scaling != TE_SCALING_TENSORWISE) return o;
    const int scale_is_known = bound ? !bound->current : use >= TE_USE_stored;
    /* Only a separate cast kernel can round stochastically. Therefore, if the list rounds gradients stochastically, the
     * kernel that produces a gradient does not store the gradient in FP8. */
    o.stored_by_producer = scale_is_known && (!backward || !p->fp8 || p->fp8->rounding == TE_ROUNDING_nearest);
    o.amax_by_producer = bound && bound->current;
    o.gathered = o.stored_by_producer && (bound ? bound->common : use == TE_USE_common);
    return o;
}
/* Return whether backward reads the output of op i in the list's dtype, or this output is the value of a fork, which
 * forward saves. If the consumer of the output is a GEMM that runs in FP8 in backward, backward reads the GEMM's FP8
 * input instead of the output. (Under mxfp8 and nvfp4, backward does read the output, and rounds it once more, along
 * its columns.) `backward` has the policies of backward. */
TE_API int te__output_is_read(const te_plan *p, const te_operand_policy *backward, int i) {
    if (p->op[i].flags & TE_SAVES_OUTPUT) return 1;
    while (i + 1 < p->op_count && (p->op[i + 1].flags & (TE_PASSES_VALUE | TE_IS_OUTPUT))) i++;
    if (i + 1 == p->op_count || (backward[i + 1].fp8 && !TE_IS_MICROSCALED(p->op[i + 1].recipe))) return 0;
    if (te__recomputes_logits(p, i) || te__is_regathered(p, i) || te__is_combined(p, i)) return 0;
    return (p->op[i + 1].flags & (TE_SAVES_INPUT | TE_IS_FORK)) != 0 || te__recomputes_logits(p, i + 1);
}
/* Return whether backward must recompute something of op i because op i lies in recompute region k: the output, the FP8
 * input or the row statistics of op i. Without the region, forward would have saved these values. For the last op of a
 * region, the result is 0, because forward saves the values of this op for the ops behind the region. */
TE_API int te__is_lost(const te_plan *p, const te_operand_policy *forward, int k, int i) {
    const te_op *op = &p->op[i];
    if (i >= p->region[k].last) return 0;
    return op->stats || forward[i].input == TE_INPUT_saved_fp8 ||
           (forward[i].output_read && !(op->flags & (TE_IS_FORK | TE_IS_LOAD)));
}
/* Compute the policies of all ops: policy[0] for forward and inference, policy[1] for backward. Behind the entry of the
 * last op, each array has one more entry, which is all zeros, so that code may read the policy of op i + 1 for every op
 * i. */
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
    for (int k = 0; k < p->region_count; k++) { /* if any value of region k must be recomputed, forward saves the output
                                                 * of the op before the region, which is the region's input */
        const int before = p->region[k].first - 1;
        for (int j = before + 1; before >= 0 && j < p->region[k].last; j++)
            if (te__is_lost(p, policy[0], k, j)) policy[0][before].output_saved = policy[1][before].output_saved = 1;
    }
    /* The output of an (output, ..) is its unchanged input. Therefore this value is saved only once, as the output of
     * the op before the (output, ..) (te__place). */
    for (int i = p->op_count - 1; i > 0; i--) {
        if (!(p->op[i].flags & TE_IS_OUTPUT) || !policy[0][i].output_saved) continue;
        policy[0][i - 1].output_saved = policy[1][i - 1].output_saved = 1;
    }
}

#endif
