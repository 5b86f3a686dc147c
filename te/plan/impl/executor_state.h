/* executor_state.h -- what a walk over a plan (executor.h) knows as it goes: its values, and the rows that they have. */
#ifndef TE_EXECUTOR_STATE_H
#define TE_EXECUTOR_STATE_H

#include "../../core/group.h" /* te_tensor_group */
#include "../../core/sequences.h" /* te_sequences */
#include "../../gemm/gemm_types.h" /* te_gemm */
#include "column_reduce.h" /* te_sum_args */
#include "value.h" /* te_value, te_pool */

typedef enum te_pass { TE_FORWARD, TE_INFER, TE_BACKWARD } te_pass;

enum { TE_BACKWARD_STOP_dx = -1 }; /* of te_run: a backward goes through all of the list */

/* Whether products run in FP8 whose ops have a recipe: as each parameter says or, where sizes are asked for, none, all
 * by casts, all with operands that come in FP8, or these with scales that all ranks have. */
typedef enum te_recipe_use {
    TE_USE_as_bound,
    TE_USE_off,
    TE_USE_on,
    TE_USE_stored,
    TE_USE_common
} te_recipe_use;

/* Where a product's operand goes that is made again in FP8: its transpose or, once its scale is known, as it lies. Both
 * null: nothing is. */
typedef struct te_again {
    void *yt;
    float *inverse;     /* its scales, where those are of tiles; of y 1 / scale and the scale */
    const float *scale; /* else the one that forward had */
    int rounded;        /* which the operand was rounded by once it was in the list's format */
    void *y;
} te_again;

/* What a step has left to the next one, which overlaps it with what it does itself (te/linear/impl/linear_comm_overlap.h). */
typedef enum te_late_kind { TE_LATE_nothing, TE_LATE_rows, TE_LATE_product } te_late_kind;
typedef struct te_late {
    te_late_kind kind;
    te_value from;   /* rows: this rank's rows of `now`, where no others are yet; product: its A. It stays */
    te_gemm product; /* whose D is `now` */
    struct te_product_kernels *bare; /* who runs it by itself */
} te_late;

/* The product of a weight's gradient that waits for rows on their way, to run beside them (te/linear/impl/linear_comm_overlap.h). */
typedef struct te_deferred_wgrad {
    int is_there, runs; /* runs: the weight trains */
    te_gemm product;
    te_value a, b; /* the blocks of its operands, which stay */
} te_deferred_wgrad;

typedef struct te_run {
    const te_plan *plan;
    const te_batch *batch;
    te_context *ctx;
    te_pass pass;
    te_recipe_use use;
    int dry;                     /* this walk checks and measures; nothing is launched */
    int64_t tokens, sequences, memory; /* rows of values, by te_rows; where only tokens are known, as many sequences
                                        * and, in a list that has one, as many rows of memory */
    int64_t room;                /* rows that pieces of the workspace are sized for, if more than the call's */
    const te_group *tensor, *data; /* the groups of this rank */
    te_value now;                /* forward: the activation; backward: its gradient, p null if nobody wants it */
    te_value turned;             /* the transpose of now in FP8, where the kernel that made it has left one */
    int measured;                /* the kernel that made now has found its amax, for the cast */
    int unstored;                /* and stored nothing: it runs again, for the product */
    te_late late;                /* of now */
    te_deferred_wgrad waiting;
    te_again again;              /* backward: a step of forward makes its result again, as this alone */
    te_value x, y, dx, dy;       /* the caller's */
    te_rng *rng;                 /* the random state of this forward */
    te_rng_args take; /* it is still to be taken: by the first kernel of a chain, or by a kernel of its own */
    te_saved *saved;             /* forward: what it fills */
    size_t saved_bytes;          /* of te_saved.memory that this call uses */
    int loss_in_backward;        /* forward leaves y to backward, which writes it */
    int reach;                   /* backward: the first op of the list that has something to compute (executor.h) */
    te_pool pool;
    te_value edge[TE_MAX_OPS];   /* by fork: its value in inference; in backward the gradient that its readers left */
    const void *ends[2];         /* what the pass begins with, and what its last step reads on the main road */
    te_value span[TE_MAX_RECOMPUTE_REGIONS]; /* by span: the block of what its ops keep, p null while it is not worked on */
    void *act[TE_MAX_OPS]; /* by op: its output, where it stays until backward; in a span null while that is not worked
                              on */
    float *stats[TE_MAX_OPS];    /* by op: [rows, stats] */
    char *kept[TE_MAX_OPS];      /* by product in FP8: its te_saved_input */
    uint32_t turned_x[TE_OP_BITS]; /* bits, by product in FP8: what it keeps is the transpose of its input */
    te_param *param[TE_MAX_OPS]; /* by op: its first parameter */
    te_sum_args sums;            /* column sums that wait to be added up */
    int partial[TE_SUM_JOBS];    /* the blocks that they lie in */
    const te_param *sum_of[TE_SUM_JOBS]; /* whose gradients they are */
    int sum_count;
    te_sum_args columns; /* of those that become one number: the sums of the columns, to be added up behind them */
    int column_count;
    te_watch *watch; /* backward: who is told which gradients are final; null: nobody */
} te_run;

