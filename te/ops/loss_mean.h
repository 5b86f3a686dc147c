/* loss_mean.h -- the mean loss over the rows whose label is not ignored. Labels are counted on the device, and
 * cross_entropy's backward divides by that count, so the host never reads it and a graph can be captured.
 *
 * Do this:
 *     float *count, *mean;                                             // target memory, one number each
 *     TE_TRY(te_count_labels(count, labels, rows, 0, 0, &ctx));        // labels that are not ignored
 *     batch.loss_scale = 1.0f, batch.loss_count = count;               // backward: dloss = loss_scale / count
 *     ... forward, backward ...
 *     TE_TRY(te_mean_loss(mean, losses, rows, count, 0, &ctx));        // of forward's losses, for a progress line
 *
 * Gradient accumulation: the mean over all rows of several micro-batches needs one count of all their labels before the
 * first backward. Count the first micro-batch with accumulate 0 and the others with 1, then run them as usual;
 * te_mean_loss with accumulate 1 adds a micro-batch's part. If each micro-batch has its own count, with a loss_scale of
 * 1 / (number of micro-batches), the result is the mean of the micro-batches' means instead, which differs if the
 * counts differ. Data-parallel ranks, whose gradients are summed, need one count, too:
 * te_group_all_reduce(te_data_group(ctx), count, count, 1, TE_f32, ctx).
 *
 * A count is exact up to 2^24. If all labels are ignored, the loss and all gradients are 0.
 */
#ifndef TE_OPS_LOSS_MEAN_H
#define TE_OPS_LOSS_MEAN_H

#include "../core/lanes.h"  /* te_lanes_here, te_lanes_sum */
#include "../core/target.h" /* TE_KERNEL, te__check_target */

/* A single block computes the sum: with 64 Ki labels each of its threads loads 64. */
enum { TE_LOSS_MEAN_THREADS = TE_CUDA ? 1024 : 1, TE_FILL_LOSS_GRAD_THREADS = TE_CUDA ? 256 : 1 };

/* The label that is ignored: te_batch.ignore_index, where 0 stands for -100. */
TE_API int te__ignored_label(int ignore_index) { return ignore_index ? ignore_index : -100; }

typedef struct te_loss_mean_args {
    float *out;            /* [1]; te_fill_loss_grad: [rows] */
    const int32_t *labels; /* [rows]; null: sum `loss` instead */
    const float *loss;     /* [rows] */
    const float *count;    /* [1], the divisor; null: 1 */
    float scale;
    int64_t rows;
    int ignored, accumulate;
} te_loss_mean_args;

/* The divisor of the sum: the count, or 1 if there is no count or it is 0. */
TE_FN float te_loss_divisor(const te_loss_mean_args *a) {
    return a->count && *a->count > 0.0f ? *a->count : 1.0f;
}

/* out (+)= the sum of the losses / count, or the number of labels that are not ignored. Each lane sums in double.
 * Memory traffic: reads 4 bytes for each row. */
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

/* out[row] = scale / count: dy of the losses. */
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
/* count[1] (+)= the number of labels[rows] that are not ignore_index (as in te_batch: 0 stands for -100). All pointers
 * are target memory; enqueued on ctx. Errors: TE_ERROR_NULL, _SHAPE (negative rows), _ALIGNMENT. */
TE_IF_USED TE_API te_status te_count_labels(float *count, const int32_t *labels, int64_t rows, int ignore_index,
                                            int accumulate, te_context *ctx) {
    te_loss_mean_args a;
    TE_TRY(te__loss_mean_check(count, labels, rows, "te_count_labels", ctx));
    memset(&a, 0, sizeof a);
    a.out = count, a.labels = labels, a.rows = rows, a.ignored = te__ignored_label(ignore_index);
    a.accumulate = accumulate;
    return te_loss_sum_launch(ctx, te__grid_of(1, 1), &a);
}
/* mean[1] (+)= the sum of loss[rows] / count[1]; if the count is 0, the sum is not divided. The pointers and errors are
 * as for te_count_labels. */
TE_IF_USED TE_API te_status te_mean_loss(float *mean, const float *loss, int64_t rows, const float *count,
                                         int accumulate, te_context *ctx) {
    te_loss_mean_args a;
    TE_TRY(te__loss_mean_check(mean, loss, rows, "te_mean_loss", ctx));
    TE_TRY(te__loss_mean_check(mean, count, 1, "te_mean_loss", ctx));
    memset(&a, 0, sizeof a);
    a.out = mean, a.loss = loss, a.rows = rows, a.count = count, a.accumulate = accumulate;
    return te_loss_sum_launch(ctx, te__grid_of(1, 1), &a);
}

#endif
