/* head_norm.h -- (head_norm, name, heads, kv_heads, head_dim) and, with weights that are stored less 1,
 * (head_norm1p, name, heads, kv_heads, head_dim); option (eps, 1e-5f)
 *
 * RMSNorm of each head of q and of k by itself, on packed rows [q of all heads, k of all kv_heads, v of all kv_heads];
 * v passes through. One weight [head_dim] for all heads of q and one for those of k (Dehghani et al. 2023; Qwen3,
 * Gemma 3, where it is stored less 1). Of a head x, w its weight, D = head_dim:
 *     forward     y = x rstd w, rstd = (sum(x^2) / D + eps)^-1/2
 *     backward    dx = rstd (w dy - x rstd^2 / D sum(w dy x)),  dw = the sum over rows and heads of dy x rstd
 * With a rope behind it one kernel turns the heads, too: head_norm_rope, in backward rope_head_norm.
 * A rank of a tensor group that has some of the heads has both weights, and a part of the sum that is dw.
 * Bytes: x and y of a row, in backward x, dy and dx; rstd is computed again.
 */
#ifndef TE_OPS_HEAD_NORM_H
#define TE_OPS_HEAD_NORM_H

#include "../plan/impl/gradients.h"  /* te_defer_column_sum */
#include "head_norm_kernels.h" /* te_head_rows, te_head_gradient */

#define TE_OP_head_norm (head_norm, custom)
#define TE_OP_head_norm1p (head_norm, custom)
#define TE_SHAPES_head_norm(op) (3)
#define TE_IN_head_norm(op) (((int)(TE_ARG1(op, 0)) + 2 * (int)(TE_ARG2(op, 0))) * (int)(TE_ARG3(op, 0)))
#define TE_FLAGS_head_norm(op) (TE_SAVES_INPUT | TE_PARAMS_REPLICATED)
#define TE_LAYOUT_FITS_head_norm(op, in) ((int)(in) == (int)TE_LAYOUT_replicated || (int)(in) == (int)TE_LAYOUT_columns)
#define TE_PARAMS_head_norm(op, in, out) TE_JOIN1(TE__PARAMS_OF_, TE_KIND(op))(TE_ARG3(op, 0))
#define TE__PARAMS_OF_head_norm(dim) ((q_weight, 1, dim, one), (k_weight, 1, dim, one))
#define TE__PARAMS_OF_head_norm1p(dim) ((q_weight, 1, dim, zero), (k_weight, 1, dim, zero))
#define TE_TAKES_head_norm_eps TE_NUMBER
#define TE__HEAD_EPS(op) (float)(TE_OPTION(op, eps, 1e-5f))
#define TE_OPTIONS_head_norm(op) (te_head_norm_options, TE__HEAD_EPS(op))
#define TE_CHECK_head_norm(model, op)                                                                             \
    (static_assert((TE_ARG1(op, 0)) > 0 && (TE_ARG2(op, 0)) > 0 && (TE_ARG3(op, 0)) > 0,                          \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": heads, kv_heads and head_dim must be positive"); \
     static_assert((TE_ARG3(op, 0)) <= (int)TE_HEAD_NORM_MOST,                                                    \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": head_dim is 480 at most");                       \
     TE_ASSERT_NUMBER(TE__HEAD_EPS(op) >= 0 && TE__HEAD_EPS(op) < 3e38f,                                          \
                      "te: " TE_STRING(model) ": " TE_CALLED(op) ": eps must be a finite number of at least 0");)

typedef struct te_head_norm_options { float eps; } te_head_norm_options;

#define TE_CUSTOM_head_norm_forward(name, model, dtype, op) TE__HEAD_FORWARD(name, model, dtype, op, op, 0, 0, 0)
#define TE_CUSTOM_head_norm_backward(name, model, dtype, op) TE__HEAD_BACKWARD(name, model, dtype, op, op, 0, 0, 0)
#define TE_PAIR_head_norm_rope ,
#define TE_PAIR_rope_head_norm ,
#define TE_CUSTOM_PAIR_head_norm_rope_forward(name, model, dtype, op, turn)                    \
    TE__SAME_HEADS(name, op, turn)                                                          \
    TE__HEAD_FORWARD(name, model, dtype, op, turn, TE__ROTARY(turn), TE__INTERLEAVED(turn), \
        !TE__ROPE_IS(turn, none))
#define TE_CUSTOM_PAIR_rope_head_norm_backward(name, model, dtype, turn, op)                    \
    TE__SAME_HEADS(name, op, turn)                                                           \
    TE__HEAD_BACKWARD(name, model, dtype, op, turn, TE__ROTARY(turn), TE__INTERLEAVED(turn), \
        !TE__ROPE_IS(turn, none))
