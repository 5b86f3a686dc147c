/* list_checks.h -- three checks of a list at compile time: that the names and widths of its ops fit together, that the
 * marks of its recompute regions are in valid places, and that each op accepts the layout which its input has over the
 * ranks of a tensor group.
 *
 * The marks (recompute, name) .. (end_recompute, name) also become the plan's table of recompute regions
 * (te/ops/recompute.h says what the regions mean). The macros for the marks take `links`, the result of TE_LINKS
 * (matcher.h) for the list with its marks. For a list without marks, `links` is empty, and the macros expand to no
 * table entries and no checks.
 */
#ifndef TE_LIST_CHECKS_H
#define TE_LIST_CHECKS_H
#if defined __GNUC__ && !defined __clang__ && !defined __CUDACC__ && !defined TE_LIST_WARNINGS
#pragma GCC system_header
#endif

#include "../../plan/model.h" /* te_recompute_region, TE_IS_FORK */
#include "matcher.h" /* TE_FOR, TE_JOIN4 */

/* ---- names and widths -------------------------------------------------------------------------------------------- */

/* TE_NAME_CHECKS(widths, model, of, links) is expanded before everything else that a list declares. The macro checks
 * that the ops have different names, that a fork stands before the ops that use it, and that each op takes the width
 * which the op before it produces. Only the first mistake is reported, with the names of the list and of the op.
 *
 * The checks are static_asserts in a function that is never called. Each op opens a nested block with enumerators of
 * its own, because an inner block may declare a name anew, which at file scope would be an error:
 *     te_ok                 1: no mistake has been found so far
 *     te_width              the width of the value behind the op
 *     te_name_.., te_fork_.., te_member_..
 *                           the names of ops, of forks, and of members of the model's struct. At file scope each name
 *                           is declared as a char. The block of the op that has the name declares the name anew as an
 *                           enumerator, whose size is that of an int. Therefore sizeof(name) is 1 as long as no op
 *                           has the name. A fork's enumerator is the width of its value.
 * In clang and g++ the first mistake ends the compilation: in clang by a warning with a custom text (diagnose_if),
 * which a pragma makes fatal; in g++ by a template whose recursion gets too deep. gcc and nvcc continue, and may report
 * further errors that follow from the mistake. */
#define TE_NAME_CHECKS(widths, model, of, links)                                                                \
    TE_FOR(TE__NAMES, links) TE__STOP_BEGIN                                                                     \
    TE_UNUSED static void te_names_of_##model(void) {                                                           \
        enum {                                                                                                  \
            model##_takes_dims = TE__TAKES_DIMS_##widths,                                                       \
            te_option = TE_OPTION(of, width, TE__NO_WIDTH),                                                     \
            te_first = (int)te_option != (int)TE__NO_WIDTH ? (int)te_option : TE_FOR(TE__FIRST_WIDTH, links) 0, \
            te_ok = 1,                                                                                          \
            te_width = te_first                                                                                 \
        };                                                                                                      \
        TE_FOR(TE__OPEN_BLOCK, links)                                                                           \
        TE__STOP_ASSERT(!te_ok || TE_IS_WIDTH(model, (int)te_first),                                            \
                      "te: " #model ": the first width must be positive" TE__OR_DIM_##widths)                   \
        TE__STOP_UNLESS(te_ok && TE_IS_WIDTH(model, (int)te_first))                                             \
        TE_FOR(TE__CLOSE_BLOCK, links)                                                                          \
    }                                                                                                           \
    TE__STOP_END TE__NEW_LINE
#define TE__NAME_OF(model, op) TE_JOIN4(te_name_, TE_FAMILY(op), TE_NAME(op), of, model)
#define TE__MEMBER_OF(model, op) TE_JOIN3(te_member_, TE_NAME(op), of, model)
#define TE__FORK_NAMED(model, x) TE_JOIN3(te_fork_, x, of, model)
#define TE__NAMES(model, before, op, after, live)                \
    extern char TE__NAME_OF(model, op), TE__MEMBER_OF(model, op) \
        TE_IF_MARKED(TE_JOIN1(TE__USES_FORK_, TE_FAMILY(op)), TE__NAMES_OF_USE, TE_NOTHING)(model, op);
