/* quantized_weights.h -- lists for inference whose weights are stored in few bits: the option (weights, ..), and
 * te_use_quantized, which sets such a weight as the values of a parameter.
 *
 * Do this:
 *     TE_INFERENCE(block, (bf16, (weights, quantized)), (linear, up, 4096, 14336), (silu, act), ...)
 *     TE_TRY(te_use_quantized(&m.up.weight, &weight, &ctx));
 *
 * With (weights, quantized), each weight of a linear, an embedding or, on the CPU, an expert_linear may have a format
 * of its own, which is known only at run time. With the name of a format instead of `quantized`, such as (weights,
 * int4_128), all these weights have this format. A single op may also have the option: (linear, up, 4096, 14336,
 * (weights, q8_0)), or (weights, none) for the list's dtype.
 *
 * te/quant/block_formats.h has the formats. On CUDA, te_repack_weight (te/quant/repacked_blocks.h) must first copy a
 * weight to device memory, in another order of the bytes. te/io/gguf_weights.h does all of this for a GGUF file.
 * te/infer.h includes this header; te/te.h does not, because only lists for inference can have the option.
 */
#ifndef TE_QUANTIZED_WEIGHTS_H
#define TE_QUANTIZED_WEIGHTS_H

#include "../fuse/impl/declare.h" /* TE__QUANTIZED_OPS_OF, TE__HAS_QUANTIZED_OPS */
#include "../gemm/impl/gemm_quantized.h" /* te__quantized_run */
#if TE_CUDA
#include "../gemm/impl/gemm_quantized_cuda.h" /* te__quantized_run */
#endif
#include "../plan/bind.h" /* te_param */
#include "../quant/repacked_blocks.h" /* te_quantized_weight, te_repack_weight */

#undef TE__QUANTIZED_OPS_OF
#undef TE__HAS_QUANTIZED_OPS
#define TE__HAS_QUANTIZED_OPS 1
/* The functions for quantized weights of a list that has such weights (`takes` is 1). On CUDA each dtype has its own
 * functions, so that a program contains only the kernels for its lists. */
#if TE_CUDA
template <te_dtype T>
static const te_quantized_ops te__quantized_ops = {te__quantized_scratch, te__quantized_run<T>,
                                                  te__quantized_lookup<0>};
template <te_dtype T, bool takes>
struct te__quantized_ops_of {
    static const te_quantized_ops *get() { return &te__quantized_ops<T>; }
};
template <te_dtype T>
struct te__quantized_ops_of<T, false> {
    static const te_quantized_ops *get() { return 0; }
};
#define TE__QUANTIZED_OPS_OF(dtype, takes) te__quantized_ops_of<TE_##dtype, (takes)>::get()
#else
static const te_quantized_ops te__quantized_ops TE_UNUSED = {te__quantized_scratch, te__quantized_run,
                                                             te__quantized_lookup};
#define TE__QUANTIZED_OPS_OF(dtype, takes) ((takes) ? &te__quantized_ops : 0)
#endif

#if TE_CUDA
/* Check that part number i of p's weight was repacked, i.e. that its data begin with the header that te_repack_weight
 * writes. */
