/* residual.h -- residual edges and branches. An edge is a value that later ops use by its name. All values are [rows,
 * width]; only `mul` saves its input.
 *
 *   (fork, x)            y = the input, which is also the value of the edge x
 *   (input, x, width)    an extra input of the list is the value of edge x; te_batch.edges passes the tensor by name.
 *                        Options: (dtype, f32), the input's format; (rows, memory): the input has te_batch.memory_seq
 *                        rows for each sequence, and is for use by (load, x) or a (cross_attention, ..); (rows,
 *                        sequences): the input has one row for each sequence, for (load, x) and join.h
 *   (add, x), (mul, x)   y = the input + the value of x; y = the input * the value of x
 *   (load, x)            y = the value of x, with which the list continues. A (fork, ..) must stand directly in front
 *                        of the load, because the value in front of the load would otherwise be lost
 *   (output, x)          y = the input, which is also stored in the caller's tensor of that name (te_batch.edges)
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
 * of the fork. Backward runs the op list from its end. So the use that is last in the op list stores its contribution,
 * each use before it adds its own contribution to the stored sum, and finally the fork adds the sum to dy.
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
#define TE_FLAGS_fork(op) (TE_IS_FORK | TE__IF_INPUT(op, TE_IS_INPUT, 0) | TE__OF_ROWS(op))
#define TE_TAKES_fork_dtype TE_TOKEN /* the option dtype of (input, ..), which has the same macros as (fork, ..) */
#define TE_TAKES_fork_rows TE_TOKEN  /* the option rows of (input, ..), which has the same macros as (fork, ..) */
/* The value of the enum te_rows that an input's option (rows, ..) names, or -1 if the option is not given. Without the
 * option the input has as many rows as the op that uses the input. */
#define TE__INPUT_ROWS(op) TE__INPUT_ROWS_(TE_OPTION(op, rows, (-1)))
#define TE__INPUT_ROWS_(value) TE_IF_TUPLE(value, TE_STRIP, TE__ROWS_NAMED)(value)
#define TE__ROWS_NAMED(token) TE_JOIN1(TE_ROWS_, token)
#define TE__OF_ROWS(op)                                                  \
    ((int)TE__INPUT_ROWS(op) == (int)TE_ROWS_memory      ? TE_OF_MEMORY    \
     : (int)TE__INPUT_ROWS(op) == (int)TE_ROWS_sequences ? TE_OF_SEQUENCES \
                                                         : 0)
#define TE_EDGE_fork(model, op) (-1, TE_FORK_DTYPE(model, TE_NAME(op)))
/* The names of four constants for the fork x: its index in the op list (defined by TE_CHECK_fork), and the width, the
 * rows and the format of its value (defined in te/fuse/impl/declare.h). If an op list uses a fork that it does not
 * have, the compiler reports one of the first two names as an undeclared identifier, so these names are worded as error
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
     static_assert((int)TE__INPUT_ROWS(op) == -1 || TE__IF_INPUT(op, TE__OF_ROWS(op) != 0, 0),               \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                                \
                       ": rows are memory or sequences, of an input, or not named");)
/* The name of a type that each use of fork x declares (a typedef may be repeated) and that the op list refers to. If no
 * op uses the fork, the type is not declared, and the compiler reports the type's name, which is worded as an error
 * message. */
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

/* Adds to v the value of the op's fork or, in backward, the gradient that the fork's later uses (in list order) have
 * stored. */
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

/* load: forward moves no data. Backward moves no data either if no later op uses the same fork; otherwise one kernel
 * adds the gradient from this use to the sum of the gradients from the later uses. */
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

/* Computes y = a + b, the sum of two gradients of a fork. Memory traffic: reads two tensors, writes one. */
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
/* Sets `to` to a + b, the sum of two gradients of a fork. If a is null, `to` becomes b, whose format may differ from
 * the format of `to`. */
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
    /* The gradient of an extra input is stored in the caller's tensor, if the caller has passed one. The last use in
     * the op list stores its contribution, and the other uses add their contributions. */
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
    /* backward continues with the gradient of the fork in front of the load. This gradient is complete, because all
     * uses of that fork come later in the op list */
    te__set_current(r, r->edge[i - 1]);
    te__set_edge(r, i - 1, te__no_value());
    return TE_OK;
}

#endif
