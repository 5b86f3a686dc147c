/* alias_check.h -- memory that a call writes overlaps nothing else that the call reads or writes.
 *
 * That is: y, te_saved.memory, the workspace, the values of outputs; in backward dx, the gradients, the workspace, the
 * gradients of inputs. A call is refused that gives one of them a byte of another tensor of that call, of the
 * parameters, the tokens, the labels, positions or cu_seqlens. One thing may be shared:
 *   y may be x itself in inference, and dx may be dy itself in backward: the same address, shape and format. Then the
 *   step that writes is not the one that reads, unless it goes element by element; a list that is one step of another
 *   kind (a linear alone, attention, rope), or ends in a cross_attention, is refused.
 * Two tensors that are only read may overlap, but what backward reads of the forward's x and y must still be there:
 * where it reads one of them, or writes y (te_batch.loss_in_backward), dy and dx are elsewhere.
 */
#ifndef TE_ALIAS_CHECK_H
#define TE_ALIAS_CHECK_H

#include "storage.h" /* te_run */

typedef struct te__region {
    const char *name;
    const char *begin;
    size_t bytes;
    int written, end; /* end: 1: x or dy, 2: y or dx, which may be in place */
} te__region;
enum { TE__MAX_REGIONS = 16 };
typedef struct te__regions {
    te__region region[TE__MAX_REGIONS];
    int count, in_place;
    const te_run *run;
} te__regions;

TE_API size_t te__value_bytes(te_value v) { return (size_t)(v.rows * v.cols) * te_dtype_bytes(v.dtype); }

/* Whether the pass may write its end where it began: its last step goes element by element, or reads something else. */
TE_API int te__in_place(const te_run *r, te_value from, te_value to) {
    const te_plan *p = r->plan;
    const te_step *s = r->pass == TE_BACKWARD ? p->backward : p->infer;
    const int count = r->pass == TE_BACKWARD ? p->backward_count : p->infer_count;
    const te_op *op = &p->op[s[count - 1].op[0]];
    const te_class last = op->op_class;
    if (op->flags & TE_IS_CROSS) return 0; /* its keys and values may be what the list begins with */
    if (r->pass == TE_FORWARD || from.data != to.data || from.dtype != to.dtype) return 0;
    if (from.rows != to.rows || from.cols != to.cols) return 0;
    return last == TE_CLASS_map || last == TE_CLASS_norm || (count > 1 && r->pass_input != r->last_step_input);
}
/* Whether backward reads the forward's x (an op at the list's begin keeps it, or runs again; or a branch begins with
 * it), or its y. */
TE_API int te__reads_x(const te_plan *p) {
    int i = 0;
    while (i + 1 < p->op_count && (p->op[i].flags & TE_IS_FORK)) i++;
    for (int j = i; j < p->op_count; j++)
        if ((p->op[j].flags & (TE_IS_MUL | TE_IS_LOAD | TE_IS_CROSS)) && p->op[j].edge < i &&
            !(p->op[p->op[j].edge].flags & TE_IS_INPUT))
            return 1;
    return (p->op[i].flags & TE_SAVES_INPUT) || te_recomputes_logits(p, i) ||
           (p->region_count && p->region[0].first <= i);
}
TE_API int te__reads_y(const te_plan *p) { return (p->op[p->op_count - 1].flags & TE_SAVES_OUTPUT) != 0; }
/* One more, that is compared with all before it. */
TE_API te_status te__region_add(te__regions *all, const char *name, const void *begin, size_t bytes, int written,
                                int end) {
    te__region to;
    to.name = name, to.begin = (const char *)begin, to.bytes = bytes, to.written = written, to.end = end;
    if (!begin || !bytes) return TE_OK;
    for (int i = 0; i < all->count; i++) {
        const te__region *a = &all->region[i];
        const int apart = (uintptr_t)a->begin + a->bytes <= (uintptr_t)to.begin ||
                          (uintptr_t)to.begin + to.bytes <= (uintptr_t)a->begin;
        if (apart || (!a->written && !written) || (a->end && end && all->in_place)) continue;
        return te_fail(all->run->ctx, TE_ERROR_VALUE, "%s: %s overlaps %s%s", all->run->plan->name, name, a->name,
                       !a->end || !end ? ""
                       : all->run->pass == TE_FORWARD ? "; backward reads both"
                       : a->begin == to.begin ? "; this list cannot run in place"
                                              : "; they are to be the same or apart");
    }
    if (all->count < TE__MAX_REGIONS) all->region[all->count++] = to;
    return TE_OK;
}
/* TE_IS_INPUT or TE_IS_OUTPUT; 0: the list has no edge of this name. */
TE_API int te__edge_kind(const te_plan *p, const char *name) {
    for (int k = 0; name && k < p->op_count; k++)
        if ((p->op[k].flags & (TE_IS_INPUT | TE_IS_OUTPUT | TE_OUTPUTS_MAX_LOGIT)) && !strcmp(p->op[k].name, name))
            return p->op[k].flags & TE_OUTPUTS_MAX_LOGIT ? TE_IS_OUTPUT : p->op[k].flags & (TE_IS_INPUT | TE_IS_OUTPUT);
    return 0;
}
/* The tensors of (input, ..), (output, ..) and (max_logit, 1), each against those before the edges and the edges before
 * it. */
