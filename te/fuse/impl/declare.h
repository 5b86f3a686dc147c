/* declare.h -- the declarations to which TE_SEQUENTIAL and TE_DECLARE expand a list: constants (for each op the widths,
 * number formats, rows and layouts of its input and output), static_asserts that check the list, the model's struct,
 * and the prototypes of its functions.
 *
 * Macros with the parameters (model, before, op, after, live) are expanded once for each op, by TE_FOR(M, links).
 * TE_LINKS in matcher.h makes `links`, which has a tuple of these parameters (a link) for each op: the op, its two
 * neighbours in the list (before, after), and the next op that also exists in inference (live). TE_FOR needs four
 * helper macros M_A, M_B, M_A_END and M_B_END, which are defined after M.
 */
#ifndef TE_DECLARE_H
#define TE_DECLARE_H
#if defined __GNUC__ && !defined __clang__ && !defined __CUDACC__ && !defined TE_LIST_WARNINGS
#pragma GCC system_header
#endif

#include "../../plan/dims.h" /* TE_IS_DIM */
#include "kernels.h" /* TE__IS_CLASS */
#include "list_checks.h" /* TE_LAYOUT_OUT */

/* ---- the options of a list --------------------------------------------------------------------------------------- */

/* The second argument of TE_SEQUENTIAL is a dtype, such as bf16, or a dtype with options, such as (bf16, (residual,
 * f32), ..). TE_LIST_OF turns it into a tuple of the same form as an op, (list, bf16, (residual, f32), ..), so that the
 * macros that read the options of an op can also read those of a list. */
#define TE_LIST_OF(dtype) TE_IF_TUPLE(dtype, TE_LIST_OF_TUPLE, TE_LIST_OF_TOKEN)(dtype)
#define TE_LIST_OF_TUPLE(dtype) (list, TE_STRIP dtype)
#define TE_LIST_OF_TOKEN(dtype) (list, dtype)
#define TE_OP_list (list, list)
#define TE_SHAPES_list(op) (0)
/* Expands to `yes` if the list whose options are `of` has the option `recipe`, else to `no`. */
#define TE__IF_RECIPE(of, yes, no) TE_IF_TUPLE(TE_OPTION(of, recipe, ()), no, yes)
enum { TE__NO_WIDTH = INT32_MIN }; /* the value of the enumerator <list>_width_option if the list has no option
                                    * `width` */
#define TE_TAKES_list_in TE_TOKEN
#define TE_TAKES_list_out TE_TOKEN
#define TE_TAKES_list_residual TE_TOKEN
#define TE_TAKES_list_recipe TE_TOKEN
#define TE_TAKES_list_inputs TE_TOKEN /* the option `inputs` of a list: whether the FP8 GEMM inputs that backward needs
                                       * are saved or recomputed */
#define TE_TAKES_list_gradients TE_TOKEN /* the option `gradients` of a list: the FP8 format of gradients under recipes
                                          * with one scale per tensor, e5m2 or e4m3 */
#define TE_TAKES_list_rounding TE_TOKEN /* the option `rounding` of a list: how gradients are rounded when they are cast
                                         * to FP8, nearest or stochastic */
#define TE_TAKES_list_hadamard TE_TOKEN /* the option `hadamard` of a list under nvfp4, on or off: whether a Hadamard
                                         * transform is applied to the operands of the weight gradient before they are
                                         * rounded */
#define TE_TAKES_list_square_blocks TE_TOKEN /* the option `square_blocks` of a list under nvfp4, on or off: whether a
                                              * block of the weight is 16 x 16 elements */
#define TE_TAKES_list_weights TE_TOKEN /* the option `weights` of a list. For FP8 GEMMs the option is the format of the
                                        * weight parameters, f32 or the list's dtype. For weights in few bits
                                        * (te_use_quantized) the option is the name of a block format, or `quantized`
                                        * for any block format */
/* TE__QUANTIZED_OPS_OF is the table of functions for quantized weights, if the list has such weights (`takes` is 1);
 * here it is null. TE__HAS_QUANTIZED_OPS is 1 if the program includes these functions. te/fuse/quantized_weights.h
 * redefines both macros. */
#define TE__QUANTIZED_OPS_OF(dtype, takes) 0
#define TE__HAS_QUANTIZED_OPS 0
#define TE_TAKES_list_width TE_INTEGER
#define TE_TAKES_list_rows TE_TOKEN /* the option `rows` of a list: the kind of rows of x and of an embedding's output,
                                     * tokens or shard */

