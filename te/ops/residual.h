/* residual.h -- residual edges, branches and joins. All values are [rows, width]; only `mul` saves its input.
 *
 *   (fork, x)            y = the input, which is also the value of the edge x
 *   (input, x, width)    an extra input of the list is the value of edge x; te_batch.edges passes the tensor by name.
 *                        Options: (dtype, f32), the input's format; (rows, memory): the input has te_batch.memory_seq
 *                        rows for each sequence, and is for use by (load, x) or a (cross_attention, ..)
 *   (add, x), (mul, x)   y = the input + the value of x; y = the input * the value of x
 *   (load, x)            y = the value of x, with which the list continues. A (fork, ..) must stand directly in front
 *                        of the load, because the value in front of the load would otherwise be lost
 *   (output, x)          y = the input, which is also stored in the caller's tensor of that name (te_batch.edges)
 *   (slice, name, first, count), (concat, name, x, width)    some columns of the input; [the input, the value of x]
 *
 * Do this:
 *     (fork, x), (rmsnorm, n, H), (linear, fc, H, H), (add, x)                             // a residual
 *     (fork, x), (linear, gate, H, F), (silu, act), (fork, g), (load, x), (linear, up, H, F), (mul, g)     // branches
 *
 * `load` makes parallel branches: attention parallel to the MLP (GPT-J, Wang & Komatsuzaki 2021; PaLM, Chowdhery et al.
 * 2022), or a gate with a projection of its own. Each fork must be used at least once. If two ops of the same kind use
 * a fork, the second one needs a name of its own, followed by the name of the fork: (add, second, x).
 *
 * Backward: the gradient of a fork's input is dy, the gradient of the fork's output, plus a contribution from each use
 * of the fork. Backward runs the list from its end. So the use that is last in the list stores its contribution, each
 * use before it adds its own contribution to the stored sum, and finally the fork adds the sum to dy.
 */
#ifndef TE_OPS_RESIDUAL_H
#define TE_OPS_RESIDUAL_H

#include "../core/target.h" /* TE_KERNEL */
#include "../plan/impl/call_checks.h"  /* te__fork_value, te__edge_tensor */
#include "elementwise.h"    /* te_stage, te_place */

/* ---- (fork, x), (input, x, width) ------------------------------------------------------------------------------- */

#define TE_OP_fork (fork, map)
#define TE_OP_input (fork, map)
#define TE__KIND_IS_INPUT_input ,
#define TE__IF_INPUT(op, yes, no) TE_IF_MARKED(TE_JOIN1(TE__KIND_IS_INPUT_, TE_KIND(op)), yes, no)
#define TE_SHAPES_fork(op) (TE__IF_INPUT(op, 1, 0))
#define TE_PRODUCES_fork(op) (TE_PRODUCES_same)
#define TE_WANTS_fork(op) (TE__IF_INPUT(op, TE_PRODUCES_list, TE_PRODUCES_residual))
#define TE_FLAGS_fork(op) (TE_IS_FORK | TE__IF_INPUT(op, TE_IS_INPUT, 0) | (TE__OF_MEMORY(op) ? TE_OF_MEMORY : 0))
#define TE_TAKES_fork_dtype TE_TOKEN /* the option dtype, which only (input, ..) may have, not (fork, ..) */
#define TE_TAKES_fork_rows TE_TOKEN  /* the option rows, which only (input, ..) may have, not (fork, ..) */
/* The value of the enum te_rows that an input's option (rows, ..) names, or -1 if the option is not given. Without the
 * option the input has as many rows as the op that uses the input. */
#define TE__INPUT_ROWS(op) TE__INPUT_ROWS_(TE_OPTION(op, rows, (-1)))
#define TE__INPUT_ROWS_(value) TE_IF_TUPLE(value, TE_STRIP, TE__ROWS_NAMED)(value)
#define TE__ROWS_NAMED(token) TE_JOIN1(TE_ROWS_, token)
#define TE__OF_MEMORY(op) ((int)TE__INPUT_ROWS(op) == (int)TE_ROWS_memory)
#define TE_EDGE_fork(model, op) (-1, TE_FORK_DTYPE(model, TE_NAME(op)))
/* The names of four constants for the fork x: its index in the list (defined by TE_CHECK_fork), and the width, the rows
 * and the format of its value (defined in te/fuse/impl/declare.h). If a list uses a fork that it does not have, the
 * compiler reports one of the first two names as an undeclared identifier, so these names are worded as error
 * messages. */
