/* linear_comm_overlap.h -- a step (an op, or several fused ops) can defer its work to the next step, which overlaps
 * this work with its own. Three kinds of steps can defer work: an all_gather before a linear; a linear before a
 * reduce_scatter (both in forward and in backward, te/gemm/impl/gemm_comm_overlap.h); and a linear before a pattern
 * that begins with an all_reduce, where the GEMM's kernel sends its result to the ranks that sum it
 * (te/comm/impl/collective_step.h). Besides, the GEMM of a weight gradient can be deferred, so that it runs while rows
 * are gathered (last section).
 *
 * The fusion list has no patterns for such overlap: it would need two variants of each pattern that begins with a
 * linear, and a model would be fused differently with one rank than with several. Instead a step finds in the plan, at
 * run time, that the next step can take over its work. The next step decides by the shapes whether to overlap that work
 * or to finish it first; this choice does not change the workspace, and changes the results only as follows.
 *
 * Results are bitwise identical to those of the library's GEMM and te_group_reduce_scatter through mapped memory, run
 * one after the other, with one exception: overlap changes the order of the tiles, so other tiles are in the last wave,
 * and tiles of the last wave may be split along k (stream-k), which may change the last bits of their elements.
 *
 * In FP8 with one scale per tensor, the GEMM accumulates in the tensor cores and sends its result in 16 bits. Rows are
 * gathered in FP8 (half the bytes) if all ranks use the same scale and know it beforehand. In this case the pointwise
 * kernel that precedes the gather, or a cast, stores a rank's rows in FP8. Otherwise rows are gathered in the model's
 * dtype, and the GEMM starts after the gather.
 *
 * A GEMM and a collective do not overlap in f32, in steps with a custom op (linear_cross_entropy), if a rank's rows are
 * not a multiple of 256, or if the gathered tensor must lie in memory that the other ranks have not mapped (memory of
 * te_comm_allocate is mapped by all ranks).
 */
#ifndef TE_LINEAR_COMM_OVERLAP_H
#define TE_LINEAR_COMM_OVERLAP_H

#include "../../plan/impl/storage.h" /* te__gathered_consumer */
#include "linear_strategy.h" /* te__linear_gemm, te__gemm_persistent_overlaps */

/* ---- work that is deferred to the next step ---------------------------------------------------------------------- */

/* Returns whether the linear that begins step s can overlap communication. fp8: 1 if a linear with an FP8 recipe is
 * also accepted, provided that the recipe has one scale per tensor. */
TE_API int te__linear_can_overlap(const te_run *r, const te_step *s, int fp8) {
    const te_op *linear = &r->plan->op[s->op[0]];
    const te_dtype dtype = r->plan->dtype;
    const int fits = linear->recipe == TE_RECIPE_none || (fp8 && TE_IS_TENSORWISE(linear->recipe));
    return linear->op_class == TE_CLASS_gemm && fits && dtype != TE_f32 && linear->in_dtype == dtype &&
           linear->out_dtype == dtype;
}
/* Returns the step that follows s in the pass r->pass. The result is null if no step follows, if s is not an entry of
 * the plan's table of steps, or if `has` is 0. has: whether the group of ranks has the memory that overlapping
 * needs. */
TE_API const te_step *te__step_after(const te_run *r, const te_step *s, int has) {
    const te_plan *p = r->plan;
    const te_step *all = r->pass == TE_BACKWARD ? p->backward : r->pass == TE_INFER ? p->infer : p->forward;
    const int count = r->pass == TE_BACKWARD ? p->backward_count
                      : r->pass == TE_INFER  ? p->infer_count
                                             : p->forward_count;
    for (int i = 0; TE_HAS_COMM_OVERLAP && has && i + 1 < count; i++)
        if (s == &all[i]) return te__last_step(r, s) ? 0 : s + 1;
    return 0;
}
/* Returns the op index of the GEMM that reads the rows that step s gathers (s is an all_gather, or in backward a
 * reduce_scatter). Returns -1 if the rows cannot be gathered in FP8: all ranks must use the same scale and know it
 * before the gather. */
TE_API int te__gather_consumer(const te_run *r, const te_step *s) {
    return te__last_step(r, s) ? -1 : te__gathered_consumer(r, s->op[r->pass == TE_BACKWARD ? 0 : s->count - 1]);
}
/* Returns whether step s, an all_gather (in backward a reduce_scatter), may defer its gather, so that the gather
 * overlaps the GEMM of the next step. The step may not defer its gather if the next step contains a custom op (an op
 * with a kernel of its own), unless that op is a rope that is fused with the linear (linear_rope.h). */
