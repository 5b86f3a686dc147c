/* inference.h -- TE_INFERENCE: makes only the inference pass of a list, for programs that never train.
 *
 * Do this:
 *     TE_INFERENCE(block, bf16, GPT_BLOCK(768, 3072, 12))
 *     static block m;
 *     TE_TRY(block_bind(&m, params, &ctx));                    // no gradients
 *     TE_TRY(te_context_reserve(&ctx, block_workspace_bytes(&m, rows, &ctx)));
 *     TE_TRY(block_infer(y, x, &m, &batch, &ctx));
 *
 * The list may be the same one that TE_SEQUENTIAL takes, including dropout and recompute marks. A model of
 * TE_SEQUENTIAL and a model of TE_INFERENCE have parameters of the same names, order and layout, so a checkpoint of one
 * can be loaded into the other. TE_INFERENCE makes the functions and constants of TE_SEQUENTIAL (sequential.h), except
 * those for training: there is no type name_saved; a call of name_forward, name_backward, name_saved_bytes or
 * name_grad_bytes does not compile; and name_forward_steps and name_backward_steps are 0.
 *
 * TE_DECLARE_INFERENCE makes the declarations, and TE_DEFINE_INFERENCE makes the functions, as TE_DECLARE and TE_DEFINE
 * do for TE_SEQUENTIAL. The macros with _DIMS in their names take lists with widths that are known only at run time.
 */
#ifndef TE_INFERENCE_H
#define TE_INFERENCE_H
#if defined __GNUC__ && !defined __clang__ && !defined __CUDACC__ && !defined TE_LIST_WARNINGS
#pragma GCC system_header
#endif

#include "sequential.h" /* TE__CHECKED, TE__DECLARE1, TE__DEFINE1 */

#define TE_INFERENCE(name, dtype, ...) TE_INFERENCE_WITH(TE_FORWARD_, name, dtype, __VA_ARGS__)
/* Make the inference pass of a list as TE_INFERENCE does, with a custom fusion list. `fwd` is the prefix of the names
 * of this list's patterns, in place of TE_FORWARD_. */
#define TE_INFERENCE_WITH(fwd, name, dtype, ...) \
    TE__CHECKED(TE__INFERENCE, static TE_UNUSED, fwd, TE_UNFUSED_, name, dtype, __VA_ARGS__)
#define TE_DECLARE_INFERENCE(name, dtype, ...) \
    TE__CHECKED(TE__DECLARE_INFERENCE, TE_EXTERN_C, TE_FORWARD_, TE_UNFUSED_, name, dtype, __VA_ARGS__)
#define TE_DEFINE_INFERENCE(name, dtype, ...) \
    TE__CHECKED(TE__DEFINE_INFERENCE, TE_EXTERN_C, TE_FORWARD_, TE_UNFUSED_, name, dtype, __VA_ARGS__)
/* TE_INFERENCE, TE_INFERENCE_WITH, TE_DECLARE_INFERENCE and TE_DEFINE_INFERENCE for lists whose widths are known only
 * at run time. Such lists have symbols (dims.h) as widths. */
#define TE_INFERENCE_DIMS(name, dtype, ...) TE_INFERENCE_DIMS_WITH(TE_FORWARD_, name, dtype, __VA_ARGS__)
#define TE_INFERENCE_DIMS_WITH(fwd, name, dtype, ...) \
    TE__CHECKED(TE__INFERENCE_DIMS, static TE_UNUSED, fwd, TE_UNFUSED_, name, dtype, __VA_ARGS__)
#define TE_DECLARE_INFERENCE_DIMS(name, dtype, ...) \
    TE__CHECKED(TE__DECLARE_INFERENCE_DIMS, TE_EXTERN_C, TE_FORWARD_, TE_UNFUSED_, name, dtype, __VA_ARGS__)
#define TE_DEFINE_INFERENCE_DIMS(name, dtype, ...) \
    TE__CHECKED(TE__DEFINE_INFERENCE_DIMS, TE_EXTERN_C, TE_FORWARD_, TE_UNFUSED_, name, dtype, __VA_ARGS__)

#define TE__INFERENCE(...)              TE__DECLARE_INFERENCE(__VA_ARGS__) TE__DEFINE_INFERENCE(__VA_ARGS__)
#define TE__INFERENCE_DIMS(...)         TE__DECLARE_INFERENCE_DIMS(__VA_ARGS__) TE__DEFINE_INFERENCE_DIMS(__VA_ARGS__)
#define TE__DECLARE_INFERENCE(...)      TE__DECLARE1(fixed, inference, __VA_ARGS__)
#define TE__DECLARE_INFERENCE_DIMS(...) TE__DECLARE1(dims, inference, __VA_ARGS__)
#define TE__DEFINE_INFERENCE(...)       TE__DEFINE1(fixed, inference, __VA_ARGS__)
#define TE__DEFINE_INFERENCE_DIMS(...)  TE__DEFINE1(dims, inference, __VA_ARGS__)

/* The macros that TE__DEFINE1 expands for a list for inference only. The forward and backward passes have no steps, and
 * there is no code for training. Every inference step has kernels of its own, because there are no kernels of forward
 * that the step could use. */
#define TE__STEPS_OF_inference TE_NOTHING
#define TE__INFERENCE_OF_inference(fwd, ctx, shared, list, ...) TE_PLAN(fwd, ctx, __VA_ARGS__)
#define TE__TRAINING_OF_inference 0
#define TE__FP8_BACKWARD_OF_inference 0
#define TE__PRODUCT_OF_inference(dtype) TE_GEMM_RUN_OF(TE_##dtype, 0)
#define TE__DECLARE_inference(widths, link, name)                                                                      \
    static_assert((int)name##_weights == (int)name##_dtype,                                                            \
                  "te: " #name ": (weights, f32) is of a list that trains; te_fp8_weights_load takes any format");     \
    static_assert((int)name##_weight_format == (int)TE_BLOCK_none || TE__HAS_QUANTIZED_OPS,                            \
                  "te: " #name ": weights in few bits need te/infer.h; te/te.h leaves their kernels out");             \
    link te_status name##_bind(name *m, void *params, te_context *ctx);                                                \
    TE__NOT_IN_INFERENCE(name, te_status, name##_forward)                                                              \
    TE__NOT_IN_INFERENCE(name, te_status, name##_backward)                                                             \
    TE__NOT_IN_INFERENCE(name, size_t, name##_saved_bytes)                                                             \
    TE__NOT_IN_INFERENCE(name, size_t, name##_grad_bytes)
/* Declare a training function of an inference-only list as unavailable: a call of this function does not compile, and
 * the compiler prints the text in the macro. */
#define TE__NOT_IN_INFERENCE(name, type, function) \
    TE_EXTERN_C type function(TE__ANYTHING) TE_UNAVAILABLE("te: " #name " is a list for inference alone");
#ifdef __cplusplus
#define TE__ANYTHING ...
#else
#define TE__ANYTHING /* nothing, because in C a function declared with () accepts any arguments */
#endif
#define TE__DEFINE_inference(widths, link, name)                                                                       \
    link te_status name##_bind(name *m, void *params, te_context *ctx) {                                               \
        return te__bind_instance(m ? &m->model : 0, m ? &m->te_end : 0, TE__PLAN_OF_##widths(name), params, 0, ctx);   \
    }                                                                                                                  \
    link void name##_print_plan(FILE *file TE__BEHIND_##widths(name))                                                  \
        { te_plan_print_inference(file, TE__PLAN_OF_##widths(name)); }

#endif
