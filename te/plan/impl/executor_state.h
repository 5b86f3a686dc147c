/* executor_state.h -- te_run, the state of the executor (executor.h) while it runs the steps of a plan: the numbers of
 * rows of this call, the operand policies, the current value, the values of forks, the addresses of the values that
 * forward saves, and deferred work.
 */
#ifndef TE_EXECUTOR_STATE_H
#define TE_EXECUTOR_STATE_H

#include "../../core/rank_group.h" /* te_tensor_group */
#include "../../core/tensor.h" /* te_sequences */
#include "../../gemm/gemm_types.h" /* te_gemm */
#include "operand_policy.h" /* te_operand_policy, te_recipe_use */
#include "value.h" /* te_value, te_pool */

typedef enum te_pass { TE_FORWARD, TE_INFER, TE_BACKWARD } te_pass;

enum { TE_BACKWARD_STOP_dx = -1 }; /* the value of te_run.backward_stop if the caller wants dx: backward then runs the
                                    * whole list */

/* The memory to which a forward step stores its result when te__recompute_input runs the step a second time. The result
 * is an FP8 operand of a GEMM, stored either row-major to `data` or transposed to `transposed`. Exactly one of these
 * two pointers is not null. */
typedef struct te_recompute_target {
    void *data;           /* the operand in FP8, [rows, cols] */
    void *transposed;     /* memory for the operand's transpose in FP8, [cols, rows rounded up to a multiple of 16] */
    float *inverse_scale; /* output: the memory to which the step stores the inverse scales. With `data`, these are two
                           * numbers: 1 / scale and the scale. With `transposed` under fp8_block, they are 1 / scale of
                           * each tile of the transpose */
    const float *scale;   /* input: the tensor's FP8 scale, one number; null under fp8_block, where the step computes a
                           * scale for each tile */
    int rounds_first;     /* 1: the step rounds to the list's dtype first and then to FP8, as forward did, so that
                           * backward gets the same bits */
} te_recompute_target;

/* Work that the next step must do to complete the current value (te_run.current). The member `state` of this value says
 * which kind of work is left (te_value_state in value.h). */
typedef struct te_deferred_work {
    te_value from;   /* the input of the deferred work, whose memory is held until the work is done. For
                      * deferred_gather, this input is the rows of the current value that this rank holds; for
                      * deferred_product, operand A of the GEMM */
    te_gemm product; /* for deferred_product: the GEMM whose output, its matrix D, is the current value */
    struct te_product_kernels *kernels; /* for deferred_product: the kernels that run the GEMM if the GEMM does not
                                         * overlap with a collective */
} te_deferred_work;

/* A weight-gradient GEMM that is deferred until a later step gathers rows over the ranks. The GEMM then runs while the
 * rows are being copied (te/linear/impl/linear_comm_overlap.h). */
typedef struct te_deferred_wgrad {
    int is_there, runs; /* is_there: 1 if a GEMM is deferred. runs: 0 if this GEMM must not be launched because its
                         * weight is frozen at present. The memory of a GEMM that is not launched is acquired all the
                         * same, so that freezing does not change the size of the workspace */
    te_gemm product;
    te_value a, b;      /* the GEMM's operands, whose workspace blocks are held until the GEMM has run */
} te_deferred_wgrad;

/* A column sum: for each column c, total[c] is set to the sum of partial[i, c] over all i < count, or increased by this
 * sum. `partial` has one row for each thread block of the kernel that stored it (gradients.h). */
enum { TE_SUM_JOBS = 16, TE_SUMS_A_STEP = 3 /* the largest number of column sums that one step has: dgamma, dbeta and
                                             * dbias */ };
typedef struct te_sum_job {
    const float *partial; /* [count, width] */
    float *total;         /* [width] */
    int width, count, accumulate; /* accumulate: 1 if the sums are added to the values in `total`, 0 if they overwrite
                                   * these values */
} te_sum_job;
typedef struct te_sum_args { te_sum_job job[TE_SUM_JOBS]; } te_sum_args;

