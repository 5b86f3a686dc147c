/* run.h -- one walk over a plan (walk.h): where each value lies, and the memory that lives only during a call. */
#ifndef TE_RUN_H
#define TE_RUN_H

#include "model.h"          /* te_plan, te_model, te_saved */
#include "sums.h"           /* te_sum_args */
#include "../core/target.h" /* te_rng_take_launch */

enum { TE_MAX_LIVE = 32 + TE_SUM_JOBS }; /* pieces of workspace in use at a time */

/* A tensor of the walk: memory of the caller, of te_saved, or (block >= 0) a piece of the workspace. */
typedef struct te_value { void *p; int block; } te_value;

/* First-fit over the workspace, blocks sorted by address. `high` is the most that was ever in use. */
typedef struct te_pool {
    char *base;
    size_t high;
    int count;
    struct { size_t at, bytes; int holds, id; } block[TE_MAX_LIVE];
    int next_id;
} te_pool;

typedef enum te_pass { TE_FORWARD, TE_INFER, TE_BACKWARD } te_pass;

typedef struct te_run {
    const te_plan *plan;
    const te_batch *batch;
    te_context *ctx;
    te_pass pass;
    int dry;
    int64_t rows, padded;
    te_value now;             /* forward: the activation; backward: its gradient, p null if nobody wants it */
    void *x, *y, *dx;         /* the caller's */
    const void *dy;
    te_rng *rng;              /* the random state of this forward */
    te_rng_args take;         /* it is still to be taken: by the first kernel of a chain that draws nothing, or a kernel of its own */
    te_saved *saved;          /* forward: what it fills */
    te_pool pool;
    te_value edge[TE_MAX_OPS];  /* by fork: its value in inference, its gradient in backward */
    te_value span[TE_MAX_SPANS]; /* by span: what its ops keep, p null while it is not worked on */
    void *act[TE_MAX_OPS];      /* by op: its output, where it stays until backward; in a span null while that is not worked on */
    float *stats[TE_MAX_OPS];   /* by op: [rows, stats] */
    te_param *param[TE_MAX_OPS]; /* by op: its first parameter */
    te_sum_args sums;           /* column sums that wait to be added up */
    te_value partial[TE_SUM_JOBS];
    int sum_count;
} te_run;

TE_API te_value te_value_of(void *p) {
    te_value v;
    v.p = p, v.block = -1;
    return v;
}

/* A piece of the workspace, held once. */
TE_API te_status te_acquire(te_run *r, te_value *v, size_t bytes) {
    te_pool *p = &r->pool;
    size_t at = 0;
    int i = 0;
    bytes = (size_t)te_round_up((int64_t)te_max((int64_t)bytes, 1), TE_ALIGN);
    for (; i < p->count && p->block[i].at - at < bytes; i++) at = p->block[i].at + p->block[i].bytes;
    TE_REQUIRE(p->count < TE_MAX_LIVE, r->ctx, TE_ERROR_MEMORY, "%s: more than %d values are alive at once", r->plan->name, (int)TE_MAX_LIVE);
    memmove(&p->block[i + 1], &p->block[i], (size_t)(p->count - i) * sizeof p->block[0]);
    p->count++;
    p->block[i].at = at, p->block[i].bytes = bytes, p->block[i].holds = 1, p->block[i].id = p->next_id++;
    if (at + bytes > p->high) p->high = at + bytes;
    v->p = r->dry ? (void *)(uintptr_t)(at + TE_ALIGN) : p->base + at, v->block = p->block[i].id;
    return TE_OK;
}
TE_API void te__hold(te_run *r, te_value v, int by) {
    te_pool *p = &r->pool;
    for (int i = 0; v.block >= 0 && i < p->count; i++)
        if (p->block[i].id == v.block) {
            p->block[i].holds += by;
            if (!p->block[i].holds) {
                memmove(&p->block[i], &p->block[i + 1], (size_t)(p->count - i - 1) * sizeof p->block[0]);
                p->count--;
            }
            return;
        }
}
TE_API te_value te_hold(te_run *r, te_value v) {
    te__hold(r, v, 1);
    return v;
}
TE_API void te_drop(te_run *r, te_value v) { te__hold(r, v, -1); }

