/* storage.h -- decides where a call of forward, inference or backward stores each value: in the caller's memory, in
 * te_saved, or in the workspace. This header also defines the layout of te_saved, including the FP8 inputs that forward
 * saves for GEMMs.
 */
#ifndef TE_STORAGE_H
#define TE_STORAGE_H

#include "executor_state.h" /* te_run, te_value */

/* ---- rows with a stride ------------------------------------------------------------------------------------------ */

/* Steps read and write dense matrices. If the rows of x, y, dx or dy have a stride (te_tensor.stride), the call uses a
 * dense copy of that tensor at the beginning of the workspace, in front of the blocks of te_pool. Before the first step
 * the executor fills the dense copies of x and dy; after the last step it copies y and dx from their dense copies to
 * the caller's tensors. */
enum { TE__CALLER_x, TE__CALLER_y, TE__CALLER_dx, TE__CALLER_dy, TE__CALLERS };

TE_API te_value *te__callers_value(te_run *r, int which) {
    te_value *const values[TE__CALLERS] = {&r->x, &r->y, &r->dx, &r->dy};
    return values[which];
}
/* Return the caller's tensor x, y, dx or dy. */
TE_API te_tensor te__caller(const te_run *r, int which) {
    const te_value *const values[TE__CALLERS] = {&r->x, &r->y, &r->dx, &r->dy}, *v = values[which];
    return r->callers[which].data ? r->callers[which] : te_matrix(v->data, v->dtype, v->rows, v->cols);
}
/* Return the bytes of the workspace that a dense copy of a tensor takes. */
TE_API size_t te__dense_bytes(int64_t rows, int64_t cols, te_dtype dtype) {
    return (size_t)te_round_up(rows * cols * (int64_t)te_dtype_bytes(dtype), TE_ALIGN);
}
/* Use t as the caller's tensor number `which` (TE__CALLER_x, ...). The shape and format of t have already been
 * checked. */
TE_API void te__take_tensor(te_run *r, int which, te_tensor t) {
    te_value *v = te__callers_value(r, which);
    v->data = t.data;
    if (!te__is_strided(t)) return;
    /* if the context has no workspace, this address is only a placeholder for the dry run, after which the call
     * fails */
    v->data = (char *)(r->ctx->workspace ? r->ctx->workspace : (void *)(uintptr_t)TE_ALIGN) + r->copies_bytes;
    r->callers[which] = t, r->copies_bytes += te__dense_bytes(t.rows, t.cols, t.dtype);
}
/* If the rows of the caller's tensor number `which` have a stride, copy the tensor to its dense copy (`is_result` 0),
 * or copy the dense copy to the tensor (`is_result` 1). */
TE_API te_status te__copy_strided(te_run *r, int which, int is_result) {
    const te_tensor to = r->callers[which];
    const te_value *v = te__callers_value(r, which);
    const te_tensor dense = te_matrix(v->data, v->dtype, v->rows, v->cols);
    if (!to.data) return TE_OK;
    return r->ctx->target->copy_rows(r->ctx, is_result ? to : dense, is_result ? dense : to);
}

/* ---- consumers --------------------------------------------------------------------------------------------------- */

/* Return whether backward must compute the gradient of op i's input. */
TE_API int te__needs_input_grad(const te_run *r, int i) { return i > r->backward_stop; }
/* Return the index of the op that reads the result of op i (in forward the output of op i, in backward the gradient of
 * the input of op i). The reader is the next op in the order of the pass or, if the next op only passes the value
 * through, the op after the next one. If the caller reads the result, the index is -1 in backward and the number of ops
 * in forward. */
TE_API int te__consumer_of(const te_run *r, int i) {
    const te_op *op = r->plan->op;
    if (r->pass == TE_BACKWARD) {
        if (i - 1 <= 0 || !te__needs_input_grad(r, i - 1)) return i - 1;
        return i - te__consumer_distance(op[i - 1].flags, TE_PASSES_GRAD);
    }
    return i + 2 < r->plan->op_count ? i + te__consumer_distance(op[i + 1].flags, TE_PASSES_VALUE) : i + 1;
}
/* Return the index of the GEMM that reads, in FP8, the rows that op i gathers from all ranks. The result is -1 if op i
 * gathers no rows, or gathers the rows in the list's dtype. (An all_gather gathers rows in forward, a reduce_scatter in
 * backward.) */
TE_API int te__gathered_consumer(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    const int back = r->pass == TE_BACKWARD, next = back ? i - 1 : i + 1;
    const te_rows from = back ? op->out_rows : op->in_rows, to = back ? op->in_rows : op->out_rows;
    if (from != TE_ROWS_shard || to != TE_ROWS_tokens || next < 0 || next >= r->plan->op_count) return -1;
    if (back && !te__needs_input_grad(r, i)) return -1;
    return te__policy(r, next)->gathered ? next : -1;
}
/* Return whether the kernel that produces the operand of GEMM i, and stores it as `dtype`, also computes the operand's
 * amax. The kernel does not compute the amax while backward runs forward steps for a recompute region, because these
 * steps may end before the GEMM that would read the amax. */
