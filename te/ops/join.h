/* join.h -- ops that select columns of a row, or combine a row with the value of a fork or of an extra input. All
 * values are [rows, width]; x is the name of the (fork, ..) or (input, ..), which stands earlier in the list.
 *
 *   (slice, name, first, count)         y = the columns first to first + count - 1 of the input
 *   (concat, name, x, width)            y = [the input, the value of x]; the value of x has `width` columns
 *   (gate, name, x, (first, 0))         y = the input * gate
 *   (modulate, name, x, (first, 0))     y = the input * (1 + scale) + shift
 *                                       gate, shift and scale are columns of the value of x, from column `first` on
 *
 * Do this: a part of a DiT block (Peebles & Xie 2022, arXiv 2212.09748); c is the conditioning vector of each sequence
 *     (input, c, H, (rows, sequences)), (fork, x), (load, c), (silu, act), (linear, ada, H, 6 * H), (fork, mod),
 *     (load, x), (layernorm_no_affine, n1, H), (modulate, m1, mod), .., (gate, g1, mod, (first, 2 * H)), (add, x)
 *
 * Each of these ops runs as a kernel of its own and is not fused with other ops. docs/models.md has more examples.
 */
#ifndef TE_OPS_JOIN_H
#define TE_OPS_JOIN_H

#include "residual.h" /* TE_FORK_OF, te__fork_value_of_width */

/* ---- (slice, name, first, count), (concat, name, x, width) ------------------------------------------------------- */

/* slice: y = the columns first to first + count - 1 of the input. concat: y = [the input, the value of x], where x is a
 * fork or an input of `width` columns. With the option (heads, n), the value of x is appended to each of the n heads of
 * the input, like the rotated part of the keys in MLA (docs/models.md). With (front, 1) the value of x comes before the
 * input's columns.
 *
 * Both ops only copy. In backward, slice fills the other columns of dx with zeros, and concat sums the gradient of x
 * over the heads. */
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
/* width: number of columns of the fork's value; front 1: in y this value stands in front of the input's columns */
typedef struct te_concat_options { int width, heads, front; } te_concat_options;

/* The columns of a row that slice or concat copies: `count` columns for each of `heads` heads. The columns of head h
 * begin at column first + h * step of a row with `width` columns. */
typedef struct te_join_columns { int first, count, step, heads, width; } te_join_columns;
TE_BOTH te_join_columns te_join_columns_of(int first, int count, int step, int heads, int width) {
    te_join_columns c;
    c.first = first, c.count = count, c.step = step, c.heads = heads, c.width = width;
    return c;
}
/* Returns whether all columns of c can be loaded and stored as aligned vectors of eight. */
TE_FN int te_join_aligned(te_join_columns c) {
    return c.first % 8 == 0 && c.count % 8 == 0 && c.step % 8 == 0 && c.width % 8 == 0;
}
/* For concat of an input with `in` columns. te_concat_of_x returns the columns of the input, divided into heads.
 * te_concat_part, below, returns the columns of y that come from the input (of_fork 0) or from the fork's value
 * (of_fork 1). */
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
                        * the uses of the fork that are later in the op list, or null if there are none */
    void *dedge;       /* concat, backward: where the gradient of the fork's value is stored, or null */
    int64_t rows;
} te_join_args;
enum { TE_JOIN_LANES = TE_CUDA ? 32 : 1, TE_JOIN_GROUPS = TE_CUDA ? 8 : 1 };

