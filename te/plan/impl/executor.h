/* executor.h -- runs a call of a model (forward, inference or backward): checks the arguments, then runs the steps of
 * the plan twice.
 *
 * The first run is a dry run. The dry run launches nothing, but makes all checks and measures the workspace that the
 * second run needs. Therefore a call that returns an error has changed nothing. <model>_workspace_bytes() also makes a
 * dry run, so the size that it returns is always the size that a call needs.
 */
#ifndef TE_EXECUTOR_H
#define TE_EXECUTOR_H

#include "call_checks.h" /* te__check_batch, te__check_tensor, te__check_overlap */
#include "gradients.h" /* te__reduce_columns_now */
#include "storage.h" /* te_run, te__begin, te__place */

/* ---- where backward stops ---------------------------------------------------------------------------------------- */

/* Backward runs from the last op of the list towards the first op, and ends at the "backward stop". The backward stop
 * is the op nearest to the beginning of the list that computes a gradient which is needed: the gradient of a trained
 * parameter, of x, or of an extra input. */

/* Return whether op i uses the value of an extra input of the list, and the caller wants the gradient of this input. If
 * so, backward must run op i to compute this gradient. */
TE_API int te__wants_edge_grad(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    if (op->edge < 0 || !(r->plan->op[op->edge].flags & TE_IS_INPUT)) return 0;
    const te_edge *e = te__edge_named(r, r->plan->op[op->edge].name);
    return e && e->grad.data;
}
/* Compute te_run.backward_stop, the index of the op at which backward ends. If no gradient is needed, the result is the
 * number of ops, and backward has nothing to compute. There is one exception: if forward has left the loss to backward,
 * backward must run the last op, which computes the loss, and the result is the index of the last op. */
TE_API int te__backward_stop_of(const te_run *r) {
    const int count = r->plan->op_count;
    if (r->dx.data) return TE_BACKWARD_STOP_dx;
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < r->plan->op[i].params; k++)
            if (te_is_trained(&r->param[i][k])) return i;
        if (te__wants_edge_grad(r, i)) return i;
    }
    return r->loss_in_backward ? count - 1 : count;
}
/* Return the number of steps that backward runs. The last of these steps contains op r->backward_stop, at which
 * backward ends. */
TE_API int te__steps_to_backward_stop(const te_run *r) {
    const te_plan *p = r->plan;
    int n = 0;
    if (r->backward_stop == p->op_count) return 0;
    while (n < p->backward_count && !te__last_step(r, &p->backward[n])) n++;
    return n + 1;
}
TE_API te_status te__check_backward_stop(const te_run *r, const te_model *m) {
    for (int i = 0; i < m->param_count && m->grads; i++) {
        const te_param *p = &m->param[i];
        TE_REQUIRE(p->grad || p->tied || p->frozen, r->ctx, TE_ERROR_STATE,
                   "%s: %s.%s is no longer frozen, and has no memory for a gradient; call te_bind_trained_grads again",
                   r->plan->name, p->op, p->field);
    }
    TE_REQUIRE(r->backward_stop < r->plan->op_count || !m->param_count, r->ctx, TE_ERROR_STATE,
               "%s: backward has nothing to compute: there is no dx, and %s", r->plan->name,
               m->grads ? "all parameters are frozen" : "the instance was bound without gradients");
    return TE_OK;
}

/* ---- recompute regions ------------------------------------------------------------------------------------------- */

/* A recompute region consists of the ops between the two marks of te/ops/recompute.h. The values that these ops save,
 * except the values of the last op, are stored in the workspace, and only while the region is open. Forward opens a
 * region while it runs the region's steps. Backward also opens the region, and computes the values in it by running the
 * region's forward steps once more. */

/* Acquire the memory in which recompute region k saves values. Forward also needs this memory, because its steps store
 * the same values as without a recompute region; forward discards these values when it closes the region. */
