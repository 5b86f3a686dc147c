/* matcher.h -- preprocessor macros that turn a list of ops into a plan: a sequence of steps, each of which is one op or
 * several fused ops. The patterns of the fusion list (fusions.h) say which ops are fused. The macros compare names and
 * know nothing else about the ops.
 *
 * Do this:
 *     #define TE_OP_linear (linear, gemm)            // registers a kind: linear is of family linear and class gemm
 *     #define TE_OP_bias (bias, map)
 *     #define TE_OP_gelu (act, map)                  // gelu is of family act, like every activation
 *     #define TE_FORWARD_linear_bias_act TE_FUSED    // a pattern of the list TE_FORWARD_: families joined by _
 *     TE_PLAN(TE_FORWARD_, (ctx), (linear, fc1, 8, 32), (bias, b1, 32), (gelu, act), (linear, fc2, 32, 8))
 * The last line expands to two steps. Each is a tuple of (ctx) and the ops of the step:
 *     ((ctx), (linear, fc1, 8, 32), (bias, b1, 32), (gelu, act)) ((ctx), (linear, fc2, 32, 8))
 * The caller chooses the tuple (ctx), which is copied into every step. TE_FOR(M, steps) then expands a macro M for
 * each step: M((ctx), (linear, fc1, 8, 32), ..) M((ctx), (linear, fc2, 32, 8)).
 *
 * At each op the longest matching pattern wins; if none matches, the op is a step of its own. Patterns consist of
 * families, not of kinds, so that one pattern serves all activations.
 *
 * Parameters below: `list` or l is the prefix of the fusion list's patterns (TE_FORWARD_ above); ctx is the tuple that
 * is copied into every step; a, b, .. are ops.
 */
#ifndef TE_MATCHER_H
#define TE_MATCHER_H
#if defined __GNUC__ && !defined __clang__ && !defined __CUDACC__ && !defined TE_LIST_WARNINGS
#pragma GCC system_header
#endif

#include "../../plan/op_list.h" /* TE_KIND, TE_FAMILY, TE_IF_MARKED, TE_JOIN8 */

#define TE_FUSED ,             /* the value of each pattern's macro: a comma, which TE_IF_MARKED detects */

/* ---- lists ---------------------------------------------------------------------------------------------------- */

/* A macro cannot expand itself. A recursive macro M is therefore written as follows: where M would call itself, it
 * leaves the text M_ TE_PARENS instead, and M_() is #defined as M. Each time TE_EVAL scans the text, M_ TE_PARENS
 * becomes M and expands once more. TE_EVAL scans the text more than 127 times. This suffices, because recursion over a
 * list needs one scan for each op, and a list has at most 96 ops (TE_MAX_OPS). */
#define TE_EVAL(...)  TE_EVAL3(TE_EVAL3(TE_EVAL3(TE_EVAL3(TE_EVAL3(TE_EVAL3(__VA_ARGS__))))))
#define TE_EVAL3(...) TE_EVAL2(TE_EVAL2(TE_EVAL2(TE_EVAL2(__VA_ARGS__))))
#define TE_EVAL2(...) TE_EVAL1(TE_EVAL1(TE_EVAL1(TE_EVAL1(__VA_ARGS__))))
#define TE_EVAL1(...) __VA_ARGS__
#define TE_PARENS ()

/* ---- recursion over a list: the result is a sequence of tuples, or a list -------------------------------------- */

#define TE_ENDS (end, ~), (end, ~), (end, ~), (end, ~), (end, ~), (end, ~), (end, ~), (end, ~), (end, ~)
#define TE_STOP(...)

/* TE_PLAN(list, ctx, ops...) expands to the plan of these ops: a sequence of steps, each a tuple (ctx, ops...). `list`
 * is the prefix of the patterns' names, such as TE_FORWARD_; `ctx` is a tuple that the caller chooses, which is copied
 * into every step. */
#define TE_PLAN(l, ctx, ...) TE_PLAN_(l, ctx, __VA_ARGS__, TE_ENDS)
#define TE_PLAN_(...) TE_EVAL(TE_MATCH_NEXT(__VA_ARGS__))
#define TE_MATCH_NEXT(l, ctx, ...) TE_JOIN1(TE_TAKE, TE_MATCH_AT(l, __VA_ARGS__))(l, ctx, __VA_ARGS__)
/* TE_MATCH_AT(list, ops...) expands to the number of ops in the step that begins with the first of these ops. The
 * number is 0 if that first op is a mark, (recompute, ..) or (end_recompute, ..), because no step contains marks. */
