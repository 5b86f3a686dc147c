/* sequential.h -- TE_SEQUENTIAL: a list of ops becomes a struct, functions and kernels.
 *
 * Do this:
 *     TE_SEQUENTIAL(mlp, bf16, (layernorm, ln, 768), (linear, fc1, 768, 3072), (bias, fc1_b, 3072), (gelu, act))
 *     static mlp m;
 *     TE_TRY(mlp_bind(&m, params, grads, &ctx));
 *     TE_TRY(mlp_forward(y, &saved, x, &m, &batch, &ctx));
 *     TE_TRY(mlp_backward(dx, dy, &saved, &m, &batch, &ctx));
 *
 * Or, if plain C files are to call functions that are compiled in a .cu file: TE_DECLARE(mlp, bf16, ...) in a header
 * declares the types and prototypes, and TE_DEFINE(mlp, bf16, ...) in one file defines the functions, with C linkage.
 *
 * For their argument `name`, the macros of this header make:
 *     name, name_saved               types: an instance (m.fc1.weight is a te_param); a te_saved (model.h)
 *     name_forward_steps, name_infer_steps, name_backward_steps     numbers of steps, constants
 *     name_context_create            creates a context for the target that the functions were compiled for
 *     name_plan()                    the op table and the plans
 *     name_param_bytes, name_grad_bytes, name_saved_bytes, name_workspace_bytes
 *     name_bind, name_forward, name_infer, name_backward, name_print_plan
 *
 * Lists with widths that are known only at run time take TE_SEQUENTIAL_DIMS, TE_DECLARE_DIMS, TE_DEFINE_DIMS (dims.h).
 * For such a list, call name_set_dims before any other function. name_param_bytes, name_grad_bytes and name_print_plan
 * take the instance as their last argument, and name_saved_bytes takes the instance in front of the number of rows.
 */
#ifndef TE_SEQUENTIAL_H
#define TE_SEQUENTIAL_H
#if defined __GNUC__ && !defined __clang__ && !defined __CUDACC__ && !defined TE_LIST_WARNINGS
#pragma GCC system_header
#endif

#include "../core/tensor_kernels.h" /* te_convert */
#include "../plan/dims.h" /* TE_DIM, te_plan_set_dims */
#include "print.h" /* te_plan_print */
#include "../plan/impl/executor.h" /* te_plan_forward, te_plan_backward */
#include "impl/declare.h" /* TE__DECLARE1 */
#include "fusions.h" /* TE_FORWARD_<pattern>, TE_BACKWARD_<pattern> */
#include "impl/kernels.h" /* TE__KERNELS */
#include "impl/matcher.h" /* TE_PLAN, TE_LINKS */
#include "impl/list_checks.h" /* TE_RECOMPUTE_CHECKS, TE_RECOMPUTE_TABLE */

#define TE_SEQUENTIAL(name, dtype, ...) TE_SEQUENTIAL_WITH(TE_FORWARD_, TE_BACKWARD_, name, dtype, __VA_ARGS__)
/* Make a model as TE_SEQUENTIAL does, with custom fusion lists. `fwd` and `bwd` are the prefixes of the names of the
 * forward patterns and of the backward patterns. The library defines no pattern with the prefix TE_UNFUSED_, so with
 * this prefix each op becomes a step of its own. */
#define TE_SEQUENTIAL_WITH(fwd, bwd, name, dtype, ...)                                               \
    TE__CHECKED(TE__DECLARE_AND_DEFINE, static TE_UNUSED, fwd, bwd, name, dtype, __VA_ARGS__)
#define TE_DECLARE(name, dtype, ...) TE__CHECKED(TE__DECLARE, TE_EXTERN_C, TE_FORWARD_, TE_BACKWARD_, name, dtype, \
    __VA_ARGS__)
#define TE_DEFINE(name, dtype, ...)  TE__CHECKED(TE__DEFINE, TE_EXTERN_C, TE_FORWARD_, TE_BACKWARD_, name, dtype, \
    __VA_ARGS__)
/* TE_SEQUENTIAL, TE_SEQUENTIAL_WITH, TE_DECLARE and TE_DEFINE for lists whose widths are known only at run time. Such
 * lists have symbols (dims.h) as widths. */
#define TE_SEQUENTIAL_DIMS(name, dtype, ...) TE_SEQUENTIAL_DIMS_WITH(TE_FORWARD_, TE_BACKWARD_, name, dtype, \
    __VA_ARGS__)
#define TE_SEQUENTIAL_DIMS_WITH(fwd, bwd, name, dtype, ...)                                          \
    TE__CHECKED(TE__DECLARE_AND_DEFINE_DIMS, static TE_UNUSED, fwd, bwd, name, dtype, __VA_ARGS__)
