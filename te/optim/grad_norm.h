/* grad_norm.h -- computes the global L2 norm of the gradients of several models. The result stays on the device.
 *
 * Do this:
 *     te_model *models[] = {&embed.model, &block.model};
 *     te_grad_norm norm;
 *     TE_TRY(te_allocate(&ctx, &memory, te_grad_norm_bytes(models, 2)));
 *     TE_TRY(te_grad_norm_init(&norm, memory, te_grad_norm_bytes(models, 2), models, 2, &ctx));
 *     TE_TRY(te_grad_norm_run(&norm, &ctx));         // enqueues; norm.result[0] = sum of squares, [1] = norm
 *
 * *norm.norm is a double that is finite if and only if all gradients are finite. The square of an element above about
 * 2^64 does not fit f32. Therefore, if the sum of a chunk's squares overflows, the chunk is summed a second time, with
 * the squares scaled down.
 *
 * With several ranks the result is the norm of the whole model. With tensor parallelism each rank sums the squares of
 * its shards' gradients, and rank 0 also includes the gradients of replicated parameters. The sums of all ranks are
 * then gathered and added in the order of the ranks. With ZeRO-1 (zero1.h), a rank has reduced gradients only for its
 * own shard; therefore the sums are first gathered and added over the data group. With pipeline parallelism, each stage
 * has other models; therefore the sums are finally gathered and added over the pipeline group. Gradients of copies
 * (te_model_mark_copy) are left out.
 *
 * The result is bitwise identical on every run and with any number of threads, because no atomics are used: tensors are
 * divided into chunks of equal size, a block computes the partial sum of each chunk, and a single block adds the
 * partial sums. Gaps between tensors are not read. A tied parameter counts once.
 */
#ifndef TE_GRAD_NORM_H
#define TE_GRAD_NORM_H

#include "../core/rank_group.h" /* te_group_all_gather */
#include "param_groups.h"  /* te_chunk_tensor, te__suballocate, te__models_check */
#include "zero1.h"         /* te_zero1_iter */

/* Four floats in one 16-byte access. */
typedef struct __attribute__((aligned(16))) te__float4 { float v[4]; } te__float4;

typedef struct te__grad_tensor { const float *grad; int64_t elements; } te__grad_tensor;

/* All pointers point into target memory. */
typedef struct te_grad_norm {
    const te__grad_tensor *tensor; /* [count] */
    const int32_t *first;          /* [count + 1], the index of the first chunk of each tensor */
    double *partial;               /* [chunks], the sum of the squares in each chunk */
    float *result;                 /* [2]: the sum of squares, and its square root; infinity if the number does not fit
                                    * f32 */
    double *norm;                  /* the norm in double; it lies behind `result` in memory */
    int count, chunks;
    double *rank_sums;             /* [max(TE_NORM_MAX_RANKS, zero1.ranks)]: the sum of squares that each rank of a
                                      group has computed */
    int rank, size;                /* this rank's index in a group, and the size of the group: the tensor group or, in
                                    * the arguments of a kernel, the group over which the kernel sums */
    te_zero1 zero1;                /* which shard of the gradients this rank reads; without ZeRO-1, "rank 0 of 1", which
                                    * reads all gradients */
} te_grad_norm;

/* A chunk is 32 KiB, or 8192 elements: 256 lanes, each with two rounds of four 16-byte loads. Chunks of this size are
 * small enough that there are enough blocks to balance the load, and large enough that one block can add the partial
 * sums of all chunks. */
enum { TE__NORM_CHUNK = 8192, TE__NORM_THREADS = 256, TE__NORM_LOADS = 4, TE__NORM_SUM_THREADS = 1024 };
enum { TE_NORM_MAX_RANKS = 64 }; /* the largest size of a tensor group, and of a pipeline group */
static_assert((int)TE_NORM_MAX_RANKS >= (int)TE_PIPELINE_MAX_STAGES, "te_grad_norm.rank_sums");

/* 2^192, by which the squares are divided after an overflow. Even the sum of 2^41 squares of the largest float then
 * fits f32. A square that underflows in this division is negligible compared with a sum that has overflowed. */
#define TE__NORM_RESCALE 6.277101735386680764e57

/* Return the sum of the squares of this lane's elements of a chunk x[n], divided by TE__NORM_RESCALE so that the sum
 * fits f32. The sum is computed in double. The loop is simple and slow, because it runs only after an overflow. */
TE_FN float te__grad_norm_rescaled(const float *x, int n, te_lanes lanes) {
    double sum = 0.0;
    for (int i = lanes.id; i < n; i += lanes.count) sum += (double)x[i] * (double)x[i];
    return (float)(sum / TE__NORM_RESCALE);
}

