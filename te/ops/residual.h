/* residual.h -- edges beside the list's main road.
 *
 *   (fork, x)            passes its input on, and keeps it for
 *   (add, x)             y = what it gets + what (fork, x) or (input, x) kept; each is added once
 *   (input, x, width)    declares an extra input of the list: te_batch.edges brings it by name
 *   (output, x)          passes its input on, and writes it to the caller's tensor of that name
 *
 * In backward the add hands its gradient to the fork, which adds it to its own; that costs nothing but the sum.
 */
#ifndef TE_OPS_RESIDUAL_H
#define TE_OPS_RESIDUAL_H

#include "../fuse/chain.h" /* te_stage, te_at */

#define TE_OP_fork (fork, 0, map)
#define TE_OP_input (fork, 1, map)
#define TE_IN_fork(op) 0
#define TE_OUT_fork(op, in) in
#define TE_FLAGS_fork(op) (TE_IS_FORK | (TE_CODE(op) ? TE_IS_INPUT : 0))
#define TE_TRAITS_fork(model, op, in, out) 0, -1, {0, 0}, TE_NO_PARAMS
#define TE_FIELDS_fork(op)
/* The names say what is wrong where the compiler misses one, or sees one twice. */
#define TE_DECLARE_fork(model, op)                                                                                 \
    enum {                                                                                                         \
        TE_JOIN4(te_error_add_, TE_NAME(op), of, model, has_no_fork_before_it) = TE_ID(model, op),                 \
        TE_JOIN4(te_width_of_, TE_NAME(op), of, model, fork) = TE_CODE(op) ? TE_ARG1(op, 0) : TE_WIDTH_OUT(model, op) \
    };

#define TE_OP_add (add, 0, map)
#define TE_IN_add(op) 0
#define TE_OUT_add(op, in) in
#define TE_FLAGS_add(op) (TE_IS_ADD | TE_KEEPS_GRAD)
#define TE_TRAITS_add(model, op, in, out) 0, TE_JOIN4(te_error_add_, TE_NAME(op), of, model, has_no_fork_before_it), {0, 0}, TE_NO_PARAMS
#define TE_FIELDS_add(op)
#define TE_DECLARE_add(model, op)                                                                                                       \
    enum { TE_JOIN4(te_error_fork_, TE_NAME(op), of, model, is_added_twice) = TE_JOIN4(te_error_add_, TE_NAME(op), of, model, has_no_fork_before_it) }; \
    static_assert((int)TE_JOIN4(te_width_of_, TE_NAME(op), of, model, fork) == (int)TE_WIDTH_OUT(model, op),                              \
                  "te: " TE_STRING(model) ": (add, " TE_STRING(TE_NAME(op)) ") has another width than its fork");

#define TE_OP_output (output, 0, map)
#define TE_IN_output(op) 0
#define TE_OUT_output(op, in) in
#define TE_FLAGS_output(op) (TE_IS_OUTPUT | TE_KEEPS_GRAD)
#define TE_TRAITS_output(model, op, in, out) 0, -1, {0, 0}, TE_NO_PARAMS
#define TE_FIELDS_output(op)
#define TE_DECLARE_output(model, op)

TE_FN void te_plus_edge8(float v[8], const te_stage *s, te_at at) {
    float e[8];
    if (!s->edge) return;
    te_read8(e, s->edge, s, at);
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] += e[i];
}
TE_FN void te_fork_forward(float v[8], const te_stage *s, te_at at, int code) { (void)v, (void)s, (void)at, (void)code; }
TE_FN void te_fork_backward(float v[8], float sum[8], const te_stage *s, te_at at, int code) {
    (void)sum, (void)code;
    te_plus_edge8(v, s, at); /* both of the fork's ends see x */
}
TE_FN void te_add_forward(float v[8], const te_stage *s, te_at at, int code) {
    (void)code;
    te_plus_edge8(v, s, at);
}
TE_FN void te_add_backward(float v[8], float sum[8], const te_stage *s, te_at at, int code) {
    (void)v, (void)sum, (void)s, (void)at, (void)code; /* y = x + kept: the gradient is the same for both */
}
TE_FN void te_output_forward(float v[8], const te_stage *s, te_at at, int code) { (void)v, (void)s, (void)at, (void)code; }
TE_FN void te_output_backward(float v[8], float sum[8], const te_stage *s, te_at at, int code) {
    (void)sum, (void)code;
    te_plus_edge8(v, s, at); /* the value goes out and goes on */
}

#endif