#define TE__NAMES_OF_USE(model, op) , TE__FORK_NAMED(model, TE_FORK_OF(op))
#define TE__NAMES_A(...) TE__NAMES(__VA_ARGS__) TE__NAMES_B
#define TE__NAMES_B(...) TE__NAMES(__VA_ARGS__) TE__NAMES_A
#define TE__NAMES_A_END
#define TE__NAMES_B_END
#define TE__OPEN_BLOCK(model, before, op, after, live)                                                               \
    {                                                                                                                \
        enum {                                                                                                       \
            te_in = te_width,                                                                                        \
            te_takes = TE_IN(op),                                                                                    \
            te_out = TE_IF_MARKED(TE_JOIN1(TE_LOADS_, TE_FAMILY(op)), TE__LOADED_OUT, TE__STATED_OUT)(model, op),    \
            te_ok1 = te_ok && sizeof(TE__NAME_OF(model, op)) == 1,                                                   \
            te_ok2 = te_ok1 && (sizeof(TE__MEMBER_OF(model, op)) == 1 || !TE__HAS_PARAMS(op)),                       \
            te_ok3 = te_ok2                                                                                          \
                TE_IF_MARKED(TE_JOIN1(TE__USES_FORK_, TE_FAMILY(op)), TE__HAS_FORK, TE_NOTHING)(model, op),          \
            te_ok4 = te_ok3 && ((int)te_takes == 0 || (int)te_takes == (int)te_in),                                  \
            te_ok5 = te_ok4 && (!TE_IS_DIM((int)te_out) || (int)TE_JOIN2(, model, takes_dims)),                      \
            te_ok6 = te_ok5 && TE_IS_WIDTH(model, (int)te_out),                                                      \
            te_ok7 = te_ok6 && (!TE__IS_CLASS(op, custom) ||                                                         \
                                TE_IF_MARKED(TE_JOIN1(TE_TAKES_DIMS_, TE_FAMILY(op)), 1, 0) ||                       \
                                ((int)te_in > 0 && (int)te_out > 0))                                                 \
        };                                                                                                           \
        TE__STOP_ASSERT((int)te_ok1 == (int)te_ok, "te: " #model ": " TE_CALLED(op)                                  \
            " has the name of an op before it; ops of the family " TE_STRING(TE_FAMILY(op)) " need different names") \
        TE__STOP_ASSERT((int)te_ok2 == (int)te_ok1, "te: " #model ": " TE_CALLED(op)                                 \
            " has the name of an op before it; two ops with parameters need different names")                        \
        TE__STOP_ASSERT((int)te_ok3 == (int)te_ok2, "te: " #model ": " TE_CALLED(op)                                 \
            " has no (fork, " TE_STRING(TE_FORK_OF(op)) ") or (input, " TE_STRING(TE_FORK_OF(op)) ", ..) before it") \
        TE__STOP_ASSERT((int)te_ok4 == (int)te_ok3, "te: " #model ": " TE_CALLED(op)                                 \
            " does not take the width that " TE__PRODUCER_NAME(before) " produces")                                  \
        TE__STOP_ASSERT((int)te_ok5 == (int)te_ok4, "te: " #model ": " TE_CALLED(op)                                 \
            " has a width that is known only at run time, which takes TE_SEQUENTIAL_DIMS")                           \
        TE__STOP_ASSERT((int)te_ok6 == (int)te_ok5, "te: " #model ": " TE_CALLED(op) " has no "                      \
            TE_IF_MARKED(TE_JOIN1(TE_STATES_OUT_, TE_FAMILY(op)), TE__NO_OUT, TE__NO_IN)(op))                        \
        TE__STOP_ASSERT((int)te_ok7 == (int)te_ok6, "te: " #model ": " TE_CALLED(op)                                 \
            " takes no width that is known only at run time")                                                        \
        enum {                                                                                                       \
            te_ok = te_ok7,                                                                                          \
            te_width = te_out,                                                                                       \
            TE__IF_FORK(op, TE__FORK_SEEN, TE_NOTHING)(model, op)                                                    \
            TE_IF_MARKED(TE__HAS_PARAMS_MARK(op), TE__MEMBER_SEEN, TE_NOTHING)(model, op)                            \
            TE__NAME_OF(model, op)                                                                                   \
        };                                                                                                           \
        TE__NEW_LINE
#define TE__STATED_OUT(model, op) TE_OUT(op, te_in)
#define TE__LOADED_OUT(model, op) \
    TE__CHOOSE(sizeof(TE__FORK_NAMED(model, TE_FORK_OF(op))) == 1, te_in, TE__FORK_NAMED(model, TE_FORK_OF(op)))
#define TE__HAS_FORK(model, op) && sizeof(TE__FORK_NAMED(model, TE_FORK_OF(op))) != 1
#define TE__FORK_SEEN(model, op) TE__FORK_NAMED(model, TE_NAME(op)) = TE__IF_INPUT(op, TE_ARG1(op, 0), te_out),
#define TE__MEMBER_SEEN(model, op) TE__MEMBER_OF(model, op),
#define TE__NO_OUT(op) \
    "output width: (" TE_STRING(TE_KIND(op)) ", " TE_STRING(TE_NAME(op)) ", in, out); a width is positive"
#define TE__NO_IN(op) "width; a list may name its own, (f32, (width, 768))"
#define TE__OPEN_BLOCK_A(...) TE__OPEN_BLOCK(__VA_ARGS__) TE__OPEN_BLOCK_B
#define TE__OPEN_BLOCK_B(...) TE__OPEN_BLOCK(__VA_ARGS__) TE__OPEN_BLOCK_A
#define TE__OPEN_BLOCK_A_END
#define TE__OPEN_BLOCK_B_END
#define TE__CLOSE_BLOCK(model, before, op, after, live) }
#define TE__CLOSE_BLOCK_A(...) } TE__CLOSE_BLOCK_B
#define TE__CLOSE_BLOCK_B(...) } TE__CLOSE_BLOCK_A
#define TE__CLOSE_BLOCK_A_END
#define TE__CLOSE_BLOCK_B_END
/* TE__CHOOSE is the constant `yes` if the constant `which` is not 0, else the constant `no`. The value that is not
 * chosen need not be a constant. */
#ifdef __cplusplus
#define TE__CHOOSE(which, yes, no) ((which) ? (int)(yes) : (int)(no))
#else
#define TE__CHOOSE(which, yes, no) __builtin_choose_expr(which, yes, no)
#endif
/* TE__STOP_ASSERT(cond, text) is a static_assert within a function; in clang its failure ends the compilation.
 * TE__STOP_UNLESS(ok) ends the compilation in g++ if the constant `ok` is 0. With -DTE_ALL_ERRORS, neither of the two
 * macros ends the compilation. */
#if defined __clang__ && !defined TE_ALL_ERRORS
#define TE__STOP_BEGIN                                                                                    \
    _Pragma("clang diagnostic push") _Pragma("clang diagnostic ignored \"-Wgcc-compat\"")                  \
    _Pragma("clang diagnostic fatal \"-Wuser-defined-warnings\"")
#define TE__STOP_END _Pragma("clang diagnostic pop")
#define TE__STOP_ASSERT(cond, text)                                                                       \
    {                                                                                                     \
        extern void te_stop(void) __attribute__((diagnose_if(!(cond), text, "warning")));                 \
        te_stop();                                                                                        \
    }                                                                                                     \
    static_assert(cond, text); /* also needed, because clang hides the warning of diagnose_if in system headers */
#define TE__STOP_UNLESS(ok)
#elif defined __cplusplus && !TE_CUDA && !defined TE_ALL_ERRORS
template <bool ok, int depth> struct te__end_of_compilation {
    enum { value = te__end_of_compilation<ok, depth + 1>::value };
};
template <int depth> struct te__end_of_compilation<true, depth> { enum { value = 0 }; };
#define TE__STOP_UNLESS(ok) enum { te_stop = te__end_of_compilation<(ok), 0>::value };
#else
#define TE__STOP_UNLESS(ok)
#endif
#ifndef TE__STOP_ASSERT
#define TE__STOP_BEGIN
#define TE__STOP_END
#define TE__STOP_ASSERT(cond, text) static_assert(cond, text);
#endif
/* With each error, nvcc prints the whole line of preprocessed text, and a list expands to a single very long line. nvcc
 * prints less after a pragma, because the pragma begins a new line. */
#if TE_CUDA
#define TE__NEW_LINE _Pragma("GCC diagnostic ignored \"-Wshadow\"")
#else
#define TE__NEW_LINE
#endif

/* ---- recompute regions ------------------------------------------------------------------------------------------- */

/* TE_RECOMPUTE_TABLE(links) expands, for each recompute region of the list, to the initialiser {name, first, last} of a
 * te_recompute_region; first and last are the indices of the region's first and last op. */
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

/* TE_RECOMPUTE_CHECKS(model, links) expands to static_asserts about recompute regions. The static_asserts compare three
 * enumerators that each op and each mark has:
 *     at      the index of the next op
 *     inside  1 + the index of the first op of the recompute region in which the next op lies; 0: it lies in no region
 *     head    1: this is a (recompute, ..), or a fork with only forks between it and the preceding (recompute, ..). The
 *                value of such a fork is the input of the region, which is saved.
 *             2: this is an (input, ..), whose value is in the caller's memory and need not be saved
 *             0: neither */
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
    TE_IF_MARKED(TE_JOIN1(TE_IS_MARK_, TE_KIND(op)), TE_JOIN1(TE__RECOMPUTE_, TE_KIND(op)),                            \
        TE__RECOMPUTE_OP)(model, before, op)                                                                           \
    static_assert(TE_IF_MARKED(TE_JOIN1(TE_IS_MARK_, TE_KIND(op)), TE_COUNT_ARGS(TE_STRIP op), 2) <= 2,                \
        "te: " #model ": " TE_CALLED(op) " has more arguments than its kind takes");                                   \
    static_assert(!TE_IF_END(after, TE__RECOMPUTE_OF(model, op, inside), 0),                                           \
        "te: " #model ": the list ends inside a (recompute, ..)");
#define TE__RECOMPUTE_CHECK_A(...) TE__RECOMPUTE_CHECK(__VA_ARGS__) TE__RECOMPUTE_CHECK_B
#define TE__RECOMPUTE_CHECK_B(...) TE__RECOMPUTE_CHECK(__VA_ARGS__) TE__RECOMPUTE_CHECK_A
#define TE__RECOMPUTE_CHECK_A_END
#define TE__RECOMPUTE_CHECK_B_END

#define TE__RECOMPUTE_recompute(model, before, op)                                              \
    enum {                                                                                      \
        TE__RECOMPUTE_OF(model, op, at) = TE__RECOMPUTE_OF(model, before, at),                  \
        TE__RECOMPUTE_OF(model, op, inside) = TE__RECOMPUTE_OF(model, op, at) + 1,              \
        TE__RECOMPUTE_OF(model, op, head) = 1,                                                  \
        TE_JOIN4(te_error_end_recompute_, TE_NAME(op), of, model, has_no_recompute_before_it) = \
            TE__RECOMPUTE_OF(model, op, inside)                                                 \
    };                                                                                          \
    static_assert((int)TE__RECOMPUTE_OF(model, before, inside) == 0,                            \
                  "te: " TE_STRING(model) ": (recompute, " TE_STRING(TE_NAME(op))               \
                      ") stands inside another one; recompute regions do not nest");
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

/* Additional checks for the families for which TE_RECOMPUTE_CHECKED_<family> is #defined as a comma. If a fork lies in
 * a recompute region, an op that uses the fork's value must lie in the same region, because the value is lost when the
 * region is closed. The op may lie elsewhere if the value stays in memory anyway: if the value is the region's saved
 * input, or the caller's tensor for an (input, ..). */
#define TE_RECOMPUTE_CHECKED_add ,
#define TE_RECOMPUTE_CHECKED_mul ,
#define TE_RECOMPUTE_CHECKED_load ,
#define TE_RECOMPUTE_CHECKED_cross_attention ,
#define TE_RECOMPUTE_CHECKED_concat ,
#define TE_RECOMPUTE_CHECKED_modulate ,
#define TE__RECOMPUTE_CHECK_mul TE__RECOMPUTE_CHECK_add
#define TE__RECOMPUTE_CHECK_load TE__RECOMPUTE_CHECK_add
#define TE__RECOMPUTE_CHECK_cross_attention TE__RECOMPUTE_CHECK_add
#define TE__RECOMPUTE_CHECK_concat TE__RECOMPUTE_CHECK_add
#define TE__RECOMPUTE_CHECK_modulate TE__RECOMPUTE_CHECK_add
#define TE__RECOMPUTE_CHECK_add(model, op)                                                                             \
    static_assert((int)TE_JOIN4(, model, fork, TE_FORK_OF(op), inside) == 0                                            \
        || (int)TE_JOIN4(, model, fork, TE_FORK_OF(op), head) != 0 ||                                                  \
            (int)TE_JOIN4(, model, fork, TE_FORK_OF(op), inside) == (int)TE__RECOMPUTE_OF(model, op, inside),          \
                  "te: " TE_STRING(model) ": (fork, " TE_STRING(TE_FORK_OF(op)) ") stands in a (recompute, ..), "      \
                      TE_CALLED(op) " behind it; begin the region with the fork, or take both in");
/* Check a combine and its router. The choices of a router that is in a recompute region are in memory only while the
 * region is open, so the combine must be in the same region. */
#define TE_RECOMPUTE_CHECKED_combine ,
#define TE__RECOMPUTE_CHECK_combine(model, op)                                                                         \
    static_assert((int)TE_JOIN4(, model, router, TE_FORK_OF(op), inside) == 0 ||                                       \
                      (int)TE_JOIN4(, model, router, TE_FORK_OF(op), inside) ==                                        \
                          (int)TE__RECOMPUTE_OF(model, op, inside),                                                    \
                  "te: " TE_STRING(model) ": (router, " TE_STRING(TE_FORK_OF(op))                                      \
                      ", ..) stands in a (recompute, ..) that ends in front of " TE_CALLED(op));
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

/* ---- layouts over ranks ------------------------------------------------------------------------------------------ */

/* The macros below find the layout that the output of each op has over the ranks of a tensor group (te_rank_layout),
 * and check that the next op accepts this layout. Therefore a mistake in tensor or sequence parallelism is a
 * compile-time error.
 *
 *     (f32, (rows, shard)), (rmsnorm, ln, H), (all_gather, g),       // each rank has its own tokens
 *     (linear, fc1, H, F / N, (shard, columns)), (gelu, act), (linear, fc2, F / N, H, (shard, rows)),
 *     (reduce_scatter, s), ...
 *
 *   The output of                                  has the layout               which these ops accept
 *   all_gather, copy_to_group                      partial_grad                 linears (shard, columns), ops without
 *                                                                               parameters
 *   (linear, .., (shard, columns))                 columns                      bias, mul_param, head_norm, maps,
 *                                                                               attention, linears (shard, rows),
 *                                                                               (cross_entropy, .., (ranks, N))
 *   (linear, .., (shard, rows)),                   partial_sum                  reduce_scatter, all_reduce
 *   (embedding, .., (ranks, N))
 *   reduce_scatter, all_reduce                     replicated                   everything else
 *
 * The layout of x, the list's input, is TE_LAYOUT_any, which every op accepts. A family can replace two defaults:
 *     the output of an op has the same layout as its input    TE_LAYOUT_<family>(op, in) states another layout
 *     an op with parameters accepts only replicated inputs;   TE_LAYOUT_FITS_<family>(op, in) states whether the op
 *     an op without parameters accepts all but partial sums   accepts an input with the layout `in` */

#define TE_LAYOUT(op, in)        TE_TUPLE_OR(TE_FACT(LAYOUT, op)(op, in), (int)(in))

#define TE_LAYOUT_FITS(op, in) \
    ((int)(in) == (int)TE_LAYOUT_any || (TE_TUPLE_OR(TE_FACT(LAYOUT_FITS, op)(op, in), TE__LAYOUT_FITS(op, in))))
#define TE__LAYOUT_FITS(op, in) \
    ((int)(in) == (int)TE_LAYOUT_replicated || ((int)(in) != (int)TE_LAYOUT_partial_sum && !TE__HAS_PARAMS(op)))
#define TE__HAS_PARAMS(op) TE__HAS_PARAMS2(TE_UNWRAP(TE_PARAMS(op, 0, 0)))
#define TE__HAS_PARAMS2(...) TE_IF_END(TE_FIRST(__VA_ARGS__, ~), 0, 1)
#define TE__HAS_PARAMS_MARK(op) TE_JOIN1(TE__MARK_OF_, TE__HAS_PARAMS(op))
#define TE__MARK_OF_1 ,

/* For each op, the enumerator for the layout of the op's output and, if the op is a fork, the enumerator for the layout
 * of the fork's value. The output of a load has the layout of the fork's value. */
#define TE__LAYOUTS(model, before, op, after, live)                                                                  \
    TE_LAYOUT_OUT(model, op) =                                                                                       \
        TE_IF_MARKED(TE_JOIN1(TE_LOADS_, TE_FAMILY(op)), TE__LOADED_layout, TE__BY_FACTS_layout)(model, before, op), \
    TE_IF_MARKED(TE_JOIN1(TE__FORK_HAS_LAYOUT_, TE_FAMILY(op)), TE__SET_FORK_LAYOUT, TE_NOTHING)(model, op)
#define TE__BY_FACTS_layout(model, before, op) TE_LAYOUT(op, TE_LAYOUT_OUT(model, before))
#define TE__LOADED_layout(model, before, op) TE_FORK_LAYOUT(model, TE_FORK_OF(op))
#define TE__FORK_HAS_LAYOUT_fork ,
#define TE__SET_FORK_LAYOUT(model, op) \
    TE_FORK_LAYOUT(model, TE_NAME(op)) = TE__IF_INPUT(op, (int)TE_LAYOUT_any, TE_LAYOUT_OUT(model, op)),
/* Check that the op `op` accepts the layout of its input, which is the output of the op `before`. */
#define TE__CHECK_LAYOUT(model, before, op)                         \
    static_assert(TE_LAYOUT_FITS(op, TE_LAYOUT_OUT(model, before)), \
                  "te: " TE_STRING(model) ": " TE_CALLED(op)        \
                      " does not take the layout of its input over the ranks of a group, or its input lacks " \
                      "rows that a router has dropped (te/fuse/impl/list_checks.h)");
#define TE__LAYOUTS_A(...) TE__LAYOUTS(__VA_ARGS__) TE__LAYOUTS_B
#define TE__LAYOUTS_B(...) TE__LAYOUTS(__VA_ARGS__) TE__LAYOUTS_A
#define TE__LAYOUTS_A_END
#define TE__LAYOUTS_B_END

#endif