/* Sum the squares of one chunk. All blocks together read 4 bytes for each element and write 8 bytes for each chunk, so
 * a lower bound of the time is 4 bytes * elements / read bandwidth. */
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
    if (!(total <= 3.402823466e38f)) { /* overflow or NaN. All lanes have the same total, so all lanes take the same
                                        * branch */
        total = te__grad_norm_rescaled(x, n, lanes);
        te_lanes_sum(&total, 1, &lanes);
        partial = (double)total * TE__NORM_RESCALE;
    }
    if (lanes.id == 0) a->partial[b.x] = partial;
}
TE_KERNEL_IF_USED(te__grad_norm_partial, TE__NORM_THREADS, 1, te_grad_norm, te__grad_norm_body(te_args, te_at))

/* Add the partial sums of all chunks. Each lane adds in double, because a float would lose precision over a million
 * chunks. */
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
    total[0] = (float)sum, total[1] = (float)(sum / TE__NORM_RESCALE);
    te_lanes_sum(total, 2, &lanes);
    if (lanes.id != 0) return;
    const int fits = total[0] <= 3.402823466e38f;
    *a->norm = fits ? (double)sqrtf(total[0]) : sqrt((double)total[1]) * sqrt(TE__NORM_RESCALE);
    a->result[0] = total[0], a->result[1] = (float)*a->norm;
}
TE_KERNEL_IF_USED(te__grad_norm_sum, TE__NORM_SUM_THREADS, 1, te_grad_norm, te__grad_norm_sum_body(te_args))

/* The norm over several ranks is computed in three steps: each rank stores its sum of squares (te__grad_norm_put_rank),
 * an all-gather exchanges the ranks' sums, and each rank adds the sums of all ranks (te__grad_norm_sum_ranks). */

/* Stores this rank's sum of squares. */
TE_FN void te__grad_norm_put_rank_body(const te_grad_norm *a) { a->rank_sums[a->rank] = *a->norm * *a->norm; }
/* Add the sums of squares of all ranks, and compute the norm. */
TE_FN void te__grad_norm_sum_ranks_body(const te_grad_norm *a) {
    double sum = 0.0;
    for (int i = 0; i < a->size; i++) sum += a->rank_sums[i];
    *a->norm = sqrt(sum);
    a->result[0] = (float)sum, a->result[1] = (float)*a->norm;
}
TE_KERNEL_IF_USED(te__grad_norm_put_rank, 1, 1, te_grad_norm, te__grad_norm_put_rank_body(te_args))
TE_KERNEL_IF_USED(te__grad_norm_sum_ranks, 1, 1, te_grad_norm, te__grad_norm_sum_ranks_body(te_args))

/* The layout of the memory of a te_grad_norm: the offset of each part in bytes, and the number of tensors. */
typedef struct te__grad_norm_layout { size_t table, table_bytes, partial, bytes; int tensors; } te__grad_norm_layout;

TE_API te__grad_norm_layout te__grad_norm_layout_of(te_model *const *models, int count, te_zero1 zero1) {
    te__grad_norm_layout l;
    int64_t chunks = 0;
    te_zero1_iter it = te_zero1_iter_of(models, count, zero1);
    memset(&l, 0, sizeof l);
    l.bytes = TE_ALIGN; /* the result and the norm come first, then rank_sums */
    (void)te__suballocate(&l.bytes, (size_t)te_max(zero1.ranks, TE_NORM_MAX_RANKS) * sizeof(double));
    while (te_zero1_next(&it)) l.tensors++, chunks += te_ceil_div(it.elements, TE__NORM_CHUNK);
    l.table_bytes = (size_t)l.tensors * sizeof(te__grad_tensor) + ((size_t)l.tensors + 1) * sizeof(int32_t);
    l.table = te__suballocate(&l.bytes, l.table_bytes);
    l.partial = te__suballocate(&l.bytes, (size_t)chunks * sizeof(double));
    return l;
}
TE_API size_t te__grad_norm_bytes(te_model *const *models, int count, te_zero1 zero1) {
    return te__grad_norm_layout_of(models, count, zero1).bytes;
}
/* Return the bytes of target memory that te_grad_norm_init needs for these models. */
TE_API size_t te_grad_norm_bytes(te_model *const *models, int count) {
    return te__grad_norm_bytes(models, count, te_zero1_of(0, 1));
}

