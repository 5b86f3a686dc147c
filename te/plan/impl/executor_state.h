/* executor_state.h -- what the executor (executor.h) knows while it runs the steps of a plan: the rows of this call,
 * the policies, the current value, what forks and forward saved, and the work that is still to be launched.
 */
#ifndef TE_EXECUTOR_STATE_H
#define TE_EXECUTOR_STATE_H

#include "../../core/rank_group.h" /* te_tensor_group */
#include "../../core/tensor.h" /* te_sequences */
#include "../../gemm/gemm_types.h" /* te_gemm */
#include "operand_policy.h" /* te_operand_policy, te_recipe_use */
#include "value.h" /* te_value, te_pool */

typedef enum te_pass { TE_FORWARD, TE_INFER, TE_BACKWARD } te_pass;

enum { TE_BACKWARD_STOP_dx = -1 }; /* of te_run: a backward computes dx, and so goes through all of the list */

/* Backward runs a forward step once more for one operand of a product (te__recompute_input): where the operand goes.
 * One of the two is null. */
typedef struct te_recompute_target {
    void *data;           /* [rows, cols] in FP8, */
    void *transposed;     /* or [cols, rows up to a multiple of 16] */
    float *inverse_scale; /* gets 1 / the scales of the transpose's tiles, or of `data` 1 / scale and the scale */
    const float *scale;   /* the scale that forward had; null: scales of tiles, which the step finds again */
    int rounds_first;     /* the operand was rounded to the list's format before it became FP8 */
} te_recompute_target;

/* The work that the current value still waits for, by its state (value.h). */
typedef struct te_deferred_work {
    te_value from;   /* deferred_gather: this rank's rows of it; deferred_product: its A. It stays until then */
    te_gemm product; /* deferred_product: the product, whose D is the current value, */
    struct te_product_kernels *kernels; /* and the kernels that run it by itself */
} te_deferred_work;

/* The product of a weight's gradient that is deferred until rows are gathered, to run beside the copy
 * (te/linear/impl/linear_comm_overlap.h). */
typedef struct te_deferred_wgrad {
    int is_there, runs; /* runs: the weight trains */
    te_gemm product;
    te_value a, b; /* its operands, whose blocks stay */
} te_deferred_wgrad;

/* Column sums over the blocks of a kernel (gradients.h): total[width] (+)= the sum of partial[count, width]. */
enum { TE_SUM_JOBS = 16, TE_SUMS_A_STEP = 3 /* at most: dgamma, dbeta, dbias */ };
typedef struct te_sum_job {
    const float *partial; /* [count, width] */
    float *total;         /* [width] */
    int width, count, accumulate;
} te_sum_job;
typedef struct te_sum_args { te_sum_job job[TE_SUM_JOBS]; } te_sum_args;

typedef struct te_run {
    /* the call */
    const te_plan *plan;
    const te_batch *batch;
    const te_model *model;         /* null where only sizes are measured */
    te_context *ctx;
    te_pass pass;
    int dry;                       /* checks and measures; nothing is launched */
    const te_group *tensor, *data; /* the groups of this rank */
    int64_t tokens, sequences, memory; /* rows by te_rows. Where only tokens are known: as many sequences and, in a list
                                        * with an input of memory, as many rows of memory */
    int64_t capacity;              /* rows that blocks of the workspace are sized for, if more than the call's */
    te_value x, y, dx, dy;         /* the caller's tensors */
    int loss_in_backward;          /* forward leaves y to backward, which writes it */
    int backward_stop;             /* the first op of the list with something to compute in backward (executor.h) */

    /* the list under this call's recipe */
    te_recipe_use use;
    te_operand_policy policy[2][TE_MAX_OPS + 1]; /* of forward and inference, of backward: te__policy() */
    te_param *param[TE_MAX_OPS];   /* by op: its first parameter */

    /* values */
    te_value current;              /* forward: the activation; backward: its gradient, data null if nobody wants it */
    te_value edge[TE_MAX_OPS];     /* by fork: in inference its value; in backward its gradient from the uses so far */
    te_deferred_work deferred;     /* what `current` waits for, where its state says so */
    const te_recompute_target *recompute; /* not null: the step recomputes its last op for backward, into that */
    struct te_kernel_shape *describe; /* not null: the step runs nothing, and says which pointwise kernel it has */
    const void *pass_input, *last_step_input; /* where the pass begins, and where its last step reads (call_checks.h) */
    te_pool pool;                  /* the workspace */

    /* what forward saves: addresses in te_saved, or in the workspace inside an open recompute region */
    te_saved *saved;               /* forward: what it fills; null while backward runs a forward step once more */
    size_t saved_bytes;            /* of te_saved.memory that this call uses */
    void *act[TE_MAX_OPS];         /* by op: its output; null: not saved */
    float *stats[TE_MAX_OPS];      /* by op: row statistics, [rows, stats] */
    char *saved_input[TE_MAX_OPS]; /* by product in FP8: its input and scales, te__saved_input_of() */
    uint32_t saved_transposed[TE_OP_BITS]; /* by product in FP8, a bit: that input is saved transposed */
    te_value region[TE_MAX_RECOMPUTE_REGIONS]; /* by recompute region: its block; data null: closed */

    /* random numbers */
    te_rng *rng;                   /* the state that this forward draws from */
    te_rng_args take;              /* it is still to be taken: by the first pointwise kernel, or a kernel of its own */

    /* gradients */
    te_sum_args sums;              /* column sums that are still to be added up over the blocks of their kernels */
    int partial[TE_SUM_JOBS];      /* the blocks of the workspace that they lie in */
    const te_param *sum_of[TE_SUM_JOBS]; /* whose gradients they are */
    int sum_count;
    te_sum_args columns;           /* of gradients that are one number: the sums over columns, added up behind those */
    int column_count;
    te_deferred_wgrad deferred_wgrad;
    te_watch *watch;               /* who is told which gradients are final; null: nobody */
} te_run;