TE_API te_status te__recompute_open(te_run *r, int k) {
    const te_recompute_region *s = &r->plan->region[k];
    const size_t bytes = te__place(r, (char *)(uintptr_t)TE_ALIGN, 0, s->first, s->last, k);
    te_value v = te__no_value();
    TE_TRY(te__acquire_bytes(r, &v, bytes));
    te__set_root(r, &r->region[k], v);
    (void)te__place(r, (char *)v.data, 0, s->first, s->last, k);
    return TE_OK;
}
/* Release the memory of region k. The addresses of the values that were saved in this memory become null. The addresses
 * of forks at the beginning of the region are kept, because the value of such a fork is the region's input, which lies
 * elsewhere. */
TE_API void te__recompute_close(te_run *r, int k) {
    (void)te__place(r, 0, 0, r->plan->region[k].first, r->plan->region[k].last, -1);
    te__set_root(r, &r->region[k], te__no_value());
}
/* Close all open recompute regions. At the end of backward a region is still open if the backward stop, the op at which
 * backward ends, lies inside this region. */
TE_API void te__recompute_close_all(te_run *r) {
    for (int k = 0; k < r->plan->region_count; k++)
        if (r->region[k].data) te__recompute_close(r, k);
}
/* Set *from and *to to the range [*from, *to) of forward steps that backward runs a second time for recompute region k:
 * from the region's first step up to the last step with an op that saves a value in the region's memory. */
TE_API void te__recompute_steps(const te_run *r, int k, int *from, int *to) {
    const te_plan *plan = r->plan;
    int i = 0;
    while (i < plan->forward_count && plan->forward[i].op[0] < plan->region[k].first) i++;
    for (*from = *to = i; i < plan->forward_count && plan->forward[i].op[0] < plan->region[k].last; i++)
        for (int j = 0; j < plan->forward[i].count; j++)
            if (te__is_lost(plan, r->policy[0], k, plan->forward[i].op[j])) *to = i + 1;
}
/* In backward: open region k, and compute the values in it by running the region's forward steps on a copy of *r, in
 * which all values have the same addresses as in *r. The output of the region's last op need not be recomputed: if
 * backward reads it, forward has saved it. If the step that contains the last op must run nevertheless, because of its
 * other ops, the step stores the last op's output in the workspace, and does not store row statistics of this
 * output. */
TE_API te_status te__recompute_run(te_run *r, int k) {
    const te_recompute_region *s = &r->plan->region[k];
    int from, to;
    TE_TRY(te__recompute_open(r, k));
    te__recompute_steps(r, k, &from, &to);
    te_run forward = *r;
    forward.pass = TE_FORWARD, forward.current = te__input_of(r, s->first);
    forward.y.data = 0, forward.act[s->last] = 0, forward.stats[s->last] = 0;
    for (int i = from; i < to; i++) {
        TE_TRY(r->plan->forward[i].run(&forward, &r->plan->forward[i]));
        te__pool_sweep(&forward.pool);
    }
    te__set_current(&forward, te__no_value());
    te__pool_sweep(&forward.pool);
    r->pool = forward.pool;
    memcpy(r->saved_transposed, forward.saved_transposed, sizeof r->saved_transposed);
    return TE_OK;
}
/* Open all recompute regions that contain an op of the step. The function is called before each step. A forward step
 * lies either entirely in one region or outside of all regions; a backward step may have ops of several regions. */
TE_API te_status te__recompute_enter(te_run *r, const te_step *step) {
    for (int k = 0; r->pass != TE_INFER && k < r->plan->region_count; k++)
        for (int j = 0; j < step->count && !r->region[k].data; j++)
            if (r->plan->region[k].first <= step->op[j] && step->op[j] <= r->plan->region[k].last)
                TE_TRY(r->pass == TE_FORWARD ? te__recompute_open(r, k) : te__recompute_run(r, k));
    return TE_OK;
}
/* Close the recompute regions that the step has completed. The function is called after each step. In forward, a region
 * is complete after the step with the region's last op; in backward, after the step with the region's first op. */
TE_API void te__recompute_leave(te_run *r, const te_step *step) {
    for (int k = 0; r->pass != TE_INFER && k < r->plan->region_count; k++)
        for (int j = 0; j < step->count && r->region[k].data; j++)
            if (step->op[j] == (r->pass == TE_FORWARD ? r->plan->region[k].last : r->plan->region[k].first))
                te__recompute_close(r, k);
}

