/* run.h -- one walk over a plan (walk.h): where each value lies. */
#ifndef TE_RUN_H
#define TE_RUN_H

#include "../core/convert.h"   /* te_convert */
#include "../core/group.h"     /* te_tensor_group */
#include "../core/sequences.h" /* te_sequences */
#include "sums.h"              /* te_sum_args */
#include "value.h"             /* te_value, te_pool */

typedef enum te_pass { TE_FORWARD, TE_INFER, TE_BACKWARD } te_pass;

enum { TE_REACH_dx = -1 }; /* of te_run: a backward goes through all of the list */

/* Whether products run in FP8 whose ops have a recipe: as each parameter says or, where sizes are asked for, none, all
 * by casts, or all with operands that come in FP8. */
typedef enum te_recipe_use { TE_USE_as_bound, TE_USE_off, TE_USE_on, TE_USE_stored } te_recipe_use;

typedef struct te_run {
    const te_plan *plan;
    const te_batch *batch;
    te_context *ctx;
    te_pass pass;
    te_recipe_use use;
    int dry;                     /* this walk checks and measures; nothing is launched */
    int64_t tokens, sequences, memory; /* rows of values, by te_rows; where only tokens are known, as many of each */
    const te_group *tensor, *data; /* the groups of this rank */
    te_value now;                /* forward: the activation; backward: its gradient, p null if nobody wants it */
    te_value turned;             /* the transpose of now in FP8, where the kernel that made it has left one */
    int measured;                /* the kernel that made now has found its amax, for the cast */
    te_value x, y, dx, dy;       /* the caller's */
    te_rng *rng;                 /* the random state of this forward */
    te_rng_args take; /* it is still to be taken: by the first kernel of a chain, or by a kernel of its own */
    te_saved *saved;             /* forward: what it fills */
    size_t saved_bytes;          /* of te_saved.memory that this call uses */
    int loss_in_backward;        /* forward leaves y to backward, which writes it */
    int reach;                   /* backward: the first op of the list that has something to compute (reach.h) */
    te_pool pool;
    te_value edge[TE_MAX_OPS];   /* by fork: its value in inference; in backward the gradient that its readers left */
    const void *ends[2];         /* what the pass begins with, and what its last step reads on the main road */
    te_value span[TE_MAX_SPANS]; /* by span: the block of what its ops keep, p null while it is not worked on */
    void *act[TE_MAX_OPS];       /* by op: its output, where it stays until backward; null in a span that is closed */
    float *stats[TE_MAX_OPS];    /* by op: [rows, stats] */
    char *kept[TE_MAX_OPS];      /* by product in FP8: its te_kept_fp8 */
    uint32_t turned_x[TE_TURNED_WORDS]; /* bits, by product in FP8: what it keeps is the transpose of its input */
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
TE_API int64_t te_room_rows(const te_run *r) { return te_round_up(te_max(r->tokens, r->memory), TE_ROW_PAD); }

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
    v->block = te__pool_take(&r->pool, &v->p, (size_t)(te_room_rows(r) * cols) * te_dtype_bytes(dtype));
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
    r->measured = 0;
}
/* And this its transpose. */
TE_API void te_set_turned(te_run *r, te_value v) { te__set_root(r, &r->turned, v); }
/* Keep `v` for the other end of fork i; te_no_value(): it is no longer needed. */
TE_API void te_set_edge(te_run *r, int fork, te_value v) { te__set_root(r, &r->edge[fork], v); }
/* Forward: op i has read what its fork kept. Behind the last one that does nobody needs it. */
TE_API void te_leave_kept(te_run *r, int i) {
    if (te_reads_last(r->plan, i)) te_set_edge(r, r->plan->op[i].edge, te_no_value());
}
/* The caller's tensors for (input, name) or (output, name); null: the batch brings none. */
TE_API const te_edge *te__edge_named(const te_run *r, const char *name) {
    for (int i = r->batch ? r->batch->edge_count - 1 : -1; i >= 0; i--)
        if (r->batch->edges[i].name && !strcmp(r->batch->edges[i].name, name)) return &r->batch->edges[i];
    return 0;
}

/* Whether the product of op i runs in FP8. */
TE_API int te_is_in_fp8(const te_run *r, int i) {
    if (i >= r->plan->op_count || r->plan->op[i].recipe == TE_RECIPE_none) return 0;
    return r->use == TE_USE_as_bound ? r->param[i]->fp8.on : r->use != TE_USE_off;
}

