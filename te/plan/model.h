/* model.h -- what TE_SEQUENTIAL makes of a list: a table of ops, three tables of steps, and an instance's parameters.
 * Everything here is a constant but te_model (pointers to one instance's parameters) and te_saved (one forward's memory).
 */
#ifndef TE_MODEL_H
#define TE_MODEL_H

#include "../core/context.h" /* te_context, te_status */
#include "../core/tensor.h"  /* te_tensor, te_batch */

/* How an op takes part in a kernel.
 *   map    eight elements at a time, each on its own        bias, gelu, dropout, add, ...
 *   gated  a map from two halves of a row to one            swiglu, ...
 *   norm   needs the whole row                              layernorm, rmsnorm, l2norm
 *   gemm   a matrix product                                 linear
 *   own    brings its kernels along; never in a row         attention, embedding, cross_entropy, rope
 */
typedef enum te_class { TE_CLASS_map, TE_CLASS_gated, TE_CLASS_norm, TE_CLASS_gemm, TE_CLASS_own } te_class;

/* What backward needs of a forward, and what an op is to the walk. */
enum {
    TE_SAVES_INPUT = 1,  /* the op's input stays in memory until its backward */
    TE_SAVES_OUTPUT = 2, /* so does its output */
    TE_IS_FORK = 4,      /* passes its input on and keeps it for a later add */
    TE_IS_ADD = 8,       /* adds what its fork (or input) kept; backward hands the gradient over */
    TE_IS_INPUT = 16,    /* an extra input of the list, for a later add */
    TE_IS_OUTPUT = 32,   /* an extra output of the list */
    TE_SUMS = 64,        /* backward sums the gradient over rows into the op's first parameter (a bias) */
    TE_DRAWS = 128,      /* draws random numbers */
    TE_KEEPS_GRAD = 256  /* backward passes the gradient on unchanged (bias) */
};

typedef enum te_init { TE_INIT_normal, TE_INIT_zero, TE_INIT_one } te_init;

/* A parameter as the list declares it. */
typedef struct te_param_info {
    const char *field; /* "weight", "bias" */
    int64_t rows, cols;
    te_init init;
    int tied; /* has no memory of its own: te_tie() it to another */
} te_param_info;

enum { TE_MAX_PARAMS = 2 /* of one op */, TE_MAX_SPANS = TE_MAX_OPS / 3 /* two marks and an op */ };

typedef struct te_op {
    const char *kind, *name; /* "gelu", "act" */
    te_class op_class;
    int code;     /* which one of its family: TE_ACT_gelu */
    int in, out;  /* widths of a row */
    int flags;    /* TE_SAVES_INPUT, ... */
    int stats;    /* floats a row that backward needs beside: mean and rstd, log-sum-exp */
    int edge;     /* add: the index of its fork or input */
    float value[2]; /* the op's numbers: eps, probability, factor */
    int params;
    te_param_info param[TE_MAX_PARAMS];
} te_op;

struct te_run;
struct te_step;
typedef te_status (*te_step_fn)(struct te_run *run, const struct te_step *step);

/* A step of a plan: the ops that one row of the fusion list took, and the function that carries them out. */
typedef struct te_step {
    const char *row;     /* "linear_bias_gelu" */
    const char *kernels; /* the kernels' common name: "block_fc1_linear_bias_gelu" */
    int count;
    int op[TE_MAX_ROW]; /* indices into the op table, in the order of the pass */
    te_step_fn run;
} te_step;

/* Ops [first, last] of a list between (recompute, name) and (end_recompute, name): what the ops before the last one keep
 * for backward is not saved, backward computes it again. Marks are not in the table of ops. */
typedef struct te_span {
    const char *name;
    int first, last;
} te_span;

typedef struct te_plan {
    const char *name;
    te_dtype dtype;
    int in, out; /* widths at the ends */
    int op_count, forward_count, infer_count, backward_count;
    const te_op *op;
    const te_step *forward, *infer, *backward;
    int span_count; /* 0: everything is saved, with the same steps and so the same bits */
    const te_span *span;
    int takes_dims; /* 1: widths are symbols (plan/dims.h), and nothing runs by it */
} te_plan;

/* One parameter of one instance. */
typedef struct te_param {
    const char *op, *field;  /* "fc1", "weight" */
    void *data;              /* [rows, cols] of the model's dtype, target memory */
    float *grad;             /* [rows, cols]; null: no gradients are kept */
    int64_t rows, cols;
    te_init init;
    int tied;                /* its memory belongs to another parameter */
    int shared;              /* another is tied to it, and writes the gradient first: always add */
} te_param;

/* One instance: the first member of the struct that TE_SEQUENTIAL declares. `param` points to its parameters, in list order. */
typedef struct te_model {
    const te_plan *plan;
    te_param *param;
    int param_count;
} te_model;

