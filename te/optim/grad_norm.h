/* grad_norm.h -- the global L2 norm of the gradients of several models, left on the device.
 *
 * Do this:
 *     te_model *models[] = {&embed.model, &block.model};
 *     te_grad_norm norm;
 *     TE_TRY(te_allocate(&ctx, &memory, te_grad_norm_bytes(models, 2)));
 *     TE_TRY(te_grad_norm_init(&norm, memory, te_grad_norm_bytes(models, 2), models, 2, &ctx));
 *     TE_TRY(te_grad_norm_run(&norm, &ctx));         // enqueues; norm.result[0] = sum of squares, [1] = norm
 *
 * The tensors are cut into chunks of one size, one block a chunk, one partial sum a chunk; one block adds the partial
 * sums. No atomics, and what a chunk is depends on nothing but the tensors: the same bits on every run and with any
 * number of threads. Gaps between tensors are not read; a tied parameter has no memory of its own and counts once.
 */
#ifndef TE_GRAD_NORM_H
#define TE_GRAD_NORM_H

#include "../plan/model.h"  /* te_model, te_param */
#include "../core/target.h" /* TE_KERNEL */

/* ---- a walk over the parameters of several models, tied ones left out ---------------------------------------- */

typedef struct te_param_walk {
    te_model *const *models;
    int count, model, index; /* models; where the walk is */
    te_param *param;         /* the parameter of the last te_params_next */
} te_param_walk;

TE_API te_param_walk te_params_of(te_model *const *models, int count) {
    te_param_walk w;
    w.models = models, w.count = models ? count : 0, w.model = 0, w.index = -1, w.param = 0;
    return w;
}
/* Go to the next parameter; 0 if there is none. */
TE_API int te_params_next(te_param_walk *w) {
    for (; w->model < w->count; w->model++, w->index = -1)
        while (w->models[w->model] && ++w->index < w->models[w->model]->param_count) {
            w->param = &w->models[w->model]->param[w->index];
            if (!w->param->tied) return 1;
        }
    return 0;
}

/* ---- a table of tensors, cut into chunks ---------------------------------------------------------------------- */

/* Which tensor a chunk lies in: the last t with first[t] <= chunk. first[0] is 0, first[count] the number of chunks. */
TE_BOTH int te__chunk_tensor(const int32_t *first, int count, int32_t chunk) {
    int low = 0, high = count;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (first[middle] <= chunk) low = middle;
        else high = middle;
    }
    return low;
}
/* A part of a buffer: where it starts; *at moves behind it. */
TE_API size_t te__part(size_t *at, size_t bytes) {
    const size_t start = *at;
    *at += (bytes + TE_ALIGN - 1) / TE_ALIGN * TE_ALIGN;
    return start;
}
/* Everything an optimizer asks of its models: bound, with gradients, aligned, each once, not too large. */
TE_API te_status te__models_check(te_model *const *models, int count, const char *who, te_context *ctx) {
    TE_REQUIRE(ctx && ctx->target, ctx, TE_ERROR_NULL, "%s: the context is null", who);
    TE_REQUIRE(!strcmp(ctx->target->name, TE_CUDA ? "cuda" : "host"), ctx, TE_ERROR_DEVICE,
               "%s: compiled for the %s target, but the context is of the %s target", who, TE_CUDA ? "cuda" : "host", ctx->target->name);
    TE_REQUIRE(count >= 0, ctx, TE_ERROR_SHAPE, "%s: %d models", who, count);
    TE_REQUIRE(models || !count, ctx, TE_ERROR_NULL, "%s: the list of models is null", who);
    for (int i = 0; i < count; i++) {
        TE_REQUIRE(models[i] && models[i]->plan && (models[i]->param || !models[i]->param_count), ctx, TE_ERROR_NULL,
                   "%s: model %d is null or not bound to memory", who, i);
        for (int k = 0; k < i; k++)
            TE_REQUIRE(models[i] != models[k], ctx, TE_ERROR_VALUE, "%s: model %d (%s) is model %d again", who, i, models[i]->plan->name, k);
    }
    int64_t total = 0;
    te_param_walk w = te_params_of(models, count);
    while (te_params_next(&w)) {
        const te_param *p = w.param;
        const char *model = models[w.model]->plan->name;
        TE_REQUIRE(p->rows > 0 && p->cols > 0, ctx, TE_ERROR_SHAPE, "%s: model %d (%s) %s.%s is %lld x %lld", who, w.model, model, p->op,
                   p->field, (long long)p->rows, (long long)p->cols);
        TE_REQUIRE(p->rows <= (INT64_C(1) << 41) / p->cols && (total += p->rows * p->cols) <= INT64_C(1) << 41, ctx, TE_ERROR_OVERFLOW,
                   "%s: more than 2^41 elements with model %d (%s) %s.%s, %lld x %lld", who, w.model, model, p->op, p->field,
                   (long long)p->rows, (long long)p->cols);
        TE_REQUIRE(p->data && p->grad, ctx, TE_ERROR_NULL, "%s: model %d (%s) %s.%s has no %s", who, w.model, model, p->op, p->field,
                   p->data ? "gradient; bind the model with a gradient buffer" : "memory");
        TE_REQUIRE((uintptr_t)p->data % TE_ACCESS == 0 && (uintptr_t)p->grad % TE_ACCESS == 0, ctx, TE_ERROR_ALIGNMENT,
                   "%s: model %d (%s) %s.%s is not aligned to %d bytes", who, w.model, model, p->op, p->field, (int)TE_ACCESS);
    }
    return TE_OK;
}
/* A buffer that a caller hands over. */
TE_API te_status te__memory_check(const void *memory, size_t bytes, size_t needed, const char *who, te_context *ctx) {
    TE_REQUIRE(memory, ctx, TE_ERROR_NULL, "%s: memory is null", who);
    TE_REQUIRE((uintptr_t)memory % TE_ALIGN == 0, ctx, TE_ERROR_ALIGNMENT, "%s: memory must be aligned to %d bytes", who, (int)TE_ALIGN);
    TE_REQUIRE(bytes >= needed, ctx, TE_ERROR_MEMORY, "%s: memory has %zu bytes, %zu are needed", who, bytes, needed);
    return TE_OK;
}