#define TE_DECLARE_DIMS(name, dtype, ...) TE__CHECKED(TE__DECLARE_DIMS, TE_EXTERN_C, TE_FORWARD_, TE_BACKWARD_, name, \
    dtype, __VA_ARGS__)
#define TE_DEFINE_DIMS(name, dtype, ...)  TE__CHECKED(TE__DEFINE_DIMS, TE_EXTERN_C, TE_FORWARD_, TE_BACKWARD_, name, \
    dtype, __VA_ARGS__)

/* ---- mistakes in the list ---------------------------------------------------------------------------------------- */

/* The preprocessor itself can find some mistakes: a list that is too long, an unknown dtype or op, an argument that is
 * no tuple, a comma that is missing. These mistakes are reported first, and a list with such a mistake is not expanded
 * further, so that no other errors follow. Parameters of these macros:
 *     make         the macro that is expanded if the list has no such mistake, e.g. TE__DECLARE
 *     link         storage class and attributes of the functions of the model
 *     fwd, bwd     prefixes of the fusion lists: TE_FORWARD_, TE_BACKWARD_
 * -Wshadow is off in the functions of a model, because the parameters of these functions have the names m, x, y, ..,
 * and a program may have global variables of these names.
 */
#define TE__CHECKED(...)                                                                                         \
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wshadow\"")                                \
    TE__CHECKED1(__VA_ARGS__)                                                                                    \
    _Pragma("GCC diagnostic pop")
#define TE__CHECKED1(make, link, fwd, bwd, name, dtype, ...)                                                 \
    TE_IF_END(TE_EXCESS(__VA_ARGS__), TE__CHECKED2, TE__TOO_LONG)(make, link, fwd, bwd, name, dtype, __VA_ARGS__)
#define TE__TOO_LONG(make, link, fwd, bwd, name, ...) \
    static_assert(0, "te: " #name ": the list is too long; it holds 96 ops at most");
#define TE__CHECKED2(make, link, fwd, bwd, name, dtype, ...)                                                    \
    TE_IF_MARKED(TE_JOIN1(TE__IS_DTYPE_, TE_NAME(TE_LIST_OF(dtype))), TE__CHECKED_DTYPE, TE__NO_DTYPE)          \
    (make, link, fwd, bwd, name, dtype, __VA_ARGS__)
#define TE__IS_DTYPE_f32 ,
#define TE__IS_DTYPE_bf16 ,
#define TE__IS_DTYPE_f16 ,
#define TE__IS_DTYPE_e4m3 , /* e4m3 and e5m2 are refused later (declare.h), with an error text that points to recipes */
#define TE__IS_DTYPE_e5m2 ,
#define TE__NO_DTYPE(make, link, fwd, bwd, name, dtype, ...)                                                    \
    static_assert(0, "te: " #name ": " TE_STRING(TE_NAME(TE_LIST_OF(dtype)))                                   \
        " is no dtype; a list is f32, bf16 or f16");
#define TE__CHECKED_DTYPE(make, link, fwd, bwd, name, dtype, ...) TE__CHECKED3(make, link, fwd, bwd, name, dtype, \
    (TE_SPECIAL(__VA_ARGS__)), __VA_ARGS__)
#define TE__CHECKED3(make, link, fwd, bwd, name, dtype, special, ...) \
    TE_IF_TUPLE(TE_UNWRAP(special), TE__CHECKED4, TE__UNMARKED)(make, link, fwd, bwd, name, dtype, __VA_ARGS__)
#define TE__CHECKED4(make, link, fwd, bwd, name, dtype, ...) TE__CHECKED5(make, link, fwd, bwd, name, dtype, \
    (TE_UNKNOWN_IN(name, __VA_ARGS__)), __VA_ARGS__)
#define TE__CHECKED5(make, link, fwd, bwd, name, dtype, unknown, ...)                                        \
    TE_IF_TUPLE(TE_UNWRAP(unknown), TE__UNKNOWN_OPS, TE__MARKED)(make, link, fwd, bwd, name, dtype, unknown, \
        __VA_ARGS__)
/* In the macros from here on, the variadic arguments are the list's ops without the recompute marks. Two parameters
 * hold the marks:
 *     cut      the list with its marks. Forward patterns are matched in `cut`, because no forward pattern may extend
 *              across a mark.
 *     marks    TE_LINKS of the list with its marks; empty if the list has no marks */
#define TE__UNMARKED(make, link, fwd, bwd, name, dtype, ...) make(link, fwd, bwd, name, dtype, (__VA_ARGS__), \
    (), __VA_ARGS__)