TE_API te_status te__grad_norm_init(te_grad_norm *norm, void *memory, size_t bytes, te_model *const *models, int count,
                                    te_zero1 zero1, te_context *ctx) {
    TE_TRY(te__models_check(models, count, "gradient norm", ctx));
    TE_REQUIRE(norm, ctx, TE_ERROR_NULL, "gradient norm: the struct is null");
    TE_TRY(te__zero1_check_shards(models, count, zero1, "gradient norm", ctx));
    const te__grad_norm_layout l = te__grad_norm_layout_of(models, count, zero1);
    TE_TRY(te__memory_check(memory, bytes, l.bytes, models, count, "gradient norm", ctx));

    const te_group *group = te_tensor_group(ctx);
    TE_REQUIRE(group->size <= TE_NORM_MAX_RANKS, ctx, TE_ERROR_SHAPE,
               "gradient norm: a tensor group of %d ranks, %d at most", group->size, (int)TE_NORM_MAX_RANKS);
    te__grad_tensor *rows = (te__grad_tensor *)malloc(l.table_bytes);
    TE_REQUIRE(rows, ctx, TE_ERROR_MEMORY, "gradient norm: cannot allocate %zu bytes", l.table_bytes);
    int32_t *first = (int32_t *)(rows + l.tensors);
    te_zero1_iter it = te_zero1_iter_of(models, count, zero1);
    int t = 0;
    for (first[0] = 0; te_zero1_next(&it); t++) { /* an element that several ranks hold counts on one rank only */
        const int counts = (!it.is_replicated || !zero1.rank) && !it.param->is_copy;
        const int64_t owned = te_shard_layout_of(it.param, group).owned - it.from;
        rows[t].grad = te__grad_at(models[it.model], it.param, it.from);
        rows[t].elements = counts ? te_max(0, te_min(it.elements, owned)) : 0;
        first[t + 1] = first[t] + (int32_t)te_ceil_div(rows[t].elements, TE__NORM_CHUNK);
    }
    const int chunks = first[l.tensors];
    te_status status = te_copy(ctx, (char *)memory + l.table, rows, l.table_bytes);
    if (status == TE_OK) status = te_fill(ctx, memory, 0, TE_ALIGN);
    if (status == TE_OK) status = te_synchronize(ctx);
    free(rows);
    TE_TRY(status);
    norm->tensor = (const te__grad_tensor *)((char *)memory + l.table);
    norm->first = (const int32_t *)(norm->tensor + l.tensors);
    norm->partial = (double *)((char *)memory + l.partial);
    norm->result = (float *)memory, norm->norm = (double *)((char *)memory + 2 * sizeof(float));
    norm->count = l.tensors, norm->chunks = chunks;
    norm->rank_sums = (double *)((char *)memory + TE_ALIGN), norm->rank = group->rank, norm->size = group->size;
    norm->zero1 = zero1;
    return TE_OK;
}
/* Initialise *norm for the gradients of these models, which must be bound. memory: target memory of te_grad_norm_bytes
 * bytes, aligned to TE_ALIGN. Waits for the stream. Errors: null pointers, a model without gradients or listed twice,
 * memory too small or misaligned. */
TE_API te_status te_grad_norm_init(te_grad_norm *norm, void *memory, size_t bytes, te_model *const *models, int count,
                                   te_context *ctx) {
    return te__grad_norm_init(norm, memory, bytes, models, count, te_zero1_of(0, 1), ctx);
}

/* Enqueue the kernels that replace this rank's norm, *norm->norm, by the norm over all ranks of the group g. */
TE_IF_USED TE_API te_status te__grad_norm_over_ranks(const te_grad_norm *norm, const te_group *g, te_context *ctx) {
    te_grad_norm a = *norm;
    a.rank = g->rank, a.size = g->size;
    TE_TRY(te__grad_norm_put_rank_launch(ctx, te__grid_of(1, 1), &a));
    enum { FLOATS = sizeof(double) / sizeof(float) }; /* a double can be sent as two floats, because an all-gather
                                                         preserves all bit patterns */
    TE_TRY(te_group_all_gather(g, a.rank_sums, a.rank_sums + a.rank, FLOATS, TE_f32, ctx));
    return te__grad_norm_sum_ranks_launch(ctx, te__grid_of(1, 1), &a);
}

/* Enqueue the kernels that compute the norm. norm->result[0] becomes the sum of the squares of all gradients,
 * norm->result[1] the norm (the square root of this sum), and *norm->norm the norm in double. With CUDA
 * te_grad_norm_run is a function template; its address is `&te_grad_norm_run<>`. */
TE_IF_USED TE_API te_status te_grad_norm_run(const te_grad_norm *norm, te_context *ctx) {
    TE_TRY(te__check_target(ctx, "gradient norm"));
    TE_REQUIRE(norm && norm->result, ctx, TE_ERROR_NULL, "gradient norm: not initialised");
    if (norm->chunks) TE_TRY(te__grad_norm_partial_launch(ctx, te__grid_of(norm->chunks, 1), norm));
    TE_TRY(te__grad_norm_sum_launch(ctx, te__grid_of(1, 1), norm));
    if (norm->zero1.ranks > 1) TE_TRY(te__grad_norm_over_ranks(norm, te_data_group(ctx), ctx));
    TE_REQUIRE(te_tensor_group(ctx)->size == norm->size && te_tensor_group(ctx)->rank == norm->rank, ctx,
               TE_ERROR_STATE, "gradient norm: initialised for another tensor group");
    if (norm->size > 1) TE_TRY(te__grad_norm_over_ranks(norm, te_tensor_group(ctx), ctx));
    const te_group *stages = te_pipeline_group(ctx);
    return stages->size > 1 ? te__grad_norm_over_ranks(norm, stages, ctx) : TE_OK;
}

#endif
