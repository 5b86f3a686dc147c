/* pointwise_macros.h -- generates the pointwise kernels of a step of the plan from the step's ops (the pattern).
 * Generated are the constants of the pattern (widths, number formats, which op is the norm, which op sums gradients),
 * the function that runs the ops on eight elements, and the kernels. The macros only make names and constants; the code
 * of the kernels is in functions (pointwise_kernel.h, pointwise_quantize_transpose.h).
 *
 *     TE_POINTWISE(name, widths, model, dtype, pass, ops...)
 *
 * defines name##_shape(half) and name##_launch(ctx, grid, args).
 */
#ifndef TE_POINTWISE_MACROS_H
#define TE_POINTWISE_MACROS_H
#if defined __GNUC__ && !defined __clang__ && !defined __CUDACC__ && !defined TE_LIST_WARNINGS
#pragma GCC system_header
#endif

#include "../../plan/impl/operand_policy.h" /* te__is_recomputable, te__consumer_distance */
#include "../../plan/op_list.h" /* TE_EACH_OP, TE_WIDTH_IN */
#include "pointwise_kernel.h" /* te_pointwise_body */
#include "pointwise_quantize_transpose.h" /* te_pointwise_tiles_body */

/* ---- constants of a pointwise kernel, from the ops of its pattern ----------------------------------------------- */

#define TE_POINTWISE(name, widths, model, dtype, pass, ...)                                         \
    TE__POINTWISE(name, widths, model, dtype, pass, TE_JOIN1(TE__POINTWISE_IN_, pass)(TE_WIDTH_, model, \
        TE_FIRST_OP(__VA_ARGS__)),                                                             \
              TE_JOIN1(TE__POINTWISE_OUT_, pass)(TE_WIDTH_, model, TE_LAST_OP(__VA_ARGS__)),       \
              TE_JOIN1(TE__POINTWISE_IN_, pass)(TE_DTYPE_, model, TE_FIRST_OP(__VA_ARGS__)),       \
              TE_JOIN1(TE__POINTWISE_OUT_, pass)(TE_DTYPE_, model, TE_LAST_OP(__VA_ARGS__)), __VA_ARGS__)
#define TE__POINTWISE_IN_forward(prefix, model, op) prefix##IN(model, op)
#define TE__POINTWISE_OUT_forward(prefix, model, op) prefix##OUT(model, op)
#define TE__POINTWISE_IN_backward(prefix, model, op) prefix##OUT(model, op)
#define TE__POINTWISE_OUT_backward(prefix, model, op) prefix##IN(model, op)
/* Define the constants and the kernels of a step. name##_half is the smaller of the widths of the step's input and
 * output; with a gated op, the larger width is twice name##_half. A width that is known only at run time is a negative
 * number, so absolute values are compared. */
