/* list_checks.h -- the marks of a list, (recompute, name) .. (end_recompute, name), become the plan's table of spans, or a
 * compile error that names the mistake. Knows only names; te/ops/recompute.h says what the marks mean.
 *
 * Everything here goes over TE_LINKS of the list with its marks in it; a list that has none is not gone over.
 */
#ifndef TE_LIST_CHECKS_H
#define TE_LIST_CHECKS_H

#include "../../plan/model.h" /* te_span, TE_IS_FORK */
#include "matcher.h" /* TE_FOR, TE_JOIN4 */

/* TE_SPAN_TABLE(links): {"r1", first, last}, for each span. */
#define TE_SPAN_TABLE(links) TE_FOR(TE__SPAN_ENTRY, links)
#define TE__SPAN_ENTRY(model, before, op, after, live) TE_IF_MARKED(TE_JOIN1(TE_BEGINS_SPAN_, TE_KIND(op)), \
    TE__SPAN_ENTRY2, TE_NOTHING)(model, op)
#define TE__SPAN_ENTRY2(model, op)                                                                    \
    {TE_STRING(TE_NAME(op)), (int)TE__SPAN_OF(model, op, at),                                         \
     (int)TE_JOIN4(te_error_recompute_, TE_NAME(op), of, model, has_no_end_recompute_behind_it)},
#define TE__SPAN_ENTRY_A(...) TE__SPAN_ENTRY(__VA_ARGS__) TE__SPAN_ENTRY_B
#define TE__SPAN_ENTRY_B(...) TE__SPAN_ENTRY(__VA_ARGS__) TE__SPAN_ENTRY_A
#define TE__SPAN_ENTRY_A_END
#define TE__SPAN_ENTRY_B_END

/* TE_SPAN_CHECKS(model, links): constants for each op and mark, and what must hold of them.
 *     at      how many ops stand before the next one
 *     inside  the span that the next op stands in: its first op's index + 1; 0: in none
 *     head    1: nothing but forks stands between the mark and here, so the value is what the span begins with, which
 *     is
 *             kept; 2: an (input, ..), of which the caller keeps the value */
