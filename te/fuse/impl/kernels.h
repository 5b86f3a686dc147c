/* kernels.h -- which kernels a step of a plan has: a chain, a matrix product and a chain, both in one, or those of the
 * op itself.
 *
 * Everything that a kernel depends on is a constant by then: the row's ops and options, formats, widths, lanes a row.
 */
#ifndef TE_KERNELS_H
#define TE_KERNELS_H

#include "../../ops/attention.h" /* te__attention_backward */
#include "../../pointwise/impl/pointwise_step.h" /* te_pointwise, te_pointwise_launch_fn */
#include "../../plan/dims.h" /* TE_MAP_KERNELS, TE_NORM_KERNELS */
#include "../../pointwise/impl/pointwise_macros.h" /* TE_POINTWISE */
#include "../../linear/impl/linear_cross_entropy.h" /* te__linear_loss_forward */
#include "../../linear/impl/linear_rope.h" /* TE__LINEAR_ROPE */
#include "../../linear/impl/linear_step.h" /* te__linear_step_forward, _backward */
#include "matcher.h" /* TE_EACH_OP */
#include "../../linear/impl/linear_epilogue.h" /* TE_PRODUCT */

/* kernels.h -- rows that begin with an op that has its own kernels: TE_CUSTOM_PATTERN_<family>_<pass>(name, model,
 * dtype, op) makes the op's kernels and name##_run; `name` is also the chain of the ops behind it (TE_POINTWISE). With
 * TE_HAS_SOURCE_<family> a comma, TE_SOURCE_<family>(widths, name, ops...) adds kernels of that chain which get its
 * input from elsewhere (comm/all_reduce_row.h). With TE_PAIR_<a>_<b> a comma the row is two such ops, and
 * TE_CUSTOM_PAIR_<a>_<b>_<pass>(name, model, dtype, a, b) makes kernels and name##_run; with TE_AROUND_<a>_<b> a comma
 * it begins with a and ends with b, the chain is what is between them, and besides TE_SOURCE_<a> there is
 * TE_CUSTOM_AROUND_<a>_<b>_<pass>(name, model, dtype, a, b) (comm/scatter_row.h).
 */

#define TE__PAIR_OR_POINTWISE(a, ...) \
    TE_IF_MARKED(TE_JOIN2(TE_PAIR_, TE_FAMILY(a), TE_FAMILY(TE_FIRST_OP(__VA_ARGS__))), TE__CUSTOM_PAIR, \
    TE_IF_MARKED(TE_JOIN2(TE_AROUND_, TE_FAMILY(a), TE_FAMILY(TE_LAST_OP(__VA_ARGS__))), TE__CUSTOM_AROUND, \
    TE__CUSTOM_POINTWISE))
