/* linear_cross_entropy.h -- a linear and the cross_entropy after it as one step, which computes the logits in pieces:
 * only one piece at a time is in memory, with 1 / TE_LOSS_FRACTION (1/16) of all logits. Computing in pieces saves
 * memory but takes more time, so the pattern is not in fusions.h. To use it, write before TE_SEQUENTIAL:
 *
 *   #define TE_FORWARD_linear_cross_entropy TE_FUSED
 *   #define TE_BACKWARD_cross_entropy_linear TE_FUSED
 *
 * In forward a piece is a range of rows with the whole vocabulary. For each piece forward runs the GEMM, then computes
 * the loss and the statistics of each row, and saves the statistics. Backward recomputes each piece of the logits,
 * overwrites the piece with its gradient dlogits, and runs two GEMMs: dweight += dlogits^T x, dx += dlogits weight.
 *
 * Lower bound of the time of forward and backward: four GEMMs, because the logits are computed twice; two separate
 * steps take three GEMMs. Forward cannot compute the gradients, because three things are known only in backward: dy or
 * loss_scale, whether gradients accumulate, and the other uses of a tied weight. Nor could forward store the weight's
 * gradient for later, because only the caller has memory for that gradient. With te_batch.loss_in_backward, the logits
 * are computed only once, in backward, if that is expected to be faster (te__loss_in_backward_pays). Backward then also
 * computes the losses, bitwise identical to the losses that forward would compute.
 *
 * In backward each piece reads and writes the rows of dweight (in f32) that belong to its columns. If a piece has only
 * some of the vocabulary's columns, dx of the piece's rows is a sum over several pieces, so each of these pieces reads
 * and writes dx, too. te__logits_of_backward chooses the shape of pieces that moves the fewest bytes. The sizes of
 * pieces depend only on the sizes of the call. So the same inputs produce bitwise identical results, but two separate
 * steps may produce other results. Measurements: docs/notes/linear.md.
 */
#ifndef TE_LINEAR_CROSS_ENTROPY_H
#define TE_LINEAR_CROSS_ENTROPY_H

#include "../../ops/cross_entropy.h" /* te_cross_entropy_args */
#include "linear_step.h" /* te__linear_step_forward, _backward */

/* Marks cross_entropy as an op that may end a step which begins with a linear; in backward it then begins the step, and
 * the linear ends it. */
#define TE_TAKES_LINEAR_cross_entropy ,
#define TE_CUSTOM_PATTERN_cross_entropy_forward(name, model, dtype, op) \
    TE__IF_RANKS(op, TE__LOSS_PATTERN_OF_RANKS_FORWARD, TE__LOSS_PATTERN_FORWARD)(name, model, dtype, op)
#define TE_CUSTOM_PATTERN_cross_entropy_backward(name, model, dtype, op) \
    TE__IF_RANKS(op, TE__LOSS_PATTERN_OF_RANKS_BACKWARD, TE__LOSS_PATTERN_BACKWARD)(name, model, dtype, op)