typedef struct te_run {
    /* the call */
    const te_plan *plan;
    const te_batch *batch;
    const te_model *model;         /* the instance, or null during a dry run that only measures sizes */
    te_context *ctx;
    te_pass pass;
    int dry;                       /* 1: this is a dry run, which makes checks, measures the workspace and launches
                                    * nothing */
    const te_group *tensor, *data; /* the tensor group and the data group of this rank */
    int64_t tokens, sequences, memory; /* the numbers of rows of the kinds TE_ROWS_tokens, TE_ROWS_sequences and
                                        * TE_ROWS_memory. In a dry run that only measures sizes, `sequences` equals
                                        * `tokens`; if the list has an input with rows of kind TE_ROWS_memory, `memory`
                                        * also equals `tokens` */
    int64_t capacity;              /* each block of the workspace is sized for at least this many rows, even if the call
                                    * has fewer (te__dry_run) */
    te_value x, y, dx, dy;         /* the caller's tensors, or dense copies of these tensors at the beginning of the
                                    * workspace */
    te_tensor callers[4];          /* the caller's x, y, dx and dy (te__caller), if their rows have a stride; `data` of
                                    * a tensor without a stride is null */
    size_t copies_bytes;           /* the bytes of the workspace that the dense copies take */
    int loss_in_backward;          /* 1: forward leaves the loss to backward, and backward computes the loss and writes
                                    * it to y */
    int backward_stop;             /* where backward ends: the index of the first op of the list that computes a
                                    * gradient that is needed (executor.h) */

    /* the list under this call's recipe */
    te_recipe_use use;
    te_operand_policy policy[2][TE_MAX_OPS + 1]; /* the operand policies of all ops: [0] for forward and inference, [1]
                                                  * for backward; read by te__policy() */
    te_param *param[TE_MAX_OPS];   /* for each op: the op's first parameter */

    /* values */
    te_value current;              /* the value that the next step reads. In forward, the value is an activation; in
                                    * backward, the value is a gradient, and `data` is null if this gradient is not
                                    * needed */
    te_value edge[TE_MAX_OPS];     /* for each fork: in inference, the fork's value; in backward, the gradient of the
                                    * fork's value, summed over those uses of the fork that backward has already run;
                                    * not used in forward, where te_saved holds the forks' values */
    te_deferred_work deferred;     /* the work that is left to do on the value `current`; valid only if the state of
                                    * `current` is not TE_VALUE_ready */
    const te_recompute_target *recompute; /* if not null, backward runs the current forward step once more, to recompute
                                           * the output of the step's last op and store it to this target */
    struct te_kernel_shape *describe; /* if not null, the step launches nothing, but stores the shape of its pointwise
                                       * kernel to *describe */
    const void *pass_input, *last_step_input; /* addresses of two inputs that te__in_place compares: the input of the
                                               * first step of the pass (pass_input) and the input of the last step
                                               * (last_step_input) */
    te_pool pool;                  /* the workspace */

    /* The addresses of the values that forward saves. While a recompute region is open, the values of its ops lie in
     * the workspace; all other values lie in te_saved. */
    te_saved *saved;               /* the te_saved that this forward fills; null while backward runs forward steps for a
                                    * recompute region */
    size_t saved_bytes;            /* how many bytes of te_saved.memory this call uses */
    void *act[TE_MAX_OPS];         /* for each op: the address of its output, or null if the output is not saved */
    float *stats[TE_MAX_OPS];      /* for each op: the statistics of each row, such as mean and rstd, as an f32 matrix
                                    * [rows, number of statistics] */
    char *saved_input[TE_MAX_OPS]; /* for each FP8 GEMM: the memory that holds the GEMM's saved input and this input's
                                    * scales (te__saved_input_of() returns the addresses of both). For a router that
                                    * sends rows to other ranks (te__is_exchange): the rows that this rank has
                                    * received */
    uint32_t saved_transposed[TE_OP_BITS]; /* one bit for each op; for an FP8 GEMM the bit is 1 if the GEMM's input is
                                            * saved transposed */
    te_value region[TE_MAX_RECOMPUTE_REGIONS]; /* for each recompute region: the workspace block in which its values are
                                                * saved; `data` is null while the region is closed */

    /* random numbers */
    te_rng *rng;                   /* the copy of the random state that belongs to this forward. This copy lies in
                                    * te_saved, so that backward draws the same random numbers as forward */
    te_rng_args take;              /* if `take.taken` is not null, the context's random state must still be copied to
                                    * `rng` and advanced. The first pointwise kernel of the pass does this; if the pass
                                    * has none, a separate kernel does it (te__take_random_state) */

    /* gradients */
    te_sum_args sums;              /* deferred column sums: kernels have stored the partial sums, which a later launch
                                    * adds up */
    int partial[TE_SUM_JOBS];      /* for each deferred column sum: the id of the workspace block that holds its partial
                                    * sums */
    const te_param *sum_of[TE_SUM_JOBS]; /* for each deferred column sum: the parameter of which this sum is the
                                          * gradient */
    int sum_count;
    te_sum_args columns;           /* a second stage of column sums, for a parameter that is a single number: `sums`
                                    * first produces one sum for each column, and this stage then adds up these sums */
    int column_count;
    te_deferred_wgrad deferred_wgrad;
    te_watch *watch;               /* the listener that backward calls for each gradient that is final; null if there is
                                    * none. If there is a listener, collectives run on a second stream during the
                                    * pass */
} te_run;

