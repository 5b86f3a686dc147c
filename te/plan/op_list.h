/* op_list.h -- macros by which the preprocessor reads a list of ops. An op of a list is a tuple (kind, name, ..). The
 * kind of an op belongs to a family of ops, and the family defines facts about its ops, such as the width of an op's
 * output.
 *
 * Do this:
 *     (attention, attn, 32, 8, 128, (scale, 0.1f), (causal, 0))    // kind, name, shapes by position, then options
 *     TE_ARG1(op, 0)               here 32: the first shape of the op; 0 if the op has no shapes
 *     TE_OPTION(op, causal, 1)     here 0: the value of the option `causal`; 1 if the op does not have this option
 *     TE_IN(op)                    the fact TE_IN_<family>(op) (the width of the op's input), or its default
 *
 * #define TE_OP_<kind> (family, class) registers a kind; the class is one of te_class. The facts that a family may
 * define are listed below ("facts").
 */
#ifndef TE_OP_LIST_H
#define TE_OP_LIST_H
#if defined __GNUC__ && !defined __clang__ && !defined __CUDACC__ && !defined TE_LIST_WARNINGS
#pragma GCC system_header
#endif

/* ---- tuples ---------------------------------------------------------------------------------------------------- */

/* TE_STRIP, written in front of a tuple, removes the tuple's parentheses: TE_STRIP (a, b) expands to a, b. TE_UNWRAP(t)
 * does the same for an argument t that is a macro which expands to a tuple. The other macros here take the members of a
 * tuple as arguments, without parentheses: TE_FIRST(a, b) is a, and TE_REST(a, b, c) is b, c. */
#define TE_STRIP(...)  __VA_ARGS__
#define TE_UNWRAP(t)   TE_STRIP t
#define TE_FIRST(...)  TE_FIRST_(__VA_ARGS__)
#define TE_FIRST_(a, ...) a
#define TE_SECOND(...) TE_SECOND_(__VA_ARGS__)
#define TE_SECOND_(a, b, ...) b
#define TE_THIRD(...)  TE_THIRD_(__VA_ARGS__)
#define TE_THIRD_(a, b, c, ...) c
#define TE_FOURTH(...) TE_FOURTH_(__VA_ARGS__)
#define TE_FOURTH_(a, b, c, d, ...) d
#define TE_FIFTH(...) TE_FIFTH_(__VA_ARGS__)
#define TE_FIFTH_(a, b, c, d, e, ...) e
#define TE_SIXTH(...) TE_SIXTH_(__VA_ARGS__)
#define TE_SIXTH_(a, b, c, d, e, f, ...) f
#define TE_REST(...)   TE_REST_(__VA_ARGS__)
#define TE_REST_(a, ...) __VA_ARGS__
#define TE_STRING(...)  TE_STRING_(__VA_ARGS__)
#define TE_STRING_(...) #__VA_ARGS__
#define TE_NOTHING(...)

/* Expands to `yes` if the name `mark` is #defined as a comma, else to `no`. Macros use this to test whether a name x is
 * in a set: PREFIX_x is #defined as a comma for each x in the set, and the macros join the prefix and x to the argument
 * `mark`. */
#define TE_IF_MARKED(mark, yes, no) TE_THIRD(mark, yes, no, ~)
/* Expands to `yes` if x is in parentheses, else to `no`. */
#define TE_IF_TUPLE(x, yes, no) TE_IF_MARKED(TE_COMMA x, TE_SECOND_X(yes), TE_SECOND_X(no))
#define TE_COMMA(...) ,
#define TE_SECOND_X(x) x
/* Expands to x if x is in parentheses, else to `otherwise`. */
#define TE_TUPLE_OR(x, otherwise) TE_IF_TUPLE(x, x, otherwise)

/* TE_JOINn(prefix, a, b, ...) expands to one name: the prefix, followed by the n names a, b, ..., joined by
 * underscores. */
#define TE_JOIN1(l, a)                         TE_JOIN1_(l, a)
#define TE_JOIN1_(l, a)                        l##a
#define TE_JOIN2(l, a, b)                      TE_JOIN2_(l, a, b)
#define TE_JOIN2_(l, a, b)                     l##a##_##b
#define TE_JOIN3(l, a, b, c)                   TE_JOIN3_(l, a, b, c)
#define TE_JOIN3_(l, a, b, c)                  l##a##_##b##_##c
#define TE_JOIN4(l, a, b, c, d)                TE_JOIN4_(l, a, b, c, d)
#define TE_JOIN4_(l, a, b, c, d)               l##a##_##b##_##c##_##d
#define TE_JOIN5(l, a, b, c, d, e)             TE_JOIN5_(l, a, b, c, d, e)
#define TE_JOIN5_(l, a, b, c, d, e)            l##a##_##b##_##c##_##d##_##e
#define TE_JOIN6(l, a, b, c, d, e, f)          TE_JOIN6_(l, a, b, c, d, e, f)
#define TE_JOIN6_(l, a, b, c, d, e, f)         l##a##_##b##_##c##_##d##_##e##_##f
#define TE_JOIN7(l, a, b, c, d, e, f, g)       TE_JOIN7_(l, a, b, c, d, e, f, g)
#define TE_JOIN7_(l, a, b, c, d, e, f, g)      l##a##_##b##_##c##_##d##_##e##_##f##_##g
#define TE_JOIN8(l, a, b, c, d, e, f, g, h)    TE_JOIN8_(l, a, b, c, d, e, f, g, h)
#define TE_JOIN8_(l, a, b, c, d, e, f, g, h)   l##a##_##b##_##c##_##d##_##e##_##f##_##g##_##h

