/* bind.h -- binds an instance of a list to memory: the sizes of the parameter buffer and of the gradient buffer, the
 * position of each tensor in these buffers, tied parameters, and the part of each parameter that a rank of a tensor
 * group holds.
 *
 * Do this (TE_SEQUENTIAL makes block_bind, which calls te_model_bind):
 *     TE_TRY(te_allocate(&ctx, &params, block_param_bytes()));
 *     TE_TRY(te_allocate(&ctx, &grads, block_grad_bytes()));
 *     TE_TRY(block_bind(&m, params, (float *)grads, &ctx));
 *     TE_TRY(te_tie(&m.head.weight, &m.tokens.table, &ctx));
 */
#ifndef TE_BIND_H
#define TE_BIND_H

#include "model.h" /* te_plan, te_model, te_param */
#include "../core/rank_group.h" /* te_group */

/* All parameters lie in one buffer, in list order, and all gradients in another. Each tensor starts at a multiple of
 * TE_PARAM_ALIGN elements; a parameter and its gradient begin at the same element index of their buffers. Therefore the
 * optimizer, the gradient norm, a checkpoint and an all-reduce can treat each buffer as one flat array. */
enum { TE_PARAM_ALIGN = 128 };

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* Return an error if the plan's widths are still symbols such as TE_DIM(0), i.e. have not been replaced by numbers
 * (dims.h). */
TE_API te_status te__check_dims(const te_plan *plan, te_context *ctx) {
    TE_REQUIRE(!plan->takes_dims, ctx, TE_ERROR_STATE,
               "%s: its widths are known only at run time; call %s_set_dims first", plan->name, plan->name);
    return TE_OK;
}

/* Return an error if the list was declared with TE_INFERENCE: such a list can run inference, but no forward and no
 * backward. */
TE_API te_status te__check_trains(const te_plan *plan, te_context *ctx) {
    TE_REQUIRE(plan->training, ctx, TE_ERROR_STATE,
               "%s: the list is for inference alone; TE_SEQUENTIAL makes one that trains", plan->name);
    return TE_OK;
}

/* Return an error if te_model_bind has not bound the instance m to this plan, or if m is a copy of a bound instance. */
TE_API te_status te__check_bound(const te_plan *plan, const te_model *m, te_context *ctx) {
    TE_REQUIRE(m && m->plan == plan, ctx, TE_ERROR_STATE, "%s: the instance has not been bound; call %s_bind first",
               plan->name, plan->name);
    TE_REQUIRE(!m->at || m->at == m, ctx, TE_ERROR_STATE,
               "%s: the instance was copied since it was bound; bind it where it lies", plan->name);
    return TE_OK;
}
/* Return an error if a parameter of m is stored in a mapped file and therefore must not be written. `who` is the
 * caller's name, for the error text. */
TE_API te_status te__check_not_mapped(const te_model *m, const char *who, te_context *ctx) {
    for (int i = 0; i < m->param_count; i++)
        TE_REQUIRE(!m->param[i].constant, ctx, TE_ERROR_STATE,
                   "%s: %s: %s.%s lies in a file (te_weights_use), which is only read", who, m->plan->name,
                   m->param[i].op, m->param[i].field);
    return TE_OK;
}
/* Return an error if code must not write to the parameters of m (to te_param.data) at present. Call this before writing
 * to the parameters. */
TE_API te_status te__check_writable(const te_model *m, const char *who, te_context *ctx) {
    TE_TRY(te__check_not_mapped(m, who, ctx));
    TE_REQUIRE(!m->shards || !m->shards->has_weights || m->shards->is_gathered, ctx, TE_ERROR_STATE,
               "%s: the weights of %s are sharded, and not gathered now; call te_fsdp_gather before, for one list at a "
               "time, and te_fsdp_keep behind it", who, m->plan->name);
    return TE_OK;
}

/* ---- sharded parameters ------------------------------------------------------------------------------------------ */

