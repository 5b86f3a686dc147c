/* sequential.h -- TE_SEQUENTIAL: a list of ops becomes a struct, functions and kernels.
 *
 * Do this:
 *     TE_SEQUENTIAL(mlp, bf16, (layernorm, ln, 768), (linear, fc1, 768, 3072), (bias, fc1_b, 3072), (gelu, act))
 *     static mlp m;
 *     TE_TRY(mlp_bind(&m, params, grads, &ctx));
 *     TE_TRY(mlp_forward(y, &saved, x, &m, &batch, &ctx));
 *     TE_TRY(mlp_backward(dx, dy, &saved, &m, &batch, &ctx));
 *
 * Or, for an application in plain C beside a .cu: TE_DECLARE(mlp, bf16, ...) in a header gives the types and prototypes,
 * TE_DEFINE(mlp, bf16, ...) in one file the functions, with C linkage.
 *
 * What `name` stands for below:
 *     name, name_saved               the instance (m.fc1.weight is a te_param); what a forward keeps
 *     name_forward_steps, name_infer_steps, name_backward_steps     constants
 *     name_context_create            a context of the target that the functions were compiled for
 *     name_plan()                    the op table and the plans
 *     name_param_bytes, name_grad_bytes, name_saved_bytes, name_workspace_bytes
 *     name_bind, name_forward, name_infer, name_backward, name_print_plan
 *
 * A list with widths that are known only at run time is made by TE_SEQUENTIAL_DIMS, TE_DECLARE_DIMS, TE_DEFINE_DIMS
 * (dims.h). name_set_dims comes first; name_param_bytes, name_grad_bytes and name_print_plan take the instance at their
 * end, name_saved_bytes in front of the rows.
 */
#ifndef TE_FUSE_SEQUENTIAL_H
#define TE_FUSE_SEQUENTIAL_H

#include "../plan/dims.h"  /* TE_DIM, te_plan_set_dims */
#include "../plan/print.h" /* te_plan_print */
#include "../plan/walk.h"  /* te_plan_forward, te_plan_backward */
#include "fusions.h"       /* TE_FORWARD_<row>, TE_BACKWARD_<row> */
#include "kernels.h"       /* TE__KERNELS */
#include "plan.h"          /* TE_PLAN, TE_LINKS */
#include "spans.h"         /* TE_SPAN_CHECKS, TE_SPAN_TABLE */

#define TE_SEQUENTIAL(name, dtype, ...) TE_SEQUENTIAL_WITH(TE_FORWARD_, TE_BACKWARD_, name, dtype, __VA_ARGS__)
/* The same with fusion lists of one's own: the prefixes of the rows. TE_UNFUSED_ has none, so each op is a step. */
#define TE_SEQUENTIAL_WITH(rows, rows_backward, name, dtype, ...)                                               \
    TE__CHECKED(TE__DECLARE_AND_DEFINE, static TE_UNUSED, rows, rows_backward, name, dtype, __VA_ARGS__)
#define TE_DECLARE(name, dtype, ...) TE__CHECKED(TE__DECLARE, TE_EXTERN_C, TE_FORWARD_, TE_BACKWARD_, name, dtype, __VA_ARGS__)
#define TE_DEFINE(name, dtype, ...)  TE__CHECKED(TE__DEFINE, TE_EXTERN_C, TE_FORWARD_, TE_BACKWARD_, name, dtype, __VA_ARGS__)
/* The same for lists with widths that are known only at run time. */
#define TE_SEQUENTIAL_DIMS(name, dtype, ...) TE_SEQUENTIAL_DIMS_WITH(TE_FORWARD_, TE_BACKWARD_, name, dtype, __VA_ARGS__)
#define TE_SEQUENTIAL_DIMS_WITH(rows, rows_backward, name, dtype, ...)                                          \
    TE__CHECKED(TE__DECLARE_AND_DEFINE_DIMS, static TE_UNUSED, rows, rows_backward, name, dtype, __VA_ARGS__)
#define TE_DECLARE_DIMS(name, dtype, ...) TE__CHECKED(TE__DECLARE_DIMS, TE_EXTERN_C, TE_FORWARD_, TE_BACKWARD_, name, dtype, __VA_ARGS__)
#define TE_DEFINE_DIMS(name, dtype, ...)  TE__CHECKED(TE__DEFINE_DIMS, TE_EXTERN_C, TE_FORWARD_, TE_BACKWARD_, name, dtype, __VA_ARGS__)

