/* linear_comm_overlap.h -- steps that leave their work to the next one, which overlaps it with its own: an all_gather
 * in front of a linear, a linear in front of a reduce_scatter, and in backward their adjoints (te/gemm/impl/gemm_comm_overlap.h
 * says how); and a linear in front of a row that begins with an all_reduce, which its product sends to
 * (te/comm/impl/collective_step.h).
 *
 * This is no row of the fusion list: it would take one for each row that begins with a linear, and the rows would be
 * those of one rank and of many. A step finds out from the plan, when it is walked, that the next one can take its
 * work; the next one finds out from the shapes whether it does, or has it done first, so that the numbers are those of
 * two steps. What the two need of the workspace does not depend on it.
 *
 * The bits: the product is that of our own kernel, by itself or with its row; the sum over the ranks is that of
 * te_group_reduce_scatter through mapped memory. Tiles go in another order, so where the last round of them is shared
 * out by k (te__sm90_gemm_plan_stream_k), other tiles have their sums over k in two parts or more.
 *
 * In FP8, with scales of tensors, a product sends what it gives in 16 bits, and its sums stay in the tensor cores.
 * Rows are gathered in FP8 where the scale is known before and all ranks have it (te_recipes_config.ranks): a rank's
 * own are stored so by the chain before (te__gathered_consumer), or by a cast, and half the bytes go over the link.
 * Else they are gathered in the list's format and the product waits.
 *
 * Not in f32, where the row has an op with kernels of its own (linear_cross_entropy), where rows a rank are no
 * multiple of 256, or where the gathered tensor is to stay in memory that the others have not mapped
 * (te_comm_allocate).
 */
#ifndef TE_LINEAR_COMM_OVERLAP_H
#define TE_LINEAR_COMM_OVERLAP_H

#include "../../plan/impl/storage.h" /* te__gathered_consumer */
#include "linear_strategy.h" /* te__linear_gemm, te__gemm_kernel_overlaps */

/* ---- what is left to the next step ------------------------------------------------------------------------------- */

/* Whether the linear that begins step s is of this kind; fp8: or one in FP8 with scales of tensors. */
TE_API int te__linear_can_overlap(const te_run *r, const te_step *s, int fp8) {
    const te_op *linear = &r->plan->op[s->op[0]];
    const te_dtype dtype = r->plan->dtype;
    const int fits = linear->recipe == TE_RECIPE_none || (fp8 && TE_IS_TENSORWISE(linear->recipe));
    return linear->op_class == TE_CLASS_gemm && fits && dtype != TE_f32 && linear->in_dtype == dtype &&
           linear->out_dtype == dtype;
}
/* The step behind s in this pass, if the group has what it takes; null: there is none, or s is a part of a step. */
TE_API const te_step *te__step_after(const te_run *r, const te_step *s, int has) {
    const te_plan *p = r->plan;
    const te_step *all = r->pass == TE_BACKWARD ? p->backward : r->pass == TE_INFER ? p->infer : p->forward;
    const int count = r->pass == TE_BACKWARD ? p->backward_count
                      : r->pass == TE_INFER  ? p->infer_count
                                             : p->forward_count;
    for (int i = 0; TE_HAS_COMM_OVERLAP && has && i + 1 < count; i++)
        if (s == &all[i]) return te_last_step(r, s) ? 0 : s + 1;
    return 0;
}
/* The product that reads what step s gathers, an all_gather or in backward a reduce_scatter, if that can come to it in
 * FP8: by a scale that is known before and that all ranks have; -1: there is none. */
TE_API int te__gather_consumer(const te_run *r, const te_step *s) {
    return te_last_step(r, s) ? -1 : te__gathered_consumer(r, s->op[r->pass == TE_BACKWARD ? 0 : s->count - 1]);
}
/* An all_gather's step, or in backward a reduce_scatter's: whether the next one may overlap it. Rows with an op that
 * has kernels of its own do not, but those of linear_rope.h. */
TE_API int te__defers_gather(const te_run *r, const te_step *s) {
    const te_step *next = te__step_after(r, s, r->tensor->memory != 0);
    if (!next || !te__linear_can_overlap(r, next, te__gather_consumer(r, s) >= 0)) return 0;
    if (r->plan->op[next->op[next->count - 1]].flags & TE_EPILOGUE_OF_ROPE) return 1;
    for (int j = 1; j < next->count; j++)
        if (r->plan->op[next->op[j]].op_class == TE_CLASS_custom) return 0;
    return 1;
}
/* A linear's step: whether the next one adds up what it gives: a reduce_scatter, in backward an all_gather, which go on
 * while the product does, or a row with an all_reduce, to which the product sends (te/comm/impl/collective_step.h). */