TE_API int te__defers_gather(const te_run *r, const te_step *s) {
    const te_step *next = te__step_after(r, s, r->tensor->memory != 0);
    if (!next || !te__linear_can_overlap(r, next, te__gather_consumer(r, s) >= 0)) return 0;
    if (r->plan->op[next->op[next->count - 1]].flags & TE_EPILOGUE_OF_ROPE) return 1;
    for (int j = 1; j < next->count; j++)
        if (r->plan->op[next->op[j]].op_class == TE_CLASS_custom) return 0;
    return 1;
}
/* Returns whether step s defers its GEMM to the next step, which sums the GEMM's result over the ranks; s must consist
 * of a linear only. The next step is either a reduce_scatter (in backward an all_gather), which runs at the same time
 * as the GEMM, or a pattern with an all_reduce. In the second case the GEMM's kernel sends its result to the ranks
 * that sum it (te/comm/impl/collective_step.h). */
TE_API int te__defers_product(const te_run *r, const te_step *s) {
    const te_group *g = r->tensor;
    const te_step *next = s->count == 1 ? te__step_after(r, s, g->memory || g->peers) : 0;
    if (!next || !te__linear_can_overlap(r, s, 1)) return 0;
    const te_op *op = &r->plan->op[next->op[0]];
    const te_rows all_rows = r->pass == TE_BACKWARD ? op->out_rows : op->in_rows;
    if (!(op->flags & TE_TAKES_PRODUCT)) return 0;
    if (op->in_rows == op->out_rows)
        return g->peers && next->count > 1 && r->pass != TE_BACKWARD && te__linear_can_overlap(r, s, 0);
    return g->memory && all_rows == TE_ROWS_tokens;
}
/* Defers the GEMM g to the next step. g's operand A is the current value (te_run.current), or an FP8 copy of the
 * current value that a cast has stored; g's result D is y. */
TE_API te_status te__defer_product(te_run *r, te_gemm *g, te_value y, te_product_kernels *kernels) {
    g->d = y.data;
    r->deferred.product = *g, r->deferred.kernels = kernels;
    te_value a = r->current;
    if (g->a != a.data) a = te__no_value(), a.block = te__pool_block_at(&r->pool, g->a);
    te__defer(r, &y, TE_VALUE_deferred_product, a);
    te__set_current(r, y);
    return TE_OK;
}

/* ---- rows that are gathered while a GEMM runs -------------------------------------------------------------------- */

/* If the gather of the current value (te_run.current) was deferred, gathers all rows of this value now, without
 * overlap. */
TE_API te_status te__gather_rows_now(te_run *r) {
    const te_value from = r->deferred.from, to = r->current;
    if (r->current.state != TE_VALUE_deferred_gather) return TE_OK;
    te__finish_deferred(r);
    if (r->dry || !to.data || !from.data) return TE_OK;
    return te_group_all_gather(r->tensor, to.data, from.data, from.rows * from.cols, to.dtype, r->ctx);
}
/* Decides where A, the GEMM's first operand, is gathered, and sets ranks->to: for each rank, the address in that rank's
 * memory to which this rank's rows of A are sent. If r->current, which is A, lies in memory that all ranks have mapped,
 * A is gathered there. If not, A is gathered in the group's buffer, and r->current.data is set to this buffer.
 * Gathering in the buffer is impossible if r->current is not a workspace block or the buffer is too small; the function
 * then returns 0. */
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
/* If the gather of the current value (te_run.current) was deferred, overlaps the gather with the GEMM g, whose operand
 * A is the current value: the GEMM begins with the rows of this rank while the other rows arrive. If the GEMM cannot
 * overlap the gather, all rows are gathered first. keep: 1 if the gathered value is read again after the GEMM. */
TE_API te_status te__overlap_gather(te_gemm *g, te__gemm_overlap *ranks, te_run *r, te_product_kernels *unfused,
                                    int keep) {
    if (r->current.state != TE_VALUE_deferred_gather) return TE_OK;
    memset(ranks, 0, sizeof *ranks);
    ranks->group = r->tensor, ranks->memory = r->tensor->memory, ranks->own = r->deferred.from.data, ranks->keep = keep;
    const int aligned = (uintptr_t)ranks->own % TE_ACCESS == 0 && (uintptr_t)r->current.data % TE_ACCESS == 0;
    /* a copy of g, to test whether g can overlap the gather. The operands of g are not set yet, so the copy gets the
     * scaling and layout that they will have */
    te_gemm of = *g;
    if (te_is_fp8(r->current.dtype))
        of.a_fp8.scaling = of.b_fp8.scaling = TE_SCALING_TENSORWISE, of.trans_b = 1, of.fast = 1;
    if (!aligned || !r->current.data || !ranks->own || !te__gemm_persistent_overlaps(unfused, &of, r->tensor, r->ctx) ||
        !te__gather_place(ranks, r))
        return te__gather_rows_now(r);
    g->ranks = ranks, g->fast = of.fast;
    te__finish_deferred(r);
    return TE_OK;
}

