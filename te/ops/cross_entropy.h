/* cross_entropy.h -- the loss of a language model: loss[row] = log(sum exp(x[row])) - x[row, label[row]]. x: the
 * logits, [rows, vocabulary]; loss: [rows], in f32. The op is the last of an op list; te_batch passes labels [rows] and
 * ignore_index.
 *
 *   (cross_entropy, name, vocabulary)
 * Options; the first two are 0 if not given:
 *   (label_smoothing, e)   the target is 1 - e for the label plus e / vocabulary for each class: loss = log sum exp -
 *                          (1 - e) x[label] - e mean(x). Szegedy et al. 2016; as in PyTorch
 *   (z_loss, z)            adds z (log sum exp)^2 to the loss. Chowdhery et al. 2022 (PaLM), with z = 1e-4
 *   (ranks, N)             vocabulary-parallel: each rank of a tensor group of N has vocabulary / N of the columns
 *
 * Do this:
 *     (rmsnorm, norm, H), (linear, head, H, V), (cross_entropy, loss, V)
 *     (rmsnorm, norm, H), (copy_to_group, c), (linear, head, H, V / N, (shard, columns)), (cross_entropy, loss, V,
 *      (ranks, N))
 *
 * Forward reads the logits once, by an online softmax, so the vocabulary may have any size. Forward saves the logits
 * and, in 8 bytes a row, the largest logit of the row and the log of the sum of exp(x - largest logit). Backward reads
 * the logits once and writes dx = dloss * (softmax - target) or, with z_loss, dx = dloss * (softmax * (1 + 2 * z * log
 * sum exp) - target). dloss, the gradient of the row's loss, is dy[row] if the caller passes dy; else loss_scale /
 * loss_count if te_batch has a loss_count (see te_mean_loss); else loss_scale. A row whose label is ignore_index (or
 * -100 if ignore_index is 0) has loss 0 and gradient 0. A label outside the vocabulary is an error on the host; on CUDA
 * the row's loss and gradient are NaN. te/linear/impl/linear_cross_entropy.h fuses the op with the linear in front, so
 * that only a part of the logits is in memory at a time.
 */
#ifndef TE_OPS_CROSS_ENTROPY_H
#define TE_OPS_CROSS_ENTROPY_H

#include "../core/rank_group.h" /* te_group_all_gather */
#include "../core/math.h"  /* te_exp, te_exp2 */
#include "../plan/dims.h"  /* TE_WIDTH_AT */
#include "../plan/impl/storage.h"   /* te__output, te__gradient */
#include "../core/lanes.h"  /* te_lanes_here, te_lanes_sum */
#include "../core/target.h" /* TE_KERNEL, te__check_target */

/* ---- the mean loss ------------------------------------------------------------------------------------------------
 * The mean loss over the rows whose label is not ignored. Labels are counted on the device, and cross_entropy's
 * backward divides by that count. So the host never reads the count, and the calls can be captured in a graph.
 *
 * Do this:
 *     float *count, *mean;                                             // target memory, one number each
 *     TE_TRY(te_count_labels(count, labels, rows, 0, 0, &ctx));        // labels that are not ignored
 *     batch.loss_scale = 1.0f, batch.loss_count = count;               // backward: dloss = loss_scale / count
 *     ... forward, backward ...
 *     TE_TRY(te_mean_loss(mean, losses, rows, count, 0, &ctx));        // of forward's losses, for a progress line
 *
 * Gradient accumulation: the mean over all rows of several micro-batches needs one count of all their labels before the
 * first backward. Count the labels of the first micro-batch with accumulate 0 and those of the others with accumulate
 * 1; then run the micro-batches as usual. te_mean_loss with accumulate 1 adds a micro-batch's part of the mean.
 * Alternatively, give each micro-batch its own count and a loss_scale of 1 / (number of micro-batches): this computes
 * the mean of the micro-batches' means, which is another number if the counts differ. Data-parallel ranks, whose
 * gradients are summed, also need one count over all ranks: te_group_all_reduce(te_data_group(ctx), count, count, 1,
 * TE_f32, ctx).
 *
 * A count is exact up to 2^24. If all labels are ignored, the loss and all gradients are 0.
 */

/* Threads per block of the kernels te_loss_sum (TE_LOSS_MEAN_THREADS) and te_fill_loss_grad. te_loss_sum runs as a
 * single block; with 65536 labels, each thread of that block loads 64. */
enum { TE_LOSS_MEAN_THREADS = TE_CUDA ? 1024 : 1, TE_FILL_LOSS_GRAD_THREADS = TE_CUDA ? 256 : 1 };

/* Returns the label that marks rows without a loss: the given ignore_index or, if that is 0, -100. */
TE_API int te__ignored_label(int ignore_index) { return ignore_index ? ignore_index : -100; }