#define TE_SPAN_CHECKS(model, links)                                                         \
    enum { TE_FOR(TE__SPAN_ONCE, links) te_marks_of_##model };                               \
    enum { TE_JOIN4(, model, begin, begin, at), TE_JOIN4(, model, begin, begin, inside) = 0, \
        TE_JOIN4(, model, begin, begin, head) = 0 };                                         \
    TE_FOR(TE__SPAN_CHECK, links)
#define TE__SPAN_ONCE(model, before, op, after, live) \
    TE_IF_MARKED(TE_JOIN1(TE_IS_MARK_, TE_KIND(op)), TE__SPAN_ONCE2, TE_NOTHING)(model, op)
#define TE__SPAN_ONCE2(model, op) TE_JOIN5(te_error_, TE_KIND(op), TE_NAME(op), of, model, is_there_twice),
#define TE__SPAN_ONCE_A(...) TE__SPAN_ONCE(__VA_ARGS__) TE__SPAN_ONCE_B
#define TE__SPAN_ONCE_B(...) TE__SPAN_ONCE(__VA_ARGS__) TE__SPAN_ONCE_A
#define TE__SPAN_ONCE_A_END
#define TE__SPAN_ONCE_B_END
#define TE__SPAN_OF(model, op, what) TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), what)
#define TE__SPAN_CHECK(model, before, op, after, live)                                                                 \
    TE_IF_MARKED(TE_JOIN1(TE_IS_MARK_, TE_KIND(op)), TE_JOIN1(TE__SPAN_, TE_KIND(op)), TE__SPAN_OP)(model, before, op) \
    static_assert(TE_IF_MARKED(TE_JOIN1(TE_IS_MARK_, TE_KIND(op)), TE_COUNT_ARGS(TE_STRIP op), 2) <= 2,                \
        "te: " #model ": " TE_CALLED(op) " has more arguments than its kind takes");                                   \
    static_assert(!TE_IF_END(after, TE__SPAN_OF(model, op, inside), 0),                                                \
        "te: " #model ": the list ends inside a (recompute, ..)");
#define TE__SPAN_CHECK_A(...) TE__SPAN_CHECK(__VA_ARGS__) TE__SPAN_CHECK_B
#define TE__SPAN_CHECK_B(...) TE__SPAN_CHECK(__VA_ARGS__) TE__SPAN_CHECK_A
#define TE__SPAN_CHECK_A_END
#define TE__SPAN_CHECK_B_END

#define TE__SPAN_recompute(model, before, op)                                                                      \
    enum {                                                                                                         \
        TE__SPAN_OF(model, op, at) = TE__SPAN_OF(model, before, at),                                               \
        TE__SPAN_OF(model, op, inside) = TE__SPAN_OF(model, op, at) + 1,                                           \
        TE__SPAN_OF(model, op, head) = 1,                                                                          \
        TE_JOIN4(te_error_end_recompute_, TE_NAME(op), of, model, has_no_recompute_before_it) = TE__SPAN_OF(model, \
            op, inside)                                                                                            \
    };                                                                                                             \
    static_assert((int)TE__SPAN_OF(model, before, inside) == 0,                                                    \
                  "te: " TE_STRING(model) ": (recompute, " TE_STRING(TE_NAME(op))                                  \
                      ") stands inside another one; spans do not nest");
#define TE__SPAN_end_recompute(model, before, op)                                                               \
    enum {                                                                                                      \
        TE__SPAN_OF(model, op, at) = TE__SPAN_OF(model, before, at),                                            \
        TE__SPAN_OF(model, op, inside) = 0,                                                                     \
        TE__SPAN_OF(model, op, head) = 0,                                                                       \
        TE_JOIN4(te_error_recompute_, TE_NAME(op), of, model, has_no_end_recompute_behind_it) =                 \
            (int)TE__SPAN_OF(model, op, at) - 1                                                                 \
    };                                                                                                          \
    static_assert((int)TE_JOIN4(te_error_end_recompute_, TE_NAME(op), of, model, has_no_recompute_before_it) == \
        (int)TE__SPAN_OF(model, before, inside),                                                                \
                  "te: " TE_STRING(model) ": (end_recompute, " TE_STRING(TE_NAME(op))                           \
                      ") does not close the (recompute, ..) that is open");                                     \
    static_assert((int)TE__SPAN_OF(model, before, inside) <= (int)TE__SPAN_OF(model, before, at),               \
                  "te: " TE_STRING(model) ": (recompute, " TE_STRING(TE_NAME(op)) ") holds no op");             \
    static_assert(!(TE_FLAGS(before) & (TE_IS_FORK | TE_IS_LOAD)),                                              \
                  "te: " TE_STRING(model) ": (" TE_STRING(TE_KIND(before)) ", " TE_STRING(TE_NAME(before))      \
                      ") must not end (recompute, " TE_STRING(TE_NAME(op)) "); it goes behind the mark");
#define TE__SPAN_OP(model, before, op)                                                                \
    enum {                                                                                            \
        TE__SPAN_OF(model, op, at) = TE__SPAN_OF(model, before, at) + 1,                              \
        TE__SPAN_OF(model, op, inside) = TE__SPAN_OF(model, before, inside),                          \
        TE__SPAN_OF(model, op, head) = !(TE_FLAGS(op) & TE_IS_FORK) ? 0                               \
                                       : (int)TE__SPAN_OF(model, before, head) == 1 ? 1               \
                                       : TE_FLAGS(op) & TE_IS_INPUT ? 2 : 0                           \
    };                                                                                                \
    TE_IF_MARKED(TE_JOIN1(TE_SPAN_CHECKED_, TE_FAMILY(op)), TE_JOIN1(TE__SPAN_CHECK_, TE_FAMILY(op)), \
        TE_NOTHING)(model, op)

/* Families that a span does not take as it takes the others: TE_SPAN_CHECKED_<family> is a comma. */
#define TE_SPAN_CHECKED_add ,
#define TE_SPAN_CHECKED_mul ,
#define TE_SPAN_CHECKED_load ,
#define TE_SPAN_CHECKED_cross_attention ,
#define TE__SPAN_CHECK_mul TE__SPAN_CHECK_add
#define TE__SPAN_CHECK_load TE__SPAN_CHECK_add
#define TE__SPAN_CHECK_cross_attention TE__SPAN_CHECK_add
#define TE__SPAN_CHECK_add(model, op)                                                                                 \
    static_assert((int)TE_JOIN4(, model, fork, TE_FORK_OF(op), inside) == 0                                           \
        || (int)TE_JOIN4(, model, fork, TE_FORK_OF(op), head) != 0 ||                                                 \
                      (int)TE_JOIN4(, model, fork, TE_FORK_OF(op), inside) == (int)TE__SPAN_OF(model, op, inside),    \
                  "te: " TE_STRING(model) ": (fork, " TE_STRING(TE_FORK_OF(op)) ") stands in a (recompute, ..), "     \
                      TE_CALLED(op) " behind it; begin the span with the fork, or take both in");
#define TE_SPAN_CHECKED_output ,
#define TE__SPAN_CHECK_output(model, op)                                       \
    static_assert((int)TE__SPAN_OF(model, op, inside) == 0,                    \
                  "te: " TE_STRING(model) ": (output, " TE_STRING(TE_NAME(op)) \
                      ") must not stand in a (recompute, ..): backward would write it again");
#define TE_SPAN_CHECKED_cross_entropy ,
#define TE__SPAN_CHECK_cross_entropy(model, op)                                       \
    static_assert((int)TE__SPAN_OF(model, op, inside) == 0,                           \
                  "te: " TE_STRING(model) ": (cross_entropy, " TE_STRING(TE_NAME(op)) \
                      ") must not stand in a (recompute, ..): backward would write the loss again");

/* list_checks.h -- what each rank of a tensor group has of the values of a list (te_share), and whether the ops can work
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
                      " does not fit what each rank of a group has of its input (te/fuse/impl/list_checks.h)");
#define TE__SHARES_A(...) TE__SHARES(__VA_ARGS__) TE__SHARES_B
#define TE__SHARES_B(...) TE__SHARES(__VA_ARGS__) TE__SHARES_A
#define TE__SHARES_A_END
#define TE__SHARES_B_END

#endif
