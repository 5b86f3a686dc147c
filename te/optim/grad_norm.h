/* grad_norm.h -- the global L2 norm of the gradients of several models, left on the device.
 *
 * Do this:
 *     te_model *models[] = {&embed.model, &block.model};
 *     te_grad_norm norm;
 *     TE_TRY(te_allocate(&ctx, &memory, te_grad_norm_bytes(models, 2)));
 *     TE_TRY(te_grad_norm_init(&norm, memory, te_grad_norm_bytes(models, 2), models, 2, &ctx));
 *     TE_TRY(te_grad_norm_run(&norm, &ctx));         // enqueues; norm.result[0] = sum of squares, [1] = norm
 *
 * The squares of elements above 2^64 or so do not fit f32. A chunk whose sum does not is added up once more, scaled, so
 * *norm.norm, a double, is finite if and only if all gradients are.
 *
 * Of a model that a tensor group shares it is the norm of the whole: each rank adds up the squares of what it alone
 * holds, rank 0 those of what all hold, too, and each adds the ranks' sums in their order. An optimizer whose states
 * are shared out over the data group (slices.h) has sums of its slice alone; those are added up over that group first.
 *
 * The tensors are cut into chunks of one size, one block a chunk, one partial sum a chunk; one block adds the partial
 * sums. No atomics, and what a chunk is depends on nothing but the tensors: the same bits on every run and with any
 * number of threads. Gaps between tensors are not read; a tied parameter has no memory of its own and counts once.
 */
#ifndef TE_GRAD_NORM_H
#define TE_GRAD_NORM_H

#include "../core/group.h" /* te_group_all_gather */
#include "params.h"        /* the chunk table */
#include "slices.h"        /* te_piece_walk */

/* Four floats in one 16-byte access. */
typedef struct __attribute__((aligned(16))) te__float4 { float v[4]; } te__float4;

typedef struct te__grad_tensor { const float *grad; int64_t elements; } te__grad_tensor;

/* All pointers are target memory. */
typedef struct te_grad_norm {
    const te__grad_tensor *tensor; /* [count] */
    const int32_t *first;          /* [count + 1], the first chunk of each tensor */
    double *partial;               /* [chunks] */
    float *result;                 /* [2]: the sum of squares, and its root; infinity where it does not fit */
    double *norm;                  /* the root again; behind the result */
    int count, chunks;
    double *ranks;                 /* the sum of each rank of a group, TE_NORM_RANKS at least */
    int rank, size;                /* in the tensor group; of a kernel: in the group that it adds up */
    te_slices slices;              /* of the data group's; of one that has all: 0 of 1 */
} te_grad_norm;

/* A chunk is 32 KiB: 256 lanes, two rounds of four 16-byte loads each. Enough blocks to even out, few enough partial
 * sums (one per 8192 elements) for one block to add. */
enum { TE__NORM_CHUNK = 8192, TE__NORM_THREADS = 256, TE__NORM_LOADS = 4, TE__NORM_SUM_THREADS = 1024 };
enum { TE_NORM_RANKS = 64 }; /* of a tensor group, at most */

/* 2^192: divided by it, the squares of 2^41 of the largest floats fit f32, and what falls below the smallest is nothing
 * beside a sum that did not fit. */
#define TE__NORM_LARGE 6.277101735386680764e57

/* A lane's share of a chunk, in double; seldom asked for, so a plain loop. */
TE_FN float te__grad_norm_large(const float *x, int n, te_lanes lanes) {
    double sum = 0.0;
    for (int i = lanes.id; i < n; i += lanes.count) sum += (double)x[i] * (double)x[i];
    return (float)(sum / TE__NORM_LARGE);
}

/* Reads 4 bytes an element, writes 8 bytes a chunk: the floor is 4 bytes * elements / read bandwidth. */
TE_FN void te__grad_norm_body(const te_grad_norm *a, te_block b) {
    int group;
    te_lanes lanes = te_lanes_here(TE_CUDA ? TE__NORM_THREADS : 1, &group);
    const int t = te_chunk_tensor(a->first, a->count, b.x);
    const int64_t from = (int64_t)(b.x - a->first[t]) * TE__NORM_CHUNK;
    const float *x = a->tensor[t].grad + from;
    const int n = (int)te_min(a->tensor[t].elements - from, TE__NORM_CHUNK);
    te__float4 sum[TE__NORM_LOADS], r[TE__NORM_LOADS];
    TE_UNROLL for (int k = 0; k < TE__NORM_LOADS; k++)
        TE_UNROLL for (int j = 0; j < 4; j++) sum[k].v[j] = 0.0f;
    if (n == TE__NORM_CHUNK) {
        TE_UNROLL for (int i = 4 * lanes.id; i < TE__NORM_CHUNK; i += 4 * lanes.count * TE__NORM_LOADS) {
            TE_UNROLL for (int k = 0; k < TE__NORM_LOADS; k++)
                r[k] = *(const te__float4 *)(x + i + 4 * lanes.count * k);
            TE_UNROLL for (int k = 0; k < TE__NORM_LOADS; k++)
                TE_UNROLL for (int j = 0; j < 4; j++) sum[k].v[j] += r[k].v[j] * r[k].v[j];
        }
    } else {
        for (int i = 4 * lanes.id; i < n; i += 4 * lanes.count)
            TE_UNROLL for (int j = 0; j < 4; j++) if (i + j < n) sum[0].v[j] += x[i + j] * x[i + j];
    }
    float total = 0.0f;
    TE_UNROLL for (int k = 0; k < TE__NORM_LOADS; k++)
        total += (sum[k].v[0] + sum[k].v[1]) + (sum[k].v[2] + sum[k].v[3]);
    te_lanes_sum(&total, 1, &lanes);
    double partial = (double)total;
    if (!(total <= 3.402823466e38f)) { /* the same in all lanes */
        total = te__grad_norm_large(x, n, lanes);
        te_lanes_sum(&total, 1, &lanes);
        partial = (double)total * TE__NORM_LARGE;
    }
    if (lanes.id == 0) a->partial[b.x] = partial;
}
TE_KERNEL_IF_USED(te__grad_norm_partial, TE__NORM_THREADS, 1, te_grad_norm, te__grad_norm_body(te_args, te_at))