#define TE__MARKED(make, link, fwd, bwd, name, dtype, unknown, ...) \
    make(link, fwd, bwd, name, dtype, (__VA_ARGS__), (TE_LINKS(name, __VA_ARGS__)), TE_UNMARKED(__VA_ARGS__))
#define TE__UNKNOWN_OPS(make, link, fwd, bwd, name, dtype, unknown, ...) TE_FOR(TE__UNKNOWN, TE_UNWRAP(unknown))
/* TE_UNKNOWN_IN(name, ops...) expands to a sequence of tuples (name, op), one for each op that is not a tuple or whose
 * kind is unknown. */
#define TE_UNKNOWN_IN(name, ...) TE_UNKNOWN_IN_(name, __VA_ARGS__, TE_ENDS)
#define TE_UNKNOWN_IN_(...) TE_EVAL(TE_KNOW_IN(__VA_ARGS__))
#define TE_KNOW_IN(name, a, ...) TE_IF_OP(a, TE_KNOW_IN_OP, TE_KNOW_IN_NONE)(name, a, __VA_ARGS__)
#define TE_KNOW_IN_NONE(name, a, ...) (name, a) TE_KNOW_IN_ TE_PARENS (name, __VA_ARGS__)
#define TE_KNOW_IN_OP(name, a, ...) TE_IF_END(a, TE_STOP, TE_KNOW_IN1)(name, a, __VA_ARGS__)
#define TE_KNOW_IN1(name, a, ...) TE_IF_TUPLE(TE_KIND_INFO(a), TE_NOTHING, TE_STRIP)((name, a)) TE_KNOW_IN_ TE_PARENS \
    (name, __VA_ARGS__)
#define TE_KNOW_IN_() TE_KNOW_IN
#define TE__UNKNOWN(name, op) TE_IF_OP(op, TE__UNKNOWN_KIND, TE__UNKNOWN_SHAPE)(name, op)
#define TE__UNKNOWN_KIND(name, op) static_assert(0, "te: " #name ": unknown op (" TE_STRING(TE_KIND(op)) ", " \
    TE_STRING(TE_NAME(op)) "); it is misspelt, or its header is not included above (te/infer.h, te/moe.h)");
#define TE__UNKNOWN_SHAPE(name, op) \
    TE_IF_TUPLE(op, TE__NO_NAME_OR_COMMA, TE_IF_EMPTY(op, TE__NO_OP, TE__NO_TUPLE))(name, op)
