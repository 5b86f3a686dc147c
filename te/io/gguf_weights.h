/* gguf_weights.h -- binds models' parameters to the tensors of a GGUF file (gguf.h) that a table (packed.h) names.
 *
 * Do this:
 *     static const te_packed parts[] = {{"attn_q.weight", "fc1", "weight", 4, 0},     // rows of the weight, in order
 *                                       {"attn_k.weight", "fc1", "weight", 2, 0},
 *                                       {"attn_v.weight", "fc1", "weight", 2, 0},
 *                                       {"attn_output.weight", "proj", "weight", 0, 0}};
 *     te_gguf model; te_gguf_weights w;                                               // must live as long as `block`
 *     TE_TRY(te_gguf_map(&model, "model-q4_k_m.gguf", &ctx));
 *     te_gguf_source from = {&model, TE_GGUF_IN_PLACE};
 *     TE_TRY(te_gguf_bind(&w, &block.model, parts, 4, "blk.0.", &from, &ctx));
 *     TE_TRY(te_gguf_all_used(&model, &ctx));                                         // after the last list is bound
 *     te_gguf_release(&w, &ctx);
 *
 * The model instance, here `block`, must be bound to no memory. With (weights, quantized), weights of linears and
 * embeddings keep the formats of their tensors: the host reads them in the mapped file, and a GPU gets repacked copies
 * (te_repack_weight) of tensors in formats of blocks. With (weights, q8_0) or another format, tensors in floats are
 * cast to this format. All other parameters are converted to the dtype of the list of ops.
 *
 * The list of ops must fit llama.cpp's form of the weights, which differs from that of Hugging Face's files:
 * - architecture llama: the rows of each head of q and k are permuted for the interleaved form of rope, so the list has
 *   (rope, .., (interleaved, 1)). Llama 3.1's rope has frequency factors in the tensor rope_freqs.weight.
 * - Gemma: 1 is added to the weights of norms, so the list has rmsnorm and head_norm, not rmsnorm1p and head_norm1p.
 * - GPT-2: weights are [out, in], so no entry of the table is transposed.
 */
#ifndef TE_GGUF_WEIGHTS_H
#define TE_GGUF_WEIGHTS_H

#include "block_weights.h" /* te_block_weights, te__block_weights_bind */
#include "gguf.h"          /* te_gguf */

typedef enum te_gguf_use {
    TE_GGUF_IN_PLACE, /* weights keep the file's format if kernels can read it */
    TE_GGUF_CONVERTED /* all weights are converted to the dtype of the list of ops */
} te_gguf_use;
typedef struct te_gguf_source {
    te_gguf *file; /* must stay open as long as models that are bound to this file are used */
    te_gguf_use use;
} te_gguf_source;

/* The memory that te_gguf_bind allocates for an instance. */
typedef te_block_weights te_gguf_weights;

enum { TE_GGUF_MAX_TENSOR_NAME = 256 }; /* max bytes of a tensor name, including prefix and closing NUL */

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* Return the te_block_format of a GGUF tensor type; TE_BLOCK_none if the library does not support the type. */
TE_API te_block_format te_gguf_format(te_gguf_type type) {
    switch (type) {
    case TE_GGUF_F32: return TE_BLOCK_f32;
    case TE_GGUF_F16: return TE_BLOCK_f16;
    case TE_GGUF_BF16: return TE_BLOCK_bf16;
    case TE_GGUF_Q8_0: return TE_BLOCK_q8_0;
    case TE_GGUF_Q4_0: return TE_BLOCK_q4_0;
    case TE_GGUF_Q4_1: return TE_BLOCK_q4_1;
    case TE_GGUF_Q5_0: return TE_BLOCK_q5_0;
    case TE_GGUF_Q5_1: return TE_BLOCK_q5_1;
    case TE_GGUF_Q4_K: return TE_BLOCK_q4_k;
    case TE_GGUF_Q5_K: return TE_BLOCK_q5_k;
    case TE_GGUF_Q6_K: return TE_BLOCK_q6_k;
    case TE_GGUF_MXFP4: return TE_BLOCK_mxfp4;
    default: return TE_BLOCK_none;
    }
}
/* A tensor's type and shape as a text for messages: "Q4_K [640, 1024]"; if the type is unknown, "type 4 [640,
 * 1024]". */