/* Reads one double a chunk. A lane's own sum is in double: there may be a million chunks. */
TE_FN void te__grad_norm_sum_body(const te_grad_norm *a) {
    int group;
    te_lanes lanes = te_lanes_here(TE_CUDA ? TE__NORM_SUM_THREADS : 1, &group);
    double sum = 0.0;
    for (int64_t i = lanes.id; i < a->chunks; i += 4 * lanes.count) {
        double v[4];
        TE_UNROLL for (int k = 0; k < 4; k++)
            v[k] = i + k * lanes.count < a->chunks ? a->partial[i + k * lanes.count] : 0.0;
        TE_UNROLL for (int k = 0; k < 4; k++) sum += v[k];
    }
    float total[2];
    total[0] = (float)sum, total[1] = (float)(sum / TE__NORM_LARGE);
    te_lanes_sum(total, 2, &lanes);
    if (lanes.id != 0) return;
    const int fits = total[0] <= 3.402823466e38f;
    *a->norm = fits ? (double)sqrtf(total[0]) : sqrt((double)total[1]) * sqrt(TE__NORM_LARGE);
    a->result[0] = total[0], a->result[1] = (float)*a->norm;
}
TE_KERNEL_IF_USED(te__grad_norm_sum, TE__NORM_SUM_THREADS, 1, te_grad_norm, te__grad_norm_sum_body(te_args))
/* Behind it: what this rank brings, and what that of all ranks comes to. */
TE_FN void te__grad_norm_rank_body(const te_grad_norm *a) { a->ranks[a->rank] = *a->norm * *a->norm; }
TE_FN void te__grad_norm_ranks_body(const te_grad_norm *a) {
    double sum = 0.0;
    for (int i = 0; i < a->size; i++) sum += a->ranks[i];
    *a->norm = sqrt(sum);
    a->result[0] = (float)sum, a->result[1] = (float)*a->norm;
}
TE_KERNEL_IF_USED(te__grad_norm_rank, 1, 1, te_grad_norm, te__grad_norm_rank_body(te_args))
TE_KERNEL_IF_USED(te__grad_norm_ranks, 1, 1, te_grad_norm, te__grad_norm_ranks_body(te_args))

/* Where the parts of the memory are. Returns its size. */
TE_API size_t te__grad_norm_layout(te_model *const *models, int count, te_slices slices, size_t *table,
                                   size_t *partial, int *tensors, int64_t *chunks) {
    size_t at = TE_ALIGN; /* the result comes first, behind it the ranks' sums */
    te_piece_walk w = te_pieces_of(models, count, slices);
    (void)te__part(&at, (size_t)te_max(slices.ranks, TE_NORM_RANKS) * sizeof(double));
    *tensors = 0, *chunks = 0;
    while (te_pieces_next(&w)) (*tensors)++, *chunks += te_ceil_div(w.elements, TE__NORM_CHUNK);
    *table = te__part(&at, (size_t)*tensors * sizeof(te__grad_tensor) + ((size_t)*tensors + 1) * sizeof(int32_t));
    *partial = te__part(&at, (size_t)*chunks * sizeof(double));
    return at;
}
TE_API size_t te__grad_norm_bytes(te_model *const *models, int count, te_slices slices) {
    size_t table, partial;
    int tensors;
    int64_t chunks;
    return te__grad_norm_layout(models, count, slices, &table, &partial, &tensors, &chunks);
}
/* Bytes of target memory that te_grad_norm_init wants for these models. */
TE_API size_t te_grad_norm_bytes(te_model *const *models, int count) {
    return te__grad_norm_bytes(models, count, te_slices_of(0, 1));
}

