/* gguf_weights.h -- binds the parameters of models to the tensors of a GGUF file (gguf.h), by tables as in packed.h.
 *
 * Do this:
 *     static const te_packed parts[] = {{"attn_q.weight", "fc1", "weight", 4, 0},     // rows of the weight, in order
 *                                       {"attn_k.weight", "fc1", "weight", 2, 0},
 *                                       {"attn_v.weight", "fc1", "weight", 2, 0},
 *                                       {"attn_output.weight", "proj", "weight", 0, 0}};
 *     te_gguf model; te_gguf_weights w;                                               // stay as long as the instance
 *     TE_TRY(te_gguf_map(&model, "model-q4_k_m.gguf", &ctx));
 *     te_gguf_source from = {&model, TE_GGUF_IN_PLACE};
 *     TE_TRY(te_gguf_bind(&w, &block.model, parts, 4, "blk.0.", &from, &ctx));
 *     TE_TRY(te_gguf_all_used(&model, &ctx));                                         // after the last list is bound
 *     te_gguf_release(&w, &ctx);
 *
 * The instance, here `block`, must be bound to no memory. In a list with the option (weights, quantized), the weights
 * of linears and embeddings keep the formats of their tensors (te_use_quantized): the host reads them in the mapped
 * file; for a GPU they are repacked in newly allocated memory (te_repack_weight), except weights with a tensor in f32,
 * f16 or bf16. All other parameters, such as norms and biases, are converted to the list's dtype in allocated memory.
 *
 * llama.cpp writes some weights in another form than Hugging Face's files have, and the list must fit that form:
 * - architecture llama: the rows of each head of q and k are permuted for the interleaved form of rope, so the list has
 *   (rope, .., (interleaved, 1)). Llama 3.1's rope has frequency factors in the tensor rope_freqs.weight.
 * - Gemma: 1 is added to the weights of norms, so the list has rmsnorm and head_norm, not rmsnorm1p and head_norm1p.
 * - GPT-2: weights are [out, in], so no entry of the table is transposed.
 */
#ifndef TE_GGUF_WEIGHTS_H
#define TE_GGUF_WEIGHTS_H

#include "../fuse/quantized_weights.h" /* te_use_quantized, te_repack_weight, te_dequantize_row */
#include "../plan/bind.h"           /* te_shard_layout_of */
#include "gguf.h"                   /* te_gguf */
#include "packed.h"                 /* te_packed, te__packed_param */

typedef enum te_gguf_use {
    TE_GGUF_IN_PLACE, /* weights that the list's kernels can read in the file's format keep this format */
    TE_GGUF_CONVERTED /* all weights are converted to the list's dtype */
} te_gguf_use;
typedef struct te_gguf_source {
    te_gguf *file; /* must stay open as long as the models that te_gguf_bind has bound to it are used */
    te_gguf_use use;
} te_gguf_source;

/* The memory that te_gguf_bind allocates for an instance. The struct must not be moved, because the instance's
 * parameters point to it. */
typedef struct te_gguf_weights {
    te_weight_part *part;        /* [number of entries of the table]: the tensors, grouped by parameter */
    te_quantized_weight *weight; /* [number of parameters]: each parameter's weight, whose parts are its tensors in
                                  * `part` */
    void *memory;                /* target memory for the converted and the repacked parameters */
} te_gguf_weights;

enum { TE_GGUF_MAX_TENSOR_NAME = 256 }; /* max number of bytes of prefix and name together, with the closing NUL */

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* The te_block_format of a type of GGUF tensors; TE_BLOCK_none if the library does not support the type. */
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
    default: return TE_BLOCK_none;
    }
}
/* A tensor's type and shape as a text for messages: "Q4_K [640, 1024]", of an unknown type "type 4 [640, 1024]". */
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

/* The arguments of one call of te_gguf_bind. */
typedef struct te__gguf_binding {
    te_gguf_weights *w;
    te_model *m;
    const te_packed *parts;
    int count;
    const char *prefix;
    te_gguf_source from;
} te__gguf_binding;

