/* cross_entropy.h -- (cross_entropy, name, vocabulary): loss[row] = log(sum exp(x[row])) - x[row, label], in f32; ends
 * a list. Options, both 0 if not given:
 *
 *   (label_smoothing, e)   the label has the share 1 - e, and each one e / vocabulary on top, the label too: loss =
 *                          log sum exp - (1 - e) x[label] - e mean(x). Szegedy et al. 2016, as in PyTorch
 *   (z_loss, z)            loss + z (log sum exp)^2. Chowdhery et al. 2022 (PaLM), with z = 1e-4
 *
 * Softmax and loss in one pass over the logits (online, so a vocabulary of any size); backward reads the logits once
 * and writes (softmax - onehot) * dloss, with options (softmax (1 + 2 z log sum exp) - shares) * dloss. te_batch brings
 * labels and ignore_index; a row with that label has loss 0 and gradient 0 (0 stands for the default, -100). With
 * te_batch.loss_count gradients are those of the mean over the other rows (loss_mean.h). A label
 * outside the vocabulary is an error on the host; on CUDA its loss and gradient are NaN. Behind a linear the two are a
 * row, which never has all logits in memory: te/linear/impl/linear_cross_entropy.h.
 *
 *   (ranks, N)             each rank of a tensor group of N has vocabulary / N columns of the logits, those of a linear
 *                          (shard, columns), and all have the losses: cross_entropy_ranks.h
 */
#ifndef TE_OPS_CROSS_ENTROPY_H
#define TE_OPS_CROSS_ENTROPY_H

#include "../core/math.h" /* te_exp, te_exp2 */
#include "../plan/dims.h" /* TE_WIDTH_AT */
#include "../plan/impl/storage.h"  /* te_output, te_gradient */
#include "loss_mean.h"    /* te_loss_each, te_ignored_label */

#define TE_OP_cross_entropy (cross_entropy, custom)
#define TE_SHAPES_cross_entropy(op) (1)
#define TE_IN_cross_entropy(op) (TE_OF_RANKS(op, TE_ARG1(op, 0)))
#define TE_OUT_cross_entropy(op, in) (1)
#define TE_PRODUCES_cross_entropy(op) (TE_PRODUCES_f32)
#define TE_LAYOUT_FITS_cross_entropy(op, in) \
    ((int)(in) == (TE_HAS_OPTION(op, ranks) ? (int)TE_LAYOUT_columns : (int)TE_LAYOUT_replicated))
#define TE_LAYOUT_cross_entropy(op, in) (TE_HAS_OPTION(op, ranks) ? (int)TE_LAYOUT_replicated : (int)(in))
#define TE_TAKES_cross_entropy_ranks TE_INTEGER
#define TE_RANKS_cross_entropy(op) TE_RANKS_OPTION(op)
#define TE_FLAGS_cross_entropy(op) (TE_SAVES_INPUT | TE_TO_LOSS)
#define TE_STATS_cross_entropy(op) (2) /* the largest logit; log2 of the sum of exp(x - that) */
#define TE_TAKES_DIMS_cross_entropy ,
#define TE_TAKES_cross_entropy_label_smoothing TE_NUMBER
#define TE_TAKES_cross_entropy_z_loss TE_NUMBER
#define TE__LABEL_SMOOTHING(op) (float)(TE_OPTION(op, label_smoothing, 0.0f))
#define TE__Z_LOSS(op) (float)(TE_OPTION(op, z_loss, 0.0f))
#define TE_CHECK_cross_entropy(model, op)                                                                             \
    (TE_CHECK_RANKS(model, op)                                                                                        \
     TE_ASSERT_NUMBER(TE__LABEL_SMOOTHING(op) >= 0 && TE__LABEL_SMOOTHING(op) <= 1, "te: " TE_STRING(model) ": "      \
        TE_CALLED(op) ": label_smoothing must be between 0 and 1");                                                   \
     TE_ASSERT_NUMBER(TE__Z_LOSS(op) >= 0 && TE__Z_LOSS(op) < 3e38f, "te: " TE_STRING(model) ": "                     \
        TE_CALLED(op) ": z_loss must be a finite number of at least 0");)