TE_API te_status te__check_repacked(const te_weight_part *part, int i, const te_param *p, te_context *ctx) {
    const te__repacked_header expected = te__repacked_header_of(part, p->cols);
    te__repacked_header header;
    struct cudaPointerAttributes is;
    const int known = cudaPointerGetAttributes(&is, part->data) == cudaSuccess;
    const int on_device = known && (is.type == cudaMemoryTypeDevice || is.type == cudaMemoryTypeManaged);
    if (!known) (void)cudaGetLastError();
    TE_REQUIRE(te__can_repack(part->format), ctx, TE_ERROR_VALUE,
               "te_use_quantized: %s.%s: part %d is in %s; on CUDA parts are in formats of blocks", p->op, p->field, i,
               te_block_name(part->format));
    TE_REQUIRE(on_device && (uintptr_t)part->data % 16 == 0, ctx, TE_ERROR_DEVICE,
               "te_use_quantized: %s.%s: part %d does not lie in device memory; te_repack_weight copies it there",
               p->op, p->field, i);
    TE_TRY(te_copy(ctx, &header, part->data, sizeof header));
    TE_TRY(te_synchronize(ctx));
    TE_REQUIRE(!memcmp(&header, &expected, sizeof header), ctx, TE_ERROR_VALUE,
               "te_use_quantized: %s.%s: part %d, %lld x %lld in %s, was not repacked so by te_repack_weight", p->op,
               p->field, i, (long long)part->rows, (long long)p->cols, te_block_name(part->format));
    return TE_OK;
}
#else
TE_API te_status te__check_repacked(const te_weight_part *part, int i, const te_param *p, te_context *ctx) {
    return (void)part, (void)i, (void)p, (void)ctx, TE_OK;
}
#endif
/* Check that w has the shape [rows, cols] of p, and that its parts have data and valid formats. */
TE_API te_status te__check_quantized(const te_quantized_weight *w, const te_param *p, te_context *ctx) {
    int64_t rows = 0;
    TE_REQUIRE(w->part && w->parts > 0, ctx, TE_ERROR_NULL, "te_use_quantized: %s.%s: the weight has %d parts", p->op,
               p->field, w->part ? w->parts : 0);
    for (int i = 0; i < w->parts; i++) {
        const te_weight_part *part = &w->part[i];
        const te_block_format f = part->format;
        TE_REQUIRE(te_block_bytes(f) > 0, ctx, TE_ERROR_VALUE, "te_use_quantized: %s.%s: part %d has format %d (%s)",
                   p->op, p->field, i, (int)f, te_block_name(f));
        TE_REQUIRE(part->data, ctx, TE_ERROR_NULL, "te_use_quantized: %s.%s: part %d has no data", p->op, p->field, i);
        TE_REQUIRE(part->rows > 0 && part->rows <= p->rows - rows, ctx, TE_ERROR_SHAPE,
                   "te_use_quantized: %s.%s: part %d has %lld rows, and %lld of the parameter's %lld are left", p->op,
                   p->field, i, (long long)part->rows, (long long)(p->rows - rows), (long long)p->rows);
        TE_REQUIRE(p->cols % te_block_values(f) == 0, ctx, TE_ERROR_SHAPE,
                   "te_use_quantized: %s.%s: its %lld columns are no multiple of %d, the values of a block of %s",
                   p->op, p->field, (long long)p->cols, te_block_values(f), te_block_name(f));
        TE_REQUIRE(p->weights == TE_BLOCK_quantized || f == p->weights, ctx, TE_ERROR_VALUE,
                   "te_use_quantized: %s.%s: part %d is in %s, and the list's option is (weights, %s); with (weights, "
                   "quantized) it takes any format", p->op, p->field, i, te_block_name(f), te_block_name(p->weights));
        TE_TRY(te__check_repacked(part, i, p, ctx));
        rows += part->rows;
    }
    TE_REQUIRE(rows == p->rows, ctx, TE_ERROR_SHAPE, "te_use_quantized: %s.%s: its parts have %lld rows, it has %lld",
               p->op, p->field, (long long)rows, (long long)p->rows);
    return TE_OK;
}
/* Use w, a quantized weight, as the values of p. p must be the weight of a linear, an embedding or, on the CPU, an
 * expert_linear, in a list for inference whose option (weights, ..) allows the formats of w. w, its parts and their
 * data are not copied, and must stay where they are as long as the model is used. The rows of an expert lie in at most
 * 16 parts. On CUDA, the parts must have been made by te_repack_weight (quant/repacked_blocks.h), and the call waits
 * for the stream. If another parameter is tied to p, call te_tie after this function. On the host, GEMMs with a
 * quantized weight round their activations to 8 bits (docs/inference.md). After an error p is unchanged. Errors:
 * TE_ERROR_STATE: the list lacks the option, the op has (weights, none), p is not a weight of these ops, or p is tied;
 * TE_ERROR_SHAPE: the parts together have more or fewer rows than p, or p's columns are no multiple of a format's
 * block; TE_ERROR_VALUE: a format is unknown or is not the option's, p is sharded over ranks, or, on CUDA, a part is in
 * f32, f16 or bf16 or was not repacked; TE_ERROR_NULL: a part has no data; TE_ERROR_DEVICE: on CUDA a part lies in host
 * memory. */
TE_API te_status te_use_quantized(te_param *p, const te_quantized_weight *w, te_context *ctx) {
    TE_TRY(te__check_context(ctx, "te_use_quantized"));
    TE_REQUIRE(p && w && p->op, ctx, TE_ERROR_NULL, "te_use_quantized: the weight is null, or the parameter not bound");
    TE_REQUIRE(p->weights != TE_BLOCK_none, ctx, TE_ERROR_STATE,
               "te_use_quantized: %s.%s is not the weight of a linear or an embedding or, on the CPU, of an "
               "expert_linear, in a list with the option (weights, ..)", p->op, p->field);
    TE_REQUIRE(!p->tied, ctx, TE_ERROR_STATE, "te_use_quantized: %s.%s is tied; te_tie it to the quantized owner",
               p->op, p->field);
    TE_REQUIRE(p->shard == TE_SHARD_none, ctx, TE_ERROR_VALUE, "te_use_quantized: %s.%s is sharded over ranks", p->op,
               p->field);
    TE_TRY(te__check_quantized(w, p, ctx));
    p->quantized = w;
    return TE_OK;
}

#endif