/* Copies some columns of one row of x, which `from` describes, to the columns of the same row of y that `to` describes.
 * If `from` has one head and `to` has several heads, the one head is copied to each head of `to`. */
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
/* Backward of concat, for one row of the fork's value: stores the sum of dy's columns `from` over the heads, in the
 * order of the heads, plus a->edge, the gradient from later uses of the fork. */
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
/* Returns the row that this group of lanes computes. */
TE_FN int64_t te_join_row(te_block b, te_lanes *g) {
    int group;
    *g = te_lanes_here(TE_JOIN_LANES, &group);
    return (int64_t)b.x * TE_JOIN_GROUPS + group;
}
/* Forward of slice. Memory traffic: reads the columns of the slice, writes y. */
TE_FN void te_slice_rows(const te_join_args *a, te_block b, te_slice_options o, int in, te_dtype dtype) {
    te_lanes g;
    const int64_t row = te_join_row(b, &g);
    if (row >= a->rows) return;
    te_join_copy(a->y, te_join_columns_of(0, o.count, o.count, 1, o.count), dtype, a->x,
                 te_join_columns_of(o.first, o.count, o.count, 1, in), dtype, row, g);
}
/* Backward of slice: dx is dy in the columns of the slice, and 0 elsewhere. Memory traffic: reads dy, writes dx. */
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
/* Forward of concat. Memory traffic: reads x and the fork's value, writes y. */
TE_FN void te_concat_rows(const te_join_args *a, te_block b, te_concat_options o, int in, const te_formats f) {
    te_lanes g;
    const int64_t row = te_join_row(b, &g);
    if (row >= a->rows) return;
    te_join_copy(a->y, te_concat_part(o, in, 0), f.out, a->x, te_concat_of_x(o, in), f.in, row, g);
    te_join_copy(a->y, te_concat_part(o, in, 1), f.out, a->edge, te_join_columns_of(0, o.width, 0, 1, o.width), f.edge,
                 row, g);
}
/* Backward of concat. Memory traffic: reads dy, writes dx and the gradient of the fork's value. */
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

/* Sets a->dedge to the memory for the gradient of the fork's value, and a->edge to the sum of this gradient over those
 * uses of the fork that are later in the op list, or to null if there are none. */
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
/* Runs a slice (width 0), or a concat with a fork's value of `width` columns. */
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

/* ---- (gate, name, x), (modulate, name, x) ------------------------------------------------------------------------ */

/* The value of fork x has one row for each sequence. Let W be the input's width and `first` the op's argument. For
 * `gate`, the gate is columns first to first + W - 1 of this row. For `modulate`, these columns are the shift, and the
 * next W columns are the scale, as in DiT. For `gate` the fork's value may instead have one column, a number for each
 * row (the gate of a shared expert).
 *
 * Backward: dx = dy * gate, or dx = dy * (1 + scale). The gradient of the fork's value, for each sequence, is a sum
 * over the sequence's rows: of dy * input in the columns of gate and scale, of dy in the columns of shift. The gradient
 * is 0 in all other columns. If the fork's value has one column, its gradient in a row is the sum of dy * input over
 * the columns. The order of each sum is fixed. */
#define TE_OP_gate (modulate, custom)
#define TE_OP_modulate (modulate, custom)
#define TE_SHAPES_modulate(op) (1)
#define TE_TAKES_modulate_first TE_INTEGER
#define TE__IS_GATE(op) TE_IF_MARKED(TE_JOIN1(TE__KIND_IS_GATE_, TE_KIND(op)), 1, 0)
#define TE__KIND_IS_GATE_gate ,
#define TE__MODULATE_FIRST(op) ((int)TE_OPTION(op, first, 0))
#define TE__MODULATE_WIDTH(model, op) ((int)TE_FORK_WIDTH(model, TE_FORK_OF(op)))
#define TE__MODULATE_BY_ROW(model, op) \
    (TE__IS_GATE(op) && TE__MODULATE_WIDTH(model, op) == 1 && !TE__FORK_OF_SEQUENCES(model, op))