/* ---- mistakes that names can show come first, and alone --------------------------------------------------------- */

#define TE__CHECKED(make, link, rows, rows_b, name, dtype, ...)                                                  \
    TE_IF_END(TE_EXCESS(__VA_ARGS__), TE__CHECKED2, TE__TOO_LONG)(make, link, rows, rows_b, name, dtype, __VA_ARGS__)
#define TE__TOO_LONG(make, link, rows, rows_b, name, ...) \
    static_assert(0, "te: " #name ": the list is too long; it holds 96 ops at most");
#define TE__CHECKED2(make, link, rows, rows_b, name, dtype, ...) TE__CHECKED3(make, link, rows, rows_b, name, dtype, (TE_SPECIAL(__VA_ARGS__)), __VA_ARGS__)
#define TE__CHECKED3(make, link, rows, rows_b, name, dtype, special, ...) \
    TE_IF_TUPLE(TE_UNWRAP(special), TE__CHECKED4, TE__UNMARKED)(make, link, rows, rows_b, name, dtype, __VA_ARGS__)
#define TE__CHECKED4(make, link, rows, rows_b, name, dtype, ...) TE__CHECKED5(make, link, rows, rows_b, name, dtype, (TE_UNKNOWN_IN(name, __VA_ARGS__)), __VA_ARGS__)
#define TE__CHECKED5(make, link, rows, rows_b, name, dtype, unknown, ...) \
    TE_IF_TUPLE(TE_UNWRAP(unknown), TE__UNKNOWN_OPS, TE__MARKED)(make, link, rows, rows_b, name, dtype, unknown, __VA_ARGS__)
/* From here on the list has no marks in it; `cut` is the list with them, for the forward walk, `marks` its links, if it has any. */
#define TE__UNMARKED(make, link, rows, rows_b, name, dtype, ...) make(link, rows, rows_b, name, dtype, (__VA_ARGS__), (), __VA_ARGS__)
#define TE__MARKED(make, link, rows, rows_b, name, dtype, unknown, ...) \
    make(link, rows, rows_b, name, dtype, (__VA_ARGS__), (TE_LINKS(name, __VA_ARGS__)), TE_UNMARKED(__VA_ARGS__))
#define TE__UNKNOWN_OPS(make, link, rows, rows_b, name, dtype, unknown, ...) TE_FOR(TE__UNKNOWN, TE_UNWRAP(unknown))
#define TE_UNKNOWN_IN(name, ...) TE_UNKNOWN_IN_(name, __VA_ARGS__, TE_ENDS)
#define TE_UNKNOWN_IN_(...) TE_EVAL(TE_KNOW_IN(__VA_ARGS__))
#define TE_KNOW_IN(name, a, ...) TE_IF_END(a, TE_STOP, TE_KNOW_IN1)(name, a, __VA_ARGS__)
#define TE_KNOW_IN1(name, a, ...) TE_IF_TUPLE(TE_KIND_INFO(a), TE_NOTHING, TE_STRIP)((name, a)) TE_KNOW_IN_ TE_PARENS (name, __VA_ARGS__)
#define TE_KNOW_IN_() TE_KNOW_IN
#define TE__UNKNOWN(name, op) static_assert(0, "te: " #name ": unknown op (" TE_STRING(TE_KIND(op)) ", " TE_STRING(TE_NAME(op)) ")");
#define TE__UNKNOWN_A(...) TE__UNKNOWN(__VA_ARGS__) TE__UNKNOWN_B
#define TE__UNKNOWN_B(...) TE__UNKNOWN(__VA_ARGS__) TE__UNKNOWN_A
#define TE__UNKNOWN_A_END
#define TE__UNKNOWN_B_END

/* ---- names: model_family_name_.. -------------------------------------------------------------------------------- */

#define TE_OP_begin (begin, begin)
#define TE_ID(model, op)        TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), index)
#define TE_WIDTH_IN(model, op)  TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), in)
#define TE_WIDTH_OUT(model, op) TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), out)
#define TE_DTYPE_OUT(model, op) TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), dtype)
#define TE_DTYPE_IN(model, op)  TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), in_dtype)
#define TE_ROWS_OUT(model, op)  TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), rows)
#define TE_ROWS_IN(model, op)   TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), in_rows)
#define TE_EDGE_INDEX(model, op) TE_FIRST(TE_UNWRAP(TE_EDGE(model, op)), ~)
#define TE_EDGE_DTYPE(model, op) TE_SECOND(TE_UNWRAP(TE_EDGE(model, op)), ~)

/* What stands where a list's dtype does, (bf16, (residual, f32), ..) or bf16 alone, as a tuple with options. */
#define TE_LIST_OF(dtype) TE_IF_TUPLE(dtype, TE_LIST_OF_TUPLE, TE_LIST_OF_TOKEN)(dtype)
#define TE_LIST_OF_TUPLE(dtype) (list, TE_STRIP dtype)
#define TE_LIST_OF_TOKEN(dtype) (list, dtype)
#define TE_OP_list (list, list)
#define TE_TAKES_list_in TE_TOKEN
#define TE_TAKES_list_out TE_TOKEN
#define TE_TAKES_list_residual TE_TOKEN

/* ---- declarations ----------------------------------------------------------------------------------------------- */

/* `widths` is fixed or dims: what of a model depends on whether its widths are known at compile time. */
#define TE__TAKES_DIMS_fixed 0
#define TE__TAKES_DIMS_dims 1
#define TE__FIELDS_OF_fixed(name)
#define TE__FIELDS_OF_dims(name) te_plan te_sized; te_op te_ops[name##_op_count]; /* set by name_set_dims */
#define TE__SET_DIMS_fixed(link, name, ...)
#define TE__SET_DIMS_dims(link, name, ...) link te_status name##_set_dims(name *m, const int64_t *dims, int count, te_context *ctx) __VA_ARGS__
#define TE__ALONE_fixed(name) void
#define TE__ALONE_dims(name) const name *m
#define TE__BEFORE_fixed(name)
#define TE__BEFORE_dims(name) const name *m,
#define TE__BEHIND_fixed(name)
#define TE__BEHIND_dims(name) , const name *m
#define TE__PLAN_OF_fixed(name) name##_plan()
#define TE__PLAN_OF_dims(name) te_plan_at(m ? &m->te_sized : 0, name##_plan())

#define TE__DECLARE(...)      TE__DECLARE1(fixed, __VA_ARGS__)
#define TE__DECLARE_DIMS(...) TE__DECLARE1(dims, __VA_ARGS__)
#define TE__DECLARE1(widths, link, rows, rows_b, name, dtype, cut, marks, ...) \
    TE__DECLARE2(widths, link, name, TE_LIST_OF(dtype), TE_UNWRAP(marks), TE_LINKS(name, __VA_ARGS__))
#define TE__DECLARE2(widths, link, name, of, marks, links)                                                           \
    TE_CHECK_OPTIONS(name, list, of)                                                                                 \
    enum {                                                                                                           \
        name##_takes_dims = TE__TAKES_DIMS_##widths,                                                                 \
        name##_begin_begin_out = TE_FOR(TE__FIRST_WIDTH, links) 0,                                                   \
        name##_before_op_0 = -1,                                                                                     \
        TE_FOR(TE__WIDTHS, links) name##_op_count                                                                    \
    };                                                                                                               \
    enum {                                                                                                           \
        name##_dtype = (int)TE_DTYPE_OF(TE_NAME(of)),                                                                \
        name##_residual_dtype = (int)TE_DTYPE_OPTION(of, residual, (int)name##_dtype),                               \
        name##_out_option = (int)TE_DTYPE_OPTION(of, out, -1),                                                       \
        name##_first_wants = TE_FOR(TE__FIRST_WANTS, links) 0,                                                       \
        name##_begin_begin_dtype = (int)TE_DTYPE_OPTION(of, in, (int)name##_first_wants),                            \
        name##_begin_begin_rows = TE_ROWS_tokens,                                                                    \
        TE_FOR(TE__FORMATS, links)                                                                                   \
        name##_last_dtype = TE_FOR(TE__LAST_DTYPE, links) 0,                                                         \
        name##_out_dtype = (int)name##_out_option >= 0 ? (int)name##_out_option : (int)name##_last_dtype             \
    };                                                                                                               \
    TE_FOR(TE__CHECKS, links)                                                                                        \
    TE_SPAN_CHECKS(name, marks)                                                                                      \
    typedef struct name {                                                                                            \
        te_model model;                                                                                              \
        TE_FOR(TE__FIELDS, links)                                                                                    \
        te_param te_end; /* of the parameters */                                                                     \
        TE__FIELDS_OF_##widths(name)                                                                                 \
    } name;                                                                                                          \
    typedef te_saved name##_saved;                                                                                   \
    link te_status name##_context_create(te_context *ctx, int device, uint64_t seed);                                \
    link const te_plan *name##_plan(void);                                                                           \
    TE__SET_DIMS_##widths(link, name, ;)                                                                             \
    link size_t name##_param_bytes(TE__ALONE_##widths(name));                                                        \
    link size_t name##_grad_bytes(TE__ALONE_##widths(name));                                                         \
    link size_t name##_saved_bytes(TE__BEFORE_##widths(name) int64_t rows);                                          \
    link size_t name##_workspace_bytes(const name *m, int64_t rows, te_context *ctx);                                \
    link te_status name##_bind(name *m, void *params, float *grads, te_context *ctx);                                \
    link te_status name##_forward(te_tensor y, name##_saved *saved, te_tensor x, const name *m, const te_batch *b, te_context *ctx); \
    link te_status name##_infer(te_tensor y, te_tensor x, const name *m, const te_batch *b, te_context *ctx);        \
    link te_status name##_backward(te_tensor dx, te_tensor dy, const name##_saved *saved, const name *m, const te_batch *b, te_context *ctx); \
    link void name##_print_plan(FILE *file TE__BEHIND_##widths(name));

/* The width at the list's begin is what its first op that knows one declares. */
#define TE__FIRST_WIDTH(model, before, op, after, live) (TE_IN(op)) != 0 ? (TE_IN(op)) :
#define TE__FIRST_WIDTH_A(...) TE__FIRST_WIDTH(__VA_ARGS__) TE__FIRST_WIDTH_B
#define TE__FIRST_WIDTH_B(...) TE__FIRST_WIDTH(__VA_ARGS__) TE__FIRST_WIDTH_A
#define TE__FIRST_WIDTH_A_END
#define TE__FIRST_WIDTH_B_END

#define TE__WIDTHS(model, before, op, after, live)                                               \
    TE_ID(model, op), TE_WIDTH_IN(model, op) = TE_WIDTH_OUT(model, before),                      \
    TE_WIDTH_OUT(model, op) = TE_OUT(op, TE_WIDTH_IN(model, op)),                                \
    TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), behind) = TE_ID(model, op),