typedef struct te_loss_mean_args {
    float *out;            /* memory for the result: one number, or [rows] for te_fill_loss_grad */
    const int32_t *labels; /* [rows]: the labels to be counted; if null, the kernel sums `loss` instead */
    const float *loss;     /* [rows] */
    const float *count;    /* [1]: the number by which the sum is divided; if null, the sum is not divided */
    float scale;
    int64_t rows;
    int ignored, accumulate;
} te_loss_mean_args;

/* Returns the divisor of the sum of the losses: *a->count, or 1 if there is no count or the count is 0. A count that is
 * NaN makes the result NaN. */
TE_FN float te_loss_divisor(const te_loss_mean_args *a) {
    return !a->count || *a->count <= 0.0f ? 1.0f : *a->count;
}

/* Computes the number of labels that are not ignored if a->labels is given, else the sum of the losses divided by
 * *a->count. Stores this result in *out or, with a->accumulate, adds it to *out. Each lane sums in double. Memory
 * traffic: reads 4 bytes for each row. */
TE_FN void te_loss_sum_body(const te_loss_mean_args *a) {
    int group;
    te_lanes g = te_lanes_here(TE_LOSS_MEAN_THREADS, &group);
    double lane_sum = 0;
    for (int64_t i = g.id; i < a->rows; i += g.count)
        lane_sum += a->labels ? (double)(a->labels[i] != a->ignored) : (double)a->loss[i];
    float sum = (float)lane_sum;
    te_lanes_sum(&sum, 1, &g);
    if (g.id == 0) *a->out = (a->accumulate ? *a->out : 0.0f) + sum / te_loss_divisor(a);
}
TE_KERNEL_IF_USED(te_loss_sum, TE_LOSS_MEAN_THREADS, 1, te_loss_mean_args, te_loss_sum_body(te_args))

/* Stores scale / count, the gradient of each row's loss, in out[row] for every row. */
TE_FN void te_fill_loss_grad_body(const te_loss_mean_args *a, te_block b) {
    int group;
    const te_lanes g = te_lanes_here(TE_FILL_LOSS_GRAD_THREADS, &group);
    const int64_t i = (int64_t)b.x * TE_FILL_LOSS_GRAD_THREADS + g.id;
    if (i < a->rows) a->out[i] = a->scale / te_loss_divisor(a);
}
TE_KERNEL_IF_USED(te_fill_loss_grad, TE_FILL_LOSS_GRAD_THREADS, 1, te_loss_mean_args,
                  te_fill_loss_grad_body(te_args, te_at))

TE_API te_status te__loss_mean_check(const void *out, const void *in, int64_t rows, const char *who, te_context *ctx) {
    TE_TRY(te__check_target(ctx, who));
    TE_REQUIRE(rows >= 0, ctx, TE_ERROR_SHAPE, "%s: %lld rows", who, (long long)rows);
    TE_REQUIRE(out && (in || !rows), ctx, TE_ERROR_NULL, "%s: %s is null", who, out ? "the input" : "the result");
    TE_REQUIRE(((uintptr_t)out | (uintptr_t)in) % sizeof(float) == 0, ctx, TE_ERROR_ALIGNMENT,
               "%s: a pointer is not a multiple of 4 bytes", who);
    return TE_OK;
}
/* Stores in count[0] the number of labels[rows] that are not ignore_index (an ignore_index of 0 means -100). With
 * accumulate 1, adds this number to count[0]. All pointers are to target memory; the work is enqueued on ctx. Errors:
 * TE_ERROR_NULL, _SHAPE (negative rows), _ALIGNMENT. */
TE_IF_USED TE_API te_status te_count_labels(float *count, const int32_t *labels, int64_t rows, int ignore_index,
                                            int accumulate, te_context *ctx) {
    te_loss_mean_args a;
    TE_TRY(te__loss_mean_check(count, labels, rows, "te_count_labels", ctx));
    memset(&a, 0, sizeof a);
    a.out = count, a.labels = labels, a.rows = rows, a.ignored = te__ignored_label(ignore_index);
    a.accumulate = accumulate;
    return te_loss_sum_launch(ctx, te__grid_of(1, 1), &a);
}
/* Stores in mean[0] the sum of loss[rows] divided by count[0]; with accumulate 1, adds this quotient to mean[0]. If
 * count[0] is 0, the sum is not divided. All pointers are to target memory; the work is enqueued on ctx. Errors:
 * TE_ERROR_NULL, _SHAPE (negative rows), _ALIGNMENT. */
TE_IF_USED TE_API te_status te_mean_loss(float *mean, const float *loss, int64_t rows, const float *count,
                                         int accumulate, te_context *ctx) {
    te_loss_mean_args a;
    TE_TRY(te__loss_mean_check(mean, loss, rows, "te_mean_loss", ctx));
    TE_TRY(te__loss_mean_check(mean, count, 1, "te_mean_loss", ctx));
    memset(&a, 0, sizeof a);
    a.out = mean, a.loss = loss, a.rows = rows, a.count = count, a.accumulate = accumulate;
    return te_loss_sum_launch(ctx, te__grid_of(1, 1), &a);
}