/* ---- the GEMM of a weight's gradient, now or deferred ------------------------------------------------------------
 *
 * No other step of backward reads a weight's gradient, so the GEMM that computes it may run later. Under sequence
 * parallelism, backward gathers the gradient rows of all ranks for the attention's output linear. The GEMM for dx of
 * this linear takes less time than the gather, so that GEMM alone cannot hide the gather. Therefore the weight gradient
 * of the linear that precedes it in backward, the MLP's first linear, is deferred: the GEMM for this weight gradient
 * runs after the gather has started and before the GEMM for dx (te__gemm_overlap.overlapped). The operands of the
 * deferred GEMM, dy and under a recipe dy's transpose, stay in the workspace until that GEMM has run. Measurements:
 * docs/notes/linear.md. */

/* Sets the operands of w, the GEMM that computes dweight[out, in] = dy^T x of linear i (or adds it to dweight). The
 * operands are in the model's number format, not in FP8; dweight is in f32. */
TE_API te_status te__wgrad_operands(te_gemm *w, te_run *r, int i, te_value dy) {
    te_value x = te__input_of(r, i);
    TE_TRY(te__convert_value(&x, r, r->plan->dtype));
    w->a = dy.data, w->trans_a = 1, w->b = x.data;
    return TE_OK;
}
/* Defers the GEMM w, which computes the weight gradient of linear i. If the weight is not trained in this call, the
 * deferred GEMM launches nothing, but the same memory is acquired, because the size of the workspace must not depend
 * on which weights are trained. */
TE_API te_status te__defer_wgrad(te_gemm *w, te_run *r, int i, te_value dy) {
    te_deferred_wgrad *wgrad = &r->deferred_wgrad;
    te_value a = te__no_value(), b = te__no_value();
    const int dry = r->dry;
    /* a linear that the model declares as frozen has no weight gradient, and forward has saved no x for it */
    if (r->plan->op[i].flags & TE_IS_FROZEN) return TE_OK;
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
/* Runs the deferred GEMM of a weight gradient, if there is one. run: a te_run * (a void *, because
 * te__gemm_overlap.overlapped points to this function). */
TE_API te_status te__wgrad_now(void *run) {
    te_run *r = (te_run *)run;
    te_deferred_wgrad wgrad = r->deferred_wgrad;
    const int dry = r->dry;
    if (!wgrad.is_there) return TE_OK;
    te__set_root(r, &r->deferred_wgrad.a, te__no_value()), te__set_root(r, &r->deferred_wgrad.b, te__no_value());
    r->deferred_wgrad.is_there = 0, r->dry |= !wgrad.runs;
    const te_status status = te__linear_gemm(r, &wgrad.product, TE_ROWS_OF_k, 0);
    r->dry = dry;
    return status;
}
/* Runs w, the GEMM for the weight gradient of linear i, at once. */
TE_API te_status te__linear_wgrad(te_gemm *w, te_run *r, int i, te_value dy) {
    TE_TRY(te__defer_wgrad(w, r, i, dy));
    return te__wgrad_now(r);
}

/* Returns whether the weight gradient of step s is deferred. It is deferred if the next step of backward sums the dx of
 * step s over the ranks, and a later step, before the next linear, gathers rows for that linear: the deferred GEMM then
 * runs during that gather. It is not deferred if the caller wants to be told when gradients are final (te_run.watch),
 * or if the linear is in a recompute region (executor.h). */
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
/* Called in a linear's backward before its GEMM for dx. ranks: the gather that this GEMM overlaps; the deferred weight
 * gradient, if there is one, is attached to the gather and runs after the gather has started. If ranks is null, because
 * the GEMM overlaps no gather, the deferred weight gradient is computed now. The deferred weight gradient is also
 * computed now under autotuning, so that nothing runs at the same time as a GEMM that is being timed. */
TE_API te_status te__wgrad_flush(te_run *r, te__gemm_overlap *ranks) {
    if (!ranks || r->dry || r->ctx->gemm_tune) return te__wgrad_now(r);
    if (r->deferred_wgrad.is_there) ranks->overlapped = te__wgrad_now, ranks->overlapped_arg = r;
    return TE_OK;
}

#endif