TE_API te_status te__regions_edges(te__regions *all) {
    const te_run *r = all->run;
    const int before = all->count;
    for (int i = 0; i < r->batch->edge_count; i++) {
        const te_edge *e = &r->batch->edges[i];
        const int kind = te__edge_kind(r->plan, e->name);
        if (!kind) continue; /* of another list, which gets the same batch */
        for (int k = 0; k < i; k++)
            TE_REQUIRE(!r->batch->edges[k].name || strcmp(r->batch->edges[k].name, e->name), r->ctx, TE_ERROR_VALUE,
                       "%s: the batch has the edge %s twice", r->plan->name, e->name);
        int is_read = 0; /* backward reads the value of an input, too */
        for (int k = 0; k < r->plan->op_count; k++) {
            const te_op *op = &r->plan->op[k];
            is_read |= (op->flags & (TE_IS_MUL | TE_IS_LOAD | TE_IS_CROSS)) &&
                       (r->plan->op[op->edge].flags & TE_IS_INPUT) &&
                       !strcmp(r->plan->op[op->edge].name, e->name);
        }
        const te_tensor t = r->pass == TE_BACKWARD ? e->grad : e->value;
        const int written = (r->pass == TE_BACKWARD) != (kind == TE_IS_OUTPUT);
        if (all->count == TE__MAX_REGIONS) all->count = before; /* more edges than are compared with each other */
        TE_TRY(te__region_add(all, e->name, t.data,
                              (size_t)(t.rows * t.cols) * te_dtype_bytes(t.dtype), written, 0));
        if (r->pass != TE_BACKWARD || !is_read) continue;
        if (all->count == TE__MAX_REGIONS) all->count = before;
        TE_TRY(te__region_add(all, e->name, e->value.data,
                              (size_t)(e->value.rows * e->value.cols) * te_dtype_bytes(e->value.dtype), 0, 0));
    }
    return TE_OK;
}
/* All that this call reads and writes; `used` bytes of the workspace. Behind the dry walk: the tensors are as the list
 * wants them. */
TE_API te_status te__check_overlap(const te_run *r, const te_model *m, const te_saved *saved, size_t used) {
    const int back = r->pass == TE_BACKWARD;
    const te_value from = back ? r->dy : r->x, to = back ? r->dx : r->y;
    const size_t rows = (size_t)r->tokens;
    te__regions all;
    memset(&all, 0, sizeof all);
    all.run = r, all.in_place = te__in_place(r, from, to);
    TE_TRY(te__region_add(&all, "the parameters", m->params, m->param_bytes, 0, 0));
    TE_TRY(te__region_add(&all, back ? "the gradients" : "", back ? m->grads : 0,
                          (size_t)m->grad_elements * sizeof(float), 1, 0));
    TE_TRY(te__region_add(&all, "batch.tokens", r->batch->tokens, rows * sizeof(int32_t), 0, 0));
    TE_TRY(te__region_add(&all, "batch.labels", r->batch->labels,
                          (size_t)te_rows_in(r, te_out_rows(r->plan)) * sizeof(int32_t), 0, 0));
    TE_TRY(te__region_add(&all, "batch.positions", r->batch->positions, rows * sizeof(int32_t), 0, 0));
    TE_TRY(te__region_add(&all, "batch.cu_seqlens", r->batch->cu_seqlens,
                          ((size_t)r->batch->sequences + 1) * sizeof(int32_t), 0, 0));
    if (back && r->batch->loss_count)
        TE_TRY(te__region_add(&all, "batch.loss_count", r->batch->loss_count, sizeof(float), 0, 0));
    TE_TRY(te__region_add(&all, "the workspace", r->ctx->workspace, used, 1, 0));
    if (saved) TE_TRY(te__region_add(&all, "saved.memory", saved->memory, r->saved_bytes, !back, 0));
    if (back && te__reads_x(r->plan))
        TE_TRY(te__region_add(&all, "the forward's x, which backward reads", r->x.data, te__value_bytes(r->x), 1, 0));
    if (back && (te__reads_y(r->plan) || r->loss_in_backward))
        TE_TRY(te__region_add(&all, r->loss_in_backward ? "the forward's y, which backward writes"
                                                        : "the forward's y, which backward reads",
                              r->y.data, te__value_bytes(r->y), 1, 0));
    TE_TRY(te__region_add(&all, back ? "dy" : "x", from.data, te__value_bytes(from), 0, 1));
    TE_TRY(te__region_add(&all, back ? "dx" : "y", to.data, te__value_bytes(to), 1, 2));
    return r->batch->edge_count ? te__regions_edges(&all) : TE_OK;
}

#endif
