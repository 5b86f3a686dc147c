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
#include "../../pointwise/impl/pointwise_quantize_transpose.h" /* TE__POINTWISE_OF_fixed_training */
#include "../../linear/impl/linear_cross_entropy.h" /* te__linear_loss_forward */
#include "../../linear/impl/linear_rope.h" /* TE__LINEAR_ROPE */
#include "../../linear/impl/linear_step.h" /* te_linear_step_forward, _backward */
#include "matcher.h" /* TE_EACH_OP */
#include "../../linear/impl/linear_epilogue.h" /* TE_PRODUCT */

/* kernels.h -- rows that begin with an op that has its own kernels: TE_CUSTOM_PATTERN_<family>_<pass>(name, model, dtype, op)
 * makes the op's kernels and name##_run; `name` is also the chain of the ops behind it (TE_POINTWISE). With
 * TE_HAS_SOURCE_<family> a comma, TE_SOURCE_<family>(widths, name, ops...) adds kernels of that chain which get its
 * input from elsewhere (comm/all_reduce_row.h). With TE_PAIR_<a>_<b> a comma the row is two such ops, and
 * TE_CUSTOM_PAIR_<a>_<b>_<pass>(name, model, dtype, a, b) makes kernels and name##_run; with TE_AROUND_<a>_<b> a comma it
 * begins with a and ends with b, the chain is what is between them, and besides TE_SOURCE_<a> there is
 * TE_CUSTOM_AROUND_<a>_<b>_<pass>(name, model, dtype, a, b) (comm/scatter_row.h).
 */

#define TE__PAIR_OR_POINTWISE(a, ...) \
    TE_IF_MARKED(TE_JOIN2(TE_PAIR_, TE_FAMILY(a), TE_FAMILY(TE_FIRST_OP(__VA_ARGS__))), TE__CUSTOM_PAIR, \
    TE_IF_MARKED(TE_JOIN2(TE_AROUND_, TE_FAMILY(a), TE_FAMILY(TE_LAST_OP(__VA_ARGS__))), TE__CUSTOM_AROUND, \
    TE__CUSTOM_POINTWISE))
