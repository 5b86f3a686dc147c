/* pointwise_step.h -- the pointers of a chain's kernel that stores FP8 for the product behind it. */
#ifndef TE_POINTWISE_STEP_H
#define TE_POINTWISE_STEP_H

#include "../../plan/impl/gradients.h" /* te_is_trained, te_run */
#include "pointwise.h" /* te_pointwise, te_pointwise_shape */
#include "../../plan/impl/call_checks.h" /* te_fork_value, te_edge_tensor */
#include "../../plan/impl/storage.h" /* te_consumer_of */
#include "pointwise_kernel.h" /* te_pointwise_body, for the macros that make kernels */

/* Let the kernel store v, the operand of product i or this rank's rows of it, in FP8: at `at`, or in the workspace. v
 * becomes that. */
TE_API te_status te__pointwise_store_fp8_operand(te_value *v, te_run *r, te_pointwise *c, int i, te_rows rows, void *at) {
    const te_fp8_product *f = &r->param[i]->fp8;
    const int backward = r->pass == TE_BACKWARD, index = backward ? f->dy : f->x;
    if (at) *v = te_value_of(at, TE_e4m3, te_rows_in(r, rows), v->cols);
    else TE_TRY(te_acquire(r, v, rows, v->cols, backward ? r->plan->fp8->gradients : TE_e4m3));
    c->fp8.y = v->p;
    if (r->pass == TE_FORWARD) te_set_saved_transposed(r, i, 0);
    if (!f->scales) return TE_OK; /* sizing only */
    c->fp8.scale = f->scales->scale + index, c->fp8.amax = r->pass == TE_INFER ? 0 : f->scales->amax + index;
    c->fp8.inverse = r->pass == TE_FORWARD ? te_saved_input_of(r, i).inverse : 0;
    return TE_OK;
}

/* Whether the kernel stores the operand of product i, which is in memory for others as well where `kept`, with scales
 * of its own. In training fp8_block reads it transposed, too. */
TE_API int te__pointwise_quantizes(const te_run *r, int i, const te_pointwise_shape k, int kept) {
    if (!te_is_in_fp8(r, i) || !r->param[i]) return 0;
    if (!te_is_tiled(r, i)) return k.scaled == TE_SCALING_ROW && TE_IS_ROWWISE(r->plan->op[i].recipe);
    if (k.scaled != TE_SCALING_TILES || kept) return 0;
    return r->pass == TE_INFER || k.turns || (r->pass == TE_FORWARD && !te__keeps_fp8(r, i));
}
/* Let it do so, and v become that. Where v has memory it is stored there, too. */
TE_API te_status te__pointwise_quantize(te_value *v, te_run *r, te_pointwise *c, int i, const te_pointwise_shape k) {
    c->y = v->p;
    TE_TRY(te_acquire_scaled(r, v, v->rows, v->cols, k.scaled));
    c->scaled.y = v->p, c->scaled.inverse = te_scales_behind(r, *v), c->scaled.rule = r->param[i]->fp8.own;
    c->scaled.yt_cols = te_round_up(v->rows, 16);
    return TE_OK;
}
/* The transpose of v, in training: forward keeps it, backward has it in `turned`. */
TE_API te_status te__pointwise_transpose_blockwise(te_value *turned, te_run *r, te_pointwise *c, int i, te_value v) {
    const te_saved_input kept = te_saved_input_of(r, i);
    *turned = te_no_value();
    if (r->pass == TE_FORWARD) {
        if (!te__keeps_fp8(r, i)) return TE_OK;
        c->scaled.tiles = 1, c->scaled.yt = kept.x, c->scaled.yt_inverse = kept.inverse;
        te_set_saved_transposed(r, i, 1);
        return TE_OK;
    }
    c->scaled.tiles = 1;
    if (r->plan->op[i].flags & TE_IS_FROZEN) return TE_OK;
    TE_TRY(te_acquire_scaled(r, turned, te_capacity_rows(r), v.cols, TE_SCALING_TILES));
    if (te_is_trained(r->param[i])) c->scaled.yt = turned->p, c->scaled.yt_inverse = te_scales_behind(r, *turned);
    return TE_OK;
}