/* ---- the steps --------------------------------------------------------------------------------------------------- */

/* Advance the random state by a separate kernel, unless a pointwise kernel of the pass has already advanced it. `next`
 * is the step that is about to run, or null at the end of the pass. The kernel is launched if this step has an op that
 * draws random numbers, or if `next` is null. */
TE_IF_USED TE_API te_status te__take_random_state(te_run *r, const te_step *next) {
    int draws = !next;
    for (int j = 0; next && j < next->count; j++) draws |= r->plan->op[next->op[j]].flags & TE_DRAWS;
    if (!draws || !r->take.taken) return TE_OK;
    TE_TRY(te_rng_take_launch(r->ctx, te__grid_of(1, 1), &r->take));
    r->take.taken = 0;
    return TE_OK;
}

TE_IF_USED TE_API te_status te__training_before(te_run *r, const te_step *step) {
    TE_TRY(te__recompute_enter(r, step));
    if (r->sum_count > TE_SUM_JOBS - TE_SUMS_A_STEP)
        TE_TRY(te__reduce_columns_now(r)); /* the table of deferred column sums may have no space left for the sums of
                                            * this step, so add up the sums that are deferred so far */
    return te__take_random_state(r, step);
}
TE_API te_status te__training_after(te_run *r, const te_step *step) {
    te__recompute_leave(r, step);
    return te__notify_step(r, step);
}
TE_IF_USED TE_API te_status te__training_end(te_run *r) {
    TE_TRY(te__take_random_state(r, 0));
    return te__reduce_columns_now(r);
}
TE_IF_USED TE_API const te_training *te__training(void) {
    static const te_training training = {te__training_before, te__training_after, te__training_end};
    return &training;
}

TE_API te_status te__run_steps(te_run *r, const te_step *step, int count) {
    const te_training *training = r->plan->training ? r->plan->training() : 0;
    for (int i = 0; i < count; i++) {
        if (training) TE_TRY(training->before(r, &step[i]));
        r->last_step_input = r->current.data;
        TE_TRY(step[i].run(r, &step[i]));
        if (training) TE_TRY(training->after(r, &step[i]));
        te__pool_sweep(&r->pool);
    }
    return training ? training->end(r) : TE_OK;
}
TE_API te_status te__run_pass(te_run *r) {
    const te_plan *p = r->plan;
    if (r->pass == TE_BACKWARD) {
        TE_TRY(te__run_steps(r, p->backward, te__steps_to_backward_stop(r)));
        return te__recompute_close_all(r), TE_OK;
    }
    return r->pass == TE_INFER ? te__run_steps(r, p->infer, p->infer_count)
                               : te__run_steps(r, p->forward, p->forward_count);
}

TE_API int te__draws(const te_plan *p) {
    int draws = p->fp8 && p->fp8->rounding == TE_ROUNDING_stochastic;
    for (int i = 0; i < p->op_count; i++) draws |= p->op[i].flags & TE_DRAWS;
    return draws;
}

/* Copy the result of the pass to y (in backward, to dx) if the last step has not stored the result in y (or dx). The
 * last step has not stored the result in y in two cases. In the first case, the ops of the last step do not change the
 * value, so that the step stores nothing (a fork; in backward also `positions`). In the second case, the number format
 * of y differs from the format in which the last op stores its result. */
TE_API te_status te__deliver(te_run *r) {
    const te_value to = r->pass == TE_BACKWARD ? r->dx : r->y;
    if (!to.data || !r->current.data || r->current.data == to.data) return TE_OK;
    return r->plan->convert(to.data, to.dtype, r->current.data, r->current.dtype, to.rows * to.cols, r->ctx);
}

/* Run the whole pass. `now` is the value that the first step of the pass reads: x in forward, dy in backward. */
TE_API te_status te__run_from(te_run *r, te_value now) {
    r->current = now;
    r->pool.count = 0, r->pool.high = 0;
    for (int i = 0; i < r->plan->op_count; i++) r->edge[i] = te__no_value();
    return te__run_pass(r);
}
/* Make the dry run, and return an error if the workspace is too small. A workspace that was measured for more rows than
 * this call has may nevertheless be too small, because smaller blocks can leave gaps into which other blocks do not fit
 * (te__pool_take). If the workspace is too small, the dry run is repeated, each time with blocks for TE_ROW_PAD more
 * rows. When the blocks are as large as in the measurement, they get the same offsets as in the measurement, and
 * therefore fit. */