#define TE__CUSTOM_PAIR(name, widths, model, dtype, pass, a, ...)                                                       \
    static_assert(TE_OP_COUNT(__VA_ARGS__) == 1, "te: " #name ": this row has two ops");                            \
    TE__CUSTOM(TE_JOIN2(TE_CUSTOM_PAIR_, TE_FAMILY(a), TE_FAMILY(TE_FIRST_OP(__VA_ARGS__))), pass, name, model, dtype, a, \
        TE_FIRST_OP(__VA_ARGS__))

#define TE__CUSTOM_POINTWISE(name, widths, model, dtype, pass, first, ...)                                                  \
    TE_POINTWISE(name, widths, model, dtype, pass, __VA_ARGS__)                                                          \
    TE_IF_MARKED(TE_JOIN1(TE_HAS_SOURCE_, TE_FAMILY(first)), TE__CUSTOM_SOURCE, TE_NOTHING)                             \
    (TE_FAMILY(first), widths, name, __VA_ARGS__)                                                                    \
    TE__CUSTOM_IN_PATTERN(name, widths, model, dtype, pass, first)
#define TE__CUSTOM_SOURCE(...) TE__CUSTOM_SOURCE2(__VA_ARGS__)
#define TE__CUSTOM_SOURCE2(family, ...) TE_SOURCE_##family(__VA_ARGS__)

#define TE__CUSTOM_AROUND(name, widths, model, dtype, pass, first, ...)                                                 \
    TE__CUSTOM_AROUND2(name, widths, model, dtype, pass, first, TE_LAST_OP(__VA_ARGS__), TE_BUT_LAST_OP(__VA_ARGS__))
#define TE__CUSTOM_AROUND2(...) TE__CUSTOM_AROUND3(__VA_ARGS__)
#define TE__CUSTOM_AROUND3(name, widths, model, dtype, pass, first, last, ...)                                          \
    TE_POINTWISE(name, widths, model, dtype, pass, __VA_ARGS__)                                                          \
    TE__CUSTOM_SOURCE(TE_FAMILY(first), widths, name, __VA_ARGS__)                                                      \
    TE__CUSTOM(TE_JOIN2(TE_CUSTOM_AROUND_, TE_FAMILY(first), TE_FAMILY(last)), pass, name, model, dtype, first, last)

/* Attention's backward with the gradient of the bias before it. */
#define TE_CUSTOM_PATTERN_attention_backward(name, model, dtype, op)                                                      \
    TE__ATTENTION(BACKWARD, name##_own, model, dtype, op)                                                          \
    TE__ATTENTION_LEARNT(name##_own, dtype, op)                                                                    \
    TE_API te_status name##_run(te_run *r, const te_step *s) {                                                     \
        const te_pointwise_shape k = name##_shape(te_pointwise_half(r, s, 1));                                             \
        return te__attention_bias_backward(r, s, name##_own_launch, name##_own_scratch_bytes, name##_own_sum_rows, \
            name##_launch, k, TE__IF_SINKS(op, name##_own_sinks_launch, 0), &name##_own_bias,                      \
            TE__ATTENTION_GIVES_BACKWARD(model));                                                                  \
    }

/* The attention kernels leave partial sums of the columns that they write (of sum_rows rows each), in sequences that
 * are no shorter than that; else the bias's own kernel does. Both take the same pieces of the workspace, for it is
 * sized without the sequences. */
TE_IF_USED TE_API te_status te__attention_bias_backward(te_run *r, const te_step *s, te_attention_launch_fn attention,
                                                        te_attention_scratch_fn scratch_bytes, int sum_rows,
                                                        te_pointwise_launch_fn launch, te_pointwise_shape k,
                                                        te_attention_sinks_fn sinks, const te_score_bias *bias,
                                                        int gives) {
    const int tiles = te_pointwise_tiles(k), most = te__max_blocks(r, k, tiles);
    const int sums = sum_rows && r->batch && r->batch->seq >= sum_rows;
    const int blocks = sums ? (int)(r->batch->batch * te_ceil_div(r->batch->seq, sum_rows))
                            : (int)te_min(te_ceil_div(r->tokens, k.groups), most);
    const int room =
        (int)te_max(most, sum_rows ? 2 * te_capacity_rows(r) / sum_rows + 1 : 0); /* at most two sums for as many rows */
    float *sum = 0;
    te_pointwise c;
    TE_TRY(te_defer_column_sum(r, &sum, r->param[s->op[1]], r->plan->op[s->op[0]].in, blocks, room));
    if (!te_is_trained(r->param[s->op[1]])) sum = 0;
    TE_TRY(te__attention_backward(r, s, attention, scratch_bytes, sums ? sum : 0, sinks, bias, 0, gives));
    if (sums || !sum || r->dry) return TE_OK;
    memset(&c, 0, sizeof c);
    c.x = r->current.data, c.rows = r->current.rows, c.half = k.half, c.op[0].sum[0] = sum;
    return launch(r->ctx, te_grid_of((int64_t)blocks * tiles, 1), &c);
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

#define TE__KERNELS_OF_map(name, widths, model, dtype, pass, ...) \
    TE_POINTWISE(name, widths, model, dtype, pass, __VA_ARGS__)        \
    TE_API te_status name##_run(te_run *r, const te_step *s) {    \
        return te_pointwise_step_##pass(r, s, 0, 0, r->current, name##_launch, name##_shape(te_pointwise_half(r, s, 0))); \
    }
#define TE__KERNELS_OF_gated TE__KERNELS_OF_map
#define TE__KERNELS_OF_norm TE__KERNELS_OF_map
/* A row that begins with a matrix product: a chain for the ops behind it, if there are any. */
#define TE__KERNELS_OF_gemm(name, widths, model, dtype, pass, ...) \
    enum { name##_recipe = (int)TE_RECIPE(model, TE_FIRST_OP(__VA_ARGS__)), TE__RECIPE_FACTS(name, model, pass) }; \
    TE__IF_ALONE(TE__GEMM_ALONE, TE__GEMM_PATTERN, __VA_ARGS__)(name, widths, model, dtype, pass, __VA_ARGS__)
#define TE__GEMM_ALONE(name, widths, model, dtype, pass, ...) \
    TE_API te_status name##_run(te_run *r, const te_step *s)  \
        { return te_linear_step_##pass(r, s, 0, te_no_shape(), 0, TE_PLAIN_GEMM_OF(name, dtype, pass)); }
#define TE__GEMM_PATTERN(name, widths, model, dtype, pass, first, ...) \
    TE_JOIN1(TE__GEMM_PATTERN_, pass)(name, widths, model, dtype, pass, __VA_ARGS__)
#define TE__GEMM_PATTERN_forward(name, widths, model, dtype, pass, ...)                                              \
    TE_IF_MARKED(TE_JOIN1(TE__ROPE_MARK_, TE_FAMILY(TE_LAST_OP(__VA_ARGS__))), TE__LINEAR_ROPE,                 \
    TE_IF_MARKED(TE_JOIN1(TE_TAKES_LINEAR_, TE_FAMILY(TE_FIRST_OP(__VA_ARGS__))), TE__CUSTOM_IN_PATTERN, TE__GEMM_POINTWISE)) \
    (name, widths, model, dtype, pass, __VA_ARGS__)
#define TE__CUSTOM_IN_PATTERN(name, widths, model, dtype, pass, op) \
    TE__CUSTOM(TE_JOIN1(TE_CUSTOM_PATTERN_, TE_FAMILY(op)), pass, name, model, dtype, op)
#define TE__GEMM_POINTWISE(name, widths, model, dtype, pass, ...) \
    TE_POINTWISE(name, widths, model, dtype, pass, __VA_ARGS__)          \
    TE__PRODUCT_##widths(name, dtype)                                \
    TE_API te_status name##_run(te_run *r, const te_step *s) {       \
        const te_pointwise_shape k = name##_shape(te_pointwise_half(r, s, 1)); \
        return te_linear_step_##pass(r, s, name##_launch, k, name##_kernels(),                       \
                                     TE_PLAIN_GEMM_OF(name, dtype, pass));                    \
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
#define TE__CUSTOM_PATTERN(name, widths, model, dtype, pass, first, ...)                                                 \
    TE_IF_MARKED(TE_JOIN1(TE_TAKES_LINEAR_, TE_FAMILY(first)), TE__CUSTOM_LINEAR, TE__PAIR_OR_POINTWISE(first, __VA_ARGS__)) \
    (name, widths, model, dtype, pass, first, __VA_ARGS__)
#define TE__CUSTOM_LINEAR(name, widths, model, dtype, pass, own, ...)                                 \
    static_assert(TE_OP_COUNT(__VA_ARGS__) == 1 && TE__IS_CLASS(TE_FIRST_OP(__VA_ARGS__), gemm), \
                  "te: " #name ": in backward this row has a linear, and nothing else");           \
    TE__CUSTOM_IN_PATTERN(name, widths, model, dtype, pass, own)
#define TE__CUSTOM(family, pass, ...) TE__CUSTOM2(family, pass, __VA_ARGS__)
#define TE__CUSTOM2(family, pass, ...) family##_##pass(__VA_ARGS__)

/* ---- a chain: facts of its row ----------------------------------------------------------------------------------- */

#define TE_POINTWISE(name, widths, model, dtype, pass, ...)                                         \
    TE__POINTWISE(name, widths, model, dtype, pass, TE_JOIN1(TE__POINTWISE_IN_, pass)(TE_WIDTH_, model, \
        TE_FIRST_OP(__VA_ARGS__)),                                                             \
              TE_JOIN1(TE__POINTWISE_OUT_, pass)(TE_WIDTH_, model, TE_LAST_OP(__VA_ARGS__)),       \
              TE_JOIN1(TE__POINTWISE_IN_, pass)(TE_DTYPE_, model, TE_FIRST_OP(__VA_ARGS__)),       \
              TE_JOIN1(TE__POINTWISE_OUT_, pass)(TE_DTYPE_, model, TE_LAST_OP(__VA_ARGS__)), __VA_ARGS__)
#define TE__POINTWISE_IN_forward(what, model, op) what##IN(model, op)
#define TE__POINTWISE_OUT_forward(what, model, op) what##OUT(model, op)
#define TE__POINTWISE_IN_backward(what, model, op) what##OUT(model, op)
#define TE__POINTWISE_OUT_backward(what, model, op) what##IN(model, op)
#define TE__POINTWISE(name, widths, model, dtype, pass, in, out, gets, gives, ...)                                       \
    enum {                                                                                                           \
        name##_half = ((int)in < (int)out) == ((int)in > 0) ? (int)in : (int)out, /* the smaller; symbols are < 0 */ \
        name##_in_halves = (int)in / name##_half,                                                                    \
        name##_out_halves = (int)out / name##_half,                                                                  \
        name##_in_dtype = (int)gets,                                                                                 \
        name##_out_dtype = (int)gives,                                                                               \
        name##_norm = TE_EACH_OP(TE__NORM_AT, ~, __VA_ARGS__) - 1,                                                       \
        name##_norm_code = 0 TE_EACH_OP(TE__NORM_CODE, ~, __VA_ARGS__),                                                  \
        name##_norm_reads_x = ((0 TE_EACH_OP(TE__NO_FORK_AT, ~, __VA_ARGS__)) & ((1 << (name##_norm + 1)) - 2)) == 0,    \
        name##_norm_in = 0 TE_EACH_OP(TE__NORM_IN, model, __VA_ARGS__),                                                  \
        name##_norm_out = 0 TE_EACH_OP(TE__NORM_OUT, model, __VA_ARGS__),                                                \
        name##_is_backward = TE_PASS_backward_##pass,                                                                \
        name##_sums = (name##_is_backward ? 0 TE_EACH_OP(TE__SUM_AT, ~, __VA_ARGS__) : 0) - 1,                           \
        name##_sum_halves = name##_is_backward ? (0 TE_EACH_OP(TE__SUM_WIDTH, model, __VA_ARGS__)) / name##_half : 0,    \
        name##_sums_three = name##_is_backward && (0 TE_EACH_OP(TE__SUMS_THREE, ~, __VA_ARGS__)) > 0,                    \
        name##_draws = (0 TE_EACH_OP(TE__DRAWS, ~, __VA_ARGS__)) > 0,                                                    \
        name##_first = TE_ID(model, TE_FIRST_OP(__VA_ARGS__)),                                                      \
        name##_local_forks = 0 TE_EACH_OP(TE__LOCAL_FORKS, (name, model), __VA_ARGS__),                                            \
        name##_tensor_loads = 0 TE_EACH_OP(TE__READS, (name, model, dtype, pass), __VA_ARGS__),                               \
        name##_reads = TE__FIRST_OF(name##_tensor_loads),                                                                 \
        name##_saved_inputs = 0 TE_EACH_OP(TE__SAVED_AT, ~, __VA_ARGS__),                                                         \
        name##_outputs = 0 TE_EACH_OP(TE__OUTPUT_AT, ~, __VA_ARGS__),                                                    \
        name##_params = name##_is_backward ? 0 : (0 TE_EACH_OP(TE__PARAM_AT, ~, __VA_ARGS__)),                           \
        name##_fp8_wanted = !model##_names_recipe ? 0 : name##_is_backward ? (int)model##_gradients : (int)TE_e4m3,  \
        TE__POINTWISE_SCALING_FACTS(model, name)                                                                                \
    };                                                                                                               \
    static_assert(name##_is_backward || !(name##_outputs * 2 & name##_saved_inputs),                                         \
                  "te: " #name ": an (output, ..) in a row comes before an op that keeps what it reads");            \
    static_assert(!name##_is_backward || name##_norm <= 0, "te: " #name ": in a backward row the norm comes first"); \
    static_assert((0 TE_EACH_OP(TE__ONE_NORM, ~, __VA_ARGS__)) <= 1, "te: " #name ": a row has one norm at most");       \
    static_assert((0 TE_EACH_OP(TE__ONE_GATED, ~, __VA_ARGS__)) <= ((int)in == (int)out || name##_norm >= 0 ? 0 : 1),    \
                  "te: " #name ": a row has one gated op at most, and none beside a norm");                          \
    static_assert(!name##_is_backward || (0 TE_EACH_OP(TE__ONE_SUM, ~, __VA_ARGS__)) <= 1,                               \
                  "te: " #name ": a backward row has one bias, mul_param or dyt at most");                           \
    static_assert(!name##_sums_three || (name##_norm < 0 && (0 TE_EACH_OP(TE__ONE_GATED, ~, __VA_ARGS__)) == 0),         \
                  "te: " #name ": a backward row with a dyt has no norm and no gated op");                           \
    static_assert((0 TE_EACH_OP(TE__ONE_GEMM, ~, __VA_ARGS__)) == 0,                                                     \
                  "te: " #name ": a linear or an op with kernels of its own can only begin a row");                  \
    TE_CALLBACK void name##_stages(te_lane *l, const te_pointwise *c, int from, int to) {                                \
        TE_EACH_OP(TE__STAGE_OPTIONS, ~, __VA_ARGS__)                                                                    \
        TE_EACH_OP(TE__STAGE, (name, model, dtype, pass), __VA_ARGS__)                                                   \
    }                                                                                                                \
    TE__POINTWISE_OF_##widths(name, model, dtype, pass, (0.0f TE_EACH_OP(TE__NORM_EPS, ~, __VA_ARGS__)), __VA_ARGS__)
#define TE_PASS_backward_forward 0
#define TE_PASS_backward_backward 1
#define TE__IS_CLASS(op, c) ((int)TE_JOIN1(TE_CLASS_, TE_CLASS(op)) == (int)TE_CLASS_##c)
#define TE__NORM_AT(x, i, op) + (TE__IS_CLASS(op, norm) ? i + 1 : 0)
#define TE__NORM_CODE(x, i, op) TE__IF_NORM(op, +TE_NORM_CODE(op))
#define TE__NO_FORK_AT(x, i, op) | (TE_FLAGS(op) & TE_IS_FORK ? 0 : 2 << i)
#define TE__NORM_EPS(x, i, op) TE__IF_NORM(op, +TE_NORM_EPS(op))
#define TE__NORM_IN(model, i, op) TE__IF_NORM(op, +(int)TE_DTYPE_IN(model, op))
#define TE__NORM_OUT(model, i, op) TE__IF_NORM(op, +(int)TE_DTYPE_OUT(model, op))
#define TE__IF_NORM(op, yes) TE_IF_MARKED(TE_JOIN1(TE__NORM_MARK_, TE_CLASS(op)), yes, )
#define TE__NORM_MARK(x, i, op) TE_JOIN1(TE__NORM_MARK_, TE_CLASS(op))
#define TE__NORM_MARK_norm ,
#define TE__ONE_NORM(x, i, op) + TE__IS_CLASS(op, norm)
#define TE__ONE_GATED(x, i, op) + TE__IS_CLASS(op, gated)
#define TE__ONE_GEMM(x, i, op) + (TE__IS_CLASS(op, gemm) || TE__IS_CLASS(op, custom))
#define TE__SUMS(op) ((TE_FLAGS(op) & TE_SUMS) != 0)
#define TE__SUM_AT(x, i, op) + (TE__SUMS(op) ? i + 1 : 0)
#define TE__SUMS_THREE(x, i, op) + ((TE_FLAGS(op) & TE_SUMS_THREE) != 0)
#define TE__SUM_WIDTH(model, i, op) + (TE__SUMS(op) ? (int)TE_WIDTH_OUT(model, op) : 0)
#define TE__ONE_SUM(x, i, op) + TE__SUMS(op)
/* Bits, by place in the row: ops whose input lies in memory, from bit 16 on those that read it in backward, too; and
 * those that write to a tensor of the caller's; and those whose forward reads a parameter, among ops that sum. */
#define TE__SAVED_AT(x, i, op) | (TE_FLAGS(op) & TE_SAVES_INPUT ? 0x10001 << i : TE_FLAGS(op) & TE_IS_FORK ? 1 << i : 0)
#define TE__PARAM_AT(x, i, op) | (TE__SUMS(op) ? 1 << i : 0)
#define TE__OUTPUT_AT(x, i, op) | (TE_FLAGS(op) & TE_IS_OUTPUT ? 1 << i : 0)
#define TE__DRAWS(x, i, op) + ((TE_FLAGS(op) & TE_DRAWS) != 0)
#define TE__FIRST_OF(bits)                                                                                 \
    ((bits) & 1 ? 0 : (bits) & 2 ? 1 : (bits) & 4 ? 2 : (bits) & 8 ? 3 : (bits) & 16 ? 4 : (bits) & 32 ? 5 \
        : (bits) & 64 ? 6 : (bits) & 128 ? 7 : -1)
/* Ops that read a tensor of the row's shape in the model's format: what a product may load ahead of its epilogue. */
#define TE__READS(x, i, op) TE__READS2(TE_UNWRAP(x), i, op)
#define TE__READS2(...) TE__READS3(__VA_ARGS__)
#define TE__READS3(name, model, dtype, pass, i, op) \
    | (TE__READS_##pass(model, op, (int)TE_##dtype) && !TE__IS_LOCAL_##pass(name, model, op) ? 1 << i : 0)
#define TE__READS_forward(model, op, dtype) \
    ((TE_FLAGS(op) & (TE_IS_ADD | TE_IS_MUL)) && (int)TE_EDGE_DTYPE(model, op) == dtype)
#define TE__READS_backward(model, op, dtype)                                           \
    (((TE_FLAGS(op) & TE_SAVES_INPUT) && (int)TE_DTYPE_IN(model, op) == dtype) ||      \
     ((TE_FLAGS(op) & TE_IS_FORK) && (int)TE_EDGE_DTYPE(model, op) == dtype))

/* A fork and who reads it in one row: what the second one reads the kernel has stored. */
#define TE__IS_LOCAL_forward(name, model, op) \
    ((TE_FLAGS(op) & (TE_IS_ADD | TE_IS_MUL)) && (int)TE_EDGE_INDEX(model, op) >= (int)name##_first)
#define TE__IS_LOCAL_backward(name, model, op) \
    TE_IF_MARKED(TE_JOIN1(TE__FORK_MARK_, TE_FAMILY(op)), TE__IS_LOCAL_FORK, TE__IS_NOT_LOCAL)(name, model, op)
#define TE__IS_LOCAL_FORK(name, model, op) ((int)name##_local_forks >> ((int)name##_first - (int)TE_ID(model, op)) & 1)
/* Bits, by place in a row of backward: the forks whose readers stand in it. */
#define TE__LOCAL_FORKS(x, i, op) TE__LOCAL_FORKS2(TE_UNWRAP(x), op)
#define TE__LOCAL_FORKS2(...) TE__LOCAL_FORKS3(__VA_ARGS__)
#define TE__LOCAL_FORKS3(name, model, op)                                      \
    | (TE_FLAGS(op) & (TE_IS_ADD | TE_IS_MUL) ? TE__BIT((int)name##_first - (int)TE_EDGE_INDEX(model, op)) : 0)
#define TE__BIT(at) ((at) >= 0 && (at) < (int)TE_MAX_PATTERN ? 1 << ((at) & (TE_MAX_PATTERN - 1)) : 0)
/* In backward a mul stores the gradient of what its fork kept, and an add where the fork has other readers. */
#define TE__JOINS_forward(model, op) 0
#define TE__JOINS_backward(model, op) \
    TE_IF_MARKED(TE_JOIN1(TE__FORK_USE_MARK_, TE_FAMILY(op)), TE__JOINS_FORK_USE, TE__JOINS_NONE)(model, op)
#define TE__FORK_USE_MARK_add ,
#define TE__FORK_USE_MARK_mul ,
#define TE__JOINS_NONE(model, op) 0
#define TE__JOINS_FORK_USE(model, op) \
    ((TE_FLAGS(op) & TE_IS_MUL) || model##_fork_readers((int)TE_EDGE_INDEX(model, op)) > 1)
#define TE__IS_NOT_LOCAL(name, model, op) 0
/* The calls of the row's ops, each with its options. */
#define TE__STAGE_OPTIONS(x, i, op) const TE_OPTIONS_TYPE(op) o##i = TE_OPTIONS_VALUES(op);
#define TE__STAGE(x, i, op) TE__STAGE2(TE_CLASS(op), TE_UNWRAP(x), i, TE_FAMILY(op), op)
#define TE__STAGE2(...) TE__STAGE3(__VA_ARGS__)
#define TE__STAGE3(op_class, name, model, dtype, pass, i, family, op)                                                  \
    const te_formats f##i = {(te_dtype)TE_DTYPE_IN(model, op), (te_dtype)TE_DTYPE_OUT(model, op),                      \
                             (te_dtype)TE_EDGE_DTYPE(model, op), TE_##dtype, TE__IS_LOCAL_##pass(name, model, op),       \
                             TE__JOINS_##pass(model, op)};                                                             \
    TE__STAGE_##op_class(pass, i, family)
#define TE__STAGE_map(pass, i, family) \
    if (from <= i && i < to) te_map_##pass(l, &c->op[i], te_##family##_##pass, &o##i, f##i);
#define TE__STAGE_gated(pass, i, family) \
    if (from <= i && i < to) te_gate_##pass(l, &c->op[i], te_##family##_##pass, &o##i, f##i);
#define TE__STAGE_norm(pass, i, family) (void)l, (void)c, (void)from, (void)to, (void)o##i, (void)f##i;

/* ---- a chain: its kernels ---------------------------------------------------------------------------------------- */

/* One kernel, of the list's own width; or one of several, of which the width of a call takes the first that it fits. */
#define TE__POINTWISE_FIXED(name, dtype, pass, eps, ...)                                                           \
    TE_IF_MARKED(TE_EACH_OP(TE__NORM_MARK, ~, __VA_ARGS__), TE_JOIN1(TE__POINTWISE_NORM_, pass), TE__POINTWISE_MAP)        \
    (name, name, dtype, pass, eps, TE_POINTWISE_LANES, 1)
#define TE__POINTWISE_MAP(kernel, name, dtype, pass, eps, lanes, exists) \
    TE__POINTWISE_KERNEL(kernel, name, dtype, pass, eps, name##_half, name##_half % 8 == 0, name##_half, , lanes, exists)
#define TE__POINTWISE_NORM_backward TE__POINTWISE_MAP
#if TE_CUDA /* a norm of few rows has a kernel of its own, if it would be another one */
#define TE__POINTWISE_NORM_forward(kernel, name, dtype, pass, eps, lanes, exists)                             \
    TE__POINTWISE_MAP(kernel##_bulk, name, dtype, pass, eps, lanes, exists)                                   \
    TE__POINTWISE_MAP(kernel##_low_latency, name, dtype, pass, eps, TE_LOW_LATENCY_LANES,                                 \
        (int)kernel##_low_latency_lanes != (int)kernel##_bulk_lanes)                                            \
    TE_BOTH te_pointwise_shape kernel##_shape(int half) { return kernel##_bulk_shape(half); }                 \
    TE_API te_status kernel##_launch(te_context *ctx, te_grid grid, const te_pointwise *c) {                  \
        const int one = (int)kernel##_low_latency_lanes == (int)kernel##_bulk_lanes;                            \
        if (one || c->rows > ctx->processors) return kernel##_bulk_launch(ctx, grid, c);                  \
        return kernel##_low_latency_launch(ctx, te_grid_of(te_ceil_div(c->rows, kernel##_low_latency_groups), 1), c); \
    }
#else
#define TE__POINTWISE_NORM_forward TE__POINTWISE_MAP
#endif
#define TE__POINTWISE_DIMS(name, dtype, pass, eps, ...)                                                               \
    TE__POINTWISE_KERNELS(TE_IF_MARKED(TE_EACH_OP(TE__NORM_MARK, ~, __VA_ARGS__), TE_NORM_KERNELS, TE_MAP_KERNELS), name, \
        dtype, pass, eps)
#define TE__POINTWISE_KERNELS(list, name, dtype, pass, eps)                                                                \
    list(TE__POINTWISE_ONE, name, dtype, pass, eps)                                                                        \
    TE_API te_pointwise_shape name##_shape(int half) {                                                                     \
        list(TE__POINTWISE_SHAPE_IF, name)                                                                                 \
        return te_no_shape();                                                                                          \
    }                                                                                                                  \
    TE_API te_status name##_launch(te_context *ctx, te_grid grid, const te_pointwise *c) {                                 \
        const int half = c->half;                                                                                      \
        list(TE__POINTWISE_LAUNCH_IF, name)                                                                                \
        return te_fail(ctx, TE_ERROR_SHAPE, #name ": no kernel for %d columns", half);                                 \
    }
#define TE__POINTWISE_ONE(name, dtype, pass, eps, suffix, columns, even) \
    TE__POINTWISE_KERNEL(name##_##suffix, name, dtype, pass, eps, columns, even, half, te_shape_at, TE_POINTWISE_LANES, 1)
#define TE__POINTWISE_FITS(name, columns, even) ((half <= columns || name##_norm < 0) && (even) == (half % 8 == 0))
#define TE__POINTWISE_SHAPE_IF(name, suffix, columns, even) if (TE__POINTWISE_FITS(name, columns, even)) return \
    name##_##suffix##_shape(half);
#define TE__POINTWISE_LAUNCH_IF(name, suffix, columns, even) \
    if (TE__POINTWISE_FITS(name, columns, even)) return name##_##suffix##_launch(ctx, grid, c);
/* A kernel for rows of `columns`, at most where the width is known only at run time: then `at` finishes the shape.
 * exists: 0 leaves it empty. kernel##_registers is what a thread keeps of the rows that it works on. */
#define TE__POINTWISE_KERNEL(kernel, name, dtype, pass, eps, columns, even, width, at, lanes_of, exists)                 \
    enum {                                                                                                           \
        kernel##_lanes = TE__SCALED_LANES(name, lanes_of(name##_row_at, columns, name##_sums, pass)),                \
        kernel##_groups = TE_POINTWISE_GROUPS(name##_row_at, kernel##_lanes),                                            \
        kernel##_chunks = TE_POINTWISE_CHUNKS(name##_row_at, columns, kernel##_lanes),                                   \
        kernel##_threads = kernel##_lanes * kernel##_groups,                                                         \
        kernel##_smem_gamma = TE_POINTWISE_SMEM_GAMMA(name##_norm, kernel##_lanes, kernel##_chunks, (int)TE_##dtype == (int)TE_f32 \
            ? 4 : 2, name##_is_backward),                                                                            \
        kernel##_resident = TE_POINTWISE_RESIDENT(name##_row_at, kernel##_threads, kernel##_chunks, name##_sums,         \
            name##_in_halves != name##_out_halves, pass)                                                             \
    };                                                                                                               \
    typedef struct kernel##_registers { float sums[TE_SUM_SLOTS * 8 * kernel##_chunks];                              \
        te_vec8 rows[5 * kernel##_chunks]; } kernel##_registers;                                                     \
    typedef struct kernel##_shared { te_smem16 stash[kernel##_smem_gamma / 16 + 1]; } kernel##_shared;                    \
    TE_BOTH te_pointwise_shape kernel##_shape(int half) {                                                                \
        const te_pointwise_shape k = {(te_dtype)name##_in_dtype, (te_dtype)name##_out_dtype, TE_##dtype, width,          \
            name##_in_halves, name##_out_halves, even, name##_norm, {name##_norm_code, eps},                         \
            (te_dtype)name##_norm_in, (te_dtype)name##_norm_out, name##_sums, name##_sum_halves, name##_sums_three,  \
            name##_is_backward, name##_draws, name##_reads, kernel##_lanes, kernel##_chunks, kernel##_groups,        \
            kernel##_resident, kernel##_smem_gamma, name##_fp8_wanted,                                                    \
            (width) % 16 == 0 && name##_local_scales() ? (te_scaling)name##_scaled : TE_SCALING_NONE, 0,                    \
            name##_norm_reads_x};                                                                                    \
        (void)half;                                                                                                  \
        return at(k);                                                                                                \
    }                                                                                                                \
    TE_FN void kernel##_body(const te_pointwise *c, te_block b, kernel##_registers *r, kernel##_shared *s) {             \
        if (exists)                                                                                                  \
            te_pointwise_body(c, b, name##_stages, name##_fp8_wanted != 0 ? te_pointwise_store_fp8 : te_pointwise_store,         \
                          TE_POINTWISE_ROWS_OF(name), kernel##_shape(c->half), r->sums, r->rows, s->stash);              \
    }                                                                                                                \
    TE_KERNEL_WITH(kernel, kernel##_threads, kernel##_resident, te_pointwise, kernel##_registers, kernel##_shared,       \
        kernel##_body)

#endif
