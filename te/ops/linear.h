/* linear.h -- y = x weight^T: x [rows, in], weight [out, in], y [rows, out]. A bias is an op of its own.
 *
 *   (linear, name, in, out)
 *   (tied_linear, name, in, out)     uses the weight of another op (te_tie()), such as the embedding's for an lm_head
 *   (frozen_linear, name, in, out)   the weight is never trained (te/plan/freeze.h), so backward computes only dx, and
 *                                    forward need not save x
 * Options: (recipe, ..) replaces the list's FP8 recipe (docs/fp8.md), (weights, ..) the list's format of quantized
 * weights (quantized_weights.h); the value `none` means no recipe or no quantized weights for this op.
 * Do this:
 *     (linear, fc1, 768, 3072), (bias, fc1_b, 3072), (gelu, act), (linear, fc2, 3072, 768), (bias, fc2_b, 768)
 *
 * Forward saves x. Backward computes dweight = dy^T x, summed in f32, and dx = dy weight. te/linear/impl/linear_step.h
 * runs the op, alone or with a fused epilogue.
 *
 * Tensor parallelism (Shoeybi et al. 2019); `in` and `out` are then the sizes of one rank's shard:
 *   (shard, columns)   column-parallel: each rank computes its own output columns. The op must come after an all_gather
 *                      or copy_to_group
 *   (shard, rows)      row-parallel: each rank has its own input columns, which a column-parallel GEMM has computed,
 *                      and y is a partial sum over these columns. A reduce_scatter or all_reduce must follow
 *   (parts, 3)         the output consists of 3 parts side by side, such as q, k and v (or of 2 parts, such as the
 *                      halves of a gated activation), and each part is split over the ranks separately
 *   (first_part, 4)    the first part is 4 times as wide as each other part: q of grouped-query attention
 *   (copies, 2)        with fewer kv heads than ranks, 2 ranks each hold the same kv heads (docs/ranks.md)
 */
#ifndef TE_OPS_LINEAR_H
#define TE_OPS_LINEAR_H

#include "../plan/model.h" /* TE_SAVES_INPUT, TE_INIT_normal */

#define TE_OP_linear (linear, gemm)
#define TE_OP_tied_linear (linear, gemm)
#define TE_OP_frozen_linear (linear, gemm)
#define TE_SHAPES_linear(op) (2)
#define TE_IN_linear(op) (TE_ARG1(op, 0))
#define TE_OUT_linear(op, in) (TE_ARG2(op, 0))
#define TE_STATES_OUT_linear , /* makes the compile-time error for a linear of width 0 say that the output width is
                                * missing */
#define TE_FLAGS_linear(op) TE_JOIN1(TE_FLAGS_OF_, TE_KIND(op))
#define TE_FLAGS_OF_linear (TE_SAVES_INPUT)
#define TE_FLAGS_OF_tied_linear (TE_SAVES_INPUT)
#define TE_FLAGS_OF_frozen_linear (TE_IS_FROZEN)
#define TE_PARAMS_linear(op, in, out) ((weight, out, in, TE_JOIN1(TE_WEIGHT_OF_, TE_KIND(op))))
#define TE_WEIGHT_OF_linear normal
#define TE_WEIGHT_OF_tied_linear tied
#define TE_WEIGHT_OF_frozen_linear normal

/* ---- options ----------------------------------------------------------------------------------------------------- */

#define TE_TAKES_linear_recipe TE_TOKEN
#define TE_TAKES_linear_weights TE_TOKEN
#define TE_TAKES_linear_shard TE_TOKEN
#define TE_TAKES_linear_parts TE_INTEGER
#define TE_TAKES_linear_first_part TE_INTEGER
#define TE_TAKES_linear_copies TE_INTEGER
#define TE_BLOCK_WEIGHTS_linear(model, op) ((int)TE_WEIGHTS_OPTION(op, (int)model##_weight_format))
#define TE_RECIPE_linear(model, op) ((int)TE_RECIPE_OPTION(op, (int)model##_recipe))
#define TE_PARTS_linear(op) (TE_OPTION(op, parts, 1))
#define TE_FIRST_PART_linear(op) (TE_OPTION(op, first_part, 1))
#define TE_COPIES_linear(op) (TE_OPTION(op, copies, 1))
#define TE_LAYOUT_linear(op, in)                                                \
    ((int)TE_SHARD_OPTION(op) == (int)TE_SHARD_columns ? (int)TE_LAYOUT_columns \
     : (int)TE_SHARD_OPTION(op) == (int)TE_SHARD_rows  ? (int)TE_LAYOUT_partial_sum    \
                                                       : (int)TE_LAYOUT_replicated)
#define TE_LAYOUT_FITS_linear(op, in)                                                         \
    ((int)(in) == (int)((int)TE_SHARD_OPTION(op) == (int)TE_SHARD_columns ? TE_LAYOUT_partial_grad \
                        : (int)TE_SHARD_OPTION(op) == (int)TE_SHARD_rows  ? TE_LAYOUT_columns \
                                                                          : TE_LAYOUT_replicated))
/* true if the width is a multiple of 16, or of 32 with the recipe mxfp8. A negative width means that the width is known
 * only at run time and is checked at run time */
#define TE__FITS_FP8(width, recipe) ((width) < 0 || (width) % TE_FP8_COLUMNS(recipe) == 0)
#define TE_CHECK_linear(model, op)                                                                              \
    (TE_CHECK_WEIGHTS(model, op)                                                                                \
     static_assert(TE_RECIPE_linear(model, op) == (int)TE_RECIPE_none || (int)model##_names_recipe,             \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                                   \
                       ": an op with a recipe stands in a list that names one: (bf16, (recipe, none))");        \
     static_assert(TE_RECIPE_linear(model, op) == (int)TE_RECIPE_none ||                                        \
                       (TE__FITS_FP8(TE_ARG1(op, 0), TE_RECIPE_linear(model, op)) &&                            \
                        TE__FITS_FP8(TE_ARG2(op, 0), TE_RECIPE_linear(model, op))),                             \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                                   \
                       ": a GEMM in FP8 needs an input and an output of multiples of 16 columns (mxfp8: 32)");  \
     static_assert(TE_RECIPE_linear(model, op) == (int)TE_RECIPE_none ||                                        \
                       (TE_IS_TENSORWISE(TE_RECIPE_linear(model, op)) && !TE_IS_MICROSCALED(model##_recipe)) ||  \
                       TE_RECIPE_linear(model, op) == (int)model##_recipe,                                      \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                                   \
                       ": an op of fp8_block, fp8_row, mxfp8 or nvfp4 stands in a list that names the same, and " \
                       "an op in a list of mxfp8 or nvfp4 has its recipe or none");                             \
     static_assert(TE_PARTS_linear(op) > 0 && TE_FIRST_PART_linear(op) > 0 &&                                   \
                       (TE_ARG2(op, 1)) % (TE_PARTS_linear(op) - 1 + TE_FIRST_PART_linear(op)) == 0,            \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": its columns are not so many parts");           \
     static_assert(TE_PARTS_linear(op) > 1 || TE_FIRST_PART_linear(op) == 1,                                    \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": (first_part, ..) goes with (parts, ..)");      \
     static_assert(TE_COPIES_linear(op) > 0,                                                                    \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": (copies, ..) must be positive");               \
     static_assert(TE_COPIES_linear(op) == 1 || (TE_PARTS_linear(op) > 1 &&                                     \
                                                 (int)TE_SHARD_OPTION(op) == (int)TE_SHARD_columns),            \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                                   \
                       ": (copies, ..) goes with (shard, columns) and (parts, ..)");)

#endif