/* Return the index, in this rank's shard memory, of element `from` of parameter p. This rank must hold the element. The
 * shard memory is te_model_shards.params for the values and te_model_shards.grads for the gradients. */
TE_API int64_t te__shard_index(const te_model *m, const te_param *p, int64_t from) {
    const te_model_shards *s = m->shards;
    const int64_t at = (p->grad - m->grads) + from, behind = s->elements * s->ranks;
    return at < behind ? at - s->rank * s->elements : at - behind + s->elements;
}
/* te__param_at returns the address at which an optimizer updates element `from` of p. te__grad_at returns the address
 * of this element's gradient, which has been summed over the ranks. */
TE_API void *te__param_at(const te_model *m, const te_param *p, int64_t from) {
    const int is_sharded = m->shards && m->shards->has_weights;
    char *const data = (char *)(is_sharded ? m->shards->params : p->data);
    return data + (size_t)(is_sharded ? te__shard_index(m, p, from) : from) * te_dtype_bytes(p->dtype);
}
TE_API const float *te__grad_at(const te_model *m, const te_param *p, int64_t from) {
    return m->shards ? m->shards->grads + te__shard_index(m, p, from) : p->grad + from;
}

/* ---- writes to parameters ---------------------------------------------------------------------------------------- */

/* An optimizer holds f32 master weights, and FP8 recipes hold the weights in FP8. Both copies become stale when other
 * code writes the parameter. Therefore every writer increments the parameter's write count, and the host compares
 * counts before a copy is used: if the count has changed, the next optimizer step takes the new values as its master
 * weights, and the next forward casts the new values to FP8. */

/* Return the write count of p. A tied parameter uses the memory of another parameter, which is called its owner; for a
 * tied parameter the result is therefore the owner's write count. */
TE_API uint64_t te__writes_of(const te_param *p) { return p->tied && p->with ? p->with->written : p->written; }
/* Count a write to the values of p. */
TE_API void te__param_written(te_param *p, te_context *ctx) {
    te__count_write(p->tied && p->with ? &p->with->written : &p->written, ctx);
}
/* Tell the library that your own code has written to parameters of m (to te_param.data, by a kernel, te_copy or a
 * collective). Call this on each rank that has written. The next step of an optimizer then takes the new values instead
 * of its master weights, and the next forward casts the new values to FP8. After a library function has written to m
 * (te_model_randomize, te_weights_load, ...), te_model_changed is not needed for m, but it is needed for every other
 * instance that is bound to the same memory. A replay of a captured graph runs no code on the host and does not notice
 * the writes: call te_adamw_renew and te_recipes_cast_weights before the replay. Errors: TE_ERROR_STATE, m is not
 * bound. */
TE_API te_status te_model_changed(te_model *m, te_context *ctx) {
    TE_TRY(te__check_context(ctx, "te_model_changed"));
    TE_REQUIRE(m && m->plan && (!m->at || m->at == m), ctx, TE_ERROR_STATE,
               "te_model_changed: the instance has not been bound, or copied since");
    for (int i = 0; i < m->param_count; i++) te__param_written(&m->param[i], ctx);
    return TE_OK;
}
/* If weights of m were written after the last cast to FP8, cast these weights again. Call this before using p->fp8.data
 * of a parameter p of m. */
TE_API te_status te__renew_weights(const te_model *m, te_context *ctx) {
    for (int i = 0; m->plan->fp8 && i < m->param_count; i++) {
        const te_fp8_product *f = &m->param[i].fp8;
        if (!f->on || !f->renewal) continue;
        const int loaded = f->renewal->ctx == ctx && f->renewal->loaded != ctx->loaded;
        if (loaded || f->written != te__writes_of(&m->param[i])) TE_TRY(f->renewal->renew(f->renewal->of, ctx));
    }
    return TE_OK;
}