/* Make `v` the current value; the one before is let go. */
TE_API void te_set_now(te_run *r, te_value v) {
    te_drop(r, r->now);
    r->now = v;
}
TE_API size_t te_value_bytes(const te_run *r, int width) {
    return (size_t)r->padded * (size_t)width * te_dtype_bytes(r->plan->dtype);
}

/* Whether the output of op i has to lie in memory after its step: backward reads it, or a fork keeps it. */
TE_API int te__is_read(const te_plan *plan, int i) {
    if (plan->op[i].flags & TE_SAVES_OUTPUT) return 1;
    return i + 1 < plan->op_count && (plan->op[i + 1].flags & (TE_SAVES_INPUT | TE_IS_FORK));
}
/* Whether op i, in span k, leaves something that has to be computed again. */
TE_API int te__is_lost(const te_plan *plan, int k, int i) {
    const te_op *op = &plan->op[i];
    return i < plan->span[k].last && (op->stats || (te__is_read(plan, i) && !(op->flags & TE_IS_FORK)));
}
/* The same as te__is_read, or a span that runs again begins with it. */
TE_API int te_in_memory(const te_plan *plan, int i) {
    int begins = 0;
    for (int k = 0; k < plan->span_count; k++)
        for (int j = i + 1; plan->span[k].first == i + 1 && j < plan->span[k].last; j++) begins |= te__is_lost(plan, k, j);
    return begins || te__is_read(plan, i);
}
/* The span that what op i keeps belongs to; -1: it is saved. What the last op of a span gives is for the ops behind. */
TE_API int te__span_of(const te_plan *plan, int i) {
    for (int k = 0; k < plan->span_count; k++)
        if (plan->span[k].first <= i && i < plan->span[k].last) return k;
    return -1;
}

/* Where the ops [from, to) keep output and row statistics, those of `span` alone: from base + at on. Returns where it ends. */
TE_API size_t te__place(te_run *r, char *base, size_t at, int from, int to, int span) {
    const te_plan *plan = r->plan;
    for (int i = from; i < to; i++) {
        const te_op *op = &plan->op[i];
        const int here = r->pass != TE_INFER && te__span_of(plan, i) == span;
        r->act[i] = 0, r->stats[i] = 0;
        if (op->flags & TE_IS_FORK) r->act[i] = i ? r->act[i - 1] : r->x;
        else if (i == plan->op_count - 1) r->act[i] = r->y;
        else if (here && te_in_memory(plan, i)) r->act[i] = base + at, at += te_value_bytes(r, op->out);
        if (here && op->stats) {
            r->stats[i] = (float *)(void *)(base + at);
            at += (size_t)te_round_up(r->padded * op->stats * (int64_t)sizeof(float), TE_ALIGN);
        }
    }
    return at;
}
/* Walk te_saved's memory: the random state, then each op's output and row statistics. Returns the bytes it takes. */
TE_API size_t te__lay_out(te_run *r, char *base) {
    if (r->pass != TE_INFER) r->rng = (te_rng *)(void *)base;
    return te__place(r, base, TE_ALIGN, 0, r->plan->op_count, -1);
}