#define TE__POINTWISE(name, widths, model, dtype, pass, in, out, x_dtype, y_dtype, ...)                                \
    enum {                                                                                                             \
        name##_half = ((int)in < (int)out) == ((int)in > 0) ? (int)in : (int)out,                                      \
        name##_in_halves = (int)in / name##_half,                                                                      \
        name##_out_halves = (int)out / name##_half,                                                                    \
        name##_in_dtype = (int)x_dtype,                                                                                \
        name##_out_dtype = (int)y_dtype,                                                                               \
        name##_norm = TE_EACH_OP(TE__NORM_AT, ~, __VA_ARGS__) - 1,                                                     \
        name##_norm_code = 0 TE_EACH_OP(TE__NORM_CODE, ~, __VA_ARGS__),                                                \
        name##_norm_columns = 0 TE_EACH_OP(TE__NORM_COLUMNS, ~, __VA_ARGS__),                                          \
        name##_norm_first = 0 TE_EACH_OP(TE__NORM_FIRST, ~, __VA_ARGS__),                                              \
        name##_norm_reads_x = ((0 TE_EACH_OP(TE__NO_FORK_AT, ~, __VA_ARGS__)) & ((1 << (name##_norm + 1)) - 2)) == 0,  \
        name##_norm_in = 0 TE_EACH_OP(TE__NORM_IN, model, __VA_ARGS__),                                                \
        name##_norm_out = 0 TE_EACH_OP(TE__NORM_OUT, model, __VA_ARGS__),                                              \
        name##_is_backward = TE_PASS_backward_##pass,                                                                  \
        name##_sums = (name##_is_backward ? 0 TE_EACH_OP(TE__SUM_AT, ~, __VA_ARGS__) : 0) - 1,                         \
        name##_sum_halves = name##_is_backward ? (0 TE_EACH_OP(TE__SUM_WIDTH, model, __VA_ARGS__)) / name##_half : 0,  \
        name##_sum_params = name##_is_backward ? (0 TE_EACH_OP(TE__SUM_PARAMS, ~, __VA_ARGS__)) : 0,                   \
        name##_draws = (0 TE_EACH_OP(TE__DRAWS, ~, __VA_ARGS__)) > 0,                                                  \
        name##_first = TE_ID(model, TE_FIRST_OP(__VA_ARGS__)),                                                         \
        name##_local_forks = 0 TE_EACH_OP(TE__LOCAL_FORKS, (name, model), __VA_ARGS__),                                \
        name##_tensor_loads = 0 TE_EACH_OP(TE__READS, (name, model, dtype, pass), __VA_ARGS__),                        \
        name##_reads = TE__FIRST_OF(name##_tensor_loads),                                                              \
        name##_saved_inputs = 0 TE_EACH_OP(TE__SAVED_AT, ~, __VA_ARGS__),                                              \
        name##_params = name##_is_backward ? 0 : (0 TE_EACH_OP(TE__PARAM_AT, ~, __VA_ARGS__)),                         \
        name##_fp8_wanted = !model##_runs_fp8 ? 0 : name##_is_backward ? (int)model##_gradients : (int)TE_e4m3,        \
        TE__POINTWISE_SCALING_FACTS(model, name)                                                                       \
    };                                                                                                                 \
    static_assert(!name##_is_backward || name##_norm <= 0, "te: " #name ": in backward a norm begins its pattern");    \
    static_assert((0 TE_EACH_OP(TE__ONE_NORM, ~, __VA_ARGS__)) <= 1, "te: " #name ": a pattern has at most one norm"); \
    static_assert((0 TE_EACH_OP(TE__ONE_GATED, ~, __VA_ARGS__)) <= ((int)in == (int)out || name##_norm >= 0 ? 0 : 1),  \
                  "te: " #name ": a pattern has at most one gated op, and none beside a norm");                        \
    static_assert(!name##_is_backward || (0 TE_EACH_OP(TE__ONE_SUM, ~, __VA_ARGS__)) <= 1,                             \
                  "te: " #name ": a backward pattern has at most one bias, mul_param, dyt or xielu");                  \
    static_assert(name##_sum_params < 2 || (name##_norm < 0 && (0 TE_EACH_OP(TE__ONE_GATED, ~, __VA_ARGS__)) == 0),    \
                  "te: " #name ": a backward pattern with a dyt or xielu has no norm and no gated op");                \
    static_assert((0 TE_EACH_OP(TE__ONE_GEMM, ~, __VA_ARGS__)) == 0,                                                   \
                  "te: " #name ": a linear or a custom op can only begin a pattern");                                  \
    TE_CALLBACK void name##_stages(te_lane *l, const te_pointwise *c, int from, int to) {                              \
        TE_EACH_OP(TE__STAGE_OPTIONS, ~, __VA_ARGS__)                                                                  \
        TE_EACH_OP(TE__STAGE, (name, model, dtype, pass), __VA_ARGS__)                                                 \
    }                                                                                                                  \
    TE__POINTWISE_OF_##widths(name, model, dtype, pass, (0.0f TE_EACH_OP(TE__NORM_EPS, ~, __VA_ARGS__)), __VA_ARGS__)
#define TE_PASS_backward_forward 0
#define TE_PASS_backward_backward 1
#define TE__IS_CLASS(op, c) ((int)TE_JOIN1(TE_CLASS_, TE_CLASS(op)) == (int)TE_CLASS_##c)
#define TE__NORM_AT(x, i, op) + (TE__IS_CLASS(op, norm) ? i + 1 : 0)
#define TE__NORM_CODE(x, i, op) TE__IF_NORM(op, +TE_NORM_CODE(op))
#define TE__NORM_COLUMNS(x, i, op) TE__IF_NORM(op, +TE_NORM_COLUMNS(op))
#define TE__NORM_FIRST(x, i, op) TE__IF_NORM(op, +TE_NORM_FIRST(op))
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
#define TE__SUM_PARAMS(x, i, op) + (TE__SUMS(op) ? TE_COUNT_PARAMS(op) : 0)
#define TE__SUM_WIDTH(model, i, op) + (TE__SUMS(op) ? (int)TE_WIDTH_OUT(model, op) : 0)
#define TE__ONE_SUM(x, i, op) + TE__SUMS(op)
/* Bit masks with one bit per op, at the op's position in the pattern. In SAVED_AT, an op's bit is set if the op's input
 * must be in memory; the bit at 16 + the op's position is set if backward reads this input. In PARAM_AT, an op's bit is
 * set if the op's backward sums the gradient of a parameter; the op's forward then reads this parameter. */
#define TE__SAVED_AT(x, i, op) | (TE_FLAGS(op) & TE_SAVES_INPUT ? 0x10001 << i : TE_FLAGS(op) & TE_IS_FORK ? 1 << i : 0)
#define TE__PARAM_AT(x, i, op) | (TE__SUMS(op) ? 1 << i : 0)
#define TE__DRAWS(x, i, op) + ((TE_FLAGS(op) & TE_DRAWS) != 0)
#define TE__FIRST_OF(bits)                                                                                 \
    ((bits) & 1 ? 0 : (bits) & 2 ? 1 : (bits) & 4 ? 2 : (bits) & 8 ? 3 : (bits) & 16 ? 4 : (bits) & 32 ? 5 \
        : (bits) & 64 ? 6 : (bits) & 128 ? 7 : -1)
/* Build the bit mask name##_tensor_loads. The bit of an op is set if the op reads, in addition to its input, a tensor
 * of the same shape in the dtype of the list of ops, which a GEMM may prefetch for its epilogue. The bit is not set for
 * a tensor that the kernel itself stores, because a prefetch could load such a tensor before it is stored. */
#define TE__READS(x, i, op) TE__READS2(TE_UNWRAP(x), i, op)
#define TE__READS2(...) TE__READS3(__VA_ARGS__)
#define TE__READS3(name, model, dtype, pass, i, op) \
    | (TE__READS_##pass(model, op, (int)TE_##dtype) && !TE__IS_LOCAL_##pass(name, model, op) ? 1 << i : 0)
#define TE__READS_forward(model, op, dtype) \
    ((TE_FLAGS(op) & (TE_IS_ADD | TE_IS_MUL)) && (int)TE_EDGE_DTYPE(model, op) == dtype)
#define TE__READS_backward(model, op, dtype)                                           \
    (((TE_FLAGS(op) & TE_SAVES_INPUT) && (int)TE_DTYPE_IN(model, op) == dtype) ||      \
     ((TE_FLAGS(op) & TE_IS_FORK) && (int)TE_EDGE_DTYPE(model, op) == dtype))

/* 1 if the kernel of the pattern itself stores the tensor that the op reads, else 0. In forward, the tensor is a fork's
 * value, and the result is 1 if the fork is in the pattern. In backward, the op is a fork that reads the gradient of
 * its value, and the result is 1 if an op that uses the fork is in the pattern. */
#define TE__IS_LOCAL_forward(name, model, op) \
    ((TE_FLAGS(op) & (TE_IS_ADD | TE_IS_MUL)) && (int)TE_EDGE_INDEX(model, op) >= (int)name##_first)
#define TE__IS_LOCAL_backward(name, model, op) \
    TE_IF_MARKED(TE_JOIN1(TE__FORK_MARK_, TE_FAMILY(op)), TE__IS_LOCAL_FORK, TE__IS_NOT_LOCAL)(name, model, op)
#define TE__IS_LOCAL_FORK(name, model, op) ((int)name##_local_forks >> ((int)name##_first - (int)TE_ID(model, op)) & 1)
/* A bit mask with one bit for each position in a backward pattern. The bit is set if the op at the position is a fork,
 * and an op that uses this fork is in the same pattern. */
#define TE__LOCAL_FORKS(x, i, op) TE__LOCAL_FORKS2(TE_UNWRAP(x), op)
#define TE__LOCAL_FORKS2(...) TE__LOCAL_FORKS3(__VA_ARGS__)
#define TE__LOCAL_FORKS3(name, model, op)                                      \
    | (TE_FLAGS(op) & (TE_IS_ADD | TE_IS_MUL) ? TE__BIT((int)name##_first - (int)TE_EDGE_INDEX(model, op)) : 0)
#define TE__BIT(at) ((at) >= 0 && (at) < (int)TE_MAX_PATTERN ? 1 << ((at) & (TE_MAX_PATTERN - 1)) : 0)
/* 1 if an add or a mul stores the gradient of its fork's value in backward, else 0. A mul always stores this gradient;
 * an add stores it only if other ops use the fork, too. */
#define TE__JOINS_forward(model, op) 0
#define TE__JOINS_backward(model, op) \
    TE_IF_MARKED(TE_JOIN1(TE__FORK_USE_MARK_, TE_FAMILY(op)), TE__JOINS_FORK_USE, TE__JOINS_NONE)(model, op)
#define TE__FORK_USE_MARK_add ,
#define TE__FORK_USE_MARK_mul ,
#define TE__JOINS_NONE(model, op) 0
#define TE__JOINS_FORK_USE(model, op) \
    ((TE_FLAGS(op) & TE_IS_MUL) || model##_fork_uses((int)TE_EDGE_INDEX(model, op)) > 1)
#define TE__IS_NOT_LOCAL(name, model, op) 0
/* For each op of the pattern, these macros generate a constant with the op's options, and the call that runs the op
 * with this constant as an argument. */
#define TE__STAGE_OPTIONS(x, i, op) const TE_OPTIONS_TYPE(op) o##i = TE_OPTIONS_VALUES(op);
#define TE__STAGE(x, i, op) TE__STAGE2(TE_CLASS(op), TE_UNWRAP(x), i, TE_FAMILY(op), op)
#define TE__STAGE2(...) TE__STAGE3(__VA_ARGS__)
#define TE__STAGE3(op_class, name, model, dtype, pass, i, family, op)                                              \
    const te_formats f##i = {(te_dtype)TE_DTYPE_IN(model, op), (te_dtype)TE_DTYPE_OUT(model, op),                  \
                             (te_dtype)TE_EDGE_DTYPE(model, op), TE_##dtype, TE__IS_LOCAL_##pass(name, model, op), \
                             TE__JOINS_##pass(model, op)};                                                         \
    TE__STAGE_##op_class(pass, i, family)
#define TE__STAGE_map(pass, i, family) \
    if (from <= i && i < to) te_map_##pass(l, &c->op[i], te_##family##_##pass, &o##i, f##i);
#define TE__STAGE_gated(pass, i, family) \
    if (from <= i && i < to) te_gate_##pass(l, &c->op[i], te_##family##_##pass, &o##i, f##i);
#define TE__STAGE_norm(pass, i, family) (void)l, (void)c, (void)from, (void)to, (void)o##i, (void)f##i;

/* ---- the kernels ------------------------------------------------------------------------------------------------- */

/* Define the constants of a kernel's launch (lanes, groups and others) for rows of at most `columns` columns. lanes_of:
 * the macro that chooses how many lanes work on a row, TE_POINTWISE_LANES or TE_LOW_LATENCY_LANES. */
#define TE__POINTWISE_LAUNCH(kernel, name, dtype, pass, columns, lanes_of)                                            \
    enum {                                                                                                            \
        kernel##_lanes = TE__SCALED_LANES(name, lanes_of(name##_row_at, columns, name##_sums, pass)),                 \
        kernel##_groups = TE_POINTWISE_GROUPS(name##_row_at, kernel##_lanes),                                         \
        kernel##_chunks = TE_POINTWISE_CHUNKS(name##_row_at, columns, kernel##_lanes),                                \
        kernel##_threads = kernel##_lanes * kernel##_groups,                                                          \
        kernel##_smem_gamma = TE_POINTWISE_SMEM_GAMMA(name##_norm, kernel##_lanes, kernel##_chunks,                   \
            (int)TE_##dtype == (int)TE_f32 ? 4 : 2, name##_is_backward),                                              \
        kernel##_resident = TE_POINTWISE_RESIDENT(name##_row_at, kernel##_threads, kernel##_chunks, name##_sums,      \
            name##_in_halves != name##_out_halves, pass)                                                              \
    };
/* Define kernel##_shape(half), which returns all constants of the kernel. width: name##_half; if the width is known
 * only at run time, the argument `half`. finish: empty; if the width is known only at run time, te_shape_at, which
 * adapts the shape to the width. */
#define TE__POINTWISE_SHAPE(kernel, name, dtype, eps, width, is_aligned, finish)                                      \
    TE_BOTH te_pointwise_shape kernel##_shape(int half) {                                                             \
        const te_pointwise_shape k = {                                                                                \
            TE_MEMBER(in, (te_dtype)name##_in_dtype),                                                                 \
            TE_MEMBER(out, (te_dtype)name##_out_dtype),                                                               \
            TE_MEMBER(weight, TE_##dtype),                                                                            \
            TE_MEMBER(half, width),                                                                                   \
            TE_MEMBER(in_halves, name##_in_halves),                                                                   \
            TE_MEMBER(out_halves, name##_out_halves),                                                                 \
            TE_MEMBER(aligned, is_aligned),                                                                           \
            TE_MEMBER(norm, name##_norm),                                                                             \
            TE_MEMBER(norm_options, {name##_norm_code, eps}),                                                         \
            TE_MEMBER(norm_columns, name##_norm_columns),                                                             \
            TE_MEMBER(norm_first, name##_norm_first),                                                                 \
            TE_MEMBER(norm_in, (te_dtype)name##_norm_in),                                                             \
            TE_MEMBER(norm_out, (te_dtype)name##_norm_out),                                                           \
            TE_MEMBER(sums, name##_sums),                                                                             \
            TE_MEMBER(sum_halves, name##_sum_halves),                                                                 \
            TE_MEMBER(sum_params, name##_sum_params),                                                                 \
            TE_MEMBER(backward, name##_is_backward),                                                                  \
            TE_MEMBER(draws, name##_draws),                                                                           \
            TE_MEMBER(reads, name##_reads),                                                                           \
            TE_MEMBER(lanes, kernel##_lanes),                                                                         \
            TE_MEMBER(chunks, kernel##_chunks),                                                                       \
            TE_MEMBER(groups, kernel##_groups),                                                                       \
            TE_MEMBER(resident, kernel##_resident),                                                                   \
            TE_MEMBER(smem_gamma, kernel##_smem_gamma),                                                               \
            TE_MEMBER(fp8, name##_fp8_wanted),                                                                        \
            TE_MEMBER(scaled, (width) % 16 == 0 && name##_local_scales() ? (te_scaling)name##_scaled                  \
                                                                         : TE_SCALING_NONE),                          \
            TE_MEMBER(transposes, 0),                                                                                 \
            TE_MEMBER(norm_reads_x, name##_norm_reads_x)};                                                            \
        (void)half;                                                                                                   \
        return finish(k);                                                                                             \
    }
/* Define one pointwise kernel. kernel##_registers has the sums and the vectors of rows that a thread holds in
 * registers. exists: 0 if the kernel is never launched, so that its body may be empty. */
#define TE__POINTWISE_KERNEL(kernel, name, exists)                                                                    \
    typedef struct kernel##_registers {                                                                               \
        float sums[TE_SUM_SLOTS * 8 * kernel##_chunks];                                                               \
        te_vec8 rows[5 * kernel##_chunks];                                                                            \
    } kernel##_registers;                                                                                             \
    typedef struct kernel##_shared { te_smem16 gamma[kernel##_smem_gamma / 16 + 1]; } kernel##_shared;                \
    TE_FN void kernel##_body(const te_pointwise *c, te_block b, kernel##_registers *r, kernel##_shared *s) {          \
        if (exists) {                                                                                                 \
            const te_pointwise_part part = {0, 0, 0, r->sums, r->rows, s->gamma, 0};                                  \
            te_pointwise_body(c, b, name##_stages,                                                                    \
                              name##_fp8_wanted != 0 ? te_pointwise_store_fp8 : te_pointwise_store,                   \
                              TE_POINTWISE_ROWS_OF(name), kernel##_shape(c->half), part);                             \
        }                                                                                                             \
    }                                                                                                                 \
    TE_FN void kernel##_prefetch(const te_pointwise *c) {                                                             \
        if (exists) te_norm_prefetch(c, kernel##_shape(c->half));                                                     \
    }                                                                                                                 \
    TE_KERNEL_WITH_PREFETCH(kernel, kernel##_threads, kernel##_resident, te_pointwise, kernel##_registers,            \
        kernel##_shared, kernel##_prefetch, kernel##_body)

/* Define the kernel of a step in a model with constant widths. The kernel is compiled for exactly the width of the
 * step. */
#define TE__POINTWISE_FIXED(name, dtype, pass, eps, ...)                                                              \
    TE__POINTWISE_BY_NORM(pass, __VA_ARGS__)(name, name, dtype, pass, eps, TE_POINTWISE_LANES, 1)
#define TE__POINTWISE_BY_NORM(pass, ...)                                                                              \
    TE_IF_MARKED(TE_EACH_OP(TE__NORM_MARK, ~, __VA_ARGS__), TE_JOIN1(TE__POINTWISE_NORM_, pass), TE__POINTWISE_MAP)
#define TE__POINTWISE_MAP(kernel, name, dtype, pass, eps, lanes, exists)                                              \
    TE__POINTWISE_LAUNCH(kernel, name, dtype, pass, name##_half, lanes)                                               \
    TE__POINTWISE_SHAPE(kernel, name, dtype, eps, name##_half, name##_half % 8 == 0, )                                \
    TE__POINTWISE_KERNEL(kernel, name, exists)
#define TE__POINTWISE_NORM_backward TE__POINTWISE_MAP
#if TE_CUDA
/* Define two kernels of a forward step with a norm: `bulk`, for many rows, and `low_latency`, for at most as many rows
 * as the GPU has SMs. If both kernels would use the same number of lanes for a row, low_latency is empty and never
 * launched. */
#define TE__POINTWISE_NORM_forward(kernel, name, dtype, pass, eps, lanes, exists)                                     \
    TE__POINTWISE_MAP(kernel##_bulk, name, dtype, pass, eps, lanes, exists)                                           \
    TE__POINTWISE_MAP(kernel##_low_latency, name, dtype, pass, eps, TE_LOW_LATENCY_LANES,                             \
        (int)kernel##_low_latency_lanes != (int)kernel##_bulk_lanes)                                                  \
    TE_BOTH te_pointwise_shape kernel##_shape(int half) { return kernel##_bulk_shape(half); }                         \
    TE_API te_status kernel##_launch(te_context *ctx, te_grid grid, const te_pointwise *c) {                          \
        const int one = (int)kernel##_low_latency_lanes == (int)kernel##_bulk_lanes;                                  \
        if (one || c->rows > ctx->processors) return kernel##_bulk_launch(ctx, grid, c);                              \
        return kernel##_low_latency_launch(ctx, te__grid_of(te_ceil_div(c->rows, kernel##_low_latency_groups), 1), c); \
    }
#else
#define TE__POINTWISE_NORM_forward TE__POINTWISE_MAP
#endif

/* Define the kernels of a step whose width is known only at run time. The launch picks the first kernel that fits the
 * width. */
#define TE__POINTWISE_DIMS(name, dtype, pass, eps, ...)                                                               \
    TE__POINTWISE_KERNELS(                                                                                            \
        TE_IF_MARKED(TE_EACH_OP(TE__NORM_MARK, ~, __VA_ARGS__), TE_NORM_KERNELS, TE_MAP_KERNELS),                     \
        name, dtype, pass, eps)
#define TE__POINTWISE_KERNELS(list, name, dtype, pass, eps)                                                           \
    list(TE__POINTWISE_ONE, name, dtype, pass, eps)                                                                   \
    TE_API te_pointwise_shape name##_shape(int half) {                                                                \
        list(TE__POINTWISE_SHAPE_IF, name)                                                                            \
        return te_no_shape();                                                                                         \
    }                                                                                                                 \
    TE_API te_status name##_launch(te_context *ctx, te_grid grid, const te_pointwise *c) {                            \
        const int half = c->half;                                                                                     \
        list(TE__POINTWISE_LAUNCH_IF, name)                                                                           \
        return te_fail(ctx, TE_ERROR_SHAPE, #name ": no kernel for %d columns", half);                                \
    }
#define TE__POINTWISE_ONE(name, dtype, pass, eps, suffix, columns, is_aligned)                                        \
    TE__POINTWISE_LAUNCH(name##_##suffix, name, dtype, pass, columns, TE_POINTWISE_LANES)                             \
    TE__POINTWISE_SHAPE(name##_##suffix, name, dtype, eps, half, is_aligned, te_shape_at)                             \
    TE__POINTWISE_KERNEL(name##_##suffix, name, 1)
#define TE__POINTWISE_FITS(name, columns, is_aligned)                                                                 \
    ((half <= columns || name##_norm < 0) && (is_aligned) == (half % 8 == 0))
#define TE__POINTWISE_SHAPE_IF(name, suffix, columns, is_aligned)                                                     \
    if (TE__POINTWISE_FITS(name, columns, is_aligned)) return name##_##suffix##_shape(half);
#define TE__POINTWISE_LAUNCH_IF(name, suffix, columns, is_aligned)                                                    \
    if (TE__POINTWISE_FITS(name, columns, is_aligned)) return name##_##suffix##_launch(ctx, grid, c);

/* ---- kernels of models under a recipe ---------------------------------------------------------------------------- */

/* Each of the macros TE__POINTWISE_OF_* defines the kernels of a step in one kind of model. The suffix says whether the
 * model's widths are constants (fixed) or known only at run time (dims), and whether the model names an FP8 recipe
 * (fp8). The macros TE__PRODUCT_fixed etc. in linear_epilogue.h have the same suffixes. A kernel contains code that
 * computes scales for rows or tiles only if the op that reads the kernel's result needs such scales. */
#define TE__POINTWISE_OF_fixed(name, model, ...) TE__POINTWISE_NO_CONSUMER(name) TE__POINTWISE_FIXED(name, __VA_ARGS__)
#define TE__POINTWISE_OF_dims(name, model, ...) TE__POINTWISE_NO_CONSUMER(name) TE__POINTWISE_DIMS(name, __VA_ARGS__)
#define TE__POINTWISE_OF_fixed_fp8(name, model, dtype, pass, eps, ...) \
    TE__POINTWISE_CONSUMER(name, model, __VA_ARGS__) TE__POINTWISE_FIXED(name, dtype, pass, eps, __VA_ARGS__)
#define TE__POINTWISE_OF_dims_fp8(name, model, dtype, pass, eps, ...) \
    TE__POINTWISE_CONSUMER(name, model, __VA_ARGS__) TE__POINTWISE_DIMS(name, dtype, pass, eps, __VA_ARGS__)
#define TE__POINTWISE_NO_CONSUMER(name) \
    TE_BOTH int name##_local_scales(void) { return 0; }   \
    TE_UNUSED TE_BOTH te_pointwise_result name##_result(void) { return TE_RESULT_y; }
/* The recipe of the op that consumes the result of op i (in backward, the gradient of op i's input), found at compile
 * time; te__consumer_of finds the same op at run time. step: 1 in forward, -1 in backward, which runs through the list
 * of ops from its end. passes_through: the flag of ops that pass the result on unchanged; such an op is skipped, and
 * the op behind it is the consumer. */
#define TE__CONSUMER_RECIPE(model, i, step, passes_through)                                                           \
    (~(int)TE_PASSES_THROUGH &                                                                                       \
     model##_facts_at((i) + (step) * te__consumer_distance(model##_facts_at((i) + (step)), passes_through)))
/* Return how a kernel stores its result for a consumer with this recipe: in the dtype of the list of ops (TE_RESULT_y),
 * unless the recipe has one scale per tensor. */
TE_BOTH te_pointwise_result te__result_for_recipe(int recipe) {
    if (!TE_IS_TENSORWISE(recipe)) return TE_RESULT_y;
    return recipe == (int)TE_RECIPE_fp8_current ? TE_RESULT_amax : TE_RESULT_fp8;
}
#define TE__POINTWISE_CONSUMER(name, model, ...)                                                                       \
    TE_BOTH int name##_next_recipe(void) {                                                                             \
        return TE__CONSUMER_RECIPE(model, (int)TE_ID(model, TE_LAST_OP(__VA_ARGS__)),                                  \
                                 name##_is_backward ? -1 : 1,                                                          \
                                 name##_is_backward ? (int)TE_PASSES_GRAD : (int)TE_PASSES_VALUE);                     \
    }                                                                                                                  \
    TE_BOTH int name##_local_scales(void) {                                                                            \
        return te__has_local_scales(te__scaling_of_recipe(name##_next_recipe()));                                      \
    }                                                                                                                  \
    TE_UNUSED TE_BOTH te_pointwise_result name##_result(void) { return te__result_for_recipe(name##_next_recipe()); }
/* Define the kernels of a step in a model that has constant widths and trains under a recipe: a row kernel, in which a
 * group of lanes works on a row, and a tile kernel (pointwise_quantize_transpose.h), which can also store the transpose
 * of the result. name##_launch launches one of the two kernels, or both (for example if the pattern has a norm). */
#define TE__POINTWISE_OF_fixed_training(name, model, dtype, pass, eps, ...)                                            \
    TE__POINTWISE_CONSUMER(name, model, __VA_ARGS__)                                                                   \
    TE_BOTH int name##_has_tiles(void) { return TE__POINTWISE_HAS_TILES(name) && name##_local_scales(); }              \
    TE_BOTH int name##_recomputes(void) {                                                                              \
        return TE__POINTWISE_RECOMPUTES(name, model, dtype, TE_LAST_OP(__VA_ARGS__));                                  \
    }                                                                                                                  \
    TE_BOTH int name##_transposes(void) {                                                                              \
        return name##_is_backward && TE__POINTWISE_HAS_TILES(name) && name##_result() == TE_RESULT_fp8 &&              \
               !((int)name##_saved_inputs >> 16) && (0 TE_EACH_OP(TE__CHANGES, ~, __VA_ARGS__)) > 0;                   \
    }                                                                                                                  \
    TE__POINTWISE_BY_NORM(pass, __VA_ARGS__)                                                                           \
    (name##_row, name, dtype, pass, eps, TE_POINTWISE_LANES, 1)                                                        \
    TE_BOTH te_pointwise_shape name##_shape(int half) {                                                                \
        te_pointwise_shape k = name##_row_shape(half);                                                                 \
        k.transposes = name##_has_tiles() || name##_transposes();                                                      \
        if (name##_has_tiles()) k.scaled = TE_SCALING_BLOCKWISE_1D;                                                    \
        return k;                                                                                                      \
    }                                                                                                                  \
    TE_FN void name##_tiles_body(const te_pointwise *c, te_block b, te_pointwise_tiles_held *held,                     \
                                 te_blockwise_shared *s) {                                                             \
        if (name##_has_tiles()) te_pointwise_tiles_body(c, b, name##_stages, name##_shape(0), held, s);                \
        else if (name##_recomputes() || name##_transposes())                                                           \
            te_pointwise_transpose_body(c, b, name##_stages, name##_shape(0), TE_OP_COUNT(__VA_ARGS__) - 1, held, s);  \
    }                                                                                                                  \
    TE_KERNEL_WITH(name##_tiles, TE_FP8_THREADS, TE__POINTWISE_TILES_RESIDENT(name), te_pointwise,                     \
                   te_pointwise_tiles_held,                                                                            \
                   te_blockwise_shared, name##_tiles_body)                                                             \
    TE_API te_status name##_launch(te_context *ctx, te_grid grid, const te_pointwise *c) {                             \
        return te__pointwise_launch_tiles(ctx, grid, c, name##_shape(0), name##_row_launch, name##_tiles_launch);      \
    }
/* 1 if backward may recompute the output of the pattern's last op, and a GEMM with one scale per tensor reads this
 * output; else 0. */
#define TE__POINTWISE_RECOMPUTES(name, model, dtype, op)                                                            \
    (!name##_is_backward && !(int)model##_saves_inputs &&                                                            \
     TE_IS_TENSORWISE(TE__CONSUMER_RECIPE(model, (int)TE_ID(model, op), 1, (int)TE_PASSES_VALUE)) &&                 \
     te__is_recomputable(TE_FLAGS(op), (te_dtype)TE_DTYPE_OUT(model, op), TE_##dtype))
/* Count an op that may change the gradient that passes through it. In backward under a recipe with one scale per
 * tensor, a tile kernel stores the gradient's transpose (name##_transposes) if at least one op changes the gradient,
 * and no op reads a saved input (name##_saved_inputs). With saved inputs a tile kernel would be slow, because it would
 * wait for the loads of these inputs one after another. */
#define TE__CHANGES(x, i, op) +te__changes_gradient(TE_FLAGS(op))
/* 1 if the pattern and its width allow a tile kernel that runs the whole pattern, else 0. For example, if the result
 * has two halves (backward of a gated op), no tile may contain columns of both halves. The step uses the tile kernel
 * only if a GEMM reads the result. */
#define TE__POINTWISE_HAS_TILES(name)                                                            \
    (name##_half % 16 == 0 && (int)name##_sum_params < 2 && !(name##_is_backward && name##_norm >= 0) && \
     (name##_out_halves == 1 || (int)name##_half % TE_FP8_TILE == 0))
/* The number of blocks per SM that a tile kernel is compiled for. Measured at 32768 x 4096 on an H200: gelu takes 212,
 * 181 and 169 us with 2, 3 and 4 blocks, and its backward with dbias takes 367, 316 and 277 us. swiglu takes 209 us
 * with 2 blocks and 205 us with 3 blocks. The backward of swiglu, in which a lane holds both halves of a row, takes 478
 * us with 2 blocks and 505 us with 3 blocks. */
#define TE__POINTWISE_TILES_RESIDENT(name)                                                \
    (name##_out_dtype == (int)TE_f32 || name##_out_halves > 1                      ? 2 \
     : name##_in_halves > 1 || (int)name##_norm >= 0 || (int)name##_draws          ? 3 \
     : (int)name##_is_backward && (int)name##_reads >= 0                           ? 3 \
                                                                                   : 4)

#endif