/* ---- the op ------------------------------------------------------------------------------------------------------ */

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
#define TE_STATS_cross_entropy(op) (2) /* two floats for each row: max, the largest logit, and log2 of the sum of exp(x
                                        * - max) */
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
/* The options of the op as a te_loss_options, or as te_no_options if the op was declared without label_smoothing and
 * z_loss. A checkpoint stores each op's options (te/io/weights.h). For te_no_options it stores nothing. */
#define TE_OPTIONS_cross_entropy(op)                                                                            \
    TE_IF_HAS(op, label_smoothing, TE__LOSS_OPTIONS, TE_IF_HAS(op, z_loss, TE__LOSS_OPTIONS, TE__NO_LOSS_OPTIONS))(op)
#define TE__NO_LOSS_OPTIONS(op) (te_no_options, 0)
#define TE__LOSS_OPTIONS(op) (te_loss_options, TE__LABEL_SMOOTHING(op), TE__Z_LOSS(op))

typedef struct te_loss_options { float label_smoothing, z_loss; } te_loss_options; /* compile-time constants */
TE_FN te_loss_options te_loss_options_of(float label_smoothing, float z_loss) {
    te_loss_options o;
    o.label_smoothing = label_smoothing, o.z_loss = z_loss;
    return o;
}

typedef struct te_cross_entropy_args {
    float *loss;      /* [rows] */
    float *stats;     /* [rows, 2], stored by forward for backward: max, and log2 of the sum of exp(x - max); null in
                       * inference */
    void *dx;         /* backward: the gradient of the logits, [rows, width]; dx and x may be the same memory */
    const void *x;    /* [rows, width] */
    const float *dy;  /* backward: the gradient of each row's loss, [rows]; if null, the number `dloss` is the gradient
                       * for every row */
    const int32_t *labels; /* [rows] */
    int ignore_index;
    float dloss;
    int width;             /* number of columns of x; used only if the width is not known at compile time */
    /* used with (ranks, N). first: the first column of this rank's shard; vocabulary: the number of columns of all
     * shards together */
    int first, vocabulary;
} te_cross_entropy_args;

/* ---- the kernels of a list --------------------------------------------------------------------------------------- */

/* The number of threads of a block, which computes one row. For wide rows a block has 256 threads, and each thread has
 * the loads of several vectors of eight logits in flight. */
#define TE_CROSS_ENTROPY_THREADS(width) (!TE_CUDA ? 1 : (width) > 2048 || (width) < 0 ? 256 : 64)
#define TE__CROSS_ENTROPY_KERNEL(name, body, in, dtype, op)                                              \
    TE_KERNEL(name, TE_CROSS_ENTROPY_THREADS(in), te_cross_entropy_args,                                 \
              body(te_args, te_at, TE_CROSS_ENTROPY_THREADS(in), TE_WIDTH_AT(in, te_args->width), dtype, \
                   te_loss_options_of(TE__LABEL_SMOOTHING(op), TE__Z_LOSS(op))))
#define TE_CUSTOM_cross_entropy_forward(name, model, dtype, op) \
    TE__IF_RANKS(op, TE__VOCAB_PARALLEL_FORWARD, TE__LOSS_FORWARD)(name, model, dtype, op)
#define TE_CUSTOM_cross_entropy_backward(name, model, dtype, op) \
    TE__IF_RANKS(op, TE__VOCAB_PARALLEL_BACKWARD, TE__LOSS_BACKWARD)(name, model, dtype, op)