TE_API te_status te__grad_norm_init(te_grad_norm *norm, void *memory, size_t bytes, te_model *const *models, int count,
                                    te_slices slices, te_context *ctx) {
    size_t table, partial;
    int tensors;
    int64_t chunks;
    TE_TRY(te__models_check(models, count, "gradient norm", ctx));
    TE_REQUIRE(norm, ctx, TE_ERROR_NULL, "gradient norm: the struct is null");
    const size_t needed = te__grad_norm_layout(models, count, slices, &table, &partial, &tensors, &chunks);
    TE_TRY(te__memory_check(memory, bytes, needed, models, count, "gradient norm", ctx));

    const te_group *group = te_tensor_group(ctx);
    TE_REQUIRE(group->size <= TE_NORM_RANKS, ctx, TE_ERROR_SHAPE,
               "gradient norm: a tensor group of %d ranks, %d at most", group->size, (int)TE_NORM_RANKS);
    const size_t table_bytes = (size_t)tensors * sizeof(te__grad_tensor) + ((size_t)tensors + 1) * sizeof(int32_t);
    te__grad_tensor *rows = (te__grad_tensor *)malloc(table_bytes);
    TE_REQUIRE(rows, ctx, TE_ERROR_MEMORY, "gradient norm: cannot allocate %zu bytes", table_bytes);
    int32_t *first = (int32_t *)(rows + tensors);
    te_piece_walk w = te_pieces_of(models, count, slices);
    int t = 0;
    for (first[0] = 0; te_pieces_next(&w); t++) { /* what all hold counts once */
        const int counts = (w.param->shard != TE_SHARD_none || !group->rank) && (!w.is_shared || !slices.rank);
        rows[t].grad = w.param->grad + w.from, rows[t].elements = counts ? w.elements : 0;
        first[t + 1] = first[t] + (int32_t)te_ceil_div(rows[t].elements, TE__NORM_CHUNK);
    }
    const int last = first[tensors];
    te_status status = te_copy(ctx, (char *)memory + table, rows, table_bytes);
    if (status == TE_OK) status = te_fill(ctx, memory, 0, TE_ALIGN);
    if (status == TE_OK) status = te_synchronize(ctx);
    free(rows);
    TE_TRY(status);
    norm->tensor = (const te__grad_tensor *)((char *)memory + table);
    norm->first = (const int32_t *)(norm->tensor + tensors);
    norm->partial = (double *)((char *)memory + partial);
    norm->result = (float *)memory, norm->norm = (double *)((char *)memory + 2 * sizeof(float));
    norm->count = tensors, norm->chunks = last;
    norm->ranks = (double *)((char *)memory + TE_ALIGN), norm->rank = group->rank, norm->size = group->size;
    norm->slices = slices;
    return TE_OK;
}
/* Bind to memory (target memory, aligned to TE_ALIGN) and to the models' gradients as they are bound now. Waits for the
 * stream. Errors: null pointers, a model without gradients or listed twice, memory too small or misaligned. */
TE_API te_status te_grad_norm_init(te_grad_norm *norm, void *memory, size_t bytes, te_model *const *models, int count,
                                   te_context *ctx) {
    return te__grad_norm_init(norm, memory, bytes, models, count, te_slices_of(0, 1), ctx);
}

/* What each rank of the group has found becomes the norm of all. */
TE_IF_USED TE_API te_status te__grad_norm_over(const te_grad_norm *norm, const te_group *g, te_context *ctx) {
    te_grad_norm a = *norm;
    a.rank = g->rank, a.size = g->size;
    TE_TRY(te__grad_norm_rank_launch(ctx, te_grid_of(1, 1), &a));
    enum { WORDS = sizeof(double) / sizeof(float) }; /* gathered as they are, not added up */
    TE_TRY(te_group_all_gather(g, a.ranks, a.ranks + a.rank, WORDS, TE_f32, ctx));
    return te__grad_norm_ranks_launch(ctx, te_grid_of(1, 1), &a);
}

/* Enqueue: norm->result[0] = sum of the squares of all gradients, norm->result[1] = its root, and *norm->norm. With
 * CUDA this is a function template: `auto f = &te_grad_norm_run<>`. */
TE_IF_USED TE_API te_status te_grad_norm_run(const te_grad_norm *norm, te_context *ctx) {
    TE_TRY(te_check_target(ctx, "gradient norm"));
    TE_REQUIRE(norm && norm->result, ctx, TE_ERROR_NULL, "gradient norm: not initialised");
    if (norm->chunks) TE_TRY(te__grad_norm_partial_launch(ctx, te_grid_of(norm->chunks, 1), norm));
    TE_TRY(te__grad_norm_sum_launch(ctx, te_grid_of(1, 1), norm));
    if (norm->slices.ranks > 1) TE_TRY(te__grad_norm_over(norm, te_data_group(ctx), ctx));
    if (norm->size == 1) return TE_OK;
    TE_REQUIRE(te_tensor_group(ctx)->size == norm->size && te_tensor_group(ctx)->rank == norm->rank, ctx,
               TE_ERROR_STATE, "gradient norm: initialised for another tensor group");
    return te__grad_norm_over(norm, te_tensor_group(ctx), ctx);
}

#endif
