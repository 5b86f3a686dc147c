/* embedding.h -- lookup tables: token embeddings and learnt positions.
 *
 *   (embedding, name, vocabulary, width)   y[row] = weight[tokens[row]]; weight [vocabulary, width], y [rows, width].
 *                                          Begins a list, which then has no input x; te_batch.tokens passes the tokens
 *   (positions, name, length, width)       y[row] = x[row] + weight[position of the row]; weight [length, width]
 *
 * Do this:
 *     (embedding, tokens, 50304, 768), (positions, at, 1024, 768), (fork, x1), (layernorm, ln1, 768), ...
 *
 * Nothing is saved: backward reads the tokens again. A token outside the vocabulary is an error on the host; on CUDA,
 * where the host cannot check the tokens, the token's row of y becomes NaN. A call may have at most 2^24 - 1 rows of
 * tokens.
 *
 * dweight[token] = sum of dy over the rows with that token. The rows are sorted by token, and the rows of each token
 * are added in order, without atomics, so the same inputs give bitwise identical results. dweight[position] = sum of dy
 * over the rows at that position. Each sequence has at most one such row.
 *
 * Option (padding_idx, k): row k of the weight gets no gradient, so the embedding of token k does not change (in
 * PyTorch this row also begins as zeros). A tied_linear of the same weight still adds its gradient.
 *
 * Option (ranks, N), vocabulary-parallel embedding (Shoeybi et al. 2019): with V the vocabulary, rank r of a tensor
 * group of N has rows r * V / N to (r + 1) * V / N - 1 of the weight. For each token, the rank whose table has the
 * token's row writes this row to y, and all other ranks write zeros. So y is a partial sum, which a reduce_scatter or
 * all_reduce must follow; the result is bitwise identical to the result with an unsharded table.
 */
#ifndef TE_OPS_EMBEDDING_H
#define TE_OPS_EMBEDDING_H

#include "../cache/impl/cache_tables.h" /* te__cache_past */
#include "../core/tensor_kernels.h"      /* te_fill */
#include "../plan/dims.h"      /* TE_IS_WIDTH, TE_WIDTH_AT */
#include "../plan/impl/gradients.h" /* te__accumulates */
#include "elementwise.h"       /* te_formats */

/* ---- (embedding, name, vocabulary, width) ------------------------------------------------------------------------ */

#define TE_OP_embedding (embedding, custom)
#define TE_SHAPES_embedding(op) (2)
#define TE_IN_embedding(op) (1)
#define TE_OUT_embedding(op, in) (TE_ARG2(op, 0))
#define TE_LAYOUT_embedding(op, in) (TE_HAS_OPTION(op, ranks) ? (int)TE_LAYOUT_partial_sum : (int)TE_LAYOUT_replicated)
#define TE_ROWS_embedding(op, in) (TE_HAS_OPTION(op, ranks) ? (int)TE_ROWS_tokens : (int)(in))
#define TE_TAKES_embedding_weights TE_TOKEN
#define TE_BLOCK_WEIGHTS_embedding(model, op) ((int)TE_WEIGHTS_OPTION(op, (int)model##_weight_format))
#define TE_TAKES_embedding_ranks TE_INTEGER
#define TE_TAKES_embedding_padding_idx TE_INTEGER
#define TE_SAME_padding_idx_padding_idx ,
#define TE__EMBEDDING_PADDING(op) (TE_OPTION(op, padding_idx, -1)) /* with -1 every row gets a gradient */
#define TE_RANKS_embedding(op) TE_RANKS_OPTION(op)
#define TE_FLAGS_embedding(op) (TE_FROM_TOKENS)
#define TE_PARAMS_embedding(op, in, out) ((weight, TE_OF_RANKS(op, TE_ARG1(op, 0)), out, normal))
#define TE_OPTIONS_embedding(op) TE_IF_HAS(op, padding_idx, TE__EMBEDDING_OPTIONS, TE_NOTHING)(op)
#define TE__EMBEDDING_OPTIONS(op) (te_embedding_options, TE__EMBEDDING_PADDING(op))
typedef struct te_embedding_options { int padding_idx; } te_embedding_options;
#define TE_CHECK_embedding(model, op)                                                                                 \
    (TE__CHECK_TABLE_ROWS(model, op, "vocabulary") TE_CHECK_RANKS(model, op) TE_CHECK_WEIGHTS(model, op)               \
     static_assert(!TE_HAS_OPTION(op, padding_idx) ||                                                                 \
                       (TE__EMBEDDING_PADDING(op) >= 0 &&                                                             \
                        (TE_ARG1(op, 0) < 0 || TE__EMBEDDING_PADDING(op) < TE_ARG1(op, 0))),                          \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": padding_idx must be a token of the vocabulary");)
