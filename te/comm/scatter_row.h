/* scatter_row.h -- the seam between two parts of a transformer block under sequence parallelism, as one row:
 * `reduce_scatter_bias_dropout_add_fork_norm_all_gather`, without the bias, the dropout or both, or, in front of the
 * logits, without the fork.
 *
 * Ranks that map each other's memory, tensors of up to config.peer_bytes: one kernel (peer_row.h). A rank sends each
 * other its rows of the partial sums, adds up its own, goes on with them in registers, stores the residual, and sends
 * the normed rows to all. N ranks, S bytes of all rows: 2 S (N - 1) / N over the link, two ways; the same as two-shot
 * all_reduce. The three steps one after the other start two kernels more, store and read the sum and the normed rows
 * (4 S / N bytes), and their all_gather sends twice its bytes, for any bits must pass, and here they are numbers. The
 * floor on two H200s is 2.6 us and S over 450 GB/s: of 8192 columns, 64 rows in all 4.9 us, 512 rows 21; measured 7.5
 * and 26.6, without the fork.
 *
 * In front of a product under fp8_delayed, where all ranks have the same scales (te_recipes_config.ranks), the rows
 * leave in FP8: half of S comes back over the link, and nothing casts them; forward keeps them so for backward, which
 * turns them. So do they in the steps. Under other recipes they are gathered in the list's format.
 *
 * Else, and where a product in front of it or behind it overlaps its collective (te/linear/impl/linear_comm_overlap.h), the three
 * steps one after the other; the bits: see peer_row.h.
 *
 * Do this:
 *     (linear, proj, H / N, H, (shard, rows)), (reduce_scatter, s), (add, x1), (fork, x2), (rmsnorm, n2, H),
 *     (all_gather, g), (linear, fc1, H, F / N, (shard, columns))
 */
#ifndef TE_COMM_SCATTER_ROW_H
#define TE_COMM_SCATTER_ROW_H

#include "../fuse/impl/matcher.h"    /* TE_FUSED */
#include "collective_run.h" /* te__collective_to, te__late_product */
#include "peer_row.h"       /* te_peer_chain */

#define TE_FORWARD_reduce_scatter_add_norm_all_gather TE_FUSED
#define TE_FORWARD_reduce_scatter_bias_add_norm_all_gather TE_FUSED
#define TE_FORWARD_reduce_scatter_bias_dropout_add_norm_all_gather TE_FUSED
#define TE_FORWARD_reduce_scatter_add_fork_norm_all_gather TE_FUSED
#define TE_FORWARD_reduce_scatter_bias_add_fork_norm_all_gather TE_FUSED
#define TE_FORWARD_reduce_scatter_dropout_add_fork_norm_all_gather TE_FUSED
#define TE_FORWARD_reduce_scatter_bias_dropout_add_fork_norm_all_gather TE_FUSED

/* Rows of this rank that the kernel takes: the group maps memory, and nobody needs the sum itself. 0: none. */
TE_API int64_t te__scatter_in_row(const te_run *r, const te_step *s, te_value x, te_value y, te_peer_row row,
                                  te_pointwise_shape k) {
    if (!row.launch || x.dtype != k.in || y.dtype != k.in || k.out != k.in || te_policy(r, s->op[0])->output_saved) return 0;
    if (k.norm <= 0 || !k.aligned || k.in_halves != 1 || k.out_halves != 1) return 0;
    if (((uintptr_t)x.data | (uintptr_t)y.data) % TE_WORDS) return 0;
    const int64_t own = x.rows / r->tensor->size;
    return te__peer_rows_at_once(r->tensor, own, x.cols * (int64_t)te_dtype_bytes(x.dtype), own);
}
/* The row as one kernel. sum: of this rank's rows, for the chain that it is not; middle: the step without its ends; y:
 * what is gathered, or memory for it in FP8; next: the product that wants it so, -1: none. */
TE_API te_status te__scatter_chain(te_run *r, const te_step *middle, te_value x, te_value sum, te_value y, int next,
                                   te_peer_row row, te_pointwise_shape k) {
    const int last = middle->op[middle->count - 1], kept = r->pass == TE_FORWARD && te_policy(r, last)->output_saved;
    const int block = y.block;
    te_peer_chain p;
    te_pointwise_work w;
    k.transposes = 0; /* this is one kernel */
    memset(&p, 0, sizeof p);
    p.c.half = k.half;
    w = te_pointwise_work_of(middle, 1, k, &p.c);
    TE_TRY(te__pointwise_forward(r, &w, sum));
    if (!kept) p.c.y = 0;
    p.c.take = r->take, r->take.taken = 0;
    if (next >= 0) {
        void *const to = te_saved_input_of(r, next).x;
        TE_TRY(te__pointwise_store_fp8_operand(&y, r, &p.c, next, TE_ROWS_tokens, to ? to : y.data));
        y.block = to ? -1 : block;
    }
    p.pitch = p.c.rows, p.gathered = y.data;
    te_set_current(r, y);
    return r->dry ? TE_OK : te__peer_rows_launch(&p, r, x, row, p.c.rows);
}
/* kernels: those of the product before the row and the sum; null: there are none. */
TE_API te_status te__scatter_row(te_run *r, const te_step *s, te_pointwise_launch_fn launch, te_peer_row row,
                                 te_pointwise_shape k, te_scatter_kernels *kernels) {
    const int i = s->op[0], last = s->op[s->count - 1];
    const te_op *op = &r->plan->op[i];
    te_step middle = *s;
    te_value sum = te_output_of(r, i), y;
    int takes = 0;
    middle.count--;
    TE_TRY(te__collective_begin(r, i));
    if (r->pass != TE_FORWARD || !te_policy(r, i)->output_saved || !sum.data)
        TE_TRY(te_acquire(r, &sum, op->out_rows, op->out, op->out_dtype)); /* sizes do not depend on which it is */
    if (r->current.state == TE_VALUE_deferred_product) TE_TRY(te__late_product(&takes, r, sum, kernels));
    const te_value x = r->current;
    TE_TRY(te_output(&y, r, s, last));
    if (!takes && te__scatter_in_row(r, s, x, y, row, k))
        return te__scatter_chain(r, &middle, x, sum, y, k.fp8 ? te__gather_consumer(r, s) : -1, row, k);
    if (!takes && !r->dry)
        TE_TRY(te_group_reduce_scatter(r->tensor, sum.data, x.data, sum.rows * sum.cols, sum.dtype, r->ctx));
    TE_TRY(te_pointwise_step_forward(r, &middle, 1, 0, sum, launch, k));
    return te__collective_to(r, s, y, te_group_all_gather);
}
#define TE_CUSTOM_AROUND_reduce_scatter_all_gather_forward(name, model, dtype, op, last)                                 \
    TE__NEEDS_COMM(model, op)                                                                                         \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                        \
        const te_pointwise_shape k = name##_shape(te_pointwise_half(r, s, 1));                                                \
        return te__scatter_row(r, s, name##_launch, name##_peer_row(), k, TE_SCATTER_KERNELS(model, dtype, 1));       \
    }

#define TE_AROUND_reduce_scatter_all_gather ,
#define TE_SOURCE_reduce_scatter(widths, name, ...) TE__PEER_ROW_IN(widths, name, 1, __VA_ARGS__)

#endif