#define TE__LOSS_PATTERN_FORWARD(name, model, dtype, op)                                                               \
    TE__CROSS_ENTROPY_KERNEL(name, te_cross_entropy_row, TE_WIDTH_IN(model, op), (te_dtype)TE_DTYPE_IN(model, op), op) \
    TE_API te_status name##_run(te_run *r, const te_step *s)                                                           \
        { return te__linear_loss_forward(r, s, name##_launch, TE_UNFUSED_GEMM(dtype, forward)); }
#define TE__LOSS_PATTERN_BACKWARD(name, model, dtype, op)                                                        \
    TE__CROSS_ENTROPY_KERNEL(name##_at_once, te_cross_entropy_loss_and_grad, TE_WIDTH_IN(model, op),             \
        (te_dtype)TE_DTYPE_IN(model, op), op)                                                                    \
    TE_KERNEL(name, TE_CROSS_ENTROPY_THREADS(TE_WIDTH_IN(model, op)), te_cross_entropy_args,                     \
              te_cross_entropy_grad_shard(te_args, te_at, TE_CROSS_ENTROPY_THREADS(TE_WIDTH_IN(model, op)),      \
                  TE_WIDTH_AT(TE_WIDTH_IN(model, op), te_args->vocabulary), (te_dtype)TE_DTYPE_IN(model, op),    \
                  te_loss_options_of(TE__LABEL_SMOOTHING(op), TE__Z_LOSS(op))))                                  \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                   \
        const te__loss_kernels kernels = {name##_launch, name##_at_once_launch, TE_UNFUSED_GEMM(dtype, forward), \
            TE_UNFUSED_GEMM(dtype, backward)};                                                                   \
        return te__linear_loss_backward(r, s, &kernels);                                                         \
    }

/* The kernels of backward. A piece is the part of the logits that is in memory at a time. slice: computes the gradient
 * of a piece from the saved statistics of its rows; at_once: computes loss and gradient of a piece that has the whole
 * vocabulary; logits, dx: the library's kernels for the GEMMs that compute the logits and dx. */
typedef struct te__loss_kernels {
    te_cross_entropy_launch_fn slice, at_once;
    te_product_kernels *logits, *dx;
} te__loss_kernels;

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

#ifndef TE_LOSS_FRACTION
/* 1 / TE_LOSS_FRACTION of all logits is in memory at a time. A program may define TE_LOSS_FRACTION as 4, for example:
 * the step then takes four times as much memory as with 16, and is almost as fast as with all logits in memory. */
#define TE_LOSS_FRACTION 16
#endif
enum {
    /* a piece of the logits has a multiple of this many rows, the height of a GEMM tile */
    TE_LOSS_ROWS = 128,
    /* a piece of the logits has the whole vocabulary or a multiple of this many columns, the width of a GEMM tile */
    TE_LOSS_COLUMNS = 256,
    /* te_batch.loss_in_backward asks to compute the logits only in backward. This is done if a piece has at least this
     * many rows: reading and writing dweight for each piece then takes less time than computing the logits a second
     * time. */
    TE_LOSS_IN_BACKWARD_ROWS = 384,
    /* Even with fewer rows per piece, te_batch.loss_in_backward is followed if dweight has at most this many elements,
     * because dweight then stays in the L2. */
    TE_LOSS_IN_BACKWARD_WEIGHT = 1 << 22
};
/* The shape of a piece of the logits. columns: the vocabulary's size, or less if the piece has only a part of the
 * columns. */
typedef struct te__logits_piece { int64_t rows, columns; } te__logits_piece;

/* Return the shape of the pieces in which forward computes the logits. capacity: the number of rows for which the
 * call's workspace is sized. */
TE_API te__logits_piece te__logits_of_forward(int64_t capacity, int64_t vocabulary) {
    te__logits_piece p;
    p.rows = te_min(capacity, te_max(TE_LOSS_ROWS, capacity / TE_LOSS_FRACTION / TE_LOSS_ROWS * TE_LOSS_ROWS));
    p.columns = vocabulary;
    return p;
}
/* Returns how many elements of dweight and dx, taken together, backward reads and writes with pieces of shape p and
 * `capacity` rows of x. */
TE_API double te__logits_traffic(te__logits_piece p, int64_t capacity, int64_t vocabulary, int64_t hidden) {
    const int64_t of_dx = p.columns < vocabulary ? te_ceil_div(vocabulary, p.columns) * capacity : 0;
    return (double)hidden * ((double)te_ceil_div(capacity, p.rows) * (double)vocabulary + (double)of_dx);
}
/* Return the shape of the pieces in which backward recomputes the logits: the shape with which the fewest elements are
 * read and written, among all shapes that fit into the memory for logits. size: bytes of a logit. dx_bytes: 0 if dx is
 * summed in place; else dx is summed in a buffer within that memory, whose elements have dx_bytes bytes. */
TE_API te__logits_piece te__logits_of_backward(int64_t capacity, int64_t vocabulary, int64_t hidden, size_t size,
                                               size_t dx_bytes) {
    te__logits_piece best = te__logits_of_forward(capacity, vocabulary), p;
    const int64_t least_rows = best.rows, bytes = best.rows * vocabulary * (int64_t)size;
    for (int64_t parts = 1;; parts *= 2) {
        p.rows = te_min(capacity, te_round_up(te_ceil_div(capacity, parts), TE_LOSS_ROWS));
        if (p.rows <= least_rows) return best;
        p.columns = (bytes - p.rows * hidden * (int64_t)dx_bytes) / (p.rows * (int64_t)size);
        p.columns = te_min(vocabulary, p.columns / TE_LOSS_COLUMNS * TE_LOSS_COLUMNS);
        if (p.columns > 0 && te__logits_traffic(p, capacity, vocabulary, hidden) <
                                 te__logits_traffic(best, capacity, vocabulary, hidden))
            best = p;
    }
}
TE_API int te__loss_in_backward_pays(int64_t capacity, int64_t vocabulary, int64_t hidden) {
    const int64_t rows = te__logits_of_forward(capacity, vocabulary).rows;
    return rows >= te_min(capacity, TE_LOSS_IN_BACKWARD_ROWS) || vocabulary * hidden <= TE_LOSS_IN_BACKWARD_WEIGHT;
}

/* ---- shared by forward and backward ------------------------------------------------------------------------------ */

/* The state of a pass over the logits. */
typedef struct te__linear_loss {
    const te_op *linear, *loss;
    te_param *weight;
    te_value x;
    char *logits;
    float *scratch; /* scratch memory for GEMMs on the host */
} te__linear_loss;

/* Acquire the memory that forward or backward needs for logits: as much as 1 / TE_LOSS_FRACTION of all logits take,
 * whatever the shape of the pieces is. This memory holds a piece of the logits and, if dx is summed in f32, the buffer
 * for these sums. */
TE_API te_status te__linear_loss_open(te__linear_loss *l, te_run *r, int linear, int loss) {
    const int64_t capacity = te__capacity_rows(r);
    l->linear = &r->plan->op[linear], l->loss = &r->plan->op[loss], l->weight = r->param[linear];
    const int64_t hidden = l->linear->in, vocabulary = l->linear->out;
    const int64_t elements = te__logits_of_forward(capacity, vocabulary).rows * vocabulary;
    void *logits = 0, *scratch = 0;
    te_gemm any = te_gemm_of(1, 1, 1);
    TE_TRY(te__convert_value(&l->x, r, r->plan->dtype));
    TE_TRY(te__scratch(r, &logits, (size_t)elements * te_dtype_bytes(r->plan->dtype)));
    any.dtype = any.out = r->plan->dtype;
    /* scratch memory for GEMMs on the host, which convert their operands to float. The memory is large enough for each
     * GEMM of the pass, because the operands of these GEMMs are x, the weight and logits */
    if (te__gemm_scratch(&any))
        TE_TRY(te__scratch(r, &scratch, (size_t)((capacity + vocabulary) * hidden + elements) * sizeof(float)));
    if (r->dry) TE_TRY(te__gemm_check(&any, r->plan->name, r->ctx));
    l->logits = (char *)logits, l->scratch = (float *)scratch;
    return TE_OK;
}
TE_API te_status te__linear_loss_gemm(const te__linear_loss *l, te_gemm *g, te_run *r, te_product_kernels *unfused) {
    g->scratch = l->scratch, g->dtype = r->plan->dtype;
    return te_gemm_is_custom(unfused, g, r->ctx) ? te__unfused_gemm_run(unfused, g, r->ctx)
                                                 : r->plan->product(g, r->ctx);
}
/* Returns the address of row `row` of the tensor [.., columns] at p, or null if p is null. */
TE_API void *te__row_address(const void *p, int64_t row, int64_t columns, te_dtype dtype) {
    return p ? (char *)(uintptr_t)p + (size_t)(row * columns) * te_dtype_bytes(dtype) : 0;
}
/* Computes a piece of the logits, x weight^T. The piece has p.rows rows and p.columns columns; its first element is the
 * one at [row, column] of the logits. */
TE_API te_status te__linear_loss_logits(const te__linear_loss *l, te_run *r, void *logits, int64_t row, int64_t column,
                                        te__logits_piece p, te_product_kernels *unfused) {
    const te_dtype dtype = r->plan->dtype;
    te_gemm g = te_gemm_of(p.rows, p.columns, l->linear->in);
    g.out = dtype, g.trans_b = 1, g.d = logits;
    g.a = te__row_address(l->x.data, row, l->linear->in, dtype);
    g.b = te__row_address(l->weight->data, column, l->linear->in, dtype);
    return te__linear_loss_gemm(l, &g, r, unfused);
}
/* Returns a copy of the cross_entropy arguments `all` whose row 0 is row `row` of `all`. */
TE_API te_cross_entropy_args te__linear_loss_rows(const te_cross_entropy_args *all, int64_t row) {
    te_cross_entropy_args a = *all;
    a.labels += row;
    if (a.loss) a.loss += row;
    if (a.stats) a.stats += 2 * row;
    if (a.dy) a.dy += row;
    return a;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Runs linear and cross_entropy as separate steps, with all logits in memory. Forward does this under a low-precision
 * recipe, for a quantized weight, and if the plan's backward has separate steps for the two ops, which read the saved
 * logits. */
TE_IF_USED TE_API te_status te__linear_loss_apart(te_run *r, const te_step *s, te_cross_entropy_launch_fn launch,
                                                  te_product_kernels *unfused) {
    te_step first = *s;
    te_pointwise_shape none;
    memset(&none, 0, sizeof none);
    first.count = 1;
    TE_TRY(te__linear_step_forward(r, &first, 0, none, 0, unfused));
    return te__cross_entropy_forward(r, s, launch);
}
TE_IF_USED TE_API te_status te__linear_loss_forward(te_run *r, const te_step *s, te_cross_entropy_launch_fn launch,
                                                    te_product_kernels *unfused) {
    const te_op *linear = &r->plan->op[s->op[0]];
    const int saves = r->pass == TE_FORWARD && te__policy(r, s->op[0])->output_saved;
    const int64_t rows = r->current.rows, capacity = te__capacity_rows(r);
    te_cross_entropy_args all;
    te__linear_loss l;
    te_value y;
    const int apart = saves || linear->recipe != TE_RECIPE_none || r->param[s->op[0]]->quantized;
    if (apart) return te__linear_loss_apart(r, s, launch, unfused);
    TE_TRY(te__cross_entropy_args_of(&all, r, &r->plan->op[s->op[1]], rows));
    TE_TRY(te__output(&y, r, s, s->op[1]));
    r->loss_in_backward = r->pass == TE_FORWARD && r->batch && r->batch->loss_in_backward && y.data == r->y.data &&
                          te__loss_in_backward_pays(capacity, linear->out, linear->in);
    if (!r->loss_in_backward) {
        te__logits_piece p = te__logits_of_forward(capacity, linear->out);
        const int64_t max_rows = p.rows;
        l.x = r->current;
        TE_TRY(te__linear_loss_open(&l, r, s->op[0], s->op[1]));
        all.loss = (float *)y.data, all.stats = r->stats[s->op[1]], all.x = l.logits;
        for (int64_t row = 0; row < rows && !r->dry; row += max_rows) {
            p.rows = te_min(max_rows, rows - row);
            const te_cross_entropy_args a = te__linear_loss_rows(&all, row);
            TE_TRY(te__linear_loss_logits(&l, r, l.logits, row, 0, p, unfused));
            TE_TRY(launch(r->ctx, te__grid_of(p.rows, 1), &a));
        }
    }
    te__set_current(r, y);
    return TE_OK;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Runs the two GEMMs of a piece: dweight[columns, in] += dlogits^T x, if the weight is trained, and dx[rows, in] +=
 * dlogits weight, in dx's format. Pieces that begin at row 0 overwrite dweight instead (unless gradients accumulate),
 * and pieces that begin at column 0 overwrite dx. logits: dlogits, the gradient of the piece. */
TE_API te_status te__linear_loss_gradients(const te__linear_loss *l, te_run *r, const void *logits, te_value dx,
                                           int64_t row, int64_t column, te__logits_piece p,
                                           te_product_kernels *unfused) {
    const te_dtype dtype = r->plan->dtype;
    const int hidden = l->linear->in;
    te_gemm w = te_gemm_of(p.columns, hidden, p.rows), x = te_gemm_of(p.rows, hidden, p.columns);
    w.a = logits, w.trans_a = 1, w.b = te__row_address(l->x.data, row, hidden, dtype), w.out = TE_f32;
    w.c = w.d = te__row_address(l->weight->grad, column, hidden, TE_f32);
    w.beta = te__accumulates(r, l->weight) || row ? 1.0f : 0.0f;
    if (te_is_trained(l->weight)) TE_TRY(te__linear_loss_gemm(l, &w, r, 0));
    if (!dx.data) return TE_OK;
    x.a = logits, x.b = te__row_address(l->weight->data, column, hidden, dtype), x.out = dx.dtype;
    x.c = x.d = dx.data, x.beta = column ? 1.0f : 0.0f;
    return te__linear_loss_gemm(l, &x, r, unfused);
}
/* Runs backward for rows row to row + p.rows - 1 of x: computes all pieces of the rows' logits, and adds the pieces'
 * gradients to dweight and dx. sums: the f32 buffer in which dx of these rows is summed, or null if dx is summed in
 * place. */
TE_API te_status te__linear_loss_slices(const te__linear_loss *l, te_run *r, const te_cross_entropy_args *all,
                                        const te__loss_kernels *kernels, te_value dx, float *sums, int64_t row,
                                        te__logits_piece p) {
    te_cross_entropy_args a = te__linear_loss_rows(all, row);
    const int64_t hidden = l->linear->in, max_columns = p.columns;
    char *logits = l->logits;
    const te_value to = te__value_of(te__row_address(dx.data, row, hidden, dx.dtype), dx.dtype, p.rows, (int)hidden);
    const te_value made = sums ? te__value_of(dx.data ? sums : 0, TE_f32, p.rows, (int)hidden) : to;
    for (int64_t column = 0; column < l->linear->out; column += max_columns) {
        p.columns = te_min(max_columns, l->linear->out - column);
        a.x = a.dx = logits, a.first = all->first + (int)column, a.width = (int)p.columns;
        TE_TRY(te__linear_loss_logits(l, r, logits, row, column, p, kernels->logits));
        TE_TRY((r->loss_in_backward ? kernels->at_once : kernels->slice)(r->ctx, te__grid_of(p.rows, 1), &a));
        TE_TRY(te__linear_loss_gradients(l, r, logits, made, row, column, p, kernels->dx));
    }
    return sums && to.data ? r->plan->convert(to.data, to.dtype, made.data, TE_f32, to.rows * hidden, r->ctx) : TE_OK;
}
/* Runs the backward of cross_entropy and of the linear as separate steps, which is necessary under a low-precision
 * recipe. */
TE_IF_USED TE_API te_status te__linear_loss_backward_apart(te_run *r, const te_step *s,
                                                           const te__loss_kernels *kernels) {
    te_step one = *s;
    te_pointwise_shape none;
    memset(&none, 0, sizeof none);
    one.count = 1;
    TE_TRY(te__cross_entropy_backward(r, &one, kernels->slice));
    one.op[0] = s->op[1];
    return te__linear_step_backward(r, &one, 0, none, 0, kernels->dx);
}
TE_IF_USED TE_API te_status te__linear_loss_backward(te_run *r, const te_step *s, const te__loss_kernels *kernels) {
    const int loss = s->op[0], linear = s->op[1];
    const te_op *op = &r->plan->op[linear];
    const int64_t rows = r->dy.rows, capacity = te__capacity_rows(r);
    te_cross_entropy_args all;
    te__linear_loss l;
    te_value dx, dy;
    if (op->recipe != TE_RECIPE_none) return te__linear_loss_backward_apart(r, s, kernels);
    TE_TRY(te__cross_entropy_args_of(&all, r, &r->plan->op[loss], rows));
    TE_TRY(te__gradient(&dx, r, s, linear));
    l.x = te__input_of(r, linear);
    TE_TRY(te__linear_loss_open(&l, r, linear, loss));
    TE_TRY(te__cross_entropy_dy(&dy, r));
    all.loss = (float *)r->y.data, all.stats = r->stats[loss], all.dy = (const float *)dy.data;
    const size_t dx_bytes = dx.dtype == TE_f32 ? 0 : sizeof(float);
    te__logits_piece p = r->loss_in_backward ? te__logits_of_forward(capacity, op->out)
                                             : te__logits_of_backward(capacity, op->out, op->in,
                                                                      te_dtype_bytes(r->plan->dtype), dx_bytes);
    float *sums = p.columns < op->out && dx_bytes ? (float *)(void *)l.logits : 0;
    const int64_t max_rows = p.rows;
    if (sums) l.logits += (size_t)(max_rows * op->in) * sizeof(float);
    for (int64_t row = 0; row < rows && !r->dry; row += max_rows) {
        p.rows = te_min(max_rows, rows - row);
        TE_TRY(te__linear_loss_slices(&l, r, &all, kernels, dx, sums, row, p));
    }
    te__set_current(r, dx);
    return TE_OK;
}

/* ---- a vocabulary that is sharded over ranks ---------------------------------------------------------------------
 *
 * A model's ops (linear, .., (shard, columns)) and (cross_entropy, .., (ranks, N)) run as one step. A piece contains
 * only columns of this rank's shard. For each row, forward stores the statistics of this rank's columns. After the last
 * piece it gathers the statistics of all ranks once, so backward needs nothing from the other ranks. Forward computes
 * the loss even if te_batch.loss_in_backward is set, because otherwise all ranks would have to wait for each other at
 * every piece. */

/* Runs linear and a vocabulary-parallel cross_entropy as separate steps, with all logits in memory. Forward does this
 * under a low-precision recipe, and if the plan's backward has separate steps for the two ops, which read the saved
 * logits. */
TE_IF_USED TE_API te_status te__linear_loss_of_ranks_apart(te_run *r, const te_step *s, const te_vocab_parallel *loss,
                                                           te_product_kernels *unfused) {
    te_step first = *s;
    te_pointwise_shape none;
    memset(&none, 0, sizeof none);
    first.count = 1;
    TE_TRY(te__linear_step_forward(r, &first, 0, none, 0, unfused));
    return te__vocab_parallel_forward(r, s, loss);
}
TE_IF_USED TE_API te_status te__linear_loss_of_ranks(te_run *r, const te_step *s, const te_vocab_parallel *loss,
                                                     te_product_kernels *unfused) {
    const te_op *linear = &r->plan->op[s->op[0]];
    const int saves = r->pass == TE_FORWARD && te__policy(r, s->op[0])->output_saved;
    te__logits_piece p = te__logits_of_forward(te__capacity_rows(r), linear->out);
    const int64_t rows = r->current.rows, max_rows = p.rows;
    te_vocab_parallel_args all;
    te__linear_loss l;
    te_value y;
    if (saves || linear->recipe != TE_RECIPE_none) return te__linear_loss_of_ranks_apart(r, s, loss, unfused);
    TE_TRY(te__vocab_parallel_begin(&all, &y, r, s, loss));
    r->loss_in_backward = 0;
    l.x = r->current;
    TE_TRY(te__linear_loss_open(&l, r, s->op[0], s->op[1]));
    for (int64_t row = 0; row < rows && !r->dry; row += max_rows) {
        te_vocab_parallel_args a = all;
        p.rows = te_min(max_rows, rows - row);
        a.of = te__linear_loss_rows(&all.of, row), a.of.x = l.logits, a.part += row;
        TE_TRY(te__linear_loss_logits(&l, r, l.logits, row, 0, p, unfused));
        TE_TRY(loss->part(r->ctx, te__grid_of(p.rows, 1), &a));
    }
    if (!r->dry) TE_TRY(te__vocab_parallel_combine(&all, r, loss));
    te__set_current(r, y);
    return TE_OK;
}

#define TE__LOSS_PATTERN_OF_RANKS_FORWARD(name, model, dtype, op)                            \
    TE__VOCAB_PARALLEL_KERNELS(name, model, op)                                               \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                               \
        const te_vocab_parallel loss = TE__VOCAB_PARALLEL_LOSS(name, op);                           \
        return te__linear_loss_of_ranks(r, s, &loss, TE_UNFUSED_GEMM(dtype, forward));         \
    }
#define TE__LOSS_PATTERN_OF_RANKS_BACKWARD(name, model, dtype, op)                               \
    TE__VOCAB_PARALLEL_GRAD(name, model, op)                                                 \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                               \
        const te__loss_kernels kernels = {name##_launch, 0, TE_UNFUSED_GEMM(dtype, forward),         \
            TE_UNFUSED_GEMM(dtype, backward)};                                                       \
        return te__linear_loss_backward(r, s, &kernels);                                     \
    }

#endif