/* ---- the norm -------------------------------------------------------------------------------------------------- */

/* Four floats in one 16-byte access. */
typedef struct __attribute__((aligned(16))) te__float4 { float v[4]; } te__float4;

typedef struct te__grad_tensor { const float *grad; int64_t elements; } te__grad_tensor;

/* All pointers are target memory. */
typedef struct te_grad_norm {
    const te__grad_tensor *tensor; /* [count] */
    const int32_t *first;          /* [count + 1], the first chunk of each tensor */
    float *partial;                /* [chunks] */
    float *result;                 /* [2]: the sum of squares, and its root */
    int count, chunks;
} te_grad_norm;

/* A chunk is 32 KiB: 256 lanes, two rounds of four 16-byte loads each. Enough blocks to even out, few enough partial
 * sums (one per 8192 elements) for one block to add. */
enum { TE__NORM_CHUNK = 8192, TE__NORM_THREADS = 256, TE__NORM_LOADS = 4, TE__NORM_SUM_THREADS = 1024 };

/* Reads 4 bytes an element, writes 4 bytes a chunk: the floor is 4 bytes * elements / read bandwidth. */
TE_FN void te__grad_norm_body(const te_grad_norm *a, te_block b) {
    int group;
    te_lanes lanes = te_lanes_here(TE_CUDA ? TE__NORM_THREADS : 1, &group);
    const int t = te__chunk_tensor(a->first, a->count, b.x);
    const int64_t from = (int64_t)(b.x - a->first[t]) * TE__NORM_CHUNK;
    const float *x = a->tensor[t].grad + from;
    const int n = (int)te_min(a->tensor[t].elements - from, TE__NORM_CHUNK);
    te__float4 sum[TE__NORM_LOADS], r[TE__NORM_LOADS];
    TE_UNROLL for (int k = 0; k < TE__NORM_LOADS; k++)
        TE_UNROLL for (int j = 0; j < 4; j++) sum[k].v[j] = 0.0f;
    if (n == TE__NORM_CHUNK) {
        TE_UNROLL for (int i = 4 * lanes.id; i < TE__NORM_CHUNK; i += 4 * lanes.count * TE__NORM_LOADS) {
            TE_UNROLL for (int k = 0; k < TE__NORM_LOADS; k++) r[k] = *(const te__float4 *)(x + i + 4 * lanes.count * k);
            TE_UNROLL for (int k = 0; k < TE__NORM_LOADS; k++)
                TE_UNROLL for (int j = 0; j < 4; j++) sum[k].v[j] += r[k].v[j] * r[k].v[j];
        }
    } else {
        for (int i = 4 * lanes.id; i < n; i += 4 * lanes.count)
            TE_UNROLL for (int j = 0; j < 4; j++) if (i + j < n) sum[0].v[j] += x[i + j] * x[i + j];
    }
    float total = 0.0f;
    TE_UNROLL for (int k = 0; k < TE__NORM_LOADS; k++) total += (sum[k].v[0] + sum[k].v[1]) + (sum[k].v[2] + sum[k].v[3]);
    te_lanes_sum(&total, 1, &lanes);
    if (lanes.id == 0) a->partial[b.x] = total;
}
TE_KERNEL(te__grad_norm_partial, TE__NORM_THREADS, te_grad_norm, te__grad_norm_body(te_args, te_at))