/* Return the policy of op i in the current pass: in which format the op's operand is stored, and whether it is saved
 * for backward. */
TE_API const te_operand_policy *te__policy(const te_run *r, int i) {
    return &r->policy[r->pass == TE_BACKWARD][i];
}

TE_API int64_t te__rows_in(const te_run *r, te_rows rows) {
    switch (rows) {
    case TE_ROWS_sequences: return r->sequences;
    case TE_ROWS_shard: return r->tokens / r->tensor->size;
    case TE_ROWS_memory: return r->memory;
    default: return r->tokens * te__rows_per_token(rows);
    }
}
/* Return the index, within the batch of the tensor group, of the first row that this rank holds, if the rows have the
 * kind `rows`. Only rows of kind TE_ROWS_shard are divided over the ranks of the tensor group. */
TE_API int64_t te__first_row(const te_run *r, te_rows rows) {
    return rows == TE_ROWS_shard ? r->tensor->rank * te__rows_in(r, rows) : 0;
}
/* Return the index of the same row as te__first_row does, but within the concatenation of the batches of all ranks of
 * the data group. */
TE_API int64_t te__first_row_of_all(const te_run *r, te_rows rows) {
    return r->data->rank * te__rows_in(r, rows == TE_ROWS_shard ? TE_ROWS_tokens : rows) + te__first_row(r, rows);
}
/* Return which chunks of each sequence this rank has under context parallelism. If the batch has whole sequences, the
 * result is rank 0 of 1 rank. */
TE_API te_cp_shard te__cp_shard_of(const te_run *r) {
    te_cp_shard s;
    s.rank = 0, s.ranks = 1;
    if (r->batch && r->batch->context) s.rank = te_cp_group(r->ctx)->rank, s.ranks = te_cp_group(r->ctx)->size;
    return s;
}
/* Return the rows at which the sequences of the batch begin and end, as a te_sequences (core/tensor.h). With
 * batch.context and cu_seqlens, these are rows of the whole packed sequence, of which this rank has only a part. */
TE_API te_sequences te__sequences_of(const te_run *r) {
    const te_batch *b = r->batch;
    te_sequences s;
    s.first = b ? b->cu_seqlens : 0, s.count = (int)r->sequences, s.rows = (int)r->tokens;
    if (s.first) s.rows *= te__cp_shard_of(r).ranks;
    s.max_seqlen = !b ? 1 : b->sequences ? (int)te_min(b->max_seqlen, s.rows) : b->seq;
    return s;
}
/* Return the number of rows for which the blocks of te_saved.memory are sized if their rows have the kind `rows`: the
 * number of rows of this kind in this call, rounded up to a multiple of TE_ROW_PAD. */
TE_API int64_t te__padded_rows(const te_run *r, te_rows rows) { return te_round_up(te__rows_in(r, rows), TE_ROW_PAD); }
/* Return the number of rows for which each block of the workspace is sized; this number is the same for all kinds of
 * rows, except for routed rows (te__capacity_of). No block's size depends on the number of sequences, because the dry
 * run that measures the workspace does not know this number. Therefore a call places its blocks at the same offsets as
 * that dry run. */