/* Let the kernel for tiles run, which stores the gradient of product i with one scale as it lies, and v, its transpose,
 * where that has memory. */
TE_API void te__pointwise_use_tile_kernel(te_run *r, te_pointwise *c, int i, te_value v) {
    const te_fp8_product *f = &r->param[i]->fp8;
    c->scaled.tiles = 1, c->scaled.scale = f->scales ? f->scales->scale + f->dy : 0;
    c->scaled.yt = v.p, c->scaled.yt_cols = te_round_up(c->rows, 16);
}
/* Let it do so. It runs whatever is frozen: the order of its sums, and so the bits of other gradients, do not depend on
 * that. Nor does the memory on what is frozen for a while. */
TE_API te_status te__pointwise_transpose_tensorwise(te_value *turned, te_run *r, te_pointwise *c, int i, te_value v) {
    if (!(r->plan->op[i].flags & TE_IS_FROZEN))
        TE_TRY(te_acquire(r, turned, r->plan->op[i].out_rows, v.cols, v.dtype));
    te__pointwise_use_tile_kernel(r, c, i, te_is_trained(r->param[i]) ? *turned : te_no_value());
    return TE_OK;
}

/* Let the kernel find the amax of what it stores for product i in the list's format. The walk's value is that. */
TE_API void te__pointwise_find_amax(te_run *r, te_pointwise *c, int i) {
    const te_fp8_product *f = &r->param[i]->fp8;
    c->fp8.amax = f->scales->amax + (r->pass == TE_BACKWARD ? f->dy : f->x);
    r->measured = 1;
}

/* pointwise_step.h -- one step of a plan that is a chain: fill in the pointers, launch the kernel. */

typedef te_status (*te_pointwise_launch_fn)(te_context *ctx, te_grid grid, const te_pointwise *c);

TE_API void te__stage_of(te_stage *st, te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    memset(st, 0, sizeof *st);
    for (int k = 0; k < op->params; k++) st->w[k] = r->param[i][k].data;
    st->stats = r->stats[i], st->rng = r->rng, st->id = (uint32_t)i;
    st->first = te_first_row_of_all(r, op->out_rows) * op->out;
}

/* ---- forward ---------------------------------------------------------------------------------------------------- */

/* The ops of `s` from `skip` on, of x; `applied` of them were done by the matrix product before (a bias). The walk's
 * value is then what the step gives. *work: whether there is anything to launch. */