TE_API int te__finds_amax(const te_run *r, int i, te_dtype dtype) {
    const int is_read = r->pass != TE_FORWARD || r->saved;
    return te__policy(r, i)->amax_by_producer && is_read && dtype == r->plan->dtype;
}

/* Returns an error if the context's device does not support the FP8 GEMMs of fp8_block and fp8_row, in which each row,
 * or each 1 x 128 elements, has a scale. */
TE_API te_status te__check_local_scales(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    TE_REQUIRE(!TE_CUDA || r->ctx->capability == 900, r->ctx, TE_ERROR_DEVICE,
               "%s: (%s, %s): products of fp8_block and fp8_row need compute capability 9.0; device %d has %d.%d",
               r->plan->name, op->kind, op->name, r->ctx->device, r->ctx->capability / 100,
               r->ctx->capability / 10 % 10);
    return TE_OK;
}

/* ---- the saved FP8 input of a GEMM ------------------------------------------------------------------------------- */

/* The input x of an FP8 GEMM, in the form in which forward saves it for backward. In inference and for a frozen_linear
 * nothing is saved: both pointers are null. */
typedef struct te_saved_input {
    float *inverse; /* the scales of the saved input. For recipes with one scale per tensor, these are two numbers:
                     * 1 / scale and the scale. For fp8_block, they are 1 / scale of each tile of the transpose */
    void *x;        /* the saved input in e4m3. If the GEMM's bit in te_run.saved_transposed is 0, the input is
                     * row-major, [rows, in]; if the bit is 1, the input is transposed, [in, rows rounded up to a
                     * multiple of 16]. Null if forward does not save the input in FP8; te_operand_policy.input then
                     * says where backward gets the input from */
} te_saved_input;
/* Return the bytes of te_saved_input.inverse for GEMM i. */
TE_API size_t te__saved_scale_bytes(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    const te_input_source input = (te_input_source)r->policy[0][i].input;
    if (input == TE_INPUT_not_needed) return 0;
    if (!TE_IS_BLOCKWISE(op->recipe)) return TE_ALIGN;
    if (input != TE_INPUT_saved_fp8) return 0;
    const int64_t n = te_scaling_count(TE_SCALING_BLOCKWISE_1D, op->in, te__padded_rows(r, op->in_rows));
    return (size_t)te_round_up(n * (int64_t)sizeof(float), TE_ALIGN);
}
/* Return the bytes of te_saved_input.inverse and of te_saved_input.x together, for GEMM i. If op i is a router that
 * sends rows to other ranks, return the bytes of the rows that this rank has received. */