#define TE__CHECK_TABLE_ROWS(model, op, what)                                                                          \
    static_assert(TE_IS_WIDTH(model, TE_ARG1(op, 0)), "te: " TE_STRING(model) ": " TE_CALLED(op) ": the " what \
        " must be positive");
#define TE_TAKES_DIMS_embedding ,

typedef struct te_embedding_args {
    void *y;         /* the result. Forward: y, [rows, width] in the model's dtype; backward: dweight, [size, width] in
                      * f32 */
    const void *x;   /* the input. Forward of `positions`: x, [rows, width]; backward: dy, [rows, width] */
    const void *w;   /* this rank's table, [size, width] */
    const int32_t *tokens; /* [rows] */
    int32_t *order;  /* [rows]: the rows sorted by token */
    float *partials; /* [segments, 2, width]: partial sums of te_embedding_gradient, for tokens whose rows lie in
                      * several segments of TE_EMBEDDING_SEGMENT sorted rows */
    int64_t rows;
    te_sequences of;
    int size;        /* number of rows of this rank's table: its part of the vocabulary, or the length of a positions
                      * table */
    int position;    /* the position of the first row of each sequence, te_batch.position */
    te_cp_shard context; /* the chunks of each sequence that this rank has */
    /* [sequences]: the number of tokens of each sequence that were in the cache before this batch; null if there is no
     * cache */
    const int32_t *past;
    int accumulate;  /* 1 if backward adds the sums to dweight, 0 if the sums overwrite dweight */
    int width;       /* number of columns of the table; used only if the width is not known at compile time */
    /* the index of this rank's first row within the whole batch. The index is 0 unless the option (rows, shard) splits
     * the rows over the ranks */
    int64_t first;
    /* used with (ranks, N): this rank's table begins at row vocab_start of the whole table, which has `vocabulary`
     * rows */
    int vocab_start, vocabulary;
    int padding;     /* backward: the row of this rank's table that gets no gradient; -1 if every row gets a gradient */
} te_embedding_args;
enum {
    TE_EMBEDDING_LANES = TE_CUDA ? 32 : 1,
    TE_EMBEDDING_GROUPS = TE_CUDA ? 8 : 1,
    TE_EMBEDDING_SEGMENT = 32, /* number of sorted rows in a segment, which one group of lanes sums in backward */
    TE_EMBEDDING_UNROLL = 8    /* number of rows that a group of lanes loads at once in backward */
};

#define TE__EMBEDDING_KERNEL(name, body, ...) \
    TE_KERNEL(name, TE_EMBEDDING_LANES * TE_EMBEDDING_GROUPS, te_embedding_args, body(te_args, te_at, __VA_ARGS__))
