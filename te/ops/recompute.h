/* recompute.h -- (recompute, name) ... (end_recompute, name): activation checkpointing. Backward recomputes the values
 * between the two marks, so that forward need not save them. Chen et al. 2016.
 *
 * Do this:
 *     (fork, x2), (layernorm, ln2, H), (linear, fc1, H, F), (bias, fc1_b, F),
 *     (recompute, r), (gelu, act), (linear, fc2, F, H), (bias, fc2_b, H), (add, x2), (end_recompute, r)
 *
 * The input of the region is saved. The region's output is saved only where it would also be saved without the marks,
 * because an op's backward reads it. All other values of the region are in the workspace only: in forward while the
 * region runs, in backward from the region's last op to its first. Before backward enters a region, it reruns the
 * forward of the region, with the same dropout masks, up to the last step whose output backward reads. In the example
 * this step is the gelu; the GEMM after it is not rerun. So a region that begins with an activation or a norm and ends
 * with the GEMM that reads the result costs only one small kernel in backward. A region around a whole block costs the
 * block's forward without its last GEMM. Until backward has run, the parameters must not change, nor may the tokens and
 * inputs of te_batch that ops inside the region read.
 *
 * The marks compute nothing. In forward no fusion crosses a mark, so that both runs of a region use the same kernels.
 * Therefore the results are bitwise identical to those without recomputation, with two exceptions: on the host with
 * -DTE_CBLAS the number of threads must be the same; on CUDA a fused GEMM that saves its activation's input adds in
 * another order. In backward a fusion may cross a mark, and inference ignores the marks. Regions do not nest. If a fork
 * lies inside a region, its add must also lie inside the region, unless the fork is the region's first op.
 * (cross_entropy, ..) and (output, ..) must stand outside of regions. Each mark counts as one op in the length of the
 * op list.
 */
#ifndef TE_OPS_RECOMPUTE_H
#define TE_OPS_RECOMPUTE_H

#define TE_OP_recompute (recompute, mark)
#define TE_OP_end_recompute (end_recompute, mark)
#define TE_IS_MARK_recompute ,
#define TE_IS_MARK_end_recompute ,
#define TE_BEGINS_RECOMPUTE_recompute ,

#endif