/* They are part of the list's text in a checkpoint if the op says one of them. */
#define TE_OPTIONS_cross_entropy(op)                                                                            \
    TE_IF_HAS(op, label_smoothing, TE__LOSS_OPTIONS, TE_IF_HAS(op, z_loss, TE__LOSS_OPTIONS, TE__NO_LOSS_OPTIONS))(op)
#define TE__NO_LOSS_OPTIONS(op) (te_no_options, 0)
#define TE__LOSS_OPTIONS(op) (te_loss_options, TE__LABEL_SMOOTHING(op), TE__Z_LOSS(op))

typedef struct te_loss_options { float label_smoothing, z_loss; } te_loss_options; /* constants */
TE_FN te_loss_options te_loss_options_of(float label_smoothing, float z_loss) {
    te_loss_options o;
    o.label_smoothing = label_smoothing, o.z_loss = z_loss;
    return o;
}

typedef struct te_cross_entropy_args {
    float *loss;      /* [rows] */
    float *stats;     /* [rows, 2], null in inference */
    void *dx;         /* [rows, width]; it may be x */
    const void *x;    /* [rows, width] */
    const float *dy;  /* [rows], null: dloss in every row */
    const int32_t *labels;
    int ignore_index;
    float dloss;
    int width; /* where it is known only at run time */
    int first, vocabulary; /* of a slice of the columns: where it begins, and how many there are in all */
} te_cross_entropy_args;

#define TE_CROSS_ENTROPY_THREADS(width) (!TE_CUDA ? 1 : (width) > 2048 || (width) < 0 ? 256 : 64)
#define TE__CROSS_ENTROPY_KERNEL(name, body, in, dtype, op)                                  \
    TE_KERNEL(name, TE_CROSS_ENTROPY_THREADS(in), te_cross_entropy_args,                     \
              body(te_args, te_at, TE_CROSS_ENTROPY_THREADS(in), TE_WIDTH_AT(in, te_args->width), dtype, \
                   te_loss_options_of(TE__LABEL_SMOOTHING(op), TE__Z_LOSS(op))))
#define TE_CUSTOM_cross_entropy_forward(name, model, dtype, op) \
    TE__IF_RANKS(op, TE__LOSS_OF_RANKS_FORWARD, TE__LOSS_FORWARD)(name, model, dtype, op)
#define TE_CUSTOM_cross_entropy_backward(name, model, dtype, op) \
    TE__IF_RANKS(op, TE__LOSS_OF_RANKS_BACKWARD, TE__LOSS_BACKWARD)(name, model, dtype, op)
