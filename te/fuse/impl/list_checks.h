/* list_checks.h -- the marks of a list, (recompute, name) .. (end_recompute, name), become the plan's table of spans,
 * or a compile error that names the mistake. Knows only names; te/ops/recompute.h says what the marks mean.
 *
 * Everything here goes over TE_LINKS of the list with its marks in it; a list that has none is not gone over.
 */
#ifndef TE_LIST_CHECKS_H
#define TE_LIST_CHECKS_H

#include "../../plan/model.h" /* te_recompute_region, TE_IS_FORK */
#include "matcher.h" /* TE_FOR, TE_JOIN4 */

/* TE_RECOMPUTE_TABLE(links): {"r1", first, last}, for each span. */
#define TE_RECOMPUTE_TABLE(links) TE_FOR(TE__RECOMPUTE_ENTRY, links)
#define TE__RECOMPUTE_ENTRY(model, before, op, after, live) TE_IF_MARKED(TE_JOIN1(TE_BEGINS_RECOMPUTE_, TE_KIND(op)), \
    TE__RECOMPUTE_ENTRY2, TE_NOTHING)(model, op)
#define TE__RECOMPUTE_ENTRY2(model, op)                                                                    \
    {TE_STRING(TE_NAME(op)), (int)TE__RECOMPUTE_OF(model, op, at),                                         \
     (int)TE_JOIN4(te_error_recompute_, TE_NAME(op), of, model, has_no_end_recompute_behind_it)},
#define TE__RECOMPUTE_ENTRY_A(...) TE__RECOMPUTE_ENTRY(__VA_ARGS__) TE__RECOMPUTE_ENTRY_B
#define TE__RECOMPUTE_ENTRY_B(...) TE__RECOMPUTE_ENTRY(__VA_ARGS__) TE__RECOMPUTE_ENTRY_A
#define TE__RECOMPUTE_ENTRY_A_END
#define TE__RECOMPUTE_ENTRY_B_END

/* TE_RECOMPUTE_CHECKS(model, links): constants for each op and mark, and what must hold of them.
 *     at      how many ops stand before the next one
 *     inside  the span that the next op stands in: its first op's index + 1; 0: in none
 *     head    1: nothing but forks stands between the mark and here, so the value is what the span begins with, which
 *     is
 *             kept; 2: an (input, ..), of which the caller keeps the value */
