/* all_reduce_row.h -- rows that begin with an all_reduce: `all_reduce_add_fork_norm` and what else a chain may be.
 *
 * Ranks that map each other's memory: one kernel (peer_row.h), in the form that the all_reduce would have, one-shot or
 * two-shot: the sum is not stored, and no kernel of its own starts and ends. Bytes a row and rank, of `hidden` elements
 * of 16 bits: over the link 2 hidden to each other rank or, two-shot, 4 hidden (N - 1) / N in all; 2 of x, 2 of the
 * residual, 2 of it stored, 2 of y; in two kernels 4 hidden more, and 2 us. The floor is that of the all_reduce: of
 * 8192 columns and two ranks, 1.3 us and 2 hidden bytes a row over 450 GB/s, 1 row 1.3 us, 64 rows 3.6, 512 rows 20,
 * 2048 rows 76. Two H100s, beside our all_reduce alone: 3.6 and 2.65, 6.5 and 5.6, 28.5 and 27.7, 108.8 and NCCL's 149.
 * Four H200s: 5.3 and 4.0, 9.7 and 8.7, 46.5 and 44.1 (512 rows), 165 and NCCL's 179.
 *
 * A row lies on one multiprocessor, and few rows take as long as its 32 warps take for their instructions: some 80 each
 * until they have sent, and 225 from the sum on. With 100 more, for pitches that an all_reduce has not and sums marked
 * that nobody sends, 1 row took 4.0 us for 3.6. So each form is a kernel of its own. What did not pay: the kernel of
 * many rows, of 256 threads, each of which waits for four units one after the other (1 row 5.5 us, 64 rows 11.9); the
 * first row kept in registers (0.02 to 0.07 us); units of two ranks waited for together (0.7 us more); a pass over the
 * same code, without the waits, while the link works, for the instruction cache (2.1 us more); a row on a cluster of
 * four or eight blocks, whose warps send each other their part of the norm's sum by st.async (1 row 0.15 us less, from
 * 32 rows on 0.4 to 2.5 more).
 *
 * A linear in front of it leaves its product to the row (te/linear/impl/linear_comm_overlap.h). Where a kernel of ours takes that,
 * its epilogue sends what the others add up (send.h): nothing copies it, and the link works before the product ends.
 *
 * Else the group's all_reduce, and the chain behind it. All round the sum to the list's format, and give the same bits
 * as far as peer_row.h says.
 *
 * Do this:
 *     (linear, proj, H / N, H, (shard, rows)), (all_reduce, r), (add, x1), (fork, x2), (rmsnorm, n2, H)
 */
#ifndef TE_COMM_ALL_REDUCE_ROW_H
#define TE_COMM_ALL_REDUCE_ROW_H

#include "../fuse/impl/matcher.h" /* TE_FUSED */
#include "peer_row.h"     /* te_peer_chain */
#include "send.h"         /* te__late_sent */

#define TE_FORWARD_all_reduce_add_norm TE_FUSED
#define TE_FORWARD_all_reduce_add_fork_norm TE_FUSED
#define TE_FORWARD_all_reduce_bias_add_norm TE_FUSED
#define TE_FORWARD_all_reduce_bias_add_fork_norm TE_FUSED
#define TE_FORWARD_all_reduce_bias_dropout_add_norm TE_FUSED
#define TE_FORWARD_all_reduce_bias_dropout_add_fork_norm TE_FUSED

/* Rows that the kernel takes at a time: the group maps memory, and nobody needs the sum itself. 0: none. */
TE_API int64_t te__all_reduce_in_row(const te_run *r, const te_step *s, te_value x, te_peer_row row,
                                     te_pointwise_shape k) {
    if (!row.launch || x.dtype != k.in || te_policy(r, s->op[0])->output_saved) return 0;
    if (k.norm <= 0 || !k.aligned || k.in_halves != 1 || (uintptr_t)x.data % TE_WORDS) return 0;
    return te__peer_rows_at_once(r->tensor, x.rows, x.cols * (int64_t)te_dtype_bytes(x.dtype), 0);
}
TE_API te_status te__all_reduce_chain(te_run *r, const te_step *s, te_value x, te_value sum, te_peer_row row,
                                      te_pointwise_shape k, int64_t at_once, int sent) {
    te_peer_chain p;
    te_pointwise_work w;
    k.transposes = 0; /* this is one kernel */
    memset(&p, 0, sizeof p);
    p.c.half = k.half, p.sent = sent;
    w = te_pointwise_work_of(s, 1, k, &p.c);
    TE_TRY(te__pointwise_forward(r, &w, sum));
    if (w.launches) p.c.take = r->take, r->take.taken = 0;
    return w.launches && !r->dry ? te__peer_rows_launch(&p, r, x, row, at_once) : TE_OK;
}
/* send: the kernels of a product that sends; null: there are none. */
TE_API te_status te__all_reduce_row(te_run *r, const te_step *s, te_pointwise_launch_fn launch, te_peer_row row,
                                    te_pointwise_shape k, te_product_kernels *send) {
    const int i = s->op[0];
    int sent = 0;
    const te_op *op = &r->plan->op[i];
    const te_value x = r->current;
    te_value sum = te_output_of(r, i);
    if (r->recompute || r->describe) return te_pointwise_step_forward(r, s, 1, 0, te_no_value(), launch, k);
    TE_REQUIRE(!r->batch || r->ctx->comm, r->ctx, TE_ERROR_STATE,
               "%s: (%s, %s) needs the ranks of a group; te_comm_create makes them", r->plan->name, op->kind, op->name);
    if (r->pass != TE_FORWARD || !te_policy(r, i)->output_saved || !sum.data)
        TE_TRY(te_acquire(r, &sum, op->out_rows, op->out, op->out_dtype)); /* sizes do not depend on which it is */
    const int64_t at_once = te__all_reduce_in_row(r, s, x, row, k);
    if (r->current.state == TE_VALUE_deferred_product) TE_TRY(te__late_sent(&sent, r, send, at_once == x.rows));
    if (at_once) return te__all_reduce_chain(r, s, x, sum, row, k, at_once, sent);
    if (!r->dry) TE_TRY(te_group_all_reduce(r->tensor, sum.data, x.data, x.rows * x.cols, x.dtype, r->ctx));
    return te_pointwise_step_forward(r, s, 1, 0, sum, launch, k);
}
#define TE_CUSTOM_PATTERN_all_reduce_forward(name, model, dtype, op)                              \
    TE__NEEDS_COMM(model, op)                                                              \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                             \
        const te_pointwise_shape k = name##_shape(te_pointwise_half(r, s, 1));                     \
        return te__all_reduce_row(r, s, name##_launch, name##_peer_row(), k, TE_SEND_KERNELS(dtype)); \
    }

#define TE_HAS_SOURCE_all_reduce ,
#define TE_SOURCE_all_reduce(widths, name, ...) TE__PEER_ROW_IN(widths, name, 0, __VA_ARGS__)

#endif