/* Initialise the member `name` of a struct. In C++17, which has no designated initialisers, the macro expands to the
 * value alone; therefore the members must be initialised in the order in which the struct declares them. */
#if !defined(__cplusplus) || __cplusplus >= 202002L
#define TE_MEMBER(name, ...) .name = __VA_ARGS__
#else
#define TE_MEMBER(name, ...) __VA_ARGS__
#endif

/* ---- an op, (kind, name, shapes..., options...) ------------------------------------------------------------------ */

/* Parts of an op (kind, name, shapes..., options...): TE_KIND is its kind, TE_NAME its name, TE_ARGi(op, d) its i-th
 * shape, or d if the op has fewer than i shapes. TE_FAMILY and TE_CLASS are the family and the class of its kind. */
#define TE_KIND(op)      TE_FIRST(TE_STRIP op, ~)
#define TE_NAME(op)      TE_SECOND(TE_STRIP op, ~, ~)
#define TE_ARG1(op, d)   TE_THIRD(TE_STRIP op, d, ~)
#define TE_ARG2(op, d)   TE_FOURTH(TE_STRIP op, d, d, ~)
#define TE_ARG3(op, d)   TE_FIFTH(TE_STRIP op, d, d, d, ~)
#define TE_ARG4(op, d)   TE_SIXTH(TE_STRIP op, d, d, d, d, ~)
#define TE_KIND_INFO(op) TE_JOIN1(TE_OP_, TE_KIND(op))
#define TE_FAMILY(op)    TE_FIRST(TE_UNWRAP(TE_KIND_INFO(op)), ~)
#define TE_CLASS(op)     TE_SECOND(TE_UNWRAP(TE_KIND_INFO(op)), ~, ~)
/* The name of the fork whose value the op uses. The result is x for the op (add, x), and also for (add, name, x). If
 * the argument after the first name is an option, as in (add, x, (option, 1)), the result is the first name. */
#define TE_FORK_OF(op)   TE__FORK_NAME(TE_ARG1(op, TE_NAME(op)), TE_NAME(op))
#define TE__FORK_NAME(used, name) TE_IF_TUPLE(used, name, used)
/* The text by which error messages name an op, e.g. "(linear, fc1)". */
#define TE_CALLED(op) "(" TE_STRING(TE_KIND(op)) ", " TE_STRING(TE_NAME(op)) ")"

/* ---- options by name --------------------------------------------------------------------------------------------- */

/* The names of all options. TE_SAME_a_b is #defined as a comma only if a and b are the same name, so
 * TE_IF_MARKED(TE_SAME_a_b, ..) tests whether two names are equal. A program with a custom op #defines TE_SAME_x_x as a
 * comma for each option x of the op that is not in this list. */
#define TE_SAME_eps_eps ,
#define TE_SAME_columns_columns ,
#define TE_SAME_first_first ,
#define TE_SAME_causal_causal ,
#define TE_SAME_context_context ,
#define TE_SAME_scale_scale ,
#define TE_SAME_softcap_softcap ,
#define TE_SAME_dropout_dropout ,
#define TE_SAME_varlen_varlen ,
#define TE_SAME_alibi_alibi ,
#define TE_SAME_cache_cache ,
#define TE_SAME_sinks_sinks ,
#define TE_SAME_fp8_fp8 ,
#define TE_SAME_bias_bias ,
#define TE_SAME_bias_queries_bias_queries ,
#define TE_SAME_bias_keys_bias_keys ,
#define TE_SAME_relative_bias_relative_bias ,
#define TE_SAME_max_distance_max_distance ,
#define TE_SAME_tied_tied ,
#define TE_SAME_max_logit_max_logit ,
#define TE_SAME_value_dim_value_dim ,
#define TE_SAME_window_left_window_left ,
#define TE_SAME_window_right_window_right ,
#define TE_SAME_base_base ,
#define TE_SAME_interleaved_interleaved ,
#define TE_SAME_rotary_dim_rotary_dim ,
#define TE_SAME_dtype_dtype ,
#define TE_SAME_in_in ,
#define TE_SAME_out_out ,
#define TE_SAME_residual_residual ,
#define TE_SAME_recipe_recipe ,
#define TE_SAME_inputs_inputs ,
#define TE_SAME_gradients_gradients ,
#define TE_SAME_weights_weights ,
#define TE_SAME_rounding_rounding ,
#define TE_SAME_hadamard_hadamard ,
#define TE_SAME_square_blocks_square_blocks ,
#define TE_SAME_width_width ,
#define TE_SAME_limit_limit ,
#define TE_SAME_label_smoothing_label_smoothing ,
#define TE_SAME_z_loss_z_loss ,
#define TE_SAME_alpha_alpha ,
#define TE_SAME_rows_rows ,
#define TE_SAME_shard_shard ,
#define TE_SAME_parts_parts ,
#define TE_SAME_first_part_first_part ,
#define TE_SAME_copies_copies ,
#define TE_SAME_ranks_ranks ,

