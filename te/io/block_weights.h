/* block_weights.h -- binds the parameters of a list of ops for inference to the tensors of a file. A tensor of the file
 * is quantized in a format of blocks (groups of weights with a common scale), or it holds floats. gguf_weights.h finds
 * the tensors in GGUF files, and quantized_file.h in safetensors files. A te_block_weights holds the memory that a
 * binding allocates, and te_block_weights_release frees this memory:
 *     te_block_weights w;                                               // must live as long as `block`
 *     TE_TRY(te_quantized_bind(&w, &block.model, parts, 4, "model.layers.0.", &from, &ctx));
 *     te_block_weights_print(stdout, &w, &block.model);                 // formats, and the errors of casts
 *     te_block_weights_release(&w, &ctx);
 *
 * If an op has the option (weights, int4_128), or another format of blocks, and the file has the op's weight in f32,
 * f16 or bf16, the weight is cast to that format: each value is rounded to the nearest code (te_quantize_row).
 */
#ifndef TE_BLOCK_WEIGHTS_H
#define TE_BLOCK_WEIGHTS_H

#include "../fuse/quantized_weights.h" /* te_use_quantized, te_repack_weight, te_dequantize_row */
#include "../plan/bind.h"              /* te_shard_layout_of */
#include "packed.h"                    /* te_packed, te__packed_param */

/* The memory that a binding allocates for a model instance. The struct must not be moved, because the instance's
 * parameters point into the struct. */
typedef struct te_block_weights {
    te_weight_part *part;        /* the file's tensors, grouped by parameter; one for each entry of the table
                                  * of te_packed */
    te_quantized_weight *weight; /* [parameters]: each parameter as one weight, whose parts are consecutive entries of
                                  * `part` */
    void *memory;                /* target memory for the converted and the repacked parameters */
    void **host; /* [hosts]: allocations in host memory, for tensors whose layout or format in the file is not the one
                  * that the list of ops needs */
    int hosts;
    /* for each element of `part`: 0 or, if the tensor was cast to a format of blocks, the relative error of the cast:
     * the root mean square of the errors, divided by the root mean square of the values */
    double *error;
} te_block_weights;

/* The arguments of one binding. The table is parts[count]. The callback tensor_of finds the tensor that entry n of the
 * table names, and sets the data and the format of *part. It returns an error unless the tensor has `units` rows (if
 * parameter p has only one row, `units` columns). */
typedef struct te__block_binding te__block_binding;
struct te__block_binding {
    te_block_weights *w;
    te_model *m;
    const te_packed *parts;
    int count;
    const char *prefix, *caller; /* caller: the public function, for error texts */
    int converts;                /* 1: all weights are converted to the dtype of the list of ops */
    int takes_experts;           /* 1: one tensor may hold the weights of all experts (TE_PACKED_EXPERTS) */
    te_status (*tensor_of)(te_weight_part *part, const te__block_binding *b, int n, const te_param *p, int64_t units,
                           te_context *ctx);
    const void *source; /* of tensor_of */
};

/* ---- casts ------------------------------------------------------------------------------------------------------- */

TE_API void te__blocks_free_host(te_block_weights *w) {
    while (w->hosts > 0) free(w->host[--w->hosts]);
    free(w->host), w->host = 0;
}
/* Allocate host memory, and record it in w->host, so that releasing w frees the memory. */
TE_API te_status te__blocks_host(void **memory, te_block_weights *w, size_t bytes, te_context *ctx) {
    void **host = (void **)realloc(w->host, (size_t)(w->hosts + 1) * sizeof *host);
    *memory = 0;
    if (host) w->host = host, *memory = malloc(bytes + !bytes);
    TE_REQUIRE(*memory, ctx, TE_ERROR_MEMORY, "cannot allocate %zu bytes for a weight", bytes);
    w->host[w->hosts++] = *memory;
    return TE_OK;
}
/* Cast *part, the float tensor of entry n of the table, to the format of blocks of parameter p. Store the relative
 * error of the cast in b->w->error. */