TE_API te_status te__pointwise_forward(te_run *r, const te_step *s, int skip, int applied, te_value x,
                                   const te_pointwise_shape k, te_pointwise *c, int *work) {
    const te_plan *plan = r->plan;
    int last = -1;
    for (int j = skip; j < s->count; j++)
        if (!(plan->op[s->op[j]].flags & TE_IS_FORK)) last = j;
    int measured = -1; /* the product for which the kernel finds the amax */
    te_value stored = x; /* the value so far, where it last was in memory */
    c->x = x.p, c->rows = x.rows;
    for (int j = skip; j < s->count; j++) {
        const int i = s->op[j];
        const te_op *op = &plan->op[i];
        te_stage *st = &c->op[j - skip];
        te_value v;
        te__stage_of(st, r, i);
        if (op->op_class == TE_CLASS_norm) c->scaled.norm_x = j == skip ? x.p : te_input_of(r, i).p;
        if (j < skip + applied) {
            st->w[0] = 0;
            if (j != last) continue;
        }
        if (op->flags & (TE_IS_ADD | TE_IS_MUL)) {
            TE_TRY(te_fork_value(&v, r, op));
            st->edge = v.p;
            te_release_fork(r, i);
        }
        if (op->flags & TE_IS_OUTPUT) {
            TE_TRY(te_edge_tensor(&v, r, op, te_value_of(0, op->out_dtype, te_rows_in(r, op->out_rows), op->out), 0));
            st->out = v.p, *work = 1;
        }
        if (op->flags & TE_IS_FORK) {
            if (r->pass == TE_INFER && !(op->flags & TE_IS_INPUT)) te_set_edge(r, i, stored);
            continue;
        }
        const int forked = j + 1 < s->count && (plan->op[s->op[j + 1]].flags & TE_IS_FORK);
        const int leaves = j == s->count - 1 && !te_last_step(r, s); /* its result is the next op's input alone */
        const int next = leaves ? te_consumer_of(r, i) : -1;
        const int gathered = leaves ? te_gathered_consumer(r, next) : -1; /* for a product behind a gather */
        const int for_product = leaves && (gathered >= 0 || te_is_stored_in_fp8(r, next));
        const int kept = r->pass == TE_FORWARD && te_in_memory(r, i);
        if (j == last && leaves && op->out_dtype == plan->dtype && te__pointwise_quantizes(r, next, k, kept)) {
            te_value turned;
            v = kept ? te_output_of(r, i) : te_value_of(0, op->out_dtype, te_rows_in(r, op->out_rows), op->out);
            if (kept && !v.p) TE_TRY(te_acquire(r, &v, op->out_rows, op->out, op->out_dtype));
            TE_TRY(te__pointwise_quantize(&v, r, c, next, k));
            if (r->pass == TE_FORWARD && te_is_tiled(r, next)) TE_TRY(te__pointwise_transpose_blockwise(&turned, r, c, next, v));
            *work = 1;
        } else if (j == last && for_product && !kept) {
            v = te_value_of(0, op->out_dtype, te_rows_in(r, op->out_rows), op->out);
            if (gathered >= 0) TE_TRY(te__pointwise_store_fp8_operand(&v, r, c, gathered, op->out_rows, 0));
            else TE_TRY(te__pointwise_store_fp8_operand(&v, r, c, next, op->out_rows, te_saved_input_of(r, next).x));
            *work = 1;
        } else if (j == last) {
            TE_TRY(te_output(&v, r, s, i));
            c->y = v.p, *work = 1;
            if (leaves && te_is_measured(r, next, v.dtype)) measured = next;
        } else if (r->pass == TE_FORWARD ? te_in_memory(r, i) : forked) {
            v = te_output_of(r, i);
            if (r->pass != TE_FORWARD || !v.p) TE_TRY(te_acquire(r, &v, op->out_rows, op->out, op->out_dtype));
            st->out = v.p;
        } else continue;
        stored = v;
    }
    te_set_now(r, stored);
    if (measured >= 0) te__pointwise_find_amax(r, c, measured);
    return TE_OK;
}

/* ---- backward --------------------------------------------------------------------------------------------------- */

/* Where op i, an add or a mul, leaves the gradient of what its fork kept: with that of the readers behind it, if there
 * are any (te_hand_over8). */
TE_API te_status te__pointwise_store_fork_grad(te_run *r, int i, te_stage *st, int *work) {
    const te_op *op = &r->plan->op[i], *fork = &r->plan->op[op->edge];
    const int first = te_is_last_use(r->plan, i);
    te_value v;
    if (fork->flags & TE_IS_INPUT) { /* its gradient is the caller's */
        const te_value like = te_value_of(0, op->edge_dtype, te_rows_in(r, op->out_rows), op->out);
        TE_TRY(te_edge_tensor(&v, r, fork, like, 1));
        if (!v.p) return TE_OK;
        st->edge = first ? 0 : v.p;
    } else {
        TE_TRY(te_acquire(r, &v, op->out_rows, op->out, op->edge_dtype));
        st->edge = first ? 0 : r->edge[op->edge].p;
        te_set_edge(r, op->edge, v);
    }
    st->out = v.p, *work = 1;
    return TE_OK;
}
/* The gradient as it passes an op that has no kernel of its own: `stored` is where it last was in memory, *changed
 * whether it differs from that. */