#define TE__IF_RANKS(op, yes, no) TE_IF_HAS(op, ranks, yes, no)
#define TE__LOSS_FORWARD(name, model, dtype, op)                                                                       \
    TE__CROSS_ENTROPY_KERNEL(name, te_cross_entropy_row, TE_WIDTH_IN(model, op), (te_dtype)TE_DTYPE_IN(model, op), op) \
    TE_API te_status name##_run(te_run *r, const te_step *s)                                                           \
        { return te__cross_entropy_forward(r, s, name##_launch); }
#define TE__LOSS_BACKWARD(name, model, dtype, op)                                     \
    TE__CROSS_ENTROPY_KERNEL(name, te_cross_entropy_gradient, TE_WIDTH_IN(model, op), \
        (te_dtype)TE_DTYPE_IN(model, op), op)                                         \
    TE_API te_status name##_run(te_run *r, const te_step *s)                          \
        { return te__cross_entropy_backward(r, s, name##_launch); }

/* ---- softmax statistics of a row --------------------------------------------------------------------------------- */

/* The columns of a row that a vector of eight elements covers: from, from + 1, .. to from + n - 1. whole is 1 if the
 * vector may be loaded and stored as one aligned access of eight elements. */
typedef struct te_columns { int from, n, whole; } te_columns;
/* Returns which elements of the vector that begins at column c lie in the row. If the width is not a multiple of eight,
 * a row may begin in the middle of an aligned vector. The row's first vector then begins up to seven elements before
 * the row (c < 0). */
TE_FN te_columns te_columns_at(int c, int width) {
    te_columns v;
    v.from = c < 0 ? 0 : c, v.n = (int)te_min(c + 8, width) - v.from, v.whole = width % 8 == 0 || v.n == 8;
    return v;
}
TE_FN int te_first_column(int64_t row, int width) { return TE_CUDA && width % 8 ? -(int)(row % 8) : 0; }

/* max: the largest logit of a row; sum: the sum of exp(x - max) over the logits x of the row. */
typedef struct te_softmax_stats { float max, sum; } te_softmax_stats;
/* Returns, in all lanes, the statistics of one row of logits, a->x[row] to a->x[row + width - 1]. With label smoothing
 * (smooth 1) the function also sets *deviation to the sum of x - origin over the logits x. origin may be any number;
 * the rounding error of the sum is small if origin is near the logits. */
TE_FN te_softmax_stats te__softmax_stats_of(float *deviation, const te_cross_entropy_args *a, int64_t row, te_lanes *g,
                                            int width, te_dtype dtype, int smooth, float origin) {
    float max = -INFINITY, sum = 0;
    *deviation = 0;
    TE_UNROLL_4 for (int c = te_first_column(row, width) + g->id * 8; c < width; c += g->count * 8) {
        const te_columns at = te_columns_at(c, width);
        float v[8], new_max = max, s = 0;
        te_load8(v, a->x, row + at.from, at.n, at.whole, dtype);
        /* only vectors that extend beyond the row are masked, which saves two instructions per logit in all other
         * vectors */
        if (at.n < 8)
            TE_UNROLL for (int i = 0; i < 8; i++) v[i] = i < at.n ? v[i] : -INFINITY;
        TE_UNROLL for (int i = 0; i < 8; i++) new_max = v[i] > new_max ? v[i] : new_max;
        /* base is 0 if all logits so far are -infinity, because -infinity minus -infinity is NaN */
        const float base = new_max > -INFINITY ? new_max : 0.0f;
        TE_UNROLL for (int i = 0; i < 8; i++) s += te_exp(v[i] - base);
        sum = sum * te_exp(max - base) + s, max = new_max;
        TE_UNROLL for (int i = 0; smooth && i < 8; i++) *deviation += i < at.n ? v[i] - origin : 0.0f;
    }
    te_softmax_stats all = {max, 0};
    te_lanes_max(&all.max, g);
    all.sum = max > -INFINITY ? sum * te_exp(max - all.max) : sum;
    te_lanes_sum(&all.sum, 1, g);
    if (smooth) te_lanes_sum(deviation, 1, g);
    return all;
}

/* ---- loss and gradient of a row ---------------------------------------------------------------------------------- */

/* Stores the loss of a row. Returns, in all lanes, the row's softmax statistics, which the gradient needs. The loss is
 * computed as log(sum) + (max - x[label]), so that a number that is added to all logits cancels without loss of
 * precision. The label's logit is loaded at the beginning with label smoothing, which sums x - x[label], and with
 * in_place 1, because the caller then overwrites the logits right after this function. In all other cases the load is
 * at the end: waiting for it at the beginning would take a tenth of the kernel's time. */
TE_FN te_softmax_stats te_cross_entropy_loss(const te_cross_entropy_args *a, te_block b, te_lanes *g, int width,
                                             te_dtype dtype, const te_loss_options o, int in_place) {
    const int64_t row = (int64_t)b.x * width;
    const int32_t label = a->labels[b.x];
    const int known = label >= 0 && label < width, smooth = o.label_smoothing != 0;
    const int first = smooth || in_place;
    float label_logit = first && known ? te_load(a->x, row + label, dtype) : 0.0f;
    float deviation; /* sum of x - x[label] */
    const te_softmax_stats all = te__softmax_stats_of(&deviation, a, row, g, width, dtype, smooth, label_logit);
    if (g->id) return all;
    if (!first && known) label_logit = te_load(a->x, row + label, dtype);
    float loss = known ? logf(all.sum) + (all.max - label_logit) : NAN;
    if (smooth) loss -= o.label_smoothing / (float)width * deviation;
    if (o.z_loss != 0) loss += o.z_loss * (logf(all.sum) + all.max) * (logf(all.sum) + all.max);
    a->loss[b.x] = label == a->ignore_index ? 0.0f : loss;
    return all;
}

/* The shard of the logits that a rank has: the columns [first, first + width) of `vocabulary` columns. */
typedef struct te_vocab_shard { int first, width, vocabulary; } te_vocab_shard;
TE_FN te_vocab_shard te_vocab_shard_of(int first, int width, int vocabulary) {
    te_vocab_shard v;
    v.first = first, v.width = width, v.vocabulary = vocabulary;
    return v;
}
/* Computes the gradient of one row's logits in the columns of shard k. max, log2_sum: the statistics of the whole row,
 * including the columns of all other shards. */
TE_FN void te_cross_entropy_grad(const te_cross_entropy_args *a, te_block b, const te_lanes *g, const te_vocab_shard k,
                                 te_dtype dtype, const te_loss_options o, float max, float log2_sum) {
    const int64_t row = (int64_t)b.x * k.width;
    const int32_t label = a->labels[b.x];
    const int known = label >= 0 && label < k.vocabulary;
    const float log2_e = 1.4426950408889634f;
    const float dloss = !known ? NAN : a->dy ? a->dy[b.x] : a->dloss;
    const float z_factor = o.z_loss != 0 ? 1.0f + 2.0f * o.z_loss * (max + log2_sum / log2_e) : 1.0f;
    const float each_target = o.label_smoothing / (float)k.vocabulary, label_target = 1.0f - o.label_smoothing;
    for (int c = te_first_column(row, k.width) + g->id * 8; c < k.width; c += g->count * 8) {
        const te_columns at = te_columns_at(c, k.width);
        float v[8];
        te_load8(v, a->x, row + at.from, at.n, at.whole, dtype);
        TE_UNROLL for (int i = 0; i < 8; i++) {
            const float target = k.first + at.from + i == label ? label_target : 0.0f;
            const float grad = te_exp2((v[i] - max) * log2_e - log2_sum) * z_factor - target - each_target;
            v[i] = label == a->ignore_index ? 0.0f : grad * dloss;
        }
        te_store8(a->dx, row + at.from, v, at.n, at.whole, dtype);
    }
}

/* Computes the forward of one row: stores the loss and, in training, the row's softmax statistics. Memory traffic:
 * reads the logits. */
TE_FN void te_cross_entropy_row(const te_cross_entropy_args *a, te_block b, int threads, int width, te_dtype dtype,
                                const te_loss_options o) {
    int group;
    te_lanes g = te_lanes_here(threads, &group);
    const te_softmax_stats all = te_cross_entropy_loss(a, b, &g, width, dtype, o, 0);
    if (!g.id && a->stats) a->stats[2 * b.x] = all.max, a->stats[2 * b.x + 1] = log2f(all.sum);
}
/* Computes the backward of one row, from the softmax statistics that forward has saved. Memory traffic: reads the
 * logits, writes their gradient. */
TE_FN void te_cross_entropy_gradient(const te_cross_entropy_args *a, te_block b, int threads, int width,
                                     te_dtype dtype, const te_loss_options o) {
    int group;
    const te_lanes g = te_lanes_here(threads, &group);
    te_cross_entropy_grad(a, b, &g, te_vocab_shard_of(0, width, width), dtype, o, a->stats[2 * b.x],
                          a->stats[2 * b.x + 1]);
}
/* Computes the backward of one row, for a rank's shard of the logits. The shard has a->width columns of the vocabulary
 * and begins at column a->first. */
TE_FN void te_cross_entropy_grad_shard(const te_cross_entropy_args *a, te_block b, int threads, int vocabulary,
                                       te_dtype dtype, const te_loss_options o) {
    int group;
    const te_lanes g = te_lanes_here(threads, &group);
    te_cross_entropy_grad(a, b, &g, te_vocab_shard_of(a->first, a->width, vocabulary), dtype, o, a->stats[2 * b.x],
                          a->stats[2 * b.x + 1]);
}
/* Computes the loss and the gradient of one row in one kernel. Memory traffic: reads the logits twice, the second time
 * from the caches, and writes their gradient. */
TE_FN void te_cross_entropy_loss_and_grad(const te_cross_entropy_args *a, te_block b, int threads, int width,
                                          te_dtype dtype, const te_loss_options o) {
    int group;
    te_lanes g = te_lanes_here(threads, &group);
    const te_softmax_stats all = te_cross_entropy_loss(a, b, &g, width, dtype, o, 1);
    te_cross_entropy_grad(a, b, &g, te_vocab_shard_of(0, width, width), dtype, o, all.max, log2f(all.sum));
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

typedef te_status (*te_cross_entropy_launch_fn)(te_context *, te_grid, const te_cross_entropy_args *);

/* Sets the members of *a that come from the batch, such as the sizes and the labels, and checks their values. A dry
 * run, which only determines the memory sizes, has no batch and checks nothing. */
TE_API te_status te__cross_entropy_args_of(te_cross_entropy_args *a, te_run *r, const te_op *op, int64_t rows) {
    const te_batch *b = r->batch;
    memset(a, 0, sizeof *a);
    a->width = a->vocabulary = op->in;
    if (op->ranks) a->vocabulary = op->in * op->ranks, a->first = r->tensor->rank * op->in;
    if (!b) return TE_OK;
    TE_REQUIRE(b->labels, r->ctx, TE_ERROR_NULL, "%s: the batch brings no labels", r->plan->name);
    TE_REQUIRE((uintptr_t)b->labels % sizeof *b->labels == 0, r->ctx, TE_ERROR_ALIGNMENT,
               "%s: batch.labels lie at %p, which is no multiple of 4", r->plan->name, (const void *)b->labels);
    a->labels = b->labels + te__first_row(r, op->in_rows);
    a->ignore_index = te__ignored_label(b->ignore_index), a->dloss = b->loss_scale;
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
    TE_TRY(te__output(&y, r, s, i));
    a.loss = (float *)y.data, a.stats = r->stats[i], a.x = r->current.data;
    if (!r->dry) TE_TRY(launch(r->ctx, te__grid_of(r->current.rows, 1), &a));
    te__set_current(r, y);
    return TE_OK;
}
/* Sets every row of dy, the gradient of the losses, to batch.loss_scale / batch.loss_count. dy lies in scratch memory,
 * which the dry run counts as part of the workspace. */
TE_IF_USED TE_API te_status te__cross_entropy_mean_dy(te_value *dy, te_run *r) {
    const te_batch *b = r->batch;
    te_loss_mean_args a;
    void *each = 0;
    TE_REQUIRE(!b || !dy->data, r->ctx, TE_ERROR_VALUE,
               "%s: dy and batch.loss_count are both given, and only one of them can scale the loss", r->plan->name);
    TE_REQUIRE(!b || (uintptr_t)b->loss_count % sizeof(float) == 0, r->ctx, TE_ERROR_ALIGNMENT,
               "%s: batch.loss_count lies at %p, which is no multiple of 4", r->plan->name,
               (const void *)(b ? b->loss_count : 0));
    TE_TRY(te__scratch(r, &each, (size_t)te__capacity_rows(r) * sizeof(float)));
    dy->data = each, dy->dtype = TE_f32;
    if (r->dry) return TE_OK;
    memset(&a, 0, sizeof a);
    a.out = (float *)each, a.scale = b->loss_scale, a.count = b->loss_count, a.rows = dy->rows;
    return te_fill_loss_grad_launch(r->ctx, te__grid_of(te_ceil_div(a.rows, TE_FILL_LOSS_GRAD_THREADS), 1), &a);
}
/* Sets *dy to the gradient of the losses, [rows, 1] in f32: the caller's dy or, if batch.loss_count is given,
 * loss_scale / loss_count for every row. If the caller gives neither a dy nor a loss_count, *dy has no data, and the
 * gradient of every row is batch.loss_scale. Acquire all other memory that the op needs before the call, because this
 * function may take scratch memory. */
TE_IF_USED TE_API te_status te__cross_entropy_dy(te_value *dy, te_run *r) {
    const te_batch *b = r->batch;
    *dy = r->dy;
    TE_REQUIRE(dy->data || !b || b->loss_scale != 0, r->ctx, TE_ERROR_VALUE,
               "%s: there is no dy, and batch.loss_scale is 0", r->plan->name);
    TE_REQUIRE(dy->data || !b || fabsf(b->loss_scale) <= 3.402823466e38f, r->ctx, TE_ERROR_VALUE,
               "%s: batch.loss_scale is %g", r->plan->name, (double)b->loss_scale);
    return !b || b->loss_count ? te__cross_entropy_mean_dy(dy, r) : te__convert_value(dy, r, TE_f32);
}
TE_IF_USED TE_API te_status te__cross_entropy_backward(te_run *r, const te_step *s, te_cross_entropy_launch_fn launch) {
    const int i = s->op[0];
    te_cross_entropy_args a;
    te_value dx, dy;
    TE_TRY(te__cross_entropy_args_of(&a, r, &r->plan->op[i], r->dy.rows));
    TE_TRY(te__gradient(&dx, r, s, i));
    TE_TRY(te__cross_entropy_dy(&dy, r));
    a.stats = r->stats[i], a.x = te__input_of(r, i).data, a.dx = dx.data, a.dy = (const float *)dy.data;
    if (dx.data && !r->dry) TE_TRY(launch(r->ctx, te__grid_of(dx.rows, 1), &a));
    te__set_current(r, dx);
    return TE_OK;
}

/* ---- (ranks, N): the vocabulary is split over the ranks of a tensor group ---------------------------------------- */

/* With (ranks, N), each rank has some columns of the logits, and reduces these columns of a row to five numbers,
 * te_loss_partial. An all_gather exchanges these numbers, 20 bytes for each row and rank, instead of logits. Then each
 * rank combines the numbers of all ranks in the order of the ranks, so the loss and the statistics are bitwise
 * identical on all ranks. The gradient of a rank's columns needs nothing else from the other ranks. */
enum { TE_LOSS_COMBINE_LANES = TE_CUDA ? 256 : 1 };

/* The contribution of one rank to the loss of a row, with (ranks, N). */
typedef struct te_loss_partial {
    te_softmax_stats stats;  /* max and sum over this rank's columns */
    float label_logit;       /* the logit of the row's label; 0 if the label's column is on another rank */
    /* for label smoothing. deviation: the sum of x - origin over the logits x of this rank's columns; origin: the first
     * of these logits, or 0 if the first one is not finite. Subtracting origin keeps the rounding error of the sum
     * small */
    float deviation, origin;
} te_loss_partial;
enum { TE_LOSS_PARTIAL_FLOATS = sizeof(te_loss_partial) / sizeof(float) };

typedef struct te_vocab_parallel_args {
    te_cross_entropy_args of; /* the arguments as for a loss without the option ranks. This rank's logits are the
                               * columns `first` to `first` + `width` - 1 of the whole row */
    te_loss_partial *part;    /* [ranks, rows]: the contribution of each rank to the loss of each row */
    te_loss_options options;
    int64_t rows;
    int rank, ranks;
} te_vocab_parallel_args;

/* Reduce this rank's columns of one row of logits to a te_loss_partial. Memory traffic: reads the logits. */
TE_FN void te_cross_entropy_partial_row(const te_vocab_parallel_args *a, te_block b, int threads, int width,
                                        te_dtype dtype, const te_loss_options o) {
    int group;
    te_lanes g = te_lanes_here(threads, &group);
    const int smooth = o.label_smoothing != 0;
    const int64_t row = (int64_t)b.x * width, label = (int64_t)a->of.labels[b.x] - a->of.first;
    te_loss_partial p;
    p.origin = smooth ? te_load(a->of.x, row, dtype) : 0.0f;
    if (!(fabsf(p.origin) <= 3.402823466e38f)) p.origin = 0.0f; /* the logit is infinite or NaN */
    p.stats = te__softmax_stats_of(&p.deviation, &a->of, row, &g, width, dtype, smooth, p.origin);
    if (g.id) return;
    p.label_logit = label >= 0 && label < width ? te_load(a->of.x, row + label, dtype) : 0.0f;
    a->part[a->rank * a->rows + b.x] = p;
}
/* Computes the losses from the te_loss_partial of all ranks. Memory traffic: reads 20 bytes, a te_loss_partial, for
 * each row and rank. */
TE_FN void te_cross_entropy_combine(const te_vocab_parallel_args *a, te_block b) {
    int group;
    const te_lanes g = te_lanes_here(TE_LOSS_COMBINE_LANES, &group);
    const int64_t row = (int64_t)b.x * TE_LOSS_COMBINE_LANES + g.id;
    if (row >= a->rows) return;
    const te_cross_entropy_args *c = &a->of;
    const te_loss_options o = a->options;
    const int32_t label = c->labels[row];
    float max = -INFINITY, sum = 0, label_logit = 0, deviation = 0;
    for (int r = 0; r < a->ranks; r++) {
        const te_loss_partial *p = &a->part[r * a->rows + row];
        max = p->stats.max > max ? p->stats.max : max, label_logit += p->label_logit;
    }
    for (int r = 0; r < a->ranks; r++) {
        const te_loss_partial *p = &a->part[r * a->rows + row];
        sum += p->stats.max > -INFINITY ? p->stats.sum * te_exp(p->stats.max - max) : p->stats.sum;
        if (o.label_smoothing != 0) deviation += p->deviation + (float)c->width * (p->origin - label_logit);
    }
    float loss = label >= 0 && label < c->vocabulary ? logf(sum) + (max - label_logit) : NAN;
    if (o.label_smoothing != 0) loss -= o.label_smoothing / (float)c->vocabulary * deviation;
    if (o.z_loss != 0) loss += o.z_loss * (logf(sum) + max) * (logf(sum) + max);
    c->loss[row] = label == c->ignore_index ? 0.0f : loss;
    if (c->stats) c->stats[2 * row] = max, c->stats[2 * row + 1] = log2f(sum);
}

typedef te_status (*te_vocab_parallel_launch_fn)(te_context *, te_grid, const te_vocab_parallel_args *);

/* The kernels of a vocabulary-parallel loss, and the options of the op. */
typedef struct te_vocab_parallel {
    te_vocab_parallel_launch_fn part; /* launches te_cross_entropy_partial_row */
    te_vocab_parallel_launch_fn join; /* launches te_cross_entropy_combine */
    float label_smoothing, z_loss;
} te_vocab_parallel;

/* Sets all members of *a except the pointer to the logits, and acquires memory for the te_loss_partial of all ranks. y:
 * the value that receives the losses. */
TE_API te_status te__vocab_parallel_begin(te_vocab_parallel_args *a, te_value *y, te_run *r, const te_step *s,
                                          const te_vocab_parallel *l) {
    const int i = s->op[s->count - 1];
    const te_group *g = r->tensor;
    void *parts = 0;
    memset(a, 0, sizeof *a);
    TE_TRY(te__cross_entropy_args_of(&a->of, r, &r->plan->op[i], r->current.rows));
    TE_TRY(te__output(y, r, s, i));
    TE_TRY(te__scratch(r, &parts, (size_t)(te__capacity_rows(r) * g->size) * sizeof(te_loss_partial)));
    a->of.loss = (float *)y->data, a->of.stats = r->stats[i];
    a->part = (te_loss_partial *)parts, a->rows = r->current.rows, a->rank = g->rank, a->ranks = g->size;
    a->options.label_smoothing = l->label_smoothing, a->options.z_loss = l->z_loss;
    return TE_OK;
}
/* Gather the te_loss_partial of all ranks, and compute the losses. */
TE_API te_status te__vocab_parallel_combine(const te_vocab_parallel_args *a, te_run *r, const te_vocab_parallel *l) {
    te_loss_partial *const own = a->part + a->rank * a->rows;
    TE_TRY(te_group_all_gather(r->tensor, a->part, own, a->rows * TE_LOSS_PARTIAL_FLOATS, TE_f32, r->ctx));
    return l->join(r->ctx, te__grid_of(te_ceil_div(a->rows, TE_LOSS_COMBINE_LANES), 1), a);
}
TE_API te_status te__vocab_parallel_forward(te_run *r, const te_step *s, const te_vocab_parallel *l) {
    te_vocab_parallel_args a;
    te_value y;
    TE_TRY(te__vocab_parallel_begin(&a, &y, r, s, l));
    a.of.x = r->current.data;
    if (!r->dry) {
        TE_TRY(l->part(r->ctx, te__grid_of(a.rows, 1), &a));
        TE_TRY(te__vocab_parallel_combine(&a, r, l));
    }
    te__set_current(r, y);
    return TE_OK;
}

#define TE__VOCAB_PARALLEL_KERNELS(name, model, op)                                                              \
    TE_KERNEL(name, TE_CROSS_ENTROPY_THREADS(TE_WIDTH_IN(model, op)), te_vocab_parallel_args,                    \
              te_cross_entropy_partial_row(te_args, te_at, TE_CROSS_ENTROPY_THREADS(TE_WIDTH_IN(model, op)),     \
                  TE_WIDTH_IN(model, op), (te_dtype)TE_DTYPE_IN(model, op),                                      \
                  te_loss_options_of(TE__LABEL_SMOOTHING(op), TE__Z_LOSS(op))))                                  \
    TE_KERNEL(name##_join, TE_LOSS_COMBINE_LANES, te_vocab_parallel_args, te_cross_entropy_combine(te_args, te_at))
#define TE__VOCAB_PARALLEL_GRAD(name, model, op)                                                                 \
    TE_KERNEL(name, TE_CROSS_ENTROPY_THREADS(TE_WIDTH_IN(model, op)), te_cross_entropy_args,                     \
              te_cross_entropy_grad_shard(te_args, te_at, TE_CROSS_ENTROPY_THREADS(TE_WIDTH_IN(model, op)),      \
                  TE_ARG1(op, 0), (te_dtype)TE_DTYPE_IN(model, op),                                              \
                  te_loss_options_of(TE__LABEL_SMOOTHING(op), TE__Z_LOSS(op))))
#define TE__VOCAB_PARALLEL_LOSS(name, op) {name##_launch, name##_join_launch, TE__LABEL_SMOOTHING(op), TE__Z_LOSS(op)}

#define TE__VOCAB_PARALLEL_FORWARD(name, model, dtype, op)                                                       \
    TE__VOCAB_PARALLEL_KERNELS(name, model, op)                                                                  \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                   \
        const te_vocab_parallel loss = TE__VOCAB_PARALLEL_LOSS(name, op);                                        \
        return te__vocab_parallel_forward(r, s, &loss);                                                          \
    }
#define TE__VOCAB_PARALLEL_BACKWARD(name, model, dtype, op)                                                      \
    TE__VOCAB_PARALLEL_GRAD(name, model, op)                                                                     \
    TE_API te_status name##_run(te_run *r, const te_step *s)                                                     \
        { return te__cross_entropy_backward(r, s, name##_launch); }

#endif
