/* cross_entropy_ranks.h -- (cross_entropy, name, vocabulary, (ranks, N)): the loss of logits of which each rank of a
 * tensor group has its own columns, rank r those from r * vocabulary / N on.
 *
 * A rank reduces its columns of a row to five numbers. One all_gather of those, 20 bytes a row and rank, and no logits:
 * then each rank has the largest logit of the row and the sum, added up in the order of the ranks, so all have the same
 * bits of the loss and of what backward reads. The gradient of a rank's columns needs nothing of the others.
 *
 * Do this:
 *     ... (rmsnorm, ln, H), (copy_to_group, c), (linear, head, H, V / N, (shard, columns)),
 *     (cross_entropy, loss, V, (ranks, N)))
 */
#ifndef TE_OPS_CROSS_ENTROPY_RANKS_H
#define TE_OPS_CROSS_ENTROPY_RANKS_H

#include "../core/group.h"  /* te_group_all_gather */
#include "cross_entropy.h"  /* te_cross_entropy_args, te_cross_entropy_slice */

enum { TE_LOSS_JOIN_LANES = TE_CUDA ? 256 : 1 };

/* What a rank says of a row. */
typedef struct te_loss_part {
    te_logit_sums sums;
    float of_label;    /* the label's logit; 0: another rank has it */
    float above, from; /* label smoothing: the sum of x - from */
} te_loss_part;
enum { TE_LOSS_PART_WORDS = sizeof(te_loss_part) / sizeof(float) };

typedef struct te_loss_ranks_args {
    te_cross_entropy_args of; /* width, first: of this rank's columns */
    te_loss_part *part;       /* [ranks, rows] */
    te_loss_options options;
    int64_t rows;
    int rank, ranks;
} te_loss_ranks_args;

/* Bytes: the logits once. */
TE_FN void te_cross_entropy_part(const te_loss_ranks_args *a, te_block b, int threads, int width, te_dtype dtype,
                                 const te_loss_options o) {
    int group;
    te_lanes g = te_lanes_here(threads, &group);
    const int smooth = o.label_smoothing != 0;
    const int64_t row = (int64_t)b.x * width, label = (int64_t)a->of.labels[b.x] - a->of.first;
    te_loss_part p;
    p.from = smooth ? te_load(a->of.x, row, dtype) : 0.0f;
    if (!(fabsf(p.from) <= 3.402823466e38f)) p.from = 0.0f;
    p.sums = te__logit_sums_of(&p.above, &a->of, row, &g, width, dtype, smooth, p.from);
    if (g.id) return;
    p.of_label = label >= 0 && label < width ? te_load(a->of.x, row + label, dtype) : 0.0f;
    a->part[a->rank * a->rows + b.x] = p;
}
/* From the parts of all ranks. Bytes: 20 a row and rank. */
TE_FN void te_cross_entropy_joined(const te_loss_ranks_args *a, te_block b) {
    int group;
    const te_lanes g = te_lanes_here(TE_LOSS_JOIN_LANES, &group);
    const int64_t row = (int64_t)b.x * TE_LOSS_JOIN_LANES + g.id;
    if (row >= a->rows) return;
    const te_cross_entropy_args *c = &a->of;
    const te_loss_options o = a->options;
    const int32_t label = c->labels[row];
    float top = -INFINITY, sum = 0, of_label = 0, above = 0;
    for (int r = 0; r < a->ranks; r++) {
        const te_loss_part *p = &a->part[r * a->rows + row];
        top = p->sums.top > top ? p->sums.top : top, of_label += p->of_label;
    }
    for (int r = 0; r < a->ranks; r++) {
        const te_loss_part *p = &a->part[r * a->rows + row];
        sum += p->sums.top > -INFINITY ? p->sums.sum * te_exp(p->sums.top - top) : p->sums.sum;
        if (o.label_smoothing != 0) above += p->above + (float)c->width * (p->from - of_label);
    }
    float loss = label >= 0 && label < c->vocabulary ? logf(sum) + (top - of_label) : NAN;
    if (o.label_smoothing != 0) loss -= o.label_smoothing / (float)c->vocabulary * above;
    if (o.z_loss != 0) loss += o.z_loss * (logf(sum) + top) * (logf(sum) + top);
    c->loss[row] = label == c->ignore_index ? 0.0f : loss;
    if (c->stats) c->stats[2 * row] = top, c->stats[2 * row + 1] = log2f(sum);
}

typedef te_status (*te_loss_ranks_launch_fn)(te_context *, te_grid, const te_loss_ranks_args *);

