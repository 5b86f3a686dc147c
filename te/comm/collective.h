/* collective.h -- collectives of the tensor group as ops of a list.
 *
 *   op                        output in forward                                  backward, the adjoint of forward
 *   (all_gather, name)        the rows of all ranks, in the order of the ranks   reduce_scatter
 *   (reduce_scatter, name)    the sum over the ranks; each rank gets its rows    all_gather
 *   (all_reduce, name)        the sum over the ranks                             identity: each rank has all of dy
 *   (copy_to_group, name)     the input: all ranks have the same value           all_reduce
 *
 * The input of all_gather and the output of reduce_scatter have the rows of one rank (TE_ROWS_shard); the output of
 * all_gather and the input of reduce_scatter have a row for each token (TE_ROWS_tokens). In Megatron-LM, copy_to_group
 * is called f and all_reduce is called g. te/fuse/impl/list_checks.h checks which ops may precede and follow these four
 * collectives. With a communicator of one rank the four ops copy or do nothing, so the same model can be trained on one
 * rank or many.
 *
 * Each of these ops runs by itself (impl/collective_step.h), unless the op belongs to a fused pattern. Such a pattern
 * begins with all_reduce, or begins with reduce_scatter and ends with all_gather (impl/fused_collective_norm.h). On
 * CUDA an all_gather may be deferred to the step of the linear that follows, and the GEMM of a linear may be deferred
 * to the step of the reduce_scatter or the pattern that follows; the collective and the GEMM then overlap.
 *
 * Do this:
 *     TE_SEQUENTIAL(mlp, f32, (rmsnorm, ln, H), (copy_to_group, c), (linear, fc1, H, F / RANKS, (shard, columns)),
 *                   (gelu, act), (linear, fc2, F / RANKS, H, (shard, rows)), (all_reduce, r))
 */
#ifndef TE_COMM_COLLECTIVE_H
#define TE_COMM_COLLECTIVE_H

#include "impl/collective_step.h"       /* te__collective_run, te__reduce_scatter_run */
#include "impl/fused_collective_norm.h" /* the fused patterns that contain a collective */

#ifdef TE_COMM
#define TE__HAS_COMM 1
#else
#define TE__HAS_COMM 0
#endif
#define TE__NEEDS_COMM(model, op)                                                                               \
    static_assert(TE__HAS_COMM, "te: " TE_STRING(model) ": " TE_CALLED(op)                                      \
        " is a collective: compile with -DTE_COMM and link NCCL (nvcc) or MPI (other compilers, mpicc -show)");

#define TE_OP_all_gather (all_gather, custom)
#define TE_SHAPES_all_gather(op) (0)
#define TE_PRODUCES_all_gather(op) (TE_PRODUCES_same)
#define TE_FLAGS_all_gather(op) (TE_TAKES_PRODUCT)
#define TE_ROWS_all_gather(op, in) (TE_ROWS_tokens)
#define TE_LAYOUT_all_gather(op, in) (TE_LAYOUT_partial_grad)
#define TE_LAYOUT_FITS_all_gather(op, in) ((int)(in) == (int)TE_LAYOUT_replicated)
#define TE_TAKES_DIMS_all_gather ,
#define TE_CHECK_all_gather(model, op)                                                                          \
    (static_assert((int)TE_ROWS_IN(model, op) == (int)TE_ROWS_shard,                                            \
                   "te: " TE_STRING(model) ": " TE_CALLED(op)                                                   \
                       " needs the rows of a rank: those of a list with (rows, shard), or of a reduce_scatter");)
#define TE_CUSTOM_all_gather_forward(name, model, dtype, op) TE__COLLECTIVE_STEP(name, model, op, te_group_all_gather)
#define TE_CUSTOM_all_gather_backward(name, model, dtype, op) \
    TE__REDUCE_SCATTER_STEP(name, model, op, TE_GEMM_REDUCE_SCATTER_KERNELS(model, dtype, 0))

