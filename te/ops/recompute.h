/* recompute.h -- (recompute, name) ... (end_recompute, name): activation checkpointing. Backward recomputes the values
 * between the two marks, so that forward need not save them. Chen et al. 2016.
 *
 * Do this:
 *     (fork, x2), (layernorm, ln2, H), (linear, fc1, H, F), (bias, fc1_b, F),
 *     (recompute, r), (gelu, act), (linear, fc2, F, H), (bias, fc2_b, H), (add, x2), (end_recompute, r)
 *
 * The input of the region is saved. Its output is saved only if backward would read it even without the marks. Values
 * inside live in the workspace only: in forward while the region runs, in backward from the region's last op to its
 * first. Before backward enters a region it reruns the region's forward, with the same dropout masks, up to the last
 * step whose output backward reads: in the example up to the gelu, without the GEMM behind it. So a region that begins
 * with an activation or a norm and ends with the GEMM that reads it costs one small kernel; a region around a whole
 * block costs the block's forward without its last GEMM. The parameters, and te_batch's tokens and inputs if ops inside
 * read them, must still be those of the forward.
 *
 * The marks compute nothing. In the forward plan no fusion crosses a mark, so that both runs of a region have the same
 * kernels: the result is bitwise identical to that of the same plan with everything saved. Inference ignores the marks,
 * and so does the fusion of backward. Regions do not nest. The add of a fork that lies inside a region must lie inside,
 * too, unless the fork is the region's first op. (cross_entropy, ..) and (output, ..) must stand outside. A mark counts
 * as an op towards the maximal length of a list.
 */
#ifndef TE_OPS_RECOMPUTE_H
#define TE_OPS_RECOMPUTE_H

#define TE_OP_recompute (recompute, mark)
#define TE_OP_end_recompute (end_recompute, mark)
#define TE_IS_MARK_recompute ,
#define TE_IS_MARK_end_recompute ,
#define TE_BEGINS_RECOMPUTE_recompute ,

#endif
