/* residual.h -- edges beside the list's main road.
 *
 *   (fork, x)            passes its input on, and keeps it
 *   (input, x, width)    declares an extra input of the list: te_batch.edges brings it by name; options (dtype, f32)
 *                        and (rows, memory): it has te_batch.memory_seq rows for each sequence, and not those of x.
 *                        A (load, x) goes on with these rows, a (cross_attention, ..) reads them (cross_attention.h)
 *   (add, x)             y = what it gets + what (fork, x) or (input, x) kept
 *   (mul, x)             y = what it gets * that
 *   (load, x)            y = that alone: the list goes on from there (te/ops/load.h)
 *   (output, x)          passes its input on, and writes it to the caller's tensor of that name
 *
 * What is kept is read at least once. To read it twice with ops of one kind, give the second a name of its own and say
 * which fork: (add, again, x). In backward each reader hands a gradient to the fork, which adds it to its own; with
 * several readers the last in the list comes first, and each one before it adds to what is there.
 */
#ifndef TE_OPS_RESIDUAL_H
#define TE_OPS_RESIDUAL_H

#include "map.h" /* te_stage, te_place */

#define TE_OP_fork (fork, map)
#define TE_OP_input (fork, map)
#define TE__KIND_IS_INPUT_input ,
#define TE__IF_INPUT(op, yes, no) TE_IF_MARKED(TE_JOIN1(TE__KIND_IS_INPUT_, TE_KIND(op)), yes, no)
#define TE_SHAPES_fork(op) (TE__IF_INPUT(op, 1, 0))
#define TE_PRODUCES_fork(op) (TE_PRODUCES_same)
#define TE_WANTS_fork(op) (TE__IF_INPUT(op, TE_PRODUCES_list, TE_PRODUCES_residual))
#define TE_FLAGS_fork(op) (TE_IS_FORK | TE__IF_INPUT(op, TE_IS_INPUT, 0) | (TE__OF_MEMORY(op) ? TE_OF_MEMORY : 0))
#define TE_TAKES_fork_dtype TE_TOKEN /* of an (input, ..) */
#define TE_TAKES_fork_rows TE_TOKEN  /* the same */
/* The rows that an input names; -1: those of who reads it. */
#define TE__INPUT_ROWS(op) TE__INPUT_ROWS_(TE_OPTION(op, rows, (-1)))
#define TE__INPUT_ROWS_(value) TE_IF_TUPLE(value, TE_STRIP, TE__ROWS_NAMED)(value)
#define TE__ROWS_NAMED(token) TE_JOIN1(TE_ROWS_, token)
#define TE__OF_MEMORY(op) ((int)TE__INPUT_ROWS(op) == (int)TE_ROWS_memory)
#define TE_EDGE_fork(model, op) (-1, TE_KEPT_DTYPE(model, TE_NAME(op)))
/* What a fork keeps, by its name x; te/fuse/impl/declare.h makes the width, the rows and the format. The names say what is
 * wrong where the compiler misses one. */
#define TE_KEPT_INDEX(model, reader, x) TE_JOIN5(te_error_, reader, x, of, model, has_no_fork_before_it)
#define TE_KEPT_WIDTH(model, x) TE_JOIN4(te_error_load_, x, of, model, has_no_fork_before_it)
#define TE_KEPT_ROWS(model, x) TE_JOIN4(te_rows_of_, x, of, model, fork)
#define TE_KEPT_DTYPE(model, x) TE_JOIN4(te_dtype_of_, x, of, model, fork)
#define TE_CHECK_fork(model, op)                                      \
    (enum {                                                           \
        TE_KEPT_INDEX(model, add, TE_NAME(op)) = TE_ID(model, op),    \
        TE_KEPT_INDEX(model, mul, TE_NAME(op)) = TE_ID(model, op)     \
    };                                                                \
     static_assert((int)TE__INPUT_ROWS(op) == -1 || TE__IF_INPUT(op, TE__OF_MEMORY(op), 0),                  \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": rows are memory, of an input, or not named");)
/* Made by each reader: the compiler misses it where there is none. A typedef may be made again. */
#define TE_KEPT_READ(model, x) TE_JOIN4(te_error_, x, of, model, is_kept_and_never_read)