TE_API size_t te__saved_input_bytes(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    if (te__is_exchange(r->plan, i))
        return (size_t)te_round_up(te__padded_rows(r, TE_ROWS_tokens) * op->in *
                                   (int64_t)te_dtype_bytes(r->plan->dtype), TE_ALIGN);
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
/* Return whether the input of GEMM i is saved transposed. The bit set `transposed` has one bit for each op; the forward
 * of a GEMM sets the GEMM's bit to 1 if the input is saved transposed, else to 0. */
TE_API int te__saved_is_transposed(const uint32_t *transposed, int i) { return transposed[i / 32] >> i % 32 & 1; }
TE_API void te__set_saved_transposed(te_run *r, int i, int transposed) {
    uint32_t *bits = &r->saved_transposed[i / 32];
    *bits = (*bits & ~(1u << i % 32)) | (uint32_t)transposed << i % 32;
}
/* Run a second time the forward step that produced the input of GEMM i. In this run the step stores only the GEMM's
 * input, to the memory that *to describes. */
TE_API te_status te__recompute_input(te_run *r, int i, const te_recompute_target *to) {
    const te_step *s = te__recomputing_step(r->plan, te__producer_of(r->plan, i));
    const te_pass pass = r->pass;
    r->pass = TE_FORWARD, r->recompute = to;
    const te_status status = s->run(r, s);
    r->pass = pass, r->recompute = 0;
    return status;
}

/* ---- outputs and inputs of ops, and conversions of values -------------------------------------------------------- */

/* Return the value that op i outputs in forward. The member `data` is null if forward does not save the value. */
TE_API te_value te__output_of(const te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    return te__value_of(r->act[i], op->out_dtype, te__rows_in(r, op->out_rows), op->out);
}
/* Return the value that op i reads in forward. */
TE_API te_value te__input_of(const te_run *r, int i) { return i ? te__output_of(r, i - 1) : r->x; }

/* If the format of *v is not `dtype`, replace *v by a copy in the format `dtype`, which exists until the end of the
 * step. */
TE_API te_status te__convert_value(te_value *v, te_run *r, te_dtype dtype) {
    te_value to = te__value_of(0, dtype, v->rows, v->cols);
    if (v->dtype == dtype || !v->data) return TE_OK;
    TE_TRY(te__acquire_bytes(r, &to, (size_t)(te__capacity_of_value(r, v) * v->cols) * te_dtype_bytes(dtype)));
    if (!r->dry) TE_TRY(r->plan->convert(to.data, dtype, v->data, v->dtype, v->rows * v->cols, r->ctx));
    *v = to;
    return TE_OK;
}
/* For a kernel that computes *v, but can store its result only in the format `dtype`: set *made to the memory to which
 * the kernel must store. If *v has this format, *made is the memory of *v. Otherwise *made is scratch memory, and
 * te__end_converted, called after the kernel, converts the contents of *made to *v. */
TE_API te_status te__begin_converted(te_value *made, const te_value *v, te_run *r, te_dtype dtype) {
    *made = *v;
    if (v->dtype == dtype || !v->data) return TE_OK;
    made->dtype = dtype;
    return te__scratch(r, &made->data, (size_t)(te__capacity_of_value(r, v) * v->cols) * te_dtype_bytes(dtype));
}
/* If te__begin_converted has given *made separate scratch memory, convert the contents of *made to *v. */
TE_API te_status te__end_converted(const te_value *v, const te_value *made, te_run *r) {
    if (v->data == made->data || r->dry) return TE_OK;
    return r->plan->convert(v->data, v->dtype, made->data, made->dtype, v->rows * v->cols, r->ctx);
}

/* ---- the layout of te_saved -------------------------------------------------------------------------------------- */

/* Return the index of the recompute region in whose memory the saved values of op i lie, or -1 if they lie in te_saved.
 * The values of the last op of a region lie in te_saved, because the ops behind the region read the output of this
 * op. */
TE_API int te__recompute_region_of(const te_plan *plan, int i) {
    for (int k = 0; k < plan->region_count; k++)
        if (plan->region[k].first <= i && i < plan->region[k].last) return k;
    return -1;
}
/* Return the address of the value that the op `load` outputs. If the value is the value of a fork, the address is the
 * place where forward saves it; if the value is an extra input of the list, the address lies in the caller's memory.
 * During a dry run that only measures sizes there is no batch, and the address of x is returned as a placeholder. */
TE_API void *te__loaded(const te_run *r, const te_op *load) {
    const te_op *fork = &r->plan->op[load->edge];
    const te_edge *e = te__edge_named(r, fork->name);
    if (!(fork->flags & TE_IS_INPUT)) return r->act[load->edge];
    return e ? e->value.data : r->batch ? 0 : r->x.data;
}
/* Assign addresses to the values that the ops [from, to) save, beginning at base + at. `region` is the index of a
 * recompute region, or -1 for te_saved. Values that are saved in this region (or in te_saved) get an address there; the
 * addresses of all others become null. Returns the offset from base at which the last value ends. */
TE_API size_t te__place(te_run *r, char *base, size_t at, int from, int to, int region) {
    const te_plan *plan = r->plan;
    for (int i = from; i < to; i++) {
        const te_op *op = &plan->op[i];
        const int here = r->pass != TE_INFER && te__recompute_region_of(plan, i) == region;
        const int is_y = i == plan->op_count - 1 && op->out_dtype == plan->out_dtype;
        const int64_t padded = te__padded_rows(r, op->out_rows);
        r->act[i] = 0, r->stats[i] = 0, r->saved_input[i] = 0;
        /* an (output, ..) outputs its unchanged input: forward saves this value once, where the op before has stored
         * it */
        const int is_input = (op->flags & TE_IS_FORK) || ((op->flags & TE_IS_OUTPUT) && !is_y);
        if (is_input) r->act[i] = i ? r->act[i - 1] : r->x.data;
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
/* Assign addresses to all of te_saved: to the random state first, then to the output, the FP8 input and the row
 * statistics of each op. Returns the number of bytes that te_saved takes. */
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
/* Return whether forward saves the output of op i. If so, the output has memory in te_saved or in a recompute region,
 * and the step does not acquire memory for the output. */
TE_API int te__saves_output(const te_run *r, int i) { return r->pass == TE_FORWARD && te__policy(r, i)->output_saved; }
/* In forward: set *v to the output of op i, the last op of step s, and provide the memory for this output. */
TE_API te_status te__output(te_value *v, te_run *r, const te_step *s, int i) {
    const te_op *op = &r->plan->op[i];
    *v = te__output_of(r, i);
    if (te__last_step(r, s) && r->y.dtype == op->out_dtype) *v = r->y;
    else if (!te__saves_output(r, i)) v->data = 0;
    return v->data ? TE_OK : te__acquire(r, v, op->out_rows, op->out, op->out_dtype);
}
/* In backward: set *v to the gradient of the input of op i, the last op of step s, and provide the memory for this
 * gradient. v->data is null if the gradient is dx and the caller does not want dx. */
TE_API te_status te__gradient(te_value *v, te_run *r, const te_step *s, int i) {
    const te_op *op = &r->plan->op[i];
    *v = r->dx;
    return te__last_step(r, s) ? TE_OK : te__acquire(r, v, op->in_rows, op->in, op->in_dtype);
}

#endif