#define TE__FORK_OF_SEQUENCES(model, op) ((int)TE_FORK_ROWS(model, TE_FORK_OF(op)) == (int)TE_ROWS_sequences)
#define TE_FLAGS_modulate(op) (TE_SAVES_INPUT)
#define TE_LAYOUT_FITS_modulate(op, in) ((int)(in) == (int)TE_LAYOUT_replicated)
#define TE_EDGE_modulate(model, op) (TE_FORK_INDEX(model, add, TE_FORK_OF(op)), TE_FORK_DTYPE(model, TE_FORK_OF(op)))
#define TE_CHECK_modulate(model, op)                                                                                \
    (typedef int TE_FORK_USED(model, TE_FORK_OF(op));                                                               \
     static_assert(TE__MODULATE_BY_ROW(model, op) || TE__FORK_OF_SEQUENCES(model, op),                              \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                                       \
                       " reads a row for each sequence, or, as a gate, one column");                                \
     static_assert(!TE__MODULATE_BY_ROW(model, op) || (int)TE_FORK_ROWS(model, TE_FORK_OF(op)) < 0 ||               \
                       (int)TE_FORK_ROWS(model, TE_FORK_OF(op)) == (int)TE_ROWS_OUT(model, op),                     \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) " has other rows than its fork");                     \
     static_assert(TE__MODULATE_BY_ROW(model, op) || (int)TE_ROWS_IN(model, op) == (int)TE_ROWS_tokens,             \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) " needs a row for each token");                       \
     static_assert(TE__MODULATE_BY_ROW(model, op) ||                                                                \
                       ((int)TE_WIDTH_IN(model, op) % 8 == 0 && TE__MODULATE_FIRST(op) % 8 == 0 &&                  \
                        TE__MODULATE_WIDTH(model, op) % 8 == 0),                                                    \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": the widths and first must be multiples of eight"); \
     static_assert(TE__MODULATE_FIRST(op) >= 0 &&                                                                   \
                       (TE__MODULATE_BY_ROW(model, op) ? TE__MODULATE_FIRST(op) == 0                                \
                                                       : (TE__IS_GATE(op) ? 1 : 2) * (int)TE_WIDTH_IN(model, op) <= \
                                                             TE__MODULATE_WIDTH(model, op) - TE__MODULATE_FIRST(op)), \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                                       \
                       ": the columns from first on must lie in the row that it reads");                            \
     static_assert((int)TE_FORK_LAYOUT(model, TE_FORK_OF(op)) == (int)TE_LAYOUT_any ||                              \
                       (int)TE_FORK_LAYOUT(model, TE_FORK_OF(op)) == (int)TE_LAYOUT_replicated,                     \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                                       \
                       " reads a value that is sharded over the ranks (te/fuse/impl/list_checks.h)");)
#define TE_OPTIONS_modulate(op) (te_modulate_options, TE__IS_GATE(op), TE__MODULATE_FIRST(op))
typedef struct te_modulate_options { int is_gate, first; } te_modulate_options;

typedef struct te_modulate_args {
    te_join_args at;      /* at.x: in backward dy; at.edge: the fork's value; at.dedge: the gradient of this value */
    const void *saved;    /* backward: the input x of forward */
    const void *previous; /* backward: the gradient of the fork's value from later uses of the fork, or null */
    te_sequences of;
} te_modulate_args;
/* The constants of a kernel. by_row is 1 if the fork's value has one column, which is one factor for each row. */
typedef struct te_modulate_shape {
    te_modulate_options options;
    te_formats f;
    int width, edge_width, by_row;
} te_modulate_shape;
TE_BOTH te_modulate_shape te_modulate_shape_of(te_modulate_options o, int width, int edge_width, int by_row,
                                               te_formats f) {
    te_modulate_shape k;
    k.options = o, k.f = f, k.width = width, k.edge_width = edge_width, k.by_row = by_row;
    return k;
}
/* Loads the factors scale[8] and the summands shift[8] of the columns c .. c + 7 of a row, for y = x * scale + shift.
 * edge_row: the row of the fork's value that holds the factors and summands. For modulate, scale includes the 1 of 1 +
 * scale. */
TE_FN void te_modulate_load(float scale[8], float shift[8], const te_modulate_args *a, te_modulate_shape k,
                            int64_t edge_row, int c) {
    const int64_t at = edge_row * k.edge_width + k.options.first + c;
    TE_UNROLL for (int i = 0; i < 8; i++) shift[i] = 0.0f;
    if (k.by_row) {
        scale[0] = te_load(a->at.edge, edge_row, k.f.edge);
        TE_UNROLL for (int i = 1; i < 8; i++) scale[i] = scale[0];
    } else if (k.options.is_gate) {
        te_load8(scale, a->at.edge, at, 8, 1, k.f.edge);
    } else {
        te_load8(shift, a->at.edge, at, 8, 1, k.f.edge);
        te_load8(scale, a->at.edge, at + k.width, 8, 1, k.f.edge);
        TE_UNROLL for (int i = 0; i < 8; i++) scale[i] += 1.0f;
    }
}
/* Forward: y = x * scale + shift. Backward: dx = dy * scale and, with by_row, the gradient of the fork's value. Memory
 * traffic: reads x or dy, writes y or dx; backward with by_row reads the saved x as well. */