TE_API te_status te__pointwise_edges(te_run *r, int i, te_stage *st, te_value *stored, int *changed, int *work) {
    const te_op *op = &r->plan->op[i];
    const int64_t rows = te_rows_in(r, op->out_rows);
    te_value v;
    if (op->flags & TE_IS_ADD) {
        if ((r->plan->op[op->edge].flags & TE_IS_INPUT) || !te_is_last_use(r->plan, i))
            return te__pointwise_store_fork_grad(r, i, st, work);
        if (*changed || stored->dtype != op->edge_dtype) {
            TE_TRY(te_acquire(r, stored, op->out_rows, op->out, op->edge_dtype));
            st->out = stored->p, *changed = 0, *work = 1;
        }
        te_set_edge(r, op->edge, *stored);
    } else if (op->flags & TE_IS_MUL) {
        TE_TRY(te_fork_value(&v, r, op));
        st->w[0] = v.p, *changed = 1;
        TE_TRY(te__pointwise_store_fork_grad(r, i, st, work));
    } else if (op->flags & TE_IS_OUTPUT) {
        TE_TRY(te_edge_tensor(&v, r, op, te_value_of(0, op->out_dtype, rows, op->out), 1));
        if (v.p) st->edge = v.p, *changed = 1;
    } else if (op->flags & TE_IS_FORK) {
        st->edge = r->edge[i].p;
        if (st->edge) *changed = 1;
    } else if (!(op->flags & TE_GRAD_UNCHANGED)) *changed = 1;
    return TE_OK;
}
/* The kernel for tiles leaves a partial sum each of the jobs from `first` on. */
TE_API void te__pointwise_sums_of_tiles(te_run *r, int first, int64_t rows) {
    for (int j = first; j < r->sum_count; j++) r->sums.job[j].count = (int)te_fp8_blocks(rows);
}
/* The ops of `s` from `skip` on, of the gradient dy. blocks: that sum, each the rows it sees; most: those of the
 * largest batch. */