#define TE_FORK_INDEX(model, use, x) TE_JOIN5(te_error_, use, x, of, model, has_no_fork_before_it)
#define TE_FORK_WIDTH(model, x) TE_JOIN4(te_error_load_, x, of, model, has_no_fork_before_it)
#define TE_FORK_ROWS(model, x) TE_JOIN4(te_rows_of_, x, of, model, fork)
#define TE_FORK_DTYPE(model, x) TE_JOIN4(te_dtype_of_, x, of, model, fork)
#define TE_CHECK_fork(model, op)                                      \
    (enum {                                                           \
        TE_FORK_INDEX(model, add, TE_NAME(op)) = TE_ID(model, op),    \
        TE_FORK_INDEX(model, mul, TE_NAME(op)) = TE_ID(model, op)     \
    };                                                                \
     static_assert((int)TE__INPUT_ROWS(op) == -1 || TE__IF_INPUT(op, TE__OF_MEMORY(op), 0),                  \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": rows are memory, of an input, or not named");)
/* The name of a type that each use of fork x declares (a typedef may be repeated) and that the list refers to. If no op
 * uses the fork, the type is not declared, and the compiler reports its name, which is worded as an error message. */
#define TE_FORK_USED(model, x) TE_JOIN4(te_error_, x, of, model, is_never_used)

/* ---- (add, x), (mul, x), (output, x) ---------------------------------------------------------------------------- */

#define TE_OP_add (add, map)
#define TE_SHAPES_add(op) (1)
#define TE_PRODUCES_add(op) (TE_PRODUCES_residual)
#define TE_FLAGS_add(op) (TE_IS_ADD | TE_GRAD_UNCHANGED)
#define TE_EDGE_add(model, op) (TE_FORK_INDEX(model, add, TE_FORK_OF(op)), TE_FORK_DTYPE(model, TE_FORK_OF(op)))
#define TE_CHECK_add(model, op) (TE__CHECK_FORK_USE(model, op, TE_FORK_OF(op)))
#define TE__CHECK_FORK_USE(model, op, x)                                                                         \
    enum { TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), reads) = TE_FORK_INDEX(model, TE_FAMILY(op), x) };      \
    typedef int TE_FORK_USED(model, x);                                                                          \
    static_assert((int)TE_FORK_WIDTH(model, x) == (int)TE_WIDTH_OUT(model, op),                                  \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) " has another width than its fork");                \
    static_assert((int)TE_FORK_ROWS(model, x) < 0 || (int)TE_FORK_ROWS(model, x) == (int)TE_ROWS_OUT(model, op), \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) " has other rows than its fork");                   \
    static_assert((int)TE_FORK_LAYOUT(model, x) == (int)TE_LAYOUT_any ||                                         \
                      (int)TE_LAYOUT_OUT(model, op) == (int)TE_LAYOUT_any ||                                     \
                      (int)TE_FORK_LAYOUT(model, x) == (int)TE_LAYOUT_OUT(model, op),                            \
                  "te: " TE_STRING(model) ": " TE_CALLED(op)                                                     \
                      " combines tensors that are sharded differently over the ranks (te/fuse/impl/list_checks.h)");

#define TE_OP_mul (mul, map)
#define TE_SHAPES_mul(op) (1)
#define TE_FLAGS_mul(op) (TE_IS_MUL | TE_SAVES_INPUT)
#define TE_EDGE_mul(model, op) (TE_FORK_INDEX(model, mul, TE_FORK_OF(op)), TE_FORK_DTYPE(model, TE_FORK_OF(op)))
#define TE_CHECK_mul(model, op) (TE__CHECK_FORK_USE(model, op, TE_FORK_OF(op)))

