/* storage.h -- where each value of a call lies: in the caller's memory, in te_saved, or in the workspace; and what a
 * product in FP8 saves of its input.
 */
#ifndef TE_STORAGE_H
#define TE_STORAGE_H

#include "executor_state.h" /* te_run, te_value */

/* ---- consumers --------------------------------------------------------------------------------------------------- */

/* Whether backward computes the gradient of op i's input. */
TE_API int te__needs_input_grad(const te_run *r, int i) { return i > r->backward_stop; }
/* The op that reads the output of op i or, in backward, the gradient of its input: the next one in this pass or, where
 * that passes it through, the one behind. */
TE_API int te__consumer_of(const te_run *r, int i) {
    const te_op *op = r->plan->op;
    if (r->pass == TE_BACKWARD) {
        if (i - 1 <= 0 || !te__needs_input_grad(r, i - 1)) return i - 1;
        return i - te__consumer_distance(op[i - 1].flags, TE_PASSES_GRAD);
    }
    return i + 2 < r->plan->op_count ? i + te__consumer_distance(op[i + 1].flags, TE_PASSES_VALUE) : i + 1;
}
/* The product that reads, in FP8, what op i gathers from all ranks (an all_gather, in backward a reduce_scatter); -1:
 * op i gathers nothing, or in the list's format. */
TE_API int te__gathered_consumer(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    const int back = r->pass == TE_BACKWARD, next = back ? i - 1 : i + 1;
    const te_rows from = back ? op->out_rows : op->in_rows, to = back ? op->in_rows : op->out_rows;
    if (from != TE_ROWS_shard || to != TE_ROWS_tokens || next < 0 || next >= r->plan->op_count) return -1;
    if (back && !te__needs_input_grad(r, i)) return -1;
    return te__policy(r, next)->gathered ? next : -1;
}
/* Whether the kernel that produces the operand of product i, stored as `dtype`, finds its amax. Not in a forward that
 * backward runs again: it may end before the product that would read the amax. */
TE_API int te__finds_amax(const te_run *r, int i, te_dtype dtype) {
    const int is_read = r->pass != TE_FORWARD || r->saved;
    return te__policy(r, i)->amax_by_producer && is_read && dtype == r->plan->dtype;
}

/* ---- what a product in FP8 saves of its input -------------------------------------------------------------------- */

/* Null in inference, and of a frozen_linear. */
typedef struct te_saved_input {
    float *inverse; /* 1 / scale of the input and the scale, or 1 / the scales of the transpose's tiles */
    void *x;        /* the input in e4m3: [rows, in] or, where te_run.saved_transposed says so, [in, rows up to a
                     * multiple of 16]; null: backward has it from elsewhere (te_operand_policy.input) */
} te_saved_input;
/* Bytes of those scales; of both. */
TE_API size_t te__saved_scale_bytes(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    const te_input_source input = (te_input_source)r->policy[0][i].input;
    if (input == TE_INPUT_not_needed) return 0;
    if (!TE_IS_BLOCKWISE(op->recipe)) return TE_ALIGN;
    if (input != TE_INPUT_saved_fp8) return 0;
    const int64_t n = te_scaling_count(TE_SCALING_BLOCKWISE_1D, op->in, te__padded_rows(r, op->in_rows));
    return (size_t)te_round_up(n * (int64_t)sizeof(float), TE_ALIGN);
}
TE_API size_t te__saved_input_bytes(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    const int saved = r->policy[0][i].input == TE_INPUT_saved_fp8;
    const int64_t x = saved ? te__padded_rows(r, op->in_rows) * op->in : 0;
    return te__saved_scale_bytes(r, i) + (size_t)te_round_up(x, TE_ALIGN);
}
TE_API te_saved_input te__saved_input_of(const te_run *r, int i) {
    te_saved_input k;
    const int saved = r->policy[0][i].input == TE_INPUT_saved_fp8;
    k.inverse = (float *)(void *)r->saved_input[i];
    k.x = r->saved_input[i] && saved ? r->saved_input[i] + te__saved_scale_bytes(r, i) : 0;
    return k;
}
/* Whether the input of product i is saved transposed; its forward says so. */
TE_API int te__saved_is_transposed(const uint32_t *transposed, int i) { return transposed[i / 32] >> i % 32 & 1; }
TE_API void te__set_saved_transposed(te_run *r, int i, int transposed) {
    uint32_t *bits = &r->saved_transposed[i / 32];
    *bits = (*bits & ~(1u << i % 32)) | (uint32_t)transposed << i % 32;
}
/* Run the forward step that produced the input of product i once more, for `to` alone. */
TE_API te_status te__recompute_input(te_run *r, int i, const te_recompute_target *to) {
    const te_step *s = te__recomputing_step(r->plan, te__producer_of(r->plan, i));
    const te_pass pass = r->pass;
    r->pass = TE_FORWARD, r->recompute = to;
    const te_status status = s->run(r, s);
    r->pass = pass, r->recompute = 0;
    return status;
}

/* ---- values of ops, and in other formats ------------------------------------------------------------------------- */

/* What op i produced in forward, and what it read. */
TE_API te_value te__output_of(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    return te__value_of(r->act[i], op->out_dtype, te__rows_in(r, op->out_rows), op->out);
}
TE_API te_value te__input_of(const te_run *r, int i) { return i ? te__output_of(r, i - 1) : r->x; }