TE_API void te__begin(te_run *r, const te_plan *plan, te_pass pass, int64_t rows, te_context *ctx) {
    r->plan = plan, r->pass = pass, r->rows = rows, r->padded = te_round_up(rows, TE_ROW_PAD), r->ctx = ctx;
    r->batch = 0, r->dry = 1, r->now = te_value_of(0), r->x = r->y = r->dx = 0, r->dy = 0, r->rng = 0, r->saved = 0, r->take.taken = 0;
    r->pool.base = 0, r->pool.high = 0, r->pool.count = 0, r->pool.next_id = 0, r->sum_count = 0;
    memset(&r->sums, 0, sizeof r->sums); /* jobs that are none are arguments, too, and compared (launch_cuda.h) */
    for (int i = 0; i < plan->op_count; i++) r->edge[i] = te_value_of(0), r->param[i] = 0;
    for (int k = 0; k < plan->span_count; k++) r->span[k] = te_value_of(0);
}

/* ---- column sums (sums.h) ----------------------------------------------------------------------------------------- */

/* Whether backward adds to the parameter's gradient. */
TE_API int te_accumulates(const te_run *r, const te_param *p) { return p->shared || (r->batch && r->batch->accumulate); }

/* Add up all that wait. */
TE_API te_status te_sum_now(te_run *r) {
    int widest = 0, odd = 0;
    for (int i = 0; i < r->sum_count; i++) widest = (int)te_max(widest, r->sums.job[i].width), odd |= r->sums.job[i].width % 2;
    if (r->sum_count && !r->dry) {
        const int columns = widest >= TE_SUM_WIDE && !odd ? 2 : 1;
        const te_grid grid = te_grid_of(te_ceil_div(widest, columns * TE_SUM_LANES), r->sum_count);
        TE_TRY((columns == 2 ? te_sum_wide_rows_launch : te_sum_rows_launch)(r->ctx, grid, &r->sums));
    }
    for (int i = 0; i < r->sum_count; i++) te_drop(r, r->partial[i]);
    r->sum_count = 0;
    return TE_OK;
}
/* Room for `blocks` partial sums of p's gradient, which will be added up before this backward ends. most: blocks that the largest
 * batch has; so much is taken always, so that what is reserved for that one serves a smaller one. */
TE_API te_status te_sum_later(te_run *r, float **partial, const te_param *p, int width, int blocks, int most) {
    TE_REQUIRE(r->sum_count < TE_SUM_JOBS, r->ctx, TE_ERROR_STATE, "%s: a row sums more than %d gradients", r->plan->name, (int)TE_SUM_ROW);
    te_value *v = &r->partial[r->sum_count];
    te_sum_job *j = &r->sums.job[r->sum_count];
    TE_TRY(te_acquire(r, v, (size_t)most * (size_t)width * sizeof(float)));
    r->sum_count++;
    j->partial = *partial = (float *)v->p, j->total = p->grad, j->width = width, j->count = blocks, j->accumulate = te_accumulates(r, p);
    return TE_OK;
}

/* ---- spans that backward runs again (ops/recompute.h) ------------------------------------------------------------- */

/* Memory for what span k keeps. Forward takes it, too: its steps write where they would if all of it were saved. */
TE_API te_status te__span_open(te_run *r, int k) {
    const te_span *s = &r->plan->span[k];
    TE_TRY(te_acquire(r, &r->span[k], te__place(r, (char *)(uintptr_t)TE_ALIGN, 0, s->first, s->last, k)));
    (void)te__place(r, (char *)r->span[k].p, 0, s->first, s->last, k);
    return TE_OK;
}
TE_API void te__span_close(te_run *r, int k) {
    (void)te__place(r, 0, 0, r->plan->span[k].first, r->plan->span[k].last, -1); /* nowhere, but for the forks it begins with */
    te_drop(r, r->span[k]);
    r->span[k] = te_value_of(0);
}

/* The steps [*from, *to) of the forward that span k runs again: as far as the last one that leaves something in it. */
TE_API void te__span_steps(const te_plan *plan, int k, int *from, int *to) {
    int i = 0;
    while (i < plan->forward_count && plan->forward[i].op[0] < plan->span[k].first) i++;
    for (*from = *to = i; i < plan->forward_count && plan->forward[i].op[0] < plan->span[k].last; i++)
        for (int j = 0; j < plan->forward[i].count; j++)
            if (te__is_lost(plan, k, plan->forward[i].op[j])) *to = i + 1;
}

