/* chain_run.h -- one step of a plan that is a chain: fill in the pointers, launch the kernel. */
#ifndef TE_FUSE_CHAIN_RUN_H
#define TE_FUSE_CHAIN_RUN_H

#include "chain_body.h" /* te_chain_body, for the macros that make kernels */

typedef te_status (*te_chain_launch_fn)(te_context *ctx, te_grid grid, const te_chain *c);

/* ---- where a step's result goes --------------------------------------------------------------------------------- */

TE_API int te_last_step(const te_run *r, const te_step *s) {
    const te_plan *p = r->plan;
    if (r->pass == TE_BACKWARD) return s == &p->backward[p->backward_count - 1];
    return r->pass == TE_INFER ? s == &p->infer[p->infer_count - 1] : s == &p->forward[p->forward_count - 1];
}
/* Forward: the output of op i, the last of step s. */
TE_API te_status te_output(te_value *v, te_run *r, const te_step *s, int i) {
    *v = te_value_of(te_last_step(r, s) ? r->y : r->pass == TE_FORWARD && te_in_memory(r->plan, i) ? r->act[i] : 0);
    return v->p ? TE_OK : te_acquire(r, v, te_value_bytes(r, r->plan->op[i].out));
}
/* Backward: the gradient of op i's input, i the last of step s. p is null if nobody wants it. */
TE_API te_status te_gradient(te_value *v, te_run *r, const te_step *s, int i) {
    *v = te_value_of(te_last_step(r, s) ? r->dx : 0);
    return v->p || te_last_step(r, s) ? TE_OK : te_acquire(r, v, te_value_bytes(r, r->plan->op[i].in));
}

/* What the fork (or input) of an add kept in forward. */
TE_API te_status te_kept(const void **p, te_run *r, const te_op *add) {
    const te_op *fork = &r->plan->op[add->edge];
    if (fork->flags & TE_IS_INPUT) {
        const te_edge *e;
        TE_TRY(te_find_edge(&e, r, fork));
        if (e) TE_TRY(te__check_tensor(r->plan->name, e->name, e->value, r->plan->dtype, r->rows, add->out, r->ctx));
        *p = e ? e->value.data : r->x;
        return TE_OK;
    }
    *p = r->pass == TE_FORWARD ? r->act[add->edge] : r->edge[add->edge].p;
    return TE_OK;
}

TE_API void te__stage_of(te_stage *st, te_run *r, int i) {
    const te_op *op = &r->plan->op[i];
    memset(st, 0, sizeof *st);
    for (int k = 0; k < op->params; k++) st->w[k] = r->param[i][k].data;
    st->stats = r->stats[i], st->rng = r->rng, st->id = (uint32_t)i, st->value[0] = op->value[0], st->value[1] = op->value[1];
}

/* ---- forward ---------------------------------------------------------------------------------------------------- */

/* The ops of `s` from `skip` on; `applied` of them were done by the matrix product before (a bias). */
TE_API te_status te__chain_forward(te_run *r, const te_step *s, int skip, int applied, te_chain *c, int *work) {
    const te_plan *plan = r->plan;
    int last = -1;
    for (int j = skip; j < s->count; j++)
        if (!(plan->op[s->op[j]].flags & TE_IS_FORK)) last = j;
    te_value mem = te_hold(r, r->now); /* the value in memory, where there is one */
    for (int j = skip; j < s->count; j++) {
        const int i = s->op[j];
        const te_op *op = &plan->op[i];
        te_stage *st = &c->op[j - skip];
        te__stage_of(st, r, i);
        if (j < skip + applied) {
            st->w[0] = 0;
            if (j != last) continue;
        }
        if (op->flags & TE_IS_ADD) TE_TRY(te_kept(&st->edge, r, op));
        if (op->flags & TE_IS_OUTPUT) {
            const te_edge *e;
            TE_TRY(te_find_edge(&e, r, op));
            if (e) TE_TRY(te__check_tensor(plan->name, e->name, e->value, plan->dtype, r->rows, op->out, r->ctx));
            st->out = e ? e->value.data : r->x, *work = 1;
        }
        if (op->flags & TE_IS_FORK) {
            if (r->pass == TE_INFER && !(op->flags & TE_IS_INPUT)) r->edge[i] = te_hold(r, mem);
            continue;
        }
        const int forked = j + 1 < s->count && (plan->op[s->op[j + 1]].flags & TE_IS_FORK);
        te_value v;
        if (j == last) {
            TE_TRY(te_output(&v, r, s, i));
            c->y = v.p, *work = 1;
        } else if (r->pass == TE_FORWARD ? te_in_memory(plan, i) : forked) {
            v = te_value_of(r->pass == TE_FORWARD ? r->act[i] : 0);
            if (!v.p) TE_TRY(te_acquire(r, &v, te_value_bytes(r, op->out)));
            if (op->flags & TE_IS_OUTPUT) return te_fail(r->ctx, TE_ERROR_STATE, "%s: (output, %s) stands before a fork in one row", plan->name, op->name);
            st->out = v.p;
        } else continue;
        te_drop(r, mem);
        mem = v;
    }
    /* What add has used nobody needs any more. */
    for (int j = skip; j < s->count; j++) {
        const te_op *op = &plan->op[s->op[j]];
        if (op->flags & TE_IS_ADD) te_drop(r, r->edge[op->edge]), r->edge[op->edge] = te_value_of(0);
    }
    te_set_now(r, mem);
    return TE_OK;
}

/* ---- backward --------------------------------------------------------------------------------------------------- */