#define TE__IF_RANKS(op, yes, no) TE_IF_HAS(op, ranks, yes, no)
#define TE__LOSS_FORWARD(name, model, dtype, op)                                                                      \
    TE__CROSS_ENTROPY_KERNEL(name, te_cross_entropy_row, TE_WIDTH_IN(model, op), (te_dtype)TE_DTYPE_IN(model, op), op) \
    TE_API te_status name##_run(te_run *r, const te_step *s)                                                          \
        { return te__cross_entropy_forward(r, s, name##_launch); }
#define TE__LOSS_BACKWARD(name, model, dtype, op)                                     \
    TE__CROSS_ENTROPY_KERNEL(name, te_cross_entropy_gradient, TE_WIDTH_IN(model, op), \
        (te_dtype)TE_DTYPE_IN(model, op), op)                                         \
    TE_API te_status name##_run(te_run *r, const te_step *s)                          \
        { return te__cross_entropy_backward(r, s, name##_launch); }

/* Eight columns of a row, from `c` on, that can be loaded at once: where the width is no multiple of eight a row begins
 * anywhere, so the vectors begin before it (c < 0), and the first and the last are cut off. */
typedef struct te_columns { int from, n, whole; } te_columns;
TE_FN te_columns te_columns_at(int c, int width) {
    te_columns v;
    v.from = c < 0 ? 0 : c, v.n = (int)te_min(c + 8, width) - v.from, v.whole = width % 8 == 0 || v.n == 8;
    return v;
}
TE_FN int te_first_column(int64_t row, int width) { return TE_CUDA && width % 8 ? -(int)(row % 8) : 0; }

/* The largest logit of a row, and the sum of exp(x - that). */
typedef struct te_logit_sums { float top, sum; } te_logit_sums;
/* The sums of the columns that there are, and of x - from if that is wanted, in all lanes. */
TE_FN te_logit_sums te__logit_sums_of(float *above, const te_cross_entropy_args *a, int64_t row, te_lanes *g, int width,
                                      te_dtype dtype, int smooth, float from) {
    float top = -INFINITY, sum = 0;
    *above = 0;
    TE_UNROLL_4 for (int c = te_first_column(row, width) + g->id * 8; c < width; c += g->count * 8) {
        const te_columns at = te_columns_at(c, width);
        float v[8], most = top, s = 0;
        te_load8(v, a->x, row + at.from, at.n, at.whole, dtype);
        if (at.n < 8) /* a branch: two instructions less for each logit of all other vectors */
            TE_UNROLL for (int i = 0; i < 8; i++) v[i] = i < at.n ? v[i] : -INFINITY;
        TE_UNROLL for (int i = 0; i < 8; i++) most = v[i] > most ? v[i] : most;
        const float base = most > -INFINITY ? most : 0.0f; /* a row may begin with -infinity */
        TE_UNROLL for (int i = 0; i < 8; i++) s += te_exp(v[i] - base);
        sum = sum * te_exp(top - base) + s, top = most;
        TE_UNROLL for (int i = 0; smooth && i < 8; i++) *above += i < at.n ? v[i] - from : 0.0f;
    }
    te_logit_sums all = {top, 0};
    te_lanes_max(&all.top, g);
    all.sum = top > -INFINITY ? sum * te_exp(top - all.top) : sum;
    te_lanes_sum(&all.sum, 1, g);
    if (smooth) te_lanes_sum(above, 1, g);
    return all;
}
/* The loss of a row, and what the gradient needs, in all lanes. The largest logit is subtracted before anything is
 * rounded, so the loss does not depend on what all logits have in common. in_place: a gradient takes the place of the
 * label's logit as soon as this is done, so it is loaded first; else last: to wait for it takes a tenth of the time. */
TE_FN te_logit_sums te_cross_entropy_loss(const te_cross_entropy_args *a, te_block b, te_lanes *g, int width,
                                          te_dtype dtype, const te_loss_options o, int in_place) {
    const int64_t row = (int64_t)b.x * width;
    const int32_t label = a->labels[b.x];
    const int known = label >= 0 && label < width, smooth = o.label_smoothing != 0;
    const int first = smooth || in_place;
    float of_label = first && known ? te_load(a->x, row + label, dtype) : 0.0f;
    float above; /* sum of x - x[label] */
    const te_logit_sums all = te__logit_sums_of(&above, a, row, g, width, dtype, smooth, of_label);
    if (g->id) return all;
    if (!first && known) of_label = te_load(a->x, row + label, dtype);
    float loss = known ? logf(all.sum) + (all.top - of_label) : NAN;
    if (smooth) loss -= o.label_smoothing / (float)width * above;
    if (o.z_loss != 0) loss += o.z_loss * (logf(all.sum) + all.top) * (logf(all.sum) + all.top);
    a->loss[b.x] = label == a->ignore_index ? 0.0f : loss;
    return all;
}
/* The gradient of `width` logits of a row, from column `first` of the vocabulary on. log_sum: log2 of the sum. */
TE_FN void te_cross_entropy_slope(const te_cross_entropy_args *a, te_block b, const te_lanes *g, int first, int width,
                                  int vocabulary, te_dtype dtype, const te_loss_options o, float top, float log_sum) {
    const int64_t row = (int64_t)b.x * width;
    const int32_t label = a->labels[b.x];
    const int known = label >= 0 && label < vocabulary;
    const float k = 1.4426950408889634f /* log2 e */;
    const float dloss = !known ? NAN : a->dy ? a->dy[b.x] : a->dloss;
    const float along = o.z_loss != 0 ? 1.0f + 2.0f * o.z_loss * (top + log_sum / k) : 1.0f;
    const float share = o.label_smoothing / (float)vocabulary, of_label = 1.0f - o.label_smoothing;
    for (int c = te_first_column(row, width) + g->id * 8; c < width; c += g->count * 8) {
        const te_columns at = te_columns_at(c, width);
        float v[8];
        te_load8(v, a->x, row + at.from, at.n, at.whole, dtype);
        TE_UNROLL for (int i = 0; i < 8; i++) {
            const float of_one = first + at.from + i == label ? of_label : 0.0f;
            const float slope = te_exp2((v[i] - top) * k - log_sum) * along - of_one - share;
            v[i] = label == a->ignore_index ? 0.0f : slope * dloss;
        }
        te_store8(a->dx, row + at.from, v, at.n, at.whole, dtype);
    }
}

/* Bytes: the logits once. */
TE_FN void te_cross_entropy_row(const te_cross_entropy_args *a, te_block b, int threads, int width, te_dtype dtype,
                                const te_loss_options o) {
    int group;
    te_lanes g = te_lanes_here(threads, &group);
    const te_logit_sums all = te_cross_entropy_loss(a, b, &g, width, dtype, o, 0);
    if (!g.id && a->stats) a->stats[2 * b.x] = all.top, a->stats[2 * b.x + 1] = log2f(all.sum);
}
/* Bytes: the logits read, the gradient written. */
TE_FN void te_cross_entropy_gradient(const te_cross_entropy_args *a, te_block b, int threads, int width,
                                     te_dtype dtype, const te_loss_options o) {
    int group;
    const te_lanes g = te_lanes_here(threads, &group);
    te_cross_entropy_slope(a, b, &g, 0, width, width, dtype, o, a->stats[2 * b.x], a->stats[2 * b.x + 1]);
}
/* The same of a slice of the columns, a->width of the vocabulary's from a->first on. */
TE_FN void te_cross_entropy_slice(const te_cross_entropy_args *a, te_block b, int threads, int vocabulary,
                                  te_dtype dtype, const te_loss_options o) {
    int group;
    const te_lanes g = te_lanes_here(threads, &group);
    te_cross_entropy_slope(a, b, &g, a->first, a->width, vocabulary, dtype, o, a->stats[2 * b.x],
                           a->stats[2 * b.x + 1]);
}
/* Loss and gradient. Bytes: the logits read, and once more from the caches, the gradient written. */
TE_FN void te_cross_entropy_at_once(const te_cross_entropy_args *a, te_block b, int threads, int width, te_dtype dtype,
                                    const te_loss_options o) {
    int group;
    te_lanes g = te_lanes_here(threads, &group);
    const te_logit_sums all = te_cross_entropy_loss(a, b, &g, width, dtype, o, 1);
    te_cross_entropy_slope(a, b, &g, 0, width, width, dtype, o, all.top, log2f(all.sum));
}

typedef te_status (*te_cross_entropy_launch_fn)(te_context *, te_grid, const te_cross_entropy_args *);

TE_API te_status te__cross_entropy_args_of(te_cross_entropy_args *a, te_run *r, const te_op *op, int64_t rows) {
    const te_batch *b = r->batch;
    memset(a, 0, sizeof *a);
    a->width = a->vocabulary = op->in;
    if (op->ranks) a->vocabulary = op->in * op->ranks, a->first = r->tensor->rank * op->in;
    if (!b) return TE_OK;
    TE_REQUIRE(b->labels, r->ctx, TE_ERROR_NULL, "%s: the batch brings no labels", r->plan->name);
    TE_REQUIRE((uintptr_t)b->labels % sizeof *b->labels == 0, r->ctx, TE_ERROR_ALIGNMENT,
               "%s: batch.labels lie at %p, which is no multiple of 4", r->plan->name, (const void *)b->labels);
    a->labels = b->labels + te_first_row(r, op->in_rows);
    a->ignore_index = te_ignored_label(b->ignore_index), a->dloss = b->loss_scale;
    for (int64_t i = 0; !TE_CUDA && r->dry && i < rows; i++)
        TE_REQUIRE((a->labels[i] >= 0 && a->labels[i] < a->vocabulary) || a->labels[i] == a->ignore_index, r->ctx,
                   TE_ERROR_VALUE, "%s: label %d of row %lld is outside the vocabulary of %s, %d", r->plan->name,
                   a->labels[i], (long long)i, op->name, a->vocabulary);
    return TE_OK;
}
TE_API te_status te__cross_entropy_forward(te_run *r, const te_step *s, te_cross_entropy_launch_fn launch) {
    const int i = s->op[s->count - 1];
    te_cross_entropy_args a;
    te_value y;
    TE_TRY(te__cross_entropy_args_of(&a, r, &r->plan->op[i], r->current.rows));
    TE_TRY(te_output(&y, r, s, i));
    a.loss = (float *)y.data, a.stats = r->stats[i], a.x = r->current.data;
    if (!r->dry) TE_TRY(launch(r->ctx, te_grid_of(r->current.rows, 1), &a));
    te_set_current(r, y);
    return TE_OK;
}
/* batch.loss_scale divided by batch.loss_count, in every row. While sizes are measured there is room for it. */
TE_IF_USED TE_API te_status te__cross_entropy_each(te_value *dy, te_run *r) {
    const te_batch *b = r->batch;
    te_loss_mean_args a;
    void *each = 0;
    TE_REQUIRE(!b || !dy->data, r->ctx, TE_ERROR_VALUE,
               "%s: there is a dy, and batch.loss_count: one of them says what a loss is multiplied by", r->plan->name);
    TE_REQUIRE(!b || (uintptr_t)b->loss_count % sizeof(float) == 0, r->ctx, TE_ERROR_ALIGNMENT,
               "%s: batch.loss_count lies at %p, which is no multiple of 4", r->plan->name,
               (const void *)(b ? b->loss_count : 0));
    TE_TRY(te_scratch(r, &each, (size_t)te_capacity_rows(r) * sizeof(float)));
    dy->data = each, dy->dtype = TE_f32;
    if (r->dry) return TE_OK;
    memset(&a, 0, sizeof a);
    a.out = (float *)each, a.scale = b->loss_scale, a.count = b->loss_count, a.rows = dy->rows;
    return te_loss_each_launch(r->ctx, te_grid_of(te_ceil_div(a.rows, TE_LOSS_EACH_THREADS), 1), &a);
}
/* What backward starts from: dy in f32, or none and batch.loss_scale in its place. The step has acquired all else. */
TE_IF_USED TE_API te_status te__cross_entropy_dy(te_value *dy, te_run *r) {
    const te_batch *b = r->batch;
    *dy = r->dy;
    TE_REQUIRE(dy->data || !b || b->loss_scale != 0, r->ctx, TE_ERROR_VALUE,
               "%s: there is no dy, and batch.loss_scale is 0", r->plan->name);
    TE_REQUIRE(dy->data || !b || fabsf(b->loss_scale) <= 3.402823466e38f, r->ctx, TE_ERROR_VALUE,
               "%s: batch.loss_scale is %g", r->plan->name, (double)b->loss_scale);
    return !b || b->loss_count ? te__cross_entropy_each(dy, r) : te_convert_value(dy, r, TE_f32);
}
TE_IF_USED TE_API te_status te__cross_entropy_backward(te_run *r, const te_step *s, te_cross_entropy_launch_fn launch) {
    const int i = s->op[0];
    te_cross_entropy_args a;
    te_value dx, dy;
    TE_TRY(te__cross_entropy_args_of(&a, r, &r->plan->op[i], r->dy.rows));
    TE_TRY(te_gradient(&dx, r, s, i));
    TE_TRY(te__cross_entropy_dy(&dy, r));
    a.stats = r->stats[i], a.x = te_input_of(r, i).data, a.dx = dx.data, a.dy = (const float *)dy.data;
    if (dx.data && !r->dry) TE_TRY(launch(r->ctx, te_grid_of(dx.rows, 1), &a));
    te_set_current(r, dx);
    return TE_OK;
}

#endif