#define TE_OP_output (output, map)
#define TE_SHAPES_output(op) (0)
#define TE_PRODUCES_output(op) (TE_PRODUCES_same)
#define TE_FLAGS_output(op) (TE_IS_OUTPUT | TE_GRAD_UNCHANGED)

/* Adds to v the value of the op's fork or, in backward, the sum of the gradients from the uses of the fork. */
TE_FN void te_add_edge8(float v[8], const te_stage *s, te_dtype dtype, te_place at) {
    float e[8];
    if (!s->edge) return;
    te_read8(e, s->edge, dtype, s, at);
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] += e[i];
}
/* Backward: v is the contribution of this use to the gradient of the fork's value. The use that backward reaches first
 * stores v, and continues with the rounded v that it has stored. Each other use stores the sum of v and the previous
 * contributions. The sum of the previous contributions is read by a coherent load, because this same kernel may have
 * stored that sum. */
TE_FN void te_store_fork_grad8(float v[8], const te_stage *s, te_place at) {
    float e[8];
    if (!s->out) return;
    if (!s->edge) {
        te_store8_rounded(s->out, te_index(at), v, at.n, at.aligned, at.format.edge);
        return;
    }
    te_load8_coherent(e, s->edge, te_index(at), at.n, at.aligned, at.format.edge);
    TE_UNROLL for (int i = 0; i < 8; i++) e[i] += v[i];
    te_store8(s->out, te_index(at), e, at.n, at.aligned, at.format.edge);
}
TE_FN void te_fork_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    (void)v, (void)s, (void)at, (void)options;
}
TE_CALLBACK void te_fork_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options) {
    (void)sum, (void)options;
    te_add_edge8(v, s, at.format.edge, at); /* dx = dy + the gradients from all uses */
}
TE_CALLBACK void te_add_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    (void)options;
    te_add_edge8(v, s, at.format.edge, at);
}
TE_CALLBACK void te_add_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options) {
    (void)sum, (void)options;
    if (at.format.stores_fork_grad) te_store_fork_grad8(v, s, at); /* forward is y = x + e, where e is the fork's value,
                                                                    * so dy is the gradient of both x and e */
}
TE_CALLBACK void te_mul_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    float e[8];
    (void)options;
    te_read8(e, s->edge, at.format.edge, s, at);
    TE_UNROLL for (int i = 0; i < 8; i++) v[i] *= e[i];
}
TE_CALLBACK void te_mul_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options) {
    float x[8], e[8];
    (void)sum, (void)options;
    te_read8(x, s->saved, at.format.in, s, at);
    te_load8(e, s->w[0], te_index(at), at.n, at.aligned, at.format.edge);
    TE_UNROLL for (int i = 0; i < 8; i++) x[i] *= v[i], v[i] *= e[i]; /* y = x e, so de = dy x and dx = dy e */
    te_store_fork_grad8(x, s, at);
}
TE_FN void te_output_forward(float v[8], const te_stage *s, te_place at, const void *options) {
    (void)v, (void)s, (void)at, (void)options;
}
TE_FN void te_output_backward(float v[8], float sum[8], const te_stage *s, te_place at, const void *options) {
    (void)sum, (void)options;
    /* y is stored for the caller and is also the next op's input, so dx is the sum of the gradients of both uses */
    te_add_edge8(v, s, at.format.out, at);
}

/* ---- (load, x) --------------------------------------------------------------------------------------------------- */

/* Forward moves no data. Backward moves no data either if no later op uses the same fork; otherwise one kernel adds the
 * gradient from this use to the sum of the gradients from the later uses. */
#define TE_OP_load (load, custom)
#define TE_SHAPES_load(op) (1)
#define TE_FLAGS_load(op) (TE_IS_LOAD)
#define TE_LOADS_load , /* marks `load` as an op whose output has the fork's width, rows and format
                         * (te/fuse/impl/declare.h) */