/* In backward: fill the memory of span k again. */
TE_API te_status te__span_recompute(te_run *r, int k) {
    const te_span *s = &r->plan->span[k];
    const te_value gradient = r->now;
    void *const y = r->y, *const act = r->act[s->last];
    float *const stats = r->stats[s->last];
    int from, to;
    te__span_steps(r->plan, k, &from, &to);
    TE_TRY(te__span_open(r, k));
    r->pass = TE_FORWARD, r->now = te_value_of(s->first ? r->act[s->first - 1] : r->x);
    r->y = 0, r->act[s->last] = 0, r->stats[s->last] = 0; /* these are there already */
    for (int i = from; i < to; i++) TE_TRY(r->plan->forward[i].run(r, &r->plan->forward[i]));
    te_drop(r, r->now);
    r->pass = TE_BACKWARD, r->now = gradient;
    r->y = y, r->act[s->last] = act, r->stats[s->last] = stats;
    return TE_OK;
}

/* Before and after a step. A step of forward lies within a span or outside, one of backward may reach into several. */
TE_API te_status te__span_enter(te_run *r, const te_step *step) {
    for (int k = 0; r->pass != TE_INFER && k < r->plan->span_count; k++)
        for (int j = 0; j < step->count && !r->span[k].p; j++)
            if (r->plan->span[k].first <= step->op[j] && step->op[j] <= r->plan->span[k].last)
                TE_TRY(r->pass == TE_FORWARD ? te__span_open(r, k) : te__span_recompute(r, k));
    return TE_OK;
}
TE_API void te__span_leave(te_run *r, const te_step *step) {
    for (int k = 0; r->pass != TE_INFER && k < r->plan->span_count; k++)
        for (int j = 0; j < step->count && r->span[k].p; j++)
            if (step->op[j] == (r->pass == TE_FORWARD ? r->plan->span[k].last : r->plan->span[k].first)) te__span_close(r, k);
}

/* ---- the caller's tensors --------------------------------------------------------------------------------------- */

TE_API te_status te__check_tensor(const char *model, const char *name, te_tensor t, te_dtype dtype, int64_t rows, int64_t cols, te_context *ctx) {
    TE_REQUIRE(t.data, ctx, TE_ERROR_NULL, "%s: %s is null", model, name);
    TE_REQUIRE(t.dtype == dtype, ctx, TE_ERROR_DTYPE, "%s: %s is %s, the list was declared with %s", model, name, te_dtype_name(t.dtype),
               te_dtype_name(dtype));
    TE_REQUIRE(t.rows == rows, ctx, TE_ERROR_SHAPE, "%s: %s has %lld rows, the batch has %lld", model, name, (long long)t.rows, (long long)rows);
    TE_REQUIRE(t.cols == cols, ctx, TE_ERROR_SHAPE, "%s: %s has %lld columns, the list was declared with %lld", model, name, (long long)t.cols,
               (long long)cols);
    TE_REQUIRE((uintptr_t)t.data % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT, "%s: %s lies at %p, which is no multiple of %d", model, name, t.data,
               (int)TE_ACCESS);
    return TE_OK;
}

/* The caller's tensor for `(input, name)` or `(output, name)`. */
TE_API te_status te_find_edge(const te_edge **found, const te_run *r, const te_op *op) {
    *found = 0;
    for (int i = 0; r->batch && i < r->batch->edge_count; i++)
        if (r->batch->edges[i].name && !strcmp(r->batch->edges[i].name, op->name)) *found = &r->batch->edges[i];
    if (!r->batch) return TE_OK; /* sizing only */
    TE_REQUIRE(*found, r->ctx, TE_ERROR_NULL, "%s: the batch brings no edge named %s", r->plan->name, op->name);
    return TE_OK;
}

#endif
