/* recompute.h -- (recompute, name) ... (end_recompute, name): backward computes what lies between again, instead of
 * reading what forward saved. Chen et al. 2016.
 *
 *     (fork, x2), (layernorm, ln2, H), (linear, fc1, H, F), (bias, fc1_b, F),
 *     (recompute, r), (gelu, act), (linear, fc2, F, H), (bias, fc2_b, H), (add, x2), (end_recompute, r)
 *
 * Two marks, which compute nothing. Inside, values live in the workspace: in forward as long as the span is worked on,
 * in backward from its last op to its first. What the span begins with is saved, what it ends with as ever. Before its
 * first step of a span backward runs the span's forward again, with the dropout of that forward, as far as the last
 * step that leaves something for backward: above the gelu, not the matrix product behind it. So a span from an
 * activation or a norm through the product that reads it costs one small kernel, and one around a whole block a forward
 * less the last product. The parameters, and te_batch's tokens and inputs where ops inside read them, must still be
 * those of the forward.
 *
 * The marks cut the rows of the forward plan, so that the same kernels run again: the bits are those of the same plan
 * with everything saved. Inference and the rows of backward do not see them. Spans do not nest. A fork inside has its
 * add inside, unless the span begins with it. (cross_entropy, ..) and (output, ..) stand outside. A mark counts as an
 * op towards the length of the list.
 */
#ifndef TE_OPS_RECOMPUTE_H
#define TE_OPS_RECOMPUTE_H

#define TE_OP_recompute (recompute, mark)
#define TE_OP_end_recompute (end_recompute, mark)
#define TE_IS_MARK_recompute ,
#define TE_IS_MARK_end_recompute ,
#define TE_BEGINS_RECOMPUTE_recompute ,

#endif