#define TE_TAKES_DIMS_load ,
#define TE_EDGE_load(model, op) (TE_FORK_INDEX(model, add, TE_FORK_OF(op)), TE_FORK_DTYPE(model, TE_FORK_OF(op)))
#define TE_CHECK_load(model, op) (typedef int TE_FORK_USED(model, TE_FORK_OF(op));)

typedef struct te_load_args {
    void *y;          /* [count] */
    const void *a, *b; /* [count]; y and a may be the same memory */
    int64_t count;
} te_load_args;
enum { TE_LOAD_THREADS = TE_CUDA ? 256 : 1 };

#define TE_CUSTOM_load_forward(name, model, dtype, op) \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__load_forward(r, s); }
#define TE_CUSTOM_load_backward(name, model, dtype, op)                                                        \
    TE_KERNEL(name, TE_LOAD_THREADS, te_load_args, te_load_sum(te_args, te_at, (te_dtype)TE_DTYPE_OUT(model, op))) \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__load_backward(r, s, name##_launch); }

/* Compute y = a + b, the sum of two gradients of a fork. Memory traffic: reads two tensors, writes one. */
TE_FN void te_load_sum(const te_load_args *args, te_block at, te_dtype dtype) {
    int group;
    const te_lanes g = te_lanes_here(TE_LOAD_THREADS, &group);
    const int64_t i = 8 * ((int64_t)at.x * TE_LOAD_THREADS + g.id);
    const int n = (int)te_min(8, args->count - i);
    float a[8], b[8];
    if (n <= 0) return;
    te_load8_coherent(a, args->a, i, n, n == 8, dtype);
    te_load8(b, args->b, i, n, n == 8, dtype);
    TE_UNROLL for (int j = 0; j < 8; j++) a[j] += b[j];
    te_store8(args->y, i, a, n, n == 8, dtype);
}

TE_API te_status te__load_forward(te_run *r, const te_step *s) {
    te_value value;
    TE_TRY(te__fork_value(&value, r, &r->plan->op[s->op[0]]));
    te__set_current(r, value);
    te__release_fork(r, s->op[0]);
    return TE_OK;
}
typedef te_status (*te__load_launch_fn)(te_context *ctx, te_grid grid, const te_load_args *a);
/* Set `to` to a + b, the sum of two gradients of a fork. If a is null, `to` becomes b, whose format may differ from
 * that of `to`. */
TE_API te_status te__load_add(te_run *r, te_value to, const void *a, te_value b, te__load_launch_fn launch) {
    te_load_args args;
    memset(&args, 0, sizeof args);
    args.y = to.data, args.a = a, args.b = b.data, args.count = to.rows * to.cols;
    if (r->dry) return TE_OK;
    if (!a) return r->plan->convert(to.data, to.dtype, b.data, b.dtype, args.count, r->ctx);
    return launch(r->ctx, te__grid_of(te_ceil_div(args.count, 8 * TE_LOAD_THREADS), 1), &args);
}
TE_API te_status te__load_backward(te_run *r, const te_step *s, te__load_launch_fn launch) {
    const int i = s->op[0], first = te__is_last_use(r->plan, i);
    const te_op *op = &r->plan->op[i], *fork = &r->plan->op[op->edge];
    te_value v;
    /* the gradient of an extra input is added to or stored in the caller's tensor, if the caller has passed one */
    if (fork->flags & TE_IS_INPUT) {
        TE_TRY(te__fork_value(&v, r, op));
        TE_TRY(te__edge_tensor(&v, r, fork, te__value_of(0, op->edge_dtype, te__rows_in(r, op->out_rows), op->out), 1));
        if (v.data) TE_TRY(te__load_add(r, v, first ? 0 : v.data, r->current, launch));
    } else if (first) te__set_edge(r, op->edge, r->current);
    else {
        TE_TRY(te__acquire(r, &v, op->out_rows, op->out, op->edge_dtype));
        TE_TRY(te__load_add(r, v, r->edge[op->edge].data, r->current, launch));
        te__set_edge(r, op->edge, v);
    }
    /* backward continues with the fork in front of the load, because by now all uses of that fork have contributed to
     * its gradient */
    te__set_current(r, r->edge[i - 1]);
    te__set_edge(r, i - 1, te__no_value());
    return TE_OK;
}

/* ---- (slice, name, first, count), (concat, name, x, width) ------------------------------------------------------- */

/* slice: y = the columns first to first + count - 1 of the input. concat: y = [the input, the value of x], where x is a
 * fork or an input of `width` columns. With the option (heads, n), the value of x is appended to each of the n heads of
 * the input, as the rotated part of the keys in MLA (docs/models.md); with (front, 1) it stands in front.
 *
 * Both only copy. In backward, slice fills the other columns of dx with zeros, and concat sums the gradient of x over
 * the heads. */
#define TE_OP_slice (slice, custom)
#define TE_SHAPES_slice(op) (2)
#define TE_OUT_slice(op, in) (TE_ARG2(op, 0))
#define TE_PRODUCES_slice(op) (TE_PRODUCES_same)
#define TE_LAYOUT_FITS_slice(op, in) \
    ((int)(in) == (int)TE_LAYOUT_replicated || (int)(in) == (int)TE_LAYOUT_partial_grad)
#define TE_CHECK_slice(model, op)                                                                               \
    (static_assert((int)(TE_ARG1(op, 0)) >= 0 && (int)(TE_ARG2(op, 0)) > 0 &&                                   \
                       (int)(TE_ARG2(op, 0)) <= (int)TE_WIDTH_IN(model, op) - (int)(TE_ARG1(op, 0)),            \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": the columns from first on must lie in the row");)
#define TE_OPTIONS_slice(op) (te_slice_options, TE_ARG1(op, 0), TE_ARG2(op, 0))
typedef struct te_slice_options { int first, count; } te_slice_options;

#define TE_OP_concat (concat, custom)
#define TE_SHAPES_concat(op) (2)
#define TE_SAME_heads_heads ,
#define TE_SAME_front_front ,
#define TE_TAKES_concat_heads TE_INTEGER
#define TE_TAKES_concat_front TE_INTEGER
#define TE__CONCAT_HEADS(op) (TE_OPTION(op, heads, 1))
#define TE_OUT_concat(op, in) ((in) + (int)TE__CONCAT_HEADS(op) * (int)(TE_ARG2(op, 0)))
#define TE_LAYOUT_FITS_concat(op, in) ((int)(in) != (int)TE_LAYOUT_partial_sum)
#define TE_EDGE_concat(model, op) (TE_FORK_INDEX(model, add, TE_FORK_OF(op)), TE_FORK_DTYPE(model, TE_FORK_OF(op)))
#define TE__CONCAT_LAYOUT_IS(model, op, layout) ((int)TE_FORK_LAYOUT(model, TE_FORK_OF(op)) == (int)(layout))
#define TE__CONCAT_HEAD(model, op) /* columns of a head of the input */ \
    ((int)TE__CONCAT_HEADS(op) > 0 ? (int)TE_WIDTH_IN(model, op) / (int)TE__CONCAT_HEADS(op) : 0)
#define TE_CHECK_concat(model, op)                                                                               \
    (typedef int TE_FORK_USED(model, TE_FORK_OF(op));                                                            \
     static_assert((int)TE_FORK_WIDTH(model, TE_FORK_OF(op)) == (int)(TE_ARG2(op, 0)),                           \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) " has another width than its fork");               \
     static_assert((int)TE_WIDTH_IN(model, op) == TE__CONCAT_HEAD(model, op) * (int)TE__CONCAT_HEADS(op),        \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": its input does not consist of so many heads");  \
     static_assert((int)TE_FORK_ROWS(model, TE_FORK_OF(op)) < 0 ||                                               \
                       (int)TE_FORK_ROWS(model, TE_FORK_OF(op)) == (int)TE_ROWS_OUT(model, op),                  \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) " has other rows than its fork");                  \
     static_assert(TE__CONCAT_LAYOUT_IS(model, op, TE_LAYOUT_any) ||                                             \
                       (int)TE_LAYOUT_OUT(model, op) == (int)TE_LAYOUT_any ||                                    \
                       TE__CONCAT_LAYOUT_IS(model, op, TE_LAYOUT_OUT(model, op)) ||                              \
                       ((int)TE_LAYOUT_OUT(model, op) == (int)TE_LAYOUT_columns && TE_HAS_OPTION(op, heads) &&   \
                        TE__CONCAT_LAYOUT_IS(model, op, TE_LAYOUT_partial_grad)),                                \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                                    \
                       " combines tensors that are sharded differently over the ranks "                          \
                       "(te/fuse/impl/list_checks.h)");)
