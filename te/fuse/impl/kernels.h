/* kernels.h -- macros that define the kernels of each step of a plan, and the function that runs the step. A step has
 * one of these kinds of kernels: a pointwise kernel; a GEMM, which is followed by a pointwise kernel or has an
 * epilogue; or the kernels of a custom op.
 *
 * Everything that a kernel depends on is a compile-time constant here: the ops of the step and their options, the
 * number formats, the widths, and the number of lanes (threads) that work on one row.
 */
#ifndef TE_KERNELS_H
#define TE_KERNELS_H
#if defined __GNUC__ && !defined __clang__ && !defined __CUDACC__ && !defined TE_LIST_WARNINGS
#pragma GCC system_header
#endif

#include "../../ops/attention.h" /* te__attention_backward */
#include "../../pointwise/impl/pointwise_step.h" /* te_pointwise, te_pointwise_launch_fn */
#include "../../plan/dims.h" /* TE_WIDTH_AT, in the macros that kernels.h expands */
#include "../../pointwise/impl/pointwise_macros.h" /* TE_POINTWISE */
#include "../../linear/impl/linear_cross_entropy.h" /* te__linear_loss_forward */
#include "../../linear/impl/linear_rope.h" /* TE__LINEAR_ROPE */
#include "../../linear/impl/linear_step.h" /* te__linear_step_forward, _backward */
#include "matcher.h" /* TE_EACH_OP */
#include "../../linear/impl/linear_epilogue.h" /* TE_PRODUCT */

/* ---- patterns that begin with a custom op ------------------------------------------------------------------------ */

/* If a pattern begins with a custom op, the family of that op must define one of the following macros, which defines
 * the kernels of the step and the function name##_run, which runs the step. Where the text below says so, the family
 * must also #define a second macro as a comma, which registers the first macro (TE_IF_MARKED finds the comma).
 *     TE_CUSTOM_PATTERN_<family>_<pass>(name, model, dtype, op)
 *         for the custom op followed by ops that one pointwise kernel computes; that kernel, called `name`, is already
 *         defined (by TE_POINTWISE)
 *     TE_CUSTOM_PAIR_<a>_<b>_<pass>(name, model, dtype, a, b)
 *         for two custom ops, of families a and b; TE_PAIR_<a>_<b> must be #defined as a comma
 *     TE_CUSTOM_AROUND_<a>_<b>_<pass>(name, model, dtype, a, b)
 *         for two custom ops with a pointwise kernel between them; TE_AROUND_<a>_<b> must be #defined as a comma
 * The pointwise kernel of a pattern can have variants that read their input from elsewhere, for example from other
 * ranks (te/comm/impl/fused_collective_norm.h). The macro TE_SOURCE_<family>(widths, name, ops...) defines these
 * variants. It is expanded for each TE_CUSTOM_AROUND pattern, and for a TE_CUSTOM_PATTERN if TE_HAS_SOURCE_<family> is
 * #defined as a comma. */

#define TE__PAIR_OR_POINTWISE(a, ...) \
    TE_IF_MARKED(TE_JOIN2(TE_PAIR_, TE_FAMILY(a), TE_FAMILY(TE_FIRST_OP(__VA_ARGS__))), TE__CUSTOM_PAIR, \
    TE_IF_MARKED(TE_JOIN2(TE_AROUND_, TE_FAMILY(a), TE_FAMILY(TE_LAST_OP(__VA_ARGS__))), TE__CUSTOM_AROUND, \
    TE__CUSTOM_POINTWISE))
