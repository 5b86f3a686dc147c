/* dims.h -- widths that are known only at run time: symbols in a list, numbers in an instance.
 *
 * Do this:
 *     #define HIDDEN TE_DIM(0)
 *     #define FFN TE_DIM(1)
 *     TE_SEQUENTIAL_DIMS(mlp, bf16, (layernorm, ln, HIDDEN), (linear, fc1, HIDDEN, 2 * FFN), (swiglu, act),
 *                        (linear, fc2, FFN, HIDDEN))
 *     static mlp m;
 *     const int64_t dims[2] = {hidden, ffn};
 *     TE_TRY(mlp_set_dims(&m, dims, 2, &ctx));
 *     TE_TRY(te_allocate(&ctx, &params, mlp_param_bytes(&m))); // functions that return sizes take &m here
 *
 * In a list, a width may be a symbol, or a symbol times a constant. The number that such a width has at run time may be
 * 1 to TE_MAX_WIDTH; the width of a norm may be only 1 to TE_MAX_NORM_WIDTH.
 *
 * Each symbol TE_DIM(k) is a negative constant. The constants are chosen so that m and k can be recovered from the
 * product m * TE_DIM(k). Therefore widths with symbols can be compared at compile time like other numbers. A negative
 * width that is not such a product, like the sum of two different symbols, is a compile-time error.
 */
#ifndef TE_DIMS_H
#define TE_DIMS_H

#include "model.h" /* te_plan, te_op */

enum {
    TE_DIMS = 8,              /* number of symbols: TE_DIM(0) to TE_DIM(7); each may be multiplied by a constant of 1 to
                               * 2047 */
    TE_MAX_WIDTH = 8388608,   /* 2^23, the largest width; it is small enough that grid sizes and byte counts cannot
                               * overflow */
    TE_MAX_NORM_WIDTH = 65536 /* the largest width of a norm: 1024 threads hold a row in registers, and each thread
                               * holds 8 vectors of 8 elements */
};
/* TE_DIM(k) is symbol number k, which stands for a width; k is 0 to TE_DIMS - 1. TE_IS_DIM(w) says whether the width w
 * is a symbol times a constant. */
#define TE_DIM(k) (-(1048573 - 2 * (k) * (k) * ((k) * (k) + 13)))
#define TE_IS_DIM(w)                                                                                                   \
    ((w) < 0 && ((w) % TE_DIM(0) == 0 || (w) % TE_DIM(1) == 0 || (w) % TE_DIM(2) == 0 || (w) % TE_DIM(3) == 0 ||       \
                 (w) % TE_DIM(4) == 0 || (w) % TE_DIM(5) == 0 || (w) % TE_DIM(6) == 0 || (w) % TE_DIM(7) == 0))

/* Whether the list of `model` may use w as a width. w may be a positive number; if the list was declared with
 * TE_SEQUENTIAL_DIMS, w may also be a symbol times a constant. */
#define TE_IS_WIDTH(model, w) ((w) > 0 || (TE_JOIN2(, model, takes_dims) && TE_IS_DIM(w)))
/* The width that a kernel uses. If the list states the width as a number (`constant`), the macro returns this number.
 * If the list states a symbol, the macro returns `at_run_time`, an argument of the kernel. */
#define TE_WIDTH_AT(constant, at_run_time) ((int)(constant) > 0 ? (int)(constant) : (at_run_time))

/* Return the index k of the symbol TE_DIM(k) of which the width w is a multiple, or -1 if w is a plain number. */
TE_API int te__dim_of(int64_t w) {
    for (int k = 0; w < 0 && k < TE_DIMS; k++)
        if (w % TE_DIM(k) == 0) return k;
    return -1;
}
/* Return the number that results if dims[k] replaces the symbol TE_DIM(k) in the width w. Return 0 if this number
 * exceeds TE_MAX_WIDTH. */