#define TE_OPTIONS_concat(op) (te_concat_options, TE_ARG2(op, 0), TE__CONCAT_HEADS(op), TE_OPTION(op, front, 0))
/* width: columns of the fork's value; front 1: this value stands in front of the columns of x */
typedef struct te_concat_options { int width, heads, front; } te_concat_options;

/* The columns of a row that both ops copy: `count` of them in each of `heads` parts. The parts begin at column first,
 * first + step, first + 2 step, .. of a row with `width` columns. */
typedef struct te_join_columns { int first, count, step, heads, width; } te_join_columns;
TE_BOTH te_join_columns te_join_columns_of(int first, int count, int step, int heads, int width) {
    te_join_columns c;
    c.first = first, c.count = count, c.step = step, c.heads = heads, c.width = width;
    return c;
}
/* Whether vectors of eight columns may be loaded and stored at once. */
TE_FN int te_join_aligned(te_join_columns c) {
    return c.first % 8 == 0 && c.count % 8 == 0 && c.step % 8 == 0 && c.width % 8 == 0;
}
/* The columns of x, of the fork's value and of the joined row, which correspond to one another. */
TE_BOTH te_join_columns te_concat_of_x(te_concat_options o, int in) {
    return te_join_columns_of(0, in / o.heads, in / o.heads, o.heads, in);
}
TE_BOTH te_join_columns te_concat_part(te_concat_options o, int in, int of_fork) {
    const int head = in / o.heads, first = of_fork == o.front ? 0 : of_fork ? head : o.width;
    return te_join_columns_of(first, of_fork ? o.width : head, head + o.width, o.heads, in + o.heads * o.width);
}