/* Whether it then keeps its input so, for its weight's gradient. */
TE_API int te__keeps_fp8(const te_run *r, int i) {
    return te_is_in_fp8(r, i) && !(r->plan->op[i].flags & TE_IS_FROZEN);
}
/* What a product in FP8 keeps for its backward; null in inference, and of a frozen_linear. */
typedef struct te_kept_fp8 {
    float *inverse; /* 1 / the scale of its input */
    void *x;        /* its input, e4m3 [rows, in], or transposed (te_keeps_turned) with rows up to a multiple of 16 */
} te_kept_fp8;
/* Whether what product i keeps is transposed; its forward says so. */
TE_API int te_keeps_turned(const uint32_t *turned, int i) { return turned[i / 32] >> i % 32 & 1; }
TE_API void te_keep_turned(te_run *r, int i, int turned) {
    r->turned_x[i / 32] = (r->turned_x[i / 32] & ~(1u << i % 32)) | (uint32_t)turned << i % 32;
}

TE_API te_kept_fp8 te_kept_of(const te_run *r, int i) {
    te_kept_fp8 k;
    k.inverse = (float *)(void *)r->kept[i], k.x = r->kept[i] ? r->kept[i] + TE_ALIGN : 0;
    return k;
}

/* Whether the kernel that makes the operand of product i, x in forward and dy in backward, stores it in FP8 itself:
 * where its scale is known by then. */
TE_API int te_is_stored_in_fp8(const te_run *r, int i) {
    return te_is_in_fp8(r, i) && (r->use == TE_USE_as_bound ? !r->param[i]->fp8.current : r->use == TE_USE_stored);
}

/* Whether the kernel that makes that operand, in the list's format, finds its amax: where the scale is to be of that.
 * Not in a forward that runs again, which may end before the product that would take it. */
TE_API int te_is_measured(const te_run *r, int i, te_dtype dtype) {
    const int taken = r->pass != TE_FORWARD || r->saved;
    return te_is_in_fp8(r, i) && r->use == TE_USE_as_bound && r->param[i]->fp8.current && taken &&
           dtype == r->plan->dtype;
}

/* What op i gave in forward, and what it got. */
TE_API te_value te_output_of(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    return te_value_of(r->act[i], op->out_dtype, te_rows_in(r, op->out_rows), op->out);
}
TE_API te_value te_input_of(const te_run *r, int i) { return i ? te_output_of(r, i - 1) : r->x; }

/* The same value in this format: itself, or converted for this step. */
TE_API te_status te_as(te_value *v, te_run *r, te_dtype dtype) {
    te_value to = te_value_of(0, dtype, v->rows, v->cols);
    if (v->dtype == dtype || !v->p) return TE_OK;
    to.block =
        te__pool_take(&r->pool, &to.p, (size_t)(te_room_rows(r) * v->cols) * te_dtype_bytes(dtype));
    TE_REQUIRE(to.block >= 0, r->ctx, TE_ERROR_MEMORY, "%s: more than %d values are alive at once", r->plan->name,
               (int)TE_MAX_LIVE);
    if (!r->dry) TE_TRY(te_convert(to.p, dtype, v->p, v->dtype, v->rows * v->cols, r->ctx));
    *v = to;
    return TE_OK;
}

/* Where a kernel that writes `dtype` alone puts what is to become `v`, and how it gets there: v itself if it has that
 * format. */
TE_API te_status te_before_as(te_value *made, const te_value *v, te_run *r, te_dtype dtype) {
    *made = *v;
    if (v->dtype == dtype || !v->p) return TE_OK;
    made->dtype = dtype;
    return te_scratch(r, &made->p, (size_t)(te_room_rows(r) * v->cols) * te_dtype_bytes(dtype));
}
TE_API te_status te_after_as(const te_value *v, const te_value *made, te_run *r) {
    if (v->p == made->p || r->dry) return TE_OK;
    return te_convert(v->p, v->dtype, made->p, made->dtype, v->rows * v->cols, r->ctx);
}

/* ---- what forward keeps ------------------------------------------------------------------------------------------ */

/* Whether the output of op i has to lie in memory after its step: backward reads it, or a fork keeps it. */
TE_API int te__is_read(const te_run *r, int i) {
    const te_plan *plan = r->plan;
    if (plan->op[i].flags & TE_SAVES_OUTPUT) return 1;
    if (i + 1 == plan->op_count || te_is_in_fp8(r, i + 1)) return 0; /* a product in FP8 keeps its input so */
    if (te_remakes_logits(plan, i)) return 0;
    return (plan->op[i + 1].flags & (TE_SAVES_INPUT | TE_IS_FORK)) != 0 || te_remakes_logits(plan, i + 1);
}
/* Whether op i, in span k, leaves something that has to be computed again. */
TE_API int te__is_lost(const te_run *r, int k, int i) {
    const te_op *op = &r->plan->op[i];
    if (i >= r->plan->span[k].last) return 0;
    return op->stats || te__keeps_fp8(r, i) || (te__is_read(r, i) && !(op->flags & (TE_IS_FORK | TE_IS_LOAD)));
}
/* The same as te__is_read, or a span that runs again begins with it. */
TE_API int te_in_memory(const te_run *r, int i) {
    const te_plan *plan = r->plan;
    int begins = 0;
    for (int k = 0; k < plan->span_count; k++)
        for (int j = i + 1; plan->span[k].first == i + 1 && j < plan->span[k].last; j++)
            begins |= te__is_lost(r, k, j);
    return begins || te__is_read(r, i);
}
/* The span that what op i keeps belongs to; -1: it is saved. What the last op of a span gives is for the ops behind. */
TE_API int te__span_of(const te_plan *plan, int i) {
    for (int k = 0; k < plan->span_count; k++)
        if (plan->span[k].first <= i && i < plan->span[k].last) return k;
    return -1;
}