/* Expands to `yes` if the argument a is an option, else to `no`. An option is a tuple of two members that is the whole
 * argument, such as (causal, 0). Examples of arguments that are no options: 8, (H), (A + B) * C. */
#define TE_IF_OPTION(a, yes, no) \
    TE_IF_MARKED(TE_DEFER_EXPANSION(TE_COMMA TE_EAT a ()), TE_IF_PAIR, TE_TAKE_NO)(a, yes, no)
#define TE_DEFER_EXPANSION(...) __VA_ARGS__
#define TE_EAT(...)
#define TE_IF_PAIR(a, yes, no) TE_THIRD(TE_STRIP a, yes, no, ~)
#define TE_TAKE_NO(a, yes, no) no

/* Expands to m(x, a) for each argument `a` that follows the kind and the name of the op. An op may have twelve such
 * arguments, but rarely has more than three. The preprocessor spends most of its time for a list in this macro, so the
 * macro expands only as many calls of m as suffice. In superfluous calls the argument is ~, which is no option. */
#define TE_EACH_ARGUMENT(m, x, op) TE_JOIN1(TE__EACH_OF_, TE__ARGUMENT_GROUP op)(m, x, TE_STRIP op, ~, ~, ~, ~, ~, ~)
/* The arguments are all parts of an op, including its kind and its name. Expands to the number of calls of m that
 * suffice for the op: 0, 3, 6 or 12. */
#define TE__ARGUMENT_GROUP(...) \
    TE__ARGUMENT_GROUP_(__VA_ARGS__, 12, 12, 12, 12, 12, 12, 12, 12, 6, 6, 6, 3, 3, 3, 0, 0, ~)
#define TE__ARGUMENT_GROUP_(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, calls, ...) calls
#define TE__EACH_OF_0(...)
#define TE__EACH_OF_3(...) TE__EACH_OF_3_(__VA_ARGS__)
#define TE__EACH_OF_3_(m, x, kind, op_name, a, b, c, ...) m(x, a) m(x, b) m(x, c)
#define TE__EACH_OF_6(...) TE__EACH_OF_6_(__VA_ARGS__)
#define TE__EACH_OF_6_(m, x, kind, op_name, a, b, c, d, e, f, ...) m(x, a) m(x, b) m(x, c) m(x, d) m(x, e) m(x, f)
#define TE__EACH_OF_12(...) TE__EACH_OF_12_(__VA_ARGS__)
#define TE__EACH_OF_12_(m, x, kind, op_name, a, b, c, d, e, f, g, h, i, j, k, l, ...)                     \
    m(x, a) m(x, b) m(x, c) m(x, d) m(x, e) m(x, f) m(x, g) m(x, h) m(x, i) m(x, j) m(x, k) m(x, l)

/* Expands to the value of the op's option `name`, or to `otherwise` if the op does not have this option. */
#define TE_OPTION(op, name, otherwise) TE_SECOND(~ TE_EACH_ARGUMENT(TE_VALUE_IF, name, op), otherwise, ~)
#define TE_VALUE_IF(name, a) TE_IF_OPTION(a, TE_VALUE_IF_, TE_NOTHING)(name, a)
#define TE_VALUE_IF_(name, a) TE_IF_MARKED(TE_JOIN2(TE_SAME_, name, TE_FIRST(TE_STRIP a, ~)), TE_TAKE_VALUE, \
    TE_NOTHING)(a)
#define TE_TAKE_VALUE(a) , TE_SECOND(TE_STRIP a, ~)

/* Expands to a constant expression: 1 if the op has the option `name`, else 0. */
#define TE_HAS_OPTION(op, name) (0 TE_EACH_ARGUMENT(TE_ONE_IF, name, op))
#define TE_ONE_IF(name, a) TE_IF_OPTION(a, TE_ONE_IF_, TE_NOTHING)(name, a)
#define TE_ONE_IF_(name, a) TE_IF_MARKED(TE_JOIN2(TE_SAME_, name, TE_FIRST(TE_STRIP a, ~)), +1, )

/* Expands to `yes` if the op has the option `name`, whatever the option's value, else to `no`. TE_HAS_OPTION is
 * evaluated by the compiler, TE_IF_HAS by the preprocessor. */
