/* combine.h -- (combine, r): y[token] = the sum of the token's routed rows, each multiplied by its router weight, added
 * in the order in which router r has chosen the experts. After this op there is again one row for each token (router.h
 * describes routed rows).
 *
 * Do this:
 *     (router, r, H, E, (top_k, 2)), (expert_linear, up, H, F, E), (gelu, act), (expert_linear, down, F, H, E),
 *     (combine, r)
 */
#ifndef TE_OPS_COMBINE_H
#define TE_OPS_COMBINE_H

#include "router.h" /* te_routing */

#define TE_OP_combine (combine, custom)
#define TE_SHAPES_combine(op) (1)
#define TE_ROWS_combine(op, in) ((int)(in) & (int)TE_ROWS_exchanged ? (int)TE_ROWS_shard : (int)TE_ROWS_tokens)
#define TE_LAYOUT_combine(op, in)                                               \
    ((int)(in) == (int)TE_LAYOUT_partial_grad ? (int)TE_LAYOUT_partial_sum      \
     : (int)(in) == (int)TE_LAYOUT_some_rows  ? (int)TE_LAYOUT_replicated       \
                                              : (int)(in))
#define TE_FLAGS_combine(op) (TE_SAVES_INPUT)
#define TE_EDGE_combine(model, op) (TE__ROUTER_INDEX(model, TE_FORK_OF(op)), TE_JOIN2(, model, dtype))
#define TE_CHECK_combine(model, op)                                                                                  \
    (static_assert((int)TE__ROUTER_INDEX(model, TE_FORK_OF(op)) < (int)TE_ID(model, op), "te: the order of the list"); \
     static_assert((int)TE_ROWS_IN(model, op) ==                                                                     \
                       (int)TE_JOIN4(, model, router, TE_FORK_OF(op), routed),                                       \
                   TE__ROUTER_TEXT(model, op) " does not stand on the rows of its router");)

/* The arguments of the kernels that read or write routed rows; each kernel uses some of them. */
typedef struct te_routed_args {
    te_routing at;
    const void *x;     /* the op's input; in backward the copy that forward has saved */
    const void *dy;
    const void *bias;  /* [experts, width] */
    void *y;           /* forward: y; backward: dx, or null if dx is not wanted */
    void *dx;          /* for te_routed_weigh: the gradient of the routed rows */
    float *dweight;    /* backward: the gradients of the weights, [tokens, top_k], or of the bias, [experts, width] */
    int64_t tokens, rows; /* rows: number of routed rows */
    int width, top_k;
    int weighs;        /* for te_routed_gather: 1 if the kernel multiplies the rows by their router weights, as with the
                        * option (weigh, input) */
    int accumulate;    /* 1 if the kernel adds to dweight, 0 if it overwrites dweight */
    /* for te_routed_quantize: 1 if x has one row for each token, 0 if x has the routed rows */
    int gathers;
    te_dtype dtype;     /* for te_routed_quantize: the dtype of x */
    te_scale_rule rule; /* for te_routed_quantize: how a scale is computed from an amax */
    float *inverse;     /* for te_routed_quantize, which stores here the inverses of the scales */
} te_routed_args;
typedef te_status (*te_routed_launch_fn)(te_context *, te_grid, const te_routed_args *);

/* Computes y, the forward of combine. A warp computes one token. Memory traffic: reads the routed rows, writes y. */
TE_FN void te_combine_rows(const te_routed_args *a, te_block b, const int top_k, const int width, const te_formats f) {
    int group;
    const te_lanes g = te_lanes_here(TE_ROUTER_LANES, &group);
    const int64_t token = (int64_t)b.x * TE_ROUTER_WARPS + group;
    if (token >= a->tokens) return;
    for (int c = g.id * 8; c < width; c += g.count * 8) {
        const int n = (int)te_min(8, width - c), aligned = width % 8 == 0;
        float v[8], sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        TE_UNROLL for (int j = 0; j < top_k; j++) {
            const float w = te__output_weight(&a->at, token * top_k + j);
            if (!te__is_computed(&a->at, token * top_k + j)) continue;
            te_load8(v, a->x, (int64_t)a->at.row[token * top_k + j] * width + c, n, aligned, f.in);
            TE_UNROLL for (int i = 0; i < 8; i++) sum[i] += w * v[i];
        }
        te_store8(a->y, token * width + c, sum, n, aligned, f.out);
    }
}
/* Forward computes y = sum(w x) over the token's experts. Backward therefore computes dx = w dy, and dw = sum(dy x)
 * over the columns. Memory traffic: reads dy and the saved routed rows, writes dx. */