/* How op i's operand comes in this pass, and what of it is saved. */
TE_API const te_operand_policy *te__policy(const te_run *r, int i) {
    return &r->policy[r->pass == TE_BACKWARD][i];
}

TE_API int64_t te__rows_in(const te_run *r, te_rows rows) {
    switch (rows) {
    case TE_ROWS_sequences: return r->sequences;
    case TE_ROWS_shard: return r->tokens / r->tensor->size;
    case TE_ROWS_memory: return r->memory;
    default: return r->tokens;
    }
}
/* The first of these rows among those of the batch, and among those of all replicas. */
TE_API int64_t te__first_row(const te_run *r, te_rows rows) {
    return rows == TE_ROWS_shard ? r->tensor->rank * te__rows_in(r, rows) : 0;
}
TE_API int64_t te__first_row_of_all(const te_run *r, te_rows rows) {
    return r->data->rank * te__rows_in(r, rows == TE_ROWS_shard ? TE_ROWS_tokens : rows) + te__first_row(r, rows);
}
/* Where the batch's sequences lie. */
TE_API te_sequences te__sequences_of(const te_run *r) {
    const te_batch *b = r->batch;
    te_sequences s;
    s.first = b ? b->cu_seqlens : 0, s.count = (int)r->sequences, s.rows = (int)r->tokens;
    s.max_seqlen = !b ? 1 : b->sequences ? (int)te_min(b->max_seqlen, r->tokens) : b->seq;
    return s;
}
/* Rows that saved memory is sized for. */
TE_API int64_t te__padded_rows(const te_run *r, te_rows rows) { return te_round_up(te__rows_in(r, rows), TE_ROW_PAD); }
/* Rows that blocks of the workspace are sized for, whatever rows a value has: a call then places them where the dry run
 * that measured the workspace did, which did not know how many sequences there would be. */
