/* storage.h -- one walk over a plan (executor.h): where each value lies. */
#ifndef TE_STORAGE_H
#define TE_STORAGE_H

#include "../../fp8/fp8_scaling.h" /* te_scaling_count */
#include "executor_state.h" /* te_run, te_value */

/* ---- products in FP8 --------------------------------------------------------------------------------------------- */

/* Whether the product of op i has a recipe that is on. */
TE_API int te__has_recipe(const te_run *r, int i) {
    if (i >= r->plan->op_count || r->plan->op[i].recipe == TE_RECIPE_none) return 0;
    return r->use == TE_USE_as_bound ? r->param[i]->fp8.on : r->use != TE_USE_off;
}
/* Whether its backward then runs in FP8. */
TE_API int te_trains_in_fp8(const te_run *r, int i) {
    return te__has_recipe(r, i) && !TE_IS_ROWWISE(r->plan->op[i].recipe);
}
/* Whether it runs in FP8 in this pass. */
TE_API int te_is_in_fp8(const te_run *r, int i) {
    return r->pass == TE_BACKWARD ? te_trains_in_fp8(r, i) : te__has_recipe(r, i);
}

/* Whether op i has scales of tiles and blocks. */
TE_API int te_is_tiled(const te_run *r, int i) { return TE_IS_BLOCKWISE(r->plan->op[i].recipe); }
/* Whether op i gives what it read, a norm's statistics and its parameters alone, and what it read is saved. */
TE_API int te__gives_again(const te_plan *p, int i) {
    const te_op *op = &p->op[i];
    if (op->op_class == TE_CLASS_gemm || op->op_class == TE_CLASS_custom || op->edge >= 0) return 0;
    return (op->flags & TE_SAVES_INPUT) && !(op->flags & TE_DRAWS) && op->out_dtype == p->dtype;
}
/* The forward step that ends with op i, and whose chain can run that op alone: it reads what the chain does, or is its
 * norm. null: none. */
TE_API const te_step *te__recomputing_step(const te_plan *p, int i) {
    const te_op *op = &p->op[i];
    for (int k = 0; k < p->forward_count; k++) {
        const te_step *s = &p->forward[k];
        const te_op *first = &p->op[s->op[p->op[s->op[0]].op_class == TE_CLASS_gemm]];
        if (s->op[s->count - 1] != i) continue;
        if (p->op[s->op[0]].op_class == TE_CLASS_custom && !(p->op[s->op[0]].flags & TE_LEADS_POINTWISE)) return 0;
        for (int j = 0; j < s->count - 1; j++)
            if (p->op[s->op[j]].op_class == TE_CLASS_norm) return 0;
        return op->op_class == TE_CLASS_norm || (first->in == op->in && first->in_dtype == op->in_dtype) ? s : 0;
    }
    return 0;
}
/* The op that gives what op i reads in forward: the one before, or that before one that hands it on. -1: it reads the
 * list's x. */
TE_API int te__producer_of(const te_plan *p, int i) {
    for (i--; i >= 0 && (p->op[i].flags & TE_PASSES_VALUE);) i--;
    return i;
}
/* Whether the input of product i is saved as it is, for others. */
TE_API int te__input_is_saved(const te_run *r, int i) {
    const int from = te__producer_of(r->plan, i), flags = from >= 0 ? r->plan->op[from].flags : 0;
    return (flags & TE_SAVES_OUTPUT) || ((flags & TE_IS_FORK) && !(flags & TE_IS_INPUT));
}
/* Whether product i keeps its input nowhere in FP8, because backward has it again: from memory, or from the kernel that
 * made it (pointwise_quantize_transpose.h). Not where spans run again, which may have it after it is read. */
TE_API int te_is_made_again(const te_run *r, int i) {
    const te_plan *p = r->plan;
    const int from = te__producer_of(p, i);
    if (p->span_count || !p->fp8 || p->fp8->keeps || from < 0) return 0;
    if (te__input_is_saved(r, i)) return 1;
    if (!p->fp8->fixed || p->fp8->rows) return 0; /* a list without such kernels */
    return te__gives_again(p, from) && te__recomputing_step(p, from);
}
/* Run the step that gave what op i reads again, so that it leaves that alone. */
TE_API te_status te__recompute_input(te_run *r, int i, te_again again) {
    const te_step *s = te__recomputing_step(r->plan, te__producer_of(r->plan, i));
    const te_pass pass = r->pass;
    r->pass = TE_FORWARD, r->again = again;
    const te_status status = s->run(r, s);
    r->pass = pass, r->again.yt = r->again.y = 0;
    return status;
}
/* Whether product i has a gradient of its weight in FP8, and so reads its input again. */
TE_API int te__reads_input(const te_run *r, int i) {
    return te_trains_in_fp8(r, i) && !(r->plan->op[i].flags & TE_IS_FROZEN);
}
/* Whether op i is a product, and the kernel that gives what it reads runs again in backward. */
TE_API int te_is_given_again(const te_run *r, int i) {
    return i < r->plan->op_count && te__reads_input(r, i) && te_is_made_again(r, i) && !te__input_is_saved(r, i);
}
/* Whether forward keeps that input in FP8. */
TE_API int te__keeps_fp8(const te_run *r, int i) { return te__reads_input(r, i) && !te_is_made_again(r, i); }
/* Whether it has one scale a tensor. The operands of others are cast from the list's format: no kernel before the
 * product stores them in FP8, or finds what their scales are of. */
