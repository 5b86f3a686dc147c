/* shares.h -- what each rank of a tensor group has of the values of a list (te_share), and whether the ops can work
 * with that: tensor and sequence parallelism with a mistake in it does not compile.
 *
 *     (f32, (rows, shard)), (rmsnorm, ln, H), (all_gather, g),       // shard: a row a token that is this rank's
 *     (linear, fc1, H, F / N, (shard, columns)), (gelu, act), (linear, fc2, F / N, H, (shard, rows)),
 *     (reduce_scatter, s), ...
 *
 *   after                                          a rank has                   what may follow
 *   all_gather, copy_to_group                      entered: all of it           products (shard, columns), ops without
 *                                                                               parameters
 *   (linear, .., (shard, columns))                 columns: its own columns     bias, mul_param, head_norm, maps,
 *                                                                               attention, products (shard, rows),
 *                                                                               (cross_entropy, .., (ranks, N))
 *   (linear, .., (shard, rows)),                   sums: a part of the sum      reduce_scatter, all_reduce
 *   (embedding, .., (ranks, N))
 *   reduce_scatter, all_reduce                     same: all, or its own rows   everything else
 *
 * At the begin of a list nothing is known, and everything may follow. A family says TE_SHARE_<family>(op, in), what its
 * output is, and TE_SHARE_FITS_<family>(op, in), what it takes, where the defaults do not hold: it passes on what it
 * gets; one with parameters takes what all ranks have, one without them all but sums.
 */
#ifndef TE_FUSE_SHARES_H
#define TE_FUSE_SHARES_H

#include "plan.h" /* TE_LINKS, TE_FACT */

#define TE_SHARE_OUT(model, op) TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), share)
#define TE_SHARE(op, in)        TE_TUPLE_OR(TE_FACT(SHARE, op)(op, in), (int)(in))
#define TE_KEPT_SHARE(model, x) TE_JOIN4(te_share_of_, x, of, model, fork)

#define TE_SHARE_FITS(op, in) \
    ((int)(in) == (int)TE_SHARE_any || (TE_TUPLE_OR(TE_FACT(SHARE_FITS, op)(op, in), TE__SHARE_FITS(op, in))))
#define TE__SHARE_FITS(op, in) \
    ((int)(in) == (int)TE_SHARE_same || ((int)(in) != (int)TE_SHARE_sums && !TE__HAS_PARAMS(op)))
#define TE__HAS_PARAMS(op) TE__HAS_PARAMS2(TE_UNWRAP(TE_PARAMS(op, 0, 0)))
#define TE__HAS_PARAMS2(...) TE_IF_END(TE_FIRST(__VA_ARGS__, ~), 0, 1)

/* The enumerators of an op: its own and, of a fork, that of what it keeps; what a load gives its fork has kept. */
#define TE__SHARES(model, before, op, after, live)                                                                    \
    TE_SHARE_OUT(model, op) =                                                                                         \
        TE_IF_MARKED(TE_JOIN1(TE_LOADS_, TE_FAMILY(op)), TE__LOADED_share, TE__OWN_share)(model, before, op),         \
    TE_IF_MARKED(TE_JOIN1(TE__KEEPS_SHARE_, TE_FAMILY(op)), TE__KEPT_SHARE, TE_NOTHING)(model, op)
#define TE__OWN_share(model, before, op) TE_SHARE(op, TE_SHARE_OUT(model, before))
#define TE__LOADED_share(model, before, op) TE_KEPT_SHARE(model, TE_FORK_OF(op))
#define TE__KEEPS_SHARE_fork ,
#define TE__KEPT_SHARE(model, op) \
    TE_KEPT_SHARE(model, TE_NAME(op)) = TE__IF_INPUT(op, (int)TE_SHARE_any, TE_SHARE_OUT(model, op)),
/* Its check. */
#define TE__CHECK_SHARE(model, before, op)                                                                            \
    static_assert(TE_SHARE_FITS(op, TE_SHARE_OUT(model, before)),                                                     \
                  "te: " TE_STRING(model) ": " TE_CALLED(op)                                                          \
                      " does not fit what each rank of a group has of its input (te/fuse/shares.h)");
#define TE__SHARES_A(...) TE__SHARES(__VA_ARGS__) TE__SHARES_B
#define TE__SHARES_B(...) TE__SHARES(__VA_ARGS__) TE__SHARES_A
#define TE__SHARES_A_END
#define TE__SHARES_B_END

#endif