TE_API int te__defers_product(const te_run *r, const te_step *s) {
    const te_group *g = r->tensor;
    const te_step *next = s->count == 1 ? te__step_after(r, s, g->memory || g->peers) : 0;
    if (!next || !te__linear_can_overlap(r, s, 1)) return 0;
    const te_op *op = &r->plan->op[next->op[0]];
    const te_rows whole = r->pass == TE_BACKWARD ? op->out_rows : op->in_rows;
    if (!(op->flags & TE_TAKES_PRODUCT)) return 0;
    if (op->in_rows == op->out_rows)
        return g->peers && next->count > 1 && r->pass != TE_BACKWARD && te__linear_can_overlap(r, s, 0);
    return g->memory && whole == TE_ROWS_tokens;
}
/* Leave the product g, whose A is now, or now as a cast has made it, and whose D is y. */
TE_API te_status te__defer_product(te_run *r, te_gemm *g, te_value y, te_product_kernels *kernels) {
    g->d = y.data;
    r->deferred.product = *g, r->deferred.kernels = kernels;
    te_value a = r->current;
    if (g->a != a.data) a = te_no_value(), a.block = te__pool_block_at(&r->pool, g->a);
    te__defer(r, &y, TE_VALUE_deferred_product, a);
    te_set_current(r, y);
    return TE_OK;
}

/* ---- rows that come while a product runs ------------------------------------------------------------------------- */

/* Have all rows now. */
TE_API te_status te__gather_rows_now(te_run *r) {
    const te_value from = r->deferred.from, to = r->current;
    if (r->current.state != TE_VALUE_deferred_gather) return TE_OK;
    te__finish_deferred(r);
    if (r->dry || !to.data || !from.data) return TE_OK;
    return te_group_all_gather(r->tensor, to.data, from.data, from.rows * from.cols, to.dtype, r->ctx);
}
/* Where this rank's rows of A belong in the memory of all ranks: A is `now` or, if that is in the workspace for this
 * step alone, the group's room. 0: nowhere. */
TE_API int te__gather_place(te__gemm_overlap *ranks, te_run *r) {
    const te__overlap_memory *m = ranks->memory;
    const size_t bytes = (size_t)(r->current.rows * r->current.cols) * te_dtype_bytes(r->current.dtype);
    const int block = te__overlap_block_of(m, r->current.data, bytes);
    if (block < 0 && (r->current.block < 0 || bytes > m->capacity)) return 0;
    const size_t own = bytes / (size_t)m->ranks * (size_t)m->rank;
    for (int k = 0; k < m->ranks; k++)
        ranks->to[k] =
            own + (block < 0 ? te__overlap_workspace(m, k)
                             : m->block[block].at[k] + ((char *)r->current.data - m->block[block].at[m->rank]));
    if (!r->dry) r->current.data = ranks->to[m->rank] - own;
    return 1;
}
/* Let the product g = now weight begin when this rank's rows of `now` are there, or have all rows first. keep: `now` is
 * read again, as a whole. */
TE_API te_status te__overlap_gather(te_gemm *g, te__gemm_overlap *ranks, te_run *r, te_product_kernels *bare, int keep) {
    if (r->current.state != TE_VALUE_deferred_gather) return TE_OK;
    memset(ranks, 0, sizeof *ranks);
    ranks->group = r->tensor, ranks->memory = r->tensor->memory, ranks->own = r->deferred.from.data, ranks->keep = keep;
    const int aligned = (uintptr_t)ranks->own % TE_ACCESS == 0 && (uintptr_t)r->current.data % TE_ACCESS == 0;
    te_gemm of = *g; /* whose operands are not known yet */
    if (te_is_fp8(r->current.dtype))
        of.a_fp8.scaling = of.b_fp8.scaling = TE_SCALING_TENSORWISE, of.trans_b = 1, of.fast = 1;
    if (!aligned || !r->current.data || !ranks->own || !te__gemm_persistent_overlaps(bare, &of, r->tensor, r->ctx) ||
        !te__gather_place(ranks, r))
        return te__gather_rows_now(r);
    g->ranks = ranks, g->fast = of.fast;
    te__finish_deferred(r);
    return TE_OK;
}

