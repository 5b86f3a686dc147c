/* linear.h -- (linear, name, in, out): y[rows, out] = x[rows, in] weight[out, in]^T. A bias is an op of its own.
 * (tied_linear, name, in, out): the same, with a weight that belongs to another parameter (te_tie).
 *
 * A row that begins with it is one matrix product, which takes along what its back end can do at its end (a bias, a
 * gelu, a scale, a residual), and one chain kernel for the rest; or one kernel in all (product.h).
 */
#ifndef TE_OPS_LINEAR_H
#define TE_OPS_LINEAR_H

#include "../fuse/product.h" /* te_product_step, te_chain_step */
#include "../gemm/gemm.h"    /* te_gemm_run, te__race */
#include "../optim/init.h"   /* te_fill_normal, for what splits are timed on */

#define TE_OP_linear (linear, 0, gemm)
#define TE_OP_tied_linear (linear, 1, gemm)
#define TE_IN_linear(op) TE_ARG1(op, 0)
#define TE_OUT_linear(op, in) TE_ARG2(op, 0)
#define TE_FLAGS_linear(op) TE_SAVES_INPUT
#define TE_TRAITS_linear(model, op, in, out) 0, -1, {0, 0}, 1, {{"weight", out, in, TE_INIT_normal, TE_CODE(op)}, TE_NO_PARAM}
#define TE_FIELDS_linear(op) struct { te_param weight; } TE_NAME(op);
#define TE_DECLARE_linear(model, op)

/* The kernels of a step: the chain behind the product, product and chain in one, and the product by itself; null: none. */
typedef struct te__linear_kernels {
    te_chain_launch_fn launch;
    te_chain_shape shape;
    te_product_kernels *whole, *bare;
} te__linear_kernels;

/* Run it, on the host with scratch from the workspace. bare: for products that are not a weight's gradient. */
TE_API te_status te__linear_gemm(te_run *r, te_gemm *g, te_product_kernels *bare) {
    const size_t scratch = te_gemm_scratch(g) * sizeof(float);
    te_value v = te_value_of(0);
    if (te_bare_pays(bare, g, r->ctx)) return r->dry ? TE_OK : te_bare_run(bare, g, r->ctx);
    if (scratch) TE_TRY(te_acquire(r, &v, scratch));
    g->scratch = (float *)v.p;
    if (!r->dry) TE_TRY(te_gemm_run(g, r->ctx));
    te_drop(r, v);
    return TE_OK;
}

TE_API int te__is(const te_run *r, const te_step *s, int j, const char *kind) {
    return j < s->count && !strcmp(r->plan->op[s->op[j]].kind, kind);
}

/* Let the product take along what `split` says. Returns how many ops of the row that is, or -1 if it cannot be. */
TE_API int te__linear_take(te_gemm *g, te_run *r, const te_step *s, te_split split) {
    const int rest = s->count - 1;
    int j = 1;
    g->alpha = 1.0f, g->beta = 0, g->epilogue = TE_EPILOGUE_NONE, g->bias = 0, g->aux = 0;
    if (split == TE_SPLIT_BARE || split == TE_SPLIT_OWN) return 0;
    if (split == TE_SPLIT_BIAS) {
        /* worth it only for a bias whose result backward needs: the product writes it, and the kernel after it reads it */
        if (rest < 2 || !te__is(r, s, 1, "bias") || r->pass != TE_FORWARD || !te_in_memory(r->plan, s->op[1])) return -1;
        g->epilogue = TE_EPILOGUE_BIAS, g->bias = r->param[s->op[1]]->data;
        return te_gemm_supports(g, r->ctx) ? 1 : -1;
    }
    if (te__is(r, s, j, "scale")) g->alpha = r->plan->op[s->op[j++]].value[0];
    if (te__is(r, s, j, "bias")) {
        g->epilogue = TE_EPILOGUE_BIAS, g->bias = r->param[s->op[j]]->data;
        if (te__is(r, s, j + 1, "gelu") && j + 1 == rest) {
            g->epilogue = r->pass == TE_FORWARD ? TE_EPILOGUE_GELU_AUX_BIAS : TE_EPILOGUE_GELU_BIAS;
            if (r->pass == TE_FORWARD) g->aux = r->act[s->op[j]];
            j++;
        }
        j++;
    }
    if (te__is(r, s, j, "add") && j == rest) g->beta = 1.0f, j++;
    return j > rest && te_gemm_supports(g, r->ctx) ? rest : -1;
}

