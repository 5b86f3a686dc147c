/* linear.h -- (linear, name, in, out): y[rows, out] = x[rows, in] weight[out, in]^T. A bias is an op of its own.
 * (tied_linear, name, in, out): the same, with a weight that belongs to another parameter (te_tie).
 * (frozen_linear, name, in, out): the same, with a weight that never trains (te/plan/freeze.h). Backward needs x for
 * its gradient alone, so forward saves no x for it; another op that reads x, or a fork, keeps it all the same.
 *
 * Ranks of a tensor group hold a part each (Shoeybi et al. 2019), of local widths. (shard, columns): its own columns of
 * the output, rows of the weight; behind an all_gather or copy_to_group. (shard, rows): it takes its own columns of the
 * input, those of a product of the first kind, and gives a part of the sum, which a reduce_scatter or all_reduce adds
 * up. (parts, 3): the output is q, k and v side by side, of each of which a rank has its share; a gated op's two halves
 * are two parts. (first_part, 4): the first part is so many times as wide as each other, q of grouped-query attention
 * with four heads for each of k and v.
 *
 * How it runs, alone or with the ops behind it: te/linear/impl/linear_step.h.
 */
#ifndef TE_OPS_LINEAR_H
#define TE_OPS_LINEAR_H

#include "../plan/model.h" /* TE_SAVES_INPUT, TE_INIT_normal */

#define TE_TAKES_linear_shard TE_TOKEN
#define TE_TAKES_linear_parts TE_INTEGER
#define TE_TAKES_linear_first_part TE_INTEGER
#define TE_PARTS_linear(op) (TE_OPTION(op, parts, 1))
#define TE_FIRST_PART_linear(op) (TE_OPTION(op, first_part, 1))
#define TE_LAYOUT_linear(op, in)                                              \
    ((int)TE_SHARD_OPTION(op) == (int)TE_SHARD_columns ? (int)TE_LAYOUT_columns \
     : (int)TE_SHARD_OPTION(op) == (int)TE_SHARD_rows  ? (int)TE_LAYOUT_partial_sum    \
                                                       : (int)TE_LAYOUT_replicated)
#define TE_LAYOUT_FITS_linear(op, in)                                         \
    ((int)(in) == (int)((int)TE_SHARD_OPTION(op) == (int)TE_SHARD_columns ? TE_LAYOUT_partial_grad   \
                        : (int)TE_SHARD_OPTION(op) == (int)TE_SHARD_rows ? TE_LAYOUT_columns    \
                                                                        : TE_LAYOUT_replicated))
#define TE_OP_linear (linear, gemm)
#define TE_OP_tied_linear (linear, gemm)
#define TE_OP_frozen_linear (linear, gemm)
#define TE_SHAPES_linear(op) (2)
#define TE_IN_linear(op) (TE_ARG1(op, 0))
#define TE_OUT_linear(op, in) (TE_ARG2(op, 0))
#define TE_FLAGS_linear(op) TE_JOIN1(TE_FLAGS_OF_, TE_KIND(op))
#define TE_FLAGS_OF_linear (TE_SAVES_INPUT)
#define TE_FLAGS_OF_tied_linear (TE_SAVES_INPUT)
#define TE_FLAGS_OF_frozen_linear (TE_IS_FROZEN)
#define TE_RECIPE_linear(model, op) ((int)TE_RECIPE_OPTION(op, (int)model##_recipe))
#define TE_TAKES_linear_recipe TE_TOKEN
#define TE_CHECK_linear(model, op)                                                                             \
    (static_assert(TE_RECIPE_linear(model, op) == (int)TE_RECIPE_none || (int)model##_names_recipe,            \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                                  \
                       ": an op with a recipe stands in a list that names one: (bf16, (recipe, none))");       \
    static_assert(TE_RECIPE_linear(model, op) == (int)TE_RECIPE_none ||                                        \
                       (TE__FITS_FP8(TE_ARG1(op, 0)) && TE__FITS_FP8(TE_ARG2(op, 0))),                         \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                                  \
                       ": a product in FP8 takes and gives multiples of 16 columns");                          \
    static_assert(TE_RECIPE_linear(model, op) == (int)TE_RECIPE_none ||                                        \
                       TE_IS_TENSORWISE(TE_RECIPE_linear(model, op)) ||                                         \
                       TE_RECIPE_linear(model, op) == (int)model##_recipe,                                     \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                                  \
                       ": an op of fp8_block or fp8_row stands in a list that names the same");                \
     static_assert(TE_PARTS_linear(op) > 0 && TE_FIRST_PART_linear(op) > 0 &&                                  \
                       (TE_ARG2(op, 1)) % (TE_PARTS_linear(op) - 1 + TE_FIRST_PART_linear(op)) == 0,           \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": its columns are not so many parts");          \
     static_assert(TE_PARTS_linear(op) > 1 || TE_FIRST_PART_linear(op) == 1,                                   \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) ": (first_part, ..) goes with (parts, ..)");)
#define TE__FITS_FP8(width) ((width) < 0 || (width) % 16 == 0) /* symbols are checked when they are set */
#define TE_PARAMS_linear(op, in, out) ((weight, out, in, TE_JOIN1(TE_WEIGHT_OF_, TE_KIND(op))))
#define TE_WEIGHT_OF_linear normal
#define TE_WEIGHT_OF_tied_linear tied
#define TE_WEIGHT_OF_frozen_linear normal

#endif