/* ---- declarations ----------------------------------------------------------------------------------------------- */

/* The macro parameter `widths` is the token `fixed` if all widths are constants, or the token `dims` if some widths are
 * known only at run time (dims.h). The macros TE__.._fixed and TE__.._dims make the parts of the declaration in which
 * the two kinds of models differ. With `dims`, the struct also holds a copy of the plan and of its ops with the actual
 * widths, there is a function name_set_dims, and the functions that return sizes (name_param_bytes, ..) or print the
 * plan take the instance as an argument. */
#define TE__TAKES_DIMS_fixed 0
#define TE__TAKES_DIMS_dims 1
#define TE__OR_DIM_fixed "; TE_DIM takes TE_SEQUENTIAL_DIMS"
#define TE__OR_DIM_dims ", or one TE_DIM times a constant"
#define TE__FIELDS_OF_fixed(name)
#define TE__FIELDS_OF_dims(name) te_plan te_sized; te_op te_ops[name##_op_count]; /* filled in by name_set_dims */
#define TE__SET_DIMS_fixed(link, name, ...)
#define TE__SET_DIMS_dims(link, name, ...) link te_status name##_set_dims(name *m, const int64_t *dims, int count, \
    te_context *ctx) __VA_ARGS__
#define TE__ALONE_fixed(name) void
#define TE__ALONE_dims(name) const name *m
#define TE__BEFORE_fixed(name)
#define TE__BEFORE_dims(name) const name *m,
#define TE__BEHIND_fixed(name)
#define TE__BEHIND_dims(name) , const name *m
#define TE__PLAN_OF_fixed(name) name##_plan()
#define TE__PLAN_OF_dims(name) te__plan_at(m ? &m->te_sized : 0, name##_plan())

/* TE__DECLARE_LIST makes the constants, the checks and the struct. TE__DECLARE_CALLS makes the prototypes of the
 * functions that every model has; TE__DECLARE_training makes the prototypes of the functions that only a model with
 * forward and backward has.
 *     passes      training (forward, backward and inference) or inference (only inference, inference.h)
 *     of          the list's dtype and options, as TE_LIST_OF returns them
 *     cut         the list with its recompute marks (TE__MARKED in sequential.h)
 *     marks       the links of this list, i.e. what TE_LINKS returns for it; empty if the list has no marks */
#define TE__DECLARE(...)      TE__DECLARE1(fixed, training, __VA_ARGS__)
#define TE__DECLARE_DIMS(...) TE__DECLARE1(dims, training, __VA_ARGS__)
#define TE__DECLARE1(widths, passes, link, fwd, bwd, name, dtype, cut, marks, ...)                              \
    TE_CHECK_OPTIONS(name, list, TE_LIST_OF(dtype))                                                                 \
    TE_NAME_CHECKS(widths, name, TE_LIST_OF(dtype), TE_LINKS(name, __VA_ARGS__))                                    \
    TE__DECLARE_LIST(widths, name, TE_LIST_OF(dtype), TE_UNWRAP(marks), TE_LINKS(name, __VA_ARGS__))                \
    TE__DECLARE_CALLS(widths, link, name)                                                                           \
    TE__DECLARE_##passes(widths, link, name)