TE_API int te_is_by_tensor(const te_run *r, int i) {
    return te_is_in_fp8(r, i) && TE_IS_TENSORWISE(r->plan->op[i].recipe);
}
/* What a product in FP8 keeps for its backward; null in inference, and of a frozen_linear. */
typedef struct te_saved_input {
    float *inverse; /* 1 / the scale of its input and that scale, or 1 / those of the transpose's tiles */
    void *x;        /* its input, e4m3 [rows, in], or transposed (te_saved_is_transposed) with rows up to a multiple of 16;
                     * null: backward makes it again */
} te_saved_input;
/* Bytes of those scales, and of both. */
TE_API size_t te__kept_scales(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    if (!te__reads_input(r, i)) return 0;
    if (!te_is_tiled(r, i)) return TE_ALIGN;
    if (!te__keeps_fp8(r, i)) return 0;
    const int64_t n = te_scaling_count(TE_SCALING_TILES, op->in, te_padded_rows(r, op->in_rows));
    return (size_t)te_round_up(n * (int64_t)sizeof(float), TE_ALIGN);
}
TE_API size_t te__kept_bytes(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    const int64_t x = te__keeps_fp8(r, i) ? te_padded_rows(r, op->in_rows) * op->in : 0;
    return te__kept_scales(r, i) + (size_t)te_round_up(x, TE_ALIGN);
}
/* Whether what product i keeps is transposed; its forward says so. */
TE_API int te_saved_is_transposed(const uint32_t *turned, int i) { return turned[i / 32] >> i % 32 & 1; }
TE_API void te_set_saved_transposed(te_run *r, int i, int turned) {
    r->turned_x[i / 32] = (r->turned_x[i / 32] & ~(1u << i % 32)) | (uint32_t)turned << i % 32;
}

TE_API te_saved_input te_saved_input_of(const te_run *r, int i) {
    te_saved_input k;
    k.inverse = (float *)(void *)r->kept[i];
    k.x = r->kept[i] && te__keeps_fp8(r, i) ? r->kept[i] + te__kept_scales(r, i) : 0;
    return k;
}

/* Whether the kernel that makes an operand of product i stores it in FP8 itself: where its scale is known by then. */
TE_API int te_is_stored_in_fp8(const te_run *r, int i) {
    return te_is_by_tensor(r, i) &&
           (r->use == TE_USE_as_bound ? !r->param[i]->fp8.current : r->use >= TE_USE_stored);
}

/* The same of what this pass gives, x in forward and dy in backward: what is rounded by chance a cast rounds. */
TE_API int te_is_given_in_fp8(const te_run *r, int i) {
    const te_fp8_ops *of = r->plan->fp8;
    return te_is_stored_in_fp8(r, i) && (r->pass != TE_BACKWARD || !of || of->rounding == TE_ROUNDING_nearest);
}

/* A value in e4m3 with scales of its own, in the workspace, and where they lie: behind it. */
TE_API te_status te_acquire_scaled(te_run *r, te_value *v, int64_t rows, int cols, te_scaling scaling) {
    const int64_t room = te_capacity_rows(r);
    const int64_t bytes = room * cols + te_scaling_count(scaling, room, cols) * (int64_t)sizeof(float);
    *v = te_value_of(0, TE_e4m3, rows, cols);
    v->block = te__pool_take(&r->pool, &v->p, (size_t)bytes);
    TE_REQUIRE(v->block >= 0, r->ctx, TE_ERROR_MEMORY, "%s: more than %d values are alive at once", r->plan->name,
               (int)TE_MAX_LIVE);
    return TE_OK;
}
TE_API float *te_scales_behind(const te_run *r, te_value v) {
    return v.p ? (float *)(void *)((char *)v.p + te_capacity_rows(r) * v.cols) : 0;
}

/* Whether the kernel that makes that operand, in the list's format, finds its amax: where the scale is to be of that.
 * Not in a forward that runs again, which may end before the product that would take it. */
TE_API int te_is_measured(const te_run *r, int i, te_dtype dtype) {
    const int taken = r->pass != TE_FORWARD || r->saved;
    return te_is_by_tensor(r, i) && r->use == TE_USE_as_bound && r->param[i]->fp8.current && taken &&
           dtype == r->plan->dtype;
}

/* What op i gave in forward, and what it got. */
TE_API te_value te_output_of(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    return te_value_of(r->act[i], op->out_dtype, te_rows_in(r, op->out_rows), op->out);
}
TE_API te_value te_input_of(const te_run *r, int i) { return i ? te_output_of(r, i - 1) : r->x; }