#define TE__SAME_HEADS(name, op, turn)                                                                \
    static_assert((TE_ARG1(op, 0)) == (TE_ARG1(turn, 0)) && (TE_ARG2(op, 0)) == (TE_ARG2(turn, 0)) && \
                      (TE_ARG3(op, 0)) == (TE_ARG3(turn, 0)),                                         \
                  "te: " #name ": " TE_CALLED(op) " and " TE_CALLED(turn) " must have the same heads");

/* `end` is the row's other op, or the same. */
#define TE__HEAD_FORWARD(name, model, dtype, op, end, rotary, interleaved, scaled)                                 \
    TE__HEAD_SHAPE(name, dtype, op, rotary, interleaved, scaled, TE_DTYPE_IN(model, op), TE_DTYPE_OUT(model, end), \
                   TE_DTYPE_IN(model, op))                                                                         \
    TE_KERNEL(name, TE_HEAD_THREADS, te_head_args,                                                                 \
              TE_SHARED float te_turns[TE_HEAD_ROWS * TE__TURNS(rotary)];                                          \
              te_head_rows(te_args, te_at, te_turns, name##_of()))                                                 \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__head_norm_run(r, s, name##_launch); }
#define TE__HEAD_BACKWARD(name, model, dtype, op, end, rotary, interleaved, scaled)                                \
    TE__HEAD_SHAPE(name, dtype, op, rotary, interleaved, scaled, TE_DTYPE_OUT(model, end), TE_DTYPE_IN(model, op), \
                   TE_DTYPE_IN(model, op))                                                                         \
    TE_KERNEL_RESIDENT(name, TE_HEAD_THREADS, 2, te_head_args,                                                     \
                       TE_SHARED float te_turns[TE_HEAD_ROWS_BACKWARD * TE__TURNS(rotary)];                        \
                       te_head_gradient(te_args, te_at, te_turns, name##_of()))                                    \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__head_gradient_run(r, s, name##_launch); }
#define TE__HEAD_SHAPE(name, dtype, op, rotary, interleaved, scaled, gets, gives, saved)                          \
    TE_BOTH te_head_shape name##_of(void) {                                                                       \
        const te_head_shape k = {TE_ARG1(op, 0), TE_ARG2(op, 0), TE_ARG3(op, 0),                                  \
            (rotary) && !(interleaved) ? (rotary) / 2 : (rotary) ? 0 : (TE_ARG3(op, 0)) / 2, rotary, interleaved, \
            scaled, TE__IS_1P(op), TE__HEAD_EPS(op), (te_dtype)(gets), (te_dtype)(gives), TE_##dtype,             \
            (te_dtype)(saved)};                                                                                   \
        return k;                                                                                                 \
    }
#define TE__IS_1P(op) TE_IF_MARKED(TE_JOIN1(TE__1P_, TE_KIND(op)), 1, 0)
#define TE__1P_head_norm1p ,
#define TE__TURNS(rotary) (2 * (((rotary) / 2 + 7) / 8 * 8) + 1) /* floats of a row: cosines and sines, and no 0 */

/* In forward s has the norm first, in backward last; the other op, if there is one, is a rope. */
TE_API te_status te__head_args(te_head_args *a, te_run *r, const te_step *s, int i, te_value y) {
    memset(a, 0, sizeof *a);
    for (int j = 0; j < 2; j++) a->w[j] = r->param[i][j].data;
    if (s->count > 1) te__rope_fill(&a->at, r, r->pass == TE_BACKWARD ? s->op[0] : s->op[1], y);
    a->at.y = y.data, a->at.x = r->current.data, a->at.rows = y.rows;
    return TE_OK;
}
TE_API te_status te__head_norm_run(te_run *r, const te_step *s,
                                   te_status (*launch)(te_context *, te_grid, const te_head_args *)) {
    te_head_args a;
    te_value y;
    TE_TRY(te_output(&y, r, s, s->op[s->count - 1]));
    TE_TRY(te__head_args(&a, r, s, s->op[0], y));
    if (!r->dry) TE_TRY(launch(r->ctx, te_grid_of(te_ceil_div(a.at.rows, TE_HEAD_ROWS), 1), &a));
    te_set_current(r, y);
    return TE_OK;
}
TE_API te_status te__head_gradient_run(te_run *r, const te_step *s,
                                       te_status (*launch)(te_context *, te_grid, const te_head_args *)) {
    const int i = s->op[s->count - 1], most = TE_CUDA ? 2 * (int)te_max(1, r->ctx->processors) : 16;
    te_head_args a;
    te_value dx;
    TE_TRY(te_gradient(&dx, r, s, i));
    TE_TRY(te__head_args(&a, r, s, i, dx));
    a.at.rows = r->current.rows, a.saved = te_input_of(r, i).data;
    const int blocks = (int)te_min(a.at.rows, most);
    for (int j = 0; j < 2; j++)
        TE_TRY(te_defer_column_sum(r, &a.sum[j], &r->param[i][j], (int)r->param[i][j].cols, blocks, most));
    if (!r->dry) TE_TRY(launch(r->ctx, te_grid_of(blocks, 1), &a));
    te_set_current(r, dx);
    return TE_OK;
}

#endif