TE_API te_status te__blocks_cast(te_weight_part *part, const te__block_binding *b, int n, const te_param *p,
                                 te_context *ctx) {
    const te_block_format f = p->weights;
    const int64_t cols = p->cols;
    const size_t row_bytes = te_block_row_bytes(f, cols), from_bytes = te_block_row_bytes(part->format, cols);
    void *memory = 0;
    double errors = 0, squares = 0;
    TE_REQUIRE(cols % te_block_values(f) == 0, ctx, TE_ERROR_SHAPE,
               "%s: %.60s%.60s has %lld columns; for %s they must be a multiple of %d, the values of a block",
               b->caller, b->prefix, b->parts[n].name, (long long)cols, te_block_name(f), te_block_values(f));
    TE_TRY(te__blocks_host(&memory, b->w, row_bytes * (size_t)part->rows, ctx));
    float *row = (float *)malloc((size_t)cols * 2 * sizeof *row), *back = row ? row + cols : 0;
    te_status status = row ? TE_OK : te_fail(ctx, TE_ERROR_MEMORY, "%s: cannot allocate a row", b->caller);
    for (int64_t r = 0; r < part->rows && status == TE_OK; r++) {
        uint8_t *at = (uint8_t *)memory + (size_t)r * row_bytes;
        te_dequantize_row(row, (const char *)part->data + (size_t)r * from_bytes, cols, part->format);
        te_quantize_row(at, row, cols, f);
        te_dequantize_row(back, at, cols, f);
        for (int64_t i = 0; i < cols; i++) {
            const double d = (double)back[i] - (double)row[i];
            errors += d * d, squares += (double)row[i] * (double)row[i];
        }
        if (!(errors < (double)INFINITY))
            status = te_fail(ctx, TE_ERROR_VALUE, "%s: row %lld of %.60s%.60s has a value that %s cannot hold",
                             b->caller, (long long)r, b->prefix, b->parts[n].name, te_block_name(f));
    }
    free(row);
    b->w->error[part - b->w->part] = squares > 0 ? sqrt(errors / squares) : 0;
    part->data = memory, part->format = f;
    return status;
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

TE_API int te__blocks_is_of(const te_packed *part, const te_param *p) {
    return !strcmp(part->op, p->op) && !strcmp(part->field, p->field);
}
/* Return whether parameter p may be in a format of blocks in memory. Parameters of one row (norms and biases) are
 * always converted to the dtype of the list of ops. */
TE_API int te__blocks_takes(const te__block_binding *b, const te_param *p) {
    return !b->converts && p->weights != TE_BLOCK_none && p->rows > 1;
}
/* Return whether the tensor of table entry *part holds parameter p of all experts, and is not transposed. */
TE_API int te__blocks_is_of_experts(const te__block_binding *b, const te_packed *part, const te_param *p) {
    const int form = part->form & ~(int)TE_PACKED_INTERLEAVED;
    return b->takes_experts && form == TE_PACKED_EXPERTS && !part->rows && te__packed_experts(b->m, p) > 0;
}
/* Find the tensors of parameter k in the file, and describe them in b->w->part, in the entries first to *next - 1. */
TE_API te_status te__blocks_collect(const te__block_binding *b, int k, int first, int *next, te_context *ctx) {
    const te_param *p = &b->m->param[k];
    const int64_t extent = p->rows == 1 ? p->cols : p->rows;
    int64_t left = extent;
    *next = first;
    for (int n = 0; n < b->count; n++) {
        const te_packed *part = &b->parts[n];
        if (!te__blocks_is_of(part, p)) continue;
        TE_REQUIRE(!part->form || te__blocks_is_of_experts(b, part, p), ctx, TE_ERROR_VALUE,
                   "%s: %.60s: has the form %d in the table; the weights of these files are matrices [out, in]",
                   b->caller, part->name, part->form);
        const int64_t units = part->rows ? part->rows : left;
        TE_REQUIRE(units > 0 && units <= left, ctx, TE_ERROR_SHAPE, "%s: %.60s has %lld rows, of %s.%s %lld are left",
                   b->caller, part->name, (long long)units, p->op, p->field, (long long)left);
        te_weight_part *to = &b->w->part[(*next)++];
        TE_TRY(b->tensor_of(to, b, n, p, units, ctx));
        to->rows = units, left -= units;
        if (te__blocks_takes(b, p) && p->weights != TE_BLOCK_quantized && te__block_is_float(to->format))
            TE_TRY(te__blocks_cast(to, b, n, p, ctx));
    }
    TE_REQUIRE(left == 0, ctx, TE_ERROR_SHAPE, "%s: %s: the table names %lld of %lld rows of %s.%s", b->caller,
               b->m->plan->name, (long long)(extent - left), (long long)extent, p->op, p->field);
    b->w->weight[k].part = b->w->part + first, b->w->weight[k].parts = *next - first;
    return TE_OK;
}

/* ---- converted parameters ---------------------------------------------------------------------------------------- */

/* Return whether the kernels can read parameter p in the mapped file: the file stores p as a single tensor of p's
 * dtype, and the tensor's data is aligned. */
TE_API int te__blocks_are_plain(const te_quantized_weight *w, const te_param *p) {
    const te_block_format f = w->part[0].format;
    const int same = (f == TE_BLOCK_f32 && p->dtype == TE_f32) || (f == TE_BLOCK_f16 && p->dtype == TE_f16) ||
                     (f == TE_BLOCK_bf16 && p->dtype == TE_bf16);
    return same && w->parts == 1 && (uintptr_t)w->part[0].data % TE_ACCESS == 0;
}
/* Return whether parameter k keeps in memory the format that the file has. If so, the host reads the parameter in the
 * mapped file, and for a GPU the parameter is repacked (te_repack_weight). */
TE_API int te__blocks_stay(const te__block_binding *b, int k) {
    const te_param *p = &b->m->param[k];
    const te_quantized_weight *w = &b->w->weight[k];
    int on_device = TE_CUDA; /* a variable, because with a constant nvcc would warn of unreachable code */
    int repacks = 1;
    for (int i = 0; i < w->parts; i++) repacks = repacks && te__can_repack(w->part[i].format);
    if (b->converts) return 0;
    if (on_device) return te__blocks_takes(b, p) && repacks;
    return te__blocks_takes(b, p) || te__blocks_are_plain(w, p);
}
/* Return the bytes of target memory that a converted or repacked parameter k needs. The result is 0 if the kernels read
 * parameter k in the mapped file. */
TE_API size_t te__blocks_memory_bytes(const te__block_binding *b, int k) {
    const te_param *p = &b->m->param[k];
    int on_device = TE_CUDA;
    if (!te__blocks_stay(b, k))
        return (size_t)te_round_up(te_round_up(p->rows * p->cols, TE_PARAM_ALIGN) * (int64_t)te_dtype_bytes(p->dtype),
                                   TE_REPACKED_ALIGN);
    return on_device ? te_repacked_bytes(&b->w->weight[k], p->cols) : 0;
}
/* Convert the first `rows` rows of *part to the dtype of parameter p. to: output, [rows, cols], in host memory. row:
 * workspace, [cols] floats. */
TE_API te_status te__blocks_convert(char *to, float *row, const te_weight_part *part, int64_t rows, int64_t cols,
                                    const te_param *p, te_context *ctx) {
    const size_t row_bytes = te_block_row_bytes(part->format, cols);
    for (int64_t r = 0; r < rows; r++) {
        te_dequantize_row(row, (const char *)part->data + (size_t)r * row_bytes, cols, part->format);
        for (int64_t i = 0; i < cols; i++) {
            TE_REQUIRE(p->dtype == TE_f32 || !(fabsf(row[i]) <= 3.402823466e38f) ||
                           fabsf(te_round_to(row[i], p->dtype)) <= 3.402823466e38f,
                       ctx, TE_ERROR_VALUE, "a value of %s.%s, %g, does not fit %s", p->op, p->field, (double)row[i],
                       te_dtype_name(p->dtype));
            te_store(to, r * cols + i, row[i], p->dtype);
        }
    }
    return TE_OK;
}
/* Convert all parts of parameter k into target memory. */
TE_API te_status te__blocks_load(const te__block_binding *b, int k, char *to, te_context *ctx) {
    const te_param *p = &b->m->param[k];
    const te_quantized_weight *w = &b->w->weight[k];
    const int64_t max_rows = te_max((int64_t)1, (1 << 20) / p->cols); /* in the staging buffer */
    const size_t size = te_dtype_bytes(p->dtype);
    float *row = (float *)malloc((size_t)p->cols * sizeof *row);
    char *staging = (char *)malloc((size_t)(max_rows * p->cols) * size);
    te_status status = row && staging ? TE_OK : te_fail(ctx, TE_ERROR_MEMORY, "%s: cannot allocate", b->caller);
    for (int i = 0; i < w->parts && status == TE_OK; i++) {
        te_weight_part part = w->part[i];
        const int64_t cols = p->rows == 1 ? part.rows : p->cols, total = p->rows == 1 ? 1 : part.rows;
        for (int64_t r = 0; r < total && status == TE_OK; r += max_rows) {
            const int64_t rows = te_min(max_rows, total - r);
            const size_t bytes = (size_t)(rows * cols) * size;
            part.data = (const char *)w->part[i].data + (size_t)r * te_block_row_bytes(part.format, cols);
            status = te__blocks_convert(staging, row, &part, rows, cols, p, ctx);
            if (status == TE_OK) status = te_copy(ctx, to, staging, bytes);
            if (status == TE_OK) status = te_synchronize(ctx);
            to += bytes;
        }
    }
    free(row), free(staging);
    return status;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Free the memory that a binding has allocated. The model instance must be bound again before it is used. */
TE_API void te_block_weights_release(te_block_weights *w, te_context *ctx) {
    if (!w) return;
    te_release(ctx, w->memory);
    te__blocks_free_host(w);
    free(w->part), free(w->weight), free(w->error);
    memset(w, 0, sizeof *w);
}
TE_API te_status te__blocks_bind(const te__block_binding *b, te_context *ctx) {
    int next = 0, on_device = TE_CUDA; /* a variable, because with a constant nvcc would warn of unreachable code */
    size_t bytes = 0;
    for (int k = 0; k < b->m->param_count; k++) {
        const te_param *p = &b->m->param[k];
        if (p->tied) continue;
        TE_REQUIRE(!p->data && !p->quantized, ctx, TE_ERROR_STATE, "%s: %s.%s has memory; bind its instance to none",
                   b->caller, p->op, p->field);
        TE_TRY(te__blocks_collect(b, k, next, &next, ctx));
        bytes += te__blocks_memory_bytes(b, k);
    }
    if (bytes) TE_TRY(te_allocate(ctx, &b->w->memory, bytes));
    char *at = (char *)b->w->memory;
    for (int k = 0; k < b->m->param_count; k++) { /* This loop changes no te_param. So if it returns an error, all
                                                   * parameters are still unbound */
        if (b->m->param[k].tied || !te__blocks_memory_bytes(b, k)) continue;
        te_weight_part *part = b->w->part + (b->w->weight[k].part - b->w->part);
        char *const to = at;
        at += te__blocks_memory_bytes(b, k);
        if (!te__blocks_stay(b, k))
            TE_TRY(te__blocks_load(b, k, to, ctx));
        else
            TE_TRY(te_repack_weight(part, to, &b->w->weight[k], b->m->param[k].cols, ctx));
    }
    at = (char *)b->w->memory;
    for (int k = 0; k < b->m->param_count; k++) {
        te_param *p = &b->m->param[k];
        const te_quantized_weight *w = &b->w->weight[k];
        if (p->tied) continue;
        char *const memory = at;
        at += te__blocks_memory_bytes(b, k);
        if (!te__blocks_stay(b, k))
            p->data = memory;
        else if (te__blocks_are_plain(w, p))
            p->data = (void *)(uintptr_t)w->part[0].data, p->constant = 1;
        else
            TE_TRY(te_use_quantized(p, w, ctx));
    }
    if (on_device) te__blocks_free_host(b->w); /* all parameters lie in w->memory */
    return TE_OK;
}
/* Check the arguments of a binding, allocate the arrays of b->w, and bind the parameters of b->m. After an error all
 * memory has been freed already.
 */
TE_API te_status te__block_weights_bind(te__block_binding *b, te_context *ctx) {
    const te_model *m = b->m;
    const te_packed *parts = b->parts;
    const int count = b->count;
    te_block_weights *w = b->w;
    memset(w, 0, sizeof *w);
    TE_TRY(te__check_bound(m->plan, m, ctx));
    TE_REQUIRE(te_tensor_group(ctx)->size == 1, ctx, TE_ERROR_STATE, "%s: the context has a tensor group", b->caller);
    TE_REQUIRE(!m->plan->training, ctx, TE_ERROR_STATE, "%s: %s: is no list for inference", b->caller, m->plan->name);
    TE_REQUIRE(count >= 0 && count <= 1 << 20, ctx, TE_ERROR_SHAPE, "%s: %d parts", b->caller, count);
    for (int i = 0; i < count; i++)
        TE_REQUIRE(parts[i].name && te__packed_param(m, &parts[i]), ctx, TE_ERROR_VALUE,
                   "%s: %.60s: %s has no parameter %.60s.%.60s", b->caller, parts[i].name ? parts[i].name : "?",
                   m->plan->name, parts[i].op, parts[i].field);
    w->part = (te_weight_part *)calloc((size_t)count + 1, sizeof *w->part);
    w->weight = (te_quantized_weight *)calloc((size_t)m->param_count + 1, sizeof *w->weight);
    w->error = (double *)calloc((size_t)count + 1, sizeof *w->error);
    const te_status status = w->part && w->weight && w->error
                                 ? te__blocks_bind(b, ctx)
                                 : te_fail(ctx, TE_ERROR_MEMORY, "%s: cannot allocate", b->caller);
    if (status != TE_OK) te_block_weights_release(w, ctx);
    return status;
}
/* Print one line for each weight that is in a format of blocks: the weight's op, rows and format and, if it was cast,
 * its relative error (te_block_weights.error). m: the model instance that was bound with w. */
TE_API void te_block_weights_print(FILE *to, const te_block_weights *w, const te_model *m) {
    for (int k = 0; k < m->param_count; k++) {
        const te_param *p = &m->param[k];
        const te_quantized_weight *weight = p->quantized;
        for (int i = 0; weight && weight == &w->weight[k] && i < weight->parts; i++) {
            const double error = w->error[weight->part + i - w->part];
            fprintf(to, "%s.%s: %lld x %lld %s", p->op, p->field, (long long)weight->part[i].rows, (long long)p->cols,
                    te_block_name(weight->part[i].format));
            fprintf(to, error > 0 ? ", relative error %.4f\n" : "\n", error);
        }
    }
}

#endif