enum { TE__MAX_CAPACITY = 8 }; /* te__dry_run tries blocks for at most 8 times this call's rows */
TE_API te_status te__dry_run(te_run *r, te_value now) {
    const size_t all = r->ctx->workspace_bytes, there = all > r->copies_bytes ? all - r->copies_bytes : 0;
    TE_TRY(te__run_from(r, now));
    const size_t needs = r->pool.high + r->copies_bytes;
    const int64_t first = te__capacity_rows(r);
    for (r->capacity = first; r->pool.high > there && r->capacity < TE__MAX_CAPACITY * first;) {
        r->capacity += TE_ROW_PAD;
        TE_TRY(te__run_from(r, now));
    }
    TE_REQUIRE(r->pool.high <= there && r->copies_bytes <= all, r->ctx, TE_ERROR_MEMORY,
               "%s: %lld rows need %zu bytes of workspace%s, the context has %zu; te_context_reserve() makes it larger",
               r->plan->name, (long long)r->tokens, needs,
               r->copies_bytes ? ", with te_plan_strided_bytes for tensors with a stride" : "", all);
    return TE_OK;
}
/* If the rows of the caller's tensors have a stride, the steps work on dense copies of these tensors. Before the first
 * step, te__copy_operands fills the dense copies of the tensors that the pass reads. After the last step,
 * te__copy_results copies the results of the pass from the dense copies to the caller's tensors. Backward may also read
 * the forward's x and y, and may write the forward's y. */
TE_API te_status te__copy_operands(te_run *r) {
    const int back = r->pass == TE_BACKWARD;
    if (!r->copies_bytes) return TE_OK;
    if (!back || te__reads_x(r->plan)) TE_TRY(te__copy_strided(r, TE__CALLER_x, 0));
    if (back && te__reads_y(r->plan)) TE_TRY(te__copy_strided(r, TE__CALLER_y, 0));
    return te__copy_strided(r, TE__CALLER_dy, 0);
}
TE_API te_status te__copy_results(te_run *r) {
    const int back = r->pass == TE_BACKWARD;
    if (!r->copies_bytes) return TE_OK;
    if (back == r->loss_in_backward) TE_TRY(te__copy_strided(r, TE__CALLER_y, 1));
    return te__copy_strided(r, TE__CALLER_dx, 1);
}
/* Make the dry run, then run the pass. The random state is advanced only in the second run, so a call that returns an
 * error does not advance the random state. */