#define TE__WIDTHS_A(...) TE__WIDTHS(__VA_ARGS__) TE__WIDTHS_B
#define TE__WIDTHS_B(...) TE__WIDTHS(__VA_ARGS__) TE__WIDTHS_A
#define TE__WIDTHS_A_END
#define TE__WIDTHS_B_END

/* The number format and the rows of each edge. An op stores what the next one reads best, if it says that it matters. */
#define TE__FORMATS(model, before, op, after, live)                                                                  \
    TE_DTYPE_IN(model, op) = TE_DTYPE_OUT(model, before),                                                            \
    TE_ROWS_IN(model, op) = TE_ROWS_OUT(model, before),                                                              \
    TE_DTYPE_OUT(model, op) = TE__FORMAT(model, (int)TE_GIVES(op), (int)TE_WANTS(live), TE_DTYPE_IN(model, op)),     \
    TE_ROWS_OUT(model, op) = TE_ROWS(op, TE_ROWS_IN(model, op)),
#define TE__FORMAT(model, gives, wants, in)                                                                          \
    ((gives) == (int)TE_GIVES_same ? (int)in : (gives) == (int)TE_GIVES_f32 ? (int)TE_f32                            \
     : (wants) == (int)TE_GIVES_same && (int)model##_out_option >= 0 ? (int)model##_out_option                       \
     : (gives) == (int)TE_GIVES_residual || (wants) == (int)TE_GIVES_residual ? (int)model##_residual_dtype          \
     : (int)model##_dtype)
#define TE_WANTS_end(op) (TE_GIVES_same) /* what the list gives */
#define TE__FORMATS_A(...) TE__FORMATS(__VA_ARGS__) TE__FORMATS_B
#define TE__FORMATS_B(...) TE__FORMATS(__VA_ARGS__) TE__FORMATS_A
#define TE__FORMATS_A_END
#define TE__FORMATS_B_END
/* x has the format that the first op wants. */
#define TE__FIRST_WANTS(model, before, op, after, live) \
    TE_IF_MARKED(TE_JOIN1(TE__IS_BEGIN_, TE_KIND(before)), TE_STRIP, TE_NOTHING)(TE__FORMAT(model, (int)TE_GIVES_list, (int)TE_WANTS(op), 0) +)
#define TE__IS_BEGIN_begin ,
#define TE__FIRST_WANTS_A(...) TE__FIRST_WANTS(__VA_ARGS__) TE__FIRST_WANTS_B
#define TE__FIRST_WANTS_B(...) TE__FIRST_WANTS(__VA_ARGS__) TE__FIRST_WANTS_A
#define TE__FIRST_WANTS_A_END
#define TE__FIRST_WANTS_B_END
#define TE__LAST_DTYPE(model, before, op, after, live) TE_IF_END(after, TE_STRIP, TE_NOTHING)(TE_DTYPE_OUT(model, op) +)
#define TE__LAST_DTYPE_A(...) TE__LAST_DTYPE(__VA_ARGS__) TE__LAST_DTYPE_B
#define TE__LAST_DTYPE_B(...) TE__LAST_DTYPE(__VA_ARGS__) TE__LAST_DTYPE_A
#define TE__LAST_DTYPE_A_END
#define TE__LAST_DTYPE_B_END

#define TE__CHECKS(model, before, op, after, live)                                                                    \
    static_assert(TE_IN(op) == 0 || TE_IN(op) == (int)TE_WIDTH_OUT(model, before),                                    \
                  "te: " #model ": " TE_CALLED(op) " does not take the width that " TE_CALLED(before) " gives");      \
    static_assert(TE_IS_WIDTH(model, (int)TE_WIDTH_OUT(model, op)), "te: " #model ": " TE_CALLED(op) " has no width"); \
    static_assert(!TE_IS_DIM((int)TE_WIDTH_OUT(model, op)) || (int)model##_takes_dims,                                \
                  "te: " #model ": " TE_CALLED(op) " has a width that is known only at run time, which takes TE_SEQUENTIAL_DIMS"); \
    static_assert(!TE__IS_CLASS(op, own) || TE_IF_MARKED(TE_JOIN1(TE_TAKES_DIMS_, TE_FAMILY(op)), 1, 0) ||            \
                      ((int)TE_WIDTH_IN(model, op) > 0 && (int)TE_WIDTH_OUT(model, op) > 0),                          \
                  "te: " #model ": " TE_CALLED(op) " takes no width that is known only at run time");                 \
    static_assert(!(TE_IF_END(after, 1, 0) && (TE_FLAGS(op) & TE_IS_FORK)), "te: " #model ": " TE_CALLED(op) " must not end the list"); \
    TE_CHECK_OPTIONS(model, TE_FAMILY(op), op)                                                                        \
    TE_CHECK(model, op)
#define TE__CHECKS_A(...) TE__CHECKS(__VA_ARGS__) TE__CHECKS_B
#define TE__CHECKS_B(...) TE__CHECKS(__VA_ARGS__) TE__CHECKS_A
#define TE__CHECKS_A_END
#define TE__CHECKS_B_END

/* struct { te_param weight, ...; } fc1; nothing if the op has no parameters. */
#define TE__FIELDS(model, before, op, after, live) TE__FIELDS2(op, TE_UNWRAP(TE_PARAMS(op, 0, 0)))
#define TE__FIELDS2(...) TE__FIELDS3(__VA_ARGS__)
#define TE__FIELDS3(op, ...) TE_IF_END(TE_FIRST(__VA_ARGS__, ~), TE_NOTHING, TE__FIELDS_OF)(op, __VA_ARGS__)
#define TE__FIELDS_OF(op, ...) struct { TE_ROW(TE__FIELD, ~, __VA_ARGS__) } TE_NAME(op);
#define TE__FIELD(x, i, param) te_param TE_KIND(param);
#define TE__FIELDS_A(...) TE__FIELDS(__VA_ARGS__) TE__FIELDS_B
#define TE__FIELDS_B(...) TE__FIELDS(__VA_ARGS__) TE__FIELDS_A
#define TE__FIELDS_A_END
#define TE__FIELDS_B_END

/* ---- definitions ------------------------------------------------------------------------------------------------- */

#define TE__DECLARE_AND_DEFINE(...)      TE__DECLARE1(fixed, __VA_ARGS__) TE__DEFINE1(fixed, __VA_ARGS__)
#define TE__DECLARE_AND_DEFINE_DIMS(...) TE__DECLARE1(dims, __VA_ARGS__) TE__DEFINE1(dims, __VA_ARGS__)
#define TE__DEFINE(...)      TE__DEFINE1(fixed, __VA_ARGS__)
#define TE__DEFINE_DIMS(...) TE__DEFINE1(dims, __VA_ARGS__)
#define TE__DEFINE1(widths, link, rows, rows_b, name, dtype, ...) \
    TE__DEFINE2(widths, link, rows, rows_b, name, TE_NAME(TE_LIST_OF(dtype)), __VA_ARGS__)
#define TE__DEFINE2(...) TE__DEFINE3(__VA_ARGS__)
#define TE__DEFINE3(widths, link, rows, rows_b, name, dtype, cut, marks, ...)                                        \
    TE__DEFINE4(widths, link, name, dtype, TE_UNWRAP(marks), TE_LINKS(name, __VA_ARGS__),                            \
                TE_PLAN(rows, (widths, name, dtype, forward, forward), TE_UNWRAP(cut)),                              \
                TE_PLAN(rows, (widths, name, dtype, forward, infer), TE_INFERENCE(__VA_ARGS__)),                     \
                TE_PLAN(rows_b, (widths, name, dtype, backward, backward), TE_REVERSE(__VA_ARGS__)))
#define TE__DEFINE4(widths, link, name, dtype, marks, links, forward, infer, backward)                               \
    enum {                                                                                                           \
        name##_forward_steps = 0 TE_FOR(TE__COUNT, forward),                                                         \
        name##_infer_steps = 0 TE_FOR(TE__COUNT, infer),                                                             \
        name##_backward_steps = 0 TE_FOR(TE__COUNT, backward)                                                        \
    };                                                                                                               \
    TE_FOR(TE__OPTIONS_ENTRY, links)                                                                                 \
    TE_FOR(TE__KERNELS, forward) TE_FOR(TE__KERNELS, infer) TE_FOR(TE__KERNELS, backward)                            \
    link const te_plan *name##_plan(void) {                                                                          \
        static const te_op ops[] = {TE_FOR(TE__OP_ENTRY, links)};                                                    \
        static const te_step forward_[] = {TE_FOR(TE__STEP_ENTRY, forward)};                                         \
        static const te_step infer_[] = {TE_FOR(TE__STEP_ENTRY, infer)};                                             \
        static const te_step backward_[] = {TE_FOR(TE__STEP_ENTRY, backward)};                                       \
        static const te_span spans[] = {TE_SPAN_TABLE(marks) {0, 0, 0}};                                             \
        static const te_plan plan = {#name, TE_##dtype, (te_dtype)name##_begin_begin_dtype, (te_dtype)name##_out_dtype, \
                                     name##_begin_begin_out, TE_FOR(TE__LAST_WIDTH, links) 0, name##_op_count,       \
                                     name##_forward_steps, name##_infer_steps, name##_backward_steps, ops, forward_, \
                                     infer_, backward_, (int)(sizeof spans / sizeof spans[0]) - 1, spans, name##_takes_dims}; \
        return &plan;                                                                                                \
    }                                                                                                                \
    link te_status name##_context_create(te_context *ctx, int device, uint64_t seed) { return te_context_create(ctx, device, seed); } \
    TE__SET_DIMS_##widths(link, name, {                                                                              \
        TE_TRY(te_plan_set_dims(m ? &m->te_sized : 0, m ? m->te_ops : 0, name##_plan(), dims, count, ctx));          \
        m->model.plan = 0; /* to be bound, or bound again */                                                         \
        return TE_OK;                                                                                                \
    })                                                                                                               \
    link size_t name##_param_bytes(TE__ALONE_##widths(name)) { return te_plan_param_bytes(TE__PLAN_OF_##widths(name)); } \
    link size_t name##_grad_bytes(TE__ALONE_##widths(name)) { return te_plan_grad_bytes(TE__PLAN_OF_##widths(name)); } \
    link size_t name##_saved_bytes(TE__BEFORE_##widths(name) int64_t rows) { return te_plan_saved_bytes(TE__PLAN_OF_##widths(name), rows); } \
    link size_t name##_workspace_bytes(const name *m, int64_t rows, te_context *ctx) {                               \
        return te_plan_workspace_bytes(TE__PLAN_OF_##widths(name), &m->model, rows, ctx);                                         \
    }                                                                                                                \
    link te_status name##_bind(name *m, void *params, float *grads, te_context *ctx) {                               \
        te_param *first = (te_param *)(m ? (char *)m + sizeof(te_model) : 0);                                        \
        return te_model_bind(m ? &m->model : 0, TE__PLAN_OF_##widths(name), first, m ? (int)(&m->te_end - first) : 0, params, grads, ctx); \
    }                                                                                                                \
    link te_status name##_forward(te_tensor y, name##_saved *saved, te_tensor x, const name *m, const te_batch *b, te_context *ctx) { \
        if (!saved) return te_fail(ctx, TE_ERROR_NULL, #name "_forward: saved is null; " #name "_infer needs none"); \
        return te_plan_forward(y, saved, x, TE__PLAN_OF_##widths(name), m ? &m->model : 0, b, ctx);                               \
    }                                                                                                                \
    link te_status name##_infer(te_tensor y, te_tensor x, const name *m, const te_batch *b, te_context *ctx) {       \
        return te_plan_forward(y, 0, x, TE__PLAN_OF_##widths(name), m ? &m->model : 0, b, ctx);                                   \
    }                                                                                                                \
    link te_status name##_backward(te_tensor dx, te_tensor dy, const name##_saved *saved, const name *m, const te_batch *b, te_context *ctx) { \
        return te_plan_backward(dx, dy, saved, TE__PLAN_OF_##widths(name), m ? &m->model : 0, b, ctx);                            \
    }                                                                                                                \
    link void name##_print_plan(FILE *file TE__BEHIND_##widths(name)) { te_plan_print(file, TE__PLAN_OF_##widths(name)); }

#define TE__LAST_WIDTH(model, before, op, after, live) TE_IF_END(after, TE_STRIP, TE_NOTHING)(TE_WIDTH_OUT(model, op) +)
#define TE__LAST_WIDTH_A(...) TE__LAST_WIDTH(__VA_ARGS__) TE__LAST_WIDTH_B
#define TE__LAST_WIDTH_B(...) TE__LAST_WIDTH(__VA_ARGS__) TE__LAST_WIDTH_A
#define TE__LAST_WIDTH_A_END
#define TE__LAST_WIDTH_B_END

#define TE__OP_ENTRY(model, before, op, after, live)                                                                 \
    {TE_STRING(TE_KIND(op)), TE_STRING(TE_NAME(op)), TE_JOIN1(TE_CLASS_, TE_CLASS(op)), TE_WIDTH_IN(model, op),      \
     TE_WIDTH_OUT(model, op), (te_dtype)TE_DTYPE_IN(model, op), (te_dtype)TE_DTYPE_OUT(model, op),                   \
     (te_rows)TE_ROWS_IN(model, op), (te_rows)TE_ROWS_OUT(model, op), (te_dtype)TE_EDGE_DTYPE(model, op), TE_FLAGS(op), \
     TE_STATS(op), TE_EDGE_INDEX(model, op), &TE__OPTIONS_NAME(model, op),                                           \
     0 TE__PARAMS(TE__PLUS_ONE, TE_PARAMS(op, TE_WIDTH_IN(model, op), TE_WIDTH_OUT(model, op))),                     \
     {TE__PARAMS(TE__PARAM_INFO, TE_PARAMS(op, TE_WIDTH_IN(model, op), TE_WIDTH_OUT(model, op))) {0, 0, 0, TE_INIT_zero, 0}}},
#define TE__PARAMS(M, params) TE__PARAMS2(M, TE_UNWRAP(params))
#define TE__PARAMS2(...) TE__PARAMS3(__VA_ARGS__)
#define TE__PARAMS3(M, ...) TE_IF_END(TE_FIRST(__VA_ARGS__, ~), TE_NOTHING, TE_ROW)(M, ~, __VA_ARGS__)
#define TE__PLUS_ONE(x, i, param) +1
#define TE__PARAM_INFO(x, i, param) TE__PARAM_INFO2(TE_STRIP param)
#define TE__PARAM_INFO2(...) TE__PARAM_INFO3(__VA_ARGS__)
#define TE__PARAM_INFO3(field, rows, cols, init) {#field, rows, cols, TE_INIT_##init, (int)TE_INIT_##init == (int)TE_INIT_tied},
#define TE__OP_ENTRY_A(...) TE__OP_ENTRY(__VA_ARGS__) TE__OP_ENTRY_B
#define TE__OP_ENTRY_B(...) TE__OP_ENTRY(__VA_ARGS__) TE__OP_ENTRY_A
#define TE__OP_ENTRY_A_END
#define TE__OP_ENTRY_B_END

#define TE__OPTIONS_NAME(model, op) TE_JOIN4(, model, TE_FAMILY(op), TE_NAME(op), options)
#define TE__OPTIONS_ENTRY(model, before, op, after, live) \
    static const TE_OPTIONS_TYPE(op) TE__OPTIONS_NAME(model, op) = TE_OPTIONS_VALUES(op);
#define TE__OPTIONS_ENTRY_A(...) TE__OPTIONS_ENTRY(__VA_ARGS__) TE__OPTIONS_ENTRY_B
#define TE__OPTIONS_ENTRY_B(...) TE__OPTIONS_ENTRY(__VA_ARGS__) TE__OPTIONS_ENTRY_A
#define TE__OPTIONS_ENTRY_A_END
#define TE__OPTIONS_ENTRY_B_END

/* Steps: x is (widths, model, dtype, pass, suffix). A step's kernels are called model_firstop_row[_infer|_backward]. */
#define TE__COUNT(x, ...) +1
#define TE__COUNT_A(...) TE__COUNT(__VA_ARGS__) TE__COUNT_B
#define TE__COUNT_B(...) TE__COUNT(__VA_ARGS__) TE__COUNT_A
#define TE__COUNT_A_END
#define TE__COUNT_B_END

#define TE__STEP_NAME(x, ...) TE__STEP_NAME2(TE_UNWRAP(x), TE_NAME(TE_ROW_FIRST(__VA_ARGS__)), TE_ROW_NAME(__VA_ARGS__))
#define TE__STEP_NAME2(...) TE__STEP_NAME3(__VA_ARGS__)
#define TE__STEP_NAME3(widths, model, dtype, pass, suffix, first, row) TE_JOIN1(TE__STEP_NAME_, suffix)(model, first, row)
#define TE__STEP_NAME_forward(model, first, row) TE_JOIN3(, model, first, row)
#define TE__STEP_NAME_infer(model, first, row) TE_JOIN4(, model, first, row, infer)
#define TE__STEP_NAME_backward(model, first, row) TE_JOIN4(, model, first, row, backward)

#define TE__STEP_ENTRY(x, ...)                                                                                  \
    {TE_STRING(TE_ROW_NAME(__VA_ARGS__)), TE_STRING(TE__STEP_NAME(x, __VA_ARGS__)), TE_ROW_COUNT(__VA_ARGS__),  \
     {TE_ROW(TE__STEP_INDEX, TE_SECOND(TE_UNWRAP(x), ~), __VA_ARGS__)}, TE_JOIN2(, TE__STEP_NAME(x, __VA_ARGS__), run)},
#define TE__STEP_ENTRY_A(...) TE__STEP_ENTRY(__VA_ARGS__) TE__STEP_ENTRY_B
#define TE__STEP_ENTRY_B(...) TE__STEP_ENTRY(__VA_ARGS__) TE__STEP_ENTRY_A
#define TE__STEP_ENTRY_A_END
#define TE__STEP_ENTRY_B_END
#define TE__STEP_INDEX(model, i, op) TE_ID(model, op),

#endif