#define TE__CUSTOM_PAIR(name, widths, model, dtype, pass, a, ...)                                                      \
    static_assert(TE_OP_COUNT(__VA_ARGS__) == 1, "te: " #name ": this pattern has two ops");                           \
    TE__CUSTOM(TE_JOIN2(TE_CUSTOM_PAIR_, TE_FAMILY(a), TE_FAMILY(TE_FIRST_OP(__VA_ARGS__))), pass, name, model, dtype, \
        a, TE_FIRST_OP(__VA_ARGS__))

#define TE__CUSTOM_POINTWISE(name, widths, model, dtype, pass, first, ...)                  \
    TE_POINTWISE(name, widths, model, dtype, pass, __VA_ARGS__)                             \
    TE_IF_MARKED(TE_JOIN1(TE_HAS_SOURCE_, TE_FAMILY(first)), TE__CUSTOM_SOURCE, TE_NOTHING) \
    (TE_FAMILY(first), widths, name, __VA_ARGS__)                                           \
    TE__CUSTOM_IN_PATTERN(name, widths, model, dtype, pass, first)
#define TE__CUSTOM_SOURCE(...) TE__CUSTOM_SOURCE2(__VA_ARGS__)
#define TE__CUSTOM_SOURCE2(family, ...) TE_SOURCE_##family(__VA_ARGS__)

#define TE__CUSTOM_AROUND(name, widths, model, dtype, pass, first, ...) \
    TE__CUSTOM_AROUND2(name, widths, model, dtype, pass, first, TE_LAST_OP(__VA_ARGS__), TE_BUT_LAST_OP(__VA_ARGS__))
#define TE__CUSTOM_AROUND2(...) TE__CUSTOM_AROUND3(__VA_ARGS__)
#define TE__CUSTOM_AROUND3(name, widths, model, dtype, pass, first, last, ...) \
    TE_POINTWISE(name, widths, model, dtype, pass, __VA_ARGS__)                \
    TE__CUSTOM_SOURCE(TE_FAMILY(first), widths, name, __VA_ARGS__)             \
    TE__CUSTOM(TE_JOIN2(TE_CUSTOM_AROUND_, TE_FAMILY(first), TE_FAMILY(last)), pass, name, model, dtype, first, last)

/* ---- attention with the bias before it, in backward -------------------------------------------------------------- */

/* The kernels of a backward step that consists of an attention and of the bias that precedes it in the list. */
typedef struct te__attention_bias_kernels {
    te__attention_backward_kernels attention;
    int sum_rows; /* the attention kernels store one partial sum of each column of dqkv for every sum_rows rows of a
                   * sequence; 0 if they cannot store partial sums */
    te_pointwise_launch_fn bias; /* the kernel that computes the gradient of the bias if the attention kernels do not
                                  * store partial sums */
} te__attention_bias_kernels;

#define TE_CUSTOM_PATTERN_attention_backward(name, model, dtype, op)                                               \
    TE__ATTENTION(BACKWARD, name##_attention, model, dtype, op)                                                    \
    TE__ATTENTION_PARAM_GRADS(name##_attention, dtype, op)                                                         \
    TE__IF_CP(op, TE__CP_BACKWARD, TE_NOTHING)(name##_cp, dtype, op)                                               \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                     \
        const te__attention_bias_kernels kernels = {                                                               \
            TE_MEMBER(attention, {                                                                                 \
                TE_MEMBER(launch, name##_attention_launch),                                                        \
                TE_MEMBER(scratch_bytes, name##_attention_scratch_bytes),                                          \
                TE_MEMBER(sinks, TE__IF_SINKS(op, name##_attention_sinks_launch, 0)),                              \
                TE_MEMBER(score_bias, &name##_attention_bias),                                                     \
                TE_MEMBER(add, 0),                                                                                 \
                TE_MEMBER(fp8_output, TE__ATTENTION_FP8_OUTPUT_BACKWARD(model)),                                   \
                TE_MEMBER(cp, TE__IF_CP(op, &name##_cp, 0))}),                                                     \
            TE_MEMBER(sum_rows, name##_attention_sum_rows),                                                        \
            TE_MEMBER(bias, name##_launch)};                                                                       \
        return te__attention_bias_backward(r, s, &kernels, name##_shape(te__pointwise_half(r, s, 1)));             \
    }

/* Compute dqkv and the gradient of the bias, which is the sum of each column of dqkv over all rows. If the sequences
 * have at least sum_rows rows, the attention kernels store partial sums of the columns. Otherwise the bias kernel,
 * whose shape is k, reads dqkv once more to compute the sums. Memory for the partial sums is acquired for the larger of
 * the two cases, because the workspace is sized before the length of the sequences is known. */
TE_IF_USED TE_API te_status te__attention_bias_backward(te_run *r, const te_step *s,
                                                        const te__attention_bias_kernels *kernels,
                                                        te_pointwise_shape k) {
    const int tiles = te_pointwise_tiles(k), max_blocks = te__max_blocks(r, k, tiles), sum_rows = kernels->sum_rows;
    const int attention_sums = sum_rows && r->batch && r->batch->seq >= sum_rows &&
                               !te__cp_splits(r, kernels->attention.cp);
    const int blocks = attention_sums ? (int)(r->batch->batch * te_ceil_div(r->batch->seq, sum_rows))
                                      : (int)te_min(te_ceil_div(r->tokens, k.groups), max_blocks);
    /* The attention kernels store partial sums only if each sequence has n >= sum_rows rows. A sequence then has
     * ceil(n / sum_rows) <= 2 * n / sum_rows partial sums. */
    const int64_t max_attention_sums = sum_rows ? 2 * te__capacity_rows(r) / sum_rows + 1 : 0;
    float *sum = 0;
    te_pointwise c;
    TE_TRY(te_defer_column_sum(r, &sum, r->param[s->op[1]], r->plan->op[s->op[0]].in, blocks,
                               (int)te_max(max_blocks, max_attention_sums)));
    if (!te_is_trained(r->param[s->op[1]])) sum = 0;
    TE_TRY(te__attention_backward(r, s, &kernels->attention, attention_sums ? sum : 0));
    if (attention_sums || !sum || r->dry) return TE_OK;
    memset(&c, 0, sizeof c);
    c.x = r->current.data, c.rows = r->current.rows, c.half = k.half, c.op[0].sum[0] = sum;
    return kernels->bias(r->ctx, te__grid_of((int64_t)blocks * tiles, 1), &c);
}

/* ---- a step, by the class of its first op ------------------------------------------------------------------------ */

/* TE__KERNELS(x, ops...) defines the kernels of the step that consists of these ops, and the function name##_run, which
 * runs the step; `name` is TE__STEP_NAME. x is the tuple (widths, model, dtype, pass, suffix), as in sequential.h. If
 * the suffix is `shared`, the macro defines nothing, because forward's kernels are used. */
#define TE__KERNELS(x, ...) \
    TE__KERNELS2(TE_CLASS(TE_FIRST_OP(__VA_ARGS__)), TE__STEP_NAME(x, __VA_ARGS__), TE_UNWRAP(x), __VA_ARGS__)
#define TE__KERNELS2(...) TE__KERNELS3(__VA_ARGS__)
#define TE__KERNELS3(op_class, name, widths, model, dtype, pass, suffix, ...) \
    TE_IF_MARKED(TE_JOIN1(TE__IS_SHARED_, suffix), TE_NOTHING, TE_JOIN1(TE__KERNELS_OF_, op_class)) \
    (name, widths, model, dtype, pass, __VA_ARGS__)
#define TE__IS_SHARED_shared , /* the suffix `shared` marks an inference step whose ops are also one step of forward;
                                * the inference step then uses the kernels of the forward step */
#define TE__KERNELS_A(...) TE__KERNELS(__VA_ARGS__) TE__KERNELS_B
#define TE__KERNELS_B(...) TE__KERNELS(__VA_ARGS__) TE__KERNELS_A
#define TE__KERNELS_A_END
#define TE__KERNELS_B_END
/* Expands to `alone` if the step has only one op, else to `more`. The variadic arguments are the ops of the step. */
#define TE__IF_ALONE(alone, more, ...) TE_BY_OP_COUNT(__VA_ARGS__, more, more, more, more, more, more, more, alone, ~)

#define TE__KERNELS_OF_map(name, widths, model, dtype, pass, ...)                                                      \
    TE_POINTWISE(name, widths, model, dtype, pass, __VA_ARGS__)                                                        \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                         \
        const te_pointwise_shape k = name##_shape(te__pointwise_half(r, s, 0));                                        \
        return te__pointwise_step_##pass(r, s, 0, 0, r->current, name##_launch, k);                                    \
    }
#define TE__KERNELS_OF_gated TE__KERNELS_OF_map
#define TE__KERNELS_OF_norm TE__KERNELS_OF_map
/* Defines the kernels of a step that begins with a GEMM. If other ops follow the GEMM, a pointwise kernel computes
 * them. Three cases are left to other macros: a rope behind the GEMM (forward), a custom op whose pattern contains a
 * linear (forward), and a fork behind the GEMM (backward). */
#define TE__KERNELS_OF_gemm(name, widths, model, dtype, pass, ...) \
    enum { name##_recipe = (int)TE_RECIPE(model, TE_FIRST_OP(__VA_ARGS__)), TE__RECIPE_FACTS(name, model, pass) }; \
    TE__IF_ALONE(TE__GEMM_ALONE, TE__GEMM_PATTERN, __VA_ARGS__)(name, widths, model, dtype, pass, __VA_ARGS__)
#define TE__GEMM_ALONE(name, widths, model, dtype, pass, ...) \
    TE_API te_status name##_run(te_run *r, const te_step *s)  \
        { return te__linear_step_##pass(r, s, 0, te_no_shape(), 0, TE_UNFUSED_GEMM_OF(name, dtype, pass)); }
#define TE__GEMM_PATTERN(name, widths, model, dtype, pass, first, ...) \
    TE_JOIN1(TE__GEMM_PATTERN_, pass)(name, widths, model, dtype, pass, __VA_ARGS__)
#define TE__GEMM_PATTERN_forward(name, widths, model, dtype, pass, ...)                                                \
    TE_IF_MARKED(TE_JOIN1(TE__ROPE_MARK_, TE_FAMILY(TE_LAST_OP(__VA_ARGS__))), TE__LINEAR_ROPE,                        \
    TE_IF_MARKED(TE_JOIN1(TE_TAKES_LINEAR_, TE_FAMILY(TE_FIRST_OP(__VA_ARGS__))), TE__CUSTOM_IN_PATTERN,               \
        TE__GEMM_POINTWISE))                                                                                           \
    (name, widths, model, dtype, pass, __VA_ARGS__)
#define TE__CUSTOM_IN_PATTERN(name, widths, model, dtype, pass, op) \
    TE__CUSTOM(TE_JOIN1(TE_CUSTOM_PATTERN_, TE_FAMILY(op)), pass, name, model, dtype, op)
#define TE__GEMM_POINTWISE(name, widths, model, dtype, pass, ...) \
    TE_POINTWISE(name, widths, model, dtype, pass, __VA_ARGS__)          \
    TE__PRODUCT_##widths(name, dtype)                                \
    TE_API te_status name##_run(te_run *r, const te_step *s) {       \
        const te_pointwise_shape k = name##_shape(te__pointwise_half(r, s, 1)); \
        return te__linear_step_##pass(r, s, name##_launch, k, name##_kernels(),                       \
                                     TE_UNFUSED_GEMM_OF(name, dtype, pass));                    \
    }
#define TE__GEMM_PATTERN_backward(name, widths, model, dtype, pass, ...)                                         \
    TE_IF_MARKED(TE_JOIN1(TE__FORK_MARK_, TE_FAMILY(TE_FIRST_OP(__VA_ARGS__))), TE__GEMM_FORK, TE__GEMM_POINTWISE) \
    (name, widths, model, dtype, pass, __VA_ARGS__)
#define TE__FORK_MARK_fork ,
#define TE__GEMM_FORK(name, widths, model, dtype, pass, ...)                                                     \
    static_assert(TE_OP_COUNT(__VA_ARGS__) == 1 && (TE_FLAGS(TE_FIRST_OP(__VA_ARGS__)) & TE_IS_FORK),            \
                  "te: " #model ": in backward a pattern that begins with a linear and a fork has no other op"); \
    TE__GEMM_ALONE(name, widths, model, dtype, pass, ~)
/* Defines the kernels of a step that begins with a custom op: the op alone, or one of the patterns at the beginning of
 * this file. A family for which TE_TAKES_LINEAR_<family> is #defined as a comma has a backward pattern of the op and of
 * the linear that precedes the op in the list. */
#define TE__KERNELS_OF_custom(name, widths, model, dtype, pass, ...) \
    TE__IF_ALONE(TE__CUSTOM_ALONE, TE__CUSTOM_PATTERN, __VA_ARGS__)(name, widths, model, dtype, pass, __VA_ARGS__)
#define TE__CUSTOM_ALONE(name, widths, model, dtype, pass, op) \
    TE__CUSTOM(TE_JOIN1(TE_CUSTOM_, TE_FAMILY(op)), pass, name, model, dtype, op)
#define TE__CUSTOM_PATTERN(name, widths, model, dtype, pass, first, ...)                                               \
    TE_IF_MARKED(TE_JOIN1(TE_TAKES_LINEAR_, TE_FAMILY(first)), TE__CUSTOM_LINEAR,                                      \
        TE__PAIR_OR_POINTWISE(first, __VA_ARGS__))                                                                     \
    (name, widths, model, dtype, pass, first, __VA_ARGS__)
#define TE__CUSTOM_LINEAR(name, widths, model, dtype, pass, op, ...)                                  \
    static_assert(TE_OP_COUNT(__VA_ARGS__) == 1 && TE__IS_CLASS(TE_FIRST_OP(__VA_ARGS__), gemm), \
                  "te: " #name ": in backward this pattern has a linear, and no other op");        \
    TE__CUSTOM_IN_PATTERN(name, widths, model, dtype, pass, op)
/* Expands the macro family##_##pass(...), which defines a custom op's kernels. `family` is TE_CUSTOM_<family> for a
 * single op; for a pattern, `family` is TE_CUSTOM_PATTERN_<family>, TE_CUSTOM_PAIR_<a>_<b> or
 * TE_CUSTOM_AROUND_<a>_<b>. */
#define TE__CUSTOM(family, pass, ...) TE__CUSTOM2(family, pass, __VA_ARGS__)
#define TE__CUSTOM2(family, pass, ...) family##_##pass(__VA_ARGS__)

#endif