/* Find the tensor that parts[n] names, and check its shape: [units, p->cols]; if parameter p has one row, [units]. */
TE_API te_status te__gguf_tensor_of(te_gguf_tensor **found, const te__gguf_binding *b, int n, const te_param *p,
                                    int64_t units, te_context *ctx) {
    char name[TE_GGUF_MAX_TENSOR_NAME];
    const te_gguf *f = b->from.file;
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
    *found = f->tensor + (t - f->tensor);
    return TE_OK;
}
TE_API int te__gguf_is_of(const te_packed *part, const te_param *p) {
    return !strcmp(part->op, p->op) && !strcmp(part->field, p->field);
}
/* Find the tensors of parameter k, and describe them in w->part, from w->part[first] on. *next: the index after the
 * last of these parts. */
TE_API te_status te__gguf_collect(const te__gguf_binding *b, int k, int first, int *next, te_context *ctx) {
    const te_param *p = &b->m->param[k];
    const int64_t extent = p->rows == 1 ? p->cols : p->rows;
    int64_t left = extent;
    *next = first;
    for (int n = 0; n < b->count; n++) {
        const te_packed *part = &b->parts[n];
        te_gguf_tensor *t = 0;
        if (!te__gguf_is_of(part, p)) continue;
        TE_REQUIRE(!part->transposed, ctx, TE_ERROR_VALUE,
                   "te_gguf_bind: %.60s: is transposed in the table; weights of a GGUF file are [out, in]", part->name);
        const int64_t units = part->rows ? part->rows : left;
        TE_REQUIRE(units > 0 && units <= left, ctx, TE_ERROR_SHAPE,
                   "te_gguf_bind: %.60s has %lld rows, of %s.%s %lld are left", part->name, (long long)units, p->op,
                   p->field, (long long)left);
        TE_TRY(te__gguf_tensor_of(&t, b, n, p, units, ctx));
        te_weight_part *to = &b->w->part[(*next)++];
        to->data = t->data, to->format = te_gguf_format(t->type), to->rows = units;
        left -= units, t->uses++;
    }
    TE_REQUIRE(left == 0, ctx, TE_ERROR_SHAPE, "te_gguf_bind: %s: the table names %lld of %lld rows of %s.%s",
               b->m->plan->name, (long long)(extent - left), (long long)extent, p->op, p->field);
    b->w->weight[k].part = b->w->part + first, b->w->weight[k].parts = *next - first;
    return TE_OK;
}

/* ---- converted parameters ---------------------------------------------------------------------------------------- */

/* Return whether the tensor in the file can serve as parameter p as it is: it is a single tensor of p's dtype, and it
 * is aligned. */
TE_API int te__gguf_is_plain(const te_quantized_weight *w, const te_param *p) {
    const te_block_format f = w->part[0].format;
    const int same = (f == TE_BLOCK_f32 && p->dtype == TE_f32) || (f == TE_BLOCK_f16 && p->dtype == TE_f16) ||
                     (f == TE_BLOCK_bf16 && p->dtype == TE_bf16);
    return same && w->parts == 1 && (uintptr_t)w->part[0].data % TE_ACCESS == 0;
}
/* Return whether parameter k keeps the format that it has in the file. The host then reads it in the file; for a GPU it
 * is repacked. */