#define TE_IF_HAS(op, name, yes, no) TE_IF_MARKED(TE_EACH_ARGUMENT(TE_MARK_IF, name, op), yes, no)
#define TE_MARK_IF(name, a) TE_IF_OPTION(a, TE_MARK_IF_, TE_NOTHING)(name, a)
#define TE_MARK_IF_(name, a) TE_JOIN2(TE_SAME_, name, TE_FIRST(TE_STRIP a, ~))

/* Expands to static_asserts that check the arguments of an op. `as` is the family whose facts (see "facts" below) list
 * the permitted options and the number of shapes. Errors are: an option that the family does not have, an option whose
 * value has the wrong type, and too many shapes. The messages name the model, the op and the option. */
#define TE_CHECK_OPTIONS(m, as, op)                                                                                 \
    static_assert(TE_COUNT_ARGS(TE_STRIP op) - 2 - (0 TE_EACH_ARGUMENT(TE_ONE_IF_OPTION, ~, op)) <= TE_SHAPES(as, op), \
                  "te: " TE_STRING(m) ": " TE_CALLED(op) " has more arguments than its kind takes");                \
    TE_EACH_ARGUMENT(TE_KNOWN, (m, as, op), op)
#define TE_ONE_IF_OPTION(x, a) TE_IF_OPTION(a, +1, )
#define TE_COUNT_ARGS(...) TE_COUNT_ARGS_(__VA_ARGS__, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, ~)
#define TE_COUNT_ARGS_(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, count, ...) count
#define TE_SHAPES(as, op) TE_TUPLE_OR(TE_JOIN1(TE_SHAPES_, as)(op), 12)
#define TE_KNOWN(x, a) TE_IF_OPTION(a, TE_KNOWN_, TE_NOTHING)(TE_STRIP x, a)
#define TE_KNOWN_(...) TE_KNOWN__(__VA_ARGS__)
#define TE_KNOWN__(m, as, op, a)                                                                          \
    TE_IF_TUPLE(TE_JOIN2(TE_TAKES_, as, TE_FIRST(TE_STRIP a, ~)), TE_TYPED, TE_UNKNOWN_OPTION)(m, as, op, \
        TE_FIRST(TE_STRIP a, ~), TE_SECOND(TE_STRIP a, ~, ~))
#define TE_UNKNOWN_OPTION(m, as, op, option, value) \
    static_assert(0, "te: " TE_STRING(m) ": " TE_CALLED(op) " takes no option " TE_STRING(option));