#define TE_OP_add (add, map)
#define TE_SHAPES_add(op) (1)
#define TE_PRODUCES_add(op) (TE_PRODUCES_residual)
#define TE_FLAGS_add(op) (TE_IS_ADD | TE_GRAD_UNCHANGED)
#define TE_EDGE_add(model, op) (TE_KEPT_INDEX(model, add, TE_FORK_OF(op)), TE_KEPT_DTYPE(model, TE_FORK_OF(op)))
#define TE_CHECK_add(model, op) (TE__CHECK_READER(model, op, TE_FORK_OF(op)))
#define TE__CHECK_READER(model, op, x)                                                                           \
    enum { TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), reads) = TE_KEPT_INDEX(model, TE_FAMILY(op), x) };      \
    typedef int TE_KEPT_READ(model, x);                                                                          \
    static_assert((int)TE_KEPT_WIDTH(model, x) == (int)TE_WIDTH_OUT(model, op),                                  \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) " has another width than its fork");                \
    static_assert((int)TE_KEPT_ROWS(model, x) < 0 || (int)TE_KEPT_ROWS(model, x) == (int)TE_ROWS_OUT(model, op), \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) " has other rows than its fork");                   \
    static_assert((int)TE_FORK_LAYOUT(model, x) == (int)TE_LAYOUT_any ||                                           \
                      (int)TE_LAYOUT_OUT(model, op) == (int)TE_LAYOUT_any ||                                       \
                      (int)TE_FORK_LAYOUT(model, x) == (int)TE_LAYOUT_OUT(model, op),                              \
                  "te: " TE_STRING(model) ": " TE_CALLED(op)                                                     \
                      " joins what ranks of a group share in different ways (te/fuse/impl/list_checks.h)");

#define TE_OP_mul (mul, map)
#define TE_SHAPES_mul(op) (1)
#define TE_FLAGS_mul(op) (TE_IS_MUL | TE_SAVES_INPUT)
#define TE_EDGE_mul(model, op) (TE_KEPT_INDEX(model, mul, TE_FORK_OF(op)), TE_KEPT_DTYPE(model, TE_FORK_OF(op)))
#define TE_CHECK_mul(model, op) (TE__CHECK_READER(model, op, TE_FORK_OF(op)))

#define TE_OP_output (output, map)
#define TE_SHAPES_output(op) (0)
#define TE_PRODUCES_output(op) (TE_PRODUCES_same)
#define TE_FLAGS_output(op) (TE_IS_OUTPUT | TE_GRAD_UNCHANGED)

TE_FN void te_plus_edge8(float v[8], const te_stage *s, te_dtype dtype, te_place at) {
    float e[8];
    if (!s->edge) return;
    te_read8(e, s->edge, dtype, s, at);
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] += e[i];
}
/* Backward: store v, a gradient of what the fork kept. The first reader goes on with what is stored; the others add to
 * what those before them left, perhaps in this kernel. */
TE_FN void te_hand_over8(float v[8], const te_stage *s, te_place at) {
    float e[8];
    if (!s->out) return;
    if (!s->edge) {
        te_store8_rounded(s->out, te_index(at), v, at.n, at.aligned, at.format.edge);
        return;
    }
    te_load8_own(e, s->edge, te_index(at), at.n, at.aligned, at.format.edge);
    TE_UNROLL for (int i = 0; i < 8; i++) e[i] += v[i];
    te_store8(s->out, te_index(at), e, at.n, at.aligned, at.format.edge);
}
TE_FN void te_fork_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    (void)v, (void)s, (void)at, (void)options;
}
TE_CALLBACK void te_fork_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options) {
    (void)sum, (void)options;
    te_plus_edge8(v, s, at.format.edge, at); /* all of the fork's ends see x */
}
TE_CALLBACK void te_add_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    (void)options;
    te_plus_edge8(v, s, at.format.edge, at);
}
TE_CALLBACK void te_add_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options) {
    (void)sum, (void)options;
    if (at.format.joins) te_hand_over8(v, s, at); /* y = x + kept: the gradient is the same for both */
}
TE_CALLBACK void te_mul_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    float e[8];
    (void)options;
    te_read8(e, s->edge, at.format.edge, s, at);
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] *= e[i];
}
TE_CALLBACK void te_mul_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options) {
    float x[8], kept[8];
    (void)sum, (void)options;
    te_read8(x, s->saved, at.format.in, s, at);
    te_load8(kept, s->w[0], te_index(at), at.n, at.aligned, at.format.edge);
    TE_UNROLL for (int i = 0; i < 8; i++) x[i] *= v[i], v[i] *= kept[i]; /* y = x kept */
    te_hand_over8(x, s, at);
}
TE_FN void te_output_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    (void)v, (void)s, (void)at, (void)options;
}
TE_FN void te_output_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options) {
    (void)sum, (void)options;
    te_plus_edge8(v, s, at.format.out, at); /* the value goes out and goes on */
}

#endif