/* The product, which takes the first `taken` ops of the row along, and one chain kernel for the rest; or, `own`, one for all. */
TE_API te_status te__linear_split(te_run *r, const te_step *s, const te__linear_kernels *kernels, te_gemm *g, int taken, int own) {
    const int last = s->op[taken], whole = taken == s->count - 1;
    const te_op *op = &r->plan->op[s->op[0]];
    if (g->beta != 0) TE_TRY(te_kept(&g->c, r, &r->plan->op[last]));
    /* Where splits are chosen, each takes the same pieces of the workspace in the same order: what was reserved for one
     * serves another. */
    const int chosen = te__gemm_chooses(r->ctx) && s->count > 1;
    const te_value x = chosen || own ? te_hold(r, r->now) : te_value_of(0);
    te_value middle = te_value_of(0), y;
    if (chosen) TE_TRY(te_acquire(r, &middle, te_value_bytes(r, op->out)));
    if (whole) TE_TRY(te_output(&y, r, s, last));
    else {
        y = te_value_of(r->pass == TE_FORWARD && te_in_memory(r->plan, last) ? r->act[last] : 0);
        if (!y.p && chosen) y = te_hold(r, middle);
        else if (!y.p) TE_TRY(te_acquire(r, &y, te_value_bytes(r, op->out)));
    }
    g->d = y.p;
    if (own) { /* its product is stored only where backward reads it; the room is taken all the same: see te__linear_backward_row */
        const int kept = r->pass == TE_FORWARD && te_in_memory(r->plan, last);
        te_set_now(r, kept ? y : te_value_of(0));
        TE_TRY(te_product_step(r, s, kernels->whole, g, kernels->shape));
        if (!kept) te_drop(r, y);
        te_drop(r, middle), te_drop(r, x);
        return TE_OK;
    }
    TE_TRY(te__linear_gemm(r, g, kernels->bare));
    if (g->beta != 0) {
        const int edge = r->plan->op[last].edge;
        te_drop(r, r->edge[edge]), r->edge[edge] = te_value_of(0);
    }
    te_set_now(r, y);
    if (!whole) TE_TRY(te_chain_step(r, s, 1, taken, kernels->launch, kernels->shape));
    te_drop(r, middle), te_drop(r, x);
    return TE_OK;
}

/* ---- which split -------------------------------------------------------------------------------------------------- */

/* A step to time: the walk that it is in, with scratch memory in all places. */
typedef struct te__linear_trial {
    te_run run;
    const te_step *step;
    const te__linear_kernels *kernels;
    te_gemm gemm;
    int count;
    te_split split[TE_SPLIT_COUNT];
    te_param param[TE_MAX_ROW][TE_MAX_PARAMS];
} te__linear_trial;

