/* pointwise_step.h -- runs the steps of a plan that are pointwise kernels: decides where a step's values are stored,
 * fills in the kernel's arguments, and launches the kernel.
 *
 * The kernel of a step runs the step's ops on values in registers. Some intermediate values must also be in memory,
 * because backward reads them or because a fork passes them to a later op. The op that produces such a value stores the
 * value to te_stage.out. How the step's result is stored depends on the op that reads it (te__policy): in the dtype of
 * the list of ops, in FP8 with one scale for the tensor, or in FP8 with scales that the kernel computes.
 */
#ifndef TE_POINTWISE_STEP_H
#define TE_POINTWISE_STEP_H

#include "../../plan/impl/call_checks.h" /* te__fork_value, te__edge_tensor */
#include "../../plan/impl/gradients.h" /* te_defer_column_sum */
#include "../../plan/impl/value.h" /* te_value, te__value_of */
#include "pointwise_kernel.h" /* te_pointwise_body, for the macros that make kernels */

typedef te_status (*te_pointwise_launch_fn)(te_context *ctx, te_grid grid, const te_pointwise *c);

/* The pointwise kernel of one step, while its arguments (*args) are filled in. */
typedef struct te_pointwise_work {
    const te_step *step;
    /* the number of ops at the beginning of the step that are not part of this kernel: 1 if the step begins with a GEMM
     * or a collective, else 0 */
    int skip;
    int applied; /* how many ops, from index `skip` on, the epilogue of the step's GEMM has already computed (e.g. a
                  * bias) */
    te_pointwise_shape shape;
    te_pointwise *args;
    int launches; /* 1: the kernel has something to compute or to store, so it is launched */
} te_pointwise_work;

TE_API te_pointwise_work te__pointwise_work_of(const te_step *s, int skip, te_pointwise_shape k, te_pointwise *args) {
    te_pointwise_work w;
    w.step = s, w.skip = skip, w.applied = 0, w.shape = k, w.args = args, w.launches = 0;
    return w;
}
/* Set *st to the arguments of op i: its parameters, its row statistics and, for its random numbers, the state, the
 * stream and the index of the first element. */
TE_API void te__stage_of(te_stage *st, te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    memset(st, 0, sizeof *st);
    for (int k = 0; k < op->params; k++) st->w[k] = r->param[i][k].data;
    st->stats = r->stats[i], st->rng = r->rng, st->id = (uint32_t)i;
    st->first = te__first_row_of_all(r, op->out_rows) * op->out;
}

/* ---- the step's result, for its consumer ------------------------------------------------------------------------- */

/* How the kernel stores the result of the step. */
typedef enum te_result_form {
    TE_RESULT_in_list_format,
    /* the result is stored in FP8 with one scale, which belongs to the GEMM that reads the result, and is known before
     * the kernel runs */
    TE_RESULT_in_fp8,
    /* the result is stored in FP8 with a scale for each row or for each 1 x 128 tile; the kernel computes the scales */
    TE_RESULT_with_scales
} te_result_form;
typedef struct te_pointwise_exit {
    te_result_form form;
    /* the index of the op that reads the step's result; -1 if the caller reads the result, or if the step ends with
     * forks */
    int consumer;
    /* if an all_gather follows the step and gathers the result in FP8, the index of the GEMM that reads the gathered
     * rows; else -1 */
    int gathered;
} te_pointwise_exit;

/* Return 1 if the kernel stores the operand of GEMM i in FP8 with scales that the kernel computes; 0 if the GEMM's step
 * quantizes the operand. saved: 1 if forward also saves the operand in the dtype of the list of ops. Training under
 * fp8_block also needs the transpose of the operand, which only a tile kernel can store
 * (pointwise_quantize_transpose.h); if the step has no tile kernel, the function then returns 0. */