TE_FN void te_modulate_rows(const te_modulate_args *a, te_block b, te_modulate_shape k, const int backward) {
    te_lanes g;
    const int64_t row = te_join_row(b, &g);
    const te_dtype from = backward ? k.f.out : k.f.in, to = backward ? k.f.in : k.f.out;
    float total = 0;
    if (row >= a->at.rows) return;
    const int64_t edge_row = k.by_row ? row : te_sequence_of(&a->of, (int)row, 0);
    for (int c = g.id * 8; c < k.width; c += g.count * 8) {
        const int n = (int)te_min(8, k.width - c), aligned = k.width % 8 == 0;
        float v[8], x[8], scale[8], shift[8];
        te_load8(v, a->at.x, row * k.width + c, n, aligned, from);
        te_modulate_load(scale, shift, a, k, edge_row, c);
        if (backward && k.by_row && a->at.dedge) {
            te_load8(x, a->saved, row * k.width + c, n, aligned, k.f.in);
            TE_UNROLL for (int i = 0; i < 8; i++) if (i < n) total += v[i] * x[i]; /* y = x gate */
        }
        TE_UNROLL for (int i = 0; i < 8; i++) v[i] = v[i] * scale[i] + (backward ? 0.0f : shift[i]);
        if (a->at.y) te_store8(a->at.y, row * k.width + c, v, n, aligned, to);
    }
    if (!backward || !k.by_row || !a->at.dedge) return;
    te_lanes_sum(&total, 1, &g);
    if (a->previous) total += te_load(a->previous, row, k.f.edge);
    if (g.id == 0) te_store(a->at.dedge, row, total, k.f.edge);
}
/* A block of te_modulate_gradient sums TE_MODULATE_LANES * 8 columns over the rows of one sequence. With 4 lanes, 32
 * columns, there are enough blocks even for few sequences, and a row is still read 64 bytes or more at a time. */
enum { TE_MODULATE_LANES = TE_CUDA ? 4 : 1, TE_MODULATE_GROUPS = TE_CUDA ? 64 : 1 };
/* Computes the gradient of the fork's value for sequence b.y, in 8 * TE_MODULATE_LANES columns that begin at column b.x
 * * 8 * TE_MODULATE_LANES. Memory traffic: reads dy and, for scale and gate, the saved x; writes a row for each
 * sequence. */
TE_FN void te_modulate_gradient(const te_modulate_args *a, te_block b, te_modulate_shape k) {
    int group;
    const te_lanes g = te_lanes_here(TE_MODULATE_LANES, &group);
    /* column: index in a row of the fork's value; c: index in [shift, scale] or in gate,
     * which begins at column options.first of that row */
    const int column = (b.x * TE_MODULATE_LANES + g.id) * 8, c = column - k.options.first;
    const int parts = k.options.is_gate ? 1 : 2, sums = column < k.edge_width && c >= 0 && c < parts * k.width;
    const int with_x = k.options.is_gate || c >= k.width;
    const te_sequence q = te_sequence_rows(&a->of, b.y);
    const int64_t to = (int64_t)b.y * k.edge_width + column;
    float total[8] = {0, 0, 0, 0, 0, 0, 0, 0}, v[8], x[8];
    for (int i = group; sums && i < q.count; i += TE_MODULATE_GROUPS) {
        const int64_t at = (int64_t)(q.first + i) * k.width + (c >= k.width ? c - k.width : c);
        te_load8(v, a->at.x, at, 8, 1, k.f.out);
        if (with_x) te_load8(x, a->saved, at, 8, 1, k.f.in);
        /* Since y = x * gate or y = x * (1 + scale) + shift, a column of gate or scale (with_x) sums dy * x, and a
         * column of shift sums dy. */
        TE_UNROLL for (int j = 0; j < 8; j++) total[j] += with_x ? v[j] * x[j] : v[j];
    }
    te_groups_sum(total, 8, g, TE_MODULATE_GROUPS);
    if (group || column >= k.edge_width) return;
    if (a->previous) te_load8(v, a->previous, to, 8, 1, k.f.edge);
    TE_UNROLL for (int j = 0; j < 8; j++) total[j] += a->previous ? v[j] : 0.0f;
    te_store8(a->at.dedge, to, total, 8, 1, k.f.edge);
}