#define TE__DECLARE_LIST(widths, name, of, marks, links)                                                            \
    enum {                                                                                                          \
        name##_takes_dims = TE__TAKES_DIMS_##widths,                                                                \
        name##_width_option = TE_OPTION(of, width, TE__NO_WIDTH),                                                   \
        name##_begin_begin_out = (int)name##_width_option != (int)TE__NO_WIDTH                                      \
                                     ? (int)name##_width_option                                                     \
                                     : TE_FOR(TE__FIRST_WIDTH, links) 0,                                            \
        name##_before_op_0 = -1,                                                                                    \
        TE_FOR(TE__WIDTHS, links) name##_op_count                                                                   \
    };                                                                                                              \
    enum {                                                                                                          \
        name##_dtype = (int)TE_DTYPE_OF(TE_NAME(of)),                                                               \
        name##_residual_dtype = (int)TE_DTYPE_OPTION(of, residual, (int)name##_dtype),                              \
        name##_names_recipe = TE__IF_RECIPE(of, 1, 0),                                                              \
        name##_recipe = (int)TE_RECIPE_OPTION(of, TE_RECIPE_none),                                                  \
        name##_runs_fp8 = (int)name##_names_recipe && !TE_IS_MICROSCALED(name##_recipe),                            \
        name##_saves_inputs = (int)TE_INPUTS_OPTION(of),                                                            \
        name##_gradients = (int)TE_DTYPE_OPTION(of, gradients, (int)TE_e5m2),                                       \
        name##_rounding = (int)TE_ROUNDING_OPTION(of, name##_recipe),                                               \
        name##_hadamard = (int)TE_SWITCH_OPTION(of, hadamard),                                                      \
        name##_square_blocks = (int)TE_SWITCH_OPTION(of, square_blocks),                                            \
        name##_weights_option = (int)TE_WEIGHTS_OPTION(of, (int)TE_BLOCK_none),                                     \
        name##_weight_format = TE_IN_BLOCKS(name##_weights_option) ? (int)name##_weights_option : (int)TE_BLOCK_none, \
        name##_weights = (int)name##_weights_option == (int)TE_BLOCK_f32    ? (int)TE_f32                           \
                         : (int)name##_weights_option == (int)TE_BLOCK_f16  ? (int)TE_f16                           \
                         : (int)name##_weights_option == (int)TE_BLOCK_bf16 ? (int)TE_bf16 : (int)name##_dtype,     \
        name##_out_option = (int)TE_DTYPE_OPTION(of, out, -1),                                                      \
        name##_first_wants = TE_FOR(TE__FIRST_WANTS, links) 0,                                                      \
        name##_begin_begin_dtype = (int)TE_DTYPE_OPTION(of, in, (int)name##_first_wants),                           \
        name##_begin_begin_rows = TE_ROWS_OPTION(of),                                                               \
        name##_begin_begin_layout = TE_LAYOUT_any,                                                                  \
        TE_FOR(TE__LAYOUTS, links)                                                                                  \
        TE_FOR(TE__FORMATS, links)                                                                                  \
        name##_last_dtype = TE_FOR(TE__LAST_DTYPE, links) 0,                                                        \
        name##_out_dtype = (int)name##_out_option >= 0 ? (int)name##_out_option : (int)name##_last_dtype,           \
        name##_is_mixed = ((int)name##_begin_begin_dtype != (int)name##_dtype) |                                    \
            ((int)name##_out_dtype != (int)name##_dtype) TE_FOR(TE__MIXED, links)                                   \
    };                                                                                                              \
    static_assert((int)name##_dtype < (int)TE_e4m3,                                                                 \
                  "te: " #name ": a list is f32, bf16 or f16; FP8 is a recipe, (bf16, (recipe, fp8_delayed))");     \
    static_assert(!(int)name##_saves_inputs || (int)name##_names_recipe,                                            \
                  "te: " #name ": (inputs, saved) is of a list with a recipe");                                     \
    static_assert((int)name##_gradients == (int)TE_e5m2 ||                                                          \
                      ((int)name##_gradients == (int)TE_e4m3 && TE_IS_TENSORWISE(name##_recipe)),                   \
                  "te: " #name ": (gradients, ...) is e5m2 or e4m3, of a list under fp8_delayed or fp8_current");   \
    static_assert((int)name##_rounding == (int)TE_ROUNDING_nearest || TE_IS_TENSORWISE(name##_recipe) ||            \
                      (int)name##_recipe == (int)TE_RECIPE_nvfp4,                                                   \
                  "te: " #name ": (rounding, stochastic) is of a list under fp8_delayed, fp8_current or nvfp4");    \
    static_assert(((int)name##_hadamard == (int)TE_SWITCH_on && (int)name##_square_blocks == (int)TE_SWITCH_on) ||  \
                      (int)name##_recipe == (int)TE_RECIPE_nvfp4,                                                   \
                  "te: " #name ": (hadamard, off) and (square_blocks, off) are of a list under nvfp4");             \
    static_assert((int)name##_weight_format == (int)TE_BLOCK_none || !(int)name##_names_recipe,                     \
                  "te: " #name ": weights in few bits are of a list without a recipe");                             \
    static_assert((int)name##_weights == (int)name##_dtype ||                                                       \
                      ((int)name##_weights == (int)TE_f32 && (int)name##_names_recipe &&                            \
                       !TE_IS_ROWWISE(name##_recipe) && !TE_IS_MICROSCALED(name##_recipe)),                         \
                  "te: " #name ": (weights, ...) is f32 in a list with a recipe that trains in FP8 (fp8_delayed, "  \
                      "fp8_current, fp8_block), or the dtype of the list");                                         \
    static_assert((int)name##_residual_dtype == (int)name##_dtype || (int)name##_residual_dtype == (int)TE_f32,     \
                  "te: " #name ": the residual stream has the list's dtype or f32");                                \
    static_assert((int)name##_begin_begin_rows != (int)TE_ROWS_memory,                                              \
                  "te: " #name ": x has the rows of tokens, or (rows, shard)");                                     \
    TE_FOR(TE__CHECKS, links)                                                                                       \
    TE_FOR(TE__CLOSED, links)                                                                                       \
    TE_RECOMPUTE_CHECKS(name, marks)                                                                                \
    typedef struct name {                                                                                           \
        te_model model;                                                                                             \
        TE_FOR(TE__FIELDS, links)                                                                                   \
        te_param te_end; /* end of the parameters */                                                                \
        TE__FIELDS_OF_##widths(name)                                                                                \
    } name;
#define TE__DECLARE_CALLS(widths, link, name)                                                                      \
    link te_status name##_context_create(te_context *ctx, int device, uint64_t seed);                              \
    link const te_plan *name##_plan(void);                                                                         \
    TE__SET_DIMS_##widths(link, name, ;)                                                                           \
    link size_t name##_param_bytes(TE__ALONE_##widths(name));                                                      \
    link size_t name##_workspace_bytes(const name *m, int64_t rows, te_context *ctx);                              \
    link te_status name##_infer(te_tensor y, te_tensor x, const name *m, const te_batch *b, te_context *ctx);      \
    link void name##_print_plan(FILE *file TE__BEHIND_##widths(name));
#define TE__DECLARE_training(widths, link, name)                                                                   \
    static_assert((int)name##_weight_format == (int)TE_BLOCK_none,                                                 \
                  "te: " #name ": weights in few bits are of a list for inference, TE_INFERENCE");                 \
    typedef te_saved name##_saved;                                                                                 \
    link size_t name##_grad_bytes(TE__ALONE_##widths(name));                                                       \
    link size_t name##_saved_bytes(TE__BEFORE_##widths(name) int64_t rows);                                        \
    link te_status name##_bind(name *m, void *params, float *grads, te_context *ctx);                              \
    link te_status name##_forward(te_tensor y, name##_saved *saved, te_tensor x, const name *m, const te_batch *b, \
        te_context *ctx);                                                                                          \
    link te_status name##_backward(te_tensor dx, te_tensor dy, const name##_saved *saved, const name *m,           \
        const te_batch *b, te_context *ctx);

/* Find the width of x, for a list without the option `width`. The width of x is the input width of the first op whose
 * family states an input width (the fact TE_IN_<family>). For each op the macro expands to one branch of a conditional
 * expression, `width != 0 ? width :`. */
#define TE__FIRST_WIDTH(model, before, op, after, live) (TE_IN(op)) != 0 ? (TE_IN(op)) :
#define TE__FIRST_WIDTH_A(...) TE__FIRST_WIDTH(__VA_ARGS__) TE__FIRST_WIDTH_B
#define TE__FIRST_WIDTH_B(...) TE__FIRST_WIDTH(__VA_ARGS__) TE__FIRST_WIDTH_A
#define TE__FIRST_WIDTH_A_END
#define TE__FIRST_WIDTH_B_END

/* For each op, the enumerators for the op's index and for the widths of its input and output. A fork has one more
 * enumerator, for the width of its value. The enumerator of the index has no initialiser, so the compiler gives the
 * index the value of the preceding enumerator plus one. Therefore the last enumerator of each op (.._behind) repeats
 * the op's index, so that the next op gets the next index. */
#define TE__WIDTHS(model, before, op, after, live)                                               \
    TE_ID(model, op), TE_WIDTH_IN(model, op) = TE_WIDTH_OUT(model, before),                      \
    TE_WIDTH_OUT(model, op) = TE__PRODUCED(width, model, op),                                       \
    TE__IF_FORK(op, TE__FORK_WIDTH, TE_NOTHING)(model, op)                                       \
    TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), behind) = TE_ID(model, op),
#define TE__WIDTHS_A(...) TE__WIDTHS(__VA_ARGS__) TE__WIDTHS_B
#define TE__WIDTHS_B(...) TE__WIDTHS(__VA_ARGS__) TE__WIDTHS_A
#define TE__WIDTHS_A_END
#define TE__WIDTHS_B_END

/* The width or the rows of an op's output; `what` is the token `width` or `rows`. The output of a load (an op for whose
 * family TE_LOADS_<family> is #defined as a comma) has the width and rows of the fork's value. For all other ops, the
 * facts of the family decide (TE_OUT_<family>, TE_ROWS_<family>). */
#define TE__PRODUCED(what, model, op) \
    TE_IF_MARKED(TE_JOIN1(TE_LOADS_, TE_FAMILY(op)), TE__LOADED_##what, TE__BY_FACTS_##what)(model, op)
#define TE__BY_FACTS_width(model, op) TE_OUT(op, TE_WIDTH_IN(model, op))
#define TE__BY_FACTS_rows(model, op) TE_ROWS(op, TE_ROWS_IN(model, op))
#define TE__LOADED_width(model, op) TE_FORK_WIDTH(model, TE_FORK_OF(op))
#define TE__LOADED_dtype(model, op, live) TE_FORK_DTYPE(model, TE_FORK_OF(op))
#define TE__LOADED_rows(model, op)                                                    \
    ((int)TE_FORK_ROWS(model, TE_FORK_OF(op)) < 0 ? (int)TE_ROWS_IN(model, op)        \
                                                  : (int)TE_FORK_ROWS(model, TE_FORK_OF(op)))
/* The enumerators for the width, rows and number format of the value of a fork or of an input. If an input states no
 * rows, the enumerator for its rows is -1 (TE__INPUT_ROWS); the input then has the same rows as the ops that use it. */
#define TE__IF_FORK(op, yes, no) TE_IF_MARKED(TE_JOIN1(TE__IS_FORK_, TE_FAMILY(op)), yes, no)
#define TE__IS_FORK_fork ,
#define TE__FORK_WIDTH(model, op) \
    TE_FORK_WIDTH(model, TE_NAME(op)) = TE__IF_INPUT(op, TE_ARG1(op, 0), TE_WIDTH_OUT(model, op)),
#define TE__FORK_FORMAT(model, op)                                                           \
    TE_FORK_ROWS(model, TE_NAME(op)) = TE__IF_INPUT(op, TE__INPUT_ROWS(op), TE_ROWS_OUT(model, op)), \
    TE_FORK_DTYPE(model, TE_NAME(op)) =                                                      \
        TE__IF_INPUT(op, (int)TE_DTYPE_OPTION(op, dtype, TE_JOIN2(, model, residual_dtype)), \
            TE_DTYPE_OUT(model, op)),

/* For each op, the enumerators for the number format and the rows of its input and output. The format of the output
 * depends on the op's fact TE_PRODUCES and on the next op's fact TE_WANTS (the format in which its input should be
 * stored). The first line that applies decides:
 *     f32, or the format of the op's input     if TE_PRODUCES of the op says so
 *     the list's option `out`                  if the list has it and the op is the last one (TE_WANTS_end)
 *     the format of the residual stream        if TE_PRODUCES of the op or TE_WANTS of the next op says so
 *     the list's dtype                         otherwise
 * The "next op" is `live`, which is never a dropout; so the formats are the same in inference, which has no dropout. */
#define TE__FORMATS(model, before, op, after, live)                                                              \
    TE_DTYPE_IN(model, op) = TE_DTYPE_OUT(model, before),                                                        \
    TE_ROWS_IN(model, op) = TE_ROWS_OUT(model, before),                                                          \
    TE_DTYPE_OUT(model, op) =                                                                                    \
        TE_IF_MARKED(TE_JOIN1(TE_LOADS_, TE_FAMILY(op)), TE__LOADED_dtype, TE__BY_FACTS_dtype)(model, op, live), \
    TE_ROWS_OUT(model, op) = TE__PRODUCED(rows, model, op),                                                      \
    TE__IF_FORK(op, TE__FORK_FORMAT, TE_NOTHING)(model, op)
#define TE__BY_FACTS_dtype(model, op, live) \
    TE__FORMAT(model, (int)TE_PRODUCES(op), (int)TE_WANTS(live), TE_DTYPE_IN(model, op))
#define TE__FORMAT(model, produces, wants, in)                                                                       \
    ((produces) == (int)TE_PRODUCES_same ? (int)in : (produces) == (int)TE_PRODUCES_f32 ? (int)TE_f32                \
     : (wants) == (int)TE_PRODUCES_same && (int)model##_out_option >= 0 ? (int)model##_out_option                    \
     : (produces) == (int)TE_PRODUCES_residual || (wants) == (int)TE_PRODUCES_residual ? (int)model##_residual_dtype \
     : (int)model##_dtype)
#define TE_WANTS_end(op) (TE_PRODUCES_same) /* the pseudo-op (end, ~) behind the last op wants the format that the last
                                             * op produces; but the list's option `out` may state another format */
#define TE__FORMATS_A(...) TE__FORMATS(__VA_ARGS__) TE__FORMATS_B
#define TE__FORMATS_B(...) TE__FORMATS(__VA_ARGS__) TE__FORMATS_A
#define TE__FORMATS_A_END
#define TE__FORMATS_B_END
/* Expands to `| 1` if the number format of the op's output, or of a fork's value, differs from the list's dtype, else
 * to `| 0`. The results for all ops, combined by `|`, say whether the list has mixed formats. */
#define TE__MIXED(model, before, op, after, live)                 \
    | ((int)TE_DTYPE_OUT(model, op) != (int)model##_dtype)        \
    TE__IF_FORK(op, TE__MIXED_FORK, TE_NOTHING)(model, op)
#define TE__MIXED_FORK(model, op) | ((int)TE_FORK_DTYPE(model, TE_NAME(op)) != (int)model##_dtype)
#define TE__MIXED_A(...) TE__MIXED(__VA_ARGS__) TE__MIXED_B
#define TE__MIXED_B(...) TE__MIXED(__VA_ARGS__) TE__MIXED_A
#define TE__MIXED_A_END
#define TE__MIXED_B_END
/* For a list without the option `in`, find the number format of x, which is the format in which the first op's input
 * should be stored. For the first op the macro expands to this format followed by +; for every other op it expands to
 * nothing. The sum over all ops is therefore the format of x. */
#define TE__FIRST_WANTS(model, before, op, after, live)              \
    TE_IF_MARKED(TE_JOIN1(TE__IS_BEGIN_, TE_KIND(before)), TE_STRIP, \
        TE_NOTHING)(TE__FORMAT(model, (int)TE_PRODUCES_list, (int)TE_WANTS(op), 0) +)
#define TE__IS_BEGIN_begin ,
#define TE__FIRST_WANTS_A(...) TE__FIRST_WANTS(__VA_ARGS__) TE__FIRST_WANTS_B
#define TE__FIRST_WANTS_B(...) TE__FIRST_WANTS(__VA_ARGS__) TE__FIRST_WANTS_A
#define TE__FIRST_WANTS_A_END
#define TE__FIRST_WANTS_B_END
/* For the last op of the list, the macro expands to the number format of the op's output, followed by +; for every
 * other op it expands to nothing. The sum over all ops is therefore the format of the last op's output. */
#define TE__LAST_DTYPE(model, before, op, after, live) TE_IF_END(after, TE_STRIP, TE_NOTHING)(TE_DTYPE_OUT(model, op) +)
#define TE__LAST_DTYPE_A(...) TE__LAST_DTYPE(__VA_ARGS__) TE__LAST_DTYPE_B
#define TE__LAST_DTYPE_B(...) TE__LAST_DTYPE(__VA_ARGS__) TE__LAST_DTYPE_A
#define TE__LAST_DTYPE_A_END
#define TE__LAST_DTYPE_B_END

/* The static_asserts for each op of a list. They check the op's position in the list, its rows, its options, and the
 * layout that its input has over the ranks. TE_CHECK adds the checks that the op's family defines. TE_NAME_CHECKS,
 * which is expanded earlier, has already checked names and widths. */
#define TE__CHECKS(model, before, op, after, live)                                                                     \
    static_assert(!(TE_IF_END(after, 1, 0) && (TE_FLAGS(op) & TE_IS_FORK)),                                            \
        "te: " #model ": " TE_CALLED(op) " must not end the list");                                                    \
    static_assert(!TE_IF_END(after, ((int)TE_ROWS_OUT(model, op) == (int)TE_ROWS_memory), 0),                          \
        "te: " #model ": " TE_CALLED(op) " ends the list with the rows of memory, which y does not have");             \
    static_assert(!TE_IF_END(after, ((int)TE_ROWS_OUT(model, op) >= (int)TE_ROWS_routed), 0),                          \
        "te: " #model ": " TE_CALLED(op) " ends the list with routed rows; a (combine, ..) must follow");              \
    static_assert(!TE__IS_CLASS(op, gemm) || (int)TE_ROWS_IN(model, op) < (int)TE_ROWS_routed,                         \
        "te: " #model ": " TE_CALLED(op) " stands on routed rows, which an (expert_linear, ..) takes");                \
    static_assert(TE_IF_END(after, 1, 0) || !(TE_FLAGS(op) & TE_TO_LOSS),                                              \
        "te: " #model ": " TE_CALLED(op) " must end the list");                                                        \
    static_assert((int)TE_ID(model, op) == 0 || !(TE_FLAGS(op) & TE_FROM_TOKENS),                                      \
        "te: " #model ": " TE_CALLED(op) " must begin the list");                                                      \
    static_assert(!(TE_FLAGS(op) & TE_IS_LOAD) || (TE_FLAGS(before) & (TE_IS_FORK | TE_IS_INPUT)) == TE_IS_FORK,       \
        "te: " #model ": " TE_CALLED(op) " drops the value that " TE_CALLED(before)                                    \
            " produces: a (fork, ..) goes between them");                                                              \
    TE_CHECK_OPTIONS(model, TE_FAMILY(op), op)                                                                         \
    TE__CHECK_LAYOUT(model, before, op)                                                                                \
    TE_CHECK(model, op)
#define TE__PRODUCER_NAME(before) \
    TE_IF_MARKED(TE_JOIN1(TE__IS_BEGIN_, TE_KIND(before)), TE__THE_LIST, TE_CALLED)(before)
#define TE__THE_LIST(before) "the option (width, ..) of the list"
#define TE__CHECKS_A(...) TE__CHECKS(__VA_ARGS__) TE__CHECKS_B
#define TE__CHECKS_B(...) TE__CHECKS(__VA_ARGS__) TE__CHECKS_A
#define TE__CHECKS_A_END
#define TE__CHECKS_B_END

/* Check that the value of each fork or input is used by an op. Each op that uses the value declares the type
 * TE_FORK_USED; the sizeof below compiles only if at least one op has declared this type. */
#define TE__CLOSED(model, before, op, after, live) \
    TE__IF_FORK(op, TE__CLOSED2, TE_NOTHING)(model, op)
#define TE__CLOSED2(model, op) \
    enum { TE_JOIN4(, model, fork, TE_NAME(op), is_closed) = (int)sizeof(TE_FORK_USED(model, TE_NAME(op))) };
#define TE__CLOSED_A(...) TE__CLOSED(__VA_ARGS__) TE__CLOSED_B
#define TE__CLOSED_B(...) TE__CLOSED(__VA_ARGS__) TE__CLOSED_A
#define TE__CLOSED_A_END
#define TE__CLOSED_B_END

/* The member of the model's struct that holds the parameters of an op, for example
 * `struct { te_param weight; te_param bias; } ln;`. Expands to nothing if the op has no parameters. */
#define TE__FIELDS(model, before, op, after, live) TE__FIELDS2(op, TE_UNWRAP(TE_PARAMS(op, 0, 0)))
#define TE__FIELDS2(...) TE__FIELDS3(__VA_ARGS__)
#define TE__FIELDS3(op, ...) TE_IF_END(TE_FIRST(__VA_ARGS__, ~), TE_NOTHING, TE__FIELDS_OF)(op, __VA_ARGS__)
#define TE__FIELDS_OF(op, ...) struct { TE_EACH_OP(TE__FIELD, ~, __VA_ARGS__) } TE_NAME(op);
#define TE__FIELD(x, i, param) te_param TE_KIND(param);
#define TE__FIELDS_A(...) TE__FIELDS(__VA_ARGS__) TE__FIELDS_B
#define TE__FIELDS_B(...) TE__FIELDS(__VA_ARGS__) TE__FIELDS_A
#define TE__FIELDS_A_END
#define TE__FIELDS_B_END

#endif