TE_API te_status te__execute(te_run *r, te_value now, const te_model *m, const te_saved *saved) {
    te_context *ctx = r->ctx;
    r->pass_input = now.data;
    TE_TRY(te__dry_run(r, now));
    TE_REQUIRE(ctx->workspace || !(r->pool.high + r->copies_bytes), ctx, TE_ERROR_NULL,
               "%s: ctx.workspace is null, and has %zu bytes", r->plan->name, ctx->workspace_bytes);
    TE_REQUIRE((uintptr_t)ctx->workspace % TE_ALIGN == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: the workspace must be aligned to %d bytes", r->plan->name, (int)TE_ALIGN);
    TE_TRY(te__check_overlap(r, m, saved, r->copies_bytes + r->pool.high));
    if (r->saved) r->saved->plan = 0; /* mark *saved as not filled until the pass has run, so that no backward accepts
                                       * *saved */
    if (r->pass == TE_FORWARD && te__draws(r->plan)) r->take.taken = r->rng, r->take.state = ctx->rng;
    if (m->shards)
        TE_TRY(m->shards->begin(m->shards, r->pass == TE_BACKWARD, r->batch->accumulate, ctx));
    r->dry = 0, r->pool.base = ctx->workspace ? (char *)ctx->workspace + r->copies_bytes : 0;
    TE_TRY(te__copy_operands(r));
    te__launch_record_begin(ctx);
    te_status status = te__run_from(r, now);
    if (status == TE_OK) status = te__deliver(r);
    TE_TRY(te__launch_record_end(ctx, status));
    return te__copy_results(r);
}

/* ---- the three passes ------------------------------------------------------------------------------------------ */

TE_API void te__begin_batch(te_run *r, const te_plan *plan, te_pass pass, const te_model *m, const te_batch *b,
                            te_context *ctx) {
    te__begin(r, plan, pass, (int64_t)b->batch * b->seq, b->sequences ? b->sequences : b->batch, ctx);
    r->batch = b;
    if (te__has_memory(plan)) r->memory = (int64_t)b->batch * b->memory_seq;
    te__take_params(r, m);
    te__set_recipe_use(r, TE_USE_as_bound);
    if (m->shards) r->watch = m->watch; /* forward also needs the listener (te_watch), because collectives run on a
                                         * second stream if there is a listener */
}

/* Check the arguments of a forward or an inference call, and initialise *r for it. */
TE_API te_status te__begin_forward(te_run *r, te_tensor y, te_tensor x, const te_plan *plan, te_pass pass,
                                   const te_model *m, const te_batch *b, te_context *ctx) {
    TE_TRY(te__check_batch(plan, m, b, ctx));
    TE_REQUIRE(pass == TE_INFER || !b->cache, ctx, TE_ERROR_STATE,
               "%s: the batch has a cache, which is for inference: training needs all rows", plan->name);
    TE_TRY(te__renew_weights(m, ctx));
    te__begin_batch(r, plan, pass, m, b, ctx);
    if (!te__from_tokens(plan)) TE_TRY(te__check_tensor(plan->name, "x", x, r->x, ctx));
    TE_TRY(te__check_tensor(plan->name, "y", y, r->y, ctx));
    te__take_tensor(r, TE__CALLER_x, te__from_tokens(plan) ? te_none() : x), te__take_tensor(r, TE__CALLER_y, y);
    return TE_OK;
}
/* Run inference: compute y[rows, out] from x[rows, in]. call_checks.h says which tensors may share memory. */
TE_API te_status te_plan_infer(te_tensor y, te_tensor x, const te_plan *plan, const te_model *m, const te_batch *b,
                               te_context *ctx) {
    te_run r;
    TE_TRY(te__begin_forward(&r, y, x, plan, TE_INFER, m, b, ctx));
    r.saved_bytes = te__lay_out(&r, 0);
    return te__execute(&r, r.x, m, 0);
}
/* Return a part of the error text for a saved.memory that is too small. If the list has an FP8 recipe that is off,
 * forward saves more bytes than <list>_saved_bytes returns; the text then says why the recipe is off. Otherwise the
 * text is "". */
TE_API const char *te__why_recipe_is_off(const te_plan *plan, const te_model *m) {
    int is_initialised = 0;
    for (int i = 0; i < m->param_count; i++) {
        if (!plan->fp8 || m->param[i].fp8.on) return "";
        if (m->param[i].fp8.renewal) is_initialised = 1;
    }
    return is_initialised ? "; FP8 is off (te_recipes_switch), so te_plan_saved_bytes_without_recipe says how many"
                          : "; the list runs without its recipe: call te_recipes_init first, after the bind";
}
/* Run forward: compute y from x, and save in *saved the values that backward needs. If `saved` is null, run inference
 * as te_plan_infer does. */
TE_API te_status te_plan_forward(te_tensor y, te_saved *saved, te_tensor x, const te_plan *plan, const te_model *m,
                                 const te_batch *b, te_context *ctx) {
    te_run r;
    if (!saved) return te_plan_infer(y, x, plan, m, b, ctx);
    TE_TRY(te__begin_forward(&r, y, x, plan, TE_FORWARD, m, b, ctx));
    TE_TRY(te__check_trains(plan, ctx));
    TE_REQUIRE(saved->memory, ctx, TE_ERROR_NULL, "%s: saved.memory is null", plan->name);
    TE_REQUIRE((uintptr_t)saved->memory % TE_ALIGN == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: saved.memory must be aligned to %d bytes", plan->name, (int)TE_ALIGN);
    r.saved = saved, r.saved_bytes = te__lay_out(&r, (char *)saved->memory);
    TE_REQUIRE(r.saved_bytes <= saved->bytes, ctx, TE_ERROR_MEMORY,
               "%s: %lld rows need %zu bytes of saved.memory, there are %zu%s", plan->name, (long long)r.tokens,
               r.saved_bytes, saved->bytes, te__why_recipe_is_off(plan, m));
    TE_TRY(te__execute(&r, r.x, m, saved));
    saved->plan = plan, saved->model = m, saved->batch = b->batch, saved->seq = b->seq, saved->position = b->position;
    saved->sequences = b->sequences, saved->max_seqlen = b->max_seqlen, saved->cu_seqlens = b->cu_seqlens;
    saved->positions = b->positions, saved->context = b->context;
    saved->tokens = b->tokens, saved->labels = b->labels, saved->ignore_index = b->ignore_index;
    saved->memory_rows = r.memory;
    const te_tensor in = te__caller(&r, TE__CALLER_x), out = te__caller(&r, TE__CALLER_y);
    saved->x = in.data, saved->x_stride = in.stride, saved->y = out.data, saved->y_stride = out.stride;
    saved->used = r.saved_bytes, saved->filled = saved->memory;
    memcpy(saved->transposed, r.saved_transposed, sizeof saved->transposed);
    saved->loss_in_backward = r.loss_in_backward;
    return TE_OK;
}

/* Return whether `p` can be an array of int32_t: it is not null, and aligned. */
TE_API int te__is_aligned_i32(const int32_t *p) { return p && (uintptr_t)p % sizeof *p == 0; }
/* Return an error if no forward has filled *saved, or if the forward that filled *saved had another batch, other dims
 * or another recipe. */
TE_API te_status te__check_saved(te_run *r, const te_saved *saved, te_context *ctx) {
    const te_plan *plan = r->plan;
    const te_batch *b = r->batch;
    TE_REQUIRE(saved, ctx, TE_ERROR_NULL, "%s: saved is null", plan->name);
    TE_REQUIRE(saved->plan == plan, ctx, TE_ERROR_STATE, "%s: no forward has filled this te_saved", plan->name);
    TE_REQUIRE(saved->model == r->model, ctx, TE_ERROR_STATE,
               "%s: the forward that filled this te_saved was of another instance", plan->name);
    TE_REQUIRE(saved->memory == saved->filled, ctx, TE_ERROR_STATE,
               "%s: saved.memory is another one than that the forward has filled", plan->name);
    TE_REQUIRE(saved->batch == b->batch && saved->seq == b->seq && saved->position == b->position, ctx, TE_ERROR_SHAPE,
               "%s: the forward had batch %d, seq %d and position %d, this batch has %d, %d and %d", plan->name,
               saved->batch, saved->seq, saved->position, b->batch, b->seq, b->position);
    TE_REQUIRE(saved->sequences == b->sequences && saved->max_seqlen == b->max_seqlen, ctx, TE_ERROR_SHAPE,
               "%s: the forward had %d sequences of at most %d rows in cu_seqlens, this batch has %d of %d", plan->name,
               saved->sequences, saved->max_seqlen, b->sequences, b->max_seqlen);
    TE_REQUIRE(saved->cu_seqlens == b->cu_seqlens, ctx, TE_ERROR_VALUE,
               "%s: the forward had its cu_seqlens at %p, this batch has them at %p", plan->name,
               (const void *)saved->cu_seqlens, (const void *)b->cu_seqlens);
    TE_REQUIRE(saved->positions == b->positions, ctx, TE_ERROR_VALUE,
               "%s: the forward had its positions at %p, this batch has them at %p", plan->name,
               (const void *)saved->positions, (const void *)b->positions);
    /* null or unaligned tokens and labels are left to the checks of the embedding and of the loss, which name them */
    TE_REQUIRE(saved->tokens == b->tokens || !te__from_tokens(plan) || !te__is_aligned_i32(b->tokens), ctx,
               TE_ERROR_VALUE,
               "%s: the forward had its tokens at %p, this batch has them at %p", plan->name,
               (const void *)saved->tokens, (const void *)b->tokens);
    TE_REQUIRE((saved->labels == b->labels && saved->ignore_index == b->ignore_index) || !te__to_loss(plan) ||
                   !te__is_aligned_i32(b->labels), ctx,
               TE_ERROR_VALUE, "%s: the forward had its labels at %p and ignored %d, this batch has them at %p and "
               "ignores %d", plan->name, (const void *)saved->labels, saved->ignore_index, (const void *)b->labels,
               b->ignore_index);
    TE_REQUIRE(saved->context == b->context, ctx, TE_ERROR_VALUE,
               "%s: the forward had batch.context %d, this batch has %d", plan->name, saved->context, b->context);
    TE_REQUIRE(saved->memory_rows == r->memory, ctx, TE_ERROR_SHAPE,
               "%s: the forward had %lld rows of memory, this batch has %lld", plan->name,
               (long long)saved->memory_rows, (long long)r->memory);
    const te_tensor x = te_strided((void *)(uintptr_t)saved->x, r->x.dtype, r->x.rows, r->x.cols, saved->x_stride);
    te__take_tensor(r, TE__CALLER_x, x);
    te__take_tensor(r, TE__CALLER_y, te_strided(saved->y, r->y.dtype, r->y.rows, r->y.cols, saved->y_stride));
    memcpy(r->saved_transposed, saved->transposed, sizeof r->saved_transposed);
    TE_REQUIRE(te__lay_out(r, (char *)saved->memory) == saved->used, ctx, TE_ERROR_STATE,
               "%s: the dims have been set anew, or the recipe switched, since the forward", plan->name);
    return TE_OK;
}
/* Run backward: from dy[rows, out], compute dx[rows, in] and the gradients of the trained parameters (freeze.h). If dx
 * is te_none(), dx is not computed. If the instance was bound without gradients, only dx is computed. If the list ends
 * in cross_entropy, dy is [rows, 1] in f32 or te_none(); te_none() means that dy is batch.loss_scale in every row. */
TE_API te_status te_plan_backward(te_tensor dx, te_tensor dy, const te_saved *saved, const te_plan *plan,
                                  const te_model *m, const te_batch *b, te_context *ctx) {
    te_run r;
    TE_TRY(te__check_batch(plan, m, b, ctx));
    TE_TRY(te__check_trains(plan, ctx));
    te__begin_batch(&r, plan, TE_BACKWARD, m, b, ctx);
    TE_TRY(te__check_saved(&r, saved, ctx));
    if (!te__to_loss(plan) || dy.data) TE_TRY(te__check_tensor(plan->name, "dy", dy, r.y, ctx));
    if (dx.data && !te__from_tokens(plan)) TE_TRY(te__check_tensor(plan->name, "dx", dx, r.x, ctx));
    r.dx = r.x, te__take_tensor(&r, TE__CALLER_dx, te__from_tokens(plan) ? te_none() : dx);
    r.dy = r.y, te__take_tensor(&r, TE__CALLER_dy, dy);
    r.saved_bytes = saved->used, r.loss_in_backward = saved->loss_in_backward;
    r.backward_stop = te__backward_stop_of(&r);
    TE_TRY(te__check_backward_stop(&r, m));
    if (m->watch && (m->watch->armed || m->shards)) TE_TRY((r.watch = m->watch)->allows(m->watch, m, ctx));
    return te__execute(&r, r.dy, m, saved);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* Return whether a call can have this many rows (te_batch.batch times te_batch.seq). */
TE_API int te__can_rows(int64_t rows) { return rows >= 0 && rows <= INT32_MAX / 2; }
TE_API size_t te__saved_bytes(const te_plan *plan, int64_t rows, te_recipe_use use, te_context *ctx) {
    if (!plan || plan->takes_dims || !plan->training || !te__can_rows(rows)) return 0;
    te_run r = te__run_to_size(plan, TE_FORWARD, rows, use, ctx);
    return te__lay_out(&r, (char *)(uintptr_t)TE_ALIGN);
}
/* Return the bytes that te_saved.memory must have for this many rows, under the list's recipe if the list has one.
 * Returns 0 if the widths are not known yet (dims.h), if no call can have this many rows, or if the list is for
 * inference only. If the list has an (input, .., (rows, memory)), then `rows` must be the larger of two numbers: the
 * rows of the batch and the rows of that input. The same holds for `rows` of the functions below. */
TE_API size_t te_plan_saved_bytes(const te_plan *plan, int64_t rows) {
    return te__saved_bytes(plan, rows, TE_USE_on, 0);
}
/* Return the bytes that te_plan_saved_bytes returns, but for one rank of the context's tensor group: a rank saves only
 * its own shard of those values that are sharded by rows. */
TE_API size_t te_plan_saved_bytes_of_rank(const te_plan *plan, int64_t rows, te_context *ctx) {
    return te__saved_bytes(plan, rows, TE_USE_on, ctx);
}
/* Return the bytes that te_plan_saved_bytes returns, but for calls in which no GEMM runs under the recipe; forward then
 * saves all values in the list's dtype. */
TE_API size_t te_plan_saved_bytes_without_recipe(const te_plan *plan, int64_t rows) {
    return te__saved_bytes(plan, rows, TE_USE_off, 0);
}
/* Return the bytes that te_plan_saved_bytes_without_recipe returns, but for one rank of the context's tensor group. */
TE_API size_t te_plan_saved_bytes_of_rank_without_recipe(const te_plan *plan, int64_t rows, te_context *ctx) {
    return te__saved_bytes(plan, rows, TE_USE_off, ctx);
}
/* Return the bytes of workspace that calls with this many rows need in addition to te_plan_workspace_bytes if x, y, dx
 * or dy has a stride (te_tensor.stride). The bytes suffice even if all four tensors have a stride and backward needs a
 * dense copy of each. */
TE_API size_t te_plan_strided_bytes(const te_plan *plan, int64_t rows, te_context *ctx) {
    if (!plan || plan->takes_dims || !te__can_rows(rows)) return 0;
    const te_run r = te__run_to_size(plan, TE_INFER, rows, TE_USE_off, ctx);
    const size_t x = te__from_tokens(plan) ? 0 : te__dense_bytes(r.x.rows, r.x.cols, r.x.dtype);
    return (plan->training ? 2 : 1) * (x + te__dense_bytes(r.y.rows, r.y.cols, r.y.dtype));
}
/* Return the bytes of workspace that suffice, on the context's device, for any pass with at most this many rows,
 * whether the recipe is on or off. Returns 0 and stores an error text in ctx if ctx was not created, if m is not bound,
 * or if no call can have this many rows. */
TE_API size_t te_plan_workspace_bytes(const te_plan *plan, const te_model *m, int64_t rows, te_context *ctx) {
    size_t max_bytes = 0;
    if (!plan || te__check_target(ctx, plan->name) != TE_OK) return 0;
    if (te__check_dims(plan, ctx) != TE_OK || te__check_bound(plan, m, ctx) != TE_OK) return 0;
    if (!te__can_rows(rows))
        return te_fail(ctx, TE_ERROR_OVERFLOW, "%s: %lld rows", plan->name, (long long)rows), (size_t)0;
    for (int i = 0; i < (plan->fp8 ? 3 * (int)TE_USE_common : 3); i++) {
        const te_pass pass = (te_pass)(i % 3);
        if (pass != TE_INFER && !plan->training) continue;
        te_run r = te__run_to_size(plan, pass, rows, (te_recipe_use)(TE_USE_off + i / 3), ctx);
        r.x.data = r.y.data = (void *)(uintptr_t)TE_ALIGN, r.dx = r.x, r.dy = r.y;
        te__take_params(&r, m);
        te__lay_out(&r, (char *)(uintptr_t)TE_ALIGN);
        r.current = pass == TE_BACKWARD ? r.dy : r.x;
        if (te__run_pass(&r) == TE_OK && r.pool.high > max_bytes) max_bytes = r.pool.high;
    }
    return max_bytes;
}

#endif