TE_API int te__pointwise_quantizes(const te_run *r, int i, const te_pointwise_shape k, int saved) {
    const te_operand_policy *o = te__policy(r, i);
    if (!o->fp8 || !r->param[i] || k.scaled != (te_scaling)o->scaling) return 0;
    if (o->scaling == TE_SCALING_ROWWISE) return 1;
    if (o->scaling != TE_SCALING_BLOCKWISE_1D || saved) return 0;
    return r->pass == TE_INFER || k.transposes || (r->pass == TE_FORWARD && o->input != TE_INPUT_saved_fp8);
}
/* Decide in which form the result of op i, the last op of the step, is stored, and find the op that reads the result.
 * dtype: the result's dtype in the list of ops. saved: 1 if forward also saves the result in this dtype. */
TE_API te_pointwise_exit te__pointwise_exit_of(const te_run *r, const te_pointwise_work *w, int i, te_dtype dtype,
                                               int saved) {
    te_pointwise_exit e = {TE_RESULT_in_list_format, -1, -1};
    if (te__last_step(r, w->step) || (r->pass == TE_BACKWARD && i == 0)) return e;
    e.consumer = te__consumer_of(r, i), e.gathered = te__gathered_consumer(r, e.consumer);
    if (dtype == r->plan->dtype && te__pointwise_quantizes(r, e.consumer, w->shape, saved))
        e.form = TE_RESULT_with_scales;
    else if (!saved && (e.gathered >= 0 || te__policy(r, e.consumer)->stored_by_producer)) e.form = TE_RESULT_in_fp8;
    return e;
}

/* For TE_RESULT_in_fp8: make the kernel store v in FP8. v: the operand of GEMM i, or this rank's rows of the operand;
 * on return *v describes the FP8 tensor. at: the address to which the kernel stores v; null: allocate memory for v in
 * the workspace. */
TE_API te_status te__pointwise_store_fp8_operand(te_value *v, te_run *r, te_pointwise *c, int i, te_rows rows,
                                                 void *at) {
    const te_fp8_product *f = &r->param[i]->fp8;
    const int backward = r->pass == TE_BACKWARD, index = backward ? f->dy : f->x;
    if (at) *v = te__value_of(at, TE_e4m3, te__rows_in(r, rows), v->cols);
    else TE_TRY(te__acquire(r, v, rows, v->cols, backward ? r->plan->fp8->gradients : TE_e4m3));
    v->scaling = TE_SCALING_TENSORWISE;
    c->fp8.y = v->data;
    if (r->pass == TE_FORWARD) te__set_saved_transposed(r, i, 0);
    if (!f->scales) return TE_OK; /* a dry run that only measures sizes */
    c->fp8.scale = f->scales->scale + index, c->fp8.amax = r->pass == TE_INFER ? 0 : f->scales->amax + index;
    c->fp8.inverse = r->pass == TE_FORWARD ? te__saved_input_of(r, i).inverse : 0;
    return TE_OK;
}
/* For TE_RESULT_with_scales: make the kernel store v, the operand of GEMM i, in FP8 with scales that the kernel
 * computes. If v->data is not null at the call, the kernel also stores the operand to v->data, in the dtype of the list
 * of ops. On return *v describes the FP8 tensor. */
TE_API te_status te__pointwise_result_with_scales(te_value *v, te_run *r, te_pointwise *c, int i,
                                               const te_pointwise_shape k) {
    c->y = v->data;
    TE_TRY(te__acquire_scaled(r, v, v->rows, v->cols, k.scaled));
    c->scaled.y = v->data, c->scaled.inverse = v->inverse_scale, c->scaled.rule = r->param[i]->fp8.own;
    c->scaled.yt_cols = te_round_up(v->rows, 16);
    return TE_OK;
}
/* Forward under fp8_block: make the kernel also store the transpose of the operand of GEMM i, with a scale for each
 * tile of 1 x 128. The transpose is saved for the GEMM that computes the weight's gradient in backward. */