#define TE_TYPED(m, as, op, option, value) TE_TYPED_(TE_UNWRAP(TE_JOIN2(TE_TAKES_, as, option)), m, op, option, value)
#define TE_TYPED_(...) TE_TYPED__(__VA_ARGS__)
#define TE_TYPED__(type, m, op, option, value)                                                                  \
    static_assert(TE_IS_##type(value), "te: " TE_STRING(m) ": " TE_CALLED(op) ": the option " TE_STRING(option) \
        " takes " TE__ARTICLE_##type);                                                                          \
    static_assert(TE_IF_MARKED(TE_JOIN2(TE_SAME_, option, option), 1, 0), "te: TE_TAKES_.. names the option "   \
        TE_STRING(option) ", TE_SAME_" TE_STRING(option) "_" TE_STRING(option) " is missing (te/plan/op_list.h)");
#define TE__ARTICLE_integer "an integer"
#define TE__ARTICLE_number "a number"
#define TE__ARTICLE_name "a name"
/* The types that the value of an option can have. Each macro TE_TAKES_<family>_<option> is #defined as one of these
 * types. */
#define TE_INTEGER (integer) /* an integer constant expression */
#define TE_NUMBER (number)   /* an integer or a float */
#define TE_TOKEN (name)      /* a name that the macros turn into an enumerator: bf16 becomes TE_bf16; the compiler
                              * reports unknown names */
#define TE_IS_name(value) 1
/* A static_assert whose condition may compare floats. In C, a comparison of floats is not an integer constant
 * expression, so a plain static_assert does not accept it. */
#define TE_ASSERT_NUMBER(cond, text) \
    __extension__ static_assert(__builtin_constant_p(cond) ? (cond) : 0, text)
#ifdef __cplusplus
template <class T> struct te__type_of { enum { is_integer = 0, is_number = 0 }; };
template <> struct te__type_of<bool> { enum { is_integer = 1, is_number = 1 }; };
template <> struct te__type_of<int> { enum { is_integer = 1, is_number = 1 }; };
template <> struct te__type_of<float> { enum { is_integer = 0, is_number = 1 }; };
template <> struct te__type_of<double> { enum { is_integer = 0, is_number = 1 }; };
#define TE_IS_integer(value) (te__type_of<decltype((value) + 0)>::is_integer != 0)
#define TE_IS_number(value) (te__type_of<decltype((value) + 0)>::is_number != 0)
#else
#define TE_IS_A(type, value) __builtin_types_compatible_p(__typeof__((value) + 0), type)
#define TE_IS_integer(value) TE_IS_A(int, value)
#define TE_IS_number(value) (TE_IS_A(int, value) || TE_IS_A(float, value) || TE_IS_A(double, value))
#endif

/* ---- facts, or their defaults ------------------------------------------------------------------------------------ */

/* The ways in which a family of ops can state the number format of an op's output (TE_PRODUCES_<family>) or of an op's
 * input (TE_WANTS_<family>). */
typedef enum te_produces {
    TE_PRODUCES_list,     /* the dtype that the list states */
    TE_PRODUCES_same,     /* the format of the op's input */
    TE_PRODUCES_residual, /* the format of the residual stream, which the list's option `residual` names */
    TE_PRODUCES_f32
} te_produces;

/* The facts that a family may define, each as a macro whose value is in parentheses. The last column is the default
 * value. "Its" refers to the op; `in` is the width, the rows or the layout of the op's input.
 *     TE_IN_<family>(op)                  width of its input                                      (0): any width
 *     TE_OUT_<family>(op, in)             width of its output                                     (in)
 *     TE_ROWS_<family>(op, in)            rows of its output, a te_rows                           (in)
 *     TE_PRODUCES_<family>(op)            number format of its output                             (TE_PRODUCES_list)
 *     TE_WANTS_<family>(op)               number format in which its input should be stored       (TE_PRODUCES_list)
 *     TE_FLAGS_<family>(op)               TE_SAVES_INPUT, ... (model.h)                           (0)
 *     TE_RECIPE_<family>(model, op)       FP8 recipe of its GEMM, a te_recipe                     (TE_RECIPE_none)
 *     TE_BLOCK_WEIGHTS_<family>(model, op) format of its weight in few bits, a te_block_format    (TE_BLOCK_none)
 *     TE_STATS_<family>(op)               how many f32 numbers forward saves for each row         (0)
 *     TE_CONTEXT_<family>(op)             its te_cp_form (context parallelism)                    (TE_CP_none)
 *     TE_PARAMS_<family>(op, in, out)     ((weight, rows, cols, init), ...)                       no parameters
 *     TE_OPTIONS_<family>(op)             (te_<family>_options, values of its members...)         no options
 *     TE_CHECK_<family>(model, op)        (static_assert(..); ...): checks of the op              no checks
 *     TE_EDGE_<family>(model, op)         (index, format) of the fork whose value it uses         (-1, list's format)
 *     TE_LAYOUT_<family>(op, in)          layout of its output over ranks, a te_rank_layout       (in)
 *     TE_LAYOUT_FITS_<family>(op, in)     whether it takes an input of this layout                see list_checks.h
 *     TE_PARTS_<family>(op)               number of parts of an output row (3 for q, k and v)     (1)
 *     TE_FIRST_PART_<family>(op)          width of the first part / width of each other part      (1)
 *     TE_RANKS_<family>(op)               number of ranks that shard its vocabulary               (0): not sharded
 *     TE_EXPERTS_<family>(op)             number of experts for which it has parameters           (0)
 *     TE_SHAPES_<family>(op)              the largest number of shapes that it may have           (12)
 *     TE_TAKES_<family>_<option>          type of one of its options: TE_INTEGER, TE_NUMBER or TE_TOKEN */

#define TE_FACT(fact, op) TE_JOIN1(TE_##fact##_, TE_FAMILY(op))
#define TE_IN(op)         TE_TUPLE_OR(TE_FACT(IN, op)(op), 0)
#define TE_OUT(op, in)    TE_TUPLE_OR(TE_FACT(OUT, op)(op, in), in)
#define TE_ROWS(op, in)   TE_TUPLE_OR(TE_FACT(ROWS, op)(op, in), in)
#define TE_PRODUCES(op)      TE_TUPLE_OR(TE_FACT(PRODUCES, op)(op), TE_PRODUCES_list)
#define TE_WANTS(op)      TE_TUPLE_OR(TE_FACT(WANTS, op)(op), TE_PRODUCES_list)
#define TE_FLAGS(op)      TE_TUPLE_OR(TE_FACT(FLAGS, op)(op), 0)
#define TE_STATS(op)      TE_TUPLE_OR(TE_FACT(STATS, op)(op), 0)
#define TE_CONTEXT(op)    TE_TUPLE_OR(TE_FACT(CONTEXT, op)(op), TE_CP_none)
#define TE_PARAMS(op, in, out) TE_TUPLE_OR(TE_FACT(PARAMS, op)(op, in, out), ((end, ~)))
#define TE_COUNT_PARAMS(op)    TE_COUNT_ARGS(TE_UNWRAP(TE_PARAMS(op, 0, 0))) /* only for an op that has parameters */
#define TE_CHECK(model, op)    TE_UNWRAP(TE_TUPLE_OR(TE_FACT(CHECK, op)(model, op), ()))
#define TE_PARTS(op)           TE_TUPLE_OR(TE_FACT(PARTS, op)(op), 1)
#define TE_FIRST_PART(op)      TE_TUPLE_OR(TE_FACT(FIRST_PART, op)(op), 1)
#define TE_COPIES(op)          TE_TUPLE_OR(TE_FACT(COPIES, op)(op), 1)
#define TE_RANKS(op)           TE_TUPLE_OR(TE_FACT(RANKS, op)(op), 0)
#define TE_EXPERTS(op)         TE_TUPLE_OR(TE_FACT(EXPERTS, op)(op), 0)
#define TE_OPTIONS(op)         TE_TUPLE_OR(TE_FACT(OPTIONS, op)(op), (te_no_options, 0))

#define TE_BLOCK_WEIGHTS(model, op) TE_TUPLE_OR(TE_FACT(BLOCK_WEIGHTS, op)(model, op), TE_BLOCK_none)
#define TE_RECIPE(model, op)   TE_TUPLE_OR(TE_FACT(RECIPE, op)(model, op), TE_RECIPE_none)
#define TE_EDGE(model, op)     TE_TUPLE_OR(TE_FACT(EDGE, op)(model, op), (-1, TE_JOIN2(, model, dtype)))

/* The enumerator that the value of an option stands for. TE_DTYPE_OPTION turns (dtype, bf16) into TE_bf16, a te_dtype;
 * TE_RECIPE_OPTION turns (recipe, fp8_block) into TE_RECIPE_fp8_block, a te_recipe. `op` is an op, or the options of a
 * list; `otherwise` is the result if `op` does not have the option. */
#define TE_DTYPE_OPTION(op, name, otherwise) TE_DTYPE_OPTION_(TE_OPTION(op, name, (otherwise)))
#define TE_DTYPE_OPTION_(value) TE_IF_TUPLE(value, TE_STRIP, TE_DTYPE_OF)(value)
#define TE_DTYPE_OF(token) TE_JOIN1(TE_, token)
#define TE_RECIPE_OPTION(op, otherwise) TE_RECIPE_OPTION_(TE_OPTION(op, recipe, (otherwise)))
#define TE_RECIPE_OPTION_(value) TE_IF_TUPLE(value, TE_STRIP, TE_RECIPE_NAMED)(value)
#define TE_RECIPE_NAMED(token) TE_JOIN1(TE_RECIPE_, token)
/* TE_WEIGHTS_OPTION is the option (weights, ..) of a list or an op, as a te_block_format. TE_IN_BLOCKS says whether a
 * weight of this format is stored in few bits, in blocks of elements with a scale. */
#define TE_WEIGHTS_OPTION(op, otherwise) TE_WEIGHTS_OPTION_(TE_OPTION(op, weights, (otherwise)))
#define TE_WEIGHTS_OPTION_(value) TE_IF_TUPLE(value, TE_STRIP, TE_WEIGHTS_NAMED)(value)
#define TE_WEIGHTS_NAMED(token) TE_JOIN1(TE_BLOCK_, token)
#define TE_IN_BLOCKS(format) ((int)(format) > (int)TE_BLOCK_bf16)
/* The option (inputs, saved) of a list: forward saves the inputs of FP8 GEMMs even where backward could recompute
 * them. */
enum { TE_INPUTS_recomputed, TE_INPUTS_saved };
#define TE_INPUTS_OPTION(op) TE_INPUTS_OPTION_(TE_OPTION(op, inputs, recomputed))
#define TE_INPUTS_OPTION_(token) TE_JOIN1(TE_INPUTS_, token)
/* How gradients are rounded to FP8, as a te_rounding: the option (rounding, nearest) or (rounding, stochastic) of a
 * list. Without this option, the recipe determines the rounding. */
#define TE_ROUNDING_OPTION(op, recipe) TE_ROUNDING_OPTION_(TE_OPTION(op, rounding, (TE_ROUNDING_OF_RECIPE(recipe))))
#define TE_ROUNDING_OPTION_(value) TE_IF_TUPLE(value, TE_STRIP, TE_ROUNDING_NAMED)(value)
#define TE_ROUNDING_NAMED(token) TE_JOIN1(TE_ROUNDING_, token)
#define TE_ROUNDING_OF_RECIPE(recipe) \
    ((int)(recipe) == (int)TE_RECIPE_nvfp4 ? (int)TE_ROUNDING_stochastic : (int)TE_ROUNDING_nearest)
/* The value of a list's option that can only be on or off, such as (hadamard, off), as TE_SWITCH_on or TE_SWITCH_off.
 * Without the option, the value is TE_SWITCH_on. */
enum { TE_SWITCH_off, TE_SWITCH_on };
#define TE_SWITCH_OPTION(op, name) TE_SWITCH_OPTION_(TE_OPTION(op, name, on))
#define TE_SWITCH_OPTION_(token) TE_JOIN1(TE_SWITCH_, token)
/* The value of a list's option (rows, ..), as a te_rows. */
#define TE_ROWS_OPTION(op) TE_ROWS_OPTION_(TE_OPTION(op, rows, tokens))
#define TE_ROWS_OPTION_(token) TE_JOIN1(TE_ROWS_, token)
/* The value of a linear's option (shard, ..), as a te_shard. */
#define TE_SHARD_OPTION(op) TE_SHARD_OPTION_(TE_OPTION(op, shard, none))
#define TE_SHARD_OPTION_(token) TE_JOIN1(TE_SHARD_, token)

/* TE_RANKS_OPTION is the N of the option (ranks, N) of an op with a vocabulary: each of N ranks has 1 / N of the
 * vocabulary. TE_OF_RANKS(op, all) is the size of one rank's part, where `all` is the size for all ranks together. */
#define TE_RANKS_OPTION(op) (TE_OPTION(op, ranks, 0))
#define TE_OF_RANKS(op, all) ((all) / (TE_RANKS_OPTION(op) > 0 ? TE_RANKS_OPTION(op) : 1))
#define TE_CHECK_RANKS(model, op)                                                                                     \
    static_assert(!TE_HAS_OPTION(op, ranks) || (TE_RANKS_OPTION(op) > 0 && TE_ARG1(op, 1) > 0 &&                      \
                      TE_ARG1(op, 1) % (TE_RANKS_OPTION(op) > 0 ? TE_RANKS_OPTION(op) : 1) == 0),                     \
                  "te: " TE_STRING(model) ": " TE_CALLED(op)                                                          \
                      ": its vocabulary is no constant that (ranks, N) divides evenly; round it up to one");

/* Check the option (weights, ..) of an op. */
#define TE_CHECK_WEIGHTS(model, op)                                                                                   \
    static_assert(!TE_HAS_OPTION(op, weights) ||                                                                      \
                      ((int)model##_weight_format != (int)TE_BLOCK_none &&                                            \
                       (TE_IN_BLOCKS(TE_WEIGHTS_OPTION(op, TE_BLOCK_none)) ||                                         \
                        (int)TE_WEIGHTS_OPTION(op, TE_BLOCK_none) == (int)TE_BLOCK_none)),                            \
                  "te: " TE_STRING(model) ": " TE_CALLED(op)                                                          \
                      ": (weights, ..) of an op is none or a format of blocks, in a list that has one, too: "         \
                      "(bf16, (weights, quantized))");

/* TE_OPTIONS_TYPE is the type of the struct that holds an op's options; if the op has none, it is te_no_options.
 * TE_OPTIONS_VALUES is the initialiser of this struct. */
typedef struct te_no_options { int none; } te_no_options;
#define TE_OPTIONS_TYPE(op) TE_FIRST(TE_UNWRAP(TE_OPTIONS(op)), ~)
#define TE_OPTIONS_VALUES(op) {TE_REST(TE_UNWRAP(TE_OPTIONS(op)))}

/* ---- constants of a list ----------------------------------------------------------------------------------------- */

/* The macros add two pseudo-ops to each list: (begin, begin) in front of its first op, and (end, ~) behind its last op.
 * TE_IF_END expands to `yes` if op is (end, ~), else to `no`. */
#define TE_OP_begin (begin, begin)
#define TE_OP_end (end, end)
#define TE_IS_END_end ,
#define TE_IF_END(op, yes, no) TE_IF_MARKED(TE_JOIN1(TE_IS_END_, TE_KIND(op)), yes, no)
/* The names of the enumerators that te/fuse/impl/declare.h defines for each op of a model: the op's index, and the
 * width, number format, rows and layout of the op's input and output. For the op (linear, fc1, ..) of the model mlp,
 * TE_ID is mlp_linear_fc1_index. TE_EDGE_INDEX and TE_EDGE_DTYPE are the index and the number format of the fork whose
 * value the op uses. */
#define TE_ID(model, op)        TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), index)
#define TE_WIDTH_IN(model, op)  TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), in)
#define TE_WIDTH_OUT(model, op) TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), out)
#define TE_DTYPE_OUT(model, op) TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), dtype)
#define TE_DTYPE_IN(model, op)  TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), in_dtype)
#define TE_ROWS_OUT(model, op)  TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), rows)
#define TE_ROWS_IN(model, op)   TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), in_rows)
#define TE_EDGE_INDEX(model, op) TE_FIRST(TE_UNWRAP(TE_EDGE(model, op)), ~)
#define TE_EDGE_DTYPE(model, op) TE_SECOND(TE_UNWRAP(TE_EDGE(model, op)), ~)
#define TE_LAYOUT_OUT(model, op) TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), layout)
#define TE_FORK_LAYOUT(model, x) TE_JOIN4(te_layout_of_, x, of, model, fork)

/* ---- the ops of one step ----------------------------------------------------------------------------------------- */

/* TE_EACH_OP(M, x, ops...) expands to M(x, 0, first op) M(x, 1, second op) ... for the ops of a step. A step has at
 * most eight ops. */
#define TE_EACH_OP(M, x, ...)                                                                                          \
    TE_EACH_OP_(M, x, __VA_ARGS__, (end, ~), (end, ~), (end, ~), (end, ~), (end, ~), (end, ~), (end, ~), (end, ~))
#define TE_EACH_OP_(M, x, a, b, c, d, e, f, g, h, ...)                                 \
    M(x, 0, a) TE_EACH_OP1(M, x, 1, b) TE_EACH_OP1(M, x, 2, c) TE_EACH_OP1(M, x, 3, d) \
    TE_EACH_OP1(M, x, 4, e) TE_EACH_OP1(M, x, 5, f) TE_EACH_OP1(M, x, 6, g) TE_EACH_OP1(M, x, 7, h)
#define TE_EACH_OP1(M, x, i, op) TE_IF_END(op, TE_NOTHING, M)(x, i, op)

/* These macros get the ops of a step as arguments. TE_FIRST_OP is the first op, TE_LAST_OP the last one,
 * TE_PATTERN_NAME the kinds of all ops joined by underscores, and TE_OP_COUNT the number of ops. All of them except
 * TE_FIRST_OP use TE_BY_OP_COUNT(ops..., eight, seven, .., one, ~), which expands to `one` if there is one op, to `two`
 * if there are two ops, and so on. */
#define TE_FIRST_OP(...) TE_FIRST(__VA_ARGS__, ~)
#define TE_LAST_OP(...) TE_BY_OP_COUNT(__VA_ARGS__, TE_LAST8, TE_LAST7, TE_LAST6, TE_LAST5, TE_LAST4, TE_LAST3, \
    TE_LAST2, TE_LAST1, ~)(__VA_ARGS__, ~)