/* The ops of `s` from `skip` on. blocks: that sum, each the rows it sees; most: those of the largest batch. */
TE_API te_status te__chain_backward(te_run *r, const te_step *s, int skip, int blocks, int most, te_chain *c, int *work) {
    const te_plan *plan = r->plan;
    int changed = 0; /* the value differs from what lies in `mem` */
    te_value mem = te_hold(r, r->now);
    for (int j = skip; j < s->count; j++) {
        const int i = s->op[j];
        const te_op *op = &plan->op[i];
        te_stage *st = &c->op[j - skip];
        te__stage_of(st, r, i);
        if (op->flags & TE_SAVES_INPUT) st->saved = i ? r->act[i - 1] : r->x;
        if (op->flags & TE_IS_ADD) {
            const te_op *fork = &plan->op[op->edge];
            if (fork->flags & TE_IS_INPUT) {
                const te_edge *e;
                TE_TRY(te_find_edge(&e, r, fork));
                if (e && e->grad.data) {
                    TE_TRY(te__check_tensor(plan->name, e->name, e->grad, plan->dtype, r->rows, op->out, r->ctx));
                    st->out = e->grad.data, *work = 1;
                }
            } else {
                if (changed) {
                    te_drop(r, mem);
                    TE_TRY(te_acquire(r, &mem, te_value_bytes(r, op->out)));
                    st->out = mem.p, changed = 0, *work = 1;
                }
                r->edge[op->edge] = te_hold(r, mem);
            }
        } else if (op->flags & TE_IS_OUTPUT) {
            const te_edge *e;
            TE_TRY(te_find_edge(&e, r, op));
            if (!e) changed = 1; /* sizing: as if a gradient came in */
            else if (e->grad.data) {
                TE_TRY(te__check_tensor(plan->name, e->name, e->grad, plan->dtype, r->rows, op->out, r->ctx));
                st->edge = e->grad.data, changed = 1;
            }
        } else if (op->flags & TE_IS_FORK) {
            st->edge = r->edge[i].p;
            if (st->edge) changed = 1;
        } else if (!(op->flags & TE_KEEPS_GRAD)) changed = 1;
        TE_REQUIRE(!op->params || op->op_class == TE_CLASS_norm || (op->params == 1 && (op->flags & TE_SUMS)), r->ctx, TE_ERROR_STATE,
                   "%s: (%s, %s): a map has one parameter at most, and sums its gradient (TE_SUMS)", plan->name, op->kind, op->name);
        for (int k = 0; k < op->params; k++) TE_TRY(te_sum_later(r, &st->sum[k], &r->param[i][k], op->out, blocks, most));
        *work |= op->params > 0;
    }
    const int to_dx = te_last_step(r, s) && r->dx && mem.p != r->dx;
    if (changed || to_dx) {
        te_drop(r, mem);
        TE_TRY(te_gradient(&mem, r, s, s->op[s->count - 1]));
        c->y = mem.p, *work |= c->y != 0;
    }
    for (int j = skip; j < s->count; j++)
        if (plan->op[s->op[j]].flags & TE_IS_FORK) te_drop(r, r->edge[s->op[j]]), r->edge[s->op[j]] = te_value_of(0);
    te_set_now(r, mem);
    return TE_OK;
}

/* ---- the step --------------------------------------------------------------------------------------------------- */

TE_API int te__sums_rows(const te_chain_shape k) { return k.sums >= 0 || (k.backward && k.norm >= 0); }
/* Blocks along the rows, at most: where gradients are summed so few that the partial sums stay small. */
TE_API int te__most_blocks(const te_run *r, const te_chain_shape k, int tiles) {
    if (!TE_CUDA) return te__sums_rows(k) ? 16 : 64;
    return te__sums_rows(k) ? (int)te_max(1, (int64_t)r->ctx->processors * k.resident / tiles) : INT32_MAX / tiles;
}

/* Columns of a half of the rows that the ops [skip, count) of the step work on. */
TE_API int te_chain_half(const te_run *r, const te_step *s, int skip) {
    const te_op *first = &r->plan->op[s->op[skip]], *last = &r->plan->op[s->op[s->count - 1]];
    return r->pass == TE_BACKWARD ? (int)te_min(first->out, last->in) : (int)te_min(first->in, last->out);
}
/* Ops [skip, count) of the step as one kernel; `applied`: see te__chain_forward. */
TE_API te_status te_chain_step(te_run *r, const te_step *s, int skip, int applied, te_chain_launch_fn launch, const te_chain_shape k) {
    te_chain c;
    int work = 0;
    const int tiles = te_chain_tiles(k), batch = TE_CUDA && k.norm < 0 && !te__sums_rows(k) ? te_map_batch(k) : 1;
    const int most = te__most_blocks(r, k, tiles), blocks = (int)te_min(te_ceil_div(r->rows, k.groups * batch), most);
    memset(&c, 0, sizeof c); /* what no op fills in is null */
    c.x = r->now.p, c.rows = r->rows, c.half = k.half;
    const te_value x = te_hold(r, r->now);
    if (k.backward) TE_TRY(te__chain_backward(r, s, skip, blocks, most, &c, &work));
    else TE_TRY(te__chain_forward(r, s, skip, applied, &c, &work));
    if (work && !k.backward) c.take = r->take, r->take.taken = 0;
    if (work && !r->dry) TE_TRY(launch(r->ctx, te_grid_of((int64_t)blocks * tiles, 1), &c));
    te_drop(r, x);
    return TE_OK;
}

#endif