TE_API int te__gguf_stays(const te__gguf_binding *b, int k) {
    const te_param *p = &b->m->param[k];
    const te_quantized_weight *w = &b->w->weight[k];
    int on_device = TE_CUDA; /* a variable, because with a constant nvcc would warn of unreachable code */
    int repacks = 1;
    for (int i = 0; i < w->parts; i++) repacks = repacks && te__can_repack(w->part[i].format);
    if (b->from.use != TE_GGUF_IN_PLACE) return 0;
    if (on_device) return p->takes_quantized && repacks;
    return p->takes_quantized || te__gguf_is_plain(w, p);
}
/* The bytes of target memory to allocate for parameter k, converted or repacked; 0: it is read in the file. */
TE_API size_t te__gguf_memory_bytes(const te__gguf_binding *b, int k) {
    const te_param *p = &b->m->param[k];
    int on_device = TE_CUDA;
    if (!te__gguf_stays(b, k))
        return (size_t)te_round_up(te_round_up(p->rows * p->cols, TE_PARAM_ALIGN) * (int64_t)te_dtype_bytes(p->dtype),
                                   TE_REPACKED_ALIGN);
    return on_device ? te_repacked_bytes(&b->w->weight[k], p->cols) : 0;
}
/* Convert `rows` rows of a part to p's dtype. to: output, [rows, cols], host memory; row: memory for [cols] floats. */
TE_API te_status te__gguf_convert(char *to, float *row, const te_weight_part *part, int64_t rows, int64_t cols,
                                  const te_param *p, te_context *ctx) {
    const size_t row_bytes = te_block_row_bytes(part->format, cols);
    for (int64_t r = 0; r < rows; r++) {
        te_dequantize_row(row, (const char *)part->data + (size_t)r * row_bytes, cols, part->format);
        for (int64_t i = 0; i < cols; i++) {
            TE_REQUIRE(p->dtype == TE_f32 || !(fabsf(row[i]) <= 3.402823466e38f) ||
                           fabsf(te_round_to(row[i], p->dtype)) <= 3.402823466e38f, ctx, TE_ERROR_VALUE,
                       "te_gguf_bind: a value of %s.%s, %g, does not fit %s", p->op, p->field, (double)row[i],
                       te_dtype_name(p->dtype));
            te_store(to, r * cols + i, row[i], p->dtype);
        }
    }
    return TE_OK;
}
/* Convert all parts of parameter k into target memory. */
TE_API te_status te__gguf_load(const te__gguf_binding *b, int k, char *to, te_context *ctx) {
    const te_param *p = &b->m->param[k];
    const te_quantized_weight *w = &b->w->weight[k];
    const int64_t max_rows = te_max((int64_t)1, (1 << 20) / p->cols); /* in the staging buffer */
    const size_t size = te_dtype_bytes(p->dtype);
    float *row = (float *)malloc((size_t)p->cols * sizeof *row);
    char *staging = (char *)malloc((size_t)(max_rows * p->cols) * size);
    te_status status = row && staging ? TE_OK : te_fail(ctx, TE_ERROR_MEMORY, "te_gguf_bind: cannot allocate");
    for (int i = 0; i < w->parts && status == TE_OK; i++) {
        te_weight_part part = w->part[i];
        const int64_t cols = p->rows == 1 ? part.rows : p->cols, total = p->rows == 1 ? 1 : part.rows;
        for (int64_t r = 0; r < total && status == TE_OK; r += max_rows) {
            const int64_t rows = te_min(max_rows, total - r);
            const size_t bytes = (size_t)(rows * cols) * size;
            part.data = (const char *)w->part[i].data + (size_t)r * te_block_row_bytes(part.format, cols);
            status = te__gguf_convert(staging, row, &part, rows, cols, p, ctx);
            if (status == TE_OK) status = te_copy(ctx, to, staging, bytes);
            if (status == TE_OK) status = te_synchronize(ctx);
            to += bytes;
        }
    }
    free(row), free(staging);
    return status;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Free what te_gguf_bind has allocated. The instance must be bound again before it is used. */
TE_API void te_gguf_release(te_gguf_weights *w, te_context *ctx) {
    if (!w) return;
    te_release(ctx, w->memory);
    free(w->part), free(w->weight);
    memset(w, 0, sizeof *w);
}
TE_API te_status te__gguf_bind(const te__gguf_binding *b, te_context *ctx) {
    int next = 0;
    size_t bytes = 0;
    for (int k = 0; k < b->m->param_count; k++) {
        const te_param *p = &b->m->param[k];
        if (p->tied) continue;
        TE_REQUIRE(!p->data && !p->quantized, ctx, TE_ERROR_STATE,
                   "te_gguf_bind: %s.%s has memory; bind its instance to none", p->op, p->field);
        TE_TRY(te__gguf_collect(b, k, next, &next, ctx));
        bytes += te__gguf_memory_bytes(b, k);
    }
    if (bytes) TE_TRY(te_allocate(ctx, &b->w->memory, bytes));
    char *at = (char *)b->w->memory;
    for (int k = 0; k < b->m->param_count; k++) { /* this loop changes no te_param, so after an error in it all
                                                   * parameters are still unbound */
        if (b->m->param[k].tied || !te__gguf_memory_bytes(b, k)) continue;
        te_weight_part *part = b->w->part + (b->w->weight[k].part - b->w->part);
        char *const to = at;
        at += te__gguf_memory_bytes(b, k);
        if (!te__gguf_stays(b, k)) TE_TRY(te__gguf_load(b, k, to, ctx));
        else TE_TRY(te_repack_weight(part, to, &b->w->weight[k], b->m->param[k].cols, ctx));
    }
    at = (char *)b->w->memory;
    for (int k = 0; k < b->m->param_count; k++) {
        te_param *p = &b->m->param[k];
        const te_quantized_weight *w = &b->w->weight[k];
        if (p->tied) continue;
        char *const memory = at;
        at += te__gguf_memory_bytes(b, k);
        if (!te__gguf_stays(b, k)) p->data = memory;
        else if (te__gguf_is_plain(w, p)) p->data = (void *)(uintptr_t)w->part[0].data, p->constant = 1;
        else TE_TRY(te_use_quantized(p, w, ctx));
    }
    return TE_OK;
}
/* Bind all parameters of m, an instance of a list for inference that is bound to no memory, to the tensors that the
 * table parts[count] names. Call te_tie afterwards for tied parameters. The tensors of a parameter must together have
 * all of its rows. prefix: what the names of all these tensors begin with. Waits for the stream. After an error m must
 * be bound again, and there is nothing to release. Errors: TE_ERROR_FORMAT: a tensor is missing; TE_ERROR_SHAPE: a
 * tensor or the table has another shape than the parameter; TE_ERROR_DTYPE: a tensor has a type without a
 * te_block_format; TE_ERROR_VALUE: a number does not fit the list's dtype; TE_ERROR_STATE: m has memory, or its
 * parameters are sharded over ranks; TE_ERROR_MEMORY. */
TE_API te_status te_gguf_bind(te_gguf_weights *w, te_model *m, const te_packed *parts, int count, const char *prefix,
                              const te_gguf_source *from, te_context *ctx) {
    te__gguf_binding b;
    TE_TRY(te__check_context(ctx, "te_gguf_bind"));
    TE_REQUIRE(w && m && m->plan && prefix && from && from->file && from->file->path && (parts || !count), ctx,
               TE_ERROR_NULL, "te_gguf_bind: the instance, the table or the prefix is null, or the file is not open");
    memset(w, 0, sizeof *w);
    TE_TRY(te__check_bound(m->plan, m, ctx));
    TE_REQUIRE(te_tensor_group(ctx)->size == 1, ctx, TE_ERROR_STATE, "te_gguf_bind: the context has a tensor group");
    TE_REQUIRE(!m->plan->training, ctx, TE_ERROR_STATE, "te_gguf_bind: %s: is no list for inference", m->plan->name);
    TE_REQUIRE(count >= 0 && count <= 1 << 20, ctx, TE_ERROR_SHAPE, "te_gguf_bind: %d parts", count);
    for (int i = 0; i < count; i++)
        TE_REQUIRE(parts[i].name && te__packed_param(m, &parts[i]), ctx, TE_ERROR_VALUE,
                   "te_gguf_bind: %.60s: %s has no parameter %.60s.%.60s", parts[i].name ? parts[i].name : "?",
                   m->plan->name, parts[i].op, parts[i].field);
    w->part = (te_weight_part *)calloc((size_t)count + 1, sizeof *w->part);
    w->weight = (te_quantized_weight *)calloc((size_t)m->param_count + 1, sizeof *w->weight);
    b.w = w, b.m = m, b.parts = parts, b.count = count, b.prefix = prefix, b.from = *from;
    const te_status status = w->part && w->weight ? te__gguf_bind(&b, ctx)
                                                  : te_fail(ctx, TE_ERROR_MEMORY, "te_gguf_bind: cannot allocate");
    if (status != TE_OK) te_gguf_release(w, ctx);
    return status;
}
/* Check that te_gguf_bind has used every tensor of the file, so that no weight of the model was forgotten. The text of
 * the error, TE_ERROR_FORMAT, names a tensor that was not used. */
TE_API te_status te_gguf_all_used(const te_gguf *f, te_context *ctx) {
    TE_REQUIRE(f && f->path, ctx, TE_ERROR_NULL, "te_gguf_all_used: the file is not open");
    for (int i = 0; i < f->tensors; i++)
        TE_REQUIRE(f->tensor[i].uses, ctx, TE_ERROR_FORMAT,
                   "%.120s: has a tensor %.*s, %s, that nothing here is called", f->path,
                   te__gguf_shown(f->tensor[i].name), f->tensor[i].name.p, te__gguf_shape(&f->tensor[i]).text);
    return TE_OK;
}

#endif