typedef struct te_join_args {
    void *y;           /* the result: in forward y; in backward dx */
    const void *x;     /* the input: in forward x; in backward dy */
    const void *edge;  /* concat: in forward the fork's value; in backward the sum of the gradients of this value from
                        * the uses of the fork that are later in the list, or null */
    void *dedge;       /* concat, backward: the gradient of the fork's value; null: it is not stored */
    int64_t rows;
} te_join_args;
enum { TE_JOIN_LANES = TE_CUDA ? 32 : 1, TE_JOIN_GROUPS = TE_CUDA ? 8 : 1 };

/* Copies the columns `from` of row `row` of x to the columns `to` of that row of y. The heads of `to` may be more than
 * those of `from`, which is then repeated. */
TE_FN void te_join_copy(void *y, te_join_columns to, te_dtype y_dtype, const void *x, te_join_columns from,
                        te_dtype x_dtype, int64_t row, te_lanes g) {
    const int vectors = (to.count + 7) / 8;
    for (int i = g.id; i < to.heads * vectors; i += g.count) {
        const int head = i / vectors, c = i % vectors * 8, n = (int)te_min(8, to.count - c);
        const int64_t at = row * from.width + from.first + (from.heads == 1 ? 0 : head * from.step) + c;
        float v[8];
        te_load8(v, x, at, n, te_join_aligned(from), x_dtype);
        te_store8(y, row * to.width + to.first + head * to.step + c, v, n, te_join_aligned(to), y_dtype);
    }
}
/* Sums the columns `from` of row `row` of dy over the heads, in their order, and adds the gradient from later uses. */
TE_FN void te_join_sum(const te_join_args *a, te_join_columns from, te_dtype dtype, te_dtype edge_dtype, int64_t row,
                       te_lanes g) {
    const int aligned = from.count % 8 == 0;
    for (int c = g.id * 8; c < from.count; c += g.count * 8) {
        const int n = (int)te_min(8, from.count - c);
        float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0}, v[8];
        if (a->edge) te_load8_coherent(sum, a->edge, row * from.count + c, n, aligned, edge_dtype);
        for (int head = 0; head < from.heads; head++) {
            const int64_t at = row * from.width + from.first + head * from.step + c;
            te_load8(v, a->x, at, n, te_join_aligned(from), dtype);
            TE_UNROLL for (int i = 0; i < 8; i++) sum[i] += v[i];
        }
        te_store8(a->dedge, row * from.count + c, sum, n, aligned, edge_dtype);
    }
}
/* The row of this group of lanes. */
TE_FN int64_t te_join_row(te_block b, te_lanes *g) {
    int group;
    *g = te_lanes_here(TE_JOIN_LANES, &group);
    return (int64_t)b.x * TE_JOIN_GROUPS + group;
}
/* Memory traffic: reads and writes the columns of y. */
TE_FN void te_slice_rows(const te_join_args *a, te_block b, te_slice_options o, int in, te_dtype dtype) {
    te_lanes g;
    const int64_t row = te_join_row(b, &g);
    if (row >= a->rows) return;
    te_join_copy(a->y, te_join_columns_of(0, o.count, o.count, 1, o.count), dtype, a->x,
                 te_join_columns_of(o.first, o.count, o.count, 1, in), dtype, row, g);
}
/* dx is dy in the columns of the slice, else 0. Memory traffic: reads dy, writes dx. */
TE_FN void te_slice_gradient(const te_join_args *a, te_block b, te_slice_options o, int in, te_dtype dtype) {
    te_lanes g;
    const int64_t row = te_join_row(b, &g);
    const int aligned = o.first % 8 == 0 && o.count % 8 == 0 && in % 8 == 0;
    if (row >= a->rows) return;
    for (int c = g.id * 8; c < in; c += g.count * 8) {
        const int n = (int)te_min(8, in - c);
        float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (aligned && c >= o.first && c < o.first + o.count)
            te_load8(v, a->x, row * o.count + c - o.first, 8, 1, dtype);
        TE_UNROLL for (int i = 0; i < 8; i++)
            if (!aligned && c + i >= o.first && c + i < o.first + o.count)
                v[i] = te_load(a->x, row * o.count + c + i - o.first, dtype);
        te_store8(a->y, row * in + c, v, n, in % 8 == 0, dtype);
    }
}
/* Memory traffic: reads x and the fork's value, writes y. */
TE_FN void te_concat_rows(const te_join_args *a, te_block b, te_concat_options o, int in, const te_formats f) {
    te_lanes g;
    const int64_t row = te_join_row(b, &g);
    if (row >= a->rows) return;
    te_join_copy(a->y, te_concat_part(o, in, 0), f.out, a->x, te_concat_of_x(o, in), f.in, row, g);
    te_join_copy(a->y, te_concat_part(o, in, 1), f.out, a->edge, te_join_columns_of(0, o.width, 0, 1, o.width), f.edge,
                 row, g);
}
/* Memory traffic: reads dy, writes dx and the gradient of the fork's value. */
TE_FN void te_concat_gradient(const te_join_args *a, te_block b, te_concat_options o, int in, const te_formats f) {
    te_lanes g;
    const int64_t row = te_join_row(b, &g);
    if (row >= a->rows) return;
    if (a->y) te_join_copy(a->y, te_concat_of_x(o, in), f.in, a->x, te_concat_part(o, in, 0), f.out, row, g);
    if (a->dedge) te_join_sum(a, te_concat_part(o, in, 1), f.out, f.edge, row, g);
}

