/* call_checks.h -- the checks that a call of forward, inference or backward makes before it enqueues any work: checks
 * of the batch, checks of the caller's tensors, and a check that no memory which the call writes overlaps other memory
 * of the call. The header also has the functions that return the values of forks (values that later ops use again) and
 * of extra inputs.
 */
#ifndef TE_CALL_CHECKS_H
#define TE_CALL_CHECKS_H

#include "../bind.h" /* te__check_model */
#include "storage.h" /* te_run */

/* ---- the batch --------------------------------------------------------------------------------------------------- */

/* Check the members of te_batch that describe packed sequences of different lengths (core/tensor.h). cu_seqlens lies in
 * target memory (host or device), so the values of cu_seqlens can be checked only if the target is the host. */
TE_API te_status te__check_sequences(const te_batch *b, const char *name, te_context *ctx) {
    const int64_t rows = (int64_t)b->batch * b->seq * (b->context ? te_cp_group(ctx)->size : 1);
    if (!b->sequences && !b->max_seqlen && !b->cu_seqlens) return TE_OK;
    TE_REQUIRE(b->sequences > 0 && b->sequences <= rows, ctx, TE_ERROR_SHAPE,
               "%s: batch.sequences is %d; with cu_seqlens it is 1 to the number of rows, %lld", name, b->sequences,
               (long long)rows);
    TE_REQUIRE(b->max_seqlen > 0, ctx, TE_ERROR_SHAPE,
               "%s: batch.max_seqlen is %d, with cu_seqlens it must be positive", name, b->max_seqlen);
    TE_REQUIRE(b->cu_seqlens, ctx, TE_ERROR_NULL, "%s: batch.sequences is %d, and batch.cu_seqlens is null", name,
               b->sequences);
    TE_REQUIRE((uintptr_t)b->cu_seqlens % sizeof *b->cu_seqlens == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: batch.cu_seqlens lies at %p, which is no multiple of 4", name, (const void *)b->cu_seqlens);
    for (int i = 0; !TE_CUDA && i <= b->sequences; i++) {
        const int64_t now = b->cu_seqlens[i], before = i ? b->cu_seqlens[i - 1] : 0;
        TE_REQUIRE(
            now >= before && now - before <= b->max_seqlen && (i || !now), ctx, TE_ERROR_VALUE,
            "%s: batch.cu_seqlens[%d] is %lld behind %lld: they begin at 0 and ascend, by batch.max_seqlen, %d, at "
            "most",
            name, i, (long long)now, (long long)before, b->max_seqlen);
        TE_REQUIRE(i < b->sequences || now == rows, ctx, TE_ERROR_VALUE,
                   "%s: batch.cu_seqlens ends at %lld, the batch has %lld rows", name, (long long)now, (long long)rows);
    }
    return TE_OK;
}

/* Check te_batch.memory_seq, the number of rows per sequence that cross_attention attends to, e.g. the rows of an
 * encoder's output. The function is called for lists that declare an extra input with such rows: (input, .., (rows,
 * memory)). */
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

/* Check a batch whose sequences are split over the ranks of the context group (context parallelism,
 * te_batch.context). */
TE_API te_status te__check_cp_batch(const te_plan *plan, const te_batch *b, te_context *ctx) {
    const char *name = plan->name;
    const te_group *g = te_cp_group(ctx);
    if (!b->context) return TE_OK;
    TE_REQUIRE(b->context == 1, ctx, TE_ERROR_VALUE, "%s: batch.context is %d; it is 0 or 1", name, b->context);
    TE_REQUIRE(b->seq % 2 == 0, ctx, TE_ERROR_SHAPE,
               "%s: batch.seq is %d; with batch.context it must be even: a rank has two chunks of each sequence", name,
               b->seq);
    TE_REQUIRE((int64_t)b->seq * g->size <= INT32_MAX / 2, ctx, TE_ERROR_OVERFLOW,
               "%s: batch.seq %d on %d ranks is too large", name, b->seq, g->size);
    TE_REQUIRE(!b->cache && !b->positions && !b->position, ctx, TE_ERROR_VALUE,
               "%s: batch.context does not go with batch.%s", name,
               b->cache ? "cache" : b->positions ? "positions" : "position");
    TE_REQUIRE(!b->cu_seqlens || b->batch == 1, ctx, TE_ERROR_SHAPE,
               "%s: batch.batch is %d; with batch.context and batch.cu_seqlens it is 1: the ranks split one sequence",
               name, b->batch);
    for (int i = 0; i < plan->op_count; i++) {
        const te_op *op = &plan->op[i];
        TE_REQUIRE(op->out_rows != TE_ROWS_sequences && !(op->flags & (TE_OF_SEQUENCES | TE_IS_CROSS)), ctx,
                   TE_ERROR_VALUE, "%s: (%s, %s) needs whole sequences, and batch.context is 1", name, op->kind,
                   op->name);
    }
    return TE_OK;
}

TE_API te_status te__check_batch(const te_plan *plan, const te_model *m, const te_batch *b, te_context *ctx) {
    TE_REQUIRE(plan, ctx, TE_ERROR_NULL, "the plan is null");
    const char *name = plan->name;
    TE_TRY(te__check_target(ctx, name));
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
    TE_TRY(te__check_copies(plan, ctx));
    TE_TRY(te__check_sequences(b, name, ctx));
    TE_TRY(te__check_cp_batch(plan, b, ctx));
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

/* ---- the caller's tensors ---------------------------------------------------------------------------------------- */

/* Check that the caller's tensor t has the shape and format that `want` has. The caller of this function has computed
 * `want` from the list and the batch. */
TE_API te_status te__check_tensor(const char *model, const char *name, te_tensor t, te_value want, te_context *ctx) {
    TE_REQUIRE(t.data, ctx, TE_ERROR_NULL, "%s: %s is null", model, name);
    TE_REQUIRE(t.dtype == want.dtype, ctx, TE_ERROR_DTYPE, "%s: %s is %s, the list was declared with %s", model, name,
               te_dtype_name(t.dtype), te_dtype_name(want.dtype));
    TE_REQUIRE(t.rows == want.rows, ctx, TE_ERROR_SHAPE, "%s: %s has %lld rows, the batch has %lld", model, name,
               (long long)t.rows, (long long)want.rows);
    TE_REQUIRE(t.cols == want.cols, ctx, TE_ERROR_SHAPE, "%s: %s has %lld columns, the list was declared with %lld",
               model, name, (long long)t.cols, (long long)want.cols);
    const int64_t max_stride = INT32_MAX / (int64_t)te_dtype_bytes(t.dtype);
    TE_REQUIRE(!t.stride || (t.stride >= t.cols && t.stride <= max_stride), ctx, TE_ERROR_SHAPE,
               "%s: the rows of %s have a stride of %lld elements: it is 0 or %lld (the columns) to %lld", model, name,
               (long long)t.stride, (long long)t.cols, (long long)max_stride);
    TE_REQUIRE((uintptr_t)t.data % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: %s lies at %p, which is no multiple of %d", model, name, t.data, (int)TE_ACCESS);
    return TE_OK;
}

/* `op` is an extra input or output of the list: (input, name) or (output, name). Set *found to the entry of
 * te_batch.edges with the same name, which has the caller's tensors. Return an error if there is no such entry. A dry
 * run that only measures sizes has no batch; *found then becomes null. */
TE_API te_status te__find_edge(const te_edge **found, const te_run *r, const te_op *op) {
    *found = te__edge_named(r, op->name);
    if (!r->batch) return TE_OK;
    TE_REQUIRE(*found, r->ctx, TE_ERROR_NULL, "%s: the batch brings no edge named %s", r->plan->name, op->name);
    return TE_OK;
}
/* Set *v to the caller's tensor for `op`, an extra input or output of the list. If `grad` is 0, this is the tensor that
 * holds the value; if `grad` is 1, it is the tensor that holds the gradient of the value, and v->data becomes null if
 * the caller has passed no such tensor. The tensor must have the shape and format of `like`. During a dry run that only
 * measures sizes, v->data is the address of x, as a placeholder. */
TE_API te_status te__edge_tensor(te_value *v, const te_run *r, const te_op *op, te_value like, int grad) {
    const te_edge *e;
    *v = like, v->block = -1, v->data = r->x.data;
    TE_TRY(te__find_edge(&e, r, op));
    if (!e) return TE_OK;
    const te_tensor t = grad ? e->grad : e->value;
    v->data = t.data;
    if (t.data || !grad) TE_TRY(te__check_tensor(r->plan->name, e->name, t, like, r->ctx));
    return TE_OK;
}
/* Return a te_value without data that describes the second operand of `op`, which is the value of an earlier (fork, ..)
 * or of an extra (input, ..) of the list. The rows and the number format are those of this operand; the number of
 * columns is `cols`. */
TE_API te_value te__fork_value_like(const te_run *r, const te_op *op, int cols) {
    const te_op *fork = &r->plan->op[op->edge];
    const te_rows rows = fork->flags & TE_OF_MEMORY      ? TE_ROWS_memory
                         : fork->flags & TE_OF_SEQUENCES ? TE_ROWS_sequences
                         : fork->flags & TE_IS_INPUT     ? op->out_rows
                                                         : fork->out_rows;
    return te__value_of(0, op->edge_dtype, te__rows_in(r, rows), cols);
}
/* Set *v to the second operand of `op`, which is the value of an earlier (fork, ..) or of an extra (input, ..) of the
 * list. The first operand is the op's input. The function works in forward, inference and backward. */
TE_API te_status te__fork_value_of_width(te_value *v, const te_run *r, const te_op *op, int cols) {
    const te_op *fork = &r->plan->op[op->edge];
    if (fork->flags & TE_IS_INPUT) return te__edge_tensor(v, r, fork, te__fork_value_like(r, op, cols), 0);
    *v = r->pass == TE_INFER ? r->edge[op->edge] : te__output_of(r, op->edge);
    return TE_OK;
}
TE_API te_status te__fork_value(te_value *v, const te_run *r, const te_op *op) {
    return te__fork_value_of_width(v, r, op, op->out);
}

/* ---- aliasing ---------------------------------------------------------------------------------------------------- */

/* Memory that a call writes must not overlap other memory that the call reads or writes.
 *
 * Forward and inference write y, te_saved.memory, the workspace and the values of extra outputs. Backward writes dx,
 * the gradients of the parameters, the workspace and the gradients of extra inputs. A call returns an error if memory
 * that it writes overlaps another tensor of the call, the parameters, tokens, labels, positions or cu_seqlens. The one
 * exception is a call in place: in inference y may be x itself, and in backward dx may be dy itself, with the same
 * address, shape, stride and format. If the rows of a tensor have a stride, the elements between the rows do not belong
 * to the tensor, so x and y may be different columns of one matrix.
 *
 * The last step of a call in place must not read memory that it overwrites, unless this step works element by element
 * or row by row. Therefore a list cannot run in place if it ends in a cross_attention, or if the only step of the list
 * works neither element by element nor row by row (a linear, attention or rope alone). If the rows have a stride, every
 * list can run in place, because the steps work on dense copies of the tensors.
 *
 * Two tensors that are only read may overlap. But if backward reads the forward's x or y, or writes the forward's y
 * (te_saved.loss_in_backward), then dy and dx must not overlap that x or y. */

typedef struct te__region {
    const char *name;
    const char *begin;
    size_t bytes;       /* the bytes from the first byte of the region to the last one */
    size_t row, stride; /* `row`: the bytes of one row. `stride`: the distance in bytes from the beginning of one row to
                         * the beginning of the next row, or 0 if the region has no gaps between its rows */
    int written;
    int end; /* 1 if the region is the input of the pass (x or dy), 2 if it is the result of the pass (y or dx), else 0.
              * In a call in place, a region with `end` 1 and a region with `end` 2 may be the same memory */
} te__region;
enum { TE__MAX_REGIONS = 16 };
typedef struct te__regions {
    te__region region[TE__MAX_REGIONS];
    int count, in_place;
    const te_run *run;
    const te_model *model;
} te__regions;

TE_API size_t te__value_bytes(te_value v) { return (size_t)(v.rows * v.cols) * te_dtype_bytes(v.dtype); }

/* Return 1 if the result `to` is in the same memory as `from`, the value that the first step reads, and the last step
 * may overwrite `from`; else 0. The last step may do so if it works element by element or row by row, or does not read
 * `from`, or if the steps work on dense copies. */
TE_API int te__in_place(const te_run *r, te_tensor from, te_tensor to) {
    const te_plan *p = r->plan;
    const te_step *s = r->pass == TE_BACKWARD ? p->backward : p->infer;
    const int count = r->pass == TE_BACKWARD ? p->backward_count : p->infer_count;
    const te_op *op = &p->op[s[count - 1].op[0]];
    const te_class last = op->op_class;
    const int strided = te__is_strided(to);
    if (r->pass == TE_FORWARD || from.data != to.data || from.dtype != to.dtype) return 0;
    if (from.rows != to.rows || from.cols != to.cols || te__is_strided(from) != strided) return 0;
    if (strided) return from.stride == to.stride; /* x and y (or dy and dx) both have a stride, so the steps work on
                                                   * dense copies of both */
    if (op->flags & TE_IS_CROSS) return 0; /* not in place: cross_attention also reads keys and values, which may lie in
                                            * the memory of `from` */
    return last == TE_CLASS_map || last == TE_CLASS_norm || (count > 1 && r->pass_input != r->last_step_input);
}
/* Return whether `op` uses the value of a fork and its backward reads this value. All ops that use a fork do so except
 * add, because the gradients of an add do not depend on the fork's value. */
TE_API int te__rereads_fork(const te_op *op) { return op->edge >= 0 && !(op->flags & TE_IS_ADD); }
/* Return whether backward reads the forward's x. Backward reads x if the first op that is no fork saves its input or
 * lies in a recompute region, because this input is x. Backward also reads x if an op uses the value of a fork at the
 * beginning of the list, because this value is x. */
TE_API int te__reads_x(const te_plan *p) {
    int i = 0;
    while (i + 1 < p->op_count && (p->op[i].flags & TE_IS_FORK)) i++;
    for (int j = i; j < p->op_count; j++)
        if (te__rereads_fork(&p->op[j]) && p->op[j].edge < i && !(p->op[p->op[j].edge].flags & TE_IS_INPUT))
            return 1;
    return (p->op[i].flags & TE_SAVES_INPUT) || te__recomputes_logits(p, i) ||
           (p->region_count && p->region[0].first <= i);
}
/* Return whether backward reads the forward's y. */
TE_API int te__reads_y(const te_plan *p) { return (p->op[p->op_count - 1].flags & TE_SAVES_OUTPUT) != 0; }
TE_API int te__overlaps(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return a && b && a_bytes && b_bytes && x < y + b_bytes && y < x + a_bytes;
}
/* Return an error if the memory region *to overlaps memory of a parameter that lies outside the instance's two buffers:
 * a tied parameter and its gradient, a weight in a mapped file, or a weight in FP8. */
TE_API te_status te__region_check_params(const te__regions *all, const te__region *to) {
    const te_model *m = all->model;
    const te_param *p = m->param;
    if (!to->written && all->run->pass != TE_BACKWARD) return TE_OK; /* a region that is only read may overlap
                                                                      * parameters; but in backward the region must not
                                                                      * overlap a gradient, because backward writes the
                                                                      * gradients */
    for (int i = 0; i < m->plan->op_count; i++)
        for (int k = 0; k < m->plan->op[i].params; k++, p++) {
            const te_recipe recipe = m->plan->op[i].recipe;
            const te_scaling scaling = TE_IS_BLOCKWISE(recipe) ? TE_SCALING_BLOCKWISE_2D : TE_SCALING_ROWWISE;
            const size_t n = (size_t)(p->rows * p->cols), bytes = n * te_dtype_bytes(p->dtype);
            const int outside = !te__overlaps(p->data, bytes, m->params, m->param_bytes);
            const te_fp8_product *f = p->fp8.on ? &p->fp8 : 0;
            const int over_data = outside && te__overlaps(to->begin, to->bytes, p->data, bytes);
            const int over_fp8 =
                f && (te__overlaps(to->begin, to->bytes, f->data, n) ||
                      te__overlaps(to->begin, to->bytes, f->transposed, n) ||
                      te__overlaps(to->begin, to->bytes, f->inverse,
                                   (size_t)te_scaling_count(scaling, p->rows, p->cols) * sizeof(float)));
            TE_REQUIRE(!to->written || !(over_data || over_fp8), all->run->ctx, TE_ERROR_VALUE,
                       "%s: %s overlaps the parameters (%s.%s%s)", m->plan->name, to->name, p->op, p->field,
                       over_fp8 ? " in FP8" : p->constant ? ", in a file" : p->tied ? ", which is tied" : "");
            const size_t grads = (size_t)m->grad_elements * sizeof(float), grad = n * sizeof(float);
            const int other_grad = all->run->pass == TE_BACKWARD && p->tied &&
                                   !te__overlaps(p->grad, grad, m->grads, grads);
            TE_REQUIRE(!other_grad || !te__overlaps(to->begin, to->bytes, p->grad, grad), all->run->ctx,
                       TE_ERROR_VALUE, "%s: %s overlaps the gradients (%s.%s, which is tied)", m->plan->name, to->name,
                       p->op, p->field);
        }
    return TE_OK;
}
/* Return whether two regions have no byte in common. Regions with the same row stride may be different columns of one
 * matrix, and then have no byte in common. A region without a stride may lie in the gap between two rows of a region
 * with a stride. */
TE_API int te__regions_apart(const te__region *a, const te__region *b) {
    const uintptr_t x = (uintptr_t)a->begin, y = (uintptr_t)b->begin;
    if (x + a->bytes <= y || y + b->bytes <= x) return 1;
    const uintptr_t stride = a->stride ? a->stride : b->stride;
    if (!stride || (a->stride && b->stride && a->stride != b->stride)) return 0;
    const uintptr_t from = x <= y ? (y - x) % stride : (stride - (x - y) % stride) % stride; /* from a's row to b's */
    return from >= a->row && from + b->row <= stride;
}
/* Add a region of memory to the table of regions that a call accesses. Returns an error if the new region overlaps a
 * region of the table and this overlap is not permitted. */
TE_API te_status te__region_put(te__regions *all, te__region to) {
    if (!to.begin || !to.bytes) return TE_OK;
    TE_TRY(te__region_check_params(all, &to));
    for (int i = 0; i < all->count; i++) {
        const te__region *a = &all->region[i];
        if (te__regions_apart(a, &to) || (!a->written && !to.written) || (a->end && to.end && all->in_place)) continue;
        return te_fail(all->run->ctx, TE_ERROR_VALUE, "%s: %s overlaps %s%s", all->run->plan->name, to.name, a->name,
                       !a->end || !to.end ? ""
                       : all->run->pass == TE_FORWARD ? "; backward reads both"
                       : a->begin == to.begin && a->stride == to.stride ? "; this list cannot run in place"
                                                                        : "; they are to be the same or apart");
    }
    if (all->count < TE__MAX_REGIONS) all->region[all->count++] = to;
    return TE_OK;
}
TE_API te_status te__region_add(te__regions *all, const char *name, const void *begin, size_t bytes, int written,
                                int end) {
    te__region to;
    to.name = name, to.begin = (const char *)begin, to.bytes = to.row = bytes, to.stride = 0;
    to.written = written, to.end = end;
    return te__region_put(all, to);
}
/* Add a tensor of the caller to the table of regions. The rows of the tensor may have a stride. */
TE_API te_status te__region_add_tensor(te__regions *all, const char *name, te_tensor t, int written, int end) {
    const size_t size = te_dtype_bytes(t.dtype), row = (size_t)t.cols * size;
    te__region to;
    if (!te__is_strided(t)) return te__region_add(all, name, t.data, (size_t)t.rows * row, written, end);
    to.name = name, to.begin = (const char *)t.data, to.row = row, to.stride = (size_t)t.stride * size;
    to.bytes = (size_t)(t.rows - 1) * to.stride + row, to.written = written, to.end = end;
    return te__region_put(all, to);
}
/* Return TE_IS_INPUT if the list has an extra input with this name, or TE_IS_OUTPUT if the list has an extra output
 * with this name, else 0. The max_logit of an attention counts as an extra output. */
TE_API int te__edge_kind(const te_plan *p, const char *name) {
    for (int k = 0; name && k < p->op_count; k++) {
        const int flags = p->op[k].flags;
        if (strcmp(p->op[k].name, name)) continue;
        if (flags & TE_OUTPUTS_MAX_LOGIT) return TE_IS_OUTPUT;
        if (flags & TE_TAKES_EDGE) return TE_IS_INPUT;
        if (flags & (TE_IS_INPUT | TE_IS_OUTPUT)) return flags & (TE_IS_INPUT | TE_IS_OUTPUT);
    }
    return 0;
}
/* Add to the table of memory regions the tensors that the caller passes in te_batch.edges: for the ops (input, ..) and
 * (output, ..), and for attention with the option (max_logit, 1). */
TE_API te_status te__regions_edges(te__regions *all) {
    const te_run *r = all->run;
    const int before = all->count;
    for (int i = 0; i < r->batch->edge_count; i++) {
        const te_edge *e = &r->batch->edges[i];
        const int kind = te__edge_kind(r->plan, e->name);
        if (!kind) continue; /* this entry of te_batch.edges belongs to another list that uses the same batch */
        for (int k = 0; k < i; k++)
            TE_REQUIRE(!r->batch->edges[k].name || strcmp(r->batch->edges[k].name, e->name), r->ctx, TE_ERROR_VALUE,
                       "%s: the batch has the edge %s twice", r->plan->name, e->name);
        TE_REQUIRE(!te__is_strided(e->value) && !te__is_strided(e->grad), r->ctx, TE_ERROR_SHAPE,
                   "%s: the rows of %s have a stride, which only those of x, y, dx and dy may have", r->plan->name,
                   e->name);
        int is_read = 0; /* 1 if an op of the list reads the value of this extra input in backward */
        for (int k = 0; k < r->plan->op_count; k++) {
            const te_op *op = &r->plan->op[k];
            is_read |= te__rereads_fork(op) && (r->plan->op[op->edge].flags & TE_IS_INPUT) &&
                       !strcmp(r->plan->op[op->edge].name, e->name);
            is_read |= (op->flags & TE_TAKES_EDGE) && !strcmp(op->name, e->name);
        }
        const te_tensor t = r->pass == TE_BACKWARD ? e->grad : e->value;
        const int written = (r->pass == TE_BACKWARD) != (kind == TE_IS_OUTPUT);
        /* If the table is full, remove the extra inputs and outputs that are in the table, to make space. The later
         * extra inputs and outputs are then still compared with all other regions, but not with the removed extra
         * inputs and outputs. */
        if (all->count == TE__MAX_REGIONS) all->count = before;
        TE_TRY(te__region_add(all, e->name, t.data,
                              (size_t)(t.rows * t.cols) * te_dtype_bytes(t.dtype), written, 0));
        if (r->pass != TE_BACKWARD || !is_read) continue;
        if (all->count == TE__MAX_REGIONS) all->count = before;
        TE_TRY(te__region_add(all, e->name, e->value.data,
                              (size_t)(e->value.rows * e->value.cols) * te_dtype_bytes(e->value.dtype), 0, 0));
    }
    return TE_OK;
}
/* Check that no memory which this call writes overlaps other memory that the call reads or writes. `used` is the number
 * of bytes of workspace that the call needs. Call this after the dry run, which has checked the shapes and formats of
 * the tensors. */
TE_API te_status te__check_overlap(const te_run *r, const te_model *m, const te_saved *saved, size_t used) {
    const int back = r->pass == TE_BACKWARD;
    const te_tensor from = te__caller(r, back ? TE__CALLER_dy : TE__CALLER_x);
    const te_tensor to = te__caller(r, back ? TE__CALLER_dx : TE__CALLER_y);
    const size_t rows = (size_t)r->tokens;
    te__regions all;
    memset(&all, 0, sizeof all);
    all.run = r, all.model = m, all.in_place = te__in_place(r, from, to);
    TE_TRY(te__region_add(&all, "the parameters", m->params, m->param_bytes, 0, 0));
    TE_TRY(te__region_add(&all, back ? "the gradients" : "", back ? m->grads : 0,
                          (size_t)m->grad_elements * sizeof(float), 1, 0));
    TE_TRY(te__region_add(&all, "batch.tokens", r->batch->tokens, rows * sizeof(int32_t), 0, 0));
    TE_TRY(te__region_add(&all, "batch.labels", r->batch->labels,
                          (size_t)te__rows_in(r, te__out_rows(r->plan)) * sizeof(int32_t), 0, 0));
    TE_TRY(te__region_add(&all, "batch.positions", r->batch->positions, rows * sizeof(int32_t), 0, 0));
    TE_TRY(te__region_add(&all, "batch.cu_seqlens", r->batch->cu_seqlens,
                          ((size_t)r->batch->sequences + 1) * sizeof(int32_t), 0, 0));
    if (back && r->batch->loss_count)
        TE_TRY(te__region_add(&all, "batch.loss_count", r->batch->loss_count, sizeof(float), 0, 0));
    TE_TRY(te__region_add(&all, "the workspace", r->ctx->workspace, used, 1, 0));
    if (saved) TE_TRY(te__region_add(&all, "saved.memory", saved->memory, r->saved_bytes, !back, 0));
    if (back && te__reads_x(r->plan))
        TE_TRY(te__region_add_tensor(&all, "the forward's x, which backward reads", te__caller(r, TE__CALLER_x), 1, 0));
    if (back && (te__reads_y(r->plan) || r->loss_in_backward))
        TE_TRY(te__region_add_tensor(&all, r->loss_in_backward ? "the forward's y, which backward writes"
                                                               : "the forward's y, which backward reads",
                                     te__caller(r, TE__CALLER_y), 1, 0));
    TE_TRY(te__region_add_tensor(&all, back ? "dy" : "x", from, 0, 1));
    TE_TRY(te__region_add_tensor(&all, back ? "dx" : "y", to, 1, 2));
    return r->batch->edge_count ? te__regions_edges(&all) : TE_OK;
}

#endif
