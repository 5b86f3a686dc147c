/* own_rows.h -- rows that begin with an op that has its own kernels: TE_OWN_ROW_<family>_<pass>(name, model, dtype, op)
 * makes the op's kernels and name##_run; `name` is also the chain of the ops behind it (TE_CHAIN). With
 * TE_HAS_SOURCE_<family> a comma, TE_SOURCE_<family>(widths, name, ops...) adds kernels of that chain which get its
 * input from elsewhere (comm/all_reduce_row.h). With TE_PAIR_<a>_<b> a comma the row is two such ops, and
 * TE_OWN_PAIR_<a>_<b>_<pass>(name, model, dtype, a, b) makes kernels and name##_run; with TE_AROUND_<a>_<b> a comma it
 * begins with a and ends with b, the chain is what is between them, and besides TE_SOURCE_<a> there is
 * TE_OWN_AROUND_<a>_<b>_<pass>(name, model, dtype, a, b) (comm/scatter_row.h).
 */
#ifndef TE_FUSE_OWN_ROWS_H
#define TE_FUSE_OWN_ROWS_H

#include "../ops/attention.h" /* te__attention_backward */
#include "chain_run.h"        /* te_chain, te_chain_launch_fn */

#define TE__PAIR_OR_CHAIN(a, ...) \
    TE_IF_MARKED(TE_JOIN2(TE_PAIR_, TE_FAMILY(a), TE_FAMILY(TE_ROW_FIRST(__VA_ARGS__))), TE__OWN_PAIR, \
    TE_IF_MARKED(TE_JOIN2(TE_AROUND_, TE_FAMILY(a), TE_FAMILY(TE_ROW_LAST(__VA_ARGS__))), TE__OWN_AROUND, \
    TE__OWN_CHAIN))
#define TE__OWN_PAIR(name, widths, model, dtype, pass, a, ...)                                                       \
    static_assert(TE_ROW_COUNT(__VA_ARGS__) == 1, "te: " #name ": this row has two ops");                            \
    TE__OWN(TE_JOIN2(TE_OWN_PAIR_, TE_FAMILY(a), TE_FAMILY(TE_ROW_FIRST(__VA_ARGS__))), pass, name, model, dtype, a, \
        TE_ROW_FIRST(__VA_ARGS__))

#define TE__OWN_CHAIN(name, widths, model, dtype, pass, first, ...)                                                  \
    TE_CHAIN(name, widths, model, dtype, pass, __VA_ARGS__)                                                          \
    TE_IF_MARKED(TE_JOIN1(TE_HAS_SOURCE_, TE_FAMILY(first)), TE__OWN_SOURCE, TE_NOTHING)                             \
    (TE_FAMILY(first), widths, name, __VA_ARGS__)                                                                    \
    TE__OWN_IN_ROW(name, widths, model, dtype, pass, first)
#define TE__OWN_SOURCE(...) TE__OWN_SOURCE2(__VA_ARGS__)
#define TE__OWN_SOURCE2(family, ...) TE_SOURCE_##family(__VA_ARGS__)

#define TE__OWN_AROUND(name, widths, model, dtype, pass, first, ...)                                                 \
    TE__OWN_AROUND2(name, widths, model, dtype, pass, first, TE_ROW_LAST(__VA_ARGS__), TE_ROW_BUT_LAST(__VA_ARGS__))
#define TE__OWN_AROUND2(...) TE__OWN_AROUND3(__VA_ARGS__)
#define TE__OWN_AROUND3(name, widths, model, dtype, pass, first, last, ...)                                          \
    TE_CHAIN(name, widths, model, dtype, pass, __VA_ARGS__)                                                          \
    TE__OWN_SOURCE(TE_FAMILY(first), widths, name, __VA_ARGS__)                                                      \
    TE__OWN(TE_JOIN2(TE_OWN_AROUND_, TE_FAMILY(first), TE_FAMILY(last)), pass, name, model, dtype, first, last)

/* Attention's backward with the gradient of the bias before it. */
#define TE_OWN_ROW_attention_backward(name, model, dtype, op)                                                      \
    TE__ATTENTION(BACKWARD, name##_own, model, dtype, op)                                                          \
    TE__ATTENTION_LEARNT(name##_own, dtype, op)                                                                    \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                     \
        const te_chain_shape k = name##_shape(te_chain_half(r, s, 1));                                             \
        return te__attention_bias_backward(r, s, name##_own_launch, name##_own_scratch_bytes, name##_own_sum_rows, \
            name##_launch, k, TE__IF_SINKS(op, name##_own_sinks_launch, 0), &name##_own_bias,                      \
            TE__ATTENTION_GIVES_BACKWARD(model));                                                                  \
    }

/* The attention kernels leave partial sums of the columns that they write (of sum_rows rows each), in sequences that
 * are no shorter than that; else the bias's own kernel does. Both take the same pieces of the workspace, for it is
 * sized without the sequences. */
TE_IF_USED TE_API te_status te__attention_bias_backward(te_run *r, const te_step *s, te_attention_launch_fn attention,
                                                        te_attention_scratch_fn scratch_bytes, int sum_rows,
                                                        te_chain_launch_fn launch, te_chain_shape k,
                                                        te_attention_sinks_fn sinks, const te_score_bias *bias,
                                                        int gives) {
    const int tiles = te_chain_tiles(k), most = te__most_blocks(r, k, tiles);
    const int sums = sum_rows && r->batch && r->batch->seq >= sum_rows;
    const int blocks = sums ? (int)(r->batch->batch * te_ceil_div(r->batch->seq, sum_rows))
                            : (int)te_min(te_ceil_div(r->tokens, k.groups), most);
    const int room =
        (int)te_max(most, sum_rows ? 2 * te_room_rows(r) / sum_rows + 1 : 0); /* at most two sums for as many rows */
    float *sum = 0;
    te_chain c;
    TE_TRY(te_sum_later(r, &sum, r->param[s->op[1]], r->plan->op[s->op[0]].in, blocks, room));
    if (!te_is_trained(r->param[s->op[1]])) sum = 0;
    TE_TRY(te__attention_backward(r, s, attention, scratch_bytes, sums ? sum : 0, sinks, bias, 0, gives));
    if (sums || !sum || r->dry) return TE_OK;
    memset(&c, 0, sizeof c);
    c.x = r->now.p, c.rows = r->now.rows, c.half = k.half, c.op[0].sum[0] = sum;
    return launch(r->ctx, te_grid_of((int64_t)blocks * tiles, 1), &c);
}

#endif