TE_API te_status te__pointwise_save_transposed(te_run *r, te_pointwise *c, int i) {
    const te_saved_input saved = te__saved_input_of(r, i);
    if (te__policy(r, i)->input != TE_INPUT_saved_fp8) return TE_OK;
    c->scaled.tiles = 1, c->scaled.yt = saved.x, c->scaled.yt_inverse = saved.inverse;
    te__set_saved_transposed(r, i, 1);
    return TE_OK;
}
/* Backward under fp8_block: make the kernel also store the transpose of v, the gradient that GEMM i reads, with a scale
 * for each tile of 1 x 128, and record the transpose in *v. The GEMM that computes the weight's gradient reads this
 * transpose. */
TE_API te_status te__pointwise_transpose_blockwise(te_value *v, te_run *r, te_pointwise *c, int i) {
    te_value transposed;
    c->scaled.tiles = 1;
    if (r->plan->op[i].flags & TE_IS_FROZEN) return TE_OK;
    TE_TRY(te__acquire_scaled(r, &transposed, te__capacity_rows(r), v->cols, TE_SCALING_BLOCKWISE_1D));
    te__attach_transposed(v, transposed);
    if (te_is_trained(r->param[i])) c->scaled.yt = transposed.data, c->scaled.yt_inverse = transposed.inverse_scale;
    return TE_OK;
}
/* Set c so that the tile kernel (pointwise_quantize_transpose.h) produces the gradient that GEMM i reads, with one
 * scale for the tensor. The kernel stores the gradient untransposed if c->fp8.y is not null, and transposed if yt is
 * not null. */
TE_API void te__pointwise_use_tile_kernel(te_run *r, te_pointwise *c, int i, void *yt) {
    const te_fp8_product *f = &r->param[i]->fp8;
    c->scaled.tiles = 1, c->scaled.scale = f->scales ? f->scales->scale + f->dy : 0;
    c->scaled.yt = yt, c->scaled.yt_cols = te_round_up(c->rows, 16);
}
/* Make the tile kernel also store the transpose of v, the gradient that GEMM i reads. The tile kernel runs even if the
 * weight of GEMM i is frozen and the transpose is not stored, because the row kernel would add up column sums in
 * another order, and the bits of other gradients would depend on which weights are frozen. The size of the workspace
 * does not depend on te_freeze either: the workspace has memory for the transpose unless the op can never train
 * (TE_IS_FROZEN). */