#define TE_OP_reduce_scatter (reduce_scatter, custom)
#define TE_SHAPES_reduce_scatter(op) (0)
#define TE_PRODUCES_reduce_scatter(op) (TE_PRODUCES_same)
#define TE_FLAGS_reduce_scatter(op) (TE_TAKES_PRODUCT)
#define TE_ROWS_reduce_scatter(op, in) (TE_ROWS_shard)
#define TE_LAYOUT_reduce_scatter(op, in) (TE_LAYOUT_replicated)
#define TE_LAYOUT_FITS_reduce_scatter(op, in) ((int)(in) == (int)TE_LAYOUT_partial_sum)
#define TE_TAKES_DIMS_reduce_scatter ,
#define TE_CHECK_reduce_scatter(model, op)                                                                      \
    (static_assert((int)TE_ROWS_IN(model, op) == (int)TE_ROWS_tokens,                                           \
                   "te: " TE_STRING(model) ": " TE_CALLED(op) " needs a row for each token");)
#define TE_CUSTOM_reduce_scatter_forward(name, model, dtype, op) \
    TE__REDUCE_SCATTER_STEP(name, model, op, TE_GEMM_REDUCE_SCATTER_KERNELS(model, dtype, 1))
#define TE_CUSTOM_reduce_scatter_backward(name, model, dtype, op) \
    TE__COLLECTIVE_STEP(name, model, op, te_group_all_gather)

#define TE_OP_all_reduce (all_reduce, custom)
#define TE_SHAPES_all_reduce(op) (0)
#define TE_PRODUCES_all_reduce(op) (TE_PRODUCES_same)
#define TE_FLAGS_all_reduce(op) (TE_GRAD_UNCHANGED | TE_PASSES_GRAD | TE_TAKES_PRODUCT | TE_LEADS_POINTWISE)
#define TE_LAYOUT_all_reduce(op, in) (TE_LAYOUT_replicated)
#define TE_LAYOUT_FITS_all_reduce(op, in) ((int)(in) == (int)TE_LAYOUT_partial_sum)
#define TE_TAKES_DIMS_all_reduce ,
#define TE_CUSTOM_all_reduce_forward(name, model, dtype, op) TE__COLLECTIVE_STEP(name, model, op, te_group_all_reduce)
#define TE_CUSTOM_all_reduce_backward(name, model, dtype, op) TE__COLLECTIVE_STEP(name, model, op, 0)

#define TE_OP_copy_to_group (copy_to_group, custom)
#define TE_SHAPES_copy_to_group(op) (0)
#define TE_PRODUCES_copy_to_group(op) (TE_PRODUCES_same)
#define TE_FLAGS_copy_to_group(op) (TE_IS_FORK | TE_PASSES_VALUE) /* in forward the output of copy_to_group is its
                                                                   * input, in the same memory */
#define TE_LAYOUT_copy_to_group(op, in) (TE_LAYOUT_partial_grad)
#define TE_LAYOUT_FITS_copy_to_group(op, in) ((int)(in) == (int)TE_LAYOUT_replicated)
#define TE_TAKES_DIMS_copy_to_group ,
#define TE_CUSTOM_copy_to_group_forward(name, model, dtype, op) TE__COLLECTIVE_STEP(name, model, op, 0)
#define TE_CUSTOM_copy_to_group_backward(name, model, dtype, op) \
    TE__COLLECTIVE_STEP(name, model, op, te_group_all_reduce)

#define TE__COLLECTIVE_STEP(name, model, op, call) \
    TE__NEEDS_COMM(model, op)                 \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__collective_run(r, s, call); }

#define TE__REDUCE_SCATTER_STEP(name, model, op, kernels) \
    TE__NEEDS_COMM(model, op)                \
    TE_API te_status name##_run(te_run *r, const te_step *s) { return te__reduce_scatter_run(r, s, kernels); }

#endif