#define TE__CUSTOM_PAIR(name, widths, model, dtype, pass, a, ...)                                                      \
    static_assert(TE_OP_COUNT(__VA_ARGS__) == 1, "te: " #name ": this row has two ops");                               \
    TE__CUSTOM(TE_JOIN2(TE_CUSTOM_PAIR_, TE_FAMILY(a), TE_FAMILY(TE_FIRST_OP(__VA_ARGS__))), pass, name, model, dtype, a, \
        TE_FIRST_OP(__VA_ARGS__))

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

/* Attention's backward with the gradient of the bias before it. */
#define TE_CUSTOM_PATTERN_attention_backward(name, model, dtype, op)                                               \
    TE__ATTENTION(BACKWARD, name##_own, model, dtype, op)                                                          \
    TE__ATTENTION_PARAM_GRADS(name##_own, dtype, op)                                                                    \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                     \
        const te_pointwise_shape k = name##_shape(te__pointwise_half(r, s, 1));                                     \
        return te__attention_bias_backward(r, s, name##_own_launch, name##_own_scratch_bytes, name##_own_sum_rows, \
            name##_launch, k, TE__IF_SINKS(op, name##_own_sinks_launch, 0), &name##_own_bias,                      \
            TE__ATTENTION_FP8_OUTPUT_BACKWARD(model));                                                                  \
    }

/* The attention kernels leave partial sums of the columns that they write (of sum_rows rows each), in sequences that
 * are no shorter than that; else the bias's own kernel does. Both take the same pieces of the workspace, for it is
 * sized without the sequences. */
TE_IF_USED TE_API te_status te__attention_bias_backward(te_run *r, const te_step *s, te_attention_launch_fn attention,
                                                        te_attention_scratch_fn scratch_bytes, int sum_rows,
                                                        te_pointwise_launch_fn launch, te_pointwise_shape k,
                                                        te_sinks_grad_fn sinks, const te_score_bias_kernels *bias,
                                                        int gives) {
    const int tiles = te_pointwise_tiles(k), most = te__max_blocks(r, k, tiles);
    const int sums = sum_rows && r->batch && r->batch->seq >= sum_rows;
    const int blocks = sums ? (int)(r->batch->batch * te_ceil_div(r->batch->seq, sum_rows))
                            : (int)te_min(te_ceil_div(r->tokens, k.groups), most);
    const int room = (int)te_max(most, sum_rows ? 2 * te_capacity_rows(r) / sum_rows + 1
                                                : 0); /* at most two sums for as many rows */
    float *sum = 0;
    te_pointwise c;
    TE_TRY(te_defer_column_sum(r, &sum, r->param[s->op[1]], r->plan->op[s->op[0]].in, blocks, room));
    if (!te_is_trained(r->param[s->op[1]])) sum = 0;
    TE_TRY(te__attention_backward(r, s, attention, scratch_bytes, sums ? sum : 0, sinks, bias, 0, gives));
    if (sums || !sum || r->dry) return TE_OK;
    memset(&c, 0, sizeof c);
    c.x = r->current.data, c.rows = r->current.rows, c.half = k.half, c.op[0].sum[0] = sum;
    return launch(r->ctx, te__grid_of((int64_t)blocks * tiles, 1), &c);
}

/* The kernels of one step, and its function <kernels>_run: by the class of its first op. x is (widths, model, dtype,
 * pass, suffix). */
#define TE__KERNELS(x, ...) \
    TE__KERNELS2(TE_CLASS(TE_FIRST_OP(__VA_ARGS__)), TE__STEP_NAME(x, __VA_ARGS__), TE_UNWRAP(x), __VA_ARGS__)
#define TE__KERNELS2(...) TE__KERNELS3(__VA_ARGS__)
#define TE__KERNELS3(op_class, name, widths, model, dtype, pass, suffix, ...) \
    TE_IF_MARKED(TE_JOIN1(TE__IS_SHARED_, suffix), TE_NOTHING, TE_JOIN1(TE__KERNELS_OF_, op_class)) \
    (name, widths, model, dtype, pass, __VA_ARGS__)
#define TE__IS_SHARED_shared , /* a step of inference that forward has, too */
#define TE__KERNELS_A(...) TE__KERNELS(__VA_ARGS__) TE__KERNELS_B
#define TE__KERNELS_B(...) TE__KERNELS(__VA_ARGS__) TE__KERNELS_A
#define TE__KERNELS_A_END
#define TE__KERNELS_B_END
/* `alone` if the step has one op, else `row`. */
#define TE__IF_ALONE(alone, row, ...) TE_BY_OP_COUNT(__VA_ARGS__, row, row, row, row, row, row, row, alone, ~)

#define TE__KERNELS_OF_map(name, widths, model, dtype, pass, ...)                                                      \
    TE_POINTWISE(name, widths, model, dtype, pass, __VA_ARGS__)                                                        \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                         \
        return te__pointwise_step_##pass(r, s, 0, 0, r->current, name##_launch, name##_shape(te__pointwise_half(r, s, 0))); \
    }
#define TE__KERNELS_OF_gated TE__KERNELS_OF_map
#define TE__KERNELS_OF_norm TE__KERNELS_OF_map
/* A row that begins with a matrix product: a chain for the ops behind it, if there are any. */
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
    TE_IF_MARKED(TE_JOIN1(TE_TAKES_LINEAR_, TE_FAMILY(TE_FIRST_OP(__VA_ARGS__))), TE__CUSTOM_IN_PATTERN, TE__GEMM_POINTWISE)) \
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
#define TE__GEMM_FORK(name, widths, model, dtype, pass, ...)                                                 \
    static_assert(TE_OP_COUNT(__VA_ARGS__) == 1 && (TE_FLAGS(TE_FIRST_OP(__VA_ARGS__)) & TE_IS_FORK),      \
                  "te: " #model ": in backward nothing may follow a linear and a fork in a row");            \
    TE__GEMM_ALONE(name, widths, model, dtype, pass, ~)
/* An op with kernels of its own, which may take a chain or another such op along (kernels.h). */
#define TE__KERNELS_OF_custom(name, widths, model, dtype, pass, ...) \
    TE__IF_ALONE(TE__CUSTOM_ALONE, TE__CUSTOM_PATTERN, __VA_ARGS__)(name, widths, model, dtype, pass, __VA_ARGS__)
#define TE__CUSTOM_ALONE(name, widths, model, dtype, pass, op) TE__CUSTOM(TE_JOIN1(TE_CUSTOM_, TE_FAMILY(op)), pass, name, \
    model, dtype, op)
#define TE__CUSTOM_PATTERN(name, widths, model, dtype, pass, first, ...)                                               \
    TE_IF_MARKED(TE_JOIN1(TE_TAKES_LINEAR_, TE_FAMILY(first)), TE__CUSTOM_LINEAR, TE__PAIR_OR_POINTWISE(first, __VA_ARGS__)) \
    (name, widths, model, dtype, pass, first, __VA_ARGS__)
#define TE__CUSTOM_LINEAR(name, widths, model, dtype, pass, own, ...)                                 \
    static_assert(TE_OP_COUNT(__VA_ARGS__) == 1 && TE__IS_CLASS(TE_FIRST_OP(__VA_ARGS__), gemm), \
                  "te: " #name ": in backward this row has a linear, and nothing else");           \
    TE__CUSTOM_IN_PATTERN(name, widths, model, dtype, pass, own)
#define TE__CUSTOM(family, pass, ...) TE__CUSTOM2(family, pass, __VA_ARGS__)
#define TE__CUSTOM2(family, pass, ...) family##_##pass(__VA_ARGS__)

#endif