#define TE__MODULATE_SHAPE(name, model, dtype, op)                                                                   \
    TE_BOTH te_modulate_shape name##_shape(void) {                                                                   \
        const te_modulate_options o = TE_OPTIONS_VALUES(op);                                                         \
        return te_modulate_shape_of(o, (int)TE_WIDTH_IN(model, op), TE__MODULATE_WIDTH(model, op),                   \
                                    TE__MODULATE_BY_ROW(model, op),                                                  \
                                    te_formats_of((int)TE_DTYPE_IN(model, op), (int)TE_DTYPE_OUT(model, op),         \
                                                  (int)TE_EDGE_DTYPE(model, op), (int)TE_##dtype));                  \
    }
#define TE_CUSTOM_modulate_forward(name, model, dtype, op)                                                           \
    TE__MODULATE_SHAPE(name, model, dtype, op)                                                                       \
    TE_KERNEL(name, TE_JOIN_LANES * TE_JOIN_GROUPS, te_modulate_args,                                                \
              te_modulate_rows(te_args, te_at, name##_shape(), 0))                                                   \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                       \
        return te__modulate_forward(r, s, name##_shape(), name##_launch);                                            \
    }
#define TE_CUSTOM_modulate_backward(name, model, dtype, op)                                                          \
    TE__MODULATE_SHAPE(name, model, dtype, op)                                                                       \
    TE_KERNEL(name, TE_JOIN_LANES * TE_JOIN_GROUPS, te_modulate_args,                                                \
              te_modulate_rows(te_args, te_at, name##_shape(), 1))                                                   \
    TE_KERNEL(name##_edge, TE_MODULATE_LANES * TE_MODULATE_GROUPS, te_modulate_args,                                 \
              te_modulate_gradient(te_args, te_at, name##_shape()))                                                  \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                       \
        return te__modulate_backward(r, s, name##_shape(), name##_launch, name##_edge_launch);                       \
    }

typedef te_status (*te__modulate_launch_fn)(te_context *, te_grid, const te_modulate_args *);
TE_API te_status te__modulate_forward(te_run *r, const te_step *s, te_modulate_shape k, te__modulate_launch_fn launch) {
    const int i = s->op[0];
    te_modulate_args a;
    te_value y, edge;
    memset(&a, 0, sizeof a);
    TE_TRY(te__fork_value_of_width(&edge, r, &r->plan->op[i], k.edge_width));
    TE_TRY(te__output(&y, r, s, i));
    a.at.y = y.data, a.at.x = r->current.data, a.at.edge = edge.data, a.at.rows = y.rows, a.of = te__sequences_of(r);
    if (!r->dry) TE_TRY(launch(r->ctx, te__grid_of(te_ceil_div(a.at.rows, TE_JOIN_GROUPS), 1), &a));
    te__set_current(r, y);
    te__release_fork(r, i);
    return TE_OK;
}
TE_API te_status te__modulate_backward(te_run *r, const te_step *s, te_modulate_shape k, te__modulate_launch_fn launch,
                                       te__modulate_launch_fn launch_edge) {
    const int i = s->op[0];
    te_modulate_args a;
    te_value dx, edge;
    memset(&a, 0, sizeof a);
    TE_TRY(te__fork_value_of_width(&edge, r, &r->plan->op[i], k.edge_width));
    TE_TRY(te__join_fork_grad(&a.at, r, i, k.edge_width));
    a.previous = a.at.edge, a.at.edge = edge.data;
    TE_TRY(te__gradient(&dx, r, s, i));
    a.at.y = dx.data, a.at.x = r->current.data, a.at.rows = r->current.rows;
    a.saved = te__input_of(r, i).data, a.of = te__sequences_of(r);
    if (!r->dry && (a.at.y || (k.by_row && a.at.dedge)))
        TE_TRY(launch(r->ctx, te__grid_of(te_ceil_div(a.at.rows, TE_JOIN_GROUPS), 1), &a));
    if (!r->dry && !k.by_row && a.at.dedge) {
        const int64_t tiles = te_ceil_div(k.edge_width, 8 * TE_MODULATE_LANES);
        TE_TRY(launch_edge(r->ctx, te__grid_of(tiles, a.of.count), &a));
    }
    te__set_current(r, dx);
    return TE_OK;
}

#endif