#define TE_RECOMPUTE_CHECKS(model, links)                                                         \
    enum { TE_FOR(TE__RECOMPUTE_ONCE, links) te_marks_of_##model };                               \
    enum { TE_JOIN4(, model, begin, begin, at), TE_JOIN4(, model, begin, begin, inside) = 0, \
        TE_JOIN4(, model, begin, begin, head) = 0 };                                         \
    TE_FOR(TE__RECOMPUTE_CHECK, links)
#define TE__RECOMPUTE_ONCE(model, before, op, after, live) \
    TE_IF_MARKED(TE_JOIN1(TE_IS_MARK_, TE_KIND(op)), TE__RECOMPUTE_ONCE2, TE_NOTHING)(model, op)
#define TE__RECOMPUTE_ONCE2(model, op) TE_JOIN5(te_error_, TE_KIND(op), TE_NAME(op), of, model, is_there_twice),
#define TE__RECOMPUTE_ONCE_A(...) TE__RECOMPUTE_ONCE(__VA_ARGS__) TE__RECOMPUTE_ONCE_B
#define TE__RECOMPUTE_ONCE_B(...) TE__RECOMPUTE_ONCE(__VA_ARGS__) TE__RECOMPUTE_ONCE_A
#define TE__RECOMPUTE_ONCE_A_END
#define TE__RECOMPUTE_ONCE_B_END
#define TE__RECOMPUTE_OF(model, op, what) TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), what)
#define TE__RECOMPUTE_CHECK(model, before, op, after, live)                                                            \
    TE_IF_MARKED(TE_JOIN1(TE_IS_MARK_, TE_KIND(op)), TE_JOIN1(TE__RECOMPUTE_, TE_KIND(op)), TE__RECOMPUTE_OP)(model, before, op) \
    static_assert(TE_IF_MARKED(TE_JOIN1(TE_IS_MARK_, TE_KIND(op)), TE_COUNT_ARGS(TE_STRIP op), 2) <= 2,                \
        "te: " #model ": " TE_CALLED(op) " has more arguments than its kind takes");                                   \
    static_assert(!TE_IF_END(after, TE__RECOMPUTE_OF(model, op, inside), 0),                                           \
        "te: " #model ": the list ends inside a (recompute, ..)");
#define TE__RECOMPUTE_CHECK_A(...) TE__RECOMPUTE_CHECK(__VA_ARGS__) TE__RECOMPUTE_CHECK_B
#define TE__RECOMPUTE_CHECK_B(...) TE__RECOMPUTE_CHECK(__VA_ARGS__) TE__RECOMPUTE_CHECK_A
#define TE__RECOMPUTE_CHECK_A_END
#define TE__RECOMPUTE_CHECK_B_END

#define TE__RECOMPUTE_recompute(model, before, op)                                                                     \
    enum {                                                                                                             \
        TE__RECOMPUTE_OF(model, op, at) = TE__RECOMPUTE_OF(model, before, at),                                         \
        TE__RECOMPUTE_OF(model, op, inside) = TE__RECOMPUTE_OF(model, op, at) + 1,                                     \
        TE__RECOMPUTE_OF(model, op, head) = 1,                                                                         \
        TE_JOIN4(te_error_end_recompute_, TE_NAME(op), of, model, has_no_recompute_before_it) = TE__RECOMPUTE_OF(model, \
            op, inside)                                                                                                \
    };                                                                                                                 \
    static_assert((int)TE__RECOMPUTE_OF(model, before, inside) == 0,                                                   \
                  "te: " TE_STRING(model) ": (recompute, " TE_STRING(TE_NAME(op))                                      \
                      ") stands inside another one; spans do not nest");
#define TE__RECOMPUTE_end_recompute(model, before, op)                                                          \
    enum {                                                                                                      \
        TE__RECOMPUTE_OF(model, op, at) = TE__RECOMPUTE_OF(model, before, at),                                  \
        TE__RECOMPUTE_OF(model, op, inside) = 0,                                                                \
        TE__RECOMPUTE_OF(model, op, head) = 0,                                                                  \
        TE_JOIN4(te_error_recompute_, TE_NAME(op), of, model, has_no_end_recompute_behind_it) =                 \
            (int)TE__RECOMPUTE_OF(model, op, at) - 1                                                            \
    };                                                                                                          \
    static_assert((int)TE_JOIN4(te_error_end_recompute_, TE_NAME(op), of, model, has_no_recompute_before_it) == \
        (int)TE__RECOMPUTE_OF(model, before, inside),                                                           \
                  "te: " TE_STRING(model) ": (end_recompute, " TE_STRING(TE_NAME(op))                           \
                      ") does not close the (recompute, ..) that is open");                                     \
    static_assert((int)TE__RECOMPUTE_OF(model, before, inside) <= (int)TE__RECOMPUTE_OF(model, before, at),     \
                  "te: " TE_STRING(model) ": (recompute, " TE_STRING(TE_NAME(op)) ") holds no op");             \
    static_assert(!(TE_FLAGS(before) & (TE_IS_FORK | TE_IS_LOAD)),                                              \
                  "te: " TE_STRING(model) ": (" TE_STRING(TE_KIND(before)) ", " TE_STRING(TE_NAME(before))      \
                      ") must not end (recompute, " TE_STRING(TE_NAME(op)) "); it goes behind the mark");
#define TE__RECOMPUTE_OP(model, before, op)                                                                \
    enum {                                                                                            \
        TE__RECOMPUTE_OF(model, op, at) = TE__RECOMPUTE_OF(model, before, at) + 1,                              \
        TE__RECOMPUTE_OF(model, op, inside) = TE__RECOMPUTE_OF(model, before, inside),                          \
        TE__RECOMPUTE_OF(model, op, head) = !(TE_FLAGS(op) & TE_IS_FORK) ? 0                               \
                                       : (int)TE__RECOMPUTE_OF(model, before, head) == 1 ? 1               \
                                       : TE_FLAGS(op) & TE_IS_INPUT ? 2 : 0                           \
    };                                                                                                \
    TE_IF_MARKED(TE_JOIN1(TE_RECOMPUTE_CHECKED_, TE_FAMILY(op)), TE_JOIN1(TE__RECOMPUTE_CHECK_, TE_FAMILY(op)), \
        TE_NOTHING)(model, op)

/* Families that a span does not take as it takes the others: TE_RECOMPUTE_CHECKED_<family> is a comma. */
#define TE_RECOMPUTE_CHECKED_add ,
#define TE_RECOMPUTE_CHECKED_mul ,
#define TE_RECOMPUTE_CHECKED_load ,
#define TE_RECOMPUTE_CHECKED_cross_attention ,
#define TE__RECOMPUTE_CHECK_mul TE__RECOMPUTE_CHECK_add
#define TE__RECOMPUTE_CHECK_load TE__RECOMPUTE_CHECK_add
#define TE__RECOMPUTE_CHECK_cross_attention TE__RECOMPUTE_CHECK_add
#define TE__RECOMPUTE_CHECK_add(model, op)                                                                             \
    static_assert((int)TE_JOIN4(, model, fork, TE_FORK_OF(op), inside) == 0                                            \
        || (int)TE_JOIN4(, model, fork, TE_FORK_OF(op), head) != 0 ||                                                  \
                      (int)TE_JOIN4(, model, fork, TE_FORK_OF(op), inside) == (int)TE__RECOMPUTE_OF(model, op, inside), \
                  "te: " TE_STRING(model) ": (fork, " TE_STRING(TE_FORK_OF(op)) ") stands in a (recompute, ..), "      \
                      TE_CALLED(op) " behind it; begin the span with the fork, or take both in");
#define TE_RECOMPUTE_CHECKED_output ,
#define TE__RECOMPUTE_CHECK_output(model, op)                                       \
    static_assert((int)TE__RECOMPUTE_OF(model, op, inside) == 0,                    \
                  "te: " TE_STRING(model) ": (output, " TE_STRING(TE_NAME(op)) \
                      ") must not stand in a (recompute, ..): backward would write it again");
#define TE_RECOMPUTE_CHECKED_cross_entropy ,
#define TE__RECOMPUTE_CHECK_cross_entropy(model, op)                                       \
    static_assert((int)TE__RECOMPUTE_OF(model, op, inside) == 0,                           \
                  "te: " TE_STRING(model) ": (cross_entropy, " TE_STRING(TE_NAME(op)) \
                      ") must not stand in a (recompute, ..): backward would write the loss again");

/* list_checks.h -- what each rank of a tensor group has of the values of a list (te_rank_layout), and whether the ops
 * can work with that: tensor and sequence parallelism with a mistake in it does not compile.
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
 * At the begin of a list nothing is known, and everything may follow. A family says TE_LAYOUT_<family>(op, in), what
 * its output is, and TE_LAYOUT_FITS_<family>(op, in), what it takes, where the defaults do not hold: it passes on what
 * it gets; one with parameters takes what all ranks have, one without them all but sums.
 */

#define TE_LAYOUT(op, in)        TE_TUPLE_OR(TE_FACT(LAYOUT, op)(op, in), (int)(in))

#define TE_LAYOUT_FITS(op, in) \
    ((int)(in) == (int)TE_LAYOUT_any || (TE_TUPLE_OR(TE_FACT(LAYOUT_FITS, op)(op, in), TE__LAYOUT_FITS(op, in))))
#define TE__LAYOUT_FITS(op, in) \
    ((int)(in) == (int)TE_LAYOUT_replicated || ((int)(in) != (int)TE_LAYOUT_partial_sum && !TE__HAS_PARAMS(op)))
#define TE__HAS_PARAMS(op) TE__HAS_PARAMS2(TE_UNWRAP(TE_PARAMS(op, 0, 0)))
#define TE__HAS_PARAMS2(...) TE_IF_END(TE_FIRST(__VA_ARGS__, ~), 0, 1)

/* The enumerators of an op: its own and, of a fork, that of what it keeps; what a load gives its fork has kept. */
#define TE__LAYOUTS(model, before, op, after, live)                                                                  \
    TE_LAYOUT_OUT(model, op) =                                                                                       \
        TE_IF_MARKED(TE_JOIN1(TE_LOADS_, TE_FAMILY(op)), TE__LOADED_layout, TE__BY_FACTS_layout)(model, before, op), \
    TE_IF_MARKED(TE_JOIN1(TE__FORK_HAS_LAYOUT_, TE_FAMILY(op)), TE__SET_FORK_LAYOUT, TE_NOTHING)(model, op)
#define TE__BY_FACTS_layout(model, before, op) TE_LAYOUT(op, TE_LAYOUT_OUT(model, before))
#define TE__LOADED_layout(model, before, op) TE_FORK_LAYOUT(model, TE_FORK_OF(op))
#define TE__FORK_HAS_LAYOUT_fork ,
#define TE__SET_FORK_LAYOUT(model, op) \
    TE_FORK_LAYOUT(model, TE_NAME(op)) = TE__IF_INPUT(op, (int)TE_LAYOUT_any, TE_LAYOUT_OUT(model, op)),
/* Its check. */
#define TE__CHECK_LAYOUT(model, before, op)                         \
    static_assert(TE_LAYOUT_FITS(op, TE_LAYOUT_OUT(model, before)), \
                  "te: " TE_STRING(model) ": " TE_CALLED(op)        \
                      " does not fit what each rank of a group has of its input (te/fuse/impl/list_checks.h)");
#define TE__LAYOUTS_A(...) TE__LAYOUTS(__VA_ARGS__) TE__LAYOUTS_B
#define TE__LAYOUTS_B(...) TE__LAYOUTS(__VA_ARGS__) TE__LAYOUTS_A
#define TE__LAYOUTS_A_END
#define TE__LAYOUTS_B_END

#endif