typedef struct te__gguf_shape_text { char text[112]; } te__gguf_shape_text;
TE_API te__gguf_shape_text te__gguf_shape(const te_gguf_tensor *t) {
    te__gguf_shape_text s;
    const te_gguf_block block = te_gguf_block_of(t->type);
    size_t n = (size_t)(block.values ? snprintf(s.text, sizeof s.text, "%s [", block.name)
                                     : snprintf(s.text, sizeof s.text, "type %d [", (int)t->type));
    for (int i = 0; i < t->rank; i++)
        n += (size_t)snprintf(s.text + n, sizeof s.text - n, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    snprintf(s.text + n, sizeof s.text - n, "]");
    return s;
}

/* Find the tensor that b->parts[n] names, and describe it in *part. The tensor's shape must be [units, p->cols] or, if
 * parameter p has one row, [units]. */
TE_API te_status te__gguf_tensor_of(te_weight_part *part, const te__block_binding *b, int n, const te_param *p,
                                    int64_t units, te_context *ctx) {
    char name[TE_GGUF_MAX_TENSOR_NAME];
    const te_gguf *f = (const te_gguf *)b->source;
    const int64_t rows = p->rows == 1 ? 1 : units, cols = p->rows == 1 ? units : p->cols;
    const int length = snprintf(name, sizeof name, "%s%s", b->prefix, b->parts[n].name);
    TE_REQUIRE(length >= 0 && length < TE_GGUF_MAX_TENSOR_NAME, ctx, TE_ERROR_OVERFLOW,
               "te_gguf_bind: the name %.60s.. is too long", name);
    const te_gguf_tensor *t = te_gguf_find(f, name);
    TE_REQUIRE(t, ctx, TE_ERROR_FORMAT, "%.120s: has no tensor %.60s, which should be [%lld, %lld]", f->path, name,
               (long long)rows, (long long)cols);
    const int64_t own_cols = t->rank ? t->shape[t->rank - 1] : 1, own_rows = t->rank == 2 ? t->shape[0] : 1;
    TE_REQUIRE(t->rank <= 2 && own_rows == rows && own_cols == cols, ctx, TE_ERROR_SHAPE,
               "%.120s: tensor %.60s is %s, it should be [%lld, %lld]", f->path, name, te__gguf_shape(t).text,
               (long long)rows, (long long)cols);
    TE_REQUIRE(te_gguf_format(t->type) != TE_BLOCK_none, ctx, TE_ERROR_DTYPE,
               "%.120s: tensor %.60s is %s, a type that is not supported", f->path, name, te__gguf_shape(t).text);
    part->data = t->data, part->format = te_gguf_format(t->type), f->tensor[t - f->tensor].uses++;
    return TE_OK;
}
/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Free the memory that te_gguf_bind has allocated. The model instance must be bound again before it is used. */
TE_API void te_gguf_release(te_gguf_weights *w, te_context *ctx) { te_block_weights_release(w, ctx); }
/* Bind all parameters of m to the tensors that the table parts[count] names. m must be an instance of a list of ops for
 * inference, and be bound to no memory. The tensors of a parameter must together have all of its rows. prefix: the text
 * with which the names of all these tensors begin. Call te_tie afterwards if parameters are tied. Waits for the stream.
 * After an error m must be bound again, and no allocated memory is left. Errors: TE_ERROR_FORMAT: a tensor is missing;
 * TE_ERROR_SHAPE: a tensor has another shape, or the tensors have more or fewer rows than the parameter;
 * TE_ERROR_DTYPE: a tensor has a type without a te_block_format; TE_ERROR_VALUE: a number does not fit the parameter's
 * dtype or format of blocks, or a tensor is in another format of blocks than the op's option (weights, ..) says;
 * TE_ERROR_STATE: m has memory, or its parameters are sharded over ranks; TE_ERROR_MEMORY. */
TE_API te_status te_gguf_bind(te_gguf_weights *w, te_model *m, const te_packed *parts, int count, const char *prefix,
                              const te_gguf_source *from, te_context *ctx) {
    te__block_binding b;
    TE_TRY(te__check_context(ctx, "te_gguf_bind"));
    TE_REQUIRE(w && m && m->plan && prefix && from && from->file && from->file->path && (parts || !count), ctx,
               TE_ERROR_NULL, "te_gguf_bind: the instance, the table or the prefix is null, or the file is not open");
    b.w = w, b.m = m, b.parts = parts, b.count = count, b.prefix = prefix, b.caller = "te_gguf_bind";
    b.takes_experts = 0, b.converts = from->use != TE_GGUF_IN_PLACE;
    b.tensor_of = te__gguf_tensor_of, b.source = from->file;
    return te__block_weights_bind(&b, ctx);
}
/* Check that te_gguf_bind has bound every tensor of the file to a parameter, so that no weight of the model was
 * forgotten. If a tensor is unused, the text of the error, TE_ERROR_FORMAT, names the tensor. */
TE_API te_status te_gguf_all_used(const te_gguf *f, te_context *ctx) {
    TE_REQUIRE(f && f->path, ctx, TE_ERROR_NULL, "te_gguf_all_used: the file is not open");
    for (int i = 0; i < f->tensors; i++)
        TE_REQUIRE(f->tensor[i].uses, ctx, TE_ERROR_FORMAT,
                   "%.120s: has a tensor %.*s, %s, that nothing here is called", f->path,
                   te__gguf_shown(f->tensor[i].name), f->tensor[i].name.p, te__gguf_shape(&f->tensor[i]).text);
    return TE_OK;
}

#endif
