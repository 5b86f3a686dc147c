/* residual.h -- edges beside the list's main road.
 *
 *   (fork, x)            passes its input on, and keeps it for
 *   (add, x)             y = what it gets + what (fork, x) or (input, x) kept; each is added once
 *   (input, x, width)    declares an extra input of the list: te_batch.edges brings it by name; option (dtype, f32)
 *   (output, x)          passes its input on, and writes it to the caller's tensor of that name
 *
 * In backward the add hands its gradient to the fork, which adds it to its own; that costs nothing but the sum.
 */
#ifndef TE_OPS_RESIDUAL_H
#define TE_OPS_RESIDUAL_H

#include "map.h" /* te_stage, te_place */

#define TE_OP_fork (fork, map)
#define TE_OP_input (fork, map)
#define TE__KIND_IS_INPUT_input ,
#define TE__IF_INPUT(op, yes, no) TE_IF_MARKED(TE_JOIN1(TE__KIND_IS_INPUT_, TE_KIND(op)), yes, no)
#define TE_SHAPES_fork(op) (TE__IF_INPUT(op, 1, 0))
#define TE_GIVES_fork(op) (TE_GIVES_same)
#define TE_WANTS_fork(op) (TE__IF_INPUT(op, TE_GIVES_list, TE_GIVES_residual))
#define TE_FLAGS_fork(op) (TE_IS_FORK | TE__IF_INPUT(op, TE_IS_INPUT, 0))
#define TE_TAKES_fork_dtype TE_TOKEN /* of an (input, ..) */
#define TE_EDGE_fork(model, op) (-1, TE__EDGE_DTYPE(model, op))
/* What the fork keeps, by its name. The names say what is wrong where the compiler misses one, or sees one twice. */
#define TE__EDGE_INDEX(model, op) TE_JOIN4(te_error_add_, TE_NAME(op), of, model, has_no_fork_before_it)
#define TE__EDGE_WIDTH(model, op) TE_JOIN4(te_width_of_, TE_NAME(op), of, model, fork)
#define TE__EDGE_ROWS(model, op) TE_JOIN4(te_rows_of_, TE_NAME(op), of, model, fork)
#define TE__EDGE_DTYPE(model, op) TE_JOIN4(te_dtype_of_, TE_NAME(op), of, model, fork)
#define TE_CHECK_fork(model, op)                                                                 \
    (enum {                                                                                      \
        TE__EDGE_INDEX(model, op) = TE_ID(model, op),                                            \
        TE__EDGE_WIDTH(model, op) = TE__IF_INPUT(op, TE_ARG1(op, 0), TE_WIDTH_OUT(model, op)),   \
        TE__EDGE_ROWS(model, op) = TE__IF_INPUT(op, -1, TE_ROWS_OUT(model, op)),                 \
        TE__EDGE_DTYPE(model, op) =                                                              \
            TE__IF_INPUT(op, (int)TE_DTYPE_OPTION(op, dtype, TE_JOIN2(, model, residual_dtype)), \
                TE_DTYPE_OUT(model, op))                                                         \
    };)

#define TE_OP_add (add, map)
#define TE_SHAPES_add(op) (0)
#define TE_GIVES_add(op) (TE_GIVES_residual)
#define TE_FLAGS_add(op) (TE_IS_ADD | TE_KEEPS_GRAD)
#define TE_EDGE_add(model, op) (TE__EDGE_INDEX(model, op), TE__EDGE_DTYPE(model, op))
#define TE__ADD_OF(model, op) TE_JOIN4(te_error_, TE_NAME(op), of, model, is_kept_and_never_added)
#define TE_CHECK_add(model, op)                                                                                      \
    (enum { TE_JOIN4(te_error_fork_, TE_NAME(op), of, model, is_added_twice) = TE__EDGE_INDEX(model, op),            \
        TE__ADD_OF(model, op) = TE_ID(model, op) };                                                                  \
    static_assert((int)TE__EDGE_WIDTH(model, op) == (int)TE_WIDTH_OUT(model, op),                                    \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) " has another width than its fork");                    \
    static_assert((int)TE__EDGE_ROWS(model, op) < 0 || (int)TE__EDGE_ROWS(model, op) == (int)TE_ROWS_OUT(model, op), \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) " has other rows than its fork");)

#define TE_OP_output (output, map)
#define TE_SHAPES_output(op) (0)
#define TE_GIVES_output(op) (TE_GIVES_same)
#define TE_FLAGS_output(op) (TE_IS_OUTPUT | TE_KEEPS_GRAD)

TE_FN void te_plus_edge8(float v[8], const te_stage *s, te_dtype dtype, te_place at) {
    float e[8];
    if (!s->edge) return;
    te_read8(e, s->edge, dtype, s, at);
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] += e[i];
}
TE_FN void te_fork_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    (void)v, (void)s, (void)at, (void)options;
}
TE_FN void te_fork_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options) {
    (void)sum, (void)options;
    te_plus_edge8(v, s, at.format.edge, at); /* both of the fork's ends see x */
}
TE_FN void te_add_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    (void)options;
    te_plus_edge8(v, s, at.format.edge, at);
}
TE_FN void te_add_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options) {
    (void)v, (void)sum, (void)s, (void)at, (void)options; /* y = x + kept: the gradient is the same for both */
}
TE_FN void te_output_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    (void)v, (void)s, (void)at, (void)options;
}
TE_FN void te_output_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options) {
    (void)sum, (void)options;
    te_plus_edge8(v, s, at.format.out, at); /* the value goes out and goes on */
}

#endif
