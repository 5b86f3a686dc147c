/* linear_loss_ranks.h -- linear_loss.h where ranks of a tensor group share the vocabulary: (linear, .., (shard,
 * columns)) and (cross_entropy, .., (ranks, N)) as one step. Pieces are of this rank's columns. Forward leaves what it
 * says of each row, and gathers that once behind the last piece; backward then needs nothing of the other ranks. The
 * loss is always made in forward: te_batch.loss_in_backward would have all ranks wait for each other at each piece.
 */
#ifndef TE_FUSE_LINEAR_LOSS_RANKS_H
#define TE_FUSE_LINEAR_LOSS_RANKS_H

#include "../ops/cross_entropy_ranks.h" /* te_loss_of_ranks */
#include "linear_loss.h"                /* te__linear_loss_open */

/* The two ops one after the other, with all logits: under a recipe, or where backward has them as two steps. */
TE_IF_USED TE_API te_status te__linear_loss_of_ranks_apart(te_run *r, const te_step *s, const te_loss_of_ranks *loss,
                                                           te_product_kernels *bare) {
    te_step first = *s;
    te_chain_shape none;
    memset(&none, 0, sizeof none);
    first.count = 1;
    TE_TRY(te_linear_step_forward(r, &first, 0, none, 0, bare));
    return te__cross_entropy_of_ranks(r, s, loss);
}
TE_IF_USED TE_API te_status te__linear_loss_of_ranks(te_run *r, const te_step *s, const te_loss_of_ranks *loss,
                                                     te_product_kernels *bare) {
    const te_op *linear = &r->plan->op[s->op[0]];
    const int keeps = r->pass == TE_FORWARD && te_in_memory(r, s->op[0]);
    te__logits_piece p = te__logits_of_forward(te_room_rows(r), linear->out);
    const int64_t rows = r->now.rows, most = p.rows;
    te_loss_ranks_args all;
    te__linear_loss l;
    te_value y;
    if (keeps || linear->recipe != TE_RECIPE_none) return te__linear_loss_of_ranks_apart(r, s, loss, bare);
    TE_TRY(te__loss_ranks_open(&all, &y, r, s, loss));
    r->loss_in_backward = 0;
    l.x = r->now;
    TE_TRY(te__linear_loss_open(&l, r, s->op[0], s->op[1]));
    for (int64_t row = 0; row < rows && !r->dry; row += most) {
        te_loss_ranks_args a = all;
        p.rows = te_min(most, rows - row);
        a.of = te__linear_loss_rows(&all.of, row), a.of.x = l.logits, a.part += row;
        TE_TRY(te__linear_loss_logits(&l, r, l.logits, row, 0, p, bare));
        TE_TRY(loss->part(r->ctx, te_grid_of(p.rows, 1), &a));
    }
    if (!r->dry) TE_TRY(te__loss_ranks_join(&all, r, loss));
    te_set_now(r, y);
    return TE_OK;
}

#define TE__LOSS_ROW_OF_RANKS_FORWARD(name, model, dtype, op)                                \
    TE__LOSS_OF_RANKS_KERNELS(name, model, op)                                               \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                               \
        const te_loss_of_ranks loss = TE__LOSS_OF_RANKS(name, op);                           \
        return te__linear_loss_of_ranks(r, s, &loss, TE_BARE(dtype, forward));               \
    }
#define TE__LOSS_ROW_OF_RANKS_BACKWARD(name, model, dtype, op)                               \
    TE__LOSS_OF_RANKS_SLOPE(name, model, op)                                                 \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                               \
        const te__loss_kernels kernels = {name##_launch, 0, TE_BARE(dtype, forward),         \
            TE_BARE(dtype, backward)};                                                       \
        return te__linear_loss_backward(r, s, &kernels);                                     \
    }

#endif