TE_API te_status te__pointwise_transpose_tensorwise(te_value *v, te_run *r, te_pointwise *c, int i) {
    te_value transposed = te__no_value();
    if (!(r->plan->op[i].flags & TE_IS_FROZEN))
        TE_TRY(te__acquire(r, &transposed, r->plan->op[i].out_rows, v->cols, v->dtype));
    te__attach_transposed(v, transposed);
    te__pointwise_use_tile_kernel(r, c, i, te_is_trained(r->param[i]) ? transposed.data : 0);
    return TE_OK;
}
/* Make the kernel compute the amax of v, the operand of GEMM i. The kernel stores v in the dtype of the list of ops. */
TE_API void te__pointwise_find_amax(te_value *v, te_run *r, te_pointwise *c, int i) {
    const te_fp8_product *f = &r->param[i]->fp8;
    c->fp8.amax = f->scales->amax + (r->pass == TE_BACKWARD ? f->dy : f->x);
    v->amax = c->fp8.amax;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Prepare memory for the step's result, in the form (e.form) in which the next op reads it. i: the op that computes the
 * result; only forks may follow op i in the step. */
TE_API te_status te__pointwise_forward_result(te_value *v, te_run *r, te_pointwise_work *w, int i,
                                              te_pointwise_exit e) {
    const te_op *op = &r->plan->op[i];
    te_pointwise *c = w->args;
    w->launches = 1;
    if (e.form == TE_RESULT_in_list_format) {
        TE_TRY(te__output(v, r, w->step, i));
        c->y = v->data;
        if (e.consumer >= 0 && te__finds_amax(r, e.consumer, v->dtype)) te__pointwise_find_amax(v, r, c, e.consumer);
        return TE_OK;
    }
    *v = te__value_of(0, op->out_dtype, te__rows_in(r, op->out_rows), op->out);
    if (e.form == TE_RESULT_in_fp8 && e.gathered >= 0)
        return te__pointwise_store_fp8_operand(v, r, c, e.gathered, op->out_rows, 0);
    if (e.form == TE_RESULT_in_fp8)
        return te__pointwise_store_fp8_operand(v, r, c, e.consumer, op->out_rows, te__saved_input_of(r, e.consumer).x);
    if (te__saves_output(r, i)) {
        *v = te__output_of(r, i);
        if (!v->data) TE_TRY(te__acquire(r, v, op->out_rows, op->out, op->out_dtype));
    }
    TE_TRY(te__pointwise_result_with_scales(v, r, c, e.consumer, w->shape));
    if (r->pass == TE_FORWARD && v->scaling == TE_SCALING_BLOCKWISE_1D)
        return te__pointwise_save_transposed(r, c, e.consumer);
    return TE_OK;
}
/* Set in *st the tensors that op i reads or writes in addition to its input and output: an add or a mul reads the value
 * of its fork, and an op (output, ..) writes to a tensor of the caller. */
TE_API te_status te__pointwise_forward_edges(te_run *r, te_pointwise_work *w, int i, te_stage *st) {
    const te_op *op = &r->plan->op[i];
    te_value v;
    if (op->flags & (TE_IS_ADD | TE_IS_MUL)) {
        TE_TRY(te__fork_value(&v, r, op));
        st->edge = v.data;
        te__release_fork(r, i);
    }
    if (op->flags & TE_IS_OUTPUT) {
        TE_TRY(te__edge_tensor(&v, r, op, te__value_of(0, op->out_dtype, te__rows_in(r, op->out_rows), op->out), 0));
        st->out = v.data, w->launches = 1;
    }
    return TE_OK;
}
/* Fill in the kernel's arguments for the input x. The step's result becomes the current value of the run
 * (te_run.current). */
TE_API te_status te__pointwise_forward(te_run *r, te_pointwise_work *w, te_value x) {
    const te_step *s = w->step;
    const te_op *op = r->plan->op;
    te_value stored = x; /* the last tensor that an op of the step stores; at first the step's input */
    int last = -1;       /* the position, within the step, of the step's last op that is not a fork */
    for (int j = w->skip; j < s->count; j++)
        if (!(op[s->op[j]].flags & TE_IS_FORK)) last = j;
    w->args->x = x.data, w->args->rows = x.rows;
    for (int j = w->skip; j < s->count; j++) {
        const int i = s->op[j];
        te_stage *st = &w->args->op[j - w->skip];
        te__stage_of(st, r, i);
        if (op[i].op_class == TE_CLASS_norm)
            w->args->scaled.norm_x = j == w->skip ? x.data : te__input_of(r, i).data;
        if (j < w->skip + w->applied) {
            st->w[0] = 0;
            if (j != last) continue;
        }
        TE_TRY(te__pointwise_forward_edges(r, w, i, st));
        if (op[i].flags & TE_IS_FORK) {
            if (r->pass == TE_INFER && !(op[i].flags & TE_IS_INPUT)) te__set_edge(r, i, stored);
            continue;
        }
        const int is_forked = j + 1 < s->count && (op[s->op[j + 1]].flags & TE_IS_FORK);
        if (j == last) {
            te_pointwise_exit e = {TE_RESULT_in_list_format, -1, -1};
            const void *const before = stored.data;
            if (j == s->count - 1) e = te__pointwise_exit_of(r, w, i, op[i].out_dtype, te__saves_output(r, i));
            TE_TRY(te__pointwise_forward_result(&stored, r, w, i, e));
            /* If the input of an op (output, ..) lies at the address at which its output is saved, the op stores only
             * to the caller's tensor. */
            if ((op[i].flags & TE_IS_OUTPUT) && before == w->args->y && before == te__input_of(r, i).data)
                w->args->y = 0;
        } else if (op[i].flags & TE_IS_OUTPUT) {
            /* The op stores the value to the caller's tensor. In inference, a fork behind the op also reads this
             * tensor. In training, the previous op has stored the value for backward (te__place). */
            if (is_forked && r->pass == TE_INFER) {
                const int64_t rows = te__rows_in(r, op[i].out_rows);
                stored = te__value_of(st->out, op[i].out_dtype, rows, op[i].out);
            }
        } else if (r->pass == TE_FORWARD ? te__saves_output(r, i) : is_forked) {
            stored = te__output_of(r, i);
            if (r->pass != TE_FORWARD || !stored.data)
                TE_TRY(te__acquire(r, &stored, op[i].out_rows, op[i].out, op[i].out_dtype));
            st->out = stored.data;
        }
    }
    te__set_current(r, stored);
    return TE_OK;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The gradient that passes through the ops of a step in backward: where the gradient was last stored, and whether an op
 * has changed it since then. */
typedef struct te_pointwise_grad {
    te_value stored; /* the tensor in which the gradient was last stored */
    int changed;     /* 1: an op has changed the gradient since the gradient was last stored */
} te_pointwise_grad;

/* Make op i, an add or a mul, store the gradient of its fork's value. If ops later in the list also use the fork, op i
 * adds the gradient from these ops (st->edge) to its own contribution, and stores the sum (te/ops/residual.h). */
TE_API te_status te__pointwise_store_fork_grad(te_run *r, te_pointwise_work *w, int i, te_stage *st) {
    const te_op *op = &r->plan->op[i], *fork = &r->plan->op[op->edge];
    const int first = te__is_last_use(r->plan, i);
    te_value v;
    if (fork->flags & TE_IS_INPUT) { /* the caller has the memory for the gradient of an extra input */
        const te_value like = te__value_of(0, op->edge_dtype, te__rows_in(r, op->out_rows), op->out);
        TE_TRY(te__edge_tensor(&v, r, fork, like, 1));
        if (!v.data) return TE_OK;
        st->edge = first ? 0 : v.data;
    } else {
        TE_TRY(te__acquire(r, &v, op->out_rows, op->out, op->edge_dtype));
        st->edge = first ? 0 : r->edge[op->edge].data;
        te__set_edge(r, op->edge, v);
    }
    st->out = v.data, w->launches = 1;
    return TE_OK;
}
/* Set the tensors that op i reads or writes in backward in addition to the gradient that passes through it, and record
 * in *g whether the op changes this gradient. */
TE_API te_status te__pointwise_backward_edges(te_run *r, te_pointwise_work *w, int i, te_stage *st,
                                              te_pointwise_grad *g) {
    const te_op *op = &r->plan->op[i];
    const int64_t rows = te__rows_in(r, op->out_rows);
    te_value v;
    if (op->flags & TE_IS_ADD) {
        if ((r->plan->op[op->edge].flags & TE_IS_INPUT) || !te__is_last_use(r->plan, i))
            return te__pointwise_store_fork_grad(r, w, i, st);
        if (g->changed || g->stored.dtype != op->edge_dtype) {
            TE_TRY(te__acquire(r, &g->stored, op->out_rows, op->out, op->edge_dtype));
            st->out = g->stored.data, g->changed = 0, w->launches = 1;
        }
        te__set_edge(r, op->edge, g->stored);
    } else if (op->flags & TE_IS_MUL) {
        TE_TRY(te__fork_value(&v, r, op));
        st->w[0] = v.data, g->changed = 1;
        TE_TRY(te__pointwise_store_fork_grad(r, w, i, st));
    } else if (op->flags & TE_IS_OUTPUT) {
        TE_TRY(te__edge_tensor(&v, r, op, te__value_of(0, op->out_dtype, rows, op->out), 1));
        if (v.data) st->edge = v.data, g->changed = 1;
    } else if (op->flags & TE_IS_FORK) {
        st->edge = r->edge[i].data;
        if (st->edge) g->changed = 1;
    } else if (te__changes_gradient(op->flags)) g->changed = 1;
    return TE_OK;
}
/* How many partial sums of each column a step's kernel stores: one for each thread block along the rows. count: the
 * number for the present batch. max: the number for the largest batch, for which the workspace has memory. */
typedef struct te_sum_blocks { int count, max; } te_sum_blocks;
/* Reserve memory for the partial column sums that add up to the gradients of op i's parameters. */
TE_API te_status te__pointwise_sums(te_run *r, te_pointwise_work *w, int i, te_stage *st, te_sum_blocks blocks) {
    const te_op *op = &r->plan->op[i];
    const int most = op->op_class == TE_CLASS_norm ? 2 : op->flags & TE_SUMS ? 3 : 0; /* max number of parameters of the
                                                                                       * op */
    TE_REQUIRE(op->params <= most, r->ctx, TE_ERROR_STATE,
               "%s: (%s, %s): a map sums the gradients of its parameters (TE_SUMS), at most three", r->plan->name,
               op->kind, op->name);
    for (int p = 0; p < op->params; p++) {
        const int width = op->op_class == TE_CLASS_norm ? (int)r->param[i][p].cols : op->out;
        TE_TRY(te_defer_column_sum(r, &st->sum[p], &r->param[i][p], width, blocks.count, blocks.max));
        if (te_is_trained(&r->param[i][p])) w->launches = 1;
        else st->sum[p] = 0; /* the parameter is not trained, so the kernel stores no sums for it */
    }
    return TE_OK;
}
/* Prepare memory for the result of a backward step, which is the gradient of the input of op number `end`. The gradient
 * is stored in the form in which its consumer reads it. */
TE_API te_status te__pointwise_backward_result(te_run *r, te_pointwise_work *w, int end, te_pointwise_grad *g) {
    const te_op *op = &r->plan->op[end];
    const te_pointwise_exit e = te__pointwise_exit_of(r, w, end, op->in_dtype, 0);
    const int to_dx = te__last_step(r, w->step) && r->dx.data && g->stored.data != r->dx.data;
    te_pointwise *c = w->args;
    te_value *v = &g->stored;
    if (g->changed && e.form == TE_RESULT_in_fp8) {
        v->cols = op->in, w->launches = 1;
        TE_TRY(te__pointwise_store_fp8_operand(v, r, c, e.gathered >= 0 ? e.gathered : e.consumer, op->in_rows, 0));
        if (w->shape.transposes && e.gathered < 0) return te__pointwise_transpose_tensorwise(v, r, c, e.consumer);
    } else if (g->changed && e.form == TE_RESULT_with_scales) {
        *v = te__value_of(0, r->plan->dtype, te__rows_in(r, op->in_rows), op->in), w->launches = 1;
        TE_TRY(te__pointwise_result_with_scales(v, r, c, e.consumer, w->shape));
        return te__pointwise_transpose_blockwise(v, r, c, e.consumer);
    } else if (g->changed || to_dx || v->dtype != op->in_dtype) {
        TE_TRY(te__gradient(v, r, w->step, end));
        c->y = v->data, w->launches |= c->y != 0;
        if (c->y && e.consumer >= 0 && te__finds_amax(r, e.consumer, v->dtype))
            te__pointwise_find_amax(v, r, c, e.consumer);
        /* Here no kernel reads the gradient; only its column sums are needed. They must be bitwise identical to the
         * sums of a step that also stores the gradient. Therefore the tile kernel computes the sums in both cases; the
         * row kernel would add in another order. */
        if (!c->y && g->changed && w->shape.transposes && end > 0 && te__policy(r, end - 1)->stored_by_producer)
            te__pointwise_use_tile_kernel(r, c, end - 1, 0);
    }
    return TE_OK;
}
/* Fill in the kernel's arguments for dy, the gradient of the step's output. The gradient of the step's input becomes
 * the current value of the run (te_run.current). */
TE_API te_status te__pointwise_backward(te_run *r, te_pointwise_work *w, te_value dy, te_sum_blocks blocks) {
    const te_step *s = w->step;
    const int first_sum = r->sum_count;
    te_pointwise_grad g = {dy, 0};
    w->args->x = dy.data, w->args->rows = dy.rows;
    for (int j = w->skip; j < s->count; j++) {
        const int i = s->op[j];
        te_stage *st = &w->args->op[j - w->skip];
        te__stage_of(st, r, i);
        if (r->plan->op[i].flags & TE_SAVES_INPUT) st->saved = te__input_of(r, i).data;
        TE_TRY(te__pointwise_backward_edges(r, w, i, st, &g));
        TE_TRY(te__pointwise_sums(r, w, i, st, blocks));
    }
    TE_TRY(te__pointwise_backward_result(r, w, s->op[s->count - 1], &g));
    /* The tile kernel stores one partial sum of each column for each row of tiles. */
    for (int j = first_sum; w->args->scaled.tiles && j < r->sum_count; j++)
        r->sums.job[j].count = (int)te_fp8_blocks(dy.rows);
    for (int j = w->skip; j < s->count; j++)
        if (r->plan->op[s->op[j]].flags & TE_IS_FORK) te__set_edge(r, s->op[j], te__no_value());
    te__set_current(r, g.stored);
    return TE_OK;
}

/* ---- the launch -------------------------------------------------------------------------------------------------- */

TE_API int te__sums_rows(const te_pointwise_shape k) { return k.sums >= 0 || (k.backward && k.norm >= 0); }
/* Return the largest number of thread blocks along the rows. The number is small for a kernel that sums gradients over
 * rows, because each block stores a partial sum. tiles: the number of blocks that share a row. */
TE_API int te__max_blocks(const te_run *r, const te_pointwise_shape k, int tiles) {
    if (!TE_CUDA) return te__sums_rows(k) ? 16 : 64;
    return te__sums_rows(k) ? (int)te_max(1, (int64_t)r->ctx->processors * k.resident / tiles) : INT32_MAX / tiles;
}
/* Return te_pointwise_shape.half for a kernel that runs the ops of the step from index `skip` on: the smaller of the
 * widths of the kernel's input and output. */
TE_API int te__pointwise_half(const te_run *r, const te_step *s, int skip) {
    const te_op *first = &r->plan->op[s->op[skip]], *last = &r->plan->op[s->op[s->count - 1]];
    return r->pass == TE_BACKWARD ? (int)te_min(first->out, last->in) : (int)te_min(first->in, last->out);
}
/* Return the number of blocks along the rows with which the kernel is launched for `rows` rows. */
TE_API int te__pointwise_blocks(const te_run *r, int64_t rows, const te_pointwise_shape k) {
    const int batch = TE_CUDA && k.norm < 0 && !te__sums_rows(k) ? te_map_batch(k) : 1;
    return (int)te_min(te_ceil_div(rows, k.groups * batch), te__max_blocks(r, k, te_pointwise_tiles(k)));
}
/* Recompute the output of the step's last op, without running the other ops of the step. *r->recompute: the form in
 * which the output is stored. */
TE_API te_status te__pointwise_recompute(te_run *r, const te_pointwise_work *w, te_pointwise_launch_fn launch) {
    const te_recompute_target *to = r->recompute;
    const te_pointwise_shape k = w->shape;
    const int last = w->step->count - 1, i = w->step->op[last];
    const te_value x = te__input_of(r, i);
    te_pointwise *c = w->args;
    memset(c, 0, sizeof *c);
    te__stage_of(&c->op[last - w->skip], r, i);
    c->half = k.half, c->rows = x.rows, c->x = c->scaled.norm_x = x.data, c->scaled.rounded = to->rounds_first;
    if (to->data) {
        c->fp8.y = to->data, c->fp8.scale = to->scale, c->fp8.inverse = to->inverse_scale;
        return launch(r->ctx, te__grid_of(te__pointwise_blocks(r, x.rows, k) * te_pointwise_tiles(k), 1), c);
    }
    c->scaled.tiles = 1, c->scaled.from = last - w->skip, c->scaled.rule = r->param[i + 1]->fp8.own;
    c->scaled.yt = to->transposed, c->scaled.yt_inverse = to->inverse_scale,
    c->scaled.yt_cols = te_round_up(x.rows, 16);
    c->scaled.scale = to->scale;
    return launch(r->ctx, te__grid_of(1, 1), c);
}
/* Return whether the kernel runs twice: the first run computes only the amax of the result, and the second run, once
 * the scale is known, stores the result in FP8. Two runs are faster only if the last op reads no more bytes than it
 * writes, and if the second run executes only the last op. Therefore all ops before the last op must be biases; forward
 * has saved their result, from which the second run starts. */
TE_API int te__pointwise_amax_only(const te_run *r, const te_step *s, int skip, const te_pointwise_shape k) {
    const int last = s->op[s->count - 1];
    if (r->pass != TE_FORWARD || te__last_step(r, s)) return 0;
    if (k.norm >= 0 || k.in_halves + k.out_halves != 2 || k.out == TE_f32) return 0;
    const int consumer = te__consumer_of(r, last);
    if (!te__finds_amax(r, consumer, r->plan->op[last].out_dtype)) return 0;
    if (te__policy(r, consumer)->input != TE_INPUT_recomputed) return 0;
    for (int j = skip; j < s->count - 1; j++)
        if (!(r->plan->op[s->op[j]].flags & TE_EPILOGUE_OF_BIAS)) return 0;
    return 1;
}
/* Make the kernel compute only the amax of its result, without storing the result to memory. */
TE_API void te__pointwise_set_amax_only(te_run *r, te_pointwise *c) {
    c->y = 0, r->current.state = TE_VALUE_amax_only;
}
/* Run the ops of the step from index `skip` on as one kernel with the input x. applied: how many of these ops the
 * epilogue of the preceding GEMM has already computed. */
TE_API te_status te__pointwise_step_forward(te_run *r, const te_step *s, int skip, int applied, te_value x,
                                           te_pointwise_launch_fn launch, const te_pointwise_shape k) {
    te_pointwise c;
    te_pointwise_work w = te__pointwise_work_of(s, skip, k, &c);
    w.applied = applied;
    if (r->describe) return *r->describe = k, TE_OK;
    if (r->recompute) return te__pointwise_recompute(r, &w, launch);
    const int64_t blocks = te__pointwise_blocks(r, x.rows, k);
    memset(&c, 0, sizeof c); /* pointers that no op sets are null */
    c.half = k.half;
    TE_TRY(te__pointwise_forward(r, &w, x));
    if (te__pointwise_amax_only(r, s, skip, k)) te__pointwise_set_amax_only(r, &c);
    if (w.launches) c.take = r->take, r->take.taken = 0;
    return w.launches && !r->dry ? launch(r->ctx, te__grid_of(blocks * te_pointwise_tiles(k), 1), &c) : TE_OK;
}
/* Run the backward of the step's ops from index `skip` on as one kernel. dy: the gradient of the value that these ops
 * compute in forward. `applied` is not used, because in backward no epilogue of a GEMM computes an op of the step. */
TE_API te_status te__pointwise_step_backward(te_run *r, const te_step *s, int skip, int applied, te_value dy,
                                            te_pointwise_launch_fn launch, const te_pointwise_shape k) {
    te_pointwise c;
    te_pointwise_work w = te__pointwise_work_of(s, skip, k, &c);
    if (r->describe) return *r->describe = k, TE_OK;
    const int tiles = k.transposes ? (int)te_fp8_blocks(te__capacity_rows(r)) : 0;
    const te_sum_blocks blocks = {te__pointwise_blocks(r, dy.rows, k),
                                  (int)te_max(te__max_blocks(r, k, te_pointwise_tiles(k)), tiles)};
    memset(&c, 0, sizeof c), c.half = k.half, (void)applied;
    TE_TRY(te__pointwise_backward(r, &w, dy, blocks));
    if (!w.launches || r->dry) return TE_OK;
    return launch(r->ctx, te__grid_of((int64_t)blocks.count * te_pointwise_tiles(k), 1), &c);
}

#endif