TE_API int64_t te__capacity_rows(const te_run *r) {
    return te_max(r->capacity, te_round_up(te_max(r->tokens, r->memory), TE_ROW_PAD));
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* Memory for this step. */
TE_API te_status te__scratch(te_run *r, void **p, size_t bytes) {
    TE_REQUIRE(te__pool_take(&r->pool, p, bytes) >= 0, r->ctx, TE_ERROR_MEMORY,
               "%s: more than %d values are alive at once", r->plan->name, (int)TE_MAX_LIVE);
    return TE_OK;
}
/* Memory for v: a block of `bytes` bytes. */
TE_API te_status te__acquire_bytes(te_run *r, te_value *v, size_t bytes) {
    v->block = te__pool_take(&r->pool, &v->data, bytes);
    TE_REQUIRE(v->block >= 0, r->ctx, TE_ERROR_MEMORY, "%s: more than %d values are alive at once", r->plan->name,
               (int)TE_MAX_LIVE);
    return TE_OK;
}
/* A value in the workspace. It outlives the step if it becomes the current value or a fork's. */
TE_API te_status te__acquire(te_run *r, te_value *v, te_rows rows, int cols, te_dtype dtype) {
    *v = te__value_of(0, dtype, te__rows_in(r, rows), cols);
    return te__acquire_bytes(r, v, (size_t)(te__capacity_rows(r) * cols) * te_dtype_bytes(dtype));
}
/* A matrix in e4m3 in the workspace, with its scales behind it: one for each row, or for each 1 x 128. */
TE_API te_status te__acquire_scaled(te_run *r, te_value *v, int64_t rows, int cols, te_scaling scaling) {
    const int64_t capacity = te__capacity_rows(r), scales = te_scaling_count(scaling, capacity, cols);
    *v = te__value_of(0, TE_e4m3, rows, cols);
    v->scaling = scaling;
    TE_TRY(te__acquire_bytes(r, v, (size_t)(capacity * cols + scales * (int64_t)sizeof(float))));
    v->inverse_scale = (float *)(void *)((char *)v->data + capacity * cols);
    return TE_OK;
}
/* Replace *root by v: the blocks of v stay from now on, those of *root only if another value lies in them. */
TE_API void te__set_root(te_run *r, te_value *root, te_value v) {
    te__pool_root(&r->pool, v.block, 1);
    te__pool_root(&r->pool, v.transposed_block, 1);
    te__pool_root(&r->pool, root->block, -1);
    te__pool_root(&r->pool, root->transposed_block, -1);
    *root = v;
}
/* Make v the value that the next step reads. */
TE_API void te__set_current(te_run *r, te_value v) { te__set_root(r, &r->current, v); }
/* The same value without its transpose, whose block may then go. */
TE_API te_value te__without_transposed(te_value v) {
    v.transposed = 0, v.transposed_inverse_scale = 0, v.transposed_block = -1;
    return v;
}
/* v is what the step leaves, but not yet: the next step does the rest, which needs `from`. */
TE_API void te__defer(te_run *r, te_value *v, te_value_state state, te_value from) {
    v->state = state;
    te__set_root(r, &r->deferred.from, te__without_transposed(from));
}
/* That is done, or enqueued. */
TE_API void te__finish_deferred(te_run *r) {
    r->current.state = TE_VALUE_ready;
    te__set_root(r, &r->deferred.from, te__no_value());
}
/* Keep v for the other end of fork i, without its transpose; te__no_value(): it is no longer needed. */
TE_API void te__set_edge(te_run *r, int fork, te_value v) {
    te__set_root(r, &r->edge[fork], te__without_transposed(v));
}
/* Forward: op i has read the value of its fork. Behind the last op that does nobody needs it. */
TE_API void te__release_fork(te_run *r, int i) {
    if (te__is_last_use(r->plan, i)) te__set_edge(r, r->plan->op[i].edge, te__no_value());
}
/* The caller's tensors for (input, name) or (output, name); null: the batch brings none. */
TE_API const te_edge *te__edge_named(const te_run *r, const char *name) {
    for (int i = r->batch ? r->batch->edge_count - 1 : -1; i >= 0; i--)
        if (r->batch->edges[i].name && !strcmp(r->batch->edges[i].name, name)) return &r->batch->edges[i];
    return 0;
}

/* ---- a run before its first step --------------------------------------------------------------------------------- */

/* Choose which products run in FP8 from now on, and compute the policies. TE_USE_as_bound reads it from te_run.param,
 * which te__take_params has to fill before. */
TE_API void te__set_recipe_use(te_run *r, te_recipe_use use) {
    r->use = use;
    if (r->plan->fp8) te__init_policies(r->policy, r->plan, use, r->param);
}
/* A dry run of this many rows. No product runs in FP8 until te__set_recipe_use says which do. */
TE_API void te__begin(te_run *r, const te_plan *plan, te_pass pass, int64_t tokens, int64_t sequences,
                      te_context *ctx) {
    r->plan = plan, r->pass = pass, r->tokens = tokens, r->sequences = sequences, r->ctx = ctx;
    r->memory = te__has_memory(plan) ? tokens : 0, r->capacity = 0;
    r->tensor = te_tensor_group(ctx), r->data = te_data_group(ctx);
    r->batch = 0, r->model = 0, r->dry = 1, r->recompute = 0, r->describe = 0;
    memset(&r->deferred, 0, sizeof r->deferred), r->deferred.from = te__no_value();
    memset(&r->deferred_wgrad, 0, sizeof r->deferred_wgrad);
    r->deferred_wgrad.a = r->deferred_wgrad.b = te__no_value();
    r->backward_stop = TE_BACKWARD_STOP_dx, r->watch = 0;
    r->rng = 0, r->saved = 0, r->take.taken = 0, r->sum_count = r->column_count = 0, r->loss_in_backward = 0;
    r->current = r->dx = r->dy = te__no_value(), r->pass_input = r->last_step_input = 0;
    r->x = te__value_of(0, plan->in_dtype, te__rows_in(r, plan->op[0].in_rows), plan->in);
    r->y = te__value_of(0, plan->out_dtype, te__rows_in(r, te__out_rows(plan)), plan->out);
    r->pool.base = 0, r->pool.high = 0, r->pool.count = 0, r->pool.next_id = 0;
    memset(r->saved_transposed, 0, sizeof r->saved_transposed);
    memset(&r->columns, 0, sizeof r->columns);
    memset(&r->sums, 0, sizeof r->sums); /* unused jobs are kernel arguments as well, and compared (graph_replay.h) */
    for (int i = 0; i < plan->op_count; i++) r->edge[i] = te__no_value(), r->param[i] = 0;
    for (int k = 0; k < plan->region_count; k++) r->region[k] = te__no_value();
    r->use = TE_USE_off;
    te__init_policies(r->policy, plan, TE_USE_off, r->param);
}
/* Set te_run.param to the parameters of this instance. */
TE_API void te__take_params(te_run *r, const te_model *m) {
    r->model = m;
    te_param *p = m->param;
    for (int i = 0; i < r->plan->op_count; i++) r->param[i] = p, p += r->plan->op[i].params;
}
/* A run that only measures: storage and the workspace, for this many rows. */
TE_API te_run te__run_to_size(const te_plan *plan, te_pass pass, int64_t rows, te_recipe_use use, te_context *ctx) {
    te_run r;
    te__begin(&r, plan, pass, rows, rows, ctx);
    if (use != TE_USE_off) te__set_recipe_use(&r, use);
    return r;
}

#endif