#define TE__NO_NAME_OR_COMMA(name, op) TE_IF_ALONE(op, TE__NO_NAME, TE__NO_COMMA)(name, op)
#define TE__NO_COMMA(name, op) \
    static_assert(0, "te: " #name ": a comma is missing in " TE_STRING(op) "; ops are separated by commas");
#define TE__NO_NAME(name, op) \
    static_assert(0, "te: " #name ": " TE_STRING(op) " has no name; an op is (kind, name, shapes..., options...)");
#define TE__NO_TUPLE(name, op) \
    static_assert(0, "te: " #name ": " TE_STRING(op) " is no op; an op is (kind, name, shapes..., options...)");
#define TE__NO_OP(name, op) \
    static_assert(0, "te: " #name ": a comma with no op behind it, or a list with no op");
#define TE__UNKNOWN_A(...) TE__UNKNOWN(__VA_ARGS__) TE__UNKNOWN_B
#define TE__UNKNOWN_B(...) TE__UNKNOWN(__VA_ARGS__) TE__UNKNOWN_A
#define TE__UNKNOWN_A_END
#define TE__UNKNOWN_B_END

/* ---- definitions ------------------------------------------------------------------------------------------------- */

/* Each of these macros expands to the declarations of a model, to its definitions, or to both. widths: `fixed`, or
 * `dims` if widths are known only at run time; passes: `training` or `inference` (declare.h); of: the list's dtype and
 * options. */
#define TE__DECLARE_AND_DEFINE(...)      TE__DECLARE1(fixed, training, __VA_ARGS__) \
    TE__DEFINE1(fixed, training, __VA_ARGS__)
#define TE__DECLARE_AND_DEFINE_DIMS(...) TE__DECLARE1(dims, training, __VA_ARGS__) \
    TE__DEFINE1(dims, training, __VA_ARGS__)
#define TE__DEFINE(...)      TE__DEFINE1(fixed, training, __VA_ARGS__)
#define TE__DEFINE_DIMS(...) TE__DEFINE1(dims, training, __VA_ARGS__)
#define TE__DEFINE1(widths, passes, link, fwd, bwd, name, dtype, ...) \
    TE__DEFINE2(widths, passes, link, fwd, bwd, name, TE_LIST_OF(dtype), TE_NAME(TE_LIST_OF(dtype)), __VA_ARGS__)
#define TE__DEFINE2(...) TE__DEFINE3(__VA_ARGS__)
#define TE__DEFINE3(widths, passes, link, fwd, bwd, name, of, dtype, cut, marks, ...)                                \
    TE__IF_RECIPE(of, TE_FP8_OPS, TE_NOTHING)                                                                        \
        (name, dtype, TE_OPTION(of, weights, dtype), TE_OPTION(of, rounding, nearest), TE_OPTION(of, recipe, none),  \
            TE__FP8_BACKWARD_OF_##passes)                                                                            \
    TE__IF_RECIPE(of, TE__RECIPE_FACT, TE_NOTHING)(name, TE_LINKS(name, __VA_ARGS__))                                \
    TE__DEFINE_LIST(TE__TRAINING_OF_##passes, TE__PRODUCT_OF_##passes(dtype),                                        \
                TE__IF_RECIPE(of, TE__FP8_OPS_OF, TE__NO_FP8_OPS)(name),                                             \
                TE__QUANTIZED_OPS_OF(dtype, (int)name##_weight_format != (int)TE_BLOCK_none), link, name,             \
                dtype, TE_UNWRAP(marks), TE_LINKS(name, __VA_ARGS__),                                                \
                TE__STEPS_OF_##passes(fwd, (TE__IF_FP8_KERNELS(of, TE__TRAINED_##widths(of), widths), name, dtype,   \
                        forward, forward), TE_UNWRAP(cut)),                                                          \
                TE__INFERENCE_OF_##passes(fwd, (TE__IF_FP8_KERNELS(of, widths##_fp8, widths), name, dtype, forward,  \
                        infer), (widths, name, dtype, forward, shared), cut, TE_INFERRED(__VA_ARGS__)),              \
                TE__STEPS_OF_##passes(bwd, (TE__IF_FP8_KERNELS(of, TE__TRAINED_BACK_##widths(of), widths), name,      \
                        dtype, backward, backward), TE_REVERSE(__VA_ARGS__)))                                         \
    TE__DEFINE_CALLS(widths, link, name)                                                                              \
    TE__DEFINE_##passes(widths, link, name)
/* Expands to `yes` if the list whose options are `of` names a recipe whose kernels handle FP8, else to `no`. Under
 * mxfp8 and nvfp4, only the cast kernels differ from those of a list without a recipe, so these recipes count as
 * `no`. */
#define TE__IF_FP8_KERNELS(of, yes, no) \
    TE_IF_MARKED(TE_JOIN1(TE__FP8_KERNELS_MARK_, TE_OPTION(of, recipe, none_named)), yes, no)
#define TE__FP8_KERNELS_MARK_none ,
#define TE__FP8_KERNELS_MARK_fp8_current ,
#define TE__FP8_KERNELS_MARK_fp8_delayed ,
#define TE__FP8_KERNELS_MARK_fp8_block ,
#define TE__FP8_KERNELS_MARK_fp8_row ,
/* The variants of the pointwise kernels that are compiled for a list with an FP8 recipe: fixed_fp8 or fixed_training.
 * fixed_training adds tile kernels, which quantize and transpose (te/pointwise/impl/pointwise_quantize_transpose.h).
 * Forward steps need tile kernels unless the recipe is fp8_row, because backward may run a forward step a second time
 * to recompute an FP8 operand. Backward steps need tile kernels under fp8_block, where the kernel computes the scales
 * itself, and under fp8_delayed, where the scale is known before the kernel runs. */
#define TE__TRAINED_fixed(of) \
    TE_IF_MARKED(TE_JOIN1(TE__ROWWISE_MARK_, TE_OPTION(of, recipe, none)), fixed_fp8, fixed_training)
#define TE__TRAINED_BACK_fixed(of) \
    TE_IF_MARKED(TE_JOIN1(TE__TENSOR_TILES_MARK_, TE_OPTION(of, recipe, none)), fixed_training, fixed_fp8)
#define TE__TRAINED_dims(of) dims_fp8
#define TE__TRAINED_BACK_dims(of) dims_fp8
#define TE__ROWWISE_MARK_fp8_row ,
#define TE__TENSOR_TILES_MARK_fp8_block ,
#define TE__TENSOR_TILES_MARK_fp8_delayed ,
/* <list>_facts_at(i) returns two facts about op i in one int: the low bits are the op's recipe (a te_recipe), and the
 * higher bits are the op's flags that belong to TE_PASSES_THROUGH. Constant expressions use this function to find the
 * recipe of the op that consumes a step's result. */