/* The same value in this format: itself, or a copy converted for this step. */
TE_API te_status te__convert_value(te_value *v, te_run *r, te_dtype dtype) {
    te_value to = te__value_of(0, dtype, v->rows, v->cols);
    if (v->dtype == dtype || !v->data) return TE_OK;
    TE_TRY(te__acquire_bytes(r, &to, (size_t)(te__capacity_rows(r) * v->cols) * te_dtype_bytes(dtype)));
    if (!r->dry) TE_TRY(r->plan->convert(to.data, dtype, v->data, v->dtype, v->rows * v->cols, r->ctx));
    *v = to;
    return TE_OK;
}
/* A kernel stores `dtype` alone, and v may have another format: `made` is where it stores, v itself or scratch memory;
 * te__end_converted, behind the kernel, converts that to v. */
TE_API te_status te__begin_converted(te_value *made, const te_value *v, te_run *r, te_dtype dtype) {
    *made = *v;
    if (v->dtype == dtype || !v->data) return TE_OK;
    made->dtype = dtype;
    return te__scratch(r, &made->data, (size_t)(te__capacity_rows(r) * v->cols) * te_dtype_bytes(dtype));
}
TE_API te_status te__end_converted(const te_value *v, const te_value *made, te_run *r) {
    if (v->data == made->data || r->dry) return TE_OK;
    return r->plan->convert(v->data, v->dtype, made->data, made->dtype, v->rows * v->cols, r->ctx);
}

/* ---- the layout of te_saved -------------------------------------------------------------------------------------- */

/* The recompute region whose memory has what op i saves; -1: te_saved has. The last op's output is for ops behind. */
TE_API int te__recompute_region_of(const te_plan *plan, int i) {
    for (int k = 0; k < plan->region_count; k++)
        if (plan->region[k].first <= i && i < plan->region[k].last) return k;
    return -1;
}
/* Where the output of a load lies: where its fork has it or, of an input, the caller. While sizes are measured at x's
 * address. */
TE_API void *te__loaded(const te_run *r, const te_op *load) {
    const te_op *fork = &r->plan->op[load->edge];
    const te_edge *e = te__edge_named(r, fork->name);
    if (!(fork->flags & TE_IS_INPUT)) return r->act[load->edge];
    return e ? e->value.data : r->batch ? 0 : r->x.data;
}
/* Place what the ops [from, to) save, those of recompute region `region` alone (-1: of none): from base + at on.
 * Returns where it ends. */
TE_API size_t te__place(te_run *r, char *base, size_t at, int from, int to, int region) {
    const te_plan *plan = r->plan;
    for (int i = from; i < to; i++) {
        const te_op *op = &plan->op[i];
        const int here = r->pass != TE_INFER && te__recompute_region_of(plan, i) == region;
        const int is_y = i == plan->op_count - 1 && op->out_dtype == plan->out_dtype;
        const int64_t padded = te__padded_rows(r, op->out_rows);
        r->act[i] = 0, r->stats[i] = 0, r->saved_input[i] = 0;
        if (op->flags & TE_IS_FORK) r->act[i] = i ? r->act[i - 1] : r->x.data;
        else if (op->flags & TE_IS_LOAD) r->act[i] = te__loaded(r, op);
        else if (is_y) r->act[i] = r->y.data;
        else if (here && r->policy[0][i].output_saved) {
            r->act[i] = base + at;
            at += (size_t)te_round_up(padded * op->out * (int64_t)te_dtype_bytes(op->out_dtype), TE_ALIGN);
        }
        const size_t input = here ? te__saved_input_bytes(r, i) : 0;
        if (input) r->saved_input[i] = base + at, at += input;
        if (here && op->stats) {
            r->stats[i] = (float *)(void *)(base + at);
            at += (size_t)te_round_up(padded * op->stats * (int64_t)sizeof(float), TE_ALIGN);
        }
    }
    return at;
}
/* Place all of te_saved: the random state first, then each op's output, FP8 input and row statistics. Returns the bytes
 * that it takes. */
TE_API size_t te__lay_out(te_run *r, char *base) {
    if (r->pass != TE_INFER) r->rng = (te_rng *)(void *)base;
    return te__place(r, base, TE_ALIGN, 0, r->plan->op_count, -1);
}

/* ---- where a step's result goes ---------------------------------------------------------------------------------- */

TE_API int te__last_step(const te_run *r, const te_step *s) {
    const te_plan *p = r->plan;
    if (r->pass == TE_BACKWARD)
        return s == &p->backward[p->backward_count - 1] || s->op[s->count - 1] <= r->backward_stop;
    return r->pass == TE_INFER ? s == &p->infer[p->infer_count - 1] : s == &p->forward[p->forward_count - 1];
}
/* Whether forward saves the output of op i: its memory is then not the step's own. */
TE_API int te__saves_output(const te_run *r, int i) { return r->pass == TE_FORWARD && te__policy(r, i)->output_saved; }
/* Forward: memory for the output of op i, the last of step s. */
TE_API te_status te__output(te_value *v, te_run *r, const te_step *s, int i) {
    const te_op *op = &r->plan->op[i];
    *v = te__output_of(r, i);
    if (te__last_step(r, s) && r->y.dtype == op->out_dtype) *v = r->y;
    else if (!te__saves_output(r, i)) v->data = 0;
    return v->data ? TE_OK : te__acquire(r, v, op->out_rows, op->out, op->out_dtype);
}
/* Backward: memory for the gradient of op i's input, i the last of step s. data is null if nobody wants it. */
TE_API te_status te__gradient(te_value *v, te_run *r, const te_step *s, int i) {
    const te_op *op = &r->plan->op[i];
    *v = r->dx;
    return te__last_step(r, s) ? TE_OK : te__acquire(r, v, op->in_rows, op->in, op->in_dtype);
}

#endif