TE_API int64_t te__width_at(int64_t w, const int64_t *dims) {
    const int k = te__dim_of(w);
    if (k < 0) return w;
    w = w / TE_DIM(k) * dims[k];
    return w <= TE_MAX_WIDTH ? w : 0;
}
/* Set *op to a copy of the op *of. In the copy, the number dims[k] replaces the symbol TE_DIM(k) in every width. */
TE_API te_status te__op_at(te_op *op, const te_plan *plan, const te_op *of, const int64_t *dims, te_context *ctx) {
    *op = *of;
    op->in = (int)te__width_at(of->in, dims), op->out = (int)te__width_at(of->out, dims);
    int fits = op->in && op->out;
    for (int k = 0; k < op->params; k++) {
        te_param_info *p = &op->param[k];
        p->rows = te__width_at(p->rows, dims), p->cols = te__width_at(p->cols, dims);
        fits &= p->rows && p->cols;
    }
    TE_REQUIRE(fits, ctx, TE_ERROR_OVERFLOW, "%s_set_dims: (%s, %s) becomes wider than %d", plan->name, of->kind,
               of->name, (int)TE_MAX_WIDTH);
    TE_REQUIRE(op->op_class != TE_CLASS_norm || op->in <= TE_MAX_NORM_WIDTH, ctx, TE_ERROR_OVERFLOW,
               "%s_set_dims: (%s, %s) has %d columns, a norm takes %d at most", plan->name, of->kind, of->name, op->in,
               (int)TE_MAX_NORM_WIDTH);
    const int columns = TE_FP8_COLUMNS(op->recipe);
    TE_REQUIRE(op->recipe == TE_RECIPE_none || (op->in % columns == 0 && op->out % columns == 0), ctx, TE_ERROR_SHAPE,
               "%s_set_dims: (%s, %s) has %d input and %d output columns; a product in FP8 has multiples of %d",
               plan->name, of->kind, of->name, op->in, op->out, columns);
    return TE_OK;
}
/* Return the number of dims that the caller must pass for a list: one more than the highest k of a symbol TE_DIM(k) in
 * the list. */
TE_API int te__dims_of(const te_plan *plan) {
    int last = -1;
    for (int i = 0; i < plan->op_count; i++) {
        const te_op *op = &plan->op[i];
        last = (int)te_max(last, te_max(te__dim_of(op->in), te__dim_of(op->out)));
        for (int k = 0; k < op->params; k++)
            last = (int)te_max(last, te_max(te__dim_of(op->param[k].rows), te__dim_of(op->param[k].cols)));
    }
    return last + 1;
}
/* Set *sized to a copy of `plan`, and the array ops[plan->op_count] to the ops of this copy. In the copy the number
 * dims[k] replaces the symbol TE_DIM(k). <model>_set_dims calls this function; afterwards the instance must be bound
 * again, and a te_saved that was filled before is no longer valid. TE_ERROR_SHAPE: `count` is not the number of dims
 * that the list takes, or an FP8 GEMM gets a width that is no multiple of 16; TE_ERROR_VALUE: a dim is not positive;
 * TE_ERROR_OVERFLOW: a width exceeds TE_MAX_WIDTH or, for a norm, TE_MAX_NORM_WIDTH. */
TE_API te_status te_plan_set_dims(te_plan *sized, te_op *ops, const te_plan *plan, const int64_t *dims, int count,
                                  te_context *ctx) {
    te_op op;
    TE_REQUIRE(plan, ctx, TE_ERROR_NULL, "te_plan_set_dims: the plan is null");
    TE_TRY(te__check_context(ctx, plan->name));
    TE_REQUIRE(sized && ops && dims, ctx, TE_ERROR_NULL, "%s_set_dims: the instance or the dims are null", plan->name);
    const int takes = te__dims_of(plan);
    TE_REQUIRE(count == takes, ctx, TE_ERROR_SHAPE, "%s_set_dims: %d dims were given, the list takes %d", plan->name,
               count, takes);
    for (int k = 0; k < count; k++) {
        TE_REQUIRE(dims[k] > 0, ctx, TE_ERROR_VALUE, "%s_set_dims: TE_DIM(%d) is %lld, it must be positive", plan->name,
                   k, (long long)dims[k]);
        TE_REQUIRE(dims[k] <= TE_MAX_WIDTH, ctx, TE_ERROR_OVERFLOW,
                   "%s_set_dims: TE_DIM(%d) is %lld, a width is %d at most", plan->name, k, (long long)dims[k],
                   (int)TE_MAX_WIDTH);
    }
    for (int i = 0; i < plan->op_count; i++) TE_TRY(te__op_at(&op, plan, &plan->op[i], dims, ctx));
    for (int i = 0; i < plan->op_count; i++) TE_TRY(te__op_at(&ops[i], plan, &plan->op[i], dims, ctx));
    *sized = *plan;
    sized->op = ops, sized->takes_dims = 0;
    sized->in = (int)te__width_at(plan->in, dims), sized->out = (int)te__width_at(plan->out, dims);
    return TE_OK;
}
/* Return the plan that an instance runs: `sized`, whose widths are numbers, if <model>_set_dims has made it; otherwise
 * `plan`, whose widths are still symbols, so that every call returns an error. */
TE_API const te_plan *te__plan_at(const te_plan *sized, const te_plan *plan) {
    return sized && sized->infer == plan->infer && !sized->takes_dims ? sized : plan;
}

#endif