#define TE__RECIPE_FACT(name, links) \
    TE_UNUSED TE_BOTH int name##_facts_at(int i) { return (void)i, 0 TE_FOR(TE__RECIPE_AT, links); }
#define TE__RECIPE_AT(model, before, op, after, live) \
    | (i == (int)TE_ID(model, op) ? TE__OPERAND_RECIPE(model, op) | (TE_FLAGS(op) & TE_PASSES_THROUGH) : 0)
/* The recipe under which the preceding kernel may store the operand of `op` in FP8. For an op with experts, which casts
 * its operand itself, this is TE_RECIPE_none. */
#define TE__OPERAND_RECIPE(model, op) (TE_EXPERTS(op) > 0 ? (int)TE_RECIPE_none : (int)TE_RECIPE(model, op))
#define TE__RECIPE_AT_A(...) TE__RECIPE_AT(__VA_ARGS__) TE__RECIPE_AT_B
#define TE__RECIPE_AT_B(...) TE__RECIPE_AT(__VA_ARGS__) TE__RECIPE_AT_A
#define TE__RECIPE_AT_A_END
#define TE__RECIPE_AT_B_END
#define TE__STEPS_OF_training TE_PLAN
#define TE__INFERENCE_OF_training TE_PLAN_BESIDE
#define TE__TRAINING_OF_training te__training
#define TE__FP8_BACKWARD_OF_training te__fp8_backward
#define TE__PRODUCT_OF_training(dtype) TE_GEMM_RUN_OF(TE_##dtype, 1)
#define TE__FP8_OPS_OF(name) &name##_fp8
#define TE__NO_FP8_OPS(name) 0
/* Defines the kernels, the options, the tables of ops, steps and recompute regions, and the plan, which points to the
 * tables. Each table of steps ends with an empty step, because a pass may have no steps and C has no empty arrays. */