/* The same value in this format: itself, or converted for this step. */
TE_API te_status te_convert_value(te_value *v, te_run *r, te_dtype dtype) {
    te_value to = te_value_of(0, dtype, v->rows, v->cols);
    if (v->dtype == dtype || !v->p) return TE_OK;
    to.block =
        te__pool_take(&r->pool, &to.p, (size_t)(te_capacity_rows(r) * v->cols) * te_dtype_bytes(dtype));
    TE_REQUIRE(to.block >= 0, r->ctx, TE_ERROR_MEMORY, "%s: more than %d values are alive at once", r->plan->name,
               (int)TE_MAX_LIVE);
    if (!r->dry) TE_TRY(r->plan->convert(to.p, dtype, v->p, v->dtype, v->rows * v->cols, r->ctx));
    *v = to;
    return TE_OK;
}

/* Where a kernel that writes `dtype` alone puts what is to become `v`, and how it gets there: v itself if it has that
 * format. */
TE_API te_status te_begin_converted(te_value *made, const te_value *v, te_run *r, te_dtype dtype) {
    *made = *v;
    if (v->dtype == dtype || !v->p) return TE_OK;
    made->dtype = dtype;
    return te_scratch(r, &made->p, (size_t)(te_capacity_rows(r) * v->cols) * te_dtype_bytes(dtype));
}
TE_API te_status te_end_converted(const te_value *v, const te_value *made, te_run *r) {
    if (v->p == made->p || r->dry) return TE_OK;
    return r->plan->convert(v->p, v->dtype, made->p, made->dtype, v->rows * v->cols, r->ctx);
}

/* ---- what forward keeps ------------------------------------------------------------------------------------------ */

/* Whether the output of op i has to lie in memory after its step: backward reads it, or a fork keeps it. */
TE_API int te__is_read(const te_run *r, int i) {
    const te_plan *plan = r->plan;
    if (plan->op[i].flags & TE_SAVES_OUTPUT) return 1;
    while (i + 1 < plan->op_count && (plan->op[i + 1].flags & TE_PASSES_VALUE)) i++;
    if (i + 1 == plan->op_count || te_trains_in_fp8(r, i + 1)) return 0; /* a product in FP8 keeps its input so */
    if (te_recomputes_logits(plan, i)) return 0;
    return (plan->op[i + 1].flags & (TE_SAVES_INPUT | TE_IS_FORK)) != 0 || te_recomputes_logits(plan, i + 1);
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
TE_API int te__recompute_region_of(const te_plan *plan, int i) {
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
        const int here = r->pass != TE_INFER && te__recompute_region_of(plan, i) == span;
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
        const size_t kept = here ? te__kept_bytes(r, i) : 0;
        if (kept) r->kept[i] = base + at, at += kept;
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
TE_API int te_needs_input_grad(const te_run *r, int i) { return i > r->reach; }
/* Backward: the gradient of op i's input, i the last of step s. p is null if nobody wants it. */
TE_API te_status te_gradient(te_value *v, te_run *r, const te_step *s, int i) {
    const te_op *op = &r->plan->op[i];
    *v = r->dx;
    return te_last_step(r, s) ? TE_OK : te_acquire(r, v, op->in_rows, op->in, op->in_dtype);
}

/* storage.h -- which op reads what a step gives: the next one, but for collectives that hand it on, or gather it. */

/* The op that reads what op i gives, in backward the gradient of what it got, as it lies: the next one in this pass but
 * for those that hand it on. */
TE_API int te_consumer_of(const te_run *r, int i) {
    const te_op *op = r->plan->op;
    if (r->pass == TE_BACKWARD) {
        for (i--; i > 0 && (op[i].flags & TE_PASSES_GRAD) && te_needs_input_grad(r, i);) i--;
        return i;
    }
    for (i++; i + 1 < r->plan->op_count && (op[i].flags & TE_PASSES_VALUE);) i++;
    return i;
}
/* Whether product i reads FP8 that was gathered from all ranks: these have to have the same scale. */
TE_API int te_is_gathered_in_fp8(const te_run *r, int i) {
    if (!te_is_given_in_fp8(r, i)) return 0;
    return r->use == TE_USE_as_bound ? r->param[i] && r->param[i]->fp8.common : r->use == TE_USE_common;
}
/* Op i is behind what this pass has made, and gathers it from all ranks (an all_gather, in backward a reduce_scatter):
 * the product that reads it so; -1: it does not gather, or in the list's format. */
TE_API int te_gathered_consumer(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    const int back = r->pass == TE_BACKWARD, next = back ? i - 1 : i + 1;
    const te_rows from = back ? op->out_rows : op->in_rows, to = back ? op->in_rows : op->out_rows;
    if (from != TE_ROWS_shard || to != TE_ROWS_tokens || next < 0 || next >= r->plan->op_count) return -1;
    if (back && !te_needs_input_grad(r, i)) return -1;
    return te_is_gathered_in_fp8(r, next) ? next : -1;
}

#endif