TE_API int64_t te_rows_in(const te_run *r, te_rows rows) {
    switch (rows) {
    case TE_ROWS_sequences: return r->sequences;
    case TE_ROWS_shard: return r->tokens / r->tensor->size;
    case TE_ROWS_memory: return r->memory;
    default: return r->tokens;
    }
}
/* The first of these rows among those of the batch, and among those of all replicas. */
TE_API int64_t te_first_row(const te_run *r, te_rows rows) {
    return rows == TE_ROWS_shard ? r->tensor->rank * te_rows_in(r, rows) : 0;
}
TE_API int64_t te_first_row_of_all(const te_run *r, te_rows rows) {
    return r->data->rank * te_rows_in(r, rows == TE_ROWS_shard ? TE_ROWS_tokens : rows) + te_first_row(r, rows);
}
/* Where the batch's sequences lie. */
TE_API te_sequences te_sequences_of(const te_run *r) {
    const te_batch *b = r->batch;
    te_sequences s;
    s.first = b ? b->cu_seqlens : 0, s.count = (int)r->sequences, s.rows = (int)r->tokens;
    s.longest = !b ? 1 : b->sequences ? (int)te_min(b->longest, r->tokens) : b->seq;
    return s;
}
/* Rows that saved memory is sized for. */
TE_API int64_t te_padded_rows(const te_run *r, te_rows rows) { return te_round_up(te_rows_in(r, rows), TE_ROW_PAD); }
/* Rows that pieces of the workspace are sized for, whatever rows a value has: so a call places them where the walk that
 * measured the workspace did, which did not know how many sequences there would be. */
TE_API int64_t te_capacity_rows(const te_run *r) {
    return te_max(r->room, te_round_up(te_max(r->tokens, r->memory), TE_ROW_PAD));
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* Memory for this step. */
TE_API te_status te_scratch(te_run *r, void **p, size_t bytes) {
    TE_REQUIRE(te__pool_take(&r->pool, p, bytes) >= 0, r->ctx, TE_ERROR_MEMORY,
               "%s: more than %d values are alive at once", r->plan->name, (int)TE_MAX_LIVE);
    return TE_OK;
}
/* A value in the workspace; it stays if it becomes one of the walk's (te_set_now, te_set_edge). */
TE_API te_status te_acquire(te_run *r, te_value *v, te_rows rows, int cols, te_dtype dtype) {
    *v = te_value_of(0, dtype, te_rows_in(r, rows), cols);
    v->block = te__pool_take(&r->pool, &v->p, (size_t)(te_capacity_rows(r) * cols) * te_dtype_bytes(dtype));
    TE_REQUIRE(v->block >= 0, r->ctx, TE_ERROR_MEMORY, "%s: more than %d values are alive at once", r->plan->name,
               (int)TE_MAX_LIVE);
    return TE_OK;
}
TE_API void te__set_root(te_run *r, te_value *root, te_value v) {
    te__pool_root(&r->pool, v.block, 1);
    te__pool_root(&r->pool, root->block, -1);
    *root = v;
}
/* Make `v` the current value. */
TE_API void te_set_now(te_run *r, te_value v) {
    te__set_root(r, &r->now, v);
    te__set_root(r, &r->turned, te_no_value());
    r->measured = r->unstored = 0;
}
/* And this its transpose. */
TE_API void te_set_turned(te_run *r, te_value v) { te__set_root(r, &r->turned, v); }
/* Leave something that needs `from` to the next step; TE_LATE_nothing, te_no_value(): it is done. */
TE_API void te_set_late(te_run *r, te_late_kind kind, te_value from) {
    r->late.kind = kind;
    te__set_root(r, &r->late.from, from);
}
/* Keep `v` for the other end of fork i; te_no_value(): it is no longer needed. */
TE_API void te_set_edge(te_run *r, int fork, te_value v) { te__set_root(r, &r->edge[fork], v); }
/* Forward: op i has read what its fork kept. Behind the last one that does nobody needs it. */
TE_API void te_release_fork(te_run *r, int i) {
    if (te_is_last_use(r->plan, i)) te_set_edge(r, r->plan->op[i].edge, te_no_value());
}
/* The caller's tensors for (input, name) or (output, name); null: the batch brings none. */
TE_API const te_edge *te__edge_named(const te_run *r, const char *name) {
    for (int i = r->batch ? r->batch->edge_count - 1 : -1; i >= 0; i--)
        if (r->batch->edges[i].name && !strcmp(r->batch->edges[i].name, name)) return &r->batch->edges[i];
    return 0;
}

#endif