/* Where what a load gives lies: where its fork has it or, of an input, the caller. While sizes are measured at x's
 * place. */
TE_API void *te__loaded(const te_run *r, const te_op *load) {
    const te_op *fork = &r->plan->op[load->edge];
    const te_edge *e = te__edge_named(r, fork->name);
    if (!(fork->flags & TE_IS_INPUT)) return r->act[load->edge];
    return e ? e->value.data : r->batch ? 0 : r->x.p;
}
/* Where the ops [from, to) keep output and row statistics, those of `span` alone: from base + at on. Returns where it
 * ends. */
TE_API size_t te__place(te_run *r, char *base, size_t at, int from, int to, int span) {
    const te_plan *plan = r->plan;
    for (int i = from; i < to; i++) {
        const te_op *op = &plan->op[i];
        const int here = r->pass != TE_INFER && te__span_of(plan, i) == span;
        const int is_y = i == plan->op_count - 1 && op->out_dtype == plan->out_dtype;
        const int64_t padded = te_padded_rows(r, op->out_rows);
        r->act[i] = 0, r->stats[i] = 0, r->kept[i] = 0;
        if (op->flags & TE_IS_FORK) r->act[i] = i ? r->act[i - 1] : r->x.p;
        else if (op->flags & TE_IS_LOAD) r->act[i] = te__loaded(r, op);
        else if (is_y) r->act[i] = r->y.p;
        else if (here && te_in_memory(r, i)) {
            r->act[i] = base + at;
            at += (size_t)te_round_up(padded * op->out * (int64_t)te_dtype_bytes(op->out_dtype), TE_ALIGN);
        }
        if (here && te__keeps_fp8(r, i)) {
            r->kept[i] = base + at;
            at += TE_ALIGN + (size_t)te_round_up(te_padded_rows(r, op->in_rows) * op->in, TE_ALIGN);
        }
        if (here && op->stats) {
            r->stats[i] = (float *)(void *)(base + at);
            at += (size_t)te_round_up(padded * op->stats * (int64_t)sizeof(float), TE_ALIGN);
        }
    }
    return at;
}
/* Walk te_saved's memory: the random state, then each op's output and row statistics. Returns the bytes it takes. */
TE_API size_t te__lay_out(te_run *r, char *base) {
    if (r->pass != TE_INFER) r->rng = (te_rng *)(void *)base;
    return te__place(r, base, TE_ALIGN, 0, r->plan->op_count, -1);
}

/* ---- where a step's result goes --------------------------------------------------------------------------------- */

TE_API int te_last_step(const te_run *r, const te_step *s) {
    const te_plan *p = r->plan;
    if (r->pass == TE_BACKWARD)
        return s == &p->backward[p->backward_count - 1] || s->op[s->count - 1] <= r->reach;
    return r->pass == TE_INFER ? s == &p->infer[p->infer_count - 1] : s == &p->forward[p->forward_count - 1];
}
/* Forward: the output of op i, the last of step s. */
TE_API te_status te_output(te_value *v, te_run *r, const te_step *s, int i) {
    const te_op *op = &r->plan->op[i];
    *v = te_output_of(r, i);
    if (te_last_step(r, s) && r->y.dtype == op->out_dtype) *v = r->y;
    else if (r->pass != TE_FORWARD || !te_in_memory(r, i)) v->p = 0;
    return v->p ? TE_OK : te_acquire(r, v, op->out_rows, op->out, op->out_dtype);
}
/* Whether backward wants the gradient of op i's input. */
TE_API int te_is_wanted(const te_run *r, int i) { return i > r->reach; }
/* Backward: the gradient of op i's input, i the last of step s. p is null if nobody wants it. */
TE_API te_status te_gradient(te_value *v, te_run *r, const te_step *s, int i) {
    const te_op *op = &r->plan->op[i];
    *v = r->dx;
    return te_last_step(r, s) ? TE_OK : te_acquire(r, v, op->in_rows, op->in, op->in_dtype);
}

#endif