#define TE_MATCH_AT(...) TE_MATCH_AT_(__VA_ARGS__)
#define TE_MATCH_AT_(l, a, b, c, d, e, f, g, h, ...)                                                          \
    TE_MATCH(l, TE_FAMILY(a), TE_FAMILY(b), TE_FAMILY(c), TE_FAMILY(d), TE_FAMILY(e), TE_FAMILY(f),            \
             TE_FAMILY(g), TE_FAMILY(h))
#define TE_MATCH(...) TE_MATCH_(__VA_ARGS__)
#define TE_MATCH_(l, a, b, c, d, e, f, g, h)                                                                  \
    TE_IF_MARKED(l##a##_##b##_##c##_##d##_##e##_##f##_##g##_##h, 8,                                            \
    TE_IF_MARKED(l##a##_##b##_##c##_##d##_##e##_##f##_##g, 7,                                                  \
    TE_IF_MARKED(l##a##_##b##_##c##_##d##_##e##_##f, 6,                                                        \
    TE_IF_MARKED(l##a##_##b##_##c##_##d##_##e, 5,                                                              \
    TE_IF_MARKED(l##a##_##b##_##c##_##d, 4,                                                                    \
    TE_IF_MARKED(l##a##_##b##_##c, 3,                                                                          \
    TE_IF_MARKED(l##a##_##b, 2,                                                                                \
    TE_IF_MARKED(TE_IS_MARK_##a, 0, 1))))))))
#define TE_TAKE0(l, ctx, a, z, ...) TE_GO_ON(l, ctx, z, __VA_ARGS__)
#define TE_TAKE1(l, ctx, a, z, ...) (ctx, a) TE_GO_ON(l, ctx, z, __VA_ARGS__)
#define TE_TAKE2(l, ctx, a, b, z, ...) (ctx, a, b) TE_GO_ON(l, ctx, z, __VA_ARGS__)
#define TE_TAKE3(l, ctx, a, b, c, z, ...) (ctx, a, b, c) TE_GO_ON(l, ctx, z, __VA_ARGS__)
#define TE_TAKE4(l, ctx, a, b, c, d, z, ...) (ctx, a, b, c, d) TE_GO_ON(l, ctx, z, __VA_ARGS__)
#define TE_TAKE5(l, ctx, a, b, c, d, e, z, ...) (ctx, a, b, c, d, e) TE_GO_ON(l, ctx, z, __VA_ARGS__)
#define TE_TAKE6(l, ctx, a, b, c, d, e, f, z, ...) (ctx, a, b, c, d, e, f) TE_GO_ON(l, ctx, z, __VA_ARGS__)
#define TE_TAKE7(l, ctx, a, b, c, d, e, f, g, z, ...) (ctx, a, b, c, d, e, f, g) TE_GO_ON(l, ctx, z, __VA_ARGS__)
#define TE_TAKE8(l, ctx, a, b, c, d, e, f, g, h, z, ...) (ctx, a, b, c, d, e, f, g, h) TE_GO_ON(l, ctx, z, __VA_ARGS__)
#define TE_GO_ON(l, ctx, z, ...) TE_IF_END(z, TE_STOP, TE_MATCH_REST)(l, ctx, z, __VA_ARGS__)
#define TE_MATCH_REST(...) TE_MATCH_NEXT_ TE_PARENS (__VA_ARGS__)
#define TE_MATCH_NEXT_() TE_MATCH_NEXT

/* TE_PLAN_BESIDE(list, ctx, shared, (ops of forward...), ops of inference...) expands to the steps of TE_PLAN(list,
 * ctx, ops of inference...), with one difference: if forward has a step with exactly the same ops, the inference step
 * gets the tuple `shared` instead of ctx. The inference step then uses the kernels of the forward step, so fewer
 * kernels are compiled.
 *
 * To find these steps, the macros go through both lists at once, one step of each at a time. They count the ops of
 * forward's step that inference also has, i.e. all but training ops (dropout) and marks. They compare this number,
 * `live`, with the number of ops in inference's step. There are three cases:
 *     live is 0              skip forward's step (TE_PAIR_SKIP)
 *     the numbers are equal  both steps have the same ops, since both begin at the same op. Take inference's step, with
 *                            `shared` if forward's step has no training ops, else with ctx (TE_PAIR_TAKE)
 *     the numbers differ     this step of inference and all later ones get ctx; forward is ignored (TE_PAIR_PART)
 * Parameters of the macros:
 *     x, s        ctx and shared
 *     f, i        the ops that remain in the list of forward and in that of inference, each in parentheses
 *     of_f, of_i  the number of ops in the next step of forward and of inference
 *     live        how many ops of the next step of forward also exist in inference */
#define TE_PLAN_BESIDE(l, ctx, shared, list, ...) \
    TE_EVAL(TE_PAIR(l, ctx, shared, (TE_UNWRAP(list), TE_ENDS), (__VA_ARGS__, TE_ENDS)))
#define TE_PAIR(l, x, s, f, i) TE_IF_END(TE_FIRST(TE_STRIP i, ~), TE_STOP, TE_PAIR1)(l, x, s, f, i)
#define TE_PAIR1(l, x, s, f, i) TE_PAIR2(l, x, s, f, i, TE_MATCH_AT(l, TE_STRIP f), TE_MATCH_AT(l, TE_STRIP i))
#define TE_PAIR2(...) TE_PAIR3(__VA_ARGS__)
#define TE_PAIR3(l, x, s, f, i, of_f, of_i) TE_PAIR4(l, x, s, i, of_i, TE_TAKEN##of_f f)
#define TE_PAIR4(...) TE_PAIR5(__VA_ARGS__)
#define TE_PAIR5(l, x, s, i, of_i, step, f) TE_PAIR6(l, x, s, i, of_i, f, TE_OP_COUNT step, TE_LIVE_COUNT step)
#define TE_PAIR6(...) TE_PAIR7(__VA_ARGS__)
#define TE_PAIR7(l, x, s, i, of_i, f, of_f, live)                                                              \
    TE_IF_MARKED(TE_SAME_##live##_0, TE_PAIR_SKIP, TE_IF_MARKED(TE_SAME_##live##_##of_i, TE_PAIR_TAKE, TE_PAIR_PART)) \
    (l, x, s, f, i, of_i, TE_IF_MARKED(TE_SAME_##live##_##of_f, s, x))
#define TE_PAIR_SKIP(l, x, s, f, i, of_i, ctx) TE_PAIR_ TE_PARENS (l, x, s, f, i)
#define TE_PAIR_PART(l, x, s, f, i, of_i, ctx) TE_MATCH_NEXT_ TE_PARENS (l, x, TE_STRIP i)
#define TE_PAIR_TAKE(l, x, s, f, i, of_i, ctx) TE_PAIR_TAKE2(l, x, s, f, ctx, TE_TAKEN##of_i i)
#define TE_PAIR_TAKE2(...) TE_PAIR_TAKE3(__VA_ARGS__)
#define TE_PAIR_TAKE3(l, x, s, f, ctx, step, i) (ctx, TE_STRIP step) TE_PAIR_ TE_PARENS (l, x, s, f, i)
#define TE_PAIR_() TE_PAIR
/* TE_TAKENn(ops...) expands to (the first n ops), (all other ops). TE_TAKEN0 is for a list that begins with a recompute
 * mark, for which TE_MATCH_AT is 0: the mark becomes a step by itself. */
#define TE_TAKEN0(a, ...) (a), (__VA_ARGS__)
#define TE_TAKEN1(a, ...) (a), (__VA_ARGS__)
#define TE_TAKEN2(a, b, ...) (a, b), (__VA_ARGS__)
#define TE_TAKEN3(a, b, c, ...) (a, b, c), (__VA_ARGS__)
#define TE_TAKEN4(a, b, c, d, ...) (a, b, c, d), (__VA_ARGS__)
#define TE_TAKEN5(a, b, c, d, e, ...) (a, b, c, d, e), (__VA_ARGS__)
#define TE_TAKEN6(a, b, c, d, e, f, ...) (a, b, c, d, e, f), (__VA_ARGS__)
#define TE_TAKEN7(a, b, c, d, e, f, g, ...) (a, b, c, d, e, f, g), (__VA_ARGS__)
#define TE_TAKEN8(a, b, c, d, e, f, g, h, ...) (a, b, c, d, e, f, g, h), (__VA_ARGS__)
/* TE_LIVE_COUNT(ops...) expands to the number of these ops that also exist in inference. Training ops (dropout) and
 * recompute marks do not exist in inference. */
#define TE_LIVE_COUNT(...) TE_BY_OP_COUNT(TE_EACH_OP(TE_LIVE_MARK, ~, __VA_ARGS__) 8, 7, 6, 5, 4, 3, 2, 1, 0, ~)
#define TE_LIVE_MARK(x, i, op) \
    TE_IF_MARKED(TE_JOIN1(TE_TRAINING_, TE_KIND(op)), TE_NOTHING, \
        TE_IF_MARKED(TE_JOIN1(TE_IS_MARK_, TE_KIND(op)), TE_NOTHING, TE_LIVE_COMMA))(~)
#define TE_LIVE_COMMA(x) x,
#define TE_SAME_0_0 ,
#define TE_SAME_1_1 ,
#define TE_SAME_2_2 ,
#define TE_SAME_3_3 ,
#define TE_SAME_4_4 ,
#define TE_SAME_5_5 ,
#define TE_SAME_6_6 ,
#define TE_SAME_7_7 ,
#define TE_SAME_8_8 ,

/* TE_LINKS(ctx, ops...) expands to a sequence with one tuple for each op, called a link: (ctx, before, op, after,
 * live).
 *     before  the op in front of `op` in the list; for the first op: (begin, begin)
 *     after   the op behind `op`; for the last op: (end, ~)
 *     live    the next op that also exists in inference: `after`, or the op behind `after` if `after` is a dropout */
#define TE_LINKS(ctx, ...)            TE_LINKS_(ctx, (begin, begin), __VA_ARGS__, TE_ENDS)
#define TE_LINKS_(...)                TE_EVAL(TE_LINK(__VA_ARGS__))
#define TE_LINK(ctx, p, a, b, ...)    TE_IF_END(a, TE_STOP, TE_LINK1)(ctx, p, a, b, __VA_ARGS__)
#define TE_LINK1(ctx, p, a, b, ...)   (ctx, p, a, b, TE_LIVE(b, __VA_ARGS__)) TE_LINK_ TE_PARENS \
    (ctx, a, b, __VA_ARGS__)
#define TE_LIVE(b, c, ...)            TE_IF_MARKED(TE_JOIN1(TE_TRAINING_, TE_KIND(b)), c, b)
#define TE_LINK_() TE_LINK

/* TE_REVERSE(ops...) expands to the ops in reverse order. The plan of backward is made from the reversed list. */
#define TE_REVERSE(...)       TE_EVAL(TE_REVERSE1((__VA_ARGS__, TE_ENDS), (end, ~)))
#define TE_REVERSE1(in, ...)  TE_IF_END(TE_FIRST(TE_STRIP in, ~), TE_REVERSED, TE_REVERSE2)(in, __VA_ARGS__)
#define TE_REVERSE2(in, ...)  TE_REVERSE_ TE_PARENS ((TE_REST(TE_STRIP in)), TE_FIRST(TE_STRIP in, ~), __VA_ARGS__)
#define TE_REVERSE_() TE_REVERSE1
#define TE_REVERSED(in, ...)  __VA_ARGS__

/* TE_INFERRED(ops...) expands to those ops that exist in inference, i.e. without training ops. An op is a training op
 * if TE_TRAINING_<kind> is #defined as a comma for its kind. TE_UNMARKED(ops...) expands to the ops without the marks
 * of recompute regions. An op is a mark if TE_IS_MARK_<kind> is #defined as a comma for its kind. */
#define TE_TRAINING_dropout ,
#define TE_INFERRED(...)        TE_WITHOUT(TE_TRAINING_, __VA_ARGS__, TE_ENDS)
#define TE_UNMARKED(...)        TE_WITHOUT(TE_IS_MARK_, __VA_ARGS__, TE_ENDS)
#define TE_WITHOUT(...)         TE_REST(TE_EVAL(TE_FILTER(__VA_ARGS__)), (end, ~))
#define TE_FILTER(l, a, ...)      TE_IF_END(a, TE_STOP, TE_FILTER1)(l, a, __VA_ARGS__)
#define TE_FILTER1(l, a, ...)     TE_IF_MARKED(TE_JOIN1(l, TE_KIND(a)), TE_NOTHING, TE_FILTER_COMMA)(a) TE_FILTER_ \
    TE_PARENS (l, __VA_ARGS__)
#define TE_FILTER_COMMA(a) , a
#define TE_FILTER_() TE_FILTER

/* TE_IF_OP(a, yes, no) expands to `yes` if the argument `a` is an op, else to `no`. An op is a tuple with nothing
 * behind it; the tuple has at least two members, and its second member is not empty. */
#define TE_IF_OP(a, yes, no) TE_IF_TUPLE(a, TE_IF_NAMED, TE_IF_TAKE_NO)(a, yes, no)
#define TE_IF_NAMED(a, yes, no) TE_IF_EMPTY(TE_SECOND(TE_STRIP a, , ~), no, TE_IF_ALONE(a, yes, no))
/* TE_IF_ALONE(a, yes, no) expands to `yes` if `a` is a tuple with nothing behind it, else to `no`. If a comma is
 * missing in a list, another tuple stands behind the first one. */
#define TE_IF_ALONE(a, yes, no) TE_IF_TUPLE(TE_EAT a, no, TE_IF_EMPTY(TE_EAT a, yes, no))
#define TE_IF_TAKE_NO(a, yes, no) no
#define TE_IF_EMPTY(x, yes, no) TE_IF_MARKED(TE_COMMA x (), yes, no)

/* TE_SPECIAL(arguments...) expands to the sequence of those arguments that are recompute marks, ops of an unknown kind,
 * or not ops. An argument that is not an op becomes (none, ~). The sequence is empty if all arguments are ops of known
 * kinds. */
#define TE_SPECIAL(...)        TE_SPECIAL_(__VA_ARGS__, TE_ENDS)
#define TE_SPECIAL_(...)       TE_EVAL(TE_KNOW(__VA_ARGS__))
#define TE_KNOW(a, ...)        TE_IF_OP(a, TE_KNOW_OP, TE_KNOW_NONE)(a, __VA_ARGS__)
#define TE_KNOW_NONE(a, ...)   (none, ~) TE_KNOW_ TE_PARENS (__VA_ARGS__)
#define TE_KNOW_OP(a, ...)     TE_IF_END(a, TE_STOP, TE_KNOW1)(a, __VA_ARGS__)
#define TE_KNOW1(a, ...)                                                                                            \
    TE_IF_TUPLE(TE_KIND_INFO(a), TE_IF_MARKED(TE_JOIN1(TE_IS_MARK_, TE_KIND(a)), TE_STRIP, TE_NOTHING), TE_STRIP)(a) \
    TE_KNOW_ TE_PARENS (__VA_ARGS__)
#define TE_KNOW_() TE_KNOW

/* TE_EXCESS(ops...) expands to the 97th op, which is one op too many (TE_MAX_OPS is 96), or to (end, ~) if there are at
 * most 96 ops. */
#define TE_EXCESS(...) TE_EXCESS_(__VA_ARGS__, TE_ENDS64, TE_ENDS64, ~)
#define TE_EXCESS_(...) TE_ARG97(__VA_ARGS__)
#define TE_ENDS8  (end, ~), (end, ~), (end, ~), (end, ~), (end, ~), (end, ~), (end, ~), (end, ~)
#define TE_ENDS64 TE_ENDS8, TE_ENDS8, TE_ENDS8, TE_ENDS8, TE_ENDS8, TE_ENDS8, TE_ENDS8, TE_ENDS8
#define TE_ARG97(                                                                                    \
    a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7, c0, c1, c2, c3, c4, c5, c6, c7,  \
    d0, d1, d2, d3, d4, d5, d6, d7, e0, e1, e2, e3, e4, e5, e6, e7, f0, f1, f2, f3, f4, f5, f6, f7,  \
    g0, g1, g2, g3, g4, g5, g6, g7, h0, h1, h2, h3, h4, h5, h6, h7, i0, i1, i2, i3, i4, i5, i6, i7,  \
    j0, j1, j2, j3, j4, j5, j6, j7, k0, k1, k2, k3, k4, k5, k6, k7, l0, l1, l2, l3, l4, l5, l6, l7,  \
    m, ...) m

/* ---- using a sequence, or the ops of one step ------------------------------------------------------------------ */

/* TE_FOR(M, (..)(..)..) expands to M(..) M(..) .., with the members of each tuple of the sequence as arguments. In
 * addition to M, four macros must be #defined: M_A(..) as M(..) M_B; M_B(..) as M(..) M_A; M_A_END and M_B_END as
 * nothing. M_A and M_B alternate along the sequence: each of them expands M for one tuple, and leaves the name of the
 * other macro in front of the next tuple. Behind the last tuple one name is left; TE_FOR appends _END to this name, so
 * that it expands to nothing. */
#define TE_FOR(M, seq) TE_FOR_END(M##_A seq)
#define TE_FOR_END(...) TE_FOR_END_(__VA_ARGS__)
#define TE_FOR_END_(...) __VA_ARGS__##_END

#endif