TE_API te_status te__pointwise_backward(te_run *r, const te_step *s, int skip, int blocks, int most, te_value dy,
                                    const te_pointwise_shape k, te_pointwise *c, int *work) {
    const te_plan *plan = r->plan;
    const int end = s->op[s->count - 1], waiting = r->sum_count;
    int changed = 0, measured = 0;
    te_value stored = dy, turned = te_no_value();
    c->x = dy.p, c->rows = dy.rows;
    for (int j = skip; j < s->count; j++) {
        const int i = s->op[j];
        const te_op *op = &plan->op[i];
        te_stage *st = &c->op[j - skip];
        te__stage_of(st, r, i);
        if (op->flags & TE_SAVES_INPUT) st->saved = te_input_of(r, i).p;
        TE_TRY(te__pointwise_edges(r, i, st, &stored, &changed, work));
        const int sums = op->flags & TE_SUMS_THREE ? 3 : op->flags & TE_SUMS ? 1 : 0;
        TE_REQUIRE(op->op_class == TE_CLASS_norm || op->params == sums, r->ctx, TE_ERROR_STATE,
                   "%s: (%s, %s): a map sums the gradients of its parameters, one (TE_SUMS) or three (TE_SUMS_THREE)",
                   plan->name, op->kind, op->name);
        for (int p = 0; p < op->params; p++) {
            TE_TRY(te_defer_column_sum(r, &st->sum[p], &r->param[i][p], op->out, blocks, most));
            if (te_is_trained(&r->param[i][p])) *work = 1;
            else st->sum[p] = 0; /* the kernel stores none */
        }
    }
    const int to_dx = te_last_step(r, s) && r->dx.p && stored.p != r->dx.p;
    const int behind = !te_last_step(r, s) && end > 0, next = behind ? te_consumer_of(r, end) : -1;
    const int leaves = changed && behind, gathered = leaves ? te_gathered_consumer(r, next) : -1;
    if (leaves && (gathered >= 0 || te_is_given_in_fp8(r, next))) {
        stored.cols = plan->op[end].in;
        TE_TRY(te__pointwise_store_fp8_operand(&stored, r, c, gathered >= 0 ? gathered : next, plan->op[end].in_rows, 0));
        if (k.turns && gathered < 0) TE_TRY(te__pointwise_transpose_tensorwise(&turned, r, c, next, stored));
        *work = 1;
    } else if (leaves && plan->op[end].in_dtype == plan->dtype && te__pointwise_quantizes(r, next, k, 0)) {
        stored = te_value_of(0, plan->dtype, te_rows_in(r, plan->op[end].in_rows), plan->op[end].in);
        TE_TRY(te__pointwise_quantize(&stored, r, c, next, k));
        TE_TRY(te__pointwise_transpose_blockwise(&turned, r, c, next, stored));
        *work = 1;
    } else if (changed || to_dx || stored.dtype != plan->op[end].in_dtype) {
        TE_TRY(te_gradient(&stored, r, s, end));
        c->y = stored.p, *work |= c->y != 0;
        measured = c->y && behind && te_is_measured(r, next, stored.dtype);
        if (!c->y && changed && k.turns && end > 0 && te_is_given_in_fp8(r, end - 1)) /* sums alone, in that order */
            te__pointwise_use_tile_kernel(r, c, end - 1, te_no_value());
    }
    if (c->scaled.tiles) te__pointwise_sums_of_tiles(r, waiting, dy.rows);
    for (int j = skip; j < s->count; j++)
        if (plan->op[s->op[j]].flags & TE_IS_FORK) te_set_edge(r, s->op[j], te_no_value());
    te_set_now(r, stored);
    te_set_turned(r, turned);
    if (measured) te__pointwise_find_amax(r, c, next);
    return TE_OK;
}

/* ---- the step --------------------------------------------------------------------------------------------------- */

TE_API int te__sums_rows(const te_pointwise_shape k) { return k.sums >= 0 || (k.backward && k.norm >= 0); }
/* Blocks along the rows, at most: where gradients are summed so few that the partial sums stay small. */
TE_API int te__max_blocks(const te_run *r, const te_pointwise_shape k, int tiles) {
    if (!TE_CUDA) return te__sums_rows(k) ? 16 : 64;
    return te__sums_rows(k) ? (int)te_max(1, (int64_t)r->ctx->processors * k.resident / tiles) : INT32_MAX / tiles;
}
/* Columns of a half of the rows that the ops [skip, count) of the step work on. */
TE_API int te_pointwise_half(const te_run *r, const te_step *s, int skip) {
    const te_op *first = &r->plan->op[s->op[skip]], *last = &r->plan->op[s->op[s->count - 1]];
    return r->pass == TE_BACKWARD ? (int)te_min(first->out, last->in) : (int)te_min(first->in, last->out);
}
/* Blocks along `rows` rows. */
TE_API int te__pointwise_blocks(const te_run *r, int64_t rows, const te_pointwise_shape k) {
    const int batch = TE_CUDA && k.norm < 0 && !te__sums_rows(k) ? te_map_batch(k) : 1;
    return (int)te_min(te_ceil_div(rows, k.groups * batch), te__max_blocks(r, k, te_pointwise_tiles(k)));
}
/* What the last op of the step gave in forward again, transposed or as it lies. */
TE_API te_status te__pointwise_recompute(te_run *r, const te_step *s, int skip, te_pointwise_launch_fn launch,
                                 const te_pointwise_shape k) {
    const int last = s->count - 1, i = s->op[last];
    const te_value x = te_input_of(r, i);
    te_pointwise c;
    memset(&c, 0, sizeof c);
    te__stage_of(&c.op[last - skip], r, i);
    c.half = k.half, c.rows = x.rows, c.x = c.scaled.norm_x = x.p, c.scaled.rounded = r->again.rounded;
    if (r->again.y) {
        c.fp8.y = r->again.y, c.fp8.scale = r->again.scale, c.fp8.inverse = r->again.inverse;
        return launch(r->ctx, te_grid_of(te__pointwise_blocks(r, x.rows, k) * te_pointwise_tiles(k), 1), &c);
    }
    c.scaled.tiles = 1, c.scaled.from = last - skip, c.scaled.rule = r->param[i + 1]->fp8.own;
    c.scaled.yt = r->again.yt, c.scaled.yt_inverse = r->again.inverse, c.scaled.yt_cols = te_round_up(x.rows, 16);
    c.scaled.scale = r->again.scale;
    return launch(r->ctx, te_grid_of(1, 1), &c);
}
/* Whether what the step gives, whose amax its kernel finds for the product behind it, is stored by nobody, because that
 * kernel runs again once the scale is known: the last op then reads no more than it writes, and those before it do
 * nothing (a bias without its parameter). */