#define TE_PATTERN_NAME(...) TE_BY_OP_COUNT(__VA_ARGS__, TE_NAME8, TE_NAME7, TE_NAME6, TE_NAME5, TE_NAME4, TE_NAME3, \
    TE_NAME2, TE_NAME1, ~)(__VA_ARGS__)
#define TE_OP_COUNT(...) TE_BY_OP_COUNT(__VA_ARGS__, 8, 7, 6, 5, 4, 3, 2, 1, ~)
#define TE_BY_OP_COUNT(...) TE_BY_OP_COUNT_(__VA_ARGS__)
#define TE_BY_OP_COUNT_(a, b, c, d, e, f, g, h, n, ...) n
#define TE_LAST1(a, ...) a
#define TE_LAST2(a, b, ...) b
#define TE_LAST3(a, b, c, ...) c
#define TE_LAST4(a, b, c, d, ...) d
#define TE_LAST5(a, b, c, d, e, ...) e
#define TE_LAST6(a, b, c, d, e, f, ...) f
#define TE_LAST7(a, b, c, d, e, f, g, ...) g
#define TE_LAST8(a, b, c, d, e, f, g, h, ...) h
/* All ops of a step except the last one. */
#define TE_BUT_LAST_OP(...) TE_BY_OP_COUNT(__VA_ARGS__, TE_BUT8, TE_BUT7, TE_BUT6, TE_BUT5, TE_BUT4, TE_BUT3, TE_BUT2, \
    TE_NOTHING, ~)(__VA_ARGS__)