TE_API int64_t te__capacity_rows(const te_run *r) {
    return te_max(r->capacity, te_round_up(te_max(r->tokens, r->memory), TE_ROW_PAD));
}
/* te__capacity_of returns the number of rows for which the workspace block of a value is sized, if the value has rows
 * of the kind `rows`: te__capacity_rows or, for rows that are routed to experts, top_k * te__capacity_rows.
 * te__capacity_of_value returns this number for the value *v; it concludes from v->rows whether the rows are routed. */
TE_API int64_t te__capacity_of(const te_run *r, te_rows rows) {
    return te__capacity_rows(r) * te__rows_per_token(rows);
}
TE_API int64_t te__capacity_of_value(const te_run *r, const te_value *v) {
    return te__capacity_rows(r) * (v->rows > te_max(r->tokens, r->memory) ? v->rows / r->tokens : 1);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* Take `bytes` bytes of scratch memory from the workspace, and set *p to their address. The memory is freed at the end
 * of the step. */
TE_API te_status te__scratch(te_run *r, void **p, size_t bytes) {
    TE_REQUIRE(te__pool_take(&r->pool, p, bytes) >= 0, r->ctx, TE_ERROR_MEMORY,
               "%s: more than %d values are alive at once", r->plan->name, (int)TE_MAX_LIVE);
    return TE_OK;
}
/* Take a block of `bytes` bytes from the workspace, as the memory of v. */
TE_API te_status te__acquire_bytes(te_run *r, te_value *v, size_t bytes) {
    v->block = te__pool_take(&r->pool, &v->data, bytes);
    TE_REQUIRE(v->block >= 0, r->ctx, TE_ERROR_MEMORY, "%s: more than %d values are alive at once", r->plan->name,
               (int)TE_MAX_LIVE);
    return TE_OK;
}
/* Set *v to a new value in the workspace. The value outlives the step only if the step makes it the current value
 * (te__set_current) or the value of a fork (te__set_edge). */
TE_API te_status te__acquire(te_run *r, te_value *v, te_rows rows, int cols, te_dtype dtype) {
    *v = te__value_of(0, dtype, te__rows_in(r, rows), cols);
    return te__acquire_bytes(r, v, (size_t)(te__capacity_of(r, rows) * cols) * te_dtype_bytes(dtype));
}
/* Set *v to a new e4m3 matrix in the workspace. The inverse scales of this matrix, one per row or one per 1 x 128 tile,
 * lie behind the matrix in the same block. */
TE_API te_status te__acquire_scaled(te_run *r, te_value *v, int64_t rows, int cols, te_scaling scaling) {
    const int64_t capacity = te__capacity_rows(r), scales = te_scaling_count(scaling, capacity, cols);
    *v = te__value_of(0, TE_e4m3, rows, cols);
    v->scaling = scaling;
    TE_TRY(te__acquire_bytes(r, v, (size_t)(capacity * cols + scales * (int64_t)sizeof(float))));
    v->inverse_scale = (float *)(void *)((char *)v->data + capacity * cols);
    return TE_OK;
}
/* Assign v to *root, a member of te_run that outlives the step, such as te_run.current. The workspace blocks of v are
 * then held beyond the end of this step. The blocks of the old value of *root are freed at the end of the step, unless
 * another value holds them. */
TE_API void te__set_root(te_run *r, te_value *root, te_value v) {
    te__pool_root(&r->pool, v.block, 1);
    te__pool_root(&r->pool, v.transposed_block, 1);
    te__pool_root(&r->pool, root->block, -1);
    te__pool_root(&r->pool, root->transposed_block, -1);
    *root = v;
}
/* Make v the current value, the one that the next step reads. */
TE_API void te__set_current(te_run *r, te_value v) { te__set_root(r, &r->current, v); }
/* Return a copy of v that does not refer to v's transpose. */
TE_API te_value te__without_transposed(te_value v) {
    v.transposed = 0, v.transposed_inverse_scale = 0, v.transposed_block = -1;
    return v;
}
/* Mark v, the result of this step, as incomplete: the next step must still do the work that `state` names. `from` is
 * the input of that work; the memory of `from` is held until the work is done. */
TE_API void te__defer(te_run *r, te_value *v, te_value_state state, te_value from) {
    v->state = state;
    te__set_root(r, &r->deferred.from, te__without_transposed(from));
}
/* Mark the current value as ready, and release the input of its deferred work. Call this when the deferred work is done
 * or enqueued. */
TE_API void te__finish_deferred(te_run *r) {
    r->current.state = TE_VALUE_ready;
    te__set_root(r, &r->deferred.from, te__no_value());
}
/* Hold v, without its transpose, for later steps: in inference as the value of fork number `fork`, in backward as the
 * gradient of that value. The value that was held before for this fork is released. With v = te__no_value(), no value
 * is held for the fork afterwards. */
TE_API void te__set_edge(te_run *r, int fork, te_value v) {
    te__set_root(r, &r->edge[fork], te__without_transposed(v));
}
/* The function is called when op i has read the value of its fork. In inference, release this value if no later op uses
 * it. In forward there is nothing to release, because te_run.edge holds no values. */
TE_API void te__release_fork(te_run *r, int i) {
    if (te__is_last_use(r->plan, i)) te__set_edge(r, r->plan->op[i].edge, te__no_value());
}
/* Return the entry of te_batch.edges that has the caller's tensors for (input, name) or (output, name), or null if
 * there is no such entry. */
TE_API const te_edge *te__edge_named(const te_run *r, const char *name) {
    for (int i = r->batch ? r->batch->edge_count - 1 : -1; i >= 0; i--)
        if (r->batch->edges[i].name && !strcmp(r->batch->edges[i].name, name)) return &r->batch->edges[i];
    return 0;
}

/* ---- a run before its first step --------------------------------------------------------------------------------- */

/* Choose which GEMMs run in FP8 from now on, and compute the operand policies for this choice. TE_USE_as_bound takes
 * the choice from the parameters in te_run.param, so call te__take_params before. */
TE_API void te__set_recipe_use(te_run *r, te_recipe_use use) {
    r->use = use;
    if (r->plan->fp8) te__init_policies(r->policy, r->plan, use, r->param);
}
/* Initialise *r for a dry run of a batch that has `tokens` rows and `sequences` sequences. No GEMM runs in FP8 until
 * te__set_recipe_use has been called. */
TE_API void te__begin(te_run *r, const te_plan *plan, te_pass pass, int64_t tokens, int64_t sequences,
                      te_context *ctx) {
    r->plan = plan, r->pass = pass, r->tokens = tokens, r->sequences = sequences, r->ctx = ctx;
    r->memory = te__has_memory(plan) ? tokens : 0, r->capacity = 0;
    r->tensor = te_tensor_group(ctx), r->data = te_data_group(ctx);
    memset(r->callers, 0, sizeof r->callers), r->copies_bytes = 0;
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
    memset(&r->sums, 0, sizeof r->sums); /* the unused jobs are also set to zero, because graph_replay.h compares the
                                          * arguments of kernels byte by byte */
    for (int i = 0; i < plan->op_count; i++) r->edge[i] = te__no_value(), r->param[i] = 0;
    for (int k = 0; k < plan->region_count; k++) r->region[k] = te__no_value();
    r->use = TE_USE_off;
    te__init_policies(r->policy, plan, TE_USE_off, r->param);
}
/* Set te_run.param to the parameters of the instance m. */
TE_API void te__take_params(te_run *r, const te_model *m) {
    r->model = m;
    te_param *p = m->param;
    for (int i = 0; i < r->plan->op_count; i++) r->param[i] = p, p += r->plan->op[i].params;
}
/* Return a te_run for a dry run that only measures sizes: how many bytes of te_saved.memory and of workspace a call
 * with `rows` rows needs. */
TE_API te_run te__run_to_size(const te_plan *plan, te_pass pass, int64_t rows, te_recipe_use use, te_context *ctx) {
    te_run r;
    te__begin(&r, plan, pass, rows, rows, ctx);
    if (use != TE_USE_off) te__set_recipe_use(&r, use);
    return r;
}

#endif