/* What one forward keeps for its backward. Several may be in flight on the same parameters. The caller sets `memory`
 * (target memory, at least <model>_saved_bytes(rows), aligned to TE_ALIGN) and `bytes`; forward fills in the rest. x and
 * y of the forward must stay as they are until backward has run. */
typedef struct te_saved {
    void *memory;
    size_t bytes;
    const te_plan *plan;
    int64_t rows;
    const void *x;
    void *y;
    size_t used; /* of bytes; other dims (plan/dims.h) use others */
} te_saved;

/* ---- parameters ---------------------------------------------------------------------------------------------- */

/* Parameters lie in one buffer in list order, gradients in another; a tensor starts at a multiple of this many elements,
 * at the same element of both. So the optimizer, the gradient norm, a checkpoint and an all-reduce walk flat memory. */
enum { TE_PARAM_ALIGN = 128 };

/* A plan whose widths are still symbols is refused. */
TE_API te_status te__check_dims(const te_plan *plan, te_context *ctx) {
    TE_REQUIRE(!plan->takes_dims, ctx, TE_ERROR_STATE, "%s: its widths are known only at run time; call %s_set_dims first", plan->name, plan->name);
    return TE_OK;
}

/* Elements of the parameter buffer, the gaps between tensors included; 0 where widths are not known yet. */
TE_API int64_t te_plan_param_elements(const te_plan *plan) {
    int64_t n = 0;
    for (int i = 0; !plan->takes_dims && i < plan->op_count; i++)
        for (int k = 0; k < plan->op[i].params; k++) {
            const te_param_info *p = &plan->op[i].param[k];
            if (!p->tied) n += te_round_up(p->rows * p->cols, TE_PARAM_ALIGN);
        }
    return n;
}
TE_API size_t te_plan_param_bytes(const te_plan *plan) {
    return (size_t)te_plan_param_elements(plan) * te_dtype_bytes(plan->dtype);
}
TE_API size_t te_plan_grad_bytes(const te_plan *plan) { return (size_t)te_plan_param_elements(plan) * sizeof(float); }

/* Bind an instance to its memory: params (te_plan_param_bytes), grads (te_plan_grad_bytes; null for inference only).
 * Contents are left as they are. */
TE_API te_status te_model_bind(te_model *m, const te_plan *plan, te_param *param, int param_count, void *params, float *grads,
                               te_context *ctx) {
    TE_REQUIRE(m && ctx, ctx, TE_ERROR_NULL, "%s: the instance or the context is null", plan->name);
    TE_TRY(te__check_dims(plan, ctx));
    TE_REQUIRE(params || !te_plan_param_elements(plan), ctx, TE_ERROR_NULL, "%s: params is null", plan->name);
    TE_REQUIRE((uintptr_t)params % TE_ALIGN == 0 && (uintptr_t)grads % TE_ALIGN == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: params and grads must be aligned to %d bytes", plan->name, (int)TE_ALIGN);
    m->plan = plan, m->param = param, m->param_count = param_count;
    int64_t at = 0;
    for (int i = 0; i < plan->op_count; i++)
        for (int k = 0; k < plan->op[i].params; k++, param++) {
            const te_param_info *info = &plan->op[i].param[k];
            param->op = plan->op[i].name, param->field = info->field, param->rows = info->rows, param->cols = info->cols;
            param->init = info->init, param->tied = info->tied, param->shared = 0;
            param->data = 0, param->grad = 0;
            if (info->tied) continue;
            param->data = (char *)params + (size_t)at * te_dtype_bytes(plan->dtype);
            if (grads) param->grad = grads + at;
            at += te_round_up(info->rows * info->cols, TE_PARAM_ALIGN);
        }
    return TE_OK;
}

/* Let `user` (of a tied_linear) be `owner`'s memory. The backward of the user must run before the owner's, as it does
 * when the owner is the embedding of the same network: the user writes the gradient and the owner adds to it. */
TE_API te_status te_tie(te_param *user, te_param *owner, te_context *ctx) {
    TE_REQUIRE(user && owner && owner->data, ctx, TE_ERROR_NULL, "te_tie: a parameter is null or not bound");
    TE_REQUIRE(user->tied, ctx, TE_ERROR_VALUE, "te_tie: %s.%s has memory of its own; declare it as tied_linear", user->op, user->field);
    TE_REQUIRE(user->rows == owner->rows && user->cols == owner->cols, ctx, TE_ERROR_SHAPE,
               "te_tie: %s.%s is %lld x %lld, %s.%s is %lld x %lld", user->op, user->field, (long long)user->rows,
               (long long)user->cols, owner->op, owner->field, (long long)owner->rows, (long long)owner->cols);
    user->data = owner->data, user->grad = owner->grad, owner->shared = 1;
    return TE_OK;
}

#endif