TE_FN void te_combine_gradient(const te_routed_args *a, te_block b, const int top_k, const int width,
                               const te_formats f) {
    int group;
    te_lanes g = te_lanes_here(TE_ROUTER_LANES, &group);
    const int64_t token = (int64_t)b.x * TE_ROUTER_WARPS + group;
    float sum[TE_ROUTER_MAX_TOP_K];
    if (token >= a->tokens) return;
    TE_UNROLL for (int j = 0; j < top_k; j++) sum[j] = 0;
    for (int c = g.id * 8; c < width; c += g.count * 8) {
        const int n = (int)te_min(8, width - c), aligned = width % 8 == 0;
        float v[8], x[8];
        te_load8(v, a->dy, token * width + c, n, aligned, f.out);
        TE_UNROLL for (int j = 0; j < top_k; j++) {
            const int64_t at = (int64_t)a->at.row[token * top_k + j] * width + c;
            const float w = te__output_weight(&a->at, token * top_k + j);
            if (!te__is_computed(&a->at, token * top_k + j)) continue;
            te_load8(x, a->x, at, n, aligned, f.in);
            TE_UNROLL for (int i = 0; i < 8; i++) if (i < n) sum[j] += v[i] * x[i];
            TE_UNROLL for (int i = 0; i < 8; i++) x[i] = w * v[i];
            if (a->y) te_store8(a->y, at, x, n, aligned, f.in);
        }
    }
    TE_UNROLL for (int j = 0; j < top_k; j++) {
        te_lanes_sum(&sum[j], 1, &g);
        if (g.id == 0) a->dweight[token * top_k + j] = sum[j];
    }
}
#define TE__COMBINE_STEP(name, model, dtype, op, body)                                                               \
    TE_KERNEL(name, TE_ROUTER_THREADS, te_routed_args,                                                              \
              body(te_args, te_at, (int)TE_ROWS_IN(model, op) & 255, (int)TE_WIDTH_IN(model, op),                    \
                   te_formats_of((int)TE_DTYPE_IN(model, op),                                                        \
                                 (int)TE_ROWS_IN(model, op) & (int)TE_ROWS_exchanged ? (int)TE_##dtype               \
                                                                                     : (int)TE_DTYPE_OUT(model, op), \
                                 (int)TE_##dtype, (int)TE_##dtype)))                                                 \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__combine_run(r, s, name##_launch); }
#define TE_CUSTOM_combine_forward(name, model, dtype, op) TE__COMBINE_STEP(name, model, dtype, op, te_combine_rows)
#define TE_CUSTOM_combine_backward(name, model, dtype, op) TE__COMBINE_STEP(name, model, dtype, op, te_combine_gradient)

TE_IF_USED TE_API te_status te__combine_run(te_run *r, const te_step *s, te_routed_launch_fn launch) {
    const int i = s->op[0], router = r->plan->op[i].edge, top_k = te__rows_per_token(r->plan->op[i].in_rows);
    const int exchanges = te__is_exchange(r->plan, router);
    te_routed_args a;
    te_value y, dweight, part, dy = r->current;
    TE_REQUIRE(te__router_of(r->plan, i) == router, r->ctx, TE_ERROR_STATE,
               "%s: (combine, %s) stands on the rows of another router", r->plan->name, r->plan->op[i].name);
    memset(&a, 0, sizeof a);
    a.at = te__routing_of(r, router), a.tokens = r->tokens, a.x = r->current.data;
    if (r->pass == TE_BACKWARD) {
        if (exchanges) TE_TRY(te__dispatch(&dy, r, router));
        a.dy = dy.data, a.x = te__input_of(r, i).data;
        TE_TRY(te__gradient(&y, r, s, i));
        dweight = te__value_of(0, TE_f32, r->tokens, top_k);
        TE_TRY(te__acquire_bytes(r, &dweight, (size_t)(te__capacity_rows(r) * top_k) * sizeof(float)));
        te__set_edge(r, router, dweight);
        a.dweight = (float *)dweight.data;
    } else TE_TRY(te__output(&y, r, s, i));
    const int returns = exchanges && r->pass != TE_BACKWARD;
    part = y;
    if (returns) TE_TRY(te__acquire(r, &part, TE_ROWS_tokens, r->plan->op[i].out, r->plan->dtype));
    a.y = part.data;
    if (!r->dry) TE_TRY(launch(r->ctx, te__grid_of(te_ceil_div(a.tokens, TE_ROUTER_WARPS), 1), &a));
    if (returns) TE_TRY(te__return(y, r, router, part, 0));
    te__set_current(r, y);
    if (r->pass == TE_INFER) te__set_edge(r, router, te__no_value());
    return TE_OK;
}

#endif