TE_API te_status te__linear_trial_run(void *arg, int racer, int lap, te_context *ctx) {
    te__linear_trial *t = (te__linear_trial *)arg;
    te_run r = t->run;
    te_gemm g = t->gemm;
    (void)lap;
    const int taken = te__linear_take(&g, &r, t->step, t->split[racer]);
    TE_REQUIRE(taken >= 0, ctx, TE_ERROR_STATE, "%s cannot be split so", t->step->row);
    return te__linear_split(&r, t->step, t->kernels, &g, taken, t->split[racer] == TE_SPLIT_OWN);
}
/* Give the trial its memory at `base`. Returns the bytes it takes. */
TE_API size_t te__linear_lay_out(te__linear_trial *t, const te_run *of, char *base) {
    te_run *r = &t->run;
    const te_step *s = t->step;
    const size_t size = te_dtype_bytes(r->plan->dtype);
    size_t at = TE_ALIGN, widest = 0;
    r->rng = (te_rng *)(void *)base;
    for (int j = 0; j < s->count; j++) {
        const int i = s->op[j];
        const te_op *op = &r->plan->op[i];
        const size_t bytes = te_value_bytes(r, (int)te_max(op->in, op->out));
        widest = bytes > widest ? bytes : widest;
        r->act[i] = base + at, at += bytes;
        r->stats[i] = (float *)(void *)(base + at), at += (size_t)te_round_up(r->padded * op->stats * (int64_t)sizeof(float), TE_ALIGN);
        if (op->flags & TE_IS_ADD) r->act[op->edge] = base + at, r->edge[op->edge] = te_value_of(base + at), at += bytes;
        r->param[i] = t->param[j];
        for (int k = 0; k < op->params; k++) {
            t->param[j][k] = of->param[i][k], t->param[j][k].data = base + at;
            at += (size_t)te_round_up(t->param[j][k].rows * t->param[j][k].cols * (int64_t)size, TE_ALIGN);
        }
    }
    r->x = base + at, at += widest; /* stands for an input or output of the list */
    r->y = base + at, at += widest;
    r->now = te_value_of(base + at), at += widest;
    r->pool.base = base + at; /* a split acquires two pieces, and one for each fork */
    return at + (size_t)(s->count + 2) * widest;
}
/* Time the splits of this step, and remember the fastest; the first, without times, where there was no memory to time it. */
TE_API te_status te__linear_time(te_gemm_choice *c, te__linear_trial *t, const te_run *r) {
    te_context *ctx = r->ctx;
    char error[sizeof ctx->error];
    int64_t ns[TE_SPLIT_COUNT] = {0};
    int winner = -1;
    size_t bytes = 0;
    void *memory = 0;
    memcpy(error, ctx->error, sizeof error);
    te__begin(&t->run, r->plan, r->pass, r->rows, ctx);
    t->run.dry = 0;
    bytes = te__linear_lay_out(t, r, (char *)(uintptr_t)TE_ALIGN);
    te_status status = te_allocate(ctx, &memory, bytes);
    /* normal numbers of the size of weights: sums over k stay small */
    if (status == TE_OK) status = te_fill_normal(memory, r->plan->dtype, (int64_t)(bytes / te_dtype_bytes(r->plan->dtype)), 0.0f, 0.05f, 1, 0, ctx);
    if (status == TE_OK) {
        (void)te__linear_lay_out(t, r, (char *)memory);
        t->gemm.a = t->run.now.p, t->gemm.b = t->run.param[t->step->op[0]]->data;
        status = te__race(ns, &winner, t->count, 1, TE__ROUNDS, te__linear_trial_run, t, ctx);
    }
    te_release(ctx, memory);
    if (status != TE_OK && status != TE_ERROR_MEMORY) return status;
    memcpy(ctx->error, error, sizeof error);
    c->split = t->split[winner < 0 ? 0 : winner];
    for (int i = 0; winner >= 0 && i < t->count; i++) c->ns[t->split[i]] = ns[i];
    te__gemm_keep_choice(c, ctx);
    return TE_OK;
}
/* Set up the product, and say how many ops it takes along, or that one kernel does all (own). By default that one where it should
 * pay; else all of the row; if that cannot be, a bias whose result backward needs. Where steps are tuned, the fastest. */
TE_API te_status te__linear_choose(te_gemm *g, int *taken, int *own, te_run *r, const te_step *s, const te__linear_kernels *kernels) {
    te_split can[TE_SPLIT_COUNT];
    const te_gemm bare = *g;
    int count = 0, split = TE_SPLIT_WHOLE;
    const int can_own = s->count > 1 && te_product_can(kernels->whole, g, r->ctx);
    *own = can_own && te_product_pays(g, r->ctx);
    if (*own) split = TE_SPLIT_OWN;
    while ((*taken = te__linear_take(g, r, s, (te_split)split)) < 0) split--;
    if (s->count < 2 || !te__gemm_chooses(r->ctx)) return TE_OK;

    te_gemm_choice c;
    memset(&c, 0, sizeof c);
    if (strlen(s->row) >= sizeof c.row) return TE_OK;
    memcpy(c.row, s->row, strlen(s->row));
    c.m = g->m, c.n = g->n, c.k = g->k, c.dtype = g->dtype, c.training = r->pass == TE_FORWARD;
    for (int j = 1; j < s->count; j++) c.kept |= (unsigned)(te_in_memory(r->plan, s->op[j]) != 0) << j;
    const te_gemm_choice *found = te__gemm_find_choice(&c, r->ctx);
    if (!found && r->dry && te__gemm_may_time(r->ctx)) { /* in the dry walk: both walks then do the same */
        can[count++] = (te_split)split;
        for (int i = TE_SPLIT_COUNT - 1; i >= 0; i--) {
            te_gemm tried = bare;
            if (i != split && (i != TE_SPLIT_OWN || can_own) && te__linear_take(&tried, r, s, (te_split)i) >= 0) can[count++] = (te_split)i;
        }
        if (count < 2) return TE_OK;
        te__linear_trial t;
        memset(&t, 0, sizeof t);
        t.step = s, t.kernels = kernels, t.gemm = bare, t.count = count;
        memcpy(t.split, can, sizeof can);
        TE_TRY(te__linear_time(&c, &t, r));
        found = te__gemm_find_choice(&c, r->ctx);
    }
    if (!found || (int)found->split == split || (found->split == TE_SPLIT_OWN && !can_own)) return TE_OK;
    te_gemm tried = bare;
    const int takes = te__linear_take(&tried, r, s, found->split);
    if (takes >= 0) *g = tried, *taken = takes, *own = found->split == TE_SPLIT_OWN;
    return TE_OK;
}