/* The two kernels of a loss, and its options. */
typedef struct te_loss_of_ranks {
    te_loss_ranks_launch_fn part, join;
    float label_smoothing, z_loss;
} te_loss_of_ranks;

/* All but the logits. y: the losses. */
TE_API te_status te__loss_ranks_open(te_loss_ranks_args *a, te_value *y, te_run *r, const te_step *s,
                                     const te_loss_of_ranks *l) {
    const int i = s->op[s->count - 1];
    const te_group *g = r->tensor;
    void *parts = 0;
    memset(a, 0, sizeof *a);
    TE_TRY(te__cross_entropy_args_of(&a->of, r, &r->plan->op[i], r->current.rows));
    TE_TRY(te_output(y, r, s, i));
    TE_TRY(te_scratch(r, &parts, (size_t)(te_capacity_rows(r) * g->size) * sizeof(te_loss_part)));
    a->of.loss = (float *)y->data, a->of.stats = r->stats[i];
    a->part = (te_loss_part *)parts, a->rows = r->current.rows, a->rank = g->rank, a->ranks = g->size;
    a->options.label_smoothing = l->label_smoothing, a->options.z_loss = l->z_loss;
    return TE_OK;
}
/* The losses, from the parts of this rank. */
TE_API te_status te__loss_ranks_join(const te_loss_ranks_args *a, te_run *r, const te_loss_of_ranks *l) {
    te_loss_part *const own = a->part + a->rank * a->rows;
    TE_TRY(te_group_all_gather(r->tensor, a->part, own, a->rows * TE_LOSS_PART_WORDS, TE_f32, r->ctx));
    return l->join(r->ctx, te_grid_of(te_ceil_div(a->rows, TE_LOSS_JOIN_LANES), 1), a);
}
TE_API te_status te__cross_entropy_of_ranks(te_run *r, const te_step *s, const te_loss_of_ranks *l) {
    te_loss_ranks_args a;
    te_value y;
    TE_TRY(te__loss_ranks_open(&a, &y, r, s, l));
    a.of.x = r->current.data;
    if (!r->dry) {
        TE_TRY(l->part(r->ctx, te_grid_of(a.rows, 1), &a));
        TE_TRY(te__loss_ranks_join(&a, r, l));
    }
    te_set_current(r, y);
    return TE_OK;
}

#define TE__LOSS_OF_RANKS_KERNELS(name, model, op)                                                                  \
    TE_KERNEL(name, TE_CROSS_ENTROPY_THREADS(TE_WIDTH_IN(model, op)), te_loss_ranks_args,                           \
              te_cross_entropy_part(te_args, te_at, TE_CROSS_ENTROPY_THREADS(TE_WIDTH_IN(model, op)),               \
                  TE_WIDTH_IN(model, op), (te_dtype)TE_DTYPE_IN(model, op),                                         \
                  te_loss_options_of(TE__LABEL_SMOOTHING(op), TE__Z_LOSS(op))))                                     \
    TE_KERNEL(name##_join, TE_LOSS_JOIN_LANES, te_loss_ranks_args, te_cross_entropy_joined(te_args, te_at))
#define TE__LOSS_OF_RANKS_SLOPE(name, model, op)                                                                    \
    TE_KERNEL(name, TE_CROSS_ENTROPY_THREADS(TE_WIDTH_IN(model, op)), te_cross_entropy_args,                        \
              te_cross_entropy_slice(te_args, te_at, TE_CROSS_ENTROPY_THREADS(TE_WIDTH_IN(model, op)),              \
                  TE_ARG1(op, 0), (te_dtype)TE_DTYPE_IN(model, op),                                                 \
                  te_loss_options_of(TE__LABEL_SMOOTHING(op), TE__Z_LOSS(op))))
#define TE__LOSS_OF_RANKS(name, op) {name##_launch, name##_join_launch, TE__LABEL_SMOOTHING(op), TE__Z_LOSS(op)}

#define TE__LOSS_OF_RANKS_FORWARD(name, model, dtype, op)                                                           \
    TE__LOSS_OF_RANKS_KERNELS(name, model, op)                                                                      \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                      \
        const te_loss_of_ranks loss = TE__LOSS_OF_RANKS(name, op);                                                  \
        return te__cross_entropy_of_ranks(r, s, &loss);                                                             \
    }
#define TE__LOSS_OF_RANKS_BACKWARD(name, model, dtype, op)                                                          \
    TE__LOSS_OF_RANKS_SLOPE(name, model, op)                                                                        \
    TE_API te_status name##_run(te_run *r, const te_step *s)                                                        \
        { return te__cross_entropy_backward(r, s, name##_launch); }

#endif
