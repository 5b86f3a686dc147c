/* linear.h -- (linear, name, in, out): y[rows, out] = x[rows, in] weight[out, in]^T. A bias is an op of its own.
 * (tied_linear, name, in, out): the same, with a weight that belongs to another parameter (te_tie).
 *
 * A row that begins with it is one matrix product, which takes along what its back end can do at its end (a bias, a
 * gelu, a scale, a residual), and one chain kernel for the rest.
 */
#ifndef TE_OPS_LINEAR_H
#define TE_OPS_LINEAR_H

#include "../fuse/chain_run.h" /* te_chain_step */
#include "../gemm.h"           /* te_gemm_run */

#define TE_OP_linear (linear, 0, gemm)
#define TE_OP_tied_linear (linear, 1, gemm)
#define TE_IN_linear(op) TE_ARG1(op, 0)
#define TE_OUT_linear(op, in) TE_ARG2(op, 0)
#define TE_FLAGS_linear(op) TE_SAVES_INPUT
#define TE_TRAITS_linear(model, op, in, out) 0, -1, {0, 0}, 1, {{"weight", out, in, TE_INIT_normal, TE_CODE(op)}, TE_NO_PARAM}
#define TE_FIELDS_linear(op) struct { te_param weight; } TE_NAME(op);
#define TE_DECLARE_linear(model, op)

/* Run it, on the host with scratch from the workspace. */
TE_API te_status te__linear_gemm(te_run *r, te_gemm *g) {
    const size_t scratch = te_gemm_scratch(g) * sizeof(float);
    te_value v = te_value_of(0);
    if (scratch) TE_TRY(te_acquire(r, &v, scratch));
    g->scratch = (float *)v.p;
    if (!r->dry) TE_TRY(te_gemm_run(g, r->ctx));
    te_drop(r, v);
    return TE_OK;
}

TE_API int te__is(const te_run *r, const te_step *s, int j, const char *kind) {
    return j < s->count && !strcmp(r->plan->op[s->op[j]].kind, kind);
}

/* How many ops of the row the product takes along: all of the rest, the bias alone, or none. */
TE_API int te__linear_takes(te_gemm *g, te_run *r, const te_step *s) {
    const int rest = s->count - 1;
    int j = 1;
    if (te__is(r, s, j, "scale")) g->alpha = r->plan->op[s->op[j++]].value[0];
    if (te__is(r, s, j, "bias")) {
        g->epilogue = TE_EPILOGUE_BIAS, g->bias = r->param[s->op[j]]->data;
        if (te__is(r, s, j + 1, "gelu") && j + 1 == rest) {
            g->epilogue = r->pass == TE_FORWARD ? TE_EPILOGUE_GELU_AUX_BIAS : TE_EPILOGUE_GELU_BIAS;
            if (r->pass == TE_FORWARD) g->aux = r->act[s->op[j]];
            if (te_gemm_supports(g, r->ctx)) return rest;
            g->epilogue = TE_EPILOGUE_BIAS, g->aux = 0;
        }
        j++;
    }
    if (te__is(r, s, j, "add") && j == rest) g->beta = 1.0f, j++;
    if (j > rest && te_gemm_supports(g, r->ctx)) return rest;
    g->alpha = 1.0f, g->beta = 0;
    /* A bias whose result backward needs is written by the product, not by the kernel after it. */
    if (g->epilogue == TE_EPILOGUE_BIAS && te__is(r, s, 1, "bias") && r->pass == TE_FORWARD && te_in_memory(r->plan, s->op[1]) &&
        te_gemm_supports(g, r->ctx))
        return 1;
    g->epilogue = TE_EPILOGUE_NONE, g->bias = 0;
    return 0;
}

TE_API te_status te__linear_forward(te_run *r, const te_step *s, te_chain_launch_fn launch, te_chain_shape k) {
    const te_op *op = &r->plan->op[s->op[0]];
    te_gemm g = te_gemm_of(r->rows, op->out, op->in);
    g.a = r->now.p, g.b = r->param[s->op[0]]->data, g.trans_b = 1, g.dtype = g.out = r->plan->dtype;
    const int taken = te__linear_takes(&g, r, s), last = s->op[taken];
    if (g.beta != 0) TE_TRY(te_kept(&g.c, r, &r->plan->op[last]));
    te_value y;
    if (taken == s->count - 1) TE_TRY(te_output(&y, r, s, last));
    else {
        y = te_value_of(r->pass == TE_FORWARD && te_in_memory(r->plan, last) ? r->act[last] : 0);
        if (!y.p) TE_TRY(te_acquire(r, &y, te_value_bytes(r, op->out)));
    }
    g.d = y.p;
    TE_TRY(te__linear_gemm(r, &g));
    if (g.beta != 0) {
        const int edge = r->plan->op[last].edge;
        te_drop(r, r->edge[edge]), r->edge[edge] = te_value_of(0);
    }
    te_set_now(r, y);
    return taken == s->count - 1 ? TE_OK : te_chain_step(r, s, 1, taken, launch, k);
}

/* dweight[out, in] (+)= dy^T x, in f32;  dx[rows, in] = dy weight (+ the gradient that the fork before it kept). */
TE_API te_status te__linear_backward(te_run *r, const te_step *s) {
    const int i = s->op[0], last = s->op[s->count - 1];
    const te_op *op = &r->plan->op[i];
    te_param *p = r->param[i];
    const te_dtype dtype = r->plan->dtype;
    te_gemm w = te_gemm_of(op->out, op->in, r->rows);
    w.a = r->now.p, w.trans_a = 1, w.b = i ? r->act[i - 1] : r->x, w.dtype = dtype, w.out = TE_f32;
    w.c = w.d = p->grad, w.beta = te_accumulates(r, p) ? 1.0f : 0.0f;
    TE_TRY(te__linear_gemm(r, &w));

    te_value dx;
    TE_TRY(te_gradient(&dx, r, s, last));
    if (dx.p) {
        te_gemm x = te_gemm_of(r->rows, op->in, op->out);
        x.a = r->now.p, x.b = p->data, x.dtype = x.out = dtype, x.d = dx.p;
        if (s->count > 1 && r->edge[last].p) x.c = r->edge[last].p, x.beta = 1.0f;
        TE_TRY(te__linear_gemm(r, &x));
    }
    if (s->count > 1) te_drop(r, r->edge[last]), r->edge[last] = te_value_of(0);
    te_set_now(r, dx);
    return TE_OK;
}

TE_API te_status te_linear_step(te_run *r, const te_step *s, te_chain_launch_fn launch, te_chain_shape k) {
    return r->pass == TE_BACKWARD ? te__linear_backward(r, s) : te__linear_forward(r, s, launch, k);
}

#endif