/* Return an error while the gradients of m are still being reduced over ranks. Call this before reading the gradients.
 * `who` is the caller's name, for the error text. */
TE_API te_status te__check_reduced(const te_model *m, const char *who, te_context *ctx) {
    TE_REQUIRE(!m->watch || !m->watch->armed, ctx, TE_ERROR_STATE,
               "%s: the gradients of %s are being reduced over ranks; %s comes first", who, m->plan->name,
               m->watch->finish);
    return TE_OK;
}
/* Make the checks of te__check_bound. Also return an error if a parameter has no memory, if a parameter has a format
 * that GEMMs cannot read, or if the owner of a tied parameter (the parameter whose memory it uses) was bound again
 * after te_tie. */
TE_API te_status te__check_model(const te_plan *plan, const te_model *m, te_context *ctx) {
    TE_TRY(te__check_bound(plan, m, ctx));
    for (int i = 0; i < m->param_count; i++) {
        const te_param *p = &m->param[i], *owner = p->with;
        TE_REQUIRE(p->data || p->quantized || (p->fp8.on && p->fp8.data), ctx, TE_ERROR_STATE,
                   "%s: %s.%s has no memory; %s", plan->name, p->op, p->field,
                   p->tied ? "te_tie it to another parameter" : "bind it to some, or te_weights_use a file");
        TE_REQUIRE(p->dtype == plan->dtype || p->fp8.on, ctx, TE_ERROR_STATE,
                   "%s: %s.%s is in %s, and GEMMs read it in FP8; call te_recipes_init first, after the bind",
                   plan->name, p->op, p->field, te_dtype_name(p->dtype));
        if (!p->tied || !owner) continue;
        const int shares_grad = p->grad ? owner->grad == p->grad && owner->with : !p->trains || !owner->grad;
        TE_REQUIRE(owner->data == p->data && owner->quantized == p->quantized && shares_grad, ctx, TE_ERROR_STATE,
                   "%s: the owner of %s.%s was bound again since; te_tie them again", plan->name, p->op, p->field);
    }
    return TE_OK;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* Return the number of elements in the parameter buffer, including the gaps between tensors. Returns 0 if the widths
 * are not known yet (te_plan_set_dims). */
TE_API int64_t te_plan_param_elements(const te_plan *plan) {
    int64_t n = 0;
    for (int i = 0; plan && !plan->takes_dims && i < plan->op_count; i++)
        for (int k = 0; k < plan->op[i].params; k++) {
            const te_param_info *p = &plan->op[i].param[k];
            if (!p->tied) n += te_round_up(p->rows * p->cols, TE_PARAM_ALIGN);
        }
    return n;
}
/* Return the format of an op's parameters. The format is the list's dtype, with one exception: with the list's option
 * (weights, f32), the weights of FP8 GEMMs are f32. */
TE_API te_dtype te__plan_param_dtype(const te_plan *plan, const te_op *op) {
    return op->recipe != TE_RECIPE_none ? plan->fp8->weights : plan->dtype;
}
/* Return the bytes that a parameter takes in the buffer, including the gap behind it. Returns 0 if the parameter is
 * tied, because a tied parameter uses the memory of another parameter. */
TE_API size_t te__param_padded_bytes(const te_param_info *p, te_dtype dtype) {
    return p->tied ? 0 : (size_t)te_round_up(p->rows * p->cols, TE_PARAM_ALIGN) * te_dtype_bytes(dtype);
}
/* Return the bytes of the parameter buffer, or 0 if the widths are not known yet. */
TE_API size_t te_plan_param_bytes(const te_plan *plan) {
    size_t bytes = 0;
    for (int i = 0; plan && !plan->takes_dims && i < plan->op_count; i++)
        for (int k = 0; k < plan->op[i].params; k++)
            bytes += te__param_padded_bytes(&plan->op[i].param[k], te__plan_param_dtype(plan, &plan->op[i]));
    return bytes;
}
/* Return the number of elements in each slice if ZeRO-1 cuts a buffer of `elements` elements into `ranks` equal slices,
 * one for each rank. A slice is a multiple of TE_PARAM_ALIGN elements. If elements remain after the last slice, they
 * belong to no slice, and every rank holds them. */
TE_API int64_t te__slice_elements(int64_t elements, int ranks) {
    return elements / ranks / TE_PARAM_ALIGN * TE_PARAM_ALIGN;
}
/* Return the bytes of the gradient buffer, whose elements are f32. Returns 0 if the widths are not known yet, or if the
 * list is for inference only. */
TE_API size_t te_plan_grad_bytes(const te_plan *plan) {
    return plan && plan->training ? (size_t)te_plan_param_elements(plan) * sizeof(float) : 0;
}

/* ---- binding ----------------------------------------------------------------------------------------------------- */

/* p is a parameter of `op`. Set p->shard, p->parts, p->first_part and p->copies, which say which shard of p a rank of
 * the tensor group holds, and p->sums, which says whether each rank has only a partial sum of p's gradient. `product`
 * is the last GEMM op of the list up to and including `op`, or null if the list has no GEMM up to there. The output
 * columns of `product` may consist of parts (q, k, v), each of which is split over the ranks separately. If `op` has
 * the same output columns as `product`, as a bias behind a linear has, p is split in the same way. */
TE_API void te__bind_shard(te_param *p, const te_op *op, const te_op *product) {
    if (op->out_rows == TE_ROWS_shard || op->in_rows == TE_ROWS_shard) p->sums = 1;
    if (op->layout == TE_LAYOUT_columns) {
        p->sums = (op->flags & TE_PARAMS_REPLICATED) != 0;
        p->shard = p->sums ? TE_SHARD_none : TE_SHARD_columns;
    }
    if (op->experts && TE_ROUTED_RANKS(op->out_rows)) { /* true for a router whose experts are spread over the ranks,
                                                         * and for the ops of such experts */
        p->sums = !te__rows_are_routed(op->in_rows);
        p->shard = p->sums ? TE_SHARD_none : TE_EXPERT_SHARD;
    }
    if (op->layout == TE_LAYOUT_partial_sum) p->shard = op->ranks ? TE_SHARD_columns : TE_SHARD_rows, p->sums = 0;
    p->parts = p->first_part = p->copies = 1;
    /* Custom ops are excluded, because their parameters need not have one element per output column: attention, for
     * example, has one parameter (a sink) per head. */
    if (product && p->shard == TE_SHARD_columns && op->op_class != TE_CLASS_custom && op->out == product->out)
        p->parts = product->parts, p->first_part = product->first_part, p->copies = product->copies;
}
/* If the tensor group has more ranks than the model has kv heads, each kv head lies on several ranks, and te_op.copies
 * is the number of these ranks. Return an error if te_op.copies is not 1 and differs from the size of the context's
 * copies group, which consists of the ranks that hold the same k and v. */
TE_API te_status te__check_copies(const te_plan *plan, te_context *ctx) {
    const int ranks = te_tensor_group(ctx)->size, copies = te__copies_group(ctx)->size;
    for (int i = 0; i < plan->op_count && ranks > 1; i++)
        TE_REQUIRE(plan->op[i].copies == 1 || plan->op[i].copies == copies, ctx, TE_ERROR_STATE,
                   "%s: (%s, %s) has k and v on %d ranks each, and te_comm_config.copies is %d", plan->name,
                   plan->op[i].kind, plan->op[i].name, plan->op[i].copies, copies);
    return TE_OK;
}

/* Do the work of te_model_bind or, if is_elsewhere is 1, the work of te_model_describe. */
TE_API te_status te__model_bind(te_model *m, const te_plan *plan, te_param *param, int param_count, void *params,
                                float *grads, int is_elsewhere, te_context *ctx) {
    int count = 0;
    TE_REQUIRE(plan, ctx, TE_ERROR_NULL, "te_model_bind: the plan is null");
    TE_TRY(te__check_context(ctx, plan->name));
    TE_REQUIRE(m, ctx, TE_ERROR_NULL, "%s: the instance is null", plan->name);
    TE_TRY(te__check_dims(plan, ctx));
    TE_TRY(te__check_copies(plan, ctx));
    for (int i = 0; i < plan->op_count; i++) count += plan->op[i].params;
    TE_REQUIRE(param_count == count && (param || !count), ctx, TE_ERROR_SHAPE,
               "%s: memory for %d parameters, the list has %d", plan->name, param ? param_count : 0, count);
    if (grads) TE_TRY(te__check_trains(plan, ctx));
    const int64_t elements = te_plan_param_elements(plan);
    TE_REQUIRE(params || !elements || !plan->training || is_elsewhere, ctx, TE_ERROR_NULL, "%s: params is null",
               plan->name);
    TE_REQUIRE((uintptr_t)params % TE_ALIGN == 0 && (uintptr_t)grads % TE_ALIGN == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: params and grads must be aligned to %d bytes", plan->name, (int)TE_ALIGN);
    const uintptr_t first = (uintptr_t)params, second = (uintptr_t)grads;
    TE_REQUIRE(!grads || !elements || first + te_plan_param_bytes(plan) <= second ||
                   second + te_plan_grad_bytes(plan) <= first, ctx, TE_ERROR_VALUE, "%s: params overlaps grads",
               plan->name);
    m->plan = plan, m->param = param, m->param_count = param_count;
    m->params = params, m->grads = grads, m->elements = elements, m->grad_elements = grads ? elements : 0, m->watch = 0;
    m->shards = 0;
    m->is_elsewhere = is_elsewhere;
    m->param_bytes = te_plan_param_bytes(plan);
    m->at = (const void *)param == (const void *)(m + 1) ? m : 0;
    char *at = (char *)params;
    const te_op *product = 0;
    for (int i = 0; i < plan->op_count; i++)
        for (int k = 0; k < plan->op[i].params; k++, param++) {
            const te_op *op = &plan->op[i];
            if (op->op_class == TE_CLASS_gemm) product = op;
            const te_param_info *info = &op->param[k];
            memset(param, 0, sizeof *param);
            te__count_write(&param->written, ctx); /* the memory's contents count as newly written */
            param->op = op->name, param->field = info->field, param->rows = info->rows, param->cols = info->cols;
            param->dtype = te__plan_param_dtype(plan, op), param->init = info->init, param->tied = info->tied;
            param->trains = grads != 0, param->index = (int)(param - m->param);
            param->frozen = param->fixed = (op->flags & TE_IS_FROZEN) != 0;
            param->last = op->op_class == TE_CLASS_norm || (op->flags & TE_SUMS);
            te__bind_shard(param, op, product);
            param->weights = op->weights;
            if (info->tied || !params) continue;
            param->data = at, at += te__param_padded_bytes(info, param->dtype);
            if (grads) param->grad = grads, grads += te_round_up(info->rows * info->cols, TE_PARAM_ALIGN);
        }
    return TE_OK;
}

/* Bind an instance to its memory: params has te_plan_param_bytes bytes, grads has te_plan_grad_bytes bytes, and both
 * are aligned to TE_ALIGN. This call does not change the contents of the two buffers. grads is null for inference, or
 * for a backward that computes only dx. params may be null if the list is for inference only: te_weights_use then
 * provides the memory. To train only some parameters, see freeze.h. `param` is an array of param_count records, which
 * this function fills. TE_ERROR_NULL: a pointer that is needed is null; TE_ERROR_ALIGNMENT: a buffer is not aligned;
 * TE_ERROR_SHAPE: param_count is not the number of the list's parameters; TE_ERROR_VALUE: the two buffers overlap;
 * TE_ERROR_STATE: the widths are not set, or grads is not null although the list has no backward. */
TE_API te_status te_model_bind(te_model *m, const te_plan *plan, te_param *param, int param_count, void *params,
                               float *grads, te_context *ctx) {
    return te__model_bind(m, plan, param, param_count, params, grads, 0, ctx);
}
/* Fill in the names, shapes and shards of an instance's parameters without binding any memory. Such an instance has two
 * uses. First, te_fsdp_init (te/optim/fsdp.h) binds the instance later. Second, each rank must pass the instances of
 * all pipeline stages, in the same order, to te_checkpoint_save and te_checkpoint_load; an instance without memory
 * represents the model of another stage. Other calls return an error for such an instance. */
TE_API te_status te_model_describe(te_model *m, const te_plan *plan, te_param *param, int param_count,
                                   te_context *ctx) {
    return te__model_bind(m, plan, param, param_count, 0, 0, 1, ctx);
}
/* Mark the parameters of m as a copy of the parameters of a model on an earlier pipeline stage. Example: the head on
 * the last stage, which is tied to the embedding on the first stage. The caller keeps both copies equal: the caller
 * gives both copies the same initial values, and sums the gradients over both stages (te_embedding_group) before each
 * optimizer step. A copy is loaded from a checkpoint, but not saved, and its gradient does not count in the gradient
 * norm. Call this after m is bound and before optimizers are initialised. Errors: TE_ERROR_STATE, m is not bound. */
TE_API te_status te_model_mark_copy(te_model *m, te_context *ctx) {
    TE_TRY(te__check_context(ctx, "te_model_mark_copy"));
    TE_REQUIRE(m && m->plan && !m->is_elsewhere, ctx, TE_ERROR_STATE, "te_model_mark_copy: the instance is not bound");
    for (int i = 0; i < m->param_count; i++) m->param[i].is_copy = 1;
    return TE_OK;
}

/* Bind the instance as te_model_bind does. m is the first member of the struct that TE_SEQUENTIAL declares; the
 * instance's te_param records lie in this struct between m and `end`. */
TE_API te_status te__bind_instance(te_model *m, const te_param *end, const te_plan *plan, void *params, float *grads,
                                   te_context *ctx) {
    te_param *first = m ? (te_param *)(m + 1) : 0;
    return te_model_bind(m, plan, first, m ? (int)(end - first) : 0, params, grads, ctx);
}

/* ---- tied parameters --------------------------------------------------------------------------------------------- */

/* Return whether backward writes the gradient of `a` before the gradient of `b`. The three parameters share one
 * gradient: `a` and `b` are each either `owner` itself or tied to it, and `b` was tied earlier than `a`. There are
 * three cases:
 * - `a` and `b` are in one list: the gradient of the parameter that is later in the list is written first, except that
 *   gradients that are deferred column sums are written last.
 * - Only one of them is in the owner's list: the gradient of the parameter in the other list is written first, because
 *   the backward of that list runs first.
 * - Neither is in the owner's list: b's gradient is written first, because the backwards run in the order in which the
 *   parameters were tied (te_tie). */
TE_API int te__writes_before(const te_param *a, const te_param *b, const te_param *owner) {
    if (a - a->index == b - b->index) return a->last != b->last ? b->last : a->index > b->index;
    return b - b->index == owner - owner->index;
}
/* Make `user`, the weight of a tied_linear, share the memory and the gradient of `owner`. In backward, the first op
 * that has a result for the shared gradient overwrites the gradient, and every later op adds its result. If `user` and
 * `owner` are in one list, the library knows which op is the first. If `user` and `owner` are in different lists, the
 * caller must run the backward of the user's list before the backward of the owner's list. If an owner has users in
 * several other lists, the backwards of these lists must run in the order in which the users were tied. Instances
 * without gradients may run in any order. Both instances must stay where they are in memory; after one of them is bound
 * again, tie the two parameters again. */
TE_API te_status te_tie(te_param *user, te_param *owner, te_context *ctx) {
    TE_TRY(te__check_context(ctx, "te_tie"));
    TE_REQUIRE(user && owner, ctx, TE_ERROR_NULL, "te_tie: a parameter is null");
    TE_REQUIRE(user->op, ctx, TE_ERROR_NULL, "te_tie: the user is not bound");
    TE_REQUIRE(user != owner, ctx, TE_ERROR_VALUE,
               "te_tie: %s.%s is tied to itself; tie it to the one that owns the memory", user->op, user->field);
    TE_REQUIRE(user->tied, ctx, TE_ERROR_VALUE, "te_tie: %s.%s has its own memory; declare it as tied_linear",
               user->op, user->field);
    TE_REQUIRE(owner->data || owner->quantized || owner->tied, ctx, TE_ERROR_NULL,
               "te_tie: the owner, to which %s.%s would be tied, is not bound", user->op, user->field);
    TE_REQUIRE(!owner->tied, ctx, TE_ERROR_VALUE, "te_tie: %s.%s is tied itself; tie %s.%s to the one that owns it",
               owner->op, owner->field, user->op, user->field);
    TE_REQUIRE(!user->with || user->with == owner, ctx, TE_ERROR_STATE,
               "te_tie: %s.%s is tied to another parameter; bind both of their instances again", user->op, user->field);
    TE_REQUIRE(!owner->is_sharded, ctx, TE_ERROR_STATE,
               "te_tie: the list of %s.%s is sharded, so its gradients have no memory while other lists run; leave it "
               "out of te_fsdp_init", owner->op, owner->field);
    TE_REQUIRE(user->rows == owner->rows && user->cols == owner->cols, ctx, TE_ERROR_SHAPE,
               "te_tie: %s.%s is %lld x %lld, %s.%s is %lld x %lld", user->op, user->field, (long long)user->rows,
               (long long)user->cols, owner->op, owner->field, (long long)owner->rows, (long long)owner->cols);
    TE_REQUIRE(user->dtype == owner->dtype, ctx, TE_ERROR_DTYPE, "te_tie: %s.%s is %s, %s.%s is %s", user->op,
               user->field, te_dtype_name(user->dtype), owner->op, owner->field, te_dtype_name(owner->dtype));
    TE_REQUIRE(user->shard == owner->shard && user->sums == owner->sums && user->copies == owner->copies, ctx,
               TE_ERROR_VALUE,
               "te_tie: %s.%s is sharded over ranks in another way than %s.%s", user->op, user->field, owner->op,
               owner->field);
    TE_REQUIRE(user->trains || owner->with != user, ctx, TE_ERROR_STATE,
               "te_tie: %s.%s has lost its gradients; bind the instance of %s.%s again, too", user->op, user->field,
               owner->op, owner->field);
    TE_REQUIRE(!owner->quantized || user->weights != TE_BLOCK_none, ctx, TE_ERROR_STATE,
               "te_tie: %s.%s is quantized; the list of %s.%s has no weights in few bits, (weights, ..)", owner->op,
               owner->field, user->op, user->field);
    user->data = owner->data, user->constant = owner->constant, user->with = owner;
    user->quantized = owner->quantized;
    if (!user->trains || !owner->grad) return TE_OK;
    te_param *const first = owner->with ? owner->with : owner;
    const int writes = user == first || te__writes_before(user, first, owner);
    user->grad = owner->grad, user->shared = !writes;
    if (writes && user != first) first->shared = 1;
    owner->with = writes ? user : first;
    return TE_OK;
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */

/* A rank's shard of a parameter consists of runs, which are stretches of elements that are contiguous in the whole
 * parameter. With (shard, rows), each run is that part of one row of the weight that lies in the rank's columns. With
 * (shard, columns), each run is the rank's rows of one of the weight's parts, for example of q, k or v
 * (te/ops/linear.h). The whole parameter consists of run 0 of rank 0, run 0 of rank 1, ..., run 1 of rank 0, and so on.
 * If several consecutive ranks hold the same run (te_param.copies), this run occurs only once in the whole parameter;
 * it belongs to the first of these ranks.
 *
 *     te_shard_layout s = te_shard_layout_of(p, te_tensor_group(ctx));
 *     for (int64_t i = 0; i < s.count; i++) {
 *         const te_shard_run r = te_shard_run_at(&s, i); // element r.at of the shard is element r.whole of the whole
 *         ...
 *     }
 */

typedef struct te_shard_layout {
    int64_t count;       /* number of runs */
    int64_t first, each; /* A run is a range of consecutive elements of the shard. `first` is the number of elements of
                          * run 0, and `each` is the number of elements of every other run */
    int rank, ranks;     /* the index of this rank in the group, and the number of ranks; if the parameter is not
                          * sharded, rank is 0 and ranks is 1 */
    int copies;          /* how many ranks hold the same elements of every run except run 0 */
    int64_t owned;       /* The first `owned` elements of the shard belong to this rank; the rest are copies of elements
                          * that belong to an earlier rank. Only the rank to which an element belongs saves the element
                          * to a file, and counts the element's gradient in the gradient norm */
} te_shard_layout;
typedef struct te_shard_run {
    int64_t at, whole; /* at: index, within the shard, of the run's first element; whole: index of the same element
                        * within the whole parameter */
    int64_t elements;
} te_shard_run;

/* Return the layout of the shard of parameter p that lies on rank g->rank of the group *g. */
TE_API te_shard_layout te_shard_layout_of(const te_param *p, const te_group *g) {
    te_shard_layout s;
    const int64_t all = p->rows * p->cols;
    s.count = 1, s.first = s.each = all, s.rank = 0, s.ranks = s.copies = 1, s.owned = all;
    if (p->shard == TE_SHARD_none) s.owned = g->rank ? 0 : all;
    if (p->shard == TE_SHARD_none || g->size == 1) return s;
    s.rank = g->rank, s.ranks = g->size, s.copies = p->copies;
    if (p->shard == TE_SHARD_rows) s.count = p->rows, s.first = s.each = p->cols;
    else {
        s.count = p->parts, s.each = all / (p->first_part + p->parts - 1);
        s.first = s.each * p->first_part;
    }
    s.owned = s.rank % s.copies ? s.first : all;
    return s;
}
/* Return the index, within the whole parameter, of the first element of rank 0's run i. */
TE_API int64_t te__shard_run_begin(const te_shard_layout *s, int64_t i) {
    return i ? s->first * s->ranks + (i - 1) * s->each * (s->ranks / s->copies) : 0;
}
/* Return the number of elements of the whole parameter. */
TE_API int64_t te__shard_whole_elements(const te_shard_layout *s) { return te__shard_run_begin(s, s->count); }
TE_API te_shard_run te_shard_run_at(const te_shard_layout *s, int64_t i) {
    te_shard_run r;
    r.at = i ? s->first + (i - 1) * s->each : 0, r.elements = i ? s->each : s->first;
    r.whole = te__shard_run_begin(s, i) + (i ? s->rank / s->copies : s->rank) * r.elements;
    return r;
}
/* Return the index of the run (range of consecutive elements) that contains element `at` of the shard. */
TE_API int64_t te_shard_run_with(const te_shard_layout *s, int64_t at) {
    return at < s->first ? 0 : 1 + (at - s->first) / s->each;
}
/* Return the index i of the run that contains element `whole` of the whole parameter. The function does not say which
 * rank holds this run. */
TE_API int64_t te__shard_run_with_whole(const te_shard_layout *s, int64_t whole) {
    const int64_t behind = whole - te__shard_run_begin(s, 1);
    return behind < 0 ? 0 : 1 + behind / (s->each * (s->ranks / s->copies));
}

#endif