#define TE__SLICE_KERNEL(name, body, model, op)                                                                     \
    TE_FN void name##_body(const te_join_args *a, te_block b) {                                                     \
        const te_slice_options o = TE_OPTIONS_VALUES(op);                                                           \
        body(a, b, o, (int)TE_WIDTH_IN(model, op), (te_dtype)TE_DTYPE_IN(model, op));                               \
    }                                                                                                               \
    TE_KERNEL(name, TE_JOIN_LANES * TE_JOIN_GROUPS, te_join_args, name##_body(te_args, te_at))                      \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__join_run(r, s, 0, name##_launch); }
#define TE_CUSTOM_slice_forward(name, model, dtype, op) TE__SLICE_KERNEL(name, te_slice_rows, model, op)
#define TE_CUSTOM_slice_backward(name, model, dtype, op) TE__SLICE_KERNEL(name, te_slice_gradient, model, op)
#define TE__CONCAT_KERNEL(name, body, model, dtype, op)                                                             \
    TE_FN void name##_body(const te_join_args *a, te_block b) {                                                     \
        const te_concat_options o = TE_OPTIONS_VALUES(op);                                                          \
        body(a, b, o, (int)TE_WIDTH_IN(model, op),                                                                  \
             te_formats_of((int)TE_DTYPE_IN(model, op), (int)TE_DTYPE_OUT(model, op),                               \
                           (int)TE_EDGE_DTYPE(model, op), (int)TE_##dtype));                                        \
    }                                                                                                               \
    TE_KERNEL(name, TE_JOIN_LANES * TE_JOIN_GROUPS, te_join_args, name##_body(te_args, te_at))                      \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                      \
        return te__join_run(r, s, (int)(TE_ARG2(op, 0)), name##_launch);                                            \
    }
#define TE_CUSTOM_concat_forward(name, model, dtype, op) TE__CONCAT_KERNEL(name, te_concat_rows, model, dtype, op)
#define TE_CUSTOM_concat_backward(name, model, dtype, op) TE__CONCAT_KERNEL(name, te_concat_gradient, model, dtype, op)

/* Sets a->dedge to the memory for the gradient of the fork's value, and a->edge to the gradient from the later uses of
 * the fork. */
TE_API te_status te__join_fork_grad(te_join_args *a, te_run *r, int i, int width) {
    const te_op *op = &r->plan->op[i], *fork = &r->plan->op[op->edge];
    const te_value like = te__fork_value_like(r, op, width);
    const int first = te__is_last_use(r->plan, i);
    te_value v;
    if (fork->flags & TE_IS_INPUT) {
        TE_TRY(te__edge_tensor(&v, r, fork, like, 1));
        a->edge = first ? 0 : v.data;
    } else {
        TE_TRY(te__acquire(r, &v, fork->out_rows, width, op->edge_dtype));
        a->edge = first ? 0 : r->edge[op->edge].data;
        te__set_edge(r, op->edge, v);
    }
    a->dedge = v.data;
    return TE_OK;
}
/* Runs a slice, or a concat with a fork's value of `width` columns. */
TE_API te_status te__join_run(te_run *r, const te_step *s, int width,
                              te_status (*launch)(te_context *, te_grid, const te_join_args *)) {
    const int i = s->op[0];
    te_join_args a;
    te_value y, edge = te__no_value();
    memset(&a, 0, sizeof a);
    if (r->pass == TE_BACKWARD) {
        if (width) TE_TRY(te__join_fork_grad(&a, r, i, width));
        TE_TRY(te__gradient(&y, r, s, i));
    } else {
        if (width) TE_TRY(te__fork_value_of_width(&edge, r, &r->plan->op[i], width));
        TE_TRY(te__output(&y, r, s, i));
        a.edge = edge.data;
    }
    a.y = y.data, a.x = r->current.data, a.rows = r->current.rows;
    if ((a.y || a.dedge) && !r->dry) TE_TRY(launch(r->ctx, te__grid_of(te_ceil_div(a.rows, TE_JOIN_GROUPS), 1), &a));
    te__set_current(r, y);
    if (width && r->pass != TE_BACKWARD) te__release_fork(r, i);
    return TE_OK;
}

#endif