/* Reads one float a chunk. A lane's own sum is in double: there may be a million chunks. */
TE_FN void te__grad_norm_sum_body(const te_grad_norm *a) {
    int group;
    te_lanes lanes = te_lanes_here(TE_CUDA ? TE__NORM_SUM_THREADS : 1, &group);
    double sum = 0.0;
    for (int64_t i = lanes.id; i < a->chunks; i += 4 * lanes.count) {
        float v[4];
        TE_UNROLL for (int k = 0; k < 4; k++) v[k] = i + k * lanes.count < a->chunks ? a->partial[i + k * lanes.count] : 0.0f;
        TE_UNROLL for (int k = 0; k < 4; k++) sum += (double)v[k];
    }
    float total = (float)sum;
    te_lanes_sum(&total, 1, &lanes);
    if (lanes.id == 0) a->result[0] = total, a->result[1] = sqrtf(total);
}
TE_KERNEL(te__grad_norm_sum, TE__NORM_SUM_THREADS, te_grad_norm, te__grad_norm_sum_body(te_args))

/* Where the parts of the memory are. Returns its size. */
TE_API size_t te__grad_norm_layout(te_model *const *models, int count, size_t *table, size_t *partial, int *tensors, int64_t *chunks) {
    size_t at = TE_ALIGN; /* the result comes first */
    te_param_walk w = te_params_of(models, count);
    *tensors = 0, *chunks = 0;
    while (te_params_next(&w)) (*tensors)++, *chunks += te_ceil_div(w.param->rows * w.param->cols, TE__NORM_CHUNK);
    *table = te__part(&at, (size_t)*tensors * sizeof(te__grad_tensor) + ((size_t)*tensors + 1) * sizeof(int32_t));
    *partial = te__part(&at, (size_t)*chunks * sizeof(float));
    return at;
}
/* Bytes of target memory that te_grad_norm_init wants for these models. */
TE_API size_t te_grad_norm_bytes(te_model *const *models, int count) {
    size_t table, partial;
    int tensors;
    int64_t chunks;
    return te__grad_norm_layout(models, count, &table, &partial, &tensors, &chunks);
}

/* Bind to memory (target memory, aligned to TE_ALIGN) and to the models' gradients as they are bound now. Waits for the
 * stream. Errors: null pointers, a model without gradients or listed twice, memory too small or misaligned. */
TE_API te_status te_grad_norm_init(te_grad_norm *norm, void *memory, size_t bytes, te_model *const *models, int count, te_context *ctx) {
    size_t table, partial;
    int tensors;
    int64_t chunks;
    TE_TRY(te__models_check(models, count, "gradient norm", ctx));
    TE_REQUIRE(norm, ctx, TE_ERROR_NULL, "gradient norm: the struct is null");
    TE_TRY(te__memory_check(memory, bytes, te__grad_norm_layout(models, count, &table, &partial, &tensors, &chunks), "gradient norm", ctx));

    const size_t table_bytes = (size_t)tensors * sizeof(te__grad_tensor) + ((size_t)tensors + 1) * sizeof(int32_t);
    te__grad_tensor *rows = (te__grad_tensor *)malloc(table_bytes);
    TE_REQUIRE(rows, ctx, TE_ERROR_MEMORY, "gradient norm: cannot allocate %zu bytes", table_bytes);
    int32_t *first = (int32_t *)(rows + tensors);
    te_param_walk w = te_params_of(models, count);
    int t = 0;
    for (first[0] = 0; te_params_next(&w); t++) {
        rows[t].grad = w.param->grad, rows[t].elements = w.param->rows * w.param->cols;
        first[t + 1] = first[t] + (int32_t)te_ceil_div(rows[t].elements, TE__NORM_CHUNK);
    }
    te_status status = te_copy(ctx, (char *)memory + table, rows, table_bytes);
    if (status == TE_OK) status = te_fill(ctx, memory, 0, TE_ALIGN);
    if (status == TE_OK) status = te_synchronize(ctx);
    free(rows);
    TE_TRY(status);
    norm->tensor = (const te__grad_tensor *)((char *)memory + table);
    norm->first = (const int32_t *)(norm->tensor + tensors);
    norm->partial = (float *)((char *)memory + partial), norm->result = (float *)memory;
    norm->count = tensors, norm->chunks = (int)chunks;
    return TE_OK;
}

/* Enqueue: norm->result[0] = sum of the squares of all gradients, norm->result[1] = its root. */
TE_API te_status te_grad_norm_run(const te_grad_norm *norm, te_context *ctx) {
    TE_REQUIRE(norm && ctx && norm->result, ctx, TE_ERROR_NULL, "gradient norm: not initialised, or the context is null");
    if (norm->chunks) TE_TRY(te__grad_norm_partial_launch(ctx, te_grid_of(norm->chunks, 1), norm));
    return te__grad_norm_sum_launch(ctx, te_grid_of(1, 1), norm);
}

#endif