TE_API int te__pointwise_amax_only(const te_run *r, const te_step *s, int skip, const te_pointwise_shape k) {
    const int last = s->op[s->count - 1];
    int alone = r->pass == TE_FORWARD && !te_last_step(r, s) && k.norm < 0 && k.in_halves + k.out_halves == 2 &&
                k.out != TE_f32 && te_is_measured(r, te_consumer_of(r, last), r->plan->op[last].out_dtype) &&
                te_is_given_again(r, te_consumer_of(r, last));
    for (int j = skip; j < s->count - 1; j++)
        alone = alone && (r->plan->op[s->op[j]].flags & TE_EPILOGUE_OF_BIAS);
    return alone;
}
/* Ops [skip, count) of the step as one kernel, of x; `applied`: see te__pointwise_forward. */
TE_API te_status te_pointwise_step_forward(te_run *r, const te_step *s, int skip, int applied, te_value x,
                                       te_pointwise_launch_fn launch, const te_pointwise_shape k) {
    te_pointwise c;
    int work = 0;
    if (r->again.yt || r->again.y) return te__pointwise_recompute(r, s, skip, launch, k);
    const int64_t blocks = te__pointwise_blocks(r, x.rows, k);
    memset(&c, 0, sizeof c); /* what no op fills in is null */
    c.half = k.half;
    TE_TRY(te__pointwise_forward(r, s, skip, applied, x, k, &c, &work));
    if (te__pointwise_amax_only(r, s, skip, k)) c.y = 0, r->unstored = 1;
    if (work) c.take = r->take, r->take.taken = 0;
    return work && !r->dry ? launch(r->ctx, te_grid_of(blocks * te_pointwise_tiles(k), 1), &c) : TE_OK;
}
/* The same of the gradient dy; nothing is applied before. */
TE_API te_status te_pointwise_step_backward(te_run *r, const te_step *s, int skip, int applied, te_value dy,
                                        te_pointwise_launch_fn launch, const te_pointwise_shape k) {
    te_pointwise c;
    int work = 0;
    const int blocks = te__pointwise_blocks(r, dy.rows, k), tiles = k.turns ? (int)te_fp8_blocks(te_capacity_rows(r)) : 0;
    const int most = (int)te_max(te__max_blocks(r, k, te_pointwise_tiles(k)), tiles);
    memset(&c, 0, sizeof c), c.half = k.half, (void)applied;
    TE_TRY(te__pointwise_backward(r, s, skip, blocks, most, dy, k, &c, &work));
    return work && !r->dry ? launch(r->ctx, te_grid_of((int64_t)blocks * te_pointwise_tiles(k), 1), &c) : TE_OK;
}

#endif
