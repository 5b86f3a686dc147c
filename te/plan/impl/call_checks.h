/* call_checks.h -- what every call of a model checks before anything is enqueued: the batch, and the caller's tensors.
 */
#ifndef TE_CALL_CHECKS_H
#define TE_CALL_CHECKS_H

#include "../bind.h" /* te__check_model */
#include "storage.h" /* te_run */

/* Sequences that differ in length. What their numbers are can be seen on the host alone (core/tensor.h). */
TE_API te_status te__check_sequences(const te_batch *b, const char *name, te_context *ctx) {
    const int64_t rows = (int64_t)b->batch * b->seq;
    if (!b->sequences && !b->max_seqlen && !b->cu_seqlens) return TE_OK;
    TE_REQUIRE(b->sequences > 0 && b->sequences <= rows, ctx, TE_ERROR_SHAPE,
               "%s: batch.sequences is %d; with cu_seqlens it is 1 to the number of rows, %lld", name, b->sequences,
               (long long)rows);
    TE_REQUIRE(b->max_seqlen > 0, ctx, TE_ERROR_SHAPE, "%s: batch.max_seqlen is %d, with cu_seqlens it must be positive",
               name, b->max_seqlen);
    TE_REQUIRE(b->cu_seqlens, ctx, TE_ERROR_NULL, "%s: batch.sequences is %d, and batch.cu_seqlens is null", name,
               b->sequences);
    TE_REQUIRE((uintptr_t)b->cu_seqlens % sizeof *b->cu_seqlens == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: batch.cu_seqlens lie at %p, which is no multiple of 4", name, (const void *)b->cu_seqlens);
    for (int i = 0; !TE_CUDA && i <= b->sequences; i++) {
        const int64_t now = b->cu_seqlens[i], before = i ? b->cu_seqlens[i - 1] : 0;
        TE_REQUIRE(now >= before && now - before <= b->max_seqlen && (i || !now), ctx, TE_ERROR_VALUE,
                   "%s: batch.cu_seqlens[%d] is %lld behind %lld: they begin at 0 and ascend, by batch.max_seqlen, %d, at "
                   "most", name, i, (long long)now, (long long)before, b->max_seqlen);
        TE_REQUIRE(i < b->sequences || now == rows, ctx, TE_ERROR_VALUE,
                   "%s: batch.cu_seqlens ends at %lld, the batch has %lld rows", name, (long long)now, (long long)rows);
    }
    return TE_OK;
}

/* Rows of what decoders attend to. */
TE_API te_status te__check_memory(const te_batch *b, const char *name, te_context *ctx) {
    TE_REQUIRE(b->memory_seq > 0, ctx, TE_ERROR_SHAPE,
               "%s: batch.memory_seq is %d; a list with an input of (rows, memory) needs a positive one", name,
               b->memory_seq);
    TE_REQUIRE((int64_t)b->batch * b->memory_seq <= INT32_MAX / 2, ctx, TE_ERROR_OVERFLOW,
               "%s: batch %d times memory_seq %d is too large", name, b->batch, b->memory_seq);
    TE_REQUIRE(!b->cu_seqlens, ctx, TE_ERROR_VALUE,
               "%s: batch.cu_seqlens is given; a list with an input of (rows, memory) takes sequences of one length",
               name);
    return TE_OK;
}

TE_API te_status te__check_batch(const te_plan *plan, const te_model *m, const te_batch *b, te_context *ctx) {
    TE_REQUIRE(plan, ctx, TE_ERROR_NULL, "the plan is null");
    const char *name = plan->name;
    TE_TRY(te_check_target(ctx, name));
    TE_REQUIRE(m && b, ctx, TE_ERROR_NULL, "%s: the instance or the batch is null", name);
    TE_TRY(te__check_dims(plan, ctx));
    TE_TRY(te__check_model(plan, m, ctx));
    TE_REQUIRE(b->batch > 0 && b->seq > 0, ctx, TE_ERROR_SHAPE, "%s: batch %d and seq %d must be positive", name,
               b->batch, b->seq);
    TE_REQUIRE((int64_t)b->batch * b->seq <= INT32_MAX / 2, ctx, TE_ERROR_OVERFLOW,
               "%s: batch %d times seq %d is too large", name, b->batch, b->seq);
    const te_group *g = te_tensor_group(ctx);
    TE_REQUIRE(!te__has_sharded_rows(plan) || (int64_t)b->batch * b->seq % g->size == 0, ctx, TE_ERROR_SHAPE,
               "%s: batch %d times seq %d is not shared out evenly among %d ranks", name, b->batch, b->seq, g->size);
    for (int i = 0; i < plan->op_count; i++)
        TE_REQUIRE(!plan->op[i].ranks || plan->op[i].ranks == g->size, ctx, TE_ERROR_STATE,
                   "%s: (%s, %s) is for a tensor group of %d ranks, here are %d; te_comm_create makes groups", name,
                   plan->op[i].kind, plan->op[i].name, plan->op[i].ranks, g->size);
    TE_TRY(te__check_sequences(b, name, ctx));
    if (te__has_memory(plan)) TE_TRY(te__check_memory(b, name, ctx));
    TE_REQUIRE(b->position >= 0 && b->position <= INT32_MAX - te_max(b->seq, b->max_seqlen), ctx, TE_ERROR_VALUE,
               "%s: position %d must not be negative or overflow", name, b->position);
    TE_REQUIRE(!b->positions || !b->position, ctx, TE_ERROR_VALUE,
               "%s: the batch has positions and begins at position %d; only one can be", name, b->position);
    TE_REQUIRE((uintptr_t)b->positions % sizeof *b->positions == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: batch.positions lies at %p, which is no multiple of 4", name, (const void *)b->positions);
    TE_REQUIRE(b->edge_count >= 0 && (b->edges || !b->edge_count), ctx, TE_ERROR_NULL, "%s: edges is null", name);
    return TE_OK;
}

/* `want` says what the list was declared with. */
TE_API te_status te__check_tensor(const char *model, const char *name, te_tensor t, te_value want, te_context *ctx) {
    TE_REQUIRE(t.data, ctx, TE_ERROR_NULL, "%s: %s is null", model, name);
    TE_REQUIRE(t.dtype == want.dtype, ctx, TE_ERROR_DTYPE, "%s: %s is %s, the list was declared with %s", model, name,
               te_dtype_name(t.dtype), te_dtype_name(want.dtype));
    TE_REQUIRE(t.rows == want.rows, ctx, TE_ERROR_SHAPE, "%s: %s has %lld rows, the batch has %lld", model, name,
               (long long)t.rows, (long long)want.rows);
    TE_REQUIRE(t.cols == want.cols, ctx, TE_ERROR_SHAPE, "%s: %s has %lld columns, the list was declared with %lld",
               model, name, (long long)t.cols, (long long)want.cols);
    TE_REQUIRE((uintptr_t)t.data % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: %s lies at %p, which is no multiple of %d", model, name, t.data, (int)TE_ACCESS);
    return TE_OK;
}

/* The caller's tensor for `(input, name)` or `(output, name)`. */
TE_API te_status te__find_edge(const te_edge **found, const te_run *r, const te_op *op) {
    *found = te__edge_named(r, op->name);
    if (!r->batch) return TE_OK; /* sizing only */
    TE_REQUIRE(*found, r->ctx, TE_ERROR_NULL, "%s: the batch brings no edge named %s", r->plan->name, op->name);
    return TE_OK;
}
/* The caller's value (grad: its gradient) for an input or output of the list that looks like `like`; p null: a gradient
 * that is not given, or not wanted. While sizes are measured it is as if it were there, at x's place. */
TE_API te_status te_edge_tensor(te_value *v, const te_run *r, const te_op *op, te_value like, int grad) {
    const te_edge *e;
    *v = like, v->block = -1, v->data = r->x.data;
    TE_TRY(te__find_edge(&e, r, op));
    if (!e) return TE_OK;
    const te_tensor t = grad ? e->grad : e->value;
    v->data = t.data;
    if (t.data || !grad) TE_TRY(te__check_tensor(r->plan->name, e->name, t, like, r->ctx));
    return TE_OK;
}
/* What the fork or input that an op reads keeps looks so: [.., cols]. */
TE_API te_value te__fork_value_like(const te_run *r, const te_op *op, int cols) {
    const te_op *fork = &r->plan->op[op->edge];
    const te_rows rows = fork->flags & TE_OF_MEMORY ? TE_ROWS_memory
                         : fork->flags & TE_IS_INPUT ? op->out_rows : fork->out_rows;
    return te_value_of(0, op->edge_dtype, te_rows_in(r, rows), cols);
}
/* That, as forward has it. */
TE_API te_status te__fork_value_of_width(te_value *v, const te_run *r, const te_op *op, int cols) {
    const te_op *fork = &r->plan->op[op->edge];
    if (fork->flags & TE_IS_INPUT) return te_edge_tensor(v, r, fork, te__fork_value_like(r, op, cols), 0);
    *v = r->pass == TE_INFER ? r->edge[op->edge] : te_output_of(r, op->edge);
    return TE_OK;
}
TE_API te_status te_fork_value(te_value *v, const te_run *r, const te_op *op) {
    return te__fork_value_of_width(v, r, op, op->out);
}

#endif
