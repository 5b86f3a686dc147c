/* fp8_ops.h -- what a list under a recipe brings beside its steps; te/linear/impl/linear_fp8.h makes it. Products in
 * FP8 are reached through it alone: a program whose lists name no recipe has none of their code.
 */
#ifndef TE_FP8_OPS_H
#define TE_FP8_OPS_H

#include "../../core/context.h" /* te_context, te_status */
#include "../../core/dtype.h" /* te_dtype */

struct te_quantize; struct te_quantize_blockwise; struct te_quantize_rowwise; struct te_quantize_multi_tensor; struct te_multi_tensor;
struct te_gemm; struct te_run; struct te_value; struct te_fp8_product;

/* How a gradient becomes FP8: to the nearest number, or up or down by chance, so that the mean is the gradient. */
typedef enum te_rounding { TE_ROUNDING_nearest, TE_ROUNDING_stochastic } te_rounding;

typedef struct te_fp8_ops {
    te_status (*quantize)(const struct te_quantize *q, te_context *ctx); /* of tensors in the list's dtype */
    te_status (*quantize_dy)(const struct te_quantize *q, te_context *ctx); /* of gradients: that, or by chance */
    te_status (*transpose_fp8)(const struct te_quantize *q, te_context *ctx);     /* transposes what is in FP8 */
    te_status (*product)(const struct te_gemm *g, te_context *ctx);
    te_status (*quantize_blockwise)(const struct te_quantize_blockwise *q,
                                    te_context *ctx); /* null: the list does not name fp8_block */
    te_status (*gemm_blockwise)(const struct te_gemm *g, te_context *ctx);
    int (*blockwise_takes_bias)(const struct te_gemm *g, te_context *ctx); /* whether that adds a bias */
    te_status (*quantize_rowwise)(const struct te_quantize_rowwise *q,
                                  te_context *ctx); /* null: the list does not name fp8_row */
    /* quantize for many weights in one launch, and tiles and rows, likewise, or null */
    te_status (*cast_weights)(const struct te_quantize_multi_tensor *t, te_context *ctx);
    te_status (*cast_weights_by_block)(const struct te_multi_tensor *t, te_context *ctx);
    te_status (*cast_weights_by_row)(const struct te_multi_tensor *t, te_context *ctx);
    /* The operands of a product of op i, forward and backward (null in a list for inference alone), the transpose of
     * a value in FP8, which a dy that is still on its way gets later, and the cast that makes an operand of a value. */
    te_status (*forward)(struct te_gemm *g, struct te_run *r, int i, struct te_value x);
    te_status (*backward)(struct te_gemm *w, struct te_gemm *x, struct te_run *r, int i, struct te_value dy);
    te_status (*transpose)(struct te_run *r, struct te_value v, void *turned);
    te_status (*cast)(struct te_run *r, struct te_value v, const struct te_fp8_product *f, int index, te_dtype to,
                      void *y, void *yt, float *inverse);
    int fixed_widths,
        saves_inputs;   /* its widths are constants: chains have kernels for tiles and whole rows; (inputs, saved) */
    te_dtype gradients; /* of products with a scale a tensor: what dy is in */
    te_rounding rounding; /* of dy */
    te_dtype weights;   /* of products under a recipe: what they lie in, for the optimizer and the cast */
} te_fp8_ops;

#endif