#define TE__EMBEDDING_WIDTH(model, op) TE_WIDTH_AT(TE_WIDTH_OUT(model, op), te_args->width)
#define TE__EMBEDDING_FORMATS(model, dtype, op) \
    te_formats_of(TE_DTYPE_IN(model, op), TE_DTYPE_OUT(model, op), TE_##dtype, TE_##dtype)
#define TE__EMBEDDING_FORWARD(name, model, dtype, op, positions)                             \
    TE__EMBEDDING_KERNEL(name, te_embedding_rows, TE__EMBEDDING_WIDTH(model, op), positions, \
        TE__EMBEDDING_FORMATS(model, dtype, op), TE_HAS_OPTION(op, ranks))                   \
    TE_API te_status name##_run(te_run *r, const te_step *s)                                 \
        { return te__embedding_forward(r, s, name##_launch, positions); }
#define TE_CUSTOM_embedding_forward(name, model, dtype, op) TE__EMBEDDING_FORWARD(name, model, dtype, op, 0)
#define TE_CUSTOM_embedding_backward(name, model, dtype, op)                                  \
    TE__EMBEDDING_KERNEL(name, te_embedding_gradient, TE__EMBEDDING_WIDTH(model, op),      \
        (te_dtype)TE_DTYPE_OUT(model, op), TE_HAS_OPTION(op, ranks))                       \
    TE__EMBEDDING_KERNEL(name##_merge, te_embedding_merge, TE__EMBEDDING_WIDTH(model, op), \
        TE_HAS_OPTION(op, ranks))                                                          \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                             \
        return te__embedding_backward(r, s, name##_launch, name##_merge_launch,            \
                                      TE__EMBEDDING_PADDING(op));                          \
    }

/* Returns the index of a token's row in this rank's table. The index is not in [0, a->size) if the row is on another
 * rank, or if the token is not in the vocabulary. sharded: a compile-time constant, which is 1 if the op has the option
 * (ranks, N). */
TE_FN int32_t te__local_token(const te_embedding_args *a, int32_t token, int sharded) {
    return !sharded ? token : token < a->vocab_start ? -1 : token - a->vocab_start;
}
/* Forward of embedding, y[row] = w[token], and of positions, y[row] = x[row] + w[position]. A group of lanes computes a
 * row. Memory traffic: reads the rows of w (for positions also x), writes y. */
TE_FN void te_embedding_rows(const te_embedding_args *a, te_block b, int width, int positions, te_formats format,
                             int sharded) {
    int group;
    const te_lanes g = te_lanes_here(TE_EMBEDDING_LANES, &group);
    const int64_t row = (int64_t)b.x * TE_EMBEDDING_GROUPS + group;
    if (row >= a->rows) return;
    const int at = (int)(a->first + row); /* the row's index in the whole batch */
    const int64_t index = positions ? a->position + te_sequence_past(&a->of, at, a->past) +
                                          te_cp_sequence_position(&a->of, a->context, at)
                                    : te__local_token(a, a->tokens[row], sharded);
    const int known = index >= 0 && index < a->size;
    const int is_others = sharded && !known && a->tokens[row] >= 0 && a->tokens[row] < a->vocabulary;
    TE_UNROLL_4 for (int c = g.id * 8; c < width; c += g.count * 8) {
        const int n = (int)te_min(8, width - c), aligned = width % 8 == 0;
        float v[8], x[8];
        TE_UNROLL for (int i = 0; i < 8; i++) v[i] = is_others ? 0.0f : NAN;
        if (known) te_load8(v, a->w, index * width + c, n, aligned, format.weight);
        if (positions) {
            te_load8(x, a->x, row * width + c, n, aligned, format.in);
            TE_UNROLL for (int i = 0; i < 8; i++) v[i] += x[i];
        }
        te_store8(a->y, row * width + c, v, n, aligned, format.out);
    }
}

/* Sorts the rows by (token, row): order[place] = row, where `place` is the number of rows that come before this row in
 * the sorted order. Each group of lanes finds the place of one row by comparing the row with all others. All groups
 * together make rows^2 comparisons, which is 67 million for 8192 rows. */
TE_FN void te_sort_body(const te_embedding_args *a, te_block b) {
    int group;
    te_lanes g = te_lanes_here(TE_EMBEDDING_LANES, &group);
    const int64_t row = (int64_t)b.x * TE_EMBEDDING_GROUPS + group;
    if (row >= a->rows) return;
    const int32_t token = a->tokens[row];
    int place = 0;
    for (int64_t j = g.id; j < a->rows; j += g.count) {
        const int32_t other = a->tokens[j];
        place += other < token || (other == token && j < row);
    }
    float sum = (float)place; /* te_lanes_sum adds floats; the sum is exact, because there are fewer than 2^24 rows */
    te_lanes_sum(&sum, 1, &g);
    if (g.id == 0) a->order[(int)sum] = (int32_t)row;
}
TE_KERNEL_IF_USED(te_sort_by_token, TE_EMBEDDING_LANES * TE_EMBEDDING_GROUPS, 1, te_embedding_args,
                  te_sort_body(te_args, te_at))

/* Returns the token of the row at place p of the sorted order, as a row index of this rank's table; -1 if p is out of
 * range. */
TE_FN int32_t te_sorted_token(const te_embedding_args *a, int64_t p, int sharded) {
    return p < 0 || p >= a->rows ? -1 : te__local_token(a, a->tokens[a->order[p]], sharded);
}

/* Computes backward on the host: adds dy[row] to dweight[token of the row], row by row, in the columns c to c + n - 1,
 * where n is at most 8. */
TE_FN void te__embedding_gradient_host(const te_embedding_args *a, int c, int n, int width, te_dtype dtype,
                                       int sharded) {
    float *grad = (float *)a->y, v[8];
    for (int64_t row = 0; row < a->rows; row++) {
        const int32_t token = te__local_token(a, a->tokens[row], sharded);
        const int64_t at = (int64_t)token * width + c;
        if ((sharded && (token < 0 || token >= a->size)) || token == a->padding) continue;
        te_load8(v, a->x, row * width + c, n, width % 8 == 0, dtype);
        for (int i = 0; i < n; i++) grad[at + i] += v[i];
    }
}
/* Backward: adds dy[row] to dweight[token of the row], for all rows. Each lane sums eight columns.
 *
 * On CUDA a group of lanes takes a segment of TE_EMBEDDING_SEGMENT sorted rows, so that the work is balanced, no matter
 * how often each token occurs. The sorted rows of one token form a run. If a run lies inside one segment, its sum is
 * added to the token's gradient at once. If the run extends over several segments, one sum for each of these segments
 * is stored in partials[segment]: in slot 0 if the run began in an earlier segment, else in slot 1. te_embedding_merge
 * then adds these sums in order. Memory traffic: reads dy once, and reads and writes the gradients of the tokens that
 * occur. */
TE_FN void te_embedding_gradient(const te_embedding_args *a, te_block b, int width, te_dtype dtype, int sharded) {
    int group;
    const te_lanes g = te_lanes_here(TE_EMBEDDING_LANES, &group);
    const int c = (b.y * TE_EMBEDDING_LANES + g.id) * 8, n = (int)te_min(8, width - c), aligned = width % 8 == 0;
    float *grad = (float *)a->y, v[TE_EMBEDDING_UNROLL][8], sum[8];
    if (c >= width) return;
    if (!TE_CUDA) {
        te__embedding_gradient_host(a, c, n, width, dtype, sharded);
        return;
    }
    const int64_t segment = (int64_t)b.x * TE_EMBEDDING_GROUPS + group, from = segment * TE_EMBEDDING_SEGMENT;
    const int64_t to = te_min(a->rows, from + TE_EMBEDDING_SEGMENT);
    if (from >= a->rows) return;
    const int32_t before = te_sorted_token(a, from - 1, sharded), after = te_sorted_token(a, to, sharded);
    int32_t token = te_sorted_token(a, from, sharded);
    TE_UNROLL for (int i = 0; i < 8; i++) sum[i] = 0;
    for (int64_t p = from; p < to; p += TE_EMBEDDING_UNROLL) {
        int32_t next[TE_EMBEDDING_UNROLL];
        TE_UNROLL for (int u = 0; u < TE_EMBEDDING_UNROLL; u++) {
            const int64_t q = te_min(p + u, to - 1);
            const int32_t row = a->order[q];
            te_load8(v[u], a->x, (int64_t)row * width + c, n, aligned, dtype);
            next[u] = p + u + 1 < to ? te_sorted_token(a, p + u + 1, sharded) : -1;
        }
        TE_UNROLL for (int u = 0; u < TE_EMBEDDING_UNROLL; u++) {
            if (p + u >= to) continue;
            TE_UNROLL for (int i = 0; i < 8; i++) sum[i] += v[u][i];
            const int last = p + u + 1 == to;
            if (!last && next[u] == token) continue;
            const int began_before = token == before, goes_on = last && token == after;
            float *out = grad + (int64_t)token * width + c, old[8];
            if (began_before || goes_on)
                te_store8(a->partials + (segment * 2 + !began_before) * width + c, 0, sum, n, aligned, TE_f32);
            else if (token >= 0 && token < a->size && token != a->padding) {
                te_load8(old, out, 0, n, aligned, TE_f32);
                TE_UNROLL for (int i = 0; i < 8; i++) sum[i] += old[i];
                te_store8(out, 0, sum, n, aligned, TE_f32);
            }
            TE_UNROLL for (int i = 0; i < 8; i++) sum[i] = 0;
            token = next[u];
        }
    }
}
/* Completes the gradient of each token whose sorted rows extend over several segments (of TE_EMBEDDING_SEGMENT rows):
 * the group of lanes whose segment contains the first of these rows adds the partial sums of all these segments to the
 * token's gradient, in order. */
TE_FN void te_embedding_merge(const te_embedding_args *a, te_block b, int width, int sharded) {
    int group;
    const te_lanes g = te_lanes_here(TE_EMBEDDING_LANES, &group);
    const int c = (b.y * TE_EMBEDDING_LANES + g.id) * 8, n = (int)te_min(8, width - c), aligned = width % 8 == 0;
    const int64_t first = (int64_t)b.x * TE_EMBEDDING_GROUPS + group, from = first * TE_EMBEDDING_SEGMENT,
                  to = from + TE_EMBEDDING_SEGMENT;
    if (c >= width || to >= a->rows) return;
    const int32_t token = te_sorted_token(a, to - 1, sharded);
    const int begins = te_sorted_token(a, from - 1, sharded) != token;
    const int goes_on = te_sorted_token(a, to, sharded) == token;
    if (!goes_on || !begins || token < 0 || token >= a->size || token == a->padding) return;
    float *out = (float *)a->y + (int64_t)token * width + c, sum[8], v[8];
    te_load8(sum, out, 0, n, aligned, TE_f32);
    int64_t segment = first;
    for (int64_t end = to;; end += TE_EMBEDDING_SEGMENT) {
        te_load8(v, a->partials + (segment * 2 + (segment == first)) * width + c, 0, n, aligned, TE_f32);
        TE_UNROLL for (int i = 0; i < 8; i++) sum[i] += v[i];
        segment++;
        if (te_sorted_token(a, end, sharded) != token) break;
    }
    te_store8(out, 0, sum, n, aligned, TE_f32);
}

typedef te_status (*te_embedding_launch_fn)(te_context *, te_grid, const te_embedding_args *);

/* Returns the arguments of op i. The caller sets y and the members that only backward needs. */
TE_API te_embedding_args te__embedding_args(const te_run *r, int i) {
    te_embedding_args a;
    memset(&a, 0, sizeof a);
    a.x = r->current.data, a.w = r->param[i]->data, a.rows = te__rows_in(r, r->plan->op[i].out_rows);
    a.size = (int)r->param[i]->rows, a.width = (int)r->param[i]->cols;
    a.of = te__sequences_of(r), a.first = te__first_row(r, r->plan->op[i].out_rows);
    a.vocabulary = a.size * (int)te_max(1, r->plan->op[i].ranks);
    a.vocab_start = r->plan->op[i].ranks ? r->tensor->rank * a.size : 0;
    if (r->batch) a.tokens = r->batch->tokens ? r->batch->tokens + a.first : 0, a.position = r->batch->position;
    a.past = te__cache_past(r->batch), a.context = te__cp_shard_of(r);
    return a;
}
TE_API te_status te__embedding_check(const te_run *r, const te_embedding_args *a, const te_op *op, int positions) {
    const char *name = r->plan->name;
    /* of a whole sequence */
    const int64_t length = (int64_t)a->of.max_seqlen * (a->of.first ? 1 : te_max(1, a->context.ranks));
    if (!r->dry || !r->batch) return TE_OK;
    TE_REQUIRE(!positions || length <= a->size - a->position, r->ctx, TE_ERROR_SHAPE,
               "%s: positions %s holds %d, the batch goes to %lld", name, op->name, a->size,
               (long long)a->position + length);
    TE_REQUIRE(!positions || !r->batch->positions, r->ctx, TE_ERROR_VALUE, "%s: batch.positions is for rope", name);
    TE_REQUIRE(positions || a->tokens, r->ctx, TE_ERROR_NULL, "%s: the batch brings no tokens", name);
    TE_REQUIRE(positions || (uintptr_t)a->tokens % sizeof *a->tokens == 0, r->ctx, TE_ERROR_ALIGNMENT,
               "%s: batch.tokens lie at %p, which is no multiple of 4", name, (const void *)a->tokens);
    TE_REQUIRE(positions || a->rows < (1 << 24), r->ctx, TE_ERROR_OVERFLOW, "%s: more than 2^24 rows", name);
    for (int64_t i = 0; !TE_CUDA && !positions && i < a->rows; i++)
        TE_REQUIRE(a->tokens[i] >= 0 && a->tokens[i] < a->vocabulary, r->ctx, TE_ERROR_VALUE,
                   "%s: token %d of row %lld is outside the vocabulary of %s, %d", name, a->tokens[i], (long long)i,
                   op->name, a->vocabulary);
    return TE_OK;
}
TE_API te_status te__embedding_forward(te_run *r, const te_step *s, te_embedding_launch_fn launch, int positions) {
    const int i = s->op[0];
    te_embedding_args a = te__embedding_args(r, i);
    te_value y;
    TE_TRY(te__embedding_check(r, &a, &r->plan->op[i], positions));
    TE_TRY(te__output(&y, r, s, i));
    a.y = y.data;
    const te_quantized_weight *quantized = positions ? 0 : r->param[i]->quantized;
    if (!r->dry && quantized)
        TE_TRY(r->plan->quantized->lookup(y.data, y.dtype, a.tokens, a.rows, quantized, a.width, r->ctx));
    else if (!r->dry) TE_TRY(launch(r->ctx, te__grid_of(te_ceil_div(a.rows, TE_EMBEDDING_GROUPS), 1), &a));
    te__set_current(r, y);
    return TE_OK;
}
TE_IF_USED TE_API te_status te__embedding_backward(te_run *r, const te_step *s, te_embedding_launch_fn launch,
                                                   te_embedding_launch_fn merge, int padding) {
    const int i = s->op[0];
    te_param *p = r->param[i];
    te_embedding_args a = te__embedding_args(r, i);
    const int64_t padded = te__capacity_rows(r);
    const size_t partials_bytes = (size_t)(padded / TE_EMBEDDING_SEGMENT * 2 * p->cols) * sizeof(float);
    TE_TRY(te__embedding_check(r, &a, &r->plan->op[i], 0));
    if (TE_CUDA) TE_TRY(te__scratch(r, (void **)&a.order, (size_t)padded * sizeof(int32_t)));
    if (TE_CUDA) TE_TRY(te__scratch(r, (void **)&a.partials, partials_bytes));
    a.y = p->grad, a.padding = padding < 0 ? -1 : padding - a.vocab_start;
    if (!r->dry && te_is_trained(p)) {
        const int tiles = (int)te_ceil_div(p->cols, 8 * TE_EMBEDDING_LANES);
        const int64_t segments = te_ceil_div(a.rows, TE_EMBEDDING_SEGMENT);
        const te_grid grid = te__grid_of(TE_CUDA ? te_ceil_div(segments, TE_EMBEDDING_GROUPS) : 1, tiles);
        if (!te__accumulates(r, p)) TE_TRY(te_fill(r->ctx, p->grad, 0, (size_t)(p->rows * p->cols) * sizeof(float)));
        if (TE_CUDA)
            TE_TRY(te_sort_by_token_launch(r->ctx, te__grid_of(te_ceil_div(a.rows, TE_EMBEDDING_GROUPS), 1), &a));
        TE_TRY(launch(r->ctx, grid, &a));
        if (TE_CUDA) TE_TRY(merge(r->ctx, grid, &a));
    }
    te__set_current(r, te__no_value());
    return TE_OK;
}

/* ---- (positions, name, length, width) ---------------------------------------------------------------------------- */

#define TE_OP_positions (positions, custom)
#define TE_SHAPES_positions(op) (2)
#define TE_IN_positions(op) (TE_ARG2(op, 0))
#define TE_PARAMS_positions(op, in, out) ((weight, TE_ARG1(op, 0), out, normal))
#define TE_CHECK_positions(model, op)                                                         \
    (TE__CHECK_TABLE_ROWS(model, op, "length")                                                        \
     static_assert((int)TE_ROWS_OUT(model, op) == (int)TE_ROWS_tokens ||                      \
                       (int)TE_ROWS_OUT(model, op) == (int)TE_ROWS_shard,                     \
                  "te: " TE_STRING(model) ": " TE_CALLED(op) " needs a row for each token");)
#define TE_TAKES_DIMS_positions ,

#define TE_CUSTOM_positions_forward(name, model, dtype, op) TE__EMBEDDING_FORWARD(name, model, dtype, op, 1)
#define TE_CUSTOM_positions_backward(name, model, dtype, op)                             \
    TE__EMBEDDING_KERNEL(name, te_positions_gradient, TE__EMBEDDING_WIDTH(model, op), \
        (te_dtype)TE_DTYPE_OUT(model, op))                                            \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__positions_backward(r, s, name##_launch); }

/* Returns the row of this batch whose token is at `position` in sequence s; -1 if the sequence is too short to have
 * that position, or if another rank of the context group has the row. */
TE_FN int64_t te__row_at(const te_embedding_args *a, int s, int position) {
    const te_sequence sequence = te_sequence_rows(&a->of, s);
    const int rows = a->of.rows / (int)te_max(1, a->context.ranks); /* number of this rank's rows; used only if
                                                                     * cu_seqlens is given */
    if (a->of.first && position >= sequence.count) return -1;
    if (a->of.first) return te_cp_row(a->context, sequence.first + position, rows);
    const int row = te_cp_row(a->context, position, a->of.max_seqlen);
    return row < 0 || row >= sequence.count ? -1 : sequence.first + row;
}
/* Backward of positions: dweight[position] is the sum, over all sequences, of dy in the row at that position; with
 * a->accumulate the sum is added to dweight. A group of lanes computes one position. Memory traffic: reads dy, writes
 * dweight. */
TE_FN void te_positions_gradient(const te_embedding_args *a, te_block b, int width, te_dtype dtype) {
    int group;
    const te_lanes g = te_lanes_here(TE_EMBEDDING_LANES, &group);
    const int64_t t = (int64_t)b.x * TE_EMBEDDING_GROUPS + group;
    const int c = (b.y * TE_EMBEDDING_LANES + g.id) * 8, n = (int)te_min(8, width - c), aligned = width % 8 == 0;
    if (t >= a->size || c >= width) return;
    float v[8], sum[8] = {0};
    if (a->accumulate) te_load8(sum, a->y, t * width + c, n, aligned, TE_f32);
    for (int s = 0; t >= a->position && s < a->of.count; s++) {
        const int64_t row = te__row_at(a, s, (int)t - a->position), at = row - a->first;
        if (row < 0 || at < 0 || at >= a->rows) continue; /* another rank has the row */
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
        te__grid_of(te_ceil_div(a.size, TE_EMBEDDING_GROUPS), te_ceil_div(p->cols, 8 * TE_EMBEDDING_LANES));
    te_value dx = r->current;
    TE_TRY(te__embedding_check(r, &a, &r->plan->op[i], 1));
    a.y = p->grad, a.accumulate = te__accumulates(r, p);
    if (!r->dry && te_is_trained(p)) TE_TRY(launch(r->ctx, grid, &a));
    TE_TRY(te__convert_value(&dx, r, r->plan->op[i].in_dtype)); /* y = x + weight, so dx = dy */
    te__set_current(r, dx);
    return TE_OK;
}

#endif
