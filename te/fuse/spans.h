/* spans.h -- the marks of a list, (recompute, name) .. (end_recompute, name), become the plan's table of spans, or a
 * compile error that names the mistake. Knows only names; te/ops/recompute.h says what the marks mean.
 *
 * Everything here goes over TE_LINKS of the list with its marks in it; a list that has none is not gone over.
 */
#ifndef TE_FUSE_SPANS_H
#define TE_FUSE_SPANS_H

#include "../plan/model.h" /* te_span, TE_IS_FORK */
#include "plan.h"          /* TE_FOR, TE_JOIN4 */

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

#endif
