/* last_token.h -- (last_token, name): y[sequence] = x[last row of the sequence]. x is [rows, width], y [sequences,
 * width].
 *
 * Do this:
 *     (rmsnorm, norm, H), (last_token, last), (linear, head, H, V)      // logits of the last token only
 *
 * The op is for inference that needs only the logits of a prompt's last token, and for a classifier on top of a causal
 * model. All values after the op have one row for each sequence, so te_batch.labels must have one label for each
 * sequence. The op saves nothing. Backward: dx[last row] = dy[sequence], and dx is 0 elsewhere. For an empty sequence
 * (te_batch.cu_seqlens) y is 0 and dy is ignored.
 */
#ifndef TE_OPS_LAST_TOKEN_H
#define TE_OPS_LAST_TOKEN_H

#include "../core/target.h" /* TE_KERNEL */
#include "../plan/dims.h"   /* TE_WIDTH_AT */
#include "../plan/impl/storage.h"    /* te__output, te__gradient */

#define TE_OP_last_token (last_token, custom)
#define TE_SHAPES_last_token(op) (0)
#define TE_PRODUCES_last_token(op) (TE_PRODUCES_same)
#define TE_ROWS_last_token(op, in) (TE_ROWS_sequences)
#define TE_TAKES_DIMS_last_token ,
#define TE_CHECK_last_token(model, op)                                \
    (static_assert((int)TE_ROWS_IN(model, op) == (int)TE_ROWS_tokens, \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) " needs a row for each token");)

typedef struct te_last_token_args {
    void *y;       /* the result. Forward: y, [sequences, width]; backward: dx, [rows, width] */
    const void *x; /* the input. Forward: x, [rows, width]; backward: dy, [sequences, width] */
    int64_t rows;  /* number of rows of the tensor at `y` */
    te_sequences of;
    int width;     /* number of columns of x; used only if the width is not known at compile time */
} te_last_token_args;
enum { TE_LAST_TOKEN_LANES = TE_CUDA ? 32 : 1, TE_LAST_TOKEN_GROUPS = TE_CUDA ? 8 : 1 };

#define TE__LAST_TOKEN_KERNEL(name, body, model, op)                                    \
    TE_KERNEL(name, TE_LAST_TOKEN_LANES * TE_LAST_TOKEN_GROUPS, te_last_token_args,     \
              body(te_args, te_at, TE_WIDTH_AT(TE_WIDTH_IN(model, op), te_args->width), \
                  (te_dtype)TE_DTYPE_IN(model, op)))
#define TE_CUSTOM_last_token_forward(name, model, dtype, op)     \
    TE__LAST_TOKEN_KERNEL(name, te_last_token_rows, model, op) \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__last_token_run(r, s, name##_launch); }
#define TE_CUSTOM_last_token_backward(name, model, dtype, op)        \
    TE__LAST_TOKEN_KERNEL(name, te_last_token_gradient, model, op) \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__last_token_run(r, s, name##_launch); }

/* The forward kernel: a group of lanes copies the last row of one sequence to y. Memory traffic: reads the last row of
 * each sequence, writes y. */
TE_FN void te_last_token_rows(const te_last_token_args *a, te_block b, int width, te_dtype dtype) {
    int group;
    const te_lanes g = te_lanes_here(TE_LAST_TOKEN_LANES, &group);
    const int64_t row = (int64_t)b.x * TE_LAST_TOKEN_GROUPS + group;
    if (row >= a->rows) return;
    const te_sequence sequence = te_sequence_rows(&a->of, (int)row);
    const int64_t last = sequence.first + sequence.count - 1;
    for (int c = g.id * 8; c < width; c += g.count * 8) {
        const int n = (int)te_min(8, width - c), aligned = width % 8 == 0;
        float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (sequence.count) te_load8(v, a->x, last * width + c, n, aligned, dtype);
        te_store8(a->y, row * width + c, v, n, aligned, dtype);
    }
}
/* The backward kernel: a group of lanes writes one row of dx. Memory traffic: reads dy, writes dx. */
TE_FN void te_last_token_gradient(const te_last_token_args *a, te_block b, int width, te_dtype dtype) {
    int group;
    const te_lanes g = te_lanes_here(TE_LAST_TOKEN_LANES, &group);
    const int64_t row = (int64_t)b.x * TE_LAST_TOKEN_GROUPS + group;
    if (row >= a->rows) return;
    const int index = te_sequence_of(&a->of, (int)row, 0);
    const te_sequence sequence = te_sequence_rows(&a->of, index);
    const int is_last = row == sequence.first + sequence.count - 1;
    for (int c = g.id * 8; c < width; c += g.count * 8) {
        const int n = (int)te_min(8, width - c), aligned = width % 8 == 0;
        float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (is_last) te_load8(v, a->x, (int64_t)index * width + c, n, aligned, dtype);
        te_store8(a->y, row * width + c, v, n, aligned, dtype);
    }
}

TE_API te_status te__last_token_run(te_run *r, const te_step *s,
                                    te_status (*launch)(te_context *, te_grid, const te_last_token_args *)) {
    const int i = s->op[0];
    te_last_token_args a;
    te_value y;
    TE_TRY(r->pass == TE_BACKWARD ? te__gradient(&y, r, s, i) : te__output(&y, r, s, i));
    memset(&a, 0, sizeof a);
    a.y = y.data, a.x = r->current.data, a.rows = y.rows, a.of = te__sequences_of(r), a.width = y.cols;
    if (y.data && !r->dry) TE_TRY(launch(r->ctx, te__grid_of(te_ceil_div(a.rows, TE_LAST_TOKEN_GROUPS), 1), &a));
    te__set_current(r, y);
    return TE_OK;
}

#endif