/* linear_comm_overlap.h -- the product of a weight's gradient, now or beside rows on their way between ranks.
 *
 * Nothing in backward reads it, so it may wait. Under sequence parallelism a backward has the rows of all ranks
 * gathered again for the gradient of an attention's last linear, whose product (8192 x 1024 x 4096, a rank's part of
 * four) takes 96 us where the rows take 240. So the gradient of the weight before it, the MLP's first, 350 us, waits
 * for these rows to be on their way, and runs in front of that product: te__gemm_overlap.beside. A GPT's layer on four
 * H100s, hidden 4096, 4 x 2048 tokens: 4.85 ms before, 4.72 so; in FP8 3.57 and 3.45 to 3.50. What it reads, dy and
 * under a recipe its transpose, stays in the workspace as long.
 */

/* dweight[out, in] (+)= dy^T x, in f32; dy and x have the list's format: its operands. */
TE_API te_status te__wgrad_operands(te_gemm *w, te_run *r, int i, te_value dy) {
    te_value x = te_input_of(r, i);
    TE_TRY(te_convert_value(&x, r, r->plan->dtype));
    w->a = dy.data, w->trans_a = 1, w->b = x.data;
    return TE_OK;
}
/* Leave its product. Of a weight that is frozen for now this takes the memory and launches nothing: the workspace does
 * not depend on what is frozen. */
TE_API te_status te__defer_wgrad(te_gemm *w, te_run *r, int i, te_value dy) {
    te_deferred_wgrad *wgrad = &r->deferred_wgrad;
    te_value a = te_no_value(), b = te_no_value();
    const int dry = r->dry;
    if (r->plan->op[i].flags & TE_IS_FROZEN) return TE_OK; /* it has no x */
    wgrad->runs = te_is_trained(r->param[i]);
    r->dry |= !wgrad->runs;
    const te_status status = te__policy(r, i)->fp8 ? TE_OK : te__wgrad_operands(w, r, i, dy);
    r->dry = dry;
    if (status != TE_OK) return status;
    a.block = w->a == dy.data ? dy.block : te__pool_block_at(&r->pool, w->a);
    b.block = te__pool_block_at(&r->pool, w->b);
    te__set_root(r, &wgrad->a, a), te__set_root(r, &wgrad->b, b);
    wgrad->product = *w, wgrad->is_there = 1;
    return TE_OK;
}
/* What waits, now. */
TE_API te_status te__wgrad_now(void *run) {
    te_run *r = (te_run *)run;
    te_deferred_wgrad wgrad = r->deferred_wgrad;
    const int dry = r->dry;
    if (!wgrad.is_there) return TE_OK;
    te__set_root(r, &r->deferred_wgrad.a, te_no_value()), te__set_root(r, &r->deferred_wgrad.b, te_no_value());
    r->deferred_wgrad.is_there = 0, r->dry |= !wgrad.runs;
    const te_status status = te__linear_gemm(r, &wgrad.product, TE_ROWS_OF_k, 0);
    r->dry = dry;
    return status;
}
/* The product, now. */
TE_API te_status te__linear_wgrad(te_gemm *w, te_run *r, int i, te_value dy) {
    TE_TRY(te__defer_wgrad(w, r, i, dy));
    return te__wgrad_now(r);
}

/* Whether that of step s waits: the next step adds up its data gradient over the ranks, and a step behind that gathers
 * rows for the next linear. Not where gradients are watched, or what it reads is made again (executor.h). */
TE_API int te__wgrad_is_deferred(const te_run *r, const te_step *s) {
    const te_plan *p = r->plan;
    const te_step *next = s + 1;
    if (r->watch || !r->tensor->memory || te__recompute_region_of(p, s->op[0]) >= 0 || !te__defers_product(r, s))
        return 0;
    while ((next = te__step_after(r, next, 1)) != 0) {
        const te_op *op = &p->op[next->op[0]];
        if (op->op_class == TE_CLASS_gemm) return 0;
        if (next->count == 1 && op->in_rows == TE_ROWS_tokens && op->out_rows == TE_ROWS_shard)
            return te__defers_gather(r, next);
    }
    return 0;
}
/* The next linear's product is about to run. ranks: it gathers rows, with what waits beside them; null: it does not.
 * While products are timed nothing runs beside them. */
TE_API te_status te__wgrad_flush(te_run *r, te__gemm_overlap *ranks) {
    if (!ranks || r->dry || r->ctx->gemm_tune) return te__wgrad_now(r);
    if (r->deferred_wgrad.is_there) ranks->overlapped = te__wgrad_now, ranks->overlapped_arg = r;
    return TE_OK;
}

#endif