TE_API te_status te__linear_forward(te_run *r, const te_step *s, const te__linear_kernels *kernels) {
    const te_op *op = &r->plan->op[s->op[0]];
    int taken, own;
    te_gemm g = te_gemm_of(r->rows, op->out, op->in);
    g.a = r->now.p, g.b = r->param[s->op[0]]->data, g.trans_b = 1, g.dtype = g.out = r->plan->dtype;
    TE_TRY(te__linear_choose(&g, &taken, &own, r, s, kernels));
    return te__linear_split(r, s, kernels, &g, taken, own);
}

/* dx = dy weight, and the chain of the ops before. */
TE_API te_status te__linear_backward_row(te_run *r, const te_step *s, const te__linear_kernels *kernels, te_gemm *x) {
    const int own = te_product_can(kernels->whole, x, r->ctx) && te_product_pays(x, r->ctx);
    const te_value dy = te_hold(r, r->now);
    te_value dx = te_value_of(0);
    TE_TRY(te_acquire(r, &dx, te_value_bytes(r, (int)x->n)));
    x->d = dx.p;
    if (own) { /* dx goes nowhere; its room is held, for a smaller batch takes two kernels in the memory reserved for this one */
        te_set_now(r, te_value_of(0));
        TE_TRY(te_product_step(r, s, kernels->whole, x, kernels->shape));
        te_drop(r, dx), te_drop(r, dy);
        return TE_OK;
    }
    TE_TRY(te__linear_gemm(r, x, kernels->bare));
    te_set_now(r, dx), te_drop(r, dy);
    return te_chain_step(r, s, 1, 0, kernels->launch, kernels->shape);
}

/* dweight[out, in] (+)= dy^T x, in f32;  dx[rows, in] = dy weight (+ the gradient that the fork before it kept). */
TE_API te_status te__linear_backward(te_run *r, const te_step *s, const te__linear_kernels *kernels) {
    const int i = s->op[0], last = s->op[s->count - 1];
    const te_op *op = &r->plan->op[i];
    te_param *p = r->param[i];
    const te_dtype dtype = r->plan->dtype;
    te_gemm w = te_gemm_of(op->out, op->in, r->rows);
    w.a = r->now.p, w.trans_a = 1, w.b = i ? r->act[i - 1] : r->x, w.dtype = dtype, w.out = TE_f32;
    w.c = w.d = p->grad, w.beta = te_accumulates(r, p) ? 1.0f : 0.0f;
    TE_TRY(te__linear_gemm(r, &w, 0));

    te_gemm x = te_gemm_of(r->rows, op->in, op->out);
    x.a = r->now.p, x.b = p->data, x.dtype = x.out = dtype;
    if (kernels->launch) return te__linear_backward_row(r, s, kernels, &x);
    te_value dx;
    TE_TRY(te_gradient(&dx, r, s, last));
    if (dx.p) {
        x.d = dx.p;
        if (s->count > 1 && r->edge[last].p) x.c = r->edge[last].p, x.beta = 1.0f;
        TE_TRY(te__linear_gemm(r, &x, kernels->bare));
    }
    if (s->count > 1) te_drop(r, r->edge[last]), r->edge[last] = te_value_of(0);
    te_set_now(r, dx);
    return TE_OK;
}

TE_API te_status te_linear_step(te_run *r, const te_step *s, te_chain_launch_fn launch, te_chain_shape k, te_product_kernels *whole, te_product_kernels *bare) {
    const te__linear_kernels kernels = {launch, k, whole, bare};
    return r->pass == TE_BACKWARD ? te__linear_backward(r, s, &kernels) : te__linear_forward(r, s, &kernels);
}

#endif
