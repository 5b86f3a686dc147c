/* positions.h -- (positions, name, length, width): y[row] = x[row] + weight[position of the row], learnt positions. The
 * kernel of its forward is the embedding's.
 */
#ifndef TE_OPS_POSITIONS_H
#define TE_OPS_POSITIONS_H

#include "embedding.h" /* te_embedding_rows, te__embedding_forward */

#define TE_OP_positions (positions, custom)
#define TE_SHAPES_positions(op) (2)
#define TE_IN_positions(op) (TE_ARG2(op, 0))
#define TE_PARAMS_positions(op, in, out) ((weight, TE_ARG1(op, 0), out, normal))
#define TE_CHECK_positions(model, op)                                                         \
    (TE__HAS_ROWS(model, op, "length")                                                        \
     static_assert((int)TE_ROWS_OUT(model, op) == (int)TE_ROWS_tokens ||                      \
                       (int)TE_ROWS_OUT(model, op) == (int)TE_ROWS_shard,                     \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) " needs a row for each token");)
#define TE_TAKES_DIMS_positions ,

#define TE_CUSTOM_positions_forward(name, model, dtype, op) TE__EMBEDDING_FORWARD(name, model, dtype, op, 1)
#define TE_CUSTOM_positions_backward(name, model, dtype, op)                             \
    TE__EMBEDDING_KERNEL(name, te_positions_gradient, TE__EMBEDDING_WIDTH(model, op), \
        (te_dtype)TE_DTYPE_OUT(model, op))                                            \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__positions_backward(r, s, name##_launch); }

/* dweight[position] (+)= sum over the sequences of dy. */
TE_FN void te_positions_gradient(const te_embedding_args *a, te_block b, int width, te_dtype dtype) {
    int group;
    const te_lanes g = te_lanes_here(TE_EMBEDDING_LANES, &group);
    const int64_t t = (int64_t)b.x * TE_EMBEDDING_GROUPS + group;
    const int c = (b.y * TE_EMBEDDING_LANES + g.id) * 8, n = (int)te_min(8, width - c), aligned = width % 8 == 0;
    if (t >= a->size || c >= width) return;
    const int64_t row = t - a->position;
    float v[8], sum[8] = {0};
    if (a->accumulate) te_load8(sum, a->y, t * width + c, n, aligned, TE_f32);
    for (int s = 0; row >= 0 && s < a->of.count; s++) {
        const te_sequence own = te_sequence_rows(&a->of, s);
        const int64_t at = own.first + row - a->first;
        if (row >= own.count || at < 0 || at >= a->rows) continue; /* none, or another rank's */
        te_load8(v, a->x, at * width + c, n, aligned, dtype);
        TE_UNROLL for (int i = 0; i < 8; i++) sum[i] += v[i];
    }
    te_store8(a->y, t * width + c, sum, n, aligned, TE_f32);
}

TE_API te_status te__positions_backward(te_run *r, const te_step *s, te_embedding_launch_fn launch) {
    const int i = s->op[0];
    te_param *p = r->param[i];
    te_embedding_args a = te__embedding_args(r, i);
    const te_grid grid =
        te_grid_of(te_ceil_div(a.size, TE_EMBEDDING_GROUPS), te_ceil_div(p->cols, 8 * TE_EMBEDDING_LANES));
    te_value dx = r->current;
    TE_TRY(te__embedding_check(r, &a, &r->plan->op[i], 1));
    a.y = p->grad, a.accumulate = te_accumulates(r, p);
    if (!r->dry && te_is_trained(p)) TE_TRY(launch(r->ctx, grid, &a));
    TE_TRY(te_convert_value(&dx, r, r->plan->op[i].in_dtype)); /* y = x + weight: the gradient goes on as it is */
    te_set_current(r, dx);
    return TE_OK;
}

#endif