#define TE_BUT2(a, b) a
#define TE_BUT3(a, b, c) a, b
#define TE_BUT4(a, b, c, d) a, b, c
#define TE_BUT5(a, b, c, d, e) a, b, c, d
#define TE_BUT6(a, b, c, d, e, f) a, b, c, d, e
#define TE_BUT7(a, b, c, d, e, f, g) a, b, c, d, e, f
#define TE_BUT8(a, b, c, d, e, f, g, h) a, b, c, d, e, f, g
#define TE_NAME1(a) TE_KIND(a)
#define TE_NAME2(a, b) TE_JOIN2(, TE_KIND(a), TE_KIND(b))
#define TE_NAME3(a, b, c) TE_JOIN3(, TE_KIND(a), TE_KIND(b), TE_KIND(c))
#define TE_NAME4(a, b, c, d) TE_JOIN4(, TE_KIND(a), TE_KIND(b), TE_KIND(c), TE_KIND(d))
#define TE_NAME5(a, b, c, d, e) TE_JOIN5(, TE_KIND(a), TE_KIND(b), TE_KIND(c), TE_KIND(d), TE_KIND(e))
#define TE_NAME6(a, b, c, d, e, f) TE_JOIN6(, TE_KIND(a), TE_KIND(b), TE_KIND(c), TE_KIND(d), TE_KIND(e), TE_KIND(f))
#define TE_NAME7(a, b, c, d, e, f, g) TE_JOIN7(, TE_KIND(a), TE_KIND(b), TE_KIND(c), TE_KIND(d), TE_KIND(e), \
    TE_KIND(f), TE_KIND(g))
#define TE_NAME8(a, b, c, d, e, f, g, h) TE_JOIN8(, TE_KIND(a), TE_KIND(b), TE_KIND(c), TE_KIND(d), TE_KIND(e), \
    TE_KIND(f), TE_KIND(g), TE_KIND(h))

#endif