#define TE__DEFINE_LIST(training_of, product_of, fp8_ops, quantized_ops, link, model, format, marks, links,            \
                        forward_steps, infer_steps, backward_steps)                                                    \
    enum {                                                                                                             \
        model##_forward_steps = 0 TE_FOR(TE__COUNT, forward_steps),                                                    \
        model##_infer_steps = 0 TE_FOR(TE__COUNT, infer_steps),                                                        \
        model##_backward_steps = 0 TE_FOR(TE__COUNT, backward_steps)                                                   \
    };                                                                                                                 \
    TE_FOR(TE__OPTIONS_ENTRY, links)                                                                                   \
    TE_UNUSED TE_BOTH int model##_fork_uses(int fork) { return (void)fork, 0 TE_FOR(TE__FORK_USE, links); }         \
    TE_FOR(TE__KERNELS, forward_steps) TE_FOR(TE__KERNELS, infer_steps) TE_FOR(TE__KERNELS, backward_steps)            \
    link const te_plan *model##_plan(void) {                                                                           \
        static const te_op ops[] = {TE_FOR(TE__OP_ENTRY, links)};                                                      \
        static const te_step forward_[] = {TE_FOR(TE__STEP_ENTRY, forward_steps) TE__NO_STEP};                         \
        static const te_step infer_[] = {TE_FOR(TE__STEP_ENTRY, infer_steps) TE__NO_STEP};                             \
        static const te_step backward_[] = {TE_FOR(TE__STEP_ENTRY, backward_steps) TE__NO_STEP};                       \
        static const te_recompute_region regions[] = {TE_RECOMPUTE_TABLE(marks) {0, 0, 0}};                            \
        static const te_plan plan = {                                                                                  \
            TE_MEMBER(name, #model),                                                                                   \
            TE_MEMBER(dtype, TE_##format),                                                                             \
            TE_MEMBER(in_dtype, (te_dtype)model##_begin_begin_dtype),                                                  \
            TE_MEMBER(out_dtype, (te_dtype)model##_out_dtype),                                                         \
            TE_MEMBER(in, model##_begin_begin_out),                                                                    \
            TE_MEMBER(out, TE_FOR(TE__LAST_WIDTH, links) 0),                                                           \
            TE_MEMBER(op_count, model##_op_count),                                                                     \
            TE_MEMBER(forward_count, model##_forward_steps),                                                           \
            TE_MEMBER(infer_count, model##_infer_steps),                                                               \
            TE_MEMBER(backward_count, model##_backward_steps),                                                         \
            TE_MEMBER(op, ops),                                                                                        \
            TE_MEMBER(forward, forward_),                                                                              \
            TE_MEMBER(infer, infer_),                                                                                  \
            TE_MEMBER(backward, backward_),                                                                            \
            TE_MEMBER(region_count, (int)(sizeof regions / sizeof regions[0]) - 1),                                    \
            TE_MEMBER(region, regions),                                                                                \
            TE_MEMBER(takes_dims, model##_takes_dims),                                                                 \
            TE_MEMBER(fp8, fp8_ops),                                                                                   \
            TE_MEMBER(quantized, quantized_ops),                                                                       \
            TE_MEMBER(training, training_of),                                                                          \
            TE_MEMBER(product, product_of),                                                                            \
            TE_MEMBER(convert, TE_CONVERT_IN_LIST(model##_is_mixed))};                                                 \
        return &plan;                                                                                                  \
    }
#define TE__NO_STEP {0, 0, 0, {0}, 0}
/* TE__DEFINE_CALLS defines the functions that every model has. */
#define TE__DEFINE_CALLS(widths, link, name)                                                                   \
    link te_status name##_context_create(te_context *ctx, int device, uint64_t seed)                           \
        { return te_context_create(ctx, device, seed); }                                                       \
    TE__SET_DIMS_##widths(link, name, {                                                                        \
        TE_TRY(te_plan_set_dims(m ? &m->te_sized : 0, m ? m->te_ops : 0, name##_plan(), dims, count, ctx));    \
        m->model.plan = 0; /* the instance must be bound again */                                              \
        return TE_OK;                                                                                          \
    })                                                                                                         \
    link size_t name##_param_bytes(TE__ALONE_##widths(name))                                                   \
        { return te_plan_param_bytes(TE__PLAN_OF_##widths(name)); }                                            \
    link size_t name##_workspace_bytes(const name *m, int64_t rows, te_context *ctx) {                         \
        return te_plan_workspace_bytes(TE__PLAN_OF_##widths(name), m ? &m->model : 0, rows, ctx);              \
    }                                                                                                          \
    link te_status name##_infer(te_tensor y, te_tensor x, const name *m, const te_batch *b, te_context *ctx) { \
        return te_plan_infer(y, x, TE__PLAN_OF_##widths(name), m ? &m->model : 0, b, ctx);                     \
    }
/* TE__DEFINE_training defines the functions that only a model with forward and backward has. */
#define TE__DEFINE_training(widths, link, name)                                                                        \
    link size_t name##_grad_bytes(TE__ALONE_##widths(name)) { return te_plan_grad_bytes(TE__PLAN_OF_##widths(name)); } \
    link size_t name##_saved_bytes(TE__BEFORE_##widths(name) int64_t rows)                                             \
        { return te_plan_saved_bytes(TE__PLAN_OF_##widths(name), rows); }                                              \
    link te_status name##_bind(name *m, void *params, float *grads, te_context *ctx) {                                 \
        return te__bind_instance(m ? &m->model : 0, m ? &m->te_end : 0, TE__PLAN_OF_##widths(name), params, grads,     \
            ctx);                                                                                                      \
    }                                                                                                                  \
    link te_status name##_forward(te_tensor y, name##_saved *saved, te_tensor x, const name *m, const te_batch *b,     \
        te_context *ctx) {                                                                                             \
        if (!saved) return te_fail(ctx, TE_ERROR_NULL, #name "_forward: saved is null; " #name "_infer needs none");   \
        return te_plan_forward(y, saved, x, TE__PLAN_OF_##widths(name), m ? &m->model : 0, b, ctx);                    \
    }                                                                                                                  \
    link te_status name##_backward(te_tensor dx, te_tensor dy, const name##_saved *saved, const name *m,               \
        const te_batch *b, te_context *ctx) {                                                                          \
        return te_plan_backward(dx, dy, saved, TE__PLAN_OF_##widths(name), m ? &m->model : 0, b, ctx);                 \
    }                                                                                                                  \
    link void name##_print_plan(FILE *file TE__BEHIND_##widths(name))                                                  \
        { te_plan_print(file, TE__PLAN_OF_##widths(name)); }

/* For the last op of the list, the macro expands to the width of the op's output, followed by +; for every other op it
 * expands to nothing. The sum over all ops is therefore the width of the last op's output. */
#define TE__LAST_WIDTH(model, before, op, after, live) TE_IF_END(after, TE_STRIP, TE_NOTHING)(TE_WIDTH_OUT(model, op) +)
#define TE__LAST_WIDTH_A(...) TE__LAST_WIDTH(__VA_ARGS__) TE__LAST_WIDTH_B
#define TE__LAST_WIDTH_B(...) TE__LAST_WIDTH(__VA_ARGS__) TE__LAST_WIDTH_A
#define TE__LAST_WIDTH_A_END
#define TE__LAST_WIDTH_B_END

/* Expands to the initialiser of one te_op in the model's table of ops. */
#define TE__OP_ENTRY(model, before, op, after, live)                                                                  \
    {TE_MEMBER(kind, TE_STRING(TE_KIND(op))),                                                                         \
     TE_MEMBER(name, TE_STRING(TE_NAME(op))),                                                                         \
     TE_MEMBER(op_class, TE_JOIN1(TE_CLASS_, TE_CLASS(op))),                                                          \
     TE_MEMBER(in, TE_WIDTH_IN(model, op)),                                                                           \
     TE_MEMBER(out, TE_WIDTH_OUT(model, op)),                                                                         \
     TE_MEMBER(in_dtype, (te_dtype)TE_DTYPE_IN(model, op)),                                                           \
     TE_MEMBER(out_dtype, (te_dtype)TE_DTYPE_OUT(model, op)),                                                         \
     TE_MEMBER(in_rows, (te_rows)TE_ROWS_IN(model, op)),                                                              \
     TE_MEMBER(out_rows, (te_rows)TE_ROWS_OUT(model, op)),                                                            \
     TE_MEMBER(edge_dtype, (te_dtype)TE_EDGE_DTYPE(model, op)),                                                       \
     TE_MEMBER(flags, TE_FLAGS(op)),                                                                                  \
     TE_MEMBER(recipe, (te_recipe)TE_RECIPE(model, op)),                                                              \
     TE_MEMBER(weights, (te_block_format)TE_BLOCK_WEIGHTS(model, op)),                                                \
     TE_MEMBER(stats, TE_STATS(op)),                                                                                  \
     TE_MEMBER(layout, (te_rank_layout)TE_LAYOUT_OUT(model, op)),                                                     \
     TE_MEMBER(parts, TE_PARTS(op)),                                                                                  \
     TE_MEMBER(first_part, TE_FIRST_PART(op)),                                                                        \
     TE_MEMBER(copies, TE_COPIES(op)),                                                                                \
     TE_MEMBER(ranks, TE_RANKS(op)),                                                                                  \
     TE_MEMBER(context, TE_CONTEXT(op)),                                                                              \
     TE_MEMBER(edge, TE_EDGE_INDEX(model, op)),                                                                       \
     TE_MEMBER(experts, TE_EXPERTS(op)),                                                                              \
     TE_MEMBER(options, &TE__OPTIONS_NAME(model, op)),                                                                \
     TE_MEMBER(options_bytes, (int)sizeof TE__OPTIONS_NAME(model, op)),                                               \
     TE_MEMBER(params, 0 TE__PARAMS(TE__PLUS_ONE, TE_PARAMS(op, TE_WIDTH_IN(model, op), TE_WIDTH_OUT(model, op)))),   \
     TE_MEMBER(param, {TE__PARAMS(TE__PARAM_INFO, TE_PARAMS(op, TE_WIDTH_IN(model, op), TE_WIDTH_OUT(model, op)))     \
         {0, 0, 0, TE_INIT_zero, 0}})},
#define TE__PARAMS(M, params) TE__PARAMS2(M, TE_UNWRAP(params))
#define TE__PARAMS2(...) TE__PARAMS3(__VA_ARGS__)
#define TE__PARAMS3(M, ...) TE_IF_END(TE_FIRST(__VA_ARGS__, ~), TE_NOTHING, TE_EACH_OP)(M, ~, __VA_ARGS__)
#define TE__PLUS_ONE(x, i, param) +1
#define TE__PARAM_INFO(x, i, param) TE__PARAM_INFO2(TE_STRIP param)
#define TE__PARAM_INFO2(...) TE__PARAM_INFO3(__VA_ARGS__)
#define TE__PARAM_INFO3(field, rows, cols, init) {#field, rows, cols, TE_INIT_##init, \
    (int)TE_INIT_##init == (int)TE_INIT_tied},
#define TE__OP_ENTRY_A(...) TE__OP_ENTRY(__VA_ARGS__) TE__OP_ENTRY_B
#define TE__OP_ENTRY_B(...) TE__OP_ENTRY(__VA_ARGS__) TE__OP_ENTRY_A
#define TE__OP_ENTRY_A_END
#define TE__OP_ENTRY_B_END

/* The constant TE__OPTIONS_NAME has the options of one op of a model; te_op.options points to this constant.
 * TE__OPTIONS_ENTRY is the definition of the constant. */
#define TE__OPTIONS_NAME(model, op) TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), options)
#define TE__OPTIONS_ENTRY(model, before, op, after, live) \
    static const TE_OPTIONS_TYPE(op) TE__OPTIONS_NAME(model, op) = TE_OPTIONS_VALUES(op);
#define TE__OPTIONS_ENTRY_A(...) TE__OPTIONS_ENTRY(__VA_ARGS__) TE__OPTIONS_ENTRY_B
#define TE__OPTIONS_ENTRY_B(...) TE__OPTIONS_ENTRY(__VA_ARGS__) TE__OPTIONS_ENTRY_A
#define TE__OPTIONS_ENTRY_A_END
#define TE__OPTIONS_ENTRY_B_END

/* Expands to `+ 1` if the op uses the value of fork number `fork`. The sum over all ops is the number of ops that use
 * the fork's value. */
#define TE__FORK_USE(model, before, op, after, live) \
    TE_IF_MARKED(TE_JOIN1(TE__USES_FORK_, TE_FAMILY(op)), TE__FORK_USE2, TE_NOTHING)(model, op)
#define TE__FORK_USE2(model, op) +(fork == (int)TE_EDGE_INDEX(model, op))
#define TE__USES_FORK_add ,
#define TE__USES_FORK_mul ,
#define TE__USES_FORK_load ,
#define TE__USES_FORK_cross_attention ,
#define TE__USES_FORK_concat ,
#define TE__USES_FORK_modulate ,
#define TE__FORK_USE_A(...) TE__FORK_USE(__VA_ARGS__) TE__FORK_USE_B
#define TE__FORK_USE_B(...) TE__FORK_USE(__VA_ARGS__) TE__FORK_USE_A
#define TE__FORK_USE_A_END
#define TE__FORK_USE_B_END

/* The following macros make the tables of a plan's steps. Their parameter x is (widths, model, dtype, pass, suffix).
 * The kernels of a step are called model_firstop_pattern, and _infer or _backward is appended in the inference and
 * backward passes. An inference step that is also a step of forward (suffix `shared`) uses forward's kernels. */

/* Expands to +1 for each step. The sum over all steps is the number of steps. */
#define TE__COUNT(x, ...) +1
#define TE__COUNT_A(...) TE__COUNT(__VA_ARGS__) TE__COUNT_B
#define TE__COUNT_B(...) TE__COUNT(__VA_ARGS__) TE__COUNT_A
#define TE__COUNT_A_END
#define TE__COUNT_B_END

#define TE__STEP_NAME(x, ...) \
    TE__STEP_NAME2(TE_UNWRAP(x), TE_NAME(TE_FIRST_OP(__VA_ARGS__)), TE_PATTERN_NAME(__VA_ARGS__))
#define TE__STEP_NAME2(...) TE__STEP_NAME3(__VA_ARGS__)
#define TE__STEP_NAME3(widths, model, dtype, pass, suffix, first, pattern) \
    TE_JOIN1(TE__STEP_NAME_, suffix)(model, first, pattern)
#define TE__STEP_NAME_forward(model, first, pattern) TE_JOIN3(, model, first, pattern)
#define TE__STEP_NAME_shared TE__STEP_NAME_forward
#define TE__STEP_NAME_infer(model, first, pattern) TE_JOIN4(, model, first, pattern, infer)
#define TE__STEP_NAME_backward(model, first, pattern) TE_JOIN4(, model, first, pattern, backward)

#define TE__STEP_ENTRY(x, ...)                                                                                        \
    {TE_MEMBER(pattern, TE_STRING(TE_PATTERN_NAME(__VA_ARGS__))),                                                     \
     TE_MEMBER(kernels, TE_STRING(TE__STEP_NAME(x, __VA_ARGS__))),                                                    \
     TE_MEMBER(count, TE_OP_COUNT(__VA_ARGS__)),                                                                      \
     TE_MEMBER(op, {TE_EACH_OP(TE__STEP_INDEX, TE_SECOND(TE_UNWRAP(x), ~), __VA_ARGS__)}),                            \
     TE_MEMBER(run, TE_JOIN2(, TE__STEP_NAME(x, __VA_ARGS__), run))},
#define TE__STEP_ENTRY_A(...) TE__STEP_ENTRY(__VA_ARGS__) TE__STEP_ENTRY_B
#define TE__STEP_ENTRY_B(...) TE__STEP_ENTRY(__VA_ARGS__) TE__STEP_ENTRY_A
#define TE__STEP_ENTRY_A_END
#define TE__STEP_ENTRY_B_END
#define TE__STEP_INDEX(model, i, op) TE_ID(model, op),

#endif
